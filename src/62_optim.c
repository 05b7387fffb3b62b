/* ---------------------------------------------------------------------------------------------
 * 62_optim.c: SGD, Adam and AdamW; groups, clipping, the segments that their kernels run over.
 *
 * An optimizer owns state only: moments and fp32 masters that mirror the part of each block that it
 * covers, and counts of steps. Its kernels run over segments of that part, built on the host from
 * which parameters have a gradient and uploaded again only when that pattern changes. Unscaling and
 * clipping leave a pending multiplier, so that norm and update are the only passes over gradients.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__62_OPTIM_INCLUDED
#define MPT__62_OPTIM_INCLUDED

#include "61_module.c"

/* ==== Contract ==== */

enum { MPT__MOMENTS = 2, MPT__MASTER = MPT__MOMENTS, MPT__MIRRORS, MPT__SETTINGS = 3 };

/* What one kind of optimizer is. Settings are checked to lie in [low, below) and go to imm[0..] of
   the kernel, weight decay behind them; the variant goes to index[0]. */
typedef struct mpt__rule {
    mpt__kernel kernel;
    const char *moment[MPT__MOMENTS]; /* their names in state; NULL = none */
    bool optional;                    /* there are moments only where the first setting is not 0 */
    struct {
        const char *name;
        double low, below;
    } setting[MPT__SETTINGS]; /* the last ones may be missing */
} mpt__rule;

typedef struct mpt__group {
    double lr; /* without a schedule the rate itself, else the rate that the schedule starts from */
    double weight_decay;
    uint16_t lr_slot; /* what the kernels read where there is no table */
    uint32_t table;   /* storage of a per-step schedule's window; 0 = none */
} mpt__group;

/* What mirrors elements [first, first + count) of a block. */
typedef struct mpt__optim_state {
    uint32_t block;
    uint32_t mirror[MPT__MIRRORS]; /* storages f32: moments, master; 0 = none */
    uint32_t agreed;               /* mpt__foreign_writes when the master was loaded */
    int64_t first, count;
    int64_t held;      /* parameters of the block that are in the optimizer */
    int64_t row, rows; /* its segments; rows 0: no gradient in this pattern */
} mpt__optim_state;

/* One parameter; its step count has the same index. */
typedef struct mpt__optim_item {
    uint32_t parameter; /* index in context->parameters */
    uint32_t group, state;
    bool had_grad;    /* in the pattern that the segments were built of */
    uint64_t history; /* hash of the patterns in which it had one: equal where step counts are */
} mpt__optim_item;

/* The device scalars of an optimizer. */
enum {
    MPT__OPTIM_APPLIED,    /* i: steps */
    MPT__OPTIM_FOUND,      /* i: found_inf of the last unscale */
    MPT__OPTIM_NORM,       /* f */
    MPT__OPTIM_MULTIPLIER, /* f: means something while it is pending on blocks */
    MPT__OPTIM_SLOTS
};

/* How far an optimizer is in the current update of its scaler. */
typedef enum mpt__stage { MPT__READY, MPT__UNSCALED, MPT__STEPPED, MPT__SKIPPED } mpt__stage;

struct mpt__schedule;

