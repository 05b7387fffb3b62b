/* api_profile.c - the profiler: sums that add up by a clock that counts, costs of a net by hand,
   spans within each other, captured steps, traces as files. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#define MPTRAIN_TOOLS_STATIC
#include "harness.h"
#include "tools/mptrain_tools.h"

#include <math.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/resource.h>
#endif

enum { INPUTS = 12, HIDDEN = 8, CLASSES = 3, BATCH = 4, SAMPLES = 40, ROWS = 64, SPANS = 4096 };

static double counted; /* a clock that goes on by 1 whenever somebody looks at it */
static double look(void *user) { return (void)user, counted += 1; }

typedef struct training {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_tensor x, y;
    mpt_dtype autocast;
} training;

static training make_training(bool counts) {
    training t;
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.device = MPT_DEVICE_CPU;
    if (counts) config.clock.now = look;
    t.context = mpt_create(&config);
    t.net = mpt_sequential(t.context, mpt_nn_linear(t.context, INPUTS, HIDDEN),
        mpt_nn_relu(t.context), mpt_nn_linear(t.context, HIDDEN, CLASSES), MPT_END);
    t.optimizer = mpt_adamw(t.net, NULL);
    t.x = mpt_randn(t.context, MPT_F32, MPT_SHAPE(BATCH, INPUTS));
    t.y = mpt_zeros(t.context, MPT_I64, MPT_SHAPE(BATCH));
    t.autocast = MPT_F32;
    return t;
}

static void train(training *t, int steps) {
    for (int i = 0; i < steps; i++) {
        mpt_step_begin(t->context);
        if (t->autocast != MPT_F32) mpt_autocast_begin(t->context, t->autocast);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, t->x), t->y, NULL);
        if (t->autocast != MPT_F32) mpt_autocast_end(t->context);
        mpt_zero_grad(t->optimizer);
        mpt_backward(loss);
        mpt_step(t->optimizer);
        mpt_step_end(t->context);
    }
}

static void end_training(training *t) {
    CHECK_EQ_STR(mpt_error(t->context), "");
    mpt_destroy(t->context);
}

static mpt_profile_config with_spans(int64_t spans) {
    mpt_profile_config config = mpt_profile_config_default();
    config.spans = spans;
    return config;
}

/* ==== Sums ==== */

static const mpt_profile_row *row_of(
    const mpt_profile_row *rows, int64_t count, const char *name, const char *phase) {
    static const mpt_profile_row none = {"?", "?", 0, 0, 0, 0, 0, 0, 0};
    for (int64_t i = 0; i < count; i++)
        if (strcmp(rows[i].name, name) == 0 && strcmp(rows[i].phase, phase) == 0) return &rows[i];
    return &none;
}

/* All ways of adding up give the same, and the longest comes first. */
static void check_sums(mpt_context *c) {
    mpt_profile_row rows[ROWS];
    const mpt_profile_row all = mpt_get_profile_total(c).all;
    for (int by = MPT_PROFILE_OP; by <= MPT_PROFILE_KERNEL; by++) {
        const int64_t count = mpt_profile_rows(c, (mpt_profile_by)by, rows, ROWS);
        mpt_profile_row sum = {"", "", 0, 0, 0, 0, 0, 0, 0};
        CHECK(count > 2 && count < ROWS);
        for (int64_t i = 0; i < count && i < ROWS; i++) {
            sum.launches += rows[i].launches;
            sum.seconds += rows[i].seconds, sum.flop += rows[i].flop;
            sum.bytes_read += rows[i].bytes_read, sum.bytes_written += rows[i].bytes_written;
            CHECK(rows[i].calls > 0 && rows[i].calls <= rows[i].launches);
            CHECK(i == 0 || rows[i].seconds <= rows[i - 1].seconds);
        }
        CHECK_EQ_INT(sum.launches, all.launches);
        CHECK_CLOSE(sum.seconds, all.seconds, 1e-9, 0);
        CHECK_CLOSE(sum.flop, all.flop, 1e-9, 0);
        CHECK_CLOSE(sum.bytes_read, all.bytes_read, 1e-9, 0);
        CHECK_CLOSE(sum.bytes_written, all.bytes_written, 1e-9, 0);
        mpt_profile_row first = {"", "", 0, 0, 0, 0, 0, 0, 0};
        CHECK_EQ_INT(mpt_profile_rows(c, (mpt_profile_by)by, &first, 1), count);
        CHECK_EQ_STR(first.name, rows[0].name);
        CHECK_EQ_INT(mpt_profile_rows(c, (mpt_profile_by)by, NULL, 0), count);
    }
}

