/* ---------------------------------------------------------------------------------------------
 * ops/shape.c: views, copies, casts, concatenation.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__OPS_SHAPE_INCLUDED
#define MPT__OPS_SHAPE_INCLUDED

#include "ops/math.c"

/* The shape or order of dimensions that the call was given. */
static mpt_shape mpt__asked_shape(const mpt__frame *frame) {
    mpt_shape shape;
    shape.rank = frame->attributes->rank;
    mpt__copy_dims(shape.dim, frame->attributes->index, shape.rank);
    return shape;
}

/* ==== Copies ==== */

static mpt_status mpt__copy_forward(mpt__frame *frame) {
    return mpt__launch_copy(frame->context, frame->in[0], frame->out[0], MPT__WRITE);
}

/* index[0]: the mpt__layout that is wanted. */
static mpt_status mpt__clone_shape(mpt__frame *frame) {
    mpt__shape_copy(&frame->out_shape[0], &frame->in[0]->shape);
    frame->layout = (uint8_t)frame->attributes->index[0];
    return MPT_OK;
}

static mpt_status mpt__cast_shape(mpt__frame *frame) {
    mpt_dtype dtype = (mpt_dtype)frame->attributes->index[0];
    if (dtype <= MPT_DTYPE_NONE || dtype >= MPT_DTYPE_COUNT)
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT, "dtype %d is none of mpt_dtype",
                          (int)dtype);
    if (!mpt__dtype_info[dtype].is_float) frame->records = false;
    frame->out_dtype[0] = dtype;
    return mpt__unary_shape(frame);
}

/* ==== Reshape ==== */

/* Strides under which a tensor shows `shape` without a copy; false if there are none. Runs of
   dimensions that lie evenly in memory can be cut anew, others cannot. */
static bool mpt__reshape_strides(const mpt__tensor *tensor, const mpt_shape *shape,
                                 int64_t *stride) {
    mpt__shape_strides(shape, stride);
    if (mpt__tensor_contiguous(tensor)) return true;
    int to = shape->rank - 1;
    for (int from = tensor->shape.rank - 1; from >= 0;) {
        int64_t run = tensor->shape.dim[from], base = tensor->stride[from];
        while (from > 0 &&
               (tensor->shape.dim[from - 1] == 1 ||
                tensor->stride[from - 1] == tensor->shape.dim[from] * tensor->stride[from])) {
            if (tensor->shape.dim[from - 1] == 1) { /* its stride says nothing: look through it */
                if (from == 1) {
                    from--;
                    break;
                }
                if (tensor->stride[from - 2] != run * base && tensor->shape.dim[from - 2] != 1)
                    break;
            }
            from--;
            run *= tensor->shape.dim[from];
        }
        int64_t filled = 1;
        while (to >= 0 && filled < run) {
            stride[to] = base * filled;
            filled *= shape->dim[to--];
        }
        if (filled != run) return false;
        while (to >= 0 && shape->dim[to] == 1) stride[to--] = base * filled;
        from--;
    }
    return to < 0;
}

/* Fills in one -1 and checks the element count. */
static mpt_status mpt__reshape_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt_shape shape = mpt__asked_shape(frame), asked = shape;
    int64_t numel = mpt__tensor_numel(x), known = 1;
    int unknown = -1, unknowns = 0;
    for (int i = 0; i < shape.rank; i++) {
        if (shape.dim[i] == -1)
            unknown = i, unknowns++;
        else
            known = shape.dim[i] < 0 || (shape.dim[i] && known > INT64_MAX / shape.dim[i])
                        ? -1
                        : known * shape.dim[i];
        if (known < 0) break;
    }
    if (unknowns == 1 && known > 0 && numel % known == 0) {
        shape.dim[unknown] = numel / known;
        known = numel;
        unknowns = 0;
    }
    if (unknowns > 0 || known != numel || mpt__shape_numel(&shape) != numel)
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "%S has %lld elements and cannot become %S", &x->shape, numel, &asked);
    frame->out_shape[0] = shape;
    frame->is_view = mpt__reshape_strides(x, &shape, frame->view_stride);
    frame->view_offset = x->offset;
    return MPT_OK;
}

