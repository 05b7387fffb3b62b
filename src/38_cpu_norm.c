/* ---------------------------------------------------------------------------------------------
 * 38_cpu_norm.c: normalisation and pooling on the CPU.
 *
 * A norm sees [N, G, C, S]. Rows and groups are taken by one thread as a whole, in lines along C,
 * with a weight for each element, or along S, with one for all: two or three passes, of which
 * memory sees one. Batches go by chunks, in the order of memory.
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
    int64_t size[4]; /* of x */
    bool of_channels, given, along_c;
    int64_t lines, length, line, step; /* of [n, g]: their dimensions line and step */
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

static void mpt__norm_setup(mpt__norm_work *w, const mpt__launch *launch) {
    const mpt__operand *x = &launch->operand[0];
    w->launch = launch;
    memcpy(w->size, x->shape, sizeof w->size);
    w->of_channels = launch->index[0] != 0;
    w->given = launch->index[1] != 0;
    w->eps = launch->imm[0];
    w->along_c =
        w->size[MPT__NORM_S] == 1 || (x->stride[MPT__NORM_C] == 1 && x->stride[MPT__NORM_S] != 1);
    w->step = w->along_c ? MPT__NORM_C : MPT__NORM_S;
    w->line = w->along_c ? MPT__NORM_S : MPT__NORM_C;
    w->length = w->size[w->step];
    w->lines = w->size[w->line];
    w->chunk = mpt__ref_chunks(w->size[MPT__NORM_N], MPT__NORM_CHUNKS);
    if (w->chunk < MPT__NORM_CHUNK) w->chunk = MPT__NORM_CHUNK;
    w->chunks = mpt__ref_chunks(w->size[MPT__NORM_N], w->chunk);
}

static int64_t mpt__norm_channels(const mpt__norm_work *w) {
    return w->size[MPT__NORM_G] * w->size[MPT__NORM_C];
}

/* Where line `line` of [n, g] begins. */
static int64_t mpt__norm_at(const mpt__norm_work *w, int operand, int64_t n, int64_t g,
                            int64_t line) {
    const int64_t *stride = w->launch->operand[operand].stride;
    return n * stride[MPT__NORM_N] + g * stride[MPT__NORM_G] + line * stride[w->line];
}

/* m elements of an operand from element i of a line on, which begins at `at`. */
static const mpt__real *mpt__norm_in(const mpt__norm_work *w, int operand, int64_t at, int64_t i,
                                     mpt__real *block, int64_t m) {
    const int64_t step = mpt__norm_stride(w, operand, w->step);
    return mpt__ref_in(&w->view[operand], at + i * step, step, block, m);
}

/* Lanes of at most MPT__SUM_CHUNK elements join a sum, in a chunk that they do not overfill. */
static void mpt__norm_join_lanes(mpt__ref_sum *sum, const mpt__real *lane, int64_t n) {
    if (sum->count + n > MPT__SUM_CHUNK) mpt__ref_sum_close_chunk(sum);
    for (int l = 0; l < MPT__SUM_LANES; l++) sum->lane[l] += lane[l] + lane[l + MPT__SUM_LANES];
    sum->count += n;
}

/* Adds a line to a sum: its elements, or the squares of what they differ from *mean by. `held`: the
   line as it was loaded before, or NULL. */
static void mpt__norm_feed(const mpt__norm_work *w, mpt__ref_sum *sum, int operand, int64_t at,
                           const mpt__real *held, const mpt__real *mean) {
    mpt__real block[MPT__BLOCK], lane[MPT__NORM_LANES];
    for (int64_t i = 0, n; i < w->length; i += n) {
        n = mpt__ref_min(MPT__SUM_CHUNK, w->length - i);
        memset(lane, 0, sizeof lane);
        for (int64_t k = 0, m; k < n; k += m) {
            m = mpt__ref_min(MPT__BLOCK, n - k);
            const mpt__real *x =
                held != NULL ? held : mpt__norm_in(w, operand, at, i + k, block, m);
            w->words->norm_total(lane, x, 0, m, mean != NULL ? *mean : 0, mean != NULL);
        }
        mpt__norm_join_lanes(sum, lane, n);
    }
}

