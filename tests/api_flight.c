/* api_flight.c: flight logs: bits flipped in memory are found by step and op; healthy trainings
   agree with their logs; files are data.

   MPTRAIN_FLIGHT_FLIPS sets how many flips have to be named, MPTRAIN_FLIGHT_SEED which they are.
   With MPTRAIN_FLIGHT_LOGS the logs stay in that folder, and those that are there are replayed and
   not recorded: one machine writes them, another one reads them, both with MPTRAIN_ISA=portable. */
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include "files.h"
#include "harness.h"

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME) && \
    defined(MPTRAIN_WATCH)

enum { STEPS = 7, SAMPLES = 24, BATCH = 6, FEATURES = 9, CLASSES = 3, MOST = 20000 };

/* ==== Trainings ==== */

typedef struct {
    const char *name;
    mpt_dtype region, parameters;
    int optimizer, accumulate;
    bool scaled, conv, captured;
} setup;

static const setup setups[] = {{"sgd", MPT_F32, MPT_F32, 0, 1, false, false, false},
                               {"adamw", MPT_F32, MPT_F32, 1, 1, false, false, false},
                               {"fp16 and a scaler", MPT_F16, MPT_F32, 1, 1, true, false, false},
                               {"bf16, accumulated", MPT_BF16, MPT_F32, 1, 2, false, false, false},
                               {"pure fp16", MPT_F32, MPT_F16, 1, 1, true, false, false},
                               {"convolutions", MPT_F32, MPT_F32, 0, 1, false, true, false},
                               {"captured", MPT_F32, MPT_F32, 1, 1, false, false, true},
                               {"captured fp16", MPT_F16, MPT_F32, 1, 1, true, false, true}};
enum { SETUPS = sizeof setups / sizeof *setups };

typedef struct {
    const setup *how;
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_captured captured;
} training;

static mpt_status step_of(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y);

static training begin(const setup *how, int threads) {
    training t;
    mpt_config config = mpt_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_scaler_config scaler = mpt_scaler_config_default();
    memset(&t, 0, sizeof t);
    config.threads = threads, config.seed = 5, config.device = MPT_DEVICE_CPU;
    mpt_context *c = t.context = mpt_create(&config);
    t.how = how;
    t.net = how->conv
        ? mpt_sequential(c, mpt_nn_conv2d(c, 1, 4, 3, 3, NULL), mpt_nn_relu(c), mpt_nn_flatten(c),
                         mpt_nn_linear(c, 4, CLASSES), MPT_END)
        : mpt_sequential(c, mpt_nn_linear(c, FEATURES, 8), mpt_nn_batch_norm1d(c, 8, NULL),
                         mpt_nn_relu(c), mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, 8, CLASSES),
                         MPT_END);
    if (how->parameters != MPT_F32) mpt_half(t.net, how->parameters);
    sgd.lr = 0.1, sgd.momentum = 0.9, adamw.lr = 0.01;
    t.optimizer = how->optimizer ? mpt_adamw(t.net, &adamw) : mpt_sgd(t.net, &sgd);
    scaler.growth_interval = 3;
    if (how->scaled) t.scaler = mpt_grad_scaler(c, &scaler);
    return t;
}

static mpt_status one_step(training *t, mpt_tensor x, mpt_tensor y, int i) {
    const setup *how = t->how;
    const int n = how->accumulate;
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, how->region);
    if (how->parameters != MPT_F32) x = mpt_cast(x, how->parameters);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, x), y, NULL);
    mpt_autocast_end(t->context);
    if (i == 4) loss = mpt_mul_scalar(loss, how->scaled ? 3e38 : 2); /* is skipped */
    if (i % n == 0) mpt_zero_grad(t->optimizer);
    mpt_backward(how->scaled ? mpt_scale_loss(t->scaler, loss) : loss);
    if (i % n == n - 1) {
        if (how->scaled) {
            mpt_scaler_step(t->scaler, t->optimizer);
            mpt_scaler_update(t->scaler);
        } else {
            mpt_step(t->optimizer);
        }
    }
    return mpt_step_end(t->context);
}

static mpt_status step_of(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    (void)c;
    return one_step((training *)user, x, y, 0);
}

static mpt_tensor batch_x(training *t, int i, float off) {
    float values[BATCH * FEATURES];
    for (int k = 0; k < BATCH * FEATURES; k++)
        values[k] = (float)((i * 31 + k * 7) % 23) / 11.0f - 1 + off;
    return mpt_from(t->context, MPT_F32,
                    t->how->conv ? MPT_SHAPE(BATCH, 1, 3, 3) : MPT_SHAPE(BATCH, FEATURES), values);
}

