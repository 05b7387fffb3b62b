/* ----
 * cpu/norm.c: normalisation on the CPU.
 *
 * A norm sees [N, G, C, S]. Rows and groups are taken by one thread as a whole, in lines along C,
 * with a weight for each element, or along S, with one for all: passes of which memory sees one.
 * Batches go by chunks of rows of channels, or of planes of one channel.
 * ---- */
#ifndef MPT__CPU_NORM_INCLUDED
#define MPT__CPU_NORM_INCLUDED

#include "cpu/conv_rows.c"

#ifdef MPT__HAS_NORMS

/* ==== Norms ==== */

enum { MPT__NORM_N, MPT__NORM_G, MPT__NORM_C, MPT__NORM_S };

typedef struct {
    const mpt__launch *launch;
    const mpt__routines *routines;
    mpt__cpu_view view[MPT__MAX_OPERANDS];
    int64_t size[4];        /* of x */
    int part[MPT__PARTS];   /* operands; -1: none */
    char *data[MPT__PARTS]; /* of parts, and bytes from one to the next; elements if not direct */
    int64_t bytes[MPT__PARTS][4];
    uint8_t dtype;
    bool of_channels, given, relu, back; /* relu follows */
    bool along_c, direct;                /* all parts can be computed with where they lie */
    int64_t lines, length, line, step;   /* of [n, g]: their dimensions line and step */
    double eps;
    int64_t group, groups;          /* of a task; tasks of all groups */
    int64_t chunk, chunks;          /* of n, whose gradients of weight and bias add up in a row */
    const mpt__real *weight, *bias; /* of all channels */
    const mpt__real *paired[2];     /* the same as passes take them */
    mpt__real *partial;             /* [chunks, 2, G C] */
    mpt__real *numbers;             /* of groups in planes, for each thread */
    int64_t numbers_each;
    bool passes, beyond_cache; /* rows of one group: as of mpt__norm_passes; of a block */
    bool adds;                 /* passes: to the gradient of x that is there */
} mpt__norm_work;

/* Chunks of n, each of which leaves one result: not too many. */
#define MPT__NORM_CHUNKS 64
#define MPT__NORM_CHUNK 8
/* Elements of a sum in float; longer ones are in double. */
#define MPT__NORM_PIECE 4096
/* Rows, elements of planes, of a chunk of a batch. */
#define MPT__BATCH_ROWS 256
#define MPT__BATCH_PLANES 8192
/* Elements better written past the caches: with what is read more than most have. */
#define MPT__NORM_BEYOND_CACHE (INT64_C(8) << 20)
/* Elements of a row whose gradient is kept until it is added to what is there. */
#define MPT__NORM_KEPT 2048
/* So many of n give a number near the mean: sums of squares of what differs from that lose no more
   than the bits of n / MPT__NORM_SOME(n) <= 16. */
#define MPT__NORM_SOME(n) ((n) < 512 ? mpt__cpu_min(n, 32) : (n) / 512 * 32)
/* Channels and bytes of groups that go together: while those are read for the first time, what the
   ones before stored is on its way out of the core. From so many bytes of x on, which come from far
   away, fewer go together, and writing asks for the next ones: half as many backward, as many as of
   floats forward (group norms of 2 x 196, 13 % to 37 %). */
#define MPT__NORM_CHANNELS 64
#define MPT__NORM_NEAR 4096
#define MPT__NORM_FETCHED (INT64_C(2) << 20)
#define MPT__PART_BIT(part) (1 << MPT__PART_##part)

/* Numbers of each channel. */
enum {
    MPT__OF_MEAN,
    MPT__OF_RSTD,
    MPT__OF_WEIGHT,
    MPT__OF_BIAS,
    MPT__OF_SHIFT,
    MPT__OF_SLOPE,
    MPT__OF_COUNT
};

static void mpt__norm_setup(mpt__norm_work *w, const mpt__launch *launch) {
    const mpt__operand *x = &launch->operand[0];
    memset(w, 0, sizeof *w);
    w->launch = launch;
    memcpy(w->size, x->shape, sizeof w->size);
    w->back = launch->kernel == MPT__K_NORM_BACKWARD;
    w->of_channels = launch->index[0] != 0;
    w->given = launch->index[1] != 0;
    w->relu = launch->index[2] != 0;
    w->eps = launch->imm[0];
    w->along_c =
        w->size[MPT__NORM_S] == 1 || (x->stride[MPT__NORM_C] == 1 && x->stride[MPT__NORM_S] != 1);
    w->step = w->along_c ? MPT__NORM_C : MPT__NORM_S;
    w->line = w->along_c ? MPT__NORM_S : MPT__NORM_C;
    w->length = w->size[w->step];
    w->lines = w->size[w->line];
    w->chunk = mpt__cpu_chunks(w->size[MPT__NORM_N], MPT__NORM_CHUNKS);
    if (w->chunk < MPT__NORM_CHUNK) w->chunk = MPT__NORM_CHUNK;
    w->chunks = mpt__cpu_chunks(w->size[MPT__NORM_N], w->chunk);
    w->group = MPT__NORM_PIECE * 4 / (mpt__cpu_times(w->lines, w->length) + 1) + 1;
    w->groups = mpt__cpu_chunks(w->size[MPT__NORM_G], w->group);
#ifndef MPTRAIN_NO_CONV
    const int64_t most =
        w->size[MPT__NORM_C] > MPT__NORM_CHANNELS ? w->size[MPT__NORM_C] : MPT__NORM_CHANNELS;
    w->numbers_each = 8 * most; /* as many as mpt__norm_groups_back has of a channel */
#endif
}

static int64_t mpt__norm_channels(const mpt__norm_work *w) {
    return w->size[MPT__NORM_G] * w->size[MPT__NORM_C];
}

/* A level's routines for rows of lanes: all parts are computed with where they lie, and there are
   no others than x and dy. */
static bool mpt__norm_in_passes(const mpt__norm_work *w) {
    return w->routines->norm_next && w->direct && w->along_c && !w->of_channels && w->lines == 1 &&
        w->size[MPT__NORM_G] == 1 && w->length % MPT__NORM_LANES == 0 &&
        w->length <= (w->adds ? MPT__NORM_KEPT : MPT__NORM_PIECE) && !w->relu &&
        w->part[MPT__PART_MORE] < 0 && w->part[MPT__PART_OUT] >= 0 &&
        (!w->view[w->back ? 3 : 6].data || mpt__cpu_is_real(w->view[w->back ? 3 : 6].dtype)) &&
        mpt__cpu_is_real(w->view[w->back ? 4 : 7].dtype);
}

/* The parts: of rows with a residual x is the sum, of batches the residual comes after. */
static const int8_t mpt__norm_parts[2][MPT__PARTS] = {{0, -1, 1, 4, -1}, {0, 1, 5, 6, 9}};

