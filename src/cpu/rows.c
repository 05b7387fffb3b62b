/* ----
 * cpu/rows.c: kernels along dimensions: reductions, argmax and its kin, softmax, and the matrix
 * products of the reference level.
 * ---- */
#ifndef MPT__CPU_ROWS_INCLUDED
#define MPT__CPU_ROWS_INCLUDED

#include "cpu/halves.c"

/* ==== Reductions ==== */

/* The most outputs of a chunk, neighbours in logical order: they read long runs of memory, half as
   many leave work for more threads. */
#define MPT__REDUCE_OUTPUTS (MPT__BLOCK / 4)

typedef struct {
    mpt__cpu_walk in, out; /* over the outputs */
    mpt__cpu_loop reduced; /* over what one output sums */
    int64_t chunks;        /* of the reduced elements, MPT__SUM_CHUNK each */
    int64_t tile;          /* outputs of a chunk */
    bool is_mean, by_columns;
    mpt__real identity;
    mpt__binary_fn combine;
    void (*lanes)(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n);
    mpt__real (*fold)(const mpt__real lane[MPT__SUM_LANES]);
    mpt__real *partial;        /* [outputs, chunks]; unused when there is but one chunk */
    const mpt__launch *launch; /* of SQUARES, which has means or not */
    mpt__cpu_view mean;
} mpt__cpu_reduce_work;

/* Reduces one chunk for n neighbouring outputs whose elements begin at `offset`. By columns the
   outputs are the inner loop, which is faster where they lie closer together than what they sum:
   lane l of output j is lane[l n + j], else lane[16 j + l]. The order of additions is the same. */
static void mpt__cpu_reduce_outputs(
    const mpt__cpu_reduce_work *w, int64_t chunk, int64_t offset, int64_t n, mpt__real *result) {
    const mpt__routines *routines = w->in.view.routines;
    mpt__real lane[MPT__SUM_LANES * MPT__REDUCE_OUTPUTS], x[MPT__BLOCK];
    int64_t first = chunk * MPT__SUM_CHUNK, stride = mpt__cpu_inner(&w->in.loop);
    int64_t left = mpt__cpu_min(MPT__SUM_CHUNK, w->reduced.count - first), m = 0;
    int64_t inner = mpt__cpu_inner(&w->reduced);
    int64_t used = !w->by_columns || left >= MPT__SUM_LANES ? MPT__SUM_LANES
        : left > 0                                          ? left
                                                            : 1; /* lanes */
    mpt__cpu_cursor at;
    lane[0] = w->identity;
    routines->unary[MPT__UNARY_SPLAT](lane, lane, used * n, lane[0], 0);
    mpt__cpu_start(&at, &w->reduced, first);
    for (first = 0; left > 0; left -= m, first += m) {
        m = mpt__cpu_min(mpt__cpu_min(left, MPT__BLOCK), mpt__cpu_room(&at, &w->reduced));
        for (int64_t i = 0, lines = 1; w->by_columns && i < m; i += lines) {
            const int64_t place = (first + i) % MPT__SUM_LANES;
            const int64_t from = offset + at.offset + i * inner;
            mpt__real *to = lane + place * n;
            if (inner == n && stride == 1) /* lines one behind the other, as their lanes are */
                lines = mpt__cpu_min(mpt__cpu_min(m - i, MPT__SUM_LANES - place), MPT__BLOCK / n);
            w->combine(
                to, to, mpt__cpu_in(&w->in.view, from, stride, x, lines * n), lines * n, 0, 0);
        }
        for (int64_t j = 0; !w->by_columns && j < n; j++) {
            int64_t from = offset + at.offset + j * stride;
            w->lanes(
                lane + MPT__SUM_LANES * j, first, mpt__cpu_in(&w->in.view, from, inner, x, m), m);
        }
        mpt__cpu_advance(&at, &w->reduced, m);
    }
    for (int64_t j = 0; !w->by_columns && j < n; j++)
        result[j] = w->fold(lane + MPT__SUM_LANES * j);
    if (!w->by_columns) return;
    for (int64_t half = MPT__SUM_LANES / 2; half > 0; half /= 2) {
        int64_t some = mpt__cpu_min(used, 2 * half) - half;
        if (some > 0) w->combine(lane, lane, lane + half * n, some * n, 0, 0);
    }
    memcpy(result, lane, (size_t)n * sizeof *result);
}

static void mpt__cpu_reduce_put(
    const mpt__cpu_reduce_work *w, int64_t begin, int64_t n, mpt__real *result) {
    mpt__cpu_cursor at;
    mpt__cpu_start(&at, &w->out.loop, begin);
    for (int64_t i = 0; w->is_mean && i < n; i++) result[i] /= (mpt__real)w->reduced.count;
    mpt__cpu_give(&w->out, &at, result, n);
}

/* One chunk of the sums for one tile of outputs. */
static void mpt__cpu_reduce_chunk(void *work, int64_t index, int thread) {
    MPT__TASK(mpt__cpu_reduce_work, w);
    int64_t chunk = index % w->chunks, begin = index / w->chunks * w->tile, m = 0;
    int64_t n = mpt__cpu_min(w->tile, w->in.loop.count - begin);
    mpt__real result[MPT__REDUCE_OUTPUTS];
    mpt__cpu_cursor at;
    mpt__cpu_start(&at, &w->in.loop, begin);
    for (int64_t i = 0; i < n; i += m) {
        m = mpt__cpu_min(n - i, mpt__cpu_room(&at, &w->in.loop));
        mpt__cpu_reduce_outputs(w, chunk, at.offset, m, result + i);
        mpt__cpu_advance(&at, &w->in.loop, m);
    }
    if (w->chunks == 1) {
        mpt__cpu_reduce_put(w, begin, n, result);
        return;
    }
    for (int64_t i = 0; i < n; i++) w->partial[(begin + i) * w->chunks + chunk] = result[i];
}

/* The pairs of chunks, for one tile of outputs. */
static void mpt__cpu_reduce_finish(void *work, int64_t tile, int thread) {
    MPT__TASK(mpt__cpu_reduce_work, w);
    int64_t begin = tile * w->tile;
    int64_t n = mpt__cpu_min(w->tile, w->in.loop.count - begin);
    mpt__real result[MPT__REDUCE_OUTPUTS];
    for (int64_t i = 0; i < n; i++) {
        mpt__real *part = w->partial + (begin + i) * w->chunks;
        for (int64_t step = 1; step < w->chunks; step *= 2)
            for (int64_t k = 0; k + step < w->chunks; k += 2 * step)
                w->combine(&part[k], &part[k], &part[k + step], 1, 0, 0);
        result[i] = part[0];
    }
    mpt__cpu_reduce_put(w, begin, n, result);
}

/* Sorts the dimensions into those that stay and those that go. */
static void mpt__cpu_reduce_loops(const mpt__launch *launch, mpt__cpu_reduce_work *w) {
    const mpt__operand *in = &launch->operand[0], *out = &launch->operand[1];
    mpt__cpu_loop_init(&w->in.loop);
    mpt__cpu_loop_init(&w->reduced);
    for (int d = 0; d < in->rank; d++)
        mpt__cpu_loop_add(
            out->shape[d] == 1 ? &w->reduced : &w->in.loop, in->shape[d], in->stride[d]);
    mpt__cpu_loop_close(&w->in.loop);
    mpt__cpu_loop_close(&w->reduced);
    w->chunks = mpt__cpu_chunks(w->reduced.count, MPT__SUM_CHUNK);
    if (w->chunks == 0) w->chunks = 1; /* nothing to sum: the empty chunk gives the identity */
}

