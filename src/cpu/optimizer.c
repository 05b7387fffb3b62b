/* ----
 * cpu/optimizer.c: the kernels of training: gradients, optimizers, loss scaler and device scalars;
 * and the routines of the reference level.
 * ---- */
#ifndef MPT__CPU_OPTIMIZER_INCLUDED
#define MPT__CPU_OPTIMIZER_INCLUDED

#include "cpu/gates.c"
#include "cpu/halves.c"
#include "cpu/recurrent.c"

/* ==== Gradients ==== */

/* Row `segment` of a segment operand. */
static const int64_t *mpt__cpu_segment(const mpt__cpu_call *call, int operand, int64_t segment) {
    const int64_t *rows = (const int64_t *)call->data[operand];
    return rows + segment * MPT__SEGMENT_FIELDS;
}

/* A device scalar used as a factor; slot 0: 1. */
static mpt__real mpt__cpu_factor(const mpt__cpu_call *call, int slot) {
    return slot != 0 ? (mpt__real)call->scalars[slot].f : 1;
}

/* Starts a norm: with slot[3], a loss scale, the multiplier becomes 1 / scale, found_inf 0. */
static void mpt__cpu_norm_begin(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    if (slot[3] == 0) return;
    call->scalars[slot[0]].f = (double)(float)(1 / call->scalars[slot[3]].f);
    if (slot[1] != 0) call->scalars[slot[1]].i = 0;
}

/* What GRAD_NORM and GRAD_SCALE do to one segment. */
typedef struct mpt__cpu_gradient_work {
    mpt__cpu_view gradients;
    mpt__real multiplier, limit;
    bool norm; /* is wanted, or a product may overflow where the element does not */
    mpt__norm kind;
    const int64_t *segment;
    double *part; /* of the segment's first chunk */
} mpt__cpu_gradient_work;

/* The sum, or the maximum, of magnitudes. */
static void mpt__cpu_add_magnitudes(
    double *lane, const float *x, int64_t n, mpt__real multiplier, bool most) {
    for (int64_t i = 0; i < n; i++) {
        double *to = &lane[(size_t)i % MPT__SUM_LANES], size = fabs((double)(x[i] * multiplier));
        if (!most)
            *to += size;
        else if (size > *to || mpt__f64_is_nan(size))
            *to = size;
    }
}

static double mpt__cpu_join_norms(double a, double b, mpt__norm kind) {
    if (kind != MPT__NORM_MAX) return a + b;
    return a > b || mpt__f64_is_nan(a) ? a : b;
}

/* The sum of squares of a chunk shows whether it is finite: neither the square of a float nor a sum
   of them can overflow a double, and infinity times 0 is NaN. */
static void mpt__cpu_norm_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_gradient_work *w = (const mpt__cpu_gradient_work *)work;
    const mpt__routines *routines = w->gradients.routines;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t n = mpt__cpu_min(MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT] - begin);
    const float *x = (const float *)w->gradients.data + w->segment[MPT__SEGMENT_OFFSET] + begin;
    double lane[MPT__SUM_LANES] = {0};
    (void)thread;
    if (w->norm && w->kind == MPT__NORM_2) {
        routines->add_squares(lane, x, n, w->multiplier);
    } else if (w->norm) {
        mpt__cpu_add_magnitudes(lane, x, n, w->multiplier, w->kind == MPT__NORM_MAX);
        for (int l = 1; l < MPT__SUM_LANES && w->kind == MPT__NORM_MAX; l++) {
            lane[0] = mpt__cpu_join_norms(lane[0], lane[l], w->kind);
            lane[l] = 0;
        }
    } else if (!routines->convert->all_finite_f32(x, (size_t)n)) {
        lane[0] = (double)mpt__real_infinity();
    }
    w->part[chunk] = mpt__cpu_fold_squares(lane);
}

static int64_t mpt__cpu_grad_norm_workspace(const mpt__launch *launch, int threads) {
    int64_t chunks = mpt__cpu_numel(&launch->operand[0]) / MPT__CHUNK + launch->operand[1].shape[0];
    (void)threads;
    return chunks * (int64_t)sizeof(double);
}

