/* ----
 * cpu/product.h: a product of matrices, C = act(alpha A B + bias), and the level that computes it.
 *
 * A level is a table of functions, mpt__gemm_level, that cpu/template/gemm.c or the room of an
 * instruction set makes; the driver in cpu/gemm.c has the loops.
 * ---- */
#ifndef MPT__CPU_PRODUCT_INCLUDED
#define MPT__CPU_PRODUCT_INCLUDED

#include "cpu/optimizer.c"

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
    int64_t bytes, int64_t row, int64_t rows, int64_t column, int64_t columns) {
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
    const mpt__gemm_image *image, int64_t outer, int64_t count, int64_t k, int64_t depth,
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

#ifdef MPT__SIMD
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
    bool accumulate; /* the activation follows */
    bool fast;       /* fp32 may be multiplied in parts, see mpt_benchmark */
    int64_t onto;    /* bytes from C to what the sums are added to then; lies as C does */
    float alpha;
    int64_t c_row, c_column;
    /* Batch dimensions, the last one fastest; strides of a, b, bias, c. */
    int batch_rank;
    int64_t batch_count, batch_size[MPT_MAX_RANK], batch_stride[MPT_MAX_RANK][4];
} mpt__gemm;

/* c[rows, columns] = or (ADD) += A B, `depth` deep. ROOM: c may be written as far as a whole tile
   goes. HALF: c is of bf16, and the tile whole, or of the level's `middle` rows and as wide; floats
   at b[1].data are added to each row unless it is NULL, and ReLU follows if b[1].inner. */
#define MPT__TILE_TAKES \
    int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c, int64_t ldc, \
        int rows, int columns, int how
#define MPT__TILE_GIVES depth, a, b, c, ldc, rows, columns, how
typedef void mpt__gemm_tile(MPT__TILE_TAKES);
#define MPT__PACK_TAKES \
    const mpt__gemm_side *side, int64_t outer, int64_t count, int64_t k, int64_t depth
#define MPT__PACK_GIVES side, outer, count, k, depth
#define MPT__FINISH_TAKES \
    const mpt__gemm *g, const float *sum, int64_t ld, int64_t i, int64_t j, int64_t rows, \
        int64_t columns
#define MPT__FINISH_GIVES g, sum, ld, i, j, rows, columns
enum { MPT__GEMM_ADD = 1, MPT__GEMM_ROOM = 2, MPT__GEMM_HALF = 4, MPT__GEMM_MORE = 8 };

struct mpt__gemm_level {
    int rows, columns; /* of the micro-kernel's tile */
    int direct_rows;   /* of the direct one's; its columns are the same */
    int element, unit; /* bytes of an element in a panel; panels hold a multiple of `unit` k */
    int depth;         /* the most K of one pass over a tile; measured */
    int chunk_rows;    /* of C, that a thread computes in one go; a multiple of rows */
    int rate;          /* products per ns of one core, about: where threads pay */
    /* From panels of A and B, whose elements are floats or pairs of bf16; outer and inner are those
       from row to row and from k to k. With in_place A may lie where it is, if it has as many rows
       as the tile. At every step the line at a[1].data is fetched, which moves on by a[1].inner
       bytes. */
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
    bool (*pack)(void *panel, bool b, MPT__PACK_TAKES);
    /* to[0..n) = the n elements at `from`, `step` apart. */
    void (*load)(float *to, const char *from, int64_t step, int64_t n, int dtype, int round);
    /* C[i.., j..] = what the launch asks for, given the sums of products; sum may be C itself.
       C and the bias are contiguous along N. */
    void (*finish)(MPT__FINISH_TAKES);
    /* What a thread does before its first tile and after its last; NULL: nothing. */
    void (*bracket)(bool begin);
    /* The level for a product: this or a variant, NULL: none, the lower kernels. NULL: this. */
    const mpt__gemm_level *(*choose)(const mpt__gemm *g);
    bool refuses; /* pack may return false */
    bool in_place;
    int middle; /* rows of the next smaller tile; 0: the last rows are not shared out */
};

#ifndef MPT__HAS_NORMS
#define MPT__GEMM_CONV_OF(function) NULL
#else
#define MPT__GEMM_CONV_OF(function) function
#endif

#define MPT__GEMM_SLACK 64      /* bytes */
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

/* Narrow rows of C, one behind the other, are put many at a time: `shared` gets their bias as often
   behind itself, and is returned; *last are the columns of the last of the new rows. */
static MPT__UNUSED const char *mpt__gemm_repeat(
    float shared[64], const mpt__gemm_side *bias, int64_t *rows, int64_t *columns, int64_t *last) {
    const int64_t n = *columns, many = mpt__smaller_of(64 / n, *rows), all = *rows * n;
    for (int64_t x = 0; x < n; x++) shared[x] = ((const float *)(const void *)bias->data)[x];
    for (int64_t x = n; x < many * n; x++) shared[x] = shared[x - n];
    *rows = (*rows + many - 1) / many;
    *columns = many * n;
    *last = all - (*rows - 1) * *columns;
    return (const char *)shared;
}

/* ==== Rows of a tile ====
 *
 * Rows are spelled out, so that every compiler keeps the tile in registers: x0, x1 .. are the first
 * vectors of a row of C, y0, y1 .. the second ones. X(i) for all that there may be: a tile of fewer
 * rows leaves out those from its height on, which is a constant where the function is inlined. */
#define MPT__ROWS_8(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define MPT__ROWS_14(X) MPT__ROWS_8(X) X(8) X(9) X(10) X(11) X(12) X(13)

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
/* Rows of C: the last ones may be done twice. */
#define MPT__LINES_C0 c
#define MPT__LINES_C1 (c + ldc)
#define MPT__LINES_C2 (c + 2 * ldc)
#define MPT__LINES_C3 c3
#define MPT__LINES_C4 (c3 + ldc)
#define MPT__LINES_C5 (c3 + 2 * ldc)
#define MPT__LINES_C6 c6
#define MPT__LINES_C7 (c6 + ldc)

/* PLACE: A may lie where it is, and lines are fetched; else it is in panels of PANEL rows. */
#define MPT__TILE_LINES(of, PLACE, PANEL) \
    const int64_t o = (PLACE) ? (of)->outer : 1, a_step = (PLACE) ? (of)->inner : PANEL; \
    const float *a0 = mpt__gemm_floats_of(of), *a3 = a0 + 3 * o, *a6 = a3 + 3 * o; \
    const float *a9 = a6 + 3 * o, *a12 = a9 + 3 * o; \
    const char *ahead = (of)[1].data; \
    const int64_t ahead_step = (of)[1].inner;
#define MPT__TILE_NEXT(PLACE) \
    if (PLACE) MPT__PREFETCH(ahead); \
    a0 += a_step, a3 += a_step, a6 += a_step, a9 += a_step, a12 += a_step, ahead += ahead_step
#define MPT__TILE_ZERO(i) v_f x##i = v_zero(), y##i = x##i;
#endif

#endif