static int64_t mpt__cpu_reduce_workspace(const mpt__launch *launch, int threads) {
    mpt__cpu_reduce_work w;
    (void)threads;
    mpt__cpu_reduce_loops(launch, &w);
    if (w.chunks == 1 || w.in.loop.count == 0) return 0;
    return w.in.loop.count * w.chunks * (int64_t)sizeof(mpt__real);
}

static void mpt__cpu_multiply_lanes(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) lane[(size_t)(first + i) % MPT__SUM_LANES] *= x[i];
}

/* How two elements are combined, and what an empty lane holds. */
static void mpt__cpu_reduce_kind(const mpt__cpu_call *call, mpt__cpu_reduce_work *w) {
    const mpt__routines *routines = call->routines;
    const int function = call->launch->function;
    w->is_mean = function == MPT__FN_MEAN;
    w->identity = 0;
    w->combine = routines->binary[MPT__BINARY_ADD];
    w->lanes = routines->add_lanes;
    w->fold = mpt__cpu_fold_lanes;
    if (function == MPT__FN_MAX) {
        w->identity = -mpt__real_infinity();
        w->combine = routines->binary[MPT__BINARY_MAXIMUM];
        w->lanes = routines->max_lanes;
        w->fold = mpt__cpu_fold_maxima;
    } else if (function == MPT__FN_PROD) {
        w->identity = 1;
        w->combine = routines->binary[MPT__BINARY_MUL];
        w->lanes = mpt__cpu_multiply_lanes;
        w->fold = mpt__cpu_fold_products;
    }
}

static void mpt__cpu_reduce(const mpt__cpu_call *call) {
    mpt__cpu_reduce_work w;
    w.in.view = mpt__cpu_view_of(call, 0);
    w.out.view = mpt__cpu_view_of(call, 1);
    mpt__cpu_reduce_loops(call->launch, &w);
    mpt__cpu_loop_over(&w.out.loop, &call->launch->operand[1]);
    mpt__cpu_reduce_kind(call, &w);
    const int64_t outputs = w.in.loop.count, whole = w.reduced.count / MPT__SUM_CHUNK;
    w.by_columns = outputs > 1 && mpt__cpu_inner(&w.in.loop) < mpt__cpu_inner(&w.reduced);
    const bool many = w.by_columns &&
        mpt__cpu_times(outputs, whole) >= 2 * MPT__REDUCE_OUTPUTS * mpt__pool_threads(call->pool);
    w.tile = many ? MPT__REDUCE_OUTPUTS : MPT__REDUCE_OUTPUTS / 2;
    const int64_t tiles = mpt__cpu_chunks(outputs, w.tile);
    w.partial = (mpt__real *)call->workspace;
    if (outputs == 0) return;
    mpt__cpu_for(call, tiles * w.chunks, mpt__cpu_times(outputs, w.reduced.count), 2.0,
        mpt__cpu_reduce_chunk, &w);
    if (w.chunks > 1)
        mpt__cpu_for(call, tiles, outputs * w.chunks, 15.0, mpt__cpu_reduce_finish, &w);
}

/* ---- Sums of squares beyond fp32 ---- */

/* The largest of `start` and n elements. */
static mpt__real mpt__cpu_maximum(
    const mpt__routines *routines, const mpt__real *x, int64_t n, mpt__real start) {
    mpt__real lane[MPT__SUM_LANES];
    for (int l = 0; l < MPT__SUM_LANES; l++) lane[l] = start;
    routines->max_lanes(lane, 0, x, n);
    return mpt__cpu_fold_maxima(lane);
}

/* The sum in double of an output's elements, or of the squares of what differs from mean. */
static double mpt__cpu_wide_sum(const mpt__cpu_reduce_work *w, int64_t output, const double *mean) {
    mpt__real x[MPT__BLOCK];
    mpt__cpu_cursor from, at;
    const int64_t inner = mpt__cpu_inner(&w->reduced);
    double total = 0;
    mpt__cpu_start(&from, &w->in.loop, output);
    mpt__cpu_start(&at, &w->reduced, 0);
    for (int64_t left = w->reduced.count, m; left > 0; left -= m) {
        m = mpt__cpu_min(mpt__cpu_min(left, MPT__BLOCK), mpt__cpu_room(&at, &w->reduced));
        const mpt__real *some = mpt__cpu_in(&w->in.view, from.offset + at.offset, inner, x, m);
        for (int64_t i = 0; i < m; i++) {
            const double value = (double)some[i] - (mean ? *mean : 0);
            total += mean ? value * value : value;
        }
        mpt__cpu_advance(&at, &w->reduced, m);
    }
    return total;
}

static mpt__real mpt__cpu_wide_squares(
    const mpt__cpu_reduce_work *w, const mpt__launch *launch, int64_t output) {
    mpt__cpu_cursor at;
    double mean = 0;
    if (w->mean.data) {
        mpt__cpu_loop means;
        mpt__cpu_loop_over(&means, &launch->operand[2]);
        mpt__cpu_start(&at, &means, output);
        mean = (double)mpt__cpu_get_one(&w->mean, at.offset);
        if (!mpt__f64_is_finite(mean)) {
            mean = mpt__cpu_wide_sum(w, output, NULL) / (double)w->reduced.count;
            mpt__cpu_put_one(&w->mean, at.offset, (mpt__real)mean);
        }
    }
    const double sum = mpt__cpu_wide_sum(w, output, &mean) * launch->imm[0];
    return (mpt__real)(launch->index[0] ? sqrt(sum) : sum);
}

/* Whether fp32 holds all of n sums; it does not hold NaN. */
static bool mpt__cpu_squares_held(const mpt__routines *routines, const mpt__real *sums, int64_t n) {
    mpt__real less[MPT__BLOCK];
    routines->unary[MPT__UNARY_NEG](less, sums, n, 0, 0);
    return mpt__cpu_maximum(routines, less, n, -mpt__real_infinity()) <= -MPT__LEAST_SQUARES &&
        mpt__cpu_maximum(routines, sums, n, 0) < mpt__real_infinity();
}

static void mpt__cpu_squares_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_reduce_work, w);
    const mpt__launch *launch = w->launch;
    const mpt__routines *routines = w->in.view.routines;
    const int64_t begin = chunk * w->tile, n = mpt__cpu_min(w->tile, w->in.loop.count - begin);
    mpt__real sum[MPT__BLOCK], out[MPT__BLOCK];
    mpt__cpu_cursor at;
    mpt__cpu_start(&at, &w->out.loop, begin);
    const mpt__real *sums = mpt__cpu_take(&w->out, &at, sum, n);
    routines->unary[MPT__UNARY_MUL_SCALAR](out, sums, n, (mpt__real)launch->imm[0], 0);
    if (launch->index[0]) routines->unary[MPT__UNARY_SQRT](out, out, n, 0, 0);
    const bool held = mpt__cpu_squares_held(routines, sums, n);
    for (int64_t i = 0; i < n && !held; i++)
        if (!(sums[i] >= MPT__LEAST_SQUARES && sums[i] < mpt__real_infinity()))
            out[i] = mpt__cpu_wide_squares(w, launch, begin + i);
    mpt__cpu_start(&at, &w->out.loop, begin);
    mpt__cpu_give(&w->out, &at, out, n);
}

static void mpt__cpu_squares(const mpt__cpu_call *call) {
    mpt__cpu_reduce_work w;
    w.launch = call->launch;
    w.in.view = mpt__cpu_view_of(call, 0);
    w.out.view = mpt__cpu_view_of(call, 1);
    w.mean = mpt__cpu_view_of(call, 2);
    mpt__cpu_reduce_loops(call->launch, &w);
    mpt__cpu_loop_over(&w.out.loop, &call->launch->operand[1]);
    w.tile = MPT__BLOCK;
    mpt__cpu_for(call, mpt__cpu_chunks(w.in.loop.count, w.tile), w.in.loop.count, 2.0,
        mpt__cpu_squares_chunk, &w);
}

