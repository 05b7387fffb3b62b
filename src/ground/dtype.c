/* ----
 * ground/dtype.c: conversions of single values between dtypes.
 *
 * Pure functions. fp16 is IEEE binary16, bf16 the upper half of an fp32, fp8 the OCP formats E4M3FN
 * and E5M2. Conversions from fp32 round to nearest even and work on integer bits, so that neither
 * compiler flags nor the caller's flush-to-zero mode reach them; a double is first rounded to fp32,
 * as PyTorch does.
 * ---- */
#ifndef MPT__GROUND_DTYPE_INCLUDED
#define MPT__GROUND_DTYPE_INCLUDED

#include "ground/base.c"

/* What kernels compute in: float. A test that compares with finite differences makes it double. */
#ifndef MPT__REAL
#define MPT__REAL float
#endif
typedef MPT__REAL mpt__real;

/* ==== Bits ==== */

/* mpt__f32_bits, mpt__f32_from_bits, and the same for f64. */
#define MPT__REINTERPRET(NAME, TO, FROM) \
    static MPT__INLINE TO NAME(FROM value) { \
        TO result; \
        memcpy(&result, &value, sizeof result); \
        return result; \
    }
MPT__REINTERPRET(mpt__f32_bits, uint32_t, float)
MPT__REINTERPRET(mpt__f32_from_bits, float, uint32_t)
MPT__REINTERPRET(mpt__f64_bits, uint64_t, double)
MPT__REINTERPRET(mpt__f64_from_bits, double, uint64_t)

static MPT__INLINE bool mpt__f32_is_nan(float value) {
    return (mpt__f32_bits(value) & 0x7fffffffu) > 0x7f800000u;
}

static MPT__INLINE bool mpt__f32_is_finite(float value) {
    return (mpt__f32_bits(value) & 0x7f800000u) != 0x7f800000u;
}

static MPT__INLINE bool mpt__f64_is_nan(double value) {
    return (mpt__f64_bits(value) & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000);
}

static MPT__INLINE bool mpt__f64_is_finite(double value) {
    return (mpt__f64_bits(value) & UINT64_C(0x7ff0000000000000)) != UINT64_C(0x7ff0000000000000);
}

/* ==== fp16, bf16, fp8 ==== */

/* Rounds |value|, given as the bits of an fp32 without sign, finite or infinite, to a format with
 * `mantissa` stored bits and exponent bias `bias`. The result has exponent and mantissa fields as
 * in the format, except that values too large for it run on past its last exponent. */
static MPT__INLINE uint32_t mpt__f32_round_to_small(
    uint32_t bits, uint32_t mantissa, uint32_t bias) {
    uint32_t exponent = bits >> 23;
    uint32_t first_normal = 128 - bias; /* fp32 exponent field of the format's smallest normal */
    uint32_t shift = 23 - mantissa;
    if (exponent < first_normal) {
        shift += first_normal - exponent;
        if (exponent == 0 || shift > 24) { return 0; /* below half of the smallest subnormal */ }
        bits = (bits & 0x7fffffu) | 0x800000u;
    } else {
        bits -= (127 - bias) << 23;
    }
    return (bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1)) >> shift;
}

/* The value of the fields of such a format, without sign, its last exponent counted as finite. */
static MPT__INLINE float mpt__f32_from_small(uint32_t code, uint32_t mantissa, uint32_t bias) {
    if (code >> mantissa == 0) { /* a multiple of the smallest subnormal, normal in fp32 */
        return (float)code * mpt__f32_from_bits((128 - bias - mantissa) << 23);
    }
    return mpt__f32_from_bits((code << (23 - mantissa)) + ((127 - bias) << 23));
}

/* From 65520 up the result is infinity. NaN becomes quiet and keeps the upper ten bits of its
 * payload, as the instructions of x86 and Arm do, so that all paths agree on all 2^32 inputs. */
static MPT__INLINE uint16_t mpt__f32_to_f16(float value) {
    uint32_t bits = mpt__f32_bits(value), magnitude = bits & 0x7fffffffu, code;
    if (magnitude > 0x7f800000u) {
        code = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    } else {
        code = mpt__f32_round_to_small(magnitude, 10, 15);
        code = code < 0x7c00u ? code : 0x7c00u;
    }
    return (uint16_t)((bits >> 16 & 0x8000u) | code);
}

