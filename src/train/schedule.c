/* ---------------------------------------------------------------------------------------------
 * train/schedule.c: learning rates over time: curves, what joins them, one cycle, plateaus.
 *
 * A schedule per step lives on the device: a table of coming rates, indexed by the count of applied
 * steps, so that a skipped step does not move it and nobody waits. The host only knows how many
 * steps it has queued, which is never less than what was applied; it uploads a new window of the
 * table when the queue may have reached the end of the old one. A second row of the table, where
 * one cycle moves momentum, takes the place of the update's first setting.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__TRAIN_SCHEDULE_INCLUDED
#define MPT__TRAIN_SCHEDULE_INCLUDED

#include "train/scaler.c"

/* Rates per upload: 8 KB for each group, twice that with momentum. */
enum { MPT__LR_WINDOW = 1024 };

/* ==== Curves ==== */

typedef enum mpt__rate_kind {
    MPT__CONSTANT_LR,
    MPT__LINEAR_LR,
    MPT__EXPONENTIAL_LR,
    MPT__STEP_LR,
    MPT__MULTI_STEP_LR,
    MPT__POLYNOMIAL_LR,
    MPT__COSINE_LR,
    MPT__RESTARTS_LR,
    MPT__ONE_CYCLE_LR,
    MPT__RATE_KINDS
} mpt__rate_kind;

static const double mpt__pi = 3.14159265358979323846;

/* Factors of the base rate at time t. */
static double mpt__constant_factor(const mpt_rate *rate, int64_t t) {
    return t < rate->count[0] ? rate->number[0] : 1;
}

static double mpt__linear_factor(const mpt_rate *rate, int64_t t) {
    double done = t < rate->count[0] ? (double)t / (double)rate->count[0] : 1;
    return rate->number[0] + (rate->number[1] - rate->number[0]) * done;
}

static double mpt__exponential_factor(const mpt_rate *rate, int64_t t) {
    return mpt__power(rate->number[0], t);
}

static double mpt__step_factor(const mpt_rate *rate, int64_t t) {
    return mpt__power(rate->number[0], t / rate->count[0]);
}

static double mpt__multi_step_factor(const mpt_rate *rate, int64_t t) {
    int64_t passed = 0;
    while (passed < rate->count[0] && rate->milestone[passed] <= t) passed++;
    return mpt__power(rate->number[0], passed);
}

static double mpt__polynomial_factor(const mpt_rate *rate, int64_t t) {
    if (t >= rate->count[0]) return rate->number[0] > 0 ? 0 : 1;
    return mpt__exp(rate->number[0] * mpt__ln(1 - (double)t / (double)rate->count[0]));
}

/* Past its end the cosine rises again, as PyTorch's CosineAnnealingLR does. */
static double mpt__cosine_factor(const mpt_rate *rate, int64_t t) {
    int64_t at = rate->count[0] < INT64_MAX / 2 ? t % (2 * rate->count[0]) : t;
    return (1 + mpt__cos(mpt__pi * (double)at / (double)rate->count[0])) / 2;
}

static double mpt__restarts_factor(const mpt_rate *rate, int64_t t) {
    int64_t length = rate->count[0], mult = rate->count[1];
    if (mult == 1) t %= length;
    for (; t >= length; length = length < INT64_MAX / mult ? length * mult : INT64_MAX) t -= length;
    return (1 + mpt__cos(mpt__pi * (double)t / (double)length)) / 2;
}

enum { MPT__CYCLE_LINEAR = 1, MPT__CYCLE_THREE = 2 }; /* bits of count[1] */

/* The cycle at time t: from first to high, then to last; in three phases by way of first. */
static double mpt__cycle(const mpt_rate *rate, int64_t t, double first, double high, double last) {
    const bool three = (rate->count[1] & MPT__CYCLE_THREE) != 0;
    const double top = rate->number[0] * (double)rate->count[0] - 1;
    const double end[3] = {top, 2 * top, (double)rate->count[0] - 1};
    const double value[4] = {first, high, three ? first : last, last};
    const double at = (double)t < end[2] ? (double)t : end[2];
    int phase = at <= top ? 0 : !three || at > end[1] ? 2 : 1;
    double begin = phase == 0 ? 0 : phase == 1 || !three ? top : end[1];
    double from = phase == 2 && !three ? high : value[phase], to = value[phase + 1];
    double done = end[phase] > begin ? (at - begin) / (end[phase] - begin) : 1;
    if (rate->count[1] & MPT__CYCLE_LINEAR) return from + (to - from) * done;
    return to + (from - to) / 2 * (1 + mpt__cos(mpt__pi * done));
}

