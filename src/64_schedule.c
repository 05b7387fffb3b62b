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
    uint32_t slot, generation;
    mpt__optimizer *optimizer; /* NULL once it is destroyed */
    mpt_schedule_unit unit;
    int64_t warmup, t_max;
    double start, eta_min;
    int64_t epoch;       /* calls of mpt_schedule_step */
    int64_t first;       /* applied steps at the window's begin; -1: no window yet */
    int64_t queued;      /* steps queued: an upper bound of those applied */
    uint16_t first_slot; /* the same on the device */
    bool told;           /* that a schedule per step moves by itself */
    double *window;      /* host side of an upload */
} mpt__schedule;

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
                    : mpt__scalar_get_i(context, optimizer->applied_slot);
    return mpt__schedule_rate(schedule, group->lr, t);
}

/* Per epoch: the rates of the epoch, for all groups. */
static mpt_status mpt__schedule_set(mpt_context *context, const mpt__schedule *schedule) {
    const mpt__optimizer *optimizer = schedule->optimizer;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        const mpt__group *group = &optimizer->groups[i];
        mpt__scalar_set_f(context, group->lr_slot,
                          mpt__schedule_rate(schedule, group->lr, schedule->epoch));
    }
    return context->base.status;
}

/* Uploads the window that begins at the steps applied so far; the one place that reads them. */
static mpt_status mpt__schedule_fill(mpt_context *context, mpt__schedule *schedule) {
    mpt__optimizer *optimizer = schedule->optimizer;
    int64_t first = mpt__scalar_get_i(context, optimizer->applied_slot);
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
    int64_t at = context->backend.synchronous ? context->scalars[optimizer->applied_slot].i
                                              : schedule->queued;
    if (schedule->first < 0 || at < schedule->first || at >= schedule->first + MPT__LR_WINDOW) {
        mpt_status status = mpt__schedule_fill(context, schedule);
        if (status != MPT_OK) return status;
    }
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_LR_LOOKUP);
        mpt__operand_on(launch, 0, optimizer->groups[i].table, MPT_F64, 0, MPT__LR_WINDOW,
                        MPT__READ);
        launch->slot[0] = optimizer->groups[i].lr_slot;
        launch->slot[1] = optimizer->applied_slot;
        launch->slot[2] = schedule->first_slot;
        mpt__submit(context, launch);
    }
    schedule->queued++;
    return context->base.status;
}

static mpt_status mpt__schedule_rebase(mpt_context *context, mpt__optimizer *optimizer) {
    mpt__schedule *schedule = optimizer->schedule;
    if (!schedule) return context->base.status;
    if (schedule->unit == MPT_PER_EPOCH) return mpt__schedule_set(context, schedule);
    schedule->first = -1;
    for (int64_t i = 0; i < optimizer->group_count; i++) {
        mpt__group *group = &optimizer->groups[i];
        if (group->table) continue;
        group->table = mpt__storage_new(context, MPT__LR_WINDOW * 8, MPT_MEMORY_WORKSPACE,
                                        MPT__FROM_DEVICE, false);
        if (!group->table) break;
    }
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
    mpt__host_free(context, schedule, sizeof *schedule);
}

/* Called by mpt_create. */
static void mpt__schedule_init(mpt_context *context) {
    context->objects[MPT__SCHEDULE].destroy = mpt__schedule_free;
}

static mpt_schedule mpt__schedule_null(mpt_context *context) {
    mpt_schedule null;
    null.context = context, null.slot = 0, null.generation = 0;
    return null;
}

/* Makes an object of `plan` for an optimizer that has none yet. */
static mpt_schedule mpt__schedule_new(mpt_context *context, mpt__optimizer *optimizer,
                                      const mpt__schedule *plan) {
    if (optimizer->schedule) {
        mpt__error(context, MPT_ERROR_STATE,
                   "the optimizer has a schedule already; end that one with mpt_schedule_destroy");
        return mpt__schedule_null(context);
    }
    if (plan->unit != MPT_PER_STEP && plan->unit != MPT_PER_EPOCH) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "unit %d is neither MPT_PER_STEP nor MPT_PER_EPOCH",
                   (int)plan->unit);
        return mpt__schedule_null(context);
    }
    mpt__schedule *schedule = (mpt__schedule *)mpt__host_new(context, sizeof *schedule);
    if (!schedule) return mpt__schedule_null(context);
    *schedule = *plan;
    schedule->first = -1;
    schedule->slot = mpt__object_new(context, MPT__SCHEDULE, schedule, &schedule->generation);
    if (!schedule->slot) {
        mpt__host_free(context, schedule, sizeof *schedule);
        return mpt__schedule_null(context);
    }
    schedule->window = (double *)mpt__host_new(context, MPT__LR_WINDOW * sizeof *schedule->window);
    schedule->first_slot = mpt__scalar_new_i(context, 0);
    schedule->optimizer = optimizer;
    optimizer->schedule = schedule;
    if (mpt__schedule_rebase(context, optimizer) != MPT_OK) {
        mpt__object_free(context, MPT__SCHEDULE, schedule->slot);
        return mpt__schedule_null(context);
    }
    mpt_schedule handle = mpt__schedule_null(context);
    handle.slot = schedule->slot, handle.generation = schedule->generation;
    return handle;
}

