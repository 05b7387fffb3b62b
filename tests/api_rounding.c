/* api_rounding.c: bf16 parameters without fp32 masters: stochastic rounding has the right mean,
 * depends on seed, step and element alone, trains where rounding to nearest stalls, and leaves
 * everything as it was where a step is skipped. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"

#include <math.h>

enum { MANY = 65536, KINDS = 7 };

static mpt_context *new_context(int threads, uint64_t seed) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = seed;
    return mpt_create(&config);
}

/* All kinds of optimizers, with everything that they can keep. */
static mpt_optimizer new_optimizer(mpt_module net, int kind, bool stochastic) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    mpt_adagrad_config adagrad = mpt_adagrad_config_default();
    mpt_adadelta_config adadelta = mpt_adadelta_config_default();
    mpt_lion_config lion = mpt_lion_config_default();
    sgd.momentum = 0.9, rmsprop.momentum = 0.9, rmsprop.centered = true;
    adam.amsgrad = kind == 2;
    sgd.stochastic_rounding = adam.stochastic_rounding = rmsprop.stochastic_rounding =
        adagrad.stochastic_rounding = adadelta.stochastic_rounding = lion.stochastic_rounding =
            stochastic;
    switch (kind) {
    case 0:
        return mpt_sgd(net, &sgd);
    case 1:
        return mpt_adamw(net, &adam);
    case 2:
        return mpt_adam(net, &adam);
    case 3:
        return mpt_rmsprop(net, &rmsprop);
    case 4:
        return mpt_adagrad(net, &adagrad);
    case 5:
        return mpt_adadelta(net, &adadelta);
    default:
        return mpt_lion(net, &lion);
    }
}

static mpt_optimizer plain_sgd(mpt_module net, double lr) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = lr;
    config.stochastic_rounding = true;
    return mpt_sgd(net, &config);
}

/* One step with a gradient of `value` everywhere. */
static void step_by(mpt_module net, mpt_optimizer optimizer, double value) {
    mpt_context *context = net.context;
    mpt_step_begin(context);
    mpt_zero_grad(optimizer);
    mpt_tensor loss = mpt_sum(mpt_parameter_at(net, 0, NULL, 0), MPT_ALL_DIMS, false);
    for (int i = 1; i < mpt_parameter_count(net); i++)
        loss = mpt_add(loss, mpt_sum(mpt_parameter_at(net, i, NULL, 0), MPT_ALL_DIMS, false));
    mpt_backward(mpt_mul_scalar(mpt_cast(loss, MPT_F32), value));
    mpt_step(optimizer);
    mpt_step_end(context);
}

/* `count` weights, all `value`, in one layer. */
static mpt_module weights_of(mpt_context *context, int64_t count, float value) {
    mpt_module net = mpt_nn_linear_no_bias(context, count, 1);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, (double)value, 0));
    mpt_half(net, MPT_BF16);
    return net;
}

static void read_weights(mpt_module net, float *out, int64_t count) {
    CHECK_EQ_INT(mpt_read_f32(mpt_parameter(net, "weight"), out, count), MPT_OK);
}

/* ---- one rounding ---- */

TEST(what_bf16_has_stays) {
    mpt_context *context = new_context(1, 3);
    mpt_module net = weights_of(context, MANY, 1.0f);
    mpt_optimizer optimizer = plain_sgd(net, 0.25);
    static float x[MANY];
    step_by(net, optimizer, 1.0); /* 0.75 is a bf16 number */
    read_weights(net, x, MANY);
    for (int i = 0; i < MANY; i++) REQUIRE(x[i] == 0.75f);
    check_ok(context);
    mpt_destroy(context);
}

/* 1 - 2^-12 lies 1/16 of the way from 1 to the number below it, 1 - 2^-8: 1 of 16 weights gets
   there, within 5 deviations of that binomial distribution; and the next step's are others. */
