/* ----
 * cpu/gemm.c: matrix products from launches: blocks, threads, batches.
 *
 * Two roads. Packed: A and B are copied into panels (converted, rounded, transposed) that stay in
 * cache, and a micro-kernel keeps a tile of C in registers. Direct: where a dimension is too small
 * for packing to pay, kernels read operands in place. The road, the K blocks and the order of every
 * sum depend on the problem and the level alone.
 * ---- */
#ifndef MPT__CPU_GEMM_INCLUDED
#define MPT__CPU_GEMM_INCLUDED

#include "cpu/level/amx.c"
#include "cpu/vocabulary_end.h"

#ifdef MPT__HAS_GEMM

/* ==== The end of a product ==== */

/* level->finish where C or the bias is not contiguous along N, by way of rows that are. */
static void mpt__gemm_finish(MPT__FINISH_TAKES) {
    enum { WIDTH = 64 };
    const int bytes = mpt__dtype_info[g->c_dtype].bytes;
    const int64_t step = g->c_column * bytes;
    if (g->c_image) {
        mpt__gemm row = *g;
        int64_t at[2];
        row.c_image = NULL;
        for (int64_t r = 0; r < rows; r++) {
            row.c = g->c + mpt__gemm_pixel(g->c_image, i + r, at) * bytes;
            g->level->finish(&row, sum + r * ld, ld, 0, j, 1, columns);
        }
        return;
    }
    if (g->c_column == 1 && (!g->bias.data || g->bias.inner == 1)) {
        g->level->finish(MPT__FINISH_GIVES);
        return;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t x = 0; x < columns; x += WIDTH) {
            float bias[WIDTH], out[WIDTH];
            char *c = g->c + (i + r) * g->c_row * bytes + (j + x) * step;
            int64_t n = mpt__smaller_of(WIDTH, columns - x);
            mpt__gemm dense = *g;
            dense.c = (char *)out;
            dense.bias.data = NULL;
            if (g->bias.data) {
                const mpt__gemm_side row = {(const char *)bias, MPT_F32, 0, 0, 1};
                g->level->load(bias, mpt__gemm_at(&g->bias, i + r, j + x), g->bias.inner, n,
                    g->bias.dtype, g->bias.round);
                dense.bias = row;
            }
            for (int64_t e = 0; e < n; e++)
                memcpy((char *)out + e * bytes, c + e * step, (size_t)bytes);
            g->level->finish(&dense, sum + r * ld + x, ld, 0, 0, 1, n);
            for (int64_t e = 0; e < n; e++)
                memcpy(c + e * step, (char *)out + e * bytes, (size_t)bytes);
        }
}

/* ==== The packed road ==== */

#define MPT__GEMM_BLOCK_M 2016 /* rows of C under way at a time: multiples of 14 and 6 */
#define MPT__GEMM_BLOCK_N 2048
#define MPT__GEMM_PACKED (4 << 20) /* bytes of both packed operands, about: they stay in cache */
#define MPT__GEMM_FAR (1 << 17)   /* elements of C from which on it lies too far to be waited for */
#define MPT__GEMM_AHEAD (1 << 20) /* bytes of an operand that no L2 holds, about */
#define MPT__GEMM_SHALLOW 32      /* K up to which C costs more than both operands; measured */
#define MPT__GEMM_CHUNK_COST 8192 /* ns of one core, about */
#define MPT__GEMM_GATHERED 16384  /* bytes of an image that are packed at a time */

/* Where the sums of products live until all of K has been seen. */
typedef enum {
    MPT__GEMM_IN_C,     /* C is fp32, contiguous along N, and takes the plain sums */
    MPT__GEMM_FINISH,   /* the same, but each tile is finished in place after the last K block */
    MPT__GEMM_ON_STACK, /* one K block: in a tile that is finished at once */
    MPT__GEMM_IN_PARTIAL
} mpt__gemm_home;

typedef struct {
    int64_t m, n;             /* of a block of C */
    int64_t depth;            /* of a K block */
    int64_t pass;             /* K packed at a time: some K blocks */
    int64_t a_panel, b_panel; /* bytes of a panel of A or B over a K block */
    int64_t a, b, partial;    /* bytes of workspace */
    mpt__gemm_home home;
    /* One chunk has all columns or rows of C: threads pack panels of A, or of B, when needed. */
    bool own_a, own_b;
    bool b_in_place; /* of own_b: rows of B that are as wide as a panel are read where they lie */
    bool a_in_place; /* so are whole tiles of rows of A */
    bool halves;     /* of ON_STACK: whole tiles, or such of `middle` rows, are stored as bf16 */
} mpt__gemm_layout;

/* What the threads of a launch share. */
typedef struct {
    int32_t refused; /* 1 once the level has refused a value: nothing more is computed */
    bool dry;        /* only see whether it does */
} mpt__gemm_watch;

static int64_t mpt__gemm_panel_bytes(const mpt__gemm_level *level, int64_t depth, int64_t width) {
    int64_t elements = mpt__round_up(depth, level->unit) * width;
    return mpt__round_up(elements * level->element, 64) + MPT__GEMM_SLACK;
}

static int64_t mpt__gemm_panels(int64_t size, int64_t width) {
    return size <= width ? size > 0 : (size + width - 1) / width; /* few spare the division */
}

/* Whether sums are chains over all of K, as in the reference: such a level has but one road, and
   what C held before begins none of them. */
static bool mpt__gemm_chains(const mpt__gemm_level *level) {
#ifdef MPTRAIN_NO_RESUME
    return (void)level, false;
#else
    return !level->direct && level->unit == 1; /* tiles have units of 2 */
#endif
}

static bool mpt__gemm_is_plain(const mpt__gemm *g) {
    if (g->accumulate && mpt__gemm_chains(g->level)) return false;
    return g->alpha == 1.0f && !g->bias.data && g->activation == MPT_ACTIVATION_NONE &&
        g->onto == 0;
}

/* Whether tiles read lines of A where they lie. Lines 2 KiB apart would drive each other out of L1.
   (No bytes of workspace depend on it.) */
