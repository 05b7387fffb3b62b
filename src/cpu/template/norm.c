/* ----
 * cpu/template/norm.c: the rows of norms (mpt__norm_block), for floats and halves, which a branch
 * tells apart. What is there or wanted beside x is decided where it is used: a loop for each case
 * would not be faster, but large. X(k) are the vectors that make MPT__NORM_LANES.
 * ---- */
#if defined(MPT__V) && defined(MPT__HAS_NORMS)

#define MPT__NORM_AHEAD 4096 /* bytes */
#define MPT__NORM_SOON 2048  /* of rows that are read twice, which come sooner */

MPT__OP void v_stream_as(void *p, v_f v, int dtype) {
    if (dtype == MPT_F32)
        v_stream((float *)p, v);
    else
        v_store_as(p, v, MPT__WIDTH, dtype);
}

/* Masks are cheap with the widest vectors alone: elsewhere what fills no vector is a call. */
#if MPT__WIDTH == 16
MPT__OP v_f v_load_rest(const void *p, int64_t n, int dtype) { return v_load_as(p, n, dtype); }
#else
MPT__FN MPT__NOINLINE v_f v_load_rest(const void *p, int64_t n, int dtype) {
    return v_load_as(p, n, dtype);
}
#endif

/* ==== Sums ==== */

#define MPT__NORM_ZERO(k) v_f s##k = v_zero(), t##k = v_zero();
#define MPT__NORM_CLEAR(k) s##k = t##k = v_zero();
#define MPT__NORM_LOAD_LANES(k) \
    s##k = v_load(lane + k * MPT__WIDTH), t##k = v_load(lane + MPT__NORM_LANES + k * MPT__WIDTH);
