/* api_series.c: checkpoints in a folder, by loops and by mpt_fit: stopped, gone on, to the byte. */
#include "mptrain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)

enum { FEATURES = 5, CLASSES = 3, SAMPLES = 42, BATCH = 8, MOST = 200 };

static float inputs[SAMPLES][FEATURES];
static int64_t targets[SAMPLES];
static char said[4096]; /* the log */

static void make_data(void) {
    said[0] = 0;
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i % CLASSES;
        for (int k = 0; k < FEATURES; k++)
            inputs[i][k] = (float)((i * 5 + k * 3) % 13) / 6.0f - 1 + (k == i % CLASSES);
    }
}

static void hear(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_WARNING || level == MPT_LOG_ERROR)
        snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", message);
}

/* A training, made the same way each time. */
typedef struct {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_schedule schedule;
    mpt_loader loader, tests;
} training;

/* What differs from the usual one. */
typedef struct {
    mpt_dtype precision;
    bool tanh, half;
    double lr;
} setup;

static training begin(const setup *how) {
    training t;
    mpt_config config = mpt_config_default();
    memset(&t, 0, sizeof t);
    config.threads = 2, config.seed = 5, config.log.write = hear;
    mpt_context *c = t.context = mpt_create(&config);
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, 9), mpt_nn_batch_norm1d(c, 9, NULL),
                           how->tanh ? mpt_nn_tanh(c) : mpt_nn_relu(c), mpt_nn_dropout(c, 0.2),
                           mpt_nn_linear(c, 9, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    if (how->half) mpt_half(t.net, MPT_BF16);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = how->lr > 0 ? how->lr : 0.01;
    t.optimizer = mpt_adamw(t.net, &adamw);
    t.schedule = mpt_schedule_create(t.optimizer, mpt_cosine_lr(8, 0.001), MPT_PER_EPOCH);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.growth_interval = 6;
    if (how->precision == MPT_F16) t.scaler = mpt_grad_scaler(c, &scaler);
    mpt_memory_dataset_config memory = mpt_memory_dataset_config_default();
    memory.count = SAMPLES, memory.dtype = MPT_F32, memory.shape = MPT_SHAPE(FEATURES);
    memory.inputs = inputs, memory.targets = targets;
    mpt_dataset dataset = mpt_memory_dataset(c, &memory);
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = BATCH, loading.shuffle = true, loading.workers = 1;
    if (how->half) loading.dtype = MPT_BF16;
    t.loader = mpt_loader_create(c, dataset, &loading);
    loading.shuffle = false;
    t.tests = mpt_loader_create(c, mpt_subset(dataset, 0, 20), &loading);
    return t;
}

static const setup usual = {MPT_F32, false, false, 0};

/* One step by hand; false at the end of an epoch. */
static bool step(training *t) {
    mpt_batch batch;
    if (!mpt_loader_next(t->loader, &batch)) return false;
    mpt_step_begin(t->context);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, batch.x), batch.y, NULL);
    mpt_zero_grad(t->optimizer);
    mpt_backward(loss);
    mpt_step(t->optimizer);
    mpt_step_end(t->context);
    return true;
}

/* Steps with checkpoints until `to` are done. */
static void run_to(training *t, int64_t to) {
    while (mpt_step_number(t->context) < to && !mpt_failed(t->context)) {
        if (!step(t)) continue;
        mpt_checkpoint_step(t->context);
        if (mpt_stop_requested(t->context)) break;
    }
}

/* ==== Files ==== */

static void path_of(char path[300], const char *folder, int64_t number) {
    if (number < 0)
        snprintf(path, 300, "%s/best.safetensors", folder);
    else
        snprintf(path, 300, "%s/step-%012lld.safetensors", folder, (long long)number);
}

static bool is_there(const char *folder, int64_t number) {
    char path[300];
    path_of(path, folder, number);
    FILE *file = fopen(path, "rb");
    if (file) fclose(file);
    return file != NULL;
}

static void empty(const char *folder) {
    char path[300];
    for (int64_t number = -1; number < MOST; number++) {
        path_of(path, folder, number);
        remove(path);
    }
}

