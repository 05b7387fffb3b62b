/* ----
 * ops/recurrent.c: recurrent nets as ops: one layer in one direction.
 *
 * What x gives to the gates of all steps is one product; then each step is a product with the state
 * and a launch for the gates. Backward goes the other way, and the weights' gradients are products
 * over all steps. Gates and cells are fp32, whatever the dtype of x.
 * ---- */
#ifndef MPT__OPS_RECURRENT_INCLUDED
#define MPT__OPS_RECURRENT_INCLUDED

#include "ops/resize.c"

MPT__DEFAULTS(mpt_cell_config, )

#ifdef MPTRAIN_NO_RECURRENT

MPT__BEGIN_ABSENT
static mpt_tensor mpt__no_recurrent(mpt_tensor x, const char *name) {
    mpt__absent(x.context, name, "recurrent layers (MPTRAIN_NO_RECURRENT)");
    return mpt__null(x.context);
}
mpt_tensor mpt_rnn(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h) {
    return mpt__no_recurrent(x, "mpt_rnn");
}
mpt_tensor mpt_lstm(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h, mpt_tensor *c) {
    return mpt__no_recurrent(x, "mpt_lstm");
}
mpt_tensor mpt_gru(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h) {
    return mpt__no_recurrent(x, "mpt_gru");
}
MPT__END_ABSENT

#else

/* Inputs, and what of them is saved at the same positions; then what forward adds. */
enum {
    MPT__RNN_X,
    MPT__RNN_IH,
    MPT__RNN_HH,
    MPT__RNN_BIAS_IH,
    MPT__RNN_BIAS_HH,
    MPT__RNN_HR,
    MPT__RNN_H,
    MPT__RNN_C,
    MPT__RNN_LENGTHS,
    MPT__RNN_INPUTS,
    MPT__RNN_GATES = MPT__RNN_INPUTS,
    MPT__RNN_AFTER,  /* cells of an LSTM; of a GRU what the state gives to n */
    MPT__RNN_STATES, /* those that the next step begins with: the output, unless lengths differ */
    MPT__RNN_INNER,  /* before the projection */
    MPT__RNN_SAVED
};

/* What a call is about. index[0]: batch_first; index[1]: backwards in time. */
typedef struct {
    mpt__cell cell;
    bool batch_first, reverse, wide;            /* wide: with a projection */
    int64_t gates, steps, batch, hidden, width; /* width: of the state */
    mpt_dtype real;
} mpt__recurrence;

static mpt__recurrence mpt__recurrence_of(const mpt__frame *frame) {
    mpt__recurrence r;
    const mpt_shape *x = &frame->in[MPT__RNN_X]->shape, *w = &frame->in[MPT__RNN_HH]->shape;
    bool relu = frame->attributes->activation == MPT_ACTIVATION_RELU;
    r.cell = frame->op == MPT__OP_lstm ? MPT__CELL_LSTM
        : frame->op == MPT__OP_gru     ? MPT__CELL_GRU
        : relu                         ? MPT__CELL_RELU
                                       : MPT__CELL_TANH;
    r.gates = r.cell == MPT__CELL_LSTM ? 4 : r.cell == MPT__CELL_GRU ? 3 : 1;
    r.batch_first = frame->attributes->index[0] != 0;
    r.reverse = frame->attributes->index[1] != 0;
    r.wide = frame->in[MPT__RNN_HR] != NULL;
    r.steps = x->dim[r.batch_first];
    r.batch = x->dim[!r.batch_first];
    r.hidden = w->dim[0] / r.gates;
    r.width = w->dim[1];
    r.real = mpt__loss_dtype(frame);
    return r;
}

/* ==== Shapes ==== */

static bool mpt__is_matrix(const mpt__tensor *x, int64_t rows, int64_t columns) {
    return x->shape.rank == 2 && x->shape.dim[0] == rows && x->shape.dim[1] == columns;
}

static mpt_status mpt__recurrent_weights(mpt__frame *frame, const mpt__recurrence *r) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *hr = frame->in[MPT__RNN_HR];
    int64_t rows = r->gates * r->hidden;
    if (hr && (r->cell != MPT__CELL_LSTM || !mpt__is_matrix(hr, r->width, r->hidden)))
        return mpt__error(ctx, SHAPE,
            "weight_hr %S: expected [%lld, %lld], of an LSTM, whose weight_hh is "
            "[4 hidden, projection]",
            &hr->shape, r->width, r->hidden);
    if (!hr && r->width != r->hidden)
        return mpt__error(ctx, SHAPE, "weight_hh %S: expected [%lld hidden, hidden]",
            &frame->in[MPT__RNN_HH]->shape, r->gates);
    for (int i = MPT__RNN_BIAS_IH; i <= MPT__RNN_BIAS_HH; i++) {
        const mpt__tensor *bias = frame->in[i];
        if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != rows))
            return mpt__error(ctx, SHAPE, "%s %S: expected [%lld]",
                i == MPT__RNN_BIAS_IH ? "bias_ih" : "bias_hh", &bias->shape, rows);
    }
    return MPT_OK;
}

