/* ---------------------------------------------------------------------------------------------
 * ground/math.c: exp, log, tanh, erf and their kin without the C library, whose bits differ from
 * one platform to the next.
 *
 * Everything here is made of + - * / sqrt and integer operations in a fixed order, so every
 * compiler and CPU gives the same bits. The float functions exist for 1, 4 (NEON), 8 (AVX2) and 16
 * (AVX-512) lanes from one text, MPT__MATH_FUNCTIONS, and agree bit for bit (NaN: as a class) as
 * long as denormals are treated alike; nothing may be contracted to FMA. Their polynomials were
 * fitted for the least maximal relative error, coefficients rounded to float one by one.
 *
 * float, measured, in ulp: log 0.80, exp 0.99, erf 1.29, tanh 1.33, sigmoid 2.41. double: about
 * 1e-15 relative.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__GROUND_MATH_INCLUDED
#define MPT__GROUND_MATH_INCLUDED

#include <math.h>

#include "ground/random.c"
#include "ground/convert.c"

/* ==== The float functions ==== */

#define MPT__ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it leaves an integer in the low bits */
#define MPT__ROUND_MAGIC_BITS 0x4b400000
#define MPT__LOG2_E_F 1.44269504f
#define MPT__LN2_HIGH_F 0.693359375f /* 10 bits: times any exponent it is exact */
#define MPT__LN2_LOW_F (-2.12194440e-4f)
#define MPT__SQRT_HALF_BITS 0x3f3504f3
#define MPT__TANH_SWITCH_BITS 0x3f200000 /* 0.625 */
#define MPT__ERF_SWITCH_BITS 0x3f666666  /* 0.9 */
#define MPT__SIGN_BIT (-0x7fffffff - 1)

/* exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2; error 3.2e-9. */
static const float mpt__exp_coefficients[5] = {0.49999994f, 0.166665211f, 0.0416682735f,
                                               0.00836868584f, 0.00138201355f};
/* log(1+f) = f - f^2/2 + f^3 P(f) for sqrt(1/2) <= 1+f <= sqrt(2); error 7.7e-10. */
static const float mpt__log_coefficients[9] = {0.333333135f,  -0.250000089f, 0.200020716f,
                                               -0.166679904f, 0.142203629f,  -0.124062076f,
                                               0.118834704f,  -0.116701923f, 0.0674955621f};
/* tanh(x) = x + x^3 P(x^2) for |x| <= 0.625; error 1.8e-10. */
static const float mpt__tanh_coefficients[6] = {-0.333333313f, 0.133332208f,    -0.0539481789f,
                                                0.021706894f,  -0.00819001347f, 0.00215268368f};
/* erf(x) = x + x P(x^2) for |x| <= 0.9; error 8.9e-10. */
static const float mpt__erf_small_coefficients[7] = {
    0.128379166f,   -0.376126289f,    0.112836242f,   -0.02685556f,
    0.00519175315f, -0.000803975272f, 7.94310035e-05f};
/* erf(x) = 1 - exp(P(x)) for 0.9 <= x <= 4; error 1.7e-9. */
static const float mpt__erf_large_coefficients[7] = {
    -0.000166439087f, -1.12779725f,    -0.636976123f,  -0.104113616f,
    0.0223151781f,    -0.00306548341f, 0.000198219554f};

#define MPT__HORNER(V, i) \
    if ((i) < n - 1) sum = V##_add(V##_mul(sum, x), V##_set(c[i]))

/* y 2^k, with k in the low bits of t = k + MPT__ROUND_MAGIC: in two factors, since k alone may lie
   outside the exponents of a float. */
#define MPT__MATH_SCALE(SPEC, V) \
    SPEC V##_f V##_scale(V##_f y, V##_f t) { \
        V##_i k = V##_isub(V##_bits(t), V##_iset(MPT__ROUND_MAGIC_BITS)); \
        V##_i half = V##_sar1(k); \
        V##_f factor1 = V##_float(V##_shl23(V##_iadd(half, V##_iset(127)))); \
        V##_f factor2 = V##_float(V##_shl23(V##_iadd(V##_isub(k, half), V##_iset(127)))); \
        return V##_mul(V##_mul(y, factor1), factor2); \
    }

