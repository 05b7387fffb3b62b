/* training.h: the training steps that benchmarks measure and that the guard counts: forward, loss,
   backward, scaler, optimizer, as in examples/mnist.c, on batches that lie in memory. */
#ifndef BENCH_TRAINING_H
#define BENCH_TRAINING_H

#include <stdlib.h>
#include <string.h>

#include MPTRAIN_HEADER_FILE

#include "../../examples/precisions.h"

enum { BATCHES = 4, MAX_LAYERS = 8 };

typedef struct training {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype autocast;
    mpt_tensor x[BATCHES], y[BATCHES], loss;
    long steps;
} training;

static inline void training_step(void *self) {
    training *t = (training *)self;
    long batch = t->steps++ % BATCHES;
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->autocast);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, t->x[batch]), t->y[batch], NULL);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    mpt_step_end(t->context);
}

static inline void training_end(void *self) {
    mpt_destroy(((training *)self)->context);
    free(self);
}

static inline mpt_module make_net(mpt_context *context, const int64_t *sizes, int layers) {
    mpt_module modules[2 * MAX_LAYERS];
    int n = 0;
    for (int i = 0; i < layers; i++) {
        modules[n++] = mpt_nn_linear(context, sizes[i], sizes[i + 1]);
        modules[n++] = i + 1 < layers ? mpt_nn_relu(context) : mpt_nn_log_softmax(context, -1);
    }
    return mpt_sequential_array(context, modules, n);
}

/* Small steps, so that the values stay what they are early in a training. */
static inline mpt_optimizer make_optimizer(mpt_module net, bool adamw) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adam = mpt_adamw_config_default();
    sgd.lr = 1e-4, adam.lr = 1e-6;
    return adamw ? mpt_adamw(net, &adam) : mpt_sgd(net, &sgd);
}

static inline void make_batches(training *t, mpt_dtype dtype, int64_t batch, int64_t in,
                                int64_t classes) {
    int64_t *targets = (int64_t *)malloc((size_t)batch * sizeof *targets);
    for (int b = 0; targets && b < BATCHES; b++) {
        for (int64_t i = 0; i < batch; i++) targets[i] = (i * 7 + b) % classes;
        mpt_tensor x = mpt_randn(t->context, MPT_F32, MPT_SHAPE(batch, in));
        t->x[b] = dtype == MPT_F32 ? x : mpt_cast(x, dtype);
        t->y[b] = mpt_from(t->context, MPT_I64, MPT_SHAPE(batch), targets);
    }
    free(targets);
}

/* "784-128-64-10" into sizes; the number of layers, 0 if it is none. */
static inline int parse_sizes(const char *text, int64_t *sizes) {
    int n = 0;
    for (; *text && n <= MAX_LAYERS; n++) {
        char *end;
        sizes[n] = strtoll(text, &end, 10);
        if (end == text || sizes[n] < 1) return 0;
        text = *end == '-' ? end + 1 : end;
    }
    return *text ? 0 : n - 1;
}

/* The precision of that name, NULL if there is none. */
static inline const precision *find_precision(const char *name) {
    for (int i = 0; i < PRECISIONS; i++)
        if (strcmp(precisions[i].name, name) == 0) return &precisions[i];
    return NULL;
}

/* NULL, with mpt_error(NULL), if there is no context. */
static inline training *training_new(const mpt_config *config, const int64_t *sizes, int layers,
                                     int64_t batch, const precision *p, bool adamw) {
    training *t = (training *)calloc(1, sizeof *t);
    mpt_context *context = t ? mpt_create(config) : NULL;
    if (!context) {
        free(t);
        return NULL;
    }
    t->context = context;
    t->net = make_net(context, sizes, layers);
    if (p->parameters != MPT_F32) mpt_half(t->net, p->parameters);
    t->optimizer = make_optimizer(t->net, adamw);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.enabled = p->scaled;
    t->scaler = mpt_grad_scaler(context, &scaler);
    t->autocast = p->autocast;
    make_batches(t, p->batch, batch, sizes[0], sizes[layers]);
    return t;
}

#endif
