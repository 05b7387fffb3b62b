/* test_gemm.c: matrix products of every ISA level of this CPU against sums in double, over random
   shapes, strides, offsets, dtypes, batches, epilogues and special values; nothing written outside
   C or the workspace; the same bits for any number of threads, and those of the emulations of AMX
   and AVX512_BF16, which test_gemm_emulated.c runs through the same tests on any x86-64 CPU. */
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <math.h>

#include "harness.h"

#ifdef MPT__HAS_GEMM

/* Emulated tiles take a thousand times as long. */
#ifdef MPTRAIN_EMULATE_AMX
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif
#if defined(__aarch64__)
enum { SLOW_CPU = 1 }; /* most runs are under an emulator */
#else
enum { SLOW_CPU = 0 };
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* ==== Backends ==== */

static mpt__base base;
static const mpt_isa all_levels[] = {MPT_ISA_AVX2, MPT_ISA_AVX512, MPT_ISA_AVX512_BF16, MPT_ISA_AMX,
                                     MPT_ISA_NEON, MPT_ISA_NEON_BF16};
enum { LEVELS = 6 };
static mpt_isa levels[LEVELS];
static int level_count;

/* One backend per level and number of threads, kept; NULL where it cannot be had. */
static mpt__backend *backend_of(mpt_isa isa, int threads) {
    static mpt__backend kept[MPT_ISA_UNKNOWN][8];
    mpt__backend *backend = &kept[isa][threads];
    mpt_isa chosen;
    mpt__flush_denormals(false); /* programs linked with -ffast-math start with it on */
    if (backend->launch != NULL) return backend;
    if (base.allocator.allocate == NULL) {
        mpt_config config;
        memset(&config, 0, sizeof config);
        mpt__base_init(&base, &config);
    }
    if (mpt__cpu_backend_create(&base, isa, threads, true, backend, &chosen) == MPT_OK)
        return backend;
    base.status = MPT_OK;
    memset(backend, 0, sizeof *backend);
    return NULL;
}

static bool have_levels(void) {
    if (level_count > 0) return true;
    for (int l = 0; l < LEVELS; l++) {
        if (backend_of(all_levels[l], 1)) levels[level_count++] = all_levels[l];
    }
    return level_count > 0;
}
#define NEEDS_LEVELS \
    if (!have_levels()) SKIP("a CPU with vector units")
#define NEEDS_AMX \
    if (!have_levels() || !backend_of(MPT_ISA_AMX, 1)) SKIP("a CPU with AMX")

/* ==== Problems ==== */

static uint64_t state = 1;
static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static int64_t below(int64_t n) { return (int64_t)(draw() % (uint32_t)n); }
static float draw_value(void) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(draw() & 0xffff) / 65536.0f - 0.5f;
    return sum * 2;
}

enum { A, B, BIAS, C, OPERANDS };

typedef struct problem {
    mpt__launch launch;
    int64_t elements[OPERANDS];
    size_t bytes[OPERANDS];
    char *first[OPERANDS], *now[OPERANDS]; /* what a run begins with, and what it works on */
    unsigned char *is_c;                   /* which elements of C's storage are of C */
} problem;

static void set_element(problem *p, int i, int64_t at, float value) {
    mpt__store_real(p->first[i], p->launch.operand[i].dtype, at, 1, &value, 1);
}
static float get_element(const problem *p, const char *data, int i, int64_t at) {
    float value = 0;
    mpt__load_real(&value, data, p->launch.operand[i].dtype, at, 1, 1);
    return value;
}

static void problem_init(problem *p, int compute) {
    memset(p, 0, sizeof *p);
    p->launch.kernel = MPT__K_GEMM;
    p->launch.compute_dtype = (uint8_t)compute;
    p->launch.imm[0] = 1;
}
static void problem_free(problem *p) {
    for (int i = 0; i < OPERANDS; i++) {
        free(p->first[i]);
        free(p->now[i]);
    }
    free(p->is_c);
}

static int64_t at_index(const mpt__operand *o, const int64_t *index) {
    int64_t at = o->offset;
    for (int d = 0; d < o->rank; d++) at += index[d] * o->stride[d];
    return at;
}

