/* ----
 * train/scaler.c: dynamic loss scaling, as torch.amp.GradScaler, with its scale, counters and
 * found_inf on the device: no call of an iteration waits. What is better, the manual says.
 * ---- */
#ifndef MPT__TRAIN_SCALER_INCLUDED
#define MPT__TRAIN_SCALER_INCLUDED

#include "train/inside.c"

/* The device scalars of a scaler. */
enum {
    MPT__SCALER_SCALE,   /* f: a double that holds a float */
    MPT__SCALER_TRACKER, /* i, as all that follow */
    MPT__SCALER_FOUND,   /* of several optimizers, any found a non-finite gradient */
    MPT__SCALER_UPDATES,
    MPT__SCALER_SKIPPED,
    MPT__SCALER_IN_A_ROW,
    MPT__SCALER_LAST,
    MPT__SCALER_OUTCOME,
    MPT__SCALER_LOSS, /* a loss since the last look was not finite */
    MPT__SCALER_SEED, /* the scale of the last loss, as an fp32 */
    MPT__SCALER_SLOTS
};

typedef struct {
    mpt__id id;
    mpt_scaler_config config;
    uint16_t slots[MPT__SCALER_SLOTS];
    bool scaled;  /* a loss was scaled at least once */
    bool stepped; /* disabled: a step was made */
    bool tracing; /* switched the NaN tracer on */
    bool told_bf16, told_idle;
    uint32_t changes;                     /* of the factors, which captured steps have in them */
    mpt_scaler_stats seen;                /* as of the last look at the device */
    int64_t unseen;                       /* updates queued since */
    int64_t lost_losses;                  /* skips in a row with a non-finite loss */
    int64_t window_steps, window_skipped; /* counters at the begin of the window */
    int64_t skipped_before;               /* skips of the window before; -1: none yet */
    char culprit[128];                    /* parameter whose gradient overflowed at the last skip */
} mpt__scaler;

MPT__HANDLES(scaler, MPT__SCALER)

/* ==== The optimizers of an update ==== */

/* The first optimizer behind row *i that takes part in the current update of a scaler (0: of any
   one). NULL: none is left. */
static mpt__optimizer *mpt__next_member(const mpt_context *ctx, uint32_t scaler, int64_t *i) {
    const mpt__object_table *table = &ctx->objects[MPT__OPTIMIZER];
    while (++*i < table->count) {
        mpt__optimizer *optimizer = (mpt__optimizer *)table->rows[*i].object;
        if (optimizer && optimizer->scaler && (!scaler || optimizer->scaler == scaler))
            return optimizer;
    }
    return NULL;
}

/* Ends the current update of a scaler (0: of all). Returns how many optimizers took part. */
static int64_t mpt__dismiss_members(const mpt_context *ctx, uint32_t scaler) {
    int64_t count = 0, i = 0;
    mpt__optimizer *optimizer;
    for (; (optimizer = mpt__next_member(ctx, scaler, &i)) != NULL; count++) optimizer->scaler = 0;
    return count;
}

MPT__BEGIN_COLD
/* ==== Making and destroying ==== */

mpt_scaler_config mpt_scaler_config_default(void) {
    mpt_scaler_config config = {65536, 2, 0.5, 2000, 1, 16777216, true, false, 100, 1000};
    return config;
}

/* Whether `scale` stays a positive finite number in fp32. */
static bool mpt__check_scale(mpt_context *ctx, const char *name, double scale) {
    float single = (float)scale;
    if (scale > 0 && single > 0 && mpt__f32_is_finite(single)) return true;
    return mpt__reject(
        ctx, ARGUMENT, "%s = %g; expected a positive number in fp32's range", name, scale);
}

static bool mpt__check_factors(mpt_context *ctx, double growth, double backoff, int64_t interval) {
    if (!(growth > 1 && growth < MPT__NO_LIMIT)) {
        mpt__error(ctx, ARGUMENT, "growth_factor = %g; expected more than 1", growth);
    } else if (!(backoff > 0 && backoff < 1)) {
        mpt__error(ctx, ARGUMENT, "backoff_factor = %g is not in (0, 1)", backoff);
    }
    return mpt__ok(ctx) && mpt__check_count(ctx, "growth_interval", interval, 1);
}

