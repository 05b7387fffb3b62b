/* bench_shapes.c: products and kernels through the public API, beside ceilings of the same run.
       bench_shapes [seconds per sample, 0.03] [threads, 1]
       bench_shapes --serve    subjects for a driver:
           gemm f32|bf16|f16 BATCH M N K A B THREADS    A, B: n as stored, t transposed
           kernel NAME ELEMENTS THREADS                 the names: see kernels[]
           attention f32|bf16|f16 B H T D CAUSAL BACK THREADS
           embedding V D N BACK THREADS                 BACK: 1 backward too, or alone
           norm KIND DTYPE N C H W BACK THREADS         layer, rms, group, batch, batch-last
           copy BYTES                                   a plain one, not memcpy
           ceiling tiles|pairs|avx512|avx2 THREADS
           blas LIBRARY M N K A B THREADS               sgemm of numpy's OpenBLAS */
#include "measure.h"

#if defined(__unix__) || defined(__APPLE__)
#define HAVE_DLOPEN 1
#include <dlfcn.h>
#endif

static const struct {
    const char *name;
    mpt_dtype dtype;
} dtypes[] = {{"f32", MPT_F32}, {"bf16", MPT_BF16}, {"f16", MPT_F16}};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

static mpt_context *make_context(const char *threads, char *error, size_t size) {
    mpt_config config = mpt_config_default();
    config.threads = atoi(threads);
    mpt_context *context = mpt_create(&config);
    if (!context) snprintf(error, size, "%s", mpt_error(NULL));
    return context;
}

/* ==== Products ==== */

typedef struct product {
    mpt_context *context;
    mpt_tensor a, b;
} product;

static void product_run(void *self) {
    product *p = (product *)self;
    mpt_release(mpt_matmul(p->a, p->b));
}

static void product_end(void *self) {
    mpt_destroy(((product *)self)->context);
    free(self);
}

static mpt_tensor make_matrix(mpt_context *context, mpt_dtype dtype, int64_t batch, int64_t rows,
                              int64_t columns, bool transposed) {
    int64_t r = transposed ? columns : rows, c = transposed ? rows : columns;
    mpt_shape shape = batch > 1 ? MPT_SHAPE(batch, r, c) : MPT_SHAPE(r, c);
    mpt_tensor x = mpt_randn(context, MPT_F32, shape);
    if (dtype != MPT_F32) x = mpt_cast(x, dtype);
    return transposed ? mpt_transpose(x, -1, -2) : x;
}

static bool make_product(subject *s, int argc, char **argv, char *error, size_t size) {
    int64_t dim[4];
    mpt_dtype dtype = MPT_DTYPE_NONE;
    snprintf(error, size, "expected DTYPE BATCH M N K A B THREADS");
    for (int i = 0; argc == 8 && i < DTYPES; i++)
        if (strcmp(dtypes[i].name, argv[0]) == 0) dtype = dtypes[i].dtype;
    if (dtype == MPT_DTYPE_NONE) return false;
    for (int i = 0; i < 4; i++) dim[i] = atoll(argv[1 + i]);
    product *p = (product *)calloc(1, sizeof *p);
    s->run = product_run, s->end = product_end, s->self = p;
    s->context = p->context = make_context(argv[7], error, size);
    if (!p->context) return false;
    mpt_no_grad_begin(p->context);
    p->a = make_matrix(p->context, dtype, dim[0], dim[1], dim[3], argv[5][0] == 't');
    p->b = make_matrix(p->context, dtype, dim[0], dim[3], dim[2], argv[6][0] == 't');
    s->work = 2.0 * (double)(dim[0] * dim[1] * dim[2] * dim[3]);
    return true;
}

/* ==== Kernels whose limit is memory ==== */

typedef struct stream {
    mpt_context *context;
    mpt_tensor x, y;
    mpt_optimizer optimizer;
} stream;

static void run_to_bf16(void *self) { mpt_release(mpt_cast(((stream *)self)->x, MPT_BF16)); }
static void run_to_f16(void *self) { mpt_release(mpt_cast(((stream *)self)->x, MPT_F16)); }
static void run_to_f32(void *self) { mpt_release(mpt_cast(((stream *)self)->y, MPT_F32)); }
static void run_relu(void *self) { mpt_release(mpt_relu(((stream *)self)->x)); }
static void run_update(void *self) { mpt_step(((stream *)self)->optimizer); }

static void run_add(void *self) {
    stream *t = (stream *)self;
    mpt_release(mpt_add(t->x, t->y));
}

