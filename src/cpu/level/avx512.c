/* ----
 * cpu/level/avx512.c: the vector layer of AVX-512 (F, BW, VL, DQ), and its kernels.
 * ---- */
#ifndef MPT__CPU_LEVEL_AVX512_INCLUDED
#define MPT__CPU_LEVEL_AVX512_INCLUDED

#include "cpu/level/avx2.c"

#ifdef MPT__SIMD_X86
#define MPT__HAS_AVX512 1

#define MPT__AVX512 MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma") static
#define MPT__V(word) mpt__v16_##word
#define MPT__FN MPT__AVX512
#define MPT__OP MPT__AVX512 MPT__FORCE_INLINE

/* ==== Words: arithmetic, integers; contracts as in cpu/level/avx2.c ==== */

typedef __m512 mpt__v16_f;
typedef __m512i mpt__v16_i;
typedef __mmask16 mpt__v16_m;
#define MPT__V16_ALL ((__mmask16)0xffff) /* without a mask, gcc warns about its own header */

MPT__ARITHMETIC(MPT__OP, mpt__v16, _mm512_, _ps)
MPT__OP v_f v_set(float a) { return _mm512_set1_ps(a); }
MPT__OP v_f v_larger(v_f a, v_f b) { return _mm512_maskz_max_ps(MPT__V16_ALL, a, b); }
MPT__OP v_f v_smaller(v_f a, v_f b) { return _mm512_maskz_min_ps(MPT__V16_ALL, a, b); }
MPT__OP v_i v_bits(v_f a) { return _mm512_castps_si512(a); }
MPT__OP v_i v_words(const void *p) { return _mm512_loadu_si512(p); }
MPT__OP v_f v_float(v_i a) { return _mm512_castsi512_ps(a); }
MPT__OP v_f v_convert(v_i a) { return _mm512_maskz_cvtepi32_ps(MPT__V16_ALL, a); }
MPT__OP v_i v_iset(int32_t a) { return _mm512_set1_epi32(a); }
MPT__OP v_i v_iadd(v_i a, v_i b) { return _mm512_add_epi32(a, b); }
MPT__OP v_i v_isub(v_i a, v_i b) { return _mm512_sub_epi32(a, b); }
MPT__OP v_i v_iand(v_i a, v_i b) { return _mm512_and_si512(a, b); }
MPT__OP v_i v_ior(v_i a, v_i b) { return _mm512_or_si512(a, b); }
MPT__OP v_i v_shl23(v_i a) { return _mm512_maskz_slli_epi32(MPT__V16_ALL, a, 23); }
MPT__OP v_i v_sar23(v_i a) { return _mm512_maskz_srai_epi32(MPT__V16_ALL, a, 23); }
MPT__OP v_m v_igt(v_i a, v_i b) { return _mm512_cmpgt_epi32_mask(a, b); }
MPT__OP v_f v_select(v_m m, v_f a, v_f b) { return _mm512_mask_blend_ps(m, b, a); }
MPT__OP v_f v_scale(v_f y, v_f t) {
    return _mm512_maskz_scalef_ps(MPT__V16_ALL, y, v_sub(t, v_set(MPT__ROUND_MAGIC)));
}
#define MPT__OWN_SCALE
/* MPT__ROUND_BF16 in place, in fewer instructions; nan: whether there may be any. */
MPT__OP __m512i mpt__avx512_round_high(__m512i bits, bool nan) {
    const __m512i half = _mm512_set1_epi32(0x8000), below = _mm512_set1_epi32(0x7fff);
    const v_f value = _mm512_castsi512_ps(bits);
    v_m none = nan ? _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q) : (__mmask16)0;
    v_m odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i sum = _mm512_mask_add_epi32(_mm512_add_epi32(bits, below), odd, bits, half);
    return nan ? _mm512_mask_mov_epi32(sum, none, _mm512_set1_epi32(0x7fc00000)) : sum;
}
MPT__OP __m256i mpt__avx512_round_bf16(__m512i bits) {
    const __m512i high = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015,
        0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
    bits = mpt__avx512_round_high(bits, true);
    return _mm512_castsi512_si256(_mm512_maskz_permutexvar_epi16(0xffffffff, high, bits));
}
MPT__OP __m256i mpt__avx512_round_f16(v_f value) {
    return _mm512_maskz_cvtps_ph(MPT__V16_ALL, value, _MM_FROUND_TO_NEAREST_INT);
}