static bool mpt__check_scaler_config(mpt_context *ctx, const mpt_scaler_config *c) {
    if (c->max_scale > 0 && c->max_scale < c->min_scale)
        mpt__error(
            ctx, ARGUMENT, "max_scale = %g is below min_scale = %g", c->max_scale, c->min_scale);
    return mpt__ok(ctx) && mpt__check_scale(ctx, "init_scale", c->init_scale) &&
        mpt__check_factors(ctx, c->growth_factor, c->backoff_factor, c->growth_interval) &&
        mpt__check_number(ctx, "min_scale", c->min_scale, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "max_scale", c->max_scale, 0, MPT__NO_LIMIT) &&
        mpt__check_count(ctx, "patience", c->patience, 0) &&
        mpt__check_count(ctx, "window", c->window, 0);
}

static void mpt__scaler_free(mpt_context *ctx, void *object) {
    mpt__scaler *scaler = (mpt__scaler *)object;
    mpt__dismiss_members(ctx, scaler->id.slot);
    for (int i = 0; i < MPT__SCALER_SLOTS; i++) mpt__scalar_free(ctx, scaler->slots[i]);
}

/* Updates under way and runs of skips are given up: part of mpt_clear_error. */
static void mpt__scaler_forget(mpt_context *ctx) {
    mpt__dismiss_members(ctx, 0);
    MPT__EACH_OBJECT(mpt__scaler, scaler, ctx, MPT__SCALER) {
        if (scaler->config.patience == 0 ||
            scaler->seen.skipped_in_a_row < scaler->config.patience)
            continue;
        mpt__scalar_set_i(ctx, scaler->slots[MPT__SCALER_IN_A_ROW], 0); /* it may try again */
        scaler->seen.skipped_in_a_row = 0;
    }
}

static mpt_status mpt__put_scale(mpt_context *ctx, mpt__scaler *scaler, double scale) {
    scaler->seen.scale = (double)(float)scale;
    mpt__scalar_set_f(ctx, scaler->slots[MPT__SCALER_SCALE], scaler->seen.scale);
    return ctx->base.status;
}

mpt_scaler mpt_grad_scaler(mpt_context *ctx, const mpt_scaler_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_scaler_config c = config ? *config : mpt_scaler_config_default();
    if (!mpt__enter_checked(ctx, "mpt_grad_scaler") ||
        (c.enabled && !mpt__check_scaler_config(ctx, &c)))
        return mpt__scaler_handle(ctx, NULL);
    mpt__scaler *scaler = (mpt__scaler *)mpt__object_make(ctx, MPT__SCALER, sizeof(mpt__scaler));
    if (!scaler) return mpt__scaler_handle(ctx, NULL);
    scaler->config = c;
    scaler->skipped_before = -1;
    for (int i = 0; i < MPT__SCALER_SLOTS; i++) scaler->slots[i] = mpt__scalar_new_i(ctx, 0);
    if (mpt__put_scale(ctx, scaler, c.init_scale) == MPT_OK) return mpt__scaler_handle(ctx, scaler);
    mpt__object_free(ctx, MPT__SCALER, scaler->id.slot);
    return mpt__scaler_handle(ctx, NULL);
}

mpt_status mpt_scaler_destroy(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_destroy");
    if (scaler) mpt__object_free(handle.context, MPT__SCALER, scaler->id.slot);
    return mpt__status_of(handle.context);
}

MPT__END_REGION
/* ==== Scaling the loss ==== */

/* bf16 has fp32's range; said once. */
static void mpt__note_bf16(mpt_context *ctx, mpt__scaler *scaler) {
    int depth = ctx->autocast_depth; /* 0: entry 1 is the region that was open last */
    if (scaler->told_bf16 || ctx->autocast[depth ? depth : 1] != MPT_BF16) return;
    scaler->told_bf16 = true;
    mpt__log(&ctx->base, MPT_LOG_INFO,
        "mpt_scale_loss: bf16 has the range of fp32 and needs no loss scaling; enabled = false "
        "in mpt_scaler_config saves its work");
}

