/* ---------------------------------------------------------------------------------------------
 * 14_convert.c: bulk conversions between fp32, fp16 and bf16, and bulk tests for inf and NaN.
 *
 * Every level gives the bits of the scalar functions in 13_dtype.c for every input, with flush-to-
 * zero and denormals-are-zero on or off: bf16 and the tests use integers only; the fp16
 * instructions ignore FTZ, and DAZ only turns fp32 denormals into zeros, which fp16 would make of
 * them anyway. (AVX512_BF16's own conversion always flushes denormals, so it is not used.)
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__14_CONVERT_INCLUDED
#define MPT__14_CONVERT_INCLUDED

#include "13_dtype.c"

/* Any alignment; source and destination do not overlap; n may be 0. */
typedef struct mpt__convert_table {
    void (*f16_to_f32)(const uint16_t *from, float *to, size_t n);
    void (*bf16_to_f32)(const uint16_t *from, float *to, size_t n);
    void (*f32_to_f16)(const float *from, uint16_t *to, size_t n);
    void (*f32_to_bf16)(const float *from, uint16_t *to, size_t n);
    bool (*all_finite_f32)(const float *values, size_t n);
    bool (*all_finite_f16)(const uint16_t *values, size_t n);
    bool (*all_finite_bf16)(const uint16_t *values, size_t n);
} mpt__convert_table;

#define MPT__F16_EXPONENT 0x7c00u
#define MPT__BF16_EXPONENT 0x7f80u

/* ==== Portable ==== */

static void mpt__convert_f16_to_f32(const uint16_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = mpt__f16_to_f32(from[i]);
    }
}

static void mpt__convert_bf16_to_f32(const uint16_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = mpt__bf16_to_f32(from[i]);
    }
}

static void mpt__convert_f32_to_f16(const float *from, uint16_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = mpt__f32_to_f16(from[i]);
    }
}

static void mpt__convert_f32_to_bf16(const float *from, uint16_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) {
        to[i] = mpt__f32_to_bf16(from[i]);
    }
}

static bool mpt__all_finite_f32(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!mpt__f32_is_finite(values[i])) {
            return false;
        }
    }
    return true;
}

/* `exponent` is the exponent field of the 16-bit format. */
static bool mpt__all_finite_16(const uint16_t *values, size_t n, uint32_t exponent) {
    for (size_t i = 0; i < n; i++) {
        if ((values[i] & exponent) == exponent) {
            return false;
        }
    }
    return true;
}

static bool mpt__all_finite_f16(const uint16_t *values, size_t n) {
    return mpt__all_finite_16(values, n, MPT__F16_EXPONENT);
}

static bool mpt__all_finite_bf16(const uint16_t *values, size_t n) {
    return mpt__all_finite_16(values, n, MPT__BF16_EXPONENT);
}

static const mpt__convert_table mpt__convert_portable = {
    mpt__convert_f16_to_f32,  mpt__convert_bf16_to_f32, mpt__convert_f32_to_f16,
    mpt__convert_f32_to_bf16, mpt__all_finite_f32,      mpt__all_finite_f16,
    mpt__all_finite_bf16};

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
/* ==== AVX2 and F16C ==== */

#define MPT__CONVERT_AVX2 MPT__TARGET("avx2,f16c") static

MPT__CONVERT_AVX2 MPT__INLINE __m256i mpt__avx2_load_bits(const void *from) {
    return _mm256_loadu_si256((const __m256i *)from);
}

MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_store_bits(void *to, __m256i bits) {
    _mm256_storeu_si256((__m256i *)to, bits);
}

MPT__CONVERT_AVX2 void mpt__avx2_convert_f16_to_f32(const uint16_t *from, float *to, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = mpt__avx2_load_bits(from + i);
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm256_castsi256_si128(half)));
        _mm256_storeu_ps(to + i + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
    }
    mpt__convert_f16_to_f32(from + i, to + i, n - i);
}

MPT__CONVERT_AVX2 void mpt__avx2_convert_bf16_to_f32(const uint16_t *from, float *to, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = mpt__avx2_load_bits(from + i);
        __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(half));
        __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(half, 1));
        mpt__avx2_store_bits(to + i, _mm256_slli_epi32(low, 16));
        mpt__avx2_store_bits(to + i + 8, _mm256_slli_epi32(high, 16));
    }
    mpt__convert_bf16_to_f32(from + i, to + i, n - i);
}