static void run(training *t, int from, int to) {
    if (t->how->captured && from == 0) t->captured = mpt_capture(t->context, step_of, t);
    for (int i = from; i < to; i++) {
        int64_t classes[BATCH];
        for (int k = 0; k < BATCH; k++) classes[k] = (i * 5 + k) % CLASSES;
        mpt_scope_begin(t->context);
        mpt_tensor x = batch_x(t, i, 0);
        mpt_tensor y = mpt_from(t->context, MPT_I64, MPT_SHAPE(BATCH), classes);
        if (t->how->captured)
            mpt_captured_step(t->captured, x, y);
        else
            one_step(t, x, y, i);
        mpt_scope_end(t->context);
    }
    CHECK_EQ_STR(mpt_error(t->context), "");
}

/* ==== What is flipped, and what that changes ==== */

typedef struct {
    int64_t step, place; /* the number of an operand that the step's launches read or write */
    uint64_t random;     /* which element, which bit */
} flip;

typedef struct {
    int64_t count;
    int64_t step[MOST], number[MOST]; /* of each tensor written; its number in the step */
    uint64_t hash[MOST];
} trace;

static struct {
    training *t;
    trace *to;
    const flip *what;
    int64_t step, number, place, places[STEPS + 2];
    bool flipped;
    mpt_status (*launch)(void *, const mpt__execution *, const mpt__launch *);
} watched;

/* Where an operand's element lies. */
static uint8_t *element_of(const mpt__execution *e, const mpt__operand *o, int64_t i) {
    int64_t at = o->offset;
    for (int d = o->rank - 1; d >= 0; i /= o->shape[d--]) at += i % o->shape[d] * o->stride[d];
    return (uint8_t *)e->data[o->storage] + at * (int64_t)mpt_dtype_size((mpt_dtype)o->dtype);
}

static int64_t elements_of(const mpt__operand *o) {
    int64_t n = 1;
    for (int d = 0; d < o->rank; d++) n *= o->shape[d];
    return n;
}

static void flip_maybe(const mpt__execution *e, const mpt__operand *o) {
    const flip *what = watched.what;
    const int64_t n = elements_of(o), size = (int64_t)mpt_dtype_size((mpt_dtype)o->dtype);
    if (!mpt__dtype_info[o->dtype].is_float || n == 0) return;
    if (watched.place++ != (what ? what->place : -1) || watched.step != what->step) return;
    const uint64_t bit = what->random % (uint64_t)(8 * size);
    const bool swapped = mpt__big_endian(); /* the same bit of the value on every machine */
    uint8_t *at = element_of(e, o, (int64_t)(what->random / 64 % (uint64_t)n));
    at[swapped ? size - 1 - (int64_t)bit / 8 : (int64_t)bit / 8] ^= (uint8_t)(1u << bit % 8);
    watched.flipped = true;
}

static bool is_nan(const uint8_t *at, int dtype) {
    double value;
    mpt__load_f64(&value, at, (uint8_t)dtype, 0, 1, 1);
    return mpt__f64_is_nan(value);
}

/* There all NaN are one to a log. */
static bool portable(void) {
    const mpt_isa isa = mpt_get_isa(watched.t->context);
    return isa == MPT_ISA_PORTABLE || isa == MPT_ISA_REF;
}

static void note_written(const mpt__execution *e, const mpt__operand *o) {
    trace *to = watched.to;
    uint64_t hash = UINT64_C(1469598103934665603);
    const int64_t n = elements_of(o), size = (int64_t)mpt_dtype_size((mpt_dtype)o->dtype);
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *at = element_of(e, o, i);
        const bool nan = mpt__dtype_info[o->dtype].is_float && is_nan(at, o->dtype);
        if (nan && portable()) at = (const uint8_t *)"one and the same NaN";
        for (int64_t k = 0; k < size; k++) hash = (hash ^ at[k]) * UINT64_C(1099511628211);
    }
    if (to->count == MOST) return;
    to->step[to->count] = watched.step, to->number[to->count] = watched.number++;
    to->hash[to->count++] = hash;
}

