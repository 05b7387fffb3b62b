/* device_models.c: whole training steps of the MLP of examples/mnist.c, GPT-2 124M, ViT-B/16 and
   ResNet-18 on a device, and how much of them is lost.
       device_models cuda|cpu full|tiny [batch=N] [model=NAME] PART...    PART: one of
           steps     captured and one by one in each precision, memory, what a step waits for
           limit     ViT-B/16 in the memory that a batch of 64 takes in fp32: the largest batches
           worst     launches by the time lost to their floors of bytes and of arithmetic
       device_models --serve    subjects for a driver: model MODEL PRECISION LAYOUT
           THREADS [cuda] [captured] [recompute] [batch=N]
   batch=N instead of the models' own, model=NAME: those whose name begins so, for steps and worst.
   A line per row; behind a tab what a program reads: words and numbers. tiny: for dry runs. */
#include "models.h"

static mpt_config config;
static mpt_context *alone; /* to ask the device */
static bool tiny;
static int64_t wanted_batch; /* 0: that of each model */
static const char *wanted_model = "";

/* The i-th of the kinds that are measured here. */
static const model_kind *device_kind(int i) {
    return &kinds[CPU_KINDS + (tiny ? DEVICE_KINDS : 0) + i];
}

/* The same as the command line wants it; false: not at all. */
static bool wanted_kind(int i, model_kind *kind) {
    *kind = *device_kind(i);
    if (wanted_batch > 0) kind->batch = wanted_batch;
    return strncmp(kind->name, wanted_model, strlen(wanted_model)) == 0;
}

/* ==== What the host asks of the driver ==== */

enum { COUNTED = 11, COUNTED_WAITS = 8 };
static long counts[COUNTED];

/* Linked with -Wl,--wrap=NAME for each, as the Makefile does with CUDA; else nothing is counted. */
#if defined(MPTRAIN_CUDA) && defined(__GNUC__)
#define COUNT(index, name, parameters, arguments) \
    int __real_##name parameters __attribute__((weak)); \
    int __wrap_##name parameters; \
    int __wrap_##name parameters { \
        counts[index]++; \
        return __real_##name arguments; \
    }
COUNT(0, cudaStreamSynchronize, (void *stream), (stream))
COUNT(1, cudaDeviceSynchronize, (void), ())
COUNT(2, cudaEventSynchronize, (void *event), (event))
COUNT(3, cudaMemcpy, (void *to, const void *from, size_t bytes, int kind), (to, from, bytes, kind))
COUNT(4, cudaMalloc, (void **pointer, size_t bytes), (pointer, bytes))
COUNT(5, cudaFree, (void *pointer), (pointer))
COUNT(6, cudaMallocHost, (void **pointer, size_t bytes), (pointer, bytes))
COUNT(7, cudaFreeHost, (void *pointer), (pointer))
COUNT(8, cudaStreamQuery, (void *stream), (stream))
COUNT(9, cudaMemcpyAsync, (void *to, const void *from, size_t bytes, int kind, void *stream),
      (to, from, bytes, kind, stream))
COUNT(10, cudaGraphLaunch, (void *graph, void *stream), (graph, stream))
static bool counting(void) { return __real_cudaStreamSynchronize && __real_cudaGraphLaunch; }
#else
static bool counting(void) { return false; }
#endif

/* The first COUNTED_WAITS make the host wait. */
static const char *const counted[COUNTED] = {"cudaStreamSynchronize",
                                             "cudaDeviceSynchronize",
                                             "cudaEventSynchronize",
                                             "cudaMemcpy",
                                             "cudaMalloc",
                                             "cudaFree",
                                             "cudaMallocHost",
                                             "cudaFreeHost",
                                             "cudaStreamQuery",
                                             "cudaMemcpyAsync",
                                             "cudaGraphLaunch"};

/* Calls of `steps` captured steps that have been warmed up. */
static void report_calls(model *m, int steps) {
    long waits = 0;
    mpt_synchronize(m->context);
    memset(counts, 0, sizeof counts);
    for (int i = 0; i < steps; i++) model_captured_step(m);
    for (int i = 0; i < COUNTED_WAITS; i++) waits += counts[i];
    printf("    trace of %d captured steps: ", steps);
    if (!counting()) printf("calls are not counted in this program\n");
    if (counting()) printf("waits %ld", waits);
    for (int i = 0; i < COUNTED && counting(); i++)
        if (counts[i]) printf(", %s %ld", counted[i], counts[i]);
    if (counting()) printf("\twaits %s %ld\n", m->kind->name, waits);
    mpt_synchronize(m->context);
}

/* ==== Steps ==== */

