/* test_gradients.c: what the kernels of gradients do at their edges. Gradients of some inputs have
   the bits that they have when all are asked for, at each level of this CPU, in fp32 and fp16;
   axes longer than a block; odd places for NaN. */
#include MPTRAIN_HEADER_FILE

#include "harness.h"

#include "checks.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

enum { MAX_IN = 4, MAX_ELEMENTS = 4096 };

static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AVX2, MPT_ISA_AVX512, MPT_ISA_NEON};

/* NULL where the CPU lacks the level. */
static mpt_context *make_context(mpt_isa isa) {
    mpt_config config = mpt_config_default();
    config.threads = 2;
    config.seed = 5;
    config.isa = isa;
    config.debug = true;
    return mpt_create(&config);
}

static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}

/* ==== Gradients of some inputs ==== */

typedef struct op_case {
    const char *name;
    mpt_tensor (*call)(const mpt_tensor *in);
    int n, targets; /* inputs, and how many of them, at the end, are the signs 1 and -1 */
    int64_t shape[MAX_IN][4];
    bool halves; /* takes fp16 */
} op_case;

#define CALL(name, expression) \
    static mpt_tensor call_##name(const mpt_tensor *in) { return expression; }
CALL(linear, mpt_linear(in[0], in[1], in[2], MPT_ACTIVATION_NONE))
CALL(linear_relu, mpt_linear(in[0], in[1], in[2], MPT_ACTIVATION_RELU))
CALL(matmul, mpt_matmul(in[0], in[1]))
CALL(conv, mpt_conv2d(in[0], in[1], in[2], NULL))
CALL(layer_norm, mpt_layer_norm(in[0], 1, in[1], in[2], 1e-5))
CALL(rms_norm, mpt_rms_norm(in[0], 1, in[1], 1e-5))
CALL(group_norm, mpt_group_norm(in[0], 2, in[1], in[2], 1e-5))
CALL(batch_norm, mpt_batch_norm(in[0], none(), none(), in[1], in[2], 1e-5))
CALL(batch_norm_relu, mpt_batch_norm_relu(in[0], none(), none(), in[1], in[2], 1e-5, in[3]))
CALL(attention, mpt_scaled_dot_product_attention(in[0], in[1], in[2], NULL))
CALL(where, mpt_where(mpt_gt(in[0], in[1]), in[0], in[1]))
CALL(pow, mpt_pow(in[0], in[1]))
CALL(div, mpt_div(in[0], in[1]))
CALL(maximum, mpt_maximum(in[0], in[1]))
CALL(mse, mpt_mse_loss(in[0], in[1], MPT_NONE))
CALL(l1, mpt_l1_loss(in[0], in[1], MPT_NONE))
CALL(smooth_l1, mpt_smooth_l1_loss(in[0], in[1], 0.2, MPT_NONE))
CALL(huber, mpt_huber_loss(in[0], in[1], 0.2, MPT_NONE))
CALL(bce_logits, mpt_binary_cross_entropy_with_logits(in[0], in[1], none(), none(), MPT_NONE))
CALL(bce, mpt_binary_cross_entropy(in[0], in[1], none(), MPT_NONE))
CALL(kl, mpt_kl_div(in[0], in[1], false, MPT_NONE))
CALL(kl_log, mpt_kl_div(in[0], in[1], true, MPT_NONE))
CALL(gaussian, mpt_gaussian_nll_loss(in[0], in[1], in[2], true, 1e-6, MPT_NONE))
CALL(poisson, mpt_poisson_nll_loss(in[0], in[1], false, true, 1e-8, MPT_NONE))
CALL(poisson_log, mpt_poisson_nll_loss(in[0], in[1], true, true, 1e-8, MPT_NONE))
CALL(triplet, mpt_triplet_margin_loss(in[0], in[1], in[2], 0.5, 1e-6, true, MPT_NONE))
CALL(cosine, mpt_cosine_similarity(in[0], in[1], -1, 1e-8))
CALL(cosine_embedding, mpt_cosine_embedding_loss(in[0], in[1], in[2], 0.1, MPT_NONE))
CALL(ranking, mpt_margin_ranking_loss(in[0], in[1], in[2], 0.1, MPT_NONE))
CALL(hinge, mpt_hinge_embedding_loss(in[0], in[1], 0.6, MPT_NONE))
CALL(soft_margin, mpt_soft_margin_loss(in[0], in[1], MPT_NONE))

