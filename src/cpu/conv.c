/* ----
 * cpu/conv.c: convolutions on the CPU: what they are, depthwise ones, and the reference level.
 *
 * All three kernels are matrix products, one for each group and, of a strided convolution's input
 * gradient, for each phase of the stride: the pixels whose taps meet the same elements of the
 * kernel. Images are never written down as matrices. Products go line by line where that pays, the
 * image read where it lies but for its padding, or pixel by pixel of all images where those are
 * small; otherwise packing gathers what a panel needs (mpt__gemm_image), and rows of C go to their
 * pixels. The order of every sum depends on the problem and the level alone.
 * ---- */
#ifndef MPT__CPU_CONV_INCLUDED
#define MPT__CPU_CONV_INCLUDED

#include "cpu/sequences.c"

#ifndef MPTRAIN_NO_CONV

/* ==== What a launch asks for ==== */

typedef struct {
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
            c->phases[d] = mpt__cpu_min(c->stride[d], c->x[d]);
    }
    c->groups = launch->index[0];
    c->in = c->x[2] / c->groups;
    c->out = c->y[2] / c->groups;
}

static bool mpt__conv_is_depthwise(const mpt__conv *c) { return c->in == 1 && c->out == 1; }

/* C[m, n] = act(A[m, k] B[k, n] + bias + more). Points to its own images: not to be copied. */
typedef struct {
    int64_t m, n, k;
    mpt__gemm_side a, b, bias;
    char *c, *more; /* more: what is added, lying as C does; NULL: nothing */
    int64_t c_row;
    mpt__gemm_image image[3];
    const mpt__gemm_image *a_image, *b_image, *c_image; /* NULL: a matrix where it lies */
    int64_t kernel[2], kernel_step[2]; /* the kernel's element at tap 0; from tap to tap */
} mpt__conv_product;

/* The matrix of an image of so many channels, of which a group has `channels`. */
static void mpt__conv_image(mpt__gemm_image *g, const int64_t size[3], int64_t channels) {
    g->channels = channels;
    g->step[0] = size[1] * size[2], g->step[1] = size[2];
    g->image = size[0] * g->step[0];
    g->size[0] = size[0], g->size[1] = size[1];
}

/* Dimension d of a phase: the kernel's elements whose taps fall on pixels, from the last down, so
   that taps ascend. */
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