typedef struct memory_use {
    double peak, held, driver; /* MB; the driver's: beyond what an empty context takes */
} memory_use;

static double memory_free(void) { return (double)mpt_get_device_info(alone).memory_free; }

static memory_use memory_of(const model *m, double free_before) {
    const mpt_memory_stats stats = mpt_memory(m->context);
    memory_use use;
    use.peak = (double)stats.total_peak * 1e-6, use.held = (double)stats.held * 1e-6;
    use.driver = (free_before - memory_free()) * 1e-6;
    return use;
}

/* `steps` of it, waited for; false with the error printed, unless that is for want of memory. */
static bool train_some(model *m, void (*run)(void *), int steps) {
    for (int i = 0; i < steps && m && !mpt_failed(m->context); i++) run(m);
    if (m && mpt_synchronize(m->context) == MPT_OK) return true;
    if (!m || mpt_error_code(m->context) != MPT_ERROR_MEMORY)
        printf("error: %s\n", mpt_error(m ? m->context : NULL));
    return false;
}

/* With the batch of the kind, or half of it and so on until there is memory for its steps. */
static model *fitting_model(model_kind *kind, const char *precision_name) {
    for (; kind->batch > 0; kind->batch /= 2) {
        model *m = model_new(kind, precision_name, true, &config);
        if (train_some(m, model_captured_step, 4)) return m;
        const bool memory = m && mpt_error_code(m->context) == MPT_ERROR_MEMORY;
        if (m) model_end(m);
        if (!memory) break;
    }
    return NULL;
}

static double median_seconds(model *m, void (*run)(void *), double seconds) {
    double samples[5];
    subject s;
    memset(&s, 0, sizeof s);
    s.run = run, s.self = m, s.context = m->context;
    measure(&s, 0);
    const int n = tiny ? 1 : 5;
    for (int i = 0; i < n; i++) samples[i] = measure(&s, seconds).wall;
    return measure_median(samples, n);
}

/* Items per second; 0 after an error. */
static double report_steps(const model_kind *wanted, const char *precision_name) {
    const double slow = 0.1; /* 50 steps of this many seconds or more take too long to count */
    model_kind kind = *wanted;
    const double before = memory_free();
    model *m = fitting_model(&kind, precision_name);
    if (!m) return 0;
    mpt_memory_reset_peak(m->context);
    const double captured = median_seconds(m, model_captured_step, tiny ? 0 : 0.5);
    const memory_use memory = memory_of(m, before);
    const double eager = median_seconds(m, model_step, tiny ? 0 : 0.5);
    const double rate = items_of(&kind) / captured;
    printf("%-13s %s, batch %lld: captured %.3f ms, %.0f %s/s; one by one %.3f ms; memory %.0f MB "
           "at most, %.0f MB held, %.0f MB by the driver",
           kind.name, precision_name, (long long)kind.batch, captured * 1e3, rate,
           kind.text ? "tokens" : "pictures", eager * 1e3, memory.peak, memory.held, memory.driver);
    printf("\tsteps %s %s %lld %.9g %.9g %.9g %.9g %.9g %.9g\n", kind.name, precision_name,
           (long long)kind.batch, captured, rate, eager, memory.peak, memory.held, memory.driver);
    report_calls(m, tiny ? 3 : captured < slow ? 50 : 5);
    if (mpt_failed(m->context)) printf("error: %s\n", mpt_error(m->context));
    const bool failed = mpt_failed(m->context);
    model_end(m);
    fflush(stdout);
    return failed ? 0 : rate;
}

static bool part_steps(void) {
    static const char *const names[] = {"fp32", "tf32", "bf16", "fp16"};
    bool good = true;
    for (int k = 0; k < DEVICE_KINDS; k++) {
        model_kind kind;
        double rate[4];
        if (!wanted_kind(k, &kind)) continue;
        for (int p = 0; p < 4; p++) {
            rate[p] = report_steps(&kind, names[p]);
            good = good && rate[p] > 0;
        }
        for (int p = 2; p < 4 && good; p++)
            printf("%-13s %s is %.2f times own fp32, %.2f times own tf32\tratio %s %s %.4g %.4g\n",
                   kind.name, names[p], rate[p] / rate[0], rate[p] / rate[1], kind.name, names[p],
                   rate[p] / rate[0], rate[p] / rate[1]);
    }
    return good;
}

/* ==== The largest batch ==== */