/* How many steps' files there are. */
static int files_in(const char *folder) {
    int count = 0;
    for (int64_t number = 0; number < MOST; number++) count += is_there(folder, number);
    return count;
}

static bool same_file(const char *folder, const char *other, int64_t number) {
    static char bytes[2][64 << 10];
    size_t n[2];
    for (int k = 0; k < 2; k++) {
        char path[300];
        path_of(path, k ? other : folder, number);
        FILE *file = fopen(path, "rb");
        if (!file) return false;
        n[k] = fread(bytes[k], 1, sizeof bytes[k], file);
        fclose(file);
    }
    return n[0] > 0 && n[0] < sizeof bytes[0] && n[0] == n[1] && !memcmp(bytes[0], bytes[1], n[0]);
}

static void change_byte(const char *folder, int64_t number, long at, bool cut) {
    static char bytes[64 << 10];
    char path[300];
    path_of(path, folder, number);
    FILE *file = fopen(path, "rb");
    REQUIRE(file);
    size_t n = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    if (at < 0) at += (long)n;
    bytes[at] ^= 4;
    file = fopen(path, "wb");
    REQUIRE(file && fwrite(bytes, 1, cut ? n / 2 : n, file) == (cut ? n / 2 : n));
    fclose(file);
}

/* ==== Loops by hand ==== */

TEST(a_loop_goes_on) {
    const char *first = test_tmp_path("whole"), *second = test_tmp_path("parts");
    make_data(), empty(first), empty(second);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    CHECK_EQ_INT(config.every, 1000);
    CHECK_EQ_INT(config.keep, 2);
    CHECK(config.resume && !config.background);
    config.every = 4;
    training whole = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(whole.context, first, &config), MPT_OK);
    run_to(&whole, 26);
    CHECK_EQ_INT(mpt_checkpoint_close(whole.context), MPT_OK);
    CHECK_EQ_INT(files_in(first), 2);
    CHECK(is_there(first, 24) && is_there(first, 26));
    const int64_t stops[] = {3, 4, 11, 25}; /* the process ends there, without a word */
    for (int k = 0; k < 5; k++) {
        training part = begin(&usual);
        config.background = k % 2 == 1;
        CHECK_EQ_INT(mpt_checkpoint_open(part.context, second, &config), MPT_OK);
        const int64_t from = k == 0 ? 0 : stops[k - 1] / 4 * 4;
        CHECK_EQ_INT(mpt_checkpoint_statistics(part.context).resumed, from);
        CHECK_EQ_INT(mpt_step_number(part.context), from);
        run_to(&part, k < 4 ? stops[k] : 26);
        const mpt_checkpoint_stats stats = mpt_checkpoint_statistics(part.context);
        CHECK_EQ_INT(stats.files, (k < 4 ? stops[k] / 4 : 6) - from / 4);
        CHECK(stats.longest <= stats.seconds && (stats.files == 0) == (stats.seconds == 0));
        if (k == 4) CHECK_EQ_INT(mpt_checkpoint_close(part.context), MPT_OK);
        if (k == 4) CHECK(mpt_state_hash(part.context) == mpt_state_hash(whole.context));
        mpt_destroy(part.context);
    }
    CHECK_EQ_INT(files_in(second), 2);
    CHECK(same_file(first, second, 24) && same_file(first, second, 26));
    CHECK_EQ_STR(said, "");
    mpt_destroy(whole.context);
}

TEST(a_stop_is_asked_for) {
    const char *folder = test_tmp_path("stop");
    make_data(), empty(folder);
    training t = begin(&usual);
    CHECK(!mpt_stop_requested(t.context) && !mpt_stop_requested(NULL));
    mpt_request_stop(NULL, true);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    run_to(&t, 3);
    CHECK_EQ_INT(files_in(folder), 0);
    mpt_request_stop(t.context, true);
    CHECK(mpt_stop_requested(t.context));
    run_to(&t, 9);
    CHECK_EQ_INT(mpt_step_number(t.context), 4);
    CHECK_EQ_INT(files_in(folder), 1);
    CHECK(is_there(folder, 4));
    mpt_checkpoint_step(t.context); /* it is there */
    CHECK_EQ_INT(mpt_checkpoint_statistics(t.context).files, 1);
    mpt_request_stop(t.context, false);
    run_to(&t, 6);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    CHECK(files_in(folder) == 2 && is_there(folder, 6));
    mpt_destroy(t.context);
}

