/* bench_compile.c: compiled steps against captured ones, whole training steps of models and chains
   of elementwise ops: in turn in one process, by the clock of all threads. Launches and bytes that
   operands have are those of the recordings. A chain is compared with a copy of what it has to read
   and write.
       bench_compile [seconds a row, 3] [threads, 2] */
#include "models.h"
#include "mptrain_compile.h"

#include <math.h>

enum { ROUNDS = 41 };

static double time_steps(mpt_captured step, const model *m, long repeat) {
    const double start = measure_wall();
    for (long i = 0; i < repeat; i++) {
        const long batch = i % BATCHES;
        mpt_captured_step(step, m->x[batch], m->y[batch]);
    }
    return (measure_wall() - start) / (double)repeat;
}

/* One row; returns compiled / captured by speed. */
static double measure_model(const char *name, const char *dtype, int threads, double seconds) {
    static double taken[2][ROUNDS], ratio[ROUNDS];
    mpt_config config = mpt_config_default();
    config.threads = threads;
    const bool last = strcmp(name, "lenet5") != 0;
    model *m[2];
    mpt_captured step[2];
    for (int i = 0; i < 2; i++) {
        m[i] = model_new(find_kind(name), dtype, last, &config);
        if (!m[i]) return 0;
        step[i] = i ? mpt_compile(m[i]->context, captured_fn, m[i]) : m[i]->captured;
        time_steps(step[i], m[i], 4);
    }
    const double begin = measure_wall();
    long repeat = 1;
    int rounds = 0;
    for (; time_steps(step[0], m[0], repeat) * (double)repeat < 0.01; repeat *= 2) continue;
    while (rounds < ROUNDS && (rounds < 5 || measure_wall() - begin < seconds)) {
        for (int i = 0; i < 2; i++) {
            const int way = (i + rounds) % 2;
            taken[way][rounds] = time_steps(step[way], m[way], repeat);
        }
        ratio[rounds] = taken[0][rounds] / taken[1][rounds];
        rounds++;
    }
    mpt_compile_stats s;
    mpt_compile_statistics(step[1], &s);
    const double middle = measure_median(ratio, rounds);
    printf("%-8s %s %11.1f us captured, x %.3f compiled; launches %lld -> %lld, ", name, dtype,
           1e6 * measure_median(taken[0], rounds), middle, (long long)s.launches[0],
           (long long)s.launches[1]);
    printf("%lld in %lld programs, %.1f -> %.1f MB, compiled in %.2f ms (%d rounds)%s%s\n",
           (long long)s.fused, (long long)s.programs,
           (double)s.bytes[0] / 1e6, (double)s.bytes[1] / 1e6, 1e3 * s.seconds, rounds,
           mpt_failed(m[1]->context) ? ": " : "", mpt_error(m[1]->context));
    fflush(stdout);
    for (int i = 0; i < 2; i++) model_end(m[i]);
    return middle;
}

/* ==== Chains ==== */

typedef struct chain {
    mpt_tensor x, to; /* both outlive the step */
    int ops;          /* 0: a copy */
} chain;

static mpt_status chain_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const chain *c = (const chain *)user;
    mpt_tensor value = c->x;
    (void)x, (void)y;
    mpt_step_begin(context);
    mpt_no_grad_begin(context);
    for (int i = 0; i < c->ops; i++)
        value = i == 4 ? mpt_relu(value)
            : i % 2    ? mpt_mul(value, c->x)
                       : mpt_add_scalar(value, 0.5);
    mpt_copy_(c->to, value);
    mpt_no_grad_end(context);
    return mpt_step_end(context);
}

/* Five ops on 16 M elements. */
static void measure_chain(mpt_dtype dtype, int threads) {
    mpt_config config = mpt_config_default();
    const mpt_shape shape = MPT_SHAPE(16 << 20);
    double best[3] = {1e9, 1e9, 1e9};
    mpt_captured step[3];
    chain c[2];
    config.threads = threads;
    mpt_context *context = mpt_create(&config);
    c[0].x = mpt_keep(mpt_cast(mpt_randn(context, MPT_F32, shape), dtype));
    c[0].to = mpt_keep(mpt_zeros(context, dtype, shape));
    c[0].ops = 5;
    c[1] = c[0], c[1].ops = 0;
    const mpt_tensor one = mpt_keep(mpt_zeros(context, MPT_F32, MPT_SHAPE(1)));
    for (int i = 0; i < 3; i++)
        step[i] = (i == 1 ? mpt_compile : mpt_capture)(context, chain_step, &c[i / 2]);
    for (int i = 0; i < 3 * 12; i++) {
        const double start = measure_wall();
        mpt_captured_step(step[i % 3], one, one);
        const double taken = measure_wall() - start;
        if (i >= 6 && taken < best[i % 3]) best[i % 3] = taken;
    }
    printf("5 ops on 16 M %s: captured %.2f ms, compiled %.2f ms, a copy %.2f ms: %.2f of it%s%s\n",
           mpt_dtype_name(dtype), 1e3 * best[0], 1e3 * best[1], 1e3 * best[2], best[2] / best[1],
           mpt_failed(context) ? ": " : "", mpt_error(context));
    mpt_destroy(context);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"resnet", "vit", "gpt", "lenet5", "mlp"};
    const double seconds = argc > 1 ? atof(argv[1]) : 3;
    const int threads = argc > 2 ? atoi(argv[2]) : 2;
    double product = 1, least = 1e9;
    measure_print_machine();
    measure_chain(MPT_F32, threads);
    measure_chain(MPT_BF16, threads);
    for (int i = 0; i < 10; i++) {
        const double ratio = measure_model(names[i / 2], i % 2 ? "bf16" : "fp32", threads, seconds);
        product *= ratio;
        if (ratio < least) least = ratio;
    }
    printf("compiled / captured: geometric mean %.3f, least %.3f\n", pow(product, 0.1), least);
    return 0;
}
