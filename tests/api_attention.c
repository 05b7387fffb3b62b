/* api_attention.c: embedding, attention, the multi-head layer and the classifier fused with its
   loss: against PyTorch, against compositions of simpler ops, and what they promise about memory
   and bits. */
#include "golden.h"

#include "checks.h"

#define MAX_IN 8

static mpt_context *context;

static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}

static bool begin(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = 11;
    config.debug = true;
    context = mpt_create(&config);
    if (!context) TEST_FAIL_("%s", mpt_error(NULL));
    return context != NULL;
}

/* Whether sizes must stay small: the simulator, an emulator, the portable level. */
static bool is_slow(void) {
    mpt_isa isa = mpt_get_isa(context);
    return mpt_device_count(MPT_DEVICE_CUDA) > 0 || isa == MPT_ISA_REF || isa >= MPT_ISA_NEON;
}

/* ==== Goldens ==== */

/* Whether attention of these halves rounds its weights for their products: of two keys, the second
   weighs exp(-0.3125) = 0.7316, or 0.7305 as bf16 and 0.73145 as fp16, which is the first value but
   for its sign. */
static bool rounds_weights(mpt_dtype dtype) {
    const bool bf16 = dtype == MPT_BF16;
    const float keys[4] = {0, 0, -0.3125f, 0};
    const float values[4] = {bf16 ? -0.73046875f : -0.7314453125f, 0, 1, 0};
    float got = 1;
    mpt_attention_config config = mpt_attention_config_default();
    config.scale = 1;
    mpt_scope_begin(context);
    mpt_tensor q = mpt_full(context, dtype, MPT_SHAPE(1, 2), 1);
    mpt_tensor k = mpt_cast(mpt_from(context, MPT_F32, MPT_SHAPE(2, 2), keys), dtype);
    mpt_tensor v = mpt_cast(mpt_from(context, MPT_F32, MPT_SHAPE(2, 2), values), dtype);
    mpt_tensor out = mpt_scaled_dot_product_attention(q, k, v, &config);
    CHECK_EQ_INT(mpt_read_f32(mpt_contiguous(mpt_slice(out, 1, 0, 1, 1)), &got, 1), MPT_OK);
    mpt_scope_end(context);
    return fabsf(got) < (bf16 ? 2e-4f : 3e-5f);
}

/* Tensor cores round the weights, and backward their slopes, to 16 bits; the tables are of a CPU,
   where those of fp16 are not rounded. Half an ulp of a tensor's largest number for each of
   them. */
static void widen(golden_case *c) {
    const bool f16 = c->region == MPT_F16 || c->tensors[0].dtype == MPT_F16;
    const bool half = f16 || c->region == MPT_BF16 || c->tensors[0].dtype == MPT_BF16;
    if (!half || !strstr(c->op, "attention") || !rounds_weights(MPT_F16)) return;
    for (int i = 0; i < c->n_tensors; i++) {
        golden_tensor *t = &c->tensors[i];
        double most = 0;
        if (t->role <= GOLDEN_LEAF) continue;
        for (int64_t j = 0; j < t->count; j++) {
            const double size = fabs(golden_value(t, j));
            if (size > most && size < 1e30) most = size;
        }
        t->atol += 2 * (f16 ? 0x1p-11 : 0x1p-8) * most;
    }
}

static mpt_nll_config nll_of(const golden_case *c) {
    static const mpt_reduction reductions[] = {MPT_MEAN, MPT_SUM, MPT_NONE};
    mpt_nll_config config = mpt_nll_config_default();
    config.reduction = reductions[c->ints[0]];
    config.ignore_index = c->ints[1];
    config.label_smoothing = c->reals[0];
    return config;
}

static mpt_tensor call_op(const golden_case *c, const mpt_tensor *in, int n) {
    if (strcmp(c->op, "embedding") == 0) return mpt_embedding(in[0], in[1], c->ints[0]);
    if (strcmp(c->op, "linear_cross_entropy") == 0) {
        mpt_nll_config config = nll_of(c);
        if (n > 3) config.weight = in[3];
        return mpt_linear_cross_entropy(in[0], in[1], in[2], &config);
    }
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = c->ints[0] != 0;
    config.scale = c->reals[0];
    if (n > 3) config.mask = in[3];
    return mpt_scaled_dot_product_attention(in[0], in[1], in[2], &config);
}

