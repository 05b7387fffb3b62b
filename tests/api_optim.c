/* api_optim.c: optimizers, groups, clipping and schedules by their promises: who is left alone,
 * what persists, what an error may not touch. Values against PyTorch: api_golden_train.c. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"

#include <math.h>

#define OUT 3
#define IN 5

static char log_text[4096];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user;
    size_t length = strlen(log_text);
    if (level >= MPT_LOG_INFO)
        snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

static mpt_context *new_context(void) {
    mpt_config config = mpt_config_default();
    config.log.write = keep_log;
    log_text[0] = '\0';
    return mpt_create(&config);
}

/* Two linear layers of the same shape, "0" and "1". */
static mpt_module new_net(mpt_context *context) {
    mpt_module first = mpt_nn_linear(context, IN, OUT), second = mpt_nn_linear(context, IN, OUT);
    return mpt_sequential(context, first, second, MPT_END);
}

/* A loss whose gradient is `value` for every element of the parameters at `paths`. */
static mpt_tensor loss_of(mpt_module net, const char *const *paths, int count, double value) {
    mpt_tensor loss =
        mpt_mul_scalar(mpt_sum(mpt_parameter(net, paths[0]), MPT_ALL_DIMS, false), value);
    for (int i = 1; i < count; i++) {
        mpt_tensor sum = mpt_sum(mpt_parameter(net, paths[i]), MPT_ALL_DIMS, false);
        loss = mpt_add(loss, mpt_mul_scalar(sum, value));
    }
    return loss;
}

static const char *const all_paths[] = {"0.weight", "0.bias", "1.weight", "1.bias"};

/* Adds gradients and steps. */
static void train(mpt_module net, mpt_optimizer optimizer, const char *const *paths, int count,
                  double value) {
    mpt_context *context = net.context;
    mpt_step_begin(context);
    mpt_zero_grad(optimizer);
    mpt_backward(loss_of(net, paths, count, value));
    mpt_step(optimizer);
    mpt_step_end(context);
}

static void check_same_parameters(mpt_module net, mpt_module other) {
    for (int k = 0; k < 4; k++) {
        float x[OUT * IN], y[OUT * IN];
        int count = k % 2 ? OUT : OUT * IN;
        mpt_read_f32(mpt_parameter(net, all_paths[k]), x, count);
        mpt_read_f32(mpt_parameter(other, all_paths[k]), y, count);
        CHECK_EQ_BITS(x, y, (size_t)count * sizeof *x);
    }
}

/* ---- configurations ---- */

TEST(bad_configurations_are_named) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = -1;
    mpt_sgd(net, &sgd);
    check_error(context, MPT_ERROR_ARGUMENT, "lr = -1");
    sgd = mpt_sgd_config_default();
    sgd.momentum = NAN;
    mpt_sgd(net, &sgd);
    check_error(context, MPT_ERROR_ARGUMENT, "momentum");
    sgd = mpt_sgd_config_default();
    sgd.nesterov = true;
    mpt_sgd(net, &sgd);
    check_error(context, MPT_ERROR_ARGUMENT, "nesterov needs momentum > 0");
    mpt_adam_config adam = mpt_adam_config_default();
    adam.beta2 = 1;
    mpt_adam(net, &adam);
    check_error(context, MPT_ERROR_ARGUMENT, "beta2 = 1 is not in [0, 1)");
    mpt_adamw_config adamw = mpt_adamw_config_default();
    CHECK(adamw.weight_decay == 1e-2);
    adamw.eps = -1;
    mpt_adamw(net, &adamw);
    check_error(context, MPT_ERROR_ARGUMENT, "eps");
    mpt_sgd(mpt_nn_relu(context), NULL);
    check_error(context, MPT_ERROR_ARGUMENT, "no parameters");
    mpt_sgd(net, NULL);
    check_ok(context);
    mpt_destroy(context);
}

TEST(parameter_in_two_optimizers) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_optimizer first = mpt_sgd(mpt_child(net, "0"), NULL);
    mpt_sgd(net, NULL);
    check_error(context, MPT_ERROR_STATE, "0.weight is in another optimizer");
    mpt_sgd_config config = mpt_sgd_config_default();
    config.allow_shared = true;
    config.lr = 1;
    mpt_optimizer both = mpt_sgd(net, &config);
    float before[OUT], after[OUT];
    mpt_read_f32(mpt_parameter(net, "0.bias"), before, OUT);
    train(net, both, all_paths, 4, 0.5);
    mpt_step(first);
    mpt_read_f32(mpt_parameter(net, "0.bias"), after, OUT);
    for (int i = 0; i < OUT; i++) CHECK_NEAR(after[i], before[i] - 0.5f - 0.0005f, 1e-6);
    mpt_optimizer_destroy(both);
    mpt_optimizer_destroy(first);
    mpt_sgd(net, NULL); /* free again */
    check_ok(context);
    mpt_destroy(context);
}

/* ---- gradients that are none ---- */

TEST(parameters_without_gradient_are_left_alone) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_adamw_config config = mpt_adamw_config_default();
    config.weight_decay = 0.5;
    mpt_optimizer optimizer = mpt_adamw(net, &config);
    float before[OUT * IN], after[OUT * IN];
    mpt_read_f32(mpt_parameter(net, "1.weight"), before, OUT * IN);
    for (int i = 0; i < 3; i++) train(net, optimizer, all_paths, 2, 1);
    mpt_read_f32(mpt_parameter(net, "1.weight"), after, OUT * IN);
    CHECK_EQ_BITS(after, before, sizeof before);
    CHECK(!mpt_has_grad(mpt_parameter(net, "1.weight")));
    check_ok(context);
    mpt_destroy(context);
}

/* What joins every third step has its own step count: its bits are those of an optimizer that sees
   these steps alone. */
TEST(step_counts_are_per_parameter) {
    mpt_context *context = new_context();
    mpt_module mixed = new_net(context), alone = new_net(context);
    mpt_copy_module(alone, mixed);
    mpt_optimizer a = mpt_adam(mixed, NULL), b = mpt_adam(mpt_child(alone, "1"), NULL);
    for (int i = 0; i < 12; i++) {
        train(mixed, a, all_paths, i % 3 == 1 ? 4 : 2, 0.1 * (i + 1));
        if (i % 3 == 1) train(alone, b, all_paths + 2, 2, 0.1 * (i + 1));
    }
    float x[OUT * IN], y[OUT * IN];
    mpt_read_f32(mpt_parameter(mixed, "1.weight"), x, OUT * IN);
    mpt_read_f32(mpt_parameter(alone, "1.weight"), y, OUT * IN);
    CHECK_EQ_BITS(x, y, sizeof x);
    CHECK_EQ_INT(mpt_applied_steps(a), 12);
    CHECK_EQ_INT(mpt_applied_steps(b), 4);
    check_ok(context);
    mpt_destroy(context);
}

