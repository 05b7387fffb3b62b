/* test_cpu_ref.c: every kernel of the reference backend, launched directly, against plain loops in
   double: random shapes of rank 0 to 8, every layout and dtype, accumulation, gates, bad targets.
   Each launch runs with 1, 2, 3, 4 and 7 threads and must leave the same bits; memory between and
   around the elements of an output must not change. MPTRAIN_ISA=avx2 puts another level to the
   same test, and a build with MPTRAIN_CUDA the kernels of mptrain_cuda.cu. */
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <math.h>

#include "harness.h"

/* ==== A launch and its memory ==== */

#if defined(MPTRAIN_CUDA)
enum { STORAGES = 10, BACKENDS = 2, GUARD = 64 };
#define ONLY_ON_THE_CPU SKIP("a CPU backend")
#else
enum { STORAGES = 10, BACKENDS = 5, GUARD = 64 };
#define ONLY_ON_THE_CPU (void)0
#endif
static const int thread_counts[] = {1, 2, 3, 4, 7};

static mpt__base base;
static mpt__backend backends[BACKENDS];
static mpt_isa level_under_test;
static mpt__launch launch;
static void *data[STORAGES];
static unsigned char *memory[STORAGES], *before[STORAGES];
static size_t bytes[STORAGES]; /* guards included */
static mpt__scalar scalars[MPT__SLOT_COUNT], scalars_before[MPT__SLOT_COUNT];
static uint64_t random_state = 1;
static bool in_eights; /* the next launch is one that can be walked in pieces of 8 elements */

static uint64_t draw(void) {
    random_state += UINT64_C(0x9e3779b97f4a7c15);
    return mpt__hash_mix(random_state);
}
static int below(int n) { return (int)(draw() % (uint64_t)n); }
static double uniform(double low, double high) {
    return low + (high - low) * (double)(draw() >> 11) / 9007199254740992.0;
}

static bool have_backends(void) {
    const char *name = getenv("MPTRAIN_ISA");
    mpt_config config;
    mpt_isa isa = name != NULL ? mpt__cpu_isa_of_name(name) : MPT_ISA_REF;
    if (backends[0].launch != NULL) return true;
    memset(&config, 0, sizeof config);
    mpt__base_init(&base, &config);
    for (int i = 0; i < BACKENDS; i++) {
#if defined(MPTRAIN_CUDA)
        level_under_test = isa;
        if (mpt__cuda_backend_create(&backends[i], MPTRAIN_VERSION, 0, false) == MPT_OK) continue;
        printf("\n  %s", backends[i].error);
        return false;
#endif
        if (mpt__cpu_backend_create(&base, isa, thread_counts[i], true, &backends[i],
                                    &level_under_test) != MPT_OK) {
            printf("\n  %s", base.message);
            return false;
        }
    }
    return true;
}

static void begin(mpt__kernel kernel) {
    for (int i = 0; i < STORAGES; i++) {
        free(memory[i]);
        free(before[i]);
        memory[i] = before[i] = NULL;
        data[i] = NULL;
    }
    memset(&launch, 0, sizeof launch);
    memset(scalars, 0, sizeof scalars);
    scalars[MPT__SLOT_ONE].f = 1;
    launch.kernel = (uint16_t)kernel;
    launch.number = 77;
}

typedef enum layout { PACKED, PERMUTED, GAPS, BROADCAST, LAYOUTS } layout;

static bool is_float(int dtype) { return mpt__dtype_info[dtype].is_float; }

static double decode(const void *p, int dtype) {
    double x = 0;
    mpt__load_f64(&x, p, (uint8_t)dtype, 0, 1, 1);
    return x;
}

static void encode(void *p, int dtype, double x) {
    mpt__store_f64(p, (uint8_t)dtype, 0, 1, &x, 1);
}

static int64_t numel(int operand) { return mpt__cpu_numel(&launch.operand[operand]); }

/* The next index in logical order; false after the last one. */
static bool advance(int64_t *index, const int64_t *shape, int rank) {
    for (int d = rank - 1; d >= 0; d--) {
        if (++index[d] < shape[d]) return true;
        index[d] = 0;
    }
    return false;
}

static size_t position(int operand, const int64_t *index) {
    const mpt__operand *o = &launch.operand[operand];
    int64_t at = o->offset;
    for (int d = 0; d < o->rank; d++) at += index[d] * o->stride[d];
    return GUARD + (size_t)at * mpt__dtype_info[o->dtype].bytes;
}

static double value(int operand, const int64_t *index) {
    return decode(memory[launch.operand[operand].storage] + position(operand, index),
                  launch.operand[operand].dtype);
}
static double old_value(int operand, const int64_t *index) {
    return decode(before[launch.operand[operand].storage] + position(operand, index),
                  launch.operand[operand].dtype);
}
static void set_value(int operand, const int64_t *index, double x) {
    encode(memory[launch.operand[operand].storage] + position(operand, index),
           launch.operand[operand].dtype, x);
}
static void set_at(int operand, int64_t i, double x) { set_value(operand, &i, x); }
static double at(int operand, int64_t i) { return value(operand, &i); }
static double old_at(int operand, int64_t i) { return old_value(operand, &i); }

/* Random values where nothing is set yet: floats in (-2, 2), integers in 0 .. 5. */
static void fill(int operand) {
    const mpt__operand *o = &launch.operand[operand];
    int64_t index[MPT_MAX_RANK] = {0};
    if (numel(operand) == 0) return;
    do {
        set_value(operand, index, is_float(o->dtype) ? uniform(-2, 2) : below(6));
    } while (advance(index, o->shape, o->rank));
}

/* Appends an operand with memory of its own. */
static int add(int dtype, int access, int rank, const int64_t *shape, layout kind) {
    int n = launch.n_operands++, order[MPT_MAX_RANK];
    mpt__operand *o = &launch.operand[n];
    int64_t size = in_eights ? 8 * below(3) : 1 + below(3), step = kind == GAPS ? 2 : 1;
    o->storage = (uint32_t)n + 1;
    o->dtype = (uint8_t)dtype;
    o->access = (uint8_t)access;
    o->rank = (uint8_t)rank;
    o->offset = size;
    o->scale_slot = o->amax_slot = -1;
    for (int d = 0; d < rank; d++) order[d] = d;
    for (int d = 0; d < rank && kind == PERMUTED; d++) {
        int e = below(rank), keep = order[d];
        order[d] = order[e];
        order[e] = keep;
    }
    for (int d = rank - 1; d >= 0; d--) {
        int dim = order[d];
        o->shape[dim] = shape[dim];
        o->stride[dim] = step;
        if (kind == BROADCAST && below(2)) {
            o->stride[dim] = 0;
        } else {
            step *= shape[dim];
        }
        if (kind == GAPS) step += below(3);
    }
    size += step + 4;
    bytes[n + 1] = (size_t)size * mpt__dtype_info[dtype].bytes + 2 * GUARD;
    memory[n + 1] = (unsigned char *)malloc(bytes[n + 1]);
    before[n + 1] = (unsigned char *)malloc(bytes[n + 1]);
    memset(memory[n + 1], 0x11, bytes[n + 1]);
    data[n + 1] = memory[n + 1] + GUARD;
    fill(n);
    return n;
}
static int add1(int dtype, int access, int64_t n) { return add(dtype, access, 1, &n, PACKED); }
static int add2(int dtype, int access, int64_t n, int64_t m, layout kind) {
    int64_t shape[2];
    shape[0] = n, shape[1] = m;
    return add(dtype, access, 2, shape, kind);
}
static void add_absent(void) { launch.n_operands++; }
/* Rows are of the first four fields here: moments that are bytes, which have a place, are tried by
   api_states8.c. */
static int add_segments(const int64_t *rows, int64_t n) {
    int operand = add2(MPT_I64, MPT__READ, n, MPT__SEGMENT_FIELDS, PACKED);
    for (int64_t i = 0; i < n * MPT__SEGMENT_FIELDS; i++) {
        int64_t index[2];
        index[0] = i / MPT__SEGMENT_FIELDS, index[1] = i % MPT__SEGMENT_FIELDS;
        set_value(operand, index, index[1] < 4 ? (double)rows[index[0] * 4 + index[1]] : 0);
    }
    return operand;
}

/* The launch on a backend whose memory is the host's. */
static void run_here(const mpt__backend *backend, void *workspace) {
    mpt__execution execution;
    execution.data = data;
    execution.scalars = scalars;
    execution.workspace = workspace;
    CHECK_EQ_INT(backend->launch(backend->self, &execution, &launch), MPT_OK);
}

/* A copy of host memory on the device; NULL for none. */
static void *lend(const mpt__backend *backend, const void *from, size_t size) {
    void *there = from && size > 0 ? backend->allocate(backend->self, size) : NULL;
    if (there) CHECK_EQ_INT(backend->upload(backend->self, there, from, size), MPT_OK);
    return there;
}
static void take_back(const mpt__backend *backend, void *there, void *to, size_t size) {
    if (!there) return;
    CHECK_EQ_INT(backend->download(backend->self, to, there, size), MPT_OK);
    backend->release(backend->self, there, size);
}

/* The launch on a backend with memory of its own. */
static void run_there(const mpt__backend *backend, void *workspace, size_t workspace_bytes) {
    void *lent[STORAGES] = {NULL}, *there[STORAGES] = {NULL};
    mpt__execution execution;
    for (int s = 1; s < STORAGES; s++) {
        lent[s] = lend(backend, memory[s], bytes[s]);
        if (lent[s]) there[s] = (char *)lent[s] + GUARD;
    }
    execution.data = there;
    execution.scalars = (mpt__scalar *)lend(backend, scalars, sizeof scalars);
    execution.workspace = lend(backend, workspace, workspace_bytes);
    mpt_status status = backend->launch(backend->self, &execution, &launch);
    if (status != MPT_OK) TEST_FAIL_("kernel %d: %s", (int)launch.kernel, backend->error);
    for (int s = 1; s < STORAGES; s++) take_back(backend, lent[s], memory[s], bytes[s]);
    take_back(backend, execution.scalars, scalars, sizeof scalars);
    take_back(backend, execution.workspace, workspace, workspace_bytes);
}

/* Runs the launch on every backend from the same state; all must end in the same bits. */
static void run(void) {
    unsigned char *first[STORAGES] = {NULL};
    mpt__scalar scalars_first[MPT__SLOT_COUNT];
    memcpy(scalars_before, scalars, sizeof scalars);
    for (int s = 1; s < STORAGES; s++) {
        if (memory[s] != NULL) memcpy(before[s], memory[s], bytes[s]);
    }
    for (int b = 0; b < BACKENDS; b++) {
        int64_t need = launch.workspace = backends[b].workspace(backends[b].self, &launch);
        void *workspace = need > 0 ? malloc((size_t)need) : NULL;
        if (need > 0) memset(workspace, 0xab, (size_t)need);
        memcpy(scalars, scalars_before, sizeof scalars);
        for (int s = 1; s < STORAGES; s++) {
            if (memory[s] != NULL) memcpy(memory[s], before[s], bytes[s]);
        }
        if (backends[b].allocate)
            run_there(&backends[b], workspace, (size_t)need);
        else
            run_here(&backends[b], workspace);
        free(workspace);
        for (int s = 1; s < STORAGES && b == 0; s++) {
            if (memory[s] == NULL) continue;
            first[s] = (unsigned char *)malloc(bytes[s]);
            memcpy(first[s], memory[s], bytes[s]);
        }
        if (b == 0) memcpy(scalars_first, scalars, sizeof scalars);
        for (int s = 1; s < STORAGES && b > 0; s++) {
            if (memory[s] != NULL) CHECK_EQ_BITS(memory[s], first[s], bytes[s]);
        }
        CHECK_EQ_BITS(scalars, scalars_first, sizeof scalars);
    }
    for (int s = 1; s < STORAGES; s++) free(first[s]);
    in_eights = below(2);
}

/* What is not an element of the operand must be as before. */
static void check_gaps(int operand) {
    const mpt__operand *o = &launch.operand[operand];
    size_t size = mpt__dtype_info[o->dtype].bytes;
    unsigned char *copy = (unsigned char *)malloc(bytes[o->storage]);
    int64_t index[MPT_MAX_RANK] = {0};
    memcpy(copy, memory[o->storage], bytes[o->storage]);
    if (numel(operand) > 0) {
        do {
            size_t p = position(operand, index);
            memcpy(copy + p, before[o->storage] + p, size);
        } while (advance(index, o->shape, o->rank));
    }
    CHECK_EQ_BITS(copy, before[o->storage], bytes[o->storage]);
    free(copy);
}

/* A result: half a unit of the dtype, and the roundings of fp32 work on numbers of `size`. */
static bool close_to(double got, double want, int dtype, double size) {
    const mpt__dtype_row *info = &mpt__dtype_info[dtype];
    if (mpt__f64_is_nan(want)) return mpt__f64_is_nan(got);
    if (got == want) return true;
    if (info->is_float && fabs(want) > info->max_finite) {
        return fabs(got) >= info->max_finite && (got > 0) == (want > 0);
    }
    double real = sizeof(mpt__real) == 8 && dtype == MPT_F64 ? 1e-13 : 3e-6;
    double off = fabs(got - want);
    if (!info->is_float) return off <= 1;
    return off <= info->epsilon * 0.51 * fabs(want) + real * (fabs(want) + size) +
                      info->min_normal * info->epsilon;
}

/* Checks an output against want(index), adding what was there where the launch accumulates. Reports
   the first element that is wrong. */
typedef double (*expected_fn)(const int64_t *index);
static void check_output(int operand, expected_fn want, double size) {
    const mpt__operand *o = &launch.operand[operand];
    int64_t index[MPT_MAX_RANK] = {0};
    check_gaps(operand);
    if (numel(operand) == 0) return;
    do {
        double expected = want(index), got = value(operand, index);
        if (o->access == MPT__ACCUMULATE) expected += old_value(operand, index);
        if (!close_to(got, expected, o->dtype, size)) {
            TEST_FAIL_("kernel %d function %d dtype %s rank %d: element [%d %d %d ..] is %.9g, "
                       "expected %.9g",
                       (int)launch.kernel, (int)launch.function, mpt__dtype_info[o->dtype].name,
                       o->rank, (int)index[0], (int)index[1], (int)index[2], got, expected);
            return;
        }
    } while (advance(index, o->shape, o->rank));
}

