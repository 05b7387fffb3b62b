/* api_micro.c: mpt_fit with several batches to a step, or a batch in parts: the weights of one
   large batch within roundings, memory of a part, one skip for an overflow in any part, means over
   samples, nothing allocated in a steady state, checkpoints between steps. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "training.h"

enum { COUNT = 90, INPUTS = 8, KINDS = 3, WEIGHTS = INPUTS * 16 + 16 * KINDS };

#if defined(MPTRAIN_NO_FIT) || defined(MPTRAIN_NO_FRUGAL)
TEST(left_out) { SKIP("steps in parts"); }
TEST_TABLE = {T(left_out)};
TEST_MAIN
#else

static mpt_dataset samples_of(mpt_context *c) {
    static float x[COUNT * INPUTS];
    static int64_t y[COUNT];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int i = 0; i < COUNT * INPUTS; i++)
        x[i] = (float)((i * 37 + i / 7 * 11) % 101 - 50) / 50.0f;
    for (int i = 0; i < COUNT; i++) y[i] = (i * i + i / 4) % KINDS;
    config.count = COUNT;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(INPUTS);
    config.inputs = x;
    config.targets = y;
    return mpt_memory_dataset(c, &config);
}

typedef struct world {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_loader train, validation;
} world;

static world world_with(mpt_config *config, int64_t batch) {
    world w;
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_sgd_config sc = mpt_sgd_config_default();
    config->seed = 3;
    w.context = mpt_create(config);
    w.net = mpt_sequential(w.context, mpt_nn_linear(w.context, INPUTS, 16), mpt_nn_tanh(w.context),
                           mpt_nn_linear(w.context, 16, KINDS),
                           mpt_nn_log_softmax(w.context, -1), MPT_END);
    sc.lr = 0.2, sc.momentum = 0.9;
    w.optimizer = mpt_sgd(w.net, &sc);
    lc.batch = batch;
    w.validation = mpt_loader_create(w.context, samples_of(w.context), &lc);
    lc.shuffle = true;
    w.train = mpt_loader_create(w.context, samples_of(w.context), &lc);
    return w;
}

static world world_of(int64_t batch, int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    return world_with(&config, batch);
}

static mpt_fit_config parts_of(int64_t accumulate, int64_t micro_batch) {
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 4;
    config.accumulate = accumulate, config.micro_batch = micro_batch;
    return config;
}

static mpt_fit_result fit(world *w, const mpt_fit_config *config) {
    mpt_fit_result result = mpt_fit(w->net, w->optimizer, w->train, config);
    CHECK_EQ_STR(mpt_error(w->context), "");
    return result;
}

static void weights_of(const world *w, float values[WEIGHTS]) {
    mpt_read_f32(mpt_parameter(w->net, "0.weight"), values, INPUTS * 16);
    mpt_read_f32(mpt_parameter(w->net, "2.weight"), values + INPUTS * 16, 16 * KINDS);
}

/* ==== The same as one large batch ==== */

static void check_like(const mpt_fit_config *one, int64_t batch, const mpt_fit_config *other,
                       int64_t other_batch, double tolerance) {
    static float want[WEIGHTS], got[WEIGHTS];
    world a = world_of(batch, 1), b = world_of(other_batch, 1);
    mpt_fit_result large = fit(&a, one), parts = fit(&b, other);
    CHECK_EQ_INT(parts.steps, large.steps);
    CHECK_EQ_INT(parts.epochs, large.epochs);
    CHECK_EQ_INT(mpt_applied_steps(b.optimizer), mpt_applied_steps(a.optimizer));
    CHECK_CLOSE(parts.train_loss, large.train_loss, tolerance, 0);
    weights_of(&a, want), weights_of(&b, got);
    for (int i = 0; i < WEIGHTS; i++) CHECK_NEAR(got[i], want[i], tolerance);
    mpt_destroy(a.context), mpt_destroy(b.context);
}

