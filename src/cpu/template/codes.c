/* ----
 * cpu/template/codes.c: moments from their codes and back, with the bits of the tables, but by
 * arithmetic: gathers are slow. Within a power of ten magnitudes number j = p .. 2 p - 1 (counted
 * from 1 where there is no sign) lie on a line, p being a power of 2. The codebook has, by powers
 * of ten, 8 floats twice each: the largest y of the one before; scale, shift and bound of the line;
 * and, by the lowest bits of the exponent of p, divisors.
 * ---- */
#if defined(MPT__V) && !defined(MPTRAIN_NO_FRUGAL)

/* (2 p + 18 (j - p) + 9) / (2 p 10^(7 - decade)), both of which floats hold; all with j's sign. */
MPT__FN void MPT__LEVEL(decode)(mpt__real *x, const uint8_t *code, int64_t n, const int32_t *book,
                                mpt__real peak, bool plain) {
    const v_t below = v_table(MPT__CODE_LINES(book) + 64);
    const v_i zero = v_iset(plain ? -1 : MPT__CODE_ZERO), sign = v_iset(MPT__SIGN_BIT);
    const v_i power = v_iset(-8388608), nine = v_bits(v_set(9));
    const v_f factor = v_set(peak), none = v_set(plain ? 1.0f : 0.0f);
    int64_t i = 0;
    for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) {
        const v_f j = v_convert(v_isub(v_bits(v_load_bytes(code + i, MPT__WIDTH)), zero));
        const v_i p = v_iand(v_bits(j), power);
        v_f above = v_float(v_ior(v_iand(v_bits(j), sign), nine));
        above = v_fma(v_set(18), j, v_fma(v_set(-16), v_float(p), above));
        const v_f value = v_div(above, v_pick(below, v_sar23(p)));
        v_store(x + i, v_mul(v_select(v_equal(j, none), v_zero(), value), factor));
    }
    mpt__ref_decode(x + i, code + i, n - i, book, peak, plain);
}

/* What is not finite counts as infinity. */
MPT__FN uint32_t MPT__LEVEL(code_peak)(const mpt__real *x, int64_t n) {
    const v_i mask = v_iset(0x7fffffff);
    v_i most = v_iset(0), other = most;
    int64_t i = 0;
    for (; i + 2 * MPT__WIDTH <= n; i += 2 * MPT__WIDTH) {
        most = v_imax(most, v_iand(v_words(x + i), mask));
        other = v_imax(other, v_iand(v_words(x + i + MPT__WIDTH), mask));
    }
    most = v_imax(most, other);
    const v_f infinity = v_float(v_iset(0x7f800000));
    const v_f finite = v_select(v_igt(v_bits(infinity), most), v_float(most), infinity);
    const uint32_t peak = mpt__f32_bits(v_peak(finite)), rest = mpt__ref_code_peak(x + i, n - i);
    return peak > rest ? peak : rest;
}

/* Steps of four vectors at a time: each waits for the one before. */
#define MPT__ENCODE_GET(k) \
    const v_f value##k = v_load(x + i + k * MPT__WIDTH), y##k = v_div(v_abs(value##k), below);
#define MPT__ENCODE_FIRST(k) \
    v_i at##k = v_iadd_if(v_greater(y##k, middle), v_iset(0), four);
#define MPT__ENCODE_SECOND(k) \
    at##k = v_iadd_if(v_greater(y##k, v_pick(limit2, at##k)), at##k, two);
#define MPT__ENCODE_THIRD(k) \
    at##k = v_iadd_if(v_greater(y##k, v_pick(limit1, at##k)), at##k, one);
#define MPT__ENCODE_LINE(k) v_f j##k = v_fma(y##k, v_pick(scale, at##k), v_pick(shift, at##k));
#define MPT__ENCODE_CLAMP(k) \
    j##k = v_smaller(j##k, v_pick(most, at##k)); \
    j##k = v_select(v_equal(value##k, v_zero()), none, j##k);
#define MPT__ENCODE_SIGN(k) \
    j##k = v_larger(v_float(v_ior(v_bits(j##k), v_iand(v_bits(value##k), sign))), lowest);
#define MPT__ENCODE_PUT(k) \
    v_f code##k = v_add(j##k, base); \
    worst = v_larger(worst, v_abs(v_sub(j##k, v_sub(code##k, base)))); \
    if (MPT__WIDTH == 8) code##k = v_float(v_iand(v_bits(code##k), v_iset(255))); \
    v_store_bytes(code + i + k * MPT__WIDTH, code##k, MPT__WIDTH);

/* Where j comes so close to the middle of two numbers that rounding may have moved it, the tables
   decide: of one vector in some hundreds. */
MPT__FN void MPT__LEVEL(encode)(uint8_t *code, const mpt__real *x, int64_t n, const int32_t *book,
                                mpt__real peak, bool plain) {
    const float *limit = MPT__CODE_LINES(book);
    const v_t limit1 = v_table(limit + 1), limit2 = v_table(limit + 2);
    const v_t scale = v_table(limit + 16), shift = v_table(limit + 32), most = v_table(limit + 48);
    const v_f below = v_set(peak), middle = v_set(limit[4]), sure = v_set(0.5f - MPT__CODE_DOUBT);
    const v_f base = v_set(8388608.0f + (plain ? -1 : MPT__CODE_ZERO));
    const v_f lowest = v_set(-MPT__CODE_ZERO), none = v_set(plain ? 1.0f : 0.0f);
    const v_i one = v_iset(1), two = v_iset(2), four = v_iset(4), sign = v_iset(MPT__SIGN_BIT);
    uint64_t doubt = 0;
    int64_t i = 0;
    for (; i + 4 * MPT__WIDTH <= n; i += 4 * MPT__WIDTH) {
        v_f worst = v_zero();
        MPT__FOUR(MPT__ENCODE_GET)
        MPT__FOUR(MPT__ENCODE_FIRST)
        MPT__FOUR(MPT__ENCODE_SECOND)
        MPT__FOUR(MPT__ENCODE_THIRD)
        MPT__FOUR(MPT__ENCODE_LINE)
        MPT__FOUR(MPT__ENCODE_CLAMP)
        if (!plain) { MPT__FOUR(MPT__ENCODE_SIGN) }
        MPT__FOUR(MPT__ENCODE_PUT)
        doubt |= (uint64_t)v_some(v_greater(worst, sure)) << i / MPT__WIDTH;
    }
    for (int64_t k = 0; doubt; k += MPT__WIDTH, doubt >>= 1)
        if (doubt & 1) mpt__ref_encode(code + k, x + k, 4 * MPT__WIDTH, book, peak, plain);
    mpt__ref_encode(code + i, x + i, n - i, book, peak, plain);
}

#endif
