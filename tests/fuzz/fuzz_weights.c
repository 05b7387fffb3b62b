/* fuzz_weights.c: safetensors from memory into a small net, strict and not, by rules for names and
   without. The first byte says how the rest is read: as a file, or as a header up to the first NUL
   with its data after it, which spares the fuzzer the arithmetic of lengths. A file that is refused
   changes nothing; what a file that is accepted has made of the net survives mpt_save and mpt_load,
   to the bit. */
#include "fuzz.h"

enum { MAX_SIZE = 2048, STRICT = 1, FRAME = 2, F16 = 4, BF16 = 8, SHARED = 16, RENAMED = 32 };

static mpt_module make_small_net(mpt_context *context, int flags) {
    mpt_module layers[3];
    layers[0] = mpt_nn_linear(context, 3, 4);
    layers[1] = mpt_nn_relu(context);
    layers[2] = flags & SHARED ? layers[0] : mpt_nn_linear_no_bias(context, 4, 2);
    mpt_module net = mpt_sequential_array(context, layers, 3);
    if (flags & (F16 | BF16)) mpt_half(net, flags & F16 ? MPT_F16 : MPT_BF16);
    return net;
}

/* Saves, and loads into another net both ways. */
static void save_and_load(mpt_context *context, disk *d, mpt_module net, int flags) {
    mpt_module other = make_small_net(context, flags), third = make_small_net(context, flags);
    uint64_t hash = mpt_module_hash(net);
    int loaded = -1, count = mpt_parameter_count(net);
    PROMISE(mpt_save(net, "weights") == MPT_OK);
    PROMISE(mpt_load(other, "weights", NULL, &loaded) == MPT_OK && loaded == count);
    PROMISE(mpt_module_hash(other) == hash);
    disk_file *file = disk_find(d, "weights", 0);
    PROMISE(file != NULL && disk_count(d) == 1 && d->open_now == 0);
    PROMISE(mpt_load_memory(third, file->data, file->bytes, NULL, &loaded) == MPT_OK);
    PROMISE(loaded == count && mpt_module_hash(third) == hash);
}

static void load(const uint8_t *data, size_t size, int flags) {
    heap h;
    disk d;
    mpt_config config = fuzz_config(&h);
    disk_use(&d, &config);
    mpt_context *context = mpt_create(&config);
    mpt_module net = make_small_net(context, flags);
    mpt_load_config how = mpt_load_config_default();
    int loaded = -1;
    static const mpt_rename rules[] = {{"m.*", "*", false, 0, 0},
                                       {"*.t", "*.weight", true, 0, 0},
                                       {"*.q", "*.weight", false, 0, 2},
                                       {"*.k", "*.weight", true, 1, 2}};
    static const char *const ignored[] = {"*.mask", "step"};
    how.strict = (flags & STRICT) != 0;
    if (flags & RENAMED) {
        how.renames = rules, how.rename_count = 4;
        how.ignore = ignored, how.ignore_count = 2;
    }
    const int parts = flags & RENAMED ? 2 : 1; /* of a parameter, at most */
    uint64_t before = mpt_module_hash(net);
    PROMISE(!mpt_failed(context));
    h.largest = 0;
    mpt_status status = mpt_load_memory(net, data, size, &how, &loaded);
    PROMISE(h.largest <= (int64_t)size * 16 + 100000);
    PROMISE(status == mpt_error_code(context));
    PROMISE((status == MPT_OK) == (mpt_error(context)[0] == 0));
    if (status != MPT_OK) {
        PROMISE(loaded == 0);
        mpt_clear_error(context);
        PROMISE(mpt_module_hash(net) == before);
    } else {
        PROMISE(loaded >= 0 && loaded <= parts * mpt_parameter_count(net));
        PROMISE(!how.strict || loaded >= mpt_parameter_count(net));
        save_and_load(context, &d, net, flags);
    }
    PROMISE(!mpt_failed(context));
    mpt_destroy(context);
    PROMISE(h.live == 0);
    disk_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > MAX_SIZE) return 0;
    int flags = *data++;
    size--;
    if (!(flags & FRAME)) {
        uint8_t *exact = (uint8_t *)malloc(size ? size : 1); /* odd ends are seen */
        if (!exact) return 0;
        memcpy(exact, data, size);
        load(exact, size, flags);
        free(exact);
        return 0;
    }
    uint8_t framed[8 + MAX_SIZE] = {0};
    const uint8_t *end = (const uint8_t *)memchr(data, 0, size);
    size_t header = end ? (size_t)(end - data) : size, rest = end ? size - header - 1 : 0;
    framed[0] = (uint8_t)header, framed[1] = (uint8_t)(header >> 8);
    memcpy(framed + 8, data, header);
    if (rest) memcpy(framed + 8 + header, end + 1, rest);
    load(framed, 8 + header + rest, flags);
    return 0;
}

