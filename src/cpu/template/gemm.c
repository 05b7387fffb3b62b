/* ---------------------------------------------------------------------------------------------
 * cpu/template/gemm.c: micro-kernels of matrix products, C = act(alpha A B + bias), in fp32 with
 * FMA.
 *
 * A level is a table of functions, mpt__gemm_level, that one macro makes of a vector layer; the
 * driver in cpu/gemm.c has the loops. A new ISA adds a line at the end of this room.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__CPU_TEMPLATE_GEMM_INCLUDED
#define MPT__CPU_TEMPLATE_GEMM_INCLUDED

#include "cpu/level/neon.c"

/* ==== One product ==== */

/* A (outer = M) or B (outer = N), or the bias (outer = M, inner = N). Strides in elements; inner is
   the stride along K. Values are rounded to dtype `round` after loading unless it is 0. */
typedef struct mpt__gemm_side {
    const char *data;
    int dtype, round;
    int64_t outer, inner;
} mpt__gemm_side;

/* A matrix that is never written down: a row for each pixel of a grid over images [n, line, pixel,
   channel], a column for each channel of each tap. Row (n, y, x) has at tap (ty, tx) the channels
   of the pixel first + stride (y, x) + apart (ty, tx), zeros where there is none. Pairs: along
   lines and along pixels. */
typedef struct mpt__gemm_image {
    int64_t image, step[2]; /* elements from image to image, line to line, pixel to pixel */
    int64_t size[2];        /* lines and pixels of an image */
    int64_t grid[2], stride[2], first[2];
    int64_t taps[2], apart[2], channels;
    bool along_k; /* rows run along K, else columns do */
} mpt__gemm_image;

static MPT__UNUSED const char *mpt__gemm_at(const mpt__gemm_side *s, int64_t outer, int64_t inner) {
    return s->data + (outer * s->outer + inner * s->inner) * mpt__dtype_info[s->dtype].bytes;
}

/* Elements from the first one to the first channel of a row's pixel, at tap 0. */
static MPT__UNUSED int64_t mpt__gemm_pixel(const mpt__gemm_image *g, int64_t row, int64_t at[2]) {
    int64_t line = row / g->grid[1];
    at[0] = line % g->grid[0] * g->stride[0] + g->first[0];
    at[1] = row % g->grid[1] * g->stride[1] + g->first[1];
    return line / g->grid[0] * g->image + at[0] * g->step[0] + at[1] * g->step[1];
}

/* Writes rows and columns of such a matrix, from the given ones on, one row behind the other. */
static MPT__UNUSED void mpt__gemm_gather(char *to, const mpt__gemm_image *g, const char *data,
                                         int64_t bytes, int64_t row, int64_t rows, int64_t column,
                                         int64_t columns) {
    const int64_t tap = column / g->channels, first = column % g->channels;
    const int64_t ty0 = tap / g->taps[1], tx0 = tap % g->taps[1];
    const int64_t line_step = g->apart[0] * g->step[0], tap_step = g->apart[1] * g->step[1];
    const bool adjoin = g->apart[1] == 1 && g->step[1] == g->channels;
    int64_t at[2], pixel = mpt__gemm_pixel(g, row, at), in_line = row % g->grid[1];
    while (rows-- > 0) {
        int64_t from = pixel + ty0 * line_step + tx0 * tap_step + first, n;
        int64_t y = at[0] + ty0 * g->apart[0], tx = tx0, c = first;
        bool whole = adjoin && at[1] >= 0 && at[1] + g->taps[1] <= g->size[1];
        for (int64_t left = columns; left > 0; left -= n, to += n * bytes) {
            int64_t x = at[1] + tx * g->apart[1];
            n = (whole ? (g->taps[1] - tx) * g->channels : g->channels) - c;
            n = n < left ? n : left;
            if (y >= 0 && y < g->size[0] && x >= 0 && x < g->size[1]) {
                memcpy(to, data + from * bytes, (size_t)(n * bytes));
            } else {
                memset(to, 0, (size_t)(n * bytes));
            }
            from += tap_step - c;
            c = 0;
            if (whole || ++tx == g->taps[1]) {
                from += line_step - (whole ? tx + 1 : tx) * tap_step;
                y += g->apart[0];
                tx = 0;
            }
        }
        at[1] += g->stride[1], pixel += g->stride[1] * g->step[1], row++;
        if (++in_line < g->grid[1]) continue;
        pixel = mpt__gemm_pixel(g, row, at);
        in_line = 0;
    }
}

/* The part of a side from (outer, k) on; where it is of an image, gathered into `buffer`. */
static MPT__UNUSED mpt__gemm_side mpt__gemm_part(const mpt__gemm_side *side,
                                                 const mpt__gemm_image *image, int64_t outer,
                                                 int64_t count, int64_t k, int64_t depth,
                                                 char *buffer) {
    mpt__gemm_side part = *side;
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    part.data = buffer;
    if (image == NULL) {
        part.data = mpt__gemm_at(side, outer, k);
    } else if (image->along_k) {
        mpt__gemm_gather(buffer, image, side->data, bytes, k, depth, outer, count);
        part.outer = 1, part.inner = count;
    } else {
        mpt__gemm_gather(buffer, image, side->data, bytes, outer, count, k, depth);
        part.outer = depth, part.inner = 1;
    }
    return part;
}

#if defined(MPT__HAS_AVX2) || defined(MPT__HAS_NEON)
#define MPT__HAS_GEMM 1

typedef struct mpt__gemm_level mpt__gemm_level;

typedef struct mpt__gemm {
    const mpt__gemm_level *level;
    int64_t m, n, k;
    mpt__gemm_side a, b, bias; /* bias.data NULL: none */
    /* NULL: a matrix where it lies. Rows of C go to the pixels of an image, its one tap. */
    const mpt__gemm_image *a_image, *b_image, *c_image;
    char *c;
    int c_dtype, activation;
    bool accumulate;  /* the activation follows */
    bool fast;        /* fp32 may be multiplied in parts, see mpt_benchmark */
    int64_t onto;     /* bytes from C to what the sums are added to then; lies as C does */
    float alpha;
    int64_t c_row, c_column;
    /* Batch dimensions, the last one fastest; strides of a, b, bias, c. */
    int batch_rank;
    int64_t batch_count, batch_size[MPT_MAX_RANK], batch_stride[MPT_MAX_RANK][4];
} mpt__gemm;

/* c[rows, columns] = or (ADD) += A B, `depth` deep. ROOM: c may be written as far as a whole tile
   goes. HALF: c is of bf16, and the tile whole, or of the level's `middle` rows and as wide; floats
   at b[1].data are added to each row unless it is NULL, and ReLU follows if b[1].inner. */
typedef void mpt__gemm_tile(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b,
                            float *c, int64_t ldc, int rows, int columns, int how);
enum { MPT__GEMM_ADD = 1, MPT__GEMM_ROOM = 2, MPT__GEMM_HALF = 4, MPT__GEMM_MORE = 8 };