static void mpt__norm_find_parts(mpt__norm_work *w) {
    int dtype = MPT_DTYPE_NONE;
    for (int k = 0; k < MPT__PARTS; k++) {
        const int at = mpt__norm_parts[w->back][k];
        w->part[k] = at >= 0 && w->view[at].data ? at : -1;
    }
    if (!w->back && !w->of_channels) w->part[MPT__PART_MORE] = -1;
    if (!w->back && w->view[5].data) w->part[MPT__PART_X] = 5;
    w->direct = true;
    for (int k = 0; k < MPT__PARTS; k++) {
        if (w->part[k] < 0) continue;
        const mpt__operand *o = &w->launch->operand[w->part[k]];
        if (k == 0) dtype = o->dtype;
        const bool adds = o->access == MPT__ACCUMULATE;
        w->adds = w->adds || (adds && k == MPT__PART_OUT);
        w->direct = w->direct && o->dtype == dtype && (!adds || k == MPT__PART_OUT) &&
            (o->stride[w->step] == 1 || w->length == 1);
    }
    w->direct =
        w->direct && (mpt__cpu_is_real(dtype) || (w->routines->typed && mpt__cpu_is_half(dtype)));
    w->passes = mpt__norm_in_passes(w);
    w->direct = w->direct && (!w->adds || (w->passes && dtype == MPT_F32));
    w->passes = w->passes && w->direct;
    w->dtype = (uint8_t)(w->direct ? dtype : MPT_F32);
    const int64_t size = w->direct ? (int64_t)mpt_dtype_size((mpt_dtype)dtype) : 1;
    for (int k = 0; k < MPT__PARTS; k++) {
        if (w->part[k] < 0) continue;
        w->data[k] = (char *)w->view[w->part[k]].data;
        for (int d = 0; d < 4; d++)
            w->bytes[k][d] = w->launch->operand[w->part[k]].stride[d] * size;
    }
    if (!w->direct) return;
    const int64_t *out = w->bytes[MPT__PART_OUT];
    w->beyond_cache = mpt__cpu_numel(&w->launch->operand[0]) >= MPT__NORM_BEYOND_CACHE &&
        w->data[MPT__PART_OUT] && !w->adds && w->length % 32 == 0 &&
        (((uintptr_t)w->data[MPT__PART_OUT] | (uintptr_t)out[0] | (uintptr_t)out[1] |
             (uintptr_t)(w->lines > 1 ? out[w->line] : 0)) &
            63) == 0;
}

/* A routine on the rows of a block, in pieces that are loaded and converted in turn. */
static void mpt__norm_pieces(const mpt__norm_work *w, mpt__norm_fn word, mpt__norm_block *b,
    const int64_t at[MPT__PARTS], const int64_t by[MPT__PARTS]) {
    mpt__real block[MPT__PARTS][MPT__BLOCK], lane[2 * MPT__NORM_LANES];
    const bool sums = word == w->routines->norm_sums, each = sums && b->mode == MPT__NORM_ROWS;
    mpt__norm_block one = *b;
    memset(lane, 0, sizeof lane);
    one.lane = lane;
    one.rows = 1;
    for (int64_t r = 0; r < b->rows; r++) {
        for (int64_t i = 0; i < b->n; i += MPT__BLOCK) {
            const int64_t n = mpt__cpu_min(MPT__BLOCK, b->n - i);
            one.n = n;
            mpt__norm_begin_at(&one, b, sums && !each ? 0 : r, i);
            if (each) one.sum[0] = one.sum[1] = NULL;
            for (int k = 0; k < MPT__PARTS; k++) {
                if (!b->data[k]) continue;
                const mpt__cpu_view *view = &w->view[w->part[k]];
                const int64_t step = w->launch->operand[w->part[k]].stride[w->step];
                const int64_t place = at[k] + r * by[k] + i * step;
                mpt__real *data = block[k];
                if (k < MPT__PART_OUT)
                    mpt__cpu_get(view, place, step, data, n);
                else
                    data = mpt__cpu_out(view, place, step, data);
                one.data[k] = (char *)data;
            }
            word(&one);
            for (int k = MPT__PART_OUT; k < MPT__PARTS; k++) {
                if (!b->data[k]) continue;
                const int64_t step = w->launch->operand[w->part[k]].stride[w->step];
                mpt__cpu_put(&w->view[w->part[k]], at[k] + r * by[k] + i * step, step,
                    (const mpt__real *)(const void *)one.data[k], n);
            }
        }
        for (int k = 0; each && k < 2; k++) b->sum[k][r] += one.total[k];
        if (each) memset(lane, 0, sizeof lane);
    }
    memcpy(b->total, one.total, sizeof one.total);
}

/* A routine on b->rows rows along `dim` from [n, g, c, s] on, with some of the parts. */
static void mpt__norm_do(const mpt__norm_work *w, mpt__norm_fn word, mpt__norm_block *b,
    const int64_t from[4], int64_t dim, int parts) {
    int64_t at[MPT__PARTS], by[MPT__PARTS];
    b->dtype = w->dtype;
    for (int k = 0; k < MPT__PARTS; k++) {
        b->data[k] = NULL;
        if (!(parts >> k & 1) || w->part[k] < 0) continue;
        const int64_t *bytes = w->bytes[k];
        b->step[k] = by[k] = bytes[dim];
        at[k] = from[0] * bytes[0] + from[1] * bytes[1] + from[2] * bytes[2] + from[3] * bytes[3];
        b->data[k] = w->data[k] + (w->direct ? at[k] : 0);
    }
    if (w->direct)
        word(b);
    else
        mpt__norm_pieces(w, word, b, at, by);
}

/* The totals of lines of n elements, by pieces. */
static void mpt__norm_total(const mpt__norm_work *w, mpt__norm_block *b, const int64_t from[4],
    int64_t rows, int64_t n, int parts, double total[2]) {
    const mpt__real *weight = b->weight;
    int64_t place[4], by = 1;
    total[0] = total[1] = 0;
    if (n < MPT__NORM_PIECE / 2) by = rows > 1 ? MPT__NORM_PIECE / n : rows;
    memcpy(place, from, sizeof place);
    b->mode = MPT__NORM_LINES;
    for (int64_t r = 0; r < rows; r += by)
        for (int64_t i = 0; i < n; i += MPT__NORM_PIECE) {
            b->rows = mpt__cpu_min(by, rows - r), b->n = mpt__cpu_min(MPT__NORM_PIECE, n - i);
            place[w->line] = from[w->line] + r, place[w->step] = from[w->step] + i;
            b->weight = mpt__norm_from(weight, i);
            mpt__norm_do(w, w->routines->norm_sums, b, place, w->line, parts);
            for (int k = 0; k < 2; k++) total[k] += (double)b->total[k];
        }
    b->weight = weight;
}

/* Of a variance as fp32 has it, unless that has none such. */
static mpt__real mpt__norm_rstd(double variance, double eps) {
    const double rounded = (double)(mpt__real)variance;
    if (rounded >= MPT__LEAST_SQUARES && rounded < (double)mpt__real_infinity())
        return (mpt__real)(1 / sqrt(rounded + eps));
    const double root = sqrt(variance + eps);
    return root < 3e-39 ? 0 : (mpt__real)(1 / root);
}

/* Whether a sum of squares is beyond fp32: too large, or so small that eps does not make up. */
static bool mpt__norm_is_lost(double squares, double eps) {
    return !mpt__f64_is_finite(squares) ||
        (squares < MPT__LEAST_SQUARES && eps < MPT__LEAST_SQUARES);
}

/* Mean, unless NULL, and sum of squares of `rows` lines of n elements, in double. */
static double mpt__norm_wide(
    const mpt__norm_work *w, const int64_t from[4], int64_t rows, int64_t n, mpt__real *mean) {
    const mpt__cpu_view *view = &w->view[w->part[MPT__PART_X]];
    const int64_t *stride = w->launch->operand[w->part[MPT__PART_X]].stride;
    mpt__real x[MPT__BLOCK];
    int64_t at = 0;
    double total = 0, middle = 0;
    for (int d = 0; d < 4; d++) at += from[d] * stride[d];
    for (int pass = mean == NULL; pass < 2; pass++) {
        if (pass == 1 && mean) middle = total / (double)(rows * n), total = 0;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0, m; i < n; i += m) {
                m = mpt__cpu_min(MPT__BLOCK, n - i);
                mpt__cpu_get(
                    view, at + r * stride[w->line] + i * stride[w->step], stride[w->step], x, m);
                for (int64_t k = 0; k < m; k++) {
                    const double d = (double)x[k] - middle;
                    total += pass == 0 ? d : d * d;
                }
            }
    }
    if (mean) *mean = (mpt__real)middle;
    return total;
}