/* Adds up the parts and sets the slots of found_inf and norm. */
static void mpt__cpu_norm_finish(const mpt__cpu_call *call, double *parts, int64_t chunks) {
    const mpt__launch *launch = call->launch;
    const mpt__norm kind = (mpt__norm)launch->index[1];
    for (int64_t step = 1; step < chunks; step *= 2) {
        for (int64_t i = 0; i + step < chunks; i += 2 * step)
            parts[i] = mpt__cpu_join_norms(parts[i], parts[i + step], kind);
    }
    double squares = chunks > 0 ? parts[0] : 0;
    if (launch->slot[1] != 0 && !mpt__f64_is_finite(squares)) call->scalars[launch->slot[1]].i = 1;
    if (launch->slot[2] != 0) {
        double *norm = &call->scalars[launch->slot[2]].f, old = launch->index[0] != 0 ? *norm : 0;
        *norm = kind == MPT__NORM_2 ? sqrt(old * old + squares)
                                    : mpt__cpu_join_norms(old, squares, kind);
    }
}

/* Runs `chunk_fn` over all segments; returns the number of chunks. */
static int64_t mpt__cpu_gradient_run(const mpt__cpu_call *call, mpt__chunk_fn chunk_fn) {
    double *parts = (double *)call->workspace;
    mpt__cpu_gradient_work w;
    int64_t chunks = 0;
    w.gradients = mpt__cpu_view_of(call, 0);
    w.multiplier = mpt__cpu_factor(call, call->launch->slot[0]);
    w.limit = (mpt__real)call->launch->imm[0];
    w.kind = (mpt__norm)call->launch->index[1];
    w.norm = call->launch->slot[2] != 0 || !(w.multiplier <= 1);
    for (int64_t s = 0; s < call->launch->operand[1].shape[0]; s++) {
        w.segment = mpt__cpu_segment(call, 1, s);
        w.part = parts != NULL ? parts + chunks : NULL; /* a norm alone needs them */
        int64_t count = w.segment[MPT__SEGMENT_COUNT], n = mpt__cpu_chunks(count, MPT__CHUNK);
        mpt__parallel(call->pool, n, mpt__cpu_cost(call, count, 2.0), chunk_fn, &w);
        chunks += n;
    }
    return chunks;
}

static void mpt__cpu_grad_norm(const mpt__cpu_call *call) {
    mpt__cpu_norm_begin(call);
    int64_t chunks = mpt__cpu_gradient_run(call, mpt__cpu_norm_chunk);
    mpt__cpu_norm_finish(call, (double *)call->workspace, chunks);
}

static void mpt__cpu_grad_scale_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_gradient_work *w = (const mpt__cpu_gradient_work *)work;
    const mpt__unary_fn *unary = w->gradients.routines->unary;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__cpu_min(begin + MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT]);
    mpt__real block[MPT__BLOCK];
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, end - at), offset = w->segment[0] + at;
        mpt__real *x = mpt__cpu_edit(&w->gradients, offset, block, n);
        unary[MPT__UNARY_MUL_SCALAR](x, x, n, w->multiplier, 0);
        if (w->limit > 0) unary[MPT__UNARY_CLAMP](x, x, n, -w->limit, w->limit);
        mpt__cpu_put(&w->gradients, offset, 1, x, n);
    }
}

static void mpt__cpu_grad_scale(const mpt__cpu_call *call) {
    mpt__cpu_gradient_run(call, mpt__cpu_grad_scale_chunk);
}

/* ==== Optimizers ==== */

/* One segment of one update. */
struct mpt__cpu_update {
    mpt__cpu_view param, master, gradient;
    mpt__cpu_view moment[3]; /* absent where there are none */
    const int64_t *segment;
    int64_t step; /* updates before this one */
    mpt__real multiplier;
    mpt__law law;
    mpt__pace pace;
    bool stochastic;  /* rounding of param, */
    mpt__rng_key key; /* by this sequence, */
    int64_t before;   /* from this word on */
    mpt__update_fn update;
#ifndef MPTRAIN_NO_FRUGAL
    const int32_t *books; /* NULL: moments are no bytes */
    bool coded;           /* those of the segment are codes */
#endif
};

