/* ---------------------------------------------------------------------------------------------
 * 30_cpu_ref.c: the reference kernels: portable C that says what 20_launch.h says in words. Those
 * of training (losses, optimizers, scaler, device scalars) are next door in 31_cpu_train.c.
 *
 * Every kernel walks its operands in runs: at most MPT__BLOCK elements, equally spaced in each
 * operand. A run is loaded and converted to a small array of mpt__real, computed there, and rounded
 * once on store. Whatever a dtype or a stride means is known to the loads and stores alone.
 *
 * mpt__real is float. The test build makes it double: then F64 tensors compute in double, and a
 * gradient check can ask for 1e-6.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__30_CPU_REF_INCLUDED
#define MPT__30_CPU_REF_INCLUDED

#include "15_math.c"
#include "29_cpu.c"

#include <math.h>

#ifndef MPT__REAL
#define MPT__REAL float
#endif
typedef MPT__REAL mpt__real;

/* Elements converted and computed at a time. */
#define MPT__BLOCK 256
/* Elements of a chunk of elementwise work, and of optimizer updates. No result depends on it. */
#define MPT__CHUNK 4096
/* Rows of a chunk of row-wise work (softmax, losses). No result depends on it. */
#define MPT__CHUNK_ROWS 16

/* The tree of every sum, which all rooms of the CPU can share: the elements in logical order are
   cut into chunks of MPT__SUM_CHUNK; within a chunk, element i goes to lane i % MPT__SUM_LANES, in
   order; the lanes fold in halves (i and i + 4, i and i + 2, 0 and 1); the chunks' sums add up in
   pairs, pairs of pairs and so on, an odd last one passing on unchanged. */
#define MPT__SUM_CHUNK 1024
#define MPT__SUM_LANES 8
#define MPT__SUM_LEVELS 54 /* log2 of the most chunks that fit an int64 count of elements */

/* ==== Real numbers ==== */

static MPT__INLINE bool mpt__real_is_nan(mpt__real x) { return mpt__f64_is_nan((double)x); }
static MPT__INLINE bool mpt__real_is_finite(mpt__real x) { return mpt__f64_is_finite((double)x); }
static MPT__INLINE mpt__real mpt__real_infinity(void) {
    return (mpt__real)mpt__f32_from_bits(0x7f800000u);
}

/* The functions of 15_math.c for this type. Both sides compile; one is never called. */
#define MPT__REAL_FUNCTION(name, of_float, of_double)                                              \
    static MPT__INLINE mpt__real mpt__real_##name(mpt__real x) {                                   \
        return sizeof(mpt__real) == sizeof(float) ? (mpt__real)of_float((float)x)                  \
                                                  : (mpt__real)of_double((double)x);               \
    }
MPT__REAL_FUNCTION(exp, mpt__expf, mpt__exp)
MPT__REAL_FUNCTION(log, mpt__logf, mpt__ln)
MPT__REAL_FUNCTION(tanh, mpt__tanhf, mpt__tanh)
MPT__REAL_FUNCTION(erf, mpt__erff, mpt__erf)
MPT__REAL_FUNCTION(sigmoid, mpt__sigmoidf, mpt__sigmoid)

/* Correctly rounded also for float: 53 bits are more than twice 24 and 2. */
static MPT__INLINE mpt__real mpt__real_sqrt(mpt__real x) { return (mpt__real)sqrt((double)x); }

/* The larger one; NaN wins. */
static MPT__INLINE mpt__real mpt__real_max(mpt__real a, mpt__real b) {
    return a > b || mpt__real_is_nan(a) ? a : b;
}

/* Truncates; beyond the range the nearest end of it, NaN gives 0. */
static int64_t mpt__ref_truncate(double x, double low, double beyond) {
    if (mpt__f64_is_nan(x)) return 0;
    if (x < low) return (int64_t)low;
    if (x >= beyond) return beyond >= 9223372036854775808.0 ? INT64_MAX : (int64_t)beyond - 1;
    return (int64_t)x;
}

/* ==== Loads and stores ==== */

#define MPT__LOAD_CASE(id, storage, expression)                                                    \
    case id: {                                                                                     \
        const storage *from = (const storage *)data + offset;                                      \
        if (stride == 1) {                                                                         \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const storage v = from[i];                                                         \
                to[i] = expression;                                                                \
            }                                                                                      \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) {                                                      \
                const storage v = from[i * stride];                                                \
                to[i] = expression;                                                                \
            }                                                                                      \
        }                                                                                          \
        break;                                                                                     \
    }
#define MPT__STORE_CASE(id, storage, expression)                                                   \
    case id: {                                                                                     \
        storage *to = (storage *)data + offset;                                                    \
        if (stride == 1) {                                                                         \
            for (int64_t i = 0; i < n; i++) to[i] = expression;                                    \
        } else {                                                                                   \
            for (int64_t i = 0; i < n; i++) to[i * stride] = expression;                           \
        }                                                                                          \
        break;                                                                                     \
    }
#ifndef MPTRAIN_NO_FP8
#define MPT__LOAD_F8(type)                                                                         \
    MPT__LOAD_CASE(MPT_F8E4M3, uint8_t, (type)mpt__f8e4m3_to_f32(v))                               \
    MPT__LOAD_CASE(MPT_F8E5M2, uint8_t, (type)mpt__f8e5m2_to_f32(v))
#define MPT__STORE_F8                                                                              \
    MPT__STORE_CASE(MPT_F8E4M3, uint8_t, mpt__f32_to_f8e4m3((float)from[i], MPT__F8_SATFINITE))    \
    MPT__STORE_CASE(MPT_F8E5M2, uint8_t, mpt__f32_to_f8e5m2((float)from[i], MPT__F8_SATFINITE))
#else
#define MPT__LOAD_F8(type)
#define MPT__STORE_F8
#endif

/* Loads n elements, `stride` apart, beginning with the one at `offset`; any dtype. */
#define MPT__DEFINE_LOAD(name, type)                                                               \
    static void name(type *to, const void *data, uint8_t dtype, int64_t offset, int64_t stride,    \
                     int64_t n) {                                                                  \
        switch (dtype) {                                                                           \
        MPT__LOAD_CASE(MPT_F32, float, (type)v)                                                    \
        MPT__LOAD_CASE(MPT_F16, uint16_t, (type)mpt__f16_to_f32(v))                                \
        MPT__LOAD_CASE(MPT_BF16, uint16_t, (type)mpt__bf16_to_f32(v))                              \
        MPT__LOAD_F8(type)                                                                         \
        MPT__LOAD_CASE(MPT_F64, double, (type)v)                                                   \
        MPT__LOAD_CASE(MPT_I64, int64_t, (type)v)                                                  \
        MPT__LOAD_CASE(MPT_I32, int32_t, (type)v)                                                  \
        MPT__LOAD_CASE(MPT_U8, uint8_t, (type)v)                                                   \
        MPT__LOAD_CASE(MPT_BOOL, uint8_t, (type)(v != 0))                                          \
        default: break;                                                                            \
        }                                                                                          \
    }
