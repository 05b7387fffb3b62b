/* 06_optimizers.c - lesson 6: optimizers: how to go downhill.
 *
 * The valley f(a, b) = (a^2 + 400 b^2) / 2 is flat along a and steep along b, as real losses are
 * flat in some directions and steep in others. Plain steps must be small enough for the steep one
 * and so crawl along the flat one. Momentum gathers speed; Adam gives each weight its own step.
 * test arguments: */
#include "lesson.h"

enum { STEPS = 120 };

typedef mpt_optimizer make_optimizer(mpt_module module);

static mpt_optimizer plain(mpt_module module) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.0045;
    return mpt_sgd(module, &config);
}
static mpt_optimizer momentum(mpt_module module) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.009, config.momentum = 0.82;
    return mpt_sgd(module, &config);
}
static mpt_optimizer adamw(mpt_module module) {
    mpt_adamw_config config = mpt_adamw_config_default();
    config.lr = 0.25, config.weight_decay = 0.0;
    return mpt_adamw(module, &config);
}
static mpt_optimizer too_far(mpt_module module) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.00505; /* beyond 2 / 400 each step overshoots by more than it had left */
    return mpt_sgd(module, &config);
}

static const struct {
    const char *name;
    make_optimizer *make;
} choices[] = {{"SGD, lr 0.0045", plain},
               {"SGD, lr 0.009, momentum 0.82", momentum},
               {"AdamW, lr 0.25", adamw},
               {"SGD, lr 0.00505", too_far}};

/* A module with nothing but the point (a, b). */
static mpt_status point_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor at = mpt_parameter(self, "at");
    out[0] = mpt_mul_scalar(mpt_sum(mpt_mul(in[0], mpt_mul(at, at)), 0, false), 0.5);
    return MPT_OK;
}

int main(void) {
    static mpt_module_class point = {"point", point_forward, NULL, NULL, NULL, 1, 1};
    static const float steepness[2] = {1, 400};
    double height[4] = {0};
    mpt_context *ctx =
        lesson_begin("06_optimizers", "Lesson 6: optimizers, from (10, 10) to (0, 0)");
    if (!ctx) return EXIT_BAD_INPUT;
    for (int i = 0; i < 4; i++) {
        heading(choices[i].name);
        mpt_module valley = mpt_module_create(ctx, &point, NULL);
        mpt_add_parameter(valley, "at", MPT_SHAPE(2), mpt_init_make(MPT_INIT_CONSTANT, 10.0, 0.0));
        mpt_optimizer optimizer = choices[i].make(valley);
        mpt_tensor steep = mpt_from(ctx, MPT_F32, MPT_SHAPE(2), steepness);
        for (int step = 0; step <= STEPS; step++) {
            float at[2] = {0};
            mpt_step_begin(ctx);
            mpt_tensor loss = mpt_forward(valley, steep);
            mpt_read_f32(mpt_parameter(valley, "at"), at, 2);
            height[i] = mpt_item(loss);
            if (step % 30 == 0)
                printf("step %3d: (%8.4f, %8.4f), height %.3g\n", step, (double)at[0],
                       (double)at[1], height[i]);
            mpt_zero_grad(optimizer);
            mpt_backward(loss);
            mpt_step(optimizer);
            mpt_step_end(ctx);
        }
    }
    return lesson_end(ctx, height[1] < height[0] && height[2] < height[0] && height[3] > 20050.0);
}