/* The reference: one after the other. */
#define MPT__V(word) mpt__real_##word
#define MPT__LEVEL(name) mpt__ref_##name
#define MPT__WIDTH 1
#define MPT__FN static
#define MPT__OP static MPT__FORCE_INLINE
MPT__OP mpt__real mpt__real_load_as(const mpt__real *p, int64_t n, int dtype) {
    (void)n, (void)dtype;
    return *p;
}
MPT__OP void mpt__real_store_as(void *p, mpt__real x, int64_t n, int dtype) {
    (void)n, (void)dtype;
    *(mpt__real *)p = x;
}
#include "cpu/template/update.c"
#undef MPT__V
#undef MPT__LEVEL
#undef MPT__WIDTH
#undef MPT__FN
#undef MPT__OP
#undef MPT__ANY_UPDATE
#undef MPT__MOMENTS

static void mpt__cpu_put_stochastic(
    const mpt__cpu_update *w, int64_t offset, const mpt__real *x, int64_t n) {
    uint16_t *to = (uint16_t *)w->param.data + offset;
    uint32_t words[MPT__BLOCK];
    const uint64_t first = (uint64_t)(w->before + offset);
    (first % 4 == 0 ? w->param.routines->random : mpt__random_bits)(
        w->key, first, (size_t)n, words);
    for (int64_t i = 0; i < n; i++) to[i] = mpt__f32_to_bf16_stochastic((float)x[i], words[i]);
}

/* ---- Moments that are bytes ---- */

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__cpu_moment(w, k, at, block, n) \
    mpt__cpu_edit(&(w)->moment[k], (w)->segment[MPT__SEGMENT_OFFSET] + (at), block, n)
#define mpt__cpu_put_moment(w, k, at, x, n) \
    mpt__cpu_put(&(w)->moment[k], (w)->segment[MPT__SEGMENT_OFFSET] + (at), 1, x, n)
#define MPT__UPDATE_BLOCK(w) MPT__BLOCK
#else
#define MPT__UPDATE_BLOCK(w) ((w)->coded ? MPT__CODE_BLOCK : MPT__BLOCK)

static void mpt__ref_decode(mpt__real *x, const uint8_t *code, int64_t n, const int32_t *book,
    mpt__real peak, bool plain) {
    (void)plain;
    for (int64_t i = 0; i < n; i++)
        x[i] = (mpt__real)mpt__f32_from_bits((uint32_t)book[code[i]]) * peak;
}

static uint32_t mpt__ref_code_peak(const mpt__real *x, int64_t n) {
    uint32_t peak = 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t size = mpt__f32_bits((float)x[i]) & 0x7fffffff;
        peak = size > peak ? size : peak;
    }
    return peak;
}

static void mpt__ref_encode(uint8_t *code, const mpt__real *x, int64_t n, const int32_t *book,
    mpt__real peak, bool plain) {
    for (int64_t i = 0; i < n; i++) {
        const float at = (float)x[i];
        code[i] = (uint8_t)mpt__code_of(book, mpt__f32_bits(at),
            mpt__f32_bits(at / (float)peak) & 0x7fffffff, plain);
    }
}

/* Where block `at` of moment k has its codes; *peak: and its largest magnitude. */
static uint8_t *mpt__cpu_codes(const mpt__cpu_update *w, int k, int64_t at, float **peak) {
    uint8_t *codes = (uint8_t *)w->moment[k].data + ~w->segment[MPT__SEGMENT_PLACE];
    void *peaks = codes + mpt__code_peaks(w->segment[MPT__SEGMENT_COUNT]);
    *peak = (float *)peaks + at / MPT__CODE_BLOCK;
    return codes + at;
}
static int64_t mpt__cpu_floats(const mpt__cpu_update *w) {
    return w->books ? w->segment[MPT__SEGMENT_PLACE] / 4 : w->segment[MPT__SEGMENT_OFFSET];
}

/* Moment k of elements [at, at + n) of the segment: where it lies, or in `block`. */
static mpt__real *mpt__cpu_moment(
    const mpt__cpu_update *w, int k, int64_t at, mpt__real *block, int64_t n) {
    const int plain = mpt__law_unsigned(&w->law, k);
    float *peak;
    if (!w->coded) return mpt__cpu_edit(&w->moment[k], mpt__cpu_floats(w) + at, block, n);
    const uint8_t *codes = mpt__cpu_codes(w, k, at, &peak);
    w->param.routines->decode(
        block, codes, n, w->books + plain * MPT__CODE_BOOK, (mpt__real)*peak, plain != 0);
    return block;
}