/* Rounds (floats) or truncates (integers) once and stores. */
#define MPT__DEFINE_STORE(name, type)                                                              \
    static void name(void *data, uint8_t dtype, int64_t offset, int64_t stride, const type *from,  \
                     int64_t n) {                                                                  \
        switch (dtype) {                                                                           \
        MPT__STORE_CASE(MPT_F32, float, (float)from[i])                                            \
        MPT__STORE_CASE(MPT_F16, uint16_t, mpt__f32_to_f16((float)from[i]))                        \
        MPT__STORE_CASE(MPT_BF16, uint16_t, mpt__f32_to_bf16((float)from[i]))                      \
        MPT__STORE_F8                                                                              \
        MPT__STORE_CASE(MPT_F64, double, (double)from[i])                                          \
        MPT__STORE_CASE(MPT_I64, int64_t,                                                          \
                        mpt__ref_truncate((double)from[i], -9223372036854775808.0,                 \
                                          9223372036854775808.0))                                  \
        MPT__STORE_CASE(MPT_I32, int32_t,                                                          \
                        (int32_t)mpt__ref_truncate((double)from[i], -2147483648.0, 2147483648.0))  \
        MPT__STORE_CASE(MPT_U8, uint8_t,                                                           \
                        (uint8_t)mpt__ref_truncate((double)from[i], 0.0, 256.0))                   \
        MPT__STORE_CASE(MPT_BOOL, uint8_t, (uint8_t)(from[i] == 0 ? 0 : 1))                        \
        default: break;                                                                            \
        }                                                                                          \
    }

MPT__DEFINE_LOAD(mpt__ref_load, mpt__real)
MPT__DEFINE_STORE(mpt__ref_store, mpt__real)
/* For F64 storage in ordinary builds, and where an answer must not depend on mpt__real. */
MPT__DEFINE_LOAD(mpt__ref_load_f64, double)
MPT__DEFINE_STORE(mpt__ref_store_f64, double)
/* For integers, exactly. */
MPT__DEFINE_LOAD(mpt__ref_load_i64, int64_t)

/* Integers to a narrower integer dtype keep their low bits; BOOL is whether they are not 0. */
static void mpt__ref_store_i64(void *data, uint8_t dtype, int64_t offset, int64_t stride,
                               const int64_t *from, int64_t n) {
    switch (dtype) {
    MPT__STORE_CASE(MPT_I64, int64_t, from[i])
    MPT__STORE_CASE(MPT_I32, int32_t, (int32_t)(uint32_t)(uint64_t)from[i])
    MPT__STORE_CASE(MPT_U8, uint8_t, (uint8_t)(uint64_t)from[i])
    MPT__STORE_CASE(MPT_BOOL, uint8_t, (uint8_t)(from[i] != 0))
    default: break;
    }
}

/* An operand, resolved. */
typedef struct mpt__ref_view {
    void *data; /* NULL: absent */
    uint8_t dtype;
    bool accumulate;
} mpt__ref_view;

static mpt__ref_view mpt__ref_view_of(const mpt__cpu_call *call, int operand) {
    mpt__ref_view view;
    view.data = call->data[operand];
    view.dtype = call->launch->operand[operand].dtype;
    view.accumulate = call->launch->operand[operand].access == MPT__ACCUMULATE;
    return view;
}

static void mpt__ref_get(const mpt__ref_view *view, int64_t offset, int64_t stride, mpt__real *x,
                         int64_t n) {
    mpt__ref_load(x, view->data, view->dtype, offset, stride, n);
}

/* Stores n <= MPT__BLOCK results, added to what is there if the operand accumulates. */
static void mpt__ref_put(const mpt__ref_view *view, int64_t offset, int64_t stride,
                         const mpt__real *x, int64_t n) {
    if (!view->accumulate) {
        mpt__ref_store(view->data, view->dtype, offset, stride, x, n);
        return;
    }
    mpt__real sum[MPT__BLOCK];
    mpt__ref_load(sum, view->data, view->dtype, offset, stride, n);
    for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    mpt__ref_store(view->data, view->dtype, offset, stride, sum, n);
}

static mpt__real mpt__ref_get_one(const mpt__ref_view *view, int64_t offset) {
    mpt__real x = 0;
    mpt__ref_load(&x, view->data, view->dtype, offset, 1, 1);
    return x;
}

static void mpt__ref_put_one(const mpt__ref_view *view, int64_t offset, mpt__real x) {
    mpt__ref_put(view, offset, 1, &x, 1);
}

static int64_t mpt__ref_get_integer(const mpt__ref_view *view, int64_t offset) {
    int64_t x = 0;
    mpt__ref_load_i64(&x, view->data, view->dtype, offset, 1, 1);
    return x;
}

/* ==== Loops ==== */

/* The elements of up to three operands of one shape, in logical order. Dimensions of size 1 are
   left out and neighbours are merged where all operands allow it. */
#define MPT__LOOP_OPERANDS 3
typedef struct mpt__ref_loop {
    int rank, operands;
    int64_t count;
    int64_t shape[MPT_MAX_RANK];
    int64_t stride[MPT__LOOP_OPERANDS][MPT_MAX_RANK];
} mpt__ref_loop;

static void mpt__ref_loop_init(mpt__ref_loop *loop, int operands) {
    memset(loop, 0, sizeof *loop);
    loop->operands = operands;
    loop->count = 1;
}

/* Adds a dimension inside those added before, in which operand k has stride[k]. */
static void mpt__ref_loop_add(mpt__ref_loop *loop, int64_t size, const int64_t *stride) {
    loop->count *= size;
    if (size == 1) return;
    int last = loop->rank - 1;
    bool merge = last >= 0;
    for (int k = 0; k < loop->operands && merge; k++) {
        merge = loop->stride[k][last] == size * stride[k];
    }
    if (merge) {
        loop->shape[last] *= size;
    } else {
        last = loop->rank++;
        loop->shape[last] = size;
    }
    for (int k = 0; k < loop->operands; k++) loop->stride[k][last] = stride[k];
}

/* A loop has a last dimension even when it has one element. */
static void mpt__ref_loop_close(mpt__ref_loop *loop) {
    if (loop->rank == 0) loop->shape[loop->rank++] = 1;
}

/* The loop over operands 0 .. n-1 of a launch. */
static mpt__ref_loop mpt__ref_loop_over(const mpt__launch *launch, int n) {
    mpt__ref_loop loop;
    mpt__ref_loop_init(&loop, n);
    for (int d = 0; d < launch->operand[0].rank; d++) {
        int64_t stride[MPT__LOOP_OPERANDS];
        for (int k = 0; k < n; k++) stride[k] = launch->operand[k].stride[d];
        mpt__ref_loop_add(&loop, launch->operand[0].shape[d], stride);
    }
    mpt__ref_loop_close(&loop);
    return loop;
}

/* A walk over elements at .. end-1 of a loop, run by run. Element i of a run lies at
   offset[k] + i * loop->stride[k][loop->rank - 1] in operand k. */
typedef struct mpt__ref_cursor {
    int64_t at, n, end;
    int64_t offset[MPT__LOOP_OPERANDS];
    int64_t index[MPT_MAX_RANK];
} mpt__ref_cursor;

