/* test_simd.c: the vector kernels of every ISA level of this CPU against the reference kernels, bit
   for bit (NaN: as a class), over random shapes, strides, offsets, dtypes and special values; and
   the same bits for any number of threads. Matrix products are in test_gemm.c. */
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <math.h>

#include "harness.h"

#ifdef MPT__SIMD

/* ==== Backends ==== */

static mpt__base base;
static const mpt_isa all_levels[] = {MPT_ISA_AVX2, MPT_ISA_AVX512, MPT_ISA_NEON};
enum { LEVELS = 3, MAX_ELEMENTS = 1 << 20, SLOTS = 64 };

static mpt_isa levels[LEVELS];
static int level_count;

/* One backend per level and number of threads, made on first use and kept. */
static mpt__backend *backend_of(mpt_isa isa, int threads) {
    static mpt__backend kept[8][8];
    mpt__backend *backend = &kept[isa][threads];
    mpt_isa chosen;
    mpt__flush_denormals(false); /* programs linked with -ffast-math start with it on */
    if (backend->launch == NULL) {
        if (base.allocator.allocate == NULL) {
            mpt_config config;
            memset(&config, 0, sizeof config);
            mpt__base_init(&base, &config);
        }
        if (mpt__cpu_backend_create(&base, isa, threads, false, backend, &chosen) != MPT_OK) {
            printf("%s\n", base.message);
            exit(1);
        }
    }
    return backend;
}

static bool have_levels(void) {
    if (level_count > 0) return true;
    for (int i = 0; i < LEVELS; i++) {
        if (mpt__isa_supported(all_levels[i], mpt__cpu_features())) {
            levels[level_count++] = all_levels[i];
        }
    }
    return level_count > 0;
}
#define NEEDS_LEVELS \
    if (!have_levels()) SKIP("a CPU with AVX2 or NEON")

/* ==== Random problems ==== */

static uint64_t state = 1;
static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static int64_t below(int64_t n) { return (int64_t)(draw() % (uint32_t)n); }
static float draw_value(float size) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(draw() & 0xffff) / 65536.0f - 0.5f;
    return sum * size;
}
static float draw_special(void) {
    static const uint32_t bits[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                    0xffc12345, 1,          0x807fffff, 0x00800000, 0x7f7fffff,
                                    0x33000000, 0x38ffffff, 0x477ff000, 0x42b17218, 0xc2cff1b5};
    return mpt__f32_from_bits(bits[below((int64_t)(sizeof bits / sizeof *bits))]);
}

typedef struct storage {
    int dtype;
    size_t bytes;
    char *first, *now; /* what a run begins with, and what it works on */
} storage;

typedef struct problem {
    mpt__launch launch;
    mpt__scalar scalars[SLOTS], first_scalars[SLOTS];
    storage storages[MPT__MAX_OPERANDS + 1];
} problem;

static void problem_init(problem *p, mpt__kernel kernel) {
    memset(p, 0, sizeof *p);
    p->launch.kernel = (uint16_t)kernel;
    p->launch.compute_dtype = MPT_F32;
    p->launch.number = 7;
}

static void problem_free(problem *p) {
    for (int i = 0; i <= MPT__MAX_OPERANDS; i++) {
        free(p->storages[i].first);
        free(p->storages[i].now);
    }
}

static void store_value(storage *s, size_t i, float value) {
    mpt__store_real(s->first, (uint8_t)s->dtype, (int64_t)i, 1, &value, 1);
}

/* Storage `i` + 1 with room for n elements of about this size, now and then a special one. */
static void add_storage(problem *p, int i, int dtype, int64_t n, float size, int special_in) {
    storage *s = &p->storages[i + 1];
    size_t elements = (size_t)n + 64;
    s->dtype = dtype;
    s->bytes = elements * mpt__dtype_info[dtype].bytes;
    s->first = (char *)calloc(s->bytes, 1);
    s->now = (char *)malloc(s->bytes);
    for (size_t k = 0; k < elements; k++) {
        bool special = special_in > 0 && below(special_in) == 0;
        store_value(s, k, special ? draw_special() : draw_value(size));
    }
}

/* Operand i with this shape: contiguous, with gaps, or with its dimensions in another order in
   memory; `broadcast` bit d: stride 0 there. Begins at an odd offset. */