static mpt_status mpt__recurrent_states(mpt__frame *frame, const mpt__recurrence *r) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *h = frame->in[MPT__RNN_H], *c = frame->in[MPT__RNN_C];
    const mpt__tensor *lengths = frame->in[MPT__RNN_LENGTHS];
    if (h && !mpt__is_matrix(h, r->batch, r->width))
        return mpt__error(
            ctx, SHAPE, "state h %S: expected [%lld, %lld]", &h->shape, r->batch, r->width);
    if (c && !mpt__is_matrix(c, r->batch, r->hidden))
        return mpt__error(
            ctx, SHAPE, "state c %S: expected [%lld, %lld]", &c->shape, r->batch, r->hidden);
    if (lengths && lengths->dtype != MPT_I64)
        return mpt__error(
            ctx, DTYPE, "lengths are %D: expected i64; mpt_cast them", lengths->dtype);
    if (lengths && (lengths->shape.rank != 1 || lengths->shape.dim[0] != r->batch))
        return mpt__error(ctx, SHAPE, "lengths %S: expected one for each sequence, [%lld]",
            &lengths->shape, r->batch);
    return MPT_OK;
}

static mpt_status mpt__recurrent_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt_shape *x = &frame->in[MPT__RNN_X]->shape, *ih = &frame->in[MPT__RNN_IH]->shape;
    const mpt_shape *hh = &frame->in[MPT__RNN_HH]->shape;
    int gates = frame->op == MPT__OP_lstm ? 4 : frame->op == MPT__OP_gru ? 3 : 1;
    if (x->rank != 3 || x->dim[frame->attributes->index[0] != 0] == 0)
        return mpt__error(ctx, SHAPE,
            "input %S: expected [T, B, features] of a step or more, or [B, T, "
            "features] with batch_first",
            x);
    if (ih->rank != 2 || hh->rank != 2 || ih->dim[0] != hh->dim[0] || hh->dim[0] == 0 ||
        hh->dim[0] % gates != 0 || ih->dim[1] != x->dim[2])
        return mpt__error(ctx, SHAPE,
            "weight_ih %S, weight_hh %S: expected [%d hidden, %lld], as many as x "
            "has features, and [%d hidden, hidden]",
            ih, hh, gates, x->dim[2], gates);
    mpt__recurrence r = mpt__recurrence_of(frame);
    if (mpt__recurrent_weights(frame, &r) != MPT_OK || mpt__recurrent_states(frame, &r) != MPT_OK)
        return ctx->base.status;
    frame->out_shape[0] = *x;
    frame->out_shape[0].dim[2] = r.width;
    frame->out_shape[1] = MPT_SHAPE(r.batch, r.width);
    frame->out_shape[2] = MPT_SHAPE(r.batch, r.hidden);
    frame->out_dtype[1] = frame->out_dtype[2] = frame->out_dtype[0];
    return MPT_OK;
}

/* ==== Steps ==== */

/* The step at time t of [T, B, n], or [B, T, n], as [B, n]. */
static mpt__tensor mpt__step_of(const mpt__recurrence *r, const mpt__tensor *all, int64_t t) {
    mpt__tensor view = *all;
    view.shape = MPT_SHAPE(r->batch, all->shape.dim[2]);
    view.offset += t * all->stride[r->batch_first];
    view.stride[0] = all->stride[!r->batch_first];
    view.stride[1] = all->stride[2];
    return view;
}

/* `count` steps from t on. */
static mpt__tensor mpt__steps_of(
    const mpt__recurrence *r, const mpt__tensor *all, int64_t t, int64_t count) {
    mpt__tensor view = *all;
    view.shape.dim[r->batch_first] = count;
    view.offset += t * all->stride[r->batch_first];
    return view;
}

/* Of x's layout, with n numbers a step. */
static mpt__tensor *mpt__steps_new(
    mpt__frame *frame, const mpt__recurrence *r, mpt_dtype dtype, int64_t n) {
    mpt_shape shape =
        r->batch_first ? MPT_SHAPE(r->batch, r->steps, n) : MPT_SHAPE(r->steps, r->batch, n);
    return mpt__temporary(frame, dtype, &shape);
}

static mpt__tensor *mpt__state_new(mpt__frame *frame, const mpt__recurrence *r, int64_t n) {
    mpt_shape shape = MPT_SHAPE(r->batch, n);
    return mpt__temporary(frame, r->real, &shape);
}

/* `all` as [T, B, n]. */
static mpt__tensor mpt__by_time(const mpt__recurrence *r, const mpt__tensor *all) {
    mpt__tensor view = *all;
    view.shape = MPT_SHAPE(r->steps, r->batch, all->shape.dim[2]);
    view.stride[0] = all->stride[r->batch_first];
    view.stride[1] = all->stride[!r->batch_first];
    return view;
}