/* Bytes of memory traffic per element: what is read, what is written, and for an output that was
   not read once more, because a plain store fetches the line first. */
static const struct {
    const char *name;
    void (*run)(void *self);
    double bytes;
    mpt_dtype second; /* dtype of y, if there is one */
} kernels[] = {{"f32_to_bf16", run_to_bf16, 4 + 2 + 2, MPT_DTYPE_NONE},
               {"f32_to_f16", run_to_f16, 4 + 2 + 2, MPT_DTYPE_NONE},
               {"bf16_to_f32", run_to_f32, 2 + 4 + 4, MPT_BF16},
               {"relu", run_relu, 4 + 4 + 4, MPT_DTYPE_NONE},
               {"add", run_add, 8 + 4 + 4, MPT_F32},
               {"sgd", run_update, 8 + 4, MPT_DTYPE_NONE},
               {"adamw", run_update, 16 + 12, MPT_DTYPE_NONE},
               {"adamw8", run_update, 10 + 6, MPT_DTYPE_NONE}};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

static mpt_status forward_identity(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                   mpt_tensor *out, int n_out) {
    (void)self, (void)user;
    for (int i = 0; i < n_in && i < n_out; i++) out[i] = in[i];
    return MPT_OK;
}

/* An optimizer over one parameter of n elements that has a gradient. */
static void make_update(stream *t, int64_t n, bool adamw, int bits) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "Parameter", cls.forward = forward_identity;
    cls.n_inputs = cls.n_outputs = 1;
    mpt_module module = mpt_module_create(t->context, &cls, NULL);
    mpt_add_parameter(module, "weight", MPT_SHAPE(n), mpt_init_make(MPT_INIT_UNIFORM, -1, 1));
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adam = mpt_adamw_config_default();
    sgd.lr = adam.lr = 1e-6;
    adam.state_bits = bits;
    t->optimizer = adamw ? mpt_adamw(module, &adam) : mpt_sgd(module, &sgd);
    mpt_step_begin(t->context);
    mpt_tensor sum = mpt_sum(mpt_parameter(module, "weight"), MPT_ALL_DIMS, false);
    mpt_backward(sum);
    mpt_step_end(t->context);
}

static void stream_end(void *self) {
    mpt_destroy(((stream *)self)->context);
    free(self);
}

static bool make_kernel(subject *s, int argc, char **argv, char *error, size_t size) {
    int64_t n = argc == 3 ? atoll(argv[1]) : 0;
    snprintf(error, size, "expected NAME ELEMENTS THREADS");
    for (int i = 0; n > 0 && i < KERNELS; i++) {
        if (strcmp(kernels[i].name, argv[0]) != 0) continue;
        stream *t = (stream *)calloc(1, sizeof *t);
        s->run = kernels[i].run, s->end = stream_end, s->self = t;
        s->context = t->context = make_context(argv[2], error, size);
        if (!t->context) return false;
        s->work = kernels[i].bytes * (double)n;
        if (kernels[i].run == run_update) {
            make_update(t, n, strcmp(argv[0], "sgd") != 0, strcmp(argv[0], "adamw8") ? 32 : 8);
            return true;
        }
        mpt_no_grad_begin(t->context);
        t->x = mpt_rand(t->context, MPT_F32, MPT_SHAPE(n));
        if (kernels[i].second != MPT_DTYPE_NONE) t->y = mpt_cast(t->x, kernels[i].second);
        if (kernels[i].second == MPT_F32) t->y = mpt_clone(t->x);
        return true;
    }
    return false;
}

/* ==== Attention, embedding ==== */

/* x: q, or the table; y: k or the ids; z: v. */
typedef struct lookup {
    mpt_context *context;
    mpt_tensor x, y, z, dout;
    bool causal, back;
} lookup;

static void attention_run(void *self) {
    lookup *a = (lookup *)self;
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = a->causal;
    mpt_step_begin(a->context);
    mpt_tensor out = mpt_scaled_dot_product_attention(a->x, a->y, a->z, &config);
    if (a->back) {
        mpt_backward_from(out, a->dout, false);
        mpt_clear_grad(a->x), mpt_clear_grad(a->y), mpt_clear_grad(a->z);
    }
    mpt_step_end(a->context);
}

/* Gradients add up, as they would over some steps. */
static void embedding_run(void *self) {
    lookup *e = (lookup *)self;
    if (e->back)
        mpt_backward_from(e->z, e->dout, true);
    else
        mpt_release(mpt_embedding(e->y, e->x, -1));
}

