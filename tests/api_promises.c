/* api_promises.c: what the manual, the declarations' comments and the README promise to refuse, or
   never to do, is tested. Sentences with such words are collected here; each has to be in
   tests/promises.txt, with the test that sees it kept; and each promise there has to stand in a
   text, each of its tests in a program. So a promise that is added, changed or removed without its
   test fails here. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"

static const char *const texts[] = {"src/face/manual.h",    "src/face/tensors.h",
                                    "src/face/training.h", "src/face/inspection.h",
                                    "src/face/models.h", "src/face/data.h", "README.md"};
/* What makes a sentence a promise of that kind. */
static const char *const words[] = {
    "an error",         "are errors", "error that",   "must ",
    " never ",          "refuses",    "is refused",   "ot detected",
    "cannot be caught", "an #error",  "in an error",  "does nothing",
    "nothing changed",  "trusted",    "do not nest",  "meanwhile",
    "t most ",          "Up to ",     "One schedule", "nothing changes"};

enum { TEXT_BYTES = 1 << 18, SENTENCE = 1000, MAX_PROMISES = 200 };
static char text[TEXT_BYTES];

static char *read_all(const char *path, char *to, size_t room) {
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    const size_t bytes = fread(to, 1, room - 1, file);
    fclose(file);
    to[bytes] = '\0';
    return bytes > 0 && bytes < room - 1 ? to : NULL;
}

/* Line ends, stars and bars of comments become single blanks, so that a sentence is one line. */
static void flatten(char *s) {
    char *out = s;
    for (char *in = s; *in; in++) {
        const char next = in[1];
        const char c = (*in == '/' && next == '*') || *in == '\n' || *in == '\t' || *in == '*' ? ' '
                       : *in == '/' && in > s && in[-1] == '*'                                 ? ' '
                                                               : *in;
        if (c != ' ' || (out > s && out[-1] != ' ')) *out++ = c;
    }
    *out = '\0';
}

typedef struct promise {
    const char *says, *tests;
    int found;
} promise;
static promise promises[MAX_PROMISES];
static int promise_count;
static char list[1 << 16];

/* Lines at the margin are promises, the line under each, indented, its tests. */
static bool read_promises(void) {
    if (!read_all("tests/promises.txt", list, sizeof list)) return false;
    for (char *line = strtok(list, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line == '#') continue;
        if (*line != ' ' && promise_count < MAX_PROMISES) {
            promises[promise_count++].says = line;
        } else if (promise_count > 0) {
            promises[promise_count - 1].tests = line;
        }
    }
    return promise_count > 0;
}

/* Whether one of the promises is in the sentence; marks those that are. */
static bool claimed(const char *sentence) {
    bool any = false;
    for (int i = 0; i < promise_count; i++) {
        if (!strstr(sentence, promises[i].says)) continue;
        promises[i].found++;
        any = true;
    }
    return any;
}

static void look_at(const char *path, const char *sentence) {
    const bool listed = claimed(sentence);
    bool promises_something = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *at = strstr(sentence, words[i]);
        const bool value = at && at - sentence >= 2 && memcmp(at - 2, " = never", 8) == 0;
        promises_something = promises_something || (at && !value);
    }
    if (promises_something && !listed)
        TEST_FAIL_("%s promises, and tests/promises.txt does not say who tests it: \"%s\"", path,
                   sentence);
}

/* Sentences end at a full stop, a question mark or a colon before a blank, and at a semicolon. */
static void each_sentence(const char *path) {
    char sentence[SENTENCE];
    size_t length = 0;
    for (const char *at = text; *at; at++) {
        if (length < sizeof sentence - 1) sentence[length++] = *at;
        sentence[length] = '\0';
        const bool ends = (*at == '.' || *at == '?') && (at[1] == ' ' || !at[1]);
        if (!ends && *at != ';' && *at != '}') continue;
        look_at(path, sentence + (*sentence == ' '));
        length = 0;
    }
}

TEST(every_promise_names_its_test) {
    if (!read_promises()) SKIP("tests/: run it from the top directory");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!read_all(texts[i], text, sizeof text)) SKIP("src/: run it from the top directory");
        flatten(text);
        each_sentence(texts[i]);
    }
    CHECK(promise_count > 40);
    for (int i = 0; i < promise_count; i++)
        if (!promises[i].found) TEST_FAIL_("no text promises: \"%s\"", promises[i].says);
}

/* One of "program: test, test": the program is there, and its text has each of them. */
static void check_program(const promise *of, char *program) {
    char path[200];
    char *colon = strchr(program, ':');
    if (!colon) {
        TEST_FAIL_("no test in \"%s\" of \"%s\"", program, of->says);
        return;
    }
    *colon = '\0';
    snprintf(path, sizeof path, "tests/%s", program + strspn(program, " "));
    if (!read_all(path, text, sizeof text)) TEST_FAIL_("there is no %s", path);
    for (char *name = strtok(colon + 1, ","); name; name = strtok(NULL, ",")) {
        name += strspn(name, " ");
        if (!strstr(text, name)) TEST_FAIL_("%s has no %s", path, name);
    }
}

TEST(every_test_that_is_named_exists) {
    if (promise_count == 0) SKIP("tests/promises.txt");
    for (int i = 0; i < promise_count; i++) {
        char tests[SENTENCE], *next = tests;
        snprintf(tests, sizeof tests, "%s", promises[i].tests ? promises[i].tests : "none");
        while (next) {
            char *program = next;
            next = strchr(program, ';');
            if (next) *next++ = '\0';
            check_program(&promises[i], program);
        }
    }
}

/* ==== Promises that no other program tests ==== */

