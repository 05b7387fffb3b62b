/* mpt_fit and mpt_evaluate: the same bits as the loop by hand, progress, validation, early stop,
   checkpoints, errors, no allocations. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"

#include <math.h>

enum { SAMPLES = 96, INPUTS = 8, CLASSES = 3, BATCH = 16, STEPS = SAMPLES / BATCH };

static float sample_inputs[SAMPLES * INPUTS];
static int64_t sample_classes[SAMPLES];

/* Three classes around three corners, never twice the same point. */
static void make_samples(void) {
    uint32_t state = 7;
    for (int i = 0; i < SAMPLES; i++) {
        sample_classes[i] = i % CLASSES;
        for (int k = 0; k < INPUTS; k++) {
            state = state * 1664525u + 1013904223u;
            sample_inputs[i * INPUTS + k] =
                (float)(state >> 8) / 16777216.0f + (k % CLASSES == i % CLASSES ? 1.0f : 0.0f);
        }
    }
}

static mpt_dataset make_dataset(mpt_context *ctx) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    make_samples();
    config.count = SAMPLES;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(INPUTS);
    config.inputs = sample_inputs;
    config.targets = sample_classes;
    return mpt_memory_dataset(ctx, &config);
}

typedef struct world {
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_loader train, validation;
} world;

static world make_world_with(const mpt_config *config, double lr) {
    world w;
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_adamw_config ac = mpt_adamw_config_default();
    w.ctx = mpt_create(config);
    w.net = mpt_sequential(w.ctx, mpt_nn_linear(w.ctx, INPUTS, 16), mpt_nn_relu(w.ctx),
                           mpt_nn_dropout(w.ctx, 0.1), mpt_nn_linear(w.ctx, 16, CLASSES),
                           mpt_nn_log_softmax(w.ctx, -1), MPT_END);
    ac.lr = lr;
    w.optimizer = mpt_adamw(w.net, &ac);
    lc.batch = BATCH;
    w.validation = mpt_loader_create(w.ctx, make_dataset(w.ctx), &lc);
    lc.shuffle = true;
    w.train = mpt_loader_create(w.ctx, make_dataset(w.ctx), &lc);
    return w;
}

static world make_world(double lr) { return make_world_with(NULL, lr); }

/* What a callback saw. */
typedef struct seen {
    int64_t steps, epochs, stop_after; /* steps; 0: never */
    int64_t calls_at_half;             /* of the allocator */
    mpt_context *ctx;
    double last_loss, last_eta, scale, waited;
    int64_t last_batch;
    char step_text[256], epoch_text[256];
} seen;

static bool watch(void *user, const mpt_progress *progress) {
    seen *s = (seen *)user;
    if (progress->epoch_end) {
        s->epochs++;
        snprintf(s->epoch_text, sizeof s->epoch_text, "%s", progress->text);
        return true;
    }
    s->steps++;
    s->last_loss = progress->loss;
    s->last_eta = progress->eta_seconds;
    s->last_batch = progress->batch;
    s->scale = progress->scale;
    s->waited = progress->seconds_waited;
    snprintf(s->step_text, sizeof s->step_text, "%s", progress->text);
    if (s->ctx && s->steps == 2 * STEPS) s->calls_at_half = mpt_memory(s->ctx).allocations;
    return s->stop_after == 0 || s->steps < s->stop_after;
}

TEST(defaults) {
    mpt_fit_config config = mpt_fit_config_default();
    CHECK_EQ_INT(config.epochs, 5);
    CHECK_EQ_INT(config.precision, MPT_F32);
    CHECK(config.scaler.context == NULL && config.validation.context == NULL);
    CHECK(config.schedule.context == NULL && config.loss == NULL && config.progress == NULL);
    CHECK(config.stop_on_nan && config.restore_weights);
    CHECK(config.checkpoint == NULL && config.patience == 0 && config.clip_norm == 0.0);
}

/* The loop that mpt_fit promises to be. */
static void train_by_hand(world *w, mpt_dtype precision, double clip, int epochs) {
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = precision == MPT_F16;
    mpt_scaler scaler = mpt_grad_scaler(w->ctx, &sc);
    for (int epoch = 0; epoch < epochs; epoch++) {
        mpt_batch b;
        while (mpt_loader_next(w->train, &b)) {
            mpt_step_begin(w->ctx);
            mpt_autocast_begin(w->ctx, precision);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(w->net, b.x), b.y, NULL);
            mpt_autocast_end(w->ctx);
            mpt_zero_grad(w->optimizer);
            mpt_backward(mpt_scale_loss(scaler, loss));
            if (clip > 0.0) {
                mpt_unscale(scaler, w->optimizer);
                mpt_clip_grad_norm(w->optimizer, clip);
            }
            mpt_scaler_step(scaler, w->optimizer);
            mpt_scaler_update(scaler);
            mpt_step_end(w->ctx);
        }
    }
}

static void check_same_bits(mpt_dtype precision, double clip) {
    world by_hand = make_world(0.01), fitted = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 3;
    config.precision = precision;
    config.clip_norm = clip;
    train_by_hand(&by_hand, precision, clip, 3);
    mpt_fit_result result = mpt_fit(fitted.net, fitted.optimizer, fitted.train, &config);
    CHECK_EQ_STR(mpt_error(by_hand.ctx), "");
    CHECK_EQ_STR(mpt_error(fitted.ctx), "");
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK_EQ_INT(result.steps, 3 * STEPS);
    CHECK(mpt_module_hash(by_hand.net) == mpt_module_hash(fitted.net));
    CHECK(mpt_optimizer_hash(by_hand.optimizer) == mpt_optimizer_hash(fitted.optimizer));
    mpt_destroy(by_hand.ctx);
    mpt_destroy(fitted.ctx);
}

TEST(same_bits_as_the_loop_by_hand) {
    check_same_bits(MPT_F32, 0.0);
    check_same_bits(MPT_F16, 0.0);
    check_same_bits(MPT_F16, 0.5);
    check_same_bits(MPT_BF16, 0.5);
}

static char last_log[512];
static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_INFO) snprintf(last_log, sizeof last_log, "%s", message);
}

