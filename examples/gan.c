/* gan.c - a net makes numbers of noise, a judge tells them from normal ones. test arguments: */
#include <stdio.h>
#include "mptrain.h"

static mpt_module make_net(mpt_context *ctx, int64_t inputs) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, inputs, 32), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 32, 32), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 32, 1),
                          MPT_END);
}

/* How far the judge is from giving this answer: 1 is "real". */
static mpt_tensor loss_of(mpt_module judge, mpt_tensor x, double answer) {
    mpt_tensor logits = mpt_forward(judge, x), none = mpt_null_tensor();
    mpt_tensor target = mpt_full(x.context, MPT_F32, mpt_get_shape(logits), answer);
    return mpt_binary_cross_entropy_with_logits(logits, target, none, none, MPT_MEAN);
}

int main(void) {
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr; /* errors, too */
    mpt_context *ctx = mpt_create(&config);
    mpt_module maker = make_net(ctx, 8), judge = make_net(ctx, 1);
    mpt_adam_config adam = mpt_adam_config_default();
    adam.lr = 1e-3, adam.beta1 = 0.5; /* little momentum: the other net moves, too */
    mpt_optimizer makes = mpt_adam(maker, &adam), judges = mpt_adam(judge, &adam);
    double mean = 0, deviation = 0;
    for (int step = 1; step <= 3000 && !mpt_failed(ctx); step++) {
        mpt_step_begin(ctx);
        mpt_tensor noise = mpt_randn(ctx, MPT_F32, MPT_SHAPE(64, 1));
        mpt_tensor real = mpt_add_scalar(mpt_mul_scalar(noise, 0.5), 4);
        mpt_tensor made = mpt_forward(maker, mpt_randn(ctx, MPT_F32, MPT_SHAPE(64, 8)));
        mpt_zero_grad(judges);
        mpt_backward(mpt_add(loss_of(judge, real, 1), loss_of(judge, mpt_detach(made), 0)));
        mpt_step(judges);
        mpt_zero_grad(makes);
        mpt_backward(loss_of(judge, made, 1)); /* the judge's gradients are cleared above */
        mpt_step(makes);
        mean = mpt_item(mpt_mean(made, MPT_ALL_DIMS, false));
        deviation = mpt_item(mpt_std(made, MPT_ALL_DIMS, false, 1));
        if (step % 500 == 0) printf("step %4d: mean %.2f, deviation %.2f\n", step, mean, deviation);
        mpt_step_end(ctx);
    }
    mpt_destroy(ctx);
    return mean > 3.5 && mean < 4.5 && deviation > 0.2 && deviation < 0.9 ? 0 : 1;
}
