/* ---------------------------------------------------------------------------------------------
 * ops/math.c: elementwise ops, matmul, linear, reductions, softmax, dropout.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__OPS_MATH_INCLUDED
#define MPT__OPS_MATH_INCLUDED

#include "ops/op.c"

/* ==== Views outside all tables ==== */

/* A contiguous tensor under another shape. */
static mpt__tensor mpt__viewed(const mpt__tensor *tensor, const mpt_shape *shape) {
    return mpt__view_on(tensor->storage, (mpt_dtype)tensor->dtype, shape, tensor->offset);
}

/* The strides of `tensor` as if it had that shape. */
static MPT__FORCE_INLINE void mpt__broadcast_strides(const mpt__tensor *tensor,
                                                     const mpt_shape *shape, int64_t *stride) {
    int lead = shape->rank - tensor->shape.rank;
    for (int i = 0; i < shape->rank; i++) {
        bool real = i >= lead && tensor->shape.dim[i - lead] == shape->dim[i];
        stride[i] = real ? tensor->stride[i - lead] : 0;
    }
}

/* ==== Views as operands ====
 *
 * An operand written once, where a view of a tensor would be copied twice. */

/* Dimension i of an operand. */
static MPT__INLINE void mpt__operand_dim(mpt__operand *operand, int i, int64_t size,
                                         int64_t stride) {
    operand->shape[i] = size;
    operand->stride[i] = stride;
}

static MPT__NOINLINE void mpt__operand_pad(mpt__operand *operand, const mpt__tensor *tensor,
                                           int rank) {
    int lead = rank - tensor->shape.rank;
    operand->rank = (uint8_t)rank;
    for (int i = 0; i < lead; i++) mpt__operand_dim(operand, i, 1, 1);
    for (int i = lead; i < rank; i++)
        mpt__operand_dim(operand, i, tensor->shape.dim[i - lead], tensor->stride[i - lead]);
}

/* With leading dimensions of size 1 up to `rank`. */
static MPT__FORCE_INLINE void mpt__operand_padded(mpt__launch *launch, int position,
                                                  const mpt__tensor *tensor, int rank,
                                                  mpt__access access) {
    mpt__operand *operand = mpt__operand_of(launch, position, tensor, access);
    if (tensor->shape.rank != rank) mpt__operand_pad(operand, tensor, rank);
}

/* For a kernel that goes along dimension index[0], of rank 1 or more. Where the input is channels
   last, [N, H, W, C]: so do loops go. */
static void mpt__operand_along(mpt__frame *frame, mpt__launch *launch, int position,
                               const mpt__tensor *tensor, mpt__access access) {
    static const uint8_t order[] = {0, 2, 3, 1}, place[] = {0, 3, 1, 2};
    int64_t dim = frame->attributes->index[0];
    int rank = tensor->shape.rank;
    mpt__operand_padded(launch, position, tensor, rank > 0 ? rank : 1, access);
    if (rank == 4 && mpt__channels_last(frame->in[0])) {
        for (int i = 1; i < 4; i++)
            mpt__operand_dim(&launch->operand[position], i, tensor->shape.dim[order[i]],
                             tensor->stride[order[i]]);
        dim = place[dim];
    }
    launch->index[0] = dim;
}

/* Read with the shape of `to`, by strides of 0. */
static void mpt__operand_spread(mpt__launch *launch, int position, const mpt__tensor *tensor,
                                const mpt__tensor *to) {
    mpt__operand *operand =
        mpt__operand_ranked(launch, position, tensor, to->shape.rank, MPT__READ);
    mpt__copy_dims(operand->shape, to->shape.dim, to->shape.rank);
    mpt__broadcast_strides(tensor, &to->shape, operand->stride);
}

/* A tensor of one dimension or more as `rows` times its last one; transposed: the other way. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_matrix(mpt__launch *launch, int position,
                                                           const mpt__tensor *tensor, int64_t rows,
                                                           int64_t stride, bool transposed,
                                                           mpt__access access) {
    mpt__operand *operand = mpt__operand_ranked(launch, position, tensor, 2, access);
    int last = tensor->shape.rank - 1, row = transposed ? 1 : 0;
    mpt__operand_dim(operand, row, rows, stride);
    mpt__operand_dim(operand, 1 - row, tensor->shape.dim[last], tensor->stride[last]);
    return operand;
}

/* [.., n] as [rows, n], of a contiguous tensor (or any 1-d or 2-d one); transposed: [n, rows]. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_rows(mpt__launch *launch, int position,
                                                         const mpt__tensor *tensor, bool transposed,
                                                         mpt__access access) {
    int last = tensor->shape.rank - 1;
    int64_t rows = tensor->shape.dim[0], stride = tensor->stride[0];
    if (last != 1) {
        rows = 1, stride = last > 1 ? tensor->shape.dim[last] : 0;
        for (int i = 0; i < last; i++) rows *= tensor->shape.dim[i];
    }
    return mpt__operand_matrix(launch, position, tensor, rows, stride, transposed, access);
}

/* The tensor itself, or a contiguous copy that lives until the end of the call. */
static const mpt__tensor *mpt__contiguous_of(mpt__frame *frame, const mpt__tensor *tensor) {
    if (mpt__tensor_contiguous(tensor)) return tensor;
    mpt__tensor *copy = mpt__temporary(frame, (mpt_dtype)tensor->dtype, &tensor->shape);
    if (!copy) return NULL;
    return mpt__launch_copy(frame->context, tensor, copy, MPT__WRITE) == MPT_OK ? copy : NULL;
}

/* ==== Elementwise, one input ==== */

