/* ---------------------------------------------------------------------------------------------
 * 38_cpu_norm.c: normalisation and pooling on the CPU.
 *
 * A norm sees [N, G, C, S]. Where all that shares a mean and deviation lies in lines - along C with
 * a weight for each element, or along S with one for all - one thread takes it as a whole, in two or
 * three passes of which memory sees one. Batches whose channels lie innermost go by columns.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_NORM_INCLUDED
#define MPT__38_CPU_NORM_INCLUDED

#include "38_cpu_conv.c"

#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)

/* ==== Norms ==== */

enum { MPT__NORM_N, MPT__NORM_G, MPT__NORM_C, MPT__NORM_S };

typedef struct mpt__norm_work {
    const mpt__launch *launch;
    const mpt__words *words;
    mpt__ref_view view[MPT__MAX_OPERANDS];
    int64_t size[4], count; /* of x; elements of one statistic */
    bool of_channels, given, along_c;
    int64_t lines, length, line, step; /* of a statistic: their dimensions line and step */
    double eps;
    int64_t chunk, chunks; /* of n, whose gradients of weight and bias add up in a row */
    mpt__real *partial;    /* [chunks, 2, G C] */
} mpt__norm_work;

static int64_t mpt__norm_stride(const mpt__norm_work *w, int operand, int64_t dim) {
    return w->launch->operand[operand].stride[dim];
}

/* Chunks of n: one result of each is kept, so they are not too many; no thread counts. */
#define MPT__NORM_CHUNKS 64
#define MPT__NORM_CHUNK 8
/* Where channels lie innermost: elements of a column summed in a row, columns at a time. */
#define MPT__NORM_COLUMN 256
#define MPT__NORM_COLUMNS (MPT__BLOCK / 4)

static void mpt__norm_setup(mpt__norm_work *w, const mpt__launch *launch) {
    const mpt__operand *x = &launch->operand[0];
    w->launch = launch;
    memcpy(w->size, x->shape, sizeof w->size);
    w->of_channels = launch->index[0] != 0;
    w->given = launch->index[1] != 0;
    w->eps = launch->imm[0];
    w->along_c = w->size[MPT__NORM_S] == 1 || (x->stride[MPT__NORM_C] == 1 &&
                                               x->stride[MPT__NORM_S] != 1);
    w->step = w->along_c ? MPT__NORM_C : MPT__NORM_S;
    w->line = w->of_channels ? MPT__NORM_N : w->along_c ? MPT__NORM_S : MPT__NORM_C;
    w->length = w->size[w->step];
    w->lines = w->size[w->line];
    w->count = w->size[MPT__NORM_S] * w->size[w->of_channels ? MPT__NORM_N : MPT__NORM_C];
    w->chunk = mpt__ref_chunks(w->size[MPT__NORM_N], MPT__NORM_CHUNKS);
    if (w->chunk < MPT__NORM_CHUNK) w->chunk = MPT__NORM_CHUNK;
    w->chunks = mpt__ref_chunks(w->size[MPT__NORM_N], w->chunk);
}

static int64_t mpt__norm_channels(const mpt__norm_work *w) {
    return w->size[MPT__NORM_G] * w->size[MPT__NORM_C];
}

/* Where line `line` of statistic [n, g] (or of channel n) begins. */
static int64_t mpt__norm_at(const mpt__norm_work *w, int operand, int64_t n, int64_t g,
                            int64_t line) {
    int64_t at = line * mpt__norm_stride(w, operand, w->line);
    if (w->of_channels) return at + n * mpt__norm_stride(w, operand, MPT__NORM_C);
    return at + n * mpt__norm_stride(w, operand, MPT__NORM_N) +
           g * mpt__norm_stride(w, operand, MPT__NORM_G);
}

/* n elements more, those behind `at` of a line, go into the lanes of a sum: of a chunk that they do
   not fill beyond its end. */
static void mpt__norm_room(mpt__ref_sum *sum, int64_t at, int64_t length) {
    if (at % MPT__SUM_CHUNK != 0) return;
    int64_t n = mpt__ref_min(MPT__SUM_CHUNK, length - at);
    if (sum->count + n > MPT__SUM_CHUNK) mpt__ref_sum_close_chunk(sum);
    sum->count += n;
}

static mpt__real mpt__norm_rstd(double variance, double eps) {
    double root = sqrt(variance + eps);
    return root == 0 ? 0 : (mpt__real)(1 / root);
}

/* The sum with the residual, rounded as it is stored. */
static void mpt__norm_add(const mpt__norm_work *w, int64_t n, int64_t g) {
    mpt__real a[MPT__BLOCK], b[MPT__BLOCK];
    for (int64_t line = 0; line < w->lines; line++) {
        for (int64_t i = 0, m; i < w->length; i += m) {
            int64_t at[6];
            m = mpt__ref_min(MPT__BLOCK, w->length - i);
            for (int k = 0; k < 6; k++)
                at[k] = mpt__norm_at(w, k, n, g, line) + i * mpt__norm_stride(w, k, w->step);
            const mpt__real *x =
                mpt__ref_in(&w->view[0], at[0], mpt__norm_stride(w, 0, w->step), a, m);
            const mpt__real *r =
                mpt__ref_in(&w->view[1], at[1], mpt__norm_stride(w, 1, w->step), b, m);
            mpt__real *sum = mpt__ref_out(&w->view[5], at[5], mpt__norm_stride(w, 5, w->step), a);
            w->words->binary[MPT__BINARY_ADD](sum, x, r, m, 0, 0);
            mpt__ref_put(&w->view[5], at[5], mpt__norm_stride(w, 5, w->step), sum, m);
        }
    }
}

