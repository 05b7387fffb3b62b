/* models.h: whole training steps of the nets of examples/resnet.h, vit.h and gpt.h and of that of
   examples/mnist.c, on batches that lie in memory: forward, loss, backward, scaler, gradients
   clipped where the example does so, optimizer. Shared by bench_models.c and device_models.c.

   Include it first. */
#ifndef BENCH_MODELS_H
#define BENCH_MODELS_H

#include "measure.h"

#include "../../examples/gpt.h"
#include "../../examples/precisions.h"
#include "../../examples/resnet.h"
#include "../../examples/vit.h"

enum { BATCHES = 2 };

struct model;

/* Sizes of pictures, or of texts, are [batch, size]. */
typedef struct model_kind {
    const char *name;
    int64_t batch, size, width, layers, heads;
    int64_t patch;   /* of a ResNet: whether it is for large pictures */
    int64_t classes; /* or tokens */
    mpt_module (*make)(mpt_context *context, const struct model_kind *kind);
    mpt_tensor (*loss)(const struct model *m, mpt_tensor x, mpt_tensor y);
    bool text, adamw, clipped;
} model_kind;

typedef struct model {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_captured captured;
    model_kind own;
    const model_kind *kind; /* own */
    const precision *precision;
    mpt_tensor x[BATCHES], y[BATCHES], positions;
    long steps;
    bool recompute; /* norms and GELUs in backward, instead of keeping them */
    mpt_status (*region)(mpt_context *context, mpt_dtype dtype); /* NULL: mpt_autocast_begin */
} model;

static inline mpt_module new_mlp(mpt_context *context, const model_kind *k) {
    const int64_t width = k->width;
    return mpt_sequential(context, mpt_nn_linear(context, k->size, width), mpt_nn_relu(context),
                          mpt_nn_linear(context, width, width / 2), mpt_nn_relu(context),
                          mpt_nn_linear(context, width / 2, k->classes),
                          mpt_nn_log_softmax(context, -1), MPT_END);
}

static inline mpt_module new_resnet(mpt_context *context, const model_kind *k) {
    return resnet18(context, 3, k->classes, k->width, k->patch > 0);
}

/* LeNet-5 with ReLUs and maxima, for pictures of one channel. */
static inline mpt_module new_lenet(mpt_context *context, const model_kind *k) {
    mpt_conv_config padded = mpt_conv_config_default();
    padded.padding[0] = padded.padding[1] = 2;
    return mpt_sequential(
        context, mpt_nn_conv2d(context, 1, 6, 5, 5, &padded), mpt_nn_relu(context),
        mpt_nn_max_pool2d(context, NULL), mpt_nn_conv2d(context, 6, 16, 5, 5, NULL),
        mpt_nn_relu(context), mpt_nn_max_pool2d(context, NULL), mpt_nn_flatten(context),
        mpt_nn_linear(context, 400, 120), mpt_nn_relu(context), mpt_nn_linear(context, 120, 84),
        mpt_nn_relu(context), mpt_nn_linear(context, 84, k->classes), MPT_END);
}

static inline mpt_module new_vit(mpt_context *context, const model_kind *k) {
    const vit_shape shape = {k->width, k->layers, k->heads,   4 * k->width, k->patch,
                             k->size,  3,         k->classes, 0.0};
    return make_vit(context, &shape);
}

static inline mpt_module new_gpt(mpt_context *context, const model_kind *k) {
    gpt_settings s = gpt_defaults;
    s.layers = k->layers, s.heads = k->heads, s.width = k->width, s.context = k->size;
    s.vocabulary = k->classes;
    return make_gpt(context, &s);
}

static inline mpt_tensor mlp_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_nll_loss(mpt_forward(m->net, x), y, NULL);
}

static inline mpt_tensor resnet_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_cross_entropy(resnet_logits(m->net, x, m->kind->patch > 0), y, NULL);
}

static inline mpt_tensor plain_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_cross_entropy(mpt_forward(m->net, x), y, NULL);
}

static inline mpt_tensor gpt_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_linear_cross_entropy(hidden(m->net, x, m->positions),
                                    mpt_parameter(m->net, "wte.weight"), y, NULL);
}

#define MODEL_MLP new_mlp, mlp_loss, false, true, false
#define MODEL_RESNET new_resnet, resnet_loss, false, false, false
#define MODEL_LENET new_lenet, plain_loss, false, false, false
#define MODEL_VIT new_vit, plain_loss, false, true, true
#define MODEL_GPT new_gpt, gpt_loss, true, true, true

/* Those that a CPU trains; those that papers measure on GPUs, GPT-2's tokens padded to a multiple
   of 64; and these once more, as small as they go, for simulators and dry runs. */
