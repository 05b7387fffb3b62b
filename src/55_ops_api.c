/* ---------------------------------------------------------------------------------------------
 * 55_ops_api.c: the op table's rows, and the public op functions: each fills attributes and
 * applies a row.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__55_OPS_API_INCLUDED
#define MPT__55_OPS_API_INCLUDED

#include "54_ops_user.c"

/* ==== The op table ==== */

#define mpt__none_shape NULL
#define mpt__none_forward NULL
#define mpt__none_backward NULL

static const mpt__op_row mpt__op_rows[MPT__OP_COUNT] = {
    {"none", "", MPT__POLICY_ANY, NULL, NULL, NULL, MPT__FN_NONE, MPT__FN_NONE},
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) \
    {#id,                                                                     \
     onnx,                                                                    \
     MPT__POLICY_##policy,                                                    \
     mpt__##shape##_shape,                                                    \
     mpt__##forward##_forward,                                                \
     mpt__##backward##_backward,                                              \
     MPT__FN_##fn,                                                            \
     MPT__FN_##backward_fn},
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
};

static const mpt__op_row *mpt__op_row_of(int op) { return &mpt__op_rows[op]; }

/* ==== The policy table as text ==== */

static const char *const mpt__policy_names[] = {"any dtype, unchanged", "input dtype (mixed: f32)",
                                                "f16 / bf16", "f32", "f32 always"};

MPTRAIN_API size_t mpt_autocast_policy(char *text, size_t size) {
    mpt__text prose = mpt__text_make(text, size);
    mpt__write_text(&prose, "mptrain autocast policy, version 1\n");
    for (int op = 1; op < MPT__OP_COUNT; op++)
        mpt__write_text(&prose, "%s: %s\n", mpt__op_rows[op].name,
                        mpt__policy_names[mpt__op_rows[op].policy]);
    return prose.length;
}

/* ==== One input, no attributes; two inputs, no attributes ==== */

#define MPT__DEFINE_UNARY(id)                                             \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor x) {                       \
        mpt__attributes attributes = mpt__no_attributes;                  \
        return mpt__apply1("mpt_" #id, MPT__OP_##id, &x, 1, &attributes); \
    }
MPT__DEFINE_UNARY(neg)
MPT__DEFINE_UNARY(exp)
MPT__DEFINE_UNARY(log)
MPT__DEFINE_UNARY(sqrt)
MPT__DEFINE_UNARY(relu)
MPT__DEFINE_UNARY(gelu)
MPT__DEFINE_UNARY(gelu_tanh)
MPT__DEFINE_UNARY(tanh)
MPT__DEFINE_UNARY(sigmoid)
MPT__DEFINE_UNARY(isnan)
MPT__DEFINE_UNARY(isinf)
MPT__DEFINE_UNARY(clone)
MPT__DEFINE_UNARY(logical_not)
MPT__DEFINE_UNARY(log1p)
MPT__DEFINE_UNARY(rsqrt)
MPT__DEFINE_UNARY(abs)
MPT__DEFINE_UNARY(sign)
MPT__DEFINE_UNARY(sin)
MPT__DEFINE_UNARY(cos)
MPT__DEFINE_UNARY(silu)
#undef MPT__DEFINE_UNARY

static mpt_tensor mpt__apply2(const char *name, int op, mpt_tensor a, mpt_tensor b) {
    mpt_tensor in[2];
    in[0] = a, in[1] = b;
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = 2;
    return mpt__apply1(name, op, in, 2, &attributes);
}

#define MPT__DEFINE_BINARY(id)                                    \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor a, mpt_tensor b) { \
        return mpt__apply2("mpt_" #id, MPT__OP_##id, a, b);       \
    }
MPT__DEFINE_BINARY(add)
MPT__DEFINE_BINARY(sub)
MPT__DEFINE_BINARY(mul)
MPT__DEFINE_BINARY(div)
MPT__DEFINE_BINARY(equal)
MPT__DEFINE_BINARY(matmul)
MPT__DEFINE_BINARY(lt)
MPT__DEFINE_BINARY(le)
MPT__DEFINE_BINARY(gt)
MPT__DEFINE_BINARY(ge)
MPT__DEFINE_BINARY(ne)
MPT__DEFINE_BINARY(logical_and)
MPT__DEFINE_BINARY(logical_or)
MPT__DEFINE_BINARY(pow)
MPT__DEFINE_BINARY(minimum)
MPT__DEFINE_BINARY(maximum)
#undef MPT__DEFINE_BINARY

