/* ----
 * cpu/conv_rows.c: convolutions as products of matrices, and the kernels of all levels.
 * ---- */
#ifndef MPT__CPU_CONV_ROWS_INCLUDED
#define MPT__CPU_CONV_ROWS_INCLUDED

#include "cpu/planes.c"

#ifdef MPTRAIN_NO_CONV
#ifdef MPT__HAS_GEMM
static void mpt__cpu_add_convs(mpt__cpu *cpu, const mpt__gemm_level *level) {
    (void)cpu, (void)level;
}
#endif
#else

/* ==== Levels with matrix products ==== */

#ifdef MPT__HAS_GEMM

/* False where the level cannot take it. */
static bool mpt__conv_gemm(
    mpt__gemm *g, const mpt__gemm_level *level, const mpt__conv *conv, const mpt__conv_product *p) {
    const mpt__operand *out = mpt__conv_output(conv->launch);
    const unsigned good = 1u << MPT_F32 | 1u << MPT_F16 | 1u << MPT_BF16;
    unsigned dtypes = 1u << p->a.dtype | 1u << p->b.dtype | 1u << out->dtype;
    if (p->bias.data) dtypes |= 1u << p->bias.dtype;
    if ((dtypes & ~good) != 0) return false;
    memset(g, 0, sizeof *g);
    g->m = p->m, g->n = p->n, g->k = p->k;
    g->a = p->a, g->b = p->b, g->bias = p->bias;
    g->a_image = p->a_image, g->b_image = p->b_image, g->c_image = p->c_image;
    g->c = p->c, g->c_row = p->c_row, g->c_column = 1;
    g->c_dtype = out->dtype;
    g->accumulate = out->access == MPT__ACCUMULATE || p->more;
    g->activation = conv->launch->activation;
    if (p->more) g->onto = (int64_t)((intptr_t)p->more - (intptr_t)p->c);
    g->alpha = 1.0f;
    g->batch_count = 1;
    g->level = level->choose && g->k > 0 ? level->choose(g) : level;
    return g->level != NULL;
}

/* ==== Products line by line ====
 *
 * Where a tile of pixels and the taps of one line of the image are a matrix with overlapping rows,
 * nothing but weights is packed. */

#define MPT__CONV_DEPTH 640           /* elements at a time: their weights come from L2; measured */
#define MPT__CONV_SLICE_FLOATS 163840 /* the most sums of a slice; measured */
#define MPT__CONV_NEAR 4096           /* floats that stay in the nearest cache */
#define MPT__CONV_IMAGES 32           /* of which a pixel is computed at a time */
#define MPT__CONV_SMALL 64            /* pixels of an image that is; measured */
#define MPT__CONV_COPIED (1 << 22)    /* the most elements of small images */
#define MPT__CONV_TAPS 16             /* that go together then */

/* Words are what products are made of: floats, or pairs of bf16. */
typedef struct {
    const mpt__gemm *g;
    mpt__conv_lines lines;
    bool in_c, weights;
    int64_t run, taps;          /* elements of a line's taps; of them, so many are taken at once */
    int64_t depth;              /* weights: elements of a line of dy */
    int64_t panel, shared, own; /* floats: of a panel of weights, of all of them, of a thread */
    int64_t apart;              /* of those, behind all else: lines of sums, or of dy */
    int64_t biases; /* where, behind those, a line of sums that begins with them lies; 0: none */
    int64_t images; /* not line by line, but pixel by pixel of so many images, in whole tiles */
    int64_t pixels; /* where x lies then, [size[0], size[1], images, run]; weights: in panels of run
                       floats each, `panel` for a pixel, and behind them, at `depth`, those of dy */
    float *memory;
} mpt__conv_rows;

/* Where images are small, products are of a pixel of all images and one tap: none is of padding.
   False where that does not pay (measured). */