TEST(the_best_one) {
    const char *folder = test_tmp_path("best");
    make_data(), empty(folder);
    training t = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    run_to(&t, 2);
    mpt_checkpoint_best(t.context, NAN);
    mpt_checkpoint_best(t.context, INFINITY);
    CHECK(!is_there(folder, -1));
    CHECK_EQ_INT(mpt_checkpoint_best(t.context, 0.5), MPT_OK);
    const uint64_t best = mpt_state_hash(t.context);
    CHECK(is_there(folder, -1));
    run_to(&t, 4);
    mpt_checkpoint_best(t.context, 0.5);
    mpt_checkpoint_best(t.context, 0.75);
    CHECK_EQ_INT(mpt_checkpoint_statistics(t.context).files, 1);
    CHECK(mpt_checkpoint_statistics(t.context).best == 0.5);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    mpt_destroy(t.context);
    char path[300];
    path_of(path, folder, -1);
    t = begin(&usual); /* goes on from the newest, and knows the best value */
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_step_number(t.context), 4);
    CHECK(mpt_checkpoint_statistics(t.context).best == 0.5);
    CHECK_EQ_INT(mpt_checkpoint_load(t.context, path), MPT_OK);
    CHECK(mpt_state_hash(t.context) == best);
    int loaded = 0;
    mpt_load_config weights = mpt_load_config_default();
    weights.strict = false;
    CHECK_EQ_INT(mpt_load(t.net, path, &weights, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 9); /* four weights, gains and shifts, three statistics */
    mpt_destroy(t.context);
}

/* A damaged file is no reason to begin anew, nor to go on from nothing. */
TEST(damaged_files) {
    const char *folder = test_tmp_path("damaged");
    make_data(), empty(folder);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    config.every = 4;
    training t = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_OK);
    run_to(&t, 10);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    const uint64_t hash = mpt_state_hash(t.context);
    mpt_destroy(t.context);
    const struct { long at; bool cut; } damages[] = {{-30, false}, {-2, false}, {100, true}};
    for (int k = 0; k < 3; k++) {
        said[0] = 0;
        change_byte(folder, 10, damages[k].at, damages[k].cut);
        t = begin(&usual);
        CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_OK);
        CHECK_EQ_INT(mpt_step_number(t.context), 8);
        CHECK_CONTAINS(said, "step-000000000010.safetensors");
        CHECK_CONTAINS(said, "the file before it is taken");
        run_to(&t, 10);
        CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
        CHECK(mpt_state_hash(t.context) == hash);
        CHECK_EQ_INT(files_in(folder), 2);
        mpt_destroy(t.context);
    }
    change_byte(folder, 10, -30, false), change_byte(folder, 8, -30, false);
    t = begin(&usual);
    run_to(&t, 0);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(t.context), "step-000000000008.safetensors: it is damaged");
    mpt_clear_error(t.context);
    CHECK_EQ_INT(mpt_step_number(t.context), 0);
    mpt_destroy(t.context);
}

/* Another net, other settings, other data. */
TEST(other_trainings) {
    const char *folder = test_tmp_path("others");
    make_data(), empty(folder);
    training t = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    run_to(&t, 2);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    mpt_destroy(t.context);
    setup other = usual;
    other.tanh = true; /* no weight tells */
    t = begin(&other);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(t.context), "layers and their settings");
    mpt_clear_error(t.context);
    CHECK_EQ_INT(mpt_step_number(t.context), 0);
    CHECK_EQ_INT(mpt_checkpoint_step(t.context), MPT_ERROR_STATE);
    mpt_destroy(t.context);
    CHECK_CONTAINS(said, "layers and their settings");
    said[0] = 0;
    inputs[0][0] += 1;
    t = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    CHECK_CONTAINS(said, "dataset is another");
    mpt_destroy(t.context);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    config.resume = false;
    t = begin(&usual);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(t.context), "up to step 2");
    mpt_destroy(t.context);
}