/* AUTO is the precision that mpt_precision_auto names, on every level that this CPU has. */
TEST(automatic_precision) {
    static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AUTO, MPT_ISA_AMX};
    mpt_config machine = mpt_config_default();
    machine.log.write = keep_log;
    for (int i = 0; i < 3; i++) {
        machine.isa = levels[i];
        mpt_context *probe = mpt_create(&machine);
        if (!probe) continue; /* without AMX */
        const char *reason;
        mpt_device_info info = mpt_get_device_info(probe);
        mpt_dtype precision = mpt_precision_auto(probe, &reason);
        CHECK_EQ_INT(mpt_precision_auto(probe, NULL), precision);
        mpt_destroy(probe);
        CHECK((precision != MPT_F32) == info.fast_half);
        if (info.device == MPT_DEVICE_CPU)
            CHECK_EQ_INT(precision, info.fast_half ? MPT_BF16 : MPT_F32);
        uint64_t hash[2];
        for (int automatic = 0; automatic < 2; automatic++) {
            world w = make_world_with(&machine, 0.01);
            mpt_fit_config config = mpt_fit_config_default();
            config.epochs = 2;
            config.precision = automatic ? MPT_PRECISION_AUTO : precision;
            last_log[0] = '\0';
            CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, w.train, &config).status, MPT_OK);
            CHECK(automatic == (strstr(last_log, reason) != NULL));
            if (automatic) CHECK_CONTAINS(last_log, mpt_dtype_name(precision));
            hash[automatic] = mpt_module_hash(w.net);
            double loss = mpt_evaluate(w.net, w.validation, precision).loss;
            CHECK(mpt_evaluate(w.net, w.validation, MPT_PRECISION_AUTO).loss == loss);
            mpt_destroy(w.ctx);
        }
        CHECK(hash[0] == hash[1]);
    }
}

TEST(learns_and_reports) {
    world w = make_world(0.02);
    mpt_fit_config config = mpt_fit_config_default();
    seen s;
    memset(&s, 0, sizeof s);
    config.epochs = 20;
    config.precision = MPT_F16;
    config.validation = w.validation;
    config.progress = watch;
    config.user = &s;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK_EQ_INT(result.epochs, 20);
    CHECK_EQ_INT(result.steps, 20 * STEPS);
    CHECK_EQ_INT(s.steps, 20 * STEPS);
    CHECK_EQ_INT(s.epochs, 20);
    CHECK(!result.stopped_early);
    CHECK(result.validation_accuracy > 0.95);
    CHECK(result.validation_loss < 0.3);
    CHECK(result.train_loss > 0.0 && result.train_loss < 0.5);
    CHECK(result.seconds > 0.0 && result.steps_per_second > 0.0);
    CHECK_EQ_INT(result.skipped_steps, 0);
    CHECK_EQ_INT(s.last_batch, STEPS);
    CHECK_NEAR(s.scale, 65536.0, 0.0);
    CHECK_NEAR(s.last_eta, 0.0, 0.0);
    CHECK(s.last_loss == result.train_loss);
    CHECK(mpt_is_training(w.net));
    CHECK_CONTAINS(s.step_text, "Epoch 20/20 [####################] 6/6 loss 0.");
    CHECK_CONTAINS(s.step_text, " steps/s scale 65536 skipped 0 ETA 0 s");
    CHECK_CONTAINS(s.epoch_text, "Epoch 20/20 - Loss: 0.");
    CHECK_CONTAINS(s.epoch_text, " - Validation loss: 0.");
    CHECK_CONTAINS(s.epoch_text, " - Accuracy: ");
    mpt_evaluation evaluation = mpt_evaluate(w.net, w.validation, MPT_F16);
    CHECK_EQ_INT(evaluation.status, MPT_OK);
    CHECK_EQ_INT(evaluation.samples, SAMPLES);
    CHECK_NEAR(evaluation.loss, result.validation_loss, 0.0);
    CHECK_NEAR(evaluation.accuracy, result.validation_accuracy, 0.0);
    mpt_destroy(w.ctx);
}

/* What each step says about itself. */
typedef struct progresses {
    mpt_progress steps[2 * STEPS + 2];
    int64_t count;
} progresses;

static bool tell(void *user, const mpt_progress *progress) {
    progresses *t = (progresses *)user;
    if (t->count < 2 * STEPS + 2) t->steps[t->count++] = *progress;
    return true;
}

/* A norm that is only measured changes no bit, as clipping to what is never reached does not. Both
   measure the same: after the first step what a loop by hand has there. */
TEST(steps_tell_rate_norm_and_memory) {
    uint64_t hashes[3];
    progresses all[3];
    memset(all, 0, sizeof all);
    for (int way = 0; way < 3; way++) {
        world w = make_world(0.02);
        mpt_fit_config config = mpt_fit_config_default();
        config.epochs = 2, config.precision = MPT_F16;
        config.progress = tell, config.user = &all[way];
        if (way == 1) config.grad_norm = true;
        if (way == 2) config.clip_norm = 1e9;
        mpt_schedule_create(w.optimizer, mpt_linear_lr(1, 0, 2 * STEPS), MPT_PER_STEP);
        mpt_fit(w.net, w.optimizer, w.train, &config);
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        hashes[way] = mpt_module_hash(w.net);
        CHECK_EQ_INT(all[way].count, 2 * STEPS + 2);
        mpt_destroy(w.ctx);
    }
    CHECK(hashes[0] == hashes[1] && hashes[0] == hashes[2]);
    for (int i = 0; i < 2 * STEPS + 2; i++) {
        const mpt_progress *p = &all[1].steps[i];
        int64_t step = (i + 1) - (i + 1 > STEPS) - (i + 1 > 2 * STEPS + 1);
        CHECK_EQ_INT(p->step, step);
        CHECK_CLOSE(p->lr, 0.02 * (1.0 - (double)step / (2 * STEPS)), 1e-12, 1e-12);
        CHECK(isnan(all[0].steps[i].grad_norm));
        CHECK(p->grad_norm > 0.0 && p->grad_norm == all[2].steps[i].grad_norm);
        CHECK(p->memory > 0);
    }
    world w = make_world(0.02);
    mpt_batch b;
    mpt_loader_next(w.train, &b);
    mpt_step_begin(w.ctx);
    mpt_autocast_begin(w.ctx, MPT_F16);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(w.net, b.x), b.y, NULL);
    mpt_autocast_end(w.ctx);
    mpt_scaler scaler = mpt_grad_scaler(w.ctx, NULL);
    mpt_backward(mpt_scale_loss(scaler, loss));
    mpt_unscale(scaler, w.optimizer);
    CHECK_CLOSE(all[1].steps[0].grad_norm, mpt_item(mpt_grad_norm(w.optimizer, 2)), 1e-6, 0);
    mpt_step_end(w.ctx);
    mpt_destroy(w.ctx);
}

