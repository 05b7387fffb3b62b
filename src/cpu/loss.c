/* ----
 * cpu/loss.c: the kernels of losses.
 * ---- */
#ifndef MPT__CPU_LOSS_INCLUDED
#define MPT__CPU_LOSS_INCLUDED

#include "cpu/rows.c"

/* ==== Losses ==== */

/* What the kernels of both losses share. Absent operands have no data. */
typedef struct {
    const mpt__cpu_call *call;
    mpt__cpu_view x, target, weight, divisor, gradient, log_sum, out;
    int64_t x_stride[2], out_stride[2], log_sum_stride[2]; /* log_sum: maximum, and the rest */
    int64_t target_stride, weight_stride, gradient_stride;
    int64_t rows, classes;
    mpt__real smoothing, weight_sum;
    mpt__real *row_loss, *row_weight; /* [rows] */
    bool from_logits;
} mpt__cpu_loss_work;

/* An operand of rank 1 or 2, or an absent one; returns its first stride. */
static int64_t mpt__cpu_loss_operand(
    const mpt__cpu_call *call, int operand, mpt__cpu_view *view, int64_t stride[2]) {
    const mpt__operand *o = &call->launch->operand[operand];
    bool present = call->data[operand] && o->rank > 0;
    int64_t first = present ? o->stride[0] : 0;
    *view = mpt__cpu_view_of(call, operand);
    if (stride) stride[0] = first, stride[1] = present ? o->stride[1] : 0;
    return first;
}

/* The class of a sample, or -1 where it is ignored or bad. */
static int64_t mpt__cpu_target(const mpt__cpu_loss_work *w, int64_t row) {
    int64_t t = mpt__cpu_get_integer(&w->target, row * w->target_stride);
    return t == w->call->launch->index[0] || t < 0 || t >= w->classes ? -1 : t;
}

static mpt__real mpt__cpu_class_weight(const mpt__cpu_loss_work *w, int64_t c) {
    return w->weight.data ? mpt__cpu_get_one(&w->weight, c * w->weight_stride) : 1;
}

/* Adds up, over the classes, weight (log_sum - x), log_sum relative to `most`; of a NULL x, the
   weights. */
static mpt__real mpt__cpu_weighted_sum(const mpt__cpu_loss_work *w, const mpt__cpu_view *view,
    int64_t offset, mpt__real most, mpt__real log_sum) {
    const mpt__routines *routines = w->call->routines;
    mpt__real x[MPT__BLOCK], weight[MPT__BLOCK];
    mpt__cpu_sum sum;
    mpt__cpu_sum_init(&sum, routines);
    for (int64_t at = 0; at < w->classes; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->classes - at);
        const mpt__real *by = weight, *addend = x;
        if (w->weight.data)
            by = mpt__cpu_in(&w->weight, at * w->weight_stride, w->weight_stride, weight, n);
        if (view) {
            mpt__cpu_get(view, offset + at * w->x_stride[1], w->x_stride[1], x, n);
            for (int64_t i = 0; i < n; i++) x[i] = log_sum - (x[i] - most);
            if (w->weight.data) routines->binary[MPT__BINARY_MUL](x, x, by, n, 0, 0);
        } else {
            addend = by;
        }
        mpt__cpu_sum_add(&sum, addend, n);
    }
    return mpt__cpu_sum_total(&sum);
}

static mpt__cpu_lines mpt__cpu_loss_lines(
    const mpt__cpu_view *view, const int64_t stride[2], int64_t row) {
    mpt__cpu_lines l;
    l.view = *view;
    l.offset = row * stride[0];
    l.step = stride[0];
    l.stride = stride[1];
    return l;
}

/* Loss and weight of a sample. From logits: (1 - e) w (lse - x[t]) + e / C sum_c w_c (lse - x_c),
   the maximum kept apart so that large logits lose no digits. */
