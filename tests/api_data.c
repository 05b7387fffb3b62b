/* api_data.c: datasets and loaders through the public API: values, orders, splits, workers, errors
 * at their place, memory. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "memory.h"

#include <math.h>

/* ---- small helpers ---- */

/* A pixel that depends on sample and place. */
static uint8_t pixel(int64_t sample, int64_t at) { return (uint8_t)(sample * 7 + at * 13 + 5); }

/* Step by step, each rounded to float: some systems would compute the whole in double. */
static float byte_value(uint8_t byte) {
    float value = (float)byte / 255.0f;
    return value;
}

static float normalised(uint8_t byte, float mean, float deviation) {
    float centered = byte_value(byte) - mean;
    float scaled = centered / deviation;
    return scaled;
}

enum { COUNT = 50, PIXELS = 6 };

/* u8 [2, 3] samples with class numbers index % 10. */
static mpt_dataset make_bytes(mpt_context *context, int64_t count) {
    uint8_t *inputs = (uint8_t *)malloc((size_t)count * PIXELS);
    int64_t *targets = (int64_t *)malloc((size_t)count * sizeof *targets);
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < PIXELS; k++) inputs[i * PIXELS + k] = pixel(i, k);
        targets[i] = i % 10;
    }
    config.count = count;
    config.dtype = MPT_U8;
    config.shape = MPT_SHAPE(2, 3);
    config.inputs = inputs;
    config.targets = targets;
    mpt_dataset dataset = mpt_memory_dataset(context, &config);
    free(inputs);
    free(targets);
    return dataset;
}

static mpt_loader make_loader(mpt_context *context, mpt_dataset dataset, int64_t batch,
                              bool shuffle, int workers) {
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = batch;
    config.shuffle = shuffle;
    config.workers = workers;
    return mpt_loader_create(context, dataset, &config);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    const uint8_t *p = (const uint8_t *)data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * UINT64_C(1099511628211);
    return hash;
}

#define HASH_START UINT64_C(14695981039346656037)

/* All that an epoch delivers: shapes and bits of x and y. */
static uint64_t epoch_hash(mpt_loader loader, int64_t *samples) {
    static uint8_t buffer[1 << 16];
    uint64_t hash = HASH_START;
    mpt_batch batch;
    while (mpt_loader_next(loader, &batch)) {
        size_t x = (size_t)mpt_numel(batch.x) * mpt_dtype_size(mpt_get_dtype(batch.x));
        size_t y = (size_t)mpt_numel(batch.y) * mpt_dtype_size(mpt_get_dtype(batch.y));
        mpt_read(batch.x, buffer, x);
        hash = hash_bytes(hash, buffer, x);
        mpt_read(batch.y, buffer, y);
        hash = hash_bytes(hash, buffer, y);
        hash = hash_bytes(hash, &batch.size, sizeof batch.size);
        if (samples) *samples += batch.size;
    }
    return hash;
}

/* ---- datasets ---- */

TEST(memory_samples) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    float input[PIXELS];
    int64_t target = -1;
    CHECK_EQ_INT(mpt_dataset_size(dataset), COUNT);
    CHECK_EQ_INT(mpt_sample(dataset, 13, input, &target), MPT_OK);
    CHECK_EQ_INT(target, 3);
    for (int k = 0; k < PIXELS; k++) {
        float want = byte_value(pixel(13, k));
        CHECK_EQ_BITS(&input[k], &want, sizeof want);
    }
    CHECK_EQ_INT(mpt_normalize(dataset, 0.1307, 0.3081), MPT_OK);
    CHECK_EQ_INT(mpt_sample(dataset, 49, input, NULL), MPT_OK);
    for (int k = 0; k < PIXELS; k++) {
        float want = normalised(pixel(49, k), 0.1307f, 0.3081f);
        CHECK_EQ_BITS(&input[k], &want, sizeof want);
    }
    CHECK_EQ_INT(mpt_sample(dataset, 49, NULL, &target), MPT_OK);
    CHECK_EQ_INT(target, 9);
    CHECK_EQ_INT(mpt_sample(dataset, COUNT, input, NULL), MPT_ERROR_INDEX);
    CHECK_CONTAINS(mpt_error(context), "sample 50 of a dataset of 50");
    mpt_destroy(context);
}

/* The input of the first sample as a loader delivers it. */
static void deliver_one(mpt_dataset dataset, mpt_dtype dtype, void *to, size_t bytes) {
    mpt_loader_config config = mpt_loader_config_default();
    mpt_batch batch;
    config.batch = 1;
    config.dtype = dtype;
    mpt_loader loader = mpt_loader_create(dataset.context, dataset, &config);
    CHECK(mpt_loader_next(loader, &batch));
    CHECK_EQ_INT(mpt_read(batch.x, to, bytes), MPT_OK);
    mpt_loader_destroy(loader);
}

/* All bytes, at every level that there is, against float arithmetic on what they stand for; half
   formats against what a dataset of such floats delivers. */
TEST(every_byte_normalises_to_the_same_bits) {
    static const double norms[][2] = {{0.1307, 0.3081}, {0.5, 0.5},       {0.0, 1.0},
                                      {0.485, 0.229},   {-3.7e4, 1.3e-9}, {1e-6, 7e12}};
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    enum { BYTES = 256 + 19 };
    static uint8_t bytes[BYTES];
    static float want[BYTES];
    uint32_t got[BYTES], expected[BYTES];
    int levels = 0;
    for (int isa = MPT_ISA_REF; isa < MPT_ISA_UNKNOWN; isa++) {
        mpt_config config = mpt_config_default();
        config.isa = (mpt_isa)isa;
        config.threads = 1;
        mpt_context *context = mpt_create(&config);
        if (!context) continue; /* not on this CPU */
        levels++;
        for (size_t k = 0; k < sizeof norms / sizeof *norms; k++) {
            for (int i = 0; i < BYTES; i++) {
                bytes[i] = (uint8_t)i;
                want[i] = normalised((uint8_t)i, (float)norms[k][0], (float)norms[k][1]);
            }
            mpt_memory_dataset_config mc = mpt_memory_dataset_config_default();
            mc.count = 1;
            mc.dtype = MPT_U8;
            mc.shape = MPT_SHAPE(BYTES);
            mc.inputs = bytes;
            mpt_dataset pixels = mpt_memory_dataset(context, &mc);
            mpt_normalize(pixels, norms[k][0], norms[k][1]);
            mc.dtype = MPT_F32;
            mc.inputs = want;
            mpt_dataset floats = mpt_memory_dataset(context, &mc);
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
                size_t size = BYTES * mpt_dtype_size(dtypes[d]);
                deliver_one(pixels, dtypes[d], got, size);
                deliver_one(floats, dtypes[d], expected, size);
                CHECK_EQ_BITS(got, expected, size);
                if (d == 0) CHECK_EQ_BITS(got, want, size);
            }
        }
        CHECK(!mpt_failed(context));
        mpt_destroy(context);
    }
    CHECK(levels > 0);
}

TEST(statistics) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    double mean, deviation, sum = 0.0, squares = 0.0;
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t k = 0; k < PIXELS; k++) sum += pixel(i, k) / 255.0;
    sum /= COUNT * PIXELS;
    for (int64_t i = 0; i < COUNT; i++)
        for (int64_t k = 0; k < PIXELS; k++)
            squares += (pixel(i, k) / 255.0 - sum) * (pixel(i, k) / 255.0 - sum);
    CHECK_EQ_INT(mpt_normalize(dataset, 9.0, 3.0), MPT_OK); /* makes no difference */
    CHECK_EQ_INT(mpt_dataset_statistics(dataset, &mean, &deviation), MPT_OK);
    CHECK_NEAR(mean, sum, 1e-12);
    CHECK_NEAR(deviation, sqrt(squares / (COUNT * PIXELS)), 1e-12);

    float values[4] = {1.0f, 2.0f, 3.0f, 6.0f};
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 2;
    config.shape = MPT_SHAPE(2);
    config.inputs = values;
    CHECK_EQ_INT(mpt_dataset_statistics(mpt_memory_dataset(context, &config), &mean, &deviation),
                 MPT_OK);
    CHECK_NEAR(mean, 3.0, 1e-12);
    CHECK_NEAR(deviation, sqrt(14.0 / 4.0), 1e-12);
    values[2] = (float)NAN;
    CHECK_EQ_INT(mpt_dataset_statistics(mpt_memory_dataset(context, &config), &mean, &deviation),
                 MPT_OK);
    CHECK(mean != mean && deviation != deviation); /* not a deviation of 0 */
    values[0] = values[1] = values[2] = values[3] = 0.1f;
    CHECK_EQ_INT(mpt_dataset_statistics(mpt_memory_dataset(context, &config), &mean, &deviation),
                 MPT_OK);
    CHECK_NEAR(deviation, 0.0, 1e-15); /* and not the root of a rounding error below 0 */
    mpt_destroy(context);
}