static mpt_status mpt__reshape_forward(mpt__frame *frame) {
    if (frame->is_view) return MPT_OK;
    mpt__tensor out = mpt__viewed(frame->out[0], &frame->in[0]->shape);
    return mpt__launch_copy(frame->context, frame->in[0], &out, MPT__WRITE);
}

static mpt_status mpt__reshape_backward(mpt__frame *frame) {
    const mpt__tensor *dy = mpt__contiguous_of(frame, frame->dy[0]);
    if (!dy) return frame->context->base.status;
    mpt__tensor view = mpt__viewed(dy, &frame->in[0]->shape);
    frame->layout = MPT__LAYOUT_KEPT;
    return mpt__gradient_pass(frame, 0, &view);
}

/* ==== Permute ==== */

static mpt_status mpt__permute_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t *order = frame->attributes->index;
    unsigned seen = 0;
    bool good = frame->attributes->rank == x->shape.rank;
    for (int i = 0; good && i < x->shape.rank; i++) {
        if (order[i] < 0) order[i] += x->shape.rank;
        good = order[i] >= 0 && order[i] < x->shape.rank && !(seen >> order[i] & 1u);
        if (good) seen |= 1u << order[i];
    }
    if (!good) {
        mpt_shape asked = mpt__asked_shape(frame);
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT,
                          "%S is no order of the %d dimensions, each named once", &asked,
                          (int)x->shape.rank);
    }
    frame->is_view = true;
    frame->layout = MPT__LAYOUT_KEPT;
    frame->view_offset = x->offset;
    frame->out_shape[0].rank = x->shape.rank;
    for (int i = 0; i < x->shape.rank; i++) {
        frame->out_shape[0].dim[i] = x->shape.dim[order[i]];
        frame->view_stride[i] = x->stride[order[i]];
    }
    return MPT_OK;
}

static mpt_status mpt__permute_backward(mpt__frame *frame) {
    const int64_t *order = frame->attributes->index;
    const mpt__tensor *dy = frame->dy[0];
    mpt__tensor view = *dy;
    for (int i = 0; i < dy->shape.rank; i++) {
        view.shape.dim[order[i]] = dy->shape.dim[i];
        view.stride[order[i]] = dy->stride[i];
    }
    return mpt__gradient_pass(frame, 0, &view);
}

/* ==== Slice ==== */

/* index: dimension, start, stop, step. Bounds clamp as in Python. */
static mpt_status mpt__slice_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t *index = frame->attributes->index;
    int dim = mpt__dimension(frame->context, (int)index[0], x->shape.rank);
    if (dim < 0) return frame->context->base.status;
    if (index[3] < 1)
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT, "step %lld: expected 1 or more",
                          index[3]);
    int64_t size = x->shape.dim[dim], bound[2];
    for (int i = 0; i < 2; i++) {
        bound[i] = index[i + 1] < 0 ? index[i + 1] + size : index[i + 1];
        if (index[i + 1] < 0 && bound[i] < 0) bound[i] = 0;
        if (bound[i] > size) bound[i] = size;
    }
    int64_t count = bound[1] > bound[0] ? (bound[1] - bound[0] - 1) / index[3] + 1 : 0;
    index[0] = dim;
    index[1] = count > 0 ? bound[0] : 0;
    if (count <= 1) index[3] = 1; /* any step would do, but strides must not overflow */
    frame->is_view = true;
    mpt__unary_shape(frame);
    frame->out_shape[0].dim[dim] = count;
    mpt__copy_dims(frame->view_stride, x->stride, x->shape.rank);
    frame->view_stride[dim] *= index[3];
    frame->view_offset = x->offset + index[1] * x->stride[dim];
    return MPT_OK;
}

static mpt_status mpt__slice_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    if (frame->access == MPT__WRITE && mpt__launch_fill(frame->context, frame->dx, 0.0) != MPT_OK)
        return frame->context->base.status;
    const int64_t *index = frame->attributes->index;
    mpt__tensor part = *frame->dx; /* what the slice took */
    part.shape.dim[index[0]] = frame->dy[0]->shape.dim[index[0]];
    part.stride[index[0]] *= index[3];
    part.offset += index[1] * frame->dx->stride[index[0]];
    return mpt__launch_copy(frame->context, frame->dy[0], &part, frame->access);
}