TEST(what_a_folder_has_to_be) {
    const char *folder = test_tmp_path("misuse");
    char deep[300];
    make_data(), empty(folder);
    training t = begin(&usual), other = begin(&usual);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    const struct { const char *path; int64_t every; int keep; mpt_status status; } cases[] = {
        {NULL, 1, 1, MPT_ERROR_ARGUMENT},   {"", 1, 1, MPT_ERROR_ARGUMENT},
        {folder, -1, 1, MPT_ERROR_ARGUMENT}, {folder, 1, 0, MPT_ERROR_ARGUMENT},
        {deep, 1, 1, MPT_ERROR_IO}};
    snprintf(deep, sizeof deep, "%s/none/none", folder);
    for (int k = 0; k < 5; k++) {
        config.every = cases[k].every, config.keep = cases[k].keep;
        CHECK_EQ_INT(mpt_checkpoint_open(t.context, cases[k].path, &config), cases[k].status);
        mpt_clear_error(t.context);
    }
    mpt_status (*const calls[3])(mpt_context *) = {mpt_checkpoint_step, mpt_checkpoint_close, NULL};
    for (int k = 0; calls[k]; k++) {
        CHECK_EQ_INT(calls[k](t.context), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(t.context), "mpt_checkpoint_open");
        mpt_clear_error(t.context);
    }
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_ERROR_STATE);
    mpt_clear_error(t.context);
    mpt_step_begin(t.context);
    CHECK_EQ_INT(mpt_checkpoint_step(t.context), MPT_ERROR_STATE);
    mpt_clear_error(t.context);
#if defined(__linux__) || defined(_WIN32)
    CHECK_EQ_INT(mpt_checkpoint_open(other.context, folder, NULL), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(other.context), "another training");
    mpt_clear_error(other.context);
#endif
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_open(other.context, folder, NULL), MPT_OK);
    mpt_destroy(t.context);
    mpt_destroy(other.context);
}

/* What a thread cannot write is the error of the next call; the training can go on. */
TEST(errors_in_the_background) {
    const char *folder = test_tmp_path("background");
    char in_the_way[300];
    make_data(), empty(folder);
    training t = begin(&usual), other = begin(&usual);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    config.every = 2, config.background = true;
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_OK);
    path_of(in_the_way, folder, 4); /* a folder of that name, which this call makes */
    CHECK_EQ_INT(mpt_checkpoint_open(other.context, in_the_way, NULL), MPT_OK);
    run_to(&t, 5);
    CHECK_EQ_INT(mpt_error_code(t.context), MPT_OK);
    CHECK(is_there(folder, 2));
    CHECK(mpt_checkpoint_close(t.context) != MPT_OK);
    CHECK_CONTAINS(mpt_error(t.context), "in the background: ");
    CHECK_CONTAINS(mpt_error(t.context), "step-000000000004.safetensors");
    mpt_clear_error(t.context);
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_OK); /* it was closed */
    mpt_destroy(t.context);
    mpt_destroy(other.context);
}

/* Once memory is there, files are written without more of it. */
TEST(no_memory_after_the_first) {
    const char *folder = test_tmp_path("memory");
    make_data(), empty(folder);
    training t = begin(&usual);
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    config.every = 1, config.background = true;
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, &config), MPT_OK);
    run_to(&t, 8);
    const int64_t held = mpt_memory(t.context).held;
    run_to(&t, 16);
    CHECK_EQ_INT(mpt_memory(t.context).held, held);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    mpt_destroy(t.context);
    CHECK_EQ_INT(files_in(folder), 2);
}

/* ==== mpt_fit ==== */