/* Every dtype of inputs arrives as the batch's dtype; integers as they are. */
TEST(input_dtypes) {
    mpt_context *context = make_context();
    static const float f32[2] = {0.5f, -3.0f};
    static const double f64[2] = {0.5, -3.0};
    static const uint16_t f16[2] = {0x3800, 0xc200}, bf16[2] = {0x3f00, 0xc040};
    static const uint8_t bits[2] = {1, 0};
    static const int64_t i64[2] = {123456789, -3};
    static const int32_t i32[2] = {1234567, -3};
    static const struct {
        mpt_dtype dtype, arrives;
        const void *values;
        float want[2];
    } rows[] = {
        {MPT_F32, MPT_F16, f32, {0.5f, -3.0f}},      {MPT_F64, MPT_F16, f64, {0.5f, -3.0f}},
        {MPT_F16, MPT_F16, f16, {0.5f, -3.0f}},      {MPT_BF16, MPT_F16, bf16, {0.5f, -3.0f}},
        {MPT_BOOL, MPT_F16, bits, {1.0f, 0.0f}},     {MPT_I64, MPT_I64, i64, {123456789.0f, -3.0f}},
        {MPT_I32, MPT_I32, i32, {1234567.0f, -3.0f}}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
        mpt_loader_config lc = mpt_loader_config_default();
        mpt_batch batch;
        float got[2] = {0.0f, 0.0f};
        config.count = 2;
        config.dtype = rows[i].dtype;
        config.inputs = rows[i].values;
        lc.dtype = MPT_F16;
        mpt_dataset dataset = mpt_memory_dataset(context, &config);
        mpt_loader loader = mpt_loader_create(context, dataset, &lc);
        REQUIRE(mpt_loader_next(loader, &batch));
        CHECK_EQ_INT(mpt_get_dtype(batch.x), rows[i].arrives);
        CHECK_EQ_INT(mpt_get_shape(batch.x).rank, 1);
        CHECK_EQ_INT(mpt_read_f32(batch.x, got, 2), MPT_OK);
        CHECK_EQ_BITS(got, rows[i].want, sizeof got);
        got[1] = 0.0f;
        CHECK_EQ_INT(mpt_sample(dataset, 1, &got[1], NULL), MPT_OK);
        CHECK_EQ_BITS(&got[1], &rows[i].want[1], sizeof(float));
        mpt_loader_destroy(loader);
        mpt_status whole = rows[i].arrives == MPT_F16 ? MPT_OK : MPT_ERROR_DTYPE;
        CHECK_EQ_INT(mpt_normalize(dataset, 1.0, 2.0), whole);
        mpt_clear_error(context);
    }
    mpt_destroy(context);
}

TEST(subsets_and_splits) {
    mpt_context *context = make_context();
    mpt_dataset whole = make_bytes(context, COUNT);
    mpt_dataset middle = mpt_subset(whole, 10, 20), inner = mpt_subset(middle, 5, 3);
    mpt_dataset parts[3];
    double fractions[3] = {0.5, 0.3, 0.2}, bad[2] = {0.5, 0.4};
    int64_t target = -1;
    int seen[COUNT] = {0}, moved = 0;
    CHECK_EQ_INT(mpt_dataset_size(middle), 20);
    CHECK_EQ_INT(mpt_sample(inner, 2, NULL, &target), MPT_OK);
    CHECK_EQ_INT(target, 17 % 10);

    CHECK_EQ_INT(mpt_random_split(whole, fractions, 3, 42, parts), MPT_OK);
    CHECK_EQ_INT(mpt_dataset_size(parts[0]), 25);
    CHECK_EQ_INT(mpt_dataset_size(parts[1]), 15);
    CHECK_EQ_INT(mpt_dataset_size(parts[2]), 10);
    CHECK_EQ_INT(mpt_dataset_destroy(whole), MPT_OK); /* subsets keep the data */
    CHECK_EQ_INT(mpt_dataset_destroy(middle), MPT_OK);
    for (int p = 0; p < 3; p++) {
        mpt_dataset tail = mpt_subset(parts[p], 1, mpt_dataset_size(parts[p]) - 1);
        for (int64_t i = 0; i < mpt_dataset_size(parts[p]); i++) {
            float input[PIXELS], again[PIXELS];
            mpt_sample(parts[p], i, input, &target);
            if (i > 0) {
                mpt_sample(tail, i - 1, again, NULL);
                CHECK_EQ_BITS(again, input, sizeof input);
            }
            for (int s = 0; s < COUNT; s++) {
                if (input[0] != byte_value(pixel(s, 0)) || target != s % 10) continue;
                seen[s]++;
                moved += p == 0 && s != i;
            }
        }
    }
    for (int s = 0; s < COUNT; s++) CHECK_EQ_INT(seen[s], 1);
    CHECK(moved > 5);

    CHECK_EQ_INT(mpt_random_split(parts[0], bad, 2, 1, parts + 1), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(context), "sum to 0.9 instead of 1");
    CHECK_EQ_INT(parts[1].slot, 0);
    mpt_clear_error(context);
    mpt_subset(parts[0], 20, 6);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_INDEX);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_dataset_size(mpt_subset(parts[0], 24, 1)), 1); /* the last, and all of it */
    CHECK_EQ_INT(mpt_dataset_size(mpt_subset(parts[0], 0, 25)), 25);
    CHECK_EQ_INT(mpt_sample(whole, 0, NULL, &target), MPT_ERROR_HANDLE);
    mpt_destroy(context);
}

/* From one part to 64; a fraction of 0 is told as such. */
TEST(bounds_of_splits) {
    mpt_context *context = make_context();
    mpt_dataset whole = make_bytes(context, 64), parts[65];
    double fractions[65];
    for (int n = 1; n <= 65; n += n == 1 ? 63 : 1) {
        for (int i = 0; i < n; i++) fractions[i] = 1.0 / n;
        CHECK_EQ_INT(mpt_random_split(whole, fractions, n, 1, parts), n > 64);
        if (n <= 64) CHECK_EQ_INT(mpt_dataset_size(parts[n - 1]), 64 / n);
    }
    CHECK_CONTAINS(mpt_error(context), "n from 1 to 64; n is 65");
    mpt_clear_error(context);
    fractions[0] = 1, fractions[1] = 0;
    CHECK_EQ_INT(mpt_random_split(whole, fractions, 2, 1, parts), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(context), "fraction 1 is 0");
    mpt_destroy(context);
}

/* A loader holds the values of what it delivers, not those of subsets made later. */
TEST(a_subset_has_its_own_normalisation) {
    mpt_context *context = make_context();
    mpt_dataset whole = make_bytes(context, COUNT);
    const float value = normalised(pixel(3, 0), 0.5f, 0.25f);
    float input[PIXELS];
    mpt_loader loader = make_loader(context, whole, 4, false, 0);
    mpt_dataset one = mpt_subset(whole, 3, 1);
    CHECK_EQ_INT(mpt_normalize(one, 0.5, 0.25), MPT_OK);
    CHECK_EQ_INT(mpt_sample(one, 0, input, NULL), MPT_OK);
    CHECK_EQ_BITS(input, &value, sizeof value);
    CHECK_EQ_INT(mpt_normalize(whole, 0.5, 0.25), MPT_ERROR_STATE);
    mpt_clear_error(context);
    mpt_loader_destroy(loader);
    CHECK_EQ_INT(mpt_normalize(whole, 0.5, 0.25), MPT_OK);
    mpt_destroy(context);
}

/* ---- loaders ---- */

TEST(batches_in_order) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    mpt_loader loader = make_loader(context, dataset, 16, false, 0);
    CHECK_EQ_INT(mpt_loader_batches(loader), 4);
    for (int epoch = 0; epoch < 2; epoch++) {
        mpt_batch batch;
        int64_t at = 0, number = 0;
        while (mpt_loader_next(loader, &batch)) {
            float x[16 * PIXELS];
            int64_t y[16];
            CHECK_EQ_INT(batch.index, number++);
            CHECK_EQ_INT(batch.size, at + 16 <= COUNT ? 16 : COUNT - at);
            mpt_shape shape = mpt_get_shape(batch.x);
            CHECK_EQ_INT(shape.rank, 3);
            CHECK_EQ_INT(shape.dim[0], batch.size);
            CHECK_EQ_INT(shape.dim[1], 2);
            CHECK_EQ_INT(shape.dim[2], 3);
            CHECK_EQ_INT(mpt_get_shape(batch.y).rank, 1);
            CHECK_EQ_INT(mpt_get_dtype(batch.y), MPT_I64);
            mpt_read(batch.x, x, (size_t)batch.size * PIXELS * sizeof(float));
            mpt_read(batch.y, y, (size_t)batch.size * sizeof(int64_t));
            for (int64_t i = 0; i < batch.size; i++, at++) {
                CHECK_EQ_INT(y[i], at % 10);
                for (int64_t k = 0; k < PIXELS; k++) {
                    float want = byte_value(pixel(at, k));
                    CHECK_EQ_BITS(&x[i * PIXELS + k], &want, sizeof want);
                }
            }
        }
        CHECK_EQ_INT(at, COUNT);
    }
    CHECK_EQ_INT(mpt_loader_statistics(loader).batches, 8);
    CHECK_EQ_INT(mpt_loader_statistics(loader).epoch, 2);
    CHECK_EQ_INT(mpt_loader_statistics(loader).by_worker[0], 2 * COUNT);

    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 16;
    config.drop_last = true;
    mpt_loader dropping = mpt_loader_create(context, dataset, &config);
    int64_t samples = 0;
    CHECK_EQ_INT(mpt_loader_batches(dropping), 3);
    epoch_hash(dropping, &samples);
    CHECK_EQ_INT(samples, 48);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

