/* ---------------------------------------------------------------------------------------------
 * 38_cpu_conv.c: convolutions on the CPU.
 *
 * All three kernels are matrix products, one for each group and, of a strided convolution's input
 * gradient, for each phase of the stride: the pixels whose taps meet the same elements of the
 * kernel. Images are never written down as matrices. Products go line by line where that pays, the
 * image read where it lies but for its padding; otherwise packing gathers what a panel needs
 * (mpt__gemm_image), and rows of C go to their pixels. Depthwise convolutions have loops of their
 * own. The order of every sum depends on the problem and the level alone.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_CONV_INCLUDED
#define MPT__38_CPU_CONV_INCLUDED

#include "37_gemm_run.c"

#ifdef MPTRAIN_NO_CONV
static void mpt__cpu_add_conv(mpt__cpu *cpu) { (void)cpu; }
#else

/* ==== What a launch asks for ==== */

typedef struct mpt__conv {
    const mpt__launch *launch;
    int64_t n, x[3], y[3]; /* images; lines, pixels and channels of the two sides */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t groups, in, out; /* channels of a group */
    int64_t phases[2];
} mpt__conv;

static void mpt__conv_read(mpt__conv *c, const mpt__launch *launch) {
    const mpt__operand *o = launch->operand;
    c->launch = launch;
    c->n = o[0].shape[0];
    for (int d = 0; d < 3; d++) c->x[d] = o[0].shape[d + 1], c->y[d] = o[2].shape[d + 1];
    for (int d = 0; d < 2; d++) {
        c->kernel[d] = o[1].shape[d + 1];
        c->stride[d] = MPT__TWO_AT(launch->index[1], d);
        c->padding[d] = MPT__TWO_AT(launch->index[2], d);
        c->dilation[d] = MPT__TWO_AT(launch->index[3], d);
        c->phases[d] = 1;
        if (launch->kernel == MPT__K_CONV_BACKWARD_INPUT)
            c->phases[d] = mpt__ref_min(c->stride[d], c->x[d]);
    }
    c->groups = launch->index[0];
    c->in = c->x[2] / c->groups;
    c->out = c->y[2] / c->groups;
}

static bool mpt__conv_is_depthwise(const mpt__conv *c) { return c->in == 1 && c->out == 1; }

/* C[m, n] = act(A[m, k] B[k, n] + bias + more). Not to be copied: the pointers are to its own
   images. */
typedef struct mpt__conv_product {
    int64_t m, n, k;
    mpt__gemm_side a, b, bias;
    char *c, *more; /* more: what is added, lying as C does; NULL: nothing */
    int64_t c_row;
    mpt__gemm_image image[3];
    const mpt__gemm_image *a_image, *b_image, *c_image; /* NULL: a matrix where it lies */
    int64_t kernel[2], kernel_step[2]; /* the kernel's element at tap 0; from tap to tap */
} mpt__conv_product;

/* The matrix of an image of that many channels, of which a group has `channels`. */
static void mpt__conv_image(mpt__gemm_image *g, const int64_t size[3], int64_t channels) {
    g->channels = channels;
    g->step[0] = size[1] * size[2], g->step[1] = size[2];
    g->image = size[0] * g->step[0];
    g->size[0] = size[0], g->size[1] = size[1];
}

/* Dimension d of a phase: the elements of the kernel whose taps fall on pixels, from the last one
   down, so that taps ascend. */
static void mpt__conv_phase(const mpt__conv *c, int d, int64_t phase, mpt__conv_product *p) {
    const int64_t stride = c->stride[d], dilation = c->dilation[d], to = phase + c->padding[d];
    int64_t first = 0, step = 1, count = 0;
    while (first < c->kernel[d] && (to - first * dilation) % stride != 0) first++;
    while (step * dilation % stride != 0) step++;
    if (first < c->kernel[d]) count = (c->kernel[d] - 1 - first) / step + 1;
    const int64_t last = first + (count - 1) * step, size = c->x[d];
    mpt__gemm_image *a = &p->image[0], *to_image = &p->image[2];
    a->grid[d] = to_image->grid[d] = size > phase ? (size - phase - 1) / stride + 1 : 0;
    a->stride[d] = 1;
    a->first[d] = (to - last * dilation) / stride;
    a->apart[d] = step * dilation / stride;
    a->taps[d] = count;
    to_image->stride[d] = stride;
    to_image->first[d] = phase;
    p->kernel[d] = last;
    p->kernel_step[d] = -step;
}

/* Sides that read an operand from an element on. */
static mpt__gemm_side mpt__conv_side(const mpt__conv *c, void *const *data, int operand,
                                     int64_t from, int64_t outer, int64_t inner) {
    const mpt__operand *o = &c->launch->operand[operand];
    const int compute = c->launch->compute_dtype;
    mpt__gemm_side side;
    side.dtype = o->dtype;
    side.round = compute == MPT_F32 || compute == o->dtype ? 0 : compute;
    if (operand == 3 && c->launch->imm[0] != 0) side.round = 0;
    side.data = NULL;
    if (operand < c->launch->n_operands && o->storage != 0)
        side.data = data ? (const char *)data[operand] + from * mpt__dtype_info[o->dtype].bytes
                         : (const char *)(const void *)c;
    side.outer = outer;
    side.inner = inner;
    return side;
}

static bool mpt__conv_adds(const mpt__launch *launch) {
    return launch->n_operands > 4 && launch->operand[4].storage != 0;
}

static char *mpt__conv_target(const mpt__conv *c, void *const *data, int operand, int64_t from) {
    int64_t bytes = mpt__dtype_info[c->launch->operand[operand].dtype].bytes;
    return data ? (char *)data[operand] + from * bytes : NULL;
}

