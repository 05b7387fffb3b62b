/* ----
 * train/average.c: averages of weights over the steps of an optimizer: EMA and SWA.
 *
 * An average is fp32 and mirrors the part of each block that a module's parameters take. Its update
 * is a launch that compares the optimizer's count of applied steps with the one it saw last, so a
 * skipped step, or one that failed, does not move it, and nobody waits.
 * ---- */
#ifndef MPT__TRAIN_AVERAGE_INCLUDED
#define MPT__TRAIN_AVERAGE_INCLUDED

#include "train/optimizers.c"

typedef struct {
    uint32_t block, average, backup; /* backup: the block's own values while averages stand there */
    uint32_t moves;                  /* the block's */
    int64_t first, count;
} mpt__ema_part;

typedef struct {
    mpt__id id;
    mpt_module module;
    mpt_optimizer optimizer;
    mpt_ema_config config;
    mpt__ema_part *part; /* as a rule one for each dtype of parameters */
    int64_t capacity;
    int parts;
    bool applied;                   /* the module's values are the averages */
    uint16_t seen_slot, count_slot; /* i: applied steps at the last update; updates so far */
} mpt__ema;

MPT__HANDLES(ema, MPT__EMA)

/* ==== Making and destroying ==== */

static void mpt__ema_free(mpt_context *ctx, void *object) {
    mpt__ema *ema = (mpt__ema *)object;
    for (int i = 0; i < ema->parts; i++) {
        mpt__storage_forget(ctx, &ema->part[i].average);
        mpt__storage_forget(ctx, &ema->part[i].backup);
    }
    mpt__room_free(ctx, ema->part, ema->capacity);
    mpt__scalar_free(ctx, ema->seen_slot);
    mpt__scalar_free(ctx, ema->count_slot);
}

/* Whether the module lives and mpt_half took no parameters from where they were. */
static bool mpt__ema_lives(const mpt_context *ctx, const mpt__ema *ema) {
    const mpt__object *row = &ctx->objects[MPT__MODULE].rows[ema->module.slot];
    bool lives = row->object && row->generation == ema->module.generation;
    for (int i = 0; i < ema->parts; i++)
        lives = lives && ctx->blocks[ema->part[i].block].moves == ema->part[i].moves;
    return lives;
}

/* Lets the parts cover a parameter, and none between that other modules have. */
static void mpt__ema_cover(mpt_context *ctx, mpt__ema *ema, const mpt__parameter *parameter) {
    const mpt__block *block = &ctx->blocks[parameter->block];
    mpt__ema_part *part = ema->parts > 0 ? &ema->part[ema->parts - 1] : NULL;
    if (part && part->block == parameter->block &&
        mpt__aligned_up(part->first + part->count, mpt__block_grain((mpt_dtype)block->dtype)) ==
            parameter->offset) {
        part->count = parameter->offset + parameter->numel - part->first;
        return;
    }
    if (!mpt__room(ctx, ema->part, ema->capacity, ema->parts + 1)) return;
    part = &ema->part[ema->parts++];
    mpt__zero(*part);
    part->block = parameter->block, part->moves = block->moves;
    part->first = parameter->offset, part->count = parameter->numel;
}

/* Copies between the values of a part, at `values`, and another storage of it. */
static mpt_status mpt__ema_move(
    mpt_context *ctx, const mpt__ema_part *part, uint32_t other, bool average, bool to_values) {
    const mpt__block *block = &ctx->blocks[part->block];
    mpt_dtype own = (mpt_dtype)block->dtype, dtype = average ? MPT_F32 : own;
    if (!to_values)
        return mpt__copy_elements(
            ctx, block->values, own, part->first, other, dtype, 0, part->count);
    mpt__copy_elements(ctx, other, dtype, 0, block->values, own, part->first, part->count);
    ctx->storages[block->values].version++;
    mpt__values_replayed(ctx, block->values); /* masters hold on to what they know */
    return ctx->base.status;
}

