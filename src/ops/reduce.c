/* ----
 * ops/reduce.c: ops along dimensions: reductions, softmax, running sums, counting.
 * ---- */
#ifndef MPT__OPS_REDUCE_INCLUDED
#define MPT__OPS_REDUCE_INCLUDED

#include "ops/matmul.c"

/* ==== Reductions ==== */

/* Dimension index[0], or all when index[2]; index[1]: keep it as size 1. */
static mpt_status mpt__reduce_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt__attributes *a = frame->attributes;
    mpt_shape *out = &frame->out_shape[0];
    unsigned function = frame->row->function;
    out->rank = 0;
    if (x->shape.rank == 0 && (a->index[0] == 0 || a->index[0] == -1)) a->index[2] = 1;
    if (!a->index[2]) {
        int dim = mpt__dimension(frame->context, (int)a->index[0], x->shape.rank);
        if (dim < 0) return mpt__outcome(frame);
        a->index[0] = dim;
    }
    if (!a->index[2] || (function != MPT__FN_MAX && function != MPT__FN_MIN))
        frame->layout = MPT__LAYOUT_KEPT; /* those have flat operands */
    int64_t reduced = 1;
    for (int i = 0; i < x->shape.rank; i++) {
        bool gone = a->index[2] || i == a->index[0];
        if (gone) reduced *= x->shape.dim[i];
        if (!gone || a->index[1]) out->dim[out->rank++] = gone ? 1 : x->shape.dim[i];
    }
    a->index[3] = reduced;
    return MPT_OK;
}

/* An output, or its gradient, with the reduced dimensions back in as size 1, stride 0. */
static mpt__tensor mpt__unreduced_view(const mpt__frame *frame, const mpt__tensor *out) {
    const mpt__tensor *x = frame->in[0];
    const mpt__attributes *a = frame->attributes;
    mpt__tensor view = *out;
    int at = 0;
    view.shape.rank = x->shape.rank;
    for (int i = 0; i < x->shape.rank; i++) {
        bool gone = a->index[2] || i == a->index[0];
        view.shape.dim[i] = gone ? 1 : x->shape.dim[i];
        view.stride[i] = gone ? 0 : out->stride[at];
        if (!gone || a->index[1]) at++;
    }
    return view;
}

static mpt_status mpt__reduce_forward(mpt__frame *frame) {
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    return mpt__launch_reduce(frame->context, frame->row->function, frame->in[0], &out, MPT__WRITE);
}

/* 1 / n, rounded to nearest whatever the program has set. Without volatile, compilers move the
   division out of the part in which that holds. */
static MPT__NOINLINE double mpt__one_of(int64_t n) {
    MPT__PLAIN_FLOATS;
    const volatile int64_t count = n;
    const volatile double part = 1.0 / (double)count;
    return part;
}

/* Every element of x gets dy (mean: dy / n) of its output. */
static mpt_status mpt__reduce_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    bool sum = frame->row->function == MPT__FN_SUM;
    mpt__launch *launch = mpt__launch_begin(frame->context, sum ? MPT__K_COPY : MPT__K_UNARY);
    launch->function = sum ? MPT__FN_NONE : MPT__FN_MUL_SCALAR;
    launch->imm[0] = sum ? 0.0 : mpt__one_of(frame->attributes->index[3]);
    mpt__operand_spread(launch, 0, &dy, frame->dx);
    mpt__operand_of(launch, 1, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}

/* An operand of ARGMAX or its gradient: flat when all dimensions go, which only contiguous tensors
   can be; `reduced`: without the dimension that went. */
static void mpt__operand_chosen(const mpt__frame *frame, mpt__launch *launch, int position,
    const mpt__tensor *tensor, bool reduced, mpt__access access) {
    bool flat = frame->attributes->index[2] != 0;
    mpt_shape all = MPT_SHAPE(mpt__tensor_numel(tensor));
    mpt__tensor view = flat ? mpt__viewed(tensor, &all)
        : reduced           ? mpt__unreduced_view(frame, tensor)
                            : *tensor;
    mpt__operand_of(launch, position, &view, access);
    launch->index[0] = flat ? 0 : frame->attributes->index[0];
}

