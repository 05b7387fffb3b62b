/* api_edges.c: the rims of what calls accept: shapes of no elements and of no dimensions, the forms
   of layers that models seldom use, settings at their limits, clocks that stand still; and what is
   just beyond, with the words that say so. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "checks.h"
#include "training.h"

static mpt_context *make_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.debug = true, config.seed = 4;
    return mpt_create(&config);
}

static mpt_tensor ramp(mpt_context *c, mpt_shape shape) {
    static float values[4096];
    for (int i = 0; i < 4096; i++) values[i] = sample_value(i);
    return mpt_from(c, MPT_F32, shape, values);
}

static mpt_tensor no_tensor(void) {
    mpt_tensor none = {NULL, 0, 0};
    return none;
}

static MAYBE_UNUSED mpt_loader no_loader(void) {
    mpt_loader none = {NULL, 0, 0};
    return none;
}

static double sum_of(mpt_tensor x) {
    return mpt_item(mpt_sum(mpt_cast(x, MPT_F32), MPT_ALL_DIMS, false));
}

/* ==== Values ==== */

/* In a scope it is counted by launches, elsewhere by the host. */
TEST(arange_is_the_same_in_a_scope) {
    static const mpt_dtype dtypes[] = {MPT_I64, MPT_F32, MPT_F16, MPT_BF16, MPT_U8, MPT_F8E4M3};
    static char values[2][8 * 7 * 7 * 7 * 7 * 7 * 7];
    mpt_context *c = make_context();
    for (int i = 0; i < 6; i++)
        for (int64_t count = 1; count < 300000; count *= 7) {
            mpt_tensor outside = mpt_arange(c, dtypes[i], count);
            mpt_scope_begin(c);
            mpt_tensor inside = mpt_arange(c, dtypes[i], count);
            CHECK(mpt_get_dtype(inside) == dtypes[i]);
            size_t bytes = (size_t)count * mpt_dtype_size(dtypes[i]);
            CHECK_EQ_INT(mpt_read(inside, values[0], bytes), MPT_OK);
            CHECK_EQ_INT(mpt_read(outside, values[1], bytes), MPT_OK);
            CHECK(memcmp(values[0], values[1], bytes) == 0);
            mpt_scope_end(c);
            mpt_release(outside);
        }
    mpt_destroy(c);
}

/* Longer than what is copied at once, and lines that do not lie dense. */
TEST(flips_of_long_lines) {
    enum { LINES = 3, LONG = 2500 };
    static float values[LINES * LONG], got[2][LINES * LONG];
    mpt_context *c = make_context();
    for (int i = 0; i < LINES * LONG; i++) values[i] = (float)(i * 7 % 251);
    for (int turned = 0; turned < 2; turned++)
        for (int half = 0; half < 2; half++) {
            mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(LINES, LONG), values);
            if (turned) x = mpt_transpose(mpt_contiguous(mpt_transpose(x, 0, 1)), 0, 1);
            x = mpt_detach(mpt_cast(x, half ? MPT_BF16 : MPT_F32));
            mpt_requires_grad(x, true);
            mpt_tensor y = mpt_flip(x, 1);
            mpt_backward(mpt_sum(mpt_mul(y, mpt_detach(x)), MPT_ALL_DIMS, false));
            mpt_read(mpt_cast(y, MPT_F32), got[0], sizeof got[0]);
            mpt_read(mpt_cast(mpt_grad(x), MPT_F32), got[1], sizeof got[1]);
            for (int i = 0; i < LINES * LONG && test_failures < 9; i++) {
                const float want = values[i / LONG * LONG + LONG - 1 - i % LONG];
                CHECK(got[0][i] == want && got[1][i] == want);
            }
        }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(tensors_of_nothing) {
    mpt_context *c = make_context();
    char text[200];
    mpt_tensor empty = mpt_from(c, MPT_F32, MPT_SHAPE(3, 0), NULL);
    mpt_tensor scalar = mpt_full(c, MPT_BF16, MPT_SCALAR, 2.5);
    CHECK(mpt_valid(empty));
    CHECK_EQ_INT(mpt_numel(empty), 0);
    CHECK_EQ_INT(mpt_read(empty, NULL, 0), MPT_OK);
    CHECK_EQ_INT(mpt_write(empty, NULL, 0), MPT_OK);
    CHECK_EQ_INT(mpt_numel(mpt_arange(c, MPT_I32, 0)), 0);
    mpt_scope_begin(c);
    CHECK_EQ_INT(mpt_numel(mpt_arange(c, MPT_I64, 0)), 0);
    mpt_scope_end(c);
    CHECK(mpt_allclose(empty, empty, 0, 0));
    CHECK_NEAR(sum_of(empty), 0, 0);
    CHECK_EQ_INT(mpt_statistics(empty).count, 0);
    mpt_format(empty, NULL, text, sizeof text);
    CHECK_CONTAINS(text, "[3, 0]");
    mpt_format(scalar, NULL, text, sizeof text);
    CHECK_CONTAINS(text, "2.5");
    mpt_format(mpt_lt_scalar(scalar, 3), NULL, text, sizeof text);
    CHECK_CONTAINS(text, "1");
    CHECK_NEAR(sum_of(mpt_flip(mpt_cumsum(mpt_flatten(scalar, 0, -1), 0), 0)), 2.5, 0);
    CHECK_NEAR(mpt_item(mpt_max(scalar, 0, false)), 2.5, 0);
    CHECK_NEAR(mpt_item(mpt_expand(scalar, MPT_SHAPE(1, 1))), 2.5, 0);
    CHECK_EQ_INT(mpt_numel(mpt_cat(&empty, 1, 0)), 0);
    CHECK_EQ_INT(mpt_numel(mpt_slice(ramp(c, MPT_SHAPE(4)), 0, 3, 1, 1)), 0);
    CHECK_EQ_INT(mpt_numel(mpt_matmul(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 4)),
                                      mpt_zeros(c, MPT_F32, MPT_SHAPE(4, 2)))),
                 0);
    CHECK_NEAR(sum_of(mpt_matmul(mpt_ones(c, MPT_F32, MPT_SHAPE(3, 0)),
                                 mpt_ones(c, MPT_F32, MPT_SHAPE(0, 2)))),
               0, 0);
    check_ok(c);
    mpt_tensor nan = mpt_full(c, MPT_F32, MPT_SHAPE(2), (double)NAN);
    CHECK(!mpt_allclose(nan, nan, 1, 1));
    mpt_tensor inf = mpt_full(c, MPT_F32, MPT_SHAPE(2), (double)INFINITY);
    CHECK(mpt_allclose(inf, inf, 0, 0));
    CHECK(!mpt_allclose(inf, mpt_neg(inf), 1, 1));
    check_ok(c);
    mpt_arange(c, MPT_F32, INT64_MAX / 8);
    check_error(c, MPT_ERROR_ARGUMENT, "negative or beyond 2^59");
    mpt_release(mpt_grad(scalar)); /* of nothing */
    mpt_clear_error(c);
    mpt_destroy(c);
}

/* A hundred elements in two dimensions, shortened, in every dtype that prints otherwise. */
TEST(long_tensors_are_shortened) {
    mpt_context *c = make_context();
    static const mpt_dtype dtypes[] = {MPT_F64, MPT_F32, MPT_F16,  MPT_BF16,
                                       MPT_I64, MPT_I32, MPT_BOOL, MPT_U8};
    mpt_print_config config = mpt_print_config_default();
    config.edge = 1, config.digits = 17;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        char text[600];
        mpt_tensor x =
            mpt_cast(mpt_reshape(mpt_arange(c, MPT_F32, 100), MPT_SHAPE(10, 10)), dtypes[i]);
        size_t n = mpt_format(mpt_transpose(x, 0, 1), &config, text, sizeof text);
        CHECK_EQ_INT(n, strlen(text));
        CHECK_CONTAINS(text, "..");
        CHECK_CONTAINS(text, dtypes[i] == MPT_BOOL ? "1" : "99");
        CHECK_CONTAINS(text, mpt_dtype_name(dtypes[i]));
    }
    check_ok(c);
    mpt_destroy(c);
}

/* ==== Layers ==== */

/* All of a text, at the lengths where it is cut and where it is not. */
TEST(texts_of_tensors) {
    static const float values[4] = {1, 2.5f, 3, -3.14159265f};
    static const struct {
        int64_t count;
        const char *text;
    } rows[] = {{1, "[0] int64 [1]"},
                {6, "[0, 1, 2, 3, 4, 5] int64 [6]"},
                {7, "[0, 1, 2, ..., 4, 5, 6] int64 [7]"}};
    mpt_context *c = mpt_create(NULL);
    mpt_print_config config = mpt_print_config_default();
    char text[200];
    mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(2, 2), values);
    mpt_format(x, NULL, text, sizeof text);
    CHECK_EQ_STR(text, "[[1, 2.5],\n [3, -3.142]] float32 [2, 2]");
    config.digits = 1;
    mpt_format(x, &config, text, sizeof text);
    CHECK_CONTAINS(text, "[3, -3]]");
    config.digits = 17;
    CHECK(mpt_format(x, &config, text, sizeof text) > 40);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_format(mpt_arange(c, MPT_I64, rows[i].count), NULL, text, sizeof text);
        CHECK_EQ_STR(text, rows[i].text);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* Values of what is strided go through a copy that ends, and count as changed. */