#define MPT__NORM_STORE_LANES(k) \
    v_store(lane + k * MPT__WIDTH, s##k), v_store(lane + MPT__NORM_LANES + k * MPT__WIDTH, t##k);
#define MPT__NORM_SUM(k) \
    e = d = v_sub(v_load_full(x + k * MPT__WIDTH * size, dtype), mean); \
    if (slopes) { \
        d = v_load_full(dy + k * MPT__WIDTH * size, dtype); \
        if (relu) d = v_gate(v_load_full(y + k * MPT__WIDTH * size, dtype), d); \
        if (lines) d = v_mul(d, v_load(weight + k * MPT__WIDTH)); \
    } \
    s##k = v_add(s##k, d), t##k = v_add(t##k, v_mul(d, e));
#define MPT__NORM_SUM_REST(k) \
    e = d = v_select(v_first(MPT__LEFT(k)), v_sub(MPT__REST_OF(x, k), mean), v_zero()); \
    if (slopes) { \
        d = MPT__REST_OF(dy, k); \
        if (relu) d = v_gate(MPT__REST_OF(y, k), d); \
        if (lines) d = v_mul(d, v_load_rest(weight + k * MPT__WIDTH, MPT__LEFT(k), MPT_F32)); \
    } \
    s##k = v_add(s##k, d), t##k = v_add(t##k, v_mul(d, e));
#define MPT__LEFT(k) (left - k * MPT__WIDTH)
#define MPT__REST_OF(p, k) v_load_rest(p + k * MPT__WIDTH * size, MPT__LEFT(k), dtype)
/* Of the widest vectors: rows of bf16 as v_load_two has them, as far as there are pairs. */
#define MPT__TWO_SUM(k) \
    e##k = v_sub(e##k, mean); \
    if (relu) d##k = v_gate(y##k, d##k); \
    s##k = v_add(s##k, d##k), t##k = v_add(t##k, v_mul(d##k, e##k));
#define MPT__TWO_SUM_ONE(k) \
    e##k = v_sub(e##k, mean); \
    s##k = v_add(s##k, e##k), t##k = v_add(t##k, v_mul(e##k, e##k));
#define MPT__TWO_FETCH(p) \
    MPT__PREFETCH_FAR(p + i * size + MPT__NORM_SOON); \
    if (dtype == MPT_F32) MPT__PREFETCH_FAR(p + i * size + MPT__NORM_SOON + 64);
#define MPT__TWO_NORM(k) \
    v##k = v_mul(v_sub(v##k, mean), rstd); \
    if (biased) v##k = v_add(v##k, bias);
#define MPT__TWO_SLOPE(k) \
    v##k = v_mul(v_sub(v##k, mean), slope); \
    d##k = v_sub(v_sub(v_mul(d##k, weight), shift), v##k);
MPT__OP void MPT__LEVEL(norm_sums_of)(mpt__norm_block *b, int dtype) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size;
    const int64_t left = b->n % MPT__NORM_LANES;
    const bool rows = b->mode == MPT__NORM_ROWS, slopes = b->data[MPT__PART_DY];
    const bool relu = b->relu, lines = !rows;
    float *lane = b->lane;
    v_f d, e;
    MPT__NORM_VECTORS(MPT__NORM_ZERO)
    if (lane) { MPT__NORM_VECTORS(MPT__NORM_LOAD_LANES) }
    for (int64_t r = 0; r < b->rows; r++) {
        const v_f mean = v_set(b->mean[rows ? r : 0]);
        const char *x = mpt__norm_place(b, MPT__PART_X, r), *end = x + (b->n - left) * size;
        const char *dy = mpt__norm_place(b, MPT__PART_DY, r);
        const char *y = mpt__norm_place(b, MPT__PART_MORE, r);
        const float *weight = b->weight;
#if MPT__WIDTH == 16
        v_f d0, d1, e0, e1, y0 = v_zero(), y1 = y0;
        for (; rows && !slopes && x < end; x += by) {
            v_load_two(x, &e0, &e1, dtype);
            MPT__NORM_VECTORS(MPT__TWO_SUM_ONE)
        }
        for (; rows && x < end; x += by, dy += by, y += by) {
            v_load_two(x, &e0, &e1, dtype), v_load_two(dy, &d0, &d1, dtype);
            if (relu) v_load_two(y, &y0, &y1, dtype);
            MPT__NORM_VECTORS(MPT__TWO_SUM)
        }
        if (rows) v_in_order(&s0, &s1, dtype), v_in_order(&t0, &t1, dtype);
#endif
        for (; x < end; x += by, dy += by, y += by) {
            MPT__NORM_VECTORS(MPT__NORM_SUM)
            if (lines && slopes) weight += MPT__NORM_LANES;
        }
        if (left) { MPT__NORM_VECTORS(MPT__NORM_SUM_REST) }
        if (lane) { MPT__NORM_VECTORS(MPT__NORM_STORE_LANES) }
        if (lines && r + 1 < b->rows) continue;
        b->total[0] = MPT__NORM_FOLD(s), b->total[1] = MPT__NORM_FOLD(t);
        if (lines) return;
        for (int k = 0; k < 2; k++)
            if (b->sum[k]) b->sum[k][r] += b->total[k];
        MPT__NORM_VECTORS(MPT__NORM_CLEAR)
    }
}

/* ==== Results and slopes ==== */

/* The last vector of a row reaches back over the one before; where that would count twice, or it is
   the only one, the reference does it. */