/* The sum of a statistic's elements, or of the squares of x - *mean. */
static mpt__real mpt__norm_total(const mpt__norm_work *w, int from, int64_t n, int64_t g,
                                 const mpt__real *mean) {
    mpt__real block[MPT__BLOCK];
    mpt__ref_sum sum;
    mpt__ref_sum_init(&sum, w->words);
    for (int64_t line = 0; line < w->lines; line++) {
        int64_t at = mpt__norm_at(w, from, n, g, line), step = mpt__norm_stride(w, from, w->step);
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i);
            const mpt__real *x = mpt__ref_in(&w->view[from], at + i * step, step, block, m);
            mpt__norm_room(&sum, i, w->length);
            if (mean != NULL)
                w->words->norm_squares(sum.lane, x, 0, m, *mean);
            else
                w->words->add_lanes(sum.lane, 0, x, m);
        }
    }
    return mpt__ref_sum_total(&sum);
}

/* Mean and deviation of a statistic, found or given. */
static void mpt__norm_moments(const mpt__norm_work *w, int from, int64_t n, int64_t g,
                              mpt__norm_line *l) {
    int64_t at = w->of_channels ? n : n * w->size[MPT__NORM_G] + g;
    const mpt__ref_view *mean = &w->view[6], *variance = &w->view[8];
    double spread;
    l->mean = 0;
    if (w->given) {
        l->mean = mpt__ref_get_one(mean, at);
        spread = (double)mpt__ref_get_one(variance, at);
    } else {
        if (mean->data != NULL) {
            l->mean = mpt__norm_total(w, from, n, g, NULL) / (mpt__real)w->count;
            mpt__ref_put_one(mean, at, l->mean);
        }
        mpt__real total = mpt__norm_total(w, from, n, g, &l->mean) / (mpt__real)w->count;
        if (variance->data != NULL) mpt__ref_put_one(variance, at, total);
        spread = (double)total;
    }
    l->rstd = mpt__norm_rstd(spread, w->eps);
    mpt__ref_put_one(&w->view[7], at, l->rstd);
}

/* Weight and bias (NULL: the call has none) of m elements from i on of a line. */
static void mpt__norm_weights(const mpt__norm_work *w, mpt__norm_line *l, const mpt__ref_view *of,
                              const mpt__ref_view *bias, int64_t n, int64_t g, int64_t line,
                              int64_t i, int64_t m, mpt__real block[2][MPT__BLOCK]) {
    int64_t at = w->of_channels ? n : g * w->size[MPT__NORM_C] + (w->along_c ? i : line);
    l->w = l->b = NULL;
    l->weight = 1, l->bias = 0;
    if (w->along_c) {
        if (of->data != NULL) l->w = mpt__ref_in(of, at, 1, block[0], m);
        if (bias->data != NULL) l->b = mpt__ref_in(bias, at, 1, block[1], m);
    } else {
        if (of->data != NULL) l->weight = mpt__ref_get_one(of, at);
        if (bias->data != NULL) l->bias = mpt__ref_get_one(bias, at);
    }
}

static void mpt__norm_whole(const mpt__norm_work *w, int64_t n, int64_t g) {
    mpt__real in[MPT__BLOCK], out[MPT__BLOCK], weights[2][MPT__BLOCK];
    const int from = w->view[5].data != NULL ? 5 : 0;
    const int64_t step = mpt__norm_stride(w, from, w->step), to = mpt__norm_stride(w, 4, w->step);
    mpt__norm_line l;
    if (w->view[1].data != NULL) mpt__norm_add(w, n, g);
    mpt__norm_moments(w, from, n, g, &l);
    for (int64_t line = 0; line < w->lines; line++) {
        int64_t at = mpt__norm_at(w, from, n, g, line), place = mpt__norm_at(w, 4, n, g, line);
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i);
            mpt__norm_weights(w, &l, &w->view[2], &w->view[3], n, g, line, i, m, weights);
            const mpt__real *x = mpt__ref_in(&w->view[from], at + i * step, step, in, m);
            mpt__real *y = mpt__ref_out(&w->view[4], place + i * to, to, out);
            w->words->norm(y, x, 0, m, &l);
            mpt__ref_put(&w->view[4], place + i * to, to, y, m);
        }
    }
}

/* Sums of dy weight and dy weight x normalised; where a line has one weight, those without it go to
   the gradients of that. */
static void mpt__norm_slopes(const mpt__norm_work *w, int64_t n, int64_t g, mpt__norm_line *l,
                             mpt__real *dw, mpt__real *db, mpt__real total[2]) {
    mpt__real in[2][MPT__BLOCK], weights[2][MPT__BLOCK], lane[2 * MPT__SUM_LANES];
    const mpt__ref_view none = {NULL, NULL, 0, false};
    const int64_t step[2] = {mpt__norm_stride(w, 0, w->step), mpt__norm_stride(w, 1, w->step)};
    total[0] = total[1] = 0;
    for (int64_t line = 0; line < w->lines; line++) {
        int64_t at[2] = {mpt__norm_at(w, 0, n, g, line), mpt__norm_at(w, 1, n, g, line)};
        mpt__ref_sum sum[2];
        for (int k = 0; k < 2; k++) mpt__ref_sum_init(&sum[k], w->words);
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i);
            const mpt__real *x = mpt__ref_in(&w->view[0], at[0] + i * step[0], step[0], in[0], m);
            const mpt__real *dy = mpt__ref_in(&w->view[1], at[1] + i * step[1], step[1], in[1], m);
            mpt__norm_weights(w, l, w->along_c ? &w->view[2] : &none, &none, n, g, line, i, m,
                              weights);
            for (int k = 0; k < 2; k++) {
                mpt__norm_room(&sum[k], i, w->length);
                memcpy(lane + k * MPT__SUM_LANES, sum[k].lane, sizeof sum[k].lane);
            }
            w->words->norm_sums(lane, x, dy, 0, m, l);
            for (int k = 0; k < 2; k++)
                memcpy(sum[k].lane, lane + k * MPT__SUM_LANES, sizeof sum[k].lane);
        }
        mpt__real shift = mpt__ref_sum_total(&sum[0]), slope = mpt__ref_sum_total(&sum[1]);
        int64_t channel = w->of_channels ? 0 : line;
        if (!w->along_c && db != NULL) db[channel] += shift;
        if (!w->along_c && dw != NULL) dw[channel] += slope;
        if (!w->along_c)
            mpt__norm_weights(w, l, &w->view[2], &none, n, g, line, 0, 1, weights);
        mpt__real weight = w->along_c ? 1 : l->weight;
        total[0] += shift * weight;
        total[1] += slope * weight;
    }
}

