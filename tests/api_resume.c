/* api_resume.c: trainings that stop, go on and go back, against ones that never did: to the bit. */
#include "mptrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files.h"
#include "harness.h"

enum { FEATURES = 6, CLASSES = 3, SAMPLES = 50, BATCH = 8, STEPS = 24, STOP = 11 };

/* One way to train. */
typedef struct {
    const char *name;
    mpt_dtype region, parameters; /* autocast; of the net */
    int optimizer, workers, accumulate;
    bool scaled, scheduled, averaged, dropout, overflow, noise, by_epoch;
} setup;

static const setup setups[] = {
    {"sgd", MPT_F32, MPT_F32, 0, 0, 1, false, false, false, false, false, true, false},
    {"momentum and a schedule", MPT_F32, MPT_F32, 1, 0, 1, false, true, false, false, false, false,
     false},
    {"adamw with averages", MPT_BF16, MPT_F32, 2, 0, 1, false, false, true, true, false, false,
     false},
    {"fp16 with a scaler", MPT_F16, MPT_F32, 2, 1, 1, true, true, false, true, true, false, false},
    {"pure fp16", MPT_F32, MPT_F16, 2, 4, 1, true, false, true, false, true, true, false},
    {"pure bf16, rates by epoch", MPT_F32, MPT_BF16, 1, 1, 1, false, true, false, true, false,
     false, true},
    {"rmsprop, accumulated", MPT_F32, MPT_F32, 3, 0, 4, false, true, false, true, false, false,
     false},
    {"fp16, accumulated", MPT_F16, MPT_F32, 2, 0, 4, true, false, false, false, true, false,
     false}};
enum { SETUPS = sizeof setups / sizeof *setups };

/* A training, made the same way each time. */
typedef struct {
    const setup *how;
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_ema ema;
    mpt_schedule schedule;
    mpt_loader loader;
} training;

static float inputs[SAMPLES][FEATURES];
static int64_t targets[SAMPLES];

static mpt_device where = MPT_DEVICE_AUTO;
static int more_workers; /* than a setup has */

static mpt_optimizer make_optimizer(mpt_module net, int kind) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    sgd.lr = 0.05, sgd.momentum = kind == 1 ? 0.9 : 0;
    adamw.lr = 0.01, rmsprop.lr = 0.01, rmsprop.momentum = 0.5;
    return kind < 2    ? mpt_sgd(net, &sgd)
           : kind == 2 ? mpt_adamw(net, &adamw)
                       : mpt_rmsprop(net, &rmsprop);
}

static training begin(const setup *how, int threads, uint64_t seed) {
    training t;
    mpt_config config = mpt_config_default();
    memset(&t, 0, sizeof t);
    config.threads = threads, config.seed = seed, config.device = where;
    mpt_context *c = t.context = mpt_create(&config);
    t.how = how;
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, 12), mpt_nn_batch_norm1d(c, 12, NULL),
                           mpt_nn_relu(c), mpt_nn_dropout(c, how->dropout ? 0.3 : 0),
                           mpt_nn_linear(c, 12, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    if (how->parameters != MPT_F32) mpt_half(t.net, how->parameters);
    t.optimizer = make_optimizer(t.net, how->optimizer);
    if (how->scheduled)
        t.schedule = mpt_schedule_create(t.optimizer, mpt_cosine_lr(20, 0.001),
                                         how->by_epoch ? MPT_PER_EPOCH : MPT_PER_STEP);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.growth_interval = 5;
    if (how->scaled) t.scaler = mpt_grad_scaler(c, &scaler);
    if (how->averaged) t.ema = mpt_ema_create(t.net, t.optimizer, NULL);
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    memory.count = SAMPLES, memory.dtype = MPT_F32, memory.shape = MPT_SHAPE(FEATURES);
    memory.inputs = inputs, memory.targets = targets;
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = BATCH, loading.shuffle = true,
    loading.workers = (how->workers + more_workers) % 5;
    t.loader = mpt_loader_create(c, mpt_memory_dataset(c, &memory), &loading);
    return t;
}

/* Micro-batches `from` up to `to`, epochs running on. */
static void run(training *t, int from, int to) {
    for (int i = from; i < to; i++) {
        mpt_batch batch;
        const setup *how = t->how;
        if (!mpt_loader_next(t->loader, &batch)) {
            if (how->by_epoch) mpt_schedule_step(t->schedule);
            mpt_loader_next(t->loader, &batch);
        }
        mpt_step_begin(t->context);
        mpt_autocast_begin(t->context, how->region);
        mpt_tensor x = batch.x;
        if (how->noise) x = mpt_add(x, mpt_randn(t->context, MPT_F32, mpt_get_shape(x)));
        if (how->parameters != MPT_F32) x = mpt_cast(x, how->parameters);
        mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, x), batch.y, NULL);
        mpt_autocast_end(t->context);
        if (how->overflow && i % 9 == 5) loss = mpt_mul_scalar(loss, 3e38); /* is skipped */
        loss = mpt_mul_scalar(loss, 1.0 / how->accumulate);
        mpt_metric_push(t->context, "loss", loss);
        if (i % how->accumulate == 0) mpt_zero_grad(t->optimizer);
        mpt_backward(how->scaled ? mpt_scale_loss(t->scaler, loss) : loss);
        if (i % how->accumulate == how->accumulate - 1) {
            if (how->scaled) {
                mpt_scaler_step(t->scaler, t->optimizer);
                mpt_scaler_update(t->scaler);
            } else {
                mpt_step(t->optimizer);
            }
            if (how->averaged) mpt_ema_update(t->ema);
        }
        mpt_step_end(t->context);
    }
    CHECK_EQ_STR(mpt_error(t->context), "");
}

static void make_data(void) {
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i % CLASSES;
        for (int k = 0; k < FEATURES; k++)
            inputs[i][k] = (float)((i * 7 + k * 3) % 11) / 5.0f - 1 + (k == i % CLASSES);
    }
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
/* Stopped in the middle of an epoch, and of an accumulation, and gone on in another context. */
TEST(stopped_and_gone_on) {
    const char *path = test_tmp_path("resume.safetensors");
    make_data();
    for (int k = 0; k < SETUPS; k++) {
        training whole = begin(&setups[k], 2, 3);
        run(&whole, 0, STEPS);
        const uint64_t hash = mpt_state_hash(whole.context);
        const double mean = mpt_metric_mean(whole.context, "loss", true);
        CHECK(hash != 0);
        training part = begin(&setups[k], 2, 3);
        run(&part, 0, STOP);
        CHECK_EQ_INT(mpt_checkpoint_save(part.context, path), MPT_OK);
        const uint64_t stopped = mpt_state_hash(part.context);
        CHECK(stopped != hash);
        mpt_destroy(part.context);
        for (int threads = 1; threads <= 3; threads++) {
            more_workers = threads - 1;
            part = begin(&setups[k], threads, 3);
            more_workers = 0;
            if (threads > 1) run(&part, 0, 3); /* one that is already under way, too */
            CHECK_EQ_INT(mpt_checkpoint_load(part.context, path), MPT_OK);
            CHECK(mpt_state_hash(part.context) == stopped);
            run(&part, STOP, STEPS);
            if (mpt_state_hash(part.context) != hash) TEST_FAIL_("%s: other bits", setups[k].name);
            CHECK(mpt_metric_mean(part.context, "loss", true) == mean);
            mpt_destroy(part.context);
        }
        mpt_destroy(whole.context);
    }
}