/* The product of a group and a phase; data may be NULL, where only sizes count. */
static void mpt__conv_product_of(
    const mpt__conv *c, void *const *data, int64_t index, mpt__conv_product *p) {
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

typedef struct {
    const mpt__launch *launch;
    mpt__conv_product product;
    mpt__cpu_view out;
    int64_t across; /* tiles */
} mpt__ref_conv_work;

/* n elements of a part, `step` apart, rounded. */
static void mpt__cpu_conv_load(const mpt__gemm_side *part, int64_t step, mpt__real *x, int64_t n) {
    mpt__load_real(x, part->data, (uint8_t)part->dtype, 0, step, n);
    if (part->round != 0) mpt__cpu_round(x, n, part->dtype, part->round);
}

static void mpt__ref_conv_tile(void *work, int64_t tile, int thread) {
    MPT__TASK(mpt__ref_conv_work, w);
    const mpt__conv_product *p = &w->product;
    mpt__real sum[MPT__GEMM_M][MPT__GEMM_N], a[MPT__GEMM_M][MPT__GEMM_K];
    mpt__real b[MPT__GEMM_K][MPT__GEMM_N], bias[MPT__GEMM_N], more[MPT__GEMM_N];
    const bool relu = w->launch->activation == MPT_ACTIVATION_RELU;
    double gathered[MPT__GEMM_N]; /* of any dtype */
    const int64_t m0 = tile / w->across * MPT__GEMM_M, n0 = tile % w->across * MPT__GEMM_N;
    const int64_t rows = mpt__cpu_min(MPT__GEMM_M, p->m - m0);
    const int64_t columns = mpt__cpu_min(MPT__GEMM_N, p->n - n0);
    mpt__gemm_side part;
    memset(sum, 0, sizeof sum);
    for (int64_t k0 = 0; k0 < p->k; k0 += MPT__GEMM_K) {
        const int64_t k = mpt__cpu_min(MPT__GEMM_K, p->k - k0);
        for (int64_t i = 0; i < rows; i++) {
            part = mpt__gemm_part(&p->a, p->a_image, m0 + i, 1, k0, k, (char *)gathered);
            mpt__cpu_conv_load(&part, part.inner, a[i], k);
        }
        for (int64_t i = 0; i < k; i++) {
            part = mpt__gemm_part(&p->b, p->b_image, n0, columns, k0 + i, 1, (char *)gathered);
            mpt__cpu_conv_load(&part, part.outer, b[i], columns);
        }
        mpt__cpu_gemm_panel(sum, a, b, rows, columns, k);
    }
    if (p->bias.data) {
        part = mpt__gemm_part(&p->bias, NULL, 0, 1, n0, columns, NULL);
        mpt__cpu_conv_load(&part, 1, bias, columns);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t at[2], to = (m0 + i) * p->c_row;
        if (p->c_image) to = mpt__gemm_pixel(p->c_image, m0 + i, at);
        for (int64_t j = 0; p->bias.data && j < columns; j++) sum[i][j] += bias[j];
        if (p->more) mpt__load_real(more, p->more, w->out.dtype, to + n0, 1, columns);
        for (int64_t j = 0; p->more && j < columns; j++) sum[i][j] += more[j];
        for (int64_t j = 0; relu && j < columns; j++)
            if (sum[i][j] <= 0) sum[i][j] = 0;
        mpt__cpu_put(&w->out, to + n0, 1, sum[i], columns);
    }
}

/* ==== Lines of pixels ====
 *
 * The taps of a line of pixels on a line of the image are runs of channels, which kernels read
 * where they lie. What hangs over the edge or has another type is copied, once, to lines with room
 * for the padding. */

typedef struct {
    const mpt__gemm_image *x;   /* what taps are of */
    const mpt__gemm_side *side; /* where it lies */
    const mpt__routines *routines;
    bool in_place, halves; /* halves: copied lines are bf16, else mpt__real */
    int64_t pair;          /* of pairs of bf16 (halves) that go so far apart; 0: of neighbours */
    int64_t wide, line;    /* elements and bytes of a copied line */
    int64_t block, ring;   /* lines of the grid that go together; copied lines under way */
    int64_t lines, chunk, chunks; /* lines of the grid: all, those of a chunk */
    int64_t numel;                /* of all images */
} mpt__conv_lines;

#define MPT__CONV_SLICES 16 /* chunks of a gradient of weights, each with sums of its own */
#define MPT__CONV_SLICES_FLOATS (1 << 19) /* of all, or 4 slices: another core's are far away */
#define MPT__CONV_COST 8192               /* ns of another chunk, about */
#define MPT__CONV_PIXELS 64 /* of lines that go together, about; of pairs of pixels so many */
#define MPT__CONV_MORE 8    /* the most lines at a time, and sides of a product */
#define MPT__CONV_PAST 48   /* elements that are written past a line of pairs */

/* cost: ns of a line, about; unit: elements of a word, 2 for pairs; 0: lines go alone. */
static void mpt__conv_lines_of(mpt__conv_lines *l, const mpt__gemm_image *x,
    const mpt__gemm_side *side, const mpt__conv *c, int64_t cost, int64_t unit) {
    const int64_t reach = (x->taps[1] - 1) * x->apart[1] + 1;
    const int64_t pixels = (x->grid[1] - 1) * x->stride[1] + reach;
    const int kernel = c->launch->kernel;
    const bool weights = kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const int64_t offset = c->launch->operand[kernel == MPT__K_CONV_BACKWARD_INPUT ? 2 : 0].offset;
    l->x = x;
    l->side = side;
    l->routines = NULL;
    l->halves = unit > 1;
    l->pair = l->halves && weights ? x->stride[1] * x->channels : 0;
    l->in_place = (l->halves ? side->dtype == MPT_BF16 && offset % 2 == 0 && !weights
                             : mpt__cpu_is_real(side->dtype)) &&
        side->round == 0 && x->first[1] >= 0 && x->first[1] + pixels <= x->size[1];
    const bool taps = x->taps[0] * x->taps[1] > 0; /* some phases have none */
    l->wide = taps ? pixels * x->channels : 0;
    l->line = l->wide * (l->halves ? 2 : (int64_t)sizeof(mpt__real));
    if (l->pair > 0) l->line = (l->wide + MPT__CONV_PAST) * 4;
    l->block = MPT__CONV_PIXELS * (weights || unit < 1 ? unit : 1) / (x->grid[1] + 1) + 1;
    l->block = mpt__cpu_min(mpt__cpu_min(l->block, MPT__CONV_MORE), x->grid[0]);
    if (l->block < 1) l->block = 1; /* of a phase without pixels */
    l->ring = taps ? (l->block - 1) * x->stride[0] + (x->taps[0] - 1) * x->apart[0] + 1 : 0;
    l->lines = c->n * x->grid[0];
    l->numel = c->n * x->image;
    l->chunk = MPT__CONV_COST / (cost + 1) + 4;
    if (weights) {
        const int64_t sums = c->out * c->in * c->kernel[0] * c->kernel[1];
        int64_t slices = MPT__CONV_SLICES;
        while (slices > 4 && slices * sums > MPT__CONV_SLICES_FLOATS) slices /= 2;
        l->chunk = mpt__cpu_chunks(l->lines, slices);
    }
    if (l->chunk == 0) l->chunk = 1;
    l->chunk = mpt__cpu_chunks(l->chunk, l->block) * l->block;
    l->chunks = mpt__cpu_chunks(l->lines, l->chunk);
    if (l->chunks == 0) l->chunks = 1;
}

/* Elements of a side, rounded, as floats. */
static void mpt__conv_floats(const mpt__routines *routines, const mpt__gemm_side *side,
    int64_t from, mpt__real *to, int64_t n) {
    enum { MOST = 256 };
    const mpt__convert_table *convert = routines->convert;
    mpt__cpu_view view;
    view.data = NULL;
    view.routines = routines;
    view.dtype = (uint8_t)side->dtype;
    memcpy(&view.data, &side->data, sizeof view.data); /* it is only read */
    if (mpt__cpu_is_real(side->dtype) && side->round == 0) {
        memcpy(to, mpt__cpu_in(&view, from, 1, to, n), (size_t)n * sizeof *to);
        return;
    }
    mpt__cpu_get(&view, from, 1, to, n);
    if (side->round == 0) return;
    if (!mpt__cpu_is_half(side->round)) {
        mpt__cpu_round(to, n, side->dtype, side->round);
        return;
    }
    for (int64_t m; n > 0; n -= m, to += m) {
        uint16_t half[MOST];
        m = mpt__cpu_min(MOST, n);
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
        mpt__conv_floats(l->routines, side, from, (mpt__real *)(void *)to, n);
    } else if (side->dtype == MPT_BF16) {
        memcpy(to, side->data + from * 2, (size_t)n * 2);
    } else {
        mpt__gemm_side plain = *side;
        mpt__real reals[MOST];
        plain.round = 0;
        for (int64_t m; n > 0; n -= m, from += m, to += 2 * m) {
            m = mpt__cpu_min(MOST, n);
            mpt__conv_floats(l->routines, &plain, from, reals, m);
            l->routines->convert->f32_to_bf16(
                (const float *)(const void *)reals, (uint16_t *)(void *)to, (size_t)m);
        }
    }
}

/* Lines are too short for the hardware to see coming what is read or written soon. */
static MPT__FORCE_INLINE void mpt__conv_fetch(const mpt__gemm_side *side, int64_t from, int64_t n) {
#if defined(__GNUC__)
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    for (int64_t i = 0; i < n * bytes; i += 64) __builtin_prefetch(side->data + from * bytes + i);
#else
    (void)side, (void)from, (void)n;
#endif
}

/* The image in which line `line` of the grid begins, and in y the line of its first tap. */
static int64_t mpt__conv_begin_line(
    const mpt__conv_lines *l, int64_t line, int64_t *y, int64_t *loaded) {
    const int64_t at = line % l->x->grid[0];
    *y = at * l->x->stride[0] + l->x->first[0];
    if (at == 0) *loaded = 0;
    if (*loaded < *y) *loaded = *y;
    return line / l->x->grid[0];
}

/* The first tap of line y of image n; `ring` has the lines before `loaded`. */
static const char *mpt__conv_line(
    const mpt__conv_lines *l, char *ring, int64_t n, int64_t y, int64_t *loaded) {
    const mpt__gemm_image *x = l->x;
    const int64_t first = x->first[1] * x->channels, width = x->size[1] * x->channels;
    const int64_t left = first < 0 ? mpt__cpu_min(-first, l->wide) : 0;
    const int64_t bytes = l->halves ? 2 : (int64_t)sizeof(mpt__real);
    int64_t from = n * x->image + y * x->step[0] + first;
    int64_t right = mpt__cpu_min(width - first, l->wide);
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
#ifdef MPT__HAS_BF16X2
        if (l->pair > 0)
            mpt__bf16x2_apart((uint32_t *)(void *)line, (const uint16_t *)(const void *)to, l->pair,
                l->wide - l->pair);
#endif
    }
    return ring + y % l->ring * l->line;
}