static void add_operand(problem *p, int i, int dtype, int rank, const int64_t *shape, int access,
                        unsigned broadcast, float size, int special_in) {
    mpt__operand *o = &p->launch.operand[i];
    int order[MPT_MAX_RANK];
    int64_t stride = 1;
    memset(o, 0, sizeof *o);
    o->storage = (uint32_t)(i + 1);
    o->dtype = (uint8_t)dtype;
    o->rank = (uint8_t)rank;
    o->access = (uint8_t)access;
    o->offset = below(4);
    for (int d = 0; d < rank; d++) order[d] = d;
    if (below(3) == 0 && rank > 1) {
        int a = (int)below(rank), b = (int)below(rank), t = order[a];
        order[a] = order[b], order[b] = t;
    }
    for (int d = rank - 1; d >= 0; d--) {
        int at = order[d];
        o->shape[at] = shape[at];
        o->stride[at] = broadcast >> at & 1 ? 0 : stride;
        if (!(broadcast >> at & 1)) stride *= shape[at];
        if (below(4) == 0) stride += below(3);
        if (below(12) == 0 && d == rank - 1) stride = stride * 2;
    }
    add_storage(p, i, dtype, stride + 8, size, special_in);
    if (p->launch.n_operands <= i) p->launch.n_operands = (uint8_t)(i + 1);
}

static void run_problem(problem *p, mpt_isa isa, int threads) {
    mpt__backend *backend = backend_of(isa, threads);
    mpt__execution execution;
    void *data[MPT__MAX_OPERANDS + 1];
    for (int i = 0; i <= MPT__MAX_OPERANDS; i++) {
        data[i] = p->storages[i].now;
        if (data[i]) memcpy(data[i], p->storages[i].first, p->storages[i].bytes);
    }
    memcpy(p->scalars, p->first_scalars, sizeof p->scalars);
    int64_t bytes = backend->workspace(backend->self, &p->launch);
    char *workspace = (char *)malloc((size_t)bytes + 128);
    memset(workspace, 0xff, (size_t)bytes + 128);
    execution.data = data;
    execution.scalars = p->scalars;
    execution.workspace = workspace + (64 - (uintptr_t)workspace % 64);
    char *guard = (char *)execution.workspace + bytes;
    CHECK(backend->launch(backend->self, &execution, &p->launch) == MPT_OK);
    for (int i = 0; i < 64 - (int)((char *)execution.workspace - workspace); i++) {
        CHECK((unsigned char)guard[i] == 0xff);
    }
    free(workspace);
}

static bool same_elements(const storage *s, const char *want, size_t *at) {
    size_t n = s->bytes / mpt__dtype_info[s->dtype].bytes;
    for (*at = 0; *at < n; (*at)++) {
        size_t size = mpt__dtype_info[s->dtype].bytes;
        float a = 0, b = 0;
        if (memcmp(s->now + *at * size, want + *at * size, size) == 0) continue;
        if (!mpt__dtype_info[s->dtype].is_float) return false;
        mpt__load_real(&a, s->now, (uint8_t)s->dtype, (int64_t)*at, 1, 1);
        mpt__load_real(&b, want, (uint8_t)s->dtype, (int64_t)*at, 1, 1);
        if (!mpt__f32_is_nan(a) || !mpt__f32_is_nan(b)) return false;
    }
    return true;
}

/* Runs on ref and on every level; all storages and scalars must come out the same. */
static bool same_as_ref(problem *p, const char *what) {
    char *want[MPT__MAX_OPERANDS + 1];
    mpt__scalar scalars[SLOTS];
    bool good = true;
    size_t at;
    run_problem(p, MPT_ISA_REF, 1);
    memcpy(scalars, p->scalars, sizeof scalars);
    for (int i = 0; i <= MPT__MAX_OPERANDS; i++) {
        want[i] = (char *)malloc(p->storages[i].bytes + 1);
        if (p->storages[i].bytes) memcpy(want[i], p->storages[i].now, p->storages[i].bytes);
    }
    for (int l = 0; l < level_count; l++) {
        run_problem(p, levels[l], 1);
        for (int i = 1; i <= MPT__MAX_OPERANDS; i++) {
            storage *s = &p->storages[i];
            if (s->bytes == 0 || same_elements(s, want[i], &at)) continue;
            float a = 0, b = 0;
            mpt__load_real(&a, s->now, (uint8_t)s->dtype, (int64_t)at, 1, 1);
            mpt__load_real(&b, want[i], (uint8_t)s->dtype, (int64_t)at, 1, 1);
            TEST_FAIL_("%s, %s, function %d, operand %d, dtype %s: element %ld is %.9g (%08x), "
                       "reference %.9g (%08x)",
                       mpt_isa_name(levels[l]), what, p->launch.function, i - 1,
                       mpt__dtype_info[s->dtype].name, (long)at, (double)a,
                       (unsigned)mpt__f32_bits(a), (double)b, (unsigned)mpt__f32_bits(b));
            good = false;
        }
        for (int i = 0; i < SLOTS; i++) {
            if (scalars[i].i == p->scalars[i].i) continue;
            if (mpt__f64_is_nan(scalars[i].f) && mpt__f64_is_nan(p->scalars[i].f)) continue;
            TEST_FAIL_("%s: scalar %d is %.17g, reference %.17g", what, i, p->scalars[i].f,
                       scalars[i].f);
            good = false;
        }
    }
    for (int i = 0; i <= MPT__MAX_OPERANDS; i++) free(want[i]);
    return good;
}

