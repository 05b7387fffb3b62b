/* What the examples share: options, reports as JSON, the search for data; and the quick start,
   which README.md and the manual must show as it is compiled here. */
#include "../examples/common.h"
#include "../examples/settings.h"
#include "harness.h"

#define MPT__IMPLEMENTED /* the object that this program links has what the quick start asks for */
#define main quick_start_main
#include "quick_start.h"
#undef main

/* ==== Options ==== */

static bool parse(settings *s, char *error, int argc, const char *const *arguments) {
    char texts[8][64], *argv[9];
    char name[] = "mnist";
    argv[0] = name;
    for (int i = 0; i < argc; i++) {
        snprintf(texts[i], sizeof texts[i], "%s", arguments[i]);
        argv[i + 1] = texts[i];
    }
    *s = settings_default();
    error[0] = '\0';
    bool ok = settings_parse(s, argc + 1, argv, error, 256);
    s->data = s->json = NULL; /* they point into texts */
    return ok;
}

TEST(options_defaults) {
    settings s;
    char error[256];
    CHECK(parse(&s, error, 0, NULL));
    CHECK_EQ_STR(precisions[s.precision].name, "fp16");
    CHECK_EQ_INT(s.optimizer, 1);
    CHECK_EQ_INT(s.epochs, 5);
    CHECK_EQ_INT(s.batch, 64);
    CHECK_EQ_INT(s.device, MPT_DEVICE_AUTO);
    CHECK(s.lr == 0.0 && s.seed == 0 && s.threads == 0 && s.subset == 0);
    CHECK(!s.compare && !s.quiet && !s.overfit && !s.help);
}

TEST(options_set_fields) {
    static const char *const words[] = {
        "--precision", "half",      "--epochs=3",   "--lr",
        "0.5",         "--compare", "--device=cpu", "--optimizer=sgd"};
    settings s;
    char error[256];
    CHECK(parse(&s, error, 8, words));
    CHECK_EQ_STR(error, "");
    CHECK_EQ_STR(precisions[s.precision].name, "half");
    CHECK_EQ_INT(s.epochs, 3);
    CHECK_NEAR(s.lr, 0.5, 0.0);
    CHECK(s.compare);
    CHECK_EQ_INT(s.device, MPT_DEVICE_CPU);
    CHECK_EQ_INT(s.optimizer, 0);
}

TEST(options_refused_with_one_line) {
    static const struct {
        int count;
        const char *words[2];
        const char *part;
    } cases[] = {
        {1, {"--bogus", NULL}, "unknown option \"--bogus\""},
        {1, {"epochs", NULL}, "unknown option \"epochs\""},
        {1, {"--precisio", NULL}, "unknown option"},
        {2, {"--precision", "fp8"}, "--precision: expected fp32|fp16|bf16|half, got \"fp8\""},
        {2, {"--precision", "fp32|fp16"}, "--precision: expected"},
        {1, {"--precision", NULL}, "--precision needs a value"},
        {1, {"--epochs=", NULL}, "--epochs needs a value"},
        {2, {"--epochs", "0"}, "--epochs: expected a whole number from 1 to"},
        {2, {"--epochs", "2x"}, "got \"2x\""},
        {2, {"--seed", "99999999999999999999"}, "--seed: expected a whole number"},
        {2, {"--lr", "0"}, "--lr: expected a number above 0"},
        {2, {"--lr", "nan"}, "--lr: expected a number above 0"},
        {2, {"--lr", "inf"}, "--lr: expected a number above 0"},
        {1, {"--quiet=1", NULL}, "--quiet takes no value"},
        {2, {"--compare", "--overfit-one-batch"}, "exclude each other"}};
    settings s;
    char error[256];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK(!parse(&s, error, cases[i].count, cases[i].words));
        CHECK_CONTAINS(error, cases[i].part);
        CHECK(strchr(error, '\n') == NULL);
    }
}

/* ==== Reports ==== */