static void mpt__cpu_loss_row(
    const mpt__cpu_loss_work *w, int64_t row, mpt__real most, mpt__real log_sum) {
    int64_t t = mpt__cpu_target(w, row), offset = row * w->x_stride[0];
    mpt__real weight = 0, loss = 0;
    if (w->from_logits) {
        int64_t to = row * w->log_sum_stride[0];
        mpt__cpu_put_one(&w->log_sum, to, most);
        mpt__cpu_put_one(&w->log_sum, to + w->log_sum_stride[1], log_sum);
    }
    if (t >= 0) {
        mpt__real x = mpt__cpu_get_one(&w->x, offset + t * w->x_stride[1]);
        weight = mpt__cpu_class_weight(w, t);
        loss = weight * (log_sum - (x - most));
        if (w->smoothing != 0) {
            mpt__real all = mpt__cpu_weighted_sum(w, &w->x, offset, most, log_sum);
            loss = (1 - w->smoothing) * loss + w->smoothing / (mpt__real)w->classes * all;
        }
    }
    w->row_loss[row] = loss;
    w->row_weight[row] = weight;
}

static void mpt__cpu_loss_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_loss_work, w);
    int64_t rows = mpt__cpu_chunk_rows(w->classes), row = chunk * rows;
    int64_t end = mpt__cpu_min(row + rows, w->rows);
    mpt__real most[MPT__LINES], sum[MPT__LINES], e[MPT__BLOCK];
    mpt__cpu_lines nowhere;
    memset(&nowhere, 0, sizeof nowhere);
    most[0] = sum[0] = 0; /* of log-probabilities */
    for (int64_t lines; row < end; row += lines) {
        lines = w->from_logits ? mpt__cpu_side_by_side(w->classes, end - row) : 1;
        if (w->from_logits) {
            mpt__cpu_lines from = mpt__cpu_loss_lines(&w->x, w->x_stride, row);
            mpt__cpu_lines_sums(&from, &nowhere, lines, w->classes, false, most, sum, e);
            w->call->routines->unary[MPT__UNARY_LOG](sum, sum, lines, 0, 0);
        }
        for (int64_t r = 0; r < lines; r++) mpt__cpu_loss_row(w, row + r, most[r], sum[r]);
    }
}

/* Notes the first bad target in the error word, unless an error stands there. */
static void mpt__cpu_check_targets(const mpt__cpu_loss_work *w) {
    mpt__scalar *scalars = w->call->scalars;
    for (int64_t row = 0; row < w->rows && scalars[MPT__SLOT_ERROR].i == 0; row++) {
        int64_t t = mpt__cpu_get_integer(&w->target, row * w->target_stride);
        if (t != w->call->launch->index[0] && (t < 0 || t >= w->classes)) {
            int64_t rows = w->call->launch->index[1];
            mpt__scalar value;
            value.i = t;
            mpt__cpu_raise(w->call, MPT_ERROR_INDEX, rows > 0 ? row / rows : row,
                rows > 0 ? row % rows : -1, value, w->classes);
        }
    }
}