/* ==== Depthwise ==== */

#define MPT__DEPTH_TAPS 32 /* taps, or pixels of a gradient of weights, at a time */

/* Of a convolution of one group that has all channels. */
typedef struct {
    const mpt__cpu_call *call;
    mpt__conv conv;
    mpt__conv_product product;
    mpt__conv_lines lines;
    mpt__cpu_view out;
    int64_t shared, own; /* elements of the memory: of all threads, of each */
    mpt__real *memory;   /* [taps + 1, channels], the last the bias, or the sums of each slice; and
                            of each thread lines under way and one of the other side */
} mpt__depthwise;

/* What follows the sums of m channels, from an element of the output on. */
static void mpt__depth_end(
    const mpt__depthwise *w, int64_t to, mpt__real *x, int64_t m, bool relu) {
    const mpt__routines *routines = w->call->routines;
    mpt__real block[MPT__BLOCK];
    mpt__cpu_view more = w->out;
    more.data = w->product.more;
    if (more.data)
        routines->binary[MPT__BINARY_ADD](x, x, mpt__cpu_in(&more, to, 1, block, m), m, 0, 0);
    if (relu) routines->unary[MPT__UNARY_RELU](x, x, m, 0, 0);
    mpt__cpu_put(&w->out, to, 1, x, m);
}

