/* api_numbers.c: numbers at the ends of their ranges: uniform draws below their upper bound in
   every dtype, draws by weights of any size, values in the bins that hold them, deviations and
   norms of very large and very small numbers, NaN that is masked out, gradients of reductions of
   nothing. On every level. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "bits.h"
#include "checks.h"

static mpt_context *make_context(mpt_isa isa) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.isa = isa;
    return mpt_create(&config);
}

/* A context of each level that this CPU has, of which NULL is the end. */
static mpt_context *next_context(int *level) {
    while (++*level <= (int)MPT_ISA_NEON_BF16) {
        mpt_context *c = make_context((mpt_isa)*level);
        if (c) return c;
    }
    return NULL;
}
#define EACH_LEVEL(c) \
    for (int level_ = MPT_ISA_NULL; (c = next_context(&level_)) != NULL; mpt_destroy(c))

/* ==== Uniform numbers ==== */

enum { DRAWS = 60000 };
static float drawn[DRAWS];

TEST(uniform_numbers_stay_below_one) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16, MPT_F8E4M3, MPT_F8E5M2, MPT_F64};
    static const float most[] = {1, 1 - 1.0f / 2048, 1 - 1.0f / 256, 1 - 1.0f / 16, 1 - 1.0f / 8,
                                 1};
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int k = 0; k < 6; k++) {
            float largest = 0;
            mpt_tensor x = mpt_rand(c, dtypes[k], MPT_SHAPE(DRAWS));
            CHECK_EQ_INT(mpt_read_f32(x, drawn, DRAWS), MPT_OK);
            for (int i = 0; i < DRAWS; i++) largest = drawn[i] > largest ? drawn[i] : largest;
            CHECK(most[k] == 1 ? largest < 1 && largest > 0.999f : largest == most[k]);
            mpt_release(x);
        }
        check_ok(c);
    }
}

/* The bits of mpt_rand and mpt_randn of that dtype and shape, also of what is not contiguous. */
TEST(draws_like_another_tensor) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F64};
    float hashes[2][4][12];
    for (int k = 0; k < 3; k++) {
        for (int like = 0; like < 2; like++) {
            mpt_context *c = make_context(MPT_ISA_AUTO);
            mpt_tensor x = mpt_transpose(mpt_zeros(c, dtypes[k], MPT_SHAPE(4, 3)), 0, 1);
            for (int i = 0; i < 4; i++) {
                mpt_tensor y = like    ? i % 2 ? mpt_randn_like(x) : mpt_rand_like(x)
                                  : i % 2 ? mpt_randn(c, dtypes[k], MPT_SHAPE(3, 4))
                                       : mpt_rand(c, dtypes[k], MPT_SHAPE(3, 4));
                CHECK_EQ_INT(mpt_get_dtype(y), dtypes[k]);
                CHECK(mpt_get_shape(y).rank == 2 && mpt_get_shape(y).dim[0] == 3);
                mpt_read_f32(y, hashes[like][i], 12);
            }
            check_ok(c);
            mpt_destroy(c);
        }
        CHECK(memcmp(hashes[0], hashes[1], sizeof hashes[0]) == 0);
    }
}

/* ==== Draws by weight ==== */

enum { DRAWN = 40000 };
static int64_t places[DRAWN];

static bool read_places(mpt_tensor drawn_places, int64_t count) {
    return mpt_read(drawn_places, places, (size_t)count * sizeof *places) == MPT_OK;
}

/* Shares within four deviations, of sums that are not 1, in halves, too; the same draws with any
   number of threads; others in the next call, and with another seed. */
/* Numbers of a seed are the same whenever they are drawn, and change nothing about other draws. */
TEST(draws_of_a_seed) {
    uint64_t hash[2][4];
    for (int run = 0; run < 2; run++) {
        mpt_context *c = mpt_create(NULL);
        if (run) hash[run][3] = mix_tensor(1, mpt_randn(c, MPT_F32, MPT_SHAPE(300)));
        for (int i = 0; i < 3; i++) /* twice of one seed, then of another */
            hash[run][i] =
                mix_tensor(1, mpt_randn_seeded(c, MPT_F32, MPT_SHAPE(300), i < 2 ? 1 : 2));
        if (!run) hash[run][3] = mix_tensor(1, mpt_randn(c, MPT_F32, MPT_SHAPE(300)));
        const mpt_tensor x = mpt_randn_seeded(c, MPT_F32, MPT_SHAPE(100000), UINT64_MAX);
        CHECK_NEAR(mpt_item(mpt_mean(x, MPT_ALL_DIMS, false)), 0, 0.02);
        CHECK_NEAR(mpt_item(mpt_mean(mpt_mul(x, x), MPT_ALL_DIMS, false)), 1, 0.03);
        mpt_destroy(c);
    }
    for (int i = 0; i < 4; i++) CHECK(hash[0][i] == hash[1][i]);
    CHECK(hash[0][0] == hash[0][1] && hash[0][1] != hash[0][2] && hash[0][0] != hash[0][3]);
}

