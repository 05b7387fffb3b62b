/* api_parsers.c: what arrays, datasets, tables and tokenizers make of the last odd things in their
   files: entries of archives that point elsewhere, files that change while they are read, callbacks
   that are not there, sizes beyond memory, fields in no common spelling. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "training.h"

static disk files;

/* A file may be opened again while it is open, as where no callback closes it. */
static void *open_again(void *user, const char *path, char mode) {
    disk_file *file = disk_find((disk *)user, path, 0);
    if (file) file->is_open = 0;
    return disk_open(user, path, mode);
}

static int64_t told_sizes[12]; /* what calls for a size say, the last from then on; 0: the truth */
static int size_calls;

static int64_t tell_size(void *user, void *file) {
    const int64_t told = told_sizes[size_calls < 11 ? size_calls++ : 11];
    return told ? told : disk_size(user, file);
}

static mpt_context *make_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    disk_use(&files, &config);
    config.io.size = tell_size;
    memset(told_sizes, 0, sizeof told_sizes);
    return mpt_create(&config);
}

static void put(const char *path, const void *data, size_t bytes) {
    disk_file *file = (disk_file *)disk_open(&files, path, 'w');
    disk_write(&files, file, data, bytes);
    disk_close(&files, file);
}

static void end(mpt_context *c) {
    mpt_destroy(c);
    CHECK_EQ_INT(files.open_now, 0);
    disk_free(&files);
}

/* Whether the build has all that this file is about. */
static bool have_files(void) {
    mpt_context *c = make_context();
    bool built = true;
    for (int i = 0; i < 3; i++) {
        if (i == 0) mpt_csv_memory(c, NULL, 0, NULL);
        if (i == 1) mpt_idx(c, NULL, NULL);
        if (i == 2) mpt_char_tokenizer(c, NULL);
        built = built && !strstr(mpt_error(c), "uilt without");
        mpt_clear_error(c);
    }
    end(c);
    return built;
}
#define NEEDS_FILES \
    if (!have_files()) SKIP("files, tables and texts")

/* ==== Archives of arrays ==== */

static uint8_t archive[4096];
static size_t archive_bytes;

/* Least byte first; behind the eighth there are zeros. */
static void add(uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++, value >>= 8) archive[archive_bytes++] = (uint8_t)value;
}

static uint32_t checksum(const uint8_t *p, size_t n) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

/* An entry "x.npy" or the like; what is 0 is as it should be. */
typedef struct entry {
    const char *shape;
    int elements; /* zeros of float32 */
    uint32_t flags, method, packed, size, local_name, name, place;
} entry;

/* Entries x, y, .. stored as they are, then their directory. */
static void put_npz(const entry *entries, int count) {
    size_t places[4], sizes[4], directory;
    uint32_t sums[4];
    archive_bytes = 0;
    for (int i = 0; i < count; i++) {
        const entry *e = &entries[i];
        char header[128];
        const int n = snprintf(header, sizeof header,
                               "{'descr': '<f4', 'fortran_order': False, 'shape': %s}", e->shape);
        places[i] = archive_bytes, sizes[i] = (size_t)(10 + n + 4 * e->elements);
        add(0x04034b50, 4), add(20, 2), add(0, 20);
        add(e->local_name ? e->local_name : 5, 2), add(0, 2);
        add((uint64_t)'x' + (uint64_t)i, 1), add(0x79706e2e, 4);
        const size_t begin = archive_bytes;
        memcpy(archive + begin, "\x93NUMPY\x01\0", 8);
        archive_bytes += 8;
        add((uint64_t)n, 2);
        memcpy(archive + archive_bytes, header, (size_t)n);
        archive_bytes += (size_t)n;
        add(0, 4 * e->elements);
        sums[i] = checksum(archive + begin, sizes[i]);
    }
    directory = archive_bytes;
    for (int i = 0; i < count; i++) {
        const entry *e = &entries[i];
        add(0x02014b50, 4), add(20, 2), add(20, 2), add(e->flags, 2), add(e->method, 2), add(0, 4);
        add(sums[i], 4), add(e->packed ? e->packed : sizes[i], 4);
        add(e->size ? e->size : sizes[i], 4), add(e->name ? e->name : 5, 2), add(0, 12);
        add(e->place ? e->place : places[i], 4);
        add((uint64_t)'x' + (uint64_t)i, 1), add(0x79706e2e, 4);
    }
    const size_t end_at = archive_bytes;
    add(0x06054b50, 4), add(0, 4), add((uint64_t)count, 2), add((uint64_t)count, 2);
    add(end_at - directory, 4), add(directory, 4), add(8, 2);
    add(0x04034b50, 4), add(0, 4); /* a remark that looks like the beginning of an entry */
    put("z", archive, archive_bytes);
}