/* The product of a group and a phase; data may be NULL: then only sizes count. */
static void mpt__conv_product_of(const mpt__conv *c, void *const *data, int64_t index,
                                 mpt__conv_product *p) {
    const int kernel = c->launch->kernel;
    const int64_t px = index % c->phases[1], py = index / c->phases[1] % c->phases[0];
    const int64_t group = index / c->phases[1] / c->phases[0];
    const int64_t in = group * c->in, out = group * c->out, taps = c->kernel[0] * c->kernel[1];
    const int64_t depth = taps * c->in; /* of a row of weights */
    mpt__gemm_image *image = p->image;
    bool plain = true;
    memset(image, 0, sizeof p->image);
    p->a_image = &image[0], p->b_image = NULL, p->c_image = NULL;
    for (int d = 0; d < 2; d++) {
        plain = plain && c->kernel[d] == 1 && c->stride[d] == 1 && c->x[d] == c->y[d];
        image[0].grid[d] = c->y[d], image[0].stride[d] = c->stride[d];
        image[0].first[d] = -c->padding[d], image[0].apart[d] = c->dilation[d];
        image[0].taps[d] = c->kernel[d];
        p->kernel[d] = 0, p->kernel_step[d] = 1;
    }
    mpt__conv_image(&image[0], c->x, c->in);
    if (kernel == MPT__K_CONV) {
        p->m = c->n * c->y[0] * c->y[1], p->n = c->out, p->k = depth;
        p->a = mpt__conv_side(c, data, 0, in, c->x[2], 1);
        p->b = mpt__conv_side(c, data, 1, out * depth, depth, 1);
        p->bias = mpt__conv_side(c, data, 3, out, 0, 1);
        p->c = mpt__conv_target(c, data, 2, out), p->c_row = c->y[2];
    } else if (kernel == MPT__K_CONV_BACKWARD_INPUT) {
        mpt__conv_image(&image[0], c->y, c->out);
        mpt__conv_image(&image[2], c->x, c->in);
        mpt__conv_phase(c, 0, py, p);
        mpt__conv_phase(c, 1, px, p);
        p->m = c->n * image[0].grid[0] * image[0].grid[1], p->n = c->in;
        p->k = image[0].taps[0] * image[0].taps[1] * c->out;
        p->a = mpt__conv_side(c, data, 2, out, c->y[2], 1);
        int64_t from = out * depth;
        if (p->k > 0) from += (p->kernel[0] * c->kernel[1] + p->kernel[1]) * c->in;
        p->b = mpt__conv_side(c, data, 1, from, 1, depth);
        p->b_image = &image[1]; /* rows: line of taps, tap, channel of dy; columns: channels of x */
        image[1].image = p->kernel_step[0] * c->kernel[1] * c->in;
        image[1].step[0] = p->kernel_step[1] * c->in, image[1].step[1] = depth;
        image[1].size[0] = image[1].grid[0] = image[0].taps[1];
        image[1].size[1] = image[1].grid[1] = c->out;
        image[1].stride[0] = image[1].stride[1] = image[1].taps[0] = image[1].taps[1] = 1;
        image[1].channels = c->in;
        image[1].along_k = true;
        p->bias = mpt__conv_side(c, data, 3, in, 0, 1);
        p->c = mpt__conv_target(c, data, 0, in), p->c_row = c->x[2];
        if (c->stride[0] != 1 || c->stride[1] != 1) p->c_image = &image[2];
    } else {
        p->m = c->out, p->n = depth, p->k = c->n * c->y[0] * c->y[1];
        p->a = mpt__conv_side(c, data, 2, out, 1, c->y[2]);
        p->b = mpt__conv_side(c, data, 0, in, 1, c->x[2]);
        p->bias = p->a, p->bias.data = NULL;
        p->a_image = NULL, p->b_image = &image[0];
        image[0].along_k = true;
        p->c = mpt__conv_target(c, data, 1, out * depth), p->c_row = depth;
    }
    if (plain) p->a_image = p->b_image = p->c_image = NULL;
    p->more = NULL;
    if (mpt__conv_adds(c->launch)) {
        const int64_t from = kernel == MPT__K_CONV ? out : in;
        p->more = data ? mpt__conv_target(c, data, 4, from) : (char *)p->image;
    }
}

static const mpt__operand *mpt__conv_output(const mpt__launch *launch) {
    static const uint8_t written[] = {2, 0, 1};
    return &launch->operand[written[launch->kernel - MPT__K_CONV]];
}

/* ==== Products of the reference level ==== */

typedef struct mpt__ref_conv_work {
    const mpt__launch *launch;
    mpt__conv_product product;
    mpt__ref_view out;
    int64_t across; /* tiles */
} mpt__ref_conv_work;

/* n elements of a part, `step` apart, rounded. */
static void mpt__ref_conv_load(const mpt__gemm_side *part, int64_t step, mpt__real *x, int64_t n) {
    mpt__ref_load(x, part->data, (uint8_t)part->dtype, 0, step, n);
    if (part->round != 0) mpt__ref_round(x, n, part->dtype, part->round);
}

static void mpt__ref_conv_tile(void *work, int64_t tile, int thread) {
    const mpt__ref_conv_work *w = (const mpt__ref_conv_work *)work;
    const mpt__conv_product *p = &w->product;
    mpt__real sum[MPT__GEMM_M][MPT__GEMM_N], a[MPT__GEMM_M][MPT__GEMM_K];
    mpt__real b[MPT__GEMM_K][MPT__GEMM_N], bias[MPT__GEMM_N], more[MPT__GEMM_N];
    const bool relu = w->launch->activation == MPT_ACTIVATION_RELU;
    double gathered[MPT__GEMM_N]; /* of any dtype */
    const int64_t m0 = tile / w->across * MPT__GEMM_M, n0 = tile % w->across * MPT__GEMM_N;
    const int64_t rows = mpt__ref_min(MPT__GEMM_M, p->m - m0);
    const int64_t columns = mpt__ref_min(MPT__GEMM_N, p->n - n0);
    mpt__gemm_side part;
    (void)thread;
    memset(sum, 0, sizeof sum);
    for (int64_t k0 = 0; k0 < p->k; k0 += MPT__GEMM_K) {
        const int64_t k = mpt__ref_min(MPT__GEMM_K, p->k - k0);
        for (int64_t i = 0; i < rows; i++) {
            part = mpt__gemm_part(&p->a, p->a_image, m0 + i, 1, k0, k, (char *)gathered);
            mpt__ref_conv_load(&part, part.inner, a[i], k);
        }
        for (int64_t i = 0; i < k; i++) {
            part = mpt__gemm_part(&p->b, p->b_image, n0, columns, k0 + i, 1, (char *)gathered);
            mpt__ref_conv_load(&part, part.outer, b[i], columns);
        }
        mpt__ref_gemm_panel(sum, a, b, rows, columns, k);
    }
    if (p->bias.data != NULL) {
        part = mpt__gemm_part(&p->bias, NULL, 0, 1, n0, columns, NULL);
        mpt__ref_conv_load(&part, 1, bias, columns);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t at[2], to = (m0 + i) * p->c_row;
        if (p->c_image != NULL) to = mpt__gemm_pixel(p->c_image, m0 + i, at);
        for (int64_t j = 0; p->bias.data != NULL && j < columns; j++) sum[i][j] += bias[j];
        if (p->more != NULL) mpt__ref_load(more, p->more, w->out.dtype, to + n0, 1, columns);
        for (int64_t j = 0; p->more != NULL && j < columns; j++) sum[i][j] += more[j];
        for (int64_t j = 0; relu && j < columns; j++)
            if (sum[i][j] <= 0) sum[i][j] = 0;
        mpt__ref_put(&w->out, to + n0, 1, sum[i], columns);
    }
}

