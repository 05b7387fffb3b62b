/* export_nets.c: writes nets and ops as ONNX files, each beside what the library computes of inputs
 * of two batches, for tools/export_check.py.
 *
 *     export_nets FOLDER
 *
 * NAME.onnx is the model; NAME.case lists its tensors, which are files of raw numbers. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "examples/gpt.h"
#include "examples/resnet.h"
#include "examples/vit.h"

/* ==== Cases ==== */

/* What the elements of a case are: fp32; halves that inputs are cast to, and with them the weights
   of nets; those of autocast. */
typedef enum { PLAIN, FP16, BF16, AUTO_FP16, AUTO_BF16 } precision_kind;
static const char *const precision_names[] = {"fp32", "fp16", "bf16", "autocast fp16",
                                              "autocast bf16"};
static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16, MPT_F16, MPT_BF16};

typedef mpt_tensor (*op_fn)(mpt_context *ctx, const mpt_tensor *in);

/* A call, and inputs: f normal, p from 0.1 to 2.1, u from 0.05 to 0.95, s -1 or 1, iN below N, nM
   from 1 to M, b bool; then sizes, in which B is the batch. dim: of the batch. */
typedef struct {
    const char *name, *inputs;
    op_fn fn;
    bool product; /* which halves by autocast concern */
} op_case;

#define UNARY(id) \
    static mpt_tensor op_##id(mpt_context *ctx, const mpt_tensor *in) { \
        (void)ctx; \
        return mpt_##id(in[0]); \
    }
#define BINARY(id) \
    static mpt_tensor op_##id(mpt_context *ctx, const mpt_tensor *in) { \
        (void)ctx; \
        return mpt_##id(in[0], in[1]); \
    }
#define CALL(id, ...) \
    static mpt_tensor op_##id(mpt_context *ctx, const mpt_tensor *in) { \
        (void)ctx; \
        return __VA_ARGS__; \
    }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(pow)
BINARY(minimum)
BINARY(maximum)
BINARY(equal)
BINARY(lt)
BINARY(le)
BINARY(gt)
BINARY(ge)
BINARY(ne)
BINARY(matmul)
UNARY(neg)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(relu)
UNARY(gelu)
UNARY(gelu_tanh)
UNARY(tanh)
UNARY(sigmoid)
UNARY(log1p)
UNARY(rsqrt)
UNARY(abs)
UNARY(sign)
UNARY(sin)
UNARY(cos)
UNARY(silu)
UNARY(clone)
CALL(isnan, mpt_isnan(mpt_sqrt(in[0])))
CALL(isinf, mpt_isinf(mpt_div(in[0], mpt_relu(in[0]))))
CALL(logical_and, mpt_logical_and(mpt_lt(in[0], in[1]), mpt_lt_scalar(in[1], 0.5)))
CALL(logical_or, mpt_logical_or(mpt_lt(in[0], in[1]), mpt_gt_scalar(in[1], 0.5)))
CALL(logical_not, mpt_logical_not(mpt_lt(in[0], in[1])))
CALL(add_scalar, mpt_add_scalar(in[0], 0.3))
CALL(mul_scalar, mpt_mul_scalar(in[0], -1.7))
CALL(square, mpt_pow_scalar(in[0], 2.0))
CALL(pow_scalar, mpt_pow_scalar(in[0], 1.5))
CALL(clamp, mpt_clamp(in[0], -0.5, 0.7))
CALL(clamp_below, mpt_clamp(in[0], -0.5, (double)INFINITY))
CALL(hardtanh, mpt_hardtanh(in[0], -0.3, 0.4))
CALL(leaky_relu, mpt_leaky_relu(in[0], 0.1))
CALL(elu, mpt_elu(in[0], 0.7))
CALL(softplus, mpt_softplus(in[0], 2.0, 1.5))
CALL(where, mpt_where(mpt_gt(in[0], in[1]), in[0], in[1]))
CALL(linear_rows, mpt_linear(in[0], in[1], in[2], MPT_ACTIVATION_NONE))
CALL(linear_relu, mpt_linear(in[0], in[1], in[2], MPT_ACTIVATION_RELU))
CALL(linear_gelu, mpt_linear(in[0], in[1], in[2], MPT_ACTIVATION_GELU))
CALL(sum, mpt_sum(in[0], 1, true))
CALL(sum_all, mpt_sum(in[0], MPT_ALL_DIMS, false))
CALL(mean, mpt_mean(in[0], -1, false))
CALL(mean_batch, mpt_mean(in[0], 0, false))
CALL(max, mpt_max(in[0], 1, false))
CALL(argmax, mpt_argmax(in[0], 1, true))
CALL(argmax_all, mpt_argmax(in[0], MPT_ALL_DIMS, false))
CALL(min, mpt_min(in[0], 2, true))
CALL(argmin, mpt_argmin(in[0], -1, false))
CALL(prod, mpt_prod(in[0], 1, false))
CALL(var, mpt_var(in[0], 1, false, 1.0))
CALL(var_batch, mpt_var(in[0], 0, false, 1.0))
CALL(std, mpt_std(in[0], -1, true, 0.0))
CALL(norm, mpt_norm(in[0], 2.0, 1, false))
CALL(norm_1, mpt_norm(in[0], 1.0, 1, true))
CALL(norm_most, mpt_norm(in[0], (double)INFINITY, 1, false))
CALL(logsumexp, mpt_logsumexp(in[0], 1, false))
CALL(cumsum, mpt_cumsum(in[0], 1))
CALL(softmax, mpt_softmax(in[0], 1))
CALL(log_softmax, mpt_log_softmax(in[0], -1))
CALL(dropout, mpt_dropout(in[0], 0.5))
CALL(reshape, mpt_reshape(in[0], MPT_SHAPE(-1, 6)))
CALL(reshape_back, mpt_reshape(mpt_reshape(in[0], MPT_SHAPE(-1)), mpt_get_shape(in[0])))
CALL(flatten, mpt_flatten(in[0], 1, -1))
CALL(permute, mpt_permute(in[0], MPT_SHAPE(1, 0, 2)))
CALL(slice, mpt_slice(in[0], 1, 1, 4, 2))
CALL(select, mpt_select(in[0], 1, -1))
CALL(expand, mpt_expand(mpt_slice(in[0], 1, 0, 1, 1), mpt_get_shape(in[0])))
CALL(repeat, mpt_repeat(in[0], MPT_SHAPE(2, 1, 2)))
CALL(cast, mpt_cast(mpt_cast(in[0], MPT_I64), MPT_F32))
CALL(cat, mpt_cat(in, 2, 1))
CALL(cat_batch, mpt_cat(in, 2, 0))
CALL(stack, mpt_stack(in, 2, 1))
CALL(roll, mpt_roll(in[0], 2, 1))
CALL(gather, mpt_gather(in[0], 1, in[1]))
CALL(index_select, mpt_index_select(in[0], 1, in[1]))
CALL(scatter_add, mpt_scatter_add(in[0], 1, in[1], in[2]))
CALL(one_hot, mpt_one_hot(in[0], 5))
CALL(argsort, mpt_argsort(in[0], 1, true))
CALL(topk, mpt_topk(in[0], 3, 1, true, NULL))
CALL(flip, mpt_flip(in[0], 1))
CALL(tril, mpt_tril(in[0], 1))
CALL(triu, mpt_triu(in[0], -1))
CALL(pad, mpt_pad(in[0], MPT_SHAPE(1, 2, 0, 3), 0.5))
CALL(embedding, mpt_embedding(in[0], in[1], -1))
CALL(einsum, mpt_einsum("bqd,bkd->bqk", in, 2))
CALL(nearest, mpt_interpolate(in[0], MPT_SCALAR, 2.0, MPT_NEAREST, false))
CALL(nearest_to, mpt_interpolate(in[0], MPT_SHAPE(7, 3), 0.0, MPT_NEAREST, false))
CALL(bilinear, mpt_interpolate(in[0], MPT_SCALAR, 1.5, MPT_BILINEAR, false))
CALL(bilinear_to, mpt_interpolate(in[0], MPT_SHAPE(3, 11), 0.0, MPT_BILINEAR, false))
CALL(corners, mpt_interpolate(in[0], MPT_SHAPE(9, 7), 0.0, MPT_BILINEAR, true))
CALL(layer_norm, mpt_layer_norm(in[0], 1, in[1], in[2], 1e-5))
CALL(layer_norm_two, mpt_layer_norm(in[0], 2, in[1], in[2], 1e-5))
CALL(rms_norm, mpt_rms_norm(in[0], 1, in[1], 1e-6))
CALL(group_norm, mpt_group_norm(in[0], 2, in[1], in[2], 1e-5))
CALL(batch_norm, mpt_batch_norm(in[0], in[1], in[2], in[3], in[4], 1e-5))
CALL(glu, mpt_glu(in[0], -1, MPT_GATE_SILU))
CALL(rope, mpt_rope(in[0], NULL))
CALL(mse_loss, mpt_mse_loss(in[0], in[1], MPT_MEAN))
CALL(l1_loss, mpt_l1_loss(in[0], in[1], MPT_NONE))
CALL(smooth_l1_loss, mpt_smooth_l1_loss(in[0], in[1], 0.7, MPT_SUM))
CALL(huber_loss, mpt_huber_loss(in[0], in[1], 0.7, MPT_MEAN))
CALL(bce, mpt_binary_cross_entropy(in[0], in[1], in[2], MPT_MEAN))
CALL(bce_logits,
     mpt_binary_cross_entropy_with_logits(in[0], in[1], in[2], in[3], MPT_NONE))