TEST(shuffle_by_seed_and_epoch) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    mpt_loader a = make_loader(context, dataset, 8, true, 0);
    mpt_loader b = make_loader(context, dataset, 8, true, 0);
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 8;
    config.shuffle = true;
    config.seed = 77;
    mpt_loader c = mpt_loader_create(context, dataset, &config);
    uint64_t a0 = epoch_hash(a, NULL), a1 = epoch_hash(a, NULL);
    CHECK(a0 != a1);
    CHECK(epoch_hash(b, NULL) == a0);
    CHECK(epoch_hash(c, NULL) != a0);
    mpt_batch batch;
    CHECK_EQ_INT(mpt_loader_reset(b), MPT_OK); /* at the start of an epoch already */
    CHECK_EQ_INT(mpt_loader_statistics(b).epoch, 1);
    CHECK(mpt_loader_next(b, &batch));
    CHECK_EQ_INT(mpt_loader_reset(b), MPT_OK); /* leaves epoch 1 */
    CHECK(epoch_hash(b, NULL) == epoch_hash(a, NULL));
    mpt_destroy(context);
}

TEST(half_batches) {
    static const mpt_dtype dtypes[2] = {MPT_F16, MPT_BF16};
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    mpt_normalize(dataset, 0.5, 0.5);
    for (int d = 0; d < 2; d++) {
        mpt_loader_config config = mpt_loader_config_default();
        mpt_batch batch;
        float got[COUNT * PIXELS];
        uint16_t bits[COUNT * PIXELS], cast_bits[COUNT * PIXELS];
        config.batch = COUNT;
        config.dtype = dtypes[d];
        mpt_loader loader = mpt_loader_create(context, dataset, &config);
        REQUIRE(mpt_loader_next(loader, &batch));
        CHECK_EQ_INT(mpt_get_dtype(batch.x), dtypes[d]);
        CHECK_EQ_INT(mpt_read(batch.x, bits, sizeof bits), MPT_OK);
        for (int64_t i = 0; i < COUNT * PIXELS; i++)
            got[i] = normalised(pixel(i / PIXELS, i % PIXELS), 0.5f, 0.5f);
        mpt_tensor exact = mpt_from(context, MPT_F32, MPT_SHAPE(COUNT * PIXELS), got);
        CHECK_EQ_INT(mpt_read(mpt_cast(exact, dtypes[d]), cast_bits, sizeof cast_bits), MPT_OK);
        CHECK_EQ_BITS(bits, cast_bits, sizeof bits);
        mpt_loader_destroy(loader);
    }
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* Batches end with the next call, whatever scope is open, and with their loader. */
TEST(batch_lifetime) {
    mpt_context *context = make_context();
    mpt_loader loader = make_loader(context, make_bytes(context, COUNT), 16, false, 0);
    mpt_batch first, second;
    mpt_scope_begin(context);
    REQUIRE(mpt_loader_next(loader, &first));
    mpt_scope_end(context);
    CHECK(mpt_valid(first.x) && mpt_valid(first.y));
    mpt_release(first.y);
    REQUIRE(mpt_loader_next(loader, &second));
    CHECK(!mpt_valid(first.x) && mpt_valid(second.x));
    mpt_loader_reset(loader);
    CHECK(!mpt_valid(second.x));
    REQUIRE(mpt_loader_next(loader, &second));
    mpt_loader_destroy(loader);
    CHECK(!mpt_valid(second.x));
    CHECK(!mpt_failed(context));
    CHECK(!mpt_loader_next(loader, &second));
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_HANDLE);
    mpt_destroy(context);
}

/* Saved for backward, then overwritten by a later batch: an error, not wrong gradients. */
TEST(backward_after_next_batch_is_an_error) {
    mpt_context *context = make_context();
    mpt_loader loader = make_loader(context, make_bytes(context, COUNT), 10, false, 0);
    mpt_batch batch;
    mpt_tensor weight = mpt_ones(context, MPT_F32, MPT_SHAPE(4, 6));
    mpt_requires_grad(weight, true);
    REQUIRE(mpt_loader_next(loader, &batch));
    mpt_tensor no_bias;
    memset(&no_bias, 0, sizeof no_bias);
    mpt_tensor y =
        mpt_linear(mpt_reshape(batch.x, MPT_SHAPE(10, 6)), weight, no_bias, MPT_ACTIVATION_NONE);
    mpt_tensor loss = mpt_sum(y, MPT_ALL_DIMS, false);
    CHECK(!mpt_failed(context));
    REQUIRE(mpt_loader_next(loader, &batch));
    CHECK(mpt_backward(loss) != MPT_OK);
    mpt_destroy(context);
}

/* ---- user datasets and workers ---- */

typedef struct user_source {
    int64_t fails; /* index of the sample that cannot be made, -1 = none */
    int silent;    /* without a message */
    int spin;      /* work per sample, so that all workers get their share */
} user_source;

static bool user_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    const user_source *source = (const user_source *)user;
    float *x = (float *)input;
    int64_t *y = (int64_t *)target;
    volatile uint64_t state = seed;
    if (index == source->fails) {
        if (!source->silent) snprintf(error, error_size, "image %d is torn", (int)index);
        return false;
    }
    for (int i = 0; i < source->spin; i++) state = state * UINT64_C(6364136223846793005) + 1;
    for (int k = 0; k < PIXELS; k++) x[k] = (float)((seed >> (8 * k)) & 255) + (float)index;
    *y = index;
    return true;
}

static mpt_dataset make_user(mpt_context *context, user_source *source) {
    mpt_user_dataset_config config;
    memset(&config, 0, sizeof config);
    config.count = COUNT;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(6);
    config.target_dtype = MPT_I64;
    config.target_shape = MPT_SCALAR;
    config.sample = user_sample;
    config.user = source;
    return mpt_user_dataset(context, &config);
}

static bool have_threads(mpt_context *context) {
    mpt_loader loader = make_loader(context, make_bytes(context, 4), 1, false, 1);
    bool built = mpt_error_code(context) != MPT_ERROR_UNSUPPORTED;
    if (built)
        mpt_loader_destroy(loader);
    else
        CHECK_CONTAINS(mpt_error(context), "MPTRAIN_NO_THREADS");
    mpt_clear_error(context);
    return built;
}

#define NEEDS_THREADS(workers) \
    if ((workers) && !have_threads(context)) { \
        mpt_destroy(context); \
        SKIP("threads"); \
    }

TEST(same_bits_for_0_1_4_workers) {
    static const int workers[] = {0, 1, 4};
    uint64_t want[3] = {0, 0, 0};
    for (int w = 0; w < 3; w++) {
        mpt_context *context = make_context();
        NEEDS_THREADS(1)
        user_source source = {-1, 0, 200000};
        mpt_dataset user = make_user(context, &source), bytes = make_bytes(context, COUNT);
        mpt_normalize(bytes, 0.25, 0.125);
        mpt_normalize(user, 100.0, 50.0);
        mpt_loader_config config = mpt_loader_config_default();
        config.batch = 3;
        config.shuffle = true;
        config.workers = workers[w];
        config.dtype = MPT_BF16;
        mpt_loader a = mpt_loader_create(context, user, &config);
        mpt_loader b = mpt_loader_create(context, bytes, &config);
        uint64_t got[3] = {epoch_hash(a, NULL), epoch_hash(a, NULL), epoch_hash(b, NULL)};
        CHECK(!mpt_failed(context));
        CHECK(got[0] != got[1]);
        for (int i = 0; i < 3; i++) {
            if (w == 0) want[i] = got[i];
            CHECK(got[i] == want[i]);
        }
        /* A busy machine may leave a worker out of an epoch, but not out of all of them. */
        int makers = workers[w] ? workers[w] : 1, epochs = 2, idle;
        mpt_loader_stats stats;
        for (;; epochs++) {
            stats = mpt_loader_statistics(a);
            idle = 0;
            for (int i = 0; i < makers; i++) idle += stats.by_worker[i] == 0;
            if (!idle || epochs == 500) break;
            epoch_hash(a, NULL);
        }
        CHECK_EQ_INT(idle, 0);
        int64_t sum = 0;
        for (int i = 0; i < 64; i++) {
            CHECK(i < makers || stats.by_worker[i] == 0);
            sum += stats.by_worker[i];
        }
        CHECK_EQ_INT(sum, epochs * COUNT);
        CHECK_EQ_INT(stats.batches, epochs * 17);
        CHECK(stats.seconds_waited >= 0.0);
        mpt_destroy(context);
    }
}