TEST(values_of_strided_tensors) {
    mpt_context *c = mpt_create(NULL);
    float values[6] = {0, 1, 2, 3, 4, 5}, got[6];
    mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(2, 3), values), turned = mpt_transpose(x, 0, 1);
    const int64_t before = mpt_memory(c).total_current;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(mpt_read_f32(turned, got, 6), MPT_OK);
        CHECK(got[1] == 3 && got[2] == 1);
        CHECK_EQ_INT(mpt_write(turned, got, sizeof got), MPT_OK);
        mpt_release(mpt_arange(c, MPT_F32, 3));
    }
    CHECK_EQ_INT(mpt_memory(c).total_current, before);
    /* a new dimension of size 1 shows no element twice */
    mpt_tensor row = mpt_from(c, MPT_F32, MPT_SHAPE(3), values);
    CHECK_EQ_INT(mpt_write(mpt_expand(row, MPT_SHAPE(1, 3)), values + 3, 12), MPT_OK);
    CHECK_EQ_INT(mpt_read_f32(row, got, 3), MPT_OK);
    CHECK(got[0] == 3 && got[2] == 5);
    mpt_requires_grad(x, true);
    mpt_tensor square = mpt_sum(mpt_mul(x, x), MPT_ALL_DIMS, false);
    CHECK_EQ_INT(mpt_write(mpt_detach(turned), got, sizeof got), MPT_OK);
    CHECK(mpt_backward(square) != MPT_OK);
    CHECK_CONTAINS(mpt_error(c), "in place");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_expect_shape(mpt_zeros(c, MPT_F32, MPT_SCALAR), MPT_SCALAR, "s"), MPT_OK);
    mpt_expect_shape(x, MPT_SCALAR, "x");
    check_error(c, MPT_ERROR_SHAPE, "x has shape [2, 3], expected []");
    mpt_expect_shape(x, MPT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1), "x");
    check_error(c, MPT_ERROR_SHAPE, "expected [1, 1, 1, 1, 1, 1, 1, 1]");
    mpt_destroy(c);
}

#ifndef MPTRAIN_NO_ATTENTION
/* Query, key and value given apart are what the layer makes of the one x; a mask of zeros and minus
   infinities is the causal one. */
TEST(attention_in_all_its_forms) {
    mpt_context *c = make_context();
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    for (int bias = 0; bias < 2; bias++) {
        heads.bias = bias != 0, heads.causal = false;
        mpt_module layer = mpt_nn_multi_head_attention(c, 8, 2, &heads);
        heads.causal = true;
        mpt_module causal = mpt_nn_multi_head_attention(c, 8, 2, &heads);
        mpt_copy_module(causal, layer);
        mpt_tensor x = ramp(c, MPT_SHAPE(2, 3, 8)), in[4], out[2], apart;
        float before[9] = {0};
        for (int i = 0; i < 9; i++) before[i] = i % 3 > i / 3 ? -INFINITY : 0;
        for (int i = 0; i < 3; i++) in[i] = x;
        in[3] = mpt_from(c, MPT_F32, MPT_SHAPE(3, 3), before);
        mpt_tensor one = mpt_forward(layer, x);
        CHECK_EQ_INT(mpt_forward_n(layer, in, 3, out, 1), MPT_OK);
        CHECK(mpt_allclose(one, out[0], 0, 0)); /* one product for the three */
        for (int i = 1; i < 3; i++) in[i] = mpt_clone(x);
        CHECK_EQ_INT(mpt_forward_n(layer, in, 3, &apart, 1), MPT_OK);
        CHECK(mpt_allclose(one, apart, 1e-5, 1e-6));
        CHECK_EQ_INT(mpt_forward_n(layer, in, 4, &apart, 1), MPT_OK);
        CHECK(mpt_allclose(mpt_forward(causal, x), apart, 1e-5, 1e-6));
        CHECK(!mpt_allclose(one, apart, 1e-3, 1e-3));
        in[1] = mpt_slice(in[1], 1, 0, 2, 1), in[2] = x; /* not as many of both */
        mpt_forward_n(layer, in, 3, out, 1);
        check_error(c, MPT_ERROR_SHAPE, "the same B, G, S and D");
        mpt_forward_n(layer, in, 2, out, 1);
        check_error(c, MPT_ERROR_ARGUMENT, "2 inputs, 1 outputs: expected x, or query");
        mpt_forward_n(layer, in, 3, out, 2);
        check_error(c, MPT_ERROR_ARGUMENT, "takes 3 inputs and 1 outputs, got 3 and 2");
        in[3] = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 1, 5, 3)), in[1] = in[2];
        mpt_forward_n(layer, in, 4, out, 1);
        check_error(c, MPT_ERROR_SHAPE, "does not broadcast to the scores");
    }
    mpt_destroy(c);
}

TEST(attention_refuses) {
    mpt_context *c = make_context();
    static const struct {
        mpt_shape q, k, v;
        const char *text;
    } rows[] = {
        {{1, {4}}, {1, {4}}, {1, {4}}, "of equal ranks, 2 to 4"},
        {{5, {1, 1, 1, 2, 4}}, {5, {1, 1, 1, 2, 4}}, {5, {1, 1, 1, 2, 4}}, "equal ranks, 2 to 4"},
        {{3, {2, 3, 4}}, {2, {3, 4}}, {3, {2, 3, 4}}, "of equal ranks"},
        {{3, {2, 3, 4}}, {3, {1, 3, 4}}, {3, {2, 3, 4}}, "the same B"},
        {{3, {2, 3, 4}}, {3, {2, 3, 4}}, {3, {1, 3, 4}}, "the same B"},
        {{4, {1, 4, 3, 4}}, {4, {1, 3, 3, 4}}, {4, {1, 3, 3, 4}}, "a multiple of those of k and v"},
        {{4, {1, 4, 3, 4}}, {4, {1, 2, 3, 4}}, {4, {1, 4, 3, 4}}, "the same B, G"},
        {{4, {1, 2, 3, 4}}, {4, {1, 2, 3, 4}}, {4, {1, 2, 5, 4}}, "the same B, G, S"},
        {{4, {1, 2, 3, 4}}, {4, {1, 2, 3, 5}}, {4, {1, 2, 3, 4}}, "the same B, G, S and D"},
        {{4, {1, 2, 3, 4}}, {4, {1, 0, 3, 4}}, {4, {1, 0, 3, 4}}, "a multiple of those"},
        {{2, {3, 0}}, {2, {3, 0}}, {2, {3, 2}}, "one element in a head"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_scaled_dot_product_attention(mpt_zeros(c, MPT_F32, rows[i].q),
                                         mpt_zeros(c, MPT_F32, rows[i].k),
                                         mpt_zeros(c, MPT_F32, rows[i].v), NULL);
        check_error(c, MPT_ERROR_SHAPE, rows[i].text);
    }
    mpt_attention_config config = mpt_attention_config_default();
    mpt_tensor x = ramp(c, MPT_SHAPE(3, 4));
    config.mask = mpt_zeros(c, MPT_I64, MPT_SHAPE(3, 3));
    mpt_scaled_dot_product_attention(x, x, x, &config);
    check_error(c, MPT_ERROR_DTYPE, "argument 4");
    config.mask = mpt_zeros(c, MPT_F32, MPT_SHAPE(3, 3));
    mpt_requires_grad(config.mask, true);
    mpt_scaled_dot_product_attention(x, x, x, &config);
    check_error(c, MPT_ERROR_UNSUPPORTED, "the mask gets no gradient");
    config.mask = mpt_zeros(c, MPT_F32, MPT_SHAPE(1, 1, 3, 3));
    mpt_scaled_dot_product_attention(x, x, x, &config);
    check_error(c, MPT_ERROR_SHAPE, "does not broadcast");
    config.mask = no_tensor();
    config.dropout = 1.5;
    mpt_scaled_dot_product_attention(x, x, x, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "1.5");
    config.dropout = 0, config.scale = (double)INFINITY;
    mpt_scaled_dot_product_attention(x, x, x, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "scale");
    config.dropout = 0.9, config.scale = 0;
    mpt_inference_begin(c);
    mpt_tensor y = mpt_scaled_dot_product_attention(x, x, x, &config);
    config.dropout = 0;
    CHECK(mpt_allclose(y, mpt_scaled_dot_product_attention(x, x, x, &config), 0, 0));
    mpt_inference_end(c);
    check_ok(c);
    mpt_destroy(c);
}

TEST(embeddings_and_their_loss_refuse) {
    mpt_context *c = make_context();
    int64_t some[4] = {0, 1, 2, 1};
    mpt_tensor ids = mpt_from(c, MPT_I64, MPT_SHAPE(4), some), w = ramp(c, MPT_SHAPE(3, 5));
    mpt_tensor x = ramp(c, MPT_SHAPE(4, 5));
    CHECK_EQ_INT(mpt_numel(mpt_embedding(ids, w, 2)), 20);
    mpt_embedding(ids, w, -2);
    check_error(c, MPT_ERROR_ARGUMENT, "padding_index -2");
    mpt_embedding(ids, w, 3);
    check_error(c, MPT_ERROR_ARGUMENT, "padding_index 3");
    mpt_embedding(ids, mpt_flatten(w, 0, -1), -1);
    check_error(c, MPT_ERROR_SHAPE, "weight [15]");
    mpt_embedding(mpt_reshape(ids, MPT_SHAPE(1, 1, 1, 1, 1, 1, 2, 2)), w, -1);
    check_error(c, MPT_ERROR_SHAPE, "at most 7 dimensions");
    mpt_nn_embedding(c, 3, 0, -1);
    check_error(c, MPT_ERROR_ARGUMENT, "0");
    mpt_nn_embedding(c, 3, 4, 3);
    check_error(c, MPT_ERROR_ARGUMENT, "3");
    mpt_nn_embedding(c, 3, 4, -2);
    check_error(c, MPT_ERROR_ARGUMENT, "-2");

    mpt_nll_config config = mpt_nll_config_default();
    static const char *const shapes = "expected [.., D], [V, D] and [..]";
    mpt_linear_cross_entropy(mpt_flatten(x, 0, -1), w, ids, NULL);
    check_error(c, MPT_ERROR_SHAPE, shapes);
    mpt_linear_cross_entropy(x, mpt_flatten(w, 0, -1), ids, NULL);
    check_error(c, MPT_ERROR_SHAPE, shapes);
    mpt_linear_cross_entropy(x, w, mpt_reshape(ids, MPT_SHAPE(2, 2)), NULL);
    check_error(c, MPT_ERROR_SHAPE, shapes);
    mpt_linear_cross_entropy(x, w, mpt_slice(ids, 0, 0, 3, 1), NULL);
    check_error(c, MPT_ERROR_SHAPE, shapes);
    mpt_linear_cross_entropy(x, ramp(c, MPT_SHAPE(3, 4)), ids, NULL);
    check_error(c, MPT_ERROR_SHAPE, shapes);
    mpt_linear_cross_entropy(x, w, mpt_cast(ids, MPT_F32), NULL);
    check_error(c, MPT_ERROR_DTYPE, "expected i64 class numbers");
    mpt_linear_cross_entropy(mpt_cast(x, MPT_I64), w, ids, NULL);
    check_error(c, MPT_ERROR_DTYPE, "argument 1");
    mpt_linear_cross_entropy(x, mpt_cast(w, MPT_I64), ids, NULL);
    check_error(c, MPT_ERROR_DTYPE, "argument 2");
    mpt_linear_cross_entropy(x, mpt_cast(w, MPT_F16), ids, NULL);
    check_error(c, MPT_ERROR_DTYPE, "float16");
    config.weight = mpt_ones(c, MPT_F32, MPT_SHAPE(4));
    mpt_linear_cross_entropy(x, w, ids, &config);
    check_error(c, MPT_ERROR_SHAPE, "class weights float32 [4]: expected float32 [3]");
    config.weight = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 1));
    mpt_linear_cross_entropy(x, w, ids, &config);
    check_error(c, MPT_ERROR_SHAPE, "class weights float32 [3, 1]");
    config.weight = mpt_ones(c, MPT_F16, MPT_SHAPE(3));
    mpt_linear_cross_entropy(x, w, ids, &config);
    check_error(c, MPT_ERROR_SHAPE, "class weights float16");
    config.weight = no_tensor(), config.label_smoothing = -0.1;
    mpt_linear_cross_entropy(x, w, ids, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "-0.1");
    mpt_tensor none = mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 5));
    mpt_tensor nobody = mpt_from(c, MPT_I64, MPT_SHAPE(0), NULL);
    config.label_smoothing = 0, config.reduction = MPT_SUM;
    CHECK_NEAR(mpt_item(mpt_linear_cross_entropy(none, w, nobody, &config)), 0, 0);
    check_ok(c);
    mpt_destroy(c);
}