/* The same where parameters stand side by side, so that one segment could hold both. */
TEST(neighbours_have_their_own_counts) {
    mpt_context *context = new_context();
    mpt_module net[2];
    for (int k = 0; k < 2; k++)
        net[k] = mpt_sequential(context, mpt_nn_linear_no_bias(context, 8, 8),
                                mpt_nn_linear_no_bias(context, 8, 8), MPT_END);
    mpt_copy_module(net[1], net[0]);
    static const char *const paths[] = {"0.weight", "1.weight"};
    mpt_optimizer a = mpt_adam(net[0], NULL), b = mpt_adam(mpt_child(net[1], "1"), NULL);
    static const int with[] = {3, 3, 2, 3, 1, 2}; /* bits: which of the two has a gradient */
    for (int i = 0; i < 6; i++) {
        train(net[0], a, paths + (with[i] == 2), with[i] == 3 ? 2 : 1, i + 1);
        if (with[i] & 2) train(net[1], b, paths + 1, 1, i + 1);
    }
    float x[64], y[64];
    mpt_read_f32(mpt_parameter(net[0], paths[1]), x, 64);
    mpt_read_f32(mpt_parameter(net[1], paths[1]), y, 64);
    CHECK_EQ_BITS(x, y, sizeof x);
    check_ok(context);
    mpt_destroy(context);
}

TEST(step_without_any_gradient_warns_once) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    uint64_t weights = mpt_module_hash(net), state = mpt_optimizer_hash(optimizer);
    CHECK_EQ_INT(mpt_step(optimizer), MPT_OK);
    CHECK_CONTAINS(log_text, "none of the optimizer's 4 parameters has a gradient");
    CHECK_CONTAINS(log_text, "0.weight, 0.bias");
    log_text[0] = '\0';
    CHECK_EQ_INT(mpt_step(optimizer), MPT_OK);
    CHECK_EQ_STR(log_text, "");
    CHECK(mpt_module_hash(net) == weights && mpt_optimizer_hash(optimizer) == state);
    CHECK_EQ_INT(mpt_applied_steps(optimizer), 0);
    train(net, optimizer, all_paths, 4, 1);
    mpt_zero_grad(optimizer);
    mpt_step(optimizer);
    CHECK_CONTAINS(log_text, "has a gradient");
    mpt_destroy(context);
}

/* Gradients add up until zero_grad, also over steps. */
TEST(gradients_accumulate_until_zero_grad) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    float before[OUT], after[OUT];
    mpt_read_f32(mpt_parameter(net, "1.bias"), before, OUT);
    for (int i = 0; i < 3; i++) {
        mpt_step_begin(context);
        mpt_backward(loss_of(net, all_paths, 4, 0.25));
        mpt_step_end(context);
    }
    mpt_step(optimizer);
    mpt_read_f32(mpt_parameter(net, "1.bias"), after, OUT);
    for (int i = 0; i < OUT; i++) CHECK_NEAR(after[i], before[i] - 0.75f, 1e-6);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- groups ---- */

TEST(groups_have_their_own_rate_and_decay) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_group_config group;
    group.lr = 0.125, group.weight_decay = 0.5;
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, mpt_child(net, "1"), "weight", &group), 1);
    CHECK_EQ_INT(mpt_optimizer_groups(optimizer), 2);
    CHECK(mpt_get_lr(optimizer, 0) == 1 && mpt_get_lr(optimizer, 1) == 0.125);
    float w0[2][OUT * IN], w1[2][OUT * IN], b1[2][OUT];
    for (int k = 0; k < 2; k++) {
        mpt_read_f32(mpt_parameter(net, "0.weight"), w0[k], OUT * IN);
        mpt_read_f32(mpt_parameter(net, "1.weight"), w1[k], OUT * IN);
        mpt_read_f32(mpt_parameter(net, "1.bias"), b1[k], OUT);
        if (k == 0) train(net, optimizer, all_paths, 4, 0.5);
    }
    for (int i = 0; i < OUT * IN; i++) {
        CHECK_NEAR(w0[1][i], w0[0][i] - 0.5f, 1e-6);
        CHECK_NEAR(w1[1][i], w1[0][i] - 0.125f * (0.5f + 0.5f * w1[0][i]), 1e-6);
    }
    for (int i = 0; i < OUT; i++) CHECK_NEAR(b1[1][i], b1[0][i] - 0.5f, 1e-6);
    CHECK_EQ_INT(mpt_applied_steps(optimizer), 1);
    mpt_set_lr(optimizer, -1, 0.5);
    CHECK(mpt_get_lr(optimizer, 0) == 0.5 && mpt_get_lr(optimizer, 1) == 0.5);
    mpt_set_lr(optimizer, 1, 0.25);
    CHECK(mpt_get_lr(optimizer, 0) == 0.5 && mpt_get_lr(optimizer, 1) == 0.25);
    check_ok(context);
    CHECK(isnan(mpt_get_lr(optimizer, 2)));
    check_error(context, MPT_ERROR_ARGUMENT, "there is no group 2");
    mpt_set_lr(optimizer, 0, -1);
    check_error(context, MPT_ERROR_ARGUMENT, "lr");
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "2.weight", NULL), -1);
    CHECK(mpt_failed(context));
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_optimizer_groups(optimizer), 2);
    mpt_destroy(context);
}

/* A group with options of its own has the bits of an optimizer that was made with them. */
TEST(groups_have_their_own_options) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), alone = new_net(context);
    mpt_copy_module(alone, net);
    mpt_adam_config config = mpt_adam_config_default();
    mpt_optimizer a = mpt_adam(net, &config);
    config.beta1 = 0.5, config.beta2 = 0.75, config.eps = 1e-3, config.weight_decay = 0.125;
    mpt_optimizer b = mpt_adam(mpt_child(alone, "1"), &config);
    CHECK_EQ_INT(mpt_optimizer_add(a, mpt_child(net, "1"), NULL, NULL), 1);
    mpt_set_option(a, 1, "beta1", 0.5);
    mpt_set_option(a, 1, "beta2", 0.75);
    mpt_set_option(a, 1, "eps", 1e-3);
    mpt_set_option(a, 1, "weight_decay", 0.125);
    CHECK(mpt_get_option(a, 0, "beta1") == 0.9 && mpt_get_option(a, 1, "beta1") == 0.5);
    CHECK(mpt_get_option(a, 1, "weight_decay") == 0.125);
    for (int i = 0; i < 3; i++) {
        train(net, a, all_paths, 4, i + 1);
        train(alone, b, all_paths + 2, 2, i + 1);
    }
    float x[OUT * IN], y[OUT * IN];
    mpt_read_f32(mpt_parameter(net, "1.weight"), x, OUT * IN);
    mpt_read_f32(mpt_parameter(alone, "1.weight"), y, OUT * IN);
    CHECK_EQ_BITS(x, y, sizeof x);
    check_ok(context);
    mpt_optimizer plain = mpt_sgd(mpt_child(alone, "0"), NULL);
    mpt_set_option(plain, 0, "momentum", 0.9);
    check_error(context, MPT_ERROR_STATE, "keeps no momentum_buffer");
    mpt_destroy(context);
}

