/* api_times.c: the profiler on a GPU, or what simulates one: launches are timed by events in its
   stream, and a captured step that runs as a graph is one, as a whole. Run by suite.sh; without a
   GPU the tests say that they skip. */
#include MPTRAIN_HEADER_FILE
#include "../harness.h"

enum { INPUTS = 40, HIDDEN = 24, CLASSES = 5, BATCH = 8, ROWS = 64, SPANS = 4096 };

typedef struct training {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_tensor x, y;
} training;

/* With a clock of the test's own, if there is one. */
static bool begin(training *t, double (*clock)(void *user)) {
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CUDA;
    config.clock.now = clock;
    mpt_context *c = t->context = mpt_create(&config);
    if (!c) return false;
    t->net = mpt_sequential(c, mpt_nn_linear(c, INPUTS, HIDDEN), mpt_nn_relu(c),
                            mpt_nn_linear(c, HIDDEN, CLASSES), MPT_END);
    t->optimizer = mpt_adamw(t->net, NULL);
    t->x = mpt_randn(c, MPT_F32, MPT_SHAPE(BATCH, INPUTS));
    t->y = mpt_zeros(c, MPT_I64, MPT_SHAPE(BATCH));
    return true;
}

static mpt_status step_of(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    training *t = (training *)user;
    mpt_step_begin(c);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, x), y, NULL);
    mpt_zero_grad(t->optimizer);
    mpt_backward(loss);
    mpt_step(t->optimizer);
    return mpt_step_end(c);
}

static void train(training *t, int steps) {
    for (int i = 0; i < steps; i++) CHECK_EQ_INT(step_of(t->context, t, t->x, t->y), MPT_OK);
}

static void end(training *t) {
    CHECK_EQ_STR(mpt_error(t->context), "");
    mpt_destroy(t->context);
}

/* What spans are, and whether each launch lies in the step before it or behind that: the copies of
   what a captured step reads come before it. */
typedef struct seen {
    int steps, launches, graphs;
    double step, step_end, seconds;
    bool nest;
} seen;

static void see(void *user, const mpt_profile_span *span) {
    seen *s = (seen *)user;
    const double end = span->start + span->seconds;
    if (span->kind == MPT_SPAN_STEP) s->steps++, s->step = span->start, s->step_end = end;
    if (span->kind != MPT_SPAN_LAUNCH) return;
    const bool graph = strcmp(span->name, "graph") == 0;
    s->launches++;
    s->graphs += graph;
    s->seconds += span->seconds;
    s->nest = s->nest && span->seconds >= 0 && (!graph || span->start == s->step) &&
              (span->start >= s->step_end || end <= s->step_end + 1e-9);
}

static seen spans_of(mpt_context *c) {
    seen s = {0, 0, 0, 0, 0, 0, true};
    mpt_profile_spans(c, see, &s);
    return s;
}

/* Ops, modules and kernels add up to the same; returns the seconds. */
static double check_sums(mpt_context *c) {
    mpt_profile_row rows[ROWS];
    const mpt_profile_total total = mpt_get_profile_total(c);
    for (int by = MPT_PROFILE_OP; by <= MPT_PROFILE_KERNEL; by++) {
        const int64_t count = mpt_profile_rows(c, (mpt_profile_by)by, rows, ROWS);
        double seconds = 0, flop = 0;
        CHECK(count > 0 && count < ROWS);
        for (int64_t i = 0; i < count; i++) seconds += rows[i].seconds, flop += rows[i].flop;
        CHECK_CLOSE(seconds, total.all.seconds, 1e-9, 0);
        CHECK_CLOSE(flop, total.all.flop, 1e-9, 0);
    }
    return total.all.seconds;
}

static mpt_profile_config with_spans(void) {
    mpt_profile_config config = mpt_profile_config_default();
    config.spans = SPANS;
    return config;
}

TEST(launches_are_timed_by_events) {
    uint64_t hash[2];
    for (int on = 0; on < 2; on++) {
        training t;
        if (!begin(&t, NULL)) SKIP("a GPU");
        const mpt_profile_config config = with_spans();
        if (on) CHECK_EQ_INT(mpt_profile_begin(t.context, &config), MPT_OK);
        train(&t, 4);
        if (on) {
            const mpt_profile_total total = mpt_get_profile_total(t.context);
            const double seconds = check_sums(t.context);
            const seen s = spans_of(t.context);
            CHECK(seconds > 0 && seconds < total.seconds);
            CHECK(s.steps == 4 && s.launches == total.all.launches && s.graphs == 0 && s.nest);
            CHECK(s.seconds > 0 && s.seconds <= seconds * (1 + 1e-9));
        }
        hash[on] = mpt_state_hash(t.context);
        end(&t);
    }
    CHECK(hash[0] == hash[1] && hash[0] != 0);
}

/* The host's clock stands still: it is not the one that tells. */
static double stopped(void *user) { return (void)user, 1; }

TEST(the_clock_of_the_host_does_not_count) {
    training t;
    if (!begin(&t, stopped)) SKIP("a GPU");
    CHECK_EQ_INT(mpt_profile_begin(t.context, NULL), MPT_OK);
    train(&t, 3);
    CHECK(mpt_get_profile_total(t.context).seconds == 0);
    CHECK(check_sums(t.context) > 0);
    end(&t);
}

TEST(a_graph_is_timed_as_a_whole) {
    enum { REPEATS = 5 };
    mpt_profile_row rows[ROWS];
    training t;
    if (!begin(&t, NULL)) SKIP("a GPU");
    const mpt_profile_config config = with_spans();
    CHECK_EQ_INT(mpt_profile_begin(t.context, &config), MPT_OK);
    train(&t, 1);
    const double flop = mpt_get_profile_total(t.context).all.flop;
    CHECK_EQ_INT(mpt_profile_end(t.context), MPT_OK);
    mpt_captured step = mpt_capture(t.context, step_of, &t);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(mpt_captured_step(step, t.x, t.y), MPT_OK);
    const int64_t repeated = mpt_captured_count(step);
    CHECK(repeated > 0);
    CHECK_EQ_INT(mpt_profile_begin(t.context, &config), MPT_OK);
    for (int i = 0; i < REPEATS; i++) CHECK_EQ_INT(mpt_captured_step(step, t.x, t.y), MPT_OK);
    CHECK_EQ_INT(mpt_captured_count(step), repeated + REPEATS);
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    CHECK_EQ_INT(total.steps, REPEATS);
    CHECK(check_sums(t.context) > 0);
    const int64_t count = mpt_profile_rows(t.context, MPT_PROFILE_KERNEL, rows, ROWS);
    const mpt_profile_row *graph = NULL;
    for (int64_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, "graph") == 0) graph = &rows[i];
    REQUIRE(graph != NULL);
    CHECK_EQ_INT(graph->calls, REPEATS);
    CHECK(graph->seconds > 0 && graph->bytes_read > 0);
    CHECK_CLOSE(graph->flop, REPEATS * flop, 0.02, 0);
    const seen s = spans_of(t.context);
    CHECK_EQ_INT(s.graphs, REPEATS);
    CHECK(s.nest && s.steps == REPEATS);
    mpt_captured_destroy(step);
    end(&t);
}

TEST_TABLE = {T(launches_are_timed_by_events), T(the_clock_of_the_host_does_not_count),
              T(a_graph_is_timed_as_a_whole)};
TEST_MAIN
