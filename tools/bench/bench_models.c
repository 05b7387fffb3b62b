/* bench_models.c: whole training steps of the nets of examples/resnet.h, vit.h and gpt.h on batches
   that lie in memory: forward, loss, backward, scaler, gradients clipped where the example does so,
   optimizer. Precisions take turns; each is compared with fp32 of the same repetition.
       bench_models [seconds per sample, 0.5]
       bench_models --profile MODEL PRECISION LAYOUT THREADS    where the time of a step goes
       bench_models --serve    subjects for a driver:
           model MODEL PRECISION LAYOUT THREADS
       MODEL: resnet, vit or gpt. PRECISION: fp32, bf16 or fp16. LAYOUT: of pictures, last or
       contiguous. */
#include "measure.h"

#include "../../examples/gpt.h"
#include "../../examples/precisions.h"
#include "../../examples/resnet.h"
#include "../../examples/vit.h"

enum { BATCHES = 2, GPT_TOKENS = 65 };

typedef struct model {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    const struct model_kind *kind;
    const precision *precision;
    mpt_tensor x[BATCHES], y[BATCHES], positions;
    long steps;
} model;

/* Sizes of pictures, or of texts, are [batch, size]. */
typedef struct model_kind {
    const char *name;
    int64_t batch, size;
    mpt_module (*make)(mpt_context *context);
    mpt_tensor (*loss)(const model *m, mpt_tensor x, mpt_tensor y);
    bool text, clipped;
} model_kind;

static mpt_module new_resnet(mpt_context *context) { return resnet18(context, 3, 10, 16, false); }

static mpt_module new_vit(mpt_context *context) {
    static const vit_shape tiny = {192, 12, 3, 768, 4, 32, 3, 10, 0.0};
    return make_vit(context, &tiny);
}

static mpt_module new_gpt(mpt_context *context) {
    gpt_settings s = gpt_defaults;
    s.vocabulary = GPT_TOKENS;
    return make_gpt(context, &s);
}

static mpt_tensor resnet_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_cross_entropy(resnet_logits(m->net, x, false), y, NULL);
}

static mpt_tensor vit_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_cross_entropy(mpt_forward(m->net, x), y, NULL);
}

static mpt_tensor gpt_loss(const model *m, mpt_tensor x, mpt_tensor y) {
    return mpt_linear_cross_entropy(hidden(m->net, x, m->positions),
                                    mpt_parameter(m->net, "wte.weight"), y, NULL);
}