/* ints: heads, causal, bias, inputs. The leaves that follow the inputs are parameters. */
static mpt_tensor call_layer(const golden_case *c, mpt_tensor *in, int n) {
    mpt_multi_head_config config = mpt_multi_head_config_default();
    int inputs = (int)c->ints[3];
    config.causal = c->ints[1] != 0;
    config.bias = c->ints[2] != 0;
    mpt_module layer =
        mpt_nn_multi_head_attention(context, c->tensors[0].shape.dim[2], (int)c->ints[0], &config);
    for (int i = inputs; i < n; i++) {
        const golden_tensor *t = &c->tensors[i];
        in[i] = mpt_parameter(layer, t->name);
        CHECK_EQ_INT(mpt_write(in[i], t->data, (size_t)t->count * 4), MPT_OK);
    }
    CHECK_EQ_INT(mpt_parameter_count(layer), n - inputs);
    mpt_tensor out = none();
    mpt_forward_n(layer, in, inputs, &out, 1);
    return out;
}

static void run_case(const golden_case *as_written) {
    static golden_case widened;
    const golden_case *c = &widened;
    mpt_tensor in[MAX_IN];
    memcpy(&widened, as_written, sizeof widened);
    widen(&widened);
    int n = 0, is_layer = strcmp(c->op, "multi_head_attention") == 0;
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors && c->tensors[i].role <= GOLDEN_LEAF; i++, n++) {
        const golden_tensor *t = &c->tensors[i];
        in[i] = mpt_from(context, t->dtype, t->shape, t->data);
        if (t->role == GOLDEN_LEAF) mpt_requires_grad(in[i], true);
    }
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_begin(context, c->region);
    mpt_tensor out = is_layer ? call_layer(c, in, n) : call_op(c, in, n);
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_end(context);
    const golden_tensor *want = golden_find(c, "out");
    CHECK_EQ_INT(mpt_get_dtype(out), want->dtype);
    golden_compare_tensor(context, c, want, out);
    const golden_tensor *up = golden_find(c, "upstream");
    mpt_backward_from(out, mpt_from(context, up->dtype, up->shape, up->data), false);
    golden_compare_gradients(context, c, in);
    check_ok(context);
    mpt_scope_end(context);
}

TEST(as_pytorch) {
    REQUIRE(begin(0));
    golden_run(context, "attention.bin", run_case, 100);
    mpt_destroy(context);
}

/* ==== Attention as a composition ==== */

static mpt_tensor noise(mpt_shape shape, uint32_t stream) {
    int64_t n = 1;
    for (int d = 0; d < shape.rank; d++) n *= shape.dim[d];
    float *values = (float *)malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = golden_uniform(stream, (uint32_t)i);
    mpt_tensor made = mpt_from(context, MPT_F32, shape, values);
    free(values);
    return made;
}

static mpt_tensor leaf(mpt_shape shape, uint32_t stream) {
    mpt_tensor made = noise(shape, stream);
    mpt_requires_grad(made, true);
    return made;
}

static void check_close(const char *what, mpt_tensor a, mpt_tensor b, double atol) {
    if (!mpt_allclose(a, b, 1e-4, atol)) TEST_FAIL_("%s: not close %s", what, mpt_error(context));
}

/* The same by matmul and softmax; heads of k and v repeat. `times`: NULL or a factor for each
   weight. */
static mpt_tensor composed(mpt_tensor q, mpt_tensor k, mpt_tensor v, mpt_tensor bias,
                           const mpt_tensor *times) {
    mpt_shape shape = mpt_get_shape(q), of_k = mpt_get_shape(k);
    int64_t group = shape.dim[1] / of_k.dim[1];
    mpt_tensor each[2], wide[2];
    each[0] = k, each[1] = v;
    for (int i = 0; i < 2; i++) {
        mpt_shape s = mpt_get_shape(each[i]);
        wide[i] = mpt_reshape(each[i], MPT_SHAPE(s.dim[0], s.dim[1], 1, s.dim[2], s.dim[3]));
        wide[i] = mpt_expand(wide[i], MPT_SHAPE(-1, -1, group, -1, -1));
        wide[i] = mpt_reshape(wide[i], MPT_SHAPE(s.dim[0], s.dim[1] * group, s.dim[2], s.dim[3]));
    }
    mpt_tensor scores =
        mpt_matmul(mpt_mul_scalar(q, 1 / sqrt((double)shape.dim[3])), mpt_transpose(wide[0], 2, 3));
    mpt_tensor p = mpt_softmax(mpt_add(scores, bias), -1);
    return mpt_matmul(times ? mpt_mul(p, *times) : p, wide[1]);
}

/* 0 where `seen` and, if it is causal, the key is not later; else -infinity. [T, S] */
static mpt_tensor bias_of(int64_t t, int64_t s, const unsigned char *seen, bool causal) {
    float *values = (float *)malloc((size_t)(t * s) * sizeof *values);
    for (int64_t i = 0; i < t * s; i++)
        values[i] = (!seen || seen[i]) && !(causal && i % s > i / s) ? 0 : -INFINITY;
    mpt_tensor bias = mpt_from(context, MPT_F32, MPT_SHAPE(t, s), values);
    free(values);
    return bias;
}

typedef struct heads {
    int64_t batch, heads, groups, queries, keys, depth, width;
    bool causal, masked, strided; /* strided: views of [B, T, H, D] */
} heads;