MPT__CONVERT_AVX2 void mpt__avx2_convert_f32_to_f16(const float *from, uint16_t *to, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m128i low = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        __m128i high = _mm256_cvtps_ph(_mm256_loadu_ps(from + i + 8), _MM_FROUND_TO_NEAREST_INT);
        mpt__avx2_store_bits(to + i, _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
    }
    mpt__convert_f32_to_f16(from + i, to + i, n - i);
}

/* Eight fp32 patterns to bf16 in the low halves of eight words. */
MPT__CONVERT_AVX2 MPT__INLINE __m256i mpt__avx2_round_bf16(__m256i bits) {
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, bias), 16);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

MPT__CONVERT_AVX2 void mpt__avx2_convert_f32_to_bf16(const float *from, uint16_t *to, size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i low = mpt__avx2_round_bf16(mpt__avx2_load_bits(from + i));
        __m256i high = mpt__avx2_round_bf16(mpt__avx2_load_bits(from + i + 8));
        __m256i packed = _mm256_packus_epi32(low, high); /* its quarters in order 0 2 1 3 */
        mpt__avx2_store_bits(to + i, _mm256_permute4x64_epi64(packed, 0xd8));
    }
    mpt__convert_f32_to_bf16(from + i, to + i, n - i);
}

MPT__CONVERT_AVX2 bool mpt__avx2_all_finite_f32(const float *values, size_t n) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i bad = _mm256_setzero_si256();
        for (size_t k = 0; k < 32; k += 8) {
            __m256i field = _mm256_and_si256(mpt__avx2_load_bits(values + i + k), exponent);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(field, exponent));
        }
        if (!_mm256_testz_si256(bad, bad)) {
            return false;
        }
    }
    return mpt__all_finite_f32(values + i, n - i);
}

MPT__CONVERT_AVX2 bool mpt__avx2_all_finite_16(const uint16_t *values, size_t n,
                                               uint32_t field_mask) {
    const __m256i exponent = _mm256_set1_epi16((short)field_mask);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m256i bad = _mm256_setzero_si256();
        for (size_t k = 0; k < 64; k += 16) {
            __m256i field = _mm256_and_si256(mpt__avx2_load_bits(values + i + k), exponent);
            bad = _mm256_or_si256(bad, _mm256_cmpeq_epi16(field, exponent));
        }
        if (!_mm256_testz_si256(bad, bad)) {
            return false;
        }
    }
    return mpt__all_finite_16(values + i, n - i, field_mask);
}

static bool mpt__avx2_all_finite_f16(const uint16_t *values, size_t n) {
    return mpt__avx2_all_finite_16(values, n, MPT__F16_EXPONENT);
}

static bool mpt__avx2_all_finite_bf16(const uint16_t *values, size_t n) {
    return mpt__avx2_all_finite_16(values, n, MPT__BF16_EXPONENT);
}

static const mpt__convert_table mpt__convert_avx2 = {
    mpt__avx2_convert_f16_to_f32,  mpt__avx2_convert_bf16_to_f32, mpt__avx2_convert_f32_to_f16,
    mpt__avx2_convert_f32_to_bf16, mpt__avx2_all_finite_f32,      mpt__avx2_all_finite_f16,
    mpt__avx2_all_finite_bf16};

/* ==== AVX-512 ==== */

#define MPT__CONVERT_AVX512 MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq") static

/* A mask of all lanes. The forms without one make gcc warn about variables and conversions in its
 * own header; the code is the same. */
#define MPT__ALL_LANES ((__mmask16)0xffff)

/* The lanes of the last, incomplete vector of 16. */
static MPT__INLINE __mmask16 mpt__avx512_tail(size_t n) {
    return (__mmask16)((1u << (n & 15)) - 1);
}

MPT__CONVERT_AVX512 void mpt__avx512_convert_f16_to_f32(const uint16_t *from, float *to,
                                                        size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(MPT__ALL_LANES, half));
    }
    if (i < n) {
        __mmask16 tail = mpt__avx512_tail(n);
        __m256i half = _mm256_maskz_loadu_epi16(tail, from + i);
        _mm512_mask_storeu_ps(to + i, tail, _mm512_maskz_cvtph_ps(tail, half));
    }
}

MPT__CONVERT_AVX512 MPT__INLINE __m512i mpt__avx512_widen_bf16(__m256i half) {
    __m512i wide = _mm512_maskz_cvtepu16_epi32(MPT__ALL_LANES, half);
    return _mm512_maskz_slli_epi32(MPT__ALL_LANES, wide, 16);
}

