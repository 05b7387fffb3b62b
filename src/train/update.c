/* ----
 * train/update.c: what optimizers do with gradients: segments, norms, clipping, updates; their
 * state.
 *
 * Kernels run over segments of the part of a block that an optimizer covers, built on the host from
 * which parameters have a gradient and uploaded again only when that pattern changes. Unscaling and
 * clipping leave a pending multiplier, so that norm and update are the only passes over gradients.
 * ---- */
#ifndef MPT__TRAIN_UPDATE_INCLUDED
#define MPT__TRAIN_UPDATE_INCLUDED

#include "train/average.c"

/* ==== Segments ==== */

/* The group of each segment. */
static int64_t *mpt__row_groups(const mpt__optimizer *optimizer) {
    return optimizer->rows + optimizer->item_capacity * MPT__SEGMENT_FIELDS;
}

/* Segments of all parameters with a gradient, by state and group. Only parameters without a gap
   between them merge: what stands in a gap is nobody's, and a multiplier that is not finite would
   leave NaN there for every later norm. */
static void mpt__build_rows(const mpt_context *ctx, mpt__optimizer *optimizer) {
    int64_t rows = 0, groups = optimizer->group_count;
    for (int64_t part = 0; part < optimizer->state_count * groups; part++) {
        mpt__optim_state *state = &optimizer->states[part / groups];
        int64_t *last = NULL;
        uint64_t history = 0; /* of the items in `last` */
        if (part % groups == 0) state->row = rows;
        for (int64_t i = 0; i < optimizer->item_count; i++) {
            const mpt__optim_item *item = &optimizer->items[i];
            if (!item->had_grad || item->state * groups + item->group != part) continue;
            const mpt__parameter *parameter = &ctx->parameters[item->parameter];
            int64_t offset = parameter->offset - state->first;
            if (last && last[MPT__SEGMENT_OFFSET] + last[MPT__SEGMENT_COUNT] == offset &&
                last[MPT__SEGMENT_STEP] + last[MPT__SEGMENT_STEPS] == i &&
                item->history == history && !mpt__coded(optimizer)) {
                last[MPT__SEGMENT_COUNT] += parameter->numel;
                last[MPT__SEGMENT_STEPS]++;
                continue;
            }
            history = item->history;
            mpt__row_groups(optimizer)[rows] = item->group;
            last = &optimizer->rows[rows++ * MPT__SEGMENT_FIELDS];
            last[MPT__SEGMENT_OFFSET] = offset;
            last[MPT__SEGMENT_COUNT] = parameter->numel;
            last[MPT__SEGMENT_STEP] = i;
            last[MPT__SEGMENT_STEPS] = 1;
            mpt__place_show(optimizer, item, last);
        }
        state->rows = rows - state->row;
    }
    optimizer->row_count = rows;
}

/* Names the first gradient that is not scaled as a call needs it, and what would help. */
static MPT__COLD mpt_status mpt__check_scales(
    mpt_context *ctx, const mpt__optimizer *optimizer, uint32_t scaler) {
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
        uint32_t has = parameter->scaler, steps = (uint32_t)ctx->now.updates - parameter->since;
        if (!parameter->has_grad || has == scaler || has == MPT__UNKNOWN) continue;
        return has == MPT__MIXED && steps > 0
            ? mpt__error(ctx, STATE,
                  "the gradient of %s was never cleared for %lld step%s: scaled ones "
                  "were added to what was left; call mpt_zero_grad before "
                  "mpt_backward",
                  parameter->path, (int64_t)steps, steps > 1 ? "s" : "")
            : mpt__error(ctx, STATE, "the gradient of %s is %s", parameter->path,
                  has == MPT__MIXED ? "a sum of scaled and unscaled ones; pass every loss through "
                                      "mpt_scale_loss of one scaler, or clear with mpt_zero_grad"
                      : has == MPT__PLAIN
                      ? "not scaled, or was unscaled already; call "
                        "mpt_backward(mpt_scale_loss(scaler, loss)), else mpt_step"
                      : scaler == MPT__PLAIN
                      ? "that of a scaled loss; call mpt_unscale before, or "
                        "mpt_scaler_step for mpt_step"
                      : "scaled by another scaler; take one for all its losses");
    }
    return MPT_OK;
}