static void lookup_end(void *self) {
    mpt_destroy(((lookup *)self)->context);
    free(self);
}

static lookup *make_lookup(subject *s, const char *threads, char *error, size_t size) {
    lookup *p = (lookup *)calloc(1, sizeof *p);
    s->end = lookup_end, s->self = p;
    s->context = p->context = make_context(threads, error, size);
    return p->context ? p : NULL;
}

static mpt_tensor make_leaf(mpt_context *context, mpt_shape shape, mpt_dtype dtype, bool leaf) {
    mpt_tensor x = mpt_randn(context, MPT_F32, shape);
    if (dtype != MPT_F32) x = mpt_cast(x, dtype);
    if (leaf) mpt_requires_grad(x, true);
    return x;
}

static bool make_attention(subject *s, int argc, char **argv, char *error, size_t size) {
    int64_t dim[4];
    mpt_dtype dtype = MPT_DTYPE_NONE;
    snprintf(error, size, "expected DTYPE B H T D CAUSAL BACK THREADS");
    for (int i = 0; argc == 8 && i < DTYPES; i++)
        if (strcmp(dtypes[i].name, argv[0]) == 0) dtype = dtypes[i].dtype;
    if (dtype == MPT_DTYPE_NONE) return false;
    lookup *a = make_lookup(s, argv[7], error, size);
    if (!a) return false;
    for (int i = 0; i < 4; i++) dim[i] = atoll(argv[1 + i]);
    mpt_shape shape = MPT_SHAPE(dim[0], dim[1], dim[2], dim[3]);
    s->run = attention_run;
    a->causal = atoi(argv[5]) != 0, a->back = atoi(argv[6]) != 0;
    a->x = make_leaf(a->context, shape, dtype, a->back);
    a->y = make_leaf(a->context, shape, dtype, a->back);
    a->z = make_leaf(a->context, shape, dtype, a->back);
    a->dout = make_leaf(a->context, shape, dtype, false);
    s->work = 4.0 * (double)(dim[0] * dim[1] * dim[2] * dim[2] * dim[3]) * (a->back ? 3.5 : 1) /
              (a->causal ? 2 : 1);
    return true;
}

static bool make_embedding(subject *s, int argc, char **argv, char *error, size_t size) {
    snprintf(error, size, "expected V D N BACK THREADS");
    int64_t v = argc == 5 ? atoll(argv[0]) : 0, d = v ? atoll(argv[1]) : 0,
            n = v ? atoll(argv[2]) : 0;
    int64_t *ids = (int64_t *)malloc((size_t)(n + 1) * sizeof *ids);
    lookup *e = v > 0 ? make_lookup(s, argv[4], error, size) : NULL;
    for (int64_t i = 0; i < n && v > 0; i++)
        ids[i] = (int64_t)((uint64_t)i * 2654435761u % (uint64_t)v);
    if (e) {
        e->back = atoi(argv[3]) != 0;
        e->x = make_leaf(e->context, MPT_SHAPE(v, d), MPT_F32, e->back);
        e->y = mpt_from(e->context, MPT_I64, MPT_SHAPE(n), ids);
        if (e->back) e->z = mpt_embedding(e->y, e->x, -1);
        e->dout = make_leaf(e->context, MPT_SHAPE(n, d), MPT_F32, false);
        s->run = embedding_run;
        s->work = 12.0 * (double)(n * d); /* forward: read, fetched, written; backward: read twice,
                                             written */
    }
    free(ids);
    return e != NULL;
}

/* ==== Norms ==== */

enum { LAYER_NORM, RMS_NORM, GROUP_NORM, BATCH_NORM, BATCH_NORM_LAST, NORM_KINDS };
typedef struct normed {
    mpt_context *context;
    mpt_tensor x, weight, bias, y, dy;
    int kind;
    bool back;
} normed;

static mpt_tensor norm_of(const normed *n) {
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    switch (n->kind) {
    case LAYER_NORM:
        return mpt_layer_norm(n->x, 1, n->weight, n->bias, 1e-5);
    case RMS_NORM:
        return mpt_rms_norm(n->x, 1, n->weight, 1e-5);
    case GROUP_NORM:
        return mpt_group_norm(n->x, 32, n->weight, n->bias, 1e-5);
    default:
        return mpt_batch_norm(n->x, none, none, n->weight, n->bias, 1e-5);
    }
}

