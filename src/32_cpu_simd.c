/* ---------------------------------------------------------------------------------------------
 * 32_cpu_simd.c: what the vector kernels of all ISA levels share.
 *
 * The kernels walk their operands as those of 30_cpu_ref.c do, in runs of at most MPT__BLOCK
 * elements, but compute on vectors, and on fp32 data where it lies. What depends on the ISA is a
 * table of functions on blocks of floats, mpt__simd_level, made by the macros at the end from a
 * vocabulary: that of 15_math.c and the vector layer of 32_cpu_avx2.c or 33_cpu_avx512.c.
 *
 * Every function does the operations of its reference kernel in the same order, and sums have the
 * same tree: the bits are those of the reference (NaN: as a class). The optimizers alone flush
 * denormals to zero, as moments that fade away would make them slow.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__32_CPU_SIMD_INCLUDED
#define MPT__32_CPU_SIMD_INCLUDED

#include "14_convert.c"
#include "31_cpu_train.c"

/* Vector kernels are in the build: an x86-64 CPU, and mpt__real is float. */
#define MPT__JOIN_TOKENS(a, b) a##b
#define MPT__JOIN(a, b) MPT__JOIN_TOKENS(a, b)
#define MPT__REAL_IS_float 1
#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD) && MPT__JOIN(MPT__REAL_IS_, MPT__REAL)
#define MPT__SIMD_X86 1
#endif

#ifdef MPT__SIMD_X86

/* ==== Contract of a level ==== */

/* out may be an input; n is any number. */
typedef void (*mpt__simd_unary_fn)(float *out, const float *x, int64_t n, float c);
typedef void (*mpt__simd_binary_fn)(float *out, const float *x, const float *y, int64_t n);

typedef struct mpt__simd_level {
    const mpt__convert_table *convert;
    mpt__simd_unary_fn (*unary)(int function);
    mpt__simd_binary_fn (*binary)(int function);
    mpt__simd_binary_fn add, mul, max; /* max: NaN wins */
    mpt__simd_unary_fn exp_less;       /* exp(x - c) */
    mpt__simd_unary_fn divide;         /* x / c */
    mpt__simd_unary_fn clamp;          /* to +-c; NaN passes */
    /* (x - a) - b */
    void (*less_less)(float *out, const float *x, int64_t n, float a, float b);
    float (*maximum)(const float *x, int64_t n, float start); /* NaN wins; any sign of zero */
    /* y (dy - sum) and dy - exp(y) sum */
    void (*softmax_slope)(float *out, const float *y, const float *dy, int64_t n, float sum);
    void (*log_softmax_slope)(float *out, const float *y, const float *dy, int64_t n, float sum);
    /* Element i goes to lane (first + i) % 8. */
    void (*add_lanes)(float *lane, int64_t first, const float *x, int64_t n);
    void (*max_lanes)(float *lane, int64_t first, const float *x, int64_t n);
    /* The same for squares of x multiplier, in double; first = 0. Tells whether all are finite. */
    bool (*add_squares)(double *lane, const float *x, int64_t n, float multiplier);
    /* words[i] >= threshold ? x factor : 0 */
    void (*keep)(float *out, const float *x, const uint32_t *words, int64_t n, uint32_t threshold,
                 float factor);
    void (*sgd)(const mpt__ref_update *w, float *p, float *g, float *m, float *v, int64_t n);
    void (*adam)(const mpt__ref_update *w, float *p, float *g, float *m, float *v, int64_t n);
} mpt__simd_level;

/* ==== Blocks ==== */

static bool mpt__simd_is_half(int dtype) { return dtype == MPT_F16 || dtype == MPT_BF16; }

/* n elements of an operand as floats: where they lie, or loaded to `block`. */
static const float *mpt__simd_get(const mpt__simd_level *level, const mpt__ref_view *view,
                                  int64_t offset, int64_t stride, float *block, int64_t n) {
    if (view->dtype == MPT_F32 && stride == 1) return (const float *)view->data + offset;
    if (mpt__simd_is_half(view->dtype) && stride == 1) {
        const uint16_t *from = (const uint16_t *)view->data + offset;
        if (view->dtype == MPT_F16) level->convert->f16_to_f32(from, block, (size_t)n);
        if (view->dtype == MPT_BF16) level->convert->bf16_to_f32(from, block, (size_t)n);
        return block;
    }
    mpt__ref_get(view, offset, stride, block, stride == 0 ? 1 : n);
    for (int64_t i = 1; stride == 0 && i < n; i++) block[i] = block[0];
    return block;
}

/* Where to compute n results: in the operand itself, or in `block`. mpt__simd_put follows. */
static float *mpt__simd_place(const mpt__ref_view *view, int64_t offset, int64_t stride,
                              float *block) {
    bool direct = view->dtype == MPT_F32 && stride == 1 && !view->accumulate;
    return direct ? (float *)view->data + offset : block;
}

/* Stores n <= MPT__BLOCK results that stand where mpt__simd_place said, or elsewhere. */
static void mpt__simd_put(const mpt__simd_level *level, const mpt__ref_view *view, int64_t offset,
                          int64_t stride, const float *x, int64_t n) {
    float sum[MPT__BLOCK];
    if (stride != 1 || (view->dtype != MPT_F32 && !mpt__simd_is_half(view->dtype))) {
        mpt__ref_put(view, offset, stride, x, n);
        return;
    }
    if (view->accumulate) {
        level->add(sum, mpt__simd_get(level, view, offset, stride, sum, n), x, n);
        x = sum;
    }
    if (view->dtype == MPT_F32) {
        float *to = (float *)view->data + offset;
        if (to != x) memcpy(to, x, (size_t)n * sizeof *to);
        return;
    }
    uint16_t *to = (uint16_t *)view->data + offset;
    if (view->dtype == MPT_F16) {
        level->convert->f32_to_f16(x, to, (size_t)n);
    } else {
        level->convert->f32_to_bf16(x, to, (size_t)n);
    }
}