CALL(kl_div, mpt_kl_div(in[0], in[1], false, MPT_BATCH_MEAN))
CALL(kl_div_log, mpt_kl_div(in[0], in[1], true, MPT_MEAN))
CALL(gaussian, mpt_gaussian_nll_loss(in[0], in[1], in[2], true, 1e-6, MPT_MEAN))
CALL(soft_margin, mpt_soft_margin_loss(in[0], in[1], MPT_MEAN))
CALL(hinge, mpt_hinge_embedding_loss(in[0], in[1], 0.8, MPT_NONE))
CALL(ranking, mpt_margin_ranking_loss(in[0], in[1], in[2], 0.3, MPT_MEAN))
CALL(triplet, mpt_triplet_margin_loss(in[0], in[1], in[2], 1.0, 1e-6, true, MPT_MEAN))
CALL(cosine, mpt_cosine_similarity(in[0], in[1], 1, 1e-8))
CALL(poisson, mpt_poisson_nll_loss(in[0], in[1], true, false, 1e-8, MPT_MEAN))
CALL(nll, mpt_nll_loss(in[0], in[1], NULL))
CALL(cross_entropy, mpt_cross_entropy(in[0], in[1], NULL))
CALL(cosine_loss, mpt_cosine_embedding_loss(in[0], in[1], in[2], 0.1, MPT_MEAN))
CALL(soft, mpt_cross_entropy(in[0], mpt_softmax(in[1], 1), NULL))
CALL(margin_loss, mpt_multi_margin_loss(in[0], in[1], 2, 1.0, in[2], MPT_MEAN))
CALL(poisson_full, mpt_poisson_nll_loss(in[0], in[1], false, true, 1e-6, MPT_SUM))