/* The bytes of a file depend on the state alone; a file that is cut changes nothing. */
TEST(files_that_are_whole_and_cut) {
    static uint8_t bytes[64 << 10], again[64 << 10];
    const char *path = test_tmp_path("whole.safetensors"), *cut = test_tmp_path("cut.safetensors");
    make_data();
    training a = begin(&setups[3], 1, 3), b = begin(&setups[3], 2, 3);
    run(&a, 0, STOP);
    CHECK_EQ_INT(mpt_checkpoint_save(a.context, path), MPT_OK);
    size_t n = file_bytes(path, bytes, sizeof bytes);
    CHECK_EQ_INT(mpt_checkpoint_load(b.context, path), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_save(b.context, cut), MPT_OK);
    CHECK(file_bytes(cut, again, sizeof again) == n && memcmp(bytes, again, n) == 0);
    run(&b, 0, 2);
    mpt_checkpoint_load(b.context, "");
    mpt_clear_error(b.context); /* drops gradients, whatever the error was */
    const uint64_t hash = mpt_state_hash(b.context);
    for (size_t k = 0; k < n; k += 1 + n / 61) {
        file_make(cut, bytes, k);
        CHECK_EQ_INT(mpt_checkpoint_load(b.context, cut), MPT_ERROR_FORMAT);
        mpt_clear_error(b.context);
        CHECK(mpt_state_hash(b.context) == hash);
    }
    mpt_destroy(a.context);
    mpt_destroy(b.context);
}

/* What a file says of another training is refused by name, and nothing changes. */
TEST(files_of_others) {
    const char *path = test_tmp_path("other.safetensors");
    make_data();
    training a = begin(&setups[0], 1, 3);
    run(&a, 0, 3);
    CHECK_EQ_INT(mpt_checkpoint_save(a.context, path), MPT_OK);
    const struct {
        int setup;
        uint64_t seed;
        const char *says;
    } rows[] = {{0, 4, "mptrain.seed is 3 there and 4 here"},
                {1, 3, "the file has no mptrain.optimizer.0.net.0.0.weight.momentum_buffer"},
                {4, 3, "0.weight is F32 [12, 6] there and F16 [12, 6] here"}};
    for (int k = 0; k < 3; k++) {
        training b = begin(&setups[rows[k].setup], 1, rows[k].seed);
        const uint64_t hash = mpt_state_hash(b.context);
        CHECK(mpt_checkpoint_load(b.context, path) != MPT_OK);
        CHECK_CONTAINS(mpt_error(b.context), rows[k].says);
        mpt_clear_error(b.context);
        CHECK(mpt_state_hash(b.context) == hash);
        mpt_destroy(b.context);
    }
    CHECK_EQ_INT(mpt_save(a.net, path), MPT_OK); /* weights alone */
    CHECK_EQ_INT(mpt_checkpoint_load(a.context, path), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(a.context), "or of weights alone");
    mpt_destroy(a.context);
}

/* Where the eight bytes of a number lie in a file: behind its header, by its offsets. */
static size_t number_place(const uint8_t *bytes, size_t n, const char *name) {
    static char header[64 << 10];
    size_t size = (size_t)bytes[0] | (size_t)bytes[1] << 8;
    unsigned long at = 0;
    if (size + 8 > n || size >= sizeof header) return 0;
    memcpy(header, bytes + 8, size);
    header[size] = 0;
    const char *found = strstr(header, name);
    found = found ? strstr(found, "data_offsets\":[") : NULL;
    return found && sscanf(found, "data_offsets\":[%lu", &at) == 1 ? 8 + size + at : 0;
}

/* A file is data: numbers that cannot be are refused by name, and nothing changes. */
TEST(numbers_that_cannot_be) {
    static uint8_t bytes[64 << 10];
    static const struct {
        const char *name, *says;
        int64_t whole;
        double real; /* where `whole` is 0 */
    } rows[] = {{"mptrain.loader.0.next", "expected 0 to 7", 8, 0},
                {"mptrain.loader.0.next", "expected 0 to 7", -1, 0},
                {"mptrain.loader.0.epoch", "expected 0 to", INT64_MAX, 0},
                {"mptrain.loader.0.batch", "is 9 there and 8 here", 9, 0},
                {"mptrain.optimizer.0.applied_steps", "expected 0 to", -5, 0},
                {"mptrain.optimizer.0.group.0.lr", "expected a finite number", 0, NAN},
                {"mptrain.optimizer.0.group.0.weight_decay", "there and", 0, 0.5},
                {"mptrain.scaler.0.scale", "expected a finite number", 0, -1},
                {"mptrain.scaler.0.scale", "expected a finite number", 0, INFINITY},
                {"mptrain.scaler.0.growth_interval", "expected 0 to", -3, 0},
                {"mptrain.step", "expected 0 to", INT64_MIN, 0},
                {"mptrain.step", "expected 0 to 9007199254740992", INT64_MAX, 0},
                {"mptrain.optimizer.0.applied_steps", "expected 0 to", INT64_MAX, 0},
                {"mptrain.scaler.0.updates", "expected 0 to", INT64_C(1) << 54, 0},
                {"mptrain.optimizer.0.schedule.time", "expected -9007", INT64_MAX, 0},
                {"mptrain.optimizer.0.schedule.time", "expected -9007", INT64_MIN, 0},
                {"weight.step", "expected 0 to", -1, 0},
                {"weight.step", "expected 0 to", INT64_MAX, 0},
                {"mptrain.format", "is 2 there and 1 here", 2, 0}};
    const char *path = test_tmp_path("numbers.safetensors");
    make_data();
    training t = begin(&setups[3], 1, 3);
    run(&t, 0, STOP);
    CHECK_EQ_INT(mpt_checkpoint_save(t.context, path), MPT_OK);
    size_t n = file_bytes(path, bytes, sizeof bytes);
    run(&t, STOP, STOP + 2);
    mpt_checkpoint_load(t.context, "");
    mpt_clear_error(t.context);
    const uint64_t hash = mpt_state_hash(t.context);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        uint8_t kept[8];
        const size_t at = number_place(bytes, n, rows[k].name);
        REQUIRE(at > 0 && at + 8 <= n);
        memcpy(kept, bytes + at, 8);
        uint64_t bits = (uint64_t)rows[k].whole;
        if (!rows[k].whole) memcpy(&bits, &rows[k].real, 8);
        for (int i = 0; i < 8; i++) bytes[at + (size_t)i] = (uint8_t)(bits >> 8 * i);
        file_make(path, bytes, n);
        CHECK_EQ_INT(mpt_checkpoint_load(t.context, path), MPT_ERROR_FORMAT);
        CHECK_CONTAINS(mpt_error(t.context), rows[k].name);
        CHECK_CONTAINS(mpt_error(t.context), rows[k].says);
        mpt_clear_error(t.context);
        CHECK(mpt_state_hash(t.context) == hash);
        memcpy(bytes + at, kept, 8);
    }
    mpt_destroy(t.context);
}