TEST(sums_add_up_by_a_clock_that_counts) {
    enum { STEPS = 5 };
    mpt_profile_row rows[ROWS];
    training t = make_training(true);
    train(&t, 2);
    const int64_t before = mpt_get_counters(t.context).launches;
    CHECK_EQ_INT(mpt_profile_begin(t.context, NULL), MPT_OK);
    const double began = counted;
    train(&t, STEPS);
    const double looks = counted - began;
    CHECK_EQ_INT(mpt_profile_end(t.context), MPT_OK);
    const int64_t launches = mpt_get_counters(t.context).launches - before;
    train(&t, 1); /* is not looked at */
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    CHECK_EQ_INT(total.steps, STEPS);
    CHECK_EQ_INT(total.all.launches, launches);
    CHECK_NEAR(total.all.seconds, (double)launches, 0);
    CHECK_NEAR(total.seconds, looks + 1, 0);
    CHECK_NEAR(looks, 2.0 * (double)launches, 0); /* nobody else looks: no spans, no steps */
    check_sums(t.context);
    int64_t count = mpt_profile_rows(t.context, MPT_PROFILE_OP, rows, ROWS);
    const mpt_profile_row *linear = row_of(rows, count, "linear", "forward");
    CHECK_EQ_INT(linear->calls, 2 * STEPS);
    CHECK_EQ_INT(row_of(rows, count, "linear", "backward")->calls, 2 * STEPS);
    CHECK_EQ_INT(row_of(rows, count, "-", "update")->calls, STEPS);
    /* 2 M N K of each product; a bias and a relu, one each for every element */
    const double elements = BATCH * (2 * HIDDEN + CLASSES);
    CHECK_NEAR(linear->flop,
        STEPS * (2.0 * BATCH * (INPUTS * HIDDEN + HIDDEN * CLASSES) + elements), 0);
    CHECK_NEAR(linear->bytes_written, STEPS * 4.0 * BATCH * (HIDDEN + CLASSES), 0);
    count = mpt_profile_rows(t.context, MPT_PROFILE_MODULE, rows, ROWS);
    CHECK_EQ_INT(row_of(rows, count, "0", "forward")->calls, STEPS);
    CHECK_EQ_INT(row_of(rows, count, "2", "backward")->calls, STEPS);
    CHECK(row_of(rows, count, "2", "backward")->flop > row_of(rows, count, "2", "forward")->flop);
    count = mpt_profile_rows(t.context, MPT_PROFILE_KERNEL, rows, ROWS);
    CHECK_EQ_INT(row_of(rows, count, "adam", "")->calls, STEPS);
    end_training(&t);
}

TEST(casts_and_ceilings) {
    char text[8192];
    training t = make_training(true);
    mpt_profile_config config = mpt_profile_config_default();
    config.product[0] = 1000, config.product[1] = 500, config.product[2] = 250;
    config.copy = 1e9;
    t.autocast = MPT_BF16;
    CHECK_EQ_INT(mpt_profile_begin(t.context, &config), MPT_OK);
    train(&t, 3);
    mpt_profile_row rows[ROWS];
    int64_t count = mpt_profile_rows(t.context, MPT_PROFILE_OP, rows, ROWS);
    const mpt_profile_row *linear = row_of(rows, count, "linear", "forward");
    CHECK(linear->least > linear->flop / 500 && linear->least <= linear->flop / 250 + 1);
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    CHECK(total.conversions > 0 && total.conversions < total.all.seconds);
    const size_t length = mpt_profile_text(t.context, text, sizeof text);
    CHECK_EQ_INT((int64_t)length, (int64_t)strlen(text));
    CHECK_EQ_INT((int64_t)mpt_profile_text(t.context, NULL, 0), (int64_t)length);
    CHECK_CONTAINS(text, "3 steps in ");
    CHECK_CONTAINS(text, "% casts and derived forms");
    CHECK_CONTAINS(text, "% of ceiling");
    CHECK_CONTAINS(text, "\nlinear                     backward ");
    CHECK_CONTAINS(text, "\n2                          forward ");
    CHECK_CONTAINS(text, "\ngemm ");
    config.product[0] = config.product[1] = config.product[2] = config.copy = 0;
    mpt_profile_begin(t.context, &config);
    train(&t, 1);
    CHECK_EQ_INT(mpt_get_profile_total(t.context).steps, 1);
    CHECK_NEAR(mpt_get_profile_total(t.context).all.least, 0, 0);
    mpt_profile_text(t.context, text, sizeof text);
    CHECK(!strstr(text, "% of ceiling"));
    end_training(&t);
}

