/* api_layout.c: images that lie channels last, through every op of the table that takes four
   dimensions. The values are those of contiguous images, bit for bit where sums go in the same
   order; what comes out lies as what went in, wherever PyTorch keeps that, and gradients lie as
   what they belong to; copies are counted. */
#include MPTRAIN_HEADER_FILE

#include "harness.h"

#include "checks.h"

enum { MAX_IN = 3, MAX_NUMEL = 1 << 16 };

static mpt_context *context;

/* PLAIN: contiguous whatever goes in, as in PyTorch; OTHER: no image, or a view; no gradient. */
typedef enum lies { KEPT, PLAIN, OTHER } lies;

/* Values: the same bits as those of contiguous images; so on CPUs, where the strides have no part
   in the order of sums; nearly the same. */
typedef enum accord { SAME, SUMS, NEAR } accord;

typedef struct op_case {
    const char *name;
    mpt_tensor (*call)(const mpt_tensor *in);
    int n_in;
    double low, high; /* of the inputs' values */
    lies out, gradient;
    int copies; /* launches beyond those that contiguous images take */
    accord values;
} op_case;

static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}

static uint32_t state;
static double uniform(double low, double high) {
    state = state * 1664525u + 1013904223u;
    return low + (high - low) * (double)(state >> 8) / 16777216.0;
}

static mpt_tensor drawn(mpt_shape shape, double low, double high) {
    static float values[MAX_NUMEL];
    int64_t numel = 1;
    for (int i = 0; i < shape.rank; i++) numel *= shape.dim[i];
    for (int64_t i = 0; i < numel; i++) values[i] = (float)uniform(low, high);
    return mpt_from(context, MPT_F32, shape, values);
}

/* ==== Calls ==== */

static mpt_tensor like_vector(mpt_tensor x, int dim) {
    mpt_tensor v = mpt_arange(context, MPT_F32, mpt_get_shape(x).dim[dim]);
    return mpt_cast(mpt_add_scalar(mpt_mul_scalar(v, 0.03), 0.5), mpt_get_dtype(x));
}
static mpt_tensor matrix(mpt_tensor x) { /* on dimension 3, contiguous */
    int64_t width = mpt_get_shape(x).dim[3];
    mpt_tensor v = mpt_sin(mpt_arange(context, MPT_F32, 6 * width));
    return mpt_cast(mpt_reshape(v, MPT_SHAPE(width, 6)), mpt_get_dtype(x));
}
static mpt_tensor indices(mpt_tensor x, int dim, int64_t size) {
    mpt_shape shape = mpt_get_shape(x);
    static int64_t index[MAX_NUMEL];
    for (int i = 0; i < MAX_NUMEL; i++) index[i] = i * 7 % 11 % shape.dim[dim];
    shape.dim[dim] = size;
    return mpt_from(context, MPT_I64, size > 0 ? shape : MPT_SHAPE(-size), index);
}
static mpt_tensor classes(mpt_tensor x) {
    static int64_t index[MAX_NUMEL];
    mpt_shape shape = mpt_get_shape(x);
    for (int i = 0; i < MAX_NUMEL; i++) index[i] = i * 7 % 11 % shape.dim[1];
    return mpt_from(context, MPT_I64, MPT_SHAPE(shape.dim[0], shape.dim[2], shape.dim[3]), index);
}
/* To so many channels that contiguous images take the products that channels last takes; those of
   fewer have sums of their own (api_conv.c). */