MPT__OP void MPT__LEVEL(norm_of)(mpt__norm_block *b, int dtype, bool plain) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2, n = b->n < MPT__WIDTH ? 0 : b->n;
    const bool relu = !plain && b->relu, more = !plain && b->data[MPT__PART_MORE];
    const bool lines = !plain && b->mode == MPT__NORM_LINES, streams = b->beyond_cache;
    const bool columns = b->mode == MPT__NORM_COLUMNS, biased = b->bias;
    const float *means = b->mean, *rstds = b->rstd, *biases = b->bias, *weights = b->weight;
    v_f bias = v_zero(), v;
    for (int64_t r = 0; r < b->rows; r++) {
        const char *x = mpt__norm_place(b, MPT__PART_X, r);
        const char *y = mpt__norm_place(b, MPT__PART_MORE, r);
        char *out = mpt__norm_place(b, MPT__PART_OUT, r);
        v_f mean = v_set(means[columns ? 0 : r]), rstd = v_set(rstds[columns ? 0 : r]);
        if (!columns && !lines && biased) bias = v_set(biases[r]);
        int64_t i = 0;
#if MPT__WIDTH == 16
        v_f v0, v1;
        const bool fetches = b->fetches, past = plain && b->past;
        for (int64_t m = -(intptr_t)out / size & (64 / size - 1); past && i < n; i += m, m = 0) {
            m = mpt__cpu_min(m > 0 ? m : 32, n - i);
            for (int64_t at = i; m < 32 && at < i + m; at += MPT__WIDTH) {
                const int64_t left = i + m - at;
                v = v_mul(v_sub(v_load_as(x + at * size, left, dtype), mean), rstd);
                if (biased) v = v_add(v, bias);
                if (dtype == MPT_F32 && left >= MPT__WIDTH)
                    v_stream((float *)(void *)out + at, v);
                else
                    v_store_as(out + at * size, v, left, dtype);
            }
            if (m < 32) continue;
            v_load_two(x + i * size, &v0, &v1, dtype);
            MPT__PREFETCH_FAR(x + i * size + MPT__NORM_PAST);
            if (dtype == MPT_F32) MPT__PREFETCH_FAR(x + i * size + MPT__NORM_PAST + 64);
            MPT__NORM_VECTORS(MPT__TWO_NORM)
            v_store_two(out + i * size, v0, v1, dtype, true);
        }
        for (; plain && !columns && i + 32 <= n; i += 32) {
            v_load_two(x + i * size, &v0, &v1, dtype);
            if (fetches) { MPT__TWO_FETCH(x) }
            MPT__NORM_VECTORS(MPT__TWO_NORM)
            v_store_two(out + i * size, v0, v1, dtype, streams);
        }
#endif
        for (; i < n; i += MPT__WIDTH) {
            if (i > n - MPT__WIDTH) i = n - MPT__WIDTH;
            if (columns) mean = v_load(means + i), rstd = v_load(rstds + i);
            if ((columns || lines) && biased) bias = v_load(biases + i);
            v = v_mul(v_sub(v_load_full(x + i * size, dtype), mean), rstd);
            if (lines) v = v_mul(v, v_load(weights + i));
            if (biased) v = v_add(v, bias);
            if (more) v = v_add(v, v_load_full(y + i * size, dtype));
            if (relu) v = v_relu(v);
            if (streams)
                v_stream_as(out + i * size, v, dtype);
            else
                v_store_as(out + i * size, v, MPT__WIDTH, dtype);
        }
    }
    if (streams || (b->past && b->last)) v_fence();
    if (n == 0) mpt__norm_rest(mpt__ref_norm, b, 0, b->rows, 0);
}
MPT__OP void MPT__LEVEL(norm_slope_of)(mpt__norm_block *b, int dtype, bool plain) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2;
    const bool relu = !plain && b->relu, more = !plain && !relu && b->data[MPT__PART_MORE];
    const bool is_out = plain || b->data[MPT__PART_OUT];
    const bool is_rest = !plain && b->data[MPT__PART_REST], streams = b->beyond_cache;
    const bool lines = !plain && b->mode == MPT__NORM_LINES;
    const bool columns = b->mode == MPT__NORM_COLUMNS;
    const int64_t n = lines ? b->n / MPT__WIDTH * MPT__WIDTH : b->n < MPT__WIDTH ? 0 : b->n;
    const float *means = b->mean, *shifts = b->shift, *slopes = b->slope, *weights = b->weight;
    float *const dw = lines ? b->sum[0] : NULL, *const db = lines ? b->sum[1] : NULL;
    v_f rstd = v_zero(), d, v;
    for (int64_t r = 0; r < b->rows; r++) {
        const int64_t of = columns ? 0 : r;
        const char *x = mpt__norm_place(b, MPT__PART_X, r);
        const char *dy = mpt__norm_place(b, MPT__PART_DY, r);
        const char *y = mpt__norm_place(b, MPT__PART_MORE, r);
        char *out = mpt__norm_place(b, MPT__PART_OUT, r);
        char *rest = mpt__norm_place(b, MPT__PART_REST, r);
        v_f mean = v_set(means[of]), weight = v_set(weights[lines ? 0 : of]);
        v_f shift = v_set(shifts[of]), slope = v_set(slopes[of]);
        if (lines) rstd = v_set(b->rstd[r]);
        int64_t i = 0;
#if MPT__WIDTH == 16
        v_f d0, d1, v0, v1;
        const bool fetches = b->fetches;
        for (; plain && !columns && i + 32 <= n; i += 32) {
            v_load_two(x + i * size, &v0, &v1, dtype);
            v_load_two(dy + i * size, &d0, &d1, dtype);
            if (fetches) {
                MPT__TWO_FETCH(x)
                MPT__TWO_FETCH(dy)
            }
            MPT__NORM_VECTORS(MPT__TWO_SLOPE)
            v_store_two(out + i * size, d0, d1, dtype, streams);
        }
#endif
        for (; i < n; i += MPT__WIDTH) {
            if (i > n - MPT__WIDTH) i = n - MPT__WIDTH;
            if (columns || lines) weight = v_load(weights + i);
            if (columns) {
                mean = v_load(means + i);
                shift = v_load(shifts + i), slope = v_load(slopes + i);
            }
            d = v_load_full(dy + i * size, dtype);
            if (relu) d = v_gate(v_load_full(y + i * size, dtype), d);
            v = v_sub(v_load_full(x + i * size, dtype), mean);
            if (lines) v = v_mul(v, rstd);
            if (is_rest) v_store_as(rest + i * size, d, MPT__WIDTH, dtype);
            if (dw) v_store(dw + i, v_add(v_load(dw + i), v_mul(d, v)));
            if (db) v_store(db + i, v_add(v_load(db + i), d));
            if (!is_out) continue;
            d = v_sub(v_sub(v_mul(d, weight), shift), v_mul(v, slope));
            if (lines) d = v_mul(d, rstd);
            if (more) d = v_add(d, v_load_full(y + i * size, dtype));
            if (streams)
                v_stream_as(out + i * size, d, dtype);
            else
                v_store_as(out + i * size, d, MPT__WIDTH, dtype);
        }
    }
    if (streams) v_fence();
    if (n < b->n) mpt__norm_rest(mpt__ref_norm_slope, b, 0, b->rows, n);
}