static mpt_tensor heads_of(mpt_tensor x, const heads *h) {
    return h->strided ? mpt_transpose(x, 1, 2) : x;
}

static mpt_tensor heads_leaf(const heads *h, int64_t n, int64_t rows, int64_t width, uint32_t key) {
    return leaf(h->strided ? MPT_SHAPE(h->batch, rows, n, width)
                           : MPT_SHAPE(h->batch, n, rows, width),
                key);
}

static void check_heads(const heads *h) {
    static const char *const names[] = {"dq", "dk", "dv"};
    unsigned char seen[130 * 140];
    mpt_tensor in[3], first[3];
    mpt_scope_begin(context);
    in[0] = heads_leaf(h, h->heads, h->queries, h->depth, 1);
    in[1] = heads_leaf(h, h->groups, h->keys, h->depth, 2);
    in[2] = heads_leaf(h, h->groups, h->keys, h->width, 3);
    for (int64_t i = 0; i < h->queries * h->keys; i++)
        seen[i] = i % h->keys == 0 || golden_uniform(9, (uint32_t)i) > -0.3f;
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = h->causal;
    if (h->masked) config.mask = mpt_from(context, MPT_BOOL, MPT_SHAPE(h->queries, h->keys), seen);
    mpt_tensor out = mpt_scaled_dot_product_attention(heads_of(in[0], h), heads_of(in[1], h),
                                                      heads_of(in[2], h), &config);
    mpt_tensor bias = bias_of(h->queries, h->keys, h->masked ? seen : NULL, h->causal);
    mpt_tensor want =
        composed(heads_of(in[0], h), heads_of(in[1], h), heads_of(in[2], h), bias, NULL);
    check_close("out", out, want, 2e-6);
    mpt_tensor up = noise(mpt_get_shape(out), 4);
    mpt_backward_from(out, up, false);
    for (int i = 0; i < 3; i++) first[i] = mpt_clone(mpt_grad(in[i])), mpt_clear_grad(in[i]);
    mpt_backward_from(want, up, false);
    for (int i = 0; i < 3; i++) check_close(names[i], first[i], mpt_grad(in[i]), 2e-5);
    check_ok(context);
    mpt_scope_end(context);
}

TEST(as_a_composition) {
    static const heads all[] = {{1, 2, 2, 130, 130, 16, 16, false, false, true},
                                {2, 4, 2, 67, 67, 8, 8, true, false, true},
                                {1, 3, 1, 70, 131, 5, 9, true, true, false},
                                {1, 2, 2, 81, 80, 12, 7, true, false, true},
                                {1, 1, 1, 80, 81, 8, 64, false, true, false},
                                {1, 2, 1, 9, 65, 40, 1, false, true, true},
                                {1, 1, 1, 1, 1, 1, 1, true, false, false},
                                {2, 1, 1, 129, 64, 33, 34, true, false, false}};
    REQUIRE(begin(0));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_heads(&all[i]);
    mpt_destroy(context);
}

/* |got - want| <= rtol |want| + share sized + atol; NULL for sized: 0. */
static void check_within(const char *what, mpt_tensor got, mpt_tensor want, double rtol,
                         mpt_tensor sized, double share, double atol) {
    mpt_tensor off = mpt_abs(mpt_sub(mpt_cast(got, MPT_F32), want));
    mpt_tensor room = mpt_add_scalar(mpt_mul_scalar(mpt_abs(want), rtol), atol);
    room = mpt_add(room, mpt_mul_scalar(sized, share));
    const double over = mpt_item(mpt_max(mpt_sub(off, room), MPT_ALL_DIMS, false));
    if (!(over <= 0)) TEST_FAIL_("%s: %g too far %s", what, over, mpt_error(context));
}

/* Attention of half tensors is that of fp32 on their values, rounded once at its end: by half an
   ulp. Gradients that come from the rounded output move by what it moves times dout. Where weights
   are rounded for their products, each term moves by half an ulp: the sums of absolute terms are
   the output and dv for |v| and |dout|; where slopes are, dq and dk by a share of their
   largest numbers. Strides and columns that are no whole pairs, too. */