static mpt_tensor crossed(const mpt_tensor *in, bool layer, mpt_reduction reduction) {
    mpt_nll_config config = mpt_nll_config_default();
    config.label_smoothing = 0.1, config.ignore_index = 2, config.reduction = reduction;
    config.weight = mpt_cast(in[layer ? 3 : 2], MPT_F32);
    return layer ? mpt_linear_cross_entropy(in[0], in[1], in[2], &config)
                 : mpt_cross_entropy(in[0], in[1], &config);
}
CALL(smoothed, crossed(in, false, MPT_MEAN))
CALL(smoothed_each, crossed(in, false, MPT_NONE))
CALL(linear_crossed, crossed(in, true, MPT_MEAN))
CALL(linear_crossed_each, crossed(in, true, MPT_NONE))
CALL(nll_one, mpt_nll_loss(mpt_log_softmax(in[0], 0), in[1], NULL))
CALL(avg_pool1d, mpt_avg_pool1d(in[0], NULL))
CALL(adaptive, mpt_adaptive_avg_pool2d(in[0], 1, 1))
CALL(adaptive_uneven, mpt_adaptive_avg_pool2d(in[0], 3, 2))
CALL(adaptive_max, mpt_adaptive_max_pool2d(in[0], 4, 3))
CALL(arange, mpt_add(in[0], mpt_arange(ctx, mpt_get_dtype(in[0]), 6)))
CALL(made, mpt_add(in[0], mpt_full(ctx, mpt_get_dtype(in[0]), mpt_get_shape(in[0]), 0.25)))
CALL(in_place, mpt_add_(mpt_relu_(mpt_clone(in[0])), in[1]))

static mpt_tensor pooled(mpt_tensor x, bool most, int64_t padding, bool ceiling, bool counts) {
    mpt_pool_config config = mpt_pool_config_make(3, 2, padding);
    config.ceil_mode = ceiling, config.count_padding = counts;
    return most ? mpt_max_pool2d(x, &config) : mpt_avg_pool2d(x, &config);
}
CALL(max_pool, pooled(in[0], true, 1, false, false))
CALL(max_pool_up, pooled(in[0], true, 1, true, false))
CALL(avg_pool, pooled(in[0], false, 1, false, true))
CALL(avg_pool_up, pooled(in[0], false, 1, true, true))
CALL(avg_pool_plain, pooled(in[0], false, 0, true, true))
CALL(avg_pool_own, pooled(in[0], false, 1, true, false))

static mpt_tensor convolved(const mpt_tensor *in, int64_t stride, int64_t padding, int64_t dilation,
                            int64_t groups, bool same, int kind) {
    mpt_conv_config config = mpt_conv_config_default();
    for (int d = 0; d < 2; d++) {
        config.stride[d] = stride, config.padding[d] = padding, config.dilation[d] = dilation;
        if (kind == 2) config.output_padding[d] = stride - 1;
    }
    config.groups = groups, config.same = same;
    return kind == 0   ? mpt_conv2d(in[0], in[1], in[2], &config)
           : kind == 1 ? mpt_conv1d(in[0], in[1], in[2], &config)
                       : mpt_conv_transpose2d(in[0], in[1], in[2], &config);
}
CALL(conv2d, convolved(in, 2, 1, 1, 1, false, 0))
CALL(conv2d_groups, convolved(in, 1, 2, 2, 2, false, 0))
CALL(conv2d_same, convolved(in, 1, 0, 1, 1, true, 0))
CALL(conv1d, convolved(in, 1, 1, 1, 1, false, 1))
CALL(conv_transpose2d, convolved(in, 2, 1, 1, 1, false, 2))

static mpt_tensor attended(const mpt_tensor *in, bool causal, int64_t window, int64_t offset,
                           const mpt_tensor *mask) {
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = causal, config.window = window, config.offset = offset;
    if (mask) config.mask = *mask;
    return mpt_scaled_dot_product_attention(in[0], in[1], in[2], &config);
}
CALL(attention, attended(in, false, 0, 0, NULL))
CALL(attention_causal, attended(in, true, 0, 0, NULL))
CALL(attention_window, attended(in, true, 2, 2, NULL))
CALL(attention_mask, attended(in, false, 0, 0, &in[3]))

static mpt_tensor attended_where(mpt_context *ctx, const mpt_tensor *in) {
    const mpt_tensor mask = mpt_gt_scalar(in[3], 0.0);
    (void)ctx;
    return attended(in, true, 0, 0, &mask);
}
static mpt_tensor turned(mpt_context *ctx, const mpt_tensor *in) {
    mpt_rope_config config = mpt_rope_config_default();
    (void)ctx;
    config.heads = 2, config.interleaved = true, config.offset = 3;
    return mpt_rope(in[0], &config);
}
static mpt_tensor added_norm(mpt_context *ctx, const mpt_tensor *in) {
    mpt_tensor sum, y = mpt_add_layer_norm(in[0], in[1], 1, in[2], in[3], 1e-5, &sum);
    (void)ctx;
    return mpt_add(y, sum);
}
static mpt_tensor batch_norm_relu(mpt_context *ctx, const mpt_tensor *in) {
    (void)ctx;
    return mpt_batch_norm_relu(in[0], in[1], in[2], in[3], in[4], 1e-5, in[5]);
}

