/* ----
 * ops/operand.c: tensors as operands of launches.
 * ---- */
#ifndef MPT__OPS_OPERAND_INCLUDED
#define MPT__OPS_OPERAND_INCLUDED

#include "ops/op.c"

/* ==== Views outside all tables ==== */

/* A contiguous tensor under another shape. */
static mpt__tensor mpt__viewed(const mpt__tensor *tensor, const mpt_shape *shape) {
    return mpt__view_on(tensor->storage, (mpt_dtype)tensor->dtype, shape, tensor->offset);
}

/* The strides of `tensor` as if it had that shape. */
static MPT__FORCE_INLINE void mpt__broadcast_strides(
    const mpt__tensor *tensor, const mpt_shape *shape, int64_t *stride) {
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
static MPT__INLINE void mpt__operand_dim(
    mpt__operand *operand, int i, int64_t size, int64_t stride) {
    operand->shape[i] = size;
    operand->stride[i] = stride;
}

static MPT__NOINLINE void mpt__operand_pad(
    mpt__operand *operand, const mpt__tensor *tensor, int rank) {
    int lead = rank - tensor->shape.rank;
    operand->rank = (uint8_t)rank;
    for (int i = 0; i < lead; i++) mpt__operand_dim(operand, i, 1, 1);
    for (int i = lead; i < rank; i++)
        mpt__operand_dim(operand, i, tensor->shape.dim[i - lead], tensor->stride[i - lead]);
}

/* With leading dimensions of size 1 up to `rank`. */
static MPT__FORCE_INLINE void mpt__operand_padded(
    mpt__launch *launch, int position, const mpt__tensor *tensor, int rank, mpt__access access) {
    mpt__operand *operand = mpt__operand_of(launch, position, tensor, access);
    if (tensor->shape.rank != rank) mpt__operand_pad(operand, tensor, rank);
}

/* For a kernel that works along dimension index[0] of a rank of 1 or more. Where the input is
   channels last the dimensions come as [N, H, W, C], as loops go. */
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
static void mpt__operand_spread(
    mpt__launch *launch, int position, const mpt__tensor *tensor, const mpt__tensor *to) {
    mpt__operand *operand =
        mpt__operand_ranked(launch, position, tensor, to->shape.rank, MPT__READ);
    mpt__copy_dims(operand->shape, to->shape.dim, to->shape.rank);
    mpt__broadcast_strides(tensor, &to->shape, operand->stride);
}

/* A tensor of one dimension or more as `rows` times its last one; transposed: the other way. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_matrix(mpt__launch *launch, int position,
    const mpt__tensor *tensor, int64_t rows, int64_t stride, bool transposed, mpt__access access) {
    mpt__operand *operand = mpt__operand_ranked(launch, position, tensor, 2, access);
    int last = tensor->shape.rank - 1, row = transposed ? 1 : 0;
    mpt__operand_dim(operand, row, rows, stride);
    mpt__operand_dim(operand, 1 - row, tensor->shape.dim[last], tensor->stride[last]);
    return operand;
}

/* [.., n] as [rows, n], of a contiguous tensor (or any 1-d or 2-d one); transposed: [n, rows]. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_rows(mpt__launch *launch, int position,
    const mpt__tensor *tensor, bool transposed, mpt__access access) {
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

#endif
