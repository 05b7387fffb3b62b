/* fuzz_idx.c: idx files, plain and compressed, through mpt_idx. The first byte says how the rest is
   read, the next two how much of it is the file of inputs; what remains is the file of targets.
   Files that are accepted deliver every sample; a file packed here without compression is accepted
   or refused as the plain one is, and delivers the same; no allocation exceeds what the file's size
   can account for. */
#include "fuzz.h"

static const uint8_t labels[8 + 4] = {0, 0, 8, 1, 0, 0, 0, 4, 3, 1, 0, 2};

enum { MAX_SIZE = 4096, TARGETS = 1, GZIP = 2, PACK = 4, DEFLATE_RATIO = 1032 };

static uint32_t crc32_of(const uint8_t *data, size_t size) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

static void put_u32(uint8_t *out, uint32_t value) {
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(value >> (8 * i));
}

/* A gzip file of one stored block, out[size + 23]; returns its size. */
static size_t gzip_stored(const uint8_t *data, size_t size, uint8_t *out) {
    static const uint8_t head[11] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1};
    memcpy(out, head, sizeof head);
    put_u32(out + 11, (uint32_t)size | ~(uint32_t)size << 16);
    if (size) memcpy(out + 15, data, size);
    put_u32(out + 15 + size, crc32_of(data, size));
    put_u32(out + 19 + size, (uint32_t)size);
    return size + 23;
}

static void put_file(disk *d, const char *path, const void *data, size_t size) {
    disk_file *file = (disk_file *)disk_open(d, path, 'w');
    disk_write(d, file, data, size);
    disk_close(d, file);
}

typedef struct outcome {
    mpt_status status;
    int64_t count;
    double mean, deviation;
} outcome;

/* Every way that data goes out: samples, statistics, batches. */
static void deliver(mpt_context *context, mpt_dataset data, bool targets, outcome *out) {
    static float input[MAX_SIZE * DEFLATE_RATIO];
    static int64_t target[MAX_SIZE * DEFLATE_RATIO];
    out->count = mpt_dataset_size(data);
    PROMISE(out->count >= 1);
    PROMISE(mpt_sample(data, 0, input, NULL) == MPT_OK);
    PROMISE(mpt_sample(data, out->count - 1, input, NULL) == MPT_OK);
    PROMISE(mpt_dataset_statistics(data, &out->mean, &out->deviation) == MPT_OK);
    PROMISE(out->mean >= 0.0 && out->mean <= 1.0 && out->deviation >= 0.0);
    mpt_sample_into(data, out->count - 1, NULL, 0, targets ? target : NULL, sizeof target, NULL);
    PROMISE(!mpt_failed(context));
    PROMISE(mpt_sample(data, out->count, input, NULL) == MPT_ERROR_INDEX);
    mpt_clear_error(context);
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 7;
    config.dtype = MPT_F16;
    mpt_loader loader = mpt_loader_create(context, data, &config);
    mpt_batch batch;
    int64_t seen = 0;
    for (int i = 0; i < 20 && mpt_loader_next(loader, &batch); i++) seen += batch.size;
    PROMISE(mpt_failed(context) || seen == (out->count < 140 ? out->count : 140));
    if (mpt_failed(context)) PROMISE(mpt_error_code(context) == MPT_ERROR_MEMORY);
    mpt_clear_error(context);
}