/* The errors of workers arrive in order, and the loader goes on. */
TEST(worker_errors_at_their_place) {
    for (int workers = 0; workers <= 3; workers += 3) {
        mpt_context *context = make_context();
        NEEDS_THREADS(workers)
        user_source source = {22, 0, 0};
        mpt_loader loader = make_loader(context, make_user(context, &source), 5, false, workers);
        mpt_batch batch;
        int64_t number = 0, last[5];
        while (mpt_loader_next(loader, &batch)) CHECK_EQ_INT(batch.index, number++);
        CHECK_EQ_INT(number, 4); /* batches 0 to 3, then sample 22 */
        CHECK_CONTAINS(mpt_error(context), "sample 22 (batch 4 of epoch 0): image 22 is torn");
        CHECK(!mpt_valid(batch.x));
        CHECK(!mpt_loader_next(loader, &batch));
        mpt_clear_error(context);
        REQUIRE(mpt_loader_next(loader, &batch));
        CHECK_EQ_INT(batch.index, 5);
        mpt_read(batch.y, last, sizeof last);
        CHECK_EQ_INT(last[0], 25);
        source.silent = 1;
        mpt_loader_reset(loader);
        while (mpt_loader_next(loader, &batch)) {}
        CHECK_CONTAINS(mpt_error(context), "sample 22 (batch 4 of epoch 1): the dataset gave no");
        mpt_destroy(context);
    }
}

/* With skip_bad they are left out, a batch of nothing else is an error, and it is counted. */
static void check_left_out(int fails, int workers) {
    mpt_context *context = make_context();
    user_source source = {fails, 0, 0};
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 5, config.workers = workers, config.skip_bad = true;
    mpt_loader loader = mpt_loader_create(context, make_user(context, &source), &config);
    mpt_batch batch;
    char text[64];
    int64_t samples = 0, y[5];
    while (mpt_loader_next(loader, &batch)) {
        CHECK_EQ_INT(batch.size, batch.index == fails / 5 ? 4 : 5);
        CHECK_EQ_INT(mpt_get_shape(batch.x).dim[0], batch.size);
        mpt_read(batch.y, y, (size_t)batch.size * sizeof *y);
        for (int64_t i = 0; i < batch.size; i++, samples++)
            CHECK_EQ_INT(y[i], samples + (samples >= fails));
    }
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(samples, COUNT - 1);
    CHECK_EQ_INT(mpt_loader_statistics(loader).skipped, 1);
    CHECK_EQ_INT(mpt_loader_statistics(loader).samples, COUNT - 1);
    config.batch = 1;
    loader = mpt_loader_create(context, make_user(context, &source), &config);
    while (mpt_loader_next(loader, &batch)) {}
    snprintf(text, sizeof text, "sample %d (batch %d of epoch 0): image %d is torn", fails, fails,
             fails);
    CHECK_CONTAINS(mpt_error(context), text);
    mpt_destroy(context);
}

TEST(bad_samples_left_out) {
    for (int workers = 0; workers <= 3; workers += 3) {
        mpt_context *context = make_context();
        NEEDS_THREADS(workers)
        mpt_destroy(context);
        check_left_out(22, workers);
        check_left_out(0, workers); /* number 0 is a number, too */
        check_left_out(COUNT - 1, workers);
    }
}

typedef struct collations {
    int64_t calls, least; /* samples of one */
    bool full;            /* fails, with a message that fills its room */
} collations;

static bool count_collations(void *user, const mpt_collation *batch, char *error, size_t size) {
    collations *c = (collations *)user;
    c->calls++;
    if (batch->size < c->least) c->least = batch->size;
    if (c->full) memset(error, 'x', size);
    return !c->full;
}

/* collate gets no batch of nothing, and none that is an error already. */
TEST(collate_of_bad_batches) {
    mpt_context *context = make_context();
    user_source source = {0, 0, 0};
    collations seen = {0, COUNT, false};
    mpt_loader_config config = mpt_loader_config_default();
    mpt_batch batch;
    config.batch = 1, config.skip_bad = true;
    config.collate = count_collations, config.collate_user = &seen;
    mpt_dataset dataset = make_user(context, &source);
    mpt_loader loader = mpt_loader_create(context, dataset, &config);
    CHECK(!mpt_loader_next(loader, &batch));
    mpt_clear_error(context);
    while (mpt_loader_next(loader, &batch)) {}
    CHECK_EQ_INT(seen.calls, COUNT - 1);
    CHECK_EQ_INT(seen.least, 1);
    config.batch = COUNT, config.skip_bad = false, config.shuffle = true;
    seen.calls = 0;
    CHECK(!mpt_loader_next(mpt_loader_create(context, dataset, &config), &batch));
    CHECK_CONTAINS(mpt_error(context), "image 0 is torn");
    CHECK_EQ_INT(seen.calls, 0);
    mpt_destroy(context);
}

static bool full_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    (void)user, (void)index, (void)seed, (void)input, (void)target;
    memset(error, 'x', error_size);
    return false;
}

/* A callback's message that fills all of its room, without a 0 at the end. */
static void check_full(mpt_context *context) {
    int64_t length = 0;
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
    for (const char *p = strstr(mpt_error(context), "xxx"); p && *p == 'x'; p++) length++;
    CHECK_EQ_INT(length, 511);
    mpt_clear_error(context);
}

TEST(messages_without_an_end) {
    mpt_context *context = make_context();
    mpt_user_dataset_config config;
    mpt_loader_config loading = mpt_loader_config_default();
    mpt_batch batch;
    float input;
    memset(&config, 0, sizeof config);
    config.count = 1, config.dtype = MPT_F32, config.sample = full_sample;
    mpt_dataset dataset = mpt_user_dataset(context, &config);
    mpt_sample(dataset, 0, &input, NULL);
    check_full(context);
    mpt_sample_into(dataset, 0, &input, sizeof input, NULL, 0, NULL);
    check_full(context);
    CHECK(!mpt_loader_next(mpt_loader_create(context, dataset, &loading), &batch));
    check_full(context);
    collations seen = {0, COUNT, true};
    loading.collate = count_collations, loading.collate_user = &seen;
    dataset = make_bytes(context, COUNT);
    CHECK(!mpt_loader_next(mpt_loader_create(context, dataset, &loading), &batch));
    check_full(context);
    mpt_destroy(context);
}