TEST(no_allocations_in_the_steady_state) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    seen s;
    memset(&s, 0, sizeof s);
    s.ctx = w.ctx;
    config.epochs = 6;
    config.precision = MPT_F16;
    config.validation = w.validation;
    config.progress = watch;
    config.user = &s;
    mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK(s.calls_at_half > 0);
    CHECK_EQ_INT(mpt_memory(w.ctx).allocations, s.calls_at_half);
    mpt_destroy(w.ctx);
}

static bool watch_slow(void *user, const mpt_progress *progress) {
    return watch(((void **)user)[1], progress);
}

/* A clock that a sample takes 3 seconds of and a look at it a thousandth. */
static double slow_now;

static double slow_clock(void *user) {
    (void)user;
    return slow_now += 1e-3;
}

static bool slow_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    (void)user, (void)seed, (void)error, (void)error_size;
    memcpy(input, &sample_inputs[index * INPUTS], INPUTS * sizeof(float));
    memcpy(target, &sample_classes[index], sizeof(int64_t));
    slow_now += 3;
    return true;
}

/* Of the loss: 12 seconds of computing. */
static mpt_tensor slow_loss(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user;
    if (mpt_is_training(*(mpt_module *)((void **)user)[0])) slow_now += 12;
    return mpt_nll_loss(output, target, NULL);
}

TEST(waiting_for_data_is_told) {
    mpt_config own = mpt_config_default();
    own.clock.now = slow_clock;
    world w = make_world_with(&own, 0.01);
    mpt_user_dataset_config dc;
    memset(&dc, 0, sizeof dc);
    dc.count = 2 * BATCH, dc.dtype = MPT_F32, dc.shape = MPT_SHAPE(INPUTS);
    dc.target_dtype = MPT_I64, dc.sample = slow_sample;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    mpt_loader slow = mpt_loader_create(w.ctx, mpt_user_dataset(w.ctx, &dc), &lc);
    mpt_fit_config config = mpt_fit_config_default();
    seen s;
    void *user[2] = {&w.net, &s};
    for (int run = 0; run < 2; run++) { /* what was waited for before does not count */
        memset(&s, 0, sizeof s);
        config.epochs = 3, config.validation = slow, config.loss = slow_loss;
        config.progress = watch_slow, config.user = user;
        mpt_fit_result result = mpt_fit(w.net, w.optimizer, slow, &config);
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        CHECK_NEAR(result.seconds_waited, 3 * 2 * BATCH * 3.0, 0.1);
        CHECK_NEAR(s.waited, result.seconds_waited, 0.0);
        CHECK_CONTAINS(s.step_text, " ETA 0 s, 80 % waiting for data");
        CHECK_CONTAINS(s.epoch_text, " %, 80 % waiting for data");
    }
    config.validation = w.validation;
    memset(&s, 0, sizeof s);
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK(result.seconds_waited > 0 && result.seconds_waited < 0.1);
    CHECK(!strstr(s.step_text, "waiting") && !strstr(s.epoch_text, "waiting"));
    mpt_destroy(w.ctx);
}

/* The mean over samples, not over batches, and the accuracy, from the net's own outputs. */
TEST(evaluate_against_the_definition) {
    world w = make_world(0.01);
    mpt_loader_config lc = mpt_loader_config_default();
    float scores[SAMPLES * CLASSES];
    double loss = 0.0;
    int right = 0;
    lc.batch = 36; /* 36 + 36 + 24 */
    mpt_loader loader = mpt_loader_create(w.ctx, make_dataset(w.ctx), &lc);
    mpt_evaluation evaluation = mpt_evaluate(w.net, loader, MPT_F32);
    mpt_eval(w.net);
    mpt_tensor x = mpt_from(w.ctx, MPT_F32, MPT_SHAPE(SAMPLES, INPUTS), sample_inputs);
    mpt_read_f32(mpt_forward(w.net, x), scores, SAMPLES * CLASSES);
    for (int i = 0; i < SAMPLES; i++) {
        const float *row = &scores[i * CLASSES];
        int best = row[1] > row[0] ? 1 : 0;
        if (row[2] > row[best]) best = 2;
        right += best == sample_classes[i];
        loss -= (double)row[sample_classes[i]] / SAMPLES;
    }
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_NEAR(evaluation.loss, loss, 1e-6);
    CHECK_NEAR(evaluation.accuracy, (double)right / SAMPLES, 1e-12);
    mpt_destroy(w.ctx);
}

TEST(stops_when_the_callback_says_so) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    seen s;
    mpt_batch b;
    int64_t batches = 0;
    memset(&s, 0, sizeof s);
    s.stop_after = STEPS + 2;
    config.progress = watch;
    config.user = &s;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK(result.stopped_early);
    CHECK_EQ_INT(result.steps, STEPS + 2);
    CHECK_EQ_INT(result.epochs, 1);
    CHECK_EQ_INT(mpt_applied_steps(w.optimizer), STEPS + 2);
    while (mpt_loader_next(w.train, &b)) batches++; /* the loader stands at a new epoch */
    CHECK_EQ_INT(batches, STEPS);
    mpt_destroy(w.ctx);
}

/* With a learning rate this large the validation loss gets worse; the best weights are on file. */
TEST(patience_and_the_best_checkpoint) {
    world w = make_world(3.0), loaded = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    const char *path = test_tmp_path("best.safetensors");
    config.epochs = 200;
    config.validation = w.validation;
    config.patience = 4;
    config.checkpoint = path;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK(result.stopped_early);
    CHECK(result.epochs > 4 && result.epochs < 200);
    CHECK_EQ_INT(result.steps, result.epochs * STEPS);
    mpt_load(loaded.net, path, NULL, NULL);
    mpt_evaluation best = mpt_evaluate(loaded.net, loaded.validation, MPT_F32);
    CHECK_EQ_STR(mpt_error(loaded.ctx), "");
    CHECK(best.loss <= result.validation_loss);
    CHECK(mpt_module_hash(loaded.net) != mpt_module_hash(w.net));
    mpt_destroy(w.ctx);
    mpt_destroy(loaded.ctx);
    remove(path);
}