/* Gradients where only some inputs want one. */
TEST(attention_backward_in_parts) {
    mpt_context *c = make_context();
    mpt_tensor grads[3];
    for (int want = 7; want > 0; want--) { /* all of them first: those of some are the same */
        mpt_tensor in[3];
        for (int i = 0; i < 3; i++) {
            in[i] = mpt_mul_scalar(ramp(c, MPT_SHAPE(2, 3, 4)), 1 + i);
            if (want >> i & 1) mpt_requires_grad(in[i], true);
        }
        mpt_tensor y = mpt_scaled_dot_product_attention(in[0], in[1], in[2], NULL);
        mpt_backward(mpt_sum(mpt_mul(y, y), MPT_ALL_DIMS, false));
        for (int i = 0; i < 3; i++) {
            CHECK_EQ_INT(mpt_has_grad(in[i]), want >> i & 1);
            if (want == 7) grads[i] = mpt_keep(mpt_grad(in[i]));
            if (want >> i & 1) CHECK(mpt_allclose(mpt_grad(in[i]), grads[i], 1e-6, 1e-7));
        }
    }
    check_ok(c);
    mpt_destroy(c);
}
#endif

#ifndef MPTRAIN_NO_FP8
TEST(fp8_at_the_rims) {
    mpt_context *c = make_context();
    mpt_fp8_config config = mpt_fp8_config_default();
    mpt_module net = mpt_sequential(c, mpt_nn_linear_no_bias(c, 16, 8), mpt_nn_relu(c), MPT_END);
    static const int bad[][2] = {{0, 0}, {1025, 0}, {16, -1}, {16, 33}};
    for (int i = 0; i < 4; i++) {
        config.history = bad[i][0], config.margin = bad[i][1];
        mpt_fp8(net, &config);
        check_error(c, MPT_ERROR_ARGUMENT, "expected 1..1024 and 0..32");
    }
    mpt_fp8(mpt_sequential(c, mpt_nn_relu(c), MPT_END), NULL);
    check_error(c, MPT_ERROR_ARGUMENT, "has no linear layer");
    config.history = 1, config.margin = 32;
    CHECK_EQ_INT(mpt_fp8(net, &config), MPT_OK);
    mpt_tensor x = ramp(c, MPT_SHAPE(16, 4));
    mpt_tensor turned = mpt_cast_fp8(mpt_transpose(x, 0, 1), MPT_F8E5M2, false);
    CHECK(mpt_allclose(mpt_cast(turned, MPT_F32), mpt_transpose(x, 0, 1), 0.25, 1e-2));
    mpt_forward(net, x);
    check_error(c, MPT_ERROR_SHAPE, "input [16, 4] does not fit weight [8, 16]");
    mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SCALAR));
    check_error(c, MPT_ERROR_SHAPE, "the last dimension has to be 16");
    mpt_forward(net, mpt_ones(c, MPT_I64, MPT_SHAPE(2, 16)));
    check_error(c, MPT_ERROR_DTYPE, "the input is int64");
    mpt_tensor y = mpt_forward(net, mpt_transpose(x, 0, 1)); /* a view */
    CHECK(mpt_allclose(y, mpt_forward(net, mpt_contiguous(mpt_transpose(x, 0, 1))), 0, 0));
    mpt_eval(net);
    mpt_tensor still = mpt_forward(net, mpt_transpose(x, 0, 1));
    mpt_inference_begin(c);
    CHECK(mpt_allclose(still, mpt_forward(net, mpt_transpose(x, 0, 1)), 0, 0));
    mpt_inference_end(c);
    mpt_fp8(net, NULL);
    check_error(c, MPT_ERROR_STATE, "the tree is in use; call mpt_fp8 before");
    mpt_train(net);
    mpt_parameter(net, "0.weight");
    mpt_requires_grad(x, true); /* a gradient for x through a frozen weight, too */
    mpt_backward(mpt_sum(mpt_forward(net, mpt_transpose(x, 0, 1)), MPT_ALL_DIMS, false));
    CHECK(mpt_has_grad(x));
    check_ok(c);
    mpt_destroy(c);
}
#endif

/* ==== Ops of the user ==== */

static struct {
    mpt_dtype seen;
    int does; /* what it does wrong */
} own;

static mpt_status own_forward(mpt_op_call *call, void *user) {
    mpt_tensor x = mpt_op_input(call, 0);
    (void)user;
    own.seen = mpt_get_dtype(x);
    if (own.does == 1) return MPT_OK; /* sets nothing */
    if (own.does == 2) return MPT_ERROR_NUMERIC;
    if (own.does == 3) mpt_op_set_output(call, 1, x);
    if (own.does == 4) mpt_op_save(call, 8, x);
    if (own.does == 5) mpt_op_set_input_grad(call, 0, x);
    if (own.does == 6) mpt_release(x);
    mpt_op_save(call, 0, x);
    return mpt_op_set_output(call, 0, mpt_mul(x, x));
}

static mpt_status own_backward(mpt_op_call *call, void *user) {
    mpt_tensor dy = mpt_op_output_grad(call, 0), x = mpt_op_saved(call, 0);
    (void)user;
    if (own.does == 7) return MPT_OK; /* no gradient */
    if (own.does == 8) return mpt_op_set_input_grad(call, 0, mpt_sum(dy, 0, false));
    if (own.does == 9) return mpt_op_set_output(call, 0, dy);
    if (own.does == 10) mpt_op_saved(call, 5); /* a null handle, and no error */
    if (own.does == 11) mpt_op_output_grad(call, 3);
    return mpt_op_set_input_grad(call, 0, mpt_mul(mpt_mul_scalar(x, 2), dy));
}

TEST(own_ops_and_autocast) {
    mpt_context *c = make_context();
    mpt_op_class cls = {"squared", MPT_AUTOCAST_INPUT, own_forward, own_backward, 1, 1};
    static const mpt_dtype seen[][2] = {
        {MPT_F32, MPT_F16}, {MPT_BF16, MPT_BF16}, {MPT_F32, MPT_F32}};
    own.does = 0;
    for (int k = 0; k < 3; k++) {
        cls.autocast = (mpt_autocast_class)k;
        mpt_op op = mpt_op_register(c, &cls, NULL);
        mpt_tensor x = ramp(c, MPT_SHAPE(2, 3)), half = mpt_cast(x, MPT_F16), y;
        mpt_requires_grad(x, true);
        mpt_autocast_begin(c, MPT_BF16);
        mpt_op_apply(op, &x, 1, &y, 1);
        CHECK_EQ_INT(own.seen, seen[k][0]);
        mpt_tensor z;
        mpt_op_apply(op, &half, 1, &z, 1);
        CHECK_EQ_INT(own.seen, seen[k][1]);
        mpt_tensor whole = mpt_ones(c, MPT_I64, MPT_SHAPE(2)), w;
        mpt_op_apply(op, &whole, 1, &w, 1); /* not a float: as it is */
        mpt_clear_error(c);
        mpt_autocast_end(c);
        mpt_clear_error(c);
        mpt_op_apply(op, &x, 1, &y, 1);
        mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
        CHECK(mpt_allclose(mpt_grad(x), mpt_mul_scalar(mpt_detach(x), 2), 1e-6, 0));
        check_ok(c);
    }
    mpt_op_class bad = cls;
    static const int counts[][2] = {{0, 1}, {1, 0}, {9, 1}, {1, 9}};
    for (int i = 0; i < 4; i++) {
        bad.n_inputs = counts[i][0], bad.n_outputs = counts[i][1];
        mpt_op_register(c, &bad, NULL);
        check_error(c, MPT_ERROR_ARGUMENT, "expected a class with a name");
    }
    bad = cls, bad.name = NULL;
    mpt_op_register(c, &bad, NULL);
    check_error(c, MPT_ERROR_ARGUMENT, "expected a class");
    mpt_destroy(c);
}