/* Defines the float functions in the vocabulary V; SPEC goes before each, NAME(exp) is its name.
 *   exp       any x; overflow gives infinity, results round to denormals as they should
 *   log       natural; -infinity for zeros, NaN below
 *   sigmoid   1 / (1 + exp(-x)), without loss on either side
 *   tanh erf  odd; +-1 for large |x|; the sign of zero stays */
#define MPT__MATH_FUNCTIONS(SPEC, NAME, V) \
    /* The sum of c[i] x^i, i < n <= 9, by Horner's rule; gcc -O2 would leave a loop one. */ \
    SPEC V##_f V##_polynomial(V##_f x, const float *c, int n) { \
        V##_f sum = V##_set(c[n - 1]); \
        MPT__HORNER(V, 7); \
        MPT__HORNER(V, 6); \
        MPT__HORNER(V, 5); \
        MPT__HORNER(V, 4); \
        MPT__HORNER(V, 3); \
        MPT__HORNER(V, 2); \
        MPT__HORNER(V, 1); \
        MPT__HORNER(V, 0); \
        return sum; \
    } \
 \
    SPEC V##_f NAME(exp)(V##_f x) { \
        /* Beyond these limits the result is zero or infinity anyway; NaN passes both. */ \
        V##_f in = V##_smaller(V##_set(89.0f), V##_larger(V##_set(-104.0f), x)); \
        V##_f t = V##_add(V##_mul(in, V##_set(MPT__LOG2_E_F)), V##_set(MPT__ROUND_MAGIC)); \
        V##_f n = V##_sub(t, V##_set(MPT__ROUND_MAGIC)); \
        V##_f high = V##_sub(in, V##_mul(n, V##_set(MPT__LN2_HIGH_F))); \
        V##_f r = V##_sub(high, V##_mul(n, V##_set(MPT__LN2_LOW_F))); \
        V##_f p = V##_polynomial(r, mpt__exp_coefficients, 5); \
        V##_f y = V##_add(V##_add(V##_mul(V##_mul(p, r), r), r), V##_set(1.0f)); \
        return V##_scale(y, t); \
    } \
 \
    SPEC V##_f NAME(log)(V##_f x) { \
        V##_i bits = V##_bits(x); \
        V##_m denormal = V##_igt(V##_iset(0x00800000), bits); \
        V##_f scaled = V##_select(denormal, V##_mul(x, V##_set(33554432.0f)), x); \
        V##_f shift = V##_select(denormal, V##_set(-25.0f), V##_set(0.0f)); \
        /* x = 2^e (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2). */ \
        V##_i k = V##_sar23(V##_isub(V##_bits(scaled), V##_iset(MPT__SQRT_HALF_BITS))); \
        V##_f e = V##_add(V##_convert(k), shift); \
        V##_f f = V##_sub(V##_float(V##_isub(V##_bits(scaled), V##_shl23(k))), V##_set(1.0f)); \
        V##_f square = V##_mul(f, f); \
        V##_f y = V##_mul(V##_mul(V##_polynomial(f, mpt__log_coefficients, 9), f), square); \
        y = V##_add(y, V##_mul(e, V##_set(MPT__LN2_LOW_F))); \
        y = V##_sub(y, V##_mul(square, V##_set(0.5f))); \
        y = V##_add(V##_add(y, f), V##_mul(e, V##_set(MPT__LN2_HIGH_F))); \
        /* Infinity and NaN; then what is not above zero; then the zeros among that. */ \
        y = V##_select(V##_igt(bits, V##_iset(0x7f7fffff)), V##_add(x, x), y); \
        y = V##_select(V##_igt(V##_iset(1), bits), V##_float(V##_iset(0x7fc00000)), y); \
        return V##_select(V##_igt(V##_iset(1), V##_iand(bits, V##_iset(0x7fffffff))), \
                          V##_float(V##_iset(-0x00800000)), y); \
    } \
 \
    SPEC V##_f NAME(sigmoid)(V##_f x) { \
        V##_f e = NAME(exp)(V##_float(V##_ior(V##_bits(x), V##_iset(MPT__SIGN_BIT)))); \
        V##_m negative = V##_igt(V##_iset(0), V##_bits(x)); \
        V##_f above = V##_select(negative, e, V##_set(1.0f)); \
        return V##_div(above, V##_add(e, V##_set(1.0f))); \
    } \
 \
    SPEC V##_f NAME(tanh)(V##_f x) { \
        V##_i sign = V##_iand(V##_bits(x), V##_iset(MPT__SIGN_BIT)); \
        V##_f a = V##_float(V##_iand(V##_bits(x), V##_iset(0x7fffffff))); \
        V##_f square = V##_mul(a, a); \
        V##_f p = V##_polynomial(square, mpt__tanh_coefficients, 6); \
        V##_f lesser = V##_add(a, V##_mul(V##_mul(square, a), p)); \
        V##_f e = V##_add(NAME(exp)(V##_add(a, a)), V##_set(1.0f)); \
        V##_f large = V##_sub(V##_set(1.0f), V##_div(V##_set(2.0f), e)); \
        V##_m is_large = V##_igt(V##_bits(a), V##_iset(MPT__TANH_SWITCH_BITS)); \
        return V##_float(V##_ior(V##_bits(V##_select(is_large, large, lesser)), sign)); \
    } \
 \
    SPEC V##_f NAME(erf)(V##_f x) { \
        V##_i sign = V##_iand(V##_bits(x), V##_iset(MPT__SIGN_BIT)); \
        V##_f a = V##_float(V##_iand(V##_bits(x), V##_iset(0x7fffffff))); \
        V##_f p = V##_polynomial(V##_mul(a, a), mpt__erf_small_coefficients, 7); \
        V##_f lesser = V##_add(a, V##_mul(a, p)); \
        V##_f in = V##_smaller(V##_set(4.0f), a); \
        V##_f q = V##_polynomial(in, mpt__erf_large_coefficients, 7); \
        V##_f large = V##_sub(V##_set(1.0f), NAME(exp)(q)); \
        V##_m is_large = V##_igt(V##_bits(a), V##_iset(MPT__ERF_SWITCH_BITS)); \
        return V##_float(V##_ior(V##_bits(V##_select(is_large, large, lesser)), sign)); \
    }