/* Adds dy weight, and that times x normalised, of m elements from i on of a line to two sums; the
   lanes are the caller's. */
static void mpt__norm_feed_slopes(const mpt__norm_work *w, mpt__ref_sum sum[2], mpt__real *lane,
                                  const mpt__real *x, const mpt__real *dy, int64_t i, int64_t m,
                                  const mpt__norm_line *l) {
    if (i % MPT__SUM_CHUNK == 0) memset(lane, 0, 2 * MPT__NORM_LANES * sizeof *lane);
    w->words->norm_sums(lane, x, dy, 0, m, l);
    if ((i + m) % MPT__SUM_CHUNK != 0 && i + m < w->length) return;
    const int64_t n = i + m - i / MPT__SUM_CHUNK * MPT__SUM_CHUNK;
    for (int k = 0; k < 2; k++) mpt__norm_join_lanes(&sum[k], lane + k * MPT__NORM_LANES, n);
}

static mpt__real mpt__norm_rstd(double variance, double eps) {
    double root = sqrt(variance + eps);
    return root == 0 ? 0 : (mpt__real)(1 / root);
}

/* The sum with the residual, rounded as it is stored. */
static void mpt__norm_add(const mpt__norm_work *w, int64_t n, int64_t g) {
    mpt__real a[MPT__BLOCK], b[MPT__BLOCK];
    const int64_t step = mpt__norm_stride(w, 5, w->step);
    for (int64_t line = 0; line < w->lines; line++) {
        for (int64_t i = 0, m; i < w->length; i += m) {
            m = mpt__ref_min(MPT__BLOCK, w->length - i);
            const mpt__real *x = mpt__norm_in(w, 0, mpt__norm_at(w, 0, n, g, line), i, a, m);
            const mpt__real *r = mpt__norm_in(w, 1, mpt__norm_at(w, 1, n, g, line), i, b, m);
            int64_t at = mpt__norm_at(w, 5, n, g, line) + i * step;
            mpt__real *sum = mpt__ref_out(&w->view[5], at, step, a);
            w->words->binary[MPT__BINARY_ADD](sum, x, r, m, 0, 0);
            mpt__ref_put(&w->view[5], at, step, sum, m);
        }
    }
}

static mpt__real mpt__norm_mean_of(const mpt__norm_work *w, int from, int64_t n, int64_t g,
                                   const mpt__real *held, const mpt__real *mean) {
    mpt__ref_sum sum;
    mpt__ref_sum_init(&sum, w->words);
    for (int64_t line = 0; line < w->lines; line++)
        mpt__norm_feed(w, &sum, from, mpt__norm_at(w, from, n, g, line), held, mean);
    return mpt__ref_sum_total(&sum) / (mpt__real)(w->lines * w->length);
}

/* Weight and bias (no data: the call has none) of m elements from i on of a line. */
static void mpt__norm_weights(const mpt__norm_work *w, mpt__norm_line *l, const mpt__ref_view *of,
                              const mpt__ref_view *bias, int64_t g, int64_t line, int64_t i,
                              int64_t m, mpt__real block[2][MPT__BLOCK]) {
    int64_t at = g * w->size[MPT__NORM_C] + (w->along_c ? i : line);
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

/* The one line of [n, g], where it is not longer than a block: loaded once for all passes. */
static const mpt__real *mpt__norm_held(const mpt__norm_work *w, int operand, int64_t n, int64_t g,
                                       mpt__real *block) {
    if (w->lines > 1 || w->length > MPT__BLOCK) return NULL;
    return mpt__norm_in(w, operand, mpt__norm_at(w, operand, n, g, 0), 0, block, w->length);
}

static void mpt__norm_whole(const mpt__norm_work *w, int64_t n, int64_t g) {
    mpt__real in[MPT__BLOCK], out[MPT__BLOCK], weights[2][MPT__BLOCK];
    const int from = w->view[5].data != NULL ? 5 : 0;
    const int64_t to = mpt__norm_stride(w, 4, w->step), at = n * w->size[MPT__NORM_G] + g;
    mpt__norm_line l;
    if (w->view[1].data != NULL) mpt__norm_add(w, n, g);
    const mpt__real *held = mpt__norm_held(w, from, n, g, in);
    l.mean = 0;
    if (w->view[6].data != NULL) {
        l.mean = mpt__norm_mean_of(w, from, n, g, held, NULL);
        mpt__ref_put_one(&w->view[6], at, l.mean);
    }
    l.rstd = mpt__norm_rstd((double)mpt__norm_mean_of(w, from, n, g, held, &l.mean), w->eps);
    mpt__ref_put_one(&w->view[7], at, l.rstd);
    for (int64_t line = 0; line < w->lines; line++) {
        int64_t begin = mpt__norm_at(w, from, n, g, line), place = mpt__norm_at(w, 4, n, g, line);
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i);
            mpt__norm_weights(w, &l, &w->view[2], &w->view[3], g, line, i, m, weights);
            const mpt__real *x = held != NULL ? held : mpt__norm_in(w, from, begin, i, in, m);
            mpt__real *y = mpt__ref_out(&w->view[4], place + i * to, to, out);
            w->words->norm(y, x, 0, m, &l);
            mpt__ref_put(&w->view[4], place + i * to, to, y, m);
        }
    }
}