/* ==== Along one dimension ==== */

/* Lines of up to MPT__SHORT_LINE elements are computed side by side, up to MPT__LINES of them:
   element i of line r stands at [i * lines + r] of a block. */
#define MPT__SHORT_LINE 32 /* measured: from here on, turning costs more than it saves */
#define MPT__LINES 64

static int64_t mpt__cpu_side_by_side(int64_t n, int64_t lines) {
    if (n == 0 || n > MPT__SHORT_LINE) return 1;
    return mpt__cpu_min(lines, mpt__cpu_min(MPT__LINES, MPT__BLOCK / n));
}

/* Rows of a chunk of row-wise work. No result depends on it. */
static int64_t mpt__cpu_chunk_rows(int64_t n) { return n > MPT__SHORT_LINE ? 16 : MPT__LINES; }

/* Lines along one dimension of up to three operands, whose walks go over the lines. `line` gets the
   offsets of one line, or of the first of equally spaced ones, and behind them the number of the
   thread. */
typedef struct mpt__cpu_axis_work mpt__cpu_axis_work;
#define MPT__LINE_TAKES const mpt__cpu_axis_work *w, const int64_t *offset, int64_t lines
struct mpt__cpu_axis_work {
    const mpt__routines *routines;
    int operands;
    mpt__cpu_walk walk[3];
    int64_t n, stride[3];          /* along the dimension */
    bool side_by_side, dense, log; /* lines per call: some; all. log: of softmax */
    bool least, reverse;           /* argmin; from the end, the largest first */
    int64_t size, first, step;     /* that an index selects from; what stands for indices */
    struct mpt__cpu_rank *places;  /* for sorting: `room` and as many again for each thread */
    int64_t room;
    void (*line)(MPT__LINE_TAKES);
};

static void mpt__cpu_axis_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_axis_work *w = (const mpt__cpu_axis_work *)work;
    int64_t rows = mpt__cpu_chunk_rows(w->n), begin = chunk * rows, offset[4] = {0, 0, 0, thread};
    int64_t left = mpt__cpu_min(rows, w->walk[0].loop.count - begin);
    mpt__cpu_cursor at[3];
    for (int k = 0; k < w->operands; k++) mpt__cpu_start(&at[k], &w->walk[k].loop, begin);
    for (int64_t lines; left > 0; left -= lines) {
        lines = w->dense ? left : w->side_by_side ? mpt__cpu_side_by_side(w->n, left) : 1;
        for (int k = 0; k < w->operands; k++) {
            offset[k] = at[k].offset;
            lines = mpt__cpu_min(lines, mpt__cpu_room(&at[k], &w->walk[k].loop));
        }
        w->line(w, offset, lines);
        for (int k = 0; k < w->operands; k++) mpt__cpu_advance(&at[k], &w->walk[k].loop, lines);
    }
}

/* Runs w->line for every line along `axis` of so many operands; `shape_of` has its full size
   there. */
static void mpt__cpu_axis_run(mpt__cpu_axis_work *w, const mpt__cpu_call *call, int operands,
    int shape_of, int axis, double ns) {
    const mpt__operand *o = call->launch->operand;
    w->routines = call->routines;
    w->operands = operands;
    w->n = o[shape_of].shape[axis];
    for (int k = 0; k < operands; k++) {
        bool absent = call->data[k] == NULL;
        w->walk[k].view = mpt__cpu_view_of(call, k);
        w->stride[k] = absent ? 0 : o[k].stride[axis];
        mpt__cpu_loop_init(&w->walk[k].loop);
        for (int d = 0; d < o[shape_of].rank; d++) {
            if (d == axis) continue;
            mpt__cpu_loop_add(&w->walk[k].loop, o[shape_of].shape[d], absent ? 0 : o[k].stride[d]);
        }
        mpt__cpu_loop_close(&w->walk[k].loop);
    }
    int64_t lines = w->walk[0].loop.count, rows = mpt__cpu_chunk_rows(w->n);
    if (w->n == 0) return; /* lines without elements can be 2^40 */
    mpt__cpu_for(call, mpt__cpu_chunks(lines, rows), mpt__cpu_times(lines, w->n), ns,
        mpt__cpu_axis_chunk, w);
}

/* Elements at .. at+n-1 of a line of operand k. */
static const mpt__real *mpt__cpu_line_in(const mpt__cpu_axis_work *w, int k, const int64_t *offset,
    int64_t at, mpt__real *block, int64_t n) {
    return mpt__cpu_in(&w->walk[k].view, offset[k] + at * w->stride[k], w->stride[k], block, n);
}

/* n elements of a line, negated where the least is wanted. */
static const mpt__real *mpt__cpu_argmax_part(
    const mpt__cpu_axis_work *w, const int64_t *offset, int64_t at, mpt__real *x, int64_t n) {
    const mpt__real *from = mpt__cpu_line_in(w, 0, offset, at, x, n);
    if (!w->least) return from;
    w->routines->unary[MPT__UNARY_NEG](x, from, n, 0, 0);
    return x;
}

/* Finds the part that holds the first maximum, then looks into it. */
static void mpt__cpu_argmax_line(MPT__LINE_TAKES) {
    enum { PART = 128 };
    mpt__real best = -mpt__real_infinity(), x[PART];
    const mpt__real *from;
    int64_t part = 0, i = 0;
    (void)lines;
    for (int64_t at = 0; at < w->n && !mpt__real_is_nan(best); at += PART) {
        int64_t n = mpt__cpu_min(PART, w->n - at);
        mpt__real most =
            mpt__cpu_maximum(w->routines, mpt__cpu_argmax_part(w, offset, at, x, n), n, best);
        if (most > best || mpt__real_is_nan(most)) {
            best = most;
            part = at;
        }
    }
    from = mpt__cpu_argmax_part(w, offset, part, x, mpt__cpu_min(PART, w->n - part));
    while (mpt__real_is_nan(best) ? !mpt__real_is_nan(from[i]) : from[i] != best) i++;
    int64_t index = part + i;
    if (w->walk[1].view.data)
        mpt__store_i64(w->walk[1].view.data, w->walk[1].view.dtype, offset[1], 1, &index, 1);
    if (w->walk[2].view.data)
        mpt__cpu_put_one(&w->walk[2].view, offset[2], w->least ? -from[i] : from[i]);
}

static void mpt__cpu_argmax(const mpt__cpu_call *call) {
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_argmax_line;
    w.least = call->launch->function == MPT__FN_MIN;
    w.side_by_side = w.dense = false;
    mpt__cpu_axis_run(&w, call, 3, 0, (int)call->launch->index[0], 2.0);
}

static void mpt__cpu_scatter_axis_line(MPT__LINE_TAKES) {
    int64_t index = mpt__cpu_get_integer(&w->walk[0].view, offset[0]);
    mpt__real value = mpt__cpu_get_one(&w->walk[1].view, offset[1]), x[MPT__BLOCK] = {0};
    (void)lines;
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        bool here = index >= at && index < at + MPT__BLOCK;
        if (here) x[index - at] = value;
        mpt__cpu_put(&w->walk[2].view, offset[2] + at * w->stride[2], w->stride[2], x,
            mpt__cpu_min(MPT__BLOCK, w->n - at));
        if (here) x[index - at] = 0;
    }
}

