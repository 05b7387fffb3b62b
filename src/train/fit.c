/* ------------------------
 * train/fit.c: the short road: the training loop and the evaluation loop as one call each.
 *
 * Nothing here can do what a loop by hand could not: only public calls are made. State lies on the
 * stack, so a steady-state step makes no call to the allocator.
 * ---------------------- */
#ifndef MPT__TRAIN_FIT_INCLUDED
#define MPT__TRAIN_FIT_INCLUDED

#include "train/schedule.c"
#include "data/loader.c"
#include "train/checkpoint.c"

mpt_fit_config mpt_fit_config_default(void) {
    mpt_fit_config config;
    mpt__zero(config);
    config.epochs = 5;
    config.precision = MPT_F32;
    return config;
}

/* The context of the first handle that has one. */
static mpt_context *mpt__fit_context(mpt_context *a, mpt_context *b, mpt_context *c) {
    return a ? a : b ? b : c;
}

#ifdef MPTRAIN_NO_FIT

static mpt_status mpt__fit_missing(mpt_context *ctx, const char *call) {
    if (!mpt__enter(ctx, call)) return mpt__status_of(ctx);
    return mpt__error(ctx, UNSUPPORTED,
                      "built without fit (MPTRAIN_NO_FIT): write the loop by hand");
}

mpt_fit_result mpt_fit(mpt_module net, mpt_optimizer optimizer, mpt_loader train,
                       const mpt_fit_config *config) {
    mpt_fit_result result;
    (void)config;
    mpt__zero(result);
    result.status = mpt__fit_missing(
        mpt__fit_context(net.context, optimizer.context, train.context), "mpt_fit");
    return result;
}

mpt_evaluation mpt_evaluate(mpt_module net, mpt_loader loader, mpt_dtype precision) {
    mpt_evaluation evaluation;
    (void)precision;
    mpt__zero(evaluation);
    evaluation.status =
        mpt__fit_missing(mpt__fit_context(net.context, loader.context, NULL), "mpt_evaluate");
    return evaluation;
}

#else

#define MPT__FIT_METRIC "mpt_fit.loss" /* the running mean, beside the user's metrics */
#define MPT__FIT_BAR 20                /* characters of the progress bar */

