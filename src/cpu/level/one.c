/* ----
 * cpu/level/one.c: the vocabulary of single floats, and its functions: those of every CPU, whose
 * bits the wider levels give.
 * ---- */
#ifndef MPT__CPU_LEVEL_ONE_INCLUDED
#define MPT__CPU_LEVEL_ONE_INCLUDED

#include "cpu/vocabulary.h"

/* ==== Constants of cpu/template/math.c ==== */

#define MPT__ROUND_MAGIC 12582912.0f /* 1.5 * 2^23: adding it leaves an integer in the low bits */
#define MPT__ROUND_MAGIC_BITS 0x4b400000
#define MPT__LOG2_E_F 1.44269504f
#define MPT__LN2_HIGH_F 0.693359375f /* 10 bits: times any exponent it is exact */
#define MPT__LN2_LOW_F (-2.12194440e-4f)
#define MPT__SQRT_HALF_BITS 0x3f3504f3
#define MPT__TANH_SWITCH_BITS 0x3f200000 /* 0.625 */
#define MPT__SIGN_BIT (-0x7fffffff - 1)

/* exp(r) = 1 + r + r^2 P(r) for |r| <= ln(2)/2; error 3.2e-9. */
static const float mpt__exp_coefficients[5] = {
    0.49999994f, 0.166665211f, 0.0416682735f, 0.00836868584f, 0.00138201355f};
/* log(1+f) = f - f^2/2 + f^3 P(f) for sqrt(1/2) <= 1+f <= sqrt(2); error 7.7e-10. */
static const float mpt__log_coefficients[9] = {0.333333135f, -0.250000089f, 0.200020716f,
    -0.166679904f, 0.142203629f, -0.124062076f, 0.118834704f, -0.116701923f, 0.0674955621f};
/* tanh(x) = x + x^3 P(x^2) for |x| <= 0.625; error 1.8e-10. */
static const float mpt__tanh_coefficients[6] = {
    -0.333333313f, 0.133332208f, -0.0539481789f, 0.021706894f, -0.00819001347f, 0.00215268368f};
/* Of the normal distribution 2^P(x) lies beyond x >= 0; error 9.9e-9. */
static const float mpt__normal_coefficients[9] = {-1, -1.15110540f, -0.459205478f, -0.0525077060f,
    0.00708522834f, -0.000157928269f, -0.000175549168f, 3.66948625e-05f, -2.57039142e-06f};
/* 2^r for |r| <= 1/2; error 2.0e-9. */
static const float mpt__exp2_coefficients[7] = {1, 0.693147182f, 0.240226477f, 0.0555035993f,
    0.00961850584f, 0.00133908063f, 0.000153264642f};

/* ==== Vocabulary ==== */

typedef float mpt__v1_f;
typedef uint32_t mpt__v1_i;
typedef bool mpt__v1_m;
#define MPT__V(word) mpt__v1_##word
#define MPT__OP static MPT__INLINE

MPT__OP v_f v_add(v_f a, v_f b) { return a + b; }
MPT__OP v_f v_sub(v_f a, v_f b) { return a - b; }
MPT__OP v_f v_mul(v_f a, v_f b) { return a * b; }
MPT__OP v_f v_div(v_f a, v_f b) { return a / b; }
MPT__OP v_f v_set(v_f a) { return a; }
MPT__OP v_f v_larger(v_f a, v_f b) { return a > b ? a : b; }
MPT__OP v_f v_smaller(v_f a, v_f b) { return a < b ? a : b; }
MPT__OP v_i v_bits(v_f a) { return mpt__f32_bits(a); }
MPT__OP v_f v_float(v_i a) { return mpt__f32_from_bits(a); }
MPT__OP v_f v_convert(v_i a) { return (float)(int32_t)a; }
MPT__OP v_i v_iset(int32_t a) { return (uint32_t)a; }
MPT__OP v_i v_iadd(v_i a, v_i b) { return a + b; }
MPT__OP v_i v_isub(v_i a, v_i b) { return a - b; }
MPT__OP v_i v_iand(v_i a, v_i b) { return a & b; }
MPT__OP v_i v_ior(v_i a, v_i b) { return a | b; }
MPT__OP v_i v_shl23(v_i a) { return a << 23; }
MPT__OP v_i v_sar1(v_i a) { return a >> 1 | (a & 0x80000000u); }
MPT__OP v_i v_sar23(v_i a) { return a >> 23 | (0u - (a >> 31)) << 9; }
MPT__OP v_m v_igt(v_i a, v_i b) { return (int32_t)a > (int32_t)b; }
MPT__OP v_f v_select(v_m m, v_f a, v_f b) { return m ? a : b; }

/* ==== The functions of one float ==== */

#define MPT__WIDTH 1
#define MPT__FN static
#include "cpu/template/functions.c"
#undef MPT__V
#undef MPT__WIDTH
#undef MPT__FN
#undef MPT__OP

/* ==== The reference: words on mpt__real ==== */

