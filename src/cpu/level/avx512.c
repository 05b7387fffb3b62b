/* ---------------------------------------------------------------------------------------------
 * cpu/level/avx512.c: the vector layer of AVX-512 (F, BW, VL, DQ), and the kernels made of it.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__CPU_LEVEL_AVX512_INCLUDED
#define MPT__CPU_LEVEL_AVX512_INCLUDED

#include "cpu/level/avx2.c"

#ifdef MPT__SIMD_X86
#define MPT__HAS_AVX512 1

/* ==== Vector layer: 16 floats; contracts as in cpu/level/avx2.c ==== */

#define MPT__AVX512 MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma") static
#define MPT__AVX512_OP \
    MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma") static MPT__FORCE_INLINE

MPT__AVX512_OP mpt__v16_f mpt__v16_zero(void) { return _mm512_setzero_ps(); }
MPT__AVX512_OP mpt__v16_f mpt__v16_load(const float *p) { return _mm512_loadu_ps(p); }
MPT__AVX512_OP void mpt__v16_store(float *p, mpt__v16_f v) { _mm512_storeu_ps(p, v); }
MPT__AVX512_OP mpt__v16_f mpt__v16_sqrt(mpt__v16_f a) {
    return _mm512_maskz_sqrt_ps((__mmask16)0xffff, a);
}
MPT__AVX512_OP mpt__v16_f mpt__v16_fma(mpt__v16_f a, mpt__v16_f b, mpt__v16_f c) {
    return _mm512_fmadd_ps(a, b, c);
}
MPT__AVX512_OP mpt__v16_m mpt__v16_first(int64_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}
MPT__AVX512_OP mpt__v16_f mpt__v16_load_first(const void *p, mpt__v16_m lanes) {
    return _mm512_maskz_loadu_ps(lanes, p);
}
MPT__AVX512_OP mpt__v16_m mpt__v16_greater(mpt__v16_f a, mpt__v16_f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
MPT__AVX512_OP mpt__v16_m mpt__v16_equal(mpt__v16_f a, mpt__v16_f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
MPT__AVX512_OP mpt__v16_m mpt__v16_is_nan(mpt__v16_f a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
MPT__AVX512_OP mpt__v16_m mpt__v16_words_from(const uint32_t *words, uint32_t threshold) {
    return _mm512_cmpge_epu32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32((int)threshold));
}
MPT__AVX512_OP mpt__v16_f mpt__v16_from_half(__m256i half, int dtype) {
    if (dtype == MPT_F16) return _mm512_maskz_cvtph_ps((__mmask16)0xffff, half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
MPT__AVX512_OP __m256i mpt__v16_to_half(mpt__v16_f v, int dtype) {
    if (dtype == MPT_F16) return mpt__avx512_round_f16(v);
    return mpt__avx512_round_bf16(_mm512_castps_si512(v));
}
MPT__AVX512_OP mpt__v16_f mpt__v16_round(mpt__v16_f v, int dtype) {
    if (dtype != MPT_F16 && dtype != MPT_BF16) return v;
    return mpt__v16_from_half(mpt__v16_to_half(v, dtype), dtype);
}
MPT__AVX512_OP mpt__v16_f mpt__v16_load_full(const void *p, int dtype) {
    if (dtype == MPT_F32) return _mm512_loadu_ps(p);
    return mpt__v16_from_half(_mm256_loadu_si256((const __m256i *)p), dtype);
}
MPT__AVX512_OP mpt__v16_f mpt__v16_load_as(const void *p, int64_t n, int dtype) {
    if (n >= 16) return mpt__v16_load_full(p, dtype);
    __mmask16 lanes = mpt__v16_first(n);
    if (dtype == MPT_F32) return _mm512_maskz_loadu_ps(lanes, p);
    return mpt__v16_from_half(_mm256_maskz_loadu_epi16(lanes, p), dtype);
}
MPT__AVX512_OP void mpt__v16_store_as(void *p, mpt__v16_f v, int64_t n, int dtype) {
    __mmask16 lanes = mpt__v16_first(n);
    if (dtype == MPT_F32) {
        if (n >= 16) {
            _mm512_storeu_ps(p, v);
        } else {
            _mm512_mask_storeu_ps(p, lanes, v);
        }
    } else if (n >= 16) {
        _mm256_storeu_si256((__m256i *)p, mpt__v16_to_half(v, dtype));
    } else {
        _mm256_mask_storeu_epi16(p, lanes, mpt__v16_to_half(v, dtype));
    }
}
MPT__X86_TRANSPOSE4(MPT__AVX512_OP, mpt__v16, _mm512)
MPT__AVX512_OP mpt__v16_f mpt__v16_load_quads(const float *p, int64_t step) {
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + step), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * step), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * step), 3);
}
MPT__AVX512_OP void mpt__v16_stream(float *p, mpt__v16_f v) { _mm512_stream_ps(p, v); }
MPT__AVX512_OP void mpt__v16_fence(void) { _mm_sfence(); }
MPT__AVX512_OP void mpt__v16_store_quads(float *p, int64_t step, mpt__v16_f v) {
    _mm_storeu_ps(p, _mm512_castps512_ps128(v));
    _mm_storeu_ps(p + step, _mm512_extractf32x4_ps(v, 1));
    _mm_storeu_ps(p + 2 * step, _mm512_extractf32x4_ps(v, 2));
    _mm_storeu_ps(p + 3 * step, _mm512_extractf32x4_ps(v, 3));
}
MPT__AVX512_OP float mpt__v16_peak(mpt__v16_f v) {
    return mpt__v8_peak(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
MPT__AVX512_OP __m256 mpt__v16_fold(mpt__v16_f v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
MPT__AVX512_OP float mpt__v16_total(mpt__v16_f v) { return mpt__v8_total(mpt__v16_fold(v)); }
MPT__AVX512_OP __m256 mpt__v16_sum8(__m512 s0, __m512 s1, __m512 s2, __m512 s3, __m512 s4,
                                    __m512 s5, __m512 s6, __m512 s7) {
    return mpt__v8_sum8(mpt__v16_fold(s0), mpt__v16_fold(s1), mpt__v16_fold(s2), mpt__v16_fold(s3),
                        mpt__v16_fold(s4), mpt__v16_fold(s5), mpt__v16_fold(s6), mpt__v16_fold(s7));
}

#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)
/* 32 elements: of bf16 those of even places, then those of odd ones; of others as they lie. */
MPT__AVX512_OP void mpt__v16_load_two(const void *p, mpt__v16_f *a, mpt__v16_f *b, int dtype) {
    if (dtype != MPT_BF16) {
        *a = mpt__v16_load_full(p, dtype);
        *b = mpt__v16_load_full((const char *)p + (dtype == MPT_F32 ? 64 : 32), dtype);
        return;
    }
    const __m512i pairs = _mm512_loadu_si512(p);
    *a = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *b = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
/* Of 32 floats those of even places, then those of odd ones. */
MPT__AVX512_OP void mpt__v16_load_apart(const float *p, mpt__v16_f *a, mpt__v16_f *b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const mpt__v16_f low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    *a = _mm512_permutex2var_ps(low, even, high);
    *b = _mm512_permutex2var_ps(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
}
/* Both rounded to bf16, a to the even places. That there is a NaN is seldom. */
MPT__AVX512_OP __m512i mpt__v16_round_pairs(mpt__v16_f a, mpt__v16_f b) {
    __m512i low = _mm512_castps_si512(a), high = _mm512_castps_si512(b);
    if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q))
        low = mpt__avx512_round_high(low, true), high = mpt__avx512_round_high(high, true);
    else
        low = mpt__avx512_round_high(low, false), high = mpt__avx512_round_high(high, false);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}
MPT__AVX512_OP void mpt__v16_store_two(void *p, mpt__v16_f a, mpt__v16_f b, int dtype,
                                       bool streams) {
    const int64_t bytes = dtype == MPT_F32 ? 64 : 32;
    if (dtype == MPT_BF16 && streams)
        _mm512_stream_si512((__m512i *)p, mpt__v16_round_pairs(a, b));
    else if (dtype == MPT_BF16)
        _mm512_storeu_si512(p, mpt__v16_round_pairs(a, b));
    else if (dtype == MPT_F32 && streams)
        mpt__v16_stream((float *)p, a), mpt__v16_stream((float *)p + 16, b);
    else
        mpt__v16_store_as(p, a, 16, dtype), mpt__v16_store_as((char *)p + bytes, b, 16, dtype);
}
/* Two vectors as of load_two in the order of what they are of. */
MPT__AVX512_OP void mpt__v16_in_order(mpt__v16_f *a, mpt__v16_f *b, int dtype) {
    if (dtype != MPT_BF16) return;
    const __m512i low =
        _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const mpt__v16_f even = *a;
    *a = _mm512_permutex2var_ps(even, low, *b), *b = _mm512_permutex2var_ps(even, high, *b);
}
#endif

MPT__SIMD_WORDS(MPT__AVX512_OP, mpt__v16, MPT__NAME_AVX512)

typedef struct mpt__v16_d {
    __m512d low, high;
} mpt__v16_d;
MPT__AVX512_OP mpt__v16_d mpt__v16_no_doubles(void) {
    mpt__v16_d v = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    return v;
}
MPT__AVX512_OP void mpt__v16_add_doubles(double *p, mpt__v16_d v) {
    _mm512_storeu_pd(p, _mm512_add_pd(_mm512_loadu_pd(p), v.low));
    _mm512_storeu_pd(p + 8, _mm512_add_pd(_mm512_loadu_pd(p + 8), v.high));
}
MPT__AVX512_OP mpt__v16_d mpt__v16_add_squares(mpt__v16_d sum, mpt__v16_f x) {
    __m512d low = _mm512_maskz_cvtps_pd((__mmask8)0xff, _mm512_castps512_ps256(x));
    __m512d high = _mm512_maskz_cvtps_pd((__mmask8)0xff, _mm512_extractf32x8_ps(x, 1));
    sum.low = _mm512_fmadd_pd(low, low, sum.low);
    sum.high = _mm512_fmadd_pd(high, high, sum.high);
    return sum;
}
typedef __m512i mpt__v16_u;
MPT__AVX512_OP mpt__v16_u mpt__v16_uset(uint64_t a) { return _mm512_set1_epi64((long long)a); }
MPT__AVX512_OP mpt__v16_u mpt__v16_ucount(uint64_t at) {
    return _mm512_add_epi64(mpt__v16_uset(at), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
MPT__AVX512_OP mpt__v16_u mpt__v16_umul(mpt__v16_u a, mpt__v16_u b) {
    return _mm512_maskz_mul_epu32((__mmask8)0xff, a, b);
}
MPT__AVX512_OP mpt__v16_u mpt__v16_uhigh(mpt__v16_u a) {
    return _mm512_maskz_srli_epi64((__mmask8)0xff, a, 32);
}
MPT__AVX512_OP mpt__v16_u mpt__v16_uxor(mpt__v16_u a, mpt__v16_u b, mpt__v16_u c) {
    return _mm512_ternarylogic_epi64(a, b, c, 0x96);
}
MPT__AVX512_OP void mpt__v16_ustore(uint32_t *p, mpt__v16_u a, mpt__v16_u b, mpt__v16_u c,
                                    mpt__v16_u d) {
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    __m512i ab = _mm512_mask_slli_epi64(a, (__mmask8)0xff, b, 32);
    __m512i cd = _mm512_mask_slli_epi64(c, (__mmask8)0xff, d, 32);
    ab = _mm512_mask_blend_epi32((__mmask16)0xaaaa, a, ab);
    cd = _mm512_mask_blend_epi32((__mmask16)0xaaaa, c, cd);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi64(ab, first, cd));
    _mm512_storeu_si512(p + 16, _mm512_permutex2var_epi64(ab, second, cd));
}

/* ==== The level ==== */

#define mpt__avx512_rows mpt__avx2_rows
MPT__SIMD_LEVEL(MPT__AVX512, MPT__AVX512_OP, mpt__avx512, mpt__v16, 16, MPT__NAME_AVX512, mpt__avx2,
                &mpt__convert_avx512, mpt__avx2_stream, mpt__avx2_gate, 0.15)

#endif
#endif