TEST(archives_that_point_elsewhere) {
    static const struct {
        entry e;
        const char *fault; /* NULL: it is read */
    } rows[] = {
        {{"(2,)", 2, 0, 0, 0, 0, 0, 0, 0}, NULL},
        {{"(2,)", 2, 0, 0, 0, 0, 0, 0xffff, 0}, "z, x: the .npz has no array of this name"},
        {{"(2,)", 2, 0, 0, 0, 0, 0, 0, 181}, "z, x: its place in the .npz is damaged"},
        {{"(2,)", 2, 0, 0, 0, 0, 0, 0, 4000}, "z, x: its place in the .npz is damaged"},
        {{"(2,)", 2, 1, 0, 0, 0, 0, 0, 0}, "z, x: it is encrypted"},
        {{"(2,)", 2, 0, 9, 0, 0, 0, 0, 0}, "z, x: it is encrypted, or compressed in a way"},
        {{"(2,)", 2, 0, 0, 0, 0, 0xffff, 0, 0}, "z, x: its size in the .npz is not possible"},
        {{"(2,)", 2, 0, 0, 9999, 9999, 0, 0, 0}, "z, x: its size in the .npz is not possible"},
        {{"(2,)", 2, 0, 0, 9, 0, 0, 0, 0}, "z, x: its size in the .npz is not possible"},
        {{"(2,)", 2, 0, 8, 4, 1032 * 5, 0, 0, 0}, "z, x: its size in the .npz is not possible"},
        {{"(3,)", 2, 0, 0, 0, 0, 0, 0, 0}, "z, x: 3 elements of 4 bytes by its header, 8 bytes"},
        {{"()", 1, 0, 0, 0, 0, 0, 0, 0}, "z, x: its shape is []; the first dimension counts"},
    };
    NEEDS_FILES;
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_npz(&rows[i].e, 1);
        if (rows[i].e.place == 181) CHECK_EQ_INT(archive_bytes, 181 + 8);
        mpt_dataset data = mpt_npz(c, "z", "x", NULL);
        if (rows[i].fault) {
            check_error(c, MPT_ERROR_FORMAT, rows[i].fault);
            continue;
        }
        check_ok(c);
        CHECK_EQ_INT(mpt_dataset_size(data), 2);
    }
    /* A directory of an entry that the end of the directory lies in, and no name behind it. */
    archive_bytes = 0;
    add(0x02014b50, 4), add(0, 20), add(0x06054b50, 4), add(5, 2), add(0, 4), add(1, 2), add(0, 10);
    put("z", archive, archive_bytes);
    CHECK_EQ_INT(archive_bytes, 46);
    CHECK_EQ_INT(mpt_npz(c, "z", "x", NULL).slot, 0);
    check_error(c, MPT_ERROR_FORMAT, "z, x: the .npz has no array of this name");
    const entry pair[2] = {{"(2, 1)", 2, 0, 0, 0, 0, 0, 0, 0}, {"(3,)", 3, 0, 0, 0, 0, 0, 0, 0}};
    put_npz(pair, 2);
    CHECK_EQ_INT(mpt_npz(c, "z", "x", "y").slot, 0);
    check_error(c, MPT_ERROR_FORMAT, "z, y: its shape is [3]; the first dimension counts samples, "
                                     "as many as inputs");
    CHECK_EQ_INT(mpt_numel(mpt_numpy_tensor(c, "z", "y")), 3);
    check_ok(c);
    end(c);
}

/* ==== Files ==== */

TEST(raw_files_with_odd_places) {
    static const struct {
        int64_t offset, stride, count;
    } rows[] = {{0, 0, 2}, {4, 0, 1}, {0, -4, 0}, {-1, 0, 0}, {9, 0, 0}, {5, 0, 0}, {0, 5, 1}};
    static const float values[2] = {1.5f, -2.0f};
    NEEDS_FILES;
    mpt_context *c = make_context();
    put("raw", values, sizeof values);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_raw_config config = mpt_raw_config_default();
        float x = 0;
        config.inputs = "raw", config.offset = rows[i].offset, config.stride = rows[i].stride;
        mpt_dataset data = mpt_raw_files(c, &config);
        if (rows[i].count == 0) {
            check_error(c, MPT_ERROR_FORMAT, "raw: no sample of 4 bytes, ");
            continue;
        }
        CHECK_EQ_INT(mpt_dataset_size(data), rows[i].count);
        CHECK_EQ_INT(mpt_sample(data, rows[i].count - 1, &x, NULL), MPT_OK);
        CHECK(x == values[i < 2]);
    }
    end(c);
}

/* Callbacks that are not there: what needs them says so, the others do without. */
TEST(callbacks_that_lack) {
    static const uint8_t pixels[3073] = {7};
    static const char idx[] = "\0\0\x08\x01\0\0\0\x02\5\6";
    static const float one = 1.0f;
    NEEDS_FILES;
    for (int lacks = 0; lacks < 5; lacks++) {
        mpt_config config = mpt_config_default();
        config.threads = 1;
        disk_use(&files, &config);
        put("raw", &one, sizeof one), put("d/test_batch.bin", pixels, sizeof pixels);
        put("d/t10k-images-idx3-ubyte", idx, sizeof idx - 1);
        config.io.open = open_again;
        if (lacks == 0) config.io.open = NULL;
        if (lacks == 1) config.io.close = NULL;
        if (lacks == 2) config.io.seek = NULL;
        if (lacks == 3) config.io.size = NULL;
        if (lacks == 4) config.io.read = NULL;
        mpt_context *c = mpt_create(&config);
        mpt_raw_config raw = mpt_raw_config_default();
        float x[3072] = {0};
        raw.inputs = "raw";
        mpt_dataset data = mpt_raw_files(c, &raw);
        mpt_mnist(c, "d", MPT_TEST);
        if (lacks == 3) {
            check_error(c, MPT_ERROR_IO, "raw: its size is not known, so nothing can be allocated");
        } else if (lacks == 4) {
            check_error(c, MPT_ERROR_IO, "raw: reading 4 bytes at byte 0 gave 0: ");
        } else if (lacks == 0) {
            check_error(c, MPT_ERROR_IO, "cannot open raw: ");
            mpt_mnist(c, "d", MPT_TEST);
            check_error(c, MPT_ERROR_IO, "d has no t10k-images-idx3-ubyte.gz or ");
        } else {
            check_error(c, MPT_ERROR_IO, "d has no t10k-labels-idx1-ubyte.gz or ");
            CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), lacks == 1 ? MPT_OK : MPT_ERROR_IO);
            if (lacks == 1) CHECK(x[0] == 1.0f);
            if (lacks == 2) check_error(c, MPT_ERROR_IO, "sample 0: cannot open raw: ");
            CHECK_EQ_INT(mpt_sample(mpt_cifar10(c, "d", MPT_TEST), 0, x, NULL), MPT_OK);
        }
        check_ok(c);
        mpt_destroy(c);
        disk_free(&files);
    }
}

