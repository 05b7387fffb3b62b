/* api_slice.c: captured steps in slices: the bits of whole ones whatever the budget and whatever
   runs between, the clock's part in it, what may not happen between two slices, and how a step that
   was begun ends. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "bits.h"

/* A clock that moves by `tick` whenever somebody looks. */
static double now, tick;

static double look(void *user) {
    (void)user;
    now += tick;
    return now;
}

static mpt_context *make_context(bool debug) {
    mpt_config config = mpt_config_default();
    config.seed = 3;
    config.threads = 1;
    config.debug = debug;
    config.clock.now = look;
    now = 100, tick = 1;
    return mpt_create(&config);
}

static void check_ok(int line, mpt_context *context) {
    if (mpt_failed(context)) TEST_FAIL_("line %d: %s", line, mpt_error(context));
    mpt_clear_error(context);
}
#define OK(context) check_ok(__LINE__, context)

typedef struct sliced {
    training t;
    mpt_captured captured;
    mpt_tensor x, y;
    int64_t slices, steps;
} sliced;

static void make_sliced(sliced *s, mpt_context *context, mpt_dtype precision) {
    memset(s, 0, sizeof *s);
    make_training(&s->t, context, precision, 0);
    mpt_warmup(s->t.optimizer, 0.1, 10, 100, 0, MPT_PER_STEP);
    s->captured = mpt_capture(context, step_of, &s->t);
}

/* One slice; the batch comes where a step begins. True where it was the last one. */
static bool slice(sliced *s, bool begins, double seconds) {
    mpt_batch b;
    bool done = false;
    if (begins && next_batch(s->t.loader, &b)) s->x = b.x, s->y = b.y;
    mpt_step_slice(s->captured, s->x, s->y, seconds, &done);
    s->slices++;
    s->steps += done;
    return done;
}

static void whole(sliced *s, double seconds) {
    bool begins = true;
    while (!slice(s, begins, seconds) && !mpt_failed(s->t.context)) begins = false;
}

static void go_on(sliced *s, bool begins, int steps) {
    for (int i = 0; i < steps; i++, begins = true)
        while (!slice(s, begins, 1) && !mpt_failed(s->t.context)) begins = false;
}

static uint64_t state_hash(const sliced *s) {
    mpt_scaler_stats stats = mpt_scaler_statistics(s->t.scaler);
    uint64_t hash = mix_hash(1, (uint64_t)stats.steps);
    hash = mix_hash(hash, (uint64_t)stats.skipped);
    hash = mix_hash(hash, (uint64_t)mpt_step_number(s->t.context));
    return mix_hash(hash, training_hash(&s->t));
}

/* What a program may do between two frames. */
static void between(sliced *s, sliced *other, int i) {
    static const float some[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    mpt_context *context = s->t.context;
    if (i % 3 == 0) whole(other, 2);
    if (i % 5) return;
    mpt_scope_begin(context);
    mpt_inference_begin(context);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(2, 4), some);
    mpt_sum(mpt_forward(s->t.net, mpt_cat(&s->x, 1, 0)), MPT_ALL_DIMS, false);
    mpt_inference_end(context);
    mpt_dropout(x, 0.5); /* sets the device's number of the step */
    mpt_scope_end(context);
}

/* 40 steps with an overflow on the way. seconds < 0: by mpt_captured_step. */
static uint64_t train(mpt_dtype precision, double seconds, bool busy, int64_t *slices) {
    mpt_context *context = make_context(false), *second = make_context(false);
    sliced s, other;
    uint64_t hash;
    make_sliced(&s, context, precision);
    make_sliced(&other, second, precision);
    for (int i = 0; i < 40; i++) {
        if (i == 20) mpt_set_scale(s.t.scaler, 1e30);
        mpt_batch b;
        if (seconds >= 0) {
            bool begins = true;
            for (int n = 0; !slice(&s, begins, seconds) && !mpt_failed(context); n++) {
                begins = false;
                if (busy && n < 40) between(&s, &other, n);
            }
        } else if (next_batch(s.t.loader, &b)) {
            mpt_captured_step(s.captured, b.x, b.y);
        }
    }
    OK(context);
    OK(second);
    hash = state_hash(&s);
    CHECK_EQ_INT(mpt_captured_count(s.captured), 38);
    *slices = s.slices;
    mpt_destroy(context);
    mpt_destroy(second);
    return hash;
}