/* One number that is not finite makes the block NaN: no code could tell of it alone. */
static void mpt__cpu_put_moment(
    const mpt__cpu_update *w, int k, int64_t at, const mpt__real *x, int64_t n) {
    const mpt__routines *routines = w->param.routines;
    const int plain = mpt__law_unsigned(&w->law, k);
    float *peak;
    if (!w->coded) {
        mpt__cpu_put(&w->moment[k], mpt__cpu_floats(w) + at, 1, x, n);
        return;
    }
    uint8_t *codes = mpt__cpu_codes(w, k, at, &peak);
    const uint32_t most = mpt__code_most(routines->code_peak(x, n));
    *peak = mpt__f32_from_bits(most);
    if (mpt__code_is_number(most))
        routines->encode(
            codes, x, n, w->books + plain * MPT__CODE_BOOK, (mpt__real)*peak, plain != 0);
    else
        memset(codes, plain ? 0 : MPT__CODE_ZERO, (size_t)n);
}
#endif

static void mpt__cpu_update_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_update *w = (const mpt__cpu_update *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__cpu_min(begin + MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT]);
    const mpt__cpu_view *weights = w->master.data != NULL ? &w->master : &w->param;
    bool along = weights != &w->param && mpt__cpu_is_half(w->param.dtype);
    mpt__real block[5][MPT__BLOCK], *m[3] = {NULL, NULL, NULL};
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__UPDATE_BLOCK(w)) {
        int64_t n = mpt__cpu_min(MPT__UPDATE_BLOCK(w), end - at);
        int64_t offset = w->segment[MPT__SEGMENT_OFFSET] + at;
        mpt__real *p = mpt__cpu_edit(weights, offset, block[0], n);
        const mpt__real *g = mpt__cpu_in(&w->gradient, offset, 1, block[1], n);
        for (int k = 0; k < 3; k++)
            if (w->moment[k].data) m[k] = mpt__cpu_moment(w, k, at, block[2 + k], n);
        void *half = along ? (uint16_t *)w->param.data + offset : NULL;
        w->update(w, p, g, m, half, n);
        if (weights != &w->param) mpt__cpu_put(weights, offset, 1, p, n);
        if (w->stochastic)
            mpt__cpu_put_stochastic(w, offset, p, n);
        else if (!along)
            mpt__cpu_put(&w->param, offset, 1, p, n);
        for (int k = 0; k < 3; k++)
            if (m[k]) mpt__cpu_put_moment(w, k, at, m[k], n);
    }
}

/* What row `row` of the table of rates has for the steps applied; `without` it, where there is
   none. */
static double mpt__cpu_scheduled(const mpt__cpu_call *call, int row, double without) {
    const mpt__launch *launch = call->launch;
    if (launch->n_operands < 8 || call->data[7] == NULL) return without;
    const mpt__operand *o = &launch->operand[7];
    if (row >= o->rank) return without;
    int64_t n = o->shape[o->rank - 1];
    int64_t at = call->scalars[launch->slot[3]].i - call->scalars[launch->slot[4]].i;
    return ((const double *)call->data[7])[row * n + (at < 0 ? 0 : at < n ? at : n - 1)];
}

/* The end of an update: its steps are counted. */
static void mpt__cpu_commit(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    int64_t *steps = (int64_t *)call->data[5];
    if (launch->index[1] == 0) return;
    for (int64_t s = 0; s < launch->operand[4].shape[0]; s++) {
        const int64_t *segment = mpt__cpu_segment(call, 4, s);
        for (int64_t i = 0; i < segment[MPT__SEGMENT_STEPS]; i++)
            steps[segment[MPT__SEGMENT_STEP] + i]++;
    }
    if (launch->index[1] == 2) call->scalars[launch->slot[3]].i++;
}

