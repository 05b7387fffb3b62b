/* bench_gemm.c: matrix products of training shapes on every level of this CPU, in GFLOP/s and as a
   share of the FMA ceiling of that level, measured in the same rounds.
       bench_gemm [seconds per figure, 0.3] [threads, 1 or 2] */
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

enum { CEILING_STEPS = 20000, CEILING_FLOP_256 = CEILING_STEPS * 12 * 16,
       CEILING_FLOP_512 = CEILING_STEPS * 24 * 32 };

#ifdef MPT__HAS_AVX512
#define CHAINS_12(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define CHAINS_24(X)                                                                               \
    CHAINS_12(X) X(12) X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define CHAIN_MAKE(i) x##i = V_SET(1e-3f * i),
#define CHAIN_STEP(i) x##i = V_FMA(x##i, a, b);
#define CHAIN_SUM(i) a = V_ADD(a, x##i);

/* Independent FMA chains, nothing else: what no product can pass. */
#define V_SET _mm256_set1_ps
#define V_FMA _mm256_fmadd_ps
#define V_ADD _mm256_add_ps
MPT__AVX2 void ceiling_256(void *work) {
    __m256 CHAINS_12(CHAIN_MAKE) a = V_SET(0.999f), b = V_SET(1e-3f);
    for (int i = 0; i < CEILING_STEPS; i++) {
        CHAINS_12(CHAIN_STEP)
    }
    CHAINS_12(CHAIN_SUM)
    _mm256_storeu_ps((float *)work, a);
}
#undef V_SET
#undef V_FMA
#undef V_ADD
#define V_SET _mm512_set1_ps
#define V_FMA _mm512_fmadd_ps
#define V_ADD _mm512_add_ps
MPT__AVX512 void ceiling_512(void *work) {
    __m512 CHAINS_24(CHAIN_MAKE) a = V_SET(0.999f), b = V_SET(1e-3f);
    for (int i = 0; i < CEILING_STEPS; i++) {
        CHAINS_24(CHAIN_STEP)
    }
    CHAINS_24(CHAIN_SUM)
    _mm512_storeu_ps((float *)work, a);
}
#endif

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

int main(int argc, char **argv) {
#ifdef MPT__HAS_AVX512
    static const int dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    double seconds = argc > 1 ? atof(argv[1]) : 0.3;
    int threads = argc > 2 && atoi(argv[2]) == 2 ? 2 : 1;
    mpt__backend *avx2 = bench_backend(MPT_ISA_AVX2, threads);
    mpt__backend *avx512 = bench_backend(MPT_ISA_AVX512, threads);
    float sink[16];
    if (avx2 == NULL) {
        printf("this CPU has no AVX2\n");
        return 0;
    }
    printf("GFLOP/s (%% of the FMA ceiling of one core and level), %d thread%s\n", threads,
           threads > 1 ? "s, wall clock" : ", CPU time");
    printf("%-22s %5s %5s %5s | %-10s %-10s %-10s | %-10s %-10s %-10s\n", "", "M", "N", "K",
           "avx2 f32", "bf16", "f16", "avx512 f32", "bf16", "f16");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const shape *s = &shapes[i];
        static bench_case cases[6];
        bench_fn fn[BENCH_MAX];
        void *work[BENCH_MAX];
        double took[BENCH_MAX], flop = 2.0 * (double)(s->m * s->n * s->k);
        int n = 0;
        for (int level = 0; level < (avx512 != NULL ? 2 : 1); level++) {
            for (int d = 0; d < 3; d++, n++) {
                make_case(&cases[n], level ? avx512 : avx2, s, dtypes[d]);
                fn[n] = bench_run_case;
                work[n] = &cases[n];
            }
        }
        fn[n] = ceiling_256, work[n] = sink;
        if (avx512 != NULL) fn[n + 1] = ceiling_512, work[n + 1] = sink;
        bench_measure(fn, work, n + (avx512 != NULL ? 2 : 1), seconds, threads > 1, took);
        printf("%-22s %5ld %5ld %5ld", s->what, (long)s->m, (long)s->n, (long)s->k);
        for (int c = 0; c < n; c++) {
            double ceiling = c < 3 ? CEILING_FLOP_256 / took[n] : CEILING_FLOP_512 / took[n + 1];
            printf("%s %5.0f (%2.0f)", c % 3 == 0 ? " |" : "", flop / took[c] / 1e9,
                   100 * flop / took[c] / ceiling);
        }
        printf("\n");
        fflush(stdout);
    }
#else
    (void)argc, (void)argv;
    printf("no vector kernels in this build\n");
#endif
    return 0;
}
