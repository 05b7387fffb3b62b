/* test_gradcheck.c: every row of the op table against finite differences in double precision.
   The reference kernels are built with double arithmetic. Each differentiable op runs in at least
   five variants of shape and attributes, each once on contiguous inputs and once on transposed
   views, with a random upstream gradient. A row without a case fails; rows without a gradient must
   let none through. Each row also needs goldens that were met in fp32, fp16 and bf16, misuse that
   was told, of which the programs that run those tests leave word, and a comment. A build with
   MPTRAIN_CUDA checks the kernels of mptrain_cuda.cu, which compute in fp32, with a larger step and
   less closely. */
#define MPTRAIN_IMPLEMENTATION
#define MPT__REAL double
#include "mptrain.h"

#include "harness.h"

enum { MAX_IN = 8, VARIANTS = 5, MAX_NUMEL = 256 };
#if defined(MPTRAIN_CUDA)
static const double step = 5e-4, tolerance = 2e-3;
#else
static const double step = 1e-6, tolerance = 1e-6;
#endif

static mpt_context *context;
static mpt_scaler scaler;
static mpt_op square_op;
static uint64_t state = 7;

static double uniform(double low, double high) {
    state += UINT64_C(0x9e3779b97f4a7c15);
    return low + (high - low) * (double)(mpt__hash_mix(state) >> 11) / 9007199254740992.0;
}

/* ==== Cases ==== */

typedef struct op_case {
    const char *op;
    mpt_tensor (*call)(const mpt_tensor *in, int variant);
    int n_in;
    double low, high; /* of the inputs' values */
    mpt_shape shape[VARIANTS][MAX_IN];
} op_case;

static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}

#define CALL(name, expression) \
    static mpt_tensor call_##name(const mpt_tensor *in, int v) { \
        (void)v; \
        return expression; \
    }
static const int dims[VARIANTS] = {0, 1, -1, MPT_ALL_DIMS, 1};
static const int axes[VARIANTS] = {0, 1, -1, -2, 0};
CALL(add, mpt_add(in[0], in[1]))
CALL(sub, mpt_sub(in[0], in[1]))
CALL(mul, mpt_mul(in[0], in[1]))
CALL(div, mpt_div(in[0], in[1]))
CALL(add_scalar, mpt_add_scalar(in[0], 1.5 - v))
CALL(mul_scalar, mpt_mul_scalar(in[0], 1.5 - v))
CALL(neg, mpt_neg(in[0]))
CALL(exp, mpt_exp(in[0]))
CALL(log, mpt_log(in[0]))
CALL(sqrt, mpt_sqrt(in[0]))
CALL(relu, mpt_relu(in[0]))
CALL(gelu, mpt_gelu(in[0]))
CALL(gelu_tanh, mpt_gelu_tanh(in[0]))
CALL(tanh, mpt_tanh(in[0]))
CALL(sigmoid, mpt_sigmoid(in[0]))
CALL(min, mpt_min(in[0], dims[v], v == 4))
CALL(prod, mpt_prod(in[0], dims[v], v == 4))
CALL(var, mpt_var(in[0], dims[v], v == 4, 0.5))
CALL(std, mpt_std(in[0], dims[v], v == 4, 0.5))
CALL(norm, mpt_norm(in[0], v == 0 ? 1 : v < 3 ? 2 : (double)INFINITY, dims[v], v == 4))
CALL(logsumexp, mpt_logsumexp(in[0], dims[v], v == 4))
CALL(cumsum, mpt_cumsum(in[0], axes[v]))
static mpt_tensor picks(mpt_shape shape, int count) {
    int64_t index[16];
    for (int i = 0; i < 16; i++) index[i] = i * 7 % 5 % count;
    return mpt_from(context, MPT_I64, shape, index);
}
CALL(gather,
     mpt_gather(in[0], v & 1, picks(v & 1 ? MPT_SHAPE(2, 3) : MPT_SHAPE(3, 3), v & 1 ? 3 : 2)))
CALL(index_select, mpt_index_select(in[0], axes[v], picks(MPT_SHAPE(5), 2)))
CALL(scatter_add, mpt_scatter_add(in[0], 1, picks(MPT_SHAPE(2, 4), 3), in[1]))
CALL(flip, mpt_flip(in[0], axes[v]))
CALL(tril, mpt_tril(in[0], v - 2))
CALL(triu, mpt_triu(in[0], v - 2))
CALL(pad, mpt_pad(in[0], v & 1 ? MPT_SHAPE(1, 2) : MPT_SHAPE(0, 1, 2, v), 3))
CALL(log1p, mpt_log1p(in[0]))
CALL(rsqrt, mpt_rsqrt(in[0]))
CALL(pow, mpt_pow(in[0], in[1]))
CALL(pow_scalar, mpt_pow_scalar(in[0], v - 1.5 + (v == 3)))
CALL(abs, mpt_abs(in[0]))
CALL(sign, mpt_sign(in[0]))
CALL(sin, mpt_sin(in[0]))
CALL(cos, mpt_cos(in[0]))
CALL(clamp, mpt_clamp(in[0], v == 2 ? -(double)INFINITY : -1, v == 3 ? (double)INFINITY : 0.5))
CALL(minimum, mpt_minimum(in[0], in[1]))
CALL(maximum, mpt_maximum(in[0], in[1]))
CALL(where, mpt_where(mpt_gt(in[2], mpt_mul_scalar(in[2], 0)), in[0], in[1]))
CALL(leaky_relu, mpt_leaky_relu(in[0], 0.1 * v))
CALL(elu, mpt_elu(in[0], 0.5 + v))
CALL(silu, mpt_silu(in[0]))
CALL(softplus, mpt_softplus(in[0], 0.5 + v, v))
CALL(hardtanh, mpt_hardtanh(in[0], -1, 0.5))
CALL(scale_loss, mpt_scale_loss(scaler, mpt_sum(in[0], MPT_ALL_DIMS, false)))
CALL(matmul, mpt_matmul(in[0], in[1]))
CALL(linear, mpt_linear(in[0], in[1], v == 4 ? none() : in[2], (mpt_activation)v))
static const mpt_conv_config *conv_config(int v, bool transposed) {
    static const int stride[VARIANTS] = {1, 2, 1, 3, 2}, dilation[VARIANTS] = {1, 1, 2, 1, 1};
    static mpt_conv_config config;
    config = mpt_conv_config_default();
    for (int d = 0; d < 2; d++) {
        config.stride[d] = v == 3 ? stride[v] - d : stride[v];
        config.dilation[d] = dilation[v];
        config.padding[d] = v > 0 ? 1 : 0;
        config.output_padding[d] = transposed && v == 3 ? 1 - d : 0;
    }
    config.groups = v == 2 ? 2 : v == 4 ? 3 : 1;
    return &config;
}
typedef mpt_tensor (*convolution)(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  const mpt_conv_config *config);