/* Whether all steps are one launch; few sequences are better off with products of few rows. */
static bool mpt__recurrent_unrolls(const mpt__frame *frame, const mpt__recurrence *r) {
    return !r->wide && r->batch >= 4 && (frame->context->backend.unrolls >> frame->compute & 1);
}

static mpt__launch *mpt__sequences_launch(
    mpt__frame *frame, const mpt__recurrence *r, mpt__kernel kernel) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->index[0] = r->cell;
    launch->index[1] = r->reverse;
    launch->index[2] = r->steps;
    launch->compute_dtype = (uint8_t)frame->compute;
    return launch;
}

static void mpt__sequences_weight(
    mpt__launch *launch, int k, const mpt__tensor *weight, const mpt__source *source) {
    mpt__reads(launch, k, weight);
    launch->operand[k].storage = source->storage;
    launch->operand[k].dtype = source->dtype;
}

static int64_t mpt__time_of(const mpt__recurrence *r, int64_t step) {
    return r->reverse ? r->steps - 1 - step : step;
}

/* out = a w or a w^T, with a weight as mpt__gemm_source gave it. */
static mpt_status mpt__recurrent_product(mpt__frame *frame, const mpt__tensor *a,
    const mpt__tensor *weight, const mpt__source *source, bool transposed, const mpt__tensor *bias,
    const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__gemm_begin(frame);
    const mpt__operand *rows = mpt__operand_rows(launch, 0, a, false, MPT__READ);
    mpt__linear_weight(launch, weight, source, transposed);
    if (bias) mpt__operand_matrix(launch, 2, bias, rows->shape[0], 0, false, MPT__READ);
    mpt__operand_rows(launch, 3, out, false, access);
    return mpt__submit(frame->context, launch);
}

/* A dense input for the kernels; NULL where it is absent. */
static bool mpt__recurrent_dense(
    mpt__frame *frame, const mpt__tensor *from, const mpt__tensor **dense) {
    *dense = from ? mpt__contiguous_of(frame, from) : NULL;
    return *dense || !from;
}

static mpt__launch *mpt__cell_launch(mpt__frame *frame, const mpt__recurrence *r, bool backward,
    mpt__cell cell, int64_t t, const mpt__tensor *lengths) {
    mpt__launch *launch =
        mpt__launch_begin(frame->context, backward ? MPT__K_RECURRENT_BACKWARD : MPT__K_RECURRENT);
    launch->index[0] = cell;
    launch->index[1] = t;
    if (lengths) mpt__reads(launch, backward ? 8 : 6, lengths);
    (void)r;
    return launch;
}

/* ==== Forward ==== */

typedef struct {
    mpt__recurrence r;
    mpt__source hh, hr;
    const mpt__tensor *h, *c, *lengths, *bias; /* dense; NULL: absent */
    mpt__tensor *gates, *after, *states, *inner, *given, *wide;
    bool keeps; /* all steps of `after` */
} mpt__unrolled;

static bool mpt__unrolled_begin(mpt__frame *frame, mpt__unrolled *u) {
    mpt_context *ctx = frame->context;
    mpt__tensor *const *in = frame->in;
    u->r = mpt__recurrence_of(frame);
    const mpt__recurrence *r = &u->r;
    mpt_dtype dtype = frame->out_dtype[0];
    bool two = r->cell == MPT__CELL_LSTM || r->cell == MPT__CELL_GRU;
    u->after = u->inner = u->wide = NULL;
    u->states = frame->out[0];
    u->keeps = frame->records;
    if (!mpt__recurrent_dense(frame, in[MPT__RNN_H], &u->h) ||
        !mpt__recurrent_dense(frame, in[MPT__RNN_C], &u->c) ||
        !mpt__recurrent_dense(frame, in[MPT__RNN_LENGTHS], &u->lengths) ||
        !mpt__recurrent_dense(frame, in[MPT__RNN_BIAS_HH], &u->bias))
        return false;
    u->gates = mpt__steps_new(frame, r, r->real, r->gates * r->hidden);
    u->given = NULL;
    if (u->gates && !mpt__recurrent_unrolls(frame, r))
        u->given = mpt__state_new(frame, r, r->gates * r->hidden);
    if (mpt__ok(ctx) && two && u->keeps)
        u->after = mpt__steps_new(frame, r, r->real, r->hidden);
    else if (mpt__ok(ctx) && r->cell == MPT__CELL_LSTM)
        u->after = mpt__state_new(frame, r, r->hidden);
    if (mpt__ok(ctx) && u->lengths) u->states = mpt__steps_new(frame, r, dtype, r->width);
    if (mpt__ok(ctx) && r->wide) u->inner = mpt__steps_new(frame, r, dtype, r->hidden);
    if (mpt__ok(ctx) && r->wide && u->lengths) u->wide = mpt__state_new(frame, r, r->width);
    if (!mpt__ok(ctx) || !mpt__gemm_source(ctx, in[MPT__RNN_HH], frame->compute, &u->hh))
        return false;
    return !r->wide || mpt__gemm_source(ctx, in[MPT__RNN_HR], frame->compute, &u->hr);
}