static void mpt__ref_cursor_start(mpt__ref_cursor *c, const mpt__ref_loop *loop, int64_t begin,
                                  int64_t end) {
    memset(c, 0, sizeof *c);
    c->at = begin;
    c->end = end;
    for (int d = loop->rank - 1; d >= 0 && begin > 0; d--) {
        c->index[d] = begin % loop->shape[d];
        begin /= loop->shape[d];
        for (int k = 0; k < loop->operands; k++) c->offset[k] += c->index[d] * loop->stride[k][d];
    }
}

/* Moves on behind the current run and finds the next one; false at the end. */
static bool mpt__ref_cursor_next(mpt__ref_cursor *c, const mpt__ref_loop *loop) {
    int d = loop->rank - 1;
    c->at += c->n;
    c->index[d] += c->n;
    for (int k = 0; k < loop->operands; k++) c->offset[k] += c->n * loop->stride[k][d];
    if (c->at >= c->end) return false;
    while (d > 0 && c->index[d] == loop->shape[d]) {
        for (int k = 0; k < loop->operands; k++) {
            c->offset[k] += loop->stride[k][d - 1] - c->index[d] * loop->stride[k][d];
        }
        c->index[d] = 0;
        c->index[--d]++;
    }
    d = loop->rank - 1;
    c->n = loop->shape[d] - c->index[d];
    if (c->n > c->end - c->at) c->n = c->end - c->at;
    if (c->n > MPT__BLOCK) c->n = MPT__BLOCK;
    return true;
}

static MPT__INLINE int64_t mpt__ref_min(int64_t a, int64_t b) { return a < b ? a : b; }
static MPT__INLINE int64_t mpt__ref_chunks(int64_t count, int64_t size) {
    return count / size + (count % size != 0); /* an empty tensor may be of any length */
}

static int64_t mpt__ref_numel(const mpt__operand *o) {
    int64_t count = 1;
    for (int d = 0; d < o->rank; d++) count *= o->shape[d];
    return count;
}

/* ==== Sums ==== */

/* Folds the lanes of one chunk. */
static mpt__real mpt__ref_fold_lanes(const mpt__real lane[MPT__SUM_LANES]) {
    mpt__real a = (lane[0] + lane[4]) + (lane[2] + lane[6]);
    mpt__real b = (lane[1] + lane[5]) + (lane[3] + lane[7]);
    return a + b;
}

/* A sum under way: the tree that MPT__SUM_CHUNK describes, fed in any portions. level[k] holds the
   sum of 2^k chunks where bit k of `chunks` is set. */
typedef struct mpt__ref_sum {
    int64_t count, chunks;
    mpt__real lane[MPT__SUM_LANES];
    mpt__real level[MPT__SUM_LEVELS];
} mpt__ref_sum;

static void mpt__ref_sum_init(mpt__ref_sum *sum) { memset(sum, 0, sizeof *sum); }

static void mpt__ref_sum_close_chunk(mpt__ref_sum *sum) {
    mpt__real carry = mpt__ref_fold_lanes(sum->lane);
    int k = 0;
    for (; (sum->chunks >> k & 1) != 0; k++) carry = sum->level[k] + carry;
    sum->level[k] = carry;
    sum->chunks++;
    sum->count = 0;
    memset(sum->lane, 0, sizeof sum->lane);
}

static void mpt__ref_sum_add(mpt__ref_sum *sum, const mpt__real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        sum->lane[sum->count % MPT__SUM_LANES] += x[i];
        if (++sum->count == MPT__SUM_CHUNK) mpt__ref_sum_close_chunk(sum);
    }
}

static mpt__real mpt__ref_sum_total(mpt__ref_sum *sum) {
    mpt__real total = 0;
    bool any = false;
    if (sum->count > 0) mpt__ref_sum_close_chunk(sum);
    for (int k = 0; k < MPT__SUM_LEVELS; k++) {
        if ((sum->chunks >> k & 1) == 0) continue;
        total = any ? sum->level[k] + total : sum->level[k];
        any = true;
    }
    return total;
}

/* ==== Elementwise kernels ==== */

typedef struct mpt__ref_map mpt__ref_map;
typedef void (*mpt__ref_body)(const mpt__ref_map *map, const mpt__ref_cursor *run);
typedef void (*mpt__ref_unary_fn)(mpt__real *x, int64_t n, mpt__real c);
typedef void (*mpt__ref_binary_fn)(mpt__real *x, const mpt__real *y, int64_t n);

/* One launch of an elementwise kernel; body computes one run. */
struct mpt__ref_map {
    const mpt__cpu_call *call;
    mpt__ref_body body;
    mpt__ref_unary_fn unary;
    mpt__ref_binary_fn binary;
    mpt__ref_view view[MPT__LOOP_OPERANDS];
    mpt__ref_loop loop;
    int64_t stride[MPT__LOOP_OPERANDS]; /* within a run */
};

static void mpt__ref_map_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_map *map = (const mpt__ref_map *)work;
    mpt__ref_cursor run;
    (void)thread;
    mpt__ref_cursor_start(&run, &map->loop, chunk * MPT__CHUNK,
                          mpt__ref_min((chunk + 1) * MPT__CHUNK, map->loop.count));
    while (mpt__ref_cursor_next(&run, &map->loop)) map->body(map, &run);
}

/* Runs map->body over operands 0 .. n-1, at `ns` nanoseconds per element. */
static void mpt__ref_map_run(mpt__ref_map *map, const mpt__cpu_call *call, int n, double ns) {
    map->call = call;
    map->loop = mpt__ref_loop_over(call->launch, n);
    for (int k = 0; k < n; k++) {
        map->view[k] = mpt__ref_view_of(call, k);
        map->stride[k] = map->loop.stride[k][map->loop.rank - 1];
    }
    mpt__parallel(call->pool, mpt__ref_chunks(map->loop.count, MPT__CHUNK),
                  (int64_t)((double)map->loop.count * ns), mpt__ref_map_chunk, map);
}

static void mpt__ref_fill_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    double x[MPT__BLOCK];
    for (int64_t i = 0; i < run->n; i++) x[i] = map->call->launch->imm[0];
    mpt__ref_store_f64(map->view[0].data, map->view[0].dtype, run->offset[0], map->stride[0], x,
                       run->n);
}

static void mpt__ref_fill(const mpt__cpu_call *call) {
    mpt__ref_map map;
    map.body = mpt__ref_fill_body;
    mpt__ref_map_run(&map, call, 1, 0.5);
}

static void mpt__ref_copy_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    mpt__real x[MPT__BLOCK];
    mpt__ref_get(&map->view[0], run->offset[0], map->stride[0], x, run->n);
    mpt__ref_put(&map->view[1], run->offset[1], map->stride[1], x, run->n);
}

/* F64 on one side: through double. */
static void mpt__ref_copy_f64_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__ref_view *from = &map->view[0], *to = &map->view[1];
    double x[MPT__BLOCK], old[MPT__BLOCK];
    mpt__ref_load_f64(x, from->data, from->dtype, run->offset[0], map->stride[0], run->n);
    if (to->accumulate) {
        mpt__ref_load_f64(old, to->data, to->dtype, run->offset[1], map->stride[1], run->n);
        for (int64_t i = 0; i < run->n; i++) x[i] += old[i];
    }
    mpt__ref_store_f64(to->data, to->dtype, run->offset[1], map->stride[1], x, run->n);
}