/* Operands as NLL has them; those of CROSS_ENTROPY begin alike. */
static void mpt__cpu_loss(const mpt__cpu_call *call, bool from_logits) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_view divisor = mpt__cpu_view_of(call, 4);
    mpt__cpu_loss_work w;
    memset(&w, 0, sizeof w);
    w.call = call;
    w.rows = launch->operand[0].shape[0];
    w.classes = launch->operand[0].shape[1];
    mpt__cpu_loss_operand(call, 0, &w.x, w.x_stride);
    w.target_stride = mpt__cpu_loss_operand(call, 1, &w.target, NULL);
    w.weight_stride = mpt__cpu_loss_operand(call, 2, &w.weight, NULL);
    int64_t out_stride = mpt__cpu_loss_operand(call, 3, &w.out, NULL);
    w.row_loss = (mpt__real *)call->workspace;
    w.row_weight = w.rows > 0 ? w.row_loss + w.rows : NULL; /* no rows: no workspace */
    w.from_logits = from_logits;
    if (from_logits) {
        mpt__cpu_loss_operand(call, 5, &w.log_sum, w.log_sum_stride);
        w.smoothing = (mpt__real)launch->imm[0];
    }
    mpt__cpu_check_targets(&w);
    mpt__parallel(call->pool, mpt__cpu_chunks(w.rows, mpt__cpu_chunk_rows(w.classes)),
        w.rows * (30 + mpt__cpu_cost(call, w.classes, from_logits ? 15.0 : 0.0)),
        mpt__cpu_loss_chunk, &w);

    if (launch->reduction == MPT_NONE) {
        for (int64_t at = 0; at < w.rows; at += MPT__BLOCK)
            mpt__cpu_put_block(&w.out, at * out_stride, out_stride, w.row_loss + at,
                mpt__cpu_min(MPT__BLOCK, w.rows - at));
        mpt__cpu_put_one(&divisor, 0, 1);
        return;
    }
    mpt__cpu_sum loss, weight;
    mpt__cpu_sum_init(&loss, call->routines);
    mpt__cpu_sum_init(&weight, call->routines);
    mpt__cpu_sum_add(&loss, w.row_loss, w.rows);
    mpt__cpu_sum_add(&weight, w.row_weight, w.rows);
    mpt__real by = launch->reduction == MPT_MEAN ? mpt__cpu_sum_total(&weight) : 1;
    mpt__cpu_put_one(&w.out, 0, mpt__cpu_sum_total(&loss) / by);
    mpt__cpu_put_one(&divisor, 0, by);
}

static int64_t mpt__cpu_loss_workspace(const mpt__launch *launch, int threads) {
    (void)threads;
    return launch->operand[0].shape[0] * 2 * (int64_t)sizeof(mpt__real);
}

static void mpt__cpu_nll(const mpt__cpu_call *call) { mpt__cpu_loss(call, false); }
static void mpt__cpu_cross_entropy(const mpt__cpu_call *call) { mpt__cpu_loss(call, true); }

/* A sample's part of the gradient: dloss, divided where the loss was a mean. */
static mpt__real mpt__cpu_row_gradient(const mpt__cpu_loss_work *w, int64_t row) {
    uint8_t reduction = w->call->launch->reduction;
    mpt__real g =
        mpt__cpu_get_one(&w->gradient, reduction == MPT_NONE ? row * w->gradient_stride : 0);
    return reduction == MPT_MEAN ? g / mpt__cpu_get_one(&w->divisor, 0) : g;
}

/* Rows under way together: their classes, and their factors (1 - e) w_t and g. */
typedef struct {
    int64_t row, lines, target[MPT__LINES];
    mpt__real scale[MPT__LINES], g[MPT__LINES], most[MPT__LINES], log_sum[MPT__LINES];
} mpt__cpu_loss_rows;

/* dx = (1 - e) w_t p + e / C (p sum(w) - w) with p = softmax(x), for classes at .. at+n-1. */
static void mpt__cpu_logit_slopes(const mpt__cpu_loss_work *w, const mpt__cpu_loss_rows *rows,
    int64_t at, int64_t n, mpt__real *dx) {
    const mpt__routines *routines = w->call->routines;
    const int64_t lines = rows->lines;
    mpt__real p[MPT__BLOCK], smooth = w->smoothing / (mpt__real)w->classes;
    mpt__cpu_lines from = mpt__cpu_loss_lines(&w->x, w->x_stride, rows->row);
    const mpt__real *x = mpt__cpu_lines_in(&from, lines, at, n, p);
    if (w->log_sum.data) {
        mpt__cpu_lines_each(routines, MPT__EACH_SUB, p, x, rows->most, lines, n);
        mpt__cpu_lines_each(routines, MPT__EACH_SUB, p, p, rows->log_sum, lines, n);
        x = p;
    }
    routines->unary[MPT__UNARY_EXP](p, x, n * lines, 0, 0);
    mpt__cpu_lines_each(routines, MPT__EACH_MUL, dx, p, rows->scale, lines, n);
    for (int64_t i = 0; smooth != 0 && i < n; i++) {
        mpt__real weight = mpt__cpu_class_weight(w, at + i);
        for (int64_t k = i * lines; k < (i + 1) * lines; k++)
            dx[k] += smooth * (p[k] * w->weight_sum - weight);
    }
}

