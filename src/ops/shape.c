/* ----
 * ops/shape.c: views, copies, casts, concatenation.
 * ---- */
#ifndef MPT__OPS_SHAPE_INCLUDED
#define MPT__OPS_SHAPE_INCLUDED

#include "ops/reduce.c"

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
        return mpt__error(frame->context, ARGUMENT, "dtype %d is none of mpt_dtype", (int)dtype);
    if (!mpt__dtype_info[dtype].is_float) frame->records = false;
    frame->out_dtype[0] = dtype;
    return mpt__unary_shape(frame);
}

static mpt_tensor mpt__copy_call(const char *name, mpt_tensor x, mpt__layout layout) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = layout;
    return mpt__apply1(name, MPT__OP_clone, &x, 1, &attributes);
}

mpt_tensor mpt_clone(mpt_tensor x) { return mpt__copy_call("mpt_clone", x, MPT__LAYOUT_KEPT); }

mpt_tensor mpt_contiguous(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_contiguous", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (mpt__tensor_contiguous(tensor)) return x;
    return mpt__copy_call("mpt_contiguous", x, MPT__LAYOUT_CONTIGUOUS);
}

static bool mpt__dense_last(const mpt__tensor *tensor) {
    const int64_t *size = tensor->shape.dim;
    return mpt__channels_last(tensor) && tensor->stride[0] == size[1] * size[2] * size[3];
}

mpt_tensor mpt_to_channels_last(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_to_channels_last", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (tensor->shape.rank != 4)
        return mpt__refuse(x.context, SHAPE, "shape %S: expected [N, C, H, W]", &tensor->shape);
    if (mpt__dense_last(tensor)) return x;
    return mpt__copy_call("mpt_to_channels_last", x, MPT__LAYOUT_CHANNELS_LAST);
}

bool mpt_is_channels_last(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_is_channels_last", "argument 1");
    return tensor && tensor->shape.rank == 4 && mpt__dense_last(tensor);
}

mpt_tensor mpt_detach(mpt_tensor x) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_detach", "argument 1");
    if (!tensor) return mpt__null(x.context);
    return mpt__handle(x.context, mpt__tensor_alias(x.context, tensor));
}

/* ==== Reshape ==== */

/* Strides under which a tensor shows `shape` without a copy; false: there are none. Runs of
   dimensions that lie evenly can be cut anew, others cannot. */
static bool mpt__reshape_strides(
    const mpt__tensor *tensor, const mpt_shape *shape, int64_t *stride) {
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
        return mpt__error(frame->context, SHAPE, "%S has %lld elements and cannot become %S",
            &x->shape, numel, &asked);
    frame->out_shape[0] = shape;
    frame->is_view = mpt__reshape_strides(x, &shape, frame->view_stride);
    frame->view_offset = x->offset;
    return MPT_OK;
}

static mpt_status mpt__reshape_forward(mpt__frame *frame) {
    if (frame->is_view) {
        mpt__come_again(frame);
        return MPT_OK;
    }
    mpt__tensor out = mpt__viewed(frame->out[0], &frame->in[0]->shape);
    return mpt__launch_copy(frame->context, frame->in[0], &out, MPT__WRITE);
}

static mpt_status mpt__reshape_backward(mpt__frame *frame) {
    const mpt__tensor *dy = mpt__contiguous_of(frame, frame->dy[0]);
    if (!dy) return mpt__outcome(frame);
    mpt__tensor view = mpt__viewed(dy, &frame->in[0]->shape);
    frame->layout = MPT__LAYOUT_KEPT;
    return mpt__gradient_pass(frame, 0, &view);
}

mpt_tensor mpt_flatten(mpt_tensor x, int first_dim, int last_dim) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_flatten", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (tensor->shape.rank == 0) return mpt_reshape(x, MPT_SHAPE(1));
    int first = mpt__dimension(x.context, first_dim, tensor->shape.rank);
    int last = first >= 0 ? mpt__dimension(x.context, last_dim, tensor->shape.rank) : -1;
    if (last < 0) return mpt__null(x.context);
    if (last < first)
        return mpt__refuse(
            x.context, ARGUMENT, "last_dim %d lies before first_dim %d", last_dim, first_dim);
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
        return mpt__error(frame->context, ARGUMENT,
            "%S is no order of the %d dimensions, each named once", &asked, (int)x->shape.rank);
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

mpt_tensor mpt_permute(mpt_tensor x, mpt_shape order) {
    return mpt__apply_shape("mpt_permute", MPT__OP_permute, x, &order);
}

mpt_tensor mpt_transpose(mpt_tensor x, int dim_a, int dim_b) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_transpose", "argument 1");
    int a = tensor ? mpt__dimension(x.context, dim_a, tensor->shape.rank) : -1;
    int b = a >= 0 ? mpt__dimension(x.context, dim_b, tensor->shape.rank) : -1;
    if (b < 0) return mpt__null(x.context);
    mpt_shape order;
    order.rank = tensor->shape.rank;
    for (int i = 0; i < tensor->shape.rank; i++) order.dim[i] = i == a ? b : i == b ? a : i;
    return mpt_permute(x, order);
}