/* The weights of a checkpoint can be had without the rest. */
TEST(weights_of_a_checkpoint) {
    const char *path = test_tmp_path("weights.safetensors");
    mpt_load_config loading = mpt_load_config_default();
    int loaded;
    make_data();
    training a = begin(&setups[2], 1, 3), b = begin(&setups[0], 1, 5);
    run(&a, 0, 3);
    CHECK_EQ_INT(mpt_checkpoint_save(a.context, path), MPT_OK);
    loading.strict = false;
    CHECK_EQ_INT(mpt_load(b.net, path, &loading, &loaded), MPT_OK);
    CHECK(loaded == 9 && mpt_module_hash(a.net) == mpt_module_hash(b.net));
    mpt_destroy(a.context);
    mpt_destroy(b.context);
}

static mpt_status through_child(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_forward(mpt_child(self, "net"), in[0]);
    return mpt_error_code(self.context);
}

/* A net with weights "net.1.weight", which could be the second net's "weight". */
static mpt_module make_outer(mpt_context *c) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "outer", cls.forward = through_child, cls.n_inputs = cls.n_outputs = 1;
    mpt_module outer = mpt_module_create(c, &cls, NULL);
    mpt_add_child(outer, "net", mpt_sequential(c, mpt_nn_relu(c), mpt_nn_linear(c, 3, 2), MPT_END));
    return outer;
}

/* Nets with equal names of weights in one optimizer, and with names that look like another's. */
TEST(nets_with_equal_names) {
    const char *path = test_tmp_path("two.safetensors"), *end = test_tmp_path("end.safetensors");
    mpt_load_config loading = mpt_load_config_default();
    loading.strict = false, loading.prefix = "mptrain.values.net.1";
    for (int outer = 0; outer < 2; outer++) {
        uint64_t hash[2] = {0, 0};
        for (int round = 0; round < 2; round++) {
            mpt_context *c = mpt_create(NULL);
            mpt_module first = outer ? make_outer(c) : mpt_nn_linear(c, 3, 2);
            mpt_module second = mpt_nn_linear(c, 2, 2), alone = mpt_nn_linear(c, 2, 2);
            mpt_optimizer optimizer = mpt_adamw(first, NULL);
            mpt_optimizer_add(optimizer, second, NULL, NULL);
            for (int i = round ? 2 : 0; i < 4; i++) {
                if (round && i == 2) CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_OK);
                mpt_step_begin(c);
                mpt_zero_grad(optimizer);
                mpt_backward(mpt_mean(
                    mpt_forward(second, mpt_forward(first, mpt_ones(c, MPT_F32, MPT_SHAPE(4, 3)))),
                    MPT_ALL_DIMS, false));
                mpt_step(optimizer);
                mpt_step_end(c);
                if (!round && i == 1) CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
            }
            hash[round] = mpt_state_hash(c);
            CHECK_EQ_INT(mpt_checkpoint_save(c, end), MPT_OK);
            mpt_load(alone, end, &loading, NULL);
            CHECK(mpt_module_hash(alone) == mpt_module_hash(second));
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_destroy(c);
        }
        CHECK(hash[0] != 0 && hash[0] == hash[1]);
    }
}
#endif

/* Back to a snapshot as often as one likes, without memory; forward again, the same bits. */
TEST(back_and_forward) {
    make_data();
    for (int k = 0; k < SETUPS; k++) {
        training t = begin(&setups[k], 2, 3);
        run(&t, 0, STOP);
        const uint64_t there = mpt_state_hash(t.context);
        const int64_t bytes = mpt_snapshot_bytes(t.context);
        REQUIRE(bytes > 0);
        uint8_t *block = (uint8_t *)malloc((size_t)bytes);
        CHECK_EQ_INT(mpt_snapshot(t.context, block, (size_t)bytes), MPT_OK);
        run(&t, STOP, STEPS);
        const uint64_t end = mpt_state_hash(t.context);
        for (int round = 0; round < 3; round++) {
            CHECK_EQ_INT(mpt_restore(t.context, block, (size_t)bytes), MPT_OK);
            CHECK(mpt_state_hash(t.context) == there);
            run(&t, STOP, STEPS);
            if (mpt_state_hash(t.context) != end) TEST_FAIL_("%s: other bits", setups[k].name);
        }
        uint64_t kept = 0; /* mpt_clear_error drops gradients, whatever the error was */
        for (int64_t n = 0; n < bytes; n += 1 + bytes / 37) {
            CHECK_EQ_INT(mpt_restore(t.context, block, (size_t)n), MPT_ERROR_FORMAT);
            mpt_clear_error(t.context);
            if (!kept) kept = mpt_state_hash(t.context);
        }
        CHECK(mpt_state_hash(t.context) == kept);
        CHECK_EQ_INT(mpt_snapshot(t.context, block, 99), MPT_ERROR_ARGUMENT);
        CHECK_CONTAINS(mpt_error(t.context), "the block has 99 bytes, a snapshot");
        free(block);
        mpt_destroy(t.context);
    }
}

/* A step that is captured, of one batch after the other. */
typedef struct {
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    bool steps; /* without them nothing is captured, and dropout counts on and on */
} captured_training;

static mpt_status captured_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    captured_training *t = (captured_training *)user;
    if (t->steps) mpt_step_begin(c);
    mpt_autocast_begin(c, MPT_F16);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, x), y, NULL);
    mpt_autocast_end(c);
    mpt_metric_push(c, "loss", loss);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    if (t->steps) mpt_step_end(c);
    return mpt_error_code(c);
}

static uint64_t run_captured(mpt_context *c, mpt_captured step, mpt_tensor x[3], mpt_tensor y,
                             int from, int to) {
    for (int i = from; i < to; i++) mpt_captured_step(step, x[i % 3], y);
    return mpt_state_hash(c);
}

