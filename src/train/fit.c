/* ----
 * train/fit.c: the short road: the loops of training and evaluation as one call each. Only public
 * calls are made, as by hand. State lies on the stack, so a steady-state step makes no call to the
 * allocator.
 * ---- */
#ifndef MPT__TRAIN_FIT_INCLUDED
#define MPT__TRAIN_FIT_INCLUDED

#include "train/series.c"

MPT__DEFAULTS(mpt_fit_config, {
    config.epochs = 5;
    config.precision = MPT_F32;
    config.stop_on_nan = config.restore_weights = config.resume = true;
})

/* The context of the first handle that has one. */
static mpt_context *mpt__fit_context(mpt_context *a, mpt_context *b, mpt_context *c) {
    return a ? a : b ? b : c;
}

/* What a fit that has not begun says. */
static mpt_fit_result mpt__fit_nothing(void) {
    mpt_fit_result result;
    mpt__zero(result);
    result.train_loss = result.validation_loss = result.validation_accuracy = MPT__NAN_F64;
    return result;
}

#ifdef MPTRAIN_NO_FIT

MPT__BEGIN_ABSENT
static mpt_status mpt__fit_missing(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "fit (MPTRAIN_NO_FIT): write the loop by hand");
}

mpt_fit_result mpt_fit(
    mpt_module net, mpt_optimizer optimizer, mpt_loader train, const mpt_fit_config *config) {
    mpt_fit_result result = mpt__fit_nothing();
    result.status = mpt__fit_missing(
        mpt__fit_context(net.context, optimizer.context, train.context), "mpt_fit");
    return result;
}

mpt_evaluation mpt_evaluate(mpt_module net, mpt_loader loader, mpt_dtype precision) {
    mpt_evaluation evaluation;
    mpt__zero(evaluation);
    evaluation.loss = evaluation.accuracy = MPT__NAN_F64;
    evaluation.status =
        mpt__fit_missing(mpt__fit_context(net.context, loader.context, NULL), "mpt_evaluate");
    return evaluation;
}
MPT__END_ABSENT

#else

#define MPT__FIT_METRIC "mpt_fit.loss" /* the running mean, beside the user's metrics */
#define MPT__FIT_BAR 20                /* characters of the progress bar */

/* The caller's loss, nll_loss if there is none. */
static mpt_tensor mpt__fit_loss(
    const mpt_fit_config *config, mpt_tensor output, mpt_tensor target) {
    if (config->loss) return config->loss(output, target, config->user);
    mpt_context *ctx = output.context;
    bool told = ctx && ctx->warned_scores;
    if (ctx) ctx->warned_scores = true; /* mpt__fit_check_output says it better */
    mpt_tensor loss = mpt_nll_loss(output, target, NULL);
    if (ctx) ctx->warned_scores = told;
    return loss;
}

/* AUTO becomes what it stands for, and the log hears why. */
static void mpt__fit_choose(mpt_context *ctx, const char *call, mpt_dtype *precision) {
    const char *reason;
    if (!ctx || *precision != MPT_PRECISION_AUTO) return;
    *precision = mpt_precision_auto(ctx, &reason);
    mpt__log(&ctx->base, MPT_LOG_INFO, "%s: %D, since %s", call, *precision, reason);
}

static mpt_status mpt__fit_check_precision(mpt_context *ctx, mpt_dtype precision) {
    if (precision == MPT_F32 || precision == MPT_F16 || precision == MPT_BF16) return MPT_OK;
    return mpt__error(ctx, DTYPE, "precision %D: expected MPT_F32, MPT_F16 or MPT_BF16", precision);
}

/* ==== Evaluation ==== */

/* Whether `target` holds class numbers for the last dimension of `output`. */
static bool mpt__fit_classifies(mpt_tensor output, mpt_tensor target) {
    return mpt_get_dtype(target) == MPT_I64 &&
        mpt_get_shape(output).rank == mpt_get_shape(target).rank + 1;
}

/* The first sample of a batch with a non-finite value in `handle`; -1: none. */
static int64_t mpt__nonfinite_sample(mpt_context *ctx, mpt_tensor handle, int64_t size) {
    const mpt__tensor *t = mpt__live(ctx, handle);
    int64_t numel = t ? mpt__tensor_numel(t) : 0;
    if (numel < size || !mpt__dtype_info[t->dtype].is_float || !mpt_is_contiguous(handle))
        return -1;
    int64_t at = mpt__first_nonfinite(ctx, t->storage, (mpt_dtype)t->dtype, t->offset, numel);
    return at < 0 ? -1 : at / (numel / size);
}

/* Says where an evaluation met its first non-finite loss: runs the batch once more. */
static MPT__NOINLINE void mpt__evaluate_tell(mpt_module net, const mpt_batch *batch,
    const mpt_fit_config *config, double loss, int64_t before) {
    mpt_context *ctx = net.context;
    int64_t inputs = mpt__nonfinite_sample(ctx, batch->x, batch->size), sample = inputs;
    if (sample < 0) {
        mpt_scope_begin(ctx);
        mpt_autocast_begin(ctx, config->precision);
        sample = mpt__nonfinite_sample(ctx, mpt_forward(net, batch->x), batch->size);
        mpt_autocast_end(ctx);
        mpt_scope_end(ctx);
    }
    const char *what = inputs >= 0 ? "inputs" : sample >= 0 ? "outputs" : "samples";
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "mpt_fit: the validation loss is %g, first in batch %lld: %s of sample %lld%s", loss,
        batch->index, what, before + (sample < 0 ? 0 : sample),
        sample < 0 ? " and those behind it" : ", counted in the loader's order, are not finite");
}