static void check_halves(const heads *h, mpt_dtype dtype, bool rounds, bool slopes) {
    static const char *const names[] = {"dq", "dk", "dv"};
    const int64_t rows[] = {h->queries, h->keys, h->keys}, n[] = {h->heads, h->groups, h->groups};
    const double ulp = dtype == MPT_F16 ? 0x1p-11 : 0x1p-8, share = rounds ? ulp : 0;
    mpt_tensor half[3], wide[3], size[3], out[3];
    mpt_tensor *const all[] = {half, wide, size};
    mpt_scope_begin(context);
    for (int i = 0; i < 3; i++) {
        half[i] = mpt_detach(mpt_cast(
            heads_leaf(h, n[i], rows[i], i < 2 ? h->depth : h->width, (uint32_t)i + 1), dtype));
        wide[i] = mpt_detach(mpt_cast(half[i], MPT_F32));
        size[i] = i < 2 ? mpt_clone(wide[i]) : mpt_detach(mpt_abs(wide[i]));
        for (int set = 0; set < 3; set++) mpt_requires_grad(all[set][i], true);
    }
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = h->causal;
    for (int set = 0; set < 3; set++)
        out[set] = mpt_scaled_dot_product_attention(heads_of(all[set][0], h),
                                                    heads_of(all[set][1], h),
                                                    heads_of(all[set][2], h), &config);
    CHECK_EQ_INT(mpt_get_dtype(out[0]), dtype);
    check_within("out", out[0], out[1], ulp, out[2], share, 1e-6);
    mpt_tensor up = mpt_cast(noise(mpt_get_shape(out[0]), 4), dtype);
    mpt_backward_from(out[0], up, false);
    mpt_backward_from(out[1], mpt_cast(up, MPT_F32), false);
    mpt_backward_from(out[2], mpt_abs(mpt_cast(up, MPT_F32)), false);
    for (int i = 0; i < 3; i++) {
        mpt_tensor largest = mpt_norm(mpt_grad(wide[i]), (double)INFINITY, MPT_ALL_DIMS, false);
        const double most = slopes ? mpt_item(largest) : 0;
        check_within(names[i], mpt_grad(half[i]), mpt_grad(wide[i]), ulp, mpt_grad(size[i]),
                     i < 2 ? 0 : share, i < 2 ? ulp * (0.5 + most) : 1e-6);
    }
    check_ok(context);
    mpt_scope_end(context);
}

TEST(halves_as_fp32_rounded_once) {
    static const heads all[] = {{1, 2, 2, 130, 130, 16, 16, false, false, true},
                                {2, 4, 2, 67, 67, 8, 8, true, false, true},
                                {1, 3, 1, 70, 131, 6, 10, true, false, false},
                                {1, 2, 2, 81, 80, 12, 8, true, false, true},
                                {1, 2, 1, 9, 65, 40, 1, false, false, true},
                                {1, 2, 2, 64, 96, 5, 32, false, false, false},
                                {1, 1, 1, 129, 64, 34, 66, true, false, false}};
    REQUIRE(begin(0));
    const bool rounds = rounds_weights(MPT_BF16), all_round = rounds_weights(MPT_F16);
    if (mpt_device_count(MPT_DEVICE_CUDA) == 0) {
        CHECK_EQ_INT(rounds, mpt_get_isa(context) == MPT_ISA_AVX512_BF16);
        CHECK(!all_round);
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_halves(&all[i], MPT_F16, all_round, all_round),
            check_halves(&all[i], MPT_BF16, rounds, all_round);
    mpt_destroy(context);
}

/* Nothing seen: 0, and no gradient, whatever else is in the batch. */
TEST(a_query_that_sees_nothing) {
    REQUIRE(begin(1));
    unsigned char seen[3 * 4] = {1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1};
    float row[8], zero[8] = {0};
    mpt_attention_config config = mpt_attention_config_default();
    config.mask = mpt_from(context, MPT_BOOL, MPT_SHAPE(3, 4), seen);
    mpt_tensor q = leaf(MPT_SHAPE(3, 8), 1), k = leaf(MPT_SHAPE(4, 8), 2);
    mpt_tensor out = mpt_scaled_dot_product_attention(q, k, k, &config);
    mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
    mpt_read_f32(mpt_contiguous(mpt_slice(out, 0, 1, 2, 1)), row, 8);
    CHECK_EQ_BITS(row, zero, sizeof row);
    mpt_read_f32(mpt_contiguous(mpt_slice(mpt_grad(q), 0, 1, 2, 1)), row, 8);
    for (int i = 0; i < 8; i++) CHECK(row[i] == 0);
    CHECK(mpt_allclose(mpt_grad(k), mpt_grad(k), 0, 0)); /* NaN equals nothing */
    mpt_tensor no_keys = mpt_zeros(context, MPT_F32, MPT_SHAPE(0, 8));
    config.mask = none();
    out = mpt_scaled_dot_product_attention(q, no_keys, no_keys, &config);
    CHECK(mpt_allclose(out, mpt_zeros(context, MPT_F32, MPT_SHAPE(3, 8)), 0, 0));
    /* Large scores overflow nothing; a NaN is not lost. */
    mpt_tensor large = mpt_mul_scalar(k, 1e18);
    out = mpt_scaled_dot_product_attention(mpt_mul_scalar(q, 1e18), large, k, NULL);
    CHECK(mpt_allclose(out, out, 0, 0));
    out = mpt_scaled_dot_product_attention(mpt_mul_scalar(q, (double)NAN), k, k, NULL);
    CHECK(mpt_item(mpt_sum(mpt_isnan(out), MPT_ALL_DIMS, false)) == 24 || mpt_failed(context));
    mpt_clear_error(context);
    mpt_destroy(context);
}

/* The identity beside v shows the weights that dropout left. */
/* Nothing to attend to, in columns beyond all memory: nothing comes of it, and no number overflows.
   Where there are queries of so many columns, the error says so. A GPU refuses both. */
TEST(columns_beyond_memory) {
    mpt_config config = mpt_config_default();
    config.memory_limit = 64 << 20;
    context = mpt_create(&config);
    REQUIRE(context != NULL);
    const bool on_gpu = mpt_device_count(MPT_DEVICE_CUDA) > 0;
    const char *refused = on_gpu ? "a head is too wide" : "out of memory";
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(0, INT64_MAX));
    mpt_requires_grad(x, true);
    mpt_tensor out = mpt_scaled_dot_product_attention(x, x, x, NULL);
    if (on_gpu) {
        CHECK_CONTAINS(mpt_error(context), refused);
        mpt_clear_error(context);
    } else {
        mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
        CHECK_EQ_INT(mpt_get_shape(out).dim[1], INT64_MAX);
    }
    check_ok(context);
    const mpt_shape all = MPT_SHAPE(1, 1, 1, INT64_MAX / 64);
    mpt_tensor wide = mpt_expand(mpt_zeros(context, MPT_F32, MPT_SHAPE(1, 1, 1, 1)), all);
    mpt_tensor narrow = mpt_ones(context, MPT_F32, MPT_SHAPE(1, 1, 1, 2));
    check_ok(context);
    mpt_scaled_dot_product_attention(wide, wide, narrow, NULL);
    CHECK(mpt_failed(context));
    CHECK_CONTAINS(mpt_error(context), refused);
    mpt_clear_error(context);
    out = mpt_scaled_dot_product_attention(narrow, narrow, narrow, NULL);
    CHECK_NEAR(mpt_item(mpt_sum(out, MPT_ALL_DIMS, false)), 2, 1e-6);
    check_ok(context);
    mpt_destroy(context);
}