/* Steps that run from their recording go back and forward, too, and go on elsewhere. */
TEST(captured_steps_go_back) {
#ifdef MPTRAIN_NO_GRAPH
    SKIP("captured steps");
#else
    uint64_t hash[3] = {0, 0, 0};
    uint8_t *block = NULL;
    int64_t bytes = 0;
    make_data();
    for (int round = 0; round < 4; round++) {
        captured_training t;
        mpt_context *c = mpt_create(NULL);
        mpt_scaler_config scaler = mpt_scaler_config_default();
        mpt_tensor x[3], y = mpt_from(c, MPT_I64, MPT_SHAPE(BATCH), targets);
        scaler.growth_interval = 4;
        t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, 12), mpt_nn_relu(c),
                               mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, 12, CLASSES),
                               mpt_nn_log_softmax(c, -1), MPT_END);
        t.optimizer = mpt_adamw(t.net, NULL);
        t.scaler = mpt_grad_scaler(c, &scaler);
        t.steps = round < 2;
        mpt_schedule_create(t.optimizer, mpt_cosine_lr(15, 0.0001), MPT_PER_STEP);
        for (int i = 0; i < 3; i++)
            x[i] = mpt_from(c, MPT_F32, MPT_SHAPE(BATCH, FEATURES), inputs[i * BATCH]);
        mpt_captured step = mpt_capture(c, captured_step, &t);
        if (round % 2 == 0) {
            free(block);
            hash[0] = run_captured(c, step, x, y, 0, 7);
            bytes = mpt_snapshot_bytes(c);
            REQUIRE(bytes > 0);
            block = (uint8_t *)malloc((size_t)bytes);
            CHECK_EQ_INT(mpt_snapshot(c, block, (size_t)bytes), MPT_OK);
            CHECK(mpt_captured_count(step) == (t.steps ? 5 : 0));
            hash[1] = run_captured(c, step, x, y, 7, 20);
            for (int again = 0; again < 2; again++) {
                CHECK_EQ_INT(mpt_restore(c, block, (size_t)bytes), MPT_OK);
                CHECK(mpt_state_hash(c) == hash[0]);
                CHECK(run_captured(c, step, x, y, 7, 20) == hash[1]);
            }
        } else { /* the same objects, of which none has been used */
            mpt_metric_push(c, "loss", mpt_zeros(c, MPT_F32, MPT_SCALAR));
            CHECK_EQ_INT(mpt_restore(c, block, (size_t)bytes), MPT_OK);
            CHECK(mpt_state_hash(c) == hash[0]);
            hash[2] = run_captured(c, step, x, y, 7, 20);
            CHECK(hash[2] == hash[1]);
        }
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
    free(block);
#endif
}

/* From one device to another and back: where there is but one, from the CPU to the CPU. */
TEST(on_another_device) {
    make_data();
    const setup *how = &setups[4];
    training a = begin(how, 2, 3), b;
    run(&a, 0, STOP);
    const uint64_t hash = mpt_state_hash(a.context);
    const int64_t bytes = mpt_snapshot_bytes(a.context);
    REQUIRE(bytes > 0);
    uint8_t *block[2] = {(uint8_t *)malloc((size_t)bytes), (uint8_t *)malloc((size_t)bytes)};
    CHECK_EQ_INT(mpt_snapshot(a.context, block[0], (size_t)bytes), MPT_OK);
    where = MPT_DEVICE_CPU;
    b = begin(how, 1, 3);
    where = MPT_DEVICE_AUTO;
    mpt_metric_push(b.context, "loss", mpt_zeros(b.context, MPT_F32, MPT_SCALAR));
    CHECK_EQ_INT(mpt_restore(b.context, block[0], (size_t)bytes), MPT_OK);
    CHECK(mpt_state_hash(b.context) == hash);
    CHECK_EQ_INT(mpt_snapshot(b.context, block[1], (size_t)bytes), MPT_OK);
    CHECK(memcmp(block[0], block[1], (size_t)bytes) == 0);
    free(block[0]), free(block[1]);
    mpt_destroy(a.context);
    mpt_destroy(b.context);
}

TEST(snapshots_take_no_memory) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(c, 30, 40);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    int64_t before = 0, bytes = 0;
    uint8_t *block = NULL;
    for (int i = 0; i < 6; i++) {
        if (i == 3) before = mpt_memory(c).allocations;
        mpt_step_begin(c);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_mean(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(2, 30))),
                              MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_step_end(c);
        if (!block) {
            bytes = mpt_snapshot_bytes(c);
            REQUIRE(bytes > 0);
            block = (uint8_t *)malloc((size_t)bytes);
        }
        CHECK_EQ_INT(mpt_snapshot(c, block, (size_t)bytes), MPT_OK);
        CHECK_EQ_INT(mpt_restore(c, block, (size_t)bytes), MPT_OK);
    }
    CHECK_EQ_INT(mpt_memory(c).allocations, before);
    CHECK_EQ_STR(mpt_error(c), "");
    free(block);
    mpt_destroy(c);
}

/* A state that is not whole is refused by name. */
TEST(between_steps_only) {
    uint8_t block[8] = {0};
    make_data();
    training t = begin(&setups[7], 1, 3);
    run(&t, 0, 1);
    mpt_step_begin(t.context);
    CHECK(mpt_state_hash(t.context) == 0);
    CHECK_CONTAINS(mpt_error(t.context), "a step is under way");
    mpt_clear_error(t.context);
    run(&t, 0, 1);
    mpt_unscale(t.scaler, t.optimizer);
    CHECK(mpt_snapshot(t.context, block, sizeof block) == MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(t.context), "mpt_scaler_update");
    mpt_destroy(t.context);
    t = begin(&setups[2], 1, 3);
    mpt_ema_apply(t.ema);
    CHECK(mpt_restore(t.context, block, sizeof block) == MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(t.context), "mpt_ema_restore");
    mpt_destroy(t.context);
}