/* The mean, and the sum of squares of what differs from it, from such sums about *mean. */
static double mpt__norm_squares(const double total[2], double n, mpt__real *mean) {
    const double squares = total[1] - total[0] * total[0] / n;
    *mean = (mpt__real)((double)*mean + total[0] / n);
    return squares < 0 ? 0 : squares;
}

/* Mean, unless NULL and so 0, and sum of squares of what differs from it. */
static double mpt__norm_moments(const mpt__norm_work *w, const int64_t from[4], mpt__real *mean) {
    mpt__norm_block b;
    mpt__real some = 0;
    double total[2];
    int64_t rows = w->lines, n = w->length;
    memset(&b, 0, sizeof b);
    b.mean = &some;
    if (mean) {
        const int64_t lines = (rows + 15) / 16, length = lines < 2 ? MPT__NORM_SOME(n) : n;
        mpt__norm_total(w, &b, from, lines, length, MPT__PART_BIT(X), total);
        some = (mpt__real)(total[0] / (double)(lines * length));
    }
    mpt__norm_total(w, &b, from, rows, n, MPT__PART_BIT(X), total);
    if (mean) *mean = some, total[1] = mpt__norm_squares(total, (double)(rows * n), mean);
    return mpt__norm_is_lost(total[1], w->eps) ? mpt__norm_wide(w, from, rows, n, mean) : total[1];
}

/* The sum with the residual, rounded as it is stored. */
static void mpt__norm_add(const mpt__norm_work *w, int64_t n, int64_t g) {
    mpt__real a[MPT__BLOCK], b[MPT__BLOCK];
    const mpt__operand *o = w->launch->operand;
    for (int64_t i = 0, m; i < w->length; i += m) {
        int64_t at[6];
        m = mpt__cpu_min(MPT__BLOCK, w->length - i);
        for (int k = 0; k < 6; k++)
            at[k] = n * o[k].stride[0] + g * o[k].stride[1] + i * o[k].stride[w->step];
        const mpt__real *x = mpt__cpu_in(&w->view[0], at[0], o[0].stride[w->step], a, m);
        const mpt__real *r = mpt__cpu_in(&w->view[1], at[1], o[1].stride[w->step], b, m);
        mpt__real *sum = mpt__cpu_out(&w->view[5], at[5], o[5].stride[w->step], a);
        w->routines->binary[MPT__BINARY_ADD](sum, x, r, m, 0, 0);
        mpt__cpu_put(&w->view[5], at[5], o[5].stride[w->step], sum, m);
    }
}

/* n numbers of an operand, or `otherwise` where it is absent. */
static void mpt__norm_get(
    const mpt__cpu_view *view, mpt__real *to, mpt__real otherwise, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = view->data ? mpt__cpu_get_one(view, i) : otherwise;
}

/* Lines of weights for each element that go at once. */
#define MPT__NORM_FOUR 4

static void mpt__norm_whole(const mpt__norm_work *w, int64_t n, int64_t g) {
    const int parts = MPT__PART_BIT(X) | MPT__PART_BIT(OUT);
    const int64_t at = n * w->size[MPT__NORM_G] + g, c = g * w->size[MPT__NORM_C];
    int64_t from[4] = {0, 0, 0, 0};
    mpt__real mean = 0, means[MPT__NORM_FOUR], rstds[MPT__NORM_FOUR];
    mpt__norm_block b;
    from[0] = n, from[1] = g;
    if (w->view[1].data) mpt__norm_add(w, n, g);
    double squares = mpt__norm_moments(w, from, w->view[6].data ? &mean : NULL);
    const mpt__real rstd = mpt__norm_rstd(squares / (double)(w->lines * w->length), w->eps);
    if (w->view[6].data) mpt__cpu_put_one(&w->view[6], at, mean);
    mpt__cpu_put_one(&w->view[7], at, rstd);
    memset(&b, 0, sizeof b);
    b.mode = MPT__NORM_LINES;
    for (int k = 0; k < MPT__NORM_FOUR; k++) means[k] = mean, rstds[k] = rstd;
    b.mean = means, b.rstd = rstds, b.n = w->length, b.weight = w->weight + c;
    b.bias = w->view[3].data ? w->bias + c : NULL;
    for (int64_t l = 0; l < w->lines; l += b.rows) {
        b.rows = mpt__cpu_min(MPT__NORM_FOUR, w->lines - l);
        from[w->line] = l;
        mpt__norm_do(w, w->routines->norm, &b, from, w->line, parts);
    }
}

/* Gradients of [n, g]; those of its channels are added to gradient[0], weights, and [1]. */
static void mpt__norm_back(
    const mpt__norm_work *w, int64_t n, int64_t g, mpt__real *const gradient[2]) {
    const int64_t at = n * w->size[MPT__NORM_G] + g, c = g * w->size[MPT__NORM_C];
    const int reads = MPT__PART_BIT(X) | MPT__PART_BIT(DY);
    const bool centred = w->view[3].data != NULL;
    const double count = (double)(w->lines * w->length);
    mpt__real number[4] = {0, 0, 0, 0}, of[4][MPT__NORM_FOUR];
    int64_t from[4] = {0, 0, 0, 0};
    double total[2];
    mpt__norm_block b;
    memset(&b, 0, sizeof b);
    from[0] = n, from[1] = g;
    if (centred) number[0] = mpt__cpu_get_one(&w->view[3], at);
    number[1] = mpt__cpu_get_one(&w->view[4], at);
    b.mean = number, b.weight = w->weight + c;
    mpt__norm_total(w, &b, from, w->lines, w->length, reads, total);
    if (centred) number[2] = (mpt__real)(total[0] / count);
    number[3] = (mpt__real)(total[1] * (double)number[1] / count);
    for (int k = 0; k < 4; k++)
        for (int l = 0; l < MPT__NORM_FOUR; l++) of[k][l] = number[k];
    b.mean = of[0], b.rstd = of[1], b.shift = of[2], b.slope = of[3];
    for (int k = 0; k < 2; k++) b.sum[k] = w->view[7 + k].data ? gradient[k] : NULL;
    b.n = w->length;
    for (int64_t l = 0; l < w->lines; l += b.rows) {
        b.rows = mpt__cpu_min(MPT__NORM_FOUR, w->lines - l);
        from[w->line] = l;
        mpt__norm_do(w, w->routines->norm_slope, &b, from, w->line,
            reads | MPT__PART_BIT(MORE) | MPT__PART_BIT(OUT));
    }
}

/* ---- Planes ----
 *
 * Where an element's neighbours are of one channel, each channel has numbers of its own. All
 * channels of a sample, or a few, go in turn, as they lie.
 */

#ifndef MPTRAIN_NO_CONV
/* A routine on n elements of some planes of a sample, from `first` on along dimension dim. */
static void mpt__norm_planes(const mpt__norm_work *w, mpt__norm_fn word, mpt__norm_block *b,
    int64_t sample, int64_t dim, int64_t first, int64_t rows, int64_t n, int parts) {
    const int64_t most = word == w->routines->norm_sums ? MPT__NORM_PIECE : n;
    int64_t from[4] = {0, 0, 0, 0};
    from[MPT__NORM_N] = sample, from[dim] = first;
    b->mode = MPT__NORM_ROWS, b->relu = w->relu, b->rows = rows;
    for (int64_t i = 0; i < n; i += most) {
        from[MPT__NORM_S] = i, b->n = mpt__cpu_min(most, n - i);
        mpt__norm_do(w, word, b, from, dim, parts);
    }
}

