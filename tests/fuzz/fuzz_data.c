/* fuzz_data.c: the other files that data comes in. The first byte says which, the next two how much
   of the rest is the first of two files: the vocabulary and merges of a BPE tokenizer, a text for
   characters, records of CIFAR-10, tokens, a table and one like it, two .npy or an .npz, the
   manifest of an image folder (in a build with
   stb_image; its pictures are not decoded). What is accepted is used: texts go there and back,
   every sample is made. No allocation exceeds a few times the files. */
#if defined(__has_include)
#if __has_include(<stb_image.h>) || __has_include(<stb/stb_image.h>)
#define MPTRAIN_STB_IMAGE
#define MPTRAIN_STB_IMAGE_IMPLEMENTATION
#endif
#endif
#include "fuzz.h"

enum { MAX_SIZE = 4096, BPE, CHARS, CIFAR, TOKENS, MANIFEST, TABLE, NPY, NPZ, KINDS };

static void put_file(disk *d, const char *path, const void *data, size_t size) {
    disk_file *file = (disk_file *)disk_open(d, path, 'w');
    disk_write(d, file, data, size);
    disk_close(d, file);
}

static bool list_pictures(void *user, const char *path, mpt_list_entry entry, void *to) {
    (void)user;
    if (strcmp(path, "r") == 0) entry(to, "b", true), entry(to, "a", true);
    if (strcmp(path, "r") != 0) entry(to, "2.png", false), entry(to, "1.jpg", false);
    return true;
}

/* Any text that is encoded comes back. */
static void there_and_back(mpt_context *context, mpt_tokenizer t, const char *text, size_t n) {
    static int32_t tokens[MAX_SIZE];
    static char back[MAX_SIZE];
    const int64_t size = mpt_vocabulary_size(t);
    const int64_t count = mpt_encode(t, text, n, tokens, MAX_SIZE);
    PROMISE((count < 0) == mpt_failed(context));
    mpt_clear_error(context);
    if (count < 0) return;
    PROMISE(count <= (int64_t)n);
    for (int64_t i = 0; i < count; i++) PROMISE(tokens[i] >= 0 && tokens[i] < size);
    PROMISE(mpt_decode(t, tokens, count, back, MAX_SIZE) == (int64_t)n);
    PROMISE(memcmp(back, text, n) == 0);
}

static int64_t shape_count(mpt_shape shape) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dim[i];
    return n;
}

/* In rooms of exactly the size that is told. */
static void every_sample(mpt_context *context, mpt_dataset data) {
    static float input[1 << 21]; /* a one-hot input per byte of a table, and more */
    mpt_sample_sizes sizes;
    if (shape_count(mpt_dataset_shape(data)) > 1 << 21) return;
    mpt_sample_into(data, 0, NULL, 0, NULL, 0, &sizes);
    void *room = malloc(sizes.bytes ? sizes.bytes : 1);
    void *target = malloc(sizes.target_bytes ? sizes.target_bytes : 1);
    PROMISE(room && target);
    for (int64_t i = 0; i < mpt_dataset_size(data) && i < 300; i++) {
        mpt_sample(data, i, input, NULL);
        mpt_sample_into(data, i, room, sizes.bytes, target, sizes.target_bytes, NULL);
    }
    free(room);
    free(target);
    mpt_clear_error(context); /* tokens beyond a vocabulary */
}

/* Columns by the bits of `flags`; the second table may be like the first. */
static mpt_dataset read_tables(mpt_context *context, int flags) {
    static const char delimiters[4] = {',', ';', '\t', ' '};
    const mpt_column columns[2] = {{"0", (mpt_column_use)(flags / 16 % 7)},
                                   {"-1", (mpt_column_use)(flags / 16 % 5 + 2)}};
    mpt_table_config config = mpt_table_config_default();
    config.header = flags & 1, config.missing = flags & 2;
    config.delimiter = delimiters[flags / 4 % 4];
    config.unknown = (flags & 48) == 16, config.decimal = (flags & 48) == 48 ? ',' : 0;
    if (flags & 64) config.dtype = MPT_I64;
    if (flags & 128) config.columns = columns, config.column_count = 2;
    mpt_dataset table = mpt_csv(context, "r/1", &config);
    if (!table.slot) return table;
    for (int64_t i = 0; mpt_column_name(table, i) && i < 40; i++)
        for (int64_t k = 0; mpt_category_name(table, i, k) && k < 40; k++) continue;
    every_sample(context, table);
    mpt_table_fit(mpt_subset(table, 0, 1), flags & 32);
    mpt_clear_error(context);
    /* What was saved can be loaded; whatever else is loaded can be what a table is like. */
    PROMISE(mpt_table_save(table, "r/3") == MPT_OK);
    mpt_dataset likes[3] = {table, mpt_table_load(context, "r/3"), mpt_table_load(context, "r/2")};
    PROMISE(likes[1].slot != 0);
    PROMISE(shape_count(mpt_dataset_shape(likes[1])) == shape_count(mpt_dataset_shape(table)));
    mpt_clear_error(context);
    if (flags & 32) config.target = "";
    for (int i = 0; i < 3; i++) {
        config.like = likes[i];
        mpt_dataset other = mpt_csv(context, i < 2 ? "r/2" : "r/1", &config);
        if (other.slot) every_sample(context, other);
        mpt_clear_error(context);
    }
    return table;
}

