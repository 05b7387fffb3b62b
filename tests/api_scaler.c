/* api_scaler.c: the gradient scaler where it is better than the original on purpose, its misuse,
 * and what a skipped step may not touch. Traces against PyTorch: api_golden_train.c. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"

#include <math.h>

#define OUT 3
#define IN 5

static char log_text[8192];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user;
    size_t length = strlen(log_text);
    if (level >= MPT_LOG_INFO)
        snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

/* A net of two layers "0" and "1" under AdamW, and a scaler. */
typedef struct scaled_net {
    mpt_context *context;
    mpt_module module;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
} scaled_net;

static scaled_net new_net(const mpt_scaler_config *config) {
    scaled_net net;
    mpt_config c = mpt_config_default();
    c.log.write = keep_log;
    log_text[0] = '\0';
    net.context = mpt_create(&c);
    mpt_module first = mpt_nn_linear(net.context, IN, OUT),
               second = mpt_nn_linear(net.context, IN, OUT);
    net.module = mpt_sequential(net.context, first, second, MPT_END);
    net.optimizer = mpt_adamw(net.module, NULL);
    net.scaler = mpt_grad_scaler(net.context, config);
    return net;
}

/* A loss whose gradient is `value` for all elements of "<layer>.weight" and "<layer>.bias". */
static mpt_tensor layer_loss(const scaled_net *net, const char *layer, double value) {
    char path[32];
    snprintf(path, sizeof path, "%s.weight", layer);
    mpt_tensor a = mpt_sum(mpt_parameter(net->module, path), MPT_ALL_DIMS, false);
    snprintf(path, sizeof path, "%s.bias", layer);
    mpt_tensor b = mpt_sum(mpt_parameter(net->module, path), MPT_ALL_DIMS, false);
    return mpt_mul_scalar(mpt_add(a, b), value);
}

static mpt_tensor loss_of(const scaled_net *net, double value) {
    return mpt_add(layer_loss(net, "0", value), layer_loss(net, "1", value));
}

static void train(const scaled_net *net, double value) {
    mpt_step_begin(net->context);
    mpt_zero_grad(net->optimizer);
    mpt_backward(mpt_scale_loss(net->scaler, loss_of(net, value)));
    mpt_scaler_step(net->scaler, net->optimizer);
    mpt_scaler_update(net->scaler);
    mpt_step_end(net->context);
}

/* ---- what a step may and may not touch ---- */

TEST(overflow_leaves_everything) {
    static const double bad[] = {INFINITY, -INFINITY, NAN};
    scaled_net net = new_net(NULL);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_NONE);
    for (int i = 0; i < 3; i++) train(&net, 0.01);
    uint64_t weights = mpt_module_hash(net.module), state = mpt_optimizer_hash(net.optimizer);
    for (int i = 0; i < 3; i++) {
        train(&net, bad[i]);
        CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_SKIPPED);
        CHECK(mpt_module_hash(net.module) == weights);
        CHECK(mpt_optimizer_hash(net.optimizer) == state);
    }
    CHECK(mpt_get_scale(net.scaler) == 8192);
    mpt_scaler_stats stats = mpt_scaler_statistics(net.scaler);
    CHECK_EQ_INT(stats.steps, 6);
    CHECK_EQ_INT(stats.skipped, 3);
    CHECK_EQ_INT(stats.skipped_in_a_row, 3);
    CHECK_EQ_INT(stats.last_skipped_step, 6);
    CHECK_EQ_INT(stats.growth_tracker, 0);
    CHECK(stats.scale == 8192);
    CHECK_EQ_INT(mpt_applied_steps(net.optimizer), 3);
    train(&net, 0.01);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    CHECK(mpt_module_hash(net.module) != weights);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).skipped_in_a_row, 0);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* A first step that overflows must not count as the first of momentum. */
TEST(overflow_in_the_first_step) {
    float after[2][OUT];
    for (int run = 0; run < 2; run++) {
        scaled_net net = new_net(NULL);
        mpt_optimizer_destroy(net.optimizer);
        mpt_sgd_config config = mpt_sgd_config_default();
        config.momentum = 0.9;
        config.dampening = 0.5;
        net.optimizer = mpt_sgd(net.module, &config);
        if (run) train(&net, INFINITY);
        for (int i = 0; i < 3; i++) train(&net, 0.5 + i);
        mpt_read_f32(mpt_parameter(net.module, "1.bias"), after[run], OUT);
        check_ok(net.context);
        mpt_destroy(net.context);
    }
    CHECK_EQ_BITS(after[1], after[0], sizeof after[0]);
}