/* With stride 1 also such that the output has the input's size, one after the other. */
static mpt_tensor convolve(convolution run, const mpt_tensor *in, int v) {
    mpt_conv_config config = *conv_config(v, false);
    mpt_tensor bias = v == 4 ? none() : in[2], out[2];
    out[0] = run(in[0], in[1], bias, &config);
    if (v != 0 && v != 2) return out[0];
    config.same = true;
    out[1] = run(in[0], in[1], bias, &config);
    for (int i = 0; i < 2; i++) out[i] = mpt_flatten(out[i], 0, -1);
    return mpt_cat(out, 2, 0);
}
CALL(conv2d, convolve(mpt_conv2d, in, v))
CALL(conv1d, convolve(mpt_conv1d, in, v))
CALL(conv_transpose2d,
     mpt_conv_transpose2d(in[0], in[1], v == 4 ? none() : in[2], conv_config(v, true)))
CALL(sum, mpt_sum(in[0], dims[v], v == 4))
CALL(mean, mpt_mean(in[0], dims[v], v == 4))
CALL(max, mpt_max(in[0], dims[v], v == 4))
CALL(softmax, mpt_softmax(in[0], axes[v]))
CALL(log_softmax, mpt_log_softmax(in[0], axes[v]))
CALL(reshape, mpt_reshape(in[0], v & 1 ? MPT_SHAPE(-1) : MPT_SHAPE(1, -1, 1)))
CALL(permute, mpt_permute(in[0], v & 1 ? MPT_SHAPE(1, 0) : MPT_SHAPE(-1, -2)))
CALL(slice, mpt_slice(in[0], axes[v], v - 2, 5, 1 + v / 2))
CALL(expand, mpt_expand(in[0], MPT_SHAPE(2, -1, 4)))
CALL(clone, mpt_clone(in[0]))
CALL(cast, mpt_cast(in[0], MPT_F64))
CALL(cat, mpt_cat(in, 3, axes[v]))

/* Labels of 1 and -1, in fp64 as the inputs are. */
static mpt_tensor signs(mpt_shape shape) {
    static const double some[12] = {1, -1, -1, 1, -1, 1, 1, -1, 1, 1, -1, -1};
    double values[64];
    for (int i = 0; i < 64; i++) values[i] = some[i % 12];
    return mpt_from(context, MPT_F64, shape, values);
}
/* Positive constants of the last dimension. */
static mpt_tensor weights(mpt_tensor like) {
    static const double values[4] = {0.5, 2.0, 1.25, 0.75};
    mpt_shape shape = mpt_get_shape(like);
    return mpt_from(context, MPT_F64, shape.rank ? MPT_SHAPE(shape.dim[shape.rank - 1]) : shape,
                    values);
}
#define REDUCTION (mpt_reduction)(v % 3)
CALL(mse_loss, mpt_mse_loss(in[0], in[1], REDUCTION))
CALL(l1_loss, mpt_l1_loss(in[0], in[1], REDUCTION))
CALL(smooth_l1_loss, mpt_smooth_l1_loss(in[0], in[1], 0.4 * v, REDUCTION))
CALL(huber_loss, mpt_huber_loss(in[0], in[1], 0.4 + 0.3 * v, REDUCTION))
CALL(binary_cross_entropy_with_logits,
     mpt_binary_cross_entropy_with_logits(in[0], in[1], v & 1 ? weights(in[0]) : none(),
                                          v > 1 ? weights(in[0]) : none(), REDUCTION))
CALL(binary_cross_entropy,
     mpt_binary_cross_entropy(in[0], in[1], v & 1 ? weights(in[0]) : none(), REDUCTION))
CALL(kl_div, mpt_kl_div(in[0], in[1], v > 2, (mpt_reduction)(v % 4)))
CALL(gaussian_nll_loss, mpt_gaussian_nll_loss(in[0], in[1], in[2], v & 1, 1e-6, REDUCTION))
CALL(soft_margin_loss, mpt_soft_margin_loss(in[0], in[1], REDUCTION))
CALL(hinge_embedding_loss,
     mpt_hinge_embedding_loss(in[0], signs(mpt_get_shape(in[0])), 0.7 * v, REDUCTION))
CALL(margin_ranking_loss, mpt_margin_ranking_loss(in[0], in[1], in[2], 0.3 * v, REDUCTION))
CALL(triplet_margin_loss,
     mpt_triplet_margin_loss(in[0], in[1], in[2], 1 + v, 1e-6, v > 2, REDUCTION))
CALL(cosine_similarity, mpt_cosine_similarity(in[0], in[1], v ? -1 : 0, 1e-8))
CALL(cosine_embedding_loss,
     mpt_cosine_embedding_loss(in[0], in[1], signs(mpt_get_shape(mpt_sum(in[0], -1, false))),
                               -0.2 * v, REDUCTION))

static mpt_tensor call_soft_targets(const mpt_tensor *in, int v) {
    mpt_nll_config config = mpt_nll_config_default();
    static const double by_class[3] = {0.5, 2.0, 1.25};
    config.reduction = REDUCTION;
    config.label_smoothing = 0.1 * v;
    if (v > 1) config.weight = mpt_from(context, MPT_F64, MPT_SHAPE(3), by_class);
    return mpt_cross_entropy(in[0], in[1], &config);
}

static mpt_tensor row_norm(const mpt_tensor *in, int v, bool layer) {
    const double eps = 0.1 + 0.2 * v;
    mpt_tensor sum, y;
    if (v < 3)
        return layer ? mpt_layer_norm(in[0], 1 + v / 2, in[1], in[2], eps)
                     : mpt_rms_norm(in[0], 1 + v / 2, in[1], eps);
    mpt_tensor residual = v == 3 ? in[2] : mpt_mul(in[0], in[0]);
    y = layer ? mpt_add_layer_norm(in[0], residual, 1, in[1], none(), eps, &sum)
              : mpt_add_rms_norm(in[0], residual, 1, in[1], eps, &sum);
    return v == 3 ? y : mpt_add(y, mpt_mul(sum, sum));
}
CALL(layer_norm, row_norm(in, v, true))
CALL(rms_norm, row_norm(in, v, false))
static mpt_tensor constants(mpt_tensor like) {
    static const double values[6] = {0.5, 2.0, 1.25, 0.75, 1.5, 1.0};
    return mpt_from(context, MPT_F64, mpt_get_shape(like), values);
}
/* Without and with what may follow; once x is its own residual. */
static mpt_tensor call_batch_norm(const mpt_tensor *in, int v) {
    const mpt_tensor given = v == 4 ? constants(in[1]) : none();
    mpt_tensor residual = v == 2 ? mpt_mul(in[0], in[3]) : v == 3 ? in[0] : in[3];
    mpt_tensor y = mpt_batch_norm_relu(in[0], given, given, in[1], in[2], 0.1 + v, residual);
    if (v == 3) y = mpt_mul(y, in[3]);
    return mpt_add(y, mpt_batch_norm(in[0], given, given, in[1], v == 3 ? none() : in[2], 0.1 + v));
}
CALL(group_norm, mpt_group_norm(in[0],
                                v < 2    ? 2
                                : v == 2 ? 1
                                         : mpt_get_shape(in[1]).dim[0],
                                in[1], in[2], 0.1 + v))
CALL(poisson_nll_loss, mpt_poisson_nll_loss(in[0], in[1], v & 1, v > 1, 1e-3, REDUCTION))
CALL(interpolate, mpt_interpolate(in[0], v & 1 ? MPT_SHAPE(5, 3) : MPT_SCALAR, 1.6 - 0.3 * v,
                                  v == 0 ? MPT_NEAREST : MPT_BILINEAR, v > 2))
