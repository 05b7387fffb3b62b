/* trainings.h: small trainings of every kind, made the same way each time, whose state tells
   whether one that was stopped went on as one that never was. After the library's header and
   torture.h. */
#ifndef TORTURE_TRAININGS_H
#define TORTURE_TRAININGS_H

enum { FEATURES = 6, CLASSES = 3, SAMPLES = 50, BATCH = 8, OPTIMIZERS = 7 };
enum { FP32, FP16, BF16, PURE_FP16, PURE_BF16, PRECISIONS };

static const char *const precision_names[PRECISIONS] = {"fp32", "fp16", "bf16", "pure fp16",
                                                        "pure bf16"};
static const char *const optimizer_names[OPTIMIZERS] = {"sgd",     "adam",     "adamw", "rmsprop",
                                                        "adagrad", "adadelta", "lion"};

/* How to train. Threads and workers may differ between two parts of one training. */
typedef struct plan {
    int precision, optimizer, threads, workers, accumulate, width;
    bool captured, averaged, scheduled;
    int overflow; /* number of the micro-batch that overflows; -1: none */
    uint64_t seed;
} plan;

typedef struct training {
    plan how;
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_ema ema;
    mpt_loader loader;
    mpt_captured captured;
} training;

static mpt_io training_io; /* what a training reads and writes files by; all NULL: as built in */

static mpt_optimizer make_optimizer(mpt_module net, int kind) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    sgd.lr = 0.05, sgd.momentum = 0.9, adam.lr = 0.01;
    switch (kind) {
    case 0:
        return mpt_sgd(net, &sgd);
    case 1:
        return mpt_adam(net, &adam);
    case 2:
        return mpt_adamw(net, &adam);
    case 3:
        return mpt_rmsprop(net, NULL);
    case 4:
        return mpt_adagrad(net, NULL);
    case 5:
        return mpt_adadelta(net, NULL);
    default:
        return mpt_lion(net, NULL);
    }
}

static mpt_loader make_loader(mpt_context *c, int workers) {
    static float inputs[SAMPLES][FEATURES];
    static int64_t targets[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i % CLASSES;
        for (int k = 0; k < FEATURES; k++)
            inputs[i][k] = (float)((i * 7 + k * 3) % 11) / 5.0f - 1.0f + (float)(k == i % CLASSES);
    }
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    memory.count = SAMPLES, memory.dtype = MPT_F32, memory.shape = MPT_SHAPE(FEATURES);
    memory.inputs = inputs, memory.targets = targets;
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = BATCH, loading.shuffle = true, loading.workers = workers;
    return mpt_loader_create(c, mpt_memory_dataset(c, &memory), &loading);
}

/* Forward and backward of a micro-batch, and the update where every batch has one. */
static mpt_status micro_batch(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const training *t = (const training *)user;
    const int precision = t->how.precision;
    const bool pure = precision >= PURE_FP16;
    mpt_step_begin(c);
    if (!pure)
        mpt_autocast_begin(c, precision == FP16 ? MPT_F16 : precision == BF16 ? MPT_BF16 : MPT_F32);
    if (pure) x = mpt_cast(x, precision == PURE_FP16 ? MPT_F16 : MPT_BF16);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, x), y, NULL);
    if (!pure) mpt_autocast_end(c);
    loss = mpt_mul_scalar(loss, 1.0 / t->how.accumulate);
    if (t->how.accumulate == 1) mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    if (t->how.accumulate == 1) {
        mpt_scaler_step(t->scaler, t->optimizer);
        mpt_scaler_update(t->scaler);
    }
    return mpt_step_end(c);
}

/* All but the context. */
static training training_in(mpt_context *c, const plan *how) {
    training t;
    memset(&t, 0, sizeof t);
    t.context = c, t.how = *how;
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, how->width),
                           mpt_nn_batch_norm1d(c, how->width, NULL), mpt_nn_relu(c),
                           mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, how->width, CLASSES),
                           mpt_nn_log_softmax(c, -1), MPT_END);
    if (how->precision >= PURE_FP16)
        mpt_half(t.net, how->precision == PURE_FP16 ? MPT_F16 : MPT_BF16);
    t.optimizer = make_optimizer(t.net, how->optimizer);
    if (how->scheduled) mpt_schedule_create(t.optimizer, mpt_cosine_lr(20, 0.001), MPT_PER_STEP);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.growth_interval = 5, scaler.init_scale = 1024;
    t.scaler = mpt_grad_scaler(c, &scaler);
    if (how->averaged) t.ema = mpt_ema_create(t.net, t.optimizer, NULL);
    t.loader = make_loader(c, how->workers);
    return t;
}

static TORTURE_UNUSED training begin_training(const plan *how) {
    mpt_config config = mpt_config_default();
    config.threads = how->threads, config.seed = how->seed, config.device = MPT_DEVICE_CPU;
    config.io = training_io;
    return training_in(mpt_create(&config), how);
}

static TORTURE_UNUSED void end_training(training *t) { mpt_destroy(t->context); }

/* Micro-batches `from` up to `to`, epochs running on. */
static void run_training(training *t, int from, int to) {
    mpt_context *c = t->context;
    if (t->how.captured && !t->captured.slot) t->captured = mpt_capture(c, micro_batch, t);
    for (int i = from; i < to; i++) {
        mpt_batch batch;
        if (!mpt_loader_next(t->loader, &batch)) mpt_loader_next(t->loader, &batch);
        mpt_scope_begin(c);
        mpt_metric_push(c, "x", mpt_mean(batch.x, MPT_ALL_DIMS, false));
        mpt_tensor x = i == t->how.overflow ? mpt_mul_scalar(batch.x, 3e38) : batch.x;
        if (t->how.captured)
            mpt_captured_step(t->captured, x, batch.y);
        else
            micro_batch(c, t, x, batch.y);
        mpt_scope_end(c);
        const bool updates = i % t->how.accumulate == t->how.accumulate - 1;
        if (updates && t->how.accumulate > 1) {
            mpt_scaler_step(t->scaler, t->optimizer);
            mpt_scaler_update(t->scaler);
            mpt_zero_grad(t->optimizer);
        }
        if (updates && t->how.averaged) mpt_ema_update(t->ema);
    }
    EXPECT_THAT(!mpt_failed(c), "training: %s", mpt_error(c));
}

#endif
