/* ----
 * ops/op.c: the op table, the map of the system: one line per op.
 *
 * Rules, forward and backward functions and the public ones stand in the rooms that follow, and
 * ops/table.c makes a table of them; rows that share a form share the functions and differ in the
 * kernel's function alone.
 * ---- */
#ifndef MPT__OPS_OP_INCLUDED
#define MPT__OPS_OP_INCLUDED

#include "core/anomaly.c"

/* O(id, policy, shape rule, forward, backward, function, backward function, ONNX name):
   functions are mpt__<shape>_shape, mpt__<forward>_forward, mpt__<backward>_backward; `none`
   means NULL. */
/* Convolutions */
#define MPT__CONV_OPS(O) \
    O(conv2d, LOW, conv, conv, conv, NONE, NONE, "Conv") \
    O(conv1d, LOW, conv, conv, conv, NONE, NONE, "Conv") \
    O(conv_transpose2d, LOW, conv, conv, conv, NONE, NONE, "ConvTranspose")

/* Normalisation, pooling */
#ifdef MPTRAIN_NO_ATTENTION
#define MPT__ROW_NORM_OPS(O) \
    O(layer_norm, ANY, no_rows, none, none, NONE, NONE, "LayerNormalization") \
    O(rms_norm, ANY, no_rows, none, none, NONE, NONE, "RMSNormalization")
#else
#define MPT__ROW_NORM_OPS(O) \
    O(layer_norm, ANY, row_norm, normalise, normalise, NONE, NONE, "LayerNormalization") \
    O(rms_norm, ANY, row_norm, normalise, normalise, NONE, NONE, "RMSNormalization")
#endif
#ifdef MPTRAIN_NO_CONV
#define MPT__CHANNEL_NORM_OPS(O) \
    O(batch_norm, ANY, no_channels, none, none, NONE, NONE, "BatchNormalization") \
    O(group_norm, ANY, no_channels, none, none, NONE, NONE, "GroupNormalization") \
    O(max_pool2d, ANY, no_channels, none, none, NONE, NONE, "MaxPool") \
    O(avg_pool2d, ANY, no_channels, none, none, NONE, NONE, "AveragePool")
#else
#define MPT__CHANNEL_NORM_OPS(O) \
    O(batch_norm, ANY, channel_norm, normalise, normalise, NONE, NONE, "BatchNormalization") \
    O(group_norm, ANY, channel_norm, normalise, normalise, NONE, NONE, "GroupNormalization") \
    O(max_pool2d, INPUT, pooling, pooling, pooling, MAX, NONE, "MaxPool") \
    O(avg_pool2d, INPUT, pooling, pooling, pooling, MEAN, NONE, "AveragePool")
#endif
#define MPT__NORM_OPS(O) MPT__ROW_NORM_OPS(O) MPT__CHANNEL_NORM_OPS(O)

/* Embedding, attention */
#ifdef MPTRAIN_NO_ATTENTION
#define MPT__ATTENTION_OPS(O)
#else
#define MPT__ATTENTION_OPS(O) \
    O(embedding, ANY, embedding, embedding, embedding, NONE, NONE, "Gather") \
    O(scaled_dot_product_attention, LOW, attention, attention, attention, NONE, NONE, "Attention") \
    O(rope, ANY, rope, rope, rope, NONE, NONE, "RotaryEmbedding") \
    O(hash_grid, ANY, hash_grid, embedding, embedding, NONE, NONE, "") \
    O(linear_cross_entropy, LOSS, linear_nll, linear_nll, linear_nll, NONE, NONE, "")
#endif

/* Recurrent layers */
#ifdef MPTRAIN_NO_RECURRENT
#define MPT__RECURRENT_OPS(O)
#else
#define MPT__RECURRENT_OPS(O) \
    O(rnn, LOW, recurrent, recurrent, recurrent, NONE, NONE, "RNN") \
    O(lstm, LOW, recurrent, recurrent, recurrent, NONE, NONE, "LSTM") \
    O(gru, LOW, recurrent, recurrent, recurrent, NONE, NONE, "GRU")
#endif