/* Goes through the segments. */
static void mpt__cpu_update_run(const mpt__cpu_call *call, mpt__update_fn update, double ns) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_update update_of, *w = &update_of;
    if (!mpt__gate_open(call, launch->slot[2])) return;
    memset(w, 0, sizeof *w);
    w->update = update;
    w->law = mpt__law_of(launch);
    const int64_t *steps = (const int64_t *)call->data[5];
    const double lr = mpt__cpu_scheduled(call, 0, call->scalars[launch->slot[0]].f);
    const double first = mpt__cpu_scheduled(call, 1, launch->imm[0]);
    mpt__kernel_flushes(call->routines->flushes);
    w->param = mpt__cpu_view_of(call, 0);
    w->master = mpt__cpu_view_of(call, 1);
    w->gradient = mpt__cpu_view_of(call, 2);
    for (int k = 0; k < 3; k++)
        if (w->law.moment[k]) w->moment[k] = mpt__cpu_view_of(call, k == 0 ? 3 : 4 + 2 * k);
    w->multiplier = mpt__cpu_factor(call, launch->slot[1]);
    if (launch->index[2] != 0) w->multiplier = -w->multiplier;
    w->stochastic = launch->index[3] != 0;
    w->before = launch->operand[0].offset;
    w->key.seed = launch->rng.seed, w->key.call = launch->rng.call;
#ifndef MPTRAIN_NO_FRUGAL
    if (launch->n_operands > 9) w->books = (const int32_t *)call->data[9];
    for (int k = 0; k < 3 && w->books; k++) w->moment[k].dtype = MPT_F32; /* or codes */
#endif
    for (int64_t s = 0; s < launch->operand[4].shape[0]; s++) {
        w->segment = mpt__cpu_segment(call, 4, s);
#ifndef MPTRAIN_NO_FRUGAL
        w->coded = w->books && w->segment[MPT__SEGMENT_PLACE] < 0;
#endif
        int64_t step = steps[w->segment[MPT__SEGMENT_STEP]];
        bool known = s > 0 && step == w->step;
        w->step = step;
        w->key.stream = mpt__hash_u64(launch->rng.stream, (uint64_t)step);
        if (!known) w->pace = mpt__pace_of(&w->law, lr, first, step);
        int64_t count = w->segment[MPT__SEGMENT_COUNT];
        mpt__parallel(call->pool, mpt__cpu_chunks(count, MPT__CHUNK),
            mpt__cpu_cost(call, count, ns), mpt__cpu_update_chunk, w);
    }
    mpt__kernel_flushed(call->routines->flushes);
    mpt__cpu_commit(call);
}

static void mpt__cpu_sgd(const mpt__cpu_call *call) {
    mpt__cpu_update_run(call, call->routines->sgd, 4.0);
}
static void mpt__cpu_adam(const mpt__cpu_call *call) {
    mpt__cpu_update_run(call, call->routines->adam, 12.0);
}
static void mpt__cpu_moments(const mpt__cpu_call *call) {
#define MPT__ROW(id, name, ns, eps, decay, ways) , ns
    static const double ns[] = {0 MPT__UPDATES(MPT__ROW)};
#undef MPT__ROW
    const int row = call->launch->function - MPT__FN_NO_UPDATE;
    mpt__cpu_update_run(call, call->routines->moments, ns[row]);
}

/* ==== Averages ==== */

typedef struct mpt__cpu_average_work {
    mpt__cpu_view average, value;
    int64_t count;
    mpt__real weight; /* of the new value; 1: it is copied */
} mpt__cpu_average_work;

static void mpt__cpu_average_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_average_work *w = (const mpt__cpu_average_work *)work;
    const mpt__routines *routines = w->average.routines;
    int64_t begin = chunk * MPT__CHUNK, end = mpt__cpu_min(begin + MPT__CHUNK, w->count), n;
    mpt__real block[3][MPT__BLOCK];
    (void)thread;
    for (int64_t at = begin; at < end; at += n) {
        n = mpt__cpu_min(MPT__BLOCK, end - at);
        mpt__real *average = mpt__cpu_edit(&w->average, at, block[0], n), *part = block[2];
        const mpt__real *value = mpt__cpu_in(&w->value, at, 1, block[1], n);
        if (w->weight == 1) {
            memcpy(average, value, (size_t)n * sizeof *average);
        } else {
            routines->binary[MPT__BINARY_SUB](part, value, average, n, 0, 0);
            routines->unary[MPT__UNARY_MUL_SCALAR](part, part, n, w->weight, 0);
            routines->binary[MPT__BINARY_ADD](average, average, part, n, 0, 0);
        }
        mpt__cpu_put(&w->average, at, 1, average, n);
    }
}