static bool mpt__conv_across(mpt__conv_rows *r) {
    const mpt__gemm *g = r->g;
    const mpt__gemm_level *level = g->level;
    const mpt__gemm_image *x = r->lines.x;
    const int64_t size = x->size[0] * x->size[1], grid = x->grid[0] * x->grid[1];
    const int64_t images = grid > 0 ? (r->weights ? g->k : g->m) / grid : 0;
    r->images = r->weights ? images : mpt__round_up(images, level->line_rows);
    if (size * (x->channels + (r->weights ? g->m : 0)) > MPT__CONV_COPIED / (images + 1))
        return false;
    if (images * 4 < r->images * 3 || images < level->line_rows / 2 ||
        x->taps[0] * x->taps[1] < 2 || size > MPT__CONV_SMALL)
        return false;
    if (r->weights) {
        r->run = mpt__gemm_panel_bytes(level, images, level->columns) / (int64_t)sizeof(float);
        r->panel = r->run * mpt__gemm_panels(x->channels, level->columns);
        r->pixels = 0;
        r->depth = size * r->panel;
        r->shared = r->depth + grid * r->run * mpt__gemm_panels(g->m, level->columns);
        r->own = level->columns * level->columns;
        return true;
    }
    if (x->channels % level->unit != 0) return false;
    r->run = x->channels / level->unit;
    r->pixels = r->shared;
    r->shared += size * r->images * r->run;
    r->own = MPT__CONV_IMAGES * level->columns;
    return true;
}

/* False where the other road is the faster one; measured. */
static bool mpt__conv_rows_of(mpt__conv_rows *r, const mpt__gemm *g, const mpt__conv *c) {
    const mpt__gemm_level *level = g->level;
    const int64_t tile = level->line_rows, unit = level->unit;
    const mpt__gemm_image *x = g->a_image ? g->a_image : g->b_image;
    r->g = g;
    r->weights = g->a_image == NULL;
    r->images = r->biases = 0;
    if (!x || !level->lines || c->groups != 1 || g->k == 0) return false;
    const int64_t pixels = x->grid[1], whole = mpt__round_up(pixels, tile);
    mpt__conv_lines *l = &r->lines;
    mpt__conv_lines_of(
        l, x, r->weights ? &g->b : &g->a, c, pixels * g->n / level->rate * g->k, unit);
    r->panel = mpt__gemm_panel_bytes(level, g->k, level->columns) / (int64_t)sizeof(float);
    r->shared = r->panel * mpt__gemm_panels(g->n, level->columns);
    if (mpt__conv_across(r)) return true;
    r->images = 0;
    if (x->taps[1] > 1 && x->apart[1] != 1) return false;
    if ((r->weights ? pixels : x->channels) % unit != 0) return false;
    if (r->weights ? g->m * g->n > MPT__CONV_SLICE_FLOATS || pixels < 4 * unit
                   : pixels * 4 < whole * 3)
        return false;
    if (r->weights || pixels < whole) l->in_place = false; /* tiles are read whole */
    r->run = x->taps[1] * x->channels / (r->weights ? 1 : unit);
    r->depth = pixels / unit;
    r->taps = !r->weights && unit > 1 && x->taps[1] == 3 && x->stride[1] == 1 &&
            g->n <= level->columns / 2 && r->run <= MPT__CONV_DEPTH
        ? 3
        : 1;
    r->in_c = g->c_dtype == MPT_F32 && (mpt__gemm_is_plain(g) || !g->accumulate || g->onto != 0);
    int64_t room = r->weights ? level->columns : (whole - pixels) * x->stride[1] * x->channels;
    if (r->weights) r->shared = g->m * g->n * l->chunks;
    if (g->bias.data && !g->c_image && g->c_row == g->n) {
        r->biases = r->shared;
        r->shared += pixels * g->n;
    }
    r->apart = r->in_c ? 0 : pixels * g->n;
    if (r->weights) r->apart = r->depth * mpt__round_up(g->m, level->columns) + MPT__CONV_PAST;
    r->apart *= l->block;
    r->own = l->in_place ? 0 : (l->ring * l->line + l->wide * 2) / (int64_t)sizeof(float) + room;
    r->own = mpt__round_up(r->own + r->apart, 16);
    r->shared = mpt__round_up(r->shared, 16);
    return true;
}

/* c[rows, columns] = or += A B; fetch: what is added to is far away. */
static void mpt__conv_tiles(const mpt__gemm_level *level, int64_t depth, mpt__gemm_side *a,
    const mpt__gemm_side *b, int sides, float *c, int64_t ldc, int64_t rows, int64_t columns,
    int how, bool fetch) {
    how += (sides - 1) * MPT__GEMM_MORE;
    for (int64_t i = 0; i < rows; i += level->line_rows, c += level->line_rows * ldc) {
        const float *row = c;
        for (int r = 0; fetch && r < level->line_rows; r++, row += ldc)
            MPT__PREFETCH(row), MPT__PREFETCH(row + 16);
        level->lines(depth, a, b, c, ldc, (int)mpt__smaller_of(level->line_rows, rows - i),
            (int)columns, how);
        for (int s = 0; s < sides; s++)
            a[s].data += level->line_rows * a->outer * (int64_t)sizeof(float);
    }
}