/* A random shape: rank 0 to 8, sizes 0 to 7 and mostly small. */
static int random_shape(int64_t *shape) {
    static const int64_t sizes[] = {1, 2, 3, 5, 1, 2, 3, 7};
    int rank = in_eights ? 1 + below(4) : below(9);
    for (int d = 0; d < rank; d++) shape[d] = sizes[below(rank > 5 ? 3 : 8)];
    if (in_eights) shape[below(3) ? rank - 1 : below(rank)] = 8 * (1 + below(9));
    if (rank > 0 && below(12) == 0) shape[below(rank)] = 0;
    return rank;
}

static int random_float(void) {
    static const int dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
#ifndef MPTRAIN_NO_FP8
    if (below(10) == 0) return below(2) ? MPT_F8E4M3 : MPT_F8E5M2;
#endif
    if (sizeof(mpt__real) == 8 && below(4) == 0) return MPT_F64;
    return dtypes[below(3)];
}
static int write_or_add(void) { return below(2) ? MPT__WRITE : MPT__ACCUMULATE; }
static layout out_layout(void) { return in_eights && below(8) ? PACKED : (layout)below(BROADCAST); }
static layout in_layout(void) { return in_eights && below(8) ? PACKED : (layout)below(LAYOUTS); }

/* ==== Elementwise ==== */

static double want_imm(const int64_t *index) { return (void)index, launch.imm[0]; }

TEST(fill) {
    REQUIRE(have_backends());
    for (int round = 0; round < 60; round++) {
        int64_t shape[MPT_MAX_RANK];
        int rank = random_shape(shape), dtype = 1 + below(MPT_DTYPE_COUNT - 1);
#ifdef MPTRAIN_NO_FP8
        if (dtype == MPT_F8E4M3 || dtype == MPT_F8E5M2) continue;
#endif
        begin(MPT__K_FILL);
        int o = add(dtype, MPT__WRITE, rank, shape, out_layout());
        launch.imm[0] = dtype == MPT_BOOL ? 1 : 3;
        run();
        check_output(o, want_imm, 0);
    }
}

static double want_copy(const int64_t *index) {
    double x = old_value(0, index);
    int to = launch.operand[1].dtype;
    if (to == MPT_BOOL) return x != 0;
    return is_float(to) ? x : to == MPT_U8 && x < 0 ? 0 : trunc(x);
}

TEST(copy) {
    REQUIRE(have_backends());
    for (int from = MPT_F32; from < MPT_DTYPE_COUNT; from++) {
        for (int to = MPT_F32; to < MPT_DTYPE_COUNT; to++) {
#ifdef MPTRAIN_NO_FP8
            if (from == MPT_F8E4M3 || from == MPT_F8E5M2) continue;
            if (to == MPT_F8E4M3 || to == MPT_F8E5M2) continue;
#endif
            for (int round = 0; round < 6; round++) {
                int64_t shape[MPT_MAX_RANK];
                int rank = random_shape(shape);
                begin(MPT__K_COPY);
                add(from, MPT__READ, rank, shape, in_layout());
                int o =
                    add(to, is_float(to) ? write_or_add() : MPT__WRITE, rank, shape, out_layout());
                run();
                check_output(o, want_copy, 0);
            }
        }
    }
}

/* In tiles, whole ones and parts. */
TEST(copy_transposed) {
    REQUIRE(have_backends());
    for (int round = 0; round < 20; round++) {
        int64_t shape[4];
        shape[0] = 1 + below(3), shape[1] = 16 + below(120);
        shape[2] = 1 + below(3), shape[3] = 16 + below(120);
        begin(MPT__K_COPY);
        mpt__operand *from = &launch.operand[add(random_float(), MPT__READ, 4, shape, PACKED)];
        from->stride[1] = 1; /* [2][0][3][1] */
        from->stride[3] = shape[1];
        from->stride[0] = shape[1] * shape[3];
        from->stride[2] = shape[1] * shape[3] * shape[0];
        int o = add(random_float(), write_or_add(), 4, shape, round < 10 ? PACKED : GAPS);
        run();
        check_output(o, want_copy, 0);
    }
}

static void copy_one(int from, double x, int64_t i, int to) {
    begin(MPT__K_COPY);
    add1(from, MPT__READ, 1);
    add1(to, MPT__WRITE, 1);
    int64_t zero = 0;
    if (from == MPT_I64) {
        memcpy(memory[1] + position(0, &zero), &i, 8);
    } else {
        set_at(0, 0, x);
    }
    run();
}
static int64_t copied_integer(void) {
    int64_t zero = 0, x;
    memcpy(&x, memory[2] + position(1, &zero), 8);
    return x;
}

TEST(copy_is_exact_where_it_can_be) {
    REQUIRE(have_backends());
    copy_one(MPT_I64, 0, INT64_MAX, MPT_I64);
    CHECK(copied_integer() == INT64_MAX);
    copy_one(MPT_I64, 0, INT64_C(9007199254740993), MPT_I64);
    CHECK(copied_integer() == INT64_C(9007199254740993));
    copy_one(MPT_I64, 0, INT64_C(9007199791611905), MPT_F32); /* through double it rounds down */
    if (sizeof(mpt__real) == 4) CHECK(at(1, 0) == 9007200328482816.0);
    copy_one(MPT_I64, 0, -1, MPT_U8);
    CHECK(at(1, 0) == 255);
    copy_one(MPT_I64, 0, 256, MPT_BOOL);
    CHECK(at(1, 0) == 1);
    copy_one(MPT_F64, 0.1, 0, MPT_F64);
    CHECK(at(1, 0) == 0.1);
    copy_one(MPT_F32, (double)NAN, 0, MPT_I64);
    CHECK(copied_integer() == 0);
    copy_one(MPT_F32, 1e30, 0, MPT_I64);
    CHECK(copied_integer() == INT64_MAX);
    copy_one(MPT_F32, -1e30, 0, MPT_I32);
    CHECK(at(1, 0) == -2147483648.0);
    copy_one(MPT_F32, 300, 0, MPT_U8);
    CHECK(at(1, 0) == 255);
    copy_one(MPT_F32, -1.75, 0, MPT_I32);
    CHECK(at(1, 0) == -1);
    copy_one(MPT_F32, 65520, 0, MPT_F16);
    CHECK(at(1, 0) == (double)INFINITY);
}

static double gelu_slope(double a) {
    return 0.5 * (1 + erf(a / sqrt(2.0))) + a * exp(-a * a / 2) / sqrt(2 * acos(-1.0));
}
static double gelu_tanh(double a) {
    return 0.5 * a * (1 + tanh(sqrt(2 / acos(-1.0)) * (a + 0.044715 * a * a * a)));
}

static double sign_of(double a) { return (a > 0) - (a < 0); }

static double apply(int function, double a, double c, double d) {
    switch (function) {
    case MPT__FN_NEG:
        return -a;
    case MPT__FN_EXP:
        return exp(a);
    case MPT__FN_LOG:
        return log(a);
    case MPT__FN_SQRT:
        return sqrt(a);
    case MPT__FN_RELU:
        return a > 0 || a != a ? a : 0;
    case MPT__FN_GELU:
        return 0.5 * a * (1 + erf(a / sqrt(2.0)));
    case MPT__FN_GELU_TANH:
        return gelu_tanh(a);
    case MPT__FN_TANH:
        return tanh(a);
    case MPT__FN_SIGMOID:
        return 1 / (1 + exp(-a));
    case MPT__FN_ADD_SCALAR:
        return a + c;
    case MPT__FN_MUL_SCALAR:
        return a * c;
    case MPT__FN_MUL_SLOT:
        return a * scalars[launch.slot[0]].f;
    case MPT__FN_ISNAN:
        return a != a;
    case MPT__FN_ISINF:
        return a - a != 0 && a == a;
    case MPT__FN_NOT:
        return a == 0;
    case MPT__FN_LOG1P:
        return log1p(a);
    case MPT__FN_RSQRT:
        return 1 / sqrt(a);
    case MPT__FN_ABS:
        return fabs(a);
    case MPT__FN_SIGN:
        return sign_of(a);
    case MPT__FN_SIN:
        return sin(a);
    case MPT__FN_COS:
        return cos(a);
    case MPT__FN_CLAMP:
        return a < c ? c : a > d ? d : a;
    case MPT__FN_POW_SCALAR:
        return pow(a, c);
    case MPT__FN_LEAKY_RELU:
        return a > 0 ? a : a * c;
    case MPT__FN_ELU:
        return a > 0 ? a : c * expm1(a);
    case MPT__FN_SILU:
        return a / (1 + exp(-a));
    case MPT__FN_SOFTPLUS:
        return a * c > d ? a : log1p(exp(a * c)) / c;
    case MPT__FN_FINITE:
        return a - a != 0 && a == a ? 0 : a;
    default: /* one for zero */
        return a == 0 ? 1 : a;
    }
}

static double want_unary(const int64_t *index) {
    return apply(launch.function, old_value(0, index), launch.imm[0], launch.imm[1]);
}

TEST(unary) {
    REQUIRE(have_backends());
    for (int function = MPT__FN_NEG; function < MPT__FN_ADD; function++) {
        for (int round = 0; round < 12; round++) {
            int64_t shape[MPT_MAX_RANK];
            int rank = random_shape(shape);
            bool test = function >= MPT__FN_ISNAN && function <= MPT__FN_NOT;
            begin(MPT__K_UNARY);
            launch.function = (uint8_t)function;
            launch.imm[0] = function == MPT__FN_CLAMP        ? -0.5
                            : function == MPT__FN_POW_SCALAR ? 3
                                                             : 1.5;
            launch.imm[1] = 1.75;
            launch.slot[0] = 9;
            scalars[9].f = 0.75;
            add(random_float(), MPT__READ, rank, shape, in_layout());
            int o = add(test ? MPT_BOOL : random_float(), test ? MPT__WRITE : write_or_add(), rank,
                        shape, out_layout());
            if (numel(0) > 1 && test) {
                int64_t zero[MPT_MAX_RANK] = {0};
                bool no_infinity = launch.operand[0].dtype == MPT_F8E4M3;
                set_value(0, zero, no_infinity || below(2) ? (double)NAN : (double)-INFINITY);
            }
            run();
            check_output(o, want_unary, 1);
        }
    }
    int64_t n = 100000; /* enough for several threads */
    begin(MPT__K_UNARY);
    launch.function = MPT__FN_TANH;
    add1(MPT_F16, MPT__READ, n);
    add1(MPT_F32, MPT__WRITE, n);
    run();
    check_output(1, want_unary, 0);
}

/* The functions at the edges, in F32. */
static double unary_at(int function, double x) {
    begin(MPT__K_UNARY);
    launch.function = (uint8_t)function;
    add1(MPT_F32, MPT__READ, 1);
    add1(MPT_F32, MPT__WRITE, 1);
    set_at(0, 0, x);
    run();
    return at(1, 0);
}

TEST(unary_edges) {
    REQUIRE(have_backends());
    double inf = (double)INFINITY, nan = (double)NAN;
    CHECK(mpt__f64_is_nan(unary_at(MPT__FN_RELU, nan)));
    CHECK(unary_at(MPT__FN_RELU, -inf) == 0 && unary_at(MPT__FN_RELU, inf) == inf);
    CHECK(unary_at(MPT__FN_EXP, -inf) == 0 && unary_at(MPT__FN_EXP, 1000) == inf);
    CHECK(unary_at(MPT__FN_LOG, 0) == -inf && mpt__f64_is_nan(unary_at(MPT__FN_LOG, -1)));
    CHECK(unary_at(MPT__FN_SIGMOID, -200) < 1e-38 && unary_at(MPT__FN_SIGMOID, 200) == 1);
    CHECK_CLOSE(unary_at(MPT__FN_GELU, -3), -.004049694, 1e-4, 0.0);
    CHECK_CLOSE(unary_at(MPT__FN_GELU_TANH, -3), -.003637392, 1e-4, 0.0);
    CHECK_CLOSE(unary_at(MPT__FN_GELU, 1), .841344746, 1e-6, 0.0);
    CHECK(unary_at(MPT__FN_GELU_TANH, 1e20) == (double)1e20f);
    CHECK(unary_at(MPT__FN_LOG1P, -1) == -inf && unary_at(MPT__FN_LOG1P, inf) == inf);
    CHECK(unary_at(MPT__FN_LOG1P, 1e-30) == (double)1e-30f);
    CHECK(unary_at(MPT__FN_RSQRT, 0) == inf && unary_at(MPT__FN_RSQRT, inf) == 0);
    CHECK(mpt__f64_is_nan(unary_at(MPT__FN_SIN, inf)) && unary_at(MPT__FN_SIGN, -1e-40) == -1);
    CHECK(mpt__f64_is_nan(unary_at(MPT__FN_CLAMP, nan)) && unary_at(MPT__FN_SIGN, nan) == 0);
}

static double want_binary(const int64_t *index) {
    double a = old_value(0, index), b = old_value(1, index), t;
    double c = launch.imm[0], d = launch.imm[1];
    switch (launch.function) {
    case MPT__FN_ADD:
        return a + b;
    case MPT__FN_SUB:
        return a - b;
    case MPT__FN_MUL:
        return a * b;
    case MPT__FN_DIV:
        return a / b;
    case MPT__FN_EQUAL:
        return a == b;
    case MPT__FN_RELU_BACKWARD:
        return a <= 0 ? 0 : b;
    case MPT__FN_GELU_BACKWARD:
        return b * gelu_slope(a);
    case MPT__FN_GELU_TANH_BACKWARD:
        t = 1e-5;
        return b * (gelu_tanh(a + t) - gelu_tanh(a - t)) / (2 * t);
    case MPT__FN_TANH_BACKWARD:
        return b * (1 - a * a);
    case MPT__FN_SIGMOID_BACKWARD:
        return b * a * (1 - a);
    case MPT__FN_SQRT_BACKWARD:
        return b / (2 * a);
    case MPT__FN_NOT_EQUAL:
        return a != b;
    case MPT__FN_LESS:
        return a < b;
    case MPT__FN_LESS_EQUAL:
        return a <= b;
    case MPT__FN_GREATER:
        return a > b;
    case MPT__FN_GREATER_EQUAL:
        return a >= b;
    case MPT__FN_AND:
        return a != 0 && b != 0;
    case MPT__FN_OR:
        return a != 0 || b != 0;
    case MPT__FN_MINIMUM:
        return a < b ? a : b;
    case MPT__FN_MAXIMUM:
        return a > b ? a : b;
    case MPT__FN_POW:
        return pow(a, b);
    case MPT__FN_KEEP:
        return a == 0 ? 0 : a * b;
    case MPT__FN_DROP:
        return a == 0 ? b : 0;
    case MPT__FN_SHARE:
        return a < b ? 0 : a == b ? 0.5 : 1;
    case MPT__FN_POW_SLOPE:
        return b == 0 ? 0 : b * pow(a, b - 1);
    case MPT__FN_POW_EXPONENT:
        return a == 0 && b >= 0 ? 0 : pow(a, b) * log(a);
    case MPT__FN_LOG1P_BACKWARD:
        return b / (1 + a);
    case MPT__FN_RSQRT_BACKWARD:
        return -b / 2 * a * a * a;
    case MPT__FN_ABS_BACKWARD:
        return b * sign_of(a);
    case MPT__FN_SIN_BACKWARD:
        return b * cos(a);
    case MPT__FN_COS_BACKWARD:
        return -b * sin(a);
    case MPT__FN_CLAMP_BACKWARD:
    case MPT__FN_HARDTANH_BACKWARD:
        return a > c && a < d ? b : 0;
    case MPT__FN_POW_SCALAR_BACKWARD:
        return b * c * pow(a, c - 1);
    case MPT__FN_LEAKY_RELU_BACKWARD:
        return a > 0 ? b : b * c;
    case MPT__FN_ELU_BACKWARD:
        return a > 0 ? b : b * c * exp(a);
    case MPT__FN_SILU_BACKWARD:
        t = 1 / (1 + exp(-a));
        return b * t * (1 + a * (1 - t));
    case MPT__FN_SOFTPLUS_BACKWARD:
        return a * c > d ? b : b / (1 + exp(-a * c));
    case MPT__FN_RATIO:
        return a == 0 ? 0 : b / a;
    case MPT__FN_SQUARED_DIFFERENCE:
        return (a - b) * (a - b);
    case MPT__FN_EXP_DIFFERENCE:
        return exp(a - b);
    default: /* share of a product */
        return b == 0 ? 1 / a : b == 1 && a == 0;
    }
}