typedef struct {
    training *training;
    int64_t stop_at; /* step; 0: none */
    int64_t steps;
    int told; /* epochs */
} watching;

static bool watch(void *user, const mpt_progress *progress) {
    watching *w = (watching *)user;
    if (progress->epoch_end) w->told++;
    if (progress->epoch_end) return true;
    if (mpt_step_number(w->training->context) == w->stop_at)
        mpt_request_stop(w->training->context, true);
    w->steps++;
    return true;
}

static mpt_fit_config fit_config(training *t, const setup *how, watching *w) {
    mpt_fit_config config = mpt_fit_config_default();
    memset(w, 0, sizeof *w);
    w->training = t;
    config.epochs = 4, config.precision = how->precision;
    config.scaler = t->scaler, config.validation = t->tests, config.schedule = t->schedule;
    config.clip_norm = 1, config.patience = 2;
    config.progress = watch, config.user = w;
    return config;
}

static bool same_number(double a, double b) { return a == b || (a != a && b != b); }

static bool same_result(const mpt_fit_result *a, const mpt_fit_result *b) {
    return a->status == b->status && a->epochs == b->epochs && a->steps == b->steps &&
           a->skipped_steps == b->skipped_steps && a->stopped_early == b->stopped_early &&
           a->interrupted == b->interrupted && same_number(a->train_loss, b->train_loss) &&
           same_number(a->validation_loss, b->validation_loss) &&
           same_number(a->validation_accuracy, b->validation_accuracy);
}

/* Interrupted anywhere, gone on with in a new process, a fit is the one that never was. */
TEST(fits_go_on) {
    const char *first = test_tmp_path("fit"), *second = test_tmp_path("fits");
    const setup setups[] = {{MPT_F32, false, false, 0},
                            {MPT_F16, false, false, 0},
                            {MPT_BF16, false, false, 0.2},
                            {MPT_F32, false, true, 0}};
    const int64_t stops[] = {1, 5, 6, 7, 13, 18};
    for (int k = 0; k < 8; k++) {
        const setup *how = &setups[k / 2];
        make_data(), empty(first);
        training whole = begin(how);
        watching w;
        mpt_fit_config config = fit_config(&whole, how, &w);
        config.checkpoints = first;
        config.save_every = k % 2 ? 5 : 0;
        const mpt_fit_result expected = mpt_fit(whole.net, whole.optimizer, whole.loader, &config);
        CHECK_EQ_INT(expected.status, MPT_OK);
        const uint64_t hash = mpt_state_hash(whole.context);
        for (int i = 0; i < 6; i++) {
            empty(second);
            training t = begin(how);
            config = fit_config(&t, how, &w);
            config.checkpoints = second, config.save_every = k % 2 ? 5 : 0;
            w.stop_at = stops[i];
            mpt_fit_result result = mpt_fit(t.net, t.optimizer, t.loader, &config);
            CHECK_EQ_INT(result.status, MPT_OK);
            CHECK(result.interrupted);
            CHECK_EQ_INT(result.steps, stops[i]);
            mpt_destroy(t.context);
            t = begin(how);
            config = fit_config(&t, how, &w);
            config.checkpoints = second, config.save_every = k % 2 ? 5 : 0;
            result = mpt_fit(t.net, t.optimizer, t.loader, &config);
            CHECK_EQ_STR(mpt_error(t.context), "");
            CHECK(same_result(&result, &expected));
            CHECK_EQ_INT(w.steps, expected.steps - stops[i]);
            if (mpt_state_hash(t.context) != hash) TEST_FAIL_("setup %d, stop %d", k, i);
            CHECK(same_file(first, second, expected.steps));
            mpt_destroy(t.context);
        }
        /* A fit that is complete says what it said, and does nothing; more epochs go on. */
        training t = begin(how);
        config = fit_config(&t, how, &w);
        config.checkpoints = first, config.save_every = k % 2 ? 5 : 0;
        mpt_fit_result again = mpt_fit(t.net, t.optimizer, t.loader, &config);
        CHECK(same_result(&again, &expected) && w.steps == 0 && w.told == 0);
        CHECK(mpt_state_hash(t.context) == hash);
        config.epochs = 5;
        again = mpt_fit(t.net, t.optimizer, t.loader, &config);
        CHECK_EQ_INT(again.epochs, expected.stopped_early ? expected.epochs : 5);
        mpt_destroy(t.context);
        mpt_destroy(whole.context);
    }
}