TEST(draws_by_weight) {
    static const float weights[7] = {0, 3, 0.5f, 0, 12, 0.25f, 0};
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F16, MPT_F64};
    static int64_t first[DRAWN];
    for (int k = 0; k < 6; k++) {
        mpt_config config = mpt_config_default();
        config.threads = k % 3, config.seed = k == 5;
        mpt_context *c = mpt_create(&config);
        mpt_tensor w = mpt_cast(mpt_from(c, MPT_F32, MPT_SHAPE(7), weights), dtypes[k % 4]);
        CHECK(read_places(mpt_multinomial(w, DRAWN, true), DRAWN));
        double counts[7] = {0};
        for (int i = 0; i < DRAWN; i++) counts[places[i]] += 1;
        for (int i = 0; i < 7; i++) {
            const double p = (double)weights[i] / 15.75;
            CHECK_NEAR(counts[i], DRAWN * p, 4 * sqrt(DRAWN * p * (1 - p)));
        }
        if (k == 0) memcpy(first, places, sizeof first);
        CHECK((memcmp(first, places, sizeof first) == 0) == (k < 5));
        CHECK(read_places(mpt_multinomial(w, DRAWN, true), DRAWN));
        CHECK(memcmp(first, places, sizeof first) != 0);
        CHECK(mpt_get_dtype(mpt_multinomial(w, 1, false)) == MPT_I64);
        mpt_tensor none = mpt_multinomial(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 3)), 2, true);
        CHECK(mpt_get_shape(none).dim[0] == 0 && mpt_get_shape(none).dim[1] == 2);
        check_ok(c);
        mpt_destroy(c);
    }
}

/* Classes of a softmax, at a temperature, of the likeliest ones: which can come, and how often. */
TEST(draws_by_logits) {
    static const float logits[6] = {1, -INFINITY, 2.5f, 0, 2.5f, -1};
    static const struct {
        double temperature;
        int64_t top_k;
        double top_p;
        bool comes[6];
    } ways[] = {{1, 0, 1, {true, false, true, true, true, true}},
                {0.5, 0, 1, {true, false, true, true, true, true}},
                {2, 3, 1, {true, false, true, false, true, false}},
                {1, 0, 0.9, {true, false, true, false, true, false}}, /* 0.43 0.43 0.10 of 1 */
                {1, 4, 0.5, {false, false, true, false, true, false}},
                {1, 100, 1e-9, {false, false, true, false, false, false}},
                {0, 0, 1, {false, false, true, false, false, false}}};
    mpt_context *c = make_context(MPT_ISA_AUTO);
    for (int k = 0; k < 7; k++) {
        mpt_categorical_config by = mpt_categorical_config_default();
        by.temperature = ways[k].temperature, by.top_k = ways[k].top_k, by.top_p = ways[k].top_p;
        double share[6], sum = 0, counts[6] = {0};
        mpt_tensor row = mpt_from(c, MPT_F32, MPT_SHAPE(1, 6), logits);
        mpt_tensor drawn_places =
            mpt_categorical(mpt_expand(row, MPT_SHAPE(DRAWN, 6)), k ? &by : NULL);
        CHECK(mpt_get_dtype(drawn_places) == MPT_I64 && mpt_get_shape(drawn_places).rank == 1);
        CHECK(read_places(drawn_places, DRAWN));
        for (int i = 0; i < DRAWN; i++) counts[places[i]] += 1;
        const double warm = by.temperature > 0 ? by.temperature : 1;
        for (int i = 0; i < 6; i++)
            sum += share[i] = ways[k].comes[i] ? exp((double)logits[i] / warm) : 0;
        for (int i = 0; i < 6; i++) {
            const double p = share[i] / sum;
            CHECK_NEAR(counts[i], DRAWN * p, 4.5 * sqrt(DRAWN * p * (1 - p)));
        }
    }
    CHECK(mpt_get_shape(mpt_categorical(mpt_ones(c, MPT_F32, MPT_SHAPE(7)), NULL)).rank == 0);
    check_ok(c);
    mpt_destroy(c);
}

static mpt_status drawing_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)y;
    mpt_step_begin(c);
    mpt_multinomial(x, 2, true);
    return mpt_step_end(c);
}