static double mpt__one_cycle_factor(const mpt_rate *rate, int64_t t) {
    double start = 1 / rate->number[1];
    return mpt__cycle(rate, t, start, 1, start / rate->number[2]);
}

/* One row per kind. Counts are at least 1, numbers in [low, high]. */
static const struct mpt__rate_rule {
    double (*factor)(const mpt_rate *rate, int64_t t);
    bool floor; /* number[0] is eta_min: the factor is of what the base rate is above that */
    const char *count[2];
    struct {
        const char *name;
        double low, high;
    } number[3];
} mpt__rate_rules[MPT__RATE_KINDS] = {
    {mpt__constant_factor, false, {"total", NULL}, {{"factor", 0, 1}}},
    {mpt__linear_factor, false, {"total", NULL}, {{"start", 0, 1}, {"end", 0, 1}}},
    {mpt__exponential_factor, false, {NULL, NULL}, {{"gamma", 0, MPT__NO_LIMIT}}},
    {mpt__step_factor, false, {"size", NULL}, {{"gamma", 0, MPT__NO_LIMIT}}},
    {mpt__multi_step_factor, false, {"count", NULL}, {{"gamma", 0, MPT__NO_LIMIT}}},
    {mpt__polynomial_factor, false, {"total", NULL}, {{"power", 0, MPT__NO_LIMIT}}},
    {mpt__cosine_factor, true, {"t_max", NULL}, {{"eta_min", 0, MPT__NO_LIMIT}}},
    {mpt__restarts_factor, true, {"t_0", "mult"}, {{"eta_min", 0, MPT__NO_LIMIT}}},
    {mpt__one_cycle_factor,
     false,
     {"total", NULL},
     {{"pct_start", 0, 1},
      {"div_factor", 1, MPT__NO_LIMIT},
      {"final_div_factor", 1e-6, MPT__NO_LIMIT}}}};

static mpt_rate mpt__rate_make(mpt__rate_kind kind, int64_t n, int64_t m, double a, double b) {
    mpt_rate rate;
    memset(&rate, 0, sizeof rate);
    rate.kind = (int)kind;
    rate.count[0] = n, rate.count[1] = m;
    rate.number[0] = a, rate.number[1] = b;
    return rate;
}

MPTRAIN_API mpt_rate mpt_constant_lr(double factor, int64_t total) {
    return mpt__rate_make(MPT__CONSTANT_LR, total, 0, factor, 0);
}
MPTRAIN_API mpt_rate mpt_linear_lr(double start, double end, int64_t total) {
    return mpt__rate_make(MPT__LINEAR_LR, total, 0, start, end);
}
MPTRAIN_API mpt_rate mpt_exponential_lr(double gamma) {
    return mpt__rate_make(MPT__EXPONENTIAL_LR, 0, 0, gamma, 0);
}
MPTRAIN_API mpt_rate mpt_step_lr(int64_t size, double gamma) {
    return mpt__rate_make(MPT__STEP_LR, size, 0, gamma, 0);
}
MPTRAIN_API mpt_rate mpt_polynomial_lr(int64_t total, double power) {
    return mpt__rate_make(MPT__POLYNOMIAL_LR, total, 0, power, 0);
}
MPTRAIN_API mpt_rate mpt_cosine_lr(int64_t t_max, double eta_min) {
    return mpt__rate_make(MPT__COSINE_LR, t_max, 0, eta_min, 0);
}
MPTRAIN_API mpt_rate mpt_cosine_restarts_lr(int64_t t_0, int64_t mult, double eta_min) {
    return mpt__rate_make(MPT__RESTARTS_LR, t_0, mult, eta_min, 0);
}
MPTRAIN_API mpt_rate mpt_multi_step_lr(const int64_t *milestones, int count, double gamma) {
    mpt_rate rate = mpt__rate_make(MPT__MULTI_STEP_LR, milestones ? count : 0, 0, gamma, 0);
    for (int i = 0; i < rate.count[0] && count <= MPT_MAX_MILESTONES; i++)
        rate.milestone[i] = milestones[i];
    return rate;
}