static mpt_tensor call_multi_margin_loss(const mpt_tensor *in, int v) {
    static const int64_t targets[5] = {1, 0, 2, 2, 1};
    static const double by_class[3] = {0.5, 2.0, 1.25};
    mpt_shape shape = mpt_get_shape(in[0]);
    mpt_tensor t = mpt_from(context, MPT_I64, MPT_SHAPE(shape.dim[0]), targets);
    mpt_tensor weight = v > 2 ? mpt_from(context, MPT_F64, MPT_SHAPE(3), by_class) : none();
    return mpt_multi_margin_loss(in[0], t, 1 + v % 2, 0.8, weight, REDUCTION);
}

static mpt_pool_config windows(int v) {
    mpt_pool_config config = mpt_pool_config_make(2 + v / 2, 1 + v % 2, v / 2);
    config.padding[1] = 0;
    config.ceil_mode = v > 2;
    config.count_padding = v != 3;
    return config;
}
static mpt_tensor call_max_pool2d(const mpt_tensor *in, int v) {
    mpt_pool_config config = windows(v);
    return v == 4 ? mpt_adaptive_max_pool2d(in[0], 2, 3) : mpt_max_pool2d(in[0], &config);
}
static mpt_tensor call_avg_pool2d(const mpt_tensor *in, int v) {
    mpt_pool_config config = windows(v);
    return v == 4 ? mpt_adaptive_avg_pool2d(in[0], 2, 3) : mpt_avg_pool2d(in[0], &config);
}

/* The mask is drawn from the call's number, which must be the same in every evaluation. */
static mpt_tensor call_dropout(const mpt_tensor *in, int v) {
    context->now.module_calls = (uint64_t)v;
    return mpt_dropout(in[0], 0.1 + 0.2 * v);
}

static mpt_tensor losses(const mpt_tensor *in, int v, bool from_logits) {
    static const int64_t targets[8] = {1, 0, 2, -100, 1, 2, 0, 1};
    static const double weights[3] = {0.5, 2.0, 1.25};
    mpt_nll_config config = mpt_nll_config_default();
    config.reduction = (mpt_reduction)(v % 3);
    if (v == 3) config.weight = mpt_from(context, MPT_F64, MPT_SHAPE(3), weights);
    if (v >= 2) config.label_smoothing = from_logits ? 0.1 * v : 0.0;
    mpt_shape shape = mpt_get_shape(in[0]);
    for (int d = 1; d + 1 < shape.rank; d++) shape.dim[d] = shape.dim[d + 1];
    shape.rank--;
    mpt_tensor target = mpt_from(context, MPT_I64, shape, targets);
    return from_logits ? mpt_cross_entropy(in[0], target, &config)
                       : mpt_nll_loss(in[0], target, &config);
}
CALL(nll_loss, losses(in, v, false))
CALL(cross_entropy, losses(in, v, true))

static mpt_tensor call_embedding(const mpt_tensor *in, int v) {
    mpt_tensor ids = picks(v & 1 ? MPT_SHAPE(2, 3) : MPT_SHAPE(v), 3);
    return mpt_embedding(ids, in[0], v == 1 ? 4 : -1);
}

/* Keys 1 and 4 are hidden, and all of them from query 1. */
static mpt_tensor call_scaled_dot_product_attention(const mpt_tensor *in, int v) {
    mpt_attention_config config = mpt_attention_config_default();
    unsigned char seen[15];
    double bias[15];
    for (int i = 0; i < 15; i++) seen[i] = i / 5 != 1 && i % 5 % 3 != 1, bias[i] = 0.3 * i - 2;
    config.causal = v == 1 || v == 3;
    config.scale = v == 3 ? 0.7 : 0;
    config.window = v == 3 ? 2 : 0, config.offset = v == 1 || v == 3 ? 1 : 0;
    config.dropout = v == 4 ? 0.4 : 0;
    if (v == 2) config.mask = mpt_from(context, MPT_BOOL, MPT_SHAPE(3, 5), seen);
    if (v == 3) config.mask = mpt_from(context, MPT_F64, MPT_SHAPE(3, 1, 5), bias);
    context->now.module_calls = (uint64_t)v;
    return mpt_scaled_dot_product_attention(in[0], in[1], in[2], &config);
}

static mpt_tensor call_rope(const mpt_tensor *in, int v) {
    mpt_rope_config config = mpt_rope_config_default();
    config.base = v ? 500.0 * v : 10000.0;
    config.offset = 3 * v;
    config.interleaved = v & 1;
    config.heads = v > 2 ? 2 : 0;
    return mpt_rope(in[0], &config);
}

/* 2 D and 3 D, of entries that all have room and of some that share theirs. */
static mpt_tensor call_hash_grid(const mpt_tensor *in, int v) {
    double places[18];
    for (int i = 0; i < 18; i++) places[i] = i * 7 % 18 / 17.0;
    return mpt_hash_grid(
        mpt_from(context, MPT_F64, v & 1 ? MPT_SHAPE(2, 3, 3) : MPT_SHAPE(9, 2), places), in[0],
        1 + v, 2 + 4 * v);
}

static mpt_tensor call_linear_cross_entropy(const mpt_tensor *in, int v) {
    static const int64_t targets[6] = {1, 0, -100, 2, 1, 2};
    static const double by_class[3] = {0.5, 2.0, 1.25};
    mpt_nll_config config = mpt_nll_config_default();
    mpt_shape shape = mpt_get_shape(in[0]);
    shape.rank--;
    config.reduction = REDUCTION;
    config.label_smoothing = 0.1 * (v / 2);
    if (v == 3) config.weight = mpt_from(context, MPT_F64, MPT_SHAPE(3), by_class);
    return mpt_linear_cross_entropy(in[0], in[1], mpt_from(context, MPT_I64, shape, targets),
                                    &config);
}

/* x, weights, biases, h, c, weight_hr: in the third variant they are those of a projection, which
   the others do not have. The output and the states side by side. */
static mpt_tensor call_recurrent(const mpt_tensor *in, int v, int states) {
    static const int64_t steps[2] = {1, 2};
    mpt_cell_config how = mpt_cell_config_default();
    mpt_tensor h = in[5], c = states > 1 ? in[6] : none(), all[3];
    how.weight_ih = in[1], how.weight_hh = in[2];
    how.bias_ih = in[3], how.bias_hh = in[4];
    how.reverse = v == 1 || v == 4;
    how.batch_first = v == 2;
    how.relu = v == 3 && !states;
    if (v == 3 && states > 1) how.weight_hr = in[7];
    if (v >= 3) how.lengths = mpt_from(context, MPT_I64, MPT_SHAPE(2), steps);
    all[0] = states > 1    ? mpt_lstm(in[0], &how, &h, &c)
             : states == 1 ? mpt_gru(in[0], &how, &h)
                           : mpt_rnn(in[0], &how, &h);
    all[1] = h, all[2] = c;
    for (int i = 0; i < (states > 1 ? 3 : 2); i++) all[i] = mpt_flatten(all[i], 0, -1);
    return mpt_cat(all, states > 1 ? 3 : 2, 0);
}
CALL(rnn, call_recurrent(in, v, 0))
CALL(gru, call_recurrent(in, v, 1))
CALL(lstm, call_recurrent(in, v, 2))