/* The first piece that differs is named, with its place and both values. */
TEST(where_two_runs_part) {
    static char block[1 << 17];
    char text[300] = "";
    make_data();
    training a = begin(&setups[2], 1, 3), b = begin(&setups[2], 2, 3);
    run(&a, 0, STOP), run(&b, 0, STOP);
    CHECK_EQ_INT(mpt_snapshot(a.context, block, sizeof block), MPT_OK);
    CHECK_EQ_INT(mpt_snapshot_difference(b.context, block, sizeof block, text, sizeof text), 0);
    CHECK_EQ_STR(text, "");
    float weights[FEATURES * 12];
    mpt_tensor weight = mpt_parameter(b.net, "0.weight");
    mpt_read_f32(weight, weights, FEATURES * 12);
    const float before = weights[2 * FEATURES + 3];
    weights[2 * FEATURES + 3] = 0.25f;
    mpt_write(weight, weights, sizeof weights);
    char expected[100];
    snprintf(expected, sizeof expected, "0.weight[2, 3] is 0.25 here and %.9g there",
             (double)before);
    CHECK_EQ_INT(mpt_snapshot_difference(b.context, block, sizeof block, text, sizeof text),
                 (int)strlen(expected));
    CHECK_EQ_STR(text, expected);
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
    const char *path = test_tmp_path("part.safetensors"), *plain = test_tmp_path("plain.st");
    CHECK_EQ_INT(mpt_checkpoint_save(a.context, path), MPT_OK);
    mpt_checkpoint_difference(b.context, path, text, sizeof text);
    CHECK_EQ_STR(text, expected);
    CHECK_EQ_INT(mpt_checkpoint_difference(a.context, path, text, sizeof text), 0);
    run(&b, STOP, STOP + 1);
    mpt_checkpoint_difference(b.context, path, text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.step is 12 here and 11 there");
    CHECK_EQ_INT(mpt_save(a.net, plain), MPT_OK); /* weights alone */
    mpt_checkpoint_difference(a.context, plain, text, sizeof text);
    CHECK_CONTAINS(text, "mptrain.format");
    CHECK_CONTAINS(text, "here alone");
    mpt_metric_push(b.context, "more", mpt_ones(b.context, MPT_F32, MPT_SCALAR));
    CHECK_EQ_INT(mpt_checkpoint_save(b.context, path), MPT_OK);
    mpt_metric_reset(b.context, "more");
    mpt_checkpoint_difference(b.context, path, text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.metric.more.sum is 0 here and 1 there");
#endif
    mpt_destroy(a.context);
    mpt_destroy(b.context);
}

/* ==== What differs, and what cannot be ==== */

/* What one of two runs has and the other lacks, and pieces of other kinds. */
TEST(pieces_of_one_run) {
    static char block[2][1 << 16];
    char text[300];
    make_data();
    training a = begin(&setups[0], 1, 3), b = begin(&setups[0], 1, 3);
    run(&a, 0, 2), run(&b, 0, 2);
    mpt_zero_grad(b.optimizer);
    CHECK_EQ_INT(mpt_snapshot(a.context, block[0], sizeof block[0]), MPT_OK);
    CHECK_EQ_INT(mpt_snapshot(b.context, block[1], SIZE_MAX), MPT_OK);
    mpt_snapshot_difference(b.context, block[0], SIZE_MAX, text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.gradient.net.0.0.weight.value is there alone");
    mpt_snapshot_difference(a.context, block[1], sizeof block[1], text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.gradient.net.0.0.weight.value is here alone");
    mpt_snapshot_difference(a.context, block[0], 40, text, sizeof text);
    CHECK_CONTAINS(text, "is here alone"); /* a block that is cut */
    training other = begin(&setups[1], 1, 3), fresh = begin(&setups[0], 1, 3);
    CHECK_EQ_INT(mpt_snapshot(fresh.context, block[0], sizeof block[0]), MPT_OK);
    mpt_snapshot_difference(other.context, block[0], sizeof block[0], text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.optimizer.0.net.0.0.weight.momentum_buffer of shape [12, 6] and "
                       "dtype float32 is here alone");
    CHECK_EQ_INT(mpt_snapshot(a.context, block[0], sizeof block[0]), MPT_OK);
    mpt_destroy(fresh.context);
    CHECK_EQ_INT(mpt_restore(a.context, block[1], sizeof block[1]), MPT_OK);
    CHECK(!mpt_has_grad(mpt_parameter(a.net, "0.weight")));
    CHECK_EQ_INT(mpt_restore(b.context, block[0], sizeof block[0]), MPT_OK);
    CHECK(mpt_has_grad(mpt_parameter(b.net, "0.weight")));
    mpt_step_begin(a.context);
    CHECK_EQ_INT(mpt_snapshot_difference(a.context, block[0], sizeof block[0], text, 300), 0);
    CHECK_CONTAINS(mpt_error(a.context), "a step is under way");
    mpt_clear_error(a.context);
    CHECK_EQ_INT(mpt_restore(a.context, block[0], SIZE_MAX), MPT_ERROR_ARGUMENT);
    mpt_clear_error(a.context);
    CHECK_EQ_INT(mpt_restore(a.context, NULL, 8), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(a.context), "8 bytes at NULL");
    mpt_destroy(a.context), mpt_destroy(b.context), mpt_destroy(other.context);
}

#ifndef MPTRAIN_NO_WATCH
/* What an optimizer keeps on the host is compared, too. */
TEST(numbers_on_the_host) {
    static char block[1 << 12];
    char text[200];
    mpt_context *c = mpt_create(NULL);
    mpt_lbfgs(mpt_nn_linear(c, 2, 1), NULL);
    CHECK_EQ_INT(mpt_snapshot(c, block, sizeof block), MPT_OK);
    CHECK_EQ_INT(mpt_snapshot_difference(c, block, sizeof block, text, sizeof text), 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}
#define NUMBERS_ON_THE_HOST T(numbers_on_the_host),
#else
#define NUMBERS_ON_THE_HOST
#endif

/* A weight of several pieces, all of which differ: the first element is told. */
TEST(large_pieces_that_differ) {
    static float values[200 * 400];
    char text[200];
    mpt_context *c = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(c, 400, 200); /* 320 KB */
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 0.5, 0));
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    const int64_t bytes = mpt_snapshot_bytes(c);
    REQUIRE(bytes > 0 && mpt_valid(mpt_parameter(net, "weight")) && optimizer.context == c);
    char *block = (char *)malloc((size_t)bytes);
    CHECK_EQ_INT(mpt_snapshot(c, block, (size_t)bytes), MPT_OK);
    for (int i = 3; i < 200 * 400; i++) values[i] = 1;
    for (int i = 0; i < 3; i++) values[i] = 0.5f;
    mpt_write(mpt_parameter(net, "weight"), values, sizeof values);
    mpt_snapshot_difference(c, block, (size_t)bytes, text, sizeof text);
    CHECK_EQ_STR(text, "weight[0, 3] is 1 here and 0.5 there");
    free(block);
    mpt_destroy(c);
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
static void expect(mpt_context *c, const char *says) {
    CHECK_CONTAINS(mpt_error(c), says);
    mpt_clear_error(c);
}

/* The same of files, and paths that are none. */
TEST(pieces_of_one_file) {
    const char *path = test_tmp_path("one.safetensors");
    char text[300];
    make_data();
    training a = begin(&setups[0], 1, 3), b = begin(&setups[0], 1, 3);
    run(&a, 0, 2), run(&b, 0, 2);
    mpt_metric_push(b.context, "more", mpt_ones(b.context, MPT_F32, MPT_SCALAR));
    CHECK_EQ_INT(mpt_checkpoint_save(b.context, path), MPT_OK);
    mpt_checkpoint_difference(a.context, path, text, sizeof text);
    CHECK_CONTAINS(text, "mptrain.metric.more.");
    CHECK_CONTAINS(text, "is there alone");
    mpt_zero_grad(a.optimizer);
    mpt_checkpoint_difference(a.context, path, text, sizeof text);
    CHECK_EQ_STR(text, "mptrain.gradient.net.0.0.weight.value is there alone");
    training half = begin(&setups[4], 1, 3);
    run(&half, 0, 2);
    mpt_checkpoint_difference(half.context, path, text, sizeof text);
    CHECK_EQ_STR(text, "0.weight of shape [12, 6] and dtype float16 is here alone");
    static const char *const none[] = {NULL, ""};
    for (int k = 0; k < 2; k++) {
        CHECK_EQ_INT(mpt_checkpoint_difference(a.context, none[k], text, sizeof text), 0);
        expect(a.context, "path is empty");
        CHECK_EQ_INT(mpt_checkpoint_save(a.context, none[k]), MPT_ERROR_ARGUMENT);
        expect(a.context, "path is empty");
        CHECK_EQ_INT(mpt_checkpoint_load(a.context, none[k]), MPT_ERROR_ARGUMENT);
        expect(a.context, "path is empty");
    }
    mpt_destroy(a.context), mpt_destroy(b.context), mpt_destroy(half.context);
}

/* A file whose header is `header`, with `n` bytes of data, all 0. */
static void make_archive(const char *path, const char *header, size_t n) {
    static uint8_t bytes[16 << 10];
    const size_t size = strlen(header);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)size >> 8 * i);
    memcpy(bytes + 8, header, size);
    file_make(path, bytes, 8 + size + n);
}

/* Files made by hand: a hash of another width, names of metrics that are too long or too many. */
TEST(files_made_by_hand) {
    const char *path = test_tmp_path("made.safetensors");
    char header[8 << 10], name[200];
    mpt_context *c = mpt_create(NULL);
    memset(name, 'm', sizeof name);
    name[sizeof name - 1] = 0;
    make_archive(path,
                 "{\"mptrain.hash\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4);
    CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_ERROR_FORMAT);
    expect(c, "the file has no mptrain.format");
    snprintf(header, sizeof header, "{\"mptrain.metric.%s.count\":{\"dtype\":\"I64\",\"shape\":[],"
             "\"data_offsets\":[0,8]}}", name);
    make_archive(path, header, 8);
    CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_ERROR_FORMAT);
    expect(c, "the file has no mptrain.format");
    size_t at = 0;
    for (int i = 0; i < 18; i++)
        at += (size_t)snprintf(header + at, sizeof header - at, "%s\"mptrain.metric.m%02d.count\":"
                               "{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                               i ? "," : "{", i, 8 * i, 8 * i + 8);
    snprintf(header + at, sizeof header - at, "}");
    make_archive(path, header, 18 * 8);
    CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_ERROR_ARGUMENT);
    expect(c, "metric \"m16\": at most 16 metrics");
    for (int i = 0; i < 16; i++) { /* none of them was kept */
        snprintf(name, sizeof name, "own%d", i);
        CHECK_EQ_INT(mpt_metric_push(c, name, mpt_ones(c, MPT_F32, MPT_SCALAR)), MPT_OK);
    }
    mpt_destroy(c);
}

static mpt_status same_input(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                             mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    if (user) CHECK_EQ_INT(mpt_checkpoint_save(self.context, (const char *)user), MPT_ERROR_STATE);
    out[0] = in[0];
    return mpt_error_code(self.context);
}

static mpt_module make_own(mpt_context *c, mpt_shape shape, const char *saves) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "own", cls.forward = same_input, cls.n_inputs = cls.n_outputs = 1;
    mpt_module own = mpt_module_create(c, &cls, (void *)(uintptr_t)saves);
    mpt_add_parameter(own, "weight", shape, mpt_init_make(MPT_INIT_CONSTANT, 1, 0));
    return own;
}

/* Weights made by hand: what can be loaded into a parameter of shape `into`, and what cannot. */
TEST(weights_made_by_hand) {
    static const mpt_rename turn = {"weight", "weight", true, 0, 0},
                            part = {"weight", "weight", false, 0, 2};
    const mpt_shape two = MPT_SHAPE(2), four = MPT_SHAPE(2, 2);
    const struct {
        const char *type, *shape;
        size_t bytes;
        mpt_shape into;
        const mpt_rename *rename;
        const char *says;
    } rows[] = {
        {"F32", "[1,1,1,1,1,1,1,1,2]", 8, two, NULL, "the parameter [2]"},
        {"U32", "[2]", 8, two, NULL, "is U32, which does not convert to float32"},
        {"F64", "[2]", 16, two, NULL, ""},
        {"F32", "[]", 4, MPT_SCALAR, &part, "a part of the parameter []"},
        {"F32", "[2]", 8, two, &turn, "to be transposed, the parameter [2]"},
        {"F32", "[2,2]", 16, four, &turn, ""}};
    const char *path = test_tmp_path("byhand.safetensors");
    char header[300];
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        mpt_context *c = mpt_create(NULL);
        mpt_load_config config = mpt_load_config_default();
        mpt_module own = make_own(c, rows[k].into, NULL);
        config.renames = rows[k].rename, config.rename_count = rows[k].rename != NULL;
        snprintf(header, sizeof header, "{\"weight\":{\"dtype\":\"%s\",\"shape\":%s,"
                 "\"data_offsets\":[0,%d]}}", rows[k].type, rows[k].shape, (int)rows[k].bytes);
        make_archive(path, header, rows[k].bytes);
        mpt_load(own, path, &config, NULL);
        if (!rows[k].says[0]) CHECK_EQ_STR(mpt_error(c), "");
        else CHECK_CONTAINS(mpt_error(c), rows[k].says);
        float values[4] = {1, 1, 1, 1};
        mpt_clear_error(c);
        mpt_read_f32(mpt_parameter(own, "weight"), values, mpt_numel(mpt_parameter(own, "weight")));
        CHECK(values[0] == (rows[k].says[0] ? 1 : 0)); /* the file's, or the parameter's own */
        mpt_destroy(c);
    }
    mpt_context *c = mpt_create(NULL);
    mpt_load_config config = mpt_load_config_default();
    mpt_module own = make_own(c, two, NULL), norm = mpt_nn_batch_norm1d(c, 2, NULL);
    make_archive(path,
                 "{\"a\\u0009b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    CHECK_EQ_INT(mpt_load(own, path, NULL, NULL), MPT_ERROR_FORMAT);
    expect(c, "a?b");
    config.strict = false;
    make_archive(path, "{\"num_batches_tracked\":{\"dtype\":\"F32\",\"shape\":[],"
                 "\"data_offsets\":[0,4]}}", 4);
    CHECK_EQ_INT(mpt_load(norm, path, &config, NULL), MPT_ERROR_DTYPE);
    expect(c, "num_batches_tracked is F32, which does not convert to int64");
    make_archive(path, "{}", 0); /* of a net without weights */
    int loaded = 7;
    CHECK_EQ_INT(mpt_load(mpt_nn_relu(c), path, NULL, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 0);
    CHECK_EQ_INT(mpt_load_memory(own, header, SIZE_MAX, NULL, NULL), MPT_ERROR_FORMAT);
    expect(c, "at least 10 expected");
    config.ignore_count = -1;
    CHECK_EQ_INT(mpt_load(own, path, &config, NULL), MPT_ERROR_ARGUMENT);
    expect(c, "counts of 0, or tables");
    config.ignore_count = 0, config.rename_count = 1;
    CHECK_EQ_INT(mpt_load(own, path, &config, NULL), MPT_ERROR_ARGUMENT);
    expect(c, "counts of 0, or tables");
    CHECK_EQ_INT(mpt_module_destroy(own), MPT_OK);
    mpt_load(own, path, NULL, NULL);
    expect(c, "mpt_load");
    mpt_destroy(c);
}

/* One of a metric's two numbers is missing, or cannot be. */
TEST(metrics_that_are_not_whole) {
    static uint8_t bytes[64 << 10];
    const char *path = test_tmp_path("metrics.safetensors");
    make_data();
    training t = begin(&setups[0], 1, 3);
    run(&t, 0, 2);
    mpt_metric_push(t.context, "more", mpt_ones(t.context, MPT_F32, MPT_SCALAR));
    CHECK_EQ_INT(mpt_checkpoint_save(t.context, path), MPT_OK);
    const size_t n = file_bytes(path, bytes, sizeof bytes);
    const size_t count = number_place(bytes, n, "mptrain.metric.loss.count");
    REQUIRE(count > 0);
    bytes[count + 7] ^= 0x80;
    file_make(path, bytes, n);
    CHECK_EQ_INT(mpt_checkpoint_load(t.context, path), MPT_ERROR_FORMAT);
    expect(t.context, "mptrain.metric.loss.count is -");
    for (size_t i = 8; i + 20 < n; i++)
        if (memcmp(bytes + i, "metric.loss.sum", 15) == 0) bytes[i + 14] = 'n';
    file_make(path, bytes, n);
    CHECK_EQ_INT(mpt_checkpoint_load(t.context, path), MPT_ERROR_FORMAT);
    expect(t.context, "the file has no mptrain.metric.loss.sum");
    mpt_destroy(t.context);
}

/* Nets that nobody has used yet, and objects that are no more. */
TEST(unused_nets) {
    const char *fresh = test_tmp_path("fresh.safetensors");
    const char *used = test_tmp_path("used.safetensors");
    uint64_t hash = 0;
    for (int round = 0; round < 2; round++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module gone = mpt_nn_linear(c, 2, 2), net = mpt_nn_linear(c, 3, 2);
        mpt_optimizer no_more = mpt_sgd(gone, NULL);
        mpt_scaler none = mpt_grad_scaler(c, NULL);
        mpt_scaler_destroy(none), mpt_optimizer_destroy(no_more), mpt_module_destroy(gone);
        if (round == 0) {
            CHECK_EQ_INT(mpt_checkpoint_save(c, fresh), MPT_OK);
            CHECK(mpt_valid(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3)))));
            mpt_set_init(net, "weight", mpt_init_make(MPT_INIT_CONSTANT, 2, 0));
            CHECK_EQ_INT(mpt_checkpoint_save(c, used), MPT_OK);
            hash = mpt_module_hash(net);
            CHECK_EQ_INT(mpt_checkpoint_load(c, fresh), MPT_ERROR_FORMAT);
            expect(c, "net 0 is in use here, and not in ");
        } else {
            CHECK_EQ_INT(mpt_checkpoint_load(c, used), MPT_OK); /* which uses it */
            CHECK(mpt_module_hash(net) == hash);
        }
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

/* How often dropout drew is kept of loops without steps, and has to be a count. */
TEST(draws_without_steps) {
    static uint8_t bytes[16 << 10];
    const char *path = test_tmp_path("draws.safetensors");
    uint64_t hash[2];
    for (int round = 0; round < 2; round++) {
        mpt_context *c = mpt_create(NULL);
        mpt_module net = mpt_sequential(c, mpt_nn_dropout(c, 0.5), mpt_nn_linear(c, 8, 2), MPT_END);
        mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 8));
        for (int i = 0; i < 3 && round == 0; i++) mpt_forward(net, x);
        if (round == 0) CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
        CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_OK);
        float y[4] = {0};
        CHECK_EQ_INT(mpt_read_f32(mpt_forward(net, x), y, 4), MPT_OK);
        hash[round] = 0;
        for (int i = 0; i < 4; i++)
            hash[round] = hash[round] * 31 + (uint64_t)(int64_t)(y[i] * 1e6f);
        const size_t n = file_bytes(path, bytes, sizeof bytes);
        const size_t at = number_place(bytes, n, "mptrain.draws.net.0.0.count");
        if (round == 1) {
            REQUIRE(at > 0);
            bytes[at + 7] ^= 0x80;
            file_make(path, bytes, n);
            CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_ERROR_FORMAT);
            expect(c, "mptrain.draws.net.0.0.count is -");
        }
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1]);
}