/* Rows long and short, none a multiple of a vector. */
static const op_case op_cases[] = {
    {"linear", call_linear, 3, 0, {{5, 37}, {19, 37}, {19}}, true},
    {"linear relu", call_linear_relu, 3, 0, {{3, 9}, {7, 9}, {7}}, true},
    {"matmul", call_matmul, 2, 0, {{3, 6, 17}, {3, 17, 11}}, true},
    {"conv", call_conv, 3, 0, {{2, 3, 9, 7}, {4, 3, 3, 3}, {4}}, true},
    {"layer norm", call_layer_norm, 3, 0, {{7, 37}, {37}, {37}}, true},
    {"rms norm", call_rms_norm, 2, 0, {{7, 37}, {37}}, true},
    {"group norm", call_group_norm, 3, 0, {{3, 4, 5, 7}, {4}, {4}}, true},
    {"batch norm", call_batch_norm, 3, 0, {{3, 4, 5, 7}, {4}, {4}}, true},
    {"batch norm of columns", call_batch_norm, 3, 0, {{33, 21}, {21}, {21}}, true},
    {"batch norm relu", call_batch_norm_relu, 4, 0,
     {{3, 4, 5, 7}, {4}, {4}, {3, 4, 5, 7}}, true},
    {"attention", call_attention, 3, 0,
     {{2, 2, 19, 8}, {2, 2, 21, 8}, {2, 2, 21, 8}}, true},
    {"where", call_where, 2, 0, {{5, 21}, {5, 21}}, true},
    {"pow", call_pow, 2, 0, {{5, 21}, {21}}, true},
    {"div", call_div, 2, 0, {{5, 21}, {5, 1}}, true},
    {"maximum", call_maximum, 2, 0, {{5, 21}, {5, 21}}, true},
    {"mse", call_mse, 2, 0, {{5, 21}, {5, 21}}, true},
    {"l1", call_l1, 2, 0, {{5, 21}, {5, 21}}, true},
    {"smooth l1", call_smooth_l1, 2, 0, {{5, 21}, {5, 21}}, true},
    {"huber", call_huber, 2, 0, {{5, 21}, {5, 21}}, true},
    {"bce of logits", call_bce_logits, 2, 0, {{5, 21}, {5, 21}}, true},
    {"bce", call_bce, 2, 0, {{5, 21}, {5, 21}}, false},
    {"kl", call_kl, 2, 0, {{5, 21}, {5, 21}}, true},
    {"kl of logarithms", call_kl_log, 2, 0, {{5, 21}, {5, 21}}, true},
    {"gaussian", call_gaussian, 3, 0, {{5, 21}, {5, 21}, {5, 21}}, false},
    {"poisson", call_poisson, 2, 0, {{5, 21}, {5, 21}}, true},
    {"poisson of logarithms", call_poisson_log, 2, 0, {{5, 21}, {5, 21}}, true},
    {"triplet", call_triplet, 3, 0, {{5, 21}, {5, 21}, {5, 21}}, true},
    {"cosine", call_cosine, 2, 0, {{5, 21}, {5, 21}}, true},
    {"cosine embedding", call_cosine_embedding, 3, 1, {{5, 21}, {5, 21}, {5}}, true},
    {"ranking", call_ranking, 3, 1, {{5, 21}, {5, 21}, {5, 21}}, true},
    {"hinge", call_hinge, 2, 1, {{5, 21}, {5, 21}}, true},
    {"soft margin", call_soft_margin, 2, 1, {{5, 21}, {5, 21}}, true},
};

static float numbers[MAX_IN + 1][MAX_ELEMENTS], whole[MAX_IN][MAX_ELEMENTS], part[MAX_ELEMENTS];