TEST(slices_leave_the_same_bits) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    NEEDS_PROMPT_DEVICE;
    for (int i = 0; i < 3; i++) {
        int64_t none, each, some, all;
        uint64_t hash = train(precisions[i], -1, false, &none);
        CHECK(train(precisions[i], 0, false, &each) == hash);
        CHECK(train(precisions[i], 2.5, false, &some) == hash);
        CHECK(train(precisions[i], 1e9, false, &all) == hash);
        CHECK(train(precisions[i], 0, true, &none) == hash);
        CHECK_EQ_INT(all, 40);
        CHECK(some > 4 * all && each > 2 * some);
        CHECK_EQ_INT(none, each);
    }
}

/* The clock is looked at before the first launch and after each: with one second a look, a budget
   of n seconds ends behind launch n, the least number that is not below it. */
TEST(budgets_count_launches) {
    NEEDS_PROMPT_DEVICE;
    mpt_context *context = make_context(false);
    sliced s;
    make_sliced(&s, context, MPT_F32);
    for (int i = 0; i < 2; i++) CHECK(slice(&s, true, 0)); /* by hand, and recorded */
    int64_t before = mpt_get_counters(context).launches;
    CHECK(!slice(&s, true, 0));
    int64_t first = mpt_get_counters(context).launches - before;
    for (int n = 1; n < 6; n++) {
        before = mpt_get_counters(context).launches;
        CHECK(!slice(&s, false, n));
        CHECK_EQ_INT(mpt_get_counters(context).launches - before, n);
    }
    CHECK(first >= 1); /* and what a step begins with: copies of its inputs */
    tick = 0;          /* time stands still: all that is left */
    CHECK(slice(&s, false, 1e-9));
    OK(context);
    mpt_destroy(context);
}