static mpt_tensor celled(const mpt_tensor *in, int kind, bool reverse, bool relu, bool lengths) {
    mpt_cell_config how = mpt_cell_config_default();
    mpt_tensor h = in[5];
    how.weight_ih = in[1], how.weight_hh = in[2], how.bias_ih = in[3], how.bias_hh = in[4];
    how.reverse = reverse, how.relu = relu;
    if (lengths) how.lengths = in[6];
    how.batch_first = true;
    return kind == 1 ? mpt_rnn(in[0], &how, &h)
           : kind == 3 ? mpt_gru(in[0], &how, &h)
                       : mpt_lstm(in[0], &how, &h, NULL);
}
static mpt_tensor projected_cell(mpt_context *ctx, const mpt_tensor *in, bool reverse) {
    mpt_cell_config how = mpt_cell_config_default();
    mpt_tensor h = in[5], c;
    memset(&c, 0, sizeof c);
    how.weight_ih = in[1], how.weight_hh = in[2], how.bias_ih = in[3];
    how.weight_hr = in[4], how.lengths = in[6], how.reverse = reverse;
    mpt_tensor y = mpt_lstm(in[0], &how, &h, &c);
    (void)ctx;
    return mpt_add(mpt_sum(y, 0, false), mpt_add(h, mpt_sum(c, 1, true)));
}
CALL(lstm_projected, projected_cell(ctx, in, false))
CALL(lstm_projected_back, projected_cell(ctx, in, true))
CALL(hash_grid, mpt_hash_grid(in[0], in[1], 3, 40))
CALL(rnn, celled(in, 1, false, false, false))
CALL(rnn_relu, celled(in, 1, true, true, false))
CALL(lstm, celled(in, 4, false, false, false))
CALL(lstm_lengths, celled(in, 4, false, false, true))
CALL(lstm_reverse, celled(in, 4, true, false, true))
CALL(gru, celled(in, 3, false, false, false))
CALL(gru_reverse, celled(in, 3, true, false, true))

