/* bench_gemm.c: matrix products of training shapes on AVX2 and on the best level of this CPU, in
   GFLOP/s and as a share of a ceiling measured in the same rounds and on as many threads: for fp32,
   and for all on AVX2 and AVX-512, FMA chains; for halves on AMX, tile products with loads from L1
   (fp16 takes four of them). The last columns are own halves over own fp32.
       bench_gemm [seconds per figure, 0.3] [threads, 1 or 2] [part of a shape's name] */
#define MPTRAIN_IMPLEMENTATION
#include "bench.h"

typedef struct shape {
    const char *what;
    int64_t m, n, k;
    bool ta, tb;
} shape;

static const shape shapes[] = {
    {"square 256", 256, 256, 256, false, false},
    {"square 512", 512, 512, 512, false, false},
    {"square 1024", 1024, 1024, 1024, false, false},
    {"square 1024, B^T", 1024, 1024, 1024, false, true},
    {"square 1024, A^T", 1024, 1024, 1024, true, false},
    {"square 2048", 2048, 2048, 2048, false, false},
    {"MLP layer 1, forward", 64, 128, 784, false, true},
    {"MLP layer 1, dW", 128, 784, 64, true, false},
    {"MLP layer 2, forward", 64, 64, 128, false, true},
    {"MLP layer 2, dx", 64, 128, 64, false, false},
    {"MLP layer 2, dW", 64, 128, 64, true, false},
    {"MLP layer 3, forward", 64, 10, 64, false, true},
    {"MLP layer 3, dx", 64, 64, 10, false, false},
    {"MLP layer 3, dW", 10, 64, 64, true, false},
    {"wide MLP, forward", 256, 4096, 1024, false, true},
    {"wide MLP, dW", 4096, 1024, 256, true, false},
    {"batch 1, forward", 1, 1024, 1024, false, true},
    {"batch 1, dx", 1, 1024, 1024, false, false},
    {"batch 8, forward", 8, 1024, 1024, false, true},
    {"batch 32, forward", 32, 1024, 1024, false, true},
};

enum { CEILING_STEPS = 20000, CEILING_DEPTH = 256 };

