/* api_images.c: pictures: steps against PyTorch, image folders, torn and odd files, CIFAR-10.
 * The implementation is in this file, so that it has stb_image where the machine does. */
#if defined(__has_include)
#if __has_include(<stb_image.h>) || __has_include(<stb/stb_image.h>)
#define MPTRAIN_STB_IMAGE
#define MPTRAIN_STB_IMAGE_IMPLEMENTATION
#endif
#endif
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
#include <math.h>

#include "../examples/pictures.h"
#include "../examples/resnet.h"
#include "golden.h"
#include "harness.h"
#include "made_pictures.h"
#include "memory.h"

#ifdef MPTRAIN_STB_IMAGE
#define NEEDS_STB (void)0
#else
#define NEEDS_STB SKIP("stb_image.h")
#endif

/* ==== Files in memory, which several threads may read ==== */

enum { SHELF_FILES = 24 };

typedef struct shelf {
    struct {
        const char *path;
        const uint8_t *data;
        size_t size;
    } files[SHELF_FILES];
    int count;
} shelf;

typedef struct shelf_handle {
    const uint8_t *data;
    size_t size, at;
} shelf_handle;

static void *shelf_open(void *user, const char *path, char mode) {
    const shelf *s = (const shelf *)user;
    for (int i = 0; i < s->count && mode == 'r'; i++) {
        if (strcmp(s->files[i].path, path) != 0) continue;
        shelf_handle *handle = (shelf_handle *)malloc(sizeof *handle);
        if (!handle) return NULL;
        handle->data = s->files[i].data, handle->size = s->files[i].size, handle->at = 0;
        return handle;
    }
    return NULL;
}

static size_t shelf_read(void *user, void *file, void *buffer, size_t bytes) {
    shelf_handle *handle = (shelf_handle *)file;
    (void)user;
    if (bytes > handle->size - handle->at) bytes = handle->size - handle->at;
    memcpy(buffer, handle->data + handle->at, bytes);
    handle->at += bytes;
    return bytes;
}

static bool shelf_seek(void *user, void *file, int64_t position) {
    (void)user;
    ((shelf_handle *)file)->at = (size_t)position;
    return true;
}

static int64_t shelf_size(void *user, void *file) {
    (void)user;
    return (int64_t)((shelf_handle *)file)->size;
}

static bool shelf_close(void *user, void *file) {
    (void)user;
    free(file);
    return true;
}

/* The names right below a path, in the order of the shelf, folders once. */
static bool shelf_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    const shelf *s = (const shelf *)user;
    const size_t n = strlen(path);
    char last[64] = "";
    bool found = false;
    for (int i = 0; i < s->count; i++) {
        const char *name = s->files[i].path;
        char part[64];
        if (strncmp(name, path, n) != 0 || name[n] != '/') continue;
        found = true;
        name += n + 1;
        const size_t length = strcspn(name, "/");
        snprintf(part, sizeof part, "%.*s", (int)length, name);
        if (strcmp(part, last) != 0) entry(to, part, name[length] == '/');
        strcpy(last, part);
    }
    return found;
}

static void shelf_add(shelf *s, const char *path, const void *data, size_t size) {
    s->files[s->count].path = path;
    s->files[s->count].data = (const uint8_t *)data;
    s->files[s->count++].size = size;
}

static mpt_context *shelf_context_of(mpt_config config, shelf *s) {
    config.threads = 1;
    config.io.open = shelf_open, config.io.read = shelf_read, config.io.seek = shelf_seek;
    config.io.size = shelf_size, config.io.close = shelf_close, config.io.list = shelf_list;
    config.io.user = s;
    return mpt_create(&config);
}

static mpt_context *shelf_context(shelf *s) { return shelf_context_of(mpt_config_default(), s); }

/* ==== Steps ==== */

/* One f32 picture as a dataset that borrows it. */
static mpt_dataset one_picture(mpt_context *context, const float *values, mpt_shape shape) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 1;
    config.shape = shape;
    config.inputs = values;
    return mpt_memory_dataset(context, &config);
}

static mpt_dataset bytes_pictures(mpt_context *context, const uint8_t *bytes, int64_t count,
                                  mpt_shape shape) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = count;
    config.dtype = MPT_U8;
    config.shape = shape;
    config.inputs = bytes;
    return mpt_memory_dataset(context, &config);
}

TEST(resize_as_pytorch) {
    mpt_context *context = make_context();
    golden_file file;
    golden_case c;
    int cases = 0;
    REQUIRE(golden_open(&file, "data.bin"));
    for (; golden_next(&file, &c); cases++) {
        const golden_tensor *x = golden_find(&c, "x"), *y = golden_find(&c, "y");
        mpt_transform step = mpt_transform_default(MPT_RESIZE, y->shape.dim[1], y->shape.dim[2]);
        float got[4 * 23 * 40];
        step.antialias = c.ints[0] != 0;
        mpt_dataset data = one_picture(context, (const float *)x->data, x->shape);
        CHECK_EQ_INT(mpt_sample(mpt_transformed(data, &step, 1), 0, got, NULL), MPT_OK);
        for (int64_t i = 0; i < y->count; i++)
            CHECK_CLOSE(got[i], golden_value(y, i), y->rtol, 1e-6);
        /* The same pixels as bytes, channels apart and side by side, with another scale. */
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_clear_error(context);
    }
    CHECK_EQ_INT(cases, 18);
    golden_close(&file);
    mpt_destroy(context);
}

/* Bytes 0 .. 11 as [1, 3, 4]. */
static float byte_at(int64_t y, int64_t x) {
    float value = 0.0f;
    if (y >= 0 && y < 3 && x >= 0 && x < 4) value = (float)(4 * y + x) / 255.0f;
    return value;
}

static const uint8_t twelve[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

TEST(crops_and_flips) {
    mpt_context *context = make_context();
    mpt_dataset data = bytes_pictures(context, twelve, 1, MPT_SHAPE(3, 4));
    float got[64], flipped[64];
    mpt_transform center = mpt_transform_default(MPT_CENTER_CROP, 1, 2);
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, &center, 1), 0, got, NULL), MPT_OK);
    CHECK(got[0] == byte_at(1, 1) && got[1] == byte_at(1, 2));
    center = mpt_transform_default(MPT_CENTER_CROP, 6, 5); /* zeros around: 1 above, 0 left */
    mpt_dataset padded = mpt_transformed(data, &center, 1);
    CHECK_EQ_INT(mpt_sample(padded, 0, got, NULL), MPT_OK);
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < 5; x++) CHECK(got[5 * y + x] == byte_at(y - 1, x));
    mpt_transform two[2] = {mpt_transform_default(MPT_RANDOM_FLIP, 0, 0), center};
    two[0].p = 1.0;
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, two, 2), 0, flipped, NULL), MPT_OK);
    for (int y = 0; y < 6; y++)
        for (int x = 0; x < 5; x++) CHECK(flipped[5 * y + x] == byte_at(y - 1, x < 4 ? 3 - x : -1));
    two[0].p = 0.0;
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, two, 2), 0, flipped, NULL), MPT_OK);
    CHECK_EQ_BITS(flipped, got, 30 * sizeof *got);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* What a crop has cut off is gone: a larger one after it, or its padding, shows zeros there. */