/* Operand i; layout 0: rows are contiguous, 1: columns are, 2: neither. `gap` elements between
   lines; broadcast bit d: stride 0 there. */
static void add_operand(problem *p, int i, int dtype, int rank, const int64_t *shape, int layout,
                        int64_t gap, unsigned broadcast, int access) {
    mpt__operand *o = &p->launch.operand[i];
    int64_t stride = layout == 2 ? 2 + below(2) : 1;
    o->storage = (uint32_t)(i + 1);
    o->dtype = (uint8_t)dtype;
    o->rank = (uint8_t)rank;
    o->access = (uint8_t)access;
    o->offset = below(4);
    for (int d = 0; d < rank; d++) {
        int at = rank - 1 - d;
        if (layout == 1 && d < 2) at = rank - 2 + d;
        o->shape[at] = shape[at];
        o->stride[at] = broadcast >> at & 1 ? 0 : stride;
        if (!(broadcast >> at & 1)) stride = stride * shape[at] + (d == 0 ? gap : 0);
    }
    p->launch.n_operands = OPERANDS;
    p->elements[i] = stride + 8;
    p->bytes[i] = (size_t)p->elements[i] * mpt__dtype_info[dtype].bytes;
    p->first[i] = (char *)calloc(p->bytes[i], 1);
    p->now[i] = (char *)malloc(p->bytes[i]);
    for (int64_t e = 0; e < p->elements[i]; e++) set_element(p, i, e, draw_value());
}

/* Which elements a launch may write. */
static void mark_c(problem *p) {
    const mpt__operand *o = &p->launch.operand[C];
    int64_t index[MPT_MAX_RANK] = {0}, count = 1;
    p->is_c = (unsigned char *)calloc((size_t)p->elements[C], 1);
    for (int d = 0; d < o->rank; d++) count *= o->shape[d];
    for (int64_t e = 0; e < count; e++) {
        p->is_c[at_index(o, index)] = 1;
        for (int d = o->rank - 1; d >= 0 && ++index[d] == o->shape[d]; d--) index[d] = 0;
    }
}

static const int float_dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
static int draw_float(void) { return float_dtypes[below(3)]; }

static bool in_parts; /* products of fp32 may be of parts of it, see mpt_benchmark */

/* Any product: mostly of one compute dtype, so that all roads are taken. */
static void make_product(problem *p, int64_t m, int64_t n, int64_t k) {
    int rank = m * n * k > 100000 ? 2 : 2 + (int)below(3), compute = draw_float();
    int stored = below(3) ? compute : MPT_F32;
    int64_t shape[OPERANDS][4];
    unsigned shared[2] = {0, 0};
    bool accumulates = below(3) == 0;
    problem_init(p, compute);
    for (int d = 0; d < rank - 2; d++) {
        for (int i = 0; i < OPERANDS; i++) shape[i][d] = d == 0 ? 1 + below(4) : 1 + below(2);
        for (int i = 1; i < OPERANDS; i++) shape[i][d] = shape[0][d];
        for (int x = 0; x < 2; x++) shared[x] |= below(3) == 0 ? 1u << d : 0u;
    }
    shape[A][rank - 2] = shape[C][rank - 2] = shape[BIAS][rank - 2] = m;
    shape[B][rank - 1] = shape[C][rank - 1] = shape[BIAS][rank - 1] = n;
    shape[A][rank - 1] = shape[B][rank - 2] = k;
    if (below(3) == 0) p->launch.imm[0] = 0.5;
    for (int i = A; i <= B; i++) {
        int dtype = below(8) ? stored : draw_float();
        add_operand(p, i, dtype, rank, shape[i], below(9) ? (int)below(2) : 2,
                    below(2) ? 0 : below(3), shared[i], MPT__READ);
    }
    if (below(2)) {
        unsigned rows = below(3) ? (1u << (rank - 1)) - 1 : draw() & 15;
        add_operand(p, BIAS, draw_float(), rank, shape[BIAS], (int)below(2), 0, rows, MPT__READ);
    }
    p->launch.activation = (uint8_t)(accumulates || below(2) ? 0 : below(6));
    p->launch.index[0] = in_parts;
    add_operand(p, C, draw_float(), rank, shape[C], below(6) ? 0 : 1 + (int)below(2), below(3), 0,
                accumulates ? MPT__ACCUMULATE : MPT__WRITE);
    mark_c(p);
}

