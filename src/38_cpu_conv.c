/* ---------------------------------------------------------------------------------------------
 * 38_cpu_conv.c: convolutions on the CPU.
 *
 * All three kernels are matrix products, one for each group and, of a strided convolution's input
 * gradient, for each phase of the stride: the pixels whose taps meet the same elements of the
 * kernel. Images are never written down as matrices: packing gathers what a panel needs
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

/* C[m, n] = A[m, k] B[k, n] + bias. Not to be copied: the pointers are to its own images. */
typedef struct mpt__conv_product {
    int64_t m, n, k;
    mpt__gemm_side a, b, bias;
    char *c;
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
    side.data = NULL;
    if (operand < c->launch->n_operands && o->storage != 0)
        side.data = data ? (const char *)data[operand] + from * mpt__dtype_info[o->dtype].bytes
                         : (const char *)(const void *)c;
    side.outer = outer;
    side.inner = inner;
    return side;
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
static void mpt__ref_conv_load(const mpt__ref_conv_work *w, const mpt__gemm_side *part,
                               int64_t step, mpt__real *x, int64_t n) {
    mpt__ref_load(x, part->data, (uint8_t)part->dtype, 0, step, n);
    mpt__ref_round(x, n, part->dtype, w->launch->compute_dtype);
}

static void mpt__ref_conv_tile(void *work, int64_t tile, int thread) {
    const mpt__ref_conv_work *w = (const mpt__ref_conv_work *)work;
    const mpt__conv_product *p = &w->product;
    mpt__real sum[MPT__GEMM_M][MPT__GEMM_N], a[MPT__GEMM_M][MPT__GEMM_K];
    mpt__real b[MPT__GEMM_K][MPT__GEMM_N], bias[MPT__GEMM_N];
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
            mpt__ref_conv_load(w, &part, part.inner, a[i], k);
        }
        for (int64_t i = 0; i < k; i++) {
            part = mpt__gemm_part(&p->b, p->b_image, n0, columns, k0 + i, 1, (char *)gathered);
            mpt__ref_conv_load(w, &part, part.outer, b[i], columns);
        }
        mpt__ref_gemm_panel(sum, a, b, rows, columns, k);
    }
    if (p->bias.data != NULL) {
        part = mpt__gemm_part(&p->bias, NULL, 0, 1, n0, columns, NULL);
        mpt__ref_conv_load(w, &part, 1, bias, columns);
    }
    for (int64_t i = 0; i < rows; i++) {
        int64_t at[2], to = (m0 + i) * p->c_row;
        if (p->c_image != NULL) to = mpt__gemm_pixel(p->c_image, m0 + i, at);
        for (int64_t j = 0; p->bias.data != NULL && j < columns; j++) sum[i][j] += bias[j];
        mpt__ref_put(&w->out, to + n0, 1, sum[i], columns);
    }
}

/* ==== Depthwise ==== */

#define MPT__DEPTH_BLOCK (MPT__BLOCK / 4) /* channels at a time */

/* Of a convolution of one group that has all channels. */
typedef struct mpt__depthwise {
    const mpt__cpu_call *call;
    mpt__conv conv;
    mpt__conv_product product;
    mpt__ref_view in, out, other; /* dy, of the gradient of weights */
    const mpt__real *weights;     /* [taps, channels] */
} mpt__depthwise;

/* Channels of a pixel, rounded; in place where that is all the same. */
static const mpt__real *mpt__depth_in(const mpt__ref_view *view, int compute, int64_t at,
                                      mpt__real *block, int64_t n) {
    if (compute == MPT_F32 || compute == view->dtype) return mpt__ref_in(view, at, 1, block, n);
    mpt__ref_get(view, at, 1, block, n);
    mpt__ref_round(block, n, view->dtype, compute);
    return block;
}