/* Brings the segments up to date with which parameters have a gradient now. Those have to be scaled
   by the scaler of that slot, or by none. */
static mpt_status mpt__pattern(mpt_context *ctx, mpt__optimizer *optimizer, uint32_t scaler) {
#ifndef MPTRAIN_NO_FRUGAL
    if (optimizer->inside)
        return mpt__error(ctx, STATE,
            "the optimizer updates inside backward, which leaves no gradients to unscale, clip or "
            "look at; see mpt_update_in_backward");
#endif
    bool changed = !optimizer->pattern_valid, odd = false;
    int64_t with_grad = 0;
    mpt__optim_item *const end = optimizer->items + optimizer->item_count;
    for (mpt__optim_item *item = optimizer->items; item < end; item++) {
        const mpt__parameter *parameter = &ctx->parameters[item->parameter];
        if (!parameter->live || parameter->block != item->block)
            return mpt__error(ctx, STATE,
                "the module whose parameters the optimizer holds was destroyed; "
                "destroy the optimizer too, and make a new one");
        if (item->had_grad != parameter->has_grad) {
            item->had_grad = parameter->has_grad;
            changed = true;
        }
        with_grad += parameter->has_grad;
        odd |= parameter->has_grad && parameter->scaler != scaler;
    }
    if (odd && mpt__check_scales(ctx, optimizer, scaler) != MPT_OK) return ctx->base.status;
    optimizer->with_grad = with_grad;
    /* The rows depend on all of them, which the step being captured has to know. */
    for (int64_t i = 0; i < optimizer->item_count && mpt__is_capturing(ctx); i++)
        mpt__has_grad(ctx, &ctx->parameters[optimizer->items[i].parameter]);
    if (!changed) return MPT_OK;
    optimizer->pattern_valid = optimizer->norm_valid = false;
    optimizer->patterns++;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__optim_item *item = &optimizer->items[i];
        if (item->had_grad) item->history = mpt__hash_u64(item->history, optimizer->patterns);
    }
    mpt__build_rows(ctx, optimizer);
    mpt_status status = mpt__upload(
        ctx, optimizer->segments, 0, optimizer->rows, optimizer->row_count * MPT__ROW_BYTES);
    optimizer->pattern_valid = status == MPT_OK;
    return status;
}

static void mpt__segments_operand(
    mpt__launch *launch, int position, const mpt__optimizer *optimizer, int64_t row, int64_t rows) {
    mpt__operand *operand = mpt__operand_on(
        launch, position, optimizer->segments, MPT_I64, row * MPT__SEGMENT_FIELDS, rows, MPT__READ);
    operand->rank = 2;
    operand->shape[1] = MPT__SEGMENT_FIELDS;
    operand->stride[0] = MPT__SEGMENT_FIELDS;
    operand->stride[1] = 1;
}

/* A launch over all gradients of a state. */
static mpt__launch *mpt__gradients_launch(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, mpt__kernel kernel, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(ctx, kernel);
    mpt__operand_on(launch, 0, mpt__block_of(ctx, state)->gradients, MPT_F32, state->first,
        state->count, access);
    mpt__segments_operand(launch, 1, optimizer, state->row, state->rows);
    return launch;
}

/* ==== The pending multiplier ==== */