/* ==== What a schedule is ==== */

typedef struct mpt__schedule {
    mpt__id id;
    mpt__optimizer *optimizer; /* NULL once it is destroyed */
    mpt_schedule_unit unit;
    bool chained, plateau, told; /* told: that a schedule per step moves by itself */
    bool cycles;                 /* momentum, too: the table has two rows */
    int count;                   /* curves; 0: the base rate */
    mpt_rate rate[MPT_MAX_RATES];
    int64_t milestone[MPT_MAX_RATES];
    double max_lr, low_momentum, high_momentum; /* of one cycle */
    mpt_plateau_config config;                  /* of a plateau */
    mpt_schedule_state state; /* time per step: what comes on top of the applied steps */
    int64_t first;            /* applied steps at the window's begin; -1: no window yet */
    int64_t queued;           /* steps queued: an upper bound of those applied */
    uint16_t first_slot;      /* `first` on the device */
    double *window;           /* host side of an upload */
} mpt__schedule;

MPT__HANDLES(schedule, MPT__SCHEDULE)

/* Whether the device has its rates in a table. */
static bool mpt__schedule_tabled(const mpt__schedule *schedule) {
    return schedule && (schedule->unit == MPT_PER_STEP || schedule->cycles) && !schedule->plateau;
}

static int64_t mpt__schedule_numbers(const mpt__schedule *schedule) {
    return schedule->cycles ? 2 * MPT__LR_WINDOW : MPT__LR_WINDOW;
}

/* The rate at time t, for a group that starts from `base`. */
static double mpt__schedule_rate(const mpt__schedule *schedule, double base, int64_t t) {
    int at = 0;
    if (schedule->chained) {
        double product = 1;
        for (int i = 0; i < schedule->count; i++)
            product *= mpt__rate_rules[schedule->rate[i].kind].factor(&schedule->rate[i], t);
        return base * product;
    }
    if (schedule->count == 0) return base;
    while (at + 1 < schedule->count && schedule->milestone[at] <= t) at++;
    const mpt_rate *rate = &schedule->rate[at];
    const struct mpt__rate_rule *rule = &mpt__rate_rules[rate->kind];
    double lowest = rule->floor ? rate->number[0] : 0;
    return lowest +
           (base - lowest) * rule->factor(rate, t - (at > 0 ? schedule->milestone[at - 1] : 0));
}

/* The time of the next step; waits for the device where it depends on the steps applied. */
static int64_t mpt__schedule_time(mpt_context *context, const mpt__schedule *schedule) {
    const mpt__optimizer *optimizer = schedule->optimizer;
    bool counted = optimizer && schedule->unit == MPT_PER_STEP;
    return schedule->state.time +
           (counted ? mpt__scalar_get_i(context, optimizer->slot[MPT__OPTIM_APPLIED]) : 0);
}

static double mpt__schedule_lr(mpt_context *context, mpt__optimizer *optimizer,
                               const mpt__group *group) {
    MPT__PLAIN_FLOATS;
    const mpt__schedule *schedule = optimizer->schedule;
    if (!schedule) return group->lr;
    return mpt__schedule_rate(schedule, group->lr, mpt__schedule_time(context, schedule));
}

/* Uploads the window that begins at the steps applied so far; the one place that reads them. Per
   epoch it is the same number throughout. */
static mpt_status mpt__schedule_fill(mpt_context *context, mpt__schedule *schedule) {
    MPT__PLAIN_FLOATS;
    mpt__optimizer *optimizer = schedule->optimizer;
    const bool moves = schedule->unit == MPT_PER_STEP;
    int64_t first = mpt__scalar_get_i(context, optimizer->slot[MPT__OPTIM_APPLIED]);
    int64_t begin = schedule->state.time + (moves ? first : 0);
    double *row = schedule->window;
    for (int64_t t = 0; t < MPT__LR_WINDOW && schedule->cycles; t++)
        row[MPT__LR_WINDOW + t] =
            mpt__cycle(&schedule->rate[0], begin + (moves ? t : 0), schedule->high_momentum,
                       schedule->low_momentum, schedule->high_momentum);
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        for (int64_t t = 0; t < MPT__LR_WINDOW; t++)
            row[t] = mpt__schedule_rate(schedule, group->lr, begin + (moves ? t : 0));
        mpt_status status =
            mpt__upload(context, group->table, 0, row, mpt__schedule_numbers(schedule) * 8);
        if (status != MPT_OK) return status;
    }
    mpt__scalar_set_i(context, schedule->first_slot, first);
    schedule->first = schedule->queued = first;
    return context->base.status;
}