TEST(binary) {
    REQUIRE(have_backends());
    for (int function = MPT__FN_ADD; function < MPT__FN_SUM; function++) {
        for (int round = 0; round < 12; round++) {
            int64_t shape[MPT_MAX_RANK];
            int rank = random_shape(shape), dtype = random_float();
            bool equal = function >= MPT__FN_EQUAL && function <= MPT__FN_OR;
            begin(MPT__K_BINARY);
            launch.function = (uint8_t)function;
            bool bounds =
                function == MPT__FN_CLAMP_BACKWARD || function == MPT__FN_HARDTANH_BACKWARD;
            launch.imm[0] = bounds ? -0.5 : function == MPT__FN_POW_SCALAR_BACKWARD ? 3 : 1.5;
            launch.imm[1] = 1.75;
            if (equal && below(2)) dtype = MPT_I32;
            add(dtype, MPT__READ, rank, shape, in_layout());
            add(equal ? dtype : random_float(), MPT__READ, rank, shape, in_layout());
            int access = equal ? MPT__WRITE : write_or_add();
            int o = add(equal ? MPT_BOOL : random_float(), access, rank, shape, out_layout());
            run();
            /* The difference quotient is too rough for F64. */
            if (function == MPT__FN_GELU_TANH_BACKWARD && launch.operand[o].dtype == MPT_F64) {
                check_gaps(o);
            } else {
                check_output(o, want_binary, 1);
            }
        }
    }
    for (int dim = 0; dim < 2; dim++) { /* a row for all rows, a column for all columns */
        begin(MPT__K_BINARY);
        launch.function = MPT__FN_SUB;
        add2(MPT_F16, MPT__READ, 6, 24, PACKED);
        add2(MPT_F32, MPT__READ, 6, 24, PACKED);
        add2(MPT_BF16, MPT__WRITE, 6, 24, PACKED);
        for (int k = 0; k < 3; k++) launch.operand[k].offset = 0;
        launch.operand[1].stride[dim] = 0;
        run();
        check_output(2, want_binary, 1);
    }
    int64_t big = INT64_C(9007199254740992), one = big + 1, zero = 0;
    static const bool holds[] = {false, true, true, true, false, false}; /* of big and one */
    for (int function = MPT__FN_EQUAL; function <= MPT__FN_GREATER_EQUAL; function++) {
        begin(MPT__K_BINARY);
        launch.function = (uint8_t)function;
        add1(MPT_I64, MPT__READ, 1);
        add1(MPT_I64, MPT__READ, 1);
        add1(MPT_BOOL, MPT__WRITE, 1);
        memcpy(memory[1] + position(0, &zero), &big, 8);
        memcpy(memory[2] + position(1, &zero), &one, 8);
        run();
        CHECK((at(2, 0) != 0) == holds[function - MPT__FN_EQUAL]);
    }
    begin(MPT__K_BINARY); /* the slope of gelu far out is 1, not NaN */
    launch.function = MPT__FN_GELU_TANH_BACKWARD;
    add1(MPT_F32, MPT__READ, 1);
    add1(MPT_F32, MPT__READ, 1);
    add1(MPT_F32, MPT__WRITE, 1);
    set_at(0, 0, 1e25);
    set_at(1, 0, 2);
    run();
    CHECK(at(2, 0) == 2);
}

/* ==== Results beyond the caches ==== */

/* `more` elements than the least number that is written past the caches, `offset` of them behind a
   line of memory; `replaces`: the result lies where that operand does. */
typedef struct large_case {
    int kernel, function, dtype, more, offset, replaces, access;
    bool streams;
} large_case;

static const mpt__routines *plain_routines;
static int64_t streamed;

static bool count_stream(int function, mpt__real *out, const mpt__real *x, const mpt__real *y,
                         int64_t n, mpt__real c) {
    const bool has = plain_routines->stream(function, out, x, y, n, c);
    streamed += has ? n : 0;
    return has;
}

enum { LARGE_BYTES = 4 * MPT__BEYOND_CACHE + 65536, LARGE_X = 0, LARGE_Y, LARGE_GOT, LARGE_WANT };
static char *buffer[4];

/* Elements first .. first + n-1. */
static void run_large(const mpt__backend *backend, const large_case *c, char *result, int64_t first,
                      int64_t n) {
    const int64_t size = mpt__dtype_info[c->dtype].bytes;
    launch.n_operands = c->kernel == MPT__K_BINARY ? 3 : 2;
    launch.function = (uint8_t)c->function;
    launch.imm[0] = 0.3;
    for (int k = 0; k < launch.n_operands; k++) {
        const bool last = k == launch.n_operands - 1, same = last || k == c->replaces;
        mpt__operand *o = &launch.operand[k];
        o->storage = (uint32_t)k + 1, o->dtype = (uint8_t)c->dtype, o->rank = 1;
        o->access = (uint8_t)(last ? c->access : MPT__READ);
        o->shape[0] = n, o->stride[0] = 1;
        data[k + 1] = (same ? result : buffer[k]) + 128 + (first + (same ? c->offset : 1)) * size;
    }
    run_here(backend, NULL);
}

static void check_large(const large_case *c) {
    const int64_t n = MPT__BEYOND_CACHE + c->more, piece = 70001;
    begin((mpt__kernel)c->kernel);
    memcpy(buffer[LARGE_WANT], buffer[LARGE_X], LARGE_BYTES);
    for (int64_t i = 0; i < n; i += piece)
        run_large(&backends[1], c, buffer[LARGE_WANT], i, n - i < piece ? n - i : piece);
    for (int b = 0; b < 3 && !test_failures; b++) { /* 1, 2, 3 threads */
        memcpy(buffer[LARGE_GOT], buffer[LARGE_X], LARGE_BYTES);
        streamed = 0;
        run_large(&backends[b], c, buffer[LARGE_GOT], 0, n);
        CHECK_EQ_BITS(buffer[LARGE_GOT], buffer[LARGE_WANT], LARGE_BYTES);
        if (b == 0) CHECK_EQ_INT(streamed, c->streams ? n : 0);
    }
}

/* They have the bits of small ones, the elements around them keep theirs, and those that can be are
   written past the caches. */
TEST(results_beyond_cache) {
    ONLY_ON_THE_CPU;
    REQUIRE(have_backends());
    static const large_case cases[] = {
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, 0, 0, -1, MPT__WRITE, true},
        {MPT__K_BINARY, MPT__FN_SUB, MPT_F32, 37, 0, -1, MPT__WRITE, true},
        {MPT__K_BINARY, MPT__FN_MUL, MPT_F32, 16, 16, -1, MPT__WRITE, true},
        {MPT__K_BINARY, MPT__FN_DIV, MPT_F32, 4095, 0, -1, MPT__WRITE, true},
        {MPT__K_BINARY, MPT__FN_RELU_BACKWARD, MPT_F32, 1, 0, -1, MPT__WRITE, true},
        {MPT__K_UNARY, MPT__FN_RELU, MPT_F32, 15, 0, -1, MPT__WRITE, true},
        {MPT__K_UNARY, MPT__FN_ADD_SCALAR, MPT_F32, 5000, 0, -1, MPT__WRITE, true},
        {MPT__K_UNARY, MPT__FN_MUL_SCALAR, MPT_F32, 8200, 0, -1, MPT__WRITE, true},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, -1, 0, -1, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, 20, 1, -1, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, 20, 8, -1, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, 16, 0, 0, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_SUB, MPT_F32, 16, 0, 1, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_F32, 0, 0, -1, MPT__ACCUMULATE, false},
        {MPT__K_BINARY, MPT__FN_ADD, MPT_BF16, 0, 0, -1, MPT__WRITE, false},
        {MPT__K_BINARY, MPT__FN_MUL, MPT_F16, 40, 0, -1, MPT__WRITE, false},
        {MPT__K_COPY, 0, MPT_F32, 3, 0, -1, MPT__WRITE, false},
        {MPT__K_UNARY, MPT__FN_NEG, MPT_F32, 0, 0, -1, MPT__WRITE, false},
        {MPT__K_UNARY, MPT__FN_RELU, MPT_F32, 0, 0, 0, MPT__WRITE, false},
    };
    mpt__cpu *cpu = (mpt__cpu *)backends[0].self;
    if (cpu->routines->stream == NULL) return; /* nothing differs with the number of elements */
    mpt__routines counting = *cpu->routines;
    char *memory_of[4];
    plain_routines = cpu->routines, cpu->routines = &counting, counting.stream = count_stream;
    for (int k = 0; k < 4; k++) {
        memory_of[k] = (char *)malloc(LARGE_BYTES + 64);
        buffer[k] = memory_of[k] + (64 - (uintptr_t)memory_of[k] % 64);
    }
    for (int64_t i = 0; i < LARGE_BYTES / 4; i++) {
        static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, 1e-40f, 3e38f, NAN};
        for (int k = LARGE_X; k <= LARGE_Y; k++) {
            const uint64_t word = draw();
            const float x = (float)(int32_t)word / 1073741824.0f;
            ((float *)(void *)buffer[k])[i] = word >> 58 != 0 ? x : odd[(word >> 32) % 7];
        }
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_large(&cases[i]);
        if (test_failures == 0) continue;
        printf("  case %d\n", (int)i);
        break;
    }
    cpu->routines = plain_routines;
    for (int k = 0; k < 4; k++) free(memory_of[k]);
}

/* ==== Random numbers ==== */

TEST(random) {
    REQUIRE(have_backends());
    mpt__rng_key key = {5, 6, 7};
    double mean = 0, square = 0;
    int64_t n = 50000, different = 0;
    float *all = (float *)malloc((size_t)n * sizeof *all);
    for (int normal = 0; normal < 2; normal++) {
        begin(MPT__K_RANDOM);
        launch.function = normal ? MPT__FN_NORMAL : MPT__FN_UNIFORM;
        launch.imm[0] = -1;
        launch.imm[1] = 3;
        launch.imm[2] = 2.99999976; /* the float below */
        launch.rng.seed = 5;
        launch.rng.stream = 6;
        launch.rng.call = 7;
        add1(MPT_F32, MPT__WRITE, n);
        run();
        check_gaps(0);
        (normal ? mpt__random_normal : mpt__random_uniform)(key, 0, (size_t)n, -1, 3, all);
        mean = square = 0;
        for (int64_t i = 0; i < n; i++) {
            double x = at(0, i);
            mean += x / (double)n;
            square += x * x / (double)n;
            different += x != (double)all[i]; /* every bit on every backend */
            if (!normal) CHECK(x >= -1 && x < 3);
        }
        CHECK_NEAR(mean, normal ? -1 : 1, 0.05);
        CHECK_NEAR(square - mean * mean, normal ? 9 : 16.0 / 12, 0.2);
    }
    CHECK_EQ_INT(different, 0);
    free(all);
    /* Element i is the same in any layout. */
    float flat[6];
    mpt__random_uniform(key, 0, 6, -1.0f, 3.0f, flat);
    int64_t shape[2] = {3, 2}, index[2] = {0, 0}, i = 0;
    begin(MPT__K_RANDOM);
    launch.function = MPT__FN_UNIFORM;
    launch.imm[0] = -1;
    launch.imm[1] = 3;
    launch.imm[2] = 2.99999976;
    launch.rng.seed = 5;
    launch.rng.stream = 6;
    launch.rng.call = 7;
    add(MPT_F32, MPT__WRITE, 2, shape, GAPS);
    run();
    do CHECK(value(0, index) == (double)flat[i++]);
    while (advance(index, shape, 2));
}

static int64_t kept_of(double p, int64_t n, int64_t step, bool *right) {
    int64_t kept = 0;
    mpt__rng_key key = {11, mpt__hash_u64(0, (uint64_t)step), 0};
    uint32_t word;
    begin(MPT__K_DROPOUT);
    launch.imm[0] = p;
    launch.rng.seed = 11;
    launch.slot[0] = MPT__SLOT_STEP;
    scalars[MPT__SLOT_STEP].i = step;
    add1(MPT_F32, MPT__READ, n);
    add1(MPT_F32, MPT__WRITE, n);
    run();
    *right = true;
    for (int64_t i = 0; i < n; i++) {
        double x = old_at(0, i), y = at(1, i);
        mpt__random_bits(key, (uint64_t)i, 1, &word);
        if ((y != 0) != ((double)word >= p * 4294967296.0)) *right = false;
        if (y != 0) kept++;
        if (y != 0 && fabs(y - x / (1 - p)) > 1e-6 * fabs(y)) *right = false;
    }
    return kept;
}