/* Exact; a signalling NaN becomes quiet. */
static MPT__INLINE float mpt__f16_to_f32(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, code = half & 0x7fffu, bits;
    if (code >= 0x7c00u) {
        bits = 0x7f800000u | (code & 0x3ffu) << 13 | (code > 0x7c00u ? 0x400000u : 0);
    } else {
        bits = mpt__f32_bits(mpt__f32_from_small(code, 10, 15));
    }
    return mpt__f32_from_bits(sign | bits);
}

/* Every NaN becomes 0x7fc0, without sign. */
static MPT__INLINE uint16_t mpt__f32_to_bf16(float value) {
    uint32_t bits = mpt__f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* To one of the two bf16 numbers around the value, which is the nearer the likelier: the mean is
 * the value. `word` is random. What bf16 has stays, beyond its largest number infinity is next. */
static MPT__INLINE uint16_t mpt__f32_to_bf16_stochastic(float value, uint32_t word) {
    uint32_t bits = mpt__f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0u;
    return (uint16_t)((bits + (word >> 16)) >> 16);
}

/* Exact, payloads of NaN included. */
static MPT__INLINE float mpt__bf16_to_f32(uint16_t half) {
    return mpt__f32_from_bits((uint32_t)half << 16);
}

#ifndef MPTRAIN_NO_FP8
/* What becomes of values beyond the largest finite one. */
typedef enum mpt__f8_mode {
    MPT__F8_SATFINITE = 0, /* they, and infinities, become the largest finite value */
    MPT__F8_NONSAT         /* E4M3: NaN; E5M2: infinity */
} mpt__f8_mode;

/* NaN keeps its sign; `most` is the largest finite code. */
static MPT__INLINE uint8_t mpt__f32_to_f8(
    float value, uint32_t mantissa, uint32_t bias, uint32_t most, mpt__f8_mode mode) {
    uint32_t bits = mpt__f32_bits(value), magnitude = bits & 0x7fffffffu, code = 0x7fu;
    if (magnitude <= 0x7f800000u) {
        code = mpt__f32_round_to_small(magnitude, mantissa, bias);
        if (code > most) code = mode == MPT__F8_SATFINITE ? most : most + 1;
    }
    return (uint8_t)((bits >> 24 & 0x80u) | code);
}

/* E4M3FN has no infinity; 464, the tie above its largest value 448, still rounds to 448. */
static MPT__INLINE uint8_t mpt__f32_to_f8e4m3(float value, mpt__f8_mode mode) {
    return mpt__f32_to_f8(value, 3, 7, 0x7e, mode);
}

static MPT__INLINE uint8_t mpt__f32_to_f8e5m2(float value, mpt__f8_mode mode) {
    return mpt__f32_to_f8(value, 2, 15, 0x7b, mode);
}

static MPT__INLINE float mpt__f8e4m3_to_f32(uint8_t byte) {
    uint32_t sign = (uint32_t)(byte & 0x80u) << 24, code = byte & 0x7fu;
    uint32_t bits = code == 0x7fu ? 0x7fc00000u : mpt__f32_bits(mpt__f32_from_small(code, 3, 7));
    return mpt__f32_from_bits(sign | bits);
}

static MPT__INLINE float mpt__f8e5m2_to_f32(uint8_t byte) {
    return mpt__f16_to_f32((uint16_t)(byte << 8)); /* it is the upper half of an fp16 */
}
#endif

static bool mpt__big_endian(void) {
    uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 0;
}

/* Turns elements of `size` bytes around where this machine's order is not the file's. */
static void mpt__file_order(uint8_t *bytes, size_t n, size_t size) {
    if (!mpt__big_endian()) return;
    for (uint8_t *element = bytes; element < bytes + n; element += size) {
        for (size_t i = 0; i < size / 2; i++) {
            uint8_t kept = element[i];
            element[i] = element[size - 1 - i];
            element[size - 1 - i] = kept;
        }
    }
}

#endif