typedef struct mpt__optimizer {
    mpt__id id;
    const mpt__rule *rule;
    double setting[MPT__SETTINGS];
    bool variant, shared, warned_no_grad, warned_unscaled;
    bool pattern_valid, norm_valid;
    mpt__group *groups;
    int64_t group_count, group_capacity;
    mpt__optim_state *states;
    int64_t state_count, state_capacity;
    mpt__optim_item *items;
    int64_t item_count, item_capacity;
    int64_t row_count;
    int64_t *rows;             /* host copy of the segments, behind it the group of each */
    uint32_t segments, counts; /* storages */
    int64_t with_grad;         /* parameters with a gradient in the pattern */
    uint64_t patterns;         /* so far */
    uint16_t slot[MPT__OPTIM_SLOTS];
    uint32_t scaler; /* slot of the scaler in whose current update it takes part; 0 = none */
    mpt__stage stage;
    bool checked;                   /* its gradients were looked at: found_inf means something */
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
/* The operand and slots by which an update finds the rate of a group. */
static void mpt__schedule_operand(mpt__launch *launch, const mpt__optimizer *optimizer,
                                  const mpt__group *group);
/* The rate of the next step; waits for the device where it depends on the steps applied. */
static double mpt__schedule_lr(mpt_context *context, mpt__optimizer *optimizer,
                               const mpt__group *group);
/* A group is new, or its starting rate was changed by hand. */
static mpt_status mpt__schedule_rebase(mpt_context *context, mpt__optimizer *optimizer);
static void mpt__schedule_detach(struct mpt__schedule *schedule);

/* ==== Handles ==== */

MPT__HANDLES(optimizer, MPT__OPTIMIZER)

static mpt__block *mpt__block_of(const mpt_context *context, const mpt__optim_state *state) {
    return &context->blocks[state->block];
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

static bool mpt__wants_mirror(const mpt_context *context, const mpt__optimizer *optimizer,
                              const mpt__optim_state *state, int k) {
    if (k == MPT__MASTER) return mpt__block_of(context, state)->dtype != MPT_F32;
    return optimizer->rule->moment[k] && !(optimizer->rule->optional && optimizer->setting[0] == 0);
}

/* Lets a state cover [first, end) as well; new elements are 0. On error it keeps what it had. */
static mpt_status mpt__state_cover(mpt_context *context, const mpt__optimizer *optimizer,
                                   mpt__optim_state *state, int64_t first, int64_t end) {
    mpt__optim_state larger = *state;
    if (state->count > 0 && state->first < first) first = state->first;
    if (state->count > 0 && state->first + state->count > end) end = state->first + state->count;
    larger.first = first, larger.count = end - first;
    memset(larger.mirror, 0, sizeof larger.mirror);
    for (int k = 0; k < MPT__MIRRORS && context->base.status == MPT_OK; k++) {
        if (!mpt__wants_mirror(context, optimizer, state, k)) continue;
        mpt_memory_kind kind = k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT;
        larger.mirror[k] =
            mpt__storage_new(context, larger.count * 4, kind, MPT__FROM_DEVICE, true);
        if (larger.mirror[k] && state->mirror[k])
            mpt__copy_elements(context, state->mirror[k], MPT_F32, 0, larger.mirror[k], MPT_F32,
                               state->first - first, state->count);
    }
    bool made = context->base.status == MPT_OK;
    for (int k = 0; k < MPT__MIRRORS; k++)
        mpt__storage_forget(context, made ? &state->mirror[k] : &larger.mirror[k]);
    if (made) *state = larger;
    return context->base.status;
}

/* Masters of elements [offset, offset + count) of the block from its half values. */
static mpt_status mpt__master_load(mpt_context *context, const mpt__optim_state *state,
                                   int64_t offset, int64_t count) {
    const mpt__block *block = mpt__block_of(context, state);
    return mpt__copy_elements(context, block->values, (mpt_dtype)block->dtype, offset,
                              state->mirror[MPT__MASTER], MPT_F32, offset - state->first, count);
}

/* Counts the changes of a block's values by others than updates: mpt_write, mpt_load, and, where
   parameters may be shared, other optimizers. */
static uint32_t mpt__foreign_writes(const mpt_context *context, const mpt__optimizer *optimizer,
                                    const mpt__optim_state *state) {
    const mpt__block *block = mpt__block_of(context, state);
    return context->storages[block->values].version - block->updates[!optimizer->shared];
}

/* What others wrote counts: the master is loaded again. */
static mpt_status mpt__master_refresh(mpt_context *context, const mpt__optimizer *optimizer,
                                      mpt__optim_state *state) {
    uint32_t now = mpt__foreign_writes(context, optimizer, state);
    if (!state->mirror[MPT__MASTER] || state->agreed == now) return MPT_OK;
    state->agreed = now;
    return mpt__master_load(context, state, state->first, state->count);
}

/* Forms and saved tensors notice an update by the version; `form` (-1: none) was written too. */
static void mpt__values_updated(mpt_context *context, const mpt__optimizer *optimizer,
                                mpt__optim_state *state, int form) {
    mpt__block *block = mpt__block_of(context, state);
    uint32_t version = ++context->storages[block->values].version;
    if (form >= 0 && context->base.status == MPT_OK) block->form_version[form] = version;
    memset(block->form_read, 0, sizeof block->form_read);
    if (!optimizer->shared) block->updates[1]++;
    state->agreed = mpt__foreign_writes(context, optimizer, state);
}

static void mpt__values_replayed(mpt_context *context, uint32_t storage, uint32_t before) {
    (void)before;
    for (int64_t i = 0; i < context->block_count; i++) {
        mpt__block *block = &context->blocks[i];
        if (block->values == storage) block->updates[0]++, block->updates[1]++;
    }
}

/* ==== Taking parameters ==== */

/* Index of the state that mirrors a block; made empty if there is none. UINT32_MAX on error. */
static uint32_t mpt__state_of(mpt_context *context, mpt__optimizer *optimizer, uint32_t block) {
    for (int64_t i = 0; i < optimizer->state_count; i++)
        if (optimizer->states[i].block == block) return (uint32_t)i;
    if (!mpt__room(context, optimizer->states, optimizer->state_capacity,
                   optimizer->state_count + 1))
        return UINT32_MAX;
    mpt__optim_state *state = &optimizer->states[optimizer->state_count];
    memset(state, 0, sizeof *state);
    state->block = block;
    state->agreed = mpt__foreign_writes(context, optimizer, state);
    return (uint32_t)optimizer->state_count++;
}

/* Makes the states cover the listed parameters, each state in one go. */
static mpt_status mpt__states_prepare(mpt_context *context, mpt__optimizer *optimizer,
                                      const uint32_t *list, int64_t count) {
    for (int64_t i = 0; i < count && context->base.status == MPT_OK; i++) {
        const mpt__parameter *parameter = &context->parameters[list[i]];
        uint32_t index = mpt__state_of(context, optimizer, parameter->block);
        if (index == UINT32_MAX) break;
        mpt__optim_state *state = &optimizer->states[index];
        int64_t first = parameter->offset, end = first + parameter->numel;
        if (first >= state->first && end <= state->first + state->count) continue;
        for (int64_t k = i + 1; k < count; k++) {
            const mpt__parameter *other = &context->parameters[list[k]];
            if (other->block != parameter->block) continue;
            if (other->offset < first) first = other->offset;
            if (other->offset + other->numel > end) end = other->offset + other->numel;
        }
        mpt__state_cover(context, optimizer, state, first, end);
    }
    return context->base.status;
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
        if (!parameter->optimizer || parameter->optimizer == optimizer->id.slot ||
            optimizer->shared)
            continue;
        return mpt__error(context, MPT_ERROR_STATE,
                          "parameter %s is in another optimizer already; destroy that one, or set "
                          "allow_shared in the config if both shall update it",
                          parameter->path);
    }
    return MPT_OK;
}

enum { MPT__ROW_BYTES = MPT__SEGMENT_FIELDS * 8 };

static void mpt__items_free(mpt_context *context, mpt__optimizer *optimizer) {
    size_t n = (size_t)optimizer->item_capacity;
    mpt__host_free(context, optimizer->items, n * sizeof *optimizer->items);
    mpt__host_free(context, optimizer->rows, n * (MPT__ROW_BYTES + 8));
    mpt__storage_forget(context, &optimizer->segments);
    mpt__storage_forget(context, &optimizer->counts);
}

/* Room for n items, in all tables by item. On error nothing changed. */
static mpt_status mpt__items_reserve(mpt_context *context, mpt__optimizer *optimizer, int64_t n) {
    if (n <= optimizer->item_capacity) return MPT_OK;
    mpt__optimizer larger = *optimizer;
    int64_t held = optimizer->item_count;
    size_t size = sizeof *larger.items;
    larger.item_capacity = n;
    larger.items = (mpt__optim_item *)mpt__host_new(context, (size_t)n * size);
    larger.rows = (int64_t *)mpt__host_new(context, (size_t)n * (MPT__ROW_BYTES + 8));
    larger.segments = mpt__storage_new(context, n * MPT__ROW_BYTES, MPT_MEMORY_WORKSPACE,
                                       MPT__FROM_DEVICE, false);
    larger.counts = mpt__storage_new(context, n * 8, MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
    if (context->base.status == MPT_OK && held > 0) {
        memcpy(larger.items, optimizer->items, (size_t)held * size);
        mpt__copy_elements(context, optimizer->counts, MPT_I64, 0, larger.counts, MPT_I64, 0, held);
    }
    bool made = context->base.status == MPT_OK;
    mpt__items_free(context, made ? optimizer : &larger);
    if (made) *optimizer = larger;
    return context->base.status;
}

static void mpt__item_add(mpt_context *context, mpt__optimizer *optimizer, uint32_t index,
                          uint32_t group) {
    mpt__parameter *parameter = &context->parameters[index];
    mpt__optim_item *item = &optimizer->items[optimizer->item_count++];
    if (!parameter->optimizer) parameter->optimizer = optimizer->id.slot;
    memset(item, 0, sizeof *item);
    item->parameter = index;
    item->group = group;
    item->state = mpt__state_of(context, optimizer, parameter->block);
    item->history = optimizer->patterns; /* as its peers, and nobody from before */
    mpt__optim_state *state = &optimizer->states[item->state];
    state->held++;
    if (state->mirror[MPT__MASTER])
        mpt__master_load(context, state, parameter->offset, parameter->numel);
}

/* The listed parameters become members of `group`; what is new starts with a step count of 0. */
static mpt_status mpt__take(mpt_context *context, mpt__optimizer *optimizer, const uint32_t *list,
                            int64_t count, uint32_t group) {
    mpt_status status = mpt__check_free(context, optimizer, list, count);
    if (status == MPT_OK)
        status = mpt__items_reserve(context, optimizer, optimizer->item_count + count);
    if (status == MPT_OK) status = mpt__states_prepare(context, optimizer, list, count);
    if (status != MPT_OK) return status;
    optimizer->pattern_valid = false;
    for (int64_t i = 0; i < count; i++) {
        uint32_t owner = context->parameters[list[i]].optimizer;
        bool held = owner == optimizer->id.slot || optimizer->shared;
        mpt__optim_item *item = held ? mpt__item_of(optimizer, list[i]) : NULL;
        if (item)
            item->group = group;
        else
            mpt__item_add(context, optimizer, list[i], group);
    }
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
    if (!mpt__room(context, optimizer->groups, optimizer->group_capacity,
                   optimizer->group_count + 1))
        return -1;
    mpt__group *group = &optimizer->groups[optimizer->group_count];
    group->lr = lr;
    group->weight_decay = weight_decay;
    group->table = 0;
    group->lr_slot = mpt__scalar_new_f(context, lr);
    return group->lr_slot ? optimizer->group_count++ : -1;
}

static void mpt__group_free(mpt_context *context, mpt__group *group) {
    mpt__scalar_free(context, group->lr_slot);
    mpt__storage_forget(context, &group->table);
}

/* ==== Making and destroying ==== */

static void mpt__optimizer_free(mpt_context *context, void *object) {
    mpt__optimizer *optimizer = (mpt__optimizer *)object;
    if (optimizer->schedule) mpt__schedule_detach(optimizer->schedule);
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__parameter *parameter = &context->parameters[optimizer->items[i].parameter];
        if (parameter->live && parameter->optimizer == optimizer->id.slot) parameter->optimizer = 0;
    }
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__optim_state *state = &optimizer->states[i];
        mpt__block *block = mpt__block_of(context, state);
        if (block->live && block->multiplier_slot == optimizer->slot[MPT__OPTIM_MULTIPLIER])
            mpt__materialise_gradients(context, block);
        for (int k = 0; k < MPT__MIRRORS; k++) mpt__storage_forget(context, &state->mirror[k]);
    }
    for (int64_t i = 0; i < optimizer->group_count; i++)
        mpt__group_free(context, &optimizer->groups[i]);
    for (int i = 0; i < MPT__OPTIM_SLOTS; i++) mpt__scalar_free(context, optimizer->slot[i]);
    mpt__items_free(context, optimizer);
    mpt__room_free(context, optimizer->states, optimizer->state_capacity);
    mpt__room_free(context, optimizer->groups, optimizer->group_capacity);
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

static bool mpt__check_count(mpt_context *context, const char *name, int64_t value, int least) {
    if (value >= least) return true;
    return mpt__reject(context, MPT_ERROR_ARGUMENT, "%s = %lld; expected %d or more", name, value,
                       least);
}

static bool mpt__check_rate(mpt_context *context, double lr, double weight_decay) {
    return mpt__check_number(context, "lr", lr, 0, MPT__NO_LIMIT) &&
           mpt__check_number(context, "weight_decay", weight_decay, 0, MPT__NO_LIMIT);
}

/* What the configs of all kinds of optimizers say, settings in the order of the rule. */
typedef struct mpt__plan {
    double lr, weight_decay, setting[MPT__SETTINGS];
    bool variant, shared;
} mpt__plan;

/* An optimizer over all parameters of a tree. */
static mpt_optimizer mpt__optimizer_new(const char *name, mpt_module module, const mpt__rule *rule,
                                        const mpt__plan *plan) {
    mpt_context *context = module.context;
    bool ok =
        mpt__enter_checked(context, name) && mpt__check_rate(context, plan->lr, plan->weight_decay);
    for (int i = 0; ok && i < MPT__SETTINGS && rule->setting[i].name; i++)
        ok = mpt__check_number(context, rule->setting[i].name, plan->setting[i],
                               rule->setting[i].low, rule->setting[i].below);
    mpt__optimizer *optimizer =
        ok ? (mpt__optimizer *)mpt__object_make(context, MPT__OPTIMIZER, sizeof *optimizer) : NULL;
    if (!optimizer) return mpt__optimizer_handle(context, NULL);
    optimizer->rule = rule;
    memcpy(optimizer->setting, plan->setting, sizeof plan->setting);
    optimizer->variant = plan->variant;
    optimizer->shared = plan->shared;
    for (int i = 0; i < MPT__OPTIM_SLOTS; i++) optimizer->slot[i] = mpt__scalar_new_i(context, 0);
    if (context->base.status == MPT_OK &&
        mpt__group_new(context, optimizer, plan->lr, plan->weight_decay) == 0)
        mpt__take_module(context, optimizer, module, NULL, 0);
    if (context->base.status == MPT_OK) return mpt__optimizer_handle(context, optimizer);
    mpt__object_free(context, MPT__OPTIMIZER, optimizer->id.slot);
    return mpt__optimizer_handle(context, NULL);
}

MPTRAIN_API mpt_status mpt_optimizer_destroy(mpt_optimizer handle) {
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_destroy");
    if (optimizer) mpt__object_free(handle.context, MPT__OPTIMIZER, optimizer->id.slot);
    return mpt__status_of(handle.context);
}

/* ==== The three optimizers ==== */

static const mpt__rule mpt__sgd_rule = {
    MPT__K_SGD,
    {"momentum_buffer", NULL},
    true,
    {{"momentum", 0, MPT__NO_LIMIT}, {"dampening", -MPT__NO_LIMIT, MPT__NO_LIMIT}, {NULL, 0, 0}}};

static const mpt__rule mpt__adam_rule = {
    MPT__K_ADAM,
    {"exp_avg", "exp_avg_sq"},
    false,
    {{"beta1", 0, 1}, {"beta2", 0, 1}, {"eps", 0, MPT__NO_LIMIT}}};

MPTRAIN_API mpt_sgd_config mpt_sgd_config_default(void) {
    mpt_sgd_config config = {1e-3, 0, 0, 0, false, false};
    return config;
}

MPTRAIN_API mpt_adam_config mpt_adam_config_default(void) {
    mpt_adam_config config = {1e-3, 0.9, 0.999, 1e-8, 0, false};
    return config;
}

MPTRAIN_API mpt_adamw_config mpt_adamw_config_default(void) {
    mpt_adamw_config config = mpt_adam_config_default();
    config.weight_decay = 1e-2;
    return config;
}

MPTRAIN_API mpt_optimizer mpt_sgd(mpt_module module, const mpt_sgd_config *config) {
    mpt_context *context = module.context;
    mpt_sgd_config c = config ? *config : mpt_sgd_config_default();
    mpt__plan plan = {
        c.lr, c.weight_decay, {c.momentum, c.dampening, 0}, c.nesterov, c.allow_shared};
    if (!c.nesterov || (c.momentum != 0 && c.dampening == 0))
        return mpt__optimizer_new("mpt_sgd", module, &mpt__sgd_rule, &plan);
    mpt__misuse(context, "mpt_sgd", MPT_ERROR_ARGUMENT,
                "nesterov needs momentum > 0 and dampening 0, got %g and %g", c.momentum,
                c.dampening);
    return mpt__optimizer_handle(context, NULL);
}

static mpt_optimizer mpt__adam_new(const char *name, mpt_module module, mpt_adam_config c,
                                   bool decoupled) {
    mpt__plan plan = {c.lr, c.weight_decay, {c.beta1, c.beta2, c.eps}, decoupled, c.allow_shared};
    return mpt__optimizer_new(name, module, &mpt__adam_rule, &plan);
}

MPTRAIN_API mpt_optimizer mpt_adam(mpt_module module, const mpt_adam_config *config) {
    return mpt__adam_new("mpt_adam", module, config ? *config : mpt_adam_config_default(), false);
}

MPTRAIN_API mpt_optimizer mpt_adamw(mpt_module module, const mpt_adamw_config *config) {
    return mpt__adam_new("mpt_adamw", module, config ? *config : mpt_adamw_config_default(), true);
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
    mpt__group_free(context, &optimizer->groups[group]);
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
    return mpt__reject(context, MPT_ERROR_ARGUMENT, "there is no group %d; the optimizer has %lld",
                       group, optimizer->group_count);
}

MPTRAIN_API mpt_status mpt_set_lr(mpt_optimizer handle, int group, double lr) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_set_lr");
    if (!optimizer) return mpt__status_of(context);
    if (!mpt__check_group(context, optimizer, group, -1) || !mpt__check_rate(context, lr, 0))
        return context->base.status;
    for (int64_t i = 0; i < optimizer->group_count; i++)
        if (group < 0 || i == group) optimizer->groups[i].lr = lr;
    return mpt__schedule_rebase(context, optimizer);
}