/* Index and value of the first maximum, each where it is wanted. */
static mpt_status mpt__launch_argmax(
    mpt__frame *frame, const mpt__tensor *index, const mpt__tensor *value) {
    const mpt__tensor *x = frame->in[0];
    if (frame->attributes->index[3] == 0)
        return mpt__error(
            frame->context, SHAPE, "no elements to choose from in shape %S", &x->shape);
    if (frame->attributes->index[2]) x = mpt__contiguous_of(frame, x);
    if (!x) return mpt__outcome(frame);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_ARGMAX);
    launch->function = frame->row->function;
    mpt__operand_chosen(frame, launch, 0, x, false, MPT__READ);
    if (index) mpt__operand_chosen(frame, launch, 1, index, true, MPT__WRITE);
    if (value) mpt__operand_chosen(frame, launch, 2, value, true, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__max_forward(mpt__frame *frame) {
    mpt__tensor *index = NULL;
    if (frame->records) {
        index = mpt__temporary(frame, MPT_I64, &frame->out_shape[0]);
        if (!index) return mpt__outcome(frame);
        mpt__save(frame, index);
    }
    return mpt__launch_argmax(frame, index, frame->out[0]);
}

static mpt_status mpt__max_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SCATTER_AXIS);
    mpt__operand_chosen(frame, launch, 0, frame->saved[0], true, MPT__READ);
    mpt__operand_chosen(frame, launch, 1, frame->dy[0], true, MPT__READ);
    mpt__operand_chosen(frame, launch, 2, frame->dx, false, frame->access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__argmax_shape(mpt__frame *frame) {
    frame->out_dtype[0] = MPT_I64;
    return mpt__reduce_shape(frame);
}

static mpt_status mpt__argmax_forward(mpt__frame *frame) {
    return mpt__launch_argmax(frame, frame->out[0], NULL);
}

/* ---- Those made of several launches: fp32 in between ---- */

/* With the reduced dimensions as size 1. */
static mpt__tensor *mpt__unreduced_new(mpt__frame *frame) {
    const mpt__attributes *a = frame->attributes;
    mpt_shape shape = frame->in[0]->shape;
    for (int i = 0; i < shape.rank; i++)
        if (a->index[2] || i == a->index[0]) shape.dim[i] = 1;
    return mpt__temporary(frame, mpt__loss_dtype(frame), &shape);
}

/* One for each element of the input. */
static mpt__tensor *mpt__elements_new(mpt__frame *frame) {
    return mpt__temporary(frame, mpt__loss_dtype(frame), &frame->in[0]->shape);
}

/* The logarithm of the sum of exp(x), the maximum set apart where it is finite. */
static mpt_status mpt__logsumexp_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    mpt__tensor *most = mpt__unreduced_new(frame), *total = most ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = total ? mpt__elements_new(frame) : NULL;
    if (!each) return ctx->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, total);
    mpt__launch_reduce(ctx, MPT__FN_MAX, x, most, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_FINITE, most, most, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_EXP_DIFFERENCE, x, most, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, each, total, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_LOG, total, total, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_ADD, total, most, total, MPT__WRITE);
    mpt__launch_copy(ctx, total, &out, MPT__WRITE);
    if (!frame->records) return ctx->base.status;
    /* Of nothing but -infinity no element has a share: exp(-infinity - a finite number) is 0. */
    frame->attributes->imm[0] = -mpt__dtype_info[MPT_F32].max_finite;
    frame->attributes->imm[1] = (double)INFINITY;
    return mpt__launch_unary(frame, MPT__FN_CLAMP, total, total, MPT__WRITE);
}

/* dx = dy softmax(x) */
static mpt_status mpt__logsumexp_backward(mpt__frame *frame) {
    mpt__tensor *each = mpt__elements_new(frame);
    if (!each || !mpt__dx_into(frame)) return frame->context->base.status;
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__launch_binary(
        frame->context, MPT__FN_EXP_DIFFERENCE, frame->saved[0], frame->saved[1], each, MPT__WRITE);
    return mpt__launch_binary(frame->context, MPT__FN_MUL, each, &dy, frame->dx, frame->access);
}

/* imm[0], the correction, becomes 1 / (n - correction). */
static mpt_status mpt__var_shape(mpt__frame *frame) {
    MPT__PLAIN_FLOATS;
    mpt_status status = mpt__reduce_shape(frame);
    double rest = (double)frame->attributes->index[3] - frame->attributes->imm[0];
    frame->attributes->imm[0] = rest > 0.0 ? 1.0 / rest : (double)INFINITY;
    return status;
}