/* Integers on both sides: exact, sums modulo 2^64. */
static void mpt__ref_copy_i64_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__ref_view *from = &map->view[0], *to = &map->view[1];
    int64_t x[MPT__BLOCK], old[MPT__BLOCK];
    mpt__ref_load_i64(x, from->data, from->dtype, run->offset[0], map->stride[0], run->n);
    if (to->accumulate) {
        mpt__ref_load_i64(old, to->data, to->dtype, run->offset[1], map->stride[1], run->n);
        for (int64_t i = 0; i < run->n; i++) {
            x[i] = (int64_t)((uint64_t)x[i] + (uint64_t)old[i]);
        }
    }
    mpt__ref_store_i64(to->data, to->dtype, run->offset[1], map->stride[1], x, run->n);
}

static void mpt__ref_copy(const mpt__cpu_call *call) {
    uint8_t from = call->launch->operand[0].dtype, to = call->launch->operand[1].dtype;
    mpt__ref_map map;
    map.body = mpt__ref_copy_body;
    if (from == MPT_F64 || to == MPT_F64) map.body = mpt__ref_copy_f64_body;
    if (!mpt__dtype_info[from].is_float && !mpt__dtype_info[to].is_float) {
        map.body = mpt__ref_copy_i64_body;
    }
    mpt__ref_map_run(&map, call, 2, 2.0);
}

/* The functions, R(name, nanoseconds per element, value): a the element, b the second one, c the
   constant. */
#define MPT__SQRT_HALF ((mpt__real)0.70710678118654752)    /* 1 / sqrt(2) */
#define MPT__SQRT_2_BY_PI ((mpt__real)0.79788456080286536) /* sqrt(2 / pi) */
#define MPT__NORMAL_PEAK ((mpt__real)0.39894228040143268)  /* 1 / sqrt(2 pi) */
#define MPT__GELU_CUBE ((mpt__real)0.044715)

#define MPT__REF_UNARY(R)                                                                          \
    R(NEG, 2, -a)                                                                                  \
    R(EXP, 8, mpt__real_exp(a))                                                                    \
    R(LOG, 10, mpt__real_log(a))                                                                   \
    R(SQRT, 6, mpt__real_sqrt(a))                                                                  \
    R(RELU, 2, a > 0 || mpt__real_is_nan(a) ? a : 0)                                               \
    R(GELU, 20, (mpt__real)0.5 * a * (1 + mpt__real_erf(a * MPT__SQRT_HALF)))                      \
    R(GELU_TANH, 15, (mpt__real)0.5 * a * (1 + mpt__real_tanh(mpt__ref_gelu_inner(a))))            \
    R(TANH, 12, mpt__real_tanh(a))                                                                 \
    R(SIGMOID, 10, mpt__real_sigmoid(a))                                                           \
    R(ADD_SCALAR, 2, a + c)                                                                        \
    R(MUL_SCALAR, 2, a * c)                                                                        \
    R(MUL_SLOT, 2, a * c)                                                                          \
    R(ISNAN, 2, mpt__real_is_nan(a) ? 1 : 0)                                                       \
    R(ISINF, 2, mpt__real_is_finite(a) || mpt__real_is_nan(a) ? 0 : 1)

#define MPT__REF_BINARY(R)                                                                         \
    R(ADD, 2, a + b)                                                                               \
    R(SUB, 2, a - b)                                                                               \
    R(MUL, 2, a * b)                                                                               \
    R(DIV, 3, a / b)                                                                               \
    R(EQUAL, 2, a == b ? 1 : 0)                                                                    \
    R(RELU_BACKWARD, 2, a <= 0 ? 0 : b)                                                            \
    R(GELU_BACKWARD, 25, b * mpt__ref_gelu_slope(a))                                               \
    R(GELU_TANH_BACKWARD, 20, b * mpt__ref_gelu_tanh_slope(a))                                     \
    R(TANH_BACKWARD, 2, b * (1 - a * a))                                                           \
    R(SIGMOID_BACKWARD, 2, b * a * (1 - a))                                                        \
    R(SQRT_BACKWARD, 3, b / (2 * a))

static mpt__real mpt__ref_gelu_inner(mpt__real a) {
    return MPT__SQRT_2_BY_PI * (a + MPT__GELU_CUBE * a * a * a);
}

static mpt__real mpt__ref_gelu_slope(mpt__real a) {
    mpt__real below = (mpt__real)0.5 * (1 + mpt__real_erf(a * MPT__SQRT_HALF));
    return below + a * MPT__NORMAL_PEAK * mpt__real_exp((mpt__real)-0.5 * a * a);
}

static mpt__real mpt__ref_gelu_tanh_slope(mpt__real a) {
    mpt__real t = mpt__real_tanh(mpt__ref_gelu_inner(a)), rest = 1 - t * t;
    mpt__real slope = (mpt__real)0.5 * (1 + t);
    if (rest == 0) return slope; /* the other factor may be infinite here */
    return slope + (mpt__real)0.5 * a * rest * MPT__SQRT_2_BY_PI * (1 + 3 * MPT__GELU_CUBE * a * a);
}

#define MPT__ROW(id, ns, value)                                                                    \
    static void mpt__ref_fn_##id(mpt__real *x, int64_t n, mpt__real c) {                           \
        (void)c;                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const mpt__real a = x[i];                                                              \
            x[i] = value;                                                                          \
        }                                                                                          \
    }
MPT__REF_UNARY(MPT__ROW)
#undef MPT__ROW
#define MPT__ROW(id, ns, value)                                                                    \
    static void mpt__ref_fn_##id(mpt__real *x, const mpt__real *y, int64_t n) {                    \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const mpt__real a = x[i], b = y[i];                                                    \
            x[i] = value;                                                                          \
        }                                                                                          \
    }
MPT__REF_BINARY(MPT__ROW)
#undef MPT__ROW

typedef struct mpt__ref_function {
    mpt__function id;
    int ns;
    mpt__ref_unary_fn unary;
    mpt__ref_binary_fn binary;
} mpt__ref_function;

static const mpt__ref_function mpt__ref_functions[] = {
#define MPT__ROW(id, ns, value) {MPT__FN_##id, ns, mpt__ref_fn_##id, NULL},
    MPT__REF_UNARY(MPT__ROW)
#undef MPT__ROW
#define MPT__ROW(id, ns, value) {MPT__FN_##id, ns, NULL, mpt__ref_fn_##id},
    MPT__REF_BINARY(MPT__ROW)
#undef MPT__ROW
    {MPT__FN_NONE, 0, NULL, NULL},
};

/* The row of an elementwise function; the closing row for any other. */
static const mpt__ref_function *mpt__ref_find_function(int id) {
    const mpt__ref_function *row = mpt__ref_functions;
    while (row->id != MPT__FN_NONE && (int)row->id != id) row++;
    return row;
}