/* A power of two is exact: scaled and unscaled training have the same bits, clipping included. */
TEST(scaling_is_invisible) {
    for (int clip = 0; clip < 2; clip++) {
        uint64_t weights[2], state[2];
        for (int run = 0; run < 2; run++) {
            scaled_net net = new_net(NULL);
            for (int i = 0; i < 5; i++) {
                mpt_step_begin(net.context);
                mpt_zero_grad(net.optimizer);
                mpt_tensor loss = loss_of(&net, 0.1 * (i + 1));
                mpt_backward(run ? mpt_scale_loss(net.scaler, loss) : loss);
                if (run && clip) mpt_unscale(net.scaler, net.optimizer);
                if (clip) mpt_clip_grad_norm(net.optimizer, 0.5);
                if (run) {
                    mpt_scaler_step(net.scaler, net.optimizer);
                    mpt_scaler_update(net.scaler);
                } else {
                    mpt_step(net.optimizer);
                }
                mpt_step_end(net.context);
            }
            check_ok(net.context);
            weights[run] = mpt_module_hash(net.module);
            state[run] = mpt_optimizer_hash(net.optimizer);
            mpt_destroy(net.context);
        }
        CHECK(weights[0] == weights[1]);
        CHECK(state[0] == state[1]);
    }
}

/* Whoever reads a gradient after unscale sees its true value. */
TEST(gradients_read_after_unscale) {
    scaled_net net = new_net(NULL);
    float g[OUT];
    mpt_step_begin(net.context);
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 0.375)));
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "0.bias")), g, OUT);
    CHECK(g[0] == 0.375f * 65536);
    mpt_tensor before = mpt_grad(mpt_parameter(net.module, "0.bias"));
    mpt_unscale(net.scaler, net.optimizer);
    mpt_read_f32(before, g, OUT);
    CHECK(g[0] == 0.375f); /* by an old handle too */
    mpt_release(before);
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "0.bias")), g, OUT);
    CHECK(g[0] == 0.375f);
    double norm = 0.375 * sqrt(2.0 * (OUT * IN + OUT));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(net.optimizer, norm / 2)), norm, 1e-6, 0);
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "1.bias")), g, OUT);
    CHECK_CLOSE(g[0], 0.1875, 1e-5, 0);
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_scaler_update(net.scaler);
    mpt_step_end(net.context);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    /* a backward after unscale adds to the true values, and the norm is not that of before */
    mpt_zero_grad(net.optimizer);
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 0.375)));
    mpt_unscale(net.scaler, net.optimizer);
    mpt_backward(loss_of(&net, 0.375));
    CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(net.optimizer, 1)), 2 * norm, 1e-6, 0);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* ---- the scale ---- */

TEST(floor_ceiling_and_growth) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.init_scale = 8;
    config.growth_interval = 2;
    config.min_scale = 2;
    config.max_scale = 24;
    scaled_net net = new_net(&config);
    static const double falling[] = {4, 2, 2}, rising[] = {2, 4, 4, 8, 8, 16, 16, 24, 24, 24};
    for (int i = 0; i < 3; i++) {
        train(&net, INFINITY);
        CHECK(mpt_get_scale(net.scaler) == falling[i]);
    }
    for (int i = 0; i < 10; i++) {
        train(&net, 1);
        CHECK(mpt_get_scale(net.scaler) == rising[i]);
    }
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* An interval set below the tracker grows at once, not never. */
TEST(interval_below_the_tracker) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.growth_interval = 100;
    scaled_net net = new_net(&config);
    for (int i = 0; i < 5; i++) train(&net, 1);
    mpt_scaler_state state = mpt_scaler_get_state(net.scaler);
    CHECK_EQ_INT(state.growth_tracker, 5);
    state.growth_interval = 3;
    CHECK_EQ_INT(mpt_scaler_set_state(net.scaler, &state), MPT_OK);
    train(&net, 1);
    CHECK(mpt_get_scale(net.scaler) == 131072);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* Finite scaled gradients that overflow only when the scale is divided out. */
