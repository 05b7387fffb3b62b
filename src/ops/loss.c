/* ---------------------------------------------------------------------------------------------
 * ops/loss.c: losses. Results are fp32 whatever goes in.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__OPS_LOSS_INCLUDED
#define MPT__OPS_LOSS_INCLUDED

#include "ops/shape.c"

static bool mpt__check_float(mpt__frame *frame, int i) {
    mpt_dtype dtype = (mpt_dtype)frame->in[i]->dtype;
    if (mpt__dtype_computes(dtype)) return true;
    return mpt__reject(frame->context, MPT_ERROR_DTYPE,
                       "argument %d has dtype %s, expected a float dtype", i + 1,
                       mpt_dtype_name(dtype));
}

/* ==== Negative log-likelihood, cross-entropy ==== */

/* in: [N, C] or [C]; targets [N] or 0-d; class weights [C] or none. imm[0]: label smoothing. */
static mpt_status mpt__nll_shape(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0], *t = frame->in[1], *w = frame->in[2];
    if (!mpt__check_float(frame, 0)) return context->base.status;
    if (t->dtype != MPT_I64)
        return mpt__error(
            context, MPT_ERROR_DTYPE,
            "targets have dtype %s, expected i64 class numbers; mpt_cast them to MPT_I64, or "
            "set mpt_fit_config.loss to one of numbers",
            mpt_dtype_name((mpt_dtype)t->dtype));
    bool good = (x->shape.rank == 2 && t->shape.rank == 1 && t->shape.dim[0] == x->shape.dim[0]) ||
                (x->shape.rank == 1 && t->shape.rank == 0);
    if (!good)
        return mpt__error(
            context, MPT_ERROR_SHAPE,
            "input %S and targets %S: expected [N, C] and [N], or [C] and a 0-d target", &x->shape,
            &t->shape);
    int64_t classes = x->shape.dim[x->shape.rank - 1];
    if (w && (w->shape.rank != 1 || w->shape.dim[0] != classes || w->dtype != frame->out_dtype[0]))
        return mpt__error(context, MPT_ERROR_SHAPE, "weight %s %S: expected %s [%lld]",
                          mpt_dtype_name((mpt_dtype)w->dtype), &w->shape,
                          mpt_dtype_name(frame->out_dtype[0]), classes);
    if (!(frame->attributes->imm[0] >= 0.0 && frame->attributes->imm[0] <= 1.0))
        return mpt__error(context, MPT_ERROR_ARGUMENT, "label_smoothing %g is not in [0, 1]",
                          frame->attributes->imm[0]);
    frame->out_shape[0].rank = 0;
    if (frame->attributes->reduction == MPT_NONE) mpt__shape_copy(&frame->out_shape[0], &t->shape);
    return MPT_OK;
}

static mpt__launch *mpt__loss_launch(mpt__frame *frame, mpt__kernel kernel) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->reduction = frame->attributes->reduction;
    for (int i = 0; i < 2; i++) launch->index[i] = frame->attributes->index[i];
    launch->imm[0] = frame->attributes->imm[0];
    return launch;
}

/* In line, as all of a step of small nets: a tensor of one dimension, or a number as one element;
   one of two, or of one as a row of it. */
static MPT__FORCE_INLINE void mpt__operand_vector(mpt__launch *launch, int position,
                                                  const mpt__tensor *tensor, mpt__access access) {
    bool number = tensor->shape.rank == 0;
    mpt__operand *operand = mpt__operand_ranked(launch, position, tensor, 1, access);
    mpt__operand_dim(operand, 0, number ? 1 : tensor->shape.dim[0], number ? 1 : tensor->stride[0]);
}

static MPT__FORCE_INLINE void mpt__operand_table(mpt__launch *launch, int position,
                                                 const mpt__tensor *tensor, mpt__access access) {
    bool row = tensor->shape.rank == 1;
    mpt__operand_matrix(launch, position, tensor, row ? 1 : tensor->shape.dim[0],
                        row ? 1 : tensor->stride[0], false, access);
}

/* Saved: input (cross-entropy only), targets, weights, divisor, log-sum-exp of the rows. */
enum { MPT__NLL_INPUT, MPT__NLL_TARGETS, MPT__NLL_WEIGHTS, MPT__NLL_DIVISOR, MPT__NLL_ROWS };