static const model_kind kinds[] = {{"resnet", 64, 32, 16, 0, 0, 0, 10, MODEL_RESNET},
                                   {"vit", 16, 32, 192, 12, 3, 4, 10, MODEL_VIT},
                                   {"gpt", 32, 128, 128, 4, 4, 0, 65, MODEL_GPT},
                                   {"lenet5", 128, 28, 0, 0, 0, 0, 10, MODEL_LENET},
                                   {"mlp", 64, 784, 128, 0, 0, 0, 10, MODEL_MLP},
                                   {"gpt2", 64, 1024, 768, 12, 12, 0, 50304, MODEL_GPT},
                                   {"vit-b16", 256, 224, 768, 12, 12, 16, 1000, MODEL_VIT},
                                   {"resnet18", 256, 224, 64, 0, 0, 1, 1000, MODEL_RESNET},
                                   {"mlp-tiny", 8, 16, 16, 0, 0, 0, 10, MODEL_MLP},
                                   {"gpt2-tiny", 2, 16, 32, 1, 2, 0, 64, MODEL_GPT},
                                   {"vit-b16-tiny", 4, 16, 32, 1, 2, 8, 10, MODEL_VIT},
                                   {"resnet18-tiny", 2, 32, 4, 0, 0, 1, 10, MODEL_RESNET}};
enum { KINDS = sizeof kinds / sizeof *kinds, CPU_KINDS = 4, DEVICE_KINDS = 4 };

static inline const model_kind *find_kind(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, name) == 0) return &kinds[i];
    return NULL;
}

/* Texts are counted by tokens. */
static inline double items_of(const model_kind *k) {
    return (double)(k->batch * (k->text ? k->size : 1));
}

static inline mpt_status train_on(model *m, mpt_tensor x, mpt_tensor y) {
    mpt_step_begin(m->context);
    (m->region ? m->region : mpt_autocast_begin)(m->context, m->precision->autocast);
    if (m->recompute) mpt_recompute_begin(m->context);
    mpt_tensor loss = m->kind->loss(m, x, y);
    if (m->recompute) mpt_recompute_end(m->context);
    mpt_autocast_end(m->context);
    mpt_zero_grad(m->optimizer);
    mpt_backward(mpt_scale_loss(m->scaler, loss));
    if (m->kind->clipped) {
        mpt_unscale(m->scaler, m->optimizer);
        mpt_clip_grad_norm(m->optimizer, 1.0);
    }
    mpt_scaler_step(m->scaler, m->optimizer);
    mpt_scaler_update(m->scaler);
    return mpt_step_end(m->context);
}

static inline void model_step(void *self) {
    model *m = (model *)self;
    const long batch = m->steps++ % BATCHES;
    train_on(m, m->x[batch], m->y[batch]);
}

static inline mpt_status captured_fn(mpt_context *context, void *self, mpt_tensor x, mpt_tensor y) {
    (void)context;
    return train_on((model *)self, x, y);
}

static inline void model_captured_step(void *self) {
    model *m = (model *)self;
    const long batch = m->steps++ % BATCHES;
    mpt_captured_step(m->captured, m->x[batch], m->y[batch]);
}

static inline void model_end(void *self) {
    model *m = (model *)self;
    mpt_destroy(m->context);
    free(m);
}

/* Pictures in the layout and dtype that the step wants. */
static inline mpt_tensor make_pictures(const model *m, bool last) {
    const model_kind *k = m->kind;
    const mpt_shape mlp = MPT_SHAPE(k->batch, k->size);
    const int64_t channels = k->make == new_lenet ? 1 : 3;
    const mpt_shape picture = MPT_SHAPE(k->batch, channels, k->size, k->size);
    mpt_scope_begin(m->context);
    mpt_tensor x = mpt_randn(m->context, MPT_F32, k->make == new_mlp ? mlp : picture);
    if (last && k->make != new_mlp) x = mpt_to_channels_last(x);
    x = mpt_keep(mpt_cast(x, m->precision->batch));
    mpt_scope_end(m->context);
    return x;
}

/* The batches: tokens, or pictures and classes. */
static inline void make_batches(model *m, bool last) {
    const model_kind *k = m->kind;
    const int64_t targets = k->batch * (k->text ? k->size : 1);
    int64_t *ids = (int64_t *)malloc((size_t)targets * sizeof *ids);
    for (int b = 0; ids && b < BATCHES; b++) {
        for (int64_t i = 0; i < targets; i++) ids[i] = (i * 7 + i / 5 + b) % k->classes;
        const mpt_shape shape = k->text ? MPT_SHAPE(k->batch, k->size) : MPT_SHAPE(k->batch);
        m->y[b] = mpt_from(m->context, MPT_I64, shape, ids);
        m->x[b] = k->text ? m->y[b] : make_pictures(m, last);
    }
    if (k->text) m->positions = mpt_arange(m->context, MPT_I64, k->size);
    free(ids);
}

/* Small steps, so that the values stay what they are early in a training. */
static inline mpt_optimizer make_optimizer(mpt_module net, bool adam) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    sgd.lr = 1e-4, sgd.momentum = 0.9, sgd.nesterov = true, sgd.weight_decay = 5e-4;
    adamw.lr = 1e-6, adamw.weight_decay = 0.1;
    return adam ? mpt_adamw(net, &adamw) : mpt_sgd(net, &sgd);
}