static MPT__INLINE bool mpt__real_is_nan(mpt__real x) {
    return sizeof x == sizeof(float) ? mpt__f32_is_nan((float)x) : mpt__f64_is_nan((double)x);
}
static MPT__INLINE bool mpt__real_is_finite(mpt__real x) { return mpt__f64_is_finite((double)x); }
static MPT__INLINE mpt__real mpt__real_infinity(void) {
    return (mpt__real)mpt__f32_from_bits(0x7f800000u);
}

/* The functions of cpu/template/math.c, or ground/math.c, for this type: both compile, one is
   called. */
#define MPT__REAL_FUNCTION(name, of_float, of_double) \
    static MPT__INLINE mpt__real mpt__real_##name(mpt__real x) { \
        return sizeof(mpt__real) == sizeof(float) ? (mpt__real)of_float((float)x) \
                                                  : (mpt__real)of_double((double)x); \
    }
MPT__REAL_FUNCTION(exp, mpt__v1_exp, mpt__exp)
MPT__REAL_FUNCTION(log, mpt__v1_log, mpt__ln)
MPT__REAL_FUNCTION(tanh, mpt__v1_tanh, mpt__tanh)
MPT__REAL_FUNCTION(normal, mpt__v1_normal, mpt__normal)
MPT__REAL_FUNCTION(sigmoid, mpt__v1_sigmoid, mpt__sigmoid)

/* Correctly rounded also for float: 53 bits are more than twice 24 and 2. As sqrt may set errno, a
   loop around it would keep no number in a register. */
static MPT__INLINE mpt__real mpt__real_sqrt(mpt__real x) {
#ifdef MPT__SIMD_X86
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
#else
    return (mpt__real)sqrt((double)x);
#endif
}

typedef mpt__real mpt__real_f;
typedef bool mpt__real_m;
#define MPT__V(word) mpt__real_##word
#define MPT__OP static MPT__INLINE
MPT__OP v_f v_zero(void) { return 0; }
MPT__OP v_f v_set(v_f a) { return a; }
MPT__OP v_f v_add(v_f a, v_f b) { return a + b; }
MPT__OP v_f v_sub(v_f a, v_f b) { return a - b; }
MPT__OP v_f v_mul(v_f a, v_f b) { return a * b; }
MPT__OP v_f v_div(v_f a, v_f b) { return a / b; }
MPT__OP v_f v_negate(v_f a) { return -a; }
MPT__OP v_f v_larger(v_f a, v_f b) { return a > b ? a : b; }
MPT__OP v_f v_smaller(v_f a, v_f b) { return a < b ? a : b; }
MPT__OP v_f v_select(v_m m, v_f a, v_f b) { return m ? a : b; }
MPT__OP v_m v_greater(v_f a, v_f b) { return a > b; }
MPT__OP v_m v_equal(v_f a, v_f b) { return a == b; }
MPT__OP v_m v_is_inf(v_f a) { return !mpt__real_is_finite(a) && !v_is_nan(a); }
MPT__OP v_f v_abs(v_f a) { return (v_f)fabs((double)a); }
MPT__OP v_f v_sign(v_f a) { return (v_f)((a > 0 ? 1 : 0) - (a < 0 ? 1 : 0)); }
MPT__OP v_f v_log1p(v_f a) { return (v_f)mpt__ln1p((double)a); }
MPT__OP v_f v_expm1(v_f a) { return (v_f)mpt__expm1((double)a); }
MPT__OP v_f v_pow(v_f a, v_f b) { return (v_f)mpt__pow((double)a, (double)b); }
MPT__OP v_f mpt__real_wave(v_f a, bool cosine) {
    double value[2];
    mpt__sincos_far((double)a, &value[0], &value[1]);
    return (v_f)value[cosine];
}
MPT__OP v_f v_sin(v_f a) { return mpt__real_wave(a, false); }
MPT__OP v_f v_cos(v_f a) { return mpt__real_wave(a, true); }
MPT__OP v_f v_softplus(v_f a, v_f beta, v_f threshold) {
    if (a * beta > threshold) return a;
    return (v_f)mpt__ln1p(mpt__exp((double)(a * beta))) / beta;
}
MPT__OP v_f v_pow_slope(v_f a, v_f b) {
    if (b == 2) return a + a;
    return b == 0 ? 0 : b * v_pow(a, b - 1);
}
MPT__OP v_f v_pow_exponent(v_f a, v_f b) { return a == 0 && b >= 0 ? 0 : v_pow(a, b) * v_log(a); }

/* ==== Its functions ==== */

#define MPT__SQRT_2_BY_PI ((mpt__real)0.79788456080286536) /* sqrt(2 / pi) */
#define MPT__NORMAL_PEAK ((mpt__real)0.39894228040143268)  /* 1 / sqrt(2 pi) */
#define MPT__GELU_CUBE ((mpt__real)0.044715)

#define MPT__WIDTH 0
#include "cpu/template/functions.c"
#undef MPT__V
#undef MPT__WIDTH
#undef MPT__OP

#endif
