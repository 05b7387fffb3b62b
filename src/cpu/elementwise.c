/* ----
 * cpu/elementwise.c: the kernels of the CPU: what they share, and the elementwise ones. Reductions,
 * softmax and matrix products are in cpu/rows.c; those of training in cpu/loss.c and
 * cpu/optimizer.c.
 *
 * A kernel is written once, for all levels. It walks its operands in blocks of at most MPT__BLOCK
 * elements: loaded and converted to mpt__real (or taken where they lie), computed by the routines
 * of the level (mpt__routines: a table of functions on blocks), and rounded once on store. What a
 * dtype or a stride means is known to the loads and stores alone. The routines of the reference
 * level, in these rooms, are portable C; those of the vector levels are made in
 * cpu/template/rows.c, do the same operations in the same order, and give the same bits.
 *
 * mpt__real is float. The test build makes it double: then F64 tensors compute in double, and a
 * gradient check can ask for 1e-6.
 * ---- */
#ifndef MPT__CPU_ELEMENTWISE_INCLUDED
#define MPT__CPU_ELEMENTWISE_INCLUDED

#include "ground/elements.c"
#include "cpu/backend.c"
#include "cpu/level/one.c"

/* Elements converted and computed at a time; fewer where the portable kernels are all there is, as
   on small machines: no frame is then larger than 8 KiB. No result depends on it. */
#ifdef MPTRAIN_NO_SIMD
#define MPT__BLOCK 256
#else
#define MPT__BLOCK 1024
#endif
#define MPT__COPY_TILE (MPT__BLOCK / 16)
/* Elements of a chunk of elementwise work, and of optimizer updates. No result depends on it. */
#define MPT__CHUNK 4096

/* The tree of every sum, the same on all levels: the elements in logical order are cut into chunks
   of MPT__SUM_CHUNK; within a chunk, element i goes to lane i % MPT__SUM_LANES, in order; the lanes
   fold in halves (i and i + 8, i and i + 4, i and i + 2, 0 and 1); the chunks' sums add up in
   pairs, pairs of pairs and so on, an odd last one passing on unchanged. */
#define MPT__SUM_CHUNK 1024
#define MPT__SUM_LANES 16
#define MPT__NORM_LANES 32 /* of norms, which then fold in halves to as many: twice as fast */
#define MPT__SUM_HEIGHT 54 /* log2 of the most chunks that fit an int64 count of elements */

/* Sums of squares are in double and have a tree of their own: each segment in chunks of MPT__CHUNK,
   a chunk in four runs and a rest. A run is a page; the widest vectors fetch it while they read
   the one before it (side by side they take 1.8 times as long on Zen 4). Lanes are as above; those
   of the rest and of the runs add up in order, then fold; all chunks of all segments add up in
   pairs. */
#define MPT__SQUARE_RUNS 4
#define MPT__SQUARE_RUN(n) ((n) / (MPT__SQUARE_RUNS * MPT__SUM_LANES) * MPT__SUM_LANES)

/* ==== The functions ==== */

/* Where a function stands in the tables of a level: as in waist/functions.h; SPLAT, the constant c,
   is for kernels. */
enum {
#define MPT__ROW(id, ns, value) MPT__UNARY_##id,
    MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW) MPT__UNARY_SPLAT,
    MPT__UNARY_COUNT,
#undef MPT__ROW
#define MPT__ROW(id, ns, value) MPT__BINARY_##id,
    MPT__BINARY_START = -1,
    MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW) MPT__BINARY_COUNT
#undef MPT__ROW
};
#define MPT__UNARY_AT(function) ((int)(function) - (int)MPT__FN_NEG)
#define MPT__BINARY_AT(function) ((int)(function) - (int)MPT__FN_ADD)
#define MPT__ROW(id, ns, value) ns,
static const uint8_t mpt__cpu_unary_ns[] = {MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW) 1};
static const uint8_t mpt__cpu_binary_ns[] = {MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)};
#undef MPT__ROW

/* ==== The routines of a level ==== */

/* out may be an input; n is any number, alignment too. */
typedef void (*mpt__unary_fn)(
    mpt__real *out, const mpt__real *x, int64_t n, mpt__real c, mpt__real d);
typedef void (*mpt__binary_fn)(
    mpt__real *out, const mpt__real *x, const mpt__real *y, int64_t n, mpt__real c, mpt__real d);
typedef struct mpt__cpu_update mpt__cpu_update;
/* Parameters, gradients, moments (NULL: none): updates all but the gradients. Where `half` is
   given, the weights go there as well, in w->param.dtype. */
#define MPT__BLOCK_TAKES \
    const mpt__cpu_update *w, mpt__real *p, const mpt__real *g, mpt__real *const *m, void *half, \
        int64_t n
typedef void (*mpt__update_fn)(MPT__BLOCK_TAKES);

/* Rows of a norm: y = (x - mean) rstd [weight] + bias, + residual, then relu; dx = [rstd] (g weight
   - shift - slope (x - mean) [rstd]) + other gradient, with g = dy where y is not <= 0 or there is
   no relu. ROWS: numbers of each row; LINES: what is in brackets is there, too; mean, rstd, shift
   and slope are of each row, weight and bias of each column; COLUMNS: all are of each column. */
enum { MPT__NORM_ROWS, MPT__NORM_LINES, MPT__NORM_COLUMNS };
/* What a row is made of: y is of backward with relu; rest: g. */
enum { MPT__PART_X, MPT__PART_DY, MPT__PART_MORE, MPT__PART_OUT, MPT__PART_REST, MPT__PARTS };
/* Bytes of groups that go together where what is written goes past the caches, and how far ahead
   lies what is asked for meanwhile; shorter planes have too many lines in part. (Group norms of
   2 x 196 floats take 0.63 of the time, of 2 x 1568 0.8, of as many bf16 0.5: Zen 5.) */
#define MPT__NORM_PAST 25600
#define MPT__NORM_LONG 512
typedef struct mpt__norm_block {
    uint8_t dtype, mode; /* of all parts: that of mpt__real, or half where the level is `typed` */
    bool relu;
    int64_t rows, n, step[MPT__PARTS]; /* bytes between rows, whose elements are neighbours */
    char *data[MPT__PARTS];            /* x, dy, residual or other gradient or y, out; NULL: none */
    mpt__real *lane, total[2];         /* NULL: lanes that begin with 0 */
    const mpt__real *mean, *rstd, *shift, *slope, *weight, *bias;
    /* Of norm_next, whose mean may be NULL, for 0: x and dy of a row after this, and its mean; the
       last row. Of bf16, weight, bias, sum stand as mpt__norm_paired has it. */
    mpt__real *sum[2], next_mean;
    const char *next[2];
    bool last, beyond_cache; /* out is better not cached, it and rows multiples of 64 bytes */
    bool past; /* the same of rows that lie anywhere: for the widest vectors, forward */
    bool fetches; /* what is read next lies behind what is read now, and in no cache nearby */
} mpt__norm_block;
typedef void (*mpt__norm_fn)(mpt__norm_block *b);