TEST(own_ops_that_do_wrong) {
    static const struct {
        mpt_status status;
        const char *text;
    } rows[] = {{MPT_OK, ""},
                {MPT_ERROR_STATE, "op squared did not set output 0"},
                {MPT_ERROR_NUMERIC, "op squared reported"},
                {MPT_ERROR_ARGUMENT, "index 1 is not in 0..0"},
                {MPT_ERROR_ARGUMENT, "index 8 is not in 0..7"},
                {MPT_ERROR_STATE, "to be called in backward only"},
                {MPT_ERROR_HANDLE, ""},
                {MPT_OK, ""},
                {MPT_ERROR_SHAPE, "squared"},
                {MPT_ERROR_STATE, "to be called in forward only"},
                {MPT_OK, ""},
                {MPT_ERROR_ARGUMENT, "index 3 is not in 0..0"}};
    mpt_context *c = make_context();
    mpt_op_class cls = {"squared", MPT_AUTOCAST_INPUT, own_forward, own_backward, 1, 1};
    mpt_op op = mpt_op_register(c, &cls, NULL);
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        mpt_tensor x = ramp(c, MPT_SHAPE(2, 3)), y = no_tensor();
        mpt_requires_grad(x, true);
        own.does = i;
        mpt_op_apply(op, &x, 1, &y, 1);
        if (mpt_failed(c)) CHECK_EQ_INT(y.slot, 0);
        mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
        CHECK_EQ_INT(mpt_error_code(c), rows[i].status);
        if (rows[i].status != MPT_OK) CHECK_CONTAINS(mpt_error(c), rows[i].text);
        mpt_clear_error(c);
        if (i != 6) mpt_release(x);
    }
    own.does = 0;
    mpt_tensor x = ramp(c, MPT_SHAPE(2, 3)), y;
    mpt_op_apply(op, NULL, 1, &y, 1);
    check_error(c, MPT_ERROR_ARGUMENT, "takes 1 inputs and 1 outputs");
    mpt_op_apply(op, &x, 1, NULL, 1);
    check_error(c, MPT_ERROR_ARGUMENT, "takes 1 inputs");
    mpt_op_apply(op, &x, 1, &y, 0);
    check_error(c, MPT_ERROR_ARGUMENT, "got 1 and 0");
    x = no_tensor();
    mpt_op_apply(op, &x, 1, &y, 1);
    check_error(c, MPT_ERROR_HANDLE, "null handle");
    mpt_destroy(c);
}

/* ==== Fit ==== */

#ifndef MPTRAIN_NO_FIT
static double now, tick;

static double look(void *user) {
    (void)user;
    return now += tick;
}

static char line[300];

static bool keep_line(void *user, const mpt_progress *progress) {
    if (progress->batch == 3) snprintf(line, sizeof line, "%s", progress->text);
    return !user || !progress->epoch_end;
}

static mpt_tensor scaled_loss(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user;
    return mpt_mul_scalar(mpt_mse_loss(output, target, MPT_MEAN), tick < 0 ? -1e9 : 1e9);
}

/* Many batches, targets that are no classes, figures that are huge or negative, clocks that stand
   still, run wild or go back: the line says what it can. */
TEST(progress_of_odd_figures) {
    static const struct {
        double tick;
        const char *loss, *left;
    } rows[] = {{0, "  3/12 loss 2.", "0 steps/s ETA 0 s"},
                {1, "] ", "ETA 27 s"},
                {700, "[#####-", "ETA 5:15:00"},
                {1e13, "e+09 ", "ETA -"},
                {-1, "loss -2.", "ETA -"},
                {(double)INFINITY, " ", "ETA -"}};
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        mpt_config config = mpt_config_default();
        config.threads = 1, config.clock.now = look;
        now = 0, tick = rows[i].tick;
        mpt_context *c = mpt_create(&config);
        static float values[24 * FEATURES];
        mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
        for (int k = 0; k < 24 * FEATURES; k++) values[k] = sample_value(k);
        m.count = 24, m.dtype = MPT_F32, m.shape = MPT_SHAPE(FEATURES), m.inputs = values;
        m.target_dtype = MPT_F32, m.target_shape = MPT_SHAPE(CLASSES), m.targets = values;
        mpt_dataset data = mpt_memory_dataset(c, &m);
        mpt_module net = make_net(c);
        mpt_optimizer optimizer = mpt_sgd(net, NULL);
        mpt_loader loader = make_loader_of(c, data, 2, 0, MPT_F32);
        mpt_fit_config fit = mpt_fit_config_default();
        mpt_set_lr(optimizer, -1, 0);
        fit.epochs = 1, fit.progress = keep_line, fit.loss = scaled_loss, fit.user = &fit;
        fit.validation = loader;
        mpt_fit_result r = mpt_fit(net, optimizer, make_loader_of(c, data, 2, 0, MPT_F32), &fit);
        CHECK_EQ_INT(r.status, MPT_OK);
        check_ok(c);
        CHECK_EQ_INT(r.steps, 12);
        CHECK(r.validation_accuracy != r.validation_accuracy); /* these are no classes */
        CHECK(i == 4 ? r.train_loss < 0 : r.train_loss > 0);
        fit.validation = no_loader();
        fit.user = NULL;
        r = mpt_fit(net, optimizer, make_loader_of(c, data, 2, 0, MPT_F32), &fit);
        CHECK_EQ_INT(r.status, MPT_OK);
        CHECK_CONTAINS(line, rows[i].loss);
        CHECK_CONTAINS(line, rows[i].left);
        mpt_destroy(c);
    }
}
#endif

/* ==== Pictures ==== */

#ifndef MPTRAIN_NO_FILES
TEST(transforms_that_make_no_sense) {
    mpt_context *c = make_context();
    static float values[5 * 4 * 4];
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    m.count = 1, m.dtype = MPT_F32, m.shape = MPT_SHAPE(1, 4, 4), m.inputs = values;
    mpt_dataset data = mpt_memory_dataset(c, &m);
    const double nan = (double)NAN, huge = (double)INFINITY;
    const int64_t side = (INT64_C(1) << 24) + 1;
#define BAD_STEP(kind, field, value, text) \
    do { \
        mpt_transform step = mpt_transform_default(kind, 2, 2); \
        step.field = value; \
        CHECK_EQ_INT(mpt_transformed(data, &step, 1).slot, 0); \
        check_error(c, mpt_error_code(c), text); \
    } while (0)
    BAD_STEP(MPT_RESIZE, height, side, "from 1 to 2^24");
    BAD_STEP(MPT_RESIZE, width, side, "from 1 to 2^24");
    BAD_STEP(MPT_RESIZE, width, -1, "from 1 to 2^24");
    BAD_STEP(MPT_RANDOM_CROP, padding, side, "padding of 0 to 2^24");
    BAD_STEP(MPT_RANDOM_CROP, width, 5, "a crop of 2 x 5 from 4 x 4");
    BAD_STEP(MPT_RANDOM_FLIP, p, -0.5, "a p outside [0, 1]");
    BAD_STEP(MPT_RANDOM_FLIP, p, nan, "a p outside [0, 1]");
    BAD_STEP(MPT_RESIZED_CROP, scale[1], 1.5, "needs 0 < scale");
    BAD_STEP(MPT_RESIZED_CROP, scale[1], 0.01, "needs 0 < scale");
    BAD_STEP(MPT_RESIZED_CROP, ratio[0], -1, "0 < ratio[0]");
    BAD_STEP(MPT_RESIZED_CROP, ratio[1], 1e7, "0 < ratio[0]");
    BAD_STEP(MPT_NORMALIZE, mean[0], nan, "finite means");
    BAD_STEP(MPT_NORMALIZE, deviation[0], huge, "positive deviations");
    BAD_STEP(MPT_NORMALIZE, deviation[0], 1e-60, "positive deviations");
    BAD_STEP(MPT_RESIZE, kind, (mpt_transform_kind)-1, "of no known kind");
#undef BAD_STEP
    mpt_transform step = mpt_transform_default(MPT_RESIZE, 2, 2);
    mpt_transformed(data, &step, -1);
    check_error(c, MPT_ERROR_ARGUMENT, "-1 steps");
    mpt_transformed(data, &step, 1000);
    check_error(c, MPT_ERROR_ARGUMENT, "1000 steps");
    static const mpt_shape shapes[] = {{3, {5, 4, 4}}, {4, {1, 1, 4, 4}}, {1, {16}}};
    for (int i = 0; i < 3; i++) {
        m.shape = shapes[i];
        mpt_transformed(mpt_memory_dataset(c, &m), &step, 1);
        check_error(c, MPT_ERROR_SHAPE, "at most 4 channels");
    }
    m.shape = MPT_SHAPE(4, 4), m.dtype = MPT_I64;
    static int64_t whole[16];
    m.inputs = whole;
    mpt_transformed(mpt_memory_dataset(c, &m), &step, 1);
    check_error(c, MPT_ERROR_SHAPE, "this dataset holds int64 [4, 4]");
    mpt_destroy(c);
}

