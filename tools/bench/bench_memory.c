/* bench_memory.c: what training takes at its peak, by way and precision, from dry runs, which take
   seconds and no memory; and the largest batch within what fp32 takes.
       bench_memory [MODEL] [BATCH]    default: all three at 64
       bench_memory --run MODEL WAY PRECISION BATCH    runs two steps in earnest, to compare
       bench_memory --time MODEL PRECISION BATCH STEPS [WAY..]    what a step takes on one core: the
           least of STEPS of each way in turn; CPU seconds, which leave out other programs */
#include "models.h"

#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/resource.h>
#endif

enum { LARGEST = 4096 };

static const char *const models[] = {"vit-b16", "resnet18", "gpt6"};
/* narrow: the residual stream in the dtype of autocast. */
static const char *const ways[] = {
    "plain", "narrow", "selective", "narrow selective", "full", "narrow full"};
enum { MODELS = sizeof models / sizeof *models, WAYS = sizeof ways / sizeof *ways };

/* GPT-2's width at half of its depth and context. */
static const model_kind gpt6 = {"gpt6", 64, 512, 768, 6, 12, 0, 50304, MODEL_GPT};

typedef struct plan_case {
    const model_kind *kind;
    const char *way, *precision;
} plan_case;

/* Each block runs its forward again in backward. */
static void recompute_blocks(mpt_module net) {
    char path[256];
    for (int i = mpt_module_count(net) - 1; i > 0; i--) {
        mpt_module m = mpt_module_at(net, i, path, sizeof path);
        const char *last = strrchr(path, '.');
        last = last ? last + 1 : path;
        const bool numbered = *last >= '0' && *last <= '9';
        if (strncmp(last, "encoder_layer_", 14) == 0 ||
            (numbered && (strncmp(path, "layer", 5) == 0 || strncmp(path, "h.", 2) == 0) &&
             strchr(path, '.') == strrchr(path, '.')))
            mpt_recompute_module(m, 1);
    }
}

static void make_case(model *m, mpt_context *context, int64_t batch, const plan_case *p) {
    memset(m, 0, sizeof *m);
    m->own = *p->kind, m->kind = &m->own;
    m->own.batch = batch;
    m->context = context;
    m->precision = find_precision(p->precision);
    m->net = m->kind->make(context, m->kind);
    if (strstr(p->way, "narrow")) m->region = mpt_autocast_begin_narrow;
    m->recompute = strstr(p->way, "selective") || strstr(p->way, "full");
    if (strstr(p->way, "full")) recompute_blocks(m->net);
    m->optimizer = make_optimizer(m->net, true);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.enabled = m->precision->scaled;
    m->scaler = mpt_grad_scaler(context, &scaler);
    make_batches(m, true);
}

static mpt_status two_steps(mpt_context *context, int64_t batch, void *user) {
    model m;
    make_case(&m, context, batch, (const plan_case *)user);
    for (int i = 0; i < 2; i++) train_on(&m, m.x[0], m.y[0]);
    return mpt_error_code(context);
}

static int64_t peak_of(const plan_case *p, int64_t batch) {
    mpt_memory_stats stats;
    mpt_config config = mpt_config_default();
    if (mpt_plan(&config, two_steps, batch, (void *)(uintptr_t)p, &stats) == MPT_OK)
        return stats.total_peak;
    fprintf(stderr, "bench_memory: %s\n", mpt_error(NULL));
    exit(1);
}

static void show(const model_kind *kind, int64_t batch) {
    const plan_case base = {kind, "plain", "fp32"};
    const int64_t whole = peak_of(&base, batch);
    printf("%s, AdamW, batch %lld; MB in use at the peak, of fp32, largest batch within that\n",
           kind->name, (long long)batch);
    for (int w = 0; w < WAYS; w++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            plan_case p = {kind, ways[w], bf16 ? "bf16" : "fp32"};
            const int64_t peak = peak_of(&p, batch);
            printf("  %-16s %s %8.0f  %.3f", p.way, p.precision, (double)peak / 1e6,
                   (double)peak / (double)whole);
            printf("  %5lld\n", (long long)mpt_largest_batch(NULL, two_steps, &p, whole, LARGEST));
            fflush(stdout);
        }
}

static const model_kind *kind_of(const char *name) {
    return strcmp(name, "gpt6") == 0 ? &gpt6 : find_kind(name);
}

/* What the system gave the process at most, beyond what it had before. */
static double resident(void) {
#if defined(__unix__) || defined(__APPLE__)
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0) return (double)usage.ru_maxrss / 1e3;
#endif
    return 0;
}

static int time_ways(const model_kind *kind, const char *dtype, int64_t batch, int steps,
                     const char *const *way, int n) {
    static model m[WAYS];
    double least[WAYS];
    mpt_status status = MPT_OK;
    mpt_config config = mpt_config_default();
    config.threads = 1;
    for (int w = 0; w < n; w++) {
        const plan_case p = {kind, way[w], dtype};
        mpt_context *context = mpt_create(&config);
        if (!context) return 1;
        make_case(&m[w], context, batch, &p);
        train_on(&m[w], m[w].x[0], m[w].y[0]);
    }
    for (int i = 0; i < steps; i++)
        for (int w = 0; w < n; w++) {
            const clock_t start = clock();
            train_on(&m[w], m[w].x[0], m[w].y[0]);
            const double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
            if (i == 0 || seconds < least[w]) least[w] = seconds;
        }
    for (int w = 0; w < n; w++) {
        if (mpt_error_code(m[w].context) != MPT_OK) status = mpt_error_code(m[w].context);
        printf("%s %s batch %lld %-16s %8.2f ms, of plain %.3f\n", kind->name, dtype,
               (long long)batch, way[w], least[w] * 1e3, least[w] / least[0]);
        mpt_destroy(m[w].context);
    }
    return status != MPT_OK;
}

int main(int argc, char **argv) {
    if (argc >= 6 && argc <= 6 + WAYS && strcmp(argv[1], "--time") == 0 && kind_of(argv[2]))
        return time_ways(kind_of(argv[2]), argv[3], atoi(argv[4]), atoi(argv[5]),
                         argc > 6 ? (const char *const *)argv + 6 : ways,
                         argc > 6 ? argc - 6 : WAYS);
    if (argc == 6 && strcmp(argv[1], "--run") == 0 && kind_of(argv[2])) {
        plan_case p = {kind_of(argv[2]), argv[3], argv[4]};
        const double before = resident();
        mpt_context *context = mpt_create(NULL);
        const double start = measure_wall();
        const mpt_status status = two_steps(context, atoi(argv[5]), &p);
        const double seconds = measure_wall() - start;
        printf("%s: peak %.1f MB, process %.1f MB, plan %.1f MB, %.1f s\n",
               mpt_status_name(status), (double)mpt_memory(context).total_peak / 1e6,
               resident() - before, (double)peak_of(&p, atoi(argv[5])) / 1e6, seconds);
        mpt_destroy(context);
        return status != MPT_OK;
    }
    const int64_t batch = argc > 2 ? atoi(argv[2]) : 64;
    for (int i = 0; i < MODELS; i++)
        if (argc < 2 || strcmp(argv[1], models[i]) == 0) show(kind_of(models[i]), batch);
    return 0;
}