TEST(a_training_stays_what_it_is) {
    uint64_t hash[2];
    for (int on = 0; on < 2; on++) {
        training t = make_training(false);
        const mpt_profile_config config = with_spans(SPANS);
        if (on) mpt_profile_begin(t.context, &config);
        train(&t, 3);
        const int64_t allocations = mpt_memory(t.context).allocations;
        train(&t, 20);
        CHECK_EQ_INT(mpt_memory(t.context).allocations, allocations);
        hash[on] = mpt_module_hash(t.net);
        end_training(&t);
    }
    CHECK(hash[0] == hash[1]);
}

/* ==== Spans ==== */

enum { THREADS = 8, DEPTH = 40 };
typedef struct nesting {
    mpt_profile_span spans[SPANS];
    int64_t count, kinds[MPT_SPAN_BATCH + 1];
    int depth[THREADS], deepest;
    int64_t within[THREADS][DEPTH];
    double flop;
} nesting;

static nesting seen;

static double end_of(const mpt_profile_span *span) { return span->start + span->seconds; }

/* Each span begins behind the one before on its row, and ends within what is around it. */
static void nest(void *user, const mpt_profile_span *span) {
    nesting *n = (nesting *)user;
    const double slack = 1e-9;
    if (n->count == SPANS || span->thread < 0 || span->thread >= THREADS) {
        TEST_FAIL_("more than %d spans, or thread %d", (int)SPANS, span->thread);
        return;
    }
    int64_t *within = n->within[span->thread];
    int *depth = &n->depth[span->thread];
    n->spans[n->count] = *span;
    while (*depth > 0 && end_of(&n->spans[within[*depth - 1]]) <= span->start + slack) --*depth;
    if (*depth > 0) {
        const mpt_profile_span *around = &n->spans[within[*depth - 1]];
        CHECK(span->start >= around->start && end_of(span) <= end_of(around) + slack);
        CHECK(around->kind < span->kind || span->kind == MPT_SPAN_MODULE);
        CHECK(around->flop >= span->flop);
    }
    if (span->kind == MPT_SPAN_LAUNCH) n->flop += span->flop;
    if (*depth < DEPTH) within[(*depth)++] = n->count;
    n->deepest = *depth > n->deepest ? *depth : n->deepest;
    n->kinds[span->kind]++;
    n->count++;
}

static void nest_all(mpt_context *c) {
    memset(&seen, 0, sizeof seen);
    const int64_t count = mpt_profile_spans(c, nest, &seen);
    CHECK_EQ_INT(seen.count, count);
}

TEST(spans_lie_within_each_other) {
    training t = make_training(true);
    mpt_profile_config config = with_spans(SPANS);
    train(&t, 1);
    mpt_profile_begin(t.context, &config);
    train(&t, 3);
    mpt_profile_end(t.context);
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    nest_all(t.context);
    CHECK_EQ_INT(seen.count, total.spans);
    CHECK_EQ_INT(total.left_out, 0);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_STEP], 3);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_MODULE], 3 * 2 * 3); /* a root and two, there and back */
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_OP], 3 * 2 * 3);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_LAUNCH], total.all.launches);
    CHECK_EQ_INT(seen.deepest, 5); /* step, root, layer, op, launch */
    CHECK_NEAR(seen.flop, total.all.flop, 0);
    CHECK_EQ_STR(seen.spans[0].name, "step");
    CHECK_EQ_STR(seen.spans[1].name, "sequential");
    CHECK_EQ_STR(seen.spans[2].name, "0");
    CHECK_EQ_STR(seen.spans[3].name, "linear");
    CHECK_EQ_STR(seen.spans[4].name, "gemm");
    CHECK_EQ_STR(seen.spans[4].phase, "forward");

    config.spans = 10;
    mpt_profile_begin(t.context, &config);
    train(&t, 3);
    nest_all(t.context); /* while a step is over, and the profile goes on */
    CHECK_EQ_INT(seen.count, 10);
    CHECK(mpt_get_profile_total(t.context).left_out > 20);
    end_training(&t);
}