/* Whether numbers have slopes beyond fp32: gradients are formed without rstd, which comes last. */
static bool mpt__norm_is_far(const mpt__norm_work *w, mpt__real rstd) {
    return rstd != 0 && !(rstd > 1e-12f && rstd < 1e12f) && !w->adds &&
        (w->relu || w->part[MPT__PART_MORE] < 0);
}

static void mpt__norm_times(
    const mpt__norm_work *w, const int64_t from[4], int line, int step, mpt__real factor) {
    const mpt__cpu_view *view = &w->view[w->part[MPT__PART_OUT]];
    const int64_t *stride = w->launch->operand[w->part[MPT__PART_OUT]].stride;
    mpt__real x[MPT__BLOCK];
    int64_t at = 0;
    for (int d = 0; d < 4; d++) at += from[d] * stride[d];
    for (int64_t r = 0; r < w->size[line]; r++, at += stride[line])
        for (int64_t i = 0, m; i < w->size[step]; i += m) {
            m = mpt__cpu_min(MPT__BLOCK, w->size[step] - i);
            mpt__cpu_get(view, at + i * stride[step], stride[step], x, m);
            w->routines->unary[MPT__UNARY_MUL_SCALAR](x, x, m, factor, 0);
            mpt__cpu_put(view, at + i * stride[step], stride[step], x, m);
        }
}

/* The numbers of each channel, from c on, for a routine. */
static void mpt__norm_block_of(mpt__norm_block *b, mpt__real *const of[MPT__OF_COUNT], int64_t c) {
    memset(b, 0, sizeof *b);
    b->mean = of[MPT__OF_MEAN] + c, b->rstd = of[MPT__OF_RSTD] + c;
    b->weight = of[MPT__OF_WEIGHT] + c, b->bias = of[MPT__OF_BIAS] + c;
    b->shift = of[MPT__OF_SHIFT] + c, b->slope = of[MPT__OF_SLOPE] + c;
}

/* The numbers of channel c as the routines take them, which multiply once; those of its gradients
   from sums over n elements, or NULL. */
static void mpt__norm_number(
    mpt__real *const of[MPT__OF_COUNT], int64_t c, const double sum[2], double n, bool lost) {
    const double root = (double)of[MPT__OF_RSTD][c], rstd = lost ? 1 : root;
    of[MPT__OF_WEIGHT][c] *= (mpt__real)rstd;
    of[MPT__OF_RSTD][c] = of[MPT__OF_WEIGHT][c];
    if (!sum) return;
    of[MPT__OF_SHIFT][c] = (mpt__real)(sum[0] * rstd / n);
    of[MPT__OF_SLOPE][c] = (mpt__real)(sum[1] * root * root * rstd / n);
}

/* Groups [begin, end) of sample n, and the numbers of their channels. Each is summed as one row if
   it lies so. */
static void mpt__norm_groups(const mpt__norm_work *w, mpt__norm_block *b, int64_t n, int64_t begin,
    int64_t end, mpt__real *numbers) {
    const int64_t channels = w->size[MPT__NORM_C], *stride = w->launch->operand[w->part[0]].stride;
    const bool whole = stride[MPT__NORM_C] == w->length * stride[MPT__NORM_S];
    const int64_t each = whole ? 1 : channels, dim = whole ? MPT__NORM_G : MPT__NORM_C;
    const int64_t length = whole ? channels * w->length : w->length, rows = (end - begin) * each;
    const int64_t all = (end - begin) * channels, some = MPT__NORM_SOME(length);
    const int64_t at = n * w->size[MPT__NORM_G] + begin;
    const double count = (double)(channels * w->length);
    mpt__real *const means = numbers, *const rstds = means + all, *const close = rstds + all;
    mpt__real *const sums = close + all, *const squares = sums + all;
    b->mean = close, b->sum[0] = sums, b->sum[1] = squares;
    memset(close, 0, (size_t)(3 * all) * sizeof *close); /* and both sums */
    mpt__norm_planes(
        w, w->routines->norm_sums, b, n, dim, begin * each, rows, some, MPT__PART_BIT(X));
    for (int64_t r = 0; r < rows; r += each) {
        double total = 0;
        for (int64_t k = r; k < r + each; k++) total += (double)sums[k];
        for (int64_t k = r; k < r + each; k++) {
            close[k] = (mpt__real)(total / (double)(some * each));
            sums[k] = squares[k] = 0;
        }
    }
    mpt__norm_planes(
        w, w->routines->norm_sums, b, n, dim, begin * each, rows, length, MPT__PART_BIT(X));
    for (int64_t g = 0, c = 0; g < end - begin; g++) {
        const mpt__real *weight = w->weight + (begin + g) * channels - c;
        mpt__real mean = close[g * each];
        double total[2] = {0, 0};
        for (int64_t r = g * each; r < (g + 1) * each; r++)
            total[0] += (double)sums[r], total[1] += (double)squares[r];
        total[1] = mpt__norm_squares(total, count, &mean);
        if (mpt__norm_is_lost(total[1], w->eps)) {
            const int64_t from[4] = {n, begin + g, 0, 0};
            total[1] = mpt__norm_wide(w, from, w->lines, w->length, &mean);
        }
        const mpt__real rstd = mpt__norm_rstd(total[1] / count, w->eps);
        sums[g] = mean, squares[g] = rstd;
        for (const int64_t stop = c + channels; c < stop; c++)
            means[c] = mean, rstds[c] = weight[c] * rstd;
    }
    mpt__cpu_put(&w->view[6], at, 1, sums, end - begin);
    mpt__cpu_put(&w->view[7], at, 1, squares, end - begin);
    if (w->part[MPT__PART_OUT] < 0) return;
    b->mean = means, b->rstd = rstds, b->bias = w->bias + begin * channels;
    mpt__norm_planes(w, w->routines->norm, b, n, MPT__NORM_C, begin * channels, all, w->length,
        MPT__PART_BIT(X) | MPT__PART_BIT(OUT));
}

