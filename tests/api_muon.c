/* api_muon.c: what Muon does besides arithmetic, which api_golden_train.c compares with PyTorch:
   who updates what, masters, skipped steps, groups, files, memory, threads. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include <string.h>

#include "harness.h"
#include "checks.h"
#include "training.h"

#ifdef MPTRAIN_NO_WATCH
TEST(muon) { SKIP("mpt_muon: built with MPTRAIN_NO_WATCH"); }
TEST_TABLE = {T(muon)};
#else

enum { IN = 12, MIDDLE = 20, OUT = 6, ROWS = 8, LARGEST = MIDDLE * MIDDLE };

static mpt_module new_net(mpt_context *c) {
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, IN, MIDDLE), mpt_nn_tanh(c),
                                    mpt_nn_linear(c, MIDDLE, MIDDLE), mpt_nn_tanh(c),
                                    mpt_nn_linear(c, MIDDLE, OUT), MPT_END);
    mpt_set_label(net, "net"); /* the same values each time */
    return net;
}

static mpt_tensor loss_of(mpt_module net, int i, mpt_dtype dtype, double scale) {
    float x[ROWS * IN], y[ROWS * OUT];
    for (int k = 0; k < ROWS * IN; k++) x[k] = (float)(sin(k * 1.7 + i * 0.3) * scale);
    for (int k = 0; k < ROWS * OUT; k++) y[k] = (float)cos(k * 0.9 + i * 0.1);
    mpt_tensor in = mpt_from(net.context, MPT_F32, MPT_SHAPE(ROWS, IN), x);
    mpt_tensor out = mpt_from(net.context, MPT_F32, MPT_SHAPE(ROWS, OUT), y);
    return mpt_mse_loss(mpt_cast(mpt_forward(net, mpt_cast(in, dtype)), MPT_F32), out, MPT_MEAN);
}

static void steps(mpt_module net, mpt_optimizer optimizer, mpt_dtype dtype, int from, int to) {
    for (int i = from; i < to; i++) {
        mpt_step_begin(net.context);
        mpt_zero_grad(optimizer);
        mpt_backward(loss_of(net, i, dtype, 1));
        mpt_step(optimizer);
        mpt_step_end(net.context);
    }
}

/* ==== Who updates what ==== */

/* The first step from 0 of AdamW is lr in every element that has a gradient; that of Muon, all of a
   matrix's lr sqrt(n) together, is less in each. */
static bool moved_by_adamw(mpt_module net, const char *path) {
    float values[LARGEST];
    const int64_t n = mpt_numel(mpt_parameter(net, path));
    mpt_read_f32(mpt_parameter(net, path), values, n);
    for (int64_t i = 0; i < n; i++)
        if (fabs(fabs((double)values[i]) - 1e-3) > 1e-6) return false;
    return true;
}

static void clear_values(mpt_module net, const char *path) {
    const float zeros[LARGEST] = {0};
    mpt_tensor p = mpt_parameter(net, path);
    mpt_write(p, zeros, (size_t)mpt_numel(p) * sizeof(float));
}

TEST(matrices_and_others) {
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "4.weight", "4.bias"};
    static const char *const names[] = {NULL, "4", "4.weight,0", " 2.weight , 4"};
    static const bool adamw[][5] = {
        {false, true, false, false, true},
        {false, true, false, true, true},
        {true, true, false, true, true},
        {false, true, true, true, true},
    };
    for (int i = 0; i < 4; i++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c);
        mpt_muon_config config = mpt_muon_config_default();
        config.adamw_names = names[i];
        mpt_optimizer optimizer = mpt_muon(net, &config);
        CHECK_EQ_INT(mpt_optimizer_groups(optimizer), 2);
        mpt_step_begin(c);
        mpt_backward(loss_of(net, 0, MPT_F32, 1));
        for (int k = 0; k < 5; k++) clear_values(net, paths[k]);
        mpt_step(optimizer);
        mpt_step_end(c);
        for (int k = 0; k < 5; k++) CHECK(moved_by_adamw(net, paths[k]) == adamw[i][k]);
        check_ok(c);
        mpt_destroy(c);
    }
}