#ifndef MPTRAIN_NO_FRUGAL
/* `count` samples of a batch from number `from` on: views, for the scope that is open. */
static mpt_batch mpt__fit_part(const mpt_batch *batch, int64_t from, int64_t count) {
    mpt_batch part = *batch;
    part.size = count;
    if (count == batch->size) return part;
    part.x = mpt_slice(batch->x, 0, from, from + count, 1);
    if (batch->y.slot) part.y = mpt_slice(batch->y, 0, from, from + count, 1);
    return part;
}

/* Samples of the next part of a batch, of which `done` are done. */
static int64_t mpt__fit_part_size(
    const mpt_fit_config *config, const mpt_batch *batch, int64_t done) {
    const int64_t left = batch->size - done;
    return config->micro_batch > 0 && config->micro_batch < left ? config->micro_batch : left;
}
#endif

/* The loss of samples times their number; correct answers are added up where they have labels. */
static double mpt__evaluate_part(mpt_module net, const mpt_batch *batch,
    const mpt_fit_config *config, int64_t *correct, int64_t *labels) {
    mpt_scope_begin(net.context);
    mpt_autocast_begin(net.context, config->precision);
    mpt_tensor output = mpt_forward(net, batch->x);
    mpt_tensor loss = mpt__fit_loss(config, output, batch->y);
    mpt_autocast_end(net.context);
    double sum = mpt_item(loss) * (double)batch->size;
    if (mpt__fit_classifies(output, batch->y)) {
        mpt_tensor hits = mpt_equal(mpt_argmax(output, -1, false), batch->y);
        double count = mpt_item(mpt_sum(mpt_cast(hits, MPT_F32), MPT_ALL_DIMS, false));
        if (!mpt_failed(net.context)) *correct += (int64_t)count;
        *labels += mpt_numel(batch->y);
    }
    mpt_scope_end(net.context);
    return sum;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__evaluate_batch mpt__evaluate_part
#else
/* The same of a batch, whole or in parts. */
static double mpt__evaluate_batch(mpt_module net, const mpt_batch *batch,
    const mpt_fit_config *config, int64_t *correct, int64_t *labels) {
    double sum = 0;
    for (int64_t done = 0, size; done < batch->size && !mpt_failed(net.context); done += size) {
        size = mpt__fit_part_size(config, batch, done);
        mpt_scope_begin(net.context);
        const mpt_batch part = mpt__fit_part(batch, done, size);
        sum += mpt__evaluate_part(net, &part, config, correct, labels);
        mpt_scope_end(net.context);
    }
    return sum;
}
#endif

/* Begins another epoch where `batches` or more of the open one are taken. */
static MPT__NOINLINE void mpt__fit_rewind(mpt_context *ctx, mpt_loader loader, int64_t batches) {
    const mpt__loader *at = mpt__loader_at(ctx, loader);
    if (at && at->next >= batches) mpt_loader_reset(loader);
}

/* Evaluates a whole epoch in the config's precision and loss. The log hears where a loss is not
   finite, once: *told (may be NULL) remembers. */
static mpt_evaluation mpt__evaluate(
    mpt_module net, mpt_loader loader, const mpt_fit_config *config, bool *told) {
    mpt_context *ctx = net.context;
    mpt_evaluation evaluation;
    mpt_batch batch;
    int64_t correct = 0, labels = 0;
    double loss = 0;
    evaluation.samples = 0;
    mpt__fit_rewind(ctx, loader, 1);
    mpt__modes_begin(ctx, mpt__module_slot(ctx, net.slot), false);
    mpt_inference_begin(ctx);
    while (mpt_loader_next(loader, &batch) && !mpt_failed(ctx)) {
        double sum = mpt__evaluate_batch(net, &batch, config, &correct, &labels);
        if (told && !*told && !mpt__f64_is_finite(sum) && mpt__ok(ctx)) {
            mpt__evaluate_tell(net, &batch, config, sum / (double)batch.size, evaluation.samples);
            *told = true;
        }
        loss += sum;
        evaluation.samples += batch.size;
    }
    mpt_inference_end(ctx);
    mpt__module *found = mpt__module_at(ctx, net);
    if (found) mpt__modes_end(ctx, found);
    bool any = !mpt_failed(ctx) && evaluation.samples > 0;
    evaluation.status = ctx->base.status;
    evaluation.loss = any ? loss / (double)evaluation.samples : MPT__NAN_F64;
    evaluation.accuracy = any && labels > 0 ? (double)correct / (double)labels : MPT__NAN_F64;
    return evaluation;
}

mpt_evaluation mpt_evaluate(mpt_module net, mpt_loader loader, mpt_dtype precision) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = mpt__fit_context(net.context, loader.context, NULL);
    mpt_fit_config config = mpt_fit_config_default();
    config.precision = precision;
    mpt__fit_choose(ctx, "mpt_evaluate", &config.precision);
    if (mpt__enter(ctx, "mpt_evaluate") && mpt__module_at(ctx, net) &&
        mpt__loader_at(ctx, loader) && mpt__fit_check_precision(ctx, config.precision) == MPT_OK)
        return mpt__evaluate(net, loader, &config, NULL);
    mpt_evaluation none = {MPT_ERROR_HANDLE, MPT__NAN_F64, MPT__NAN_F64, 0};
    if (ctx) none.status = ctx->base.status;
    return none;
}

/* ==== Progress as text ==== */

/* Always `decimals` places, 6 at most, so that a line drawn over itself does not jump. */
static void mpt__fit_put_fixed(mpt__text *line, double value, int decimals) {
    char places[32]; /* behind a 1 that keeps their zeros */
    int64_t unit = 1;
    for (int i = 0; i < decimals; i++) unit *= 10;
    double magnitude = value < 0.0 ? -value : value;
    if (!mpt__f64_is_finite(value) || magnitude >= 1e9) {
        mpt__write_text(line, "%.5g", value);
        return;
    }
    int64_t scaled = (int64_t)(magnitude * (double)unit + 0.5);
    mpt__format_text(places, sizeof places, "%lld", (unit + scaled % unit));
    mpt__write_text(
        line, "%s%lld.%s", value < 0.0 && scaled > 0 ? "-" : "", (scaled / unit), places + 1);
}