/* Their gradients; those of channels add to gradient[0], weights, and [1]. */
static void mpt__norm_groups_back(const mpt__norm_work *w, mpt__norm_block *b, int64_t n,
    int64_t begin, int64_t end, mpt__real *numbers, mpt__real *const gradient[2]) {
    const int64_t channels = w->size[MPT__NORM_C], first = begin * channels;
    const int64_t all = (end - begin) * channels, at = n * w->size[MPT__NORM_G] + begin;
    const int reads = MPT__PART_BIT(X) | MPT__PART_BIT(DY);
    const double count = (double)(channels * w->length);
    const mpt__real *const weight = w->weight + first;
    mpt__real *const means = numbers, *const weights = means + all, *const shifts = weights + all;
    mpt__real *const slopes = shifts + all, *const sums = slopes + all, *const more = sums + all;
    mpt__real *const of_weight = gradient[0] + first, *const of_bias = gradient[1] + first;
    mpt__real *const of_group = more + all, *const rstds = of_group + all;
    mpt__cpu_get(&w->view[3], at, 1, of_group, end - begin);
    mpt__cpu_get(&w->view[4], at, 1, rstds, end - begin);
    for (int64_t c = 0, g = 0; c < all; g++)
        for (const int64_t stop = c + channels; c < stop; c++) means[c] = of_group[g];
    memset(sums, 0, (size_t)(2 * all) * sizeof *sums);
    b->mean = means, b->sum[0] = sums, b->sum[1] = more;
    mpt__norm_planes(w, w->routines->norm_sums, b, n, MPT__NORM_C, first, all, w->length, reads);
    for (int64_t c = 0, g = 0; c < all; g++) {
        const int64_t stop = c + channels;
        const mpt__real rstd = rstds[g], last = mpt__norm_is_far(w, rstd) ? 1 : rstd;
        double total[2] = {0, 0};
        for (int64_t i = c; i < stop; i++) {
            total[0] += (double)sums[i] * (double)weight[i];
            total[1] += (double)more[i] * (double)weight[i];
        }
        const double of = (double)rstd;
        const mpt__real shift = (mpt__real)(total[0] * (double)last / count);
        const mpt__real slope = (mpt__real)(total[1] * of * of * (double)last / count);
        for (; c < stop; c++) {
            of_weight[c] += more[c] * rstd, of_bias[c] += sums[c];
            weights[c] = weight[c] * last, shifts[c] = shift, slopes[c] = slope;
        }
    }
    if (w->part[MPT__PART_OUT] < 0) return;
    b->weight = weights, b->shift = shifts, b->slope = slopes;
    mpt__norm_planes(w, w->routines->norm_slope, b, n, MPT__NORM_C, first, all, w->length,
        reads | MPT__PART_BIT(OUT));
    for (int64_t g = begin; g < end; g++) {
        const int64_t from[4] = {n, g, 0, 0};
        if (mpt__norm_is_far(w, rstds[g - begin]))
            mpt__norm_times(w, from, MPT__NORM_C, MPT__NORM_S, rstds[g - begin]);
    }
}
#endif

/* ---- Rows in passes ----
 *
 * A pass writes a row and takes the sums of the next, or of the one after that: memory is read and
 * written at the same time, as by a copy, and what follows from sums is there in time.
 */

#ifndef MPT__HAS_AVX512
#define mpt__norm_passes(w, begin, end, gradient) ((void)0)
#else

static void mpt__norm_passes(
    const mpt__norm_work *w, int64_t begin, int64_t end, mpt__real *const gradient[2]) {
    const double count = (double)w->length;
    const int64_t ahead = w->back ? 1 : 2; /* its numbers are sooner there */
    mpt__real *const means = (mpt__real *)w->view[w->back ? 3 : 6].data;
    mpt__real *const rstds = (mpt__real *)w->view[w->back ? 4 : 7].data;
    const bool adds = !w->back && w->view[1].data;
    MPT__ALIGN(64) mpt__real kept[MPT__NORM_KEPT];
    mpt__real numbers[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}}, zero = 0; /* of n and n + 1 */
    mpt__norm_block b, some;
    memset(&b, 0, sizeof b);
    b.dtype = w->dtype, b.rows = 1, b.mode = MPT__NORM_LINES;
    some = b;
    some.n = MPT__NORM_SOME(w->length), some.mean = &zero;
    b.n = w->length, b.beyond_cache = w->beyond_cache;
    b.bias = w->view[3].data ? w->paired[1] : NULL;
    b.sum[0] = gradient[0], b.sum[1] = w->view[8].data ? gradient[1] : NULL;
    for (int64_t n = begin - ahead; n < end; n++) {
        const int64_t next = mpt__cpu_min(n + ahead, end - 1), now = n < begin ? next : n;
        mpt__real *number = numbers[n & 1];
        if (adds && next == n + ahead) mpt__norm_add(w, next, 0);
        for (int k = 0; k <= w->back; k++) {
            b.data[k] = w->data[k] + now * w->bytes[k][MPT__NORM_N];
            b.next[k] = some.data[k] = w->data[k] + next * w->bytes[k][MPT__NORM_N];
        }
        if (means && w->back) {
            b.next_mean = means[next];
        } else if (means) {
            w->routines->norm_sums(&some);
            b.next_mean = (mpt__real)((double)some.total[0] / (double)some.n);
        }
        b.last = n + 1 == end;
        if (n < begin) {
            b.mean = &b.next_mean, b.weight = w->weight;
            w->routines->norm_sums(&b);
        } else {
            char *out = w->data[MPT__PART_OUT] + n * w->bytes[MPT__PART_OUT][MPT__NORM_N];
            b.mean = means ? &number[0] : NULL, b.weight = w->paired[0];
            b.rstd = &number[1], b.shift = &number[2], b.slope = &number[3];
            b.data[MPT__PART_OUT] = w->adds ? (char *)kept : out;
            (w->back ? w->routines->norm_slope_next : w->routines->norm_next)(&b);
            if (w->adds)
                w->routines->binary[MPT__BINARY_ADD](
                    (mpt__real *)(void *)out, (mpt__real *)(void *)out, kept, w->length, 0, 0);
        }
        if (next != n + ahead) continue;
        double total[2] = {(double)b.total[0], (double)b.total[1]};
        number = numbers[next & 1];
        number[0] = b.next_mean;
        if (w->back) {
            if (means) number[2] = (mpt__real)(total[0] / count);
            number[1] = rstds[next];
            number[3] = (mpt__real)(total[1] * (double)number[1] / count);
            continue;
        }
        if (means) total[1] = mpt__norm_squares(total, count, &number[0]);
        if (mpt__norm_is_lost(total[1], w->eps)) {
            const int64_t from[4] = {next, 0, 0, 0};
            total[1] = mpt__norm_wide(w, from, 1, w->length, means ? &number[0] : NULL);
        }
        if (means) means[next] = number[0];
        rstds[next] = number[1] = mpt__norm_rstd(total[1] / count, w->eps);
    }
}

#endif

#ifndef MPTRAIN_NO_CONV
/* As many groups in planes at a time as the nearest cache may keep. */
static void mpt__norm_groups_task(
    const mpt__norm_work *w, int64_t chunk, int64_t begin, int64_t end, int thread) {
    const int64_t all = mpt__norm_channels(w), each = w->size[MPT__NORM_C];
    const int64_t size = (int64_t)mpt_dtype_size((mpt_dtype)w->dtype);
    const int64_t row = each * w->length;
    const bool fetches = mpt__cpu_numel(&w->launch->operand[0]) * size >= MPT__NORM_FETCHED &&
        row * size <= MPT__NORM_NEAR;
    int64_t most = MPT__NORM_NEAR / size;
    if (fetches) most = w->back ? most / 2 : MPT__NORM_NEAR / 4;
    const bool past = w->direct && w->routines->norm_next && !w->back && !w->adds &&
        w->dtype != MPT_F16 && w->data[MPT__PART_OUT] && !w->relu && w->part[MPT__PART_MORE] < 0 &&
        w->length * size >= MPT__NORM_LONG &&
        mpt__cpu_numel(&w->launch->operand[0]) >= MPT__NORM_BEYOND_CACHE;
    if (past) most = MPT__NORM_PAST / size;
    const int64_t by = mpt__cpu_min(MPT__NORM_CHANNELS / each, most / row);
    mpt__real *const numbers = w->numbers + thread * w->numbers_each, *gradient[2];
    mpt__norm_block b;
    memset(&b, 0, sizeof b);
    b.beyond_cache = w->beyond_cache && !past, b.past = past, b.fetches = fetches;
    for (int k = 0; k < 2; k++) gradient[k] = w->partial + (2 * chunk + k) * all;
    const int64_t stop = mpt__cpu_min((chunk + 1) * w->chunk, w->size[MPT__NORM_N]);
    for (int64_t n = chunk * w->chunk; n < stop; n++)
        for (int64_t g = begin, next; g < end; g = next) {
            next = mpt__cpu_min(g + (by > 1 ? by : 1), end);
            b.last = next == end && n + 1 == stop;
            if (w->back)
                mpt__norm_groups_back(w, &b, n, g, next, numbers, gradient);
            else
                mpt__norm_groups(w, &b, n, g, next, numbers);
        }
}
#endif

