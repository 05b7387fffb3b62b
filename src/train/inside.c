/* ----
 * train/inside.c: updates inside backward: a gradient lives until the last op that adds to it has
 * run, then the update takes it and its memory goes back.
 *
 * All that may be refused is looked for before the first update: from there on only memory that is
 * out can leave a step half done.
 * ---- */
#ifndef MPT__TRAIN_INSIDE_INCLUDED
#define MPT__TRAIN_INSIDE_INCLUDED

#include "train/update.c"

#ifdef MPTRAIN_NO_FRUGAL

#define mpt__inside_forget(ctx) ((void)0)

mpt_status mpt_update_in_backward(mpt_optimizer optimizer, bool on) {
    (void)on;
    return mpt__frugal_missing(optimizer.context, "mpt_update_in_backward");
}

#else

/* The next optimizer behind row *i that updates inside backward; NULL: none is left. */
static mpt__optimizer *mpt__inside_next(const mpt_context *ctx, int64_t *i) {
    mpt__optimizer *optimizer;
    do
        optimizer = (mpt__optimizer *)mpt__object_next(ctx, MPT__OPTIMIZER, i);
    while (optimizer && !optimizer->inside);
    return optimizer;
}

/* A segment for each item, which the launch of its update alone has. */
static mpt_status mpt__inside_rows(mpt_context *ctx, mpt__optimizer *optimizer) {
    if (optimizer->pattern_valid) return MPT_OK;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        int64_t *row = &optimizer->rows[i * MPT__SEGMENT_FIELDS];
        row[MPT__SEGMENT_OFFSET] = 0;
        row[MPT__SEGMENT_COUNT] = ctx->parameters[optimizer->items[i].parameter].numel;
        row[MPT__SEGMENT_STEP] = i;
        row[MPT__SEGMENT_STEPS] = 1;
        mpt__place_show(optimizer, &optimizer->items[i], row);
        mpt__row_groups(optimizer)[i] = optimizer->items[i].group;
    }
    optimizer->row_count = optimizer->item_count + 1; /* none is the last */
    mpt_status status = mpt__upload(ctx, optimizer->segments, 0, optimizer->rows,
        optimizer->item_count * MPT__ROW_BYTES);
    optimizer->pattern_valid = status == MPT_OK;
    return status;
}

/* Whether updates may begin; if so, gradients are on their own from here on. */
static mpt_status mpt__inside_take(mpt_context *ctx, mpt__optimizer *optimizer) {
    if (optimizer->done)
        return mpt__error(ctx, STATE,
            "the optimizer has updated inside backward already; call mpt_step behind each "
            "mpt_backward: gradients cannot be summed over several");
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        mpt__parameter *parameter = &ctx->parameters[item->parameter];
        if (!parameter->live || parameter->block != item->block)
            return mpt__error(ctx, STATE, "a module of the optimizer was destroyed");
        if (parameter->has_grad)
            return mpt__error(ctx, STATE,
                "%s has a gradient already; call mpt_zero_grad before an mpt_backward that updates",
                parameter->path);
        parameter->inside = true;
        mpt__gradient_drop(ctx, &parameter->tensor->gradient); /* the block's */
    }
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        optimizer->states[i].rows = 1;
        mpt__master_refresh(ctx, optimizer, &optimizer->states[i]);
    }
    mpt__update_refused(ctx, optimizer);
    return ctx->base.status;
}

/* Notes after which record the gradient of each parameter is whole and its value not read any
   more. */
static mpt_status mpt__inside_lasts(mpt_context *ctx, const mpt__record *order) {
    for (const mpt__record *record = order; record; record = record->next) {
        if (record->op == MPT__OP_scale_loss)
            return mpt__error(ctx, STATE,
                "the loss is scaled, but updates inside backward come before all gradients are "
                "known to be finite; use bf16 without a scaler");
        if (!record->gates && mpt__check_saved(ctx, record) != MPT_OK) return ctx->base.status;
        for (int i = 0; i < record->n_in; i++)
            if (record->in[i] && record->in[i]->parameter)
                ctx->parameters[record->in[i]->parameter - 1].last = record->number;
        for (int i = 0; i < record->n_saved; i++) {
            const mpt__tensor *saved = record->saved[i];
            if (!saved || saved->parameter ||
                ctx->storages[saved->storage].kind != MPT_MEMORY_PARAMETER)
                continue;
            for (int64_t k = 0; k < ctx->parameter_count; k++) { /* a view of one */
                mpt__parameter *parameter = &ctx->parameters[k];
                if (ctx->blocks[parameter->block].values == saved->storage &&
                    saved->offset >= parameter->offset &&
                    saved->offset < parameter->offset + parameter->numel)
                    parameter->last = UINT32_MAX;
            }
        }
    }
    return MPT_OK;
}

static mpt_status mpt__inside_begin(mpt_context *ctx, const mpt__record *order, bool retain) {
    mpt__optimizer *optimizer;
    if (retain || ctx->capturing || ctx->recorder)
        return mpt__error(ctx, STATE, "an optimizer updates inside backward, which %s",
            retain ? "leaves nothing that another pass could use: pass retain = false"
                   : "captured and recorded steps do not do");
    for (int64_t at = 0; (optimizer = mpt__inside_next(ctx, &at)) != NULL;)
        if (mpt__inside_take(ctx, optimizer) != MPT_OK ||
            mpt__inside_rows(ctx, optimizer) != MPT_OK ||
            mpt__schedule_before_step(ctx, optimizer) != MPT_OK)
            return ctx->base.status;
    return mpt__inside_lasts(ctx, order);
}