/* What two steps with this batch held, in bytes; 0: there was not so much memory, or an error. */
static double memory_at(int64_t batch, const char *precision_name, bool recompute, int64_t limit,
                        bool *good) {
    model_kind kind = *device_kind(2);
    mpt_config capped = config;
    capped.memory_limit = limit;
    kind.batch = batch;
    const double before = memory_free();
    model *m = model_new(&kind, precision_name, true, &capped);
    if (m) m->recompute = recompute;
    const bool fits = train_some(m, model_step, 2);
    const double held = fits ? (double)mpt_memory(m->context).held : 0;
    if (!m || (!fits && mpt_error_code(m->context) != MPT_ERROR_MEMORY)) *good = false;
    if (fits && limit == 0) {
        const memory_use use = memory_of(m, before);
        printf("%-13s %s, batch %lld%s: %.0f MB at most, %.0f MB held, %.0f MB by the driver"
               "\tmemory %s %s %lld %.9g %.9g %.9g%s\n",
               kind.name, precision_name, (long long)batch,
               recompute ? ", norms and GELUs computed again" : "", use.peak, use.held, use.driver,
               kind.name, precision_name, (long long)batch, use.peak, use.held, use.driver,
               recompute ? " recompute" : "");
    }
    if (m) model_end(m);
    return held;
}

/* To within a sixteenth. */
static int64_t largest_batch(int64_t first, const char *precision_name, bool recompute,
                             int64_t limit, bool *good) {
    int64_t fits = 0, fails = first;
    while (*good && memory_at(fails, precision_name, recompute, limit, good) > 0)
        fits = fails, fails *= 2;
    while (*good && fails - fits > 1 + fits / 16) {
        const int64_t middle = fits + (fails - fits) / 2;
        if (memory_at(middle, precision_name, recompute, limit, good) > 0)
            fits = middle;
        else
            fails = middle;
    }
    return fits;
}

static bool part_limit(void) {
    bool good = true;
    const int64_t first = tiny ? 8 : 64;
    const double limit = memory_at(first, "fp32", false, 0, &good);
    for (int again = 0; again < 2; again++) memory_at(first, "bf16", again > 0, 0, &good);
    if (limit <= 0 || !good)
        return printf("error: no memory for a batch of %d\n", (int)first), false;
    const int64_t all = largest_batch(first, "fp32", false, (int64_t)limit, &good);
    const int64_t half = largest_batch(first, "bf16", false, (int64_t)limit, &good);
    const int64_t again = largest_batch(first, "bf16", true, (int64_t)limit, &good);
    if (!good || all < 1) return false;
    printf("%-13s in %.0f MB: batch %lld in fp32, %lld in bf16, %.2f times, and %lld, %.2f times, "
           "where norms and GELUs are computed again\tlimit %s %.4g %.4g\n",
           device_kind(2)->name, limit * 1e-6, (long long)all, (long long)half,
           (double)half / (double)all, (long long)again, (double)again / (double)all,
           device_kind(2)->name, (double)half / (double)all, (double)again / (double)all);
    return good;
}

/* ==== The worst launches ==== */

typedef struct operand {
    double elements, size, touched; /* touched: bytes read and written */
    int rank;
    int64_t dim[MPT_MAX_RANK];
} operand;

enum { OPERANDS = 12 };

/* "r:float32[64, 10]@ w:.." into operands; their number. */
static int parse_operands(const char *text, operand *o) {
    int n = 0;
    for (const char *at = strchr(text, ':'); at && n < OPERANDS; at = strchr(at + 1, ':'), n++) {
        const char *shape = at + strcspn(at, "[@");
        const bool twice = at[-1] == 'a' || (at[-1] == 'w' && at[-2] == 'r');
        memset(&o[n], 0, sizeof *o);
        o[n].elements = 1;
        for (int d = MPT_DTYPE_NONE + 1; d < MPT_DTYPE_COUNT; d++) {
            const char *name = mpt_dtype_name((mpt_dtype)d);
            if (strlen(name) == (size_t)(shape - at - 1) && !strncmp(name, at + 1, strlen(name)))
                o[n].size = (double)mpt_dtype_size((mpt_dtype)d);
        }
        while ((*shape == '[' || *shape == ',') && o[n].rank < MPT_MAX_RANK) {
            char *end;
            const long long dim = strtoll(shape + 1, &end, 10);
            if (end == shape + 1) break; /* [] */
            o[n].dim[o[n].rank++] = dim;
            o[n].elements *= (double)dim;
            shape = end;
        }
        o[n].touched = o[n].elements * o[n].size * (twice ? 2 : 1);
    }
    return n;
}