MPTRAIN_API double mpt_get_lr(mpt_optimizer handle, int group) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_get_lr");
    if (!optimizer || !mpt__check_group(context, optimizer, group, 0)) return MPT__NAN_F64;
    return mpt__schedule_lr(context, optimizer, &optimizer->groups[group]);
}

/* ==== Segments ==== */

/* The group of each segment. */
static int64_t *mpt__row_groups(const mpt__optimizer *optimizer) {
    return optimizer->rows + optimizer->item_capacity * MPT__SEGMENT_FIELDS;
}

/* Segments of all parameters with a gradient, by state and group. Only parameters without a gap
   between them merge: what stands in a gap is nobody's, and a multiplier that is not finite would
   leave NaN there for every later norm. */
static void mpt__build_rows(const mpt_context *context, mpt__optimizer *optimizer) {
    int64_t rows = 0, groups = optimizer->group_count;
    for (int64_t part = 0; part < optimizer->state_count * groups; part++) {
        mpt__optim_state *state = &optimizer->states[part / groups];
        int64_t *last = NULL;
        uint64_t history = 0; /* of the items in `last` */
        if (part % groups == 0) state->row = rows;
        for (int64_t i = 0; i < optimizer->item_count; i++) {
            const mpt__optim_item *item = &optimizer->items[i];
            if (!item->had_grad || item->state * groups + item->group != part) continue;
            const mpt__parameter *parameter = &context->parameters[item->parameter];
            int64_t offset = parameter->offset - state->first;
            if (last && last[MPT__SEGMENT_OFFSET] + last[MPT__SEGMENT_COUNT] == offset &&
                last[MPT__SEGMENT_STEP] + last[MPT__SEGMENT_STEPS] == i &&
                item->history == history) {
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
        }
        state->rows = rows - state->row;
    }
    optimizer->row_count = rows;
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
    optimizer->pattern_valid = optimizer->norm_valid = false;
    optimizer->patterns++;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        mpt__optim_item *item = &optimizer->items[i];
        if (item->had_grad) item->history = mpt__hash_u64(item->history, optimizer->patterns);
    }
    mpt__build_rows(context, optimizer);
    mpt_status status = mpt__upload(context, optimizer->segments, 0, optimizer->rows,
                                    optimizer->row_count * MPT__ROW_BYTES);
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

/* A launch over all gradients of a state. */
static mpt__launch *mpt__gradients_launch(mpt_context *context, const mpt__optimizer *optimizer,
                                          const mpt__optim_state *state, mpt__kernel kernel,
                                          mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(context, kernel);
    mpt__operand_on(launch, 0, mpt__block_of(context, state)->gradients, MPT_F32, state->first,
                    state->count, access);
    mpt__segments_operand(launch, 1, optimizer, state->row, state->rows);
    return launch;
}

/* ==== The pending multiplier ==== */

/* For each state of an optimizer that has gradients now. */
#define MPT__EACH_STATE(state, optimizer)                                 \
    for (mpt__optim_state *state = (optimizer)->states;                   \
         state < (optimizer)->states + (optimizer)->state_count; state++) \
        if (state->rows)

/* Multiplies all gradients by a scalar, then clamps to +-limit if that is > 0. */
static mpt_status mpt__scale_gradients(mpt_context *context, const mpt__optimizer *optimizer,
                                       uint16_t slot, double limit) {
    MPT__EACH_STATE(state, optimizer) {
        mpt__launch *launch =
            mpt__gradients_launch(context, optimizer, state, MPT__K_GRAD_SCALE, MPT__READ_WRITE);
        launch->slot[0] = slot;
        launch->imm[0] = limit;
        mpt__submit(context, launch);
        mpt__block_of(context, state)->multiplier_slot = 0;
    }
    return context->base.status;
}

static void mpt__materialise(mpt_context *context, const mpt__optimizer *optimizer) {
    MPT__EACH_STATE(state, optimizer) {
        mpt__materialise_gradients(context, mpt__block_of(context, state));
    }
}

/* The optimizer's multiplier if it is pending on all its gradients; else 0, and afterwards no
   multiplier is pending on any of them. */
static uint16_t mpt__pending(mpt_context *context, const mpt__optimizer *optimizer) {
    uint16_t slot = optimizer->slot[MPT__OPTIM_MULTIPLIER];
    MPT__EACH_STATE(state, optimizer) {
        if (mpt__block_of(context, state)->multiplier_slot == slot) continue;
        mpt__materialise(context, optimizer);
        return 0;
    }
    return slot;
}

/* Whether a user has handles on gradients of a state: references beyond the block's own, those of
   recordings and the views that its parameters keep. */
static bool mpt__gradients_seen(mpt_context *context, const mpt__optimizer *optimizer,
                                const mpt__optim_state *state) {
    uint32_t gradients = mpt__block_of(context, state)->gradients;
    const mpt__storage *storage = &context->storages[gradients];
    int64_t others = (int64_t)storage->references - storage->recordings - 1;
    for (int64_t i = 0; others > 0 && i < optimizer->item_count; i++) {
        const mpt__parameter *parameter = &context->parameters[optimizer->items[i].parameter];
        const mpt__tensor *view = parameter->live ? parameter->tensor->gradient : NULL;
        if (view && view->storage == gradients) others--;
    }
    return others > 0;
}

/* The optimizer's multiplier is set: it stays pending, unless somebody else would see it: a block
   holds parameters of others as well, or there are handles on gradients. */
static mpt_status mpt__hold(mpt_context *context, const mpt__optimizer *optimizer) {
    uint16_t slot = optimizer->slot[MPT__OPTIM_MULTIPLIER];
    MPT__EACH_STATE(state, optimizer) {
        const mpt__block *block = mpt__block_of(context, state);
        if (state->held != block->parameters || mpt__gradients_seen(context, optimizer, state))
            return mpt__scale_gradients(context, optimizer, slot, 0);
    }
    MPT__EACH_STATE(state, optimizer) { mpt__block_of(context, state)->multiplier_slot = slot; }
    return context->base.status;
}

/* ==== Norm and clipping ==== */

/* 2-norm of gradients times multiplier into norm_slot (0: nowhere). scale_slot (0: none): the
   multiplier is 1 / scale from here on. found_slot (0: none) tells whether an element or its
   product is not finite. */
static void mpt__norm_launch(mpt_context *context, mpt__optimizer *optimizer, uint16_t scale_slot,
                             uint16_t found_slot, uint16_t norm_slot) {
    bool first = true;
    MPT__EACH_STATE(state, optimizer) {
        mpt__launch *launch =
            mpt__gradients_launch(context, optimizer, state, MPT__K_GRAD_NORM, MPT__READ);
        launch->slot[0] = optimizer->slot[MPT__OPTIM_MULTIPLIER];
        launch->slot[1] = found_slot;
        launch->slot[2] = norm_slot;
        launch->slot[3] = first ? scale_slot : (uint16_t)MPT__SLOT_NONE;
        launch->index[0] = !first;
        first = false;
        mpt__submit(context, launch);
    }
    optimizer->norm_valid = norm_slot != 0;
}

/* Divides by the scale and looks for non-finite values: sets the optimizer's found_inf; and
   computes the norm where clipping may follow. Without any gradient nothing happens. */
static mpt_status mpt__optimizer_unscale(mpt_context *context, mpt__optimizer *optimizer,
                                         uint16_t scale_slot, bool with_norm) {
    mpt_status status = mpt__pattern(context, optimizer);
    if (status != MPT_OK || optimizer->with_grad == 0) return status;
    mpt__materialise(context, optimizer);
    mpt__norm_launch(context, optimizer, scale_slot, optimizer->slot[MPT__OPTIM_FOUND],
                     with_norm ? optimizer->slot[MPT__OPTIM_NORM] : (uint16_t)MPT__SLOT_NONE);
    return mpt__hold(context, optimizer);
}

MPTRAIN_API mpt_tensor mpt_clip_grad_norm(mpt_optimizer handle, double max_norm) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_clip_grad_norm");
    if (!optimizer) return mpt__null(context);
    if (!(max_norm >= 0))
        return mpt__refuse(context, MPT_ERROR_ARGUMENT, "max_norm = %g; expected 0 or more",
                           max_norm);
    mpt_shape shape = MPT_SCALAR;
    mpt__tensor *norm = NULL;
    if (mpt__pattern(context, optimizer) == MPT_OK)
        norm = mpt__tensor_new(context, MPT_F32, &shape, MPT_MEMORY_ACTIVATION);
    if (!norm) return mpt__null(context);
    bool any = optimizer->with_grad > 0; /* the norm of nothing is 0 */
    if (any) {
        uint16_t pending = mpt__pending(context, optimizer);
        if (!pending || !optimizer->norm_valid)
            mpt__norm_launch(context, optimizer, pending ? 0 : (uint16_t)MPT__SLOT_ONE, 0,
                             optimizer->slot[MPT__OPTIM_NORM]);
    }
    mpt__launch *launch = mpt__launch_begin(context, any ? MPT__K_CLIP : MPT__K_FILL);
    mpt__operand_on(launch, 0, norm->storage, MPT_F32, norm->offset, 1, MPT__WRITE);
    if (any) {
        launch->slot[0] = optimizer->slot[MPT__OPTIM_MULTIPLIER];
        launch->slot[1] = optimizer->slot[MPT__OPTIM_NORM];
        launch->imm[0] = max_norm;
    }
    mpt__submit(context, launch);
    optimizer->norm_valid = false;
    if (any) mpt__hold(context, optimizer);
    return mpt__tensor_done(context, norm, context->base.status);
}