/* 8 s, 1:05, 2:03:59. */
static void mpt__fit_put_time(mpt__text *line, double seconds) {
    if (!mpt__f64_is_finite(seconds) || seconds < 0.0 || seconds > 1e12) {
        mpt__write_text(line, "-");
        return;
    }
    int64_t s = (int64_t)(seconds + 0.5);
    bool hours = s >= 3600;
    if (s < 60) {
        mpt__write_text(line, "%d s", (int)s);
        return;
    }
    if (hours) mpt__write_text(line, "%lld:%d", (s / 3600), (int)(s / 600 % 6));
    mpt__write_text(
        line, "%d:%d%d", (int)(s / 60 % (hours ? 10 : 60)), (int)(s / 10 % 6), (int)(s % 10));
}

/* "Epoch 2/5 [########------------] 375/938 loss 0.1893 412 steps/s scale 65536 skipped 1
   ETA 4 s" */
static void mpt__fit_step_line(mpt__text *line, const mpt_progress *progress, bool scaled) {
    int64_t filled = progress->batch * MPT__FIT_BAR / progress->batches;
    mpt__write_text(line, "Epoch %d/%d [", progress->epoch, progress->epochs);
    for (int i = 0; i < MPT__FIT_BAR; i++) mpt__write_text(line, i < filled ? "#" : "-");
    mpt__write_text(line, "] ");
    for (int64_t power = 10; power <= progress->batches; power *= 10)
        if (progress->batch < power) mpt__write_text(line, " ");
    mpt__write_text(line, "%lld/%lld loss ", progress->batch, progress->batches);
    mpt__fit_put_fixed(line, progress->loss, 4);
    mpt__write_text(line, " %lld steps/s", (int64_t)(progress->steps_per_second + 0.5));
    if (scaled)
        mpt__write_text(line, " scale %.6g skipped %lld", progress->scale, progress->skipped_steps);
    mpt__write_text(line, " ETA ");
    mpt__fit_put_time(line, progress->eta_seconds);
}

/* "Epoch 2/5 - Loss: 0.1893 - Validation loss: 0.1702 - Accuracy: 94.81 %" */
static void mpt__fit_epoch_line(mpt__text *line, const mpt_progress *progress) {
    mpt__write_text(line, "Epoch %d/%d - Loss: ", progress->epoch, progress->epochs);
    mpt__fit_put_fixed(line, progress->loss, 4);
    if (mpt__f64_is_finite(progress->validation_loss)) {
        mpt__write_text(line, " - Validation loss: ");
        mpt__fit_put_fixed(line, progress->validation_loss, 4);
    }
    if (mpt__f64_is_finite(progress->validation_accuracy)) {
        mpt__write_text(line, " - Accuracy: ");
        mpt__fit_put_fixed(line, 100.0 * progress->validation_accuracy, 2);
        mpt__write_text(line, " %%");
    }
}

/* ==== Training ==== */

/* A training run. */
typedef struct {
#ifndef MPTRAIN_NO_RESUME
    mpt__run run; /* first: what its state is */
#endif
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_loader train;
    const mpt_fit_config *config;
    mpt_scaler scaler;      /* slot 0: none */
    int64_t skipped_before; /* by the scaler, when the run began */
    double started;         /* by the context's clock */
    double trained;         /* seconds, without validation and callbacks */
    double best;            /* validation loss, infinite before the first */
    int epochs_without_better;
    bool under_way;       /* an epoch has begun, and is not judged yet */
    bool stop;            /* asked for by the callback or by patience */
    bool guards;          /* stop_on_nan, and no scaler has the say */
    bool saved, told;     /* a checkpoint; where validation was not finite */
    int64_t steps_before; /* of earlier processes */
    int64_t lost;         /* step whose loss was the first not to be finite; 0: none */
    double others;        /* seconds that the loader of `train` waited outside the fit */
    uint32_t kept;        /* storage of weights and buffers; 0: none */
    int kept_epoch;       /* behind which they are from */
    mpt_progress progress;
    mpt_fit_result result;
} mpt__fit;

static double mpt__fit_now(const mpt__fit *fit) {
    return fit->context->base.clock.now(fit->context->base.clock.user);
}

/* The mean loss of the epoch so far, as the host knows it. */
static double mpt__fit_mean(const mpt__fit *fit) {
    mpt__scalars_look(fit->context);
    return mpt__metric_seen(fit->context, mpt__metric_find(fit->context, MPT__FIT_METRIC));
}

static mpt_scaler_stats mpt__fit_scaling(const mpt__fit *fit) {
    mpt_scaler_stats stats;
    const mpt__object *row = &fit->context->objects[MPT__SCALER].rows[fit->scaler.slot];
    const mpt__scaler *scaler = (const mpt__scaler *)row->object;
    mpt__zero(stats);
    stats.scale = 1;
    if (scaler && row->generation == fit->scaler.generation && scaler->config.enabled)
        mpt__scaler_read(fit->context, scaler, &stats);
    return stats;
}