mpt_tensor mpt_scale_loss(mpt_scaler handle, mpt_tensor loss) {
    mpt__lend(handle, loss.context);
    mpt_context *ctx = handle.context;
    mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scale_loss");
    mpt__tensor *found = scaler ? mpt__at(ctx, loss, "loss") : NULL;
    if (!found) return mpt__null(ctx);
    scaler->scaled = true;
    if (!scaler->config.enabled) return loss;
    mpt__note_bf16(ctx, scaler);
    mpt__frame frame;
    if (!mpt__call_begin(&frame, ctx, MPT__OP_scale_loss, 1, 1, &mpt__no_attributes))
        return mpt__null(ctx);
    frame.record->in[0] = found;
    frame.attributes->index[0] = scaler->slots[MPT__SCALER_SCALE];
    frame.attributes->index[1] = scaler->slots[MPT__SCALER_LOSS];
    frame.attributes->index[2] = scaler->slots[MPT__SCALER_SEED];
    frame.attributes->index[3] = scaler->id.slot;
    return mpt__handle(ctx, mpt__call_run(&frame));
}

/* ==== Unscale, step, skip ==== */

static mpt_status mpt__check_scaled(mpt_context *ctx, const mpt__scaler *scaler) {
    if (scaler->scaled) return MPT_OK;
    return mpt__error(ctx, STATE,
        "no loss was scaled yet; call mpt_backward(mpt_scale_loss(scaler, loss)) first");
}

/* Begins a call that takes an optimizer to stage `to` of the scaler's current update. NULL: the
   call ends here. */
static mpt__scaler *mpt__scaler_take(mpt_scaler handle, mpt_optimizer optimizer_handle,
    const char *name, mpt__stage to, mpt__optimizer **optimizer) {
#define MPT__LEFT_OUT "mpt_scaler_skip left this optimizer out of the current update"
    static const char *const misuse[4][4] = {/* [to][from], in the order of mpt__stage */
        {NULL, NULL, NULL, NULL},
        {NULL, "mpt_unscale was called already; to leave an iteration early, call mpt_scaler_skip",
            "mpt_unscale is called after mpt_scaler_step of this optimizer; call it before",
            MPT__LEFT_OUT},
        {NULL, NULL, "mpt_scaler_step has already been called on this optimizer", MPT__LEFT_OUT},
        {NULL, NULL, "mpt_scaler_step has been called on this optimizer; skip it before", NULL}};
#undef MPT__LEFT_OUT
    mpt__lend(handle, optimizer_handle.context);
    mpt__scaler *scaler = mpt__scaler_enter(handle, name);
    mpt__optimizer *found = scaler ? mpt__optimizer_at(handle.context, optimizer_handle) : NULL;
    *optimizer = found;
    if (!found) return NULL;
    if (!scaler->config.enabled) return scaler;
    if (to != MPT__SKIPPED && mpt__check_scaled(handle.context, scaler) != MPT_OK) return NULL;
    if (found->scaler != scaler->id.slot) found->stage = MPT__READY, found->checked = false;
    found->scaler = scaler->id.slot;
    if (misuse[to][found->stage]) {
        mpt__error(handle.context, STATE, "%s; mpt_scaler_update ends an update",
            misuse[to][found->stage]);
        return NULL;
    }
    found->stage = to;
    return scaler;
}

/* Unscales what has a gradient and notes whether there was any: only then found_inf means
   something. */
static mpt_status mpt__scaler_unscale(
    mpt_context *ctx, const mpt__scaler *scaler, mpt__optimizer *optimizer, bool with_norm) {
    mpt_status status = mpt__optimizer_unscale(
        ctx, optimizer, scaler->id.slot, scaler->slots[MPT__SCALER_SCALE], with_norm);
    optimizer->checked = optimizer->with_grad > 0;
    return status;
}

mpt_status mpt_unscale(mpt_scaler handle, mpt_optimizer optimizer_handle) {
    mpt__optimizer *optimizer;
    const mpt__scaler *scaler =
        mpt__scaler_take(handle, optimizer_handle, "mpt_unscale", MPT__UNSCALED, &optimizer);
    if (!scaler) return mpt__status_of(handle.context);
    return scaler->config.enabled ? mpt__scaler_unscale(handle.context, scaler, optimizer, true)
                                  : MPT_OK;
}

