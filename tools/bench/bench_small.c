/* bench_small.c: whole steps of small nets, those of small.h, in fp32 and bf16: what games and
   controllers train. others.c is the same with other libraries, and peers.py has both in turn.
       bench_small [seconds per sample, 0.1]
       bench_small --serve    subjects for a driver:  net NAME fp32|bf16|fp16|half THREADS */
#include "measure.h"
#include "small.h"
#include "training.h"

typedef struct small_training {
    const small_net *net;
    mpt_context *context;
    mpt_module module;
    mpt_optimizer optimizer;
    mpt_dtype autocast;
    mpt_tensor x, y;
} small_training;

static void small_step(void *self) {
    small_training *t = (small_training *)self;
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->autocast);
    mpt_tensor out = mpt_forward(t->module, t->x);
    mpt_tensor loss = t->net->squared ? mpt_mse_loss(out, t->y, MPT_MEAN)
                                      : mpt_cross_entropy(out, t->y, NULL);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(loss);
    mpt_step(t->optimizer);
    mpt_step_end(t->context);
}

static void small_end(void *self) {
    mpt_destroy(((small_training *)self)->context);
    free(self);
}

static mpt_tensor numbers(mpt_context *context, int64_t rows, int64_t columns, mpt_dtype dtype) {
    float *values = (float *)malloc((size_t)(rows * columns) * sizeof *values);
    if (values) small_fill(values, (int)(rows * columns));
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(rows, columns), values);
    free(values);
    return dtype == MPT_F32 ? x : mpt_cast(x, dtype);
}

static void make_inputs(small_training *t, mpt_dtype dtype) {
    const small_net *n = t->net;
    int64_t classes[256];
    for (int i = 0; i < n->batch; i++) classes[i] = i % small_outputs(n);
    t->x = numbers(t->context, n->batch, small_inputs(n), dtype);
    t->y = n->squared ? numbers(t->context, n->batch, small_outputs(n), dtype)
                      : mpt_from(t->context, MPT_I64, MPT_SHAPE(n->batch), classes);
}

/* Small rates, so that the values stay what they are early in a training. */
static mpt_optimizer small_optimizer(const small_training *t) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    sgd.lr = 1e-4, rmsprop.lr = 1e-6, rmsprop.alpha = 0.9;
    return t->net->rmsprop ? mpt_rmsprop(t->module, &rmsprop) : mpt_sgd(t->module, &sgd);
}

/* NAME PRECISION THREADS */
static bool make_small(subject *s, int argc, char **argv, char *error, size_t size) {
    const small_net *net = argc >= 3 ? small_find(argv[0]) : NULL;
    const precision *p = argc >= 3 ? find_precision(argv[1]) : NULL;
    snprintf(error, size, "expected NAME PRECISION THREADS");
    if (!net || !p) return false;
    small_training *t = (small_training *)calloc(1, sizeof *t);
    mpt_config config = mpt_config_default();
    config.threads = atoi(argv[2]);
    mpt_context *context = t ? mpt_create(&config) : NULL;
    if (!context) return snprintf(error, size, "%s", mpt_error(NULL)), free(t), false;
    t->net = net, t->context = context, t->autocast = p->autocast;
    mpt_module modules[2 * SMALL_LAYERS];
    int n = 0;
    for (int i = 0; i < net->layers; i++) {
        if (i > 0) modules[n++] = net->tanh ? mpt_nn_tanh(context) : mpt_nn_relu(context);
        modules[n++] = mpt_nn_linear(context, net->sizes[i], net->sizes[i + 1]);
    }
    t->module = mpt_sequential_array(context, modules, n);
    if (p->parameters != MPT_F32) mpt_half(t->module, p->parameters);
    t->optimizer = small_optimizer(t);
    make_inputs(t, p->batch);
    s->run = small_step, s->end = small_end, s->self = t, s->context = context;
    s->work = small_work(net);
    return true;
}

static const subject_maker makers[] = {{"net", make_small}, {NULL, NULL}};

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    const double seconds = argc > 1 ? atof(argv[1]) : 0.1;
    measure_print_machine();
    printf("microseconds of a step, one thread\n%-12s %9s %9s\n", "", "fp32", "bf16");
    for (size_t i = 0; i < sizeof small_nets / sizeof small_nets[0]; i++) {
        subject subjects[2], *turns[2] = {&subjects[0], &subjects[1]};
        repetitions r;
        for (int low = 0; low < 2; low++) {
            char words[4][16] = {"net", "", "", "1"}, *argument[4];
            snprintf(words[1], sizeof words[1], "%s", small_nets[i].name);
            snprintf(words[2], sizeof words[2], "%s", low ? "bf16" : "fp32");
            for (int w = 0; w < 4; w++) argument[w] = words[w];
            if (!serve_make(turns[low], makers, 4, argument)) return 1;
        }
        measure_alternating(turns, 2, seconds, 1, &r);
        printf("%-12s %9.2f %9.2f\n", small_nets[i].name, 1e6 * r.median[0], 1e6 * r.median[1]);
        for (int low = 0; low < 2; low++) subjects[low].end(subjects[low].self);
    }
    return 0;
}