/* A scaler takes the factors of the file, whichever of them differ. */
TEST(factors_of_scalers) {
    const char *path = test_tmp_path("factors.safetensors");
    uint64_t hash[4];
    for (int k = 0; k < 4; k++) {
        mpt_context *c = mpt_create(NULL);
        mpt_scaler_config config = mpt_scaler_config_default();
        if (k == 1) config.growth_factor = 4;
        if (k == 2) config.backoff_factor = 0.25;
        if (k == 3) config.growth_interval = 7;
        mpt_grad_scaler(c, &config);
        if (k == 0) CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
        if (k > 0) CHECK(mpt_state_hash(c) != hash[0]);
        CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_OK);
        hash[k] = mpt_state_hash(c);
        CHECK(hash[k] == hash[0]);
        mpt_destroy(c);
    }
}

static char warned[1000];

static void note(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_WARNING) snprintf(warned, sizeof warned, "%s", message);
}

static bool user_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    (void)user, (void)index, (void)seed, (void)target, (void)error, (void)error_size;
    memset(input, 0, 8);
    return true;
}

/* Datasets of seven kinds: classes with names, steps on the way, dealt out, bytes as targets,
   without targets, made by the program, a part of one with steps; `other` ones hold something
   else. */
static mpt_dataset dataset_of(mpt_context *c, int kind, bool other) {
    static const char *const csv[] = {"a,b,t\n1,2,no\n3,4,yes\n5,6,no\n",
                                      "a,b,t\n1,2,never\n3,4,ever\n5,6,never\n"};
    static uint8_t pixels[3 * 4] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    uint8_t images[16 + 3 * 4] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 9};
    uint8_t labels[8 + 3] = {0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 0};
    const double fractions[2] = {0.5, 0.5};
    mpt_dataset parts[2];
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    mpt_user_dataset_config own;
    for (int i = 0; i < 12; i++) pixels[i] = (uint8_t)(other ? 77 - i : i);
    memory.count = 3, memory.dtype = MPT_U8, memory.shape = MPT_SHAPE(1, 2, 2);
    memory.inputs = pixels;
    memset(&own, 0, sizeof own);
    own.count = other ? 4 : 3, own.dtype = MPT_F32, own.shape = MPT_SHAPE(2);
    own.sample = user_sample;
    if (kind == 0) return mpt_csv_memory(c, csv[other], strlen(csv[other]), NULL);
    if (kind == 5) return mpt_user_dataset(c, &own);
    if (kind == 3) {
        labels[10] = other ? 2 : 0;
        file_make(test_tmp_path("images"), images, sizeof images);
        file_make(test_tmp_path("labels"), labels, sizeof labels);
        return mpt_idx(c, test_tmp_path("images"), test_tmp_path("labels"));
    }
    mpt_dataset plain = mpt_memory_dataset(c, &memory);
    mpt_transform flip = mpt_transform_default(MPT_RANDOM_FLIP, 0, 0);
    if (kind == 1) return mpt_transformed(plain, &flip, 1);
    if (kind == 6) return mpt_subset(mpt_transformed(plain, &flip, 1), 1, 2);
    if (kind == 2) return mpt_random_split(plain, fractions, 2, 0, parts), parts[0];
    return plain;
}