static mpt_status mpt__schedule_before_step(mpt_context *context, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    if (!mpt__schedule_tabled(schedule)) return MPT_OK;
    if (context->backend.synchronous)
        schedule->queued = context->scalars[optimizer->slot[MPT__OPTIM_APPLIED]].i;
    int64_t at = schedule->queued - schedule->first;
    bool beyond = schedule->unit == MPT_PER_STEP && (at < 0 || at >= MPT__LR_WINDOW);
    mpt_status status = MPT_OK;
    int64_t writes = context->host_writes;
    context->unrecorded = context->capturing; /* captured steps come here, too */
    if (schedule->first < 0 || beyond) status = mpt__schedule_fill(context, schedule);
    context->unrecorded = false;
    context->host_writes = writes;
    schedule->queued++;
    return status;
}

static void mpt__schedule_operand(mpt__launch *launch, const mpt__optimizer *optimizer,
                                  const mpt__group *group) {
    launch->slot[0] = group->lr_slot;
    launch->slot[3] = optimizer->slot[MPT__OPTIM_APPLIED];
    if (!group->table) return;
    mpt__operand *operand =
        mpt__operand_on(launch, 7, group->table, MPT_F64, 0, MPT__LR_WINDOW, MPT__READ);
    launch->slot[4] = optimizer->schedule->first_slot;
    if (!optimizer->schedule->cycles) return;
    operand->rank = 2;
    operand->shape[0] = 2, operand->shape[1] = MPT__LR_WINDOW;
    operand->stride[0] = MPT__LR_WINDOW, operand->stride[1] = 1;
}

static mpt_status mpt__schedule_rebase(mpt_context *context, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        if (!mpt__schedule_tabled(schedule))
            mpt__scalar_set_f(context, group->lr_slot,
                              schedule
                                  ? mpt__schedule_rate(schedule, group->lr, schedule->state.time)
                                  : group->lr);
        else if (!group->table)
            group->table = mpt__storage_new(context, mpt__schedule_numbers(schedule) * 8,
                                            MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
    }
    if (schedule) schedule->first = -1;
    return context->base.status;
}

static void mpt__schedule_detach(mpt__schedule *schedule) { schedule->optimizer = NULL; }

static mpt_status mpt__schedule_visit(mpt_context *context, mpt__schedule *schedule,
                                      mpt__state_item *item, mpt__state_visitor visit, void *user) {
    const struct {
        const char *name;
        void *host;
        mpt_dtype dtype;
    } rows[] = {{"schedule.time", &schedule->state.time, MPT_I64},
                {"schedule.best", &schedule->state.best, MPT_F64},
                {"schedule.bad", &schedule->state.bad, MPT_I64},
                {"schedule.cooldown", &schedule->state.cooldown, MPT_I64}};
    mpt_status status = MPT_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == MPT_OK; i++) {
        item->name = rows[i].name, item->host = rows[i].host, item->dtype = rows[i].dtype;
        status = visit(context, user, item);
    }
    return status;
}

/* ==== Making and destroying ==== */

static void mpt__schedule_free(mpt_context *context, void *object) {
    mpt__schedule *schedule = (mpt__schedule *)object;
    mpt__optimizer *optimizer = schedule->optimizer;
    if (optimizer) {
        for (int64_t i = 0; i < optimizer->group_count; i++)
            mpt__storage_forget(context, &optimizer->groups[i].table);
        optimizer->schedule = NULL;
        optimizer->patterns++; /* captured steps read its table */
    }
    mpt__scalar_free(context, schedule->first_slot);
    mpt__host_free(context, schedule->window, (size_t)mpt__schedule_numbers(schedule) * 8);
}