/* Norms of a pending multiplier are those of the gradients that a user would read. */
TEST(norms_leave_gradients_alone) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    const double count = 2.0 * (OUT * IN + OUT);
    float g[OUT];
    mpt_step_begin(context);
    CHECK(mpt_item(mpt_grad_norm(optimizer, 1)) == 0);
    mpt_backward(loss_of(net, all_paths, 4, -2));
    CHECK_CLOSE(mpt_item(mpt_grad_norm(optimizer, 1)), 2 * count, 1e-6, 0);
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm_p(optimizer, 1, INFINITY)), 2, 1e-6, 0);
    CHECK_CLOSE(mpt_item(mpt_grad_norm(optimizer, INFINITY)), 1, 1e-5, 0);
    CHECK_CLOSE(mpt_item(mpt_grad_norm(optimizer, 2)), sqrt(count), 1e-5, 0);
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, sqrt(count) / 2)), sqrt(count), 1e-5, 0);
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), g, OUT);
    CHECK_CLOSE(g[0], -0.5, 1e-5, 0);
    mpt_step_end(context);
    check_ok(context);
    mpt_destroy(context);
}

/* What moves to another group takes its moments and its step count along. */
TEST(moving_between_groups_keeps_state) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), still = new_net(context);
    mpt_copy_module(still, net);
    mpt_optimizer a = mpt_adam(net, NULL), b = mpt_adam(still, NULL);
    for (int i = 0; i < 6; i++) {
        if (i == 3) CHECK_EQ_INT(mpt_optimizer_add(a, mpt_child(net, "0"), "bias", NULL), 1);
        if (i == 4) CHECK_EQ_INT(mpt_optimizer_add(a, net, "1.weight", NULL), 2);
        train(net, a, all_paths, i == 1 ? 3 : 4, i + 1);
        train(still, b, all_paths, i == 1 ? 3 : 4, i + 1);
    }
    check_same_parameters(net, still);
    CHECK_EQ_INT(mpt_applied_steps(a), 6);
    check_ok(context);
    mpt_destroy(context);
}

/* A tree that comes later: its moments start from zero and its step count too, those held stay. */
TEST(later_parameters_start_fresh) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), late = new_net(context), alone = new_net(context);
    mpt_copy_module(alone, late);
    mpt_optimizer optimizer = mpt_adam(net, NULL), other = mpt_adam(alone, NULL);
    for (int i = 0; i < 3; i++) train(net, optimizer, all_paths, 4, i + 1);
    mpt_group_config group;
    group.lr = 1e-3, group.weight_decay = 0;
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, late, NULL, &group), 1);
    for (int i = 0; i < 3; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_add(loss_of(net, all_paths, 4, 1), loss_of(late, all_paths, 4, i - 0.5)));
        mpt_step(optimizer);
        mpt_step_end(context);
        train(alone, other, all_paths, 4, i - 0.5);
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), 6);
    float x[OUT * IN], y[OUT * IN];
    mpt_read_f32(mpt_parameter(late, "1.weight"), x, OUT * IN);
    mpt_read_f32(mpt_parameter(alone, "1.weight"), y, OUT * IN);
    CHECK_EQ_BITS(x, y, sizeof x);
    check_ok(context);
    mpt_destroy(context);
}

/* The second layer first, then the first one: the states must grow to the front. */
TEST(states_grow_around_what_they_hold) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), whole = new_net(context);
    mpt_copy_module(whole, net);
    mpt_optimizer a = mpt_adam(mpt_child(net, "1"), NULL), b = mpt_adam(whole, NULL);
    for (int i = 0; i < 2; i++) {
        train(net, a, all_paths + 2, 2, 1);
        train(whole, b, all_paths + 2, 2, 1);
    }
    mpt_optimizer_add(a, mpt_child(net, "0"), NULL, NULL);
    for (int i = 0; i < 2; i++) {
        train(net, a, all_paths, 4, 2);
        train(whole, b, all_paths, 4, 2);
    }
    check_same_parameters(net, whole);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- clipping ---- */

TEST(clip_by_norm) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    float g[OUT];
    mpt_step_begin(context);
    CHECK(mpt_item(mpt_clip_grad_norm(optimizer, 1)) == 0); /* of nothing */
    mpt_backward(loss_of(net, all_paths, 4, 2));
    double norm = 2 * sqrt(2.0 * (OUT * IN + OUT));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, 1)), norm, 1e-6, 0);
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), g, OUT);
    CHECK_CLOSE(g[0], 2 / norm, 1e-6, 0);
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, 10)), 1, 1e-5, 0); /* below: as it was */
    float again[OUT];
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), again, OUT);
    CHECK_EQ_BITS(again, g, sizeof g);
    /* a further backward adds to the clipped values, and the norm is computed anew */
    mpt_backward(loss_of(net, all_paths, 4, 2));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, INFINITY)), norm + 1, 1e-5, 0);
    /* a gradient that was read is not multiplied twice */
    mpt_zero_grad(optimizer);
    mpt_backward(loss_of(net, all_paths, 4, 2));
    mpt_clip_grad_norm(optimizer, norm / 2);
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), g, OUT);
    CHECK_CLOSE(g[0], 1, 1e-5, 0);
    mpt_clip_grad_value(optimizer, 100);
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), g, OUT);
    CHECK_CLOSE(g[0], 1, 1e-5, 0);
    /* the norm is over all groups */
    mpt_optimizer_add(optimizer, mpt_child(net, "1"), NULL, NULL);
    mpt_zero_grad(optimizer);
    mpt_backward(loss_of(net, all_paths, 4, 2));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, 1)), norm, 1e-6, 0);
    /* the factor is max_norm / (norm + 1e-6), as in PyTorch: also where all of it is small, or 0 */
    static const double small[][3] = {{1e-6, 1e-6, 0.5}, {2e-6, 1e-6, 1.0 / 3}, {0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        const double each = 2 * small[i][0] / norm; /* gradient of each element */
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_mul_scalar(loss_of(net, all_paths, 4, 2), each / 2));
        CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(optimizer, small[i][1])), small[i][0], 1e-5, 0);
        mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), g, OUT);
        CHECK_CLOSE(g[0], each * small[i][2], 1e-5, 0);
    }
    mpt_step_end(context);
    check_ok(context);
    mpt_clip_grad_norm(optimizer, -1);
    check_error(context, MPT_ERROR_ARGUMENT, "max_norm = -1");
    mpt_clip_grad_value(optimizer, NAN);
    check_error(context, MPT_ERROR_ARGUMENT, "limit");
    mpt_destroy(context);
}

/* Two optimizers over one tree: neither's clipping touches the other's gradients. */
TEST(clip_leaves_other_gradients_alone) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1;
    mpt_optimizer a = mpt_sgd(mpt_child(net, "0"), &config),
                  b = mpt_sgd(mpt_child(net, "1"), &config);
    float before[2][OUT], after[2][OUT];
    for (int k = 0; k < 2; k++)
        mpt_read_f32(mpt_parameter(net, k ? "1.bias" : "0.bias"), before[k], OUT);
    mpt_step_begin(context);
    mpt_backward(loss_of(net, all_paths, 4, 2));
    double norm = 2 * sqrt((double)(OUT * IN + OUT));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(a, norm / 2)), norm, 1e-6, 0);
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(b, 2 * norm)), norm, 1e-6, 0);
    mpt_clip_grad_value(b, 1.5);
    mpt_step(a);
    mpt_step(b);
    mpt_step_end(context);
    for (int k = 0; k < 2; k++)
        mpt_read_f32(mpt_parameter(net, k ? "1.bias" : "0.bias"), after[k], OUT);
    CHECK_NEAR(after[0][0], before[0][0] - 1, 1e-5);
    CHECK_NEAR(after[1][0], before[1][0] - 1.5, 1e-6);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- half parameters ---- */