/* One callback of the user's alone, and none of the library's comes in for the others. */
TEST(callbacks_are_all_or_none) {
    char path[512];
    NEEDS_FILES;
    snprintf(path, sizeof path, "%s", test_tmp_path("table.csv"));
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fputs("a,b\n1,2\n", file) >= 0 && fclose(file) == 0);
    for (int only = -1; only < 10; only++) {
        mpt_config config = mpt_config_default(), all = config;
        config.threads = 1;
        disk_use(&files, &all);
        if (only == 0) config.io.open = all.io.open;
        if (only == 1) config.io.read = all.io.read;
        if (only == 2) config.io.write = all.io.write;
        if (only == 3) config.io.seek = all.io.seek;
        if (only == 4) config.io.size = all.io.size;
        if (only == 5) config.io.flush = all.io.flush;
        if (only == 6) config.io.close = all.io.close;
        if (only == 7) config.io.commit = all.io.commit;
        if (only == 8) config.io.remove = all.io.remove;
        if (only == 9) config.io.list = all.io.list;
        config.io.user = &files;
        mpt_context *c = mpt_create(&config);
        mpt_dataset data = mpt_csv(c, path, NULL);
        if (only < 0)
            CHECK_EQ_INT(mpt_dataset_size(data), 1);
        else
            check_error(c, MPT_ERROR_IO, "cannot open ");
        end(c);
    }
    remove(path);
}

/* A file that has another size, or has gone, when it is read a moment later. */
TEST(files_that_change_meanwhile) {
    static uint8_t records[2 * 3073];
    mpt_split split = MPT_TEST;
    NEEDS_FILES;
    mpt_context *c = make_context();
    put("d/test_batch.bin", records, sizeof records);
#define CIFAR(code, text) \
    do { \
        size_calls = 0; \
        memset(files.calls, 0, sizeof files.calls); \
        CHECK_EQ_INT(mpt_cifar10(c, "d", split).slot, 0); \
        check_error(c, code, text); \
        memset(told_sizes, 0, sizeof told_sizes); \
        memset(files.fail_at, 0, sizeof files.fail_at); \
    } while (0)
    told_sizes[0] = 3073;
    CIFAR(MPT_ERROR_IO, "d/test_batch.bin: it grew while it was read");
    told_sizes[1] = 3073;
    CIFAR(MPT_ERROR_IO, "d/test_batch.bin: it shrank while it was read");
    files.fail_at[DISK_OPEN] = 2;
    CIFAR(MPT_ERROR_IO, "cannot open d/test_batch.bin");
    files.fail_at[DISK_READ] = 1;
    CIFAR(MPT_ERROR_IO, "d/test_batch.bin: reading 6146 bytes at byte 0 gave 0");
    put("d/test_batch.bin", "", 0);
    CIFAR(MPT_ERROR_FORMAT, "d/test_batch.bin: 0 bytes are not a number of records");
    split = MPT_TRAIN; /* the second of five has a record more, and the last one no room */
    for (int i = 0; i < 10; i++) told_sizes[i] = i == 6 ? 6146 : 3073;
    for (int i = 1; i <= 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "d/data_batch_%d.bin", i);
        put(name, records, sizeof records);
    }
    CIFAR(MPT_ERROR_IO, "d/data_batch_5.bin: it grew while it was read");
#undef CIFAR
    told_sizes[11] = INT64_MAX;
    size_calls = 11;
    put("t", "a,b\n1,2\n", 8);
    CHECK_EQ_INT(mpt_table_load(c, "t").slot, 0);
    check_error(c, MPT_ERROR_IO, "t: its size is more than memory holds, so nothing can be");
    told_sizes[11] = INT64_C(1) << 40;
    CHECK_EQ_INT(mpt_bpe_tokenizer(c, "t", "t").slot, 0);
    check_error(c, MPT_ERROR_FORMAT, "t: 1099511627776 bytes; expected 1 to ");
    end(c);
}

TEST(paths_without_end) {
    static char path[5000];
    NEEDS_FILES;
    memset(path, 'x', sizeof path - 1);
    mpt_context *c = make_context();
    CHECK_EQ_INT(mpt_image_folder(c, path, NULL).slot, 0);
    check_error(c, MPT_ERROR_ARGUMENT, "folder is too long a path");
    CHECK_EQ_INT(mpt_image_folder(c, NULL, NULL).slot, 0);
    check_error(c, MPT_ERROR_ARGUMENT, "folder is NULL");
    CHECK_EQ_INT(mpt_image_folder(c, "", NULL).slot, 0);
    check_error(c, MPT_ERROR_ARGUMENT, "folder is empty");
    for (int split = MPT_TRAIN; split <= MPT_TEST; split++) {
        CHECK_EQ_INT(mpt_cifar10(c, path, (mpt_split)split).slot, 0);
        check_error(c, MPT_ERROR_ARGUMENT, "the path of the directory is too long");
        CHECK_EQ_INT(mpt_mnist(c, path, (mpt_split)split).slot, 0);
        check_error(c, MPT_ERROR_ARGUMENT, "the path of the directory is too long");
    }
    end(c);
}

