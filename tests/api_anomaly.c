/* api_anomaly.c: anomaly mode names the op, module and step that overflowed, says whether fp32
 * would have, and changes no bit of a training. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "training.h"

#include <math.h>

enum { IN = 8, HIDDEN = 16, OUT = 4, BATCH = 4 };

static char log_text[8192];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

static mpt_context *new_context(void) {
    mpt_config config = mpt_config_default();
    config.log.write = keep_log;
    log_text[0] = '\0';
    return mpt_create(&config);
}

/* Three linear layers, "0", "2" and "4", whose weights are all `size`, 1 and 1. */
static mpt_module new_net(mpt_context *context, double size) {
    mpt_module net =
        mpt_sequential(context, mpt_nn_linear_no_bias(context, IN, HIDDEN), mpt_nn_relu(context),
                       mpt_nn_linear_no_bias(context, HIDDEN, HIDDEN), mpt_nn_relu(context),
                       mpt_nn_linear_no_bias(context, HIDDEN, OUT), MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 1.0, 0));
    mpt_set_init(net, "0.weight", mpt_init_make(MPT_INIT_CONSTANT, size, 0));
    return net;
}

static mpt_tensor input_of(mpt_context *context, float value) {
    return mpt_full(context, MPT_F32, MPT_SHAPE(BATCH, IN), (double)value);
}

/* The rest of a step whose loss is there. */
static void finish(mpt_tensor loss, mpt_scaler scaler, mpt_optimizer optimizer) {
    mpt_backward(mpt_scale_loss(scaler, loss));
    mpt_scaler_step(scaler, optimizer);
    mpt_scaler_update(scaler);
    mpt_step_end(loss.context);
}

static void train(mpt_module net, mpt_scaler scaler, mpt_optimizer optimizer, mpt_dtype dtype,
                  float value) {
    mpt_context *context = net.context;
    mpt_step_begin(context);
    mpt_autocast_begin(context, dtype);
    mpt_tensor loss = mpt_mean(mpt_forward(net, input_of(context, value)), MPT_ALL_DIMS, false);
    mpt_autocast_end(context);
    mpt_zero_grad(optimizer);
    finish(loss, scaler, optimizer);
}

/* ---- what it finds ---- */

/* Layer 0 gives 8, layer 2 then 128 times 8 x 100 = 1e5 in the third step: beyond fp16. */
TEST(an_overflow_in_forward_is_named) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context, 1);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.init_scale = 1;
    mpt_scaler scaler = mpt_grad_scaler(context, &sc);
    CHECK_EQ_INT(mpt_anomaly_mode(context, true), MPT_OK);
    mpt_set_lr(optimizer, -1, 0);
    train(net, scaler, optimizer, MPT_F16, 1);
    train(net, scaler, optimizer, MPT_F16, 2);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_NONE);
    CHECK_EQ_STR(mpt_anomaly_text(context), "");
    train(net, scaler, optimizer, MPT_F16, 800);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_PRECISION);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 3: forward of linear, module 2 (kernel gemm): "
                                              "element 0 of a float16 tensor [4, 16] is inf; in "
                                              "float32 it is 102400.");
    CHECK_CONTAINS(log_text, "in float32 it is 102400");
    log_text[0] = '\0';
    train(net, scaler, optimizer, MPT_F16, 1);
    CHECK_EQ_STR(log_text, ""); /* one report per failed step; the last one stays */
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 3");
    train(net, scaler, optimizer, MPT_BF16, 800);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 3"); /* bf16 has the range */
    int64_t held = mpt_memory(context).current[MPT_MEMORY_WORKSPACE];
    train(net, scaler, optimizer, MPT_F16, 800);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 6: forward of linear, module 2");
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_WORKSPACE], held);
    check_ok(context);
    mpt_destroy(context);
}

/* A loss scale that fp16 gradients cannot stand; with accumulation, and found at the step's end. */
TEST(an_overflow_in_backward_is_named) {
    for (int updates = 0; updates < 2; updates++) {
        mpt_context *context = new_context();
        mpt_module net = new_net(context, 1.0 / 1024);
        mpt_optimizer optimizer = mpt_sgd(net, NULL);
        mpt_scaler_config sc = mpt_scaler_config_default();
        sc.init_scale = 1048576; /* over 16 elements: 65536 */
        mpt_scaler scaler = mpt_grad_scaler(context, &sc);
        mpt_anomaly_mode(context, true);
        mpt_step_begin(context);
        mpt_autocast_begin(context, MPT_F16);
        mpt_tensor loss = mpt_mean(mpt_forward(net, input_of(context, 1)), MPT_ALL_DIMS, false);
        mpt_autocast_end(context);
        if (updates) {
            finish(loss, scaler, optimizer);
        } else {
            mpt_backward(mpt_scale_loss(scaler, loss));
            mpt_step_end(context);
        }
        CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_PRECISION);
        CHECK_CONTAINS(mpt_anomaly_text(context), "step 1: backward of mean");
        CHECK_CONTAINS(mpt_anomaly_text(context), "is inf; in float32 it is 65536.");
        CHECK_CONTAINS(mpt_anomaly_text(context), "lower the loss scale");
        check_ok(context);
        mpt_destroy(context);
    }
}