static mpt_status mpt__ema_parts_make(mpt_context *ctx, mpt__ema *ema) {
    int64_t count = mpt__module_parameters(ctx, ema->module, NULL, NULL, 0);
    if (count < 0) return ctx->base.status;
    if (count == 0) return mpt__error(ctx, ARGUMENT, "the module has no parameters to average");
    size_t bytes = (size_t)count * sizeof(uint32_t);
    uint32_t *list = (uint32_t *)mpt__host_new(ctx, bytes);
    if (!list) return ctx->base.status;
    mpt__module_parameters(ctx, ema->module, NULL, list, count);
    for (int64_t i = 0; i < count && mpt__ok(ctx); i++)
        mpt__ema_cover(ctx, ema, &ctx->parameters[list[i]]);
    mpt__host_free(ctx, list, bytes);
    for (int i = 0; i < ema->parts && mpt__ok(ctx); i++) {
        mpt__ema_part *part = &ema->part[i];
        part->average =
            mpt__storage_new(ctx, part->count * 4, MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, false);
        if (part->average) mpt__ema_move(ctx, part, part->average, true, false);
    }
    return ctx->base.status;
}

mpt_ema_config mpt_ema_config_default(void) {
    mpt_ema_config config = {0.999, false, false};
    return config;
}

mpt_ema mpt_ema_create(mpt_module module, mpt_optimizer optimizer, const mpt_ema_config *config) {
    mpt__lend(module, optimizer.context);
    mpt_context *ctx = module.context;
    mpt_ema_config c = config ? *config : mpt_ema_config_default();
    mpt__ema *ema = NULL;
    const mpt__optimizer *steps = NULL;
    if (mpt__enter(ctx, "mpt_ema_create") && mpt__module_at(ctx, module))
        steps = mpt__optimizer_at(ctx, optimizer);
    if (steps && mpt__check_number(ctx, "decay", c.decay, 0, 1))
        ema = (mpt__ema *)mpt__object_make(ctx, MPT__EMA, sizeof *ema);
    if (!ema) return mpt__ema_handle(ctx, NULL);
    ema->module = module, ema->optimizer = optimizer, ema->config = c;
    ema->seen_slot =
        mpt__scalar_new_i(ctx, mpt__scalar_get_i(ctx, steps->slot[MPT__OPTIM_APPLIED]));
    ema->count_slot = mpt__scalar_new_i(ctx, 0);
    if (mpt__ema_parts_make(ctx, ema) == MPT_OK) return mpt__ema_handle(ctx, ema);
    mpt__object_free(ctx, MPT__EMA, ema->id.slot);
    return mpt__ema_handle(ctx, NULL);
}

/* Whether averages stand where the values of a block were. */
static bool mpt__averages_applied(const mpt_context *ctx, uint32_t block) {
    MPT__EACH_OBJECT(const mpt__ema, ema, ctx, MPT__EMA) {
        for (int i = 0; ema->applied && i < ema->parts; i++)
            if (ema->part[i].block == block && mpt__ema_lives(ctx, ema)) return true;
    }
    return false;
}

/* ==== Calls ==== */

/* Begins a call on averages whose module lives. */
static mpt__ema *mpt__ema_begin(mpt_ema handle, const char *name) {
    mpt__ema *ema = mpt__ema_enter(handle, name);
    if (!ema || !mpt__module_at(handle.context, ema->module)) return NULL;
    if (mpt__ema_lives(handle.context, ema)) return ema;
    mpt__error(handle.context, STATE, "mpt_half moved parameters; make averages anew");
    return NULL;
}

mpt_status mpt_ema_update(mpt_ema handle) {
    mpt_context *ctx = handle.context;
    const mpt__ema *ema = mpt__ema_begin(handle, "mpt_ema_update");
    const mpt__optimizer *optimizer = ema ? mpt__optimizer_at(ctx, ema->optimizer) : NULL;
    if (!optimizer) return mpt__status_of(ctx);
    if (ema->applied)
        return mpt__error(
            ctx, STATE, "the module's values are the averages; call mpt_ema_restore first");
    for (int i = 0; i < ema->parts; i++) {
        const mpt__ema_part *part = &ema->part[i];
        const mpt__block *block = &ctx->blocks[part->block];
        mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_AVERAGE);
        mpt__operand_on(launch, 0, part->average, MPT_F32, 0, part->count, MPT__READ_WRITE);
        mpt__operand_on(
            launch, 1, block->values, (mpt_dtype)block->dtype, part->first, part->count, MPT__READ);
        launch->slot[0] = optimizer->slot[MPT__OPTIM_APPLIED];
        launch->slot[1] = ema->seen_slot;
        launch->slot[2] = ema->count_slot;
        launch->imm[0] = ema->config.decay;
        launch->index[0] = ema->config.equal ? 2 : ema->config.warmup;
        launch->index[1] = i == ema->parts - 1;
        mpt__submit(ctx, launch);
    }
    return ctx->base.status;
}