static mpt_tensor kernel(mpt_tensor x, bool transposed) {
    int64_t channels = mpt_get_shape(x).dim[1];
    mpt_tensor v = mpt_sin(mpt_arange(context, MPT_F32, channels * 72));
    v = mpt_reshape(v, transposed ? MPT_SHAPE(channels, 8, 3, 3) : MPT_SHAPE(8, channels, 3, 3));
    return mpt_cast(v, mpt_get_dtype(x));
}
static mpt_tensor same_conv(const mpt_tensor *in) {
    mpt_conv_config config = mpt_conv_config_default();
    config.same = true;
    return mpt_conv2d(in[0], kernel(in[0], false), none(), &config);
}
static mpt_tensor wide_conv_transpose(const mpt_tensor *in) {
    mpt_conv_config config = mpt_conv_config_default();
    config.stride[0] = config.stride[1] = 2;
    return mpt_conv_transpose2d(in[0], kernel(in[0], true), none(), &config);
}
static mpt_tensor pool(const mpt_tensor *in, bool most) {
    mpt_pool_config config = mpt_pool_config_make(2, 2, 0);
    return most ? mpt_max_pool2d(in[0], &config) : mpt_avg_pool2d(in[0], &config);
}
static mpt_tensor attention(const mpt_tensor *in) {
    mpt_attention_config config = mpt_attention_config_default();
    return mpt_scaled_dot_product_attention(in[0], in[1], in[2], &config);
}
static mpt_tensor entropy(const mpt_tensor *in) {
    mpt_nll_config config = mpt_nll_config_default();
    return mpt_cross_entropy(in[0], classes(in[0]), &config);
}