TEST(done_may_be_left_out) {
    mpt_context *context = make_context(false);
    sliced s;
    make_sliced(&s, context, MPT_F32);
    for (int i = 0; i < 4; i++) whole(&s, 3);
    mpt_batch b;
    CHECK(next_batch(s.t.loader, &b));
    CHECK_EQ_INT(mpt_step_slice(s.captured, b.x, b.y, (double)INFINITY, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_captured_count(s.captured), 3);
    OK(context);
    mpt_destroy(context);
}

TEST(debug_compares_whole_steps) {
    NEEDS_PROMPT_DEVICE;
    mpt_context *context = make_context(true);
    sliced s;
    make_sliced(&s, context, MPT_F16);
    for (int i = 0; i < 15; i++) whole(&s, 1);
    CHECK(slice(&s, true, 0)); /* the 16th */
    whole(&s, 0);
    OK(context);
    mpt_destroy(context);
}

TEST(steady_slices_allocate_nothing) {
    mpt_context *context = make_context(false);
    sliced s;
    make_sliced(&s, context, MPT_F16);
    for (int i = 0; i < 5; i++) whole(&s, 1);
    int64_t before = mpt_memory(context).allocations;
    for (int i = 0; i < 30; i++) whole(&s, 1);
    CHECK_EQ_INT(mpt_memory(context).allocations, before);
    OK(context);
    mpt_destroy(context);
}

/* ==== Between two slices ==== */

static void expect(int line, mpt_context *context, mpt_status status, const char *text) {
    if (mpt_error_code(context) != status || !strstr(mpt_error(context), text))
        TEST_FAIL_("line %d: \"%s\"", line, mpt_error(context));
    mpt_clear_error(context);
}
#define EXPECT(status, text) expect(__LINE__, context, status, text)

/* Two trainings that did the same; the first one then stands `slices` launches into a step. */
static void make_twins(sliced *s, sliced *twin, mpt_dtype precision, int slices) {
    mpt_context *context = make_context(false), *second = make_context(false);
    make_sliced(s, context, precision);
    make_sliced(twin, second, precision);
    for (int i = 0; i < 4; i++) whole(s, 1), whole(twin, 1);
    for (int i = 0; i < slices; i++) CHECK(!slice(s, i == 0, 0));
}

static void end_twins(sliced *s, sliced *twin) {
    OK(s->t.context);
    CHECK(state_hash(s) == state_hash(twin));
    mpt_destroy(s->t.context);
    mpt_destroy(twin->t.context);
}

/* Each is an error, after which the step begun is given up: as if it had never been begun. */
static void refuse(int what) {
    sliced s, twin;
    make_twins(&s, &twin, MPT_F16, 5);
    mpt_context *context = s.t.context;
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(1));
    mpt_captured another = mpt_capture(context, step_of, &s.t);
    bool done = true;
    static const char under_way[] = "a step is under way in slices; call mpt_step_slice";
    if (what == 0) mpt_step_begin(context);
    if (what == 1) mpt_captured_step(s.captured, s.x, s.y);
    if (what == 2) mpt_record_begin(context);
    if (what == 3) mpt_step_slice(another, s.x, s.y, 0, &done), CHECK(!done);
    if (what == 4) mpt_requires_grad(x, true), mpt_backward(mpt_mul_scalar(x, 2));
    if (what < 5) EXPECT(MPT_ERROR_STATE, under_way);
    if (what == 5) {
        mpt_step_slice(s.captured, s.x, s.y, -1, &done);
        CHECK(!done);
        EXPECT(MPT_ERROR_ARGUMENT, "seconds = -1: expected 0 or more");
    }
    if (what == 6) {
        mpt_step_slice(s.captured, s.x, s.y, (double)NAN, NULL);
        EXPECT(MPT_ERROR_ARGUMENT, "expected 0 or more");
    }
    mpt_captured_destroy(another);
    for (int i = 0; i < 3; i++) whole(&twin, 1);
    go_on(&s, false, 3); /* with the batch that it has */
    end_twins(&s, &twin);
}

TEST(what_does_not_go_together) {
    NEEDS_PROMPT_DEVICE;
    for (int what = 0; what < 7; what++) refuse(what);
}

TEST(changes_are_found) {
    NEEDS_PROMPT_DEVICE;
    for (int what = 0; what < 3; what++) {
        sliced s, twin;
        make_twins(&s, &twin, MPT_F32, 5);
        mpt_context *context = s.t.context;
        mpt_tensor weight = mpt_parameter_at(s.t.net, 0, NULL, 0);
        float values[FEATURES * 16];
        int64_t n = mpt_numel(weight);
        REQUIRE(n <= FEATURES * 16 && mpt_read_f32(weight, values, n) == MPT_OK);
        if (what == 0) mpt_write(weight, values, (size_t)n * sizeof *values);
        mpt_no_grad_begin(context);
        if (what == 1) mpt_mul_scalar_(weight, 1);
        mpt_no_grad_end(context);
        if (what == 2) mpt_copy_module(s.t.net, twin.t.net);
        OK(context);
        CHECK(!slice(&s, false, 0));
        EXPECT(MPT_ERROR_STATE, "was changed between its slices");
        for (int i = 0; i < 3; i++) whole(&twin, 1);
        go_on(&s, false, 3);
        end_twins(&s, &twin); /* the values were the same */
    }
}

/* An error from elsewhere: the step is given up, or ended where it has begun to change weights;
   destroying it does the same. */