static const model_kind kinds[] = {{"resnet", 64, 32, new_resnet, resnet_loss, false, false},
                                   {"vit", 16, 32, new_vit, vit_loss, false, true},
                                   {"gpt", 32, 128, new_gpt, gpt_loss, true, true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void model_step(void *self) {
    model *m = (model *)self;
    const long batch = m->steps++ % BATCHES;
    mpt_step_begin(m->context);
    mpt_autocast_begin(m->context, m->precision->autocast);
    mpt_tensor loss = m->kind->loss(m, m->x[batch], m->y[batch]);
    mpt_autocast_end(m->context);
    mpt_zero_grad(m->optimizer);
    mpt_backward(mpt_scale_loss(m->scaler, loss));
    if (m->kind->clipped) {
        mpt_unscale(m->scaler, m->optimizer);
        mpt_clip_grad_norm(m->optimizer, 1.0);
    }
    mpt_scaler_step(m->scaler, m->optimizer);
    mpt_scaler_update(m->scaler);
    mpt_step_end(m->context);
}

static void model_end(void *self) {
    model *m = (model *)self;
    mpt_destroy(m->context);
    free(m);
}

/* The batches: tokens, or pictures and classes. */
static void make_batches(model *m, bool last) {
    const model_kind *k = m->kind;
    const int64_t targets = k->batch * (k->text ? k->size : 1), classes = k->text ? GPT_TOKENS : 10;
    int64_t *ids = (int64_t *)malloc((size_t)targets * sizeof *ids);
    for (int b = 0; ids && b < BATCHES; b++) {
        for (int64_t i = 0; i < targets; i++) ids[i] = (i * 7 + i / 5 + b) % classes;
        const mpt_shape shape = k->text ? MPT_SHAPE(k->batch, k->size) : MPT_SHAPE(k->batch);
        m->y[b] = mpt_from(m->context, MPT_I64, shape, ids);
        if (k->text) {
            m->x[b] = m->y[b];
            continue;
        }
        m->x[b] = mpt_randn(m->context, MPT_F32, MPT_SHAPE(k->batch, 3, k->size, k->size));
        if (last) m->x[b] = mpt_to_channels_last(m->x[b]);
        m->x[b] = mpt_cast(m->x[b], m->precision->batch);
    }
    if (k->text) m->positions = mpt_arange(m->context, MPT_I64, k->size);
    free(ids);
}

/* Small steps, so that the values stay what they are early in a training. */
static mpt_optimizer make_optimizer(mpt_module net, bool adam) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    sgd.lr = 1e-4, sgd.momentum = 0.9, sgd.nesterov = true, sgd.weight_decay = 5e-4;
    adamw.lr = 1e-6, adamw.weight_decay = 0.1;
    return adam ? mpt_adamw(net, &adamw) : mpt_sgd(net, &sgd);
}

/* MODEL PRECISION LAYOUT THREADS */
static bool make_model(subject *s, int argc, char **argv, char *error, size_t size) {
    const model_kind *kind = NULL;
    const precision *p = NULL;
    mpt_config config = mpt_config_default();
    snprintf(error, size, "expected resnet|vit|gpt fp32|bf16|fp16 last|contiguous THREADS");
    for (int i = 0; i < KINDS && argc == 4; i++)
        if (strcmp(kinds[i].name, argv[0]) == 0) kind = &kinds[i];
    for (int i = 0; i < PRECISIONS && argc == 4; i++)
        if (strcmp(precisions[i].name, argv[1]) == 0) p = &precisions[i];
    if (!kind || !p || p->parameters != MPT_F32) return false;
    config.threads = atoi(argv[3]);
    model *m = (model *)calloc(1, sizeof *m);
    if (m) m->context = mpt_create(&config);
    if (!m || !m->context) {
        snprintf(error, size, "%s", mpt_error(NULL));
        free(m);
        return false;
    }
    m->kind = kind, m->precision = p;
    m->net = kind->make(m->context);
    m->optimizer = make_optimizer(m->net, kind->clipped);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.enabled = p->scaled;
    m->scaler = mpt_grad_scaler(m->context, &scaler);
    make_batches(m, strcmp(argv[2], "last") == 0);
    s->run = model_step, s->end = model_end, s->self = m, s->context = m->context;
    snprintf(error, size, "%s", mpt_error(m->context));
    return !mpt_failed(m->context);
}

static const subject_maker makers[] = {{"model", make_model}, {NULL, NULL}};

static bool make_words(subject *s, const char *kind, const char *p, const char *layout,
                       const char *threads) {
    char text[5][32], *argv[5];
    const char *const words[] = {"model", kind, p, layout, threads};
    for (int i = 0; i < 5; i++) {
        snprintf(text[i], sizeof text[i], "%s", words[i]);
        argv[i] = text[i];
    }
    return serve_make(s, makers, 5, argv);
}

/* ==== Where the time goes ==== */

enum { PROFILE_LAUNCHES = 4096, PROFILE_STEPS = 15, PROFILE_LINES = 40 };

/* Launches of a step in order: each one's least time over the steps, which includes what the host
   did before it. */
typedef struct profile {
    double seconds[PROFILE_LAUNCHES], last;
    char *name[PROFILE_LAUNCHES]; /* without numbers of launches and storages */
    int count, at;
} profile;

static void profile_launch(void *user, const char *line) {
    profile *p = (profile *)user;
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

/* Sums over launches with the same text, the largest first. */
static void profile_print(profile *p) {
    double total = 0.0;
    int kept = 0;
    for (int i = 0; i < p->count; i++) total += p->seconds[i];
    printf("%d launches, %.3f ms\n", p->count, 1e3 * total);
    for (; kept < PROFILE_LINES; kept++) {
        double most = 0.0;
        int which = -1, times = 0;
        for (int i = 0; i < p->count; i++) {
            double sum = 0.0;
            for (int j = i; j < p->count; j++)
                if (p->name[i] && p->name[j] && strcmp(p->name[i], p->name[j]) == 0)
                    sum += p->seconds[j];
            if (sum > most) most = sum, which = i;
        }
        if (which < 0) break;
        char *name = p->name[which];
        for (int j = p->count - 1; j >= which; j--) {
            if (!p->name[j] || strcmp(p->name[j], name) != 0) continue;
            times++;
            if (j > which) free(p->name[j]);
            p->name[j] = NULL;
        }
        printf("%5.1f %% %9.1f us %4d times  %s\n", 100.0 * most / total, 1e6 * most, times, name);
        free(name);
    }
    for (int i = 0; i < p->count; i++) free(p->name[i]);
}

static int profile_model(char **argv) {
    static profile p;
    subject s;
    if (!make_words(&s, argv[0], argv[1], argv[2], argv[3])) return 1;
    s.run(s.self);
    mpt_print_launches(s.context, profile_launch, &p);
    for (int i = 0; i < PROFILE_STEPS; i++) {
        p.at = 0, p.last = measure_wall();
        s.run(s.self);
    }
    mpt_print_launches(s.context, NULL, NULL);
    printf("%s %s %s %sT: ", argv[0], argv[1], argv[2], argv[3]);
    profile_print(&p);
    s.end(s.self);
    return 0;
}

/* ==== The table ==== */

static int table(double seconds) {
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    measure_print_machine();
    printf("ms per step (times own fp32); 1T: CPU time, 2T: wall clock; medians\n");
    for (int i = 0; i < 2 * KINDS; i++) {
        const model_kind *k = &kinds[i / 2];
        const char *threads = i % 2 ? "2" : "1";
        subject subjects[4], *turns[4];
        repetitions r;
        char note[80];
        const int n = k->text ? 3 : 4;
        for (int p = 0; p < n; p++) {
            const char *layout = p < 3 ? "last" : "contiguous";
            turns[p] = &subjects[p];
            if (!make_words(turns[p], k->name, names[p % 3], layout, threads)) return 1;
        }
        measure_alternating(turns, n, seconds, atoi(threads), &r);
        measure_note(&r, note, sizeof note);
        printf("%-7s %sT", k->name, threads);
        for (int p = 0; p < n; p++)
            printf("  %s%s %.2f (%.2f)", names[p % 3], p < 3 ? "" : " contiguous",
                   1e3 * r.median[p], measure_ratio(&r, 0, p));
        printf("  %s\n", note);
        fflush(stdout);
        for (int p = 0; p < n; p++) subjects[p].end(subjects[p].self);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    if (argc == 6 && strcmp(argv[1], "--profile") == 0) return profile_model(argv + 2);
    return table(argc > 1 ? atof(argv[1]) : 0.5);
}