#ifdef MPT__HAS_AVX512
#define CHAINS_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define CHAINS_24(X) \
    CHAINS_12(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define CHAIN_MAKE(i) x##i = V_SET(1e-3f * i),
#define CHAIN_STEP(i) x##i = V_FMA(x##i, a, b);
#define CHAIN_SUM(i) a = V_ADD(a, x##i);

/* Independent FMA chains, nothing else: what no product can pass. */
#define V_SET _mm256_set1_ps
#define V_FMA _mm256_fmadd_ps
#define V_ADD _mm256_add_ps
MPT__AVX2 void ceiling_256(void *work, int64_t chunk, int thread) {
    (void)chunk, (void)thread;
    __m256 CHAINS_12(CHAIN_MAKE) a = V_SET(0.999f), b = V_SET(1e-3f);
    for (int i = 0; i < CEILING_STEPS; i++) { CHAINS_12(CHAIN_STEP) }
    CHAINS_12(CHAIN_SUM)
    volatile float sink = _mm256_cvtss_f32(a);
    (void)work, (void)sink;
}
#undef V_SET
#undef V_FMA
#undef V_ADD
#define V_SET _mm512_set1_ps
#define V_FMA _mm512_fmadd_ps
#define V_ADD _mm512_add_ps
MPT__AVX512 void ceiling_512(void *work, int64_t chunk, int thread) {
    (void)chunk, (void)thread;
    __m512 CHAINS_24(CHAIN_MAKE) a = V_SET(0.999f), b = V_SET(1e-3f);
    for (int i = 0; i < CEILING_STEPS; i++) { CHAINS_24(CHAIN_STEP) }
    CHAINS_24(CHAIN_SUM)
    volatile float sink = _mm512_cvtss_f32(a);
    (void)work, (void)sink;
}

/* The tile kernel on panels that stay in L1. */
#ifdef MPT__HAS_AMX
static void ceiling_tiles(void *work, int64_t chunk, int thread) {
    static MPT__THREAD_LOCAL char panels[2][CEILING_DEPTH * 64];
    (void)work, (void)chunk, (void)thread;
    mpt__amx_bracket(true);
    for (int i = 0; i < CEILING_STEPS / 64; i++) {
        mpt__amx_sums(CEILING_DEPTH, panels[0], panels[1], true, true, 1);
    }
    mpt__amx_bracket(false);
}
#endif

typedef struct ceiling {
    mpt__chunk_fn fn;
    double flop; /* of a thread */
    mpt__pool *pool;
} ceiling;

static void run_ceiling(void *work) {
    ceiling *c = (ceiling *)work;
    mpt__parallel(c->pool, mpt__pool_threads(c->pool), INT64_MAX, c->fn, NULL);
}
static void make_case(bench_case *c, mpt__backend *backend, const shape *s, int dtype) {
    int64_t m = s->m, n = s->n, k = s->k;
    bench_init(c, backend, MPT__K_GEMM);
    c->launch.compute_dtype = (uint8_t)dtype;
    bench_operand(c, 0, dtype, m, k, s->ta ? 1 : k, s->ta ? m : 1, MPT__READ,
                  bench_memory(dtype, m * k));
    bench_operand(c, 1, dtype, k, n, s->tb ? 1 : n, s->tb ? k : 1, MPT__READ,
                  bench_memory(dtype, k * n));
    bench_operand(c, 3, dtype, m, n, n, 1, MPT__WRITE, bench_memory(dtype, m * n));
    bench_ready(c);
}

static void bench_shape(const shape *s, mpt__backend **levels, ceiling *ceilings, double seconds,
                        bool wall) {
    static const int dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    static bench_case cases[6];
    bench_fn fn[BENCH_MAX];
    void *work[BENCH_MAX];
    double took[BENCH_MAX], most[3] = {0, 0, 0}, rate[6] = {0, 0, 0, 0, 0, 0};
    int n = 0;
    for (int c = 0; c < 6 && levels[c / 3] != NULL; c++, n++) {
        make_case(&cases[n], levels[c / 3], s, dtypes[c % 3]);
        fn[n] = bench_run_case, work[n] = &cases[n];
    }
    int first = n;
    for (int c = 0; c < 3 && ceilings[c].fn != NULL; c++, n++) {
        fn[n] = run_ceiling, work[n] = &ceilings[c];
    }
    bench_measure(fn, work, n, seconds, wall, took);
    for (int c = first; c < n; c++) most[c - first] = ceilings[c - first].flop / took[c] / 1e9;
    printf("%-22s %5ld %5ld %5ld", s->what, (long)s->m, (long)s->n, (long)s->k);
    for (int c = 0; c < first; c++) {
        double share = most[c / 3];
        if (c > 3 && most[2] > 0) share = most[2] / (c == 5 ? 4 : 1);
        rate[c] = 2e-9 * (double)(s->m * s->n * s->k) / took[c];
        printf("%s %5.0f (%2.0f)", c % 3 == 0 ? " |" : "", rate[c], 100 * rate[c] / share);
    }
    printf(" | %5.2f %5.2f", rate[first - 2] / rate[first - 3], rate[first - 1] / rate[first - 3]);
    if (most[2] > 0) printf(" | %5.0f", most[2]);
    printf("\n");
    fflush(stdout);
}

#endif

int main(int argc, char **argv) {
#ifdef MPT__HAS_AVX512
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    int threads = argc > 2 && atoi(argv[2]) == 2 ? 2 : 1;
    const char *part = argc > 3 ? argv[3] : "";
    mpt__backend *levels[2] = {bench_backend(MPT_ISA_AVX2, threads), NULL};
    ceiling ceilings[3] = {{ceiling_256, CEILING_STEPS * 12.0 * 16, NULL},
                           {NULL, CEILING_STEPS * 24.0 * 32, NULL},
                           {NULL, CEILING_STEPS / 64 * 2048.0 * CEILING_DEPTH, NULL}};
    if (levels[0] == NULL) {
        printf("this CPU has no AVX2\n");
        return 0;
    }
#ifdef MPT__HAS_AMX
    levels[1] = bench_backend(MPT_ISA_AMX, threads);
    if (levels[1] != NULL) ceilings[2].fn = ceiling_tiles;
#endif
    if (levels[1] == NULL) levels[1] = bench_backend(MPT_ISA_AVX512_BF16, threads);
    if (levels[1] == NULL) levels[1] = bench_backend(MPT_ISA_AVX512, threads);
    if (levels[1] != NULL) ceilings[1].fn = ceiling_512;
    mpt__pool *pool = mpt__pool_create(&bench_base, threads);
    for (int c = 0; c < 3; c++) {
        ceilings[c].flop *= threads;
        ceilings[c].pool = pool;
    }
    printf("GFLOP/s (%% of the ceiling), %d thread%s\n%-22s %5s %5s %5s", threads,
           threads > 1 ? "s, wall clock" : ", CPU time", "", "M", "N", "K");
    for (int l = 0; l < 2 && levels[l] != NULL; l++) {
        printf(" | %-6s f32   bf16       f16       ", levels[l]->name);
    }
    printf(" | bf16/ f16/f32 %s\n", ceilings[2].fn ? "| tiles with loads" : "");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (strstr(shapes[i].what, part) == NULL) continue;
        bench_shape(&shapes[i], levels, ceilings, seconds, threads > 1);
    }
#else
    (void)argc, (void)argv;
    printf("no vector kernels in this build\n");
#endif
    return 0;
}