static outcome read_files(const uint8_t *inputs, size_t n_inputs, const uint8_t *targets,
                          size_t n_targets) {
    outcome out;
    heap h;
    disk d;
    memset(&out, 0, sizeof out);
    mpt_config config = fuzz_config(&h);
    disk_use(&d, &config);
    put_file(&d, "inputs", inputs, n_inputs);
    if (targets) put_file(&d, "targets", targets, n_targets);
    mpt_context *context = mpt_create(&config);
    PROMISE(context != NULL);
    int64_t before = h.largest;
    h.largest = 0;
    mpt_dataset data = mpt_idx(context, "inputs", targets ? "targets" : NULL);
    int64_t file = (int64_t)(n_inputs > n_targets ? n_inputs : n_targets);
    PROMISE(h.largest <= (file + 1) * (DEFLATE_RATIO + 1) + 100000 || h.largest <= before);
    PROMISE(d.open_now == 0);
    out.status = mpt_error_code(context);
    PROMISE((out.status == MPT_OK) == (data.slot != 0));
    PROMISE((out.status == MPT_OK) == (mpt_error(context)[0] == 0));
    /* One label is one class number; labels of more dimensions would need more room. */
    bool flat = targets && n_targets > 3 && memcmp(targets, labels, 4) == 0;
    if (out.status == MPT_OK) deliver(context, data, flat, &out);
    mpt_destroy(context);
    PROMISE(h.live == 0);
    disk_free(&d);
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t packed[MAX_SIZE + 23];
    if (size < 3 || size > MAX_SIZE) return 0;
    size_t n = (size_t)(data[1] | data[2] << 8), left = size - 3;
    const uint8_t *inputs = data + 3, *targets = NULL;
    if (n > left) n = left;
    if (data[0] & TARGETS) targets = inputs + n;
    if (!targets) n = left;
    outcome plain = read_files(inputs, n, targets, left - n);
    if (!(data[0] & PACK) || (n > 1 && inputs[0] == 0x1f && inputs[1] == 0x8b)) return 0;
    size_t bytes = gzip_stored(inputs, n, packed);
    outcome unpacked = read_files(packed, bytes, targets, left - n);
    PROMISE((plain.status == MPT_OK) == (unpacked.status == MPT_OK));
    PROMISE(plain.count == unpacked.count && plain.mean == unpacked.mean);
    PROMISE(plain.deviation == unpacked.deviation);
    return 0;
}

/* ==== Seeds ==== */

/* Files of four inputs: [4, 2, 3] plain and deflated with the fixed codes, [4, 12, 12] deflated
   with codes of its own. */
static const uint8_t images[16 + 24] = {0, 0, 8, 3, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 3,
                                        9, 8, 7, 6, 5, 4, 9, 9, 9, 9, 9, 9, 0, 0, 0, 0};
static const uint8_t fixed_codes[] = {
    31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 99, 96, 224, 96, 102, 96, 96, 96, 1, 98, 38, 32, 102, 230,
    228, 96, 103, 99, 101, 225, 4, 3, 6, 36, 0, 0, 125, 51, 44, 53, 40, 0, 0, 0};
static const uint8_t own_codes[] = {
    31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 229, 141, 49, 14, 0, 32, 8, 196, 122, 209, 193, 193, 255,
    191, 215, 1, 72, 116, 208, 40, 171, 77, 24, 46, 87, 0, 90, 1, 42, 208, 125, 12, 1, 146, 16, 242,
    192, 196, 191, 109, 132, 208, 86, 231, 140, 239, 111, 77, 93, 95, 122, 249, 154, 115, 147, 12,
    234, 137, 118, 184, 80, 2, 0, 0};

static void write_pair(const char *folder, const char *name, int flags, const uint8_t *inputs,
                       size_t n) {
    uint8_t seed[MAX_SIZE];
    seed[0] = (uint8_t)(flags | TARGETS);
    seed[1] = (uint8_t)n, seed[2] = (uint8_t)(n >> 8);
    memcpy(seed + 3, inputs, n);
    memcpy(seed + 3 + n, labels, sizeof labels);
    write_seed(folder, name, seed, 3 + n + sizeof labels);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    uint8_t stored[sizeof images + 23];
    if (!folder) return 0;
    write_pair(folder, "plain", PACK, images, sizeof images);
    write_pair(folder, "stored", GZIP, stored, gzip_stored(images, sizeof images, stored));
    write_pair(folder, "fixed", GZIP, fixed_codes, sizeof fixed_codes);
    write_pair(folder, "dynamic", GZIP, own_codes, sizeof own_codes);
    return 0;
}