TEST(crops_of_crops) {
    mpt_context *context = make_context();
    mpt_dataset data = bytes_pictures(context, twelve, 1, MPT_SHAPE(3, 4));
    mpt_transform steps[3] = {mpt_transform_default(MPT_CENTER_CROP, 1, 2),
                              mpt_transform_default(MPT_CENTER_CROP, 3, 4),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0)};
    steps[2].p = 1.0;
    for (int count = 2; count <= 3; count++)
        for (int padding = 0; padding < 2; padding++) {
            float got[12];
            if (padding) steps[1] = mpt_transform_default(MPT_RANDOM_CROP, 3, 4);
            steps[1].padding = padding;
            CHECK_EQ_INT(mpt_sample(mpt_transformed(data, steps, count), 0, got, NULL), MPT_OK);
            for (int i = 0; i < 12; i++) {
                const int x = count == 2 ? i % 4 : 3 - i % 4;
                const bool left = i / 4 == 1 && (x == 1 || x == 2);
                CHECK(got[i] == (left ? byte_at(1, x) : 0.0f));
            }
            steps[1] = mpt_transform_default(MPT_CENTER_CROP, 3, 4);
        }
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* Where a random crop of the padded picture came from: every place turns up, no other. */
TEST(random_crops_reach_every_place) {
    mpt_context *context = make_context();
    mpt_dataset data = bytes_pictures(context, twelve, 1, MPT_SHAPE(1, 3, 4));
    mpt_transform step = mpt_transform_default(MPT_RANDOM_CROP, 2, 2);
    step.padding = 1;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = 1;
    mpt_loader loader = mpt_loader_create(context, mpt_transformed(data, &step, 1), &lc);
    int seen[4][5] = {{0}}, found = 0;
    mpt_batch batch;
    for (int i = 0; i < 600; i++) {
        float x[4];
        bool known = false;
        if (!mpt_loader_next(loader, &batch)) continue; /* between epochs */
        CHECK_EQ_INT(mpt_read_f32(batch.x, x, 4), MPT_OK);
        for (int t = 0; t < 20 && !known; t++) {
            const int top = t / 5 - 1, left = t % 5 - 1;
            known = true;
            for (int k = 0; k < 4; k++) known &= x[k] == byte_at(top + k / 2, left + k % 2);
            if (known) seen[top + 1][left + 1]++;
        }
        CHECK(known);
    }
    for (int t = 0; t < 20; t++) found += seen[t / 5][t % 5] > 0;
    CHECK_EQ_INT(found, 20);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* Windows of a picture with more padding than they are wide: some see none of it. */
TEST(crops_of_padding_alone) {
    mpt_context *context = make_context();
    enum { PICTURES = 16 };
    uint8_t bytes[12 * PICTURES];
    float x[4 * PICTURES];
    for (int i = 0; i < 12 * PICTURES; i++) bytes[i] = (uint8_t)(i % 12 + 1);
    mpt_dataset data = bytes_pictures(context, bytes, PICTURES, MPT_SHAPE(1, 3, 4));
    mpt_transform step = mpt_transform_default(MPT_RANDOM_CROP, 2, 2);
    step.padding = 4;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = PICTURES;
    mpt_loader loader = mpt_loader_create(context, mpt_transformed(data, &step, 1), &lc);
    int empty = 0, seen = 0;
    mpt_batch batch;
    for (int i = 0; i < 60 * PICTURES; i++) {
        float *const one = x + 4 * (i % PICTURES), want[4];
        bool known = false;
        if (i % PICTURES == 0) {
            while (!mpt_loader_next(loader, &batch)) {} /* between epochs */
            CHECK_EQ_INT(mpt_read_f32(batch.x, x, 4 * PICTURES), MPT_OK);
        }
        for (int t = 0; t < 110 && !known; t++) {
            for (int k = 0; k < 4; k++) {
                const int at_y = t / 11 - 4 + k / 2, at_x = t % 11 - 4 + k % 2;
                const bool inside = at_y >= 0 && at_y < 3 && at_x >= 0 && at_x < 4;
                want[k] = inside ? (float)(4 * at_y + at_x + 1) / 255.0f : 0.0f;
            }
            known = memcmp(one, want, sizeof want) == 0;
        }
        CHECK(known);
        empty += one[0] + one[1] + one[2] + one[3] == 0.0f;
        seen += one[0] * one[3] > 0.0f;
    }
    CHECK(empty > 300 && seen > 5);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

enum { EPOCHS = 50 };

/* The only picture of a dataset through steps, in so many epochs. */
static void through_steps(mpt_dataset data, const mpt_transform *steps, int count, float *out,
                          int64_t numel) {
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_batch batch;
    lc.batch = 1, lc.seed = 3;
    mpt_dataset stepped = mpt_transformed(data, steps, count);
    mpt_loader loader = mpt_loader_create(data.context, stepped, &lc);
    for (int i = 0; i < EPOCHS; i++, out += numel) {
        CHECK(mpt_loader_next(loader, &batch));
        CHECK_EQ_INT(mpt_numel(batch.x), numel);
        CHECK_EQ_INT(mpt_read_f32(batch.x, out, numel), MPT_OK);
        CHECK(!mpt_loader_next(loader, &batch));
    }
    mpt_loader_destroy(loader);
    mpt_dataset_destroy(stepped);
}

/* Steps only describe a picture until something needs its pixels: the same bits come when pixels
   are computed after the first step, which a normalisation by 0 and 1 asks for. */
TEST(steps_at_once_and_one_by_one) {
    static const struct {
        mpt_transform_kind kind;
        int64_t height, width, padding;
    } first[] = {{MPT_RANDOM_CROP, 4, 5, 3},  {MPT_RANDOM_CROP, 9, 11, 3},
                 {MPT_RANDOM_CROP, 3, 3, 6},  {MPT_CENTER_CROP, 5, 4, 0},
                 {MPT_CENTER_CROP, 4, 7, 0},  {MPT_CENTER_CROP, 5, 6, 0},
                 {MPT_CENTER_CROP, 9, 7, 0},  {MPT_CENTER_CROP, 5, 9, 0},
                 {MPT_CENTER_CROP, 3, 3, 0},  {MPT_RESIZE, 3, 9, 0},
                 {MPT_RESIZE, 7, 0, 0},       {MPT_RESIZED_CROP, 4, 6, 0},
                 {MPT_RANDOM_FLIP, 0, 0, 0}},
      then[] = {{MPT_RESIZE, 4, 6, 0},
                {MPT_RESIZE, 8, 5, 0},
                {MPT_CENTER_CROP, 2, 2, 0},
                {MPT_CENTER_CROP, 5, 6, 0},
                {MPT_CENTER_CROP, 9, 9, 0}};
    static float x[70], lazy[EPOCHS * 200], forced[EPOCHS * 200];
    mpt_context *context = make_context();
    for (int i = 0; i < 70; i++) x[i] = (float)(i * i % 67) / 16.0f - 1.0f;
    mpt_dataset data = one_picture(context, x, MPT_SHAPE(2, 5, 7));
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        for (size_t k = 0; k < 2 * (sizeof then / sizeof *then); k++) {
            mpt_transform steps[4];
            int n = 0, before = test_failures;
            const int64_t numel = 2 * then[k / 2].height * then[k / 2].width;
            steps[n] = mpt_transform_default(first[i].kind, first[i].height, first[i].width);
            steps[n++].padding = first[i].padding;
            steps[n++] = mpt_transform_default(MPT_NORMALIZE, 0, 0);
            if (k % 2) steps[n] = mpt_transform_default(MPT_RANDOM_FLIP, 0, 0), steps[n++].p = 1.0;
            steps[n++] =
                mpt_transform_default(then[k / 2].kind, then[k / 2].height, then[k / 2].width);
            through_steps(data, steps, n, forced, numel);
            memmove(steps + 1, steps + 2, (size_t)(n - 2) * sizeof *steps);
            through_steps(data, steps, n - 1, lazy, numel);
            if (k % 2 == 0 && first[i].kind != MPT_RANDOM_FLIP)
                CHECK_EQ_BITS(lazy, forced, (size_t)(EPOCHS * numel) * sizeof *lazy);
            for (int64_t at = 0; at < EPOCHS * numel; at++) /* mirrored sums are in other orders */
                CHECK_NEAR(lazy[at], forced[at], 1e-6);
            if (test_failures > before) printf(", row %d, then %d", (int)i, (int)k);
        }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static bool torn_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    (void)user, (void)seed, (void)input, (void)target;
    snprintf(error, error_size, "picture %d is torn", (int)index);
    return false;
}

/* Parts that no part can be, floats at odd addresses, pictures that nobody has. */
TEST(pictures_at_the_edges) {
    mpt_context *context = make_context();
    float x[70], got[70];
    char odd[sizeof x + 1];
    for (int i = 0; i < 70; i++) x[i] = (float)(i % 7);
    mpt_transform step = mpt_transform_default(MPT_RANDOM_ERASING, 0, 0);
    step.p = 1.0, step.ratio[0] = step.ratio[1] = 1e6; /* longer than the picture */
    mpt_dataset data = one_picture(context, x, MPT_SHAPE(2, 5, 7));
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, &step, 1), 0, got, NULL), MPT_OK);
    CHECK_EQ_BITS(got, x, sizeof x);
    step = mpt_transform_default(MPT_RESIZED_CROP, 2, 2); /* the middle column, then */
    step.ratio[0] = step.ratio[1] = 1e-300;
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, &step, 1), 0, got, NULL), MPT_OK);
    for (int i = 0; i < 8; i++) CHECK_NEAR(got[i], 3.0, 1e-6);
    mpt_memory_dataset_config borrowed = mpt_memory_dataset_config_default();
    memcpy(odd + 1, x, sizeof x);
    borrowed.count = 1, borrowed.shape = MPT_SHAPE(2, 5, 7), borrowed.copy = false;
    for (int at = 0; at < 2; at++) {
        memmove(odd + at, odd + 1, sizeof x);
        borrowed.inputs = odd + at;
        data = mpt_transformed(mpt_memory_dataset(context, &borrowed), NULL, 0);
        CHECK_EQ_INT(mpt_sample(data, 0, got, NULL), MPT_OK);
        CHECK_EQ_BITS(got, x, sizeof x);
        memmove(odd + 1, odd + at, sizeof x);
    }
    mpt_user_dataset_config user;
    memset(&user, 0, sizeof user);
    user.count = 1, user.dtype = MPT_U8, user.sample = torn_sample;
    for (int tall = 0; tall < 2; tall++) {
        user.shape = MPT_SHAPE(tall ? 1 << 20 : 1, tall ? 1 : 1 << 20);
        data = mpt_user_dataset(context, &user);
        step = mpt_transform_default(MPT_RESIZE, 1024, 0);
        CHECK_EQ_INT(mpt_transformed(data, &step, 1).slot, 0);
        EXPECT(MPT_ERROR_SHAPE, tall ? "step 0 makes 1073741824 x 1024 pixels"
                                     : "step 0 makes 1024 x 1073741824 pixels");
    }
    user.shape = MPT_SHAPE(2, 2);
    data = mpt_transformed(mpt_user_dataset(context, &user), NULL, 0);
    CHECK_EQ_INT(mpt_sample(data, 0, got, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "sample 0: picture 0 is torn");
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

typedef struct user_seen {
    int64_t shape[3];
    bool fail;
} user_seen;

static bool double_all(void *user, float *image, mpt_shape shape, uint64_t seed, char *error,
                       size_t error_size) {
    user_seen *seen = (user_seen *)user;
    (void)seed;
    for (int i = 0; i < 3; i++) seen->shape[i] = shape.dim[i];
    for (int64_t i = 0; i < shape.dim[0] * shape.dim[1] * shape.dim[2]; i++) image[i] *= 2.0f;
    if (seen->fail) snprintf(error, error_size, "no luck");
    return !seen->fail;
}

TEST(normalise_erase_apply) {
    mpt_context *context = make_context();
    user_seen seen = {{0, 0, 0}, false};
    uint8_t bytes[2 * 4 * 5];
    float got[40], resized[12], again[12];
    for (int i = 0; i < 40; i++) bytes[i] = (uint8_t)(i * 6 + 1);
    mpt_dataset data = bytes_pictures(context, bytes, 1, MPT_SHAPE(2, 4, 5));
    mpt_transform steps[4] = {mpt_transform_default(MPT_NORMALIZE, 0, 0),
                              mpt_transform_default(MPT_APPLY, 0, 0),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0),
                              mpt_transform_default(MPT_RANDOM_ERASING, 0, 0)};
    steps[0].mean[1] = 0.5, steps[0].deviation[0] = 0.25;
    steps[1].apply = double_all, steps[1].user = &seen;
    steps[2].p = 1.0, steps[3].p = 0.0;
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, steps, 4), 0, got, NULL), MPT_OK);
    CHECK(seen.shape[0] == 2 && seen.shape[1] == 4 && seen.shape[2] == 5);
    for (int i = 0; i < 40; i++) {
        const int from = i / 5 * 5 + 4 - i % 5;
        float value = (float)bytes[from] / 255.0f;
        value = i < 20 ? value / 0.25f : value - 0.5f;
        value = value * 2.0f;
        CHECK_EQ_BITS(&got[i], &value, sizeof value);
    }
    seen.fail = true;
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, steps, 2), 0, got, NULL), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "sample 0: no luck");
    mpt_clear_error(context);

    /* One part is erased, smaller than the picture, in all channels alike; the rest stays. */
    steps[3].p = 1.0;
    mpt_dataset erased = mpt_transformed(data, &steps[3], 1);
    int zeros = 0;
    CHECK_EQ_INT(mpt_sample(erased, 0, got, NULL), MPT_OK);
    for (int i = 0; i < 20; i++) {
        CHECK((got[i] == 0.0f) == (got[20 + i] == 0.0f));
        if (got[i] == 0.0f)
            zeros++;
        else
            CHECK(got[i] == (float)bytes[i] / 255.0f);
    }
    CHECK(zeros >= 1 && zeros <= 10);

    /* A crop after a resize sees the pixels that the whole resize has there. */
    mpt_transform cut[3] = {mpt_transform_default(MPT_RESIZE, 3, 0),
                            mpt_transform_default(MPT_CENTER_CROP, 3, 2),
                            mpt_transform_default(MPT_RESIZE, 3, 2)};
    float whole[2 * 3 * 3];
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, cut, 1), 0, whole, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, cut, 2), 0, resized, NULL), MPT_OK);
    for (int i = 0; i < 12; i++) CHECK(resized[i] == whole[i / 2 * 3 + i % 2]);
    CHECK_EQ_INT(mpt_sample(mpt_transformed(data, cut, 3), 0, again, NULL), MPT_OK);
    CHECK_EQ_BITS(again, resized, sizeof again);
    /* A dataset with steps on one with steps, and a part of that. */
    mpt_dataset twice = mpt_transformed(mpt_transformed(data, cut, 1), &cut[1], 1);
    CHECK_EQ_INT(mpt_sample(mpt_subset(twice, 0, 1), 0, again, NULL), MPT_OK);
    CHECK_EQ_BITS(again, resized, sizeof again);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