TEST(masters_keep_what_half_loses) {
    mpt_context *context = new_context();
    mpt_module net = mpt_nn_linear_no_bias(context, 1, 1);
    mpt_half(net, MPT_F16);
    mpt_tensor p = mpt_parameter(net, "weight");
    uint16_t one = 0x3c00, bits;
    mpt_write(p, &one, 2);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1e-5; /* far below half's spacing of 2^-11 at 1 */
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_MASTER], 4);
    static const char *const path[] = {"weight"};
    for (int i = 0; i < 200; i++) train(net, optimizer, path, 1, 1);
    float value;
    mpt_read_f32(p, &value, 1);
    CHECK_NEAR(value, 0.998f, 5e-4);
    mpt_write(p, &one, 2); /* what the user writes counts, not the old master */
    train(net, optimizer, path, 1, 0);
    mpt_read(p, &bits, 2);
    CHECK_EQ_INT(bits, one);
    check_ok(context);
    mpt_half(net, MPT_BF16);
    check_error(context, MPT_ERROR_STATE, "optimizer");
    mpt_destroy(context);
}

/* Two optimizers over one tree of half parameters: neither's updates cost the other its masters. */
TEST(masters_beside_another_optimizer) {
    mpt_context *context = new_context();
    mpt_module net = mpt_sequential(context, mpt_nn_linear_no_bias(context, 1, 1),
                                    mpt_nn_linear_no_bias(context, 1, 1), MPT_END);
    mpt_half(net, MPT_F16);
    static const char *const paths[] = {"0.weight", "1.weight"};
    uint16_t one = 0x3c00;
    for (int k = 0; k < 2; k++) mpt_write(mpt_parameter(net, paths[k]), &one, 2);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1e-5;
    mpt_optimizer a = mpt_sgd(mpt_child(net, "0"), &config),
                  b = mpt_sgd(mpt_child(net, "1"), &config);
    for (int i = 0; i < 200; i++) {
        train(net, a, paths, 1, 1);
        train(net, b, paths + 1, 1, 1);
    }
    for (int k = 0; k < 2; k++) {
        float value;
        mpt_read_f32(mpt_parameter(net, paths[k]), &value, 1);
        CHECK_NEAR(value, 0.998f, 5e-4);
    }
    check_ok(context);
    mpt_destroy(context);
}

/* ---- state ---- */

TEST(hash_tells_states_apart) {
    mpt_context *context = new_context();
    mpt_module x = new_net(context), y = new_net(context);
    mpt_copy_module(y, x);
    mpt_optimizer a = mpt_adamw(x, NULL), b = mpt_adamw(y, NULL);
    CHECK(mpt_optimizer_hash(a) == mpt_optimizer_hash(b));
    train(x, a, all_paths, 4, 1);
    CHECK(mpt_optimizer_hash(a) != mpt_optimizer_hash(b));
    train(y, b, all_paths, 4, 1);
    CHECK(mpt_optimizer_hash(a) == mpt_optimizer_hash(b));
    CHECK(mpt_module_hash(x) == mpt_module_hash(y));
    check_ok(context);
    mpt_destroy(context);
}

/* A bad target is found on the device: nothing of that step may count, and what follows has the
   bits of a run in which it never was. */
TEST(an_error_leaves_weights_and_state) {
    NEEDS_PROMPT_DEVICE;
    uint64_t weights[2], state[2];
    for (int run = 0; run < 2; run++) {
        mpt_context *context = new_context();
        mpt_module net = mpt_sequential(context, mpt_nn_linear(context, IN, OUT),
                                        mpt_nn_log_softmax(context, -1), MPT_END);
        mpt_optimizer optimizer = mpt_adamw(net, NULL);
        float x[2 * IN] = {1, 2, 3, 4, 5, -1, -2, -3, -4, -5};
        int64_t good[2] = {0, 2}, bad[2] = {1, OUT};
        for (int step = 0; step < 4; step++) {
            bool wrong = run == 1 && step == 2;
            for (int again = wrong ? 0 : 1; again < 2; again++) {
                uint64_t before = mpt_module_hash(net), moments = mpt_optimizer_hash(optimizer);
                mpt_step_begin(context);
                mpt_tensor input = mpt_from(context, MPT_F32, MPT_SHAPE(2, IN), x);
                mpt_tensor target = mpt_from(context, MPT_I64, MPT_SHAPE(2), again ? good : bad);
                mpt_zero_grad(optimizer);
                mpt_backward(mpt_nll_loss(mpt_forward(net, input), target, NULL));
                mpt_clip_grad_norm(optimizer, 0.5);
                mpt_step(optimizer);
                mpt_step_end(context);
                if (again) continue;
                check_error(context, MPT_ERROR_INDEX, "sample 1");
                CHECK(mpt_module_hash(net) == before && mpt_optimizer_hash(optimizer) == moments);
            }
        }
        check_ok(context);
        weights[run] = mpt_module_hash(net);
        state[run] = mpt_optimizer_hash(optimizer);
        mpt_destroy(context);
    }
    CHECK(weights[0] == weights[1]);
    CHECK(state[0] == state[1]);
}

/* An allocator that refuses one call, `left` calls from now. */
typedef struct faulty {
    int64_t left;
    bool refused;
} faulty;

static void *faulty_allocate(void *user, size_t bytes, size_t alignment) {
    faulty *state = (faulty *)user;
    void *block = malloc(bytes + alignment + sizeof block);
    if (state->left-- == 0) {
        state->refused = true;
        free(block);
        return NULL;
    }
    if (!block) return NULL;
    uintptr_t at = ((uintptr_t)block + sizeof block + alignment) & ~(uintptr_t)(alignment - 1);
    memcpy((char *)at - sizeof block, &block, sizeof block);
    return (void *)at;
}

static void faulty_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    void *block;
    (void)user, (void)bytes, (void)alignment;
    memcpy(&block, (char *)pointer - sizeof block, sizeof block);
    free(block);
}

/* What makes an optimizer with all that belongs to it, and three steps. */
static bool build_and_train(mpt_module net, mpt_optimizer *optimizer, mpt_scaler *scaler,
                            int *steps) {
    mpt_context *context = net.context;
    if (!optimizer->slot) *optimizer = mpt_adamw(mpt_child(net, "1"), NULL);
    if (mpt_failed(context)) return false;
    if (mpt_optimizer_groups(*optimizer) < 2)
        mpt_optimizer_add(*optimizer, mpt_child(net, "0"), NULL, NULL);
    if (mpt_failed(context)) return false;
    if (!scaler->slot) {
        mpt_cosine_annealing(*optimizer, 10, 0, MPT_PER_STEP);
        if (!mpt_failed(context)) *scaler = mpt_grad_scaler(context, NULL);
        if (mpt_failed(context)) return false;
    }
    for (; *steps < 3; ++*steps) {
        mpt_step_begin(context);
        mpt_zero_grad(*optimizer);
        mpt_tensor loss = loss_of(net, all_paths, *steps == 1 ? 2 : 4, 1 + *steps);
        mpt_backward(mpt_scale_loss(*scaler, loss));
        mpt_unscale(*scaler, *optimizer);
        mpt_clip_grad_norm(*optimizer, 1);
        mpt_scaler_step(*scaler, *optimizer);
        if (mpt_failed(context)) return false;
        mpt_scaler_update(*scaler);
        mpt_step_end(context);
    }
    return !mpt_failed(context);
}

