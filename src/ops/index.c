/* ----
 * ops/index.c: ops by index and by place: gather, sort, one_hot, flip, triangles, padding.
 * ---- */
#ifndef MPT__OPS_INDEX_INCLUDED
#define MPT__OPS_INDEX_INCLUDED

#include "ops/shape.c"

/* ==== Indices ==== */

/* A float tensor, and i64 indices of its rank, in which all dimensions but one agree; *dim is that
   one. `index` and `x` are numbers of inputs. */
static mpt_status mpt__index_check(mpt__frame *frame, int index, int *dim) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0], *i = frame->in[index];
    if (mpt__input_computes(frame, 0) != MPT_OK) return ctx->base.status;
    if (i->dtype != MPT_I64)
        return mpt__error(ctx, DTYPE, "indices are %D: expected i64", i->dtype);
    *dim = mpt__dimension(ctx, (int)frame->attributes->index[0], x->shape.rank);
    if (*dim < 0) return ctx->base.status;
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
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return mpt__outcome(frame);
    if (!mpt__agree_outside(frame->in[0], frame->in[1], dim))
        return mpt__error(frame->context, SHAPE, "%S and indices %S differ outside dimension %d",
            &frame->in[0]->shape, &frame->in[1]->shape, dim);
    frame->out_shape[0] = frame->in[1]->shape;
    return MPT_OK;
}

static mpt_status mpt__index_select_shape(mpt__frame *frame) {
    int dim;
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return mpt__outcome(frame);
    if (frame->in[1]->shape.rank != 1)
        return mpt__error(
            frame->context, SHAPE, "indices %S: expected one dimension", &frame->in[1]->shape);
    frame->out_shape[0].dim[dim] = frame->in[1]->shape.dim[0];
    return MPT_OK;
}

static mpt_status mpt__scatter_add_shape(mpt__frame *frame) {
    int dim;
    const mpt__tensor *x = frame->in[0], *index = frame->in[1], *source = frame->in[2];
    if (mpt__index_check(frame, 1, &dim) != MPT_OK) return mpt__outcome(frame);
    if (mpt__dtypes_meet(frame, 0, 2) != MPT_OK) return mpt__outcome(frame);
    if (x->dtype != source->dtype) frame->out_dtype[0] = MPT_F32;
    if (!mpt__agree_outside(x, index, dim) || !mpt__same_shape(index, source))
        return mpt__error(frame->context, SHAPE,
            "%S, indices %S, source %S: expected the same sizes, but for dimension %d of the first",
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
    mpt__reads(launch, position, &view);
    launch->index[0] = frame->attributes->index[0];
}

/* out = the elements of x that `index` names. */
static mpt_status mpt__launch_gather(mpt__frame *frame, const mpt__tensor *x,
    const mpt__tensor *index, const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_GATHER);
    mpt__reads(launch, 0, x);
    mpt__operand_indices(frame, launch, 1, index, out);
    mpt__operand_of(launch, 2, out, access);
    return mpt__submit(frame->context, launch);
}

/* target = start (NULL: 0) with the elements of x added where `index` says; in fp32, whatever the
   target is. Accumulating, start is NULL. */
static mpt_status mpt__launch_scatter(mpt__frame *frame, const mpt__tensor *index,
    const mpt__tensor *x, const mpt__tensor *start, const mpt__tensor *target, mpt__access access) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *sum = target;
    bool wide = (mpt_dtype)target->dtype == mpt__loss_dtype(frame);
    if (!wide) sum = mpt__temporary(frame, mpt__loss_dtype(frame), &target->shape);
    if (!sum) return ctx->base.status;
    if (start)
        mpt__launch_copy(ctx, start, sum, MPT__WRITE);
    else if (!wide || access == MPT__WRITE)
        mpt__launch_fill(ctx, sum, 0.0);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SCATTER_ADD);
    mpt__operand_indices(frame, launch, 0, index, x);
    mpt__reads(launch, 1, x);
    mpt__operand_of(launch, 2, sum, MPT__READ_WRITE);
    mpt_status status = mpt__submit(ctx, launch);
    if (status != MPT_OK || wide) return status;
    return mpt__launch_copy(ctx, sum, target, access);
}

static mpt_status mpt__gather_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[1]);
    return mpt__launch_gather(frame, frame->in[0], frame->in[1], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__gather_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_scatter(
        frame, frame->saved[0], frame->dy[0], NULL, frame->dx, frame->access);
}

static mpt_status mpt__scatter_add_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[1]);
    return mpt__launch_scatter(
        frame, frame->in[1], frame->in[2], frame->in[0], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__scatter_add_backward(mpt__frame *frame) {
    mpt__access access;
    mpt_status status = mpt__gradient_pass(frame, 0, frame->dy[0]);
    if (status != MPT_OK || !mpt__wants(frame, 2)) return status;
    mpt__tensor *source = mpt__gradient_into(frame, 2, &access);
    if (!source) return mpt__outcome(frame);
    return mpt__launch_gather(frame, frame->dy[0], frame->saved[0], source, access);
}

/* ---- Order ---- */

/* index[1]: how many of the first ones, -1: all; index[2]: the largest first. */
static mpt_status mpt__argsort_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t *index = frame->attributes->index;
    int dim = mpt__dimension(frame->context, (int)index[0], x->shape.rank);
    if (dim < 0) return mpt__outcome(frame);
    int64_t size = x->shape.dim[dim], count = index[1] < 0 ? size : index[1];
    if (count > size)
        return mpt__error(frame->context, ARGUMENT,
            "k = %lld: dimension %d of %S has but %lld elements", count, dim, &x->shape, size);
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
        return mpt__error(frame->context, DTYPE, "classes are %D: expected i64", x->dtype);
    if (classes < 1 || x->shape.rank == MPT_MAX_RANK)
        return mpt__error(frame->context, ARGUMENT,
            "%lld classes of shape %S: expected 1 or more, and at most 7 dimensions", classes,
            &x->shape);
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
    mpt__reads(launch, 0, &index);
    mpt__reads(launch, 1, &one);
    mpt__writes(launch, 2, out);
    return mpt__submit(frame->context, launch);
}