TEST(levels_that_this_cpu_lacks) {
    int made = 0, refused = 0;
    for (int isa = MPT_ISA_NULL; isa <= MPT_ISA_NEON_BF16; isa++) {
        mpt_config config = mpt_config_default();
        config.isa = (mpt_isa)isa, config.device = MPT_DEVICE_CPU, config.threads = 1;
        mpt_context *context = mpt_create(&config);
        if (context) {
            CHECK_EQ_INT(mpt_get_isa(context), isa);
            CHECK_EQ_STR(mpt_error(NULL), "");
            made++;
        } else {
            CHECK_CONTAINS(mpt_error(NULL), mpt_isa_name((mpt_isa)isa));
            refused++;
        }
        mpt_destroy(context);
    }
    CHECK(made >= 2 && refused >= 2); /* no CPU has those of two kinds */
}

TEST(what_is_in_use_is_never_auto) {
    mpt_context *context = mpt_create(NULL);
    const bool on_cpu = mpt_get_device(context) == MPT_DEVICE_CPU;
    CHECK((mpt_get_isa(context) != MPT_ISA_AUTO) == on_cpu);
    CHECK(mpt_get_device(context) != MPT_DEVICE_AUTO);
    mpt_destroy(context);
}

TEST(asking_for_life_records_nothing) {
    mpt_context *context = mpt_create(NULL), *foreign = mpt_create(NULL);
    mpt_tensor nothing, stale = mpt_ones(context, MPT_F32, MPT_SHAPE(2)), wild = stale;
    memset(&nothing, 0, sizeof nothing);
    CHECK(mpt_valid(stale));
    mpt_release(stale);
    wild.slot = UINT32_MAX, wild.generation = 77;
    CHECK(!mpt_valid(nothing) && !mpt_valid(stale) && !mpt_valid(wild));
    stale.context = foreign;
    CHECK(!mpt_valid(stale));
    mpt_release(stale), mpt_release(nothing), mpt_release(wild); /* dead handles are fine */
    CHECK(!mpt_failed(context) && !mpt_failed(foreign));
    mpt_destroy(context);
    mpt_destroy(foreign);
}

/* The last of the parameters does not fit: the first ones stay, too. */
TEST(weights_that_a_half_cannot_hold) {
    mpt_context *context = mpt_create(NULL);
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 3, 2), mpt_nn_relu(context),
                                    mpt_nn_linear(context, 2, 2), MPT_END);
    mpt_set_init(net, "2.bias", mpt_init_make(MPT_INIT_CONSTANT, 70000, 0));
    const uint64_t before = mpt_module_hash(net);
    CHECK_EQ_INT(mpt_half(net, MPT_F16), MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(context), "parameter 2.bias: element 0 is 70000, beyond the largest");
    mpt_clear_error(context);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(mpt_get_dtype(mpt_parameter(net, "0.weight")), MPT_F32);
    CHECK_EQ_INT(mpt_half(net, MPT_BF16), MPT_OK);
    CHECK_EQ_INT(mpt_get_dtype(mpt_parameter(net, "2.bias")), MPT_BF16);
    mpt_destroy(context);
}

static mpt_context *cleared;

static void clear_from_log(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level, (void)message;
    mpt_clear_error(cleared);
}

static mpt_status pass(mpt_op_call *call, void *user) {
    (void)user;
    return mpt_op_set_output(call, 0, mpt_neg(mpt_op_input(call, 0)));
}

static mpt_status fail_and_clear(mpt_op_call *call, void *user) {
    (void)call, (void)user;
    mpt_full(cleared, MPT_F32, MPT_SHAPE(-1), 0);
    mpt_clear_error(cleared);
    return MPT_OK;
}

TEST(clearing_from_within_does_nothing) {
    mpt_config config = mpt_config_default();
    config.log.write = clear_from_log;
    cleared = mpt_create(&config);
    mpt_full(cleared, MPT_F32, MPT_SHAPE(-1), 0);
    CHECK_EQ_INT(mpt_error_code(cleared), MPT_ERROR_SHAPE);
    mpt_clear_error(cleared);
    CHECK(!mpt_failed(cleared));
    mpt_destroy(cleared);
    cleared = mpt_create(NULL);
    mpt_op_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "pass", cls.forward = pass, cls.backward = fail_and_clear;
    cls.n_inputs = cls.n_outputs = 1;
    mpt_tensor x = mpt_ones(cleared, MPT_F32, MPT_SHAPE(2)), y;
    mpt_requires_grad(x, true);
    mpt_op_apply(mpt_op_register(cleared, &cls, NULL), &x, 1, &y, 1);
    CHECK_EQ_INT(mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false)), MPT_ERROR_SHAPE);
    CHECK_EQ_INT(mpt_error_code(cleared), MPT_ERROR_SHAPE);
    mpt_clear_error(cleared);
    CHECK(!mpt_failed(cleared));
    mpt_destroy(cleared);
}

/* The list of the variadic form ends at MPT_END or is refused: what follows it is never read. */
TEST(lists_are_not_endless) {
#define FOUR(x) x, x, x, x
#define MANY(x) FOUR(FOUR(FOUR(FOUR(x))))
    mpt_context *context = mpt_create(NULL);
    mpt_module relu = mpt_nn_relu(context);
    mpt_module net = mpt_sequential(context, MANY(relu), MPT_END);
    CHECK(net.slot == 0);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(context), "255");
    mpt_destroy(context);
}

TEST_TABLE = {T(every_promise_names_its_test),      T(every_test_that_is_named_exists),
              T(levels_that_this_cpu_lacks),        T(what_is_in_use_is_never_auto),
              T(asking_for_life_records_nothing),   T(weights_that_a_half_cannot_hold),
              T(clearing_from_within_does_nothing), T(lists_are_not_endless)};
TEST_MAIN