/* What progress says about the optimizer, as far as the host knows it. */
static void mpt__fit_look_at_optimizer(mpt__fit *fit) {
    const mpt_context *ctx = fit->context;
    const mpt__object *row = &ctx->objects[MPT__OPTIMIZER].rows[fit->optimizer.slot];
    const mpt__optimizer *optimizer = (const mpt__optimizer *)row->object;
    fit->progress.lr = fit->progress.grad_norm = MPT__NAN_F64;
    if (!optimizer || row->generation != fit->optimizer.generation) return;
    const mpt__schedule *schedule = optimizer->schedule;
    fit->progress.lr = optimizer->groups[0].lr;
    if (schedule) {
        int64_t time = schedule->state.time;
        if (schedule->unit == MPT_PER_STEP)
            time += ctx->scalars[optimizer->slot[MPT__OPTIM_APPLIED]].i;
        fit->progress.lr = mpt__schedule_rate(schedule, fit->progress.lr, time);
    }
    if (fit->config->clip_norm > 0.0 || fit->config->grad_norm)
        fit->progress.grad_norm = ctx->scalars[optimizer->slot[MPT__OPTIM_NORM]].f;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__fit_steps(fit) ((fit)->progress.batches)
#else
/* Of an epoch. */
static int64_t mpt__fit_steps(const mpt__fit *fit) {
    const int64_t batches = fit->progress.batches;
    const int64_t group = fit->config->accumulate > 1 ? fit->config->accumulate : 1;
    return batches / group + (batches % group != 0);
}
#endif

/* Fills what progress and result say about speed, loss and scale. Waits for nothing, and works
   after an error, too. */
static void mpt__fit_measure(mpt__fit *fit) {
    mpt_progress *progress = &fit->progress;
    const int64_t steps = fit->result.steps, own = steps - fit->steps_before;
    int64_t left = (int64_t)progress->epochs * mpt__fit_steps(fit) - steps;
    progress->loss = mpt__fit_mean(fit);
    progress->scale = 1.0;
    if (fit->scaler.slot) {
        mpt_scaler_stats stats = mpt__fit_scaling(fit);
        int64_t skipped = stats.skipped - fit->skipped_before;
        progress->scale = stats.scale;
        progress->skipped_steps = skipped < steps ? skipped : steps; /* of complete steps */
    }
    progress->seconds = mpt__fit_now(fit) - fit->started;
    progress->steps_per_second = fit->trained > 0.0 ? (double)own / fit->trained : 0.0;
    progress->eta_seconds =
        own > 0 ? (double)(left > 0 ? left : 0) * fit->trained / (double)own : 0.0;
}

/* Tells the callback, if any; notes when it wants to stop. */
static void mpt__fit_tell(mpt__fit *fit, bool epoch_end) {
    char text[224];
    mpt__text line = mpt__text_make(text, sizeof text);
    if (!fit->config->progress) return;
    mpt__fit_measure(fit);
    mpt__fit_look_at_optimizer(fit);
    fit->progress.step = fit->result.steps;
    fit->progress.memory = mpt_memory(fit->context).total_current;
    fit->progress.epoch_end = epoch_end;
    fit->progress.text = text;
    if (epoch_end)
        mpt__fit_epoch_line(&line, &fit->progress);
    else
        mpt__fit_step_line(&line, &fit->progress, fit->scaler.slot != 0);
    if (fit->progress.seconds_waited > 0.005 * fit->trained) /* rounds to a percent */
        mpt__write_text(&line, ", %d %% waiting for data",
            (int)(100.0 * fit->progress.seconds_waited / fit->trained + 0.5));
    if (fit->config->progress(fit->config->user, &fit->progress)) return;
    fit->stop = true;
    fit->result.stopped_early = true;
}

/* nll_loss takes any numbers; of log-probabilities logsumexp is 0. Half rounds them. */
static MPT__NOINLINE void mpt__fit_check_output(mpt_context *ctx, mpt_tensor output) {
#ifdef MPTRAIN_NO_WATCH
    (void)ctx, (void)output;
#else
    if (ctx->recorder || ctx->base.log.write == mpt__log_nowhere) return; /* waits */
    mpt_no_grad_begin(ctx);
    mpt_tensor sums =
        mpt_logsumexp(mpt_cast(output, MPT_F32), mpt_get_shape(output).rank > 1, false);
    double worst = mpt_item(mpt_max(mpt_flatten(mpt_abs(sums), 0, -1), 0, false));
    mpt_no_grad_end(ctx);
    if (worst > 0.1)
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "mpt_fit: the net's outputs are no log-probabilities (the exponentials of a sample "
            "do not add up to 1), as the default loss expects: end it with "
            "mpt_nn_log_softmax, or set mpt_fit_config.loss to mpt_cross_entropy");
#endif
}

/* Forward and backward of a step, or of a part of it, whose loss counts `share` of the step's and
   is added to `total`. */