static mpt_tensor mpt__apply_index(
    const char *name, int op, const mpt_tensor *in, int n_in, int dim) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.required = (uint8_t)n_in;
    return mpt__apply1(name, op, in, n_in, &attributes);
}

mpt_tensor mpt_gather(mpt_tensor x, int dim, mpt_tensor index) {
    mpt_tensor in[] = {x, index};
    return mpt__apply_index("mpt_gather", MPT__OP_gather, in, 2, dim);
}
mpt_tensor mpt_index_select(mpt_tensor x, int dim, mpt_tensor index) {
    mpt_tensor in[] = {x, index};
    return mpt__apply_index("mpt_index_select", MPT__OP_index_select, in, 2, dim);
}
mpt_tensor mpt_scatter_add(mpt_tensor x, int dim, mpt_tensor index, mpt_tensor source) {
    mpt_tensor in[] = {x, index, source};
    return mpt__apply_index("mpt_scatter_add", MPT__OP_scatter_add, in, 3, dim);
}

/* The first `count` in order (-1: all), and their indices. The values are gathered, so that their
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

mpt_tensor mpt_argsort(mpt_tensor x, int dim, bool descending) {
    return mpt__sorted("mpt_argsort", x, -1, dim, descending, false, NULL);
}
mpt_tensor mpt_sort(mpt_tensor x, int dim, bool descending, mpt_tensor *indices) {
    return mpt__sorted("mpt_sort", x, -1, dim, descending, true, indices);
}
mpt_tensor mpt_topk(mpt_tensor x, int64_t k, int dim, bool largest, mpt_tensor *indices) {
    if (k < 0 && x.context) {
        mpt__misuse(x.context, "mpt_topk", ARGUMENT, "k = %lld: expected 0 or more", k);
        if (indices) *indices = mpt__null(x.context);
        return mpt__null(x.context);
    }
    return mpt__sorted("mpt_topk", x, k, dim, largest, true, indices);
}

mpt_tensor mpt_one_hot(mpt_tensor classes, int64_t count) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[1] = count;
    return mpt__apply1("mpt_one_hot", MPT__OP_one_hot, &classes, 1, &attributes);
}

/* ==== Flip, triangles, padding ==== */

static mpt_status mpt__launch_flip(
    mpt__frame *frame, const mpt__tensor *in, const mpt__tensor *out, mpt__access access) {
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
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_flip(frame, frame->dy[0], frame->dx, frame->access);
}

static mpt_status mpt__triangle_shape(mpt__frame *frame) {
    if (frame->in[0]->shape.rank < 2)
        return mpt__error(frame->context, SHAPE, "%S: expected a matrix, two dimensions or more",
            &frame->in[0]->shape);
    return mpt__unary_shape(frame);
}

static mpt_status mpt__launch_triangle(
    mpt__frame *frame, const mpt__tensor *in, const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_TRIANGLE);
    launch->index[0] = frame->attributes->index[0];
    launch->index[1] = frame->op == MPT__OP_triu;
    mpt__reads(launch, 0, in);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__triangle_forward(mpt__frame *frame) {
    return mpt__launch_triangle(frame, frame->in[0], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__triangle_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
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
    return mpt__error(frame->context, ARGUMENT,
        "padding %S of a tensor %S: expected sizes before and after its last dimensions, 0 or more",
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

mpt_tensor mpt_flip(mpt_tensor x, int dim) {
    return mpt__apply_dim("mpt_flip", MPT__OP_flip, x, dim, false);
}
mpt_tensor mpt_tril(mpt_tensor x, int64_t diagonal) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = diagonal;
    return mpt__apply1("mpt_tril", MPT__OP_tril, &x, 1, &attributes);
}
mpt_tensor mpt_triu(mpt_tensor x, int64_t diagonal) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = diagonal;
    return mpt__apply1("mpt_triu", MPT__OP_triu, &x, 1, &attributes);
}

mpt_tensor mpt_pad(mpt_tensor x, mpt_shape padding, double value) {
    if (padding.rank < 0 || padding.rank > MPT_MAX_RANK)
        return mpt__misused(x.context, "mpt_pad", ARGUMENT, "%d sizes are not in 0..%d",
            padding.rank, MPT_MAX_RANK);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = value;
    attributes.rank = (uint8_t)padding.rank;
    for (int i = 0; i < padding.rank; i++) attributes.index[i] = padding.dim[i];
    return mpt__apply1("mpt_pad", MPT__OP_pad, &x, 1, &attributes);
}

#endif