/* Backward alone, or forward alone. */
static void norm_run(void *self) {
    normed *n = (normed *)self;
    if (!n->back) {
        mpt_release(norm_of(n));
        return;
    }
    mpt_backward_from(n->y, n->dy, true);
    mpt_clear_grad(n->x), mpt_clear_grad(n->weight), mpt_clear_grad(n->bias);
}

static void norm_end(void *self) {
    mpt_destroy(((normed *)self)->context);
    free(self);
}

/* Memory traffic: what is read once, and what is written twice, because a plain store fetches the
   line first. A batch has to be read twice, but caches may hold it: that counts as ours to win. */
static bool make_norm(subject *s, int argc, char **argv, char *error, size_t size) {
    static const char *const kinds[NORM_KINDS] = {"layer", "rms", "group", "batch", "batch-last"};
    int64_t dim[4];
    int kind = 0, type = 0;
    snprintf(error, size, "expected KIND DTYPE N C H W BACK THREADS");
    if (argc != 8) return false;
    while (kind < NORM_KINDS && strcmp(kinds[kind], argv[0]) != 0) kind++;
    while (type < DTYPES && strcmp(dtypes[type].name, argv[1]) != 0) type++;
    if (kind == NORM_KINDS || type == DTYPES) return false;
    for (int i = 0; i < 4; i++) dim[i] = atoll(argv[2 + i]);
    normed *n = (normed *)calloc(1, sizeof *n);
    s->run = norm_run, s->end = norm_end, s->self = n;
    s->context = n->context = make_context(argv[7], error, size);
    if (!n->context) return false;
    n->kind = kind, n->back = atoi(argv[6]) != 0;
    const bool rows = kind <= RMS_NORM;
    mpt_shape shape = rows ? MPT_SHAPE(dim[0], dim[1]) : MPT_SHAPE(dim[0], dim[1], dim[2], dim[3]);
    mpt_tensor x = make_leaf(n->context, shape, dtypes[type].dtype, false);
    if (kind == BATCH_NORM_LAST) x = mpt_to_channels_last(x);
    n->x = mpt_detach(x);
    n->weight = make_leaf(n->context, MPT_SHAPE(dim[1]), MPT_F32, n->back);
    n->bias = make_leaf(n->context, MPT_SHAPE(dim[1]), MPT_F32, n->back);
    if (n->back) {
        mpt_requires_grad(n->x, true);
        n->y = norm_of(n);
        n->dy = mpt_detach(mpt_clone(n->y));
    }
    s->work = (n->back ? 4.0 : 3.0) * (double)(dim[0] * dim[1] * dim[2] * dim[3]) *
              (double)mpt_dtype_size(dtypes[type].dtype);
    return true;
}

/* ==== The ceilings ==== */

typedef struct plain_copy {
    char *from, *to;
    size_t bytes;
} plain_copy;

#ifdef MEASURE_X86
__attribute__((target("avx2"), noinline)) static void copy_vectors(plain_copy *c) {
    for (size_t i = 0; i < c->bytes; i += 64) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(c->from + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(c->from + i + 32));
        _mm256_storeu_si256((__m256i *)(void *)(c->to + i), a);
        _mm256_storeu_si256((__m256i *)(void *)(c->to + i + 32), b);
    }
}
#endif

/* Plain stores; memcpy would stream past the caches at this size. */
static void copy_run(void *self) {
    plain_copy *c = (plain_copy *)self;
#ifdef MEASURE_X86
    if (__builtin_cpu_supports("avx2")) {
        copy_vectors(c);
        return;
    }
#endif
    for (size_t i = 0; i < c->bytes; i += 256) memcpy(c->to + i, c->from + i, 256);
}

static void copy_end(void *self) {
    free(((plain_copy *)self)->from);
    free(((plain_copy *)self)->to);
    free(self);
}

static bool make_copy(subject *s, int argc, char **argv, char *error, size_t size) {
    snprintf(error, size, "expected BYTES");
    if (argc != 1) return false;
    plain_copy *c = (plain_copy *)calloc(1, sizeof *c);
    s->run = copy_run, s->end = copy_end, s->self = c;
    c->bytes = (size_t)atoll(argv[0]) / 256 * 256;
    c->from = (char *)malloc(c->bytes), c->to = (char *)malloc(c->bytes);
    memset(c->from, 1, c->bytes);
    memset(c->to, 2, c->bytes);
    s->work = 3.0 * (double)c->bytes;
    return true;
}