/* A file knows another dataset from the one that it was made with. */
TEST(other_datasets) {
    char path[512]; /* others are asked for meanwhile */
    snprintf(path, sizeof path, "%s", test_tmp_path("data.safetensors"));
    for (int kind = 0; kind < 7; kind++) {
        for (int round = 0; round < 3; round++) {
            mpt_config config = mpt_config_default();
            config.log.write = note, config.threads = 1;
            mpt_context *c = mpt_create(&config);
            mpt_loader_config loading = mpt_loader_config_default();
            loading.batch = 1;
            mpt_loader_create(c, dataset_of(c, kind, round == 2), &loading);
            CHECK_EQ_STR(mpt_error(c), "");
            warned[0] = 0;
            if (round == 0) CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
            if (round > 0) mpt_checkpoint_load(c, path);
            if (round == 2 && kind == 5)
                CHECK_CONTAINS(mpt_error(c), "mptrain.loader.0.samples is 3 there and 4 here");
            else if (round == 2)
                CHECK_CONTAINS(warned, "the loader's dataset is another than here");
            else
                CHECK_EQ_STR(warned, "");
            if (test_failures) printf("\n  kind %d, round %d", kind, round);
            mpt_destroy(c);
        }
    }
}

/* A weight of another rank; a forward that wants to save what is under way. */
TEST(nets_of_a_program) {
    const char *path = test_tmp_path("own.safetensors");
    char text[200];
    for (int round = 0; round < 3; round++) {
        const mpt_shape shapes[] = {MPT_SHAPE(4), MPT_SHAPE(2, 2), MPT_SHAPE(6)};
        mpt_context *c = mpt_create(NULL);
        mpt_module own = make_own(c, shapes[round], round == 1 ? path : NULL);
        mpt_sgd(own, NULL);
        mpt_forward(own, mpt_ones(c, MPT_F32, MPT_SCALAR));
        if (round == 0) {
            CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
        } else if (round == 2) {
            mpt_checkpoint_difference(c, path, text, sizeof text);
            CHECK_EQ_STR(text, "weight of shape [6] and dtype float32 is here alone");
        } else {
            expect(c, "a step is under way");
            CHECK_EQ_INT(mpt_checkpoint_load(c, path), MPT_ERROR_SHAPE);
            expect(c, "weight is F32 [4] there and F32 [2, 2] here");
        }
        mpt_destroy(c);
    }
}
#endif