/* ==== Expand ==== */

static mpt_status mpt__expand_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt_shape shape = mpt__asked_shape(frame), asked = shape;
    int lead = shape.rank - x->shape.rank;
    bool good = lead >= 0;
    for (int i = 0; good && i < shape.rank; i++) {
        int64_t size = i < lead ? 1 : x->shape.dim[i - lead];
        if (i >= lead && shape.dim[i] == -1) shape.dim[i] = size;
        good = shape.dim[i] == size || (size == 1 && shape.dim[i] >= 0);
    }
    int64_t numel = good ? mpt__shape_numel(&shape) : -1;
    if (numel < 0 || numel > INT64_MAX / 16)
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "%S does not expand to %S: only dimensions of size 1 and new leading "
                          "ones grow, to at most 2^59 elements",
                          &x->shape, &asked);
    frame->is_view = true;
    frame->layout = MPT__LAYOUT_KEPT;
    frame->out_shape[0] = shape;
    frame->view_offset = x->offset;
    mpt__broadcast_strides(x, &shape, frame->view_stride);
    return MPT_OK;
}

static mpt_status mpt__expand_backward(mpt__frame *frame) {
    return mpt__broadcast_gradient(frame, 0, MPT__FN_NONE, frame->dy[0], NULL);
}

/* ==== Concatenation ==== */

static mpt_status mpt__cat_shape(mpt__frame *frame) {
    const mpt__tensor *first = frame->in[0];
    int dim = mpt__dimension(frame->context, (int)frame->attributes->index[0], first->shape.rank);
    if (dim < 0) return frame->context->base.status;
    mpt__unary_shape(frame);
    for (int n = 1; n < frame->n_in; n++) {
        const mpt__tensor *x = frame->in[n];
        bool good = x->shape.rank == first->shape.rank;
        for (int i = 0; good && i < x->shape.rank; i++)
            good = i == dim || x->shape.dim[i] == first->shape.dim[i];
        if (!good)
            return mpt__error(frame->context, MPT_ERROR_SHAPE,
                              "%S and %S (tensor %d) differ outside dimension %d", &first->shape,
                              &x->shape, n, dim);
        frame->out_shape[0].dim[dim] += x->shape.dim[dim];
    }
    frame->attributes->index[0] = dim;
    return MPT_OK;
}

/* The part of `whole` that input n takes, which starts at *start; moves *start on. */
static mpt__tensor mpt__cat_part(const mpt__frame *frame, const mpt__tensor *whole, int n,
                                 int64_t *start) {
    int64_t dim = frame->attributes->index[0];
    mpt__tensor part = *whole;
    part.shape.dim[dim] = frame->in[n]->shape.dim[dim];
    part.offset += *start * whole->stride[dim];
    *start += part.shape.dim[dim];
    return part;
}

/* Every input to its part of the output, or its gradient from that of dy. */
static mpt_status mpt__cat_parts(mpt__frame *frame, const mpt__tensor *whole, bool backward) {
    int64_t start = 0;
    mpt_status status = MPT_OK;
    for (int n = 0; n < frame->n_in && status == MPT_OK; n++) {
        mpt__tensor part = mpt__cat_part(frame, whole, n, &start);
        status = backward ? mpt__gradient_pass(frame, n, &part)
                          : mpt__launch_copy(frame->context, frame->in[n], &part, MPT__WRITE);
    }
    return status;
}

static mpt_status mpt__cat_forward(mpt__frame *frame) {
    return mpt__cat_parts(frame, frame->out[0], false);
}

static mpt_status mpt__cat_backward(mpt__frame *frame) {
    return mpt__cat_parts(frame, frame->dy[0], true);
}

/* ==== Indices ==== */

/* A float tensor, and i64 indices of its rank, in which all dimensions but one agree; *dim is that
   one. `index` and `x` are numbers of inputs. */