/* low <= value <= high; an upper limit of MPT__NO_LIMIT is none. */
static bool mpt__check_within(mpt_context *context, const char *name, double value, double low,
                              double high) {
    if (high >= MPT__NO_LIMIT) return mpt__check_number(context, name, value, low, high);
    if (value >= low && value <= high) return true;
    return mpt__reject(context, MPT_ERROR_ARGUMENT, "%s = %g is not in [%g, %g]", name, value, low,
                       high);
}

/* Milestones are 1 or more and rise; `strictly`: none twice. */
static bool mpt__check_milestones(mpt_context *context, const int64_t *at, int64_t count,
                                  bool strictly) {
    for (int64_t i = 0; i < count; i++) {
        int64_t least = i > 0 ? at[i - 1] + strictly : 1;
        if (at[i] < least)
            return mpt__reject(context, MPT_ERROR_ARGUMENT,
                               "milestone %lld is %lld; expected %lld or more, for they rise", i,
                               at[i], least);
    }
    return true;
}

/* `count_name` replaces that of the first count, unless it is NULL. */
static bool mpt__check_curve(mpt_context *context, const mpt_rate *rate, const char *count_name,
                             bool chained) {
    if (rate->kind < 0 || rate->kind >= (int)MPT__RATE_KINDS)
        return mpt__reject(context, MPT_ERROR_ARGUMENT,
                           "the rate was made by none of the functions for that (kind %d)",
                           rate->kind);
    const struct mpt__rate_rule *rule = &mpt__rate_rules[rate->kind];
    for (int i = 0; i < 2 && rule->count[i]; i++)
        if (!mpt__check_count(context, i == 0 && count_name ? count_name : rule->count[i],
                              rate->count[i], 1))
            return false;
    for (int i = 0; i < 3 && rule->number[i].name; i++)
        if (!mpt__check_within(context, rule->number[i].name, rate->number[i], rule->number[i].low,
                               rule->number[i].high))
            return false;
    if (chained && rule->floor && rate->number[0] != 0)
        return mpt__reject(context, MPT_ERROR_ARGUMENT,
                           "eta_min = %g; a chained schedule multiplies factors, which knows no "
                           "lowest rate but 0",
                           rate->number[0]);
    if (rate->kind != (int)MPT__MULTI_STEP_LR) return true;
    if (rate->count[0] > MPT_MAX_MILESTONES)
        return mpt__reject(context, MPT_ERROR_ARGUMENT, "count = %lld; at most %d milestones",
                           rate->count[0], MPT_MAX_MILESTONES);
    return mpt__check_milestones(context, rate->milestone, rate->count[0], false);
}

static bool mpt__check_plan(mpt_context *context, const mpt__optimizer *optimizer,
                            const mpt__schedule *plan, const char *count_name) {
    for (int i = 0; i < plan->count; i++)
        if (!mpt__check_curve(context, &plan->rate[i], i == 0 ? count_name : NULL, plan->chained))
            return false;
    if (!plan->chained && !mpt__check_milestones(context, plan->milestone, plan->count - 1, true))
        return false;
    if (plan->unit != MPT_PER_STEP && plan->unit != MPT_PER_EPOCH)
        return mpt__reject(context, MPT_ERROR_ARGUMENT,
                           "unit %d is neither MPT_PER_STEP nor MPT_PER_EPOCH", (int)plan->unit);
    if (optimizer->schedule)
        return mpt__reject(
            context, MPT_ERROR_STATE,
            "the optimizer has a schedule already; end that one with mpt_schedule_destroy");
    if (!plan->cycles) return true;
    if (!optimizer->rule->cycles || optimizer->setting[0] == 0)
        return mpt__reject(context, MPT_ERROR_STATE,
                           "the optimizer has no momentum that could cycle; set cycle_momentum = "
                           "false, or a momentum > 0");
    return mpt__check_number(context, "base_momentum", plan->low_momentum, 0, 1) &&
           mpt__check_number(context, "max_momentum", plan->high_momentum, 0, 1);
}