static const mpt__real *mpt__depth_tap(
    const mpt__conv_lines *l, mpt__real *ring, int64_t n, int64_t y, int64_t *loaded) {
    return (const mpt__real *)(const void *)mpt__conv_line(l, (char *)ring, n, y, loaded);
}

/* One line of pixels: each begins with the bias and adds its taps. */
static void mpt__depth_line(
    const mpt__depthwise *w, int64_t line, mpt__real *ring, int64_t *loaded) {
    const mpt__conv_lines *l = &w->lines;
    const mpt__gemm_image *g = l->x, *to = w->product.c_image;
    const int64_t channels = g->channels, taps = g->taps[0] * g->taps[1];
    int64_t y0, at[2], step = w->product.c_row, pixel = line * g->grid[1] * step, t = 0;
    const int64_t n = mpt__conv_begin_line(l, line, &y0, loaded);
    const mpt__real *tap[MPT__DEPTH_TAPS];
    mpt__product_sums p;
    if (to) {
        pixel = mpt__gemm_pixel(to, line * g->grid[1], at);
        step = to->stride[1] * to->step[1];
    }
    mpt__real *apart = ring + l->ring * l->wide;
    p.out = mpt__cpu_out(&w->out, pixel, 1, apart);
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
                tap[p.depth++] =
                    mpt__depth_tap(l, ring, n, y, loaded) + t % g->taps[1] * g->apart[1] * channels;
            } else if (p.depth > 0) {
                break; /* the weights of taps lie one behind the other */
            } else {
                p.w += channels;
            }
        }
        w->call->routines->sum_products(&p);
        p.start = p.out, p.start_step = p.out_step;
    } while (t < taps);
    const bool relu = w->conv.launch->activation == MPT_ACTIVATION_RELU;
    if (p.out != apart && !relu && !w->product.more) return;
    for (int64_t i = 0; i < p.count; i++)
        for (int64_t c = 0; c < channels; c += MPT__BLOCK)
            mpt__depth_end(w, pixel + i * step + c, p.out + i * p.out_step + c,
                mpt__cpu_min(MPT__BLOCK, channels - c), relu);
}