static void mpt__unrolled_save(mpt__frame *frame, const mpt__unrolled *u) {
    for (int i = 0; i < MPT__RNN_INPUTS; i++) {
        bool bias = i == MPT__RNN_BIAS_IH || i == MPT__RNN_BIAS_HH;
        mpt__save(frame, bias ? NULL : frame->in[i]);
    }
    mpt__save(frame, u->gates);
    mpt__save(frame, u->after);
    mpt__save(frame, u->states);
    mpt__save(frame, u->inner);
}

/* A step's products with its state; false without one, which counts as 0. */
static bool mpt__unrolled_given(
    mpt__frame *frame, const mpt__unrolled *u, const mpt__tensor *before) {
    if (!before) return false;
    mpt__recurrent_product(
        frame, before, frame->in[MPT__RNN_HH], &u->hh, true, NULL, u->given, MPT__WRITE);
    return mpt__ok(frame->context);
}

/* The projection of a step, and what of it is over. */
static mpt_status mpt__unrolled_project(
    mpt__frame *frame, const mpt__unrolled *u, int64_t t, const mpt__tensor *before) {
    mpt__tensor inner = mpt__step_of(&u->r, u->inner, t);
    mpt__tensor out = mpt__step_of(&u->r, frame->out[0], t);
    mpt__recurrent_product(frame, &inner, frame->in[MPT__RNN_HR], &u->hr, true, NULL,
        u->lengths ? u->wide : &out, MPT__WRITE);
    if (!u->lengths || !mpt__ok(frame->context)) return mpt__outcome(frame);
    mpt__tensor state = mpt__step_of(&u->r, u->states, t);
    mpt__launch *launch = mpt__cell_launch(frame, &u->r, false, MPT__CELL_CARRY, t, u->lengths);
    mpt__reads(launch, 1, u->wide);
    mpt__writes(launch, 5, &out);
    mpt__writes(launch, 7, &state);
    if (before) mpt__reads(launch, 8, before);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__unrolled_step(mpt__frame *frame, const mpt__unrolled *u, int64_t step) {
    const mpt__recurrence *r = &u->r;
    int64_t t = mpt__time_of(r, step), last = mpt__time_of(r, step - 1);
    mpt__tensor gates = mpt__step_of(r, u->gates, t), cell, after, kept, state, out;
    const mpt__tensor *before = u->h, *c = u->c;
    bool first = step == 0;
    if (!first) kept = mpt__step_of(r, u->states, last), before = &kept;
    if (u->after && u->keeps) after = mpt__step_of(r, u->after, t);
    if (u->after && !u->keeps) after = *u->after;
    if (!first && r->cell == MPT__CELL_LSTM)
        cell = u->keeps ? mpt__step_of(r, u->after, last) : *u->after, c = &cell;
    bool given = mpt__unrolled_given(frame, u, before);
    if (!mpt__ok(frame->context)) return mpt__outcome(frame);
    out = mpt__step_of(r, r->wide ? u->inner : frame->out[0], t);
    mpt__launch *launch = mpt__cell_launch(frame, r, false, r->cell, t, u->lengths);
    mpt__operand_of(launch, 0, &gates, MPT__READ_WRITE);
    if (given) mpt__reads(launch, 1, u->given);
    if (u->bias) mpt__reads(launch, 2, u->bias);
    if (r->cell == MPT__CELL_LSTM && c) mpt__reads(launch, 3, c);
    if (r->cell == MPT__CELL_GRU && before) mpt__reads(launch, 3, before);
    if (u->after) mpt__writes(launch, 4, &after);
    mpt__writes(launch, 5, &out);
    if (u->lengths && !r->wide) {
        state = mpt__step_of(r, u->states, t);
        mpt__writes(launch, 7, &state);
        if (before) mpt__reads(launch, 8, before);
    }
    mpt_status status = mpt__submit(frame->context, launch);
    return status == MPT_OK && r->wide ? mpt__unrolled_project(frame, u, t, before) : status;
}

static mpt_status mpt__unrolled_all(mpt__frame *frame, const mpt__unrolled *u) {
    const mpt__recurrence *r = &u->r;
    mpt__launch *launch = mpt__sequences_launch(frame, r, MPT__K_RECURRENT);
    mpt__tensor gates = mpt__by_time(r, u->gates), out = mpt__by_time(r, frame->out[0]), after;
    mpt__tensor states = mpt__by_time(r, u->states);
    mpt__operand_of(launch, 0, &gates, MPT__READ_WRITE);
    mpt__sequences_weight(launch, 1, frame->in[MPT__RNN_HH], &u->hh);
    if (u->bias) mpt__reads(launch, 2, u->bias);
    if (u->h) mpt__reads(launch, 3, u->h);
    if (u->after) {
        after = u->keeps ? mpt__by_time(r, u->after) : *u->after;
        mpt__writes(launch, 4, &after);
    }
    mpt__writes(launch, 5, &out);
    if (u->lengths) {
        mpt__reads(launch, 6, u->lengths);
        mpt__writes(launch, 7, &states);
    }
    if (u->c) mpt__reads(launch, 8, u->c);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__recurrent_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__source ih;
    mpt__unrolled u;
    if (!mpt__unrolled_begin(frame, &u) ||
        !mpt__gemm_source(ctx, frame->in[MPT__RNN_IH], frame->compute, &ih))
        return ctx->base.status;
    const mpt__recurrence *r = &u.r;
    const mpt__tensor *x = mpt__contiguous_of(frame, frame->in[MPT__RNN_X]);
    if (!x) return ctx->base.status;
    mpt__unrolled_save(frame, &u);
    mpt__recurrent_product(frame, x, frame->in[MPT__RNN_IH], &ih, true, frame->in[MPT__RNN_BIAS_IH],
        u.gates, MPT__WRITE);
    const bool all = mpt__recurrent_unrolls(frame, r);
    if (all && mpt__ok(ctx) && mpt__unrolled_all(frame, &u) != MPT_OK) return ctx->base.status;
    for (int64_t step = 0; step < r->steps && !all && mpt__ok(ctx); step++)
        if (mpt__unrolled_step(frame, &u, step) != MPT_OK) return ctx->base.status;
    int64_t end = mpt__time_of(r, r->steps - 1);
    mpt__tensor last = mpt__step_of(r, u.states, end);
    if (mpt__launch_copy(ctx, &last, frame->out[1], MPT__WRITE) != MPT_OK || frame->n_out < 3)
        return ctx->base.status;
    last = u.keeps ? mpt__step_of(r, u.after, end) : *u.after;
    return mpt__launch_copy(ctx, &last, frame->out[2], MPT__WRITE);
}

/* ==== Backward ==== */

typedef struct {
    mpt__recurrence r;
    mpt__source hh, hr;
    const mpt__tensor *h, *c, *lengths, *dy;
    mpt__tensor *slopes, *by_state; /* by what x gives to the gates, by what the state gives */
    mpt__tensor *projected;         /* by the projected state */
    mpt__tensor *dh, *dc, *dm;      /* of the step under way; dm: before the projection */
} mpt__rolled;

/* A slope that begins as that of an output, or 0. */
static mpt__tensor *mpt__rolled_state(
    mpt__frame *frame, const mpt__recurrence *r, int64_t n, int output) {
    const mpt__tensor *from = output < frame->n_out ? frame->dy[output] : NULL;
    mpt__tensor *state = mpt__state_new(frame, r, n);
    if (!state) return NULL;
    if (from)
        mpt__launch_copy(frame->context, from, state, MPT__WRITE);
    else
        mpt__launch_fill(frame->context, state, 0.0);
    return mpt__ok(frame->context) ? state : NULL;
}

static bool mpt__rolled_begin(mpt__frame *frame, mpt__rolled *b) {
    mpt_context *ctx = frame->context;
    mpt__tensor *const *saved = frame->saved;
    b->r = mpt__recurrence_of(frame);
    const mpt__recurrence *r = &b->r;
    mpt_dtype dtype = (mpt_dtype)saved[MPT__RNN_STATES]->dtype;
    int64_t rows = r->gates * r->hidden;
    b->projected = b->dc = b->dm = NULL;
    if (!mpt__recurrent_dense(frame, saved[MPT__RNN_H], &b->h) ||
        !mpt__recurrent_dense(frame, saved[MPT__RNN_C], &b->c) ||
        !mpt__recurrent_dense(frame, saved[MPT__RNN_LENGTHS], &b->lengths) ||
        !mpt__recurrent_dense(frame, frame->dy[0], &b->dy))
        return false;
    b->slopes = b->by_state = mpt__steps_new(frame, r, dtype, rows);
    if (b->slopes && r->cell == MPT__CELL_GRU) b->by_state = mpt__steps_new(frame, r, dtype, rows);
    if (mpt__ok(ctx) && r->wide) {
        b->projected = mpt__steps_new(frame, r, dtype, r->width);
        b->dm = b->projected ? mpt__state_new(frame, r, r->hidden) : NULL;
    }
    b->dh = mpt__ok(ctx) ? mpt__rolled_state(frame, r, r->width, 1) : NULL;
    if (b->dh && r->cell == MPT__CELL_LSTM) b->dc = mpt__rolled_state(frame, r, r->hidden, 2);
    if (!mpt__ok(ctx) || !mpt__gemm_source(ctx, saved[MPT__RNN_HH], frame->compute, &b->hh))
        return false;
    return !r->wide || mpt__gemm_source(ctx, saved[MPT__RNN_HR], frame->compute, &b->hr);
}

/* The slope by the output of a step, and through the projection. */
static mpt_status mpt__rolled_project(mpt__frame *frame, const mpt__rolled *b, int64_t t) {
    mpt__tensor dy, projected = mpt__step_of(&b->r, b->projected, t);
    mpt__launch *launch = mpt__cell_launch(frame, &b->r, true, MPT__CELL_CARRY, t, b->lengths);
    mpt__writes(launch, 1, &projected);
    if (b->dy) dy = mpt__step_of(&b->r, b->dy, t), mpt__reads(launch, 5, &dy);
    mpt__operand_of(launch, 6, b->dh, MPT__READ_WRITE);
    if (mpt__submit(frame->context, launch) != MPT_OK) return mpt__outcome(frame);
    return mpt__recurrent_product(
        frame, &projected, frame->saved[MPT__RNN_HR], &b->hr, false, NULL, b->dm, MPT__WRITE);
}

static mpt_status mpt__rolled_step(mpt__frame *frame, const mpt__rolled *b, int64_t step) {
    const mpt__recurrence *r = &b->r;
    mpt__tensor *const *saved = frame->saved;
    int64_t t = mpt__time_of(r, step), last = mpt__time_of(r, step - 1);
    bool lstm = r->cell == MPT__CELL_LSTM, gru = r->cell == MPT__CELL_GRU;
    const mpt__tensor *before = lstm ? b->c : b->h;
    mpt__tensor gates = mpt__step_of(r, saved[MPT__RNN_GATES], t), dy, after, kept;
    mpt__tensor slopes = mpt__step_of(r, b->slopes, t), by_state = mpt__step_of(r, b->by_state, t);
    if (step > 0)
        kept = mpt__step_of(r, saved[lstm ? MPT__RNN_AFTER : MPT__RNN_STATES], last),
        before = &kept;
    if (r->wide && mpt__rolled_project(frame, b, t) != MPT_OK) return mpt__outcome(frame);
    mpt__launch *launch = mpt__cell_launch(frame, r, true, r->cell, t, b->lengths);
    mpt__reads(launch, 0, &gates);
    mpt__writes(launch, 1, &slopes);
    if (gru) mpt__writes(launch, 2, &by_state);
    if (before && (lstm || gru)) mpt__reads(launch, 3, before);
    if (lstm || gru) {
        after = mpt__step_of(r, saved[MPT__RNN_AFTER], t);
        mpt__reads(launch, 4, &after);
    }
    if (b->dy && !r->wide) dy = mpt__step_of(r, b->dy, t), mpt__reads(launch, 5, &dy);
    mpt__operand_of(launch, 6, r->wide ? b->dm : b->dh, MPT__READ_WRITE);
    if (lstm) mpt__operand_of(launch, 7, b->dc, MPT__READ_WRITE);
    mpt_status status = mpt__submit(frame->context, launch);
    if (status != MPT_OK || (step == 0 && !mpt__wants(frame, MPT__RNN_H))) return status;
    return mpt__recurrent_product(frame, &by_state, saved[MPT__RNN_HH], &b->hh, false, NULL, b->dh,
        gru || b->lengths ? MPT__ACCUMULATE : MPT__WRITE);
}

static mpt_status mpt__rolled_all(mpt__frame *frame, const mpt__rolled *b) {
    const mpt__recurrence *r = &b->r;
    mpt__tensor *const *saved = frame->saved;
    const bool lstm = r->cell == MPT__CELL_LSTM, gru = r->cell == MPT__CELL_GRU;
    const mpt__tensor *begun = lstm ? b->c : b->h;
    mpt__tensor gates = mpt__by_time(r, saved[MPT__RNN_GATES]), after, states, dy;
    mpt__tensor slopes = mpt__by_time(r, b->slopes), by_state = mpt__by_time(r, b->by_state);
    mpt__launch *launch = mpt__sequences_launch(frame, r, MPT__K_RECURRENT_BACKWARD);
    launch->index[3] = mpt__wants(frame, MPT__RNN_H);
    mpt__sequences_weight(launch, 9, saved[MPT__RNN_HH], &b->hh);
    mpt__reads(launch, 0, &gates);
    mpt__writes(launch, 1, &slopes);
    if (gru) mpt__writes(launch, 2, &by_state);
    if (begun && (lstm || gru)) mpt__reads(launch, 3, begun);
    if (lstm || gru) {
        after = mpt__by_time(r, saved[MPT__RNN_AFTER]);
        mpt__reads(launch, 4, &after);
    }
    if (b->dy) dy = mpt__by_time(r, b->dy), mpt__reads(launch, 5, &dy);
    mpt__operand_of(launch, 6, b->dh, MPT__READ_WRITE);
    if (lstm) mpt__operand_of(launch, 7, b->dc, MPT__READ_WRITE);
    if (gru) states = mpt__by_time(r, saved[MPT__RNN_STATES]), mpt__reads(launch, 7, &states);
    if (b->lengths) mpt__reads(launch, 8, b->lengths);
    return mpt__submit(frame->context, launch);
}

/* dw = slopes^T of, over all steps that both have. */
static mpt_status mpt__rolled_weight(
    mpt__frame *frame, int i, const mpt__tensor *slopes, const mpt__tensor *of) {
    mpt__access access;
    const mpt__tensor *dw = mpt__gradient_into(frame, i, &access);
    if (!dw) return mpt__outcome(frame);
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__operand_rows(launch, 0, slopes, true, MPT__READ);
    mpt__operand_rows(launch, 1, of, false, MPT__READ);
    mpt__operand_matrix(launch, 3, dw, dw->shape.dim[0], dw->stride[0], false, access);
    return mpt__submit(frame->context, launch);
}

/* x with zeros where sequences are over: slopes are 0 there, and 0 times infinity is none. */
static const mpt__tensor *mpt__rolled_input(
    mpt__frame *frame, const mpt__rolled *b, const mpt__tensor *x) {
    const mpt__recurrence *r = &b->r;
    if (!b->lengths || !x) return x;
    const mpt__tensor *all = mpt__steps_new(frame, r, (mpt_dtype)x->dtype, x->shape.dim[2]);
    for (int64_t t = 0; t < r->steps && all; t++) {
        mpt__tensor from = mpt__step_of(r, x, t), to = mpt__step_of(r, all, t);
        mpt__launch *launch = mpt__cell_launch(frame, r, false, MPT__CELL_CARRY, t, b->lengths);
        mpt__reads(launch, 1, &from);
        mpt__writes(launch, 5, &to);
        if (mpt__submit(frame->context, launch) != MPT_OK) return NULL;
    }
    return all;
}

static mpt_status mpt__rolled_bias(mpt__frame *frame, int i, const mpt__tensor *slopes) {
    mpt__access access;
    const mpt__tensor *db = mpt__gradient_into(frame, i, &access);
    if (!db) return mpt__outcome(frame);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_REDUCE);
    launch->function = MPT__FN_SUM;
    const mpt__operand *rows = mpt__operand_rows(launch, 0, slopes, false, MPT__READ);
    mpt__operand_matrix(launch, 1, db, 1, 0, false, access);
    if (rows->shape[0] == 1) launch->kernel = MPT__K_COPY; /* nothing to sum */
    return mpt__submit(frame->context, launch);
}

