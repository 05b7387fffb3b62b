/* 16_memory.c - lesson 16: what takes the memory, and how to get along with less.
 *
 * A step of training holds its weights, a gradient and two moments for each of them, and what
 * forward leaves for backward, which grows with the batch. Weights of a large net, or activations
 * of a large batch, are most of it: what helps against the one does nothing about the other. So
 * look first, which mpt_plan does without taking the memory, then choose.
 * test arguments: */
#include "lesson.h"

enum { WIDTH = 256, LAYERS = 4, CLASSES = 10, BATCH = 256, SHOWN = 4, MOST = 65536 };

/* One way to save, or several. */
typedef struct way {
    const char *name;
    bool inside;       /* each weight is updated inside backward, and its gradient goes */
    bool adapters;     /* LoRA: all weights stay as they are, small ones beside them learn */
    int parts;         /* of the net, whose forwards backward runs again; 0: it keeps all */
    int bits;          /* of a moment */
    mpt_dtype weights; /* bf16: updates are rounded up or down by chance */
} way;

static const way ways[] = {{"nothing spared", false, false, 0, 32, MPT_F32},
    {"forward run again", false, false, 3, 32, MPT_F32},
    {"moments of 8 bits", false, false, 0, 8, MPT_F32},
    {"updates in backward", true, false, 0, 32, MPT_F32},
    {"weights of bf16", false, false, 0, 32, MPT_BF16}, {"LoRA", false, true, 0, 32, MPT_F32},
    {"all but LoRA", true, false, 3, 8, MPT_BF16}};
enum { PLAIN, AGAIN, EIGHT, INSIDE, BF16, LORA, ALL, WAYS };

static mpt_module make_net(mpt_context *ctx, const way *w) {
    mpt_module layers[2 * LAYERS + 1];
    for (int i = 0; i < LAYERS; i++) {
        layers[2 * i] = mpt_nn_linear(ctx, WIDTH, WIDTH);
        layers[2 * i + 1] = mpt_nn_gelu(ctx);
    }
    layers[2 * LAYERS] = mpt_nn_linear(ctx, WIDTH, CLASSES);
    mpt_module net = mpt_sequential_array(ctx, layers, 2 * LAYERS + 1);
    if (w->weights != MPT_F32) mpt_half(net, w->weights);
    if (w->parts > 0) mpt_recompute_module(net, w->parts);
    if (w->adapters) mpt_lora(net, "*", 4, 8);
    return net;
}

/* Trains for some steps: which of three numbers is the largest? Returns the last loss. */
static double train(mpt_context *ctx, const way *w, int64_t batch, int steps) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_module net = make_net(ctx, w);
    adamw.state_bits = w->bits, adamw.stochastic_rounding = w->weights == MPT_BF16;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_update_in_backward(optimizer, w->inside);
    double last = 0;
    for (int i = 0; i < steps; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_randn(ctx, w->weights, MPT_SHAPE(batch, WIDTH));
        mpt_tensor y = mpt_argmax(mpt_slice(x, 1, 0, 3, 1), 1, false);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer); /* with updates inside backward there is nothing left to do */
        if (i == steps - 1) last = mpt_item(loss);
        mpt_step_end(ctx);
    }
    return last;
}

/* What mpt_plan calls: two steps, as the moments that the first one makes stay for the second. */
static mpt_status two_steps(mpt_context *ctx, int64_t batch, void *user) {
    train(ctx, (const way *)user, batch, 2);
    return mpt_error_code(ctx);
}

static mpt_memory_stats plan(const way *w, int64_t batch) {
    mpt_memory_stats stats;
    memset(&stats, 0, sizeof stats);
    if (mpt_plan(NULL, two_steps, batch, (void *)(uintptr_t)w, &stats) != MPT_OK)
        fail("16_memory", 1, "%s", mpt_error(NULL));
    return stats;
}

static const mpt_memory_kind shown[SHOWN] = {
    MPT_MEMORY_PARAMETER, MPT_MEMORY_GRADIENT, MPT_MEMORY_MOMENT, MPT_MEMORY_ACTIVATION};

static void print_row(const char *name, const mpt_memory_stats *stats) {
    printf("%-20s", name);
    for (int k = 0; k < SHOWN; k++) printf("%12.2f", (double)stats->peak[shown[k]] / 1e6);
    printf("%12.2f", (double)stats->total_peak / 1e6);
}

static void print_head(const char *first, const char *last) {
    printf("%-20s", first);
    for (int k = 0; k < SHOWN; k++) printf("%12s", mpt_memory_kind_name(shown[k]));
    printf("%12s%s\n", "in all", last);
}

int main(void) {
    mpt_memory_stats stats[WAYS];
    mpt_context *ctx = lesson_begin("16_memory", "Lesson 16: memory");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("What grows with the batch and what does not: peaks in MB, as planned");
    print_head("batch", "");
    for (int64_t batch = 16; batch <= 4096; batch *= 16) {
        char name[32];
        const mpt_memory_stats s = plan(&ways[PLAIN], batch);
        snprintf(name, sizeof name, "%lld", (long long)batch);
        print_row(name, &s), printf("\n");
    }

    heading("A plan against the steps that it is of");
    two_steps(ctx, BATCH, (void *)(uintptr_t)&ways[PLAIN]);
    const int64_t real = mpt_memory(ctx).total_peak;
    stats[PLAIN] = plan(&ways[PLAIN], BATCH);
    printf("planned %lld bytes, taken %lld\n", (long long)stats[PLAIN].total_peak, (long long)real);

    heading("One thing at a time; the last column is the largest batch in the memory of the first");
    print_head("", "     batch");
    for (int i = 0; i < WAYS; i++) {
        stats[i] = plan(&ways[i], BATCH);
        print_row(ways[i].name, &stats[i]);
        const int64_t most = mpt_largest_batch(
            NULL, two_steps, (void *)(uintptr_t)&ways[i], stats[PLAIN].held, MOST);
        printf("%10lld\n", (long long)most);
    }

    printf(
        "Kinds peak at different times, so they do not add up; weights of bf16 were fp32 first.\n");

    heading("Does it still learn? The loss behind 200 steps");
    double loss[WAYS];
    for (int i = 0; i < WAYS; i++) {
        mpt_context *own = mpt_create(NULL); /* each begins with the same weights and numbers */
        loss[i] = train(own, &ways[i], 64, 200);
        printf("%-20s %8.4f\n", ways[i].name, loss[i]);
        mpt_destroy(own);
    }
    printf("Running forward again and updating inside backward leave the bits alone. Others round, "
           "and LoRA\nlearns less: it is for a net that has learned before.\n");
    const bool elsewhere = mpt_get_device(ctx) != MPT_DEVICE_CPU; /* plans are of the CPU */
    const int64_t moments = stats[PLAIN].peak[MPT_MEMORY_MOMENT];
    return lesson_end(ctx,
        (elsewhere || real == stats[PLAIN].total_peak) && loss[AGAIN] == loss[PLAIN] &&
            loss[INSIDE] == loss[PLAIN] && stats[EIGHT].peak[MPT_MEMORY_MOMENT] < moments / 3);
}