/* out[i][c] = start[i][c] + the sum over j < depth of x[j][i][c] w[j][c], for i < count, c < n.
   Steps are from i to i, of w from j to j. */
typedef struct mpt__product_sums {
    mpt__real *out;
    const mpt__real *start, *w, *const *x;
    int64_t out_step, start_step, x_step, w_step;
    int64_t count, depth, n;
} mpt__product_sums;

/* Windows of two by two pixels, one beside the other, and their maxima or means y; back: of dy, dx.
   All lie in one of x. Steps are in elements. A maximum's index is that of its pixel, 0 to 3, or,
   where `positive` and it is <= 0, 255. */
typedef struct mpt__windows {
    char *x, *y;
    uint8_t *index;                 /* NULL: nobody asks */
    int64_t lines, count, channels; /* channels: that are neighbours; 0: one, pixels are */
    int64_t x_line, x_pixel, y_line, y_pixel, index_line, index_pixel;
    uint8_t dtype; /* float or half */
    bool most, back, adds, positive;
} mpt__windows;

/* One side of a convolution, [images, channels, lines, pixels] in a row. */
typedef struct mpt__plane_side {
    const char *data, *gate; /* gate: where that is <= 0, data counts as 0; NULL: all counts */
    int64_t image, size[2];  /* elements from image to image; lines, pixels */
    int dtype, round;        /* float or half; a half that a float is rounded to, or 0 */
} mpt__plane_side;

/* Some lines of y of some images, of which x and y are the first: what `in` channels of x give to
   `out` of y; slopes: what dy, which y is, gives to the weights, [out, in, kernel], and to the
   biases. Weights lie as mpt__plane_rows says. Images are `step` pixels apart in a strip, of
   which y has `wide` and memory has `row`, a multiple of 16. */
typedef struct mpt__planes {
    mpt__plane_side x, y;
    char *to; /* y, where it is written */
    int64_t images, in, out, kernel[2], padding[2], first, lines, step, wide, row;
    const float *weights, *bias;
    float *sums, *biases; /* slopes: these are added to */
    float *room;
    bool slopes, adds, relu;
} mpt__planes;

/* How many of the channels that are left go together: their weights are [in, kernel, so many]. */
static MPT__UNUSED int64_t mpt__plane_rows(int64_t left) {
    const int64_t parts = (left + 3) / 4;
    return (left + parts - 1) / parts;
}

/* The lines of x that taps meet: the first, and that behind the last. */
static MPT__UNUSED int64_t mpt__plane_first(const mpt__planes *p) {
    return p->first > p->padding[0] ? p->first - p->padding[0] : 0;
}
static MPT__UNUSED int64_t mpt__plane_end(const mpt__planes *p) {
    const int64_t end = p->first + p->lines - 1 - p->padding[0] + p->kernel[0];
    return end < p->x.size[0] ? end : p->x.size[0];
}

/* The slopes of weights from strips dy and x one by one: where x has an infinity or a NaN, which a
   zero between images must not meet. */
static MPT__UNUSED void mpt__plane_slopes_apart(
    const mpt__planes *p, const float *dy, const float *x) {
    const int64_t from = mpt__plane_first(p), high = mpt__plane_end(p) - from;
    const int64_t taps = p->kernel[0] * p->kernel[1], all = p->out * p->in * taps;
    for (int64_t i = 0; i < all; i++) {
        const int64_t c = i / taps % p->in, t = i % taps / p->kernel[1];
        float sum = 0;
        for (int64_t y = 0; y < p->lines; y++) {
            const int64_t line = p->first + y + t - p->padding[0] - from;
            if (line < 0 || line >= high) continue;
            const float *d = dy + (i / taps / p->in * p->lines + y) * p->row;
            const float *of_x = x + (c * high + line) * p->row + i % p->kernel[1];
            for (int64_t m = 0; m < p->wide; m++)
                if (m % p->step < p->y.size[1]) sum += d[m] * of_x[m];
        }
        p->sums[i] += sum;
    }
}

/* Rows of a table, for ids begin .. end: copied to `rows`, or those, reals, added to it. Ids but
   0 .. size-1 give zeros, or nothing, as that of padding does. The row of `ahead` ids later, of n,
   is fetched with each. Steps in bytes, that of ids in elements. */
typedef struct mpt__rows {
    char *table, *rows;
    const int64_t *ids;
    int64_t table_step, row_step, id_step, begin, end, n, ahead, size, padding, bytes;
    bool adds;
} mpt__rows;

#ifndef MPTRAIN_NO_RECURRENT
/* n elements of a step of one sequence: RECURRENT and, the last line, RECURRENT_BACKWARD. NULL:
   absent. What is written may lie where the same was read. */
typedef struct mpt__cell_block {
    int cell, gates;
    int64_t n;
    const mpt__real *in[4], *before; /* what x gives, or the gates; o3 */
    mpt__real *out[4];               /* the gates, or the slopes by what x gives */
    const mpt__real *state[4], *bias[4];
    mpt__real *after, *h;
    const mpt__real *dy, *kept;   /* o5, o4 */
    mpt__real *more[4], *dh, *dc; /* o2, o6, o7 */
} mpt__cell_block;
#endif