/* ==== Captured steps ==== */

static mpt_status step_fn(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    training *t = (training *)user;
    (void)x, (void)y;
    train(t, 1);
    return mpt_error_code(context);
}

TEST(captured_steps_are_told_by_their_launches) {
    mpt_profile_row by_hand[ROWS], repeated[ROWS];
    mpt_profile_config config = with_spans(SPANS);
    training t = make_training(true);
    mpt_captured captured = mpt_capture(t.context, step_fn, &t);
    for (int i = 0; i < 3; i++) mpt_captured_step(captured, t.x, t.y);
    mpt_profile_begin(t.context, &config);
    train(&t, 4);
    const int64_t count = mpt_profile_rows(t.context, MPT_PROFILE_MODULE, by_hand, ROWS);
    const int64_t repeats = mpt_captured_count(captured);
    mpt_profile_begin(t.context, &config);
    for (int i = 0; i < 4; i++) mpt_captured_step(captured, t.x, t.y);
    if (mpt_captured_count(captured) != repeats + 4) SKIP("a step that is captured");
    mpt_profile_rows(t.context, MPT_PROFILE_MODULE, repeated, ROWS);
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(by_hand[i].name, "-") == 0) continue; /* the inputs are copied besides */
        const mpt_profile_row *row = row_of(repeated, ROWS, by_hand[i].name, by_hand[i].phase);
        CHECK_EQ_INT(row->launches, by_hand[i].launches);
        CHECK_NEAR(row->flop, by_hand[i].flop, 0);
    }
    check_sums(t.context);
    CHECK_EQ_INT(mpt_get_profile_total(t.context).steps, 4);
    nest_all(t.context);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_STEP], 4);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_MODULE], 4 * 2 * 3);
    end_training(&t);
}

/* ==== Waiting for data ==== */

static float samples[SAMPLES][INPUTS];
static int64_t targets[SAMPLES];

static mpt_loader make_loader(training *t, int workers) {
    mpt_loader_config config = mpt_loader_config_default();
    for (int i = 0; i < SAMPLES; i++) {
        targets[i] = i % CLASSES;
        for (int k = 0; k < INPUTS; k++) samples[i][k] = (float)(i + k) / SAMPLES;
    }
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = SAMPLES, data.dtype = MPT_F32, data.shape = MPT_SHAPE(INPUTS);
    data.inputs = samples, data.targets = targets;
    config.batch = BATCH, config.workers = workers;
    return mpt_loader_create(t->context, mpt_memory_dataset(t->context, &data), &config);
}

static void train_on(training *t, mpt_loader loader) {
    mpt_batch batch;
    while (mpt_loader_next(loader, &batch)) {
        t->x = batch.x, t->y = batch.y;
        train(t, 1);
    }
}

TEST(waiting_is_counted) {
    training t = make_training(true);
    mpt_loader loader = make_loader(&t, 0);
    const mpt_profile_config config = with_spans(SPANS);
    mpt_profile_begin(t.context, &config);
    train_on(&t, loader);
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    CHECK_EQ_INT(total.batches, SAMPLES / BATCH);
    CHECK_NEAR(total.waiting, SAMPLES / BATCH, 0);
    nest_all(t.context);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_WAIT], SAMPLES / BATCH);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_BATCH], 0);
    CHECK_EQ_INT(seen.kinds[MPT_SPAN_STEP], SAMPLES / BATCH);
    end_training(&t);
}

/* ==== Traces as files ==== */

/* An event as it is read: times in nanoseconds. */
typedef struct event {
    char name[64], phase[8], category[16], argument[64]; /* argument: one that is called name */
    int64_t start, length, thread;
    bool flop;
} event;

static const char *at; /* where the reader is; NULL: the file is no JSON */

static bool take(char c) {
    while (at && (*at == ' ' || *at == '\n')) at++;
    if (!at || *at != c) return false;
    at++;
    return true;
}

static void read_string(char *to, size_t size) {
    size_t n = 0;
    if (!take('"')) at = NULL;
    while (at && *at != '"') {
        if (*at == '\\') at++;
        if ((unsigned char)*at < 32) at = NULL;
        if (at && n + 1 < size) to[n++] = *at;
        if (at) at++;
    }
    to[n] = 0;
    if (!take('"')) at = NULL;
}