/* Rows of a matrix that moved by Muon are orthogonal, about: the singular values of what it moves
   by lie between 0.6 and 1.3, so those are the limits of what it makes of a vector. */
TEST(steps_are_orthogonal) {
    float values[MIDDLE * MIDDLE];
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    mpt_muon_config config = mpt_muon_config_default();
    config.lr = 1;
    mpt_optimizer optimizer = mpt_muon(net, &config);
    mpt_tensor p = mpt_parameter(net, "2.weight");
    mpt_tensor g = mpt_randn(c, MPT_F32, MPT_SHAPE(MIDDLE, MIDDLE));
    clear_values(net, "2.weight");
    mpt_backward(mpt_sum(mpt_mul(p, g), MPT_ALL_DIMS, false));
    clear_values(net, "2.weight");
    mpt_step(optimizer);
    mpt_read_f32(p, values, MIDDLE * MIDDLE);
    for (int row = 0; row < MIDDLE; row++) {
        double size = 0;
        for (int k = 0; k < MIDDLE; k++)
            size += (double)values[row * MIDDLE + k] * (double)values[row * MIDDLE + k];
        CHECK(size > 0.4 && size < 1.5);
    }
    check_ok(c);
    mpt_destroy(c);
}

/* The step of a gradient [m, n] by a rate of 1, where values were 0. */
static void first_step(int m, int n, mpt_muon_adjust adjust, bool bf16, bool turned, float *to) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = mpt_nn_linear_no_bias(c, n, m);
    mpt_muon_config config = mpt_muon_config_default();
    config.lr = 1, config.adjust = adjust, config.bf16 = bf16;
    mpt_optimizer optimizer = mpt_muon(net, &config);
    mpt_tensor g = mpt_randn(c, MPT_F32, turned ? MPT_SHAPE(n, m) : MPT_SHAPE(m, n));
    if (turned) g = mpt_transpose(g, 0, 1);
    mpt_backward(mpt_sum(mpt_mul(mpt_parameter(net, "weight"), g), MPT_ALL_DIMS, false));
    clear_values(net, "weight");
    mpt_step(optimizer);
    mpt_read_f32(mpt_parameter(net, "weight"), to, m * n);
    check_ok(c);
    mpt_destroy(c);
}

/* A tall matrix moves as its transpose does, but for the shape's part of the rate; in bf16 nearly
   as in fp32, and not just so. */
TEST(shapes_and_precisions) {
    static float tall[15 * 6], wide[15 * 6], rough[15 * 6];
    for (int adjust = 0; adjust < 2; adjust++) {
        const double ratio = adjust ? 1 : sqrt(15.0 / 6);
        double off = 0;
        first_step(15, 6, (mpt_muon_adjust)adjust, false, true, tall);
        first_step(6, 15, (mpt_muon_adjust)adjust, false, false, wide);
        first_step(6, 15, (mpt_muon_adjust)adjust, true, false, rough);
        for (int i = 0; i < 15; i++)
            for (int k = 0; k < 6; k++) {
                CHECK_NEAR(tall[i * 6 + k], ratio * (double)wide[k * 15 + i], 2e-5);
                off = fmax(off, fabs((double)(rough[k * 15 + i] - wide[k * 15 + i])));
            }
        CHECK(off > 1e-4 && off < 0.05);
    }
}

#ifndef MPTRAIN_NO_ATTENTION
TEST(embeddings_are_adamws) {
    const int64_t index[4] = {0, 1, 2, 3};
    mpt_context *c = mpt_create(NULL);
    mpt_module table = mpt_nn_embedding(c, 4, 6, -1);
    mpt_module net = mpt_sequential(c, table, mpt_nn_linear(c, 6, 6), MPT_END);
    mpt_optimizer optimizer = mpt_muon(net, NULL);
    mpt_backward(mpt_sum(mpt_forward(net, mpt_from(c, MPT_I64, MPT_SHAPE(4), index)),
                         MPT_ALL_DIMS, false));
    clear_values(net, "0.weight"), clear_values(net, "1.weight");
    mpt_step(optimizer);
    CHECK(moved_by_adamw(net, "0.weight") && !moved_by_adamw(net, "1.weight"));
    check_ok(c);
    mpt_destroy(c);
}
#endif