/* ==== Lines of pixels ====
 *
 * The taps of a line of pixels on a line of the image are runs of channels, one behind the other.
 * Kernels read them where they lie; what hangs over the edge or is not of the type computed in is
 * copied, once, to lines with room for the padding. */

typedef struct mpt__conv_lines {
    const mpt__gemm_image *x;   /* what taps are of */
    const mpt__gemm_side *side; /* where it lies */
    const mpt__words *words;
    bool in_place, halves; /* halves: copied lines are bf16, else mpt__real */
    int64_t pair;          /* of pairs of bf16 (halves) that go so far apart; 0: of neighbours */
    int64_t wide, line;    /* elements and bytes of a copied line */
    int64_t block, ring;   /* lines of the grid that go together; copied lines under way */
    int64_t lines, chunk, chunks; /* lines of the grid: all, those of a chunk */
    int64_t numel;                /* of all images */
} mpt__conv_lines;

#define MPT__CONV_SLICES 16 /* chunks of a gradient of weights, each with sums of its own */
#define MPT__CONV_SLICES_FLOATS (1 << 19) /* of all, or 4 slices: another core's are far away */
#define MPT__CONV_COST 8192 /* ns of another chunk, about */
#define MPT__CONV_PIXELS 64 /* of lines that go together, about; of pairs of pixels so many */
#define MPT__CONV_MORE 8    /* the most lines at a time, and sides of a product */
#define MPT__CONV_PAST 48   /* words that are written past a line of pairs */

/* cost: ns of a line, about; unit: elements of a word, that is 2 for pairs; 0: lines go alone. */
static void mpt__conv_lines_of(mpt__conv_lines *l, const mpt__gemm_image *x,
                               const mpt__gemm_side *side, const mpt__conv *c, int64_t cost,
                               int64_t unit) {
    const int64_t reach = (x->taps[1] - 1) * x->apart[1] + 1;
    const int64_t pixels = (x->grid[1] - 1) * x->stride[1] + reach;
    const int kernel = c->launch->kernel;
    const bool weights = kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const int64_t offset = c->launch->operand[kernel == MPT__K_CONV_BACKWARD_INPUT ? 2 : 0].offset;
    l->x = x;
    l->side = side;
    l->words = NULL;
    l->halves = unit > 1;
    l->pair = l->halves && weights ? x->stride[1] * x->channels : 0;
    l->in_place = (l->halves ? side->dtype == MPT_BF16 && offset % 2 == 0 && !weights
                             : mpt__ref_is_real(side->dtype)) &&
                  side->round == 0 && x->first[1] >= 0 && x->first[1] + pixels <= x->size[1];
    const bool taps = x->taps[0] * x->taps[1] > 0; /* some phases have none */
    l->wide = taps ? pixels * x->channels : 0;
    l->line = l->wide * (l->halves ? 2 : (int64_t)sizeof(mpt__real));
    if (l->pair > 0) l->line = (l->wide + MPT__CONV_PAST) * 4;
    l->block = MPT__CONV_PIXELS * (weights || unit < 1 ? unit : 1) / (x->grid[1] + 1) + 1;
    l->block = mpt__ref_min(mpt__ref_min(l->block, MPT__CONV_MORE), x->grid[0]);
    if (l->block < 1) l->block = 1; /* of a phase without pixels */
    l->ring = taps ? (l->block - 1) * x->stride[0] + (x->taps[0] - 1) * x->apart[0] + 1 : 0;
    l->lines = c->n * x->grid[0];
    l->numel = c->n * x->image;
    l->chunk = MPT__CONV_COST / (cost + 1) + 4;
    if (weights) {
        const int64_t sums = c->out * c->in * c->kernel[0] * c->kernel[1];
        int64_t slices = MPT__CONV_SLICES;
        while (slices > 4 && slices * sums > MPT__CONV_SLICES_FLOATS) slices /= 2;
        l->chunk = mpt__ref_chunks(l->lines, slices);
    }
    if (l->chunk == 0) l->chunk = 1;
    l->chunk = mpt__ref_chunks(l->chunk, l->block) * l->block;
    l->chunks = mpt__ref_chunks(l->lines, l->chunk);
    if (l->chunks == 0) l->chunks = 1;
}

/* Elements of a side, rounded, as floats. */
static void mpt__conv_floats(const mpt__words *words, const mpt__gemm_side *side, int64_t from,
                             mpt__real *to, int64_t n) {
    enum { MOST = 256 };
    const mpt__convert_table *convert = words->convert;
    mpt__ref_view view;
    view.data = NULL;
    view.words = words;
    view.dtype = (uint8_t)side->dtype;
    memcpy(&view.data, &side->data, sizeof view.data); /* it is only read */
    if (mpt__ref_is_real(side->dtype) && side->round == 0) {
        memcpy(to, mpt__ref_in(&view, from, 1, to, n), (size_t)n * sizeof *to);
        return;
    }
    mpt__ref_get(&view, from, 1, to, n);
    if (side->round == 0) return;
    if (!mpt__ref_is_half(side->round)) {
        mpt__ref_round(to, n, side->dtype, side->round);
        return;
    }
    for (int64_t m; n > 0; n -= m, to += m) {
        uint16_t half[MOST];
        m = mpt__ref_min(MOST, n);
        float *floats = (float *)(void *)to;
        bool f16 = side->round == MPT_F16;
        (f16 ? convert->f32_to_f16 : convert->f32_to_bf16)(floats, half, (size_t)m);
        (f16 ? convert->f16_to_f32 : convert->bf16_to_f32)(half, floats, (size_t)m);
    }
}

/* The same as a line's elements. */
static void mpt__conv_elements(const mpt__conv_lines *l, int64_t from, char *to, int64_t n) {
    enum { MOST = 256 };
    const mpt__gemm_side *side = l->side;
    if (!l->halves) {
        mpt__conv_floats(l->words, side, from, (mpt__real *)(void *)to, n);
    } else if (side->dtype == MPT_BF16) {
        memcpy(to, side->data + from * 2, (size_t)n * 2);
    } else {
        mpt__gemm_side plain = *side;
        mpt__real reals[MOST];
        plain.round = 0;
        for (int64_t m; n > 0; n -= m, from += m, to += 2 * m) {
            m = mpt__ref_min(MOST, n);
            mpt__conv_floats(l->words, &plain, from, reals, m);
            l->words->convert->f32_to_bf16((const float *)(const void *)reals,
                                           (uint16_t *)(void *)to, (size_t)m);
        }
    }
}

/* What is read or written soon: lines are too short for the hardware to see them coming. */
static MPT__FORCE_INLINE void mpt__conv_fetch(const mpt__gemm_side *side, int64_t from, int64_t n) {
#if defined(__GNUC__)
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    for (int64_t i = 0; i < n * bytes; i += 64) __builtin_prefetch(side->data + from * bytes + i);
#else
    (void)side, (void)from, (void)n;
#endif
}