/* Ignored samples get 0; an infinite g leaves classes 0 whose factor is 0. */
static void mpt__cpu_odd_row(const mpt__cpu_loss_rows *rows, int64_t r, int64_t n, mpt__real *dx) {
    for (int64_t i = r; i < n * rows->lines; i += rows->lines)
        dx[i] = rows->target[r] < 0 || dx[i] == 0 ? 0 : rows->g[r] * dx[i];
}

/* The gradient of some rows. NLL: -g w at the target. From logits: g ((1 - e) w_t (p - onehot) + e
   / C (p sum(w) - w)). */
static void mpt__cpu_loss_backward_rows(const mpt__cpu_loss_work *w, mpt__cpu_loss_rows *rows) {
    const int64_t lines = rows->lines;
    mpt__real dx[MPT__BLOCK], by[MPT__LINES];
    mpt__cpu_lines to = mpt__cpu_loss_lines(&w->out, w->out_stride, rows->row);
    for (int64_t r = 0; r < lines; r++) {
        int64_t t = rows->target[r] = mpt__cpu_target(w, rows->row + r);
        int64_t sums = (rows->row + r) * w->log_sum_stride[0];
        rows->scale[r] = t < 0 ? 0 : (1 - w->smoothing) * mpt__cpu_class_weight(w, t);
        rows->g[r] = t < 0 ? 0 : mpt__cpu_row_gradient(w, rows->row + r);
        if (!w->log_sum.data) continue;
        rows->most[r] = mpt__cpu_get_one(&w->log_sum, sums);
        rows->log_sum[r] = mpt__cpu_get_one(&w->log_sum, sums + w->log_sum_stride[1]);
    }
    for (int64_t at = 0; at < w->classes; at += MPT__BLOCK) {
        int64_t n = mpt__cpu_min(MPT__BLOCK, w->classes - at);
        if (w->from_logits)
            mpt__cpu_logit_slopes(w, rows, at, n, dx);
        else
            memset(dx, 0, (size_t)n * sizeof *dx);
        for (int64_t r = 0; r < lines; r++) {
            int64_t t = rows->target[r] - at;
            bool odd = rows->target[r] < 0 || !mpt__real_is_finite(rows->g[r]);
            if (t >= 0 && t < n) dx[t * lines + r] -= rows->scale[r];
            if (odd) mpt__cpu_odd_row(rows, r, n, dx);
            by[r] = odd ? 1 : rows->g[r];
            if (!w->from_logits && t >= 0 && t < n) dx[t] *= by[0];
        }
        if (w->from_logits)
            mpt__cpu_lines_each(w->call->routines, MPT__EACH_MUL, dx, dx, by, lines, n);
        mpt__cpu_lines_put(&to, lines, at, n, dx);
    }
}

static void mpt__cpu_loss_backward_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_loss_work, w);
    int64_t step = mpt__cpu_chunk_rows(w->classes), end = mpt__cpu_min((chunk + 1) * step, w->rows);
    mpt__cpu_loss_rows rows;
    for (rows.row = chunk * step; rows.row < end; rows.row += rows.lines) {
        rows.lines = w->from_logits ? mpt__cpu_side_by_side(w->classes, end - rows.row) : 1;
        mpt__cpu_loss_backward_rows(w, &rows);
    }
}