static mpt_status mpt__nll_forward(mpt__frame *frame) {
    bool fused = frame->op == MPT__OP_cross_entropy;
    const mpt__tensor *x = frame->in[0];
    mpt_shape shape = MPT_SHAPE(1);
    mpt__tensor *divisor = mpt__temporary(frame, frame->out_dtype[0], &shape), *sums = NULL;
    if (fused) {
        shape = MPT_SHAPE(x->shape.rank == 2 ? x->shape.dim[0] : 1, 2);
        sums = mpt__temporary(frame, frame->out_dtype[0], &shape);
    }
    if (!divisor || (fused && !sums)) return frame->context->base.status;
    mpt__save(frame, fused ? frame->in[0] : NULL);
    mpt__save(frame, frame->in[1]);
    mpt__save(frame, frame->in[2]);
    mpt__save(frame, divisor);
    mpt__save(frame, sums);
    mpt__launch *launch = mpt__loss_launch(frame, fused ? MPT__K_CROSS_ENTROPY : MPT__K_NLL);
    mpt__operand_table(launch, 0, x, MPT__READ);
    mpt__operand_vector(launch, 1, frame->in[1], MPT__READ);
    if (frame->in[2]) mpt__operand_vector(launch, 2, frame->in[2], MPT__READ);
    mpt__operand_vector(launch, 3, frame->out[0], MPT__WRITE);
    mpt__operand_vector(launch, 4, divisor, MPT__WRITE);
    if (fused) mpt__operand_table(launch, 5, sums, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* dx of the losses above: NLL_BACKWARD from the targets alone, CROSS_ENTROPY_BACKWARD from its
   input x, or from log-probabilities where the sums of the rows are NULL. */
static mpt_status mpt__nll_gradient(mpt__frame *frame, mpt__kernel kernel, const mpt__tensor *x,
                                    const mpt__tensor *rows, const mpt__tensor *dx,
                                    mpt__access access) {
    int at = 0;
    const mpt__tensor *weights = frame->saved[MPT__NLL_WEIGHTS];
    mpt__launch *launch = mpt__loss_launch(frame, kernel);
    if (x) mpt__operand_table(launch, at++, x, MPT__READ);
    mpt__operand_vector(launch, at++, frame->saved[MPT__NLL_TARGETS], MPT__READ);
    if (weights) mpt__operand_vector(launch, at, weights, MPT__READ);
    mpt__operand_vector(launch, at + 1, frame->saved[MPT__NLL_DIVISOR], MPT__READ);
    mpt__operand_vector(launch, at + 2, frame->dy[0], MPT__READ);
    if (rows) mpt__operand_table(launch, at + 3, rows, MPT__READ);
    mpt__operand_table(launch, x ? at + 4 : at + 3, dx, access);
    return mpt__submit(frame->context, launch);
}

/* Whether the log-probabilities come straight from a log_softmax over classes that nothing else
   reads. Then both backward passes are one: dx = (exp(log p) - onehot) w g / divisor, written to
   the log_softmax's own input. Its record finds no gradient and does nothing. */
static bool mpt__nll_fuses(const mpt__tensor *x) {
    if (!x->record || x->nodes != 1 || !x->storage || !mpt__tensor_contiguous(x)) return false;
    const mpt__record *below = x->record;
    return below->op == MPT__OP_log_softmax && below->attributes.index[0] == x->shape.rank - 1 &&
           !below->done && !below->grad[0] && below->saved[0] == x;
}

static mpt_status mpt__nll_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->in[0];
    bool fuses = mpt__nll_fuses(x);
    mpt__frame below, *target = frame;
    if (fuses) {
        below.context = context;
        below.n_in = 1;
        below.in = x->record->in;
        below.layout = MPT__LAYOUT_CONTIGUOUS;
        target = &below;
    }
    mpt__access access;
    mpt__tensor *dx = mpt__gradient_into(target, 0, &access);
    if (!dx) return context->base.status;
    return mpt__nll_gradient(frame, fuses ? MPT__K_CROSS_ENTROPY_BACKWARD : MPT__K_NLL_BACKWARD,
                             fuses ? x : NULL, NULL, dx, access);
}

static mpt_status mpt__cross_entropy_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return frame->context->base.status;
    return mpt__nll_gradient(frame, MPT__K_CROSS_ENTROPY_BACKWARD, frame->saved[MPT__NLL_INPUT],
                             frame->saved[MPT__NLL_ROWS], frame->dx, frame->access);
}