static void mpt__fit_pass(mpt__fit *fit, const mpt_batch *batch, bool first, double share,
    const mpt_tensor *total) {
    mpt_context *ctx = fit->context;
    mpt_autocast_begin(ctx, fit->config->precision);
    mpt_tensor output = mpt_forward(fit->net, batch->x);
    mpt_tensor loss = mpt__fit_loss(fit->config, output, batch->y);
    mpt_autocast_end(ctx);
    if (first && fit->result.steps == 0 && !fit->config->loss && mpt__ok(ctx))
        mpt__fit_check_output(ctx, output);
#ifndef MPTRAIN_NO_FRUGAL
    if (total) {
        if (mpt__ok(ctx) && mpt_get_dtype(loss) != MPT_F32) loss = mpt_cast(loss, MPT_F32);
        loss = mpt_mul_scalar(mpt_reshape(loss, MPT_SCALAR), share);
        mpt_no_grad_begin(ctx);
        mpt_add_(*total, loss);
        mpt_no_grad_end(ctx);
    }
#else
    (void)share;
#endif
    if (!total) mpt_metric_push(ctx, MPT__FIT_METRIC, loss);
    if (first) mpt_zero_grad(fit->optimizer);
    mpt_backward(fit->scaler.slot ? mpt_scale_loss(fit->scaler, loss) : loss);
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__fit_passes(fit, batch) (mpt__fit_pass(fit, &(batch), true, 1, NULL), 1)
#else
/* All passes of a step, which begins with a batch and may take further ones; returns how many. What
   is not all of it gives its memory back. */
static int64_t mpt__fit_passes(mpt__fit *fit, mpt_batch batch) {
    mpt_context *ctx = fit->context;
    const mpt_fit_config *config = fit->config;
    const mpt__loader *loader = mpt__loader_at(ctx, fit->train);
    int64_t samples = batch.size, batches = 1;
    while (loader && batches < config->accumulate && batch.index + batches < loader->batches)
        samples += mpt__batch_size(loader, batch.index + batches++);
    bool first = true;
    const bool whole = batches == 1 && mpt__fit_part_size(config, &batch, 0) == batch.size;
    const mpt_tensor total = whole ? mpt__null(NULL) : mpt_zeros(ctx, MPT_F32, MPT_SCALAR);
    int64_t taken = 0;
    for (; taken < batches && mpt__ok(ctx); taken++) {
        if (taken > 0 && !mpt_loader_next(fit->train, &batch)) break;
        for (int64_t done = 0, size; done < batch.size && mpt__ok(ctx); done += size) {
            size = mpt__fit_part_size(config, &batch, done);
            if (!whole) mpt_scope_begin(ctx);
            const mpt_batch part = mpt__fit_part(&batch, done, size);
            mpt__fit_pass(fit, &part, first, (double)size / (double)samples,
                whole ? NULL : &total);
            if (!whole) mpt_scope_end(ctx);
            first = false;
        }
    }
    if (!whole) mpt_metric_push(ctx, MPT__FIT_METRIC, total);
    return taken;
}
#endif

/* Returns how many batches it took. */
static int64_t mpt__fit_step(mpt__fit *fit, const mpt_batch *batch) {
    mpt_context *ctx = fit->context;
    bool scaled = fit->scaler.slot != 0;
    mpt_step_begin(ctx);
    const int64_t taken = mpt__fit_passes(fit, *batch);
    const bool clips = fit->config->clip_norm > 0.0;
    if (scaled && (clips || fit->config->grad_norm)) mpt_unscale(fit->scaler, fit->optimizer);
    if (clips)
        mpt_clip_grad_norm(fit->optimizer, fit->config->clip_norm);
    else if (fit->config->grad_norm)
        mpt_grad_norm(fit->optimizer, 2);
    if (scaled) {
        mpt_scaler_step(fit->scaler, fit->optimizer);
        mpt_scaler_update(fit->scaler);
    } else {
        mpt_step(fit->optimizer);
    }
    mpt_step_end(ctx);
    return taken;
}

/* Writes a checkpoint if due: each save_every steps, or, with 0, behind each epoch. */
static void mpt__fit_checkpoint(mpt__fit *fit, bool epoch_end) {
#ifndef MPTRAIN_NO_RESUME
    mpt_context *ctx = fit->context;
    if (!ctx->series || ctx->run != &fit->run || fit->stop || !mpt__ok(ctx)) return;
    ctx->base.op = "mpt_fit";
    mpt__series_step(ctx, epoch_end && fit->config->save_every == 0);
#else
    (void)fit, (void)epoch_end;
#endif
}

/* Whether the fit ends here, in the middle, to be gone on with. */
static bool mpt__fit_interrupted(mpt__fit *fit) {
    if (mpt_stop_requested(fit->context)) fit->result.interrupted = true;
    return fit->result.interrupted;
}

/* All batches of an epoch, fewer when the callback stops it. */
static void mpt__fit_batches(mpt__fit *fit) {
    mpt_batch batch;
    double before = mpt__fit_now(fit);
    const mpt__loader *loader = mpt__loader_at(fit->context, fit->train);
    fit->others = loader ? loader->seconds_waited - fit->progress.seconds_waited : 0.0;
    if (!fit->under_way) {
        mpt_metric_reset(fit->context, MPT__FIT_METRIC);
        fit->progress.batch = 0;
    }
    fit->under_way = true;
    while (!fit->stop && !mpt__fit_interrupted(fit) && mpt_loader_next(fit->train, &batch)) {
        fit->progress.seconds_waited = loader->seconds_waited - fit->others;
        const int64_t taken = mpt__fit_step(fit, &batch);
        if (mpt_failed(fit->context)) return;
        fit->result.steps++;
        fit->progress.batch += taken;
        if (!fit->lost && !mpt__f64_is_finite(mpt__fit_mean(fit))) fit->lost = fit->result.steps;
        fit->trained += mpt__fit_now(fit) - before;
        mpt__fit_tell(fit, false);
        mpt__fit_checkpoint(fit, false);
        before = mpt__fit_now(fit);
    }
    if (fit->stop) mpt_loader_reset(fit->train);
}

/* ==== What is kept ==== */

/* Copies a tensor to its place in the storage of what is kept, or back; returns where the next
   begins, and no more without a storage. */
static int64_t mpt__fit_move_tensor(
    mpt__fit *fit, const mpt__tensor *tensor, int64_t at, bool back) {
    mpt_context *ctx = fit->context;
    mpt_dtype dtype = (mpt_dtype)tensor->dtype;
    int64_t size = (int64_t)mpt__dtype_info[dtype].bytes, count = mpt__tensor_numel(tensor);
    int64_t there = at / size;
    if (fit->kept && back) {
        mpt__copy_elements(
            ctx, fit->kept, dtype, there, tensor->storage, dtype, tensor->offset, count);
        ctx->storages[tensor->storage].version++;
    } else if (fit->kept) {
        mpt__copy_elements(
            ctx, tensor->storage, dtype, tensor->offset, fit->kept, dtype, there, count);
    }
    return at + mpt__aligned_up(count * size, 256);
}

#ifndef MPTRAIN_NO_RESUME
/* Lets a copy of a tensor be what is kept at `at`; returns where the next begins. */
static int64_t mpt__fit_kept_at(const mpt__fit *fit, mpt__tensor *tensor, int64_t at) {
    const int64_t size = (int64_t)mpt__dtype_info[tensor->dtype].bytes;
    tensor->storage = fit->kept, tensor->offset = at / size;
    return at + mpt__aligned_up(mpt__tensor_numel(tensor) * size, 256);
}
#endif

/* Copies the net's parameters and buffers to or from their storage; returns its bytes. Each begins
   where one of the widest dtype may. */
static int64_t mpt__fit_move(mpt__fit *fit, bool back) {
    mpt_context *ctx = fit->context;
    mpt__module *root = mpt__module_slot(ctx, fit->net.slot);
    const mpt__module_parameter *row;
    int64_t bytes = 0;
    mpt__buffer buffer;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, root);
    while ((row = mpt__walk_parameter(&walk)) != NULL)
        bytes = mpt__fit_move_tensor(fit, ctx->parameters[row->parameter - 1].tensor, bytes, back);
    mpt__walk_begin(&walk, ctx, root);
    while (mpt__walk_buffer(&walk, &buffer))
        bytes = mpt__fit_move_tensor(fit, buffer.tensor, bytes, back);
    return bytes;
}