static mpt_status mpt__unary_shape(mpt__frame *frame) {
    frame->layout = MPT__LAYOUT_KEPT;
    mpt__shape_copy(&frame->out_shape[0], &frame->in[0]->shape);
    return MPT_OK;
}

static mpt_status mpt__predicate_shape(mpt__frame *frame) {
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__unary_shape(frame);
}

/* out = fn(in), `in` broadcast to the shape of `out`. */
static mpt_status mpt__launch_unary(mpt__frame *frame, mpt__function function,
                                    const mpt__tensor *in, const mpt__tensor *out,
                                    mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_UNARY);
    launch->function = (uint8_t)function;
    launch->slot[0] = (uint16_t)frame->attributes->index[0];
    for (int i = 0; i < 2; i++) launch->imm[i] = frame->attributes->imm[i];
    mpt__operand_spread(launch, 0, in, out);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__unary_forward(mpt__frame *frame) {
    return mpt__launch_unary(frame, frame->row->function, frame->in[0], frame->out[0], MPT__WRITE);
}

/* Notes on the device whether the loss was finite: then a later overflow lies in backward. */
static mpt_status mpt__scale_loss_forward(mpt__frame *frame) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SCALE_LOSS);
    launch->function = MPT__FN_MUL_SLOT;
    for (int i = 0; i < 3; i++) launch->slot[i] = (uint16_t)frame->attributes->index[i];
    mpt__operand_of(launch, 0, frame->in[0], MPT__READ);
    mpt__operand_of(launch, 1, frame->out[0], MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__unary_keep_in_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    return mpt__unary_forward(frame);
}

static mpt_status mpt__unary_keep_out_forward(mpt__frame *frame) {
    mpt__save(frame, frame->out[0]);
    return mpt__unary_forward(frame);
}

/* out = fn(a, b), both broadcast to the shape of `out`. */
static mpt_status mpt__launch_binary(mpt_context *context, mpt__function function,
                                     const mpt__tensor *a, const mpt__tensor *b,
                                     const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_BINARY);
    launch->function = (uint8_t)function;
    mpt__operand_spread(launch, 0, a, out);
    mpt__operand_spread(launch, 1, b, out);
    mpt__operand_of(launch, 2, out, access);
    return mpt__submit(context, launch);
}

/* dx = f(saved, dy); only log divides dy by what it saved, so its operands change places. */
static mpt_status mpt__unary_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    mpt__function function = frame->row->backward_function;
    bool swapped = function == MPT__FN_DIV;
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_BINARY);
    launch->function = (uint8_t)function;
    for (int i = 0; i < 2; i++) launch->imm[i] = frame->attributes->imm[i];
    mpt__operand_spread(launch, swapped ? 1 : 0, frame->saved[0], frame->dx);
    mpt__operand_spread(launch, swapped ? 0 : 1, frame->dy[0], frame->dx);
    mpt__operand_of(launch, 2, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}

/* dx = f(dy) for functions that are linear. */
static mpt_status mpt__linear_unary_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_unary(frame, frame->row->backward_function, frame->dy[0], frame->dx,
                             frame->access);
}

/* Where backward begins here, the gradient is the scale itself, which forward left as an fp32. */
static mpt_status mpt__scale_loss_backward(mpt__frame *frame) {
    mpt__tensor scale;
    const mpt__tensor *dy = frame->dy[0];
    if (dy->storage != frame->context->scalar_storage || dy->offset != 2 * MPT__SLOT_ONE_F32)
        return mpt__linear_unary_backward(frame);
    scale.storage = dy->storage;
    scale.dtype = dy->dtype;
    scale.offset = 2 * frame->attributes->index[2];
    mpt__shape_copy(&scale.shape, &dy->shape);
    mpt__copy_dims(scale.stride, dy->stride, dy->shape.rank);
    return mpt__gradient_pass(frame, 0, &scale);
}

static mpt_status mpt__pass_backward(mpt__frame *frame) {
    return mpt__gradient_pass(frame, 0, frame->dy[0]);
}

/* ==== Elementwise, two inputs ==== */

/* Broadcasts the first `na` dimensions of a against the first `nb` of b; -1, or the dimension of
   the result in which they do not fit. */
static int mpt__broadcast_dims(const mpt__tensor *a, int na, const mpt__tensor *b, int nb,
                               mpt_shape *out) {
    out->rank = na > nb ? na : nb;
    for (int i = 0; i < out->rank; i++) {
        int ia = i - (out->rank - na), ib = i - (out->rank - nb);
        int64_t sa = ia < 0 ? 1 : a->shape.dim[ia], sb = ib < 0 ? 1 : b->shape.dim[ib];
        if (sa != sb && sa != 1 && sb != 1) return i;
        out->dim[i] = sa == 1 ? sb : sa;
    }
    return -1;
}

static mpt_status mpt__binary_shape(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    frame->layout = MPT__LAYOUT_KEPT;
    int misfit = mpt__broadcast_dims(a, a->shape.rank, b, b->shape.rank, &frame->out_shape[0]);
    if (misfit < 0) return MPT_OK;
    int back = frame->out_shape[0].rank - misfit;
    return mpt__error(frame->context, MPT_ERROR_SHAPE,
                      "shapes %S and %S do not broadcast: dimension %d is %lld against %lld",
                      &a->shape, &b->shape, misfit, a->shape.dim[a->shape.rank - back],
                      b->shape.dim[b->shape.rank - back]);
}

static mpt_status mpt__equal_shape(mpt__frame *frame) {
    if (mpt__dtypes_meet(frame, 0, 1) != MPT_OK) return frame->context->base.status;
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__binary_shape(frame);
}

static mpt_status mpt__logical_shape(mpt__frame *frame) {
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__binary_shape(frame);
}

