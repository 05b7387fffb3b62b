/* ---------------------------------------------------------------------------------------------
 * 62_optim.c: SGD, Adam and AdamW; groups, clipping, the segments that their kernels run over.
 *
 * An optimizer owns state only: moments and fp32 masters that mirror the part of each block that it
 * covers, and counts of steps. What an update runs over is a list of segments, built on the host
 * from which parameters have a gradient and uploaded again only when that pattern changes.
 * Unscaling and clipping leave a pending multiplier, so that norm and update are the only passes
 * over gradients.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__62_OPTIM_INCLUDED
#define MPT__62_OPTIM_INCLUDED

#include "61_module.c"

/* ==== Contract ==== */

typedef struct mpt__group {
    double lr; /* without a schedule the rate itself, else the rate that the schedule starts from */
    double weight_decay;
    uint16_t lr_slot; /* what the kernels read */
    uint32_t table;   /* storage of a per-step schedule's window; 0 = none */
} mpt__group;

/* What mirrors elements [first, first + count) of a block. Storages f32; 0 = none. */
typedef struct mpt__optim_state {
    uint32_t block;
    uint8_t dtype; /* of the block */
    uint32_t first_moment, second_moment, master;
    uint32_t version; /* of the block's values when the master last agreed with them */
    int64_t first, count;
} mpt__optim_state;

/* One parameter. Items are sorted by state, group and offset. */
typedef struct mpt__optim_item {
    uint32_t parameter; /* index in context->parameters */
    uint32_t group, state;
    uint32_t steps; /* index of its step count: parameters of equal history share one */
    bool had_grad;  /* in the pattern that the segments were built of */
} mpt__optim_item;

/* The segments of one state and group: one launch. */
typedef struct mpt__optim_part {
    uint32_t state, group;
    int64_t row, rows;
} mpt__optim_part;

/* The norm of the gradients holds as long as none of this changed. */
typedef struct mpt__norm_key {
    bool valid;
    uint32_t backwards, changes;
} mpt__norm_key;

struct mpt__schedule;

typedef struct mpt__optimizer {
    bool adam, decoupled, nesterov, shared;
    double momentum, dampening, beta1, beta2, eps;
    uint32_t slot, generation; /* of the object */
    mpt__group *groups;
    int64_t group_count, group_capacity;
    mpt__optim_state *states;
    int64_t state_count, state_capacity;
    mpt__optim_item *items;
    mpt__optim_part *parts;
    uint32_t *split; /* scratch: by step count, its new index */
    int64_t *rows; /* host copy of the segments: of the parts, then one for each count to commit */
    int64_t item_count, item_capacity;
    int64_t part_count, commit_row, commit_rows;
    int64_t step_counts; /* counts in use */
    int64_t with_grad;   /* parameters with a gradient in the pattern */
    bool pattern_valid, warned_no_grad, warned_unscaled;
    uint32_t segments, counts; /* storages */
    uint16_t applied_slot, multiplier_slot, found_slot, norm_slot;
    mpt__norm_key norm;
    struct mpt__schedule *schedule; /* NULL = none */
} mpt__optimizer;

/* One piece of an object's state, for hash, save, load and comparison: elements of a storage, or,
   where storage is 0, a device scalar. */
typedef struct mpt__state_item {
    const char *name;
    uint32_t storage;
    mpt_dtype dtype; /* MPT_F64 or MPT_I64 for scalars */
    int64_t offset, count;
    uint16_t slot;
} mpt__state_item;
typedef mpt_status (*mpt__state_visitor)(mpt_context *context, void *user,
                                         const mpt__state_item *item);

/* 64_schedule.c. Before an update: sees to it that the device finds its rates. */
static mpt_status mpt__schedule_before_step(mpt_context *context, mpt__optimizer *optimizer);
/* The rate of the next step; waits for the device where it depends on the steps applied. */
static double mpt__schedule_lr(mpt_context *context, mpt__optimizer *optimizer,
                               const mpt__group *group);
/* A group is new, or its starting rate was changed by hand. */
static mpt_status mpt__schedule_rebase(mpt_context *context, mpt__optimizer *optimizer);
static void mpt__schedule_detach(struct mpt__schedule *schedule);

/* ==== Handles ==== */

static mpt_optimizer mpt__optimizer_null(mpt_context *context) {
    mpt_optimizer null;
    null.context = context, null.slot = 0, null.generation = 0;
    return null;
}

static mpt__optimizer *mpt__optimizer_at(mpt_context *context, mpt_optimizer handle) {
    return (mpt__optimizer *)mpt__object_at(context, MPT__OPTIMIZER, handle.context, handle.slot,
                                            handle.generation);
}

/* Begins a public call on an optimizer. NULL: the call ends here. */
static mpt__optimizer *mpt__optimizer_enter(mpt_optimizer handle, const char *name) {
    if (!mpt__enter(handle.context, name)) return NULL;
    return mpt__optimizer_at(handle.context, handle);
}

/* ==== States ==== */

static void mpt__storage_forget(mpt_context *context, uint32_t *storage) {
    if (*storage) mpt__storage_release(context, *storage);
    *storage = 0;
}

static mpt_status mpt__copy_elements(mpt_context *context, uint32_t from, mpt_dtype from_dtype,
                                     int64_t from_offset, uint32_t to, mpt_dtype to_dtype,
                                     int64_t to_offset, int64_t count) {
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_COPY);
    mpt__operand_on(launch, 0, from, from_dtype, from_offset, count, MPT__READ);
    mpt__operand_on(launch, 1, to, to_dtype, to_offset, count, MPT__WRITE);
    return mpt__submit(context, launch);
}

/* Lets a state cover [first, end) as well; new elements are 0. On error it keeps what it had. */
static mpt_status mpt__state_cover(mpt_context *context, const mpt__optimizer *optimizer,
                                   mpt__optim_state *state, int64_t first, int64_t end) {
    mpt__optim_state old = *state;
    if (old.count > 0 && old.first < first) first = old.first;
    if (old.count > 0 && old.first + old.count > end) end = old.first + old.count;
    if (old.count == end - first) return MPT_OK;
    bool wanted[3] = {optimizer->adam || optimizer->momentum != 0, optimizer->adam,
                      state->dtype != MPT_F32};
    uint32_t *mirror[3] = {&state->first_moment, &state->second_moment, &state->master};
    uint32_t larger[3] = {0, 0, 0};
    for (int i = 0; i < 3 && context->base.status == MPT_OK; i++) {
        if (!wanted[i]) continue;
        larger[i] = mpt__storage_new(context, (end - first) * 4,
                                     i == 2 ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT,
                                     MPT__FROM_DEVICE, true);
        if (larger[i] && *mirror[i])
            mpt__copy_elements(context, *mirror[i], MPT_F32, 0, larger[i], MPT_F32,
                               old.first - first, old.count);
    }
    bool made = context->base.status == MPT_OK;
    for (int i = 0; i < 3; i++) {
        mpt__storage_forget(context, made ? mirror[i] : &larger[i]);
        if (made) *mirror[i] = larger[i];
    }
    if (!made) return context->base.status;
    state->first = first;
    state->count = end - first;
    return MPT_OK;
}