/* Gradients of one statistic; those of its channels are added to dw and db. */
static void mpt__norm_back(const mpt__norm_work *w, int64_t n, int64_t g, mpt__real *dw,
                           mpt__real *db) {
    mpt__real in[3][MPT__BLOCK], out[MPT__BLOCK], weights[2][MPT__BLOCK], total[2];
    const mpt__ref_view none = {NULL, NULL, 0, false};
    int64_t at = w->of_channels ? n : n * w->size[MPT__NORM_G] + g;
    mpt__norm_line l;
    bool centred = w->view[3].data != NULL, wanted = w->view[6].data != NULL;
    l.mean = centred ? mpt__ref_get_one(&w->view[3], at) : 0;
    l.rstd = mpt__ref_get_one(&w->view[4], at);
    mpt__norm_slopes(w, n, g, &l, dw, db, total);
    l.shift = centred && !w->given ? total[0] / (mpt__real)w->count : 0;
    l.slope = w->given ? 0 : total[1] / (mpt__real)w->count;
    if (!wanted && !w->along_c) return;
    for (int64_t line = 0; line < w->lines; line++) {
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            static const uint8_t operand[4] = {0, 1, 5, 6};
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i), place[4], step[4];
            const mpt__real *x[3] = {NULL, NULL, NULL};
            for (int k = 0; k < 4; k++) {
                const int o = operand[k];
                if (w->view[o].data == NULL) continue;
                step[k] = mpt__norm_stride(w, o, w->step);
                place[k] = mpt__norm_at(w, o, n, g, line) + i * step[k];
                if (k < 3) x[k] = mpt__ref_in(&w->view[o], place[k], step[k], in[k], m);
            }
            mpt__norm_weights(w, &l, &w->view[2], &none, n, g, line, i, m, weights);
            l.dw = w->along_c && dw != NULL ? dw + i : NULL;
            l.db = w->along_c && db != NULL ? db + i : NULL;
            mpt__real *dx = wanted ? mpt__ref_out(&w->view[6], place[3], step[3], out) : out;
            if (dx == x[2]) dx = out; /* it is added last */
            w->words->norm_slope(dx, x[0], x[1], 0, m, &l);
            if (!wanted) continue;
            if (x[2] != NULL) w->words->binary[MPT__BINARY_ADD](dx, dx, x[2], m, 0, 0);
            mpt__ref_put(&w->view[6], place[3], step[3], dx, m);
        }
    }
}

static void mpt__norm_task(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    int64_t g = task % w->size[MPT__NORM_G], begin = task / w->size[MPT__NORM_G] * w->chunk;
    int64_t end = mpt__ref_min(begin + w->chunk, w->size[MPT__NORM_N]);
    (void)thread;
    if (w->of_channels)
        mpt__norm_whole(w, task, 0);
    else
        for (int64_t n = begin; n < end; n++) mpt__norm_whole(w, n, g);
}

static void mpt__norm_back_task(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    const int64_t channels = mpt__norm_channels(w), c = w->size[MPT__NORM_C];
    int64_t g = task % w->size[MPT__NORM_G], begin = task / w->size[MPT__NORM_G] * w->chunk;
    int64_t end = mpt__ref_min(begin + w->chunk, w->size[MPT__NORM_N]);
    mpt__real sum[2] = {0, 0}, *gradient[2] = {NULL, NULL};
    (void)thread;
    if (w->of_channels) {
        mpt__norm_back(w, task, 0, &sum[0], &sum[1]);
        for (int k = 0; k < 2; k++)
            if (w->view[7 + k].data != NULL) mpt__ref_put_one(&w->view[7 + k], task, sum[k]);
        return;
    }
    for (int k = 0; k < 2; k++) {
        if (w->view[7 + k].data == NULL) continue;
        gradient[k] = w->partial + (2 * (task / w->size[MPT__NORM_G]) + k) * channels + g * c;
        memset(gradient[k], 0, (size_t)c * sizeof *gradient[k]);
    }
    for (int64_t n = begin; n < end; n++) mpt__norm_back(w, n, g, gradient[0], gradient[1]);
}

/* The gradients of weight and bias: the chunks in pairs, pairs of pairs and so on. */
static void mpt__norm_join(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    const int64_t channels = mpt__norm_channels(w), begin = task / 2 * MPT__BLOCK, step = channels * 2;
    const int64_t n = mpt__ref_min(MPT__BLOCK, channels - begin);
    const mpt__ref_view *to = &w->view[7 + task % 2];
    mpt__real *part = w->partial + task % 2 * channels + begin;
    (void)thread;
    if (to->data == NULL) return;
    for (int64_t by = 1; by < w->chunks; by *= 2)
        for (int64_t k = 0; k + by < w->chunks; k += 2 * by)
            w->words->binary[MPT__BINARY_ADD](part + k * step, part + k * step,
                                              part + (k + by) * step, n, 0, 0);
    mpt__ref_put(to, begin, 1, part, n);
}