static void put_idx(const char *path, int first, int rank, const int *dims) {
    static uint8_t bytes[64 + 3 * 28 * 28];
    size_t n = 4 + 4 * (size_t)rank, data = 1;
    bytes[0] = (uint8_t)first, bytes[2] = 8, bytes[3] = (uint8_t)rank;
    for (int i = 0; i < rank; i++) {
        memset(bytes + 4 + 4 * i, 0, 3);
        bytes[7 + 4 * i] = (uint8_t)dims[i];
        data *= (size_t)dims[i];
    }
    put(path, bytes, n + data);
}

TEST(digits_of_another_shape) {
    static const struct {
        int rank, dims[4], label_rank, label_dims[2];
        const char *fault;
    } rows[] = {{3, {2, 28, 28, 0}, 1, {2, 0}, NULL},
                {3, {2, 27, 28, 0}, 1, {2, 0}, "expected images [N, 28, 28], got [2, 27, 28]"},
                {3, {2, 28, 27, 0}, 1, {2, 0}, "expected images [N, 28, 28], got [2, 28, 27]"},
                {2, {2, 28, 0, 0}, 1, {2, 0}, "expected images [N, 28, 28], got [2, 28]"},
                {4, {2, 28, 28, 1}, 1, {2, 0}, "expected images [N, 28, 28], got [2, 28, 28, 1]"},
                {3, {2, 28, 28, 0}, 1, {3, 0}, "expected 2 targets as in d/t10k-images.idx3"},
                {3, {2, 28, 28, 0}, 2, {2, 1}, "expected 2 targets as in d/t10k-images.idx3"}};
    NEEDS_FILES;
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_idx("d/t10k-images.idx3-ubyte", 0, rows[i].rank, rows[i].dims);
        put_idx("d/t10k-labels.idx1-ubyte", 0, rows[i].label_rank, rows[i].label_dims);
        mpt_dataset data = mpt_mnist(c, "d", MPT_TEST);
        if (rows[i].fault)
            check_error(c, MPT_ERROR_FORMAT, rows[i].fault);
        else
            CHECK_EQ_INT(mpt_dataset_size(data), 2);
    }
    put_idx("half", 0x1f, 1, rows[0].label_dims); /* the first byte of gzip, and not its second */
    CHECK_EQ_INT(mpt_idx(c, "half", NULL).slot, 0);
    check_error(c, MPT_ERROR_FORMAT, "this is not an idx file (its first two bytes): expected 0, "
                                     "got 7936");
    end(c);
}

/* ==== Datasets and loaders ==== */

/* Samples 2 and 3 are torn; the others are their numbers. */
static bool numbered(void *user, int64_t index, uint64_t seed, void *input, void *target,
                     char *error, size_t error_size) {
    const float value = (float)index;
    (void)user, (void)seed, (void)target;
    memcpy(input, &value, sizeof value);
    if (index == 2 || index == 3) snprintf(error, error_size, "number %d is torn", (int)index);
    return index != 2 && index != 3;
}

static mpt_user_dataset_config of_numbers(int64_t count) {
    mpt_user_dataset_config config;
    memset(&config, 0, sizeof config);
    config.count = count, config.dtype = MPT_F32, config.sample = numbered;
    return config;
}

TEST(samples_beyond_memory) {
    mpt_context *c = make_context();
    mpt_user_dataset_config config = of_numbers(1);
    mpt_sample_sizes sizes;
    if (sizeof(void *) < 8) {
        end(c);
        SKIP("64-bit sizes");
    }
    config.shape = config.target_shape = MPT_SHAPE(INT64_C(1) << 60);
    config.target_dtype = MPT_F32;
    CHECK_EQ_INT(mpt_user_dataset(c, &config).slot, 0);
    check_error(c, MPT_ERROR_SHAPE, "one sample, and what it takes to make it, are more than");
    config.dtype = MPT_U8, config.target_dtype = MPT_BF16;
    config.shape = MPT_SHAPE(INT64_C(1) << 62), config.target_shape = MPT_SHAPE(3);
    mpt_dataset data = mpt_user_dataset(c, &config);
    CHECK_EQ_INT(mpt_sample_into(data, 0, NULL, 0, NULL, 0, &sizes), MPT_OK);
    CHECK(sizes.bytes == SIZE_MAX && sizes.target_dtype == MPT_BF16 && sizes.target_bytes == 6);
    CHECK_EQ_INT(mpt_sample_into(data, 0, &sizes, sizeof sizes, NULL, 0, NULL), MPT_ERROR_ARGUMENT);
    mpt_clear_error(c);
    end(c);
}

TEST(loaders_beyond_memory) {
    static const struct {
        int64_t count, numel, target_numel, batch;
        int shuffle, workers;
        mpt_status status;
        const char *fault;
    } rows[] = {
        {INT64_C(1) << 40, 1 << 24, 1, INT64_C(1) << 41, 0, 0, MPT_ERROR_SHAPE, "input: "},
        {INT64_C(1) << 40, 1, 1 << 24, INT64_C(1) << 41, 0, 0, MPT_ERROR_SHAPE, "target: "},
        {INT64_C(1) << 61, 1, 1, 1, 1, 0, MPT_ERROR_MEMORY, "memory"},
        {1, INT64_C(1) << 59, 1, 1, 0, 16, MPT_ERROR_MEMORY, "memory"},
    };
    mpt_context *c = make_context();
    if (sizeof(void *) < 8) {
        end(c);
        SKIP("64-bit sizes");
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_user_dataset_config config = of_numbers(rows[i].count);
        mpt_loader_config loading = mpt_loader_config_default();
        config.shape = MPT_SHAPE(rows[i].numel);
        config.target_shape = MPT_SHAPE(rows[i].target_numel), config.target_dtype = MPT_F32;
        loading.batch = rows[i].batch, loading.shuffle = rows[i].shuffle;
        loading.workers = rows[i].workers;
        mpt_dataset data = mpt_user_dataset(c, &config);
        check_ok(c);
        CHECK_EQ_INT(mpt_loader_create(c, data, &loading).slot, 0);
        if (loading.workers && mpt_error_code(c) == MPT_ERROR_UNSUPPORTED)
            mpt_clear_error(c);
        else
            check_error(c, rows[i].status, rows[i].fault);
        CHECK_EQ_INT(mpt_dataset_destroy(data), MPT_OK);
    }
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_DATA], 0);
    end(c);
}