/* Masters of elements [offset, offset + count) of the block from its half values. */
static mpt_status mpt__master_load(mpt_context *context, mpt__optim_state *state, int64_t offset,
                                   int64_t count) {
    const mpt__block *block = &context->blocks[state->block];
    return mpt__copy_elements(context, block->values, (mpt_dtype)block->dtype, offset,
                              state->master, MPT_F32, offset - state->first, count);
}

/* The values of a block were written by others (mpt_write, mpt_load): what they wrote counts. */
static mpt_status mpt__masters_refresh(mpt_context *context, mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__optim_state *state = &optimizer->states[i];
        uint32_t version = context->storages[context->blocks[state->block].values].version;
        if (!state->master || state->version == version) continue;
        if (mpt__master_load(context, state, state->first, state->count) != MPT_OK) break;
        state->version = version;
    }
    return context->base.status;
}

/* The optimizer wrote a block's values: forms and saved tensors notice by the version. Masters of
   optimizers over other parameters of the block agree with theirs as before. */
static void mpt__values_changed(mpt_context *context, const mpt__optimizer *writer,
                                mpt__optim_state *state) {
    uint32_t block = state->block;
    uint32_t before = context->storages[context->blocks[block].values].version++;
    state->version = before + 1;
    const mpt__object_table *table = &context->objects[MPT__OPTIMIZER];
    for (int64_t i = 1; i < table->count; i++) {
        mpt__optimizer *other = (mpt__optimizer *)table->rows[i].object;
        if (!other || other == writer || other->shared || writer->shared) continue;
        for (int64_t k = 0; k < other->state_count; k++) {
            if (other->states[k].block == block && other->states[k].version == before)
                other->states[k].version = before + 1;
        }
    }
}

static void mpt__values_replayed(mpt_context *context, uint32_t storage, uint32_t before) {
    const mpt__object_table *table = &context->objects[MPT__OPTIMIZER];
    for (int64_t i = 1; i < table->count; i++) {
        mpt__optimizer *optimizer = (mpt__optimizer *)table->rows[i].object;
        for (int64_t k = 0; optimizer && k < optimizer->state_count; k++) {
            mpt__optim_state *state = &optimizer->states[k];
            if (context->blocks[state->block].values == storage && state->version == before)
                state->version = before + 1;
        }
    }
}

/* ==== Taking parameters ==== */

/* Index of the state that mirrors a block; made empty if there is none. UINT32_MAX on error. */
static uint32_t mpt__state_of(mpt_context *context, mpt__optimizer *optimizer, uint32_t block) {
    for (int64_t i = 0; i < optimizer->state_count; i++)
        if (optimizer->states[i].block == block) return (uint32_t)i;
    void *rows = optimizer->states;
    bool ok = mpt__grow(&context->base, &rows, &optimizer->state_capacity,
                        optimizer->state_count + 1, sizeof *optimizer->states, MPT_MEMORY_HOST);
    optimizer->states = (mpt__optim_state *)rows;
    if (!ok) return UINT32_MAX;
    mpt__optim_state *state = &optimizer->states[optimizer->state_count];
    memset(state, 0, sizeof *state);
    state->block = block;
    state->dtype = context->blocks[block].dtype;
    state->version = context->storages[context->blocks[block].values].version;
    return (uint32_t)optimizer->state_count++;
}

/* NULL if the optimizer does not hold the parameter. */
static mpt__optim_item *mpt__item_of(const mpt__optimizer *optimizer, uint32_t parameter) {
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].parameter == parameter) return &optimizer->items[i];
    return NULL;
}

static mpt_status mpt__check_free(mpt_context *context, const mpt__optimizer *optimizer,
                                  const uint32_t *list, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const mpt__parameter *parameter = &context->parameters[list[i]];
        if (!parameter->optimizer || parameter->optimizer == optimizer->slot || optimizer->shared)
            continue;
        return mpt__error(context, MPT_ERROR_STATE,
                          "parameter %s is in another optimizer already; destroy that one, or set "
                          "allow_shared in the config if both shall update it",
                          parameter->path);
    }
    return MPT_OK;
}

static void *mpt__host_enlarge(mpt_context *context, void *old, int64_t before, int64_t after,
                               size_t size) {
    void *larger = mpt__host_new(context, (size_t)after * size);
    if (larger && old) memcpy(larger, old, (size_t)before * size);
    return larger;
}