/* Whichever allocation fails: after mpt_clear_error the same calls end in the same bits. */
TEST(out_of_memory_then_on) {
    uint64_t want = 0, want_state = 0;
    bool refused = true;
    for (int64_t at = -1; refused && at < 200; at++) {
        faulty state;
        state.left = -1, state.refused = false;
        mpt_config config = mpt_config_default();
        config.allocator.allocate = faulty_allocate;
        config.allocator.release = faulty_release;
        config.allocator.user = &state;
        mpt_context *context = mpt_create(&config);
        mpt_module net = new_net(context);
        mpt_parameter(net, "0.weight");
        mpt_optimizer optimizer;
        mpt_scaler scaler;
        memset(&optimizer, 0, sizeof optimizer);
        memset(&scaler, 0, sizeof scaler);
        int steps = 0, failures = test_failures;
        state.left = at;
        bool done = build_and_train(net, &optimizer, &scaler, &steps);
        refused = state.refused;
        state.left = -1;
        if (at < 0) {
            want = mpt_module_hash(net), want_state = mpt_optimizer_hash(optimizer);
            refused = true;
        } else if (refused) {
            if (!done) CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
            mpt_clear_error(context);
            if (!scaler.slot && optimizer.slot) { /* whether the schedule was made is unknown */
                mpt_optimizer_destroy(optimizer);
                memset(&optimizer, 0, sizeof optimizer);
            }
            if (!done) CHECK(build_and_train(net, &optimizer, &scaler, &steps));
        }
        check_ok(context);
        CHECK_EQ_INT(mpt_applied_steps(optimizer), 3);
        CHECK(mpt_module_hash(net) == want && mpt_optimizer_hash(optimizer) == want_state);
        mpt_destroy(context);
        if (test_failures != failures) {
            printf(" with allocation %d refused", (int)at);
            break;
        }
    }
    CHECK(!refused);
}

/* ---- every kind of optimizer ---- */

#ifdef MPTRAIN_CUDA
enum { KINDS = 9, WIDE = 20 }; /* a simulated device is slow, and runs no kernel in threads */
#else
enum { KINDS = 9, WIDE = 150 };
#endif

static mpt_optimizer optimizer_of(mpt_module net, int kind) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    sgd.momentum = 0.9;
    adam.amsgrad = kind == 2, adam.weight_decay = 0.01, adam.maximize = kind == 2;
    rmsprop.centered = kind > 4, rmsprop.momentum = kind > 5 ? 0.9 : 0;
    rmsprop.lr = 1e-3;
    switch (kind) {
    case 0:
        return mpt_sgd(net, &sgd);
    case 1:
    case 2:
        return mpt_adam(net, &adam);
    case 3:
        return mpt_adamw(net, &adam);
    case 4:
    case 5:
    case 6:
        return mpt_rmsprop(net, &rmsprop);
    case 7:
        return mpt_adagrad(net, NULL);
    default:
        return mpt_lion(net, NULL);
    }
}

/* 12 scaled steps over a net that is large enough for several threads. Steps in `bad` overflow, or,
   without `tried`, are left out. */
static uint64_t run_kind(int kind, bool half, int threads, unsigned bad, bool tried) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    mpt_context *context = mpt_create(&config);
    mpt_module net = mpt_nn_linear(context, WIDE, 300);
    if (half) mpt_half(net, MPT_F16);
    mpt_optimizer optimizer = kind == KINDS ? mpt_adadelta(net, NULL) : optimizer_of(net, kind);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.init_scale = 256, sc.fixed = true;
    mpt_scaler scaler = mpt_grad_scaler(context, &sc);
    mpt_tensor w = mpt_parameter(net, "weight");
    int64_t allocations = 0;
    int64_t steps = 0;
    for (int i = 0; i < 12; i++) {
        bool overflow = (bad >> i & 1) != 0;
        if (overflow && !tried) continue;
        if (i == 6) allocations = mpt_memory(context).allocations;
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_tensor loss = mpt_mean(mpt_mul(w, w), MPT_ALL_DIMS, false);
        loss = mpt_mul_scalar(mpt_cast(loss, MPT_F32), overflow ? (double)INFINITY : 100.0 + i);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);
        mpt_clip_grad_norm(optimizer, 0.5);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(context);
        steps += !overflow;
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
    CHECK_EQ_INT(mpt_applied_steps(optimizer), steps);
    uint64_t hash = mpt_module_hash(net) * 31 + mpt_optimizer_hash(optimizer);
    check_ok(context);
    mpt_destroy(context);
    return hash;
}

/* Overflow changes nothing, nor does the number of threads, and no step calls the allocator. */
TEST(every_kind_skips_and_repeats) {
    for (int kind = 0; kind <= KINDS; kind++) {
        for (int half = 0; half < 2; half++) {
            int failures = test_failures;
            uint64_t want = run_kind(kind, half, 1, 0x412, false);
            CHECK(run_kind(kind, half, 1, 0x412, true) == want);
            CHECK(run_kind(kind, half, 3, 0x412, true) == want);
            if (test_failures != failures) printf(" kind %d, half %d", kind, half);
        }
    }
}

/* What joins later starts with the accumulator that the config says, and the rest keeps its own. */
TEST(adagrad_starts_from_its_accumulator) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_adagrad_config config = mpt_adagrad_config_default();
    config.initial_accumulator = 3, config.lr = 1;
    mpt_optimizer optimizer = mpt_adagrad(mpt_child(net, "1"), &config);
    float before[2][OUT], after[2][OUT];
    for (int k = 0; k < 2; k++)
        mpt_read_f32(mpt_parameter(net, all_paths[1 + 2 * k]), before[k], OUT);
    train(net, optimizer, all_paths + 2, 2, 1); /* 1 / sqrt(4) */
    mpt_optimizer_add(optimizer, mpt_child(net, "0"), NULL, NULL);
    train(net, optimizer, all_paths, 4, 2); /* 2 / sqrt(8), 2 / sqrt(7) */
    for (int k = 0; k < 2; k++)
        mpt_read_f32(mpt_parameter(net, all_paths[1 + 2 * k]), after[k], OUT);
    CHECK_NEAR(after[0][0], before[0][0] - 2 / sqrt(7.0), 1e-6);
    CHECK_NEAR(after[1][0], before[1][0] - 0.5 - 2 / sqrt(8.0), 1e-6);
    check_ok(context);
    mpt_destroy(context);
}

TEST(steady_state_allocates_nothing) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_cosine_annealing(optimizer, 100, 0, MPT_PER_STEP);
    int64_t before = 0;
    for (int i = 0; i < 20; i++) {
        if (i == 10) before = mpt_memory(context).allocations;
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_backward(loss_of(net, all_paths, i % 2 ? 4 : 2, 1));
        mpt_clip_grad_norm(optimizer, 1);
        mpt_step(optimizer);
        mpt_step_end(context);
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, before);
    check_ok(context);
    mpt_destroy(context);
}