TEST(the_mean_is_the_value) {
    mpt_context *context = new_context(1, 4);
    mpt_module net = weights_of(context, MANY, 1.0f);
    mpt_optimizer optimizer = plain_sgd(net, 1.0 / 4096);
    static float x[MANY], y[MANY];
    step_by(net, optimizer, 1.0);
    read_weights(net, x, MANY);
    step_by(net, optimizer, 1.0);
    read_weights(net, y, MANY);
    int64_t moved = 0, again = 0, both = 0, runs = 0;
    for (int i = 0; i < MANY; i++) {
        float below = 1.0f - 1.0f / 256;
        REQUIRE(x[i] == 1.0f || x[i] == below);
        moved += x[i] != 1.0f;
        if (x[i] == 1.0f) again += y[i] != 1.0f;
        both += x[i] != 1.0f && y[i] != x[i];
        if (i > 0) runs += x[i] != 1.0f && x[i - 1] != 1.0f;
    }
    const double p = 1.0 / 16, n = MANY;
    CHECK_NEAR((double)moved, n * p, 5 * sqrt(n * p * (1 - p)));
    CHECK_NEAR((double)again, (n - (double)moved) * p, 5 * sqrt(n * p));
    CHECK_NEAR((double)both, (double)moved * p, 5 * sqrt(n * p * p)); /* as if nothing had been */
    CHECK_NEAR((double)runs, n * p * p, 5 * sqrt(n * p * p));         /* nor of neighbours */
    check_ok(context);
    mpt_destroy(context);
}

/* Sums of many steps come out right though each is far below what bf16 can show. */
TEST(small_steps_add_up) {
    mpt_context *context = new_context(2, 5);
    mpt_module net = weights_of(context, 4096, 1.0f);
    mpt_optimizer optimizer = plain_sgd(net, 1e-5);
    static float x[4096];
    for (int i = 0; i < 200; i++) step_by(net, optimizer, 1.0);
    read_weights(net, x, 4096);
    double mean = 0;
    for (int i = 0; i < 4096; i++) mean += (double)x[i] / 4096;
    /* the deviation of one weight is below sqrt(200 * 1e-5 * 2^-8) = 2.8e-3 */
    CHECK_NEAR(mean, 1 - 200e-5, 5 * 2.8e-3 / 64);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- what it depends on ---- */

/* Two layers of odd sizes, so that the second does not begin where a block of random words does. */
static uint64_t train_net(int threads, uint64_t seed, int kind) {
    mpt_context *context = new_context(threads, seed);
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 301, 257), mpt_nn_relu(context),
                                    mpt_nn_linear(context, 257, 3), MPT_END);
    mpt_half(net, MPT_BF16);
    mpt_optimizer optimizer = new_optimizer(net, kind, true);
    static float data[8 * 301];
    int64_t targets[8];
    for (int i = 0; i < 8 * 301; i++) data[i] = (float)((i * 37) % 64) / 32 - 1;
    for (int i = 0; i < 8; i++) targets[i] = i % 3;
    for (int i = 0; i < 4; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_tensor x = mpt_cast(mpt_from(context, MPT_F32, MPT_SHAPE(8, 301), data), MPT_BF16);
        mpt_tensor y = mpt_from(context, MPT_I64, MPT_SHAPE(8), targets);
        mpt_backward(mpt_cross_entropy(mpt_forward(net, x), y, NULL));
        mpt_step(optimizer);
        mpt_step_end(context);
    }
    check_ok(context);
    uint64_t hash = mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer);
    mpt_destroy(context);
    return hash;
}

TEST(threads_make_no_difference) {
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t one = train_net(1, 9, kind);
        CHECK(one == train_net(3, 9, kind));
        CHECK(one == train_net(1, 9, kind));
    }
    CHECK(train_net(1, 9, 1) != train_net(1, 10, 1));
}