static bool make_ceiling(subject *s, int argc, char **argv, char *error, size_t size) {
    ceiling *c = (ceiling *)calloc(1, sizeof *c);
    snprintf(error, size, "this CPU or compiler has no such ceiling");
    s->run = ceiling_run, s->end = free, s->self = c;
    if (argc != 2 || !(c->kernel = ceiling_find(argv[0]))) return false;
    c->threads = atoi(argv[1]);
    double took = 0.0; /* a run that is long beside the making of threads */
    for (c->steps = 1000; took < 2 * MEASURE_PIECE; c->steps *= 2) {
        double start = measure_cpu();
        s->work = 2.0 * c->kernel(c->steps) * c->threads;
        took = measure_cpu() - start;
    }
    return true;
}

/* ==== OpenBLAS, called from C as a C program would ==== */

#ifdef HAVE_DLOPEN
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };
typedef void (*sgemm_function)(int, int, int, int64_t, int64_t, int64_t, float, const float *,
                               int64_t, const float *, int64_t, float, float *, int64_t);
typedef struct blas {
    sgemm_function sgemm;
    int ta, tb;
    int64_t m, n, k;
    float *a, *b, *c;
} blas;

static void blas_run(void *self) {
    blas *p = (blas *)self;
    p->sgemm(ROW_MAJOR, p->ta, p->tb, p->m, p->n, p->k, 1.0f, p->a, p->ta == PLAIN ? p->k : p->m,
             p->b, p->tb == PLAIN ? p->n : p->k, 0.0f, p->c, p->n);
}

static void blas_end(void *self) {
    blas *p = (blas *)self;
    free(p->a);
    free(p->b);
    free(p->c);
    free(p);
}

static float *make_floats(int64_t n) {
    float *values = (float *)malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    return values;
}

static bool make_blas(subject *s, int argc, char **argv, char *error, size_t size) {
    void (*set_threads)(int) = NULL;
    snprintf(error, size, "expected LIBRARY M N K A B THREADS");
    if (argc != 7) return false;
    blas *p = (blas *)calloc(1, sizeof *p);
    void *library = dlopen(argv[0], RTLD_NOW | RTLD_LOCAL);
    s->run = blas_run, s->end = blas_end, s->self = p;
    void *symbols[2] = {library ? dlsym(library, "scipy_cblas_sgemm64_") : NULL,
                        library ? dlsym(library, "scipy_openblas_set_num_threads64_") : NULL};
    snprintf(error, size, "no 64-bit sgemm of numpy's OpenBLAS in it");
    if (!symbols[0] || !symbols[1]) return false;
    memcpy(&p->sgemm, &symbols[0], sizeof p->sgemm);
    memcpy(&set_threads, &symbols[1], sizeof set_threads);
    set_threads(atoi(argv[6]));
    p->m = atoll(argv[1]), p->n = atoll(argv[2]), p->k = atoll(argv[3]);
    p->ta = argv[4][0] == 't' ? TRANSPOSED : PLAIN, p->tb = argv[5][0] == 't' ? TRANSPOSED : PLAIN;
    p->a = make_floats(p->m * p->k), p->b = make_floats(p->k * p->n);
    p->c = make_floats(p->m * p->n);
    s->work = 2.0 * (double)(p->m * p->n * p->k);
    return true;
}
#endif

static const subject_maker makers[] = {{"gemm", make_product},
                                       {"kernel", make_kernel},
                                       {"attention", make_attention},
                                       {"embedding", make_embedding},
                                       {"norm", make_norm},
                                       {"copy", make_copy},
                                       {"ceiling", make_ceiling},
#ifdef HAVE_DLOPEN
                                       {"blas", make_blas},
#endif
                                       {NULL, NULL}};

/* ==== The table ==== */

static bool make_of(subject *s, const char *line) {
    char text[256], *words[SERVE_WORDS];
    int n = 0;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " ")) words[n++] = word;
    return serve_make(s, makers, n, words);
}

/* Batch, M, N, K, A, B. */
static const char *const shapes[] = {
    "1 256 256 256 n n",  "1 512 512 512 n n", "1 1024 1024 1024 n n", "1 2048 2048 2048 n n",
    "1 64 128 784 n t",   "1 64 784 128 n n",  "1 128 784 64 t n",     "1 64 64 128 n t",
    "1 64 128 64 n n",    "1 64 128 64 t n",   "1 512 3072 768 n t",   "1 512 768 3072 n n",
    "1 3072 768 512 t n", "1 64 10 64 n t",    "1 64 64 10 n n",       "1 10 64 64 t n",
    "1 1 1024 1024 n t",  "1 8 1024 1024 n t", "48 128 128 64 n t",    "48 128 64 128 n n",
    "1 3136 64 576 n t",  "1 784 128 1152 n t"};