struct mpt__gemm_level {
    int rows, columns; /* of the micro-kernel's tile */
    int direct_rows;   /* of the direct one's; its columns are the same */
    int element, unit; /* bytes of an element in a panel; panels hold a multiple of `unit` k */
    int depth;         /* the most K of one pass over a tile; measured */
    int chunk_rows;    /* of C, that a thread computes in one go; a multiple of rows */
    int rate;          /* products per ns of one core, about: where threads pay */
    /* From panels of A and B; outer and inner are the words from row to row and from k to k. With
       in_place A may lie where it is, if it has as many rows as the tile: words are floats or pairs
       of bf16. At every step the line at a[1].data is fetched, which moves on by a[1].inner bytes.
     */
    mpt__gemm_tile *tile;
    /* From matrices where they lie: A of fp32, B of any dtype with b.outer = 1, no rounding; rows
       <= direct_rows. NULL: this level only does packed products. */
    mpt__gemm_tile *direct;
    /* From panels and lines of pixels, and (n MORE) n times from the sides behind, too: A has a
       multiple of line_rows rows, and rows of B are as wide as a tile. */
    mpt__gemm_tile *lines;
    int line_rows;
    /* The same for any columns, adding; B is read line after line. */
    mpt__gemm_tile *sweep;
    /* The same with a.inner = b.inner = 1; columns <= 4 or one row, any dtypes. */
    mpt__gemm_tile *dot;
    /* A panel of A or B: elements outer .. outer+count-1 at k .. k+depth-1, zeros from count on.
       Writes up to MPT__GEMM_SLACK bytes past the panel's end. depth > 0. False where the values
       are not for this level. */
    bool (*pack)(void *panel, bool b, const mpt__gemm_side *side, int64_t outer, int64_t count,
                 int64_t k, int64_t depth);
    /* to[0..n) = the n elements at `from`, `step` apart. */
    void (*load)(float *to, const char *from, int64_t step, int64_t n, int dtype, int round);
    /* C[i.., j..] = what the launch asks for, given the sums of products; sum may be C itself.
       C and the bias are contiguous along N. */
    void (*finish)(const mpt__gemm *g, const float *sum, int64_t ld, int64_t i, int64_t j,
                   int64_t rows, int64_t columns);
    /* What a thread does before its first tile and after its last; NULL: nothing. */
    void (*bracket)(bool begin);
    /* The level for a product: this or a variant, NULL: none, the lower kernels. NULL: this. */
    const mpt__gemm_level *(*choose)(const mpt__gemm *g);
    bool refuses; /* pack may return false */
    bool in_place;
    int middle; /* rows of the next smaller tile; 0: the last rows are not shared out */
};

#define MPT__GEMM_SLACK 64       /* bytes */
#define MPT__GEMM_MAX_TILE 1024 /* floats of the largest tile, 32 x 32 */

/* The dtype that the values of a side have when they get here. */
static MPT__UNUSED int mpt__gemm_dtype(const mpt__gemm_side *side) {
    return side->round != 0 ? side->round : side->dtype;
}
static const float *mpt__gemm_floats_of(const mpt__gemm_side *s) {
    return (const float *)(const void *)s->data;
}
static int64_t mpt__round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t mpt__smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* ==== Micro-kernels, for any vector layer ====
 *
 * FN: target and storage class; N: prefix of the functions made; V: vocabulary; W: its lanes. Rows
 * are spelled out by the preprocessor, so that every compiler keeps the tile in registers. */

#define MPT__ROWS_2(X, V, W) X(0, V, W) X(1, V, W)
#define MPT__ROWS_4(X, V, W) MPT__ROWS_2(X, V, W) X(2, V, W) X(3, V, W)
#define MPT__ROWS_6(X, V, W) MPT__ROWS_4(X, V, W) X(4, V, W) X(5, V, W)
#define MPT__ROWS_8(X, V, W) MPT__ROWS_6(X, V, W) X(6, V, W) X(7, V, W)
#define MPT__ROWS_12(X, V, W) MPT__ROWS_8(X, V, W) X(8, V, W) X(9, V, W) X(10, V, W) X(11, V, W)
#define MPT__ROWS_14(X, V, W) MPT__ROWS_12(X, V, W) X(12, V, W) X(13, V, W)

/* Rows of A, o floats apart: pointers to every third one, scaled steps to those between, so few
   registers that none has to wait elsewhere. */
#define MPT__LINES_A0 a0[0]
#define MPT__LINES_A1 a0[o]
#define MPT__LINES_A2 a0[2 * o]
#define MPT__LINES_A3 a3[0]
#define MPT__LINES_A4 a3[o]
#define MPT__LINES_A5 a3[2 * o]
#define MPT__LINES_A6 a6[0]
#define MPT__LINES_A7 a6[o]
#define MPT__LINES_A8 a6[2 * o]
#define MPT__LINES_A9 a9[0]
#define MPT__LINES_A10 a9[o]
#define MPT__LINES_A11 a9[2 * o]
#define MPT__LINES_A12 a12[0]
#define MPT__LINES_A13 a12[o]
#define MPT__LINES_STEP1(i, V, W) x##i = V##_fma(V##_set(MPT__LINES_A##i), b0, x##i);
#define MPT__LINES_STEP2(i, V, W) \
    { \
        V##_f s = V##_set(MPT__LINES_A##i); \
        x##i = V##_fma(s, b0, x##i); \
        y##i = V##_fma(s, b1, y##i); \
    }
/* PLACE: A may lie where it is, and lines are fetched; else it is in panels of MR rows. */
#define MPT__TILE_LINES(of, PLACE, MR) \
    const int64_t o = (PLACE) ? (of)->outer : 1, a_step = (PLACE) ? (of)->inner : MR; \
    const float *a0 = mpt__gemm_floats_of(of), *a3 = a0 + 3 * o, *a6 = a3 + 3 * o; \
    const float *a9 = a6 + 3 * o, *a12 = a9 + 3 * o; \
    const char *ahead = (of)[1].data; \
    const int64_t ahead_step = (of)[1].inner;
#define MPT__TILE_NEXT(PLACE) \
    if (PLACE) MPT__PREFETCH(ahead); \
    a0 += a_step, a3 += a_step, a6 += a_step, a9 += a_step, a12 += a_step, ahead += ahead_step

/* x: the first vector of a row, y: the second one. */
#define MPT__TILE_ZERO1(i, V, W) V##_f x##i = V##_zero();
#define MPT__TILE_ZERO2(i, V, W) MPT__TILE_ZERO1(i, V, W) V##_f y##i = V##_zero();
#define MPT__TILE_ADD1(i, V, W) x##i = V##_add(V##_load(to + i * ld), x##i);
#define MPT__TILE_ADD2(i, V, W) \
    MPT__TILE_ADD1(i, V, W) y##i = V##_add(V##_load(to + i * ld + W), y##i);