/* Where the sums of a line are, and whether they are added to. */
typedef struct {
    float *sums;
    char *c;
    int how;
} mpt__conv_row;

/* Sums of a block of lines for some columns, by taps of as many lines as go together, or part of
   one. */
static void mpt__conv_row_products(const mpt__conv_rows *r, int64_t line, int64_t count, int64_t j,
    char *ring, int64_t *loaded, mpt__conv_row *row, int64_t ldc) {
    const mpt__gemm_level *level = r->g->level;
    const mpt__gemm_image *x = r->lines.x;
    const int64_t columns = level->columns, pixel = x->stride[1] * x->channels / level->unit;
    const float *panel = r->memory + j / columns * r->panel;
    int64_t y0, together = mpt__smaller_of(MPT__CONV_DEPTH / r->run, MPT__CONV_MORE);
    const int64_t n = mpt__conv_begin_line(&r->lines, line, &y0, loaded);
    if (together < 1) together = 1;
    const int64_t next = r->taps > 1 ? r->run / r->taps * columns : 1;
    for (int64_t ty0 = 0; ty0 < x->taps[0]; ty0 += together)
        for (int64_t k = 0; k < r->run; k += MPT__CONV_DEPTH)
            for (int64_t i = 0; i < count; i++) {
                mpt__gemm_side a[MPT__CONV_MORE], b[MPT__CONV_MORE];
                int sides = 0;
                for (int64_t t = ty0; t < x->taps[0] && t < ty0 + together; t++) {
                    const int64_t y = y0 + i * x->stride[0] + t * x->apart[0];
                    if (y < 0 || y >= x->size[0]) continue;
                    const char *taps = mpt__conv_line(&r->lines, ring, n, y, loaded);
                    const mpt__gemm_side of_x = {taps + 4 * k, MPT_F32, 0, pixel, 1};
                    const mpt__gemm_side of_w = {(const char *)(panel + (t * r->run + k) * columns),
                        MPT_F32, 0, next, columns};
                    a[sides] = of_x, b[sides++] = of_w;
                }
                if (sides == 0) continue;
                mpt__conv_tiles(level, mpt__smaller_of(MPT__CONV_DEPTH, r->run - k) / r->taps, a, b,
                    sides, row[i].sums + j, ldc, x->grid[1], mpt__smaller_of(columns, r->g->n - j),
                    row[i].how, false);
                row[i].how = MPT__GEMM_ADD;
            }
}

/* What follows the sums of a line; how == 0: it had no taps. */
static void mpt__conv_row_end(
    const mpt__conv_rows *r, mpt__gemm *g, const mpt__conv_row *row, int64_t ldc) {
    const int64_t pixels = r->lines.x->grid[1];
    for (int64_t i = 0; row->how == 0 && i < pixels; i++)
        memset(row->sums + i * ldc, 0, (size_t)g->n * sizeof *row->sums);
    g->c = row->c;
    if (!r->in_c || !mpt__gemm_is_plain(g)) g->level->finish(g, row->sums, ldc, 0, 0, pixels, g->n);
}

static void mpt__conv_row_block(
    const mpt__conv_rows *r, int64_t line, int64_t count, char *ring, int64_t *loaded) {
    const mpt__gemm_image *x = r->lines.x;
    mpt__gemm g = *r->g;
    mpt__conv_row row[MPT__CONV_MORE];
    float *sums = (float *)(void *)ring + r->own - r->apart;
    const bool onto_c = r->in_c && g.accumulate && g.onto == 0;
    const int how = onto_c || r->biases > 0 ? MPT__GEMM_ADD : 0;
    if (r->biases > 0) g.bias.data = NULL;
    if (g.c_image) g.c_row = g.c_image->stride[1] * g.c_image->step[1];
    const int64_t ldc = r->in_c ? g.c_row : g.n;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2], pixel = (line + i) * x->grid[1] * g.c_row;
        if (g.c_image) pixel = mpt__gemm_pixel(g.c_image, (line + i) * x->grid[1], at);
        row[i].c = g.c + pixel * mpt__dtype_info[g.c_dtype].bytes;
        row[i].sums = r->in_c ? (float *)(void *)row[i].c : sums + i * x->grid[1] * g.n;
        row[i].how = how;
        if (r->biases > 0)
            memcpy(row[i].sums, r->memory + r->biases, (size_t)(x->grid[1] * g.n) * sizeof *sums);
    }
    for (int64_t j = 0; j < g.n; j += g.level->columns) {
        for (int64_t i = 0; i < count; i++) row[i].how = how;
        mpt__conv_row_products(r, line, count, j, ring, loaded, row, ldc);
    }
    for (int64_t i = 0; i < count; i++) mpt__conv_row_end(r, &g, &row[i], ldc);
}