TEST(last_checkpoint_without_validation) {
    world w = make_world(0.01), loaded = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    const char *path = test_tmp_path("last.safetensors");
    config.epochs = 2;
    config.checkpoint = path;
    mpt_fit(w.net, w.optimizer, w.train, &config);
    mpt_load(loaded.net, path, NULL, NULL);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_EQ_STR(mpt_error(loaded.ctx), "");
    CHECK(mpt_module_hash(loaded.net) == mpt_module_hash(w.net));
    mpt_destroy(w.ctx);
    mpt_destroy(loaded.ctx);
    remove(path);
}

static mpt_tensor fatal_after_an_epoch(mpt_tensor output, mpt_tensor target, void *user) {
    mpt_tensor loss = mpt_nll_loss(output, target, NULL);
    return (*(int *)user)++ < STEPS ? loss : mpt_mul_scalar(loss, (double)NAN);
}

static void keep_warning(void *user, mpt_log_level level, const char *message) {
    if (level == MPT_LOG_WARNING) snprintf((char *)user, 256, "%s", message);
}

/* An epoch that ends in NaN is told, and leaves the file of the one before as it is. */
TEST(no_checkpoint_of_nan) {
    char warning[256] = "";
    int calls = 0;
    mpt_config heard = mpt_config_default();
    heard.log.write = keep_warning, heard.log.user = warning;
    world w = make_world_with(&heard, 0.01), twin = make_world(0.01), loaded = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    const char *path = test_tmp_path("finite.safetensors");
    config.epochs = 1;
    mpt_fit(twin.net, twin.optimizer, twin.train, &config);
    config.epochs = 2;
    config.checkpoint = path;
    config.stop_on_nan = false;
    config.loss = fatal_after_an_epoch, config.user = &calls;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK(result.train_loss != result.train_loss);
    CHECK_CONTAINS(warning, "mpt_fit: the mean loss of epoch 2 is ");
    mpt_load(loaded.net, path, NULL, NULL);
    CHECK_EQ_STR(mpt_error(loaded.ctx), "");
    CHECK(mpt_module_hash(loaded.net) == mpt_module_hash(twin.net));
    mpt_destroy(w.ctx);
    mpt_destroy(twin.ctx);
    mpt_destroy(loaded.ctx);
    remove(path);
}

/* NaN from step *user on. */
static mpt_tensor fatal_later(mpt_tensor output, mpt_tensor target, void *user) {
    mpt_tensor loss = mpt_nll_loss(output, target, NULL);
    return (*(int *)user)-- > 0 ? loss : mpt_mul_scalar(loss, (double)NAN);
}

/* A training that cannot recover ends where it is known, with the weights of the epoch before, or
   those from before the fit; also where gradients are clipped by that, of which the log hears. */
TEST(stops_where_the_loss_is_not_finite) {
    for (int good = 0; good < 3; good++) {
        int left = good * STEPS + 2;
        char told[64], warning[256] = "";
        mpt_config heard = mpt_config_default();
        heard.log.write = keep_warning, heard.log.user = warning;
        world w = make_world_with(&heard, 0.01), twin = make_world(0.01);
        mpt_fit_config config = mpt_fit_config_default();
        config.clip_norm = good == 1;
        config.epochs = good;
        if (good) mpt_fit(twin.net, twin.optimizer, twin.train, &config);
        config.epochs = 9;
        config.loss = fatal_later, config.user = &left;
        mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
        CHECK_EQ_INT(result.status, MPT_ERROR_NUMERIC);
        CHECK_EQ_INT(result.epochs, good + 1);
        CHECK_EQ_INT(result.steps, (good + 1) * STEPS);
        CHECK(result.train_loss != result.train_loss && !result.stopped_early);
        CHECK(result.seconds > 0 && result.steps_per_second > 0);
        snprintf(told, sizeof told, "since step %d of the fit; weights are again those of %s",
                 good * STEPS + 3,
                 good == 0   ? "before"
                 : good == 1 ? "epoch 1"
                             : "epoch 2");
        CHECK_CONTAINS(mpt_error(w.ctx), told);
        CHECK_CONTAINS(mpt_error(w.ctx), "smaller learning rate");
        CHECK((strstr(warning, "the norm was infinite or NaN") != NULL) == (good == 1));
        mpt_clear_error(w.ctx);
        CHECK(mpt_module_hash(w.net) == mpt_module_hash(twin.net));
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        mpt_destroy(w.ctx);
        mpt_destroy(twin.ctx);
    }
}

static mpt_tensor hundredfold(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user;
    return mpt_mul_scalar(mpt_nll_loss(output, target, NULL), 100);
}

/* Weights go bad in the very last step: its loss was good. */
TEST(weights_of_the_last_step_are_looked_at) {
    world w = make_world(0.01), loaded = make_world(0.01);
    const char *path = test_tmp_path("lost.safetensors");
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_fit_config config = mpt_fit_config_default();
    mpt_loader_config whole = mpt_loader_config_default();
    whole.batch = SAMPLES;
    sgd.lr = 3e38;
    config.epochs = 1;
    config.checkpoint = path;
    mpt_module net = mpt_sequential(w.ctx, mpt_nn_linear(w.ctx, INPUTS, CLASSES),
                                    mpt_nn_log_softmax(w.ctx, -1), MPT_END);
    mpt_optimizer huge = mpt_sgd(net, &sgd);
    config.loss = hundredfold;
    uint64_t before = mpt_module_hash(net);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    mpt_fit_result result =
        mpt_fit(net, huge, mpt_loader_create(w.ctx, make_dataset(w.ctx), &whole), &config);
    CHECK_EQ_INT(result.status, MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(w.ctx), "and weights are not finite");
    mpt_clear_error(w.ctx);
    CHECK(mpt_module_hash(net) == before);
    CHECK(mpt_load(loaded.net, path, NULL, NULL) != MPT_OK); /* nothing was finite: no file */
    mpt_destroy(w.ctx);
    mpt_destroy(loaded.ctx);
}