/* The first and the last settings that are allowed. */
TEST(bounds_of_loaders) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT);
    const bool threads = have_threads(context);
    mpt_loader_config config = mpt_loader_config_default();
    config.prefetch = 0;                           /* there are no workers */
    config.batch = COUNT, config.drop_last = true; /* nothing is left over */
    mpt_loader all = mpt_loader_create(context, dataset, &config);
    CHECK_EQ_INT(mpt_loader_batches(all), 1);
    CHECK_EQ_INT(mpt_loader_seek(all, INT64_C(1) << 59, 1), MPT_OK);
    for (int i = 0; i < 2 && threads; i++) {
        config.workers = i == 0 ? 64 : 1, config.prefetch = i == 0 ? 1 : 1024;
        mpt_loader loader = mpt_loader_create(context, dataset, &config);
        CHECK(epoch_hash(loader, NULL) != HASH_START);
        mpt_loader_destroy(loader);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* A loader put somewhere goes on as one that has come there. */
TEST(resume_anywhere) {
    static const int workers[3] = {0, 1, 4};
    for (int w = 0; w < 3; w++) {
        mpt_context *context = make_context();
        if (workers[w] && !have_threads(context)) {
            mpt_destroy(context);
            SKIP("threads");
        }
        mpt_dataset dataset = make_bytes(context, COUNT);
        mpt_loader a = make_loader(context, dataset, 7, true, 0);
        mpt_loader b = make_loader(context, dataset, 7, true, workers[w]);
        mpt_batch batch;
        mpt_loader_seek(a, 3, 0);
        for (int i = 0; i < 5; i++) REQUIRE(mpt_loader_next(a, &batch));
        mpt_loader_stats at = mpt_loader_statistics(a);
        CHECK_EQ_INT(at.epoch, 3);
        CHECK_EQ_INT(at.next, 5);
        REQUIRE(mpt_loader_next(b, &batch)); /* somewhere else */
        CHECK_EQ_INT(mpt_loader_seek(b, at.epoch, at.next), MPT_OK);
        const uint64_t rest = epoch_hash(a, NULL), later = epoch_hash(a, NULL);
        CHECK(epoch_hash(b, NULL) == rest);
        CHECK(epoch_hash(b, NULL) == later);
        mpt_loader fresh = make_loader(context, dataset, 7, true, 0);
        for (int e = 0; e < 4; e++) epoch_hash(fresh, NULL);
        CHECK(epoch_hash(fresh, NULL) == later);
        CHECK_EQ_INT(mpt_loader_seek(b, 2, 8), MPT_OK); /* the end of an epoch */
        CHECK(!mpt_loader_next(b, &batch));
        CHECK_EQ_INT(mpt_loader_statistics(b).epoch, 3);
        CHECK(!mpt_failed(context));
        CHECK_EQ_INT(mpt_loader_seek(b, 0, 9), MPT_ERROR_INDEX);
        CHECK_CONTAINS(mpt_error(context), "batch 9 of epoch 0: an epoch has batches 0 to 7");
        mpt_destroy(context);
    }
}

/* Samples come as often as their weights say; those of weight 0 never; others each epoch. */
TEST(weighted_samples) {
    mpt_context *context = make_context();
    mpt_dataset dataset = make_bytes(context, 10);
    const double weights[10] = {0, 1, 0, 0, 2, 0, 0, 0, 5, 0};
    mpt_loader_config config = mpt_loader_config_default();
    config.weights = weights, config.samples = 8000, config.batch = 500;
    mpt_loader loader = mpt_loader_create(context, dataset, &config);
    mpt_batch batch;
    int64_t seen[10] = {0}, y[500];
    CHECK_EQ_INT(mpt_loader_batches(loader), 16);
    while (mpt_loader_next(loader, &batch)) {
        mpt_read(batch.y, y, sizeof y);
        for (int i = 0; i < 500; i++) seen[y[i]]++;
    }
    CHECK_EQ_INT(seen[1] + seen[4] + seen[8], 8000);
    CHECK_NEAR((double)seen[1] / 8000.0, 1.0 / 8, 0.02); /* five standard deviations */
    CHECK_NEAR((double)seen[4] / 8000.0, 2.0 / 8, 0.025);
    mpt_loader again = mpt_loader_create(context, dataset, &config);
    const uint64_t first = epoch_hash(again, NULL);
    CHECK(epoch_hash(again, NULL) != first);
    mpt_loader_seek(loader, 0, 0);
    CHECK(epoch_hash(loader, NULL) == first);
    config.samples = 0;
    CHECK_EQ_INT(mpt_loader_batches(mpt_loader_create(context, dataset, &config)), 1);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

TEST(statistics_and_samples_of_user_data) {
    mpt_context *context = make_context();
    user_source source = {49, 0, 0};
    mpt_dataset dataset = make_user(context, &source);
    double mean, deviation;
    float x[PIXELS];
    int64_t y = -1;
    CHECK_EQ_INT(mpt_sample(dataset, 7, x, &y), MPT_OK);
    CHECK_EQ_INT(y, 7);
    CHECK_EQ_INT(mpt_sample(dataset, 8, NULL, &y), MPT_OK);
    CHECK_EQ_INT(y, 8);
    CHECK_EQ_INT(mpt_normalize(dataset, 1.0, 2.0), MPT_OK);
    CHECK_EQ_INT(mpt_sample(dataset, 7, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_dataset_statistics(dataset, &mean, &deviation), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "sample 49: image 49 is torn");
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_dataset_statistics(mpt_subset(dataset, 0, 49), &mean, &deviation), MPT_OK);
    CHECK_EQ_INT(mpt_sample(dataset, 49, x, &y), MPT_ERROR_IO);
    mpt_destroy(context);
}

/* Loaders and contexts end while workers are busy, with datasets in any order. */
TEST(end_while_workers_run) {
    for (int round = 0; round < 20; round++) {
        mpt_context *context = make_context();
        user_source source = {-1, 0, 20000};
        NEEDS_THREADS(1)
        mpt_dataset dataset = make_user(context, &source);
        mpt_loader loader = make_loader(context, dataset, 4, true, 3);
        mpt_batch batch;
        for (int i = 0; i < round % 5; i++) CHECK(mpt_loader_next(loader, &batch));
        if (round % 3 == 1) mpt_loader_reset(loader);
        if (round % 2 == 1) mpt_dataset_destroy(dataset);
        if (round % 4 == 3) mpt_loader_destroy(loader);
        CHECK(!mpt_failed(context));
        mpt_destroy(context);
    }
}

/* ---- misuse ---- */

TEST(misuse_is_named) {
    mpt_context *context = make_context(), *other = make_context();
    mpt_dataset dataset = make_bytes(context, COUNT), empty;
    mpt_loader_config config;
    mpt_batch batch;
    memset(&empty, 0, sizeof empty);
#define EXPECT(code, text) \
    CHECK_EQ_INT(mpt_error_code(context), code); \
    CHECK_CONTAINS(mpt_error(context), text); \
    mpt_clear_error(context)
    config = mpt_loader_config_default(), config.batch = 0;
    mpt_loader_create(context, dataset, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "batch is 0");
    config = mpt_loader_config_default(), config.workers = -1;
    mpt_loader_create(context, dataset, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "workers is -1");
    config = mpt_loader_config_default(), config.workers = 1, config.prefetch = 0;
    mpt_loader_create(context, dataset, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "prefetch is 0");
    config = mpt_loader_config_default(), config.dtype = MPT_I64;
    mpt_loader_create(context, dataset, &config);
    EXPECT(MPT_ERROR_DTYPE, "MPT_F32, MPT_F16 or MPT_BF16");
    config = mpt_loader_config_default(), config.drop_last = true;
    mpt_loader_create(context, dataset, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "drop_last leaves nothing: batch 64 of 50 samples");
    mpt_loader_create(context, empty, NULL);
    EXPECT(MPT_ERROR_HANDLE, "null handle");
    mpt_loader_create(context, make_bytes(other, 3), NULL);
    EXPECT(MPT_ERROR_HANDLE, "another context");
    mpt_normalize(dataset, 0.0, 0.0);
    EXPECT(MPT_ERROR_ARGUMENT, "deviation");
    mpt_loader loader = mpt_loader_create(context, dataset, NULL);
    mpt_normalize(dataset, 0.0, 1.0);
    EXPECT(MPT_ERROR_STATE, "before mpt_loader_create");
    mpt_loader_next(loader, NULL);
    EXPECT(MPT_ERROR_ARGUMENT, "batch is NULL");
    mpt_memory_dataset_config mc = mpt_memory_dataset_config_default();
    mpt_memory_dataset(context, &mc);
    EXPECT(MPT_ERROR_ARGUMENT, "inputs");
    mc.inputs = "1234567", mc.count = 1, mc.shape = MPT_SHAPE(0);
    mpt_memory_dataset(context, &mc);
    EXPECT(MPT_ERROR_SHAPE, "at least 1");
    mc.shape = MPT_SHAPE(INT64_MAX / 2, 4);
    mpt_memory_dataset(context, &mc);
    EXPECT(MPT_ERROR_SHAPE, "more than memory holds");
    mc.shape = MPT_SCALAR, mc.targets = "1234567", mc.target_dtype = MPT_U8;
    mpt_memory_dataset(context, &mc);
    EXPECT(MPT_ERROR_DTYPE, "targets are i64");
    mpt_user_dataset(context, NULL);
    EXPECT(MPT_ERROR_ARGUMENT, "config is NULL");
    if (have_files(context)) {
        mpt_mnist(context, NULL, MPT_TRAIN);
        EXPECT(MPT_ERROR_ARGUMENT, "directory is NULL");
    }
#undef EXPECT
    CHECK(!mpt_loader_next(mpt_loader_create(NULL, dataset, NULL), &batch));
    CHECK_EQ_INT(mpt_dataset_size(empty), -1);
    mpt_destroy(context);
    mpt_destroy(other);
}

/* ---- memory ---- */

static mpt_context *counted_context(counted *c) {
    mpt_config config = mpt_config_default();
    count_memory(&config, c);
    return mpt_create(&config);
}

TEST(no_allocation_after_the_first_batch) {
    counted c;
    mpt_context *context = counted_context(&c);
    bool threads = have_threads(context);
    for (int workers = 0; workers <= (threads ? 2 : 0); workers += 2) {
        mpt_loader loader = make_loader(context, make_bytes(context, COUNT), 7, true, workers);
        mpt_batch batch;
        CHECK(mpt_loader_next(loader, &batch));
        int64_t before = c.calls;
        for (int i = 0; i < 40; i++) mpt_loader_next(loader, &batch);
        CHECK_EQ_INT(c.calls - before, 0);
        mpt_loader_destroy(loader);
    }
    mpt_memory_stats memory = mpt_memory(context);
    CHECK_EQ_INT(memory.current[MPT_MEMORY_BATCH], 0);
    CHECK(memory.peak[MPT_MEMORY_BATCH] >= 7 * (PIXELS * 4 + 8));
    CHECK(memory.current[MPT_MEMORY_DATA] >= COUNT * (PIXELS + 8));
    CHECK_EQ_INT(memory.held, c.live);
    mpt_destroy(context);
    CHECK_EQ_INT(c.live, 0);
}

/* Whatever allocation fails, nothing leaks and the same calls succeed afterwards. */
TEST(out_of_memory_while_creating) {
    for (int fail = 0; fail < 60; fail++) {
        counted c;
        mpt_context *context = counted_context(&c);
        double halves[2] = {0.5, 0.5};
        mpt_dataset parts[2];
        int64_t samples = 0;
        c.fails = c.calls + fail + 1, c.onwards = true;
        mpt_dataset dataset = make_bytes(context, COUNT);
        mpt_random_split(dataset, halves, 2, 3, parts);
        mpt_loader loader = make_loader(context, parts[1], 4, true, 0);
        epoch_hash(loader, &samples);
        bool failed = mpt_failed(context);
        if (failed)
            CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
        else
            CHECK_EQ_INT(samples, COUNT / 2);
        c.fails = 0;
        mpt_clear_error(context);
        if (failed && mpt_dataset_size(dataset) == COUNT && parts[1].slot == 0) {
            CHECK_EQ_INT(parts[0].slot, 0); /* all parts or none */
            CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], COUNT * (PIXELS + 8));
        }
        mpt_clear_error(context);
        samples = 0;
        dataset = make_bytes(context, COUNT);
        mpt_random_split(dataset, halves, 2, 3, parts);
        epoch_hash(make_loader(context, parts[1], 4, true, 0), &samples);
        CHECK_EQ_INT(samples, COUNT / 2);
        CHECK(!mpt_failed(context));
        mpt_destroy(context);
        CHECK_EQ_INT(c.live, 0);
        if (!failed) break;
    }
}