/* Stands in the backend's place: flips what is read before, what is written after a launch. */
static mpt_status launch_watched(void *self, const mpt__execution *e, const mpt__launch *launch) {
    mpt_context *c = watched.t->context;
    const bool inside = c->flight && ((mpt__flight *)c->flight)->open;
    if (inside && watched.step != c->now.step) {
        watched.step = c->now.step;
        watched.number = watched.place = 0;
    }
    for (int i = 0; i < launch->n_operands && inside; i++)
        if (launch->operand[i].storage && launch->operand[i].access == MPT__READ)
            flip_maybe(e, &launch->operand[i]);
    mpt_status status = watched.launch(self, e, launch);
    for (int i = 0; i < launch->n_operands && inside; i++)
        if (launch->operand[i].storage && launch->operand[i].access != MPT__READ) {
            flip_maybe(e, &launch->operand[i]);
            if (!mpt__flight_passes(c, launch)) note_written(e, &launch->operand[i]);
        }
    if (inside && watched.step < STEPS + 2) watched.places[watched.step] = watched.place;
    return status;
}

static void watch(training *t, trace *to, const flip *what) {
    memset(&watched, 0, sizeof watched);
    watched.t = t, watched.to = to, watched.what = what;
    watched.launch = t->context->backend.launch;
    t->context->backend.launch = launch_watched;
    to->count = 0;
}

static trace clean, other;

/* The first tensor written that differs; -1: none. */
static int64_t first_difference(void) {
    CHECK_EQ_INT(other.count, clean.count);
    for (int64_t i = 0; i < clean.count && i < other.count; i++)
        if (clean.hash[i] != other.hash[i]) return i;
    return -1;
}

static uint64_t random_state = 12345;
static uint64_t random_next(void) {
    random_state = mpt__hash_u64(random_state, 1);
    return random_state;
}

static void record(const setup *how, const char *path, trace *to, const flip *what) {
    training t = begin(how, 1);
    CHECK_EQ_INT(mpt_flight_begin(t.context, path, NULL), MPT_OK);
    watch(&t, to, what);
    run(&t, 0, STEPS);
    CHECK_EQ_INT(mpt_flight_end(t.context, NULL), MPT_OK);
    mpt_destroy(t.context);
}

static mpt_flight_report replay(const setup *how, const char *path) {
    mpt_flight_report report;
    training t = begin(how, 2);
    CHECK_EQ_INT(mpt_flight_replay(t.context, path), MPT_OK);
    run(&t, 0, STEPS);
    CHECK_EQ_INT(mpt_flight_end(t.context, &report), MPT_OK);
    mpt_destroy(t.context);
    return report;
}

/* A bit, anywhere that a step reads or writes; the other run's own hashes say what it changed. */
TEST(flipped_bits_are_named) {
    const char *asked = getenv("MPTRAIN_FLIGHT_FLIPS"), *folder = getenv("MPTRAIN_FLIGHT_LOGS");
    const char *seed = getenv("MPTRAIN_FLIGHT_SEED");
    const int flips = asked ? atoi(asked) : 24;
    int named = 0, silent = 0;
    char path[1000];
    if (seed) random_state = strtoull(seed, NULL, 10);
    for (int i = 0; asked ? named < flips && i < 2 * flips : i < flips; i++) {
        const setup *how = &setups[i % SETUPS];
        flip what;
        mpt_flight_report report;
        snprintf(path, sizeof path, "%s", test_tmp_path("flips.flight"));
        if (folder) snprintf(path, sizeof path, "%s/flip%d.flight", folder, i);
        remove(test_tmp_path("clean.flight"));
        record(how, test_tmp_path("clean.flight"), &clean, NULL);
        what.step = 1 + (int64_t)(random_next() % STEPS);
        what.place = (int64_t)(random_next() % (uint64_t)watched.places[what.step]);
        what.random = random_next() >> 1;
        FILE *there = folder ? fopen(path, "rb") : NULL;
        if (there) fclose(there);
        if (!folder) remove(path);
        record(how, there ? test_tmp_path("again.flight") : path, &other, &what);
        if (there) remove(test_tmp_path("again.flight"));
        CHECK(watched.flipped);
        report = replay(how, path);
        const int64_t at = first_difference();
        named += at >= 0, silent += at < 0;
        if (at < 0 && report.kind != MPT_FLIGHT_SAME && report.kind != MPT_FLIGHT_BATCH)
            TEST_FAIL_("%s, flip %d: nothing written differs: %s", how->name, i, report.text);
        if (at < 0) continue;
        if (report.kind != MPT_FLIGHT_OP && report.kind != MPT_FLIGHT_BATCH)
            TEST_FAIL_("%s, flip %d: kind %d", how->name, i, (int)report.kind);
        else if (report.step != other.step[at] || report.launch != other.number[at])
            TEST_FAIL_("%s, flip %d: step %d, tensor %d, expected %d, %d: %s", how->name, i,
                       (int)report.step, (int)report.launch, (int)other.step[at],
                       (int)other.number[at], report.text);
        CHECK(*report.op && *report.text);
    }
    CHECK(asked ? named == flips : named > flips / 2);
    if (asked) printf(" %d named, %d changed nothing that was written;", named, silent);
}