TEST(steps_that_make_no_sense) {
    mpt_context *context = make_context();
    mpt_dataset data = bytes_pictures(context, twelve, 1, MPT_SHAPE(1, 3, 4));
    static const struct {
        mpt_transform_kind kind;
        int64_t height, width;
        const char *text;
    } rows[] = {{MPT_RESIZE, 0, 4, "step 0, MPT_RESIZE needs a height and a width"},
                {MPT_CENTER_CROP, 4, 0, "needs a height and a width"},
                {MPT_RANDOM_CROP, 9, 2, "a crop of 9 x 2 from 3 x 4"},
                {MPT_APPLY, 0, 0, "has no function"},
                {MPT_TRANSFORM_KINDS, 1, 1, "step 0 is of no known kind"},
                {MPT_RESIZE, INT64_C(1) << 40, 1, "2^24"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_transform step = mpt_transform_default(rows[i].kind, rows[i].height, rows[i].width);
        CHECK_EQ_INT(mpt_transformed(data, &step, 1).slot, 0);
        CHECK_CONTAINS(mpt_error(context), rows[i].text);
        mpt_clear_error(context);
    }
#define REFUSED(kind, field, value, text) \
    do { \
        mpt_transform step = mpt_transform_default(kind, 2, 2); \
        step.field = value; \
        CHECK_EQ_INT(mpt_transformed(data, &step, 1).slot, 0); \
        CHECK_CONTAINS(mpt_error(context), text); \
        mpt_clear_error(context); \
    } while (0)
    REFUSED(MPT_RANDOM_CROP, padding, -1, "padding of 0 to 2^24");
    REFUSED(MPT_RANDOM_FLIP, p, 1.5, "a p outside [0, 1]");
    REFUSED(MPT_RESIZED_CROP, scale[0], 0.0, "needs 0 < scale");
    REFUSED(MPT_RANDOM_ERASING, ratio[1], (double)NAN, "needs 0 < scale");
    REFUSED(MPT_NORMALIZE, deviation[0], 0.0, "positive deviations");
#undef REFUSED
    mpt_transformed(data, NULL, 2);
    CHECK_CONTAINS(mpt_error(context), "2 steps at NULL");
    mpt_clear_error(context);
    mpt_transformed(bytes_pictures(context, twelve, 1, MPT_SHAPE(12)), NULL, 0);
    CHECK_CONTAINS(mpt_error(context), "uint8 [12]");
    mpt_destroy(context);
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    const uint8_t *p = (const uint8_t *)data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Bits of an epoch; *sum gets the sum of its values. */
static uint64_t epoch_hash(mpt_loader loader, double *sum) {
    static float x[64 * 3 * 64 * 64];
    uint64_t hash = UINT64_C(14695981039346656037);
    mpt_batch batch;
    *sum = 0.0;
    while (mpt_loader_next(loader, &batch)) {
        const int64_t n = mpt_numel(batch.x);
        int64_t y[64];
        mpt_read_f32(batch.x, x, n);
        mpt_read(batch.y, y, (size_t)batch.size * sizeof *y);
        for (int64_t i = 0; i < n; i++) *sum += (double)x[i];
        hash = hash_bytes(hash_bytes(hash, x, (size_t)n * 4), y, (size_t)batch.size * sizeof *y);
    }
    return hash;
}

/* Two epochs at 0, 1 and 4 workers and another prefetch: the same bits. */
static void same_for_workers(mpt_context *context, mpt_dataset data) {
    static const int workers[] = {0, 1, 4, 2}, prefetch[] = {2, 1, 3, 5};
    uint64_t want[2] = {0, 0};
    for (int w = 0; w < 4; w++) {
        mpt_loader_config lc = mpt_loader_config_default();
        double sum;
        lc.batch = 6, lc.shuffle = true, lc.workers = workers[w], lc.prefetch = prefetch[w];
        mpt_loader loader = mpt_loader_create(context, data, &lc);
        if (mpt_error_code(context) == MPT_ERROR_UNSUPPORTED) { /* without threads */
            mpt_clear_error(context);
            continue;
        }
        for (int e = 0; e < 2; e++) {
            const int64_t allocations = mpt_memory(context).allocations;
            const uint64_t got = epoch_hash(loader, &sum);
            if (w == 0) want[e] = got;
            CHECK(got == want[e]);
            CHECK(sum == sum);
            if (e > 0) CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
        }
        mpt_loader_destroy(loader);
    }
    CHECK(want[0] != want[1]);
    CHECK_EQ_STR(mpt_error(context), "");
}

static void augmentation(mpt_transform steps[4], int64_t side) {
    steps[0] = mpt_transform_default(MPT_RESIZED_CROP, side, side);
    steps[1] = mpt_transform_default(MPT_RANDOM_FLIP, 0, 0);
    steps[2] = mpt_transform_default(MPT_NORMALIZE, 0, 0);
    steps[3] = mpt_transform_default(MPT_RANDOM_ERASING, 0, 0);
    for (int c = 0; c < 3; c++) steps[2].mean[c] = 0.45, steps[2].deviation[c] = 0.225;
}

TEST(same_bits_for_any_workers) {
    mpt_context *context = make_context();
    static uint8_t bytes[20 * 3 * 16 * 16];
    int64_t labels[20];
    mpt_transform steps[4];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 37 + i / 256);
    for (int i = 0; i < 20; i++) labels[i] = i;
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 20, config.dtype = MPT_U8, config.shape = MPT_SHAPE(3, 16, 16);
    config.inputs = bytes, config.targets = labels;
    augmentation(steps, 12);
    mpt_dataset data = mpt_transformed(mpt_memory_dataset(context, &config), steps, 4);
    same_for_workers(context, data);
    CHECK_EQ_INT(mpt_normalize(data, 0.5, 2.0), MPT_OK); /* after all steps */
    same_for_workers(context, data);
    mpt_destroy(context);
}

/* ==== CIFAR-10 ==== */

enum { RECORD = 3073 };

static void put_records(uint8_t *out, int count, int first) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < RECORD; k++)
            out[i * RECORD + k] =
                (uint8_t)(k == 0 ? (first + i) % 10 : ((first + i) * 31 + k * 7) % 256);
}

TEST(cifar10) {
    static uint8_t train[5][3 * RECORD], test[2 * RECORD];
    static const char *const paths[5] = {"c/data_batch_1.bin", "c/data_batch_2.bin",
                                         "c/data_batch_3.bin", "c/data_batch_4.bin",
                                         "c/data_batch_5.bin"};
    static float x[3072];
    shelf s;
    int64_t y;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 5; i++) {
        put_records(train[i], 3, 3 * i);
        shelf_add(&s, paths[i], train[i], sizeof train[i]);
    }
    put_records(test, 2, 100);
    shelf_add(&s, "c/test_batch.bin", test, sizeof test);
    mpt_context *context = shelf_context(&s);
    mpt_dataset data = mpt_cifar10(context, "c", MPT_TRAIN);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(data), 15);
    for (int i = 0; i < 15; i++) {
        CHECK_EQ_INT(mpt_sample(data, i, x, &y), MPT_OK);
        CHECK_EQ_INT(y, i % 10);
        for (int k = 0; k < 3072; k++)
            CHECK(x[k] == (float)train[i / 3][i % 3 * RECORD + 1 + k] / 255.0f);
    }
    CHECK_EQ_STR(mpt_class_name(data, 3), "cat");
    CHECK(mpt_class_name(data, 10) == NULL);
    data = mpt_cifar10(context, "c", MPT_TEST);
    CHECK_EQ_INT(mpt_dataset_size(data), 2);
    test[RECORD] = 10;
    mpt_cifar10(context, "c", MPT_TEST);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(context), "test_batch.bin: label 10 in record 1 (byte 3073)");
    mpt_clear_error(context);
    s.files[3].size--;
    mpt_cifar10(context, "c", MPT_TRAIN);
    CHECK_CONTAINS(mpt_error(context), "data_batch_4.bin: 9218 bytes are not");
    mpt_clear_error(context);
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    s.files[5].data = (const uint8_t *)pointer, s.files[5].size = sizeof pointer - 1;
    mpt_cifar10(context, "c", MPT_TEST);
    CHECK_CONTAINS(mpt_error(context), "c/test_batch.bin: this is a Git LFS pointer; git lfs pull");
    mpt_clear_error(context);
    mpt_cifar10(context, "d", MPT_TRAIN);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
    mpt_destroy(context);
}

/* ==== Image folders ==== */

#ifdef MPTRAIN_STB_IMAGE