/* mpt__expf mpt__logf mpt__sigmoidf mpt__tanhf mpt__erff */
#define MPT__NAME_SCALAR(name) mpt__##name##f
MPT__MATH_SCALE(MPT__V1, mpt__v1)
MPT__MATH_FUNCTIONS(MPT__V1, MPT__NAME_SCALAR, mpt__v1)

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
/* mpt__avx2_exp8 and so on; mpt__avx512_exp16 and so on. */
#define MPT__NAME_AVX2(name) mpt__avx2_##name##8
#define MPT__NAME_AVX512(name) mpt__avx512_##name##16
MPT__MATH_SCALE(MPT__V8, mpt__v8)
MPT__V16 __m512 mpt__v16_scale(__m512 y, __m512 t) {
    return _mm512_maskz_scalef_ps(MPT__V16_ALL, y, mpt__v16_sub(t, mpt__v16_set(MPT__ROUND_MAGIC)));
}
MPT__MATH_FUNCTIONS(MPT__V8, MPT__NAME_AVX2, mpt__v8)
MPT__MATH_FUNCTIONS(MPT__V16, MPT__NAME_AVX512, mpt__v16)
#endif

#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
/* mpt__neon_exp4 and so on. */
#define MPT__NAME_NEON(name) mpt__neon_##name##4
MPT__MATH_SCALE(MPT__V4, mpt__v4)
MPT__MATH_FUNCTIONS(MPT__V4, MPT__NAME_NEON, mpt__v4)
#endif

/* ==== double ==== */