/* The gradient of weight_hh, of steps and the states before them: together already where none was
   before the first, else brought together. */
static mpt_status mpt__rolled_recurrent(mpt__frame *frame, const mpt__rolled *b) {
    const mpt__recurrence *r = &b->r;
    const mpt__tensor *states = frame->saved[MPT__RNN_STATES];
    mpt__tensor from = mpt__steps_of(r, states, r->reverse ? 1 : 0, r->steps - 1);
    int64_t to = r->reverse ? 0 : 1;
    if (!mpt__wants(frame, MPT__RNN_HH)) return MPT_OK;
    if (!b->h && !r->batch_first) {
        mpt__tensor slopes = mpt__steps_of(r, b->by_state, to, r->steps - 1);
        return mpt__rolled_weight(frame, MPT__RNN_HH, &slopes, &from);
    }
    const mpt__tensor *all = mpt__steps_new(frame, r, (mpt_dtype)states->dtype, r->width);
    if (!all) return mpt__outcome(frame);
    mpt__tensor rest = mpt__steps_of(r, all, to, r->steps - 1);
    mpt__tensor first = mpt__step_of(r, all, mpt__time_of(r, 0));
    if (r->steps > 1) mpt__launch_copy(frame->context, &from, &rest, MPT__WRITE);
    if (b->h)
        mpt__launch_copy(frame->context, b->h, &first, MPT__WRITE);
    else
        mpt__launch_fill(frame->context, &first, 0.0);
    return mpt__rolled_weight(frame, MPT__RNN_HH, b->by_state, all);
}