static mpt_status mpt__binary_forward(mpt__frame *frame) {
    if (frame->op == MPT__OP_mul) { /* each for the gradient of the other */
        mpt__save(frame, mpt__wants(frame, 1) ? frame->in[0] : NULL);
        mpt__save(frame, mpt__wants(frame, 0) ? frame->in[1] : NULL);
    } else if (frame->op == MPT__OP_div) {
        mpt__save(frame, NULL);
        mpt__save(frame, frame->in[1]);
        mpt__save(frame, mpt__wants(frame, 1) ? frame->out[0] : NULL);
    }
    return mpt__launch_binary(frame->context, frame->row->function, frame->in[0], frame->in[1],
                              frame->out[0], MPT__WRITE);
}

/* Sums `full` over the dimensions in which `part` was broadcast. */
static mpt_status mpt__launch_reduce(mpt_context *context, mpt__function function,
                                     const mpt__tensor *full, const mpt__tensor *part,
                                     mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_REDUCE);
    launch->function = (uint8_t)function;
    mpt__operand_of(launch, 0, full, MPT__READ);
    mpt__operand_padded(launch, 1, part, full->shape.rank, access);
    return mpt__submit(context, launch);
}

/* Gradient i is fn(a, b) in the output's shape, summed to the input's. b NULL: a alone, through a
   function of one input. */
static mpt_status mpt__broadcast_gradient(mpt__frame *frame, int i, mpt__function function,
                                          const mpt__tensor *a, const mpt__tensor *b) {
    mpt_context *context = frame->context;
    if (!mpt__wants(frame, i)) return MPT_OK;
    const mpt__tensor *dy = frame->dy[0];
    bool whole = mpt__same_shape(frame->in[i], dy);
    if (function == MPT__FN_NONE && whole) return mpt__gradient_pass(frame, i, a);
    mpt__access access;
    mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    if (!target) return context->base.status;
    if (function == MPT__FN_NONE)
        return mpt__launch_reduce(context, MPT__FN_SUM, a, target, access);
    const mpt__tensor *product = target;
    if (!whole) {
        product = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
        if (!product) return context->base.status;
    }
    mpt__access first = whole ? access : MPT__WRITE;
    mpt_status status = b ? mpt__launch_binary(context, function, a, b, product, first)
                          : mpt__launch_unary(frame, function, a, product, first);
    if (status != MPT_OK || whole) return status;
    return mpt__launch_reduce(context, MPT__FN_SUM, product, target, access);
}

/* Of a sum, or of a difference, whose second gradient is negative. */
static mpt_status mpt__add_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_NONE, dy, NULL);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, frame->row->backward_function, dy, NULL);
}

static mpt_status mpt__mul_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_MUL, dy, frame->saved[1]);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, MPT__FN_MUL, dy, frame->saved[0]);
}

/* y = a / b: da = dy / b, db = -(dy / b) y */
static mpt_status mpt__div_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *dy = frame->dy[0], *b = frame->saved[1];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_DIV, dy, b);
    if (status != MPT_OK || !mpt__wants(frame, 1)) return status;
    mpt__tensor *quotient = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
    if (!quotient) return context->base.status;
    status = mpt__launch_binary(context, MPT__FN_DIV, dy, b, quotient, MPT__WRITE);
    if (status == MPT_OK)
        status = mpt__launch_unary(frame, MPT__FN_NEG, quotient, quotient, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, MPT__FN_MUL, quotient, frame->saved[2]);
}

/* Gradient i is dy times slope(a, b). */
static mpt_status mpt__sloped_gradient(mpt__frame *frame, int i, mpt__function slope,
                                       const mpt__tensor *a, const mpt__tensor *b) {
    if (!mpt__wants(frame, i)) return MPT_OK;
    const mpt__tensor *dy = frame->dy[0];
    mpt__tensor *factor = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
    if (!factor) return frame->context->base.status;
    mpt_status status = mpt__launch_binary(frame->context, slope, a, b, factor, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, i, MPT__FN_KEEP, factor, dy);
}

static mpt_status mpt__binary_keep_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    return mpt__binary_forward(frame);
}

/* Where both are equal, each gets half. */
static mpt_status mpt__extremum_backward(mpt__frame *frame) {
    const mpt__tensor *a = frame->saved[0], *b = frame->saved[1];
    bool least = frame->row->function == MPT__FN_MINIMUM;
    mpt_status status = mpt__sloped_gradient(frame, 0, MPT__FN_SHARE, least ? b : a, least ? a : b);
    if (status != MPT_OK) return status;
    return mpt__sloped_gradient(frame, 1, MPT__FN_SHARE, least ? a : b, least ? b : a);
}

static mpt_status mpt__pow_backward(mpt__frame *frame) {
    const mpt__tensor *a = frame->saved[0], *b = frame->saved[1];
    mpt_status status = mpt__sloped_gradient(frame, 0, MPT__FN_POW_SLOPE, a, b);
    if (status != MPT_OK) return status;
    return mpt__sloped_gradient(frame, 1, MPT__FN_POW_EXPONENT, a, b);
}

/* Squares are what powers are taken for most. */
static mpt_status mpt__pow_scalar_forward(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    if (frame->attributes->imm[0] != 2.0) return mpt__unary_keep_in_forward(frame);
    mpt__save(frame, frame->in[0]);
    return mpt__launch_binary(frame->context, MPT__FN_MUL, x, x, frame->out[0], MPT__WRITE);
}

/* ==== Choice ==== */