typedef struct mpt__routines {
    double slowness; /* nanoseconds of what takes the reference level one */
    bool flushes;    /* optimizers take denormals as zero: fading moments would be slow */
    const mpt__convert_table *convert;
    mpt__unary_fn unary[MPT__UNARY_COUNT];
    mpt__binary_fn binary[MPT__BINARY_COUNT];
    mpt__real (*peak)(
        const mpt__real *x, int64_t n, mpt__real start); /* passes over NaN; any zero */
    /* Element i goes to lane (first + i) % MPT__SUM_LANES. Of maxima NaN wins, and any zero. */
    void (*add_lanes)(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n);
    void (*max_lanes)(mpt__real *lane, int64_t first, const mpt__real *x, int64_t n);
    void (*sum_products)(const mpt__product_sums *p);
    void (*windows)(const mpt__windows *p); /* NULL: one by one */
    void (*planes)(const mpt__planes *p);   /* NULL: convolutions are products */
    /* The same with first = 0 for exp(x - most); out gets that, or the differences. */
    void (*add_exp)(mpt__real *lane, mpt__real *out, const mpt__real *x, int64_t n, mpt__real most,
        bool differences);
    /* Softmax or its logarithm, and its backward, of a dense row of n <= MPT__SUM_CHUNK; NULL: by
       the routines above. */
    void (*softmax)(mpt__real *out, const mpt__real *x, int64_t n, bool log);
    void (*softmax_backward)(
        mpt__real *dx, const mpt__real *y, const mpt__real *dy, int64_t n, bool log);
    /* lane += squares of x multiplier, as MPT__SQUARE_RUNS says */
    void (*add_squares)(double *lane, const float *x, int64_t n, mpt__real multiplier);
    /* mpt__random_bits; and word first + i >= threshold ? x factor : 0. first: a multiple of 4 */
    void (*random)(mpt__rng_key key, uint64_t first, size_t n, uint32_t *out);
    void (*dropout)(mpt__real *out, const mpt__real *x, int64_t n, mpt__rng_key key, uint64_t first,
        uint32_t threshold, mpt__real factor);
    /* to[j][i] = from[i][j]; the steps are between rows. beyond_cache: what is written is better
       not kept in the caches; rows, to_step and the address of `to` are multiples of 64 bytes. */
    void (*transpose)(mpt__real *to, int64_t to_step, const mpt__real *from, int64_t from_step,
        int64_t rows, int64_t columns, bool beyond_cache);
    void (*rows)(const mpt__rows *r); /* NULL: mpt__rows_each */
    /* A function past the caches, to a line of memory; false: has it not. NULL: none. */
    bool (*stream)(int function, mpt__real *out, const mpt__real *x, const mpt__real *y, int64_t n,
        mpt__real c);
    mpt__update_fn sgd, adam, moments;
    /* ReLU's backward of halves: as integers, not 0 and > infinity's; NULL: as any function */
    void (*gate)(int16_t *dx, const int16_t *y, const int16_t *dy, int64_t n, int16_t infinity);
    mpt__cpu_run copy_halves;           /* to another layout, instead of COPY; NULL: none */
    const struct mpt__gemm_level *gemm; /* products in fp32; NULL: by the routines above */
    bool typed;                         /* norms take halves as they lie */
    /* Element i of a row goes to lane i % MPT__NORM_LANES: x - mean or, where there is dy, g, of
       LINES times weight; behind those lanes that times (x - mean). total: the lanes of all rows,
       folded in halves; ROWS: those of each row, which are added to sum[..][row], too. */
    mpt__norm_fn norm_sums;
    /* Out; LINES of backward also add g (x - mean) rstd to sum[0] and g to sum[1]. */
    mpt__norm_fn norm, norm_slope;
    mpt__norm_fn norm_columns; /* the same of each column, without weight or lanes */
    /* A row of whole lanes, and in the same pass the totals of the next; NULL: none. */
    mpt__norm_fn norm_next, norm_slope_next;
#ifndef MPTRAIN_NO_RECURRENT
    void (*cell)(const mpt__cell_block *b);
    void (*cell_slopes)(const mpt__cell_block *b);
#endif
#ifndef MPTRAIN_NO_FRUGAL
    void (*gates)(uint32_t *words, mpt__real *x, bool open); /* of a group; NULL: plain loops */
    /* Values of codes times `peak`; bits of the largest magnitude, NaN above all; codes of x over
       `peak`, which is that, a normal number. plain: without signs. */
    void (*decode)(mpt__real *x, const uint8_t *code, int64_t n, const int32_t *book,
        mpt__real peak, bool plain);
    uint32_t (*code_peak)(const mpt__real *x, int64_t n);
    void (*encode)(uint8_t *code, const mpt__real *x, int64_t n, const int32_t *book,
        mpt__real peak, bool plain);
#endif
} mpt__routines;

/* ==== Operands ==== */

/* An operand, resolved. */
typedef struct mpt__cpu_view {
    void *data; /* NULL: absent */
    const mpt__routines *routines;
    uint8_t dtype;
    bool accumulate;
} mpt__cpu_view;

static mpt__cpu_view mpt__cpu_view_of(const mpt__cpu_call *call, int operand) {
    mpt__cpu_view view;
    view.data = call->data[operand];
    view.routines = call->routines;
    view.dtype = call->launch->operand[operand].dtype;
    view.accumulate = call->launch->operand[operand].access == MPT__ACCUMULATE;
    return view;
}

/* Whether elements of this dtype can be computed with where they lie. */
static MPT__INLINE bool mpt__cpu_is_real(int dtype) {
    return dtype == (sizeof(mpt__real) == sizeof(float) ? MPT_F32 : MPT_F64);
}
static MPT__INLINE bool mpt__cpu_is_half(int dtype) {
    return sizeof(mpt__real) == sizeof(float) && (dtype == MPT_F16 || dtype == MPT_BF16);
}

/* Loads n elements, `stride` apart, beginning with the one at `offset`. */
static void mpt__cpu_get(
    const mpt__cpu_view *view, int64_t offset, int64_t stride, mpt__real *x, int64_t n) {
    if (stride == 1 && mpt__cpu_is_half(view->dtype)) {
        const mpt__convert_table *convert = view->routines->convert;
        (view->dtype == MPT_F16 ? convert->f16_to_f32 : convert->bf16_to_f32)(
            (const uint16_t *)view->data + offset, (float *)(void *)x, (size_t)n);
        return;
    }
    mpt__load_real(x, view->data, view->dtype, offset, stride, stride == 0 && n > 1 ? 1 : n);
    if (stride == 0 && n > 1) view->routines->unary[MPT__UNARY_SPLAT](x, x, n, x[0], 0);
}

/* The same, without a copy where that is possible; otherwise in `block`. */
static const mpt__real *mpt__cpu_in(
    const mpt__cpu_view *view, int64_t offset, int64_t stride, mpt__real *block, int64_t n) {
    if (stride == 1 && mpt__cpu_is_real(view->dtype)) return (const mpt__real *)view->data + offset;
    mpt__cpu_get(view, offset, stride, block, n);
    return block;
}

/* Where to compute results: in the operand itself, or in `block`. mpt__cpu_put follows. */
static mpt__real *mpt__cpu_out(
    const mpt__cpu_view *view, int64_t offset, int64_t stride, mpt__real *block) {
    bool direct = stride == 1 && mpt__cpu_is_real(view->dtype) && !view->accumulate;
    return direct ? (mpt__real *)view->data + offset : block;
}

/* As mpt__cpu_out, for results that begin with what is there. */
static mpt__real *mpt__cpu_edit(
    const mpt__cpu_view *view, int64_t offset, mpt__real *block, int64_t n) {
    mpt__real *x = mpt__cpu_out(view, offset, 1, block);
    if (x == block) mpt__cpu_get(view, offset, 1, block, n);
    return x;
}