/* Makes an object of `plan` for an optimizer that has none yet. */
static mpt_schedule mpt__schedule_new(const char *name, mpt_optimizer handle,
                                      const mpt__schedule *plan, const char *count_name) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, name);
    mpt__schedule *schedule = NULL;
    if (optimizer && mpt__check_plan(context, optimizer, plan, count_name))
        schedule = (mpt__schedule *)mpt__object_make(context, MPT__SCHEDULE, sizeof *schedule);
    if (!schedule) return mpt__schedule_handle(context, NULL);
    mpt__id id = schedule->id;
    *schedule = *plan;
    schedule->id = id;
    schedule->window =
        (double *)mpt__host_new(context, (size_t)mpt__schedule_numbers(schedule) * 8);
    schedule->first_slot = mpt__scalar_new_i(context, 0);
    schedule->optimizer = optimizer;
    optimizer->schedule = schedule;
    optimizer->patterns++;
    if (mpt__schedule_rebase(context, optimizer) == MPT_OK) {
        for (int64_t i = 0; i < optimizer->group_count && plan->max_lr > 0; i++)
            optimizer->groups[i].lr = plan->max_lr;
        if (plan->max_lr > 0) mpt__schedule_rebase(context, optimizer);
        return mpt__schedule_handle(context, schedule);
    }
    mpt__object_free(context, MPT__SCHEDULE, id.slot);
    return mpt__schedule_handle(context, NULL);
}

/* A plan of `count` curves, sequential ones with count - 1 milestones. */
static mpt__schedule mpt__plan_of(const mpt_rate *rates, int count, const int64_t *milestones,
                                  mpt_schedule_unit unit) {
    mpt__schedule plan;
    memset(&plan, 0, sizeof plan);
    plan.unit = unit, plan.count = count;
    for (int i = 0; i < count; i++) plan.rate[i] = rates[i];
    for (int i = 0; i + 1 < count && milestones; i++) plan.milestone[i] = milestones[i];
    return plan;
}

MPTRAIN_API mpt_schedule mpt_schedule_create(mpt_optimizer optimizer, mpt_rate rate,
                                             mpt_schedule_unit unit) {
    mpt__schedule plan = mpt__plan_of(&rate, 1, NULL, unit);
    return mpt__schedule_new("mpt_schedule_create", optimizer, &plan, NULL);
}

static mpt_schedule mpt__schedule_join(const char *name, mpt_optimizer optimizer,
                                       const mpt_rate *rates, int count, const int64_t *milestones,
                                       bool chained, mpt_schedule_unit unit) {
    mpt_context *context = optimizer.context;
    if (!rates || count < 1 || count > MPT_MAX_RATES || (!chained && count > 1 && !milestones)) {
        mpt__misuse(context, name, MPT_ERROR_ARGUMENT,
                    "expected 1 to %d rates and one milestone less, got %d rates%s", MPT_MAX_RATES,
                    rates ? count : 0, chained || milestones ? "" : " and no milestones");
        return mpt__schedule_handle(context, NULL);
    }
    mpt__schedule plan = mpt__plan_of(rates, count, milestones, unit);
    plan.chained = chained;
    return mpt__schedule_new(name, optimizer, &plan, NULL);
}

MPTRAIN_API mpt_schedule mpt_sequential_lr(mpt_optimizer optimizer, const mpt_rate *rates,
                                           int count, const int64_t *milestones,
                                           mpt_schedule_unit unit) {
    return mpt__schedule_join("mpt_sequential_lr", optimizer, rates, count, milestones, false,
                              unit);
}

MPTRAIN_API mpt_schedule mpt_chained_lr(mpt_optimizer optimizer, const mpt_rate *rates, int count,
                                        mpt_schedule_unit unit) {
    return mpt__schedule_join("mpt_chained_lr", optimizer, rates, count, NULL, true, unit);
}

MPTRAIN_API mpt_schedule mpt_cosine_annealing(mpt_optimizer optimizer, int64_t t_max,
                                              double eta_min, mpt_schedule_unit unit) {
    mpt_rate rate = mpt_cosine_lr(t_max, eta_min);
    mpt__schedule plan = mpt__plan_of(&rate, 1, NULL, unit);
    return mpt__schedule_new("mpt_cosine_annealing", optimizer, &plan, NULL);
}