static void mpt__ref_unary_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__launch *launch = map->call->launch;
    mpt__real x[MPT__BLOCK];
    double c = launch->function == MPT__FN_MUL_SLOT ? map->call->scalars[launch->slot[0]].f
                                                    : launch->imm[0];
    mpt__ref_get(&map->view[0], run->offset[0], map->stride[0], x, run->n);
    map->unary(x, run->n, (mpt__real)c);
    mpt__ref_put(&map->view[1], run->offset[1], map->stride[1], x, run->n);
}

static void mpt__ref_unary(const mpt__cpu_call *call) {
    const mpt__ref_function *function = mpt__ref_find_function(call->launch->function);
    mpt__ref_map map;
    map.body = mpt__ref_unary_body;
    map.unary = function->unary;
    mpt__ref_map_run(&map, call, 2, function->ns);
}

static void mpt__ref_binary_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    mpt__real x[MPT__BLOCK], y[MPT__BLOCK];
    mpt__ref_get(&map->view[0], run->offset[0], map->stride[0], x, run->n);
    mpt__ref_get(&map->view[1], run->offset[1], map->stride[1], y, run->n);
    map->binary(x, y, run->n);
    mpt__ref_put(&map->view[2], run->offset[2], map->stride[2], x, run->n);
}

/* EQUAL of two integer operands. */
static void mpt__ref_equal_i64_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    int64_t x[MPT__BLOCK], y[MPT__BLOCK];
    mpt__real equal[MPT__BLOCK];
    mpt__ref_load_i64(x, map->view[0].data, map->view[0].dtype, run->offset[0], map->stride[0],
                      run->n);
    mpt__ref_load_i64(y, map->view[1].data, map->view[1].dtype, run->offset[1], map->stride[1],
                      run->n);
    for (int64_t i = 0; i < run->n; i++) equal[i] = x[i] == y[i] ? 1 : 0;
    mpt__ref_put(&map->view[2], run->offset[2], map->stride[2], equal, run->n);
}

static void mpt__ref_binary(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__ref_function *function = mpt__ref_find_function(launch->function);
    mpt__ref_map map;
    map.body = mpt__ref_binary_body;
    map.binary = function->binary;
    if (launch->function == MPT__FN_EQUAL && !mpt__dtype_info[launch->operand[0].dtype].is_float &&
        !mpt__dtype_info[launch->operand[1].dtype].is_float) {
        map.body = mpt__ref_equal_i64_body;
    }
    mpt__ref_map_run(&map, call, 3, function->ns);
}

/* ==== Random numbers ==== */

static void mpt__ref_random_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__launch *launch = map->call->launch;
    mpt__rng_key key = mpt__cpu_rng_key(map->call);
    float a = (float)launch->imm[0], b = (float)launch->imm[1], drawn[MPT__BLOCK];
    mpt__real x[MPT__BLOCK];
    if (launch->function == MPT__FN_NORMAL) {
        mpt__random_normal(key, (uint64_t)run->at, (size_t)run->n, a, b, drawn);
    } else {
        mpt__random_uniform(key, (uint64_t)run->at, (size_t)run->n, a, b, drawn);
    }
    for (int64_t i = 0; i < run->n; i++) x[i] = (mpt__real)drawn[i];
    mpt__ref_put(&map->view[0], run->offset[0], map->stride[0], x, run->n);
}

static void mpt__ref_random(const mpt__cpu_call *call) {
    mpt__ref_map map;
    map.body = mpt__ref_random_body;
    mpt__ref_map_run(&map, call, 1, 30.0);
}

/* Kept elements are multiplied by 1 / (1 - p), rounded once. */
static void mpt__ref_dropout_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    double p = map->call->launch->imm[0];
    mpt__real x[MPT__BLOCK], factor = p < 1 ? (mpt__real)(1 / (1 - p)) : 0;
    uint32_t bits[MPT__BLOCK];
    mpt__random_bits(mpt__cpu_rng_key(map->call), (uint64_t)run->at, (size_t)run->n, bits);
    mpt__ref_get(&map->view[0], run->offset[0], map->stride[0], x, run->n);
    for (int64_t i = 0; i < run->n; i++) {
        x[i] = (double)bits[i] >= p * 4294967296.0 ? x[i] * factor : 0;
    }
    mpt__ref_put(&map->view[1], run->offset[1], map->stride[1], x, run->n);
}

static void mpt__ref_dropout(const mpt__cpu_call *call) {
    mpt__ref_map map;
    map.body = mpt__ref_dropout_body;
    mpt__ref_map_run(&map, call, 2, 8.0);
}

/* ==== Reductions ==== */

/* Outputs of a chunk, neighbours in logical order. */
#define MPT__REDUCE_OUTPUTS 64

typedef struct mpt__ref_reduce_work {
    mpt__ref_view in, out;
    mpt__ref_loop kept;    /* over the outputs; operands: in, out */
    mpt__ref_loop reduced; /* over what one output sums; operand: in */
    int64_t chunks;        /* of the reduced elements, MPT__SUM_CHUNK each */
    bool is_max, is_mean, by_columns;
    mpt__real *partial; /* [outputs, chunks]; unused when there is but one chunk */
} mpt__ref_reduce_work;

static void mpt__ref_combine(const mpt__ref_reduce_work *w, mpt__real *to, const mpt__real *x,
                             int64_t n) {
    if (w->is_max) {
        for (int64_t i = 0; i < n; i++) to[i] = mpt__real_max(to[i], x[i]);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] += x[i];
    }
}

/* Reduces one chunk for n neighbouring outputs whose elements begin at `offset`, `stride` apart.
   Lane l of output j is lane[l][j]. By columns, the outputs are the inner loop, which is faster
   where they lie closer together than what they sum; the order of additions is the same. */
static void mpt__ref_reduce_outputs(const mpt__ref_reduce_work *w, int64_t chunk, int64_t offset,
                                    int64_t stride, int64_t n, mpt__real *result) {
    mpt__real lane[MPT__SUM_LANES][MPT__REDUCE_OUTPUTS], x[MPT__BLOCK];
    mpt__real identity = w->is_max ? -mpt__real_infinity() : 0;
    int64_t begin = chunk * MPT__SUM_CHUNK, inner = w->reduced.stride[0][w->reduced.rank - 1];
    int64_t end = mpt__ref_min(begin + MPT__SUM_CHUNK, w->reduced.count);
    mpt__ref_cursor run;
    for (int64_t i = 0; i < MPT__SUM_LANES * MPT__REDUCE_OUTPUTS; i++) {
        lane[i / MPT__REDUCE_OUTPUTS][i % MPT__REDUCE_OUTPUTS] = identity;
    }
    mpt__ref_cursor_start(&run, &w->reduced, begin, end);
    while (mpt__ref_cursor_next(&run, &w->reduced)) {
        int64_t first = run.at - begin;
        for (int64_t i = 0; w->by_columns && i < run.n; i++) {
            mpt__ref_get(&w->in, offset + run.offset[0] + i * inner, stride, x, n);
            mpt__ref_combine(w, lane[(first + i) % MPT__SUM_LANES], x, n);
        }
        for (int64_t j = 0; !w->by_columns && j < n; j++) {
            mpt__ref_get(&w->in, offset + run.offset[0] + j * stride, inner, x, run.n);
            for (int64_t i = 0; i < run.n; i++) {
                mpt__ref_combine(w, &lane[(first + i) % MPT__SUM_LANES][j], &x[i], 1);
            }
        }
    }
    for (int half = MPT__SUM_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) mpt__ref_combine(w, lane[l], lane[l + half], n);
    }
    memcpy(result, lane[0], (size_t)n * sizeof *result);
}