static void run_problem(problem *p, mpt_isa isa, int threads) {
    mpt__backend *backend = backend_of(isa, threads);
    mpt__execution execution;
    mpt__scalar scalars[64];
    void *data[OPERANDS + 1] = {NULL};
    memset(scalars, 0, sizeof scalars);
    for (int i = 0; i < OPERANDS; i++) {
        data[i + 1] = p->now[i];
        if (p->now[i]) memcpy(p->now[i], p->first[i], p->bytes[i]);
    }
    int64_t bytes = backend->workspace(backend->self, &p->launch);
    unsigned char *workspace = (unsigned char *)malloc((size_t)bytes + 192), *start = workspace;
    memset(workspace, 0xff, (size_t)bytes + 192);
    start += 64 - (uintptr_t)workspace % 64;
    execution.data = data;
    execution.scalars = scalars;
    execution.workspace = start;
    CHECK(backend->launch(backend->self, &execution, &p->launch) == MPT_OK);
    for (int i = 0; i < 64; i++) CHECK(start[bytes + i] == 0xff);
    free(workspace);
}

/* ==== Expectation ==== */

static double rounded(const problem *p, int i, int64_t at) {
    float x = get_element(p, p->first[i], i, at);
    if (p->launch.compute_dtype == MPT_F16) x = mpt__f16_to_f32(mpt__f32_to_f16(x));
    if (p->launch.compute_dtype == MPT_BF16) x = mpt__bf16_to_f32(mpt__f32_to_bf16(x));
    return (double)x;
}

#define PARTS_BOUND 3.1e-5 /* 2^-16, what lo lo is at most, and 2^-17 for each rounded lo */

static double activate(double x, int activation) {
    switch (activation) {
    case MPT_ACTIVATION_RELU:
        return x > 0 || isnan(x) ? x : 0;
    case MPT_ACTIVATION_GELU:
        return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case MPT_ACTIVATION_GELU_TANH:
        return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
    case MPT_ACTIVATION_TANH:
        return tanh(x);
    case MPT_ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-x));
    default:
        return x;
    }
}

/* Checks one element of C: sums in double, within the bound of fp32 sums for K to 10^4 and the
   rounding of C's dtype. */
static bool check_element(const problem *p, const char *level, int64_t *index) {
    const mpt__operand *o = p->launch.operand;
    int rank = o[C].rank, c_dtype = o[C].dtype;
    int64_t a[MPT_MAX_RANK], b[MPT_MAX_RANK], k = o[A].shape[rank - 1], at = at_index(&o[C], index);
    double unit = c_dtype == MPT_F32 ? 6e-8 : c_dtype == MPT_F16 ? 4.9e-4 : 3.95e-3;
    double sum = 0, size = 0;
    memcpy(a, index, sizeof a);
    memcpy(b, index, sizeof b);
    for (int64_t x = 0; x < k; x++) {
        a[rank - 1] = b[rank - 2] = x;
        double product = rounded(p, A, at_index(&o[A], a)) * rounded(p, B, at_index(&o[B], b));
        sum += product;
        size += fabs(product);
    }
    sum *= p->launch.imm[0], size *= fabs(p->launch.imm[0]);
    if (o[BIAS].storage) {
        double bias = rounded(p, BIAS, at_index(&o[BIAS], index));
        sum += bias, size += fabs(bias);
    }
    double want = activate(sum, p->launch.activation);
    if (o[C].access == MPT__ACCUMULATE) want += (double)get_element(p, p->first[C], C, at);
    double got = (double)get_element(p, p->now[C], C, at);
    bool parts = p->launch.index[0] && p->launch.compute_dtype == MPT_F32 && !strcmp(level, "amx");
    double bound = (parts ? PARTS_BOUND : 6e-7) * size + (3e-7 + unit) * fabs(want) +
                   (c_dtype == MPT_F16 ? 6e-8 : 1e-37);
    double most = c_dtype == MPT_F16 ? 65504 : 3.3e38;
    if (isnan(want)  ? isnan(got)
        : isinf(got) ? (got > 0) == (want > 0) && fabs(want) + bound >= most
                     : fabs(got - want) <= bound) {
        return true;
    }
    TEST_FAIL_("%s: M %ld N %ld K %ld, %s %s -> %s, rounded to %s: got %.9g, expected %.9g, "
               "bound %.3g",
               level, (long)o[C].shape[rank - 2], (long)o[C].shape[rank - 1], (long)k,
               mpt__dtype_info[o[A].dtype].name, mpt__dtype_info[o[B].dtype].name,
               mpt__dtype_info[c_dtype].name, mpt__dtype_info[p->launch.compute_dtype].name, got,
               want, bound);
    return false;
}