/* The line of the grid's number `line` begins: its image, and in y the line of its first tap. */
static int64_t mpt__conv_begin_line(const mpt__conv_lines *l, int64_t line, int64_t *y,
                                    int64_t *loaded) {
    const int64_t at = line % l->x->grid[0];
    *y = at * l->x->stride[0] + l->x->first[0];
    if (at == 0) *loaded = 0;
    if (*loaded < *y) *loaded = *y;
    return line / l->x->grid[0];
}

/* The first tap of line y of image n; `ring` has the lines before `loaded`, and room for one. */
static const char *mpt__conv_line(const mpt__conv_lines *l, char *ring, int64_t n, int64_t y,
                                  int64_t *loaded) {
    const mpt__gemm_image *x = l->x;
    const int64_t first = x->first[1] * x->channels, width = x->size[1] * x->channels;
    const int64_t left = first < 0 ? mpt__ref_min(-first, l->wide) : 0;
    const int64_t bytes = l->halves ? 2 : (int64_t)sizeof(mpt__real);
    int64_t from = n * x->image + y * x->step[0] + first;
    int64_t right = mpt__ref_min(width - first, l->wide);
    if (right < left) right = left;
    if (l->in_place) return l->side->data + from * mpt__dtype_info[l->side->dtype].bytes;
    for (; *loaded <= y; ++*loaded) {
        char *line = ring + *loaded % l->ring * l->line;
        char *to = l->pair > 0 ? ring + l->ring * l->line : line;
        from = n * x->image + *loaded * x->step[0] + first;
        memset(to, 0, (size_t)(left * bytes));
        mpt__conv_elements(l, from + left, to + left * bytes, right - left);
        if (from + left + x->step[0] < l->numel)
            mpt__conv_fetch(l->side, from + left + x->step[0], right - left);
        memset(to + right * bytes, 0, (size_t)((l->wide - right) * bytes));
#ifdef MPT__HAS_PAIRS
        if (l->pair > 0)
            mpt__pairs_apart((uint32_t *)(void *)line, (const uint16_t *)(const void *)to, l->pair,
                             l->wide - l->pair);
#endif
    }
    return ring + y % l->ring * l->line;
}

/* ==== Depthwise ==== */

#define MPT__DEPTH_TAPS 32 /* taps, or pixels of a gradient of weights, at a time */

/* Of a convolution of one group that has all channels. */
typedef struct mpt__depthwise {
    const mpt__cpu_call *call;
    mpt__conv conv;
    mpt__conv_product product;
    mpt__conv_lines lines;
    mpt__ref_view out;
    int64_t shared, own; /* elements of the memory: of all threads, of each */
    mpt__real *memory;   /* [taps + 1, channels], the last the bias, or the sums of each slice; and
                            of each thread lines under way and one of the other side */
} mpt__depthwise;

/* What follows the sums of m channels, from an element of the output on. */
static void mpt__depth_end(const mpt__depthwise *w, int64_t to, mpt__real *x, int64_t m,
                           bool relu) {
    const mpt__words *words = w->call->words;
    mpt__real block[MPT__BLOCK];
    mpt__ref_view more = w->out;
    more.data = w->product.more;
    if (more.data != NULL)
        words->binary[MPT__BINARY_ADD](x, x, mpt__ref_in(&more, to, 1, block, m), m, 0, 0);
    if (relu) words->unary[MPT__UNARY_RELU](x, x, m, 0, 0);
    mpt__ref_put(&w->out, to, 1, x, m);
}

static const mpt__real *mpt__depth_tap(const mpt__conv_lines *l, mpt__real *ring, int64_t n,
                                       int64_t y, int64_t *loaded) {
    return (const mpt__real *)(const void *)mpt__conv_line(l, (char *)ring, n, y, loaded);
}

/* One line of pixels: each begins with the bias and adds its taps. */
static void mpt__depth_line(const mpt__depthwise *w, int64_t line, mpt__real *ring,
                            int64_t *loaded) {
    const mpt__conv_lines *l = &w->lines;
    const mpt__gemm_image *g = l->x, *to = w->product.c_image;
    const int64_t channels = g->channels, taps = g->taps[0] * g->taps[1];
    int64_t y0, at[2], step = w->product.c_row, pixel = line * g->grid[1] * step, t = 0;
    const int64_t n = mpt__conv_begin_line(l, line, &y0, loaded);
    const mpt__real *tap[MPT__DEPTH_TAPS];
    mpt__product_sums p;
    if (to != NULL) {
        pixel = mpt__gemm_pixel(to, line * g->grid[1], at);
        step = to->stride[1] * to->step[1];
    }
    mpt__real *apart = ring + l->ring * l->wide;
    p.out = mpt__ref_out(&w->out, pixel, 1, apart);
    p.out_step = p.out == apart ? channels : step;
    p.start = w->memory + taps * channels, p.start_step = 0;
    p.x = tap, p.x_step = g->stride[1] * channels;
    p.w_step = channels;
    p.count = g->grid[1], p.n = channels;
    do {
        p.w = w->memory + t * channels;
        for (p.depth = 0; p.depth < MPT__DEPTH_TAPS && t < taps; t++) {
            const int64_t y = y0 + t / g->taps[1] * g->apart[0];
            if (y >= 0 && y < g->size[0]) {
                tap[p.depth++] = mpt__depth_tap(l, ring, n, y, loaded) +
                                 t % g->taps[1] * g->apart[1] * channels;
            } else if (p.depth > 0) {
                break; /* the weights of taps lie one behind the other */
            } else {
                p.w += channels;
            }
        }
        w->call->words->sum_products(&p);
        p.start = p.out, p.start_step = p.out_step;
    } while (t < taps);
    const bool relu = w->conv.launch->activation == MPT_ACTIVATION_RELU;
    if (p.out != apart && !relu && w->product.more == NULL) return;
    for (int64_t i = 0; i < p.count; i++) {
        for (int64_t c = 0; c < channels; c += MPT__BLOCK) {
            mpt__depth_end(w, pixel + i * step + c, p.out + i * p.out_step + c,
                           mpt__ref_min(MPT__BLOCK, channels - c), relu);
        }
    }
}