/* ---- Batches with their channels innermost ---- */

#ifndef MPTRAIN_NO_CONV
enum { MPT__COLUMN_SUM, MPT__COLUMN_SQUARES, MPT__COLUMN_NORM, MPT__COLUMN_SUMS, MPT__COLUMN_SLOPE };
/* Numbers of each column. */
enum { MPT__OF_MEAN, MPT__OF_RSTD, MPT__OF_WEIGHT, MPT__OF_BIAS, MPT__OF_SLOPE, MPT__OF_COUNT };

typedef struct mpt__norm_columns {
    mpt__norm_work w;
    int pass;
    int64_t rows, chunks, tiles, columns;
    mpt__real *partial, *of[MPT__OF_COUNT]; /* [chunks, 2, C]; [C] */
} mpt__norm_columns;

static void mpt__norm_columns_setup(mpt__norm_columns *c, const mpt__launch *launch) {
    mpt__norm_setup(&c->w, launch);
    c->columns = c->w.size[MPT__NORM_C];
    c->rows = mpt__ref_times(c->w.size[MPT__NORM_N], c->w.size[MPT__NORM_S]);
    c->chunks = mpt__ref_chunks(c->rows, MPT__NORM_COLUMN);
    c->tiles = mpt__ref_chunks(c->columns, MPT__NORM_COLUMNS);
}

static int64_t mpt__norm_row_at(const mpt__norm_work *w, int operand, int64_t row, int64_t first) {
    const int64_t s = w->size[MPT__NORM_S];
    return row / s * mpt__norm_stride(w, operand, MPT__NORM_N) +
           row % s * mpt__norm_stride(w, operand, MPT__NORM_S) +
           first * mpt__norm_stride(w, operand, MPT__NORM_C);
}

/* One row of a pass, n columns from `first` on. */
static void mpt__norm_row(const mpt__norm_columns *c, int64_t row, int64_t first, int64_t n,
                          mpt__real *sum[2]) {
    const mpt__norm_work *w = &c->w;
    const mpt__binary_fn *word = w->words->binary;
    const int to = c->pass == MPT__COLUMN_NORM ? 4 : 6;
    mpt__real in[2][MPT__NORM_COLUMNS], t[MPT__NORM_COLUMNS];
    const mpt__real *x[2] = {NULL, NULL}, *of[MPT__OF_COUNT];
    for (int k = 0; k < (c->pass < MPT__COLUMN_SUMS ? 1 : 2); k++)
        x[k] = mpt__ref_in(&w->view[k], mpt__norm_row_at(w, k, row, first),
                           mpt__norm_stride(w, k, MPT__NORM_C), in[k], n);
    for (int k = 0; k < MPT__OF_COUNT; k++) of[k] = c->of[k] + first;
    if (c->pass == MPT__COLUMN_SUM) {
        word[MPT__BINARY_ADD](sum[0], sum[0], x[0], n, 0, 0);
        return;
    }
    word[MPT__BINARY_SUB](t, x[0], of[MPT__OF_MEAN], n, 0, 0);
    if (c->pass == MPT__COLUMN_SQUARES || c->pass == MPT__COLUMN_SUMS) {
        const bool squares = c->pass == MPT__COLUMN_SQUARES;
        word[MPT__BINARY_MUL](t, t, squares ? t : x[1], n, 0, 0);
        word[MPT__BINARY_ADD](sum[1], sum[1], t, n, 0, 0);
        if (!squares) word[MPT__BINARY_ADD](sum[0], sum[0], x[1], n, 0, 0);
        return;
    }
    if (c->pass == MPT__COLUMN_NORM) {
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_RSTD], n, 0, 0);
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_WEIGHT], n, 0, 0);
        word[MPT__BINARY_ADD](t, t, of[MPT__OF_BIAS], n, 0, 0);
    } else {
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_SLOPE], n, 0, 0);
        word[MPT__BINARY_MUL](in[0], x[1], of[MPT__OF_WEIGHT], n, 0, 0);
        word[MPT__BINARY_SUB](in[0], in[0], of[MPT__OF_BIAS], n, 0, 0);
        word[MPT__BINARY_SUB](t, in[0], t, n, 0, 0);
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_RSTD], n, 0, 0);
    }
    mpt__ref_put(&w->view[to], mpt__norm_row_at(w, to, row, first),
                 mpt__norm_stride(w, to, MPT__NORM_C), t, n);
}

static void mpt__norm_columns_chunk(void *work, int64_t task, int thread) {
    const mpt__norm_columns *c = (const mpt__norm_columns *)work;
    int64_t chunk = task / c->tiles, first = task % c->tiles * MPT__NORM_COLUMNS;
    int64_t n = mpt__ref_min(MPT__NORM_COLUMNS, c->columns - first);
    int64_t begin = chunk * MPT__NORM_COLUMN;
    int64_t end = mpt__ref_min(begin + MPT__NORM_COLUMN, c->rows);
    mpt__real *sum[2];
    (void)thread;
    for (int k = 0; k < 2; k++) {
        sum[k] = c->partial + (2 * chunk + k) * c->columns + first;
        memset(sum[k], 0, (size_t)n * sizeof *sum[k]);
    }
    for (int64_t row = begin; row < end; row++) mpt__norm_row(c, row, first, n, sum);
}

