/* ----
 * cpu/template/rows.c: the routines of a vector level (mpt__routines, cpu/elementwise.c).
 *
 * Every routine does the operations of its reference in the same order: the bits are the same (NaN:
 * as a class). The optimizers alone flush denormals to zero, as moments that fade away would make
 * them slow (cpu/template/update.c).
 * ---- */
#ifdef MPT__V

/* ==== Functions of one and of two ==== */

/* out[i] = value(a, b, c, d) of a, from x, and b, from y. */
MPT__OP void MPT__LEVEL(each)(
    float *out, const float *x, int64_t n, float c, float d, v_f value(v_f, float, float)) {
    int64_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) v_store(out + i, value(v_load(x + i), c, d));
    if (i < n) {
        v_f a = v_load_as(x + i, n - i, MPT_F32);
        v_store_as(out + i, value(a, c, d), n - i, MPT_F32);
    }
}
MPT__OP void MPT__LEVEL(each_two)(float *out, const float *x, const float *y, int64_t n, float c,
    float d, v_f value(v_f, v_f, float, float)) {
    int64_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH)
        v_store(out + i, value(v_load(x + i), v_load(y + i), c, d));
    if (i < n) {
        v_f a = v_load_as(x + i, n - i, MPT_F32), b = v_load_as(y + i, n - i, MPT_F32);
        v_store_as(out + i, value(a, b, c, d), n - i, MPT_F32);
    }
}
#define MPT__UNARY_OF(id, ns, value) \
    MPT__OP v_f MPT__LEVEL(value_##id)(v_f a, float c, float d) { \
        return (void)c, (void)d, value; \
    } \
    MPT__FN void MPT__LEVEL(unary_##id)(float *out, const float *x, int64_t n, float c, float d) { \
        MPT__LEVEL(each)(out, x, n, c, d, MPT__LEVEL(value_##id)); \
    }
#define MPT__BINARY_OF(id, ns, value) \
    MPT__OP v_f MPT__LEVEL(value_##id)(v_f a, v_f b, float c, float d) { \
        return (void)c, (void)d, value; \
    } \
    MPT__FN void MPT__LEVEL(binary_##id)( \
        float *out, const float *x, const float *y, int64_t n, float c, float d) { \
        MPT__LEVEL(each_two)(out, x, y, n, c, d, MPT__LEVEL(value_##id)); \
    }
#define MPT__NOT_HERE(id, ns, value)
MPT__UNARY_FUNCTIONS(MPT__UNARY_OF, MPT__NOT_HERE)
MPT__UNARY_OF(SPLAT, 1, ((void)a, v_set(c)))
MPT__BINARY_FUNCTIONS(MPT__BINARY_OF, MPT__NOT_HERE)

/* ==== Lanes and sums ==== */

MPT__FN float MPT__LEVEL(peak)(const float *x, int64_t n, float start) {
    if (n < MPT__WIDTH) return mpt__ref_peak(x, n, start);
    v_f top = v_set(start);
    for (int64_t i = 0; i + MPT__WIDTH <= n; i += MPT__WIDTH) top = v_larger(v_load(x + i), top);
    return v_peak(v_larger(v_load(x + n - MPT__WIDTH), top));
}

#define MPT__LANES_LOAD(k) v_f s##k = v_load(lane + k * MPT__WIDTH);
#define MPT__LANES_ADD(k) s##k = v_add(s##k, v_load(x + k * MPT__WIDTH));
#define MPT__LANES_MAX(k) s##k = v_max_nan(s##k, v_load(x + k * MPT__WIDTH));
#define MPT__LANES_STORE(k) v_store(lane + k * MPT__WIDTH, s##k);
MPT__FN void MPT__LEVEL(add_lanes)(float *lane, int64_t first, const float *x, int64_t n) {
    const int64_t head = mpt__cpu_min(n, (MPT__SUM_LANES - first % MPT__SUM_LANES) % 16);
    mpt__ref_add_lanes(lane, first, x, head);
    MPT__VECTORS(MPT__LANES_LOAD);
    for (x += head, n -= head; n >= MPT__SUM_LANES; n -= MPT__SUM_LANES) {
        MPT__VECTORS(MPT__LANES_ADD);
        x += MPT__SUM_LANES;
    }
    MPT__VECTORS(MPT__LANES_STORE);
    mpt__ref_add_lanes(lane, first + head, x, n);
}

MPT__FN void MPT__LEVEL(max_lanes)(float *lane, int64_t first, const float *x, int64_t n) {
    const int64_t head = mpt__cpu_min(n, (MPT__SUM_LANES - first % MPT__SUM_LANES) % 16);
    mpt__ref_max_lanes(lane, first, x, head);
    MPT__VECTORS(MPT__LANES_LOAD);
    for (x += head, n -= head; n >= MPT__SUM_LANES; n -= MPT__SUM_LANES) {
        MPT__VECTORS(MPT__LANES_MAX);
        x += MPT__SUM_LANES;
    }
    MPT__VECTORS(MPT__LANES_STORE);
    mpt__ref_max_lanes(lane, first + head, x, n);
}

/* ==== Softmax ==== */

#define MPT__EXP_STEP(k) \
    d = v_sub(v_load(x + k * MPT__WIDTH), shift); \
    e = v_exp(d); \
    v_store(out + k * MPT__WIDTH, differences ? d : e); \
    s##k = v_add(s##k, e);
/* What lies behind the n elements adds nothing to its lane. */
#define MPT__EXP_REST(k) \
    d = v_sub(v_load_as(x + k * MPT__WIDTH, n - k * MPT__WIDTH, MPT_F32), shift); \
    e = v_exp(d); \
    v_store_as(out + k * MPT__WIDTH, differences ? d : e, n - k * MPT__WIDTH, MPT_F32); \
    v_store_as(rest + k * MPT__WIDTH, e, n - k * MPT__WIDTH, MPT_F32); \
    s##k = v_add(s##k, v_load(rest + k * MPT__WIDTH));
MPT__FN void MPT__LEVEL(add_exp)(
    float *lane, float *out, const float *x, int64_t n, float most, bool differences) {
    const v_f shift = v_set(most);
    float rest[MPT__SUM_LANES] = {0};
    v_f d, e;
    MPT__VECTORS(MPT__LANES_LOAD);
    for (; n >= MPT__SUM_LANES; n -= MPT__SUM_LANES) {
        MPT__VECTORS(MPT__EXP_STEP);
        x += MPT__SUM_LANES, out += MPT__SUM_LANES;
    }
    if (n > 0) { MPT__VECTORS(MPT__EXP_REST); }
    MPT__VECTORS(MPT__LANES_STORE);
}

MPT__FN void MPT__LEVEL(softmax)(float *out, const float *x, int64_t n, bool log) {
    float lane[MPT__SUM_LANES] = {0};
    MPT__LEVEL(add_exp)(lane, out, x, n, MPT__LEVEL(peak)(x, n, -mpt__real_infinity()) + 0.0f, log);
    MPT__VECTORS(MPT__LANES_LOAD);
    float total = v_total(MPT__FOLD);
    if (log) {
        MPT__LEVEL(unary_LOG)(&total, &total, 1, 0, 0);
        MPT__LEVEL(unary_ADD_SCALAR)(out, out, n, -total, 0);
    } else {
        MPT__LEVEL(unary_MUL_SCALAR)(out, out, n, 1 / total, 0);
    }
}

/* y dy or dy; and y (dy - total) or dy - exp(y) total: of a, from y, and b, from dy. */
#define MPT__SLOPE_ADDEND (log ? b : v_mul(b, a))
#define MPT__SLOPE (log ? v_sub(b, v_mul(v_exp(a), total)) : v_mul(a, v_sub(b, total)))
#define MPT__SLOPE_STEP(k) \
    a = v_load(y + i + k * MPT__WIDTH), b = v_load(dy + i + k * MPT__WIDTH); \
    s##k = v_add(s##k, MPT__SLOPE_ADDEND);
#define MPT__SLOPE_REST(k) \
    a = v_load_as(y + i + k * MPT__WIDTH, n - i - k * MPT__WIDTH, MPT_F32); \
    b = v_load_as(dy + i + k * MPT__WIDTH, n - i - k * MPT__WIDTH, MPT_F32); \
    s##k = v_add(s##k, MPT__SLOPE_ADDEND);
#define MPT__SLOPE_START(k) v_f s##k = v_zero();
MPT__FN void MPT__LEVEL(softmax_backward)(
    float *dx, const float *y, const float *dy, int64_t n, bool log) {
    v_f a, b;
    int64_t i = 0;
    MPT__VECTORS(MPT__SLOPE_START);
    for (; i + MPT__SUM_LANES <= n; i += MPT__SUM_LANES) { MPT__VECTORS(MPT__SLOPE_STEP); }
    if (i < n) { MPT__VECTORS(MPT__SLOPE_REST); }
    const v_f total = v_set(v_total(MPT__FOLD));
    for (i = 0; i + MPT__WIDTH <= n; i += MPT__WIDTH) {
        a = v_load(y + i), b = v_load(dy + i);
        v_store(dx + i, MPT__SLOPE);
    }
    if (i < n) {
        a = v_load_as(y + i, n - i, MPT_F32), b = v_load_as(dy + i, n - i, MPT_F32);
        v_store_as(dx + i, MPT__SLOPE, n - i, MPT_F32);
    }
}

/* ==== Moves ==== */

/* In blocks of MPT__WIDTH rows and 4 columns, the last ones of a side reaching back; the level
   below takes what is narrower. The rows of one line of memory of `to` follow each other, so that a
   store beyond the caches fills it. */
MPT__OP void MPT__LEVEL(turn)(float *to, int64_t to_step, const float *from, int64_t from_step,
    int64_t rows, int64_t columns, void store(float *p, v_f v)) {
    for (int64_t line = 0; line < rows; line += 16)
        for (int64_t c = 0; c < columns; c += 4)
            for (int64_t r = line; r < rows && r < line + 16; r += MPT__WIDTH) {
                const int64_t i = mpt__cpu_min(r, rows - MPT__WIDTH);
                const int64_t j = mpt__cpu_min(c, columns - 4);
                const float *x = from + i * from_step + j;
                float *at = to + j * to_step + i;
                v_f r0 = v_load_quads(x, 4 * from_step);
                v_f r1 = v_load_quads(x + from_step, 4 * from_step);
                v_f r2 = v_load_quads(x + 2 * from_step, 4 * from_step);
                v_f r3 = v_load_quads(x + 3 * from_step, 4 * from_step);
                v_transpose4(&r0, &r1, &r2, &r3);
                store(at, r0), store(at + to_step, r1);
                store(at + 2 * to_step, r2), store(at + 3 * to_step, r3);
            }
}
MPT__FN void MPT__LEVEL(transpose)(float *to, int64_t to_step, const float *from, int64_t from_step,
    int64_t rows, int64_t columns, bool beyond_cache) {
    if (rows < MPT__WIDTH || columns < 4) {
        MPT__BELOW(transpose)(to, to_step, from, from_step, rows, columns, false);
    } else if (beyond_cache) {
        MPT__LEVEL(turn)(to, to_step, from, from_step, rows, columns, v_stream);
        v_fence();
    } else {
        MPT__LEVEL(turn)(to, to_step, from, from_step, rows, columns, v_store);
    }
}

#ifndef MPT__OWN_ROWS
/* All is inlined: stores of a call for short rows would wait among the stores of these. */
MPT__OP void MPT__LEVEL(line)(char *to, const char *from, int64_t bytes, bool adds) {
    for (int64_t k = 0; k < bytes; k += 4 * MPT__WIDTH) {
        const v_f v = v_load((const float *)(const void *)(from + k));
        float *out = (float *)(void *)(to + k);
        v_store(out, adds ? v_add(v_load(out), v) : v);
    }
}
MPT__FN void MPT__LEVEL(rows)(const mpt__rows *r) {
    if (r->adds)
        mpt__rows_each(r, true, MPT__LEVEL(line));
    else
        mpt__rows_each(r, false, MPT__LEVEL(line));
}

#endif

/* ==== Sums of products ==== */

#ifndef MPTRAIN_NO_CONV
/* Four i share what they load of w; past the last one they repeat it. n >= MPT__WIDTH is known
   where it is so. */
#define MPT__PRODUCTS_LOAD(at) v_load_as(at, n, MPT_F32)
MPT__OP void MPT__LEVEL(four_sums)(const mpt__product_sums *p, int64_t i, int64_t i1, int64_t i2,
    int64_t i3, int64_t c, int64_t n) {
    const int64_t x1 = i1 * p->x_step, x2 = i2 * p->x_step, x3 = i3 * p->x_step;
    const float *start = p->start + i * p->start_step + c, *w = p->w + c;
    float *out = p->out + i * p->out_step + c;
    v_f s0 = MPT__PRODUCTS_LOAD(start);
    v_f s1 = MPT__PRODUCTS_LOAD(start + i1 * p->start_step);
    v_f s2 = MPT__PRODUCTS_LOAD(start + i2 * p->start_step);
    v_f s3 = MPT__PRODUCTS_LOAD(start + i3 * p->start_step);
    for (int64_t j = 0; j < p->depth; j++, w += p->w_step) {
        const float *x = p->x[j] + i * p->x_step + c;
        v_f b = MPT__PRODUCTS_LOAD(w);
        s0 = v_fma(MPT__PRODUCTS_LOAD(x), b, s0);
        s1 = v_fma(MPT__PRODUCTS_LOAD(x + x1), b, s1);
        s2 = v_fma(MPT__PRODUCTS_LOAD(x + x2), b, s2);
        s3 = v_fma(MPT__PRODUCTS_LOAD(x + x3), b, s3);
    }
    v_store_as(out, s0, n, MPT_F32);
    if (i1 > 0) v_store_as(out + i1 * p->out_step, s1, n, MPT_F32);
    if (i2 > i1) v_store_as(out + i2 * p->out_step, s2, n, MPT_F32);
    if (i3 > i2) v_store_as(out + i3 * p->out_step, s3, n, MPT_F32);
}
MPT__FN void MPT__LEVEL(sum_products)(const mpt__product_sums *p) {
    for (int64_t i = 0; i < p->count; i += 4) {
        const int64_t last = p->count - i - 1, i1 = last > 0, i2 = last > 1 ? 2 : i1;
        const int64_t i3 = last > 2 ? 3 : i2;
        for (int64_t c = 0; c < p->n; c += MPT__WIDTH) {
            if (p->n - c >= MPT__WIDTH)
                MPT__LEVEL(four_sums)(p, i, i1, i2, i3, c, MPT__WIDTH);
            else
                MPT__LEVEL(four_sums)(p, i, i1, i2, i3, c, p->n - c);
        }
    }
}
#endif

/* ==== Squares ==== */

/* A float's square is exact in double, so fusing it with the sum changes nothing. */
#define MPT__SQUARES_START(k) v_d s##k = v_no_doubles();
#define MPT__SQUARES_ADD(k) s##k = v_add_squares(s##k, v_mul(v_load(x + i + k * MPT__WIDTH), by));
#define MPT__SQUARES_END(k) v_add_doubles(lane + k * MPT__WIDTH, s##k);
MPT__FN void MPT__LEVEL(add_squares)(double *lane, const float *x, int64_t n, float multiplier) {
    const int64_t run = MPT__SQUARE_RUN(n), runs = MPT__SQUARE_RUNS * run;
    const float *const rest = x + runs;
    mpt__ref_add_run(lane, rest, n - runs, multiplier);
    const v_f by = v_set(multiplier);
    while (x < rest) {
        x += run;
        MPT__VECTORS(MPT__SQUARES_START)
        for (int64_t i = -run; i != 0; i += MPT__SUM_LANES) {
            if (MPT__WIDTH == 16) MPT__PREFETCH(x + run + i);
            MPT__VECTORS(MPT__SQUARES_ADD)
        }
        MPT__VECTORS(MPT__SQUARES_END)
    }
}

/* ==== Random numbers ==== */

/* Philox 4x32-10 (ground/random.c) in 64-bit lanes of which the low words count: MPT__WIDTH / 2
   blocks in each of two sets of counters, a and b. keys[2 r] and keys[2 r + 1] are round r's
   (mpt__philox_keys). */
#define MPT__PHILOX_HALF(c, r) \
    p = v_umul(c##0, m0), q = v_umul(c##2, m1); \
    c##0 = v_uxor(v_uhigh(q), c##1, v_uset(keys[2 * r])), c##1 = q; \
    c##2 = v_uxor(v_uhigh(p), c##3, v_uset(keys[2 * r + 1])), c##3 = p
MPT__OP void MPT__LEVEL(philox)(
    const uint64_t *keys, uint64_t sequence, uint64_t block, uint32_t out[4 * MPT__WIDTH]) {
    const v_u m0 = v_uset(MPT__PHILOX_M0), m1 = v_uset(MPT__PHILOX_M1);
    v_u a0 = v_ucount(block), b0 = v_ucount(block + MPT__WIDTH / 2), p, q;
    v_u a1 = v_uhigh(a0), b1 = v_uhigh(b0);
    v_u a2 = v_uset(sequence), a3 = v_uset(sequence >> 32), b2 = a2, b3 = a3;
    for (int r = 0; r < MPT__PHILOX_ROUNDS; r++) {
        MPT__PHILOX_HALF(a, r);
        MPT__PHILOX_HALF(b, r);
    }
    v_ustore(out, a0, a1, a2, a3);
    v_ustore(out + 2 * MPT__WIDTH, b0, b1, b2, b3);
}
MPT__FN void MPT__LEVEL(random)(mpt__rng_key key, uint64_t first, size_t n, uint32_t *out) {
    const uint64_t sequence = mpt__hash_u64(key.stream, key.call);
    uint64_t keys[2 * MPT__PHILOX_ROUNDS];
    mpt__philox_keys(key.seed, keys);
    for (; n >= 4 * MPT__WIDTH; n -= 4 * MPT__WIDTH, first += 4 * MPT__WIDTH, out += 4 * MPT__WIDTH)
        MPT__LEVEL(philox)(keys, sequence, first / 4, out);
    mpt__random_bits(key, first, n, out);
}
MPT__FN void MPT__LEVEL(dropout)(float *out, const float *x, int64_t n, mpt__rng_key key,
    uint64_t first, uint32_t threshold, float factor) {
    const uint64_t sequence = mpt__hash_u64(key.stream, key.call);
    const int64_t whole = n / (4 * MPT__WIDTH) * (4 * MPT__WIDTH);
    uint64_t keys[2 * MPT__PHILOX_ROUNDS];
    uint32_t words[4 * MPT__WIDTH];
    mpt__ref_dropout_block(
        out + whole, x + whole, n - whole, key, first + (uint64_t)whole, threshold, factor);
    mpt__philox_keys(key.seed, keys);
    const v_f by = v_set(factor);
    for (int64_t at = 0; at < whole; at += 4 * MPT__WIDTH) {
        MPT__LEVEL(philox)(keys, sequence, (first + (uint64_t)at) / 4, words);
        for (int k = 0; k < 4 * MPT__WIDTH; k += MPT__WIDTH) {
            v_f v = v_mul(v_load(x + at + k), by);
            v_m kept = v_words_from(words + k, threshold);
            v_store(out + at + k, v_select(kept, v, v_zero()));
        }
    }
}

#endif
