/* bench_kernels.c: the kernels around the matrix products. For each one the nanoseconds of one
   element on the best level, its speed relative to the reference and AVX2 levels, and the bytes it
   moves as a share of what memcpy moves in arrays of the same size.
       bench_kernels [seconds per figure, 0.2] [elements, 65536 and 8388608] */
#include "bench.h"

typedef struct kernel_case {
    const char *name;
    mpt__kernel kernel;
    int function, dtype_in, dtype_out;
    int inputs;        /* operands of the size of the output */
    int bytes;         /* moved per element, reads and writes */
} kernel_case;

static const kernel_case kernels[] = {
    {"f32 -> f16", MPT__K_COPY, 0, MPT_F32, MPT_F16, 1, 6},
    {"f32 -> bf16", MPT__K_COPY, 0, MPT_F32, MPT_BF16, 1, 6},
    {"bf16 -> f32", MPT__K_COPY, 0, MPT_BF16, MPT_F32, 1, 6},
    {"relu f32", MPT__K_UNARY, MPT__FN_RELU, MPT_F32, MPT_F32, 1, 8},
    {"relu bf16", MPT__K_UNARY, MPT__FN_RELU, MPT_BF16, MPT_BF16, 1, 4},
    {"gelu f32", MPT__K_UNARY, MPT__FN_GELU, MPT_F32, MPT_F32, 1, 8},
    {"tanh f32", MPT__K_UNARY, MPT__FN_TANH, MPT_F32, MPT_F32, 1, 8},
    {"exp f32", MPT__K_UNARY, MPT__FN_EXP, MPT_F32, MPT_F32, 1, 8},
    {"add f32", MPT__K_BINARY, MPT__FN_ADD, MPT_F32, MPT_F32, 2, 12},
    {"add bf16", MPT__K_BINARY, MPT__FN_ADD, MPT_BF16, MPT_BF16, 2, 6},
    {"relu backward f32", MPT__K_BINARY, MPT__FN_RELU_BACKWARD, MPT_F32, MPT_F32, 2, 12},
    {"dropout f32", MPT__K_DROPOUT, 0, MPT_F32, MPT_F32, 1, 8},
    {"softmax [n/64, 64]", MPT__K_SOFTMAX, MPT__FN_SOFTMAX, MPT_F32, MPT_F32, 1, 8},
    {"log_softmax [n/64, 64]", MPT__K_SOFTMAX, MPT__FN_LOG_SOFTMAX, MPT_F32, MPT_F32, 1, 8},
    {"sum over columns", MPT__K_REDUCE, MPT__FN_SUM, MPT_F32, MPT_F32, 1, 4},
    {"norm of gradients", MPT__K_GRAD_NORM, 0, MPT_F32, MPT_F32, 1, 4},
    {"sgd, momentum", MPT__K_SGD, 0, MPT_F32, MPT_F32, 3, 20},
    {"adamw", MPT__K_ADAM, 0, MPT_F32, MPT_F32, 4, 28},
    {"adamw, bf16 + master", MPT__K_ADAM, 0, MPT_BF16, MPT_F32, 4, 30},
};

static void *memory[8]; /* f32 arrays, and one of halves */
static int64_t rows[MPT__SEGMENT_FIELDS], steps[1];

static void block(bench_case *c, int i, int dtype, int64_t n, int access, void *data) {
    bench_operand(c, i, dtype, n, 1, 1, 1, access, data);
    c->launch.operand[i].rank = 1;
}

static void make_update(bench_case *c, const kernel_case *k, int64_t n) {
    bool master = k->dtype_in != MPT_F32, adam = k->kernel == MPT__K_ADAM;
    rows[MPT__SEGMENT_COUNT] = n;
    block(c, 0, k->dtype_in, n, MPT__READ_WRITE, master ? memory[7] : memory[0]);
    if (master) block(c, 1, MPT_F32, n, MPT__READ_WRITE, memory[0]);
    block(c, 2, MPT_F32, n, MPT__READ, memory[1]);
    block(c, 3, MPT_F32, n, MPT__READ_WRITE, memory[2]);
    bench_operand(c, 4, MPT_I64, 1, MPT__SEGMENT_FIELDS, MPT__SEGMENT_FIELDS, 1, MPT__READ, rows);
    block(c, 5, MPT_I64, 1, MPT__READ_WRITE, steps);
    if (adam) block(c, 6, MPT_F32, n, MPT__READ_WRITE, memory[3]);
    c->launch.slot[0] = 10, c->launch.slot[1] = 11;
    c->scalars[10].f = 1e-6, c->scalars[11].f = 1;
    c->launch.imm[0] = 0.9, c->launch.imm[1] = adam ? 0.999 : 0.0;
    c->launch.imm[2] = adam ? 1e-8 : 0.0, c->launch.imm[3] = 0.01;
    c->launch.index[0] = adam;
}