TEST(captured_steps_cannot_draw_by_weight) {
    mpt_context *c = make_context(MPT_ISA_AUTO);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3)), none;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(c, drawing_step, NULL);
    CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_OK);
    check_ok(c);
    CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "mpt_multinomial");
    CHECK_CONTAINS(mpt_error(c), "a captured step cannot wait for values");
    mpt_destroy(c);
}

/* Without replacement: all that weighs something, once each, in every row; the first of three by
   its share, and the second by its share of what is left. Rows draw apart from each other. */
TEST(draws_without_replacement) {
    enum { ROWS = 10000, N = 5 };
    static float weights[ROWS][N];
    static const float row[N] = {0, 1, 0, 2, 5};
    mpt_context *c = make_context(MPT_ISA_AUTO);
    for (int i = 0; i < ROWS; i++) memcpy(weights[i], row, sizeof row);
    mpt_tensor w = mpt_from(c, MPT_F32, MPT_SHAPE(100, 100, N), weights);
    mpt_tensor drawn_places = mpt_multinomial(w, 3, false);
    CHECK(mpt_get_shape(drawn_places).rank == 3 && mpt_get_shape(drawn_places).dim[2] == 3);
    CHECK(read_places(drawn_places, 3 * ROWS));
    double first[N] = {0}, second = 0;
    for (int i = 0; i < ROWS; i++) {
        const int64_t *p = places + 3 * i;
        CHECK((1 << p[0] | 1 << p[1] | 1 << p[2]) == (1 << 1 | 1 << 3 | 1 << 4));
        first[p[0]] += 1;
        second += p[0] == 4 && p[1] == 3;
    }
    for (int i = 0; i < N; i++) {
        const double p = (double)row[i] / 8;
        CHECK_NEAR(first[i], ROWS * p, 4 * sqrt(ROWS * p * (1 - p)));
    }
    CHECK_NEAR(second, first[4] * 2 / 3, 4 * sqrt(first[4] * 2 / 9));
    check_ok(c);
    mpt_destroy(c);
}

/* Beside 1 the smallest numbers of fp32 are as good as never drawn, but before those of weight 0,
   and among each other by their shares; a row of nothing else is drawn from as any other. */
TEST(small_weights_are_drawn_last) {
    enum { N = 1000, ROWS = 3000 };
    static float weights[N], small[ROWS][4];
    mpt_context *c = make_context(MPT_ISA_AUTO);
    weights[7] = 1, weights[500] = 2.8e-45f, weights[999] = 1e-30f;
    mpt_tensor w = mpt_from(c, MPT_F32, MPT_SHAPE(N), weights);
    for (int i = 0; i < 20; i++) {
        CHECK(read_places(mpt_multinomial(w, 3, false), 3));
        CHECK(places[0] == 7 && places[1] == 999 && places[2] == 500);
    }
    CHECK(read_places(mpt_multinomial(w, DRAWN, true), DRAWN));
    for (int i = 0; i < DRAWN; i++) CHECK(places[i] == 7);
    for (int i = 0; i < ROWS; i++)
        small[i][0] = 1, small[i][2] = 1.4e-45f, small[i][3] = 4.2e-45f; /* 1 and 3 of the least */
    CHECK(read_places(mpt_multinomial(mpt_from(c, MPT_F32, MPT_SHAPE(ROWS, 4), small), 2, false),
                      2 * ROWS));
    static const double least[2] = {5e-324, 0}; /* half of it is rounded up to itself */
    double third = 0;
    for (int i = 0; i < ROWS; i++) {
        CHECK(places[2 * i] == 0 && places[2 * i + 1] >= 2);
        third += places[2 * i + 1] == 3;
    }
    CHECK_NEAR(third, ROWS * 0.75, 4 * sqrt(ROWS * 0.1875));
    w = mpt_from(c, MPT_F64, MPT_SHAPE(2), least);
    CHECK(read_places(mpt_multinomial(w, 100, true), 100));
    for (int i = 0; i < 100; i++) CHECK_EQ_INT(places[i], 0);
    check_ok(c);
    mpt_destroy(c);
}