TEST(dropout) {
    REQUIRE(have_backends());
    bool right;
    int64_t n = 40000, kept = kept_of(0.3, n, 1, &right);
    unsigned char *first = (unsigned char *)malloc(bytes[2]);
    memcpy(first, memory[2], bytes[2]);
    CHECK(right);
    CHECK_NEAR((double)kept / (double)n, 0.7, 0.01);
    kept_of(0.3, n, 1, &right);
    launch.rng.seed = 11;
    kept = 0;
    for (int64_t i = 0; i < n; i++) kept += at(1, i) != 0;
    int64_t both = 0, second = kept_of(0.3, n, 2, &right);
    for (int64_t i = 0; i < n; i++) {
        both += at(1, i) != 0 && decode(first + position(1, &i), MPT_F32) != 0;
    }
    CHECK_NEAR((double)second / (double)n, 0.7, 0.01);
    CHECK_NEAR((double)both / (double)n, 0.49, 0.01); /* steps are independent */
    free(first);
    CHECK_EQ_INT(kept_of(0, 1000, 1, &right), 1000);
    CHECK(right);
    CHECK_EQ_INT(kept_of(1, 1000, 1, &right), 0);
}

/* ==== Reductions ==== */

static double want_reduce(const int64_t *out) {
    const mpt__operand *o = &launch.operand[0];
    int64_t index[MPT_MAX_RANK] = {0};
    double sum = 0, most = -(double)INFINITY, count = 0, product = 1;
    if (numel(0) == 0)
        return launch.function == MPT__FN_MEAN ? (double)NAN : launch.function == MPT__FN_PROD;
    do {
        bool mine = true;
        for (int d = 0; d < o->rank; d++) {
            if (launch.operand[1].shape[d] != 1 && index[d] != out[d]) mine = false;
        }
        if (!mine) continue;
        double x = old_value(0, index);
        sum += x;
        product *= x;
        count++;
        if (!(most >= x) && most == most) most = x;
    } while (advance(index, o->shape, o->rank));
    if (launch.function == MPT__FN_MAX) return most;
    if (launch.function == MPT__FN_PROD) return product;
    return launch.function == MPT__FN_SUM ? sum : sum / count;
}

TEST(reduce) {
    REQUIRE(have_backends());
    for (int round = 0; round < 150; round++) {
        int64_t shape[MPT_MAX_RANK], out[MPT_MAX_RANK];
        int rank = random_shape(shape);
        begin(MPT__K_REDUCE);
        launch.function = (uint8_t)(MPT__FN_SUM + below(4));
        for (int d = 0; d < rank; d++) out[d] = below(2) ? 1 : shape[d];
        add(random_float(), MPT__READ, rank, shape, in_layout());
        int o = add(random_float(), write_or_add(), rank, out, out_layout());
        if (numel(0) == 0 && launch.function == MPT__FN_MAX) continue;
        if (numel(0) > 2 && below(4) == 0) {
            int64_t zero[MPT_MAX_RANK] = {0};
            set_value(0, zero, (double)NAN);
        }
        run();
        check_output(o, want_reduce, 2);
    }
    static const int64_t large[][2] = {{1, 70001}, {70001, 1}, {300, 300}, {5000, 7},
                                       {7, 5000},  {5000, 16}, {8, 5000}};
    for (int i = 0; i < 28; i++) {
        const int64_t *shape = large[i % 7];
        int64_t out[2];
        out[0] = below(2) ? 1 : shape[0];
        out[1] = below(2) ? 1 : shape[1];
        if (i < 14) out[i % 2] = 1, out[1 - i % 2] = i < 7 ? 1 : shape[1 - i % 2];
        if (out[0] * out[1] > 400) continue; /* the plain loop is quadratic */
        begin(MPT__K_REDUCE);
        launch.function = (uint8_t)(i % 7 == 2 ? MPT__FN_PROD : MPT__FN_SUM + i % 3);
        add2(MPT_F32, MPT__READ, shape[0], shape[1], (layout)(i % LAYOUTS));
        add(MPT_F32, write_or_add(), 2, out, out_layout());
        run();
        check_output(1, want_reduce, sqrt((double)numel(0)) * 4);
    }
}

/* The tree is a promise: other rooms and devices must be able to follow it. */
TEST(sums_follow_the_documented_tree) {
    ONLY_ON_THE_CPU;
    REQUIRE(have_backends());
    int64_t n = 5 * MPT__SUM_CHUNK + 100;
    mpt__real lane[MPT__SUM_LANES], chunk[6];
    begin(MPT__K_REDUCE);
    launch.function = MPT__FN_SUM;
    add1(MPT_F32, MPT__READ, n);
    add1(MPT_F32, MPT__WRITE, 1);
    for (int c = 0; c < 6; c++) {
        memset(lane, 0, sizeof lane);
        for (int64_t i = 0; i < MPT__SUM_CHUNK && c * MPT__SUM_CHUNK + i < n; i++) {
            lane[i % 16] += (mpt__real)at(0, c * MPT__SUM_CHUNK + i);
        }
        for (int half = 8; half > 0; half /= 2) {
            for (int l = 0; l < half; l++) lane[l] += lane[l + half];
        }
        chunk[c] = lane[0];
    }
    run();
    mpt__real want = ((chunk[0] + chunk[1]) + (chunk[2] + chunk[3])) + (chunk[4] + chunk[5]);
    CHECK(at(1, 0) == (double)(float)want);
    mpt__cpu_sum sum;
    mpt__cpu_sum_init(&sum, &mpt__ref_routines);
    for (int64_t i = 0; i < n; i += 100) {
        mpt__real x[100];
        int64_t take = n - i < 100 ? n - i : 100;
        for (int64_t k = 0; k < take; k++) x[k] = (mpt__real)at(0, i + k);
        mpt__cpu_sum_add(&sum, x, take);
    }
    CHECK(mpt__cpu_sum_total(&sum) == want);
}

/* The columns of a matrix, and a box whose dimensions cannot be merged: the bits of a flat sum. */
TEST(sums_do_not_depend_on_the_layout) {
    ONLY_ON_THE_CPU;
    REQUIRE(have_backends());
    for (int kind = 0; kind < 3; kind++) {
        int64_t shape[3] = {45, 9, 13}, out[3] = {1, 1, 1}, index[3] = {0, 0, 0}, n = 0;
        float flat[45 * 9 * 13];
        if (kind == 2) shape[0] = 45 * 9, shape[1] = 1, out[2] = 13;
        begin(MPT__K_REDUCE);
        launch.function = MPT__FN_SUM;
        add(MPT_F32, MPT__READ, 3, shape, kind == 0 ? GAPS : PACKED);
        add(MPT_F32, MPT__WRITE, 3, out, PACKED);
        run();
        do {
            if (kind < 2 || index[2] == 0) flat[n++] = (float)old_value(0, index);
        } while (advance(index, shape, 3));
        double strided = value(1, index);
        begin(MPT__K_REDUCE);
        launch.function = MPT__FN_SUM;
        add1(MPT_F32, MPT__READ, n);
        add1(MPT_F32, MPT__WRITE, 1);
        for (int64_t i = 0; i < n; i++) set_at(0, i, (double)flat[i]);
        run();
        CHECK(at(1, 0) == strided);
    }
}

static int axis;

static double want_argmax(const int64_t *out) {
    int64_t index[MPT_MAX_RANK], best = 0;
    memcpy(index, out, sizeof index);
    for (int64_t i = 0; i < launch.operand[0].shape[axis]; i++) {
        index[axis] = best;
        double top = old_value(0, index);
        index[axis] = i;
        double x = old_value(0, index);
        bool better = launch.function == MPT__FN_MIN ? x < top : x > top;
        if (top == top && (better || x != x)) best = i;
    }
    return (double)best;
}
static double want_argmax_value(const int64_t *out) {
    int64_t index[MPT_MAX_RANK];
    memcpy(index, out, sizeof index);
    index[axis] = (int64_t)want_argmax(out);
    return old_value(0, index);
}
static double want_scatter(const int64_t *out) {
    int64_t index[MPT_MAX_RANK];
    memcpy(index, out, sizeof index);
    index[axis] = 0;
    return (double)out[axis] == old_value(0, index) ? old_value(1, index) : 0;
}

TEST(argmax_and_scatter) {
    REQUIRE(have_backends());
    for (int round = 0; round < 80; round++) {
        int64_t shape[MPT_MAX_RANK], out[MPT_MAX_RANK];
        int rank = random_shape(shape);
        if (rank == 0) shape[rank++] = 4;
        axis = below(rank);
        if (shape[axis] == 0) continue;
        if (round == 0) shape[axis] = 700;
        memcpy(out, shape, sizeof out);
        out[axis] = 1;
        begin(MPT__K_ARGMAX);
        launch.index[0] = axis;
        if (round % 3 == 1) launch.function = MPT__FN_MIN;
        add(random_float(), MPT__READ, rank, shape, (layout)below(BROADCAST));
        int which = below(3);
        if (which != 0) {
            add(MPT_I64, MPT__WRITE, rank, out, out_layout());
        } else {
            add_absent();
        }
        if (which != 1) add(random_float(), MPT__WRITE, rank, out, out_layout());
        if (numel(0) > 3 && below(3) == 0) {
            int64_t zero[MPT_MAX_RANK] = {0};
            zero[axis] = shape[axis] / 2;
            set_value(0, zero, (double)NAN);
        }
        run();
        if (which != 0) check_output(1, want_argmax, 0);
        if (which != 1) check_output(2, want_argmax_value, 0);

        begin(MPT__K_SCATTER_AXIS);
        launch.index[0] = axis;
        add(MPT_I64, MPT__READ, rank, out, (layout)below(BROADCAST));
        add(random_float(), MPT__READ, rank, out, in_layout());
        add(random_float(), write_or_add(), rank, shape, out_layout());
        run();
        check_output(2, want_scatter, 0);
    }
}

static double want_cumsum(const int64_t *out) {
    int64_t index[MPT_MAX_RANK], n = launch.operand[0].shape[axis];
    double sum = 0;
    memcpy(index, out, sizeof index);
    for (int64_t i = launch.index[1] ? out[axis] : 0; i < (launch.index[1] ? n : out[axis] + 1);
         i++) {
        index[axis] = i;
        sum += old_value(0, index);
    }
    return sum;
}

TEST(cumsum) {
    REQUIRE(have_backends());
    for (int round = 0; round < 60; round++) {
        int64_t shape[MPT_MAX_RANK];
        int rank = random_shape(shape);
        if (rank == 0) shape[rank++] = 4;
        axis = below(rank);
        if (round < 4) rank = 1, axis = 0, shape[0] = 255 + round * 700;
        begin(MPT__K_CUMSUM);
        launch.index[0] = axis;
        launch.index[1] = round % 2;
        add(random_float(), MPT__READ, rank, shape, in_layout());
        int o = add(random_float(), write_or_add(), rank, shape, out_layout());
        run();
        check_output(o, want_cumsum, 2);
    }
}

static double want_gather(const int64_t *out) {
    int64_t index[MPT_MAX_RANK];
    memcpy(index, out, sizeof index);
    index[axis] = launch.operand[1].storage ? (int64_t)old_value(1, out)
                                            : launch.index[1] + launch.index[2] * out[axis];
    return old_value(0, index);
}
static double want_scatter_add(const int64_t *out) {
    int64_t index[MPT_MAX_RANK];
    double sum = old_value(2, out);
    memcpy(index, out, sizeof index);
    for (int64_t j = 0; j < launch.operand[0].shape[axis]; j++) {
        index[axis] = j;
        if (old_value(0, index) == (double)out[axis]) sum += old_value(1, index);
    }
    return sum;
}
static double want_triangle(const int64_t *out) {
    int rank = launch.operand[0].rank;
    int64_t above = out[rank - 1] - out[rank - 2] - launch.index[0];
    return above == 0 || (above > 0) == (launch.index[1] != 0) ? old_value(0, out) : 0;
}

/* Indices in 0 .. size-1, in all dimensions but one the same where `shared`. */
static void add_indices(int rank, const int64_t *shape, int64_t size, bool shared) {
    int64_t index[MPT_MAX_RANK] = {0};
    int o = add(MPT_I64, MPT__READ, rank, shape, shared ? PACKED : (layout)below(BROADCAST));
    for (int d = 0; d < rank && shared; d++)
        if (d != axis) launch.operand[o].stride[d] = 0;
    do { set_value(o, index, below((int)size)); } while (advance(index, shape, rank));
}

TEST(gather_and_scatter_add) {
    REQUIRE(have_backends());
    for (int round = 0; round < 120; round++) {
        int64_t shape[MPT_MAX_RANK], part[MPT_MAX_RANK];
        int rank = random_shape(shape);
        if (rank == 0) shape[rank++] = 4;
        axis = below(rank);
        if (round < 2) rank = 2, axis = 0, shape[0] = 30, shape[1] = round ? 77 : 200;
        memcpy(part, shape, sizeof part);
        part[axis] = 1 + below(9);
        bool empty = false;
        for (int d = 0; d < rank; d++) empty = empty || shape[d] == 0;
        if (empty) continue;
        begin(MPT__K_GATHER);
        launch.index[0] = axis;
        add(random_float(), MPT__READ, rank, shape, in_layout());
        if (round % 3 == 2) {
            add_absent();
            memcpy(part, shape, sizeof part);
            launch.index[1] = shape[axis] - 1;
            launch.index[2] = -1;
        } else {
            add_indices(rank, part, shape[axis], round % 3 == 1);
        }
        int o = add(random_float(), write_or_add(), rank, part, out_layout());
        run();
        check_output(o, want_gather, 1);

        begin(MPT__K_SCATTER_ADD);
        launch.index[0] = axis;
        part[axis] = round < 2 ? 101 : 1 + below(9);
        add_indices(rank, part, shape[axis], round % 2 == 1);
        add(random_float(), MPT__READ, rank, part, in_layout());
        o = add(MPT_F32, MPT__READ_WRITE, rank, shape, out_layout());
        run();
        check_output(o, want_scatter_add, 9);
    }
    scalars[MPT__SLOT_ERROR].i = 0;
    axis = 0;
    begin(MPT__K_GATHER); /* a bad index gives 0, and the error word names the first one */
    launch.number = 77;
    add1(MPT_F32, MPT__READ, 5);
    add1(MPT_I64, MPT__READ, 4);
    add1(MPT_F32, MPT__WRITE, 4);
    for (int64_t i = 0; i < 4; i++) set_at(1, i, (double)(i < 2 ? i : 3 + i));
    run();
    CHECK(at(2, 1) == old_at(0, 1) && at(2, 2) == 0 && at(2, 3) == 0);
    CHECK_EQ_INT(scalars[MPT__SLOT_ERROR].i, MPT_ERROR_INDEX);
    CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_LAUNCH].i, 77);
    CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_INDEX].i, -1 - 2);
    for (int shared = 0; shared < 2; shared++) { /* and adds nothing; 3 counts for its element */
        const int64_t shape[2] = {5, 40};
        begin(MPT__K_SCATTER_ADD);
        launch.number = 78;
        add_indices(2, shape, 5, shared != 0);
        add(MPT_F32, MPT__READ, 2, shape, PACKED);
        int o = add(MPT_F32, MPT__READ_WRITE, 2, shape, PACKED);
        for (int64_t i[2] = {0, 0}; i[0] < 5; i[0]++) {
            static const double some[5] = {3, -1, 3, 5, 9};
            for (i[1] = 0; i[1] < 40; i[1]++) set_value(0, i, some[i[0]]);
        }
        run();
        check_output(o, want_scatter_add, 5);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_LAUNCH].i, 78);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_INDEX].i, -1 - (shared ? 1 : 40));
    }
    scalars[MPT__SLOT_ERROR].i = 0;
}