static bool note(void *user, const mpt_progress *progress) { return user && progress->text; }

/* All of a result, with and without a progress function. */
TEST(results_of_fits_that_fail) {
    for (int way = 0; way < 2; way++) {
        int left = 0;
        world w = make_world(0.01);
        mpt_fit_config config = mpt_fit_config_default();
        config.precision = MPT_F16;
        config.epochs = 40;
        config.loss = fatal_later, config.user = &left;
        if (way) config.progress = note;
        mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
        CHECK_EQ_INT(result.status, MPT_ERROR_NUMERIC);
        CHECK_EQ_INT(result.steps, 99);
        CHECK_EQ_INT(result.skipped_steps, 99);
        CHECK_EQ_INT(result.epochs, 99 / STEPS);
        CHECK(result.train_loss != result.train_loss);
        CHECK(result.validation_loss != result.validation_loss);
        CHECK(result.validation_accuracy != result.validation_accuracy);
        CHECK(result.seconds > 0 && result.steps_per_second > 0 && result.seconds_waited >= 0);
        CHECK(!result.stopped_early);
        mpt_destroy(w.ctx);
    }
}

/* One NaN among the inputs of validation, or a number that overflows: the file has the last epoch,
   the log says where, and no region stays open. */
static void never_finite(float bad, mpt_dtype precision, const char *where) {
    char warning[256] = "";
    float inputs[SAMPLES * INPUTS];
    const char *path = test_tmp_path("unvalidated.safetensors");
    mpt_config heard = mpt_config_default();
    heard.log.write = keep_warning, heard.log.user = warning;
    world w = make_world_with(&heard, 0.01), loaded = make_world(0.01);
    memcpy(inputs, sample_inputs, sizeof inputs);
    inputs[19 * INPUTS + 3] = bad;
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = SAMPLES, data.dtype = MPT_F32, data.shape = MPT_SHAPE(INPUTS);
    data.inputs = inputs, data.targets = sample_classes;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 2, config.precision = precision;
    config.validation = mpt_loader_create(w.ctx, mpt_memory_dataset(w.ctx, &data), &lc);
    config.checkpoint = path;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK_CONTAINS(warning, where);
    mpt_scope_begin(w.ctx);
    mpt_tensor one = mpt_ones(w.ctx, MPT_F32, MPT_SHAPE(1, 1));
    CHECK_EQ_INT(mpt_get_dtype(mpt_matmul(one, one)), MPT_F32);
    mpt_scope_end(w.ctx);
    mpt_load(loaded.net, path, NULL, NULL);
    CHECK_EQ_STR(mpt_error(loaded.ctx), "");
    CHECK(mpt_module_hash(loaded.net) == mpt_module_hash(w.net));
    mpt_destroy(w.ctx);
    mpt_destroy(loaded.ctx);
    remove(path);
}

TEST(validation_that_is_never_finite) {
    never_finite((float)NAN, MPT_F32,
                 "validation loss is nan, first in batch 1: inputs of sample 19");
    never_finite(1e6f, MPT_F16, "first in batch 1: outputs of sample 19");
}

/* A child in mpt_eval or mpt_freeze stays so; a net in mpt_eval is trained and comes back in it. */
TEST(modes_come_back) {
    for (int way = 0; way < 4; way++) {
        float mean[INPUTS];
        world w = make_world(0.01);
        mpt_module net = mpt_sequential(w.ctx, mpt_nn_batch_norm1d(w.ctx, INPUTS, NULL),
                                        mpt_nn_linear(w.ctx, INPUTS, CLASSES),
                                        mpt_nn_log_softmax(w.ctx, -1), MPT_END);
        mpt_module norm = mpt_child(net, "0"), linear = mpt_child(net, "1");
        if (way == 0) mpt_eval(norm);
        if (way == 1) mpt_eval(net), mpt_train(linear);
        if (way == 2) mpt_eval(net);
        if (way == 3) mpt_freeze(norm, true), mpt_train(net);
        mpt_fit_config config = mpt_fit_config_default();
        config.epochs = 2;
        config.validation = w.validation;
        CHECK_EQ_INT(mpt_fit(net, mpt_adamw(net, NULL), w.train, &config).status, MPT_OK);
        mpt_read_f32(mpt_buffer(net, "0.running_mean"), mean, INPUTS);
        CHECK((mean[0] != 0) == (way == 2));
        CHECK(mpt_is_training(net) == (way == 0 || way == 3));
        CHECK(!mpt_is_training(norm));
        CHECK(mpt_is_training(linear) == (way != 2));
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        mpt_destroy(w.ctx);
    }
}

/* Frozen before or after the first use, with dropout and a norm in it, until it is unfrozen. */
TEST(frozen_modules_do_not_change) {
    for (int used = 0; used < 2; used++) {
        world w = make_world(0.01);
        mpt_module body = mpt_sequential(w.ctx, mpt_nn_linear(w.ctx, INPUTS, 8),
                                         mpt_nn_batch_norm1d(w.ctx, 8, NULL),
                                         mpt_nn_dropout(w.ctx, 0.5), MPT_END);
        if (!used) mpt_freeze(body, true);
        mpt_module net = mpt_sequential(w.ctx, body, mpt_nn_linear(w.ctx, 8, CLASSES),
                                        mpt_nn_log_softmax(w.ctx, -1), MPT_END);
        mpt_optimizer optimizer = mpt_adamw(net, NULL);
        mpt_fit_config config = mpt_fit_config_default();
        config.epochs = 1;
        if (used) {
            mpt_fit(net, optimizer, w.train, &config); /* there are gradients now */
            mpt_freeze(body, true);
        }
        uint64_t before = mpt_module_hash(body);
        uint64_t head = mpt_module_hash(mpt_child(net, "1"));
        mpt_train(net);
        CHECK_EQ_INT(mpt_fit(net, optimizer, w.train, &config).status, MPT_OK);
        CHECK(mpt_module_hash(body) == before);
        CHECK(mpt_module_hash(mpt_child(net, "1")) != head);
        CHECK(!mpt_has_grad(mpt_parameter(net, "0.0.weight")));
        CHECK(mpt_is_training(net) && !mpt_is_training(body));
        mpt_tensor x = mpt_ones(w.ctx, MPT_F32, MPT_SHAPE(2, INPUTS));
        mpt_tensor same = mpt_equal(mpt_forward(body, x), mpt_forward(body, x));
        CHECK(mpt_item(mpt_sum(mpt_cast(same, MPT_F32), MPT_ALL_DIMS, false)) == 16);
        mpt_freeze(body, false);
        CHECK(mpt_is_training(mpt_child(body, "2")));
        mpt_fit(net, optimizer, w.train, &config);
        CHECK(mpt_module_hash(body) != before);
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        mpt_destroy(w.ctx);
    }
}

