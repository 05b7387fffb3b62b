/* ----
 * train/optimizers.c: the optimizers: what each kind is, their states, groups, options and rates.
 *
 * An optimizer owns state only: moments and fp32 masters that mirror the part of each block that it
 * covers, and counts of steps. What it does with gradients stands in train/update.c.
 * ---- */
#ifndef MPT__TRAIN_OPTIMIZERS_INCLUDED
#define MPT__TRAIN_OPTIMIZERS_INCLUDED

#include "nn/placement.c"
#include "train/codes.c"

/* ==== States ==== */

static void mpt__storage_forget(mpt_context *ctx, uint32_t *storage) {
    if (*storage) mpt__storage_release(ctx, *storage);
    *storage = 0;
}

static mpt_status mpt__copy_elements(mpt_context *ctx, uint32_t from, mpt_dtype from_dtype,
    int64_t from_offset, uint32_t to, mpt_dtype to_dtype, int64_t to_offset, int64_t count) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_COPY);
    mpt__operand_on(launch, 0, from, from_dtype, from_offset, count, MPT__READ);
    mpt__operand_on(launch, 1, to, to_dtype, to_offset, count, MPT__WRITE);
    return mpt__submit(ctx, launch);
}

static bool mpt__wants_mirror(
    const mpt_context *ctx, const mpt__optimizer *optimizer, const mpt__optim_state *state, int k) {
    if (k == MPT__MASTER)
        return !optimizer->stochastic && mpt__block_of(ctx, state)->dtype != MPT_F32;
    if (!optimizer->rule->moment[k].name) return false;
    mpt__need need = optimizer->rule->moment[k].need;
    return need == MPT__IF_FIRST  ? optimizer->setting[0] != 0
        : need == MPT__IF_VARIANT ? optimizer->variant
                                  : true;
}

#ifndef MPTRAIN_NO_FRUGAL
/* Moment k of a larger state, if it is of bytes. */
static bool mpt__codes_grow(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, mpt__optim_state *larger, int k) {
    if (!mpt__coded(optimizer) || k >= MPT__MASTER) return false;
    uint32_t *to = &larger->mirror[k];
    *to = mpt__storage_new(ctx, larger->bytes, MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
    if (*to && state->mirror[k])
        mpt__copy_elements(ctx, state->mirror[k], MPT_U8, 0, *to, MPT_U8, 0, state->bytes);
    return true;
}
#endif

/* Lets a state cover [first, end) as well; new elements are 0. On error it keeps what it had. */
static mpt_status mpt__state_cover(mpt_context *ctx, const mpt__optimizer *optimizer,
    mpt__optim_state *state, int64_t first, int64_t end) {
    mpt__optim_state larger = *state;
    if (state->count > 0 && state->first < first) first = state->first;
    if (state->count > 0 && state->first + state->count > end) end = state->first + state->count;
    larger.first = first, larger.count = end - first;
    mpt__places_grow(optimizer, &larger);
    memset(larger.mirror, 0, sizeof larger.mirror);
    for (int k = 0; k < MPT__MIRRORS && mpt__ok(ctx); k++) {
        if (!mpt__wants_mirror(ctx, optimizer, state, k)) continue;
        mpt_memory_kind kind = k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT;
        if (mpt__codes_grow(ctx, optimizer, state, &larger, k)) continue;
        larger.mirror[k] = mpt__storage_new(ctx, larger.count * 4, kind, MPT__FROM_DEVICE, true);
        if (larger.mirror[k] && state->mirror[k])
            mpt__copy_elements(ctx, state->mirror[k], MPT_F32, 0, larger.mirror[k], MPT_F32,
                state->first - first, state->count);
    }
    bool made = mpt__ok(ctx);
    for (int k = 0; k < MPT__MIRRORS; k++)
        mpt__storage_forget(ctx, made ? &state->mirror[k] : &larger.mirror[k]);
    if (made) *state = larger;
    return ctx->base.status;
}

/* Masters of elements [offset, offset + count) of the block from its half values. */
static mpt_status mpt__master_load(
    mpt_context *ctx, const mpt__optim_state *state, int64_t offset, int64_t count) {
    const mpt__block *block = mpt__block_of(ctx, state);
    return mpt__copy_elements(ctx, block->values, (mpt_dtype)block->dtype, offset,
        state->mirror[MPT__MASTER], MPT_F32, offset - state->first, count);
}

/* Counts the changes of a block's values by others than updates: mpt_write, mpt_load, and, where
   parameters may be shared, other optimizers. */
static uint32_t mpt__foreign_writes(
    const mpt_context *ctx, const mpt__optimizer *optimizer, const mpt__optim_state *state) {
    const mpt__block *block = mpt__block_of(ctx, state);
    return ctx->storages[block->values].version - block->updates[!optimizer->shared];
}

/* Loads the master again where others wrote the values. */
static MPT__FORCE_INLINE mpt_status mpt__master_refresh(
    mpt_context *ctx, const mpt__optimizer *optimizer, mpt__optim_state *state) {
    uint32_t now = mpt__foreign_writes(ctx, optimizer, state);
    if (!state->mirror[MPT__MASTER] || state->agreed == now) return MPT_OK;
    state->agreed = now;
    return mpt__master_load(ctx, state, state->first, state->count);
}

/* Forms and saved tensors notice an update by the version; `form` (-1: none) was written too. */
static MPT__FORCE_INLINE void mpt__values_updated(
    mpt_context *ctx, const mpt__optimizer *optimizer, mpt__optim_state *state, int form) {
    mpt__block *block = mpt__block_of(ctx, state);
    uint32_t version = ++ctx->storages[block->values].version;
    if (form >= 0 && mpt__ok(ctx)) block->form_version[form] = version;
    memset(block->form_read, 0, sizeof block->form_read);
    if (!optimizer->shared) block->updates[1]++;
    state->agreed = mpt__foreign_writes(ctx, optimizer, state);
}

MPT__BEGIN_COLD
/* ==== Taking parameters ==== */

/* Index of the state that mirrors a block; made empty if there is none. UINT32_MAX on error. */
static uint32_t mpt__state_of(mpt_context *ctx, mpt__optimizer *optimizer, uint32_t block) {
    for (int64_t i = 0; i < optimizer->state_count; i++)
        if (optimizer->states[i].block == block) return (uint32_t)i;
    if (!mpt__room(ctx, optimizer->states, optimizer->state_capacity, optimizer->state_count + 1))
        return UINT32_MAX;
    mpt__optim_state *state = &optimizer->states[optimizer->state_count];
    mpt__zero(*state);
    state->block = block;
    state->agreed = mpt__foreign_writes(ctx, optimizer, state);
    return (uint32_t)optimizer->state_count++;
}

/* NULL if the optimizer does not hold the parameter. */
static mpt__optim_item *mpt__item_of(const mpt__optimizer *optimizer, uint32_t parameter) {
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].parameter == parameter) return &optimizer->items[i];
    return NULL;
}