static void make_case(bench_case *c, mpt__backend *backend, const kernel_case *k, int64_t n) {
    bench_init(c, backend, k->kernel);
    c->launch.function = (uint8_t)k->function;
    steps[0] = 3;
    if (k->kernel == MPT__K_SGD || k->kernel == MPT__K_ADAM) {
        make_update(c, k, n);
    } else if (k->kernel == MPT__K_GRAD_NORM) {
        rows[MPT__SEGMENT_COUNT] = n;
        block(c, 0, MPT_F32, n, MPT__READ, memory[0]);
        bench_operand(c, 1, MPT_I64, 1, MPT__SEGMENT_FIELDS, MPT__SEGMENT_FIELDS, 1, MPT__READ,
                      rows);
        c->launch.slot[2] = 12;
    } else {
        bool softmax = k->kernel == MPT__K_SOFTMAX, sum = k->kernel == MPT__K_REDUCE;
        int64_t height = softmax ? n / 64 : 256, width = n / height;
        for (int i = 0; i < k->inputs; i++) {
            bench_operand(c, i, k->dtype_in, height, width, width, 1, MPT__READ,
                          k->dtype_in == MPT_F32 ? memory[i] : memory[6 + i]);
        }
        bench_operand(c, k->inputs, k->dtype_out, sum ? 1 : height, width, width, 1, MPT__WRITE,
                      memory[k->inputs + 1]);
        c->launch.imm[0] = 0.5;
        if (softmax) { /* [outer, n, inner] */
            for (int i = 0; i < 2; i++) {
                c->launch.operand[i].rank = 3;
                c->launch.operand[i].shape[2] = c->launch.operand[i].stride[2] = 1;
            }
        }
    }
    bench_ready(c);
}

static int64_t copy_bytes;
static void copy_memory(void *work) {
    (void)work;
    memcpy(memory[5], memory[4], (size_t)copy_bytes);
}

static void measure(int64_t n, double seconds) {
    mpt__backend *level[3];
    int levels = 0;
    static const mpt_isa isa[3] = {MPT_ISA_REF, MPT_ISA_AVX2, MPT_ISA_AVX512};
    for (int i = 0; i < 3; i++) {
        level[levels] = bench_backend(isa[i], 1);
        if (level[levels] != NULL) levels++;
    }
    for (int i = 0; i < 8; i++) {
        int dtype = i >= 6 ? MPT_BF16 : MPT_F32;
        memory[i] = bench_memory(dtype, n);
    }
    for (int64_t i = 0; i < n; i++) { /* second moments */
        float *v = (float *)memory[3];
        v[i] = v[i] < 0 ? -v[i] : v[i];
    }
    copy_bytes = n * 4;
    printf("\n%ld elements, one thread, CPU time\n%-24s %9s %8s %8s %9s\n", (long)n, "", "ns/elem",
           "x ref", "x avx2", "% memcpy");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        static bench_case cases[3];
        bench_fn fn[4] = {bench_run_case, bench_run_case, bench_run_case, bench_run_case};
        void *work[4];
        double took[4];
        for (int l = 0; l < levels; l++) {
            make_case(&cases[l], level[l], &kernels[i], n);
            work[l] = &cases[l];
        }
        fn[levels] = copy_memory, work[levels] = NULL;
        bench_measure(fn, work, levels + 1, seconds, false, took);
        double best = took[levels - 1], copied = 2.0 * (double)copy_bytes / took[levels];
        printf("%-24s %9.3f %8.1f %8.2f %9.0f\n", kernels[i].name, best / (double)n * 1e9,
               took[0] / best, levels > 2 ? took[1] / best : 1.0,
               100 * (double)kernels[i].bytes * (double)n / best / copied);
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.2;
    if (argc > 2) {
        measure(atol(argv[2]), seconds);
    } else {
        measure(65536, seconds);
        measure(8388608, seconds);
    }
    return 0;
}