TEST(groups) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    const mpt_group_config other = {0.5, 0.25};
    mpt_optimizer optimizer = mpt_muon(net, NULL);
    CHECK(mpt_get_option(optimizer, 0, "momentum") == 0.95);
    CHECK(mpt_get_option(optimizer, 1, "beta2") == 0.999 && mpt_get_lr(optimizer, 1) == 1e-3);
    CHECK(mpt_get_option(optimizer, 0, "weight_decay") == 0.1);
    CHECK(mpt_get_option(optimizer, 1, "weight_decay") == 0.01);
    mpt_get_option(optimizer, 0, "beta1");
    check_error(c, MPT_ERROR_ARGUMENT, "there are momentum, weight_decay");
    mpt_get_option(optimizer, 1, "momentum");
    check_error(c, MPT_ERROR_ARGUMENT, "there are beta1, beta2, eps, weight_decay");
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "2.weight", &other), 2);
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "0.bias", NULL), 3);
    CHECK(mpt_get_option(optimizer, 2, "momentum") == 0.95);
    CHECK(mpt_get_option(optimizer, 3, "beta1") == 0.9);
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, mpt_child(net, "4"), NULL, NULL), -1);
    check_error(c, MPT_ERROR_ARGUMENT, "Muon updates 4.weight, but AdamW 4.bias");
    CHECK_EQ_INT(mpt_optimizer_groups(optimizer), 4);
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    cycle.total = 10;
    mpt_one_cycle(optimizer, &cycle, MPT_PER_STEP);
    check_error(c, MPT_ERROR_STATE, "no momentum that could cycle");
    steps(net, optimizer, MPT_F32, 0, 3);
    check_ok(c);
    mpt_destroy(c);
}

/* Groups of equal numbers and one group are the same; another momentum is another way. */
TEST(options_count) {
    uint64_t hash[4];
    for (int i = 0; i < 4; i++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c);
        mpt_muon_config config = mpt_muon_config_default();
        config.momentum = i == 2 ? 0.5 : 0.95;
        mpt_optimizer optimizer = mpt_muon(net, &config);
        if (i == 1) mpt_optimizer_add(optimizer, net, "2.weight", NULL);
        if (i == 3) mpt_set_option(optimizer, 0, "momentum", 0.5);
        steps(net, optimizer, MPT_F32, 0, 5);
        hash[i] = mpt_module_hash(net);
        check_ok(c);
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1] && hash[0] != hash[2] && hash[2] == hash[3]);
}

/* ==== Halves, scaler, clipping ==== */

/* Masters take what halves are too coarse for. */
TEST(halves_have_masters) {
    for (int i = 0; i < 2; i++) {
        static float first[LARGEST], last[LARGEST];
        double moved = 0;
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c);
        mpt_muon_config config = mpt_muon_config_default();
        mpt_half(net, i ? MPT_BF16 : MPT_F16);
        config.lr = 1e-5, config.momentum = 0;
        mpt_optimizer optimizer = mpt_muon(net, &config);
        mpt_read_f32(mpt_parameter(net, "2.weight"), first, MIDDLE * MIDDLE);
        for (int k = 0; k < 200; k++) {
            mpt_step_begin(c);
            mpt_zero_grad(optimizer);
            mpt_backward(loss_of(net, 0, i ? MPT_BF16 : MPT_F16, 1));
            mpt_step(optimizer);
            mpt_step_end(c);
        }
        mpt_read_f32(mpt_parameter(net, "2.weight"), last, MIDDLE * MIDDLE);
        for (int k = 0; k < MIDDLE * MIDDLE; k++) moved += fabs((double)(last[k] - first[k]));
        CHECK(moved / (MIDDLE * MIDDLE) > 5e-5); /* a bf16 step at 0.1 is 5e-4 */
        check_ok(c);
        mpt_destroy(c);
    }
}