MPT__BEGIN_COLD
/* ==== Slice ==== */

/* index: dimension, start, stop, step. Bounds clamp as in Python. */
static mpt_status mpt__slice_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t *index = frame->attributes->index;
    int dim = mpt__dimension(frame->context, (int)index[0], x->shape.rank);
    if (dim < 0) return mpt__outcome(frame);
    if (index[3] < 1)
        return mpt__error(frame->context, ARGUMENT, "step %lld: expected 1 or more", index[3]);
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
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    if (frame->access == MPT__WRITE && mpt__launch_fill(frame->context, frame->dx, 0.0) != MPT_OK)
        return mpt__outcome(frame);
    const int64_t *index = frame->attributes->index;
    mpt__tensor part = *frame->dx; /* what the slice took */
    part.shape.dim[index[0]] = frame->dy[0]->shape.dim[index[0]];
    part.stride[index[0]] *= index[3];
    part.offset += index[1] * frame->dx->stride[index[0]];
    return mpt__launch_copy(frame->context, frame->dy[0], &part, frame->access);
}

static mpt_tensor mpt__slice(
    const char *name, mpt_tensor x, int dim, int64_t start, int64_t stop, int64_t step) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.index[1] = start;
    attributes.index[2] = stop;
    attributes.index[3] = step;
    return mpt__apply1(name, MPT__OP_slice, &x, 1, &attributes);
}

mpt_tensor mpt_slice(mpt_tensor x, int dim, int64_t start, int64_t stop, int64_t step) {
    return mpt__slice("mpt_slice", x, dim, start, stop, step);
}

/* A slice of one, whose dimension a reshape takes away: no strides forbid that. */
mpt_tensor mpt_select(mpt_tensor x, int dim, int64_t index) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_select", "argument 1");
    int at = tensor ? mpt__dimension(x.context, dim, tensor->shape.rank) : -1;
    if (at < 0) return mpt__null(x.context);
    mpt_shape shape = tensor->shape;
    int64_t size = shape.dim[at], first = index < 0 ? index + size : index;
    if (first < 0 || first >= size)
        return mpt__refuse(
            x.context, ARGUMENT, "index %lld is not in dimension %d of %S", index, at, &shape);
    shape.rank--;
    for (int i = at; i < shape.rank; i++) shape.dim[i] = shape.dim[i + 1];
    mpt_tensor slice = mpt__slice("mpt_select", x, at, first, first + 1, 1);
    mpt_tensor out = mpt__apply_shape("mpt_select", MPT__OP_reshape, slice, &shape);
    mpt_release(slice);
    return out;
}

/* Parts of `size`, or `chunks` of them where that is not 0. */
static int mpt__parts(const char *name, mpt_tensor x, int64_t size, int64_t chunks, int dim,
    mpt_tensor *parts, int capacity) {
    const mpt__tensor *tensor = mpt__enter_at(x, name, "argument 1");
    int at = tensor ? mpt__dimension(x.context, dim, tensor->shape.rank) : -1;
    if (at < 0) return -1;
    int64_t n = tensor->shape.dim[at];
    if (chunks > 0) size = n > chunks ? (n - 1) / chunks + 1 : 1;
    if (size < 1 || chunks < 0 || !parts) {
        mpt__error(x.context, ARGUMENT, "expected parts of 1 or more, and where to put them");
        return -1;
    }
    int64_t count = n > 0 ? (n - 1) / size + 1 : chunks > 0 ? chunks : 1; /* also of nothing */
    if (count > capacity) {
        mpt__error(x.context, ARGUMENT, "%lld parts, but room for %d", count, capacity);
        return -1;
    }
    for (int64_t i = 0; i < count; i++) parts[i] = mpt_slice(x, at, i * size, (i + 1) * size, 1);
    return mpt__ok(x.context) ? (int)count : -1;
}