/* A condition, and two tensors that share a dtype or meet in fp32. */
static mpt_status mpt__where_shape(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *condition = frame->in[0], *a = frame->in[1], *b = frame->in[2];
    if (condition->dtype != MPT_BOOL)
        return mpt__error(context, MPT_ERROR_DTYPE,
                          "argument 1 is %s: expected bool, as comparisons give it",
                          mpt_dtype_name((mpt_dtype)condition->dtype));
    for (int i = 1; i < 3; i++)
        if (mpt__input_computes(frame, i) != MPT_OK) return context->base.status;
    frame->layout = MPT__LAYOUT_KEPT;
    frame->out_dtype[0] = a->dtype == b->dtype ? (mpt_dtype)a->dtype : MPT_F32;
    if (mpt__dtypes_meet(frame, 1, 2) != MPT_OK) return context->base.status;
    mpt__tensor choice = *a;
    int misfit = mpt__broadcast_dims(a, a->shape.rank, b, b->shape.rank, &choice.shape);
    if (misfit < 0)
        misfit = mpt__broadcast_dims(condition, condition->shape.rank, &choice, choice.shape.rank,
                                     &frame->out_shape[0]);
    if (misfit < 0) return MPT_OK;
    return mpt__error(context, MPT_ERROR_SHAPE, "shapes %S, %S and %S do not broadcast",
                      &condition->shape, &a->shape, &b->shape);
}

/* What one of the two leaves out is -0, to which the other adds without a trace. */
static mpt_status mpt__where_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    mpt_status status = mpt__launch_binary(frame->context, MPT__FN_KEEP, frame->in[0], frame->in[1],
                                           frame->out[0], MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__launch_binary(frame->context, MPT__FN_DROP, frame->in[0], frame->in[2],
                              frame->out[0], MPT__ACCUMULATE);
}

static mpt_status mpt__where_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0], *condition = frame->saved[0];
    mpt_status status = mpt__broadcast_gradient(frame, 1, MPT__FN_KEEP, condition, dy);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 2, MPT__FN_DROP, condition, dy);
}

/* ==== Matrix products ==== */

static mpt_status mpt__matmul_mismatch(mpt__frame *frame, const char *why) {
    return mpt__error(frame->context, MPT_ERROR_SHAPE, "%S x %S: %s", &frame->in[0]->shape,
                      &frame->in[1]->shape, why);
}

/* A 1-d a is a row, a 1-d b a column; the output drops the dimension that was not there. */
static mpt_status mpt__matmul_shape(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    mpt_shape *out = &frame->out_shape[0];
    if (a->shape.rank == 0 || b->shape.rank == 0)
        return mpt__matmul_mismatch(frame,
                                    "both need at least one dimension; mpt_mul multiplies scalars");
    if (a->shape.dim[a->shape.rank - 1] != b->shape.dim[b->shape.rank > 1 ? b->shape.rank - 2 : 0])
        return mpt__matmul_mismatch(frame,
                                    "the last dimension of the first must equal the last but one "
                                    "of the second; mpt_transpose one of them");
    if (mpt__broadcast_dims(a, a->shape.rank > 1 ? a->shape.rank - 2 : 0, b,
                            b->shape.rank > 1 ? b->shape.rank - 2 : 0, out) >= 0)
        return mpt__matmul_mismatch(frame, "leading dimensions do not broadcast");
    if (a->shape.rank > 1) out->dim[out->rank++] = a->shape.dim[a->shape.rank - 2];
    if (b->shape.rank > 1) out->dim[out->rank++] = b->shape.dim[b->shape.rank - 1];
    return MPT_OK;
}

/* A tensor as [batch.., rows, columns] of a matmul; row, column: whether it has that dimension.
   `batches` leading dimensions of sizes `batch`, by strides of 0; NULL: its own sizes or 1. */
static void mpt__matrix(mpt__tensor *view, const mpt__tensor *tensor, bool row, bool column,
                        int batches, const int64_t *batch) {
    view->storage = tensor->storage;
    view->dtype = tensor->dtype;
    view->shape.rank = (uint8_t)(batches + 2);
    view->offset = tensor->offset;
    int from = tensor->shape.rank - 1;
    for (int to = batches + 1; to >= 0; to--) {
        bool there = to > batches ? column : to == batches ? row : from >= 0;
        view->shape.dim[to] = there ? tensor->shape.dim[from] : 1;
        view->stride[to] = there ? tensor->stride[from] : 0;
        if (there) from--;
        if (to >= batches || !batch) continue;
        if (view->shape.dim[to] != batch[to]) view->stride[to] = 0;
        view->shape.dim[to] = batch[to];
    }
}

/* The last two dimensions swapped. */
static mpt__tensor mpt__transposed_view(const mpt__tensor *tensor) {
    int a = tensor->shape.rank - 2, b = tensor->shape.rank - 1;
    mpt__tensor view = *tensor;
    view.shape.dim[a] = tensor->shape.dim[b], view.shape.dim[b] = tensor->shape.dim[a];
    view.stride[a] = tensor->stride[b], view.stride[b] = tensor->stride[a];
    return view;
}

static MPT__NOINLINE mpt__launch *mpt__gemm_launch(mpt__frame *frame) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_GEMM);
    launch->imm[0] = 1.0;
    launch->index[0] = frame->context->tf32;
    launch->compute_dtype = (uint8_t)frame->compute;
    return launch;
}

/* A launch of a product; its operands are to be set, and the compiler sees that it has none yet. */
static MPT__FORCE_INLINE mpt__launch *mpt__gemm_begin(mpt__frame *frame) {
    mpt__launch *launch = mpt__gemm_launch(frame);
    launch->n_operands = 0;
    return launch;
}

/* out = a b, views of equal rank >= 2. */
static mpt_status mpt__launch_gemm(mpt__frame *frame, const mpt__tensor *a, const mpt__tensor *b,
                                   const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__operand_of(launch, 0, a, MPT__READ);
    mpt__operand_of(launch, 1, b, MPT__READ);
    mpt__operand_of(launch, 3, out, access);
    return mpt__submit(frame->context, launch);
}

