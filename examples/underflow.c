/* underflow.c - what fp16 underflow is, and how loss scaling cures it, in numbers.
 *
 * fp16 has no number between 0 and 6.0e-8. Gradients are often smaller: here the loss is a mean
 * over 256 digits and, as if it were one of many terms, over 25600 more. Trains the same net three
 * times from the same weights and counts how many gradients are zero.
 * test arguments: --epochs 4 */
#include "common.h"

enum {
    BATCH = 256,
    TERMS = 25600,
    TRAIN_DIGITS = 8192,
    TEST_DIGITS = 10000,
    PIXELS = DIGITS_PIXELS
};

typedef struct trial {
    const char *name;
    mpt_dtype precision;
    bool scaled;
    double loss, accuracy, zeros; /* of 1 */
    double scale;
    int64_t skipped;
} trial;

/* What becomes of a few small numbers on their way through fp16, plain and scaled by 65536. */
static void show_numbers(mpt_context *ctx) {
    static const float numbers[6] = {1e-4f, 1e-6f, 1.5e-7f, 1e-7f, 5e-8f, 2e-8f};
    float plain[6], scaled[6];
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(6), numbers);
    mpt_read_f32(mpt_cast(x, MPT_F16), plain, 6);
    mpt_tensor large = mpt_cast(mpt_mul_scalar(x, 65536.0), MPT_F16);
    mpt_read_f32(mpt_mul_scalar(mpt_cast(large, MPT_F32), 1.0 / 65536.0), scaled, 6);
    printf("%-34s", "a gradient");
    for (int i = 0; i < 6; i++) printf("%10.2g", (double)numbers[i]);
    printf("\n%-34s", "in fp16");
    for (int i = 0; i < 6; i++) printf("%10.2g", (double)plain[i]);
    printf("\n%-34s", "times 65536, in fp16, over 65536");
    for (int i = 0; i < 6; i++) printf("%10.2g", (double)scaled[i]);
    printf("\n\n");
}

/* Adds the parameters' gradients to the counts: all of them, and those that are exactly zero. */
static void count_zeros(mpt_module net, int64_t *zeros, int64_t *all) {
    static float gradient[PIXELS * 64];
    for (int i = 0; i < mpt_parameter_count(net); i++) {
        mpt_tensor parameter = mpt_parameter_at(net, i, NULL, 0);
        int64_t numel = mpt_numel(parameter);
        if (mpt_read_f32(mpt_grad(parameter), gradient, numel) != MPT_OK) return;
        for (int64_t k = 0; k < numel; k++) *zeros += gradient[k] == 0.0f;
        *all += numel;
    }
}

static void train(mpt_context *ctx, trial *t, int64_t epochs) {
    mpt_dataset digits = data_drawn(ctx, DIGITS_TRAIN_SEED, TRAIN_DIGITS);
    mpt_dataset unseen = data_drawn(ctx, DIGITS_TEST_SEED, TEST_DIGITS);
    mpt_normalize(digits, DATA_MEAN, DATA_DEVIATION);
    mpt_normalize(unseen, DATA_MEAN, DATA_DEVIATION);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    mpt_loader tests = mpt_loader_create(ctx, unseen, &lc);
    lc.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, digits, &lc);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, PIXELS, 64), mpt_nn_relu(ctx),
                       mpt_nn_linear(ctx, 64, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 0.002;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = t->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);

    int64_t zeros = 0, all = 0;
    for (int64_t epoch = 0; epoch < epochs; epoch++) {
        mpt_batch b;
        mpt_metric_reset(ctx, "loss");
        while (mpt_loader_next(loader, &b)) {
            mpt_step_begin(ctx);
            mpt_autocast_begin(ctx, t->precision);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(net, b.x), b.y, NULL);
            mpt_autocast_end(ctx);
            mpt_metric_push(ctx, "loss", loss);
            mpt_zero_grad(optimizer);
            mpt_backward(mpt_scale_loss(scaler, mpt_mul_scalar(loss, 1.0 / TERMS)));
            count_zeros(net, &zeros, &all);
            mpt_scaler_step(scaler, optimizer);
            mpt_scaler_update(scaler);
            mpt_step_end(ctx);
        }
    }
    t->loss = mpt_metric_mean(ctx, "loss", true);
    t->zeros = (double)zeros / (double)all;
    t->accuracy = mpt_evaluate(net, tests, t->precision).accuracy;
    t->scale = mpt_get_scale(scaler);
    t->skipped = mpt_scaler_statistics(scaler).skipped;
}

typedef struct choices {
    int64_t epochs;
    bool help;
} choices;

static const option_row rows[] = {
    {"--epochs", OPTION_INT, offsetof(choices, epochs), NULL, 1, 1000, "default 4"},
    {"--help", OPTION_FLAG, offsetof(choices, help), NULL, 0, 0, "this list"}};

int main(int argc, char **argv) {
    trial trials[] = {{"fp32", MPT_F32, false, 0, 0, 0, 0, 0},
                      {"fp16", MPT_F16, false, 0, 0, 0, 0, 0},
                      {"fp16, loss scaled", MPT_F16, true, 0, 0, 0, 0, 0}};
    choices choice = {4, false};
    mpt_config config = default_config("underflow");
    char error[256];
    if (!options_parse(rows, 2, argc, argv, &choice, error, sizeof error))
        return fail("underflow", EXIT_BAD_INPUT, "%s", error);
    if (choice.help) options_help("underflow", rows, 2, stdout);
    if (choice.help) return 0;
    for (int i = 0; i < 3; i++) {
        mpt_context *ctx = mpt_create(&config);
        if (!ctx) return fail_with_error("underflow", ctx);
        if (i == 0) show_numbers(ctx);
        if (i == 0)
            printf("No gradient of an output exceeds 1 / (%d x %d) = %.1e.\n\n%-18s %9s %9s %9s "
                   "%9s %8s\n",
                   BATCH, TERMS, 1.0 / BATCH / TERMS, "", "zeros, %", "loss", "right, %", "scale",
                   "skipped");
        train(ctx, &trials[i], choice.epochs);
        if (mpt_failed(ctx)) return fail_with_error("underflow", ctx);
        mpt_destroy(ctx);
        printf("%-18s %9.1f %9.4f %9.2f %9.0f %8lld\n", trials[i].name, 100.0 * trials[i].zeros,
               trials[i].loss, 100.0 * trials[i].accuracy, trials[i].scale,
               (long long)trials[i].skipped);
    }
    bool shown = trials[1].zeros > 0.5 && trials[1].accuracy < trials[0].accuracy - 0.05 &&
                 trials[2].accuracy > trials[0].accuracy - 0.01;
    printf("\n%s\n",
           shown ? "Without scaling most gradients vanish; with it fp16 learns what fp32 learns."
                 : "The three runs do not show it: try --epochs 4.");
    return shown ? 0 : 1;
}