static void mpt__ref_reduce_put(const mpt__ref_reduce_work *w, const mpt__ref_cursor *run,
                                mpt__real *result) {
    for (int64_t i = 0; w->is_mean && i < run->n; i++) result[i] /= (mpt__real)w->reduced.count;
    mpt__ref_put(&w->out, run->offset[1], w->kept.stride[1][w->kept.rank - 1], result, run->n);
}

static void mpt__ref_reduce_start(const mpt__ref_reduce_work *w, int64_t tile,
                                  mpt__ref_cursor *run) {
    mpt__ref_cursor_start(run, &w->kept, tile * MPT__REDUCE_OUTPUTS,
                          mpt__ref_min((tile + 1) * MPT__REDUCE_OUTPUTS, w->kept.count));
}

/* One chunk of the sums for one tile of outputs. */
static void mpt__ref_reduce_chunk(void *work, int64_t index, int thread) {
    const mpt__ref_reduce_work *w = (const mpt__ref_reduce_work *)work;
    int64_t chunk = index % w->chunks;
    mpt__real result[MPT__REDUCE_OUTPUTS];
    mpt__ref_cursor run;
    (void)thread;
    mpt__ref_reduce_start(w, index / w->chunks, &run);
    while (mpt__ref_cursor_next(&run, &w->kept)) {
        mpt__ref_reduce_outputs(w, chunk, run.offset[0], w->kept.stride[0][w->kept.rank - 1], run.n,
                                result);
        if (w->chunks == 1) {
            mpt__ref_reduce_put(w, &run, result);
            continue;
        }
        mpt__real *partial = w->partial + run.at * w->chunks + chunk;
        for (int64_t i = 0; i < run.n; i++) partial[i * w->chunks] = result[i];
    }
}

/* The pairs of chunks, for one tile of outputs. */
static void mpt__ref_reduce_finish(void *work, int64_t tile, int thread) {
    const mpt__ref_reduce_work *w = (const mpt__ref_reduce_work *)work;
    mpt__real result[MPT__REDUCE_OUTPUTS];
    mpt__ref_cursor run;
    (void)thread;
    mpt__ref_reduce_start(w, tile, &run);
    while (mpt__ref_cursor_next(&run, &w->kept)) {
        for (int64_t i = 0; i < run.n; i++) {
            mpt__real *part = w->partial + (run.at + i) * w->chunks;
            for (int64_t step = 1; step < w->chunks; step *= 2) {
                for (int64_t k = 0; k + step < w->chunks; k += 2 * step) {
                    mpt__ref_combine(w, &part[k], &part[k + step], 1);
                }
            }
            result[i] = part[0];
        }
        mpt__ref_reduce_put(w, &run, result);
    }
}

/* Sorts the dimensions into those that stay and those that go. */
static void mpt__ref_reduce_loops(const mpt__launch *launch, mpt__ref_loop *kept,
                                  mpt__ref_loop *reduced) {
    const mpt__operand *in = &launch->operand[0], *out = &launch->operand[1];
    mpt__ref_loop_init(kept, 2);
    mpt__ref_loop_init(reduced, 1);
    for (int d = 0; d < in->rank; d++) {
        int64_t stride[2];
        stride[0] = in->stride[d];
        stride[1] = out->stride[d];
        if (out->shape[d] == 1) {
            mpt__ref_loop_add(reduced, in->shape[d], stride);
        } else {
            mpt__ref_loop_add(kept, in->shape[d], stride);
        }
    }
    mpt__ref_loop_close(kept);
    mpt__ref_loop_close(reduced);
}

static int64_t mpt__ref_reduce_workspace(const mpt__launch *launch, int threads) {
    mpt__ref_loop kept, reduced;
    (void)threads;
    mpt__ref_reduce_loops(launch, &kept, &reduced);
    int64_t chunks = mpt__ref_chunks(reduced.count, MPT__SUM_CHUNK);
    return chunks > 1 ? kept.count * chunks * (int64_t)sizeof(mpt__real) : 0;
}

static void mpt__ref_reduce(const mpt__cpu_call *call) {
    mpt__ref_reduce_work w;
    w.in = mpt__ref_view_of(call, 0);
    w.out = mpt__ref_view_of(call, 1);
    mpt__ref_reduce_loops(call->launch, &w.kept, &w.reduced);
    w.is_max = call->launch->function == MPT__FN_MAX;
    w.is_mean = call->launch->function == MPT__FN_MEAN;
    w.by_columns = w.kept.count > 1 && w.kept.stride[0][w.kept.rank - 1] <
                                           w.reduced.stride[0][w.reduced.rank - 1];
    w.partial = (mpt__real *)call->workspace;
    w.chunks = mpt__ref_chunks(w.reduced.count, MPT__SUM_CHUNK);
    if (w.chunks == 0) w.chunks = 1; /* nothing to sum: the empty chunk gives the identity */
    int64_t tiles = mpt__ref_chunks(w.kept.count, MPT__REDUCE_OUTPUTS);
    mpt__parallel(call->pool, tiles * w.chunks, w.kept.count * w.reduced.count * 2,
                  mpt__ref_reduce_chunk, &w);
    if (w.chunks > 1) {
        mpt__parallel(call->pool, tiles, w.kept.count * w.chunks * 2, mpt__ref_reduce_finish, &w);
    }
}

/* ==== Along one dimension ==== */

/* Lines of elements along one dimension; the loop goes over the lines, three operands. */
typedef struct mpt__ref_axis_work {
    mpt__ref_view view[MPT__LOOP_OPERANDS];
    mpt__ref_loop lines;
    int64_t n, stride[MPT__LOOP_OPERANDS]; /* along the dimension */
    void (*line)(const struct mpt__ref_axis_work *w, const int64_t *offset);
} mpt__ref_axis_work;

static void mpt__ref_axis_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_axis_work *w = (const mpt__ref_axis_work *)work;
    mpt__ref_cursor run;
    (void)thread;
    mpt__ref_cursor_start(&run, &w->lines, chunk * MPT__CHUNK_ROWS,
                          mpt__ref_min((chunk + 1) * MPT__CHUNK_ROWS, w->lines.count));
    while (mpt__ref_cursor_next(&run, &w->lines)) {
        for (int64_t i = 0; i < run.n; i++) {
            int64_t offset[MPT__LOOP_OPERANDS] = {0, 0, 0};
            for (int k = 0; k < w->lines.operands; k++) {
                offset[k] = run.offset[k] + i * w->lines.stride[k][w->lines.rank - 1];
            }
            w->line(w, offset);
        }
    }
}

/* Runs w->line for every line along `axis` of operands 0 .. operands-1; `shape_of` is one of them
   that has its full size there. Absent operands have stride 0. */