static mpt_status square_forward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_input(call, 0);
    mpt_op_save(call, 0, x);
    return mpt_op_set_output(call, 0, mpt_mul(x, x));
}
static mpt_status square_backward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor twice = mpt_mul_scalar(mpt_op_saved(call, 0), 2.0);
    return mpt_op_set_input_grad(call, 0, mpt_mul(twice, mpt_op_output_grad(call, 0)));
}
static mpt_tensor call_user(const mpt_tensor *in, int v) {
    mpt_tensor out;
    (void)v;
    mpt_op_apply(square_op, in, 1, &out, 1);
    return out;
}

#define S MPT_SHAPE
static op_case cases[128];
static int case_count;

static void add_case(const char *op, mpt_tensor (*call)(const mpt_tensor *, int), int n_in,
                     double low, double high, const mpt_shape shapes[VARIANTS][MAX_IN]) {
    op_case *row = &cases[case_count++];
    row->op = op, row->call = call, row->n_in = n_in, row->low = low, row->high = high;
    memcpy(row->shape, shapes, sizeof row->shape);
}

static void make_cases(void) {
    if (case_count) return;
    const mpt_shape matrix[VARIANTS][MAX_IN] = {
        {S(3, 4)}, {S(1, 5)}, {S(4, 1)}, {S(2, 3)}, {S(5, 3)}};
    const mpt_shape several[VARIANTS][MAX_IN] = {
        {S(3, 4)}, {S(2, 5)}, {S(4, 2)}, {S(2, 3)}, {S(5, 3)}};
    const mpt_shape picked[VARIANTS][MAX_IN] = {
        {S(2, 3)}, {S(2, 3)}, {S(2, 3)}, {S(2, 3)}, {S(2, 3)}};
    const mpt_shape added[VARIANTS][MAX_IN] = {{S(2, 3), S(2, 4)},
                                               {S(2, 3), S(2, 4)},
                                               {S(2, 5), S(2, 4)},
                                               {S(2, 4), S(2, 4)},
                                               {S(2, 3), S(2, 4)}};
    const mpt_shape broadcast[VARIANTS][MAX_IN] = {{S(3, 4), S(3, 4)},
                                                   {S(3, 4), S(4)},
                                                   {S(3, 1), S(1, 4)},
                                                   {S(2, 1, 3), S(5, 1)},
                                                   {MPT_SCALAR, S(2, 2)}};
    const mpt_shape same[VARIANTS][MAX_IN] = {{S(3, 4), S(3, 4)},
                                              {S(4), S(4)},
                                              {S(1, 1), S(1, 1)},
                                              {S(2, 3, 2), S(2, 3, 2)},
                                              {MPT_SCALAR, MPT_SCALAR}};
    const mpt_shape three[VARIANTS][MAX_IN] = {{S(3, 4), S(3, 4), S(3, 4)},
                                               {S(4), S(4), S(4)},
                                               {S(2, 3), S(2, 3), S(2, 1)},
                                               {S(2, 3, 2), S(2, 3, 2), S(2, 3, 2)},
                                               {S(2, 2), S(2, 2), S(2, 2)}};
    const mpt_shape vectors[VARIANTS][MAX_IN] = {{S(3, 4), S(3, 4), S(3, 4)},
                                                 {S(4), S(4), S(4)},
                                                 {S(2, 3), S(2, 3), S(2, 3)},
                                                 {S(2, 5), S(2, 5), S(2, 5)},
                                                 {S(3, 2), S(3, 2), S(3, 2)}};
    const mpt_shape probable[VARIANTS][MAX_IN] = {{S(4, 3), S(4, 3)},
                                                  {S(3), S(3)},
                                                  {S(1, 3), S(1, 3)},
                                                  {S(2, 3, 4), S(2, 3, 4)},
                                                  {S(2, 3, 2, 2), S(2, 3, 2, 2)}};
    const mpt_shape choices[VARIANTS][MAX_IN] = {{S(3, 4), S(3, 4), S(3, 4)},
                                                 {S(3, 4), S(4), S(3, 1)},
                                                 {S(3, 1), S(1, 4), S(1)},
                                                 {S(2, 1, 3), S(5, 1), S(3)},
                                                 {MPT_SCALAR, S(2, 2), S(2, 1)}};
    const mpt_shape products[VARIANTS][MAX_IN] = {{S(3, 4), S(4, 2)},
                                                  {S(4), S(4, 3)},
                                                  {S(2, 3, 4), S(4)},
                                                  {S(2, 1, 3, 2), S(3, 2, 4)},
                                                  {S(1, 1), S(2, 1, 5)}};
    const mpt_shape lines[VARIANTS][MAX_IN] = {{S(3, 4), S(2, 4), S(2)},
                                               {S(4), S(3, 4), S(3)},
                                               {S(2, 2, 3), S(4, 3), S(4)},
                                               {S(1, 5), S(1, 5), S(1)},
                                               {S(2, 3), S(2, 3), S(2)}};
    const mpt_shape rows[VARIANTS][MAX_IN] = {{S(3, 4), S(4), S(4)},
                                              {S(2, 3, 5), S(5), S(5)},
                                              {S(2, 3, 2), S(3, 2), S(3, 2)},
                                              {S(3, 4), S(4), S(3, 4)},
                                              {S(3, 4), S(4), S(4)}};
    const mpt_shape channels[VARIANTS][MAX_IN] = {{S(3, 4), S(4), S(4)},
                                                  {S(2, 4, 3), S(4), S(4)},
                                                  {S(2, 3, 2, 2), S(3), S(3)},
                                                  {S(2, 2, 3), S(2), S(2)},
                                                  {S(2, 3, 2, 1), S(3), S(3)}};
    const mpt_shape after[VARIANTS][MAX_IN] = {{S(3, 4), S(4), S(4), S(3, 4)},
                                               {S(2, 4, 3), S(4), S(4), S(2, 4, 3)},
                                               {S(2, 3, 2, 2), S(3), S(3), S(2, 3, 2, 2)},
                                               {S(2, 2, 3), S(2), S(2), S(2, 2, 3)},
                                               {S(2, 3, 2, 1), S(3), S(3), S(2, 3, 2, 1)}};
    const mpt_shape images[VARIANTS][MAX_IN] = {
        {S(1, 2, 3, 4)}, {S(2, 1, 4, 4)}, {S(1, 2, 5, 4)}, {S(1, 1, 4, 6)}, {S(2, 2, 3, 4)}};
    const mpt_shape kernels[VARIANTS][MAX_IN] = {{S(2, 2, 4, 3), S(3, 2, 2, 3), S(3)},
                                                 {S(1, 2, 5, 4), S(2, 2, 3, 2), S(2)},
                                                 {S(1, 4, 4, 5), S(2, 2, 2, 3), S(2)},
                                                 {S(2, 1, 5, 5), S(2, 1, 3, 3), S(2)},
                                                 {S(2, 3, 4, 4), S(3, 1, 3, 2), S(3)}};
    const mpt_shape signals[VARIANTS][MAX_IN] = {{S(2, 2, 5), S(3, 2, 4), S(3)},
                                                 {S(1, 2, 6), S(2, 2, 2), S(2)},
                                                 {S(1, 4, 5), S(2, 2, 3), S(2)},
                                                 {S(2, 1, 7), S(2, 1, 3), S(2)},
                                                 {S(2, 3, 4), S(3, 1, 2), S(3)}};
    const mpt_shape spread[VARIANTS][MAX_IN] = {{S(2, 2, 3, 2), S(2, 3, 2, 3), S(3)},
                                                {S(1, 2, 3, 2), S(2, 2, 3, 2), S(2)},
                                                {S(1, 4, 3, 3), S(4, 1, 2, 3), S(2)},
                                                {S(2, 1, 2, 3), S(1, 2, 3, 3), S(2)},
                                                {S(2, 3, 2, 3), S(3, 1, 3, 2), S(3)}};
    const mpt_shape grown[VARIANTS][MAX_IN] = {
        {S(3, 4)}, {S(3, 1)}, {S(1, 1)}, {S(1, 4)}, {S(2, 4)}};
    const mpt_shape parts[VARIANTS][MAX_IN] = {{S(2, 3), S(1, 3), S(4, 3)},
                                               {S(2, 3), S(2, 1), S(2, 2)},
                                               {S(1, 1), S(1, 2), S(1, 1)},
                                               {S(1, 2), S(3, 2), S(1, 2)},
                                               {S(1, 4), S(1, 4), S(1, 4)}};
    const mpt_shape tables[VARIANTS][MAX_IN] = {
        {S(3, 4)}, {S(5, 1)}, {S(3, 2)}, {S(4, 5)}, {S(3, 3)}};
    const mpt_shape turned[VARIANTS][MAX_IN] = {
        {S(5, 4)}, {S(2, 3, 6)}, {S(1, 2, 3, 8)}, {S(2, 3, 8)}, {S(1, 9, 4)}};
    const mpt_shape grids[VARIANTS][MAX_IN] = {
        {S(2, 9, 2)}, {S(1, 5, 1)}, {S(3, 16, 1)}, {S(2, 7, 2)}, {S(1, 40, 3)}};
    const mpt_shape heads[VARIANTS][MAX_IN] = {{S(3, 4), S(5, 4), S(5, 2)},
                                               {S(2, 4, 3), S(2, 6, 3), S(2, 6, 3)},
                                               {S(2, 3, 4), S(1, 5, 4), S(1, 5, 4)},
                                               {S(1, 3, 4, 2), S(1, 3, 5, 2), S(1, 3, 5, 4)},
                                               {S(2, 4, 2, 2), S(2, 2, 5, 2), S(2, 2, 5, 3)}};
    const mpt_shape classified[VARIANTS][MAX_IN] = {{S(4, 2), S(3, 2)},
                                                    {S(1, 5), S(3, 5)},
                                                    {S(2, 3, 4), S(3, 4)},
                                                    {S(6, 3), S(3, 3)},
                                                    {S(2, 1, 2), S(3, 2)}};
    const mpt_shape classes[VARIANTS][MAX_IN] = {
        {S(4, 3)}, {S(1, 3)}, {S(5, 3)}, {S(2, 3, 2, 2)}, {S(3)}};
    const mpt_shape samples[VARIANTS][MAX_IN] = {
        {S(4, 3)}, {S(1, 3)}, {S(5, 3)}, {S(2, 3)}, {S(3, 3)}};
    const mpt_shape pictures[VARIANTS][MAX_IN] = {
        {S(2, 2, 3, 4)}, {S(1, 2, 3, 4)}, {S(2, 1, 4, 2)}, {S(1, 1, 3, 2)}, {S(1, 1, 6, 7)}};
#define CASE(name, n, low, high, shapes) add_case(#name, call_##name, n, low, high, shapes)
    CASE(add, 2, -2, 2, broadcast);
    CASE(sub, 2, -2, 2, broadcast);
    CASE(mul, 2, -2, 2, broadcast);
    CASE(div, 2, 0.5, 2, broadcast);
    CASE(add_scalar, 1, -2, 2, matrix);
    CASE(mul_scalar, 1, -2, 2, matrix);
    CASE(neg, 1, -2, 2, matrix);
    CASE(exp, 1, -2, 2, matrix);
    CASE(log, 1, 0.2, 3, matrix);
    CASE(sqrt, 1, 0.2, 3, matrix);
    CASE(relu, 1, -2, 2, matrix);
    CASE(gelu, 1, -3, 3, matrix);
    CASE(gelu_tanh, 1, -3, 3, matrix);
    CASE(tanh, 1, -2, 2, matrix);
    CASE(sigmoid, 1, -4, 4, matrix);
    CASE(min, 1, -2, 2, matrix);
    CASE(prod, 1, -2, 2, matrix);
    CASE(var, 1, -2, 2, matrix);
    CASE(std, 1, 0.5, 2, several);
    CASE(norm, 1, -2, 2, matrix);
    CASE(logsumexp, 1, -3, 3, matrix);
    CASE(cumsum, 1, -2, 2, matrix);
    CASE(gather, 1, -2, 2, picked);
    CASE(index_select, 1, -2, 2, picked);
    CASE(scatter_add, 2, -2, 2, added);
    CASE(flip, 1, -2, 2, matrix);
    CASE(tril, 1, -2, 2, matrix);
    CASE(triu, 1, -2, 2, matrix);
    CASE(pad, 1, -2, 2, matrix);
    CASE(log1p, 1, -0.5, 3, matrix);
    CASE(rsqrt, 1, 0.3, 3, matrix);
    CASE(pow, 2, 0.4, 2, broadcast);
    CASE(pow_scalar, 1, 0.4, 2, matrix);
    CASE(abs, 1, -2, 2, matrix);
    CASE(sign, 1, -2, 2, matrix);
    CASE(sin, 1, -9, 9, matrix);
    CASE(cos, 1, -9, 9, matrix);
    CASE(clamp, 1, -2, 2, matrix);
    CASE(minimum, 2, -2, 2, broadcast);
    CASE(maximum, 2, -2, 2, broadcast);
    CASE(where, 3, -2, 2, choices);
    CASE(leaky_relu, 1, -2, 2, matrix);
    CASE(elu, 1, -2, 2, matrix);
    CASE(silu, 1, -4, 4, matrix);
    CASE(softplus, 1, -4, 4, matrix);
    CASE(hardtanh, 1, -2, 2, matrix);
    CASE(scale_loss, 1, -2, 2, matrix);
    CASE(matmul, 2, -2, 2, products);
    CASE(linear, 3, -2, 2, lines);
    CASE(conv2d, 3, -2, 2, kernels);
    CASE(conv1d, 3, -2, 2, signals);
    CASE(conv_transpose2d, 3, -2, 2, spread);
    CASE(sum, 1, -2, 2, matrix);
    CASE(mean, 1, -2, 2, matrix);
    CASE(max, 1, -2, 2, matrix);
    CASE(softmax, 1, -3, 3, matrix);
    CASE(log_softmax, 1, -3, 3, matrix);
    CASE(dropout, 1, -2, 2, matrix);
    CASE(reshape, 1, -2, 2, matrix);
    CASE(permute, 1, -2, 2, matrix);
    CASE(slice, 1, -2, 2, matrix);
    CASE(expand, 1, -2, 2, grown);
    CASE(clone, 1, -2, 2, matrix);
    CASE(cast, 1, -2, 2, matrix);
    CASE(cat, 3, -2, 2, parts);
    CASE(nll_loss, 1, -3, 0, classes);
    CASE(cross_entropy, 1, -3, 3, classes);
    CASE(mse_loss, 2, -2, 2, same);
    CASE(l1_loss, 2, -2, 2, same);
    CASE(smooth_l1_loss, 2, -2, 2, same);
    CASE(huber_loss, 2, -2, 2, same);
    CASE(binary_cross_entropy_with_logits, 2, -2, 2, same);
    CASE(binary_cross_entropy, 2, 0.1, 0.9, same);
    CASE(kl_div, 2, 0.1, 2, same);
    CASE(gaussian_nll_loss, 3, 0.2, 2, three);
    CASE(soft_margin_loss, 2, -2, 2, same);
    CASE(hinge_embedding_loss, 1, -2, 2, matrix);
    CASE(margin_ranking_loss, 3, -2, 2, three);
    CASE(triplet_margin_loss, 3, -2, 2, vectors);
    CASE(cosine_similarity, 2, -2, 2, vectors);
    CASE(cosine_embedding_loss, 2, -2, 2, vectors);
    CASE(soft_targets, 2, -2, 2, probable);
    CASE(layer_norm, 3, -2, 2, rows);
    CASE(rms_norm, 3, -2, 2, rows);
    CASE(batch_norm, 4, -2, 2, after);
    CASE(group_norm, 3, -2, 2, channels);
    CASE(poisson_nll_loss, 2, 0.3, 3, same);
    CASE(interpolate, 1, -2, 2, pictures);
    CASE(multi_margin_loss, 1, -2, 2, samples);
    CASE(max_pool2d, 1, -2, 2, images);
    CASE(avg_pool2d, 1, -2, 2, images);
    CASE(user, 1, -2, 2, matrix);
    CASE(embedding, 1, -2, 2, tables);
    CASE(scaled_dot_product_attention, 3, -2, 2, heads);
    CASE(rope, 1, -2, 2, turned);
    CASE(hash_grid, 1, -2, 2, grids);
    CASE(linear_cross_entropy, 2, -2, 2, classified);
#define RECURRENT(G, T, B, I) {S(T, B, I), S(G * 2, I), S(G * 2, 2), S(G * 2), S(G * 2), S(B, 2)}
#define RECURRENT_FIRST(G, B, T, I) \
    {S(B, T, I), S(G * 2, I), S(G * 2, 2), S(G * 2), S(G * 2), S(B, 2)}
#define RECURRENTS(G) \
    {RECURRENT(G, 3, 2, 3), RECURRENT(G, 3, 1, 2), RECURRENT_FIRST(G, 2, 3, 2), \
     RECURRENT(G, 3, 2, 2), RECURRENT(G, 3, 2, 1)}
#define PROJECTED(T, B, I, P, R) \
    {S(T, B, I), S(8, I), S(8, R), S(8), S(8), S(B, R), S(B, 2), S(P, 2)}
    const mpt_shape of_one[VARIANTS][MAX_IN] = RECURRENTS(1);
    const mpt_shape of_three[VARIANTS][MAX_IN] = RECURRENTS(3);
    const mpt_shape of_four[VARIANTS][MAX_IN] = {
        PROJECTED(3, 2, 3, 1, 2), PROJECTED(3, 1, 2, 1, 2),
        {S(2, 3, 2), S(8, 2), S(8, 2), S(8), S(8), S(2, 2), S(2, 2), S(1, 2)},
        PROJECTED(3, 2, 2, 1, 1), PROJECTED(3, 2, 1, 1, 2)};
    CASE(rnn, 6, -1, 1, of_one);
    CASE(gru, 6, -1, 1, of_three);
    CASE(lstm, 8, -1, 1, of_four);
}