/* What the chunks of a pass add up to, and what follows from it for each column. */
static void mpt__norm_columns_end(void *work, int64_t tile, int thread) {
    const mpt__norm_columns *c = (const mpt__norm_columns *)work;
    const mpt__norm_work *w = &c->w;
    int64_t first = tile * MPT__NORM_COLUMNS, step = 2 * c->columns;
    int64_t n = mpt__ref_min(MPT__NORM_COLUMNS, c->columns - first);
    mpt__real *sum[2], *of[MPT__OF_COUNT];
    const mpt__real count = (mpt__real)w->count;
    (void)thread;
    for (int k = 0; k < MPT__OF_COUNT; k++) of[k] = c->of[k] + first;
    for (int k = 0; k < 2; k++) {
        mpt__real *part = sum[k] = c->partial + k * c->columns + first;
        for (int64_t by = 1; by < c->chunks; by *= 2)
            for (int64_t j = 0; j + by < c->chunks; j += 2 * by)
                w->words->binary[MPT__BINARY_ADD](part + j * step, part + j * step,
                                                  part + (j + by) * step, n, 0, 0);
    }
    for (int64_t i = 0; i < n; i++) {
        if (c->pass == MPT__COLUMN_SUM) {
            of[MPT__OF_MEAN][i] = sum[0][i] / count;
        } else if (c->pass == MPT__COLUMN_SQUARES) {
            sum[1][i] /= count;
            of[MPT__OF_RSTD][i] = mpt__norm_rstd((double)sum[1][i], w->eps);
        } else {
            mpt__real rstd = of[MPT__OF_RSTD][i], weight = of[MPT__OF_WEIGHT][i];
            sum[1][i] *= rstd;
            of[MPT__OF_BIAS][i] = w->given ? 0 : sum[0][i] * weight / count;
            of[MPT__OF_SLOPE][i] = w->given ? 0 : sum[1][i] * weight / count * rstd;
        }
    }
    if (c->pass == MPT__COLUMN_SUM) {
        mpt__ref_put(&w->view[6], first, 1, of[MPT__OF_MEAN], n);
    } else if (c->pass == MPT__COLUMN_SQUARES) {
        mpt__ref_put(&w->view[7], first, 1, of[MPT__OF_RSTD], n);
        if (w->view[8].data != NULL) mpt__ref_put(&w->view[8], first, 1, sum[1], n);
    } else {
        if (w->view[7].data != NULL) mpt__ref_put(&w->view[7], first, 1, sum[1], n);
        if (w->view[8].data != NULL) mpt__ref_put(&w->view[8], first, 1, sum[0], n);
    }
}

/* n numbers of an operand into a column's place; `otherwise` where it is absent. */
static void mpt__norm_columns_get(const mpt__norm_columns *c, int operand, int of,
                                  mpt__real otherwise) {
    if (c->w.view[operand].data != NULL)
        mpt__ref_get(&c->w.view[operand], 0, 1, c->of[of], c->columns);
    else
        for (int64_t i = 0; i < c->columns; i++) c->of[of][i] = otherwise;
}

static void mpt__norm_columns_run(const mpt__cpu_call *call, mpt__norm_columns *c, int pass,
                                  double ns, bool ends) {
    c->pass = pass;
    mpt__parallel(call->pool, c->chunks * c->tiles,
                  mpt__ref_cost(call, mpt__ref_times(c->rows, c->columns), ns),
                  mpt__norm_columns_chunk, c);
    if (ends) mpt__parallel(call->pool, c->tiles, c->columns, mpt__norm_columns_end, c);
}

static void mpt__norm_by_columns(const mpt__cpu_call *call, const mpt__norm_work *w, bool back) {
    mpt__norm_columns c;
    mpt__norm_columns_setup(&c, call->launch);
    c.w = *w;
    c.partial = (mpt__real *)call->workspace;
    for (int k = 0; k < MPT__OF_COUNT; k++)
        c.of[k] = c.partial + (2 * c.chunks + k) * c.columns;
    mpt__norm_columns_get(&c, 2, MPT__OF_WEIGHT, 1);
    if (back) {
        mpt__norm_columns_get(&c, 3, MPT__OF_MEAN, 0);
        mpt__norm_columns_get(&c, 4, MPT__OF_RSTD, 1);
        mpt__norm_columns_run(call, &c, MPT__COLUMN_SUMS, 6.0, true);
        if (w->view[6].data != NULL)
            mpt__norm_columns_run(call, &c, MPT__COLUMN_SLOPE, 10.0, false);
        return;
    }
    mpt__norm_columns_get(&c, 3, MPT__OF_BIAS, 0);
    if (w->given) {
        mpt__norm_columns_get(&c, 6, MPT__OF_MEAN, 0);
        mpt__norm_columns_get(&c, 8, MPT__OF_RSTD, 0);
        for (int64_t i = 0; i < c.columns; i++)
            c.of[MPT__OF_RSTD][i] = mpt__norm_rstd((double)c.of[MPT__OF_RSTD][i], w->eps);
        mpt__ref_put(&w->view[7], 0, 1, c.of[MPT__OF_RSTD], c.columns);
    } else {
        mpt__norm_columns_run(call, &c, MPT__COLUMN_SUM, 2.0, true);
        mpt__norm_columns_run(call, &c, MPT__COLUMN_SQUARES, 5.0, true);
    }
    mpt__norm_columns_run(call, &c, MPT__COLUMN_NORM, 8.0, false);
}
#endif

/* ---- The kernels ---- */