/* Stores n <= MPT__BLOCK results, added to what is there if the operand accumulates. */
static MPT__NOINLINE void mpt__cpu_put_block(
    const mpt__cpu_view *view, int64_t offset, int64_t stride, const mpt__real *x, int64_t n) {
    mpt__real sum[MPT__BLOCK];
    if (view->accumulate) {
        const mpt__real *old = mpt__cpu_in(view, offset, stride, sum, n);
        view->routines->binary[MPT__BINARY_ADD](sum, old, x, n, 0, 0);
        x = sum;
    }
    if (stride == 1 && mpt__cpu_is_half(view->dtype)) {
        const mpt__convert_table *convert = view->routines->convert;
        (view->dtype == MPT_F16 ? convert->f32_to_f16 : convert->f32_to_bf16)(
            (const float *)(const void *)x, (uint16_t *)view->data + offset, (size_t)n);
        return;
    }
    mpt__store_real(view->data, view->dtype, offset, stride, x, n);
}

/* The same, where nothing is left to do for those that stand where mpt__cpu_out said. */
static MPT__INLINE void mpt__cpu_put(
    const mpt__cpu_view *view, int64_t offset, int64_t stride, const mpt__real *x, int64_t n) {
    if (mpt__cpu_out(view, offset, stride, NULL) != x)
        mpt__cpu_put_block(view, offset, stride, x, n);
}

static mpt__real mpt__cpu_get_one(const mpt__cpu_view *view, int64_t offset) {
    mpt__real x = 0;
    mpt__load_real(&x, view->data, view->dtype, offset, 1, 1);
    return x;
}

static void mpt__cpu_put_one(const mpt__cpu_view *view, int64_t offset, mpt__real x) {
    mpt__cpu_put_block(view, offset, 1, &x, 1);
}

static int64_t mpt__cpu_get_integer(const mpt__cpu_view *view, int64_t offset) {
    int64_t x = 0;
    mpt__load_i64(&x, view->data, view->dtype, offset, 1, 1);
    return x;
}

/* ==== Loops ==== */

static MPT__INLINE int64_t mpt__cpu_min(int64_t a, int64_t b) { return a < b ? a : b; }
static MPT__INLINE int64_t mpt__cpu_chunks(int64_t count, int64_t size) {
    return count / size + (count % size != 0); /* a tensor without elements may be of any length */
}
/* What numbers of elements multiply to: 0 wins over dimensions too large to multiply. */
static MPT__INLINE int64_t mpt__cpu_times(int64_t a, int64_t b) {
    bool both_fit = ((a | b) >> 31) == 0; /* spares the division */
    return !both_fit && b != 0 && a > INT64_MAX / b ? INT64_MAX : a * b;
}
static int64_t mpt__cpu_numel(const mpt__operand *o) {
    int64_t count = 1;
    for (int d = 0; d < o->rank; d++) count = mpt__cpu_times(count, o->shape[d]);
    return count;
}

/* The nanoseconds of `count` elements, given those of one on the reference level. */
static int64_t mpt__cpu_cost(const mpt__cpu_call *call, int64_t count, double ns) {
    double all = (double)count * ns * call->routines->slowness;
    return all < 9e18 ? (int64_t)all : INT64_MAX;
}

/* The elements of an operand, or some dimensions of them, in logical order. Dimensions of size 1
   are left out, and neighbours merged where their strides allow it. */
typedef struct mpt__cpu_loop {
    int rank;
    int64_t count;
    int64_t shape[MPT_MAX_RANK], stride[MPT_MAX_RANK];
} mpt__cpu_loop;

static void mpt__cpu_loop_init(mpt__cpu_loop *loop) {
    loop->rank = 0;
    loop->count = 1;
}

/* Adds a dimension inside those added before. */
static void mpt__cpu_loop_add(mpt__cpu_loop *loop, int64_t size, int64_t stride) {
    int last = loop->rank - 1;
    loop->count = mpt__cpu_times(loop->count, size);
    if (size == 1) return;
    if (last >= 0 && (uint64_t)loop->stride[last] == (uint64_t)size * (uint64_t)stride) {
        loop->shape[last] = mpt__cpu_times(loop->shape[last], size);
    } else {
        last = loop->rank++;
        loop->shape[last] = size;
    }
    loop->stride[last] = stride;
}

/* A loop has a last dimension even when it has one element. */
static void mpt__cpu_loop_close(mpt__cpu_loop *loop) {
    if (loop->rank > 0) return;
    loop->rank = 1;
    loop->shape[0] = loop->stride[0] = 1;
}

static void mpt__cpu_loop_over(mpt__cpu_loop *loop, const mpt__operand *o) {
    mpt__cpu_loop_init(loop);
    for (int d = 0; d < o->rank; d++) mpt__cpu_loop_add(loop, o->shape[d], o->stride[d]);
    mpt__cpu_loop_close(loop);
}

static MPT__INLINE int64_t mpt__cpu_inner(const mpt__cpu_loop *loop) {
    return loop->stride[loop->rank - 1];
}

/* A place in a loop, and where in memory it is. */
typedef struct mpt__cpu_cursor {
    int64_t offset;
    int64_t index[MPT_MAX_RANK];
} mpt__cpu_cursor;

static void mpt__cpu_start(mpt__cpu_cursor *c, const mpt__cpu_loop *loop, int64_t at) {
    c->offset = 0;
    for (int d = loop->rank - 1; d >= 0; d--) {
        c->index[d] = at > 0 ? at % loop->shape[d] : 0;
        at = at > 0 ? at / loop->shape[d] : 0;
        c->offset += c->index[d] * loop->stride[d];
    }
}

/* How many elements, equally spaced, lie from here to the end of the last dimension. */
static MPT__INLINE int64_t mpt__cpu_room(const mpt__cpu_cursor *c, const mpt__cpu_loop *loop) {
    return loop->shape[loop->rank - 1] - c->index[loop->rank - 1];
}

/* Moves on by n, at most the room there is. */
static void mpt__cpu_advance(mpt__cpu_cursor *c, const mpt__cpu_loop *loop, int64_t n) {
    int d = loop->rank - 1;
    c->index[d] += n;
    c->offset += n * loop->stride[d];
    while (d > 0 && c->index[d] == loop->shape[d]) {
        c->offset += loop->stride[d - 1] - c->index[d] * loop->stride[d];
        c->index[d] = 0;
        c->index[--d]++;
    }
}

/* An operand and its loop. */
typedef struct mpt__cpu_walk {
    mpt__cpu_view view;
    mpt__cpu_loop loop;
} mpt__cpu_walk;

/* The next n <= MPT__BLOCK elements: where they lie, or gathered in `block`. */
static const mpt__real *mpt__cpu_take(
    const mpt__cpu_walk *walk, mpt__cpu_cursor *c, mpt__real *block, int64_t n) {
    const mpt__cpu_loop *loop = &walk->loop;
    const mpt__real *x = block;
    int64_t m = mpt__cpu_room(c, loop);
    if (m >= n) x = mpt__cpu_in(&walk->view, c->offset, mpt__cpu_inner(loop), block, m = n);
    for (int64_t done = 0; done < n; done += m) {
        m = mpt__cpu_min(mpt__cpu_room(c, loop), n - done);
        if (m < n) { mpt__cpu_get(&walk->view, c->offset, mpt__cpu_inner(loop), block + done, m); }
        mpt__cpu_advance(c, loop, m);
    }
    return x;
}