#ifndef MPTRAIN_NO_FRUGAL
/* Adds up what moments the listed parameters will have. */
static void mpt__places_want(
    mpt_context *ctx, mpt__optimizer *optimizer, const uint32_t *list, int64_t count) {
    for (int64_t i = 0; i < optimizer->state_count; i++) optimizer->states[i].wanted = 0;
    for (int64_t i = 0; i < count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[list[i]];
        uint32_t state = mpt__state_of(ctx, optimizer, parameter->block);
        if (state == UINT32_MAX) return;
        if (!mpt__item_of(optimizer, list[i]))
            optimizer->states[state].wanted += mpt__moment_bytes(parameter->numel);
    }
}
#endif

/* Makes the states cover the listed parameters, each state in one go. */
static mpt_status mpt__states_prepare(
    mpt_context *ctx, mpt__optimizer *optimizer, const uint32_t *list, int64_t count) {
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__coded(optimizer)) mpt__places_want(ctx, optimizer, list, count);
#endif
    for (int64_t i = 0; i < count && mpt__ok(ctx); i++) {
        const mpt__parameter *parameter = &ctx->parameters[list[i]];
        uint32_t index = mpt__state_of(ctx, optimizer, parameter->block);
        if (index == UINT32_MAX) break;
        mpt__optim_state *state = &optimizer->states[index];
        int64_t first = parameter->offset, end = first + parameter->numel;
        if (first >= state->first && end <= state->first + state->count &&
            !mpt__places_lack(optimizer, state))
            continue;
        for (int64_t k = i + 1; k < count; k++) {
            const mpt__parameter *other = &ctx->parameters[list[k]];
            if (other->block != parameter->block) continue;
            if (other->offset < first) first = other->offset;
            if (other->offset + other->numel > end) end = other->offset + other->numel;
        }
        mpt__state_cover(ctx, optimizer, state, first, end);
    }
    return ctx->base.status;
}

/* Only bf16 values can be rounded by chance: fp16 lacks the range to do without a master, fp32 the
   need. */
