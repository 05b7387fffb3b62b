/* ----
 * tools/precisions.c: the same training in several precisions.
 * ---- */
#ifndef MPT__PRECISIONS_INCLUDED
#define MPT__PRECISIONS_INCLUDED

#include "diagnose.c"

/* ==== Precisions side by side ==== */

enum { MPT__TOOLS_STEP_TIMES = 512 };

typedef struct mpt__tools_way {
    const char *name;
    mpt_dtype autocast, weights; /* MPT_F32: none, as they are */
    bool scaled;
} mpt__tools_way;

static const mpt__tools_way mpt__tools_ways[MPT_PRECISION_RUNS] = {
    {"fp32", MPT_F32, MPT_F32, false}, {"fp16", MPT_F16, MPT_F32, true},
    {"bf16", MPT_BF16, MPT_F32, false}, {"half fp16", MPT_F32, MPT_F16, true},
    {"half bf16", MPT_F32, MPT_BF16, false}};

static double mpt__tools_way_step(mpt_context *ctx, const mpt__tools_way *way,
    const mpt_training *training, mpt_module net, mpt_optimizer optimizer, mpt_scaler scaler,
    const mpt_batch *b) {
    mpt_step_begin(ctx);
    if (way->autocast != MPT_F32) mpt_autocast_begin(ctx, way->autocast);
    const bool floats = mpt_get_dtype(b->x) == MPT_F32 && way->weights != MPT_F32;
    const mpt_tensor out = mpt_forward(net, floats ? mpt_cast(b->x, way->weights) : b->x);
    const mpt_tensor loss =
        training->loss ? training->loss(out, b->y, training->user) : mpt_nll_loss(out, b->y, NULL);
    if (way->autocast != MPT_F32) mpt_autocast_end(ctx);
    mpt_zero_grad(optimizer);
    mpt_backward(mpt_scale_loss(scaler, loss));
    mpt_scaler_step(scaler, optimizer);
    mpt_scaler_update(scaler);
    const double value = mpt_item(loss); /* waits for the step, which is timed */
    mpt_step_end(ctx);
    return value;
}

static void mpt__tools_way_run(mpt_context *ctx, const mpt__tools_way *way,
    const mpt_training *training, int64_t steps, mpt_precision_run *run) {
    double times[MPT__TOOLS_STEP_TIMES];
    int64_t counts[MPT_PRECISION_POINTS] = {0};
    mpt_scaler_config sc = mpt_scaler_config_default();
    mpt_batch b;
    int n = 0;
    sc.enabled = way->scaled;
    const mpt_module net = training->net(ctx, training->user);
    if (way->weights != MPT_F32) mpt_half(net, way->weights);
    const mpt_optimizer optimizer = training->optimizer(net, training->user);
    const mpt_loader loader = training->loader(ctx, training->user);
    const mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    for (int64_t i = 0; i < steps && !mpt_failed(ctx); i++) {
        if (!mpt_loader_next(loader, &b) && !mpt_loader_next(loader, &b)) break;
        const double begin = mpt__tools_seconds();
        const double loss = mpt__tools_way_step(ctx, way, training, net, optimizer, scaler, &b);
        const double time = mpt__tools_seconds() - begin;
        const int64_t point = i * MPT_PRECISION_POINTS / steps;
        run->loss[point] += loss, counts[point]++;
        if (n == MPT__TOOLS_STEP_TIMES) continue; /* enough for a median */
        int at = n++;
        for (; at > 0 && times[at - 1] > time; at--) times[at] = times[at - 1];
        times[at] = time;
    }
    for (int i = 0; i < MPT_PRECISION_POINTS; i++)
        run->loss[i] = counts[i] ? run->loss[i] / (double)counts[i] : (double)NAN;
    run->seconds = n ? times[n / 2] : 0, run->peak = mpt_memory(ctx).total_peak;
    run->skipped = mpt_scaler_statistics(scaler).skipped;
    run->scale = mpt_failed(ctx) ? 1 : mpt_get_scale(scaler);
    run->status = mpt_error_code(ctx);
}

size_t mpt_compare_precisions(const mpt_training *training, const mpt_config *config, int64_t steps,
    mpt_precision_run runs[MPT_PRECISION_RUNS], char *text, size_t capacity) {
    mpt__tools_note note = mpt__tools_note_begin(text, capacity);
    if (runs) memset(runs, 0, MPT_PRECISION_RUNS * sizeof *runs);
    if (!runs || !training || !training->net || !training->optimizer || !training->loader ||
        steps < 5)
        return 0;
    mpt__tools_note_add(&note, "%-10s %9s %9s %9s %9s %9s %9s %8s %8s %8s\n", "", "loss 20 %",
        "40 %", "60 %", "80 %", "100 %", "ms/step", "MB", "skipped", "scale");
    for (int i = 0; i < MPT_PRECISION_RUNS; i++) {
        mpt_context *ctx = mpt_create(config);
        mpt_precision_run *run = &runs[i];
        run->name = mpt__tools_ways[i].name, run->status = MPT_ERROR_ARGUMENT;
        if (ctx) mpt__tools_way_run(ctx, &mpt__tools_ways[i], training, steps, run);
        mpt__tools_note_add(&note, "%-10s", run->name);
        for (int k = 0; k < MPT_PRECISION_POINTS && run->status == MPT_OK; k++)
            mpt__tools_note_add(&note, " %9.4f", run->loss[k]);
        if (run->status == MPT_OK)
            mpt__tools_note_add(&note, " %9.3f %8.1f %8lld %8.4g\n", 1e3 * run->seconds,
                (double)run->peak / 1e6, (long long)run->skipped, run->scale);
        else
            mpt__tools_note_add(&note, " %s\n", ctx ? mpt_error(ctx) : mpt_error(NULL));
        mpt_destroy(ctx);
    }
    return note.length;
}

#endif