mpt_status mpt_scaler_step(mpt_scaler handle, mpt_optimizer optimizer_handle) {
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer;
    mpt__scaler *scaler =
        mpt__scaler_take(handle, optimizer_handle, "mpt_scaler_step", MPT__STEPPED, &optimizer);
    if (!scaler) return mpt__status_of(ctx);
    bool enabled = scaler->config.enabled;
    if (!enabled && mpt__stepped_inside(ctx, optimizer)) {
        scaler->stepped = true;
        return MPT_OK;
    }
    if (enabled && !optimizer->checked)
        mpt__scaler_unscale(ctx, scaler, optimizer, false);
    else
        mpt__pattern(ctx, optimizer, MPT__PLAIN);
    if (!enabled) scaler->stepped = true;
    return mpt__optimizer_update(ctx, optimizer, enabled ? optimizer->slot[MPT__OPTIM_FOUND] : 0);
}

mpt_status mpt_scaler_skip(mpt_scaler handle, mpt_optimizer optimizer_handle) {
    mpt__optimizer *optimizer;
    mpt__scaler_take(handle, optimizer_handle, "mpt_scaler_skip", MPT__SKIPPED, &optimizer);
    return mpt__status_of(handle.context);
}

/* ==== Looking at the device ==== */

static void mpt__scaler_read(
    const mpt_context *ctx, const mpt__scaler *scaler, mpt_scaler_stats *stats) {
    const mpt__scalar *scalars = ctx->scalars;
    stats->scale = scalars[scaler->slots[MPT__SCALER_SCALE]].f;
    stats->growth_tracker = scalars[scaler->slots[MPT__SCALER_TRACKER]].i;
    stats->steps = scalars[scaler->slots[MPT__SCALER_UPDATES]].i;
    stats->skipped = scalars[scaler->slots[MPT__SCALER_SKIPPED]].i;
    stats->skipped_in_a_row = scalars[scaler->slots[MPT__SCALER_IN_A_ROW]].i;
    stats->last_skipped_step = scalars[scaler->slots[MPT__SCALER_LAST]].i;
}

/* Index of the first of some elements that is not finite, -1 if there is none. Waits. */
static int64_t mpt__first_nonfinite(
    mpt_context *ctx, uint32_t storage, mpt_dtype dtype, int64_t offset, int64_t count) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FIND_NONFINITE);
    mpt__operand_on(launch, 0, storage, dtype, offset, count, MPT__READ);
    launch->slot[0] = MPT__SLOT_NONFINITE;
    mpt__submit(ctx, launch);
    return mpt__is_dry(&ctx->base) ? -1 : mpt__scalar_get_i(ctx, MPT__SLOT_NONFINITE);
}

/* Whether the gradient of a parameter holds a non-finite value. */
static bool mpt__gradient_overflowed(mpt_context *ctx, const mpt__parameter *parameter) {
    const mpt__block *block = &ctx->blocks[parameter->block];
    if (!parameter->live || !parameter->has_grad || !block->gradients) return false;
    return mpt__first_nonfinite(
               ctx, block->gradients, MPT_F32, parameter->offset, parameter->numel) >= 0;
}

/* Remembers the parameter nearest to the loss whose gradient overflowed: backward runs from there,
   so its layer is where it began. */
static void mpt__find_culprit(mpt_context *ctx, mpt__scaler *scaler) {
    const mpt__optimizer *optimizer;
    for (int64_t m = 0; (optimizer = mpt__next_member(ctx, scaler->id.slot, &m)) != NULL;) {
        for (int64_t i = optimizer->item_count - 1; i >= 0; i--) {
            const mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
            if (!mpt__gradient_overflowed(ctx, parameter)) continue;
            mpt__format_text(scaler->culprit, sizeof scaler->culprit, "%s", parameter->path);
            return;
        }
    }
}