/* A chunk of n of some groups. */
static void mpt__norm_task(void *work, int64_t task, int thread) {
    MPT__TASK(mpt__norm_work, w);
    const int64_t channels = mpt__norm_channels(w), c = w->size[MPT__NORM_C];
    const int64_t chunk = task / w->groups, begin = task % w->groups * w->group;
    const int64_t stop = mpt__cpu_min(begin + w->group, w->size[MPT__NORM_G]);
    const int64_t end = mpt__cpu_min((chunk + 1) * w->chunk, w->size[MPT__NORM_N]);
    mpt__real *gradient[2] = {NULL, NULL};
    for (int k = 0; k < 2 && w->back; k++) {
        gradient[k] = w->partial + (2 * chunk + k) * channels + begin * c;
        memset(gradient[k], 0, (size_t)((stop - begin) * c) * sizeof *w->partial);
    }
    if (w->passes) {
        mpt__norm_passes(w, chunk * w->chunk, end, gradient);
        return;
    }
#ifndef MPTRAIN_NO_CONV
    if (!w->along_c) {
        mpt__norm_groups_task(w, chunk, begin, stop, thread);
        return;
    }
#endif
    for (int64_t n = chunk * w->chunk; n < end; n++)
        for (int64_t g = begin; g < stop; g++) {
            for (int k = 0; k < 2; k++)
                gradient[k] = w->partial + (2 * chunk + k) * channels + g * c;
            if (w->back)
                mpt__norm_back(w, n, g, gradient);
            else
                mpt__norm_whole(w, n, g);
        }
}

/* Numbers of columns as the passes of bf16 take them, even places of each 32 before odd ones, or,
   `back`, as they leave them. */
static const mpt__real *mpt__norm_paired(
    const mpt__norm_work *w, const mpt__real *from, mpt__real *to, int64_t n, bool back) {
    if (!w->passes || w->dtype != MPT_BF16) return from;
    for (int64_t i = 0; i < n; i += 32)
        for (int64_t k = 0; k < 32; k += 2) {
            const int64_t even = i + (back ? k / 2 : k), odd = even + (back ? 16 : 1);
            to[back ? i + k : i + k / 2] = from[even];
            to[back ? i + k + 1 : i + k / 2 + 16] = from[odd];
        }
    return to;
}

/* The gradients of weight and bias: chunks in pairs, pairs of pairs and so on. */
static void mpt__norm_join(void *work, int64_t task, int thread) {
    MPT__TASK(mpt__norm_work, w);
    const int64_t channels = mpt__norm_channels(w), begin = task / 2 * MPT__BLOCK;
    const int64_t n = mpt__cpu_min(MPT__BLOCK, channels - begin), step = channels * 2;
    const mpt__cpu_view *to = &w->view[7 + task % 2];
    mpt__real *part = w->partial + task % 2 * channels + begin, block[MPT__BLOCK];
    if (!to->data) return;
    for (int64_t by = 1; by < w->chunks; by *= 2)
        for (int64_t k = 0; k + by < w->chunks; k += 2 * by)
            w->routines->binary[MPT__BINARY_ADD](
                part + k * step, part + k * step, part + (k + by) * step, n, 0, 0);
    mpt__cpu_put(to, begin, 1, mpt__norm_paired(w, part, block, n, true), n);
}

/* ---- Batches ----
 *
 * Rows of all channels where those lie innermost, else planes of one channel. Chunks of them leave
 * of each channel mean and squares of what differs from it. The last pass goes backwards over what
 * the caches may still hold.
 */

#ifndef MPTRAIN_NO_CONV
/* Channels of a task; elements of the planes of one sample. */
#define MPT__BATCH_COLUMNS (MPT__BLOCK / 4)
/* Elements of rows of halves, in no cache, summed at a time: memory is read nearly as it lies (bf16
   9 % to 33 % faster; floats gain little, what a cache holds would take longer). */
#define MPT__BATCH_BLOCK 1023
#define MPT__BATCH_TILE (INT64_C(1) << 14)
/* Columns whose sums fit in registers, so that memory is read as it lies: slopes of a residual net
   1.3 times as fast, floats in no cache 1.1 to 1.4 (bf16 loses). */
#define MPT__BATCH_SUMS 64

enum { MPT__BATCH_STATISTICS, MPT__BATCH_NORM, MPT__BATCH_SLOPES, MPT__BATCH_SLOPE };

typedef struct {
    mpt__norm_work w;
    int pass;
    int64_t rows, chunk, chunks, tile, tiles, channels, fold; /* fold C are the channels of a row */
    mpt__real *partial, *of[MPT__OF_COUNT];                   /* [chunks, 2, fold C]; [fold C] */
} mpt__batches_work;

/* Rows of few channels, one behind the other, go by twos, fours ... as one. */
static int64_t mpt__batches_fold(const mpt__norm_work *w) {
    const int64_t channels = w->size[MPT__NORM_C], s = w->size[MPT__NORM_S];
    int64_t fold = 1, rows = w->size[MPT__NORM_N] * s, most = MPT__BATCH_COLUMNS;
    const mpt__operand *x = &w->launch->operand[0];
    if (x->dtype == MPT_F32 && mpt__cpu_numel(x) >= MPT__NORM_BEYOND_CACHE) most = MPT__BATCH_SUMS;
    for (int k = 0; k < MPT__PARTS; k++) {
        const int at = mpt__norm_parts[w->back][k];
        const mpt__operand *o = &w->launch->operand[at < 0 ? 0 : at];
        if (at >= w->launch->n_operands || o->storage == 0) continue;
        if (o->stride[MPT__NORM_C] != 1 || (s != 1 && o->stride[MPT__NORM_S] != channels) ||
            (w->size[MPT__NORM_N] != 1 && o->stride[MPT__NORM_N] != s * channels))
            return 1;
    }
    for (; rows % 2 == 0 && 2 * fold * channels <= most; rows /= 2) fold *= 2;
    return fold;
}

static void mpt__batches_setup(mpt__batches_work *b, const mpt__launch *launch) {
    mpt__norm_setup(&b->w, launch);
    const bool along_c = b->w.along_c;
    const int64_t *size = b->w.size;
    b->fold = along_c ? mpt__batches_fold(&b->w) : 1;
    b->channels = b->fold * size[MPT__NORM_C];
    b->rows = along_c ? mpt__cpu_times(size[MPT__NORM_N], size[MPT__NORM_S]) / b->fold
                      : size[MPT__NORM_N];
    b->chunk =
        along_c ? MPT__BATCH_ROWS : mpt__cpu_chunks(MPT__BATCH_PLANES, size[MPT__NORM_S] + 1);
    b->chunks = mpt__cpu_chunks(b->rows, b->chunk);
    b->tile = MPT__BATCH_COLUMNS;
    if (!along_c) b->tile = mpt__cpu_min(b->tile, MPT__BATCH_TILE / (size[MPT__NORM_S] + 1) + 16);
    b->tiles = mpt__cpu_chunks(b->channels, b->tile);
}

/* The parts of a pass. */
static int mpt__batches_parts(const mpt__batches_work *b) {
    static const uint8_t parts[] = {MPT__PART_BIT(X),
        MPT__PART_BIT(X) | MPT__PART_BIT(MORE) | MPT__PART_BIT(OUT),
        MPT__PART_BIT(X) | MPT__PART_BIT(DY) | MPT__PART_BIT(MORE),
        MPT__PART_BIT(X) | MPT__PART_BIT(DY) | MPT__PART_BIT(MORE) | MPT__PART_BIT(OUT) |
            MPT__PART_BIT(REST)};
    return parts[b->pass];
}