/* The logarithm of a negative number, behind a layer in fp16. */
TEST(a_nan_of_fp32_too_is_said_to_be) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context, -1e-3);
    mpt_optimizer optimizer = mpt_sgd(mpt_child(net, "0"), NULL);
    mpt_anomaly_mode(context, true);
    mpt_step_begin(context);
    mpt_autocast_begin(context, MPT_F16);
    mpt_tensor y = mpt_log(mpt_forward(mpt_child(net, "0"), input_of(context, 1)));
    mpt_tensor loss = mpt_mean(y, MPT_ALL_DIMS, false);
    mpt_autocast_end(context);
    mpt_backward(loss);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_NONE);
    mpt_step(optimizer); /* without a scaler: looked at before the weights are lost */
    mpt_step_end(context);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_VALUES);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 1: forward of log (kernel unary): element 0");
    CHECK_CONTAINS(mpt_anomaly_text(context), "is nan, in float32 too");
    check_ok(context);
    mpt_destroy(context);
}

/* Infinities that a step is meant to have come first, and are not blamed. */
TEST(meant_infinities_are_passed_over) {
    for (int bad = 0; bad < 3; bad++) {
        mpt_context *context = new_context();
        mpt_module net = new_net(context, 1);
        mpt_optimizer optimizer = mpt_sgd(net, NULL);
        mpt_anomaly_mode(context, true);
        mpt_step_begin(context);
        mpt_autocast_begin(context, MPT_F16);
        mpt_tensor minus = mpt_mul_scalar(input_of(context, 1), -1e39);
        mpt_tensor masked = mpt_exp(minus); /* 0 */
        mpt_tensor x = mpt_add(input_of(context, bad == 1 ? 800.0f : 1.0f), masked);
        mpt_tensor loss = mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false);
        if (bad == 2) loss = mpt_log(mpt_mul_scalar(loss, -1));
        mpt_autocast_end(context);
        mpt_backward(loss);
        mpt_step(optimizer);
        mpt_step_end(context);
        static const mpt_anomaly_kind kinds[] = {MPT_ANOMALY_NONE, MPT_ANOMALY_PRECISION,
                                                 MPT_ANOMALY_VALUES};
        CHECK_EQ_INT(mpt_anomaly(context), kinds[bad]);
        if (bad == 1) CHECK_CONTAINS(mpt_anomaly_text(context), "linear, module 2");
        if (bad == 2) CHECK_CONTAINS(mpt_anomaly_text(context), "forward of log");
        check_ok(context);
        mpt_destroy(context);
    }
}

/* What only reads them is not blamed, either. */
TEST(infinities_of_the_data_are_read) {
    mpt_context *context = new_context();
    mpt_anomaly_mode(context, true);
    mpt_step_begin(context);
    mpt_tensor w = mpt_full(context, MPT_F32, MPT_SHAPE(IN), 1e38);
    mpt_requires_grad(w, true);
    mpt_tensor masked = mpt_exp(mpt_full(context, MPT_F32, MPT_SHAPE(IN), -INFINITY)); /* 0 */
    mpt_backward(mpt_sum(mpt_add(mpt_mul_scalar(w, 100), masked), 0, false));
    mpt_step_end(context);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_VALUES);
    CHECK_CONTAINS(mpt_anomaly_text(context), "forward of mul_scalar");
    check_ok(context);
    mpt_destroy(context);
}