/* fp32, bf16, fp16, or tf32: fp32 whose products may round their operands. NULL: none of them. */
static inline const precision *find_precision(const char *name) {
    for (int i = 0; i < PRECISIONS; i++)
        if (strcmp(precisions[i].name, strcmp(name, "tf32") == 0 ? "fp32" : name) == 0 &&
            precisions[i].parameters == MPT_F32)
            return &precisions[i];
    return NULL;
}

/* A model of `kind` on config's device, where products take the fastest way. NULL, with
   mpt_error(NULL), if there is no context; what else is wrong the context says. */
static inline model *model_new(const model_kind *kind, const char *precision_name, bool last,
                               const mpt_config *config) {
    model *m = (model *)calloc(1, sizeof *m);
    if (m) m->context = mpt_create(config);
    if (!m || !m->context) {
        free(m);
        return NULL;
    }
    if (mpt_get_device(m->context) != MPT_DEVICE_CPU)
        mpt_benchmark(m->context, true, strcmp(precision_name, "tf32") == 0);
    m->own = *kind, m->kind = &m->own;
    m->precision = find_precision(precision_name);
    m->net = kind->make(m->context, kind);
    m->optimizer = make_optimizer(m->net, kind->adamw);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.enabled = m->precision->scaled;
    scaler.init_scale = 1024; /* no step is skipped */
    m->scaler = mpt_grad_scaler(m->context, &scaler);
    make_batches(m, last);
    m->captured = mpt_capture(m->context, captured_fn, m);
    return m;
}

/* MODEL PRECISION LAYOUT THREADS [cuda] [captured] [recompute] [batch=N]. The work is the number of
   parameters, so that a driver can see that its peer has as many. */
static inline bool make_model(subject *s, int argc, char **argv, char *error, size_t size) {
    const model_kind *found = argc >= 4 ? find_kind(argv[0]) : NULL;
    mpt_config config = mpt_config_default();
    bool captured = false, recompute = false;
    snprintf(error, size,
             "expected MODEL fp32|tf32|bf16|fp16 last|contiguous THREADS [cuda] [captured] "
             "[recompute] [batch=N]");
    if (!found || !find_precision(argv[1])) return false;
    model_kind kind = *found;
    config.threads = atoi(argv[3]);
    config.device = MPT_DEVICE_CPU;
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "cuda") == 0) config.device = MPT_DEVICE_CUDA;
        if (strcmp(argv[i], "captured") == 0) captured = true;
        if (strcmp(argv[i], "recompute") == 0) recompute = true;
        if (strncmp(argv[i], "batch=", 6) == 0) kind.batch = atoi(argv[i] + 6);
    }
    if (kind.batch < 1) return false;
    model *m = model_new(&kind, argv[1], strcmp(argv[2], "last") == 0, &config);
    snprintf(error, size, "%s", mpt_error(m ? m->context : NULL));
    if (!m) return false;
    m->recompute = recompute;
    s->run = captured ? model_captured_step : model_step;
    s->end = model_end, s->self = m, s->context = m->context;
    s->work = (double)mpt_parameter_numel(m->net);
    return !mpt_failed(m->context);
}

static const subject_maker makers[] = {{"model", make_model}, {NULL, NULL}};

/* ==== Where the time goes ==== */

enum { PROFILE_LAUNCHES = 4096, PROFILE_STEPS = 15 };

/* Launches of a step in order: each one's least time over the steps, which includes what the host
   did before it. A device has finished each before the next one's time begins. */
typedef struct profile {
    mpt_context *context;
    double seconds[PROFILE_LAUNCHES], last;
    char *name[PROFILE_LAUNCHES]; /* without numbers of launches and storages */
    int count, at;
} profile;

static inline void profile_launch(void *user, const char *line) {
    profile *p = (profile *)user;
    mpt_synchronize(p->context);
    const double seconds = measure_wall() - p->last;
    if (p->at < PROFILE_LAUNCHES) {
        const int i = p->at++;
        if (i == p->count) {
            char *to = p->name[p->count++] = (char *)calloc(1, strlen(line) + 1);
            p->seconds[i] = seconds;
            line = strchr(line, ' ');
            for (; to && line && *++line;) {
                if (*line == '@')
                    line += strspn(line + 1, "0123456789");
                else if (*line == '(') /* the path */
                    line += strcspn(line, ")") + 1;
                else
                    *to++ = *line;
            }
        } else if (seconds < p->seconds[i]) {
            p->seconds[i] = seconds;
        }
    }
    p->last = measure_wall();
}

/* Several steps; ends early where one takes seconds. */
static inline void profile_steps(profile *p, mpt_context *context, void (*run)(void *),
                                 void *self) {
    const double start = measure_wall();
    memset(p, 0, sizeof *p);
    p->context = context;
    mpt_synchronize(context);
    mpt_print_launches(context, profile_launch, p);
    for (int i = 0; i < PROFILE_STEPS && (i < 2 || measure_wall() - start < 20); i++) {
        p->at = 0, p->last = measure_wall();
        run(self);
    }
    mpt_print_launches(context, NULL, NULL);
}

static inline void profile_free(profile *p) {
    for (int i = 0; i < p->count; i++) free(p->name[i]);
}

#endif