/* Targets that collate makes of inputs alone. */
static bool doubles(void *user, const mpt_collation *batch, char *error, size_t error_size) {
    const float *x = (const float *)batch->x;
    float *out = (float *)batch->out;
    (void)error, (void)error_size;
    CHECK(batch->y == NULL);
    for (int64_t i = 0; i < batch->size; i++) out[i] = 2.0f * x[i];
    *(int64_t *)user += batch->size;
    return true;
}

/* Of several torn samples of a batch the first is named; the others come to collate. */
TEST(batches_with_gaps) {
    mpt_context *c = make_context();
    mpt_user_dataset_config config = of_numbers(6);
    mpt_loader_config loading = mpt_loader_config_default();
    mpt_batch batch;
    float x[4], y[4];
    int64_t collated = 0;
    config.shape = MPT_SHAPE(1);
    loading.batch = 6, loading.skip_bad = true;
    loading.collate = doubles, loading.collate_user = &collated;
    loading.target_dtype = MPT_F32;
    mpt_loader loader = mpt_loader_create(c, mpt_user_dataset(c, &config), &loading);
    CHECK(mpt_loader_next(loader, &batch));
    check_ok(c);
    CHECK(batch.size == 4 && collated == 4 && mpt_loader_statistics(loader).skipped == 2);
    CHECK_EQ_INT(mpt_read_f32(batch.x, x, 4), MPT_OK);
    CHECK_EQ_INT(mpt_read_f32(batch.y, y, 4), MPT_OK);
    for (int i = 0; i < 4; i++) CHECK(x[i] == (float)(i < 2 ? i : i + 2) && y[i] == 2.0f * x[i]);
    loading.skip_bad = false;
    loader = mpt_loader_create(c, mpt_user_dataset(c, &config), &loading);
    CHECK(!mpt_loader_next(loader, &batch));
    check_error(c, MPT_ERROR_IO, "sample 2 (batch 0 of epoch 0): number 2 is torn");
    config.count = 4; /* nothing is left of the second batch */
    loading.skip_bad = true, loading.batch = 2;
    loader = mpt_loader_create(c, mpt_user_dataset(c, &config), &loading);
    CHECK(mpt_loader_next(loader, &batch) && !mpt_loader_next(loader, &batch));
    check_error(c, MPT_ERROR_IO, "sample 2 (batch 1 of epoch 0): number 2 is torn");
    end(c);
}

static double count_ticks(void *user) { return (double)++*(int *)user; }

/* A clock of the user's is asked by the calling thread alone, twice for each batch. */
TEST(workers_do_not_ask_the_clock) {
    int ticks = 0, batches = 0;
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.clock.now = count_ticks, config.clock.user = &ticks;
    mpt_context *c = mpt_create(&config);
    mpt_memory_dataset_config made = mpt_memory_dataset_config_default();
    mpt_loader_config loading = mpt_loader_config_default();
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    mpt_batch batch;
    made.count = 8, made.inputs = values;
    loading.batch = 1, loading.workers = 2;
    mpt_loader loader = mpt_loader_create(c, mpt_memory_dataset(c, &made), &loading);
    if (mpt_error_code(c) == MPT_ERROR_UNSUPPORTED) {
        mpt_destroy(c);
        SKIP("threads");
    }
    ticks = 0;
    while (mpt_loader_next(loader, &batch)) batches++;
    check_ok(c);
    CHECK_EQ_INT(batches, 8);
    CHECK_EQ_INT(ticks, 16);
    mpt_destroy(c);
}

/* ==== Tables ==== */

static mpt_dataset csv(mpt_context *c, const char *text, const mpt_table_config *config) {
    return mpt_csv_memory(c, text, strlen(text), config);
}