/* Also in a training that goes on from a checkpoint, whose log goes on, with other threads. */
TEST(healthy_trainings_agree) {
    const char *path = test_tmp_path("well.flight"), *saved = test_tmp_path("well.safetensors");
    for (int k = 0; k < SETUPS; k++) {
        mpt_flight_report report;
        const bool captured = setups[k].captured;
        remove(path);
        training t = begin(&setups[k], 1);
        CHECK_EQ_INT(mpt_flight_begin(t.context, path, NULL), MPT_OK);
        run(&t, 0, 4);
        CHECK_EQ_INT(mpt_checkpoint_save(t.context, saved), MPT_OK);
        run(&t, 4, 6); /* which a kill undoes */
        mpt_destroy(t.context);
        t = begin(&setups[k], 2);
        CHECK_EQ_INT(mpt_checkpoint_load(t.context, saved), MPT_OK);
        CHECK_EQ_INT(mpt_flight_begin(t.context, path, NULL), MPT_OK);
        if (captured) t.captured = mpt_capture(t.context, step_of, &t);
        run(&t, 4, STEPS);
        CHECK_EQ_INT(mpt_flight_end(t.context, &report), MPT_OK);
        CHECK_EQ_INT(report.kind, MPT_FLIGHT_SAME);
        mpt_destroy(t.context);
        report = replay(&setups[k], path);
        if (report.kind) TEST_FAIL_("%s: %s", setups[k].name, report.text);
        CHECK_EQ_INT(report.steps, STEPS);
        t = begin(&setups[k], 2);
        CHECK_EQ_INT(mpt_checkpoint_load(t.context, saved), MPT_OK);
        CHECK_EQ_INT(mpt_flight_replay(t.context, path), MPT_OK);
        if (captured) t.captured = mpt_capture(t.context, step_of, &t);
        run(&t, 4, STEPS);
        CHECK_EQ_INT(mpt_flight_end(t.context, &report), MPT_OK);
        if (report.kind) TEST_FAIL_("%s, from its checkpoint: %s", setups[k].name, report.text);
        CHECK_EQ_INT(report.steps, STEPS - 4);
        mpt_destroy(t.context);
    }
}

/* Another batch, and another weight, at the level of steps and of ops. */
TEST(batches_and_weights_that_differ) {
    const char *path = test_tmp_path("differs.flight");
    for (int level = 0; level < 2; level++)
        for (int batch = 0; batch < 2; batch++) {
            mpt_flight_config config = mpt_flight_config_default();
            mpt_flight_report report;
            config.level = (mpt_flight_level)level;
            remove(path);
            training t = begin(&setups[1], 1);
            CHECK_EQ_INT(mpt_flight_begin(t.context, path, &config), MPT_OK);
            run(&t, 0, STEPS);
            CHECK_EQ_INT(mpt_flight_end(t.context, NULL), MPT_OK);
            mpt_destroy(t.context);
            t = begin(&setups[1], 1);
            CHECK_EQ_INT(mpt_flight_replay(t.context, path), MPT_OK);
            run(&t, 0, 3);
            if (batch) {
                int64_t classes[BATCH] = {0};
                mpt_tensor x = batch_x(&t, 3, 0.5f);
                one_step(&t, x, mpt_from(t.context, MPT_I64, MPT_SHAPE(BATCH), classes), 3);
            } else {
                float weight[8 * FEATURES];
                mpt_tensor w = mpt_parameter(t.net, "0.weight");
                mpt_read(w, weight, sizeof weight);
                weight[5] += 0.25f;
                mpt_write(w, weight, sizeof weight);
                run(&t, 3, 4);
            }
            run(&t, 4, STEPS);
            CHECK_EQ_INT(mpt_flight_end(t.context, &report), MPT_OK);
            CHECK_EQ_INT(report.step, 4);
            CHECK_EQ_INT(report.steps, 3);
            CHECK_EQ_INT(report.kind, batch ? MPT_FLIGHT_BATCH
                                      : level ? MPT_FLIGHT_OP
                                              : MPT_FLIGHT_STATE);
            if (level) CHECK_EQ_STR(report.op, "linear");
            if (level) CHECK_EQ_STR(report.module, "0");
            if (level) CHECK_EQ_STR(report.parameter, "0.weight");
            if (level && !batch) CHECK_CONTAINS(report.text, "it reads 0.weight");
            mpt_destroy(t.context);
        }
}