int mpt_split_tensor(mpt_tensor x, int64_t size, int dim, mpt_tensor *parts, int capacity) {
    return mpt__parts("mpt_split_tensor", x, size, 0, dim, parts, capacity);
}
int mpt_chunk(mpt_tensor x, int chunks, int dim, mpt_tensor *parts, int capacity) {
    return mpt__parts("mpt_chunk", x, 1, chunks > 0 ? chunks : -1, dim, parts, capacity);
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
        return mpt__error(frame->context, SHAPE,
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

mpt_tensor mpt_expand(mpt_tensor x, mpt_shape shape) {
    return mpt__apply_shape("mpt_expand", MPT__OP_expand, x, &shape);
}

/* Each dimension as [times, size], so that stretching the first one repeats. */
mpt_tensor mpt_repeat(mpt_tensor x, mpt_shape times) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_repeat", "argument 1");
    if (!tensor) return mpt__null(x.context);
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
        return mpt__refuse(x.context, ARGUMENT,
            "a tensor %S repeated %S times: expected a number for each dimension, 0 "
            "or more, and at most 8 dimensions in all, those of both counted twice",
            &tensor->shape, &times);
    apart.rank = wide.rank = rank;
    return mpt_reshape(mpt_expand(mpt_reshape(x, apart), wide), out);
}

/* ==== Concatenation ==== */

static mpt_status mpt__cat_shape(mpt__frame *frame) {
    const mpt__tensor *first = frame->in[0];
    int dim = mpt__dimension(frame->context, (int)frame->attributes->index[0], first->shape.rank);
    if (dim < 0) return mpt__outcome(frame);
    mpt__unary_shape(frame);
    for (int n = 1; n < frame->n_in; n++) {
        const mpt__tensor *x = frame->in[n];
        bool good = x->shape.rank == first->shape.rank;
        for (int i = 0; good && i < x->shape.rank; i++)
            good = i == dim || x->shape.dim[i] == first->shape.dim[i];
        if (!good)
            return mpt__error(frame->context, SHAPE,
                "%S and %S (tensor %d) differ outside dimension %d", &first->shape, &x->shape, n,
                dim);
        frame->out_shape[0].dim[dim] += x->shape.dim[dim];
    }
    frame->attributes->index[0] = dim;
    return MPT_OK;
}

/* Input n's part of `whole`, from *start on, which it moves on. */
static mpt__tensor mpt__cat_part(
    const mpt__frame *frame, const mpt__tensor *whole, int n, int64_t *start) {
    int64_t dim = frame->attributes->index[0];
    mpt__tensor part = *whole;
    part.shape.dim[dim] = frame->in[n]->shape.dim[dim];
    part.offset += *start * whole->stride[dim];
    *start += part.shape.dim[dim];
    return part;
}

/* Every input to its part of the output, or its gradient from dy's. */
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

/* With a dimension of size 1 at `dim`; an error is that of `name`. */
static mpt_tensor mpt__with_dim(const char *name, mpt_tensor x, int number, int dim) {
    char argument[24];
    mpt__format_text(argument, sizeof argument, "argument %d", number);
    const mpt__tensor *tensor = mpt__enter_at(x, name, argument);
    if (!tensor) return mpt__null(x.context);
    mpt_shape shape = tensor->shape;
    if (shape.rank == MPT_MAX_RANK)
        return mpt__refuse(x.context, SHAPE, "%S has all the dimensions there can be", &shape);
    dim = mpt__dimension(x.context, dim, shape.rank + 1);
    if (dim < 0) return mpt__null(x.context);
    for (int i = shape.rank++; i > dim; i--) shape.dim[i] = shape.dim[i - 1];
    shape.dim[dim] = 1;
    return mpt_reshape(x, shape);
}

/* More tensors than a record holds are joined in groups. stacks: along a new dimension. */
static mpt_tensor mpt__join(
    const char *name, const mpt_tensor *tensors, int count, int dim, bool stacks) {
    mpt_context *ctx = tensors && count > 0 ? mpt__context_of(tensors, count) : NULL;
    mpt_tensor group[MPT__USER_INPUTS];
    int in_group = 0;
    for (int i = 0; i < count && ctx; i++) {
        if (!tensors[i].context && !tensors[i].slot)
            return mpt__misused(ctx, name, HANDLE, "argument %d is a null handle", i + 1);
        group[in_group++] = stacks ? mpt__with_dim(name, tensors[i], i + 1, dim) : tensors[i];
        if (in_group < MPT__USER_INPUTS && i + 1 < count) continue;
        mpt__attributes attributes = mpt__no_attributes;
        attributes.index[0] = dim;
        group[0] = mpt__apply1(name, MPT__OP_cat, group, in_group, &attributes);
        in_group = 1;
    }
    if (ctx) return group[0];
    mpt__enter(ctx, name);
    return mpt__null(ctx);
}

mpt_tensor mpt_cat(const mpt_tensor *tensors, int count, int dim) {
    return mpt__join("mpt_cat", tensors, count, dim, false);
}
mpt_tensor mpt_stack(const mpt_tensor *tensors, int count, int dim) {
    return mpt__join("mpt_stack", tensors, count, dim, true);
}

mpt_tensor mpt_roll(mpt_tensor x, int64_t shift, int dim) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_roll", "argument 1");
    int at = tensor ? mpt__dimension(x.context, dim, tensor->shape.rank) : -1;
    if (at < 0) return mpt__null(x.context);
    int64_t n = tensor->shape.dim[at];
    int64_t first = n > 0 ? (n - shift % n) % n : 0;
    mpt_tensor part[2];
    part[0] = mpt_slice(x, at, first, n, 1);
    part[1] = mpt_slice(x, at, 0, first, 1);
    return mpt__join("mpt_roll", part, 2, at, false);
}
MPT__END_REGION

#endif