TEST(steps_that_overflow_are_skipped) {
    for (int half = 0; half < 2; half++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c);
        mpt_scaler scaler = mpt_grad_scaler(c, NULL);
        if (half) mpt_half(net, MPT_F16);
        mpt_optimizer optimizer = mpt_muon(net, NULL);
        for (int i = 0; i < 8; i++) {
            const bool overflows = i == 0 || i == 3 || i == 5;
            const uint64_t state = mpt_optimizer_hash(optimizer), weights = mpt_module_hash(net);
            mpt_step_begin(c);
            mpt_autocast_begin(c, MPT_F16);
            mpt_tensor loss =
                loss_of(net, i, half ? MPT_F16 : MPT_F32, overflows ? (half ? 6e4 : 1e6) : 1);
            mpt_autocast_end(c);
            if (overflows) loss = mpt_mul_scalar(loss, 1e38);
            mpt_zero_grad(optimizer);
            mpt_backward(mpt_scale_loss(scaler, loss));
            mpt_unscale(scaler, optimizer);
            if (i % 2) mpt_clip_grad_norm(optimizer, 0.01);
            mpt_scaler_step(scaler, optimizer);
            mpt_scaler_update(scaler);
            mpt_step_end(c);
            CHECK((state == mpt_optimizer_hash(optimizer)) == overflows);
            CHECK((weights == mpt_module_hash(net)) == overflows);
            CHECK_EQ_INT(mpt_step_outcome(scaler), overflows ? MPT_OUTCOME_SKIPPED
                                                             : MPT_OUTCOME_APPLIED);
        }
        CHECK_EQ_INT(mpt_applied_steps(optimizer), 5);
        check_ok(c);
        mpt_destroy(c);
    }
}

/* A multiplier that waits counts as if it had been applied. */
TEST(clipped_gradients) {
    static float got[2][LARGEST];
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c);
        mpt_optimizer optimizer = mpt_muon(net, NULL);
        for (int i = 0; i < 4; i++) {
            mpt_step_begin(c);
            mpt_zero_grad(optimizer);
            mpt_tensor loss = loss_of(net, i, MPT_F32, 1);
            mpt_backward(by_hand ? mpt_mul_scalar(loss, i % 2 ? 0.125 : 1) : loss);
            mpt_tensor norm = mpt_grad_norm(optimizer, 2);
            if (!by_hand && i % 2) mpt_clip_grad_norm(optimizer, mpt_item(norm) * 0.125);
            mpt_step(optimizer);
            mpt_step_end(c);
        }
        mpt_read_f32(mpt_parameter(net, "2.weight"), got[by_hand], MIDDLE * MIDDLE);
        check_ok(c);
        mpt_destroy(c);
    }
    for (int k = 0; k < MIDDLE * MIDDLE; k++) CHECK_NEAR(got[0][k], got[1][k], 1e-5);
}

/* ==== Files, memory, threads ==== */

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
TEST(stopped_and_gone_on) {
    const char *path = test_tmp_path("muon.safetensors");
    mpt_context *c[3];
    mpt_module net[3];
    mpt_optimizer optimizer[3];
    for (int i = 0; i < 3; i++) {
        mpt_muon_config config = mpt_muon_config_default();
        config.adamw_names = i < 2 ? "4" : NULL;
        c[i] = mpt_create(NULL), net[i] = new_net(c[i]);
        mpt_half(net[i], MPT_BF16);
        optimizer[i] = mpt_muon(net[i], &config);
    }
    steps(net[0], optimizer[0], MPT_BF16, 0, 4);
    CHECK_EQ_INT(mpt_checkpoint_save(c[0], path), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_load(c[1], path), MPT_OK);
    CHECK(mpt_state_hash(c[0]) == mpt_state_hash(c[1]));
    for (int i = 0; i < 2; i++) steps(net[i], optimizer[i], MPT_BF16, 4, 9);
    CHECK(mpt_state_hash(c[0]) == mpt_state_hash(c[1]));
    CHECK_EQ_INT(mpt_applied_steps(optimizer[1]), 9);
    mpt_checkpoint_load(c[2], path); /* which AdamW has updated */
    check_error(c[2], MPT_ERROR_FORMAT, "4.weight.momentum_buffer");
    for (int i = 0; i < 3; i++) mpt_destroy(c[i]);
}
#endif