/* Cut and damaged anywhere: what stands before is used, and nothing else is. */
TEST(logs_are_data) {
    static uint8_t bytes[64 << 10], bad[64 << 10];
    const char *path = test_tmp_path("data.flight"), *cut = test_tmp_path("cut.flight");
    mpt_flight_config config = mpt_flight_config_default();
    mpt_flight_report report;
    config.block = 2;
    remove(path);
    training t = begin(&setups[0], 1);
    CHECK_EQ_INT(mpt_flight_begin(t.context, path, &config), MPT_OK);
    run(&t, 0, STEPS);
    CHECK_EQ_INT(mpt_flight_end(t.context, NULL), MPT_OK);
    mpt_destroy(t.context);
    const size_t n = file_bytes(path, bytes, sizeof bytes);
    CHECK(n > 100 && n < sizeof bytes);
    for (size_t k = 0; k < 2 * n; k += 7) {
        memcpy(bad, bytes, n);
        if (k >= n) bad[k - n] ^= 0x41;
        file_make(cut, bad, k < n ? k : n);
        t = begin(&setups[0], 1);
        const bool good = mpt_flight_replay(t.context, cut) == MPT_OK;
        if (!good) {
            CHECK_CONTAINS(mpt_error(t.context), "it is no flight log");
        } else {
            run(&t, 0, STEPS);
            CHECK_EQ_INT(mpt_flight_end(t.context, &report), MPT_OK);
            CHECK_EQ_INT(report.kind, MPT_FLIGHT_SAME);
            CHECK(report.steps < STEPS && report.steps % 2 == 0);
        }
        mpt_clear_error(t.context);
        mpt_destroy(t.context);
    }
    t = begin(&setups[0], 1);
    file_make(cut, (const uint8_t *)"of somebody else", 16);
    CHECK_EQ_INT(mpt_flight_begin(t.context, cut, NULL), MPT_ERROR_FORMAT);
    CHECK_EQ_INT(file_bytes(cut, bad, sizeof bad), 16);
    mpt_clear_error(t.context);
    mpt_destroy(t.context);
}

static size_t write_nothing(void *user, void *file, const void *buffer, size_t bytes) {
    (void)user, (void)file, (void)buffer, (void)bytes;
    return 0;
}

/* The training goes on, as it would without the log. */
TEST(full_disks_are_told) {
    const char *path = test_tmp_path("full");
    remove(path);
    training t = begin(&setups[0], 1);
    CHECK_EQ_INT(mpt_flight_begin(t.context, path, NULL), MPT_OK);
    t.context->base.io.write = write_nothing;
    run(&t, 0, STEPS);
    CHECK_EQ_STR(mpt_error(t.context), "");
    CHECK_EQ_INT(mpt_flight_end(t.context, NULL), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(t.context), "not all of it could be written");
    mpt_clear_error(t.context);
    mpt_destroy(t.context);
}

/* Eight bytes a step, and two for each tensor that it writes. */
TEST(sizes_of_logs) {
    static uint8_t bytes[64 << 10];
    const char *path = test_tmp_path("size.flight");
    mpt_flight_config config = mpt_flight_config_default();
    config.level = MPT_FLIGHT_STEPS;
    remove(path);
    training t = begin(&setups[0], 1);
    CHECK_EQ_INT(mpt_flight_begin(t.context, path, &config), MPT_OK);
    for (int i = 0; i < 40; i++) run(&t, 0, 25);
    CHECK_EQ_INT(mpt_flight_end(t.context, NULL), MPT_OK);
    mpt_destroy(t.context);
    const size_t n = file_bytes(path, bytes, sizeof bytes);
    CHECK(n > 8000 && n < 8300);
}

TEST_TABLE = {T(flipped_bits_are_named), T(healthy_trainings_agree), T(full_disks_are_told),
              T(batches_and_weights_that_differ), T(logs_are_data), T(sizes_of_logs)};
#else
TEST(nothing_is_recorded) {
    mpt_context *c = mpt_create(NULL);
    CHECK(mpt_flight_begin(c, "log", NULL) != MPT_OK);
    mpt_clear_error(c);
    mpt_destroy(c);
}
TEST_TABLE = {T(nothing_is_recorded)};
#endif
TEST_MAIN