/* Where to compute the next n results; mpt__cpu_give follows and moves on. */
static mpt__real *mpt__cpu_place(
    const mpt__cpu_walk *walk, const mpt__cpu_cursor *c, mpt__real *block, int64_t n) {
    if (mpt__cpu_room(c, &walk->loop) < n) return block;
    return mpt__cpu_out(&walk->view, c->offset, mpt__cpu_inner(&walk->loop), block);
}

static void mpt__cpu_give(
    const mpt__cpu_walk *walk, mpt__cpu_cursor *c, const mpt__real *x, int64_t n) {
    for (int64_t m; n > 0; n -= m, x += m) {
        m = mpt__cpu_min(mpt__cpu_room(c, &walk->loop), n);
        mpt__cpu_put(&walk->view, c->offset, mpt__cpu_inner(&walk->loop), x, m);
        mpt__cpu_advance(c, &walk->loop, m);
    }
}

/* ==== Sums ==== */

/* Unrolled: a loop over an array in memory would take three times the instructions. */
#define MPT__FOLD_2(x, l, f) f(x[l], x[(l) + 8])
#define MPT__FOLD_4(x, l, f) f(MPT__FOLD_2(x, l, f), MPT__FOLD_2(x, (l) + 4, f))
#define MPT__FOLD_8(x, l, f) f(MPT__FOLD_4(x, l, f), MPT__FOLD_4(x, (l) + 2, f))
#define MPT__DEFINE_FOLD(name, type, combine) \
    static type name(const type lane[MPT__SUM_LANES]) { \
        return combine(MPT__FOLD_8(lane, 0, combine), MPT__FOLD_8(lane, 1, combine)); \
    }
#define MPT__PLUS(a, b) ((a) + (b))
#define MPT__TIMES(a, b) ((a) * (b))
MPT__DEFINE_FOLD(mpt__cpu_fold_lanes, mpt__real, MPT__PLUS)
MPT__DEFINE_FOLD(mpt__cpu_fold_maxima, mpt__real, mpt__real_max_nan)
MPT__DEFINE_FOLD(mpt__cpu_fold_products, mpt__real, MPT__TIMES)
MPT__DEFINE_FOLD(mpt__cpu_fold_squares, double, MPT__PLUS)

/* A sum under way: the tree that MPT__SUM_CHUNK describes, fed in any portions. part[k] holds the
   sum of 2^k chunks where bit k of `chunks` is set. */
typedef struct mpt__cpu_sum {
    const mpt__routines *routines;
    int64_t count, chunks;
    mpt__real lane[MPT__SUM_LANES];
    mpt__real part[MPT__SUM_HEIGHT];
} mpt__cpu_sum;

static void mpt__cpu_sum_init(mpt__cpu_sum *sum, const mpt__routines *routines) {
    sum->routines = routines;
    sum->count = sum->chunks = 0;
    memset(sum->lane, 0, sizeof sum->lane);
}

static void mpt__cpu_sum_close_chunk(mpt__cpu_sum *sum) {
    mpt__real carry = mpt__cpu_fold_lanes(sum->lane);
    int k = 0;
    for (; (sum->chunks >> k & 1) != 0; k++) carry = sum->part[k] + carry;
    sum->part[k] = carry;
    sum->chunks++;
    sum->count = 0;
    memset(sum->lane, 0, sizeof sum->lane);
}

/* n elements more are in the lanes, all of one chunk. */
static void mpt__cpu_sum_count(mpt__cpu_sum *sum, int64_t n) {
    sum->count += n;
    if (sum->count == MPT__SUM_CHUNK) mpt__cpu_sum_close_chunk(sum);
}

static void mpt__cpu_sum_add(mpt__cpu_sum *sum, const mpt__real *x, int64_t n) {
    for (int64_t take; n > 0; n -= take, x += take) {
        take = mpt__cpu_min(n, MPT__SUM_CHUNK - sum->count);
        sum->routines->add_lanes(sum->lane, sum->count, x, take);
        mpt__cpu_sum_count(sum, take);
    }
}

static mpt__real mpt__cpu_sum_total(mpt__cpu_sum *sum) {
    mpt__real total = 0;
    bool any = false;
    if (sum->chunks == 0) return mpt__cpu_fold_lanes(sum->lane);
    if (sum->count > 0) mpt__cpu_sum_close_chunk(sum);
    for (int k = 0; k < MPT__SUM_HEIGHT; k++) {
        if ((sum->chunks >> k & 1) == 0) continue;
        total = any ? sum->part[k] + total : sum->part[k];
        any = true;
    }
    return total;
}

/* ==== Elementwise kernels ==== */

/* One launch of an elementwise kernel. body computes the next n <= MPT__BLOCK elements, of which
   the first is number `first`; it moves the cursors of all operands on. */
typedef struct mpt__cpu_map mpt__cpu_map;
#define MPT__MAP_TAKES \
    const mpt__cpu_map *map, mpt__cpu_cursor *at, int64_t first, int64_t n
typedef void (*mpt__cpu_body)(MPT__MAP_TAKES);
struct mpt__cpu_map {
    const mpt__cpu_call *call;
    mpt__cpu_body body, other_body;
    int operands;
    mpt__unary_fn unary;
    mpt__binary_fn binary;
    mpt__real c, d;     /* of unary and binary; c of dropout: the factor of kept elements */
    uint32_t threshold; /* dropout: random words from here on keep */
    mpt__rng_key key;
    const char *pattern; /* fill: MPT__BLOCK elements, or as many as there are */
    mpt__real *table;    /* of cpu/halves.c */
    mpt__cpu_walk walk[3];
};

static void mpt__cpu_map_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_map *map = (const mpt__cpu_map *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__cpu_min(begin + MPT__CHUNK, map->walk[0].loop.count);
    mpt__cpu_cursor at[3];
    (void)thread;
    for (int k = 0; k < map->operands; k++) mpt__cpu_start(&at[k], &map->walk[k].loop, begin);
    for (; begin < end; begin += MPT__BLOCK) {
        map->body(map, at, begin, mpt__cpu_min(MPT__BLOCK, end - begin));
    }
}

