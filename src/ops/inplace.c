/* ----
 * ops/inplace.c: ops that write their result over their first argument.
 *
 * They run rows of the op table with that tensor as the output. Where backward will follow, the
 * tensor gets the call's record, and what stands in the graph for its old value is a tensor without
 * memory that takes over the old record: gradients find their way, and a backward that saved the
 * old value sees its version change.
 * ---- */
#ifndef MPT__OPS_INPLACE_INCLUDED
#define MPT__OPS_INPLACE_INCLUDED

#include "ops/user.c"

/* ==== What may be written ==== */

/* The first element in memory of a tensor, and the one behind its last; equal if it has none. */
static void mpt__tensor_span(const mpt__tensor *x, int64_t span[2]) {
    int64_t last = x->offset;
    bool empty = false;
    for (int i = 0; i < x->shape.rank; i++) {
        empty |= x->shape.dim[i] == 0;
        last += (x->shape.dim[i] - 1) * x->stride[i];
    }
    span[0] = x->offset;
    span[1] = empty ? x->offset : last + 1;
}

/* Whether `from` shows memory that writing to x would change before it is read. */
static bool mpt__overlaps(const mpt__tensor *x, const mpt__tensor *from) {
    int64_t a[2], b[2];
    if (x->storage != from->storage) return false;
    bool same = mpt__same_shape(x, from) && x->offset == from->offset;
    for (int i = 0; same && i < x->shape.rank; i++)
        same = x->stride[i] == from->stride[i] || x->shape.dim[i] == 1;
    mpt__tensor_span(x, a);
    mpt__tensor_span(from, b);
    return !same && a[0] < b[1] && b[0] < a[1];
}

static bool mpt__fits_shape(const mpt_shape *shape, const mpt__tensor *x) {
    bool fits = shape->rank == x->shape.rank;
    for (int i = 0; fits && i < shape->rank; i++) fits = shape->dim[i] == x->shape.dim[i];
    return fits;
}

static mpt_status mpt__check_inplace(
    mpt_context *ctx, const mpt__tensor *x, mpt__tensor *const *in, int n_in, bool records) {
    bool leaf = (x->flags & MPT__LEAF) && (x->flags & MPT__REQUIRES_GRAD);
    if (leaf && !ctx->no_grad_depth && !ctx->inference_depth)
        return mpt__error(ctx, STATE,
            "a leaf that collects a gradient cannot be changed in place, as its gradient is of "
            "this value; do it between mpt_no_grad_begin and mpt_no_grad_end");
    if (mpt__is_expanded(ctx, x)) return ctx->base.status;
    for (int i = 0; i < n_in; i++)
        if (in[i] && mpt__overlaps(x, in[i]))
            return mpt__error(
                ctx, STATE, "argument 2 shows part of the memory that is written; mpt_clone it");
    if (!records || mpt__storage_alone(ctx, x->storage)) return MPT_OK;
    return mpt__error(ctx, STATE,
        "the tensor shares its memory with others (it is a view, or has views), "
        "whose history cannot follow; mpt_clone it first, or release them");
}

/* ==== History ==== */

/* Moves a tensor's record, and its place as an input of others, to another. */
static void mpt__history_move(mpt_context *ctx, mpt__tensor *from, mpt__tensor *to) {
    to->record = from->record;
    to->output = from->output;
    from->record = NULL;
    for (int64_t r = 1; r < ctx->record_count && from->nodes > 0; r++) {
        mpt__record *record = ctx->records[r];
        for (int i = 0; record->live && i < record->n_in; i++) {
            if (record->in[i] != from) continue;
            record->in[i] = to;
            to->nodes++;
            from->nodes--;
        }
    }
}

/* A tensor that stands for the value of x so far, with the history of that. NULL on error. */
static mpt__tensor *mpt__rebase(mpt_context *ctx, mpt__tensor *x) {
    mpt__tensor *old = mpt__tensor_outside(ctx, x, x->flags & MPT__REQUIRES_GRAD);
    if (old) mpt__history_move(ctx, x, old);
    return old;
}

