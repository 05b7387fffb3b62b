/* ----
 * train/schedule.c: schedules: curves, what joins them, one cycle, plateaus; how the device gets
 * their rates stands in train/rates.c.
 * ---- */
#ifndef MPT__TRAIN_SCHEDULE_INCLUDED
#define MPT__TRAIN_SCHEDULE_INCLUDED

#include "train/scaler.c"

/* ==== Making and destroying ==== */

static void mpt__schedule_free(mpt_context *ctx, void *object) {
    mpt__schedule *schedule = (mpt__schedule *)object;
    mpt__optimizer *optimizer = schedule->optimizer;
    if (optimizer) {
        for (int64_t i = 0; i < optimizer->group_count; i++)
            mpt__storage_forget(ctx, &optimizer->groups[i].table);
        optimizer->schedule = NULL;
        optimizer->patterns++; /* captured steps read its table */
    }
    mpt__scalar_free(ctx, schedule->first_slot);
    mpt__host_free(ctx, schedule->window, (size_t)mpt__schedule_numbers(schedule) * 8);
}

/* low <= value <= high; an upper limit of MPT__NO_LIMIT is none. */
static bool mpt__check_within(
    mpt_context *ctx, const char *name, double value, double low, double high) {
    if (high >= MPT__NO_LIMIT) return mpt__check_number(ctx, name, value, low, high);
    if (value >= low && value <= high) return true;
    return mpt__reject(ctx, ARGUMENT, "%s = %g is not in [%g, %g]", name, value, low, high);
}

/* Milestones are 1 or more and rise; `strictly`: none twice. */
static bool mpt__check_milestones(
    mpt_context *ctx, const int64_t *at, int64_t count, bool strictly) {
    for (int64_t i = 0; i < count; i++) {
        int64_t least = i > 0 ? at[i - 1] + strictly : 1;
        if (at[i] < least)
            return mpt__reject(ctx, ARGUMENT,
                "milestone %lld is %lld; expected %lld or more, for they rise", i, at[i], least);
    }
    return true;
}

/* `count_name` replaces that of the first count, unless it is NULL. */
static bool mpt__check_curve(
    mpt_context *ctx, const mpt_rate *rate, const char *count_name, bool chained) {
    if (rate->kind < 0 || rate->kind >= (int)MPT__RATE_KINDS)
        return mpt__reject(ctx, ARGUMENT,
            "the rate was made by none of the functions for that (kind %d)", rate->kind);
    const struct mpt__rate_rule *rule = &mpt__rate_rules[rate->kind];
    for (int i = 0; i < 2 && rule->count[i]; i++)
        if (!mpt__check_count(
                ctx, i == 0 && count_name ? count_name : rule->count[i], rate->count[i], 1))
            return false;
    for (int i = 0; i < 3 && rule->number[i].name; i++)
        if (!mpt__check_within(ctx, rule->number[i].name, rate->number[i], rule->number[i].low,
                rule->number[i].high))
            return false;
    if (chained && rule->floor && rate->number[0] != 0)
        return mpt__reject(ctx, ARGUMENT,
            "eta_min = %g; a chained schedule multiplies factors, which knows no lowest rate but 0",
            rate->number[0]);
    if (rate->kind != (int)MPT__MULTI_STEP_LR) return true;
    if (rate->count[0] > MPT_MAX_MILESTONES)
        return mpt__reject(ctx, ARGUMENT, "count = %lld; at most %d milestones", rate->count[0],
            MPT_MAX_MILESTONES);
    return mpt__check_milestones(ctx, rate->milestone, rate->count[0], false);
}

static bool mpt__check_plan(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__schedule *plan, const char *count_name) {
    for (int i = 0; i < plan->count; i++)
        if (!mpt__check_curve(ctx, &plan->rate[i], i == 0 ? count_name : NULL, plan->chained))
            return false;
    if (!plan->chained && !mpt__check_milestones(ctx, plan->milestone, plan->count - 1, true))
        return false;
    if (plan->unit != MPT_PER_STEP && plan->unit != MPT_PER_EPOCH)
        return mpt__reject(
            ctx, ARGUMENT, "unit %d is neither MPT_PER_STEP nor MPT_PER_EPOCH", (int)plan->unit);
    if (optimizer->schedule)
        return mpt__reject(ctx, STATE,
            "the optimizer has a schedule already; end that one with mpt_schedule_destroy");
    if (!plan->cycles) return true;
    if (!optimizer->rule->cycles || optimizer->setting[0] == 0)
        return mpt__reject(ctx, STATE,
            "the optimizer has no momentum that could cycle; set one, or cycle_momentum = false");
    return mpt__check_number(ctx, "base_momentum", plan->low_momentum, 0, 1) &&
        mpt__check_number(ctx, "max_momentum", plan->high_momentum, 0, 1);
}