MPTRAIN_API mpt_schedule mpt_warmup(mpt_optimizer optimizer, double start, int64_t warmup,
                                    int64_t t_max, double eta_min, mpt_schedule_unit unit) {
    MPT__PLAIN_FLOATS;
    bool falls = warmup >= 0 && t_max > warmup;
    mpt_rate rates[2] = {mpt_linear_lr(start, 1, warmup),
                         mpt_cosine_lr(falls ? t_max - warmup : 1, eta_min)};
    mpt__schedule plan = mpt__plan_of(rates, falls ? 2 : 1, &warmup, unit);
    return mpt__schedule_new("mpt_warmup", optimizer, &plan, "warmup");
}

MPTRAIN_API mpt_one_cycle_config mpt_one_cycle_config_default(void) {
    mpt_one_cycle_config config = {0, 0, 0.3, 25, 1e4, false, false, true, 0.85, 0.95};
    return config;
}

MPTRAIN_API mpt_schedule mpt_one_cycle(mpt_optimizer optimizer, const mpt_one_cycle_config *config,
                                       mpt_schedule_unit unit) {
    MPT__PLAIN_FLOATS;
    mpt_one_cycle_config c = config ? *config : mpt_one_cycle_config_default();
    int64_t shape =
        (c.linear ? MPT__CYCLE_LINEAR : 0) | (int64_t)(c.three_phase ? MPT__CYCLE_THREE : 0);
    mpt_rate rate = mpt__rate_make(MPT__ONE_CYCLE_LR, c.total, shape, c.pct_start, c.div_factor);
    rate.number[2] = c.final_div_factor;
    mpt__schedule plan = mpt__plan_of(&rate, 1, NULL, unit);
    plan.max_lr = c.max_lr;
    plan.cycles = c.cycle_momentum;
    plan.low_momentum = c.base_momentum, plan.high_momentum = c.max_momentum;
    if (c.max_lr >= 0 && c.max_lr < MPT__NO_LIMIT)
        return mpt__schedule_new("mpt_one_cycle", optimizer, &plan, NULL);
    mpt__misuse(optimizer.context, "mpt_one_cycle", MPT_ERROR_ARGUMENT,
                "max_lr = %g; expected a finite number >= 0", c.max_lr);
    return mpt__schedule_handle(optimizer.context, NULL);
}

MPTRAIN_API mpt_plateau_config mpt_plateau_config_default(void) {
    mpt_plateau_config config = {0.1, 10, 1e-4, false, false, 0, 0, 1e-8};
    return config;
}

static bool mpt__check_plateau(mpt_context *context, const mpt_plateau_config *c) {
    return mpt__check_number(context, "factor", c->factor, 0, 1) &&
           mpt__check_count(context, "patience", c->patience, 0) &&
           mpt__check_number(context, "threshold", c->threshold, 0, MPT__NO_LIMIT) &&
           mpt__check_count(context, "cooldown", c->cooldown, 0) &&
           mpt__check_number(context, "min_lr", c->min_lr, 0, MPT__NO_LIMIT) &&
           mpt__check_number(context, "eps", c->eps, 0, MPT__NO_LIMIT);
}

MPTRAIN_API mpt_schedule mpt_reduce_on_plateau(mpt_optimizer optimizer,
                                               const mpt_plateau_config *config) {
    mpt__schedule plan = mpt__plan_of(NULL, 0, NULL, MPT_PER_EPOCH);
    plan.plateau = true;
    plan.config = config ? *config : mpt_plateau_config_default();
    double worst = MPT__INF_F64;
    plan.state.best = plan.config.maximize ? -worst : worst;
    if (!mpt__optimizer_enter(optimizer, "mpt_reduce_on_plateau") ||
        !mpt__check_plateau(optimizer.context, &plan.config))
        return mpt__schedule_handle(optimizer.context, NULL);
    return mpt__schedule_new("mpt_reduce_on_plateau", optimizer, &plan, NULL);
}

/* ==== Calls ==== */

static mpt__schedule *mpt__schedule_begin(mpt_schedule handle, const char *name) {
    mpt__schedule *schedule = mpt__schedule_enter(handle, name);
    if (!schedule || schedule->optimizer) return schedule;
    mpt__error(handle.context, MPT_ERROR_STATE, "the optimizer of this schedule was destroyed");
    return NULL;
}

