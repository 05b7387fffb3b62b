/* api_pointers.c: every pointer of the API that a call writes through, with rooms of every size and
 * canaries around them. The list of such pointers is read from the header's declarations: one
 * without a row in the table below fails. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "memory.h"

#include <math.h>

/* ---- rooms ---- */

enum { CANARIES = 64, CANARY = 0xa5 };

static unsigned char *room_new(size_t size) {
    unsigned char *block = (unsigned char *)malloc(size + 2 * CANARIES);
    if (!block) abort();
    memset(block, CANARY, size + 2 * CANARIES);
    return block + CANARIES;
}

/* Frees a room; true if nothing was written beyond its first bytes, nor before them. */
static bool room_end(unsigned char *room, size_t size, size_t written) {
    bool kept = true;
    for (int i = 1; i <= CANARIES; i++) kept = kept && room[-i] == CANARY;
    for (size_t i = written; i < size + CANARIES; i++) kept = kept && room[i] == CANARY;
    free(room - CANARIES);
    return kept;
}

/* ---- what the calls work on ---- */

enum { ROWS = 7, WIDTH = 3 };

static mpt_context *c;
static mpt_tensor x, ones, image, none;
static mpt_module net, convolutions, pair;
static mpt_op pair_op;
static mpt_dataset data, classed; /* f32 targets [WIDTH]; one class number */
static mpt_captured captured;
static mpt_tokenizer tokens;
static const char text_of_tokens[] = "a ba";
static unsigned char weights[1 << 16];
static size_t weight_bytes;
static const char *weight_path, *flight_path;

static mpt_status pair_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                               mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in;
    for (int i = 0; i < n_out; i++) out[i] = mpt_neg(in[0]);
    return MPT_OK;
}

static mpt_status pair_op_forward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_op_set_output(call, 0, mpt_neg(mpt_op_input(call, 0)));
    return mpt_op_set_output(call, 1, mpt_neg(mpt_op_input(call, 0)));
}

static mpt_status empty_step(mpt_context *context, void *user, mpt_tensor in, mpt_tensor y) {
    (void)user, (void)y;
    mpt_step_begin(context);
    mpt_neg(in);
    return mpt_step_end(context);
}

static void make_data(void) {
    static float inputs[ROWS * WIDTH], targets[ROWS * WIDTH];
    static int64_t numbers[ROWS];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int i = 0; i < ROWS * WIDTH; i++) inputs[i] = (float)i, targets[i] = (float)i + 0.5f;
    for (int i = 0; i < ROWS; i++) numbers[i] = 10 + i;
    config.count = ROWS;
    config.shape = config.target_shape = MPT_SHAPE(WIDTH);
    config.inputs = inputs, config.targets = targets;
    config.target_dtype = MPT_F32;
    data = mpt_memory_dataset(c, &config);
    config.target_dtype = MPT_I64, config.target_shape = MPT_SCALAR;
    config.targets = numbers;
    classed = mpt_memory_dataset(c, &config);
}

static void make_files(void) {
    static char path[512];
    FILE *file;
    tokens = mpt_char_tokenizer(c, put_text("tokens", "abc \n"));
    snprintf(path, sizeof path, "%s", test_tmp_path("weights"));
    static char flight[512];
    snprintf(flight, sizeof flight, "%s", test_tmp_path("flight"));
    remove(flight);
    flight_path = flight;
    weight_path = path;
    mpt_save(net, path);
    file = fopen(path, "rb");
    if (!file) return;
    weight_bytes = fread(weights, 1, sizeof weights, file);
    fclose(file);
}

static void make_all(void) {
    mpt_module_class cls;
    mpt_op_class op;
    memset(&cls, 0, sizeof cls);
    memset(&op, 0, sizeof op);
    memset(&none, 0, sizeof none);
    c = make_context();
    x = mpt_randn(c, MPT_F32, MPT_SHAPE(4, WIDTH));
    ones = mpt_ones(c, MPT_F32, MPT_SHAPE(4)); /* the upper end of a histogram */
    image = mpt_randn(c, MPT_F32, MPT_SHAPE(1, 2, 4, 4));
    net = mpt_sequential(c, mpt_nn_linear(c, WIDTH, 2), mpt_nn_relu(c), MPT_END);
    convolutions = mpt_sequential(c, mpt_nn_conv2d(c, 2, 2, 3, 3, NULL),
                                  mpt_nn_batch_norm2d(c, 2, NULL), MPT_END);
    cls.name = "pair", cls.forward = pair_forward, cls.n_inputs = 1, cls.n_outputs = 2;
    pair = mpt_module_create(c, &cls, NULL);
    op.name = "pair", op.forward = pair_op_forward, op.n_inputs = 1, op.n_outputs = 2;
    pair_op = mpt_op_register(c, &op, NULL);
    captured = mpt_capture(c, empty_step, NULL);
    mpt_profile_begin(c, NULL);
    mpt_neg(x), mpt_exp(x), mpt_relu(x);
    mpt_profile_end(c);
    make_data();
    if (have_files(c)) make_files();
    CHECK_EQ_STR(mpt_error(c), "");
}

