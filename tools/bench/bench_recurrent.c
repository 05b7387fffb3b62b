/* bench_recurrent.c: whole steps of one recurrent layer: 128 numbers to 128 states, 64 steps of 32
   sequences, forward, backward, SGD. peers.py has PyTorch's in turn.
       bench_recurrent [seconds per sample, 0.3]
       bench_recurrent --serve    subjects for a driver:  layer lstm|gru|rnn PRECISION THREADS */
#include "measure.h"
#include "training.h"

enum { STEPS = 64, BATCH = 32, WIDTH = 128 };

typedef struct recurrent_training {
    mpt_context *context;
    mpt_module layer;
    mpt_optimizer optimizer;
    mpt_dtype autocast;
    mpt_tensor x, y;
} recurrent_training;

static void recurrent_step(void *self) {
    recurrent_training *t = (recurrent_training *)self;
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->autocast);
    mpt_tensor loss = mpt_mse_loss(mpt_forward(t->layer, t->x), t->y, MPT_MEAN);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(loss);
    mpt_step(t->optimizer);
    mpt_step_end(t->context);
}

static void recurrent_end(void *self) {
    mpt_destroy(((recurrent_training *)self)->context);
    free(self);
}

static mpt_tensor numbers(mpt_context *context, mpt_dtype dtype) {
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(STEPS, BATCH, WIDTH));
    return dtype == MPT_F32 ? x : mpt_cast(x, dtype);
}

/* CELL PRECISION THREADS */
static bool make_recurrent(subject *s, int argc, char **argv, char *error, size_t size) {
    static const char *const names[] = {"rnn", "lstm", "gru"};
    static mpt_module (*const makers[])(mpt_context *, int64_t, int64_t,
                                        const mpt_recurrent_config *) = {mpt_nn_rnn, mpt_nn_lstm,
                                                                         mpt_nn_gru};
    const precision *p = argc >= 3 ? find_precision(argv[1]) : NULL;
    int kind = 0;
    while (p && kind < 3 && strcmp(names[kind], argv[0]) != 0) kind++;
    snprintf(error, size, "expected CELL PRECISION THREADS");
    if (!p || kind == 3) return false;
    recurrent_training *t = (recurrent_training *)calloc(1, sizeof *t);
    mpt_config config = mpt_config_default();
    config.threads = atoi(argv[2]);
    mpt_context *context = t ? mpt_create(&config) : NULL;
    if (!context) return snprintf(error, size, "%s", mpt_error(NULL)), free(t), false;
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = 1e-3;
    t->context = context, t->autocast = p->autocast;
    t->layer = makers[kind](context, WIDTH, WIDTH, NULL);
    if (p->parameters != MPT_F32) mpt_half(t->layer, p->parameters);
    t->optimizer = mpt_sgd(t->layer, &sgd);
    t->x = numbers(context, p->batch), t->y = numbers(context, p->batch);
    s->run = recurrent_step, s->end = recurrent_end, s->self = t, s->context = context;
    s->work = 3.0 * 2 * STEPS * BATCH * WIDTH * 2 * WIDTH * (kind == 0 ? 1 : 5 - kind);
    return true;
}

static const subject_maker makers[] = {{"layer", make_recurrent}, {NULL, NULL}};

int main(int argc, char **argv) {
    static const char *const cells[] = {"rnn", "lstm", "gru"}, *const how[] = {"fp32", "bf16"};
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    measure_print_machine();
    printf("milliseconds of a step, one thread\n%-12s %9s %9s\n", "", how[0], how[1]);
    for (int i = 0; i < 3; i++) {
        subject subjects[2], *turns[2] = {&subjects[0], &subjects[1]};
        repetitions r;
        for (int k = 0; k < 2; k++) {
            char words[4][16], *argument[4];
            for (int w = 0; w < 4; w++) argument[w] = words[w];
            snprintf(words[0], 16, "layer"), snprintf(words[1], 16, "%s", cells[i]);
            snprintf(words[2], 16, "%s", how[k]), snprintf(words[3], 16, "1");
            if (!serve_make(turns[k], makers, 4, argument)) return 1;
        }
        measure_alternating(turns, 2, argc > 1 ? atof(argv[1]) : 0.3, 1, &r);
        printf("%-12s %9.3f %9.3f\n", cells[i], 1e3 * r.median[0], 1e3 * r.median[1]);
        for (int k = 0; k < 2; k++) subjects[k].end(subjects[k].self);
    }
    return 0;
}