static const op_case op_cases[] = {
    {"add", "fB,3,5 f3,1", op_add, false},
    {"sub", "fB,3,5 f5", op_sub, false},
    {"mul", "fB,3,5 fB,1,5", op_mul, false},
    {"div", "fB,3,5 pB,3,5", op_div, false},
    {"add_scalar", "fB,7", op_add_scalar, false},
    {"mul_scalar", "fB,7", op_mul_scalar, false},
    {"neg", "fB,7", op_neg, false},
    {"exp", "fB,7", op_exp, false},
    {"log", "pB,7", op_log, false},
    {"sqrt", "pB,7", op_sqrt, false},
    {"relu", "fB,7", op_relu, false},
    {"gelu", "fB,70", op_gelu, false},
    {"gelu_tanh", "fB,70", op_gelu_tanh, false},
    {"tanh", "fB,7", op_tanh, false},
    {"sigmoid", "fB,7", op_sigmoid, false},
    {"isnan", "fB,7", op_isnan, false},
    {"isinf", "fB,7", op_isinf, false},
    {"equal", "i3:B,9 i3:9", op_equal, false},
    {"lt", "fB,9 fB,9", op_lt, false},
    {"le", "i3:B,9 i3:9", op_le, false},
    {"gt", "fB,9 f9", op_gt, false},
    {"ge", "i3:B,9 i3:9", op_ge, false},
    {"ne", "i3:B,9 i3:9", op_ne, false},
    {"logical_and", "fB,9 f9", op_logical_and, false},
    {"logical_or", "fB,9 f9", op_logical_or, false},
    {"logical_not", "fB,9 f9", op_logical_not, false},
    {"log1p", "pB,9", op_log1p, false},
    {"rsqrt", "pB,9", op_rsqrt, false},
    {"pow", "pB,9 f9", op_pow, false},
    {"pow_scalar (2)", "fB,9", op_square, false},
    {"pow_scalar", "pB,9", op_pow_scalar, false},
    {"abs", "fB,9", op_abs, false},
    {"sign", "fB,9", op_sign, false},
    {"sin", "fB,9", op_sin, false},
    {"cos", "fB,9", op_cos, false},
    {"clamp", "fB,9", op_clamp, false},
    {"clamp (below)", "fB,9", op_clamp_below, false},
    {"minimum", "fB,9 f9", op_minimum, false},
    {"maximum", "fB,9 f9", op_maximum, false},
    {"where", "fB,9 f9", op_where, false},
    {"leaky_relu", "fB,9", op_leaky_relu, false},
    {"elu", "fB,9", op_elu, false},
    {"silu", "fB,9", op_silu, false},
    {"softplus", "fB,9", op_softplus, false},
    {"hardtanh", "fB,9", op_hardtanh, false},
    {"matmul", "fB,4,6 f6,5", op_matmul, true},
    {"matmul (batches)", "fB,2,4,6 fB,1,6,5", op_matmul, true},
    {"matmul (vector)", "fB,4,6 f6", op_matmul, true},
    {"linear (rows)", "fB,6 f5,6 f5", op_linear_rows, true},
    {"linear (sequences)", "fB,3,6 f5,6 f5", op_linear_relu, true},
    {"linear (gelu)", "fB,6 f5,6 f5", op_linear_gelu, true},
    {"einsum", "fB,4,6 fB,5,6", op_einsum, true},
    {"sum", "fB,4,6", op_sum, false},
    {"sum (all)", "fB,4,6", op_sum_all, false},
    {"mean", "fB,4,6", op_mean, false},
    {"mean (batch)", "fB,4,6", op_mean_batch, false},
    {"max", "fB,4,6", op_max, false},
    {"argmax", "fB,4,6", op_argmax, false},
    {"argmax (all)", "fB,4,6", op_argmax_all, false},
    {"min", "fB,4,6", op_min, false},
    {"argmin", "fB,4,6", op_argmin, false},
    {"prod", "fB,4,6", op_prod, false},
    {"var", "fB,4,6", op_var, false},
    {"var (batch)", "fB,4,6", op_var_batch, false},
    {"std", "fB,4,6", op_std, false},
    {"norm", "fB,4,6", op_norm, false},
    {"norm (1)", "fB,4,6", op_norm_1, false},
    {"norm (largest)", "fB,4,6", op_norm_most, false},
    {"logsumexp", "fB,4,6", op_logsumexp, false},
    {"cumsum", "fB,4,6", op_cumsum, false},
    {"softmax", "fB,4,6", op_softmax, false},
    {"log_softmax", "fB,4,6", op_log_softmax, false},
    {"dropout", "fB,4,6", op_dropout, false},
    {"reshape", "fB,4,6", op_reshape, false},
    {"reshape (back)", "fB,4,6", op_reshape_back, false},
    {"flatten", "fB,4,6", op_flatten, false},
    {"permute", "fB,4,6", op_permute, false},
    {"slice", "fB,5,6", op_slice, false},
    {"select", "fB,5,6", op_select, false},
    {"expand", "fB,5,6", op_expand, false},
    {"repeat", "fB,5,6", op_repeat, false},
    {"clone", "fB,5,6", op_clone, false},
    {"cast", "fB,5,6", op_cast, false},
    {"cat", "fB,2,6 fB,3,6", op_cat, false},
    {"cat (batch)", "fB,6 f1,6", op_cat_batch, false},
    {"stack", "fB,6 fB,6", op_stack, false},
    {"roll", "fB,6", op_roll, false},
    {"gather", "fB,6 i6:B,4", op_gather, false},
    {"index_select", "fB,6 i6:4", op_index_select, false},
    {"scatter_add", "fB,6 i6:B,4 fB,4", op_scatter_add, false},
    {"one_hot", "i5:B,4", op_one_hot, false},
    {"argsort", "fB,9", op_argsort, false},
    {"topk", "fB,9", op_topk, false},
    {"flip", "fB,9", op_flip, false},
    {"tril", "fB,4,5", op_tril, false},
    {"triu", "fB,4,5", op_triu, false},
    {"pad", "fB,4,5", op_pad, false},
    {"embedding", "i8:B,4 f8,5", op_embedding, false},
    {"interpolate (nearest)", "fB,2,4,5", op_nearest, false},
    {"interpolate (nearest, size)", "fB,2,4,5", op_nearest_to, false},
    {"interpolate (bilinear)", "fB,2,4,6", op_bilinear, false},
    {"interpolate (bilinear, size)", "fB,2,4,5", op_bilinear_to, false},
    {"interpolate (corners)", "fB,2,4,5", op_corners, false},
    {"layer_norm", "fB,4,6 f6 f6", op_layer_norm, false},
    {"layer_norm (two)", "fB,3,4,6 f4,6 f4,6", op_layer_norm_two, false},
    {"layer_norm (sum)", "fB,4,6 fB,4,6 f6 f6", added_norm, false},
    {"rms_norm", "fB,4,6 f6", op_rms_norm, false},
    {"group_norm", "fB,4,3,5 f4 f4", op_group_norm, false},
    {"batch_norm", "fB,4,3,5 f4 p4 f4 f4", op_batch_norm, false},
    {"batch_norm (relu)", "fB,4,3,5 f4 p4 f4 f4 fB,4,3,5", batch_norm_relu, false},
    {"max_pool2d", "fB,2,8,9", op_max_pool, false},
    {"max_pool2d (up)", "fB,2,8,9", op_max_pool_up, false},
    {"avg_pool2d", "fB,2,8,9", op_avg_pool, false},
    {"avg_pool2d (up)", "fB,2,8,9", op_avg_pool_up, false},
    {"avg_pool2d (up, no padding)", "fB,2,8,9", op_avg_pool_plain, false},
    {"avg_pool2d (own elements)", "fB,2,8,9", op_avg_pool_own, false},
    {"avg_pool1d", "fB,2,8", op_avg_pool1d, false},
    {"adaptive_avg_pool2d", "fB,2,8,9", op_adaptive, false},
    {"adaptive_avg_pool2d (uneven)", "fB,2,8,9", op_adaptive_uneven, false},
    {"adaptive_max_pool2d", "fB,2,8,9", op_adaptive_max, false},
    {"conv2d", "fB,4,8,9 f6,4,3,3 f6", op_conv2d, true},
    {"conv2d (groups)", "fB,4,8,9 f6,2,3,3 f6", op_conv2d_groups, true},
    {"conv2d (same)", "fB,4,8,9 f6,4,3,4 f6", op_conv2d_same, true},
    {"conv1d", "fB,4,9 f6,4,3 f6", op_conv1d, true},
    {"conv_transpose2d", "fB,4,5,6 f4,3,3,3 f3", op_conv_transpose2d, true},
    {"attention", "fB,2,4,6 fB,2,5,6 fB,2,5,3", op_attention, true},
    {"attention (causal, shared heads)", "fB,4,5,6 fB,2,5,6 fB,2,5,6", op_attention_causal, true},
    {"attention (window)", "fB,3,6 fB,5,6 fB,5,6", op_attention_window, true},
    {"attention (mask)", "fB,2,4,6 fB,2,5,6 fB,2,5,6 f4,5", op_attention_mask, true},
    {"attention (causal, bool)", "fB,2,4,6 fB,2,4,6 fB,2,4,6 fB,1,4,4", attended_where, true},
    {"glu", "fB,4,6", op_glu, false},
    {"rope", "fB,2,5,6", op_rope, false},
    {"rope (heads)", "fB,5,12", turned, false},
    {"hash_grid (2)", "uB,4,2 f5,64,2", op_hash_grid, false},
    {"hash_grid (3)", "fB,3 f3,512,3", op_hash_grid, false},
    {"rnn", "fB,5,3 f4,3 f4,4 f4 f4 fB,4", op_rnn, true},
    {"rnn (relu, reverse)", "fB,5,3 f4,3 f4,4 f4 f4 fB,4", op_rnn_relu, true},
    {"lstm", "fB,5,3 f16,3 f16,4 f16 f16 fB,4", op_lstm, true},
    {"lstm (lengths)", "fB,5,3 f16,3 f16,4 f16 f16 fB,4 n5:B", op_lstm_lengths, true},
    {"lstm (reverse)", "fB,5,3 f16,3 f16,4 f16 f16 fB,4 n5:B", op_lstm_reverse, true},
    {"lstm (projection)", "f5,B,3 f16,3 f16,2 f16 f2,4 fB,2 n5:B", op_lstm_projected, true},
    {"lstm (projection, reverse)", "f5,B,3 f16,3 f16,2 f16 f2,4 fB,2 n5:B", op_lstm_projected_back,
     true},
    {"gru", "fB,5,3 f12,3 f12,4 f12 f12 fB,4", op_gru, true},
    {"gru (reverse)", "fB,5,3 f12,3 f12,4 f12 f12 fB,4 n5:B", op_gru_reverse, true},
    {"arange", "fB,6", op_arange, false},
    {"full", "fB,6", op_made, false},
    {"in place", "fB,6 f6", op_in_place, false},
    {"mse_loss", "fB,6 fB,6", op_mse_loss, false},
    {"l1_loss", "fB,6 fB,6", op_l1_loss, false},
    {"smooth_l1_loss", "fB,6 fB,6", op_smooth_l1_loss, false},
    {"huber_loss", "fB,6 fB,6", op_huber_loss, false},
    {"binary_cross_entropy", "uB,6 uB,6 p6", op_bce, false},
    {"binary_cross_entropy_with_logits", "fB,6 uB,6 p6 p6", op_bce_logits, false},
    {"kl_div", "fB,6 uB,6", op_kl_div, false},
    {"kl_div (logarithms)", "fB,6 fB,6", op_kl_div_log, false},
    {"gaussian_nll_loss", "fB,6 fB,6 pB,6", op_gaussian, false},
    {"soft_margin_loss", "fB,6 sB,6", op_soft_margin, false},
    {"hinge_embedding_loss", "fB,6 sB,6", op_hinge, false},
    {"margin_ranking_loss", "fB,6 fB,6 sB,6", op_ranking, false},
    {"triplet_margin_loss", "fB,6 fB,6 fB,6", op_triplet, false},
    {"cosine_similarity", "fB,6 fB,6", op_cosine, false},
    {"poisson_nll_loss", "fB,6 pB,6", op_poisson, false},
    {"nll_loss", "fB,6 i6:B", op_nll, false},
    {"cross_entropy", "fB,6 i6:B", op_cross_entropy, false},
    {"cross_entropy (smoothed)", "fB,6 i6:B p6", op_smoothed, false},
    {"cross_entropy (smoothed, each)", "fB,6 i6:B p6", op_smoothed_each, false},
    {"cross_entropy (images)", "fB,6,3 i6:B,3 p6", op_smoothed_each, false},
    {"cross_entropy (probabilities)", "fB,6 fB,6", op_soft, false},
    {"cross_entropy (probabilities, images)", "fB,6,3 fB,6,3", op_soft, false},
    {"nll_loss (one)", "f6 i6:", op_nll_one, false},
    {"linear_cross_entropy", "fB,3,4 f6,4 i6:B,3 p6", op_linear_crossed, true},
    {"linear_cross_entropy (each)", "fB,3,4 f6,4 i6:B,3 p6", op_linear_crossed_each, true},
    {"cosine_embedding_loss", "fB,6 fB,6 sB", op_cosine_loss, false},
    {"multi_margin_loss", "fB,6 i6:B p6", op_margin_loss, false},
    {"poisson_nll_loss (full)", "pB,6 pB,6", op_poisson_full, false},
};
enum { OP_CASES = sizeof op_cases / sizeof *op_cases, MAX_INPUTS = 8 };