/* ---- the calls, each with a room for `n` of its elements ---- */

static int64_t status_of(mpt_status status) { return status == MPT_OK ? 0 : -1; }
static int64_t made(mpt_tensor tensor) { return mpt_valid(tensor) ? 0 : -1; }

#define CALL(name, type, ...) \
    static int64_t call_##name(void *room, int64_t n) { \
        type *to = (type *)room; \
        (void)n; \
        return (int64_t)(__VA_ARGS__); \
    }
CALL(precision_auto, const char *, mpt_precision_auto(c, to) == MPT_DTYPE_NONE ? -1 : 0)
static mpt_status plan_nothing(mpt_context *context, int64_t batch, void *user) {
    (void)context, (void)batch, (void)user;
    return MPT_OK;
}
CALL(plan, mpt_memory_stats, status_of(mpt_plan(NULL, plan_nothing, 1, NULL, to)))
CALL(benchmark_text, char, mpt_benchmark_text(c, to, (size_t)n))
CALL(read, void, status_of(mpt_read(x, to, (size_t)n)))
CALL(read_f32, float, status_of(mpt_read_f32(x, to, n)))
CALL(format, char, mpt_format(x, NULL, to, (size_t)n))
CALL(split_tensor, mpt_tensor, mpt_split_tensor(x, 1, 1, to, (int)n))
CALL(chunk, mpt_tensor, mpt_chunk(x, 2, 0, to, (int)n))
CALL(sort, mpt_tensor, made(mpt_sort(x, 1, false, to)))
CALL(topk, mpt_tensor, made(mpt_topk(x, 2, 1, true, to)))
CALL(autocast_policy, char, mpt_autocast_policy(to, (size_t)n))
CALL(parameter_at, char, made(mpt_parameter_at(net, 0, to, (size_t)n)))
CALL(module_at, char, mpt_module_at(net, 1, to, (size_t)n).slot ? 1 : -1)
CALL(forward_n, mpt_tensor, status_of(mpt_forward_n(pair, &x, 1, to, (int)n)))
static mpt_status rows_of(
    mpt_context *context, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)context, (void)user, (void)n_in;
    for (int i = 0; i < n_out; i++) out[i] = mpt_add_scalar(in[0], i);
    return MPT_OK;
}
CALL(recompute_call, mpt_tensor, status_of(mpt_recompute_call(c, rows_of, NULL, &x, 1, to, (int)n)))
CALL(op_apply, mpt_tensor, status_of(mpt_op_apply(pair_op, &x, 1, to, (int)n)))
CALL(summary, char, mpt_summary(net, to, (size_t)n))
CALL(histogram, int64_t, status_of(mpt_histogram(ones, -1, 1, to, (int)n)))
CALL(confusion, int64_t, status_of(mpt_confusion(x, mpt_argmax(x, 1, false), to, WIDTH)))
CALL(histograms, char, mpt_histograms(net, false, to, (size_t)n))
CALL(profile_text, char, mpt_profile_text(c, to, (size_t)n))
CALL(profile_rows, mpt_profile_row, mpt_profile_rows(c, MPT_PROFILE_OP, to, n) == 3 ? 0 : -1)
CALL(flight_end, mpt_flight_report,
     mpt_flight_begin(c, flight_path, NULL) == MPT_OK ? status_of(mpt_flight_end(c, to)) : -1)