/* What becomes of sums of squares, which are formed anew where fp32 does not hold them. */
static void mpt__launch_squares(mpt__frame *frame, const mpt__tensor *x, const mpt__tensor *mean,
    const mpt__tensor *sum, double factor, bool root) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SQUARES);
    launch->imm[0] = factor, launch->index[0] = root;
    mpt__reads(launch, 0, x);
    mpt__operand_of(launch, 1, sum, MPT__READ_WRITE);
    if (mean) mpt__operand_of(launch, 2, mean, MPT__READ_WRITE);
    mpt__submit(frame->context, launch);
}

static mpt_status mpt__var_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    bool root = frame->row->function == MPT__FN_SQRT;
    mpt__tensor *mean = mpt__unreduced_new(frame), *sum = mean ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = sum ? mpt__elements_new(frame) : NULL;
    if (!each) return ctx->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, mean);
    mpt__save(frame, root ? sum : NULL);
    mpt__launch_reduce(ctx, MPT__FN_MEAN, x, mean, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_SQUARED_DIFFERENCE, x, mean, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, each, sum, MPT__WRITE);
    mpt__launch_squares(frame, x, mean, sum, frame->attributes->imm[0], root);
    return mpt__launch_copy(ctx, sum, &out, MPT__WRITE);
}

/* dx = 2 dy (x - mean) / (n - correction); of the root y that / 2 y, or 0 where y is 0. */
static mpt_status mpt__var_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *root = frame->saved[2];
    mpt__tensor *factor = mpt__unreduced_new(frame);
    mpt__tensor *each = factor ? mpt__elements_new(frame) : NULL;
    if (!each || !mpt__dx_into(frame)) return ctx->base.status;
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__launch_binary(
        ctx, root ? MPT__FN_RATIO : MPT__FN_ADD, root ? root : &dy, &dy, factor, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_MUL_SCALAR, factor, factor, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_SUB, frame->saved[0], frame->saved[1], each, MPT__WRITE);
    return mpt__launch_binary(ctx, MPT__FN_MUL, each, factor, frame->dx, frame->access);
}

static mpt_status mpt__norm_shape(mpt__frame *frame) {
    double p = frame->attributes->imm[0];
    mpt_status status = mpt__reduce_shape(frame);
    if (status != MPT_OK || p == 1.0 || p == 2.0) return status;
    if (p != (double)INFINITY)
        return mpt__error(frame->context, ARGUMENT, "p = %g: expected 1, 2 or INFINITY", p);
    if (frame->attributes->index[3] > 0) return MPT_OK;
    return mpt__error(
        frame->context, SHAPE, "no largest element in shape %S", &frame->in[0]->shape);
}

static mpt_status mpt__norm_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    bool square = frame->attributes->imm[0] == 2.0, sum = frame->attributes->imm[0] == 1.0;
    mpt__tensor *y = mpt__unreduced_new(frame), *each = y ? mpt__elements_new(frame) : NULL;
    if (!each) return ctx->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, y);
    if (square)
        mpt__launch_binary(ctx, MPT__FN_MUL, x, x, each, MPT__WRITE);
    else
        mpt__launch_unary(frame, MPT__FN_ABS, x, each, MPT__WRITE);
    mpt__launch_reduce(ctx, square || sum ? MPT__FN_SUM : MPT__FN_MAX, each, y, MPT__WRITE);
    if (square) mpt__launch_squares(frame, x, NULL, y, 1.0, true);
    return mpt__launch_copy(ctx, y, &out, MPT__WRITE);
}

/* dx = dy sign(x); dy x / y; dy sign(x) / k for the k elements that are the largest. */
static mpt_status mpt__norm_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->saved[0], *y = frame->saved[1];
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__tensor *factor = mpt__unreduced_new(frame), *each = NULL;
    if (!factor || !mpt__dx_into(frame)) return ctx->base.status;
    if (frame->attributes->imm[0] == 1.0)
        return mpt__launch_binary(ctx, MPT__FN_ABS_BACKWARD, x, &dy, frame->dx, frame->access);
    if (frame->attributes->imm[0] == 2.0) {
        mpt__launch_binary(ctx, MPT__FN_RATIO, y, &dy, factor, MPT__WRITE);
        return mpt__launch_binary(ctx, MPT__FN_MUL, x, factor, frame->dx, frame->access);
    }
    each = mpt__elements_new(frame);
    if (!each) return ctx->base.status;
    mpt__launch_unary(frame, MPT__FN_ABS, x, each, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_EQUAL, each, y, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, each, factor, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_RATIO, factor, &dy, factor, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_ABS_BACKWARD, x, each, each, MPT__WRITE);
    return mpt__launch_binary(ctx, MPT__FN_MUL, each, factor, frame->dx, frame->access);
}