/* ==== Nets ==== */

static mpt_module mlp(mpt_context *ctx) {
    return mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 784, 128), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 128, 64), mpt_nn_relu(ctx), mpt_nn_dropout(ctx, 0.2),
                          mpt_nn_linear(ctx, 64, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
}
static mpt_module lenet(mpt_context *ctx) {
    mpt_pool_config pool = mpt_pool_config_make(2, 2, 0);
    mpt_conv_config same = mpt_conv_config_default();
    same.same = true;
    return mpt_sequential(
        ctx, mpt_nn_conv2d(ctx, 1, 6, 5, 5, &same), mpt_nn_relu(ctx), mpt_nn_avg_pool2d(ctx, &pool),
        mpt_nn_conv2d(ctx, 6, 16, 5, 5, NULL), mpt_nn_relu(ctx), mpt_nn_max_pool2d(ctx, &pool),
        mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 400, 120), mpt_nn_tanh(ctx),
        mpt_nn_linear(ctx, 120, 84), mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 84, 10), MPT_END);
}
static mpt_module residual(mpt_context *ctx) { return resnet_block(ctx, 8, 16, 2); }
static mpt_module resnet(mpt_context *ctx) { return resnet18(ctx, 1, 10, 8, false); }
static mpt_module vit_block(mpt_context *ctx) {
    static transformer_kind kind = {"self_attention", false, false, true, 1e-6};
    return transformer_block(ctx, 16, 4, 32, &kind, 0.1);
}
static mpt_module vit(mpt_context *ctx) {
    static const vit_shape shape = {16, 2, 4, 32, 7, 28, 1, 10, 0.1};
    return make_vit(ctx, &shape);
}
static mpt_module gpt_block(mpt_context *ctx) {
    static transformer_kind kind = {"attn", true, true, false, 1e-5};
    return transformer_block(ctx, 16, 4, 64, &kind, 0.0);
}
static mpt_module gpt(mpt_context *ctx) {
    gpt_settings s = gpt_defaults;
    s.layers = 2, s.heads = 4, s.width = 16, s.context = 12, s.vocabulary = 50;
    return make_gpt(ctx, &s);
}
static mpt_module autoencoder(mpt_context *ctx) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, 24, 8), mpt_nn_gelu(ctx),
                          mpt_nn_linear(ctx, 8, 24), mpt_nn_sigmoid(ctx), MPT_END);
}
static mpt_module upscaler(mpt_context *ctx) {
    return mpt_sequential(
        ctx, mpt_nn_conv2d(ctx, 2, 4, 3, 3, NULL), mpt_nn_group_norm(ctx, 2, 4, NULL),
        mpt_nn_silu(ctx), mpt_nn_upsample(ctx, MPT_SCALAR, 2.0, MPT_BILINEAR, false),
        mpt_nn_conv_transpose2d(ctx, 4, 2, 3, 3, NULL), MPT_END);
}
static mpt_module recurrent(mpt_context *ctx, int kind) {
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.layers = 2, config.batch_first = true, config.bidirectional = kind != 4;
    return kind == 4   ? mpt_nn_lstm(ctx, 6, 8, &config)
           : kind == 3 ? mpt_nn_gru(ctx, 6, 8, &config)
                       : mpt_nn_rnn(ctx, 6, 8, &config);
}
static mpt_module lstm(mpt_context *ctx) { return recurrent(ctx, 4); }
static mpt_module projected(mpt_context *ctx) {
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.batch_first = config.bidirectional = true, config.projection = 3;
    return mpt_nn_lstm(ctx, 6, 8, &config);
}
static mpt_module gru(mpt_context *ctx) { return recurrent(ctx, 3); }
static mpt_module rnn(mpt_context *ctx) { return recurrent(ctx, 1); }