/* Sizes that divide, that leave a rest in each batch, and a last batch and step that are short. */
TEST(parts_give_the_weights_of_the_whole) {
    static const struct {
        int64_t large, batch, accumulate, micro_batch;
    } rows[] = {{30, 30, 0, 10}, {32, 32, 1, 5}, {60, 30, 2, 0}, {64, 16, 4, 0}, {64, 16, 4, 7},
                {90, 7, 100, 3}, {16, 16, 0, 16}, {16, 16, 1, 99}, {20, 20, 0, 1}};
    const mpt_fit_config whole = parts_of(0, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_fit_config parts = parts_of(rows[i].accumulate, rows[i].micro_batch);
        check_like(&whole, rows[i].large, &parts, rows[i].batch, 2e-5);
    }
}

TEST(in_half_precision_and_with_clipping) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    static const double tolerance[] = {2e-5, 4e-3, 3e-2};
    for (int i = 0; i < 3; i++) {
        mpt_fit_config whole = parts_of(0, 0), parts = parts_of(2, 8);
        whole.precision = parts.precision = precisions[i];
        whole.clip_norm = parts.clip_norm = 0.1;
        check_like(&whole, 60, &parts, 30, tolerance[i]);
    }
}

/* What is not divided runs as it always did. */
TEST(whole_batches_have_the_bits_that_they_had) {
    world a = world_of(16, 1), b = world_of(16, 1);
    mpt_fit_config none = parts_of(0, 0), one = parts_of(1, 16);
    fit(&a, &none), fit(&b, &one);
    CHECK(mpt_module_hash(a.net) == mpt_module_hash(b.net));
    mpt_destroy(a.context), mpt_destroy(b.context);
}

TEST(the_same_bits_for_any_number_of_threads) {
    world a = world_of(16, 1), b = world_of(16, 2);
    mpt_fit_config config = parts_of(3, 5);
    fit(&a, &config), fit(&b, &config);
    CHECK(mpt_module_hash(a.net) == mpt_module_hash(b.net));
    mpt_destroy(a.context), mpt_destroy(b.context);
}

/* The bits of the loop that it stands for. */
TEST(the_loop_by_hand) {
    enum { BATCH = 30, PART = 10 };
    world a = world_of(BATCH, 1), b = world_of(BATCH, 1);
    mpt_fit_config config = parts_of(0, PART);
    config.epochs = 1;
    fit(&a, &config);
    mpt_batch batch;
    while (mpt_loader_next(b.train, &batch)) {
        mpt_step_begin(b.context);
        mpt_zero_grad(b.optimizer);
        for (int64_t from = 0; from < batch.size; from += PART) {
            mpt_tensor x = mpt_slice(batch.x, 0, from, from + PART, 1);
            mpt_tensor y = mpt_slice(batch.y, 0, from, from + PART, 1);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(b.net, x), y, NULL);
            mpt_backward(mpt_mul_scalar(loss, (double)PART / (double)BATCH));
        }
        mpt_step(b.optimizer);
        mpt_step_end(b.context);
    }
    CHECK(mpt_module_hash(a.net) == mpt_module_hash(b.net));
    mpt_destroy(a.context), mpt_destroy(b.context);
}

/* ==== Means, progress ==== */

typedef struct seen {
    int64_t steps, batch, last, stop_at, calls, allocations;
    double loss, eta;
    mpt_context *context;
} seen;

static bool watch(void *user, const mpt_progress *progress) {
    seen *s = (seen *)user;
    if (progress->epoch_end) return true;
    s->steps++;
    s->batch = progress->batch, s->last = progress->batches;
    s->loss = progress->loss, s->eta = progress->eta_seconds;
    if (s->context && s->steps == 6) s->allocations = mpt_memory(s->context).allocations;
    if (s->steps == s->stop_at) mpt_request_stop(s->context, true);
    return true;
}

TEST(validation_and_progress) {
    world a = world_of(16, 1), b = world_of(16, 1);
    mpt_fit_config whole = parts_of(4, 0), parts = parts_of(4, 5);
    seen s;
    memset(&s, 0, sizeof s);
    whole.validation = a.validation, parts.validation = b.validation;
    parts.progress = watch, parts.user = &s;
    mpt_fit_result one = fit(&a, &whole), other = fit(&b, &parts);
    CHECK_CLOSE(other.validation_loss, one.validation_loss, 1e-5, 0);
    CHECK(other.validation_accuracy == one.validation_accuracy);
    CHECK_EQ_INT(other.steps, 4 * 2); /* of 4 and of 2 batches */
    CHECK_EQ_INT(s.steps, 4 * 2);
    CHECK_EQ_INT(s.batch, 6);
    CHECK_EQ_INT(s.last, 6);
    CHECK_CLOSE(s.loss, other.train_loss, 1e-6, 0);
    CHECK(s.eta == 0);
    mpt_destroy(a.context), mpt_destroy(b.context);
}