/* One line of pixels: each sums the products of its taps, after the bias. */
static void mpt__depth_line(void *work, int64_t line, int thread) {
    const mpt__depthwise *w = (const mpt__depthwise *)work;
    const mpt__conv_product *p = &w->product;
    const mpt__gemm_image *g = &p->image[0];
    const int64_t channels = g->channels;
    const int compute = w->conv.launch->compute_dtype;
    mpt__real sum[MPT__DEPTH_BLOCK], x[MPT__DEPTH_BLOCK];
    (void)thread;
    for (int64_t row = line * g->grid[1]; row < (line + 1) * g->grid[1]; row++) {
        int64_t at[2], pixel = mpt__gemm_pixel(g, row, at), to_at[2], n;
        int64_t to = p->c_image ? mpt__gemm_pixel(p->c_image, row, to_at) : row * p->c_row;
        for (int64_t c = 0; c < channels; c += n) {
            n = mpt__ref_min(MPT__DEPTH_BLOCK, channels - c);
            memset(sum, 0, (size_t)n * sizeof *sum);
            if (p->bias.data != NULL) {
                mpt__ref_load(sum, p->bias.data, (uint8_t)p->bias.dtype, c, 1, n);
                mpt__ref_round(sum, n, p->bias.dtype, compute);
            }
            for (int64_t t = 0; t < g->taps[0] * g->taps[1]; t++) {
                int64_t ty = t / g->taps[1] * g->apart[0], tx = t % g->taps[1] * g->apart[1];
                if (at[0] + ty < 0 || at[0] + ty >= g->size[0]) continue;
                if (at[1] + tx < 0 || at[1] + tx >= g->size[1]) continue;
                int64_t from = pixel + ty * g->step[0] + tx * g->step[1] + c;
                w->call->words->add_products(sum, mpt__depth_in(&w->in, compute, from, x, n),
                                             w->weights + t * channels + c, n);
            }
            mpt__ref_put(&w->out, to + c, 1, sum, n);
        }
    }
}

/* The gradient of one tap's weights, of a block of channels: line by line. */
static void mpt__depth_weights(void *work, int64_t chunk, int thread) {
    const mpt__depthwise *w = (const mpt__depthwise *)work;
    const mpt__gemm_image *g = &w->product.image[0];
    const mpt__words *words = w->call->words;
    const int64_t taps = g->taps[0] * g->taps[1], t = chunk % taps, c = chunk / taps * 64;
    const int64_t n = mpt__ref_min(64, g->channels - c), lines = w->conv.n * g->grid[0];
    const int64_t ty = t / g->taps[1] * g->apart[0], tx = t % g->taps[1] * g->apart[1];
    const int compute = w->conv.launch->compute_dtype;
    mpt__real total[64] = {0}, sum[64], x[64], dy[64];
    (void)thread;
    for (int64_t row = 0, line = 0; line < lines; line++) {
        memset(sum, 0, sizeof sum);
        for (int64_t i = 0; i < g->grid[1]; i++, row++) {
            int64_t at[2], pixel = mpt__gemm_pixel(g, row, at);
            if (at[0] + ty < 0 || at[0] + ty >= g->size[0]) continue;
            if (at[1] + tx < 0 || at[1] + tx >= g->size[1]) continue;
            int64_t from = pixel + ty * g->step[0] + tx * g->step[1] + c;
            words->add_products(sum, mpt__depth_in(&w->in, compute, from, x, n),
                                mpt__depth_in(&w->other, compute, row * g->channels + c, dy, n), n);
        }
        words->binary[MPT__BINARY_ADD](total, total, sum, n, 0, 0);
    }
    mpt__ref_put(&w->out, c * taps + t, taps, total, n);
}

/* The kernel's elements that the taps of a phase use, as [taps, channels]. */
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
}