/* For each state of an optimizer that has gradients now. */
#define MPT__EACH_STATE(state, optimizer) \
    for (mpt__optim_state *state = (optimizer)->states, \
                          *state##_end = state + (optimizer)->state_count; \
         state < state##_end; state++) \
        if (state->rows)

/* Multiplies all gradients by a scalar, then clamps to +-limit if that is > 0. */
static mpt_status mpt__scale_gradients(
    mpt_context *ctx, const mpt__optimizer *optimizer, uint16_t slot, double limit) {
    MPT__EACH_STATE(state, optimizer) {
        mpt__launch *launch =
            mpt__gradients_launch(ctx, optimizer, state, MPT__K_GRAD_SCALE, MPT__READ_WRITE);
        launch->slot[0] = slot;
        launch->imm[0] = limit;
        mpt__submit(ctx, launch);
        mpt__block_of(ctx, state)->multiplier_slot = 0;
    }
    return ctx->base.status;
}

static void mpt__materialise(mpt_context *ctx, const mpt__optimizer *optimizer) {
    MPT__EACH_STATE(state, optimizer) {
        mpt__materialise_gradients(ctx, mpt__block_of(ctx, state));
    }
}

/* The optimizer's multiplier if it is pending on all its gradients; else 0, and afterwards no
   multiplier is pending on any of them. */
static uint16_t mpt__pending(mpt_context *ctx, const mpt__optimizer *optimizer) {
    uint16_t slot = optimizer->slot[MPT__OPTIM_MULTIPLIER];
    MPT__EACH_STATE(state, optimizer) {
        if (mpt__block_of(ctx, state)->multiplier_slot == slot) continue;
        mpt__materialise(ctx, optimizer);
        return 0;
    }
    return slot;
}

/* Whether a user has handles on gradients of a state: references beyond the block's own, those of
   recordings and the views that its parameters keep. Those live: mpt__pattern has looked. */
static bool mpt__gradients_seen(
    const mpt_context *ctx, const mpt__optimizer *optimizer, uint32_t gradients) {
    const mpt__storage *storage = &ctx->storages[gradients];
    int64_t others = (int64_t)storage->references - storage->recordings - 1;
    const mpt__optim_item *item = optimizer->items, *end = item + optimizer->item_count;
    for (; others > 0 && item < end; item++) {
        const mpt__tensor *view = ctx->parameters[item->parameter].tensor->gradient;
        if (view && view->storage == gradients) others--;
    }
    return others > 0;
}

/* The optimizer's multiplier is set: it stays pending, unless somebody else would see it: a block
   holds parameters of others as well, or there are handles on gradients. */
static mpt_status mpt__hold(mpt_context *ctx, const mpt__optimizer *optimizer) {
    uint16_t slot = optimizer->slot[MPT__OPTIM_MULTIPLIER];
    MPT__EACH_STATE(state, optimizer) {
        const mpt__block *block = mpt__block_of(ctx, state);
        if (state->held != block->parameters ||
            mpt__gradients_seen(ctx, optimizer, block->gradients))
            return mpt__scale_gradients(ctx, optimizer, slot, 0);
    }
    MPT__EACH_STATE(state, optimizer) { mpt__block_of(ctx, state)->multiplier_slot = slot; }
    return ctx->base.status;
}

/* ==== Norm and clipping ==== */

/* Norm of gradients times multiplier into norm_slot (0: nowhere). scale_slot (0: none): the
   multiplier is 1 / scale from here on. found_slot (0: none) tells whether an element or its
   product is not finite. */
static void mpt__norm_launch(mpt_context *ctx, mpt__optimizer *optimizer, mpt__norm norm,
    uint16_t scale_slot, uint16_t found_slot, uint16_t norm_slot) {
    bool first = true;
    MPT__EACH_STATE(state, optimizer) {
        mpt__launch *launch =
            mpt__gradients_launch(ctx, optimizer, state, MPT__K_GRAD_NORM, MPT__READ);
        launch->slot[0] = optimizer->slot[MPT__OPTIM_MULTIPLIER];
        launch->slot[1] = found_slot;
        launch->slot[2] = norm_slot;
        launch->slot[3] = first ? scale_slot : (uint16_t)MPT__SLOT_NONE;
        launch->index[0] = !first;
        launch->index[1] = (int64_t)norm;
        first = false;
        mpt__submit(ctx, launch);
    }
    optimizer->norm_valid = norm_slot != 0 && norm == MPT__NORM_2;
}

/* Divides by the scale and looks for non-finite values: sets the optimizer's found_inf; and
   computes the norm where clipping may follow. Without any gradient nothing happens. */
static mpt_status mpt__optimizer_unscale(mpt_context *ctx, mpt__optimizer *optimizer,
    uint32_t scaler, uint16_t scale_slot, bool with_norm) {
    mpt_status status = mpt__pattern(ctx, optimizer, scaler);
    if (status != MPT_OK || optimizer->with_grad == 0) return status;
    for (int64_t i = 0; i < optimizer->item_count; i++)
        ctx->parameters[optimizer->items[i].parameter].scaler = MPT__PLAIN;
    mpt__materialise(ctx, optimizer);
    mpt__norm_launch(ctx, optimizer, MPT__NORM_2, scale_slot, optimizer->slot[MPT__OPTIM_FOUND],
        with_norm ? optimizer->slot[MPT__OPTIM_NORM] : (uint16_t)MPT__SLOT_NONE);
    return mpt__hold(ctx, optimizer);
}

/* The norm of all gradients as a tensor; with `clips`, it becomes max_norm at most. */
static mpt_tensor mpt__grad_norm(
    const char *name, mpt_optimizer handle, double p, bool clips, double max_norm) {
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, name);
    if (!optimizer) return mpt__null(ctx);
    if (!(max_norm >= 0))
        return mpt__refuse(ctx, ARGUMENT, "max_norm = %g; expected 0 or more", max_norm);
    if (p != 1 && p != 2 && p != MPT__INF_F64)
        return mpt__refuse(ctx, ARGUMENT, "p = %g; expected 1, 2 or infinity", p);
    mpt__norm kind = p == 2 ? MPT__NORM_2 : p == 1 ? MPT__NORM_1 : MPT__NORM_MAX;
    mpt_shape shape = MPT_SCALAR;
    mpt__tensor *norm = NULL;
    if (mpt__pattern(ctx, optimizer, MPT__PLAIN) == MPT_OK)
        norm = mpt__tensor_new(ctx, MPT_F32, &shape, MPT_MEMORY_ACTIVATION);
    if (!norm) return mpt__null(ctx);
    bool any = optimizer->with_grad > 0; /* the norm of nothing is 0 */
    if (any) {
        uint16_t pending = mpt__pending(ctx, optimizer);
        if (!pending || !optimizer->norm_valid || kind != MPT__NORM_2)
            mpt__norm_launch(ctx, optimizer, kind, pending ? 0 : (uint16_t)MPT__SLOT_ONE, 0,
                optimizer->slot[MPT__OPTIM_NORM]);
    }
    mpt__launch *launch = mpt__launch_begin(ctx, any ? MPT__K_CLIP : MPT__K_FILL);
    mpt__operand_on(launch, 0, norm->storage, MPT_F32, norm->offset, 1, MPT__WRITE);
    if (any) {
        launch->slot[0] = clips ? optimizer->slot[MPT__OPTIM_MULTIPLIER] : (uint16_t)MPT__SLOT_NONE;
        launch->slot[1] = optimizer->slot[MPT__OPTIM_NORM];
#ifndef MPTRAIN_NO_WATCH
        if (optimizer->scaler && optimizer->checked && optimizer->stage == MPT__UNSCALED)
            launch->slot[2] = optimizer->slot[MPT__OPTIM_FOUND]; /* the scaler skips the step */
        launch->slot[3] = clips ? optimizer->slot[MPT__OPTIM_APPLIED] : (uint16_t)MPT__SLOT_NONE;
        launch->index[0] = optimizer->refuses_nonfinite;
#endif
        launch->imm[0] = max_norm;
    }
    mpt__submit(ctx, launch);
    if (clips) optimizer->norm_valid = false;
    if (any && clips) mpt__hold(ctx, optimizer);
    return mpt__tensor_done(ctx, norm, ctx->base.status);
}