/* A part that no draw can fit is the largest of the nearest shape in the middle. */
TEST(crops_of_parts_that_do_not_fit) {
    mpt_context *c = make_context();
    static float values[2 * 9];
    static const double ratios[][2] = {{8, 9}, {0.01, 0.02}};
    static const double means[] = {4, 8.5, 8.5, 8}; /* row 0 of 2, column 4 of 9, row 4, column 0 */
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    for (int i = 0; i < 18; i++) values[i] = (float)i;
    for (int i = 0; i < 4; i++) {
        bool tall = i / 2;
        mpt_transform step = mpt_transform_default(MPT_RESIZED_CROP, 1, 1);
        float got = -1;
        m.count = 1, m.dtype = MPT_F32, m.inputs = values;
        m.shape = tall ? MPT_SHAPE(9, 2) : MPT_SHAPE(2, 9);
        step.scale[0] = step.scale[1] = 1;
        step.ratio[0] = ratios[i % 2][0], step.ratio[1] = ratios[i % 2][1];
        mpt_dataset data = mpt_transformed(mpt_memory_dataset(c, &m), &step, 1);
        CHECK_EQ_INT(mpt_sample(data, 0, &got, NULL), MPT_OK);
        CHECK_NEAR(got, means[i], 1e-5);
        mpt_dataset_destroy(data);
    }
    check_ok(c);
    mpt_destroy(c);
}
#endif

/* ==== Just beyond ==== */

#define REFUSED(status, text, ...) \
    do { \
        (void)(__VA_ARGS__); \
        CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_##status); \
        CHECK_CONTAINS(mpt_error(c), text); \
        mpt_clear_error(c); \
    } while (0)

TEST(ops_refuse) {
    mpt_context *c = make_context();
    const double nan = (double)NAN;
    mpt_tensor x = ramp(c, MPT_SHAPE(4, 6)), scalar = mpt_full(c, MPT_F32, MPT_SCALAR, 2);
    mpt_tensor full = ramp(c, MPT_SHAPE(1, 1, 1, 1, 1, 1, 2, 3)), parts[4], order;
    mpt_tensor whole = mpt_cast(x, MPT_I64), classes = mpt_arange(c, MPT_I64, 4);
    mpt_shape odd = MPT_SHAPE(1, 2);
    mpt_nll_config config = mpt_nll_config_default();
    REFUSED(SHAPE, "has all the dimensions there can be", mpt_stack(&full, 1, 0));
    parts[0] = x, parts[1] = no_tensor();
    REFUSED(HANDLE, "argument 2 is a null handle", mpt_cat(parts, 2, 0));
    CHECK_EQ_INT(mpt_cat(NULL, 2, 0).slot, 0);
    CHECK_EQ_INT(mpt_cat(parts, 0, 0).slot, 0);
    mpt_clear_error(c); /* what has no context is this one's error */
    parts[1] = ramp(c, MPT_SHAPE(4, 5));
    REFUSED(SHAPE, "[4, 5]", mpt_cat(parts, 2, 0));
    REFUSED(ARGUMENT, "parts of 1 or more", mpt_split_tensor(x, 0, 0, parts, 4));
    REFUSED(ARGUMENT, "where to put them", mpt_split_tensor(x, 1, 0, NULL, 4));
    REFUSED(ARGUMENT, "parts of 1 or more", mpt_chunk(x, 0, 0, parts, 4));
    REFUSED(ARGUMENT, "6 parts, but room for 4", mpt_split_tensor(x, 1, 1, parts, 4));
    CHECK_EQ_INT(mpt_chunk(x, 3, 0, parts, 4), 2); /* 2 and 2: as PyTorch */
    CHECK_EQ_INT(mpt_chunk(x, 9, 0, parts, 4), 4);
    CHECK_EQ_INT(mpt_split_tensor(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 2)), 3, 0, parts, 4), 1);
    CHECK_EQ_INT(mpt_chunk(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 2)), 3, 0, parts, 4), 3);
    REFUSED(ARGUMENT, "5 parts, but room for 4",
            mpt_chunk(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 2)), 5, 0, parts, 4));
    CHECK_EQ_INT(mpt_numel(mpt_roll(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 2)), 3, 0)), 0);
    CHECK(mpt_allclose(mpt_roll(x, -1, 0), mpt_roll(x, 3, 0), 0, 0));
    CHECK(mpt_allclose(mpt_tril(x, INT64_MAX), x, 0, 0)); /* diagonals beyond any matrix */
    CHECK(mpt_allclose(mpt_triu(x, INT64_MIN), x, 0, 0));
    CHECK_NEAR(sum_of(mpt_abs(mpt_tril(x, INT64_MIN))), 0, 0);
    CHECK_NEAR(sum_of(mpt_abs(mpt_triu(x, INT64_MAX))), 0, 0);
    check_ok(c);
    REFUSED(ARGUMENT, "expected a number for each dimension", mpt_repeat(x, MPT_SHAPE(2)));
    REFUSED(ARGUMENT, "expected a number for each dimension", mpt_repeat(x, MPT_SHAPE(-1, 1)));
    REFUSED(ARGUMENT, "expected a number for each dimension",
            mpt_repeat(x, MPT_SHAPE(INT64_MAX / 8, INT64_MAX / 8)));
    odd.rank = 9;
    REFUSED(ARGUMENT, "expected a number for each dimension", mpt_repeat(x, odd));
    REFUSED(ARGUMENT, "9 sizes are not in 0..8", mpt_pad(x, odd, 0));
    REFUSED(SHAPE, "rank 9 is not in 0..8", mpt_reshape(x, odd));
    odd.rank = -1;
    REFUSED(ARGUMENT, "-1 sizes are not in 0..8", mpt_pad(x, odd, 0));
    REFUSED(SHAPE, "rank -1 is not in 0..8", mpt_permute(x, odd));
    REFUSED(SHAPE, "has 24 elements and cannot become", mpt_reshape(x, MPT_SHAPE(-1, -1)));
    REFUSED(SHAPE, "has 24 elements and cannot become", mpt_reshape(x, MPT_SHAPE(5, -1)));
    REFUSED(SHAPE, "has 24 elements and cannot become",
            mpt_reshape(x, MPT_SHAPE(INT64_MAX, INT64_MAX)));
    REFUSED(ARGUMENT, "is no order of the 2 dimensions", mpt_permute(x, MPT_SHAPE(0, 0)));
    REFUSED(ARGUMENT, "is no order of the 2 dimensions", mpt_permute(x, MPT_SHAPE(0, 2)));
    REFUSED(ARGUMENT, "lies before first_dim 1", mpt_flatten(x, 1, 0));
    CHECK_EQ_INT(mpt_numel(mpt_flatten(scalar, 0, 0)), 1);
    REFUSED(ARGUMENT, "k = -1", mpt_topk(x, -1, 0, true, &order));
    CHECK_EQ_INT(order.slot, 0);
    REFUSED(ARGUMENT, "k = -1", mpt_topk(x, -1, 0, true, NULL));
    REFUSED(ARGUMENT, "min 1, max 0", mpt_clamp(x, 1, 0));
    REFUSED(ARGUMENT, "min", mpt_hardtanh(x, nan, 0));
    REFUSED(ARGUMENT, "expected beta > 0", mpt_softplus(x, 0, 20));
    REFUSED(ARGUMENT, "expected beta > 0", mpt_softplus(x, 1, nan));
    REFUSED(ARGUMENT, "p = 1.5", mpt_dropout(x, 1.5));
    REFUSED(ARGUMENT, "p = nan", mpt_dropout(x, nan));
    REFUSED(DTYPE, "argument 1 is int64", mpt_exp(whole));
    REFUSED(SHAPE, "both need at least one dimension", mpt_matmul(x, scalar));
    REFUSED(SHAPE, "both need at least one dimension", mpt_matmul(scalar, x));
    REFUSED(SHAPE, "leading dimensions do not broadcast",
            mpt_matmul(ramp(c, MPT_SHAPE(2, 3, 4)), ramp(c, MPT_SHAPE(3, 4, 2))));
    REFUSED(SHAPE, "expected [.., in] and [out, in]",
            mpt_linear(x, mpt_flatten(x, 0, 1), no_tensor(), MPT_ACTIVATION_NONE));
    REFUSED(SHAPE, "bias", mpt_linear(x, x, x, MPT_ACTIVATION_NONE));
    REFUSED(SHAPE, "bias", mpt_linear(x, x, ramp(c, MPT_SHAPE(5)), MPT_ACTIVATION_NONE));
    REFUSED(SHAPE, "expected [.., in] and [out, in]",
            mpt_linear(scalar, x, no_tensor(), MPT_ACTIVATION_NONE));
    REFUSED(ARGUMENT, "expected 1 or more, and at most 7 dimensions",
            mpt_one_hot(mpt_cast(full, MPT_I64), 3));
    REFUSED(ARGUMENT, "expected 1 or more, and at most 7 dimensions", mpt_one_hot(classes, 0));
    REFUSED(DTYPE, "indices are float32: expected i64", mpt_gather(x, 0, x));
    REFUSED(SHAPE, "differ outside dimension 0", mpt_gather(x, 0, classes));
    REFUSED(SHAPE, "expected the same sizes, but for dimension 1",
            mpt_scatter_add(x, 1, mpt_reshape(classes, MPT_SHAPE(4, 1)), x));
    REFUSED(SHAPE, "indices [4, 6]: expected one dimension", mpt_index_select(x, 0, whole));
    /* 2^53 + 1 is no double, 2^31 no i32, 0.5 and 300 no whole bytes: such are compared in fp32 */
    CHECK_NEAR(sum_of(mpt_lt_scalar(whole, 1e300)), 24, 0);
    CHECK_NEAR(sum_of(mpt_lt_scalar(mpt_cast(x, MPT_I32), -1e300)), 0, 0);
    CHECK_NEAR(sum_of(mpt_gt_scalar(classes, 0.5)), 3, 0);
    CHECK_NEAR(sum_of(mpt_ge_scalar(mpt_cast(classes, MPT_U8), 0)), 4, 0);
    CHECK_NEAR(sum_of(mpt_eq_scalar(mpt_cast(classes, MPT_U8), 3)), 1, 0);
    CHECK_NEAR(sum_of(mpt_ne_scalar(classes, nan)), 4, 0);
    check_ok(c);

    /* Losses. */
    mpt_tensor square = ramp(c, MPT_SHAPE(4, 4)), weight = mpt_ones(c, MPT_F32, MPT_SHAPE(4));
    REFUSED(DTYPE, "expected i64 class numbers", mpt_nll_loss(square, square, NULL));
    REFUSED(SHAPE, "expected [N, C] and [N]", mpt_nll_loss(x, mpt_arange(c, MPT_I64, 5), NULL));
    REFUSED(SHAPE, "or [C] and a 0-d target", mpt_nll_loss(weight, classes, NULL));
    REFUSED(SHAPE, "[N, C, d1..]", mpt_cross_entropy(ramp(c, MPT_SHAPE(2, 3, 4)), classes, NULL));
    REFUSED(SHAPE, "[N, C, d1..]",
            mpt_cross_entropy(ramp(c, MPT_SHAPE(2, 3, 4)),
                              mpt_cast(ramp(c, MPT_SHAPE(2, 5)), MPT_I64), NULL));
    config.weight = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 1));
    REFUSED(SHAPE, "weight float32 [4, 1]: expected float32 [4]",
            mpt_nll_loss(square, classes, &config));
    REFUSED(SHAPE, "weight [4, 1]: expected [4]", mpt_cross_entropy(square, square, &config));
    config.weight = mpt_ones(c, MPT_F16, MPT_SHAPE(4));
    REFUSED(SHAPE, "weight float16", mpt_nll_loss(square, classes, &config));
    config.weight = mpt_ones(c, MPT_F32, MPT_SHAPE(3));
    REFUSED(SHAPE, "weight [3]: expected [4]", mpt_cross_entropy(square, square, &config));
    config.weight = no_tensor(), config.label_smoothing = 1.5;
    REFUSED(ARGUMENT, "label_smoothing 1.5", mpt_cross_entropy(square, classes, &config));
    config.label_smoothing = -1;
    REFUSED(DTYPE, "expected i64 class numbers", mpt_cross_entropy(square, square, &config));
    config.label_smoothing = 0, config.ignore_index = 2;
    REFUSED(ARGUMENT, "ignore_index 2 has no meaning", mpt_cross_entropy(square, square, &config));
    config.ignore_index = -100, config.reduction = (mpt_reduction)9;
    REFUSED(ARGUMENT, "reduction 9", mpt_cross_entropy(square, classes, &config));
    REFUSED(ARGUMENT, "p = 3: expected 1 or 2",
            mpt_multi_margin_loss(square, classes, 3, 1, no_tensor(), MPT_MEAN));
    REFUSED(SHAPE, "and a weight [C] or none",
            mpt_multi_margin_loss(square, classes, 1, 1, square, MPT_MEAN));
    REFUSED(SHAPE, "and a weight [C] or none",
            mpt_multi_margin_loss(square, square, 1, 1, no_tensor(), MPT_MEAN));
    REFUSED(SHAPE, "[N, C] and [N]",
            mpt_multi_margin_loss(x, mpt_arange(c, MPT_I64, 5), 1, 1, no_tensor(), MPT_MEAN));
    REFUSED(ARGUMENT, "margin",
            mpt_multi_margin_loss(square, classes, 1, nan, no_tensor(), MPT_MEAN));
    REFUSED(SHAPE, "equal shapes of one dimension", mpt_cosine_similarity(x, square, 1, 1e-8));
    REFUSED(SHAPE, "equal shapes of one dimension", mpt_cosine_similarity(scalar, scalar, 0, 1e-8));
    REFUSED(DTYPE, "expected a float dtype", mpt_cosine_similarity(whole, whole, 1, 1e-8));
    mpt_destroy(c);
}