TEST(overflow_after_the_multiplication) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.min_scale = 0;
    config.init_scale = 0x1p-120;
    scaled_net net = new_net(&config);
    uint64_t weights = mpt_module_hash(net.module);
    mpt_step_begin(net.context);
    mpt_scale_loss(net.scaler, loss_of(&net, 1));
    mpt_backward(mpt_mul_scalar(loss_of(&net, 5e5), 2)); /* scaled by hand: who does, may */
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_scaler_update(net.scaler);
    mpt_step_end(net.context);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_SKIPPED);
    CHECK(mpt_module_hash(net.module) == weights);
    train(&net, 1); /* nothing of it stays behind */
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    check_ok(net.context);
    mpt_destroy(net.context);
}

TEST(fixed_scale) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.init_scale = 1e4;
    config.fixed = true;
    config.growth_interval = 1;
    scaled_net net = new_net(&config);
    train(&net, 1);
    train(&net, INFINITY);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_SKIPPED);
    train(&net, 1);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    CHECK(mpt_get_scale(net.scaler) == 1e4);
    CHECK_EQ_INT(mpt_applied_steps(net.optimizer), 2);
    mpt_tensor loss = mpt_full(net.context, MPT_F32, MPT_SCALAR, 0.5);
    CHECK(mpt_item(mpt_scale_loss(net.scaler, loss)) == 5000);
    check_ok(net.context);
    mpt_destroy(net.context);
}

TEST(set_scale_and_state) {
    scaled_net net = new_net(NULL);
    train(&net, 1);
    CHECK_EQ_INT(mpt_set_scale(net.scaler, 1000), MPT_OK);
    CHECK(mpt_get_scale(net.scaler) == 1000);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).growth_tracker, 1);
    mpt_scaler_state state = mpt_scaler_get_state(net.scaler), back;
    CHECK(state.scale == 1000 && state.growth_factor == 2 && state.backoff_factor == 0.5);
    CHECK_EQ_INT(state.growth_interval, 2000);
    state.scale = 64, state.growth_tracker = 7, state.growth_factor = 4;
    mpt_scaler_set_state(net.scaler, &state);
    back = mpt_scaler_get_state(net.scaler);
    CHECK(back.scale == 64 && back.growth_tracker == 7 && back.growth_factor == 4);
    CHECK(mpt_scaler_get_config(net.scaler).growth_factor == 4);
    check_ok(net.context);
    static const double bad[] = {0, -1, INFINITY, NAN, 1e-60, 1e60};
    for (int i = 0; i < 6; i++) {
        mpt_set_scale(net.scaler, bad[i]);
        check_error(net.context, MPT_ERROR_ARGUMENT, "scale");
    }
    state.growth_factor = 1;
    mpt_scaler_set_state(net.scaler, &state);
    check_error(net.context, MPT_ERROR_ARGUMENT, "growth_factor = 1");
    mpt_scaler_set_state(net.scaler, NULL);
    check_error(net.context, MPT_ERROR_ARGUMENT, "NULL");
    CHECK(mpt_get_scale(net.scaler) == 64);
    mpt_destroy(net.context);
}