MPTRAIN_API mpt_status mpt_clip_grad_value(mpt_optimizer handle, double limit) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_clip_grad_value");
    if (!optimizer) return mpt__status_of(context);
    if (!(limit >= 0))
        return mpt__error(context, MPT_ERROR_ARGUMENT, "limit = %g; expected 0 or more", limit);
    if (mpt__pattern(context, optimizer) != MPT_OK || optimizer->with_grad == 0)
        return context->base.status;
    uint16_t pending = mpt__pending(context, optimizer);
    uint16_t slot = pending ? pending : (uint16_t)MPT__SLOT_ONE;
    optimizer->norm_valid = false;
    if (limit > 0) return mpt__scale_gradients(context, optimizer, slot, limit);
    mpt__scale_gradients(context, optimizer, slot, 1.0); /* infinities times 0 would be NaN */
    mpt__scalar_set_f(context, optimizer->slot[MPT__OPTIM_MULTIPLIER], 0.0);
    return mpt__scale_gradients(context, optimizer, optimizer->slot[MPT__OPTIM_MULTIPLIER], 0);
}

/* ==== The update ==== */

MPTRAIN_API mpt_status mpt_zero_grad(mpt_optimizer handle) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_zero_grad");
    if (!optimizer) return mpt__status_of(context);
    for (int64_t i = 0; i < optimizer->item_count; i++)
        context->parameters[optimizer->items[i].parameter].has_grad = false;
    for (int64_t i = 0; i < optimizer->state_count; i++) {
        mpt__block *block = mpt__block_of(context, &optimizer->states[i]);
        if (block->multiplier_slot == optimizer->slot[MPT__OPTIM_MULTIPLIER])
            block->multiplier_slot = 0;
    }
    return MPT_OK;
}