/* ==== The check ==== */

static mpt_tensor leaf[MAX_IN];
static double values[MAX_IN][MAX_NUMEL];

static int64_t numel_of(const mpt_shape *shape) { return mpt__shape_numel(shape); }

static mpt_shape reversed(mpt_shape shape) {
    for (int i = 0; i < shape.rank / 2; i++) {
        int64_t kept = shape.dim[i];
        shape.dim[i] = shape.dim[shape.rank - 1 - i];
        shape.dim[shape.rank - 1 - i] = kept;
    }
    return shape;
}

/* The op on the leaves as they are, or on views that undo a reversal of their dimensions. */
static mpt_tensor evaluate(const op_case *row, int variant, bool transposed) {
    mpt_tensor in[MAX_IN] = {none(), none(), none()};
    for (int i = 0; i < row->n_in; i++) {
        in[i] = leaf[i];
        mpt_shape order = mpt_get_shape(leaf[i]);
        for (int d = 0; d < order.rank; d++) order.dim[d] = order.rank - 1 - d;
        if (transposed) in[i] = mpt_permute(leaf[i], order);
    }
    return row->call(in, variant);
}

static double weighted(mpt_tensor out, const double *upstream, int64_t n) {
    double read[MAX_NUMEL], sum = 0;
    mpt_read(out, read, (size_t)n * sizeof(double));
    for (int64_t i = 0; i < n; i++) sum += read[i] * upstream[i];
    return sum;
}

