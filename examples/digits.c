/* digits.c - reads mnist.safetensors and shows what the net sees in digits that it never saw.
 *
 *   digits                     three test digits, the weights from mnist.safetensors
 *   digits --count 10 --first 500 --wrong     ten that it gets wrong
 * test arguments: --count 2 */
#include "common.h"

typedef struct choice {
    int64_t count, first;
    const char *weights, *data;
    bool wrong, help;
} choice;

#define CHOICE(name) offsetof(choice, name)
static const option_row rows[] = {
    {"--weights", OPTION_TEXT, CHOICE(weights), NULL, 0, 0, "default mnist.safetensors"},
    {"--data", OPTION_TEXT, CHOICE(data), NULL, 0, 0,
     "folder with MNIST's idx files, plain or .gz"},
    {"--count", OPTION_INT, CHOICE(count), NULL, 1, 10000, "default 3"},
    {"--first", OPTION_INT, CHOICE(first), NULL, 0, 9999, "number of the first digit, default 0"},
    {"--wrong", OPTION_FLAG, CHOICE(wrong), NULL, 0, 0, "only those that it gets wrong"},
    {"--help", OPTION_FLAG, CHOICE(help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof rows[0], BAR = 30 };

/* Two rows of pixels per line of text; the ten probabilities beside them. */
static void draw(const float *pixels, const float *probability, int64_t label, int64_t guess) {
    for (int row = 0; row < DIGITS_SIZE; row += 2) {
        int digit = row / 2 - 2;
        printf("  ");
        for (int column = 0; column < DIGITS_SIZE; column++) {
            const float *upper = &pixels[row * DIGITS_SIZE + column];
            double ink = 0.5 * (upper[0] + upper[DIGITS_SIZE]) * DATA_DEVIATION + DATA_MEAN;
            int shade = (int)(ink * 5.999);
            putchar(" .:+*#"[shade < 0 ? 0 : shade > 5 ? 5 : shade]);
        }
        if (digit >= 0 && digit < 10) {
            printf("   %d %5.1f %% ", digit, 100.0 * (double)probability[digit]);
            for (int i = 0; i < (int)(probability[digit] * BAR + 0.5f); i++) putchar('=');
            printf("%s", digit == guess ? guess == label ? "  right" : "  wrong" : "");
        }
        printf("\n");
    }
}

/* Probabilities of the ten digits; the most likely one is returned. */
static int64_t classify(mpt_context *ctx, mpt_module net, const float *pixels, float *probability) {
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(1, 1, DIGITS_SIZE, DIGITS_SIZE), pixels);
    mpt_tensor log_probability = mpt_forward(net, x);
    mpt_read_f32(mpt_exp(log_probability), probability, 10);
    double guess = mpt_item(mpt_argmax(log_probability, -1, false));
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    return mpt_failed(ctx) ? -1 : (int64_t)guess;
}

static int show(mpt_context *ctx, mpt_module net, mpt_dataset test, const choice *c) {
    static float pixels[DIGITS_PIXELS];
    float probability[10] = {0};
    int64_t shown = 0, size = mpt_dataset_size(test);
    for (int64_t i = c->first; i < size && shown < c->count && !mpt_failed(ctx); i++) {
        int64_t label = 0;
        if (mpt_sample(test, i, pixels, &label) != MPT_OK) break;
        int64_t guess = classify(ctx, net, pixels, probability);
        if (guess < 0 || (c->wrong && guess == label)) continue;
        printf("\ntest digit %lld, a %lld:\n", (long long)i, (long long)label);
        draw(pixels, probability, label, guess);
        shown++;
    }
    return mpt_failed(ctx) ? fail_with_error("digits", ctx) : 0;
}

int main(int argc, char **argv) {
    choice c;
    char error[256];
    memset(&c, 0, sizeof c);
    c.count = 3;
    c.weights = "mnist.safetensors";
    if (!options_parse(rows, ROWS, argc, argv, &c, error, sizeof error))
        return fail("digits", EXIT_BAD_INPUT, "%s", error);
    if (c.help) options_help("digits", rows, ROWS, stdout);
    if (c.help) return 0;

    mpt_config config = default_config("digits");
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("digits", ctx);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 784, 128), mpt_nn_relu(ctx),
                       mpt_nn_linear(ctx, 128, 64), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 64, 10),
                       mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_load(net, c.weights, NULL, NULL);
    int status = 0;
    if (mpt_failed(ctx)) {
        status =
            fail("digits", EXIT_BAD_INPUT, "%s; the example mnist makes this file", mpt_error(ctx));
    } else {
        data_sets data = data_open(ctx, c.data);
        mpt_loader loader = mpt_loader_create(ctx, data.test, NULL);
        mpt_evaluation test = mpt_evaluate(net, loader, MPT_F32);
        if (!mpt_failed(ctx))
            printf("%s: %.2f %% of %lld test digits right\n", data.name, 100.0 * test.accuracy,
                   (long long)test.samples);
        status = show(ctx, net, data.test, &c);
    }
    mpt_destroy(ctx);
    return status;
}