/* Segments [row, row + rows) of a state, which are of one group. With a form, the kernel takes the
   values for the master of that. */
static mpt_status mpt__launch_update(mpt_context *context, const mpt__optimizer *optimizer,
                                     const mpt__optim_state *state, int form, int64_t row,
                                     int64_t rows, uint16_t found_slot) {
    static const int position[MPT__MIRRORS] = {3, 6, 1};
    const mpt__rule *rule = optimizer->rule;
    const mpt__group *group = &optimizer->groups[mpt__row_groups(optimizer)[row]];
    mpt__block *block = mpt__block_of(context, state);
    if (block->multiplier_slot != optimizer->slot[MPT__OPTIM_MULTIPLIER])
        mpt__materialise_gradients(context, block);
    mpt__launch *launch = mpt__launch_begin(context, rule->kernel);
    mpt__operand_on(launch, form < 0 ? 0 : 1, block->values, (mpt_dtype)block->dtype, state->first,
                    state->count, MPT__READ_WRITE);
    if (form >= 0)
        mpt__operand_on(launch, 0, block->form[form], form ? MPT_BF16 : MPT_F16, state->first,
                        state->count, MPT__READ_WRITE);
    mpt__operand_on(launch, 2, block->gradients, MPT_F32, state->first, state->count, MPT__READ);
    mpt__segments_operand(launch, 4, optimizer, row, rows);
    mpt__operand_on(launch, 5, optimizer->counts, MPT_I64, 0, optimizer->item_count,
                    MPT__READ_WRITE);
    for (int k = 0; k < MPT__MIRRORS; k++)
        if (state->mirror[k])
            mpt__operand_on(launch, position[k], state->mirror[k], MPT_F32, 0, state->count,
                            MPT__READ_WRITE);
    launch->slot[1] =
        block->multiplier_slot ? optimizer->slot[MPT__OPTIM_MULTIPLIER] : (uint16_t)MPT__SLOT_ONE;
    launch->slot[2] = found_slot;
    mpt__schedule_operand(launch, optimizer, group);
    int settings = 0;
    for (; settings < MPT__SETTINGS && rule->setting[settings].name; settings++)
        launch->imm[settings] = optimizer->setting[settings];
    launch->imm[settings] = group->weight_decay;
    launch->index[0] = optimizer->variant;
    launch->index[1] = row + rows == optimizer->row_count ? 2 : 1;
    return mpt__submit(context, launch);
}