static bool mpt__gemm_reads_a(const mpt__gemm *g) {
    const int64_t unit = g->level->unit;
    return g->level->in_place && g->a.dtype == (unit == 1 ? MPT_F32 : MPT_BF16) &&
        g->a.round == 0 && g->a.inner == 1 && !g->a_image && (g->a.outer | g->k) % unit == 0 &&
        g->a.outer / unit % 512 != 0 && (uintptr_t)g->a.data % sizeof(float) == 0;
}

static mpt__gemm_layout mpt__gemm_lay_out(const mpt__gemm *g, int threads) {
    const mpt__gemm_level *level = g->level;
    mpt__gemm_layout lay;
    const bool few_rows = g->m <= level->chunk_rows, few_columns = g->n <= level->chunk_rows;
    /* A few rows of pairs stay near at twice the length, too; measured. */
    int64_t blocks = mpt__gemm_panels(g->k, level->depth << (few_rows && level->unit == 2));
    lay.m = mpt__smaller_of(g->m, MPT__GEMM_BLOCK_M);
    lay.n = mpt__smaller_of(g->n, MPT__GEMM_BLOCK_N);
    lay.depth = mpt__smaller_of(mpt__round_up(mpt__gemm_panels(g->k, blocks), 32), g->k);
    int64_t outer = mpt__round_up(lay.m, level->rows) + mpt__round_up(lay.n, level->columns);
    int64_t at_once = MPT__GEMM_PACKED / level->element / outer / lay.depth;
    lay.pass = mpt__smaller_of((at_once > 1 ? at_once : 1) * lay.depth, g->k);
    int64_t k_blocks = mpt__gemm_panels(lay.pass, lay.depth);
    int64_t a_panels = mpt__gemm_panels(lay.m, level->rows) * k_blocks;
    int64_t b_panels = mpt__gemm_panels(lay.n, level->columns) * k_blocks;
    lay.own_a = few_columns && (g->m > g->n || !few_rows);
    lay.own_b = few_rows && !lay.own_a;
    lay.b_in_place = lay.own_b && level->unit == 1 && g->b.outer == 1 && !g->b_image &&
        g->b.dtype == MPT_F32 && g->b.round == 0;
    lay.a_in_place = mpt__gemm_reads_a(g);
    lay.a_panel = mpt__gemm_panel_bytes(level, lay.depth, level->rows);
    lay.b_panel = mpt__gemm_panel_bytes(level, lay.depth, level->columns);
    lay.a = lay.a_panel * (lay.own_a ? threads : a_panels);
    lay.b = lay.b_panel * (lay.own_b ? threads : b_panels);
    const bool as_floats = g->c_dtype == MPT_F32 && g->c_column == 1 && !g->c_image;
    const bool far_away = g->m * g->n >= MPT__GEMM_FAR;
    if (as_floats && mpt__gemm_is_plain(g))
        lay.home = MPT__GEMM_IN_C;
    else if (as_floats && (far_away || blocks > 1) && (!g->accumulate || g->onto != 0))
        lay.home = MPT__GEMM_FINISH;
    else
        lay.home = blocks == 1 ? MPT__GEMM_ON_STACK : MPT__GEMM_IN_PARTIAL;
    lay.halves = lay.home == MPT__GEMM_ON_STACK && level->unit == 2 && level->in_place &&
        g->c_dtype == MPT_BF16 && g->c_column == 1 && !g->c_image && !g->accumulate &&
        g->alpha == 1.0f && g->activation <= MPT_ACTIVATION_RELU &&
        (!g->bias.data || (g->bias.outer == 0 && g->bias.inner == 1));
    lay.partial = lay.home == MPT__GEMM_IN_PARTIAL ? lay.m * lay.n * (int64_t)sizeof(float) : 0;
    return lay;
}

/* One pass over a block of C. */
typedef struct {
    const mpt__gemm *g;
    mpt__gemm_watch *watch;
    mpt__gemm_layout lay;
    int64_t i, j, k, m, n, depth; /* the block, and the K of this pass */
    int64_t a_panels, b_panels, a_shared, b_shared, k_blocks;
    int64_t a_rows; /* panels of A from a lower row on are read where they lie */
    int64_t even;   /* where the last panel of A would begin if it did not share; or -1 */
    int64_t chunk_m, chunk_n;
    bool by_rows; /* chunks have all columns, and run along the rows of C */
    char *a, *b;
    float *partial;
} mpt__gemm_pass;

/* Where a panel begins: all panels of one K block come before the next block's. */
static char *mpt__gemm_panel(const mpt__gemm_pass *p, bool b, int64_t block, int64_t panel) {
    return b ? p->b + (block * p->b_panels + panel) * p->lay.b_panel
             : p->a + (block * p->a_panels + panel) * p->lay.a_panel;
}

/* First row and rows of the panel of A from row i on. The last two share evenly where both are then
   of the next smaller tile, as the last alone would be nearly empty. */
static int64_t mpt__gemm_rows(const mpt__gemm_pass *p, int64_t i, int *rows) {
    const int whole = p->g->level->rows, middle = p->g->level->middle;
    if (i == p->even) i -= whole - middle;
    *rows = (int)mpt__smaller_of(i == p->even - whole ? middle : whole, p->m - i);
    return i;
}

/* level->pack of a matrix that is gathered first, as much at a time as stays close. */
static MPT__NOINLINE bool mpt__gemm_pack_image(const mpt__gemm_level *level, char *panel, bool b,
    const mpt__gemm_side *side, const mpt__gemm_image *image, int64_t outer, int64_t count,
    int64_t k, int64_t depth) {
    MPT__ALIGN(64) char gathered[MPT__GEMM_GATHERED];
    const int64_t width = b ? level->columns : level->rows;
    const int64_t most = MPT__GEMM_GATHERED / 4 / width / 32 * 32; /* k, in fp32 */
    bool good = true;
    if (image->along_k && b && level->unit == 1 && count == width && side->dtype == MPT_F32 &&
        side->round == 0) { /* it is a panel */
        mpt__gemm_gather(panel, image, side->data, 4, k, depth, outer, count);
        return true;
    }
    for (int64_t at = 0; at < depth && good; at += most) {
        int64_t n = mpt__smaller_of(most, depth - at);
        mpt__gemm_side part = mpt__gemm_part(side, image, outer, count, k + at, n, gathered);
        good = level->pack(panel + at * width * level->element, b, &part, 0, count, 0, n);
    }
    return good;
}