/* The gradient of a state that the first step began with. */
static mpt_status mpt__rolled_begun(mpt__frame *frame, int i, const mpt__tensor *slope) {
    mpt__access access;
    const mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    return target ? mpt__launch_copy(frame->context, slope, target, access) : mpt__outcome(frame);
}

static mpt_status mpt__recurrent_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__access access;
    mpt__rolled b;
    if (!mpt__rolled_begin(frame, &b)) return ctx->base.status;
    const bool all = mpt__recurrent_unrolls(frame, &b.r);
    if (all && mpt__rolled_all(frame, &b) != MPT_OK) return ctx->base.status;
    for (int64_t step = b.r.steps - 1; step >= 0 && !all; step--)
        if (mpt__rolled_step(frame, &b, step) != MPT_OK) return ctx->base.status;
    const mpt__tensor *x = frame->saved[MPT__RNN_X];
    if (mpt__wants(frame, MPT__RNN_IH))
        x = mpt__rolled_input(frame, &b, mpt__contiguous_of(frame, x));
    const mpt__tensor *dx = x ? mpt__gradient_into(frame, MPT__RNN_X, &access) : NULL;
    if (dx) {
        mpt__source ih;
        if (!mpt__gemm_source(ctx, frame->saved[MPT__RNN_IH], frame->compute, &ih))
            return ctx->base.status;
        mpt__recurrent_product(
            frame, b.slopes, frame->saved[MPT__RNN_IH], &ih, false, NULL, dx, access);
    }
    if (!mpt__ok(ctx) || mpt__rolled_weight(frame, MPT__RNN_IH, b.slopes, x) != MPT_OK ||
        mpt__rolled_recurrent(frame, &b) != MPT_OK ||
        mpt__rolled_bias(frame, MPT__RNN_BIAS_IH, b.slopes) != MPT_OK ||
        mpt__rolled_bias(frame, MPT__RNN_BIAS_HH, b.by_state) != MPT_OK)
        return ctx->base.status;
    if (b.r.wide &&
        mpt__rolled_weight(frame, MPT__RNN_HR, b.projected, frame->saved[MPT__RNN_INNER]) != MPT_OK)
        return ctx->base.status;
    mpt_status status = mpt__rolled_begun(frame, MPT__RNN_H, b.dh);
    return status == MPT_OK && b.dc ? mpt__rolled_begun(frame, MPT__RNN_C, b.dc) : status;
}

