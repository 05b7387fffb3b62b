/* ----
 * cpu/template/planes.c: convolutions of few channels whose images lie channel by channel, without
 * stride (mpt__planes, cpu/elementwise.c).
 *
 * Lines of some images are copied side by side to one strip of floats, with zeros for the padding
 * that neighbours share: so vectors are full whatever an image's size. Sums of pixels that straddle
 * two images are left. The order of a sum is that of channels, lines and pixels of the kernel, or,
 * of a gradient of weights, of the strip's lines and vectors.
 * ---- */
#if defined(MPT__V) && !defined(MPTRAIN_NO_CONV)

#if MPT__WIDTH == 8
#define MPT__PLANE_VECTORS 3 /* of a tile, all of whose sums are in registers */
#define MPT__PLANE_ROWS 2    /* channels of dy at a time */
#else
#define MPT__PLANE_VECTORS 4
#define MPT__PLANE_ROWS 4
#endif

/* Loads a vector once: gcc would load it for each product, across lines of the cache. */
#if defined(__GNUC__) && defined(MPT__X86)
#define MPT__PLANE_HOLD(v) __asm__("" : "+v"(v))
#else
#define MPT__PLANE_HOLD(v) (void)0
#endif

/* ==== Strips ==== */

/* Lines of all images of a channel; the first `left` zeros are behind `to`. */
MPT__OP void MPT__LEVEL(plane_lines_of)(const mpt__planes *p, const mpt__plane_side *s, int64_t at,
    int64_t lines, int64_t left, float *to, int dtype, int round) {
    const int64_t bytes = dtype == MPT_F32 ? 4 : 2, n = s->size[1];
    for (int64_t l = 0; l < lines; l++, at += n, to += p->row) {
        const char *from = s->data + at * bytes, *gate = s->gate;
        if (gate) gate += at * bytes;
        float *line = to + left;
        for (int64_t i = 0; i < left; i += MPT__WIDTH) v_store(to + i, v_zero());
        for (int64_t m = 0; m < p->images; m++, line += p->step, from += s->image * bytes) {
            for (int64_t i = 0; i < n; i += MPT__WIDTH) {
                v_f v = v_load_as(from + i * bytes, n - i, dtype);
                if (round != 0) v = v_round(v, round);
                if (gate) v = v_gate(v_load_as(gate + i * bytes, n - i, dtype), v);
                v_store(line + i, v);
            }
            for (int64_t i = n; i < p->step; i += MPT__WIDTH) v_store(line + i, v_zero());
            if (gate) gate += s->image * bytes;
        }
        for (float *end = to + p->row; line < end; line += MPT__WIDTH) v_store(line, v_zero());
    }
}
/* Lines from `first` on of channels, strip behind strip. */
MPT__FN MPT__NOINLINE void MPT__LEVEL(plane_strips)(const mpt__planes *p,
    const mpt__plane_side *s, int64_t channels, int64_t first, int64_t lines, int64_t left,
    float *to) {
    for (int64_t c = 0; c < channels; c++, to += lines * p->row) {
        const int64_t at = (c * s->size[0] + first) * s->size[1];
        if (s->dtype == MPT_F32 && s->round == 0)
            MPT__LEVEL(plane_lines_of)(p, s, at, lines, left, to, MPT_F32, 0);
        else
            MPT__LEVEL(plane_lines_of)(p, s, at, lines, left, to, s->dtype, s->round);
    }
}

/* ==== Sums of taps ==== */

#define MPT__PLANE_START(o) \
    const v_f b##o = o < rows ? v_set(bias[o]) : v_zero(); \
    v_f s##o##0 = b##o, s##o##1 = b##o, s##o##2 = b##o, s##o##3 = b##o;
#define MPT__PLANE_STEP(o) \
    if (o < rows) { \
        const v_f k = v_set(weights[o]); \
        s##o##0 = v_fma(x0, k, s##o##0), s##o##1 = v_fma(x1, k, s##o##1); \
        s##o##2 = v_fma(x2, k, s##o##2); \
        if (MPT__PLANE_VECTORS > 3) s##o##3 = v_fma(x3, k, s##o##3); \
    }