/* The pass on rows or samples [begin, end) of n channels from `first` on; a sample's rows end with
   it. */
static void mpt__batches_rows(const mpt__batches_work *b, mpt__norm_block *k, int64_t begin,
    int64_t end, int64_t first, int64_t n) {
    const mpt__routines *routines = b->w.routines;
    const mpt__norm_fn sums = b->w.along_c ? routines->norm_columns : routines->norm_sums;
    const mpt__norm_fn word = b->pass == MPT__BATCH_NORM ? routines->norm
        : b->pass == MPT__BATCH_SLOPE                    ? routines->norm_slope
                                                         : sums;
    const int64_t s = b->fold > 1 ? 1 : b->w.size[MPT__NORM_S];
    int64_t from[4] = {0, 0, 0, 0};
    if (!b->w.along_c) {
        for (int64_t row = begin; row < end; row++)
            mpt__norm_planes(
                &b->w, word, k, row, MPT__NORM_C, first, n, b->w.length, mpt__batches_parts(b));
        return;
    }
    mpt__norm_work w = b->w;
    if (b->pass == MPT__BATCH_SLOPES && b->fold > 1) { /* plain sums: those of fewer columns do */
        int64_t cut = 1;
        while (cut < b->fold && n / cut > MPT__BATCH_SUMS) cut *= 2;
        for (int part = 0; part < MPT__PARTS; part++) w.bytes[part][MPT__NORM_N] /= cut;
        begin *= cut, end *= cut, n /= cut;
    }
    const bool nearly = word == sums && b->w.dtype != MPT_F32 &&
        mpt__cpu_numel(&b->w.launch->operand[0]) >= MPT__NORM_BEYOND_CACHE;
    k->mode = MPT__NORM_COLUMNS, k->relu = b->w.relu, k->n = n;
    from[MPT__NORM_C] = first;
    for (int64_t row = begin; row < end; row += k->rows) {
        from[MPT__NORM_N] = row / s, from[MPT__NORM_S] = row % s;
        k->rows = mpt__cpu_min(end - row, s == 1 ? end - row : s - row % s);
        if (nearly) k->rows = mpt__cpu_min(k->rows, MPT__BATCH_BLOCK / n + 1);
        mpt__norm_do(&w, word, k, from, s == 1 ? MPT__NORM_N : MPT__NORM_S, mpt__batches_parts(b));
    }
}

/* Elements of each channel in a chunk. */
static double mpt__batches_count(const mpt__batches_work *b, int64_t chunk) {
    const int64_t rows = mpt__cpu_min(b->chunk, b->rows - chunk * b->chunk);
    return (double)(rows * (b->w.along_c ? 1 : b->w.length));
}

/* A number near the mean of each channel, from the first eighth of a chunk's rows or the first
   elements of few samples: as MPT__NORM_SOME has it. */
static void mpt__batches_some(mpt__batches_work b, mpt__norm_block *k, int64_t begin, int64_t end,
    int64_t first, int64_t n, mpt__real *mean) {
    const bool few = !b.w.along_c && end - begin < 8;
    const int64_t rows = few ? end - begin : (end - begin + 7) / 8;
    if (few) b.w.length = MPT__NORM_SOME(b.w.length);
    k->mean = mean;
    mpt__batches_rows(&b, k, begin, begin + rows, first, n);
    for (int64_t c = 0; c < n; c++) {
        mean[c] = k->sum[0][c] / (mpt__real)(rows * (b.w.along_c ? 1 : b.w.length));
        k->sum[0][c] = k->sum[1][c] = 0;
    }
}

static void mpt__batches_chunk(const mpt__batches_work *b, int64_t chunk, int64_t tile) {
    const int64_t begin = chunk * b->chunk, first = tile * b->tile;
    const int64_t end = mpt__cpu_min(begin + b->chunk, b->rows);
    const int64_t n = mpt__cpu_min(b->tile, b->channels - first);
    const bool statistics = b->pass == MPT__BATCH_STATISTICS;
    mpt__real mean[MPT__BATCH_COLUMNS] = {0};
    mpt__norm_block k;
    mpt__norm_block_of(&k, b->of, first);
    k.beyond_cache = b->w.beyond_cache;
    for (int i = 0; i < 2; i++) {
        k.sum[i] = b->partial + (2 * chunk + i) * b->channels + first;
        if (statistics || b->pass == MPT__BATCH_SLOPES)
            memset(k.sum[i], 0, (size_t)n * sizeof *k.sum[i]);
    }
    if (statistics) mpt__batches_some(*b, &k, begin, end, first, n, mean);
    mpt__batches_rows(b, &k, begin, end, first, n);
    for (int64_t c = 0; c < n && statistics; c++) {
        const double total[2] = {(double)k.sum[0][c], (double)k.sum[1][c]};
        const double squares = mpt__norm_squares(total, mpt__batches_count(b, chunk), &mean[c]);
        k.sum[0][c] = mean[c], k.sum[1][c] = (mpt__real)squares;
    }
}

/* Mean and sum of squares of channel c in double. */
static double mpt__batches_wide(const mpt__norm_work *w, int64_t c, mpt__real *mean) {
    mpt__norm_work one = *w;
    const int64_t from[4] = {0, 0, c, 0};
    one.line = MPT__NORM_N, one.step = MPT__NORM_S;
    return mpt__norm_wide(&one, from, w->size[MPT__NORM_N], w->size[MPT__NORM_S], mean);
}

/* What follows from the chunks of a pass for some channels. */
static void mpt__batches_end(void *work, int64_t tile, int thread) {
    MPT__TASK(mpt__batches_work, b);
    const mpt__norm_work *w = &b->w;
    const int64_t channels = b->channels / b->fold, first = tile * b->tile;
    const int64_t n = mpt__cpu_min(b->tile, channels - first);
    const bool statistics = b->pass == MPT__BATCH_STATISTICS;
    const double count = (double)(b->rows * b->fold) * (double)(w->along_c ? 1 : w->length);
    double total[2][MPT__BATCH_COLUMNS], mean[MPT__BATCH_COLUMNS];
    memset(total, 0, sizeof total);
    for (int again = 0; again <= statistics; again++) {
        for (int64_t c = 0; c < n; c++) mean[c] = total[0][c] / count;
        for (int64_t j = 0; j < b->chunks * b->fold; j++) {
            const mpt__real *part = b->partial + 2 * (j / b->fold) * b->channels;
            const double each = statistics ? mpt__batches_count(b, j / b->fold) : 1;
            part += j % b->fold * channels + first;
            for (int64_t c = 0; c < n; c++) {
                const double d = (double)part[c] - mean[c];
                total[0][c] += again ? 0 : each * (double)part[c];
                total[1][c] += again ? each * d * d : (double)part[b->channels + c];
            }
        }
    }
    for (int64_t c = first; c < first + n; c++) {
        double sum[2] = {total[0][c - first], total[1][c - first]};
        if (statistics) {
            b->of[MPT__OF_MEAN][c] = (mpt__real)(sum[0] / count);
            if (mpt__norm_is_lost(sum[1], w->eps))
                sum[1] = mpt__batches_wide(w, c, &b->of[MPT__OF_MEAN][c]);
            const mpt__real variance = (mpt__real)(sum[1] / count);
            b->of[MPT__OF_RSTD][c] = mpt__norm_rstd(sum[1] / count, w->eps);
            mpt__cpu_put_one(&w->view[6], c, b->of[MPT__OF_MEAN][c]);
            mpt__cpu_put_one(&w->view[7], c, b->of[MPT__OF_RSTD][c]);
            if (w->view[8].data) mpt__cpu_put_one(&w->view[8], c, variance);
        } else {
            for (int k = 0; k < 2; k++) {
                const double rstd = k ? 1 : (double)b->of[MPT__OF_RSTD][c];
                if (w->view[7 + k].data)
                    mpt__cpu_put_one(&w->view[7 + k], c, (mpt__real)(sum[1 - k] * rstd));
                sum[1 - k] *= w->given ? 0 : (double)b->of[MPT__OF_WEIGHT][c];
            }
        }
        const bool lost = w->back && mpt__norm_is_far(w, b->of[MPT__OF_RSTD][c]);
        mpt__norm_number(b->of, c, statistics ? NULL : sum, count, lost);
    }
}