TEST(dropout_of_weights) {
    enum { T = 70, S = 67, D = 4 };
    REQUIRE(begin(0));
    float eye[S * S] = {0}, kept[T * S], other[T * S];
    mpt_tensor parts[2], grads[3];
    for (int i = 0; i < S; i++) eye[i * S + i] = 1;
    mpt_attention_config config = mpt_attention_config_default();
    config.dropout = 0.25;
    mpt_tensor q = leaf(MPT_SHAPE(1, 1, T, D), 1), k = leaf(MPT_SHAPE(1, 1, S, D), 2);
    mpt_tensor v = leaf(MPT_SHAPE(1, 1, S, D), 3), all[3];
    all[0] = q, all[1] = k, all[2] = v;
    parts[0] = v, parts[1] = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, S, S), eye);
    mpt_tensor wide = mpt_cat(parts, 2, 3);
    mpt_tensor out = mpt_scaled_dot_product_attention(q, k, wide, &config);
    mpt_tensor weights = mpt_contiguous(mpt_slice(out, 3, D, D + S, 1));
    mpt_read_f32(weights, kept, T * S);
    int zeros = 0;
    for (int i = 0; i < T * S; i++) zeros += kept[i] == 0;
    CHECK_NEAR((double)zeros / (T * S), 0.25, 0.03);
    /* The factors: 4 / 3 or 0. */
    for (int i = 0; i < T * S; i++) kept[i] = kept[i] == 0 ? 0 : 4.0f / 3;
    mpt_tensor times = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, T, S), kept);
    mpt_tensor want = composed(q, k, wide, bias_of(T, S, NULL, false), &times);
    check_close("out", out, want, 2e-6);
    mpt_tensor up = noise(mpt_get_shape(out), 4);
    mpt_backward_from(out, up, true);
    for (int i = 0; i < 3; i++) grads[i] = mpt_clone(mpt_grad(all[i])), mpt_clear_grad(all[i]);
    mpt_backward_from(want, up, true);
    for (int i = 0; i < 3; i++) check_close("gradient", grads[i], mpt_grad(all[i]), 2e-5);
    out = mpt_scaled_dot_product_attention(q, k, wide, &config); /* another call, another draw */
    mpt_read_f32(mpt_contiguous(mpt_slice(out, 3, D, D + S, 1)), other, T * S);
    int differ = 0;
    for (int i = 0; i < T * S; i++) differ += (other[i] == 0) != (kept[i] == 0);
    CHECK(differ > T * S / 4);
    config.dropout = 1;
    out = mpt_scaled_dot_product_attention(q, k, v, &config);
    CHECK(mpt_allclose(out, mpt_zeros(context, MPT_F32, MPT_SHAPE(1, 1, T, D)), 0, 0));
    mpt_inference_begin(context); /* none */
    out = mpt_scaled_dot_product_attention(q, k, v, &config);
    check_close("inference", out, mpt_scaled_dot_product_attention(q, k, v, NULL), 0);
    mpt_inference_end(context);
    check_ok(context);
    mpt_destroy(context);
}