/* One launch per state and group; each commits its step counts, the last one the step. */
static mpt_status mpt__launch_updates(mpt_context *context, mpt__optimizer *optimizer,
                                      uint16_t found_slot) {
    const int64_t *group = mpt__row_groups(optimizer);
    MPT__EACH_STATE(state, optimizer) {
        int64_t row = state->row, end = row + state->rows, rows;
        int form = mpt__form_in_use(context, mpt__block_of(context, state));
        mpt__master_refresh(context, optimizer, state);
        for (; row < end; row += rows) {
            for (rows = 1; row + rows < end && group[row + rows] == group[row];) rows++;
            mpt__launch_update(context, optimizer, state, form, row, rows, found_slot);
        }
        mpt__values_updated(context, optimizer, state, form);
    }
    return context->base.status;
}

/* A warning that names parameters without a gradient; once, until there is one again. */
static void mpt__warn_no_grad(mpt_context *context, mpt__optimizer *optimizer) {
    char names[200];
    mpt__text list = mpt__text_make(names, sizeof names);
    if (optimizer->warned_no_grad) return;
    optimizer->warned_no_grad = true;
    for (int64_t i = 0; i < optimizer->item_count && list.length < sizeof names; i++)
        mpt__write_text(&list, "%s%s", i ? ", " : "",
                        context->parameters[optimizer->items[i].parameter].path);
    mpt__log(&context->base, MPT_LOG_WARNING,
             "%s: none of the optimizer's %lld parameters has a gradient, so the step does "
             "nothing: %s%s; "
             "call mpt_backward first, on a loss that depends on them",
             context->base.op, optimizer->item_count, names,
             list.length >= sizeof names ? " .." : "");
}

