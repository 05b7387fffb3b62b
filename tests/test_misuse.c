/* test_misuse.c: every function of the API called wrongly. The list of functions is read from the
   header's declarations: one without a case fails. After each case the context holds one error that
   names the function and what was expected, further calls change nothing, and after mpt_clear_error
   training goes on with the bits of a twin that nobody misused. A child made by fork runs them all
   once more: there every call on its parent's contexts is an error. So do inference mode, a
   recording and a captured step; calls get tensors of every dtype, of odd shapes and of another
   context. */
#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L /* fork under -std=c11 */
#endif
#include MPTRAIN_HEADER_FILE
#include <math.h>
#if !defined(_WIN32) && !defined(MPTRAIN_NO_THREADS) && !defined(__SANITIZE_THREAD__)
#define HAVE_FORK
#include <sys/wait.h>
#include <unistd.h>
#endif
#include "floats.h"
#include "harness.h"
#include "training.h"

/* ==== What the cases work on ==== */

typedef struct fixture {
    mpt_context *context, *other;
    training t, twin;                     /* misused, left alone */
    mpt_tensor nil, none, stale, foreign; /* no context; slot 0; ended; of `other` */
    mpt_tensor x, half, longs, scalar, wide, labels, square;
    mpt_module no_module, stale_module, foreign_module, net;
    mpt_optimizer no_optimizer, stale_optimizer, foreign_optimizer;
    mpt_scaler no_scaler, stale_scaler;
    mpt_schedule no_schedule, stale_schedule;
    mpt_ema no_ema, stale_ema;
    mpt_dataset no_data, stale_data, foreign_data;
    mpt_loader no_loader, stale_loader, foreign_loader;
    mpt_recording no_recording, stale_recording;
    mpt_captured no_captured, stale_captured;
    mpt_op no_op, stale_op;
    mpt_tokenizer no_tokenizer, stale_tokenizer;
} fixture;

static fixture f;

static mpt_status nothing_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    (void)context, (void)user, (void)x, (void)y;
    return MPT_OK;
}

static void make_tensors(void) {
    int64_t labels[4] = {0, 1, 2, 3};
    mpt_context *c = f.context;
    memset(&f.nil, 0, sizeof f.nil);
    f.none = f.nil;
    f.none.context = c;
    mpt_step_begin(c);
    f.stale = mpt_ones(c, MPT_F32, MPT_SHAPE(2));
    mpt_step_end(c);
    f.foreign = mpt_ones(f.other, MPT_F32, MPT_SHAPE(4, 8));
    f.x = mpt_randn(c, MPT_F32, MPT_SHAPE(4, 8));
    f.half = mpt_cast(f.x, MPT_F16);
    f.longs = mpt_cast(mpt_ones(c, MPT_F32, MPT_SHAPE(4, 8)), MPT_I64);
    f.scalar = mpt_ones(c, MPT_F32, MPT_SCALAR);
    f.wide = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 5));
    f.square = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 4));
    f.labels = mpt_from(c, MPT_I64, MPT_SHAPE(4), labels);
}

/* Objects of each kind that are null, gone, or another context's. */
static void make_objects(void) {
    mpt_context *c = f.context;
    memset(&f.no_module, 0, sizeof f.no_module);
    memset(&f.no_optimizer, 0, sizeof f.no_optimizer);
    memset(&f.no_scaler, 0, sizeof f.no_scaler);
    memset(&f.no_schedule, 0, sizeof f.no_schedule);
    memset(&f.no_ema, 0, sizeof f.no_ema);
    memset(&f.no_data, 0, sizeof f.no_data);
    memset(&f.no_loader, 0, sizeof f.no_loader);
    memset(&f.no_recording, 0, sizeof f.no_recording);
    memset(&f.no_captured, 0, sizeof f.no_captured);
    memset(&f.no_op, 0, sizeof f.no_op);
    memset(&f.no_tokenizer, 0, sizeof f.no_tokenizer);
    f.stale_tokenizer.context = c;
    f.stale_tokenizer.slot = 77, f.stale_tokenizer.generation = 3;
    f.stale_op = f.no_op;
    f.stale_op.context = c, f.stale_op.slot = 77, f.stale_op.generation = 3;
    f.net = make_net(c);
    mpt_set_label(f.net, "another");
    f.stale_module = mpt_nn_relu(c);
    f.stale_optimizer = mpt_sgd(f.net, NULL);
    f.stale_schedule = mpt_cosine_annealing(f.stale_optimizer, 5, 0, MPT_PER_EPOCH);
    mpt_schedule_destroy(f.stale_schedule);
    f.stale_ema = mpt_ema_create(f.net, f.stale_optimizer, NULL);
    mpt_ema_destroy(f.stale_ema);
    mpt_optimizer_destroy(f.stale_optimizer);
    mpt_module_destroy(f.stale_module);
    f.stale_scaler = mpt_grad_scaler(c, NULL);
    mpt_scaler_destroy(f.stale_scaler);
    f.stale_data = make_data(c, 5);
    f.stale_loader = make_loader_of(c, f.stale_data, 2, 0, MPT_F32);
    mpt_loader_destroy(f.stale_loader);
    mpt_dataset_destroy(f.stale_data);
    mpt_record_begin(c);
    f.stale_recording = mpt_record_end(c);
    mpt_recording_destroy(f.stale_recording);
    f.stale_captured = mpt_capture(c, nothing_step, NULL);
    mpt_captured_destroy(f.stale_captured);
    f.foreign_module = f.twin.net;
    f.foreign_optimizer = f.twin.optimizer;
    f.foreign_data = f.twin.data;
    f.foreign_loader = f.twin.loader;
}

static char last_error[1024]; /* the last error that a log was told */

static void hear_error(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_ERROR) snprintf(last_error, sizeof last_error, "%s", message);
}

static void make_fixture(void) {
    mpt_config config = mpt_config_default();
    config.log.write = hear_error;
    config.threads = 1;
    config.memory_limit = 64 << 20;
    memset(&f, 0, sizeof f);
    f.other = mpt_create(&config);
    f.context = mpt_create(&config); /* the last one has the errors of null handles */
    make_training(&f.t, f.context, MPT_F16, 0);
    make_training(&f.twin, f.other, MPT_F16, 0);
    make_tensors();
    mpt_step_begin(f.other); /* the same count of steps in both */
    mpt_step_end(f.other);
    make_objects();
    train_step(&f.t);
    train_step(&f.twin);
}

/* ==== Cases ==== */

enum { MAX_NAMES = 600 };
static char covered[MAX_NAMES][48];
static int covered_errors[MAX_NAMES]; /* of their cases, those that end in an error */
static bool covered_in_child[MAX_NAMES]; /* refused there in its own name */
static bool in_child;
static uint32_t case_floats, usual_floats; /* the mode of a case, and that of the test */
static int covered_count;
static const char *case_function;
static int64_t case_count;

static int cover(const char *function) {
    int i = 0;
    while (i < covered_count && strcmp(covered[i], function) != 0) i++;
    if (i == MAX_NAMES - 1) TEST_FAIL_("more than %d functions", MAX_NAMES - 1);
    else if (i == covered_count)
        snprintf(covered[covered_count++], sizeof covered[0], "%s", function);
    return i;
}

/* For the test of the op table: which functions have how many cases that end in an error. */
static void write_covered(void) {
    const char *folder = getenv("MPTRAIN_TEST_TMP");
    FILE *out = folder && *folder ? fopen(test_path_(folder, "", "misuse"), "w") : NULL;
    for (int i = 0; out && i < covered_count; i++)
        fprintf(out, "%s %d\n", covered[i], covered_errors[i]);
    if (out) fclose(out);
}

static void complain(int line, const char *what) {
    test_failures++;
    printf("\n  line %d, %s: %s: \"%s\"", line, case_function, what, mpt_error(f.context));
}

/* Training after the case, beside the twin. */
static void case_train(int line) {
    train_step(&f.t);
    train_step(&f.twin);
    if (mpt_failed(f.context)) complain(line, "training afterwards fails");
    mpt_clear_error(f.context);
    if (training_hash(&f.t) != training_hash(&f.twin)) {
        complain(line, "training afterwards has other bits");
        mpt_copy_module(f.t.net, f.twin.net);
    }
}

static void case_begin(const char *function) {
    cover(function);
    case_function = function;
    case_count++;
    if (in_child) mpt_clear_error(f.context), mpt_clear_error(f.other);
    last_error[0] = '\0';
    floats_set(case_floats);
}

/* No call leaves another mode of floats behind. */
static void case_ran(int line) {
    const uint32_t left = floats_get();
    floats_set(usual_floats);
    if (left != case_floats) complain(line, "it changed how floats are rounded or flushed");
}

/* The message starts with the function, or with a shorter name that its family goes by. */
static bool names_function(const char *message, const char *function) {
    size_t n = 0;
    while (message[n] && message[n] != ' ') n++;
    return n >= 6 && strncmp(message, function, n) == 0;
}

/* In a child, whatever the case is about, the first call fails: the context is the parent's. */
static void case_end_in_child(int line) {
    if (!strstr(last_error, "this context was made before fork")) {
        test_failures++;
        printf("\n  line %d, %s: in a child: \"%s\"", line, case_function, last_error);
    }
    if (names_function(last_error, case_function)) covered_in_child[cover(case_function)] = true;
}

/* Uses up the ends that are allowed of what mpt_clear_error has closed. */
static void end_all(void) {
    static mpt_status (*const ends[])(mpt_context *) = {mpt_scope_end,     mpt_no_grad_end,
                                                        mpt_inference_end, mpt_recompute_end,
                                                        mpt_autocast_end};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        while (ends[i](f.context) == MPT_OK) {}
        mpt_clear_error(f.context);
    }
}

#include "misuse_places.h"

static void case_end(int line, mpt_status status, const char *text, const char *before) {
    const char *message = mpt_error(f.context);
    if (!mpt_failed(f.context))
        complain(line, "no error");
    else if (mpt_error_code(f.context) != status) {
        complain(line, mpt_status_name(mpt_error_code(f.context)));
    } else if (!strstr(message, text)) {
        complain(line, "the message lacks what was expected");
    } else if (!names_function(message, case_function)) {
        complain(line, "the message does not name the function");
    } else {
        covered_errors[cover(case_function)]++;
    }
    if (strcmp(message, before) != 0) complain(line, "a later call changed the error");
    mpt_clear_error(f.context);
    if (mpt_failed(f.context) || *mpt_error(f.context)) complain(line, "mpt_clear_error leaves it");
    end_all();
    case_train(line);
}

/* In another place the error may be another one. */
static void case_end_there(int line, const char *text, const char *before) {
    const char *message = mpt_error(f.context);
    if (!mpt_failed(f.context) && !place_allows(text)) complain(line, "no error");
    if (strcmp(message, before) != 0) complain(line, "a later call changed the error");
    place_leave();
    if (mpt_failed(f.context)) complain(line, "mpt_clear_error leaves it");
    end_all();
    case_train(line);
}