/* Whether all that the optimizer has changed is finite. */
static bool mpt__fit_is_finite(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    const mpt__optimizer *optimizer = mpt__optimizer_at(ctx, fit->optimizer);
    for (int64_t i = 0; optimizer && i < optimizer->item_count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[optimizer->items[i].parameter];
        const mpt__block *block = &ctx->blocks[parameter->block];
        if (parameter->live && parameter->has_grad &&
            mpt__first_nonfinite(ctx, block->values, (mpt_dtype)block->dtype, parameter->offset,
                parameter->numel) >= 0)
            return false;
    }
    return true;
}

/* Keeps the weights of now. */
static void mpt__fit_keep(mpt__fit *fit, int epoch) {
    mpt_context *ctx = fit->context;
    if (!fit->guards || !fit->config->restore_weights) return;
    if (mpt__freeze(ctx, mpt__module_slot(ctx, fit->net.slot)) != MPT_OK) return;
    if (!fit->kept)
        fit->kept = mpt__storage_new(
            ctx, mpt__fit_move(fit, false), MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
    if (fit->kept) mpt__fit_move(fit, false);
    fit->kept_epoch = epoch;
}

/* Ends a fit that cannot recover, with the weights of before. */
static void mpt__fit_give_up(mpt__fit *fit, int epoch) {
    mpt_context *ctx = fit->context;
    char step[64] = "", weights[64] = "";
    if (fit->kept) {
        mpt__fit_move(fit, true);
        mpt__format_text(weights, sizeof weights,
            fit->kept_epoch ? "; weights are again those of epoch %d"
                            : "; weights are again those of before",
            fit->kept_epoch);
    }
    if (fit->lost) mpt__format_text(step, sizeof step, ", since step %lld of the fit", fit->lost);
    ctx->base.op = "mpt_fit";
    mpt__error(ctx, NUMERIC,
        "the mean loss of epoch %d is %g%s%s%s; try a smaller learning rate, clip_norm or "
        "other data; mpt_anomaly_mode finds out why, stop_on_nan = false goes on",
        epoch, fit->result.train_loss, fit->lost ? "" : " and weights are not finite", step,
        weights);
}

static void mpt__fit_save(mpt__fit *fit) {
    fit->saved = true;
    mpt_save(fit->net, fit->config->checkpoint);
}

/* Validates, keeps the best weights on file, counts epochs without progress. `finite`: loss and
   weights are. */
static void mpt__fit_validate(mpt__fit *fit, bool finite) {
    const mpt_fit_config *config = fit->config;
    bool better = finite; /* without validation every epoch is the best so far */
    bool save = finite;
    if (config->validation.context) {
        mpt_evaluation evaluation = mpt__evaluate(fit->net, config->validation, config, &fit->told);
        fit->progress.validation_loss = fit->result.validation_loss = evaluation.loss;
        fit->progress.validation_accuracy = fit->result.validation_accuracy = evaluation.accuracy;
        better = evaluation.loss < fit->best;
        save = better || (finite && !(fit->best < MPT__INF_F64)); /* or there is nothing better */
        if (better) fit->best = evaluation.loss;
    }
    if (save && config->checkpoint && mpt__ok(fit->context)) mpt__fit_save(fit);
    fit->epochs_without_better = better ? 0 : fit->epochs_without_better + 1;
    if (config->patience > 0 && fit->epochs_without_better >= config->patience)
        fit->stop = fit->result.stopped_early = true;
}

/* Looks at what an epoch has left; false: it was the last one. */
static bool mpt__fit_judge(mpt__fit *fit, int epoch, bool *finite) {
    mpt_context *ctx = fit->context;
    double loss = fit->result.train_loss = mpt_metric_mean(ctx, MPT__FIT_METRIC, true);
    bool known = mpt__f64_is_finite(loss);
    if (!known && !fit->lost) fit->lost = fit->result.steps;
    *finite = known && (!(fit->guards || fit->config->checkpoint) || mpt__fit_is_finite(fit));
    if (*finite) mpt__fit_keep(fit, epoch);
    if (!known && !fit->guards)
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "mpt_fit: the mean loss of epoch %d is %g; mpt_anomaly_mode finds out why", epoch,
            loss);
    if (*finite || !fit->guards || fit->stop) return mpt__ok(ctx);
    fit->result.epochs = epoch;
    mpt__fit_tell(fit, true);
    if (mpt__ok(ctx)) mpt__fit_give_up(fit, epoch);
    return false;
}

static void mpt__fit_epoch(mpt__fit *fit, int epoch) {
    bool finite;
    fit->progress.epoch = epoch;
    mpt__fit_batches(fit);
    if (mpt_failed(fit->context) || fit->result.interrupted) return;
    if (!mpt__fit_judge(fit, epoch, &finite)) return;
    if (fit->stop) { /* in the middle: the weights of now are the last ones */
        if (fit->config->checkpoint && !fit->config->validation.context && finite)
            mpt__fit_save(fit);
        return;
    }
    fit->result.epochs = epoch;
    mpt__fit_validate(fit, finite);
    if (fit->config->schedule.context)
        mpt__schedule_epoch(fit->config->schedule,
            fit->config->validation.context ? fit->result.validation_loss : fit->result.train_loss);
    if (mpt_failed(fit->context)) return;
    mpt__fit_tell(fit, true);
    fit->under_way = false;
    mpt__fit_checkpoint(fit, true);
}