/* A larger storage with the same content in front, zeros behind. */
static uint32_t mpt__counts_enlarge(mpt_context *context, uint32_t old, int64_t before,
                                    int64_t after) {
    uint32_t larger =
        mpt__storage_new(context, after * 8, MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
    if (larger && old && before > 0)
        mpt__copy_elements(context, old, MPT_I64, 0, larger, MPT_I64, 0, before);
    return larger;
}

enum { MPT__ROW_BYTES = MPT__SEGMENT_FIELDS * 8 };

/* The tables by item, which have one capacity. */
static void mpt__items_free(mpt_context *context, mpt__optimizer *optimizer) {
    size_t n = (size_t)optimizer->item_capacity;
    mpt__host_free(context, optimizer->items, n * sizeof *optimizer->items);
    mpt__host_free(context, optimizer->parts, n * sizeof *optimizer->parts);
    mpt__host_free(context, optimizer->split, n * sizeof *optimizer->split);
    mpt__host_free(context, optimizer->rows, 2 * n * MPT__ROW_BYTES);
    mpt__storage_forget(context, &optimizer->segments);
    mpt__storage_forget(context, &optimizer->counts);
}

/* Room for `count` more items, in all tables by item. On error nothing changed. */
static mpt_status mpt__items_reserve(mpt_context *context, mpt__optimizer *optimizer,
                                     int64_t count) {
    int64_t n = optimizer->item_count + count;
    if (n <= optimizer->item_capacity) return MPT_OK;
    mpt__optimizer larger = *optimizer;
    larger.item_capacity = n;
    larger.items = (mpt__optim_item *)mpt__host_enlarge(
        context, optimizer->items, optimizer->item_count, n, sizeof *optimizer->items);
    larger.parts = (mpt__optim_part *)mpt__host_new(context, (size_t)n * sizeof *optimizer->parts);
    larger.split = (uint32_t *)mpt__host_new(context, (size_t)n * sizeof *optimizer->split);
    larger.rows = (int64_t *)mpt__host_new(context, 2 * (size_t)n * MPT__ROW_BYTES);
    larger.segments = mpt__storage_new(context, 2 * n * MPT__ROW_BYTES, MPT_MEMORY_WORKSPACE,
                                       MPT__FROM_DEVICE, false);
    larger.counts = mpt__counts_enlarge(context, optimizer->counts, optimizer->step_counts, n);
    if (context->base.status != MPT_OK) {
        mpt__items_free(context, &larger);
        return context->base.status;
    }
    mpt__items_free(context, optimizer);
    *optimizer = larger;
    return MPT_OK;
}

static bool mpt__item_before(const mpt_context *context, const mpt__optim_item *a,
                             const mpt__optim_item *b) {
    if (a->state != b->state) return a->state < b->state;
    if (a->group != b->group) return a->group < b->group;
    return context->parameters[a->parameter].offset < context->parameters[b->parameter].offset;
}

/* Insertion: trees come in the order of their offsets. */
static void mpt__items_sort(const mpt_context *context, mpt__optimizer *optimizer) {
    for (int64_t i = 1; i < optimizer->item_count; i++) {
        mpt__optim_item item = optimizer->items[i];
        int64_t at = i;
        for (; at > 0 && mpt__item_before(context, &item, &optimizer->items[at - 1]); at--)
            optimizer->items[at] = optimizer->items[at - 1];
        optimizer->items[at] = item;
    }
}

/* Makes the states cover the listed parameters. */
static mpt_status mpt__states_prepare(mpt_context *context, mpt__optimizer *optimizer,
                                      const uint32_t *list, int64_t count) {
    for (int64_t i = 0; i < count;) {
        uint32_t block = context->parameters[list[i]].block;
        int64_t first = INT64_MAX, end = 0;
        for (; i < count && context->parameters[list[i]].block == block; i++) {
            const mpt__parameter *parameter = &context->parameters[list[i]];
            if (parameter->offset < first) first = parameter->offset;
            if (parameter->offset + parameter->numel > end)
                end = parameter->offset + parameter->numel;
        }
        uint32_t state = mpt__state_of(context, optimizer, block);
        if (state == UINT32_MAX) return context->base.status;
        mpt_status status =
            mpt__state_cover(context, optimizer, &optimizer->states[state], first, end);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

/* The listed parameters become members of `group`; what is new starts with a step count of 0. */
static mpt_status mpt__take(mpt_context *context, mpt__optimizer *optimizer, const uint32_t *list,
                            int64_t count, uint32_t group) {
    mpt_status status = mpt__check_free(context, optimizer, list, count);
    if (status == MPT_OK) status = mpt__items_reserve(context, optimizer, count);
    if (status == MPT_OK) status = mpt__states_prepare(context, optimizer, list, count);
    if (status != MPT_OK) return status;
    bool fresh = false;
    for (int64_t i = 0; i < count; i++) {
        mpt__parameter *parameter = &context->parameters[list[i]];
        bool held = parameter->optimizer == optimizer->slot || optimizer->shared;
        mpt__optim_item *item = held ? mpt__item_of(optimizer, list[i]) : NULL;
        if (item) {
            item->group = group;
            continue;
        }
        if (!parameter->optimizer) parameter->optimizer = optimizer->slot;
        item = &optimizer->items[optimizer->item_count++];
        item->parameter = list[i];
        item->group = group;
        item->state = mpt__state_of(context, optimizer, parameter->block);
        item->steps = (uint32_t)optimizer->step_counts;
        item->had_grad = false;
        fresh = true;
        mpt__optim_state *state = &optimizer->states[item->state];
        if (state->master) mpt__master_load(context, state, parameter->offset, parameter->numel);
    }
    if (fresh) optimizer->step_counts++;
    mpt__items_sort(context, optimizer);
    optimizer->pattern_valid = false;
    optimizer->norm.valid = false;
    return context->base.status;
}

/* Takes a module's parameters, or the one of that path. */
static mpt_status mpt__take_module(mpt_context *context, mpt__optimizer *optimizer,
                                   mpt_module module, const char *path, uint32_t group) {
    int64_t count = mpt__module_parameters(context, module, path, NULL, 0);
    if (count < 0) return context->base.status;
    if (count == 0)
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "the module has no parameters; an optimizer needs one or more");
    size_t bytes = (size_t)count * sizeof(uint32_t);
    uint32_t *list = (uint32_t *)mpt__host_new(context, bytes);
    if (!list) return context->base.status;
    mpt__module_parameters(context, module, path, list, count);
    mpt__take(context, optimizer, list, count, group);
    mpt__host_free(context, list, bytes);
    return context->base.status;
}

/* Index of a new group; -1 on error. */
static int64_t mpt__group_new(mpt_context *context, mpt__optimizer *optimizer, double lr,
                              double weight_decay) {
    void *rows = optimizer->groups;
    bool ok = mpt__grow(&context->base, &rows, &optimizer->group_capacity,
                        optimizer->group_count + 1, sizeof *optimizer->groups, MPT_MEMORY_HOST);
    optimizer->groups = (mpt__group *)rows;
    if (!ok) return -1;
    mpt__group *group = &optimizer->groups[optimizer->group_count];
    group->lr = lr;
    group->weight_decay = weight_decay;
    group->table = 0;
    group->lr_slot = mpt__scalar_new_f(context, lr);
    return group->lr_slot ? optimizer->group_count++ : -1;
}

/* ==== Making and destroying ==== */

static void mpt__optimizer_free(mpt_context *context, void *object) {
    mpt__optimizer *optimizer = (mpt__optimizer *)object;
    if (optimizer->schedule) mpt__schedule_detach(optimizer->schedule);
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__parameter *parameter = &context->parameters[optimizer->items[i].parameter];
        if (parameter->live && parameter->optimizer == optimizer->slot) parameter->optimizer = 0;
    }
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__optim_state *state = &optimizer->states[i];
        mpt__block *block = &context->blocks[state->block];
        if (block->live && block->multiplier_slot == optimizer->multiplier_slot)
            mpt__materialise_gradients(context, block);
        mpt__storage_forget(context, &state->first_moment);
        mpt__storage_forget(context, &state->second_moment);
        mpt__storage_forget(context, &state->master);
    }
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__scalar_free(context, optimizer->groups[i].lr_slot);
        mpt__storage_forget(context, &optimizer->groups[i].table);
    }
    mpt__scalar_free(context, optimizer->applied_slot);
    mpt__scalar_free(context, optimizer->multiplier_slot);
    mpt__scalar_free(context, optimizer->found_slot);
    mpt__scalar_free(context, optimizer->norm_slot);
    mpt__items_free(context, optimizer);
    mpt__host_free(context, optimizer->states,
                   (size_t)optimizer->state_capacity * sizeof *optimizer->states);
    mpt__host_free(context, optimizer->groups,
                   (size_t)optimizer->group_capacity * sizeof *optimizer->groups);
    mpt__host_free(context, optimizer, sizeof *optimizer);
}