static void mpt__batches_task(void *work, int64_t task, int thread) {
    MPT__TASK(mpt__batches_work, b);
    if (b->pass == MPT__BATCH_NORM || b->pass == MPT__BATCH_SLOPE)
        task = b->chunks * b->tiles - 1 - task;
    mpt__batches_chunk(b, task / b->tiles, task % b->tiles);
}

static void mpt__batches_pass(
    const mpt__cpu_call *call, mpt__batches_work *b, int pass, double ns, bool ends) {
    b->pass = pass;
    for (int k = 0; k < MPT__OF_COUNT; k++)
        for (int64_t c = b->w.size[MPT__NORM_C]; c < b->channels; c++)
            b->of[k][c] = b->of[k][c - b->w.size[MPT__NORM_C]];
    mpt__cpu_for(call, b->chunks * b->tiles, mpt__cpu_numel(&call->launch->operand[0]), ns,
        mpt__batches_task, b);
    if (ends) mpt__parallel(call->pool, b->tiles, b->channels * b->chunks * 4, mpt__batches_end, b);
}

static void mpt__norm_batch(const mpt__cpu_call *call, const mpt__norm_work *w) {
    static const mpt__cpu_view none = {NULL, NULL, 0, false};
    mpt__batches_work b;
    mpt__batches_setup(&b, call->launch);
    b.w = *w;
    for (int k = 0; k < MPT__PARTS && b.fold > 1; k++)
        b.w.bytes[k][MPT__NORM_N] = b.w.bytes[k][MPT__NORM_C] * b.channels;
    b.partial = (mpt__real *)call->workspace;
    for (int k = 0; k < MPT__OF_COUNT; k++) b.of[k] = b.partial + (2 * b.chunks + k) * b.channels;
    const int64_t n = b.channels / b.fold;
    mpt__norm_get(&w->view[2], b.of[MPT__OF_WEIGHT], 1, n);
    mpt__norm_get(w->back ? &none : &w->view[3], b.of[MPT__OF_BIAS], 0, n);
    const bool statistics = w->back || !w->given;
    if (!statistics || w->back) {
        mpt__norm_get(&w->view[w->back ? 3 : 6], b.of[MPT__OF_MEAN], 0, n);
        mpt__norm_get(&w->view[w->back ? 4 : 8], b.of[MPT__OF_RSTD], 1, n);
    }
    for (int64_t i = 0; i < n && !statistics; i++) {
        b.of[MPT__OF_RSTD][i] = mpt__norm_rstd((double)b.of[MPT__OF_RSTD][i], w->eps);
        mpt__cpu_put_one(&w->view[7], i, b.of[MPT__OF_RSTD][i]);
        mpt__norm_number(b.of, i, NULL, 1, false);
    }
    if (statistics)
        mpt__batches_pass(call, &b, w->back ? MPT__BATCH_SLOPES : MPT__BATCH_STATISTICS, 6.0, true);
    if (!w->back || w->part[MPT__PART_OUT] >= 0 || w->part[MPT__PART_REST] >= 0)
        mpt__batches_pass(call, &b, w->back ? MPT__BATCH_SLOPE : MPT__BATCH_NORM, 8.0, false);
    for (int64_t c = 0; c < n && w->back && w->part[MPT__PART_OUT] >= 0; c++) {
        const int64_t from[4] = {0, 0, c, 0};
        const mpt__real rstd = mpt__cpu_get_one(&w->view[4], c);
        if (mpt__norm_is_far(w, rstd)) mpt__norm_times(w, from, MPT__NORM_N, MPT__NORM_S, rstd);
    }
}
#endif

/* ---- The kernels ---- */

static int64_t mpt__norm_workspace(const mpt__launch *launch, int threads) {
    mpt__norm_work w;
    mpt__norm_setup(&w, launch);
    (void)threads;
    int64_t all = 2 * (w.back ? 2 + w.chunks : 2) * mpt__norm_channels(&w);
#ifndef MPTRAIN_NO_CONV
    if (!w.along_c) all += w.numbers_each * threads;
    if (w.of_channels) {
        mpt__batches_work b;
        mpt__batches_setup(&b, launch);
        return (2 * b.chunks + MPT__OF_COUNT) * b.channels * (int64_t)sizeof(mpt__real);
    }
#endif
    return all * (int64_t)sizeof(mpt__real);
}

/* Numbers of all channels where they lie, or converted. */
static const mpt__real *mpt__norm_numbers(
    const mpt__cpu_view *view, mpt__real *to, mpt__real otherwise, int64_t n) {
    if (view->data && mpt__cpu_is_real(view->dtype)) return (const mpt__real *)view->data;
    mpt__norm_get(view, to, otherwise, n);
    return to;
}

static void mpt__norm_run(const mpt__cpu_call *call) {
    mpt__norm_work w;
    mpt__norm_setup(&w, call->launch);
    w.routines = call->routines;
    for (int k = 0; k < MPT__MAX_OPERANDS; k++)
        if (call->data[k]) w.view[k] = mpt__cpu_view_of(call, k);
    mpt__norm_find_parts(&w);
    int64_t groups = mpt__norm_channels(&w);
    int64_t all = mpt__cpu_times(mpt__cpu_times(w.size[MPT__NORM_N], groups), w.size[MPT__NORM_S]);
    if (all == 0) return;
#ifndef MPTRAIN_NO_CONV
    if (w.of_channels) {
        mpt__norm_batch(call, &w);
        return;
    }
#endif
    static const mpt__cpu_view none = {NULL, NULL, 0, false};
    mpt__real *numbers = (mpt__real *)call->workspace;
    w.partial = numbers + 4 * groups;
    w.numbers = w.partial + (w.back ? 2 * w.chunks * groups : 0);
    w.weight = mpt__norm_numbers(&w.view[2], numbers, 1, groups);
    w.bias = mpt__norm_numbers(w.back ? &none : &w.view[3], numbers + groups, 0, groups);
    w.paired[0] = mpt__norm_paired(&w, w.weight, numbers + 2 * groups, groups, false);
    w.paired[1] = mpt__norm_paired(&w, w.bias, numbers + 3 * groups, groups, false);
    mpt__cpu_for(call, w.chunks * w.groups, all, w.back ? 8.0 : 5.0, mpt__norm_task, &w);
    if (w.back)
        mpt__cpu_for(call, 2 * mpt__cpu_chunks(groups, MPT__BLOCK), groups * w.chunks, 1.0,
            mpt__norm_join, &w);
}
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
    /* What a file says may be anything. */
    counts[0] = (int64_t)((uint64_t)before[0] + (updates && good));
    counts[1] = (int64_t)((uint64_t)before[1] + (updates && !good));
}
#endif

#endif