/* What the host has written is not there any more, in fp32 or in fp16. */
TEST(inputs_may_be_gone) {
    for (int i = 0; i < 4; i++) {
        const bool half = i & 1, gone = i & 2;
        mpt_context *context = new_context();
        mpt_module net = new_net(context, 1);
        float values[BATCH * IN];
        uint16_t halves[BATCH * IN];
        for (int k = 0; k < BATCH * IN; k++) values[k] = 1024, halves[k] = 0x6400;
        mpt_anomaly_mode(context, true);
        mpt_step_begin(context);
        mpt_autocast_begin(context, MPT_F16);
        mpt_tensor x = half ? mpt_from(context, MPT_F16, MPT_SHAPE(BATCH, IN), halves)
                            : mpt_from(context, MPT_F32, MPT_SHAPE(BATCH, IN), values);
        mpt_tensor y = mpt_mul_scalar(x, 1);
        if (gone) mpt_release(x);
        mpt_tensor loss = mpt_mean(mpt_forward(net, y), MPT_ALL_DIMS, false);
        mpt_autocast_end(context);
        mpt_backward(loss);
        mpt_step_end(context);
        CHECK_EQ_INT(mpt_anomaly(context), gone ? MPT_ANOMALY_UNKNOWN : MPT_ANOMALY_PRECISION);
        CHECK_CONTAINS(mpt_anomaly_text(context), "linear, module 2");
        CHECK_CONTAINS(mpt_anomaly_text(context), gone ? "an input is gone" : "in float32 it is");
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Forward is finite, and so is the first gradient; the second is not in fp32 either. The next step
   has no gradients, and those of before do not count. */
TEST(a_gradient_of_any_parameter_counts) {
    mpt_context *context = new_context();
    mpt_module net = mpt_sequential(context, mpt_nn_linear_no_bias(context, IN, OUT),
                                    mpt_nn_linear_no_bias(context, OUT, OUT), MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 1e-38, 0));
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(context, NULL);
    mpt_anomaly_mode(context, true);
    mpt_step_begin(context);
    mpt_tensor first = mpt_sum(mpt_parameter(net, "0.weight"), MPT_ALL_DIMS, false);
    mpt_tensor second = mpt_sum(mpt_parameter(net, "1.weight"), MPT_ALL_DIMS, false);
    second = mpt_mul_scalar(mpt_mul_scalar(second, 1e25), 1e25);
    finish(mpt_add(first, second), scaler, optimizer);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_VALUES);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 1: backward of mul_scalar");
    mpt_step_begin(context);
    mpt_zero_grad(optimizer);
    mpt_mul_scalar(input_of(context, 1e38f), 100);
    mpt_step_end(context);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 1");
    check_ok(context);
    mpt_destroy(context);
}

/* ---- replays of other layers ---- */

/* Weights and batch in fp16, convolution, batch norm with its running statistics, pooling, dropout
   and loss in the replay; the last layer overflows where its input is that large. */
TEST(halves_and_other_layers_replay) {
    mpt_context *context = new_context();
    mpt_module net = mpt_sequential(
        context, mpt_nn_conv2d(context, 3, 4, 3, 3, NULL), mpt_nn_batch_norm2d(context, 4, NULL),
        mpt_nn_relu(context), mpt_nn_max_pool2d(context, NULL), mpt_nn_dropout(context, 0.25),
        mpt_nn_flatten(context), mpt_nn_linear(context, 36, 5), MPT_END);
    mpt_half(net, MPT_F16);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.init_scale = 1;
    mpt_scaler scaler = mpt_grad_scaler(context, &sc);
    mpt_anomaly_mode(context, true);
    static float pixels[2 * 3 * 8 * 8];
    int64_t target[2] = {1, 4};
    for (int i = 0; i < 2 * 3 * 8 * 8; i++) pixels[i] = (float)(i * 7 % 19) - 9;
    for (int step = 1; step <= 3; step++) {
        uint64_t before = mpt_module_hash(net);
        mpt_step_begin(context);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(2, 3, 8, 8), pixels);
        mpt_tensor y = mpt_forward(net, mpt_cast(x, MPT_F16));
        y = mpt_mul_scalar(y, step == 2 ? 1e6 : 1.0);
        mpt_tensor t = mpt_from(context, MPT_I64, MPT_SHAPE(2), target);
        mpt_zero_grad(optimizer);
        finish(mpt_cross_entropy(y, t, NULL), scaler, optimizer);
        if (step != 2) CHECK(before != mpt_module_hash(net));
        if (step == 1) CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_NONE);
    }
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_PRECISION);
    CHECK_CONTAINS(mpt_anomaly_text(context), "step 2: forward of mul_scalar");
    check_ok(context);
    mpt_destroy(context);
}

/* ---- what it leaves alone ---- */