/* A line of dy as elements, pairs in panels, for which `apart` has room. */
static const char *mpt__conv_row_dy(const mpt__conv_rows *r, int64_t line, float *apart) {
    const mpt__gemm *g = r->g;
    const int64_t m = g->m, pixels = r->lines.x->grid[1], width = g->level->columns;
    mpt__gemm_side dy = g->a;
    dy.data += line * pixels * m * mpt__dtype_info[dy.dtype].bytes;
    if (g->level->unit > 1) {
        for (int64_t i = 0; i < m; i += width)
            g->level->pack(
                apart + i * r->depth, true, &dy, i, mpt__smaller_of(width, m - i), 0, pixels);
    } else if (dy.dtype != MPT_F32 || dy.round != 0 || m % g->level->line_rows != 0) {
        mpt__conv_floats(r->lines.routines, &dy, 0, apart, pixels * m);
    } else {
        return dy.data;
    }
    return (const char *)apart;
}

/* What a block of lines of dy gives the gradients of all taps. */
static void mpt__conv_row_weights(const mpt__conv_rows *r, int64_t line, int64_t count, char *ring,
    int64_t *loaded, float *sums) {
    const mpt__conv_lines *l = &r->lines;
    const mpt__gemm_image *x = l->x;
    const mpt__gemm *g = r->g;
    const mpt__gemm_level *level = g->level;
    const int64_t pixel = x->stride[1] * x->channels * level->unit;
    const int64_t wide = level->unit > 1 ? level->columns : g->m; /* of the panels of dy */
    float *apart = (float *)(void *)ring + r->own - r->apart;
    const char *dy[MPT__CONV_MORE];
    int64_t y0;
    const int64_t n = mpt__conv_begin_line(l, line, &y0, loaded);
    for (int64_t i = 0; i < count; i++)
        dy[i] = mpt__conv_row_dy(r, line + i, apart + i * (r->apart / l->block));
    for (int64_t ty = 0; ty < x->taps[0]; ty++) {
        mpt__gemm_side a[MPT__CONV_MORE], b[MPT__CONV_MORE], from[MPT__CONV_MORE];
        int sides = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t y = y0 + i * x->stride[0] + ty * x->apart[0];
            if (y < 0 || y >= x->size[0]) continue;
            const mpt__gemm_side of_dy = {dy[i], MPT_F32, 0, 1, wide};
            const mpt__gemm_side of_x = {
                mpt__conv_line(l, ring, n, y, loaded), MPT_F32, 0, 1, pixel};
            from[sides] = of_dy, b[sides++] = of_x;
        }
        for (int64_t j = 0; sides > 0 && j < r->run; j += level->columns) {
            for (int64_t m = 0; m < g->m; m += wide) {
                for (int i = 0; i < sides; i++) {
                    a[i] = from[i];
                    a[i].data += m * r->depth * (int64_t)sizeof(float);
                }
                mpt__conv_tiles(level, r->depth, a, b, sides, sums + m * g->n + ty * r->run + j,
                    g->n, mpt__smaller_of(wide, g->m - m),
                    mpt__smaller_of(level->columns, r->run - j), MPT__GEMM_ADD,
                    g->m * g->n > MPT__CONV_NEAR);
            }
            for (int i = 0; i < sides; i++) b[i].data += level->columns * (int64_t)sizeof(float);
        }
    }
}

static void mpt__conv_row_chunk(MPT__CHUNK_TAKES) {
    const mpt__conv_rows *r = (const mpt__conv_rows *)work;
    const mpt__conv_lines *l = &r->lines;
    const int64_t end = mpt__smaller_of((chunk + 1) * l->chunk, l->lines);
    const int64_t numel = r->g->m * r->g->n, high = l->x->grid[0];
    float *sums = r->memory + chunk * numel;
    char *ring = (char *)(r->memory + r->shared + thread * r->own);
    int64_t loaded = 0, count;
    if (r->weights) memset(sums, 0, (size_t)numel * sizeof *sums);
    for (int64_t line = chunk * l->chunk; line < end; line += count) {
        count = mpt__smaller_of(mpt__smaller_of(l->block, end - line), high - line % high);
        if (r->weights)
            mpt__conv_row_weights(r, line, count, ring, &loaded, sums);
        else
            mpt__conv_row_block(r, line, count, ring, &loaded);
    }
}