#define MPT__PLANE_STORE(o) \
    if (o < rows) { \
        v_store(to + o * p->row, s##o##0), v_store(to + o * p->row + MPT__WIDTH, s##o##1); \
        v_store(to + o * p->row + 2 * MPT__WIDTH, s##o##2); \
        if (MPT__PLANE_VECTORS > 3) v_store(to + o * p->row + 3 * MPT__WIDTH, s##o##3); \
    }

/* Some pixels of a line of `rows` channels: x is their first tap, of `taps` lines. */
MPT__OP void MPT__LEVEL(plane_tile)(const mpt__planes *p, const float *x, int64_t channel,
    int64_t taps, const float *weights, const float *bias, float *to, int rows) {
    const int64_t skipped = (p->kernel[0] - taps) * p->kernel[1] * rows;
    MPT__FOUR(MPT__PLANE_START)
    for (int64_t c = 0; c < p->in; c++, x += channel, weights += skipped) {
        const float *line = x;
        for (int64_t t = 0; t < taps; t++, line += p->row)
            for (int64_t i = 0; i < p->kernel[1]; i++, weights += rows) {
                v_f x0 = v_load(line + i), x1 = v_load(line + i + MPT__WIDTH);
                v_f x2 = v_load(line + i + 2 * MPT__WIDTH), x3 = x2;
                if (MPT__PLANE_VECTORS > 3) x3 = v_load(line + i + 3 * MPT__WIDTH);
                MPT__PLANE_HOLD(x0);
                MPT__PLANE_HOLD(x1);
                MPT__PLANE_HOLD(x2);
                if (MPT__PLANE_VECTORS > 3) MPT__PLANE_HOLD(x3);
                MPT__FOUR(MPT__PLANE_STEP)
            }
    }
    MPT__FOUR(MPT__PLANE_STORE)
}
#define MPT__PLANE_TILE(rows) \
    MPT__FN void MPT__LEVEL(plane_tile##rows)(const mpt__planes *p, const float *x, \
        int64_t channel, int64_t taps, const float *weights, const float *bias, float *to) { \
        MPT__LEVEL(plane_tile)(p, x, channel, taps, weights, bias, to, rows); \
    }
MPT__PLANE_TILE(1)
MPT__PLANE_TILE(2)
MPT__PLANE_TILE(3)
MPT__PLANE_TILE(4)

/* A line of sums goes to its images. */
MPT__OP void MPT__LEVEL(plane_put_as)(
    const mpt__planes *p, const float *from, int64_t at, int dtype) {
    const int64_t bytes = dtype == MPT_F32 ? 4 : 2, n = p->y.size[1];
    char *to = p->to + at * bytes;
    for (int64_t m = 0; m < p->images; m++, from += p->step, to += p->y.image * bytes)
        for (int64_t i = 0; i < n; i += MPT__WIDTH) {
            v_f v = v_load(from + i);
            if (p->adds) v = v_add(v_load_as(to + i * bytes, n - i, dtype), v);
            if (p->relu) v = v_relu(v);
            v_store_as(to + i * bytes, v, n - i, dtype);
        }
}

MPT__FN void MPT__LEVEL(plane_sums)(const mpt__planes *p) {
    static void (*const tiles[])(const mpt__planes *, const float *, int64_t, int64_t,
        const float *, const float *, float *) = {MPT__LEVEL(plane_tile1), MPT__LEVEL(plane_tile2),
        MPT__LEVEL(plane_tile3), MPT__LEVEL(plane_tile4)};
    enum { TILE = MPT__PLANE_VECTORS * MPT__WIDTH };
    const int64_t from = mpt__plane_first(p), high = mpt__plane_end(p) - from;
    const int64_t channel = high * p->row, tile = TILE, wide = p->wide > tile ? p->wide : tile;
    float *sums = p->room + p->in * channel;
    MPT__LEVEL(plane_strips)(p, &p->x, p->in, from, high, p->padding[1], p->room);
    for (int64_t y = p->first; y < p->first + p->lines; y++) {
        int64_t t0 = p->padding[0] - y, t1 = p->x.size[0] + t0;
        t0 = t0 > 0 ? t0 : 0, t1 = t1 < p->kernel[0] ? t1 : p->kernel[0];
        const float *x = p->room + (y + t0 - p->padding[0] - from) * p->row;
        const float *weights = p->weights;
        for (int64_t o = 0, n; o < p->out; o += n) {
            n = mpt__plane_rows(p->out - o);
            for (int64_t i = 0; i < wide; i += TILE) {
                const int64_t at = i < wide - TILE ? i : wide - TILE;
                tiles[n - 1](p, x + at, channel, t1 - t0, weights + t0 * p->kernel[1] * n,
                    p->bias + o, sums + at);
            }
            for (int64_t r = 0; r < n; r++) {
                const int64_t to = ((o + r) * p->y.size[0] + y) * p->y.size[1];
                if (p->y.dtype == MPT_F32)
                    MPT__LEVEL(plane_put_as)(p, sums + r * p->row, to, MPT_F32);
                else
                    MPT__LEVEL(plane_put_as)(p, sums + r * p->row, to, p->y.dtype);
            }
            weights += n * p->in * p->kernel[0] * p->kernel[1];
        }
    }
}

/* ==== Gradients of weights ==== */

#define MPT__PLANE_SLOPE_START(o) \
    v_f s##o##0 = v_zero(), s##o##1 = s##o##0, s##o##2 = s##o##0, s##o##3 = s##o##0, \
        s##o##4 = s##o##0;
#define MPT__PLANE_SLOPE_STEP(o) \
    if (o < rows) { \
        const v_f d = v_load(dy + o * channel + i); \
        s##o##0 = v_fma(d, x0, s##o##0), s##o##1 = v_fma(d, x1, s##o##1); \
        s##o##2 = v_fma(d, x2, s##o##2); \
        if (taps > 3) s##o##3 = v_fma(d, x3, s##o##3), s##o##4 = v_fma(d, x4, s##o##4); \
    }
#define MPT__PLANE_SLOPE_END(o) \
    if (o < rows) { \
        to[5 * o] = v_total(s##o##0), to[5 * o + 1] = v_total(s##o##1); \
        to[5 * o + 2] = v_total(s##o##2); \
        if (taps > 3) to[5 * o + 3] = v_total(s##o##3), to[5 * o + 4] = v_total(s##o##4); \
    }

/* What lines of `rows` channels of dy give to neighbouring taps, to[rows][5]. */
MPT__OP void MPT__LEVEL(plane_slope)(const mpt__planes *p, const float *dy, int64_t channel,
    const float *x, int64_t lines, float *to, int rows, int taps) {
    MPT__FOUR(MPT__PLANE_SLOPE_START)
    for (; lines > 0; lines--, dy += p->row, x += p->row)
        for (int64_t i = 0; i < p->wide; i += MPT__WIDTH) {
            const v_f x0 = v_load(x + i), x1 = v_load(x + i + 1), x2 = v_load(x + i + 2);
            const v_f x3 = taps > 3 ? v_load(x + i + 3) : x2;
            const v_f x4 = taps > 3 ? v_load(x + i + 4) : x2;
            MPT__FOUR(MPT__PLANE_SLOPE_STEP)
        }
    MPT__FOUR(MPT__PLANE_SLOPE_END)
}
#define MPT__PLANE_SLOPE(rows) \
    MPT__FN void MPT__LEVEL(plane_slope##rows)(const mpt__planes *p, const float *dy, \
        int64_t channel, const float *x, int64_t lines, float *to, bool more) { \
        if (more) \
            MPT__LEVEL(plane_slope)(p, dy, channel, x, lines, to, rows, 5); \
        else \
            MPT__LEVEL(plane_slope)(p, dy, channel, x, lines, to, rows, 3); \
    }
MPT__PLANE_SLOPE(1)
MPT__PLANE_SLOPE(2)
#if MPT__PLANE_ROWS > 2
MPT__PLANE_SLOPE(3)
MPT__PLANE_SLOPE(4)
#endif

/* The gradients of some channels' taps on a line of a channel's kernel. */
MPT__FN void MPT__LEVEL(plane_slopes_of)(const mpt__planes *p, int64_t o, int64_t n, int64_t c,
    int64_t t, const float *dy, const float *x) {
    static void (*const slopes[])(const mpt__planes *, const float *, int64_t, const float *,
        int64_t, float *, bool) = {MPT__LEVEL(plane_slope1), MPT__LEVEL(plane_slope2),
#if MPT__PLANE_ROWS > 2
        MPT__LEVEL(plane_slope3), MPT__LEVEL(plane_slope4)
#endif
    };
    const int64_t from = mpt__plane_first(p), taps = p->kernel[0] * p->kernel[1];
    int64_t y0 = p->padding[0] - t, y1 = p->x.size[0] + y0;
    if (y0 < p->first) y0 = p->first;
    if (y1 > p->first + p->lines) y1 = p->first + p->lines;
    if (y1 <= y0) return;
    dy += (o * p->lines + y0 - p->first) * p->row;
    x += (c * (mpt__plane_end(p) - from) + y0 + t - p->padding[0] - from) * p->row;
    for (int64_t i = 0, left = p->kernel[1]; left > 0; i += 5, left -= 5) {
        float sums[4 * 5];
        slopes[n - 1](p, dy, p->lines * p->row, x + i, y1 - y0, sums, left > 3);
        float *to = p->sums + (o * p->in + c) * taps + t * p->kernel[1] + i;
        for (int64_t r = 0; r < n; r++, to += p->in * taps)
            for (int64_t k = 0; k < left && k < 5; k++) to[k] += sums[5 * r + k];
    }
}

/* And, behind them, of the biases. */
MPT__FN void MPT__LEVEL(plane_slopes)(const mpt__planes *p) {
    const int64_t from = mpt__plane_first(p), high = mpt__plane_end(p) - from;
    const int64_t channel = p->lines * p->row;
    float *dy = p->room, *x = dy + p->out * channel;
    MPT__LEVEL(plane_strips)(p, &p->y, p->out, p->first, p->lines, 0, dy);
    MPT__LEVEL(plane_strips)(p, &p->x, p->in, from, high, p->padding[1], x);
    v_f zero = v_zero();
    for (int64_t i = 0; i < p->in * high * p->row; i += MPT__WIDTH)
        zero = v_fma(v_load(x + i), v_zero(), zero);
    for (int64_t o = 0; o < p->out; o++) {
        v_f sum = v_zero();
        for (int64_t i = 0; i < channel; i += MPT__WIDTH)
            sum = v_add(sum, v_load(dy + o * channel + i));
        p->biases[o] += v_total(sum);
    }
    if (!(v_total(zero) == 0)) {
        mpt__plane_slopes_apart(p, dy, x);
        return;
    }
    for (int64_t o = 0, n; o < p->out; o += n) {
        n = mpt__plane_rows(p->out - o);
        if (n > MPT__PLANE_ROWS) n = MPT__PLANE_ROWS;
        for (int64_t c = 0; c < p->in; c++)
            for (int64_t t = 0; t < p->kernel[0]; t++)
                MPT__LEVEL(plane_slopes_of)(p, o, n, c, t, dy, x);
    }
}
MPT__FN void MPT__LEVEL(planes)(const mpt__planes *p) {
    if (p->slopes)
        MPT__LEVEL(plane_slopes)(p);
    else
        MPT__LEVEL(plane_sums)(p);
}

#undef MPT__PLANE_HOLD
#undef MPT__PLANE_VECTORS
#undef MPT__PLANE_ROWS
#endif