#define MPT__NAN_F64 mpt__f64_from_bits(UINT64_C(0x7ff8000000000000))
#define MPT__INF_F64 mpt__f64_from_bits(UINT64_C(0x7ff0000000000000))
#define MPT__ROUND_MAGIC_F64 6755399441055744.0 /* 1.5 * 2^52 */
#define MPT__LN2_HIGH 0x1.62e42fefap-1          /* 37 bits: times any exponent it is exact */
#define MPT__LN2_LOW 0x1.cf79abc9e3b3ap-40

/* 2^k for -1022 <= k <= 1023. */
static MPT__INLINE double mpt__power_of_two(int64_t k) {
    return mpt__f64_from_bits((uint64_t)(k + 1023) << 52);
}

/* The nearest integer for |x| < 2^51. */
static MPT__INLINE double mpt__nearest_integer(double x) {
    return (x + MPT__ROUND_MAGIC_F64) - MPT__ROUND_MAGIC_F64;
}

/* (exp(r) - 1 - r) / r^2 by Taylor's series, for |r| <= 0.36. */
static double mpt__exp_series(double r) {
    static const double c[12] = {1.0 / 2,        1.0 / 6,         1.0 / 24,
                                 1.0 / 120,      1.0 / 720,       1.0 / 5040,
                                 1.0 / 40320,    1.0 / 362880,    1.0 / 3628800,
                                 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};
    double sum = c[11];
    for (int i = 10; i >= 0; i--) sum = sum * r + c[i];
    return sum;
}

static double mpt__exp(double x) {
    if (mpt__f64_is_nan(x)) return x;
    if (x > 710.0) return MPT__INF_F64;
    if (x < -746.0) return 0.0;
    double n = mpt__nearest_integer(x * 1.4426950408889634);
    double r = (x - n * MPT__LN2_HIGH) - n * MPT__LN2_LOW;
    double y = 1.0 + (r + r * r * mpt__exp_series(r));
    int64_t k = (int64_t)n, half = k / 2;
    return y * mpt__power_of_two(half) * mpt__power_of_two(k - half);
}

/* exp(x) - 1, exact for small x too. */
static double mpt__expm1(double x) {
    if (x > -0.36 && x < 0.36) return x + x * x * mpt__exp_series(x);
    return mpt__exp(x) - 1.0;
}

/* The natural logarithm in double. (mpt__log writes to the log.) */
static double mpt__ln(double x) {
    uint64_t bits = mpt__f64_bits(x);
    double exponent = 0.0;
    if (mpt__f64_is_nan(x) || bits == UINT64_C(0x7ff0000000000000)) return x;
    if ((bits & UINT64_C(0x7fffffffffffffff)) == 0) return -MPT__INF_F64;
    if (bits >> 63) return MPT__NAN_F64;
    if (bits < UINT64_C(0x0010000000000000)) { /* denormal */
        bits = mpt__f64_bits(x * 18014398509481984.0);
        exponent = -54.0;
    }
    /* x = 2^k m with sqrt(1/2) <= m < sqrt(2); log m = 2 artanh s with s = (m - 1) / (m + 1). */
    uint64_t offset = UINT64_C(0x3ff0000000000000) - UINT64_C(0x3fe6a09e667f3bcd);
    int64_t k = (int64_t)((bits + offset) >> 52) - 1023;
    double f = mpt__f64_from_bits(bits - ((uint64_t)k << 52)) - 1.0;
    double s = f / (2.0 + f), z = s * s, sum = 1.0 / 23;
    for (int i = 21; i >= 3; i -= 2) sum = sum * z + 1.0 / i;
    exponent += (double)k;
    return exponent * MPT__LN2_HIGH + (2.0 * s + (2.0 * s * z * sum + exponent * MPT__LN2_LOW));
}

/* log(1 + x), exact for small x too: what the sum loses of x goes into both factors. */
static double mpt__ln1p(double x) {
    double u = 1.0 + x;
    if (u == 1.0 || mpt__f64_bits(x) == UINT64_C(0x7ff0000000000000)) return x;
    return u > 0.0 ? mpt__ln(u) * (x / (u - 1.0)) : mpt__ln(u);
}