mpt_tensor mpt_clip_grad_norm(mpt_optimizer optimizer, double max_norm) {
    return mpt__grad_norm("mpt_clip_grad_norm", optimizer, 2, true, max_norm);
}

mpt_tensor mpt_clip_grad_norm_p(mpt_optimizer optimizer, double max_norm, double p) {
    return mpt__grad_norm("mpt_clip_grad_norm_p", optimizer, p, true, max_norm);
}

mpt_tensor mpt_grad_norm(mpt_optimizer optimizer, double p) {
    return mpt__grad_norm("mpt_grad_norm", optimizer, p, false, 0);
}

#ifndef MPTRAIN_NO_WATCH
mpt_status mpt_error_if_nonfinite(mpt_optimizer handle, bool on) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_error_if_nonfinite");
    if (!optimizer) return mpt__status_of(handle.context);
    if (optimizer->refuses_nonfinite != on) optimizer->patterns++; /* captured steps record anew */
    optimizer->refuses_nonfinite = on;
    return MPT_OK;
}
#endif

mpt_status mpt_clip_grad_value(mpt_optimizer handle, double limit) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_clip_grad_value");
    if (!optimizer) return mpt__status_of(ctx);
    if (!(limit >= 0)) return mpt__error(ctx, ARGUMENT, "limit = %g; expected 0 or more", limit);
    if (mpt__pattern(ctx, optimizer, MPT__PLAIN) != MPT_OK || optimizer->with_grad == 0)
        return ctx->base.status;
    uint16_t pending = mpt__pending(ctx, optimizer);
    uint16_t slot = pending ? pending : (uint16_t)MPT__SLOT_ONE;
    optimizer->norm_valid = false;
    if (limit > 0) return mpt__scale_gradients(ctx, optimizer, slot, limit);
    mpt__scale_gradients(ctx, optimizer, slot, 1.0); /* infinities times 0 would be NaN */
    mpt__scalar_set_f(ctx, optimizer->slot[MPT__OPTIM_MULTIPLIER], 0.0);
    return mpt__scale_gradients(ctx, optimizer, optimizer->slot[MPT__OPTIM_MULTIPLIER], 0);
}