/* A 24-bit BMP of w x h; pixel (y, x) is (r, g, b) = (10 y, 20 x, seed). Returns its bytes. */
static size_t put_bmp(uint8_t *out, int w, int h, int seed) {
    const size_t row = ((size_t)w * 3 + 3) / 4 * 4, size = 54 + row * (size_t)h;
    memset(out, 0, size);
    out[0] = 'B', out[1] = 'M', out[10] = 54, out[14] = 40, out[26] = 1, out[28] = 24;
    for (int i = 0; i < 4; i++) {
        out[2 + i] = (uint8_t)(size >> (8 * i));
        out[18 + i] = (uint8_t)(w >> (8 * i)), out[22 + i] = (uint8_t)(h >> (8 * i));
    }
    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++) {
            uint8_t *pixel = out + 54 + row * (size_t)(h - 1 - y) + 3 * x;
            pixel[0] = (uint8_t)seed, pixel[1] = (uint8_t)(20 * x), pixel[2] = (uint8_t)(10 * y);
        }
    return size;
}

static mpt_dataset folder_of(mpt_context *context, const char *root, const mpt_transform *steps,
                             int count, const char *manifest) {
    mpt_image_config config = mpt_image_config_default();
    config.steps = steps, config.step_count = count, config.manifest = manifest;
    return mpt_image_folder(context, root, &config);
}