TEST(destroying) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context);
    mpt_memory_stats before = mpt_memory(context);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_schedule schedule = mpt_cosine_annealing(optimizer, 10, 0, MPT_PER_STEP);
    mpt_step_begin(context);
    mpt_backward(loss_of(net, all_paths, 4, 2));
    mpt_clip_grad_norm(optimizer, 1);
    mpt_step_end(context);
    float clipped[OUT];
    mpt_optimizer_destroy(optimizer); /* with a multiplier pending: the gradients keep it */
    mpt_read_f32(mpt_grad(mpt_parameter(net, "0.bias")), clipped, OUT);
    CHECK_CLOSE(clipped[0], 1 / sqrt(2.0 * (OUT * IN + OUT)), 1e-5, 0);
    mpt_memory_stats after = mpt_memory(context);
    CHECK_EQ_INT(after.current[MPT_MEMORY_MOMENT], before.current[MPT_MEMORY_MOMENT]);
    check_ok(context);
    mpt_step(optimizer);
    check_error(context, MPT_ERROR_HANDLE, "the optimizer was destroyed");
    mpt_schedule_step(schedule);
    check_error(context, MPT_ERROR_STATE, "was destroyed");
    mpt_schedule_destroy(schedule);
    check_ok(context);
    optimizer = mpt_adamw(net, NULL);
    train(net, optimizer, all_paths, 4, 1);
    mpt_module_destroy(net);
    check_error(context, MPT_ERROR_STATE, "mpt_optimizer_destroy it first");
    mpt_adamw_config config = mpt_adamw_config_default();
    config.allow_shared = true;
    mpt_optimizer second = mpt_adamw(net, &config);
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net); /* which nothing holds but the second one, as a guest */
    check_ok(context);
    mpt_step(second);
    check_error(context, MPT_ERROR_STATE, "destroy the optimizer too");
    mpt_optimizer_destroy(second);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- averages ---- */

/* Half parameters with masters: what overflow skips leaves averages alone, and averages that stand
   in for the values for a while leave no trace, not even in the masters. */
static uint64_t run_average(bool looked_at, bool overflows, int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    mpt_context *context = mpt_create(&config);
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 100, 120),
                                    mpt_nn_linear(context, 10, 10), MPT_END);
    mpt_half(net, MPT_F16);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_ema_config ec = mpt_ema_config_default();
    ec.decay = 0.75;
    mpt_ema ema = mpt_ema_create(net, optimizer, &ec);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.init_scale = 256, sc.fixed = true;
    mpt_scaler scaler = mpt_grad_scaler(context, &sc);
    mpt_tensor w = mpt_parameter(net, "0.weight");
    int64_t allocations = 0;
    for (int i = 0; i < 16; i++) {
        bool bad = i % 5 == 3;
        if (bad && !overflows) continue;
        if (i == 7) allocations = mpt_memory(context).allocations;
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_tensor loss = mpt_cast(mpt_mean(mpt_mul(w, w), MPT_ALL_DIMS, false), MPT_F32);
        loss = mpt_mul_scalar(loss, bad ? (double)INFINITY : 1.0 + i);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_ema_update(ema);
        if (i % 3 == 0) mpt_ema_update(ema); /* no step since */
        mpt_step_end(context);
        if (!looked_at) continue;
        mpt_ema_apply(ema);
        mpt_ema_restore(ema);
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
    uint64_t hash =
        mpt_module_hash(net) * 31 + mpt_optimizer_hash(optimizer) * 7 + mpt_ema_hash(ema);
    check_ok(context);
    mpt_destroy(context);
    return hash;
}

TEST(averages_follow_applied_steps) {
    uint64_t want = run_average(false, false, 1);
    CHECK(run_average(false, true, 1) == want);
    CHECK(run_average(true, true, 1) == want);
    CHECK(run_average(true, true, 3) == want);
}

TEST(averages_stand_in_for_values) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), other = new_net(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_ema_config config = mpt_ema_config_default();
    config.decay = 0.5;
    mpt_ema ema = mpt_ema_create(mpt_child(net, "1"), optimizer, &config);
    uint64_t start = mpt_ema_hash(ema);
    float before[OUT], got[OUT];
    mpt_read_f32(mpt_parameter(net, "1.bias"), before, OUT);
    mpt_ema_update(ema); /* no step yet: as made */
    CHECK(mpt_ema_hash(ema) == start);
    for (int i = 0; i < 2; i++) {
        train(net, optimizer, all_paths, 4, 1000); /* by -1 */
        mpt_ema_update(ema);
    }
    CHECK(mpt_ema_hash(ema) != start);
    mpt_ema_apply(ema);
    mpt_copy_module(other, net);
    mpt_read_f32(mpt_parameter(other, "1.bias"), got, OUT);
    for (int i = 0; i < OUT; i++) CHECK_NEAR(got[i], before[i] - 1.5, 1e-6);
    check_ok(context);
    mpt_step_begin(context);
    mpt_backward(loss_of(net, all_paths, 4, 1));
    mpt_step(optimizer);
    check_error(context, MPT_ERROR_STATE, "mpt_ema_restore");
    CHECK_EQ_INT(mpt_ema_restore(ema), MPT_OK);
    mpt_read_f32(mpt_parameter(net, "1.bias"), got, OUT);
    for (int i = 0; i < OUT; i++) CHECK_NEAR(got[i], before[i] - 2, 1e-6);
    train(net, optimizer, all_paths, 4, 1);
    check_ok(context);
    mpt_ema_apply(ema);
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
    mpt_ema_restore(ema);
    check_error(context, MPT_ERROR_HANDLE, "module");
    CHECK_EQ_INT(mpt_ema_destroy(ema), MPT_OK); /* there is nothing left to restore */
    mpt_destroy(context);
}