/* Whether what x gets from elsewhere ends its history. */
static bool mpt__history_ends(const mpt_context *ctx, const mpt__tensor *x) {
    return x->record && !ctx->no_grad_depth && !ctx->inference_depth;
}

/* Runs the op's forward with x as its output. */
static mpt_status mpt__forward_into(mpt__frame *frame, mpt__tensor *x) {
    mpt__touched(frame->context, x->storage);
    frame->out[0] = x;
    return mpt__call_forward(frame);
}

/* Runs an op on the inputs of its record, over x. */
static mpt_status mpt__run_inplace(mpt__frame *frame, mpt__tensor *x) {
    mpt_context *ctx = frame->context;
    mpt__tensor *old = NULL;
    mpt_status status = mpt__call_shape(frame);
    bool ends = !frame->records && mpt__history_ends(ctx, x);
    if (status == MPT_OK && !mpt__fits_shape(&frame->out_shape[0], x))
        status =
            mpt__error(ctx, SHAPE, "the result has shape %S, which does not fit the tensor's %S",
                &frame->out_shape[0], &x->shape);
    if (status == MPT_OK)
        status = mpt__check_inplace(ctx, x, frame->in, frame->n_in, frame->records || ends);
    if (status == MPT_OK && (frame->records || ends)) {
        old = mpt__rebase(ctx, x);
        status = ctx->base.status;
        for (int i = 0; old && i < frame->n_in; i++)
            if (frame->in[i] == x) frame->record->in[i] = old;
    }
    if (status == MPT_OK) status = mpt__forward_into(frame, x);
    mpt__call_end(frame, 1, status);
    if (!old) return status;
    if (status != MPT_OK)
        mpt__history_move(ctx, old, x);
    else if (ends)
        x->flags &= (uint8_t)~MPT__REQUIRES_GRAD;
    mpt__tensor_drop(ctx, old);
    return status;
}

/* x = op(in), in place; gives x, or the error null. */
static mpt_tensor mpt__apply_inplace(const char *name, int op, mpt_tensor x, const mpt_tensor *in,
    int n_in, mpt__attributes *attributes) {
    mpt__frame frame;
    mpt_context *ctx = mpt__context_of(in, n_in);
    if (!ctx) ctx = x.context;
    if (!mpt__enter(ctx, name)) return mpt__null(ctx);
    mpt__tensor *to = mpt__at(ctx, x, "argument 1");
    if (!to || !mpt__call_begin(&frame, ctx, op, n_in, 1, attributes)) return mpt__null(ctx);
    if (!mpt__find_inputs(ctx, in, n_in, n_in, frame.record->in)) {
        mpt__record_spare(ctx, frame.record);
        return mpt__null(ctx);
    }
    return mpt__run_inplace(&frame, to) == MPT_OK ? x : mpt__null(ctx);
}

/* ==== The functions ==== */

static mpt_tensor mpt__inplace_number(const char *name, int op, mpt_tensor x, double value) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = value;
    return mpt__apply_inplace(name, op, x, &x, 1, &attributes);
}

static mpt_tensor mpt__inplace_pair(
    const char *name, int op, mpt_tensor x, mpt_tensor first, mpt_tensor b) {
    mpt__attributes attributes = mpt__no_attributes;
    mpt_tensor in[] = {first, b};
    return mpt__apply_inplace(name, op, x, in, 2, &attributes);
}

mpt_tensor mpt_relu_(mpt_tensor x) {
    return mpt__inplace_number("mpt_relu_", MPT__OP_relu, x, 0.0);
}
mpt_tensor mpt_add_scalar_(mpt_tensor x, double value) {
    return mpt__inplace_number("mpt_add_scalar_", MPT__OP_add_scalar, x, value);
}
mpt_tensor mpt_mul_scalar_(mpt_tensor x, double value) {
    return mpt__inplace_number("mpt_mul_scalar_", MPT__OP_mul_scalar, x, value);
}
mpt_tensor mpt_add_(mpt_tensor x, mpt_tensor b) {
    return mpt__inplace_pair("mpt_add_", MPT__OP_add, x, x, b);
}