/* The first value that is refused, on each side, and the last that is not. */
TEST(bounds_of_configurations) {
    static const struct {
        size_t field;
        double value;
        const char *error; /* NULL: good */
    } rows[] = {{offsetof(mpt_scaler_config, growth_factor), 1, "growth_factor = 1"},
                {offsetof(mpt_scaler_config, growth_factor), 3.4e38, "growth_factor"},
                {offsetof(mpt_scaler_config, growth_factor), 1.0001, NULL},
                {offsetof(mpt_scaler_config, backoff_factor), 1, "backoff_factor = 1"},
                {offsetof(mpt_scaler_config, backoff_factor), 0, "backoff_factor = 0"},
                {offsetof(mpt_scaler_config, backoff_factor), 0.9999, NULL},
                {offsetof(mpt_scaler_config, init_scale), 0, "init_scale = 0"},
                {offsetof(mpt_scaler_config, init_scale), 1e-60, "init_scale"}, /* 0 in fp32 */
                {offsetof(mpt_scaler_config, init_scale), 1e39, "init_scale"},
                {offsetof(mpt_scaler_config, min_scale), -1, "min_scale = -1"},
                {offsetof(mpt_scaler_config, min_scale), 0, NULL},
                {offsetof(mpt_scaler_config, max_scale), 0.5, "max_scale = 0.5 is below"},
                {offsetof(mpt_scaler_config, max_scale), 1, NULL},  /* min_scale */
                {offsetof(mpt_scaler_config, max_scale), 0, NULL}}; /* none */
    scaled_net net = new_net(NULL);
    mpt_scaler_config c = mpt_scaler_config_default();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c = mpt_scaler_config_default();
        memcpy((char *)&c + rows[i].field, &rows[i].value, sizeof(double));
        mpt_grad_scaler(net.context, &c);
        if (rows[i].error) check_error(net.context, MPT_ERROR_ARGUMENT, rows[i].error);
        check_ok(net.context);
    }
    c = mpt_scaler_config_default(), c.growth_interval = 0;
    mpt_grad_scaler(net.context, &c);
    check_error(net.context, MPT_ERROR_ARGUMENT, "growth_interval");
    c = mpt_scaler_config_default(), c.patience = -1;
    mpt_grad_scaler(net.context, &c);
    check_error(net.context, MPT_ERROR_ARGUMENT, "patience");
    c = mpt_scaler_config_default(), c.growth_interval = 1, c.patience = c.window = 0;
    mpt_grad_scaler(net.context, &c);
    check_ok(net.context);
    mpt_destroy(net.context);
}

TEST(disabled) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.enabled = false;
    config.growth_factor = 3;
    scaled_net net = new_net(&config);
    mpt_tensor loss = loss_of(&net, 1), scaled = mpt_scale_loss(net.scaler, loss);
    CHECK(scaled.slot == loss.slot && scaled.generation == loss.generation);
    CHECK(mpt_get_scale(net.scaler) == 1);
    CHECK(mpt_scaler_get_config(net.scaler).growth_factor == 3);
    CHECK_EQ_INT(mpt_unscale(net.scaler, net.optimizer), MPT_OK);
    CHECK_EQ_INT(mpt_unscale(net.scaler, net.optimizer), MPT_OK);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_NONE);
    train(&net, 1);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    CHECK_EQ_INT(mpt_applied_steps(net.optimizer), 1);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 0);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* ---- misuse ---- */

TEST(misuse_is_named) {
    scaled_net net = new_net(NULL);
    mpt_unscale(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "no loss was scaled yet");
    mpt_scaler_step(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "no loss was scaled yet");
    mpt_scaler_update(net.scaler);
    check_error(net.context, MPT_ERROR_STATE, "no loss was scaled yet");

    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 1)));
    mpt_unscale(net.scaler, net.optimizer);
    mpt_unscale(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "mpt_unscale was called already");

    /* the error ended that update: a new one begins */
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 1)));
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_scaler_step(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "mpt_scaler_step has already been called");
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 1)));
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_unscale(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "after mpt_scaler_step");
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 1)));
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_scaler_skip(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "skip it before");
    CHECK_EQ_INT(mpt_applied_steps(net.optimizer), 3);

    mpt_scaler_destroy(net.scaler);
    mpt_scaler_update(net.scaler);
    check_error(net.context, MPT_ERROR_HANDLE, "the scaler was destroyed");
    mpt_destroy(net.context);
}

/* "No inf checks were recorded" elsewhere; here a step that does nothing and says so. */
TEST(no_gradients) {
    scaled_net net = new_net(NULL);
    mpt_scale_loss(net.scaler, loss_of(&net, 1));
    CHECK_EQ_INT(mpt_scaler_step(net.scaler, net.optimizer), MPT_OK);
    CHECK_CONTAINS(log_text, "mpt_scaler_step: none of the optimizer's 4 parameters");
    CHECK_CONTAINS(log_text, "0.weight");
    CHECK_EQ_INT(mpt_scaler_update(net.scaler), MPT_OK);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 0);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).growth_tracker, 0);
    CHECK_EQ_INT(mpt_applied_steps(net.optimizer), 0);
    log_text[0] = '\0';
    CHECK_EQ_INT(mpt_scaler_update(net.scaler), MPT_OK);
    CHECK_CONTAINS(log_text, "no optimizer was unscaled or stepped");
    /* unscale before there was a gradient: the step still unscales what came later */
    float before[OUT], g[OUT];
    mpt_unscale(net.scaler, net.optimizer);
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 0.5)));
    mpt_read_f32(mpt_parameter(net.module, "0.bias"), before, OUT);
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "0.bias")), g, OUT);
    CHECK(g[0] == 0.5f);
    mpt_scaler_update(net.scaler);
    CHECK_EQ_INT(mpt_step_outcome(net.scaler), MPT_OUTCOME_APPLIED);
    check_ok(net.context);
    mpt_destroy(net.context);
}