/* The statement must end in this error; once poisoned, it does nothing. */
#define CASE(function, status, text, ...) \
    do { \
        char before_[1024]; \
        case_begin(#function); \
        place_enter(); \
        { __VA_ARGS__; } \
        case_ran(__LINE__); \
        if (in_child) { \
            case_end_in_child(__LINE__); \
            break; \
        } \
        snprintf(before_, sizeof before_, "%s", mpt_error(f.context)); \
        if (mpt_failed(f.context)) { __VA_ARGS__; } \
        if (case_place) \
            case_end_there(__LINE__, text, before_); \
        else \
            case_end(__LINE__, status, text, before_); \
    } while (0)

/* A tensor of another context beside what is of this one: an error in one of the two. */
static void case_end_foreign(int line) {
    if (!mpt_failed(f.context) && !mpt_failed(f.other))
        complain(line, "no error of another context");
    if (case_place) place_leave();
    mpt_clear_error(f.context);
    mpt_clear_error(f.other);
    end_all();
    case_train(line);
}

/* Whether the call has another handle, of this context, that the two may not share. */
static bool has_others(const char *call) {
    if (strstr(call, "mpt_copy_module") || strstr(call, "mpt_share_module")) return false;
    if (strstr(call, "mine") || strstr(call, ", optimizer,")) return true;
    while ((call = strstr(call, "f.")) != NULL)
        if (call += 2, call[0] != 'n' || call[2] == 't') return true; /* not nil or none, but net */
    return false;
}

#define FOREIGN(function, text, ...) \
    do { \
        if (!has_others(text) || in_child) break; \
        case_begin(#function); \
        place_enter(); \
        __VA_ARGS__; \
        case_ran(__LINE__); \
        case_end_foreign(__LINE__); \
    } while (0)

/* Tensors of every dtype, and of odd shapes: ODD_SHAPES behind the dtypes. */
enum { ODD_SHAPES = 4, ODD = MPT_DTYPE_COUNT + ODD_SHAPES };
static mpt_tensor odd_tensor(int k) {
    const mpt_shape shapes[ODD_SHAPES] = {MPT_SCALAR, MPT_SHAPE(0, 3), MPT_SHAPE(2, 1, 2),
                                          MPT_SHAPE(1, 2, 1, 1, 2, 1, 1, 1)};
    if (k >= MPT_DTYPE_COUNT) return mpt_ones(f.context, MPT_F32, shapes[k - MPT_DTYPE_COUNT]);
    return mpt_cast(mpt_ones(f.context, MPT_F32, MPT_SHAPE(4, 8)), (mpt_dtype)k);
}

/* Whatever comes of it: a null handle and an error go together, and counters are as before. */
static void case_end_odd(int line, int k, mpt_tensor made) {
    if ((made.slot == 0) != mpt_failed(f.context)) {
        complain(line, made.slot ? "an error and a tensor" : "no tensor and no error");
        printf(" with tensor %d", k);
    }
    if (mpt_failed(f.context) && !*mpt_error(f.context)) complain(line, "an error without words");
    place_leave();
    end_all();
    case_train(line);
}

#define ODD_TENSORS(function, expression) \
    for (int k_ = 1; k_ < ODD && !in_child && case_floats == usual_floats; k_++) { \
        t_ = odd_tensor(k_); \
        const bool made_ = !mpt_failed(f.context); \
        mpt_clear_error(f.context); \
        if (!made_) continue; \
        case_begin(#function); \
        place_enter(); \
        const mpt_tensor y_ = (expression); \
        case_ran(__LINE__); \
        case_end_odd(__LINE__, k_, y_); \
        mpt_release(y_), mpt_release(t_); \
        mpt_clear_error(f.context); \
    }

/* A call without a context: the error is that of the last one made. */
#define NOWHERE(function, condition) \
    CASE(function, MPT_ERROR_HANDLE, "null handle", CHECK(condition))

/* A call that cannot fail: it only must hold. */
#define QUIET(function, condition) \
    do { \
        case_begin(#function); \
        place_enter(); \
        bool holds_ = in_child || (condition); \
        case_ran(__LINE__); \
        if (in_child) break; \
        bool failed_ = mpt_failed(f.context); \
        holds_ = holds_ || (case_place && failed_) || place_allows(""); \
        if (!holds_) complain(__LINE__, #condition); \
        if (failed_ && !case_place) complain(__LINE__, "an error where none belongs"); \
        if (case_place) place_leave(), end_all(); \
        case_train(__LINE__); \
    } while (0)

/* The four bad handles of a tensor argument, called t_ in the expression, which makes a tensor. */
#define TENSOR(function, expression) \
    do { \
        mpt_tensor t_ = f.none; \
        CASE(function, MPT_ERROR_HANDLE, "null handle", CHECK((expression).slot == 0)); \
        t_ = f.stale; \
        CASE(function, MPT_ERROR_HANDLE, "tensor made in step 1 used in", \
             CHECK((expression).slot == 0)); \
        t_ = f.x, t_.slot = 123456789u; \
        CASE(function, MPT_ERROR_HANDLE, "stale handle", CHECK((expression).slot == 0)); \
        t_ = f.nil; \
        CASE(function, MPT_ERROR_HANDLE, "null handle", CHECK((expression).slot == 0)); \
        FOREIGN(function, #expression, t_ = f.foreign; CHECK((expression).slot == 0)); \
        ODD_TENSORS(function, expression) \
    } while (0)

/* The same for calls that give a status or a value. */
#define HANDLE(function, null_handle, statement) \
    do { \
        mpt_tensor t_ = f.none; \
        CASE(function, MPT_ERROR_HANDLE, null_handle, statement); \
        t_ = f.stale; \
        CASE(function, MPT_ERROR_HANDLE, "tensor made in step 1 used in", statement); \
        t_ = f.nil; \
        CASE(function, MPT_ERROR_HANDLE, "null handle", statement); \
        FOREIGN(function, #statement, t_ = f.foreign; statement); \
    } while (0)

#define ARGUMENT MPT_ERROR_ARGUMENT
#define SHAPE MPT_ERROR_SHAPE
#define DTYPE MPT_ERROR_DTYPE
#define STATE MPT_ERROR_STATE
#define BAD_HANDLE MPT_ERROR_HANDLE

/* ==== Contexts ==== */

static void no_context(const char *text) {
    if (!strstr(mpt_error(NULL), text))
        printf("\n  mpt_create says \"%s\"", mpt_error(NULL)), test_failures++;
}

TEST(contexts) {
    mpt_config c = mpt_config_default();
    case_floats = usual_floats = floats_get();
    make_fixture();
    c.threads = -1;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("threads = -1: expected 0");
    c = mpt_config_default(), c.isa = (mpt_isa)99;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("99");
    c = mpt_config_default(), c.isa = MPT_ISA_UNKNOWN; /* of MPTRAIN_ISA=AVX2, say */
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("isa (MPTRAIN_ISA) 10: expected auto, ref, avx2");
    c = mpt_config_default(), c.device = (mpt_device)7;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("device 7");
    c = mpt_config_default(), c.device_index = -1;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("device_index");
    c = mpt_config_default(), c.memory_limit = -1;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("memory_limit");
    c = mpt_config_default(), c.memory_limit = 10;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("out of memory");
    c = mpt_config_default(), c.allocator.allocate = arena_allocate;
    QUIET(mpt_create, mpt_create(&c) == NULL);
    no_context("allocator");
    QUIET(mpt_config_default, mpt_config_default().threads == 0);
    mpt_destroy(NULL);
    cover("mpt_destroy");
    QUIET(mpt_version, mpt_version() == MPTRAIN_VERSION);
    QUIET(mpt_get_isa, mpt_get_isa(NULL) == MPT_ISA_AUTO);
    QUIET(mpt_isa_name, mpt_isa_name((mpt_isa)99) != NULL);
    QUIET(mpt_get_threads, mpt_get_threads(NULL) == 0);
    QUIET(mpt_get_device, mpt_get_device(NULL) == MPT_DEVICE_AUTO);
    QUIET(mpt_device_name, strcmp(mpt_device_name(NULL), "none") == 0);
    QUIET(mpt_get_device_info, mpt_get_device_info(NULL).device == MPT_DEVICE_AUTO);
    const char *reason;
    QUIET(mpt_precision_auto, mpt_precision_auto(NULL, &reason) == MPT_F32);
    QUIET(mpt_precision_auto, strstr(reason, "no context") != NULL);
    QUIET(mpt_device_count, mpt_device_count((mpt_device)7) == 0);
    NOWHERE(mpt_benchmark, mpt_benchmark(NULL, true, true) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_benchmark_text, mpt_benchmark_text(NULL, NULL, 5) == 0);
    NOWHERE(mpt_benchmark_read, mpt_benchmark_read(NULL, "") == MPT_ERROR_HANDLE);
    QUIET(mpt_dtype_name, strcmp(mpt_dtype_name((mpt_dtype)-1), "none") == 0);
    QUIET(mpt_dtype_name, strcmp(mpt_dtype_name(MPT_DTYPE_COUNT), "none") == 0);
    QUIET(mpt_dtype_size, mpt_dtype_size((mpt_dtype)1000) == 0);
    QUIET(mpt_log_stderr, (mpt_log_stderr(NULL, MPT_LOG_DEBUG, "a line of test_misuse"), true));
    QUIET(mpt_status_name, strcmp(mpt_status_name((mpt_status)99), "unknown") == 0);
    QUIET(mpt_memory_kind_name, strcmp(mpt_memory_kind_name((mpt_memory_kind)-1), "unknown") == 0);
    NOWHERE(mpt_synchronize, mpt_synchronize(NULL) == MPT_ERROR_HANDLE);
    QUIET(mpt_failed, mpt_failed(NULL));
    QUIET(mpt_error, mpt_error(NULL) != NULL);
    QUIET(mpt_error_code, mpt_error_code(NULL) == MPT_ERROR_HANDLE);
    QUIET(mpt_clear_error, (mpt_clear_error(NULL), mpt_clear_error(f.context), true));
    QUIET(mpt_memory, mpt_memory(NULL).held == 0);
    QUIET(mpt_memory_reset_peak, (mpt_memory_reset_peak(NULL), true));
    NOWHERE(mpt_memory_trim, (mpt_memory_trim(NULL), true));
    QUIET(mpt_plan, mpt_plan(NULL, NULL, 1, NULL, NULL) != MPT_OK && *mpt_error(NULL));
    QUIET(mpt_largest_batch, mpt_largest_batch(NULL, NULL, NULL, 1, 1) == -1 && *mpt_error(NULL));
}

TEST(steps_and_scopes) {
    NOWHERE(mpt_step_begin, mpt_step_begin(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_step_begin, STATE, "still open", mpt_step_begin(f.context); mpt_step_begin(f.context));
    CASE(mpt_step_end, STATE, "mpt_step_begin opens one", mpt_step_end(f.context));
    CASE(mpt_step_end, STATE, "scopes inside the step", mpt_step_begin(f.context);
         mpt_scope_begin(f.context); mpt_step_end(f.context));
    NOWHERE(mpt_step_end, mpt_step_end(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_scope_begin, STATE, "scopes are open",
         for (int i = 0; i < 100; i++) mpt_scope_begin(f.context));
    NOWHERE(mpt_scope_begin, mpt_scope_begin(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_scope_end, STATE, "mpt_scope_begin opens one", mpt_scope_end(f.context));
    CASE(mpt_scope_end, STATE, "mpt_step_end", mpt_step_begin(f.context); mpt_scope_end(f.context));
    NOWHERE(mpt_scope_end, mpt_scope_end(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_scope_return, STATE, "mpt_scope_begin opens one",
         mpt_scope_return(f.context, NULL, 0));
    CASE(mpt_scope_return, STATE, "mpt_step_end", mpt_step_begin(f.context);
         mpt_scope_return(f.context, &f.x, 1));
    CASE(mpt_scope_return, ARGUMENT, "-1 results", mpt_scope_return(f.context, &f.x, -1));
    CASE(mpt_scope_return, ARGUMENT, "2 results", mpt_scope_return(f.context, NULL, 2));
    CASE(mpt_scope_return, MPT_ERROR_HANDLE, "result is a null handle",
         (mpt_scope_begin(f.context), mpt_scope_return(f.context, &f.none, 1)));
    CASE(mpt_scope_return, MPT_ERROR_HANDLE, "tensor made in step 1 used in",
         (mpt_scope_begin(f.context), mpt_scope_return(f.context, &f.stale, 1)));
    NOWHERE(mpt_scope_return, mpt_scope_return(NULL, NULL, 0) == MPT_ERROR_HANDLE);
    QUIET(mpt_step_is_open, !mpt_step_is_open(NULL) && !mpt_step_is_open(f.context));
    QUIET(mpt_step_number, mpt_step_number(NULL) == 0);
    TENSOR(mpt_keep, mpt_keep(t_));
    CASE(mpt_release, STATE, "mpt_module_destroy", mpt_release(mpt_parameter(f.net, "0.weight")));
    QUIET(mpt_release, (mpt_release(f.nil), mpt_release(f.none), mpt_release(f.stale), true));
    CASE(mpt_release, STATE, "mpt_clear_grad",
         mpt_tensor w = mpt_ones(f.context, MPT_F32, MPT_SHAPE(1));
         mpt_requires_grad(w, true); mpt_backward(mpt_mul_scalar(w, 2)); mpt_release(mpt_grad(w)));
    QUIET(mpt_valid, !mpt_valid(f.nil) && !mpt_valid(f.none) && !mpt_valid(f.stale));
}

/* ==== Tensors ==== */

#define MAKER(function, call) \
    do { \
        mpt_context *c_ = NULL; \
        mpt_dtype d_ = MPT_F32; \
        mpt_shape s_ = MPT_SHAPE(2, 3); \
        NOWHERE(function, (call).slot == 0); \
        c_ = f.context, s_.dim[0] = -2; \
        CASE(function, SHAPE, "negative dimension", CHECK((call).slot == 0)); \
        s_.dim[0] = INT64_MAX / 2; \
        CASE(function, SHAPE, "elements", CHECK((call).slot == 0)); \
        s_.dim[0] = 2, s_.rank = 9; \
        CASE(function, SHAPE, "rank 9 is not in 0..8", CHECK((call).slot == 0)); \
        s_.rank = -1; \
        CASE(function, SHAPE, "rank -1", CHECK((call).slot == 0)); \
        s_.rank = 2, d_ = (mpt_dtype)55; \
        CASE(function, mpt_error_code(f.context), "dtype", CHECK((call).slot == 0)); \
        d_ = MPT_DTYPE_NONE; \
        CASE(function, mpt_error_code(f.context), "dtype", CHECK((call).slot == 0)); \
        s_ = MPT_SHAPE(INT64_C(1) << 45), d_ = MPT_F32; \
        if (many) CASE(function, MPT_ERROR_MEMORY, "out of memory", CHECK((call).slot == 0)); \
    } while (0)

TEST(making_tensors) {
    static float data[6] = {0, 1, 2, 3, 4, 5};
    bool many = true;
    MAKER(mpt_zeros, mpt_zeros(c_, d_, s_));
    MAKER(mpt_ones, mpt_ones(c_, d_, s_));
    MAKER(mpt_full, mpt_full(c_, d_, s_, 3));
    MAKER(mpt_rand, mpt_rand(c_, d_, s_));
    MAKER(mpt_randn, mpt_randn(c_, d_, s_));
    MAKER(mpt_from, mpt_from(c_, d_, s_, data));
    many = false; /* it takes no memory of its own */
    MAKER(mpt_wrap, mpt_wrap(c_, d_, s_, data));
    CASE(mpt_rand, DTYPE, "float dtype", mpt_rand(f.context, MPT_I64, MPT_SHAPE(2)));
    MAKER(mpt_randn_seeded, mpt_randn_seeded(c_, d_, s_, 1));
    CASE(mpt_randn_seeded, DTYPE, "float dtype",
         mpt_randn_seeded(f.context, MPT_BOOL, MPT_SHAPE(2), 1));
    CASE(mpt_randn, DTYPE, "float dtype", mpt_randn(f.context, MPT_BOOL, MPT_SHAPE(2)));
    mpt_categorical_config by = mpt_categorical_config_default();
    QUIET(mpt_categorical_config_default, by.temperature == 1 && by.top_p == 1);
    TENSOR(mpt_categorical, mpt_categorical(t_, NULL));
    CASE(mpt_categorical, DTYPE, "dtype int64: expected", mpt_categorical(f.longs, NULL));
    CASE(mpt_categorical, ARGUMENT, "by weights []", mpt_categorical(f.scalar, NULL));
    by.temperature = -1;
    CASE(mpt_categorical, ARGUMENT, "temperature = -1", mpt_categorical(f.x, &by));
    by.temperature = 0, by.top_k = -1;
    CASE(mpt_categorical, ARGUMENT, "top_k = -1; expected", mpt_categorical(f.x, &by));
    by.top_k = 0, by.top_p = 0;
    CASE(mpt_categorical, ARGUMENT, "top_p = 0; expected a share", mpt_categorical(f.x, &by));
    CASE(mpt_categorical, ARGUMENT, "row 0 has no logit above -infinity",
         mpt_categorical(mpt_full(f.context, MPT_F32, MPT_SHAPE(2, 3), -INFINITY), NULL));
    CASE(mpt_categorical, ARGUMENT, "logit 0 of row 0 is nan",
         mpt_categorical(mpt_full(f.context, MPT_F32, MPT_SHAPE(2, 3), NAN), NULL));
    CASE(mpt_categorical, ARGUMENT, "logit 0 of row 0 is inf",
         mpt_categorical(mpt_full(f.context, MPT_F32, MPT_SHAPE(2, 3), INFINITY), NULL));
    TENSOR(mpt_multinomial, mpt_multinomial(t_, 1, true));
    CASE(mpt_multinomial, DTYPE, "dtype int64: expected", mpt_multinomial(f.longs, 1, true));
    CASE(mpt_multinomial, ARGUMENT, "0 draws by weights [4, 8]", mpt_multinomial(f.x, 0, true));
    CASE(mpt_multinomial, ARGUMENT, "-1 draws", mpt_multinomial(f.x, -1, false));
    CASE(mpt_multinomial, ARGUMENT, "by weights []: expected 1 or more, by [.., n]",
         mpt_multinomial(f.scalar, 1, true));
    CASE(mpt_multinomial, SHAPE, "elements", mpt_multinomial(f.x, INT64_MAX / 2, true));
    CASE(mpt_multinomial, MPT_ERROR_MEMORY, "out of memory",
         mpt_multinomial(mpt_ones(f.context, MPT_F32, MPT_SHAPE(2)), INT64_C(1) << 45, true));
    static const float bad[4][2] = {{1, -1}, {1, (float)NAN}, {(float)INFINITY, 1}, {0, 0}};
    static const char *const says[4] = {"weight 1 of row 1 is -1: expected finite ones, 0 or more",
                                        "weight 1 of row 1 is nan", "weight 0 of row 1 is inf",
                                        "row 1 has 0 weights above 0: expected 1 or more"};
    for (int i = 0; i < 4; i++) {
        const float rows[4] = {1, 1, bad[i][0], bad[i][1]};
        CASE(mpt_multinomial, ARGUMENT, says[i],
             mpt_multinomial(mpt_from(f.context, MPT_F32, MPT_SHAPE(2, 2), rows), 1, true));
    }
    CASE(mpt_multinomial, ARGUMENT, "row 0 has 2 weights above 0: expected 3 or more",
         mpt_multinomial(mpt_ones(f.context, MPT_F32, MPT_SHAPE(2)), 3, false));
    CASE(mpt_multinomial, ARGUMENT, "the weights of row 0 add up to inf",
         mpt_multinomial(mpt_full(f.context, MPT_F64, MPT_SHAPE(2), 1e308), 1, false));
    CASE(mpt_multinomial, ARGUMENT, "row 0 has 0 weights above 0",
         mpt_multinomial(mpt_ones(f.context, MPT_F32, MPT_SHAPE(1, 0)), 1, true));
    TENSOR(mpt_rand_like, mpt_rand_like(t_));
    TENSOR(mpt_randn_like, mpt_randn_like(t_));
    CASE(mpt_rand_like, DTYPE, "dtype int64: expected a float dtype", mpt_rand_like(f.longs));
    CASE(mpt_randn_like, DTYPE, "dtype int64: expected a float dtype", mpt_randn_like(f.longs));
    CASE(mpt_from, ARGUMENT, "data is NULL", mpt_from(f.context, MPT_F32, MPT_SHAPE(2), NULL));
    CASE(mpt_wrap, ARGUMENT, "data must be 8 bytes",
         mpt_wrap(f.context, MPT_F32, MPT_SHAPE(2), NULL));
    CASE(mpt_wrap, ARGUMENT, "aligned to 4",
         mpt_wrap(f.context, MPT_F32, MPT_SHAPE(1), (char *)data + 1));
    NOWHERE(mpt_arange, mpt_arange(NULL, MPT_F32, 3).slot == 0);
    CASE(mpt_arange, ARGUMENT, "count -1", mpt_arange(f.context, MPT_F32, -1));
    CASE(mpt_cast, ARGUMENT, "none of mpt_dtype", mpt_arange(f.context, (mpt_dtype)77, 3));
    CASE(mpt_arange, MPT_ERROR_MEMORY, "out of memory",
         mpt_arange(f.context, MPT_F32, INT64_C(1) << 50));
}

static bool is_nan(double value) { return value != value; }

TEST(reading_tensors) {
    float out[32], *nowhere = NULL;
    char text[8];
    HANDLE(mpt_get_shape, "null handle", CHECK_EQ_INT(mpt_get_shape(t_).rank, -1));
    HANDLE(mpt_get_dtype, "null handle", CHECK_EQ_INT(mpt_get_dtype(t_), MPT_DTYPE_NONE));
    HANDLE(mpt_numel, "null handle", CHECK_EQ_INT(mpt_numel(t_), -1));
    HANDLE(mpt_is_contiguous, "null handle", CHECK(!mpt_is_contiguous(t_)));
    HANDLE(mpt_item, "null handle", CHECK(is_nan(mpt_item(t_))));
    CASE(mpt_item, SHAPE, "one element", mpt_item(f.x));
    HANDLE(mpt_read, "null handle", CHECK(mpt_read(t_, out, 8) != MPT_OK));
    CASE(mpt_read, ARGUMENT, "has 128 bytes, got room for 4", mpt_read(f.x, out, 4));
    CASE(mpt_read, ARGUMENT, "has 128 bytes", mpt_read(f.x, nowhere, 128));
    HANDLE(mpt_read_f32, "null handle", CHECK(mpt_read_f32(t_, out, 2) != MPT_OK));
    CASE(mpt_read_f32, ARGUMENT, "has 32 elements, got room for 33", mpt_read_f32(f.x, out, 33));
    CASE(mpt_read_f32, ARGUMENT, "has 32 elements", mpt_read_f32(f.x, nowhere, 32));
    CASE(mpt_read_f32, ARGUMENT, "has 32 elements", mpt_read_f32(f.x, out, -1));
    HANDLE(mpt_write, "null handle", CHECK(mpt_write(t_, out, 8) != MPT_OK));
    CASE(mpt_write, ARGUMENT, "has 128 bytes, got 4", mpt_write(f.x, out, 4));
    CASE(mpt_write, ARGUMENT, "has 128 bytes", mpt_write(f.x, nowhere, 128));
    CASE(mpt_write, STATE, "mpt_clone", mpt_write(mpt_expand(f.scalar, MPT_SHAPE(3)), out, 12));
    mpt_print_config p = mpt_print_config_default();
    QUIET(mpt_print_config_default, p.digits == 4);
    HANDLE(mpt_format, "null handle", CHECK_EQ_INT(mpt_format(t_, NULL, text, sizeof text), 0));
    p.digits = 0;
    CASE(mpt_format, ARGUMENT, "expected 1..17", mpt_format(f.x, &p, text, sizeof text));
    p.digits = 3, p.edge = -1;
    CASE(mpt_format, ARGUMENT, "edge -1", mpt_format(f.x, &p, text, sizeof text));
    QUIET(mpt_format, mpt_format(f.x, NULL, NULL, 100) > 20);
    QUIET(mpt_format, mpt_format(f.x, NULL, text, sizeof text) > 20 && strlen(text) == 7);
    HANDLE(mpt_allclose, "null handle", CHECK(!mpt_allclose(t_, t_, 1e-5, 1e-8)));
    CASE(mpt_allclose, SHAPE, "differ", mpt_allclose(f.x, f.wide, 0, 0));
    mpt_tensor huge = mpt_expand(f.scalar, MPT_SHAPE(INT64_C(1) << 40));
    CASE(mpt_allclose, MPT_ERROR_MEMORY, "out of memory", mpt_allclose(huge, huge, 0, 0));
    CASE(mpt_read_f32, ARGUMENT, "has 1099511627776 elements", mpt_read_f32(huge, out, 1));
    HANDLE(mpt_statistics, "null handle", CHECK_EQ_INT(mpt_statistics(t_).count, 0));
    CASE(mpt_statistics, MPT_ERROR_MEMORY, "out of memory", mpt_statistics(huge));
    int64_t counts[2];
    int64_t matrix[64] = {0};
    mpt_tensor some = mpt_zeros(f.context, MPT_I64, MPT_SHAPE(4));
    mpt_tensor beyond = mpt_full(f.context, MPT_I64, MPT_SHAPE(4), 8);
    HANDLE(mpt_confusion, "null handle", CHECK(mpt_confusion(t_, some, matrix, 8) != MPT_OK));
    HANDLE(mpt_confusion, "null handle", CHECK(mpt_confusion(f.x, t_, matrix, 8) != MPT_OK));
    CASE(mpt_confusion, ARGUMENT, "0 classes", mpt_confusion(f.x, some, NULL, 8));
    CASE(mpt_confusion, ARGUMENT, "-1 classes", mpt_confusion(f.x, some, matrix, -1));
    CASE(mpt_confusion, SHAPE, "outputs float32 [4, 8], targets int64 [4]: expected i64 targets",
         mpt_confusion(f.x, some, matrix, 7));
    CASE(mpt_confusion, SHAPE, "targets float32 [4, 8]", mpt_confusion(f.x, f.x, matrix, 8));
    CASE(mpt_confusion, SHAPE, "outputs float32 []", mpt_confusion(f.scalar, some, matrix, 8));
    CASE(mpt_confusion, ARGUMENT, "target 0 is 8: expected 0 to 7",
         mpt_confusion(f.x, beyond, matrix, 8));
    CASE(mpt_confusion, ARGUMENT, "output 0 is 8: expected 0 to 7",
         mpt_confusion(beyond, some, matrix, 8));
    QUIET(mpt_class_scores, isnan(mpt_class_scores(NULL, 8, 0).f1) &&
                                isnan(mpt_class_scores(matrix, 8, 8).f1) &&
                                isnan(mpt_class_scores(matrix, 8, -4).f1) &&
                                isnan(mpt_class_scores(matrix, 0, MPT_MICRO).f1) == 0);
    HANDLE(mpt_histogram, "null handle", CHECK(mpt_histogram(t_, 0, 1, counts, 2) != MPT_OK));
    CASE(mpt_histogram, ARGUMENT, "2 bins from 1 to 1", mpt_histogram(f.x, 1, 1, counts, 2));
    CASE(mpt_histogram, ARGUMENT, "0 bins", mpt_histogram(f.x, 0, 1, NULL, 2));
    CASE(mpt_histogram, ARGUMENT, "finite low < high",
         mpt_histogram(f.x, -(double)INFINITY, 1, counts, 2));
    CASE(mpt_histogram, MPT_ERROR_MEMORY, "out of memory", mpt_histogram(huge, 0, 1, counts, 2));
    CASE(mpt_allclose, BAD_HANDLE, "another context", mpt_allclose(f.x, f.foreign, 0, 0));
    HANDLE(mpt_expect_shape, "null handle",
           CHECK(mpt_expect_shape(t_, MPT_SHAPE(1), "t") != MPT_OK));
    CASE(mpt_expect_shape, SHAPE, "labels has shape [4, 8], expected [4, 9]",
         mpt_expect_shape(f.x, MPT_SHAPE(4, 9), "labels"));
    mpt_shape odd = MPT_SCALAR;
    odd.rank = 100;
    CASE(mpt_expect_shape, SHAPE, "rank 100", mpt_expect_shape(f.x, odd, NULL));
}

TEST(views) {
    mpt_shape odd = MPT_SHAPE(2, 2);
    odd.rank = 11;
    TENSOR(mpt_reshape, mpt_reshape(t_, MPT_SHAPE(2)));
    CASE(mpt_reshape, SHAPE, "cannot become [5, 7]", mpt_reshape(f.x, MPT_SHAPE(5, 7)));
    CASE(mpt_reshape, SHAPE, "cannot become", mpt_reshape(f.x, MPT_SHAPE(-1, -1)));
    CASE(mpt_reshape, SHAPE, "cannot become", mpt_reshape(f.x, MPT_SHAPE(-3, 4)));
    CASE(mpt_reshape, SHAPE, "cannot become",
         mpt_reshape(f.x, MPT_SHAPE(INT64_MAX, INT64_MAX, 4, 8)));
    CASE(mpt_reshape, SHAPE, "rank 11 is not in 0..8", mpt_reshape(f.x, odd));
    TENSOR(mpt_permute, mpt_permute(t_, MPT_SHAPE(0)));
    CASE(mpt_permute, ARGUMENT, "each named once", mpt_permute(f.x, MPT_SHAPE(0, 0)));
    CASE(mpt_permute, ARGUMENT, "each named once", mpt_permute(f.x, MPT_SHAPE(0)));
    CASE(mpt_permute, ARGUMENT, "each named once", mpt_permute(f.x, MPT_SHAPE(0, INT64_MIN)));
    CASE(mpt_permute, SHAPE, "rank 11", mpt_permute(f.x, odd));
    TENSOR(mpt_transpose, mpt_transpose(t_, 0, 0));
    CASE(mpt_transpose, ARGUMENT, "dimension 2 is out of range", mpt_transpose(f.x, 0, 2));
    CASE(mpt_transpose, ARGUMENT, "dimension -3", mpt_transpose(f.x, -3, 0));
    TENSOR(mpt_select, mpt_select(t_, 0, 0));
    CASE(mpt_select, ARGUMENT, "dimension 2 is out of range", mpt_select(f.x, 2, 0));
    CASE(mpt_select, ARGUMENT, "dimension 0 is out of range", mpt_select(f.scalar, 0, 0));
    CASE(mpt_select, ARGUMENT, "index 8 is not in dimension 1 of [4, 8]", mpt_select(f.x, -1, 8));
    CASE(mpt_select, ARGUMENT, "index -5 is not in dimension 0", mpt_select(f.x, 0, -5));
    CASE(mpt_select, ARGUMENT, "index -9223372036854775808 is not in",
         mpt_select(f.x, 0, INT64_MIN));
    CASE(mpt_select, ARGUMENT, "index 0 is not in dimension 0 of [0]",
         mpt_select(mpt_zeros(f.context, MPT_I64, MPT_SHAPE(0)), 0, 0));
    TENSOR(mpt_slice, mpt_slice(t_, 0, 0, 1, 1));
    CASE(mpt_slice, ARGUMENT, "dimension 5 is out of range", mpt_slice(f.x, 5, 0, 1, 1));
    CASE(mpt_slice, ARGUMENT, "step 0: expected 1", mpt_slice(f.x, 0, 0, 1, 0));
    CASE(mpt_slice, ARGUMENT, "step -1", mpt_slice(f.x, 0, 0, 1, -1));
    CASE(mpt_slice, ARGUMENT, "dimension 0", mpt_slice(f.scalar, 0, 0, 1, 1));
    QUIET(mpt_slice, mpt_numel(mpt_slice(f.x, 0, INT64_MIN, INT64_MAX, INT64_MAX)) == 8);
    TENSOR(mpt_expand, mpt_expand(t_, MPT_SHAPE(3, 2)));
    CASE(mpt_expand, SHAPE, "does not expand to [4, 9]", mpt_expand(f.x, MPT_SHAPE(4, 9)));
    CASE(mpt_expand, SHAPE, "does not expand", mpt_expand(f.x, MPT_SHAPE(8)));
    CASE(mpt_expand, SHAPE, "does not expand", mpt_expand(f.x, MPT_SHAPE(-1, 4, 8)));
    CASE(mpt_expand, SHAPE, "does not expand",
         mpt_expand(f.x, MPT_SHAPE(INT64_MAX, INT64_MAX, 4, 8)));
    CASE(mpt_expand, SHAPE, "at most 2^59", mpt_expand(f.scalar, MPT_SHAPE(INT64_MAX)));
    CASE(mpt_expand, SHAPE, "rank 11", mpt_expand(f.x, odd));
    TENSOR(mpt_flatten, mpt_flatten(t_, 0, -1));
    CASE(mpt_flatten, ARGUMENT, "dimension 3", mpt_flatten(f.x, 3, 1));
    CASE(mpt_flatten, ARGUMENT, "last_dim 0 lies before first_dim 1", mpt_flatten(f.x, 1, 0));
    TENSOR(mpt_contiguous, mpt_contiguous(t_));
    TENSOR(mpt_clone, mpt_clone(t_));
    TENSOR(mpt_to_channels_last, mpt_to_channels_last(t_));
    HANDLE(mpt_is_channels_last, "null handle", CHECK(!mpt_is_channels_last(t_)));
    CASE(mpt_to_channels_last, SHAPE, "expected [N, C, H, W]", mpt_to_channels_last(f.x));
    TENSOR(mpt_detach, mpt_detach(t_));
    TENSOR(mpt_cast, mpt_cast(t_, MPT_F16));
    CASE(mpt_cast, ARGUMENT, "dtype 42 is none of mpt_dtype", mpt_cast(f.x, (mpt_dtype)42));
    CASE(mpt_cast, ARGUMENT, "dtype 0", mpt_cast(f.x, MPT_DTYPE_NONE));
    mpt_tensor two[2];
    two[0] = f.x, two[1] = f.wide;
    CASE(mpt_cat, SHAPE, "[4, 8] and [3, 5] (tensor 1) differ", mpt_cat(two, 2, 0));
    two[1] = f.foreign;
    CASE(mpt_cat, BAD_HANDLE, "another context", mpt_cat(two, 2, 0));
    two[1] = f.stale;
    CASE(mpt_cat, BAD_HANDLE, "argument 2: tensor made in step", mpt_cat(two, 2, 0));
    two[1] = f.nil;
    CASE(mpt_cat, BAD_HANDLE, "argument 2 is a null handle", mpt_cat(two, 2, 0));
    two[1] = f.half;
    CASE(mpt_cat, DTYPE, "argument 1 is float32, argument 2 is float16", mpt_cat(two, 2, 0));
    two[1] = f.x;
    CASE(mpt_cat, ARGUMENT, "dimension 2", mpt_cat(two, 2, 2));
    NOWHERE(mpt_cat, mpt_cat(NULL, 3, 0).slot == 0 && mpt_cat(two, 0, 0).slot == 0 &&
                       mpt_cat(two, -1, 0).slot == 0);
}

/* ==== Ops ==== */

#define UNARY(function) \
    do { \
        TENSOR(function, function(t_)); \
        CASE(function, DTYPE, "argument 1", function(f.longs)); \
    } while (0)

#define BINARY(function) \
    do { \
        TENSOR(function, function(t_, t_)); \
        CASE(function, BAD_HANDLE, "argument 1 is a null handle", function(f.nil, f.x)); \
        CASE(function, BAD_HANDLE, "argument 2 is a null handle", function(f.x, f.nil)); \
        CASE(function, BAD_HANDLE, "argument 2: tensor made", function(f.x, f.stale)); \
        CASE(function, BAD_HANDLE, "another context", function(f.x, f.foreign)); \
        CASE(function, SHAPE, "[4, 8] ", function(f.x, f.wide)); \
        CASE(function, DTYPE, "argument 1 is float32, argument 2 is float16", \
             function(f.x, f.half)); \
    } while (0)

#define REDUCTION(function) \
    do { \
        TENSOR(function, function(t_, 0, false)); \
        CASE(function, ARGUMENT, "dimension 2 is out of range", function(f.x, 2, false)); \
        CASE(function, ARGUMENT, "dimension -3 is out of range", function(f.x, -3, true)); \
        CASE(function, DTYPE, "argument 1", function(f.longs, 0, false)); \
    } while (0)

TEST(ops) {
    BINARY(mpt_add);
    BINARY(mpt_sub);
    BINARY(mpt_mul);
    BINARY(mpt_div);
    BINARY(mpt_equal);
    BINARY(mpt_lt);
    BINARY(mpt_le);
    BINARY(mpt_gt);
    BINARY(mpt_ge);
    BINARY(mpt_ne);
    BINARY(mpt_pow);
    BINARY(mpt_minimum);
    BINARY(mpt_maximum);
    mpt_tensor two[2] = {f.x, f.wide}, parts[4];
    mpt_tensor index = mpt_full(f.context, MPT_I64, MPT_SHAPE(4, 8), 9);
    mpt_tensor row = mpt_full(f.context, MPT_I64, MPT_SHAPE(2), -1);
    TENSOR(mpt_gather, mpt_gather(t_, 0, t_));
    CASE(mpt_gather, BAD_HANDLE, "argument 2 is a null", mpt_gather(f.x, 0, f.nil));
    CASE(mpt_gather, DTYPE, "indices are float32: expected i64", mpt_gather(f.x, 0, f.x));
    CASE(mpt_gather, DTYPE, "argument 1 is int64", mpt_gather(f.longs, 0, f.longs));
    CASE(mpt_gather, ARGUMENT, "dimension 2", mpt_gather(f.x, 2, f.longs));
    CASE(mpt_gather, SHAPE, "differ outside dimension 0", mpt_gather(f.x, 0, row));
    CASE(mpt_gather, MPT_ERROR_INDEX, "indices is 9: expected 0 to 7", mpt_gather(f.x, 1, index);
         mpt_synchronize(f.context));
    TENSOR(mpt_index_select, mpt_index_select(t_, 0, t_));
    CASE(mpt_index_select, SHAPE, "expected one dimension", mpt_index_select(f.x, 0, f.longs));
    CASE(mpt_index_select, MPT_ERROR_INDEX, "element 0 of the indices is -1: expected 0 to 3",
         mpt_index_select(f.x, 0, row);
         mpt_synchronize(f.context));
    TENSOR(mpt_scatter_add, mpt_scatter_add(t_, 0, t_, t_));
    CASE(mpt_scatter_add, DTYPE, "argument 1 is float32, argument 3 is float16",
         mpt_scatter_add(f.x, 0, f.longs, f.half));
    CASE(mpt_scatter_add, SHAPE, "source [3, 5]", mpt_scatter_add(f.x, 0, f.longs, f.wide));
    CASE(mpt_scatter_add, MPT_ERROR_INDEX, "indices is 9: expected 0 to 7",
         mpt_scatter_add(f.x, 1, index, f.x);
         mpt_synchronize(f.context));
    TENSOR(mpt_one_hot, mpt_one_hot(t_, 3));
    CASE(mpt_one_hot, DTYPE, "classes are float32: expected i64", mpt_one_hot(f.x, 3));
    CASE(mpt_one_hot, ARGUMENT, "0 classes of shape [4]", mpt_one_hot(f.labels, 0));
    CASE(mpt_one_hot, MPT_ERROR_INDEX, "indices is 2: expected 0 to 1", mpt_one_hot(f.labels, 2);
         mpt_synchronize(f.context));
    TENSOR(mpt_stack, mpt_stack(&t_, 1, 0));
    TENSOR(mpt_einsum, mpt_einsum("ij->ji", &t_, 1));
    CASE(mpt_einsum, ARGUMENT, "in no operand", mpt_einsum("ij->k", &f.x, 1));
    CASE(mpt_stack, SHAPE, "differ outside", mpt_stack(two, 2, 0));
    CASE(mpt_stack, ARGUMENT, "dimension 3", mpt_stack(two, 1, 3));
    HANDLE(mpt_split_tensor, "null handle", CHECK(mpt_split_tensor(t_, 1, 0, parts, 4) == -1));
    CASE(mpt_split_tensor, ARGUMENT, "expected parts of 1 or more",
         mpt_split_tensor(f.x, 0, 0, parts, 4));
    CASE(mpt_split_tensor, ARGUMENT, "8 parts, but room for 4",
         mpt_split_tensor(f.x, 1, 1, parts, 4));
    HANDLE(mpt_chunk, "null handle", CHECK(mpt_chunk(t_, 1, 0, parts, 4) == -1));
    CASE(mpt_chunk, ARGUMENT, "expected parts of 1 or more", mpt_chunk(f.x, 0, 0, parts, 4));
    TENSOR(mpt_flip, mpt_flip(t_, 0));
    CASE(mpt_flip, ARGUMENT, "dimension 2", mpt_flip(f.x, 2));
    TENSOR(mpt_roll, mpt_roll(t_, 1, 0));
    CASE(mpt_roll, ARGUMENT, "dimension 2", mpt_roll(f.x, 1, 2));
    TENSOR(mpt_repeat, mpt_repeat(t_, MPT_SHAPE(2, 2)));
    CASE(mpt_repeat, ARGUMENT, "expected a number for each dimension",
         mpt_repeat(f.x, MPT_SHAPE(2)));
    TENSOR(mpt_pad, mpt_pad(t_, MPT_SHAPE(1, 1), 0));
    CASE(mpt_pad, ARGUMENT, "expected sizes before and after", mpt_pad(f.x, MPT_SHAPE(1, -1), 0));
    mpt_shape many = MPT_SHAPE(1, 1);
    many.rank = 1 << 24; /* more than a stack holds */
    CASE(mpt_pad, ARGUMENT, "sizes are not in 0..8", mpt_pad(f.x, many, 0));
    NOWHERE(mpt_pad, mpt_pad(f.nil, many, 0).slot == 0);
    TENSOR(mpt_tril, mpt_tril(t_, 0));
    CASE(mpt_tril, SHAPE, "expected a matrix", mpt_tril(f.scalar, 0));
    TENSOR(mpt_triu, mpt_triu(t_, 0));
    CASE(mpt_triu, SHAPE, "expected a matrix", mpt_triu(f.scalar, 0));
    TENSOR(mpt_logical_and, mpt_logical_and(t_, t_));
    CASE(mpt_logical_and, BAD_HANDLE, "argument 2 is a null", mpt_logical_and(f.x, f.nil));
    CASE(mpt_logical_and, SHAPE, "[4, 8] ", mpt_logical_and(f.x, f.wide));
    TENSOR(mpt_logical_or, mpt_logical_or(t_, t_));
    CASE(mpt_logical_or, SHAPE, "[4, 8] ", mpt_logical_or(f.longs, f.wide));
    TENSOR(mpt_logical_not, mpt_logical_not(t_));
    mpt_tensor yes = mpt_logical_not(f.x);
    TENSOR(mpt_where, mpt_where(t_, t_, t_));
    CASE(mpt_where, BAD_HANDLE, "argument 3 is a null", mpt_where(yes, f.x, f.nil));
    CASE(mpt_where, DTYPE, "argument 1 is float32: expected bool", mpt_where(f.x, f.x, f.x));
    CASE(mpt_where, DTYPE, "argument 2 is float32, argument 3 is float16",
         mpt_where(yes, f.x, f.half));
    CASE(mpt_where, DTYPE, "argument 3 is int64", mpt_where(yes, f.x, f.longs));
    CASE(mpt_where, SHAPE, "[4, 8], [4, 8] and [3, 5]", mpt_where(yes, f.x, f.wide));
    mpt_tensor at;
    TENSOR(mpt_sort, mpt_sort(t_, 0, false, &at));
    CASE(mpt_sort, ARGUMENT, "dimension 2", mpt_sort(f.x, 2, false, &at));
    CASE(mpt_sort, ARGUMENT, "dimension 0 is out of range", mpt_sort(f.scalar, 0, false, NULL));
    CASE(mpt_sort, DTYPE, "argument 1 is int64", mpt_sort(f.longs, 0, true, NULL));
    TENSOR(mpt_argsort, mpt_argsort(t_, 0, false));
    CASE(mpt_argsort, ARGUMENT, "dimension -3", mpt_argsort(f.x, -3, false));
    CASE(mpt_argsort, DTYPE, "argument 1 is int64", mpt_argsort(f.longs, 0, true));
    TENSOR(mpt_topk, mpt_topk(t_, 1, 0, true, &at));
    CASE(mpt_topk, ARGUMENT, "k = -1: expected 0 or more", mpt_topk(f.x, -1, 0, true, &at));
    CASE(mpt_topk, ARGUMENT, "k = 9: dimension 1 of [4, 8] has but 8 elements",
         mpt_topk(f.x, 9, 1, true, NULL));
    CASE(mpt_topk, ARGUMENT, "dimension 2", mpt_topk(f.x, 1, 2, true, &at));
    TENSOR(mpt_lt_scalar, mpt_lt_scalar(t_, 1));
    TENSOR(mpt_le_scalar, mpt_le_scalar(t_, 1));
    TENSOR(mpt_gt_scalar, mpt_gt_scalar(t_, 1));
    TENSOR(mpt_ge_scalar, mpt_ge_scalar(t_, 1));
    TENSOR(mpt_eq_scalar, mpt_eq_scalar(t_, 1));
    TENSOR(mpt_ne_scalar, mpt_ne_scalar(t_, 1));
    mpt_tensor image = mpt_ones(f.context, MPT_F32, MPT_SHAPE(1, 2, 3, 4));
    const mpt_shape one = MPT_SCALAR;
    TENSOR(mpt_interpolate, mpt_interpolate(t_, one, 2, MPT_NEAREST, false));
    CASE(mpt_interpolate, SHAPE, "[4, 8]: expected [N, C, H, W]",
         mpt_interpolate(f.x, one, 2, MPT_NEAREST, false));
    CASE(mpt_interpolate, SHAPE, "by 0.1: expected a size of 1 to 2^30",
         mpt_interpolate(image, one, 0.1, MPT_NEAREST, false));
    CASE(mpt_interpolate, SHAPE, "expected a size of 1 to 2^30",
         mpt_interpolate(image, one, 1e300, MPT_BILINEAR, true));
    CASE(mpt_interpolate, ARGUMENT, "and a scale above 0",
         mpt_interpolate(image, one, (double)NAN, MPT_BILINEAR, true));
    CASE(mpt_interpolate, ARGUMENT, "size [0, 2], scale 2: expected MPT_SHAPE(height, width)",
         mpt_interpolate(image, MPT_SHAPE(0, 2), 2, MPT_BILINEAR, true));
    CASE(mpt_interpolate, ARGUMENT, "size [5], scale 2",
         mpt_interpolate(image, MPT_SHAPE(5), 2, MPT_BILINEAR, true));
    CASE(mpt_interpolate, ARGUMENT, "mode 7",
         mpt_interpolate(image, one, 2, (mpt_interpolation)7, false));
    CASE(mpt_interpolate, ARGUMENT, "no corners to align",
         mpt_interpolate(image, one, 2, MPT_NEAREST, true));
    BINARY(mpt_matmul);
    CASE(mpt_matmul, SHAPE, "at least one dimension", mpt_matmul(f.scalar, f.x));
    CASE(mpt_matmul, DTYPE, "argument 1", mpt_matmul(f.longs, f.longs));
    TENSOR(mpt_add_scalar, mpt_add_scalar(t_, 1));
    TENSOR(mpt_mul_scalar, mpt_mul_scalar(t_, 1));
    CASE(mpt_add_scalar, DTYPE, "mpt_cast it to f32", mpt_add_scalar(f.longs, 1));
    CASE(mpt_mul_scalar, DTYPE, "mpt_cast it to f32", mpt_mul_scalar(f.longs, 1));
#define NUMBER(function, ...) \
    do { \
        TENSOR(function, function(t_, __VA_ARGS__)); \
        CASE(function, DTYPE, "argument 1 is int64", function(f.longs, __VA_ARGS__)); \
    } while (0)
    NUMBER(mpt_pow_scalar, 2);
    NUMBER(mpt_leaky_relu, 0.1);
    NUMBER(mpt_elu, 1);
    NUMBER(mpt_clamp, 0, 1);
    NUMBER(mpt_hardtanh, 0, 1);
    NUMBER(mpt_softplus, 1, 20);
    CASE(mpt_clamp, ARGUMENT, "min 2, max 1", mpt_clamp(f.x, 2, 1));
    CASE(mpt_clamp, ARGUMENT, "expected min <= max", mpt_clamp(f.x, (double)NAN, 1));
    CASE(mpt_hardtanh, ARGUMENT, "min 2, max 1", mpt_hardtanh(f.x, 2, 1));
    CASE(mpt_softplus, ARGUMENT, "expected beta > 0", mpt_softplus(f.x, 0, 20));
    UNARY(mpt_neg);
    UNARY(mpt_exp);
    UNARY(mpt_log);
    UNARY(mpt_sqrt);
    UNARY(mpt_relu);
    UNARY(mpt_gelu);
    UNARY(mpt_gelu_tanh);
    UNARY(mpt_tanh);
    UNARY(mpt_sigmoid);
    UNARY(mpt_log1p);
    UNARY(mpt_rsqrt);
    UNARY(mpt_abs);
    UNARY(mpt_sign);
    UNARY(mpt_sin);
    UNARY(mpt_cos);
    UNARY(mpt_silu);
    UNARY(mpt_isnan);
    UNARY(mpt_isinf);
    REDUCTION(mpt_sum);
    REDUCTION(mpt_mean);
    REDUCTION(mpt_max);
    REDUCTION(mpt_argmax);
    REDUCTION(mpt_min);
    REDUCTION(mpt_argmin);
    REDUCTION(mpt_prod);
    REDUCTION(mpt_logsumexp);
    TENSOR(mpt_var, mpt_var(t_, 0, false, 1));
    TENSOR(mpt_std, mpt_std(t_, 0, false, 1));
    TENSOR(mpt_norm, mpt_norm(t_, 2, 0, false));
    TENSOR(mpt_cumsum, mpt_cumsum(t_, 0));
    CASE(mpt_var, ARGUMENT, "dimension 2 is out of range", mpt_var(f.x, 2, false, 1));
    CASE(mpt_std, ARGUMENT, "dimension -3 is out of range", mpt_std(f.x, -3, false, 1));
    CASE(mpt_norm, ARGUMENT, "p = 3: expected 1, 2 or INFINITY", mpt_norm(f.x, 3, 0, false));
    CASE(mpt_norm, ARGUMENT, "dimension 2 is out of range", mpt_norm(f.x, 2, 2, false));
    CASE(mpt_norm, SHAPE, "no largest element",
         mpt_norm(mpt_zeros(f.context, MPT_F32, MPT_SHAPE(0, 3)), (double)INFINITY, 0, false));
    CASE(mpt_cumsum, ARGUMENT, "dimension 2", mpt_cumsum(f.x, 2));
    CASE(mpt_cumsum, DTYPE, "argument 1 is int64", mpt_cumsum(f.longs, 0));
    CASE(mpt_max, mpt_error_code(f.context), "mpt_max",
         mpt_max(mpt_zeros(f.context, MPT_F32, MPT_SHAPE(0, 3)), 0, false));
    TENSOR(mpt_softmax, mpt_softmax(t_, -1));
    TENSOR(mpt_log_softmax, mpt_log_softmax(t_, -1));
    CASE(mpt_softmax, ARGUMENT, "dimension 2", mpt_softmax(f.x, 2));
    CASE(mpt_log_softmax, ARGUMENT, "dimension -3", mpt_log_softmax(f.x, -3));
    TENSOR(mpt_dropout, mpt_dropout(t_, 0.5));
    CASE(mpt_dropout, ARGUMENT, "p = 1.5 is not in [0, 1]", mpt_dropout(f.x, 1.5));
    CASE(mpt_dropout, ARGUMENT, "is not in [0, 1]", mpt_dropout(f.x, -0.1));
    mpt_tensor w = mpt_ones(f.context, MPT_F32, MPT_SHAPE(3, 8));
    TENSOR(mpt_linear, mpt_linear(t_, t_, f.nil, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, BAD_HANDLE, "argument 2 is a null",
         mpt_linear(f.x, f.nil, f.nil, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, BAD_HANDLE, "argument 3", mpt_linear(f.x, w, f.stale, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, SHAPE, "[4, 8]", mpt_linear(f.x, f.wide, f.nil, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, SHAPE, "[4, 8]", mpt_linear(f.x, f.scalar, f.nil, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, SHAPE, "[3, 5]", mpt_linear(f.x, w, f.wide, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, DTYPE, "argument 1 is float16, argument 2 is float32",
         mpt_linear(f.half, w, f.nil, MPT_ACTIVATION_NONE));
    CASE(mpt_linear, ARGUMENT, "activation 9 is none",
         mpt_linear(f.x, w, f.nil, (mpt_activation)9));
}

#define CLASS_LOSS(function) \
    do { \
        mpt_nll_config n_ = mpt_nll_config_default(); \
        TENSOR(function, function(t_, t_, NULL)); \
        CASE(function, BAD_HANDLE, "argument 1 is a null", function(f.nil, f.labels, NULL)); \
        CASE(function, BAD_HANDLE, "argument 2 is a null", function(f.x, f.nil, NULL)); \
        CASE(function, BAD_HANDLE, "argument 2", function(f.x, f.stale, NULL)); \
        CASE(function, DTYPE, "expected i64 class numbers", function(f.x, f.wide, NULL)); \
        CASE(function, DTYPE, "expected a float", function(f.longs, f.labels, NULL)); \
        CASE(function, SHAPE, "[N, C] and [N]", function(f.wide, f.labels, NULL)); \
        n_.reduction = (mpt_reduction)9; \
        CASE(function, ARGUMENT, "reduction", function(f.x, f.labels, &n_)); \
        n_.reduction = (mpt_reduction)256; \
        CASE(function, ARGUMENT, "reduction", function(f.x, f.labels, &n_)); \
        n_.reduction = MPT_MEAN, n_.weight = f.wide; \
        CASE(function, SHAPE, "expected float32 [8]", function(f.x, f.labels, &n_)); \
        n_.weight = f.foreign; \
        CASE(function, BAD_HANDLE, "another context", function(f.x, f.labels, &n_)); \
        int64_t bad_[4] = {0, 8, 1, 1}; \
        CASE(function, MPT_ERROR_INDEX, "sample 1", \
             function(f.x, mpt_from(f.context, MPT_I64, MPT_SHAPE(4), bad_), NULL); \
             mpt_synchronize(f.context)); \
    } while (0)

/* In place: f.x and its like stay as they are, for every case ends in an error. */
TEST(ops_in_place) {
    mpt_tensor leaf = mpt_ones(f.context, MPT_F32, MPT_SHAPE(4, 8));
    mpt_tensor thin = mpt_expand(f.scalar, MPT_SHAPE(4, 8));
    mpt_tensor turned = mpt_transpose(f.square, 0, 1);
    mpt_requires_grad(leaf, true);
#define IN_PLACE(function, ...) \
    do { \
        mpt_tensor x_ = leaf; \
        CASE(function, STATE, "a leaf that collects a gradient", __VA_ARGS__); \
        x_ = thin; \
        CASE(function, STATE, "an expanded tensor", __VA_ARGS__); \
        TENSOR(function, (x_ = t_, __VA_ARGS__)); \
    } while (0)
    IN_PLACE(mpt_relu_, mpt_relu_(x_));
    IN_PLACE(mpt_add_, mpt_add_(x_, x_));
    IN_PLACE(mpt_mul_, mpt_mul_(x_, x_));
    IN_PLACE(mpt_add_scalar_, mpt_add_scalar_(x_, 1));
    IN_PLACE(mpt_mul_scalar_, mpt_mul_scalar_(x_, 2));
    IN_PLACE(mpt_copy_, mpt_copy_(x_, x_));
    IN_PLACE(mpt_fill_, mpt_fill_(x_, 1));
    CASE(mpt_relu_, DTYPE, "argument 1 is int64", mpt_relu_(f.longs));
    CASE(mpt_add_scalar_, DTYPE, "argument 1 is int64", mpt_add_scalar_(f.longs, 1));
    CASE(mpt_mul_scalar_, DTYPE, "argument 1 is int64", mpt_mul_scalar_(f.longs, 1));
    CASE(mpt_add_, BAD_HANDLE, "argument 2 is a null handle", mpt_add_(f.x, f.nil));
    CASE(mpt_add_, BAD_HANDLE, "another context", mpt_add_(f.x, f.foreign));
    CASE(mpt_add_, DTYPE, "argument 2 is float16", mpt_add_(f.x, f.half));
    CASE(mpt_add_, SHAPE, "which does not fit the tensor's []", mpt_add_(f.scalar, f.x));
    CASE(mpt_add_, STATE, "argument 2 shows part of the memory", mpt_add_(f.square, turned));
    CASE(mpt_mul_, BAD_HANDLE, "argument 2: tensor made", mpt_mul_(f.x, f.stale));
    CASE(mpt_mul_, SHAPE, "[4, 8] and [3, 5] do not broadcast", mpt_mul_(f.x, f.wide));
    CASE(mpt_copy_, BAD_HANDLE, "argument 2 is a null handle", mpt_copy_(f.x, f.nil));
    CASE(mpt_copy_, SHAPE, "[3, 5] does not expand to [4, 8]", mpt_copy_(f.x, f.wide));
    CASE(mpt_copy_, BAD_HANDLE, "another context", mpt_copy_(f.x, f.foreign));
}

/* A call of a_ and b_ with reduction r_. */
#define PAIR_LOSS(function, ...) \
    do { \
        mpt_tensor a_ = f.x, b_ = f.nil; \
        mpt_reduction r_ = MPT_MEAN; \
        CASE(function, BAD_HANDLE, "argument 2", __VA_ARGS__); \
        b_ = f.wide; \
        CASE(function, SHAPE, "expected equal shapes", __VA_ARGS__); \
        b_ = f.longs; \
        CASE(function, DTYPE, "argument 2 has dtype int64", __VA_ARGS__); \
        b_ = f.x, r_ = (mpt_reduction)9; \
        CASE(function, ARGUMENT, "reduction 9", __VA_ARGS__); \
        r_ = (mpt_reduction)259; \
        CASE(function, ARGUMENT, "reduction 259", __VA_ARGS__); \
        r_ = MPT_MEAN; \
        TENSOR(function, (a_ = t_, b_ = t_, __VA_ARGS__)); \
    } while (0)

TEST(attention) {
    mpt_tensor q = mpt_ones(f.context, MPT_F32, MPT_SHAPE(2, 4, 8));
    mpt_tensor deep = mpt_ones(f.context, MPT_F32, MPT_SHAPE(1, 1, 2, 4, 8));
    mpt_tensor three = mpt_ones(f.context, MPT_F32, MPT_SHAPE(3, 4, 8)), leaf = mpt_clone(f.x);
    mpt_attention_config config = mpt_attention_config_default();
    mpt_requires_grad(leaf, true);
    TENSOR(mpt_embedding, mpt_embedding(t_, t_, -1));
    CASE(mpt_embedding, BAD_HANDLE, "argument 2 is a null", mpt_embedding(f.labels, f.nil, -1));
    CASE(mpt_embedding, DTYPE, "ids are float32: expected i64", mpt_embedding(f.x, f.x, -1));
    CASE(mpt_embedding, DTYPE, "argument 2 has dtype int64", mpt_embedding(f.labels, f.longs, -1));
    CASE(mpt_embedding, SHAPE, "weight [2, 4, 8]", mpt_embedding(f.labels, q, -1));
    CASE(mpt_embedding, ARGUMENT, "padding_index 4", mpt_embedding(f.labels, f.x, 4));
    CASE(mpt_embedding, MPT_ERROR_INDEX, "element 3 of the indices is 3: expected 0 to 2",
         mpt_embedding(f.labels, mpt_slice(f.x, 0, 0, 3, 1), -1);
         mpt_synchronize(f.context));
    NOWHERE(mpt_nn_embedding, mpt_nn_embedding(NULL, 4, 2, -1).slot == 0);
    CASE(mpt_nn_embedding, ARGUMENT, "0 rows of 2", mpt_nn_embedding(f.context, 0, 2, -1));
    CASE(mpt_nn_embedding, ARGUMENT, "padding_index 4", mpt_nn_embedding(f.context, 4, 2, 4));
    CASE(mpt_nn_embedding, SHAPE, "elements",
         mpt_nn_embedding(f.context, INT64_MAX, INT64_MAX, -1));
    QUIET(mpt_attention_config_default, config.dropout == 0);
    TENSOR(mpt_scaled_dot_product_attention, mpt_scaled_dot_product_attention(t_, t_, t_, NULL));
    CASE(mpt_scaled_dot_product_attention, BAD_HANDLE, "argument 3 is a null",
         mpt_scaled_dot_product_attention(f.x, f.x, f.nil, NULL));
    CASE(mpt_scaled_dot_product_attention, DTYPE, "argument 3 is float16",
         mpt_scaled_dot_product_attention(f.x, f.x, f.half, NULL));
    CASE(mpt_scaled_dot_product_attention, SHAPE, "of equal ranks",
         mpt_scaled_dot_product_attention(q, f.x, f.x, NULL));
    CASE(mpt_scaled_dot_product_attention, SHAPE, "2 to 4; mpt_reshape",
         mpt_scaled_dot_product_attention(deep, deep, deep, NULL));
    CASE(mpt_scaled_dot_product_attention, SHAPE, "the same B, G, S and D",
         mpt_scaled_dot_product_attention(f.x, f.wide, f.wide, NULL));
    CASE(mpt_scaled_dot_product_attention, SHAPE, "a multiple of those of k",
         mpt_scaled_dot_product_attention(three, q, q, NULL));
    config.mask = f.wide;
    CASE(mpt_scaled_dot_product_attention, SHAPE, "mask [3, 5] does not broadcast",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.mask = f.longs;
    CASE(mpt_scaled_dot_product_attention, DTYPE, "argument 4 has dtype int64",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.mask = leaf;
    CASE(mpt_scaled_dot_product_attention, MPT_ERROR_UNSUPPORTED, "the mask gets no gradient",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.mask = f.nil;
    config.dropout = 2;
    CASE(mpt_scaled_dot_product_attention, ARGUMENT, "dropout 2",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.dropout = 0, config.window = 3;
    CASE(mpt_scaled_dot_product_attention, ARGUMENT, "a window of causal attention alone",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.window = 0, config.offset = -2;
    CASE(mpt_scaled_dot_product_attention, ARGUMENT, "window 0, offset -2: expected 0 to 2^40",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    config.offset = 0, config.scale = 1e308 * 10;
    CASE(mpt_scaled_dot_product_attention, ARGUMENT, "a finite number",
         mpt_scaled_dot_product_attention(q, q, q, &config));
    mpt_rope_config rope = mpt_rope_config_default();
    QUIET(mpt_rope_config_default, rope.base == 10000);
    TENSOR(mpt_rope, mpt_rope(t_, NULL));
    CASE(mpt_rope, SHAPE, "[.., T, D] of rank 2 to 4", mpt_rope(deep, NULL));
    CASE(mpt_rope, SHAPE, "input [3, 5]: expected [.., T, D]", mpt_rope(f.wide, NULL));
    CASE(mpt_rope, DTYPE, "argument 1 has dtype int64", mpt_rope(f.longs, NULL));
    rope.heads = 3;
    CASE(mpt_rope, SHAPE, "expected [B, T, heads * D] with an even D", mpt_rope(q, &rope));
    rope.heads = 256;
    CASE(mpt_rope, ARGUMENT, "256 heads", mpt_rope(f.x, &rope));
    rope.heads = 0, rope.base = 0;
    CASE(mpt_rope, ARGUMENT, "base 0", mpt_rope(f.x, &rope));
    rope.base = 1, rope.offset = -1;
    CASE(mpt_rope, ARGUMENT, "offset -1", mpt_rope(f.x, &rope));
    TENSOR(mpt_glu, mpt_glu(t_, -1, MPT_GATE_SILU));
    CASE(mpt_glu, SHAPE, "dimension 0 has no two halves", mpt_glu(f.wide, 0, MPT_GATE_SILU));
    CASE(mpt_glu, SHAPE, "dimension 2 has no two halves", mpt_glu(f.x, 2, MPT_GATE_SILU));
    CASE(mpt_glu, ARGUMENT, "gate 3 is no mpt_gate", mpt_glu(f.x, 1, (mpt_gate)3));
    NOWHERE(mpt_nn_glu, mpt_nn_glu(NULL, MPT_GATE_SILU).slot == 0);
    CASE(mpt_nn_glu, ARGUMENT, "gate 7 is no mpt_gate", mpt_nn_glu(f.context, (mpt_gate)7));
    mpt_hash_grid_config grid = mpt_hash_grid_config_default();
    mpt_tensor places = mpt_zeros(f.context, MPT_F32, MPT_SHAPE(4, 2));
    QUIET(mpt_hash_grid_config_default, grid.levels == 16);
    TENSOR(mpt_hash_grid, mpt_hash_grid(t_, three, 1, 2));
    TENSOR(mpt_hash_grid, mpt_hash_grid(places, t_, 1, 2));
    CASE(mpt_hash_grid, DTYPE, "argument 1 has dtype int64", mpt_hash_grid(f.longs, three, 1, 2));
    CASE(mpt_hash_grid, SHAPE, "x [3, 5]", mpt_hash_grid(f.wide, three, 1, 2));
    CASE(mpt_hash_grid, SHAPE, "table [3, 5]", mpt_hash_grid(places, f.wide, 1, 2));
    CASE(mpt_hash_grid, SHAPE, "cells from 0 to 2", mpt_hash_grid(places, three, 0, 2));
    CASE(mpt_hash_grid, SHAPE, "cells from 3 to 2", mpt_hash_grid(places, three, 3, 2));
    mpt_requires_grad(places, true);
    CASE(mpt_hash_grid, MPT_ERROR_UNSUPPORTED, "x gets no gradient",
         mpt_hash_grid(places, three, 1, 2));
    NOWHERE(mpt_nn_hash_grid, mpt_nn_hash_grid(NULL, NULL).slot == 0);
    grid.features = 9;
    CASE(mpt_nn_hash_grid, ARGUMENT, "table [16, 16384, 9]", mpt_nn_hash_grid(f.context, &grid));
    grid.features = 2, grid.finest = 1 << 21;
    CASE(mpt_nn_hash_grid, ARGUMENT, "cells from 16 to 2097152",
         mpt_nn_hash_grid(f.context, &grid));
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    QUIET(mpt_multi_head_config_default, heads.bias);
    NOWHERE(mpt_nn_multi_head_attention, mpt_nn_multi_head_attention(NULL, 8, 2, NULL).slot == 0);
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "width 8, 3 heads",
         mpt_nn_multi_head_attention(f.context, 8, 3, NULL));
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "a multiple of 1 to 255 heads",
         mpt_nn_multi_head_attention(f.context, 512, 256, NULL));
    heads.dropout = -1;
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "dropout -1",
         mpt_nn_multi_head_attention(f.context, 8, 2, &heads));
    heads.dropout = 0, heads.window = 4;
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "window 4: expected 0 or more, of causal",
         mpt_nn_multi_head_attention(f.context, 8, 2, &heads));
    heads.window = 0, heads.rope = rope;
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "rope of base 1, offset -1, heads of 4",
         mpt_nn_multi_head_attention(f.context, 8, 2, &heads));
    heads.rope.offset = 0;
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "heads of 1: expected more than 0, 0 to 2^40",
         mpt_nn_multi_head_attention(f.context, 8, 8, &heads));
    NOWHERE(mpt_cache_begin, mpt_cache_begin(f.no_module, 1, 8) != MPT_OK);
    CASE(mpt_cache_begin, MPT_ERROR_HANDLE, "was destroyed", mpt_cache_begin(f.stale_module, 1, 8));
    CASE(mpt_cache_begin, ARGUMENT, "batch 0, capacity 8", mpt_cache_begin(f.net, 0, 8));
    CASE(mpt_cache_begin, ARGUMENT, "that is causal", mpt_cache_begin(f.net, 1, 8));
    NOWHERE(mpt_cache_length, mpt_cache_length(f.no_module) == -1);
    CASE(mpt_cache_length, MPT_ERROR_HANDLE, "was destroyed", mpt_cache_length(f.stale_module));
    NOWHERE(mpt_cache_rewind, mpt_cache_rewind(f.no_module, 0) != MPT_OK);
    CASE(mpt_cache_rewind, MPT_ERROR_HANDLE, "was destroyed", mpt_cache_rewind(f.stale_module, 0));
    NOWHERE(mpt_cache_end, mpt_cache_end(f.no_module) != MPT_OK);
    CASE(mpt_cache_end, MPT_ERROR_HANDLE, "was destroyed", mpt_cache_end(f.stale_module));
    heads = mpt_multi_head_config_default(), heads.causal = true;
    mpt_module causal = mpt_nn_multi_head_attention(f.context, 8, 2, &heads);
    CASE(mpt_cache_rewind, ARGUMENT, "length 0: expected 0 to the cache's 0",
         mpt_cache_rewind(causal, 0));
    mpt_module layer = mpt_nn_multi_head_attention(f.context, 8, 2, NULL);
    mpt_tensor in[2], out[2];
    in[0] = in[1] = q;
    CASE(mpt_nn_multi_head_attention, ARGUMENT, "2 inputs, 1 outputs",
         mpt_forward_n(layer, in, 2, out, 1);
         case_function = "mpt_forward");
    CASE(mpt_nn_multi_head_attention, SHAPE, "[B, T, E]", mpt_forward(layer, f.x));
    mpt_module net = mpt_sequential(f.context, mpt_nn_linear(f.context, 2, 3),
                                    mpt_nn_linear(f.context, 3, 2), MPT_END);
    NOWHERE(mpt_tie, mpt_tie(f.no_module, "0.weight", "1.weight") != MPT_OK);
    CASE(mpt_tie, MPT_ERROR_HANDLE, "was destroyed", mpt_tie(f.stale_module, "a", "b"));
    CASE(mpt_tie, STATE, "no more ties", mpt_tie(f.net, "0.weight", "2.weight"));
    CASE(mpt_tie, ARGUMENT, "no parameter \"2.weight\"", mpt_tie(net, "0.weight", "2.weight"));
    CASE(mpt_tie, ARGUMENT, "no parameter \"(null)\"", mpt_tie(net, NULL, "1.weight"));
    CASE(mpt_tie, SHAPE, "expected equal shapes", mpt_tie(net, "0.weight", "1.weight"));
    CASE(mpt_tie, ARGUMENT, "one parameter already", mpt_tie(net, "0.weight", "0.weight"));
    TENSOR(mpt_linear_cross_entropy, mpt_linear_cross_entropy(t_, t_, t_, NULL));
    CASE(mpt_linear_cross_entropy, BAD_HANDLE, "argument 3 is a null",
         mpt_linear_cross_entropy(f.x, f.x, f.nil, NULL));
    CASE(mpt_linear_cross_entropy, DTYPE, "targets have dtype float32",
         mpt_linear_cross_entropy(f.x, f.x, f.x, NULL));
    CASE(mpt_linear_cross_entropy, DTYPE, "argument 2 is float16",
         mpt_linear_cross_entropy(f.x, f.half, f.labels, NULL));
    CASE(mpt_linear_cross_entropy, SHAPE, "expected [.., D], [V, D] and [..]",
         mpt_linear_cross_entropy(f.x, f.wide, f.labels, NULL));
    mpt_nll_config nll = mpt_nll_config_default();
    nll.label_smoothing = 2;
    CASE(mpt_linear_cross_entropy, ARGUMENT, "label_smoothing 2",
         mpt_linear_cross_entropy(f.x, f.x, f.labels, &nll));
    nll = mpt_nll_config_default(), nll.weight = f.wide;
    CASE(mpt_linear_cross_entropy, SHAPE, "class weights float32 [3, 5]",
         mpt_linear_cross_entropy(f.x, f.x, f.labels, &nll));
    nll = mpt_nll_config_default(), nll.reduction = (mpt_reduction)9;
    CASE(mpt_linear_cross_entropy, ARGUMENT, "reduction 9",
         mpt_linear_cross_entropy(f.x, f.x, f.labels, &nll));
}

TEST(losses) {
    double nan = (double)NAN;
    mpt_nll_config n = mpt_nll_config_default();
    QUIET(mpt_nll_config_default, n.ignore_index == -100);
    CLASS_LOSS(mpt_nll_loss);
    CLASS_LOSS(mpt_cross_entropy);
    n.label_smoothing = 1.5;
    CASE(mpt_cross_entropy, ARGUMENT, "label_smoothing 1.5", mpt_cross_entropy(f.x, f.labels, &n));
    n.label_smoothing = 0, n.ignore_index = 1;
    CASE(mpt_cross_entropy, ARGUMENT, "ignore_index 1 has no meaning",
         mpt_cross_entropy(f.x, f.x, &n));
    n.ignore_index = -1, n.weight = f.wide;
    CASE(mpt_cross_entropy, SHAPE, "expected [8]", mpt_cross_entropy(f.x, f.x, &n));
    n.weight = f.stale;
    CASE(mpt_cross_entropy, BAD_HANDLE, "argument 3", mpt_cross_entropy(f.x, f.x, &n));
    mpt_tensor cube = mpt_ones(f.context, MPT_F32, MPT_SHAPE(4, 8, 2));
    CASE(mpt_nll_loss, SHAPE, "[N, C, d1..]", mpt_nll_loss(cube, f.labels, NULL));
    CASE(mpt_cross_entropy, SHAPE, "[N, C, d1..]", mpt_cross_entropy(cube, f.longs, NULL));

    PAIR_LOSS(mpt_mse_loss, mpt_mse_loss(a_, b_, r_));
    PAIR_LOSS(mpt_l1_loss, mpt_l1_loss(a_, b_, r_));
    PAIR_LOSS(mpt_smooth_l1_loss, mpt_smooth_l1_loss(a_, b_, 1, r_));
    CASE(mpt_smooth_l1_loss, ARGUMENT, "beta -1", mpt_smooth_l1_loss(f.x, f.x, -1, MPT_MEAN));
    PAIR_LOSS(mpt_huber_loss, mpt_huber_loss(a_, b_, 1, r_));
    CASE(mpt_huber_loss, ARGUMENT, "delta 0 is not above 0", mpt_huber_loss(f.x, f.x, 0, MPT_MEAN));
    PAIR_LOSS(mpt_kl_div, mpt_kl_div(a_, b_, false, r_));
    PAIR_LOSS(mpt_soft_margin_loss, mpt_soft_margin_loss(a_, b_, r_));
    PAIR_LOSS(mpt_hinge_embedding_loss, mpt_hinge_embedding_loss(a_, b_, 1, r_));
    CASE(mpt_hinge_embedding_loss, ARGUMENT, "margin nan",
         mpt_hinge_embedding_loss(f.x, f.x, nan, MPT_MEAN));
}

TEST(losses_of_more) {
    mpt_tensor x = f.x, nil = f.nil, four = mpt_ones(f.context, MPT_F32, MPT_SHAPE(4));
    PAIR_LOSS(mpt_binary_cross_entropy_with_logits,
              mpt_binary_cross_entropy_with_logits(a_, b_, nil, nil, r_));
    CASE(mpt_binary_cross_entropy_with_logits, SHAPE, "argument 4 is [3, 5]",
         mpt_binary_cross_entropy_with_logits(x, x, nil, f.wide, MPT_MEAN));
    PAIR_LOSS(mpt_binary_cross_entropy, mpt_binary_cross_entropy(a_, b_, nil, r_));
    CASE(mpt_binary_cross_entropy, SHAPE, "argument 3 is [4], which does not broadcast",
         mpt_binary_cross_entropy(x, x, four, MPT_MEAN));
    CASE(mpt_binary_cross_entropy, MPT_ERROR_NUMERIC, "element 0 of the input",
         mpt_tensor two = mpt_full(f.context, MPT_F32, MPT_SHAPE(2), 2);
         mpt_binary_cross_entropy(two, two, nil, MPT_MEAN); mpt_synchronize(f.context));
    PAIR_LOSS(mpt_gaussian_nll_loss, mpt_gaussian_nll_loss(a_, b_, a_, false, 1e-6, r_));
    CASE(mpt_gaussian_nll_loss, BAD_HANDLE, "argument 3",
         mpt_gaussian_nll_loss(x, x, f.stale, false, 1e-6, MPT_MEAN));
    CASE(mpt_mse_loss, SHAPE, "mpt_reshape or mpt_expand", mpt_mse_loss(x, f.wide, MPT_MEAN));
    CASE(mpt_gaussian_nll_loss, SHAPE, "argument 3 is [3, 5]",
         mpt_gaussian_nll_loss(x, x, f.wide, false, 1e-6, MPT_MEAN));
    CASE(mpt_gaussian_nll_loss, ARGUMENT, "eps -1",
         mpt_gaussian_nll_loss(x, x, x, false, -1, MPT_MEAN));
    PAIR_LOSS(mpt_margin_ranking_loss, mpt_margin_ranking_loss(a_, b_, a_, 1, r_));
    CASE(mpt_margin_ranking_loss, BAD_HANDLE, "argument 3 is a null",
         mpt_margin_ranking_loss(x, x, nil, 1, MPT_MEAN));
    PAIR_LOSS(mpt_triplet_margin_loss, mpt_triplet_margin_loss(a_, b_, a_, 1, 1e-6, false, r_));
    CASE(mpt_triplet_margin_loss, SHAPE, "argument 3 is [3, 5]: expected equal shapes",
         mpt_triplet_margin_loss(x, x, f.wide, 1, 1e-6, true, MPT_MEAN));
    PAIR_LOSS(mpt_cosine_embedding_loss,
              mpt_cosine_embedding_loss(a_, b_, a_.context ? four : a_, 0, r_));
    CASE(mpt_cosine_embedding_loss, SHAPE, "argument 4 is [3, 5]",
         mpt_cosine_embedding_loss(x, x, f.wide, 0, MPT_MEAN));
    PAIR_LOSS(mpt_poisson_nll_loss, mpt_poisson_nll_loss(a_, b_, true, false, 1e-8, r_));
    CASE(mpt_poisson_nll_loss, ARGUMENT, "eps -1",
         mpt_poisson_nll_loss(x, x, false, true, -1, MPT_MEAN));
    PAIR_LOSS(mpt_multilabel_soft_margin_loss, mpt_multilabel_soft_margin_loss(a_, b_, nil, r_));
    CASE(mpt_multilabel_soft_margin_loss, SHAPE, "argument 3 is [4], which does not broadcast",
         mpt_multilabel_soft_margin_loss(x, x, four, MPT_SUM));
    TENSOR(mpt_multi_margin_loss, mpt_multi_margin_loss(t_, t_, 1, 1, nil, MPT_MEAN));
    CASE(mpt_multi_margin_loss, BAD_HANDLE, "argument 2 is a null handle",
         mpt_multi_margin_loss(x, nil, 1, 1, nil, MPT_MEAN));
    CASE(mpt_multi_margin_loss, BAD_HANDLE, "argument 5: tensor made",
         mpt_multi_margin_loss(x, f.labels, 1, 1, f.stale, MPT_MEAN));
    CASE(mpt_multi_margin_loss, SHAPE, "expected [N, C] and [N], and a weight [C]",
         mpt_multi_margin_loss(f.wide, f.labels, 1, 1, nil, MPT_MEAN));
    CASE(mpt_multi_margin_loss, SHAPE, "a weight [C] or none",
         mpt_multi_margin_loss(x, f.labels, 1, 1, four, MPT_MEAN));
    CASE(mpt_multi_margin_loss, ARGUMENT, "p = 3: expected 1 or 2",
         mpt_multi_margin_loss(x, f.labels, 3, 1, nil, MPT_MEAN));
    CASE(mpt_multi_margin_loss, ARGUMENT, "margin nan is not a number",
         mpt_multi_margin_loss(x, f.labels, 1, (double)NAN, nil, MPT_MEAN));
    CASE(mpt_multi_margin_loss, ARGUMENT, "reduction 9",
         mpt_multi_margin_loss(x, f.labels, 1, 1, nil, (mpt_reduction)9));
    CASE(mpt_multi_margin_loss, DTYPE, "float32: expected i64",
         mpt_multi_margin_loss(x, four, 1, 1, nil, MPT_MEAN));
    TENSOR(mpt_cosine_similarity, mpt_cosine_similarity(t_, t_, 1, 1e-8));
    CASE(mpt_cosine_similarity, SHAPE, "equal shapes", mpt_cosine_similarity(x, f.wide, 1, 1e-8));
    CASE(mpt_cosine_similarity, ARGUMENT, "eps 0 is not above 0",
         mpt_cosine_similarity(x, x, 1, 0));
}

/* ==== Autograd and autocast ==== */

TEST(autograd) {
    mpt_tensor w = mpt_ones(f.context, MPT_F32, MPT_SHAPE(2));
    mpt_requires_grad(w, true);
    HANDLE(mpt_requires_grad, "null handle", CHECK(mpt_requires_grad(t_, true) != MPT_OK));
    CASE(mpt_requires_grad, DTYPE, "dtype int64 cannot", mpt_requires_grad(f.longs, true));
    CASE(mpt_requires_grad, STATE, "only leaves", mpt_requires_grad(mpt_neg(w), true));
    CASE(mpt_requires_grad, STATE, "inference mode", mpt_inference_begin(f.context);
         mpt_tensor i = mpt_neg(f.x); mpt_inference_end(f.context); mpt_requires_grad(i, true));
    HANDLE(mpt_backward, "null handle", CHECK(mpt_backward(t_) != MPT_OK));
    CASE(mpt_backward, STATE, "without history", mpt_backward(f.scalar));
    CASE(mpt_backward, SHAPE, "one-element tensor, this has shape [2]", mpt_backward(mpt_neg(w)));
    CASE(mpt_backward, STATE, "second time", mpt_tensor l = mpt_sum(mpt_mul(w, w), 0, false);
         mpt_backward(l); mpt_backward(l));
    HANDLE(mpt_backward_from, "null handle", CHECK(mpt_backward_from(t_, f.nil, false) != MPT_OK));
    CASE(mpt_backward_from, SHAPE, "gradient has shape [4, 8], the tensor [2]",
         mpt_backward_from(mpt_neg(w), f.x, false));
    CASE(mpt_backward_from, BAD_HANDLE, "gradient", mpt_backward_from(mpt_neg(w), f.stale, false));
    CASE(mpt_backward_from, BAD_HANDLE, "another context",
         mpt_backward_from(mpt_neg(w), f.foreign, false));
    TENSOR(mpt_grad, mpt_grad(t_));
    CASE(mpt_grad, STATE, "has no gradient", mpt_grad(f.x));
    CASE(mpt_grad, STATE, "or it is no leaf", mpt_tensor n = mpt_neg(w);
         mpt_backward_from(n, w, false); mpt_grad(n));
    CASE(mpt_backward, STATE, "(gradients have none)",
         mpt_backward_from(mpt_mul(w, w), w, false); mpt_tensor g = mpt_grad(w);
         mpt_backward(mpt_sum(mpt_mul(g, g), 0, false)));
    CASE(mpt_grad, STATE, "mpt_has_grad tells", mpt_grad(mpt_parameter(f.net, "0.bias")));
    HANDLE(mpt_has_grad, "null handle", CHECK(!mpt_has_grad(t_)));
    HANDLE(mpt_get_requires_grad, "null handle", CHECK(!mpt_get_requires_grad(t_)));
    HANDLE(mpt_clear_grad, "null handle", CHECK(mpt_clear_grad(t_) != MPT_OK));
    NOWHERE(mpt_no_grad_begin, mpt_no_grad_begin(NULL) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_inference_begin, mpt_inference_begin(NULL) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_no_grad_end, mpt_no_grad_end(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_no_grad_end, STATE, "no open region", mpt_no_grad_end(f.context));
    NOWHERE(mpt_recompute_begin, mpt_recompute_begin(NULL) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_recompute_end, mpt_recompute_end(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_recompute_end, STATE, "no open region", mpt_recompute_end(f.context));
    CASE(mpt_inference_end, STATE, "no open region", mpt_inference_end(f.context));
    NOWHERE(mpt_inference_end, mpt_inference_end(NULL) == MPT_ERROR_HANDLE);
    CASE(mpt_autocast_begin, DTYPE, "expected MPT_F16, MPT_BF16",
         mpt_autocast_begin(f.context, MPT_I64));
    CASE(mpt_autocast_begin, DTYPE, "expected MPT_F16",
         mpt_autocast_begin(f.context, (mpt_dtype)-4));
    CASE(mpt_autocast_begin, STATE, "regions are open",
         for (int i = 0; i < 100; i++) mpt_autocast_begin(f.context, MPT_BF16));
    CASE(mpt_autocast_begin_narrow, DTYPE, "expected MPT_F16, MPT_BF16",
         mpt_autocast_begin_narrow(f.context, MPT_F64));
    NOWHERE(mpt_autocast_begin_narrow,
            mpt_autocast_begin_narrow(NULL, MPT_BF16) == MPT_ERROR_HANDLE);
    NOWHERE(mpt_autocast_begin, mpt_autocast_begin(NULL, MPT_F16) == MPT_ERROR_HANDLE);
    CASE(mpt_autocast_end, STATE, "no open region", mpt_autocast_end(f.context));
    NOWHERE(mpt_autocast_end, mpt_autocast_end(NULL) == MPT_ERROR_HANDLE);
    char text[5] = "full";
    QUIET(mpt_autocast_policy, mpt_autocast_policy(NULL, 0) == mpt_autocast_policy(NULL, 50));
    QUIET(mpt_autocast_policy, mpt_autocast_policy(text, sizeof text) > 100 && strlen(text) == 4);
}

#include "misuse_nn.h"
#include "misuse_conv.h"
#include "misuse_norm.h"
#include "misuse_recurrent.h"
#include "misuse_data.h"
#include "misuse_again.h"

/* ==== The list ==== */

/* Names of the functions that the header declares, one after the other; NULL after the last. */
static const char *declared(char *text, char **at) {
    for (char *p = *at ? *at : text; (p = strstr(p, "MPTRAIN_API ")) != NULL; p++) {
        char *line = p;
        while (line > text && line[-1] != '\n') line--;
        if (*line == '#' || *line == ' ') continue; /* its definition, or a mention */
        char *open = strchr(p, '('), *name = open;
        if (!open) return NULL;
        while (name > p && (name[-1] == '_' || (name[-1] >= '0' && name[-1] <= '9') ||
                            (name[-1] >= 'a' && name[-1] <= 'z')))
            name--;
        *open = '\0';
        *at = open + 1;
        return name;
    }
    return NULL;
}

TEST(every_function_has_a_case) {
    static const char *const files[] = {"src/face/tensors.h", "src/face/training.h",
                                         "src/face/inspection.h", "src/face/models.h",
                                         "src/face/data.h"};
    static char text[1 << 18];
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        FILE *file = fopen(files[i], "rb");
        if (!file) SKIP("src/: run it from the top directory");
        bytes += fread(text + bytes, 1, sizeof text - 1 - bytes, file);
        fclose(file);
    }
    REQUIRE(bytes > 10000 && bytes < sizeof text - 1);
    char *at = NULL;
    const char *name;
    int functions = 0;
    for (; (name = declared(text, &at)) != NULL; functions++) {
        bool found = false;
        for (int i = 0; i < covered_count && !found; i++) found = strcmp(covered[i], name) == 0;
        if (!found) printf("\n  %s has no case of misuse", name), test_failures++;
    }
    CHECK(functions > 200);
    CHECK(covered_count == functions); /* no case for what the header lacks */
    CHECK(case_count > 2000);
    write_covered();
    mpt_destroy(f.context);
    mpt_destroy(f.other);
}

TEST_TABLE = {T(contexts), ALL_CASES, T(in_other_modes_of_floats), T(in_other_places),
              T(a_forked_child_is_refused_everything),
              T(every_function_has_a_case)};
TEST_MAIN