/* A panel of weights, or some rows of the sum of all slices. */
static void mpt__conv_panel_chunk(void *work, int64_t panel, int thread) {
    MPT__TASK(mpt__conv_rows, r);
    const mpt__gemm *g = r->g;
    const int64_t width = g->level->columns, j = panel * width;
    const int64_t count = mpt__smaller_of(width, (r->weights ? g->m : g->n) - j);
    if (r->weights) {
        float *sum = r->memory + j * g->n;
        for (int64_t s = 1; s < r->lines.chunks; s++)
            r->lines.routines->binary[MPT__BINARY_ADD](
                sum, sum, sum + s * g->m * g->n, count * g->n, 0, 0);
        g->level->finish(g, sum, g->n, j, 0, count, g->n);
    } else if (g->b_image) {
        mpt__gemm_pack_image(g->level, (char *)(r->memory + panel * r->panel), true, &g->b,
            g->b_image, j, count, 0, g->k);
    } else {
        g->level->pack(r->memory + panel * r->panel, true, &g->b, j, count, 0, g->k);
    }
}

/* A pixel of all images, whose elements go side by side. */
static void mpt__conv_pixel_chunk(void *work, int64_t pixel, int thread) {
    MPT__TASK(mpt__conv_rows, r);
    const mpt__gemm_image *x = r->lines.x;
    const int64_t n = r->g->m / (x->grid[0] * x->grid[1]);
    const int64_t from = pixel / x->size[1] * x->step[0] + pixel % x->size[1] * x->step[1];
    float *to = r->memory + r->pixels + pixel * r->images * r->run;
    for (int64_t i = 0; i < n; i++)
        mpt__conv_elements(&r->lines, i * x->image + from, (char *)(to + i * r->run), x->channels);
    memset(to + n * r->run, 0, (size_t)((r->images - n) * r->run) * sizeof *to);
}

/* Whether tap t of the output pixel at `at` lies on a pixel of x, and on which. */
static bool mpt__conv_meets(
    const mpt__gemm_image *x, const int64_t at[2], int64_t t, int64_t *pixel) {
    const int64_t ty = at[0] + t / x->taps[1] * x->apart[0];
    const int64_t tx = at[1] + t % x->taps[1] * x->apart[1];
    *pixel = ty * x->size[1] + tx;
    return ty >= 0 && ty < x->size[0] && tx >= 0 && tx < x->size[1];
}

/* The sum of many products of one size, some at a time: sums are rows of a panel. */
typedef struct {
    const mpt__gemm_level *level;
    float *sums;
    int64_t depth, rows, count;
    int sides, how;
    mpt__gemm_side a[MPT__CONV_TAPS], b[MPT__CONV_TAPS];
} mpt__conv_bf16x2;

static mpt__conv_bf16x2 mpt__conv_bf16x2_of(
    const mpt__gemm_level *level, int64_t depth, float *sums, int64_t rows, int64_t count) {
    mpt__conv_bf16x2 pairs;
    pairs.level = level, pairs.depth = depth;
    pairs.sums = sums, pairs.rows = rows, pairs.count = count;
    pairs.sides = pairs.how = 0;
    return pairs;
}

static void mpt__conv_bf16x2_run(mpt__conv_bf16x2 *p) {
    if (p->sides == 0) return;
    mpt__conv_tiles(p->level, p->depth, p->a, p->b, p->sides, p->sums, p->level->columns, p->rows,
        p->count, p->how, false);
    p->how = MPT__GEMM_ADD, p->sides = 0;
}

/* One more: rows of a, `outer` and `inner` apart, and a panel. */
static void mpt__conv_pair(
    mpt__conv_bf16x2 *p, const float *a, int64_t outer, int64_t inner, const float *panel) {
    const mpt__gemm_side of_a = {(const char *)a, MPT_F32, 0, outer, inner};
    const mpt__gemm_side of_b = {(const char *)panel, MPT_F32, 0, 1, p->level->columns};
    p->a[p->sides] = of_a, p->b[p->sides] = of_b;
    if (++p->sides == MPT__CONV_TAPS) mpt__conv_bf16x2_run(p);
}

/* What is left; zeros where there was no product. */
static void mpt__conv_bf16x2_end(mpt__conv_bf16x2 *p) {
    mpt__conv_bf16x2_run(p);
    if (p->how == 0) memset(p->sums, 0, (size_t)(p->rows * p->level->columns) * sizeof *p->sums);
}