TEST(folders_in_order) {
    static uint8_t small[4][256], wide[512];
    const char *const paths[] = {"r/ants/b.bmp",     "r/ants/B.BMP",   "r/ants/.hidden.bmp",
                                 "r/ants/notes.txt", "r/ants-2/a.bmp", "r/Zoo/deep/x.bmp",
                                 "r/Zoo/z.bmp",      "r/list.txt"};
    shelf s;
    float x[3 * 4 * 5];
    int64_t y;
    memset(&s, 0, sizeof s);
    size_t n = 0;
    for (int i = 0; i < 4; i++) n = put_bmp(small[i], 5, 4, i);
    for (int i = 0; i < 8; i++) shelf_add(&s, paths[i], small[i % 4], n);
    mpt_context *context = shelf_context(&s);
    mpt_dataset data = mpt_image_folder(context, "r", NULL);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(data), 4);
    CHECK_EQ_STR(mpt_class_name(data, 0), "Zoo");
    CHECK_EQ_STR(mpt_class_name(data, 1), "ants");
    CHECK_EQ_STR(mpt_class_name(data, 2), "ants-2");
    CHECK(mpt_class_name(data, 3) == NULL && mpt_class_name(data, -1) == NULL);
    static const int seeds[4] = {2, 1, 0, 0}, labels[4] = {0, 1, 1, 2};
    for (int i = 0; i < 4; i++) {
        CHECK_EQ_INT(mpt_sample(data, i, x, &y), MPT_OK);
        CHECK_EQ_INT(y, labels[i]);
        for (int k = 0; k < 20; k++) {
            CHECK(x[k] == (float)(10 * (k / 5)) / 255.0f);
            CHECK(x[20 + k] == (float)(20 * (k % 5)) / 255.0f);
            CHECK(x[40 + k] == (float)seeds[i] / 255.0f);
        }
    }
    /* Bytes side by side go through a resize as planes do. */
    mpt_transform shrink = mpt_transform_default(MPT_RESIZE, 3, 2);
    float planes[3 * 4 * 5], packed[18], apart[18];
    mpt_sample(data, 1, planes, NULL);
    CHECK_EQ_INT(mpt_sample(folder_of(context, "r", &shrink, 1, NULL), 1, packed, NULL), MPT_OK);
    mpt_sample(mpt_transformed(one_picture(context, planes, MPT_SHAPE(3, 4, 5)), &shrink, 1), 0,
               apart, NULL);
    for (int i = 0; i < 18; i++) CHECK_NEAR(packed[i], apart[i], 1e-6);
    mpt_image_config grey = mpt_image_config_default();
    grey.channels = 1;
    CHECK_EQ_INT(mpt_sample(mpt_image_folder(context, "r", &grey), 0, x, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");

    s.files[2].path = "r/ants/c.bmp"; /* the last one that was hidden */
    s.files[2].data = wide, s.files[2].size = put_bmp(wide, 6, 4, 9);
    data = mpt_image_folder(context, "r", NULL);
    CHECK_EQ_INT(mpt_sample(data, 3, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "ants/c.bmp: 4 x 6 pixels, expected 4 x 5 as the first picture has");
    grey.max_pixels = 20;
    CHECK_EQ_INT(mpt_sample(mpt_image_folder(context, "r", &grey), 3, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "ants/c.bmp: 4 x 6 pixels; max_pixels is 20");
    s.files[2].size -= 7;
    CHECK_EQ_INT(mpt_sample(folder_of(context, "r", &shrink, 1, NULL), 3, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "ants/c.bmp: the file ends too early");
    wide[0] = 'X';
    CHECK_EQ_INT(mpt_sample(folder_of(context, "r", &shrink, 1, NULL), 3, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "neither PNG nor JPEG nor BMP (first bytes 58 4d)");
    shelf_add(&s, "r/none/readme", "x", 1);
    mpt_image_folder(context, "r", NULL);
    EXPECT(MPT_ERROR_IO, "r/none holds no .png, .jpg, .jpeg or .bmp file");
    mpt_image_folder(context, "r/none", NULL);
    EXPECT(MPT_ERROR_IO, "r/none has no subfolders");
    mpt_image_folder(context, "nowhere", NULL);
    EXPECT(MPT_ERROR_IO, "cannot list nowhere");
    mpt_transform norm = mpt_transform_default(MPT_NORMALIZE, 0, 0);
    s.count--;
    folder_of(context, "r", &norm, 1, NULL);
    EXPECT(MPT_ERROR_ARGUMENT, "step 0 (MPT_NORMALIZE) needs a picture of known size");
    mpt_destroy(context);
}

/* SHA-256 of bytes as hexadecimal digits; the vectors are those of FIPS 180-2. */
static void hex_digest(const void *data, size_t n, char hex[65]) {
    mpt__sha256 sha;
    uint8_t digest[32];
    mpt__sha256_begin(&sha);
    for (size_t i = 0; i < n; i += 7)
        mpt__sha256_add(&sha, (const uint8_t *)data + i, n - i < 7 ? n - i : 7);
    mpt__sha256_end(&sha, digest);
    for (int i = 0; i < 32; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

TEST(sha256) {
    static char million[1000000];
    char hex[65];
    memset(million, 'a', sizeof million);
    hex_digest("", 0, hex);
    CHECK_EQ_STR(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    hex_digest("abc", 3, hex);
    CHECK_EQ_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    hex_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
    CHECK_EQ_STR(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    hex_digest(million, sizeof million, hex);
    CHECK_EQ_STR(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(manifests) {
    static uint8_t bmp[3][256];
    static const char *const paths[3] = {"r/a/1.bmp", "r/a/2.bmp", "r/b/1.bmp"};
    char hex[3][65], text[512];
    float x[60];
    shelf s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 3; i++) {
        size_t n = put_bmp(bmp[i], 5, 4, i);
        hex_digest(bmp[i], n, hex[i]);
        shelf_add(&s, paths[i], bmp[i], n);
    }
    mpt_context *context = shelf_context(&s);
    shelf_add(&s, "sums", text, 0);
    const char *good = "%s  b/1.bmp\r\n%s *./a/2.bmp\n\n%s  a/1.bmp\n%s  README";
    s.files[3].size = (size_t)snprintf(text, sizeof text, good, hex[2], hex[1], hex[0], hex[0]);
    mpt_dataset data = folder_of(context, "r", NULL, 0, "sums");
    CHECK_EQ_STR(mpt_error(context), "");
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(mpt_sample(data, i, x, NULL), MPT_OK);
    bmp[1][100] ^= 4; /* a pixel: nothing but the hash tells */
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(data, 1, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "a/2.bmp: its SHA-256 is not that of the manifest");
    static const char *const bad[][2] = {
        {"%s  b/1.bmp\n%s  a/2.bmp\n", "sums: has no line for a/1.bmp"},
        {"%s  b/1.bmp\n%s  b/1.bmp\n", "line 2 names b/1.bmp, which an earlier line names, too"},
        {"%s  b/9.bmp\n%s  a/2.bmp\n", "line 1 names b/9.bmp, which is not there"},
        {"%s b/1.bmp\n%s  a/2.bmp\n", "line 1 is not a SHA-256"},
        {"%.60sgggg  b/1.bmp\n%s", "line 1 has a hash that is not 64"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char format[64];
        snprintf(format, sizeof format, "%s", bad[i][0]);
        s.files[3].size = 0;
        for (size_t k = 0, h = 2; bad[i][0][k]; k++) { /* as printf, with hashes for %s */
            if (bad[i][0][k] != '%') {
                text[s.files[3].size++] = bad[i][0][k];
                continue;
            }
            const size_t n = bad[i][0][k + 1] == '.' ? 60 : 64;
            memcpy(text + s.files[3].size, hex[h--], n);
            s.files[3].size += n;
            k += n == 60 ? 4 : 1;
        }
        folder_of(context, "r", NULL, 0, "sums");
        EXPECT(MPT_ERROR_FORMAT, bad[i][1]);
    }
    static char lines[8000];
    char large[65];
    for (int i = 0; i < 65; i++) /* upper case is the same hash */
        large[i] = (char)(hex[0][i] >= 'a' ? hex[0][i] - 'a' + 'A' : hex[0][i]);
    s.files[3].data = (const uint8_t *)lines;
    s.files[3].size = (size_t)snprintf(lines, sizeof lines, "\r\n%s  b/1.bmp\n%s  a/2.bmp\n%s %s",
                                       hex[2], hex[1], large, " a/1.bmp\r");
    data = folder_of(context, "r", NULL, 0, "sums");
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_OK);
    /* As Windows writes it: a byte-order mark, backslashes, CR and LF. */
    s.files[3].size = (size_t)snprintf(
        lines, sizeof lines, "\xef\xbb\xbf%s *b\\1.bmp\r\n%s *.\\a\\2.bmp\r\n%s  a\\1.bmp\r\n",
        hex[2], hex[1], large);
    data = folder_of(context, "r", NULL, 0, "sums");
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(data, 1, x, NULL), MPT_ERROR_IO); /* whose pixel was changed */
    EXPECT(MPT_ERROR_IO, "a/2.bmp: its SHA-256 is not that of the manifest");
    static const char *const others[][2] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git LFS pointer"},
        {"<!DOCTYPE html>\n<html>", "sums: this is a web page (HTML)"},
        {"\xff\xfe"
         "a",
         "sums: this is text in UTF-16"}};
    for (size_t i = 0; i < 3; i++) {
        s.files[3].size = (size_t)snprintf(lines, sizeof lines, "%s", others[i][0]);
        folder_of(context, "r", NULL, 0, "sums");
        EXPECT(MPT_ERROR_FORMAT, others[i][1]);
    }
    s.files[3].size =
        (size_t)snprintf(lines, sizeof lines, "%s  b/1.bmp\n%s  a/2.bmp\n", hex[2], hex[1]);
    memset(lines + 66, 'x', sizeof lines - 66);
    memcpy(lines + sizeof lines - 4, ".bmp", 4);
    for (int i = 0; i < 3; i++) {
        static const char *const words[] = {"line 1 has a path that is too long", "not a SHA-256",
                                            "line 1 has a path with a zero byte"};
        memcpy(lines, hex[0], 64), lines[64] = lines[65] = i == 1 ? '-' : ' ';
        if (i == 2) lines[70] = 0;
        s.files[3].size = i == 2 ? 80 : sizeof lines;
        folder_of(context, "r", NULL, 0, "sums");
        EXPECT(MPT_ERROR_FORMAT, words[i]);
    }
    folder_of(context, "r", NULL, 0, "nothing");
    EXPECT(MPT_ERROR_IO, "cannot open nothing");
    mpt_config config = mpt_config_default();
    config.threads = 1, config.io.open = shelf_open, config.io.read = shelf_read;
    config.io.user = &s;
    mpt_context *poor = mpt_create(&config);
    folder_of(poor, "r", NULL, 0, NULL);
    CHECK_EQ_INT(mpt_error_code(poor), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(poor), "cannot list r: config.io has no `list`");
    mpt_destroy(poor);
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_HOST] > 0, 1);
    mpt_destroy(context);
}

/* Whatever allocation fails, nothing leaks, and the same calls succeed afterwards. */
TEST(out_of_memory) {
    static uint8_t bmp[2][256], records[2 * RECORD];
    char hex[2][65], text[256];
    float x[192];
    shelf s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 2; i++) {
        const size_t n = put_bmp(bmp[i], 5, 4, i);
        hex_digest(bmp[i], n, hex[i]);
        shelf_add(&s, i ? "r/b/1.bmp" : "r/a/1.bmp", bmp[i], n);
    }
    put_records(records, 2, 0);
    shelf_add(&s, "c/test_batch.bin", records, sizeof records);
    shelf_add(&s, "sums", text,
              (size_t)snprintf(text, sizeof text, "%s  a/1.bmp\n%s  b/1.bmp\n", hex[0], hex[1]));
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, 8, 8);
    bool failed = true;
    int64_t fails = 1;
    for (; failed && fails < 200; fails++) {
        mpt_config config = mpt_config_default();
        counted c;
        count_memory(&config, &c);
        mpt_context *context = shelf_context_of(config, &s);
        REQUIRE(context);
        c.fails = c.calls + fails;
        for (int again = 0; again < 2; again++) {
            mpt_sample(folder_of(context, "r", NULL, 0, "sums"), 1, x, NULL);
            mpt_dataset data = mpt_transformed(mpt_cifar10(context, "c", MPT_TEST), &step, 1);
            mpt_sample(data, 1, x, NULL);
            if (again) break;
            failed = mpt_failed(context);
            if (failed) CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
            mpt_clear_error(context);
            c.fails = 0;
        }
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
        CHECK_EQ_INT(c.live, 0);
    }
    CHECK(fails > 10 && fails < 200);
}

static uint8_t *read_whole(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = (uint8_t *)malloc(1 << 20);
    *size = file && bytes ? fread(bytes, 1, 1 << 20, file) : 0;
    if (file) fclose(file);
    if (*size) return bytes;
    free(bytes);
    return NULL;
}

/* A photo cut anywhere is refused. With one bit changed it decodes to something or is refused; with
   a manifest it is always refused. */
TEST(torn_and_flipped_photos) {
    size_t n;
    uint8_t *photo = read_whole(test_data_path("hymenoptera/train/ants/0013035.jpg"), &n);
    char text[128], hex[65];
    mpt_transform steps[1] = {mpt_transform_default(MPT_RESIZE, 8, 8)};
    float x[192];
    shelf s;
    int accepted = 0;
    if (!photo) SKIP("hymenoptera in MPTRAIN_DATA");
    memset(&s, 0, sizeof s);
    shelf_add(&s, "r/a/1.jpg", photo, n);
    hex_digest(photo, n, hex);
    shelf_add(&s, "sums", text, (size_t)snprintf(text, sizeof text, "%s  a/1.jpg\n", hex));
    mpt_context *context = shelf_context(&s);
    mpt_dataset plain = folder_of(context, "r", steps, 1, NULL);
    mpt_dataset checked = folder_of(context, "r", steps, 1, "sums");
    CHECK_EQ_INT(mpt_sample(plain, 0, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(checked, 0, x, NULL), MPT_OK);
    for (int i = 0; i < 30; i++) {
        s.files[0].size = i < 20 ? n * (size_t)i / 20 : n - (size_t)(i - 19);
        CHECK_EQ_INT(mpt_sample(plain, 0, x, NULL), MPT_ERROR_IO);
        if (i == 10) CHECK_CONTAINS(mpt_error(context), "a/1.jpg: the file ends too early");
        mpt_clear_error(context);
    }
    s.files[0].size = n;
    for (size_t i = 0; i < 30; i++) {
        const size_t at = (i * 7919 + 13) * 101 % n;
        photo[at] ^= (uint8_t)(1 << i % 8);
        accepted += mpt_sample(plain, 0, x, NULL) == MPT_OK;
        mpt_clear_error(context);
        CHECK_EQ_INT(mpt_sample(checked, 0, x, NULL), MPT_ERROR_IO);
        CHECK_CONTAINS(mpt_error(context), "a/1.jpg: ");
        mpt_clear_error(context);
        photo[at] ^= (uint8_t)(1 << i % 8);
    }
    CHECK(accepted > 0); /* JPEG alone cannot tell */
    CHECK_EQ_INT(mpt_sample(checked, 0, x, NULL), MPT_OK);
    mpt_destroy(context);
    free(photo);
}

TEST(photos_with_augmentation) {
    mpt_context *context = make_context();
    mpt_transform steps[4];
    augmentation(steps, 48);
    mpt_dataset data = folder_of(context, test_data_path("hymenoptera/train"), steps, 4, NULL);
    if (mpt_failed(context)) {
        mpt_destroy(context);
        SKIP("hymenoptera in MPTRAIN_DATA");
    }
    CHECK(mpt_dataset_size(data) > 60);
    CHECK_EQ_STR(mpt_class_name(data, 0), "ants");
    CHECK_EQ_STR(mpt_class_name(data, 1), "bees");
    same_for_workers(context, mpt_subset(data, 34, 12));
    /* The standard way to look at test pictures: what is in the middle, about as bright. */
    mpt_transform eval[2] = {mpt_transform_default(MPT_RESIZE, 64, 0),
                             mpt_transform_default(MPT_CENTER_CROP, 56, 56)};
    double mean, deviation;
    data = mpt_subset(folder_of(context, test_data_path("hymenoptera/val"), eval, 2, NULL), 0, 12);
    CHECK_EQ_INT(mpt_dataset_statistics(data, &mean, &deviation), MPT_OK);
    CHECK(mean > 0.3 && mean < 0.6 && deviation > 0.15 && deviation < 0.35);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static mpt_status read_first(mpt_tensor x, float *to) {
    return mpt_read_f32(mpt_slice(x, 0, 0, 1, 1), to, 3 * 64 * 64);
}

/* What the ResNet of the examples does with --images: photos that it learns, others each epoch, and
   those it is tested with, always the same. */
TEST(photos_of_the_example) {
    mpt_context *context = make_context();
    data_sets sets;
    mpt_loader_config lc = mpt_loader_config_default();
    float seen[2][2][3 * 64 * 64];
    const int64_t classes = pictures_photos(context, test_data_path("hymenoptera"), 64, &sets);
    if (mpt_failed(context)) {
        CHECK_CONTAINS(mpt_error(context), "hymenoptera/train: no such file or directory");
        mpt_destroy(context);
        SKIP("hymenoptera in MPTRAIN_DATA");
    }
    CHECK_EQ_INT(classes, 2);
    CHECK_CONTAINS(sets.name, "80 photos of 2 classes from ");
    lc.batch = 8, lc.workers = 2;
    const mpt_loader loader[2] = {mpt_loader_create(context, sets.train, &lc),
                                  mpt_loader_create(context, sets.test, &lc)};
    mpt_module net = resnet18(context, 3, classes, 4, true);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_batch b;
    double loss[2];
    for (int i = 0; i < 4; i++) {
        CHECK(mpt_loader_next(loader[i % 2], &b));
        CHECK(read_first(b.x, seen[i % 2][i / 2]) == MPT_OK);
        CHECK_EQ_INT(mpt_loader_reset(loader[i % 2]), MPT_OK);
    }
    CHECK(memcmp(seen[0][0], seen[0][1], sizeof seen[0][0]) != 0);
    CHECK_EQ_BITS(seen[1][1], seen[1][0], sizeof seen[1][0]);
    CHECK(mpt_loader_next(loader[1], &b));
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 4 * i; k++) {
            mpt_step_begin(context);
            mpt_zero_grad(optimizer);
            mpt_backward(mpt_cross_entropy(mpt_forward(net, b.x), b.y, NULL));
            mpt_step(optimizer);
            mpt_step_end(context);
        }
        loss[i] = mpt_item(mpt_cross_entropy(mpt_forward(net, b.x), b.y, NULL));
    }
    CHECK(loss[1] < loss[0]);
    mpt_loader_reset(loader[1]);
    CHECK_EQ_INT(mpt_evaluate(net, loader[1], MPT_F32).samples, 40);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* ==== Pictures that are not what they say ==== */

enum { MADE_SIDE = 8 };

/* The one file of a folder, at most 8 x 8 of it, in `x`; the loader's sentence in `said`, or "". */
static void look_at(const void *bytes, size_t n, float x[3 * MADE_SIDE * MADE_SIDE],
                    char said[512]) {
    shelf s;
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, MADE_SIDE, MADE_SIDE);
    memset(&s, 0, sizeof s);
    shelf_add(&s, "r/a/1.png", bytes, n);
    mpt_context *context = shelf_context(&s);
    mpt_sample(folder_of(context, "r", &step, 1, NULL), 0, x, NULL);
    snprintf(said, 512, "%s", mpt_error(context));
    CHECK_EQ_INT(mpt_error_code(context), said[0] ? MPT_ERROR_IO : MPT_OK);
    mpt_destroy(context);
}

static void check_refused(int line, const made *m, const char *words) {
    static float x[3 * MADE_SIDE * MADE_SIDE];
    char said[512];
    look_at(m->bytes, m->n, x, said);
    if (!strstr(said, words) || !strstr(said, "a/1.png: "))
        TEST_FAIL_("line %d: \"%s\" instead of \"%s\"", line, said, words);
}
#define REFUSED(m, words) check_refused(__LINE__, &(m), words)

/* The value in steps of a byte that all pixels of a channel have. */
static void check_flat(int line, const made *m, const int want[3]) {
    static float x[3 * MADE_SIDE * MADE_SIDE];
    char said[512];
    look_at(m->bytes, m->n, x, said);
    if (said[0]) TEST_FAIL_("line %d: %s", line, said);
    for (int i = 0; i < 3 * MADE_SIDE * MADE_SIDE; i++)
        if (fabs((double)x[i] * 255.0 - want[i / (MADE_SIDE * MADE_SIDE)]) > 1e-3)
            TEST_FAIL_("line %d: value %d is %g", line, i, (double)x[i] * 255.0);
}

static const int grey[3] = {128, 128, 128};

/* A frame of one component and a Huffman table of `counts` and as many symbols `symbol`. */
static void made_table(made *m, int class_and_number, const char *counts, int symbol, int n) {
    uint8_t body[400];
    memset(body, symbol, sizeof body);
    body[0] = (uint8_t)class_and_number;
    memcpy(body + 1, counts, 16);
    made_baseline(m, 8, 1, 0x11, false, 0, "\0", 1);
    m->n -= 2;
    made_segment(m, 0xc4, body, (size_t)(17 + n));
}

/* Without table `leave_out`: 0, 1 Huffman DC and AC, 2 quantisation, 3 the frame; 4: all there. */
static void made_lacking(made *m, int leave_out) {
    m->n = 0;
    made_number(m, 0xffd8, 2);
    if (leave_out != 2) made_quantisation(m, 0);
    if (leave_out != 3) made_frame(m, 0xc0, 8, 8, 1, 0x11);
    for (int i = 0; i < 2; i++) made_huffman(m, i, leave_out == i ? 1 : 0);
    made_scan(m, 1, 1, 0, 0x003f00, "\0", 1);
    made_number(m, 0xffd9, 2);
}

TEST(jpegs_with_bad_tables) {
    made m;
    made_table(&m, 0, "\0\0\0\0\0\0\0\0\0\0\0\0\0\377\2\0", 1, 257);
    REFUSED(m, "has too many codes");
    made_table(&m, 0x10, "\0\0\0\0\0\0\0\1\377\0\0\0\0\0\0\0", 1, 256);
    REFUSED(m, "has too many codes"); /* the last one of 9 bits has a number with a meaning */
    made_table(&m, 0x10, "\1\2\1\0\0\0\0\0\0\0\0\0\0\0\0\0", 1, 4);
    REFUSED(m, "has more codes than fit their lengths");
    made_table(&m, 0, "\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16, 3);
    REFUSED(m, "has a bad symbol");
    made_table(&m, 4, "\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1, 3);
    REFUSED(m, "has a class or number that there is not");
    made_table(&m, 0x20, "\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1, 3);
    REFUSED(m, "has a class or number that there is not");
    made_table(&m, 0, "\0\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 1, 2);
    REFUSED(m, "is longer than its segment");
    static const char *const lacking[4] = {"needs Huffman tables DC 0 and AC 0",
                                           "needs Huffman tables DC 0 and AC 0",
                                           "needs quantisation table 0", "no frame header (SOF)"};
    for (int i = 0; i < 4; i++) {
        made_lacking(&m, i);
        REFUSED(m, lacking[i]);
    }
    made_lacking(&m, 4);
    check_flat(__LINE__, &m, grey);
    made_jpeg_begin(&m);
    static const char table_4[65] = {4}; /* there are four, 0 to 3 */
    made_segment(&m, 0xdb, table_4, 65);
    REFUSED(m, "a bad quantisation table (DQT)");
    made_jpeg_begin(&m);
    made_segment(&m, 0xdd, "\0\1\2", 3);
    REFUSED(m, "a restart interval (DRI) of 3 bytes");
}

TEST(jpegs_with_bad_frames) {
    static const struct {
        int marker, height, components, first;
        const char *words;
    } rows[] = {{0xc0, 8, 2, 0x11, "(SOF) of 2 components"},
                {0xc0, 0, 1, 0x11, "its height comes behind its pixels"},
                {0xc0, 8, 3, 0x01, "component 0 has sampling 0 x 1"},
                {0xc1, 8, 3, 0x15, "component 0 has sampling 1 x 5"},
                {0xc3, 8, 1, 0x11, "a lossless JPEG (SOF3)"},
                {0xc9, 8, 1, 0x11, "arithmetic coded JPEG (SOF9)"},
                {0xc5, 8, 1, 0x11, "a hierarchical JPEG (SOF5)"},
                {0xd8, 8, 1, 0x11, "begins with marker d8"}};
    made m;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made_jpeg_begin(&m);
        made_frame(&m, rows[i].marker, 8, rows[i].height, rows[i].components, rows[i].first);
        REFUSED(m, rows[i].words);
    }
    made_jpeg_begin(&m);
    made_frame(&m, 0xc0, 8, 8, 3, 0x31);
    m.bytes[m.n - 5] = 0x21;
    REFUSED(m, "sampling 2 x 1 beside 3 x 1");
    made_jpeg_begin(&m);
    made_frame(&m, 0xc0, 8, 8, 1, 0x11);
    m.bytes[m.n - 9] = 12;
    REFUSED(m, "a JPEG of 12 bits");
    made_jpeg_begin(&m);
    for (int i = 0; i < 2; i++) made_frame(&m, 0xc0, 8, 8, 1, 0x11);
    REFUSED(m, "a second frame header");
    made_jpeg_begin(&m);
    made_frame(&m, 0xc0, 30000, 30000, 3, 0x11);
    made_number(&m, 0xffd9, 2);
    REFUSED(m, "component 0 of 3 is in no scan");
    made_baseline(&m, 30000, 1, 0x11, false, 0, "\0", 1);
    REFUSED(m, "30000 x 30000 pixels; max_pixels is 33554432");
}

TEST(jpegs_with_bad_scans) {
    static const struct {
        int marker, part, count, tables;
        uint32_t spectral;
        const char *words;
    } rows[] = {{0xc0, 1, 1, 0x40, 0x003f00, "needs Huffman tables DC 4"},
                {0xc0, 1, 4, 0, 0x003f00, "a scan (SOS) of 4 components"},
                {0xc0, 3, 2, 0, 0x003f00, "of component 4, which is not in the frame"},
                {0xc0, 1, 1, 0, 0x013f00, "coefficients 1 to 63, bits 0"},
                {0xc0, 1, 1, 0, 0x003f01, "coefficients 0 to 63, bits 1"},
                {0xc2, 1, 1, 0, 0x000500, "coefficients 0 to 5"},
                {0xc2, 1, 1, 0, 0x050100, "coefficients 5 to 1"},
                {0xc2, 1, 1, 0, 0x014000, "coefficients 1 to 64"},
                {0xc2, 1, 1, 0, 0x00000e, "bits e"},
                {0xc2, 1, 2, 0, 0x010500, "coefficients 1 to 5"},
                {0xc0, 1, 2, 0, 0x003f00, "component 2 of 3 is in no scan"}};
    made m;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        made_jpeg_begin(&m);
        made_frame(&m, rows[i].marker, 8, 8, 3, 0x11);
        made_jpeg_tables(&m);
        made_scan(&m, rows[i].part, rows[i].count, rows[i].tables, rows[i].spectral, "\0", 1);
        made_number(&m, 0xffd9, 2);
        REFUSED(m, rows[i].words);
    }
    made_lacking(&m, 4);
    m.bytes[m.n - 9] = 2; /* two components in a scan of one's size */
    REFUSED(m, "a scan (SOS) of 2 components in 6 bytes");
    made_baseline(&m, 24, 1, 0x11, false, 3, "\0\0\xff\xd0\0\0", 6);
    REFUSED(m, "has 1 restart markers of 2");
    made_baseline(&m, 24, 1, 0x11, false, 3, "\0\0\xff\xd0\0\0\xff\xd1\0\0", 10);
    check_flat(__LINE__, &m, grey);
    m.n -= 2;
    REFUSED(m, "the file ends too early");
    m.bytes[m.n++] = 0xff, m.bytes[m.n++] = 1;
    if (MPT__STB_OLD) REFUSED(m, "unknown marker");
    made_jpeg_begin(&m);
    made_frame(&m, 0xc0, 8, 8, 1, 0x11);
    made_jpeg_tables(&m);
    for (int i = 0; i < 129; i++) made_scan(&m, 1, 1, 0, 0x003f00, "\0", 1);
    made_number(&m, 0xffd9, 2);
    REFUSED(m, "more than 128 scans");
}

/* Pixels that a picture does not draw are those of no other picture: grey, or black. */
TEST(decoders_forget) {
    static float x[3][3 * MADE_SIDE * MADE_SIDE];
    char said[512];
    made bright, lacking;
    made_progressive(&bright, 8, 3, "\x5b\x6d\xb6\xdb\x5b\x6d\xb6\xdb", 8);
    made_jpeg_begin(&lacking);
    made_frame(&lacking, 0xc2, 8, 8, 1, 0x11);
    made_huffman(&lacking, 1, 0);
    made_scan(&lacking, 1, 1, 0, 0x013f00, "\x10", 1); /* no scan of DC */
    made_number(&lacking, 0xffd9, 2);
    look_at(lacking.bytes, lacking.n, x[0], said);
    CHECK_EQ_STR(said, "");
    for (int i = 0; i < 2; i++) look_at(bright.bytes, bright.n, x[2], said);
    look_at(lacking.bytes, lacking.n, x[1], said);
    CHECK_EQ_BITS(x[0], x[1], sizeof x[0]);
    /* Bits that are not there are zeros. */
    made_baseline(&bright, 24, 3, 0x22, true, 0, "", 0);
    check_flat(__LINE__, &bright, grey);
    made_progressive(&bright, 24, 3, "\xff\0", 0);
    check_flat(__LINE__, &bright, grey);
    made_baseline(&bright, 8, 1, 0x11, false, 0, "\0\xff\xff\xff", 4); /* fill bytes */
    check_flat(__LINE__, &bright, grey);
    made_baseline(&bright, 8, 1, 0x11, false, 0, "\0\0\0\x55\x55", 5); /* more than its blocks */
    check_flat(__LINE__, &bright, grey);
}

TEST(pngs_with_bad_chunks) {
    static const uint8_t rows[72] = {0};
    static const int black[3] = {0, 0, 0}, red[3] = {200, 7, 9};
    uint8_t indices[72];
    made m;
    made_png_begin(&m, 30000, 30000, 8, 2, 0);
    made_png_end(&m, rows, 1);
    REFUSED(m, "30000 x 30000 pixels; max_pixels is 33554432");
    /* Indices beyond a short palette are black; one within it is what it says. */
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 72; i++) indices[i] = (uint8_t)(i % 9 ? k * 77 : 0);
        made_png_begin(&m, 8, 8, 8, 3, 0);
        made_chunk(&m, "PLTE", "\xc8\7\x9", 3);
        for (int empty = 0; empty < 3 * k; empty++) made_chunk(&m, "IDAT", "", 0);
        made_png_end(&m, indices, 72);
        check_flat(__LINE__, &m, k ? black : red);
    }
    m.n -= 30;
    REFUSED(m, "the file ends too early: its chunk IDAT at byte");
    made_png_begin(&m, 8, 8, 8, 3, 0);
    made_png_end(&m, rows, 72);
    REFUSED(m, "pixels without a palette");
    made_png_begin(&m, 8, 8, 8, 3, 0);
    made_chunk(&m, "tRNS", "\0", 1);
    REFUSED(m, "transparency (tRNS) of 1 bytes for colour 3, 0 in the palette");
    made_png_begin(&m, 8, 8, 8, 6, 0);
    made_chunk(&m, "tRNS", "\0\0", 2);
    REFUSED(m, "transparency (tRNS) of 2 bytes for colour 6");
    made_png_begin(&m, 8, 8, 2, 2, 0);
    REFUSED(m, "a PNG header (IHDR) of depth 2, colour 2");
    made_png_begin(&m, 8, 8, 8, 0, 0);
    made_chunk(&m, "IHDR", rows, 13);
    REFUSED(m, "its header (IHDR) is not the first chunk, or there are two");
    made_png_begin(&m, 8, 8, 8, 0, 0);
    made_chunk(&m, "ABCD", rows, 13);
    REFUSED(m, "an unknown chunk ABCD");
    made_png_begin(&m, 8, 8, 8, 0, 0);
    made_chunk(&m, "IDAT", rows, 13);
    made_chunk(&m, "tEXt", rows, 13);
    made_png_end(&m, rows, 72);
    REFUSED(m, "IDAT chunks that do not follow each other");
    made_png_begin(&m, 8, 8, 8, 3, 0);
    for (int i = 0; i < 2; i++) made_chunk(&m, "PLTE", rows, 3);
    REFUSED(m, "a palette (PLTE) of 3 bytes that is the second");
    made_png_begin(&m, 8, 8, 8, 3, 0);
    made_chunk(&m, "PLTE", rows, 4);
    REFUSED(m, "not of 1 to 256 colours");
    m.n = 0;
    made_put(&m, "\x89PNG\r\n\x1a\n", 8);
    made_chunk(&m, "CgBI", "P\0 \6", 4);
    REFUSED(m, "an Apple CgBI file");
}

TEST(bmps_with_bad_headers) {
    static const int last[3] = {7 * 15, 3 * 15, 15}, black[3] = {0, 0, 0}, same[3] = {77, 77, 77};
    made m;
    made_bmp(&m, 12, 4, 8, 8, 16, 0xff); /* the last of an OS/2 palette */
    check_flat(__LINE__, &m, last);
    made_bmp(&m, 12, 1, 8, 8, 2, 0);
    check_flat(__LINE__, &m, black);
    made_bmp(&m, 40, 8, 8, 8, 20, 200); /* behind a short palette */
    check_flat(__LINE__, &m, black);
    made_bmp(&m, 40, 24, 8, 8, 3, 77); /* a palette that 24 bits do not need */
    check_flat(__LINE__, &m, same);
    m.n--;
    REFUSED(m, "the file ends too early: 257 bytes of the 258 of a 8 x 8 BMP");
    m.n++, m.bytes[10] = 50;
    REFUSED(m, "pixels at byte 50, within a header of 54 bytes");
    made_bmp(&m, 40, 8, 8, 8, 0, 0);
    m.bytes[10] = 40;
    REFUSED(m, "a palette of");
    made_bmp(&m, 40, 8, 8, 8, 4, 0);
    m.bytes[30] = 1;
    REFUSED(m, "a BMP of RLE inside");
    m.bytes[14] = 64;
    REFUSED(m, "a BMP header of 64 bytes; stb_image reads");
    made_bmp(&m, 40, 2, 8, 8, 4, 0);
    REFUSED(m, "a BMP of 2 bits");
    made_bmp(&m, 40, 24, 30000, 30000, 0, 0);
    REFUSED(m, "the file ends too early");
}

TEST(files_that_are_no_pictures) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *words;
    } rows[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0", 54,
         "this is a Git LFS pointer"},
        {"\n <!DOCTYPE html><html>", 23, "this is a web page"},
        {"{\"error\": \"not found\"}\n", 23, "a text, no picture; it begins: {\"error\""},
        {"GIF89a", 6, "a GIF, which is not read"},
        {"RIFF\1\0\0\0WEBPVP8 ", 16, "a WebP"},
        {"\0\0\0\x18"
         "ftypheic",
         12, "a HEIC"},
        {"\x89PNG\n\x1a\n\0", 8, "a PNG whose line ends were changed"},
        {"\xff\xd8", 2, "neither PNG nor JPEG nor BMP (first bytes ff d8)"},
        {"\x89PNG\r\n\x1a\n", 8, "the file ends too early"},
        {"B", 1, "neither PNG nor JPEG nor BMP (first bytes 42 0)"}};
    made m;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        m.n = 0;
        made_put(&m, rows[i].bytes, rows[i].n);
        REFUSED(m, rows[i].words);
    }
    m.n = 0;
    REFUSED(m, "an empty file");
}