TEST(steps_take_no_memory) {
    arena memory;
    mpt_config config = mpt_config_default();
    arena_use(&memory, &config);
    mpt_context *c = mpt_create(&config);
    mpt_module net = new_net(c);
    mpt_optimizer optimizer = mpt_muon(net, NULL);
    steps(net, optimizer, MPT_F32, 0, 3);
    const int64_t calls = memory.calls;
    steps(net, optimizer, MPT_F32, 3, 20);
    CHECK_EQ_INT(memory.calls, calls);
    check_ok(c);
    mpt_destroy(c);
    CHECK(memory.live == 0 && memory.torn == 0);
}

/* An allocation that fails leaves no optimizer behind, and no leak. */
TEST(memory_may_end) {
    for (int64_t at = 1;; at++) {
        arena memory;
        mpt_config config = mpt_config_default();
        arena_use(&memory, &config);
        mpt_context *c = mpt_create(&config);
        mpt_module net = new_net(c);
        mpt_module_hash(net);
        memory.fail_at = memory.calls + at, memory.failures = 1000;
        mpt_optimizer optimizer = mpt_muon(net, NULL);
        const bool refused = memory.refused > 0;
        memory.fail_at = 0;
        CHECK((optimizer.slot == 0) == refused);
        if (refused) {
            CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_MEMORY);
            mpt_clear_error(c);
            optimizer = mpt_muon(net, NULL);
        }
        steps(net, optimizer, MPT_F32, 0, 2);
        check_ok(c);
        mpt_destroy(c);
        CHECK(memory.live == 0 && memory.torn == 0);
        if (!refused) break;
        REQUIRE(at < 100);
    }
}

TEST(threads_change_no_bit) {
    uint64_t hash[3];
    for (int i = 0; i < 3; i++) {
        mpt_config config = mpt_config_default();
        config.threads = 1 + i;
        mpt_context *c = mpt_create(&config);
        mpt_module net = mpt_nn_linear(c, 300, 200);
        mpt_set_label(net, "net");
        mpt_optimizer optimizer = mpt_muon(net, NULL);
        for (int k = 0; k < 3; k++) {
            mpt_step_begin(c);
            mpt_zero_grad(optimizer);
            mpt_backward(mpt_mean(mpt_exp(mpt_forward(
                net, mpt_randn(c, MPT_F32, MPT_SHAPE(16, 300)))), MPT_ALL_DIMS, false));
            mpt_step(optimizer);
            mpt_step_end(c);
        }
        hash[i] = mpt_module_hash(net);
        check_ok(c);
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1] && hash[0] == hash[2]);
}

/* ==== What is refused ==== */

TEST(what_is_refused) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c), norm = mpt_nn_layer_norm(c, MPT_SHAPE(4), NULL);
    mpt_muon_config config = mpt_muon_config_default();
    mpt_muon(norm, NULL);
    check_error(c, MPT_ERROR_ARGUMENT, "none of the 2 parameters is a matrix");
    config.adamw_names = "4, 7.weight";
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "\"7.weight\" begins with no parameter");
    config.adamw_names = "0,2,4";
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "none of the 6 parameters is a matrix");
    config.adamw_names = NULL, config.ns_steps = 21;
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "ns_steps = 21; expected 1 to 20");
    config.ns_steps = 5, config.momentum = 1;
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "momentum = 1");
    config.momentum = 0, config.adjust = (mpt_muon_adjust)2;
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "adjust = 2");
    config.adjust = MPT_MUON_ORIGINAL, config.adamw.lr = -1;
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "adamw.lr = -1");
    config.adamw.lr = 1, config.adamw.maximize = true;
    mpt_muon(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "adamw.maximize is set; set that of mpt_muon_config");
    config.adamw.maximize = false;
    mpt_muon(net, &config); /* none of the failures holds the parameters */
    check_ok(c);
    mpt_destroy(c);
}

TEST_TABLE = {T(matrices_and_others),
              T(steps_are_orthogonal),
              T(shapes_and_precisions),
#ifndef MPTRAIN_NO_ATTENTION
              T(embeddings_are_adamws),
#endif
              T(groups),
              T(options_count),
              T(halves_have_masters),
              T(steps_that_overflow_are_skipped),
              T(clipped_gradients),
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
              T(stopped_and_gone_on),
#endif
              T(steps_take_no_memory),
              T(memory_may_end),
              T(threads_change_no_bit),
              T(what_is_refused)};
#endif

TEST_MAIN