/* Packs a panel of A or B over one K block. */
static void mpt__gemm_pack(
    const mpt__gemm_pass *p, bool b, int64_t block, int64_t panel, char *to) {
    const mpt__gemm_level *level = p->g->level;
    int64_t k = block * p->lay.depth, depth = mpt__smaller_of(p->lay.depth, p->depth - k);
    int64_t width = b ? level->columns : level->rows, begin = panel * width;
    int count = (int)mpt__smaller_of(width, p->n - begin);
    if (!b) begin = mpt__gemm_rows(p, begin, &count);
    const mpt__gemm_image *image = b ? p->g->b_image : p->g->a_image;
    const mpt__gemm_side *side = b ? &p->g->b : &p->g->a;
    const int64_t outer = (b ? p->j : p->i) + begin;
    bool good = image
        ? mpt__gemm_pack_image(level, to, b, side, image, outer, count, p->k + k, depth)
        : level->pack(to, b, side, outer, count, p->k + k, depth);
    if (!good) mpt__atomic_store32(&p->watch->refused, 1);
}

static void mpt__gemm_pack_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__gemm_pass, p);
    int64_t panels = p->a_shared + p->b_shared, block = chunk / panels, panel = chunk % panels;
    bool b = panel >= p->a_shared;
    panel += b ? -p->a_shared : p->a_panels - p->a_shared;
    mpt__gemm_pack(p, b, block, panel, mpt__gemm_panel(p, b, block, panel));
}

/* Fetches the lines of a tile of C, as they are to be written. */
static void mpt__gemm_fetch(const char *c, int64_t row, int rows, int64_t bytes) {
#if defined(__GNUC__)
    for (; rows > 0; rows--, c += row)
        for (int64_t j = 0; j < bytes; j += 64) __builtin_prefetch(c + j, 1);
#else
    (void)c, (void)row, (void)rows, (void)bytes;
#endif
}

/* What the tiles of a thread share. Sums are finished behind the next tile: the two overlap. */
typedef struct {
    MPT__ALIGN(64) float tile[2][MPT__GEMM_MAX_TILE];
    float bias[64]; /* of halves: of the columns from bias_at on, converted */
    int64_t bias_at;
    int turn;         /* the tile to be used next */
    const float *sum; /* NULL: none wait */
    int64_t ld, i, j, rows, columns;
    mpt__gemm_side a[2], b[2]; /* for the level's tile */
    int64_t k, depth;          /* the K block */
    int how;
    bool last, far_away; /* of K; of C */
    /* Lines of memory of the panel packed next, `step` bytes from k to k, which tiles fetch: each
       one line in `unit` k. */
    const char *next;
    int64_t step, fetched, lines;
} mpt__gemm_sums;

static void mpt__gemm_finish_sums(const mpt__gemm *g, const mpt__gemm_sums *s) {
    if (s->sum) mpt__gemm_finish(g, s->sum, s->ld, s->i, s->j, s->rows, s->columns);
}

/* Before the first tile of a thread. */
static void mpt__gemm_begin_sums(const mpt__gemm_pass *p, mpt__gemm_sums *s) {
    const mpt__gemm_side none = {NULL, MPT_F32, 0, 0, 0};
    s->a[0] = s->a[1] = s->b[0] = s->b[1] = none;
    s->b[0].outer = 1;
    s->b[1].inner = p->g->activation == MPT_ACTIVATION_RELU;
    s->bias_at = -1;
    s->turn = 0;
    s->sum = NULL;
    s->fetched = s->lines = 0;
    s->far_away = p->g->m * p->g->n >= MPT__GEMM_FAR && p->g->c_column == 1 && !p->g->c_image;
}

/* Before the first tile of a K block. */
static void mpt__gemm_begin_block(
    const mpt__gemm_pass *p, int64_t block, int64_t b_step, mpt__gemm_sums *s) {
    const int64_t k = block * p->lay.depth;
    s->depth = mpt__smaller_of(p->lay.depth, p->depth - k);
    s->k = p->k + k;
    s->how = s->k > 0 ? MPT__GEMM_ADD : 0;
    s->last = s->k + s->depth == p->g->k;
    if (p->lay.home == MPT__GEMM_ON_STACK) s->how |= MPT__GEMM_ROOM;
    if (p->lay.home == MPT__GEMM_IN_C) {
        if (p->g->accumulate) s->how = MPT__GEMM_ADD;
        s->last = false;
    }
    s->b[0].inner = b_step;
}

/* A whole tile of halves, which are stored as they are to be. */
static void mpt__gemm_run_halves(
    const mpt__gemm_pass *p, int64_t i, int64_t j, int rows, mpt__gemm_sums *s) {
    const mpt__gemm *g = p->g;
    const int columns = g->level->columns;
    if (g->bias.data && s->bias_at != j) {
        g->level->load(
            s->bias, mpt__gemm_at(&g->bias, 0, j), 1, columns, g->bias.dtype, g->bias.round);
        s->bias_at = j;
        s->b[1].data = (const char *)s->bias;
    }
    g->level->tile(s->depth, s->a, s->b, (float *)(void *)(g->c + (i * g->c_row + j) * 2), g->c_row,
        rows, columns, MPT__GEMM_HALF);
    mpt__gemm_finish_sums(g, s);
    s->sum = NULL;
}