/* Sums of dy weight and dy weight x normalised; where a line has one weight, those without it go to
   the gradients of that. held: x and dy, or NULL. */
static void mpt__norm_slopes(const mpt__norm_work *w, int64_t n, int64_t g, mpt__norm_line *l,
                             const mpt__real *const held[2], mpt__real *const gradient[2],
                             mpt__real total[2]) {
    mpt__real in[2][MPT__BLOCK], weights[2][MPT__BLOCK], lane[2 * MPT__NORM_LANES];
    const mpt__ref_view none = {NULL, NULL, 0, false};
    total[0] = total[1] = 0;
    for (int64_t line = 0; line < w->lines; line++) {
        mpt__ref_sum sum[2];
        for (int k = 0; k < 2; k++) mpt__ref_sum_init(&sum[k], w->words);
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i);
            const mpt__real *x[2];
            for (int k = 0; k < 2; k++)
                x[k] = held[k] != NULL
                           ? held[k]
                           : mpt__norm_in(w, k, mpt__norm_at(w, k, n, g, line), i, in[k], m);
            mpt__norm_weights(w, l, w->along_c ? &w->view[2] : &none, &none, g, line, i, m,
                              weights);
            mpt__norm_feed_slopes(w, sum, lane, x[0], x[1], i, m, l);
        }
        if (!w->along_c) mpt__norm_weights(w, l, &w->view[2], &none, g, line, 0, 1, weights);
        for (int k = 0; k < 2; k++) {
            mpt__real part = mpt__ref_sum_total(&sum[k]);
            if (!w->along_c && gradient[1 - k] != NULL) gradient[1 - k][line] += part;
            total[k] += part * (w->along_c ? 1 : l->weight);
        }
    }
}