/* ==== Elementwise kernels ==== */

typedef struct mpt__simd_map {
    mpt__ref_map map; /* first: the bodies get a pointer to it */
    const mpt__simd_level *level;
    mpt__simd_unary_fn unary;
    mpt__simd_binary_fn binary;
    float c; /* dropout: the factor of kept elements */
    uint32_t threshold;
    mpt__rng_key key;
} mpt__simd_map;

static const mpt__simd_map *mpt__simd_map_of(const mpt__ref_map *map) {
    return (const mpt__simd_map *)(const void *)map;
}

static void mpt__simd_copy_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__simd_level *level = mpt__simd_map_of(map)->level;
    float block[MPT__BLOCK];
    const float *x =
        mpt__simd_get(level, &map->view[0], run->offset[0], map->stride[0], block, run->n);
    mpt__simd_put(level, &map->view[1], run->offset[1], map->stride[1], x, run->n);
}

static void mpt__simd_unary_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__simd_map *m = mpt__simd_map_of(map);
    float in[MPT__BLOCK], block[MPT__BLOCK];
    float *out = mpt__simd_place(&map->view[1], run->offset[1], map->stride[1], block);
    const float *x =
        mpt__simd_get(m->level, &map->view[0], run->offset[0], map->stride[0], in, run->n);
    m->unary(out, x, run->n, m->c);
    mpt__simd_put(m->level, &map->view[1], run->offset[1], map->stride[1], out, run->n);
}

static void mpt__simd_binary_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__simd_map *m = mpt__simd_map_of(map);
    float in[2][MPT__BLOCK], block[MPT__BLOCK];
    float *out = mpt__simd_place(&map->view[2], run->offset[2], map->stride[2], block);
    const float *x[2];
    for (int k = 0; k < 2; k++) {
        x[k] = mpt__simd_get(m->level, &map->view[k], run->offset[k], map->stride[k], in[k],
                             run->n);
    }
    m->binary(out, x[0], x[1], run->n);
    mpt__simd_put(m->level, &map->view[2], run->offset[2], map->stride[2], out, run->n);
}

static void mpt__simd_dropout_body(const mpt__ref_map *map, const mpt__ref_cursor *run) {
    const mpt__simd_map *m = mpt__simd_map_of(map);
    uint32_t words[MPT__BLOCK];
    float in[MPT__BLOCK], block[MPT__BLOCK];
    float *out = mpt__simd_place(&map->view[1], run->offset[1], map->stride[1], block);
    const float *x =
        mpt__simd_get(m->level, &map->view[0], run->offset[0], map->stride[0], in, run->n);
    mpt__avx2_random_bits(m->key, (uint64_t)run->at, (size_t)run->n, words);
    m->level->keep(out, x, words, run->n, m->threshold, m->c);
    mpt__simd_put(m->level, &map->view[1], run->offset[1], map->stride[1], out, run->n);
}

static void mpt__simd_copy(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__operand *o = call->launch->operand;
    mpt__simd_map m;
    for (int i = 0; i < 2; i++) {
        if (o[i].dtype != MPT_F32 && !mpt__simd_is_half(o[i].dtype)) {
            mpt__cpu_fall_back(call);
            return;
        }
    }
    m.level = level;
    m.map.body = mpt__simd_copy_body;
    mpt__ref_map_run(&m.map, call, 2, 0.3);
}

static void mpt__simd_unary(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    bool by_slot = launch->function == MPT__FN_MUL_SLOT;
    mpt__simd_map m;
    m.level = level;
    m.map.body = mpt__simd_unary_body;
    m.unary = level->unary(launch->function);
    m.c = (float)(by_slot ? call->scalars[launch->slot[0]].f : launch->imm[0]);
    mpt__ref_map_run(&m.map, call, 2, mpt__ref_find_function(launch->function)->ns * 0.15);
}

static void mpt__simd_binary(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__simd_map m;
    if (launch->function == MPT__FN_EQUAL && !mpt__dtype_info[launch->operand[0].dtype].is_float &&
        !mpt__dtype_info[launch->operand[1].dtype].is_float) {
        mpt__cpu_fall_back(call);
        return;
    }
    m.level = level;
    m.map.body = mpt__simd_binary_body;
    m.binary = level->binary(launch->function);
    mpt__ref_map_run(&m.map, call, 3, mpt__ref_find_function(launch->function)->ns * 0.2);
}

static void mpt__simd_dropout(const mpt__simd_level *level, const mpt__cpu_call *call) {
    double p = call->launch->imm[0], lowest = p * 4294967296.0;
    mpt__simd_map m;
    if (!(p >= 0 && lowest <= 4294967295.0)) { /* none is kept: not worth a kernel */
        mpt__cpu_fall_back(call);
        return;
    }
    m.level = level;
    m.map.body = mpt__simd_dropout_body;
    m.key = mpt__cpu_rng_key(call);
    m.c = (float)(1 / (1 - p));
    m.threshold = (uint32_t)lowest;
    if ((double)m.threshold < lowest) m.threshold++;
    mpt__ref_map_run(&m.map, call, 2, 2.0);
}

/* ==== Reductions ==== */

typedef struct mpt__simd_reduce_work {
    mpt__ref_reduce_work ref;
    const mpt__simd_level *level;
} mpt__simd_reduce_work;

