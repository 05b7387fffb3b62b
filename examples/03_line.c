/* 03_line.c - lesson 3: the training loop, on the smallest model: a line through points.
 *
 * The points lie near y = 3 x - 1. Each step: predict, measure the error, find its slope by weight
 * and bias, and move both a little downhill. That loop is all of deep learning; what comes after
 * is larger models and better steps.
 * test arguments: */
#include "lesson.h"

enum { POINTS = 64, STEPS = 200 };

int main(void) {
    mpt_context *ctx = lesson_begin("03_line", "Lesson 3: fitting y = w x + b to noisy points");
    if (!ctx) return EXIT_BAD_INPUT;

    mpt_tensor x = mpt_sub(mpt_mul_scalar(mpt_rand(ctx, MPT_F32, MPT_SHAPE(POINTS, 1)), 2.0),
                           mpt_ones(ctx, MPT_F32, MPT_SCALAR)); /* in [-1, 1) */
    mpt_tensor noise = mpt_mul_scalar(mpt_randn(ctx, MPT_F32, MPT_SHAPE(POINTS, 1)), 0.1);
    mpt_tensor y = mpt_add(mpt_add_scalar(mpt_mul_scalar(x, 3.0), -1.0), noise);

    mpt_module line = mpt_nn_linear(ctx, 1, 1); /* one weight, one bias */
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.1; /* how far to go downhill: too little is slow, too much overshoots */
    mpt_optimizer optimizer = mpt_sgd(line, &config);

    printf("%6s %10s %8s %8s\n", "step", "error", "w", "b");
    for (int step = 0; step <= STEPS; step++) {
        mpt_step_begin(ctx);
        mpt_tensor error = mpt_mse_loss(mpt_forward(line, x), y, MPT_MEAN);
        if (step % 20 == 0 || step < 4)
            printf("%6d %10.5f %8.4f %8.4f\n", step, mpt_item(error),
                   mpt_item(mpt_parameter(line, "weight")), mpt_item(mpt_parameter(line, "bias")));
        mpt_zero_grad(optimizer);
        mpt_backward(error);
        mpt_step(optimizer);
        mpt_step_end(ctx); /* what the step made is gone; weights stay */
    }
    const double w = mpt_item(mpt_parameter(line, "weight"));
    const double b = mpt_item(mpt_parameter(line, "bias"));
    printf("\nThe points were drawn from w = 3, b = -1; the error that stays is their noise.\n");
    return lesson_end(ctx, fabs(w - 3.0) < 0.1 && fabs(b + 1.0) < 0.1);
}
