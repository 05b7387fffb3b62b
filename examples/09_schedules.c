/* 09_schedules.c - lesson 9: schedules: the learning rate over time.
 *
 * Large steps find the right region fast and then jump about in it; small ones settle. So rates
 * rise at first, while the optimizer learns the slopes, and fall towards the end. The table of
 * rates lies on the device and is read by the count of steps that were really applied.
 * test arguments: */
#include "lesson.h"

enum { STEPS = 40, CURVES = 4 };

static mpt_schedule warm_up_and_cosine(mpt_optimizer optimizer) {
    return mpt_warmup(optimizer, 0.1, 8, STEPS, 0.0, MPT_PER_STEP);
}
static mpt_schedule steps_down(mpt_optimizer optimizer) {
    return mpt_schedule_create(optimizer, mpt_step_lr(10, 0.4), MPT_PER_STEP);
}
static mpt_schedule restarts(mpt_optimizer optimizer) {
    return mpt_schedule_create(optimizer, mpt_cosine_restarts_lr(10, 2, 0.0), MPT_PER_STEP);
}
static mpt_schedule one_cycle(mpt_optimizer optimizer) {
    mpt_one_cycle_config config = mpt_one_cycle_config_default();
    config.max_lr = 1.0, config.total = STEPS;
    return mpt_one_cycle(optimizer, &config, MPT_PER_STEP);
}

static const struct {
    const char *name;
    mpt_schedule (*make)(mpt_optimizer optimizer);
} curves[CURVES] = {{"warm-up, then a cosine", warm_up_and_cosine},
                    {"times 0.4 every ten steps", steps_down},
                    {"cosines that start again", restarts},
                    {"one cycle", one_cycle}};

/* The rates as a picture, ten lines high. */
static void draw(const double *rates, int n) {
    for (int line = 9; line >= 0; line--) {
        printf("%4.1f |", (line + 1) / 10.0);
        for (int i = 0; i < n; i++) putchar(rates[i] > line / 10.0 + 0.05 ? '#' : ' ');
        printf("\n");
    }
    printf("     +");
    for (int i = 0; i < n; i++) putchar(i % 10 ? '-' : '+');
    printf(" steps\n");
}

int main(void) {
    double rates[CURVES][STEPS];
    mpt_context *ctx = lesson_begin("09_schedules", "Lesson 9: learning rates of 40 steps, from 1");
    if (!ctx) return EXIT_BAD_INPUT;
    mpt_tensor x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(1, 1));
    for (int c = 0; c < CURVES; c++) {
        mpt_module net = mpt_nn_linear(ctx, 1, 1);
        mpt_sgd_config sgd = mpt_sgd_config_default();
        sgd.lr = 1.0, sgd.momentum = 0.9; /* the one cycle moves momentum, too */
        mpt_optimizer optimizer = mpt_sgd(net, &sgd);
        curves[c].make(optimizer);
        heading(curves[c].name);
        for (int step = 0; step < STEPS; step++) {
            rates[c][step] = mpt_get_lr(optimizer, 0); /* group 0, of the next step */
            mpt_step_begin(ctx);
            mpt_tensor loss =
                mpt_mul_scalar(mpt_sum(mpt_forward(net, x), MPT_ALL_DIMS, false), 1e-3);
            mpt_zero_grad(optimizer);
            mpt_backward(loss);
            mpt_step(optimizer);
            mpt_step_end(ctx);
        }
        draw(rates[c], STEPS);
    }
    const bool right = fabs(rates[0][0] - 0.1) < 1e-6 && fabs(rates[0][8] - 1.0) < 1e-6 &&
                       fabs(rates[1][39] - 0.064) < 1e-6 && fabs(rates[2][10] - 1.0) < 1e-6;
    return lesson_end(ctx, right);
}