TEST(triangles) {
    REQUIRE(have_backends());
    for (int round = 0; round < 60; round++) {
        int64_t shape[MPT_MAX_RANK];
        int rank = random_shape(shape);
        while (rank < 2) shape[rank++] = 1 + below(70);
        begin(MPT__K_TRIANGLE);
        launch.index[0] = below(5) - 2;
        launch.index[1] = round % 2;
        add(random_float(), MPT__READ, rank, shape, in_layout());
        int o = add(random_float(), write_or_add(), rank, shape, out_layout());
        run();
        check_output(o, want_triangle, 1);
    }
}

/* ==== GEMM ==== */

static double rounded(double x, int dtype) {
    unsigned char element[8];
    if (dtype == MPT_F32) return x;
    encode(element, dtype, x);
    return decode(element, dtype);
}

static double want_gemm(const int64_t *out) {
    /* Indexed by mpt_activation. */
    static const int functions[] = {
        0, MPT__FN_RELU, MPT__FN_GELU, MPT__FN_GELU_TANH, MPT__FN_TANH, MPT__FN_SIGMOID};
    int64_t a[MPT_MAX_RANK], b[MPT_MAX_RANK];
    int rank = launch.operand[3].rank;
    double sum = 0;
    memcpy(a, out, sizeof a);
    memcpy(b, out, sizeof b);
    for (int64_t k = 0; k < launch.operand[0].shape[rank - 1]; k++) {
        a[rank - 1] = b[rank - 2] = k;
        sum += rounded(old_value(0, a), launch.compute_dtype) *
               rounded(old_value(1, b), launch.compute_dtype);
    }
    sum *= launch.imm[0];
    if (launch.operand[2].storage != 0) { sum += rounded(old_value(2, out), launch.compute_dtype); }
    return launch.activation == 0 ? sum : apply(functions[launch.activation], sum, 0, 0);
}

TEST(gemm) {
    REQUIRE(have_backends());
    static const int64_t sizes[] = {1, 2, 7, 31, 33, 64, 65, 130, 0, 5};
    for (int round = 0; round < 60; round++) {
        int64_t m = sizes[below(10)], n = sizes[below(10)], k = sizes[below(10)];
        int64_t a[MPT_MAX_RANK], b[MPT_MAX_RANK], out[MPT_MAX_RANK];
        int batches = round < 30 ? 0 : below(4), rank = batches + 2, access = write_or_add();
        if (batches > 1) m = m > 7 ? 7 : m, n = n > 7 ? 7 : n;
        for (int d = 0; d < batches; d++) a[d] = b[d] = out[d] = 1 + below(3);
        a[rank - 2] = out[rank - 2] = m;
        a[rank - 1] = b[rank - 2] = k;
        b[rank - 1] = out[rank - 1] = n;
        begin(MPT__K_GEMM);
        launch.imm[0] = below(2) ? 1 : 0.5;
        launch.compute_dtype = (uint8_t)(MPT_F32 + below(3));
        add(random_float(), MPT__READ, rank, a, in_layout());
        add(random_float(), MPT__READ, rank, b, in_layout());
        if (below(2)) {
            add(random_float(), MPT__READ, rank, out, in_layout());
        } else {
            add_absent();
        }
        add(random_float(), access, rank, out, out_layout());
        if (access == MPT__WRITE) launch.activation = (uint8_t)below(6);
        run();
        check_output(3, want_gemm, 2 * sqrt((double)k) + 1);
    }
}

/* ==== Softmax ==== */

typedef struct line {
    double most, exps, sum, dot; /* of x; of exp(x - most); of dy; of x dy */
} line;
enum { LINES = 40 }; /* side by side, at most */

/* What the line of an element adds up to, counted when its first element is asked for:
   check_output goes through them in order. */
static line line_of(const int64_t *index) {
    static line lines[LINES];
    line *l = &lines[index[2]];
    int64_t i[3], n = launch.operand[0].shape[1];
    if (index[1] > 0) return *l;
    memcpy(i, index, sizeof i);
    l->most = -(double)INFINITY;
    l->exps = l->sum = l->dot = 0;
    for (i[1] = 0; i[1] < n; i[1]++) {
        double x = old_value(0, i);
        if (x > l->most) l->most = x;
    }
    for (i[1] = 0; i[1] < n; i[1]++) {
        double x = old_value(0, i);
        l->exps += exp(x - l->most);
        if (launch.kernel != MPT__K_SOFTMAX_BACKWARD) continue;
        l->sum += old_value(1, i);
        l->dot += x * old_value(1, i);
    }
    return *l;
}

static double want_softmax(const int64_t *index) {
    line l = line_of(index);
    double x = old_value(0, index) - l.most;
    return launch.function == MPT__FN_SOFTMAX ? exp(x) / l.exps : x - log(l.exps);
}

static double want_softmax_backward(const int64_t *index) {
    line l = line_of(index);
    double y = old_value(0, index), dy = old_value(1, index);
    return launch.function == MPT__FN_LOG_SOFTMAX ? dy - exp(y) * l.sum : y * (dy - l.dot);
}

TEST(softmax) {
    REQUIRE(have_backends());
    static const int64_t widths[] = {1, 2, 10, 255, 600, 1030, 64, 1200};
    for (int round = 0; round < 64; round++) {
        int64_t shape[3];
        in_eights = round / 8 % 2;
        shape[0] = below(5) + in_eights;
        shape[1] = widths[round % 8];
        shape[2] = in_eights ? 1 : round % 16 == 3 ? 40 : 1 + below(3);
        begin(round < 32 ? MPT__K_SOFTMAX : MPT__K_SOFTMAX_BACKWARD);
        launch.index[0] = 1;
        launch.function = (uint8_t)(MPT__FN_SOFTMAX + below(2));
        add(random_float(), MPT__READ, 3, shape, in_eights ? PACKED : in_layout());
        if (round < 32) {
            add(random_float(), MPT__WRITE, 3, shape, in_eights ? PACKED : out_layout());
            run();
            check_output(1, want_softmax, 4);
        } else {
            add(random_float(), MPT__READ, 3, shape, in_eights ? PACKED : in_layout());
            add(random_float(), write_or_add(), 3, shape, in_eights ? PACKED : out_layout());
            run();
            check_output(2, want_softmax_backward, 20);
        }
    }
}

TEST(softmax_edges) {
    REQUIRE(have_backends());
    int64_t shape[3] = {1, 3, 1};
    static const double rows[4][3] = {{1000, 1001, 1002}, {-1e30, 0, 1}, {0, 0, 0}, {-5, -6, -7}};
    for (int r = 0; r < 4; r++) {
        begin(MPT__K_SOFTMAX);
        launch.index[0] = 1;
        launch.function = MPT__FN_LOG_SOFTMAX;
        add(MPT_F32, MPT__READ, 3, shape, PACKED);
        add(MPT_F32, MPT__WRITE, 3, shape, PACKED);
        int64_t index[3] = {0, 0, 0};
        for (; index[1] < 3; index[1]++) set_value(0, index, rows[r][index[1]]);
        run();
        check_output(1, want_softmax, 0);
    }
    for (int r = 0; r < 3; r++) {
        begin(MPT__K_SOFTMAX);
        launch.index[0] = 1;
        launch.function = MPT__FN_SOFTMAX;
        add(MPT_F32, MPT__READ, 3, shape, PACKED);
        add(MPT_F32, MPT__WRITE, 3, shape, PACKED);
        int64_t index[3] = {0, 0, 0};
        for (; index[1] < 3; index[1]++) {
            double special = r == 0 ? -(double)INFINITY : r == 1 ? (double)NAN : (double)INFINITY;
            set_value(0, index, r == 0 || index[1] == 1 ? special : 0);
        }
        run();
        for (index[1] = 0; index[1] < 3; index[1]++) CHECK(mpt__f64_is_nan(value(1, index)));
    }
}

/* ==== Losses ==== */

static int64_t ignore_index;
static bool logits;

static int64_t target_of(int operand, int64_t row) {
    double t = old_at(operand, row);
    double classes = (double)launch.operand[logits || launch.kernel == MPT__K_NLL ? 0 : 4].shape[1];
    return t == (double)ignore_index || t < 0 || t >= classes ? -1 : (int64_t)t;
}
static double weight_of(int operand, int64_t c) {
    return launch.operand[operand].storage != 0 ? old_at(operand, c) : 1;
}
/* The log-sum-exp of a row; *largest (may be NULL) gets the maximum, its first part. */
static double row_log_sum_parts(int64_t row, double *largest) {
    double most = -(double)INFINITY, sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t c = 0; c < launch.operand[0].shape[1]; c++) {
            int64_t index[2];
            index[0] = row, index[1] = c;
            double x = old_value(0, index);
            if (pass == 0 && x > most) most = x;
            if (pass == 1) sum += exp(x - most);
        }
    }
    if (largest) *largest = most;
    return most + log(sum);
}
static double row_log_sum(int64_t row) { return row_log_sum_parts(row, NULL); }
static double want_log_sum(const int64_t *index) {
    double most, sum = row_log_sum_parts(index[0], &most);
    return index[1] == 0 ? most : sum - most;
}

static double row_loss(int64_t row) {
    int64_t t = target_of(1, row), index[2], classes = launch.operand[0].shape[1];
    double smoothing = logits ? launch.imm[0] : 0, base_of = logits ? row_log_sum(row) : 0, all = 0;
    if (t < 0) return 0;
    index[0] = row;
    for (index[1] = 0; index[1] < classes; index[1]++) {
        all += weight_of(2, index[1]) * (base_of - old_value(0, index));
    }
    index[1] = t;
    return (1 - smoothing) * weight_of(2, t) * (base_of - old_value(0, index)) +
           smoothing / (double)classes * all;
}
static double weight_total(void) {
    double sum = 0;
    for (int64_t row = 0; row < launch.operand[1].shape[0]; row++) {
        int64_t t = target_of(1, row);
        if (t >= 0) sum += weight_of(2, t);
    }
    return sum;
}
static double want_divisor(const int64_t *index) {
    (void)index;
    return launch.reduction == MPT_MEAN ? weight_total() : 1;
}
static double want_loss(const int64_t *index) {
    double sum = 0;
    if (launch.reduction == MPT_NONE) return row_loss(index[0]);
    for (int64_t row = 0; row < launch.operand[0].shape[0]; row++) sum += row_loss(row);
    return launch.reduction == MPT_MEAN ? sum / weight_total() : sum;
}

static void set_targets(int operand, int64_t classes) {
    for (int64_t i = 0; i < numel(operand); i++) {
        set_at(operand, i, below(6) == 0 ? (double)ignore_index : (double)below((int)classes));
    }
}

static void add_loss(int64_t rows, int64_t classes, mpt_reduction reduction, bool weighted) {
    begin(logits ? MPT__K_CROSS_ENTROPY : MPT__K_NLL);
    launch.reduction = (uint8_t)reduction;
    launch.index[0] = ignore_index;
    add2(random_float(), MPT__READ, rows, classes, in_layout());
    add1(MPT_I64, MPT__READ, rows);
    set_targets(1, classes);
    if (weighted) {
        add1(MPT_F32, MPT__READ, classes);
        for (int64_t c = 0; c < classes; c++) set_at(2, c, uniform(0.5, 2));
    } else {
        add_absent();
    }
    add1(MPT_F32, MPT__WRITE, reduction == MPT_NONE ? rows : 1);
    add1(MPT_F32, MPT__WRITE, 1);
    if (logits) add2(MPT_F32, MPT__WRITE, rows, 2, out_layout());
}

TEST(nll_and_cross_entropy) {
    REQUIRE(have_backends());
    for (int round = 0; round < 60; round++) {
        int64_t rows = round % 20 == 0 ? 1000 : below(20);
        int64_t classes = in_eights ? 8 * (1 + below(3)) : 1 + below(12);
        logits = below(2);
        if (round % 20 == 1) rows = 20, classes = 1200, logits = true, in_eights = round < 40;
        ignore_index = below(2) ? -100 : 0;
        add_loss(rows, classes, (mpt_reduction)below(3), below(2));
        if (logits && below(2)) launch.imm[0] = 0.1;
        run();
        double size = launch.reduction == MPT_SUM ? (double)rows : 4;
        check_output(3, want_loss, size);
        check_output(4, want_divisor, 0);
        if (logits) check_output(5, want_log_sum, 4);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR].i, 0);
    }
}

TEST(loss_edges) {
    REQUIRE(have_backends());
    for (int i = 0; i < 2; i++) {
        logits = i != 0;
        ignore_index = 2;
        add_loss(4, 3, MPT_MEAN, false); /* all ignored */
        for (int64_t row = 0; row < 4; row++) set_at(1, row, 2);
        run();
        CHECK(mpt__f64_is_nan(at(3, 0)) && at(4, 0) == 0);
        add_loss(4, 3, MPT_SUM, false);
        for (int64_t row = 0; row < 4; row++) set_at(1, row, 2);
        run();
        CHECK(at(3, 0) == 0 && at(4, 0) == 1);
        add_loss(0, 3, MPT_MEAN, false); /* no samples */
        run();
        CHECK(mpt__f64_is_nan(at(3, 0)));

        ignore_index = -100;
        add_loss(100, 3, MPT_MEAN, true); /* bad targets: the first one is named, all are ignored */
        set_at(1, 70, 3);
        set_at(1, 41, -1);
        run();
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR].i, MPT_ERROR_INDEX);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_LAUNCH].i, 77);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_INDEX].i, 41);
        check_output(3, want_loss, 4);
        check_output(4, want_divisor, 0);
        scalars[MPT__SLOT_ERROR].i = MPT_ERROR_NUMERIC; /* the first error stays */
        scalars[MPT__SLOT_ERROR_INDEX].i = 5;
        run();
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR].i, MPT_ERROR_NUMERIC);
        CHECK_EQ_INT(scalars[MPT__SLOT_ERROR_INDEX].i, 5);
    }
    static const double smoothing[2] = {0, 0.1}, want[2] = {.40760596444, .50760596444};
    for (int i = 0; i < 4; i++) { /* logits 1, 2, 3 with target 2, also far from zero */
        double shift = i < 2 ? 0 : 4096;
        begin(MPT__K_CROSS_ENTROPY);
        launch.index[0] = -100;
        launch.imm[0] = smoothing[i % 2];
        add2(MPT_F32, MPT__READ, 1, 3, PACKED);
        add1(MPT_I64, MPT__READ, 1);
        add_absent();
        add1(MPT_F32, MPT__WRITE, 1);
        add1(MPT_F32, MPT__WRITE, 1);
        add2(MPT_F32, MPT__WRITE, 1, 2, PACKED);
        int64_t index[2] = {0, 0};
        for (; index[1] < 3; index[1]++) set_value(0, index, shift + 1 + (double)index[1]);
        set_at(1, 0, 2);
        run();
        CHECK_CLOSE(at(3, 0), want[i % 2], 3e-7, 0.0);
    }
}

