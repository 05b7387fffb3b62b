/* mnist.c - trains a classifier of handwritten digits, 784-128-64-10, in mixed precision.
 *
 *   make mnist                            fp16 with loss scaling
 *   make mnist ARGS="--precision bf16"    or fp32, or half: parameters, too, in fp16
 *   make mnist ARGS=--compare             all four, and what each costs and saves
 *   make mnist ARGS="--checkpoint run"    goes on where it was when it was stopped or killed
 *   make mnist ARGS="--report mnist.html --tensorboard runs"    pages that show it
 *
 * The weights go to mnist.safetensors; the example `digits` shows what they can do.
 * test arguments: --subset 1280 --epochs 1 --checkpoint run --save-every 8 --quiet
 * test arguments: --subset 1280 --epochs 2 --checkpoint run --save-every 8
 * test arguments: --subset 12800 --epochs 2 --json mnist.json --report r.html --tensorboard runs */
#define EXAMPLE_GOES_ON
#include "common.h"
#include "settings.h"
#include "watched.h"

enum { OVERFIT_PASSES = 100, LARGE_BATCH = 4096 };

static mpt_optimizer make_optimizer(mpt_module net, const settings *s) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    sgd.lr = s->lr > 0.0 ? s->lr : 0.01;
    adamw.lr = s->lr > 0.0 ? s->lr : 0.001;
    return s->optimizer == 0 ? mpt_sgd(net, &sgd) : mpt_adamw(net, &adamw);
}

/* Trains, tests and, unless it is one of a comparison, saves. Returns what main shall return. */
static int train(mpt_context *ctx, const settings *s, run_report *report) {
    mpt_dtype autocast = precisions[s->precision].autocast;
    data_sets data = data_open(ctx, s->data);
    int64_t digits = s->overfit ? s->batch : s->subset;
    mpt_dataset digits_used = digits > 0 ? mpt_subset(data.train, 0, digits) : data.train;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = s->batch;
    lc.shuffle = !s->overfit;
    lc.dtype = precisions[s->precision].batch;
    mpt_loader loader = mpt_loader_create(ctx, digits_used, &lc);

    mpt_module net =
        mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 784, 128), mpt_nn_relu(ctx),
                       mpt_nn_linear(ctx, 128, 64), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 64, 10),
                       mpt_nn_log_softmax(ctx, -1), MPT_END);
    if (precisions[s->precision].parameters != MPT_F32)
        mpt_half(net, precisions[s->precision].parameters);
    mpt_optimizer optimizer = make_optimizer(net, s);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = precisions[s->precision].scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    if (mpt_failed(ctx)) return fail_with_error("mnist", ctx);
    snprintf(report->data, sizeof report->data, "%s", data.name);
    if (!s->quiet && !s->compare) report_start(report, ctx, precisions[s->precision].batch);

    int64_t batches = mpt_loader_batches(loader) * (s->overfit ? OVERFIT_PASSES : 1);
    char label[32];
    snprintf(label, sizeof label, "%s@%lld ", report->precision, (long long)s->batch);
    progress bar = progress_begin(s->compare ? label : "", !s->quiet, s->epochs, batches);
    progress_resume(&bar, ctx);
    mpt_memory_reset_peak(ctx);
    watched w = watched_open(s, net, optimizer, scaler);
    while (progress_goes_on(&bar, ctx)) {
        mpt_batch b;
        if (!mpt_loader_next(loader, &b)) continue; /* the next call begins an epoch */
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, autocast);
        mpt_tensor loss = mpt_nll_loss(mpt_forward(net, b.x), b.y, NULL);
        mpt_autocast_end(ctx);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
        watched_step(&w, &bar);
    }
    const int status = progress_end(&bar, ctx, "mnist");
    if (status != 0) return status;
    report->train_loss = bar.loss;
    report->seconds = seconds_now() - bar.started;
    report->epoch_seconds = bar.fastest;
    report->steps_per_second = progress_speed(&bar);
    report->skipped_steps = mpt_scaler_statistics(scaler).skipped;
    report->loss_scale = mpt_get_scale(scaler);
    report->parameters = mpt_parameter_numel(net);
    report_memory(report, ctx);

    lc.shuffle = false;
    mpt_loader tests = mpt_loader_create(ctx, s->overfit ? digits_used : data.test, &lc);
    report->test_accuracy = mpt_evaluate(net, tests, autocast).accuracy;
    if (!watched_close(&w, tests)) return fail("mnist", EXIT_BAD_INPUT, "cannot write the report");
    if (!s->compare && !s->overfit) mpt_save(net, "mnist.safetensors");
    return mpt_failed(ctx) ? fail_with_error("mnist", ctx) : 0;
}

static int run(const settings *s, run_report *report) {
    mpt_config config = default_config(s->quiet ? NULL : "mnist");
    config.seed = (uint64_t)s->seed;
    config.threads = (int)s->threads;
    config.device = (mpt_device)s->device;
    report->precision = precisions[s->precision].name;
    report->optimizer = s->optimizer == 0 ? "sgd" : "adamw";
    report->epochs = s->epochs;
    report->batch = s->batch;
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("mnist", ctx);
    int status = train(ctx, s, report);
    mpt_destroy(ctx);
    return status;
}

/* Every precision from the same seed, at the batch asked for and at a large one. */
static int compare(settings s, run_report *reports, int *count) {
    const int64_t batches[2] = {s.batch, LARGE_BATCH};
    for (int large = 0; large < (s.batch < LARGE_BATCH ? 2 : 1); large++) {
        s.batch = batches[large];
        for (int p = 0; p < PRECISIONS; p++) {
            s.precision = p;
            int status = run(&s, &reports[*count]);
            if (status != 0) return status;
            (*count)++;
        }
    }
    printf("Data: %s\n", reports[0].data);
    for (int i = 0; i < *count; i += PRECISIONS) report_table(&reports[i], PRECISIONS);
    return 0;
}

int main(int argc, char **argv) {
    run_report reports[2 * PRECISIONS];
    settings s = settings_default();
    char error[256];
    int count = 0, status = 0;
    memset(reports, 0, sizeof reports);
    if (!settings_parse(&s, argc, argv, error, sizeof error))
        return fail("mnist", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("mnist", settings_rows, SETTINGS_ROWS, stdout), 0;
    FILE *json = s.json ? fopen(s.json, "w") : NULL;
    if (s.json && !json) return fail("mnist", EXIT_BAD_INPUT, "%s: cannot be written", s.json);
    status = s.compare ? compare(s, reports, &count) : run(&s, &reports[count++]);
    if (status == 0 && !s.compare)
        printf("%s accuracy: %.2f %%\n", s.overfit ? "One batch" : "Test",
               100.0 * reports[0].test_accuracy);
    if (json && status == 0 && !json_write(json, reports, count))
        status = fail("mnist", EXIT_BAD_INPUT, "%s: cannot be written", s.json);
    if (json && fclose(json) != 0 && status == 0)
        status = fail("mnist", EXIT_BAD_INPUT, "%s: cannot be written", s.json);
    return status;
}