static const int float_dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
static int draw_float(void) { return below(2) ? MPT_F32 : float_dtypes[below(3)]; }

static int draw_shape(int64_t *shape, int64_t most) {
    int rank = (int)below(4);
    int64_t left = most;
    for (int d = 0; d < rank; d++) {
        int64_t limit = left < 2 ? 2 : left > 300 ? 300 : left;
        shape[d] = below(40) == 0 ? 0 : 1 + below(below(3) ? limit : 20);
        if (shape[d] > left && left > 0) shape[d] = left;
        left /= shape[d] ? shape[d] : 1;
    }
    return rank;
}

/* ==== Tests against the reference ==== */

TEST(copies) {
    static const int dtypes[] = {MPT_F32, MPT_F16, MPT_BF16, MPT_F64, MPT_I64, MPT_U8, MPT_BOOL};
    NEEDS_LEVELS;
    for (int i = 0; i < 1500; i++) {
        problem p;
        int64_t shape[4];
        int rank = draw_shape(shape, 4000), any = (int)below(4) == 0;
        problem_init(&p, MPT__K_COPY);
        add_operand(&p, 0, any ? dtypes[below(7)] : draw_float(), rank, shape, MPT__READ,
                    below(5) ? 0u : draw() & 15, 8, 20);
        add_operand(&p, 1, any ? dtypes[below(7)] : draw_float(), rank, shape,
                    below(3) ? MPT__WRITE : MPT__ACCUMULATE, 0, 8, 20);
        bool good = same_as_ref(&p, "copy");
        problem_free(&p);
        if (!good) return;
    }
}

/* Large enough for stores past the caches, which want whole lines of memory: one of these offsets
   begins one. */