static int64_t mpt__norm_workspace(const mpt__launch *launch, int threads) {
    mpt__norm_work w;
    (void)threads;
    mpt__norm_setup(&w, launch);
#ifndef MPTRAIN_NO_CONV
    if (w.of_channels && w.along_c) {
        mpt__norm_columns c;
        mpt__norm_columns_setup(&c, launch);
        return (2 * c.chunks + MPT__OF_COUNT) * c.columns * (int64_t)sizeof(mpt__real);
    }
#endif
    if (launch->kernel == MPT__K_NORM || w.of_channels) return 0;
    return 2 * w.chunks * mpt__norm_channels(&w) * (int64_t)sizeof(mpt__real);
}

static void mpt__norm_run(const mpt__cpu_call *call, bool back) {
    mpt__norm_work w;
    mpt__norm_setup(&w, call->launch);
    w.words = call->words;
    w.partial = (mpt__real *)call->workspace;
    for (int k = 0; k < MPT__MAX_OPERANDS; k++) {
        memset(&w.view[k], 0, sizeof w.view[k]);
        if (call->data[k] != NULL) w.view[k] = mpt__ref_view_of(call, k);
    }
    int64_t groups = mpt__norm_channels(&w);
    int64_t all = mpt__ref_times(mpt__ref_times(w.size[MPT__NORM_N], groups), w.size[MPT__NORM_S]);
    if (all == 0) return;
#ifndef MPTRAIN_NO_CONV
    if (w.of_channels && w.along_c) {
        mpt__norm_by_columns(call, &w, back);
        return;
    }
#endif
    int64_t tasks = w.of_channels ? groups : w.chunks * w.size[MPT__NORM_G];
    mpt__parallel(call->pool, tasks, mpt__ref_cost(call, all, back ? 8.0 : 5.0),
                  back ? mpt__norm_back_task : mpt__norm_task, &w);
    if (back && !w.of_channels)
        mpt__parallel(call->pool, 2 * mpt__ref_chunks(groups, MPT__BLOCK),
                      mpt__ref_cost(call, groups * w.chunks, 1.0), mpt__norm_join, &w);
}
static void mpt__cpu_norm(const mpt__cpu_call *call) { mpt__norm_run(call, false); }
static void mpt__cpu_norm_backward(const mpt__cpu_call *call) { mpt__norm_run(call, true); }
#endif

#ifndef MPTRAIN_NO_CONV
static void mpt__cpu_running_stats(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const float *fresh[2] = {(const float *)call->data[0], (const float *)call->data[1]};
    const float *old = (const float *)call->data[2];
    const int64_t *count = (const int64_t *)call->data[3];
    float *to = (float *)call->data[4];
    int64_t *counts = (int64_t *)call->data[5];
    const int64_t channels = launch->operand[2].shape[1];
    if (!mpt__gate_open(call, 0)) return;
    const double momentum = launch->imm[0] < 0 ? 1.0 / (double)(count[0] + 1) : launch->imm[0];
    bool updates = fresh[0] != NULL, good = updates;
    for (int pass = 0; pass < 2; pass++) { /* old may be what is written: looks, then writes */
        for (int64_t i = 0; i < 2 * channels; i++) {
            float value = old[i];
            if (updates && (pass == 0 || good)) {
                double now = (double)fresh[i / channels][i % channels];
                if (i >= channels) now *= launch->imm[1];
                value = (float)((double)old[i] + momentum * (now - (double)old[i]));
            }
            if (pass == 0)
                good = good && mpt__f32_is_finite(value);
            else
                to[i] = value;
        }
    }
    const int64_t before[2] = {count[0], count[1]};
    counts[0] = before[0] + (updates && good);
    counts[1] = before[1] + (updates && !good);
}

/* ==== Pooling ==== */

/* Lines along C where channels lie innermost or windows differ, else along W. */
typedef struct mpt__pooling_work {
    const mpt__launch *launch;
    const mpt__words *words;
    mpt__ref_view view[3];
    const mpt__operand *more, *less; /* x or dx; y or dy */
    const int32_t *index;
    int64_t window[2], step[2], padding[2];
    bool most, along_c, adaptive, padding_counts;
} mpt__pooling_work;

/* What output i of dimension d (0: H, 1: W) covers; returns its size in a mean. */
static int64_t mpt__pooling_bounds(const mpt__pooling_work *w, int d, int64_t i, int64_t *begin,
                                int64_t *end) {
    const int64_t in = w->more->shape[2 + d], out = w->less->shape[2 + d];
    if (w->adaptive) {
        *begin = i * in / out;
        *end = mpt__ref_chunks((i + 1) * in, out);
        return *end - *begin;
    }
    int64_t first = i * w->step[d] - w->padding[d];
    int64_t last = mpt__ref_min(first + w->window[d], in + w->padding[d]);
    *begin = first > 0 ? first : 0;
    *end = mpt__ref_min(last, in);
    return w->padding_counts ? last - first : *end - *begin;
}

/* The outputs of dimension d that cover input i: [*begin, *end). */
static void mpt__pooling_covers(const mpt__pooling_work *w, int d, int64_t i, int64_t *begin,
                             int64_t *end) {
    const int64_t in = w->more->shape[2 + d], out = w->less->shape[2 + d];
    if (w->adaptive) {
        *begin = i * out / in;
        *end = mpt__ref_chunks((i + 1) * out, in);
        return;
    }
    int64_t before = i + w->padding[d] - w->window[d];
    *begin = before < 0 ? 0 : before / w->step[d] + 1;
    *end = mpt__ref_min((i + w->padding[d]) / w->step[d] + 1, out);
}

static int64_t mpt__pooling_at(const mpt__operand *o, int64_t n, int64_t c, int64_t h, int64_t i) {
    return n * o->stride[0] + c * o->stride[1] + h * o->stride[2] + i * o->stride[3];
}