static void mpt__gemm_run_tile(const mpt__gemm_pass *p, int64_t i, int64_t j, const char *a_panel,
    const char *b_panel, mpt__gemm_sums *s) {
    const mpt__gemm *g = p->g;
    const mpt__gemm_level *level = g->level;
    const bool in_place = i < p->a_rows;
    int rows;
    i = mpt__gemm_rows(p, i, &rows) + p->i;
    const int columns = (int)mpt__smaller_of(level->columns, p->n - j);
    s->a[0].data = in_place ? mpt__gemm_at(&g->a, i, s->k) : a_panel;
    s->a[0].outer = in_place ? g->a.outer / level->unit : 1;
    s->a[0].inner = in_place ? 1 : level->rows;
    s->b[0].data = b_panel;
    s->a[1].data = s->a[0].data;
    s->a[1].inner = 0;
    if (s->fetched < s->lines) {
        s->a[1].data = s->next + s->fetched / level->unit * 64 + s->fetched % level->unit * s->step;
        s->a[1].inner = s->step * level->unit;
        s->fetched++;
    }
    j += p->j;
    if (s->far_away) {
        const int64_t bytes = mpt__dtype_info[g->c_dtype].bytes;
        mpt__gemm_fetch(g->c + (i * g->c_row + j) * bytes, g->c_row * bytes, rows, columns * bytes);
    }
    if (p->lay.halves && columns == level->columns &&
        (rows == level->rows || rows == level->middle)) {
        mpt__gemm_run_halves(p, i, j, rows, s);
        return;
    }
    float *sum = (float *)(void *)g->c + i * g->c_row + j;
    int64_t ld = g->c_row;
    if (p->lay.home == MPT__GEMM_ON_STACK) {
        sum = s->tile[s->turn];
        s->turn = 1 - s->turn;
        ld = level->columns;
    } else if (p->lay.home == MPT__GEMM_IN_PARTIAL) {
        sum = p->partial + (i - p->i) * p->n + j - p->j;
        ld = p->n;
    }
    level->tile(s->depth, s->a, s->b, sum, ld, rows, columns, s->how);
    mpt__gemm_finish_sums(g, s);
    s->sum = s->last ? sum : NULL;
    s->ld = ld;
    s->i = i, s->j = j;
    s->rows = rows, s->columns = columns;
}

/* Has tiles fetch what a thread packs after this panel, if its lines are far apart. */
static void mpt__gemm_look_ahead(
    const mpt__gemm_pass *p, bool b, int64_t block, int64_t at, mpt__gemm_sums *sums) {
    const mpt__gemm_side *side = b ? &p->g->b : &p->g->a;
    const int64_t width = b ? p->g->level->columns : p->g->level->rows;
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    int64_t k = p->k, outer = (b ? p->j : p->i) + at;
    if (block + 1 < p->k_blocks)
        k += (block + 1) * p->lay.depth;
    else
        outer += width;
    sums->fetched = sums->lines = 0;
    sums->step = side->inner * bytes;
    if (!p->g->level->in_place || side->outer != 1 || p->g->k * sums->step < MPT__GEMM_AHEAD ||
        (b ? p->g->b_image : p->g->a_image) != NULL)
        return;
    sums->lines = (width * bytes + 63) / 64;
    sums->next = mpt__gemm_at(side, outer + width, k) - 1 - (sums->lines - 1) * 64;
    sums->lines *= p->g->level->unit;
}

/* The bracket of thread 0, the caller, stands around the whole product. */
static void mpt__gemm_compute_chunk(MPT__CHUNK_TAKES) {
    const mpt__gemm_pass *p = (const mpt__gemm_pass *)work;
    const mpt__gemm_level *level = p->g->level;
    const bool own = p->lay.own_a || p->lay.own_b, by_b = !p->by_rows;
    const int64_t across = mpt__gemm_panels(p->n, p->chunk_n);
    const int64_t i0 = chunk / across * p->chunk_m, j0 = chunk % across * p->chunk_n;
    const int64_t i1 = mpt__smaller_of(i0 + p->chunk_m, p->m);
    const int64_t j1 = mpt__smaller_of(j0 + p->chunk_n, p->n);
    /* The outer loop runs over panels of the side that threads pack themselves. */
    const int64_t begin = by_b ? j0 : i0, end = by_b ? j1 : i1;
    const int64_t step = by_b ? level->columns : level->rows;
    mpt__gemm_sums sums;
    mpt__gemm_begin_sums(p, &sums);
    if (thread > 0 && level->bracket) level->bracket(true);
    for (int64_t at = begin; at < end; at += step)
        for (int64_t block = 0; block < p->k_blocks; block++) {
            char *packed = mpt__gemm_panel(p, by_b, own ? 0 : block, own ? thread : at / step);
            const char *panel = packed;
            int64_t b_step = level->columns;
            if (p->lay.b_in_place && at + step <= p->n) {
                panel = mpt__gemm_at(&p->g->b, p->j + at, p->k + block * p->lay.depth);
                b_step = p->g->b.inner;
            } else if (own && (by_b || at >= p->a_rows)) {
                mpt__gemm_pack(p, by_b, block, at / step, packed);
            }
            if (p->watch->dry) continue;
            mpt__gemm_begin_block(p, block, b_step, &sums);
            if (own) mpt__gemm_look_ahead(p, by_b, block, at, &sums);
            if (by_b) {
                for (int64_t i = i0; i < i1; i += level->rows) {
                    const char *a = mpt__gemm_panel(p, false, block, i / level->rows);
                    mpt__gemm_run_tile(p, i, at, a, panel, &sums);
                }
            } else {
                for (int64_t j = j0; j < j1; j += level->columns) {
                    const char *b = mpt__gemm_panel(p, true, block, j / level->columns);
                    mpt__gemm_run_tile(p, at, j, panel, b, &sums);
                }
            }
        }
    mpt__gemm_finish_sums(p->g, &sums);
    if (thread > 0 && level->bracket) level->bracket(false);
}

/* mpt__parallel, or a plain loop where there is no pool. */
static void mpt__gemm_for(
    mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn, void *work) {
    if (pool) {
        mpt__parallel(pool, count, cost, fn, work);
    } else {
        for (int64_t i = 0; i < count; i++) fn(work, i, 0);
    }
}