/* Runs map->body over operands 0 .. n-1, at `ns` nanoseconds per element. */
static void mpt__cpu_map_run(mpt__cpu_map *map, const mpt__cpu_call *call, int n, double ns) {
    map->call = call;
    map->operands = n;
    for (int k = 0; k < n; k++) {
        map->walk[k].view = mpt__cpu_view_of(call, k);
        mpt__cpu_loop_over(&map->walk[k].loop, &call->launch->operand[k]);
    }
    int64_t count = map->walk[0].loop.count;
    mpt__parallel(call->pool, mpt__cpu_chunks(count, MPT__CHUNK), mpt__cpu_cost(call, count, ns),
        mpt__cpu_map_chunk, map);
}

/* The most elements, up to n, that lie equally spaced in all operands. */
static int64_t mpt__cpu_together(const mpt__cpu_map *map, const mpt__cpu_cursor *at, int64_t n) {
    for (int k = 0; k < map->operands; k++) {
        n = mpt__cpu_min(n, mpt__cpu_room(&at[k], &map->walk[k].loop));
    }
    return n;
}

static void mpt__cpu_advance_all(const mpt__cpu_map *map, mpt__cpu_cursor *at, int64_t n) {
    for (int k = 0; k < map->operands; k++) mpt__cpu_advance(&at[k], &map->walk[k].loop, n);
}

static void mpt__cpu_fill_body(MPT__MAP_TAKES) {
    const mpt__cpu_walk *to = &map->walk[0];
    int64_t size = mpt__dtype_info[to->view.dtype].bytes, step = mpt__cpu_inner(&to->loop);
    (void)first;
    for (int64_t m; n > 0; n -= m) {
        char *p = (char *)to->view.data + at->offset * size;
        m = step == 1 ? mpt__cpu_together(map, at, n) : 1;
        memcpy(p, map->pattern, (size_t)(m * size));
        mpt__cpu_advance_all(map, at, m);
    }
}

static void mpt__cpu_fill(const mpt__cpu_call *call) {
    const mpt__operand *o = &call->launch->operand[0];
    double x[MPT__BLOCK], pattern[MPT__BLOCK];
    int64_t n = mpt__cpu_min(MPT__BLOCK, mpt__cpu_numel(o));
    mpt__cpu_map map;
    for (int64_t i = 0; i < n; i++) x[i] = call->launch->imm[0];
    mpt__store_f64(pattern, o->dtype, 0, 1, x, n);
    map.pattern = (const char *)pattern;
    map.body = mpt__cpu_fill_body;
    mpt__cpu_map_run(&map, call, 1, 0.5);
}

static void mpt__cpu_copy_body(MPT__MAP_TAKES) {
    mpt__real block[MPT__BLOCK];
    mpt__real *place = mpt__cpu_place(&map->walk[1], &at[1], block, n);
    (void)first;
    mpt__cpu_give(&map->walk[1], &at[1], mpt__cpu_take(&map->walk[0], &at[0], place, n), n);
}

/* The same through double, where F64 is on one side, or int64, where both are integers: exact, sums
   modulo 2^64. */
static void mpt__cpu_copy_wide(
    const mpt__cpu_map *map, mpt__cpu_cursor *at, int64_t n, bool integers) {
    const mpt__cpu_view *from = &map->walk[0].view, *to = &map->walk[1].view;
    const int64_t step0 = mpt__cpu_inner(&map->walk[0].loop);
    const int64_t step1 = mpt__cpu_inner(&map->walk[1].loop);
    union {
        double f[MPT__BLOCK];
        int64_t i[MPT__BLOCK];
    } block, sum;
    double *x = block.f, *old = sum.f;
    int64_t *whole = block.i, *before = sum.i;
    for (int64_t m; n > 0; n -= m) {
        m = mpt__cpu_together(map, at, n);
        if (integers) {
            mpt__load_i64(whole, from->data, from->dtype, at[0].offset, step0, m);
            if (to->accumulate) mpt__load_i64(before, to->data, to->dtype, at[1].offset, step1, m);
            for (int64_t i = 0; to->accumulate && i < m; i++)
                whole[i] = (int64_t)((uint64_t)before[i] + (uint64_t)whole[i]);
            mpt__store_i64(to->data, to->dtype, at[1].offset, step1, whole, m);
        } else {
            mpt__load_f64(x, from->data, from->dtype, at[0].offset, step0, m);
            if (to->accumulate) mpt__load_f64(old, to->data, to->dtype, at[1].offset, step1, m);
            for (int64_t i = 0; to->accumulate && i < m; i++) x[i] = old[i] + x[i];
            mpt__store_f64(to->data, to->dtype, at[1].offset, step1, x, m);
        }
        mpt__cpu_advance_all(map, at, m);
    }
}
static void mpt__cpu_copy_f64_body(MPT__MAP_TAKES) {
    (void)first;
    mpt__cpu_copy_wide(map, at, n, false);
}
static void mpt__cpu_copy_i64_body(MPT__MAP_TAKES) {
    (void)first;
    mpt__cpu_copy_wide(map, at, n, true);
}

/* Equal dtypes: bytes where they lie together, by other_body elsewhere. */
static void mpt__cpu_copy_bytes_body(MPT__MAP_TAKES) {
    const mpt__cpu_walk *from = &map->walk[0], *to = &map->walk[1];
    int64_t size = mpt__dtype_info[to->view.dtype].bytes;
    bool dense = mpt__cpu_inner(&from->loop) == 1 && mpt__cpu_inner(&to->loop) == 1;
    if (!dense || mpt__cpu_together(map, at, n) < n) {
        map->other_body(map, at, first, n);
        return;
    }
    memcpy((char *)to->view.data + at[1].offset * size,
        (const char *)from->view.data + at[0].offset * size, (size_t)(n * size));
    mpt__cpu_advance_all(map, at, n);
}

/* A copy between operands that are dense in different dimensions goes in chunks of MPT__COPY_TILE
   by MPT__COPY_RUN elements along the dimensions in which walk 1 and 0 are dense; neighbours along
   the latter follow each other, which is what memory likes best. */
#define MPT__COPY_RUN 256
/* Bytes from which on, measured, it is better not to read what is overwritten: more than an L2. */
#define MPT__COPY_BEYOND_CACHE (4 << 20)
typedef struct mpt__cpu_transposition {
    mpt__cpu_walk walk[2];          /* over the other dimensions */
    int64_t size[2], along, across; /* of the dimensions in which walk 0 and 1 are dense; chunks */
    int64_t step[2];                /* of walk 0 in dimension 1, of walk 1 in dimension 0 */
    bool direct, beyond_cache;
} mpt__cpu_transposition;

/* m by n elements through blocks. */
static void mpt__cpu_transpose_tile(
    const mpt__cpu_transposition *w, int64_t from, int64_t to, int64_t m, int64_t n) {
    enum { T = MPT__COPY_TILE };
    mpt__real in[T * T], tile[T * T];
    for (int64_t r = 0; r < n; r++) {
        mpt__cpu_get(&w->walk[0].view, from + r * w->step[0], 1, in + r * T, m);
    }
    w->walk[0].view.routines->transpose(tile, T, in, T, n, m, false);
    for (int64_t r = 0; r < m; r++) {
        mpt__cpu_put_block(&w->walk[1].view, to + r * w->step[1], 1, tile + r * T, n);
    }
}