/* Runs on all levels; checks `samples` elements drawn at random, and that what lies between the
   elements of C stays. */
static void check_product(problem *p, int samples) {
    const mpt__operand *o = &p->launch.operand[C];
    size_t size = mpt__dtype_info[o->dtype].bytes;
    for (int l = 0; l < level_count; l++) {
        run_problem(p, levels[l], 1);
        for (int n = 0; n < samples; n++) {
            int64_t index[MPT_MAX_RANK] = {0};
            for (int d = 0; d < o->rank; d++) index[d] = below(o->shape[d]);
            if (!check_element(p, mpt__cpu_find_level(levels[l])->name, index)) return;
        }
        for (int64_t e = 0; e < p->elements[C]; e++) {
            if (p->is_c[e]) continue;
            if (memcmp(p->now[C] + (size_t)e * size, p->first[C] + (size_t)e * size, size) == 0)
                continue;
            TEST_FAIL_("element %ld beside C was written", (long)e);
            return;
        }
    }
}

static int64_t draw_size(int64_t most) {
    int64_t limit[] = {4, 20, most, most};
    return 1 + below(limit[below(4)]);
}

/* ==== Tests ==== */

TEST(any_shape) {
    NEEDS_LEVELS;
    for (int i = 0; i < 2500 && test_failures == 0; i++) {
        problem p;
        make_product(&p, draw_size(80), draw_size(100), below(20) ? draw_size(150) : 0);
        check_product(&p, 40);
        problem_free(&p);
    }
}

/* The last rows of A in every number that is left of whole tiles; a bias that rows share, and ReLU,
   as layers have them. */
TEST(last_rows) {
    NEEDS_LEVELS;
    for (int i = 0; i < (EMULATED ? 60 : 300) && test_failures == 0; i++) {
        const int64_t m = 17 + i % 30, n = 32 + 8 * below(9), k = 40 + below(60);
        const int64_t a[] = {m, k}, b[] = {k, n}, c[] = {m, n};
        const int dtype = draw_float();
        problem p;
        problem_init(&p, dtype);
        add_operand(&p, A, dtype, 2, a, (int)below(2), 0, 0, MPT__READ);
        add_operand(&p, B, dtype, 2, b, (int)below(2), 0, 0, MPT__READ);
        if (below(4)) add_operand(&p, BIAS, MPT_F32, 2, c, 0, 0, 1, MPT__READ);
        p.launch.activation = below(4) ? MPT_ACTIVATION_RELU : MPT_ACTIVATION_NONE;
        add_operand(&p, C, dtype, 2, c, 0, 0, 0, MPT__WRITE);
        mark_c(&p);
        check_product(&p, 500);
        problem_free(&p);
    }
}

TEST(beyond_one_block) {
    static const int64_t sizes[][3] = {{30, 40, 1100},  {300, 500, 900}, {2100, 64, 40},
                                       {20, 2100, 800}, {17, 33, 5000},  {200, 10, 4097},
                                       {1, 3000, 700},  {500, 500, 385}, {340, 96, 2500}};
    NEEDS_LEVELS;
    for (int i = 0; i < (EMULATED ? 9 : SLOW_CPU ? 18 : 54) && test_failures == 0; i++) {
        problem p;
        make_product(&p, sizes[i % 9][0], sizes[i % 9][1], sizes[i % 9][2]);
        check_product(&p, 60);
        problem_free(&p);
    }
}

