/* ----
 * cpu/template/codes.c: moments from their codes and back, with the bits of the tables, but by
 * arithmetic: gathers are slow. Within a power of ten magnitudes number j = p .. 2 p - 1 (counted
 * from 1 where there is no sign) lie on a line, p being a power of 2. The codebook has, by powers
 * of ten, 8 floats twice each: the largest y of the one before; scale, shift and bound of the line;
 * divisors.
 * ---- */
#if defined(MPT__V) && !defined(MPTRAIN_NO_FRUGAL)

/* (2 p + 18 (j - p) + 9) / (2 p 10^(7 - decade)), both of which floats hold. */
MPT__FN void MPT__LEVEL(decode)(mpt__real *x, const uint8_t *code, int64_t n, const int32_t *book,
                                mpt__real peak, bool plain) {
    const float *below = MPT__CODE_LINES(book) + 64;
    const v_i zero = v_iset(plain ? -1 : MPT__CODE_ZERO), sign = v_iset(MPT__SIGN_BIT);
    const v_i power = v_iset(0x7f800000), bias = v_iset(plain ? 128 : 127);
    const v_f factor = v_set(peak), least = v_set(plain ? 2.0f : 1.0f);
    int64_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) {
        const v_i way = v_isub(v_bits(v_load_bytes(code + i, MPT__WIDTH)), zero);
        const v_f j = v_abs(v_convert(way)), p = v_float(v_iand(v_bits(j), power));
        const v_f above = v_sub(v_mul(v_set(18), j), v_mul(v_set(16), p));
        const v_i decade = v_isub(v_sar23(v_bits(p)), bias);
        v_f size = v_div(v_add(above, v_set(9)), v_pick(below, decade));
        size = v_select(v_greater(least, j), v_zero(), size);
        size = v_float(v_ior(v_bits(size), v_iand(way, sign)));
        v_store(x + i, v_mul(size, factor));
    }
    mpt__ref_decode(x + i, code + i, n - i, book, peak, plain);
}

MPT__FN uint32_t MPT__LEVEL(code_peak)(const mpt__real *x, int64_t n) {
    const v_i mask = v_iset(0x7fffffff);
    uint32_t lane[MPT__WIDTH];
    v_f most[2] = {v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + 2 * MPT__WIDTH <= n; i += 2 * MPT__WIDTH) {
        const v_i a = v_iand(v_words(x + i), mask), b = v_iand(v_words(x + i + MPT__WIDTH), mask);
        most[0] = v_select(v_igt(a, v_bits(most[0])), v_float(a), most[0]);
        most[1] = v_select(v_igt(b, v_bits(most[1])), v_float(b), most[1]);
    }
    uint32_t peak = mpt__ref_code_peak(x + i, n - i);
    most[0] = v_select(v_igt(v_bits(most[0]), v_bits(most[1])), most[0], most[1]);
    memcpy(lane, most, sizeof lane);
    for (int k = 0; k < MPT__WIDTH; k++) peak = lane[k] > peak ? lane[k] : peak;
    return peak;
}

/* Where j comes so close to the middle of two numbers that rounding may have moved it, the tables
   decide on the whole block: one in thirty. */
MPT__FN void MPT__LEVEL(encode)(uint8_t *code, const mpt__real *x, int64_t n, const int32_t *book,
                                mpt__real peak, bool plain) {
    const float *limit = MPT__CODE_LINES(book);
    const float *scale = limit + 16, *shift = limit + 32, *most = limit + 48;
    const v_f below = v_set(peak), whole = v_set(8388608), middle = v_set(limit[4]);
    const v_f zero = v_set(8388608 + MPT__CODE_ZERO), lowest = v_set(-MPT__CODE_ZERO);
    const v_f some = v_set(plain ? 2.0f : 1.0f), normal = v_float(v_iset(0x007fffff));
    const v_i one = v_iset(1), two = v_iset(2), four = v_iset(4), sign = v_iset(MPT__SIGN_BIT);
    v_f worst = v_zero();
    int64_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) {
        const v_f value = v_load(x + i), size = v_abs(value), y = v_div(size, below);
        v_i at = v_bits(v_select(v_greater(y, middle), v_float(four), v_zero()));
        v_m past = v_greater(y, v_pick(limit, v_iadd(at, two)));
        at = v_iadd(at, v_bits(v_select(past, v_float(two), v_zero())));
        past = v_greater(y, v_pick(limit, v_iadd(at, one)));
        at = v_iadd(at, v_bits(v_select(past, v_float(one), v_zero())));
        v_f j = v_add(v_mul(y, v_pick(scale, at)), v_pick(shift, at));
        const v_m there = v_igt(v_bits(size), v_bits(normal));
        j = v_smaller(v_larger(j, v_select(there, some, v_zero())), v_pick(most, at));
        v_f number = v_add(j, whole);
        const v_f own = v_sub(number, whole);
        worst = v_larger(worst, v_abs(v_sub(j, own)));
        if (plain) {
            number = v_float(v_iand(v_isub(v_bits(number), one), v_iset(255)));
            v_store_bytes(code + i, number, MPT__WIDTH);
        } else {
            number = v_float(v_ior(v_bits(own), v_iand(v_bits(value), sign)));
            number = v_float(v_iand(v_bits(v_add(v_larger(number, lowest), zero)), v_iset(255)));
            v_store_bytes(code + i, number, MPT__WIDTH);
        }
    }
    if (v_peak(worst) > 0.5f - MPT__CODE_DOUBT) i = 0;
    mpt__ref_encode(code + i, x + i, n - i, book, peak, plain);
}

#endif