static void check_input(const op_case *row, int variant, bool transposed, int i, int64_t n,
                        const double *upstream, int64_t n_out) {
    double gradient[MAX_NUMEL];
    mpt_read(mpt_grad(leaf[i]), gradient, (size_t)n * sizeof(double));
    for (int64_t e = 0; e < n; e++) {
        double kept = values[i][e], side[2];
        for (int s = 0; s < 2; s++) {
            values[i][e] = kept + (s ? -step : step);
            mpt_write(leaf[i], values[i], (size_t)n * sizeof(double));
            mpt_scope_begin(context);
            side[s] = weighted(evaluate(row, variant, transposed), upstream, n_out);
            mpt_scope_end(context);
        }
        values[i][e] = kept;
        double numeric = (side[0] - side[1]) / (2 * step), off = numeric - gradient[e];
        double allowed = tolerance + tolerance * (numeric < 0 ? -numeric : numeric);
        if (off > allowed || off < -allowed || off != off) {
            TEST_FAIL_("%s variant %d%s, input %d, element %d: %.9g, finite difference %.9g",
                       row->op, variant, transposed ? " transposed" : "", i, (int)e, gradient[e],
                       numeric);
            break;
        }
    }
    mpt_write(leaf[i], values[i], (size_t)n * sizeof(double));
}

/* Whether a call of the op is in the history of a tensor. */
static bool comes_from(const mpt__tensor *tensor, const char *op) {
    const mpt__record *record = tensor ? tensor->record : NULL;
    if (!record) return false;
    if (strcmp(mpt__op_rows[record->op].name, op) == 0) return true;
    for (int i = 0; i < record->n_in; i++)
        if (comes_from(record->in[i], op)) return true;
    return false;
}

/* Its numbers depend on the row and the variant alone, not on the rows before; the 20 is such that
   no kink of an op lies within a step of fp32, nor a sum that fp32 does not resolve. */