static mpt_status mpt__index_check(mpt__frame *frame, int index, int *dim) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0], *i = frame->in[index];
    if (mpt__input_computes(frame, 0) != MPT_OK) return context->base.status;
    if (i->dtype != MPT_I64)
        return mpt__error(context, MPT_ERROR_DTYPE, "indices are %s: expected i64",
                          mpt_dtype_name((mpt_dtype)i->dtype));
    *dim = mpt__dimension(context, (int)frame->attributes->index[0], x->shape.rank);
    if (*dim < 0) return context->base.status;
    frame->attributes->index[0] = *dim;
    return mpt__unary_shape(frame);
}

/* Whether two shapes agree outside a dimension. */
static bool mpt__agree_outside(const mpt__tensor *a, const mpt__tensor *b, int dim) {
    bool good = a->shape.rank == b->shape.rank;
    for (int i = 0; good && i < a->shape.rank; i++)
        good = i == dim || a->shape.dim[i] == b->shape.dim[i];
    return good;
}

static mpt_status mpt__gather_shape(mpt__frame *frame) {
    int dim;
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return frame->context->base.status;
    if (!mpt__agree_outside(frame->in[0], frame->in[1], dim))
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "%S and indices %S differ outside dimension %d", &frame->in[0]->shape,
                          &frame->in[1]->shape, dim);
    frame->out_shape[0] = frame->in[1]->shape;
    return MPT_OK;
}

static mpt_status mpt__index_select_shape(mpt__frame *frame) {
    int dim;
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return frame->context->base.status;
    if (frame->in[1]->shape.rank != 1)
        return mpt__error(frame->context, MPT_ERROR_SHAPE, "indices %S: expected one dimension",
                          &frame->in[1]->shape);
    frame->out_shape[0].dim[dim] = frame->in[1]->shape.dim[0];
    return MPT_OK;
}

static mpt_status mpt__scatter_add_shape(mpt__frame *frame) {
    int dim;
    const mpt__tensor *x = frame->in[0], *index = frame->in[1], *source = frame->in[2];
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return frame->context->base.status;
    if (mpt__dtypes_meet(frame, 0, 2) != MPT_OK) return frame->context->base.status;
    if (x->dtype != source->dtype) frame->out_dtype[0] = MPT_F32;
    if (!mpt__agree_outside(x, index, dim) || !mpt__same_shape(index, source))
        return mpt__error(
            frame->context, MPT_ERROR_SHAPE,
            "%S, indices %S, source %S: expected the same sizes, but for dimension %d "
            "of the first",
            &x->shape, &index->shape, &source->shape, dim);
    return MPT_OK;
}

/* The indices as an operand of the shape of `like`; those of one dimension lie along `dim`. */
static void mpt__operand_indices(const mpt__frame *frame, mpt__launch *launch, int position,
                                 const mpt__tensor *index, const mpt__tensor *like) {
    mpt__tensor view = *index;
    if (frame->op == MPT__OP_index_select) {
        view.shape = like->shape;
        for (int i = 0; i < like->shape.rank; i++)
            view.stride[i] = i == frame->attributes->index[0] ? index->stride[0] : 0;
    }
    mpt__operand_of(launch, position, &view, MPT__READ);
    launch->index[0] = frame->attributes->index[0];
}

/* out = the elements of x that `index` names. */
static mpt_status mpt__launch_gather(mpt__frame *frame, const mpt__tensor *x,
                                     const mpt__tensor *index, const mpt__tensor *out,
                                     mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_GATHER);
    mpt__operand_of(launch, 0, x, MPT__READ);
    mpt__operand_indices(frame, launch, 1, index, out);
    mpt__operand_of(launch, 2, out, access);
    return mpt__submit(frame->context, launch);
}

/* target = start (NULL: 0) with the elements of x added where `index` says; in fp32, whatever the
   target is. Accumulating, start is NULL. */