TEST(skip_on_purpose) {
    scaled_net net = new_net(NULL);
    uint64_t state = mpt_optimizer_hash(net.optimizer);
    for (int unscale = 0; unscale < 2; unscale++) {
        mpt_zero_grad(net.optimizer);
        mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, INFINITY)));
        if (unscale) mpt_unscale(net.scaler, net.optimizer);
        CHECK_EQ_INT(mpt_scaler_skip(net.scaler, net.optimizer), MPT_OK);
        CHECK_EQ_INT(mpt_scaler_update(net.scaler), MPT_OK);
        CHECK(mpt_get_scale(net.scaler) == 65536); /* it was left out */
        CHECK(mpt_optimizer_hash(net.optimizer) == state);
    }
    mpt_scaler_skip(net.scaler, net.optimizer);
    mpt_scaler_step(net.scaler, net.optimizer);
    check_error(net.context, MPT_ERROR_STATE, "mpt_scaler_skip left this optimizer out");
    /* unscale and update without a step, as for a look at the norm: legal, and found_inf counts */
    mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, INFINITY)));
    mpt_unscale(net.scaler, net.optimizer);
    mpt_scaler_update(net.scaler);
    CHECK(mpt_get_scale(net.scaler) == 32768);
    mpt_synchronize(net.context); /* statistics are as last seen */
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 0);
    train(&net, 1);
    mpt_synchronize(net.context);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 1);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* ---- several optimizers, losses, backward passes ---- */

/* Two optimizers share the block of one tree: each skips for itself, one overflow backs off. */
TEST(two_optimizers_in_one_tree) {
    scaled_net net = new_net(NULL);
    mpt_optimizer_destroy(net.optimizer);
    mpt_optimizer a = mpt_adamw(mpt_child(net.module, "0"), NULL),
                  b = mpt_adamw(mpt_child(net.module, "1"), NULL);
    for (int bad = 0; bad < 3; bad++) { /* neither, the first, the second */
        uint64_t state[2] = {mpt_optimizer_hash(a), mpt_optimizer_hash(b)};
        mpt_step_begin(net.context);
        mpt_zero_grad(a);
        mpt_zero_grad(b);
        mpt_backward(mpt_scale_loss(net.scaler, layer_loss(&net, "0", bad == 1 ? INFINITY : 1)));
        mpt_backward(mpt_scale_loss(net.scaler, layer_loss(&net, "1", bad == 2 ? NAN : 1)));
        mpt_unscale(net.scaler, a);
        if (bad == 0) CHECK_CLOSE(mpt_item(mpt_clip_grad_norm(a, 1)), sqrt(18.0), 1e-6, 0);
        mpt_scaler_step(net.scaler, b);
        mpt_scaler_step(net.scaler, a);
        mpt_scaler_update(net.scaler);
        mpt_step_end(net.context);
        CHECK((mpt_optimizer_hash(a) == state[0]) == (bad == 1));
        CHECK((mpt_optimizer_hash(b) == state[1]) == (bad == 2));
        CHECK(mpt_get_scale(net.scaler) == (bad == 0 ? 65536 : bad == 1 ? 32768 : 16384));
    }
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 3);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).skipped, 2);
    float g[OUT];
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "0.bias")), g, OUT);
    CHECK(g[0] == 1); /* each was divided once */
    check_ok(net.context);
    mpt_destroy(net.context);
}

TEST(accumulation_keeps_the_scale) {
    scaled_net net = new_net(NULL);
    float g[OUT];
    mpt_zero_grad(net.optimizer);
    for (int i = 0; i < 4; i++) {
        mpt_step_begin(net.context);
        mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 0.25)));
        mpt_step_end(net.context);
    }
    mpt_scaler_step(net.scaler, net.optimizer);
    mpt_scaler_update(net.scaler);
    mpt_read_f32(mpt_grad(mpt_parameter(net.module, "0.bias")), g, OUT);
    CHECK(g[0] == 1);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, 1);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* ---- when training cannot go on ---- */