/* As mpt__ref_reduce_outputs. */
static void mpt__simd_reduce_outputs(const mpt__simd_reduce_work *w, int64_t chunk, int64_t offset,
                                     int64_t stride, int64_t n, float *result) {
    const mpt__ref_reduce_work *ref = &w->ref;
    const mpt__simd_level *level = w->level;
    mpt__simd_binary_fn combine = ref->is_max ? level->max : level->add;
    float lane[MPT__SUM_LANES][MPT__REDUCE_OUTPUTS], x[MPT__BLOCK];
    int64_t begin = chunk * MPT__SUM_CHUNK;
    int64_t inner = ref->reduced.stride[0][ref->reduced.rank - 1];
    int64_t end = mpt__ref_min(begin + MPT__SUM_CHUNK, ref->reduced.count);
    mpt__ref_cursor run;
    memset(lane, 0, sizeof lane);
    if (ref->is_max) {
        for (int i = 0; i < MPT__SUM_LANES * MPT__REDUCE_OUTPUTS; i++) {
            lane[i / MPT__REDUCE_OUTPUTS][i % MPT__REDUCE_OUTPUTS] = -mpt__real_infinity();
        }
    }
    mpt__ref_cursor_start(&run, &ref->reduced, begin, end);
    while (mpt__ref_cursor_next(&run, &ref->reduced)) {
        int64_t first = run.at - begin;
        for (int64_t i = 0; ref->by_columns && i < run.n; i++) {
            float *to = lane[(first + i) % MPT__SUM_LANES];
            int64_t at = offset + run.offset[0] + i * inner;
            combine(to, to, mpt__simd_get(level, &ref->in, at, stride, x, n), n);
        }
        for (int64_t j = 0; !ref->by_columns && j < n; j++) {
            const float *from = mpt__simd_get(level, &ref->in, offset + run.offset[0] + j * stride,
                                              inner, x, run.n);
            float column[MPT__SUM_LANES];
            for (int l = 0; l < MPT__SUM_LANES; l++) column[l] = lane[l][j];
            (ref->is_max ? level->max_lanes : level->add_lanes)(column, first, from, run.n);
            for (int l = 0; l < MPT__SUM_LANES; l++) lane[l][j] = column[l];
        }
    }
    for (int half = MPT__SUM_LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) combine(lane[l], lane[l], lane[l + half], n);
    }
    memcpy(result, lane[0], (size_t)n * sizeof *result);
}

static void mpt__simd_reduce_chunk(void *work, int64_t index, int thread) {
    const mpt__simd_reduce_work *w = (const mpt__simd_reduce_work *)work;
    const mpt__ref_reduce_work *ref = &w->ref;
    int64_t chunk = index % ref->chunks;
    float result[MPT__REDUCE_OUTPUTS];
    mpt__ref_cursor run;
    (void)thread;
    mpt__ref_reduce_start(ref, index / ref->chunks, &run);
    while (mpt__ref_cursor_next(&run, &ref->kept)) {
        mpt__simd_reduce_outputs(w, chunk, run.offset[0], ref->kept.stride[0][ref->kept.rank - 1],
                                 run.n, result);
        if (ref->chunks == 1) {
            mpt__ref_reduce_put(ref, &run, result);
            continue;
        }
        for (int64_t i = 0; i < run.n; i++) {
            ref->partial[(run.at + i) * ref->chunks + chunk] = result[i];
        }
    }
}

static void mpt__simd_reduce(const mpt__simd_level *level, const mpt__cpu_call *call) {
    mpt__simd_reduce_work w;
    mpt__ref_reduce_work *ref = &w.ref;
    w.level = level;
    ref->in = mpt__ref_view_of(call, 0);
    ref->out = mpt__ref_view_of(call, 1);
    mpt__ref_reduce_loops(call->launch, &ref->kept, &ref->reduced);
    ref->is_max = call->launch->function == MPT__FN_MAX;
    ref->is_mean = call->launch->function == MPT__FN_MEAN;
    ref->by_columns = ref->kept.count > 1 && ref->kept.stride[0][ref->kept.rank - 1] <
                                                 ref->reduced.stride[0][ref->reduced.rank - 1];
    ref->partial = (float *)call->workspace;
    ref->chunks = mpt__ref_chunks(ref->reduced.count, MPT__SUM_CHUNK);
    if (ref->chunks == 0) ref->chunks = 1;
    int64_t tiles = mpt__ref_chunks(ref->kept.count, MPT__REDUCE_OUTPUTS);
    mpt__parallel(call->pool, tiles * ref->chunks, ref->kept.count * ref->reduced.count / 4,
                  mpt__simd_reduce_chunk, &w);
    if (ref->chunks > 1) {
        mpt__parallel(call->pool, tiles, ref->kept.count * ref->chunks * 2, mpt__ref_reduce_finish,
                      ref);
    }
}

/* ==== Softmax ==== */

typedef struct mpt__simd_axis_work {
    mpt__ref_axis_work ref; /* first: the lines get a pointer to it */
    const mpt__simd_level *level;
} mpt__simd_axis_work;

static const mpt__simd_level *mpt__simd_axis_level(const mpt__ref_axis_work *w) {
    return ((const mpt__simd_axis_work *)(const void *)w)->level;
}

/* Elements at .. at+n-1 of a line of operand k. */
static const float *mpt__simd_line_get(const mpt__ref_axis_work *w, int k, const int64_t *offset,
                                       int64_t at, float *block, int64_t n) {
    return mpt__simd_get(mpt__simd_axis_level(w), &w->view[k], offset[k] + at * w->stride[k],
                         w->stride[k], block, n);
}

/* The sum of one line, as mpt__ref_sum has it; lines of one chunk need only the lanes. */
typedef struct mpt__simd_sum {
    float lane[MPT__SUM_LANES];
    bool is_short;
    mpt__ref_sum whole;
} mpt__simd_sum;

static void mpt__simd_sum_init(mpt__simd_sum *sum, int64_t count) {
    memset(sum->lane, 0, sizeof sum->lane);
    sum->is_short = count <= MPT__SUM_CHUNK;
    if (!sum->is_short) mpt__ref_sum_init(&sum->whole);
}

/* Adds elements at .. at+n-1 of the line; portions come in order. */
static void mpt__simd_sum_add(const mpt__simd_level *level, mpt__simd_sum *sum, int64_t at,
                              const float *x, int64_t n) {
    if (sum->is_short) {
        level->add_lanes(sum->lane, at, x, n);
        return;
    }
    while (n > 0) {
        mpt__ref_sum *whole = &sum->whole;
        int64_t take = mpt__ref_min(n, MPT__SUM_CHUNK - whole->count);
        level->add_lanes(whole->lane, whole->count, x, take);
        whole->count += take;
        if (whole->count == MPT__SUM_CHUNK) mpt__ref_sum_close_chunk(whole);
        x += take;
        n -= take;
    }
}

