/* ----
 * train/rates.c: learning rates over time, as an optimizer asks for them.
 *
 * A schedule per step lives on the device: a table of coming rates, indexed by the count of applied
 * steps, so that a skipped step does not move it and nobody waits. The host only knows how many
 * steps it has queued, which is never less than what was applied; it uploads a new window of the
 * table when the queue may have reached the end of the old one. A second row of the table, where
 * one cycle moves momentum, takes the place of the update's first setting.
 * ---- */
#ifndef MPT__TRAIN_RATES_INCLUDED
#define MPT__TRAIN_RATES_INCLUDED

#include "train/optimizer.h"

/* Rates per upload: 8 KB for each group, twice that with momentum. */
enum { MPT__LR_WINDOW = 1024 };

/* ==== Curves ==== */

typedef enum {
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
    bool three = (rate->count[1] & MPT__CYCLE_THREE) != 0;
    double top = rate->number[0] * (double)rate->count[0] - 1;
    const double end[3] = {top, 2 * top, (double)rate->count[0] - 1};
    const double value[4] = {first, high, three ? first : last, last};
    double at = (double)t < end[2] ? (double)t : end[2];
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
    {mpt__one_cycle_factor, false, {"total", NULL},
        {{"pct_start", 0, 1}, {"div_factor", 1, MPT__NO_LIMIT},
            {"final_div_factor", 1e-6, MPT__NO_LIMIT}}}};

static mpt_rate mpt__rate_make(mpt__rate_kind kind, int64_t n, int64_t m, double a, double b) {
    mpt_rate rate;
    mpt__zero(rate);
    rate.kind = (int)kind;
    rate.count[0] = n, rate.count[1] = m;
    rate.number[0] = a, rate.number[1] = b;
    return rate;
}

mpt_rate mpt_constant_lr(double factor, int64_t total) {
    return mpt__rate_make(MPT__CONSTANT_LR, total, 0, factor, 0);
}
mpt_rate mpt_linear_lr(double start, double end, int64_t total) {
    return mpt__rate_make(MPT__LINEAR_LR, total, 0, start, end);
}
mpt_rate mpt_exponential_lr(double gamma) {
    return mpt__rate_make(MPT__EXPONENTIAL_LR, 0, 0, gamma, 0);
}
mpt_rate mpt_step_lr(int64_t size, double gamma) {
    return mpt__rate_make(MPT__STEP_LR, size, 0, gamma, 0);
}
mpt_rate mpt_polynomial_lr(int64_t total, double power) {
    return mpt__rate_make(MPT__POLYNOMIAL_LR, total, 0, power, 0);
}
mpt_rate mpt_cosine_lr(int64_t t_max, double eta_min) {
    return mpt__rate_make(MPT__COSINE_LR, t_max, 0, eta_min, 0);
}
mpt_rate mpt_cosine_restarts_lr(int64_t t_0, int64_t mult, double eta_min) {
    return mpt__rate_make(MPT__RESTARTS_LR, t_0, mult, eta_min, 0);
}
mpt_rate mpt_multi_step_lr(const int64_t *milestones, int count, double gamma) {
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
MPT__HANDLE_AT(schedule, MPT__SCHEDULE)

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
static int64_t mpt__schedule_time(mpt_context *ctx, const mpt__schedule *schedule) {
    const mpt__optimizer *optimizer = schedule->optimizer;
    bool counted = optimizer && schedule->unit == MPT_PER_STEP;
    return schedule->state.time +
        (counted ? mpt__scalar_get_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED]) : 0);
}

static double mpt__schedule_lr(
    mpt_context *ctx, mpt__optimizer *optimizer, const mpt__group *group) {
    MPT__PLAIN_FLOATS;
    const mpt__schedule *schedule = optimizer->schedule;
    if (!schedule) return group->lr;
    return mpt__schedule_rate(schedule, group->lr, mpt__schedule_time(ctx, schedule));
}