/* Handles and settings before anything is made or changed. */
static bool mpt__fit_check(mpt_context *ctx, const mpt__fit *fit) {
    const mpt_fit_config *config = fit->config;
    if (!mpt__enter(ctx, "mpt_fit") || !mpt__module_at(ctx, fit->net) ||
        !mpt__optimizer_at(ctx, fit->optimizer) || !mpt__loader_at(ctx, fit->train) ||
        mpt__fit_check_precision(ctx, config->precision) != MPT_OK)
        return false;
    if (config->validation.context && !mpt__loader_at(ctx, config->validation)) return false;
    if (config->epochs < 1)
        mpt__error(ctx, ARGUMENT, "epochs is %d; at least 1", config->epochs);
    else if (!(config->clip_norm >= 0.0))
        mpt__error(ctx, ARGUMENT, "clip_norm is %g; 0 (no clipping) or more", config->clip_norm);
    else if (config->patience < 0)
        mpt__error(ctx, ARGUMENT, "patience is %d; 0 (never) or more", config->patience);
    else if (config->save_every < 0)
        mpt__error(ctx, ARGUMENT, "save_every is %lld; 0 (each epoch) or more", config->save_every);
#ifdef MPTRAIN_NO_FRUGAL
    else if ((config->accumulate | config->micro_batch) != 0)
        mpt__error(ctx, UNSUPPORTED, "built without %s", MPT__NOT_FRUGAL);
#else
    else if (config->accumulate < 0 || config->micro_batch < 0)
        mpt__error(ctx, ARGUMENT, "accumulate is %lld, micro_batch %lld; 0 or more",
            config->accumulate, config->micro_batch);
#endif
    else if (config->patience > 0 && !config->validation.context)
        mpt__error(
            ctx, ARGUMENT, "patience counts validation losses: set config.validation to a loader");
    return mpt__ok(ctx);
}

/* What the result says, however the fit ended. */
static void mpt__fit_report(mpt__fit *fit) {
    const mpt__object *row = &fit->context->objects[MPT__LOADER].rows[fit->train.slot];
    mpt_fit_result *result = &fit->result;
    mpt__fit_measure(fit);
    if (!mpt__ok(fit->context) && row->object && row->generation == fit->train.generation)
        fit->progress.seconds_waited =
            ((const mpt__loader *)row->object)->seconds_waited - fit->others;
    if (!mpt__ok(fit->context) && fit->progress.batch > 0) result->train_loss = fit->progress.loss;
    result->skipped_steps = fit->progress.skipped_steps;
    result->seconds_waited = fit->progress.seconds_waited;
    result->seconds = fit->progress.seconds;
    result->steps_per_second = fit->progress.steps_per_second;
}

/* Whether a patient scaler skips steps of non-finite gradients, and gives up. */
static bool mpt__fit_is_scaled(const mpt__fit *fit) {
    if (!fit->scaler.slot) return false;
    mpt_scaler_config config = mpt_scaler_get_config(fit->scaler);
    return config.enabled && config.patience > 0;
}

#ifdef MPTRAIN_NO_RESUME

static bool mpt__fit_open(mpt__fit *fit) {
    return !fit->config->checkpoints ||
        mpt__reject(fit->context, UNSUPPORTED,
            "checkpoints: built without whole trainings (MPTRAIN_NO_RESUME)");
}

static void mpt__fit_close(mpt__fit *fit) { (void)fit; }

#else

/* The weights that are kept, each under its path. */
static mpt_status mpt__fit_visit_kept(mpt__state_walk *w, mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    mpt__module *root = mpt__module_slot(ctx, fit->net.slot);
    mpt_status status = ctx->base.status;
    const int number = mpt__tree_number(ctx, root);
    const mpt__module_parameter *row;
    mpt__tensor kept;
    mpt__buffer buffer;
    int64_t at = 0;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, root);
    while (status == MPT_OK && (row = mpt__walk_parameter(&walk)) != NULL) {
        const mpt__parameter *parameter = &ctx->parameters[row->parameter - 1];
        kept = *parameter->tensor;
        at = mpt__fit_kept_at(fit, &kept, at);
        status = mpt__state_kept(w, &kept, number, parameter->path);
    }
    mpt__walk_begin(&walk, ctx, root);
    while (status == MPT_OK && mpt__walk_buffer(&walk, &buffer)) {
        kept = *buffer.tensor;
        at = mpt__fit_kept_at(fit, &kept, at);
        status = mpt__state_kept(w, &kept, number, buffer.path);
    }
    return status;
}