/* Elements of the two layers, and of a second tree, do not draw the same words. */
TEST(parameters_draw_words_of_their_own) {
    mpt_context *context = new_context(1, 6);
    enum { N = 4096 };
    mpt_module net = mpt_sequential(context, mpt_nn_linear_no_bias(context, N, 1),
                                    mpt_nn_linear_no_bias(context, N, 1), MPT_END);
    mpt_module other = mpt_sequential(context, mpt_nn_linear_no_bias(context, N, 1), MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_ONES, 0, 0));
    mpt_set_init(other, NULL, mpt_init_make(MPT_INIT_ONES, 0, 0));
    mpt_half(net, MPT_BF16), mpt_half(other, MPT_BF16);
    step_by(net, plain_sgd(net, 1.0 / 512), 1.0);
    step_by(other, plain_sgd(other, 1.0 / 512), 1.0);
    static float x[3][N];
    mpt_read_f32(mpt_parameter(net, "0.weight"), x[0], N);
    mpt_read_f32(mpt_parameter(net, "1.weight"), x[1], N);
    mpt_read_f32(mpt_parameter(other, "0.weight"), x[2], N);
    for (int k = 0; k < 3; k++) {
        int64_t same = 0;
        for (int i = 0; i < N; i++) same += x[k][i] == x[(k + 1) % 3][i];
        CHECK_NEAR((double)same, N / 2, 5 * sqrt(N / 4.0));
    }
    check_ok(context);
    mpt_destroy(context);
}

static void check_half_same(const float *x, const float *y, int64_t count) {
    int64_t same = 0;
    for (int64_t i = 0; i < count; i++) same += x[i] == y[i];
    CHECK_NEAR((double)same, (double)count / 2, 5 * sqrt((double)count / 4));
}

/* Nor do those of two seeds, or of two optimizers that share a net. */
TEST(seeds_and_optimizers_draw_their_own) {
    enum { N = 4096 };
    static float x[4][N];
    for (int k = 0; k < 2; k++) {
        mpt_context *context = new_context(1, 6 + (uint64_t)k);
        mpt_module net = mpt_sequential(context, mpt_nn_linear_no_bias(context, N, 1),
                                        mpt_nn_linear_no_bias(context, N, 1), MPT_END);
        mpt_optimizer each[2];
        mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_ONES, 0, 0));
        mpt_half(net, MPT_BF16);
        for (int i = 0; i < 2; i++)
            each[i] = plain_sgd(mpt_child(net, i ? "1" : "0"), 1.0 / 512);
        step_by(net, each[0], 1.0);
        step_by(net, each[1], 1.0);
        for (int i = 0; i < 2; i++)
            mpt_read_f32(mpt_parameter(net, i ? "1.weight" : "0.weight"), x[2 * k + i], N);
        check_ok(context);
        mpt_destroy(context);
    }
    check_half_same(x[0], x[1], N);
    check_half_same(x[0], x[2], N);
    check_half_same(x[1], x[3], N);
}

/* An element that is alone in its block: half way between two numbers, where rounding to nearest
   would never move it. */
TEST(the_last_element_is_rounded_too) {
    enum { N = 1025 };
    mpt_context *context = new_context(1, 9);
    mpt_module net = weights_of(context, N, 1.0f);
    mpt_optimizer optimizer = plain_sgd(net, 1.0 / 512);
    float x[N];
    x[N - 1] = 1.0f;
    for (int i = 0; i < 40 && x[N - 1] == 1.0f; i++) {
        step_by(net, optimizer, 1.0);
        read_weights(net, x, N);
    }
    CHECK(x[N - 1] == 1.0f - 1.0f / 256);
    check_ok(context);
    mpt_destroy(context);
}