/* First operand of targets, weights, divisor, dloss in the two backward kernels. */
static int targets_at;

static double row_gradient(int64_t row) {
    double g = old_at(targets_at + 3, launch.reduction == MPT_NONE ? row : 0);
    return launch.reduction == MPT_MEAN ? g / old_at(targets_at + 2, 0) : g;
}
static double want_loss_backward(const int64_t *index) {
    int64_t t = target_of(targets_at, index[0]);
    double hit = index[1] == t ? 1 : 0;
    if (t < 0) return 0;
    double g = row_gradient(index[0]), w = weight_of(targets_at + 1, t);
    if (!logits) return -g * w * hit;
    double classes = (double)launch.operand[0].shape[1], all = 0, smoothing = launch.imm[0];
    int64_t part[2] = {index[0], 0};
    double log_sum = launch.operand[5].storage != 0 ? old_value(5, part) : 0;
    part[1] = 1;
    if (launch.operand[5].storage != 0) log_sum += old_value(5, part);
    double p = exp(old_value(0, index) - log_sum);
    for (int64_t c = 0; c < launch.operand[0].shape[1]; c++) all += weight_of(targets_at + 1, c);
    return g * ((1 - smoothing) * w * (p - hit) +
                smoothing / classes * (p * all - weight_of(targets_at + 1, index[1])));
}

TEST(loss_backward) {
    REQUIRE(have_backends());
    for (int round = 0; round < 60; round++) {
        int64_t rows = below(20), classes = in_eights ? 8 * (1 + below(3)) : 1 + below(12);
        logits = below(2);
        if (round % 10 == 0) classes = 1200, logits = round < 40, in_eights = round % 20 != 0;
        targets_at = logits ? 1 : 0;
        ignore_index = below(2) ? -100 : 0;
        begin(logits ? MPT__K_CROSS_ENTROPY_BACKWARD : MPT__K_NLL_BACKWARD);
        launch.reduction = (uint8_t)below(3);
        launch.index[0] = ignore_index;
        if (logits) launch.imm[0] = below(2) ? 0.2 : 0;
        if (logits) add2(random_float(), MPT__READ, rows, classes, in_layout());
        add1(MPT_I64, MPT__READ, rows);
        set_targets(targets_at, classes);
        if (rows > 3) set_at(targets_at, 3, (double)classes); /* bad: counts as ignored */
        if (below(2)) {
            add1(MPT_F32, MPT__READ, classes);
        } else {
            add_absent();
        }
        add1(MPT_F32, MPT__READ, 1);
        set_at(targets_at + 2, 0, round % 7 == 0 ? 0 : 3.5);
        add1(MPT_F32, MPT__READ, launch.reduction == MPT_NONE ? rows : 1);
        if (logits && below(2)) {
            add2(MPT_F32, MPT__READ, rows, 2, in_layout());
        } else if (logits) {
            add_absent();
        }
        int o = add2(random_float(), write_or_add(), rows, classes, out_layout());
        if (round % 7 == 0 && launch.reduction == MPT_MEAN) { /* all ignored: zeros, never 0 / 0 */
            for (int64_t row = 0; row < rows; row++) set_at(targets_at, row, -1);
        }
        run();
        check_output(o, want_loss_backward, 20);
    }
}

/* ==== Gradients and optimizers ==== */

enum { LR = 20, MULTIPLIER, FOUND_INF, NORM, APPLIED, START };

static const int64_t segments[] = {3, 5000, 0, 0, 5010, 1, 1, 0, 5020, 0, 1, 0, 5104, 9000, 2, 0};

static bool in_segment(int64_t i, int64_t *step) {
    for (int s = 0; s < 4; s++) {
        *step = segments[s * 4 + 2];
        if (i >= segments[s * 4] && i < segments[s * 4] + segments[s * 4 + 1]) return true;
    }
    return false;
}

TEST(grad_norm_and_scale) {
    REQUIRE(have_backends());
    for (int round = 0; round < 9; round++) {
        int64_t n = 15000, step;
        double sum = 0, multiplier = round == 1 ? 1e30 : 0.25;
        begin(MPT__K_GRAD_NORM);
        add1(MPT_F32, MPT__READ, n);
        add_segments(segments, 4);
        launch.slot[0] = round == 7 ? 0 : MULTIPLIER;
        launch.slot[1] = FOUND_INF;
        launch.slot[2] = NORM;
        if (round == 7) multiplier = 1;
        scalars[MULTIPLIER].f = multiplier;
        if (round == 1) set_at(0, 100, 3e38); /* finite until it is multiplied */
        if (round == 2) set_at(0, 6000, (double)INFINITY);
        if (round == 3) set_at(0, 5010, (double)NAN);
        if (round == 4) set_at(0, 0, (double)INFINITY); /* in a gap */
        if (round == 5) launch.slot[1] = 0;
        if (round == 6) launch.slot[2] = 0;
        if (round == 8) { /* a loss scale: whatever stood there before */
            launch.slot[3] = START;
            scalars[START].f = 3;
            scalars[FOUND_INF].i = 1;
            multiplier = (double)(float)(1.0 / 3);
        }
        for (int64_t i = 0; i < n; i++) {
            if (in_segment(i, &step)) sum += at(0, i) * at(0, i) * multiplier * multiplier;
        }
        run();
        bool overflow = round == 1 && sizeof(mpt__real) == 4;
        CHECK_EQ_INT(scalars[FOUND_INF].i, overflow || round == 2 || round == 3);
        if (round == 0 || round == 4 || round == 5 || round == 7 || round == 8) {
            CHECK_CLOSE(scalars[NORM].f, sqrt(sum), 1e-6, 0.0);
        }
        if (round == 8) CHECK(scalars[MULTIPLIER].f == multiplier);
        if (round == 6) CHECK(scalars[NORM].f == 0);
    }
    for (int round = 0; round < 12; round++) { /* the other norms, alone or joined to one */
        const bool most = round % 2 != 0, joined = round % 4 > 1;
        const int bad = round / 4;
        int64_t n = 15000, step;
        double want = joined ? 0.2 : 0;
        begin(MPT__K_GRAD_NORM);
        add1(MPT_F32, MPT__READ, n);
        add_segments(segments, 4);
        launch.slot[0] = MULTIPLIER, launch.slot[1] = FOUND_INF, launch.slot[2] = NORM;
        launch.index[0] = joined, launch.index[1] = most ? MPT__NORM_MAX : MPT__NORM_1;
        scalars[MULTIPLIER].f = -0.25;
        scalars[NORM].f = 0.2;
        if (bad) set_at(0, 6000, bad == 1 ? -(double)INFINITY : (double)NAN);
        for (int64_t i = 0; i < n; i++) {
            double size = in_segment(i, &step) ? fabs(at(0, i)) / 4 : 0;
            want = !most ? want + size : size > want ? size : want;
        }
        run();
        CHECK_EQ_INT(scalars[FOUND_INF].i, bad != 0);
        if (bad == 0) CHECK_CLOSE(scalars[NORM].f, want, 1e-6, 0.0);
        if (bad == 1) CHECK(scalars[NORM].f == (double)INFINITY);
        if (bad == 2) CHECK(scalars[NORM].f != scalars[NORM].f);
    }
    for (int round = 0; round < 2; round++) {
        int64_t n = 15000, step;
        begin(MPT__K_GRAD_SCALE);
        add1(MPT_F32, MPT__READ_WRITE, n);
        add_segments(segments, 4);
        launch.slot[0] = MULTIPLIER;
        scalars[MULTIPLIER].f = 0.5;
        launch.imm[0] = round ? 0.25 : 0;
        set_at(0, 50, (double)NAN);
        run();
        int wrong = 0;
        for (int64_t i = 0; i < n; i++) {
            double x = old_at(0, i), want = in_segment(i, &step) ? x * 0.5 : x;
            if (round && in_segment(i, &step) && want > 0.25) want = 0.25;
            if (round && in_segment(i, &step) && want < -0.25) want = -0.25;
            wrong += !(at(0, i) == want || (want != want && at(0, i) != at(0, i)));
        }
        CHECK_EQ_INT(wrong, 0);
        check_gaps(0);
    }
}

/* Long, short and empty ones, with gaps between them and without. */
TEST(many_segments) {
    REQUIRE(have_backends());
    enum { MANY = 100 };
    int64_t rows[MANY * 4] = {0}, n = 0, wrong = 0;
    double sum = 9;
    for (int64_t *row = rows; row < rows + MANY * 4; row += 4) {
        row[0] = n = n % 3 == 0 ? (n + 7) / 8 * 8 : n + below(2);
        row[1] = below(9) == 0 ? below(9000) : below(40);
        n += row[1];
    }
    for (int scale = 0; scale < 2; scale++) {
        begin(scale ? MPT__K_GRAD_SCALE : MPT__K_GRAD_NORM);
        add1(MPT_F32, scale ? MPT__READ_WRITE : MPT__READ, n + 5);
        add_segments(rows, MANY);
        launch.slot[0] = MULTIPLIER;
        scalars[MULTIPLIER].f = 0.5;
        launch.slot[2] = NORM;
        scalars[NORM].f = 3;
        launch.index[0] = 1;
        run();
        for (int64_t i = 0, s = 0; i < n + 5; i++) {
            while (s < MANY - 1 && i >= rows[s * 4] + rows[s * 4 + 1]) s++;
            bool mine = i >= rows[s * 4] && i < rows[s * 4] + rows[s * 4 + 1];
            if (mine && !scale) sum += old_at(0, i) * old_at(0, i) / 4;
            if (scale) wrong += at(0, i) != old_at(0, i) * (mine ? 0.5 : 1);
        }
        if (!scale) CHECK_CLOSE(scalars[NORM].f, sqrt(sum), 1e-6, 0.0);
    }
    CHECK_EQ_INT(wrong, 0);
}

typedef struct update_case {
    const char *name;
    bool adam;
    double lr, imm[4];
    int64_t variant; /* Nesterov; decoupled decay */
    double want[4];
} update_case;

/* amp-spec 3: p0 = 1, gradients .1, -.2, .3, 0. */
static const update_case traces[] = {
    {"adam",
     true,
     1e-3,
     {.9, .999, 1e-8, 0},
     0,
     {.999000000100, .999366103604, .999022862539, .998741700347}},
    {"adam, decay",
     true,
     1e-3,
     {.9, .999, 1e-8, .01},
     0,
     {.999000000091, .999308500510, .998924857375, .998595421743}},
    {"adamw",
     true,
     1e-3,
     {.9, .999, 1e-8, .01},
     1,
     {.998990000100, .999346113704, .998992879178, .998701727057}},
    {"sgd", false, .1, {.9, 0, 0, 0}, 0, {.990, 1.001, .9809, .96281}},
    {"nesterov", false, .1, {.9, 0, 0, 0}, 1, {.981, 1.0109, .96281, .946529}},
    {"dampening", false, .1, {.9, .5, 0, 0}, 0, {.990, .991, .9769, .96421}},
};

/* params of `dtype`, with a master where `master`, and everything else of an update. */
static void add_update(const update_case *c, int64_t n, int dtype, bool master, bool momentum) {
    begin(c->adam ? MPT__K_ADAM : MPT__K_SGD);
    add1(dtype, MPT__READ_WRITE, n);
    if (master) {
        add1(MPT_F32, MPT__READ_WRITE, n);
    } else {
        add_absent();
    }
    add1(MPT_F32, MPT__READ, n);
    if (momentum) {
        add1(MPT_F32, MPT__READ_WRITE, n);
    } else {
        add_absent();
    }
    memcpy(launch.imm, c->imm, sizeof launch.imm);
    launch.index[0] = c->variant;
    launch.slot[0] = LR;
    launch.slot[1] = MULTIPLIER;
    launch.slot[2] = FOUND_INF;
    scalars[LR].f = c->lr;
    scalars[MULTIPLIER].f = 1;
}

TEST(optimizer_traces) {
    REQUIRE(have_backends());
    static const double gradients[4] = {.1, -.2, .3, 0};
    static const int64_t one[4] = {0, 1, 0, 0};
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        double p = 1, m = 0, v = 0;
        for (int t = 0; t < 4; t++) {
            add_update(&traces[i], 1, MPT_F32, false, true);
            add_segments(one, 1);
            add1(MPT_I64, MPT__READ, 1);
            if (traces[i].adam) add1(MPT_F32, MPT__READ_WRITE, 1);
            set_at(0, 0, p);
            set_at(2, 0, gradients[t]);
            set_at(3, 0, t == 0 && !traces[i].adam ? 123 : m); /* SGD's first step ignores it */
            set_at(5, 0, t);
            if (traces[i].adam) set_at(6, 0, v);
            run();
            p = at(0, 0);
            m = at(3, 0);
            if (traces[i].adam) v = at(6, 0);
            if (fabs(p - traces[i].want[t]) > 2.5e-7) {
                TEST_FAIL_("%s, step %d: %.9g, expected %.9g", traces[i].name, t + 1, p,
                           traces[i].want[t]);
            }
        }
    }
}