MPTRAIN_API mpt_schedule mpt_cosine_annealing(mpt_optimizer optimizer, int64_t t_max,
                                              double eta_min, mpt_schedule_unit unit) {
    mpt_context *context = optimizer.context;
    mpt__optimizer *object = mpt__optimizer_enter(optimizer, "mpt_cosine_annealing");
    if (!object) return mpt__schedule_null(context);
    if (t_max < 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "t_max = %lld; expected 1 or more",
                   (long long)t_max);
        return mpt__schedule_null(context);
    }
    if (!mpt__check_number(context, "eta_min", eta_min, 0, MPT__NO_LIMIT))
        return mpt__schedule_null(context);
    mpt__schedule plan;
    memset(&plan, 0, sizeof plan);
    plan.unit = unit;
    plan.t_max = t_max;
    plan.eta_min = eta_min;
    return mpt__schedule_new(context, object, &plan);
}

MPTRAIN_API mpt_schedule mpt_warmup(mpt_optimizer optimizer, double start, int64_t warmup,
                                    int64_t t_max, double eta_min, mpt_schedule_unit unit) {
    mpt_context *context = optimizer.context;
    mpt__optimizer *object = mpt__optimizer_enter(optimizer, "mpt_warmup");
    if (!object) return mpt__schedule_null(context);
    if (warmup < 1 || t_max < 0) {
        mpt__error(
            context, MPT_ERROR_ARGUMENT,
            "warmup = %lld, t_max = %lld; expected warmup of 1 or more, and t_max 0 (no annealing "
            "after it) or more",
            (long long)warmup, (long long)t_max);
        return mpt__schedule_null(context);
    }
    if (!(start >= 0 && start <= 1)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "start = %g is not in [0, 1]", start);
        return mpt__schedule_null(context);
    }
    if (!mpt__check_number(context, "eta_min", eta_min, 0, MPT__NO_LIMIT))
        return mpt__schedule_null(context);
    mpt__schedule plan;
    memset(&plan, 0, sizeof plan);
    plan.unit = unit;
    plan.warmup = warmup;
    plan.t_max = t_max;
    plan.start = start;
    plan.eta_min = eta_min;
    return mpt__schedule_new(context, object, &plan);
}

/* ==== Calls ==== */

/* The live schedule of a handle, whose optimizer lives too. NULL: the call ends here. */
static mpt__schedule *mpt__schedule_enter(mpt_schedule handle, const char *name) {
    mpt_context *context = handle.context;
    if (!mpt__enter(context, name)) return NULL;
    return (mpt__schedule *)mpt__object_at(context, MPT__SCHEDULE, handle.context, handle.slot,
                                           handle.generation);
}

MPTRAIN_API mpt_status mpt_schedule_step(mpt_schedule handle) {
    mpt_context *context = handle.context;
    mpt__schedule *schedule = mpt__schedule_enter(handle, "mpt_schedule_step");
    if (!schedule) return mpt__status_of(context);
    if (!schedule->optimizer)
        return mpt__error(context, MPT_ERROR_STATE, "the optimizer of this schedule was destroyed");
    if (schedule->unit == MPT_PER_EPOCH) {
        schedule->epoch++;
        return mpt__schedule_set(context, schedule);
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
    for (int64_t i = 0; optimizer && i < optimizer->group_count; i++) { /* the rates stay */
        mpt__group *group = &optimizer->groups[i];
        double lr = mpt__schedule_lr(context, optimizer, group);
        group->lr = lr;
        mpt__scalar_set_f(context, group->lr_slot, lr);
    }
    mpt__object_free(context, MPT__SCHEDULE, schedule->slot);
    return context->base.status;
}

#endif