#ifndef MPTRAIN_NO_CONV
TEST(layers_of_images_refuse) {
    mpt_context *c = make_context();
    mpt_tensor x = ramp(c, MPT_SHAPE(2, 4, 5, 5)), w = ramp(c, MPT_SHAPE(6, 4, 3, 3));
    mpt_tensor none = no_tensor(), flat = ramp(c, MPT_SHAPE(4));
    const int64_t far = (int64_t)INT32_MAX + 1;
    static const struct {
        int64_t stride, padding, output_padding, dilation, groups;
        bool same, transposed;
        const char *text;
    } rows[] = {{0, 0, 0, 1, 1, false, false, "stride and dilation"},
                {1, 0, 0, 0, 1, false, false, "stride and dilation"},
                {INT64_MAX, 0, 0, 1, 1, false, false, "stride and dilation"},
                {1, -1, 0, 1, 1, false, false, "padding: expected 0 to 2^31"},
                {1, INT64_MAX, 0, 1, 1, false, false, "padding: expected 0 to 2^31"},
                {1, 0, 1, 1, 1, false, false, "only a transposed convolution has one"},
                {1, 0, -1, 1, 1, false, true, "0 to less than stride or dilation"},
                {2, 0, 2, 1, 1, false, true, "0 to less than stride or dilation"},
                {1, 0, 0, 1, 0, false, false, "groups: expected 1 to 2^31"},
                {1, 0, 0, 1, INT64_MAX, false, false, "groups: expected 1 to 2^31"},
                {2, 0, 0, 1, 1, true, false, "same: only with stride 1"},
                {1, 0, 0, 1, 1, true, true, "same: only with stride 1"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_conv_config config = mpt_conv_config_default();
        for (int d = 0; d < 2; d++) {
            config.stride[d] = rows[i].stride, config.padding[d] = rows[i].padding;
            config.output_padding[d] = rows[i].output_padding;
            config.dilation[d] = rows[i].dilation;
        }
        config.groups = rows[i].groups, config.same = rows[i].same;
        if (rows[i].transposed)
            REFUSED(ARGUMENT, rows[i].text, mpt_conv_transpose2d(x, w, none, &config));
        else
            REFUSED(ARGUMENT, rows[i].text, mpt_conv2d(x, w, none, &config));
    }
    mpt_conv_config config = mpt_conv_config_default();
    REFUSED(SHAPE, "expected 4 dimensions each", mpt_conv2d(flat, w, none, NULL));
    REFUSED(SHAPE, "expected 4 dimensions each", mpt_conv2d(x, flat, none, NULL));
    REFUSED(SHAPE, "does not fit weight",
            mpt_conv2d(x, ramp(c, MPT_SHAPE(6, 5, 3, 3)), none, NULL));
    REFUSED(SHAPE, "[N, C, ..] and [C, O", mpt_conv_transpose2d(x, w, none, NULL));
    REFUSED(SHAPE, "does not fit",
            mpt_conv2d(x, mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 4, 3, 3)), none, NULL));
    REFUSED(SHAPE, "does not fit",
            mpt_conv2d(mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 0, 5, 5)),
                       mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 0, 3, 3)), none, NULL));
    config.groups = 3;
    REFUSED(SHAPE, "in 3 groups", mpt_conv2d(x, w, none, &config));
    REFUSED(SHAPE, "bias [4]: expected [6]", mpt_conv2d(x, w, flat, NULL));
    REFUSED(SHAPE, "bias [2, 3]", mpt_conv2d(x, w, ramp(c, MPT_SHAPE(2, 3)), NULL));
    REFUSED(SHAPE, "no output: dimension 2",
            mpt_conv2d(ramp(c, MPT_SHAPE(2, 4, 2, 5)), w, none, NULL));
    REFUSED(SHAPE, "larger than 2^31 - 1",
            mpt_conv2d(mpt_expand(ramp(c, MPT_SHAPE(1, 4, 1, 1)), MPT_SHAPE(1, 4, far, 1)),
                       ramp(c, MPT_SHAPE(1, 4, 1, 1)), none, NULL));
    REFUSED(SHAPE, "no output",
            mpt_conv2d(x, mpt_zeros(c, MPT_F32, MPT_SHAPE(6, 4, 0, 3)), none, NULL));

    static const struct {
        int64_t window, step, padding;
        const char *text;
    } pools[] = {{0, 1, 0, "expected 1 to 2^30"},
                 {INT64_MAX, 1, 0, "expected 1 to 2^30"},
                 {2, -1, 0, "expected 1 to 2^30"},
                 {2, INT64_MAX, 0, "expected 1 to 2^30"},
                 {2, 1, -1, "0 to half the window of 2"},
                 {2, 1, 2, "0 to half the window of 2"},
                 {6, 1, 0, "no output"}};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) {
        mpt_pool_config pool =
            mpt_pool_config_make(pools[i].window, pools[i].step, pools[i].padding);
        mpt_max_pool2d(x, &pool);
        mpt_status status = mpt_error_code(c);
        check_error(c, status, pools[i].text);
        CHECK(status != MPT_OK);
    }
    mpt_pool_config two = mpt_pool_config_make(2, 2, 1);
    two.ceil_mode = true;
    CHECK_EQ_INT(mpt_get_shape(mpt_max_pool2d(ramp(c, MPT_SHAPE(1, 1, 4, 4)), &two)).dim[2], 3);
    two.padding[0] = two.padding[1] = 0;
    CHECK_EQ_INT(mpt_get_shape(mpt_avg_pool2d(x, &two)).dim[3], 3);
    REFUSED(SHAPE, "expected [N, C, H, W]", mpt_max_pool2d(flat, &two));
    REFUSED(ARGUMENT, "expected 1 to 2^30", mpt_adaptive_avg_pool2d(x, 0, 1));
    REFUSED(SHAPE, "no output",
            mpt_adaptive_max_pool2d(mpt_zeros(c, MPT_F32, MPT_SHAPE(1, 1, 0, 2)), 1, 1));
    REFUSED(
        SHAPE, "more than 2^31 - 1 places in an image",
        mpt_adaptive_max_pool2d(
            mpt_expand(ramp(c, MPT_SHAPE(1, 1, 1, 1)), MPT_SHAPE(1, 1, 1 << 20, 1 << 20)), 1, 1));

    REFUSED(ARGUMENT, "groups", mpt_group_norm(x, 0, none, none, 1e-5));
    REFUSED(ARGUMENT, "3 groups do not divide the 4 channels",
            mpt_group_norm(x, 3, none, none, 1e-5));
    REFUSED(ARGUMENT, "eps inf", mpt_layer_norm(x, 1, none, none, (double)INFINITY));
    REFUSED(ARGUMENT, "eps -1", mpt_rms_norm(x, 1, none, -1));
    REFUSED(ARGUMENT, "mean and variance, or neither",
            mpt_batch_norm(x, flat, none, none, none, 1e-5));
    REFUSED(SHAPE, "one value for each channel",
            mpt_batch_norm(ramp(c, MPT_SHAPE(1, 4)), none, none, none, none, 1e-5));
    CHECK_EQ_INT(mpt_numel(mpt_batch_norm(mpt_zeros(c, MPT_F32, MPT_SHAPE(3, 0)), none, none, none,
                                          none, 1e-5)),
                 0);
    CHECK_EQ_INT(
        mpt_numel(mpt_layer_norm(mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 4)), 1, none, none, 1e-5)), 0);
    check_ok(c);
    REFUSED(SHAPE, "at least", mpt_batch_norm(flat, none, none, none, none, 1e-5));
    REFUSED(SHAPE, "pixels to choose from",
            mpt_interpolate(flat, MPT_SCALAR, 2, MPT_NEAREST, false));
    REFUSED(SHAPE, "pixels to choose from",
            mpt_interpolate(mpt_zeros(c, MPT_F32, MPT_SHAPE(1, 1, 2, 0)), MPT_SCALAR, 2,
                            MPT_NEAREST, false));
    REFUSED(SHAPE, "1 to 2^30", mpt_interpolate(x, MPT_SCALAR, 0.1, MPT_NEAREST, false));
    REFUSED(SHAPE, "1 to 2^30", mpt_interpolate(x, MPT_SCALAR, 1e300, MPT_NEAREST, false));
    REFUSED(SHAPE, "1 to 2^30", mpt_interpolate(x, MPT_SHAPE(1, far), 0, MPT_NEAREST, false));
    mpt_destroy(c);
}
#endif