TEST(optimizers_keep_masters_and_gaps) {
    REQUIRE(have_backends());
    for (int round = 0; round < 24; round++) {
        update_case c = traces[round % 6];
        int64_t n = 15000, step;
        static const int dtypes[3] = {MPT_F32, MPT_F16, MPT_BF16};
        int dtype = dtypes[round % 3], wrong = 0;
        bool master = round % 4 < 2, momentum = c.adam || below(2);
        c.imm[c.adam ? 3 : 2] = 0.01;
        if (!momentum) c.imm[0] = 0, c.variant = 0;
        add_update(&c, n, dtype, master, momentum);
        add_segments(segments, 4);
        add1(MPT_I64, MPT__READ, 3);
        if (c.adam) add1(MPT_F32, MPT__READ_WRITE, n);
        for (int64_t i = 0; i < n && c.adam; i++) set_at(6, i, uniform(0.1, 1));
        for (int s = 0; s < 3; s++) set_at(5, s, s);
        scalars[MULTIPLIER].f = 0.5;
        run();
        for (int64_t i = 0; i < n; i++) {
            double p = old_at(master ? 1 : 0, i), g = old_at(2, i) * 0.5, m = 0, v = 0, want;
            bool mine = in_segment(i, &step);
            if (momentum) m = old_at(3, i);
            want = p;
            if (mine && c.adam) {
                double t = (double)step + 1;
                if (c.variant) want -= c.lr * c.imm[3] * want;
                if (!c.variant) g += c.imm[3] * p;
                m = c.imm[0] * m + (1 - c.imm[0]) * g;
                v = c.imm[1] * old_at(6, i) + (1 - c.imm[1]) * g * g;
                want -= c.lr / (1 - pow(c.imm[0], t)) * m /
                        (sqrt(v) / sqrt(1 - pow(c.imm[1], t)) + c.imm[2]);
                wrong += fabs(at(6, i) - v) > 1e-6;
            } else if (mine) {
                g += c.imm[2] * p;
                m = step == 0 ? g : c.imm[0] * m + (1 - c.imm[1]) * g;
                want -= c.lr * (!momentum ? g : c.variant ? g + c.imm[0] * m : m);
            }
            if (momentum) wrong += fabs(at(3, i) - m) > 1e-6;
            if (master) wrong += fabs(at(1, i) - want) > 1e-6;
            if (master && mine) wrong += at(0, i) != rounded(at(1, i), dtype);
            if (!mine) wrong += at(0, i) != old_at(0, i);
            if (!master) wrong += !close_to(at(0, i), want, dtype, 1);
        }
        if (wrong) TEST_FAIL_("%s, round %d: %d elements are wrong", c.name, round, wrong);
        check_gaps(0);
    }
}

typedef struct moments_case {
    mpt__function function;
    double imm[4];
    int64_t variant;
    int has; /* bits: which of the three moments */
} moments_case;

static const moments_case moments_cases[] = {
    {MPT__FN_AMSGRAD, {.9, .99, 1e-3, .01}, 0, 7}, {MPT__FN_AMSGRAD, {.8, .9, 1e-3, .01}, 1, 7},
    {MPT__FN_RMSPROP, {0, .9, 1e-3, .01}, 0, 1},   {MPT__FN_RMSPROP, {.9, .9, 1e-3, .01}, 0, 3},
    {MPT__FN_RMSPROP, {0, .9, 1e-3, 0}, 1, 5},     {MPT__FN_RMSPROP, {.5, .9, 1e-3, .01}, 1, 7},
    {MPT__FN_ADAGRAD, {.1, 1e-3, .01, 0}, 0, 1},   {MPT__FN_ADADELTA, {.9, 1e-3, .01, 0}, 0, 3},
    {MPT__FN_LION, {.9, .99, .01, 0}, 0, 1},
};

/* What an update makes of p and its three moments; g has its multiplier. */
static void expect_moments(const moments_case *c, double lr, double steps, double g, double *p,
                           double m[3]) {
    const double *k = c->imm;
    bool adam = c->function == MPT__FN_AMSGRAD, rms = c->function == MPT__FN_RMSPROP;
    double decay = k[adam || rms ? 3 : 2];
    if (c->function == MPT__FN_LION || (adam && c->variant)) {
        *p -= lr * decay * *p;
    } else {
        g += decay * *p;
    }
    if (adam) {
        m[0] = k[0] * m[0] + (1 - k[0]) * g;
        m[1] = k[1] * m[1] + (1 - k[1]) * g * g;
        m[2] = m[2] > m[1] ? m[2] : m[1];
        *p -= lr / (1 - pow(k[0], steps + 1)) * m[0] /
              (sqrt(m[2]) / sqrt(1 - pow(k[1], steps + 1)) + k[2]);
    } else if (rms) {
        m[0] = k[1] * m[0] + (1 - k[1]) * g * g;
        if (c->variant) m[2] = k[1] * m[2] + (1 - k[1]) * g;
        double d = g / (sqrt(m[0] - (c->variant ? m[2] * m[2] : 0)) + k[2]);
        if (k[0] != 0) d = m[1] = k[0] * m[1] + d;
        *p -= lr * d;
    } else if (c->function == MPT__FN_ADAGRAD) {
        m[0] += g * g;
        *p -= lr / (1 + steps * k[0]) * g / (sqrt(m[0]) + k[1]);
    } else if (c->function == MPT__FN_ADADELTA) {
        m[0] = k[0] * m[0] + (1 - k[0]) * g * g;
        double d = sqrt(m[1] + k[1]) / sqrt(m[0] + k[1]) * g;
        m[1] = k[0] * m[1] + (1 - k[0]) * d * d;
        *p -= lr * d;
    } else {
        double d = k[0] * m[0] + (1 - k[0]) * g;
        m[0] = k[1] * m[0] + (1 - k[1]) * g;
        *p -= lr * (d > 0 ? 1 : d < 0 ? -1 : 0);
    }
}

/* Segments, masters, maximize and counts of all of them; and nothing while found_inf is set. */
TEST(moments) {
    REQUIRE(have_backends());
    enum { CASES = sizeof moments_cases / sizeof *moments_cases };
    for (int round = 0; round < 4 * CASES; round++) {
        const moments_case *c = &moments_cases[round % CASES];
        static const int dtypes[3] = {MPT_F32, MPT_F16, MPT_BF16}, position[3] = {3, 6, 8};
        const int64_t n = 15000;
        int dtype = dtypes[round % 3], wrong = 0;
        bool master = below(2) != 0, up = below(2) != 0, skip = below(4) == 0;
        begin(MPT__K_MOMENTS);
        add1(dtype, MPT__READ_WRITE, n);
        if (master) {
            add1(MPT_F32, MPT__READ_WRITE, n);
        } else {
            add_absent();
        }
        add1(MPT_F32, MPT__READ, n);
        for (int k = 0; k < 3; k++) {
            if (k == 1) {
                add_segments(segments, 4);
                add1(MPT_I64, MPT__READ_WRITE, 3);
            }
            if (k == 2) add_absent();
            if (c->has & 1 << k) {
                add1(MPT_F32, MPT__READ_WRITE, n);
            } else {
                add_absent();
            }
            /* v above the square of the mean */
            for (int64_t i = 0; i < n && (c->has & 1 << k); i++)
                set_at(position[k], i, uniform(0.1, 0.5) + (k == 0 ? 0.5 : 0));
        }
        for (int s = 0; s < 3; s++) set_at(5, s, s);
        memcpy(launch.imm, c->imm, sizeof launch.imm);
        launch.function = (uint8_t)c->function;
        launch.index[0] = c->variant, launch.index[1] = 2, launch.index[2] = up;
        launch.slot[0] = LR, launch.slot[1] = MULTIPLIER, launch.slot[2] = FOUND_INF;
        launch.slot[3] = APPLIED;
        scalars[LR].f = 0.1, scalars[MULTIPLIER].f = 0.5, scalars[FOUND_INF].i = skip;
        scalars[APPLIED].i = 5;
        run();
        CHECK_EQ_INT(scalars[APPLIED].i, skip ? 5 : 6);
        for (int64_t i = 0, step; i < n; i++) {
            double m[3] = {0}, p = old_at(master ? 1 : 0, i);
            bool mine = in_segment(i, &step) && !skip;
            for (int k = 0; k < 3; k++)
                if (c->has & 1 << k) m[k] = old_at(position[k], i);
            if (mine) expect_moments(c, 0.1, (double)step, old_at(2, i) * (up ? -0.5 : 0.5), &p, m);
            for (int k = 0; k < 3; k++)
                if (c->has & 1 << k) wrong += fabs(at(position[k], i) - m[k]) > 2e-6;
            if (master) wrong += fabs(at(1, i) - p) > 2e-6;
            if (master && mine) wrong += at(0, i) != rounded(at(1, i), dtype);
            if (!mine) wrong += at(0, i) != old_at(0, i);
            if (!master) wrong += !close_to(at(0, i), p, dtype, 2);
        }
        if (wrong) TEST_FAIL_("case %d, round %d: %d are wrong", round % CASES, round, wrong);
        check_gaps(0);
    }
}

/* Rows: n, form, decay, the new value's weight. What stands in slot START was seen. */
TEST(averages) {
    REQUIRE(have_backends());
    static const double rows[][4] = {{0, 0, .9, 1},
                                     {3, 0, .9, .1},
                                     {2, 1, .9, .75},
                                     {1000, 1, .9, .1},
                                     {0, 1, .9, 1},
                                     {4, 2, .9, .2},
                                     {5, 0, .5, 0 /* no step */},
                                     {5, 0, .5, 0 /* error */}};
    static const int dtypes[3] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int round = 0; round < 24; round++) {
        const double *row = rows[round % 8];
        const int64_t n = round < 8 ? 9000 : 1 + below(300);
        begin(MPT__K_AVERAGE);
        add1(MPT_F32, MPT__READ_WRITE, n);
        add1(dtypes[round / 8], MPT__READ, n);
        launch.slot[0] = APPLIED, launch.slot[1] = START, launch.slot[2] = NORM;
        launch.imm[0] = row[2];
        launch.index[0] = (int64_t)row[1], launch.index[1] = round % 3 != 0;
        scalars[APPLIED].i = 7, scalars[START].i = round % 8 == 6 ? 7 : 5;
        scalars[NORM].i = (int64_t)row[0];
        if (round % 8 == 7) scalars[MPT__SLOT_ERROR].i = MPT_ERROR_INDEX;
        run();
        int wrong = 0;
        for (int64_t i = 0; i < n; i++) {
            double old = old_at(0, i), new_value = at(1, i);
            double want = row[3] == 1 ? new_value : old + row[3] * (new_value - old);
            wrong += row[3] == 0 || row[3] == 1 ? at(0, i) != want : fabs(at(0, i) - want) > 1e-6;
        }
        if (wrong) TEST_FAIL_("round %d: %d are wrong", round, wrong);
        bool moved = row[3] != 0 && launch.index[1] == 1;
        CHECK_EQ_INT(scalars[START].i, moved ? 7 : round % 8 == 6 ? 7 : 5);
        CHECK_EQ_INT(scalars[NORM].i, (int64_t)row[0] + moved);
    }
}

/* Nothing may change while the error word or found_inf is set. */
TEST(gates) {
    REQUIRE(have_backends());
    static const int64_t rows[8] = {0, 10, 0, 0, 10, 5, 1, 0};
    for (int kernel = 0; kernel < 2; kernel++) {
        for (int gate = 0; gate < 3; gate++) {
            add_update(&traces[kernel == 0 ? 0 : 3], 20, MPT_F16, true, true);
            add_segments(rows, 2);
            add1(MPT_I64, MPT__READ_WRITE, 2);
            if (kernel == 0) add1(MPT_F32, MPT__READ_WRITE, 20);
            launch.index[1] = 2;
            launch.slot[3] = APPLIED;
            if (gate == 1) scalars[MPT__SLOT_ERROR].i = MPT_ERROR_INDEX;
            if (gate == 2) scalars[FOUND_INF].i = 2;
            run();
            int changed = memcmp(scalars, scalars_before, sizeof scalars) != 0;
            for (int s = 1; s < STORAGES; s++) {
                if (memory[s] != NULL) changed |= memcmp(memory[s], before[s], bytes[s]) != 0;
            }
            CHECK_EQ_INT(changed, gate == 0);
        }
    }
}

/* The counts that segments name go up after the update, with the last launch the steps too. */
TEST(updates_commit) {
    REQUIRE(have_backends());
    static const int64_t rows[] = {0, 1, 4, 1, 1, 1, 0, 2, 2, 1, 2, 1};
    for (int adam = 0; adam < 2; adam++) {
        for (int commit = 0; commit < 3; commit++) {
            add_update(&traces[adam ? 0 : 3], 3, MPT_F32, false, true);
            add_segments(rows, 3);
            add1(MPT_I64, MPT__READ_WRITE, 5);
            if (adam) add1(MPT_F32, MPT__READ_WRITE, 3);
            launch.index[1] = commit;
            launch.slot[3] = APPLIED;
            scalars[APPLIED].i = 9;
            for (int64_t i = 0; i < 5; i++) set_at(5, i, 10);
            run();
            for (int64_t i = 0; i < 5; i++) CHECK(at(5, i) == 10 + (commit > 0 && i != 3));
            CHECK_EQ_INT(scalars[APPLIED].i, commit == 2 ? 10 : 9);
        }
    }
}

TEST(rates_from_a_table_and_clip) {
    REQUIRE(have_backends());
    static const int64_t one[4] = {0, 1, 0, 1}, counts[] = {5, 6, 7, 100, 0};
    static const double want[] = {.5, .25, .125, .125, .5};
    for (int i = 0; i < 5; i++) {
        add_update(&traces[3], 1, MPT_F32, false, false);
        add_segments(one, 1);
        add1(MPT_I64, MPT__READ_WRITE, 1);
        add_absent();
        add1(MPT_F64, MPT__READ, 3);
        for (int64_t k = 0; k < 3; k++) set_at(7, k, want[k]);
        set_at(0, 0, 1);
        set_at(2, 0, 1);
        launch.imm[0] = 0;
        launch.slot[3] = APPLIED;
        launch.slot[4] = START;
        scalars[APPLIED].i = counts[i];
        scalars[START].i = 5;
        run();
        CHECK(at(0, 0) == 1 - want[i]);
    }
    static const double norms[] = {10, 0.5, 0};
    for (int i = 0; i < 4; i++) {
        double norm = i < 3 ? norms[i] : (double)INFINITY;
        begin(MPT__K_CLIP);
        if (i != 1) add1(MPT_F32, MPT__WRITE, 1);
        launch.imm[0] = 2;
        launch.slot[0] = MULTIPLIER;
        launch.slot[1] = NORM;
        scalars[MULTIPLIER].f = 0.5;
        scalars[NORM].f = norm;
        run();
        CHECK_CLOSE(scalars[MULTIPLIER].f, norm > 2 ? 0.5 * 2 / norm : 0.5, 1e-6, 0.0);
        if (i != 1) CHECK(at(0, 0) == norm);
    }
    /* PyTorch's 1e-6 beside the norm is half of it here, and all of it where there is none. */
    static const double small[][3] = {{1e-6, 1e-6, 0.5}, {2e-6, 1e-6, 1.0 / 3}, {0, 0, 0}};
    for (int i = 0; i < 3; i++) {
        begin(MPT__K_CLIP);
        launch.imm[0] = small[i][1];
        launch.slot[0] = MULTIPLIER;
        launch.slot[1] = NORM;
        scalars[MULTIPLIER].f = 1;
        scalars[NORM].f = small[i][0];
        run();
        CHECK_CLOSE(scalars[MULTIPLIER].f, small[i][2], 1e-6, 0.0);
    }
}