/* The three matrices of a call: a, b, and `y`, its output or the gradient of that. Parameters are
   read in their cast form. */
static bool mpt__matmul_views(mpt__frame *frame, mpt__tensor *const in[2], const mpt__tensor *y,
                              mpt__tensor view[3]) {
    bool row = frame->in[0]->shape.rank > 1, column = frame->in[1]->shape.rank > 1;
    int batches = y->shape.rank - row - column;
    mpt__matrix(&view[2], y, row, column, batches, NULL);
    for (int i = 0; i < 2; i++) {
        mpt__source source;
        if (!mpt__gemm_source(frame->context, in[i], frame->compute, &source)) return false;
        mpt__matrix(&view[i], in[i], i == 1 || row, i == 0 || column, batches, view[2].shape.dim);
        view[i].storage = source.storage;
        view[i].dtype = source.dtype;
    }
    return true;
}

static mpt_status mpt__matmul_forward(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    mpt__tensor view[3];
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    if (a->shape.rank == 2 && b->shape.rank == 2 && !a->parameter && !b->parameter)
        return mpt__launch_gemm(frame, a, b, frame->out[0], MPT__WRITE);
    if (!mpt__matmul_views(frame, frame->in, frame->out[0], view))
        return frame->context->base.status;
    return mpt__launch_gemm(frame, &view[0], &view[1], &view[2], MPT__WRITE);
}

/* Gradient i = left right (batched), summed over the batches in which the input was broadcast. */
static mpt_status mpt__matmul_gradient(mpt__frame *frame, int i, const mpt__tensor *left,
                                       const mpt__tensor *right) {
    mpt__access access;
    mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    if (!target) return frame->context->base.status;
    int batches = left->shape.rank - 2;
    bool vector = target->shape.rank == 1, summed = false;
    mpt__tensor matrix;
    mpt__matrix(&matrix, target, i == 1 || !vector, i == 0 || !vector, batches, NULL);
    for (int d = 0; d < batches; d++) summed |= matrix.shape.dim[d] != left->shape.dim[d];
    if (!summed) return mpt__launch_gemm(frame, left, right, &matrix, access);
    mpt_shape full = left->shape;
    full.dim[batches + 1] = right->shape.dim[batches + 1];
    mpt__tensor *product = mpt__temporary(frame, mpt__loss_dtype(frame), &full);
    if (!product) return frame->context->base.status;
    mpt_status status = mpt__launch_gemm(frame, left, right, product, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__launch_reduce(frame->context, MPT__FN_SUM, product, &matrix, access);
}

static mpt_status mpt__matmul_backward(mpt__frame *frame) {
    mpt__tensor view[3], transposed;
    mpt_status status = MPT_OK;
    if (!mpt__matmul_views(frame, frame->saved, frame->dy[0], view))
        return frame->context->base.status;
    if (mpt__wants(frame, 0)) {
        transposed = mpt__transposed_view(&view[1]);
        status = mpt__matmul_gradient(frame, 0, &view[2], &transposed);
    }
    if (status != MPT_OK || !mpt__wants(frame, 1)) return status;
    transposed = mpt__transposed_view(&view[0]);
    return mpt__matmul_gradient(frame, 1, &transposed, &view[2]);
}

/* ==== Linear ==== */

static mpt_status mpt__linear_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0], *w = frame->in[1], *bias = frame->in[2];
    if (w->shape.rank != 2 || x->shape.rank < 1 ||
        x->shape.dim[x->shape.rank - 1] != w->shape.dim[1])
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "input %S does not fit weight %S: expected [.., in] and [out, in]",
                          &x->shape, &w->shape);
    if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != w->shape.dim[0]))
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "bias %S does not fit weight %S: expected [%lld]", &bias->shape,
                          &w->shape, w->shape.dim[0]);
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    frame->out_shape[0].dim[x->shape.rank - 1] = w->shape.dim[0];
    return MPT_OK;
}

/* The weight as operand 1, in the form that mpt__gemm_source chose. */
static MPT__FORCE_INLINE void mpt__linear_weight(mpt__launch *launch, const mpt__tensor *weight,
                                                 const mpt__source *source, bool transposed) {
    mpt__operand *operand = mpt__operand_matrix(launch, 1, weight, weight->shape.dim[0],
                                                weight->stride[0], transposed, MPT__READ);
    operand->storage = source->storage;
    operand->dtype = source->dtype;
}

static const mpt__tensor *mpt__rows_source(mpt__frame *frame, const mpt__tensor *tensor) {
    return tensor->shape.rank <= 2 ? tensor : mpt__contiguous_of(frame, tensor);
}

static mpt__function mpt__activation_function(mpt_activation activation, bool backward) {
    static const uint8_t functions[][2] = {
        {MPT__FN_NONE, MPT__FN_NONE},          {MPT__FN_RELU, MPT__FN_RELU_BACKWARD},
        {MPT__FN_GELU, MPT__FN_GELU_BACKWARD}, {MPT__FN_GELU_TANH, MPT__FN_GELU_TANH_BACKWARD},
        {MPT__FN_TANH, MPT__FN_TANH_BACKWARD}, {MPT__FN_SIGMOID, MPT__FN_SIGMOID_BACKWARD},
    };
    return (mpt__function)functions[activation][backward];
}

/* GELU's derivative needs its input, so training keeps it instead of fusing. */
static bool mpt__activation_keeps_input(mpt_activation activation) {
    return activation == MPT_ACTIVATION_GELU || activation == MPT_ACTIVATION_GELU_TANH;
}