/* ==== The functions ==== */

/* One output for each state and one besides, on the inputs of its record. */
static mpt_status mpt__recurrent_run(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt_status status = mpt__call_shape(frame);
    for (int i = 0; i < frame->n_out; i++) {
        frame->out[i] = status != MPT_OK ? NULL
                                         : mpt__tensor_make(ctx, frame->out_dtype[i],
                                               &frame->out_shape[i], MPT_MEMORY_ACTIVATION, true);
        if (!frame->out[i]) status = ctx->base.status;
    }
    if (status == MPT_OK) status = mpt__call_forward(frame);
    mpt__call_end(frame, frame->n_out, status);
    for (int i = 0; i < frame->n_out && status != MPT_OK; i++)
        if (frame->out[i]) mpt__tensor_drop(ctx, frame->out[i]);
    return status;
}

/* state: h, and c of an LSTM; before the call, and after it, null on error. */
static mpt_tensor mpt__recurrent_call(const char *name, int op, mpt_tensor x,
    const mpt_cell_config *how, mpt_tensor *const state[2]) {
    mpt_cell_config none = mpt_cell_config_default();
    const int n_out = op == MPT__OP_lstm ? 3 : 2;
    if (!how) how = &none;
    mpt_tensor in[] = {x, how->weight_ih, how->weight_hh, how->bias_ih, how->bias_hh,
        how->weight_hr, mpt__null(NULL), mpt__null(NULL), how->lengths};
    const int n_in = sizeof in / sizeof *in;
    mpt__attributes attributes = mpt__no_attributes;
    mpt__frame frame;
    for (int i = 0; i < n_out - 1; i++)
        if (state[i]) in[6 + i] = *state[i];
    mpt_context *ctx = mpt__context_of(in, n_in);
    for (int i = 0; i < n_out - 1; i++)
        if (state[i]) *state[i] = mpt__null(ctx);
    attributes.required = (uint8_t)(n_in - 1); /* lengths are of another dtype than the others */
    attributes.index[0] = how->batch_first;
    attributes.index[1] = how->reverse;
    attributes.activation = (uint8_t)(how->relu ? MPT_ACTIVATION_RELU : MPT_ACTIVATION_TANH);
    if (!mpt__enter(ctx, name) || !mpt__call_begin(&frame, ctx, op, n_in, n_out, &attributes))
        return mpt__null(ctx);
    if (!mpt__find_inputs(ctx, in, n_in, 3, frame.record->in)) {
        mpt__record_spare(ctx, frame.record);
        return mpt__null(ctx);
    }
    if (mpt__recurrent_run(&frame) != MPT_OK) return mpt__null(ctx);
    for (int i = 1; i < n_out; i++) {
        if (state[i - 1])
            *state[i - 1] = mpt__handle(ctx, frame.out[i]);
        else
            mpt__tensor_drop(ctx, frame.out[i]);
    }
    return mpt__handle(ctx, frame.out[0]);
}

mpt_tensor mpt_rnn(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h) {
    mpt_tensor *const state[] = {h, NULL};
    return mpt__recurrent_call("mpt_rnn", MPT__OP_rnn, x, how, state);
}
mpt_tensor mpt_lstm(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h, mpt_tensor *c) {
    mpt_tensor *const state[] = {h, c};
    return mpt__recurrent_call("mpt_lstm", MPT__OP_lstm, x, how, state);
}
mpt_tensor mpt_gru(mpt_tensor x, const mpt_cell_config *how, mpt_tensor *h) {
    mpt_tensor *const state[] = {h, NULL};
    return mpt__recurrent_call("mpt_gru", MPT__OP_gru, x, how, state);
}

#endif

#endif