TEST(given_up_or_ended) {
    NEEDS_PROMPT_DEVICE;
    int64_t most = 0;
    bool ended_some = false, gave_up_some = false;
    for (int64_t n = 1; n == 1 || n <= most; n++) {
        for (int destroys = 0; destroys < 2; destroys++) {
            sliced s, twin;
            make_twins(&s, &twin, MPT_F16, 1);
            mpt_context *context = s.t.context;
            if (most == 0) { /* how many slices a step has */
                most = 1;
                while (!slice(&s, false, 0)) most++;
                whole(&twin, 1);
                CHECK(!slice(&s, true, 0));
            }
            for (int64_t i = 1; i < n; i++) CHECK(!slice(&s, false, 0));
            int64_t count = mpt_captured_count(s.captured), step = mpt_step_number(context);
            if (destroys) {
                mpt_captured_destroy(s.captured);
                s.captured = mpt_capture(context, step_of, &s.t);
            } else {
                mpt_add(s.x, mpt_zeros(context, MPT_F32, MPT_SHAPE(99)));
                EXPECT(MPT_ERROR_SHAPE, "do not broadcast");
            }
            bool ended = destroys ? training_hash(&s.t) != training_hash(&twin.t)
                                  : mpt_captured_count(s.captured) > count;
            if (!destroys) CHECK_EQ_INT(mpt_step_number(context), ended ? step : step - 1);
            ended_some |= ended, gave_up_some |= !ended;
            if (!destroys && !ended) CHECK(state_hash(&s) == state_hash(&twin));
            if (destroys) { /* the number of steps counts one that was given up */
                mpt_destroy(context);
                mpt_destroy(twin.t.context);
                continue;
            }
            for (int i = 0; i < 4; i++) whole(&twin, 1);
            go_on(&s, ended, ended ? 3 : 4);
            end_twins(&s, &twin);
        }
    }
    CHECK(ended_some && gave_up_some);
}

/* ==== What a step leaves behind ==== */

/* Steps that change more than an optimizer does, or in another order. */
enum { LION, AVERAGES_FIRST, STATISTICS, BY_HAND, MAGNITUDES, METRICS, DOINGS };

typedef struct doing {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_ema ema;
    mpt_captured captured;
    mpt_tensor x, y;
    int what;
} doing;

static mpt_status do_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const doing *d = (const doing *)user;
    mpt_step_begin(context);
    if (d->what == AVERAGES_FIRST) mpt_ema_update(d->ema);
    mpt_tensor out = mpt_forward(d->net, x);
    if (d->what == STATISTICS) return mpt_step_end(context);
    mpt_tensor loss = mpt_cross_entropy(out, y, NULL);
    if (d->what == METRICS) mpt_metric_push(context, "loss", loss);
    mpt_zero_grad(d->optimizer);
    mpt_backward(loss);
    mpt_no_grad_begin(context);
    for (int i = 0; d->what == BY_HAND && i < mpt_parameter_count(d->net); i++) {
        mpt_tensor weight = mpt_parameter_at(d->net, i, NULL, 0);
        mpt_add_(weight, mpt_mul_scalar(mpt_grad(weight), -0.05));
    }
    mpt_no_grad_end(context);
    if (d->what != BY_HAND) mpt_step(d->optimizer);
    return mpt_step_end(context);
}

static void make_doing(doing *d, int what) {
    mpt_module layers[4];
    mpt_context *c = make_context(false);
    memset(d, 0, sizeof *d);
    d->context = c, d->what = what;
    layers[0] = mpt_nn_linear(c, FEATURES, 16);
    layers[1] = what == STATISTICS ? mpt_nn_batch_norm1d(c, 16, NULL) : mpt_nn_relu(c);
    layers[2] = mpt_nn_linear(c, 16, CLASSES);
    layers[3] = what == STATISTICS ? mpt_nn_batch_norm1d(c, CLASSES, NULL) : mpt_nn_relu(c);
    d->net = mpt_sequential_array(c, layers, 4);
    if (what == MAGNITUDES) mpt_fp8(d->net, NULL);
    d->optimizer = what == LION ? mpt_lion(d->net, NULL) : mpt_adamw(d->net, NULL);
    d->ema = mpt_ema_create(d->net, d->optimizer, NULL);
    d->captured = mpt_capture(c, do_step, d);
    d->x = mpt_keep(mpt_zeros(c, MPT_F32, MPT_SHAPE(8, FEATURES)));
    d->y = mpt_keep(mpt_zeros(c, MPT_I64, MPT_SHAPE(8)));
}