#define MPT__OPS(O) \
    O(add, INPUT, binary, binary, add, ADD, NONE, "Add") \
    O(sub, INPUT, binary, binary, add, SUB, NEG, "Sub") \
    O(mul, INPUT, binary, binary, mul, MUL, NONE, "Mul") \
    O(div, INPUT, binary, binary, div, DIV, NONE, "Div") \
    O(add_scalar, INPUT, unary, unary, pass, ADD_SCALAR, NONE, "Add") \
    O(mul_scalar, INPUT, unary, unary, linear_unary, MUL_SCALAR, MUL_SCALAR, "Mul") \
    O(neg, INPUT, unary, unary, linear_unary, NEG, NEG, "Neg") \
    O(exp, FP32, unary, unary_keep_out, unary, EXP, MUL, "Exp") \
    O(log, FP32, unary, unary_keep_in, unary, LOG, DIV, "Log") \
    O(sqrt, INPUT, unary, unary_keep_out, unary, SQRT, SQRT_BACKWARD, "Sqrt") \
    O(relu, INPUT, unary, relu, unary, RELU, RELU_BACKWARD, "Relu") \
    O(gelu, INPUT, unary, unary_keep_in, unary, GELU, GELU_BACKWARD, "Gelu") \
    O(gelu_tanh, INPUT, unary, unary_keep_in, unary, GELU_TANH, GELU_TANH_BACKWARD, "Gelu") \
    O(tanh, INPUT, unary, unary_keep_out, unary, TANH, TANH_BACKWARD, "Tanh") \
    O(sigmoid, INPUT, unary, unary_keep_out, unary, SIGMOID, SIGMOID_BACKWARD, "Sigmoid") \
    O(isnan, INPUT, predicate, unary, none, ISNAN, NONE, "IsNaN") \
    O(isinf, INPUT, predicate, unary, none, ISINF, NONE, "IsInf") \
    O(equal, ANY, equal, binary, none, EQUAL, NONE, "Equal") \
    O(lt, ANY, equal, binary, none, LESS, NONE, "Less") \
    O(le, ANY, equal, binary, none, LESS_EQUAL, NONE, "LessOrEqual") \
    O(gt, ANY, equal, binary, none, GREATER, NONE, "Greater") \
    O(ge, ANY, equal, binary, none, GREATER_EQUAL, NONE, "GreaterOrEqual") \
    O(ne, ANY, equal, binary, none, NOT_EQUAL, NONE, "") \
    O(logical_and, ANY, logical, binary, none, AND, NONE, "And") \
    O(logical_or, ANY, logical, binary, none, OR, NONE, "Or") \
    O(logical_not, ANY, predicate, unary, none, NOT, NONE, "Not") \
    O(log1p, FP32, unary, unary_keep_in, unary, LOG1P, LOG1P_BACKWARD, "") \
    O(rsqrt, FP32, unary, unary_keep_out, unary, RSQRT, RSQRT_BACKWARD, "") \
    O(pow, FP32, binary, binary_keep, pow, POW, NONE, "Pow") \
    O(pow_scalar, FP32, unary, pow_scalar, unary, POW_SCALAR, POW_SCALAR_BACKWARD, "Pow") \
    O(abs, INPUT, unary, unary_keep_in, unary, ABS, ABS_BACKWARD, "Abs") \
    O(sign, INPUT, unary, unary, linear_unary, SIGN, MUL_SCALAR, "Sign") \
    O(sin, INPUT, unary, unary_keep_in, unary, SIN, SIN_BACKWARD, "Sin") \
    O(cos, INPUT, unary, unary_keep_in, unary, COS, COS_BACKWARD, "Cos") \
    O(clamp, INPUT, unary, unary_keep_in, unary, CLAMP, CLAMP_BACKWARD, "Clip") \
    O(minimum, INPUT, binary, binary_keep, extremum, MINIMUM, NONE, "Min") \
    O(maximum, INPUT, binary, binary_keep, extremum, MAXIMUM, NONE, "Max") \
    O(where, ANY, where, where, where, NONE, NONE, "Where") \
    O(leaky_relu, INPUT, unary, unary_keep_in, unary, LEAKY_RELU, LEAKY_RELU_BACKWARD, \
      "LeakyRelu") \
    O(elu, INPUT, unary, unary_keep_in, unary, ELU, ELU_BACKWARD, "Elu") \
    O(silu, INPUT, unary, unary_keep_in, unary, SILU, SILU_BACKWARD, "") \
    O(softplus, FP32, unary, unary_keep_in, unary, SOFTPLUS, SOFTPLUS_BACKWARD, "") \
    O(hardtanh, INPUT, unary, unary_keep_in, unary, CLAMP, HARDTANH_BACKWARD, "Clip") \
    O(scale_loss, LOSS, unary, scale_loss, scale_loss, MUL_SLOT, MUL_SLOT, "Mul") \
    O(matmul, LOW, matmul, matmul, matmul, NONE, NONE, "MatMul") \
    O(linear, LOW, linear, linear, linear, NONE, NONE, "Gemm") \
    O(sum, FP32, reduce, reduce, reduce, SUM, NONE, "ReduceSum") \
    O(mean, FP32, reduce, reduce, reduce, MEAN, NONE, "ReduceMean") \
    O(max, INPUT, reduce, max, max, MAX, NONE, "ReduceMax") \
    O(argmax, INPUT, argmax, argmax, none, NONE, NONE, "ArgMax") \
    O(min, INPUT, reduce, max, max, MIN, NONE, "ReduceMin") \
    O(argmin, INPUT, argmax, argmax, none, MIN, NONE, "ArgMin") \
    O(prod, FP32, reduce, prod, prod, PROD, NONE, "ReduceProd") \
    O(var, INPUT, var, var, var, NONE, NONE, "") \
    O(std, INPUT, var, var, var, SQRT, NONE, "") \
    O(norm, FP32, norm, norm, norm, NONE, NONE, "") \
    O(logsumexp, FP32, reduce, logsumexp, logsumexp, NONE, NONE, "ReduceLogSumExp") \
    O(cumsum, FP32, softmax, cumsum, cumsum, NONE, NONE, "CumSum") \
    O(softmax, FP32, softmax, softmax, softmax, SOFTMAX, SOFTMAX, "Softmax") \
    O(log_softmax, FP32, softmax, softmax, softmax, LOG_SOFTMAX, LOG_SOFTMAX, "LogSoftmax") \
    O(dropout, INPUT, unary, dropout, dropout, NONE, NONE, "Dropout") \
    O(reshape, ANY, reshape, reshape, reshape, NONE, NONE, "Reshape") \
    O(permute, ANY, permute, none, permute, NONE, NONE, "Transpose") \
    O(slice, ANY, slice, none, slice, NONE, NONE, "Slice") \
    O(expand, ANY, expand, none, expand, NONE, NONE, "Expand") \
    O(clone, ANY, clone, copy, pass, NONE, NONE, "Identity") \
    O(cast, ANY, cast, copy, pass, NONE, NONE, "Cast") \
    O(cat, INPUT, cat, cat, cat, NONE, NONE, "Concat") \
    O(gather, ANY, gather, gather, gather, NONE, NONE, "GatherElements") \
    O(index_select, ANY, index_select, gather, gather, NONE, NONE, "Gather") \
    O(scatter_add, ANY, scatter_add, scatter_add, scatter_add, NONE, NONE, "ScatterElements") \
    O(one_hot, ANY, one_hot, one_hot, none, NONE, NONE, "OneHot") \
    O(flip, INPUT, softmax, flip, flip, NONE, NONE, "") \
    O(tril, INPUT, triangle, triangle, triangle, NONE, NONE, "Trilu") \
    O(triu, INPUT, triangle, triangle, triangle, NONE, NONE, "Trilu") \
    O(pad, INPUT, pad, pad, pad, NONE, NONE, "Pad") \
    O(nll_loss, LOSS, nll, nll, nll, NONE, NONE, "NegativeLogLikelihoodLoss") \
    O(cross_entropy, LOSS, nll, nll, cross_entropy, NONE, NONE, "SoftmaxCrossEntropyLoss") \
    O(mse_loss, LOSS, pair, pair, pair, MSE, NONE, "") \
    O(user, ANY, none, none, user, NONE, NONE, "") \
    O(l1_loss, LOSS, pair, pair, pair, L1, NONE, "") \
    O(smooth_l1_loss, LOSS, pair, pair, pair, SMOOTH_L1, NONE, "") \
    O(huber_loss, LOSS, pair, pair, pair, HUBER, NONE, "") \
    O(binary_cross_entropy_with_logits, LOSS, pair, pair, pair, BCE_WITH_LOGITS, NONE, "") \
    O(binary_cross_entropy, LOSS, pair, pair, pair, BCE, NONE, "") \
    O(kl_div, LOSS, pair, pair, pair, KL_DIV, NONE, "") \
    O(gaussian_nll_loss, LOSS, pair, pair, pair, GAUSSIAN_NLL, NONE, "") \
    O(soft_margin_loss, LOSS, pair, pair, pair, SOFT_MARGIN, NONE, "") \
    O(hinge_embedding_loss, LOSS, pair, pair, pair, HINGE, NONE, "") \
    O(margin_ranking_loss, LOSS, pair, pair, pair, RANKING, NONE, "") \
    O(triplet_margin_loss, LOSS, pair, pair, pair, TRIPLET, NONE, "") \
    O(cosine_similarity, LOSS, reduce, cosine, cosine, NONE, NONE, "") \
    O(cosine_embedding_loss, LOSS, pair, pair, pair, COSINE_EMBEDDING, NONE, "") \
    O(soft_targets, LOSS, pair, pair, pair, SOFT_TARGETS, NONE, "") \
    O(poisson_nll_loss, LOSS, pair, pair, pair, POISSON, NONE, "") \
    O(multi_margin_loss, LOSS, pair, pair, pair, MULTI_MARGIN, NONE, "") \
    O(interpolate, INPUT, interpolate, interpolate, interpolate, NONE, NONE, "Resize") \
    O(argsort, INPUT, argsort, argsort, none, NONE, NONE, "") \
    MPT__CONV_OPS(O) MPT__NORM_OPS(O) MPT__ATTENTION_OPS(O) MPT__RECURRENT_OPS(O)

