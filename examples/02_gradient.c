/* 02_gradient.c - lesson 2: gradients: how the result changes with each input.
 *
 * Operations on a tensor that requires a gradient are remembered. mpt_backward walks them back
 * from the result and leaves the slope by each input: all of them in one pass, exactly, where
 * trying small changes needs one run per input and is only near.
 * test arguments: */
#include "lesson.h"

/* f(x) = sum of x^2 sin(x) */
static mpt_tensor f(mpt_tensor x) {
    return mpt_sum(mpt_mul(mpt_mul(x, x), mpt_sin(x)), MPT_ALL_DIMS, false);
}

int main(void) {
    enum { N = 4 };
    float values[N] = {-1.0f, 0.5f, 1.0f, 2.0f}, slopes[N] = {0};
    double worst = 0.0;
    mpt_context *ctx =
        lesson_begin("02_gradient", "Lesson 2: gradients of f(x) = sum of x^2 sin(x)");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("One forward pass, one backward pass");
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(N), values);
    mpt_requires_grad(x, true);
    mpt_tensor y = f(x);
    printf("f(x) = %.4f\n", mpt_item(y));
    mpt_backward(y);
    mpt_read_f32(mpt_grad(x), slopes, N);

    heading("The same slopes from the formula and from small changes of each input");
    printf("%8s %12s %12s %14s\n", "x", "backward", "formula", "small change");
    mpt_no_grad_begin(ctx); /* from here on nothing is remembered */
    for (int i = 0; i < N; i++) {
        const double v = (double)values[i], h = 1e-2;
        double formula = 2 * v * sin(v) + v * v * cos(v), side[2];
        for (int k = 0; k < 2; k++) {
            values[i] = (float)(v + (k ? h : -h));
            side[k] = mpt_item(f(mpt_from(ctx, MPT_F32, MPT_SHAPE(N), values)));
        }
        values[i] = (float)v;
        printf("%8.2f %12.6f %12.6f %14.4f\n", v, (double)slopes[i], formula,
               (side[1] - side[0]) / (2 * h));
        worst = fmax(worst, fabs((double)slopes[i] - formula));
    }
    mpt_no_grad_end(ctx);

    heading("Gradients add up until they are cleared");
    mpt_backward(f(x));
    show("after a second backward", mpt_grad(x));
    mpt_clear_grad(x);
    printf("after mpt_clear_grad there is %s\n", mpt_has_grad(x) ? "one" : "none");
    return lesson_end(ctx, worst < 1e-5 && !mpt_has_grad(x));
}
