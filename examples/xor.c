/* xor.c - the smallest network worth training, on the short road: one call of mpt_fit.
 *
 * No single line separates exclusive-or's two classes, so a net without a hidden layer cannot learn
 * it. Trains in fp16 with loss scaling, shows how the net sees the unit square, and checks itself.
 * test arguments: */
#include "common.h"

/* mpt_fit prints nothing: it hands over each line that it would show. */
static bool show(void *user, const mpt_progress *p) {
    (void)user;
    if (p->epoch_end && p->epoch % 50 == 0) printf("%s\n", p->text);
    return true;
}

/* The probability of class 1 over the square, as a picture. */
static void draw(mpt_context *ctx, mpt_module net) {
    enum { ROWS = 11, COLUMNS = 31 };
    static float points[ROWS * COLUMNS * 2], scores[ROWS * COLUMNS * 2];
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        points[2 * i] = (float)(i % COLUMNS) / (COLUMNS - 1);
        points[2 * i + 1] = 1.0f - (float)(i / COLUMNS) / (ROWS - 1);
    }
    mpt_inference_begin(ctx);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(ROWS * COLUMNS, 2), points);
    mpt_read_f32(mpt_exp(mpt_forward(net, x)), scores, ROWS * COLUMNS * 2);
    mpt_inference_end(ctx);
    for (int row = 0; row < ROWS; row++) {
        printf("  ");
        for (int column = 0; column < COLUMNS; column++) {
            int shade = (int)(scores[2 * (row * COLUMNS + column) + 1] * 4.999f);
            putchar(" .:+#"[shade < 0 ? 0 : shade > 4 ? 4 : shade]);
        }
        printf("\n");
    }
}

int main(void) {
    static const float inputs[4][2] = {{0, 0}, {0, 1}, {1, 0}, {1, 1}};
    static const int64_t classes[4] = {0, 1, 1, 0};
    mpt_config config = default_config("xor");
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("xor", ctx);

    mpt_memory_dataset_config samples = mpt_memory_dataset_config_default();
    samples.count = 4;
    samples.dtype = MPT_F32;
    samples.shape = MPT_SHAPE(2);
    samples.inputs = inputs;
    samples.targets = classes;
    mpt_dataset data = mpt_memory_dataset(ctx, &samples);
    mpt_loader loader = mpt_loader_create(ctx, data, NULL);

    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 16), mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 16, 2),
                       mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 0.05;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);

    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 200;
    fit.precision = MPT_F16;
    fit.progress = show;
    mpt_fit_result result = mpt_fit(net, optimizer, loader, &fit);
    mpt_evaluation test = mpt_evaluate(net, loader, MPT_F16);
    draw(ctx, net);
    if (mpt_failed(ctx)) return fail_with_error("xor", ctx);
    printf("loss %.4f, %.0f of 4 right, %lld steps, %lld skipped\n", result.train_loss,
           4.0 * test.accuracy, (long long)result.steps, (long long)result.skipped_steps);
    mpt_destroy(ctx);
    return test.accuracy == 1.0 ? 0 : fail("xor", 1, "did not learn exclusive-or");
}
