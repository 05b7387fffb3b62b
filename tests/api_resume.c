/* api_resume.c: trainings that stop, go on and go back, against ones that never did: to the bit. */
#include "mptrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static size_t file_bytes(const char *path, uint8_t *bytes, size_t most) {
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(bytes, 1, most, file) : 0;
    if (file) fclose(file);
    return n;
}

static void file_make(const char *path, const uint8_t *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(bytes, 1, n, file) == n && fclose(file) == 0);
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

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST_TABLE = {T(stopped_and_gone_on),     T(files_that_are_whole_and_cut),
              T(files_of_others),         T(numbers_that_cannot_be),
              T(weights_of_a_checkpoint), T(nets_with_equal_names),
              T(back_and_forward),        T(captured_steps_go_back),
              T(on_another_device),       T(snapshots_take_no_memory),
              T(between_steps_only),      T(where_two_runs_part)};
#else
TEST_TABLE = {T(back_and_forward),   T(captured_steps_go_back), T(on_another_device),
              T(snapshots_take_no_memory), T(between_steps_only), T(where_two_runs_part)};
#endif
TEST_MAIN