/* Adds what a line of dy gives the gradients of all taps. */
static void mpt__depth_weights(const mpt__depthwise *w, int64_t line, mpt__real *ring,
                               int64_t *loaded, mpt__real *sums) {
    const mpt__conv_lines *l = &w->lines;
    const mpt__gemm_image *g = l->x;
    const mpt__gemm_side *dy = &w->product.a;
    const int64_t channels = g->channels, row = line * g->grid[1] * channels;
    const mpt__real *pixel[MPT__DEPTH_TAPS], *other = ring + l->ring * l->wide;
    int64_t y0;
    const int64_t n = mpt__conv_begin_line(l, line, &y0, loaded);
    mpt__product_sums p;
    mpt__conv_floats(l->words, dy, row, ring + l->ring * l->wide, g->grid[1] * channels);
    p.x = pixel, p.x_step = g->apart[1] * channels;
    p.out_step = p.start_step = p.w_step = channels;
    p.count = g->taps[1], p.n = channels;
    for (int64_t ty = 0; ty < g->taps[0]; ty++) {
        const int64_t y = y0 + ty * g->apart[0];
        if (y < 0 || y >= g->size[0]) continue;
        const mpt__real *x = mpt__depth_tap(l, ring, n, y, loaded);
        p.out = sums + ty * g->taps[1] * channels;
        p.start = p.out;
        for (int64_t i = 0; i < g->grid[1]; i += p.depth) {
            p.depth = mpt__ref_min(MPT__DEPTH_TAPS, g->grid[1] - i);
            for (int64_t j = 0; j < p.depth; j++) pixel[j] = x + (i + j) * g->stride[1] * channels;
            p.w = other + i * channels;
            l->words->sum_products(&p);
        }
    }
}

static void mpt__depth_chunk(void *work, int64_t chunk, int thread) {
    const mpt__depthwise *w = (const mpt__depthwise *)work;
    const mpt__conv_lines *l = &w->lines;
    const bool weights = w->conv.launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const int64_t sums = l->x->taps[0] * l->x->taps[1] * l->x->channels;
    mpt__real *ring = w->memory + w->shared + thread * w->own, *sum = w->memory + chunk * sums;
    const int64_t end = mpt__ref_min((chunk + 1) * l->chunk, l->lines);
    int64_t loaded = 0;
    if (weights) memset(sum, 0, (size_t)sums * sizeof *sum);
    for (int64_t line = chunk * l->chunk; line < end; line++) {
        if (weights) {
            mpt__depth_weights(w, line, ring, &loaded, sum);
        } else {
            mpt__depth_line(w, line, ring, &loaded);
        }
    }
}

/* The kernel's elements that the taps of a phase use, as [taps, channels], and the bias. */
static void mpt__depth_lay_out(const mpt__depthwise *w, mpt__real *to) {
    const mpt__conv_product *p = &w->product;
    const mpt__operand *o = &w->conv.launch->operand[1];
    const int64_t *taps = p->image[0].taps, *kernel = w->conv.kernel;
    const int64_t channels = p->image[0].channels;
    for (int64_t t = 0; t < taps[0] * taps[1]; t++, to += channels) {
        int64_t ky = p->kernel[0] + t / taps[1] * p->kernel_step[0];
        int64_t kx = p->kernel[1] + t % taps[1] * p->kernel_step[1];
        mpt__ref_load(to, w->call->data[1], o->dtype, ky * kernel[1] + kx, kernel[0] * kernel[1],
                      channels);
        mpt__ref_round(to, channels, o->dtype, w->conv.launch->compute_dtype);
    }
    memset(to, 0, (size_t)channels * sizeof *to);
    if (p->bias.data != NULL) mpt__conv_floats(w->call->words, &p->bias, 0, to, channels);
}

/* What a depthwise convolution needs for a phase; call may be NULL: then only sizes count. */
static void mpt__depth_plan(mpt__depthwise *w, const mpt__conv *conv, const mpt__cpu_call *call,
                            int64_t phase) {
    w->call = call;
    w->conv = *conv;
    w->conv.groups = 1, w->conv.in = w->conv.out = conv->x[2];
    mpt__conv_product_of(&w->conv, call ? call->data : NULL, phase, &w->product);
    const bool weights = conv->launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const mpt__gemm_image *g = &w->product.image[0];
    const int64_t sums = g->taps[0] * g->taps[1] * g->channels;
    mpt__conv_lines_of(&w->lines, g, weights ? &w->product.b : &w->product.a, conv,
                       g->grid[1] * sums / 16, 0);
    if (call) w->lines.words = call->words, w->memory = (mpt__real *)call->workspace;
    w->shared = weights ? w->lines.chunks * sums : sums + g->channels;
    w->own = w->lines.ring * w->lines.wide + g->grid[1] * g->channels;
}

/* Sums of slices, [taps, channels], become one and then weights. */
static void mpt__depth_add_slices(const mpt__depthwise *w) {
    const mpt__gemm_image *g = w->lines.x;
    const int64_t taps = g->taps[0] * g->taps[1], numel = taps * g->channels;
    mpt__real *sum = w->memory;
    for (int64_t s = 1; s < w->lines.chunks; s++) {
        w->call->words->binary[MPT__BINARY_ADD](sum, sum, sum + s * numel, numel, 0, 0);
    }
    for (int64_t t = 0; t < taps; t++) {
        for (int64_t c = 0; c < g->channels; c += MPT__BLOCK) {
            mpt__ref_put(&w->out, c * taps + t, taps, sum + t * g->channels + c,
                         mpt__ref_min(MPT__BLOCK, g->channels - c));
        }
    }
}

static void mpt__depth_run(const mpt__cpu_call *call, const mpt__conv *conv) {
    mpt__depthwise w;
    const bool weights = call->launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    w.out = mpt__ref_view_of(call, (int)(mpt__conv_output(call->launch) - call->launch->operand));
    for (int64_t i = 0; i < conv->phases[0] * conv->phases[1]; i++) {
        mpt__depth_plan(&w, conv, call, i);
        const mpt__gemm_image *g = w.lines.x;
        const int64_t products = w.lines.lines * g->grid[1] * g->taps[0] * g->taps[1] * g->channels;
        if (!weights) mpt__depth_lay_out(&w, w.memory);
        mpt__parallel(call->pool, w.lines.chunks, mpt__ref_cost(call, products, 1.0),
                      mpt__depth_chunk, &w);
        if (weights) mpt__depth_add_slices(&w);
    }
}

/* ==== The reference level ==== */

static int64_t mpt__ref_conv_workspace(const mpt__launch *launch, int threads) {
    mpt__conv conv;
    mpt__depthwise w;
    int64_t most = 0;
    mpt__conv_read(&conv, launch);
    if (!mpt__conv_is_depthwise(&conv)) return 0;
    for (int64_t i = 0; i < conv.phases[0] * conv.phases[1]; i++) {
        mpt__depth_plan(&w, &conv, NULL, i);
        const int64_t elements = w.shared + threads * w.own;
        if (elements > most) most = elements;
    }
    return most * (int64_t)sizeof(mpt__real);
}