/* Notes the first index of an operand that is not in 0 .. size-1. */
static void mpt__cpu_check_indices(const mpt__cpu_call *call, int operand, int64_t size) {
    const mpt__operand *o = &call->launch->operand[operand];
    int64_t block[MPT__BLOCK];
    mpt__cpu_loop loop;
    mpt__cpu_cursor at;
    if (!call->data[operand] || call->scalars[MPT__SLOT_ERROR].i != 0) return;
    mpt__cpu_loop_init(&loop);
    for (int d = 0; d < o->rank; d++)
        if (o->stride[d] != 0 || o->shape[d] == 0)
            mpt__cpu_loop_add(&loop, o->shape[d], o->stride[d]);
    mpt__cpu_loop_close(&loop);
    mpt__cpu_start(&at, &loop, 0);
    for (int64_t done = 0, n; done < loop.count; done += n) {
        n = mpt__cpu_min(mpt__cpu_min(mpt__cpu_room(&at, &loop), MPT__BLOCK), loop.count - done);
        const int64_t *ids = block, inner = mpt__cpu_inner(&loop);
        if (o->dtype == MPT_I64 && inner == 1)
            ids = (const int64_t *)call->data[operand] + at.offset;
        else
            mpt__load_i64(block, call->data[operand], o->dtype, at.offset, inner, n);
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] >= 0 && ids[i] < size) continue;
            mpt__scalar value;
            value.i = ids[i];
            mpt__cpu_raise(call, MPT_ERROR_INDEX, -1 - (done + i), -1, value, size);
            return;
        }
        mpt__cpu_advance(&at, &loop, n);
    }
}

static void mpt__cpu_scatter_axis(const mpt__cpu_call *call) {
    if (call->launch->index[1])
        mpt__cpu_check_indices(call, 0, call->launch->operand[2].shape[call->launch->index[0]]);
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_scatter_axis_line;
    w.side_by_side = w.dense = false;
    mpt__cpu_axis_run(&w, call, 3, 2, (int)call->launch->index[0], 2.0);
}

/* Index j of line r of operand k; -1 if it is a bad one. */
static int64_t mpt__cpu_index_at(
    const mpt__cpu_axis_work *w, int k, const int64_t *offset, int64_t j, int64_t r) {
    const mpt__cpu_walk *walk = &w->walk[k];
    if (!walk->view.data) return w->first + w->step * j;
    int64_t at = offset[k] + j * w->stride[k] + r * mpt__cpu_inner(&walk->loop);
    int64_t index = mpt__cpu_get_integer(&walk->view, at);
    return index >= 0 && index < w->size ? index : -1;
}

/* Lines that share their indices go together, others one by one. */
static int64_t mpt__cpu_index_run(const mpt__cpu_axis_work *w, int k, int64_t lines) {
    const mpt__cpu_walk *walk = &w->walk[k];
    return !walk->view.data || mpt__cpu_inner(&walk->loop) == 0 ? lines : 1;
}

/* Elements along a line at indices in equal steps, many at a time. */
static void mpt__cpu_gather_along(const mpt__cpu_axis_work *w, int64_t from, int64_t to) {
    const int64_t step = w->step * w->stride[0];
    mpt__real block[MPT__BLOCK];
    from += w->first * w->stride[0];
    for (int64_t j = 0, m; j < w->n; j += m) {
        m = mpt__cpu_min(MPT__BLOCK, w->n - j);
        const mpt__real *x = mpt__cpu_in(&w->walk[0].view, from + j * step, step, block, m);
        mpt__cpu_put(&w->walk[2].view, to + j * w->stride[2], w->stride[2], x, m);
    }
}

static void mpt__cpu_gather_lines(MPT__LINE_TAKES) {
    const mpt__cpu_walk *from = &w->walk[0], *to = &w->walk[2];
    const int64_t run = mpt__cpu_index_run(w, 1, lines);
    const int64_t from_step = mpt__cpu_inner(&from->loop), to_step = mpt__cpu_inner(&to->loop);
    const bool along = !w->walk[1].view.data && w->stride[0] == 1;
    mpt__real block[MPT__BLOCK];
    for (int64_t r = 0; along && r < lines; r++)
        mpt__cpu_gather_along(w, offset[0] + r * from_step, offset[2] + r * to_step);
    if (along) return;
    for (int64_t j = 0; j < w->n; j++)
        for (int64_t r = 0; r < lines; r += run) {
            int64_t index = mpt__cpu_index_at(w, 1, offset, j, r);
            const mpt__real *x = block;
            if (index < 0)
                memset(block, 0, (size_t)run * sizeof *block);
            else
                x = mpt__cpu_in(&from->view, offset[0] + index * w->stride[0] + r * from_step,
                    from_step, block, run);
            mpt__cpu_put(&to->view, offset[2] + j * w->stride[2] + r * to_step, to_step, x, run);
        }
}

static void mpt__cpu_scatter_add_lines(MPT__LINE_TAKES) {
    const mpt__cpu_walk *from = &w->walk[1], *to = &w->walk[2];
    const int64_t run = mpt__cpu_index_run(w, 0, lines);
    const int64_t from_step = mpt__cpu_inner(&from->loop), to_step = mpt__cpu_inner(&to->loop);
    mpt__real in[MPT__BLOCK], sum[MPT__BLOCK];
    for (int64_t j = 0; j < w->n; j++)
        for (int64_t r = 0; r < lines; r += run) {
            int64_t index = mpt__cpu_index_at(w, 0, offset, j, r);
            int64_t at = offset[2] + index * w->stride[2] + r * to_step;
            if (index < 0) continue;
            const mpt__real *x = mpt__cpu_in(
                &from->view, offset[1] + j * w->stride[1] + r * from_step, from_step, in, run);
            const mpt__real *old = mpt__cpu_in(&to->view, at, to_step, sum, run);
            mpt__real *out = mpt__cpu_out(&to->view, at, to_step, sum);
            w->routines->binary[MPT__BINARY_ADD](out, old, x, run, 0, 0);
            mpt__cpu_put(&to->view, at, to_step, out, run);
        }
}

static void mpt__cpu_gather(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const int axis = (int)launch->index[0];
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_gather_lines;
    w.side_by_side = false;
    w.dense = true;
    w.size = launch->operand[0].shape[axis];
    w.first = launch->index[1];
    w.step = launch->index[2];
    mpt__cpu_check_indices(call, 1, w.size);
    mpt__cpu_axis_run(&w, call, 3, 2, axis, 5.0);
}

static void mpt__cpu_scatter_add(const mpt__cpu_call *call) {
    const int axis = (int)call->launch->index[0];
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_scatter_add_lines;
    w.side_by_side = false;
    w.dense = true;
    w.size = call->launch->operand[2].shape[axis];
    mpt__cpu_check_indices(call, 0, w.size);
    mpt__cpu_axis_run(&w, call, 3, 1, axis, 5.0);
}

static void mpt__cpu_triangle_body(MPT__MAP_TAKES) {
    const mpt__launch *launch = map->call->launch;
    const mpt__operand *o = &launch->operand[0];
    const int64_t rows = o->shape[o->rank - 2], columns = o->shape[o->rank - 1];
    mpt__real in[MPT__BLOCK], out[MPT__BLOCK];
    const mpt__real *x = mpt__cpu_take(&map->walk[0], &at[0], in, n);
    for (int64_t i = 0; i < n; i++) {
        const int64_t diagonal = (first + i) % columns - (first + i) / columns % rows;
        const bool above = diagonal > launch->index[0];
        out[i] = diagonal == launch->index[0] || above == (launch->index[1] != 0) ? x[i] : 0;
    }
    mpt__cpu_give(&map->walk[1], &at[1], out, n);
}