static void count_warnings(void *user, mpt_log_level level, const char *message) {
    if (level == MPT_LOG_WARNING && strstr(message, "stb_image.h is older")) ++*(int *)user;
}

TEST(an_old_decoder_is_told_once) {
    static uint8_t bmp[256];
    mpt_config config = mpt_config_default();
    shelf s;
    int warnings = 0;
    memset(&s, 0, sizeof s);
    shelf_add(&s, "r/a/1.bmp", bmp, put_bmp(bmp, 5, 4, 1));
    config.log.write = count_warnings, config.log.user = &warnings;
    mpt_context *context = shelf_context_of(config, &s);
    for (int i = 0; i < 2; i++) mpt_image_folder(context, "r", NULL);
    CHECK_EQ_INT(warnings, (int)MPT__STB_OLD);
    mpt_destroy(context);
}

/* ==== Odd files ==== */

/* The files of one real folder as class "x" of the folder ROOT. */
static const char *odd_folder;

static bool odd_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    if (strcmp(path, "ROOT") != 0) return mpt__file_list(user, odd_folder, entry, to);
    entry(to, "x", true);
    return true;
}

static void *odd_open(void *user, const char *path, char mode) {
    char real[1024];
    snprintf(real, sizeof real, "%s/%s", odd_folder, strrchr(path, '/') + 1);
    return mpt__file_open(user, real, mode);
}