/* The gradient of b needs the old value of x: backward gets a copy. */
mpt_tensor mpt_mul_(mpt_tensor x, mpt_tensor b) {
    mpt__tensor *to = x.context ? mpt__live(x.context, x) : NULL;
    const mpt__tensor *by = x.context ? mpt__live(x.context, b) : NULL;
    bool copies = to && by && (by->flags & MPT__REQUIRES_GRAD) && !x.context->no_grad_depth &&
        !x.context->inference_depth && !(to->flags & MPT__LEAF);
    if (!copies) return mpt__inplace_pair("mpt_mul_", MPT__OP_mul, x, x, b);
    mpt_tensor kept = mpt_clone(x);
    mpt_tensor out = mpt__inplace_pair("mpt_mul_", MPT__OP_mul, x, kept, by == to ? kept : b);
    mpt_release(kept);
    return out;
}

mpt_tensor mpt_copy_(mpt_tensor x, mpt_tensor source) {
    static const char name[] = "mpt_copy_";
    mpt__attributes attributes = mpt__no_attributes;
    mpt__tensor *to = mpt__enter_at(x, name, "argument 1");
    const mpt__tensor *from = to ? mpt__at(x.context, source, "argument 2") : NULL;
    if (!from) return mpt__null(x.context);
    bool whole = mpt__same_shape(from, to);
    attributes.index[0] = to->dtype;
    if (!whole) source = mpt__apply_shape(name, MPT__OP_expand, source, &to->shape);
    mpt_tensor out = mpt__apply_inplace(name, MPT__OP_cast, x, &source, 1, &attributes);
    if (!whole) mpt_release(source);
    return out;
}

mpt_tensor mpt_fill_(mpt_tensor x, double value) {
    mpt__tensor *to = mpt__enter_at(x, "mpt_fill_", "argument 1");
    bool ends = to && mpt__history_ends(x.context, to);
    if (!to || mpt__check_inplace(x.context, to, NULL, 0, ends) != MPT_OK)
        return mpt__null(x.context);
    mpt__tensor *old = ends ? mpt__rebase(x.context, to) : NULL;
    if (old) {
        to->flags &= (uint8_t)~MPT__REQUIRES_GRAD;
        mpt__tensor_drop(x.context, old);
    }
    mpt__touched(x.context, to->storage);
    return mpt__launch_fill(x.context, to, value) == MPT_OK ? x : mpt__null(x.context);
}

/* ==== Counting, which adds in place ==== */

MPT__BEGIN_COLD
/* Within a step or scope ops count, so that a captured step counts, too, and what they make on the
   way dies with it; elsewhere the host counts. */
mpt_tensor mpt_arange(mpt_context *ctx, mpt_dtype dtype, int64_t count) {
    if (!mpt__enter(ctx, "mpt_arange")) return mpt__null(ctx);
    if (count < 0 || count > INT64_MAX / 16)
        return mpt__refuse(ctx, ARGUMENT, "count %lld is negative or beyond 2^59", count);
    mpt_tensor counted;
    if (ctx->scope_depth > 0 && count < 1 << 24) { /* to where fp32 counts */
        counted = mpt_cumsum(mpt_ones(ctx, MPT_F32, MPT_SHAPE(count)), 0);
        counted = mpt_cast(mpt_add_scalar_(counted, -1.0), MPT_I64);
    } else {
        int64_t *values = (int64_t *)mpt__host_array(ctx, count + 1, sizeof *values);
        if (!values) return mpt__null(ctx);
        for (int64_t i = 0; i < count; i++) values[i] = i;
        counted = mpt_from(ctx, MPT_I64, MPT_SHAPE(count), values);
        mpt__host_free(ctx, values, (size_t)(count + 1) * sizeof *values);
    }
    if (dtype == MPT_I64) return counted;
    mpt_tensor cast = mpt_cast(counted, dtype);
    mpt_release(counted);
    return cast;
}
MPT__END_REGION

#endif