static void mpt__cpu_triangle(const mpt__cpu_call *call) {
    mpt__cpu_map map;
    map.body = mpt__cpu_triangle_body;
    mpt__cpu_map_run(&map, call, 2, 8.0);
}

static void mpt__cpu_cumsum_line(MPT__LINE_TAKES) {
    mpt__real block[MPT__BLOCK], out[MPT__BLOCK];
    double sum = 0;
    (void)lines;
    for (int64_t done = 0, n; done < w->n; done += n) {
        n = mpt__cpu_min(MPT__BLOCK, w->n - done);
        int64_t at = w->reverse ? w->n - done - n : done;
        const mpt__real *x = mpt__cpu_line_in(w, 0, offset, at, block, n);
        for (int64_t i = 0; i < n; i++) {
            int64_t k = w->reverse ? n - 1 - i : i;
            sum += (double)x[k];
            out[k] = (mpt__real)sum;
        }
        mpt__cpu_put(&w->walk[1].view, offset[1] + at * w->stride[1], w->stride[1], out, n);
    }
}

static void mpt__cpu_cumsum(const mpt__cpu_call *call) {
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_cumsum_line;
    w.side_by_side = w.dense = false;
    w.reverse = call->launch->index[1] != 0;
    mpt__cpu_axis_run(&w, call, 2, 0, (int)call->launch->index[0], 4.0);
}

/* ---- Sorting ---- */

typedef struct mpt__cpu_rank {
    mpt__real key;
    int64_t index;
} mpt__cpu_rank;

/* Whether a must stand before b: equal ones keep their order. */
static MPT__INLINE bool mpt__cpu_before(
    const mpt__cpu_rank *a, const mpt__cpu_rank *b, bool descending) {
    mpt__real small_one = descending ? b->key : a->key, large_one = descending ? a->key : b->key;
    return small_one < large_one || (mpt__real_is_nan(large_one) && !mpt__real_is_nan(small_one));
}

/* Merges runs that double in length, to and fro between x and x + room; the result stands in x. */
static void mpt__cpu_merge_sort(mpt__cpu_rank *x, int64_t n, int64_t room, bool descending) {
    mpt__cpu_rank *from = x, *to = x + room;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t begin = 0; begin < n; begin += 2 * run) {
            int64_t middle = mpt__cpu_min(begin + run, n), end = mpt__cpu_min(begin + 2 * run, n);
            for (int64_t i = begin, a = begin, b = middle; i < end; i++) {
                bool second =
                    a == middle || (b < end && mpt__cpu_before(&from[b], &from[a], descending));
                to[i] = from[second ? b++ : a++];
            }
        }
        mpt__cpu_rank *kept = from;
        from = to, to = kept;
    }
    if (from != x) memcpy(x, from, (size_t)n * sizeof *x);
}

/* Places enough for the first k of n: they are sorted when full, and what does not come before the
   k-th is then passed over. */
static int64_t mpt__cpu_sort_room(int64_t n, int64_t k) {
    const int64_t few = 32; /* measured: sorting all of so many costs no more */
    return mpt__cpu_min(n, k > n / 2 ? n : 2 * k < few ? few : 2 * k);
}

static void mpt__cpu_argsort_line(MPT__LINE_TAKES) {
    mpt__cpu_rank *places = w->places + 2 * w->room * offset[3];
    const int64_t k = w->size;
    mpt__real block[MPT__BLOCK];
    int64_t count = 0, sorted = 0;
    (void)lines;
    for (int64_t at = 0; at < w->n && k > 0; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->n - at);
        const mpt__real *x = mpt__cpu_line_in(w, 0, offset, at, block, n);
        for (int64_t i = 0; i < n; i++) {
            mpt__cpu_rank *place = &places[count];
            place->key = x[i];
            place->index = at + i;
            if (sorted > 0 && !mpt__cpu_before(place, &places[k - 1], w->reverse)) continue;
            if (++count < w->room) continue;
            mpt__cpu_merge_sort(places, count, w->room, w->reverse);
            sorted = count = k;
        }
    }
    if (count > sorted) mpt__cpu_merge_sort(places, count, w->room, w->reverse);
    for (int64_t i = 0; i < k; i++)
        mpt__store_i64(w->walk[1].view.data, w->walk[1].view.dtype, offset[1] + i * w->stride[1], 1,
            &places[i].index, 1);
}

static int64_t mpt__cpu_argsort_workspace(const mpt__launch *launch, int threads) {
    int64_t axis = launch->index[0], n = launch->operand[0].shape[axis];
    int64_t room = mpt__cpu_sort_room(n, launch->operand[1].shape[axis]);
    bool one = mpt__cpu_numel(&launch->operand[0]) <= n * mpt__cpu_chunk_rows(n);
    return (one ? 1 : threads) * 2 * room * (int64_t)sizeof(mpt__cpu_rank);
}

static void mpt__cpu_argsort(const mpt__cpu_call *call) {
    const int axis = (int)call->launch->index[0];
    mpt__cpu_axis_work w;
    w.line = mpt__cpu_argsort_line;
    w.reverse = call->launch->function == MPT__FN_MAX;
    w.side_by_side = w.dense = false;
    w.size = call->launch->operand[1].shape[axis];
    w.room = mpt__cpu_sort_room(call->launch->operand[0].shape[axis], w.size);
    w.places = (mpt__cpu_rank *)call->workspace;
    mpt__cpu_axis_run(&w, call, 2, 0, axis, 60.0);
}

/* ==== Lines side by side ==== */

typedef struct {
    mpt__cpu_view view;
    int64_t offset, step, stride; /* of the first line; from line to line; along a line */
} mpt__cpu_lines;

/* Elements at .. at+n-1 of `lines` lines; n * lines <= MPT__BLOCK. */
static const mpt__real *mpt__cpu_lines_in(
    const mpt__cpu_lines *l, int64_t lines, int64_t at, int64_t n, mpt__real *block) {
    mpt__real rows[MPT__BLOCK];
    int64_t offset = l->offset + at * l->stride;
    if (lines == 1) return mpt__cpu_in(&l->view, offset, l->stride, block, n);
    for (int64_t i = 0; l->step == 1 && i < n; i++)
        mpt__cpu_get(&l->view, offset + i * l->stride, 1, block + i * lines, lines);
    if (l->step == 1) return block;
    const mpt__real *x = mpt__cpu_in(&l->view, offset, l->stride, rows, n);
    for (int64_t r = 1; x == rows && r < lines; r++)
        mpt__cpu_get(&l->view, offset + r * l->step, l->stride, rows + r * n, n);
    l->view.routines->transpose(block, lines, x, x == rows ? n : l->step, lines, n, false);
    return block;
}

/* Where to compute results that mpt__cpu_lines_put then stores. */
static mpt__real *mpt__cpu_lines_place(
    const mpt__cpu_lines *l, int64_t lines, int64_t at, mpt__real *block) {
    if (lines > 1) return block;
    return mpt__cpu_out(&l->view, l->offset + at * l->stride, l->stride, block);
}

static void mpt__cpu_lines_put(
    const mpt__cpu_lines *l, int64_t lines, int64_t at, int64_t n, const mpt__real *x) {
    mpt__real rows[MPT__BLOCK];
    int64_t offset = l->offset + at * l->stride;
    if (lines == 1) {
        mpt__cpu_put(&l->view, offset, l->stride, x, n);
        return;
    }
    for (int64_t i = 0; l->step == 1 && i < n; i++)
        mpt__cpu_put(&l->view, offset + i * l->stride, 1, x + i * lines, lines);
    if (l->step == 1) return;
    mpt__real *to = mpt__cpu_out(&l->view, offset, l->stride, rows);
    l->view.routines->transpose(to, to == rows ? n : l->step, x, lines, n, lines, false);
    for (int64_t r = 0; to == rows && r < lines; r++)
        mpt__cpu_put(&l->view, offset + r * l->step, l->stride, rows + r * n, n);
}