/* Bit i: parameter i of a net of single numbers changes while the averages of `of` are applied. */
static unsigned averaged(mpt_module net, mpt_module of) {
    mpt_context *context = net.context;
    mpt_sgd_config config = mpt_sgd_config_default();
    const int count = mpt_parameter_count(net);
    float now, then[8];
    unsigned bits = 0;
    config.lr = 1;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_ema ema = mpt_ema_create(of, optimizer, NULL);
    for (int step = 0; step < 2; step++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        for (int i = 0; i < count; i++)
            mpt_backward(mpt_sum(mpt_parameter_at(net, i, NULL, 0), MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_ema_update(ema);
        mpt_step_end(context);
    }
    for (int i = 0; i < count; i++)
        mpt_read_f32(mpt_parameter_at(net, i, NULL, 0), &then[i], 1);
    mpt_ema_apply(ema);
    for (int i = 0; i < count; i++) {
        mpt_read_f32(mpt_parameter_at(net, i, NULL, 0), &now, 1);
        bits |= (unsigned)(now != then[i]) << i;
    }
    mpt_ema_restore(ema);
    check_ok(context);
    return bits;
}

/* Not what lies between parameters of a module that other parts of the net share; and all there is
   where layers were made halves one by one. */
TEST(averages_are_of_their_module) {
    for (int turn = 0; turn < 3; turn++) {
        mpt_context *context = new_context();
        mpt_module layer[6], net, pair;
        for (int i = 0; i < 6; i++) layer[i] = mpt_nn_linear_no_bias(context, 1, 1);
        if (turn < 2) {
            pair = mpt_sequential(context, layer[turn], layer[1 - turn], MPT_END);
            net = mpt_sequential(context, layer[0], layer[2], layer[1], pair, MPT_END);
        } else {
            pair = net = mpt_nn_list_array(context, layer, 6);
            for (int i = 0; i < 5; i++) mpt_half(layer[i], MPT_BF16);
        }
        CHECK_EQ_INT(averaged(net, pair), turn < 2 ? 5 : 63);
        mpt_destroy(context);
    }
}

/* Where mpt_half took parameters away, averages do not find those of another net instead. */
TEST(averages_of_what_has_moved) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context), half = new_net(context), late = new_net(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_ema ema = mpt_ema_create(half, optimizer, NULL), own = mpt_ema_create(net, optimizer, NULL);
    mpt_ema_apply(ema);
    CHECK_EQ_INT(mpt_half(half, MPT_BF16), MPT_OK);
    const uint64_t before = mpt_module_hash(late);
    mpt_ema_restore(ema);
    check_error(context, MPT_ERROR_STATE, "mpt_half moved parameters");
    train(net, optimizer, all_paths, 4, 1);
    mpt_ema_update(own);
    check_ok(context);
    mpt_ema_update(ema);
    check_error(context, MPT_ERROR_STATE, "make averages anew");
    CHECK(mpt_module_hash(late) == before);
    CHECK_EQ_INT(mpt_ema_destroy(ema), MPT_OK);
    mpt_destroy(context);
}

/* ---- schedules ---- */

static const char *const bias_path[] = {"bias"};

/* The bias of a layer that starts at 0 and has gradient -1 counts up by the rates. */
static mpt_module new_counter(mpt_context *context) {
    mpt_module net = mpt_nn_linear(context, 1, 1);
    mpt_set_init(net, "bias", mpt_init_make(MPT_INIT_ZEROS, 0, 0));
    return net;
}

static double cosine(double base, double eta, double t, double t_max) {
    return eta + (base - eta) * (1 + cos(3.14159265358979323846 * t / t_max)) / 2;
}

/* Longer than any table on the device. */
TEST(cosine_over_many_steps) {
    mpt_context *context = new_context();
    mpt_module net = new_counter(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_cosine_annealing(optimizer, 2100, 0.25, MPT_PER_STEP);
    float before = 0, after;
    for (int t = 0; t < 2500; t++) {
        double want = cosine(1, 0.25, t, 2100);
        if (t % 100 == 0 || (t > 1020 && t < 1030))
            CHECK_CLOSE(mpt_get_lr(optimizer, 0), want, 1e-12, 0);
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_mul_scalar(mpt_sum(mpt_parameter(net, "bias"), 0, false), -1));
        mpt_step(optimizer);
        mpt_step_end(context);
        mpt_read_f32(mpt_parameter(net, "bias"), &after, 1);
        int failures = test_failures;
        CHECK_NEAR(after - before, want, 2e-4);
        if (test_failures != failures) break;
        before = after;
    }
    check_ok(context);
    mpt_destroy(context);
}

TEST(warmup_by_epoch) {
    mpt_context *context = new_context();
    mpt_module net = new_counter(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.05;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_schedule schedule = mpt_warmup(optimizer, 0.5, 4, 0, 0, MPT_PER_EPOCH);
    static const double want[] = {.025, .03125, .0375, .04375, .05, .05};
    for (int epoch = 0; epoch < 6; epoch++) {
        CHECK_CLOSE(mpt_get_lr(optimizer, 0), want[epoch], 1e-12, 0);
        train(net, optimizer, bias_path, 1, 1); /* steps do not move it */
        mpt_schedule_step(schedule);
    }
    check_ok(context);
    mpt_destroy(context);
}

TEST(schedule_and_rates_by_hand) {
    mpt_context *context = new_context();
    mpt_module net = new_counter(context);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 1;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_schedule schedule = mpt_cosine_annealing(optimizer, 4, 0, MPT_PER_STEP);
    train(net, optimizer, bias_path, 1, 1);
    mpt_set_lr(optimizer, 0, 2); /* what the schedule starts from */
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), cosine(2, 0, 1, 4), 1e-12, 0);
    float before, after;
    mpt_read_f32(mpt_parameter(net, "bias"), &before, 1);
    train(net, optimizer, bias_path, 1, -1);
    mpt_read_f32(mpt_parameter(net, "bias"), &after, 1);
    CHECK_NEAR(after - before, cosine(2, 0, 1, 4), 1e-5);
    mpt_group_config group;
    group.lr = 8, group.weight_decay = 0;
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "weight", &group), 1);
    CHECK_CLOSE(mpt_get_lr(optimizer, 1), 4, 1e-12, 0);
    log_text[0] = '\0';
    mpt_schedule_step(schedule);
    CHECK_CONTAINS(log_text, "moves by itself");
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), 1, 1e-12, 0);
    check_ok(context);
    mpt_cosine_annealing(optimizer, 4, 0, MPT_PER_STEP);
    check_error(context, MPT_ERROR_STATE, "has a schedule already");
    mpt_schedule_destroy(schedule); /* the rates stay where they are */
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), 1, 1e-12, 0);
    mpt_read_f32(mpt_parameter(net, "bias"), &before, 1);
    train(net, optimizer, bias_path, 1, -1);
    mpt_read_f32(mpt_parameter(net, "bias"), &after, 1);
    CHECK_NEAR(after - before, 1, 1e-5);
    check_ok(context);
    mpt_cosine_annealing(optimizer, 0, 0, MPT_PER_STEP);
    check_error(context, MPT_ERROR_ARGUMENT, "t_max = 0");
    mpt_warmup(optimizer, 2, 4, 0, 0, MPT_PER_STEP);
    check_error(context, MPT_ERROR_ARGUMENT, "start = 2");
    mpt_warmup(optimizer, 0.5, 0, 0, 0, MPT_PER_STEP);
    check_error(context, MPT_ERROR_ARGUMENT, "warmup = 0");
    mpt_cosine_annealing(optimizer, 4, NAN, MPT_PER_STEP);
    check_error(context, MPT_ERROR_ARGUMENT, "eta_min");
    mpt_destroy(context);
}

/* One cycle of SGD's momentum and rate, in steps of which some are skipped. */
typedef struct cycle_run {
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_ema ema;
} cycle_run;

static mpt_status cycle_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const cycle_run *run = (const cycle_run *)user;
    (void)y;
    mpt_step_begin(context);
    mpt_zero_grad(run->optimizer);
    mpt_tensor loss = mpt_sum(mpt_mul(mpt_parameter(run->net, "0.weight"), x), MPT_ALL_DIMS, false);
    mpt_backward(mpt_scale_loss(run->scaler, loss));
    mpt_scaler_step(run->scaler, run->optimizer);
    mpt_scaler_update(run->scaler);
    mpt_ema_update(run->ema);
    return mpt_step_end(context);
}