/* Initial values of ranges that rounding would leave, drawn before and after mpt_half. */
TEST(uniform_weights_stay_in_their_range) {
    static const struct {
        double low, high;
    } ranges[] = {{0, 4},         {-1, 0},       {-0.001, 0},      {1, 1.05},
                  {-1.37, -1.01}, {0.1, 0.7},    {0, 1e-7},        {-3e-8, 3e-8},
                  {-4, -0.3},     {3000, 3100.}, {-65504, 65504.}, {0.3, 0.3}};
    mpt_context *c = make_context(MPT_ISA_AUTO);
    for (int after = 0; after < 2; after++)
        for (int half = 0; half < 3; half++)
            for (int i = 0; i < 12; i++) {
                const float low = (float)ranges[i].low, high = (float)ranges[i].high;
                const mpt_init init = mpt_init_make(MPT_INIT_UNIFORM, low, high);
                mpt_module net = mpt_nn_linear_no_bias(c, 200, 300);
                if (!after) mpt_set_init(net, "weight", init);
                if (half) mpt_half(net, half == 1 ? MPT_F16 : MPT_BF16);
                if (after) mpt_set_init(net, "weight", init);
                mpt_read_f32(mpt_parameter(net, "weight"), drawn, DRAWS);
                int outside = 0;
                for (int k = 0; k < DRAWS; k++) outside += drawn[k] < low || drawn[k] >= high;
                if (low == high)
                    CHECK(fabsf(drawn[0] - 0.3f) < 1e-3f);
                else if (outside > 0)
                    TEST_FAIL_("[%g, %g) as %d: %d outside", ranges[i].low, ranges[i].high, half,
                               outside);
                mpt_module_destroy(net);
            }
    check_ok(c);
    mpt_destroy(c);
}

/* What a program has put there itself is rounded to the nearest, whatever the recipe says. */
TEST(written_weights_are_rounded) {
    mpt_context *c = make_context(MPT_ISA_AUTO);
    mpt_module net = mpt_nn_linear_no_bias(c, 2, 2);
    float values[4] = {0.9999f, 0.5f, 0.25f, -0.9999f};
    mpt_set_init(net, "weight", mpt_init_make(MPT_INIT_UNIFORM, -1, 1));
    mpt_write(mpt_parameter(net, "weight"), values, sizeof values);
    mpt_half(net, MPT_BF16);
    mpt_read_f32(mpt_parameter(net, "weight"), values, 4);
    CHECK(values[0] == 1 && values[1] == 0.5f && values[2] == 0.25f && values[3] == -1);
    check_ok(c);
    mpt_destroy(c);
}

/* ==== Bins ==== */

/* `n` numbers, one in each bin that is named from `first` on, all others empty. */
static void check_bins(double low, double high, int bins, int n, int first, float value(int)) {
    static float x[512];
    static int64_t counts[512];
    mpt_context *c = make_context(MPT_ISA_AUTO);
    for (int i = 0; i < n; i++) x[i] = value(i);
    mpt_histogram(mpt_from(c, MPT_F32, MPT_SHAPE(n), x), low, high, counts, bins);
    for (int i = 0; i < bins && test_failures < 9; i++)
        if (counts[i] != (i >= first && i < first + n))
            TEST_FAIL_("bin %d of %d from %g to %g has %d", i, bins, low, high, (int)counts[i]);
    check_ok(c);
    mpt_destroy(c);
}
static float from_116(int i) { return (float)(116 + i); }
static float tenth(int i) { return (float)(i / 10.0); }
static float signed_tenth(int i) { return (float)((i - 10) / 10.0); }
static float seventh(int i) { return (float)(i / 7.0); }
static float large(int i) { return (float)(i * 1e29 - 3e30); }
static float whole(int i) { return (float)(i - 200); }

TEST(values_are_in_their_bins) {
    check_bins(0, 151, 151, 13, 116, from_116);
    check_bins(0, 1, 10, 10, 0, tenth);
    check_bins(-1, 1, 20, 20, 0, signed_tenth);
    check_bins(0, 10, 70, 70, 0, seventh);
    check_bins(-3e30, 3e30, 60, 60, 0, large);
    check_bins(-200, 200, 400, 400, 0, whole);
    mpt_context *c = make_context(MPT_ISA_AUTO);
    const float ends[] = {0.1f, 0.7f, (float)INFINITY};
    int64_t counts[3];
    mpt_histogram(mpt_from(c, MPT_F32, MPT_SHAPE(3), ends), 0.1, 0.7, counts, 3);
    CHECK(counts[0] == 1 && counts[1] == 0 && counts[2] == 1); /* the last one is closed */
    mpt_destroy(c);
}

/* ==== What is masked out ==== */

enum { T = 200, D = 16 };
static float rows_of[3][T * D], gradients[2][4][T * D]; /* of q, k, v and the output */

static bool finite_row(const float *x, int row) {
    for (int i = 0; i < D; i++)
        if (!isfinite(x[row * D + i])) return false;
    return true;
}