/* ---- idx files ---- */

static void write_file(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(bytes, 1, n, file);
    fclose(file);
}

static size_t put_header(uint8_t *out, int rank, const int *dims) {
    size_t n = 0;
    out[n++] = 0, out[n++] = 0, out[n++] = 8, out[n++] = (uint8_t)rank;
    for (int i = 0; i < rank; i++) {
        out[n++] = (uint8_t)(dims[i] >> 24), out[n++] = (uint8_t)(dims[i] >> 16);
        out[n++] = (uint8_t)(dims[i] >> 8), out[n++] = (uint8_t)dims[i];
    }
    return n;
}

/* gzip without compression: one stored block. */
static size_t put_gzip(uint8_t *out, const uint8_t *data, size_t n) {
    static const uint8_t head[10] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255};
    uint32_t crc = 0xffffffffu;
    size_t at = sizeof head;
    memcpy(out, head, sizeof head);
    out[at++] = 1;
    out[at++] = (uint8_t)n, out[at++] = (uint8_t)(n >> 8);
    out[at++] = (uint8_t)~n, out[at++] = (uint8_t)(~n >> 8);
    memcpy(out + at, data, n);
    at += n;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0u);
    }
    crc = ~crc;
    for (int k = 0; k < 4; k++) out[at++] = (uint8_t)(crc >> (8 * k));
    for (int k = 0; k < 4; k++) out[at++] = (uint8_t)(n >> (8 * k));
    return at;
}

static const int image_dims[3] = {5, 2, 3}, label_dims[1] = {5};

static size_t make_images(uint8_t *out) {
    size_t n = put_header(out, 3, image_dims);
    for (int i = 0; i < 30; i++) out[n++] = pixel(i / 6, i % 6);
    return n;
}

static size_t make_labels(uint8_t *out) {
    size_t n = put_header(out, 1, label_dims);
    for (int i = 0; i < 5; i++) out[n++] = (uint8_t)(9 - i);
    return n;
}

TEST(idx_plain_and_gzip) {
    uint8_t images[64], labels[32], packed[128];
    size_t n_images = make_images(images), n_labels = make_labels(labels);
    const char *plain = test_tmp_path("images"), *gz = test_tmp_path("labels.gz");
    mpt_context *context = make_context();
    if (!have_files(context)) {
        mpt_destroy(context);
        SKIP("files");
    }
    write_file(plain, images, n_images);
    write_file(gz, packed, put_gzip(packed, labels, n_labels));
    mpt_dataset dataset = mpt_idx(context, plain, gz);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(dataset), 5);
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], 16 + 30 + 8 + 5);
    for (int i = 0; i < 5; i++) {
        float x[6];
        int64_t y;
        CHECK_EQ_INT(mpt_sample(dataset, i, x, &y), MPT_OK);
        CHECK_EQ_INT(y, 9 - i);
        for (int k = 0; k < 6; k++) CHECK(x[k] == byte_value(pixel(i, k)));
    }
    /* Two members, as of files that were joined, one of nothing, and zeros up to a whole block. */
    size_t size = put_gzip(packed, images, 20);
    size += put_gzip(packed + size, images, 0);
    size += put_gzip(packed + size, images + 20, n_images - 20);
    memset(packed + size, 0, 7);
    write_file(gz, packed, size + 7);
    mpt_dataset inputs_only = mpt_idx(context, gz, NULL);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_batch batch;
    REQUIRE(mpt_loader_next(make_loader(context, inputs_only, 3, false, 0), &batch));
    CHECK_EQ_INT(mpt_get_shape(batch.x).dim[2], 3);
    CHECK(!mpt_valid(batch.y));
    CHECK(!mpt_failed(context));
    mpt_mnist(context, test_tmp_path("nowhere"), MPT_TRAIN);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "train-images-idx3-ubyte.gz");
    remove(plain), remove(gz);
    mpt_destroy(context);
}

/* One damaged byte sequence after the other, each refused with words that name the fault. */
TEST(idx_damaged) {
    uint8_t good[64], bytes[160], packed[160];
    size_t n = make_images(good);
    const char *path = test_tmp_path("damaged");
    counted c;
    mpt_context *context = counted_context(&c);
    if (!have_files(context)) {
        mpt_destroy(context);
        SKIP("files");
    }
#define REFUSED(data, size, text) \
    write_file(path, data, size); \
    mpt_idx(context, path, NULL); \
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_FORMAT); \
    CHECK_CONTAINS(mpt_error(context), text); \
    CHECK_CONTAINS(mpt_error(context), path); \
    mpt_clear_error(context); \
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], 0)
    REFUSED(good, 0, "expected");
    REFUSED(good, 3, "expected");
    REFUSED(good, 9, "expected");
    REFUSED(good, n - 1, "shorter");
    memcpy(bytes, good, n), bytes[n] = 0;
    REFUSED(bytes, n + 1, "longer");
    bytes[2] = 0x0d;
    REFUSED(bytes, n, "float32");
    memcpy(bytes, good, n), bytes[4] = 0x7f; /* two billion images */
    REFUSED(bytes, n, "expected");
    size_t size = put_gzip(packed, bytes, n);
    REFUSED(packed, size, "compressed ones hold");
    memcpy(bytes, good, n), bytes[7] = 6; /* one more than there are */
    size = put_gzip(packed, bytes, n);
    REFUSED(packed, size, "it unpacks to 46 bytes, its idx header stands for 52");
    bytes[7] = 4;
    size = put_gzip(packed, bytes, n);
    REFUSED(packed, size, "it unpacks to more than 40 bytes, its idx header stands for 40");
    size = put_gzip(packed, (const uint8_t *)"<html>an error page</html>", 26);
    REFUSED(packed, size, "this is a web page");
    size = put_gzip(packed, good, n);
    packed[size] = 'x';
    REFUSED(packed, size + 1, "something that is not gzip follows the data");
    for (size_t cut = 2; cut < size; cut++) {
        write_file(path, packed, cut);
        mpt_idx(context, path, NULL);
        CHECK(mpt_failed(context));
        mpt_clear_error(context);
    }
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], 0);
    packed[size - 10] ^= 1;
    REFUSED(packed, size, "checksum");
    /* A header that asks for 4 GB and a trailer that agrees: refused before it is allocated. */
    memcpy(bytes, good, n);
    memset(bytes + 4, 0, 12);
    bytes[5] = 0xff, bytes[11] = 4, bytes[14] = 4;
    size = put_gzip(packed, bytes, n);
    uint64_t claim = UINT64_C(0xff0000) * 4 * 1024 + 16;
    for (int k = 0; k < 4; k++) packed[size - 4 + (size_t)k] = (uint8_t)(claim >> (8 * k));
    int64_t peak = mpt_memory(context).peak[MPT_MEMORY_DATA];
    REFUSED(packed, size, "compressed ones hold");
    CHECK_EQ_INT(mpt_memory(context).peak[MPT_MEMORY_DATA], peak);