/* Gradients of [n, g]; those of its channels are added to gradient[0], weights, and [1], biases. */
static void mpt__norm_back(const mpt__norm_work *w, int64_t n, int64_t g,
                           mpt__real *const gradient[2]) {
    static const uint8_t operand[4] = {0, 1, 5, 6};
    mpt__real in[3][MPT__BLOCK], out[MPT__BLOCK], weights[2][MPT__BLOCK], total[2];
    const mpt__ref_view none = {NULL, NULL, 0, false};
    const mpt__real *held[2], count = (mpt__real)(w->lines * w->length);
    int64_t at = n * w->size[MPT__NORM_G] + g;
    bool centred = w->view[3].data != NULL, wanted = w->view[6].data != NULL;
    mpt__norm_line l;
    for (int k = 0; k < 2; k++) held[k] = mpt__norm_held(w, k, n, g, in[k]);
    l.mean = centred ? mpt__ref_get_one(&w->view[3], at) : 0;
    l.rstd = mpt__ref_get_one(&w->view[4], at);
    mpt__norm_slopes(w, n, g, &l, held, gradient, total);
    l.shift = centred ? total[0] / count : 0;
    l.slope = total[1] / count;
    if (!wanted && !w->along_c) return;
    for (int64_t line = 0; line < w->lines; line++) {
        for (int64_t i = 0; i < w->length; i += MPT__BLOCK) {
            int64_t m = mpt__ref_min(MPT__BLOCK, w->length - i), place = 0, step = 1;
            const mpt__real *x[3] = {held[0], held[1], NULL};
            for (int k = 0; k < 4; k++) {
                const int o = operand[k];
                if (w->view[o].data == NULL || (k < 2 && x[k] != NULL)) continue;
                place = mpt__norm_at(w, o, n, g, line);
                if (k < 3) x[k] = mpt__norm_in(w, o, place, i, in[k], m);
            }
            if (wanted) step = mpt__norm_stride(w, 6, w->step), place += i * step;
            mpt__norm_weights(w, &l, &w->view[2], &none, g, line, i, m, weights);
            l.dw = w->along_c && gradient[0] != NULL ? gradient[0] + i : NULL;
            l.db = w->along_c && gradient[1] != NULL ? gradient[1] + i : NULL;
            mpt__real *dx = wanted ? mpt__ref_out(&w->view[6], place, step, out) : out;
            w->words->norm_slope(dx, x[0], x[1], 0, m, &l);
            if (!wanted) continue;
            if (x[2] != NULL) w->words->binary[MPT__BINARY_ADD](dx, dx, x[2], m, 0, 0);
            mpt__ref_put(&w->view[6], place, step, dx, m);
        }
    }
}

static void mpt__norm_task(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    int64_t g = task % w->size[MPT__NORM_G], chunk = task / w->size[MPT__NORM_G];
    int64_t end = mpt__ref_min((chunk + 1) * w->chunk, w->size[MPT__NORM_N]);
    (void)thread;
    for (int64_t n = chunk * w->chunk; n < end; n++) mpt__norm_whole(w, n, g);
}

static void mpt__norm_back_task(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    const int64_t channels = mpt__norm_channels(w), c = w->size[MPT__NORM_C];
    int64_t g = task % w->size[MPT__NORM_G], chunk = task / w->size[MPT__NORM_G];
    int64_t end = mpt__ref_min((chunk + 1) * w->chunk, w->size[MPT__NORM_N]);
    mpt__real *gradient[2] = {NULL, NULL};
    (void)thread;
    for (int k = 0; k < 2; k++) {
        if (w->view[7 + k].data == NULL) continue;
        gradient[k] = w->partial + (2 * chunk + k) * channels + g * c;
        memset(gradient[k], 0, (size_t)c * sizeof *gradient[k]);
    }
    for (int64_t n = chunk * w->chunk; n < end; n++) mpt__norm_back(w, n, g, gradient);
}