static mpt_shape shape_of(const op_case *c, int input) {
    const int64_t *n = c->shape[input];
    int rank = 0;
    while (rank < 4 && n[rank] > 0) rank++;
    return mpt_shape_make(rank, n[0], n[1], n[2], n[3], 0, 0, 0, 0);
}

static int64_t elements_of(const mpt_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->rank; d++) n *= shape->dim[d];
    return n;
}

/* Between 0.1 and 0.9, so that they can be probabilities and variances, too. */
static void make_numbers(const op_case *c) {
    uint32_t random = 7;
    for (int k = 0; k <= MAX_IN; k++) {
        for (int i = 0; i < MAX_ELEMENTS; i++) {
            random = random * 1664525u + 1013904223u;
            numbers[k][i] = (float)((random >> 8) % 1000) * 0.0008f + 0.1f;
            if (k < c->n && k >= c->n - c->targets) numbers[k][i] = random >> 31 ? 1.0f : -1.0f;
        }
    }
}

static mpt_tensor tensor_of(mpt_context *context, const float *values, mpt_shape shape,
                            mpt_dtype dtype) {
    mpt_tensor x = mpt_full(context, MPT_F32, shape, 0);
    mpt_write(x, values, (size_t)elements_of(&shape) * sizeof *values);
    return dtype == MPT_F32 ? x : mpt_cast(x, dtype);
}

/* Backward with gradients of the inputs in `asked`, bit by bit. With `first`, of all of them, what
   comes is what the other calls are held to. */
static void check_subset(mpt_context *context, const op_case *c, mpt_dtype dtype, int asked,
                         bool first) {
    mpt_tensor in[MAX_IN];
    for (int k = 0; k < c->n; k++) {
        in[k] = tensor_of(context, numbers[k], shape_of(c, k), dtype);
        if (asked >> k & 1) mpt_requires_grad(in[k], true);
    }
    mpt_tensor out = c->call(in);
    mpt_shape shape = mpt_get_shape(out);
    mpt_backward_from(out, tensor_of(context, numbers[MAX_IN], shape, mpt_get_dtype(out)), false);
    for (int k = 0; k < c->n; k++) {
        const mpt_shape of = shape_of(c, k);
        const int64_t n = elements_of(&of);
        CHECK_EQ_INT(mpt_has_grad(in[k]), asked >> k & 1);
        if (!(asked >> k & 1)) continue;
        int64_t finite = 0, odd = 0;
        mpt_read_f32(mpt_cast(mpt_grad(in[k]), MPT_F32), part, n);
        for (int64_t i = 0; i < n; i++) {
            finite += part[i] - part[i] == 0;
            odd += part[i] != 0;
        }
        CHECK_EQ_INT(finite, n);
        CHECK(odd > 0);
        if (first) memcpy(whole[k], part, (size_t)n * sizeof *part);
        CHECK_EQ_BITS(part, whole[k], (size_t)n * sizeof *part);
    }
}

static void check_op(mpt_context *context, const op_case *c, mpt_dtype dtype) {
    const int inputs = c->n - c->targets, all = (1 << inputs) - 1, before = test_failures;
    make_numbers(c);
    for (int asked = all; asked >= 1; asked--) {
        mpt_scope_begin(context);
        check_subset(context, c, dtype, asked, asked == all);
        mpt_scope_end(context);
        check_ok(context);
        if (test_failures == before) continue;
        printf("\n  %s, %s, gradients %d", c->name, dtype == MPT_F32 ? "f32" : "f16", asked);
        return;
    }
}

TEST(gradients_of_some_inputs) {
    int contexts = 0;
    for (size_t l = 0; l < COUNT(levels); l++) {
        mpt_context *context = make_context(levels[l]);
        contexts += context != NULL;
        for (size_t i = 0; context && i < COUNT(op_cases); i++) {
            check_op(context, &op_cases[i], MPT_F32);
            if (op_cases[i].halves) check_op(context, &op_cases[i], MPT_F16);
        }
        mpt_destroy(context);
    }
    CHECK(contexts >= 1);
}

