/* device_speed.c: what the device of a context does with its memory and its arithmetic: kernels as
   a share of a plain copy's bandwidth and of the fastest product's rate, all measured in this run,
   and whole steps, one by one and captured.
       device_speed [megabytes per array, 256] [cpu|cuda]
   One line per row, and behind a tab: name, seconds, share. */
#include "measure.h"
#include "training.h"

#include <math.h>

static mpt_context *context;
static mpt_tensor array, other, half, picks, matrix[3];
static double megabytes = 256;

/* Wall-clock seconds of one run, the best of five samples of `runs` each. */
static double seconds_of(void (*run)(void *), void *self, int runs) {
    double best = 1e30;
    run(self);
    for (int round = 0; round < 5; round++) {
        mpt_synchronize(context);
        double start = measure_wall();
        for (int i = 0; i < runs; i++) run(self);
        mpt_synchronize(context);
        double seconds = (measure_wall() - start) / runs;
        if (seconds < best) best = seconds;
    }
    return best;
}

static double report(const char *name, double seconds, double work, const char *unit, double most) {
    double rate = work / seconds;
    printf("%-34s %10.1f us %9.1f %s", name, seconds * 1e6, rate * 1e-9, unit);
    if (most > 0) printf(" %6.1f %%", 100 * rate / most);
    printf("\t%s\t%.9g\t%.4g\n", name, seconds, most > 0 ? rate / most : 1);
    return rate;
}

/* ==== Kernels on long arrays ==== */

/* The result lives for one step only, so that the pool gives the same memory again. */
#define RUN(name, expression) \
    static void run_##name(void *self) { \
        (void)self; \
        mpt_step_begin(context); \
        expression; \
        mpt_step_end(context); \
    }
RUN(clone, mpt_cat(&array, 1, 0))
RUN(relu, mpt_relu(array))
RUN(gelu, mpt_gelu(array))
RUN(add, mpt_add(array, other))
RUN(scale, mpt_mul_scalar(array, 0.5))
RUN(to_half, mpt_cast(array, MPT_BF16))
RUN(from_half, mpt_cast(half, MPT_F32))
RUN(dropout, mpt_dropout(array, 0.1))
RUN(transpose, mpt_contiguous(mpt_transpose(array, 0, 1)))
RUN(softmax, mpt_softmax(array, -1))
RUN(log_softmax, mpt_log_softmax(array, -1))
RUN(sum_rows, mpt_sum(array, 0, false))
RUN(sum_columns, mpt_sum(array, 1, false))
RUN(sum_all, mpt_sum(array, MPT_ALL_DIMS, false))
RUN(select, mpt_index_select(array, 0, picks))
RUN(scatter,
    mpt_scatter_add(other, 0,
                    mpt_expand(mpt_reshape(picks, MPT_SHAPE(-1, 1)), mpt_get_shape(array)), array))

typedef struct row {
    const char *name;
    void (*run)(void *self);
    double arrays; /* of fp32 that it moves */
} row;

static const row rows[] = {{"relu", run_relu, 2},
                           {"gelu", run_gelu, 2},
                           {"add", run_add, 3},
                           {"times a number", run_scale, 2},
                           {"fp32 to bf16", run_to_half, 1.5},
                           {"bf16 to fp32", run_from_half, 1.5},
                           {"dropout", run_dropout, 2},
                           {"transposed copy", run_transpose, 2},
                           {"softmax of rows", run_softmax, 2},
                           {"log_softmax of rows", run_log_softmax, 2},
                           {"sum over rows", run_sum_rows, 1},
                           {"sum over columns", run_sum_columns, 1},
                           {"sum of all", run_sum_all, 1},
                           {"rows by index", run_select, 2},
                           {"rows added by index", run_scatter, 5}};

/* As many rows as there are, of which some come often: those of the squares. */
static mpt_tensor make_picks(int64_t lines) {
    int64_t *index = (int64_t *)malloc((size_t)lines * sizeof *index);
    mpt_tensor made = {NULL, 0, 0};
    if (!index) return made;
    for (int64_t i = 0; i < lines; i++) index[i] = i * i % lines;
    made = mpt_from(context, MPT_I64, MPT_SHAPE(lines), index);
    free(index);
    return made;
}