/* ==== The update ==== */

mpt_status mpt_zero_grad(mpt_optimizer handle) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_zero_grad");
    if (!optimizer) return mpt__status_of(handle.context);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        mpt__clear_grad(&handle.context->parameters[optimizer->items[i].parameter]);
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__block *block = mpt__block_of(handle.context, &optimizer->states[i]);
        if (block->multiplier_slot == optimizer->slot[MPT__OPTIM_MULTIPLIER])
            block->multiplier_slot = 0;
    }
    return MPT_OK;
}

/* Where the gradients of a state's elements lie, where its mirrors begin, and what gradients are
   multiplied by. */
typedef struct {
    uint32_t gradients;
    int64_t first, count, mirrored;
    uint16_t slot;
} mpt__update_place;

/* The values of a state; with a form, the kernel takes them for its master. */
static MPT__FORCE_INLINE void mpt__values_operands(
    mpt__launch *launch, const mpt__block *block, const mpt__optim_state *state, int form) {
    mpt__operand_on(launch, form < 0 ? 0 : 1, block->values, (mpt_dtype)block->dtype, state->first,
        state->count, MPT__READ_WRITE);
    if (form >= 0)
        mpt__operand_on(launch, 0, block->form[form], form ? MPT_BF16 : MPT_F16, state->first,
            state->count, MPT__READ_WRITE);
}

/* The launch that updates segments [row, row + rows) of a state, which are of one group, or of a
   part of it. */
static MPT__FORCE_INLINE mpt__launch *mpt__update_launch(mpt_context *ctx,
    const mpt__optimizer *optimizer, const mpt__optim_state *state, int form, int64_t row,
    int64_t rows, uint16_t found_slot, const mpt__update_place *place) {
    static const int position[MPT__MIRRORS] = {3, 6, 8, 1};
    const mpt__rule *rule = optimizer->rule;
    const mpt__group *group = &optimizer->groups[mpt__row_groups(optimizer)[row]];
    const int64_t at = state->first - place->mirrored;
    mpt__launch *launch = mpt__launch_begin(ctx, rule->kernel);
    launch->function = (uint8_t)rule->function;
    mpt__values_operands(launch, mpt__block_of(ctx, state), state, form);
    mpt__operand_on(
        launch, 2, place->gradients, MPT_F32, place->first, place->count, MPT__READ);
    mpt__segments_operand(launch, 4, optimizer, row, rows);
    mpt__operand_on(
        launch, 5, optimizer->counts, MPT_I64, 0, optimizer->item_count, MPT__READ_WRITE);
    for (int k = 0; k < MPT__MIRRORS; k++)
        if (state->mirror[k])
            mpt__operand_on(
                launch, position[k], state->mirror[k], MPT_F32, at, state->count, MPT__READ_WRITE);
    mpt__codes_show(launch, optimizer, state, position);
    launch->slot[1] = place->slot;
    launch->slot[2] = found_slot;
    mpt__schedule_operand(launch, optimizer, group);
    int settings = 0;
    for (; settings < MPT__SETTINGS && rule->setting[settings].name; settings++)
        launch->imm[settings] = group->setting[settings];
    launch->imm[settings] = group->weight_decay;
    launch->index[0] = optimizer->variant;
    launch->index[1] = row + rows == optimizer->row_count ? 2 : 1;
    launch->index[2] = optimizer->maximize;
    launch->index[3] = optimizer->stochastic;
    launch->rng.seed = ctx->config.seed;
    launch->rng.stream = state->stream;
    return launch;
}