/* Multiplications and additions of the kernels that are bound by them. */
static double flops_of(const char *text, const operand *o, int n, bool causal) {
    static const struct {
        const char *name;
        int products; /* of queries and keys, or of weights and values */
    } attention[] = {{"attention ", 2}, {"attention_dq ", 3}, {"attention_dkv ", 4}};
    if (n >= 3 && strncmp(text, "gemm ", 5) == 0)
        return 2 * o[n - 1].elements * (double)o[0].dim[o[0].rank - 1];
    if (n >= 3 && o[2].rank == 4 && strncmp(text, "conv", 4) == 0)
        return 2 * o[2].elements / (double)o[2].dim[3] * o[1].elements;
    for (int i = 0; i < 3; i++)
        if (n >= 3 && strncmp(text, attention[i].name, strlen(attention[i].name)) == 0)
            return 2 * attention[i].products * o[0].elements * (double)o[1].dim[2] *
                   (causal ? 0.5 : 1);
    return 0;
}

/* What it has to read and write. Of tables it is the rows that are named; a bias is nothing. */
static double bytes_of(const char *text, operand *o, int n) {
    static const struct {
        const char *name;
        bool first; /* the table is the first operand, else the last */
    } tables[] = {{"embedding ", true},
                  {"gather ", true},
                  {"embedding_backward ", false},
                  {"scatter_add ", false}};
    double bytes = 0;
    for (int i = 0; i < 4 && n >= 2; i++) {
        if (strncmp(text, tables[i].name, strlen(tables[i].name)) != 0) continue;
        operand *table = &o[tables[i].first ? 0 : n - 1];
        const operand *rows = &o[tables[i].first ? n - 1 : n - 2];
        if (rows->elements < table->elements) table->touched *= rows->elements / table->elements;
    }
    if (n == 4 && strncmp(text, "gemm ", 5) == 0) o[2].touched = 0;
    for (int i = 0; i < n; i++) bytes += o[i].touched;
    return bytes;
}

/* What the device reaches: bytes per second of a copy, operations per second of a large product,
   and the seconds of the smallest launch that is waited for. */
typedef struct ceilings {
    double bytes, flops, launch;
} ceilings;

static double best_seconds(mpt_context *c, const mpt_tensor *x, int which) {
    double best = 1e30;
    for (int i = 0; i < (tiny ? 2 : 12); i++) {
        mpt_step_begin(c);
        mpt_synchronize(c);
        const double start = measure_wall();
        if (which == 0) mpt_cat(&x[0], 1, 0);
        if (which == 1) mpt_matmul(x[1], x[2]);
        if (which == 2) mpt_mul_scalar(x[3], 2.0);
        mpt_synchronize(c);
        const double seconds = measure_wall() - start;
        mpt_step_end(c);
        if (seconds < best) best = seconds;
    }
    return best;
}

static ceilings measure_ceilings(const precision *p) {
    const int64_t side = tiny ? 32 : 8192, length = tiny ? 4096 : (int64_t)1 << 28;
    ceilings most = {0, 0, 0};
    mpt_context *c = mpt_create(&config);
    if (!c) return most;
    mpt_benchmark(c, true, false);
    const mpt_tensor x[] = {
        mpt_ones(c, MPT_F32, MPT_SHAPE(length)), mpt_randn(c, p->autocast, MPT_SHAPE(side, side)),
        mpt_randn(c, p->autocast, MPT_SHAPE(side, side)), mpt_ones(c, MPT_F32, MPT_SHAPE(1))};
    most.launch = best_seconds(c, x, 2);
    const double copy = best_seconds(c, x, 0), product = best_seconds(c, x, 1);
    most.bytes = 8 * (double)length / copy;
    most.flops = 2.0 * (double)side * (double)side * (double)side / product;
    if (mpt_failed(c)) printf("error: %s\n", mpt_error(c));
    mpt_destroy(c);
    return most;
}

/* Launches with the same text, or of the same kernel. */
typedef struct group {
    char text[200];
    double seconds, floor, lost;
    int times;
} group;