CALL(determinism, char, mpt_determinism(c, to, (size_t)n))
CALL(checkpoint_difference, char, mpt_checkpoint_difference(c, weight_path, to, (size_t)n))
CALL(snapshot_difference, char, mpt_snapshot_difference(c, "", 0, to, (size_t)n))
CALL(mean, double, status_of(mpt_dataset_statistics(data, to, NULL)))
CALL(deviation, double, status_of(mpt_dataset_statistics(data, NULL, to)))
CALL(sample_input, float, status_of(mpt_sample(data, 1, to, NULL)))
CALL(sample_target, int64_t, status_of(mpt_sample(classed, 1, NULL, to)))
CALL(into_input, void, status_of(mpt_sample_into(data, 1, to, (size_t)n, NULL, 0, NULL)))
CALL(into_target, void, status_of(mpt_sample_into(data, 1, NULL, 0, to, (size_t)n, NULL)))
CALL(into_sizes, mpt_sample_sizes, status_of(mpt_sample_into(data, 1, NULL, 0, NULL, 0, to)))
CALL(load, int, status_of(mpt_load(net, weight_path, NULL, to)))
CALL(snapshot, void, status_of(mpt_snapshot(c, to, (size_t)n)))
CALL(load_memory, int, status_of(mpt_load_memory(net, weights, weight_bytes, NULL, to)))
CALL(step_slice, bool, status_of(mpt_step_slice(captured, x, none, 1e9, to)))
static mpt_tensor recurrent(int gates, mpt_tensor *h, mpt_tensor *cells) {
    mpt_cell_config how = mpt_cell_config_default();
    how.weight_ih = mpt_ones(c, MPT_F32, MPT_SHAPE(gates, WIDTH));
    how.weight_hh = mpt_ones(c, MPT_F32, MPT_SHAPE(gates, 1));
    mpt_tensor steps = mpt_reshape(x, MPT_SHAPE(2, 2, WIDTH));
    if (h) *h = none; /* what it holds is the state to begin with */
    if (cells) *cells = none;
    return gates == 4   ? mpt_lstm(steps, &how, h, cells)
           : gates == 3 ? mpt_gru(steps, &how, h)
                        : mpt_rnn(steps, &how, h);
}
CALL(rnn, mpt_tensor, made(recurrent(1, to, NULL)))
CALL(gru, mpt_tensor, made(recurrent(3, to, NULL)))
CALL(lstm_h, mpt_tensor, made(recurrent(4, to, NULL)))
CALL(lstm_c, mpt_tensor, made(recurrent(4, NULL, to)))
CALL(add_layer_norm, mpt_tensor, made(mpt_add_layer_norm(x, x, 1, none, none, 1e-5, to)))
CALL(add_rms_norm, mpt_tensor, made(mpt_add_rms_norm(x, x, 1, none, 1e-5, to)))
CALL(fuse, char, mpt_fuse(convolutions, image, to, (size_t)n))
CALL(encode, int32_t, mpt_encode(tokens, text_of_tokens, 4, to, n))

static int64_t call_decode(void *room, int64_t n) {
    static const int32_t numbers[3] = {2, 3, 2};
    return mpt_decode(tokens, numbers, 3, (char *)room, n);
}

static int64_t call_wrap(void *room, int64_t n) {
    mpt_tensor borrowed = mpt_wrap(c, MPT_F32, MPT_SHAPE(n), room);
    const int64_t result = made(mpt_fill_(borrowed, 2));
    mpt_release(borrowed);
    return result;
}

static int64_t call_random_split(void *room, int64_t n) {
    double fractions[ROWS];
    for (int64_t i = 0; i < ROWS; i++) fractions[i] = 1.0 / (double)(n > 0 ? n : 1);
    mpt_dataset *parts = (mpt_dataset *)room;
    const int64_t result = status_of(mpt_random_split(data, fractions, (int)n, 1, parts));
    for (int64_t i = 0; i < n && result == 0; i++) mpt_dataset_destroy(parts[i]);
    return result;
}

static int64_t call_loader_next(void *room, int64_t n) {
    mpt_loader loader = mpt_loader_create(c, data, NULL);
    const bool result = mpt_loader_next(loader, (mpt_batch *)room);
    (void)n;
    mpt_loader_destroy(loader);
    return result ? 0 : -1;
}

/* ---- the table ---- */

