/* ----
 * ground/math.c: exp, log, tanh, erf and their kin in double, without the C library, whose bits
 * differ from one platform to the next.
 *
 * Everything here is made of + - * / sqrt and integer operations in a fixed order, so every
 * compiler and CPU gives the same bits; nothing may be contracted to FMA. Relative errors are about
 * 1e-15. Those of floats are in cpu/template/math.c.
 * ---- */
#ifndef MPT__GROUND_MATH_INCLUDED
#define MPT__GROUND_MATH_INCLUDED

#include "ground/random.c"
#include "ground/dtype.c"

/* ==== Functions ==== */

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
    static const double c[12] = {1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040,
        1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600,
        1.0 / 6227020800.0};
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

/* What of the normal distribution lies below x. */
static double mpt__normal(double x) {
    return 0.5 * (1.0 + mpt__erf(0.70710678118654752 * x));
}

/* Sine and cosine of quadrant * pi/2 + r, |r| <= pi/4. */
static void mpt__sincos_quadrant(int64_t quadrant, double r, double *sine, double *cosine) {
    /* Taylor: the signed inverses of 3!, 5!, .. 17! and of 4!, 6!, .. 16!. */
    static const double odd[8] = {-1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
        1.0 / 6227020800.0, -1.0 / 1307674368000.0, 1.0 / 355687428096000.0};
    static const double even[7] = {1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800,
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
    static const uint32_t digits[9] = {0, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u,
        0xdb629599u, 0x3c439041u, 0xfe5163abu,
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
    mpt__sincos_quadrant(
        (int64_t)quadrant, rest * (1.5707963267948966 / 4611686018427387904.0), sine, cosine);
    if (x < 0) *sine = -*sine;
}

static double mpt__cos(double x) {
    double sine, cosine;
    mpt__sincos(x, &sine, &cosine);
    return cosine;
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
    mpt__sincos_quadrant(
        quadrant, rest * (1.5707963267948966 / 1073741824.0), &value[1], &value[0]);
    value[0] *= radius;
    value[1] *= radius;
}

/* Elements first .. first+n-1 of a normally distributed sequence, computed in double and rounded to
 * float at the end. Elements 2k and 2k+1 come from words 2k and 2k+1 of the key. No value lies more
 * than 6.66 deviations from the mean. */
static void mpt__random_normal(
    mpt__rng_key key, uint64_t first, size_t n, float mean, float std, float *out) {
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