static void mpt__cpu_transpose_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_transposition *w = (const mpt__cpu_transposition *)work;
    int64_t i = chunk % w->along * MPT__COPY_RUN, j = chunk / w->along % w->across * MPT__COPY_TILE;
    int64_t m = mpt__cpu_min(MPT__COPY_RUN, w->size[0] - i);
    int64_t n = mpt__cpu_min(MPT__COPY_TILE, w->size[1] - j);
    mpt__cpu_cursor at[2];
    (void)thread;
    for (int k = 0; k < 2; k++) {
        mpt__cpu_start(&at[k], &w->walk[k].loop, chunk / w->along / w->across);
    }
    int64_t from = at[0].offset + j * w->step[0] + i, to = at[1].offset + i * w->step[1] + j;
    if (w->direct) {
        const mpt__real *x = (const mpt__real *)w->walk[0].view.data + from;
        mpt__real *out = (mpt__real *)w->walk[1].view.data + to;
        bool lines = n == MPT__COPY_TILE && (uintptr_t)out % 64 == 0;
        w->walk[0].view.routines->transpose(
            out, w->step[1], x, w->step[0], n, m, w->beyond_cache && lines);
        return;
    }
    for (int64_t k = 0; k < m; k += MPT__COPY_TILE) {
        mpt__cpu_transpose_tile(
            w, from + k, to + k * w->step[1], mpt__cpu_min(MPT__COPY_TILE, m - k), n);
    }
}

/* False where the copy is not of this kind; `run` takes its chunks. */
static bool mpt__cpu_copy_transposed(const mpt__cpu_call *call, mpt__chunk_fn run) {
    const mpt__operand *o = call->launch->operand;
    int dense[2] = {-1, -1};
    mpt__cpu_transposition w;
    for (int d = 0; d < o[0].rank; d++) {
        for (int k = 0; k < 2; k++) {
            if (o[k].stride[d] == 1 && o[k].shape[d] >= 4 - 2 * k) dense[k] = d;
        }
    }
    if (dense[0] < 0 || dense[1] < 0 || dense[0] == dense[1]) return false;
    for (int k = 0; k < 2; k++) {
        w.walk[k].view = mpt__cpu_view_of(call, k);
        w.size[k] = o[0].shape[dense[k]];
        w.step[k] = o[k].stride[dense[1 - k]];
        mpt__cpu_loop_init(&w.walk[k].loop);
        for (int d = 0; d < o[0].rank; d++) {
            if (d == dense[0] || d == dense[1]) continue;
            mpt__cpu_loop_add(&w.walk[k].loop, o[k].shape[d], o[k].stride[d]);
        }
        mpt__cpu_loop_close(&w.walk[k].loop);
    }
    const mpt__cpu_view *to = &w.walk[1].view;
    int64_t count = mpt__cpu_numel(&o[0]);
    w.along = mpt__cpu_chunks(w.size[0], MPT__COPY_RUN);
    w.across = mpt__cpu_chunks(w.size[1], MPT__COPY_TILE);
    w.direct =
        mpt__cpu_is_real(w.walk[0].view.dtype) && mpt__cpu_is_real(to->dtype) && !to->accumulate;
    w.beyond_cache = w.step[1] % 16 == 0 && count >= MPT__COPY_BEYOND_CACHE / 4;
    mpt__parallel(call->pool, w.walk[0].loop.count * w.along * w.across,
        mpt__cpu_cost(call, count, 4.0), run, &w);
    return true;
}

/* The elements of an operand that lies dense, in logical order; -1: it does not. */
static int64_t mpt__cpu_dense(const mpt__operand *o) {
    int64_t count = 1;
    for (int d = o->rank - 1; d >= 0; d--) {
        if (o->shape[d] != 1 && o->stride[d] != count) return -1;
        count = mpt__cpu_times(count, o->shape[d]);
    }
    return count;
}

static void mpt__cpu_copy(const mpt__cpu_call *call) {
    const mpt__operand *o = call->launch->operand;
    uint8_t from = o[0].dtype, to = o[1].dtype;
    bool as_bytes = from == to && o[1].access != MPT__ACCUMULATE;
    int64_t count = as_bytes && mpt__cpu_dense(&o[1]) >= 0 ? mpt__cpu_dense(&o[0]) : -1;
    if (count > 0 && count <= MPT__CHUNK) {
        memcpy(call->data[1], call->data[0], (size_t)(count * mpt__dtype_info[to].bytes));
        return;
    }
    mpt__cpu_map map;
    map.body = mpt__cpu_copy_body;
    if (from == MPT_F64 || to == MPT_F64) map.body = mpt__cpu_copy_f64_body;
    if (!mpt__dtype_info[from].is_float && !mpt__dtype_info[to].is_float) {
        map.body = mpt__cpu_copy_i64_body;
    }
    if (map.body == mpt__cpu_copy_body && mpt__cpu_numel(&o[0]) > 0 &&
        mpt__cpu_copy_transposed(call, mpt__cpu_transpose_chunk)) {
        return;
    }
    if (as_bytes) {
        map.other_body = map.body;
        map.body = mpt__cpu_copy_bytes_body;
    }
    mpt__cpu_map_run(&map, call, 2, 2.0);
}

/* The reference level, one by one. */
#define MPT__V(word) mpt__real_##word
#define MPT__UNARY_ROW(id, ns, value) \
    static void mpt__ref_unary_##id(mpt__real *out, const mpt__real *x, int64_t n, mpt__real c, \
                                    mpt__real d) { \
        for (int64_t i = 0; i < n; i++) { \
            const mpt__real a = x[i]; \
            (void)c, (void)d, out[i] = value; \
        } \
    }
#define MPT__BINARY_ROW(id, ns, value) \
    static void mpt__ref_binary_##id(mpt__real *out, const mpt__real *x, const mpt__real *y, \
                                     int64_t n, mpt__real c, mpt__real d) { \
        for (int64_t i = 0; i < n; i++) { \
            const mpt__real a = x[i], b = y[i]; \
            (void)c, (void)d, out[i] = value; \
        } \
    }
MPT__UNARY_FUNCTIONS(MPT__UNARY_ROW, MPT__UNARY_ROW)
MPT__UNARY_ROW(SPLAT, 1, ((void)a, c))
MPT__BINARY_FUNCTIONS(MPT__BINARY_ROW, MPT__BINARY_ROW)
#undef MPT__V