static int warnings;
static void count_warning(void *user, mpt_log_level level, const char *message) {
    warnings += level == MPT_LOG_WARNING;
    snprintf((char *)user, 256, "%s", message);
}

/* Logits into the default loss: told once, and not where outputs are log-probabilities. Of a loss
   of the user's that calls mpt_nll_loss, mpt_nll_loss tells. */
TEST(outputs_that_are_no_log_probabilities) {
    for (int way = 0; way < 4; way++) {
        char warning[256] = "";
        mpt_config heard = mpt_config_default();
        heard.log.write = count_warning, heard.log.user = warning;
        world w = make_world_with(&heard, 0.01);
        mpt_module logits = mpt_nn_linear(w.ctx, INPUTS, CLASSES);
        mpt_module net = way % 2 == 0 ? logits : w.net;
        mpt_fit_config config = mpt_fit_config_default();
        config.epochs = 2;
        config.precision = way == 1 ? MPT_BF16 : MPT_F32;
        if (way == 2) config.loss = hundredfold;
        warnings = 0;
        mpt_fit(net, way % 2 == 0 ? mpt_sgd(net, NULL) : w.optimizer, w.train, &config);
        CHECK_EQ_STR(mpt_error(w.ctx), "");
        CHECK_EQ_INT(warnings, way % 2 == 0);
        if (way == 0) CHECK_CONTAINS(warning, "mpt_nn_log_softmax");
        if (way == 2) CHECK_CONTAINS(warning, "mpt_nll_loss: the input comes from linear");
        mpt_destroy(w.ctx);
    }
}

static int squared_calls;
static mpt_tensor squared(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user, (void)target;
    squared_calls++;
    return mpt_mean(mpt_mul(output, output), MPT_ALL_DIMS, false);
}

TEST(own_loss_and_schedule_per_epoch) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    squared_calls = 0;
    config.epochs = 4;
    config.loss = squared;
    config.schedule = mpt_cosine_annealing(w.optimizer, 4, 0.0, MPT_PER_EPOCH);
    config.validation = w.validation;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_EQ_INT(squared_calls, 4 * 2 * STEPS);
    CHECK(result.validation_loss > 0.0);
    CHECK_NEAR(mpt_get_lr(w.optimizer, 0), 0.0, 1e-9); /* cos(pi) */
    mpt_destroy(w.ctx);
}

/* The loss of step k is k, so the mean of the second epoch alone is known. */
static mpt_tensor counted(mpt_tensor output, mpt_tensor target, void *user) {
    int *calls = (int *)user;
    (void)target;
    mpt_tensor nothing = mpt_mul_scalar(mpt_mean(output, MPT_ALL_DIMS, false), 0.0);
    return mpt_add_scalar(nothing, ++*calls);
}

/* A loss that only rises: the third epoch is the second one without progress. */
TEST(plateau_is_told_the_loss) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    mpt_plateau_config plateau = mpt_plateau_config_default();
    int calls = 0;
    plateau.patience = 1;
    config.epochs = 4;
    config.loss = counted;
    config.user = &calls;
    config.schedule = mpt_reduce_on_plateau(w.optimizer, &plateau);
    mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    mpt_schedule_state state = mpt_schedule_get_state(config.schedule);
    CHECK_EQ_INT(state.time, 4);
    CHECK_EQ_INT(state.bad, 1);
    CHECK_NEAR(state.best, (STEPS + 1) / 2.0, 1e-6);
    CHECK_NEAR(mpt_get_lr(w.optimizer, 0), 0.001, 1e-9);
    mpt_destroy(w.ctx);
}

TEST(loss_is_the_mean_of_the_epoch) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    int calls = 0;
    config.epochs = 2;
    config.loss = counted;
    config.user = &calls;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_NEAR(result.train_loss, (STEPS + 1 + 2 * STEPS) / 2.0, 1e-6);
    mpt_destroy(w.ctx);
}

/* Counts the forward calls that found it in training and in evaluation. */
static mpt_status spy_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    int *calls = (int *)user;
    (void)n_in, (void)n_out;
    calls[mpt_is_training(self) ? 0 : 1]++;
    out[0] = in[0];
    return MPT_OK;
}

TEST(modules_are_told_training_from_evaluation) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    mpt_module_class spy;
    int calls[2] = {0, 0};
    memset(&spy, 0, sizeof spy);
    spy.name = "spy";
    spy.forward = spy_forward;
    spy.n_inputs = spy.n_outputs = 1;
    mpt_module net = mpt_sequential(w.ctx, mpt_nn_linear(w.ctx, INPUTS, CLASSES),
                                    mpt_module_create(w.ctx, &spy, calls),
                                    mpt_nn_log_softmax(w.ctx, -1), MPT_END);
    config.epochs = 2;
    config.validation = w.validation;
    mpt_fit(net, mpt_sgd(net, NULL), w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK_EQ_INT(calls[0], 2 * STEPS);
    CHECK_EQ_INT(calls[1], 2 * STEPS);
    mpt_eval(net);
    mpt_evaluate(net, w.validation, MPT_F32);
    CHECK(!mpt_is_training(net));
    mpt_destroy(w.ctx);
}