/* Infinity, NaN, and what rounds to infinity in the compute dtype; no fp32 denormals, which count
   as zero and make NaN of a product with infinity. */
TEST(special_values) {
    static const float specials[] = {INFINITY, -INFINITY, NAN, 65520.0f, -70000.0f, 3.4e38f, 0.0f};
    NEEDS_LEVELS;
    for (int i = 0; i < 1500 && test_failures == 0; i++) {
        problem p;
        make_product(&p, draw_size(70), draw_size(70), draw_size(70));
        p.launch.activation = 0;
        for (int x = A; x <= B; x++) {
            for (int s = (int)below(3); s > 0; s--) {
                float value = specials[below(p.launch.compute_dtype == MPT_F32 ? 3 : 7)];
                bool fits = p.launch.operand[x].dtype == MPT_F32 || fabsf(value) < 60000;
                if (value - value != 0 || fits) set_element(&p, x, below(p.elements[x]), value);
            }
        }
        check_product(&p, 60);
        problem_free(&p);
    }
}

/* An infinity in the last block, found after C could have been added to. */
TEST(a_late_infinity_adds_once) {
    NEEDS_LEVELS;
    for (int i = 0; i < 4; i++) {
        int64_t a[3] = {2, 40, 1100}, b[3] = {2, 1100, 70}, c[3] = {2, 40, 70},
                at[3] = {1, 39, 1099};
        problem p;
        problem_init(&p, MPT_F16);
        add_operand(&p, A, MPT_F16, 3, a, i & 1, 0, 0, MPT__READ);
        add_operand(&p, B, i & 2 ? MPT_F32 : MPT_F16, 3, b, 0, 0, 0, MPT__READ);
        add_operand(&p, C, MPT_F32, 3, c, 0, 0, 0, MPT__ACCUMULATE);
        mark_c(&p);
        set_element(&p, A, at_index(&p.launch.operand[A], at), INFINITY);
        check_product(&p, 200);
        problem_free(&p);
    }
}

/* fp16 holds products with its denormals exactly, whatever the mode of the vector unit; those of
   bf16 count as zero. */
TEST(denormals) {
    static const int64_t sizes[][3] = {{3, 5, 7}, {40, 50, 60}, {1, 100, 100}, {64, 10, 64}};
    NEEDS_LEVELS;
    for (int i = 0; i < 8; i++) {
        for (int l = 0; l < level_count; l++) {
            int64_t m = sizes[i % 4][0], n = sizes[i % 4][1], k = sizes[i % 4][2];
            int64_t a[2] = {m, k}, b[2] = {k, n}, c[2] = {m, n}, at[2] = {m - 1, n - 1};
            int dtype = i < 4 ? MPT_F16 : MPT_BF16;
            float small = i < 4 ? 5.9604645e-8f : 9e-39f;
            problem p;
            problem_init(&p, dtype);
            add_operand(&p, A, dtype, 2, a, 0, 0, 0, MPT__READ);
            add_operand(&p, B, dtype, 2, b, 0, 0, 0, MPT__READ);
            add_operand(&p, C, MPT_F32, 2, c, 0, 0, 0, MPT__WRITE);
            for (int64_t e = 0; e < p.elements[A]; e++) set_element(&p, A, e, small);
            for (int64_t e = 0; e < p.elements[B]; e++) set_element(&p, B, e, 1);
            run_problem(&p, levels[l], 1);
            float got = get_element(&p, p.now[C], C, at_index(&p.launch.operand[C], at));
            CHECK(got == (i < 4 ? (float)k * small : 0.0f));
            problem_free(&p);
        }
    }
}