/* No elements go through the norms, forward and backward: gradients of weights are zeros. */
TEST(norms_of_nothing) {
    mpt_context *c = make_context();
    for (int i = 0; i < 3; i++) {
        mpt_tensor x = mpt_zeros(c, MPT_F32, MPT_SHAPE(0, 4));
        mpt_tensor w = mpt_ones(c, MPT_F32, MPT_SHAPE(4)), b = mpt_ones(c, MPT_F32, MPT_SHAPE(4));
        mpt_requires_grad(x, true);
        mpt_requires_grad(w, true);
        mpt_requires_grad(b, true);
        mpt_tensor y = i == 0   ? mpt_layer_norm(x, 1, w, b, 1e-5)
                       : i == 1 ? mpt_rms_norm(x, 1, w, 1e-5)
                                : mpt_batch_norm(x, w, b, no_tensor(), no_tensor(), 1e-5);
        mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
        if (mpt_failed(c) && strstr(mpt_error(c), "built without")) break;
        check_ok(c);
        if (i < 2) CHECK_NEAR(sum_of(mpt_grad(w)), 0, 0);
        if (i == 0) CHECK_NEAR(sum_of(mpt_grad(b)), 0, 0);
    }
    mpt_destroy(c);
}

TEST(initial_values) {
    mpt_context *c = make_context();
    static const mpt_init_kind kinds[] = {
        MPT_INIT_DEFAULT,        MPT_INIT_ZEROS,         MPT_INIT_ONES,
        MPT_INIT_CONSTANT,       MPT_INIT_UNIFORM,       MPT_INIT_NORMAL,
        MPT_INIT_XAVIER_UNIFORM, MPT_INIT_XAVIER_NORMAL, MPT_INIT_KAIMING_UNIFORM,
        MPT_INIT_KAIMING_NORMAL};
    static const mpt_shape shapes[] = {{0, {0}}, {1, {3}}, {2, {0, 0}}, {3, {2, 3, 4}}};
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 2, 2), MPT_END);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (size_t i = 0; i < 4; i++) {
            char name[32];
            snprintf(name, sizeof name, "p%d_%d", (int)k, (int)i);
            mpt_add_parameter(net, name, shapes[i], mpt_init_make(kinds[k], 0.5, 2));
        }
    }
    check_ok(c);
    CHECK_NEAR(mpt_item(mpt_parameter(net, "p1_0")), 0, 0);
    CHECK_NEAR(mpt_item(mpt_parameter(net, "p2_0")), 1, 0);
    CHECK_NEAR(mpt_item(mpt_parameter(net, "p3_0")), 0.5, 0);
    double value = mpt_item(mpt_parameter(net, "p4_0"));
    CHECK(value >= 0.5 && value < 2);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        char name[32];
        snprintf(name, sizeof name, "p%d_3", (int)k);
        mpt_tensor_stats stats = mpt_statistics(mpt_parameter(net, name));
        CHECK_EQ_INT(stats.nans + stats.infinities, 0);
        /* fans of 3 * 4 and 2 * 4 */
        if (kinds[k] == MPT_INIT_XAVIER_UNIFORM)
            CHECK(stats.max <= 0.5 * sqrt(6.0 / 20) && stats.max > 0.1);
        if (kinds[k] == MPT_INIT_KAIMING_UNIFORM)
            CHECK(stats.max <= 0.5 * sqrt(3.0 / 12) && stats.max > 0.1);
    }
    check_ok(c);
    mpt_module other = mpt_sequential(c, mpt_nn_linear(c, 2, 2), MPT_END);
    REFUSED(ARGUMENT, "must be finite",
            mpt_set_init(other, "0.weight", mpt_init_make(MPT_INIT_NORMAL, 0, (double)NAN)));
    REFUSED(ARGUMENT, "must be finite",
            mpt_set_init(other, "0.weight", mpt_init_make(MPT_INIT_NORMAL, (double)INFINITY, 0)));
    REFUSED(ARGUMENT, "none of mpt_init_kind",
            mpt_set_init(other, "0.weight", mpt_init_make((mpt_init_kind)-1, 0, 0)));
    REFUSED(ARGUMENT, "none of mpt_init_kind",
            mpt_set_init(other, "0.weight", mpt_init_make((mpt_init_kind)99, 0, 0)));
    mpt_destroy(c);
}

TEST(data_refuses) {
    mpt_context *c = make_context();
    static float values[64];
    static int64_t labels[8];
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    m.count = 4, m.shape = MPT_SHAPE(2), m.inputs = values, m.dtype = MPT_F32;
    m.targets = labels, m.target_dtype = MPT_DTYPE_NONE;
    REFUSED(DTYPE, "given without a target_dtype", mpt_memory_dataset(c, &m));
    m.target_dtype = MPT_U8;
    REFUSED(DTYPE, "target dtype uint8", mpt_memory_dataset(c, &m));
    m.target_dtype = MPT_I64, m.target_shape = MPT_SHAPE(0);
    REFUSED(SHAPE, "target shape [0]: every dimension", mpt_memory_dataset(c, &m));
    m.target_shape = MPT_SCALAR, m.dtype = MPT_F8E4M3;
    REFUSED(DTYPE, "input dtype", mpt_memory_dataset(c, &m));
    m.dtype = MPT_F8E5M2;
    REFUSED(DTYPE, "input dtype", mpt_memory_dataset(c, &m));
    m.dtype = MPT_DTYPE_NONE;
    REFUSED(DTYPE, "input dtype none", mpt_memory_dataset(c, &m));
    m.dtype = MPT_F32, m.shape.rank = -1;
    REFUSED(SHAPE, "input shape of rank -1", mpt_memory_dataset(c, &m));
    m.shape = MPT_SHAPE(INT64_MAX / 2, INT64_MAX / 2);
    REFUSED(SHAPE, "more than memory holds", mpt_memory_dataset(c, &m));
    m.shape = MPT_SHAPE(2);
    mpt_dataset data = mpt_memory_dataset(c, &m);
    CHECK_EQ_INT(mpt_dataset_size(data), 4);
    CHECK(mpt_class_name(data, 0) == NULL && mpt_class_name(data, -1) == NULL);
    const double nan = (double)NAN, huge = (double)INFINITY;
    REFUSED(ARGUMENT, "must be finite", mpt_normalize(data, nan, 1));
    REFUSED(ARGUMENT, "must be finite", mpt_normalize(data, 0, huge));
    REFUSED(ARGUMENT, "the deviation positive", mpt_normalize(data, 0, 1e-60));
    static double fractions[65] = {0.0001, 0.9999};
    mpt_dataset parts[65];
    CHECK_EQ_INT(mpt_random_split(data, fractions, 2, 1, parts), MPT_OK);
    CHECK_EQ_INT(mpt_dataset_size(parts[0]) + mpt_dataset_size(parts[1]), 4);
    for (int i = 0; i < 65; i++) fractions[i] = 1.0 / 64;
    REFUSED(ARGUMENT, "part 4 (fraction 0.015625) of 4 samples is empty",
            mpt_random_split(data, fractions, 64, 1, parts));
    REFUSED(ARGUMENT, "n is 65", mpt_random_split(data, fractions, 65, 1, parts));
    fractions[0] = 1.5;
    REFUSED(ARGUMENT, "fraction 0 is 1.5", mpt_random_split(data, fractions, 2, 1, parts));
    fractions[0] = nan;
    REFUSED(ARGUMENT, "fraction 0 is nan", mpt_random_split(data, fractions, 2, 1, parts));

    double weights[4] = {1, 2, 3, 0};
#define LOADER(field, value, text) \
    do { \
        mpt_loader_config l = mpt_loader_config_default(); \
        l.workers = l.prefetch; /* some, where that counts */ \
        l.field = value; \
        REFUSED(ARGUMENT, text, mpt_loader_create(c, data, &l)); \
    } while (0)
    LOADER(batch, 0, "batch is 0");
    LOADER(workers, -1, "workers is -1");
    LOADER(workers, 65, "workers is 65");
    LOADER(prefetch, 0, "prefetch is 0");
    LOADER(prefetch, 1000000, "prefetch is 1000000");
    LOADER(samples, -1, "samples is -1");
    LOADER(samples, INT64_MAX, "samples is 9223372036854775807");
    LOADER(samples, 3, "counts those that weights draw");
    LOADER(world, 0, "rank 0 of world 0");
    LOADER(rank, -1, "rank -1 of world 1");
    LOADER(rank, 1, "rank 1 of world 1");
    weights[1] = -1;
    LOADER(weights, weights, "weight 1 is -1");
    weights[1] = nan;
    LOADER(weights, weights, "weight 1 is nan");
    weights[1] = huge;
    LOADER(weights, weights, "weight 1 is inf");
    memset(weights, 0, sizeof weights);
    LOADER(weights, weights, "the weights sum to 0");
#undef LOADER
    mpt_loader loader = make_loader_of(c, data, 2, 0, MPT_F32);
    REFUSED(INDEX, "batch 3 of epoch 0", mpt_loader_seek(loader, 0, 3));
    REFUSED(INDEX, "batch -1", mpt_loader_seek(loader, 0, -1));
    REFUSED(INDEX, "epoch -1", mpt_loader_seek(loader, -1, 0));
    REFUSED(INDEX, "0 to 2^59", mpt_loader_seek(loader, INT64_MAX, 0));
    mpt_batch b;
    CHECK_EQ_INT(mpt_loader_seek(loader, 1, 2), MPT_OK); /* the end of the epoch */
    CHECK(!mpt_loader_next(loader, &b));
    check_ok(c);

    int64_t counts[2];
    mpt_tensor x = ramp(c, MPT_SHAPE(4));
    REFUSED(ARGUMENT, "finite low < high", mpt_histogram(x, nan, 1, counts, 2));
    REFUSED(ARGUMENT, "2 bins from -1e+308 to 1e+308", mpt_histogram(x, -1e308, 1e308, counts, 2));
    mpt_destroy(c);
}

