/* bench_kernels.c: the kernels around the matrix products, one thread, CPU time. In cache, the
   nanoseconds of one element of fp32 and the speed relative to the reference and AVX2 levels.
   Beyond cache, for fp32, bf16 and fp16, the bytes that a kernel moves per second as a share of
   those of a plain copy, measured between its runs. Both count what a store to memory costs: the
   line is read before it is written, so that a written array counts twice.
       bench_kernels [seconds per figure, 0.2] [elements beyond cache, 33554432] [part of names] */
#include "bench.h"

/* The second operand; the output of a reduction; of norms: groups, batches, those with their
   channels innermost. */
enum { ROWS = 1, COLUMNS, TURNED, WHOLE, PLANES, INSIDE };

typedef struct kernel_case {
    const char *name;
    mpt__kernel kernel;
    int function;
    int width;                    /* 0: as wide as a row of the array is by default */
    int in, in_f32, out, out_f32; /* arrays read and written, of the dtype and of fp32 */
    int shape;                    /* one of the above, or 0 */
} kernel_case;

static const kernel_case kernels[] = {
    {"copy", MPT__K_COPY, 0, 0, 1, 0, 1, 0, 0},
    {"cast from f32", MPT__K_COPY, 0, 0, 0, 1, 1, 0, 0},
    {"cast to f32", MPT__K_COPY, 0, 0, 1, 0, 0, 1, 0},
    {"copy, transposed", MPT__K_COPY, 0, 0, 1, 0, 1, 0, TURNED},
    {"fill", MPT__K_FILL, 0, 0, 0, 0, 1, 0, 0},
    {"relu", MPT__K_UNARY, MPT__FN_RELU, 0, 1, 0, 1, 0, 0},
    {"exp", MPT__K_UNARY, MPT__FN_EXP, 0, 1, 0, 1, 0, 0},
    {"tanh", MPT__K_UNARY, MPT__FN_TANH, 0, 1, 0, 1, 0, 0},
    {"gelu", MPT__K_UNARY, MPT__FN_GELU, 0, 1, 0, 1, 0, 0},
    {"add", MPT__K_BINARY, MPT__FN_ADD, 0, 2, 0, 1, 0, 0},
    {"add a row of 10", MPT__K_BINARY, MPT__FN_ADD, 10, 1, 0, 1, 0, ROWS},
    {"add a row of 4096", MPT__K_BINARY, MPT__FN_ADD, 4096, 1, 0, 1, 0, ROWS},
    {"multiply by a column", MPT__K_BINARY, MPT__FN_MUL, 64, 1, 0, 1, 0, COLUMNS},
    {"relu backward", MPT__K_BINARY, MPT__FN_RELU_BACKWARD, 0, 2, 0, 1, 0, 0},
    {"gelu backward", MPT__K_BINARY, MPT__FN_GELU_BACKWARD, 0, 2, 0, 1, 0, 0},
    {"dropout", MPT__K_DROPOUT, 0, 0, 1, 0, 1, 0, 0},
    {"softmax of 64", MPT__K_SOFTMAX, MPT__FN_SOFTMAX, 64, 1, 0, 1, 0, 0},
    {"log_softmax of 10", MPT__K_SOFTMAX, MPT__FN_LOG_SOFTMAX, 10, 1, 0, 1, 0, 0},
    {"log_softmax of 4096", MPT__K_SOFTMAX, MPT__FN_LOG_SOFTMAX, 4096, 1, 0, 1, 0, 0},
    {"softmax backward", MPT__K_SOFTMAX_BACKWARD, MPT__FN_SOFTMAX, 64, 2, 0, 1, 0, 0},
    {"cross-entropy of 1000", MPT__K_CROSS_ENTROPY, 0, 1000, 1, 0, 0, 0, 0},
    {"its backward", MPT__K_CROSS_ENTROPY_BACKWARD, 0, 1000, 1, 0, 1, 0, 0},
    {"nll backward", MPT__K_NLL_BACKWARD, 0, 1000, 0, 0, 1, 0, 0},
    {"argmax of 1000", MPT__K_ARGMAX, 0, 1000, 1, 0, 0, 0, 0},
    {"sum of all", MPT__K_REDUCE, MPT__FN_SUM, 0, 1, 0, 0, 0, WHOLE},
    {"sums of rows of 64", MPT__K_REDUCE, MPT__FN_SUM, 64, 1, 0, 0, 0, COLUMNS},
    {"sums of columns", MPT__K_REDUCE, MPT__FN_SUM, 0, 1, 0, 0, 0, ROWS},
    {"norm of gradients", MPT__K_GRAD_NORM, 0, 0, 0, 1, 0, 0, 0},
    {"gradients finite?", MPT__K_GRAD_NORM, 1, 0, 0, 1, 0, 0, 0},
    {"unscale", MPT__K_GRAD_SCALE, 0, 0, 0, 2, 0, 0, 0},
    {"sgd, momentum", MPT__K_SGD, 0, 0, 0, 5, 0, 0, 0},
    {"adamw", MPT__K_ADAM, 0, 0, 0, 7, 0, 0, 0},
    {"rmsprop", MPT__K_MOMENTS, MPT__FN_RMSPROP, 0, 0, 5, 0, 0, 0},
    {"lion", MPT__K_MOMENTS, MPT__FN_LION, 0, 0, 5, 0, 0, 0},
    {"layer norm of 768", MPT__K_NORM, 0, 768, 1, 0, 1, 0, 0},
    {"its backward", MPT__K_NORM_BACKWARD, 0, 768, 2, 0, 1, 0, 0},
    {"rms norm of 4096", MPT__K_NORM, 1, 4096, 1, 0, 1, 0, 0},
    {"its backward", MPT__K_NORM_BACKWARD, 1, 4096, 2, 0, 1, 0, 0},
    {"group norm, 32 x 392", MPT__K_NORM, 0, 196, 1, 0, 1, 0, ROWS},
    {"batch norm, 64 x 196", MPT__K_NORM, 0, 196, 1, 0, 1, 0, PLANES},
    {"its backward", MPT__K_NORM_BACKWARD, 0, 196, 2, 0, 1, 0, PLANES},
    {"batch norm, 196 x 64", MPT__K_NORM, 0, 196, 1, 0, 1, 0, INSIDE},
    {"its backward", MPT__K_NORM_BACKWARD, 0, 196, 2, 0, 1, 0, INSIDE},
};