typedef enum {
    MPT__OP_none,
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) MPT__OP_##id,
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
        MPT__OP_COUNT
} mpt__op_id;

static const mpt__attributes mpt__no_attributes = {{0.0, 0.0}, {0}, 0, 0, 0, 0};

/* ==== Applying a row ==== */

static mpt_tensor mpt__apply2(const char *name, int op, mpt_tensor a, mpt_tensor b) {
    mpt_tensor in[] = {a, b};
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = 2;
    return mpt__apply1(name, op, in, 2, &attributes);
}

static mpt_tensor mpt__apply_number(const char *name, int op, mpt_tensor x, double value) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = value;
    return mpt__apply1(name, op, &x, 1, &attributes);
}

/* With a dimension, or a dtype in its place, and a number. */
static mpt_tensor mpt__apply_dim_number(
    const char *name, int op, mpt_tensor x, int dim, bool keep_dim, double number) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.index[1] = keep_dim;
    attributes.index[2] = dim == MPT_ALL_DIMS;
    attributes.imm[0] = number;
    return mpt__apply1(name, op, &x, 1, &attributes);
}

static mpt_tensor mpt__apply_dim(const char *name, int op, mpt_tensor x, int dim, bool keep_dim) {
    return mpt__apply_dim_number(name, op, x, dim, keep_dim, 0.0);
}