#define ROWS(R) \
    R(add, mpt_add(in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(sub, mpt_sub(in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(mul, mpt_mul(in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(div, mpt_div(in[0], in[1]), 2, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(add_scalar, mpt_add_scalar(in[0], 1.5), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(mul_scalar, mpt_mul_scalar(in[0], 1.5), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(neg, mpt_neg(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(exp, mpt_exp(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(log, mpt_log(in[0]), 1, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(sqrt, mpt_sqrt(in[0]), 1, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(relu, mpt_relu(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(gelu, mpt_gelu(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(gelu_tanh, mpt_gelu_tanh(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(tanh, mpt_tanh(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(sigmoid, mpt_sigmoid(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(isnan, mpt_isnan(in[0]), 1, -2, 2, KEPT, OTHER, 0, SAME) \
    R(isinf, mpt_isinf(in[0]), 1, -2, 2, KEPT, OTHER, 0, SAME) \
    R(equal, mpt_equal(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(lt, mpt_lt(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(le, mpt_le(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(gt, mpt_gt(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(ge, mpt_ge(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(ne, mpt_ne(in[0], in[1]), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(logical_and, mpt_logical_and(mpt_gt(in[0], in[1]), mpt_lt(in[0], in[1])), 2, -2, 2, KEPT, \
      OTHER, 0, SAME) \
    R(logical_or, mpt_logical_or(mpt_gt(in[0], in[1]), mpt_lt(in[0], in[1])), 2, -2, 2, KEPT, \
      OTHER, 0, SAME) \
    R(logical_not, mpt_logical_not(mpt_gt(in[0], in[1])), 2, -2, 2, KEPT, OTHER, 0, SAME) \
    R(log1p, mpt_log1p(in[0]), 1, 0, 2, KEPT, KEPT, 0, SAME) \
    R(rsqrt, mpt_rsqrt(in[0]), 1, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(pow, mpt_pow(in[0], in[1]), 2, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(pow_scalar, mpt_pow_scalar(in[0], 3), 1, 0.5, 2, KEPT, KEPT, 0, SAME) \
    R(abs, mpt_abs(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(sign, mpt_sign(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(sin, mpt_sin(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cos, mpt_cos(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(clamp, mpt_clamp(in[0], -1, 1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(minimum, mpt_minimum(in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(maximum, mpt_maximum(in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(where, mpt_where(mpt_gt(in[0], in[1]), in[0], in[1]), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(leaky_relu, mpt_leaky_relu(in[0], 0.1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(elu, mpt_elu(in[0], 1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(silu, mpt_silu(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(softplus, mpt_softplus(in[0], 1, 20), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(hardtanh, mpt_hardtanh(in[0], -1, 1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(dropout, mpt_dropout(in[0], 0.4), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(clone, mpt_clone(in[0]), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cast, mpt_cast(in[0], MPT_F16), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(matmul, mpt_matmul(in[0], matrix(in[0])), 1, -2, 2, PLAIN, PLAIN, 0, NEAR) \
    R(linear, mpt_linear(in[0], mpt_transpose(matrix(in[0]), 0, 1), none(), MPT_ACTIVATION_NONE), \
      1, -2, 2, PLAIN, PLAIN, 2, SUMS) \
    R(sum_0, mpt_sum(in[0], 0, true), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(sum_1, mpt_sum(in[0], 1, true), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(sum_all, mpt_sum(in[0], MPT_ALL_DIMS, false), 1, -2, 2, OTHER, KEPT, 0, SUMS) \
    R(mean_2, mpt_mean(in[0], 2, true), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(mean_3, mpt_mean(in[0], 3, false), 1, -2, 2, OTHER, KEPT, 0, SUMS) \
    R(max_0, mpt_max(in[0], 0, true), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(max_1, mpt_max(in[0], 1, false), 1, -2, 2, OTHER, KEPT, 0, SAME) \
    R(max_all, mpt_max(in[0], MPT_ALL_DIMS, false), 1, -2, 2, OTHER, PLAIN, 1, SAME) \
    R(min, mpt_min(in[0], 3, true), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(argmax, mpt_argmax(in[0], 2, true), 1, -2, 2, KEPT, OTHER, 0, SAME) \
    R(argmin, mpt_argmin(in[0], 1, true), 1, -2, 2, KEPT, OTHER, 0, SAME) \
    R(prod, mpt_prod(in[0], 2, true), 1, 0.8, 1.2, KEPT, KEPT, 0, SUMS) \
    R(var, mpt_var(in[0], 1, true, 1), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(std, mpt_std(in[0], 3, true, 1), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(norm, mpt_norm(in[0], 2, 1, true), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(logsumexp, mpt_logsumexp(in[0], 1, true), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(cumsum_0, mpt_cumsum(in[0], 0), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cumsum_1, mpt_cumsum(in[0], 1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cumsum_2, mpt_cumsum(in[0], 2), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cumsum_3, mpt_cumsum(in[0], -1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(softmax_0, mpt_softmax(in[0], 0), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(softmax_1, mpt_softmax(in[0], 1), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(softmax_2, mpt_softmax(in[0], 2), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(softmax_3, mpt_softmax(in[0], 3), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(log_softmax, mpt_log_softmax(in[0], 1), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(reshape, mpt_reshape(in[0], MPT_SHAPE(-1)), 1, -2, 2, OTHER, KEPT, 1, SAME) \
    R(permute, mpt_permute(in[0], MPT_SHAPE(0, 2, 3, 1)), 1, -2, 2, OTHER, KEPT, 0, SAME) \
    R(slice, mpt_slice(in[0], 1, 1, 3, 1), 1, -2, 2, OTHER, KEPT, 0, SAME) \
    R(crop, mpt_relu(mpt_slice(mpt_slice(in[0], 2, 1, 4, 1), 3, 1, 4, 1)), 1, -2, 2, KEPT, KEPT, \
      0, SAME) \
    R(chunk, mpt_mul(mpt_slice(in[0], 1, 1, 3, 1), mpt_slice(in[1], 1, 0, 2, 1)), 2, -2, 2, KEPT, \
      KEPT, 0, SAME) \
    R(expand, mpt_expand(mpt_sum(in[0], 1, true), mpt_get_shape(in[0])), 1, -2, 2, OTHER, KEPT, 0, \
      SUMS) \
    R(cat_0, mpt_cat(in, 3, 0), 3, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cat_1, mpt_cat(in, 3, 1), 3, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cat_2, mpt_cat(in, 3, 2), 3, -2, 2, KEPT, KEPT, 0, SAME) \
    R(cat_3, mpt_cat(in, 3, -1), 3, -2, 2, KEPT, KEPT, 0, SAME) \
    R(gather, mpt_gather(in[0], 1, indices(in[0], 1, 2)), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(index_select, mpt_index_select(in[0], 1, indices(in[0], 1, -5)), 1, -2, 2, KEPT, KEPT, 0, \
      SUMS) \
    R(scatter_add, \
      mpt_scatter_add(in[0], 1, indices(in[0], 1, mpt_get_shape(in[0]).dim[1]), in[1]), 2, -2, 2, \
      KEPT, KEPT, 0, SUMS) \
    R(flip_0, mpt_flip(in[0], 0), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(flip_1, mpt_flip(in[0], 1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(flip_2, mpt_flip(in[0], 2), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(flip_3, mpt_flip(in[0], -1), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(tril, mpt_tril(in[0], 0), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(triu, mpt_triu(in[0], 0), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(pad, mpt_pad(in[0], MPT_SHAPE(1, 2, 3, 0, 1, 1), 3), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(argsort, mpt_argsort(in[0], 2, true), 1, -2, 2, KEPT, OTHER, 0, SAME) \
    R(sort, mpt_sort(in[0], 1, false, NULL), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(topk, mpt_topk(in[0], 2, 3, true, NULL), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(roll, mpt_roll(in[0], 1, 3), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(nll_loss, mpt_nll_loss(in[0], classes(in[0]), NULL), 1, -2, 0, OTHER, KEPT, -1, SUMS) \
    R(cross_entropy, entropy(in), 1, -2, 2, OTHER, KEPT, -1, SUMS) \
    R(mse_loss, mpt_mse_loss(in[0], in[1], MPT_NONE), 2, -2, 2, KEPT, KEPT, 0, SAME) \
    R(l1_loss, mpt_l1_loss(in[0], in[1], MPT_MEAN), 2, -2, 2, OTHER, KEPT, 0, SUMS) \
    R(smooth_l1_loss, mpt_smooth_l1_loss(in[0], in[1], 1, MPT_NONE), 2, -2, 2, KEPT, KEPT, 0, \
      SAME) \
    R(huber_loss, mpt_huber_loss(in[0], in[1], 1, MPT_SUM), 2, -2, 2, OTHER, KEPT, 0, SUMS) \
    R(binary_cross_entropy_with_logits, \
      mpt_binary_cross_entropy_with_logits(in[0], in[1], none(), none(), MPT_NONE), 2, 0, 1, KEPT, \
      KEPT, 0, SAME) \
    R(binary_cross_entropy, mpt_binary_cross_entropy(in[0], in[1], none(), MPT_NONE), 2, 0.1, 0.9, \
      KEPT, KEPT, 0, SAME) \
    R(kl_div, mpt_kl_div(in[0], in[1], false, MPT_NONE), 2, 0.1, 0.9, KEPT, KEPT, 0, SAME) \
    R(gaussian_nll_loss, mpt_gaussian_nll_loss(in[0], in[1], in[2], false, 1e-6, MPT_NONE), 3, \
      0.5, 2, KEPT, KEPT, 0, SAME) \
    R(poisson_nll_loss, mpt_poisson_nll_loss(in[0], in[1], true, false, 1e-8, MPT_NONE), 2, 0.5, \
      2, KEPT, KEPT, 0, SAME) \
    R(soft_margin_loss, mpt_soft_margin_loss(in[0], in[1], MPT_NONE), 2, -2, 2, KEPT, KEPT, 0, \
      SAME) \
    R(soft_targets, mpt_cross_entropy(in[0], mpt_softmax(in[1], 1), NULL), 2, -2, 2, OTHER, KEPT, \
      0, SUMS) \
    R(cosine_similarity, mpt_cosine_similarity(in[0], in[1], 1, 1e-8), 2, -2, 2, OTHER, KEPT, 0, \
      SUMS) \
    R(interpolate_nearest, mpt_interpolate(in[0], MPT_SCALAR, 1.7, MPT_NEAREST, false), 1, -2, 2, \
      KEPT, KEPT, 0, SAME) \
    R(interpolate, mpt_interpolate(in[0], MPT_SCALAR, 2, MPT_BILINEAR, false), 1, -2, 2, KEPT, \
      KEPT, 0, SAME) \
    R(interpolate_corners, mpt_interpolate(in[0], MPT_SHAPE(3, 9), 0, MPT_BILINEAR, true), 1, -2, \
      2, KEPT, KEPT, 0, SAME) \
    R(conv2d, same_conv(in), 1, -2, 2, KEPT, KEPT, -4, SUMS) \
    R(conv_transpose2d, wide_conv_transpose(in), 1, -2, 2, KEPT, KEPT, -4, SUMS) \
    R(layer_norm, mpt_layer_norm(in[0], 1, like_vector(in[0], 3), none(), 1e-5), 1, -2, 2, PLAIN, \
      PLAIN, 3, SUMS) \
    R(rms_norm, mpt_rms_norm(in[0], 1, like_vector(in[0], 3), 1e-5), 1, -2, 2, PLAIN, PLAIN, 3, \
      SUMS) \
    R(batch_norm, mpt_batch_norm(in[0], none(), none(), like_vector(in[0], 1), none(), 1e-5), 1, \
      -2, 2, KEPT, KEPT, 0, NEAR) \
    R(group_norm, mpt_group_norm(in[0], 1, like_vector(in[0], 1), none(), 1e-5), 1, -2, 2, KEPT, \
      KEPT, 0, NEAR) \
    R(max_pool2d, pool(in, true), 1, -2, 2, KEPT, KEPT, 0, SAME) \
    R(avg_pool2d, pool(in, false), 1, -2, 2, KEPT, KEPT, 0, SUMS) \
    R(adaptive_avg_pool2d, mpt_adaptive_avg_pool2d(in[0], 1, 1), 1, -2, 2, OTHER, KEPT, 0, SUMS) \
    R(scaled_dot_product_attention, attention(in), 3, -2, 2, PLAIN, PLAIN, 0, NEAR)

#define CALL(name, expression, n, low, high, out, gradient, copies, values) \
    static mpt_tensor call_##name(const mpt_tensor *in) { return expression; }
ROWS(CALL)

#define ROW(name, expression, n, low, high, out, gradient, copies, values) \
    {#name, call_##name, n, low, high, out, gradient, copies, values},
static const op_case cases[] = {ROWS(ROW)};
#define COUNT (int)(sizeof cases / sizeof cases[0])

/* ==== Runs ==== */

typedef struct run {
    int rank, copies;
    int64_t numel[1 + MAX_IN];
    bool last[1 + MAX_IN], there[1 + MAX_IN]; /* the result, gradients */
    float value[1 + MAX_IN][MAX_NUMEL];
} run;

static void count_copies(void *user, const char *line) {
    *(int *)user += strstr(line, "copy") != NULL;
}

static void note(run *r, int k, mpt_tensor x) {
    mpt_shape shape = mpt_get_shape(x);
    r->numel[k] = 1;
    for (int i = 0; i < shape.rank; i++) r->numel[k] *= shape.dim[i];
    r->there[k] = true;
    r->last[k] = mpt_is_channels_last(x);
    REQUIRE(r->numel[k] <= MAX_NUMEL);
    mpt_read_f32(mpt_get_dtype(x) == MPT_F32 ? x : mpt_cast(x, MPT_F32), r->value[k], r->numel[k]);
}

static void begin_again(void) {
    mpt_config config = mpt_config_default();
    if (context) mpt_destroy(context);
    config.threads = 2;
    config.debug = true; /* no operand may reach outside its tensor */
    context = mpt_create(&config);
}

/* Bit i of `last`: input i is channels last; bit MAX_IN: the gradient that comes in. */
static void run_case(const op_case *c, mpt_shape shape, mpt_dtype dtype, unsigned last, run *r) {
    mpt_tensor in[MAX_IN];
    state = 3;
    memset(r->there, 0, sizeof r->there);
    r->copies = 0;
    if (strcmp(c->name, "dropout") == 0) begin_again(); /* whose calls are counted */
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_in; i++) {
        in[i] = mpt_cast(drawn(shape, c->low, c->high), dtype);
        if (last >> i & 1u) in[i] = mpt_to_channels_last(in[i]);
        in[i] = mpt_detach(in[i]);
        if (c->gradient != OTHER) mpt_requires_grad(in[i], true);
    }
    mpt_print_launches(context, count_copies, &r->copies);
    mpt_tensor out = c->call(in);
    mpt_print_launches(context, NULL, NULL);
    r->rank = mpt_get_shape(out).rank;
    note(r, 0, out);
    if (c->gradient != OTHER) {
        mpt_tensor dy = mpt_cast(drawn(mpt_get_shape(out), -1, 1), mpt_get_dtype(out));
        if (r->rank == 4 && last >> MAX_IN & 1u) dy = mpt_to_channels_last(dy);
        mpt_print_launches(context, count_copies, &r->copies);
        mpt_backward_from(out, dy, false);
        mpt_print_launches(context, NULL, NULL);
        for (int i = 0; i < c->n_in; i++)
            if (mpt_has_grad(in[i])) note(r, 1 + i, mpt_grad(in[i]));
    }
    check_ok(context);
    mpt_scope_end(context);
}

static void compare(const op_case *c, const run *got, const run *want, mpt_dtype dtype) {
    const bool device = mpt_device_count(MPT_DEVICE_CUDA) > 0;
    const double tolerance = dtype == MPT_F32 ? 1e-5 : 0.008; /* one unit of bf16 */
    for (int k = 0; k <= c->n_in; k++) {
        CHECK_EQ_INT(got->there[k], want->there[k]);
        CHECK_EQ_INT(got->numel[k], want->numel[k]);
        if (!got->there[k] || got->numel[k] != want->numel[k]) continue;
        if (c->values == SAME || (c->values == SUMS && !device))
            CHECK_EQ_BITS(got->value[k], want->value[k], got->numel[k] * 4);
        else
            for (int64_t i = 0; i < want->numel[k] && test_failures < 20; i++)
                CHECK_CLOSE(got->value[k][i], want->value[k][i], tolerance, tolerance);
    }
}

static void check_case(const op_case *c, mpt_shape shape, mpt_dtype dtype) {
    static run plain, last;
    const unsigned all = (1u << MAX_IN) - 1;
    run_case(c, shape, dtype, 0, &plain);
    for (unsigned way = 0; way < 4; way++) { /* all inputs, or the first one; both gradients */
        run_case(c, shape, dtype, (way & 1 ? 1 : all) | (way & 2 ? 0 : 1u << MAX_IN), &last);
        compare(c, &last, &plain, dtype);
        if (c->out != OTHER) CHECK_EQ_INT(last.last[0], c->out == KEPT && last.rank == 4);
        for (int i = 0; i < c->n_in; i++)
            if (last.there[1 + i] && c->gradient == KEPT && !(i > 0 && way & 1))
                CHECK(last.last[1 + i]);
        if (way == 0) CHECK_EQ_INT(last.copies - plain.copies, c->copies);
    }
}

/* Few channels, and more than a vector holds. */
TEST(channels_last_through_every_op) {
    const bool device = mpt_device_count(MPT_DEVICE_CUDA) > 0; /* a simulated one takes its time */
    const mpt_shape shapes[] = {MPT_SHAPE(2, 3, 4, 5),
                                device ? MPT_SHAPE(2, 35, 3, 2) : MPT_SHAPE(2, 37, 4, 34)};
    begin_again();
    REQUIRE(context != NULL);
    for (int i = 0; i < COUNT; i++) {
        int before = test_failures;
        for (int s = 0; s < 2; s++)
            for (int d = 0; d < 2; d++) check_case(&cases[i], shapes[s], d ? MPT_BF16 : MPT_F32);
        if (test_failures > before) printf("\n  in %s", cases[i].name);
    }
    mpt_destroy(context);
}

TEST_TABLE = {T(channels_last_through_every_op)};
TEST_MAIN