static void check_variant(const op_case *row, int variant, bool transposed) {
    double upstream[MAX_NUMEL];
    state = (uint64_t)(20 + 2 * variant + transposed);
    for (const char *at = row->op; *at; at++) state = mpt__hash_mix(state ^ (uint64_t)*at);
    mpt_scope_begin(context);
    for (int i = 0; i < row->n_in; i++) {
        mpt_shape shape = row->shape[variant][i];
        for (int64_t e = 0; e < numel_of(&shape); e++) values[i][e] = uniform(row->low, row->high);
        leaf[i] = mpt_from(context, MPT_F64, transposed ? reversed(shape) : shape, values[i]);
        mpt_requires_grad(leaf[i], true);
    }
    mpt_tensor out = evaluate(row, variant, transposed);
    int64_t n_out = mpt_numel(out);
    if (!comes_from(mpt__live(context, out), row->op))
        TEST_FAIL_("%s variant %d is computed by other ops", row->op, variant);
    for (int64_t e = 0; e < n_out; e++) upstream[e] = uniform(-1, 1);
    mpt_backward_from(out, mpt_from(context, MPT_F64, mpt_get_shape(out), upstream), false);
    for (int i = 0; i < row->n_in; i++) {
        if (!mpt_has_grad(leaf[i])) {
            bool layer = strcmp(row->op, "linear") == 0 || strncmp(row->op, "conv", 4) == 0;
            bool no_bias = layer && variant == 4 && i == 2;
            bool unused = strstr(row->op, "_norm") != NULL && i == 2;
            unused |= strcmp(row->op, "lstm") == 0 && variant != 3 && i == 7;
            CHECK(no_bias || unused || (strcmp(row->op, "where") == 0 && i == 2));
            continue;
        }
        check_input(row, variant, transposed, i, numel_of(&row->shape[variant][i]), upstream,
                    n_out);
    }
    mpt_scope_end(context);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_clear_error(context);
}

static bool begin(void) {
    mpt_config config = mpt_config_default();
    config.isa = MPT_ISA_REF;
    config.threads = 1;
    config.debug = true; /* every launch stays within its storages */
    context = mpt_create(&config);
    if (!context) return false;
    mpt_scaler_config fixed = mpt_scaler_config_default();
    fixed.init_scale = 8;
    scaler = mpt_grad_scaler(context, &fixed);
    mpt_op_class square = {"square", MPT_AUTOCAST_INPUT, square_forward, square_backward, 1, 1};
    square_op = mpt_op_register(context, &square, NULL);
    make_cases();
    return true;
}

TEST(every_differentiable_op) {
    REQUIRE(begin());
    for (int c = 0; c < case_count; c++) {
        int before = test_failures;
        for (int v = 0; v < VARIANTS && test_failures == before; v++) {
            check_variant(&cases[c], v, false);
            check_variant(&cases[c], v, true);
        }
    }
    mpt_destroy(context);
}

TEST(no_row_is_left_out) {
    REQUIRE(begin());
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        int found = 0;
        for (int c = 0; c < case_count; c++)
            found += strcmp(cases[c].op, mpt__op_rows[op].name) == 0;
        if (found != (mpt__op_rows[op].backward ? 1 : 0))
            TEST_FAIL_("op %s has %d gradcheck cases", mpt__op_rows[op].name, found);
    }
    mpt_destroy(context);
}

/* Results of the other rows have no history. */
typedef struct plain_case {
    const char *op;
    mpt_tensor (*call)(const mpt_tensor *in, int v);
} plain_case;
CALL(isnan, mpt_isnan(in[0]))
CALL(isinf, mpt_isinf(in[0]))
CALL(equal, mpt_equal(in[0], in[0]))
CALL(argmax, mpt_argmax(in[0], 0, false))
CALL(lt, mpt_lt(in[0], in[0]))
CALL(le, mpt_le(in[0], in[0]))
CALL(gt, mpt_gt(in[0], in[0]))
CALL(ge, mpt_ge(in[0], in[0]))
CALL(ne, mpt_ne(in[0], in[0]))
CALL(logical_and, mpt_logical_and(in[0], in[0]))
CALL(logical_or, mpt_logical_or(in[0], in[0]))
CALL(logical_not, mpt_logical_not(in[0]))
CALL(argmin, mpt_argmin(in[0], 0, false))
CALL(one_hot, mpt_one_hot(mpt_cast(in[0], MPT_I64), 3))
CALL(argsort, mpt_argsort(in[0], 0, false))
#define PLAIN(name) \
    { #name, call_##name }
static const plain_case plain[] = {
    PLAIN(isnan), PLAIN(isinf), PLAIN(equal),       PLAIN(argmax),     PLAIN(lt),
    PLAIN(le),    PLAIN(gt),    PLAIN(ge),          PLAIN(ne),         PLAIN(logical_and),
    PLAIN(argmin), PLAIN(one_hot), PLAIN(argsort),  PLAIN(logical_or), PLAIN(logical_not)};
enum { PLAINS = sizeof plain / sizeof *plain };

static void check_plain(const plain_case *row, mpt_tensor x) {
    bool launched = false;
    mpt_record_begin(context);
    mpt_tensor y = row->call(&x, 0);
    mpt_recording recording = mpt_record_end(context);
    const mpt__recording *kept = mpt__recording_enter(recording, "test");
    for (int64_t i = 0; kept && i < kept->count; i++)
        launched |= strcmp(mpt__op_rows[kept->launches[i].op].name, row->op) == 0;
    mpt_recording_destroy(recording);
    if (!launched) TEST_FAIL_("%s is computed by other ops", row->op);
    CHECK(mpt_valid(y));
    CHECK_EQ_INT(mpt_backward_from(y, y, false), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(context), "without history");
    mpt_clear_error(context);
}

TEST(other_rows_pass_no_gradient) {
    REQUIRE(begin());
    mpt_tensor x = mpt_keep(mpt_ones(context, MPT_F64, MPT_SHAPE(2, 2)));
    mpt_requires_grad(x, true);
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        int found = 0;
        for (int i = 0; i < PLAINS; i++) found += strcmp(plain[i].op, mpt__op_rows[op].name) == 0;
        if (found != (mpt__op_rows[op].backward ? 0 : 1))
            TEST_FAIL_("op %s has %d cases without a gradient", mpt__op_rows[op].name, found);
    }
    for (int i = 0; i < PLAINS; i++) check_plain(&plain[i], x);
    mpt_destroy(context);
}

/* ==== What other tests have seen ==== */

enum { MAX_SEEN = 1024, COUNTS = 8 };
typedef struct seen_row {
    char name[64];
    int count[COUNTS];
} seen_row;
static seen_row seen[MAX_SEEN];
static int seen_count;

/* Lines of a name and `counts` numbers; false if there is no such file, which a program of this
   suite that came to its end has written. */
static bool read_seen(const char *file, int counts) {
    const char *folder = getenv("MPTRAIN_TEST_TMP");
    FILE *in = folder && *folder ? fopen(test_path_(folder, "", file), "r") : NULL;
    if (!in) return false;
    for (; seen_count < MAX_SEEN; seen_count++) {
        seen_row *row = &seen[seen_count];
        memset(row, 0, sizeof *row);
        int read = fscanf(in, "%63s", row->name);
        for (int i = 0; i < counts; i++) read += fscanf(in, "%d", &row->count[i]);
        if (read != 1 + counts) break;
    }
    fclose(in);
    return seen_count < MAX_SEEN;
}