TEST(transposed_copies_beyond_cache) {
    enum { ROWS = 1030, COLUMNS = 1040 };
    NEEDS_LEVELS;
    for (int64_t offset = 0; offset < 16; offset += 4) {
        problem p;
        int64_t shape[2] = {ROWS, COLUMNS};
        problem_init(&p, MPT__K_COPY);
        for (int k = 0; k < 2; k++) {
            mpt__operand *o = &p.launch.operand[k];
            add_operand(&p, k, MPT_F32, 2, shape, k ? MPT__WRITE : MPT__READ, 0, 8, 0);
            o->offset = offset;
            o->stride[0] = k ? COLUMNS : 1, o->stride[1] = k ? 1 : ROWS;
        }
        bool good = same_as_ref(&p, "transposed copy");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(unary_functions) {
    NEEDS_LEVELS;
    for (int i = 0; i < 3000; i++) {
        problem p;
        int64_t shape[4];
        int rank = draw_shape(shape, 3000),
            function = MPT__FN_NEG + i % (MPT__FN_ADD - MPT__FN_NEG);
        bool to_bool = function >= MPT__FN_ISNAN && function <= MPT__FN_NOT;
        problem_init(&p, MPT__K_UNARY);
        p.launch.function = (uint8_t)function;
        for (int k = 0; k < 2; k++) p.launch.imm[k] = (double)draw_value(4);
        p.launch.slot[0] = 9;
        p.first_scalars[9].f = 1.5;
        add_operand(&p, 0, draw_float(), rank, shape, MPT__READ, below(5) ? 0u : draw() & 15,
                    below(2) ? 2.0f : 60.0f, 10);
        add_operand(&p, 1, to_bool ? MPT_BOOL : draw_float(), rank, shape,
                    to_bool || below(3) ? MPT__WRITE : MPT__ACCUMULATE, 0, 8, 0);
        bool good = same_as_ref(&p, "unary");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(binary_functions) {
    NEEDS_LEVELS;
    for (int i = 0; i < 3000; i++) {
        problem p;
        int64_t shape[4];
        int rank = draw_shape(shape, 3000),
            function = MPT__FN_ADD + i % (MPT__FN_SUM - MPT__FN_ADD);
        bool to_bool = function >= MPT__FN_EQUAL && function <= MPT__FN_OR;
        int dtype = draw_float();
        if (to_bool && below(3) == 0) dtype = MPT_I64;
        problem_init(&p, MPT__K_BINARY);
        p.launch.function = (uint8_t)function;
        for (int k = 0; k < 2; k++) p.launch.imm[k] = (double)draw_value(4);
        for (int k = 0; k < 2; k++) {
            add_operand(&p, k, k && below(2) ? draw_float() : dtype, rank, shape, MPT__READ,
                        below(2) ? 0u : draw() & 15, to_bool ? 1.0f : 4.0f, 10);
        }
        add_operand(&p, 2, to_bool ? MPT_BOOL : draw_float(), rank, shape,
                    to_bool || below(3) ? MPT__WRITE : MPT__ACCUMULATE, 0, 8, 0);
        bool good = same_as_ref(&p, "binary");
        problem_free(&p);
        if (!good) return;
    }
}

/* Of every y that a half can be; dy is written over in the second run. */
TEST(relu_backward_of_all_halves) {
    const int64_t n = 65536;
    NEEDS_LEVELS;
    for (int run = 0; run < 4; run++) {
        problem p;
        problem_init(&p, MPT__K_BINARY);
        p.launch.function = MPT__FN_RELU_BACKWARD;
        for (int k = 0; k < 3; k++) {
            add_operand(&p, k, run < 2 ? MPT_F16 : MPT_BF16, 1, &n, k < 2 ? MPT__READ : MPT__WRITE,
                        0, 1, 20);
            p.launch.operand[k].stride[0] = 1;
        }
        if (run % 2 == 1) p.launch.operand[2] = p.launch.operand[1];
        p.launch.operand[2].access = MPT__WRITE;
        for (int64_t i = 0; i < n; i++) {
            const uint16_t y = (uint16_t)i;
            memcpy(p.storages[1].first + 2 * (i + p.launch.operand[0].offset), &y, 2);
        }
        bool good = same_as_ref(&p, "ReLU's backward");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(dropout) {
    static const double ps[] = {0, 0.1, 0.5, 0.999, 1, 1.0 / 4294967296.0, 1 - 1e-9, 0.3};
    NEEDS_LEVELS;
    for (int i = 0; i < 400; i++) {
        problem p;
        int64_t shape[4];
        int rank = draw_shape(shape, 10000);
        problem_init(&p, MPT__K_DROPOUT);
        p.launch.imm[0] = ps[i % 8];
        p.launch.rng.seed = draw();
        p.launch.rng.call = (uint64_t)i;
        if (below(2)) p.launch.slot[0] = 8;
        p.first_scalars[8].i = 41;
        add_operand(&p, 0, draw_float(), rank, shape, MPT__READ, 0, 4, 20);
        add_operand(&p, 1, draw_float(), rank, shape, below(3) ? MPT__WRITE : MPT__ACCUMULATE, 0, 1,
                    0);
        bool good = same_as_ref(&p, "dropout");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(reductions) {
    NEEDS_LEVELS;
    for (int i = 0; i < 1200; i++) {
        problem p;
        int64_t shape[4], out[4];
        int rank = draw_shape(shape, below(3) ? 3000 : 30000);
        problem_init(&p, MPT__K_REDUCE);
        p.launch.function = (uint8_t)(MPT__FN_SUM + i % 4);
        for (int d = 0; d < rank; d++) out[d] = below(2) ? 1 : shape[d];
        add_operand(&p, 0, draw_float(), rank, shape, MPT__READ, below(8) ? 0u : draw() & 15, 4,
                    below(2) ? 500 : 0);
        add_operand(&p, 1, draw_float(), rank, out, below(3) ? MPT__WRITE : MPT__ACCUMULATE, 0, 4,
                    0);
        bool good = same_as_ref(&p, "reduce");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(softmax_and_backward) {
    NEEDS_LEVELS;
    for (int i = 0; i < 1200; i++) {
        problem p;
        int64_t shape[3];
        bool backward = i % 2 != 0;
        float size = below(3) ? 5.0f : 100.0f;
        problem_init(&p, backward ? MPT__K_SOFTMAX_BACKWARD : MPT__K_SOFTMAX);
        p.launch.function = (uint8_t)(below(2) ? MPT__FN_SOFTMAX : MPT__FN_LOG_SOFTMAX);
        p.launch.index[0] = 1;
        shape[0] = 1 + below(20);
        shape[1] = below(5) == 0 ? 1 + below(2500) : 1 + below(40);
        shape[2] = below(3) ? 1 : 1 + below(5);
        for (int k = 0; k < (backward ? 3 : 2); k++) {
            bool last = k == (backward ? 2 : 1);
            int access = !last ? MPT__READ : MPT__WRITE;
            if (last && backward && below(3) == 0) access = MPT__ACCUMULATE;
            add_operand(&p, k, draw_float(), 3, shape, access, 0, size, below(6) ? 0 : 60);
        }
        bool good = same_as_ref(&p, "softmax");
        problem_free(&p);
        if (!good) return;
    }
}

/* Operand i: segments over a block; operand i + 1: step counts. Returns the block's size. */
static int64_t add_segments(problem *p, int i) {
    int64_t n = 1 + below(4), rows[5 * MPT__SEGMENT_FIELDS], at = below(8);
    for (int64_t s = 0; s < n; s++) {
        int64_t *row = rows + s * MPT__SEGMENT_FIELDS;
        row[MPT__SEGMENT_OFFSET] = at;
        row[MPT__SEGMENT_COUNT] = below(4) ? below(700) : 4000 + below(9000);
        row[MPT__SEGMENT_STEP] = s;
        row[3] = 0;
        at += row[MPT__SEGMENT_COUNT] + below(20);
    }
    for (int k = 0; k < 2; k++) {
        mpt__operand *o = &p->launch.operand[i + k];
        storage *s = &p->storages[i + k + 1];
        memset(o, 0, sizeof *o);
        o->storage = (uint32_t)(i + k + 1);
        o->dtype = MPT_I64;
        o->rank = k ? 1 : 2;
        o->shape[0] = n;
        o->shape[1] = MPT__SEGMENT_FIELDS;
        o->stride[0] = k ? 1 : MPT__SEGMENT_FIELDS;
        o->stride[1] = 1;
        o->access = MPT__READ;
        s->dtype = MPT_I64;
        s->bytes = sizeof rows;
        s->first = (char *)calloc(s->bytes, 1);
        s->now = (char *)malloc(s->bytes);
        if (k == 0) memcpy(s->first, rows, sizeof rows);
        for (int64_t e = 0; k == 1 && e < n; e++) {
            ((int64_t *)(void *)s->first)[e] = below(3) ? below(1000) : 0;
        }
        if (p->launch.n_operands <= i + k) p->launch.n_operands = (uint8_t)(i + k + 1);
    }
    return at;
}

/* A block of n contiguous elements. */
static void add_block(problem *p, int i, int dtype, int64_t n, int access, float size,
                      int special) {
    mpt__operand *o = &p->launch.operand[i];
    memset(o, 0, sizeof *o);
    o->storage = (uint32_t)(i + 1);
    o->dtype = (uint8_t)dtype;
    o->rank = 1;
    o->access = (uint8_t)access;
    o->shape[0] = n;
    o->stride[0] = 1;
    add_storage(p, i, dtype, n, size, special);
    if (p->launch.n_operands <= i) p->launch.n_operands = (uint8_t)(i + 1);
}

/* Moments as a second one is: not negative, and no denormals, which the optimizers flush. */
static void make_plain(storage *s, bool positive) {
    float *x = (float *)(void *)s->first;
    for (size_t i = 0; i < s->bytes / 4; i++) {
        if (positive) x[i] = x[i] < 0 ? -x[i] : x[i];
        if (x[i] > -1e-30f && x[i] < 1e-30f) x[i] = 0;
    }
}

TEST(optimizers) {
    NEEDS_LEVELS;
    for (int i = 0; i < 400; i++) {
        problem p;
        bool adam = i % 2 != 0, master = below(2) != 0;
        int special = below(3) ? 0 : 300;
        problem_init(&p, adam ? MPT__K_ADAM : MPT__K_SGD);
        int64_t n = add_segments(&p, 4);
        add_block(&p, 0, master || below(3) == 0 ? draw_float() : MPT_F32, n, MPT__READ_WRITE, 1,
                  0);
        if (master) add_block(&p, 1, MPT_F32, n, MPT__READ_WRITE, 1, 0);
        add_block(&p, 2, MPT_F32, n, MPT__READ, 0.1f, special);
        if (adam || below(2)) add_block(&p, 3, MPT_F32, n, MPT__READ_WRITE, 0.1f, 0);
        if (adam) add_block(&p, 6, MPT_F32, n, MPT__READ_WRITE, 0.01f, 0);
        for (int k = 1; k <= 6; k++) {
            if (k != 4 && k != 5 && p.storages[k + 1].bytes) make_plain(&p.storages[k + 1], k == 6);
        }
        p.launch.slot[0] = 10, p.launch.slot[1] = below(2) ? 11 : 0, p.launch.slot[2] = 12;
        p.first_scalars[10].f = 1e-3;
        p.first_scalars[11].f = 1.0 / 1024;
        p.first_scalars[12].i = below(10) == 0;
        p.launch.imm[0] = 0.9;
        p.launch.imm[1] = adam ? 0.999 : below(2) ? 0.1 : 0.0;
        p.launch.imm[2] = adam ? 1e-8 : below(2) ? 0.01 : 0.0;
        p.launch.imm[3] = below(2) ? 0.01 : 0.0;
        p.launch.index[0] = below(2);
        p.launch.index[2] = below(2);
        p.launch.index[3] = !master && p.launch.operand[0].dtype == MPT_BF16; /* by chance */
        p.launch.rng.seed = draw();
        bool good = same_as_ref(&p, adam ? "adam" : "sgd");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(moments) {
    NEEDS_LEVELS;
    for (int i = 0; i < 400; i++) {
        problem p;
        bool master = below(2) != 0, three = i % 5 < 2;
        int special = below(3) ? 0 : 300;
        problem_init(&p, MPT__K_MOMENTS);
        int64_t n = add_segments(&p, 4);
        add_block(&p, 0, master || below(3) == 0 ? draw_float() : MPT_F32, n, MPT__READ_WRITE, 1,
                  0);
        if (master) add_block(&p, 1, MPT_F32, n, MPT__READ_WRITE, 1, 0);
        add_block(&p, 2, MPT_F32, n, MPT__READ, 0.1f, special);
        add_block(&p, 3, MPT_F32, n, MPT__READ_WRITE, 0.1f, 0);
        bool second = i % 5 == 1 ? below(2) != 0 : i % 5 != 2 && i % 5 != 4; /* 1: of RMSprop */
        if (second) add_block(&p, 6, MPT_F32, n, MPT__READ_WRITE, 0.01f, 0);
        if (i % 5 == 0 || (three && below(2)))
            add_block(&p, 8, MPT_F32, n, MPT__READ_WRITE, 0.1f, 0);
        for (int k = 1; k <= 8; k++) {
            bool mine = k != 4 && k != 5 && k != 7 && p.storages[k + 1].bytes;
            if (mine) make_plain(&p.storages[k + 1], k == 6 || k == 3);
        }
        p.launch.function = (uint8_t)((int)MPT__FN_AMSGRAD + i % 5);
        p.launch.slot[0] = 10, p.launch.slot[1] = below(2) ? 11 : 0, p.launch.slot[2] = 12;
        p.first_scalars[10].f = 1e-3;
        p.first_scalars[11].f = 1.0 / 1024;
        p.first_scalars[12].i = below(10) == 0;
        p.launch.imm[0] = 0.9;
        p.launch.imm[1] = three || i % 5 == 4 ? 0.99 : 1e-6;
        p.launch.imm[2] = three ? 1e-6 : 0.01;
        p.launch.imm[3] = below(2) ? 0.01 : 0.0;
        p.launch.index[0] = i % 5 == 0 && below(2);
        p.launch.index[2] = below(2);
        bool good = same_as_ref(&p, "moments");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(gradient_norm_and_scale) {
    NEEDS_LEVELS;
    for (int i = 0; i < 400; i++) {
        problem p;
        bool norm = i % 2 != 0;
        problem_init(&p, norm ? MPT__K_GRAD_NORM : MPT__K_GRAD_SCALE);
        int64_t n = add_segments(&p, 1);
        add_block(&p, 0, MPT_F32, n, norm ? MPT__READ : MPT__READ_WRITE, 4,
                  below(2) ? 0 : 10 + (int)below(3000));
        p.launch.n_operands = 2;
        p.launch.slot[0] = below(2) ? 10 : 0, p.launch.slot[1] = below(4) ? 11 : 0;
        p.launch.slot[2] = below(4) ? 12 : 0;
        p.first_scalars[10].f = 1.0 / 3;
        p.launch.imm[0] = below(2) ? 0.5 : 0.0;
        bool good = same_as_ref(&p, "gradients");
        problem_free(&p);
        if (!good) return;
    }
}

TEST(first_nonfinite_element) {
    NEEDS_LEVELS;
    for (int i = 0; i < 400; i++) {
        problem p;
        int64_t shape[4];
        int rank = draw_shape(shape, 4000);
        problem_init(&p, MPT__K_FIND_NONFINITE);
        p.launch.slot[0] = 10;
        add_operand(&p, 0, draw_float(), rank, shape, MPT__READ, 0, 4, below(2) ? 0 : 1000);
        bool good = same_as_ref(&p, "find_nonfinite");
        problem_free(&p);
        if (!good) return;
    }
}

/* ==== No elements ==== */

/* An operand of this shape in a storage without memory, or, for one element, of its own. */
static void add_empty(problem *p, int i, int dtype, int rank, const int64_t *shape, int access) {
    mpt__operand *o = &p->launch.operand[i];
    bool one = true;
    memset(o, 0, sizeof *o);
    o->storage = (uint32_t)(i + 1);
    o->dtype = (uint8_t)dtype;
    o->rank = (uint8_t)rank;
    o->access = (uint8_t)access;
    for (int d = rank - 1; d >= 0; d--) {
        o->shape[d] = shape[d];
        o->stride[d] = d == rank - 1 ? 1 : o->stride[d + 1] == 0 ? 0 : shape[d + 1] ? 3 : 0;
        one = one && shape[d] == 1;
    }
    if (one) add_storage(p, i, dtype, 1, 4, 0);
    if (p->launch.n_operands <= i) p->launch.n_operands = (uint8_t)(i + 1);
}

/* Runs what stands in p on ref and on every level; each must return at once. */
static void run_empty(problem *p, const char *what) {
    clock_t start = clock();
    for (int l = -1; l < level_count; l++) {
        run_problem(p, l < 0 ? MPT_ISA_REF : levels[l], l < 0 ? 1 : 3);
        if (p->storages[2].bytes && p->launch.kernel == MPT__K_REDUCE) {
            float got = *(float *)(void *)p->storages[2].now;
            CHECK(p->launch.function == MPT__FN_SUM ? got == 0 : got == -HUGE_VALF);
        }
    }
    double took = (double)(clock() - start) / (double)CLOCKS_PER_SEC;
    if (took > 2) TEST_FAIL_("%s without elements took %.1f s", what, took);
    problem_free(p);
}

TEST(empty_tensors_of_any_length_take_no_time) {
    static const struct {
        mpt__kernel kernel;
        int function, operands;
    } kernels[] = {{MPT__K_FILL, 0, 1},
                   {MPT__K_COPY, 0, 2},
                   {MPT__K_UNARY, MPT__FN_EXP, 2},
                   {MPT__K_BINARY, MPT__FN_ADD, 3},
                   {MPT__K_DROPOUT, 0, 2},
                   {MPT__K_RANDOM, MPT__FN_UNIFORM, 1},
                   {MPT__K_FIND_NONFINITE, 0, 1},
                   {MPT__K_SOFTMAX, MPT__FN_SOFTMAX, 2},
                   {MPT__K_SOFTMAX, MPT__FN_LOG_SOFTMAX, 2},
                   {MPT__K_SOFTMAX_BACKWARD, MPT__FN_SOFTMAX, 3},
                   {MPT__K_SOFTMAX_BACKWARD, MPT__FN_LOG_SOFTMAX, 3}};
    static const int64_t shapes[][3] = {{INT64_MAX, 3, 0},        {(int64_t)1 << 40, 1, 0},
                                        {(int64_t)1 << 40, 0, 1}, {0, INT64_MAX, 3},
                                        {0, (int64_t)1 << 40, 1}, {INT64_MAX, 0, INT64_MAX}};
    have_levels(); /* ref is always there */
    for (int s = 0; s < 6; s++) {
        problem p;
        for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
            problem_init(&p, kernels[k].kernel);
            p.launch.function = (uint8_t)kernels[k].function;
            p.launch.imm[1] = 1;
            p.launch.index[0] = 1; /* the dimension of softmax */
            p.launch.slot[0] = kernels[k].kernel == MPT__K_FIND_NONFINITE ? 10 : 0;
            for (int i = 0; i < kernels[k].operands; i++) {
                bool last = i == kernels[k].operands - 1 && p.launch.slot[0] == 0;
                add_empty(&p, i, MPT_F32, 3, shapes[s], last ? MPT__WRITE : MPT__READ);
            }
            run_empty(&p, "a kernel");
        }
        for (unsigned gone = 1; gone < 8; gone++) { /* dimensions to sum over */
            int64_t out[3], outputs = 1;
            for (int d = 0; d < 3; d++) {
                out[d] = gone >> d & 1 ? 1 : shapes[s][d];
                outputs = out[d] == 0 ? 0 : out[d] > 1 && outputs ? 2 : outputs;
            }
            if (outputs == 2) continue; /* results that no memory could hold */
            for (int f = 0; f < 2; f++) {
                problem_init(&p, MPT__K_REDUCE);
                p.launch.function = f ? MPT__FN_MAX : MPT__FN_SUM;
                add_empty(&p, 0, MPT_F32, 3, shapes[s], MPT__READ);
                add_empty(&p, 1, MPT_F32, 3, out, MPT__WRITE);
                run_empty(&p, "a reduction");
            }
            if (gone != 1 && gone != 2 && gone != 4) continue;
            problem_init(&p, MPT__K_ARGMAX);
            p.launch.index[0] = gone / 2;
            add_empty(&p, 0, MPT_F32, 3, shapes[s], MPT__READ);
            add_empty(&p, 1, MPT_I64, 3, out, MPT__WRITE);
            run_empty(&p, "argmax");
        }
    }
}

/* ==== Threads ==== */

static void same_for_all_threads(problem *p, const char *what) {
    static const int counts[] = {2, 3, 7};
    for (int l = 0; l < level_count; l++) {
        char *want[MPT__MAX_OPERANDS + 1];
        run_problem(p, levels[l], 1);
        for (int i = 0; i <= MPT__MAX_OPERANDS; i++) {
            want[i] = (char *)malloc(p->storages[i].bytes + 1);
            if (p->storages[i].bytes) memcpy(want[i], p->storages[i].now, p->storages[i].bytes);
        }
        for (int t = 0; t < 3; t++) {
            run_problem(p, levels[l], counts[t]);
            for (int i = 0; i <= MPT__MAX_OPERANDS; i++) {
                size_t bytes = p->storages[i].bytes;
                if (bytes && memcmp(want[i], p->storages[i].now, bytes) != 0) {
                    TEST_FAIL_("%s: %d threads give other bits than one", what, counts[t]);
                }
            }
        }
        for (int i = 0; i <= MPT__MAX_OPERANDS; i++) free(want[i]);
    }
}

TEST(threads_do_not_change_bits) {
    int64_t shape[3] = {300, 1000, 1}, columns[3] = {1, 1000, 1};
    problem p;
    NEEDS_LEVELS;
    problem_init(&p, MPT__K_UNARY);
    p.launch.function = MPT__FN_GELU;
    add_operand(&p, 0, MPT_F32, 2, shape, MPT__READ, 0, 2, 0);
    add_operand(&p, 1, MPT_BF16, 2, shape, MPT__WRITE, 0, 2, 0);
    same_for_all_threads(&p, "unary");
    problem_free(&p);
    problem_init(&p, MPT__K_REDUCE);
    p.launch.function = MPT__FN_SUM;
    shape[0] = 3000;
    add_operand(&p, 0, MPT_F32, 2, shape, MPT__READ, 0, 2, 0);
    add_operand(&p, 1, MPT_F32, 2, columns, MPT__WRITE, 0, 2, 0);
    same_for_all_threads(&p, "reduce");
    problem_free(&p);
    problem_init(&p, MPT__K_SOFTMAX);
    p.launch.function = MPT__FN_LOG_SOFTMAX;
    p.launch.index[0] = 1;
    add_operand(&p, 0, MPT_F32, 3, shape, MPT__READ, 0, 2, 0);
    add_operand(&p, 1, MPT_F32, 3, shape, MPT__WRITE, 0, 2, 0);
    same_for_all_threads(&p, "softmax");
    problem_free(&p);
}

TEST_TABLE = {
    T(copies),
    T(transposed_copies_beyond_cache),
    T(unary_functions),
    T(binary_functions),
    T(relu_backward_of_all_halves),
    T(dropout),
    T(reductions),
    T(softmax_and_backward),
    T(optimizers),
    T(moments),
    T(gradient_norm_and_scale),
    T(first_nonfinite_element),
    T(empty_tensors_of_any_length_take_no_time),
    T(threads_do_not_change_bits),
};

#else

TEST(vector_kernels) { SKIP("vector kernels in this build (no MPTRAIN_NO_SIMD)"); }
TEST_TABLE = {T(vector_kernels)};

#endif

TEST_MAIN