static mpt_status mpt__check_stochastic(
    mpt_context *ctx, const mpt__optimizer *optimizer, const uint32_t *list, int64_t count) {
    for (int64_t i = 0; optimizer->stochastic && i < count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[list[i]];
        mpt_dtype dtype = (mpt_dtype)ctx->blocks[parameter->block].dtype;
        if (dtype == MPT_BF16) continue;
        return mpt__error(ctx, DTYPE,
            "stochastic_rounding: parameter %s is %D; call mpt_half(net, MPT_BF16) first",
            parameter->path, dtype);
    }
    return MPT_OK;
}

static mpt_status mpt__check_free(
    mpt_context *ctx, const mpt__optimizer *optimizer, const uint32_t *list, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[list[i]];
#ifndef MPTRAIN_NO_WATCH
        if (ctx->storages[parameter->tensor->storage].source == MPT__OTHERS &&
            mpt__writing_refused(ctx, parameter->tensor->storage))
            return ctx->base.status;
#endif
        if (!parameter->optimizer || parameter->optimizer == optimizer->id.slot ||
            optimizer->shared)
            continue;
        return mpt__error(ctx, STATE,
            "parameter %s is in another optimizer already; destroy that one, or set "
            "allow_shared if both shall update it",
            parameter->path);
    }
    return MPT_OK;
}

enum { MPT__ROW_BYTES = MPT__SEGMENT_FIELDS * 8 };

static void mpt__items_free(mpt_context *ctx, mpt__optimizer *optimizer) {
    size_t n = (size_t)optimizer->item_capacity;
    mpt__host_free(ctx, optimizer->items, n * sizeof *optimizer->items);
    mpt__host_free(ctx, optimizer->rows, n * (MPT__ROW_BYTES + 8));
    mpt__storage_forget(ctx, &optimizer->segments);
    mpt__storage_forget(ctx, &optimizer->counts);
}