static mpt_status mpt__launch_update(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, int form, int64_t row, int64_t rows, uint16_t found_slot) {
    mpt__block *block = mpt__block_of(ctx, state);
    if (block->multiplier_slot != optimizer->slot[MPT__OPTIM_MULTIPLIER])
        mpt__materialise_gradients(ctx, block);
    const mpt__update_place place = {block->gradients, state->first, state->count, state->first,
        block->multiplier_slot ? optimizer->slot[MPT__OPTIM_MULTIPLIER] : (uint16_t)MPT__SLOT_ONE};
    return mpt__submit(
        ctx, mpt__update_launch(ctx, optimizer, state, form, row, rows, found_slot, &place));
}

/* One launch per state and group; each commits its step counts, the last one the step. */
static mpt_status mpt__launch_updates(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    const int64_t *group = mpt__row_groups(optimizer);
    MPT__EACH_STATE(state, optimizer) {
        int64_t row = state->row, end = row + state->rows, rows;
        int form = mpt__form_in_use(ctx, mpt__block_of(ctx, state));
        mpt__master_refresh(ctx, optimizer, state);
        for (; row < end; row += rows) {
            for (rows = 1; row + rows < end && group[row + rows] == group[row];) rows++;
            mpt__launch_update(ctx, optimizer, state, form, row, rows, found_slot);
        }
        mpt__values_updated(ctx, optimizer, state, form);
    }
    return ctx->base.status;
}

/* Optimizers of the user's own bring another way along. */
#ifdef MPTRAIN_NO_WATCH
#define mpt__apply_update mpt__launch_updates
#else
#define mpt__apply_update(ctx, optimizer, found_slot) \
    (MPT__UNLIKELY((optimizer)->own != NULL) \
         ? (optimizer)->own->update(ctx, optimizer, found_slot) \
         : mpt__launch_updates(ctx, optimizer, found_slot))
#endif

/* A warning that names parameters without a gradient; once, until there is one again. */
static void mpt__warn_no_grad(mpt_context *ctx, mpt__optimizer *optimizer) {
    char names[200];
    mpt__text list = mpt__text_make(names, sizeof names);
    if (optimizer->warned_no_grad) return;
    optimizer->warned_no_grad = true;
    for (int64_t i = 0; i < optimizer->item_count && list.length < sizeof names; i++)
        mpt__write_text(
            &list, "%s%s", i ? ", " : "", ctx->parameters[optimizer->items[i].parameter].path);
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "%s: none of the optimizer's %lld parameters has a gradient, so the step does "
        "nothing: %s%s; call mpt_backward first, on a loss that depends on them",
        ctx->base.op, optimizer->item_count, names, list.length >= sizeof names ? " .." : "");
}

enum { MPT__UNCLEARED = 3 }; /* steps on the sum of all gradients so far that may be meant */

/* Counts steps whose gradients, of which the first one stands for all, begin before the last step:
   mpt_zero_grad was forgotten, or it is meant so. Warns once in a row. */
static void mpt__count_uncleared(mpt_context *ctx, mpt__optimizer *optimizer) {
    const mpt__optim_item *item = optimizer->items;
    while (!item->had_grad) item++;
    int32_t age = (int32_t)(optimizer->stepped - ctx->parameters[item->parameter].since);
    optimizer->uncleared = age > 0 ? optimizer->uncleared + 1 : 0;
    optimizer->stepped = (uint32_t)ctx->now.updates;
    if (optimizer->uncleared != MPT__UNCLEARED) return;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "%s: gradients were never cleared for %d steps, so each step takes the sum of all; "
        "call mpt_zero_grad before mpt_backward",
        ctx->base.op, optimizer->uncleared);
}

#ifndef MPTRAIN_NO_WATCH
/* Whether an update would write what is shared, with an error recorded before anything changes. */
static MPT__COLD bool mpt__update_looked_at(mpt_context *ctx, const mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        const mpt__optim_state *state = &optimizer->states[i];
        if ((state->rows || optimizer->own) &&
            mpt__writing_refused(ctx, mpt__block_of(ctx, state)->values))
            return true;
    }
    return false;
}
#endif