/* out = x - by or x by, with one number in `by` for each line. */
typedef enum { MPT__EACH_SUB, MPT__EACH_MUL } mpt__cpu_each;
static void mpt__cpu_lines_each(const mpt__routines *routines, mpt__cpu_each what, mpt__real *out,
    const mpt__real *x, const mpt__real *by, int64_t lines, int64_t n) {
    static const uint8_t scalar[] = {MPT__UNARY_ADD_SCALAR, MPT__UNARY_MUL_SCALAR};
    static const uint8_t binary[] = {MPT__BINARY_SUB, MPT__BINARY_MUL};
    if (lines == 1) {
        routines->unary[scalar[what]](out, x, n, what == MPT__EACH_SUB ? -by[0] : by[0], 0);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        routines->binary[binary[what]](out + i * lines, x + i * lines, by, lines, 0, 0);
}

/* The sums over lines: of one, fed block by block, or of some that are one block. */
static void mpt__cpu_lines_add(
    mpt__cpu_sum *sum, const mpt__real *x, int64_t lines, int64_t n, mpt__real *total) {
    mpt__binary_fn add = sum->routines->binary[MPT__BINARY_ADD];
    mpt__real lane[MPT__SUM_LANES * MPT__LINES];
    if (lines == 1) {
        mpt__cpu_sum_add(sum, x, n);
        *total = mpt__cpu_sum_total(sum);
        return;
    }
    memset(lane, 0, (size_t)(MPT__SUM_LANES * lines) * sizeof *lane);
    for (int64_t i = 0; i < n; i++) {
        mpt__real *to = lane + i % MPT__SUM_LANES * lines;
        add(to, to, x + i * lines, lines, 0, 0);
    }
    for (int64_t half = MPT__SUM_LANES / 2; half > 0; half /= 2)
        add(half == 1 ? total : lane, lane, lane + half * lines, half * lines, 0, 0);
}

/* The maxima of lines and the sums of exp(x - maximum) over them. The exponentials, or the
   differences, go to where the results of `to` are computed: to `block` and, where that is not one
   block, to nowhere. A NaN, and a line of nothing but -infinity, make the sum NaN. */
static void mpt__cpu_lines_sums(const mpt__cpu_lines *l, const mpt__cpu_lines *to, int64_t lines,
    int64_t count, bool differences, mpt__real *most, mpt__real *total, mpt__real *block) {
    const mpt__routines *routines = l->view.routines;
    mpt__real x[MPT__BLOCK];
    const mpt__real *from = x;
    mpt__cpu_sum sum;
    for (int64_t r = 0; r < lines; r++) most[r] = -mpt__real_infinity();
    for (int64_t at = 0; at < count; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, count - at);
        from = mpt__cpu_lines_in(l, lines, at, n, x);
        if (lines == 1) most[0] = routines->peak(from, n, most[0]) + 0; /* -0 + 0 = 0 */
        for (int64_t i = 0; lines > 1 && i < n; i++)
            routines->binary[MPT__BINARY_MAXIMUM](most, most, from + i * lines, lines, 0, 0);
    }
    mpt__cpu_sum_init(&sum, routines);
    for (int64_t at = 0; lines == 1 && at < count; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, count - at);
        mpt__real *out = mpt__cpu_lines_place(to, 1, at, block);
        if (count > MPT__BLOCK) from = mpt__cpu_lines_in(l, 1, at, n, x);
        routines->add_exp(sum.lane, out, from, n, most[0], differences);
        mpt__cpu_sum_count(&sum, n);
    }
    if (lines > 1) {
        mpt__real *e = differences ? x : block;
        mpt__cpu_lines_each(routines, MPT__EACH_SUB, block, from, most, lines, count);
        routines->unary[MPT__UNARY_EXP](e, block, count * lines, 0, 0);
        mpt__cpu_lines_add(&sum, e, lines, count, total);
    } else {
        *total = mpt__cpu_sum_total(&sum);
    }
}

/* ==== Softmax ==== */

static mpt__cpu_lines mpt__cpu_axis_lines(
    const mpt__cpu_axis_work *w, int k, const int64_t *offset) {
    mpt__cpu_lines l;
    l.view = w->walk[k].view;
    l.offset = offset[k];
    l.step = mpt__cpu_inner(&w->walk[k].loop);
    l.stride = w->stride[k];
    return l;
}

static void mpt__cpu_softmax_lines(MPT__LINE_TAKES) {
    const mpt__routines *routines = w->routines;
    mpt__cpu_lines from = mpt__cpu_axis_lines(w, 0, offset), to = mpt__cpu_axis_lines(w, 1, offset);
    mpt__real most[MPT__LINES], by[MPT__LINES], block[MPT__BLOCK];
    bool kept = w->n <= MPT__BLOCK || mpt__cpu_lines_place(&to, lines, 0, block) != block;
    mpt__cpu_lines_sums(&from, &to, lines, w->n, w->log, most, by, block);
    if (w->log) routines->unary[MPT__UNARY_LOG](by, by, lines, 0, 0);
    for (int64_t r = 0; !w->log && r < lines; r++) by[r] = 1 / by[r];
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->n - at);
        mpt__real *out = mpt__cpu_lines_place(&to, lines, at, block);
        if (!kept) {
            mpt__real unused[MPT__SUM_LANES] = {0};
            const mpt__real *x = mpt__cpu_lines_in(&from, 1, at, n, block);
            routines->add_exp(unused, block, x, n, most[0], w->log);
        }
        mpt__cpu_lines_each(
            routines, w->log ? MPT__EACH_SUB : MPT__EACH_MUL, out, out, by, lines, n);
        mpt__cpu_lines_put(&to, lines, at, n, out);
    }
}

/* softmax: dx = y (dy - sum(dy y)); log_softmax: dx = dy - exp(y) sum(dy) */
static void mpt__cpu_softmax_backward_lines(MPT__LINE_TAKES) {
    const mpt__routines *routines = w->routines;
    mpt__cpu_lines y = mpt__cpu_axis_lines(w, 0, offset), dy = mpt__cpu_axis_lines(w, 1, offset);
    mpt__cpu_lines dx = mpt__cpu_axis_lines(w, 2, offset);
    mpt__real a[MPT__BLOCK], b[MPT__BLOCK], c[MPT__BLOCK], total[MPT__LINES];
    mpt__cpu_sum sum;
    mpt__cpu_sum_init(&sum, routines);
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->n - at);
        const mpt__real *addend = mpt__cpu_lines_in(&dy, lines, at, n, b);
        if (!w->log) {
            const mpt__real *by = mpt__cpu_lines_in(&y, lines, at, n, a);
            routines->binary[MPT__BINARY_MUL](c, addend, by, n * lines, 0, 0);
            addend = c;
        }
        mpt__cpu_lines_add(&sum, addend, lines, n, total);
    }
    for (int64_t at = 0; at < w->n; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->n - at);
        const mpt__real *value = mpt__cpu_lines_in(&y, lines, at, n, a);
        const mpt__real *slope = mpt__cpu_lines_in(&dy, lines, at, n, b);
        mpt__real *out = mpt__cpu_lines_place(&dx, lines, at, c);
        if (w->log) {
            routines->unary[MPT__UNARY_EXP](a, value, n * lines, 0, 0);
            mpt__cpu_lines_each(routines, MPT__EACH_MUL, a, a, total, lines, n);
            routines->binary[MPT__BINARY_SUB](out, slope, a, n * lines, 0, 0);
        } else {
            mpt__cpu_lines_each(routines, MPT__EACH_SUB, b, slope, total, lines, n);
            routines->binary[MPT__BINARY_MUL](out, value, b, n * lines, 0, 0);
        }
        mpt__cpu_lines_put(&dx, lines, at, n, out);
    }
}