/* Takes one element into a maximum, as PyTorch does: a NaN wins over all before it. */
static MPT__INLINE void mpt__pooling_take(mpt__real x, int64_t at, mpt__real *best, int32_t *index) {
    if (!(x > *best) && !mpt__real_is_nan(x)) return;
    *best = x;
    *index = (int32_t)at;
}

static void mpt__pooling_give(const mpt__pooling_work *w, int64_t at, int64_t step, int64_t place,
                           int64_t place_step, const mpt__real *y, const int32_t *index,
                           int64_t n) {
    int32_t *to = (int32_t *)w->view[2].data;
    mpt__ref_put(&w->view[1], at, step, y, n);
    for (int64_t i = 0; to != NULL && i < n; i++) to[place + i * place_step] = index[i];
}

/* Output [n, .., oh, ow] of all channels. */
static void mpt__pooling_pixel(const mpt__pooling_work *w, int64_t n, int64_t oh, int64_t ow) {
    const mpt__operand *x = w->more, *y = w->less, *o = &w->launch->operand[2];
    mpt__real block[MPT__BLOCK], best[MPT__BLOCK];
    int32_t index[MPT__BLOCK];
    int64_t h0, h1, w0, w1, channels = x->shape[1], width = x->shape[3];
    int64_t size = mpt__pooling_bounds(w, 0, oh, &h0, &h1);
    size *= mpt__pooling_bounds(w, 1, ow, &w0, &w1);
    for (int64_t c = 0, m; c < channels; c += m) {
        m = mpt__ref_min(MPT__BLOCK, channels - c);
        for (int64_t k = 0; k < m; k++) {
            best[k] = w->most ? -mpt__real_infinity() : 0;
            index[k] = (int32_t)(h0 * width + w0);
        }
        for (int64_t h = h0; h < h1; h++) {
            for (int64_t i = w0; i < w1; i++) {
                const mpt__real *in = mpt__ref_in(&w->view[0], mpt__pooling_at(x, n, c, h, i),
                                                  x->stride[1], block, m);
                if (!w->most) w->words->binary[MPT__BINARY_ADD](best, best, in, m, 0, 0);
                for (int64_t k = 0; w->most && k < m; k++)
                    mpt__pooling_take(in[k], h * width + i, &best[k], &index[k]);
            }
        }
        for (int64_t k = 0; !w->most && k < m; k++) best[k] /= (mpt__real)size;
        mpt__pooling_give(w, mpt__pooling_at(y, n, c, oh, ow), y->stride[1],
                       mpt__pooling_at(o, n, c, oh, ow), o->stride[1], best, index, m);
    }
}

/* Outputs [n, c, oh, ..]. */
static void mpt__pooling_line(const mpt__pooling_work *w, int64_t n, int64_t c, int64_t oh) {
    const mpt__operand *x = w->more, *y = w->less, *o = &w->launch->operand[2];
    mpt__real block[MPT__BLOCK], best[MPT__BLOCK];
    int32_t index[MPT__BLOCK];
    int64_t h0, h1, w0, w1, left, width = x->shape[3], most = MPT__BLOCK / 2 / w->step[1];
    const int64_t high = mpt__pooling_bounds(w, 0, oh, &h0, &h1);
    for (int64_t first = 0, m; first < y->shape[3]; first += m) {
        m = mpt__ref_min(most, y->shape[3] - first);
        mpt__pooling_bounds(w, 1, first, &left, &w1);
        mpt__pooling_bounds(w, 1, first + m - 1, &w0, &w1);
        for (int64_t h = h0; h < h1; h++) {
            const mpt__real *in = mpt__ref_in(&w->view[0], mpt__pooling_at(x, n, c, h, left),
                                              x->stride[3], block, w1 - left);
            for (int64_t k = 0; k < m; k++) {
                int64_t begin, end;
                mpt__pooling_bounds(w, 1, first + k, &begin, &end);
                if (h == h0) {
                    best[k] = w->most ? -mpt__real_infinity() : 0;
                    index[k] = (int32_t)(h0 * width + begin);
                }
                for (int64_t i = begin; i < end; i++) {
                    if (w->most)
                        mpt__pooling_take(in[i - left], h * width + i, &best[k], &index[k]);
                    else
                        best[k] += in[i - left];
                }
            }
        }
        for (int64_t k = 0; !w->most && k < m; k++)
            best[k] /= (mpt__real)(high * mpt__pooling_bounds(w, 1, first + k, &w0, &w1));
        mpt__pooling_give(w, mpt__pooling_at(y, n, c, oh, first), y->stride[3],
                       mpt__pooling_at(o, n, c, oh, first), o->stride[3], best, index, m);
    }
}

/* Gradients [n, .., h, i] of all channels: from every output whose window covers them. */
static void mpt__pooling_back_pixel(const mpt__pooling_work *w, int64_t n, int64_t h, int64_t i) {
    const mpt__operand *dx = w->more, *dy = w->less, *o = &w->launch->operand[1];
    mpt__real block[MPT__BLOCK], sum[MPT__BLOCK];
    int64_t h0, h1, w0, w1, a, b, channels = dx->shape[1], at = h * dx->shape[3] + i;
    mpt__pooling_covers(w, 0, h, &h0, &h1);
    mpt__pooling_covers(w, 1, i, &w0, &w1);
    for (int64_t c = 0, m; c < channels; c += m) {
        m = mpt__ref_min(MPT__BLOCK, channels - c);
        memset(sum, 0, (size_t)m * sizeof *sum);
        for (int64_t oh = h0; oh < h1; oh++) {
            const int64_t high = mpt__pooling_bounds(w, 0, oh, &a, &b);
            for (int64_t ow = w0; ow < w1; ow++) {
                const mpt__real *in = mpt__ref_in(&w->view[0], mpt__pooling_at(dy, n, c, oh, ow),
                                                  dy->stride[1], block, m);
                const mpt__real size =
                    (mpt__real)(high * mpt__pooling_bounds(w, 1, ow, &a, &b));
                const int64_t place = mpt__pooling_at(o, n, c, oh, ow);
                for (int64_t k = 0; k < m; k++) {
                    if (!w->most)
                        sum[k] += in[k] / size;
                    else if (w->index[place + k * o->stride[1]] == at)
                        sum[k] += in[k];
                }
            }
        }
        mpt__ref_put(&w->view[2], mpt__pooling_at(dx, n, c, h, i), dx->stride[1], sum, m);
    }
}