TEST(threads_do_not_change_bits) {
    static const int64_t sizes[][3] = {{300, 500, 900},  {64, 784, 1500}, {8, 4000, 2000},
                                       {5000, 10, 500},  {600, 200, 64},  {3000, 3000, 16},
                                       {700, 800, 1100}};
    static const int counts[] = {2, 3, 7};
    NEEDS_LEVELS;
    for (int i = 0; i < (SLOW_CPU ? 6 : SANITIZED ? 7 : 21); i++) { /* the last takes longest */
        const int64_t *size = sizes[EMULATED ? 4 : i % 7];
        problem p;
        make_product(&p, size[0], size[1], size[2]);
        char *want = (char *)malloc(p.bytes[C]);
        for (int l = 0; l < level_count; l++) {
            run_problem(&p, levels[l], 1);
            memcpy(want, p.now[C], p.bytes[C]);
            for (int t = 0; t < (SLOW_CPU ? 1 : 3); t++) {
                run_problem(&p, levels[l], counts[(t + i) % 3]);
                CHECK_EQ_BITS(p.now[C], want, p.bytes[C]);
            }
        }
        free(want);
        problem_free(&p);
    }
}

/* m n k of fp32, rows contiguous, each value times `scale`; index[0] as in_parts. */
static void make_square(problem *p, int64_t n, float scale, float rest) {
    int64_t shape[2] = {n, n};
    problem_init(p, MPT_F32);
    for (int i = 0; i < OPERANDS; i++) {
        if (i == BIAS) continue;
        add_operand(p, i, MPT_F32, 2, shape, i == B, 0, 0, i == C ? MPT__WRITE : MPT__READ);
        for (int64_t e = 0; e < p->elements[i] && i != C; e++) {
            set_element(p, i, e, get_element(p, p->first[i], i, e) * (i == A ? scale : rest));
        }
    }
    p->launch.index[0] = in_parts;
    mark_c(p);
}

/* The largest error of C, as a share of the sum of |a b|. */
static double error_of(const problem *p, int64_t n) {
    const mpt__operand *o = p->launch.operand;
    double worst = 0;
    for (int64_t e = 0; e < n * n; e++) {
        int64_t c[2] = {e / n, e % n};
        double sum = 0, size = 0;
        for (int64_t k = 0; k < n; k++) {
            int64_t a[2] = {c[0], k}, b[2] = {k, c[1]};
            double product = rounded(p, A, at_index(&o[A], a)) * rounded(p, B, at_index(&o[B], b));
            sum += product, size += fabs(product);
        }
        double error = fabs((double)get_element(p, p->now[C], C, at_index(&o[C], c)) - sum) / size;
        worst = error > worst || isnan(error) ? error : worst;
    }
    return worst;
}

TEST(fp32_in_parts) {
    NEEDS_AMX;
    in_parts = true;
    for (int i = 0; i < 600 && test_failures == 0; i++) {
        problem p;
        make_product(&p, draw_size(80), draw_size(100), below(20) ? draw_size(150) : 0);
        check_product(&p, 40);
        problem_free(&p);
    }
    /* Of many products the errors average out; fp32 alone would be off by 1e-7. */
    problem p;
    make_square(&p, 128, 1, 1);
    run_problem(&p, MPT_ISA_AMX, 1);
    double error = error_of(&p, 128);
    CHECK(error < 3.6e-6 && error > 3e-7);
    p.launch.index[0] = 0;
    run_problem(&p, MPT_ISA_AMX, 1);
    CHECK(error_of(&p, 128) < 3e-7);
    problem_free(&p);
    in_parts = false;
}

/* The values next to those that have no parts, with and without infinities. */
TEST(huge_values_are_not_taken_apart) {
    static const float huge[] = {4.6e18f, 4.62e18f, 1e30f, 3.4e38f, INFINITY, NAN};
    NEEDS_AMX;
    in_parts = true;
    for (int i = 0; i < 12; i++) {
        const bool whole = i % 6 > 0; /* 2^62 is 4.61e18 */
        problem p;
        make_square(&p, 64, 1e-20f, 1e-15f);
        set_element(&p, i < 6 ? A : B, p.launch.operand[i < 6 ? A : B].offset + 64 * 63 + 63,
                    huge[i % 6]);
        char *want = (char *)malloc(p.bytes[C]);
        p.launch.index[0] = 0;
        run_problem(&p, MPT_ISA_AMX, 1);
        memcpy(want, p.now[C], p.bytes[C]);
        p.launch.index[0] = 1;
        run_problem(&p, MPT_ISA_AMX, 1);
        CHECK_EQ_INT(memcmp(want, p.now[C], p.bytes[C]) == 0, whole);
        free(want);
        problem_free(&p);
    }
    in_parts = false;
}