static void mpt__ref_axis_run(mpt__ref_axis_work *w, const mpt__cpu_call *call, int operands,
                              int shape_of, int axis, double ns) {
    const mpt__operand *o = call->launch->operand;
    mpt__ref_loop_init(&w->lines, operands);
    for (int d = 0; d < o[shape_of].rank; d++) {
        int64_t stride[MPT__LOOP_OPERANDS] = {0, 0, 0};
        for (int k = 0; k < operands; k++) {
            if (call->data[k] != NULL) stride[k] = o[k].stride[d];
        }
        if (d == axis) {
            memcpy(w->stride, stride, sizeof stride);
        } else {
            mpt__ref_loop_add(&w->lines, o[shape_of].shape[d], stride);
        }
    }
    mpt__ref_loop_close(&w->lines);
    w->n = o[shape_of].shape[axis];
    if (w->n == 0) return; /* lines without elements can be 2^40 */
    for (int k = 0; k < operands; k++) w->view[k] = mpt__ref_view_of(call, k);
    mpt__parallel(call->pool, mpt__ref_chunks(w->lines.count, MPT__CHUNK_ROWS),
                  (int64_t)((double)w->lines.count * (double)w->n * ns), mpt__ref_axis_chunk, w);
}

static void mpt__ref_argmax_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__real best = 0, x[MPT__BLOCK];
    int64_t best_index = 0;
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[0], offset[0] + at * w->stride[0], w->stride[0], x, n);
        for (int64_t i = 0; i < n; i++) {
            bool nan = mpt__real_is_nan(x[i]) && !mpt__real_is_nan(best);
            if (at + i == 0 || nan || x[i] > best) {
                best = x[i];
                best_index = at + i;
            }
        }
    }
    if (w->view[1].data != NULL) {
        mpt__ref_store_i64(w->view[1].data, w->view[1].dtype, offset[1], 1, &best_index, 1);
    }
    if (w->view[2].data != NULL) mpt__ref_put_one(&w->view[2], offset[2], best);
}

static void mpt__ref_argmax(const mpt__cpu_call *call) {
    mpt__ref_axis_work w;
    w.line = mpt__ref_argmax_line;
    mpt__ref_axis_run(&w, call, 3, 0, (int)call->launch->index[0], 2.0);
}

static void mpt__ref_scatter_axis_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    int64_t index = mpt__ref_get_integer(&w->view[0], offset[0]);
    mpt__real value = mpt__ref_get_one(&w->view[1], offset[1]), x[MPT__BLOCK];
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        for (int64_t i = 0; i < n; i++) x[i] = at + i == index ? value : 0;
        mpt__ref_put(&w->view[2], offset[2] + at * w->stride[2], w->stride[2], x, n);
    }
}

static void mpt__ref_scatter_axis(const mpt__cpu_call *call) {
    mpt__ref_axis_work w;
    w.line = mpt__ref_scatter_axis_line;
    mpt__ref_axis_run(&w, call, 3, 2, (int)call->launch->index[0], 2.0);
}

/* ==== Softmax ==== */

/* The maximum of a line and the sum of exp(x - maximum) over it. A NaN anywhere, and a line of
   nothing but -infinity, make the sum NaN. */
static void mpt__ref_line_sum(const mpt__ref_view *view, int64_t offset, int64_t stride,
                              int64_t count, mpt__real *maximum, mpt__real *total) {
    mpt__real x[MPT__BLOCK], most = -mpt__real_infinity();
    mpt__ref_sum sum;
    for (int64_t at = 0; at < count; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, count - at);
        mpt__ref_get(view, offset + at * stride, stride, x, n);
        for (int64_t i = 0; i < n; i++) most = mpt__real_max(most, x[i]);
    }
    mpt__ref_sum_init(&sum);
    for (int64_t at = 0; at < count; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, count - at);
        mpt__ref_get(view, offset + at * stride, stride, x, n);
        for (int64_t i = 0; i < n; i++) x[i] = mpt__real_exp(x[i] - most);
        mpt__ref_sum_add(&sum, x, n);
    }
    *maximum = most;
    *total = mpt__ref_sum_total(&sum);
}

static void mpt__ref_softmax_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__real most, sum, x[MPT__BLOCK];
    mpt__ref_line_sum(&w->view[0], offset[0], w->stride[0], w->n, &most, &sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[0], offset[0] + at * w->stride[0], w->stride[0], x, n);
        for (int64_t i = 0; i < n; i++) x[i] = mpt__real_exp(x[i] - most) / sum;
        mpt__ref_put(&w->view[1], offset[1] + at * w->stride[1], w->stride[1], x, n);
    }
}

static void mpt__ref_log_softmax_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__real most, sum, x[MPT__BLOCK];
    mpt__ref_line_sum(&w->view[0], offset[0], w->stride[0], w->n, &most, &sum);
    mpt__real log_sum = mpt__real_log(sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[0], offset[0] + at * w->stride[0], w->stride[0], x, n);
        for (int64_t i = 0; i < n; i++) x[i] = (x[i] - most) - log_sum;
        mpt__ref_put(&w->view[1], offset[1] + at * w->stride[1], w->stride[1], x, n);
    }
}

static void mpt__ref_softmax(const mpt__cpu_call *call) {
    mpt__ref_axis_work w;
    w.line = call->launch->function == MPT__FN_LOG_SOFTMAX ? mpt__ref_log_softmax_line
                                                           : mpt__ref_softmax_line;
    mpt__ref_axis_run(&w, call, 2, 0, 1, 25.0);
}

/* The sum over a line of dy * y (y NULL: of dy). */
static mpt__real mpt__ref_line_dot(const mpt__ref_axis_work *w, const int64_t *offset,
                                   const mpt__ref_view *y) {
    mpt__real a[MPT__BLOCK], b[MPT__BLOCK];
    mpt__ref_sum sum;
    mpt__ref_sum_init(&sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[1], offset[1] + at * w->stride[1], w->stride[1], b, n);
        if (y != NULL) {
            mpt__ref_get(y, offset[0] + at * w->stride[0], w->stride[0], a, n);
            for (int64_t i = 0; i < n; i++) b[i] *= a[i];
        }
        mpt__ref_sum_add(&sum, b, n);
    }
    return mpt__ref_sum_total(&sum);
}

/* dx = y (dy - sum(dy y)) */
static void mpt__ref_softmax_backward_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__real sum = mpt__ref_line_dot(w, offset, &w->view[0]), y[MPT__BLOCK], x[MPT__BLOCK];
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[0], offset[0] + at * w->stride[0], w->stride[0], y, n);
        mpt__ref_get(&w->view[1], offset[1] + at * w->stride[1], w->stride[1], x, n);
        for (int64_t i = 0; i < n; i++) x[i] = y[i] * (x[i] - sum);
        mpt__ref_put(&w->view[2], offset[2] + at * w->stride[2], w->stride[2], x, n);
    }
}

/* dx = dy - exp(y) sum(dy) */
static void mpt__ref_log_softmax_backward_line(const mpt__ref_axis_work *w,
                                               const int64_t *offset) {
    mpt__real sum = mpt__ref_line_dot(w, offset, NULL), y[MPT__BLOCK], x[MPT__BLOCK];
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        mpt__ref_get(&w->view[0], offset[0] + at * w->stride[0], w->stride[0], y, n);
        mpt__ref_get(&w->view[1], offset[1] + at * w->stride[1], w->stride[1], x, n);
        for (int64_t i = 0; i < n; i++) x[i] -= mpt__real_exp(y[i]) * sum;
        mpt__ref_put(&w->view[2], offset[2] + at * w->stride[2], w->stride[2], x, n);
    }
}

