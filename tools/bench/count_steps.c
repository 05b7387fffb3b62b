/* count_steps.c: fixed pieces of work for a counter of instructions, which looks at counted_run
   alone and prints the names in the order of its dumps: see check_instructions.sh. One thread, no
   clocks, and what is counted has run before. */
#include <stdio.h>

#include "training.h"

#if defined(__GNUC__) && !defined(__clang__)
#define KEPT __attribute__((noinline, noclone))
#elif defined(__GNUC__)
#define KEPT __attribute__((noinline))
#else
#define KEPT
#endif

typedef struct piece {
    const char *name;
    void (*run)(void *self);
    void *self;
    int times;
    void (*before)(void *self); /* NULL, or what it needs each time, which is not counted */
} piece;

void counted_run(const piece *p);
KEPT void counted_run(const piece *p) {
    for (int i = 0; i < p->times; i++) p->run(p->self);
}

/* ==== The work ==== */

typedef struct workbench {
    mpt_context *context;
    mpt_tensor wide, f16, bf16, square;
    mpt_loader loader;
} workbench;

static void run_conversions(void *self) {
    workbench *w = (workbench *)self;
    mpt_scope_begin(w->context);
    mpt_cast(w->wide, MPT_F16);
    mpt_cast(w->wide, MPT_BF16);
    mpt_cast(w->f16, MPT_F32);
    mpt_cast(w->bf16, MPT_F32);
    mpt_scope_end(w->context);
}

static void run_elementwise(void *self) {
    workbench *w = (workbench *)self;
    mpt_scope_begin(w->context);
    mpt_log_softmax(mpt_gelu(mpt_add(w->square, w->square)), -1);
    mpt_sum(mpt_tanh(w->square), 0, false);
    mpt_scope_end(w->context);
}

static void run_epoch(void *self) {
    mpt_batch batch;
    while (mpt_loader_next(((workbench *)self)->loader, &batch)) continue;
}

/* Scaled gradients, which run_scaler takes. */
static void make_gradients(void *self) {
    training *t = (training *)self;
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->autocast);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, t->x[0]), t->y[0], NULL);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_step_end(t->context);
}

/* What the scaler does between backward and the next step. */
static void run_scaler(void *self) {
    training *t = (training *)self;
    mpt_step_begin(t->context);
    mpt_unscale(t->scaler, t->optimizer);
    mpt_clip_grad_norm(t->optimizer, 1.0);
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    mpt_step_end(t->context);
}

static mpt_loader make_loader(mpt_context *context) {
    enum { COUNT = 256, PIXELS = 784 };
    static uint8_t pixels[COUNT * PIXELS];
    static int64_t labels[COUNT];
    for (int i = 0; i < COUNT * PIXELS; i++) pixels[i] = (uint8_t)(i * 31 % 251);
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = COUNT, config.dtype = MPT_U8, config.shape = MPT_SHAPE(1, 28, 28);
    config.inputs = pixels, config.targets = labels;
    mpt_dataset dataset = mpt_memory_dataset(context, &config);
    mpt_normalize(dataset, 0.1307, 0.3081);
    mpt_loader_config loader = mpt_loader_config_default();
    loader.shuffle = true;
    return mpt_loader_create(context, dataset, &loader);
}

static void make_workbench(workbench *w, const mpt_config *config) {
    w->context = mpt_create(config);
    mpt_no_grad_begin(w->context);
    w->wide = mpt_randn(w->context, MPT_F32, MPT_SHAPE(20000));
    w->f16 = mpt_cast(w->wide, MPT_F16);
    w->bf16 = mpt_cast(w->wide, MPT_BF16);
    w->square = mpt_randn(w->context, MPT_F32, MPT_SHAPE(32, 250));
    w->loader = make_loader(w->context);
}

static int count(const piece *p, mpt_context *context) {
    for (int i = 0; i < 3; i++) {
        if (p->before) p->before(p->self);
        p->run(p->self);
    }
    if (p->before) p->before(p->self);
    counted_run(p);
    if (mpt_failed(context))
        printf("%s: %s\n", p->name, mpt_error(context));
    else
        printf("counted %s\n", p->name);
    return mpt_failed(context);
}

int main(void) {
    static const int64_t digits[] = {784, 128, 64, 10}, tiny[] = {8, 16, 4};
    mpt_config config = mpt_config_default();
    workbench w;
    int failures = 0;
    config.threads = 1;
    make_workbench(&w, &config);
    piece pieces[] = {{"conversions", run_conversions, &w, 1, NULL},
                      {"elementwise", run_elementwise, &w, 1, NULL},
                      {"loader_epoch", run_epoch, &w, 1, NULL}};
    for (int i = 0; i < 3; i++) failures += count(&pieces[i], w.context);
    for (int i = 0; i < 6; i++) {
        static const char *const names[] = {"mlp_fp32",  "mlp_bf16",  "mlp_fp16",
                                            "tiny_fp32", "tiny_bf16", "tiny_fp16"};
        const precision *p = find_precision(names[i] + 4 + (i >= 3));
        training *t =
            training_new(&config, i < 3 ? digits : tiny, i < 3 ? 3 : 2, i < 3 ? 64 : 1, p, true);
        piece step = {names[i], training_step, t, i < 3 ? 1 : 20, NULL};
        piece scaler = {"scaler_step", run_scaler, t, 1, make_gradients};
        failures += count(&step, t->context);
        if (p->scaled && i < 3) failures += count(&scaler, t->context);
        training_end(t);
    }
    mpt_destroy(w.context);
    return failures != 0;
}