/* Makes an object of `plan` for an optimizer that has none yet. */
static mpt_schedule mpt__schedule_new(
    const char *name, mpt_optimizer handle, const mpt__schedule *plan, const char *count_name) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, name);
    mpt__schedule *schedule = NULL;
    if (optimizer && mpt__check_plan(ctx, optimizer, plan, count_name))
        schedule = (mpt__schedule *)mpt__object_make(ctx, MPT__SCHEDULE, sizeof *schedule);
    if (!schedule) return mpt__schedule_handle(ctx, NULL);
    mpt__id id = schedule->id;
    *schedule = *plan;
    schedule->id = id;
    schedule->window = (double *)mpt__host_new(ctx, (size_t)mpt__schedule_numbers(schedule) * 8);
    schedule->first_slot = mpt__scalar_new_i(ctx, 0);
    schedule->optimizer = optimizer;
    optimizer->schedule = schedule;
    optimizer->patterns++;
    if (mpt__schedule_rebase(ctx, optimizer) == MPT_OK) {
        for (int64_t i = 0; i < optimizer->group_count && plan->max_lr > 0; i++)
            optimizer->groups[i].lr = plan->max_lr;
        if (plan->max_lr > 0) mpt__schedule_rebase(ctx, optimizer);
        return mpt__schedule_handle(ctx, schedule);
    }
    mpt__object_free(ctx, MPT__SCHEDULE, id.slot);
    return mpt__schedule_handle(ctx, NULL);
}

/* A plan of `count` curves, sequential ones with count - 1 milestones. */
static mpt__schedule mpt__plan_of(
    const mpt_rate *rates, int count, const int64_t *milestones, mpt_schedule_unit unit) {
    mpt__schedule plan;
    mpt__zero(plan);
    plan.unit = unit, plan.count = count;
    for (int i = 0; i < count; i++) plan.rate[i] = rates[i];
    for (int i = 0; i + 1 < count && milestones; i++) plan.milestone[i] = milestones[i];
    return plan;
}

mpt_schedule mpt_schedule_create(mpt_optimizer optimizer, mpt_rate rate, mpt_schedule_unit unit) {
    mpt__schedule plan = mpt__plan_of(&rate, 1, NULL, unit);
    return mpt__schedule_new("mpt_schedule_create", optimizer, &plan, NULL);
}

static mpt_schedule mpt__schedule_join(const char *name, mpt_optimizer optimizer,
    const mpt_rate *rates, int count, const int64_t *milestones, bool chained,
    mpt_schedule_unit unit) {
    if (!rates || count < 1 || count > MPT_MAX_RATES || (!chained && count > 1 && !milestones)) {
        mpt__misuse(optimizer.context, name, ARGUMENT,
            "expected 1 to %d rates and one milestone less, got %d rates%s", MPT_MAX_RATES,
            rates ? count : 0, chained || milestones ? "" : " and no milestones");
        return mpt__schedule_handle(optimizer.context, NULL);
    }
    mpt__schedule plan = mpt__plan_of(rates, count, milestones, unit);
    plan.chained = chained;
    return mpt__schedule_new(name, optimizer, &plan, NULL);
}

mpt_schedule mpt_sequential_lr(mpt_optimizer optimizer, const mpt_rate *rates, int count,
    const int64_t *milestones, mpt_schedule_unit unit) {
    return mpt__schedule_join(
        "mpt_sequential_lr", optimizer, rates, count, milestones, false, unit);
}

mpt_schedule mpt_chained_lr(
    mpt_optimizer optimizer, const mpt_rate *rates, int count, mpt_schedule_unit unit) {
    return mpt__schedule_join("mpt_chained_lr", optimizer, rates, count, NULL, true, unit);
}

mpt_schedule mpt_cosine_annealing(
    mpt_optimizer optimizer, int64_t t_max, double eta_min, mpt_schedule_unit unit) {
    mpt_rate rate = mpt_cosine_lr(t_max, eta_min);
    mpt__schedule plan = mpt__plan_of(&rate, 1, NULL, unit);
    return mpt__schedule_new("mpt_cosine_annealing", optimizer, &plan, NULL);
}

mpt_schedule mpt_warmup(mpt_optimizer optimizer, double start, int64_t warmup, int64_t t_max,
    double eta_min, mpt_schedule_unit unit) {
    MPT__PLAIN_FLOATS;
    bool falls = warmup >= 0 && t_max > warmup;
    mpt_rate rates[2] = {
        mpt_linear_lr(start, 1, warmup), mpt_cosine_lr(falls ? t_max - warmup : 1, eta_min)};
    mpt__schedule plan = mpt__plan_of(rates, falls ? 2 : 1, &warmup, unit);
    return mpt__schedule_new("mpt_warmup", optimizer, &plan, "warmup");
}

mpt_one_cycle_config mpt_one_cycle_config_default(void) {
    mpt_one_cycle_config config = {0, 0, 0.3, 25, 1e4, false, false, true, 0.85, 0.95};
    return config;
}