mpt_status mpt_ema_apply(mpt_ema handle) {
    mpt_context *ctx = handle.context;
    mpt__ema *ema = mpt__ema_begin(handle, "mpt_ema_apply");
    if (!ema) return mpt__status_of(ctx);
    for (int i = 0; i < ema->parts; i++) {
        mpt__ema_part *part = &ema->part[i];
        const mpt__block *block = &ctx->blocks[part->block];
        if (mpt__averages_applied(ctx, part->block))
            return mpt__error(
                ctx, STATE, "averages were applied already; call mpt_ema_restore first");
        if (mpt__writing_refused(ctx, block->values)) return ctx->base.status;
        if (!part->backup)
            part->backup = mpt__storage_new(ctx, part->count * mpt__dtype_info[block->dtype].bytes,
                MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
        if (!part->backup) return ctx->base.status;
    }
    for (int i = 0; i < ema->parts; i++)
        mpt__ema_move(ctx, &ema->part[i], ema->part[i].backup, false, false);
    ema->applied = mpt__ok(ctx); /* all is kept: mpt_ema_restore can give it */
    for (int i = 0; i < ema->parts; i++)
        mpt__ema_move(ctx, &ema->part[i], ema->part[i].average, true, true);
    return ctx->base.status;
}

mpt_status mpt_ema_restore(mpt_ema handle) {
    mpt_context *ctx = handle.context;
    mpt__ema *ema = mpt__ema_begin(handle, "mpt_ema_restore");
    if (!ema) return mpt__status_of(ctx);
    if (!ema->applied) return mpt__error(ctx, STATE, "mpt_ema_apply was not called before");
    for (int i = 0; i < ema->parts; i++)
        mpt__ema_move(ctx, &ema->part[i], ema->part[i].backup, false, true);
    ema->applied = !mpt__ok(ctx);
    return ctx->base.status;
}

/* Visits the averages of every parameter under its name, then the counts. */
static mpt_status mpt__ema_visit(
    mpt_context *ctx, const mpt__ema *ema, mpt__state_visitor visit, void *user) {
    char name[MPT__STATE_NAME];
    mpt__state_item item;
    mpt__zero(item);
    item.name = name;
    item.dtype = MPT_F32;
    mpt_status status = MPT_OK;
    for (int64_t k = 0; k < ctx->parameter_count && status == MPT_OK; k++) {
        const mpt__parameter *parameter = &ctx->parameters[k];
        for (int i = 0; i < ema->parts && parameter->live; i++) {
            const mpt__ema_part *part = &ema->part[i];
            item.offset = parameter->offset - part->first, item.count = parameter->numel;
            if (part->block != parameter->block || item.offset < 0 ||
                item.offset + item.count > part->count)
                continue;
            mpt__format_text(name, sizeof name, "%s.average", parameter->path);
            item.module = parameter->module;
            item.shape = parameter->tensor->shape;
            item.storage = part->average;
            status = visit(ctx, user, &item);
        }
    }
    item.storage = item.module = 0, item.count = 1;
    item.shape = MPT_SCALAR;
    item.dtype = MPT_I64;
    item.most = MPT__MOST_COUNTED;
    for (int i = 0; i < 2 && status == MPT_OK; i++) {
        mpt__format_text(name, sizeof name, "%s", i ? "updates" : "applied_steps");
        item.slot = i ? ema->count_slot : ema->seen_slot;
        status = visit(ctx, user, &item);
    }
    return status;
}

uint64_t mpt_ema_hash(mpt_ema handle) {
    const mpt__ema *ema = mpt__ema_begin(handle, "mpt_ema_hash");
    uint64_t hash = 0;
    if (ema) mpt__ema_visit(handle.context, ema, mpt__hash_item, &hash);
    return hash;
}

mpt_status mpt_ema_destroy(mpt_ema handle) {
    mpt_context *ctx = handle.context;
    const mpt__ema *ema = mpt__ema_enter(handle, "mpt_ema_destroy");
    if (!ema) return mpt__status_of(ctx);
    if (ema->applied && mpt__ema_lives(ctx, ema))
        return mpt__error(
            ctx, STATE, "the module's values are the averages; call mpt_ema_restore first");
    mpt__object_free(ctx, MPT__EMA, ema->id.slot);
    return ctx->base.status;
}

#endif
