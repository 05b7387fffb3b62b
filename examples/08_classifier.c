/* 08_classifier.c - lesson 8: a classifier: everything so far, on three spiral arms.
 *
 * Points of three classes lie on three arms of a spiral. A line cannot separate them; a net with
 * two hidden layers can. Half of the points are kept out of the training, to see whether the net
 * has learned the arms or only the points.
 * test arguments: */
#include "lesson.h"

enum { POINTS = 900, ROWS = 20, COLUMNS = 50 };

static void make_points(float *inputs, int64_t *classes) {
    uint32_t state = 1;
    for (int i = 0; i < POINTS; i++) {
        const double t = (double)(i / 3) / (POINTS / 3.0);
        state = state * 1664525u + 1013904223u; /* a small generator, for a little noise */
        const double angle = 4.5 * t + 2.0944 * (i % 3) + 0.3 * ((state >> 8) / 16777216.0 - 0.5);
        inputs[2 * i] = (float)((0.1 + 0.9 * t) * cos(angle));
        inputs[2 * i + 1] = (float)((0.1 + 0.9 * t) * sin(angle));
        classes[i] = i % 3;
    }
}

/* Which class the net sees at each place of the plane. */
static void draw(mpt_context *ctx, mpt_module net) {
    static float places[ROWS * COLUMNS * 2];
    static int64_t seen[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        places[2 * i] = 2.2f * (float)(i % COLUMNS) / (COLUMNS - 1) - 1.1f;
        places[2 * i + 1] = 1.1f - 2.2f * (float)(i / COLUMNS) / (ROWS - 1);
    }
    mpt_inference_begin(ctx); /* nothing is kept for backward */
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(ROWS * COLUMNS, 2), places);
    mpt_read(mpt_argmax(mpt_forward(net, x), 1, false), seen, sizeof seen);
    mpt_inference_end(ctx);
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        putchar(".o#"[seen[i]]);
        if (i % COLUMNS == COLUMNS - 1) putchar('\n');
    }
}

int main(void) {
    static float inputs[POINTS * 2];
    static int64_t classes[POINTS];
    mpt_context *ctx = lesson_begin("08_classifier", "Lesson 8: a classifier of three spiral arms");
    if (!ctx) return EXIT_BAD_INPUT;

    make_points(inputs, classes);
    mpt_memory_dataset_config points = mpt_memory_dataset_config_default();
    points.count = POINTS, points.dtype = MPT_F32, points.shape = MPT_SHAPE(2);
    points.inputs = inputs, points.targets = classes;
    const double halves[2] = {0.5, 0.5};
    mpt_dataset parts[2];
    mpt_random_split(mpt_memory_dataset(ctx, &points), halves, 2, 0, parts);
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 50;
    mpt_loader tests = mpt_loader_create(ctx, parts[1], &config);
    config.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, parts[0], &config);

    mpt_module net = mpt_sequential(
        ctx, mpt_nn_linear(ctx, 2, 48), mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 48, 48),
        mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 48, 3), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 0.01;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);

    mpt_evaluation test = mpt_evaluate(net, tests, MPT_F32);
    printf("untrained: %.0f %% of the points right\n", 100.0 * test.accuracy);
    for (int epoch = 1; epoch <= 60; epoch++) {
        mpt_batch b;
        mpt_metric_reset(ctx, "loss");
        while (mpt_loader_next(loader, &b)) {
            mpt_step_begin(ctx);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(net, b.x), b.y, NULL);
            mpt_metric_push(ctx, "loss", loss); /* a running mean, without waiting */
            mpt_zero_grad(optimizer);
            mpt_backward(loss);
            mpt_step(optimizer);
            mpt_step_end(ctx);
        }
        test = mpt_evaluate(net, tests, MPT_F32);
        if (epoch % 10 == 0)
            printf("epoch %2d: loss %.4f, %.1f %% of the points kept out right\n", epoch,
                   mpt_metric_mean(ctx, "loss", true), 100.0 * test.accuracy);
    }
    draw(ctx, net);
    return lesson_end(ctx, test.accuracy > 0.95);
}