static void mpt__ref_conv(const mpt__cpu_call *call) {
    mpt__conv conv;
    mpt__ref_conv_work w;
    mpt__conv_read(&conv, call->launch);
    if (mpt__conv_is_depthwise(&conv)) {
        mpt__depth_run(call, &conv);
        return;
    }
    w.launch = call->launch;
    w.out.words = call->words;
    w.out.dtype = mpt__conv_output(w.launch)->dtype;
    w.out.accumulate = mpt__conv_output(w.launch)->access == MPT__ACCUMULATE;
    for (int64_t i = 0; i < conv.groups * conv.phases[0] * conv.phases[1]; i++) {
        mpt__conv_product_of(&conv, call->data, i, &w.product);
        const mpt__conv_product *p = &w.product;
        double cost = (double)p->m * (double)p->n * ((double)p->k * 0.5 + 2);
        w.across = mpt__ref_chunks(p->n, MPT__GEMM_N);
        w.out.data = p->c;
        mpt__parallel(call->pool, w.across * mpt__ref_chunks(p->m, MPT__GEMM_M), (int64_t)cost,
                      mpt__ref_conv_tile, &w);
    }
}

/* ==== Levels with matrix products ==== */

#ifdef MPT__HAS_GEMM

/* False where the level cannot take it. */
static bool mpt__conv_gemm(mpt__gemm *g, const mpt__gemm_level *level, const mpt__conv *conv,
                           const mpt__conv_product *p) {
    const mpt__operand *out = mpt__conv_output(conv->launch);
    const unsigned good = 1u << MPT_F32 | 1u << MPT_F16 | 1u << MPT_BF16;
    unsigned dtypes = 1u << p->a.dtype | 1u << p->b.dtype | 1u << out->dtype;
    if (p->bias.data != NULL) dtypes |= 1u << p->bias.dtype;
    if ((dtypes & ~good) != 0) return false;
    memset(g, 0, sizeof *g);
    g->m = p->m, g->n = p->n, g->k = p->k;
    g->a = p->a, g->b = p->b, g->bias = p->bias;
    g->a_image = p->a_image, g->b_image = p->b_image, g->c_image = p->c_image;
    g->c = p->c, g->c_row = p->c_row, g->c_column = 1;
    g->c_dtype = out->dtype;
    g->accumulate = out->access == MPT__ACCUMULATE || p->more != NULL;
    g->activation = conv->launch->activation;
    if (p->more != NULL) g->onto = (int64_t)((intptr_t)p->more - (intptr_t)p->c);
    g->alpha = 1.0f;
    g->batch_count = 1;
    g->level = level->choose != NULL && g->k > 0 ? level->choose(g) : level;
    return g->level != NULL;
}

/* ==== Products line by line ====
 *
 * Where a tile of pixels and the taps of one line of the image are a matrix with overlapping rows,
 * nothing is packed but weights. */

#define MPT__CONV_DEPTH 640          /* words at a time: their weights come from L2; measured */
#define MPT__CONV_SLICE_FLOATS 163840 /* the most sums of a slice; measured */
#define MPT__CONV_NEAR 4096           /* floats that stay in the nearest cache */

/* Words are what products are made of: floats, or pairs of bf16. */
typedef struct mpt__conv_rows {
    const mpt__gemm *g;
    mpt__conv_lines lines;
    bool in_c, weights;
    int64_t run, taps;          /* words of a line's taps; of them, so many are taken at once */
    int64_t depth;              /* weights: words of a line of dy */
    int64_t panel, shared, own; /* floats: of a panel of weights, of all of them, of a thread */
    int64_t apart;              /* of those, behind all else: lines of sums, or of dy */
    int64_t biases; /* where, behind those, a line of sums that begins with them lies; 0: none */
    float *memory;
} mpt__conv_rows;

/* False where the other road is the faster one; measured. */
static bool mpt__conv_rows_of(mpt__conv_rows *r, const mpt__gemm *g, const mpt__conv *c) {
    const mpt__gemm_level *level = g->level;
    const int64_t tile = level->line_rows, unit = level->unit;
    const mpt__gemm_image *x = g->a_image != NULL ? g->a_image : g->b_image;
    r->g = g;
    r->weights = g->a_image == NULL;
    if (x == NULL || level->lines == NULL || c->groups != 1 || g->k == 0) return false;
    if (x->taps[1] > 1 && x->apart[1] != 1) return false;
    const int64_t pixels = x->grid[1], whole = mpt__round_up(pixels, tile);
    if ((r->weights ? pixels : x->channels) % unit != 0) return false;
    if (r->weights ? g->m * g->n > MPT__CONV_SLICE_FLOATS || pixels < 4 * unit
                   : pixels * 4 < whole * 3)
        return false;
    mpt__conv_lines *l = &r->lines;
    mpt__conv_lines_of(l, x, r->weights ? &g->b : &g->a, c, pixels * g->n / level->rate * g->k,
                       unit);
    if (r->weights || pixels < whole) l->in_place = false; /* tiles are read whole */
    r->run = x->taps[1] * x->channels / (r->weights ? 1 : unit);
    r->depth = pixels / unit;
    r->taps = !r->weights && unit > 1 && x->taps[1] == 3 && x->stride[1] == 1 &&
                      g->n <= level->columns / 2 && r->run <= MPT__CONV_DEPTH
                  ? 3
                  : 1;
    r->in_c = g->c_dtype == MPT_F32 && (mpt__gemm_is_plain(g) || !g->accumulate || g->onto != 0);
    int64_t room = r->weights ? level->columns : (whole - pixels) * x->stride[1] * x->channels;
    r->panel = mpt__gemm_panel_bytes(level, g->k, level->columns) / (int64_t)sizeof(float);
    r->shared = r->panel * mpt__gemm_panels(g->n, level->columns);
    if (r->weights) r->shared = g->m * g->n * l->chunks;
    r->biases = 0;
    if (g->bias.data != NULL && g->c_image == NULL && g->c_row == g->n) {
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

/* c[rows, columns] = or += A B; fetch: what is added to is not in the nearest cache. */
static void mpt__conv_tiles(const mpt__gemm_level *level, int64_t depth, mpt__gemm_side *a,
                            const mpt__gemm_side *b, int sides, float *c, int64_t ldc,
                            int64_t rows, int64_t columns, int how, bool fetch) {
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

/* Where the sums of a line of a block are, and whether they are added to. */
typedef struct mpt__conv_row {
    float *sums;
    char *c;
    int how;
} mpt__conv_row;

/* Sums of a block of lines for some columns. Sides are the taps of as many lines as go
   together, or a part of one. */
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
    for (int64_t ty0 = 0; ty0 < x->taps[0]; ty0 += together) {
        for (int64_t k = 0; k < r->run; k += MPT__CONV_DEPTH) {
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
                                sides, row[i].sums + j, ldc, x->grid[1],
                                mpt__smaller_of(columns, r->g->n - j), row[i].how, false);
                row[i].how = MPT__GEMM_ADD;
            }
        }
    }
}