/* ==== Scaler and scalars ==== */

enum { SCALE = 40, TRACKER, FOUND, UPDATES, SKIPPED, ROW, LAST, OUTCOME };

static void begin_update(double floor_scale, double ceiling, int64_t interval, bool fixed) {
    begin(MPT__K_SCALER_UPDATE);
    for (int i = 0; i < 8; i++) launch.slot[i] = (uint16_t)(SCALE + i);
    launch.imm[0] = 2;
    launch.imm[1] = 0.5;
    launch.imm[2] = floor_scale;
    launch.imm[3] = ceiling;
    launch.index[0] = interval;
    launch.index[1] = fixed;
}
static void update(bool found) {
    scalars[FOUND].i = found;
    run();
}

TEST(scaler_update) {
    REQUIRE(have_backends());
    begin_update(0, 0, 3, false);
    scalars[SCALE].f = 65536;
    for (int i = 0; i < 3; i++) update(false);
    CHECK(scalars[SCALE].f == 131072 && scalars[TRACKER].i == 0);
    CHECK_EQ_INT(scalars[OUTCOME].i, MPT_OUTCOME_APPLIED);
    update(false);
    update(true);
    update(true);
    CHECK(scalars[SCALE].f == 32768 && scalars[TRACKER].i == 0);
    CHECK(scalars[UPDATES].i == 6 && scalars[SKIPPED].i == 2 && scalars[ROW].i == 2);
    CHECK(scalars[LAST].i == 6 && scalars[OUTCOME].i == MPT_OUTCOME_SKIPPED);
    update(false);
    CHECK(scalars[ROW].i == 0 && scalars[SKIPPED].i == 2 && scalars[LAST].i == 6);
    launch.index[0] = 1; /* an interval below the tracker still grows */
    scalars[TRACKER].i = 10;
    update(false);
    CHECK(scalars[SCALE].f == 65536 && scalars[TRACKER].i == 0);

    begin_update(0, 0, 1, false); /* no floor, no ceiling: saturates at 2^127, sinks to 0 */
    scalars[SCALE].f = 65536;
    for (int i = 0; i < 120; i++) update(false);
    CHECK(scalars[SCALE].f == ldexp(1, 127));
    scalars[SCALE].f = 65536;
    for (int i = 0; i < 165; i++) update(true);
    CHECK(scalars[SCALE].f == ldexp(1, -149));
    update(true);
    CHECK(scalars[SCALE].f == 0);

    begin_update(1, 16777216, 1, false);
    scalars[SCALE].f = 3;
    for (int i = 0; i < 5; i++) update(true);
    CHECK(scalars[SCALE].f == 1);
    for (int i = 0; i < 40; i++) update(false);
    CHECK(scalars[SCALE].f == 16777216);
    scalars[SCALE].f = 0.25; /* set by hand beyond the limits: never moved the wrong way */
    update(true);
    CHECK(scalars[SCALE].f == 0.25);
    scalars[SCALE].f = 1e9;
    update(false);
    CHECK(scalars[SCALE].f == 1e9);

    begin_update(1, 0, 1, true); /* fixed */
    scalars[SCALE].f = 1e4;
    update(true);
    update(false);
    CHECK(scalars[SCALE].f == 1e4 && scalars[SKIPPED].i == 1 && scalars[UPDATES].i == 2);

    begin_update(0, 0, 3, false); /* an odd factor is rounded to float */
    launch.imm[1] = 0.3;
    scalars[SCALE].f = 65536;
    update(true);
    CHECK(scalars[SCALE].f == (double)(float)(65536 * 0.3));

    begin_update(0, 0, 1, false); /* the error word stops everything */
    scalars[SCALE].f = 65536;
    scalars[MPT__SLOT_ERROR].i = MPT_ERROR_INDEX;
    update(true);
    CHECK(memcmp(scalars, scalars_before, sizeof scalars) == 0);
}

TEST(scalar_kernels) {
    REQUIRE(have_backends());
    begin(MPT__K_SCALAR_SET);
    launch.slot[0] = 30;
    launch.imm[0] = 2.5;
    run();
    CHECK(scalars[30].f == 2.5);
    launch.index[0] = 1;
    launch.index[1] = -7;
    run();
    CHECK_EQ_INT(scalars[30].i, -7);
    for (int i = 0; i < 4; i++) {
        begin(MPT__K_SCALAR_OR);
        launch.slot[0] = 30;
        launch.slot[1] = 31;
        launch.slot[2] = 32;
        scalars[31].i = i & 1 ? 4 : 0;
        scalars[32].i = i & 2 ? 8 : 0;
        run();
        CHECK_EQ_INT(scalars[30].i, i != 0);
    }
    for (int i = 0; i < 4; i++) {
        static const double losses[] = {20, INFINITY, -INFINITY, NAN};
        begin(MPT__K_SCALE_LOSS);
        launch.function = MPT__FN_MUL_SLOT;
        add1(MPT_F32, MPT__READ, 1);
        add1(MPT_F32, MPT__WRITE, 1);
        set_at(0, 0, losses[i]);
        launch.slot[0] = 30;
        launch.slot[1] = 31;
        scalars[30].f = 1e38; /* that the product overflows does not count */
        launch.slot[2] = 32;
        scalars[32].i = 0;
        run();
        float seed;
        memcpy(&seed, &scalars[32], sizeof seed);
        CHECK(i > 0 || at(1, 0) == (double)INFINITY);
        CHECK_EQ_INT(scalars[31].i, i > 0);
        CHECK(seed == 1e38f);
    }
    begin(MPT__K_METRIC_ADD);
    add1(MPT_F16, MPT__READ, 1);
    set_at(0, 0, 1.5);
    launch.slot[0] = 30;
    launch.slot[1] = 31;
    scalars[30].f = 2;
    run();
    CHECK(scalars[30].f == 3.5 && scalars[31].i == 1);
}

TEST(find_nonfinite) {
    REQUIRE(have_backends());
    static const int dtypes[] = {MPT_F32, MPT_F16, MPT_BF16, MPT_F64, MPT_I64};
    for (int round = 0; round < 20; round++) {
        int64_t shape[2] = {40, 30}, index[2] = {17, 4};
        int dtype = dtypes[round % 5];
        begin(MPT__K_FIND_NONFINITE);
        launch.slot[0] = MPT__SLOT_NONFINITE;
        add(dtype, MPT__READ, 2, shape, (layout)below(BROADCAST));
        if (dtype == MPT_F64) set_value(0, index, 1e300);
        run();
        CHECK_EQ_INT(scalars[MPT__SLOT_NONFINITE].i, -1);
        if (dtype == MPT_I64) continue;
        set_value(0, index, round < 10 ? (double)NAN : -(double)INFINITY);
        index[0] = 30;
        set_value(0, index, (double)INFINITY);
        run();
        CHECK_EQ_INT(scalars[MPT__SLOT_NONFINITE].i, 17 * 30 + 4);
    }
}

/* ==== The backend ==== */

TEST(every_kernel_has_an_implementation) {
    static const char *const names[] = {
#define MPT__ROW(id, name, effect) #name,
        MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
    };
    REQUIRE(have_backends());
    for (int isa = MPT_ISA_NULL; isa < MPT_ISA_UNKNOWN; isa++) {
        const mpt__cpu_level *level = mpt__cpu_find_level((mpt_isa)isa);
        mpt__backend backend;
        mpt_isa chosen;
        REQUIRE(level != NULL);
        if (!level->built) continue;
        if (!mpt__isa_supported((mpt_isa)isa, mpt__cpu_features())) continue;
        if (mpt__cpu_backend_create(&base, (mpt_isa)isa, 1, true, &backend, &chosen) != MPT_OK) {
            TEST_FAIL_("%s", base.message);
            base.status = MPT_OK;
            continue;
        }
        CHECK_EQ_INT(chosen, isa);
        CHECK(backend.synchronous);
        for (int k = 0; k < MPT__KERNEL_COUNT; k++) {
            if (!backend.implements(backend.self, (mpt__kernel)k)) {
                TEST_FAIL_("%s lacks %s", level->name, names[k]);
            }
        }
        backend.destroy(backend.self);
    }
}

TEST(levels_that_cannot_be_had_are_named) {
    REQUIRE(have_backends());
    mpt__backend backend;
    mpt_isa chosen;
    for (int isa = MPT_ISA_REF; isa < MPT_ISA_UNKNOWN; isa++) {
        const mpt__cpu_level *level = mpt__cpu_find_level((mpt_isa)isa);
        bool possible = level->built && mpt__isa_supported((mpt_isa)isa, mpt__cpu_features());
        if (possible) continue;
        CHECK(mpt__cpu_backend_create(&base, (mpt_isa)isa, 1, true, &backend, &chosen) != MPT_OK);
        CHECK_CONTAINS(base.message, level->name);
        CHECK_CONTAINS(base.message, "MPT_ISA_AUTO");
        base.status = MPT_OK;
    }
    CHECK(mpt__cpu_backend_create(&base, MPT_ISA_UNKNOWN, 1, true, &backend, &chosen) ==
          MPT_ERROR_ARGUMENT);
    base.status = MPT_OK;
    CHECK_EQ_INT(mpt__cpu_backend_create(&base, MPT_ISA_AUTO, 1, false, &backend, &chosen), MPT_OK);
    CHECK(chosen != MPT_ISA_AUTO && chosen != MPT_ISA_NULL && chosen != MPT_ISA_AMX);
    CHECK_EQ_STR(backend.name, mpt__cpu_find_level(chosen)->name);
    backend.destroy(backend.self);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("avx2"), MPT_ISA_AVX2);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("avx512bf16"), MPT_ISA_AVX512_BF16);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("neonbf16"), MPT_ISA_NEON_BF16);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("auto"), MPT_ISA_AUTO);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("mmx"), MPT_ISA_UNKNOWN);
}

TEST(null_backend_does_nothing) {
    REQUIRE(have_backends());
    mpt__backend backend;
    mpt_isa chosen;
    mpt__execution execution;
    float source = 3, target = 0;
    REQUIRE(mpt__cpu_backend_create(&base, MPT_ISA_NULL, 4, true, &backend, &chosen) == MPT_OK);
    begin(MPT__K_FILL);
    add1(MPT_F32, MPT__WRITE, 1);
    double old = at(0, 0);
    execution.data = data;
    execution.scalars = scalars;
    execution.workspace = NULL;
    CHECK(backend.workspace == NULL);
    CHECK_EQ_INT(backend.launch(backend.self, &execution, &launch), MPT_OK);
    CHECK(at(0, 0) == old);
    CHECK_EQ_INT(backend.upload(backend.self, &target, &source, sizeof target), MPT_OK);
    CHECK(target == 3);
    CHECK_EQ_INT(backend.synchronize(backend.self), MPT_OK);
    backend.destroy(backend.self);
}

static int fallbacks;
static void count_fallback(const mpt__cpu_call *call) {
    fallbacks++;
    mpt__cpu_fall_back(call);
}
static int64_t some_workspace(const mpt__launch *l, int threads) { return (void)l, 100 + threads; }

TEST(replaced_kernels_stay_in_reach) {
    REQUIRE(have_backends());
    mpt__backend backend;
    mpt_isa chosen;
    mpt__execution execution;
    REQUIRE(mpt__cpu_backend_create(&base, MPT_ISA_REF, 1, true, &backend, &chosen) == MPT_OK);
    const int levels = MPT__CPU_REPLACED < 3 ? MPT__CPU_REPLACED : 3; /* 1 without vectors */
    for (int level = 0; level < levels; level++) {
        mpt__cpu_kernel *row =
            mpt__cpu_add((mpt__cpu *)backend.self, MPT__K_FILL, count_fallback);
        if (level == levels / 2) row->workspace = some_workspace, row->scratch = true;
    }
    begin(MPT__K_FILL);
    add1(MPT_F32, MPT__WRITE, 1);
    launch.imm[0] = 8;
    execution.data = data;
    execution.scalars = scalars;
    execution.workspace = NULL;
    CHECK_EQ_INT(backend.workspace(backend.self, &launch), 101);
    CHECK_EQ_INT(backend.launch(backend.self, &execution, &launch), MPT_OK);
    CHECK_EQ_INT(fallbacks, levels);
    CHECK(at(0, 0) == 8);
    backend.destroy(backend.self);
}

/* The last test: several threads really worked, and everything is given back. */
TEST(threads_worked_and_memory_returns) {
    ONLY_ON_THE_CPU;
    REQUIRE(have_backends());
    int64_t runs, by_thread[64];
    backends[0].counts(backends[0].self, &runs, by_thread);
    CHECK_EQ_INT(runs, 0);
#ifndef MPTRAIN_NO_THREADS
    backends[3].counts(backends[3].self, &runs, by_thread);
    CHECK(runs > 0);
    CHECK(by_thread[0] > 0 && by_thread[1] + by_thread[2] + by_thread[3] > 0);
#endif
    for (int i = 0; i < BACKENDS; i++) backends[i].destroy(backends[i].self);
    memset(backends, 0, sizeof backends);
    CHECK_EQ_INT(base.memory.held, 0);
    begin(MPT__K_FILL);
}

TEST_TABLE = {
    T(fill),
    T(copy),
    T(copy_transposed),
    T(copy_is_exact_where_it_can_be),
    T(unary),
    T(unary_edges),
    T(binary),
    T(results_beyond_cache),
    T(random),
    T(dropout),
    T(reduce),
    T(sums_follow_the_documented_tree),
    T(sums_do_not_depend_on_the_layout),
    T(argmax_and_scatter),
    T(cumsum),
    T(gather_and_scatter_add),
    T(triangles),
    T(gemm),
    T(softmax),
    T(softmax_edges),
    T(nll_and_cross_entropy),
    T(loss_edges),
    T(loss_backward),
    T(grad_norm_and_scale),
    T(many_segments),
    T(optimizer_traces),
    T(optimizers_keep_masters_and_gaps),
    T(moments),
    T(averages),
    T(gates),
    T(updates_commit),
    T(rates_from_a_table_and_clip),
    T(scaler_update),
    T(scalar_kernels),
    T(find_nonfinite),
    T(every_kernel_has_an_implementation),
    T(levels_that_cannot_be_had_are_named),
    T(null_backend_does_nothing),
    T(replaced_kernels_stay_in_reach),
    T(threads_worked_and_memory_returns),
};
TEST_MAIN