/* Called by mpt_create. */
static void mpt__optim_init(mpt_context *context) {
    context->objects[MPT__OPTIMIZER].destroy = mpt__optimizer_free;
}

/* An optimizer over all parameters of a tree; `rule` holds what its kernel needs. */
static mpt_optimizer mpt__optimizer_new(mpt_module module, const mpt__optimizer *rule, double lr,
                                        double weight_decay) {
    mpt_context *context = module.context;
    mpt__optimizer *optimizer = (mpt__optimizer *)mpt__host_new(context, sizeof *optimizer);
    if (!optimizer) return mpt__optimizer_null(context);
    *optimizer = *rule;
    optimizer->slot = mpt__object_new(context, MPT__OPTIMIZER, optimizer, &optimizer->generation);
    if (!optimizer->slot) {
        mpt__host_free(context, optimizer, sizeof *optimizer);
        return mpt__optimizer_null(context);
    }
    optimizer->applied_slot = mpt__scalar_new_i(context, 0);
    optimizer->multiplier_slot = mpt__scalar_new_f(context, 1.0);
    optimizer->found_slot = mpt__scalar_new_i(context, 0);
    optimizer->norm_slot = mpt__scalar_new_f(context, 0.0);
    if (context->base.status == MPT_OK && mpt__group_new(context, optimizer, lr, weight_decay) == 0)
        mpt__take_module(context, optimizer, module, NULL, 0);
    if (context->base.status != MPT_OK) {
        mpt__object_free(context, MPT__OPTIMIZER, optimizer->slot);
        return mpt__optimizer_null(context);
    }
    mpt_optimizer handle = mpt__optimizer_null(context);
    handle.slot = optimizer->slot;
    handle.generation = optimizer->generation;
    return handle;
}

MPTRAIN_API mpt_status mpt_optimizer_destroy(mpt_optimizer handle) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_destroy");
    if (optimizer) mpt__object_free(handle.context, MPT__OPTIMIZER, optimizer->slot);
    return mpt__status_of(handle.context);
}

/* ==== The three optimizers ==== */

MPTRAIN_API mpt_sgd_config mpt_sgd_config_default(void) {
    mpt_sgd_config config;
    memset(&config, 0, sizeof config);
    config.lr = 1e-3;
    return config;
}

MPTRAIN_API mpt_adam_config mpt_adam_config_default(void) {
    mpt_adam_config config;
    memset(&config, 0, sizeof config);
    config.lr = 1e-3;
    config.beta1 = 0.9;
    config.beta2 = 0.999;
    config.eps = 1e-8;
    return config;
}

MPTRAIN_API mpt_adamw_config mpt_adamw_config_default(void) {
    mpt_adamw_config config = mpt_adam_config_default();
    config.weight_decay = 1e-2;
    return config;
}

#define MPT__NO_LIMIT 1e300 /* what no setting reaches: infinities and NaN are refused */

/* False with an error recorded unless low <= value < below. */
static bool mpt__check_number(mpt_context *context, const char *name, double value, double low,
                              double below) {
    if (value >= low && value < below) return true;
    if (below < MPT__NO_LIMIT) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s = %g is not in [%g, %g)", name, value, low,
                   below);
    } else {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s = %g; expected a finite number >= %g", name,
                   value, low);
    }
    return false;
}

static bool mpt__check_rate(mpt_context *context, double lr, double weight_decay) {
    return mpt__check_number(context, "lr", lr, 0, MPT__NO_LIMIT) &&
           mpt__check_number(context, "weight_decay", weight_decay, 0, MPT__NO_LIMIT);
}

MPTRAIN_API mpt_optimizer mpt_sgd(mpt_module module, const mpt_sgd_config *config) {
    mpt_context *context = module.context;
    mpt_sgd_config c = config ? *config : mpt_sgd_config_default();
    if (!mpt__enter_checked(context, "mpt_sgd")) return mpt__optimizer_null(context);
    if (!mpt__check_rate(context, c.lr, c.weight_decay) ||
        !mpt__check_number(context, "momentum", c.momentum, 0, MPT__NO_LIMIT) ||
        !mpt__check_number(context, "dampening", c.dampening, -MPT__NO_LIMIT, MPT__NO_LIMIT))
        return mpt__optimizer_null(context);
    if (c.nesterov && (c.momentum == 0 || c.dampening != 0)) {
        mpt__error(context, MPT_ERROR_ARGUMENT,
                   "nesterov needs momentum > 0 and dampening 0, got %g and %g", c.momentum,
                   c.dampening);
        return mpt__optimizer_null(context);
    }
    mpt__optimizer rule;
    memset(&rule, 0, sizeof rule);
    rule.momentum = c.momentum;
    rule.dampening = c.dampening;
    rule.nesterov = c.nesterov;
    rule.shared = c.allow_shared;
    return mpt__optimizer_new(module, &rule, c.lr, c.weight_decay);
}

static mpt_optimizer mpt__adam_new(const char *name, mpt_module module, const mpt_adam_config *c,
                                   bool decoupled) {
    mpt_context *context = module.context;
    if (!mpt__enter_checked(context, name)) return mpt__optimizer_null(context);
    if (!mpt__check_rate(context, c->lr, c->weight_decay) ||
        !mpt__check_number(context, "beta1", c->beta1, 0, 1) ||
        !mpt__check_number(context, "beta2", c->beta2, 0, 1) ||
        !mpt__check_number(context, "eps", c->eps, 0, MPT__NO_LIMIT))
        return mpt__optimizer_null(context);
    mpt__optimizer rule;
    memset(&rule, 0, sizeof rule);
    rule.adam = true;
    rule.decoupled = decoupled;
    rule.beta1 = c->beta1;
    rule.beta2 = c->beta2;
    rule.eps = c->eps;
    rule.shared = c->allow_shared;
    return mpt__optimizer_new(module, &rule, c->lr, c->weight_decay);
}