/* Gradients [n, c, h, ..]. */
static void mpt__pooling_back_line(const mpt__pooling_work *w, int64_t n, int64_t c, int64_t h) {
    const mpt__operand *dx = w->more, *dy = w->less, *o = &w->launch->operand[1];
    mpt__real in, sum[MPT__BLOCK];
    int64_t h0, h1, w0, w1, begin, end, a, b, width = dx->shape[3];
    mpt__pooling_covers(w, 0, h, &h0, &h1);
    for (int64_t first = 0, m; first < width; first += m) {
        m = mpt__ref_min(MPT__BLOCK, width - first);
        memset(sum, 0, (size_t)m * sizeof *sum);
        mpt__pooling_covers(w, 1, first, &w0, &end);
        mpt__pooling_covers(w, 1, first + m - 1, &begin, &w1);
        for (int64_t oh = h0; oh < h1; oh++) {
            const int64_t high = mpt__pooling_bounds(w, 0, oh, &a, &b);
            for (int64_t ow = w0; ow < w1; ow++) {
                int64_t to = 0;
                if (w->most) {
                    to = w->index[mpt__pooling_at(o, n, c, oh, ow)] - h * width - first;
                    if (to < 0 || to >= m) continue;
                }
                in = mpt__ref_get_one(&w->view[0], mpt__pooling_at(dy, n, c, oh, ow));
                if (w->most) {
                    sum[to] += in;
                    continue;
                }
                const mpt__real part =
                    in / (mpt__real)(high * mpt__pooling_bounds(w, 1, ow, &begin, &end));
                for (int64_t i = begin; i < end; i++)
                    if (i >= first && i < first + m) sum[i - first] += part;
            }
        }
        mpt__ref_put(&w->view[2], mpt__pooling_at(dx, n, c, h, first), dx->stride[3], sum, m);
    }
}

static void mpt__pooling_task(void *work, int64_t task, int thread) {
    const mpt__pooling_work *w = (const mpt__pooling_work *)work;
    const bool back = w->launch->kernel == MPT__K_POOL_BACKWARD;
    const mpt__operand *o = back ? w->more : w->less;
    const int64_t rows = task % o->shape[2], rest = task / o->shape[2];
    (void)thread;
    if (!w->along_c) {
        (back ? mpt__pooling_back_line : mpt__pooling_line)(w, rest / o->shape[1], rest % o->shape[1],
                                                      rows);
        return;
    }
    for (int64_t i = 0; i < o->shape[3]; i++)
        (back ? mpt__pooling_back_pixel : mpt__pooling_pixel)(w, rest, rows, i);
}

static void mpt__cpu_pool(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const bool back = launch->kernel == MPT__K_POOL_BACKWARD;
    mpt__pooling_work w;
    w.launch = launch;
    w.words = call->words;
    for (int k = 0; k < 3; k++) {
        memset(&w.view[k], 0, sizeof w.view[k]);
        if (call->data[k] != NULL) w.view[k] = mpt__ref_view_of(call, k);
    }
    w.more = &launch->operand[back ? 2 : 0];
    w.less = &launch->operand[back ? 0 : 1];
    w.index = back ? (const int32_t *)call->data[1] : NULL;
    w.most = launch->function == MPT__FN_MAX;
    w.padding_counts = launch->index[3] & 1;
    w.adaptive = launch->index[3] & 2;
    int64_t *const pair[] = {w.window, w.step, w.padding};
    for (int k = 0; k < 3; k++) {
        pair[k][0] = launch->index[k] >> 32;
        pair[k][1] = launch->index[k] & 0xffffffff;
    }
    w.along_c = w.adaptive || w.more->stride[1] == 1 || w.window[1] > MPT__BLOCK / 2 ||
                w.step[1] > MPT__BLOCK / 4;
    const mpt__operand *o = back ? w.more : w.less;
    int64_t all = mpt__ref_numel(o), tasks = o->shape[0] * o->shape[2];
    if (all == 0) return;
    if (!w.along_c) tasks *= o->shape[1];
    double cost = (double)mpt__ref_numel(w.more) + (double)mpt__ref_numel(w.less);
    mpt__parallel(call->pool, tasks, (int64_t)(cost * 4.0), mpt__pooling_task, &w);
}
#endif

static void mpt__cpu_add_norm(mpt__cpu *cpu) {
#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)
    mpt__cpu_add(cpu, MPT__K_NORM, mpt__cpu_norm, mpt__norm_workspace);
    mpt__cpu_add(cpu, MPT__K_NORM_BACKWARD, mpt__cpu_norm_backward, mpt__norm_workspace);
#endif
#ifndef MPTRAIN_NO_CONV
    mpt__cpu_add(cpu, MPT__K_RUNNING_STATS, mpt__cpu_running_stats, NULL);
    mpt__cpu_add(cpu, MPT__K_POOL, mpt__cpu_pool, NULL);
    mpt__cpu_add(cpu, MPT__K_POOL_BACKWARD, mpt__cpu_pool, NULL);
#endif
    (void)cpu;
}

#endif