static void mpt__ref_softmax_backward(const mpt__cpu_call *call) {
    mpt__ref_axis_work w;
    w.line = call->launch->function == MPT__FN_LOG_SOFTMAX ? mpt__ref_log_softmax_backward_line
                                                           : mpt__ref_softmax_backward_line;
    mpt__ref_axis_run(&w, call, 3, 0, 1, 15.0);
}

/* ==== GEMM ==== */

/* A chunk is one tile of the output; K is walked in panels, converted once per tile. */
#define MPT__GEMM_M 32
#define MPT__GEMM_N 64
#define MPT__GEMM_K 64

typedef struct mpt__ref_gemm_work {
    const mpt__launch *launch;
    mpt__ref_view view[4]; /* a, b, bias, out */
    mpt__real alpha;
    int64_t m, n, k, tiles_m, tiles_n;
    int64_t row_stride[4]; /* between neighbours in a row */
    mpt__ref_unary_fn activation; /* NULL: none */
} mpt__ref_gemm_work;

/* The elementwise function of an mpt_activation. */
static mpt__ref_unary_fn mpt__ref_activation(uint8_t activation) {
    static const uint8_t function[] = {MPT__FN_NONE,      MPT__FN_RELU, MPT__FN_GELU,
                                       MPT__FN_GELU_TANH, MPT__FN_TANH, MPT__FN_SIGMOID};
    return mpt__ref_find_function(function[activation])->unary;
}

/* Loads a run of an input of the GEMM and rounds it to the compute dtype. */
static void mpt__ref_gemm_get(const mpt__ref_gemm_work *w, int operand, int64_t offset,
                              mpt__real *x, int64_t n) {
    const mpt__ref_view *view = &w->view[operand];
    mpt__ref_get(view, offset, w->row_stride[operand], x, n);
    if (view->dtype == w->launch->compute_dtype) return;
    for (int64_t i = 0; w->launch->compute_dtype == MPT_F16 && i < n; i++) {
        x[i] = (mpt__real)mpt__f16_to_f32(mpt__f32_to_f16((float)x[i]));
    }
    for (int64_t i = 0; w->launch->compute_dtype == MPT_BF16 && i < n; i++) {
        x[i] = (mpt__real)mpt__bf16_to_f32(mpt__f32_to_bf16((float)x[i]));
    }
}

/* Where element [batch, row, column] of an operand lies. */
static int64_t mpt__ref_gemm_at(const mpt__ref_gemm_work *w, int operand, int64_t batch,
                                int64_t row, int64_t column) {
    const mpt__operand *o = &w->launch->operand[operand], *out = &w->launch->operand[3];
    int64_t offset = row * o->stride[out->rank - 2] + column * o->stride[out->rank - 1];
    for (int d = out->rank - 3; d >= 0; d--) {
        offset += batch % out->shape[d] * o->stride[d];
        batch /= out->shape[d];
    }
    return offset;
}

/* sum += a[rows, k] b[k, columns], k ascending. */
static void mpt__ref_gemm_panel(mpt__real sum[MPT__GEMM_M][MPT__GEMM_N],
                                mpt__real a[MPT__GEMM_M][MPT__GEMM_K],
                                mpt__real b[MPT__GEMM_K][MPT__GEMM_N], int64_t rows,
                                int64_t columns, int64_t k) {
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t p = 0; p < k; p++) {
            const mpt__real factor = a[i][p];
            for (int64_t j = 0; j < columns; j++) sum[i][j] += factor * b[p][j];
        }
    }
}

static void mpt__ref_gemm_tile(void *work, int64_t tile, int thread) {
    const mpt__ref_gemm_work *w = (const mpt__ref_gemm_work *)work;
    mpt__real sum[MPT__GEMM_M][MPT__GEMM_N], a[MPT__GEMM_M][MPT__GEMM_K];
    mpt__real b[MPT__GEMM_K][MPT__GEMM_N], bias[MPT__GEMM_N];
    int64_t n0 = tile % w->tiles_n * MPT__GEMM_N, m0 = tile / w->tiles_n % w->tiles_m * MPT__GEMM_M;
    int64_t batch = tile / (w->tiles_n * w->tiles_m);
    int64_t rows = mpt__ref_min(MPT__GEMM_M, w->m - m0);
    int64_t columns = mpt__ref_min(MPT__GEMM_N, w->n - n0);
    (void)thread;
    memset(sum, 0, sizeof sum);
    for (int64_t k0 = 0; k0 < w->k; k0 += MPT__GEMM_K) {
        int64_t k = mpt__ref_min(MPT__GEMM_K, w->k - k0);
        for (int64_t i = 0; i < rows; i++) {
            mpt__ref_gemm_get(w, 0, mpt__ref_gemm_at(w, 0, batch, m0 + i, k0), a[i], k);
        }
        for (int64_t p = 0; p < k; p++) {
            mpt__ref_gemm_get(w, 1, mpt__ref_gemm_at(w, 1, batch, k0 + p, n0), b[p], columns);
        }
        mpt__ref_gemm_panel(sum, a, b, rows, columns, k);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) sum[i][j] *= w->alpha;
        if (w->view[2].data != NULL) {
            mpt__ref_gemm_get(w, 2, mpt__ref_gemm_at(w, 2, batch, m0 + i, n0), bias, columns);
            for (int64_t j = 0; j < columns; j++) sum[i][j] += bias[j];
        }
        if (w->activation != NULL) w->activation(sum[i], columns, 0);
        mpt__ref_put(&w->view[3], mpt__ref_gemm_at(w, 3, batch, m0 + i, n0),
                     w->row_stride[3], sum[i], columns);
    }
}

static void mpt__ref_gemm(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__operand *out = &launch->operand[3];
    mpt__ref_gemm_work w;
    w.launch = launch;
    for (int x = 0; x < 4; x++) {
        w.view[x] = mpt__ref_view_of(call, x);
        w.row_stride[x] = launch->operand[x].stride[out->rank - 1];
    }
    w.alpha = (mpt__real)launch->imm[0];
    w.m = out->shape[out->rank - 2];
    w.n = out->shape[out->rank - 1];
    w.k = launch->operand[0].shape[out->rank - 1];
    w.tiles_m = mpt__ref_chunks(w.m, MPT__GEMM_M);
    w.tiles_n = mpt__ref_chunks(w.n, MPT__GEMM_N);
    w.activation = mpt__ref_activation(launch->activation);
    int64_t batches = 1;
    for (int d = 0; d < out->rank - 2; d++) batches *= out->shape[d];
    /* About 2 multiplications and additions per nanosecond, and 2 ns for each output. */
    double cost = (double)batches * (double)w.m * (double)w.n * ((double)w.k * 0.5 + 2);
    mpt__parallel(call->pool, batches * w.tiles_m * w.tiles_n, (int64_t)cost, mpt__ref_gemm_tile,
                  &w);
}

#endif
