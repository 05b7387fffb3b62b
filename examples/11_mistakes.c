/* 11_mistakes.c - lesson 11: mistakes, and what the library says to them.
 *
 * The first error sticks in the context; calls after it do nothing, and weights are never touched
 * by a step that failed. So a program checks once, at the end of a step or an epoch.
 * mpt_clear_error goes back to the last completed step.
 * test arguments: */
#include "lesson.h"

typedef struct stage {
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_tensor x, y, stale;
} stage;

static void sizes_that_do_not_fit(stage *s) {
    mpt_matmul(s->x, mpt_zeros(s->ctx, MPT_F32, MPT_SHAPE(5, 2)));
}
static void types_that_do_not_fit(stage *s) {
    mpt_add(s->x, mpt_zeros(s->ctx, MPT_F16, MPT_SHAPE(2, 3)));
}
static void class_that_does_not_exist(stage *s) {
    const int64_t classes[2] = {1, 7};
    mpt_tensor wrong = mpt_from(s->ctx, MPT_I64, MPT_SHAPE(2), classes);
    mpt_step_begin(s->ctx);
    mpt_zero_grad(s->optimizer);
    mpt_backward(mpt_cross_entropy(mpt_forward(s->net, s->x), wrong, NULL));
    mpt_step(s->optimizer);
    mpt_step_end(s->ctx);
    mpt_synchronize(s->ctx);
}
static void tensor_of_a_step_that_is_over(stage *s) { mpt_relu(s->stale); }
static void backward_from_many_numbers(stage *s) { mpt_backward(mpt_forward(s->net, s->x)); }
static void backward_twice(stage *s) {
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(s->net, s->x), s->y, NULL);
    mpt_backward(loss);
    mpt_backward(loss);
}
static void layer_after_the_net_was_used(stage *s) {
    mpt_add_child(s->net, "3", mpt_nn_relu(s->ctx));
}
static void name_that_does_not_exist(stage *s) { mpt_parameter(s->net, "0.wieght"); }

static const struct {
    const char *what;
    void (*make)(stage *s);
    mpt_status code;
} mistakes[] = {
    {"[2, 3] times [5, 2]", sizes_that_do_not_fit, MPT_ERROR_SHAPE},
    {"fp32 plus fp16, outside of autocast", types_that_do_not_fit, MPT_ERROR_DTYPE},
    {"class 7 of 4, in a whole training step", class_that_does_not_exist, MPT_ERROR_INDEX},
    {"a tensor of a step that is over", tensor_of_a_step_that_is_over, MPT_ERROR_HANDLE},
    {"backward from eight numbers", backward_from_many_numbers, MPT_ERROR_SHAPE},
    {"backward twice through one graph", backward_twice, MPT_ERROR_STATE},
    {"a layer added after the net was used", layer_after_the_net_was_used, MPT_ERROR_STATE},
    {"a name with a slip in it", name_that_does_not_exist, MPT_ERROR_ARGUMENT},
};

int main(void) {
    enum { COUNT = (int)(sizeof mistakes / sizeof *mistakes) };
    const int64_t classes[2] = {0, 3};
    stage s;
    int named = 0;
    mpt_context *ctx = s.ctx = lesson_begin("11_mistakes", "Lesson 11: mistakes");
    if (!ctx) return EXIT_BAD_INPUT;
    s.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 3, 4), mpt_nn_relu(ctx),
                           mpt_nn_linear(ctx, 4, 4), MPT_END);
    s.optimizer = mpt_adamw(s.net, NULL);
    s.x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 3));
    s.y = mpt_from(ctx, MPT_I64, MPT_SHAPE(2), classes);
    mpt_step_begin(ctx);
    s.stale = mpt_mul_scalar(s.x, 2.0);
    mpt_step_end(ctx);

    const uint64_t weights = mpt_module_hash(s.net);
    for (int i = 0; i < COUNT; i++) {
        heading(mistakes[i].what);
        mistakes[i].make(&s);
        printf("%s\n", mpt_failed(ctx) ? mpt_error(ctx) : "nothing was said");
        named += mpt_error_code(ctx) == mistakes[i].code;
        mpt_clear_error(ctx);
    }
    printf("\n%d of %d mistakes were named, and the weights are %s\n", named, (int)COUNT,
           mpt_module_hash(s.net) == weights ? "what they were" : "not what they were");
    return lesson_end(ctx, named == COUNT && mpt_module_hash(s.net) == weights);
}