static double bench_arrays(void) {
    const int64_t columns = 4096, lines = (int64_t)(megabytes * 1e6 / 4 / 4096);
    array = mpt_randn(context, MPT_F32, MPT_SHAPE(lines, columns));
    other = mpt_randn(context, MPT_F32, MPT_SHAPE(lines, columns));
    half = mpt_cast(array, MPT_BF16);
    picks = make_picks(lines);
    const double bytes = (double)(lines * columns) * 4;
    double copy = report("copy (ceiling)", seconds_of(run_clone, NULL, 10), 2 * bytes, "GB/s", 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        report(rows[i].name, seconds_of(rows[i].run, NULL, 10), rows[i].arrays * bytes, "GB/s",
               copy);
    mpt_release(array), mpt_release(other), mpt_release(half), mpt_release(picks);
    return copy;
}

/* ==== Optimizers ==== */

static void run_update(void *self) { mpt_step(((training *)self)->optimizer); }

static void bench_updates(double copy) {
    static const struct {
        const char *name;
        bool adamw, half;
        double arrays; /* of fp32 that it moves */
        int64_t side;  /* of a square of weights; 0: of the megabytes */
    } kinds[] = {{"sgd", false, false, 3, 0},
                 {"adamw", true, false, 7, 0},
                 {"adamw 124M, bf16 and fp32 masters", true, true, 7.5, 11154}};
    for (int k = 0; k < 3; k++) {
        const bool own = kinds[k].side > 0 && megabytes >= 64;
        const int64_t side = own ? kinds[k].side : (int64_t)(1000 * sqrt(megabytes / 4));
        training t;
        memset(&t, 0, sizeof t);
        mpt_module layer = mpt_nn_linear(context, side, side);
        if (kinds[k].half) mpt_half(layer, MPT_BF16);
        t.optimizer = make_optimizer(layer, kinds[k].adamw);
        mpt_step_begin(context);
        const mpt_dtype dtype = kinds[k].half ? MPT_BF16 : MPT_F32;
        mpt_backward(mpt_mean(mpt_forward(layer, mpt_ones(context, dtype, MPT_SHAPE(1, side))),
                              MPT_ALL_DIMS, false));
        mpt_step_end(context);
        report(kinds[k].name, seconds_of(run_update, &t, 10),
               kinds[k].arrays * 4 * (double)(side * side), "GB/s", copy);
        mpt_optimizer_destroy(t.optimizer);
        mpt_module_destroy(layer);
    }
}

/* ==== Products ==== */

static void run_product(void *self) {
    (void)self;
    mpt_step_begin(context);
    mpt_matmul(matrix[0], matrix[1]);
    mpt_step_end(context);
}

/* By the fastest way of each. */
static void bench_products(int64_t side) {
    static const struct {
        const char *name;
        mpt_dtype dtype;
        bool tf32;
    } kinds[] = {{"bfloat16", MPT_BF16, false},
                 {"float16", MPT_F16, false},
                 {"tf32", MPT_F32, true},
                 {"float32", MPT_F32, false}};
    double fastest = 0;
    for (int d = 0; d < 4; d++) {
        char name[64];
        mpt_benchmark(context, true, kinds[d].tf32);
        for (int i = 0; i < 2; i++) {
            mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(side, side));
            matrix[i] = mpt_cast(x, kinds[d].dtype);
        }
        snprintf(name, sizeof name, "product %s, %lld cubed", kinds[d].name, (long long)side);
        double rate = report(name, seconds_of(run_product, NULL, 10),
                             2.0 * (double)side * (double)side * (double)side, "Gflop/s", fastest);
        if (rate > fastest) fastest = rate;
        for (int i = 0; i < 2; i++) mpt_release(matrix[i]);
    }
    mpt_benchmark(context, false, false);
}

/* ==== Steps ==== */

static mpt_status captured_fn(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    training *t = (training *)user;
    (void)c;
    t->steps = 0;
    t->x[0] = x, t->y[0] = y;
    training_step(t);
    return mpt_error_code(t->context);
}

typedef struct captured_run {
    training *t;
    mpt_captured captured;
    mpt_tensor x, y;
} captured_run;

static void run_captured(void *self) {
    captured_run *run = (captured_run *)self;
    mpt_captured_step(run->captured, run->x, run->y);
}

static void bench_steps(const mpt_config *config, const char *sizes_text, int64_t batch) {
    int64_t sizes[MAX_LAYERS + 1];
    int layers = parse_sizes(sizes_text, sizes), runs = megabytes < 1 ? 2 : 50;
    for (int p = 0; p < PRECISIONS; p++) {
        captured_run run;
        char name[80];
        mpt_context *all = context;
        run.t = training_new(config, sizes, layers, batch, &precisions[p], true);
        if (!run.t) break;
        context = run.t->context;
        snprintf(name, sizeof name, "step %s %s", sizes_text, precisions[p].name);
        report(name, seconds_of(training_step, run.t, runs), 1e9, "steps/s", 0);
        run.captured = mpt_capture(context, captured_fn, run.t);
        run.x = run.t->x[1], run.y = run.t->y[1];
        for (int i = 0; i < 3; i++) run_captured(&run);
        snprintf(name, sizeof name, "captured step %s %s", sizes_text, precisions[p].name);
        report(name, seconds_of(run_captured, &run, runs), 1e9, "steps/s", 0);
        if (mpt_failed(context)) printf("%s\n", mpt_error(context));
        training_end(run.t);
        context = all;
    }
}

int main(int argc, char **argv) {
    mpt_config config = mpt_config_default();
    if (argc > 1) megabytes = atof(argv[1]);
    if (argc > 2) config.device = strcmp(argv[2], "cuda") == 0 ? MPT_DEVICE_CUDA : MPT_DEVICE_CPU;
    context = mpt_create(&config);
    if (!context) return printf("%s\n", mpt_error(NULL)), 1;
    printf("device: %s\n", mpt_device_name(context));
    double copy = bench_arrays();
    bench_updates(copy);
    bench_products(megabytes < 1 ? 64 : megabytes < 64 ? 512 : 4096);
    if (mpt_failed(context)) printf("%s\n", mpt_error(context));
    bool failed = mpt_failed(context);
    mpt_destroy(context);
    bench_steps(&config, "784-128-64-10", 64);
    return failed;
}