/* f32 arrays, halves for input and output, and what is small. */
static void *memory[4], *halves[3], *row_memory;
static int64_t segment[MPT__SEGMENT_FIELDS], steps[1], *targets;

static double bytes_of(const kernel_case *k, int dtype) {
    int size = dtype == MPT_F32 ? 4 : 2, bytes = 4 * (k->in_f32 + 2 * k->out_f32);
    bool update =
        k->kernel == MPT__K_SGD || k->kernel == MPT__K_ADAM || k->kernel == MPT__K_MOMENTS;
    if (update && dtype != MPT_F32) bytes += 2 * size; /* the half form beside the master */
    return bytes + size * (k->in + 2 * k->out);
}

static void block(bench_case *c, int i, int dtype, int64_t n, int access, void *data) {
    bench_operand(c, i, dtype, n, 1, 1, 1, access, data);
    c->launch.operand[i].rank = 1;
}

static void make_gradient_case(bench_case *c, const kernel_case *k, int dtype, int64_t n) {
    bool master = dtype != MPT_F32, adam = k->kernel == MPT__K_ADAM;
    segment[MPT__SEGMENT_COUNT] = n;
    c->scalars[10].f = 1e-6, c->scalars[11].f = 1;
    c->launch.slot[0] = 11;
    if (k->kernel == MPT__K_GRAD_NORM || k->kernel == MPT__K_GRAD_SCALE) {
        block(c, 0, MPT_F32, n, MPT__READ_WRITE, memory[0]);
        bench_operand(c, 1, MPT_I64, 1, MPT__SEGMENT_FIELDS, 4, 1, MPT__READ, segment);
        c->launch.slot[1] = 13, c->launch.slot[2] = k->function ? 0 : 12; /* no norm wanted */
        c->launch.imm[0] = 0;
        return;
    }
    block(c, 0, dtype, n, MPT__READ_WRITE, master ? halves[2] : memory[0]);
    if (master) block(c, 1, MPT_F32, n, MPT__READ_WRITE, memory[0]);
    block(c, 2, MPT_F32, n, MPT__READ, memory[1]);
    block(c, 3, MPT_F32, n, MPT__READ_WRITE, memory[2]);
    bench_operand(c, 4, MPT_I64, 1, MPT__SEGMENT_FIELDS, 4, 1, MPT__READ, segment);
    block(c, 5, MPT_I64, 1, MPT__READ_WRITE, steps);
    if (adam) block(c, 6, MPT_F32, n, MPT__READ_WRITE, memory[3]);
    c->launch.slot[0] = 10, c->launch.slot[1] = 11;
    c->launch.imm[0] = 0.9, c->launch.imm[1] = adam ? 0.999 : 0.0;
    c->launch.imm[2] = adam ? 1e-8 : 0.0, c->launch.imm[3] = 0.01;
    c->launch.index[0] = adam;
}

