/* ---------------------------------------------------------------------------------------------
 * 64_schedule.c: learning rates over time: cosine annealing, linear warm-up.
 *
 * A schedule per step lives on the device: a table of coming rates, indexed by the count of applied
 * steps, so that a skipped step does not move it and nobody waits. The host only knows how many
 * steps it has queued, which is never less than what was applied; it uploads a new window of the
 * table when the queue may have reached the end of the old one.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__64_SCHEDULE_INCLUDED
#define MPT__64_SCHEDULE_INCLUDED

#include "63_scaler.c"

enum { MPT__LR_WINDOW = 1024 }; /* rates per upload: 8 KB for each group */

typedef struct mpt__schedule {
    mpt__id id;
    mpt__optimizer *optimizer; /* NULL once it is destroyed */
    mpt_schedule_unit unit;
    int64_t warmup, t_max;
    double start, eta_min;
    int64_t epoch;       /* calls of mpt_schedule_step */
    int64_t first;       /* applied steps at the window's begin; -1: no window yet */
    int64_t queued;      /* steps queued: an upper bound of those applied */
    uint16_t first_slot; /* `first` on the device */
    bool told;           /* that a schedule per step moves by itself */
    double *window;      /* host side of an upload */
} mpt__schedule;

MPT__HANDLES(schedule, MPT__SCHEDULE)

/* The rate at time t, for a group that starts from `base`. Past t_max the cosine rises again, as
   PyTorch's CosineAnnealingLR does. */
static double mpt__schedule_rate(const mpt__schedule *schedule, double base, int64_t t) {
    const double pi = 3.14159265358979323846;
    if (t < schedule->warmup) {
        double done = (double)t / (double)schedule->warmup;
        return base * (schedule->start + (1 - schedule->start) * done);
    }
    int64_t period = schedule->t_max - schedule->warmup;
    if (period <= 0) return base;
    int64_t at = (t - schedule->warmup) % (2 * period);
    double cosine = mpt__cos(pi * (double)at / (double)period);
    return schedule->eta_min + (base - schedule->eta_min) * (1 + cosine) / 2;
}

static double mpt__schedule_lr(mpt_context *context, mpt__optimizer *optimizer,
                               const mpt__group *group) {
    const mpt__schedule *schedule = optimizer->schedule;
    if (!schedule) return group->lr;
    int64_t t = schedule->unit == MPT_PER_EPOCH
                    ? schedule->epoch
                    : mpt__scalar_get_i(context, optimizer->slot[MPT__OPTIM_APPLIED]);
    return mpt__schedule_rate(schedule, group->lr, t);
}

/* Uploads the window that begins at the steps applied so far; the one place that reads them. */
static mpt_status mpt__schedule_fill(mpt_context *context, mpt__schedule *schedule) {
    mpt__optimizer *optimizer = schedule->optimizer;
    int64_t first = mpt__scalar_get_i(context, optimizer->slot[MPT__OPTIM_APPLIED]);
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        for (int64_t t = 0; t < MPT__LR_WINDOW; t++)
            schedule->window[t] = mpt__schedule_rate(schedule, group->lr, first + t);
        mpt_status status =
            mpt__upload(context, group->table, 0, schedule->window, MPT__LR_WINDOW * 8);
        if (status != MPT_OK) return status;
    }
    mpt__scalar_set_i(context, schedule->first_slot, first);
    schedule->first = schedule->queued = first;
    return context->base.status;
}

static mpt_status mpt__schedule_before_step(mpt_context *context, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    if (!schedule || schedule->unit == MPT_PER_EPOCH) return MPT_OK;
    if (context->backend.synchronous)
        schedule->queued = context->scalars[optimizer->slot[MPT__OPTIM_APPLIED]].i;
    int64_t at = schedule->queued - schedule->first;
    mpt_status status = MPT_OK;
    int64_t writes = context->host_writes;
    context->unrecorded = context->capturing; /* captured steps come here, too */
    if (schedule->first < 0 || at < 0 || at >= MPT__LR_WINDOW)
        status = mpt__schedule_fill(context, schedule);
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
    mpt__operand_on(launch, 7, group->table, MPT_F64, 0, MPT__LR_WINDOW, MPT__READ);
    launch->slot[4] = optimizer->schedule->first_slot;
}

static mpt_status mpt__schedule_rebase(mpt_context *context, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        if (!schedule)
            mpt__scalar_set_f(context, group->lr_slot, group->lr);
        else if (schedule->unit == MPT_PER_EPOCH)
            mpt__scalar_set_f(context, group->lr_slot,
                              mpt__schedule_rate(schedule, group->lr, schedule->epoch));
        else if (!group->table)
            group->table = mpt__storage_new(context, MPT__LR_WINDOW * 8, MPT_MEMORY_WORKSPACE,
                                            MPT__FROM_DEVICE, false);
    }
    if (schedule) schedule->first = -1;
    return context->base.status;
}