/* ==== Columns ==== */

/* Vector k of some columns, down the rows. */
#define MPT__COLUMN_BEGIN(k) \
    const v_f mean##k = v_load(mean + k * MPT__WIDTH); \
    v_f s##k = v_load(sum + k * MPT__WIDTH), t##k = v_load(more + k * MPT__WIDTH);
#define MPT__COLUMN_SUM(k) \
    e = d = v_sub(v_load_full(x + k * MPT__WIDTH * size, dtype), mean##k); \
    if (slopes) { \
        d = v_load_full(dy + k * MPT__WIDTH * size, dtype); \
        if (relu) d = v_gate(v_load_full(y + k * MPT__WIDTH * size, dtype), d); \
    } \
    s##k = v_add(s##k, d), t##k = v_add(t##k, v_mul(d, e));
#define MPT__COLUMN_AHEAD(p) \
    for (int64_t k = 0; k < 4 * MPT__WIDTH * size; k += 64) \
        MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD + k);
#define MPT__COLUMN_END(k) \
    v_store(sum + k * MPT__WIDTH, s##k), v_store(more + k * MPT__WIDTH, t##k);
MPT__OP void MPT__LEVEL(norm_columns_of)(mpt__norm_block *b, int dtype) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2, whole = b->n / MPT__WIDTH * MPT__WIDTH;
    const int64_t rows = b->rows;
    const bool relu = b->relu, slopes = b->data[MPT__PART_DY];
    const int64_t x_by = b->step[MPT__PART_X], dy_by = slopes ? b->step[MPT__PART_DY] : 0;
    const int64_t y_by = relu ? b->step[MPT__PART_MORE] : 0;
    v_f d, e;
    for (int64_t i = 0, by; i < whole; i += by) {
        const float *mean = b->mean + i;
        float *sum = b->sum[0] + i, *more = b->sum[1] + i;
        const char *x = mpt__norm_place(b, MPT__PART_X, 0) + i * size;
        const char *dy = mpt__norm_place(b, MPT__PART_DY, 0) + i * size;
        const char *y = mpt__norm_place(b, MPT__PART_MORE, 0) + i * size;
        by = whole - i < 4 * MPT__WIDTH ? MPT__WIDTH : 4 * MPT__WIDTH;
        if (by == MPT__WIDTH) {
            MPT__COLUMN_BEGIN(0)
            for (int64_t r = 0; r < rows; r++, x += x_by, dy += dy_by, y += y_by) {
                MPT__COLUMN_SUM(0)
            }
            MPT__COLUMN_END(0)
        } else {
            MPT__FOUR(MPT__COLUMN_BEGIN)
            for (int64_t r = 0; r < rows; r++, x += x_by, dy += dy_by, y += y_by) {
                MPT__COLUMN_AHEAD(x)
                if (slopes) { MPT__COLUMN_AHEAD(dy) }
                if (relu) { MPT__COLUMN_AHEAD(y) }
                MPT__FOUR(MPT__COLUMN_SUM)
            }
            MPT__FOUR(MPT__COLUMN_END)
        }
    }
    if (whole < b->n) mpt__norm_rest(mpt__ref_norm_columns, b, 0, b->rows, whole);
}