MPT__CONVERT_AVX512 void mpt__avx512_convert_bf16_to_f32(const uint16_t *from, float *to,
                                                         size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        _mm512_storeu_si512(to + i, mpt__avx512_widen_bf16(half));
    }
    if (i < n) {
        __mmask16 tail = mpt__avx512_tail(n);
        __m256i half = _mm256_maskz_loadu_epi16(tail, from + i);
        _mm512_mask_storeu_epi32(to + i, tail, mpt__avx512_widen_bf16(half));
    }
}

MPT__CONVERT_AVX512 MPT__INLINE __m256i mpt__avx512_round_f16(__m512 value) {
    return _mm512_maskz_cvtps_ph(MPT__ALL_LANES, value, _MM_FROUND_TO_NEAREST_INT);
}

MPT__CONVERT_AVX512 void mpt__avx512_convert_f32_to_f16(const float *from, uint16_t *to,
                                                        size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = mpt__avx512_round_f16(_mm512_loadu_ps(from + i));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), half);
    }
    if (i < n) {
        __mmask16 tail = mpt__avx512_tail(n);
        __m256i half = mpt__avx512_round_f16(_mm512_maskz_loadu_ps(tail, from + i));
        _mm256_mask_storeu_epi16(to + i, tail, half);
    }
}

MPT__CONVERT_AVX512 MPT__INLINE __m256i mpt__avx512_round_bf16(__m512i bits) {
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    __m512i upper = _mm512_maskz_srli_epi32(MPT__ALL_LANES, bits, 16);
    __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    __m512i sum = _mm512_add_epi32(bits, bias);
    __m512i rounded = _mm512_maskz_srli_epi32(MPT__ALL_LANES, sum, 16);
    rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    return _mm512_maskz_cvtepi32_epi16(MPT__ALL_LANES, rounded);
}

MPT__CONVERT_AVX512 void mpt__avx512_convert_f32_to_bf16(const float *from, uint16_t *to,
                                                         size_t n) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = mpt__avx512_round_bf16(_mm512_loadu_si512(from + i));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), half);
    }
    if (i < n) {
        __mmask16 tail = mpt__avx512_tail(n);
        __m256i half = mpt__avx512_round_bf16(_mm512_maskz_loadu_epi32(tail, from + i));
        _mm256_mask_storeu_epi16(to + i, tail, half);
    }
}

MPT__CONVERT_AVX512 bool mpt__avx512_all_finite_f32(const float *values, size_t n) {
    const __m512i exponent = _mm512_set1_epi32(0x7f800000);
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        uint32_t bad = 0;
        for (size_t k = 0; k < 64; k += 16) {
            __m512i field = _mm512_and_si512(_mm512_loadu_si512(values + i + k), exponent);
            bad |= _mm512_cmpeq_epi32_mask(field, exponent);
        }
        if (bad) {
            return false;
        }
    }
    return mpt__all_finite_f32(values + i, n - i);
}

MPT__CONVERT_AVX512 bool mpt__avx512_all_finite_16(const uint16_t *values, size_t n,
                                                   uint32_t field_mask) {
    const __m512i exponent = _mm512_set1_epi16((short)field_mask);
    size_t i = 0;
    for (; i + 128 <= n; i += 128) {
        uint32_t bad = 0;
        for (size_t k = 0; k < 128; k += 32) {
            __m512i field = _mm512_and_si512(_mm512_loadu_si512(values + i + k), exponent);
            bad |= _mm512_cmpeq_epi16_mask(field, exponent);
        }
        if (bad) {
            return false;
        }
    }
    return mpt__all_finite_16(values + i, n - i, field_mask);
}

static bool mpt__avx512_all_finite_f16(const uint16_t *values, size_t n) {
    return mpt__avx512_all_finite_16(values, n, MPT__F16_EXPONENT);
}

static bool mpt__avx512_all_finite_bf16(const uint16_t *values, size_t n) {
    return mpt__avx512_all_finite_16(values, n, MPT__BF16_EXPONENT);
}

static const mpt__convert_table mpt__convert_avx512 = {
    mpt__avx512_convert_f16_to_f32, mpt__avx512_convert_bf16_to_f32,
    mpt__avx512_convert_f32_to_f16, mpt__avx512_convert_f32_to_bf16,
    mpt__avx512_all_finite_f32,     mpt__avx512_all_finite_f16,
    mpt__avx512_all_finite_bf16};