/* Whether values are not to be updated now, with an error recorded. */
static MPT__INLINE bool mpt__update_refused(mpt_context *ctx, const mpt__optimizer *optimizer) {
    const int64_t averages = ctx->objects[MPT__EMA].count;
    for (int64_t i = 0; i < optimizer->state_count && averages > 0; i++)
        if (mpt__averages_applied(ctx, optimizer->states[i].block))
            return !mpt__reject(
                ctx, STATE, "the module's values are averages; call mpt_ema_restore first");
#ifdef MPTRAIN_NO_WATCH
    return false;
#else
    return ctx->share_count > 0 && mpt__update_looked_at(ctx, optimizer);
#endif
}

/* Updates everything that has a gradient, as mpt__pattern found it. It is queued; nothing happens
   on the device while found_slot (0: none) or the error word is set. */
static mpt_status mpt__optimizer_update(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    if (!mpt__ok(ctx) || !mpt__not_updating(ctx, optimizer)) return ctx->base.status;
    if (optimizer->with_grad == 0) {
        mpt__warn_no_grad(ctx, optimizer);
        return MPT_OK;
    }
    optimizer->warned_no_grad = false;
    if (mpt__update_refused(ctx, optimizer)) return ctx->base.status;
    mpt__tell(ctx, MPT__GRADIENTS_DONE, NULL);
    uint8_t phase = ctx->launch.phase;
    ctx->launch.phase = MPT__UPDATE;
    if (ctx->recorder) mpt__recorder_note(ctx, MPT__OPTIMIZER, &optimizer->id);
    mpt_status status = mpt__schedule_before_step(ctx, optimizer);
    if (status == MPT_OK) status = mpt__apply_update(ctx, optimizer, found_slot);
    ctx->launch.phase = phase;
    if (status != MPT_OK) return status;
    ctx->committed = ctx->now;
    ctx->committed.updates = ++ctx->now.updates;
    mpt__count_uncleared(ctx, optimizer);
    mpt__check_clipped(ctx);
    return MPT_OK;
}

/* fp16 without a scaler loses small gradients in silence: said once per optimizer. */
static void mpt__warn_unscaled(mpt_context *ctx, mpt__optimizer *optimizer) {
    bool ended = ctx->autocast_depth == 0; /* then entry 1 is the region that was open last */
    if (optimizer->warned_unscaled || !ended || ctx->autocast[1] != MPT_F16) return;
    optimizer->warned_unscaled = true;
    if (ctx->objects[MPT__SCALER].count > 1) return;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "mpt_step: gradients of an fp16 region without a loss scaler; small ones become 0 in "
        "silence: use mpt_grad_scaler, or MPT_BF16");
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__stepped_inside(ctx, optimizer) false
#else
/* Whether an optimizer updates inside backward: then its step is to say that this was all. */
static bool mpt__stepped_inside(mpt_context *ctx, mpt__optimizer *optimizer) {
    if (!optimizer->inside) return false;
    if (!optimizer->done) mpt__warn_no_grad(ctx, optimizer);
    optimizer->warned_no_grad &= !optimizer->done;
    optimizer->done = false;
    return true;
}
#endif

mpt_status mpt_step(mpt_optimizer handle) {
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_step");
    if (!optimizer || mpt__stepped_inside(ctx, optimizer)) return mpt__status_of(ctx);
    mpt__warn_unscaled(ctx, optimizer);
    mpt__pattern(ctx, optimizer, MPT__PLAIN);
    return mpt__optimizer_update(ctx, optimizer, 0);
}

int64_t mpt_applied_steps(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_applied_steps");
    return optimizer ? mpt__scalar_get_i(handle.context, optimizer->slot[MPT__OPTIM_APPLIED]) : -1;
}

/* ==== State ==== */

#ifndef MPTRAIN_NO_FRUGAL
/* Where moment k of item i lies among bytes. */
static void mpt__item_placed(
    const mpt__optimizer *optimizer, int64_t i, int k, mpt__state_item *item) {
    const int64_t place = optimizer->items[i].place;
    if (k >= MPT__MASTER) return;
    item->dtype = place < 0 ? MPT_U8 : MPT_F32;
    item->offset = place < 0 ? ~place : place / 4;
}