/* ==== Pair losses ====
 *
 * fn(input, target, more, more) of each element in one launch, with its sum. index[0]: distance
 * from the row's function to that of the call; index[1]: so many inputs get gradients; imm[0] and
 * imm[1]: the function's p and r. */

static mpt_status mpt__pair_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    frame->layout = MPT__LAYOUT_KEPT;
    for (int i = 0; i < frame->n_in; i++) {
        const mpt__tensor *other = frame->in[i];
        if (!other) continue;
        if (!mpt__check_float(frame, i)) return frame->context->base.status;
        if (i == 1 && !mpt__same_shape(x, other))
            return mpt__error(frame->context, MPT_ERROR_SHAPE,
                              "input %S and target %S: expected equal shapes; mpt_reshape "
                              "or mpt_expand",
                              &x->shape, &other->shape);
        int lead = x->shape.rank - other->shape.rank;
        bool fits = lead >= 0;
        for (int d = 0; fits && d < other->shape.rank; d++)
            fits = other->shape.dim[d] == 1 || other->shape.dim[d] == x->shape.dim[lead + d];
        if (!fits)
            return mpt__error(frame->context, MPT_ERROR_SHAPE,
                              "argument %d is %S, which does not broadcast to the input's %S",
                              i + 1, &other->shape, &x->shape);
    }
    frame->out_shape[0].rank = 0;
    if (frame->attributes->reduction == MPT_NONE) mpt__shape_copy(&frame->out_shape[0], &x->shape);
    return MPT_OK;
}

/* What the sum is divided by. Class probabilities have one loss for all C classes. */
static double mpt__pair_divisor(const mpt__frame *frame, const mpt__tensor *x) {
    int rank = x->shape.rank;
    double n = (double)mpt__tensor_numel(x);
    if (frame->attributes->reduction == MPT_MEAN) return n;
    if (frame->attributes->reduction != MPT_BATCH_MEAN || rank == 0) return 1.0;
    if (frame->op != MPT__OP_soft_targets) return (double)x->shape.dim[0];
    return n / (double)x->shape.dim[rank > 1 ? 1 : 0];
}

static mpt__launch *mpt__pair_launch(mpt__frame *frame, mpt__kernel kernel,
                                     mpt__tensor *const in[4]) {
    mpt__launch *launch = mpt__loss_launch(frame, kernel);
    launch->function = (uint8_t)((int)frame->row->function + (int)frame->attributes->index[0]);
    launch->imm[1] = frame->attributes->imm[1];
    launch->imm[2] = mpt__pair_divisor(frame, in[0]);
    for (int i = 0; i < 4; i++)
        if (in[i]) mpt__operand_spread(launch, i, in[i], in[0]);
    return launch;
}

static mpt_status mpt__pair_forward(mpt__frame *frame) {
    mpt__tensor *in[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < 4; i++) {
        if (i < frame->n_in) in[i] = frame->in[i];
        mpt__save(frame, in[i]);
    }
    mpt__launch *launch = mpt__pair_launch(frame, MPT__K_PAIR_LOSS, in);
    mpt__operand_of(launch, 4, frame->out[0], MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* One launch per gradient; that of an input which was broadcast is summed. */
static mpt_status mpt__pair_backward(mpt__frame *frame) {
    mpt_context *context = frame->context;
    const mpt__tensor *x = frame->saved[0];
    for (int i = 0; i < frame->attributes->index[1]; i++) {
        if (!mpt__wants(frame, i)) continue;
        mpt__access access;
        const mpt__tensor *target = mpt__gradient_into(frame, i, &access), *to = target;
        bool whole = mpt__same_shape(frame->in[i], x);
        if (target && !whole) to = mpt__temporary(frame, mpt__loss_dtype(frame), &x->shape);
        if (!to) return context->base.status;
        mpt__launch *launch = mpt__pair_launch(frame, MPT__K_PAIR_LOSS_BACKWARD, frame->saved);
        launch->index[0] = i;
        mpt__operand_spread(launch, 4, frame->dy[0], x);
        mpt__operand_of(launch, 5, to, whole ? access : MPT__WRITE);
        mpt_status status = mpt__submit(context, launch);
        if (status == MPT_OK && !whole)
            status = mpt__launch_reduce(context, MPT__FN_SUM, to, target, access);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

#endif