/* Room for n items, in all tables by item. On error nothing changed. */
static mpt_status mpt__items_reserve(mpt_context *ctx, mpt__optimizer *optimizer, int64_t n) {
    if (n <= optimizer->item_capacity) return MPT_OK;
    mpt__optimizer larger = *optimizer;
    int64_t held = optimizer->item_count;
    size_t size = sizeof *larger.items;
    larger.item_capacity = n;
    larger.items = (mpt__optim_item *)mpt__host_new(ctx, (size_t)n * size);
    larger.rows = (int64_t *)mpt__host_new(ctx, (size_t)n * (MPT__ROW_BYTES + 8));
    larger.segments =
        mpt__storage_new(ctx, n * MPT__ROW_BYTES, MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
    larger.counts = mpt__storage_new(ctx, n * 8, MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
    if (mpt__ok(ctx) && held > 0) {
        memcpy(larger.items, optimizer->items, (size_t)held * size);
        mpt__copy_elements(ctx, optimizer->counts, MPT_I64, 0, larger.counts, MPT_I64, 0, held);
    }
    bool made = mpt__ok(ctx);
    mpt__items_free(ctx, made ? optimizer : &larger);
    if (made) *optimizer = larger;
    return ctx->base.status;
}

static void mpt__item_add(
    mpt_context *ctx, mpt__optimizer *optimizer, uint32_t index, uint32_t group) {
    mpt__parameter *parameter = &ctx->parameters[index];
    mpt__optim_item *item = &optimizer->items[optimizer->item_count++];
    if (!parameter->optimizer) parameter->optimizer = optimizer->id.slot;
    mpt__zero(*item);
    item->parameter = index;
    item->group = group;
    item->state = mpt__state_of(ctx, optimizer, parameter->block);
    item->block = parameter->block;
    item->history = optimizer->patterns; /* as its peers, and nobody from before */
    mpt__optim_state *state = &optimizer->states[item->state];
    state->held++;
    mpt__module *holder = mpt__module_slot(ctx, parameter->module);
    state->stream = mpt__module_root(ctx, holder)->path_hash;
    mpt__place_take(optimizer, state, item, parameter->numel);
    if (state->mirror[MPT__MASTER])
        mpt__master_load(ctx, state, parameter->offset, parameter->numel);
    if (optimizer->initial == 0) return;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FILL);
    launch->imm[0] = optimizer->initial;
    mpt__operand_on(launch, 0, state->mirror[0], MPT_F32, parameter->offset - state->first,
        parameter->numel, MPT__WRITE);
    mpt__submit(ctx, launch);
}

/* The listed parameters become members of `group`; what is new starts with a step count of 0. */
static mpt_status mpt__take(mpt_context *ctx, mpt__optimizer *optimizer, const uint32_t *list,
    int64_t count, uint32_t group) {
    mpt_status status = mpt__check_free(ctx, optimizer, list, count);
    if (status == MPT_OK) status = mpt__check_stochastic(ctx, optimizer, list, count);
    if (status == MPT_OK)
        status = mpt__items_reserve(ctx, optimizer, optimizer->item_count + count);
    if (status == MPT_OK) status = mpt__states_prepare(ctx, optimizer, list, count);
    if (status != MPT_OK) return status;
    optimizer->pattern_valid = false;
    optimizer->patterns++;
    for (int64_t i = 0; i < count; i++) {
        uint32_t owner = ctx->parameters[list[i]].optimizer;
        bool held = owner == optimizer->id.slot || optimizer->shared;
        mpt__optim_item *item = held ? mpt__item_of(optimizer, list[i]) : NULL;
        if (item)
            item->group = group;
        else
            mpt__item_add(ctx, optimizer, list[i], group);
    }
    return ctx->base.status;
}

/* Takes a module's parameters, or the one of that path. */
static mpt_status mpt__take_module(mpt_context *ctx, mpt__optimizer *optimizer, mpt_module module,
    const char *path, uint32_t group) {
    int64_t count = mpt__module_parameters(ctx, module, path, NULL, 0);
    if (count < 0) return ctx->base.status;
    size_t bytes = ((size_t)count + 1) * sizeof(uint32_t);
    uint32_t *list = (uint32_t *)mpt__host_new(ctx, bytes);
    if (!list) return ctx->base.status;
    mpt__module_parameters(ctx, module, path, list, count);
    if (!path) count = mpt__trained_parameters(ctx, list, count);
    if (count == 0)
        mpt__error(ctx, ARGUMENT, "the module has no parameters; an optimizer needs one or more");
    else
        mpt__take(ctx, optimizer, list, count, group);
    mpt__host_free(ctx, list, bytes);
    return ctx->base.status;
}

/* Index of a new group; -1 on error. */
static int64_t mpt__group_new(
    mpt_context *ctx, mpt__optimizer *optimizer, double lr, double weight_decay) {
    if (!mpt__room(ctx, optimizer->groups, optimizer->group_capacity, optimizer->group_count + 1))
        return -1;
    mpt__group *group = &optimizer->groups[optimizer->group_count];
    group->lr = lr;
    group->weight_decay = weight_decay;
    memcpy(group->setting, optimizer->setting, sizeof group->setting);
    group->table = 0;
    group->lr_slot = mpt__scalar_new_f(ctx, lr);
    return group->lr_slot ? optimizer->group_count++ : -1;
}

static void mpt__group_free(mpt_context *ctx, mpt__group *group) {
    mpt__scalar_free(ctx, group->lr_slot);
    mpt__storage_forget(ctx, &group->table);
}

/* ==== Making and destroying ==== */

static void mpt__optimizer_free(mpt_context *ctx, void *object) {
    mpt__optimizer *optimizer = (mpt__optimizer *)object;
    if (optimizer->schedule) mpt__schedule_detach(optimizer->schedule);
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
        if (parameter->live && parameter->optimizer == optimizer->id.slot) parameter->optimizer = 0;
    }
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__optim_state *state = &optimizer->states[i];
        mpt__block *block = mpt__block_of(ctx, state);
        if (block->live && block->multiplier_slot == optimizer->slot[MPT__OPTIM_MULTIPLIER])
            mpt__materialise_gradients(ctx, block);
        for (int k = 0; k < MPT__MIRRORS; k++) mpt__storage_forget(ctx, &state->mirror[k]);
    }
    for (int64_t i = 0; i < optimizer->group_count; i++)
        mpt__group_free(ctx, &optimizer->groups[i]);
    for (int i = 0; i < MPT__OPTIM_SLOTS; i++) mpt__scalar_free(ctx, optimizer->slot[i]);
#ifndef MPTRAIN_NO_WATCH
    if (optimizer->own) {
        optimizer->own->end(ctx, optimizer->own);
        mpt__host_free(ctx, optimizer->own, optimizer->own->bytes);
    }
#endif
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__coded(optimizer)) mpt__storage_forget(ctx, &optimizer->codes);
#endif
    mpt__items_free(ctx, optimizer);
    mpt__room_free(ctx, optimizer->states, optimizer->state_capacity);
    mpt__room_free(ctx, optimizer->groups, optimizer->group_capacity);
}