/* Operands as waist/launch.h has them, [height, width]. */
static void make_loss_case(bench_case *c, const kernel_case *k, int dtype, int64_t height) {
    void *x = dtype == MPT_F32 ? memory[0] : halves[0],
         *dx = dtype == MPT_F32 ? memory[1] : halves[2];
    bool forward = k->kernel == MPT__K_CROSS_ENTROPY, nll = k->kernel == MPT__K_NLL_BACKWARD;
    int at = 0;
    c->launch.imm[0] = 0;
    c->launch.reduction = MPT_MEAN;
    c->launch.index[0] = -100;
    if (!nll) bench_operand(c, at++, dtype, height, k->width, k->width, 1, MPT__READ, x);
    block(c, at++, MPT_I64, height, MPT__READ, targets);
    at++; /* no weights */
    block(c, at++, MPT_F32, 1, MPT__WRITE, row_memory);
    block(c, at++, MPT_F32, 1, MPT__WRITE, (float *)row_memory + 1);
    if (!nll) bench_operand(c, at++, MPT_F32, height, 2, 2, 1, MPT__WRITE, memory[2]);
    if (!forward) bench_operand(c, at++, dtype, height, k->width, k->width, 1, MPT__WRITE, dx);
}

static void make_plain_case(bench_case *c, const kernel_case *k, int dtype, int64_t n) {
    int inputs = k->in + k->in_f32, at = 0, from = k->in_f32 ? MPT_F32 : dtype;
    int64_t width = k->width ? k->width : 8192, height = n / width;
    int to = k->out_f32 ? MPT_F32 : dtype;
    for (; at < inputs; at++) {
        void *data = from == MPT_F32 ? memory[at] : halves[at];
        bench_operand(c, at, from, height, width, width, 1, MPT__READ, data);
        if (k->shape == TURNED) {
            bench_operand(c, at, from, height, width, 1, height, MPT__READ, data);
        }
    }
    if (k->kernel == MPT__K_BINARY && k->shape != 0) {
        bench_operand(c, at++, from, height, width, k->shape == COLUMNS, k->shape == ROWS,
                      MPT__READ, row_memory);
    }
    bool reduce = k->kernel == MPT__K_REDUCE, argmax = k->kernel == MPT__K_ARGMAX;
    if (argmax) {
        c->launch.index[0] = 1;
        bench_operand(c, at, MPT_I64, height, 1, 1, 1, MPT__WRITE, memory[3]);
        return;
    }
    bench_operand(c, at, reduce ? MPT_F32 : to, reduce && k->shape != COLUMNS ? 1 : height,
                  reduce && k->shape != ROWS ? 1 : width, reduce && k->shape != ROWS ? 1 : width, 1,
                  MPT__WRITE, reduce || to == MPT_F32 ? memory[2] : halves[2]);
    c->launch.imm[0] = 0.5;
    for (int i = 0; i <= at && k->kernel >= MPT__K_SOFTMAX && k->kernel <= MPT__K_SOFTMAX_BACKWARD;
         i++) {
        c->launch.operand[i].rank = 3; /* [outer, n, inner] */
        c->launch.operand[i].shape[2] = c->launch.operand[i].stride[2] = 1;
    }
}