/* Attention and its gradients, under a mask of a dtype for the keys from `keys` on, or causal. */
static void attend(mpt_context *c, mpt_dtype dtype, mpt_dtype mask_dtype, int keys, double dropout,
                   float got[4][T * D]) {
    static float mask[T];
    mpt_tensor x[3];
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = keys == 0, config.dropout = dropout;
    for (int i = 0; i < T; i++)
        mask[i] = mask_dtype == MPT_BOOL ? i < keys : i < keys ? 0 : -(float)INFINITY;
    mpt_step_begin(c);
    if (keys) config.mask = mpt_cast(mpt_from(c, MPT_F32, MPT_SHAPE(1, T), mask), mask_dtype);
    for (int i = 0; i < 3; i++) {
        x[i] = mpt_cast(mpt_from(c, MPT_F32, MPT_SHAPE(1, T, D), rows_of[i]), dtype);
        mpt_requires_grad(x[i] = mpt_detach(x[i]), true);
    }
    mpt_tensor y = mpt_scaled_dot_product_attention(x[0], x[1], x[2], &config);
    mpt_read_f32(y, got[3], T * D);
    mpt_backward_from(y, mpt_ones(c, dtype, MPT_SHAPE(1, T, D)), false);
    for (int i = 0; i < 3; i++) mpt_read_f32(mpt_grad(x[i]), got[i], T * D);
    mpt_step_end(c);
    check_ok(c);
}

static void fill_rows(void) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < T * D; i++) rows_of[k][i] = sinf((float)(i * (1.3 + 0.7 * k)));
}

/* NaN and infinity in keys that no query sees change nothing. */
TEST(attention_does_not_see_what_is_masked) {
    static const mpt_dtype masks[] = {MPT_BOOL, MPT_F32, MPT_BF16};
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int k = 0; k < 12; k++) {
            const mpt_dtype dtype = k % 2 ? MPT_BF16 : MPT_F32;
            const int seen = T - 5 - 64 * (k / 6);
            for (int nan = 0; nan < 2; nan++) {
                fill_rows();
                for (int i = seen * D; i < T * D; i++)
                    rows_of[1][i] = rows_of[2][i] = !nan ? 0 : i % 3 ? NAN : (float)INFINITY;
                mpt_context *again = make_context((mpt_isa)level_); /* of equal draws */
                attend(again, dtype, masks[k / 2 % 3], seen, k / 6 * 0.3, gradients[nan]);
                mpt_destroy(again);
            }
            for (int i = 0; i < 4; i++) {
                int wrong = 0;
                for (int e = 0; e < T * D; e++)
                    wrong += !(fabsf(gradients[0][i][e] - gradients[1][i][e]) <= 1e-5f);
                if (wrong) TEST_FAIL_("level %d, case %d: %d of %d differ", level_, k, wrong, i);
            }
        }
    }
}

/* The last value, key or query of causal attention is for the last row alone; the first query and
   what comes back to it are for the first key alone. */
TEST(causal_attention_does_not_see_what_comes_later) {
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int k = 0; k < 8; k++) {
            const int what = k / 2, at = what < 3 ? T - 1 : 0;
            fill_rows();
            for (int i = 0; i < D; i++) rows_of[what % 3][at * D + i] = i % 2 ? NAN : 1e38f * 10;
            attend(c, k % 2 ? MPT_BF16 : MPT_F32, MPT_F32, 0, 0, gradients[0]);
            int finite[4] = {0, 0, 0, 0};
            for (int i = 0; i < 4; i++)
                for (int row = 0; row < T; row++) finite[i] += finite_row(gradients[0][i], row);
            /* The last query sees all keys; the first one has but one. */
            CHECK_EQ_INT(finite[3], T - 1);
            CHECK_EQ_INT(finite[0], T - 1);
            CHECK_EQ_INT(finite[1], at ? 0 : T - 1);
            CHECK_EQ_INT(finite[2], at ? what == 2 ? T : 0 : T - 1);
        }
    }
}

/* ==== Reductions of nothing ==== */

typedef mpt_tensor (*function)(mpt_tensor x);
static mpt_tensor logsumexp_of(mpt_tensor x) { return mpt_logsumexp(x, -1, false); }
static mpt_tensor twice_logsumexp(mpt_tensor x) {
    return mpt_logsumexp(mpt_logsumexp(mpt_reshape(x, MPT_SHAPE(2, -1)), 1, false), 0, false);
}
static mpt_tensor norm_of(mpt_tensor x) { return mpt_norm(x, 2, -1, false); }
static mpt_tensor norm_1(mpt_tensor x) { return mpt_norm(x, 1, -1, false); }
static mpt_tensor norm_most(mpt_tensor x) { return mpt_norm(x, INFINITY, -1, false); }
static mpt_tensor std_of(mpt_tensor x) { return mpt_std(x, -1, false, 1); }
static mpt_tensor var_of(mpt_tensor x) { return mpt_var(x, -1, false, 1); }
static mpt_tensor prod_of(mpt_tensor x) { return mpt_prod(x, -1, false); }
static mpt_tensor max_of(mpt_tensor x) { return mpt_max(x, -1, false); }
static mpt_tensor none(mpt_tensor x) { return mpt_slice(x, 0, 0, 0, 1); }
static mpt_tensor logsumexp_none(mpt_tensor x) { return logsumexp_of(none(x)); }
static mpt_tensor mean_none(mpt_tensor x) { return mpt_mean(none(x), -1, false); }
static mpt_tensor norm_none(mpt_tensor x) { return norm_of(none(x)); }
static mpt_tensor power_0(mpt_tensor x) { return mpt_sum(mpt_pow_scalar(x, 0), -1, false); }

