/* 15_speed.c - lesson 15: how fast could it be?
 *
 * A machine multiplies at some rate and moves bytes at another. A step can be no faster than its
 * products at the first rate, and no faster than its weights and activations at the second. Where a
 * step takes much longer than both, something else costs the time: small batches, one thread,
 * a precision that this machine is slow in. Figures are this machine's; on one that does other work
 * besides, they are its too.
 * test arguments: --seconds 0.3 --width 96 */
#include "lesson.h"
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

enum { INPUTS = 784, OUTPUTS = 10 };

static struct {
    double seconds;
    int64_t width;
} choice = {2, 1536};
static const option_row rows[] = {
    {"--seconds", OPTION_NUMBER, 0, NULL, 0, 0, "for measuring the machine, default 2"},
    {"--width", OPTION_INT, sizeof(double), NULL, 1, 8192, "of the hidden layers, default 1536"}};

/* What a step must do: each weight is multiplied with each sample three times, forward, for the
 * gradient of the input and for its own, but for the first layer, which needs no gradient of its
 * input. An operation is a product or a sum. */
static double products(double batch) {
    const double first = INPUTS * (double)choice.width,
                 others = (double)(choice.width * choice.width) + (double)(choice.width * OUTPUTS);
    return 2 * batch * (2 * first + 3 * others);
}
/* Weights are read twice and written by AdamW with gradient and both moments, read and written:
 * some 40 bytes each. Activations are small beside them. */
static double bytes(void) {
    return 40 *
        (INPUTS * (double)choice.width + (double)(choice.width * choice.width) +
            (double)(choice.width * OUTPUTS));
}

/* Seconds of a step with such a batch: the mean of as many as take a twentieth of a second. */
static double step_time(mpt_context *ctx, int64_t batch, mpt_dtype precision) {
    double begin = 0, time = 0;
    int steps = -2; /* two to warm up */
    mpt_scope_begin(ctx);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, INPUTS, choice.width), mpt_nn_relu(ctx),
        mpt_nn_linear(ctx, choice.width, choice.width), mpt_nn_relu(ctx),
        mpt_nn_linear(ctx, choice.width, OUTPUTS), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(batch, INPUTS));
    mpt_tensor y = mpt_zeros(ctx, MPT_I64, MPT_SHAPE(batch));
    while (time < 0.05 && !mpt_failed(ctx)) {
        if (steps == 0) begin = seconds_now();
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, precision);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
        mpt_autocast_end(ctx);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        mpt_step_end(ctx);
        mpt_synchronize(ctx);
        if (++steps > 0) time = seconds_now() - begin;
    }
    mpt_scope_end(ctx);
    return steps > 0 ? time / steps : 0;
}

/* The kernels that take most of the time of steps of 512 samples, against what is possible here. */
static void print_kernels(mpt_context *ctx, const mpt_machine *machine) {
    mpt_profile_row kernels[4];
    mpt_profile_config config = mpt_profile_config_default();
    for (int i = 0; i < 3; i++) config.product[i] = machine->product[i];
    config.copy = machine->copy;
    mpt_profile_begin(ctx, &config);
    step_time(ctx, 512, MPT_F32);
    mpt_profile_end(ctx);
    const double all = mpt_get_profile_total(ctx).all.seconds;
    const int64_t count = mpt_profile_rows(ctx, MPT_PROFILE_KERNEL, kernels, 4);
    printf(
        "%-16s %10s %12s %12s %14s\n", "kernel", "of time", "GFLOP/s", "GB/s", "of the bound");
    for (int64_t i = 0; i < count && i < 4; i++) {
        const double bytes_moved = kernels[i].bytes_read + kernels[i].bytes_written;
        printf("%-16s %8.0f %% %12.1f %12.1f %12.0f %%\n", kernels[i].name,
            100 * kernels[i].seconds / all, 1e-9 * kernels[i].flop / kernels[i].seconds,
            1e-9 * bytes_moved / kernels[i].seconds, 100 * kernels[i].least / kernels[i].seconds);
    }
    printf("What is not bound by the one rate is bound by the other, or small.\n");
}

int main(int argc, char **argv) {
    static char text[4096];
    char error[256];
    if (!options_parse(rows, 2, argc, argv, &choice, error, sizeof error))
        return fail("15_speed", EXIT_BAD_INPUT, "%s", error);
    mpt_context *ctx = lesson_begin("15_speed", "Lesson 15: how fast could it be?");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("this machine, as make doctor tells it");
    const mpt_machine machine = mpt_machine_measure(ctx, choice.seconds);
    mpt_machine_report(ctx, &machine, text, sizeof text);
    printf("%s", text);

    printf("\n-- a step of 784-%lld-%lld-10, and what it could take\n", (long long)choice.width,
        (long long)choice.width);
    printf("%6s %12s %12s %12s %14s %16s\n", "batch", "products, ms", "memory, ms", "step, ms",
        "of the bound", "samples/s");
    double rate[3] = {0, 0, 0}, share = 0;
    for (int i = 0; i < 3; i++) {
        const int64_t batch = i == 0 ? 1 : i == 1 ? 32 : 512;
        const double compute = products((double)batch) / machine.product[0];
        const double memory = bytes() / machine.copy, bound = compute > memory ? compute : memory;
        const double time = step_time(ctx, batch, MPT_F32);
        rate[i] = (double)batch / time, share = bound / time;
        printf("%6lld %12.3f %12.3f %12.3f %12.0f %% %16.0f\n", (long long)batch, 1e3 * compute,
            1e3 * memory, 1e3 * time, 100 * share, rate[i]);
    }
    printf(
        "A batch of 1 waits for memory: every weight is fetched for one sample. Larger ones use it "
        "again.\n");

    heading("where the time of a step goes, as mpt_profile_begin tells it");
    print_kernels(ctx, &machine);

    heading("the same in half precision");
    const double plain = step_time(ctx, 512, MPT_F32), half = step_time(ctx, 512, MPT_BF16);
    printf(
        "fp32 %.3f ms, bf16 %.3f ms: %.2f times as fast\n", 1e3 * plain, 1e3 * half, plain / half);

    heading("sizes that are slow");
    mpt_module odd =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 1001, 515), mpt_nn_linear(ctx, 515, 7), MPT_END);
    if (mpt_machine_shapes(odd, 256, MPT_F32, text, sizeof text) > 0)
        printf("%s", text);
    else
        printf("none: this machine takes 1001 x 515 and 515 x 7 as they are\n");
    return lesson_end(ctx, rate[2] > 2 * rate[0] && share > 0.1);
}