/* [N, G, C, S]: rows of `width`, or planes of it. Function 1: without mean and bias. */
static void make_norm_case(bench_case *c, const kernel_case *k, int dtype, int64_t n) {
    const bool back = k->kernel == MPT__K_NORM_BACKWARD, batch = k->shape >= PLANES;
    const int64_t width = k->width, channels = k->shape ? 64 : width, s = k->shape ? width : 1;
    const int64_t groups = k->shape == ROWS ? 32 : 1, each = channels / groups;
    const int64_t count = n / (channels * s), inside = k->shape == INSIDE;
    float *small = (float *)row_memory;
    for (int i = 0; i < 3; i++) {
        const int at = i < 2 ? i : back ? 6 : 4;
        if (i == 1 && !back) continue;
        mpt__operand *o = &c->launch.operand[at];
        bench_operand(c, at, dtype, 1, 1, 1, 1, i < 2 ? MPT__READ : MPT__WRITE,
                      dtype == MPT_F32 ? memory[i] : halves[i]);
        o->rank = 4;
        o->shape[0] = count, o->shape[1] = groups, o->shape[2] = each, o->shape[3] = s;
        o->stride[0] = channels * s, o->stride[1] = each * (inside ? 1 : s);
        o->stride[2] = inside ? 1 : s, o->stride[3] = inside ? channels : 1;
    }
    c->launch.imm[0] = 1e-5;
    c->launch.index[0] = batch;
    block(c, 2, MPT_F32, channels, MPT__READ, small);
    if (!back && k->function == 0) block(c, 3, MPT_F32, channels, MPT__READ, small + channels);
    if (k->function == 0)
        block(c, back ? 3 : 6, MPT_F32, batch ? channels : count * groups,
              back ? MPT__READ : MPT__WRITE, memory[3]);
    block(c, back ? 4 : 7, MPT_F32, batch ? channels : count * groups,
          back ? MPT__READ : MPT__WRITE, (float *)memory[3] + count * groups + channels);
    if (back) block(c, 7, MPT_F32, channels, MPT__WRITE, small + 2 * channels);
    if (back && k->function == 0) block(c, 8, MPT_F32, channels, MPT__WRITE, small + 3 * channels);
}

static void make_case(bench_case *c, mpt__backend *backend, const kernel_case *k, int dtype,
                      int64_t n) {
    bench_init(c, backend, k->kernel);
    c->launch.function = (uint8_t)k->function;
    if (k->kernel == MPT__K_NORM || k->kernel == MPT__K_NORM_BACKWARD) {
        make_norm_case(c, k, dtype, n);
    } else if (k->kernel >= MPT__K_GRAD_NORM) {
        make_gradient_case(c, k, dtype, n);
    } else if (k->kernel >= MPT__K_NLL) {
        make_loss_case(c, k, dtype, n / k->width);
    } else {
        make_plain_case(c, k, dtype, n);
    }
    bench_ready(c);
}

/* Loads and stores, in a loop that no compiler makes a memcpy, which writes around the cache. */
static bench_case plain_copy;