static mpt_status mpt__launch_scatter(mpt__frame *frame, const mpt__tensor *index,
                                      const mpt__tensor *x, const mpt__tensor *start,
                                      const mpt__tensor *target, mpt__access access) {
    mpt_context *context = frame->context;
    const mpt__tensor *sum = target;
    bool wide = (mpt_dtype)target->dtype == mpt__loss_dtype(frame);
    if (!wide) sum = mpt__temporary(frame, mpt__loss_dtype(frame), &target->shape);
    if (!sum) return context->base.status;
    if (start)
        mpt__launch_copy(context, start, sum, MPT__WRITE);
    else if (!wide || access == MPT__WRITE)
        mpt__launch_fill(context, sum, 0.0);
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_SCATTER_ADD);
    mpt__operand_indices(frame, launch, 0, index, x);
    mpt__operand_of(launch, 1, x, MPT__READ);
    mpt__operand_of(launch, 2, sum, MPT__READ_WRITE);
    mpt_status status = mpt__submit(context, launch);
    if (status != MPT_OK || wide) return status;
    return mpt__launch_copy(context, sum, target, access);
}

static mpt_status mpt__gather_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[1]);
    return mpt__launch_gather(frame, frame->in[0], frame->in[1], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__gather_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_scatter(frame, frame->saved[0], frame->dy[0], NULL, frame->dx,
                               frame->access);
}

static mpt_status mpt__scatter_add_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[1]);
    return mpt__launch_scatter(frame, frame->in[1], frame->in[2], frame->in[0], frame->out[0],
                               MPT__WRITE);
}

static mpt_status mpt__scatter_add_backward(mpt__frame *frame) {
    mpt__access access;
    mpt_status status = mpt__gradient_pass(frame, 0, frame->dy[0]);
    if (status != MPT_OK || !mpt__wants(frame, 2)) return status;
    mpt__tensor *source = mpt__gradient_into(frame, 2, &access);
    if (!source) return frame->context->base.status;
    return mpt__launch_gather(frame, frame->dy[0], frame->saved[0], source, access);
}

/* ---- Order ---- */

/* index[1]: how many of the first ones, -1: all; index[2]: the largest first. */
static mpt_status mpt__argsort_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t *index = frame->attributes->index;
    int dim = mpt__dimension(frame->context, (int)index[0], x->shape.rank);
    if (dim < 0) return frame->context->base.status;
    int64_t size = x->shape.dim[dim], count = index[1] < 0 ? size : index[1];
    if (count > size)
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT,
                          "k = %lld: dimension %d of %S has but %lld elements", count, dim,
                          &x->shape, size);
    index[0] = dim;
    mpt__unary_shape(frame);
    frame->out_shape[0].dim[dim] = count;
    frame->out_dtype[0] = MPT_I64;
    return MPT_OK;
}

static mpt_status mpt__argsort_forward(mpt__frame *frame) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_ARGSORT);
    launch->function = frame->attributes->index[2] ? MPT__FN_MAX : MPT__FN_MIN;
    mpt__operand_along(frame, launch, 0, frame->in[0], MPT__READ);
    mpt__operand_along(frame, launch, 1, frame->out[0], MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* index[1]: the number of classes. */
static mpt_status mpt__one_hot_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t classes = frame->attributes->index[1];
    if (x->dtype != MPT_I64)
        return mpt__error(frame->context, MPT_ERROR_DTYPE, "classes are %s: expected i64",
                          mpt_dtype_name((mpt_dtype)x->dtype));
    if (classes < 1 || x->shape.rank == MPT_MAX_RANK)
        return mpt__error(frame->context, MPT_ERROR_ARGUMENT,
                          "%lld classes of shape %S: expected 1 or more, and at most 7 dimensions",
                          classes, &x->shape);
    frame->out_shape[0] = x->shape;
    frame->out_shape[0].dim[frame->out_shape[0].rank++] = classes;
    return MPT_OK;
}