/* The gradients of weight and bias: the chunks in pairs, pairs of pairs and so on. */
static void mpt__norm_join(void *work, int64_t task, int thread) {
    const mpt__norm_work *w = (const mpt__norm_work *)work;
    const int64_t channels = mpt__norm_channels(w), begin = task / 2 * MPT__BLOCK;
    const int64_t n = mpt__ref_min(MPT__BLOCK, channels - begin), step = channels * 2;
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

/* ---- Batches ----
 *
 * In the order of memory: rows of all channels where those lie innermost, else planes of one
 * channel after the other. Chunks of rows or of samples leave what they found about each channel.
 */

#ifndef MPTRAIN_NO_CONV
/* Rows, elements of planes, of a chunk; channels of a task: of rows, of planes. */
#define MPT__BATCH_ROWS 256
#define MPT__BATCH_PLANES 8192
#define MPT__BATCH_COLUMNS (MPT__BLOCK / 4)
#define MPT__BATCH_CHANNELS 16

enum { MPT__BATCH_SUM, MPT__BATCH_SQUARES, MPT__BATCH_NORM, MPT__BATCH_SLOPES, MPT__BATCH_SLOPE };
/* Numbers of each channel; in backward bias is shift. */
enum { MPT__OF_MEAN, MPT__OF_RSTD, MPT__OF_WEIGHT, MPT__OF_BIAS, MPT__OF_SLOPE, MPT__OF_COUNT };

typedef struct mpt__batches_work {
    mpt__norm_work w;
    int pass;
    int64_t rows, chunk, chunks, tile, tiles, channels;
    mpt__real *partial, *of[MPT__OF_COUNT]; /* [chunks, 2, C]; [C] */
} mpt__batches_work;

static void mpt__batches_setup(mpt__batches_work *b, const mpt__launch *launch) {
    mpt__norm_setup(&b->w, launch);
    const bool along_c = b->w.along_c;
    const int64_t *size = b->w.size;
    b->channels = size[MPT__NORM_C];
    b->rows = along_c ? mpt__ref_times(size[MPT__NORM_N], size[MPT__NORM_S]) : size[MPT__NORM_N];
    b->chunk =
        along_c ? MPT__BATCH_ROWS : mpt__ref_chunks(MPT__BATCH_PLANES, size[MPT__NORM_S] + 1);
    b->chunks = mpt__ref_chunks(b->rows, b->chunk);
    b->tile = along_c ? MPT__BATCH_COLUMNS : MPT__BATCH_CHANNELS;
    b->tiles = mpt__ref_chunks(b->channels, b->tile);
}

/* Where channel c of a row, or of a sample, begins. */
static int64_t mpt__batches_at(const mpt__norm_work *w, int operand, int64_t row, int64_t c) {
    const int64_t *stride = w->launch->operand[operand].stride, s = w->size[MPT__NORM_S];
    int64_t at = c * stride[MPT__NORM_C];
    if (!w->along_c) return at + row * stride[MPT__NORM_N];
    return at + row / s * stride[MPT__NORM_N] + row % s * stride[MPT__NORM_S];
}

/* One row of a pass, n channels from `first` on. */
static void mpt__batches_row(const mpt__batches_work *b, int64_t row, int64_t first, int64_t n,
                             mpt__real *sum[2]) {
    const mpt__norm_work *w = &b->w;
    const mpt__binary_fn *word = w->words->binary;
    const int to = b->pass == MPT__BATCH_NORM ? 4 : 6;
    mpt__real in[2][MPT__BATCH_COLUMNS], t[MPT__BATCH_COLUMNS];
    const mpt__real *x[2] = {NULL, NULL}, *of[MPT__OF_COUNT];
    for (int k = 0; k < (b->pass < MPT__BATCH_SLOPES ? 1 : 2); k++)
        x[k] = mpt__norm_in(w, k, mpt__batches_at(w, k, row, first), 0, in[k], n);
    for (int k = 0; k < MPT__OF_COUNT; k++) of[k] = b->of[k] + first;
    if (b->pass == MPT__BATCH_SUM) {
        word[MPT__BINARY_ADD](sum[0], sum[0], x[0], n, 0, 0);
        return;
    }
    word[MPT__BINARY_SUB](t, x[0], of[MPT__OF_MEAN], n, 0, 0);
    if (b->pass == MPT__BATCH_SQUARES || b->pass == MPT__BATCH_SLOPES) {
        const bool squares = b->pass == MPT__BATCH_SQUARES;
        word[MPT__BINARY_MUL](t, t, squares ? t : x[1], n, 0, 0);
        word[MPT__BINARY_ADD](sum[1], sum[1], t, n, 0, 0);
        if (!squares) word[MPT__BINARY_ADD](sum[0], sum[0], x[1], n, 0, 0);
        return;
    }
    word[MPT__BINARY_MUL](t, t, of[MPT__OF_RSTD], n, 0, 0);
    if (b->pass == MPT__BATCH_NORM) {
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_WEIGHT], n, 0, 0);
        word[MPT__BINARY_ADD](t, t, of[MPT__OF_BIAS], n, 0, 0);
    } else {
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_SLOPE], n, 0, 0);
        word[MPT__BINARY_MUL](in[0], x[1], of[MPT__OF_WEIGHT], n, 0, 0);
        word[MPT__BINARY_SUB](in[0], in[0], of[MPT__OF_BIAS], n, 0, 0);
        word[MPT__BINARY_SUB](t, in[0], t, n, 0, 0);
        word[MPT__BINARY_MUL](t, t, of[MPT__OF_RSTD], n, 0, 0);
    }
    mpt__ref_put(&w->view[to], mpt__batches_at(w, to, row, first),
                 mpt__norm_stride(w, to, MPT__NORM_C), t, n);
}