static void use(mpt_context *context, int kind, int flags, const uint8_t *second, size_t n) {
    mpt_tokenizer t;
    mpt_dataset data;
    mpt_window_config config = mpt_window_config_default();
    memset(&data, 0, sizeof data);
    config.block = 1 + flags % 7, config.random = flags & 64, config.stride = flags / 8 % 4;
    config.vocabulary = flags & 128;
    if (kind == BPE) {
        t = mpt_bpe_tokenizer(context, "r/1", "r/2");
        if (!mpt_failed(context)) there_and_back(context, t, (const char *)second, n);
    } else if (kind == CHARS) {
        t = mpt_char_tokenizer(context, "r/1");
        if (!mpt_failed(context)) {
            there_and_back(context, t, (const char *)second, n);
            data = mpt_text_file(t, "r/2", &config);
        }
    } else if (kind == CIFAR) {
        data = mpt_cifar10(context, "r", MPT_TEST);
    } else if (kind == TOKENS) {
        data = mpt_token_file(context, "r/1", 1 << flags % 3, &config);
    } else if (kind == TABLE) {
        data = read_tables(context, flags);
    } else if (kind == NPY) {
        if (flags & 1) mpt_numpy_tensor(context, "r/2", NULL);
        mpt_clear_error(context);
        data = mpt_npy(context, "r/1", flags & 2 ? "r/2" : NULL);
    } else if (kind == NPZ) {
        data = mpt_npz(context, "r/1", "x", flags & 2 ? "y" : NULL);
    } else {
        mpt_image_config images = mpt_image_config_default();
        mpt_transform step = mpt_transform_default(MPT_RESIZE, 2, 2);
        images.manifest = "r/1", images.steps = &step, images.step_count = 1;
        data = mpt_image_folder(context, "r", &images);
        if (!mpt_failed(context)) PROMISE(mpt_dataset_size(data) == 4);
        return;
    }
    PROMISE(!mpt_failed(context) || data.slot == 0);
    if (data.slot) every_sample(context, data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    heap h;
    disk d;
    if (size < 4 || size > MAX_SIZE) return 0;
    const int kind = BPE + data[0] % (KINDS - BPE), flags = data[1];
    size_t n = (size_t)(data[2] | data[3] << 8);
    if (n > size - 4) n = size - 4;
    const uint8_t *second = data + 4 + n;
    mpt_config config = fuzz_config(&h);
    disk_use(&d, &config);
    config.io.list = list_pictures;
    put_file(&d, "r/1", data + 4, n);
    put_file(&d, "r/test_batch.bin", data + 4, n);
    put_file(&d, "r/2", second, size - 4 - n);
    mpt_context *context = mpt_create(&config);
    PROMISE(context != NULL);
    h.largest = 0;
    use(context, kind, flags, second, size - 4 - n);
    PROMISE(h.largest <= (int64_t)size * 16 + 200000); /* all of Unicode is 139,264 bits of bytes */
    PROMISE(mpt_failed(context) == (mpt_error(context)[0] != 0));
    PROMISE(d.open_now == 0);
    mpt_destroy(context);
    PROMISE(h.live == 0);
    disk_free(&d);
    return 0;
}

/* ==== Seeds ==== */

static void write_pair(const char *folder, const char *name, int kind, int flags,
                       const char *first, const char *second) {
    uint8_t seed[MAX_SIZE];
    const size_t n = strlen(first), m = strlen(second);
    seed[0] = (uint8_t)(kind - BPE), seed[1] = (uint8_t)flags;
    seed[2] = (uint8_t)n, seed[3] = (uint8_t)(n >> 8);
    memcpy(seed + 4, first, n);
    memcpy(seed + 4 + n, second, m);
    write_seed(folder, name, seed, 4 + n + m);
}

/* A .npy of four i16, and that in an .npz, stored and as a stored block of deflate. */
static void write_arrays(const char *folder) {
    static const char header[] = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 2), }";
    uint8_t seed[1024] = {0}, *npy = seed + 4;
    const size_t n = 10 + sizeof header - 1 + 8;
    seed[0] = NPY - BPE, seed[1] = 3, seed[2] = (uint8_t)n;
    memcpy(npy, "\x93NUMPY\x01", 8);
    npy[8] = sizeof header - 1;
    memcpy(npy + 10, header, sizeof header - 1);
    memcpy(npy + n - 8, "\0\1\0\2\377\377\0\4", 8);
    memcpy(npy + n, npy, n);
    write_seed(folder, "npy", seed, 4 + 2 * n);
    for (int deflate = 0; deflate < 2; deflate++) {
        uint8_t body[256] = {1, (uint8_t)n, 0, (uint8_t)~n, 255};
        const size_t size = n + (deflate ? 5 : 0);
        uint32_t crc = 0xffffffffu;
        memcpy(body + (deflate ? 5 : 0), npy, n);
        for (size_t i = 0; i < n; i++) {
            crc ^= npy[i];
            for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
        }
        crc = ~crc;
        uint8_t zip[512] = {'P', 'K', 3, 4}, *entry = zip + 35 + size, *end = entry + 51;
        zip[26] = entry[28] = 5;
        memcpy(zip + 30, "x.npy", 5);
        memcpy(zip + 35, body, size);
        memcpy(entry, "PK\1\2", 4);
        entry[10] = deflate ? 8 : 0;
        for (int k = 0; k < 4; k++) entry[16 + k] = (uint8_t)(crc >> 8 * k);
        entry[20] = (uint8_t)size, entry[24] = (uint8_t)n;
        memcpy(entry + 46, "x.npy", 5);
        memcpy(end, "PK\5\6", 4);
        end[10] = 1, end[16] = (uint8_t)(35 + size);
        const size_t all = 35 + size + 51 + 22;
        uint8_t out[1024] = {NPZ - BPE, 0, (uint8_t)all, (uint8_t)(all >> 8)};
        memcpy(out + 4, zip, all);
        write_seed(folder, deflate ? "npz-deflated" : "npz", out, 4 + all);
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    char records[MAX_SIZE];
    if (!folder) return 0;
    write_pair(folder, "bpe", BPE, 0,
               "{\"a\": 0, \"b\": 1, \"ab\": 2, \"\\u0120a\" :3,\"\xc4\xa0\":4 }",
               "#version: 0.2\na b\n\xc4\xa0 a\n");
    write_pair(folder, "chars", CHARS, 2,
               "ab\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82\n", "ab\xc3\xa9 aba");
    write_pair(folder, "tokens", TOKENS, 65, "0123456789abcdef", "");
    memset(records, 7, sizeof records);
    records[3073] = 0;
    write_pair(folder, "cifar", CIFAR, 0, records, "");
    for (int i = 0; i < 4; i++)
        snprintf(records + strlen(records) * (i > 0), 100,
                 "%064d  %s%s/%s\n", 1000 * i + 7, i ? "" : "./", i % 2 ? "a" : "b",
                 i / 2 ? "1.jpg" : "2.png");
    write_pair(folder, "manifest", MANIFEST, 0, records, "");
    write_pair(folder, "table", TABLE, 3,
               "a,b,\"c d\"\n1,x,u\n-2.5e3,\"y,\"\"\",v\nNA,x,\"u\"\r\n", "a,b,c d\n3,x,u\n");
    write_pair(folder, "table-saved", TABLE, 35, "b,a,p\nx,\"1,5\",1\n,-2,2\n",
               "what,name,for,mean,deviation\ntable,1,float32,named,filled\nnumber,a,input,1,2\n"
               "one-hot,b,input,,\ncategory,x,,,\nnumber,p,target,,\n");
    write_pair(folder, "table-commas", TABLE, 7, "a;b\n0,5;x\n1,25;y\n", "b;a\nz;1,234\n");
    write_pair(folder, "table-codes", TABLE, 128 + 64 + 4 + 48, "7;b;x\n8;a;y\n9;c;x", "1;b;y");
    write_arrays(folder);
    return 0;
}