static mpt_status mpt__prod_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    return mpt__reduce_forward(frame);
}

/* Each element gets the product of the others: of a product with one zero only that zero gets
   anything, of one with more of them none does. */
static mpt_status mpt__prod_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->saved[0];
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__tensor *factor = mpt__unreduced_new(frame);
    mpt__tensor *zeros = factor ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = zeros ? mpt__elements_new(frame) : NULL;
    if (!each || !mpt__dx_into(frame)) return ctx->base.status;
    mpt__launch_unary(frame, MPT__FN_ONE_FOR_ZERO, x, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_PROD, each, factor, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_MUL, factor, &dy, factor, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_NOT, x, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, each, zeros, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_PROD_SHARE, x, zeros, each, MPT__WRITE);
    return mpt__launch_binary(ctx, MPT__FN_KEEP, each, factor, frame->dx, frame->access);
}

#define MPT__DEFINE_REDUCTION(id) \
    mpt_tensor mpt_##id(mpt_tensor x, int dim, bool keep_dim) { \
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

mpt_tensor mpt_var(mpt_tensor x, int dim, bool keep_dim, double correction) {
    return mpt__apply_dim_number("mpt_var", MPT__OP_var, x, dim, keep_dim, correction);
}
mpt_tensor mpt_std(mpt_tensor x, int dim, bool keep_dim, double correction) {
    return mpt__apply_dim_number("mpt_std", MPT__OP_std, x, dim, keep_dim, correction);
}
mpt_tensor mpt_norm(mpt_tensor x, double p, int dim, bool keep_dim) {
    return mpt__apply_dim_number("mpt_norm", MPT__OP_norm, x, dim, keep_dim, p);
}

/* ==== Softmax ==== */

static mpt_status mpt__softmax_shape(mpt__frame *frame) {
    int64_t *dim = &frame->attributes->index[0];
    int rank = frame->in[0]->shape.rank; /* 0: one element, whatever the dimension is called */
    *dim = rank > 0 ? mpt__dimension(frame->context, (int)*dim, rank) : 0;
    return *dim < 0 ? mpt__outcome(frame) : mpt__unary_shape(frame);
}

static mpt_status mpt__softmax_forward(mpt__frame *frame) {
    mpt__save(frame, frame->out[0]);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SOFTMAX);
    launch->function = frame->row->function;
    mpt__operand_along(frame, launch, 0, frame->in[0], MPT__READ);
    mpt__operand_along(frame, launch, 1, frame->out[0], MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__softmax_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SOFTMAX_BACKWARD);
    launch->function = frame->row->function;
    mpt__operand_along(frame, launch, 0, frame->saved[0], MPT__READ);
    mpt__operand_along(frame, launch, 1, frame->dy[0], MPT__READ);
    mpt__operand_along(frame, launch, 2, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}

mpt_tensor mpt_softmax(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_softmax", MPT__OP_softmax, x, dim, false);
}
mpt_tensor mpt_log_softmax(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_log_softmax", MPT__OP_log_softmax, x, dim, false);
}

MPT__BEGIN_COLD
/* ==== Running sums ==== */

static mpt_status mpt__launch_cumsum(mpt__frame *frame, const mpt__tensor *in,
    const mpt__tensor *out, bool reverse, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_CUMSUM);
    launch->index[1] = reverse;
    mpt__operand_along(frame, launch, 0, in, MPT__READ);
    mpt__operand_along(frame, launch, 1, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__cumsum_forward(mpt__frame *frame) {
    return mpt__launch_cumsum(frame, frame->in[0], frame->out[0], false, MPT__WRITE);
}

static mpt_status mpt__cumsum_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_cumsum(frame, frame->dy[0], frame->dx, true, frame->access);
}

mpt_tensor mpt_cumsum(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_cumsum", MPT__OP_cumsum, x, dim, false);
}
MPT__END_REGION

#endif