/* Fields between other delimiters, targets of both kinds, and codes in their order. */
TEST(fields_and_codes) {
    const mpt_column code = {"k", MPT_COLUMN_CODE}, number = {"k", MPT_COLUMN_NUMBER};
    const mpt_column both[2] = {{"b", MPT_COLUMN_CLASS}, {"c", MPT_COLUMN_TARGET}};
    mpt_table_config config = mpt_table_config_default();
    mpt_sample_sizes sizes;
    float x[3], y[2];
    int64_t whole[2] = {0, 0};
    NEEDS_FILES;
    mpt_context *c = make_context();
    config.delimiter = '\t', config.missing = true;
    mpt_dataset table = csv(c, "a\tb\ty\n\t 2 \t3\n", &config);
    CHECK_EQ_INT(mpt_sample_into(table, 0, x, sizeof x, y, sizeof y, NULL), MPT_OK);
    CHECK(x[0] != x[0] && x[1] == 2.0f && y[0] == 3.0f);
    config.delimiter = ',';
    csv(c, "a,y\n1,NA\n", &config);
    check_error(c, MPT_ERROR_FORMAT, "(y): \"NA\" is no value for a target; leave such lines out");
    config = mpt_table_config_default();
    config.columns = &code, config.column_count = 1;
    table = csv(c, "k,y\n1.0,0\nx,0\n1,0\n", &config);
    CHECK_EQ_STR(mpt_category_name(table, 0, 0), "1"); /* the same number: by their bytes */
    CHECK_EQ_STR(mpt_category_name(table, 0, 1), "1.0");
    CHECK_EQ_STR(mpt_category_name(table, 0, 2), "x");
    CHECK(!mpt_category_name(table, 0, -1) && !mpt_category_name(table, 0, 3));
    config.columns = &number;
    csv(c, "k,y\nx,0\n", &config);
    check_error(c, MPT_ERROR_FORMAT, "\"x\" is not a number, and its column is one of numbers");
    config.columns = both, config.column_count = 2;
    csv(c, "a,b,c\n1,x,2\n", &config);
    check_error(c, MPT_ERROR_ARGUMENT, "1 inputs, 2 targets, 1 of them classes");
    config.columns = both, config.column_count = 1, config.target = ""; /* but for those */
    table = csv(c, "a,b,c\n1,x,2\n", &config);
    CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], 2);
    CHECK_EQ_STR(mpt_class_name(table, 0), "x");
    config.columns = both + 1, config.column_count = 1, config.target = "b";
    table = csv(c, "a,b,c\n1,5,2\n", &config);
    CHECK_EQ_INT(mpt_sample_into(table, 0, x, sizeof x, y, sizeof y, &sizes), MPT_OK);
    CHECK(sizes.target_shape.dim[0] == 2 && x[0] == 1.0f && y[0] == 5.0f && y[1] == 2.0f);
    config = mpt_table_config_default();
    config.dtype = MPT_I64;
    table = csv(c, "t,n,y\nb,-9007199254740992,0\na,9007199254740992,0\n", &config);
    CHECK_EQ_INT(mpt_sample_into(table, 0, whole, sizeof whole, NULL, 0, NULL), MPT_OK);
    CHECK(whole[0] == 1 && whole[1] == -(INT64_C(1) << 53));
    static const char *const beyond[] = {"9007199254740994", "-9007199254740994", "1.5", "1e300"};
    for (int i = 0; i < 4; i++) {
        char text[64];
        snprintf(text, sizeof text, "n,y\n%s,0\n", beyond[i]);
        csv(c, text, &config);
        check_error(c, MPT_ERROR_FORMAT, "is not a whole number up to 2^53, as dtype MPT_I64");
    }
    table = csv(c, "version of it,y\n1,2\n", NULL); /* begins as a Git LFS pointer does */
    CHECK_EQ_STR(mpt_column_name(table, 0), "version of it");
    check_ok(c);
    end(c);
}

TEST(commas_in_numbers) {
    static const struct {
        const char *text;
        float want;
        bool sure; /* it has no comma of thousands */
    } rows[] = {{"12345,678", 12345.678f, true}, {"123,45", 123.45f, true}, {"+1,5", 1.5f, true},
                {"-1,234", -1.234f, false},      {"0,123", 0.123f, true},   {"1,5", 1.5f, true},
                {"1,23456789", 1.23456789f, true}};
    const mpt_column unused = {"w", MPT_COLUMN_IGNORE};
    mpt_table_config config = mpt_table_config_default();
    float x[3];
    NEEDS_FILES;
    mpt_context *c = make_context();
    config.delimiter = ';', config.missing = true;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[100];
        snprintf(text, sizeof text, "v;y\n%s;0\nNA;0\n", rows[i].text);
        mpt_dataset table = csv(c, text, &config);
        CHECK_EQ_INT(mpt_sample(table, 0, x, NULL), MPT_OK);
        CHECK(x[0] == rows[i].want);
        CHECK_EQ_INT(mpt_sample(table, 1, x, NULL), MPT_OK);
        CHECK(x[0] != x[0]);
        /* Beside points, what may be a comma of thousands makes a text. */
        snprintf(text, sizeof text, "v;p;y\n%s;2.5;0\n", rows[i].text);
        table = csv(c, text, &config);
        CHECK_EQ_INT(mpt_sample(table, 0, x, NULL), MPT_OK);
        CHECK(x[0] == (rows[i].sure ? rows[i].want : 1.0f) && x[1] == 2.5f);
        CHECK((mpt_category_name(table, 0, 0) == NULL) == rows[i].sure);
    }
    config.columns = &unused, config.column_count = 1;
    mpt_dataset table = csv(c, "v;w;p;y\n1,5;inf;2.5;0\n", &config); /* commas, and points */
    CHECK_EQ_INT(mpt_sample(table, 0, x, NULL), MPT_OK);
    CHECK(x[0] == 1.5f && x[1] == 2.5f);
    check_ok(c);
    end(c);
}