typedef struct known {
    const char *name;
    function of;
    float x[4], y, dx[4]; /* as PyTorch 2 has it, or as it is right */
} known;

static bool close_to(float got, float want) {
    if (isnan(want)) return isnan(got);
    return got == want || fabsf(got - want) <= 2e-6f * fabsf(want);
}

static void check_known(const known *rows, int count) {
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int i = 0; i < count; i++) {
            float dx[4];
            mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(4), rows[i].x);
            mpt_requires_grad(x, true);
            mpt_tensor y = rows[i].of(x);
            const float value = (float)mpt_item(y);
            mpt_backward(y);
            mpt_read_f32(mpt_grad(x), dx, 4);
            bool good = close_to(value, rows[i].y);
            for (int k = 0; k < 4; k++) good = good && close_to(dx[k], rows[i].dx[k]);
            if (!good)
                TEST_FAIL_("level %d, %s of %g %g ..: %g, gradient %g %g %g %g", level_,
                           rows[i].name, (double)rows[i].x[0], (double)rows[i].x[1], (double)value,
                           (double)dx[0], (double)dx[1], (double)dx[2], (double)dx[3]);
        }
        check_ok(c);
    }
}

#define I ((float)INFINITY)
TEST(gradients_of_nothing) {
    static const known rows[] = {
        {"logsumexp", logsumexp_of, {-I, -I, -I, -I}, -I, {0, 0, 0, 0}},
        {"logsumexp", logsumexp_of, {-I, 2, -I, -I}, 2, {0, 1, 0, 0}},
        {"logsumexp", logsumexp_of, {1e30f, -1e30f, -I, 0}, 1e30f, {1, 0, 0, 0}},
        {"logsumexp", logsumexp_of, {1, I, 0, -I}, I, {0, NAN, 0, 0}},
        {"two logsumexp",
         twice_logsumexp,
         {-I, -I, 0.5f, 1.5f},
         1.8132616f,
         {0, 0, 0.26894142f, 0.73105858f}},
        {"logsumexp of none", logsumexp_none, {1, 2, 3, 4}, -I, {0, 0, 0, 0}},
        {"mean of none", mean_none, {1, 2, 3, 4}, NAN, {0, 0, 0, 0}},
        {"norm of none", norm_none, {1, 2, 3, 4}, 0, {0, 0, 0, 0}},
        {"norm", norm_of, {0, 0, 0, 0}, 0, {0, 0, 0, 0}},
        {"norm 1", norm_1, {0, 0, -2, 0}, 2, {0, 0, -1, 0}},
        {"largest", norm_most, {0, 0, 0, 0}, 0, {0, 0, 0, 0}},
        {"largest", norm_most, {-3, 1, 3, 0}, 3, {-0.5f, 0, 0.5f, 0}},
        {"std", std_of, {7, 7, 7, 7}, 0, {0, 0, 0, 0}},
        {"prod", prod_of, {0, 2, 3, 4}, 0, {24, 0, 0, 0}},
        {"prod", prod_of, {0, 2, 0, 4}, 0, {0, 0, 0, 0}},
        {"max", max_of, {1, 2, 2, 1}, 2, {0, 1, 0, 0}},
        {"x^0", power_0, {0, 1, -2, NAN}, 4, {0, 0, 0, 0}},
    };
    check_known(rows, (int)(sizeof rows / sizeof *rows));
}

/* ==== Very large and very small numbers ==== */