static int seen_of(const char *name, int which) {
    int count = 0;
    for (int i = 0; i < seen_count; i++)
        if (strcmp(seen[i].name, name) == 0) count += seen[i].count[which];
    return count;
}

/* Rows whose goldens are of other dtypes. */
typedef struct golden_exception {
    const char *op, *reason;
} golden_exception;
static const golden_exception of_whole_numbers[] = {{"one_hot", "takes and makes int64"}};

static bool without_floats(const char *op) {
    for (size_t i = 0; i < sizeof of_whole_numbers / sizeof *of_whole_numbers; i++)
        if (strcmp(of_whole_numbers[i].op, op) == 0) return true;
    return false;
}

TEST(every_row_met_its_goldens) {
    static const char *const files[] = {"equal.more.bin", "equal.losses.bin", "equal.norm.bin",
                                        "equal.conv.bin", "equal.attention.bin",
                                        "equal.recurrent.bin", "equal.transformer.bin"};
    static const char *const dtypes[] = {"fp32", "fp16", "bf16", "whole numbers"};
    seen_count = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!read_seen(files[i], COUNTS)) SKIP("what the tests with goldens found: make test");
    CHECK(seen_count > 100);
    REQUIRE(begin());
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        const char *name = mpt__op_rows[op].name;
        const bool whole = without_floats(name), slopes = mpt__op_rows[op].backward != NULL;
        for (int k = whole ? 3 : 0; k < (whole ? 4 : 3); k++) {
            if (seen_of(name, k) == 0) TEST_FAIL_("%s: no golden met in %s", name, dtypes[k]);
            if (slopes && seen_of(name, 4 + k) == 0)
                TEST_FAIL_("%s: no golden of a gradient met in %s", name, dtypes[k]);
        }
    }
    mpt_destroy(context);
}

/* ==== Functions ==== */

typedef struct function {
    char name[64];
    bool op; /* makes a tensor of tensors */
    bool documented;
} function;
static function functions[1024];
static int function_count;

/* A line that declares something, after a comment or with one. */
static void note_function(const char *line, const char *end, bool documented) {
    static const char ops[] = "MPTRAIN_API mpt_tensor mpt_";
    const char *open = (const char *)memchr(line, '(', (size_t)(end - line)), *name = open;
    if (!open || function_count == 1024) return;
    while (name > line && name[-1] != ' ' && name[-1] != '*') name--;
    function *f = &functions[function_count++];
    snprintf(f->name, sizeof f->name, "%.*s", (int)(open - name), name);
    f->op = strncmp(line, ops, sizeof ops - 1) == 0 && strncmp(open, "(mpt_tensor ", 12) == 0;
    f->documented = documented || strstr(open, "/*") < end;
}

/* Declarations stand below their comment, with no empty line between. */
static void note_functions(const char *text) {
    bool documented = false;
    for (const char *line = text, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        if (end == line) documented = false;
        if (strncmp(line, "/*", 2) == 0) {
            const char *close = strstr(line, "*/");
            if (!close) return;
            documented = close - line > 16 && !strchr("=-", line[3]);
            end = close + strcspn(close, "\n");
        }
        if (strncmp(line, "MPTRAIN_API ", 12) == 0) note_function(line, end, documented);
    }
}

static bool read_functions(void) {
    static const char *const files[] = {"src/face/tensors.h", "src/face/training.h",
                                         "src/face/inspection.h", "src/face/models.h",
                                         "src/face/data.h"};
    static char text[1 << 18];
    function_count = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *in = fopen(files[i], "r");
        if (!in) return false;
        size_t bytes = fread(text, 1, sizeof text - 1, in);
        text[bytes] = '\0';
        fclose(in);
        note_functions(text);
    }
    return true;
}

/* A row is what mpt_<name> calls, but for these. */
static const char *function_of(const char *op) {
    static const char *const others[][2] = {
        {"soft_targets", "mpt_cross_entropy"}, /* with probabilities as targets */
        {"user", "mpt_op_apply"},
    };
    static char name[64];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(others[i][0], op) == 0) return others[i][1];
    snprintf(name, sizeof name, "mpt_%s", op);
    return name;
}

TEST(every_row_has_a_comment) {
    if (!read_functions()) SKIP("src/: run it from the top directory");
    CHECK(function_count > 200);
    REQUIRE(begin());
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        const char *name = function_of(mpt__op_rows[op].name);
        int i = 0;
        while (i < function_count && strcmp(functions[i].name, name) != 0) i++;
        if (i == function_count || !functions[i].documented)
            TEST_FAIL_("%s is not %s", name, i == function_count ? "declared" : "documented");
    }
    mpt_destroy(context);
}

/* That of its function, and of every other function that makes a tensor of tensors. */
TEST(every_row_tells_of_misuse) {
    seen_count = 0;
    if (!read_seen("misuse", 1)) SKIP("what test_misuse found: make test");
    if (!read_functions()) SKIP("src/: run it from the top directory");
    CHECK(seen_count > 200);
    REQUIRE(begin());
    for (int op = 1; op < MPT__OP_COUNT; op++) {
        const char *name = function_of(mpt__op_rows[op].name);
        if (seen_of(name, 0) == 0) TEST_FAIL_("%s: no misuse that is told", name);
    }
    for (int i = 0; i < function_count; i++)
        if (functions[i].op && seen_of(functions[i].name, 0) == 0)
            TEST_FAIL_("%s: no misuse that is told", functions[i].name);
    mpt_destroy(context);
}

/* A tensor used twice, a diamond, and views of one storage: contributions add up. */
TEST(shared_inputs_accumulate) {
    REQUIRE(begin());
    static const double two[2] = {3.0, -2.0};
    mpt_tensor x = mpt_from(context, MPT_F64, MPT_SHAPE(2), two);
    mpt_requires_grad(x, true);
    mpt_tensor flat = mpt_reshape(x, MPT_SHAPE(2, 1)), y = mpt_add(flat, flat);
    mpt_tensor z = mpt_add(mpt_mul(y, y), mpt_add(y, flat));
    double got[2];
    CHECK_EQ_INT(mpt_backward(mpt_sum(z, MPT_ALL_DIMS, false)), MPT_OK);
    mpt_read(mpt_grad(x), got, sizeof got);
    CHECK_NEAR(got[0], 8 * 3.0 + 3, 1e-12); /* d/dx (4 x^2 + 3 x) */
    CHECK_NEAR(got[1], 8 * -2.0 + 3, 1e-12);
    mpt_destroy(context);
}

#include "costs.h"

TEST_TABLE = {T(every_differentiable_op),
              T(no_row_is_left_out),
              T(other_rows_pass_no_gradient),
              T(every_row_met_its_goldens),
              T(every_row_has_a_comment),
              T(every_row_tells_of_misuse),
              T(shared_inputs_accumulate),
              T(launches_cost_what_loops_count),
              T(functions_count_their_words),
              T(a_step_of_the_mlp_by_hand),
              T(a_step_of_a_residual_block_by_hand),
              T(a_step_of_a_gpt_block_by_hand)};
TEST_MAIN