/* Adds what a line of dy gives the gradients of all taps. */
static void mpt__depth_weights(
    const mpt__depthwise *w, int64_t line, mpt__real *ring, int64_t *loaded, mpt__real *sums) {
    const mpt__conv_lines *l = &w->lines;
    const mpt__gemm_image *g = l->x;
    const mpt__gemm_side *dy = &w->product.a;
    const int64_t channels = g->channels, row = line * g->grid[1] * channels;
    const mpt__real *pixel[MPT__DEPTH_TAPS], *other = ring + l->ring * l->wide;
    int64_t y0;
    const int64_t n = mpt__conv_begin_line(l, line, &y0, loaded);
    mpt__product_sums p;
    mpt__conv_floats(l->routines, dy, row, ring + l->ring * l->wide, g->grid[1] * channels);
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
            p.depth = mpt__cpu_min(MPT__DEPTH_TAPS, g->grid[1] - i);
            for (int64_t j = 0; j < p.depth; j++) pixel[j] = x + (i + j) * g->stride[1] * channels;
            p.w = other + i * channels;
            l->routines->sum_products(&p);
        }
    }
}

static void mpt__depth_chunk(MPT__CHUNK_TAKES) {
    const mpt__depthwise *w = (const mpt__depthwise *)work;
    const mpt__conv_lines *l = &w->lines;
    const bool weights = w->conv.launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const int64_t sums = l->x->taps[0] * l->x->taps[1] * l->x->channels;
    mpt__real *ring = w->memory + w->shared + thread * w->own, *sum = w->memory + chunk * sums;
    const int64_t end = mpt__cpu_min((chunk + 1) * l->chunk, l->lines);
    int64_t loaded = 0;
    if (weights) memset(sum, 0, (size_t)sums * sizeof *sum);
    for (int64_t line = chunk * l->chunk; line < end; line++) {
        if (weights)
            mpt__depth_weights(w, line, ring, &loaded, sum);
        else
            mpt__depth_line(w, line, ring, &loaded);
    }
}

/* The elements that the taps of a phase use, as [taps, channels], and the bias. */
static void mpt__depth_lay_out(const mpt__depthwise *w, mpt__real *to) {
    const mpt__conv_product *p = &w->product;
    const mpt__operand *o = &w->conv.launch->operand[1];
    const int64_t *taps = p->image[0].taps, *kernel = w->conv.kernel;
    const int64_t channels = p->image[0].channels;
    for (int64_t t = 0; t < taps[0] * taps[1]; t++, to += channels) {
        int64_t ky = p->kernel[0] + t / taps[1] * p->kernel_step[0];
        int64_t kx = p->kernel[1] + t % taps[1] * p->kernel_step[1];
        mpt__load_real(
            to, w->call->data[1], o->dtype, ky * kernel[1] + kx, kernel[0] * kernel[1], channels);
        mpt__cpu_round(to, channels, o->dtype, w->conv.launch->compute_dtype);
    }
    memset(to, 0, (size_t)channels * sizeof *to);
    if (p->bias.data) mpt__conv_floats(w->call->routines, &p->bias, 0, to, channels);
}