/* The layer of the culprit: its path without the parameter's name. */
static void mpt__culprit_layer(const mpt__scaler *scaler, char layer[144]) {
    const char *dot = strrchr(scaler->culprit, '.');
    int length = dot ? (int)(dot - scaler->culprit) : 0;
    mpt__format_text(layer, 144, "layer ");
    if (dot)
        memcpy(layer + 6, scaler->culprit, (size_t)length), layer[6 + length] = '\0';
    else
        mpt__format_text(
            layer, 144, "the layer that %s", *scaler->culprit ? "has it" : "overflows");
}

/* The NaN tracer looks at the step after an overflow, and at those after it until one is clean. */
static void mpt__scaler_trace(mpt_context *ctx, mpt__scaler *scaler, bool on) {
    if (on == scaler->tracing) return;
    scaler->tracing = on;
    if (ctx->tracer.on) return; /* the user's own: it stays */
    if (on) {
        mpt__trace_start(ctx, false);
    } else {
        mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__trace_launch);
    }
}

/* The end of a run of skips: says whether scaling can help at all, and where it began. */
static mpt_status mpt__give_up(mpt_context *ctx, const mpt__scaler *scaler) {
    const mpt_scaler_stats *now = &scaler->seen;
    const char *report = mpt_nan_report(ctx);
    char layer[144], cause[420];
    mpt__culprit_layer(scaler, layer);
    int uncleared = 0;
    const mpt__optimizer *optimizer;
    for (int64_t i = 0; (optimizer = mpt__next_member(ctx, scaler->id.slot, &i)) != NULL;)
        if (optimizer->uncleared > uncleared) uncleared = optimizer->uncleared;
    if (uncleared > 0)
        mpt__format_text(cause, sizeof cause,
            "gradients were never cleared for %d steps, so one that overflowed stays; "
            "call mpt_zero_grad before mpt_backward",
            uncleared);
    else if (scaler->lost_losses > 0)
        mpt__format_text(cause, sizeof cause,
            "the loss itself was NaN or infinite in the last %lld of them, which no loss scale can "
            "cure; check learning rate, data, logarithms and divisions",
            scaler->lost_losses);
    else
        mpt__format_text(cause, sizeof cause,
            "the loss was finite but gradients overflowed in backward (%s); check the learning "
            "rate and the size of targets, or keep %s in fp32 with mpt_set_dtype_policy",
            scaler->culprit[0] ? scaler->culprit : "parameter unknown", layer);
    return mpt__error(ctx, NUMERIC,
        "%lld steps in a row were skipped, the last at loss scale %g (floor %g): %s%s%s",
        now->skipped_in_a_row, now->scale, scaler->config.min_scale, cause, *report ? "; " : "",
        report);
}

enum {
    MPT__RISE = 2,          /* a window with this many times the skips of the one before is worse */
    MPT__RISE_PER_CENT = 2, /* but a rate below this is what a growing scale costs */
    MPT__RISE_LEAST = 2     /* and a single skip is no rate */
};

/* At the end of a window: warns when skips have become frequent. */
static void mpt__compare_windows(mpt_context *ctx, mpt__scaler *scaler) {
    const mpt_scaler_stats *now = &scaler->seen;
    int64_t steps = now->steps - scaler->window_steps;
    if (scaler->config.window == 0 || steps < scaler->config.window) return;
    int64_t skipped = now->skipped - scaler->window_skipped, before = scaler->skipped_before;
    scaler->window_steps = now->steps;
    scaler->window_skipped = now->skipped;
    scaler->skipped_before = skipped;
    if (before < 0 || skipped < MPT__RISE_LEAST || skipped < MPT__RISE * before ||
        skipped * 100 < steps * MPT__RISE_PER_CENT)
        return;
    char layer[144];
    mpt__culprit_layer(scaler, layer);
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "mpt_scaler_update: skipped steps rose from %lld to %lld per %lld (loss scale %g): "
        "check learning rate or keep %s in fp32",
        before, skipped, steps, now->scale, layer);
}