#if !defined(MPTRAIN_NO_GRAPH)
static mpt_status asks_for_the_state(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    captured_training *t = (captured_training *)user;
    (void)y;
    if (t->steps) mpt_state_hash(c); /* an error once the step is recorded */
    mpt_step_begin(c);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_sum(mpt_forward(t->net, x), MPT_ALL_DIMS, false));
    mpt_step(t->optimizer);
    return mpt_step_end(c);
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
static mpt_status asks_for_its_checkpoints(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)y;
    mpt_checkpoint_statistics(c);
    mpt_step_begin(c);
    mpt_metric_push(c, "sum", mpt_sum(x, MPT_ALL_DIMS, false));
    return mpt_step_end(c);
}
#endif

/* Neither a recording nor half of a step has a state. */
TEST(within_captured_steps) {
    mpt_context *c = mpt_create(NULL);
    captured_training t;
    memset(&t, 0, sizeof t);
    t.net = mpt_nn_linear(c, 3, 2), t.optimizer = mpt_sgd(t.net, NULL);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3));
    mpt_captured step = mpt_capture(c, asks_for_the_state, &t);
    for (int i = 0; i < 3; i++)
        CHECK_EQ_INT(mpt_captured_step(step, x, mpt_null_tensor()), MPT_OK);
    bool done = true;
    CHECK_EQ_INT(mpt_step_slice(step, x, mpt_null_tensor(), 0, &done), MPT_OK);
    if (!done) { /* elsewhere a step is one slice */
        CHECK(mpt_state_hash(c) == 0 && mpt_error_code(c) == MPT_ERROR_STATE);
        mpt_clear_error(c);
    }
    t.steps = true;
    mpt_captured other = mpt_capture(c, asks_for_the_state, &t);
    CHECK_EQ_INT(mpt_captured_step(other, x, mpt_null_tensor()), MPT_OK);
    mpt_captured_step(other, x, mpt_null_tensor());
    CHECK_CONTAINS(mpt_error(c), "mpt_state_hash");
    CHECK_CONTAINS(mpt_error(c), "a step is under way");
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_checkpoint_open(c, test_tmp_path("captured"), NULL), MPT_OK);
    other = mpt_capture(c, asks_for_its_checkpoints, NULL);
    for (int i = 0; i < 2; i++) mpt_captured_step(other, x, mpt_null_tensor());
    CHECK_CONTAINS(mpt_error(c), "mpt_checkpoint_statistics");
    CHECK_CONTAINS(mpt_error(c), "a step is under way");
#endif
    mpt_destroy(c);
}
#endif

#ifndef MPTRAIN_NO_GRAPH
#define WITHIN_CAPTURED_STEPS T(within_captured_steps),
#else
#define WITHIN_CAPTURED_STEPS
#endif

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST_TABLE = {WITHIN_CAPTURED_STEPS NUMBERS_ON_THE_HOST T(pieces_of_one_run),
              T(large_pieces_that_differ), T(pieces_of_one_file),
              T(weights_made_by_hand), T(files_made_by_hand), T(metrics_that_are_not_whole),
              T(unused_nets),              T(draws_without_steps),
              T(factors_of_scalers),       T(other_datasets),
              T(nets_of_a_program),        T(stopped_and_gone_on),
              T(files_that_are_whole_and_cut), T(files_of_others),
              T(numbers_that_cannot_be),   T(weights_of_a_checkpoint),
              T(nets_with_equal_names),    T(back_and_forward),
              T(captured_steps_go_back),   T(on_another_device),
              T(snapshots_take_no_memory), T(between_steps_only),
              T(where_two_runs_part)};
#else
TEST_TABLE = {WITHIN_CAPTURED_STEPS NUMBERS_ON_THE_HOST T(pieces_of_one_run),
              T(large_pieces_that_differ),
              T(back_and_forward),   T(captured_steps_go_back), T(on_another_device),
              T(snapshots_take_no_memory), T(between_steps_only), T(where_two_runs_part)};
#endif
TEST_MAIN