/* ==== The widest vectors ==== */

#if MPT__WIDTH == 16
/* Passes, of this level alone, where their gain pays for their size. Pairs of bf16 come as two
   vectors, even places and odd ones, as do weights, sums and bias. What is read lies in pages that
   no cache foresees: all lines of a step are asked for. */
#define MPT__NORM_FETCH(p) \
    MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD); \
    if (dtype == MPT_F32) MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD + 64);
/* Vector k of a row, and of the next. */
#define MPT__NORM_NEXT(k) \
    if (centred) v##k = v_sub(v##k, mean); \
    v##k = v_mul(v_mul(v##k, rstd), v_load(weight + k * MPT__WIDTH)); \
    if (bias) v##k = v_add(v##k, v_load(bias + k * MPT__WIDTH));
#define MPT__NORM_NEXT_SUM(k) \
    if (centred) e##k = v_sub(e##k, next_mean), s##k = v_add(s##k, e##k); \
    t##k = v_add(t##k, v_mul(e##k, e##k));
/* A step reads before it writes, which may be as far into a page: a CPU that first compares no more
   than that would wait. Of floats the next row comes last: those in no cache took 8 % longer
   otherwise (measured on Zen 4). */
#define MPT__NORM_SLOPE_GET(k) \
    w##k = v_load(weight + k * MPT__WIDTH), dw##k = v_load(dw + k * MPT__WIDTH); \
    if (db) db##k = v_load(db + k * MPT__WIDTH);
#define MPT__NORM_SLOPE_AHEAD \
    v_load_two(next, &e0, &e1, dtype), v_load_two(next_dy, &g0, &g1, dtype);