static bool mpt__check_count(mpt_context *ctx, const char *name, int64_t value, int least) {
    if (value >= least) return true;
    return mpt__reject(ctx, ARGUMENT, "%s = %lld; expected %d or more", name, value, least);
}

static bool mpt__check_rate(mpt_context *ctx, double lr, double weight_decay) {
    return mpt__check_number(ctx, "lr", lr, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "weight_decay", weight_decay, 0, MPT__NO_LIMIT);
}

/* What the configs of all kinds of optimizers say, settings in the order of the rule. */
typedef struct mpt__plan {
    double lr, weight_decay, setting[MPT__SETTINGS];
    bool variant, maximize, shared, stochastic;
    double initial;
    int state_bits;
} mpt__plan;

/* Whether moments of that many bits can be had; else an error. */
static bool mpt__check_state_bits(mpt_context *ctx, const mpt__rule *rule, const mpt__plan *plan) {
#ifdef MPTRAIN_NO_FRUGAL
    (void)rule;
    (void)plan;
    return mpt__reject(ctx, UNSUPPORTED, "built without %s", MPT__NOT_FRUGAL);
#else
    if (plan->state_bits != 8)
        return mpt__reject(ctx, ARGUMENT, "state_bits = %d; expected 32 or 8", plan->state_bits);
    if (rule->function != MPT__FN_RMSPROP || !plan->variant) return true;
    return mpt__reject(ctx, ARGUMENT,
        "centered RMSprop takes squares from squares that 8 bits cannot tell apart; set "
        "state_bits = 32");
#endif
}

/* An optimizer over all parameters of a tree. */
static mpt_optimizer mpt__optimizer_new(
    const char *name, mpt_module module, const mpt__rule *rule, const mpt__plan *plan) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = module.context;
    bool ok = mpt__enter_checked(ctx, name) && mpt__check_rate(ctx, plan->lr, plan->weight_decay);
    for (int i = 0; ok && i < MPT__SETTINGS && rule->setting[i].name; i++)
        ok = mpt__check_number(ctx, rule->setting[i].name, plan->setting[i], rule->setting[i].low,
            rule->setting[i].below);
    const bool plain = (plan->state_bits & ~32) == 0; /* 32, or 0 */
    ok = ok && (plain || mpt__check_state_bits(ctx, rule, plan));
    mpt__optimizer *optimizer =
        ok ? (mpt__optimizer *)mpt__object_make(ctx, MPT__OPTIMIZER, sizeof *optimizer) : NULL;
    if (!optimizer) return mpt__optimizer_handle(ctx, NULL);
    optimizer->rule = rule;
    memcpy(optimizer->setting, plan->setting, sizeof plan->setting);
    optimizer->variant = plan->variant;
    optimizer->maximize = plan->maximize;
    optimizer->shared = plan->shared;
    optimizer->stochastic = plan->stochastic;
    optimizer->initial = plan->initial;
    optimizer->refuses_nonfinite = true;
#ifndef MPTRAIN_NO_FRUGAL
    if (!plain) optimizer->codes = mpt__codebooks(ctx);
#endif
    for (int i = 0; i < MPT__OPTIM_SLOTS; i++) optimizer->slot[i] = mpt__scalar_new_i(ctx, 0);
    if (mpt__ok(ctx) && mpt__group_new(ctx, optimizer, plan->lr, plan->weight_decay) == 0)
        mpt__take_module(ctx, optimizer, module, NULL, 0);
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__ok(ctx)) mpt__placement_try(ctx, module);
#endif
    if (mpt__ok(ctx)) return mpt__optimizer_handle(ctx, optimizer);
    mpt__object_free(ctx, MPT__OPTIMIZER, optimizer->id.slot);
    return mpt__optimizer_handle(ctx, NULL);
}

#ifdef MPTRAIN_NO_WATCH
#define mpt__not_updating(ctx, optimizer) true
#else
static MPT__COLD bool mpt__updating(mpt_context *ctx) {
    return mpt__reject(ctx, STATE,
        "an optimizer's update is under way; call this before mpt_step or "
        "mpt_lbfgs_step, or after it");
}
/* Whether no function of the user's runs that would find another optimizer when it returns; else
   an error. */
#define mpt__not_updating(ctx, optimizer) \
    ((!(ctx)->in_update && !((optimizer)->own && (optimizer)->own->running)) || mpt__updating(ctx))
#endif

mpt_status mpt_optimizer_destroy(mpt_optimizer handle) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_destroy");
    if (optimizer && mpt__not_updating(handle.context, optimizer))
        mpt__object_free(handle.context, MPT__OPTIMIZER, optimizer->id.slot);
    return mpt__status_of(handle.context);
}