static float mpt__simd_sum_total(mpt__simd_sum *sum) {
    return sum->is_short ? mpt__ref_fold_lanes(sum->lane) : mpt__ref_sum_total(&sum->whole);
}

/* As mpt__ref_line_sum. */
static void mpt__simd_line_sum(const mpt__simd_level *level, const mpt__ref_view *view,
                               int64_t offset, int64_t stride, int64_t count, float *maximum,
                               float *total) {
    float block[MPT__BLOCK], e[MPT__BLOCK], most = -mpt__real_infinity();
    const float *x = block;
    mpt__simd_sum sum;
    for (int64_t at = 0; at < count; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, count - at);
        x = mpt__simd_get(level, view, offset + at * stride, stride, block, n);
        most = level->maximum(x, n, most);
    }
    mpt__simd_sum_init(&sum, count);
    for (int64_t at = 0; at < count; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, count - at);
        if (count > MPT__BLOCK) {
            x = mpt__simd_get(level, view, offset + at * stride, stride, block, n);
        }
        level->exp_less(e, x, n, most);
        mpt__simd_sum_add(level, &sum, at, e, n);
    }
    *maximum = most;
    *total = mpt__simd_sum_total(&sum);
}

static void mpt__simd_softmax_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    const mpt__simd_level *level = mpt__simd_axis_level(w);
    float most, sum, in[MPT__BLOCK], block[MPT__BLOCK];
    mpt__simd_line_sum(level, &w->view[0], offset[0], w->stride[0], w->n, &most, &sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at), to = offset[1] + at * w->stride[1];
        float *out = mpt__simd_place(&w->view[1], to, w->stride[1], block);
        level->exp_less(out, mpt__simd_line_get(w, 0, offset, at, in, n), n, most);
        level->divide(out, out, n, sum);
        mpt__simd_put(level, &w->view[1], to, w->stride[1], out, n);
    }
}

static void mpt__simd_log_softmax_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    const mpt__simd_level *level = mpt__simd_axis_level(w);
    float most, sum, in[MPT__BLOCK], block[MPT__BLOCK];
    mpt__simd_line_sum(level, &w->view[0], offset[0], w->stride[0], w->n, &most, &sum);
    float log_sum = mpt__real_log(sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at), to = offset[1] + at * w->stride[1];
        float *out = mpt__simd_place(&w->view[1], to, w->stride[1], block);
        level->less_less(out, mpt__simd_line_get(w, 0, offset, at, in, n), n, most, log_sum);
        mpt__simd_put(level, &w->view[1], to, w->stride[1], out, n);
    }
}

static void mpt__simd_softmax(const mpt__simd_level *level, const mpt__cpu_call *call) {
    mpt__simd_axis_work w;
    w.level = level;
    w.ref.line = call->launch->function == MPT__FN_LOG_SOFTMAX ? mpt__simd_log_softmax_line
                                                               : mpt__simd_softmax_line;
    mpt__ref_axis_run(&w.ref, call, 2, 0, 1, 3.0);
}

static void mpt__simd_softmax_backward_line(const mpt__ref_axis_work *w, const int64_t *offset,
                                            bool log) {
    const mpt__simd_level *level = mpt__simd_axis_level(w);
    float in[2][MPT__BLOCK], block[MPT__BLOCK];
    mpt__simd_sum sum;
    mpt__simd_sum_init(&sum, w->n);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at);
        const float *dy = mpt__simd_line_get(w, 1, offset, at, in[1], n);
        if (!log) {
            level->mul(block, mpt__simd_line_get(w, 0, offset, at, in[0], n), dy, n);
            dy = block;
        }
        mpt__simd_sum_add(level, &sum, at, dy, n);
    }
    float total = mpt__simd_sum_total(&sum);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->n - at), to = offset[2] + at * w->stride[2];
        const float *y = mpt__simd_line_get(w, 0, offset, at, in[0], n);
        const float *dy = mpt__simd_line_get(w, 1, offset, at, in[1], n);
        float *out = mpt__simd_place(&w->view[2], to, w->stride[2], block);
        (log ? level->log_softmax_slope : level->softmax_slope)(out, y, dy, n, total);
        mpt__simd_put(level, &w->view[2], to, w->stride[2], out, n);
    }
}

static void mpt__simd_softmax_slope_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__simd_softmax_backward_line(w, offset, false);
}
static void mpt__simd_log_softmax_slope_line(const mpt__ref_axis_work *w, const int64_t *offset) {
    mpt__simd_softmax_backward_line(w, offset, true);
}

static void mpt__simd_softmax_backward(const mpt__simd_level *level, const mpt__cpu_call *call) {
    mpt__simd_axis_work w;
    w.level = level;
    w.ref.line = call->launch->function == MPT__FN_LOG_SOFTMAX ? mpt__simd_log_softmax_slope_line
                                                               : mpt__simd_softmax_slope_line;
    mpt__ref_axis_run(&w.ref, call, 3, 0, 1, 2.0);
}

/* ==== Gradients ==== */

typedef struct mpt__simd_norm_work {
    mpt__ref_norm_work ref;
    const mpt__simd_level *level;
} mpt__simd_norm_work;

