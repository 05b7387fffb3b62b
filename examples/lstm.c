/* lstm.c - a long short-term memory by hand: the net reads 10 numbers, one after the other, and has
 * to tell the first of them at the end. test arguments: */
#include <stdio.h>
#include "mptrain.h"

enum { BATCH = 64, LENGTH = 10, HIDDEN = 24 };

static mpt_tensor gate(mpt_tensor all, int k) {
    return mpt_slice(all, 1, k * HIDDEN, (k + 1) * HIDDEN, 1);
}

/* x [BATCH, LENGTH] -> [BATCH, 1]. h is what the cell tells, c what it keeps; the gates say what
   comes in, what stays, and what is told. */
static mpt_tensor read_all(mpt_module gates, mpt_module head, mpt_tensor x) {
    mpt_tensor h = mpt_zeros(x.context, MPT_F32, MPT_SHAPE(BATCH, HIDDEN)), c = h, in[2];
    for (int t = 0; t < LENGTH; t++) {
        in[0] = mpt_slice(x, 1, t, t + 1, 1), in[1] = h;
        mpt_tensor all = mpt_forward(gates, mpt_cat(in, 2, 1));
        mpt_tensor comes = mpt_mul(mpt_sigmoid(gate(all, 0)), mpt_tanh(gate(all, 1)));
        c = mpt_add(mpt_mul(mpt_sigmoid(gate(all, 2)), c), comes);
        h = mpt_mul(mpt_sigmoid(gate(all, 3)), mpt_tanh(c));
    }
    return mpt_forward(head, h);
}

int main(void) {
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr; /* errors, too */
    mpt_context *ctx = mpt_create(&config);
    mpt_module gates = mpt_nn_linear(ctx, 1 + HIDDEN, 4 * HIDDEN);
    mpt_module head = mpt_nn_linear(ctx, HIDDEN, 1);
    mpt_adam_config adam = mpt_adam_config_default();
    adam.lr = 1e-2;
    mpt_optimizer optimizer = mpt_adam(gates, &adam);
    mpt_optimizer_add(optimizer, head, NULL, NULL);
    double error = 0.1; /* about what the mean of all would have: 1/12 */
    for (int step = 1; step <= 500 && !mpt_failed(ctx); step++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(BATCH, LENGTH));
        mpt_tensor first = mpt_slice(x, 1, 0, 1, 1);
        mpt_tensor loss = mpt_mse_loss(read_all(gates, head, x), first, MPT_MEAN);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_clip_grad_norm(optimizer, 1);
        mpt_step(optimizer);
        error += 0.05 * (mpt_item(loss) - error);
        if (step % 100 == 0) printf("step %3d: mean squared error %.4f\n", step, error);
        mpt_step_end(ctx);
    }
    mpt_destroy(ctx);
    return error < 0.01 ? 0 : 1;
}