MPTRAIN_API mpt_optimizer mpt_adam(mpt_module module, const mpt_adam_config *config) {
    mpt_adam_config c = config ? *config : mpt_adam_config_default();
    return mpt__adam_new("mpt_adam", module, &c, false);
}

MPTRAIN_API mpt_optimizer mpt_adamw(mpt_module module, const mpt_adamw_config *config) {
    mpt_adamw_config c = config ? *config : mpt_adamw_config_default();
    return mpt__adam_new("mpt_adamw", module, &c, true);
}

/* ==== Groups and rates ==== */

MPTRAIN_API int mpt_optimizer_add(mpt_optimizer handle, mpt_module module, const char *parameter,
                                  const mpt_group_config *config) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_add");
    if (!optimizer) return -1;
    double lr = config ? config->lr : optimizer->groups[0].lr;
    double weight_decay = config ? config->weight_decay : optimizer->groups[0].weight_decay;
    if (!mpt__check_rate(context, lr, weight_decay)) return -1;
    int64_t group = mpt__group_new(context, optimizer, lr, weight_decay);
    if (group < 0) return -1;
    mpt_status status = mpt__take_module(context, optimizer, module, parameter, (uint32_t)group);
    if (status == MPT_OK) status = mpt__schedule_rebase(context, optimizer);
    if (status == MPT_OK) return (int)group;
    mpt__scalar_free(context, optimizer->groups[group].lr_slot);
    mpt__storage_forget(context, &optimizer->groups[group].table);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].group == (uint32_t)group) optimizer->items[i].group = 0;
    optimizer->group_count--;
    return -1;
}

MPTRAIN_API int mpt_optimizer_groups(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_groups");
    return optimizer ? (int)optimizer->group_count : -1;
}

static bool mpt__check_group(mpt_context *context, const mpt__optimizer *optimizer, int group,
                             int lowest) {
    if (group >= lowest && group < optimizer->group_count) return true;
    mpt__error(context, MPT_ERROR_ARGUMENT, "there is no group %d; the optimizer has %lld", group,
               (long long)optimizer->group_count);
    return false;
}

MPTRAIN_API mpt_status mpt_set_lr(mpt_optimizer handle, int group, double lr) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_set_lr");
    if (!optimizer) return mpt__status_of(context);
    if (!mpt__check_group(context, optimizer, group, -1) || !mpt__check_rate(context, lr, 0))
        return context->base.status;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        if (group >= 0 && i != group) continue;
        optimizer->groups[i].lr = lr;
        if (!optimizer->schedule) mpt__scalar_set_f(context, optimizer->groups[i].lr_slot, lr);
    }
    return mpt__schedule_rebase(context, optimizer);
}

MPTRAIN_API double mpt_get_lr(mpt_optimizer handle, int group) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_get_lr");
    if (!optimizer || !mpt__check_group(context, optimizer, group, 0)) return MPT__NAN_F64;
    return mpt__schedule_lr(context, optimizer, &optimizer->groups[group]);
}

/* ==== Segments ==== */

/* Parameters that had a gradient in other steps than the rest have a step count of their own from
   then on: those of each count that lack one now move to a copy of it. */
static mpt_status mpt__counts_split(mpt_context *context, mpt__optimizer *optimizer) {
    int64_t before = optimizer->step_counts;
    memset(optimizer->split, 0, (size_t)before * sizeof *optimizer->split);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].had_grad) optimizer->split[optimizer->items[i].steps] = UINT32_MAX;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__optim_item *item = &optimizer->items[i];
        if (item->had_grad || item->steps >= before || !optimizer->split[item->steps]) continue;
        uint32_t *moved = &optimizer->split[item->steps];
        if (*moved == UINT32_MAX) {
            mpt_status status =
                mpt__copy_elements(context, optimizer->counts, MPT_I64, item->steps,
                                   optimizer->counts, MPT_I64, optimizer->step_counts, 1);
            if (status != MPT_OK) return status;
            *moved = (uint32_t)optimizer->step_counts++;
        }
        item->steps = *moved;
    }
    return MPT_OK;
}

static int64_t *mpt__row_set(mpt__optimizer *optimizer, int64_t row, int64_t offset, int64_t count,
                             int64_t steps) {
    int64_t *fields = &optimizer->rows[row * MPT__SEGMENT_FIELDS];
    fields[MPT__SEGMENT_OFFSET] = offset;
    fields[MPT__SEGMENT_COUNT] = count;
    fields[MPT__SEGMENT_STEP] = steps;
    fields[MPT__SEGMENT_FIELDS - 1] = 0;
    return fields;
}

/* Rows of all parts. Only parameters without a gap between them merge: what stands in a gap is
   nobody's, and a multiplier that is not finite would leave NaN there for every later norm. */
static int64_t mpt__build_parts(const mpt_context *context, mpt__optimizer *optimizer) {
    int64_t row = 0;
    optimizer->part_count = 0;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        if (!item->had_grad) continue;
        const mpt__parameter *parameter = &context->parameters[item->parameter];
        int64_t offset = parameter->offset - optimizer->states[item->state].first;
        mpt__optim_part *part =
            optimizer->part_count ? &optimizer->parts[optimizer->part_count - 1] : NULL;
        if (!part || part->state != item->state || part->group != item->group) {
            part = &optimizer->parts[optimizer->part_count++];
            part->state = item->state, part->group = item->group;
            part->row = row, part->rows = 0;
        }
        int64_t *last = part->rows ? &optimizer->rows[(row - 1) * MPT__SEGMENT_FIELDS] : NULL;
        if (last && last[MPT__SEGMENT_STEP] == (int64_t)item->steps &&
            last[MPT__SEGMENT_OFFSET] + last[MPT__SEGMENT_COUNT] == offset) {
            last[MPT__SEGMENT_COUNT] += parameter->numel;
            continue;
        }
        mpt__row_set(optimizer, row++, offset, parameter->numel, item->steps);
        part->rows++;
    }
    return row;
}

/* Rows that name each count to commit once, in ascending order. */
static int64_t mpt__build_commit(mpt__optimizer *optimizer, int64_t row) {
    memset(optimizer->split, 0, (size_t)optimizer->step_counts * sizeof *optimizer->split);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].had_grad) optimizer->split[optimizer->items[i].steps] = 1;
    optimizer->commit_row = row;
    for (int64_t i = 0; i < optimizer->step_counts; i++)
        if (optimizer->split[i]) mpt__row_set(optimizer, row++, 0, 0, i);
    optimizer->commit_rows = row - optimizer->commit_row;
    return row;
}