/* ==== The optimizers ==== */

static const mpt__rule mpt__sgd_rule = {MPT__K_SGD, MPT__FN_NONE, true,
    {{"momentum_buffer", MPT__IF_FIRST}, {NULL, MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    {{"momentum", 0, MPT__NO_LIMIT}, {"dampening", -MPT__NO_LIMIT, MPT__NO_LIMIT}, {NULL, 0, 0}}};

#define MPT__ADAM_SETTINGS \
    { \
        {"beta1", 0, 1}, {"beta2", 0, 1}, { "eps", 0, MPT__NO_LIMIT } \
    }
static const mpt__rule mpt__adam_rule = {MPT__K_ADAM, MPT__FN_NONE, true,
    {{"exp_avg", MPT__ALWAYS}, {"exp_avg_sq", MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    MPT__ADAM_SETTINGS};

static const mpt__rule mpt__amsgrad_rule = {MPT__K_MOMENTS, MPT__FN_AMSGRAD, true,
    {{"exp_avg", MPT__ALWAYS}, {"exp_avg_sq", MPT__ALWAYS}, {"max_exp_avg_sq", MPT__ALWAYS}},
    MPT__ADAM_SETTINGS};

static const mpt__rule mpt__rmsprop_rule = {MPT__K_MOMENTS, MPT__FN_RMSPROP, true,
    {{"square_avg", MPT__ALWAYS}, {"momentum_buffer", MPT__IF_FIRST},
        {"grad_avg", MPT__IF_VARIANT}},
    {{"momentum", 0, MPT__NO_LIMIT}, {"alpha", 0, 1}, {"eps", 0, MPT__NO_LIMIT}}};

static const mpt__rule mpt__adagrad_rule = {MPT__K_MOMENTS, MPT__FN_ADAGRAD, false,
    {{"sum", MPT__ALWAYS}, {NULL, MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    {{"lr_decay", 0, MPT__NO_LIMIT}, {"eps", 0, MPT__NO_LIMIT}, {NULL, 0, 0}}};

static const mpt__rule mpt__adadelta_rule = {MPT__K_MOMENTS, MPT__FN_ADADELTA, false,
    {{"square_avg", MPT__ALWAYS}, {"acc_delta", MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    {{"rho", 0, 1}, {"eps", 0, MPT__NO_LIMIT}, {NULL, 0, 0}}};

static const mpt__rule mpt__lion_rule = {MPT__K_MOMENTS, MPT__FN_LION, true,
    {{"exp_avg", MPT__ALWAYS}, {NULL, MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    {{"beta1", 0, 1}, {"beta2", 0, 1}, {NULL, 0, 0}}};

mpt_sgd_config mpt_sgd_config_default(void) {
    mpt_sgd_config config = {1e-3, 0, 0, 0, false, false, false, false, 32};
    return config;
}

mpt_adam_config mpt_adam_config_default(void) {
    mpt_adam_config config = {1e-3, 0.9, 0.999, 1e-8, 0, false, false, false, false, 32};
    return config;
}

mpt_adamw_config mpt_adamw_config_default(void) {
    mpt_adamw_config config = mpt_adam_config_default();
    config.weight_decay = 1e-2;
    return config;
}

mpt_rmsprop_config mpt_rmsprop_config_default(void) {
    mpt_rmsprop_config config = {1e-2, 0.99, 1e-8, 0, 0, false, false, false, false, 32};
    return config;
}

mpt_adagrad_config mpt_adagrad_config_default(void) {
    mpt_adagrad_config config = {1e-2, 0, 0, 0, 1e-10, false, false, false};
    return config;
}

mpt_adadelta_config mpt_adadelta_config_default(void) {
    mpt_adadelta_config config = {1, 0.9, 1e-6, 0, false, false, false};
    return config;
}

mpt_lion_config mpt_lion_config_default(void) {
    mpt_lion_config config = {1e-4, 0.9, 0.99, 0, false, false, false, 32};
    return config;
}

mpt_optimizer mpt_sgd(mpt_module module, const mpt_sgd_config *config) {
    mpt_sgd_config c = config ? *config : mpt_sgd_config_default();
    mpt__plan plan = {c.lr, c.weight_decay, {c.momentum, c.dampening, 0}, c.nesterov, c.maximize,
        c.allow_shared, c.stochastic_rounding, 0, c.state_bits};
    if (!c.nesterov || (c.momentum != 0 && c.dampening == 0))
        return mpt__optimizer_new("mpt_sgd", module, &mpt__sgd_rule, &plan);
    mpt__misuse(module.context, "mpt_sgd", ARGUMENT,
        "nesterov needs momentum > 0 and dampening 0, got %g and %g", c.momentum, c.dampening);
    return mpt__optimizer_handle(module.context, NULL);
}

static mpt_optimizer mpt__adam_new(
    const char *name, mpt_module module, mpt_adam_config c, bool decoupled) {
    mpt__plan plan = {c.lr, c.weight_decay, {c.beta1, c.beta2, c.eps}, decoupled, c.maximize,
        c.allow_shared, c.stochastic_rounding, 0, c.state_bits};
    return mpt__optimizer_new(
        name, module, c.amsgrad ? &mpt__amsgrad_rule : &mpt__adam_rule, &plan);
}

mpt_optimizer mpt_adam(mpt_module module, const mpt_adam_config *config) {
    return mpt__adam_new("mpt_adam", module, config ? *config : mpt_adam_config_default(), false);
}

mpt_optimizer mpt_adamw(mpt_module module, const mpt_adamw_config *config) {
    return mpt__adam_new("mpt_adamw", module, config ? *config : mpt_adamw_config_default(), true);
}

mpt_optimizer mpt_rmsprop(mpt_module module, const mpt_rmsprop_config *config) {
    mpt_rmsprop_config c = config ? *config : mpt_rmsprop_config_default();
    mpt__plan plan = {c.lr, c.weight_decay, {c.momentum, c.alpha, c.eps}, c.centered, c.maximize,
        c.allow_shared, c.stochastic_rounding, 0, c.state_bits};
    return mpt__optimizer_new("mpt_rmsprop", module, &mpt__rmsprop_rule, &plan);
}

mpt_optimizer mpt_adagrad(mpt_module module, const mpt_adagrad_config *config) {
    mpt_adagrad_config c = config ? *config : mpt_adagrad_config_default();
    mpt__plan plan = {c.lr, c.weight_decay, {c.lr_decay, c.eps, 0}, false, c.maximize,
        c.allow_shared, c.stochastic_rounding, c.initial_accumulator, 0};
    if (c.initial_accumulator >= 0 && c.initial_accumulator < MPT__NO_LIMIT)
        return mpt__optimizer_new("mpt_adagrad", module, &mpt__adagrad_rule, &plan);
    mpt__misuse(module.context, "mpt_adagrad", ARGUMENT,
        "initial_accumulator = %g; expected a finite number >= 0", c.initial_accumulator);
    return mpt__optimizer_handle(module.context, NULL);
}

mpt_optimizer mpt_adadelta(mpt_module module, const mpt_adadelta_config *config) {
    mpt_adadelta_config c = config ? *config : mpt_adadelta_config_default();
    mpt__plan plan = {c.lr, c.weight_decay, {c.rho, c.eps, 0}, false, c.maximize, c.allow_shared,
        c.stochastic_rounding, 0, 0};
    return mpt__optimizer_new("mpt_adadelta", module, &mpt__adadelta_rule, &plan);
}

mpt_optimizer mpt_lion(mpt_module module, const mpt_lion_config *config) {
    mpt_lion_config c = config ? *config : mpt_lion_config_default();
    mpt__plan plan = {c.lr, c.weight_decay, {c.beta1, c.beta2, 0}, false, c.maximize,
        c.allow_shared, c.stochastic_rounding, 0, c.state_bits};
    return mpt__optimizer_new("mpt_lion", module, &mpt__lion_rule, &plan);
}

/* ==== Groups and rates ==== */

int mpt_optimizer_add(mpt_optimizer handle, mpt_module module, const char *parameter,
    const mpt_group_config *config) {
    mpt__lend(handle, module.context);
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_add");
    if (!optimizer || !mpt__not_updating(ctx, optimizer)) return -1;
#ifndef MPTRAIN_NO_WATCH
    if (optimizer->own && optimizer->own->whole) {
        mpt__error(ctx, UNSUPPORTED,
            "L-BFGS takes all parameters together; put them into one module before");
        return -1;
    }
#endif
    double lr = config ? config->lr : optimizer->groups[0].lr;
    double weight_decay = config ? config->weight_decay : optimizer->groups[0].weight_decay;
    if (!mpt__check_rate(ctx, lr, weight_decay)) return -1;
    int64_t group = mpt__group_new(ctx, optimizer, lr, weight_decay);
    if (group < 0) return -1;
    mpt_status status = mpt__schedule_rebase(ctx, optimizer); /* first: takes memory, too */
#ifndef MPTRAIN_NO_WATCH
    if (status == MPT_OK && optimizer->own && optimizer->own->admit)
        status = optimizer->own->admit(ctx, optimizer, module, parameter, group);
#endif
    if (status == MPT_OK)
        status = mpt__take_module(ctx, optimizer, module, parameter, (uint32_t)group);
    if (status == MPT_OK) return (int)group;
    mpt__group_free(ctx, &optimizer->groups[group]);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        if (optimizer->items[i].group == (uint32_t)group) optimizer->items[i].group = 0;
    optimizer->group_count--;
    return -1;
}

int mpt_optimizer_groups(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_groups");
    return optimizer ? (int)optimizer->group_count : -1;
}

static bool mpt__check_group(
    mpt_context *ctx, const mpt__optimizer *optimizer, int group, int lowest) {
    if (group >= lowest && group < optimizer->group_count) return true;
    return mpt__reject(ctx, ARGUMENT, "there is no group %d; the optimizer has %lld", group,
        optimizer->group_count);
}

mpt_status mpt_set_lr(mpt_optimizer handle, int group, double lr) {
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_set_lr");
    if (!optimizer) return mpt__status_of(ctx);
    if (!mpt__check_group(ctx, optimizer, group, -1) || !mpt__check_rate(ctx, lr, 0))
        return ctx->base.status;
    for (int64_t i = 0; i < optimizer->group_count; i++)
        if (group < 0 || i == group) optimizer->groups[i].lr = lr;
    return mpt__schedule_rebase(ctx, optimizer);
}

double mpt_get_lr(mpt_optimizer handle, int group) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_get_lr");
    if (!optimizer || !mpt__check_group(handle.context, optimizer, group, 0)) return MPT__NAN_F64;
    return mpt__schedule_lr(handle.context, optimizer, &optimizer->groups[group]);
}

/* Where a group keeps an option, with its limits; NULL and an error where there is none of that
   name. */
static double *mpt__option(mpt_optimizer handle, const char *call, int group, const char *name,
    double *low, double *below) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, call);
    char names[200];
    mpt__text list = mpt__text_make(names, sizeof names);
    if (!optimizer || !mpt__check_group(handle.context, optimizer, group, 0)) return NULL;
    const mpt__rule *rule = mpt__rule_of(optimizer, group);
#ifndef MPTRAIN_NO_WATCH
    if (optimizer->own && optimizer->own->whole) {
        mpt__error(handle.context, ARGUMENT, "L-BFGS has no options but its lr");
        return NULL;
    }
#endif
    *low = 0, *below = MPT__NO_LIMIT;
    if (name && strcmp(name, "weight_decay") == 0) return &optimizer->groups[group].weight_decay;
    for (int i = 0; i < MPT__SETTINGS && rule->setting[i].name; i++) {
        *low = rule->setting[i].low, *below = rule->setting[i].below;
        if (name && strcmp(name, rule->setting[i].name) == 0)
            return &optimizer->groups[group].setting[i];
        mpt__write_text(&list, "%s, ", rule->setting[i].name);
    }
    mpt__error(handle.context, ARGUMENT, "there is no option \"%s\"; there are %sweight_decay",
        name ? name : "NULL", names);
    return NULL;
}

mpt_status mpt_set_option(mpt_optimizer handle, int group, const char *name, double value) {
    mpt_context *ctx = handle.context;
    double low, below, *option = mpt__option(handle, "mpt_set_option", group, name, &low, &below);
    if (!option || !mpt__check_number(ctx, name, value, low, below)) return mpt__status_of(ctx);
    mpt__optimizer *optimizer = mpt__optimizer_at(ctx, handle);
    if (option == optimizer->groups[group].setting && optimizer->setting[0] == 0 && value != 0)
        for (int k = 0; k < MPT__MOMENTS; k++)
            if (optimizer->rule->moment[k].need == MPT__IF_FIRST)
                return mpt__error(ctx, STATE,
                    "the optimizer was made with %s = 0, so it keeps no %s; set it in the config",
                    name, optimizer->rule->moment[k].name);
    *option = value;
    optimizer->patterns++;
    return MPT_OK;
}

double mpt_get_option(mpt_optimizer handle, int group, const char *name) {
    double low, below;
    const double *option = mpt__option(handle, "mpt_get_option", group, name, &low, &below);
    return option ? *option : MPT__NAN_F64;
}
MPT__END_REGION

#endif