/* One pass; false where a value was refused. */
static bool mpt__gemm_run_pass(mpt__gemm_pass *p, mpt__pool *pool) {
    const mpt__gemm_level *level = p->g->level;
    p->depth = mpt__smaller_of(p->lay.pass, p->g->k - p->k);
    p->k_blocks = mpt__gemm_panels(p->depth, p->lay.depth);
    const int64_t rest = p->m % level->rows, spare = 2 * level->middle - level->rows;
    const bool shared = rest > 0 && rest <= spare && p->m > level->rows;
    p->even = shared ? p->m - rest : -1;
    p->a_rows = !p->lay.a_in_place ? 0
                : rest == (shared ? spare : level->middle) ? p->m : p->m - rest;
    p->a_shared = p->lay.own_a ? 0 : mpt__gemm_panels(p->m - p->a_rows, level->rows);
    p->b_shared = p->lay.own_b ? 0 : p->b_panels;
    int64_t chunk = level->rate * (int64_t)MPT__GEMM_CHUNK_COST / p->depth;
    p->by_rows = p->lay.own_a || (!p->lay.own_b && p->depth <= MPT__GEMM_SHALLOW);
    if (p->by_rows) {
        p->chunk_n = p->n;
        p->chunk_m = mpt__round_up(chunk / p->n + 1, level->rows);
    } else {
        p->chunk_m = mpt__smaller_of(level->chunk_rows, p->m);
        p->chunk_n = mpt__round_up(chunk / p->chunk_m + 1, level->columns);
    }
    int64_t elements = (p->a_shared * level->rows + (p->lay.own_b ? 0 : p->n)) * p->depth;
    mpt__gemm_for(
        pool, (p->a_shared + p->b_shared) * p->k_blocks, elements / 4, mpt__gemm_pack_chunk, p);
    if (mpt__atomic_load32(&p->watch->refused)) return false;
    if (p->watch->dry && !p->lay.own_a && !p->lay.own_b) return true;
    int64_t chunks = mpt__gemm_panels(p->m, p->chunk_m) * mpt__gemm_panels(p->n, p->chunk_n);
    mpt__gemm_for(pool, chunks, p->m * p->n / level->rate * p->depth, mpt__gemm_compute_chunk, p);
    return !mpt__atomic_load32(&p->watch->refused);
}

static void mpt__gemm_packed(
    const mpt__gemm *g, mpt__pool *pool, char *workspace, mpt__gemm_watch *watch) {
    mpt__gemm_pass p;
    p.g = g;
    p.watch = watch;
    p.lay = mpt__gemm_lay_out(g, pool ? mpt__pool_threads(pool) : 1);
    p.a = workspace;
    p.b = workspace + p.lay.a;
    p.partial = (float *)(void *)(workspace + p.lay.a + p.lay.b);
    if (g->level->bracket) g->level->bracket(true);
    for (p.i = 0; p.i < g->m; p.i += p.lay.m) {
        p.m = mpt__smaller_of(p.lay.m, g->m - p.i);
        p.a_panels = mpt__gemm_panels(p.m, g->level->rows);
        for (p.j = 0; p.j < g->n; p.j += p.lay.n) {
            p.n = mpt__smaller_of(p.lay.n, g->n - p.j);
            p.b_panels = mpt__gemm_panels(p.n, g->level->columns);
            for (p.k = 0; p.k < g->k; p.k += p.lay.pass)
                if (!mpt__gemm_run_pass(&p, pool)) break;
        }
    }
    if (g->level->bracket) g->level->bracket(false);
}

/* ==== The direct road ==== */

#define MPT__GEMM_DIRECT_DEPTH 4096 /* the most K of one pass */
#define MPT__GEMM_DIRECT_PAIRS 8192 /* the most products where a level has pairs of bf16 */
#ifdef MPT__HAS_BF16X4
#define MPT__GEMM_DIRECT_WIDTH 2 /* the most columns then */
#else
#define MPT__GEMM_DIRECT_WIDTH 10
#endif
#define MPT__GEMM_DIRECT_FLOATS 32768 /* of a converted chunk, which stays in L2 */

typedef struct {
    const mpt__gemm *g;
    bool dots, by_rows;  /* which kernel; which side is chunked: A by rows or B by columns */
    bool in_place;       /* the kernel converts what it loads of that side, as it loads it once */
    int64_t chunk;       /* rows or columns of a chunk */
    mpt__gemm_side a, b; /* the side that is not chunked, converted where that is needed */
    float *copies;       /* one chunk per thread */
    int64_t copy_floats;
} mpt__gemm_direct;

static bool mpt__gemm_needs_copy(const mpt__gemm_side *s, bool in_place) {
    return s->round != 0 || (s->dtype != MPT_F32 && !in_place);
}

/* Whether the direct road is open and pays; measured. */
static bool mpt__gemm_goes_direct(const mpt__gemm *g, bool *dots) {
    *dots = g->a.inner == 1 && g->b.inner == 1 && g->b.outer != 1;
    if (!g->level->direct || g->k > MPT__GEMM_DIRECT_DEPTH) return false;
    if (g->a_image || g->b_image || g->c_image) return false;
    /* Pairs of halves are worth packing for all but the least. */
    if (g->level->element == 2 && g->m > 2 && g->n > MPT__GEMM_DIRECT_WIDTH && g->k > 4 &&
        g->m * g->n * g->k > MPT__GEMM_DIRECT_PAIRS && (g->k > 10 || g->m * g->n >= 1 << 16))
        return false;
    if (*dots) return g->m <= 16 || (g->n <= 16 && g->m <= 256);
    if (g->b.outer != 1) return false;
    return g->m <= 16 || g->n <= 16 || g->k <= 32;
}

/* `side` as an fp32 matrix of `count` outer elements from `outer` on: in place, or copied to `to`
   in the same direction. */
static mpt__gemm_side mpt__gemm_as_floats(const mpt__gemm *g, const mpt__gemm_side *side,
    bool in_place, int64_t outer, int64_t count, float *to) {
    mpt__gemm_side out = *side;
    out.data = mpt__gemm_at(side, outer, 0);
    if (!mpt__gemm_needs_copy(side, in_place)) return out;
    bool along_k = side->outer != 1;
    int64_t lines = along_k ? count : g->k, length = along_k ? g->k : count;
    int64_t step = along_k ? side->inner : side->outer;
    if (step == 1 && (along_k ? side->outer : side->inner) == length) { /* all in one piece */
        length *= lines;
        lines = 1;
    }
    for (int64_t i = 0; i < lines; i++) {
        const char *from = mpt__gemm_at(side, along_k ? outer + i : outer, along_k ? 0 : i);
        g->level->load(to + i * length, from, step, length, side->dtype, side->round);
    }
    out.data = (const char *)to;
    out.dtype = MPT_F32;
    out.round = 0;
    out.outer = along_k ? g->k : 1;
    out.inner = along_k ? 1 : count;
    return out;
}