MPTRAIN_API mpt_status mpt_schedule_step(mpt_schedule handle) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_step");
    if (!schedule) return mpt__status_of(context);
    if (schedule->plateau)
        return mpt__error(context, MPT_ERROR_STATE,
                          "a plateau schedule moves by mpt_schedule_metric, which needs a value");
    if (schedule->unit == MPT_PER_EPOCH) {
        schedule->state.time++;
        return mpt__schedule_rebase(context, schedule->optimizer);
    }
    if (!schedule->told)
        mpt__log(&context->base, MPT_LOG_INFO,
                 "mpt_schedule_step: a schedule per step moves by itself with every applied step; "
                 "the call does nothing");
    schedule->told = true;
    return MPT_OK;
}

static bool mpt__plateau_better(const mpt__schedule *schedule, double value) {
    const mpt_plateau_config *c = &schedule->config;
    double sign = c->maximize ? 1 : -1, best = schedule->state.best;
    double margin = c->absolute ? sign * c->threshold : 0;
    double factor = c->absolute ? 1 : 1 + sign * c->threshold;
    return sign * value > sign * (best * factor + margin);
}

MPTRAIN_API mpt_status mpt_schedule_metric(mpt_schedule handle, double value) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_metric");
    if (!schedule) return mpt__status_of(context);
    if (!schedule->plateau)
        return mpt__error(context, MPT_ERROR_STATE,
                          "only a schedule of mpt_reduce_on_plateau looks at a metric");
    mpt_schedule_state *state = &schedule->state;
    mpt__optimizer *optimizer = schedule->optimizer;
    bool better = mpt__plateau_better(schedule, value);
    if (better) state->best = value;
    state->bad = better || state->cooldown > 0 ? 0 : state->bad + 1;
    if (state->cooldown > 0) state->cooldown--;
    state->time++;
    if (state->bad <= schedule->config.patience) return MPT_OK;
    state->cooldown = schedule->config.cooldown;
    state->bad = 0;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        double *lr = &optimizer->groups[i].lr, cut = *lr * schedule->config.factor;
        if (cut < schedule->config.min_lr) cut = schedule->config.min_lr;
        if (*lr - cut > schedule->config.eps) *lr = cut;
    }
    return mpt__schedule_rebase(context, optimizer);
}

/* What mpt_fit, where it is built, does at the end of an epoch. */
static MPT__UNUSED mpt_status mpt__schedule_epoch(mpt_schedule handle, double metric) {
    const mpt__schedule *schedule = mpt__schedule_at(handle.context, handle);
    return schedule && schedule->plateau ? mpt_schedule_metric(handle, metric)
                                         : mpt_schedule_step(handle);
}

MPTRAIN_API mpt_schedule_state mpt_schedule_get_state(mpt_schedule handle) {
    const mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_get_state");
    mpt_schedule_state state;
    memset(&state, 0, sizeof state);
    if (schedule) {
        state = schedule->state;
        state.time = mpt__schedule_time(handle.context, schedule);
    }
    return state;
}

MPTRAIN_API mpt_status mpt_schedule_set_state(mpt_schedule handle,
                                              const mpt_schedule_state *state) {
    MPT__PLAIN_FLOATS;
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_set_state");
    if (!schedule) return mpt__status_of(context);
    if (!state) return mpt__error(context, MPT_ERROR_ARGUMENT, "there is no state");
    if (!mpt__check_count(context, "time", state->time, 0) ||
        !mpt__check_count(context, "bad", state->bad, 0) ||
        !mpt__check_count(context, "cooldown", state->cooldown, 0))
        return context->base.status;
    int64_t applied = mpt__schedule_time(context, schedule) - schedule->state.time;
    schedule->state = *state;
    schedule->state.time -= applied;
    return mpt__schedule_rebase(context, schedule->optimizer);
}

MPTRAIN_API mpt_status mpt_schedule_destroy(mpt_schedule handle) {
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_enter(handle, "mpt_schedule_destroy");
    if (!schedule) return mpt__status_of(context);
    mpt__optimizer *optimizer = schedule->optimizer;
    for (int64_t i = 0; optimizer && i < optimizer->group_count; i++) /* the rates stay */
        optimizer->groups[i].lr = mpt__schedule_lr(context, optimizer, &optimizer->groups[i]);
    mpt__object_free(context, MPT__SCHEDULE, schedule->id.slot);
    return optimizer ? mpt__schedule_rebase(context, optimizer) : context->base.status;
}

#endif
