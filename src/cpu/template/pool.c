/* ----
 * cpu/template/pool.c: pooling of windows of two by two pixels that lie one beside the other, in
 * vectors of neighbouring windows or of neighbouring channels (mpt__windows, cpu/elementwise.c).
 *
 * Every window takes its elements in the order in which cpu/pool.c does, and a gradient begins
 * with zero as it does there: the bits are the same.
 * ---- */
#if defined(MPT__V) && !defined(MPTRAIN_NO_CONV)

/* A NaN wins over all before it; else the first of the largest. */
MPT__OP void MPT__LEVEL(window_take)(v_f x, int32_t at, v_f *best, v_f *index) {
    const v_m more = v_greater(x, *best), nan = v_is_nan(x);
    const v_f here = v_float(v_iset(at));
    *index = v_select(nan, here, v_select(more, here, *index));
    *best = v_select(nan, x, v_select(more, x, *best));
}
/* What windows of the elements x become; index: integers, as words. */
MPT__OP v_f MPT__LEVEL(window_value)(const mpt__windows *p, const v_f x[4], v_f *index) {
    v_f value;
    if (!p->most) {
        value = v_add(v_add(v_add(v_add(v_zero(), x[0]), x[1]), x[2]), x[3]);
        return v_mul(value, v_set(0.25f));
    }
    value = v_set(-mpt__real_infinity());
    *index = v_zero();
    MPT__LEVEL(window_take)(x[0], 0, &value, index);
    MPT__LEVEL(window_take)(x[1], 1, &value, index);
    MPT__LEVEL(window_take)(x[2], 2, &value, index);
    MPT__LEVEL(window_take)(x[3], 3, &value, index);
    if (p->positive)
        *index = v_select(v_greater(value, v_zero()), *index,
            v_select(v_is_nan(value), *index, v_float(v_iset(UINT8_MAX))));
    return value;
}
/* The gradients dx of the elements of windows, of dy and of the places of their maxima. */
MPT__OP void MPT__LEVEL(window_slopes)(const mpt__windows *p, v_f dy, v_f index, v_f dx[4]) {
    dy = v_add(v_zero(), p->most ? dy : v_mul(dy, v_set(0.25f)));
    const v_f at = v_convert(v_bits(index));
    for (int k = 0; k < 4; k++)
        dx[k] = p->most ? v_select(v_equal(at, v_set((float)k)), dy, v_zero()) : dy;
}

MPT__OP void MPT__LEVEL(window_put)(const mpt__windows *p, char *to, v_f v, int64_t n, int dtype) {
    if (p->adds) v = v_add(v_load_as(to, n, dtype), v);
    v_store_as(to, v, n, dtype);
}

/* ==== A line of windows of one channel, whose elements are neighbours ==== */

MPT__OP void MPT__LEVEL(windows_beside)(const mpt__windows *p, int64_t line, int dtype) {
    const int64_t bytes = dtype == MPT_F32 ? 4 : 2;
    char *x = p->x + 2 * line * p->x_line * bytes, *y = p->y + line * p->y_line * bytes;
    char *below = x + p->x_line * bytes;
    uint8_t *index = p->index ? p->index + line * p->index_line : NULL;
    for (int64_t n = p->count; n > 0; n -= MPT__WIDTH) {
        v_f v[4], place = v_zero(), value;
        if (p->back) {
            if (index) place = v_load_bytes(index, n);
            MPT__LEVEL(window_slopes)(p, v_load_as(y, n, dtype), place, v);
            v_merge(&v[0], &v[1]);
            v_merge(&v[2], &v[3]);
            MPT__LEVEL(window_put)(p, x, v[0], 2 * n, dtype);
            MPT__LEVEL(window_put)(p, below, v[2], 2 * n, dtype);
            if (2 * n > MPT__WIDTH) {
                MPT__LEVEL(window_put)(p, x + MPT__WIDTH * bytes, v[1], 2 * n - MPT__WIDTH, dtype);
                MPT__LEVEL(window_put)
                (p, below + MPT__WIDTH * bytes, v[3], 2 * n - MPT__WIDTH, dtype);
            }
        } else {
            v[0] = v_load_as(x, 2 * n, dtype), v[2] = v_load_as(below, 2 * n, dtype);
            v[1] = v[3] = v_zero();
            if (2 * n > MPT__WIDTH) {
                v[1] = v_load_as(x + MPT__WIDTH * bytes, 2 * n - MPT__WIDTH, dtype);
                v[3] = v_load_as(below + MPT__WIDTH * bytes, 2 * n - MPT__WIDTH, dtype);
            }
            v_split(&v[0], &v[1]);
            v_split(&v[2], &v[3]);
            value = MPT__LEVEL(window_value)(p, v, &place);
            v_store_as(y, value, n, dtype);
            if (index) v_store_bytes(index, place, n);
        }
        x += 2 * MPT__WIDTH * bytes, below += 2 * MPT__WIDTH * bytes, y += MPT__WIDTH * bytes;
        if (index) index += MPT__WIDTH;
    }
}

/* ==== Windows of all channels, which are neighbours ==== */

MPT__OP void MPT__LEVEL(window_channels)(
    const mpt__windows *p, int64_t line, int64_t i, int dtype) {
    const int64_t bytes = dtype == MPT_F32 ? 4 : 2, right = p->x_pixel * bytes;
    char *x = p->x + 2 * (line * p->x_line + i * p->x_pixel) * bytes;
    char *y = p->y + (line * p->y_line + i * p->y_pixel) * bytes, *below = x + p->x_line * bytes;
    uint8_t *index = p->index ? p->index + line * p->index_line + i * p->index_pixel : NULL;
    for (int64_t n = p->channels; n > 0; n -= MPT__WIDTH) {
        v_f v[4], place = v_zero(), value;
        if (p->back) {
            if (index) place = v_load_bytes(index, n);
            MPT__LEVEL(window_slopes)(p, v_load_as(y, n, dtype), place, v);
            MPT__LEVEL(window_put)(p, x, v[0], n, dtype);
            MPT__LEVEL(window_put)(p, x + right, v[1], n, dtype);
            MPT__LEVEL(window_put)(p, below, v[2], n, dtype);
            MPT__LEVEL(window_put)(p, below + right, v[3], n, dtype);
        } else {
            v[0] = v_load_as(x, n, dtype), v[1] = v_load_as(x + right, n, dtype);
            v[2] = v_load_as(below, n, dtype), v[3] = v_load_as(below + right, n, dtype);
            value = MPT__LEVEL(window_value)(p, v, &place);
            v_store_as(y, value, n, dtype);
            if (index) v_store_bytes(index, place, n);
        }
        x += MPT__WIDTH * bytes, below += MPT__WIDTH * bytes, y += MPT__WIDTH * bytes;
        if (index) index += MPT__WIDTH;
    }
}

MPT__OP void MPT__LEVEL(windows_of)(const mpt__windows *p, int dtype) {
    for (int64_t line = 0; line < p->lines; line++) {
        if (p->channels == 0) MPT__LEVEL(windows_beside)(p, line, dtype);
        for (int64_t i = 0; p->channels > 0 && i < p->count; i++)
            MPT__LEVEL(window_channels)(p, line, i, dtype);
    }
}
MPT__FN void MPT__LEVEL(windows)(const mpt__windows *p) {
    if (p->dtype == MPT_F32)
        MPT__LEVEL(windows_of)(p, MPT_F32);
    else if (p->dtype == MPT_F16)
        MPT__LEVEL(windows_of)(p, MPT_F16);
    else
        MPT__LEVEL(windows_of)(p, MPT_BF16);
}

#endif