/* One or two long rows of C: B is read along its lines. */
static void mpt__gemm_direct_wide(const mpt__gemm *g, const mpt__gemm_side *a,
    const mpt__gemm_side *b, int64_t i0, int64_t j0, int64_t m, int64_t n) {
    float tile[MPT__GEMM_MAX_TILE];
    const int64_t most = MPT__GEMM_MAX_TILE / m;
    for (int64_t j = 0; j < n; j += most) {
        int64_t width = mpt__smaller_of(most, n - j);
        mpt__gemm_side part = *b;
        part.data = mpt__gemm_at(b, j, 0);
        memset(tile, 0, (size_t)(m * width) * sizeof *tile);
        g->level->sweep(g->k, a, &part, tile, width, (int)m, (int)width, MPT__GEMM_ADD);
        mpt__gemm_finish(g, tile, width, i0, j0 + j, m, width);
    }
}

/* c[m, n] = plain sums of products of any m rows of A and n columns of B. */
static void mpt__gemm_direct_sums(const mpt__gemm_level *level, bool dots, int64_t k,
    const mpt__gemm_side *a, int64_t m, const mpt__gemm_side *b, int64_t n, float *c, int64_t ldc) {
    const int64_t across = !dots ? level->columns : m > 1 ? 4 : n;
    const int64_t down = dots ? 64 : level->direct_rows;
    mpt__gemm_side a_tile = *a, b_tile = *b;
    for (int64_t j = 0; j < n; j += across) {
        int columns = (int)mpt__smaller_of(across, n - j);
        b_tile.data = mpt__gemm_at(b, j, 0);
        for (int64_t i = 0; i < m; i += down) {
            int rows = (int)mpt__smaller_of(down, m - i);
            a_tile.data = mpt__gemm_at(a, i, 0);
            (dots ? level->dot : level->direct)(
                k, &a_tile, &b_tile, c + i * ldc + j, ldc, rows, columns, 0);
        }
    }
}

static void mpt__gemm_direct_chunk(MPT__CHUNK_TAKES) {
    const mpt__gemm_direct *d = (const mpt__gemm_direct *)work;
    const mpt__gemm *g = d->g;
    float *copy = d->copies + thread * d->copy_floats, tile[MPT__GEMM_MAX_TILE];
    int64_t begin = chunk * d->chunk, size = d->by_rows ? g->m : g->n;
    int64_t count = mpt__smaller_of(d->chunk, size - begin);
    int64_t i0 = d->by_rows ? begin : 0, j0 = d->by_rows ? 0 : begin;
    int64_t m = d->by_rows ? count : g->m, n = d->by_rows ? g->n : count;
    mpt__gemm_side own =
        mpt__gemm_as_floats(g, d->by_rows ? &g->a : &g->b, d->in_place, begin, count, copy);
    const mpt__gemm_side *a = d->by_rows ? &own : &d->a, *b = d->by_rows ? &d->b : &own;
    if (!d->dots && m <= 2 && g->k > 32 && n > g->level->columns) {
        mpt__gemm_direct_wide(g, a, b, i0, j0, m, n);
        return;
    }
    if (g->c_dtype == MPT_F32 && g->c_column == 1 && !g->accumulate && mpt__gemm_is_plain(g)) {
        float *c = (float *)(void *)g->c + i0 * g->c_row + j0;
        mpt__gemm_direct_sums(g->level, d->dots, g->k, a, m, b, n, c, g->c_row);
        return;
    }
    /* The widest tiles, so that they are finished in whole vectors. */
    const int64_t wide = 64, high = MPT__GEMM_MAX_TILE / wide, across = mpt__smaller_of(n, wide);
    int64_t down = m <= high ? high : MPT__GEMM_MAX_TILE / across / 2 * 2;
    for (int64_t j = 0; j < n; j += across)
        for (int64_t i = 0; i < m; i += down) {
            int64_t rows = mpt__smaller_of(down, m - i), columns = mpt__smaller_of(across, n - j);
            mpt__gemm_side a_part = *a, b_part = *b;
            a_part.data = mpt__gemm_at(a, i, 0);
            b_part.data = mpt__gemm_at(b, j, 0);
            mpt__gemm_direct_sums(
                g->level, d->dots, g->k, &a_part, rows, &b_part, columns, tile, across);
            mpt__gemm_finish(g, tile, across, i0 + i, j0 + j, rows, columns);
        }
}

/* Fills all but the pointers; returns the floats of workspace. */
static int64_t mpt__gemm_direct_plan(
    const mpt__gemm *g, bool dots, int threads, mpt__gemm_direct *d) {
    d->g = g;
    d->dots = dots;
    d->by_rows = g->m >= g->n;
    int64_t other = d->by_rows ? g->n : g->m, k = g->k;
    d->in_place = dots ? other <= 4 : !d->by_rows;
    int64_t size = d->by_rows ? g->m : g->n, macs = g->level->rate * (int64_t)MPT__GEMM_CHUNK_COST;
    const bool copies = mpt__gemm_needs_copy(d->by_rows ? &g->a : &g->b, d->in_place);
    d->chunk = size; /* of a small product, without divisions */
    if (size * other * k > macs || (copies && size * k > MPT__GEMM_DIRECT_FLOATS)) {
        int64_t most = threads > 1 ? size / (2 * threads) + 1 : size;
        if (copies) most = MPT__GEMM_DIRECT_FLOATS / k + 1;
        if (copies || other > 2) most = mpt__smaller_of(most, macs / (other * k) + 1);
        d->chunk = mpt__round_up(most, d->by_rows ? 8 : g->level->columns);
    }
    d->copy_floats = copies ? mpt__round_up(d->chunk * g->k, 16) : 0;
    bool shared = mpt__gemm_needs_copy(d->by_rows ? &g->b : &g->a, false);
    return threads * d->copy_floats + (shared ? mpt__round_up(other * g->k, 16) : 0);
}