/* ==== Overflow ==== */

typedef struct spoiler {
    int calls, spoils; /* number of the part whose gradients overflow */
} spoiler;

static mpt_tensor spoiled(mpt_tensor output, mpt_tensor target, void *user) {
    spoiler *s = (spoiler *)user;
    mpt_tensor loss = mpt_nll_loss(output, target, NULL);
    return ++s->calls == s->spoils ? mpt_mul_scalar(loss, 1e30) : loss;
}

TEST(an_overflow_in_a_part_skips_the_step) {
    for (int part = 1; part <= 6; part++) {
        world w = world_of(45, 1);
        mpt_fit_config config = parts_of(2, 15);
        spoiler s = {0, part};
        config.epochs = 1;
        config.precision = MPT_F16;
        config.loss = spoiled, config.user = &s;
        const uint64_t before = mpt_module_hash(w.net);
        mpt_fit_result result = fit(&w, &config);
        CHECK_EQ_INT(s.calls, 6);
        CHECK_EQ_INT(result.steps, 1);
        CHECK_EQ_INT(result.skipped_steps, 1);
        CHECK_EQ_INT(mpt_applied_steps(w.optimizer), 0);
        CHECK(mpt_module_hash(w.net) == before);
        result = fit(&w, &config);
        CHECK_EQ_INT(result.skipped_steps, 0);
        CHECK(mpt_module_hash(w.net) != before);
        mpt_destroy(w.context);
    }
}

/* ==== Memory ==== */

static mpt_memory_stats costs_of(int64_t micro_batch) {
    mpt_context *c = mpt_create(NULL);
    static float x[256 * 64];
    static int64_t y[256];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_module parts[8];
    for (int i = 0; i < 6; i++) parts[i] = i % 2 ? mpt_nn_gelu(c) : mpt_nn_linear(c, 64, 64);
    parts[6] = mpt_nn_linear(c, 64, KINDS), parts[7] = mpt_nn_log_softmax(c, -1);
    mpt_module net = mpt_sequential_array(c, parts, 8);
    config.count = lc.batch = 256;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(64);
    config.inputs = x, config.targets = y;
    mpt_loader loader = mpt_loader_create(c, mpt_memory_dataset(c, &config), &lc);
    mpt_fit_config fc = parts_of(0, micro_batch);
    mpt_fit(net, mpt_adamw(net, NULL), loader, &fc);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_memory_stats stats = mpt_memory(c);
    mpt_destroy(c);
    return stats;
}

TEST(parts_take_the_memory_of_a_part) {
    mpt_memory_stats whole = costs_of(0), parts = costs_of(32);
    CHECK(parts.peak[MPT_MEMORY_ACTIVATION] < whole.peak[MPT_MEMORY_ACTIVATION] / 6);
    CHECK_EQ_INT(parts.peak[MPT_MEMORY_PARAMETER], whole.peak[MPT_MEMORY_PARAMETER]);
    CHECK_EQ_INT(parts.peak[MPT_MEMORY_MOMENT], whole.peak[MPT_MEMORY_MOMENT]);
}

TEST(no_allocations_in_the_steady_state) {
    world w = world_of(16, 1);
    mpt_fit_config config = parts_of(4, 5);
    seen s;
    memset(&s, 0, sizeof s);
    s.context = w.context;
    config.epochs = 6;
    config.precision = MPT_BF16;
    config.progress = watch, config.user = &s;
    fit(&w, &config);
    CHECK(s.allocations > 0);
    CHECK_EQ_INT(mpt_memory(w.context).allocations, s.allocations);
    mpt_destroy(w.context);
}