/* Thousandths of a number. */
static int64_t read_number(void) {
    char *end;
    const double value = at ? strtod(at, &end) : 0;
    if (!at || end == at) return at = NULL, 0;
    at = end;
    return (int64_t)(value * 1000 + (value < 0 ? -0.5 : 0.5));
}

static void read_member(event *e) {
    char key[32], value[64];
    read_string(key, sizeof key);
    if (!take(':')) at = NULL;
    if (take('{')) {
        while (at && !take('}')) {
            event inner;
            memset(&inner, 0, sizeof inner);
            read_member(&inner);
            e->flop = e->flop || inner.flop;
            if (strcmp(key, "args") == 0) memcpy(e->argument, inner.name, sizeof inner.name);
            take(',');
        }
    } else if (at && *at == '"') {
        read_string(value, sizeof value);
        if (strcmp(key, "name") == 0) memcpy(e->name, value, sizeof value);
        if (strcmp(key, "ph") == 0) snprintf(e->phase, sizeof e->phase, "%.7s", value);
        if (strcmp(key, "cat") == 0) snprintf(e->category, sizeof e->category, "%.15s", value);
    } else {
        const int64_t number = read_number();
        if (strcmp(key, "ts") == 0) e->start = number;
        if (strcmp(key, "dur") == 0) e->length = number;
        if (strcmp(key, "tid") == 0) e->thread = number / 1000;
        e->flop = strcmp(key, "flop") == 0;
    }
}

enum { EVENTS = 2 * SPANS };
static event events[EVENTS];

/* The events of a trace, with its end seen; -1 where it is none. */
static int read_trace(const char *path) {
    static char text[1 << 20];
    int count = 0;
    char key[32];
    FILE *file = fopen(path, "rb");
    text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
    if (file) fclose(file);
    at = text;
    if (!take('{')) return -1;
    while (at && !take('}')) {
        read_string(key, sizeof key);
        if (!take(':')) at = NULL;
        if (!take('[')) {
            read_string(key, sizeof key);
        } else {
            while (at && !take(']')) {
                event e;
                memset(&e, 0, sizeof e);
                if (!take('{')) at = NULL;
                while (at && !take('}')) read_member(&e), take(',');
                if (count < EVENTS) events[count++] = e;
                take(',');
            }
        }
        take(',');
    }
    take('\n');
    return at && *at == 0 ? count : -1;
}

/* By nanoseconds, any two events of a row lie apart or one within the other; in a row they are told
   in the order in which they begin, those around others first, and so is the curve of memory. */
static void check_nesting(int count) {
    int64_t end[256][DEPTH], last[256] = {0}, curve = 0;
    int depth[256] = {0};
    for (int i = 0; i < count; i++) {
        const event *e = &events[i];
        if (e->phase[0] == 'C') {
            CHECK(e->start >= curve && strcmp(e->name, "memory") == 0);
            curve = e->start;
        }
        if (e->phase[0] != 'X') continue;
        CHECK(e->thread >= 0 && e->thread < 256 && e->length >= 0);
        if (e->thread < 0 || e->thread >= 256) continue;
        CHECK(e->start >= last[e->thread]);
        last[e->thread] = e->start;
        int *d = &depth[e->thread];
        while (*d > 0 && end[e->thread][*d - 1] <= e->start) --*d;
        CHECK(*d == 0 || e->start + e->length <= end[e->thread][*d - 1]);
        if (*d < DEPTH) end[e->thread][(*d)++] = e->start + e->length;
    }
}

/* Workers of loaders have rows of their own, with nothing but batches in them, and each row has its
   name before its first event, and once. */
static void check_rows(int count) {
    bool named[256] = {false};
    for (int i = 0; i < count; i++) {
        const event *e = &events[i];
        char name[64];
        CHECK((e->phase[0] == 'X' || e->phase[0] == 'M' || e->phase[0] == 'C') && !e->phase[1]);
        REQUIRE(e->thread >= 0 && e->thread < 256);
        if (strcmp(e->name, "thread_name") == 0) {
            snprintf(name, sizeof name, "loader worker %d", (int)e->thread);
            CHECK_EQ_STR(e->argument, e->thread ? name : "training");
            CHECK(!named[e->thread]);
            named[e->thread] = true;
        } else if (e->phase[0] == 'X') {
            CHECK(named[e->thread]);
            CHECK((strcmp(e->category, "batch") == 0) == (e->thread > 0));
        }
    }
}