static void mpt__gemm_run_direct(const mpt__gemm *g, bool dots, mpt__pool *pool, float *workspace) {
    mpt__gemm_direct d;
    int threads = pool ? mpt__pool_threads(pool) : 1;
    mpt__gemm_direct_plan(g, dots, threads, &d);
    int64_t size = d.by_rows ? g->m : g->n;
    float *shared = workspace + d.copy_floats * threads;
    d.copies = workspace;
    d.a = g->a;
    d.b = g->b;
    if (d.by_rows)
        d.b = mpt__gemm_as_floats(g, &g->b, false, 0, g->n, shared);
    else
        d.a = mpt__gemm_as_floats(g, &g->a, false, 0, g->m, shared);
    mpt__gemm_for(
        pool, mpt__gemm_panels(size, d.chunk), g->m * g->n / 16 * g->k, mpt__gemm_direct_chunk, &d);
}

/* ==== The kernel ==== */

static MPT__INLINE void mpt__gemm_read_side(mpt__gemm_side *side, const mpt__operand *o,
    const void *data, int compute, int outer, int inner) {
    side->data = (const char *)data;
    side->dtype = o->dtype;
    side->round = compute == MPT_F32 || compute == o->dtype ? 0 : compute;
    side->outer = o->stride[outer];
    side->inner = o->stride[inner];
}

/* Batch dimensions along which A and C go on as rows of one matrix become rows. */
static void mpt__gemm_fold_batch(mpt__gemm *g) {
    while (g->batch_rank > 0) {
        int last = g->batch_rank - 1;
        const int64_t *s = g->batch_stride[last];
        if (g->batch_size[last] != 1 &&
            (s[1] != 0 || s[0] != g->m * g->a.outer || s[3] != g->m * g->c_row ||
                (g->bias.data && s[2] != g->m * g->bias.outer))) {
            return;
        }
        g->m *= g->batch_size[last];
        g->batch_count /= g->batch_size[last];
        g->batch_rank--;
    }
}

/* False where the launch is not for this level. data NULL: only sizes count. */
static bool mpt__gemm_read(
    mpt__gemm *g, const mpt__gemm_level *level, const mpt__launch *launch, void *const *data) {
    const mpt__operand *o = launch->operand;
    const int rank = o[3].rank, row = rank - 2, column = rank - 1;
    const bool biased = o[2].storage != 0;
    const unsigned good = 1u << MPT_F32 | 1u << MPT_F16 | 1u << MPT_BF16;
    unsigned dtypes = 1u << o[0].dtype | 1u << o[1].dtype | 1u << o[3].dtype;
    if (biased) dtypes |= 1u << o[2].dtype;
    if ((dtypes & ~good) != 0) return false;
    const void *none = launch;
    const int compute = launch->compute_dtype;
    g->m = o[3].shape[row];
    g->n = o[3].shape[column];
    g->k = o[0].shape[column];
    mpt__gemm_read_side(&g->a, &o[0], data ? data[0] : none, compute, row, column);
    mpt__gemm_read_side(&g->b, &o[1], data ? data[1] : none, compute, column, row);
    const void *bias = data ? data[2] : none;
    mpt__gemm_read_side(&g->bias, &o[2], biased ? bias : NULL, compute, row, column);
    g->a_image = g->b_image = g->c_image = NULL;
    g->c = data ? (char *)data[3] : NULL;
    g->c_dtype = o[3].dtype;
    g->c_row = o[3].stride[row];
    g->c_column = o[3].stride[column];
    g->activation = launch->activation;
    g->accumulate = o[3].access == MPT__ACCUMULATE;
    g->fast = launch->index[0] != 0;
    g->onto = 0;
    g->alpha = (float)launch->imm[0];
    g->batch_rank = rank - 2;
    g->batch_count = 1;
    for (int i = 0; i < g->batch_rank; i++) {
        g->batch_size[i] = o[3].shape[i];
        g->batch_count *= o[3].shape[i];
        for (int j = 0; j < 4; j++) g->batch_stride[i][j] = j == 2 && !biased ? 0 : o[j].stride[i];
    }
    if (g->m == 0 || g->n == 0 || g->batch_count == 0) {
        g->batch_count = 0;
        g->level = level;
        return true;
    }
    mpt__gemm_fold_batch(g);
    if (g->c_column != 1 && g->c_row == 1) { /* C^T = B^T A^T */
        mpt__gemm_side side = g->a;
        int64_t size = g->m, stride = g->bias.outer;
        g->a = g->b, g->b = side;
        g->m = g->n, g->n = size;
        g->bias.outer = g->bias.inner, g->bias.inner = stride;
        g->c_row = g->c_column, g->c_column = 1;
        for (int i = 0; i < g->batch_rank; i++) {
            stride = g->batch_stride[i][0];
            g->batch_stride[i][0] = g->batch_stride[i][1], g->batch_stride[i][1] = stride;
        }
    }
    g->level = level->choose ? level->choose(g) : level;
    return g->level != NULL;
}

static void mpt__gemm_run_one(
    const mpt__gemm *g, mpt__pool *pool, char *workspace, mpt__gemm_watch *watch) {
    bool dots;
    if (g->k == 0) {
        float zeros[64] = {0};
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j += 64)
                mpt__gemm_finish(g, zeros, 0, i, j, 1, mpt__smaller_of(64, g->n - j));
    } else if (mpt__gemm_goes_direct(g, &dots)) {
        mpt__gemm_run_direct(g, dots, pool, (float *)(void *)workspace);
    } else {
        mpt__gemm_packed(g, pool, workspace, watch);
    }
}

/* Workspace of one product with so many threads, a multiple of 64 bytes. */
static int64_t mpt__gemm_bytes(const mpt__gemm *g, int threads) {
    bool dots;
    mpt__gemm_direct d;
    if (g->k == 0) return 0;
    if (mpt__gemm_goes_direct(g, &dots))
        return mpt__gemm_direct_plan(g, dots, threads, &d) * (int64_t)sizeof(float);
    mpt__gemm_layout lay = mpt__gemm_lay_out(g, threads);
    return lay.a + lay.b + mpt__round_up(lay.partial, 64);
}