/* `first`: the targets; weights, divisor and dloss follow them. */
static void mpt__cpu_loss_backward(const mpt__cpu_call *call, bool from_logits) {
    const int first = from_logits ? 1 : 0, out = from_logits ? 6 : 4;
    mpt__cpu_loss_work w;
    memset(&w, 0, sizeof w);
    w.call = call;
    w.from_logits = from_logits;
    w.rows = call->launch->operand[out].shape[0];
    w.classes = call->launch->operand[out].shape[1];
    w.target_stride = mpt__cpu_loss_operand(call, first, &w.target, NULL);
    w.weight_stride = mpt__cpu_loss_operand(call, first + 1, &w.weight, NULL);
    w.divisor = mpt__cpu_view_of(call, first + 2);
    w.gradient_stride = mpt__cpu_loss_operand(call, first + 3, &w.gradient, NULL);
    mpt__cpu_loss_operand(call, out, &w.out, w.out_stride);
    if (from_logits) {
        mpt__cpu_loss_operand(call, 0, &w.x, w.x_stride);
        mpt__cpu_loss_operand(call, 5, &w.log_sum, w.log_sum_stride);
        w.smoothing = (mpt__real)call->launch->imm[0];
    }
    w.weight_sum = w.weight.data ? mpt__cpu_weighted_sum(&w, NULL, 0, 0, 0) : (mpt__real)w.classes;
    mpt__parallel(call->pool, mpt__cpu_chunks(w.rows, mpt__cpu_chunk_rows(w.classes)),
        w.rows * (30 + mpt__cpu_cost(call, w.classes, from_logits ? 12.0 : 2.0)),
        mpt__cpu_loss_backward_chunk, &w);
}

static void mpt__cpu_nll_backward(const mpt__cpu_call *call) {
    mpt__cpu_loss_backward(call, false);
}
static void mpt__cpu_cross_entropy_backward(const mpt__cpu_call *call) {
    mpt__cpu_loss_backward(call, true);
}

/* ==== Pair losses ==== */

/* n elements' values (by = -1), or slopes by operand `by`. */
#define MPT__PAIR_TAKES \
    const mpt__routines *routines, const mpt__real *const in[4], int64_t n, int by, mpt__real p, \
        mpt__real r, mpt__real *out
#define MPT__PAIR_GIVES routines, in, n, by, p, r, out
typedef void (*mpt__cpu_pair_fn)(MPT__PAIR_TAKES);

/* What a row of MPT__PAIRS computes of one element: the arguments of its functions, or `by`. */
enum { MPT__PAIR_OF1 = 4, MPT__PAIR_OF2 = 5 };
#define MPT__PAIR_ELEMENT \
    mpt__real a, mpt__real b, mpt__real c, mpt__real d, mpt__real e, mpt__real l, mpt__real p, \
        mpt__real r, int by
#define MPT__UNARY_NONE (-1)

/* Puts a function's argument into `to`, then its value. */
static MPT__FORCE_INLINE void mpt__cpu_pair_word(const mpt__routines *routines,
    const mpt__real *const in[4], int64_t n, int word, int what, const mpt__real *first,
    mpt__real *to, mpt__real of(MPT__PAIR_ELEMENT), mpt__real p, mpt__real r) {
    if (word < 0) return;
    for (int64_t i = 0; i < n; i++)
        to[i] = of(in[0][i], in[1][i], in[2][i], 0, first[i], 0, p, r, what);
    routines->unary[word](to, to, n, 0, 0);
}
static MPT__FORCE_INLINE void mpt__cpu_pair(
    MPT__PAIR_TAKES, int word1, int word2, mpt__real of(MPT__PAIR_ELEMENT)) {
    mpt__real first[MPT__BLOCK] = {0}, second[MPT__BLOCK] = {0};
    mpt__cpu_pair_word(routines, in, n, word1, MPT__PAIR_OF1, first, first, of, p, r);
    mpt__cpu_pair_word(routines, in, n, word2, MPT__PAIR_OF2, first, second, of, p, r);
    for (int64_t i = 0; i < n; i++)
        out[i] = of(in[0][i], in[1][i], in[2][i], in[3][i], first[i], second[i], p, r, by);
}
#define MPT__PAIR_WHICH(of1, of2, value, da, db, dc) \
    (by < 0                ? value \
     : by == 0             ? da \
     : by == 1             ? db \
     : by < MPT__PAIR_OF1  ? dc \
     : by == MPT__PAIR_OF1 ? of1 \
                           : of2)
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) \
    static MPT__FORCE_INLINE mpt__real mpt__cpu_pair_of_##id(MPT__PAIR_ELEMENT) { \
        const mpt__real s = a - b; \
        (void)c, (void)d, (void)e, (void)l, (void)p, (void)r, (void)s; \
        return MPT__PAIR_WHICH(of1, of2, value, da, db, dc); \
    }