/* Sums of pixel p of some images for the columns of a panel. */
static void mpt__conv_pixel_products(const mpt__conv_rows *r, const float *panel, int64_t p,
    int64_t image, int64_t images, int64_t count, float *sums) {
    const mpt__gemm_image *x = r->lines.x;
    const mpt__gemm_level *level = r->g->level;
    mpt__conv_bf16x2 pairs = mpt__conv_bf16x2_of(level, r->run, sums, images, count);
    int64_t at[2], pixel;
    mpt__gemm_pixel(x, p, at);
    for (int64_t t = 0; t < x->taps[0] * x->taps[1]; t++) {
        if (!mpt__conv_meets(x, at, t, &pixel)) continue;
        const float *from = r->memory + r->pixels + (pixel * r->images + image) * r->run;
        mpt__conv_pair(&pairs, from, r->run, 1, panel + t * r->run * level->columns);
    }
    mpt__conv_bf16x2_end(&pairs);
}

/* Some columns of all pixels of some images. */
static void mpt__conv_across_chunk(MPT__CHUNK_TAKES) {
    const mpt__conv_rows *r = (const mpt__conv_rows *)work;
    const mpt__gemm_image *x = r->lines.x;
    mpt__gemm g = *r->g;
    const int64_t pixels = x->grid[0] * x->grid[1], images = g.m / pixels;
    const int64_t blocks = mpt__gemm_panels(images, MPT__CONV_IMAGES);
    const int64_t image = chunk % blocks * MPT__CONV_IMAGES, columns = g.level->columns;
    const int64_t n = mpt__smaller_of(MPT__CONV_IMAGES, images - image);
    const int64_t j = chunk / blocks * columns, count = mpt__smaller_of(columns, g.n - j);
    float *sums = r->memory + r->shared + thread * r->own;
    g.c_row = g.c_image ? g.c_image->image : pixels * r->g->c_row;
    for (int64_t p = 0; p < pixels; p++) {
        int64_t at[2], to = p * r->g->c_row;
        if (g.c_image) to = mpt__gemm_pixel(g.c_image, p, at);
        mpt__conv_pixel_products(r, r->memory + j / columns * r->panel, p, image, n, count, sums);
        g.c = r->g->c + (to + image * g.c_row) * mpt__dtype_info[g.c_dtype].bytes;
        g.level->finish(&g, sums, columns, 0, j, n, count);
    }
}

/* Panels of a pixel of x, or (those behind) of dy. */
static void mpt__conv_pixel_panels(void *work, int64_t pixel, int thread) {
    MPT__TASK(mpt__conv_rows, r);
    const mpt__gemm *g = r->g;
    const mpt__gemm_image *x = r->lines.x;
    const int64_t size = x->size[0] * x->size[1], grid = x->grid[0] * x->grid[1];
    const int64_t width = g->level->columns, p = pixel - size;
    mpt__gemm_side side = p < 0 ? g->b : g->a;
    const int64_t channels = p < 0 ? x->channels : g->m;
    float *to = r->memory +
        (p < 0 ? pixel * r->panel : r->depth + p * r->run * mpt__gemm_panels(g->m, width));
    side.data += (p < 0 ? pixel / x->size[1] * x->step[0] + pixel % x->size[1] * x->step[1]
                        : p * side.inner) *
        mpt__dtype_info[side.dtype].bytes;
    side.inner = p < 0 ? x->image : grid * side.inner;
    for (int64_t j = 0; j < channels; j += width, to += r->run)
        g->level->pack(to, true, &side, j, mpt__smaller_of(width, channels - j), 0, r->images);
}

/* The gradient of a tap for some channels of x. */
static void mpt__conv_tap_chunk(MPT__CHUNK_TAKES) {
    const mpt__conv_rows *r = (const mpt__conv_rows *)work;
    const mpt__gemm_image *x = r->lines.x;
    const mpt__gemm *g = r->g;
    const int64_t width = g->level->columns, panels = mpt__gemm_panels(x->channels, width);
    const int64_t j = chunk % panels * width, t = chunk / panels, grid = x->grid[0] * x->grid[1];
    const int64_t count = mpt__smaller_of(width, x->channels - j);
    const int64_t depth = (r->images + g->level->unit - 1) / g->level->unit;
    float *sums = r->memory + r->shared + thread * r->own;
    for (int64_t i = 0; i < g->m; i += width) {
        const int64_t rows = mpt__smaller_of(width, g->m - i);
        const float *dy = r->memory + r->depth + i / width * r->run;
        mpt__conv_bf16x2 pairs = mpt__conv_bf16x2_of(g->level, depth, sums, rows, count);
        int64_t at[2], pixel;
        for (int64_t p = 0; p < grid; p++) {
            mpt__gemm_pixel(x, p, at);
            if (!mpt__conv_meets(x, at, t, &pixel)) continue;
            mpt__conv_pair(&pairs, dy + p * mpt__gemm_panels(g->m, width) * r->run, 1, width,
                r->memory + pixel * r->panel + j / width * r->run);
        }
        mpt__conv_bf16x2_end(&pairs);
        g->level->finish(g, sums, width, i, t * x->channels + j, rows, count);
    }
}