#define MPT__TILE_STORE1(i, V, W) V##_store(to + i * ld, x##i);
#define MPT__TILE_STORE2(i, V, W) MPT__TILE_STORE1(i, V, W) V##_store(to + i * ld + W, y##i);
#define MPT__PANEL_LOAD1(V, W) V##_f b0 = V##_load(from);
#define MPT__PANEL_LOAD2(V, W) V##_f b0 = V##_load(from), b1 = V##_load(from + W);

/* The products of one k; those of NEON are in its section. */
#define MPT__TILE_STEP_8(ROWS, NV, V) MPT__ROWS_##ROWS(MPT__LINES_STEP##NV, V, 8)
#define MPT__TILE_STEP_16(ROWS, NV, V) MPT__ROWS_##ROWS(MPT__LINES_STEP##NV, V, 16)

/* One tile of ROWS x (NV W) from panels, or rows of A where they lie. */
#define MPT__GEMM_TILE(FN, NAME, V, W, ROWS, NV, PLACE, MR) \
    FN void NAME(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c, \
                 int64_t ldc, int rows, int columns, int how) { \
        const bool whole = (how & MPT__GEMM_ROOM) || (rows == ROWS && columns == NV * W); \
        const bool add = (how & MPT__GEMM_ADD) != 0; \
        MPT__ALIGN(64) float beside[ROWS * NV * W]; \
        const int64_t b_step = b->inner; \
        const float *from = mpt__gemm_floats_of(b); \
        MPT__TILE_LINES(a, PLACE, MR) \
        MPT__ROWS_##ROWS(MPT__TILE_ZERO##NV, V, W); \
        for (; depth > 0; depth--, from += b_step) { \
            MPT__PANEL_LOAD##NV(V, W); \
            MPT__TILE_STEP_##W(ROWS, NV, V); \
            MPT__TILE_NEXT(PLACE); \
        } \
        float *to = whole ? c : beside; \
        const int64_t ld = whole ? ldc : NV * W; \
        if (add && whole) { \
            MPT__ROWS_##ROWS(MPT__TILE_ADD##NV, V, W) \
        } \
        MPT__ROWS_##ROWS(MPT__TILE_STORE##NV, V, W); \
        if (!whole) V##_put_tile(beside, ld, c, ldc, rows, columns, add); \
    }

/* The same with B where it lies. The last rows and columns are done twice where they fill
   no tile, but for columns that fill no vector. */
#define MPT__LINES_C0 c
#define MPT__LINES_C1 (c + ldc)
#define MPT__LINES_C2 (c + 2 * ldc)
#define MPT__LINES_C3 c3
#define MPT__LINES_C4 (c3 + ldc)
#define MPT__LINES_C5 (c3 + 2 * ldc)
#define MPT__LINES_C6 c6
#define MPT__LINES_C7 (c6 + ldc)
#define MPT__DIRECT_LOAD1(V, W, HALF) \
    V##_f b0 = HALF ? V##_load_as(from, columns, dtype) : V##_load_first(from, lanes);
#define MPT__DIRECT_LOAD2(V, W, HALF) \
    V##_f b0 = V##_load_full(from, dtype), b1 = V##_load_full(from + past * bytes, dtype);
#define MPT__DIRECT_ADD1(i, V, W) \
    x##i = V##_add(V##_load_as(MPT__LINES_C##i, columns, MPT_F32), x##i);
#define MPT__DIRECT_ADD2(i, V, W) \
    x##i = V##_add(V##_load(MPT__LINES_C##i), x##i); \
    y##i = V##_add(V##_load(MPT__LINES_C##i + past), y##i);
#define MPT__DIRECT_STORE1(i, V, W) V##_store_as(MPT__LINES_C##i, x##i, columns, MPT_F32);
#define MPT__DIRECT_STORE2(i, V, W) \
    V##_store(MPT__LINES_C##i, x##i); \
    V##_store(MPT__LINES_C##i + past, y##i);
#define MPT__GEMM_DIRECT(FN, NAME, V, W, ROWS, NV, HALF) \
    FN void NAME(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c, \
                 int64_t ldc, int rows, int columns, int how) { \
        const int dtype = !HALF ? MPT_F32 : b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16; \
        const int bytes = HALF ? 2 : 4; \
        const int64_t o = rows > 1 ? a->outer : 0, a_step = a->inner, b_step = b->inner * bytes; \
        const int64_t third = rows < 6 ? rows - 3 : 3, sixth = rows < 8 ? rows - 2 : 6; \
        const int64_t past = columns - W; \
        const V##_m lanes = V##_first(columns); \
        MPT__ROWS_##ROWS(MPT__TILE_ZERO##NV, V, W); \
        for (int left = how; left >= 0; left -= MPT__GEMM_MORE, a++, b++) { \
            const char *from = b->data; \
            const float *a0 = mpt__gemm_floats_of(a), *a3 = a0 + third * o, *a6 = a0 + sixth * o; \
            for (int64_t p = 0; p < depth; p++) { \
                MPT__DIRECT_LOAD##NV(V, W, HALF) \
                MPT__ROWS_##ROWS(MPT__LINES_STEP##NV, V, W) \
                a0 += a_step, a3 += a_step, a6 += a_step, from += b_step; \
            } \
            (void)a3, (void)a6; \
        } \
        ldc = rows > 1 ? ldc : 0; \
        float *c3 = c + third * ldc, *c6 = c + sixth * ldc; \
        if ((how & MPT__GEMM_ADD) != 0) { \
            MPT__ROWS_##ROWS(MPT__DIRECT_ADD##NV, V, W) \
        } \
        MPT__ROWS_##ROWS(MPT__DIRECT_STORE##NV, V, W); \
        (void)lanes, (void)past, (void)c3, (void)c6; \
    }

#if defined(MPTRAIN_NO_CONV) && defined(MPTRAIN_NO_ATTENTION)
#define MPT__GEMM_CONV(FN, N, V, W, R, STEP)
#define MPT__GEMM_CONV_OF(function) NULL
#else
#define MPT__LINES_STORE1(i, V, W) \
    if (i < rows) { \
        float *p = c + i * ldc; \
        if (add) x##i = V##_add(V##_load_as(p, columns, MPT_F32), x##i); \
        V##_store_as(p, x##i, columns, MPT_F32); \
    }
#define MPT__LINES_STORE2(i, V, W) \
    if (i < rows) { \
        float *p = c + i * ldc; \
        if (add) x##i = V##_add(V##_load(p), x##i); \
        if (add) y##i = V##_add(V##_load_as(p + W, columns - W, MPT_F32), y##i); \
        V##_store(p, x##i); \
        V##_store_as(p + W, y##i, columns - W, MPT_F32); \
    }
