/* sensor.c - gestures from an acceleration sensor: a GRU learns windows of 40 samples, and is then
 * fed sample by sample, as a small device would, with a cell and the state that it keeps. Both ways
 * give the same answers; the second has one after each sample, and stores no window.
 * test arguments: */
#include <math.h>
#include <stdio.h>
#include "mptrain.h"

enum { LENGTH = 40, AXES = 3, GESTURES = 4, HIDDEN = 24, BATCH = 32, STEPS = 300, MANY = 256 };
static const char *const gestures[GESTURES] = {"rest", "shake", "circle", "lift"};

typedef struct model {
    mpt_module layer, cell, head; /* the cell has the layer's weights */
} model;

/* One sample: the hand's acceleration in g, at its own pace and strength. */
static void sample_gesture(int64_t gesture, float t, const float *own, float *axes) {
    const float pace = 0.5f + 0.3f * own[0], strength = 0.6f + 0.4f * own[1];
    const float turn = pace * t + 6.0f * own[2], rise = (t - 20.0f - 10.0f * own[2]) / 4.0f;
    axes[0] = axes[1] = 0.0f, axes[2] = 1.0f; /* the earth pulls down */
    if (gesture == 1) axes[0] += strength * (sinf(3.0f * turn) > 0.0f ? 1.0f : -1.0f);
    if (gesture == 2) axes[0] += strength * cosf(turn), axes[1] += strength * sinf(turn);
    if (gesture == 3) axes[2] -= 2.0f * strength * rise * expf(-rise * rise);
}

/* Windows [LENGTH, n, AXES] of gestures 0, 1 .. in turn, as a noisy sensor tells them. */
static mpt_tensor windows(mpt_context *ctx, int64_t n) {
    static float values[LENGTH * MANY * AXES], own[MANY * 3];
    mpt_read_f32(mpt_rand(ctx, MPT_F32, MPT_SHAPE(n, 3)), own, n * 3);
    for (int64_t t = 0; t < LENGTH; t++)
        for (int64_t i = 0; i < n; i++)
            sample_gesture(i % GESTURES, (float)t, own + 3 * i, values + (t * n + i) * AXES);
    const mpt_shape shape = MPT_SHAPE(LENGTH, n, AXES);
    mpt_tensor noise = mpt_mul_scalar(mpt_randn(ctx, MPT_F32, shape), 0.15);
    return mpt_add(mpt_from(ctx, MPT_F32, shape, values), noise);
}

static mpt_tensor which(mpt_context *ctx, int64_t n) {
    int64_t classes[MANY];
    for (int64_t i = 0; i < n; i++) classes[i] = i % GESTURES;
    return mpt_from(ctx, MPT_I64, MPT_SHAPE(n), classes);
}

/* [n, GESTURES], from what the layer tells after the last sample. */
static mpt_tensor answers(const model *net, mpt_tensor x) {
    mpt_tensor last = mpt_slice(mpt_forward(net->layer, x), 0, -1, LENGTH, 1);
    return mpt_forward(net->head, mpt_reshape(last, MPT_SHAPE(mpt_get_shape(x).dim[1], HIDDEN)));
}

static void train(mpt_context *ctx, const model *net) {
    mpt_adam_config adam = mpt_adam_config_default();
    adam.lr = 1e-2;
    mpt_optimizer optimizer = mpt_adam(net->layer, &adam);
    mpt_optimizer_add(optimizer, net->head, NULL, NULL);
    for (int step = 1; step <= STEPS && !mpt_failed(ctx); step++) {
        mpt_step_begin(ctx);
        mpt_tensor y = answers(net, windows(ctx, BATCH));
        mpt_tensor loss = mpt_cross_entropy(y, which(ctx, BATCH), NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_clip_grad_norm(optimizer, 1);
        mpt_step(optimizer);
        if (step % 50 == 0) printf("step %3d: loss %.4f\n", step, mpt_item(loss));
        mpt_step_end(ctx);
    }
}

/* The share of new windows that are told right. */
static double test(mpt_context *ctx, const model *net) {
    int64_t told[MANY];
    double right = 0;
    mpt_read(mpt_argmax(answers(net, windows(ctx, MANY)), -1, false), told, sizeof told);
    for (int64_t i = 0; i < MANY; i++) right += told[i] == i % GESTURES;
    return right / MANY;
}

/* One window of each gesture, sample by sample; how far answers are from those of the whole. */
static double stream(mpt_context *ctx, const model *net) {
    int64_t told[GESTURES];
    double apart = 0;
    mpt_tensor x = windows(ctx, GESTURES), state, y, whole = mpt_forward(net->layer, x);
    for (int i = 0; i < mpt_parameter_count(net->layer); i++)
        mpt_copy_(mpt_parameter_at(net->cell, i, NULL, 0),
                  mpt_parameter_at(net->layer, i, NULL, 0));
    for (int64_t t = 0; t < LENGTH && !mpt_failed(ctx); t++) {
        mpt_scope_begin(ctx);
        mpt_tensor in[2], now;
        in[0] = mpt_reshape(mpt_slice(x, 0, t, t + 1, 1), MPT_SHAPE(GESTURES, AXES));
        if (t > 0) in[1] = state;
        mpt_forward_n(net->cell, in, t > 0 ? 2 : 1, &now, 1);
        if (t > 0) mpt_release(state);
        state = mpt_keep(now); /* all that a device has to remember */
        y = mpt_forward(net->head, state);
        mpt_tensor of = mpt_reshape(mpt_slice(whole, 0, t, t + 1, 1), MPT_SHAPE(GESTURES, HIDDEN));
        of =
            mpt_norm(mpt_sub(y, mpt_forward(net->head, of)), (double)INFINITY, MPT_ALL_DIMS, false);
        apart = fmax(apart, mpt_item(of));
        mpt_read(mpt_argmax(y, -1, false), told, sizeof told);
        if (t % 8 == 7) {
            printf("after %2d samples:", (int)t + 1);
            for (int i = 0; i < GESTURES; i++) printf(" %7s", gestures[told[i]]);
            printf("\n");
        }
        mpt_scope_end(ctx);
    }
    mpt_release(state);
    return apart;
}

int main(void) {
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr; /* errors, too */
    mpt_context *ctx = mpt_create(&config);
    model net;
    net.layer = mpt_nn_gru(ctx, AXES, HIDDEN, NULL);
    net.cell = mpt_nn_gru_cell(ctx, AXES, HIDDEN, NULL);
    net.head = mpt_nn_linear(ctx, HIDDEN, GESTURES);
    train(ctx, &net);
    mpt_inference_begin(ctx);
    const double right = test(ctx, &net);
    printf("%.1f %% of new windows are told right; one of each, by and by:\n", 100 * right);
    const double apart = stream(ctx, &net);
    mpt_inference_end(ctx);
    printf("the answers are those of whole windows, within %.1g\n", apart);
    const bool fine = !mpt_failed(ctx) && right > 0.9 && apart < 1e-4;
    mpt_destroy(ctx);
    return fine ? 0 : 1;
}