#undef REFUSED
    remove(path);
    mpt_destroy(context);
    CHECK_EQ_INT(c.live, 0);
}

/* ---- files that fail ---- */

/* An io that serves one file from memory and fails at the n-th call of any kind. */
typedef struct faulty {
    const uint8_t *bytes;
    int64_t size, position;
    int calls, fails, open;
} faulty;

static bool faulty_fails(faulty *f) { return f->calls++ == f->fails; }

static void *faulty_open(void *user, const char *path, char mode) {
    faulty *f = (faulty *)user;
    (void)path;
    if (mode != 'r' || faulty_fails(f)) return NULL;
    f->open++;
    f->position = 0;
    return f;
}

static size_t faulty_read(void *user, void *file, void *buffer, size_t bytes) {
    faulty *f = (faulty *)user;
    (void)file;
    if (faulty_fails(f)) return 0;
    if ((int64_t)bytes > f->size - f->position) bytes = (size_t)(f->size - f->position);
    memcpy(buffer, f->bytes + f->position, bytes);
    f->position += (int64_t)bytes;
    return bytes;
}

static bool faulty_seek(void *user, void *file, int64_t position) {
    faulty *f = (faulty *)user;
    (void)file;
    f->position = position;
    return !faulty_fails(f);
}

static int64_t faulty_size(void *user, void *file) {
    faulty *f = (faulty *)user;
    (void)file;
    return faulty_fails(f) ? -1 : f->size;
}

static bool faulty_close(void *user, void *file) {
    (void)file;
    ((faulty *)user)->open--;
    return true;
}

TEST(idx_reading_fails_anywhere) {
    uint8_t images[64], packed[128];
    size_t n = make_images(images), n_packed = put_gzip(packed, images, n);
    for (int gz = 0; gz < 2; gz++) {
        int fails = 0;
        for (bool failed = true; failed && fails < 50; fails++) {
            faulty f;
            memset(&f, 0, sizeof f);
            f.bytes = gz ? packed : images;
            f.size = (int64_t)(gz ? n_packed : n);
            f.fails = fails;
            mpt_config config = mpt_config_default();
            config.threads = 1;
            config.io.open = faulty_open;
            config.io.read = faulty_read;
            config.io.seek = faulty_seek;
            config.io.size = faulty_size;
            config.io.close = faulty_close;
            config.io.user = &f;
            mpt_context *context = mpt_create(&config);
            if (!have_files(context)) {
                mpt_destroy(context);
                SKIP("files");
            }
            f.calls = f.open = 0;
            mpt_dataset dataset = mpt_idx(context, "memory.idx", NULL);
            failed = mpt_failed(context);
            CHECK_EQ_INT(f.open, 0);
            if (failed) {
                CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
                CHECK_CONTAINS(mpt_error(context), "memory.idx");
                CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], 0);
            } else {
                CHECK_EQ_INT(mpt_dataset_size(dataset), 5);
            }
            mpt_destroy(context);
        }
        CHECK(fails > 4 && fails < 50);
    }
}

TEST(idx_without_memory) {
    uint8_t images[64], packed[128];
    size_t n = make_images(images), n_packed = put_gzip(packed, images, n);
    bool failed = true;
    int64_t fails = 1;
    char path[512];
    snprintf(path, sizeof path, "%s", test_tmp_path("packed.idx"));
    write_file(path, packed, n_packed);
    for (; failed && fails < 20; fails++) {
        counted c;
        mpt_context *context = counted_context(&c);
        NEEDS_FILES
        c.fails = c.calls + fails;
        mpt_dataset dataset = mpt_idx(context, path, NULL);
        failed = mpt_failed(context);
        CHECK_EQ_INT(mpt_error_code(context), failed ? MPT_ERROR_MEMORY : MPT_OK);
        mpt_clear_error(context);
        if (failed)
            CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_DATA], 0);
        else
            CHECK_EQ_INT(mpt_dataset_size(dataset), 5);
        mpt_destroy(context);
        CHECK_EQ_INT(c.live, 0);
    }
    CHECK(fails > 4 && fails < 20); /* the unpacker, the packed bytes, the samples, the dataset */
    remove(path);
}

/* ---- MNIST ---- */