TEST(patience_ends_in_a_diagnosis) {
    NEEDS_PROMPT_DEVICE;
    mpt_scaler_config config = mpt_scaler_config_default();
    config.patience = 4;
    config.init_scale = 4;
    scaled_net net = new_net(&config);
    train(&net, 1);
    uint64_t weights = mpt_module_hash(net.module);
    for (int i = 0; i < 4; i++) train(&net, NAN);
    CHECK_CONTAINS(mpt_error(net.context), "4 steps in a row were skipped");
    CHECK_CONTAINS(mpt_error(net.context), "scale 1 (floor 1)");
    CHECK_CONTAINS(mpt_error(net.context), "the loss itself was NaN or infinite");
    CHECK_CONTAINS(mpt_error(net.context), "first non-finite value"); /* what the tracer saw */
    check_error(net.context, MPT_ERROR_NUMERIC, "learning rate");
    CHECK(mpt_module_hash(net.module) == weights);
    train(&net, NAN); /* a run of skips starts again */
    train(&net, NAN);
    check_ok(net.context);
    mpt_item(mpt_parameter(net.module, "0.weight")); /* another error leaves the run as it is */
    check_error(net.context, MPT_ERROR_SHAPE, "one element");
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).skipped_in_a_row, 2);
    mpt_destroy(net.context);
}

/* Patience 0 waits for ever. */
TEST(no_patience_no_end) {
    NEEDS_PROMPT_DEVICE;
    mpt_scaler_config config = mpt_scaler_config_default();
    config.patience = 0;
    scaled_net net = new_net(&config);
    for (int i = 0; i < 5; i++) train(&net, NAN);
    CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).skipped_in_a_row, 5);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* The loss is finite, but the gradient of one layer overflows: the layer is named. */
TEST(diagnosis_names_the_layer) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.patience = 3;
    scaled_net net = new_net(&config);
    for (int i = 0; i < 3; i++) {
        mpt_step_begin(net.context);
        mpt_zero_grad(net.optimizer);
        mpt_tensor zero = mpt_sub(mpt_parameter(net.module, "0.bias"),
                                  mpt_detach(mpt_parameter(net.module, "0.bias")));
        mpt_tensor root = mpt_sum(mpt_sqrt(zero), MPT_ALL_DIMS, false); /* its slope is infinite */
        mpt_backward(mpt_scale_loss(net.scaler, mpt_add(root, layer_loss(&net, "1", 1))));
        mpt_scaler_step(net.scaler, net.optimizer);
        mpt_scaler_update(net.scaler);
        mpt_step_end(net.context);
    }
    CHECK_CONTAINS(mpt_error(net.context), "the loss was finite");
    CHECK_CONTAINS(mpt_error(net.context), "(0.bias)");
    check_error(net.context, MPT_ERROR_NUMERIC, "keep layer 0 in fp32");
    mpt_destroy(net.context);
}

TEST(rising_skip_rate_warns) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.window = 10;
    config.min_scale = 1;
    scaled_net net = new_net(&config);
    for (int i = 0; i < 20; i++) train(&net, i % 10 == 0 ? INFINITY : 1);
    CHECK(strstr(log_text, "rose") == NULL);
    for (int i = 0; i < 10; i++) train(&net, i % 3 == 0 ? INFINITY : 1);
    CHECK_CONTAINS(log_text, "skipped steps rose from 1 to 4 per 10");
    CHECK_CONTAINS(log_text, "check learning rate or keep layer 1 in fp32");
    log_text[0] = '\0';
    for (int i = 0; i < 10; i++) train(&net, i % 3 == 0 ? INFINITY : 1);
    CHECK(strstr(log_text, "rose") == NULL); /* not rising any more */
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* The smallest rise that is told: from none to two, of a hundred; and to twice as many. One skip is
   no rate. */