static void mpt__depth_run(const mpt__cpu_call *call, const mpt__conv *conv) {
    mpt__depthwise w;
    const int kernel = call->launch->kernel;
    const bool input = kernel == MPT__K_CONV_BACKWARD_INPUT;
    w.call = call;
    w.conv = *conv;
    w.conv.groups = 1, w.conv.in = w.conv.out = conv->x[2];
    w.in = mpt__ref_view_of(call, input ? 2 : 0);
    w.other = mpt__ref_view_of(call, 2);
    w.out = mpt__ref_view_of(call, input ? 0 : kernel == MPT__K_CONV ? 2 : 1);
    w.weights = (const mpt__real *)call->workspace;
    for (int64_t i = 0; i < conv->phases[0] * conv->phases[1]; i++) {
        mpt__conv_product_of(&w.conv, call->data, i, &w.product);
        const mpt__gemm_image *g = &w.product.image[0];
        const int64_t taps = g->taps[0] * g->taps[1], lines = conv->n * g->grid[0];
        int64_t cost = mpt__ref_cost(call, lines * g->grid[1] * taps * g->channels, 1.0);
        if (kernel == MPT__K_CONV_BACKWARD_WEIGHT) {
            mpt__parallel(call->pool, taps * mpt__ref_chunks(g->channels, 64), cost,
                          mpt__depth_weights, &w);
        } else {
            mpt__depth_lay_out(&w, (mpt__real *)call->workspace);
            mpt__parallel(call->pool, lines, cost, mpt__depth_line, &w);
        }
    }
}

/* ==== The reference level ==== */

static int64_t mpt__ref_conv_workspace(const mpt__launch *launch, int threads) {
    const mpt__operand *o = launch->operand;
    (void)threads;
    return o[1].shape[0] * o[1].shape[1] * o[1].shape[2] * (int64_t)sizeof(mpt__real);
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
    g->accumulate = out->access == MPT__ACCUMULATE;
    g->alpha = 1.0f;
    g->batch_count = 1;
    g->level = level->choose != NULL && g->k > 0 ? level->choose(g) : level;
    return g->level != NULL;
}

typedef struct mpt__conv_work {
    const mpt__gemm_level *level;
    mpt__conv conv;
    void *const *data;
    mpt__pool *pool;
    char *workspace;
    int64_t products, bytes; /* of workspace, for each thread where they take products whole */
    bool whole, refuses;
    mpt__gemm_watch watch;
} mpt__conv_work;

/* False where the launch is not for this level. */
static bool mpt__conv_plan(mpt__conv_work *w, const mpt__gemm_level *level,
                           const mpt__launch *launch, int threads) {
    mpt__conv_product p;
    mpt__gemm g;
    mpt__conv_read(&w->conv, launch);
    const int64_t phases = w->conv.phases[0] * w->conv.phases[1];
    w->level = level;
    w->products = phases * w->conv.groups;
    w->bytes = 0;
    w->refuses = false;
    if (mpt__conv_is_depthwise(&w->conv)) return false;
    for (int64_t i = 0; i < phases; i++) {
        mpt__conv_product_of(&w->conv, NULL, i, &p);
        if (!mpt__conv_gemm(&g, level, &w->conv, &p)) return false;
        if (i == 0)
            w->whole = w->products > 1 &&
                       g.m * g.n * g.k <= g.level->rate * (int64_t)MPT__GEMM_CHUNK_COST * 16;
        w->refuses |= g.level->refuses;
        int64_t bytes = g.m * g.n > 0 ? mpt__gemm_bytes(&g, w->whole ? 1 : threads) : 0;
        if (bytes > w->bytes) w->bytes = bytes;
    }
    return true;
}

static void mpt__conv_chunk(void *work, int64_t chunk, int thread) {
    mpt__conv_work *w = (mpt__conv_work *)work;
    mpt__conv_product p;
    mpt__gemm g;
    mpt__conv_product_of(&w->conv, w->data, chunk, &p);
    if (p.m == 0 || p.n == 0 || !mpt__conv_gemm(&g, w->level, &w->conv, &p)) return;
    mpt__gemm_run_one(&g, w->whole ? NULL : w->pool, w->workspace + thread * w->bytes, &w->watch);
}

static void mpt__conv_products(mpt__conv_work *w) {
    const mpt__conv *c = &w->conv;
    int64_t macs = c->n * c->y[0] * c->y[1] * c->y[2] * c->in * c->kernel[0] * c->kernel[1];
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
#ifdef MPT__HAS_AMX
MPT__CONV_LEVEL(amx)
#endif
#ifdef MPT__HAS_NEON
MPT__CONV_LEVEL(neon)
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
#ifdef MPT__HAS_AMX
        MPT__CONV_ADD(amx, AMX)
#endif
#ifdef MPT__HAS_NEON
        MPT__CONV_ADD(neon, NEON)
#endif
    }
}

#endif
#endif