/* ==== Words: floats, memory ==== */

MPT__OP v_f v_negate(v_f a) { return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f)); }
MPT__OP v_f v_abs(v_f a) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a); }
MPT__OP v_m v_is_inf(v_f a) {
    const v_f infinity = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f800000));
    return _mm512_cmp_ps_mask(v_abs(a), infinity, _CMP_EQ_OQ);
}
MPT__OP v_f v_zero(void) { return _mm512_setzero_ps(); }
MPT__OP v_f v_load(const float *p) { return _mm512_loadu_ps(p); }
MPT__OP void v_store(float *p, v_f v) { _mm512_storeu_ps(p, v); }
MPT__OP v_f v_sqrt(v_f a) { return _mm512_maskz_sqrt_ps((__mmask16)0xffff, a); }
MPT__OP v_f v_fma(v_f a, v_f b, v_f c) { return _mm512_fmadd_ps(a, b, c); }
MPT__OP v_m v_first(int64_t n) {
    return (__mmask16)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}
MPT__OP v_f v_load_first(const void *p, v_m lanes) { return _mm512_maskz_loadu_ps(lanes, p); }
MPT__OP v_m v_greater(v_f a, v_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
MPT__OP v_m v_equal(v_f a, v_f b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
MPT__OP v_m v_is_nan(v_f a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
MPT__OP v_m v_words_from(const uint32_t *words, uint32_t threshold) {
    return _mm512_cmpge_epu32_mask(_mm512_loadu_si512(words), _mm512_set1_epi32((int)threshold));
}
MPT__OP v_f mpt__v16_from_half(__m256i half, int dtype) {
    if (dtype == MPT_F16) return _mm512_maskz_cvtph_ps((__mmask16)0xffff, half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}
MPT__OP __m256i mpt__v16_to_half(v_f v, int dtype) {
    if (dtype == MPT_F16) return mpt__avx512_round_f16(v);
    return mpt__avx512_round_bf16(_mm512_castps_si512(v));
}
MPT__OP v_f v_round(v_f v, int dtype) {
    if (dtype != MPT_F16 && dtype != MPT_BF16) return v;
    return mpt__v16_from_half(mpt__v16_to_half(v, dtype), dtype);
}
MPT__OP v_f v_load_full(const void *p, int dtype) {
    if (dtype == MPT_F32) return _mm512_loadu_ps(p);
    return mpt__v16_from_half(_mm256_loadu_si256((const __m256i *)p), dtype);
}
MPT__OP v_f v_load_as(const void *p, int64_t n, int dtype) {
    if (n >= 16) return v_load_full(p, dtype);
    v_m lanes = v_first(n);
    if (dtype == MPT_F32) return _mm512_maskz_loadu_ps(lanes, p);
    return mpt__v16_from_half(_mm256_maskz_loadu_epi16(lanes, p), dtype);
}
MPT__OP void v_store_as(void *p, v_f v, int64_t n, int dtype) {
    v_m lanes = v_first(n);
    if (dtype == MPT_F32) {
        if (n >= 16)
            _mm512_storeu_ps(p, v);
        else
            _mm512_mask_storeu_ps(p, lanes, v);
    } else if (n >= 16) {
        _mm256_storeu_si256((__m256i *)p, mpt__v16_to_half(v, dtype));
    } else {
        _mm256_mask_storeu_epi16(p, lanes, mpt__v16_to_half(v, dtype));
    }
}
MPT__OP void v_split(v_f *a, v_f *b) {
    const __m512i even =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const v_f x = *a, y = *b;
    *a = _mm512_permutex2var_ps(x, even, y);
    *b = _mm512_permutex2var_ps(x, _mm512_add_epi32(even, _mm512_set1_epi32(1)), y);
}
MPT__OP void v_merge(v_f *a, v_f *b) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const v_f x = *a, y = *b;
    *a = _mm512_permutex2var_ps(x, low, y);
    *b = _mm512_permutex2var_ps(x, _mm512_add_epi32(low, _mm512_set1_epi32(8)), y);
}
MPT__OP void v_transpose4(v_f *r0, v_f *r1, v_f *r2, v_f *r3) {
    const v_f low01 = _mm512_unpacklo_ps(*r0, *r1), high01 = _mm512_unpackhi_ps(*r0, *r1);
    const v_f low23 = _mm512_unpacklo_ps(*r2, *r3), high23 = _mm512_unpackhi_ps(*r2, *r3);
    *r0 = _mm512_shuffle_ps(low01, low23, 0x44);
    *r1 = _mm512_shuffle_ps(low01, low23, 0xee);
    *r2 = _mm512_shuffle_ps(high01, high23, 0x44);
    *r3 = _mm512_shuffle_ps(high01, high23, 0xee);
}
MPT__OP void v_store_bytes(uint8_t *p, v_f words, int64_t n) {
    const __m512i v = _mm512_castps_si512(words);
    if (n >= 16)
        _mm_storeu_si128((__m128i *)(void *)p, _mm512_maskz_cvtepi32_epi8(MPT__V16_ALL, v));
    else
        _mm512_mask_cvtepi32_storeu_epi8(p, v_first(n), v);
}
MPT__OP v_f v_load_bytes(const uint8_t *p, int64_t n) {
    const __m128i bytes = n >= 16 ? _mm_loadu_si128((const __m128i *)(const void *)p)
                                  : _mm_maskz_loadu_epi8(v_first(n), p);
    return _mm512_castsi512_ps(_mm512_maskz_cvtepu8_epi32(MPT__V16_ALL, bytes));
}
MPT__OP v_f v_load_quads(const float *p, int64_t step) {
    v_f v = _mm512_castps128_ps512(_mm_loadu_ps(p));
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + step), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * step), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * step), 3);
}
MPT__OP void v_stream(float *p, v_f v) { _mm512_stream_ps(p, v); }
MPT__OP void v_fence(void) { _mm_sfence(); }
MPT__OP float v_peak(v_f v) {
    return mpt__v8_peak(_mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}
MPT__OP __m256 mpt__v16_fold(v_f v) {
    return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}
MPT__OP float v_total(v_f v) { return mpt__v8_total(mpt__v16_fold(v)); }
MPT__OP __m256 mpt__v16_sum8(v_f s0, v_f s1, v_f s2, v_f s3, v_f s4, v_f s5, v_f s6, v_f s7) {
    return mpt__v8_sum8(mpt__v16_fold(s0), mpt__v16_fold(s1), mpt__v16_fold(s2), mpt__v16_fold(s3),
        mpt__v16_fold(s4), mpt__v16_fold(s5), mpt__v16_fold(s6), mpt__v16_fold(s7));
}

#ifdef MPT__HAS_NORMS
/* 32 elements: of bf16 the even places, then the odd ones; others as they lie. */
MPT__OP void v_load_two(const void *p, v_f *a, v_f *b, int dtype) {
    if (dtype != MPT_BF16) {
        *a = v_load_full(p, dtype);
        *b = v_load_full((const char *)p + (dtype == MPT_F32 ? 64 : 32), dtype);
        return;
    }
    const __m512i pairs = _mm512_loadu_si512(p);
    *a = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *b = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
/* Of 32 floats those of even places, then those of odd ones. */
MPT__OP void v_load_apart(const float *p, v_f *a, v_f *b) {
    *a = v_load(p), *b = v_load(p + 16);
    v_split(a, b);
}
/* Both rounded to bf16, a to the even places. That there is a NaN is seldom. */
MPT__OP __m512i mpt__v16_round_pairs(v_f a, v_f b) {
    __m512i low = _mm512_castps_si512(a), high = _mm512_castps_si512(b);
    if (_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q))
        low = mpt__avx512_round_high(low, true), high = mpt__avx512_round_high(high, true);
    else
        low = mpt__avx512_round_high(low, false), high = mpt__avx512_round_high(high, false);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}
MPT__OP void v_store_two(void *p, v_f a, v_f b, int dtype, bool streams) {
    const int64_t bytes = dtype == MPT_F32 ? 64 : 32;
    if (dtype == MPT_BF16 && streams)
        _mm512_stream_si512((__m512i *)p, mpt__v16_round_pairs(a, b));
    else if (dtype == MPT_BF16)
        _mm512_storeu_si512(p, mpt__v16_round_pairs(a, b));
    else if (dtype == MPT_F32 && streams)
        v_stream((float *)p, a), v_stream((float *)p + 16, b);
    else
        v_store_as(p, a, 16, dtype), v_store_as((char *)p + bytes, b, 16, dtype);
}
/* Two vectors as of load_two in the order of what they are of. */
MPT__OP void v_in_order(v_f *a, v_f *b, int dtype) {
    if (dtype == MPT_BF16) v_merge(a, b);
}
#endif

typedef struct {
    __m512d low, high;
} mpt__v16_d;
MPT__OP v_d v_no_doubles(void) {
    v_d v = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    return v;
}
MPT__OP void v_add_doubles(double *p, v_d v) {
    _mm512_storeu_pd(p, _mm512_add_pd(_mm512_loadu_pd(p), v.low));
    _mm512_storeu_pd(p + 8, _mm512_add_pd(_mm512_loadu_pd(p + 8), v.high));
}
MPT__OP v_d v_add_squares(v_d sum, v_f x) {
    __m512d low = _mm512_maskz_cvtps_pd((__mmask8)0xff, _mm512_castps512_ps256(x));
    __m512d high = _mm512_maskz_cvtps_pd((__mmask8)0xff, _mm512_extractf32x8_ps(x, 1));
    sum.low = _mm512_fmadd_pd(low, low, sum.low);
    sum.high = _mm512_fmadd_pd(high, high, sum.high);
    return sum;
}
typedef __m512i mpt__v16_u;
MPT__OP v_u v_uset(uint64_t a) { return _mm512_set1_epi64((long long)a); }
MPT__OP v_u v_ucount(uint64_t at) {
    return _mm512_add_epi64(v_uset(at), _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
}
MPT__OP v_u v_umul(v_u a, v_u b) { return _mm512_maskz_mul_epu32((__mmask8)0xff, a, b); }
MPT__OP v_u v_uhigh(v_u a) { return _mm512_maskz_srli_epi64((__mmask8)0xff, a, 32); }
MPT__OP v_u v_uxor(v_u a, v_u b, v_u c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
MPT__OP void v_ustore(uint32_t *p, v_u a, v_u b, v_u c, v_u d) {
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    __m512i ab = _mm512_mask_slli_epi64(a, (__mmask8)0xff, b, 32);
    __m512i cd = _mm512_mask_slli_epi64(c, (__mmask8)0xff, d, 32);
    ab = _mm512_mask_blend_epi32((__mmask16)0xaaaa, a, ab);
    cd = _mm512_mask_blend_epi32((__mmask16)0xaaaa, c, cd);
    _mm512_storeu_si512(p, _mm512_permutex2var_epi64(ab, first, cd));
    _mm512_storeu_si512(p + 16, _mm512_permutex2var_epi64(ab, second, cd));
}

MPT__OP v_f v_gemm_quads(const char *p, int64_t row, int64_t lines) {
    v_f v = _mm512_setzero_ps(); /* inserts from memory leave the port of shuffles alone */
    if (lines > 0) v = _mm512_insertf32x4(v, mpt__v8_quad(p), 0);
    if (lines > 4) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 4 * row), 1);
    if (lines > 8) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 8 * row), 2);
    if (lines > 12) v = _mm512_insertf32x4(v, mpt__v8_quad(p + 12 * row), 3);
    return v;
}
MPT__OP void v_gemm_octs(
    const char *p, int64_t row, int64_t lines, int dtype, v_f *low, v_f *high) {
    mpt__v8_f v[4];
    mpt__v8_gemm_octs(p, row, lines, dtype, &v[0], &v[1]);
    mpt__v8_gemm_octs(p + 8 * row, row, lines - 8, dtype, &v[2], &v[3]);
    *low = _mm512_insertf32x8(_mm512_castps256_ps512(v[0]), v[2], 1);
    *high = _mm512_insertf32x8(_mm512_castps256_ps512(v[1]), v[3], 1);
}
MPT__OP void v_store_sums(
    float *to, v_f s0, v_f s1, v_f s2, v_f s3, v_f s4, v_f s5, v_f s6, v_f s7) {
    _mm256_storeu_ps(to, mpt__v16_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__OP void v_store_both(void *p, v_f a, v_f b, int dtype) {
    v_store_as(p, a, 16, dtype);
    v_store_as((char *)p + 16 * (dtype == MPT_F32 ? 4 : 2), b, 16, dtype);
}

#ifndef MPTRAIN_NO_FRUGAL
typedef v_f v_t;
MPT__OP v_t v_table(const float *p) { return v_load(p); }
MPT__OP v_f v_pick(v_t table, v_i at) {
    return _mm512_maskz_permutexvar_ps(MPT__V16_ALL, at, table);
}
MPT__OP v_i v_imax(v_i a, v_i b) { return _mm512_maskz_max_epi32(MPT__V16_ALL, a, b); }
MPT__OP v_i v_iadd_if(v_m m, v_i a, v_i b) { return _mm512_mask_add_epi32(a, m, a, b); }
MPT__OP bool v_some(v_m m) { return m != 0; }
#endif

/* ==== Kernels of its own ==== */

/* Two registers of the table per look-up; the higher bits of the index select a result. */
MPT__FN void mpt__avx512_u8_to_half(
    const uint8_t *from, uint16_t *to, size_t n, const uint16_t table[256]) {
    __m512i part[8];
    memcpy(part, table, sizeof part);
    for (size_t i = 0; i < n; i += 32) {
        const __mmask32 lanes = 0xffffffffu >> (n - i < 32 ? 32 - (n - i) : 0);
        const __m512i index =
            _mm512_maskz_cvtepu8_epi16(lanes, _mm256_maskz_loadu_epi8(lanes, from + i));
        const __mmask32 bit6 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
        const __mmask32 bit7 = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
        __m512i found[4];
        found[0] = _mm512_permutex2var_epi16(part[0], index, part[1]);
        found[1] = _mm512_permutex2var_epi16(part[2], index, part[3]);
        found[2] = _mm512_permutex2var_epi16(part[4], index, part[5]);
        found[3] = _mm512_permutex2var_epi16(part[6], index, part[7]);
        found[0] = _mm512_mask_blend_epi16(bit6, found[0], found[1]);
        found[2] = _mm512_mask_blend_epi16(bit6, found[2], found[3]);
        _mm512_mask_storeu_epi16(to + i, lanes, _mm512_mask_blend_epi16(bit7, found[0], found[2]));
    }
}
#define mpt__avx512_rows mpt__avx2_rows

/* ==== The level ==== */

#define MPT__LEVEL(name) mpt__avx512_##name
#define MPT__WIDTH 16
#define MPT__BELOW(name) mpt__avx2_##name
#define MPT__SLOWNESS 0.15
#define MPT__STREAM mpt__avx2_stream
#define MPT__GATE mpt__avx2_gate
#define MPT__HALVES_COPY mpt__avx2_halves_copy
#define MPT__U8_TO_HALF mpt__avx512_u8_to_half
#define MPT__TILE_FEW 4
#define MPT__TILE_MIDDLE 8
#define MPT__TILE_ROWS 14
#define MPT__DIRECT_ROWS 8
#define MPT__CHUNK_ROWS 336
#define MPT__RATE 32
#define MPT__IN_PLACE true
#define MPT__OWN_ROWS
#include "cpu/template/functions.c"
#include "cpu/template/update.c"
#include "cpu/template/level.c"

#define MPT__AVX512_LEVEL \
    true, &mpt__avx512_routines, &mpt__avx512_gemm_level, MPT__CHAIN(&mpt__avx512_chain_level)
#else
#define MPT__AVX512_LEVEL false, NULL, NULL, NULL
#endif

#endif