TEST(memory_is_linear_in_the_length) {
    REQUIRE(begin(2));
    const int64_t n = is_slow() ? 512 : 4096, before = mpt_memory(context).total_current;
    mpt_scope_begin(context);
    mpt_tensor x = leaf(MPT_SHAPE(n, 8), 1);
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = true;
    mpt_memory_reset_peak(context);
    mpt_backward(mpt_sum(mpt_scaled_dot_product_attention(x, x, x, &config), MPT_ALL_DIMS, false));
    check_ok(context);
    int64_t peak = mpt_memory(context).total_peak - before;
    if (peak > 12 * n * 8 * 4 + (1 << 20)) TEST_FAIL_("%ld bytes at %ld", (long)peak, (long)n);
    CHECK(is_slow() || peak < n * n * 4 / 16);
    mpt_scope_end(context);
    mpt_destroy(context);
}

/* ==== Bits ==== */

static uint64_t hash_of(uint64_t hash, mpt_tensor tensor) {
    int64_t n = mpt_numel(tensor);
    float *values = (float *)malloc((size_t)n * sizeof *values);
    mpt_read_f32(tensor, values, n);
    const unsigned char *bytes = (const unsigned char *)values;
    for (size_t i = 0; i < (size_t)n * sizeof *values; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    free(values);
    return hash;
}

/* With one thread all gradients come in one pass, with more those of queries by themselves. */
static uint64_t bits_of(int threads, mpt_dtype dtype, mpt_dtype region) {
    if (!begin(threads)) return 0;
    int64_t n = is_slow() ? 70 : 330, ids[64];
    for (int i = 0; i < 64; i++) ids[i] = i * 7 % 20;
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = true;
    config.dropout = 0.1;
    mpt_step_begin(context);
    mpt_autocast_begin(context, region);
    mpt_tensor x = leaf(MPT_SHAPE(1, 4, n, 24), 1), k = leaf(MPT_SHAPE(1, 2, n, 24), 2);
    mpt_tensor q = mpt_cast(x, dtype), key = mpt_cast(k, dtype);
    mpt_tensor out = mpt_scaled_dot_product_attention(q, key, key, &config);
    mpt_tensor table = leaf(MPT_SHAPE(20, 200), 3);
    mpt_tensor rows = mpt_embedding(mpt_from(context, MPT_I64, MPT_SHAPE(64), ids), table, 3);
    mpt_autocast_end(context);
    mpt_backward_from(out, mpt_cast(noise(mpt_get_shape(out), 5), mpt_get_dtype(out)), false);
    mpt_backward_from(rows, noise(mpt_get_shape(rows), 6), false);
    uint64_t hash = hash_of(hash_of(14695981039346656037u, out), rows);
    hash = hash_of(hash_of(hash_of(hash, mpt_grad(x)), mpt_grad(k)), mpt_grad(table));
    mpt_step_end(context);
    check_ok(context);
    mpt_destroy(context);
    return hash;
}

TEST(the_same_bits_for_any_number_of_threads) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F32, MPT_BF16};
    static const mpt_dtype regions[] = {MPT_F32, MPT_BF16, MPT_BF16};
    for (int i = 0; i < 3; i++) {
        uint64_t one = bits_of(1, dtypes[i], regions[i]);
        CHECK(one != 0 && bits_of(2, dtypes[i], regions[i]) == one);
        CHECK(bits_of(5, dtypes[i], regions[i]) == one);
    }
}

/* ==== Embedding ==== */