static int by_lost(const void *a, const void *b) {
    const double x = ((const group *)a)->lost, y = ((const group *)b)->lost;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int add_to_group(group *groups, int n, const char *text, size_t length,
                        const double *seconds_floor) {
    int i = 0;
    if (length > sizeof groups->text - 1) length = sizeof groups->text - 1;
    while (i < n && (strncmp(groups[i].text, text, length) != 0 || groups[i].text[length])) i++;
    if (i == n) {
        memset(&groups[n++], 0, sizeof *groups);
        memcpy(groups[i].text, text, length);
    }
    const double lost = seconds_floor[0] - seconds_floor[1];
    groups[i].times++;
    groups[i].seconds += seconds_floor[0];
    groups[i].floor += seconds_floor[1];
    if (lost > 0) groups[i].lost += lost;
    return n;
}

static void print_groups(group *groups, int n, int most) {
    qsort(groups, (size_t)n, sizeof *groups, by_lost);
    for (int i = 0; i < n && i < most; i++)
        printf("  %10.1f us lost: %10.1f us of floors %10.1f us (%5.1f %%) %4d times  %s\n",
               groups[i].lost * 1e6, groups[i].seconds * 1e6, groups[i].floor * 1e6,
               100 * groups[i].floor / (groups[i].seconds > 0 ? groups[i].seconds : 1e-9),
               groups[i].times, groups[i].text);
}

/* Each launch is waited for, and what the smallest one takes is taken off. */
static void report_worst(model *m, const ceilings *most) {
    static profile p;
    static group launches[PROFILE_LAUNCHES], kernels[PROFILE_LAUNCHES];
    double total[2] = {0, 0};
    int n_launches = 0, n_kernels = 0;
    profile_steps(&p, m->context, model_step, m);
    for (int i = 0; i < p.count && p.name[i]; i++) {
        operand o[OPERANDS];
        const char *text = p.name[i];
        const int n = parse_operands(text, o);
        const double flops = flops_of(text, o, n, m->kind->text), bytes = bytes_of(text, o, n);
        const double by_bytes = bytes / most->bytes, by_flops = flops / most->flops;
        double took[2] = {p.seconds[i] - most->launch, by_bytes > by_flops ? by_bytes : by_flops};
        if (took[0] < 0) took[0] = 0;
        n_launches = add_to_group(launches, n_launches, text, strlen(text), took);
        n_kernels = add_to_group(kernels, n_kernels, text, strcspn(text, " "), took);
        total[0] += took[0], total[1] += took[1];
    }
    printf("%s %s, batch %lld: %d launches, %.3f ms, of which floors %.3f ms\tworst %s %d %.9g "
           "%.9g\n the ten worst:\n",
           m->kind->name, m->precision->name, (long long)m->kind->batch, p.count, total[0] * 1e3,
           total[1] * 1e3, m->kind->name, p.count, total[0], total[1]);
    print_groups(launches, n_launches, 10);
    printf(" by kernel:\n");
    print_groups(kernels, n_kernels, n_kernels);
    profile_free(&p);
}

static bool part_worst(void) {
    static const char *const names[DEVICE_KINDS] = {"fp16", "bf16", "bf16", "fp16"};
    bool good = true;
    for (int k = 0; k < DEVICE_KINDS; k++) {
        model_kind kind;
        if (!wanted_kind(k, &kind)) continue;
        const ceilings most = measure_ceilings(find_precision(names[k]));
        printf("ceilings: copy %.0f GB/s, product %s %.1f Tflop/s; the smallest launch %.1f us"
               "\tceilings %s %.9g %.9g %.9g\n",
               most.bytes * 1e-9, names[k], most.flops * 1e-12, most.launch * 1e6, names[k],
               most.bytes, most.flops, most.launch);
        model *m = most.bytes > 0 ? fitting_model(&kind, names[k]) : NULL;
        if (m) report_worst(m, &most);
        good = good && m && !mpt_failed(m->context);
        if (m && mpt_failed(m->context)) printf("error: %s\n", mpt_error(m->context));
        if (m) model_end(m);
        fflush(stdout);
    }
    return good;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        bool (*run)(void);
    } parts[] = {{"steps", part_steps}, {"limit", part_limit}, {"worst", part_worst}};
    bool good = argc > 3;
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    if (!good) return printf("device_models cuda|cpu full|tiny steps|limit|worst\n"), 2;
    config = mpt_config_default();
    config.device = strcmp(argv[1], "cuda") == 0 ? MPT_DEVICE_CUDA : MPT_DEVICE_CPU;
    tiny = strcmp(argv[2], "tiny") == 0;
    alone = mpt_create(&config);
    if (!alone) return printf("%s\n", mpt_error(NULL)), 1;
    printf("device: %s\n", mpt_device_name(alone));
    for (int i = 3; i < argc; i++) {
        model_kind kind;
        int found = 0;
        if (strncmp(argv[i], "batch=", 6) == 0) wanted_batch = atoll(argv[i] + 6);
        if (strncmp(argv[i], "model=", 6) == 0) wanted_model = argv[i] + 6;
        for (int k = 0; k < DEVICE_KINDS; k++) found += wanted_kind(k, &kind);
        good = good && found && wanted_batch >= 0;
        for (int k = 0; k < 3; k++)
            if (strcmp(parts[k].name, argv[i]) == 0) good = parts[k].run() && good;
    }
    mpt_destroy(alone);
    return !good;
}