static mpt_status mpt__linear_forward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    mpt_activation activation = (mpt_activation)frame->attributes->activation;
    const mpt__tensor *x = mpt__rows_source(frame, frame->in[0]), *bias = frame->in[2];
    mpt__source w;
    if (!x || !mpt__gemm_source(context, frame->in[1], frame->compute, &w))
        return context->base.status;
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    bool split = frame->records && mpt__activation_keeps_input(activation);
    mpt__tensor *before = frame->out[0];
    if (split) {
        before = mpt__temporary(frame, frame->out_dtype[0], &frame->out_shape[0]);
        if (!before) return context->base.status;
        mpt__save(frame, before);
    } else if (activation != MPT_ACTIVATION_NONE) {
        mpt__save(frame, frame->out[0]);
    }
    mpt__launch *launch = mpt__gemm_begin(frame);
    launch->activation = (uint8_t)(split ? MPT_ACTIVATION_NONE : activation);
    mpt__operand *rows = mpt__operand_rows(launch, 0, x, false, MPT__READ);
    mpt__linear_weight(launch, frame->in[1], &w, true);
    if (bias) mpt__operand_matrix(launch, 2, bias, rows->shape[0], 0, false, MPT__READ);
    mpt__operand_rows(launch, 3, before, false, MPT__WRITE);
    mpt_status status = mpt__submit(context, launch);
    if (status != MPT_OK || !split) return status;
    return mpt__launch_unary(frame, mpt__activation_function(activation, false), before,
                             frame->out[0], MPT__WRITE);
}

/* dy times the derivative of the activation; in place where nobody else reads dy. */
static const mpt__tensor *mpt__linear_inner(mpt__frame *frame, const mpt__tensor *dy) {
    mpt_activation activation = (mpt_activation)frame->attributes->activation;
    if (!dy || activation == MPT_ACTIVATION_NONE) return dy;
    const mpt__tensor *inner = dy;
    if (!mpt__owned(frame->context, dy)) {
        inner = mpt__temporary(frame, (mpt_dtype)dy->dtype, &dy->shape);
        if (!inner) return NULL;
    }
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_BINARY);
    launch->function = (uint8_t)mpt__activation_function(activation, true);
    mpt__operand_inline(launch, 0, frame->saved[2], MPT__READ);
    mpt__operand_inline(launch, 1, dy, MPT__READ);
    mpt__operand_inline(launch, 2, inner, MPT__WRITE);
    return mpt__submit(frame->context, launch) == MPT_OK ? inner : NULL;
}

static mpt_status mpt__linear_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *dy = mpt__linear_inner(frame, mpt__rows_source(frame, frame->dy[0]));
    if (!dy) return context->base.status;
    mpt__access access;
    mpt__launch *launch;
    const mpt__tensor *dx = mpt__gradient_into(frame, 0, &access);
    if (dx) {
        mpt__source w;
        if (!mpt__gemm_source(context, frame->saved[1], frame->compute, &w))
            return context->base.status;
        launch = mpt__gemm_begin(frame);
        mpt__operand_rows(launch, 0, dy, false, MPT__READ);
        mpt__linear_weight(launch, frame->saved[1], &w, false);
        mpt__operand_rows(launch, 3, dx, false, access);
        mpt__submit(context, launch);
    }
    const mpt__tensor *dw = mpt__gradient_into(frame, 1, &access);
    if (dw) {
        const mpt__tensor *x = mpt__rows_source(frame, frame->saved[0]);
        if (!x) return context->base.status;
        launch = mpt__gemm_begin(frame);
        mpt__operand_rows(launch, 0, dy, true, MPT__READ);
        mpt__operand_rows(launch, 1, x, false, MPT__READ);
        mpt__operand_matrix(launch, 3, dw, dw->shape.dim[0], dw->stride[0], false, access);
        mpt__submit(context, launch);
    }
    const mpt__tensor *db = mpt__gradient_into(frame, 2, &access);
    if (db) {
        launch = mpt__launch_begin(context, MPT__K_REDUCE);
        launch->function = MPT__FN_SUM;
        const mpt__operand *rows = mpt__operand_rows(launch, 0, dy, false, MPT__READ);
        mpt__operand_matrix(launch, 1, db, 1, 0, false, access);
        if (rows->shape[0] == 1) launch->kernel = MPT__K_COPY; /* nothing to sum */
        mpt__submit(context, launch);
    }
    return context->base.status;
}

/* ==== Reductions ==== */

/* Dimension index[0], or all when index[2]; index[1]: keep it as size 1. */
static mpt_status mpt__reduce_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt__attributes *a = frame->attributes;
    mpt_shape *out = &frame->out_shape[0];
    const mpt__function function = frame->row->function;
    out->rank = 0;
    if (x->shape.rank == 0 && (a->index[0] == 0 || a->index[0] == -1)) a->index[2] = 1;
    if (!a->index[2]) {
        int dim = mpt__dimension(frame->context, (int)a->index[0], x->shape.rank);
        if (dim < 0) return frame->context->base.status;
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

/* Strings of an output, or its gradient, with the reduced dimensions back in as size 1, stride
   0. */
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

/* 1 / n, rounded to nearest whatever the program has set. Compilers take arithmetic out of the part
   in which it is so, unless they have to read and to write just there. */
static MPT__NOINLINE double mpt__one_of(int64_t n) {
    MPT__PLAIN_FLOATS;
    const volatile int64_t count = n;
    const volatile double part = 1.0 / (double)count;
    return part;
}

/* Every element of x gets dy (mean: dy / n) of its output. */
static mpt_status mpt__reduce_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
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
    mpt__tensor view = flat      ? mpt__viewed(tensor, &all)
                       : reduced ? mpt__unreduced_view(frame, tensor)
                                 : *tensor;
    mpt__operand_of(launch, position, &view, access);
    launch->index[0] = flat ? 0 : frame->attributes->index[0];
}

