/* watched.h - what mnist.c tells a report and a journal about its training, if asked to. */
#ifndef WATCHED_H
#define WATCHED_H

#include "common.h"
#include "settings.h"

#define MPTRAIN_TOOLS_IMPLEMENTATION
#define MPTRAIN_TOOLS_STATIC
#include "tools/mptrain_tools.h"

enum { PROFILED = 20 }; /* how many steps tell the report where their time goes */

typedef struct watched {
    mpt_report *report;
    mpt_journal *journal;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_graph graph;
    mpt_dtype autocast;
    bool on;
} watched;

static inline watched watched_open(const settings *s, mpt_module net, mpt_optimizer optimizer,
                                   mpt_scaler scaler) {
    mpt_context *ctx = net.context;
    watched w;
    memset(&w, 0, sizeof w);
    w.net = net, w.optimizer = optimizer, w.scaler = scaler;
    w.autocast = precisions[s->precision].autocast;
    w.on = s->report || s->tensorboard;
    if (!w.on) return w;
    mpt_tensor x = mpt_zeros(ctx, precisions[s->precision].batch, MPT_SHAPE(s->batch, 1, 28, 28));
    mpt_autocast_begin(ctx, w.autocast);
    w.graph = mpt_trace(net, &x, 1);
    mpt_autocast_end(ctx);
    mpt_release(x);
    mpt_report_config rc = mpt_report_config_default();
    mpt_journal_config jc = mpt_journal_config_default();
    rc.title = "MNIST";
    jc.tensorboard = s->tensorboard;
    if (s->report) w.report = mpt_report_open(s->report, &rc);
    if (s->tensorboard) w.journal = mpt_journal_open(&jc);
    if (w.report) mpt_report_net(w.report, net, w.graph);
    if (w.journal) mpt_journal_graph(w.journal, w.graph);
    return w;
}

/* Behind each step; an epoch's end is told like a step's. */
static inline void watched_step(watched *w, const progress *bar) {
    mpt_context *ctx = w->net.context;
    mpt_progress p;
    if (!w->on) return;
    memset(&p, 0, sizeof p);
    const mpt_scaler_stats scaling = mpt_scaler_statistics(w->scaler);
    p.step = bar->steps, p.epochs = (int)bar->epochs, p.batches = bar->batches;
    p.epoch = (int)((bar->steps - 1) / bar->batches + 1);
    p.batch = (bar->steps - 1) % bar->batches + 1;
    p.epoch_end = p.batch == p.batches;
    p.loss = p.epoch_end ? bar->loss : mpt_metric_mean(ctx, "loss", false);
    p.validation_loss = p.validation_accuracy = p.grad_norm = NAN;
    p.scale = scaling.scale, p.skipped_steps = scaling.skipped;
    p.seconds = bar->seconds, p.steps_per_second = progress_speed(bar);
    p.eta_seconds = (double)(bar->epochs * bar->batches - bar->steps) / p.steps_per_second;
    p.lr = mpt_get_lr(w->optimizer, 0);
    p.memory = mpt_memory(ctx).total_current;
    mpt_profile_config profile = mpt_profile_config_default();
    profile.spans = 20000; /* from which the report has memory over a step */
    if (w->report && p.step == PROFILED) mpt_profile_begin(ctx, &profile);
    if (w->report && p.step == 2 * PROFILED) {
        mpt_profile_end(ctx);
        mpt_report_profile(w->report, ctx);
    }
    mpt_report_fit(w->report, &p);
    mpt_journal_fit(w->journal, &p);
    if (!p.epoch_end) return;
    if (w->report) mpt_report_net(w->report, w->net, w->graph);
    if (w->journal) mpt_journal_module(w->journal, p.step, w->net, false);
}

/* What the net takes each digit for; then the last writes. False where a file was not written. */
static inline bool watched_close(watched *w, mpt_loader tests) {
    int64_t counts[100] = {0};
    mpt_batch b;
    mpt_context *ctx = w->net.context;
    if (!w->on) return true;
    mpt_eval(w->net);
    mpt_inference_begin(ctx);
    while (w->report && mpt_loader_next(tests, &b)) {
        mpt_scope_begin(ctx);
        mpt_autocast_begin(ctx, w->autocast);
        mpt_confusion(mpt_forward(w->net, b.x), b.y, counts, 10);
        mpt_autocast_end(ctx);
        mpt_scope_end(ctx);
    }
    mpt_inference_end(ctx);
    mpt_train(w->net);
    if (w->report) mpt_report_confusion(w->report, counts, 10);
    const mpt_status report = mpt_report_close(w->report);
    return mpt_journal_close(w->journal) == MPT_OK && report == MPT_OK;
}

#endif