/* Brings the segments up to date with which parameters have a gradient now. */
static mpt_status mpt__pattern(mpt_context *context, mpt__optimizer *optimizer) {
    bool same = optimizer->pattern_valid;
    optimizer->with_grad = 0;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__optim_item *item = &optimizer->items[i];
        const mpt__parameter *parameter = &context->parameters[item->parameter];
        if (!parameter->live || parameter->block != optimizer->states[item->state].block)
            return mpt__error(
                context, MPT_ERROR_STATE,
                "the module whose parameters the optimizer holds was destroyed; destroy the "
                "optimizer too and make one for the new module");
        same = same && item->had_grad == parameter->has_grad;
        item->had_grad = parameter->has_grad;
        optimizer->with_grad += parameter->has_grad;
    }
    if (same) return MPT_OK;
    optimizer->pattern_valid = false;
    optimizer->norm.valid = false;
    optimizer->part_count = 0;
    if (optimizer->with_grad == 0) return MPT_OK;
    mpt_status status = mpt__counts_split(context, optimizer);
    if (status != MPT_OK) return status;
    int64_t rows = mpt__build_commit(optimizer, mpt__build_parts(context, optimizer));
    status = mpt__upload(context, optimizer->segments, 0, optimizer->rows, rows * MPT__ROW_BYTES);
    optimizer->pattern_valid = status == MPT_OK;
    return status;
}

static void mpt__segments_operand(mpt__launch *launch, int position,
                                  const mpt__optimizer *optimizer, int64_t row, int64_t rows) {
    mpt__operand *operand = mpt__operand_on(launch, position, optimizer->segments, MPT_I64,
                                            row * MPT__SEGMENT_FIELDS, rows, MPT__READ);
    operand->rank = 2;
    operand->shape[1] = MPT__SEGMENT_FIELDS;
    operand->stride[0] = MPT__SEGMENT_FIELDS;
    operand->stride[1] = 1;
}

static mpt__block *mpt__part_block(mpt_context *context, const mpt__optimizer *optimizer,
                                   const mpt__optim_part *part) {
    return &context->blocks[optimizer->states[part->state].block];
}

/* ==== The pending multiplier ==== */

/* Whether all gradients in the blocks of this pattern are the optimizer's own: only then may a
   multiplier of its own be pending there. */
static bool mpt__exclusive(const mpt_context *context, const mpt__optimizer *optimizer) {
    int64_t all = 0;
    for (int64_t p = 0; p < context->parameter_count; p++) {
        const mpt__parameter *parameter = &context->parameters[p];
        if (!parameter->live || !parameter->has_grad) continue;
        for (int64_t i = 0; i < optimizer->state_count; i++) {
            if (optimizer->states[i].block == parameter->block) {
                all++;
                break;
            }
        }
    }
    return all == optimizer->with_grad;
}

/* Multiplies all gradients by the optimizer's multiplier, then clamps to +-limit if that is > 0. */
static mpt_status mpt__scale_gradients(mpt_context *context, mpt__optimizer *optimizer,
                                       double limit) {
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        const mpt__optim_part *part = &optimizer->parts[i];
        const mpt__optim_state *state = &optimizer->states[part->state];
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_GRAD_SCALE);
        mpt__operand_on(launch, 0, context->blocks[state->block].gradients, MPT_F32, state->first,
                        state->count, MPT__READ_WRITE);
        mpt__segments_operand(launch, 1, optimizer, part->row, part->rows);
        launch->slot[0] = optimizer->multiplier_slot;
        launch->imm[0] = limit;
        mpt__submit(context, launch);
    }
    for (int64_t i = 0; i < optimizer->part_count; i++)
        mpt__part_block(context, optimizer, &optimizer->parts[i])->multiplier_slot = 0;
    mpt__scalar_set_f(context, optimizer->multiplier_slot, 1.0);
    return context->base.status;
}

/* Makes pending multipliers of the optimizer's blocks real; its own starts again from 1. */
static mpt_status mpt__settle(mpt_context *context, mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->part_count; i++)
        mpt__materialise_gradients(context,
                                   mpt__part_block(context, optimizer, &optimizer->parts[i]));
    mpt__scalar_set_f(context, optimizer->multiplier_slot, 1.0);
    return context->base.status;
}

/* Whether the optimizer's multiplier is pending on all its gradients. */
static bool mpt__is_pending(mpt_context *context, const mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        const mpt__block *block = mpt__part_block(context, optimizer, &optimizer->parts[i]);
        if (block->multiplier_slot != optimizer->multiplier_slot) return false;
    }
    return optimizer->part_count > 0;
}

/* The optimizer's multiplier is set: it stays pending where it can. */
static mpt_status mpt__hold(mpt_context *context, mpt__optimizer *optimizer) {
    if (!mpt__exclusive(context, optimizer)) return mpt__scale_gradients(context, optimizer, 0);
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        mpt__part_block(context, optimizer, &optimizer->parts[i])->multiplier_slot =
            optimizer->multiplier_slot;
    }
    return context->base.status;
}

/* ==== Norm and clipping ==== */

static mpt__norm_key mpt__norm_now(mpt_context *context, const mpt__optimizer *optimizer) {
    mpt__norm_key key;
    key.valid = true;
    key.backwards = context->walk_mark;
    key.changes = 0;
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        const mpt__block *block = mpt__part_block(context, optimizer, &optimizer->parts[i]);
        key.changes += context->storages[block->gradients].version;
    }
    return key;
}

/* 2-norm of gradients times multiplier into the norm slot; found_slot (0: none) is set to 1 where
   an element or its product is not finite. */
static mpt_status mpt__norm_launch(mpt_context *context, mpt__optimizer *optimizer,
                                   uint16_t found_slot) {
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        const mpt__optim_part *part = &optimizer->parts[i];
        const mpt__optim_state *state = &optimizer->states[part->state];
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_GRAD_NORM);
        mpt__operand_on(launch, 0, context->blocks[state->block].gradients, MPT_F32, state->first,
                        state->count, MPT__READ);
        mpt__segments_operand(launch, 1, optimizer, part->row, part->rows);
        launch->slot[0] = optimizer->multiplier_slot;
        launch->slot[1] = found_slot;
        launch->slot[2] = optimizer->norm_slot;
        launch->index[0] = i > 0;
        mpt__submit(context, launch);
    }
    optimizer->norm = mpt__norm_now(context, optimizer);
    return context->base.status;
}

/* Divides by the scale and looks for non-finite values: sets the optimizer's found_inf. Without any
   gradient nothing happens. */