/* So large a scale overflows at once: the steps are skipped and counted. */
TEST(counts_skipped_steps) {
    world w = make_world(0.01);
    mpt_scaler_config sc = mpt_scaler_config_default();
    mpt_fit_config config = mpt_fit_config_default();
    sc.init_scale = 16777216.0 * 65536.0;
    sc.max_scale = 0.0;
    config.epochs = 4;
    config.precision = MPT_F16;
    config.scaler = mpt_grad_scaler(w.ctx, &sc);
    mpt_fit_result first = mpt_fit(w.net, w.optimizer, w.train, &config);
    mpt_fit_result second = mpt_fit(w.net, w.optimizer, w.train, &config);
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    CHECK(first.skipped_steps > 0 && first.skipped_steps < first.steps);
    CHECK_EQ_INT(mpt_applied_steps(w.optimizer),
                 first.steps + second.steps - first.skipped_steps - second.skipped_steps);
    CHECK_EQ_INT(mpt_scaler_statistics(config.scaler).skipped,
                 first.skipped_steps + second.skipped_steps);
    mpt_destroy(w.ctx);
}

static void check_refused(const mpt_fit_config *config, world *w, const char *part) {
    uint64_t before = mpt_module_hash(w->net);
    mpt_fit_result result = mpt_fit(w->net, w->optimizer, w->train, config);
    CHECK(result.status != MPT_OK);
    CHECK_EQ_INT(result.status, mpt_error_code(w->ctx));
    CHECK_EQ_INT(result.steps, 0);
    CHECK_CONTAINS(mpt_error(w->ctx), part);
    mpt_clear_error(w->ctx);
    CHECK(mpt_module_hash(w->net) == before);
}

TEST(refuses_what_makes_no_sense) {
    world w = make_world(0.01);
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 0;
    check_refused(&config, &w, "epochs is 0");
    config = mpt_fit_config_default();
    config.precision = MPT_I64;
    check_refused(&config, &w, "precision int64");
    config = mpt_fit_config_default();
    config.clip_norm = -1.0;
    check_refused(&config, &w, "clip_norm");
    config = mpt_fit_config_default();
    config.patience = 2;
    check_refused(&config, &w, "config.validation");
    config.patience = -1;
    check_refused(&config, &w, "patience is -1");
    CHECK_EQ_INT(mpt_evaluate(w.net, w.train, MPT_U8).status, MPT_ERROR_DTYPE);
    mpt_clear_error(w.ctx);
    mpt_fit_result good = mpt_fit(w.net, w.optimizer, w.train, NULL);
    CHECK_EQ_INT(good.status, MPT_OK);
    CHECK_EQ_INT(good.epochs, 5);
    mpt_destroy(w.ctx);
}

/* Loaders that a loop by hand has left in the middle of an epoch, or behind its last batch. */
TEST(loaders_that_others_have_used) {
    world w = make_world(0.01);
    mpt_batch batch;
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 2;
    for (int taken = 1; taken <= STEPS; taken++) {
        for (int i = 0; i < taken; i++) CHECK(mpt_loader_next(w.validation, &batch));
        CHECK_EQ_INT(mpt_evaluate(w.net, w.validation, MPT_F32).samples, SAMPLES);
        for (int i = 0; i < taken; i++) CHECK(mpt_loader_next(w.train, &batch));
        mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &config);
        CHECK_EQ_INT(result.steps, taken < STEPS ? 2 * STEPS - taken : 2 * STEPS);
        CHECK(result.train_loss > 0);
    }
    CHECK_EQ_STR(mpt_error(w.ctx), "");
    mpt_destroy(w.ctx);
}

/* Numbers to predict, without a loss for them. */
TEST(targets_that_are_no_classes_need_a_loss) {
    static const float x[4] = {1, 2, 3, 4};
    mpt_context *ctx = mpt_create(NULL);
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = 4, data.dtype = data.target_dtype = MPT_F32;
    data.shape = data.target_shape = MPT_SHAPE(1), data.inputs = data.targets = x;
    mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &data), NULL);
    mpt_module net = mpt_nn_linear(ctx, 1, 1);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    CHECK_EQ_INT(mpt_fit(net, optimizer, loader, NULL).status, MPT_ERROR_DTYPE);
    CHECK_CONTAINS(mpt_error(ctx), "set mpt_fit_config.loss");
    mpt_clear_error(ctx);
    CHECK_EQ_INT(mpt_evaluate(net, loader, MPT_F32).status, MPT_ERROR_DTYPE);
    CHECK_CONTAINS(mpt_error(ctx), "targets have dtype float32");
    mpt_destroy(ctx);
}

TEST(null_and_stale_handles) {
    world w = make_world(0.01);
    mpt_module no_net;
    mpt_loader no_loader;
    mpt_optimizer no_optimizer;
    memset(&no_net, 0, sizeof no_net);
    memset(&no_loader, 0, sizeof no_loader);
    memset(&no_optimizer, 0, sizeof no_optimizer);
    CHECK_EQ_INT(mpt_fit(no_net, no_optimizer, no_loader, NULL).status, MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_evaluate(no_net, no_loader, MPT_F32).status, MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_fit(no_net, w.optimizer, w.train, NULL).status, MPT_ERROR_HANDLE);
    mpt_clear_error(w.ctx);
    CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, no_loader, NULL).status, MPT_ERROR_HANDLE);
    mpt_clear_error(w.ctx);
    CHECK_EQ_INT(mpt_evaluate(w.net, no_loader, MPT_F32).status, MPT_ERROR_HANDLE);
    mpt_clear_error(w.ctx);
    mpt_loader_destroy(w.train);
    CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, w.train, NULL).status, MPT_ERROR_HANDLE);
    mpt_destroy(w.ctx);
}

/* A bad target in the third batch: the error names the sample, weights of the steps before stay. */
TEST(an_error_in_the_middle_leaves_weights_alone) {
    world w = make_world(0.01), twin = make_world(0.01);
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_memory_dataset_config bad = mpt_memory_dataset_config_default();
    mpt_fit_config config = mpt_fit_config_default();
    lc.batch = BATCH;
    bad.count = SAMPLES;
    bad.dtype = MPT_F32;
    bad.shape = MPT_SHAPE(INPUTS);
    bad.inputs = sample_inputs;
    bad.targets = sample_classes;
    make_samples();
    mpt_loader good =
        mpt_loader_create(twin.ctx, mpt_subset(make_dataset(twin.ctx), 0, 2 * BATCH), &lc);
    sample_classes[2 * BATCH + 1] = 7;
    mpt_loader loader = mpt_loader_create(w.ctx, mpt_memory_dataset(w.ctx, &bad), &lc);
    config.epochs = 1;
    mpt_fit_result result = mpt_fit(w.net, w.optimizer, loader, &config);
    CHECK_EQ_INT(result.status, MPT_ERROR_INDEX);
    mpt_clear_error(w.ctx);
    mpt_fit(twin.net, twin.optimizer, good, &config);
    CHECK_EQ_STR(mpt_error(twin.ctx), "");
    CHECK(mpt_module_hash(w.net) == mpt_module_hash(twin.net));
    mpt_destroy(w.ctx);
    mpt_destroy(twin.ctx);
}