#endif

#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
/* ==== NEON ==== */

static void mpt__neon_convert_f16_to_f32(const uint16_t *from, float *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t half = vld1q_u16(from + i);
        vst1q_f32(to + i, vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(half))));
        vst1q_f32(to + i + 4, vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(half))));
    }
    mpt__convert_f16_to_f32(from + i, to + i, n - i);
}

static void mpt__neon_convert_bf16_to_f32(const uint16_t *from, float *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x8_t half = vld1q_u16(from + i);
        vst1q_f32(to + i, vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(half), 16)));
        vst1q_f32(to + i + 4, vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(half), 16)));
    }
    mpt__convert_bf16_to_f32(from + i, to + i, n - i);
}

static void mpt__neon_convert_f32_to_f16(const float *from, uint16_t *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x4_t low = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i)));
        uint16x4_t high = vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from + i + 4)));
        vst1q_u16(to + i, vcombine_u16(low, high));
    }
    mpt__convert_f32_to_f16(from + i, to + i, n - i);
}

static MPT__INLINE uint16x4_t mpt__neon_round_bf16(uint32x4_t bits) {
    uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffffu));
    uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000u));
    uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint32x4_t bias = vaddq_u32(odd, vdupq_n_u32(0x7fffu));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, bias), 16);
    return vmovn_u32(vbslq_u32(nan, vdupq_n_u32(0x7fc0u), rounded));
}

static void mpt__neon_convert_f32_to_bf16(const float *from, uint16_t *to, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint16x4_t low = mpt__neon_round_bf16(vreinterpretq_u32_f32(vld1q_f32(from + i)));
        uint16x4_t high = mpt__neon_round_bf16(vreinterpretq_u32_f32(vld1q_f32(from + i + 4)));
        vst1q_u16(to + i, vcombine_u16(low, high));
    }
    mpt__convert_f32_to_bf16(from + i, to + i, n - i);
}

static bool mpt__neon_all_finite_f32(const float *values, size_t n) {
    const uint32x4_t exponent = vdupq_n_u32(0x7f800000u);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint32x4_t bad = vdupq_n_u32(0);
        for (size_t k = 0; k < 16; k += 4) {
            uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(values + i + k));
            bad = vorrq_u32(bad, vceqq_u32(vandq_u32(bits, exponent), exponent));
        }
        if (vmaxvq_u32(bad)) {
            return false;
        }
    }
    return mpt__all_finite_f32(values + i, n - i);
}

static bool mpt__neon_all_finite_16(const uint16_t *values, size_t n, uint32_t field_mask) {
    const uint16x8_t exponent = vdupq_n_u16((uint16_t)field_mask);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        uint16x8_t bad = vdupq_n_u16(0);
        for (size_t k = 0; k < 32; k += 8) {
            uint16x8_t field = vandq_u16(vld1q_u16(values + i + k), exponent);
            bad = vorrq_u16(bad, vceqq_u16(field, exponent));
        }
        if (vmaxvq_u16(bad)) {
            return false;
        }
    }
    return mpt__all_finite_16(values + i, n - i, field_mask);
}

static bool mpt__neon_all_finite_f16(const uint16_t *values, size_t n) {
    return mpt__neon_all_finite_16(values, n, MPT__F16_EXPONENT);
}

static bool mpt__neon_all_finite_bf16(const uint16_t *values, size_t n) {
    return mpt__neon_all_finite_16(values, n, MPT__BF16_EXPONENT);
}

static const mpt__convert_table mpt__convert_neon = {
    mpt__neon_convert_f16_to_f32,  mpt__neon_convert_bf16_to_f32, mpt__neon_convert_f32_to_f16,
    mpt__neon_convert_f32_to_bf16, mpt__neon_all_finite_f32,      mpt__neon_all_finite_f16,
    mpt__neon_all_finite_bf16};
#endif

/* ==== Choice ==== */

/* The table for a level that this CPU has. */
static const mpt__convert_table *mpt__convert_table_for(mpt_isa isa) {
#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
    if (isa == MPT_ISA_AVX2) {
        return &mpt__convert_avx2;
    }
    if (isa == MPT_ISA_AVX512 || isa == MPT_ISA_AMX) {
        return &mpt__convert_avx512;
    }
#endif
#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
    if (isa == MPT_ISA_NEON) {
        return &mpt__convert_neon;
    }
#endif
    (void)isa;
    return &mpt__convert_portable;
}

#endif