static void mpt__conv_run_rows(mpt__conv_rows *r, mpt__pool *pool) {
    const mpt__gemm *g = r->g;
    const int64_t panels = mpt__gemm_panels(r->weights ? g->m : g->n, g->level->columns);
    float *biases = r->memory + r->biases;
    if (r->biases > 0) mpt__conv_floats(r->lines.routines, &g->bias, 0, biases, g->n);
    for (int64_t i = 1; r->biases > 0 && i < r->lines.x->grid[1]; i++)
        memcpy(biases + i * g->n, biases, (size_t)g->n * sizeof *biases);
    const int64_t cost = g->m * g->n / g->level->rate * g->k;
    if (!r->weights) mpt__gemm_for(pool, panels, g->k * g->n / 4, mpt__conv_panel_chunk, r);
    if (r->images > 0) {
        const mpt__gemm_image *x = r->lines.x;
        const int64_t size = x->size[0] * x->size[1], grid = x->grid[0] * x->grid[1];
        const int64_t channels = x->channels, taps = x->taps[0] * x->taps[1];
        if (r->weights) {
            mpt__gemm_for(pool, size + grid, (g->m + channels) * g->k, mpt__conv_pixel_panels, r);
            mpt__gemm_for(pool, taps * mpt__gemm_panels(channels, g->level->columns), cost,
                mpt__conv_tap_chunk, r);
            return;
        }
        mpt__gemm_for(pool, size, g->m * channels, mpt__conv_pixel_chunk, r);
        mpt__gemm_for(pool, panels * mpt__gemm_panels(g->m / grid, MPT__CONV_IMAGES), cost,
            mpt__conv_across_chunk, r);
        return;
    }
    mpt__gemm_for(pool, r->lines.chunks, cost, mpt__conv_row_chunk, r);
    if (r->weights) mpt__gemm_for(pool, panels, g->m * g->n, mpt__conv_panel_chunk, r);
}

typedef struct {
    const mpt__gemm_level *level;
    mpt__conv conv;
    void *const *data;
    mpt__pool *pool;
    char *workspace;
    const mpt__routines *routines;
    int64_t products, bytes;    /* of workspace, for each thread where they take products whole */
    bool whole, refuses, blank; /* blank: some pixels of C get zeros, and nothing else */
    mpt__gemm_watch watch;
} mpt__conv_work;

static bool mpt__conv_has_no_taps(const mpt__gemm *g) {
    return g->k == 0 && g->c_image && mpt__gemm_is_plain(g);
}

/* False where the launch is not for this level. */
static bool mpt__conv_plan(
    mpt__conv_work *w, const mpt__gemm_level *level, const mpt__launch *launch, int threads) {
    mpt__conv_product p;
    mpt__gemm g;
    mpt__conv_read(&w->conv, launch);
    const int64_t phases = w->conv.phases[0] * w->conv.phases[1];
    w->level = level;
    w->products = phases * w->conv.groups;
    /* With few products, which differ, threads would wait for the last one. */
    const int64_t whole = MPT__GEMM_CHUNK_COST * (w->products < 16 ? 1 : 16);
    w->bytes = 0;
    w->refuses = w->blank = false;
    if (mpt__conv_is_depthwise(&w->conv)) return false;
    for (int64_t i = 0; i < phases; i++) {
        mpt__conv_product_of(&w->conv, NULL, i, &p);
        if (!mpt__conv_gemm(&g, level, &w->conv, &p)) return false;
        if (i == 0) w->whole = w->products > 1 && g.m * g.n * g.k <= g.level->rate * whole;
        w->refuses |= g.level->refuses;
        w->blank |= mpt__conv_has_no_taps(&g) && !g.accumulate;
        mpt__conv_rows r;
        int64_t bytes = 0;
        if (g.m * g.n > 0)
            bytes = mpt__conv_rows_of(&r, &g, &w->conv)
                ? (r.shared + (w->whole ? 1 : threads) * r.own) * (int64_t)sizeof(float)
                : mpt__gemm_bytes(&g, w->whole ? 1 : threads);
        if (bytes > w->bytes) w->bytes = bytes;
    }
    return true;
}