/* What a composition makes on its way, and gives back at its end. */
typedef struct {
    mpt_tensor tensor[24];
    int count;
} mpt__spares;

static mpt_tensor mpt__spare(mpt__spares *spares, mpt_tensor x) {
    return spares->tensor[spares->count++] = x;
}

static MPT__NOINLINE mpt_tensor mpt__spares_end(mpt__spares *spares, mpt_tensor result) {
    while (spares->count > 0) mpt_release(spares->tensor[--spares->count]);
    return result;
}

static mpt_tensor mpt__apply_shape(const char *name, int op, mpt_tensor x, const mpt_shape *shape) {
    if (shape->rank < 0 || shape->rank > MPT_MAX_RANK)
        return mpt__misused(
            x.context, name, SHAPE, "rank %d is not in 0..%d", shape->rank, MPT_MAX_RANK);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.rank = (uint8_t)shape->rank;
    for (int i = 0; i < shape->rank; i++) attributes.index[i] = shape->dim[i];
    return mpt__apply1(name, op, &x, 1, &attributes);
}

mpt_tensor mpt_reshape(mpt_tensor x, mpt_shape shape) {
    return mpt__apply_shape("mpt_reshape", MPT__OP_reshape, x, &shape);
}

mpt_tensor mpt_cast(mpt_tensor x, mpt_dtype dtype) {
    return mpt__apply_dim("mpt_cast", MPT__OP_cast, x, (int)dtype, false);
}

/* Halves as fp32. */
static mpt_tensor mpt__widened(mpt__spares *spares, mpt_tensor x) {
    mpt_dtype dtype = mpt_get_dtype(x);
    return dtype == MPT_F16 || dtype == MPT_BF16 ? mpt__spare(spares, mpt_cast(x, MPT_F32)) : x;
}

#endif