static void mpt__cpu_average(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scalar *applied = &call->scalars[launch->slot[0]], *seen = &call->scalars[launch->slot[1]];
    mpt__scalar *updates = &call->scalars[launch->slot[2]];
    mpt__cpu_average_work w;
    if (!mpt__gate_open(call, 0) || applied->i == seen->i) return;
    w.average = mpt__cpu_view_of(call, 0);
    w.value = mpt__cpu_view_of(call, 1);
    w.count = launch->operand[0].shape[0];
    w.weight = (mpt__real)mpt__average_weight(launch->index[0], launch->imm[0], (double)updates->i);
    mpt__parallel(call->pool, mpt__cpu_chunks(w.count, MPT__CHUNK),
        mpt__cpu_cost(call, w.count, 5.0), mpt__cpu_average_chunk, &w);
    if (launch->index[1] == 0) return;
    seen->i = applied->i;
    updates->i++;
}

#ifndef MPTRAIN_NO_WATCH
/* A norm that clips, and what is known of it afterwards. */
static void mpt__cpu_clip_note(const mpt__cpu_call *call, mpt__real norm) {
    const mpt__launch *launch = call->launch;
    mpt__scalar *scalars = call->scalars, *noted = &scalars[MPT__SLOT_CLIPPED];
    bool finite = mpt__f64_is_finite((double)norm), mine = noted->i == launch->slot[3];
    int64_t applied = scalars[launch->slot[3]].i;
    mpt__scalar value;
    value.f = (double)norm;
    if (!finite && (launch->slot[2] == 0 || scalars[launch->slot[2]].i == 0)) {
        if (launch->index[0] != 0) mpt__cpu_raise(call, MPT_ERROR_NUMERIC, -1, -1, value, 0);
        if (launch->index[0] != 0 || noted->i != 0) return;
        noted->i = launch->slot[3];
        scalars[MPT__SLOT_CLIPPED_AT].i = applied;
    } else if (mine && scalars[MPT__SLOT_CLIPPED_AT].i == applied) {
        noted->i = 0;
    }
}
#endif

/* A NaN norm makes the multiplier NaN, as in PyTorch. */
static void mpt__cpu_clip(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_view out = mpt__cpu_view_of(call, 0);
    mpt__real norm = (mpt__real)call->scalars[launch->slot[1]].f;
    mpt__real factor = (mpt__real)launch->imm[0] / (norm + (mpt__real)1e-6);
    if (factor > 1) factor = 1;
    mpt__scalar *multiplier = &call->scalars[launch->slot[0]];
    if (launch->slot[0] != 0) multiplier->f = (double)((mpt__real)multiplier->f * factor);
    if (out.data != NULL) mpt__cpu_put_one(&out, 0, norm);
#ifndef MPTRAIN_NO_WATCH
    if (launch->slot[3] != 0) mpt__cpu_clip_note(call, norm);
#endif
}

/* ==== Device scalars ==== */

static void mpt__cpu_scalar_set(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scalar *to = &call->scalars[launch->slot[0]];
    if (launch->index[0] == 0) {
        to->f = launch->imm[0];
    } else {
        to->i = launch->index[1];
    }
}

static void mpt__cpu_scalar_or(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    call->scalars[slot[0]].i = (call->scalars[slot[1]].i | call->scalars[slot[2]].i) != 0;
}

static void mpt__cpu_scaler_update(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    if (!mpt__gate_open(call, 0)) return;
    mpt__scaler_ends_update(
        call->scalars, launch->slot, launch->imm, launch->index[0], launch->index[1] != 0);
}

static void mpt__cpu_metric_add(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    double value = 0;
    mpt__load_f64(&value, call->data[0], call->launch->operand[0].dtype, 0, 1, 1);
    call->scalars[slot[0]].f += value;
    call->scalars[slot[1]].i++;
}

/* The index of the first non-finite element of operand 0, or -1. Only blocks that are not finite as
   a whole are searched. */