TEST(embedding_layer) {
    REQUIRE(begin(2));
    static const int64_t ids[6] = {3, 0, 2, 2, 0, 3}, bad[3] = {1, 4, -1};
    mpt_module layer = mpt_nn_embedding(context, 4, 70, 2);
    mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(2, 3), ids);
    mpt_tensor weight = mpt_parameter(layer, "weight"),
               one = mpt_zeros(context, MPT_F32, MPT_SCALAR);
    double mean = mpt_item(mpt_mean(weight, MPT_ALL_DIMS, false));
    double square = mpt_item(mpt_mean(mpt_mul(weight, weight), MPT_ALL_DIMS, false));
    CHECK_NEAR(mean, 0, 0.3);
    CHECK_NEAR(square, 0.75, 0.25); /* deviation 1 and a row of 0 */
    CHECK(mpt_item(mpt_norm(mpt_slice(weight, 0, 2, 3, 1), 2, MPT_ALL_DIMS, false)) == 0);
    for (int pass = 1; pass <= 2; pass++) { /* the second pass adds to the first */
        mpt_tensor out = mpt_forward(layer, index);
        CHECK_EQ_INT(mpt_get_shape(out).dim[2], 70);
        mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
        static const float times[4] = {2, 0, 0, 2};
        for (int r = 0; r < 4; r++) {
            mpt_tensor row = mpt_slice(mpt_grad(weight), 0, r, r + 1, 1);
            CHECK_NEAR(mpt_item(mpt_max(row, MPT_ALL_DIMS, false)), times[r] * (float)pass, 0);
            CHECK_NEAR(mpt_item(mpt_min(row, MPT_ALL_DIMS, false)), times[r] * (float)pass, 0);
        }
    }
    check_ok(context);
    /* A bad id is named, on whatever device; nothing is read outside. */
    mpt_tensor out = mpt_forward(layer, mpt_from(context, MPT_I64, MPT_SHAPE(3), bad));
    CHECK(isnan(mpt_item(mpt_add(one, mpt_sum(out, MPT_ALL_DIMS, false)))));
    check_error(context, MPT_ERROR_INDEX, "element 1 of the indices");
    out = mpt_forward(layer, index);
    check_ok(context);
    mpt_destroy(context);
}

/* ==== The classifier ==== */