/* What a fit needs to go on, beside what it trains. */
static mpt_status mpt__fit_visit(mpt__state_walk *w, mpt__run *run) {
    mpt__fit *fit = (mpt__fit *)(void *)run;
    mpt_fit_result *result = &fit->result;
    int64_t epochs = result->epochs, without = fit->epochs_without_better, kept = fit->kept_epoch;
    const mpt__state_row rows[] = {{"epochs", MPT__OF_I64, &epochs, false, INT32_MAX - 1},
        {"steps", MPT__OF_I64, &result->steps, false, MPT__MOST_COUNTED},
        {"batch", MPT__OF_I64, &fit->progress.batch, false, MPT__MOST_COUNTED},
        {"under_way", MPT__OF_BOOL, &fit->under_way, false, 0},
        {"stop", MPT__OF_BOOL, &fit->stop, false, 0},
        {"stopped_early", MPT__OF_BOOL, &result->stopped_early, false, 0},
        {"saved", MPT__OF_BOOL, &fit->saved, false, 0},
        {"told", MPT__OF_BOOL, &fit->told, false, 0},
        {"lost", MPT__OF_I64, &fit->lost, false, MPT__MOST_COUNTED},
        {"best", MPT__OF_F64, &fit->best, false, 0},
        {"epochs_without_better", MPT__OF_I64, &without, false, INT32_MAX - 1},
        {"kept_epoch", MPT__OF_I64, &kept, false, INT32_MAX},
        {"skipped_before", MPT__OF_I64, &fit->skipped_before, false, MPT__MOST_COUNTED},
        {"train_loss", MPT__OF_F64, &result->train_loss, false, 0},
        {"validation_loss", MPT__OF_F64, &result->validation_loss, false, 0},
        {"validation_accuracy", MPT__OF_F64, &result->validation_accuracy, false, 0}};
    w->prefix = mpt__format_text(w->name, sizeof w->name, "mptrain.fit.");
    mpt_status status = MPT__STATE_ROWS(w, rows);
    if (status == MPT_OK && fit->kept) status = mpt__fit_visit_kept(w, fit);
    if (w->mode != MPT__STATE_APPLIES || status != MPT_OK) return status;
    result->epochs = (int)epochs, fit->epochs_without_better = (int)without;
    fit->kept_epoch = (int)kept;
    fit->progress.validation_loss = result->validation_loss;
    fit->progress.validation_accuracy = result->validation_accuracy;
    return status;
}

/* Opens the folder of checkpoints, and goes on from the newest. */
static bool mpt__fit_open(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    if (!fit->config->checkpoints) return true;
    config.every = fit->config->save_every;
    config.resume = fit->config->resume;
    ctx->base.op = "mpt_fit";
    fit->run.visit = mpt__fit_visit;
    void *const before = ctx->run;
    ctx->run = &fit->run;
    if (mpt__series_open(ctx, fit->config->checkpoints, &config) == MPT_OK) return true;
    ctx->run = before;
    return false;
}

static void mpt__fit_close(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    if (ctx->run != &fit->run) return;
    ctx->base.op = "mpt_fit";
    if (ctx->series) mpt__series_close(ctx, true);
    ctx->run = NULL;
}

#endif

/* All epochs, or those that are left. */
static void mpt__fit_train(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    const mpt_fit_config *config = fit->config;
    mpt__fit_keep(fit, 0);
    if (!mpt__fit_open(fit)) return;
    if (fit->result.steps == 0) mpt__fit_rewind(ctx, fit->train, fit->progress.batches);
    fit->steps_before = fit->result.steps;
    while (fit->result.epochs < config->epochs && !fit->stop && !mpt_failed(ctx) &&
        !mpt__fit_interrupted(fit))
        mpt__fit_epoch(fit, fit->result.epochs + 1);
    if (config->checkpoint && !fit->saved && fit->result.epochs > 0 && mpt__ok(ctx) &&
        !fit->result.interrupted) {
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "mpt_fit: no epoch was finite, so %s has the weights of the last one",
            config->checkpoint);
        mpt__fit_save(fit);
    }
    mpt__fit_close(fit);
    if (mpt__ok(ctx)) mpt_synchronize(ctx);
}

static void mpt__fit_run(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    bool own_scaler = !fit->config->scaler.context && fit->config->precision == MPT_F16;
    fit->scaler = own_scaler ? mpt_grad_scaler(ctx, NULL) : fit->config->scaler;
    fit->skipped_before = fit->scaler.slot ? mpt_scaler_statistics(fit->scaler).skipped : 0;
    fit->guards = fit->config->stop_on_nan && !mpt__fit_is_scaled(fit);
    fit->started = mpt__fit_now(fit);
    fit->best = MPT__INF_F64;
    fit->progress.epochs = fit->config->epochs;
    fit->progress.batches = mpt_loader_batches(fit->train);
    mpt__module *net = mpt__module_slot(ctx, fit->net.slot);
    bool switched = !mpt__any_in_training(ctx, net);
    if (switched) mpt__modes_begin(ctx, net, true);
    mpt__fit_train(fit);
    net = switched ? mpt__module_at(ctx, fit->net) : NULL;
    if (net) mpt__modes_end(ctx, net);
    mpt__fit_report(fit);
    if (fit->kept) mpt__storage_forget(ctx, &fit->kept);
    if (own_scaler) mpt_scaler_destroy(fit->scaler);
}

mpt_fit_result mpt_fit(
    mpt_module net, mpt_optimizer optimizer, mpt_loader train, const mpt_fit_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_fit_config chosen = config ? *config : mpt_fit_config_default();
    mpt__fit fit;
    mpt__zero(fit);
    fit.context = mpt__fit_context(net.context, optimizer.context, train.context);
    fit.net = net, fit.optimizer = optimizer, fit.train = train;
    mpt__fit_choose(fit.context, "mpt_fit", &chosen.precision);
    fit.config = &chosen;
    fit.result = mpt__fit_nothing();
    fit.progress.validation_loss = fit.progress.validation_accuracy = MPT__NAN_F64;
    if (mpt__fit_check(fit.context, &fit)) {
        mpt__optimizer *const updates = mpt__optimizer_at(fit.context, optimizer);
        const bool refuses = updates->refuses_nonfinite;
        updates->refuses_nonfinite = false; /* a fit ends by its own rules, and says more */
        mpt__fit_run(&fit);
        const mpt__object *row = &fit.context->objects[MPT__OPTIMIZER].rows[optimizer.slot];
        if (row->object == updates && row->generation == optimizer.generation)
            updates->refuses_nonfinite = refuses; /* it may have been destroyed on the way */
    }
    fit.result.status = fit.context ? fit.context->base.status : MPT_ERROR_HANDLE;
    return fit.result;
}

#endif /* MPTRAIN_NO_FIT */

#endif