MPT__PAIRS(MPT__ROW)
#undef MPT__ROW
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) \
    static void mpt__cpu_pair_##id(MPT__PAIR_TAKES) { \
        mpt__cpu_pair(MPT__PAIR_GIVES, MPT__UNARY_##word1, MPT__UNARY_##word2, \
                      mpt__cpu_pair_of_##id); \
    }
MPT__PAIRS(MPT__ROW)
#undef MPT__ROW

#ifndef MPTRAIN_NO_SIMD
/* MSE's in vectors: the same operations. */
static void mpt__cpu_pair_squares(MPT__PAIR_TAKES) {
    (void)p, (void)r;
    routines->binary[MPT__BINARY_SUB](out, in[0], in[1], n, 0, 0);
    if (by < 0)
        routines->binary[MPT__BINARY_MUL](out, out, out, n, 0, 0);
    else
        routines->unary[MPT__UNARY_MUL_SCALAR](out, out, n, by == 0 ? 2 : -2, 0);
}
#endif

/* The functions, and the nanoseconds of an element. */
static const struct {
    mpt__cpu_pair_fn run;
    uint8_t ns;
} mpt__cpu_pairs[] = {
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) \
    {mpt__cpu_pair_##id, \
     5 + (MPT__UNARY_##word1 >= 0 ? 12 : 0) + (MPT__UNARY_##word2 >= 0 ? 12 : 0)},
    MPT__PAIRS(MPT__ROW)
#undef MPT__ROW
};

/* Operands 0 to 3, of which absent ones are 1; 4: the loss or its gradient; 5: dx. */
typedef struct {
    const mpt__cpu_call *call;
    mpt__cpu_walk walk[6];
    int by, out; /* the operand that is written */
    bool sums, present[6];
    mpt__real one, g;   /* g: dloss over the divisor, where it is one number */
    mpt__real *partial; /* sums of the chunks */
} mpt__cpu_pair_work;

static void mpt__cpu_pair_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_pair_work, w);
    const mpt__launch *launch = w->call->launch;
    const mpt__routines *routines = w->call->routines;
    mpt__cpu_pair_fn run = mpt__cpu_pairs[launch->function - MPT__FN_MSE].run;
#ifndef MPTRAIN_NO_SIMD
    if (launch->function == MPT__FN_MSE) run = mpt__cpu_pair_squares;
#endif
    int64_t begin = chunk * MPT__CHUNK,
            end = mpt__cpu_min(begin + MPT__CHUNK, w->walk[0].loop.count);
    mpt__real block[5][MPT__BLOCK];
    const mpt__real *in[5] = {NULL, NULL, NULL, NULL, NULL};
    mpt__cpu_cursor at[6];
    mpt__cpu_sum sum;
    mpt__cpu_sum_init(&sum, routines);
    for (int k = 0; k <= w->out; k++) {
        mpt__cpu_start(&at[k], &w->walk[k].loop, begin);
        if (k < 4 && !w->present[k])
            in[k] =
                mpt__cpu_take(&w->walk[k], &at[k], block[k], mpt__cpu_min(MPT__BLOCK, end - begin));
    }
    for (int64_t n; begin < end; begin += n) {
        n = mpt__cpu_min(MPT__BLOCK, end - begin);
        for (int k = 0; k < w->out && k < 5; k++)
            if (k < 4 ? w->present[k] : launch->reduction == MPT_NONE)
                in[k] = mpt__cpu_take(&w->walk[k], &at[k], block[k], n);
        mpt__real result[MPT__BLOCK];
        mpt__real *out =
            w->sums ? result : mpt__cpu_place(&w->walk[w->out], &at[w->out], result, n);
        run(routines, in, n, w->by, (mpt__real)launch->imm[0], (mpt__real)launch->imm[1], out);
        if (in[4]) routines->binary[MPT__BINARY_MUL](out, out, in[4], n, 0, 0);
        if (w->by >= 0 && !in[4]) routines->unary[MPT__UNARY_MUL_SCALAR](out, out, n, w->g, 0);
        if (w->sums)
            mpt__cpu_sum_add(&sum, out, n);
        else
            mpt__cpu_give(&w->walk[w->out], &at[w->out], out, n);
    }
    if (w->sums) w->partial[chunk] = mpt__cpu_sum_total(&sum);
}