/* A table is like another by names where both have them, else by places. */
TEST(tables_alike_by_place_or_name) {
    const mpt_column note = {"note", MPT_COLUMN_IGNORE};
    mpt_table_config config = mpt_table_config_default(), like = config;
    mpt_sample_sizes sizes;
    float x[4];
    int64_t code;
    NEEDS_FILES;
    mpt_context *c = make_context();
    config.header = false;
    like.like = csv(c, "1,x,u\n2,z,v\n", &config);
    mpt_dataset table = csv(c, "p,q,r\n5,z,v\n", &like);
    CHECK_EQ_INT(mpt_sample(table, 0, x, &code), MPT_OK);
    CHECK(x[0] == 5.0f && x[1] == 0.0f && x[2] == 1.0f && code == 1);
    CHECK_EQ_STR(mpt_column_name(table, 1), "q");
    config = mpt_table_config_default();
    config.columns = &note, config.column_count = 1;
    like.like = csv(c, "note,a,y\nhi,1,0\n", &config);
    like.target = "y"; /* not "": the targets are wanted */
    table = csv(c, "y,a\n0.5,3\n", &like);
    CHECK_EQ_INT(mpt_sample_into(table, 0, x, sizeof x, NULL, 0, &sizes), MPT_OK);
    CHECK(x[0] == 3.0f && sizes.target_dtype == MPT_F32);
    csv(c, "a\n3\n", &like);
    check_error(c, MPT_ERROR_FORMAT, "there is no y");
    like.target = NULL, like.unknown = true; /* says nothing of what it has already */
    config = mpt_table_config_default();
    config.unknown = true;
    like.like = csv(c, "t,y\nu,0\nv,0\n", &config);
    table = csv(c, "t,y\nw,0\nv,0\n", &like);
    CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], 3);
    CHECK_EQ_STR(mpt_category_name(table, 0, 0), "");
    CHECK_EQ_INT(mpt_sample(table, 0, x, NULL), MPT_OK);
    CHECK(x[0] == 1.0f && x[1] == 0.0f && x[2] == 0.0f);
    config.unknown = false;
    like.like = csv(c, "t,y\nu,0\nv,0\n", &config);
    like.missing = true;
    table = csv(c, "t,y\nNA,0\n", &like);
    CHECK_EQ_INT(mpt_sample(table, 0, x, NULL), MPT_OK);
    CHECK(x[0] == 0.0f && x[1] == 0.0f);
    like.strict = true;
    csv(c, "t,y\nNA,0\n", &like);
    check_error(c, MPT_ERROR_FORMAT, "column t lacks a value, which it never does in the table");
    end(c);
}

/* One text too many for one-hot inputs is refused as what it looks like. */
TEST(one_text_too_many) {
    mpt_table_config config = mpt_table_config_default();
    static char text[20000];
    NEEDS_FILES;
    mpt_context *c = make_context();
    config.delimiter = ';', config.decimal = '.';
    for (int last = 0; last < 3; last++) {
        size_t n = (size_t)snprintf(text, sizeof text, "t;y\n");
        for (int i = 0; i < 1024; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "t%d;0\n", i);
        snprintf(text + n, sizeof text - n, "%s;0\n", last == 0 ? "t7" : last == 1 ? "x" : "1,5");
        mpt_dataset table = csv(c, text, &config);
        if (last == 0) {
            CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], 1024);
            continue;
        }
        CHECK_EQ_INT(table.slot, 0);
        check_error(c, MPT_ERROR_FORMAT,
                    last == 1 ? "line 1026, column 1 (t): \"x\" is one text too many for one-hot"
                              : "line 1026, column 1 (t): \"1,5\" is not a number as it is");
    }
    end(c);
}

static int warnings;

static void count_warnings(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_WARNING && strstr(message, "look like numbers")) warnings++;
}

/* Of columns of texts that look like numbers the first eight are told. */
TEST(warnings_have_an_end) {
    mpt_config config = mpt_config_default();
    mpt_table_config reading = mpt_table_config_default();
    NEEDS_FILES;
    config.threads = 1, config.log.write = count_warnings;
    reading.decimal = '.', reading.delimiter = ';';
    for (int columns = 7; columns <= 10; columns++) {
        char text[200] = "";
        mpt_context *c = mpt_create(&config);
        for (int i = 0; i < columns; i++) snprintf(text + strlen(text), 20, "c%d;", i);
        snprintf(text + strlen(text), 20, "y\n");
        for (int i = 0; i < columns; i++) snprintf(text + strlen(text), 20, "1,%d;", i);
        snprintf(text + strlen(text), 20, "0\n");
        warnings = 0;
        CHECK_EQ_INT(mpt_dataset_shape(csv(c, text, &reading)).dim[0], columns);
        CHECK_EQ_INT(warnings, columns < 8 ? columns : 8);
        mpt_destroy(c);
    }
}

TEST(odd_files_of_tables) {
    static const struct {
        const char *text, *fault;
    } rows[] = {
        {"what,name,for,mean,deviation\"x\ntable,1,float32,,\n",
         "text: line 1, column 1: \"x?table,1,float32,,?\" begins with a quote that never ends"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,b,c,d,e\n", "text: no file of mpt_table_save: line 1"},
        {"what,name,for,mean,deviation\ntable,2,float32,,\n", "\"2\" is not what mpt_table_save"},
        {"what,name,for,mean,deviation\ntable,1,int32,,\n", "\"int32\" is not what mpt_table_save"},
    };
    NEEDS_FILES;
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_EQ_INT(mpt_table_load_memory(c, rows[i].text, strlen(rows[i].text)).slot, 0);
        check_error(c, MPT_ERROR_FORMAT, rows[i].fault);
    }
    end(c);
}

/* ==== Tokenizers ==== */