static mpt_dataset odd_files(mpt_context *context, const char *folder, const mpt_transform *step) {
    odd_folder = folder;
    return folder_of(context, "ROOT", step, 1, NULL);
}

static mpt_context *odd_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.io.open = odd_open, config.io.list = odd_list, config.io.read = mpt__file_read;
    config.io.seek = mpt__file_seek, config.io.size = mpt__file_size;
    config.io.close = mpt__file_close;
    return mpt_create(&config);
}

enum { ODD_SIDE = 300 };

/* Good files, and those refused, each with a reason that names it. */
static int odd_count(mpt_context *context, const char *folder, int *refused) {
    static float x[3 * ODD_SIDE * ODD_SIDE];
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, ODD_SIDE, ODD_SIDE);
    mpt_dataset data = odd_files(context, folder, &step);
    int good = 0;
    *refused = 0;
    if (mpt_failed(context)) return -1;
    for (int64_t i = 0; i < mpt_dataset_size(data); i++) {
        if (mpt_sample(data, i, x, NULL) == MPT_OK) {
            good++;
            continue;
        }
        ++*refused;
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
        CHECK_CONTAINS(mpt_error(context), ": x/");
        if (getenv("MPTRAIN_TEST_VERBOSE")) printf("\n    %s", mpt_error(context));
        mpt_clear_error(context);
    }
    mpt_dataset_destroy(data);
    return good;
}

TEST(odd_files_are_refused_or_decoded) {
    static const struct {
        const char *folder;
        int good, refused;
    } rows[] = {{"tricky/afl-bmp/images", -1, -1}, {"tricky/afl-jpeg/images", -1, -1},
                {"tricky/bmp/images", -1, -1},     {"tricky/bmp/images/lenient", -1, -1},
                {"tricky/jpeg-image-rs", -1, -1},  {"tricky/jpeg-image-rs/progressive", -1, -1},
                {"tricky/jpeg-mozilla", -1, -1},   {"tricky/jpeg-reftest", -1, -1},
                {"tricky/pngsuite", 161, 14}};
    mpt_context *context = odd_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int refused, good = odd_count(context, test_data_path(rows[i].folder), &refused);
        if (good < 0) {
            mpt_destroy(context);
            SKIP("tricky in MPTRAIN_DATA");
        }
        if (getenv("MPTRAIN_TEST_VERBOSE"))
            printf("\n  %s: %d good, %d refused\n", rows[i].folder, good, refused);
        if (rows[i].good >= 0) CHECK_EQ_INT(good, rows[i].good);
        if (rows[i].refused >= 0) CHECK_EQ_INT(refused, rows[i].refused);
    }
    mpt_destroy(context);
}

/* The name of file i without its ending. */
static void odd_stem(mpt_dataset data, int64_t i, char stem[256]) {
    const mpt__dataset *found = mpt__dataset_at(data.context, data);
    const mpt__folder *folder = (const mpt__folder *)found->state;
    snprintf(stem, 256, "%s", folder->text + folder->at[i]);
    char *dot = strrchr(stem, '.');
    if (dot) *dot = 0;
}

