/* 12_mixed_precision.c - lesson 12: mixed precision: 16 bits where they do, 32 where they must.
 *
 * Numbers of 16 bits take half the memory, and where the hardware multiplies them, a fraction of
 * the time. But fp16 ends at 65504 and has nothing between 0 and 6e-8, and bf16 has three digits.
 * So weights and sums stay in fp32, products go to 16 bits, and fp16's losses are scaled so that
 * small gradients do not vanish.
 * test arguments: */
#include "lesson.h"

enum { BATCH = 256, WIDTH = 256, STEPS = 60 };

static void numbers(mpt_context *ctx) {
    static const float values[] = {1.0f / 3.0f, 1.001f, 60000.0f, 70000.0f, 1e-7f, 1e-8f};
    static const mpt_dtype dtypes[] = {MPT_F16, MPT_BF16};
    heading("What 16 bits can hold: fp16 has digits but little range, bf16 the opposite");
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(6), values);
    printf("%-10s", "fp32");
    for (int i = 0; i < 6; i++) printf("%13.7g", (double)values[i]);
    for (int d = 0; d < 2; d++) {
        float out[6] = {0};
        mpt_read_f32(mpt_cast(x, dtypes[d]), out, 6);
        printf("\n%-10s", mpt_dtype_name(dtypes[d]));
        for (int i = 0; i < 6; i++) printf("%13.7g", (double)out[i]);
    }
    printf("\n");
}

static void autocast(mpt_context *ctx) {
    heading("Inside an autocast region each operation takes its own precision");
    mpt_module layer = mpt_nn_linear(ctx, 4, 4);
    mpt_autocast_begin(ctx, MPT_F16);
    mpt_tensor y = mpt_forward(layer, mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 4)));
    mpt_tensor p = mpt_softmax(y, 1);
    mpt_autocast_end(ctx);
    printf("weight %s, linear(x) %s, softmax of it %s\n",
           mpt_dtype_name(mpt_get_dtype(mpt_parameter(layer, "weight"))),
           mpt_dtype_name(mpt_get_dtype(y)), mpt_dtype_name(mpt_get_dtype(p)));
}

typedef struct outcome {
    double loss, mebibytes;
    mpt_scaler_stats scaling;
} outcome;

/* Learns a function of 256 numbers; the same start and the same batches each time. */
static outcome train(mpt_dtype precision, bool scaled) {
    outcome result;
    mpt_context *ctx = mpt_create(NULL); /* without a log, which would hear of each overflow */
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, WIDTH, WIDTH), mpt_nn_relu(ctx),
                                    mpt_nn_linear(ctx, WIDTH, WIDTH), mpt_nn_relu(ctx),
                                    mpt_nn_linear(ctx, WIDTH, 1), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = scaled;
    sc.init_scale = 16777216.0; /* far too large, to see it come down */
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    for (int step = 0; step < STEPS; step++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(BATCH, WIDTH));
        mpt_tensor y = mpt_tanh(mpt_mul_scalar(mpt_sum(x, 1, true), 0.2));
        mpt_autocast_begin(ctx, precision);
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), y, MPT_MEAN);
        mpt_autocast_end(ctx);
        if (step >= STEPS - 10) mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(
            mpt_scale_loss(scaler, loss));  /* the loss, and so each gradient, times scale */
        mpt_scaler_step(scaler, optimizer); /* back in fp32; skipped if one is not finite */
        mpt_scaler_update(scaler);          /* then the scale halves */
        mpt_step_end(ctx);
    }
    result.loss = mpt_metric_mean(ctx, "loss", true);
    result.mebibytes = (double)mpt_memory(ctx).peak[MPT_MEMORY_ACTIVATION] / 1048576.0;
    result.scaling = mpt_scaler_statistics(scaler);
    if (mpt_failed(ctx)) fail_with_error("12_mixed_precision", ctx);
    mpt_destroy(ctx);
    return result;
}

int main(void) {
    static const struct {
        const char *name;
        mpt_dtype precision;
        bool scaled;
    } runs[3] = {
        {"fp32", MPT_F32, false}, {"bf16", MPT_BF16, false}, {"fp16, scaled", MPT_F16, true}};
    outcome o[3];
    mpt_context *ctx = lesson_begin("12_mixed_precision", "Lesson 12: mixed precision");
    if (!ctx) return EXIT_BAD_INPUT;
    numbers(ctx);
    autocast(ctx);
    heading("The same training in three precisions");
    printf("%-14s %10s %18s %12s %8s\n", "", "loss", "activations, MiB", "last scale", "skipped");
    for (int i = 0; i < 3; i++) {
        o[i] = train(runs[i].precision, runs[i].scaled);
        printf("%-14s %10.5f %18.2f %12.0f %8lld\n", runs[i].name, o[i].loss, o[i].mebibytes,
               o[i].scaling.scale, (long long)o[i].scaling.skipped);
    }
    printf("\nA scale that is too large makes fp16 gradients infinite: those steps are skipped and "
           "the\n"
           "scale halves until they fit. Nothing else is lost: see underflow for the opposite "
           "case.\n");
    return lesson_end(ctx, fabs(o[1].loss - o[0].loss) < 0.05 &&
                               fabs(o[2].loss - o[0].loss) < 0.05 &&
                               o[2].mebibytes < o[0].mebibytes);
}
