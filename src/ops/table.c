/* ---------------------------------------------------------------------------------------------
 * ops/table.c: the op table's rows, and the public op functions: each fills attributes and
 * applies a row.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__OPS_TABLE_INCLUDED
#define MPT__OPS_TABLE_INCLUDED

#include "ops/user.c"

/* ==== The op table ==== */

#define mpt__none_shape NULL
#define mpt__none_forward NULL
#define mpt__none_backward NULL

static const mpt__op_row mpt__op_rows[MPT__OP_COUNT] = {
    {"none", "", MPT__POLICY_ANY, NULL, NULL, NULL, MPT__FN_NONE, MPT__FN_NONE},
#define MPT__ROW(id, policy, shape, forward, backward, fn, backward_fn, onnx) \
    {#id, \
     onnx, \
     MPT__POLICY_##policy, \
     mpt__##shape##_shape, \
     mpt__##forward##_forward, \
     mpt__##backward##_backward, \
     MPT__FN_##fn, \
     MPT__FN_##backward_fn},
    MPT__OPS(MPT__ROW)
#undef MPT__ROW
};

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

#define MPT__DEFINE_UNARY(id) \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor x) { \
        mpt__attributes attributes = mpt__no_attributes; \
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

#define MPT__DEFINE_BINARY(id) \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor a, mpt_tensor b) { \
        return mpt__apply2("mpt_" #id, MPT__OP_##id, a, b); \
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

/* Comparison with a number that takes the tensor's dtype, as PyTorch's do; integers meet one that
   they cannot be in fp32. */
static mpt_tensor mpt__compare_number(const char *name, int op, mpt_tensor x, double value) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = x.context;
    const mpt__tensor *tensor = mpt__enter_at(x, name, "argument 1");
    if (!tensor) return mpt__null(context);
    mpt_dtype dtype = (mpt_dtype)tensor->dtype;
    double limit = dtype == MPT_I64 ? 9007199254740992.0 : dtype == MPT_I32 ? 2147483647.0 : 0.0;
    bool whole = value >= -limit && value <= limit && value == (double)(int64_t)value;
    bool casts = !mpt__dtype_info[dtype].is_float && !whole;
    mpt_tensor a = casts ? mpt_cast(x, MPT_F32) : x;
    mpt_tensor b = mpt_full(context, casts ? MPT_F32 : dtype, MPT_SCALAR, value);
    mpt_tensor out = mpt__apply2(name, op, a, b);
    mpt_release(b);
    if (casts) mpt_release(a);
    return out;
}

#define MPT__DEFINE_COMPARISON(id, op) \
    MPTRAIN_API mpt_tensor mpt_##id##_scalar(mpt_tensor x, double value) { \
        return mpt__compare_number("mpt_" #id "_scalar", MPT__OP_##op, x, value); \
    }
MPT__DEFINE_COMPARISON(lt, lt)
MPT__DEFINE_COMPARISON(le, le)
MPT__DEFINE_COMPARISON(gt, gt)
MPT__DEFINE_COMPARISON(ge, ge)
MPT__DEFINE_COMPARISON(eq, equal)
MPT__DEFINE_COMPARISON(ne, ne)
#undef MPT__DEFINE_COMPARISON

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

static mpt_tensor mpt__apply_numbers(const char *name, int op, mpt_tensor x, double a, double b) {
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
    MPT__PLAIN_FLOATS;
    return mpt__apply_numbers("mpt_clamp", MPT__OP_clamp, x, min, max);
}
MPTRAIN_API mpt_tensor mpt_hardtanh(mpt_tensor x, double min, double max) {
    MPT__PLAIN_FLOATS;
    return mpt__apply_numbers("mpt_hardtanh", MPT__OP_hardtanh, x, min, max);
}
MPTRAIN_API mpt_tensor mpt_softplus(mpt_tensor x, double beta, double threshold) {
    return mpt__apply_numbers("mpt_softplus", MPT__OP_softplus, x, beta, threshold);
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

#define MPT__DEFINE_REDUCTION(id) \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor x, int dim, bool keep_dim) { \
        return mpt__apply_dim("mpt_" #id, MPT__OP_##id, x, dim, keep_dim); \
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

static mpt_tensor mpt__copy_call(const char *name, mpt_tensor x, mpt__layout layout) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = layout;
    return mpt__apply1(name, MPT__OP_clone, &x, 1, &attributes);
}

MPTRAIN_API mpt_tensor mpt_clone(mpt_tensor x) {
    return mpt__copy_call("mpt_clone", x, MPT__LAYOUT_KEPT);
}

MPTRAIN_API mpt_tensor mpt_contiguous(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_contiguous", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (mpt__tensor_contiguous(tensor)) return x;
    return mpt__copy_call("mpt_contiguous", x, MPT__LAYOUT_CONTIGUOUS);
}

static bool mpt__dense_last(const mpt__tensor *tensor) {
    const int64_t *size = tensor->shape.dim;
    return mpt__channels_last(tensor) && tensor->stride[0] == size[1] * size[2] * size[3];
}

MPTRAIN_API mpt_tensor mpt_to_channels_last(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_to_channels_last", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (tensor->shape.rank != 4)
        return mpt__refuse(x.context, MPT_ERROR_SHAPE, "shape %S: expected [N, C, H, W]",
                           &tensor->shape);
    if (mpt__dense_last(tensor)) return x;
    return mpt__copy_call("mpt_to_channels_last", x, MPT__LAYOUT_CHANNELS_LAST);
}

MPTRAIN_API bool mpt_is_channels_last(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_is_channels_last", "argument 1");
    return tensor && tensor->shape.rank == 4 && mpt__dense_last(tensor);
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
    int64_t count = n > 0 ? (n - 1) / size + 1 : chunks > 0 ? chunks : 1; /* also of nothing */
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
/* The first `count` in order, -1: all, and their indices; the values are gathered, so that their
   gradients find the way back. */
static mpt_tensor mpt__sorted(const char *name, mpt_tensor x, int64_t count, int dim,
                              bool descending, bool values, mpt_tensor *indices) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.index[1] = count;
    attributes.index[2] = descending;
    mpt_tensor in[2];
    in[0] = x;
    in[1] = mpt__apply1(name, MPT__OP_argsort, &x, 1, &attributes);
    mpt_tensor out = values ? mpt__apply_index(name, MPT__OP_gather, in, 2, dim) : in[1];
    if (indices)
        *indices = in[1];
    else if (values)
        mpt_release(in[1]);
    return out;
}

MPTRAIN_API mpt_tensor mpt_argsort(mpt_tensor x, int dim, bool descending) {
    return mpt__sorted("mpt_argsort", x, -1, dim, descending, false, NULL);
}
MPTRAIN_API mpt_tensor mpt_sort(mpt_tensor x, int dim, bool descending, mpt_tensor *indices) {
    return mpt__sorted("mpt_sort", x, -1, dim, descending, true, indices);
}
MPTRAIN_API mpt_tensor mpt_topk(mpt_tensor x, int64_t k, int dim, bool largest,
                                mpt_tensor *indices) {
    if (k < 0 && x.context) {
        mpt__misuse(x.context, "mpt_topk", MPT_ERROR_ARGUMENT, "k = %lld: expected 0 or more", k);
        if (indices) *indices = mpt__null(x.context);
        return mpt__null(x.context);
    }
    return mpt__sorted("mpt_topk", x, k, dim, largest, true, indices);
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
    if (padding.rank < 0 || padding.rank > MPT_MAX_RANK) {
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

/* One that is copied would make its reader wait for the copy's stores. */
static const mpt_nll_config mpt__nll_defaults = {MPT_MEAN, -100, {NULL, 0, 0}, 0.0};

MPTRAIN_API mpt_nll_config mpt_nll_config_default(void) { return mpt__nll_defaults; }

static bool mpt__good_reduction(mpt_context *context, const char *name, mpt_reduction reduction,
                                mpt_reduction last) {
    if (reduction >= MPT_MEAN && reduction <= last) return true;
    mpt__misuse(context, name, MPT_ERROR_ARGUMENT, "reduction %d is none of MPT_MEAN .. %s",
                (int)reduction, last == MPT_NONE ? "MPT_NONE" : "MPT_BATCH_MEAN");
    return false;
}

/* `expected`: "above 0", "0 or more" or "a number". */
static bool mpt__good_number(mpt_context *context, const char *name, const char *what, double value,
                             const char *expected) {
    bool good = *expected == '0' ? value >= 0.0 : expected[1] == 'b' ? value > 0.0 : value == value;
    if (!good)
        mpt__misuse(context, name, MPT_ERROR_ARGUMENT, "%s %g is not %s", what, value, expected);
    return good;
}

/* Of a pair loss: inputs that it cannot do without, those that get gradients, p and r. */
static mpt__attributes mpt__pair_attributes(int required, int gradients, double p, double r) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = (uint8_t)required;
    attributes.index[1] = gradients;
    attributes.imm[0] = p;
    attributes.imm[1] = r;
    return attributes;
}

static mpt_tensor mpt__apply_pair(const char *name, int op, const mpt_tensor *in, int n_in,
                                  mpt__attributes *attributes, mpt_reduction reduction) {
    mpt_context *context = mpt__context_of(in, n_in);
    bool batch_mean = op == MPT__OP_kl_div || op == MPT__OP_soft_targets;
    if (!mpt__good_reduction(context, name, reduction, batch_mean ? MPT_BATCH_MEAN : MPT_NONE))
        return mpt__null(context);
    attributes->reduction = (uint8_t)reduction;
    return mpt__apply1(name, op, in, n_in, attributes);
}

/* ---- Classes ---- */

/* What a composition makes on its way, and gives back at its end. */
typedef struct mpt__spares {
    mpt_tensor tensor[16];
    int count;
} mpt__spares;

static mpt_tensor mpt__spare(mpt__spares *spares, mpt_tensor x) {
    return spares->tensor[spares->count++] = x;
}

static MPT__NOINLINE mpt_tensor mpt__spares_end(mpt__spares *spares, mpt_tensor result) {
    while (spares->count > 0) mpt_release(spares->tensor[--spares->count]);
    return result;
}

/* Halves as fp32. */
static mpt_tensor mpt__widened(mpt__spares *spares, mpt_tensor x) {
    mpt_dtype dtype = mpt_get_dtype(x);
    return dtype == MPT_F16 || dtype == MPT_BF16 ? mpt__spare(spares, mpt_cast(x, MPT_F32)) : x;
}

/* Cross-entropy of logits against probabilities of the same shape; the classes are dimension 1, or
   0 of a single sample. */
static mpt_tensor mpt__soft_cross_entropy(const char *name, mpt_tensor logits, mpt_tensor targets,
                                          const mpt_shape shape, const mpt_nll_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = logits.context;
    int dim = shape.rank > 1 ? 1 : 0;
    const mpt__tensor *weight = mpt__live(context, config->weight);
    mpt_tensor in[3];
    mpt__spares spares;
    spares.count = 0;
    if (config->ignore_index >= 0)
        return mpt__refuse(context, MPT_ERROR_ARGUMENT,
                           "ignore_index %lld has no meaning where targets are probabilities",
                           config->ignore_index);
    if (weight && (weight->shape.rank != 1 || weight->shape.dim[0] != shape.dim[dim]))
        return mpt__refuse(context, MPT_ERROR_SHAPE, "weight %S: expected [%lld]", &weight->shape,
                           shape.dim[dim]);
    in[0] = mpt__spare(&spares, mpt_log_softmax(mpt__widened(&spares, logits), dim));
    in[1] = targets, in[2] = config->weight;
    if (weight) {
        mpt_shape by_class = shape;
        by_class.rank = shape.rank - dim;
        for (int i = 0; i < by_class.rank; i++) by_class.dim[i] = i > 0 ? 1 : shape.dim[dim];
        in[2] = mpt__spare(&spares, mpt_reshape(in[2], by_class));
    }
    double each = config->label_smoothing / (double)shape.dim[dim];
    mpt__attributes attributes = mpt__pair_attributes(2, 2, config->label_smoothing, each);
    mpt_reduction reduction = config->reduction == MPT_MEAN ? MPT_BATCH_MEAN : config->reduction;
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_soft_targets, in, 3, &attributes, reduction);
    if (reduction == MPT_NONE) loss = mpt_sum(mpt__spare(&spares, loss), dim, false);
    return mpt__spares_end(&spares, loss);
}

/* [N, C, d1..] as [N d1.., C], in in[0], and its targets as [N d1..], in in[1]. Rows of a sample,
   or -1. */
static int64_t mpt__fold_positions(mpt__spares *spares, mpt_tensor in[2], const mpt__tensor *x,
                                   const mpt__tensor *t) {
    mpt_context *context = in[0].context;
    mpt_shape order = x->shape, rows = MPT_SHAPE(0, 0);
    int rank = x->shape.rank;
    bool fits = t->shape.rank == rank - 1;
    int64_t positions = 1;
    for (int i = 0; fits && i < rank - 1; i++) {
        int from = i > 0 ? i + 1 : 0;
        order.dim[i] = from;
        fits = t->shape.dim[i] == x->shape.dim[from];
        if (i > 0) positions *= t->shape.dim[i];
    }
    if (!fits) {
        mpt__refuse(context, MPT_ERROR_SHAPE,
                    "input %S and targets %S: expected [N, C, d1..] and [N, d1..]", &x->shape,
                    &t->shape);
        return -1;
    }
    order.dim[rank - 1] = 1;
    rows.dim[0] = mpt__tensor_numel(t);
    rows.dim[1] = x->shape.dim[1];
    in[0] = mpt__spare(spares, mpt_permute(in[0], order));
    in[0] = mpt__spare(spares, mpt_reshape(in[0], rows));
    rows.rank = 1;
    in[1] = mpt__spare(spares, mpt_reshape(in[1], rows));
    return positions;
}

static mpt_tensor mpt__apply_nll(const char *name, int op, mpt_tensor input, mpt_tensor targets,
                                 const mpt_nll_config *config) {
    if (!config) config = &mpt__nll_defaults;
    mpt_tensor in[3];
    in[0] = input, in[1] = targets, in[2] = config->weight;
    mpt_context *context = mpt__context_of(in, 3);
    if (!mpt__good_reduction(context, name, config->reduction, MPT_NONE)) return mpt__null(context);
    double smoothing = op == MPT__OP_cross_entropy ? config->label_smoothing : 0.0;
    const mpt__tensor *x = context ? mpt__live(context, input) : NULL;
    const bool plain = x && x->shape.rank <= 2 && op == MPT__OP_nll_loss;
    const mpt__tensor *t = context && !plain ? mpt__live(context, targets) : NULL;
    bool probable = op == MPT__OP_cross_entropy && x && t && mpt__same_shape(x, t) &&
                    mpt__dtype_info[t->dtype].is_float && x->shape.rank > 0;
    bool folds = !probable && x && t && x->shape.rank > 2;
    if ((probable || folds) && !mpt__enter(context, name)) return mpt__null(context);
    if (probable && smoothing >= 0.0 && smoothing <= 1.0)
        return mpt__soft_cross_entropy(name, input, targets, x->shape, config);
    mpt_shape each;
    mpt__spares spares;
    int64_t positions = 0;
    spares.count = each.rank = 0;
    if (folds) {
        each = t->shape;
        positions = mpt__fold_positions(&spares, in, x, t);
        if (positions < 0) return mpt__null(context);
    }
    mpt__frame frame;
    mpt_tensor loss = mpt__null(context);
    if (mpt__apply_begin(&frame, name, op, in, 3, 2)) {
        *frame.attributes = mpt__no_attributes; /* one copied here would wait for its own stores */
        frame.attributes->index[0] = config->ignore_index;
        frame.attributes->index[1] = positions;
        frame.attributes->reduction = (uint8_t)config->reduction;
        frame.attributes->required = 2;
        frame.attributes->imm[0] = smoothing;
        loss = mpt__handle(context, mpt__call_run(&frame));
    }
    if (!folds) return loss;
    if (config->reduction == MPT_NONE) loss = mpt_reshape(mpt__spare(&spares, loss), each);
    return mpt__spares_end(&spares, loss);
}

MPTRAIN_API mpt_tensor mpt_nll_loss(mpt_tensor log_probabilities, mpt_tensor targets,
                                    const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_nll_loss", MPT__OP_nll_loss, log_probabilities, targets, config);
}

MPTRAIN_API mpt_tensor mpt_cross_entropy(mpt_tensor logits, mpt_tensor targets,
                                         const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_cross_entropy", MPT__OP_cross_entropy, logits, targets, config);
}

/* ---- Pairs ---- */

#define MPT__DEFINE_PAIR(id) \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor input, mpt_tensor target, \
                                    mpt_reduction reduction) { \
        mpt_tensor in[2]; \
        in[0] = input, in[1] = target; \
        mpt__attributes attributes = mpt__pair_attributes(2, 2, 0.0, 0.0); \
        return mpt__apply_pair("mpt_" #id, MPT__OP_##id, in, 2, &attributes, reduction); \
    }
MPT__DEFINE_PAIR(mse_loss)
MPT__DEFINE_PAIR(l1_loss)
MPT__DEFINE_PAIR(soft_margin_loss)
#undef MPT__DEFINE_PAIR

/* With a number that must be `good`. A beta of 0 makes smooth_l1_loss l1_loss, 0 / 0 else. */
#define MPT__DEFINE_PAIR_NUMBER(id, number, gradients, good) \
    MPTRAIN_API mpt_tensor mpt_##id(mpt_tensor input, mpt_tensor target, double number, \
                                    mpt_reduction reduction) { \
        mpt_tensor in[2]; \
        in[0] = input, in[1] = target; \
        mpt__attributes attributes = mpt__pair_attributes(2, gradients, number, 0.0); \
        mpt_context *context = mpt__context_of(in, 2); \
        if (!mpt__good_number(context, "mpt_" #id, #number, number, good)) \
            return mpt__null(context); \
        if (MPT__OP_##id == MPT__OP_smooth_l1_loss && !(number > 0.0)) \
            attributes.index[0] = (int)MPT__FN_L1 - (int)MPT__FN_SMOOTH_L1; \
        return mpt__apply_pair("mpt_" #id, MPT__OP_##id, in, 2, &attributes, reduction); \
    }
MPT__DEFINE_PAIR_NUMBER(smooth_l1_loss, beta, 2, "0 or more")
MPT__DEFINE_PAIR_NUMBER(huber_loss, delta, 2, "above 0")
MPT__DEFINE_PAIR_NUMBER(hinge_embedding_loss, margin, 1, "a number")
#undef MPT__DEFINE_PAIR_NUMBER

MPTRAIN_API mpt_tensor mpt_binary_cross_entropy_with_logits(mpt_tensor logits, mpt_tensor target,
                                                            mpt_tensor weight,
                                                            mpt_tensor pos_weight,
                                                            mpt_reduction reduction) {
    mpt_tensor in[4];
    in[0] = logits, in[1] = target, in[2] = weight, in[3] = pos_weight;
    mpt__attributes attributes = mpt__pair_attributes(2, 2, 0.0, 0.0);
    return mpt__apply_pair("mpt_binary_cross_entropy_with_logits",
                           MPT__OP_binary_cross_entropy_with_logits, in, 4, &attributes, reduction);
}

MPTRAIN_API mpt_tensor mpt_binary_cross_entropy(mpt_tensor probabilities, mpt_tensor target,
                                                mpt_tensor weight, mpt_reduction reduction) {
    mpt_tensor in[3];
    in[0] = probabilities, in[1] = target, in[2] = weight;
    mpt__attributes attributes = mpt__pair_attributes(2, 2, 0.0, 0.0);
    return mpt__apply_pair("mpt_binary_cross_entropy", MPT__OP_binary_cross_entropy, in, 3,
                           &attributes, reduction);
}

MPTRAIN_API mpt_tensor mpt_kl_div(mpt_tensor input, mpt_tensor target, bool log_target,
                                  mpt_reduction reduction) {
    mpt_tensor in[2];
    in[0] = input, in[1] = target;
    mpt__attributes attributes = mpt__pair_attributes(2, 2, 0.0, 0.0);
    attributes.index[0] = log_target ? MPT__FN_KL_DIV_LOG - MPT__FN_KL_DIV : 0;
    return mpt__apply_pair("mpt_kl_div", MPT__OP_kl_div, in, 2, &attributes, reduction);
}

MPTRAIN_API mpt_tensor mpt_gaussian_nll_loss(mpt_tensor input, mpt_tensor target,
                                             mpt_tensor variance, bool full, double eps,
                                             mpt_reduction reduction) {
    static const char name[] = "mpt_gaussian_nll_loss";
    mpt_tensor in[3];
    in[0] = input, in[1] = target, in[2] = variance;
    mpt_context *context = mpt__context_of(in, 3);
    if (!mpt__good_number(context, name, "eps", eps, "0 or more")) return mpt__null(context);
    const mpt__tensor *x = context ? mpt__live(context, input) : NULL;
    const mpt__tensor *v = context ? mpt__live(context, variance) : NULL;
    mpt__spares spares;
    spares.count = 0;
    if (x && v && v->shape.rank == x->shape.rank - 1) {
        mpt_shape shape = v->shape;
        shape.dim[shape.rank++] = 1;
        in[2] = mpt__spare(&spares, mpt_reshape(variance, shape));
    }
    const double half_log_2_pi = 0.91893853320467274;
    mpt__attributes attributes = mpt__pair_attributes(3, 3, eps, full ? half_log_2_pi : 0.0);
    return mpt__spares_end(
        &spares, mpt__apply_pair(name, MPT__OP_gaussian_nll_loss, in, 3, &attributes, reduction));
}

MPTRAIN_API mpt_tensor mpt_margin_ranking_loss(mpt_tensor a, mpt_tensor b, mpt_tensor target,
                                               double margin, mpt_reduction reduction) {
    mpt_tensor in[3];
    in[0] = a, in[1] = b, in[2] = target;
    mpt__attributes attributes = mpt__pair_attributes(3, 3, margin, 0.0);
    return mpt__apply_pair("mpt_margin_ranking_loss", MPT__OP_margin_ranking_loss, in, 3,
                           &attributes, reduction);
}

MPTRAIN_API mpt_tensor mpt_poisson_nll_loss(mpt_tensor input, mpt_tensor target, bool log_input,
                                            bool full, double eps, mpt_reduction reduction) {
    static const char name[] = "mpt_poisson_nll_loss";
    mpt_tensor in[2];
    in[0] = input, in[1] = target;
    if (!mpt__good_number(mpt__context_of(in, 2), name, "eps", eps, "0 or more"))
        return mpt__null(mpt__context_of(in, 2));
    mpt__attributes attributes = mpt__pair_attributes(2, 2, eps, full);
    attributes.index[0] = log_input ? MPT__FN_POISSON_LOG - MPT__FN_POISSON : 0;
    return mpt__apply_pair(name, MPT__OP_poisson_nll_loss, in, 2, &attributes, reduction);
}

/* ---- Means over the classes, the last dimension ---- */

/* Losses of classes as those of their samples. */
static mpt_tensor mpt__by_sample(mpt__spares *spares, mpt_tensor loss, mpt_reduction reduction) {
    if (reduction == MPT_MEAN) return loss;
    loss = mpt_mean(mpt__spare(spares, loss), -1, false);
    return reduction == MPT_NONE ? loss : mpt_sum(mpt__spare(spares, loss), MPT_ALL_DIMS, false);
}

MPTRAIN_API mpt_tensor mpt_multilabel_soft_margin_loss(mpt_tensor input, mpt_tensor target,
                                                       mpt_tensor weight, mpt_reduction reduction) {
    static const char name[] = "mpt_multilabel_soft_margin_loss";
    mpt__spares spares;
    mpt_tensor in[3];
    in[0] = input, in[1] = target, in[2] = weight;
    spares.count = 0;
    if (!mpt__good_reduction(mpt__context_of(in, 3), name, reduction, MPT_NONE))
        return mpt__null(mpt__context_of(in, 3));
    mpt__attributes attributes = mpt__pair_attributes(2, 2, 0.0, 0.0);
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_binary_cross_entropy_with_logits, in, 3,
                                      &attributes, reduction == MPT_MEAN ? MPT_MEAN : MPT_NONE);
    return mpt__spares_end(&spares, mpt__by_sample(&spares, loss, reduction));
}

/* Pairs of an input and whether it is the target's, beside the target's input and weight. */
MPTRAIN_API mpt_tensor mpt_multi_margin_loss(mpt_tensor input, mpt_tensor targets, int p,
                                             double margin, mpt_tensor weight,
                                             mpt_reduction reduction) {
    static const char name[] = "mpt_multi_margin_loss";
    mpt__spares spares;
    mpt_tensor in[4];
    in[0] = input, in[1] = targets, in[2] = weight;
    mpt_context *context = mpt__context_of(in, 3);
    spares.count = 0;
    if (!mpt__good_reduction(context, name, reduction, MPT_NONE) ||
        !mpt__good_number(context, name, "margin", margin, "a number") ||
        !mpt__enter(context, name))
        return mpt__null(context);
    const mpt__tensor *x = mpt__at(context, input, "argument 1");
    const mpt__tensor *t = x ? mpt__at(context, targets, "argument 2") : NULL;
    const mpt__tensor *w =
        t && (weight.context || weight.slot) ? mpt__at(context, weight, "argument 5") : NULL;
    if (!t || context->base.status != MPT_OK) return mpt__null(context);
    bool fits = x->shape.rank == 2 && t->shape.rank == 1 && t->shape.dim[0] == x->shape.dim[0] &&
                (!w || (w->shape.rank == 1 && w->shape.dim[0] == x->shape.dim[1]));
    if (!fits)
        return mpt__refuse(context, MPT_ERROR_SHAPE,
                           "input %S and targets %S: expected [N, C] and [N], and a weight [C] or "
                           "none",
                           &x->shape, &t->shape);
    if (p != 1 && p != 2)
        return mpt__refuse(context, MPT_ERROR_ARGUMENT, "p = %d: expected 1 or 2", p);
    mpt_shape column = MPT_SHAPE(x->shape.dim[0], 1);
    mpt_tensor by_row[2];
    by_row[0] = input;
    by_row[1] = mpt__spare(&spares, mpt_reshape(targets, column));
    in[2] = mpt__spare(&spares, mpt__apply_index(name, MPT__OP_gather, by_row, 2, 1));
    in[1] = mpt__spare(&spares, mpt_one_hot(targets, x->shape.dim[1]));
    in[1] = mpt__spare(&spares, mpt_cast(in[1], MPT_F32));
    if (w) {
        in[3] = mpt__spare(&spares, mpt_index_select(weight, 0, targets));
        in[3] = mpt__spare(&spares, mpt_reshape(in[3], column));
    }
    mpt__attributes attributes = mpt__pair_attributes(3, 3, margin, p);
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_multi_margin_loss, in, w ? 4 : 3, &attributes,
                                      reduction == MPT_MEAN ? MPT_MEAN : MPT_NONE);
    return mpt__spares_end(&spares, mpt__by_sample(&spares, loss, reduction));
}

/* ---- Of vectors: sums of products along a dimension, then a pair loss of those ---- */

static mpt_tensor mpt__dot(mpt__spares *spares, mpt_tensor a, mpt_tensor b, int dim) {
    return mpt__spare(spares, mpt_sum(mpt__spare(spares, mpt_mul(a, b)), dim, false));
}

/* |a - b + eps|^2 */
static mpt_tensor mpt__square_distance(mpt__spares *spares, mpt_tensor a, mpt_tensor b,
                                       double eps) {
    mpt_tensor difference = mpt__spare(spares, mpt_sub(a, b));
    difference = mpt__spare(spares, mpt_add_scalar(difference, eps));
    return mpt__dot(spares, difference, difference, -1);
}

/* Begins such a call: whether the tensors have one shape. Halves become fp32. */
static bool mpt__vectors(mpt__spares *spares, const char *name, mpt_tensor *in, int n) {
    static const char *const argument[] = {"argument 1", "argument 2", "argument 3"};
    mpt_context *context = mpt__context_of(in, n);
    const mpt__tensor *first = NULL;
    spares->count = 0;
    if (!mpt__enter(context, name)) return false;
    for (int i = 0; i < n; i++) {
        const mpt__tensor *x = mpt__at(context, in[i], argument[i]);
        if (!x) return false;
        if (i == 0) first = x;
        if (!mpt__dtype_computes((mpt_dtype)x->dtype))
            return mpt__reject(context, MPT_ERROR_DTYPE, "%s has dtype %s, expected a float dtype",
                               argument[i], mpt_dtype_name((mpt_dtype)x->dtype));
        if (x->shape.rank == 0 || !mpt__same_shape(x, first))
            return mpt__reject(context, MPT_ERROR_SHAPE,
                               "%s is %S: expected equal shapes of one dimension or more",
                               argument[i], &x->shape);
    }
    for (int i = 0; i < n; i++) in[i] = mpt__widened(spares, in[i]);
    return true;
}

/* a b, a a and b b into of[]. */
static void mpt__products(mpt__spares *spares, const mpt_tensor in[2], int dim, mpt_tensor of[3]) {
    of[0] = mpt__dot(spares, in[0], in[1], dim);
    of[1] = mpt__dot(spares, in[0], in[0], dim);
    of[2] = mpt__dot(spares, in[1], in[1], dim);
}

MPTRAIN_API mpt_tensor mpt_triplet_margin_loss(mpt_tensor anchor, mpt_tensor positive,
                                               mpt_tensor negative, double margin, double eps,
                                               bool swap, mpt_reduction reduction) {
    static const char name[] = "mpt_triplet_margin_loss";
    mpt__spares spares;
    mpt_tensor in[3], of[3];
    in[0] = anchor, in[1] = positive, in[2] = negative;
    if (!mpt__vectors(&spares, name, in, 3)) return mpt__null(mpt__context_of(in, 3));
    of[0] = mpt__square_distance(&spares, in[0], in[1], eps);
    of[1] = mpt__square_distance(&spares, in[0], in[2], eps);
    if (swap) of[2] = mpt__square_distance(&spares, in[1], in[2], eps);
    mpt__attributes attributes = mpt__pair_attributes(2, 3, margin, swap ? 1.0 : 0.0);
    return mpt__spares_end(&spares, mpt__apply_pair(name, MPT__OP_triplet_margin_loss, of,
                                                    swap ? 3 : 2, &attributes, reduction));
}

MPTRAIN_API mpt_tensor mpt_cosine_similarity(mpt_tensor a, mpt_tensor b, int dim, double eps) {
    static const char name[] = "mpt_cosine_similarity";
    mpt__spares spares;
    mpt_tensor in[2], of[3];
    in[0] = a, in[1] = b;
    mpt_context *context = mpt__context_of(in, 2);
    if (!mpt__good_number(context, name, "eps", eps, "above 0") ||
        !mpt__vectors(&spares, name, in, 2))
        return mpt__null(context);
    mpt__products(&spares, in, dim, of);
    mpt__attributes attributes = mpt__pair_attributes(3, 3, eps, 0.0);
    return mpt__spares_end(
        &spares, mpt__apply_pair(name, MPT__OP_cosine_similarity, of, 3, &attributes, MPT_NONE));
}

MPTRAIN_API mpt_tensor mpt_cosine_embedding_loss(mpt_tensor a, mpt_tensor b, mpt_tensor target,
                                                 double margin, mpt_reduction reduction) {
    static const char name[] = "mpt_cosine_embedding_loss";
    const double eps = 1e-12; /* PyTorch's, added to the squares */
    mpt__spares spares;
    mpt_tensor in[2], of[4];
    in[0] = a, in[1] = b;
    if (!mpt__vectors(&spares, name, in, 2)) return mpt__null(mpt__context_of(in, 2));
    mpt__products(&spares, in, -1, of);
    of[3] = target;
    mpt__attributes attributes = mpt__pair_attributes(4, 3, margin, eps);
    return mpt__spares_end(&spares, mpt__apply_pair(name, MPT__OP_cosine_embedding_loss, of, 4,
                                                    &attributes, reduction));
}

#endif