/* Index and value of the first maximum, each where it is wanted. */
static mpt_status mpt__launch_argmax(mpt__frame *frame, const mpt__tensor *index,
                                     const mpt__tensor *value) {
    const mpt__tensor *x = frame->in[0];
    if (frame->attributes->index[3] == 0)
        return mpt__error(frame->context, MPT_ERROR_SHAPE, "no elements to choose from in shape %S",
                          &x->shape);
    if (frame->attributes->index[2]) x = mpt__contiguous_of(frame, x);
    if (!x) return frame->context->base.status;
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_ARGMAX);
    launch->function = (uint8_t)frame->row->function;
    mpt__operand_chosen(frame, launch, 0, x, false, MPT__READ);
    if (index) mpt__operand_chosen(frame, launch, 1, index, true, MPT__WRITE);
    if (value) mpt__operand_chosen(frame, launch, 2, value, true, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__max_forward(mpt__frame *frame) {
    mpt__tensor *index = NULL;
    if (frame->records) {
        index = mpt__temporary(frame, MPT_I64, &frame->out_shape[0]);
        if (!index) return frame->context->base.status;
        mpt__save(frame, index);
    }
    return mpt__launch_argmax(frame, index, frame->out[0]);
}

static mpt_status mpt__max_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
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
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0];
    mpt__tensor *most = mpt__unreduced_new(frame), *total = most ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = total ? mpt__elements_new(frame) : NULL;
    if (!each) return context->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, total);
    mpt__launch_reduce(context, MPT__FN_MAX, x, most, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_FINITE, most, most, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_EXP_DIFFERENCE, x, most, each, MPT__WRITE);
    mpt__launch_reduce(context, MPT__FN_SUM, each, total, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_LOG, total, total, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_ADD, total, most, total, MPT__WRITE);
    return mpt__launch_copy(context, total, &out, MPT__WRITE);
}

/* dx = dy softmax(x) */
static mpt_status mpt__logsumexp_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    mpt__tensor *each = mpt__elements_new(frame);
    if (!each || !mpt__dx_into(frame)) return context->base.status;
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__launch_binary(context, MPT__FN_EXP_DIFFERENCE, frame->saved[0], frame->saved[1], each,
                       MPT__WRITE);
    return mpt__launch_binary(context, MPT__FN_MUL, each, &dy, frame->dx, frame->access);
}

/* imm[0], the correction, becomes 1 / (n - correction). */
static mpt_status mpt__var_shape(mpt__frame *frame) {
    MPT__PLAIN_FLOATS;
    mpt_status status = mpt__reduce_shape(frame);
    double rest = (double)frame->attributes->index[3] - frame->attributes->imm[0];
    frame->attributes->imm[0] = rest > 0.0 ? 1.0 / rest : (double)INFINITY;
    return status;
}

static mpt_status mpt__var_forward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0];
    bool root = frame->row->function == MPT__FN_SQRT;
    mpt__tensor *mean = mpt__unreduced_new(frame), *sum = mean ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = sum ? mpt__elements_new(frame) : NULL;
    if (!each) return context->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, mean);
    mpt__save(frame, root ? sum : NULL);
    mpt__launch_reduce(context, MPT__FN_MEAN, x, mean, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_SQUARED_DIFFERENCE, x, mean, each, MPT__WRITE);
    mpt__launch_reduce(context, MPT__FN_SUM, each, sum, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_MUL_SCALAR, sum, sum, MPT__WRITE);
    if (root) mpt__launch_unary(frame, MPT__FN_SQRT, sum, sum, MPT__WRITE);
    return mpt__launch_copy(context, sum, &out, MPT__WRITE);
}

/* dx = 2 dy (x - mean) / (n - correction), or of the root y that / 2 y, 0 where y is. */
static mpt_status mpt__var_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *root = frame->saved[2];
    mpt__tensor *factor = mpt__unreduced_new(frame);
    mpt__tensor *each = factor ? mpt__elements_new(frame) : NULL;
    if (!each || !mpt__dx_into(frame)) return context->base.status;
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__launch_binary(context, root ? MPT__FN_RATIO : MPT__FN_ADD, root ? root : &dy, &dy, factor,
                       MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_MUL_SCALAR, factor, factor, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_SUB, frame->saved[0], frame->saved[1], each, MPT__WRITE);
    return mpt__launch_binary(context, MPT__FN_MUL, each, factor, frame->dx, frame->access);
}

static mpt_status mpt__norm_shape(mpt__frame *frame) {
    double p = frame->attributes->imm[0];
    mpt_status status = mpt__reduce_shape(frame);
    if (status != MPT_OK || p == 1.0 || p == 2.0) return status;
    if (p != (double)INFINITY)
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT, "p = %g: expected 1, 2 or INFINITY",
                          p);
    if (frame->attributes->index[3] > 0) return MPT_OK;
    return mpt__error(frame->context, MPT_ERROR_SHAPE, "no largest element in shape %S",
                      &frame->in[0]->shape);
}

static mpt_status mpt__norm_forward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0];
    bool square = frame->attributes->imm[0] == 2.0, sum = frame->attributes->imm[0] == 1.0;
    mpt__tensor *y = mpt__unreduced_new(frame), *each = y ? mpt__elements_new(frame) : NULL;
    if (!each) return context->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, y);
    if (square)
        mpt__launch_binary(context, MPT__FN_MUL, x, x, each, MPT__WRITE);
    else
        mpt__launch_unary(frame, MPT__FN_ABS, x, each, MPT__WRITE);
    mpt__launch_reduce(context, square || sum ? MPT__FN_SUM : MPT__FN_MAX, each, y, MPT__WRITE);
    if (square) mpt__launch_unary(frame, MPT__FN_SQRT, y, y, MPT__WRITE);
    return mpt__launch_copy(context, y, &out, MPT__WRITE);
}