static int count_of(int count, const char *category, int64_t thread) {
    int n = 0;
    for (int i = 0; i < count; i++)
        n += strcmp(events[i].category, category) == 0 && (events[i].thread > 0) == (thread > 0);
    return n;
}

TEST(traces_are_json_and_nest) {
    const char *path = test_tmp_path("trace.json");
    char why[256];
    training t = make_training(false);
    mpt_loader loader = make_loader(&t, 2);
    const mpt_profile_config config = with_spans(SPANS);
    mpt_profile_begin(t.context, &config);
    train_on(&t, loader);
    mpt_profile_end(t.context);
    const mpt_profile_total total = mpt_get_profile_total(t.context);
    CHECK_EQ_INT(mpt_trace_write(t.context, path, why, sizeof why), MPT_OK);
    CHECK_EQ_STR(why, "");
    const int count = read_trace(path);
    CHECK(count > total.spans);
    CHECK(count < EVENTS);
    check_nesting(count);
    check_rows(count);
    CHECK_EQ_INT(count_of(count, "step", 0), SAMPLES / BATCH);
    CHECK_EQ_INT(count_of(count, "wait", 0), SAMPLES / BATCH);
    CHECK_EQ_INT(count_of(count, "launch", 0), total.all.launches);
    CHECK_EQ_INT(count_of(count, "module", 0), SAMPLES / BATCH * 6);
    CHECK(count_of(count, "batch", 1) > 0);
    int named = 0;
    for (int i = 0; i < count; i++) {
        named += events[i].phase[0] == 'M';
        CHECK(events[i].phase[0] != 'X' || events[i].flop == (events[i].category[0] != 'w' &&
                                               events[i].category[0] != 'b'));
    }
    CHECK(named >= 3); /* the process, the training, a worker */
    remove(path);
    end_training(&t);
}

#ifdef _WIN32
TEST(traces_that_cannot_be_written) { SKIP("a limit for the size of files"); }
#else
TEST(traces_that_cannot_be_written) {
    const char *path = test_tmp_path("trace.json");
    struct rlimit limit;
    char why[256];
    training t = make_training(false);
    const mpt_profile_config config = with_spans(SPANS);
    mpt_profile_begin(t.context, &config);
    train(&t, 20);
    CHECK_EQ_INT(mpt_trace_write(t.context, path, NULL, 0), MPT_OK);
    const int whole = read_trace(path);
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    const rlim_t before = limit.rlim_cur;
    limit.rlim_cur = 20000;
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    const mpt_status status = mpt_trace_write(t.context, path, why, sizeof why);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    CHECK_EQ_INT(status, MPT_ERROR_IO);
    CHECK_CONTAINS(why, "trace.json cannot be written: ");
    CHECK(whole > 100);
    CHECK_EQ_INT(read_trace(path), whole); /* what was there stays */
    CHECK_EQ_INT(mpt_trace_write(t.context, "/nowhere/at/all.json", why, sizeof why), MPT_ERROR_IO);
    CHECK_CONTAINS(why, "/nowhere/at/all.json cannot be opened: ");
    CHECK_EQ_INT(mpt_trace_write(t.context, "", why, sizeof why), MPT_ERROR_ARGUMENT);
    CHECK_EQ_STR(why, "there is no path");
    remove(path);
    end_training(&t);

    t = make_training(false);
    CHECK_EQ_INT(mpt_trace_write(t.context, path, why, sizeof why), MPT_ERROR_STATE);
    CHECK_CONTAINS(why, "mpt_profile_begin begins one");
    CHECK_EQ_INT(mpt_trace_write(t.context, path, why, sizeof why), MPT_ERROR_STATE);
    mpt_clear_error(t.context);
    end_training(&t);
}
#endif

TEST_TABLE = {T(sums_add_up_by_a_clock_that_counts),
              T(casts_and_ceilings),
              T(a_training_stays_what_it_is),
              T(spans_lie_within_each_other),
              T(captured_steps_are_told_by_their_launches),
              T(waiting_is_counted),
              T(traces_are_json_and_nest),
              T(traces_that_cannot_be_written)};
TEST_MAIN