/* What a program sees of it: other bits where there are tiles, and a line that says so. */
TEST(mpt_benchmark_allows_parts) {
    NEEDS_LEVELS;
    for (int l = 0; l < level_count; l++) {
        static float out[3][64 * 64];
        mpt_config config = mpt_config_default();
        char text[4096];
        config.isa = levels[l];
        mpt_context *context = mpt_create(&config);
        mpt_tensor a = mpt_randn(context, MPT_F32, MPT_SHAPE(64, 64));
        for (int i = 0; i < 3; i++) {
            CHECK_EQ_INT(mpt_benchmark(context, false, i == 1), MPT_OK);
            mpt_read(mpt_matmul(a, a), out[i], sizeof out[i]);
            mpt_determinism(context, text, sizeof text);
            CHECK_EQ_INT(strstr(text, "parts of bf16") != NULL, i == 1 && levels[l] == MPT_ISA_AMX);
        }
        CHECK_EQ_INT(memcmp(out[0], out[1], sizeof out[0]) == 0, levels[l] != MPT_ISA_AMX);
        CHECK_EQ_BITS(out[2], out[0], sizeof out[0]);
        CHECK(!mpt_failed(context));
        mpt_destroy(context);
    }
}

/* Panels of tiles by AVX-512, which a CPU without tiles has as well, against their layout in plain
   words: tiles of 16 by 32, for each 32 k and each part; a tile of B holds pairs of k. */
#if defined(MPT__HAS_AMX) && !defined(MPTRAIN_EMULATE_AMX)
#define PANELS T(panels_of_tiles),
TEST(panels_of_tiles) {
    static const int sides[][2] = {{MPT_F32, 0},       {MPT_F32, MPT_F16}, {MPT_F16, 0},
                                   {MPT_F32, MPT_BF16}, {MPT_BF16, 0},      {MPT_BF16, MPT_F16}};
    static uint16_t panel[32 * 160 * 2 + 512], want[32 * 160 * 2];
    if (!(mpt__cpu_features() & MPT__CPU_AVX512_BF16)) SKIP("a CPU with AVX512_BF16");
    for (int i = 0; i < 600; i++) {
        const int dtype = sides[i % 6][0], round = sides[i % 6][1], layout = i / 6 % 3;
        const int parts = round == MPT_BF16 || (dtype == MPT_BF16 && round == 0) ? 1 : 2;
        const int64_t count = 1 + below(32), depth = 1 + below(150), gap = below(3);
        const bool b = below(2), cut = dtype == MPT_F32 && round == 0; /* rounded, not split */
        const int64_t shape[2] = {count, depth};
        problem p;
        problem_init(&p, MPT_F32);
        add_operand(&p, A, dtype, 2, shape, layout, gap, 0, MPT__READ);
        if (i >= 300 && parts == 2) {
            static const float no_parts[] = {INFINITY, -INFINITY, NAN, 4.7e18f};
            set_element(&p, A, p.launch.operand[A].offset, no_parts[i % (cut ? 4 : 3)]);
        }
        const mpt__operand *o = &p.launch.operand[A];
        mpt__gemm_side side = {p.first[A] + o->offset * mpt__dtype_info[dtype].bytes, dtype, round,
                               o->stride[0], o->stride[1]};
        memset(want, 0, sizeof want);
        for (int64_t e = 0; e < count * depth; e++) {
            const int64_t at = e / depth, k = e % depth, in_block = k % 32;
            const int64_t from = o->offset + at * side.outer + k * side.inner;
            float value = get_element(&p, p.first[A], A, from);
            if (round == MPT_F16) value = mpt__f16_to_f32(mpt__f32_to_f16(value));
            for (int part = 0; part < parts; part++) {
                uint32_t bits = mpt__f32_bits(value);
                bits = parts == 1 ? mpt__f32_to_bf16(value) : (bits + (cut ? 0x8000u : 0)) >> 16;
                value -= mpt__bf16_to_f32((uint16_t)bits);
                const int64_t x = parts == 2 ? in_block % 16 * 2 + in_block / 16 : in_block;
                const int64_t in_tile = b ? x / 2 * 32 + at % 16 * 2 + x % 2 : at % 16 * 32 + x;
                want[((k / 32 * parts + part) * 2 + at / 16) * 512 + in_tile] = (uint16_t)bits;
            }
        }
        const uint32_t mode = mpt__flush_denormals(true);
        const bool good = mpt__amx_pack_of(panel, b, &side, 0, count, 0, depth, parts);
        mpt__restore_denormals(mode);
        CHECK_EQ_INT(good, !(i >= 300 && parts == 2));
        for (int64_t tile = 0; good && tile < (depth + 31) / 32 * parts * 2; tile++) {
            if (tile % 2 && count <= 16) continue; /* not in use */
            CHECK_EQ_BITS(panel + tile * 512, want + tile * 512, 1024);
        }
        problem_free(&p);
    }
}
#else
#define PANELS
#endif