/* Zeros for an image of which strided taps meet only some pixels. */
static void mpt__conv_blank_chunk(void *work, int64_t image, int thread) {
    MPT__TASK(mpt__conv_work, w);
    const size_t bytes = (size_t)(w->conv.x[0] * w->conv.x[1] * w->conv.x[2] *
        mpt__dtype_info[mpt__conv_output(w->conv.launch)->dtype].bytes);
    memset((char *)w->data[0] + (size_t)image * bytes, 0, bytes);
}

static void mpt__conv_chunk(MPT__CHUNK_TAKES) {
    mpt__conv_work *w = (mpt__conv_work *)work;
    mpt__conv_product p;
    mpt__gemm g;
    mpt__conv_product_of(&w->conv, w->data, chunk, &p);
    mpt__conv_rows r;
    char *workspace = w->workspace + thread * w->bytes;
    if (p.m == 0 || p.n == 0 || !mpt__conv_gemm(&g, w->level, &w->conv, &p)) return;
    if (w->watch.dry && !g.level->refuses) return;
    if (mpt__conv_has_no_taps(&g)) return;
    if (mpt__conv_rows_of(&r, &g, &w->conv)) {
        r.lines.routines = w->routines;
        r.memory = (float *)(void *)workspace;
        mpt__conv_run_rows(&r, w->whole ? NULL : w->pool);
    } else {
        mpt__gemm_run_one(&g, w->whole ? NULL : w->pool, workspace, &w->watch);
    }
}

static void mpt__conv_products(mpt__conv_work *w) {
    const mpt__conv *c = &w->conv;
    int64_t macs = c->n * c->y[0] * c->y[1] * c->y[2] * c->in * c->kernel[0] * c->kernel[1];
    if (w->blank)
        mpt__parallel(
            w->pool, c->n, c->n * c->x[0] * c->x[1] * c->x[2] / 8, mpt__conv_blank_chunk, w);
    if (w->whole) {
        mpt__parallel(
            w->pool, w->products, macs / w->level->rate + w->products, mpt__conv_chunk, w);
    } else {
        for (int64_t i = 0; i < w->products; i++) mpt__conv_chunk(w, i, 0);
    }
}

static void mpt__conv_run(const mpt__cpu_call *call) {
    const mpt__gemm_level *level = call->kernel->level;
    char nothing[1] = {0}; /* where products need none: offsets of 0 count from somewhere */
    mpt__conv_work w;
    if (mpt__planes_takes(call->launch)) {
        mpt__kernel_flushes(true);
        mpt__planes_run(call);
        mpt__kernel_flushed(true);
        return;
    }
    memset(&w.watch, 0, sizeof w.watch);
    if (!mpt__conv_plan(&w, level, call->launch, mpt__pool_threads(call->pool))) {
        mpt__cpu_fall_back(call);
        return;
    }
    mpt__kernel_flushes(true);
    w.data = call->data;
    w.pool = call->pool;
    w.routines = call->routines;
    w.workspace = call->workspace ? (char *)call->workspace : nothing;
    /* A launch that adds to C cannot be begun again by another level. */
    w.watch.dry = w.refuses && mpt__conv_output(call->launch)->access == MPT__ACCUMULATE;
    mpt__conv_products(&w);
    if (w.watch.dry && !w.watch.refused) {
        w.watch.dry = false;
        mpt__conv_products(&w);
    }
    mpt__kernel_flushed(true);
    if (w.watch.refused) mpt__cpu_fall_back(call);
}

static int64_t mpt__conv_workspace(
    const mpt__gemm_level *level, const mpt__launch *launch, int threads) {
    mpt__conv_work w;
    if (mpt__planes_takes(launch)) return mpt__planes_workspace(launch, threads);
    if (!mpt__conv_plan(&w, level, launch, threads)) return ~0;
    int64_t bytes = w.whole ? w.bytes * threads : w.bytes;
    return w.refuses ? ~bytes : bytes;
}

/* The three kernels of a level. */
static void mpt__cpu_add_convs(mpt__cpu *cpu, const mpt__gemm_level *level) {
    for (int k = MPT__K_CONV; k <= MPT__K_CONV_BACKWARD_WEIGHT; k++)
        mpt__cpu_add_products(cpu, level, (mpt__kernel)k, mpt__conv_run, mpt__conv_workspace);
}
#endif

#endif
#endif