static const struct {
    const char *name, *inputs;
    mpt_module (*make)(mpt_context *ctx);
} nets[] = {
    {"net: MLP", "fB,1,28,28", mlp},
    {"net: LeNet", "fB,1,28,28", lenet},
    {"net: ResNet block", "fB,8,10,10", residual},
    {"net: ResNet-18", "fB,1,28,28", resnet},
    {"net: ViT block", "fB,9,16", vit_block},
    {"net: ViT", "fB,1,28,28", vit},
    {"net: GPT block", "fB,12,16", gpt_block},
    {"net: GPT", "i50:B,12 c12", gpt},
    {"net: LSTM", "fB,7,6", lstm},
    {"net: LSTM (projection)", "fB,7,6", projected},
    {"net: GRU (both ways)", "fB,7,6", gru},
    {"net: RNN (both ways)", "fB,7,6", rnn},
    {"net: autoencoder", "fB,24", autoencoder},
    {"net: upscaler", "fB,2,8,8", upscaler},
};
enum { NETS = sizeof nets / sizeof *nets };

/* ==== Inputs ==== */

static uint64_t drawn = 1;
static double draw(void) {
    drawn = drawn * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(drawn >> 11) / 9007199254740992.0;
}

static double number_of(char kind, int64_t limit, int64_t i) {
    if (kind == 'p') return 0.1 + 2.0 * draw();
    if (kind == 'u') return 0.05 + 0.9 * draw();
    if (kind == 's') return draw() < 0.5 ? -1.0 : 1.0;
    if (kind == 'i') return (double)(int64_t)(draw() * (double)limit);
    if (kind == 'n') return (double)(1 + (int64_t)(draw() * (double)limit));
    if (kind == 'c') return (double)i;
    return draw() + draw() + draw() + draw() - 2.0 + 1e-3;
}

/* One input of a list like "fB,3 i5:B"; *dim: which dimension is the batch's. */
static mpt_tensor input_of(mpt_context *ctx, const char **at, int64_t batch, int *dim) {
    const char kind = *(*at)++;
    const bool whole = kind == 'i' || kind == 'n' || kind == 'c';
    int64_t limit = 0;
    mpt_shape shape = MPT_SCALAR;
    char *end;
    if (kind == 'i' || kind == 'n') limit = strtoll(*at, &end, 10), *at = end + 1;
    *dim = -1;
    for (; **at && **at != ' ';) { /* none: a number */
        if (**at == 'B')
            *dim = shape.rank, shape.dim[shape.rank++] = batch, ++*at;
        else
            shape.dim[shape.rank++] = strtoll(*at, &end, 10), *at = end;
        if (**at != ',') break;
        ++*at;
    }
    while (**at == ' ') ++*at;
    int64_t count = 1;
    for (int i = 0; i < shape.rank; i++) count *= shape.dim[i];
    float *reals = (float *)malloc((size_t)count * sizeof *reals);
    int64_t *integers = (int64_t *)malloc((size_t)count * sizeof *integers);
    mpt_tensor out = {ctx, 0, 0};
    for (int64_t i = 0; i < count && reals && integers; i++) {
        const double number = number_of(kind, limit, i);
        reals[i] = (float)number, integers[i] = (int64_t)number;
    }
    if (reals && integers)
        out = whole ? mpt_from(ctx, MPT_I64, shape, integers)
                    : mpt_from(ctx, MPT_F32, shape, reals);
    free(reals);
    free(integers);
    return out;
}

/* ==== Writing ==== */

/* What a case runs: an op or a net, between casts of halves. */
typedef struct {
    op_fn fn;
    precision_kind precision;
    bool beside; /* weights go to a file of their own */
} running;

/* Ops that a case has called. */
static char called[8192];

static void note_ops(mpt_module net, const mpt_tensor *in, int n) {
    mpt_graph graph = mpt_trace(net, in, n);
    for (int i = 0; i < mpt_graph_count(graph); i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        char word[64];
        snprintf(word, sizeof word, " %s ", node->name);
        if (node->kind == MPT_NODE_OP && !strstr(called, word) &&
            strlen(called) + strlen(word) < sizeof called)
            strcat(called, word);
    }
    mpt_graph_destroy(graph);
}

/* Names the ops of the table that have no form, and those that have one but no case: how many. */
static int tell_ops(void) {
    static char policy[16384];
    int missing = 0;
    mpt_autocast_policy(policy, sizeof policy);
    printf("without a form in ONNX:");
    for (char *line = strtok(policy, "\n"); line; line = strtok(NULL, "\n")) {
        char word[64];
        char *colon = strchr(line, ':');
        if (!colon) continue;
        *colon = '\0';
        snprintf(word, sizeof word, " %s ", line);
        if (!mpt_onnx_form(line))
            printf(" %s", line);
        else if (!strstr(called, word) && strcmp(line, "dropout") != 0) /* nothing in inference */
            printf("\nno case calls %s\n", line), missing++;
    }
    printf("\n");
    return missing;
}