static mpt_status mpt__one_hot_forward(mpt__frame *frame) {
    const mpt__tensor *out = frame->out[0];
    int last = out->shape.rank - 1;
    mpt__tensor index = *out, one = *out;
    index.shape.dim[last] = one.shape.dim[last] = 1;
    mpt__copy_dims(index.stride, frame->in[0]->stride, last);
    index.stride[last] = 0;
    index.storage = frame->in[0]->storage;
    index.offset = frame->in[0]->offset;
    for (int i = 0; i <= last; i++) one.stride[i] = 0;
    one.storage = frame->context->scalar_storage;
    one.dtype = MPT_F32;
    one.offset = 2 * MPT__SLOT_ONE_F32;
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SCATTER_AXIS);
    launch->index[0] = last;
    launch->index[1] = 1;
    mpt__operand_of(launch, 0, &index, MPT__READ);
    mpt__operand_of(launch, 1, &one, MPT__READ);
    mpt__operand_of(launch, 2, out, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* ==== Flip, triangles, padding ==== */

static mpt_status mpt__launch_flip(mpt__frame *frame, const mpt__tensor *in, const mpt__tensor *out,
                                   mpt__access access) {
    int64_t dim = frame->attributes->index[0];
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_GATHER);
    launch->index[1] = in->shape.rank > 0 ? in->shape.dim[dim] - 1 : 0;
    launch->index[2] = -1;
    mpt__operand_along(frame, launch, 0, in, MPT__READ);
    mpt__operand_along(frame, launch, 2, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__flip_forward(mpt__frame *frame) {
    return mpt__launch_flip(frame, frame->in[0], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__flip_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_flip(frame, frame->dy[0], frame->dx, frame->access);
}

static mpt_status mpt__triangle_shape(mpt__frame *frame) {
    if (frame->in[0]->shape.rank < 2)
        return mpt__error(frame->context, MPT_ERROR_SHAPE,
                          "%S: expected a matrix, two dimensions or more", &frame->in[0]->shape);
    return mpt__unary_shape(frame);
}

static mpt_status mpt__launch_triangle(mpt__frame *frame, const mpt__tensor *in,
                                       const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_TRIANGLE);
    launch->index[0] = frame->attributes->index[0];
    launch->index[1] = frame->op == MPT__OP_triu;
    mpt__operand_of(launch, 0, in, MPT__READ);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__triangle_forward(mpt__frame *frame) {
    return mpt__launch_triangle(frame, frame->in[0], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__triangle_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__launch_triangle(frame, frame->dy[0], frame->dx, frame->access);
}

/* index[0..rank): before and after the last dimension, then the one before it, and so on. */
static mpt_status mpt__pad_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt_shape asked = mpt__asked_shape(frame), *out = &frame->out_shape[0];
    bool good = asked.rank % 2 == 0 && asked.rank / 2 <= x->shape.rank;
    mpt__unary_shape(frame);
    for (int i = 0; good && i < asked.rank; i++) {
        int64_t *size = &out->dim[x->shape.rank - 1 - i / 2];
        good = asked.dim[i] >= 0 && asked.dim[i] <= INT64_MAX / 4 - *size;
        if (good) *size += asked.dim[i];
    }
    if (good) return MPT_OK;
    return mpt__error(frame->context, MPT_ERROR_ARGUMENT,
                      "padding %S of a tensor %S: expected sizes before and after its last "
                      "dimensions, 0 or more",
                      &asked, &x->shape);
}

/* What of `whole` is not padding. */
static mpt__tensor mpt__pad_part(const mpt__frame *frame, const mpt__tensor *whole) {
    mpt__tensor part = *whole;
    part.shape = frame->in[0]->shape;
    for (int i = 0; i < frame->attributes->rank; i += 2)
        part.offset += frame->attributes->index[i] * whole->stride[part.shape.rank - 1 - i / 2];
    return part;
}

static mpt_status mpt__pad_forward(mpt__frame *frame) {
    mpt__tensor part = mpt__pad_part(frame, frame->out[0]);
    mpt_status status = mpt__launch_fill(frame->context, frame->out[0], frame->attributes->imm[0]);
    if (status != MPT_OK) return status;
    return mpt__launch_copy(frame->context, frame->in[0], &part, MPT__WRITE);
}

static mpt_status mpt__pad_backward(mpt__frame *frame) {
    mpt__tensor part = mpt__pad_part(frame, frame->dy[0]);
    return mpt__gradient_pass(frame, 0, &part);
}

#endif