static mpt_tensor lost_later(mpt_tensor output, mpt_tensor target, void *user) {
    const watching *w = (const watching *)user;
    mpt_tensor loss = mpt_nll_loss(output, target, NULL);
    return mpt_step_number(w->training->context) < 10 ? loss : mpt_mul_scalar(loss, INFINITY);
}

/* A fit that gives up in its second epoch goes back to the weights that it had kept behind the
   first, before it was interrupted. */
TEST(kept_weights_are_in_the_file) {
    const char *folder = test_tmp_path("kept");
    uint64_t hashes[2] = {0, 0}, before[2];
    make_data(), empty(folder);
    for (int k = 0; k < 2; k++) {
        mpt_fit_result result;
        for (int stop = k ? 8 : 0; stop >= 0; stop -= 8) {
            training t = begin(&usual);
            watching w;
            mpt_fit_config config = fit_config(&t, &usual, &w);
            config.loss = lost_later, config.checkpoints = k ? folder : NULL;
            w.stop_at = stop;
            result = mpt_fit(t.net, t.optimizer, t.loader, &config);
            CHECK(result.interrupted == (stop > 0));
            before[k] = hashes[k], hashes[k] = 0;
            mpt_clear_error(t.context);
            hashes[k] = mpt_module_hash(t.net);
            mpt_destroy(t.context);
        }
        CHECK_EQ_INT(result.status, MPT_ERROR_NUMERIC);
    }
    CHECK(hashes[0] == hashes[1] && before[1] != hashes[1]);
}

TEST(misuse_of_fits) {
    const char *folder = test_tmp_path("fit_misuse");
    make_data(), empty(folder);
    training t = begin(&usual);
    watching w;
    mpt_fit_config config = fit_config(&t, &usual, &w);
    CHECK(config.resume && config.save_every == 0 && config.checkpoints == NULL);
    config.checkpoints = folder, config.save_every = -1;
    CHECK_EQ_INT(mpt_fit(t.net, t.optimizer, t.loader, &config).status, MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(t.context), "save_every is -1");
    mpt_clear_error(t.context);
    config.save_every = 0;
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_fit(t.net, t.optimizer, t.loader, &config).status, MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(t.context), "open already");
    mpt_clear_error(t.context);
    CHECK_EQ_INT(mpt_step_number(t.context), 0);
    CHECK_EQ_INT(mpt_checkpoint_close(t.context), MPT_OK);
    CHECK_EQ_INT(files_in(folder), 0);
    CHECK_EQ_INT(mpt_fit(t.net, t.optimizer, t.loader, &config).status, MPT_OK);
    mpt_destroy(t.context);
    t = begin(&usual); /* a loop of its own is no fit */
    CHECK_EQ_INT(mpt_checkpoint_open(t.context, folder, NULL), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(t.context), "mptrain.fit.");
    mpt_destroy(t.context);
    t = begin(&usual);
    config = fit_config(&t, &usual, &w);
    config.checkpoints = folder, config.resume = false;
    CHECK_EQ_INT(mpt_fit(t.net, t.optimizer, t.loader, &config).status, MPT_ERROR_STATE);
    mpt_destroy(t.context);
}

TEST_TABLE = {T(a_loop_goes_on),
              T(a_stop_is_asked_for),
              T(the_best_one),
              T(damaged_files),
              T(other_trainings),
              T(what_a_folder_has_to_be),
              T(errors_in_the_background),
              T(no_memory_after_the_first),
              T(fits_go_on),
              T(kept_weights_are_in_the_file),
              T(misuse_of_fits)};
#else
TEST(nothing) { CHECK(true); }
TEST_TABLE = {T(nothing)};
#endif
TEST_MAIN