static int64_t mpt__cpu_first_nonfinite(const mpt__cpu_call *call) {
    const mpt__convert_table *convert = call->routines->convert;
    mpt__cpu_walk walk;
    mpt__cpu_cursor at;
    double x[MPT__BLOCK];
    walk.view = mpt__cpu_view_of(call, 0);
    mpt__cpu_loop_over(&walk.loop, &call->launch->operand[0]);
    mpt__cpu_start(&at, &walk.loop, 0);
    int64_t step = mpt__cpu_inner(&walk.loop), n = 0;
    int dtype = walk.view.dtype;
    for (int64_t done = 0; done < walk.loop.count; done += n) {
        const char *p = (const char *)walk.view.data + at.offset * mpt__dtype_info[dtype].bytes;
        const void *data = p;
        n = mpt__cpu_min(mpt__cpu_room(&at, &walk.loop), MPT__BLOCK);
        bool finite = step == 1 &&
            ((dtype == MPT_F32 && convert->all_finite_f32((const float *)data, (size_t)n)) ||
                (dtype == MPT_F16 && convert->all_finite_f16((const uint16_t *)data, (size_t)n)) ||
                (dtype == MPT_BF16 && convert->all_finite_bf16((const uint16_t *)data, (size_t)n)));
        if (!finite) mpt__load_f64(x, walk.view.data, walk.view.dtype, at.offset, step, n);
        for (int64_t i = 0; !finite && i < n; i++) {
            if (!mpt__f64_is_finite(x[i])) return done + i;
        }
        mpt__cpu_advance(&at, &walk.loop, n);
    }
    return -1;
}

static void mpt__cpu_find_nonfinite(const mpt__cpu_call *call) {
    call->scalars[call->launch->slot[0]].i = mpt__cpu_first_nonfinite(call);
}

/* A finite loss may overflow by the scale: what counts is the loss. */
static void mpt__cpu_scale_loss(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    const float scale = (float)call->scalars[slot[0]].f;
    if (slot[2]) memcpy(&call->scalars[slot[2]], &scale, sizeof scale);
    mpt__cpu_unary_each(call);
    if (mpt__cpu_first_nonfinite(call) >= 0) call->scalars[slot[1]].i = 1;
}

/* ==== The routines of the reference level ==== */

static mpt__real mpt__ref_peak(const mpt__real *x, int64_t n, mpt__real start) {
    for (int64_t i = 0; i < n; i++) start = x[i] > start ? x[i] : start;
    return start;
}

static void mpt__ref_add_lanes(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) lane[(size_t)(first + i) % MPT__SUM_LANES] += x[i];
}

static void mpt__ref_max_lanes(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        mpt__real *to = &lane[(size_t)(first + i) % MPT__SUM_LANES];
        *to = mpt__real_max_nan(*to, x[i]);
    }
}

static void mpt__ref_sum_products(const mpt__product_sums *p) {
    for (int64_t i = 0; i < p->count; i++) {
        mpt__real *out = p->out + i * p->out_step;
        for (int64_t c = 0; c < p->n; c++) out[c] = p->start[i * p->start_step + c];
        for (int64_t j = 0; j < p->depth; j++) {
            const mpt__real *x = p->x[j] + i * p->x_step, *w = p->w + j * p->w_step;
            for (int64_t c = 0; c < p->n; c++) out[c] += x[c] * w[c];
        }
    }
}

static void mpt__ref_add_exp(mpt__real *lane, mpt__real *out, const mpt__real *x, int64_t n,
    mpt__real most, bool differences) {
    for (int64_t i = 0; i < n; i++) {
        mpt__real difference = x[i] - most, e = mpt__real_exp(difference);
        out[i] = differences ? difference : e;
        lane[(size_t)i % MPT__SUM_LANES] += e;
    }
}

static void mpt__ref_add_run(double *lane, const float *x, int64_t n, mpt__real multiplier) {
    double sum[MPT__SUM_LANES] = {0};
    for (int64_t i = 0; i < n; i++) {
        mpt__real product = x[i] * multiplier;
        sum[(size_t)i % MPT__SUM_LANES] += (double)product * (double)product;
    }
    for (int l = 0; l < MPT__SUM_LANES; l++) lane[l] += sum[l];
}

