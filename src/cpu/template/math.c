/* ----
 * cpu/template/math.c: exp, log, sigmoid, tanh and the normal distribution.
 *
 * They are made of + - * / and integer operations in a fixed order, so every compiler and CPU gives
 * the same bits for any number of lanes (NaN: as a class) as long as denormals are treated alike;
 * nothing may be contracted to FMA. Their polynomials were fitted for the least maximal relative
 * error, coefficients rounded to float one by one.
 *
 *   exp       any x; overflow gives infinity, results round to denormals as they should
 *   log       natural; -infinity for zeros, NaN below
 *   sigmoid   1 / (1 + exp(-x)), without loss on either side
 *   tanh      odd; +-1 for large |x|; the sign of zero stays
 *   normal    what of the normal distribution lies below x, (1 + erf(x / sqrt(2))) / 2
 *
 * Measured, in ulp: log 0.80, exp 0.99, tanh 1.33, sigmoid 2.41; normal 1.6 times 2^-24.
 * ---- */
#ifdef MPT__V

#ifndef MPT__OWN_SCALE
/* y 2^k, with k in the low bits of t = k + MPT__ROUND_MAGIC: in two factors, since k alone may lie
   outside the exponents of a float. */
MPT__FN MPT__INLINE v_f v_scale(v_f y, v_f t) {
    v_i k = v_isub(v_bits(t), v_iset(MPT__ROUND_MAGIC_BITS));
    v_i half = v_sar1(k);
    v_f factor1 = v_float(v_shl23(v_iadd(half, v_iset(127))));
    v_f factor2 = v_float(v_shl23(v_iadd(v_isub(k, half), v_iset(127))));
    return v_mul(v_mul(y, factor1), factor2);
}

#endif

/* The sum of c[i] x^i, i < n <= 9, by Horner's rule; gcc -O2 would leave a loop one. */
#define MPT__HORNER(i) \
    if ((i) < n - 1) sum = v_add(v_mul(sum, x), v_set(c[i]))
MPT__FN MPT__INLINE v_f v_polynomial(v_f x, const float *c, int n) {
    v_f sum = v_set(c[n - 1]);
    MPT__HORNER(7);
    MPT__HORNER(6);
    MPT__HORNER(5);
    MPT__HORNER(4);
    MPT__HORNER(3);
    MPT__HORNER(2);
    MPT__HORNER(1);
    MPT__HORNER(0);
    return sum;
}

MPT__FN MPT__INLINE v_f v_exp(v_f x) {
    /* Beyond these limits the result is zero or infinity anyway; NaN passes both. */
    v_f in = v_smaller(v_set(89.0f), v_larger(v_set(-104.0f), x));
    v_f t = v_add(v_mul(in, v_set(MPT__LOG2_E_F)), v_set(MPT__ROUND_MAGIC));
    v_f n = v_sub(t, v_set(MPT__ROUND_MAGIC));
    v_f high = v_sub(in, v_mul(n, v_set(MPT__LN2_HIGH_F)));
    v_f r = v_sub(high, v_mul(n, v_set(MPT__LN2_LOW_F)));
    v_f p = v_polynomial(r, mpt__exp_coefficients, 5);
    v_f y = v_add(v_add(v_mul(v_mul(p, r), r), r), v_set(1.0f));
    return v_scale(y, t);
}