/* ==== With numbers ==== */

static mpt_tensor mpt__apply_number(const char *name, int op, mpt_tensor x, double value) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = value;
    return mpt__apply1(name, op, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_add_scalar(mpt_tensor x, double value) {
    return mpt__apply_number("mpt_add_scalar", MPT__OP_add_scalar, x, value);
}
MPTRAIN_API mpt_tensor mpt_mul_scalar(mpt_tensor x, double value) {
    return mpt__apply_number("mpt_mul_scalar", MPT__OP_mul_scalar, x, value);
}
MPTRAIN_API mpt_tensor mpt_pow_scalar(mpt_tensor x, double exponent) {
    return mpt__apply_number("mpt_pow_scalar", MPT__OP_pow_scalar, x, exponent);
}
MPTRAIN_API mpt_tensor mpt_leaky_relu(mpt_tensor x, double slope) {
    return mpt__apply_number("mpt_leaky_relu", MPT__OP_leaky_relu, x, slope);
}
MPTRAIN_API mpt_tensor mpt_elu(mpt_tensor x, double alpha) {
    return mpt__apply_number("mpt_elu", MPT__OP_elu, x, alpha);
}

/* Why a pair of numbers is none that `op` takes; NULL: it is fine. */
static const char *mpt__bad_numbers(int op, double a, double b) {
    if (op == MPT__OP_softplus)
        return a > 0.0 && b == b ? NULL : "beta %g, threshold %g: expected beta > 0";
    if (op != MPT__OP_clamp && op != MPT__OP_hardtanh) return NULL;
    return a <= b ? NULL : "min %g, max %g: expected min <= max";
}

static mpt_tensor mpt__apply_pair(const char *name, int op, mpt_tensor x, double a, double b) {
    const char *why = mpt__bad_numbers(op, a, b);
    if (why && x.context) {
        mpt__misuse(x.context, name, MPT_ERROR_ARGUMENT, why, a, b);
        return mpt__null(x.context);
    }
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = a;
    attributes.imm[1] = b;
    return mpt__apply1(name, op, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_clamp(mpt_tensor x, double min, double max) {
    return mpt__apply_pair("mpt_clamp", MPT__OP_clamp, x, min, max);
}
MPTRAIN_API mpt_tensor mpt_hardtanh(mpt_tensor x, double min, double max) {
    return mpt__apply_pair("mpt_hardtanh", MPT__OP_hardtanh, x, min, max);
}
MPTRAIN_API mpt_tensor mpt_softplus(mpt_tensor x, double beta, double threshold) {
    return mpt__apply_pair("mpt_softplus", MPT__OP_softplus, x, beta, threshold);
}

MPTRAIN_API mpt_tensor mpt_where(mpt_tensor condition, mpt_tensor a, mpt_tensor b) {
    mpt_tensor in[3];
    in[0] = condition, in[1] = a, in[2] = b;
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = 3;
    return mpt__apply1("mpt_where", MPT__OP_where, in, 3, &attributes);
}

/* With a dimension, or a dtype in its place, and a number. */
static mpt_tensor mpt__apply_dim_number(const char *name, int op, mpt_tensor x, int dim,
                                        bool keep_dim, double number) {
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

#define MPT__DEFINE_REDUCTION(id)                                           \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor x, int dim, bool keep_dim) { \
        return mpt__apply_dim("mpt_" #id, MPT__OP_##id, x, dim, keep_dim);  \
    }
MPT__DEFINE_REDUCTION(sum)
MPT__DEFINE_REDUCTION(mean)
MPT__DEFINE_REDUCTION(max)
MPT__DEFINE_REDUCTION(argmax)
MPT__DEFINE_REDUCTION(min)
MPT__DEFINE_REDUCTION(argmin)
MPT__DEFINE_REDUCTION(prod)
MPT__DEFINE_REDUCTION(logsumexp)
#undef MPT__DEFINE_REDUCTION

MPTRAIN_API mpt_tensor mpt_var(mpt_tensor x, int dim, bool keep_dim, double correction) {
    return mpt__apply_dim_number("mpt_var", MPT__OP_var, x, dim, keep_dim, correction);
}
MPTRAIN_API mpt_tensor mpt_std(mpt_tensor x, int dim, bool keep_dim, double correction) {
    return mpt__apply_dim_number("mpt_std", MPT__OP_std, x, dim, keep_dim, correction);
}
MPTRAIN_API mpt_tensor mpt_norm(mpt_tensor x, double p, int dim, bool keep_dim) {
    return mpt__apply_dim_number("mpt_norm", MPT__OP_norm, x, dim, keep_dim, p);
}
MPTRAIN_API mpt_tensor mpt_cumsum(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_cumsum", MPT__OP_cumsum, x, dim, false);
}

MPTRAIN_API mpt_tensor mpt_softmax(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_softmax", MPT__OP_softmax, x, dim, false);
}
MPTRAIN_API mpt_tensor mpt_log_softmax(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_log_softmax", MPT__OP_log_softmax, x, dim, false);
}

/* ==== Linear ==== */

MPTRAIN_API mpt_tensor mpt_linear(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  mpt_activation activation) {
    mpt_tensor in[3];
    in[0] = x, in[1] = weight, in[2] = bias;
    mpt_context *context = mpt__context_of(in, 3);
    if (activation < MPT_ACTIVATION_NONE || activation > MPT_ACTIVATION_SIGMOID) {
        mpt__misuse(context, "mpt_linear", MPT_ERROR_ARGUMENT,
                    "activation %d is none of mpt_activation", (int)activation);
        return mpt__null(context);
    }
    mpt__attributes attributes = mpt__no_attributes;
    attributes.activation = (uint8_t)activation;
    attributes.required = 2;
    return mpt__apply1("mpt_linear", MPT__OP_linear, in, 3, &attributes);
}

/* ==== Dropout ==== */

/* The draw of one call: `stream` names who draws, `call` counts its calls in a step. */
static mpt_tensor mpt__dropout_call(mpt_tensor x, double p, uint64_t stream, uint64_t call) {
    mpt_context *context = x.context;
    if (context && !(p >= 0.0 && p <= 1.0)) {
        mpt__misuse(context, "mpt_dropout", MPT_ERROR_ARGUMENT, "p = %g is not in [0, 1]", p);
        return mpt__null(context);
    }
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = p;
    attributes.index[0] = (int64_t)stream;
    attributes.index[1] = (int64_t)call;
    bool identity =
        p == 0.0 || (context && (!context->module_training || context->inference_depth));
    if (identity && context && mpt_valid(x)) return mpt_reshape(x, mpt_get_shape(x));
    return mpt__apply1("mpt_dropout", MPT__OP_dropout, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_dropout(mpt_tensor x, double p) {
    mpt_context *context = x.context;
    uint64_t stream = context ? mpt__hash_u64(context->path_hash, 1) : 0;
    return mpt__dropout_call(x, p, stream, context ? context->now.module_calls++ : 0);
}

/* ==== Shapes ==== */

static mpt_tensor mpt__apply_shape(const char *name, int op, mpt_tensor x, const mpt_shape *shape) {
    mpt_context *context = x.context;
    if (shape->rank < 0 || shape->rank > MPT_MAX_RANK) {
        mpt__misuse(context, name, MPT_ERROR_SHAPE, "rank %d is not in 0..%d", shape->rank,
                    MPT_MAX_RANK);
        return mpt__null(context);
    }
    mpt__attributes attributes = mpt__no_attributes;
    attributes.rank = (uint8_t)shape->rank;
    for (int i = 0; i < shape->rank; i++) attributes.index[i] = shape->dim[i];
    return mpt__apply1(name, op, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_reshape(mpt_tensor x, mpt_shape shape) {
    return mpt__apply_shape("mpt_reshape", MPT__OP_reshape, x, &shape);
}
MPTRAIN_API mpt_tensor mpt_permute(mpt_tensor x, mpt_shape order) {
    return mpt__apply_shape("mpt_permute", MPT__OP_permute, x, &order);
}
MPTRAIN_API mpt_tensor mpt_expand(mpt_tensor x, mpt_shape shape) {
    return mpt__apply_shape("mpt_expand", MPT__OP_expand, x, &shape);
}

MPTRAIN_API mpt_tensor mpt_transpose(mpt_tensor x, int dim_a, int dim_b) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_transpose", "argument 1");
    int a = tensor ? mpt__dimension(context, dim_a, tensor->shape.rank) : -1;
    int b = a >= 0 ? mpt__dimension(context, dim_b, tensor->shape.rank) : -1;
    if (b < 0) return mpt__null(context);
    mpt_shape order;
    order.rank = tensor->shape.rank;
    for (int i = 0; i < tensor->shape.rank; i++) order.dim[i] = i == a ? b : i == b ? a : i;
    return mpt_permute(x, order);
}

MPTRAIN_API mpt_tensor mpt_slice(mpt_tensor x, int dim, int64_t start, int64_t stop, int64_t step) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.index[1] = start;
    attributes.index[2] = stop;
    attributes.index[3] = step;
    return mpt__apply1("mpt_slice", MPT__OP_slice, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_flatten(mpt_tensor x, int first_dim, int last_dim) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_flatten", "argument 1");
    if (!tensor) return mpt__null(context);
    if (tensor->shape.rank == 0) return mpt_reshape(x, MPT_SHAPE(1));
    int first = mpt__dimension(context, first_dim, tensor->shape.rank);
    int last = first >= 0 ? mpt__dimension(context, last_dim, tensor->shape.rank) : -1;
    if (last < 0) return mpt__null(context);
    if (last < first)
        return mpt__refuse(context, MPT_ERROR_ARGUMENT, "last_dim %d lies before first_dim %d",
                           last_dim, first_dim);
    mpt_shape shape;
    shape.rank = 0;
    for (int i = 0; i < tensor->shape.rank; i++) {
        if (i > first && i <= last)
            shape.dim[shape.rank - 1] *= tensor->shape.dim[i];
        else
            shape.dim[shape.rank++] = tensor->shape.dim[i];
    }
    return mpt_reshape(x, shape);
}

MPTRAIN_API mpt_tensor mpt_contiguous(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_contiguous", "argument 1");
    if (!tensor) return mpt__null(x.context);
    return mpt__tensor_contiguous(tensor) ? x : mpt_clone(x);
}

MPTRAIN_API mpt_tensor mpt_cast(mpt_tensor x, mpt_dtype dtype) {
    return mpt__apply_dim("mpt_cast", MPT__OP_cast, x, (int)dtype, false);
}

MPTRAIN_API mpt_tensor mpt_detach(mpt_tensor x) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_detach", "argument 1");
    if (!tensor) return mpt__null(context);
    return mpt__handle(context, mpt__tensor_alias(context, tensor));
}

/* With a dimension of size 1 at `dim`; an error is that of `name`. */
static mpt_tensor mpt__with_dim(const char *name, mpt_tensor x, int number, int dim) {
    char argument[24];
    mpt__format_text(argument, sizeof argument, "argument %d", number);
    const mpt__tensor *tensor = mpt__enter_at(x, name, argument);
    if (!tensor) return mpt__null(x.context);
    mpt_shape shape = tensor->shape;
    if (shape.rank == MPT_MAX_RANK)
        return mpt__refuse(x.context, MPT_ERROR_SHAPE, "%S has all the dimensions there can be",
                           &shape);
    dim = mpt__dimension(x.context, dim, shape.rank + 1);
    if (dim < 0) return mpt__null(x.context);
    for (int i = shape.rank++; i > dim; i--) shape.dim[i] = shape.dim[i - 1];
    shape.dim[dim] = 1;
    return mpt_reshape(x, shape);
}

/* More tensors than a record holds are joined in groups. stacks: along a new dimension. */
static mpt_tensor mpt__join(const char *name, const mpt_tensor *tensors, int count, int dim,
                            bool stacks) {
    mpt_context *context = tensors && count > 0 ? mpt__context_of(tensors, count) : NULL;
    mpt_tensor group[MPT__MAX_INPUTS];
    int in_group = 0;
    for (int i = 0; i < count && context; i++) {
        if (!tensors[i].context && !tensors[i].slot) {
            mpt__misuse(context, name, MPT_ERROR_HANDLE, "argument %d is a null handle", i + 1);
            return mpt__null(context);
        }
        group[in_group++] = stacks ? mpt__with_dim(name, tensors[i], i + 1, dim) : tensors[i];
        if (in_group < MPT__MAX_INPUTS && i + 1 < count) continue;
        mpt__attributes attributes = mpt__no_attributes;
        attributes.index[0] = dim;
        group[0] = mpt__apply1(name, MPT__OP_cat, group, in_group, &attributes);
        in_group = 1;
    }
    return context ? group[0] : mpt__null(NULL);
}

MPTRAIN_API mpt_tensor mpt_cat(const mpt_tensor *tensors, int count, int dim) {
    return mpt__join("mpt_cat", tensors, count, dim, false);
}
MPTRAIN_API mpt_tensor mpt_stack(const mpt_tensor *tensors, int count, int dim) {
    return mpt__join("mpt_stack", tensors, count, dim, true);
}

/* ==== Parts, repetition ==== */

/* Parts of `size`, or `chunks` of them where that is not 0. */
static int mpt__parts(const char *name, mpt_tensor x, int64_t size, int64_t chunks, int dim,
                      mpt_tensor *parts, int capacity) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, name, "argument 1");
    int at = tensor ? mpt__dimension(context, dim, tensor->shape.rank) : -1;
    if (at < 0) return -1;
    int64_t n = tensor->shape.dim[at];
    if (chunks > 0) size = n > chunks ? (n - 1) / chunks + 1 : 1;
    if (size < 1 || chunks < 0 || !parts) {
        mpt__error(context, MPT_ERROR_ARGUMENT,
                   "expected parts of 1 or more, and where to put them");
        return -1;
    }
    int64_t count = n > 0 ? (n - 1) / size + 1 : 1;
    if (count > capacity) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%lld parts, but room for %d", count, capacity);
        return -1;
    }
    for (int64_t i = 0; i < count; i++) parts[i] = mpt_slice(x, at, i * size, (i + 1) * size, 1);
    return context->base.status == MPT_OK ? (int)count : -1;
}

MPTRAIN_API int mpt_split_tensor(mpt_tensor x, int64_t size, int dim, mpt_tensor *parts,
                                 int capacity) {
    return mpt__parts("mpt_split_tensor", x, size, 0, dim, parts, capacity);
}
MPTRAIN_API int mpt_chunk(mpt_tensor x, int chunks, int dim, mpt_tensor *parts, int capacity) {
    return mpt__parts("mpt_chunk", x, 1, chunks > 0 ? chunks : -1, dim, parts, capacity);
}

MPTRAIN_API mpt_tensor mpt_roll(mpt_tensor x, int64_t shift, int dim) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_roll", "argument 1");
    int at = tensor ? mpt__dimension(context, dim, tensor->shape.rank) : -1;
    if (at < 0) return mpt__null(context);
    int64_t n = tensor->shape.dim[at];
    int64_t first = n > 0 ? (n - shift % n) % n : 0;
    mpt_tensor part[2];
    part[0] = mpt_slice(x, at, first, n, 1);
    part[1] = mpt_slice(x, at, 0, first, 1);
    return mpt__join("mpt_roll", part, 2, at, false);
}

/* Each dimension as [times, size], so that stretching the first one repeats. */
MPTRAIN_API mpt_tensor mpt_repeat(mpt_tensor x, mpt_shape times) {
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_repeat", "argument 1");
    if (!tensor) return mpt__null(context);
    int lead = times.rank - tensor->shape.rank, rank = 0;
    mpt_shape apart, wide, out = times;
    bool good = lead >= 0 && times.rank <= MPT_MAX_RANK;
    for (int i = 0; good && i < times.rank; i++) {
        int64_t size = i < lead ? 1 : tensor->shape.dim[i - lead], n = times.dim[i];
        bool both = n != 1 && size != 1;
        good = n >= 0 && rank + both < MPT_MAX_RANK && (n == 0 || size <= INT64_MAX / 4 / n);
        if (!good) break;
        if (both) apart.dim[rank] = 1, wide.dim[rank++] = n;
        apart.dim[rank] = size;
        wide.dim[rank++] = both ? size : n * size;
        out.dim[i] = n * size;
    }
    if (!good)
        return mpt__refuse(context, MPT_ERROR_ARGUMENT,
                           "a tensor %S repeated %S times: expected a number for each dimension, 0 "
                           "or more, and at most 8 dimensions in all, those of both counted twice",
                           &tensor->shape, &times);
    apart.rank = wide.rank = rank;
    return mpt_reshape(mpt_expand(mpt_reshape(x, apart), wide), out);
}

/* ==== Indices ==== */

static mpt_tensor mpt__apply_index(const char *name, int op, const mpt_tensor *in, int n_in,
                                   int dim) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.required = (uint8_t)n_in;
    return mpt__apply1(name, op, in, n_in, &attributes);
}

MPTRAIN_API mpt_tensor mpt_gather(mpt_tensor x, int dim, mpt_tensor index) {
    mpt_tensor in[2];
    in[0] = x, in[1] = index;
    return mpt__apply_index("mpt_gather", MPT__OP_gather, in, 2, dim);
}
MPTRAIN_API mpt_tensor mpt_index_select(mpt_tensor x, int dim, mpt_tensor index) {
    mpt_tensor in[2];
    in[0] = x, in[1] = index;
    return mpt__apply_index("mpt_index_select", MPT__OP_index_select, in, 2, dim);
}
MPTRAIN_API mpt_tensor mpt_scatter_add(mpt_tensor x, int dim, mpt_tensor index, mpt_tensor source) {
    mpt_tensor in[3];
    in[0] = x, in[1] = index, in[2] = source;
    return mpt__apply_index("mpt_scatter_add", MPT__OP_scatter_add, in, 3, dim);
}
MPTRAIN_API mpt_tensor mpt_one_hot(mpt_tensor classes, int64_t count) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[1] = count;
    return mpt__apply1("mpt_one_hot", MPT__OP_one_hot, &classes, 1, &attributes);
}
MPTRAIN_API mpt_tensor mpt_flip(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_flip", MPT__OP_flip, x, dim, false);
}
MPTRAIN_API mpt_tensor mpt_tril(mpt_tensor x, int64_t diagonal) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = diagonal;
    return mpt__apply1("mpt_tril", MPT__OP_tril, &x, 1, &attributes);
}
MPTRAIN_API mpt_tensor mpt_triu(mpt_tensor x, int64_t diagonal) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = diagonal;
    return mpt__apply1("mpt_triu", MPT__OP_triu, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_pad(mpt_tensor x, mpt_shape padding, double value) {
    mpt_context *context = x.context;
    if (context && (padding.rank < 0 || padding.rank > MPT_MAX_RANK)) {
        mpt__misuse(context, "mpt_pad", MPT_ERROR_ARGUMENT, "%d sizes are not in 0..%d",
                    padding.rank, MPT_MAX_RANK);
        return mpt__null(context);
    }
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = value;
    attributes.rank = (uint8_t)padding.rank;
    for (int i = 0; i < padding.rank; i++) attributes.index[i] = padding.dim[i];
    return mpt__apply1("mpt_pad", MPT__OP_pad, &x, 1, &attributes);
}

/* ==== Losses ==== */

MPTRAIN_API mpt_nll_config mpt_nll_config_default(void) {
    mpt_nll_config config;
    memset(&config, 0, sizeof config);
    config.reduction = MPT_MEAN;
    config.ignore_index = -100;
    return config;
}

static bool mpt__good_reduction(mpt_context *context, const char *name, mpt_reduction reduction) {
    if (reduction >= MPT_MEAN && reduction <= MPT_NONE) return true;
    mpt__misuse(context, name, MPT_ERROR_ARGUMENT, "reduction %d is none of mpt_reduction",
                (int)reduction);
    return false;
}

static mpt_tensor mpt__apply_nll(const char *name, int op, mpt_tensor input, mpt_tensor targets,
                                 const mpt_nll_config *config) {
    mpt_nll_config defaults = mpt_nll_config_default();
    if (!config) config = &defaults;
    mpt_tensor in[3];
    in[0] = input, in[1] = targets, in[2] = config->weight;
    mpt_context *context = mpt__context_of(in, 3);
    if (!mpt__good_reduction(context, name, config->reduction)) return mpt__null(context);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = config->ignore_index;
    attributes.reduction = (uint8_t)config->reduction;
    attributes.required = 2;
    attributes.imm[0] = op == MPT__OP_cross_entropy ? config->label_smoothing : 0.0;
    return mpt__apply1(name, op, in, 3, &attributes);
}

MPTRAIN_API mpt_tensor mpt_nll_loss(mpt_tensor log_probabilities, mpt_tensor targets,
                                    const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_nll_loss", MPT__OP_nll_loss, log_probabilities, targets, config);
}

MPTRAIN_API mpt_tensor mpt_cross_entropy(mpt_tensor logits, mpt_tensor targets,
                                         const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_cross_entropy", MPT__OP_cross_entropy, logits, targets, config);
}

MPTRAIN_API mpt_tensor mpt_mse_loss(mpt_tensor input, mpt_tensor target, mpt_reduction reduction) {
    mpt_tensor in[2];
    in[0] = input, in[1] = target;
    mpt_context *context = mpt__context_of(in, 2);
    if (!mpt__good_reduction(context, "mpt_mse_loss", reduction)) return mpt__null(context);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.reduction = (uint8_t)reduction;
    attributes.required = 2;
    return mpt__apply1("mpt_mse_loss", MPT__OP_mse_loss, in, 2, &attributes);
}

#endif