TEST(the_least_rise_that_warns) {
    static const struct {
        int skips;
        const char *text; /* NULL: nothing */
    } windows[] = {{0, NULL}, {1, NULL},
                   {0, NULL}, {2, "from 0 to 2 per 100"},
                   {3, NULL}, {6, "from 3 to 6 per 100"}};
    mpt_scaler_config config = mpt_scaler_config_default();
    config.window = 100;
    scaled_net net = new_net(&config);
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        log_text[0] = '\0';
        for (int i = 0; i < 100; i++) train(&net, i < windows[w].skips ? INFINITY : 1);
        if (windows[w].text)
            CHECK_CONTAINS(log_text, windows[w].text);
        else
            CHECK(strstr(log_text, "rose") == NULL);
    }
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* The tracer that the scaler starts for a step stops by itself; the user's own stays. */
TEST(tracer_after_an_overflow) {
    NEEDS_PROMPT_DEVICE;
    scaled_net net = new_net(NULL);
    train(&net, INFINITY);
    CHECK_EQ_STR(mpt_nan_report(net.context), ""); /* the next step is traced */
    train(&net, INFINITY);
    CHECK_CONTAINS(mpt_nan_report(net.context), "step 2");
    train(&net, 1);
    mpt_trace_nan(net.context, true);
    train(&net, INFINITY);
    train(&net, 1);
    mpt_trace_nan(net.context, true);
    train(&net, INFINITY);
    CHECK_CONTAINS(mpt_nan_report(net.context), "step 6");
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* Where an op makes the value itself, and where it came from outside. */
TEST(tracer_tells_what_was_read) {
    NEEDS_PROMPT_DEVICE;
    const float data[2][2] = {{1, 300}, {1, (float)NAN}};
    static const char read[] = "; what it read was not finite already";
    for (int i = 0; i < 2; i++) {
        mpt_context *c = mpt_create(NULL);
        mpt_trace_nan(c, true);
        mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(2), data[i]);
        mpt_exp(mpt_mul_scalar(x, 0.5));
        CHECK_CONTAINS(mpt_nan_report(c), i ? "forward of mul" : "forward of exp");
        CHECK((strstr(mpt_nan_report(c), read) != NULL) == (i == 1));
        mpt_add_(x, x); /* written over: not to be told */
        mpt_destroy(c);
    }
}

/* ---- notes ---- */

static mpt_tensor region_loss(const scaled_net *net, mpt_dtype dtype) {
    float x[IN] = {1, 2, 3, 4, 5};
    mpt_tensor input = mpt_from(net->context, MPT_F32, MPT_SHAPE(1, IN), x);
    mpt_autocast_begin(net->context, dtype);
    mpt_tensor y = mpt_forward(mpt_child(net->module, "0"), input);
    mpt_autocast_end(net->context);
    return mpt_sum(mpt_cast(y, MPT_F32), MPT_ALL_DIMS, false);
}