/* A captured step has the bits of one that is not, whatever the schedule moves. */
TEST(schedules_in_captured_steps) {
    uint64_t weights[2], state[2];
    for (int kind = 0; kind < 2; kind++) {
        for (int captured = 0; captured < 2; captured++) {
            mpt_context *context = new_context();
            cycle_run run;
            memset(&run, 0, sizeof run);
            run.net = new_net(context);
            mpt_sgd_config config = mpt_sgd_config_default();
            config.momentum = 0.5, config.lr = 0.1;
            run.optimizer = mpt_sgd(run.net, &config);
            run.scaler = mpt_grad_scaler(context, NULL);
            run.ema = mpt_ema_create(run.net, run.optimizer, NULL);
            mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
            cycle.total = 30;
            int64_t at[1] = {9};
            mpt_rate rates[2] = {mpt_linear_lr(0.1, 1, 9), mpt_step_lr(4, 0.5)};
            if (kind == 0) {
                mpt_one_cycle(run.optimizer, &cycle, MPT_PER_STEP);
            } else {
                mpt_sequential_lr(run.optimizer, rates, 2, at, MPT_PER_STEP);
            }
            mpt_tensor none;
            memset(&none, 0, sizeof none);
            mpt_captured steps = mpt_capture(context, cycle_step, &run);
            for (int i = 0; i < 40; i++) {
                float x[OUT * IN];
                for (int k = 0; k < OUT * IN; k++) x[k] = i % 6 == 4 ? INFINITY : (float)(k - i);
                mpt_tensor input = mpt_from(context, MPT_F32, MPT_SHAPE(OUT, IN), x);
                if (captured) {
                    mpt_captured_step(steps, input, none);
                } else {
                    cycle_step(context, &run, input, input);
                }
                mpt_release(input);
            }
            int replayed = mpt_config_default().debug ? 36 : 38; /* two are compared, eagerly */
            CHECK_EQ_INT(mpt_captured_count(steps), captured ? replayed : 0);
            CHECK_EQ_INT(mpt_applied_steps(run.optimizer), 34);
            weights[captured] = mpt_module_hash(run.net);
            state[captured] = mpt_optimizer_hash(run.optimizer) * 31 + mpt_ema_hash(run.ema);
            check_ok(context);
            mpt_destroy(context);
        }
        CHECK(weights[0] == weights[1] && state[0] == state[1]);
    }
}

/* Weights from a file, a new optimizer: set_state lets the schedule go on where it was. */
TEST(schedule_goes_on_elsewhere) {
    mpt_context *context = new_context();
    mpt_module net = new_counter(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_schedule schedule = mpt_schedule_create(optimizer, mpt_step_lr(10, 0.5), MPT_PER_STEP);
    mpt_schedule_state state;
    memset(&state, 0, sizeof state);
    state.time = 19;
    CHECK_EQ_INT(mpt_schedule_set_state(schedule, &state), MPT_OK);
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), 5e-4, 1e-12, 0);
    train(net, optimizer, bias_path, 1, 1);
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), 2.5e-4, 1e-12, 0);
    CHECK_EQ_INT(mpt_schedule_get_state(schedule).time, 20);
    uint64_t hash = mpt_optimizer_hash(optimizer);
    state.time = 5;
    mpt_schedule_set_state(schedule, &state);
    CHECK(mpt_optimizer_hash(optimizer) != hash);
    train(net, optimizer, bias_path, 1, 1); /* from the new table */
    float value;
    mpt_read_f32(mpt_parameter(net, "bias"), &value, 1);
    CHECK_NEAR(value, -5e-4 - 1e-3, 1e-8);
    check_ok(context);
    mpt_destroy(context);
}

/* A skipped step does not move a schedule per step. */
TEST(schedule_counts_applied_steps) {
    mpt_context *context = new_context();
    mpt_module net = new_counter(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(context, NULL);
    mpt_cosine_annealing(optimizer, 10, 0, MPT_PER_STEP);
    for (int i = 0; i < 6; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_tensor bias = mpt_sum(mpt_parameter(net, "bias"), 0, false);
        mpt_backward(mpt_scale_loss(scaler, mpt_mul_scalar(bias, i % 2 ? INFINITY : 1)));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(context);
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), 3);
    CHECK_CLOSE(mpt_get_lr(optimizer, 0), cosine(1e-3, 0, 3, 10), 1e-12, 0);
    check_ok(context);
    mpt_destroy(context);
}

/* A parameter that moves to another block leaves its gradient's place behind: what comes later
   stands where the optimizer looks. */
TEST(gradients_after_parameters_moved) {
    mpt_context *context = mpt_create(NULL);
    mpt_module net = mpt_nn_linear_no_bias(context, 2, 1);
    const float start[2] = {0.5f, -1.0f}, lines[2] = {1.0f, 3.0f};
    float values[2] = {0};
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(1, 2), lines), weight;
    for (int half = 0; half < 2; half++) {
        if (half) mpt_half(net, MPT_F16);
        weight = mpt_parameter(net, "weight");
        if (!half) mpt_write(weight, start, sizeof start);
        mpt_autocast_begin(context, MPT_F16);
        mpt_backward(mpt_sum(mpt_forward(net, x), MPT_ALL_DIMS, false));
        mpt_autocast_end(context);
        mpt_read_f32(mpt_grad(weight), values, 2);
        CHECK(values[0] == 1.0f && values[1] == 3.0f);
    }
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.5;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    mpt_step(optimizer);
    mpt_read_f32(weight, values, 2);
    CHECK(values[0] == 0.0f && values[1] == -2.5f);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

TEST_TABLE = {
    T(bad_configurations_are_named),
    T(gradients_after_parameters_moved),
    T(parameter_in_two_optimizers),
    T(parameters_without_gradient_are_left_alone),
    T(step_counts_are_per_parameter),
    T(neighbours_have_their_own_counts),
    T(step_without_any_gradient_warns_once),
    T(gradients_accumulate_until_zero_grad),
    T(groups_have_their_own_rate_and_decay),
    T(groups_have_their_own_options),
    T(norms_leave_gradients_alone),
    T(moving_between_groups_keeps_state),
    T(later_parameters_start_fresh),
    T(states_grow_around_what_they_hold),
    T(clip_by_norm),
    T(clip_leaves_other_gradients_alone),
    T(masters_keep_what_half_loses),
    T(masters_beside_another_optimizer),
    T(hash_tells_states_apart),
    T(an_error_leaves_weights_and_state),
    T(out_of_memory_then_on),
    T(every_kind_skips_and_repeats),
    T(adagrad_starts_from_its_accumulator),
    T(steady_state_allocates_nothing),
    T(destroying),
    T(averages_follow_applied_steps),
    T(averages_stand_in_for_values),
    T(averages_are_of_their_module),
    T(averages_of_what_has_moved),
    T(cosine_over_many_steps),
    T(warmup_by_epoch),
    T(schedule_and_rates_by_hand),
    T(schedules_in_captured_steps),
    T(schedule_goes_on_elsewhere),
    T(schedule_counts_applied_steps),
};

TEST_MAIN
