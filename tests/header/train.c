/* Trains a little and prints what came of it: the same bits in how many files the library is. */
#include "mptrain.h"

#include <stdio.h>
#include <string.h>

#ifdef MPTRAIN_NO_THREADS
enum { WORKERS = 0 };
#else
enum { WORKERS = 1 };
#endif
enum { ROWS = 48, INPUTS = 12, CLASSES = 3 };

static float inputs[ROWS * INPUTS];
static int64_t targets[ROWS];

/* The CPU backend's own errors and names come over the border, too. */
static int refuses_unknown_level(void) {
    mpt_config config = mpt_config_default();
    config.isa = (mpt_isa)77;
    mpt_context *ctx = mpt_create(&config);
    const int wrong = ctx != NULL || !strstr(mpt_error(NULL), "isa (MPTRAIN_ISA) 77");
    mpt_destroy(ctx);
    return wrong || strcmp(mpt_isa_name(MPT_ISA_REF), "ref") != 0;
}

static unsigned long long hash_of(unsigned long long hash, float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return (hash ^ bits) * 1099511628211ULL;
}

int main(void) {
    unsigned long long hash = 1469598103934665603ULL;
    float weights[INPUTS * 32];
    mpt_config config = mpt_config_default();
    config.threads = 2;
    mpt_context *ctx = mpt_create(&config);
    for (int i = 0; i < ROWS * INPUTS; i++) inputs[i] = (float)(i * 7 % 23) / 11 - 1;
    for (int i = 0; i < ROWS; i++) targets[i] = i * i % CLASSES;
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = ROWS, data.dtype = MPT_F32, data.shape = MPT_SHAPE(INPUTS);
    data.inputs = inputs, data.targets = targets;
    mpt_loader_config load = mpt_loader_config_default();
    load.batch = 16, load.workers = WORKERS;
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, INPUTS, 32), mpt_nn_tanh(ctx),
                                    mpt_nn_linear(ctx, 32, CLASSES), mpt_nn_log_softmax(ctx, -1),
                                    MPT_END);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 3, fit.precision = MPT_F16;
    mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &data), &load);
    mpt_fit_result result = mpt_fit(net, mpt_adamw(net, NULL), loader, &fit);
    mpt_read(mpt_parameter(net, "0.weight"), weights, sizeof weights);
    for (int i = 0; i < INPUTS * 32; i++) hash = hash_of(hash, weights[i]);
    const int wrong = refuses_unknown_level() || mpt_failed(ctx) || result.steps != 9;
    printf("loss %.9g weights %016llx %s\n", result.train_loss, hash, mpt_error(ctx));
    mpt_destroy(ctx);
    return wrong;
}