static void mpt__schedule_detach(mpt__schedule *schedule) { schedule->optimizer = NULL; }

/* ==== Making and destroying ==== */

static void mpt__schedule_free(mpt_context *context, void *object) {
    mpt__schedule *schedule = (mpt__schedule *)object;
    mpt__optimizer *optimizer = schedule->optimizer;
    if (optimizer) {
        for (int64_t i = 0; i < optimizer->group_count; i++)
            mpt__storage_forget(context, &optimizer->groups[i].table);
        optimizer->schedule = NULL;
    }
    mpt__scalar_free(context, schedule->first_slot);
    mpt__host_free(context, schedule->window, MPT__LR_WINDOW * sizeof *schedule->window);
}

static bool mpt__check_plan(mpt_context *context, const mpt__schedule *plan, int least_warmup,
                            int least_t_max) {
    if (!mpt__check_count(context, "warmup", plan->warmup, least_warmup) ||
        !mpt__check_count(context, "t_max", plan->t_max, least_t_max) ||
        !mpt__check_number(context, "eta_min", plan->eta_min, 0, MPT__NO_LIMIT))
        return false;
    if (!(plan->start >= 0 && plan->start <= 1))
        mpt__error(context, MPT_ERROR_ARGUMENT, "start = %g is not in [0, 1]", plan->start);
    else if (plan->unit != MPT_PER_STEP && plan->unit != MPT_PER_EPOCH)
        mpt__error(context, MPT_ERROR_ARGUMENT, "unit %d is neither MPT_PER_STEP nor MPT_PER_EPOCH",
                   (int)plan->unit);
    return context->base.status == MPT_OK;
}

/* Makes an object of `plan` for an optimizer that has none yet. */
static mpt_schedule mpt__schedule_new(const char *name, mpt_optimizer handle,
                                      const mpt__schedule *plan, int least_warmup,
                                      int least_t_max) {
    mpt_context *context = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, name);
    mpt__schedule *schedule = NULL;
    if (optimizer && optimizer->schedule)
        mpt__error(context, MPT_ERROR_STATE,
                   "the optimizer has a schedule already; end that one with mpt_schedule_destroy");
    else if (optimizer && mpt__check_plan(context, plan, least_warmup, least_t_max))
        schedule = (mpt__schedule *)mpt__object_make(context, MPT__SCHEDULE, sizeof *schedule);
    if (!schedule) return mpt__schedule_handle(context, NULL);
    mpt__id id = schedule->id;
    *schedule = *plan;
    schedule->id = id;
    schedule->window = (double *)mpt__host_new(context, MPT__LR_WINDOW * sizeof *schedule->window);
    schedule->first_slot = mpt__scalar_new_i(context, 0);
    schedule->optimizer = optimizer;
    optimizer->schedule = schedule;
    if (mpt__schedule_rebase(context, optimizer) == MPT_OK)
        return mpt__schedule_handle(context, schedule);
    mpt__object_free(context, MPT__SCHEDULE, id.slot);
    return mpt__schedule_handle(context, NULL);
}

MPTRAIN_API mpt_schedule mpt_cosine_annealing(mpt_optimizer optimizer, int64_t t_max,
                                              double eta_min, mpt_schedule_unit unit) {
    mpt__schedule plan;
    memset(&plan, 0, sizeof plan);
    plan.t_max = t_max, plan.eta_min = eta_min, plan.unit = unit;
    return mpt__schedule_new("mpt_cosine_annealing", optimizer, &plan, 0, 1);
}

MPTRAIN_API mpt_schedule mpt_warmup(mpt_optimizer optimizer, double start, int64_t warmup,
                                    int64_t t_max, double eta_min, mpt_schedule_unit unit) {
    mpt__schedule plan;
    memset(&plan, 0, sizeof plan);
    plan.start = start, plan.warmup = warmup;
    plan.t_max = t_max, plan.eta_min = eta_min, plan.unit = unit;
    return mpt__schedule_new("mpt_warmup", optimizer, &plan, 1, 0);
}

/* ==== Calls ==== */

MPTRAIN_API mpt_status mpt_schedule_step(mpt_schedule handle) {
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_enter(handle, "mpt_schedule_step");
    if (!schedule) return mpt__status_of(context);
    if (!schedule->optimizer)
        return mpt__error(context, MPT_ERROR_STATE, "the optimizer of this schedule was destroyed");
    if (schedule->unit == MPT_PER_EPOCH) {
        schedule->epoch++;
        return mpt__schedule_rebase(context, schedule->optimizer);
    }
    if (!schedule->told) {
        mpt__log(
            &context->base, MPT_LOG_INFO,
            "mpt_schedule_step: a schedule per step moves by itself with every applied step; the "
            "call does nothing");
    }
    schedule->told = true;
    return MPT_OK;
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