static mpt_status mpt__optimizer_unscale(mpt_context *context, mpt__optimizer *optimizer,
                                         uint16_t scale_slot) {
    mpt_status status = mpt__pattern(context, optimizer);
    if (status != MPT_OK || optimizer->with_grad == 0) return status;
    for (int64_t i = 0; i < optimizer->part_count; i++)
        mpt__materialise_gradients(context,
                                   mpt__part_block(context, optimizer, &optimizer->parts[i]));
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_UNSCALE_BEGIN);
    launch->slot[0] = optimizer->multiplier_slot;
    launch->slot[1] = scale_slot;
    launch->slot[2] = optimizer->found_slot;
    mpt__submit(context, launch);
    mpt__norm_launch(context, optimizer, optimizer->found_slot);
    return mpt__hold(context, optimizer);
}

MPTRAIN_API mpt_tensor mpt_clip_grad_norm(mpt_optimizer handle, double max_norm) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_clip_grad_norm");
    if (!optimizer) return mpt__null(context);
    if (!(max_norm >= 0)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "max_norm = %g; expected 0 or more", max_norm);
        return mpt__null(context);
    }
    mpt_shape shape = MPT_SCALAR;
    mpt__tensor *norm = NULL;
    if (mpt__pattern(context, optimizer) == MPT_OK)
        norm = mpt__tensor_new(context, MPT_F32, &shape, MPT_MEMORY_ACTIVATION);
    if (!norm) return mpt__null(context);
    if (optimizer->with_grad > 0) {
        if (!mpt__is_pending(context, optimizer)) mpt__settle(context, optimizer);
        mpt__norm_key now = mpt__norm_now(context, optimizer), *key = &optimizer->norm;
        if (!key->valid || key->backwards != now.backwards || key->changes != now.changes)
            mpt__norm_launch(context, optimizer, 0);
    }
    bool any = optimizer->with_grad > 0; /* the norm of nothing is 0 */
    mpt__launch *launch = mpt__launch_begin(context, any ? MPT__K_CLIP : MPT__K_FILL);
    mpt__operand_on(launch, 0, norm->storage, MPT_F32, norm->offset, 1, MPT__WRITE);
    if (any) {
        launch->slot[0] = optimizer->multiplier_slot;
        launch->slot[1] = optimizer->norm_slot;
        launch->imm[0] = max_norm;
    }
    mpt__submit(context, launch);
    optimizer->norm.valid = false;
    if (any) mpt__hold(context, optimizer);
    if (context->base.status == MPT_OK) return mpt__handle(context, norm);
    mpt__tensor_drop(context, norm);
    return mpt__null(context);
}

MPTRAIN_API mpt_status mpt_clip_grad_value(mpt_optimizer handle, double limit) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_clip_grad_value");
    if (!optimizer) return mpt__status_of(context);
    if (!(limit >= 0))
        return mpt__error(context, MPT_ERROR_ARGUMENT, "limit = %g; expected 0 or more", limit);
    if (mpt__pattern(context, optimizer) != MPT_OK || optimizer->with_grad == 0)
        return context->base.status;
    if (!mpt__is_pending(context, optimizer)) mpt__settle(context, optimizer);
    optimizer->norm.valid = false;
    if (limit > 0) return mpt__scale_gradients(context, optimizer, limit);
    mpt__scale_gradients(context, optimizer, 1.0); /* infinities times 0 would be NaN */
    mpt__scalar_set_f(context, optimizer->multiplier_slot, 0.0);
    return mpt__scale_gradients(context, optimizer, 0);
}

/* ==== The update ==== */

MPTRAIN_API mpt_status mpt_zero_grad(mpt_optimizer handle) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_zero_grad");
    if (!optimizer) return mpt__status_of(context);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        context->parameters[optimizer->items[i].parameter].has_grad = false;
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__block *block = &context->blocks[optimizer->states[i].block];
        if (block->multiplier_slot == optimizer->multiplier_slot) block->multiplier_slot = 0;
    }
    return MPT_OK;
}

static mpt_status mpt__launch_update(mpt_context *context, const mpt__optimizer *optimizer,
                                     const mpt__optim_part *part, uint16_t found_slot) {
    const mpt__optim_state *state = &optimizer->states[part->state];
    const mpt__group *group = &optimizer->groups[part->group];
    mpt__block *block = &context->blocks[state->block];
    if (block->multiplier_slot != optimizer->multiplier_slot)
        mpt__materialise_gradients(context, block);
    mpt__launch *launch = mpt__launch_begin(context, optimizer->adam ? MPT__K_ADAM : MPT__K_SGD);
    int64_t n = state->count;
    mpt__operand_on(launch, 0, block->values, (mpt_dtype)block->dtype, state->first, n,
                    MPT__READ_WRITE);
    if (state->master) mpt__operand_on(launch, 1, state->master, MPT_F32, 0, n, MPT__READ_WRITE);
    mpt__operand_on(launch, 2, block->gradients, MPT_F32, state->first, n, MPT__READ);
    if (state->first_moment)
        mpt__operand_on(launch, 3, state->first_moment, MPT_F32, 0, n, MPT__READ_WRITE);
    mpt__segments_operand(launch, 4, optimizer, part->row, part->rows);
    mpt__operand_on(launch, 5, optimizer->counts, MPT_I64, 0, optimizer->step_counts, MPT__READ);
    if (state->second_moment)
        mpt__operand_on(launch, 6, state->second_moment, MPT_F32, 0, n, MPT__READ_WRITE);
    launch->slot[0] = group->lr_slot;
    launch->slot[1] = block->multiplier_slot ? optimizer->multiplier_slot : (uint16_t)MPT__SLOT_ONE;
    launch->slot[2] = found_slot;
    if (optimizer->adam) {
        launch->imm[0] = optimizer->beta1, launch->imm[1] = optimizer->beta2;
        launch->imm[2] = optimizer->eps, launch->imm[3] = group->weight_decay;
        launch->index[0] = optimizer->decoupled;
    } else {
        launch->imm[0] = optimizer->momentum, launch->imm[1] = optimizer->dampening;
        launch->imm[2] = group->weight_decay;
        launch->index[0] = optimizer->nesterov;
    }
    return mpt__submit(context, launch);
}

/* A warning that names parameters without a gradient; once, until there is one again. */
static void mpt__warn_no_grad(mpt_context *context, mpt__optimizer *optimizer) {
    char names[200];
    size_t length = 0;
    if (optimizer->warned_no_grad) return;
    optimizer->warned_no_grad = true;
    names[0] = '\0';
    for (int64_t i = 0; i < optimizer->item_count && length < sizeof names; i++) {
        length += mpt__format_text(names + length, sizeof names - length, "%s%s", i ? ", " : "",
                                   context->parameters[optimizer->items[i].parameter].path);
    }
    mpt__log(&context->base, MPT_LOG_WARNING,
             "%s: none of the optimizer's %lld parameters has a gradient, so the step does "
             "nothing: %s%s; "
             "call mpt_backward first, on a loss that depends on them",
             context->base.op, (long long)optimizer->item_count, names,
             length >= sizeof names ? " .." : "");
}