TEST(notes_on_precision) {
    scaled_net net = new_net(NULL);
    mpt_scale_loss(net.scaler, region_loss(&net, MPT_F16));
    CHECK_EQ_STR(log_text, "");
    mpt_scale_loss(net.scaler, region_loss(&net, MPT_BF16));
    CHECK_CONTAINS(log_text, "needs no loss scaling");
    log_text[0] = '\0';
    mpt_scale_loss(net.scaler, region_loss(&net, MPT_BF16));
    CHECK_EQ_STR(log_text, "");
    mpt_backward(region_loss(&net, MPT_F16));
    mpt_step(net.optimizer);
    CHECK_EQ_STR(log_text, ""); /* a scaler was made: it may be on purpose */
    check_ok(net.context);
    mpt_destroy(net.context);

    mpt_config c = mpt_config_default();
    c.log.write = keep_log;
    net.context = mpt_create(&c);
    net.module = mpt_nn_list(net.context, mpt_nn_linear(net.context, IN, OUT), MPT_END);
    net.optimizer = mpt_adamw(net.module, NULL);
    for (int i = 0; i < 2; i++) {
        log_text[0] = '\0';
        mpt_backward(region_loss(&net, MPT_F16));
        mpt_step(net.optimizer);
        if (i == 0) CHECK_CONTAINS(log_text, "without a loss scaler");
    }
    CHECK_EQ_STR(log_text, "");
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* Neither a step nor its statistics allocate. */
TEST(steady_state) {
    NEEDS_PROMPT_DEVICE;
    scaled_net net = new_net(NULL);
    int64_t before = 0;
    for (int i = 0; i < 20; i++) {
        if (i == 10) before = mpt_memory(net.context).allocations;
        mpt_step_begin(net.context);
        mpt_zero_grad(net.optimizer);
        mpt_backward(mpt_scale_loss(net.scaler, loss_of(&net, 1)));
        mpt_unscale(net.scaler, net.optimizer);
        mpt_clip_grad_norm(net.optimizer, 1);
        mpt_scaler_step(net.scaler, net.optimizer);
        mpt_scaler_update(net.scaler);
        CHECK_EQ_INT(mpt_scaler_statistics(net.scaler).steps, i + 1);
        mpt_step_end(net.context);
    }
    CHECK_EQ_INT(mpt_memory(net.context).allocations, before);
    check_ok(net.context);
    mpt_destroy(net.context);
}

/* ---- where backward begins ---- */

/* The gradient of all elements of "0.bias" after a backward pass from `loss`; launches counts those
   of the pass. */
static float gradient_from(const scaled_net *net, mpt_tensor loss, mpt_tensor seed,
                           int64_t *launches) {
    float gradient[OUT] = {0};
    mpt_zero_grad(net->optimizer);
    int64_t before = mpt_get_counters(net->context).launches;
    CHECK_EQ_INT(mpt_backward_from(loss, seed, false), MPT_OK);
    *launches = mpt_get_counters(net->context).launches - before;
    mpt_read_f32(mpt_grad(mpt_parameter(net->module, "0.bias")), gradient, OUT);
    for (int i = 1; i < OUT; i++) CHECK(gradient[i] == gradient[0]);
    return gradient[0];
}

/* From 1 on the scale itself is the gradient of the loss: no launch multiplies. From another
   gradient, into one that is there, and into a half loss it is a product as any other. */
TEST(backward_begins_at_the_scale) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.init_scale = 1000;
    scaled_net net = new_net(&config);
    const mpt_tensor none = {NULL, 0, 0};
    const float three = 3;
    int64_t plain, launches;
    mpt_step_begin(net.context);
    CHECK(gradient_from(&net, loss_of(&net, 0.25), none, &plain) == 0.25f);
    CHECK(gradient_from(&net, loss_of(&net, 0.25), none, &plain) == 0.25f);
    CHECK(gradient_from(&net, mpt_scale_loss(net.scaler, loss_of(&net, 0.25)), none, &launches) ==
          250);
    CHECK_EQ_INT(launches, plain);
    mpt_tensor seed = mpt_from(net.context, MPT_F32, MPT_SCALAR, &three);
    CHECK(gradient_from(&net, mpt_scale_loss(net.scaler, loss_of(&net, 0.25)), seed, &launches) ==
          750);
    CHECK_EQ_INT(launches, plain + 1);
    mpt_tensor loss = loss_of(&net, 0.25);
    loss = mpt_add(mpt_scale_loss(net.scaler, loss), mpt_scale_loss(net.scaler, loss));
    CHECK(gradient_from(&net, loss, none, &launches) == 500);
    loss = mpt_scale_loss(net.scaler, mpt_cast(loss_of(&net, 0.25), MPT_F16));
    CHECK(gradient_from(&net, loss, none, &launches) == 250);
    mpt_set_scale(net.scaler, 64);
    CHECK(gradient_from(&net, mpt_scale_loss(net.scaler, loss_of(&net, 0.25)), none, &launches) ==
          16);
    mpt_step_end(net.context);
    CHECK(!mpt_failed(net.context));
    mpt_destroy(net.context);
}

TEST_TABLE = {
    T(overflow_leaves_everything),
    T(overflow_in_the_first_step),
    T(backward_begins_at_the_scale),
    T(scaling_is_invisible),
    T(gradients_read_after_unscale),
    T(floor_ceiling_and_growth),
    T(interval_below_the_tracker),
    T(overflow_after_the_multiplication),
    T(fixed_scale),
    T(set_scale_and_state),
    T(bounds_of_configurations),
    T(disabled),
    T(misuse_is_named),
    T(no_gradients),
    T(skip_on_purpose),
    T(two_optimizers_in_one_tree),
    T(accumulation_keeps_the_scale),
    T(patience_ends_in_a_diagnosis),
    T(no_patience_no_end),
    T(diagnosis_names_the_layer),
    T(rising_skip_rate_warns),
    T(the_least_rise_that_warns),
    T(tracer_after_an_overflow),
    T(tracer_tells_what_was_read),
    T(notes_on_precision),
    T(steady_state),
};

TEST_MAIN