/* ==== Seeds ==== */

/* What mpt_save writes, behind the flags. */
static void write_saved(const char *folder, const char *name, int flags) {
    uint8_t seed[MAX_SIZE];
    heap h;
    disk d;
    mpt_config config = fuzz_config(&h);
    disk_use(&d, &config);
    mpt_context *context = mpt_create(&config);
    mpt_save(make_small_net(context, flags), "weights");
    disk_file *file = disk_find(&d, "weights", 0);
    PROMISE(file != NULL && file->bytes < sizeof seed);
    seed[0] = (uint8_t)flags;
    memcpy(seed + 1, file->data, file->bytes);
    write_seed(folder, name, seed, 1 + file->bytes);
    mpt_destroy(context);
    disk_free(&d);
}

/* A header with `bytes` bytes of data, which are small numbers in every dtype. */
static void write_framed(const char *folder, const char *name, int flags, const char *header,
                         size_t bytes) {
    uint8_t seed[MAX_SIZE] = {0};
    size_t n = strlen(header) + 1;
    seed[0] = (uint8_t)(flags | FRAME);
    memcpy(seed + 1, header, n);
    for (size_t i = 0; i < bytes; i++) seed[1 + n + i] = (uint8_t)(i * 7 % 60);
    write_seed(folder, name, seed, 1 + n + bytes);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    if (!folder) return 0;
    write_saved(folder, "f32", STRICT);
    write_saved(folder, "f16", STRICT | F16);
    write_saved(folder, "bf16", BF16);
    write_saved(folder, "shared", STRICT | SHARED);
    write_framed(folder, "metadata", STRICT,
                 "{\"__metadata__\":{\"format\":\"pt\",\"\\u00e9\\ud83d\\ude00\":\"\\n\"},"
                 "\"2.weight\":{\"dtype\":\"F64\",\"shape\":[2,4],\"data_offsets\":[0,64]},"
                 "\"0.bias\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[64,72]},"
                 "\"0.weight\":{\"dtype\":\"BF16\",\"shape\":[4,3],\"data_offsets\":[72,96]}}  ",
                 96);
    write_framed(folder, "others", 0,
                 "{ \"0.bias\" : {\"shape\":[4], \"data_offsets\":[0,4], \"dtype\":\"F8_E4M3\"},\n"
                 "\"x\":{\"dtype\":\"F4\",\"shape\":[3,2],\"data_offsets\":[4,7]},"
                 "\"none\":{\"dtype\":\"I16\",\"shape\":[0,7],\"data_offsets\":[7,7]}}",
                 7);
    write_framed(folder, "renamed", STRICT | RENAMED,
                 "{\"m.0.t\":{\"dtype\":\"F32\",\"shape\":[3,4],\"data_offsets\":[0,48]},"
                 "\"m.0.bias\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[48,56]},"
                 "\"m.2.q\":{\"dtype\":\"U8\",\"shape\":[1,4],\"data_offsets\":[56,60]},"
                 "\"2.k\":{\"dtype\":\"BF16\",\"shape\":[4,1],\"data_offsets\":[60,68]},"
                 "\"0.mask\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[68,70]}}",
                 70);
    return 0;
}