static mpt_status run_case(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                           mpt_tensor *out, int n_out) {
    const running *r = (const running *)user;
    mpt_tensor given[MAX_INPUTS], y;
    (void)n_out;
    for (int i = 0; i < n_in; i++) {
        const bool real = mpt_get_dtype(in[i]) == MPT_F32;
        given[i] = real && (r->precision == FP16 || r->precision == BF16)
                       ? mpt_cast(in[i], dtypes[r->precision])
                       : in[i];
    }
    if (r->fn)
        y = r->fn(self.context, given);
    else
        mpt_forward_n(mpt_child(self, "net"), given, n_in, &y, 1);
    const mpt_dtype dtype = mpt_get_dtype(y);
    out[0] = dtype == MPT_F16 || dtype == MPT_BF16 ? mpt_cast(y, MPT_F32) : y;
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

static bool write_tensor(FILE *list, const char *folder, int number, const char *role,
                         mpt_tensor x) {
    char path[600];
    const size_t bytes = (size_t)mpt_numel(x) * mpt_dtype_size(mpt_get_dtype(x));
    const mpt_shape shape = mpt_get_shape(x);
    void *data = malloc(bytes + 1);
    bool fine = data && mpt_read(x, data, bytes) == MPT_OK;
    fprintf(list, "%s %d.raw %s", role, number, mpt_dtype_name(mpt_get_dtype(x)));
    for (int i = 0; i < shape.rank; i++) fprintf(list, " %lld", (long long)shape.dim[i]);
    fprintf(list, "\n");
    snprintf(path, sizeof path, "%s/%d.raw", folder, number);
    FILE *file = fine ? fopen(path, "wb") : NULL;
    fine = file && fwrite(data, 1, bytes, file) == bytes;
    if (file && fclose(file) != 0) fine = false;
    free(data);
    return fine;
}

/* One case: its model, then inputs and outputs of batches of 3 and of 5. */
static bool write_case(mpt_context *ctx, const char *folder, const char *name, const char *inputs,
                       running r, mpt_module net) {
    static int models = 0, tensors = 0;
    static const mpt_module_class cls = {"case", run_case, NULL, NULL, NULL, 0, 1};
    char path[600], why[512];
    int dims[MAX_INPUTS];
    bool fine = true;
    mpt_module module = mpt_module_create(ctx, &cls, &r);
    if (!r.fn) mpt_add_child(module, "net", net);
    const bool halves = r.precision == FP16 || r.precision == BF16;
    if (!r.fn && halves) mpt_half(module, dtypes[r.precision]);
    snprintf(path, sizeof path, "%s/%03d.case", folder, ++models);
    FILE *list = fopen(path, "w");
    if (!list) return false;
    fprintf(list, "name %s\nprecision %s\n", name, precision_names[r.precision]);
    for (int set = 0; set < 2 && fine; set++) {
        mpt_tensor in[MAX_INPUTS], out;
        const char *at = inputs;
        int n = 0;
        mpt_scope_begin(ctx);
        while (*at) in[n] = input_of(ctx, &at, set ? 5 : 3, &dims[n]), n++;
        mpt_inference_begin(ctx);
        if (r.precision >= AUTO_FP16) mpt_autocast_begin(ctx, dtypes[r.precision]);
        if (set == 0) {
            mpt_onnx_config config = mpt_onnx_config_default();
            config.batch_dims = dims;
            if (r.beside) config.beside = 1;
            note_ops(module, in, n);
            snprintf(path, sizeof path, "%s/%03d.onnx", folder, models);
            fine = mpt_onnx_export(module, in, n, path, &config, why, sizeof why) == MPT_OK;
            if (!fine) printf("%s (%s): %s\n", name, precision_names[r.precision], why);
        }
        if (fine) {
            mpt_eval(module);
            fine = mpt_forward_n(module, in, n, &out, 1) == MPT_OK;
            if (r.precision >= AUTO_FP16) mpt_autocast_end(ctx);
            fprintf(list, "set\n");
            for (int i = 0; i < n && fine; i++)
                fine = write_tensor(list, folder, ++tensors, "in", in[i]);
            if (fine) fine = write_tensor(list, folder, ++tensors, "out", out);
            if (!fine) printf("%s: %s\n", name, mpt_error(ctx));
            mpt_inference_end(ctx);
            mpt_scope_end(ctx);
        }
    }
    if (fclose(list) != 0) fine = false;
    return fine;
}

int main(int argc, char **argv) {
    int written = 0, failed = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: export_nets FOLDER\n");
        return 2;
    }
    for (int i = 0; i < NETS + OP_CASES; i++)
        for (int p = PLAIN; p <= AUTO_BF16; p++) {
            const bool net = i < NETS, halves = p == FP16 || p == BF16;
            const op_case *op = net ? NULL : &op_cases[i - NETS];
            if (!net && op->product && halves) continue;
            if (!net && !op->product && p >= AUTO_FP16) continue;
            mpt_context *ctx = mpt_create(NULL);
            if (!ctx) return 1;
            running r = {net ? NULL : op->fn, (precision_kind)p, net && i == 0};
            mpt_module made = {ctx, 0, 0};
            if (net) made = nets[i].make(ctx);
            if (write_case(ctx, argv[1], net ? nets[i].name : op->name,
                           net ? nets[i].inputs : op->inputs, r, made))
                written++;
            else
                failed++;
            mpt_destroy(ctx);
        }
    printf("%d models written, %d failed\n", written, failed);
    return failed > 0 || tell_ops() > 0;
}