/* What follows the sums of a line; how == 0: it had no taps. */
static void mpt__conv_row_end(const mpt__conv_rows *r, mpt__gemm *g, const mpt__conv_row *row,
                              int64_t ldc) {
    const int64_t pixels = r->lines.x->grid[1];
    for (int64_t i = 0; row->how == 0 && i < pixels; i++) {
        memset(row->sums + i * ldc, 0, (size_t)g->n * sizeof *row->sums);
    }
    g->c = row->c;
    if (!r->in_c || !mpt__gemm_is_plain(g)) {
        g->level->finish(g, row->sums, ldc, 0, 0, pixels, g->n);
    }
}

static void mpt__conv_row_block(const mpt__conv_rows *r, int64_t line, int64_t count, char *ring,
                                int64_t *loaded) {
    const mpt__gemm_image *x = r->lines.x;
    mpt__gemm g = *r->g;
    mpt__conv_row row[MPT__CONV_MORE];
    float *sums = (float *)(void *)ring + r->own - r->apart;
    const bool onto_c = r->in_c && g.accumulate && g.onto == 0;
    const int how = onto_c || r->biases > 0 ? MPT__GEMM_ADD : 0;
    if (r->biases > 0) g.bias.data = NULL;
    if (g.c_image != NULL) g.c_row = g.c_image->stride[1] * g.c_image->step[1];
    const int64_t ldc = r->in_c ? g.c_row : g.n;
    for (int64_t i = 0; i < count; i++) {
        int64_t at[2], pixel = (line + i) * x->grid[1] * g.c_row;
        if (g.c_image != NULL) pixel = mpt__gemm_pixel(g.c_image, (line + i) * x->grid[1], at);
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

/* A line of dy as words, pairs in panels; `apart` has room for it. */
static const char *mpt__conv_row_dy(const mpt__conv_rows *r, int64_t line, float *apart) {
    const mpt__gemm *g = r->g;
    const int64_t m = g->m, pixels = r->lines.x->grid[1], width = g->level->columns;
    mpt__gemm_side dy = g->a;
    dy.data += line * pixels * m * mpt__dtype_info[dy.dtype].bytes;
    if (g->level->unit > 1) {
        for (int64_t i = 0; i < m; i += width) {
            g->level->pack(apart + i * r->depth, true, &dy, i, mpt__smaller_of(width, m - i), 0,
                           pixels);
        }
    } else if (dy.dtype != MPT_F32 || dy.round != 0 || m % g->level->line_rows != 0) {
        mpt__conv_floats(r->lines.words, &dy, 0, apart, pixels * m);
    } else {
        return dy.data;
    }
    return (const char *)apart;
}

/* Adds what a block of lines of dy gives the gradients of all taps. */
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
    for (int64_t i = 0; i < count; i++) {
        dy[i] = mpt__conv_row_dy(r, line + i, apart + i * (r->apart / l->block));
    }
    for (int64_t ty = 0; ty < x->taps[0]; ty++) {
        mpt__gemm_side a[MPT__CONV_MORE], b[MPT__CONV_MORE], from[MPT__CONV_MORE];
        int sides = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t y = y0 + i * x->stride[0] + ty * x->apart[0];
            if (y < 0 || y >= x->size[0]) continue;
            const mpt__gemm_side of_dy = {dy[i], MPT_F32, 0, 1, wide};
            const mpt__gemm_side of_x = {mpt__conv_line(l, ring, n, y, loaded), MPT_F32, 0, 1,
                                         pixel};
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

static void mpt__conv_row_chunk(void *work, int64_t chunk, int thread) {
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
        if (r->weights) {
            mpt__conv_row_weights(r, line, count, ring, &loaded, sums);
        } else {
            mpt__conv_row_block(r, line, count, ring, &loaded);
        }
    }
}

/* A panel of weights, or some rows of the sum of all slices. */
static void mpt__conv_panel_chunk(void *work, int64_t panel, int thread) {
    const mpt__conv_rows *r = (const mpt__conv_rows *)work;
    const mpt__gemm *g = r->g;
    const int64_t width = g->level->columns, j = panel * width;
    const int64_t count = mpt__smaller_of(width, (r->weights ? g->m : g->n) - j);
    (void)thread;
    if (r->weights) {
        float *sum = r->memory + j * g->n;
        for (int64_t s = 1; s < r->lines.chunks; s++) {
            r->lines.words->binary[MPT__BINARY_ADD](sum, sum, sum + s * g->m * g->n, count * g->n,
                                                    0, 0);
        }
        g->level->finish(g, sum, g->n, j, 0, count, g->n);
    } else if (g->b_image != NULL) {
        mpt__gemm_pack_image(g->level, (char *)(r->memory + panel * r->panel), true, &g->b,
                             g->b_image, j, count, 0, g->k);
    } else {
        g->level->pack(r->memory + panel * r->panel, true, &g->b, j, count, 0, g->k);
    }
}

static void mpt__conv_run_rows(mpt__conv_rows *r, mpt__pool *pool) {
    const mpt__gemm *g = r->g;
    const int64_t panels = mpt__gemm_panels(r->weights ? g->m : g->n, g->level->columns);
    float *biases = r->memory + r->biases;
    if (r->biases > 0) mpt__conv_floats(r->lines.words, &g->bias, 0, biases, g->n);
    for (int64_t i = 1; r->biases > 0 && i < r->lines.x->grid[1]; i++) {
        memcpy(biases + i * g->n, biases, (size_t)g->n * sizeof *biases);
    }
    if (!r->weights) mpt__gemm_for(pool, panels, g->k * g->n / 4, mpt__conv_panel_chunk, r);
    mpt__gemm_for(pool, r->lines.chunks, g->m * g->n / g->level->rate * g->k, mpt__conv_row_chunk,
                  r);
    if (r->weights) mpt__gemm_for(pool, panels, g->m * g->n, mpt__conv_panel_chunk, r);
}

typedef struct mpt__conv_work {
    const mpt__gemm_level *level;
    mpt__conv conv;
    void *const *data;
    mpt__pool *pool;
    char *workspace;
    const mpt__words *words;
    int64_t products, bytes; /* of workspace, for each thread where they take products whole */
    bool whole, refuses, blank; /* blank: some pixels of C get zeros, and nothing else */
    mpt__gemm_watch watch;
} mpt__conv_work;

static bool mpt__conv_has_no_taps(const mpt__gemm *g) {
    return g->k == 0 && g->c_image != NULL && mpt__gemm_is_plain(g);
}

/* False where the launch is not for this level. */
static bool mpt__conv_plan(mpt__conv_work *w, const mpt__gemm_level *level,
                           const mpt__launch *launch, int threads) {
    mpt__conv_product p;
    mpt__gemm g;
    mpt__conv_read(&w->conv, launch);
    const int64_t phases = w->conv.phases[0] * w->conv.phases[1];
    w->level = level;
    w->products = phases * w->conv.groups;
    /* Few products, and phases differ, keep threads waiting for the last one. */
    const int64_t whole = MPT__GEMM_CHUNK_COST * (w->products < 16 ? 1 : 16);
    w->bytes = 0;
    w->refuses = w->blank = false;
    if (mpt__conv_is_depthwise(&w->conv)) return false;
    for (int64_t i = 0; i < phases; i++) {
        mpt__conv_product_of(&w->conv, NULL, i, &p);
        if (!mpt__conv_gemm(&g, level, &w->conv, &p)) return false;
        if (i == 0)
            w->whole = w->products > 1 && g.m * g.n * g.k <= g.level->rate * whole;
        w->refuses |= g.level->refuses;
        w->blank |= mpt__conv_has_no_taps(&g) && !g.accumulate;
        mpt__conv_rows r;
        int64_t bytes = 0;
        if (g.m * g.n > 0) {
            bytes = mpt__conv_rows_of(&r, &g, &w->conv)
                        ? (r.shared + (w->whole ? 1 : threads) * r.own) * (int64_t)sizeof(float)
                        : mpt__gemm_bytes(&g, w->whole ? 1 : threads);
        }
        if (bytes > w->bytes) w->bytes = bytes;
    }
    return true;
}

/* Zeros for an image, of which taps of a strided convolution meet some pixels. */
static void mpt__conv_blank_chunk(void *work, int64_t image, int thread) {
    const mpt__conv_work *w = (const mpt__conv_work *)work;
    const mpt__operand *o = mpt__conv_output(w->conv.launch);
    const size_t bytes = (size_t)(w->conv.x[0] * w->conv.x[1] * w->conv.x[2] *
                                  mpt__dtype_info[o->dtype].bytes);
    (void)thread;
    memset((char *)w->data[0] + (size_t)image * bytes, 0, bytes);
}

static void mpt__conv_chunk(void *work, int64_t chunk, int thread) {
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
        r.lines.words = w->words;
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
        mpt__parallel(w->pool, c->n, c->n * c->x[0] * c->x[1] * c->x[2] / 8, mpt__conv_blank_chunk,
                      w);
    if (w->whole) {
        mpt__parallel(w->pool, w->products, macs / w->level->rate + w->products, mpt__conv_chunk,
                      w);
    } else {
        for (int64_t i = 0; i < w->products; i++) mpt__conv_chunk(w, i, 0);
    }
}

static void mpt__conv_run(const mpt__gemm_level *level, const mpt__cpu_call *call) {
    char nothing[1] = {0}; /* where products need none: offsets of 0 count from somewhere */
    mpt__conv_work w;
    memset(&w.watch, 0, sizeof w.watch);
    if (!mpt__conv_plan(&w, level, call->launch, mpt__pool_threads(call->pool))) {
        mpt__cpu_fall_back(call);
        return;
    }
    uint32_t state = mpt__flush_denormals(true);
    w.data = call->data;
    w.pool = call->pool;
    w.words = call->words;
    w.workspace = call->workspace ? (char *)call->workspace : nothing;
    /* A launch that adds to C cannot be begun again by another level. */
    w.watch.dry = w.refuses && mpt__conv_output(call->launch)->access == MPT__ACCUMULATE;
    mpt__conv_products(&w);
    if (w.watch.dry && !w.watch.refused) {
        w.watch.dry = false;
        mpt__conv_products(&w);
    }
    mpt__restore_denormals(state);
    if (w.watch.refused) mpt__cpu_fall_back(call);
}

static int64_t mpt__conv_workspace(const mpt__gemm_level *level, const mpt__launch *launch,
                                   int threads) {
    mpt__conv_work w;
    if (!mpt__conv_plan(&w, level, launch, threads)) return ~0;
    int64_t bytes = w.whole ? w.bytes * threads : w.bytes;
    return w.refuses ? ~bytes : bytes;
}

#endif

/* One function per level, for the three kernels. */
#define MPT__CONV_LEVEL(ISA)                                                             \
    static void mpt__##ISA##_conv(const mpt__cpu_call *call) {                           \
        mpt__conv_run(&mpt__##ISA##_gemm_level, call);                                   \
    }                                                                                    \
    static int64_t mpt__##ISA##_conv_workspace(const mpt__launch *launch, int threads) { \
        return mpt__conv_workspace(&mpt__##ISA##_gemm_level, launch, threads);           \
    }
#define MPT__CONV_ADD(ISA, LEVEL)                                                      \
    if (cpu->isa == MPT_ISA_##LEVEL ||                                                 \
        (cpu->isa > MPT_ISA_##LEVEL && mpt__isa_supported(MPT_ISA_##LEVEL, features))) \
        mpt__cpu_add(cpu, (mpt__kernel)k, mpt__##ISA##_conv, mpt__##ISA##_conv_workspace);
#ifdef MPT__HAS_AVX2
MPT__CONV_LEVEL(avx2)
#endif
#ifdef MPT__HAS_AVX512
MPT__CONV_LEVEL(avx512)
#endif
#ifdef MPT__HAS_PAIRS
MPT__CONV_LEVEL(pairs)
#endif
#ifdef MPT__HAS_AMX
MPT__CONV_LEVEL(amx)
#endif
#ifdef MPT__HAS_NEON
MPT__CONV_LEVEL(neon)
#endif
#ifdef MPT__HAS_QUADS
MPT__CONV_LEVEL(quads)
#endif

static void mpt__cpu_add_conv(mpt__cpu *cpu) {
    const uint32_t features = mpt__cpu_features();
    (void)features;
    for (int k = MPT__K_CONV; k <= MPT__K_CONV_BACKWARD_WEIGHT; k++) {
        mpt__cpu_add(cpu, (mpt__kernel)k, mpt__ref_conv, mpt__ref_conv_workspace);
#ifdef MPT__HAS_AVX2
        MPT__CONV_ADD(avx2, AVX2)
#endif
#ifdef MPT__HAS_AVX512
        MPT__CONV_ADD(avx512, AVX512)
#endif
#ifdef MPT__HAS_PAIRS
        MPT__CONV_ADD(pairs, AVX512_BF16)
#endif
#ifdef MPT__HAS_AMX
        MPT__CONV_ADD(amx, AMX)
#endif
#ifdef MPT__HAS_NEON
        MPT__CONV_ADD(neon, NEON)
#endif
#ifdef MPT__HAS_QUADS
        MPT__CONV_ADD(quads, NEON_BF16)
#endif
    }
}

#endif
#endif