/* dx = dy sign(x); dy x / y; dy sign(x) / k for the k elements that are the largest. */
static mpt_status mpt__norm_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->saved[0], *y = frame->saved[1];
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__tensor *factor = mpt__unreduced_new(frame), *each = NULL;
    if (!factor || !mpt__dx_into(frame)) return context->base.status;
    if (frame->attributes->imm[0] == 1.0)
        return mpt__launch_binary(context, MPT__FN_ABS_BACKWARD, x, &dy, frame->dx, frame->access);
    if (frame->attributes->imm[0] == 2.0) {
        mpt__launch_binary(context, MPT__FN_RATIO, y, &dy, factor, MPT__WRITE);
        return mpt__launch_binary(context, MPT__FN_MUL, x, factor, frame->dx, frame->access);
    }
    each = mpt__elements_new(frame);
    if (!each) return context->base.status;
    mpt__launch_unary(frame, MPT__FN_ABS, x, each, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_EQUAL, each, y, each, MPT__WRITE);
    mpt__launch_reduce(context, MPT__FN_SUM, each, factor, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_RATIO, factor, &dy, factor, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_ABS_BACKWARD, x, each, each, MPT__WRITE);
    return mpt__launch_binary(context, MPT__FN_MUL, each, factor, frame->dx, frame->access);
}

static mpt_status mpt__prod_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    return mpt__reduce_forward(frame);
}

/* Each element gets the product of the others: of a product with one zero only that zero gets
   anything, of one with more of them none does. */
static mpt_status mpt__prod_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->saved[0];
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__tensor *factor = mpt__unreduced_new(frame);
    mpt__tensor *zeros = factor ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *each = zeros ? mpt__elements_new(frame) : NULL;
    if (!each || !mpt__dx_into(frame)) return context->base.status;
    mpt__launch_unary(frame, MPT__FN_ONE_FOR_ZERO, x, each, MPT__WRITE);
    mpt__launch_reduce(context, MPT__FN_PROD, each, factor, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_MUL, factor, &dy, factor, MPT__WRITE);
    mpt__launch_unary(frame, MPT__FN_NOT, x, each, MPT__WRITE);
    mpt__launch_reduce(context, MPT__FN_SUM, each, zeros, MPT__WRITE);
    mpt__launch_binary(context, MPT__FN_PROD_SHARE, x, zeros, each, MPT__WRITE);
    return mpt__launch_binary(context, MPT__FN_KEEP, each, factor, frame->dx, frame->access);
}

/* ==== Softmax ==== */

static mpt_status mpt__softmax_shape(mpt__frame *frame) {
    int64_t *dim = &frame->attributes->index[0];
    int rank = frame->in[0]->shape.rank; /* 0: one element, whatever the dimension is called */
    *dim = rank > 0 ? mpt__dimension(frame->context, (int)*dim, rank) : 0;
    return *dim < 0 ? frame->context->base.status : mpt__unary_shape(frame);
}

static mpt_status mpt__softmax_forward(mpt__frame *frame) {
    mpt__save(frame, frame->out[0]);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SOFTMAX);
    launch->function = (uint8_t)frame->row->function;
    mpt__operand_along(frame, launch, 0, frame->in[0], MPT__READ);
    mpt__operand_along(frame, launch, 1, frame->out[0], MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__softmax_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SOFTMAX_BACKWARD);
    launch->function = (uint8_t)frame->row->function;
    mpt__operand_along(frame, launch, 0, frame->saved[0], MPT__READ);
    mpt__operand_along(frame, launch, 1, frame->dy[0], MPT__READ);
    mpt__operand_along(frame, launch, 2, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}

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
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_cumsum(frame, frame->dy[0], frame->dx, true, frame->access);
}

/* ==== Dropout ==== */

/* Sets the number of forward's step, which is a part of the key that masks are drawn from. */
static mpt_status mpt__dropout_step(mpt_context *context, int64_t step) {
    if (context->device_step == step) return MPT_OK;
    context->unrecorded = context->capturing;
    mpt__scalar_set_i(context, MPT__SLOT_STEP, step);
    context->unrecorded = false;
    if (context->base.status == MPT_OK) context->device_step = step;
    return context->base.status;
}

static void mpt__dropout_key(mpt__launch *launch, mpt_context *context, int64_t stream,
                             int64_t call) {
    launch->rng.seed = context->config.seed;
    launch->rng.stream = (uint64_t)stream;
    launch->rng.call = (uint64_t)call;
    launch->slot[0] = MPT__SLOT_STEP;
}

static mpt_status mpt__launch_dropout(mpt__frame *frame, int64_t step, const mpt__tensor *in,
                                      const mpt__tensor *out, mpt__access access) {
    mpt_context *context = frame->context;
    if (mpt__dropout_step(context, step) != MPT_OK) return context->base.status;
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_DROPOUT);
    launch->imm[0] = frame->attributes->imm[0];
    mpt__dropout_key(launch, context, frame->attributes->index[0], frame->attributes->index[1]);
    mpt__operand_of(launch, 0, in, MPT__READ);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(context, launch);
}

static mpt_status mpt__dropout_forward(mpt__frame *frame) {
    return mpt__launch_dropout(frame, frame->context->now.step, frame->in[0], frame->out[0],
                               MPT__WRITE);
}

/* Draws the mask again: nothing was kept. */
static mpt_status mpt__dropout_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_dropout(frame, frame->record->step, frame->dy[0], frame->dx, frame->access);
}

#endif