/* The words are keyed by the count of updates on the device: a recorded step goes on drawing. */
TEST(replays_draw_as_steps_do) {
    uint64_t hash[2];
    for (int replayed = 0; replayed < 2; replayed++) {
        mpt_context *context = new_context(1, 7);
        mpt_module net = weights_of(context, 1000, 1.0f);
        mpt_optimizer optimizer = plain_sgd(net, 1e-3);
        if (replayed) mpt_record_begin(context);
        step_by(net, optimizer, 1.0);
        if (replayed) {
            mpt_recording recording = mpt_record_end(context);
            for (int i = 0; i < 3; i++) mpt_replay(recording);
        } else {
            for (int i = 0; i < 3; i++) step_by(net, optimizer, 1.0);
        }
        check_ok(context);
        hash[replayed] = mpt_module_hash(net);
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
}

/* ---- steps that are skipped ---- */

TEST(a_skipped_step_changes_nothing) {
    NEEDS_PROMPT_DEVICE;
    for (int kind = 0; kind < KINDS; kind++) {
        uint64_t hash[2];
        for (int skips = 0; skips < 2; skips++) {
            mpt_context *context = new_context(1, 8);
            mpt_module net = weights_of(context, 1000, 1.0f);
            mpt_optimizer optimizer = new_optimizer(net, kind, true);
            mpt_scaler_config sc = mpt_scaler_config_default();
            sc.init_scale = 1, sc.min_scale = 0;
            mpt_scaler scaler = mpt_grad_scaler(context, &sc);
            for (int i = 0; i < 4; i++) {
                bool bad = i == 2 && skips;
                if (i == 2 && !skips) continue;
                uint64_t before = mpt_module_hash(net), state = mpt_optimizer_hash(optimizer);
                mpt_step_begin(context);
                mpt_zero_grad(optimizer);
                mpt_tensor sum = mpt_sum(mpt_parameter(net, "weight"), MPT_ALL_DIMS, false);
                mpt_tensor loss = mpt_mul_scalar(mpt_cast(sum, MPT_F32), bad ? 1e39 : 1.0);
                mpt_backward(mpt_scale_loss(scaler, loss));
                mpt_scaler_step(scaler, optimizer);
                mpt_scaler_update(scaler);
                mpt_step_end(context);
                bool same =
                    before == mpt_module_hash(net) && state == mpt_optimizer_hash(optimizer);
                CHECK(same == bad);
            }
            check_ok(context);
            CHECK_EQ_INT(mpt_applied_steps(optimizer), 3);
            hash[skips] = mpt_module_hash(net);
            mpt_destroy(context);
        }
        CHECK(hash[0] == hash[1]); /* nor do later ones draw other words */
    }
}

/* ---- memory ---- */

TEST(masters_are_not_there) {
    for (int kind = 0; kind < KINDS; kind++) {
        int64_t live[2];
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            mpt_context *context = new_context(1, 1);
            mpt_module net = weights_of(context, MANY, 1.0f);
            mpt_optimizer optimizer = new_optimizer(net, kind, stochastic);
            step_by(net, optimizer, 1.0);
            mpt_memory_stats m = mpt_memory(context);
            CHECK_EQ_INT(m.current[MPT_MEMORY_MASTER], stochastic ? 0 : 4 * MANY);
            CHECK_EQ_INT(m.current[MPT_MEMORY_PARAMETER], 2 * MANY);
            live[stochastic] = 0;
            for (int k = 0; k < MPT_MEMORY_KINDS; k++)
                if (k != MPT_MEMORY_HOST && k != MPT_MEMORY_ACTIVATION)
                    live[stochastic] += m.current[k];
            check_ok(context);
            mpt_destroy(context);
        }
        CHECK_EQ_INT(live[0] - live[1], 4 * MANY); /* 4 of its 18 bytes, with Adam's two moments */
    }
}

/* ---- training ---- */

enum { FEATURES = 16, SAMPLES = 64 };

/* Mean squared error of y = x w on data that a w of ones made, after `steps` steps at a rate whose
   updates are below half the spacing of bf16. way 0: fp32 masters; 1: rounding to nearest, by
   telling the optimizer after every step that the values in bf16 are what counts; 2: by chance. */