/* Updates item i by its gradient, which goes; parameter NULL: a launch over no segment counts the
   step as applied. */
static mpt_status mpt__inside_update(
    mpt_context *ctx, mpt__optimizer *optimizer, int64_t i, mpt__parameter *parameter) {
    const mpt__optim_state *state = &optimizer->states[optimizer->items[i].state];
    const mpt__block *block = mpt__block_of(ctx, state);
    mpt__optim_state part = *state;
    if (parameter) part.first = parameter->offset, part.count = parameter->numel;
    ctx->launch.op_record = 0;
    mpt__launch_origin(ctx, MPT__UPDATE, 0);
    const mpt__update_place place = {
        parameter ? parameter->tensor->gradient->storage : block->values, 0,
        parameter ? part.count : 0, state->first, MPT__SLOT_ONE};
    mpt__launch *launch = mpt__update_launch(ctx, optimizer, &part,
        parameter ? mpt__form_in_use(ctx, block) : -1, i, parameter != NULL, 0, &place);
    if (!parameter) launch->index[1] = 2;
    mpt_status status = mpt__submit(ctx, launch);
    mpt__launch_origin(ctx, MPT__BACKWARD, 0);
    if (!parameter) return status;
    optimizer->done = true;
    mpt__clear_grad(parameter);
    mpt__gradient_drop(ctx, &parameter->tensor->gradient);
    return status;
}

static mpt_status mpt__inside_record(mpt_context *ctx, const mpt__record *record) {
    for (int i = 0; i < record->n_in; i++) {
        const mpt__tensor *in = record->in[i];
        if (!in || !in->parameter) continue;
        mpt__parameter *parameter = &ctx->parameters[in->parameter - 1];
        if (!parameter->inside || !parameter->has_grad || parameter->last != record->number)
            continue;
        mpt__optimizer *optimizer =
            (mpt__optimizer *)mpt__object_slot(ctx, MPT__OPTIMIZER, parameter->optimizer);
        const mpt__optim_item *item = mpt__item_of(optimizer, in->parameter - 1);
        if (mpt__inside_update(ctx, optimizer, item - optimizer->items, parameter) != MPT_OK)
            return ctx->base.status;
    }
    return MPT_OK;
}

/* What is left is updated, the step counted. */
static mpt_status mpt__inside_end(mpt_context *ctx, mpt_status status) {
    mpt__optimizer *optimizer;
    for (int64_t at = 0; (optimizer = mpt__inside_next(ctx, &at)) != NULL;) {
        bool begun = false;
        for (int64_t i = 0; i < optimizer->item_count; i++) {
            mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
            begun |= parameter->inside;
            if (status == MPT_OK && parameter->has_grad)
                status = mpt__inside_update(ctx, optimizer, i, parameter);
            if (parameter->inside) mpt__gradient_drop(ctx, &parameter->tensor->gradient);
            parameter->inside = false;
        }
        if (!begun || !optimizer->done) continue;
        if (status == MPT_OK) status = mpt__inside_update(ctx, optimizer, 0, NULL);
        for (int64_t i = 0; i < optimizer->state_count; i++)
            mpt__values_updated(ctx, optimizer, &optimizer->states[i],
                mpt__form_in_use(ctx, mpt__block_of(ctx, &optimizer->states[i])));
        if (status == MPT_OK) {
            ctx->committed = ctx->now;
            ctx->committed.updates = ++ctx->now.updates;
            continue;
        }
        mpt__log(&ctx->base, MPT_LOG_ERROR,
            "mpt_backward failed after it had updated some parameters, and others not; go back to "
            "a checkpoint or a snapshot");
    }
    return status;
}

static mpt_status mpt__inside_walk(mpt_context *ctx, mpt__record *order, bool retain) {
    mpt_status status = mpt__inside_begin(ctx, order, retain);
    for (mpt__record *record = order; record && status == MPT_OK; record = record->next) {
        status = mpt__backward_asking(ctx, record, retain);
        if (status == MPT_OK) status = mpt__inside_record(ctx, record);
    }
    return mpt__inside_end(ctx, status);
}

/* Part of mpt_clear_error. */
static void mpt__inside_forget(mpt_context *ctx) {
    mpt__optimizer *optimizer;
    for (int64_t at = 0; (optimizer = mpt__inside_next(ctx, &at)) != NULL;) optimizer->done = false;
}

mpt_status mpt_update_in_backward(mpt_optimizer handle, bool on) {
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_update_in_backward");
    if (!optimizer || optimizer->inside == on) return mpt__status_of(ctx);
    if (ctx->in_backward) return mpt__error(ctx, STATE, "a backward pass is under way");
    if (on && (optimizer->own || optimizer->shared))
        return mpt__error(ctx, UNSUPPORTED, "%s",
            optimizer->own ? "L-BFGS, Muon and optimizers of your own need all gradients"
                           : "another optimizer may hold the parameters, too: allow_shared");
    optimizer->inside = on;
    optimizer->pattern_valid = optimizer->norm_valid = optimizer->done = false;
    optimizer->patterns++;
    int64_t at = 0;
    ctx->walk = mpt__inside_next(ctx, &at) ? mpt__inside_walk : NULL;
    return MPT_OK;
}

#endif

#endif