/* Makes the dtypes' products and the ceilings: of multiply-add, then of tiles if there are any. */
static int make_products(subject *subjects, const char *shape, int threads) {
    char line[256];
    int n = 0;
    for (; n < DTYPES; n++) {
        snprintf(line, sizeof line, "gemm %s %s %d", dtypes[n].name, shape, threads);
        if (!make_of(&subjects[n], line)) return 0;
    }
    for (int tiles = 0; tiles < 2; tiles++) {
        const char *name = tiles ? "tiles" : ceiling_find("avx512") ? "avx512" : "avx2";
        snprintf(line, sizeof line, "ceiling %s %d", name, threads);
        if (ceiling_find(name) && make_of(&subjects[n], line)) n++;
    }
    return n;
}

static double rate_of(const subject *subjects, const repetitions *r, int i) {
    return subjects[i].work / r->median[i];
}

static void table_of_products(double seconds, int threads) {
    printf(
        "\nGFLOP/s (%% of the ceiling that needs no memory: multiply-add for f32, tiles for halves "
        "if there are any), %s\n%-22s",
        threads > 1 ? "wall clock" : "1 thread, CPU time", "batch M N K A B");
    for (int d = 0; d < DTYPES; d++) printf("%16s", dtypes[d].name);
    printf("\n");
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        subject subjects[DTYPES + 2], *turns[DTYPES + 2];
        char note[80];
        repetitions r;
        int n = make_products(subjects, shapes[i], threads);
        if (n == 0) return;
        for (int t = 0; t < n; t++) turns[t] = &subjects[t];
        measure_alternating(turns, n, seconds, threads, &r);
        printf("%-22s", shapes[i]);
        for (int d = 0; d < DTYPES; d++) {
            int limit = d == 0 && n > DTYPES ? DTYPES : n - 1;
            printf("%9.1f (%3.0f%%)", 1e-9 * rate_of(subjects, &r, d),
                   n > DTYPES ? 100 * rate_of(subjects, &r, d) / rate_of(subjects, &r, limit) : 0);
        }
        measure_note(&r, note, sizeof note);
        printf("  %s\n", note);
        for (int d = 0; d < DTYPES; d++)
            printf("\tgemm shape=\"%s\" dtype=%s threads=%d gflops=%.2f us=%.3f\n", shapes[i],
                   dtypes[d].name, threads, 1e-9 * rate_of(subjects, &r, d), 1e6 * r.median[d]);
        fflush(stdout);
        for (int t = 0; t < n; t++) subjects[t].end(subjects[t].self);
    }
}

/* Beyond any cache: 128 MB an array. */
static void table_of_kernels(double seconds, int threads) {
    enum { ELEMENTS = 1 << 25 };
    printf("\nGB/s of memory traffic, arrays of %d MB, %d thread%s\n", ELEMENTS >> 18, threads,
           threads > 1 ? "s" : "");
    for (int k = 0; k < KERNELS; k++) {
        subject subjects[2], *turns[2] = {&subjects[0], &subjects[1]};
        char line[256];
        repetitions r;
        snprintf(line, sizeof line, "kernel %s %d %d", kernels[k].name, ELEMENTS, threads);
        if (!make_of(turns[0], line)) return;
        snprintf(line, sizeof line, "copy %d", ELEMENTS * 4);
        if (!make_of(turns[1], line)) return;
        measure_alternating(turns, 2, seconds, threads, &r);
        double rate = subjects[0].work / r.median[0];
        double share = rate / subjects[1].work * measure_ratio(&r, 1, 0) * r.median[0];
        printf("%-14s %6.2f, %3.0f %% of a plain copy by one thread\n", kernels[k].name,
               1e-9 * rate, 100 * share);
        printf("\tkernel name=%s threads=%d gbytes=%.3f share=%.3f\n", kernels[k].name, threads,
               1e-9 * rate, share);
        fflush(stdout);
        for (int i = 0; i < 2; i++) subjects[i].end(subjects[i].self);
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--serve") == 0) return measure_serve(makers);
    double seconds = argc > 1 ? atof(argv[1]) : 0.03;
    int threads = argc > 2 ? atoi(argv[2]) : 1;
    measure_print_machine();
    table_of_products(seconds, threads);
    table_of_kernels(seconds, threads);
    return 0;
}