typedef enum row_kind {
    TEXT,    /* cut to the room, terminated; returns the length of all of it */
    NAME,    /* the same, but for what it returns */
    LIST,    /* as many as there is room for; returns how many there are */
    REFUSES, /* an error that tells how many there are, and nothing written, if they do not fit */
    EXACT,   /* an error unless it is the exact size */
    COUNTED, /* as many as the caller says; `need` must work */
    FIXED,   /* likewise, but an error unless it is `need`: null handles then */
    ONE,     /* one object */
    ONE_MUST /* one object, and NULL is an error */
} row_kind;

typedef struct row {
    const char *function, *parameter;
    row_kind kind;
    size_t element; /* bytes */
    int64_t need;   /* elements */
    int64_t (*call)(void *room, int64_t n);
    const char *says; /* of an error */
    bool files;       /* needs them */
} row;

#define TENSORS sizeof(mpt_tensor)
static const row rows[] = {
    {"mpt_precision_auto", "reason", ONE, sizeof(char *), 1, call_precision_auto, "", 0},
    {"mpt_plan", "stats", ONE, sizeof(mpt_memory_stats), 1, call_plan, "", 0},
    {"mpt_benchmark_text", "text", TEXT, 1, 0, call_benchmark_text, "", 0},
    {"mpt_wrap", "data", COUNTED, 4, 3, call_wrap, "", 0},
    {"mpt_read", "destination", EXACT, 1, 16 * WIDTH, call_read, "48 bytes, got room for", 0},
    {"mpt_read_f32", "destination", EXACT, 4, 4 * WIDTH, call_read_f32, "12 elements, got", 0},
    {"mpt_format", "text", TEXT, 1, 0, call_format, "", 0},
    {"mpt_split_tensor", "parts", REFUSES, TENSORS, 3, call_split_tensor, "3 parts, but room", 0},
    {"mpt_chunk", "parts", REFUSES, TENSORS, 2, call_chunk, "2 parts, but room", 0},
    {"mpt_sort", "indices", ONE, TENSORS, 1, call_sort, "", 0},
    {"mpt_topk", "indices", ONE, TENSORS, 1, call_topk, "", 0},
    {"mpt_autocast_policy", "text", TEXT, 1, 0, call_autocast_policy, "", 0},
    {"mpt_parameter_at", "path", NAME, 1, 0, call_parameter_at, "", 0},
    {"mpt_module_at", "path", NAME, 1, 0, call_module_at, "", 0},
    {"mpt_forward_n", "out", FIXED, TENSORS, 2, call_forward_n, "", 0},
#ifndef MPTRAIN_NO_FRUGAL
    {"mpt_recompute_call", "out", COUNTED, TENSORS, 2, call_recompute_call, "", 0},
#endif
    {"mpt_op_apply", "out", FIXED, TENSORS, 2, call_op_apply, "", 0},
    {"mpt_summary", "text", TEXT, 1, 0, call_summary, "", 0},
    {"mpt_histogram", "counts", COUNTED, 8, 4, call_histogram, "", 0},
    {"mpt_confusion", "counts", ONE_MUST, 8 * WIDTH * WIDTH, 1, call_confusion, "0 classes", 0},
    {"mpt_histograms", "text", TEXT, 1, 0, call_histograms, "", 0},
    {"mpt_profile_rows", "rows", COUNTED, sizeof(mpt_profile_row), 3, call_profile_rows, "", 0},
    {"mpt_profile_text", "text", TEXT, 1, 0, call_profile_text, "", 0},
    {"mpt_flight_end", "report", ONE, sizeof(mpt_flight_report), 1, call_flight_end, "", 1},
    {"mpt_determinism", "text", TEXT, 1, 0, call_determinism, "", 0},
    {"mpt_checkpoint_difference", "text", TEXT, 1, 0, call_checkpoint_difference, "", 0},
    {"mpt_snapshot_difference", "text", TEXT, 1, 0, call_snapshot_difference, "", 0},
    {"mpt_dataset_statistics", "mean", ONE, 8, 1, call_mean, "", 0},
    {"mpt_dataset_statistics", "deviation", ONE, 8, 1, call_deviation, "", 0},
    {"mpt_random_split", "parts", COUNTED, sizeof(mpt_dataset), 3, call_random_split, "", 0},
    {"mpt_sample", "input", ONE, 4 * WIDTH, 1, call_sample_input, "", 0},
    {"mpt_sample", "target", ONE, 8, 1, call_sample_target, "", 0},
    {"mpt_sample_into", "input", REFUSES, 1, 4 * WIDTH, call_into_input, "they take 12 and 12", 0},
    {"mpt_sample_into", "target", REFUSES, 1, 4 * WIDTH, call_into_target, "they take 12 and 12",
     0},
    {"mpt_sample_into", "sizes", ONE, sizeof(mpt_sample_sizes), 1, call_into_sizes, "", 0},
    {"mpt_loader_next", "batch", ONE_MUST, sizeof(mpt_batch), 1, call_loader_next, "NULL", 0},
    {"mpt_load", "loaded", ONE, sizeof(int), 1, call_load, "", 1},
    {"mpt_snapshot", "block", REFUSES, 1, 0, call_snapshot, "a snapshot", 0}, /* asks for need */
    {"mpt_load_memory", "loaded", ONE, sizeof(int), 1, call_load_memory, "", 1},
    {"mpt_step_slice", "done", ONE, sizeof(bool), 1, call_step_slice, "", 0},
    {"mpt_add_layer_norm", "sum", ONE_MUST, TENSORS, 1, call_add_layer_norm, "sum is NULL", 0},
    {"mpt_add_rms_norm", "sum", ONE_MUST, TENSORS, 1, call_add_rms_norm, "sum is NULL", 0},
    {"mpt_rnn", "h", ONE, TENSORS, 1, call_rnn, "", 0},
    {"mpt_gru", "h", ONE, TENSORS, 1, call_gru, "", 0},
    {"mpt_lstm", "h", ONE, TENSORS, 1, call_lstm_h, "", 0},
    {"mpt_lstm", "c", ONE, TENSORS, 1, call_lstm_c, "", 0},
    {"mpt_fuse", "text", NAME, 1, 0, call_fuse, "", 0},
    {"mpt_encode", "tokens", LIST, 4, 4, call_encode, "", 1},
    {"mpt_decode", "text", LIST, 1, 3, call_decode, "", 1}};