static void mpt__ref_add_squares(double *lane, const float *x, int64_t n, mpt__real multiplier) {
    const int64_t run = MPT__SQUARE_RUN(n), runs = MPT__SQUARE_RUNS * run;
    mpt__ref_add_run(lane, x + runs, n - runs, multiplier);
    for (int64_t at = 0; at < runs; at += run) mpt__ref_add_run(lane, x + at, run, multiplier);
}

static void mpt__ref_dropout_block(mpt__real *out, const mpt__real *x, int64_t n, mpt__rng_key key,
    uint64_t first, uint32_t threshold, mpt__real factor) {
    uint32_t words[64];
    for (int64_t at = 0, m; at < n; at += m) {
        m = mpt__cpu_min(64, n - at);
        mpt__random_bits(key, first + (uint64_t)at, (size_t)m, words);
        for (int64_t i = 0; i < m; i++)
            out[at + i] = words[i] >= threshold ? x[at + i] * factor : 0;
    }
}

static void mpt__ref_transpose(mpt__real *to, int64_t to_step, const mpt__real *from,
    int64_t from_step, int64_t rows, int64_t columns, bool beyond_cache) {
    (void)beyond_cache;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) to[j * to_step + i] = from[i * from_step + j];
    }
}

/* A copy of bytes, or a sum. */
static MPT__INLINE void mpt__ref_line(char *to, const char *from, int64_t bytes, bool adds) {
    mpt__real *out = (mpt__real *)(void *)to;
    if (!adds) memcpy(to, from, (size_t)bytes);
    for (int64_t i = 0; adds && i < bytes / (int64_t)sizeof *out; i++)
        out[i] += ((const mpt__real *)(const void *)from)[i];
}
/* By a function as that one, for 64 bytes. */
static MPT__FORCE_INLINE void mpt__rows_each(
    const mpt__rows *rows, bool adds, void line(char *, const char *, int64_t, bool)) {
    const mpt__rows r = *rows; /* which no store can change */
    const int64_t *at = r.ids + r.begin * r.id_step;
    char *row = r.rows + r.begin * r.row_step;
    for (int64_t j = r.begin, i = 0; j < r.end; j++, i = 0, at += r.id_step, row += r.row_step) {
        const uint64_t id = (uint64_t)*at, size = (uint64_t)r.size;
        const uint64_t later = (uint64_t)at[j < r.n - r.ahead ? r.ahead * r.id_step : 0];
        if (id >= size || id == (uint64_t)r.padding) {
            if (!adds) memset(row, 0, (size_t)r.bytes);
            continue;
        }
        char *place = r.table + (int64_t)id * r.table_step, *to = adds ? place : row;
        const char *next = r.table + (int64_t)(later < size ? later : id) * r.table_step;
        const char *from = adds ? row : place;
        for (; i + 64 <= r.bytes; i += 64) {
            MPT__PREFETCH_FAR(next + i);
            line(to + i, from + i, 64, adds);
        }
        if (i < r.bytes) mpt__ref_line(to + i, from + i, r.bytes - i, adds);
    }
}

static const mpt__routines mpt__ref_routines = {
    1.0,
    false,
    &mpt__convert_portable,
#define MPT__ROW(id, ns, value) mpt__ref_unary_##id,
    {MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW) mpt__ref_unary_SPLAT},
#undef MPT__ROW
#define MPT__ROW(id, ns, value) mpt__ref_binary_##id,
    {MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)},
#undef MPT__ROW
    mpt__ref_peak,
    mpt__ref_add_lanes,
    mpt__ref_max_lanes,
    mpt__ref_sum_products,
    NULL,
    NULL,
    mpt__ref_add_exp,
    NULL,
    NULL,
    mpt__ref_add_squares,
    mpt__random_bits,
    mpt__ref_dropout_block,
    mpt__ref_transpose,
    NULL,
    NULL,
    mpt__ref_sgd,
    mpt__ref_adam,
    mpt__ref_any_update,
    NULL,
    NULL,
    NULL,
    false,
    MPT__REF_NORM_WORDS,
#ifndef MPTRAIN_NO_RECURRENT
    mpt__ref_cell,
    mpt__ref_cell_slopes,
#endif
#ifndef MPTRAIN_NO_FRUGAL
    NULL,
    mpt__ref_decode,
    mpt__ref_code_peak,
    mpt__ref_encode,
#endif
};

#endif