/* Hash of a training with dropout whose steps 3 and 6 overflow. */
static uint64_t train_some(bool mode, int threads, arena *memory) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    if (memory) arena_use(memory, &config);
    mpt_context *context = mpt_create(&config);
    mpt_module net =
        mpt_sequential(context, mpt_nn_linear(context, IN, 300), mpt_nn_relu(context),
                       mpt_nn_dropout(context, 0.5), mpt_nn_linear(context, 300, OUT), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(context, NULL);
    if (mode) mpt_anomaly_mode(context, true);
    for (int i = 1; i <= 8; i++) train(net, scaler, optimizer, MPT_F16, i % 3 ? (float)i : 1e6f);
    check_ok(context);
    CHECK_EQ_INT(mpt_anomaly(context), mode ? MPT_ANOMALY_PRECISION : MPT_ANOMALY_NONE);
    uint64_t hash = mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer);
    mpt_destroy(context);
    return hash;
}

TEST(a_training_has_the_same_bits) {
    arena memory;
    uint64_t hash = train_some(false, 1, NULL);
    CHECK(train_some(true, 1, &memory) == hash);
    CHECK_EQ_INT(memory.live, 0);
    CHECK_EQ_INT(memory.torn, 0);
    CHECK(train_some(true, 3, NULL) == hash);
}

/* ---- beside recordings, errors and steps ---- */

static mpt_status captured_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const mpt_module *net = (const mpt_module *)user;
    (void)y;
    mpt_step_begin(context);
    mpt_backward(mpt_mean(mpt_forward(*net, x), MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

TEST(recordings_come_first) {
    mpt_context *context = new_context();
    mpt_module net = new_net(context, 1);
    mpt_anomaly_mode(context, true);
    mpt_tensor x = mpt_keep(input_of(context, INFINITY)), none;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, captured_step, &net);
    mpt_captured_step(captured, input_of(context, 1), none); /* that one runs by itself */
    for (int i = 0; i < 3; i++) mpt_captured_step(captured, x, none);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_NONE);
    mpt_step_begin(context);
    mpt_record_begin(context); /* in a step that the mode records */
    mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
    mpt_recording recording = mpt_record_end(context);
    CHECK(mpt_recording_launches(recording) > 0);
    mpt_step_end(context);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_NONE);
    mpt_step_begin(context);
    mpt_record_end(context); /* that is not the user's */
    check_error(context, MPT_ERROR_STATE, "no recording is under way");
    mpt_step_begin(context);
    mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
    mpt_step_end(context);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_VALUES);
    mpt_step_begin(context);
    mpt_anomaly_mode(context, false);
    check_error(context, MPT_ERROR_STATE, "switch anomaly mode between steps");
    CHECK_EQ_INT(mpt_anomaly_mode(context, false), MPT_OK);
    CHECK_EQ_STR(mpt_anomaly_text(context), "");
    CHECK_EQ_INT(mpt_anomaly_mode(context, true), MPT_OK);
    mpt_step_begin(context); /* left open */
    mpt_forward(net, x);
    check_ok(context);
    mpt_destroy(context);
}

/* Without memory for the replay the error is one like any other; after mpt_clear_error it goes
   on. */
TEST(memory_may_run_out) {
    arena memory;
    mpt_config config = mpt_config_default();
    config.threads = 1;
    arena_use(&memory, &config);
    mpt_context *context = mpt_create(&config);
    mpt_module net = new_net(context, 1);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(context, NULL);
    mpt_anomaly_mode(context, true);
    train(net, scaler, optimizer, MPT_F16, 1e-3f);
    int64_t failed = 0;
    for (int k = 1; k < 60; k++) {
        memory.fail_at = memory.calls + k, memory.failures = INT64_MAX / 2;
        train(net, scaler, optimizer, MPT_F16, 1e6f);
        memory.fail_at = 0;
        if (!mpt_failed(context)) continue;
        failed++;
        check_error(context, MPT_ERROR_MEMORY, "memory");
        mpt_memory_trim(context);
    }
    CHECK(failed > 2);
    train(net, scaler, optimizer, MPT_F16, 1e6f);
    CHECK_EQ_INT(mpt_anomaly(context), MPT_ANOMALY_PRECISION);
    check_ok(context);
    mpt_destroy(context);
    CHECK_EQ_INT(memory.live, 0);
    CHECK_EQ_INT(memory.torn, 0);
}

TEST_TABLE = {T(an_overflow_in_forward_is_named), T(an_overflow_in_backward_is_named),
              T(a_nan_of_fp32_too_is_said_to_be), T(meant_infinities_are_passed_over),
              T(infinities_of_the_data_are_read), T(inputs_may_be_gone),
              T(a_gradient_of_any_parameter_counts),
              T(halves_and_other_layers_replay),  T(a_training_has_the_same_bits),
              T(recordings_come_first),           T(memory_may_run_out)};
TEST_MAIN
