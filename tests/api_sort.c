/* api_sort.c: sort, argsort and topk against counting: lines of every length, with ties, NaN and
   infinities, dense and strided, on any number of threads; what they hand out and give back. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"

static mpt_context *context;

static bool begin(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    context = mpt_create(&config);
    return context != NULL;
}

static void end(void) {
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static uint32_t state = 5;
static int below(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

/* Few different values, so that most have an equal, and some odd ones. */
static float some_value(int kinds) {
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, -NAN, 1e-40f};
    return below(8) == 0 ? odd[below(7)] : (float)(below(kinds) - kinds / 2) * 0.5f;
}

/* Whether a stands before b where they are not equal; -1, 0, 1 as in a comparison. */
static int compare(float a, float b) {
    if (isnan(a) || isnan(b)) return (isnan(a) ? 1 : 0) - (isnan(b) ? 1 : 0);
    return (a > b) - (a < b);
}

/* Element i's place: how many come before it. */
static void check_line(const float *x, int n, int step, bool descending, int k,
                       const int64_t *index, const float *values, int out_step) {
    for (int i = 0; i < n; i++) {
        int place = 0;
        for (int j = 0; j < n; j++) {
            int order = compare(x[j * step], x[i * step]);
            if (descending) order = -order;
            place += order < 0 || (order == 0 && j < i);
        }
        if (place >= k) continue;
        float value = values[place * out_step];
        bool same = isnan(value) ? isnan(x[i * step]) : value == x[i * step];
        if (index[place * out_step] == i && same) continue;
        TEST_FAIL_("%d of %d%s: place %d has element %d (%g), expected %d (%g)", k, n,
                   descending ? " descending" : "", place, (int)index[place * out_step],
                   (double)value, i, (double)x[i * step]);
        return;
    }
}

enum { MOST = 5000 };
static float x[MOST], values[MOST];
static int64_t indices[MOST];

static void check_lengths(int n, int lines, bool inner, int k, bool descending) {
    for (int i = 0; i < n * lines; i++) x[i] = some_value(n > 40 ? 90 : 4);
    mpt_scope_begin(context);
    mpt_shape shape = inner ? MPT_SHAPE(n, lines) : MPT_SHAPE(lines, n);
    mpt_tensor in = mpt_from(context, MPT_F32, shape, x), at;
    mpt_tensor out = k == n ? mpt_sort(in, inner ? 0 : -1, descending, &at)
                            : mpt_topk(in, k, inner ? 0 : -1, descending, &at);
    mpt_read_f32(out, values, (int64_t)k * lines);
    mpt_read(at, indices, (size_t)(k * lines) * sizeof *indices);
    for (int l = 0; l < lines; l++) {
        if (inner)
            check_line(x + l, n, lines, descending, k, indices + l, values + l, lines);
        else
            check_line(x + l * n, n, 1, descending, k, indices + l * k, values + l * k, 1);
    }
    mpt_scope_end(context);
}

TEST(every_length) {
    static const int lengths[] = {1, 2, 3, 7, 32, 33, 64, 100, 255};
    REQUIRE(begin(1));
    for (int i = 0; i < 9; i++) {
        for (int round = 0; round < 8; round++) {
            int n = lengths[i], k = round < 4 ? n : below(n + 1);
            check_lengths(n, 1 + below(8), round & 1, k, (round & 2) != 0);
        }
    }
    end();
}

/* Beyond one tile of a GPU, and beyond the room that the first few take. */
TEST(long_lines) {
    REQUIRE(begin(1));
    check_lengths(1024, 2, false, 1024, false);
    check_lengths(1025, 1, false, 1025, true);
    check_lengths(2500, 2, false, 2500, false);
    check_lengths(2500, 2, true, 7, true);
    check_lengths(4099, 1, false, 4099, true);
    check_lengths(4099, 1, false, 1, false);
    check_lengths(4099, 1, false, 700, true);
    check_lengths(4099, 1, false, 2050, false);
    end();
}