/* One update of everything that has a gradient, by mpt__pattern of now. Queued; nothing happens on
   the device while found_slot (0: none) or the error word is set. */
static mpt_status mpt__optimizer_update(mpt_context *context, mpt__optimizer *optimizer,
                                        uint16_t found_slot) {
    if (context->base.status != MPT_OK) return context->base.status;
    if (optimizer->with_grad == 0) {
        mpt__warn_no_grad(context, optimizer);
        return MPT_OK;
    }
    optimizer->warned_no_grad = false;
    int phase = context->launch_phase;
    context->launch_phase = MPT__UPDATE;
    mpt__recorder_note(context, MPT__OPTIMIZER, &optimizer->id);
    mpt_status status = mpt__schedule_before_step(context, optimizer);
    if (status == MPT_OK) status = mpt__launch_updates(context, optimizer, found_slot);
    context->launch_phase = phase;
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
    mpt__pattern(context, optimizer);
    return mpt__optimizer_update(context, optimizer, 0);
}

MPTRAIN_API int64_t mpt_applied_steps(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_applied_steps");
    return optimizer ? mpt__scalar_get_i(handle.context, optimizer->slot[MPT__OPTIM_APPLIED]) : -1;
}

/* ==== State ==== */

/* Visits moments, masters and step counts of every parameter under its name, then the count of
   applied steps. */