TEST(out_of_memory) {
    bool done = false;
    for (int64_t fail = 1; !done && fail < 400; fail += 3) {
        arena a;
        mpt_config config = mpt_config_default();
        config.threads = 1;
        arena_use(&a, &config);
        world w = world_with(&config, 16);
        mpt_fit_config parts = parts_of(2, 5);
        parts.epochs = 1;
        mpt_module_hash(w.net);
        a.calls = 0, a.fail_at = fail, a.failures = 1 << 30;
        mpt_fit_result result = mpt_fit(w.net, w.optimizer, w.train, &parts);
        done = a.refused == 0;
        a.fail_at = 0;
        if (!done) {
            CHECK_EQ_INT(result.status, MPT_ERROR_MEMORY);
            mpt_clear_error(w.context);
        }
        CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, w.train, &parts).status, MPT_OK);
        mpt_destroy(w.context);
        CHECK_EQ_INT(a.live, 0);
        CHECK_EQ_INT(a.torn, 0);
    }
    CHECK(done);
}

/* ==== Beside others ==== */

#if !defined(MPTRAIN_NO_RESUME) && !defined(MPTRAIN_NO_FILES)
TEST(goes_on_between_steps) {
    static disk files;
    mpt_config own = mpt_config_default();
    own.threads = 1;
    disk_use(&files, &own);
    mpt_fit_config config = parts_of(4, 5);
    world whole = world_of(16, 1), first = world_with(&own, 16), second = world_with(&own, 16);
    seen s;
    memset(&s, 0, sizeof s);
    fit(&whole, &config);
    config.checkpoints = "run", config.save_every = 1;
    s.context = first.context, s.stop_at = 3; /* in the middle of the second epoch */
    config.progress = watch, config.user = &s;
    mpt_fit_result result = fit(&first, &config);
    CHECK(result.interrupted && result.steps == 3);
    config.progress = NULL;
    result = fit(&second, &config);
    CHECK_EQ_INT(result.steps, 8);
    CHECK(mpt_module_hash(second.net) == mpt_module_hash(whole.net));
    mpt_destroy(whole.context), mpt_destroy(first.context), mpt_destroy(second.context);
    disk_free(&files);
}
#endif

#ifndef MPTRAIN_NO_CONV
/* Statistics of batch norm are those of each part, so numbers differ; all else goes on. */
TEST(batch_norm_in_parts) {
    world w = world_of(30, 1);
    mpt_context *c = w.context;
    mpt_module net =
        mpt_sequential(c, mpt_nn_linear(c, INPUTS, 16), mpt_nn_batch_norm1d(c, 16, NULL),
                       mpt_nn_relu(c), mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, 16, KINDS),
                       mpt_nn_log_softmax(c, -1), MPT_END);
    mpt_fit_config config = parts_of(0, 10);
    config.validation = w.validation;
    mpt_fit_result result = mpt_fit(net, mpt_adamw(net, NULL), w.train, &config);
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK_EQ_INT(result.status, MPT_OK);
    CHECK(isfinite(result.validation_loss));
    mpt_destroy(c);
}
#endif

TEST(refusals) {
    world w = world_of(30, 1);
    mpt_fit_config config = parts_of(-1, 0);
    CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, w.train, &config).status, MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(w.context), "accumulate is -1, micro_batch 0; 0 or more");
    mpt_clear_error(w.context);
    config = parts_of(0, -5);
    CHECK_EQ_INT(mpt_fit(w.net, w.optimizer, w.train, &config).status, MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(w.context), "accumulate is 0, micro_batch -5");
    mpt_destroy(w.context);
}

TEST_TABLE = {T(parts_give_the_weights_of_the_whole),
              T(in_half_precision_and_with_clipping),
              T(whole_batches_have_the_bits_that_they_had),
              T(the_same_bits_for_any_number_of_threads),
              T(the_loop_by_hand),
              T(validation_and_progress),
              T(an_overflow_in_a_part_skips_the_step),
              T(parts_take_the_memory_of_a_part),
              T(no_allocations_in_the_steady_state),
              T(out_of_memory),
#if !defined(MPTRAIN_NO_RESUME) && !defined(MPTRAIN_NO_FILES)
              T(goes_on_between_steps),
#endif
#ifndef MPTRAIN_NO_CONV
              T(batch_norm_in_parts),
#endif
              T(refusals)};
TEST_MAIN

#endif