/* ==== All that there can be ==== */

/* Scalars of the device are a thousand: what is refused takes none, what is destroyed gives its
   own back. */
TEST(scalars_run_out) {
    mpt_context *c = make_context();
    static mpt_scaler scalers[1024];
    int counts[3] = {0, 0, 0};
    mpt_tensor one = mpt_ones(c, MPT_F32, MPT_SCALAR);
    for (int round = 0; round < 3; round++) {
        int n = 0;
        while (n < 1024 && (scalers[n] = mpt_grad_scaler(c, NULL)).slot) n++;
        counts[round] = n;
        check_error(c, MPT_ERROR_MEMORY,
                    "device scalars are in use; destroy optimizers or scalers");
        for (int i = 0; i < 12; i++) { /* one slot more is taken, or none */
            char name[8];
            snprintf(name, sizeof name, "m%d", i);
            mpt_metric_push(c, name, one);
            if (mpt_failed(c)) break;
        }
        mpt_clear_error(c);
        for (int i = 0; i < n; i++) CHECK_EQ_INT(mpt_scaler_destroy(scalers[i]), MPT_OK);
        check_ok(c);
    }
    CHECK(counts[0] > 50);
    CHECK(counts[1] >= counts[0] - 3 && counts[2] >= counts[1] - 3); /* metrics stay */
    for (int i = 0; i < 16; i++) {
        char name[8];
        snprintf(name, sizeof name, "m%d", i);
        CHECK_EQ_INT(mpt_metric_push(c, name, one), MPT_OK);
    }
    check_ok(c);
    REFUSED(ARGUMENT, "metric \"m16\": at most 16 metrics", mpt_metric_push(c, "m16", one));
    mpt_destroy(c);
}

/* The longest name of a metric, and one that is longer by a byte; it is not cut in silence. */
TEST(names_of_metrics) {
    mpt_context *c = mpt_create(NULL);
    mpt_tensor one = mpt_ones(c, MPT_F32, MPT_SCALAR);
    char name[49];
    memset(name, 'n', sizeof name);
    name[48] = '\0';
    REFUSED(ARGUMENT, "names of at most 47 characters", mpt_metric_push(c, name, one));
    name[47] = '\0';
    CHECK_EQ_INT(mpt_metric_push(c, name, one), MPT_OK);
    CHECK(mpt_metric_mean(c, name, true) == 1);
    check_ok(c);
    mpt_destroy(c);
}

static mpt_status pass_on(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                          mpt_tensor *out, int n_out) {
    (void)self, (void)n_in, (void)n_out;
    ++*(int *)user;
    out[0] = mpt_neg(in[0]);
    return MPT_OK;
}

static void count_end(void *user) { *(int *)user += 100; }

TEST(modules_at_their_limits) {
    mpt_context *c = make_context();
    int calls = 0;
    mpt_module_class cls = {"own", pass_on, count_end, NULL, NULL, 1, 1};
    mpt_module own_module = mpt_module_create(c, &cls, &calls);
    mpt_tensor x = ramp(c, MPT_SHAPE(2, 2)), out[2];
    CHECK(mpt_allclose(mpt_forward(own_module, x), mpt_neg(x), 0, 0));
    mpt_tensor pair[2] = {x, x};
    REFUSED(ARGUMENT, "own takes 1 inputs and 1 outputs, got 2 and 1",
            mpt_forward_n(own_module, pair, 2, out, 1));
    REFUSED(ARGUMENT, "got 1 and 2", mpt_forward_n(own_module, pair, 1, out, 2));
    REFUSED(ARGUMENT, "at least one input and one output",
            mpt_forward_n(own_module, NULL, 1, out, 1));
    REFUSED(ARGUMENT, "at least one input and one output",
            mpt_forward_n(own_module, pair, 1, NULL, 1));
    REFUSED(ARGUMENT, "at least one input and one output",
            mpt_forward_n(own_module, pair, 0, out, 1));
    REFUSED(ARGUMENT, "relu takes one input and one output",
            mpt_forward_n(mpt_nn_relu(c), pair, 2, out, 1));
    CHECK_EQ_INT(mpt_module_destroy(own_module), MPT_OK);
    CHECK_EQ_INT(calls, 101); /* and its destroy has run, once */
    cls.forward = NULL;
    REFUSED(ARGUMENT, "with a name and a forward", mpt_module_create(c, &cls, &calls));
    cls.forward = pass_on, cls.name = NULL;
    REFUSED(ARGUMENT, "with a name and a forward", mpt_module_create(c, &cls, &calls));
    REFUSED(ARGUMENT, "with a name and a forward", mpt_module_create(c, NULL, &calls));

    mpt_module inner = mpt_nn_relu(c);
    int depth = 1;
    while (depth < 300) { /* a box in a box */
        mpt_module box = mpt_sequential(c, inner, MPT_END);
        if (!box.slot) break;
        inner = box, depth++;
    }
    check_error(c, MPT_ERROR_ARGUMENT, "modules nest deeper than 200");
    CHECK_EQ_INT(depth, 200);
    CHECK(mpt_allclose(mpt_forward(inner, x), mpt_relu(x), 0, 0));
    check_ok(c);

    cls.name = "holder";
    char name[256];
    memset(name, 'n', sizeof name);
    name[200] = '\0';
    mpt_module holder = mpt_module_create(c, &cls, &calls), top = holder;
    REFUSED(ARGUMENT, "1 to 199 characters without a dot",
            mpt_add_child(holder, name, mpt_nn_relu(c)));
    REFUSED(ARGUMENT, "1 to 199 characters without a dot",
            mpt_add_child(holder, "a.b", mpt_nn_relu(c)));
    REFUSED(ARGUMENT, "1 to 199 characters without a dot",
            mpt_add_child(holder, "", mpt_nn_relu(c)));
    REFUSED(ARGUMENT, "1 to 199 characters without a dot",
            mpt_add_child(holder, NULL, mpt_nn_relu(c)));
    name[199] = '\0';
    for (int i = 0; i < 6; i++) { /* a path of six such names is more than 1023 bytes */
        mpt_module child = mpt_module_create(c, &cls, &calls);
        CHECK_EQ_INT(mpt_add_child(top, name, child), MPT_OK);
        top = child;
    }
    mpt_add_parameter(top, "w", MPT_SHAPE(2), mpt_init_make(MPT_INIT_ONES, 0, 0));
    check_ok(c);
    mpt_sgd(holder, NULL);
    check_error(c, MPT_ERROR_ARGUMENT, "a path is too long: nnn");
    mpt_destroy(c);
}

TEST_TABLE = {
    T(tensors_of_nothing),
    T(arange_is_the_same_in_a_scope),
    T(flips_of_long_lines),
    T(long_tensors_are_shortened),
    T(texts_of_tensors),
    T(values_of_strided_tensors),
#ifndef MPTRAIN_NO_ATTENTION
    T(attention_in_all_its_forms),
    T(attention_refuses),
    T(embeddings_and_their_loss_refuse),
    T(attention_backward_in_parts),
#endif
#ifndef MPTRAIN_NO_FP8
    T(fp8_at_the_rims),
#endif
    T(own_ops_and_autocast),
    T(own_ops_that_do_wrong),
#ifndef MPTRAIN_NO_FIT
    T(progress_of_odd_figures),
#endif
#ifndef MPTRAIN_NO_FILES
    T(transforms_that_make_no_sense),
    T(crops_of_parts_that_do_not_fit),
#endif
    T(ops_refuse),
#ifndef MPTRAIN_NO_CONV
    T(layers_of_images_refuse),
#endif
    T(norms_of_nothing),
    T(initial_values),
    T(data_refuses),
    T(scalars_run_out),
    T(names_of_metrics),
    T(modules_at_their_limits),
};
TEST_MAIN