static void make_memory(int64_t n) {
    for (int i = 0; i < 4; i++) memory[i] = bench_memory(MPT_F32, n);
    for (int i = 0; i < 3; i++) halves[i] = bench_memory(MPT_BF16, n);
    row_memory = bench_memory(MPT_F32, n / 64 + 8192);
    targets = (int64_t *)bench_memory(MPT_F32, n / 500 + 1);
    for (int64_t i = 0; i < n / 1000 + 1; i++) targets[i] = i % 1000;
    for (int64_t i = 0; i < n; i++) { /* second moments */
        float *v = (float *)memory[3];
        v[i] = v[i] < 0 ? -v[i] : v[i];
    }
    steps[0] = 3;
}

/* Kernels whose name, or that of the one whose backward they are, has `part` in it. */
static bool is_wanted(size_t i, const char *part) {
    if (i > 0 && strcmp(kernels[i].name, "its backward") == 0) i--;
    return strstr(kernels[i].name, part) != NULL;
}

static void measure_levels(int64_t n, double seconds, const char *part) {
    static const mpt_isa isa[3] = {MPT_ISA_REF, MPT_ISA_AVX2, MPT_ISA_AUTO};
    printf("%ld elements of fp32\n%-24s %9s %8s %8s\n", (long)n, "", "ns/elem", "x ref", "x avx2");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (!is_wanted(i, part)) continue;
        static bench_case cases[3];
        bench_fn fn[3] = {bench_run_case, bench_run_case, bench_run_case};
        void *work[3];
        double took[3];
        int levels = 0, avx2 = 0;
        for (int l = 0; l < 3; l++) {
            mpt__backend *backend = bench_backend(isa[l], 1);
            if (backend == NULL) continue;
            if (l == 1) avx2 = levels;
            make_case(&cases[levels], backend, &kernels[i], MPT_F32, n);
            work[levels] = &cases[levels];
            levels++;
        }
        bench_measure(fn, work, levels, seconds, false, took);
        printf("%-24s %9.3f %8.1f %8.2f\n", kernels[i].name, took[levels - 1] / (double)n * 1e9,
               took[0] / took[levels - 1], took[avx2] / took[levels - 1]);
        fflush(stdout);
    }
}

static void measure_bandwidth(int64_t n, double seconds, const char *part) {
    static const int dtypes[3] = {MPT_F32, MPT_BF16, MPT_F16};
    static const kernel_case times_one = {"", MPT__K_UNARY, MPT__FN_MUL_SCALAR, 0, 1, 0, 1, 0, 0};
    mpt__backend *backend = bench_backend(MPT_ISA_AUTO, 1);
    make_case(&plain_copy, backend, &times_one, MPT_F32, n);
    plain_copy.launch.imm[0] = 1;
    printf("\n%ld elements, %s: ns/element, and bytes moved as %% of a plain copy's\n%-24s %16s "
           "%16s %16s\n",
           (long)n, backend->name, "", "fp32", "bf16", "fp16");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (!is_wanted(i, part)) continue;
        static bench_case cases[3];
        bench_fn fn[4] = {bench_run_case, bench_run_case, bench_run_case, bench_run_case};
        void *work[4] = {&cases[0], &cases[1], &cases[2], &plain_copy};
        double took[4];
        for (int d = 0; d < 3; d++) make_case(&cases[d], backend, &kernels[i], dtypes[d], n);
        bench_measure(fn, work, 4, seconds, false, took);
        printf("%-24s", kernels[i].name);
        for (int d = 0; d < 3; d++) {
            printf(" %9.3f %5.0f%%", took[d] / (double)n * 1e9,
                   100 * bytes_of(&kernels[i], dtypes[d]) / 12 * took[3] / took[d]);
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 0.2;
    int64_t n = argc > 2 ? atol(argv[2]) : 33554432;
    const char *part = argc > 3 ? argv[3] : "";
    make_memory(n);
    measure_levels(65536, seconds, part);
    measure_bandwidth(n, seconds, part);
    return 0;
}