TEST(report_as_json) {
    run_report runs[2];
    char text[4096];
    const char *path = test_tmp_path("report.json");
    memset(runs, 0, sizeof runs);
    for (int i = 0; i < 2; i++) {
        runs[i].precision = "fp16";
        runs[i].optimizer = "adamw";
        snprintf(runs[i].data, sizeof runs[i].data, "a \"b\" \\ c");
        runs[i].epochs = 2;
        runs[i].test_accuracy = 0.975;
        runs[i].bytes[MPT_MEMORY_GRADIENT] = 1234;
    }
    runs[0].train_loss = (double)NAN;
    FILE *file = fopen(path, "w+b");
    REQUIRE(file != NULL);
    CHECK(json_write(file, runs, 1));
    CHECK(json_write(file, runs, 2));
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    remove(path);
    CHECK_CONTAINS(text, "{\"precision\": \"fp16\", \"optimizer\": \"adamw\", ");
    CHECK_CONTAINS(text, "\"data\": \"a \\\"b\\\" \\\\ c\", \"epochs\": 2, ");
    CHECK_CONTAINS(text, "\"train_loss\": null, \"test_accuracy\": 0.975, ");
    CHECK_CONTAINS(text, "\"peak_bytes\": {\"parameter\": 0, ");
    CHECK_CONTAINS(text, "\"gradient\": 1234, ");
    CHECK_CONTAINS(text, "{\"runs\": [\n{");
    int depth = 0;
    for (const char *at = text; *at; at++) depth += (*at == '{') - (*at == '}');
    CHECK_EQ_INT(depth, 0);
}

/* ==== Data ==== */

TEST(data_falls_back_to_drawn_digits) {
    float pixels[DIGITS_PIXELS];
    uint8_t image[DIGITS_PIXELS], label;
    int64_t target = -1;
    if (data_is_there("data/mnist")) SKIP("a place without data/mnist");
    mpt_context *ctx = mpt_create(NULL);
    data_sets data = data_open(ctx, NULL);
    CHECK_EQ_STR(mpt_error(ctx), "");
    CHECK_CONTAINS(data.name, "embedded digits");
    CHECK_EQ_INT(mpt_dataset_size(data.train), DIGITS_TRAIN_COUNT);
    CHECK_EQ_INT(mpt_dataset_size(data.test), DIGITS_TEST_COUNT);
    CHECK_EQ_INT(mpt_sample(data.test, 17, pixels, &target), MPT_OK);
    digits_render(DIGITS_TEST_SEED, 17, image, &label);
    CHECK_EQ_INT(target, label);
    for (int i = 0; i < DIGITS_PIXELS; i++)
        CHECK_NEAR(pixels[i], (image[i] / 255.0 - DATA_MEAN) / DATA_DEVIATION, 1e-5);
    mpt_destroy(ctx);
}

TEST(data_that_is_named_must_be_there) {
    mpt_context *ctx = mpt_create(NULL);
    data_open(ctx, "no/such/folder");
    CHECK_EQ_INT(mpt_error_code(ctx), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(ctx), "no/such/folder");
    mpt_destroy(ctx);
}

/* ==== Quick start ==== */

TEST(quick_start_runs) { CHECK_EQ_INT(quick_start_main(), 0); }

/* The whole of a text file, without '\r'; NULL if it cannot be read. */
static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, 1 << 21);
    size_t kept = 0;
    if (file && text) {
        size_t size = fread(text, 1, (1 << 21) - 1, file);
        for (size_t i = 0; i < size; i++)
            if (text[i] != '\r') text[kept++] = text[i];
        text[kept] = '\0';
    }
    if (file) fclose(file);
    if (kept > 0) return text;
    free(text);
    return NULL;
}

static void check_shows_quick_start(const char *path, const char *indent) {
    char *code = read_text("tests/quick_start.h"), *text = read_text(path), *wanted = NULL;
    if (code) wanted = (char *)calloc(1, strlen(code) * 2 + 1);
    CHECK(code != NULL && text != NULL && wanted != NULL);
    if (code && text && wanted) {
        int lines = 0;
        for (char *line = strtok(code, "\n"); line; line = strtok(NULL, "\n"), lines++)
            sprintf(wanted + strlen(wanted), "%s%s\n", indent, line);
        CHECK(strstr(text, wanted) != NULL);
        CHECK_EQ_INT(lines, 20);
    }
    free(code);
    free(text);
    free(wanted);
}

TEST(quick_start_is_what_is_printed) {
    FILE *file = fopen("README.md", "rb");
    if (!file) SKIP("README.md (run from the top folder)");
    fclose(file);
    check_shows_quick_start("README.md", "");
    check_shows_quick_start("src/00_manual.h", "    ");
}

TEST_TABLE = {T(options_defaults),
              T(options_set_fields),
              T(options_refused_with_one_line),
              T(report_as_json),
              T(data_falls_back_to_drawn_digits),
              T(data_that_is_named_must_be_there),
              T(quick_start_runs),
              T(quick_start_is_what_is_printed)};
TEST_MAIN