/* Whether threads take products of a batch whole. */
static bool mpt__gemm_splits_batch(const mpt__gemm *g) {
    return g->batch_count > 1 &&
        g->m * g->n * g->k <= g->level->rate * (int64_t)MPT__GEMM_CHUNK_COST * 16;
}

typedef struct {
    const mpt__gemm *g;
    mpt__pool *pool;
    char *workspace;
    int64_t bytes; /* of workspace per thread */
    mpt__gemm_watch *watch;
} mpt__gemm_batch;

static void mpt__gemm_batch_chunk(MPT__CHUNK_TAKES) {
    const mpt__gemm_batch *batch = (const mpt__gemm_batch *)work;
    mpt__gemm g = *batch->g;
    for (int i = g.batch_rank - 1; i >= 0; i--) {
        int64_t at = chunk % g.batch_size[i];
        chunk /= g.batch_size[i];
        g.a.data += at * g.batch_stride[i][0] * mpt__dtype_info[g.a.dtype].bytes;
        g.b.data += at * g.batch_stride[i][1] * mpt__dtype_info[g.b.dtype].bytes;
        if (g.bias.data)
            g.bias.data += at * g.batch_stride[i][2] * mpt__dtype_info[g.bias.dtype].bytes;
        g.c += at * g.batch_stride[i][3] * mpt__dtype_info[g.c_dtype].bytes;
    }
    mpt__gemm_run_one(&g, batch->pool, batch->workspace + thread * batch->bytes, batch->watch);
}

static void mpt__gemm_run_batch(const mpt__gemm *g, mpt__pool *pool, mpt__gemm_batch *batch) {
    batch->g = g;
    if (g->batch_count == 1) {
        mpt__gemm_run_one(g, pool, batch->workspace, batch->watch);
    } else if (mpt__gemm_splits_batch(g)) {
        batch->pool = NULL;
        batch->bytes = mpt__gemm_bytes(g, 1);
        mpt__parallel(pool, g->batch_count,
            g->batch_count * (g->m * g->n / g->level->rate * g->k + 1), mpt__gemm_batch_chunk,
            batch);
    } else {
        batch->pool = pool;
        batch->bytes = 0;
        for (int64_t i = 0; i < g->batch_count; i++) mpt__gemm_batch_chunk(batch, i, 0);
    }
}

/* Plain fp32 products of a few rows, columns or steps, for which the roads above would ask more
   than they compute; the same sums. False: this is none. data NULL: only says so. */
static bool mpt__gemm_tiny(
    const mpt__gemm_level *level, const mpt__launch *launch, void *const *data) {
    enum { MOST = 64 };
    const mpt__operand *a = launch->operand, *b = a + 1, *c = a + 3;
    const int64_t m = c->shape[0], n = c->shape[1], k = a->shape[1];
    const bool dots = a->stride[1] == 1 && b->stride[0] == 1 && b->stride[1] != 1;
    if (!level->direct || c->rank != 2 || a[2].storage != 0 || launch->activation != 0 ||
        launch->imm[0] != 1.0 || launch->index[0] != 0 || launch->compute_dtype != MPT_F32 ||
        a->dtype != MPT_F32 || b->dtype != MPT_F32 || c->dtype != MPT_F32 || m > MOST || n > MOST ||
        k > MOST || k == 0 || c->access == MPT__ACCUMULATE || c->stride[1] != 1 ||
        !(dots || b->stride[1] == 1) || !(m <= 16 || n <= 16 || (k <= 32 && !dots)))
        return false;
    if (!data) return true;
    const mpt__gemm_side as = {(const char *)data[0], MPT_F32, 0, a->stride[0], a->stride[1]};
    const mpt__gemm_side bs = {(const char *)data[1], MPT_F32, 0, b->stride[1], b->stride[0]};
    mpt__gemm_direct_sums(level, dots, k, &as, m, &bs, n, (float *)data[3], c->stride[0]);
    return true;
}

static void mpt__gemm_run(const mpt__cpu_call *call) {
    const mpt__gemm_level *level = call->kernel->level;
    mpt__gemm g;
    mpt__gemm_watch watch = {0, false};
    mpt__gemm_batch batch;
    char nothing[1] = {0}; /* where products need none: offsets of 0 count from somewhere */
    const bool flushes = !mpt__gemm_chains(level);
    mpt__kernel_flushes(flushes);
    if (mpt__gemm_tiny(level, call->launch, call->data)) {
        mpt__kernel_flushed(flushes);
        return;
    }
    if (!mpt__gemm_read(&g, level, call->launch, call->data)) {
        mpt__kernel_flushed(flushes);
        mpt__cpu_fall_back(call);
        return;
    }
    batch.workspace = call->workspace ? (char *)call->workspace : nothing;
    batch.watch = &watch;
    /* A launch that adds to C cannot be begun again by another level. */
    watch.dry = g.level->refuses && g.accumulate;
    mpt__gemm_run_batch(&g, call->pool, &batch);
    if (watch.dry && !watch.refused) {
        watch.dry = false;
        mpt__gemm_run_batch(&g, call->pool, &batch);
    }
    mpt__kernel_flushed(flushes);
    if (watch.refused) mpt__cpu_fall_back(call);
}

static int64_t mpt__gemm_workspace(
    const mpt__gemm_level *level, const mpt__launch *launch, int threads) {
    mpt__gemm g;
    if (mpt__gemm_tiny(level, launch, NULL)) return 0;
    if (!mpt__gemm_read(&g, level, launch, NULL)) return ~0;
    if (g.batch_count == 0) return 0;
    int64_t bytes = mpt__gemm_splits_batch(&g) ? threads * mpt__gemm_bytes(&g, 1)
                                               : mpt__gemm_bytes(&g, threads);
    return g.level->refuses ? ~bytes : bytes;
}

/* The kernel of this row is that of a level. */
static void mpt__cpu_add_products(mpt__cpu *cpu, const mpt__gemm_level *level, mpt__kernel id,
    mpt__cpu_run run, int64_t workspace(const mpt__gemm_level *, const mpt__launch *, int)) {
    mpt__cpu_kernel *row = mpt__cpu_add(cpu, id, run);
    row->level = level;
    row->level_workspace = workspace;
    row->scratch = true;
}

#endif
#endif
