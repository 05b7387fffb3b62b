/* autoencoder.c - squeezes each digit through a few numbers and draws it again from them. No label
 * is read: inputs are their own targets.
 *
 * 784-256-64-code-64-256-784 in mixed precision. Shows test digits, above, and what came out. A
 * program that drew the mean digit for all of them would explain 0 % of how digits differ.
 * test arguments: --subset 4096 --epochs 2 --batch 32 */
#define EXAMPLE_GOES_ON
#include "common.h"
#include "precisions.h"

typedef struct settings {
    int64_t code, epochs, batch, subset, precision, seed;
    double lr;
    const char *data;
    bool help;
} settings;

static const option_row rows[] = {
    {"--code", OPTION_INT, offsetof(settings, code), NULL, 1, 784, "numbers per digit, default 16"},
    {"--epochs", OPTION_INT, offsetof(settings, epochs), NULL, 1, 10000, "default 5"},
    {"--batch", OPTION_INT, offsetof(settings, batch), NULL, 1, 60000, "default 64"},
    {"--lr", OPTION_NUMBER, offsetof(settings, lr), NULL, 0, 0, "default 0.002"},
    {"--precision", OPTION_CHOICE, offsetof(settings, precision), "fp32|fp16|bf16", 0, 0,
     "default fp16"},
    {"--data", OPTION_TEXT, offsetof(settings, data), NULL, 0, 0,
     "folder with MNIST's idx files, plain or .gz"},
    {"--subset", OPTION_INT, offsetof(settings, subset), NULL, 1, 60000,
     "train on the first N digits only"},
    {"--seed", OPTION_INT, offsetof(settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows, PIXELS = DIGITS_PIXELS, TESTS = 1000, SHOWN = 3 };

static mpt_module make_net(mpt_context *ctx, int64_t code) {
    mpt_module encoder = mpt_sequential(ctx, mpt_nn_linear(ctx, PIXELS, 256), mpt_nn_relu(ctx),
                                        mpt_nn_linear(ctx, 256, 64), mpt_nn_relu(ctx),
                                        mpt_nn_linear(ctx, 64, code), MPT_END);
    mpt_module decoder = mpt_sequential(ctx, mpt_nn_linear(ctx, code, 64), mpt_nn_relu(ctx),
                                        mpt_nn_linear(ctx, 64, 256), mpt_nn_relu(ctx),
                                        mpt_nn_linear(ctx, 256, PIXELS), MPT_END);
    return mpt_sequential(ctx, encoder, decoder, MPT_END);
}

/* The first digits side by side, without their margin, two rows of pixels per line of text. */
static void draw(float (*digits)[PIXELS]) {
    for (int row = 2; row < DIGITS_SIZE - 2; row += 2) {
        printf(" ");
        for (int i = 0; i < SHOWN * DIGITS_SIZE; i++) {
            const int column = i % DIGITS_SIZE;
            const float *upper = &digits[i / DIGITS_SIZE][row * DIGITS_SIZE + column];
            const int shade = (int)((upper[0] + upper[DIGITS_SIZE]) * 2.9999f);
            if (column < 2 || column >= DIGITS_SIZE - 2) continue;
            putchar(" .:+*#"[shade < 0 ? 0 : shade > 5 ? 5 : shade]);
        }
        printf("\n");
    }
    printf("\n");
}

/* Draws digits that it never saw, and reads how far the net is off: its squared error as a share of
 * what the digits differ from their mean. */
static double test(mpt_context *ctx, mpt_module net, mpt_dataset digits, mpt_dtype autocast) {
    static float pixels[TESTS][PIXELS], drawn[TESTS][PIXELS];
    double error = 0, variance = 0;
    for (int i = 0; i < TESTS; i++) mpt_sample(digits, i, pixels[i], NULL);
    mpt_inference_begin(ctx);
    mpt_autocast_begin(ctx, autocast);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(TESTS, PIXELS), pixels);
    mpt_tensor y = mpt_sigmoid(mpt_forward(net, x));
    mpt_autocast_end(ctx);
    mpt_inference_end(ctx);
    if (mpt_read_f32(y, &drawn[0][0], TESTS * PIXELS) != MPT_OK) return 1.0;
    for (int at = 0; at < PIXELS; at++) {
        double sum = 0, squares = 0;
        for (int i = 0; i < TESTS; i++) {
            const double pixel = pixels[i][at], off = drawn[i][at] - pixel;
            sum += pixel, squares += pixel * pixel, error += off * off;
        }
        variance += squares - sum * sum / (int)TESTS;
    }
    draw(pixels);
    draw(drawn);
    return error / variance;
}

static int train(mpt_context *ctx, const settings *s) {
    const precision *p = &precisions[s->precision];
    data_sets data = data_open(ctx, s->data);
    mpt_normalize(data.train, 0, 1); /* pixels as shades from 0 to 1: they are targets, too */
    mpt_normalize(data.test, 0, 1);
    if (s->subset) data.train = mpt_subset(data.train, 0, s->subset);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = s->batch, lc.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, data.train, &lc);
    mpt_module net = make_net(ctx, s->code);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    const mpt_tensor none = mpt_null_tensor();
    if (mpt_failed(ctx)) return fail_with_error("autoencoder", ctx);
    printf("Data: %s; %lld numbers per digit, %s\n", data.name, (long long)s->code, p->name);

    progress bar = progress_begin("", true, s->epochs, mpt_loader_batches(loader));
    progress_resume(&bar, ctx);
    while (progress_goes_on(&bar, ctx)) {
        mpt_batch b;
        if (!mpt_loader_next(loader, &b)) continue; /* the next call begins an epoch */
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_flatten(b.x, 1, -1);
        mpt_autocast_begin(ctx, p->autocast);
        mpt_tensor loss =
            mpt_binary_cross_entropy_with_logits(mpt_forward(net, x), x, none, none, MPT_MEAN);
        mpt_autocast_end(ctx);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
    }
    const int status = progress_end(&bar, ctx, "autoencoder");
    if (status != 0) return status;
    const double left = test(ctx, net, data.test, p->autocast);
    if (mpt_failed(ctx)) return fail_with_error("autoencoder", ctx);
    printf("%lld numbers for %d pixels explain %.1f %% of how test digits differ\n",
           (long long)s->code, PIXELS, 100 * (1 - left));
    return left < 1 ? 0 : fail("autoencoder", 1, "the mean digit would have been nearer");
}

int main(int argc, char **argv) {
    settings s = {16, 5, 64, 0, 1, 0, 0.002, NULL, false};
    char error[256];
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("autoencoder", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("autoencoder", rows, ROWS, stdout), 0;
    mpt_config config = default_config("autoencoder");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    const int status = ctx ? train(ctx, &s) : fail_with_error("autoencoder", ctx);
    mpt_destroy(ctx);
    return status;
}