/* Input number i: the later, the smaller. */
static void new_input(doing *d, int i) {
    float x[8 * FEATURES];
    int64_t y[8];
    for (int k = 0; k < 8 * FEATURES; k++)
        x[k] = sample_value(k + 8 * FEATURES * i) / (float)(1 + i);
    for (int k = 0; k < 8; k++) y[k] = (k + i) % CLASSES;
    mpt_write(d->x, x, sizeof x);
    mpt_write(d->y, y, sizeof y);
}

static bool do_slice(doing *d, double seconds) {
    bool done = false;
    mpt_step_slice(d->captured, d->x, d->y, seconds, &done);
    return done;
}

static uint64_t doing_hash(doing *d) {
    uint64_t hash = mix_hash(1, mpt_module_hash(d->net)), bits;
    double mean = d->what == METRICS ? mpt_metric_mean(d->context, "loss", true) : 0;
    memcpy(&bits, &mean, sizeof bits);
    hash = mix_hash(mix_hash(hash, bits), mpt_optimizer_hash(d->optimizer));
    return mix_hash(hash, mpt_ema_hash(d->ema));
}

/* Wherever a step stands when it ends early, all of it has happened or nothing: by an error from
   elsewhere, by a change of one of its tensors and by the end of what captured it. */
static void end_early(int what, int how, int64_t n, const uint64_t hash[3]) {
    doing d;
    make_doing(&d, what);
    mpt_context *context = d.context;
    for (int i = 0; i < 4; i++) new_input(&d, i), do_slice(&d, (double)INFINITY);
    new_input(&d, 4);
    for (int64_t i = 0; i < n; i++) CHECK(!do_slice(&d, 0));
    if (how == 0) {
        mpt_add(d.x, mpt_zeros(context, MPT_F32, MPT_SHAPE(99)));
        EXPECT(MPT_ERROR_SHAPE, "do not broadcast");
    } else if (how == 1) {
        mpt_no_grad_begin(context);
        mpt_mul_scalar_(mpt_parameter_at(d.net, 0, NULL, 0), 1);
        mpt_no_grad_end(context);
        CHECK(!do_slice(&d, 0));
        EXPECT(MPT_ERROR_STATE, "was changed between its slices");
    } else {
        mpt_captured_destroy(d.captured);
        d.captured = mpt_capture(context, do_step, &d);
    }
    const uint64_t now_hash = doing_hash(&d);
    const bool ended = now_hash != hash[0];
    if (ended && now_hash != hash[1])
        TEST_FAIL_("doing %d, end %d: half a step after launch %lld", what, how, (long long)n);
    if (!ended) do_slice(&d, (double)INFINITY);
    new_input(&d, 5);
    do_slice(&d, (double)INFINITY);
    OK(context);
    if (doing_hash(&d) != hash[2])
        TEST_FAIL_("doing %d, end %d: launch %lld leaves a trace", what, how, (long long)n);
    mpt_destroy(context);
}

TEST(no_half_steps) {
    NEEDS_PROMPT_DEVICE;
    for (int what = 0; what < DOINGS; what++) {
        doing d;
        uint64_t hash[3];
        int64_t launches = 0;
        make_doing(&d, what);
        for (int i = 0; i < 6; i++) {
            new_input(&d, i);
            if (i == 5)
                while (!do_slice(&d, 0)) launches++;
            else
                do_slice(&d, (double)INFINITY);
            if (i > 2) hash[i - 3] = doing_hash(&d);
        }
        OK(d.context);
        CHECK(hash[0] != hash[1] && hash[1] != hash[2]);
        mpt_destroy(d.context);
        for (int64_t n = 1; n <= launches; n++)
            for (int how = 0; how < 3; how++) end_early(what, how, n, hash);
    }
}

TEST_TABLE = {T(slices_leave_the_same_bits),
              T(budgets_count_launches),
              T(done_may_be_left_out),
              T(debug_compares_whole_steps),
              T(steady_slices_allocate_nothing),
              T(what_does_not_go_together),
              T(changes_are_found),
              T(given_up_or_ended),
              T(no_half_steps)};
TEST_MAIN
