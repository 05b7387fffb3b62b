/* What the examples share: options, reports as JSON, the search for data; and the quick start,
   which README.md and the manual must show as it is compiled here. */
#include "../examples/common.h"
#include "../examples/cartpole_game.h"
#include "../examples/picture.h"
#include "../examples/png.h"
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

/* --json belongs to mnist's own options, --memory-limit to those of all examples. */
TEST(options_of_all_examples) {
    static const char *const words[] = {"--json", "a.json", "--memory-limit=3"};
    static const char *const bad[] = {"--memory-limit", "0"};
    settings s;
    char error[256];
    memset(&common, 0, sizeof common);
    CHECK(parse(&s, error, 3, words));
    CHECK(common.json == NULL);
    CHECK_EQ_INT(common.memory_limit, 3);
    CHECK_EQ_INT(default_config("test").memory_limit, 3 << 20);
    CHECK(!parse(&s, error, 2, bad));
    CHECK_CONTAINS(error, "--memory-limit: expected a whole number from 1 to");
    common.memory_limit = 0;
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

/* What a driver reads: the run as the progress saw it, and its peaks. */
TEST(results_as_json) {
    char text[2048] = "";
    const char *path = test_tmp_path("results.json");
    mpt_config config = default_config("test");
    mpt_context *ctx = mpt_create(&config);
    mpt_scaler scaler = mpt_grad_scaler(ctx, NULL);
    progress bar = progress_begin("", false, 1, 3);
    for (int i = 0; i < 3; i++) progress_step(&bar, ctx, scaler);
    CHECK(bar.steps == 3 && bar.fastest_step >= 0 && bar.fastest_step <= bar.seconds);
    common.json = NULL;
    CHECK_EQ_INT(write_results(ctx, &bar, scaler, "loss", 1.5), 0);
    common.json = path;
    CHECK_EQ_INT(write_results(ctx, &bar, scaler, "loss", 1.5), 0);
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    remove(path);
    CHECK_CONTAINS(text, "{\"program\": \"test\", \"isa\": \"");
    CHECK_CONTAINS(text, "\"loss\": 1.5, \"steps\": 3, \"skipped_steps\": 0, \"seconds\": ");
    CHECK_CONTAINS(text, "\"peak_bytes\": {\"parameter\": 0, ");
    CHECK(strcmp(text + strlen(text) - 3, "}}\n") == 0);
    common.json = "no/such/folder/results.json";
    CHECK_EQ_INT(write_results(ctx, &bar, scaler, "loss", 1.5), EXIT_BAD_INPUT);
    common.json = NULL;
    mpt_destroy(ctx);
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

/* ==== Pictures ==== */

/* Files as Python's zlib.crc32 and zlib.adler32 make them: their sizes and the CRC-32 of all bytes.
   The rows of the first one fill one block of zlib's, those of the others need more. */
TEST(pictures_as_png) {
    static const struct {
        int width, height;
        size_t bytes;
        uint32_t crc;
    } files[] = {{28, 771, 65603, 0x0c74ca20u},
                 {28, 772, 65693, 0xfae6e3deu},
                 {300, 200, 180278, 0x29947720u}};
    static uint8_t rgb[300 * 200 * 3], file_bytes[200000];
    const char *path = test_tmp_path("picture.png");
    for (unsigned i = 0; i < sizeof rgb; i++) rgb[i] = (uint8_t)((uint64_t)i * i / 7 + i);
    for (int i = 0; i < 3; i++) {
        CHECK(png_write(path, files[i].width, files[i].height, rgb));
        FILE *file = fopen(path, "rb");
        REQUIRE(file != NULL);
        size_t bytes = fread(file_bytes, 1, sizeof file_bytes, file);
        fclose(file);
        remove(path);
        CHECK_EQ_INT(bytes, files[i].bytes);
        CHECK_EQ_INT(png_crc(file_bytes, bytes), files[i].crc);
    }
    CHECK(!png_write("no/such/folder/picture.png", 1, 1, rgb));
}

TEST(pictures_drawn_and_reduced) {
    static const uint8_t bytes[2 * 5 * 3] = {1, 10, 20, 3, 10, 20, 5, 0, 0, 7, 0, 0, 99, 99, 99,
                                             5, 30, 20, 7, 30, 20, 9, 8, 0, 3, 0, 4, 99, 99, 99};
    static const float means[6] = {4, 20, 20, 6, 2, 1};
    picture p = picture_reduce(bytes, 5, 2, 2, 1);
    REQUIRE(p.rgb != NULL);
    for (int i = 0; i < 6; i++) CHECK_NEAR(p.rgb[i], means[i] / 255, 1e-7);
    free(p.rgb);
    p = picture_draw(64);
    REQUIRE(p.rgb != NULL);
    double sum = 0;
    for (int i = 0; i < 3 * 64 * 64; i++) sum += (double)p.rgb[i];
    for (int i = 0; i < 3 * 64 * 64; i++) CHECK(p.rgb[i] >= 0 && p.rgb[i] <= 1);
    CHECK(sum / (3 * 64 * 64) > 0.2 && sum / (3 * 64 * 64) < 0.8);
    free(p.rgb);
    p = picture_read("no/such/picture.png", 64);
    CHECK(p.rgb == NULL && *p.error);
}

/* ==== The game ==== */

/* What the formulas of Gymnasium's CartPole-v1 give in Python, pushed right, left, right, right, ..
   for twelve frames. */
TEST(cart_moves_as_published) {
    cart c = {0.03, -0.02, 0.04, 0.01};
    for (int i = 0; i < 12; i++) CHECK(cart_move(&c, i % 3 != 1));
    CHECK_NEAR(c.place, 0.1105445706263315, 1e-12);
    CHECK_NEAR(c.speed, 0.7589831321967977, 1e-12);
    CHECK_NEAR(c.angle, -0.07520278796366722, 1e-12);
    CHECK_NEAR(c.spin, -1.1298885733373312, 1e-12);
    int frames = 1;
    while (cart_move(&c, true) && frames < EPISODE) frames++;
    CHECK(frames < 10 && c.angle < -0.2);
}

TEST(game_rounds) {
    static game g, again;
    static float outputs[CARTS][OUTPUTS];
    int longest = 0;
    for (int i = 0; i < CARTS; i++) outputs[i][i % 2] = i < 2 ? 50.0f : 0.0f; /* two push one way */
    for (int run = 0; run < 2; run++) {
        game *at = run ? &again : &g;
        at->random.state = 5;
        for (int round = 0; round < 8; round++) {
            game_begin_round(at);
            while (game_is_on(at)) game_frame(at, outputs);
            game_end_round(at);
        }
    }
    CHECK_EQ_BITS(&g, &again, sizeof g);
    CHECK_EQ_INT(g.episodes, 8 * CARTS);
    for (int i = 0; i < CARTS; i++) {
        const cart_record *r = &g.carts[i];
        CHECK(r->length >= 8 && r->length < EPISODE && !r->playing);
        if (i < 2) CHECK(r->length <= 11);
        if (i < 2) CHECK(r->right[0] == (i == 1));
        CHECK_NEAR(r->worth[r->length - 1], 0.01, 1e-7); /* the last frame alone */
        CHECK_NEAR(r->worth[0], 1 - pow(0.99, r->length), 1e-6);
        if (r->length > longest) longest = r->length;
    }
    CHECK(longest > 15 && game_mean_length(&g) > 12 && game_mean_length(&g) < 40);
    for (int n = 0; n < BATCH; n++) {
        const float *taught = g.taught[0][n];
        CHECK(taught[0] + taught[1] == 1.0f && taught[2] > 0.009f);
        CHECK((double)taught[2] < 1 - pow(0.99, longest) + 1e-6);
    }
}

TEST(cart_as_text) {
    char text[64];
    cart c = {0, 0, 0, 0};
    cart_draw_text(&c, text, 11);
    CHECK_EQ_STR(text, "____[|]____");
    c.place = 9, c.angle = 0.2;
    cart_draw_text(&c, text, 11);
    CHECK_EQ_STR(text, "________[/]");
    c.place = -9, c.angle = -0.2;
    cart_draw_text(&c, text, 11);
    CHECK_EQ_STR(text, "[\\]________");
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

/* The lines of a kernel that is compiled and run elsewhere, one behind the other. */
TEST(the_manual_shows_a_kernel) {
    char *code = read_text("tests/cudasim/kernel.cu"), *text = read_text("src/face/manual.h");
    if (!code || !text) SKIP("the library's folder (run from the top folder)");
    char *first = strstr(code, "#include"), *end = strstr(code, "/* ---- So far the manual");
    const char *at = text;
    int lines = 0;
    CHECK(first != NULL && end != NULL);
    if (end) *end = '\0';
    for (char *line = first ? strtok(first, "\n") : NULL; line && at; lines++) {
        char wanted[200];
        snprintf(wanted, sizeof wanted, "    %s\n", line);
        at = strstr(at, wanted);
        if (!at) TEST_FAIL_("the manual does not show: %s", line);
        line = strtok(NULL, "\n");
    }
    CHECK(lines > 30);
    free(code);
    free(text);
}

TEST(quick_start_is_what_is_printed) {
    FILE *file = fopen("README.md", "rb");
    if (!file) SKIP("README.md (run from the top folder)");
    fclose(file);
    check_shows_quick_start("README.md", "");
    check_shows_quick_start("src/face/manual.h", "    ");
}

TEST_TABLE = {T(options_defaults),
              T(options_set_fields),
              T(options_refused_with_one_line),
              T(options_of_all_examples),
              T(report_as_json),
              T(results_as_json),
              T(data_falls_back_to_drawn_digits),
              T(data_that_is_named_must_be_there),
              T(pictures_as_png),
              T(pictures_drawn_and_reduced),
              T(cart_moves_as_published),
              T(game_rounds),
              T(cart_as_text),
              T(quick_start_runs),
              T(the_manual_shows_a_kernel),
              T(quick_start_is_what_is_printed)};
TEST_MAIN