/* ==== Confusion ==== */

static void scores_are(int line, mpt_scores got, int64_t samples, double accuracy, double precision,
                       double recall, double f1) {
    if (got.samples != samples || !(fabs(got.accuracy - accuracy) < 1e-12) ||
        !(fabs(got.precision - precision) < 1e-12) || !(fabs(got.recall - recall) < 1e-12) ||
        !(fabs(got.f1 - f1) < 1e-12))
        TEST_FAIL_("line %d: %lld samples, %g, %g, %g, %g", line, (long long)got.samples,
                   got.accuracy, got.precision, got.recall, got.f1);
}
#define SCORES(...) scores_are(__LINE__, __VA_ARGS__)

/* Values of scikit-learn's definitions, by hand; class 2 does not occur, class 3 only as guess. */
TEST(confusion_and_its_scores) {
    static const int64_t targets[7] = {0, 0, 0, 0, 1, 1, -100}, guesses[7] = {0, 1, 0, 0, 3, 1, 77};
    static const int64_t want[16] = {3, 1, 0, 0, 0, 1, 0, 1};
    static const int64_t wrong[7] = {0, 0, 0, 0, 1, 4, 0};
    int64_t counts[16] = {0};
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor is = mpt_from(ctx, MPT_I64, MPT_SHAPE(7), targets);
    mpt_tensor taken = mpt_from(ctx, MPT_I64, MPT_SHAPE(7), guesses);
    CHECK_EQ_INT(mpt_confusion(taken, is, counts, 4), MPT_OK);
    CHECK(memcmp(counts, want, sizeof want) == 0);
    SCORES(mpt_class_scores(counts, 4, 0), 4, 4.0 / 6, 1, 0.75, 6.0 / 7);
    SCORES(mpt_class_scores(counts, 4, 1), 2, 4.0 / 6, 0.5, 0.5, 0.5);
    SCORES(mpt_class_scores(counts, 4, 2), 0, 4.0 / 6, 0, 0, 0);
    SCORES(mpt_class_scores(counts, 4, 3), 0, 4.0 / 6, 0, 0, 0);
    SCORES(mpt_class_scores(counts, 4, MPT_MACRO), 6, 4.0 / 6, 0.5, 1.25 / 3, (6.0 / 7 + 0.5) / 3);
    SCORES(mpt_class_scores(counts, 4, MPT_MICRO), 6, 4.0 / 6, 4.0 / 6, 4.0 / 6, 4.0 / 6);
    SCORES(mpt_class_scores(counts, 4, MPT_WEIGHTED), 6, 4.0 / 6, 5.0 / 6, 4.0 / 6,
           (24.0 / 7 + 1) / 6);
    /* Nothing is counted of a batch that has no such class; the next one adds up. */
    mpt_confusion(taken, mpt_from(ctx, MPT_I64, MPT_SHAPE(7), wrong), counts, 4);
    CHECK_CONTAINS(mpt_error(ctx), "target 5 is 4: expected 0 to 3");
    mpt_clear_error(ctx);
    CHECK(memcmp(counts, want, sizeof want) == 0);
    mpt_confusion(taken, is, counts, 4);
    CHECK(counts[0] == 6 && counts[1] == 2 && counts[5] == 2 && counts[7] == 2 && counts[15] == 0);
    /* Logits, in halves, of two dimensions of samples; and of none. */
    memset(counts, 0, sizeof counts);
    mpt_tensor tall = mpt_from(ctx, MPT_I64, MPT_SHAPE(2, 3), targets);
    mpt_tensor guessed = mpt_from(ctx, MPT_I64, MPT_SHAPE(2, 3), guesses);
    mpt_tensor logits = mpt_cast(mpt_one_hot(guessed, 4), MPT_BF16);
    mpt_confusion(mpt_add_scalar(logits, -3), tall, counts, 4);
    CHECK(memcmp(counts, want, sizeof want) == 0);
    mpt_confusion(mpt_zeros(ctx, MPT_F32, MPT_SHAPE(0, 4)), mpt_zeros(ctx, MPT_I64, MPT_SHAPE(0)),
                  counts, 4);
    CHECK(memcmp(counts, want, sizeof want) == 0);
    memset(counts, 0, sizeof counts);
    for (int which = MPT_WEIGHTED; which < 4; which++)
        SCORES(mpt_class_scores(counts, 4, which), 0, 0, 0, 0, 0);
    CHECK_EQ_STR(mpt_error(ctx), "");
    mpt_destroy(ctx);
}

TEST_TABLE = {T(defaults),
              T(same_bits_as_the_loop_by_hand),
              T(automatic_precision),
              T(learns_and_reports),
              T(steps_tell_rate_norm_and_memory),
              T(no_allocations_in_the_steady_state),
              T(waiting_for_data_is_told),
              T(evaluate_against_the_definition),
              T(confusion_and_its_scores),
              T(stops_when_the_callback_says_so),
              T(patience_and_the_best_checkpoint),
              T(last_checkpoint_without_validation),
              T(no_checkpoint_of_nan),
              T(stops_where_the_loss_is_not_finite),
              T(weights_of_the_last_step_are_looked_at),
              T(results_of_fits_that_fail),
              T(validation_that_is_never_finite),
              T(modes_come_back),
              T(outputs_that_are_no_log_probabilities),
              T(frozen_modules_do_not_change),
              T(own_loss_and_schedule_per_epoch),
              T(plateau_is_told_the_loss),
              T(loss_is_the_mean_of_the_epoch),
              T(modules_are_told_training_from_evaluation),
              T(counts_skipped_steps),
              T(refuses_what_makes_no_sense),
              T(null_and_stale_handles),
              T(targets_that_are_no_classes_need_a_loss),
              T(loaders_that_others_have_used),
              T(an_error_in_the_middle_leaves_weights_alone)};
TEST_MAIN