/* Reads the counters, which must be readable, and draws the conclusions. */
static mpt_status mpt__scaler_look(mpt_context *ctx, mpt__scaler *scaler) {
    int64_t before = scaler->seen.skipped;
    mpt__scaler_read(ctx, scaler, &scaler->seen);
    scaler->unseen = 0;
    bool lost = ctx->scalars[scaler->slots[MPT__SCALER_LOSS]].i != 0;
    if (lost) mpt__scalar_set_i(ctx, scaler->slots[MPT__SCALER_LOSS], 0);
    bool skipped = scaler->seen.skipped > before;
    scaler->lost_losses = lost && skipped ? scaler->lost_losses + 1 : 0;
    if (skipped) mpt__find_culprit(ctx, scaler);
    bool over =
        scaler->config.patience > 0 && scaler->seen.skipped_in_a_row >= scaler->config.patience;
    mpt__scaler_trace(ctx, scaler, skipped && !over);
    if (over) return mpt__give_up(ctx, scaler);
    mpt__compare_windows(ctx, scaler);
    return ctx->base.status;
}

/* After an update. Where the device runs on its own, its counters are looked at only as often as
   patience and window need it. */
static mpt_status mpt__scaler_watch(mpt_context *ctx, mpt__scaler *scaler) {
    const mpt_scaler_config *c = &scaler->config;
    if (!ctx->backend.synchronous) {
        int64_t patience = c->patience ? c->patience : INT64_MAX;
        int64_t window = c->window ? c->window : INT64_MAX;
        if (++scaler->unseen < (patience < window ? patience : window)) return MPT_OK;
        mpt__wait(ctx);
    }
    if (!mpt__ok(ctx)) return ctx->base.status;
    return mpt__scaler_look(ctx, scaler);
}

/* ==== Update ==== */

/* The slot that tells whether any optimizer of this update overflowed; counts those that were
   checked and those that made a step. */
static uint16_t mpt__join_found(
    mpt_context *ctx, const mpt__scaler *scaler, int64_t *checked, int64_t *stepped) {
    uint16_t found = 0;
    const mpt__optimizer *optimizer;
    *checked = *stepped = 0;
    for (int64_t i = 0; (optimizer = mpt__next_member(ctx, scaler->id.slot, &i)) != NULL;) {
        if (!optimizer->checked || optimizer->stage == MPT__SKIPPED) continue;
        *stepped += optimizer->stage == MPT__STEPPED;
        uint16_t own = optimizer->slot[MPT__OPTIM_FOUND];
        if ((*checked)++ > 0) {
            mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SCALAR_OR);
            launch->slot[0] = scaler->slots[MPT__SCALER_FOUND];
            launch->slot[1] = found, launch->slot[2] = own;
            mpt__submit(ctx, launch);
            own = scaler->slots[MPT__SCALER_FOUND];
        }
        found = own;
    }
    return found;
}

static mpt_status mpt__launch_scaler_update(
    mpt_context *ctx, const mpt__scaler *scaler, uint16_t found, bool counts) {
    const mpt_scaler_config *c = &scaler->config;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SCALER_UPDATE);
    launch->slot[0] = scaler->slots[MPT__SCALER_SCALE];
    launch->slot[1] = scaler->slots[MPT__SCALER_TRACKER];
    launch->slot[2] = found;
    for (int i = 0; i < 5 && counts; i++)
        launch->slot[3 + i] = scaler->slots[MPT__SCALER_UPDATES + i];
    launch->imm[0] = c->growth_factor, launch->imm[1] = c->backoff_factor;
    launch->imm[2] = c->min_scale, launch->imm[3] = c->max_scale;
    launch->index[0] = c->growth_interval, launch->index[1] = c->fixed;
    return mpt__submit(ctx, launch);
}