#define MPT__NORM_SLOPE_NEXT(k) \
    if (dtype == MPT_F32) { MPT__NORM_SLOPE_GET(k) } \
    v##k = v_mul(centred ? v_sub(v##k, mean) : v##k, rstd); \
    v_store(dw + k * MPT__WIDTH, v_add(dw##k, v_mul(d##k, v##k))); \
    if (db) v_store(db + k * MPT__WIDTH, v_add(db##k, d##k)); \
    d##k = v_mul(d##k, w##k); \
    if (centred) d##k = v_sub(d##k, shift); \
    d##k = v_mul(v_sub(d##k, v_mul(v##k, slope)), rstd);
#define MPT__NORM_SLOPE_SUM(k) \
    g##k = v_mul(g##k, w##k); \
    if (centred) s##k = v_add(s##k, g##k), e##k = v_sub(e##k, next_mean); \
    t##k = v_add(t##k, v_mul(g##k, e##k));
MPT__OP void MPT__LEVEL(norm_next_of)(mpt__norm_block *b, int dtype) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size;
    const bool centred = b->mean, streams = b->beyond_cache;
    const v_f mean = v_set(centred ? *b->mean : 0), rstd = v_set(*b->rstd);
    const v_f next_mean = v_set(b->next_mean);
    const float *weight = b->weight, *bias = b->bias;
    const char *x = b->data[MPT__PART_X], *end = x + b->n * size, *next = b->next[0];
    char *out = b->data[MPT__PART_OUT];
    v_f v0, v1, e0, e1;
    MPT__NORM_VECTORS(MPT__NORM_ZERO);
    for (; x < end; x += by, next += by, out += by) {
        MPT__NORM_FETCH(next)
        v_load_two(x, &v0, &v1, dtype);
        MPT__NORM_VECTORS(MPT__NORM_NEXT);
        v_load_two(next, &e0, &e1, dtype);
        v_store_two(out, v0, v1, dtype, streams);
        MPT__NORM_VECTORS(MPT__NORM_NEXT_SUM);
        weight += MPT__NORM_LANES;
        if (bias) bias += MPT__NORM_LANES;
    }
    if (streams && b->last) v_fence();
    v_in_order(&s0, &s1, dtype), v_in_order(&t0, &t1, dtype);
    b->total[0] = MPT__NORM_FOLD(s), b->total[1] = MPT__NORM_FOLD(t);
}
MPT__OP void MPT__LEVEL(norm_slope_next_of)(mpt__norm_block *b, int dtype) {
    const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size;
    const bool centred = b->mean, streams = b->beyond_cache;
    const v_f mean = v_set(centred ? *b->mean : 0), rstd = v_set(*b->rstd);
    const v_f shift = v_set(*b->shift), slope = v_set(*b->slope);
    const v_f next_mean = v_set(b->next_mean);
    const float *weight = b->weight;
    const char *x = b->data[MPT__PART_X], *dy = b->data[MPT__PART_DY];
    const char *end = x + b->n * size;
    const char *next = b->next[0], *next_dy = b->next[1];
    char *out = b->data[MPT__PART_OUT];
    float *dw = b->sum[0], *db = b->sum[1];
    v_f d0, d1, v0, v1, e0, e1, g0, g1, w0, w1, dw0, dw1;
    v_f db0 = v_zero(), db1 = db0;
    MPT__NORM_VECTORS(MPT__NORM_ZERO);
    for (; x < end; x += by, dy += by, next += by, next_dy += by, out += by) {
        MPT__NORM_FETCH(next)
        MPT__NORM_FETCH(next_dy)
        v_load_two(x, &v0, &v1, dtype), v_load_two(dy, &d0, &d1, dtype);
        if (dtype != MPT_F32) {
            MPT__NORM_SLOPE_AHEAD
            MPT__NORM_VECTORS(MPT__NORM_SLOPE_GET)
        }
        MPT__NORM_VECTORS(MPT__NORM_SLOPE_NEXT);
        v_store_two(out, d0, d1, dtype, streams);
        if (dtype == MPT_F32) { MPT__NORM_SLOPE_AHEAD }
        MPT__NORM_VECTORS(MPT__NORM_SLOPE_SUM);
        weight += MPT__NORM_LANES, dw += MPT__NORM_LANES;
        if (db) db += MPT__NORM_LANES;
    }
    if (streams && b->last) v_fence();
    v_in_order(&s0, &s1, dtype), v_in_order(&t0, &t1, dtype);
    b->total[0] = MPT__NORM_FOLD(s), b->total[1] = MPT__NORM_FOLD(t);
}

/* Columns of bf16 in pairs, down the rows, their numbers in registers; false where a word has to do
   without. */
#define MPT__BY_TWO(b) \
    ((b)->mode == MPT__NORM_COLUMNS && (b)->dtype == MPT_BF16 && (b)->n % 32 == 0 && \
        !(b)->beyond_cache)
#define MPT__TWO_PLACE(part) mpt__norm_place(b, part, r) + 2 * i
#define MPT__TWO_LOAD(part, a) \
    MPT__PREFETCH_FAR(MPT__TWO_PLACE(part) + 2048); \
    v_load_two(MPT__TWO_PLACE(part), &a##0, &a##1, MPT_BF16);
#define MPT__TWO_STORE(part, a) v_store_two(MPT__TWO_PLACE(part), a##0, a##1, MPT_BF16, false);
#define MPT__TWO_NUMBER(a) \
    v_f a##0, a##1; \
    v_load_apart(b->a + i, &a##0, &a##1);
#define MPT__COLUMN_NORM(k) v##k = v_add(v_mul(v_sub(v##k, mean##k), rstd##k), bias##k);
#define MPT__COLUMN_SLOPE(k) \
    v##k = v_mul(v_sub(v##k, mean##k), slope##k); \
    d##k = v_sub(v_sub(v_mul(d##k, weight##k), shift##k), v##k);
MPT__FN bool MPT__LEVEL(norm_two)(const mpt__norm_block *b) {
    v_f v0, v1, y0, y1;
    if (!MPT__BY_TWO(b) || !b->bias) return false;
    for (int64_t i = 0; i < b->n; i += 32) {
        MPT__TWO_NUMBER(mean)
        MPT__TWO_NUMBER(rstd)
        MPT__TWO_NUMBER(bias)
        for (int64_t r = 0; r < b->rows; r++) {
            MPT__TWO_LOAD(MPT__PART_X, v)
            MPT__COLUMN_NORM(0)
            MPT__COLUMN_NORM(1)
            if (b->data[MPT__PART_MORE]) {
                MPT__TWO_LOAD(MPT__PART_MORE, y)
                v0 = v_add(v0, y0), v1 = v_add(v1, y1);
            }
            if (b->relu) v0 = v_relu(v0), v1 = v_relu(v1);
            MPT__TWO_STORE(MPT__PART_OUT, v)
        }
    }
    return true;
}
MPT__FN bool MPT__LEVEL(norm_slope_two)(const mpt__norm_block *b) {
    v_f v0, v1, d0, d1, y0 = v_zero(), y1 = y0;
    const bool more = b->data[MPT__PART_MORE];
    if (!MPT__BY_TWO(b) || !b->data[MPT__PART_OUT]) return false;
    for (int64_t i = 0; i < b->n; i += 32) {
        MPT__TWO_NUMBER(mean)
        MPT__TWO_NUMBER(weight)
        MPT__TWO_NUMBER(shift)
        MPT__TWO_NUMBER(slope)
        for (int64_t r = 0; r < b->rows; r++) {
            MPT__TWO_LOAD(MPT__PART_X, v)
            MPT__TWO_LOAD(MPT__PART_DY, d)
            if (more) { MPT__TWO_LOAD(MPT__PART_MORE, y) }
            if (b->relu) d0 = v_gate(y0, d0), d1 = v_gate(y1, d1);
            if (b->data[MPT__PART_REST]) { MPT__TWO_STORE(MPT__PART_REST, d) }
            MPT__COLUMN_SLOPE(0)
            MPT__COLUMN_SLOPE(1)
            if (!b->relu && more) d0 = v_add(d0, y0), d1 = v_add(d1, y1);
            MPT__TWO_STORE(MPT__PART_OUT, d)
        }
    }
    return true;
}
#endif

/* ==== Of each dtype ==== */

MPT__OP void MPT__LEVEL(norm_as)(mpt__norm_block *b, void of(mpt__norm_block *, int)) {
    if (b->dtype == MPT_F32)
        of(b, MPT_F32);
    else if (b->dtype == MPT_F16)
        of(b, MPT_F16);
    else
        of(b, MPT_BF16);
}
MPT__FN void MPT__LEVEL(norm_sums)(mpt__norm_block *b) {
    MPT__LEVEL(norm_as)(b, MPT__LEVEL(norm_sums_of));
}
MPT__FN void MPT__LEVEL(norm_columns)(mpt__norm_block *b) {
    MPT__LEVEL(norm_as)(b, MPT__LEVEL(norm_columns_of));
}
#if MPT__WIDTH == 16
MPT__FN void MPT__LEVEL(norm_next)(mpt__norm_block *b) {
    MPT__LEVEL(norm_as)(b, MPT__LEVEL(norm_next_of));
}
MPT__FN void MPT__LEVEL(norm_slope_next)(mpt__norm_block *b) {
    MPT__LEVEL(norm_as)(b, MPT__LEVEL(norm_slope_next_of));
}
#endif

MPT__OP void MPT__LEVEL(norm_with)(mpt__norm_block *b, void of(mpt__norm_block *, int, bool)) {
    const bool plain = mpt__norm_plain(b);
    if (b->dtype == MPT_F32 && plain)
        of(b, MPT_F32, true);
    else if (b->dtype == MPT_F32)
        of(b, MPT_F32, false);
    else if (b->dtype == MPT_BF16 && plain)
        of(b, MPT_BF16, true);
    else
        of(b, b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16, false);
}
MPT__FN void MPT__LEVEL(norm)(mpt__norm_block *b) {
#if MPT__WIDTH == 16
    if (MPT__LEVEL(norm_two)(b)) return;
#endif
    MPT__LEVEL(norm_with)(b, MPT__LEVEL(norm_of));
}
MPT__FN void MPT__LEVEL(norm_slope)(mpt__norm_block *b) {
#if MPT__WIDTH == 16
    if (MPT__LEVEL(norm_slope_two)(b)) return;
#endif
    MPT__LEVEL(norm_with)(b, MPT__LEVEL(norm_slope_of));
}

#endif