/* A depthwise convolution's needs for a phase; call may be NULL, where only sizes count. */
static void mpt__depth_plan(
    mpt__depthwise *w, const mpt__conv *conv, const mpt__cpu_call *call, int64_t phase) {
    w->call = call;
    w->conv = *conv;
    w->conv.groups = 1, w->conv.in = w->conv.out = conv->x[2];
    mpt__conv_product_of(&w->conv, call ? call->data : NULL, phase, &w->product);
    const bool weights = conv->launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const mpt__gemm_image *g = &w->product.image[0];
    const int64_t sums = g->taps[0] * g->taps[1] * g->channels;
    mpt__conv_lines_of(
        &w->lines, g, weights ? &w->product.b : &w->product.a, conv, g->grid[1] * sums / 16, 0);
    if (call) w->lines.routines = call->routines, w->memory = (mpt__real *)call->workspace;
    w->shared = weights ? w->lines.chunks * sums : sums + g->channels;
    w->own = w->lines.ring * w->lines.wide + g->grid[1] * g->channels;
}

/* Sums of slices, [taps, channels], become one and then weights. */
static void mpt__depth_add_slices(const mpt__depthwise *w) {
    const mpt__gemm_image *g = w->lines.x;
    const int64_t taps = g->taps[0] * g->taps[1], numel = taps * g->channels;
    mpt__real *sum = w->memory;
    for (int64_t s = 1; s < w->lines.chunks; s++)
        w->call->routines->binary[MPT__BINARY_ADD](sum, sum, sum + s * numel, numel, 0, 0);
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < g->channels; c += MPT__BLOCK)
            mpt__cpu_put(&w->out, c * taps + t, taps, sum + t * g->channels + c,
                mpt__cpu_min(MPT__BLOCK, g->channels - c));
}

static void mpt__depth_run(const mpt__cpu_call *call, const mpt__conv *conv) {
    mpt__depthwise w;
    const bool weights = call->launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    w.out = mpt__cpu_view_of(call, (int)(mpt__conv_output(call->launch) - call->launch->operand));
    for (int64_t i = 0; i < conv->phases[0] * conv->phases[1]; i++) {
        mpt__depth_plan(&w, conv, call, i);
        const mpt__gemm_image *g = w.lines.x;
        const int64_t products = w.lines.lines * g->grid[1] * g->taps[0] * g->taps[1] * g->channels;
        if (!weights) mpt__depth_lay_out(&w, w.memory);
        mpt__cpu_for(call, w.lines.chunks, products, 1.0, mpt__depth_chunk, &w);
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
    w.out.routines = call->routines;
    w.out.dtype = mpt__conv_output(w.launch)->dtype;
    w.out.accumulate = mpt__conv_output(w.launch)->access == MPT__ACCUMULATE;
    for (int64_t i = 0; i < conv.groups * conv.phases[0] * conv.phases[1]; i++) {
        mpt__conv_product_of(&conv, call->data, i, &w.product);
        const mpt__conv_product *p = &w.product;
        double cost = (double)p->m * (double)p->n * ((double)p->k * 0.5 + 2);
        w.across = mpt__cpu_chunks(p->n, MPT__GEMM_N);
        w.out.data = p->c;
        mpt__parallel(call->pool, w.across * mpt__cpu_chunks(p->m, MPT__GEMM_M), (int64_t)cost,
            mpt__ref_conv_tile, &w);
    }
}

#endif
#endif
