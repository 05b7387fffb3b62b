/* bench_overhead.c: what a training step costs besides arithmetic. The net 8-16-4 at batch 1 on the
   null backend, which executes nothing: public calls, tape, records and launches; and on the best
   level, where the whole step counts. fp32 runs the plain loop, fp16 that with autocast and a
   scaler. An op is a recorded forward call or its backward. CPU time of one thread, medians of 9
   rounds and, for machines that are shared, the least of them.
       bench_overhead [seconds per figure, 0.5] */
#include MPTRAIN_HEADER_FILE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 9, FEATURES = 8, HIDDEN = 16, CLASSES = 4, TARGET_NS = 80, TARGET_STEP_NS = 3000 };

typedef enum parts { FORWARD, FORWARD_BACKWARD, STEP_SGD, STEP_ADAMW, PARTS } parts;
static const char *const part_names[PARTS] = {"forward", "forward, backward", "whole step, SGD",
                                              "whole step, AdamW"};

typedef struct run {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_tensor x, y;
    mpt_dtype precision;
    parts part;
} run;

static run make_run(mpt_isa isa, mpt_dtype precision, parts part) {
    static const float x[FEATURES] = {0.5f, -1.0f, 0.25f, 2.0f, -0.125f, 1.0f, 0.0f, -2.0f};
    static const int64_t y[1] = {2};
    mpt_config config = mpt_config_default();
    config.isa = isa;
    config.threads = 1;
    run r;
    memset(&r, 0, sizeof r);
    mpt_context *c = r.context = mpt_create(&config);
    if (!c) return r;
    r.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, HIDDEN), mpt_nn_relu(c),
                           mpt_nn_linear(c, HIDDEN, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    r.optimizer = part == STEP_SGD ? mpt_sgd(r.net, NULL) : mpt_adamw(r.net, NULL);
    r.scaler = mpt_grad_scaler(c, NULL);
    r.x = mpt_from(c, MPT_F32, MPT_SHAPE(1, FEATURES), x);
    r.y = mpt_from(c, MPT_I64, MPT_SHAPE(1), y);
    r.precision = precision;
    r.part = part;
    return r;
}

static void step(run *r) {
    bool half = r->precision != MPT_F32;
    mpt_step_begin(r->context);
    if (half) mpt_autocast_begin(r->context, r->precision);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(r->net, r->x), r->y, NULL);
    if (half) mpt_autocast_end(r->context);
    if (r->part >= FORWARD_BACKWARD) {
        mpt_zero_grad(r->optimizer);
        mpt_backward(half ? mpt_scale_loss(r->scaler, loss) : loss);
    }
    if (r->part >= STEP_SGD && half) {
        mpt_scaler_step(r->scaler, r->optimizer);
        mpt_scaler_update(r->scaler);
    } else if (r->part >= STEP_SGD) {
        mpt_step(r->optimizer);
    }
    mpt_step_end(r->context);
}

static double seconds_of(run *r, long steps) {
    clock_t start = clock();
    for (long i = 0; i < steps; i++) step(r);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

static int order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One line of the table; false on an error. */
static bool measure(mpt_isa isa, mpt_dtype precision, parts part, double seconds, double *ns_op,
                    double *ns_step) {
    double sample[ROUNDS];
    run r = make_run(isa, precision, part);
    long steps = 1000;
    while (r.context && seconds_of(&r, steps) < seconds / ROUNDS / 4) steps *= 2;
    steps *= 2;
    for (int round = 0; r.context && round < ROUNDS; round++)
        sample[round] = 1e9 * seconds_of(&r, steps) / (double)steps;
    if (!r.context || mpt_failed(r.context)) {
        printf("%s\n", mpt_error(r.context));
        mpt_destroy(r.context);
        return false;
    }
    qsort(sample, ROUNDS, sizeof sample[0], order);
    mpt_counters before = mpt_get_counters(r.context);
    step(&r);
    mpt_counters after = mpt_get_counters(r.context);
    double records = (double)(after.op_records - before.op_records);
    double launches = (double)(after.launches - before.launches);
    double ns = sample[ROUNDS / 2], ops = part == FORWARD ? records : 2 * records;
    printf("%-8s %-5s %-18s %8.0f %6.0f %8.1f %8.1f %9.0f %10.1f\n",
           mpt_isa_name(mpt_get_isa(r.context)), precision == MPT_F16 ? "fp16" : "fp32",
           part_names[part], ns, ops, ns / ops, sample[0] / ops, launches, ns / launches);
    mpt_destroy(r.context);
    *ns_op = ns / ops;
    *ns_step = ns;
    return true;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.5, worst = 0, whole[PARTS] = {0};
    printf("%-8s %-5s %-18s %8s %6s %8s %8s %9s %10s\n", "isa", "", "", "ns/step", "ops", "ns/op",
           "least", "launches", "ns/launch");
    for (int isa = 0; isa < 2; isa++) {
        for (int half = 0; half < 2; half++) {
            for (int part = 0; part < PARTS; part++) {
                double ns_op, ns_step;
                if (!measure(isa ? MPT_ISA_AUTO : MPT_ISA_NULL, half ? MPT_F16 : MPT_F32,
                             (parts)part, seconds, &ns_op, &ns_step))
                    return 1;
                if (isa == 0 && ns_op > worst) worst = ns_op;
                if (isa == 1 && !half) whole[part] = ns_step;
            }
        }
    }
    printf("null backend: at most %.1f ns per op; the target is %d\n", worst, TARGET_NS);
    printf("whole fp32 step: SGD %.2f us, AdamW %.2f us; the target is %.2f\n",
           whole[STEP_SGD] / 1e3, whole[STEP_ADAMW] / 1e3, TARGET_STEP_NS / 1e3);
    return 0;
}