static double regress(int way, int steps) {
    mpt_context *context = new_context(1, 11);
    mpt_module net = mpt_nn_linear_no_bias(context, FEATURES, 1);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 0.5, 0));
    mpt_half(net, MPT_BF16);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 2.5e-3;
    config.stochastic_rounding = way == 2;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    float data[SAMPLES * FEATURES], target[SAMPLES];
    double error = 0;
    uint16_t weights[FEATURES];
    uint32_t state = 12345;
    for (int i = 0; i < SAMPLES; i++) {
        target[i] = 0;
        for (int k = 0; k < FEATURES; k++) {
            state = state * 1664525u + 1013904223u;
            data[i * FEATURES + k] = (float)((int)(state >> 26) - 32) / 32;
            target[i] += data[i * FEATURES + k];
        }
    }
    for (int i = 0; i <= steps; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(SAMPLES, FEATURES), data);
        mpt_tensor y = mpt_from(context, MPT_F32, MPT_SHAPE(SAMPLES, 1), target);
        mpt_tensor out = mpt_forward(net, mpt_cast(x, MPT_BF16));
        mpt_tensor loss = mpt_mse_loss(mpt_cast(out, MPT_F32), y, MPT_MEAN);
        error = mpt_item(loss);
        mpt_backward(loss);
        if (i < steps) mpt_step(optimizer);
        mpt_step_end(context);
        if (way != 1) continue;
        mpt_read(mpt_parameter(net, "weight"), weights, sizeof weights);
        mpt_write(mpt_parameter(net, "weight"), weights, sizeof weights);
    }
    check_ok(context);
    mpt_destroy(context);
    return error;
}

TEST(trains_where_rounding_to_nearest_stalls) {
    NEEDS_PROMPT_DEVICE; /* or a GPU's simulator: these are many steps */
    double start = regress(0, 0), masters = regress(0, 4000), nearest = regress(1, 4000);
    double chance = regress(2, 4000);
    printf("\n  squared error at the start %.4g, after 4000 steps: masters %.4g, nearest %.4g, "
           "by chance %.4g ",
           start, masters, nearest, chance);
    CHECK(nearest > 0.9 * start);
    CHECK(chance < 0.01 * start);
    CHECK(masters < 0.01 * start);
}

/* ---- misuse ---- */

TEST(other_dtypes_are_refused) {
    mpt_context *context = new_context(1, 1);
    mpt_module net = mpt_nn_linear(context, 3, 2), half = mpt_nn_linear(context, 3, 2);
    mpt_half(half, MPT_F16);
    for (int kind = 0; kind < KINDS; kind++) {
        new_optimizer(net, kind, true);
        check_error(context, MPT_ERROR_DTYPE, "parameter weight is float32; call mpt_half");
        new_optimizer(half, kind, true);
        check_error(context, MPT_ERROR_DTYPE, "parameter weight is float16");
    }
    mpt_module good = mpt_nn_linear(context, 3, 2);
    mpt_half(good, MPT_BF16);
    mpt_optimizer optimizer = new_optimizer(good, 1, true);
    mpt_optimizer_add(optimizer, net, NULL, NULL);
    check_error(context, MPT_ERROR_DTYPE, "parameter weight is float32");
    step_by(good, optimizer, 1.0);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(what_bf16_has_stays),
              T(the_mean_is_the_value),
              T(small_steps_add_up),
              T(threads_make_no_difference),
              T(parameters_draw_words_of_their_own),
              T(seeds_and_optimizers_draw_their_own),
              T(the_last_element_is_rounded_too),
              T(replays_draw_as_steps_do),
              T(a_skipped_step_changes_nothing),
              T(masters_are_not_there),
              T(trains_where_rounding_to_nearest_stalls),
              T(other_dtypes_are_refused)};
TEST_MAIN