static mpt_status mpt__optimizer_visit(mpt_context *context, const mpt__optimizer *optimizer,
                                       mpt__state_visitor visit, void *user) {
    char name[512];
    mpt__state_item item;
    memset(&item, 0, sizeof item);
    item.name = name;
    mpt_status status = MPT_OK;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__parameter *parameter = &context->parameters[optimizer->items[i].parameter];
        const mpt__optim_state *state = &optimizer->states[optimizer->items[i].state];
        for (int k = 0; k <= MPT__MIRRORS && parameter->live && status == MPT_OK; k++) {
            bool step = k == MPT__MIRRORS;
            item.storage = step ? optimizer->counts : state->mirror[k];
            if (!item.storage) continue;
            item.dtype = step ? MPT_I64 : MPT_F32;
            item.offset = step ? i : parameter->offset - state->first;
            item.count = step ? 1 : parameter->numel;
            mpt__format_text(name, sizeof name, "%s.%s", parameter->path,
                             step               ? "step"
                             : k == MPT__MASTER ? "master"
                                                : optimizer->rule->moment[k]);
            status = visit(context, user, &item);
        }
    }
    if (status != MPT_OK) return status;
    mpt__format_text(name, sizeof name, "applied_steps");
    item.storage = 0;
    item.dtype = MPT_I64;
    item.count = 1;
    item.slot = optimizer->slot[MPT__OPTIM_APPLIED];
    return visit(context, user, &item);
}

/* Adds name and bits of a state item to the hash at `user`. */
static mpt_status mpt__hash_item(mpt_context *context, void *user, const mpt__state_item *item) {
    uint64_t *hash = (uint64_t *)user;
    *hash = mpt__hash_bytes(*hash, item->name, strlen(item->name));
    if (item->storage) {
        int64_t size = (int64_t)mpt_dtype_size(item->dtype);
        *hash = mpt__hash_storage(context, *hash, item->storage, item->offset * size,
                                  item->count * size);
    } else {
        *hash = mpt__hash_u64(*hash, (uint64_t)mpt__scalar_get_i(context, item->slot));
    }
    return context->base.status;
}

MPTRAIN_API uint64_t mpt_optimizer_hash(mpt_optimizer handle) {
    const mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_optimizer_hash");
    uint64_t hash = 0;
    if (optimizer) mpt__optimizer_visit(handle.context, optimizer, mpt__hash_item, &hash);
    return hash;
}

#endif