/* The sum of C's bits over products of all layouts and dtypes, for pairs also of products around
   the smallest normal number. The numbers were made by the
   instructions and by the emulation. */
static int64_t bits_of_products(mpt_isa isa) {
    uint64_t hash = 0, kept = state;
    state = 7;
    for (int i = 0; i < 48; i++) {
        int64_t m = 64 + below(50), n = 64 + below(50), k = 64 + below(300);
        int64_t a[2] = {m, k}, b[2] = {k, n}, c[2] = {m, n};
        int dtype = i & 1 && isa == MPT_ISA_AMX ? MPT_F16 : MPT_BF16;
        problem p;
        problem_init(&p, dtype);
        add_operand(&p, A, i & 2 ? MPT_F32 : dtype, 2, a, i / 4 % 3, 0, 0, MPT__READ);
        add_operand(&p, B, i & 2 ? dtype : MPT_F32, 2, b, i / 12 % 3, 0, 0, MPT__READ);
        add_operand(&p, C, MPT_F32, 2, c, 0, 0, 0, i % 5 ? MPT__WRITE : MPT__ACCUMULATE);
        for (int x = A; x <= B && i % 3 == 0 && isa != MPT_ISA_AMX; x++) {
            for (int64_t e = 0; e < p.elements[x]; e++) {
                set_element(&p, x, e, get_element(&p, p.first[x], x, e) * 1e-19f);
            }
        }
        run_problem(&p, isa, 1);
        for (size_t e = 0; e < p.bytes[C]; e++) {
            hash = (hash ^ (unsigned char)p.now[C][e]) * UINT64_C(1099511628211);
        }
        problem_free(&p);
    }
    state = kept;
    return (int64_t)hash;
}
TEST(tiles_have_the_bits_of_the_emulation) {
    NEEDS_AMX;
    CHECK_EQ_INT(bits_of_products(MPT_ISA_AMX), INT64_C(-4530250435225043319));
}
TEST(pairs_have_the_bits_of_the_emulation) {
    if (!have_levels() || !backend_of(MPT_ISA_AVX512_BF16, 1)) SKIP("a CPU with AVX512_BF16");
    CHECK_EQ_INT(bits_of_products(MPT_ISA_AVX512_BF16), INT64_C(-6204593714513043581));
}
/* This number was made by an emulator of the instruction. */
TEST(quads_have_the_bits_of_the_emulator) {
    if (!have_levels() || !backend_of(MPT_ISA_NEON_BF16, 1)) SKIP("a CPU with BFMMLA");
    CHECK_EQ_INT(bits_of_products(MPT_ISA_NEON_BF16), INT64_C(-7004448292377115590));
}

TEST_TABLE = {
    T(any_shape),
    T(last_rows),
    T(beyond_one_block),
    T(special_values),
    T(a_late_infinity_adds_once),
    T(denormals),
    T(threads_do_not_change_bits),
    T(fp32_in_parts),
    T(huge_values_are_not_taken_apart),
    T(mpt_benchmark_allows_parts),
    PANELS
    T(tiles_have_the_bits_of_the_emulation),
    T(pairs_have_the_bits_of_the_emulation),
    T(quads_have_the_bits_of_the_emulator),
};

#else

TEST(products) { SKIP("vector kernels in this build"); }
TEST_TABLE = {T(products)};

#endif

TEST_MAIN