/* ==== Axes longer than a block ==== */

enum { LONG = 3001, LINES = 3 };
static float lines[LINES][LONG], slopes[LINES][LONG];

TEST(the_largest_of_a_long_axis) {
    static const int64_t places[LINES] = {0, 1700, LONG - 1};
    for (size_t l = 0; l < COUNT(levels); l++) {
        mpt_context *context = make_context(levels[l]);
        if (!context) continue;
        for (int axis = 0; axis < 2; axis++) {
            mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(LINES, LONG));
            float values[LINES], gradient[LINES] = {2, 3, 5};
            int64_t at[LINES], wrong = 0;
            for (int r = 0; r < LINES; r++) {
                for (int i = 0; i < LONG; i++) lines[r][i] = (float)(i % 100) * 0.5f - 40.0f;
                lines[r][places[r]] = 20.0f + (float)r;
            }
            mpt_write(x, lines, sizeof lines);
            /* Along the first dimension, steps apart: of the transpose, copied. */
            mpt_tensor line = axis ? mpt_contiguous(mpt_transpose(x, 0, 1)) : x;
            mpt_requires_grad(line, true);
            mpt_tensor most = mpt_max(line, axis ? 0 : 1, false);
            mpt_read(mpt_argmax(line, axis ? 0 : 1, false), at, sizeof at);
            mpt_read_f32(most, values, LINES);
            mpt_tensor g = mpt_zeros(context, MPT_F32, MPT_SHAPE(LINES));
            mpt_write(g, gradient, sizeof gradient);
            mpt_backward_from(most, g, false);
            mpt_tensor slope = mpt_grad(line);
            mpt_read_f32(axis ? mpt_transpose(slope, 0, 1) : slope, &slopes[0][0], LINES * LONG);
            for (int r = 0; r < LINES; r++) {
                CHECK_EQ_INT(at[r], places[r]);
                CHECK(values[r] == 20.0f + (float)r);
                for (int i = 0; i < LONG; i++)
                    wrong += slopes[r][i] != (i == places[r] ? gradient[r] : 0.0f);
            }
            CHECK_EQ_INT(wrong, 0);
        }
        check_ok(context);
        mpt_destroy(context);
    }
}

/* The first NaN is the largest, wherever in its axis it stands. */
TEST(nan_wins_in_a_long_axis) {
    static const int64_t places[] = {0, 5, 1500, LONG - 1};
    volatile float zero = 0.0f;
    mpt_context *context = make_context(MPT_ISA_AUTO);
    REQUIRE(context);
    for (size_t k = 0; k < COUNT(places); k++) {
        int64_t at[LINES];
        float most[LINES];
        for (int i = 0; i < LONG; i++) lines[0][i] = lines[1][i] = lines[2][i] = (float)i;
        lines[1][places[k]] = zero / zero;
        lines[1][LONG - 1] = zero / zero;
        mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(LINES, LONG));
        mpt_write(x, lines, sizeof lines);
        mpt_read(mpt_argmax(x, 1, false), at, sizeof at);
        mpt_read_f32(mpt_max(x, 1, false), most, LINES);
        CHECK_EQ_INT(at[0], LONG - 1);
        CHECK_EQ_INT(at[1], places[k]);
        CHECK(most[0] == (float)(LONG - 1) && most[1] != most[1] && most[2] == most[0]);
    }
    check_ok(context);
    mpt_destroy(context);
}

/* ==== Levels ==== */

TEST(amx_that_is_off_is_not_asked_for) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.isa = MPT_ISA_AMX;
    config.amx = false;
    mpt_context *context = mpt_create(&config);
    CHECK(context == NULL);
    const char *why = mpt_error(NULL);
    if (!strstr(why, "built without"))
        CHECK_CONTAINS(why, "isa asks for amx, but amx is off in the config");
    mpt_destroy(context);
}

TEST_TABLE = {T(gradients_of_some_inputs), T(the_largest_of_a_long_axis),
              T(nan_wins_in_a_long_axis), T(amx_that_is_off_is_not_asked_for)};
TEST_MAIN