/* Rows that lie dense, where a level has routines for them. */
static void mpt__cpu_softmax_rows(MPT__LINE_TAKES) {
    mpt__real *row[3] = {NULL, NULL, NULL};
    for (int64_t r = 0; r < lines; r++) {
        for (int k = 0; k < w->operands; k++) {
            int64_t at = offset[k] + r * mpt__cpu_inner(&w->walk[k].loop);
            row[k] = (mpt__real *)w->walk[k].view.data + at;
        }
        if (w->operands == 2)
            w->routines->softmax(row[1], row[0], w->n, w->log);
        else
            w->routines->softmax_backward(row[2], row[0], row[1], w->n, w->log);
    }
}

static void mpt__cpu_softmax_run(const mpt__cpu_call *call, int operands, double ns) {
    const mpt__operand *o = call->launch->operand;
    const int axis = (int)call->launch->index[0];
    mpt__cpu_axis_work w;
    w.side_by_side = true;
    w.log = call->launch->function == MPT__FN_LOG_SOFTMAX;
    w.line = operands == 2 ? mpt__cpu_softmax_lines : mpt__cpu_softmax_backward_lines;
    w.dense = call->routines->softmax && o[0].shape[axis] > MPT__SHORT_LINE &&
        o[0].shape[axis] <= MPT__SUM_CHUNK;
    for (int k = 0; k < operands; k++)
        w.dense = w.dense && mpt__cpu_is_real(o[k].dtype) && o[k].stride[axis] == 1 &&
            o[k].access != MPT__ACCUMULATE;
    if (w.dense) w.line = mpt__cpu_softmax_rows;
    mpt__cpu_axis_run(&w, call, operands, 0, axis, ns);
}
static void mpt__cpu_softmax(const mpt__cpu_call *call) { mpt__cpu_softmax_run(call, 2, 25.0); }
static void mpt__cpu_softmax_backward(const mpt__cpu_call *call) {
    mpt__cpu_softmax_run(call, 3, 15.0);
}

/* ==== Norms: the routines of their rows ==== */

#ifdef MPT__HAS_NORMS
static MPT__INLINE mpt__real *mpt__cpu_norm_row(const mpt__norm_block *b, int part, int64_t r) {
    return !b->data[part] ? NULL : (mpt__real *)(void *)(b->data[part] + r * b->step[part]);
}

static MPT__INLINE mpt__real mpt__cpu_norm_g(const mpt__norm_block *b, int64_t r, int64_t i) {
    const mpt__real g = mpt__cpu_norm_row(b, MPT__PART_DY, r)[i];
    return b->relu && mpt__cpu_norm_row(b, MPT__PART_MORE, r)[i] <= 0 ? 0 : g;
}

static MPT__INLINE const mpt__real *mpt__norm_from(const mpt__real *p, int64_t i) {
    return p ? p + i : NULL;
}
/* The numbers of element i of row r; a total has one mean. */
static void mpt__norm_begin_at(
    mpt__norm_block *one, const mpt__norm_block *b, int64_t r, int64_t i) {
    const int64_t of = b->mode == MPT__NORM_COLUMNS ? i : r, c = b->mode ? i : r;
    one->mean = mpt__norm_from(b->mean, of), one->rstd = mpt__norm_from(b->rstd, of);
    one->shift = mpt__norm_from(b->shift, of), one->slope = mpt__norm_from(b->slope, of);
    one->weight = mpt__norm_from(b->weight, c), one->bias = mpt__norm_from(b->bias, c);
    for (int k = 0; k < 2; k++) one->sum[k] = b->sum[k] ? b->sum[k] + c : NULL;
}

/* Lanes in halves; then they begin anew. */
static mpt__real mpt__cpu_fold(mpt__real lane[MPT__NORM_LANES]) {
    for (int half = MPT__NORM_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    const mpt__real total = lane[0];
    memset(lane, 0, MPT__NORM_LANES * sizeof *lane);
    return total;
}

static void mpt__ref_norm_sums(mpt__norm_block *b) {
    const bool rows = b->mode == MPT__NORM_ROWS, slopes = b->data[MPT__PART_DY] != NULL;
    mpt__real lane[2 * MPT__NORM_LANES];
    memset(lane, 0, sizeof lane);
    if (b->lane) memcpy(lane, b->lane, sizeof lane);
    for (int64_t r = 0; r < b->rows; r++) {
        const mpt__real *x = mpt__cpu_norm_row(b, MPT__PART_X, r), mean = b->mean[rows ? r : 0];
        for (int64_t i = 0; i < b->n; i++) {
            mpt__real d = x[i] - mean, g = slopes ? mpt__cpu_norm_g(b, r, i) : d;
            if (slopes && !rows) g *= b->weight[i];
            lane[i % MPT__NORM_LANES] += g;
            lane[MPT__NORM_LANES + i % MPT__NORM_LANES] += g * d;
        }
        if (b->lane) memcpy(b->lane, lane, sizeof lane);
        if (!rows && r + 1 < b->rows) continue;
        for (int k = 0; k < 2; k++) {
            b->total[k] = mpt__cpu_fold(lane + k * MPT__NORM_LANES);
            if (rows && b->sum[k]) b->sum[k][r] += b->total[k];
        }
    }
}

static void mpt__ref_norm(mpt__norm_block *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        const mpt__real *x = mpt__cpu_norm_row(b, MPT__PART_X, r);
        const mpt__real *more = mpt__cpu_norm_row(b, MPT__PART_MORE, r);
        mpt__real *y = mpt__cpu_norm_row(b, MPT__PART_OUT, r);
        for (int64_t i = 0; i < b->n; i++) {
            const int64_t of = b->mode == MPT__NORM_COLUMNS ? i : r, c = b->mode ? i : r;
            mpt__real v = (x[i] - b->mean[of]) * b->rstd[of];
            if (b->mode == MPT__NORM_LINES) v *= b->weight[i];
            if (b->bias) v += b->bias[c];
            if (more) v += more[i];
            y[i] = b->relu && v <= 0 ? 0 : v;
        }
    }
}

static void mpt__ref_norm_slope(mpt__norm_block *b) {
    const bool lines = b->mode == MPT__NORM_LINES;
    for (int64_t r = 0; r < b->rows; r++) {
        const mpt__real *x = mpt__cpu_norm_row(b, MPT__PART_X, r);
        const mpt__real *more = b->relu ? NULL : mpt__cpu_norm_row(b, MPT__PART_MORE, r);
        mpt__real *dx = mpt__cpu_norm_row(b, MPT__PART_OUT, r);
        mpt__real *rest = mpt__cpu_norm_row(b, MPT__PART_REST, r);
        for (int64_t i = 0; i < b->n; i++) {
            const int64_t of = b->mode == MPT__NORM_COLUMNS ? i : r, c = b->mode ? i : r;
            const mpt__real g = mpt__cpu_norm_g(b, r, i), rstd = lines ? b->rstd[r] : 1;
            const mpt__real normal = (x[i] - b->mean[of]) * rstd;
            if (lines && b->sum[0]) b->sum[0][i] += g * normal;
            if (lines && b->sum[1]) b->sum[1][i] += g;
            if (rest) rest[i] = g;
            if (!dx) continue;
            dx[i] = (g * b->weight[c] - b->shift[of] - normal * b->slope[of]) * rstd;
            if (more) dx[i] += more[i];
        }
    }
}