/* Values that come in order fill the room of the first few again and again. */
TEST(sorted_input) {
    REQUIRE(begin(1));
    for (int down = 0; down < 2; down++) {
        for (int i = 0; i < MOST; i++) x[i] = (float)(down ? -i : i);
        mpt_tensor at, in = mpt_from(context, MPT_F32, MPT_SHAPE(MOST), x);
        for (int largest = 0; largest < 2; largest++) {
            mpt_topk(in, 600, 0, largest != 0, &at);
            mpt_read(at, indices, 600 * sizeof *indices);
            for (int i = 0; i < 600; i++)
                CHECK_EQ_INT(indices[i], largest == !down ? MOST - 1 - i : i);
        }
    }
    end();
}

/* Many lines on many threads, whose scratch memory is their own. */
TEST(threads) {
    enum { LINES = 400, N = 100 };
    static float many[LINES * N];
    static int64_t first[LINES * N], got[LINES * N];
    for (int i = 0; i < LINES * N; i++) many[i] = some_value(30);
    for (int threads = 1; threads <= 5; threads += 2) {
        REQUIRE(begin(threads));
        mpt_tensor in = mpt_from(context, MPT_F32, MPT_SHAPE(LINES, N), many);
        mpt_tensor at = mpt_argsort(in, 1, true);
        mpt_read(at, got, sizeof got);
        if (threads == 1) memcpy(first, got, sizeof got);
        CHECK_EQ_BITS(got, first, sizeof got);
        for (int l = 0; l < LINES; l += 37) {
            for (int i = 0; i < N; i++) values[i] = many[l * N + (int)got[l * N + i] % N];
            check_line(many + l * N, N, 1, true, N, got + l * N, values, 1);
        }
        end();
    }
}

/* Each value's gradient goes to where it stood. */
TEST(gradients) {
    static const float numbers[6] = {3, 1, 2, 2, 9, 0};
    static const float want[6] = {0, 0, 30, 0, 10, 20};
    float got[6];
    REQUIRE(begin(1));
    mpt_tensor in = mpt_from(context, MPT_F32, MPT_SHAPE(6), numbers), at;
    mpt_requires_grad(in, true);
    mpt_tensor out = mpt_sort(in, 0, true, &at); /* 9 3 2 2 1 0 */
    static const float up[6] = {10, 0, 30, 0, 0, 20};
    mpt_backward_from(out, mpt_from(context, MPT_F32, MPT_SHAPE(6), up), false);
    mpt_read_f32(mpt_grad(in), got, 6);
    CHECK_EQ_BITS(got, want, sizeof got);
    CHECK_EQ_INT(mpt_get_dtype(at), MPT_I64);
    end();
}

TEST(shapes_and_nothing) {
    mpt_tensor at;
    REQUIRE(begin(1));
    mpt_tensor in = mpt_randn(context, MPT_F16, MPT_SHAPE(2, 3, 4));
    mpt_shape shape = mpt_get_shape(mpt_topk(in, 2, 1, true, &at));
    CHECK(shape.rank == 3 && shape.dim[0] == 2 && shape.dim[1] == 2 && shape.dim[2] == 4);
    CHECK_EQ_INT(mpt_get_dtype(mpt_topk(in, 2, 1, true, NULL)), MPT_F16);
    CHECK_EQ_INT(mpt_numel(mpt_topk(in, 0, 1, true, &at)), 0);
    CHECK_EQ_INT(mpt_numel(at), 0);
    in = mpt_zeros(context, MPT_F32, MPT_SHAPE(3, 0));
    CHECK_EQ_INT(mpt_numel(mpt_sort(in, 1, false, NULL)), 0);
    CHECK_EQ_INT(mpt_numel(mpt_sort(in, 0, false, NULL)), 0);
    end();
}

/* Without a place for them, the indices are gone with the call. */
TEST(nothing_is_left) {
    REQUIRE(begin(1));
    mpt_tensor in = mpt_randn(context, MPT_F32, MPT_SHAPE(40, 300));
    int64_t before = mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
    for (int i = 0; i < 3; i++) mpt_release(mpt_sort(in, 1, true, NULL));
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_ACTIVATION], before);
    mpt_release(mpt_topk(in, 5, 1, true, NULL));
    int64_t allocations = mpt_memory(context).allocations;
    for (int i = 0; i < 3; i++) mpt_release(mpt_topk(in, 5, 1, true, NULL));
    CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
    end();
}

TEST_TABLE = {T(every_length), T(long_lines),         T(sorted_input),   T(threads),
              T(gradients),    T(shapes_and_nothing), T(nothing_is_left)};
TEST_MAIN