enum { ROWS_OF_TABLE = sizeof rows / sizeof rows[0] };

/* ---- checks by kind ---- */

#define SAY(cond) \
    ((void)((cond) || TEST_FAIL_("%s, %s, room for %lld: CHECK(%s), \"%s\"", r->function, \
                                 r->parameter, (long long)n, #cond, mpt_error(c))))

/* A cut text in a room for n, against all of it. */
static void check_text(const row *r, const char *all, int64_t length, int64_t n) {
    char *room = (char *)room_new((size_t)n);
    const int64_t told = r->call(room, n), fits = length < n ? length : n - 1;
    if (r->kind == TEXT) SAY(told == length);
    SAY(told >= 0);
    if (n > 0) SAY(memcmp(room, all, (size_t)fits) == 0 && room[fits] == '\0');
    SAY(room_end((unsigned char *)room, (size_t)n, (size_t)n));
}

static void check_texts(const row *r) {
    static char all[1 << 15];
    int64_t n = sizeof all;
    const int64_t told = r->call(all, n), length = (int64_t)strlen(all);
    SAY(length < n - 1 && told >= 0);
    for (n = 0; n <= length + 2; n++)
        if (n < 100 || n > length - 2) check_text(r, all, length, n);
    n = 5;
    const int64_t unheard = r->call(NULL, n);
    SAY(unheard == (r->kind == TEXT ? length : told));
    SAY(!mpt_failed(c));
}

/* What a call with a room for n must do: work, or say why not. */
static bool should_work(const row *r, int64_t n) {
    if (r->kind == REFUSES) return n >= r->need;
    return n == r->need || r->kind == LIST;
}

static void check_array(const row *r, int64_t n) {
    const size_t size = (size_t)n * r->element;
    const bool all = r->kind == COUNTED || r->kind == FIXED; /* may be touched */
    const size_t most = (size_t)(n < r->need || all ? n : r->need) * r->element;
    unsigned char *room = room_new(size);
    const int64_t result = r->call(room, n);
    const bool works = result >= 0, touched = !room_end(room, size, 0);
    SAY(works == !mpt_failed(c));
    if (r->kind == LIST) SAY(result == r->need);
    if (r->kind != COUNTED) SAY(works == should_work(r, n));
    if (!all) SAY(n == 0 || touched == works);
    if (r->kind == COUNTED && n == r->need) SAY(works);
    if (!works) SAY(strncmp(mpt_error(c), r->function, 8) == 0 && strstr(mpt_error(c), r->says));
    mpt_clear_error(c);
    room = room_new(size); /* again, for how much of it was touched */
    r->call(room, n);
    SAY(room_end(room, size, most));
    mpt_clear_error(c);
}

static void check_arrays(const row *r) {
    int64_t n = 0;
    row asked = *r;
    if (r->call == call_snapshot) asked.need = mpt_snapshot_bytes(c), r = &asked;
    if (r->call == call_wrap && mpt_get_device(c) != MPT_DEVICE_CPU) return; /* borrows nothing */
    for (; n <= r->need + 2; n++) check_array(r, n);
    for (n = 0; n <= r->need; n += r->need) { /* NULL: an error, or a call without that result */
        SAY((r->call(NULL, n) >= 0) == !mpt_failed(c));
        if (n == 0 && r->kind == LIST) SAY(r->call(NULL, n) == r->need);
        mpt_clear_error(c);
    }
}

static void check_one(const row *r) {
    const int64_t n = 1;
    if (r->call == call_flight_end && mpt_get_device(c) != MPT_DEVICE_CPU) return; /* none there */
    unsigned char *room = room_new(r->element);
    SAY(r->call(room, 1) >= 0 && !mpt_failed(c));
    SAY(room_end(room, r->element, r->element));
    room = room_new(r->element);
    r->call(room, 1);
    SAY(!room_end(room, r->element, 0)); /* but there it was written */
    SAY((r->call(NULL, 1) >= 0) == (r->kind == ONE));
    if (r->kind == ONE_MUST) SAY(strstr(mpt_error(c), r->says));
    mpt_clear_error(c);
}

TEST(rooms_of_every_size) {
    make_all();
    const bool files = have_files(c);
    for (int i = 0; i < ROWS_OF_TABLE; i++) {
        const row *r = &rows[i];
        if (r->files && !files) continue;
        if (r->kind <= NAME)
            check_texts(r);
        else if (r->kind >= ONE)
            check_one(r);
        else
            check_arrays(r);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ---- the list ---- */

static void blank_comments(char *text) {
    for (char *p = text; (p = strstr(p, "/*")) != NULL;) {
        const char *end = strstr(p, "*/");
        if (!end) return;
        while (p < end + 2) *p++ = ' ';
    }
}

static bool starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* Whether a call may write through a parameter, whose text ends at `end`; its name goes to `name`.
   Contexts, calls of ops and what is handed on to callbacks are no rooms. */
static bool writes(const char *p, const char *end, char name[64]) {
    const char *star = NULL, *stars = NULL, *at = end;
    while (*p == ' ' || *p == '\n') p++;
    for (const char *k = p; k < end; k++) {
        if (*k == '(') return false; /* a function */
        if (*k == '*' || *k == '[') stars = star, star = k;
    }
    if (!star || starts(p, "mpt_context *") || starts(p, "mpt_op_call *")) return false;
    if (*star == '*' && !stars && starts(p, "const ")) return false;
    const char *before = star;
    while (before > p && before[-1] == ' ') before--;
    if (before - p >= 6 && strncmp(before - 6, "*const", 6) == 0) return false;
    if (*star == '[') at = star;
    while (at > p && at[-1] != ' ' && at[-1] != '*') at--;
    snprintf(name, 64, "%.*s", (int)((*star == '[' ? star : end) - at), at);
    return strcmp(name, "user") != 0;
}

static int find_row(const char *function, const char *parameter) {
    for (int i = 0; i < ROWS_OF_TABLE; i++)
        if (strcmp(rows[i].function, function) == 0 && strcmp(rows[i].parameter, parameter) == 0)
            return i;
    return -1;
}

/* Marks the rows of a declaration, from its name on; returns how many of its pointers lack one. */
static int mark_rows(const char *declaration, bool *found) {
    char function[64], name[64];
    const char *open = strchr(declaration, '('), *from = open + 1, *start = open;
    int depth = 0, missing = 0;
    while (start > declaration && start[-1] != ' ' && start[-1] != '*') start--;
    snprintf(function, sizeof function, "%.*s", (int)(open - start), start);
    for (const char *p = from; depth >= 0; p++) {
        if (*p == '(') depth++;
        if (*p == ')') depth--;
        if (depth > 0 || (depth == 0 && *p != ',')) continue;
        if (writes(from, p, name)) {
            const int at = find_row(function, name);
            if (at >= 0) found[at] = true;
            missing += at < 0 && TEST_FAIL_("%s writes through %s: no row", function, name);
        }
        from = p + 1;
    }
    return missing;
}

TEST(every_out_pointer_has_a_row) {
    static const char *const files[] = {"src/face/tensors.h", "src/face/training.h",
                                        "src/face/inspection.h", "src/face/models.h",
                                         "src/face/data.h"};
    static char text[1 << 18];
    bool found[ROWS_OF_TABLE] = {false};
    size_t bytes = 0;
    int functions = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *file = fopen(files[i], "rb");
        if (!file) SKIP("src/: run it from the top directory");
        bytes += fread(text + bytes, 1, sizeof text - 1 - bytes, file);
        fclose(file);
    }
    REQUIRE(bytes > 10000 && bytes < sizeof text - 1);
    blank_comments(text);
    for (const char *p = text; (p = strstr(p, "\nMPTRAIN_API ")) != NULL; p++, functions++)
        CHECK_EQ_INT(mark_rows(p + 13, found), 0);
    CHECK(functions > 200);
    for (int i = 0; i < ROWS_OF_TABLE; i++)
        if (!found[i]) TEST_FAIL_("%s has no %s", rows[i].function, rows[i].parameter);
}

/* The list itself: what counts as a room, and what does not. */
TEST(the_list_knows_rooms) {
    static const struct {
        const char *text, *name; /* NULL: none */
    } cases[] = {{"char *text", "text"},
                 {"\n   const char **reason", "reason"},
                 {"mpt_tensor *out", "out"},
                 {"void *data", "data"},
                 {"int64_t sizes[2]", "sizes"},
                 {"const char *path", NULL},
                 {"const char *const *names", NULL},
                 {"size_t size", NULL},
                 {"mpt_context *context", NULL},
                 {"mpt_op_call *call", NULL},
                 {"void *user", NULL},
                 {"void (*write)(void *user, char *line)", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64] = "";
        const char *text = cases[i].text;
        CHECK((cases[i].name != NULL) == writes(text, text + strlen(text), name));
        if (cases[i].name) CHECK_EQ_STR(name, cases[i].name);
    }
}

/* ---- samples ---- */

/* mpt_sample has room for one class number: it refuses what else a target may be, with its number,
   and names the call that has room. Nothing is written. */
static void check_refused(mpt_dataset dataset, mpt_status status, const char *says) {
    int64_t target[2] = {-7, -7};
    float input[8] = {-1, -1};
    CHECK_EQ_INT(mpt_sample(dataset, 0, input, target), status);
    CHECK_CONTAINS(mpt_error(c), says);
    CHECK_CONTAINS(mpt_error(c), "mpt_sample_into");
    CHECK(target[0] == -7 && target[1] == -7 && input[0] < 0);
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_sample(dataset, 0, input, NULL), MPT_OK);
    CHECK(input[0] >= 0);
}

static void check_sizes(mpt_dataset dataset, mpt_dtype dtype, mpt_dtype target_dtype, int rank,
                        size_t bytes, size_t target_bytes) {
    mpt_sample_sizes sizes;
    CHECK_EQ_INT(mpt_sample_into(dataset, 0, NULL, 0, NULL, 0, &sizes), MPT_OK);
    CHECK_EQ_INT(sizes.dtype, dtype);
    CHECK_EQ_INT(sizes.target_dtype, target_dtype);
    CHECK_EQ_INT(sizes.shape.rank, mpt_dataset_shape(dataset).rank);
    CHECK_EQ_INT(sizes.target_shape.rank, rank);
    CHECK_EQ_INT(sizes.bytes, bytes);
    CHECK_EQ_INT(sizes.target_bytes, target_bytes);
    CHECK_EQ_STR(mpt_error(c), "");
}

TEST(samples_with_float_targets) {
    static const uint16_t halves[2 * ROWS] = {0x3c00, 0xc000, 0x3800}; /* 1, -2, 0.5 */
    static const uint8_t bytes[ROWS] = {255, 51};
    const float want_input[WIDTH] = {3, 4, 5}, want_target[WIDTH] = {3.5f, 4.5f, 5.5f};
    float input[WIDTH], target[WIDTH];
    uint16_t half[2];
    mpt_sample_sizes sizes;
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    c = make_context();
    make_data();
    check_refused(data, MPT_ERROR_DTYPE, "3 targets (float32 [3])");
    check_sizes(data, MPT_F32, MPT_F32, 1, sizeof input, sizeof target);
    CHECK_EQ_INT(mpt_sample_into(data, 1, input, sizeof input, target, sizeof target, &sizes), 0);
    CHECK_EQ_BITS(input, want_input, sizeof input);
    CHECK_EQ_BITS(target, want_target, sizeof target);
    CHECK_EQ_INT(sizes.target_shape.dim[0], WIDTH);
    /* a room too small tells the sizes, too */
    memset(&sizes, 0, sizeof sizes);
    CHECK_EQ_INT(mpt_sample_into(data, 1, input, sizeof input, target, 8, &sizes),
                 MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(c), "room for 12 bytes of input, 8 of targets; they take 12 and 12");
    CHECK_EQ_INT(sizes.target_bytes, sizeof target);
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_sample_into(data, ROWS, input, sizeof input, NULL, 0, NULL), MPT_ERROR_INDEX);
    mpt_clear_error(c);
    /* one float is no class number either; bytes of inputs arrive as fp32 */
    config.count = ROWS, config.dtype = MPT_U8, config.inputs = bytes;
    config.target_dtype = MPT_F16, config.targets = halves;
    check_refused(mpt_memory_dataset(c, &config), MPT_ERROR_DTYPE, "1 targets (float16 [])");
    config.target_shape = MPT_SHAPE(2);
    mpt_dataset two = mpt_memory_dataset(c, &config);
    check_sizes(two, MPT_F32, MPT_F16, 1, 4, 4);
    CHECK_EQ_INT(mpt_sample_into(two, 0, input, 4, half, 4, NULL), MPT_OK);
    CHECK(input[0] == 1 && half[0] == 0x3c00 && half[1] == 0xc000);
    /* none at all */
    config.targets = NULL;
    mpt_dataset without = mpt_memory_dataset(c, &config);
    check_refused(without, MPT_ERROR_DTYPE, "0 targets (none [])");
    check_sizes(without, MPT_F32, MPT_DTYPE_NONE, 0, 4, 0);
    CHECK_EQ_INT(mpt_sample_into(without, 0, input, 4, half, 4, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* Whole numbers: windows of tokens, whose inputs a loader does not convert, and classes in two
   columns. */
TEST(samples_with_several_class_numbers) {
    static const int32_t ids[9] = {1, 2, 3, 4, 5, 6, 16777217, 8, 9};
    static const char csv[] = "a,p,q\n1,u,x\n2,v,y\n";
    const mpt_column columns[2] = {{"p", MPT_COLUMN_CLASS}, {"q", MPT_COLUMN_CLASS}};
    const int64_t want_input[4] = {5, 6, 16777217, 8}, want_target[4] = {6, 16777217, 8, 9};
    int64_t input[4], target[4];
    float value;
    mpt_window_config window = mpt_window_config_default();
    mpt_table_config table = mpt_table_config_default();
    mpt_context *context = c = make_context();
    NEEDS_FILES
    window.block = 4;
    mpt_dataset windows = mpt_token_memory(c, ids, 9, &window);
    check_refused(windows, MPT_ERROR_SHAPE, "4 targets (int64 [4])");
    check_sizes(windows, MPT_I64, MPT_I64, 1, sizeof input, sizeof target);
    CHECK_EQ_INT(mpt_sample_into(windows, 1, input, sizeof input, target, sizeof target, NULL), 0);
    CHECK_EQ_BITS(input, want_input, sizeof input);
    CHECK_EQ_BITS(target, want_target, sizeof target);
    table.columns = columns, table.column_count = 2;
    mpt_dataset classes = mpt_csv_memory(c, csv, sizeof csv - 1, &table);
    check_refused(classes, MPT_ERROR_SHAPE, "2 targets (int64 [2])");
    check_sizes(classes, MPT_F32, MPT_I64, 1, 4, 16);
    CHECK_EQ_INT(mpt_sample_into(classes, 1, &value, 4, target, 16, NULL), MPT_OK);
    CHECK(value == 2 && target[0] == 1 && target[1] == 1);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST_TABLE = {T(rooms_of_every_size), T(every_out_pointer_has_a_row), T(the_list_knows_rooms),
              T(samples_with_float_targets), T(samples_with_several_class_numbers)};
TEST_MAIN