static void mpt__cpu_unary_body(MPT__MAP_TAKES) {
    mpt__real in[MPT__BLOCK], block[MPT__BLOCK];
    mpt__real *out = mpt__cpu_place(&map->walk[1], &at[1], block, n);
    (void)first;
    map->unary(out, mpt__cpu_take(&map->walk[0], &at[0], in, n), n, map->c, map->d);
    mpt__cpu_give(&map->walk[1], &at[1], out, n);
}

static mpt__cpu_map mpt__cpu_unary_map(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    bool by_slot = launch->function == MPT__FN_MUL_SLOT;
    mpt__cpu_map map;
    map.body = mpt__cpu_unary_body;
    map.unary = call->routines->unary[MPT__UNARY_AT(launch->function)];
    map.c = (mpt__real)(by_slot ? call->scalars[launch->slot[0]].f : launch->imm[0]);
    map.d = (mpt__real)launch->imm[1];
    return map;
}

static void mpt__cpu_unary_each(const mpt__cpu_call *call) {
    mpt__cpu_map map = mpt__cpu_unary_map(call);
    mpt__cpu_map_run(&map, call, 2, mpt__cpu_unary_ns[MPT__UNARY_AT(call->launch->function)]);
}

static void mpt__cpu_binary_body(MPT__MAP_TAKES) {
    mpt__real in[2][MPT__BLOCK], block[MPT__BLOCK];
    mpt__real *out = mpt__cpu_place(&map->walk[2], &at[2], block, n);
    const mpt__real *x = mpt__cpu_take(&map->walk[0], &at[0], in[0], n);
    (void)first;
    map->binary(out, x, mpt__cpu_take(&map->walk[1], &at[1], in[1], n), n, map->c, map->d);
    mpt__cpu_give(&map->walk[2], &at[2], out, n);
}

/* Of functions from MPT__FN_EQUAL on, bits: true of less, equal, greater. */
static bool mpt__cpu_compare_i64(int function, int64_t a, int64_t b) {
    static const uint8_t holds[] = {2, 5, 1, 3, 4, 6};
    return (holds[function - MPT__FN_EQUAL] >> (1 + (a > b) - (a < b)) & 1) != 0;
}

/* Comparison of two integer operands. */
static void mpt__cpu_compare_i64_body(MPT__MAP_TAKES) {
    int64_t x[2][MPT__BLOCK];
    mpt__real result[MPT__BLOCK];
    const int function = map->call->launch->function;
    (void)first;
    for (int64_t m; n > 0; n -= m) {
        m = mpt__cpu_together(map, at, n);
        for (int k = 0; k < 2; k++) {
            const mpt__cpu_walk *from = &map->walk[k];
            mpt__load_i64(x[k], from->view.data, from->view.dtype, at[k].offset,
                              mpt__cpu_inner(&from->loop), m);
        }
        for (int64_t i = 0; i < m; i++)
            result[i] = mpt__cpu_compare_i64(function, x[0][i], x[1][i]) ? 1 : 0;
        mpt__cpu_put(&map->walk[2].view, at[2].offset, mpt__cpu_inner(&map->walk[2].loop), result,
                     m);
        mpt__cpu_advance_all(map, at, m);
    }
}

static mpt__cpu_map mpt__cpu_binary_map(const mpt__cpu_call *call) {
    mpt__cpu_map map;
    map.body = mpt__cpu_binary_body;
    map.binary = call->routines->binary[MPT__BINARY_AT(call->launch->function)];
    map.c = (mpt__real)call->launch->imm[0];
    map.d = (mpt__real)call->launch->imm[1];
    return map;
}

static void mpt__cpu_binary_each(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__operand *o = launch->operand;
    mpt__cpu_map map = mpt__cpu_binary_map(call);
    if (launch->function >= MPT__FN_EQUAL && launch->function <= MPT__FN_GREATER_EQUAL &&
        !mpt__dtype_info[o[0].dtype].is_float && !mpt__dtype_info[o[1].dtype].is_float)
        map.body = mpt__cpu_compare_i64_body;
    mpt__cpu_map_run(&map, call, 3, mpt__cpu_binary_ns[MPT__BINARY_AT(launch->function)]);
}

/* ==== Random numbers ==== */

static void mpt__cpu_random_body(MPT__MAP_TAKES) {
    const mpt__launch *launch = map->call->launch;
    float a = (float)launch->imm[0], b = (float)launch->imm[1], drawn[MPT__BLOCK];
    mpt__real x[MPT__BLOCK];
    (launch->function == MPT__FN_NORMAL ? mpt__random_normal : mpt__random_uniform)(
        map->key, (uint64_t)first, (size_t)n, a, b, drawn);
    const float most = launch->function == MPT__FN_NORMAL ? INFINITY : (float)launch->imm[2];
    for (int64_t i = 0; i < n; i++) x[i] = (mpt__real)(drawn[i] > most ? most : drawn[i]);
    mpt__cpu_give(&map->walk[0], &at[0], x, n);
}

static void mpt__cpu_random(const mpt__cpu_call *call) {
    mpt__cpu_map map;
    map.body = mpt__cpu_random_body;
    map.key = mpt__cpu_rng_key(call);
    if (call->launch->slot[1] != 0)
        map.key.call += (uint64_t)call->scalars[call->launch->slot[1]].i;
    mpt__cpu_map_run(&map, call, 1, 30.0);
}

static void mpt__cpu_dropout_body(MPT__MAP_TAKES) {
    mpt__real in[MPT__BLOCK], block[MPT__BLOCK];
    mpt__real *out = mpt__cpu_place(&map->walk[1], &at[1], block, n);
    const mpt__real *x = mpt__cpu_take(&map->walk[0], &at[0], in, n);
    map->call->routines->dropout(out, x, n, map->key, (uint64_t)first, map->threshold, map->c);
    mpt__cpu_give(&map->walk[1], &at[1], out, n);
}

static void mpt__cpu_zero_body(MPT__MAP_TAKES) {
    mpt__real zero[MPT__BLOCK] = {0};
    (void)first;
    mpt__cpu_give(&map->walk[1], &at[1], zero, n);
}

/* Kept elements are multiplied by 1 / (1 - p), rounded once. An element is kept when its word is
   p 2^32 or more; where no word is, as for a p of NaN, none is kept. */
static void mpt__cpu_dropout(const mpt__cpu_call *call) {
    double p = call->launch->imm[0], lowest = p * 4294967296.0;
    bool any = lowest <= 4294967295.0;
    mpt__cpu_map map;
    map.body = any ? mpt__cpu_dropout_body : mpt__cpu_zero_body;
    map.key = mpt__cpu_rng_key(call);
    map.c = any ? (mpt__real)(1 / (1 - p)) : 0;
    map.threshold = any && lowest > 0 ? (uint32_t)lowest : 0;
    if (any && (double)map.threshold < lowest) map.threshold++;
    mpt__cpu_map_run(&map, call, 2, 8.0);
}

#endif