TEST(squares_beyond_fp32) {
    static const known rows[] = {
        {"norm", norm_of, {3e20f, 4e20f, 0, 0}, 5e20f, {0.6f, 0.8f, 0, 0}},
        {"norm", norm_of, {3e-25f, 4e-25f, 0, 0}, 5e-25f, {0.6f, 0.8f, 0, 0}},
        {"norm", norm_of, {1e38f, -1e38f, 1e38f, -1e38f}, 2e38f, {0.5f, -0.5f, 0.5f, -0.5f}},
        {"norm", norm_of, {1, -I, 0, 0}, I, {0, NAN, 0, 0}},
        {"norm", norm_of, {1, NAN, 0, 0}, NAN, {NAN, NAN, NAN, NAN}},
        {"std",
         std_of,
         {1e20f, 2e20f, 3e20f, 2e20f},
         8.1649658e19f,
         {-0.40824829f, 0, 0.40824829f, 0}},
        {"std",
         std_of,
         {1e-25f, 2e-25f, 3e-25f, 2e-25f},
         8.1649658e-26f,
         {-0.40824829f, 0, 0.40824829f, 0}},
        {"std",
         std_of,
         {3e38f, 3e38f, 2e38f, 2e38f},
         5.7735027e37f,
         {0.28867513f, 0.28867513f, -0.28867513f, -0.28867513f}},
        {"var",
         var_of,
         {1e-18f, 2e-18f, 3e-18f, 2e-18f},
         6.6666667e-37f,
         {-6.6666667e-19f, 0, 6.6666667e-19f, 0}},
        {"var", var_of, {1e20f, 2e20f, 3e20f, 2e20f}, I, {-6.6666667e19f, 0, 6.6666667e19f, 0}},
        {"std", std_of, {1, -I, 0, 0}, NAN, {NAN, NAN, NAN, NAN}},
    };
    check_known(rows, (int)(sizeof rows / sizeof *rows));
}

/* Deviations of long lines, in chunks, and down columns. */
TEST(squares_beyond_fp32_of_many) {
    enum { LINES = 7, LONG = 5000 };
    static float x[LINES * LONG], got[LONG], want[LONG];
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int k = 0; k < 8; k++) {
            const float by = k % 2 ? 1e-25f : 1e25f;
            for (int half = 0; half < 2; half++) {
                for (int i = 0; i < LINES * LONG; i++)
                    x[i] = (half ? by : 1) * (float)((i * 37 % 101) + 1);
                mpt_tensor t = mpt_from(c, MPT_F32, MPT_SHAPE(LINES, LONG), x);
                mpt_tensor y =
                    k / 2 % 2 ? mpt_std(t, k / 4, false, 1) : mpt_norm(t, 2, k / 4, false);
                mpt_read_f32(y, half ? got : want, k / 4 ? LINES : LONG);
            }
            for (int i = 0; i < (k / 4 ? LINES : LONG) && test_failures < 9; i++)
                CHECK_CLOSE(got[i], want[i] * by, 1e-5, 0);
        }
        check_ok(c);
    }
}

/* What a norm makes of k x is what it makes of x, and the gradient is 1 / k of that. */
static mpt_tensor normalised(mpt_tensor x, int kind, double eps) {
    const mpt_tensor null = {NULL, 0, 0};
    if (kind == 0) return mpt_layer_norm(x, 1, null, null, eps);
    if (kind == 1) return mpt_rms_norm(x, 1, null, eps);
    if (kind == 2) return mpt_group_norm(x, 2, null, null, eps);
    return mpt_batch_norm(x, null, null, null, null, eps);
}

TEST(norms_beyond_fp32) {
    enum { MOST = 2 * 4 * 64 };
    static const struct {
        int kind;
        mpt_shape shape;
    } cases[] = {{0, {2, {8, 64}}},      {0, {2, {3, 37}}},      {1, {2, {8, 64}}},
                 {1, {2, {3, 37}}},      {2, {4, {2, 4, 8, 8}}}, {2, {4, {2, 4, 3, 5}}},
                 {3, {4, {2, 4, 8, 8}}}, {3, {2, {16, 7}}},      {3, {4, {5, 3, 3, 3}}}};
    static const double scales[] = {1e20, 1e30, 1e-18, 1e-25};
    static float x[MOST], dy[MOST], y[2][MOST], dx[2][MOST];
    mpt_context *c;
    for (int i = 0; i < MOST; i++)
        x[i] = sinf((float)i * 1.7f) + 0.2f, dy[i] = cosf((float)i * 2.3f);
    EACH_LEVEL(c) {
        for (int k = 0; k < 9 * 4 * 2; k++) {
            const int at = k % 9, half = k / 36;
            const double scale = scales[k / 9 % 4];
            int64_t count = 1;
            for (int d = 0; d < cases[at].shape.rank; d++) count *= cases[at].shape.dim[d];
            for (int scaled = 0; scaled < 2; scaled++) {
                mpt_tensor t = mpt_from(c, MPT_F32, cases[at].shape, x);
                if (half) t = mpt_cast(mpt_cast(t, MPT_BF16), MPT_F32);
                if (scaled) t = mpt_mul_scalar(t, scale);
                t = mpt_detach(half ? mpt_cast(t, MPT_BF16) : t);
                mpt_requires_grad(t, true);
                mpt_tensor out = normalised(t, cases[at].kind, 0);
                mpt_tensor g =
                    mpt_cast(mpt_from(c, MPT_F32, cases[at].shape, dy), half ? MPT_BF16 : MPT_F32);
                mpt_read_f32(out, y[scaled], count);
                mpt_backward_from(out, g, false);
                mpt_read_f32(mpt_grad(t), dx[scaled], count);
            }
            int wrong[2] = {0, 0};
            for (int i = 0; i < count; i++) {
                const double most = half ? 0.02 : 1e-4;
                wrong[0] += !(fabs((double)(y[0][i] - y[1][i])) <= most);
                wrong[1] += !(fabs((double)dx[0][i] - scale * (double)dx[1][i]) <= most);
            }
            if (wrong[0] || wrong[1])
                TEST_FAIL_("level %d, case %d, half %d by %g: %d of y, %d of dx", level_, at, half,
                           scale, wrong[0], wrong[1]);
        }
        check_ok(c);
    }
}