/* Uploads the window that begins at the steps applied so far; the one place that reads them. A rate
   per epoch fills it with one number. */
static mpt_status mpt__schedule_fill(mpt_context *ctx, mpt__schedule *schedule) {
    MPT__PLAIN_FLOATS;
    mpt__optimizer *optimizer = schedule->optimizer;
    bool moves = schedule->unit == MPT_PER_STEP;
    int64_t first = mpt__scalar_get_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED]);
    int64_t begin = schedule->state.time + (moves ? first : 0);
    double *row = schedule->window;
    for (int64_t t = 0; t < MPT__LR_WINDOW && schedule->cycles; t++)
        row[MPT__LR_WINDOW + t] = mpt__cycle(&schedule->rate[0], begin + (moves ? t : 0),
            schedule->high_momentum, schedule->low_momentum, schedule->high_momentum);
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        for (int64_t t = 0; t < MPT__LR_WINDOW; t++)
            row[t] = mpt__schedule_rate(schedule, group->lr, begin + (moves ? t : 0));
        mpt_status status =
            mpt__upload(ctx, group->table, 0, row, mpt__schedule_numbers(schedule) * 8);
        if (status != MPT_OK) return status;
    }
    mpt__scalar_set_i(ctx, schedule->first_slot, first);
    schedule->first = schedule->queued = first;
    return ctx->base.status;
}

static mpt_status mpt__schedule_before_step(mpt_context *ctx, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    if (!mpt__schedule_tabled(schedule)) return MPT_OK;
    if (ctx->backend.synchronous)
        schedule->queued = ctx->scalars[optimizer->slot[MPT__OPTIM_APPLIED]].i;
    int64_t at = schedule->queued - schedule->first;
    bool beyond = schedule->unit == MPT_PER_STEP && (at < 0 || at >= MPT__LR_WINDOW);
    mpt_status status = MPT_OK;
    int64_t writes = ctx->host_writes;
    ctx->unrecorded = mpt__is_capturing(ctx); /* captured steps come here, too */
    if (schedule->first < 0 || beyond) status = mpt__schedule_fill(ctx, schedule);
    ctx->unrecorded = false;
    ctx->host_writes = writes;
    schedule->queued++;
    return status;
}

static void mpt__schedule_operand(
    mpt__launch *launch, const mpt__optimizer *optimizer, const mpt__group *group) {
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

static mpt_status mpt__schedule_rebase(mpt_context *ctx, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        if (!mpt__schedule_tabled(schedule))
            mpt__scalar_set_f(ctx, group->lr_slot,
                schedule ? mpt__schedule_rate(schedule, group->lr, schedule->state.time)
                         : group->lr);
        else if (!group->table)
            group->table = mpt__storage_new(ctx, mpt__schedule_numbers(schedule) * 8,
                MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
    }
    if (schedule) schedule->first = -1;
    return ctx->base.status;
}

static void mpt__schedule_detach(mpt__schedule *schedule) { schedule->optimizer = NULL; }

static mpt_status mpt__schedule_visit(mpt_context *ctx, mpt__schedule *schedule,
    mpt__state_item *item, mpt__state_visitor visit, void *user) {
    const struct {
        const char *name;
        void *host;
        mpt_dtype dtype;
        int64_t most;
    } rows[] = {{"schedule.time", &schedule->state.time, MPT_I64, -MPT__MOST_COUNTED},
        {"schedule.best", &schedule->state.best, MPT_F64, 0},
        {"schedule.bad", &schedule->state.bad, MPT_I64, MPT__MOST_COUNTED},
        {"schedule.cooldown", &schedule->state.cooldown, MPT_I64, MPT__MOST_COUNTED}};
    mpt_status status = MPT_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == MPT_OK; i++) {
        item->name = rows[i].name, item->host = rows[i].host, item->dtype = rows[i].dtype;
        item->most = rows[i].most;
        status = visit(ctx, user, item);
    }
    return status;
}

#endif