static double mpt__tanh(double x) {
    double a = x < 0.0 ? -x : x, e = mpt__expm1(2.0 * (a > 22.0 ? 22.0 : a)), t = e / (e + 2.0);
    return x < 0.0 ? -t : t;
}

static double mpt__sigmoid(double x) {
    double e = mpt__exp(x < 0.0 ? x : -x);
    return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

#define MPT__TWO_OVER_SQRT_PI 1.1283791670955126

/* Below 2.5 by exp(-x^2) times a series of positive terms, above by the continued fraction of
 * 1 - erf; both run from the far end, so that the number of steps is fixed. */
static double mpt__erf(double x) {
    double a = x < 0.0 ? -x : x, t;
    if (a < 2.5) {
        double z = 2.0 * a * a, sum = 1.0;
        for (int i = 50; i >= 1; i--) sum = 1.0 + sum * z / (2 * i + 1);
        t = MPT__TWO_OVER_SQRT_PI * a * mpt__exp(-a * a) * sum;
    } else {
        double tail = a;
        for (int i = 60; i >= 1; i--) tail = a + 0.5 * i / tail;
        t = 1.0 - 0.5 * MPT__TWO_OVER_SQRT_PI * mpt__exp(-a * a) / tail;
    }
    return x < 0.0 ? -t : t;
}

/* Sine and cosine of quadrant * pi/2 + r, |r| <= pi/4. */
static void mpt__sincos_quadrant(int64_t quadrant, double r, double *sine, double *cosine) {
    /* Taylor: the signed inverses of 3!, 5!, .. 17! and of 4!, 6!, .. 16!. */
    static const double odd[8] = {-1.0 / 6,
                                  1.0 / 120,
                                  -1.0 / 5040,
                                  1.0 / 362880,
                                  -1.0 / 39916800,
                                  1.0 / 6227020800.0,
                                  -1.0 / 1307674368000.0,
                                  1.0 / 355687428096000.0};
    static const double even[7] = {
        1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    double z = r * r, s = odd[7], c = even[6];
    for (int i = 6; i >= 0; i--) s = s * z + odd[i];
    for (int i = 5; i >= 0; i--) c = c * z + even[i];
    s = r + r * z * s;
    /* 1 - z/2, and what its rounding lost put back. */
    double half = 0.5 * z, base = 1.0 - half;
    c = base + (((1.0 - base) - half) + z * z * c);
    *sine = quadrant & 1 ? c : s;
    *cosine = quadrant & 1 ? s : c;
    if (quadrant & 2) *sine = -*sine;
    if ((quadrant + 1) & 2) *cosine = -*cosine;
}

/* Sine and cosine of x radians: absolute error 2e-16 for |x| <= 1e6, from there to 1e15 an error as
 * of one rounding of x; NaN beyond. */
static void mpt__sincos(double x, double *sine, double *cosine) {
    if (mpt__f64_is_nan(x) || x > 1e15 || x < -1e15) {
        *sine = *cosine = MPT__NAN_F64;
        return;
    }
    /* pi/2 in three parts; the first two have 33 bits, so that their products are exact. */
    double n = mpt__nearest_integer(x * 0.6366197723675814);
    double r = (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a6p-34;
    mpt__sincos_quadrant((int64_t)n, r - n * 0x1.3198a2e037073p-69, sine, cosine);
}

/* The same for any finite float x. From 2^19 on the quadrant comes from an exact product: x is m
   2^e with m of 24 bits, and of m 2^e 2/pi only what is below 4 counts, so 96 bits of 2/pi, from
   the one that weighs 2 / 2^e on, are enough. No float lies closer to a multiple of pi/2 than
   about 2^-30. */
static void mpt__sincos_far(double x, double *sine, double *cosine) {
    static const uint32_t digits[9] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                       0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu,
                                       0xdebbc561u}; /* 2/pi, the point after the first word */
    if (!(x >= 524288.0 || x <= -524288.0) || !mpt__f32_is_finite((float)x)) {
        mpt__sincos(x, sine, cosine);
        return;
    }
    uint32_t bits = mpt__f32_bits((float)x), at = (bits >> 23 & 255) - 150 + 30, word[3];
    uint64_t m = (bits & 0x007fffffu) | 0x00800000u;
    for (uint32_t i = 0; i < 3; i++) {
        uint64_t pair = (uint64_t)digits[at / 32 + i] << 32 | digits[at / 32 + i + 1];
        word[i] = (uint32_t)(pair << at % 32 >> 32);
    }
    uint64_t low = m * word[1] + (m * word[2] >> 32);
    uint64_t turns = ((m * word[0] + (low >> 32)) << 32) | (low & 0xffffffffu); /* 2^62: pi/2 */
    uint64_t quadrant = (turns + (UINT64_C(1) << 61)) >> 62;
    double rest = (double)(int64_t)(turns - (quadrant << 62));
    mpt__sincos_quadrant((int64_t)quadrant, rest * (1.5707963267948966 / 4611686018427387904.0),
                         sine, cosine);
    if (x < 0) *sine = -*sine;
}

static double mpt__cos(double x) {
    double sine, cosine;
    mpt__sincos(x, &sine, &cosine);
    return cosine;
}

/* base^exponent by repeated squaring; 0^0 = 1. The relative error grows as |exponent| roundings. */
static double mpt__power(double base, int64_t exponent) {
    uint64_t left = exponent < 0 ? 0 - (uint64_t)exponent : (uint64_t)exponent;
    double result = 1.0;
    for (; left > 0; left >>= 1) {
        if (left & 1) result *= base;
        base *= base;
    }
    return exponent < 0 ? 1.0 / result : result;
}

/* a^b as the C library has it, the special cases of IEEE 754 included; error 1e-13 relative. */
static double mpt__pow(double a, double b) {
    if (b == 0.0 || a == 1.0) return 1.0;
    if (mpt__f64_is_nan(b)) return b;
    double size = a < 0.0 ? -a : a, bound = b < 0.0 ? -b : b;
    bool whole = bound >= 9007199254740992.0 || (double)(int64_t)bound == bound;
    bool odd = bound < 9007199254740992.0 && whole && ((int64_t)bound & 1);
    bool negative = mpt__f64_bits(a) >> 63 != 0;
    if (a < 0.0 && !whole && mpt__f64_is_finite(a)) return MPT__NAN_F64;
    double power = size == 1.0 ? 1.0 : mpt__exp(b * mpt__ln(size));
    return negative && odd ? -power : power;
}

/* ==== Normal random numbers ==== */

/* Box and Muller: two words to two independent values of mean 0 and deviation 1. */
static void mpt__normal_pair(uint32_t radius_bits, uint32_t angle_bits, double value[2]) {
    double radius = sqrt(-2.0 * mpt__ln(((double)radius_bits + 1.0) / 4294967296.0));
    /* The angle is angle_bits / 2^32 turns: the nearest quarter turn, and the rest. */
    uint32_t quadrant = (angle_bits + 0x20000000u) >> 30;
    double rest = (double)(int32_t)(angle_bits - (quadrant << 30));
    mpt__sincos_quadrant(quadrant, rest * (1.5707963267948966 / 1073741824.0), &value[1],
                         &value[0]);
    value[0] *= radius;
    value[1] *= radius;
}

/* Elements first .. first+n-1 of a normally distributed sequence, computed in double and rounded to
 * float at the end. Elements 2k and 2k+1 come from words 2k and 2k+1 of the key. No value lies more
 * than 6.66 deviations from the mean. */
static void mpt__random_normal(mpt__rng_key key, uint64_t first, size_t n, float mean, float std,
                               float *out) {
    size_t done = 0;
    while (done < n) {
        uint64_t at = first + done;
        unsigned skip = (unsigned)(at & 3);
        uint32_t words[4];
        double values[4];
        mpt__random_bits(key, at - skip, 4, words);
        mpt__normal_pair(words[0], words[1], values);
        mpt__normal_pair(words[2], words[3], values + 2);
        for (unsigned k = skip; k < 4 && done < n; k++, done++)
            out[done] = (float)((double)mean + (double)std * values[k]);
    }
}

#endif
