/* ----
 * cpu/pool.c: pooling on the CPU.
 * ---- */
#ifndef MPT__CPU_POOL_INCLUDED
#define MPT__CPU_POOL_INCLUDED

#include "cpu/norm.c"

#ifndef MPTRAIN_NO_CONV

/* Lines along C where channels lie innermost or windows differ, else along W. */
typedef struct mpt__pooling_work {
    const mpt__launch *launch;
    const mpt__routines *routines;
    mpt__cpu_view view[3];
    const mpt__operand *more, *less; /* x or dx; y or dy */
    bool wide; /* the index of a maximum is an i32, else a u8 */
    int64_t window[2], step[2], padding[2];
    int64_t lines, blocks; /* of windows of two by two: lines of y of a task, tasks of an image */
    bool back, most, along_c, adaptive, padding_counts, positive;
} mpt__pooling_work;

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__pooling_gates(w) false
#else
#define mpt__pooling_gates(w) ((w)->positive)
#endif

/* What output i of dimension d (0: H, 1: W) covers; returns its size in a mean. */
static int64_t mpt__pooling_bounds(
    const mpt__pooling_work *w, int d, int64_t i, int64_t *begin, int64_t *end) {
    const int64_t in = w->more->shape[2 + d], out = w->less->shape[2 + d];
    if (w->adaptive) {
        *begin = i * in / out;
        *end = mpt__cpu_chunks((i + 1) * in, out);
        return *end - *begin;
    }
    int64_t first = i * w->step[d] - w->padding[d];
    int64_t last = mpt__cpu_min(first + w->window[d], in + w->padding[d]);
    *begin = first > 0 ? first : 0;
    *end = mpt__cpu_min(last, in);
    return w->padding_counts ? last - first : *end - *begin;
}

/* The outputs of dimension d that cover input i: [*begin, *end). */
static void mpt__pooling_covers(
    const mpt__pooling_work *w, int d, int64_t i, int64_t *begin, int64_t *end) {
    const int64_t in = w->more->shape[2 + d], out = w->less->shape[2 + d];
    if (w->adaptive) {
        *begin = i * out / in;
        *end = mpt__cpu_chunks((i + 1) * out, in);
        return;
    }
    int64_t before = i + w->padding[d] - w->window[d];
    *begin = before < 0 ? 0 : before / w->step[d] + 1;
    *end = mpt__cpu_min((i + w->padding[d]) / w->step[d] + 1, out);
}

static int64_t mpt__pooling_at(const mpt__operand *o, int64_t n, int64_t c, int64_t h, int64_t i) {
    return n * o->stride[0] + c * o->stride[1] + h * o->stride[2] + i * o->stride[3];
}

/* Takes one element into a maximum, as PyTorch does: a NaN wins over all before it. */
static MPT__INLINE void mpt__pooling_take(
    mpt__real x, uint32_t at, mpt__real *best, uint32_t *index) {
    if (!(x > *best) && !mpt__real_is_nan(x)) return;
    *best = x;
    *index = at;
}

static void mpt__pooling_give(const mpt__pooling_work *w, int64_t offset, int64_t step,
    int64_t place, int64_t place_step, const mpt__real *y, const uint32_t *index, int64_t n) {
    char *to = (char *)w->view[2].data;
    mpt__cpu_put(&w->view[1], offset, step, y, n);
    for (int64_t i = 0; to != NULL && i < n; i++, place += place_step) {
        const uint32_t at = mpt__pooling_gates(w) && y[i] <= 0 ? UINT32_MAX : index[i];
        if (w->wide)
            ((uint32_t *)(void *)to)[place] = at;
        else
            ((uint8_t *)to)[place] = (uint8_t)at;
    }
}

/* Where in its window the maximum of an output was. */
static MPT__INLINE uint32_t mpt__pooling_index(const mpt__pooling_work *w, int64_t place) {
    const char *from = (const char *)w->view[1].data;
    return w->wide ? ((const uint32_t *)(const void *)from)[place] : ((const uint8_t *)from)[place];
}