static void mpt__simd_norm_chunk(void *work, int64_t chunk, int thread) {
    const mpt__simd_norm_work *w = (const mpt__simd_norm_work *)work;
    int64_t begin = chunk * MPT__CHUNK, count = w->ref.segment[MPT__SEGMENT_COUNT];
    int64_t n = mpt__ref_min(MPT__CHUNK, count - begin);
    const float *x = (const float *)w->ref.gradients.data + w->ref.segment[MPT__SEGMENT_OFFSET];
    double lane[MPT__SUM_LANES] = {0, 0, 0, 0, 0, 0, 0, 0};
    (void)thread;
    w->ref.part[chunk].nonfinite =
        w->level->add_squares(lane, x + begin, n, w->ref.multiplier) ? 0 : 1;
    w->ref.part[chunk].squares = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                                 ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

static void mpt__simd_grad_norm(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__ref_norm_part *parts = (mpt__ref_norm_part *)call->workspace;
    mpt__simd_norm_work w;
    int64_t chunks = 0;
    w.level = level;
    w.ref.gradients = mpt__ref_view_of(call, 0);
    w.ref.multiplier = mpt__ref_norm_begin(call);
    for (int64_t s = 0; s < launch->operand[1].shape[0]; s++) {
        w.ref.segment = mpt__ref_segment(call, 1, s);
        w.ref.part = parts + chunks;
        int64_t count = w.ref.segment[MPT__SEGMENT_COUNT], n = mpt__ref_chunks(count, MPT__CHUNK);
        mpt__parallel(call->pool, n, count / 4, mpt__simd_norm_chunk, &w);
        chunks += n;
    }
    mpt__ref_norm_finish(call, parts, chunks);
}

typedef struct mpt__simd_scale_work {
    const mpt__simd_level *level;
    mpt__simd_unary_fn multiply;
    float *gradients, multiplier, limit;
    const int64_t *segment;
} mpt__simd_scale_work;

static void mpt__simd_scale_chunk(void *work, int64_t chunk, int thread) {
    const mpt__simd_scale_work *w = (const mpt__simd_scale_work *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t n = mpt__ref_min(MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT] - begin);
    float *x = w->gradients + w->segment[MPT__SEGMENT_OFFSET] + begin;
    (void)thread;
    w->multiply(x, x, n, w->multiplier);
    if (w->limit > 0) w->level->clamp(x, x, n, w->limit);
}

static void mpt__simd_grad_scale(const mpt__simd_level *level, const mpt__cpu_call *call) {
    mpt__simd_scale_work w;
    w.level = level;
    w.multiply = level->unary(MPT__FN_MUL_SCALAR);
    w.gradients = (float *)call->data[0];
    w.multiplier = mpt__ref_factor(call, call->launch->slot[0]);
    w.limit = (float)call->launch->imm[0];
    for (int64_t s = 0; s < call->launch->operand[1].shape[0]; s++) {
        w.segment = mpt__ref_segment(call, 1, s);
        int64_t count = w.segment[MPT__SEGMENT_COUNT];
        mpt__parallel(call->pool, mpt__ref_chunks(count, MPT__CHUNK), count / 4,
                      mpt__simd_scale_chunk, &w);
    }
}

/* Skips the blocks that are finite as a whole; the reference kernel looks into the first other. */
static void mpt__simd_find_nonfinite(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__operand *o = &call->launch->operand[0];
    mpt__ref_loop loop = mpt__ref_loop_over(call->launch, 1);
    const size_t n = (size_t)loop.count;
    bool finite = false;
    if (loop.rank == 1 && loop.stride[0][0] == 1) {
        if (o->dtype == MPT_F32) {
            finite = level->convert->all_finite_f32((const float *)call->data[0], n);
        } else if (o->dtype == MPT_F16) {
            finite = level->convert->all_finite_f16((const uint16_t *)call->data[0], n);
        } else if (o->dtype == MPT_BF16) {
            finite = level->convert->all_finite_bf16((const uint16_t *)call->data[0], n);
        }
    }
    if (finite) {
        call->scalars[call->launch->slot[0]].i = -1;
    } else {
        mpt__cpu_fall_back(call);
    }
}

/* ==== Optimizers ==== */

typedef struct mpt__simd_update_work {
    mpt__ref_update ref;
    const mpt__simd_level *level;
} mpt__simd_update_work;

static void mpt__simd_update_chunk(void *work, int64_t chunk, int thread) {
    const mpt__simd_update_work *w = (const mpt__simd_update_work *)work;
    const mpt__ref_update *ref = &w->ref;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__ref_min(begin + MPT__CHUNK, ref->segment[MPT__SEGMENT_COUNT]);
    const mpt__ref_view *weights = ref->master.data != NULL ? &ref->master : &ref->param;
    float block[MPT__BLOCK], *m = NULL, *v = NULL;
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, end - at);
        int64_t offset = ref->segment[MPT__SEGMENT_OFFSET] + at;
        float *p = mpt__simd_place(weights, offset, 1, block);
        if (p == block) mpt__simd_get(w->level, weights, offset, 1, block, n);
        if (ref->first.data != NULL) m = (float *)ref->first.data + offset;
        if (ref->second.data != NULL) v = (float *)ref->second.data + offset;
        ref->update(ref, p, (float *)ref->gradient.data + offset, m, v, n);
        mpt__simd_put(w->level, &ref->param, offset, 1, p, n);
    }
}

static bool mpt__simd_update_takes(const mpt__cpu_call *call) {
    const mpt__operand *o = call->launch->operand;
    static const int floats[] = {1, 2, 3, 6};
    for (int i = 0; i < 4; i++) {
        if (floats[i] < call->launch->n_operands && call->data[floats[i]] != NULL &&
            o[floats[i]].dtype != MPT_F32) {
            return false;
        }
    }
    return o[0].dtype == MPT_F32 || mpt__simd_is_half(o[0].dtype);
}