mpt_schedule mpt_one_cycle(
    mpt_optimizer optimizer, const mpt_one_cycle_config *config, mpt_schedule_unit unit) {
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
    mpt__misuse(optimizer.context, "mpt_one_cycle", ARGUMENT,
        "max_lr = %g; expected a finite number >= 0", c.max_lr);
    return mpt__schedule_handle(optimizer.context, NULL);
}

mpt_plateau_config mpt_plateau_config_default(void) {
    mpt_plateau_config config = {0.1, 10, 1e-4, false, false, 0, 0, 1e-8};
    return config;
}

static bool mpt__check_plateau(mpt_context *ctx, const mpt_plateau_config *c) {
    return mpt__check_number(ctx, "factor", c->factor, 0, 1) &&
        mpt__check_count(ctx, "patience", c->patience, 0) &&
        mpt__check_number(ctx, "threshold", c->threshold, 0, MPT__NO_LIMIT) &&
        mpt__check_count(ctx, "cooldown", c->cooldown, 0) &&
        mpt__check_number(ctx, "min_lr", c->min_lr, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "eps", c->eps, 0, MPT__NO_LIMIT);
}

mpt_schedule mpt_reduce_on_plateau(mpt_optimizer optimizer, const mpt_plateau_config *config) {
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
    mpt__error(handle.context, STATE, "the optimizer of this schedule was destroyed");
    return NULL;
}

mpt_status mpt_schedule_step(mpt_schedule handle) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_step");
    if (!schedule) return mpt__status_of(ctx);
    if (schedule->plateau)
        return mpt__error(
            ctx, STATE, "a plateau schedule moves by mpt_schedule_metric, which needs a value");
    if (schedule->unit == MPT_PER_EPOCH) {
        schedule->state.time++;
        return mpt__schedule_rebase(ctx, schedule->optimizer);
    }
    if (!schedule->told)
        mpt__log(&ctx->base, MPT_LOG_INFO,
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

mpt_status mpt_schedule_metric(mpt_schedule handle, double value) {
    MPT__PLAIN_FLOATS;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_metric");
    if (!schedule) return mpt__status_of(handle.context);
    if (!schedule->plateau)
        return mpt__error(
            handle.context, STATE, "only a schedule of mpt_reduce_on_plateau looks at a metric");
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
    return mpt__schedule_rebase(handle.context, optimizer);
}

/* What mpt_fit, where it is built, does at the end of an epoch. */
static MPT__UNUSED mpt_status mpt__schedule_epoch(mpt_schedule handle, double metric) {
    const mpt__schedule *schedule = mpt__schedule_at(handle.context, handle);
    return schedule && schedule->plateau ? mpt_schedule_metric(handle, metric)
                                         : mpt_schedule_step(handle);
}

mpt_schedule_state mpt_schedule_get_state(mpt_schedule handle) {
    const mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_get_state");
    mpt_schedule_state state;
    mpt__zero(state);
    if (schedule) {
        state = schedule->state;
        state.time = mpt__schedule_time(handle.context, schedule);
    }
    return state;
}

mpt_status mpt_schedule_set_state(mpt_schedule handle, const mpt_schedule_state *state) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__schedule *schedule = mpt__schedule_begin(handle, "mpt_schedule_set_state");
    if (!schedule) return mpt__status_of(ctx);
    if (!state) return mpt__error(ctx, ARGUMENT, "there is no state");
    if (!mpt__check_count(ctx, "time", state->time, 0) ||
        !mpt__check_count(ctx, "bad", state->bad, 0) ||
        !mpt__check_count(ctx, "cooldown", state->cooldown, 0))
        return ctx->base.status;
    if (state->time > MPT__MOST_COUNTED || state->bad > MPT__MOST_COUNTED ||
        state->cooldown > MPT__MOST_COUNTED)
        return mpt__error(ctx, ARGUMENT, "time = %lld, bad = %lld, cooldown = %lld; at most 2^53",
            state->time, state->bad, state->cooldown);
    int64_t applied = mpt__schedule_time(ctx, schedule) - schedule->state.time;
    schedule->state = *state;
    schedule->state.time -= applied;
    return mpt__schedule_rebase(ctx, schedule->optimizer);
}

mpt_status mpt_schedule_destroy(mpt_schedule handle) {
    mpt_context *ctx = handle.context;
    mpt__schedule *schedule = mpt__schedule_enter(handle, "mpt_schedule_destroy");
    if (!schedule) return mpt__status_of(ctx);
    mpt__optimizer *optimizer = schedule->optimizer;
    for (int64_t i = 0; optimizer && i < optimizer->group_count; i++) /* the rates stay */
        optimizer->groups[i].lr = mpt__schedule_lr(ctx, optimizer, &optimizer->groups[i]);
    mpt__object_free(ctx, MPT__SCHEDULE, schedule->id.slot);
    return optimizer ? mpt__schedule_rebase(ctx, optimizer) : ctx->base.status;
}

#endif