#define MPT__GEMM_LINES(FN, NAME, V, W, ROWS, NV, STEP) \
    FN void NAME(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c, \
                 int64_t ldc, int rows, int columns, int how) { \
        const bool add = (how & MPT__GEMM_ADD) != 0; \
        const int64_t o = a->outer, a_step = a->inner, b_step = b->inner; \
        MPT__ROWS_##ROWS(MPT__TILE_ZERO##NV, V, W); \
        for (; how >= 0; how -= MPT__GEMM_MORE, a++, b++) { \
            const float *from = mpt__gemm_floats_of(b), *a0 = mpt__gemm_floats_of(a); \
            const float *a3 = a0 + 3 * o, *a6 = a0 + 6 * o; \
            for (int64_t p = 0; p < depth; p++) { \
                MPT__PANEL_LOAD##NV(V, W); \
                MPT__ROWS_##ROWS(STEP##NV, V, W); \
                a0 += a_step, a3 += a_step, a6 += a_step, from += b_step; \
            } \
            (void)a6; \
        } \
        MPT__ROWS_##ROWS(MPT__LINES_STORE##NV, V, W); \
    }
#define MPT__GEMM_CONV(FN, N, V, W, R, STEP) \
    MPT__GEMM_LINES(FN, N##_lines##R##x1, V, W, R, 1, STEP) \
    MPT__GEMM_LINES(FN, N##_lines##R##x2, V, W, R, 2, STEP) \
    static void N##_gemm_lines(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                               float *c, int64_t ldc, int rows, int columns, int how) { \
        MPT__GEMM_OF_WIDTH(N##_lines, W, R)(depth, a, b, c, ldc, rows, columns, how); \
    }
#define MPT__GEMM_CONV_OF(function) function
#endif

/* The tiles of R rows, one and two vectors wide, and the choice between two such functions. */
#define MPT__GEMM_TILES(FN, N, V, W, R, PLACE, MR) \
    MPT__GEMM_TILE(FN, N##R##x1, V, W, R, 1, PLACE, MR) \
    MPT__GEMM_TILE(FN, N##R##x2, V, W, R, 2, PLACE, MR)
#define MPT__GEMM_DIRECTS(FN, N, V, W, R, HALF) \
    MPT__GEMM_DIRECT(FN, N##R##x1, V, W, R, 1, HALF) \
    MPT__GEMM_DIRECT(FN, N##R##x2, V, W, R, 2, HALF)
#define MPT__GEMM_OF_WIDTH(N, W, R) (columns > W ? N##R##x2 : N##R##x1)

/* c[rows, columns] = or (add) += a tile that was summed beside it. */
#define MPT__GEMM_PUT(FN, V, W) \
    FN MPT__NOINLINE void V##_put_tile(const float *from, int64_t ld, float *c, int64_t ldc, \
                                       int rows, int columns, bool add) { \
        for (; rows > 0; rows--, from += ld, c += ldc) { \
            for (int j = 0; j < columns; j += W) { \
                V##_f v = V##_load(from + j); \
                if (add) v = V##_add(V##_load_as(c + j, columns - j, MPT_F32), v); \
                V##_store_as(c + j, v, columns - j, MPT_F32); \
            } \
        } \
    }

#define MPT__GEMM_ACTIVATE(FN, V, F) \
    FN MPT__NOINLINE V##_f V##_activate(V##_f a, int activation) { \
        switch (activation) { \
        case MPT_ACTIVATION_GELU: return V##_gelu(a); \
        case MPT_ACTIVATION_GELU_TANH: return V##_gelu_tanh(a); \
        case MPT_ACTIVATION_TANH: return F(tanh)(a); \
        case MPT_ACTIVATION_SIGMOID: return F(sigmoid)(a); \
        default: return a; \
        } \
    }

/* Contiguous elements of DTYPE, as far as whole vectors go. */
#define MPT__LOAD_WHOLE(V, W, DTYPE) \
    if (step == 1 && round == 0 && dtype == DTYPE) { \
        for (; i + W <= n; i += W) V##_store(to + i, V##_load_full(from + 2 * i, DTYPE)); \
    }

/* K k at a time where the condition holds, with what is known spelled out. */
#define MPT__PACK_RUN(CONDITION, K, PACK) \
    if (CONDITION) { \
        for (; left >= K; left -= K, p += K * bytes, at += K * width) PACK; \
    }

#define MPT__GEMM_COMMON(FN, OP, N, V, W, MR) \
    OP void N##_sweep(int lines, const float *a, int64_t a_step, const char *b, int64_t b_step, \
                      float *c, int64_t n, int dtype) { \
        const int bytes = dtype == MPT_F32 ? 4 : 2; \
        const int64_t two = lines > 1 ? 2 * b_step : 0, a_two = lines > 1 ? 2 * a_step : 0; \
        const V##_f a0 = V##_set(a[0]), a1 = V##_set(a[a_two / 2]), a2 = V##_set(a[a_two]); \
        const V##_f a3 = V##_set(a[a_two / 2 * 3]); \
        const char *b2 = b + two; \
        for (; n > 0; n -= W, b += W * bytes, b2 += W * bytes, c += W) { \
            V##_f sum = V##_fma(a0, V##_load_as(b, n, dtype), V##_load_as(c, n, MPT_F32)); \
            if (lines > 1) { \
                sum = V##_fma(a1, V##_load_as(b + b_step, n, dtype), sum); \
                sum = V##_fma(a2, V##_load_as(b2, n, dtype), sum); \
                sum = V##_fma(a3, V##_load_as(b2 + b_step, n, dtype), sum); \
            } \
            V##_store_as(c, sum, n, MPT_F32); \
        } \
    } \
    OP void N##_sweep_all(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                          float *c, int64_t ldc, int rows, int64_t columns, int dtype) { \
        const int64_t b_step = b->inner * (dtype == MPT_F32 ? 4 : 2); \
        const float *of = mpt__gemm_floats_of(a); \
        const char *line = b->data; \
        for (; depth > 0; depth -= 4, of += 4 * a->inner, line += 4 * b_step) { \
            for (int i = 0; i < rows; i++) { \
                const float *at = of + i * a->outer; \
                if (depth >= 4) { \
                    N##_sweep(4, at, a->inner, line, b_step, c + i * ldc, columns, dtype); \
                    continue; \
                } \
                for (int64_t k = 0; k < depth; k++) { \
                    N##_sweep(1, at + k * a->inner, 0, line + k * b_step, 0, c + i * ldc, columns, \
                              dtype); \
                } \
            } \
        } \
    } \
    FN void N##_gemm_sweep(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                           float *c, int64_t ldc, int rows, int columns, int how) { \
        (void)how; \
        if (b->dtype == MPT_F32) { \
            N##_sweep_all(depth, a, b, c, ldc, rows, columns, MPT_F32); \
        } else { \
            N##_sweep_all(depth, a, b, c, ldc, rows, columns, \
                          b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16); \
        } \
    } \
    /* Columns past the end repeat the last one, and so does a row. */ \
    OP void N##_gemm_dot_of(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                            float *c, int64_t ldc, int rows, int columns, int u_dtype, \
                            int w_dtype) { \
        const int u_bytes = u_dtype == MPT_F32 ? 4 : 2, w_bytes = w_dtype == MPT_F32 ? 4 : 2; \
        const int64_t a_row = a->outer * u_bytes, b_column = b->outer * w_bytes; \
        const char *a0 = a->data, *b0 = b->data, *b1 = b0 + (columns > 1 ? b_column : 0); \
        const char *b2 = b1 + (columns > 2 ? b_column : 0); \
        const char *b3 = b2 + (columns > 3 ? b_column : 0); \
        for (int i = 0; i < rows; i += 2, a0 += 2 * a_row, c += 2 * ldc) { \
            const char *a1 = a0 + (i + 1 < rows ? a_row : 0); \
            V##_f s00 = V##_zero(), s01 = s00, s02 = s00, s03 = s00; \
            V##_f s10 = s00, s11 = s00, s12 = s00, s13 = s00; \
            for (int64_t k = 0; k < depth; k += W) { \
                const int64_t n = depth - k, ka = k * u_bytes, kb = k * w_bytes; \
                V##_f u = V##_load_as(a0 + ka, n, u_dtype), v = V##_load_as(a1 + ka, n, u_dtype); \
                V##_f w = V##_load_as(b0 + kb, n, w_dtype), x = V##_load_as(b1 + kb, n, w_dtype); \
                V##_f y = V##_load_as(b2 + kb, n, w_dtype), z = V##_load_as(b3 + kb, n, w_dtype); \
                s00 = V##_fma(u, w, s00), s10 = V##_fma(v, w, s10); \
                s01 = V##_fma(u, x, s01), s11 = V##_fma(v, x, s11); \
                s02 = V##_fma(u, y, s02), s12 = V##_fma(v, y, s12); \
                s03 = V##_fma(u, z, s03), s13 = V##_fma(v, z, s13); \
            } \
            float sums[8]; \
            V##_store_sums(sums, s00, s01, s02, s03, s10, s11, s12, s13); \
            for (int r = 0; r < 2 && i + r < rows; r++) { \
                if (columns == 4) { \
                    memcpy(c + r * ldc, sums + 4 * r, 4 * sizeof *c); \
                } else { \
                    for (int j = 0; j < columns; j++) c[r * ldc + j] = sums[4 * r + j]; \
                } \
            } \
        } \
    } \
    /* A line of p by `count` ones of q, 8 at a time; the last are done twice, but for 2. */ \
    OP void N##_dots_of(int64_t depth, const char *p, const mpt__gemm_side *q, int64_t count, \
                        float *c, int64_t step, int p_dtype, int q_dtype) { \
        const int p_bytes = p_dtype == MPT_F32 ? 4 : 2, q_bytes = q_dtype == MPT_F32 ? 4 : 2; \
        const char *line = q->data; \
        for (int64_t n; count > 0; count -= n, c += n * step, line += n * q->outer * q_bytes) { \
            n = count > 8 ? 8 : count > 2 ? count : 1; \
            const int64_t third = n < 6 ? n - 3 : 3, sixth = n < 8 ? n - 2 : 6; \
            const int64_t o = n > 1 ? q->outer * q_bytes : 0; \
            const char *q0 = line, *q3 = line + third * o, *q6 = line + sixth * o; \
            V##_f s0 = V##_zero(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0; \
            for (int64_t k = 0; k < depth; k += W) { \
                const int64_t left = depth - k; \
                V##_f u = V##_load_as(p + k * p_bytes, left, p_dtype); \
                s0 = V##_fma(u, V##_load_as(q0, left, q_dtype), s0); \
                s1 = V##_fma(u, V##_load_as(q0 + o, left, q_dtype), s1); \
                s2 = V##_fma(u, V##_load_as(q0 + 2 * o, left, q_dtype), s2); \
                s3 = V##_fma(u, V##_load_as(q3, left, q_dtype), s3); \
                s4 = V##_fma(u, V##_load_as(q3 + o, left, q_dtype), s4); \
                s5 = V##_fma(u, V##_load_as(q3 + 2 * o, left, q_dtype), s5); \
                s6 = V##_fma(u, V##_load_as(q6, left, q_dtype), s6); \
                s7 = V##_fma(u, V##_load_as(q6 + o, left, q_dtype), s7); \
                q0 += W * q_bytes, q3 += W * q_bytes, q6 += W * q_bytes; \
            } \
            float sums[8]; \
            V##_store_sums(sums, s0, s1, s2, s3, s4, s5, s6, s7); \
            for (int64_t i = 0; i < n; i++) { \
                c[i * step] = sums[i < 3 ? i : i < third + 3 ? i - third + 3 : i - sixth + 6]; \
            } \
        } \
    } \
    FN void N##_dots(int64_t depth, const mpt__gemm_side *p, const mpt__gemm_side *q, \
                     int64_t count, float *c, int64_t step) { \
        if (p->dtype == MPT_F32 && q->dtype == MPT_F32) { \
            N##_dots_of(depth, p->data, q, count, c, step, MPT_F32, MPT_F32); \
        } else { \
            N##_dots_of(depth, p->data, q, count, c, step, p->dtype, q->dtype); \
        } \
    } \
    FN void N##_gemm_dot(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                         float *c, int64_t ldc, int rows, int columns, int how) { \
        (void)how; /* all of K comes at once */ \
        if (rows == 1 || columns == 1) { \
            N##_dots(depth, rows == 1 ? a : b, rows == 1 ? b : a, rows == 1 ? columns : rows, c, \
                     rows == 1 ? 1 : ldc); \
        } else if (columns == 2) { \
            mpt__gemm_side second = *b; \
            second.data = mpt__gemm_at(b, 1, 0); \
            N##_dots(depth, b, a, rows, c, ldc); \
            N##_dots(depth, &second, a, rows, c + 1, ldc); \
        } else if (a->dtype == MPT_F32 && b->dtype == MPT_F32) { \
            N##_gemm_dot_of(depth, a, b, c, ldc, rows, columns, MPT_F32, MPT_F32); \
        } else if (a->dtype == MPT_F32 && b->dtype == MPT_BF16) { \
            N##_gemm_dot_of(depth, a, b, c, ldc, rows, columns, MPT_F32, MPT_BF16); \
        } else { \
            N##_gemm_dot_of(depth, a, b, c, ldc, rows, columns, a->dtype, b->dtype); \
        } \
    } \
 \
    /* A panel whose outer elements are contiguous. A vector that reaches past the width is \
       overwritten by the next k. */ \
    FN void N##_pack_outer(float *to, int width, const mpt__gemm_side *side, int64_t outer, \
                           int64_t count, int64_t k, int64_t depth) { \
        const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2; \
        const char *from = mpt__gemm_at(side, outer, k); \
        const int64_t step = side->inner * bytes; \
        const int half = dtype == MPT_F16 ? MPT_F16 : MPT_BF16; \
        const bool quick = dtype != MPT_F32 && round == 0; \
        if (dtype == MPT_F32 && round == 0 && width <= W) { \
            const V##_m lanes = V##_first(count); \
            for (; depth > 0; depth--, to += width, from += step) \
                V##_store(to, V##_load_first(from, lanes)); \
        } \
        if (quick && width == 2 * W && count == width) { \
            for (; depth > 0; depth--, to += 2 * W, from += step) { \
                V##_store(to, V##_load_full(from, half)); \
                V##_store(to + W, V##_load_full(from + 2 * W, half)); \
            } \
        } \
        /* What is read past the width is of the next line, and is written over. */ \
        if (quick && width <= W && count == width && count + side->inner >= W) \
            for (; depth > 1; depth--, to += width, from += step) \
                V##_store(to, V##_load_full(from, half)); \
        for (; depth > 0; depth--, to += width, from += step) { \
            for (int64_t r = 0; r < width; r += W) { \
                V##_f v = r < count ? V##_load_as(from + r * bytes, count - r, dtype) : V##_zero();\
                V##_store(to + r, V##_round(v, round)); \
            } \
        } \
    } \
 \
    FN void N##_gemm_load(float *to, const char *from, int64_t step, int64_t n, int dtype, \
                          int round) { \
        const int bytes = dtype == MPT_F32 ? 4 : 2; \
        int64_t i = 0; \
        MPT__LOAD_WHOLE(V, W, MPT_BF16) \
        MPT__LOAD_WHOLE(V, W, MPT_F16) \
        for (; i < n; i += W) { \
            V##_f v; \
            if (step == 1) { \
                v = V##_load_as(from + i * bytes, n - i, dtype); \
            } else { \
                uint32_t lanes[W] = {0}; \
                for (int64_t x = 0; x < W && i + x < n; x++) { \
                    memcpy((char *)lanes + x * bytes, from + (i + x) * step * bytes, \
                           (size_t)bytes); \
                } \
                v = V##_load_as(lanes, W, dtype); \
            } \
            V##_store_as(to + i, V##_round(v, round), n - i, MPT_F32); \
        } \
    } \
 \
    /* Four lines of k of W outer elements, of which the first `left` count, transposed. */ \
    OP void N##_put_quads(float *to, int width, V##_f v0, V##_f v1, V##_f v2, V##_f v3, \
                          int64_t left) { \
        V##_transpose4(&v0, &v1, &v2, &v3); \
        V##_store(to, v0); \
        if (left > 1) V##_store(to + width, v1); \
        if (left > 2) V##_store(to + 2 * width, v2); \
        if (left > 3) V##_store(to + 3 * width, v3); \
    } \
    OP void N##_pack_quads(float *to, int width, const char *p, int64_t row, int64_t lines, \
                           int round, int64_t left) { \
        const V##_f v0 = V##_round(V##_gemm_quads(p, row, lines), round); \
        const V##_f v1 = V##_round(V##_gemm_quads(p + row, row, lines - 1), round); \
        const V##_f v2 = V##_round(V##_gemm_quads(p + 2 * row, row, lines - 2), round); \
        const V##_f v3 = V##_round(V##_gemm_quads(p + 3 * row, row, lines - 3), round); \
        N##_put_quads(to, width, v0, v1, v2, v3, left); \
    } \
    OP void N##_pack_octs(float *to, int width, const char *p, int64_t row, int64_t lines, \
                          int dtype) { \
        V##_f a0, a1, a2, a3, b0, b1, b2, b3; \
        V##_gemm_octs(p, row, lines, dtype, &a0, &b0); \
        V##_gemm_octs(p + row, row, lines - 1, dtype, &a1, &b1); \
        V##_gemm_octs(p + 2 * row, row, lines - 2, dtype, &a2, &b2); \
        V##_gemm_octs(p + 3 * row, row, lines - 3, dtype, &a3, &b3); \
        N##_put_quads(to, width, a0, a1, a2, a3, 4); \
        N##_put_quads(to + 4 * width, width, b0, b1, b2, b3, 4); \
    } \
    FN MPT__NOINLINE void N##_pack_some(float *to, int width, const char *p, int64_t row, \
                                        int64_t lines, int dtype, int round, int64_t left) { \
        if (dtype != MPT_F32) { \
            N##_pack_octs(to, width, p, row, lines, dtype); \
        } else { \
            N##_pack_quads(to, width, p, row, lines, round, left); \
        } \
    } \
    /* A panel whose k are contiguous, at most W or a multiple of W wide; the last k, where they \
       are no 4, go by way of the stack. */ \
    FN void N##_pack_inner(float *to, int width, const mpt__gemm_side *side, int64_t outer, \
                           int64_t count, int64_t k, int64_t depth) { \
        const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2; \
        const bool floats = dtype == MPT_F32 && round == 0, quick = dtype != MPT_F32 && round == 0;\
        const int half = dtype == MPT_F16 ? MPT_F16 : MPT_BF16; \
        const int64_t row = side->outer * bytes; \
        const char *from = mpt__gemm_at(side, outer, k); \
        for (int64_t r = 0; r < width; r += W, to += W, from += W * row) { \
            const char *p = from; \
            const int64_t lines = count - r; \
            float *at = to, staged[4 * W]; \
            int64_t left = depth; \
            MPT__PACK_RUN(floats && lines >= W, 4, N##_pack_quads(at, width, p, row, W, 0, 4)) \
            MPT__PACK_RUN(floats && lines == MR, 4, N##_pack_quads(at, width, p, row, MR, 0, 4)) \
            MPT__PACK_RUN(quick && lines >= W, 8, N##_pack_octs(at, width, p, row, W, half)) \
            MPT__PACK_RUN(quick && lines == MR, 8, N##_pack_octs(at, width, p, row, MR, half)) \
            for (int64_t n; left > 0; left -= n, p += n * bytes, at += n * width) { \
                n = quick && left >= 8 ? 8 : 4; \
                if (n == 8 || (dtype == MPT_F32 && left >= 4)) { \
                    N##_pack_some(at, width, p, row, lines, dtype, round, n); \
                    continue; \
                } \
                memset(staged, 0, sizeof staged); \
                for (int64_t i = 0; i < W && i < lines; i++) { \
                    N##_gemm_load(staged + 4 * i, p + i * row, 1, left < 4 ? left : 4, dtype, 0); \
                } \
                N##_pack_some(at, width, (const char *)staged, 16, W, MPT_F32, round, left); \
            } \
        } \
    } \
 \
    FN bool N##_gemm_pack(void *to, bool b, const mpt__gemm_side *side, int64_t outer, \
                          int64_t count, int64_t k, int64_t depth) { \
        const int width = b ? 2 * W : MR; \
        float *panel = (float *)to; \
        if (side->inner == 1 && side->outer != 1) { \
            N##_pack_inner(panel, width, side, outer, count, k, depth); \
        } else if (side->outer == 1) { \
            N##_pack_outer(panel, width, side, outer, count, k, depth); \
        } else { \
            for (int64_t i = 0; i < depth; i++, panel += width) { \
                memset(panel, 0, (size_t)width * sizeof(float)); \
                N##_gemm_load(panel, mpt__gemm_at(side, outer, k + i), side->outer, count, \
                              side->dtype, side->round); \
            } \
        } \
        return true; \
    }

/* Two vectors, one behind the other. */
#define MPT__STORE_BOTH(OP, NAME, V, W, STORE) \
    OP void NAME(void *p, V##_f a, V##_f b, int dtype) { \
        STORE(p, a, W, dtype); \
        STORE((char *)p + W * (dtype == MPT_F32 ? 4 : 2), b, W, dtype); \
    }

/* Rows that lie one behind the other are one. A bias that rows share is loaded once. */
#define MPT__GEMM_FINISH(FN, NAME, V, W, STORE, BOTH, DTYPE) \
    FN void NAME(const mpt__gemm *g, const float *sum, int64_t ld, int64_t i, int64_t j, \
                 int64_t rows, int64_t columns) { \
        const int dtype = DTYPE, bytes = dtype == MPT_F32 ? 4 : 2, activation = g->activation; \
        const bool scaled = g->alpha != 1.0f, biased = g->bias.data != NULL; \
        const bool accumulate = g->accumulate, relu = activation == MPT_ACTIVATION_RELU; \
        const bool other = activation != MPT_ACTIVATION_NONE && !relu; \
        const V##_f alpha = V##_set(g->alpha); \
        float shared[64]; \
        char *c = g->c + (i * g->c_row + j) * bytes; \
        mpt__gemm_side bias = g->bias; \
        if (biased) bias.data = mpt__gemm_at(&bias, i, j); \
        if (!biased && ld == columns && g->c_row == columns) { \
            columns *= rows; \
            rows = 1; \
        } \
        if (!biased || (bias.outer == 0 && columns <= 64)) { \
            if (biased && (bias.dtype != MPT_F32 || bias.round != 0)) { \
                g->level->load(shared, bias.data, 1, columns, bias.dtype, bias.round); \
                bias.data = (const char *)shared; \
            } \
            bias.dtype = MPT_F32, bias.round = 0; \
        } \
        const bool simple = !scaled && !accumulate && !other && bias.dtype == MPT_F32 && \
                            bias.round == 0; \
        if (simple && columns == 2 * W && (!biased || bias.outer == 0)) { /* a tile's width */ \
            const float *more = biased ? mpt__gemm_floats_of(&bias) : sum; \
            const V##_f b0 = V##_load(more), b1 = V##_load(more + W); \
            for (; rows > 0; rows--, sum += ld, c += g->c_row * bytes) { \
                V##_f v0 = V##_load(sum), v1 = V##_load(sum + W); \
                if (biased) v0 = V##_add(v0, b0), v1 = V##_add(v1, b1); \
                if (relu) v0 = V##_relu(v0), v1 = V##_relu(v1); \
                BOTH(c, v0, v1, dtype); \
            } \
            return; \
        } \
        for (int64_t r = 0; r < rows; r++, sum += ld, c += g->c_row * bytes) { \
            int64_t x = 0; \
            for (; simple && x + W <= columns; x += W) { \
                V##_f v = V##_load(sum + x); \
                if (biased) v = V##_add(v, V##_load(mpt__gemm_floats_of(&bias) + x)); \
                if (relu) v = V##_relu(v); \
                STORE(c + x * bytes, v, W, dtype); \
            } \
            for (; x < columns; x += W) { \
                const int64_t n = columns - x; \
                V##_f v = V##_load_as(sum + x, n, MPT_F32); \
                if (scaled) v = V##_mul(v, alpha); \
                if (biased) { \
                    V##_f more = V##_load_as(mpt__gemm_at(&bias, 0, x), n, bias.dtype); \
                    v = V##_add(v, V##_round(more, bias.round)); \
                } \
                if (accumulate) v = V##_add(V##_load_as(c + g->onto + x * bytes, n, dtype), v); \
                if (relu) v = V##_relu(v); \
                if (other) v = V##_activate(v, activation); \
                STORE(c + x * bytes, v, n, dtype); \
            } \
            if (biased) bias.data = mpt__gemm_at(&bias, 1, 0); \
        } \
    }

/* ==== Levels ==== */

#define MPT__GEMM_LEVEL_OF(N, W, R2, MR, DR, CHUNK, RATE, FINISH, PLACE) \
    {MR, 2 * W, DR, 4, 1, 384, CHUNK, RATE, N##_gemm_tile, N##_gemm_direct, \
     MPT__GEMM_CONV_OF(N##_gemm_direct), \
     DR, N##_gemm_sweep, N##_gemm_dot, N##_gemm_pack, N##_gemm_load, FINISH, NULL, NULL, false, \
     PLACE, R2}

/* A level with tiles of R1, R2 or MR rows by 2 W columns, and direct ones of 2 or DR rows. F: the
   names of the functions in ground/math.c. */
#define MPT__GEMM_LEVEL(FN, OP, N, V, W, F, R1, R2, MR, DR, CHUNK, RATE, PLACE) \
    MPT__GEMM_ACTIVATE(FN, V, F) \
    MPT__GEMM_PUT(FN, V, W) \
    MPT__GEMM_COMMON(FN, OP, N, V, W, MR) \
    MPT__GEMM_FINISH(FN, N##_gemm_finish, V, W, V##_store_as, V##_store_both, g->c_dtype) \
    MPT__GEMM_TILES(FN, N##_tile, V, W, R1, PLACE, MR) \
    MPT__GEMM_TILES(FN, N##_tile, V, W, R2, PLACE, MR) \
    MPT__GEMM_TILES(FN, N##_tile, V, W, MR, PLACE, MR) \
    MPT__GEMM_DIRECTS(FN, N##_direct, V, W, 2, false) \
    MPT__GEMM_DIRECTS(FN, N##_direct, V, W, DR, false) \
    MPT__GEMM_DIRECTS(FN, N##_halves, V, W, 2, true) \
    MPT__GEMM_DIRECTS(FN, N##_halves, V, W, DR, true) \
    static void N##_gemm_tile(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                              float *c, int64_t ldc, int rows, int columns, int how) { \
        mpt__gemm_tile *tile = rows > R2   ? MPT__GEMM_OF_WIDTH(N##_tile, W, MR) \
                               : rows > R1 ? MPT__GEMM_OF_WIDTH(N##_tile, W, R2) \
                                           : MPT__GEMM_OF_WIDTH(N##_tile, W, R1); \
        tile(depth, a, b, c, ldc, rows, columns, how); \
    } \
    static void N##_gemm_direct(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, \
                                float *c, int64_t ldc, int rows, int columns, int how) { \
        mpt__gemm_tile *tile = rows > 2 ? MPT__GEMM_OF_WIDTH(N##_direct, W, DR) \
                                        : MPT__GEMM_OF_WIDTH(N##_direct, W, 2); \
        if (b->dtype != MPT_F32) \
            tile = rows > 2 ? MPT__GEMM_OF_WIDTH(N##_halves, W, DR) \
                            : MPT__GEMM_OF_WIDTH(N##_halves, W, 2); \
        tile(depth, a, b, c, ldc, rows, columns, how); \
    } \
    static const mpt__gemm_level N##_gemm_level = \
        MPT__GEMM_LEVEL_OF(N, W, R2, MR, DR, CHUNK, RATE, N##_gemm_finish, PLACE);

/* V_gemm_quads: four floats from p and from every 4th line on, of `lines` that are `row` bytes
   apart; zeros past them. V_gemm_octs: of eight halves. V_store_sums: sums of 8 vectors over their
   lanes. */
#ifdef MPT__HAS_AVX2
MPT__AVX2_OP __m128 mpt__v8_quad(const char *p) {
    return _mm_loadu_ps((const float *)(const void *)p);
}
MPT__AVX2_OP mpt__v8_f mpt__v8_gemm_quads(const char *p, int64_t row, int64_t lines) {
    __m256 v = _mm256_setzero_ps();
    if (lines > 0) v = _mm256_insertf128_ps(v, mpt__v8_quad(p), 0);
    if (lines <= 4) return v;
    return _mm256_insertf128_ps(v, mpt__v8_quad(p + 4 * row), 1);
}
MPT__AVX2_OP void mpt__v8_gemm_octs(const char *p, int64_t row, int64_t lines, int dtype,
                                     mpt__v8_f *low, mpt__v8_f *high) {
    __m128i a = _mm_setzero_si128(), b = a;
    if (lines > 0) a = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (lines > 4) b = _mm_loadu_si128((const __m128i *)(const void *)(p + 4 * row));
    if (dtype == MPT_F16) {
        const __m256 v = _mm256_cvtph_ps(a), w = _mm256_cvtph_ps(b);
        *low = _mm256_permute2f128_ps(v, w, 0x20), *high = _mm256_permute2f128_ps(v, w, 0x31);
        return;
    }
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    *low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), both));
    *high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), both));
}
MPT__AVX2_OP void mpt__v8_store_sums(float *to, mpt__v8_f s0, mpt__v8_f s1, mpt__v8_f s2,
                                     mpt__v8_f s3, mpt__v8_f s4, mpt__v8_f s5, mpt__v8_f s6,
                                     mpt__v8_f s7) {
    _mm256_storeu_ps(to, mpt__v8_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__AVX2_OP void mpt__v8_store_both(void *p, mpt__v8_f a, mpt__v8_f b, int dtype) {
    if (dtype == MPT_BF16) {
        _mm256_storeu_si256((__m256i *)p, mpt__avx2_round_two(a, b));
        return;
    }
    mpt__v8_store_as(p, a, 8, dtype);
    mpt__v8_store_as((char *)p + (dtype == MPT_F32 ? 32 : 16), b, 8, dtype);
}
MPT__GEMM_LEVEL(MPT__AVX2, MPT__AVX2_OP, mpt__avx2, mpt__v8, 8, MPT__NAME_AVX2, 2, 4, 6, 6, 168,
                32, false)
#endif

#ifdef MPT__HAS_AVX512
MPT__AVX512_OP mpt__v16_f mpt__v16_gemm_quads(const char *p, int64_t row, int64_t lines) {
    __m512 v = _mm512_setzero_ps(); /* inserts from memory leave the port of shuffles alone */
    if (lines > 0) v = _mm512_insertf32x4(v, mpt__v8_quad(p), 0);
    if (lines > 4) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 4 * row), 1);
    if (lines > 8) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 8 * row), 2);
    if (lines > 12) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 12 * row), 3);
    return v;
}
MPT__AVX512_OP void mpt__v16_gemm_octs(const char *p, int64_t row, int64_t lines, int dtype,
                                       mpt__v16_f *low, mpt__v16_f *high) {
    mpt__v8_f v[4];
    mpt__v8_gemm_octs(p, row, lines, dtype, &v[0], &v[1]);
    mpt__v8_gemm_octs(p + 8 * row, row, lines - 8, dtype, &v[2], &v[3]);
    *low = _mm512_insertf32x8(_mm512_castps256_ps512(v[0]), v[2], 1);
    *high = _mm512_insertf32x8(_mm512_castps256_ps512(v[1]), v[3], 1);
}
MPT__AVX512_OP void mpt__v16_store_sums(float *to, mpt__v16_f s0, mpt__v16_f s1, mpt__v16_f s2,
                                        mpt__v16_f s3, mpt__v16_f s4, mpt__v16_f s5, mpt__v16_f s6,
                                        mpt__v16_f s7) {
    _mm256_storeu_ps(to, mpt__v16_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__STORE_BOTH(MPT__AVX512_OP, mpt__v16_store_both, mpt__v16, 16, mpt__v16_store_as)
MPT__GEMM_LEVEL(MPT__AVX512, MPT__AVX512_OP, mpt__avx512, mpt__v16, 16, MPT__NAME_AVX512, 4, 8, 14,
                8, 336, 32, true)
#endif

#ifdef MPT__HAS_NEON
MPT__NEON_OP mpt__v4_f mpt__v4_gemm_quads(const char *p, int64_t row, int64_t lines) {
    (void)row;
    return lines > 0 ? mpt__v4_load_full(p, MPT_F32) : mpt__v4_zero();
}
MPT__NEON_OP void mpt__v4_gemm_octs(const char *p, int64_t row, int64_t lines, int dtype,
                                    mpt__v4_f *low, mpt__v4_f *high) {
    (void)row;
    *low = lines > 0 ? mpt__v4_load_full(p, dtype) : mpt__v4_zero();
    *high = lines > 0 ? mpt__v4_load_full(p + 8, dtype) : mpt__v4_zero();
}
/* A vector of a panel of A holds four rows, each a lane for the instruction. */
#define MPT__TILE_STEP_4(ROWS, NV, V) \
    const V##_f q0 = V##_load(a0), q1 = V##_load(a0 + 4), q2 = V##_load(a0 + 8); \
    MPT__ROWS_##ROWS(MPT__LANES_STEP##NV, V, 4)
#define MPT__LANES_STEP1(i, V, W) \
    x##i = vfmaq_laneq_f32(x##i, b0, i < 4 ? q0 : i < 8 ? q1 : q2, i % 4);
#define MPT__LANES_STEP2(i, V, W) \
    MPT__LANES_STEP1(i, V, W) \
    y##i = vfmaq_laneq_f32(y##i, b1, i < 4 ? q0 : i < 8 ? q1 : q2, i % 4);
MPT__STORE_BOTH(MPT__NEON_OP, mpt__v4_store_both, mpt__v4, 4, mpt__v4_store_as)
MPT__GEMM_LEVEL(MPT__NEON, MPT__NEON_OP, mpt__neon, mpt__v4, 4, MPT__NAME_NEON, 4, 8, 12, 8, 168,
                16, false)
#endif

#endif
#endif