/* As mpt__ref_update_run. */
static void mpt__simd_update_run(const mpt__cpu_call *call, mpt__simd_update_work *w,
                                 void (*prepare)(const mpt__launch *launch, mpt__ref_update *w,
                                                 double lr),
                                 double ns) {
    const mpt__launch *launch = call->launch;
    const int64_t *steps = (const int64_t *)call->data[5];
    double lr = mpt__ref_rate(call);
    uint32_t state = mpt__flush_denormals(true);
    w->ref.param = mpt__ref_view_of(call, 0);
    w->ref.master = mpt__ref_view_of(call, 1);
    w->ref.gradient = mpt__ref_view_of(call, 2);
    w->ref.first = mpt__ref_view_of(call, 3);
    w->ref.lr = (float)lr;
    w->ref.multiplier = mpt__ref_factor(call, launch->slot[1]);
    for (int64_t s = 0; s < launch->operand[4].shape[0]; s++) {
        w->ref.segment = mpt__ref_segment(call, 4, s);
        w->ref.step = steps[w->ref.segment[MPT__SEGMENT_STEP]];
        if (prepare != NULL) prepare(launch, &w->ref, lr);
        int64_t count = w->ref.segment[MPT__SEGMENT_COUNT];
        mpt__parallel(call->pool, mpt__ref_chunks(count, MPT__CHUNK), (int64_t)((double)count * ns),
                      mpt__simd_update_chunk, w);
    }
    mpt__restore_denormals(state);
    mpt__ref_commit(call);
}

static void mpt__simd_sgd(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__simd_update_work w;
    if (!mpt__gate_open(call, launch->slot[2])) return;
    if (!mpt__simd_update_takes(call)) {
        mpt__cpu_fall_back(call);
        return;
    }
    memset(&w, 0, sizeof w);
    w.level = level;
    w.ref.update = level->sgd;
    w.ref.momentum = (float)launch->imm[0];
    w.ref.keep = (float)(1 - launch->imm[1]);
    w.ref.decay = (float)launch->imm[2];
    w.ref.nesterov = launch->index[0] != 0;
    mpt__simd_update_run(call, &w, NULL, 0.5);
}

static void mpt__simd_adam(const mpt__simd_level *level, const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__simd_update_work w;
    if (!mpt__gate_open(call, launch->slot[2])) return;
    if (!mpt__simd_update_takes(call)) {
        mpt__cpu_fall_back(call);
        return;
    }
    memset(&w, 0, sizeof w);
    w.level = level;
    w.ref.update = level->adam;
    w.ref.second = mpt__ref_view_of(call, 6);
    w.ref.beta1 = (float)launch->imm[0];
    w.ref.rest1 = (float)(1 - launch->imm[0]);
    w.ref.beta2 = (float)launch->imm[1];
    w.ref.rest2 = (float)(1 - launch->imm[1]);
    w.ref.eps = (float)launch->imm[2];
    w.ref.decay = (float)launch->imm[3];
    w.ref.decoupled = launch->index[0] == 1;
    mpt__simd_update_run(call, &w, mpt__ref_adam_prepare, 1.0);
}

/* ==== The functions of a level ==== */

/* As MPT__REF_UNARY and MPT__REF_BINARY, R(ID, value), in the words of vocabulary V. F(name) is a
   function of 15_math.c. */