/* One update of everything that has a gradient. Queued; nothing happens on the device while
   found_slot (0: none) or the error word is set. */
static mpt_status mpt__optimizer_update(mpt_context *context, mpt__optimizer *optimizer,
                                        uint16_t found_slot) {
    mpt_status status = mpt__pattern(context, optimizer);
    if (status != MPT_OK) return status;
    if (optimizer->with_grad == 0) {
        mpt__warn_no_grad(context, optimizer);
        return MPT_OK;
    }
    optimizer->warned_no_grad = false;
    int phase = context->launch_phase;
    context->launch_phase = MPT__UPDATE;
    status = mpt__schedule_before_step(context, optimizer);
    if (status == MPT_OK) status = mpt__masters_refresh(context, optimizer);
    for (int64_t i = 0; i < optimizer->part_count && status == MPT_OK; i++)
        status = mpt__launch_update(context, optimizer, &optimizer->parts[i], found_slot);
    if (status == MPT_OK) {
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_STEP_COMMIT);
        mpt__segments_operand(launch, 0, optimizer, optimizer->commit_row, optimizer->commit_rows);
        mpt__operand_on(launch, 1, optimizer->counts, MPT_I64, 0, optimizer->step_counts,
                        MPT__READ_WRITE);
        launch->slot[0] = optimizer->applied_slot;
        launch->slot[2] = found_slot;
        status = mpt__submit(context, launch);
    }
    context->launch_phase = phase;
    for (int64_t i = 0; i < optimizer->part_count; i++) {
        uint32_t state = optimizer->parts[i].state;
        if (i == 0 || optimizer->parts[i - 1].state != state)
            mpt__values_changed(context, optimizer, &optimizer->states[state]);
    }
    if (status != MPT_OK) return status;
    context->now.updates++;
    context->committed = context->now;
    return MPT_OK;
}

/* fp16 without a scaler loses small gradients in silence: said once per optimizer. */
static void mpt__warn_unscaled(mpt_context *context, mpt__optimizer *optimizer) {
    bool ended = context->autocast_depth == 0; /* then entry 0 is the region that was open last */
    if (optimizer->warned_unscaled || !ended || context->autocast[0] != MPT_F16) return;
    optimizer->warned_unscaled = true;
    if (context->objects[MPT__SCALER].count > 1) return;
    mpt__log(&context->base, MPT_LOG_WARNING,
             "mpt_step: gradients of an fp16 region without a loss scaler; small ones become 0 in "
             "silence: use mpt_grad_scaler, or MPT_BF16");
}

MPTRAIN_API mpt_status mpt_step(mpt_optimizer handle) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_step");
    if (!optimizer) return mpt__status_of(context);
    mpt__warn_unscaled(context, optimizer);
    return mpt__optimizer_update(context, optimizer, 0);
}

MPTRAIN_API int64_t mpt_applied_steps(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_applied_steps");
    return optimizer ? mpt__scalar_get_i(handle.context, optimizer->applied_slot) : -1;
}

/* ==== State ==== */

/* Visits moments, masters and step counts of every parameter under its name, then the count of
   applied steps. */
static mpt_status mpt__optimizer_visit(mpt_context *context, const mpt__optimizer *optimizer,
                                       mpt__state_visitor visit, void *user) {
    static const char *const sgd_names[] = {"momentum_buffer", "", "master"};
    static const char *const adam_names[] = {"exp_avg", "exp_avg_sq", "master"};
    const char *const *names = optimizer->adam ? adam_names : sgd_names;
    char name[512];
    mpt__state_item item;
    memset(&item, 0, sizeof item);
    item.name = name;
    mpt_status status = MPT_OK;
    for (int64_t i = 0; i < optimizer->item_count && status == MPT_OK; i++) {
        const mpt__optim_item *row = &optimizer->items[i];
        const mpt__parameter *parameter = &context->parameters[row->parameter];
        const mpt__optim_state *state = &optimizer->states[row->state];
        uint32_t mirrors[3] = {state->first_moment, state->second_moment, state->master};
        if (!parameter->live) continue;
        for (int k = 0; k < 3 && status == MPT_OK; k++) {
            if (!mirrors[k]) continue;
            mpt__format_text(name, sizeof name, "%s.%s", parameter->path, names[k]);
            item.storage = mirrors[k];
            item.dtype = MPT_F32;
            item.offset = parameter->offset - state->first;
            item.count = parameter->numel;
            status = visit(context, user, &item);
        }
        if (status != MPT_OK) break;
        mpt__format_text(name, sizeof name, "%s.step", parameter->path);
        item.storage = optimizer->counts;
        item.dtype = MPT_I64;
        item.offset = row->steps;
        item.count = 1;
        status = visit(context, user, &item);
    }
    if (status != MPT_OK) return status;
    mpt__format_text(name, sizeof name, "applied_steps");
    item.storage = 0;
    item.count = 1;
    item.slot = optimizer->applied_slot;
    return visit(context, user, &item);
}

/* Adds name and bits of a state item to the hash at `user`. */
static mpt_status mpt__hash_item(mpt_context *context, void *user, const mpt__state_item *item) {
    uint64_t *hash = (uint64_t *)user;
    *hash = mpt__hash_bytes(*hash, item->name, strlen(item->name));
    if (!item->storage) {
        int64_t bits = mpt__scalar_get_i(context, item->slot);
        *hash = mpt__hash_u64(*hash, (uint64_t)bits);
        return context->base.status;
    }
    uint8_t chunk[4096];
    int64_t size = (int64_t)mpt_dtype_size(item->dtype);
    int64_t at = item->offset * size, end = at + item->count * size;
    while (at < end) {
        int64_t bytes = end - at < (int64_t)sizeof chunk ? end - at : (int64_t)sizeof chunk;
        mpt_status status = mpt__download(context, chunk, item->storage, at, bytes);
        if (status != MPT_OK) return status;
        *hash = mpt__hash_bytes(*hash, chunk, (size_t)bytes);
        at += bytes;
    }
    return MPT_OK;
}

MPTRAIN_API uint64_t mpt_optimizer_hash(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_hash");
    uint64_t hash = 0;
    if (optimizer) mpt__optimizer_visit(handle.context, optimizer, mpt__hash_item, &hash);
    return hash;
}

#endif