static void mpt__ref_norm_columns(mpt__norm_block *b) {
    for (int64_t r = 0; r < b->rows; r++) {
        const mpt__real *x = mpt__cpu_norm_row(b, MPT__PART_X, r);
        for (int64_t i = 0; i < b->n; i++) {
            const mpt__real d = x[i] - b->mean[i];
            const mpt__real g = b->data[MPT__PART_DY] ? mpt__cpu_norm_g(b, r, i) : d;
            b->sum[0][i] += g;
            b->sum[1][i] += g * d;
        }
    }
}
#define MPT__REF_NORM_WORDS \
    mpt__ref_norm_sums, mpt__ref_norm, mpt__ref_norm_slope, mpt__ref_norm_columns, NULL, NULL
#else
#define MPT__REF_NORM_WORDS NULL, NULL, NULL, NULL, NULL, NULL
#endif

/* ==== GEMM ==== */

/* A chunk is a tile of the output; K is walked in panels, converted once per tile. */
#define MPT__GEMM_M (MPT__BLOCK / 32)
#define MPT__GEMM_N 64
#define MPT__GEMM_K (MPT__BLOCK / 16)

typedef struct {
    const mpt__launch *launch;
    mpt__cpu_view view[4]; /* a, b, bias, out */
    mpt__real alpha;
    int64_t m, n, k, tiles_m, tiles_n;
    int64_t row_stride[4];    /* between neighbours in a row */
    mpt__unary_fn activation; /* NULL: none */
} mpt__cpu_gemm_work;

/* Rounds values of one dtype to another, the compute dtype. */
static void mpt__cpu_round(mpt__real *x, int64_t n, int from, int compute) {
    if (from == compute) return;
    for (int64_t i = 0; compute == MPT_F16 && i < n; i++)
        x[i] = (mpt__real)mpt__f16_to_f32(mpt__f32_to_f16((float)x[i]));
    for (int64_t i = 0; compute == MPT_BF16 && i < n; i++)
        x[i] = (mpt__real)mpt__bf16_to_f32(mpt__f32_to_bf16((float)x[i]));
}

/* A run of an input, rounded to the compute dtype. */
static void mpt__cpu_gemm_get(
    const mpt__cpu_gemm_work *w, int operand, int64_t offset, mpt__real *x, int64_t n) {
    const mpt__cpu_view *view = &w->view[operand];
    mpt__cpu_get(view, offset, w->row_stride[operand], x, n);
    mpt__cpu_round(x, n, view->dtype, w->launch->compute_dtype);
}

/* Where element [batch, row, column] of an operand lies. */
static int64_t mpt__cpu_gemm_at(
    const mpt__cpu_gemm_work *w, int operand, int64_t batch, int64_t row, int64_t column) {
    const mpt__operand *o = &w->launch->operand[operand], *out = &w->launch->operand[3];
    int64_t offset = row * o->stride[out->rank - 2] + column * o->stride[out->rank - 1];
    for (int d = out->rank - 3; d >= 0; d--) {
        offset += batch % out->shape[d] * o->stride[d];
        batch /= out->shape[d];
    }
    return offset;
}

/* sum += a[rows, k] b[k, columns], k ascending. */
static void mpt__cpu_gemm_panel(mpt__real sum[MPT__GEMM_M][MPT__GEMM_N],
    mpt__real a[MPT__GEMM_M][MPT__GEMM_K], mpt__real b[MPT__GEMM_K][MPT__GEMM_N], int64_t rows,
    int64_t columns, int64_t k) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t p = 0; p < k; p++) {
            const mpt__real factor = a[i][p];
            for (int64_t j = 0; j < columns; j++) sum[i][j] += factor * b[p][j];
        }
}

static void mpt__cpu_gemm_tile(void *work, int64_t tile, int thread) {
    MPT__TASK(mpt__cpu_gemm_work, w);
    mpt__real sum[MPT__GEMM_M][MPT__GEMM_N], a[MPT__GEMM_M][MPT__GEMM_K];
    mpt__real b[MPT__GEMM_K][MPT__GEMM_N], bias[MPT__GEMM_N];
    int64_t n0 = tile % w->tiles_n * MPT__GEMM_N, m0 = tile / w->tiles_n % w->tiles_m * MPT__GEMM_M;
    int64_t batch = tile / (w->tiles_n * w->tiles_m);
    int64_t rows = mpt__cpu_min(MPT__GEMM_M, w->m - m0);
    int64_t columns = mpt__cpu_min(MPT__GEMM_N, w->n - n0);
    memset(sum, 0, sizeof sum);
    for (int64_t k0 = 0; k0 < w->k; k0 += MPT__GEMM_K) {
        int64_t k = mpt__cpu_min(MPT__GEMM_K, w->k - k0);
        for (int64_t i = 0; i < rows; i++)
            mpt__cpu_gemm_get(w, 0, mpt__cpu_gemm_at(w, 0, batch, m0 + i, k0), a[i], k);
        for (int64_t p = 0; p < k; p++)
            mpt__cpu_gemm_get(w, 1, mpt__cpu_gemm_at(w, 1, batch, k0 + p, n0), b[p], columns);
        mpt__cpu_gemm_panel(sum, a, b, rows, columns, k);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) sum[i][j] *= w->alpha;
        if (w->view[2].data) {
            mpt__cpu_gemm_get(w, 2, mpt__cpu_gemm_at(w, 2, batch, m0 + i, n0), bias, columns);
            for (int64_t j = 0; j < columns; j++) sum[i][j] += bias[j];
        }
        if (w->activation) w->activation(sum[i], sum[i], columns, 0, 0);
        mpt__cpu_put_block(&w->view[3], mpt__cpu_gemm_at(w, 3, batch, m0 + i, n0), w->row_stride[3],
            sum[i], columns);
    }
}

static void mpt__cpu_gemm(const mpt__cpu_call *call) {
    /* Indexed by mpt_activation. */
    static const uint8_t activation[] = {0, MPT__UNARY_RELU, MPT__UNARY_GELU, MPT__UNARY_GELU_TANH,
        MPT__UNARY_TANH, MPT__UNARY_SIGMOID};
    const mpt__launch *launch = call->launch;
    const mpt__operand *out = &launch->operand[3];
    mpt__cpu_gemm_work w;
    w.launch = launch;
    for (int x = 0; x < 4; x++) {
        w.view[x] = mpt__cpu_view_of(call, x);
        w.row_stride[x] = launch->operand[x].stride[out->rank - 1];
    }
    w.alpha = (mpt__real)launch->imm[0];
    w.m = out->shape[out->rank - 2];
    w.n = out->shape[out->rank - 1];
    w.k = launch->operand[0].shape[out->rank - 1];
    w.tiles_m = mpt__cpu_chunks(w.m, MPT__GEMM_M);
    w.tiles_n = mpt__cpu_chunks(w.n, MPT__GEMM_N);
    w.activation = NULL;
    if (launch->activation != MPT_ACTIVATION_NONE)
        w.activation = call->routines->unary[activation[launch->activation]];
    int64_t batches = 1;
    for (int d = 0; d < out->rank - 2; d++) batches *= out->shape[d];
    /* About 2 multiplications and additions per nanosecond, and 2 ns for each output. */
    double cost = (double)batches * (double)w.m * (double)w.n * ((double)w.k * 0.5 + 2);
    mpt__parallel(
        call->pool, batches * w.tiles_m * w.tiles_n, (int64_t)cost, mpt__cpu_gemm_tile, &w);
}

#endif