mpt_status mpt_scaler_update(mpt_scaler handle) {
    mpt_context *ctx = handle.context;
    mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_update");
    if (!scaler) return mpt__status_of(ctx);
    if (!scaler->config.enabled) return MPT_OK;
    if (mpt__check_scaled(ctx, scaler) != MPT_OK) return ctx->base.status;
    int64_t checked, stepped;
    uint16_t found = mpt__join_found(ctx, scaler, &checked, &stepped);
    mpt_status status = ctx->base.status;
    if (checked > 0 && status == MPT_OK)
        status = mpt__launch_scaler_update(ctx, scaler, found, stepped > 0);
    if (checked > 0 && status == MPT_OK) {
        if (ctx->recorder) mpt__recorder_note(ctx, MPT__SCALER, &scaler->id);
        status = mpt__is_capturing(ctx) ? MPT_OK : mpt__scaler_watch(ctx, scaler);
    }
    if (mpt__dismiss_members(ctx, scaler->id.slot) == 0 && !scaler->told_idle) {
        scaler->told_idle = true;
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "mpt_scaler_update: no optimizer was unscaled or stepped since the last update, "
            "so the scale stays; call mpt_scaler_step before");
    }
    return status;
}

MPT__BEGIN_COLD
/* ==== Asking and setting ==== */

mpt_outcome mpt_step_outcome(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_step_outcome");
    if (!scaler) return MPT_OUTCOME_NONE;
    if (!scaler->config.enabled) return scaler->stepped ? MPT_OUTCOME_APPLIED : MPT_OUTCOME_NONE;
    return (mpt_outcome)mpt__scalar_get_i(handle.context, scaler->slots[MPT__SCALER_OUTCOME]);
}

double mpt_get_scale(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_get_scale");
    if (!scaler) return MPT__NAN_F64;
    if (!scaler->config.enabled) return 1;
    return mpt__scalar_get_f(handle.context, scaler->slots[MPT__SCALER_SCALE]);
}

mpt_status mpt_set_scale(mpt_scaler handle, double scale) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_set_scale");
    if (!scaler) return mpt__status_of(ctx);
    if (!mpt__check_scale(ctx, "scale", scale)) return ctx->base.status;
    if (!scaler->config.enabled) return MPT_OK;
    return mpt__put_scale(ctx, scaler, scale);
}

mpt_scaler_stats mpt_scaler_statistics(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_statistics");
    mpt_scaler_stats stats;
    mpt__zero(stats);
    stats.scale = 1;
    if (scaler && scaler->config.enabled) mpt__scaler_read(handle.context, scaler, &stats);
    return stats;
}

mpt_scaler_config mpt_scaler_get_config(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_get_config");
    return scaler ? scaler->config : mpt_scaler_config_default();
}

mpt_scaler_state mpt_scaler_get_state(mpt_scaler handle) {
    const mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_get_state");
    mpt_scaler_state state;
    mpt__zero(state);
    if (!scaler) return state;
    state.scale = scaler->config.enabled
        ? mpt__scalar_get_f(handle.context, scaler->slots[MPT__SCALER_SCALE])
        : 1.0;
    state.growth_factor = scaler->config.growth_factor;
    state.backoff_factor = scaler->config.backoff_factor;
    state.growth_interval = scaler->config.growth_interval;
    state.growth_tracker = mpt__scalar_get_i(handle.context, scaler->slots[MPT__SCALER_TRACKER]);
    return state;
}

mpt_status mpt_scaler_set_state(mpt_scaler handle, const mpt_scaler_state *state) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__scaler *scaler = mpt__scaler_enter(handle, "mpt_scaler_set_state");
    if (!scaler) return mpt__status_of(ctx);
    if (!state) return mpt__error(ctx, ARGUMENT, "state is NULL; pass one of mpt_scaler_get_state");
    if (!scaler->config.enabled) return MPT_OK;
    if (!mpt__check_scale(ctx, "scale", state->scale) ||
        !mpt__check_factors(
            ctx, state->growth_factor, state->backoff_factor, state->growth_interval) ||
        !mpt__check_count(ctx, "growth_tracker", state->growth_tracker, 0))
        return ctx->base.status;
    scaler->config.growth_factor = state->growth_factor;
    scaler->config.backoff_factor = state->backoff_factor;
    scaler->config.growth_interval = state->growth_interval;
    scaler->changes++;
    scaler->seen.growth_tracker = state->growth_tracker;
    mpt__scalar_set_i(ctx, scaler->slots[MPT__SCALER_TRACKER], state->growth_tracker);
    return mpt__put_scale(ctx, scaler, state->scale);
}
MPT__END_REGION

#endif