#define MPT__SIMD_UNARY(R, V, F)                                                                   \
    R(NEG, V##_float(V##_iadd(V##_bits(a), V##_iset(MPT__SIGN_BIT))))                              \
    R(EXP, F(exp)(a))                                                                              \
    R(LOG, F(log)(a))                                                                              \
    R(SQRT, V##_sqrt(a))                                                                           \
    R(RELU, V##_relu(a))                                                                           \
    R(GELU, V##_gelu(a))                                                                           \
    R(GELU_TANH, V##_gelu_tanh(a))                                                                 \
    R(TANH, F(tanh)(a))                                                                            \
    R(SIGMOID, F(sigmoid)(a))                                                                      \
    R(ADD_SCALAR, V##_add(a, V##_set(c)))                                                          \
    R(MUL_SCALAR, V##_mul(a, V##_set(c)))                                                          \
    R(MUL_SLOT, V##_mul(a, V##_set(c)))                                                            \
    R(ISNAN, V##_select(V##_is_nan(a), V##_set(1.0f), V##_zero()))                                 \
    R(ISINF, V##_select(V##_equal(V##_float(V##_iand(V##_bits(a), V##_iset(0x7fffffff))),          \
                                  V##_float(V##_iset(0x7f800000))),                                \
                        V##_set(1.0f), V##_zero()))

#define MPT__SIMD_BINARY(R, V, F)                                                                  \
    R(ADD, V##_add(a, b))                                                                          \
    R(SUB, V##_sub(a, b))                                                                          \
    R(MUL, V##_mul(a, b))                                                                          \
    R(DIV, V##_div(a, b))                                                                          \
    R(EQUAL, V##_select(V##_equal(a, b), V##_set(1.0f), V##_zero()))                               \
    R(RELU_BACKWARD, V##_select(V##_greater(a, V##_zero()), b,                                     \
                                V##_select(V##_is_nan(a), b, V##_zero())))                         \
    R(GELU_BACKWARD, V##_mul(b, V##_gelu_slope(a)))                                                \
    R(GELU_TANH_BACKWARD, V##_mul(b, V##_gelu_tanh_slope(a)))                                      \
    R(TANH_BACKWARD, V##_mul(b, V##_sub(V##_set(1.0f), V##_mul(a, a))))                            \
    R(SIGMOID_BACKWARD, V##_mul(V##_mul(b, a), V##_sub(V##_set(1.0f), a)))                         \
    R(SQRT_BACKWARD, V##_div(b, V##_mul(V##_set(2.0f), a)))

/* FN and OP: target and storage class of a function and of one to be inlined; N: prefix of what is
   made; V: vocabulary; W: its lanes; F: names of the functions of 15_math.c. */
#define MPT__SIMD_WORDS(OP, V, F)                                                                  \
    /* larger gives its second argument for NaN and for zeros; + 0 makes -0 a 0 */                 \
    OP V##_f V##_relu(V##_f a) { return V##_add(V##_larger(V##_zero(), a), V##_zero()); }          \
    OP V##_f V##_gelu_inner(V##_f a) {                                                             \
        V##_f cube = V##_mul(V##_mul(V##_mul(V##_set(MPT__GELU_CUBE), a), a), a);                  \
        return V##_mul(V##_set(MPT__SQRT_2_BY_PI), V##_add(a, cube));                              \
    }                                                                                              \
    OP V##_f V##_gelu(V##_f a) {                                                                   \
        V##_f erf = F(erf)(V##_mul(a, V##_set(MPT__SQRT_HALF)));                                   \
        return V##_mul(V##_mul(V##_set(0.5f), a), V##_add(V##_set(1.0f), erf));                    \
    }                                                                                              \
    OP V##_f V##_gelu_tanh(V##_f a) {                                                              \
        V##_f t = F(tanh)(V##_gelu_inner(a));                                                      \
        return V##_mul(V##_mul(V##_set(0.5f), a), V##_add(V##_set(1.0f), t));                      \
    }                                                                                              \
    OP V##_f V##_gelu_slope(V##_f a) {                                                             \
        V##_f erf = F(erf)(V##_mul(a, V##_set(MPT__SQRT_HALF)));                                   \
        V##_f below = V##_mul(V##_set(0.5f), V##_add(V##_set(1.0f), erf));                         \
        V##_f e = F(exp)(V##_mul(V##_mul(V##_set(-0.5f), a), a));                                  \
        return V##_add(below, V##_mul(V##_mul(a, V##_set(MPT__NORMAL_PEAK)), e));                  \
    }                                                                                              \
    OP V##_f V##_gelu_tanh_slope(V##_f a) {                                                        \
        V##_f t = F(tanh)(V##_gelu_inner(a)), one = V##_set(1.0f);                                 \
        V##_f rest = V##_sub(one, V##_mul(t, t));                                                  \
        V##_f slope = V##_mul(V##_set(0.5f), V##_add(one, t));                                     \
        V##_f factor = V##_mul(V##_mul(V##_set(3 * MPT__GELU_CUBE), a), a);                        \
        V##_f more = V##_mul(V##_mul(V##_set(0.5f), a), rest);                                     \
        more = V##_mul(V##_mul(more, V##_set(MPT__SQRT_2_BY_PI)), V##_add(one, factor));           \
        return V##_select(V##_equal(rest, V##_zero()), slope, V##_add(slope, more));               \
    }                                                                                              \
    OP V##_f V##_max_nan(V##_f a, V##_f b) {                                                       \
        return V##_select(V##_is_nan(a), a, V##_larger(a, b));                                     \
    }

/* out[i] = VALUE of a, from x, and (in 2) b, from y. */
#define MPT__SIMD_EACH1(V, W, VALUE)                                                               \
    int64_t i = 0;                                                                                 \
    for (; i + W <= n; i += W) {                                                                   \
        V##_f a = V##_load(x + i);                                                                 \
        V##_store(out + i, VALUE);                                                                 \
    }                                                                                              \
    if (i < n) {                                                                                   \
        V##_f a = V##_load_as(x + i, n - i, MPT_F32);                                              \
        V##_store_as(out + i, VALUE, n - i, MPT_F32);                                              \
    }
#define MPT__SIMD_EACH2(V, W, VALUE)                                                               \
    int64_t i = 0;                                                                                 \
    for (; i + W <= n; i += W) {                                                                   \
        V##_f a = V##_load(x + i), b = V##_load(y + i);                                            \
        V##_store(out + i, VALUE);                                                                 \
    }                                                                                              \
    if (i < n) {                                                                                   \
        V##_f a = V##_load_as(x + i, n - i, MPT_F32), b = V##_load_as(y + i, n - i, MPT_F32);      \
        V##_store_as(out + i, VALUE, n - i, MPT_F32);                                              \
    }

#define MPT__SIMD_BLOCKS(FN, N, V, W, F)                                                           \
    FN void N##_max(float *out, const float *x, const float *y, int64_t n) {                       \
        MPT__SIMD_EACH2(V, W, V##_max_nan(a, b))                                                   \
    }                                                                                              \
    FN void N##_exp_less(float *out, const float *x, int64_t n, float c) {                         \
        const V##_f less = V##_set(c);                                                             \
        MPT__SIMD_EACH1(V, W, F(exp)(V##_sub(a, less)))                                            \
    }                                                                                              \
    FN void N##_divide(float *out, const float *x, int64_t n, float c) {                           \
        const V##_f by = V##_set(c);                                                               \
        MPT__SIMD_EACH1(V, W, V##_div(a, by))                                                      \
    }                                                                                              \
    FN void N##_clamp(float *out, const float *x, int64_t n, float c) {                            \
        const V##_f most = V##_set(c), least = V##_set(-c);                                        \
        MPT__SIMD_EACH1(V, W, V##_larger(least, V##_smaller(most, a)))                             \
    }                                                                                              \
    FN void N##_less_less(float *out, const float *x, int64_t n, float first, float second) {      \
        const V##_f u = V##_set(first), v = V##_set(second);                                       \
        MPT__SIMD_EACH1(V, W, V##_sub(V##_sub(a, u), v))                                           \
    }                                                                                              \
    FN void N##_softmax_slope(float *out, const float *x, const float *y, int64_t n, float sum) {  \
        const V##_f s = V##_set(sum);                                                              \
        MPT__SIMD_EACH2(V, W, V##_mul(a, V##_sub(b, s)))                                           \
    }                                                                                              \
    FN void N##_log_softmax_slope(float *out, const float *x, const float *y, int64_t n,           \
                                  float sum) {                                                     \
        const V##_f s = V##_set(sum);                                                              \
        MPT__SIMD_EACH2(V, W, V##_sub(b, V##_mul(F(exp)(a), s)))                                   \
    }                                                                                              \
    FN float N##_maximum(const float *x, int64_t n, float start) {                                 \
        float lane[W], most = start;                                                               \
        V##_f top = V##_set(start);                                                                \
        int64_t i = 0;                                                                             \
        for (; i + W <= n; i += W) top = V##_max_nan(top, V##_load(x + i));                        \
        V##_store(lane, top);                                                                      \
        for (int k = 0; k < W; k++) {                                                              \
            if (lane[k] > most || mpt__f32_is_nan(lane[k])) most = lane[k];                        \
        }                                                                                          \
        for (; i < n; i++) {                                                                       \
            if (x[i] > most || mpt__f32_is_nan(x[i])) most = x[i];                                 \
        }                                                                                          \
        return most;                                                                               \
    }                                                                                              \
    FN void N##_keep(float *out, const float *x, const uint32_t *words, int64_t n,                 \
                     uint32_t threshold, float factor) {                                           \
        const V##_f by = V##_set(factor);                                                          \
        int64_t i = 0;                                                                             \
        for (; i + W <= n; i += W) {                                                               \
            V##_f v = V##_mul(V##_load(x + i), by);                                                \
            V##_store(out + i, V##_select(V##_words_from(words + i, threshold), v, V##_zero()));   \
        }                                                                                          \
        for (; i < n; i++) out[i] = words[i] >= threshold ? x[i] * factor : 0.0f;                  \
    }

#define MPT__SIMD_UPDATE(FN, N, V, W)                                                              \
    FN void N##_sgd(const mpt__ref_update *w, float *p, float *g, float *m, float *v, int64_t n) { \
        const V##_f multiplier = V##_set(w->multiplier), decay = V##_set(w->decay);                \
        const V##_f momentum = V##_set(w->momentum), keep = V##_set(w->keep);                      \
        const V##_f lr = V##_set(w->lr);                                                           \
        const bool decays = w->decay != 0, first = w->step == 0, nesterov = w->nesterov;           \
        (void)v;                                                                                   \
        for (int64_t i = 0; i < n; i += W) {                                                       \
            const int64_t left = n - i;                                                            \
            V##_f weight = V##_load_as(p + i, left, MPT_F32);                                      \
            V##_f step = V##_mul(V##_load_as(g + i, left, MPT_F32), multiplier);                   \
            if (decays) step = V##_add(step, V##_mul(decay, weight));                              \
            if (m != NULL) {                                                                       \
                V##_f moment = step;                                                               \
                if (!first) {                                                                      \
                    moment = V##_mul(momentum, V##_load_as(m + i, left, MPT_F32));                 \
                    moment = V##_add(moment, V##_mul(keep, step));                                 \
                }                                                                                  \
                V##_store_as(m + i, moment, left, MPT_F32);                                        \
                step = nesterov ? V##_add(step, V##_mul(momentum, moment)) : moment;               \
            }                                                                                      \
            V##_store_as(p + i, V##_sub(weight, V##_mul(lr, step)), left, MPT_F32);                \
        }                                                                                          \
    }                                                                                              \
    FN void N##_adam(const mpt__ref_update *w, float *p, float *g, float *m, float *v,             \
                     int64_t n) {                                                                  \
        const V##_f multiplier = V##_set(w->multiplier), decay = V##_set(w->decay);                \
        const V##_f beta1 = V##_set(w->beta1), rest1 = V##_set(w->rest1);                          \
        const V##_f beta2 = V##_set(w->beta2), rest2 = V##_set(w->rest2);                          \
        const V##_f eps = V##_set(w->eps), size = V##_set(w->step_size);                           \
        const V##_f root = V##_set(w->root_correction), shrink = V##_set(w->shrink);               \
        const bool decoupled = w->decoupled, decays = !decoupled && w->decay != 0;                 \
        for (int64_t i = 0; i < n; i += W) {                                                       \
            const int64_t left = n - i;                                                            \
            V##_f weight = V##_load_as(p + i, left, MPT_F32);                                      \
            V##_f gradient = V##_mul(V##_load_as(g + i, left, MPT_F32), multiplier);               \
            if (decoupled) weight = V##_sub(weight, V##_mul(shrink, weight));                      \
            if (decays) gradient = V##_add(gradient, V##_mul(decay, weight));                      \
            V##_f m1 = V##_mul(beta1, V##_load_as(m + i, left, MPT_F32));                          \
            V##_f v1 = V##_mul(beta2, V##_load_as(v + i, left, MPT_F32));                          \
            m1 = V##_add(m1, V##_mul(rest1, gradient));                                            \
            v1 = V##_add(v1, V##_mul(V##_mul(rest2, gradient), gradient));                         \
            V##_f below = V##_add(V##_div(V##_sqrt(v1), root), eps);                               \
            weight = V##_sub(weight, V##_div(V##_mul(size, m1), below));                           \
            V##_store_as(m + i, m1, left, MPT_F32);                                                \
            V##_store_as(v + i, v1, left, MPT_F32);                                                \
            V##_store_as(p + i, weight, left, MPT_F32);                                            \
        }                                                                                          \
    }

/* The kernels of a level: what the table of the backend gets. */
#define MPT__SIMD_RUN(R, N)                                                                        \
    R(COPY, copy, NULL, N)                                                                         \
    R(UNARY, unary, NULL, N)                                                                       \
    R(BINARY, binary, NULL, N)                                                                     \
    R(REDUCE, reduce, mpt__ref_reduce_workspace, N)                                                \
    R(SOFTMAX, softmax, NULL, N)                                                                   \
    R(SOFTMAX_BACKWARD, softmax_backward, NULL, N)                                                 \
    R(DROPOUT, dropout, NULL, N)                                                                   \
    R(GRAD_NORM, grad_norm, mpt__ref_grad_norm_workspace, N)                                       \
    R(GRAD_SCALE, grad_scale, NULL, N)                                                             \
    R(SGD, sgd, NULL, N)                                                                           \
    R(ADAM, adam, NULL, N)                                                                         \
    R(FIND_NONFINITE, find_nonfinite, NULL, N)
#define MPT__SIMD_WRAPPER(id, name, workspace, N)                                                  \
    static void N##_run_##name(const mpt__cpu_call *call) { mpt__simd_##name(&N##_level, call); }
#define MPT__SIMD_ADD(id, name, workspace, N)                                                      \
    mpt__cpu_add(cpu, MPT__K_##id, N##_run_##name, workspace);

#endif
#endif