TEST(tokens_at_the_edges) {
    static const char words[] = "{\"'\":0,\"s\":1,\"abcd\":2,\"efgh\":3,\"abcdefgh\":4,\"a\":5}";
    int32_t tokens[8];
    NEEDS_FILES;
    mpt_context *c = make_context();
    put("words", words, sizeof words - 1);
    put("merges", "abcd efgh\n", 10); /* as long as a line of the version, and none */
    mpt_tokenizer bpe = mpt_bpe_tokenizer(c, "words", "merges");
    CHECK_EQ_INT(mpt_encode(bpe, "s'", 2, tokens, 8), 2);
    CHECK(tokens[0] == 1 && tokens[1] == 0);
    CHECK_EQ_INT(mpt_encode(bpe, NULL, 0, NULL, 0), 0);
    CHECK_EQ_INT(mpt_decode(bpe, NULL, 0, NULL, 0), 0);
    check_ok(c);
    put("merges", "abcd s\n", 7);
    CHECK_EQ_INT(mpt_bpe_tokenizer(c, "words", "merges").slot, 0);
    check_error(c, MPT_ERROR_FORMAT, "merges: line 1 makes, or is made of, what is not in the");
    put("few", "ab", 2);
    mpt_tokenizer few = mpt_char_tokenizer(c, "few");
    CHECK_EQ_INT(mpt_encode(few, "ab\xff", 3, tokens, 8), -1);
    check_error(c, MPT_ERROR_ARGUMENT, "byte 2 begins no character of the vocabulary");
    end(c);
}

/* A vocabulary whose numbers take four bytes each. */
TEST(more_than_65536_characters) {
    enum { MANY = 65537 };
    mpt_window_config windows = mpt_window_config_default();
    int64_t x[2] = {0, 0};
    NEEDS_FILES;
    char *text = (char *)malloc(4 * MANY);
    REQUIRE(text);
    for (int i = 0; i < MANY; i++) {
        const int code = 0x10000 + i;
        text[4 * i] = (char)(0xf0 | code >> 18);
        for (int k = 1; k < 4; k++) text[4 * i + k] = (char)(0x80 | (code >> (18 - 6 * k) & 63));
    }
    mpt_context *c = make_context();
    put("many", text, 4 * MANY);
    mpt_tokenizer tokens = mpt_char_tokenizer(c, "many");
    CHECK_EQ_INT(mpt_vocabulary_size(tokens), MANY);
    windows.block = 2;
    mpt_dataset data = mpt_text_file(tokens, "many", &windows);
    CHECK_EQ_INT(mpt_dataset_size(data), (MANY - 1) / 2);
    CHECK_EQ_INT(mpt_sample_into(data, (MANY - 1) / 2 - 1, NULL, 0, x, sizeof x, NULL), MPT_OK);
    CHECK(x[0] == MANY - 2 && x[1] == MANY - 1);
    check_ok(c);
    free(text);
    end(c);
}

/* ==== Memory that is refused ==== */

/* Tables and tokens whose rooms grow where few do: a category for what lacks behind 32 others, and
   a long name that a table takes over from another. */
static void make_tables(mpt_context *c) {
    static char text[4000], longest[3200];
    const mpt_column unused = {longest, MPT_COLUMN_IGNORE};
    static const int32_t tokens[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    mpt_table_config config = mpt_table_config_default(), like = config;
    mpt_window_config windows = mpt_window_config_default();
    memset(longest, 'n', sizeof longest - 1);
    snprintf(text, sizeof text, "%s,a,y\nq,1,2\n", longest);
    config.columns = &unused, config.column_count = 1;
    like.like = csv(c, text, &config);
    csv(c, "a,y\n1,2\n", &like);
    config = mpt_table_config_default();
    for (int lacks = 0; lacks < 2; lacks++) {
        snprintf(text, sizeof text, "t,y\n");
        for (int i = 0; i < 32; i++) snprintf(text + strlen(text), 20, "t%d,1\n", i);
        if (lacks) strcat(text, "NA,1\n");
        config.unknown = !lacks, config.missing = true;
        csv(c, text, &config);
    }
    snprintf(text, sizeof text, "what,name,for,mean,deviation\ntable,1,float32,named,\n"
                                "number,a,input,,\nnumber,y,target,,\n");
    mpt_dataset table = mpt_table_load_memory(c, text, strlen(text));
    mpt_table_save(table, "saved");
    mpt_table_load(c, "saved");
    mpt_raw_config raw = mpt_raw_config_default();
    raw.inputs = "raw";
    mpt_dataset_statistics(mpt_raw_files(c, &raw), NULL, NULL);
    windows.block = 2;
    mpt_token_memory(c, tokens, 8, &windows);
}

TEST(out_of_memory) {
    int64_t fails = 1;
    bool failed = true;
    arena a;
    mpt_config config = mpt_config_default();
    NEEDS_FILES;
    config.threads = 1;
    for (; failed && fails < 400; fails++) {
        arena_use(&a, &config);
        disk_use(&files, &config);
        put("raw", "four", 4);
        mpt_context *c = mpt_create(&config);
        REQUIRE(c);
        a.fail_at = a.calls + fails, a.failures = 1;
        make_tables(c);
        failed = a.refused > 0;
        if (failed)
            check_error(c, MPT_ERROR_MEMORY, "memory");
        else
            check_ok(c);
        a.fail_at = 0;
        make_tables(c);
        check_ok(c);
        end(c);
        CHECK(a.live == 0 && a.torn == 0);
    }
    CHECK(fails > 40 && fails < 400);
}

TEST_TABLE = {T(archives_that_point_elsewhere),
              T(raw_files_with_odd_places),
              T(callbacks_that_lack),
              T(callbacks_are_all_or_none),
              T(files_that_change_meanwhile),
              T(paths_without_end),
              T(digits_of_another_shape),
              T(samples_beyond_memory),
              T(loaders_beyond_memory),
              T(batches_with_gaps),
              T(workers_do_not_ask_the_clock),
              T(fields_and_codes),
              T(commas_in_numbers),
              T(tables_alike_by_place_or_name),
              T(one_text_too_many),
              T(warnings_have_an_end),
              T(odd_files_of_tables),
              T(tokens_at_the_edges),
              T(more_than_65536_characters),
              T(out_of_memory)};
TEST_MAIN