/* Joins mean and sum of squares of what differs from it, of n and of more numbers (Chan, Golub,
   LeVeque 1979). */
static void mpt__batches_join(mpt__real *mean, mpt__real *squares, int64_t n, mpt__real more_mean,
                              mpt__real more_squares, int64_t more) {
    const mpt__real all = (mpt__real)(n + more), d = more_mean - *mean;
    *mean += d * ((mpt__real)more / all);
    *squares += more_squares + d * d * ((mpt__real)n * ((mpt__real)more / all));
}

/* Channel c of a sample; `before`: samples of the chunk that came before it. */
static void mpt__batches_plane(const mpt__batches_work *b, int64_t row, int64_t c, int64_t before,
                               mpt__real *sum[2]) {
    const mpt__norm_work *w = &b->w;
    const int to = b->pass == MPT__BATCH_NORM ? 4 : 6;
    mpt__real in[2][MPT__BLOCK], out[MPT__BLOCK], lane[2 * MPT__NORM_LANES];
    mpt__ref_sum total[2];
    mpt__norm_line l;
    memset(&l, 0, sizeof l);
    for (int k = 0; k < 2; k++) mpt__ref_sum_init(&total[k], w->words);
    if (b->pass == MPT__BATCH_SUM) {
        const int64_t at = mpt__batches_at(w, 0, row, c);
        const mpt__real *held =
            w->length <= MPT__BLOCK ? mpt__norm_in(w, 0, at, 0, in[0], w->length) : NULL;
        mpt__norm_feed(w, &total[0], 0, at, held, NULL);
        const mpt__real mean = mpt__ref_sum_total(&total[0]) / (mpt__real)w->length;
        mpt__norm_feed(w, &total[1], 0, at, held, &mean);
        mpt__batches_join(sum[0], sum[1], before * w->length, mean, mpt__ref_sum_total(&total[1]),
                          w->length);
        return;
    }
    l.mean = b->of[MPT__OF_MEAN][c];
    l.rstd = l.weight = 1;
    if (b->pass != MPT__BATCH_SLOPES) {
        l.rstd = b->of[MPT__OF_RSTD][c];
        l.weight = b->of[MPT__OF_WEIGHT][c];
        l.bias = l.shift = b->of[MPT__OF_BIAS][c];
        l.slope = b->of[MPT__OF_SLOPE][c];
    }
    for (int64_t i = 0, m; i < w->length; i += m) {
        const mpt__real *x[2] = {NULL, NULL};
        m = mpt__ref_min(MPT__BLOCK, w->length - i);
        for (int k = 0; k < (b->pass == MPT__BATCH_NORM ? 1 : 2); k++)
            x[k] = mpt__norm_in(w, k, mpt__batches_at(w, k, row, c), i, in[k], m);
        if (b->pass == MPT__BATCH_SLOPES) {
            mpt__norm_feed_slopes(w, total, lane, x[0], x[1], i, m, &l);
            continue;
        }
        const int64_t step = mpt__norm_stride(w, to, MPT__NORM_S);
        const int64_t place = mpt__batches_at(w, to, row, c) + i * step;
        mpt__real *y = mpt__ref_out(&w->view[to], place, step, out);
        if (to == 4)
            w->words->norm(y, x[0], 0, m, &l);
        else
            w->words->norm_slope(y, x[0], x[1], 0, m, &l);
        mpt__ref_put(&w->view[to], place, step, y, m);
    }
    for (int k = 0; k < 2 && b->pass == MPT__BATCH_SLOPES; k++)
        *sum[k] += mpt__ref_sum_total(&total[k]);
}