/* The caller's loss, nll_loss if there is none. */
static mpt_tensor mpt__fit_loss(const mpt_fit_config *config, mpt_tensor output,
                                mpt_tensor target) {
    return config->loss ? config->loss(output, target, config->user)
                        : mpt_nll_loss(output, target, NULL);
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

/* The loss of a batch times its samples; its correct answers are added up where it has labels. */
static double mpt__evaluate_batch(mpt_module net, const mpt_batch *batch,
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

/* Begins another epoch where `batches` or more of the open one have been taken. */
static MPT__NOINLINE void mpt__fit_rewind(mpt_context *ctx, mpt_loader loader, int64_t batches) {
    const mpt__loader *at = mpt__loader_at(ctx, loader);
    if (at && at->next >= batches) mpt_loader_reset(loader);
}

/* Evaluates a whole epoch; precision and loss are the config's. */
static mpt_evaluation mpt__evaluate(mpt_module net, mpt_loader loader,
                                    const mpt_fit_config *config) {
    mpt_context *ctx = net.context;
    mpt_evaluation evaluation;
    mpt_batch batch;
    int64_t correct = 0, labels = 0;
    double loss = 0;
    evaluation.samples = 0;
    bool training = mpt_is_training(net);
    mpt__fit_rewind(ctx, loader, 1);
    mpt_eval(net);
    mpt_inference_begin(ctx);
    while (mpt_loader_next(loader, &batch) && !mpt_failed(ctx)) {
        loss += mpt__evaluate_batch(net, &batch, config, &correct, &labels);
        evaluation.samples += batch.size;
    }
    mpt_inference_end(ctx);
    if (training) mpt_train(net);
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
        return mpt__evaluate(net, loader, &config);
    mpt_evaluation none = {MPT_ERROR_HANDLE, MPT__NAN_F64, MPT__NAN_F64, 0};
    if (ctx) none.status = ctx->base.status;
    return none;
}

/* ==== Progress as text ==== */

/* Always `decimals` places (at most 6), so that a line which is drawn over itself does not jump. */
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
    mpt__write_text(line, "%s%lld.%s", value < 0.0 && scaled > 0 ? "-" : "", (scaled / unit),
                    places + 1);
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
    mpt__write_text(line, "%d:%d%d", (int)(s / 60 % (hours ? 10 : 60)), (int)(s / 10 % 6),
                    (int)(s % 10));
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
    bool stop; /* asked for by the callback or by patience */
    mpt_progress progress;
    mpt_fit_result result;
} mpt__fit;

static double mpt__fit_now(const mpt__fit *fit) {
    return fit->context->base.clock.now(fit->context->base.clock.user);
}

/* Fills what progress and result say about speed, loss and scale. Waits for nothing. */
static void mpt__fit_measure(mpt__fit *fit) {
    mpt_progress *progress = &fit->progress;
    int64_t steps = fit->result.steps;
    int64_t left = (int64_t)progress->epochs * progress->batches - steps;
    progress->loss = mpt_metric_mean(fit->context, MPT__FIT_METRIC, false);
    progress->scale = 1.0;
    if (fit->scaler.slot) {
        mpt_scaler_stats stats = mpt_scaler_statistics(fit->scaler);
        progress->scale = stats.scale;
        progress->skipped_steps = stats.skipped - fit->skipped_before;
    }
    progress->seconds = mpt__fit_now(fit) - fit->started;
    progress->steps_per_second = fit->trained > 0.0 ? (double)steps / fit->trained : 0.0;
    progress->eta_seconds =
        steps > 0 ? (double)(left > 0 ? left : 0) * fit->trained / (double)steps : 0.0;
}

/* Tells the callback, if there is one; notes when it wants to stop. */
static void mpt__fit_tell(mpt__fit *fit, bool epoch_end) {
    char text[224];
    mpt__text line = mpt__text_make(text, sizeof text);
    if (!fit->config->progress) return;
    mpt__fit_measure(fit);
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

static void mpt__fit_step(mpt__fit *fit, const mpt_batch *batch) {
    mpt_context *ctx = fit->context;
    bool scaled = fit->scaler.slot != 0;
    mpt_step_begin(ctx);
    mpt_autocast_begin(ctx, fit->config->precision);
    mpt_tensor output = mpt_forward(fit->net, batch->x);
    mpt_tensor loss = mpt__fit_loss(fit->config, output, batch->y);
    mpt_autocast_end(ctx);
    mpt_metric_push(ctx, MPT__FIT_METRIC, loss);
    mpt_zero_grad(fit->optimizer);
    mpt_backward(scaled ? mpt_scale_loss(fit->scaler, loss) : loss);
    if (scaled && fit->config->clip_norm > 0.0) mpt_unscale(fit->scaler, fit->optimizer);
    if (fit->config->clip_norm > 0.0) mpt_clip_grad_norm(fit->optimizer, fit->config->clip_norm);
    if (scaled) {
        mpt_scaler_step(fit->scaler, fit->optimizer);
        mpt_scaler_update(fit->scaler);
    } else {
        mpt_step(fit->optimizer);
    }
    mpt_step_end(ctx);
}

/* All batches of an epoch, fewer when the callback stops it. */
static void mpt__fit_batches(mpt__fit *fit) {
    mpt_batch batch;
    double before = mpt__fit_now(fit);
    const mpt__loader *loader = mpt__loader_at(fit->context, fit->train);
    double others = loader ? loader->seconds_waited - fit->progress.seconds_waited : 0.0;
    mpt_metric_reset(fit->context, MPT__FIT_METRIC);
    fit->progress.batch = 0;
    while (!fit->stop && mpt_loader_next(fit->train, &batch)) {
        fit->progress.seconds_waited = loader->seconds_waited - others;
        mpt__fit_step(fit, &batch);
        if (mpt_failed(fit->context)) return;
        fit->result.steps++;
        fit->progress.batch++;
        fit->trained += mpt__fit_now(fit) - before;
        mpt__fit_tell(fit, false);
        before = mpt__fit_now(fit);
    }
    if (fit->stop) mpt_loader_reset(fit->train);
}

/* Validates, keeps the best weights on file and counts epochs without progress. */
static void mpt__fit_validate(mpt__fit *fit) {
    const mpt_fit_config *config = fit->config;
    /* without validation every epoch is the best so far, but one that ends in NaN */
    bool better = mpt__f64_is_finite(fit->result.train_loss);
    if (config->validation.context) {
        mpt_evaluation evaluation = mpt__evaluate(fit->net, config->validation, config);
        fit->progress.validation_loss = fit->result.validation_loss = evaluation.loss;
        fit->progress.validation_accuracy = fit->result.validation_accuracy = evaluation.accuracy;
        better = evaluation.loss < fit->best;
        if (better) fit->best = evaluation.loss;
    }
    if (better && config->checkpoint) mpt_save(fit->net, config->checkpoint);
    fit->epochs_without_better = better ? 0 : fit->epochs_without_better + 1;
    if (config->patience > 0 && fit->epochs_without_better >= config->patience)
        fit->stop = fit->result.stopped_early = true;
}

static void mpt__fit_epoch(mpt__fit *fit, int epoch) {
    fit->progress.epoch = epoch;
    mpt__fit_batches(fit);
    if (mpt_failed(fit->context)) return;
    fit->result.train_loss = mpt_metric_mean(fit->context, MPT__FIT_METRIC, true);
    bool finite = mpt__f64_is_finite(fit->result.train_loss);
    if (!finite)
        mpt__log(&fit->context->base, MPT_LOG_WARNING,
                 "mpt_fit: the mean loss of epoch %d is %g; mpt_anomaly_mode finds out why", epoch,
                 fit->result.train_loss);
    if (fit->stop) { /* in the middle: the weights of now are the last ones */
        if (fit->config->checkpoint && !fit->config->validation.context && finite)
            mpt_save(fit->net, fit->config->checkpoint);
        return;
    }
    fit->result.epochs = epoch;
    mpt__fit_validate(fit);
    if (fit->config->schedule.context)
        mpt__schedule_epoch(fit->config->schedule, fit->config->validation.context
                                                       ? fit->result.validation_loss
                                                       : fit->result.train_loss);
    if (!mpt_failed(fit->context)) mpt__fit_tell(fit, true);
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
    else if (config->patience > 0 && !config->validation.context)
        mpt__error(ctx, ARGUMENT,
                   "patience counts validation losses: set config.validation to a loader");
    return mpt__ok(ctx);
}

static void mpt__fit_run(mpt__fit *fit) {
    mpt_context *ctx = fit->context;
    bool own_scaler = !fit->config->scaler.context && fit->config->precision == MPT_F16;
    fit->scaler = own_scaler ? mpt_grad_scaler(ctx, NULL) : fit->config->scaler;
    fit->skipped_before = fit->scaler.slot ? mpt_scaler_statistics(fit->scaler).skipped : 0;
    fit->started = mpt__fit_now(fit);
    fit->best = mpt__f64_from_bits(UINT64_C(0x7ff0000000000000));
    fit->progress.epochs = fit->config->epochs;
    fit->progress.batches = mpt_loader_batches(fit->train);
    mpt_train(fit->net);
    mpt__fit_rewind(ctx, fit->train, fit->progress.batches);
    for (int epoch = 1; epoch <= fit->config->epochs && !fit->stop && !mpt_failed(ctx); epoch++)
        mpt__fit_epoch(fit, epoch);
    if (!mpt_failed(ctx)) {
        mpt_synchronize(ctx);
        mpt__fit_measure(fit);
    }
    fit->result.skipped_steps = fit->progress.skipped_steps;
    fit->result.seconds_waited = fit->progress.seconds_waited;
    fit->result.seconds = mpt__fit_now(fit) - fit->started;
    fit->result.steps_per_second =
        fit->trained > 0.0 ? (double)fit->result.steps / fit->trained : 0.0;
    if (own_scaler) mpt_scaler_destroy(fit->scaler);
}

mpt_fit_result mpt_fit(mpt_module net, mpt_optimizer optimizer, mpt_loader train,
                       const mpt_fit_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_fit_config chosen = config ? *config : mpt_fit_config_default();
    mpt__fit fit;
    mpt__zero(fit);
    fit.context = mpt__fit_context(net.context, optimizer.context, train.context);
    fit.net = net, fit.optimizer = optimizer, fit.train = train;
    mpt__fit_choose(fit.context, "mpt_fit", &chosen.precision);
    fit.config = &chosen;
    fit.result.train_loss = fit.result.validation_loss = MPT__NAN_F64;
    fit.result.validation_accuracy = MPT__NAN_F64;
    fit.progress.validation_loss = fit.progress.validation_accuracy = MPT__NAN_F64;
    if (mpt__fit_check(fit.context, &fit)) mpt__fit_run(&fit);
    fit.result.status = fit.context ? fit.context->base.status : MPT_ERROR_HANDLE;
    return fit.result;
}

#endif /* MPTRAIN_NO_FIT */

#endif