/* Cosines do not change with the scale, distances do as it does, and their gradients do not. */
TEST(cosines_and_distances_beyond_fp32) {
    enum { LINES = 5, LONG = 40, MOST = LINES * LONG };
    static const double scales[] = {1, 1e20, 1e30, 1e-18, 1e-25};
    static float v[3][MOST], y[2][LINES], dx[2][2][MOST];
    mpt_context *c;
    EACH_LEVEL(c) {
        for (int k = 0; k < 10; k++) {
            const double scale = scales[k / 2], by = k % 2 ? scale : 1;
            for (int i = 0; i < 3 * MOST; i++)
                v[i / MOST][i % MOST] = (float)((k < 2 ? 1 : scale) * sin(i * 1.7 + i / MOST));
            mpt_tensor x[3];
            for (int i = 0; i < 3; i++) {
                x[i] = mpt_from(c, MPT_F32, MPT_SHAPE(LINES, LONG), v[i]);
                mpt_requires_grad(x[i], true);
            }
            mpt_tensor out = k % 2
                                 ? mpt_triplet_margin_loss(x[0], x[1], x[2], 0, 0, false, MPT_NONE)
                                 : mpt_cosine_similarity(x[0], x[1], 1, 1e-30);
            static float got[LINES], slopes[2][MOST];
            mpt_read_f32(out, k < 2 ? y[k % 2] : got, LINES);
            mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
            for (int i = 0; i < 2; i++)
                mpt_read_f32(mpt_grad(x[i]), k < 2 ? dx[k % 2][i] : slopes[i], MOST);
            for (int i = 0; i < LINES && k >= 2; i++)
                CHECK_NEAR((double)got[i] / by, (double)y[k % 2][i], 1e-4);
            for (int i = 0; i < 2 * MOST && k >= 2 && test_failures < 9; i++)
                CHECK_NEAR((double)slopes[i / MOST][i % MOST] * (k % 2 ? 1 : scale),
                           (double)dx[k % 2][i / MOST][i % MOST], 1e-4);
        }
        check_ok(c);
    }
}

/* 300 ones in one place: a sum that is kept in bf16 stays at 256, as 257 is none of its numbers. */
TEST(scattered_sums_are_wide) {
    enum { N = 300 };
    mpt_context *c = mpt_create(NULL);
    float sum[2];
    const mpt_dtype halves[] = {MPT_BF16, MPT_F16};
    for (int k = 0; k < 2; k++) {
        mpt_scope_begin(c);
        mpt_tensor index = mpt_zeros(c, MPT_I64, MPT_SHAPE(N));
        mpt_tensor ones = mpt_full(c, halves[k], MPT_SHAPE(N), k ? 8 : 1);
        mpt_tensor out = mpt_scatter_add(mpt_zeros(c, halves[k], MPT_SHAPE(2)), 0, index, ones);
        mpt_read_f32(out, sum, 2);
        CHECK(sum[0] == (k ? 2400 : 300) && sum[1] == 0);
        mpt_scope_end(c);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST_TABLE = {T(scattered_sums_are_wide),
              T(uniform_numbers_stay_below_one),
              T(draws_like_another_tensor),
              T(draws_of_a_seed), T(draws_by_weight),
              T(draws_by_logits),
              T(captured_steps_cannot_draw_by_weight),
              T(draws_without_replacement),
              T(small_weights_are_drawn_last),
              T(uniform_weights_stay_in_their_range),
              T(written_weights_are_rounded),
              T(values_are_in_their_bins),
              T(attention_does_not_see_what_is_masked),
              T(causal_attention_does_not_see_what_comes_later),
              T(gradients_of_nothing),
              T(squares_beyond_fp32),
              T(squares_beyond_fp32_of_many),
              T(norms_beyond_fp32),
              T(cosines_and_distances_beyond_fp32)};
TEST_MAIN