/* Output [n, .., oh, ow] of all channels. */
static void mpt__pooling_pixel(const mpt__pooling_work *w, int64_t n, int64_t oh, int64_t ow) {
    const mpt__operand *x = w->more, *y = w->less, *o = &w->launch->operand[2];
    mpt__real block[MPT__BLOCK], best[MPT__BLOCK];
    uint32_t index[MPT__BLOCK];
    int64_t h0, h1, w0, w1, channels = x->shape[1];
    int64_t size = mpt__pooling_bounds(w, 0, oh, &h0, &h1);
    size *= mpt__pooling_bounds(w, 1, ow, &w0, &w1);
    for (int64_t c = 0, m; c < channels; c += m) {
        m = mpt__cpu_min(MPT__BLOCK, channels - c);
        for (int64_t k = 0; k < m; k++) {
            best[k] = w->most ? -mpt__real_infinity() : 0;
            index[k] = 0;
        }
        uint32_t at = 0;
        for (int64_t h = h0; h < h1; h++) {
            for (int64_t i = w0; i < w1; i++, at++) {
                const mpt__real *in = mpt__cpu_in(
                    &w->view[0], mpt__pooling_at(x, n, c, h, i), x->stride[1], block, m);
                if (!w->most) w->routines->binary[MPT__BINARY_ADD](best, best, in, m, 0, 0);
                for (int64_t k = 0; w->most && k < m; k++)
                    mpt__pooling_take(in[k], at, &best[k], &index[k]);
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
    uint32_t index[MPT__BLOCK];
    int64_t h0, h1, w0, w1, left, most = MPT__BLOCK / 2 / w->step[1];
    const int64_t high = mpt__pooling_bounds(w, 0, oh, &h0, &h1);
    for (int64_t first = 0, m; first < y->shape[3]; first += m) {
        m = mpt__cpu_min(most, y->shape[3] - first);
        mpt__pooling_bounds(w, 1, first, &left, &w1);
        mpt__pooling_bounds(w, 1, first + m - 1, &w0, &w1);
        for (int64_t h = h0; h < h1; h++) {
            const mpt__real *in = mpt__cpu_in(
                &w->view[0], mpt__pooling_at(x, n, c, h, left), x->stride[3], block, w1 - left);
            for (int64_t k = 0; k < m; k++) {
                int64_t begin, end;
                mpt__pooling_bounds(w, 1, first + k, &begin, &end);
                if (h == h0) {
                    best[k] = w->most ? -mpt__real_infinity() : 0;
                    index[k] = 0;
                }
                uint32_t at = (uint32_t)(h - h0) * (uint32_t)(end - begin);
                for (int64_t i = begin; i < end; i++, at++) {
                    if (w->most)
                        mpt__pooling_take(in[i - left], at, &best[k], &index[k]);
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
    int64_t h0, h1, w0, w1, top, left, end, channels = dx->shape[1];
    mpt__pooling_covers(w, 0, h, &h0, &h1);
    mpt__pooling_covers(w, 1, i, &w0, &w1);
    for (int64_t c = 0, m; c < channels; c += m) {
        m = mpt__cpu_min(MPT__BLOCK, channels - c);
        memset(sum, 0, (size_t)m * sizeof *sum);
        for (int64_t oh = h0; oh < h1; oh++) {
            const int64_t high = mpt__pooling_bounds(w, 0, oh, &top, &end);
            for (int64_t ow = w0; ow < w1; ow++) {
                const mpt__real *in = mpt__cpu_in(
                    &w->view[0], mpt__pooling_at(dy, n, c, oh, ow), dy->stride[1], block, m);
                const mpt__real size =
                    (mpt__real)(high * mpt__pooling_bounds(w, 1, ow, &left, &end));
                const int64_t place = mpt__pooling_at(o, n, c, oh, ow);
                const uint32_t at =
                    (uint32_t)(h - top) * (uint32_t)(end - left) + (uint32_t)(i - left);
                for (int64_t k = 0; k < m; k++) {
                    if (!w->most)
                        sum[k] += in[k] / size;
                    else if (mpt__pooling_index(w, place + k * o->stride[1]) == at)
                        sum[k] += in[k];
                }
            }
        }
        mpt__cpu_put(&w->view[2], mpt__pooling_at(dx, n, c, h, i), dx->stride[1], sum, m);
    }
}

/* Gradients [n, c, h, ..]. */
static void mpt__pooling_back_line(const mpt__pooling_work *w, int64_t n, int64_t c, int64_t h) {
    const mpt__operand *dx = w->more, *dy = w->less, *o = &w->launch->operand[1];
    mpt__real in, sum[MPT__BLOCK];
    int64_t h0, h1, w0, w1, begin, end, top, below, width = dx->shape[3];
    mpt__pooling_covers(w, 0, h, &h0, &h1);
    for (int64_t first = 0, m; first < width; first += m) {
        m = mpt__cpu_min(MPT__BLOCK, width - first);
        memset(sum, 0, (size_t)m * sizeof *sum);
        mpt__pooling_covers(w, 1, first, &w0, &end);
        mpt__pooling_covers(w, 1, first + m - 1, &begin, &w1);
        for (int64_t oh = h0; oh < h1; oh++) {
            const int64_t high = mpt__pooling_bounds(w, 0, oh, &top, &below);
            for (int64_t ow = w0; ow < w1; ow++) {
                const int64_t size = high * mpt__pooling_bounds(w, 1, ow, &begin, &end);
                int64_t to = 0;
                if (w->most) { /* in this line of its window */
                    const uint32_t wide = (uint32_t)(end - begin);
                    const uint32_t at = mpt__pooling_index(w, mpt__pooling_at(o, n, c, oh, ow)) -
                        (uint32_t)(h - top) * wide;
                    to = begin - first + at;
                    if (at >= wide || to < 0 || to >= m) continue;
                }
                in = mpt__cpu_get_one(&w->view[0], mpt__pooling_at(dy, n, c, oh, ow));
                if (w->most) {
                    sum[to] += in;
                    continue;
                }
                const mpt__real part = in / (mpt__real)size;
                for (int64_t i = begin; i < end; i++)
                    if (i >= first && i < first + m) sum[i - first] += part;
            }
        }
        mpt__cpu_put(&w->view[2], mpt__pooling_at(dx, n, c, h, first), dx->stride[3], sum, m);
    }
}

/* ==== Windows of two by two, one beside the other ==== */

#define MPT__POOLING_TASK 2048 /* elements of y that a task has at least, where there are so many */

#ifndef MPTRAIN_NO_SIMD

static bool mpt__pooling_is_dense(const mpt__operand *o, bool along_c) {
    return o->stride[along_c ? 1 : 3] == 1;
}

/* Whether the level has vectors for all of it. */
static bool mpt__pooling_is_two(const mpt__pooling_work *w) {
    const mpt__operand *o = &w->launch->operand[w->back ? 1 : 2];
    const bool index = w->view[w->back ? 1 : 2].data != NULL;
    bool two = w->routines->windows != NULL && !w->adaptive && !w->wide;
    for (int d = 0; d < 2; d++) {
        two = two && w->window[d] == 2 && w->step[d] == 2 && w->padding[d] == 0 &&
            2 * w->less->shape[2 + d] <= w->more->shape[2 + d];
    }
    return two && w->more->dtype == w->less->dtype &&
        (mpt__cpu_is_real(w->more->dtype) || mpt__cpu_is_half(w->more->dtype)) &&
        mpt__pooling_is_dense(w->more, w->along_c) && mpt__pooling_is_dense(w->less, w->along_c) &&
        (!index || mpt__pooling_is_dense(o, w->along_c));
}

/* What no window covers at the right of lines h.. has no gradient. */
static void mpt__pooling_rest(
    const mpt__pooling_work *w, int64_t n, int64_t c, int64_t h, int64_t lines) {
    const int64_t width = w->more->shape[3], covered = 2 * w->less->shape[3];
    for (int64_t end = h + lines; h < end; h++) {
        for (int64_t i = covered; i < width; i++) {
            if (w->along_c)
                mpt__pooling_back_pixel(w, n, h, i);
            else
                mpt__cpu_put_one(&w->view[2], mpt__pooling_at(w->more, n, c, h, i), 0);
        }
    }
}

static void mpt__pooling_two(void *work, int64_t task, int thread) {
    const mpt__pooling_work *w = (const mpt__pooling_work *)work;
    const mpt__operand *x = w->more, *y = w->less, *o = &w->launch->operand[w->back ? 1 : 2];
    const int64_t bytes = mpt__dtype_info[x->dtype].bytes, planes = w->along_c ? 1 : x->shape[1];
    const int64_t line = task % w->blocks * w->lines, plane = task / w->blocks;
    const int64_t n = plane / planes, c = plane % planes;
    const mpt__cpu_view *index = &w->view[w->back ? 1 : 2];
    mpt__windows p;
    (void)thread;
    p.x = (char *)w->view[w->back ? 2 : 0].data + mpt__pooling_at(x, n, c, 2 * line, 0) * bytes;
    p.y = (char *)w->view[w->back ? 0 : 1].data + mpt__pooling_at(y, n, c, line, 0) * bytes;
    p.index = (uint8_t *)index->data;
    if (p.index != NULL) p.index += mpt__pooling_at(o, n, c, line, 0);
    p.lines = mpt__cpu_min(w->lines, y->shape[2] - line);
    p.count = y->shape[3], p.channels = w->along_c ? x->shape[1] : 0;
    p.x_line = x->stride[2], p.x_pixel = x->stride[3];
    p.y_line = y->stride[2], p.y_pixel = y->stride[3];
    p.index_line = o->stride[2], p.index_pixel = o->stride[3];
    p.dtype = x->dtype, p.most = w->most, p.back = w->back, p.positive = w->positive;
    p.adds = w->back && w->view[2].accumulate;
    w->routines->windows(&p);
    if (!w->back) return;
    mpt__pooling_rest(w, n, c, 2 * line, 2 * p.lines);
    if (line + p.lines < y->shape[2]) return;
    for (int64_t h = 2 * y->shape[2]; h < x->shape[2]; h++) {
        if (!w->along_c) mpt__pooling_back_line(w, n, c, h);
        for (int64_t i = 0; w->along_c && i < x->shape[3]; i++) mpt__pooling_back_pixel(w, n, h, i);
    }
}

#endif

/* ==== All of them ==== */

static void mpt__pooling_task(void *work, int64_t task, int thread) {
    const mpt__pooling_work *w = (const mpt__pooling_work *)work;
    const bool back = w->back;
    const mpt__operand *o = back ? w->more : w->less;
    const int64_t rows = task % o->shape[2], rest = task / o->shape[2];
    (void)thread;
    if (!w->along_c) {
        (back ? mpt__pooling_back_line : mpt__pooling_line)(
            w, rest / o->shape[1], rest % o->shape[1], rows);
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
    w.routines = call->routines;
    w.back = back;
    for (int k = 0; k < 3; k++) {
        memset(&w.view[k], 0, sizeof w.view[k]);
        if (call->data[k] != NULL) w.view[k] = mpt__cpu_view_of(call, k);
    }
    w.more = &launch->operand[back ? 2 : 0];
    w.less = &launch->operand[back ? 0 : 1];
    w.wide = w.view[back ? 1 : 2].data != NULL && launch->operand[back ? 1 : 2].dtype == MPT_I32;
    w.most = launch->function == MPT__FN_MAX;
    w.padding_counts = launch->index[3] & 1;
    w.adaptive = launch->index[3] & 2;
    w.positive = launch->index[3] & 4;
    int64_t *const pair[] = {w.window, w.step, w.padding};
    for (int k = 0; k < 3; k++) {
        pair[k][0] = launch->index[k] >> 32;
        pair[k][1] = launch->index[k] & 0xffffffff;
    }
    w.along_c = w.adaptive || w.more->stride[1] == 1 || w.window[1] > MPT__BLOCK / 2 ||
        w.step[1] > MPT__BLOCK / 4;
    const mpt__operand *o = back ? w.more : w.less;
    int64_t all = mpt__cpu_numel(o), tasks = o->shape[0] * o->shape[2];
    if (all == 0) return;
    if (!w.along_c) tasks *= o->shape[1];
    double cost = (double)mpt__cpu_numel(w.more) + (double)mpt__cpu_numel(w.less);
#ifndef MPTRAIN_NO_SIMD
    if (mpt__cpu_numel(w.less) > 0 && mpt__pooling_is_two(&w)) {
        const int64_t line = w.less->shape[3] * (w.along_c ? w.less->shape[1] : 1);
        w.lines = mpt__cpu_min(MPT__POOLING_TASK / line + 1, w.less->shape[2]);
        w.blocks = mpt__cpu_chunks(w.less->shape[2], w.lines);
        tasks = tasks / o->shape[2] * w.blocks;
        mpt__parallel(call->pool, tasks, (int64_t)(cost * 0.25), mpt__pooling_two, &w);
        return;
    }
#endif
    mpt__parallel(call->pool, tasks, (int64_t)(cost * 4.0), mpt__pooling_task, &w);
}
#endif

#endif