static void mpt__batches_chunk(void *work, int64_t task, int thread) {
    const mpt__batches_work *b = (const mpt__batches_work *)work;
    int64_t begin = task / b->tiles * b->chunk, first = task % b->tiles * b->tile;
    int64_t end = mpt__ref_min(begin + b->chunk, b->rows);
    int64_t n = mpt__ref_min(b->tile, b->channels - first);
    mpt__real *sum[2], *one[2];
    (void)thread;
    for (int k = 0; k < 2; k++) {
        sum[k] = b->partial + (2 * (task / b->tiles) + k) * b->channels + first;
        memset(sum[k], 0, (size_t)n * sizeof *sum[k]);
    }
    for (int64_t row = begin; row < end; row++) {
        if (b->w.along_c) {
            mpt__batches_row(b, row, first, n, sum);
            continue;
        }
        for (int64_t c = 0; c < n; c++) {
            one[0] = sum[0] + c, one[1] = sum[1] + c;
            mpt__batches_plane(b, row, first + c, row - begin, one);
        }
    }
}

/* The chunks of a pass in pairs, pairs of pairs and so on. */
static void mpt__batches_fold(const mpt__batches_work *b, int64_t first, int64_t n) {
    const int64_t step = 2 * b->channels, each = b->chunk * b->w.length;
    for (int64_t by = 1; by < b->chunks; by *= 2) {
        for (int64_t j = 0; j + by < b->chunks; j += 2 * by) {
            mpt__real *to = b->partial + j * step + first, *from = to + by * step;
            const int64_t all = b->rows * b->w.length, begin = (j + by) * each;
            const int64_t more = mpt__ref_min(begin + by * each, all) - begin;
            for (int64_t i = 0; i < n; i++) {
                if (!b->w.along_c && b->pass == MPT__BATCH_SUM) {
                    mpt__batches_join(&to[i], &to[i + b->channels], by * each, from[i],
                                      from[i + b->channels], more);
                } else {
                    to[i] += from[i];
                    to[i + b->channels] += from[i + b->channels];
                }
            }
        }
    }
}

/* What follows from a pass for each channel. */
static void mpt__batches_end(void *work, int64_t tile, int thread) {
    const mpt__batches_work *b = (const mpt__batches_work *)work;
    const mpt__norm_work *w = &b->w;
    int64_t first = tile * b->tile, n = mpt__ref_min(b->tile, b->channels - first);
    const mpt__real count = (mpt__real)(w->size[MPT__NORM_N] * w->size[MPT__NORM_S]);
    mpt__real *sum[2], *of[MPT__OF_COUNT];
    const bool sums = b->pass == MPT__BATCH_SUM;
    (void)thread;
    mpt__batches_fold(b, first, n);
    for (int k = 0; k < MPT__OF_COUNT; k++) of[k] = b->of[k] + first;
    for (int k = 0; k < 2; k++) sum[k] = b->partial + k * b->channels + first;
    for (int64_t i = 0; i < n; i++) {
        const mpt__real weight = of[MPT__OF_WEIGHT][i];
        if (sums) of[MPT__OF_MEAN][i] = w->along_c ? sum[0][i] / count : sum[0][i];
        if (b->pass == MPT__BATCH_SLOPES) {
            sum[1][i] *= of[MPT__OF_RSTD][i];
            of[MPT__OF_BIAS][i] = w->given ? 0 : sum[0][i] * weight / count;
            of[MPT__OF_SLOPE][i] = w->given ? 0 : sum[1][i] * weight / count;
        } else if (!sums || !w->along_c) {
            sum[1][i] /= count;
            of[MPT__OF_RSTD][i] = mpt__norm_rstd((double)sum[1][i], w->eps);
        }
    }
    if (sums) mpt__ref_put(&w->view[6], first, 1, of[MPT__OF_MEAN], n);
    if (b->pass == MPT__BATCH_SLOPES) {
        for (int k = 0; k < 2; k++)
            if (w->view[7 + k].data != NULL) mpt__ref_put(&w->view[7 + k], first, 1, sum[1 - k], n);
    } else if (!sums || !w->along_c) {
        mpt__ref_put(&w->view[7], first, 1, of[MPT__OF_RSTD], n);
        if (w->view[8].data != NULL) mpt__ref_put(&w->view[8], first, 1, sum[1], n);
    }
}