MPT__FN MPT__INLINE v_f v_log(v_f x) {
    v_i bits = v_bits(x);
    v_m denormal = v_igt(v_iset(0x00800000), bits);
    v_f scaled = v_select(denormal, v_mul(x, v_set(33554432.0f)), x);
    v_f shift = v_select(denormal, v_set(-25.0f), v_set(0.0f));
    /* x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */
    v_i k = v_sar23(v_isub(v_bits(scaled), v_iset(MPT__SQRT_HALF_BITS)));
    v_f e = v_add(v_convert(k), shift);
    v_f f = v_sub(v_float(v_isub(v_bits(scaled), v_shl23(k))), v_set(1.0f));
    v_f square = v_mul(f, f);
    v_f y = v_mul(v_mul(v_polynomial(f, mpt__log_coefficients, 9), f), square);
    y = v_add(y, v_mul(e, v_set(MPT__LN2_LOW_F)));
    y = v_sub(y, v_mul(square, v_set(0.5f)));
    y = v_add(v_add(y, f), v_mul(e, v_set(MPT__LN2_HIGH_F)));
    /* Infinity and NaN; then what is not above zero; then the zeros among that. */
    y = v_select(v_igt(bits, v_iset(0x7f7fffff)), v_add(x, x), y);
    y = v_select(v_igt(v_iset(1), bits), v_float(v_iset(0x7fc00000)), y);
    return v_select(
        v_igt(v_iset(1), v_iand(bits, v_iset(0x7fffffff))), v_float(v_iset(-0x00800000)), y);
}

MPT__FN MPT__INLINE v_f v_sigmoid(v_f x) {
    v_f e = v_exp(v_float(v_ior(v_bits(x), v_iset(MPT__SIGN_BIT))));
    v_m negative = v_igt(v_iset(0), v_bits(x));
    v_f above = v_select(negative, e, v_set(1.0f));
    return v_div(above, v_add(e, v_set(1.0f)));
}

MPT__FN MPT__INLINE v_f v_tanh(v_f x) {
    v_i sign = v_iand(v_bits(x), v_iset(MPT__SIGN_BIT));
    v_f a = v_float(v_iand(v_bits(x), v_iset(0x7fffffff)));
    v_f square = v_mul(a, a);
    v_f p = v_polynomial(square, mpt__tanh_coefficients, 6);
    v_f lesser = v_add(a, v_mul(v_mul(square, a), p));
    v_f e = v_add(v_exp(v_add(a, a)), v_set(1.0f));
    v_f large = v_sub(v_set(1.0f), v_div(v_set(2.0f), e));
    v_m is_large = v_igt(v_bits(a), v_iset(MPT__TANH_SWITCH_BITS));
    return v_float(v_ior(v_bits(v_select(is_large, large, lesser)), sign));
}

/* c[0] + c[1] x + .. + c[5] x^5 + top x^6 in pairs, whose steps need not wait for each other. */
MPT__FN MPT__INLINE v_f v_pairs(v_f x, const float *c, v_f top) {
    v_f square = v_mul(x, x);
    v_f low = v_add(v_set(c[0]), v_mul(v_set(c[1]), x));
    v_f middle = v_add(v_set(c[2]), v_mul(v_set(c[3]), x));
    v_f high = v_add(v_set(c[4]), v_mul(v_set(c[5]), x));
    middle = v_add(middle, v_mul(square, v_add(high, v_mul(square, top))));
    return v_add(low, v_mul(square, middle));
}

/* Beyond x >= 0 lies 2^P(x), which takes fewer steps than v_exp. At 10.5 P is -157, which no float
   is as small as. */
MPT__FN MPT__INLINE v_f v_normal(v_f x) {
    const float *c = mpt__normal_coefficients;
    v_f a = v_smaller(v_set(10.5f), v_float(v_iand(v_bits(x), v_iset(0x7fffffff))));
    v_f top = v_add(v_set(c[6]), v_mul(v_add(v_set(c[7]), v_mul(v_set(c[8]), a)), a));
    v_f y = v_pairs(a, c, top);
    v_f t = v_add(y, v_set(MPT__ROUND_MAGIC));
    v_f r = v_sub(y, v_sub(t, v_set(MPT__ROUND_MAGIC)));
    v_f beyond = v_scale(
        v_pairs(r, mpt__exp2_coefficients, v_set(mpt__exp2_coefficients[6])), t);
    return v_select(v_igt(v_iset(0), v_bits(x)), beyond, v_sub(v_set(1.0f), beyond));
}

#endif