TEST(mnist) {
    mpt_context *context = make_context();
    mpt_dataset train = mpt_mnist(context, test_data_path("mnist"), MPT_TRAIN);
    mpt_dataset test = mpt_mnist(context, test_data_path("mnist"), MPT_TEST);
    double mean, deviation;
    int64_t y, histogram[10] = {0};
    mpt_batch batch;
    if (mpt_failed(context)) {
        mpt_destroy(context);
        SKIP("mnist in MPTRAIN_DATA or data/");
    }
    CHECK_EQ_INT(mpt_dataset_size(train), 60000);
    CHECK_EQ_INT(mpt_dataset_size(test), 10000);
    CHECK_EQ_INT(mpt_dataset_statistics(train, &mean, &deviation), MPT_OK);
    CHECK_NEAR(mean, 0.1306604762738429, 1e-12);
    CHECK_NEAR(deviation, 0.30810780385646264, 1e-12);
    CHECK_EQ_INT(mpt_sample(train, 0, NULL, &y), MPT_OK);
    CHECK_EQ_INT(y, 5);
    CHECK_EQ_INT(mpt_sample(test, 0, NULL, &y), MPT_OK);
    CHECK_EQ_INT(y, 7);
    mpt_loader loader = make_loader(context, test, 1000, true, 0);
    while (mpt_loader_next(loader, &batch)) {
        int64_t targets[1000];
        CHECK_EQ_INT(mpt_expect_shape(batch.x, MPT_SHAPE(1000, 1, 28, 28), "x"), MPT_OK);
        mpt_read(batch.y, targets, sizeof targets);
        for (int i = 0; i < 1000; i++) histogram[targets[i]]++;
    }
    static const int64_t want[10] = {980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009};
    CHECK_EQ_BITS(histogram, want, sizeof want);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* What misuse_is_named has not: values that are just outside, or no numbers. */
TEST(values_just_outside) {
    static const float inputs[4 * 4] = {0};
    static const int64_t targets[4] = {0, 1, 0, 1};
    mpt_config config = mpt_config_default();
    config.threads = 1;
    mpt_context *c = mpt_create(&config);
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    memory.count = 4, memory.shape = MPT_SHAPE(4), memory.inputs = inputs, memory.targets = targets;
    mpt_dataset data = mpt_memory_dataset(c, &memory);
    const double nan = NAN, inf = INFINITY;
#define OUTSIDE(call, text) \
    do { \
        call; \
        CHECK_CONTAINS(mpt_error(c), text); \
        mpt_clear_error(c); \
    } while (0)
    memory.dtype = MPT_DTYPE_COUNT;
    OUTSIDE(mpt_memory_dataset(c, &memory), "inputs are u8, bool");
    memory.dtype = MPT_DTYPE_NONE;
    OUTSIDE(mpt_memory_dataset(c, &memory), "inputs are u8, bool");
    memory.dtype = MPT_F8E5M2;
    OUTSIDE(mpt_memory_dataset(c, &memory), "inputs are u8, bool");
    memory.dtype = MPT_F32, memory.shape.rank = -1;
    OUTSIDE(mpt_memory_dataset(c, &memory), "input shape of rank -1: samples have rank 0 to");
    memory.shape = MPT_SHAPE(4), memory.target_dtype = MPT_DTYPE_NONE;
    OUTSIDE(mpt_memory_dataset(c, &memory), "targets is given without a target_dtype");
    memory.target_dtype = MPT_F64;
    OUTSIDE(mpt_memory_dataset(c, &memory), "target");
    OUTSIDE(mpt_normalize(data, nan, 1), "both must be finite");
    OUTSIDE(mpt_normalize(data, 0, inf), "both must be finite");
    OUTSIDE(mpt_normalize(data, 0, 1e-60), "the deviation positive");
    const double fractions[2] = {nan, 1}, more[2] = {2, 1};
    mpt_dataset parts[2];
    OUTSIDE(mpt_random_split(data, fractions, 2, 0, parts), "fraction 0 is ");
    OUTSIDE(mpt_random_split(data, more, 2, 0, parts), "fraction 0 is 2;");
    CHECK(mpt_class_name(data, -1) == NULL && mpt_class_name(data, 0) == NULL);
    CHECK_EQ_INT(mpt_sample_into(data, 0, NULL, 0, NULL, 0, NULL), MPT_OK);
    float one[4];
    CHECK_EQ_INT(mpt_sample_into(data, 0, one, sizeof one, NULL, 0, NULL), MPT_OK);
    memory.target_dtype = MPT_I64, memory.target_shape = MPT_SHAPE(1, 1);
    memory.copy = false;
    mpt_dataset pair = mpt_memory_dataset(c, &memory);
    int64_t label = -1;
    CHECK_EQ_INT(mpt_sample(pair, 3, NULL, &label), MPT_OK);
    CHECK_EQ_INT(label, 1);
    memory.count = 2, memory.target_shape = MPT_SHAPE(2);
    pair = mpt_memory_dataset(c, &memory);
    OUTSIDE(mpt_sample(pair, 0, NULL, &label), "room for one class number");
    mpt_loader_config loading = mpt_loader_config_default();
    double weights[4] = {1, 1, 1, 1};
    loading.workers = 1, loading.prefetch = 1 << 20;
    OUTSIDE(mpt_loader_create(c, data, &loading), "prefetch is 1048576");
    loading.prefetch = 0;
    OUTSIDE(mpt_loader_create(c, data, &loading), "prefetch is 0");
    loading.workers = 0, loading.samples = -1;
    OUTSIDE(mpt_loader_create(c, data, &loading), "samples is -1");
    loading.samples = INT64_MAX;
    OUTSIDE(mpt_loader_create(c, data, &loading), "samples is 9223372036854775807");
    loading.samples = 5;
    OUTSIDE(mpt_loader_create(c, data, &loading), "samples is 5");
    loading.samples = 0, loading.weights = weights, weights[2] = nan;
    OUTSIDE(mpt_loader_create(c, data, &loading), "weight 2 is ");
    weights[2] = 1e301;
    OUTSIDE(mpt_loader_create(c, data, &loading), "weight 2 is 1e+301");
    weights[0] = weights[1] = weights[2] = weights[3] = 0;
    OUTSIDE(mpt_loader_create(c, data, &loading), "the weights sum to 0");
    loading.weights = NULL;
    mpt_loader loader = mpt_loader_create(c, data, &loading);
    OUTSIDE(mpt_loader_seek(loader, -1, 0), "batch 0 of epoch -1");
    OUTSIDE(mpt_loader_seek(loader, INT64_MAX, 0), "batch 0 of epoch 9223372036854775807");
    OUTSIDE(mpt_loader_seek(loader, 0, -1), "batch -1 of epoch 0");
    OUTSIDE(mpt_loader_seek(loader, 0, 99), "batch 99 of epoch 0");
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

#ifndef MPTRAIN_NO_FILES
/* The same of the steps on the way to a picture. */
TEST(steps_just_outside) {
    static const uint8_t pixels[2 * 4 * 6] = {0};
    const struct {
        mpt_transform_kind kind;
        int height, width, padding;
        double p, scale, ratio, mean, deviation;
        const char *says;
    } rows[] = {{MPT_RANDOM_CROP, 1 << 25, 2, 0, 0.5, 1, 1, 0, 1, "a height and a width from 1"},
                {MPT_RANDOM_CROP, 2, 1 << 25, 0, 0.5, 1, 1, 0, 1, "a height and a width from 1"},
                {MPT_RANDOM_CROP, 2, 0, 0, 0.5, 1, 1, 0, 1, "a height and a width from 1"},
                {MPT_RANDOM_CROP, 2, 2, -1, 0.5, 1, 1, 0, 1, "a padding of 0 to 2^24"},
                {MPT_RANDOM_CROP, 2, 2, 1 << 25, 0.5, 1, 1, 0, 1, "a padding of 0 to 2^24"},
                {MPT_RANDOM_CROP, 5, 6, 0, 0.5, 1, 1, 0, 1, "a crop of 5 x 6 from 4 x 6"},
                {MPT_RANDOM_CROP, 4, 7, 0, 0.5, 1, 1, 0, 1, "a crop of 4 x 7 from 4 x 6"},
                {MPT_RANDOM_FLIP, 0, 0, 0, -0.5, 1, 1, 0, 1, "a p outside [0, 1]"},
                {MPT_RANDOM_FLIP, 0, 0, 0, NAN, 1, 1, 0, 1, "a p outside [0, 1]"},
                {MPT_RESIZED_CROP, 2, 2, 0, 0.5, 2, 1, 0, 1, "0 < scale[0]"},
                {MPT_RESIZED_CROP, 2, 2, 0, 0.5, 1, 1e7, 0, 1, "0 < ratio[0]"},
                {MPT_RESIZED_CROP, 2, 2, 0, 0.5, 0, 1, 0, 1, "0 < scale[0]"},
                {MPT_NORMALIZE, 0, 0, 0, 0.5, 1, 1, NAN, 1, "finite means"},
                {MPT_NORMALIZE, 0, 0, 0, 0.5, 1, 1, 0, INFINITY, "finite means"},
                {MPT_NORMALIZE, 0, 0, 0, 0.5, 1, 1, 0, 0, "finite means"}};
    mpt_config config = mpt_config_default();
    config.threads = 1;
    mpt_context *c = mpt_create(&config);
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    memory.count = 2, memory.dtype = MPT_U8, memory.shape = MPT_SHAPE(1, 4, 6);
    memory.inputs = pixels;
    mpt_dataset data = mpt_memory_dataset(c, &memory);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        mpt_transform step = mpt_transform_default(rows[k].kind, rows[k].height, rows[k].width);
        step.padding = rows[k].padding, step.p = rows[k].p;
        step.scale[0] = step.scale[1] = rows[k].scale;
        step.ratio[0] = step.ratio[1] = rows[k].ratio;
        for (int i = 0; i < 4; i++)
            step.mean[i] = rows[k].mean, step.deviation[i] = rows[k].deviation;
        mpt_transformed(data, &step, 1);
        if (!strstr(mpt_error(c), rows[k].says))
            TEST_FAIL_("row %d: %s", (int)k, mpt_error(c));
        mpt_clear_error(c);
    }
    mpt_transform resize = mpt_transform_default(MPT_RESIZE, 2, 0); /* the shorter side */
    const mpt_shape small = mpt_dataset_shape(mpt_transformed(data, &resize, 1));
    CHECK(small.rank == 3 && small.dim[1] == 2 && small.dim[2] == 3);
    memory.shape = MPT_SHAPE(1, 6, 4);
    const mpt_shape tall = mpt_dataset_shape(
        mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1));
    CHECK(tall.rank == 3 && tall.dim[1] == 3 && tall.dim[2] == 2);
    OUTSIDE(mpt_transformed(data, &resize, 1000), "1000 steps; 0 to ");
    OUTSIDE(mpt_transformed(data, NULL, 1), "1 steps at NULL");
    memory.count = 1, memory.shape = MPT_SHAPE(8, 3, 2);
    OUTSIDE(mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1), "at most 4 channels");
    memory.shape = MPT_SHAPE(48);
    OUTSIDE(mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1), "[C, H, W]");
    memory.shape = MPT_SHAPE(1, 1, 6, 8);
    OUTSIDE(mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1), "[C, H, W]");
    memory.copy = false, memory.shape = MPT_SHAPE(1 << 25, 1);
    OUTSIDE(mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1), "[C, H, W]");
    memory.shape = MPT_SHAPE(1, 1 << 25);
    OUTSIDE(mpt_transformed(mpt_memory_dataset(c, &memory), &resize, 1), "[C, H, W]");
    mpt_destroy(c);
}
#define STEPS_JUST_OUTSIDE T(steps_just_outside),
#else
#define STEPS_JUST_OUTSIDE
#endif

TEST_TABLE = {STEPS_JUST_OUTSIDE T(values_just_outside), T(memory_samples),
              T(every_byte_normalises_to_the_same_bits),
              T(statistics),
              T(input_dtypes),
              T(subsets_and_splits),
              T(bounds_of_splits),
              T(a_subset_has_its_own_normalisation),
              T(batches_in_order),
              T(shuffle_by_seed_and_epoch),
              T(half_batches),
              T(batch_lifetime),
              T(backward_after_next_batch_is_an_error),
              T(same_bits_for_0_1_4_workers),
              T(worker_errors_at_their_place),
              T(bad_samples_left_out),
              T(collate_of_bad_batches),
              T(messages_without_an_end),
              T(bounds_of_loaders),
              T(resume_anywhere),
              T(weighted_samples),
              T(statistics_and_samples_of_user_data),
              T(end_while_workers_run),
              T(misuse_is_named),
              T(no_allocation_after_the_first_batch),
              T(out_of_memory_while_creating),
              T(idx_plain_and_gzip),
              T(idx_damaged),
              T(idx_reading_fails_anywhere),
              T(idx_without_memory),
              T(mnist)};
TEST_MAIN