/* The largest magnitudes behind the codes that were visited. */
static mpt_status mpt__visit_peaks(mpt_context *ctx, char *name, const mpt__state_item *codes,
    mpt__state_visitor visit, void *user) {
    mpt__state_item item = *codes;
    const size_t length = strlen(name);
    mpt__format_text(name + length, MPT__STATE_NAME - length, ".absmax");
    item.dtype = MPT_F32;
    item.offset = (codes->offset + mpt__code_peaks(codes->count)) / 4;
    item.count = mpt__code_blocks(codes->count);
    item.shape.rank = 1;
    item.shape.dim[0] = item.count;
    return visit(ctx, user, &item);
}
#endif

/* Visits moments, masters and step counts of every parameter under its name, then the count of
   applied steps, the rates of groups and the schedule. */
static mpt_status mpt__optimizer_visit(
    mpt_context *ctx, const mpt__optimizer *optimizer, mpt__state_visitor visit, void *user) {
    char name[MPT__STATE_NAME];
    mpt__state_item item;
    mpt__zero(item);
    item.name = name;
    mpt_status status = MPT_OK;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
        const mpt__optim_state *state = &optimizer->states[optimizer->items[i].state];
        const mpt__rule *rule = mpt__rule_of(optimizer, optimizer->items[i].group);
        for (int k = 0; k <= MPT__MIRRORS && parameter->live && status == MPT_OK; k++) {
            bool step = k == MPT__MIRRORS;
            item.storage = step ? optimizer->counts : state->mirror[k];
            if (!item.storage || (k < MPT__MASTER && !rule->moment[k].name)) continue;
            item.dtype = step ? MPT_I64 : MPT_F32;
            item.most = step ? MPT__MOST_COUNTED : 0;
            item.offset = step ? i : parameter->offset - state->first;
            item.count = step ? 1 : parameter->numel;
            item.shape = step ? MPT_SCALAR : parameter->tensor->shape;
            item.module = parameter->module;
#ifndef MPTRAIN_NO_FRUGAL
            if (mpt__coded(optimizer)) mpt__item_placed(optimizer, i, k, &item);
#endif
            mpt__format_text(name, sizeof name, "%s.%s", parameter->path,
                step                   ? "step"
                    : k == MPT__MASTER ? "master"
                                       : rule->moment[k].name);
            status = visit(ctx, user, &item);
#ifndef MPTRAIN_NO_FRUGAL
            if (mpt__coded(optimizer) && item.dtype == MPT_U8 && status == MPT_OK)
                status = mpt__visit_peaks(ctx, name, &item, visit, user);
#endif
        }
    }
    if (status != MPT_OK) return status;
    mpt__format_text(name, sizeof name, "applied_steps");
    item.storage = item.module = 0;
    item.dtype = MPT_I64;
    item.count = 1;
    item.shape = MPT_SCALAR;
    item.slot = optimizer->slot[MPT__OPTIM_APPLIED];
    item.most = MPT__MOST_COUNTED;
    status = visit(ctx, user, &item);
    for (int64_t i = 0; i < optimizer->group_count && status == MPT_OK; i++) {
        mpt__format_text(name, sizeof name, "group.%lld.lr", i);
        item.host = &optimizer->groups[i].lr;
        item.dtype = MPT_F64;
        item.most = 0, item.rate = true;
        status = visit(ctx, user, &item);
    }
    item.rate = false, item.most = 0;
#ifndef MPTRAIN_NO_WATCH
    if (status == MPT_OK && optimizer->own && optimizer->own->visit) {
        status = optimizer->own->visit(ctx, optimizer->own, &item, visit, user);
        mpt__zero(item);
        item.count = 1, item.shape = MPT_SCALAR;
    }
#endif
    if (status != MPT_OK || !optimizer->schedule) return status;
    return mpt__schedule_visit(ctx, optimizer->schedule, &item, visit, user);
}

uint64_t mpt_optimizer_hash(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_hash");
    uint64_t hash = 0;
    if (optimizer) mpt__optimizer_visit(handle.context, optimizer, mpt__hash_item, &hash);
    return hash;
}

#endif