/* One table is embedding and classifier; its gradient is that of the composition. */
static void check_tied(int64_t n, int64_t classes, int64_t width, mpt_dtype region) {
    mpt_scope_begin(context);
    int64_t *ids = (int64_t *)malloc((size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = i * 31 % classes;
    mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(n), ids), first;
    for (int64_t i = 0; i < n; i++) ids[i] = i % 7 == 3 ? -100 : (i * 17 + 5) % classes;
    mpt_tensor targets = mpt_from(context, MPT_I64, MPT_SHAPE(n), ids);
    free(ids);
    mpt_tensor table = leaf(MPT_SHAPE(classes, width), 2), loss[2];
    for (int i = 0; i < 2; i++) {
        mpt_memory_reset_peak(context);
        int64_t before = mpt_memory(context).total_current;
        mpt_autocast_begin(context, region);
        mpt_tensor x = mpt_embedding(index, table, -1);
        loss[i] =
            i ? mpt_cross_entropy(mpt_linear(x, table, none(), MPT_ACTIVATION_NONE), targets, NULL)
              : mpt_linear_cross_entropy(x, table, targets, NULL);
        mpt_autocast_end(context);
        mpt_backward(loss[i]);
        int64_t peak = mpt_memory(context).total_peak - before, logits = n * classes * 4;
        if (!i && logits > (40 << 20)) CHECK(peak < logits);
        if (!i) first = mpt_clone(mpt_grad(table)), mpt_clear_grad(table);
    }
    bool half = region != MPT_F32;
    CHECK_CLOSE(mpt_item(loss[0]), mpt_item(loss[1]), half ? 1e-2 : 1e-6, 0);
    if (!mpt_allclose(first, mpt_grad(table), half ? 2e-2 : 1e-5, half ? 1e-3 : 1e-6))
        TEST_FAIL_("gradients of %ld x %ld differ", (long)n, (long)classes);
    check_ok(context);
    mpt_scope_end(context);
}

TEST(classifier_of_tied_weights) {
    REQUIRE(begin(0));
    check_tied(40, 33, 8, MPT_F32);
    check_tied(17, 70, 12, MPT_BF16);
    if (!is_slow()) check_tied(600, 20001, 6, MPT_F32); /* its logits come in two parts */
    static const int64_t bad[4] = {0, 1, 5, 0};
    mpt_tensor x = leaf(MPT_SHAPE(2, 2, 3), 1), w = leaf(MPT_SHAPE(5, 3), 2);
    mpt_item(
        mpt_linear_cross_entropy(x, w, mpt_from(context, MPT_I64, MPT_SHAPE(2, 2), bad), NULL));
    check_error(context, MPT_ERROR_INDEX, "target of sample 1, position 0");
    mpt_destroy(context);
}

/* One parameter of two modules: it counts once, collects both gradients, outlives one of them. */
TEST(tied_modules) {
    REQUIRE(begin(1));
    const int64_t five = 5;
    mpt_module table = mpt_nn_embedding(context, 7, 4, -1);
    mpt_module head = mpt_nn_linear_no_bias(context, 4, 7), net = mpt_nn_list(context, MPT_END);
    mpt_add_child(net, "table", table);
    mpt_add_child(net, "head", head);
    mpt_module shared = mpt_sequential(context, head, MPT_END);
    CHECK_EQ_INT(mpt_tie(net, "head.weight", "table.weight"), MPT_OK);
    CHECK_EQ_INT(mpt_parameter_count(net), 1);
    CHECK_EQ_INT(mpt_parameter_numel(net), 28);
    mpt_parameter(shared, "0.weight");
    check_error(context, MPT_ERROR_STATE, "is tied to one outside the tree");
    mpt_tensor weight = mpt_parameter(net, "head.weight"),
               other = mpt_parameter(net, "table.weight");
    CHECK(weight.slot != 0 && weight.slot == other.slot);
    mpt_tie(net, "head.weight", "table.weight");
    check_error(context, MPT_ERROR_STATE, "no more ties");
    mpt_tensor ids = mpt_from(context, MPT_I64, MPT_SHAPE(1), &five);
    mpt_tensor y = mpt_forward(head, mpt_forward(table, ids));
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
    /* d sum_v w_5 w_v: w_5 for every row, and for row 5 the sum of all rows too. */
    mpt_tensor five_row = mpt_slice(weight, 0, 5, 6, 1), all = mpt_sum(weight, 0, true);
    mpt_tensor grad = mpt_grad(weight);
    check_close("row 5", mpt_slice(grad, 0, 5, 6, 1), mpt_add(five_row, all), 1e-6);
    check_close("row 2", mpt_slice(grad, 0, 2, 3, 1), five_row, 1e-6);
    check_ok(context);
    mpt_module_destroy(net); /* the head is part of another tree */
    y = mpt_forward(head, mpt_ones(context, MPT_F32, MPT_SHAPE(1, 4)));
    CHECK_EQ_INT(mpt_get_shape(y).dim[1], 7);
    check_ok(context);
    mpt_destroy(context);
}

/* ==== A block of a transformer ==== */

static mpt_tensor embedded(mpt_module net, mpt_tensor ids) {
    mpt_tensor x = mpt_forward(mpt_child(net, "table"), ids);
    x = mpt_add(x, mpt_forward(mpt_child(net, "attention"), x));
    return mpt_add(x, mpt_forward(mpt_child(net, "more"), x));
}

TEST(a_block_trains_without_allocations) {
    enum { B = 2, T = 12, V = 13, E = 16 };
    REQUIRE(begin(2));
    mpt_multi_head_config config = mpt_multi_head_config_default();
    config.causal = true;
    config.dropout = 0.1;
    mpt_module net = mpt_nn_list(context, MPT_END);
    mpt_add_child(net, "table", mpt_nn_embedding(context, V, E, -1));
    mpt_add_child(net, "attention", mpt_nn_multi_head_attention(context, E, 4, &config));
    mpt_add_child(net, "more",
                  mpt_sequential(context, mpt_nn_linear(context, E, 2 * E), mpt_nn_gelu(context),
                                 mpt_nn_linear(context, 2 * E, E), MPT_END));
    mpt_tensor weight = mpt_parameter(net, "table.weight");
    CHECK(mpt_valid(mpt_parameter(net, "attention.out_proj.bias")));
    CHECK(mpt_item(
              mpt_norm(mpt_parameter(net, "attention.in_proj_bias"), 2, MPT_ALL_DIMS, false)) == 0);
    double most = mpt_item(mpt_norm(mpt_parameter(net, "attention.in_proj_weight"),
                                    (double)INFINITY, MPT_ALL_DIMS, false));
    CHECK(most <= sqrt(6.0 / (4 * E)) && most > 0.9 * sqrt(6.0 / (4 * E))); /* xavier_uniform */
    mpt_adamw_config adam = mpt_adamw_config_default();
    adam.lr = 1e-2;
    mpt_optimizer optimizer = mpt_adamw(net, &adam);
    int64_t ids[B * T], next[B * T], calls = 0;
    double loss = 0, started = 0;
    for (int i = 0; i < B * T; i++) ids[i] = i * i % V, next[i] = (i + 1) * (i + 1) % V;
    for (int step = 0; step < 30; step++) {
        if (step == 4) calls = mpt_memory(context).allocations;
        mpt_step_begin(context);
        mpt_tensor x = embedded(net, mpt_from(context, MPT_I64, MPT_SHAPE(B, T), ids));
        mpt_tensor y = mpt_from(context, MPT_I64, MPT_SHAPE(B, T), next);
        mpt_tensor value = mpt_linear_cross_entropy(x, weight, y, NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(value);
        mpt_step(optimizer);
        loss = mpt_item(value);
        if (step == 0) started = loss;
        mpt_step_end(context);
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, calls);
    CHECK(loss < started / 3);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(as_pytorch),
              T(as_a_composition),
              T(halves_as_fp32_rounded_once),
              T(a_query_that_sees_nothing),
              T(columns_beyond_memory),
              T(dropout_of_weights),
              T(memory_is_linear_in_the_length),
              T(the_same_bits_for_any_number_of_threads),
              T(embedding_layer),
              T(classifier_of_tied_weights),
              T(tied_modules),
              T(a_block_trains_without_allocations)};
TEST_MAIN