/* The numbers of an operand, or `otherwise` where it is absent, for all channels. */
static void mpt__batches_get(const mpt__batches_work *b, int operand, int of, mpt__real otherwise) {
    const mpt__ref_view *view = &b->w.view[operand];
    for (int64_t i = 0; i < b->channels; i++)
        b->of[of][i] = view->data != NULL ? mpt__ref_get_one(view, i) : otherwise;
}

static void mpt__batches_pass(const mpt__cpu_call *call, mpt__batches_work *b, int pass, double ns,
                              bool ends) {
    b->pass = pass;
    mpt__parallel(call->pool, b->chunks * b->tiles,
                  mpt__ref_cost(call, mpt__ref_numel(&call->launch->operand[0]), ns),
                  mpt__batches_chunk, b);
    if (ends) mpt__parallel(call->pool, b->tiles, b->channels * b->chunks, mpt__batches_end, b);
}

static void mpt__norm_batch(const mpt__cpu_call *call, const mpt__norm_work *w, bool back) {
    mpt__batches_work b;
    mpt__batches_setup(&b, call->launch);
    b.w = *w;
    b.partial = (mpt__real *)call->workspace;
    for (int k = 0; k < MPT__OF_COUNT; k++) b.of[k] = b.partial + (2 * b.chunks + k) * b.channels;
    mpt__batches_get(&b, 2, MPT__OF_WEIGHT, 1);
    if (back) {
        mpt__batches_get(&b, 3, MPT__OF_MEAN, 0);
        mpt__batches_get(&b, 4, MPT__OF_RSTD, 1);
        mpt__batches_pass(call, &b, MPT__BATCH_SLOPES, 6.0, true);
        if (w->view[6].data != NULL) mpt__batches_pass(call, &b, MPT__BATCH_SLOPE, 10.0, false);
        return;
    }
    mpt__batches_get(&b, 3, MPT__OF_BIAS, 0);
    if (w->given) {
        mpt__batches_get(&b, 6, MPT__OF_MEAN, 0);
        mpt__batches_get(&b, 8, MPT__OF_RSTD, 0);
        for (int64_t i = 0; i < b.channels; i++)
            b.of[MPT__OF_RSTD][i] = mpt__norm_rstd((double)b.of[MPT__OF_RSTD][i], w->eps);
        for (int64_t i = 0; i < b.channels; i++)
            mpt__ref_put_one(&w->view[7], i, b.of[MPT__OF_RSTD][i]);
    } else {
        mpt__batches_pass(call, &b, MPT__BATCH_SUM, 5.0, true);
        if (w->along_c) mpt__batches_pass(call, &b, MPT__BATCH_SQUARES, 5.0, true);
    }
    mpt__batches_pass(call, &b, MPT__BATCH_NORM, 8.0, false);
}
#endif

/* ---- The kernels ---- */

static int64_t mpt__norm_workspace(const mpt__launch *launch, int threads) {
    mpt__norm_work w;
    (void)threads;
    mpt__norm_setup(&w, launch);
#ifndef MPTRAIN_NO_CONV
    if (w.of_channels) {
        mpt__batches_work b;
        mpt__batches_setup(&b, launch);
        return (2 * b.chunks + MPT__OF_COUNT) * b.channels * (int64_t)sizeof(mpt__real);
    }
#endif
    if (launch->kernel == MPT__K_NORM) return 0;
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
    if (w.of_channels) {
        mpt__norm_batch(call, &w, back);
        return;
    }
#endif
    mpt__parallel(call->pool, w.chunks * w.size[MPT__NORM_G],
                  mpt__ref_cost(call, all, back ? 8.0 : 5.0),
                  back ? mpt__norm_back_task : mpt__norm_task, &w);
    if (back)
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
static MPT__INLINE void mpt__pooling_take(mpt__real x, int64_t at, mpt__real *best,
                                          int32_t *index) {
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
                const mpt__real size = (mpt__real)(high * mpt__pooling_bounds(w, 1, ow, &a, &b));
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
        (back ? mpt__pooling_back_line : mpt__pooling_line)(w, rest / o->shape[1],
                                                            rest % o->shape[1], rows);
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