/* Notes the first element of operand 0 outside [0, 1]; NaN is none. */
static void mpt__cpu_check_probabilities(const mpt__cpu_pair_work *w) {
    mpt__scalar *scalars = w->call->scalars;
    const mpt__cpu_walk *walk = &w->walk[0];
    mpt__real block[MPT__BLOCK];
    mpt__cpu_cursor at;
    mpt__cpu_start(&at, &walk->loop, 0);
    for (int64_t n, i = 0; i < walk->loop.count && scalars[MPT__SLOT_ERROR].i == 0; i += n) {
        n = mpt__cpu_min(MPT__BLOCK, walk->loop.count - i);
        const mpt__real *x = mpt__cpu_take(walk, &at, block, n);
        int64_t k = 0;
        while (k < n && !(x[k] < 0 || x[k] > 1)) k++;
        if (k == n) continue;
        mpt__scalar value;
        value.f = (double)x[k];
        mpt__cpu_raise(w->call, MPT_ERROR_NUMERIC, i + k, -1, value, 0);
    }
}

static int64_t mpt__cpu_pair_workspace(const mpt__launch *launch, int threads) {
    int64_t chunks = mpt__cpu_chunks(mpt__cpu_numel(&launch->operand[0]), MPT__CHUNK);
    (void)threads;
    return launch->reduction == MPT_NONE ? 0 : chunks * (int64_t)sizeof(mpt__real);
}

/* Chunks hold a power of two of those that MPT__SUM_CHUNK speaks of: the tree is the same. */
static void mpt__cpu_pair_loss(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    bool backward = launch->kernel == MPT__K_PAIR_LOSS_BACKWARD;
    mpt__cpu_pair_work w;
    w.call = call;
    w.by = backward ? (int)launch->index[0] : -1;
    w.out = backward ? 5 : 4;
    w.sums = !backward && launch->reduction != MPT_NONE;
    w.one = w.g = 1;
    w.partial = (mpt__real *)call->workspace;
    for (int k = 0; k <= w.out; k++) {
        mpt__operand operand = launch->operand[k];
        w.walk[k].view = mpt__cpu_view_of(call, k);
        w.present[k] = w.walk[k].view.data != NULL;
        if (!w.present[k]) {
            operand = launch->operand[0];
            memset(operand.stride, 0, sizeof operand.stride);
            w.walk[k].view.data = &w.one;
            w.walk[k].view.dtype = sizeof w.one == sizeof(float) ? MPT_F32 : MPT_F64;
        }
        mpt__cpu_loop_over(&w.walk[k].loop, &operand);
    }
    if (backward && launch->reduction != MPT_NONE)
        w.g = mpt__cpu_get_one(&w.walk[4].view, 0) / (mpt__real)launch->imm[2];
    if (launch->function == MPT__FN_BCE && !backward) mpt__cpu_check_probabilities(&w);
    int64_t count = w.walk[0].loop.count, chunks = mpt__cpu_chunks(count, MPT__CHUNK);
    mpt__cpu_for(call, chunks, count, mpt__cpu_pairs[launch->function - MPT__FN_MSE].ns,
        mpt__cpu_pair_chunk, &w);
    if (!w.sums) return;
    for (int64_t step = 1; step < chunks; step *= 2)
        for (int64_t k = 0; k + step < chunks; k += 2 * step) w.partial[k] += w.partial[k + step];
    mpt__cpu_put_one(&w.walk[4].view, 0,
                     (chunks > 0 ? w.partial[0] : 0) / (mpt__real)launch->imm[2]);
}

#endif