/* The sum of differences, in steps of a byte, of a file and the PNG of the same name beside it; -1
   without one, or if one of them does not decode. */
static double odd_difference(mpt_dataset data, int64_t i) {
    static float a[3 * ODD_SIDE * ODD_SIDE], b[3 * ODD_SIDE * ODD_SIDE];
    char stem[256], other[256];
    double sum = 0.0;
    odd_stem(data, i, stem);
    if (i + 1 >= mpt_dataset_size(data)) return -1.0;
    odd_stem(data, i + 1, other);
    if (strcmp(stem, other) != 0 || mpt_sample(data, i, a, NULL) != MPT_OK ||
        mpt_sample(data, i + 1, b, NULL) != MPT_OK) {
        mpt_clear_error(data.context);
        return -1.0;
    }
    for (int64_t e = 0; e < 3 * ODD_SIDE * ODD_SIDE; e++)
        sum += fabs((double)a[e] - (double)b[e]) * 255.0;
    return sum;
}

/* A reference of pngsuite, 32 bits per pixel in a header that stb_image does not know. */
static bool read_reference(const char *stem, int *height, int *width, uint8_t **rgba) {
    char name[300];
    size_t n;
    snprintf(name, sizeof name, "tricky/pngsuite-ref-bmp/%s.bmp", stem);
    uint8_t *file = read_whole(test_data_path(name), &n);
    if (!file || n < 150 || file[28] != 32) {
        free(file);
        return false;
    }
    const size_t offset = file[10] | (size_t)file[11] << 8;
    *width = file[18] | file[19] << 8, *height = file[22] | file[23] << 8;
    const size_t pixels = (size_t)*width * (size_t)*height;
    *rgba = (uint8_t *)malloc(pixels * 4);
    const bool good = *rgba && n >= offset + pixels * 4;
    for (size_t i = 0; i < pixels && good; i++) {
        const size_t y = i / (size_t)*width, x = i % (size_t)*width;
        const uint8_t *p = file + offset + 4 * (((size_t)*height - 1 - y) * (size_t)*width + x);
        uint8_t *out = *rgba + 4 * i;
        out[0] = p[2], out[1] = p[1], out[2] = p[0], out[3] = p[3];
    }
    free(file);
    return good;
}

/* Every picture of pngsuite, all four channels. Samples of 16 bits lose their low byte here and are
   rounded there: they differ by one. stb_image misses the transparency of one grey picture. */
TEST(pngsuite_against_its_reference) {
    static float x[4 * ODD_SIDE * ODD_SIDE];
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, ODD_SIDE, ODD_SIDE);
    mpt_image_config config = mpt_image_config_default();
    mpt_context *context = odd_context();
    config.steps = &step, config.step_count = 1, config.channels = 4;
    char folder[512];
    snprintf(folder, sizeof folder, "%s", test_data_path("tricky/pngsuite"));
    odd_folder = folder;
    mpt_dataset data = mpt_image_folder(context, "ROOT", &config);
    int compared = 0;
    for (int64_t i = 0; i < mpt_dataset_size(data); i++) {
        char stem[256];
        int height, width;
        uint8_t *want = NULL;
        double most[4] = {0.0, 0.0, 0.0, 0.0};
        odd_stem(data, i, stem);
        const char *base = strrchr(stem, '/') + 1;
        if (mpt_sample(data, i, x, NULL) != MPT_OK) {
            CHECK(base[0] == 'x');
            mpt_clear_error(context);
            continue;
        }
        if (read_reference(base, &height, &width, &want)) {
            const int top = (ODD_SIDE - height) / 2, left = (ODD_SIDE - width) / 2;
            for (int k = 0; k < 4 * height * width; k++) {
                const int y = k / 4 / width, column = k / 4 % width;
                const float got =
                    x[(k % 4 * ODD_SIDE + top + y) * ODD_SIDE + left + column] * 255.0f;
                const double off = fabs((double)got - want[k]);
                if (k % 4 < 3 && want[k | 3] == 0) continue; /* nothing to be seen */
                if (off > most[k % 4]) most[k % 4] = off;
            }
            const double one = strstr(base, "16") ? 1.001 : 1e-4;
            CHECK(most[0] < one && most[1] < one && most[2] < one);
            CHECK(most[3] < one || strcmp(base, "tbbn0g04") == 0);
            compared++;
        }
        free(want);
    }
    if (mpt_failed(context)) {
        mpt_destroy(context);
        SKIP("tricky in MPTRAIN_DATA");
    }
    CHECK_EQ_INT(compared, 161);
    mpt_destroy(context);
}

TEST(jpegs_against_their_references) {
    static const struct {
        const char *folder;
        int pairs;
    } rows[] = {{"tricky/jpeg-mozilla", 20}, {"tricky/jpeg-reftest", 12}};
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, ODD_SIDE, ODD_SIDE);
    mpt_context *context = odd_context();
    for (int i = 0; i < 2; i++) {
        char folder[512];
        int pairs = 0;
        snprintf(folder, sizeof folder, "%s", test_data_path(rows[i].folder));
        mpt_dataset data = odd_files(context, folder, &step);
        for (int64_t k = 0; k < mpt_dataset_size(data); k++) {
            char stem[256];
            const double sum = odd_difference(data, k);
            odd_stem(data, k, stem);
            if (sum >= 0.0) pairs++;
            /* Without its DC scan, that picture is what each decoder makes of it. */
            if (sum > 5000.0 && !strstr(stem, "progressive-missing-dc"))
                TEST_FAIL_("%s differs by %g", stem, sum);
        }
        if (mpt_failed(context)) {
            mpt_destroy(context);
            SKIP("tricky in MPTRAIN_DATA");
        }
        CHECK_EQ_INT(pairs, rows[i].pairs);
    }
    mpt_destroy(context);
}

/* Steps that fit no picture, or not the one that is there. */
TEST(folders_that_steps_do_not_fit) {
    static uint8_t small[256], other[256], wide[61000], tall[81000];
    static const struct {
        int64_t height, width;
        const char *text;
    } crops[] = {{9, 3, "step 0 (MPT_RANDOM_CROP, 9 x 3) does not fit 4 x 5 pixels"},
                 {3, 9, "step 0 (MPT_RANDOM_CROP, 3 x 9) does not fit 4 x 5 pixels"}};
    shelf s;
    float x[3 * 64];
    memset(&s, 0, sizeof s);
    shelf_add(&s, "r/a/a.bmp", small, put_bmp(small, 5, 4, 0));
    shelf_add(&s, "r/a/b.bmp", other, put_bmp(other, 5, 3, 0));
    shelf_add(&s, "r/a/c.bmp", wide, put_bmp(wide, 20000, 1, 0));
    shelf_add(&s, "r/a/d.bmp", tall, put_bmp(tall, 1, 20000, 0));
    mpt_context *context = shelf_context(&s);
    mpt_dataset data = mpt_image_folder(context, "r", NULL);
    CHECK_EQ_INT(mpt_sample(data, 1, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "a/b.bmp: 3 x 5 pixels, expected 4 x 5 as the first picture has");
    for (int i = 0; i < 2; i++) {
        mpt_transform step =
            mpt_transform_default(MPT_RANDOM_CROP, crops[i].height, crops[i].width);
        CHECK_EQ_INT(mpt_sample(folder_of(context, "r", &step, 1, NULL), 0, x, NULL), MPT_ERROR_IO);
        EXPECT(MPT_ERROR_IO, crops[i].text);
    }
    mpt_transform steps[3] = {mpt_transform_default(MPT_RESIZE, 1024, 0),
                              mpt_transform_default(MPT_CENTER_CROP, 8, 8),
                              mpt_transform_default(MPT_RESIZE, 8, 8)};
    data = folder_of(context, "r", steps, 2, NULL);
    CHECK_EQ_INT(mpt_sample(data, 2, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "step 0 (MPT_RESIZE, 1024 x 0) does not fit 1 x 20000 pixels");
    CHECK_EQ_INT(mpt_sample(data, 3, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "step 0 (MPT_RESIZE, 1024 x 0) does not fit 20000 x 1 pixels");
    steps[1] = steps[2];
    for (int i = 0; i < 2; i++) { /* of a stretched picture whose size is not known */
        folder_of(context, "r", steps, 2, NULL);
        EXPECT(MPT_ERROR_ARGUMENT, i ? "step 1 (MPT_RESIZED_CROP) needs a picture of known size"
                                     : "step 1 (MPT_RESIZE) needs a picture of known size");
        steps[1] = mpt_transform_default(MPT_RESIZED_CROP, 8, 8);
    }
    steps[1] = mpt_transform_default(MPT_RANDOM_FLIP, 0, 0); /* which needs none */
    steps[2] = mpt_transform_default(MPT_CENTER_CROP, 8, 8);
    steps[0].height = 8;
    CHECK_EQ_INT(mpt_sample(folder_of(context, "r", steps, 3, NULL), 0, x, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

#else

TEST(folders_without_a_decoder) {
    mpt_context *context = make_context();
    mpt_image_folder(context, "r", NULL);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(mpt_error(context), "built without image files (MPTRAIN_STB_IMAGE)");
    mpt_destroy(context);
    NEEDS_STB;
}

#endif

TEST_TABLE = {T(resize_as_pytorch),
              T(crops_and_flips),
              T(crops_of_crops),
              T(random_crops_reach_every_place),
              T(crops_of_padding_alone),
              T(steps_at_once_and_one_by_one),
              T(pictures_at_the_edges),
              T(normalise_erase_apply),
              T(steps_that_make_no_sense),
              T(same_bits_for_any_workers),
              T(cifar10),
#ifdef MPTRAIN_STB_IMAGE
              T(folders_in_order),
              T(sha256),
              T(manifests),
              T(out_of_memory),
              T(torn_and_flipped_photos),
              T(photos_with_augmentation),
              T(photos_of_the_example),
              T(jpegs_with_bad_tables),
              T(jpegs_with_bad_frames),
              T(jpegs_with_bad_scans),
              T(decoders_forget),
              T(pngs_with_bad_chunks),
              T(bmps_with_bad_headers),
              T(files_that_are_no_pictures),
              T(an_old_decoder_is_told_once),
              T(odd_files_are_refused_or_decoded),
              T(pngsuite_against_its_reference),
              T(jpegs_against_their_references),
              T(folders_that_steps_do_not_fit)
#else
              T(folders_without_a_decoder)
#endif
};
TEST_MAIN
