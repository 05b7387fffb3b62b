#include <stdio.h>
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"
int main(void) {
    const float x[] = {0, 0, 0, 1, 1, 0, 1, 1}; // four samples of two inputs
    const int64_t y[] = {0, 1, 1, 0};           // and their classes: exclusive or
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr; // warnings and errors
    mpt_context *ctx = mpt_create(&config);
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = 4, data.shape = MPT_SHAPE(2), data.inputs = x, data.targets = y;
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 16), mpt_nn_tanh(ctx),
                         mpt_nn_linear(ctx, 16, 2), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &data), NULL);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 2000, fit.precision = MPT_F16; // autocast to fp16, and loss scaling
    printf("loss %.4f\n", mpt_fit(net, mpt_adamw(net, NULL), loader, &fit).train_loss);
    mpt_destroy(ctx); // frees everything
    return 0;
}
