/* ----
 * cpu/level/avx2.c: the vector layer of AVX2 + FMA + F16C, and its kernels.
 * ---- */
#ifndef MPT__CPU_LEVEL_AVX2_INCLUDED
#define MPT__CPU_LEVEL_AVX2_INCLUDED

#include "cpu/vectors.h"

#ifdef MPT__SIMD_X86
#define MPT__HAS_AVX2 1

#define MPT__AVX2 MPT__TARGET("avx2,fma,f16c") static
#define MPT__V(word) mpt__v8_##word
#define MPT__FN MPT__AVX2
#define MPT__OP MPT__AVX2 MPT__FORCE_INLINE

/* ==== Words: arithmetic, integers ==== */

typedef __m256 mpt__v8_f;
typedef __m256i mpt__v8_i;
typedef __m256i mpt__v8_m;

MPT__ARITHMETIC(MPT__OP, mpt__v8, _mm256_, _ps)
MPT__OP v_f v_set(float a) { return _mm256_set1_ps(a); }
MPT__OP v_f v_larger(v_f a, v_f b) { return _mm256_max_ps(a, b); }
MPT__OP v_f v_smaller(v_f a, v_f b) { return _mm256_min_ps(a, b); }
MPT__OP v_i v_bits(v_f a) { return _mm256_castps_si256(a); }
MPT__OP v_i v_words(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
MPT__OP v_f v_float(v_i a) { return _mm256_castsi256_ps(a); }
MPT__OP v_f v_convert(v_i a) { return _mm256_cvtepi32_ps(a); }
MPT__OP v_i v_iset(int32_t a) { return _mm256_set1_epi32(a); }
MPT__OP v_i v_iadd(v_i a, v_i b) { return _mm256_add_epi32(a, b); }
MPT__OP v_i v_isub(v_i a, v_i b) { return _mm256_sub_epi32(a, b); }
MPT__OP v_i v_iand(v_i a, v_i b) { return _mm256_and_si256(a, b); }
MPT__OP v_i v_ior(v_i a, v_i b) { return _mm256_or_si256(a, b); }
MPT__OP v_i v_shl23(v_i a) { return _mm256_slli_epi32(a, 23); }
MPT__OP v_i mpt__v8_shr16(v_i a) { return _mm256_srli_epi32(a, 16); }
MPT__OP v_i v_sar1(v_i a) { return _mm256_srai_epi32(a, 1); }
MPT__OP v_i v_sar23(v_i a) { return _mm256_srai_epi32(a, 23); }
MPT__OP v_m v_igt(v_i a, v_i b) { return _mm256_cmpgt_epi32(a, b); }
MPT__OP v_f v_select(v_m m, v_f a, v_f b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m)); }

MPT__ROUND_BF16(MPT__OP, mpt__v8, mpt__avx2_round_bf16)
/* The same without a NaN. */
MPT__OP __m256i mpt__avx2_round_number(__m256i bits) {
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}
/* Two of them in a row. That there is a NaN is seldom. */
MPT__OP __m256i mpt__avx2_round_two(v_f a, v_f b) {
    __m256i low = _mm256_castps_si256(a), high = _mm256_castps_si256(b);
    if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0)
        low = mpt__avx2_round_bf16(low), high = mpt__avx2_round_bf16(high);
    else
        low = mpt__avx2_round_number(low), high = mpt__avx2_round_number(high);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

/* ==== Words: floats, memory ==== */

MPT__OP v_f v_negate(v_f a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
MPT__OP v_f v_abs(v_f a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
MPT__OP v_m v_is_inf(v_f a) {
    const v_f infinity = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
    return _mm256_castps_si256(_mm256_cmp_ps(v_abs(a), infinity, _CMP_EQ_OQ));
}
MPT__OP v_f v_zero(void) { return _mm256_setzero_ps(); }
MPT__OP v_f v_load(const float *p) { return _mm256_loadu_ps(p); }
MPT__OP void v_store(float *p, v_f v) { _mm256_storeu_ps(p, v); }
MPT__OP v_f v_sqrt(v_f a) { return _mm256_sqrt_ps(a); }
MPT__OP v_f v_fma(v_f a, v_f b, v_f c) { return _mm256_fmadd_ps(a, b, c); }

/* The first n lanes; none below 1, all from 8 up. */
MPT__OP v_m v_first(int64_t n) {
    __m256i count = _mm256_set1_epi32((int)(n < 0 ? 0 : n > 8 ? 8 : n));
    return _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MPT__OP v_f v_load_first(const void *p, v_m lanes) {
    return _mm256_maskload_ps((const float *)p, lanes);
}
MPT__OP v_m v_greater(v_f a, v_f b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
MPT__OP v_m v_equal(v_f a, v_f b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
MPT__OP v_m v_is_nan(v_f a) { return _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)); }
/* Lanes of random words >= threshold, unsigned. */
MPT__OP v_m v_words_from(const uint32_t *words, uint32_t threshold) {
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)words);
    __m256i t = _mm256_set1_epi32((int)threshold);
    return _mm256_cmpeq_epi32(_mm256_max_epu32(w, t), w);
}

/* Rounds to MPT_F16 or MPT_BF16 and back; 0 leaves as is. */
MPT__OP v_f v_round(v_f v, int dtype) {
    if (dtype == MPT_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if (dtype == MPT_BF16) {
        return _mm256_castsi256_ps(
            _mm256_slli_epi32(mpt__avx2_round_bf16(_mm256_castps_si256(v)), 16));
    }
    return v;
}

MPT__OP v_f mpt__v8_from_half(__m128i half, int dtype) {
    if (dtype == MPT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
/* 8 elements of dtype F32, F16 or BF16 as floats. */
MPT__OP v_f v_load_full(const void *p, int dtype) {
    if (dtype == MPT_F32) return _mm256_loadu_ps((const float *)p);
    return mpt__v8_from_half(_mm_loadu_si128((const __m128i *)p), dtype);
}
/* The first n of 8 elements, all from 8 up, none below 1; the rest 0. */
MPT__OP v_f v_load_as(const void *p, int64_t n, int dtype) {
    if (n >= 8) return v_load_full(p, dtype);
    if (dtype == MPT_F32) return _mm256_maskload_ps((const float *)p, v_first(n));
    uint16_t rest[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; i++) rest[i] = ((const uint16_t *)p)[i];
    return mpt__v8_from_half(_mm_loadu_si128((const __m128i *)(const void *)rest), dtype);
}

/* Stores the first n (any number) of 8 lanes as F32, F16 or BF16. */
MPT__OP void v_store_as(void *p, v_f v, int64_t n, int dtype) {
    __m128i half;
    if (dtype == MPT_F32) {
        if (n >= 8)
            _mm256_storeu_ps((float *)p, v);
        else
            _mm256_maskstore_ps((float *)p, v_first(n), v);
        return;
    }
    if (dtype == MPT_F16) {
        half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
    } else {
        __m256i words = mpt__avx2_round_bf16(_mm256_castps_si256(v));
        half = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    }
    if (n >= 8) {
        _mm_storeu_si128((__m128i *)p, half);
    } else {
        uint16_t rest[8];
        _mm_storeu_si128((__m128i *)(void *)rest, half);
        for (int i = 0; i < n; i++) ((uint16_t *)p)[i] = rest[i];
    }
}

/* Transposes 4 rows: lane 4 l + j of row r becomes lane 4 l + r of column j. */
MPT__OP void v_transpose4(v_f *r0, v_f *r1, v_f *r2, v_f *r3) {
    const v_f low01 = _mm256_unpacklo_ps(*r0, *r1), high01 = _mm256_unpackhi_ps(*r0, *r1);
    const v_f low23 = _mm256_unpacklo_ps(*r2, *r3), high23 = _mm256_unpackhi_ps(*r2, *r3);
    *r0 = _mm256_shuffle_ps(low01, low23, 0x44);
    *r1 = _mm256_shuffle_ps(low01, low23, 0xee);
    *r2 = _mm256_shuffle_ps(high01, high23, 0x44);
    *r3 = _mm256_shuffle_ps(high01, high23, 0xee);
}

/* The even lanes of a and then b to a, the odd ones to b; and back. */
MPT__OP void v_split(v_f *a, v_f *b) {
    const v_f low = _mm256_permute2f128_ps(*a, *b, 0x20);
    const v_f high = _mm256_permute2f128_ps(*a, *b, 0x31);
    *a = _mm256_shuffle_ps(low, high, 0x88);
    *b = _mm256_shuffle_ps(low, high, 0xdd);
}
MPT__OP void v_merge(v_f *a, v_f *b) {
    const v_f low = _mm256_unpacklo_ps(*a, *b), high = _mm256_unpackhi_ps(*a, *b);
    *a = _mm256_permute2f128_ps(low, high, 0x20);
    *b = _mm256_permute2f128_ps(low, high, 0x31);
}

/* The first n of 8 words, which are 0 to 255, as bytes; and back, the rest 0. Bytes go through a
   register: what was just stored piece by piece is slow to load as one. */
MPT__OP void v_store_bytes(uint8_t *p, v_f words, int64_t n) {
    const __m256i v = _mm256_castps_si256(words);
    const __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    uint64_t all;
    _mm_storel_epi64((__m128i *)(void *)&all, _mm_packus_epi16(half, half));
    if (n >= 8) {
        memcpy(p, &all, 8);
        return;
    }
    if (n >= 4) memcpy(p, &all, 4), all >>= 32, p += 4, n -= 4;
    for (; n > 0; n--, all >>= 8) *p++ = (uint8_t)all;
}
MPT__OP v_f v_load_bytes(const uint8_t *p, int64_t n) {
    uint64_t all = 0;
    uint32_t low;
    if (n >= 8) {
        memcpy(&all, p, 8);
    } else if (n >= 4) {
        memcpy(&low, p, 4);
        for (; n > 4; n--) all = all << 8 | p[n - 1];
        all = all << 32 | low;
    } else {
        for (; n > 0; n--) all = all << 8 | p[n - 1];
    }
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)&all);
    return _mm256_castsi256_ps(_mm256_cvtepu8_epi32(bytes));
}

/* Loads quarter l (4 lanes) from p + l * step. */
MPT__OP v_f v_load_quads(const float *p, int64_t step) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step), 1);
}

/* Stores past the caches, aligned; a fence makes them seen by other threads. */
MPT__OP void v_stream(float *p, v_f v) { _mm256_stream_ps(p, v); }
MPT__OP void v_fence(void) { _mm_sfence(); }

/* The largest lane, none being NaN; and the sum of the lanes, folded in halves. */
#define MPT__AVX2_ACROSS(name, op) \
    MPT__OP float mpt__v8_##name(v_f v) { \
        __m128 a = _mm_##op##_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); \
        a = _mm_##op##_ps(a, _mm_movehl_ps(a, a)); \
        return _mm_cvtss_f32(_mm_##op##_ss(a, _mm_shuffle_ps(a, a, 1))); \
    }
MPT__AVX2_ACROSS(peak, max)
MPT__AVX2_ACROSS(total, add)

/* Sums s0 .. s7 over their lanes. */
MPT__OP v_f mpt__v8_sum8(v_f s0, v_f s1, v_f s2, v_f s3, v_f s4, v_f s5, v_f s6, v_f s7) {
    v_f a = _mm256_hadd_ps(_mm256_hadd_ps(s0, s1), _mm256_hadd_ps(s2, s3));
    v_f b = _mm256_hadd_ps(_mm256_hadd_ps(s4, s5), _mm256_hadd_ps(s6, s7));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* Doubles made of the floats of a vector. */
typedef struct {
    __m256d low, high;
} mpt__v8_d;
MPT__OP v_d v_no_doubles(void) {
    v_d v = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    return v;
}
MPT__OP void v_add_doubles(double *p, v_d v) {
    _mm256_storeu_pd(p, _mm256_add_pd(_mm256_loadu_pd(p), v.low));
    _mm256_storeu_pd(p + 4, _mm256_add_pd(_mm256_loadu_pd(p + 4), v.high));
}
MPT__OP v_d v_add_squares(v_d sum, v_f x) {
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum.low = _mm256_fmadd_pd(low, low, sum.low);
    sum.high = _mm256_fmadd_pd(high, high, sum.high);
    return sum;
}

/* 64-bit integers. umul multiplies low words; ucount is at, at + 1 and so on. */
typedef __m256i mpt__v8_u;
MPT__OP v_u v_uset(uint64_t a) { return _mm256_set1_epi64x((long long)a); }
MPT__OP v_u v_ucount(uint64_t at) {
    return _mm256_add_epi64(v_uset(at), _mm256_setr_epi64x(0, 1, 2, 3));
}
MPT__OP v_u v_umul(v_u a, v_u b) { return _mm256_mul_epu32(a, b); }
MPT__OP v_u v_uhigh(v_u a) { return _mm256_srli_epi64(a, 32); }
MPT__OP v_u v_uxor(v_u a, v_u b, v_u c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
/* The low words of lane 0 of a, b, c, d, then those of lane 1 and so on. */
MPT__OP void v_ustore(uint32_t *p, v_u a, v_u b, v_u c, v_u d) {
    __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
    __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    __m256i *to = (__m256i *)(void *)p;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

/* gemm_quads: four floats from p and from every 4th line on, of `lines` that are `row` bytes apart;
   zeros past them. gemm_octs: of eight halves. store_sums: sums of 8 vectors over their lanes.
   store_both: two vectors, one behind the other. */
MPT__OP __m128 mpt__v8_quad(const char *p) { return _mm_loadu_ps((const float *)(const void *)p); }
MPT__OP v_f v_gemm_quads(const char *p, int64_t row, int64_t lines) {
    v_f v = _mm256_setzero_ps();
    if (lines > 0) v = _mm256_insertf128_ps(v, mpt__v8_quad(p), 0);
    if (lines <= 4) return v;
    return _mm256_insertf128_ps(v, mpt__v8_quad(p + 4 * row), 1);
}
MPT__OP void v_gemm_octs(
    const char *p, int64_t row, int64_t lines, int dtype, v_f *low, v_f *high) {
    __m128i a = _mm_setzero_si128(), b = a;
    if (lines > 0) a = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (lines > 4) b = _mm_loadu_si128((const __m128i *)(const void *)(p + 4 * row));
    if (dtype == MPT_F16) {
        const v_f v = _mm256_cvtph_ps(a), w = _mm256_cvtph_ps(b);
        *low = _mm256_permute2f128_ps(v, w, 0x20), *high = _mm256_permute2f128_ps(v, w, 0x31);
        return;
    }
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    *low = _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_setzero_si256(), both));
    *high = _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_setzero_si256(), both));
}
MPT__OP void v_store_sums(
    float *to, v_f s0, v_f s1, v_f s2, v_f s3, v_f s4, v_f s5, v_f s6, v_f s7) {
    _mm256_storeu_ps(to, mpt__v8_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__OP void v_store_both(void *p, v_f a, v_f b, int dtype) {
    if (dtype == MPT_BF16) {
        _mm256_storeu_si256((__m256i *)p, mpt__avx2_round_two(a, b));
        return;
    }
    v_store_as(p, a, 8, dtype);
    v_store_as((char *)p + (dtype == MPT_F32 ? 32 : 16), b, 8, dtype);
}

/* ==== Words: tables ==== */

#ifndef MPTRAIN_NO_FRUGAL
/* Numbers of a table, which has eight of them twice. */
typedef v_f v_t;
MPT__OP v_t v_table(const float *p) { return v_load(p); }
MPT__OP v_f v_pick(v_t table, v_i at) { return _mm256_permutevar8x32_ps(table, at); }
MPT__OP v_i v_imax(v_i a, v_i b) { return _mm256_max_epi32(a, b); }
MPT__OP v_i v_iadd_if(v_m m, v_i a, v_i b) { return v_iadd(a, v_iand(m, b)); }
MPT__OP bool v_some(v_m m) { return _mm256_movemask_epi8(m) != 0; }
#endif

/* ==== Words: 16 elements of 16 bits ==== */

#ifndef MPTRAIN_NO_CONV
typedef __m256i mpt__v8_halves;
/* 8 elements, of fp32 where they are to be rounded. */
MPT__OP __m128i mpt__v8_halves_row(const char *from, int round) {
    if (round == 0) return _mm_loadu_si128((const __m128i *)(const void *)from);
    const v_f x = _mm256_loadu_ps((const float *)(const void *)from);
    if (round == MPT_F16) return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i words = mpt__avx2_round_bf16(_mm256_castps_si256(x));
    return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
MPT__OP v_halves v_load_halves(const char *from, int64_t step, int round) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(mpt__v8_halves_row(from, round)),
        mpt__v8_halves_row(from + 8 * step, round), 1);
}
MPT__OP void v_store_halves(uint16_t *to, v_halves x) {
    _mm256_storeu_si256((__m256i *)(void *)to, x);
}
MPT__OP v_halves v_halves_low(v_halves a, v_halves b) { return _mm256_unpacklo_epi16(a, b); }
MPT__OP v_halves v_halves_high(v_halves a, v_halves b) { return _mm256_unpackhi_epi16(a, b); }
#endif

/* ==== Kernels of its own ==== */

MPT__FN void mpt__avx2_gate(
    int16_t *dx, const int16_t *y, const int16_t *dy, int64_t n, int16_t infinity) {
    const __m256i zero = _mm256_setzero_si256(), bound = _mm256_set1_epi16(infinity);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(y + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(dy + i));
        a = _mm256_andnot_si256(_mm256_cmpeq_epi16(a, zero), _mm256_cmpgt_epi16(a, bound));
        _mm256_storeu_si256((__m256i *)(void *)(dx + i), _mm256_and_si256(a, b));
    }
    for (; i < n; i++) dx[i] = y[i] != 0 && y[i] > infinity ? dy[i] : 0;
}

/* ==== The level ==== */

static bool mpt__avx2_stream(
    int function, float *out, const float *x, const float *y, int64_t n, float c);
#define MPT__LEVEL(name) mpt__avx2_##name
#define MPT__WIDTH 8
#define MPT__BELOW(name) mpt__ref_##name
#define MPT__SLOWNESS 0.15
#define MPT__STREAM mpt__avx2_stream
#define MPT__GATE mpt__avx2_gate
#define MPT__HALVES_COPY mpt__avx2_halves_copy
#define MPT__U8_TO_HALF mpt__portable_u8_to_half
#define MPT__TILE_FEW 2
#define MPT__TILE_MIDDLE 4
#define MPT__TILE_ROWS 6
#define MPT__DIRECT_ROWS 6
#define MPT__CHUNK_ROWS 168
#define MPT__RATE 32
#define MPT__IN_PLACE false
#include "cpu/template/functions.c"
#include "cpu/template/update.c"
#include "cpu/template/level.c"

/* Past the caches. Wider vectors would gain nothing. */
#define MPT__STREAM_CASE(id, value) \
    case MPT__FN_##id: \
        for (; n > 0; n -= 8, out += 8, x += 8, y += 8) { \
            const mpt__v8_f a = mpt__v8_load_as(x, n, MPT_F32), to = value; \
            n >= 8 ? mpt__v8_stream(out, to) : mpt__v8_store_as(out, to, n, MPT_F32); \
        } \
        break;
#define MPT__STREAM_ONE(id) MPT__STREAM_CASE(id, mpt__avx2_value_##id(a, c, 0))
#define MPT__STREAM_TWO(id) \
    MPT__STREAM_CASE(id, mpt__avx2_value_##id(a, mpt__v8_load_as(y, n, MPT_F32), c, 0))
MPT__AVX2 bool mpt__avx2_stream(
    int function, float *out, const float *x, const float *y, int64_t n, float c) {
    switch (function) {
        MPT__STREAM_ONE(RELU)
        MPT__STREAM_ONE(ADD_SCALAR)
        MPT__STREAM_ONE(MUL_SCALAR)
        MPT__STREAM_TWO(ADD)
        MPT__STREAM_TWO(SUB)
        MPT__STREAM_TWO(MUL)
        MPT__STREAM_TWO(DIV)
        MPT__STREAM_TWO(RELU_BACKWARD)
    default:
        return false;
    }
    mpt__v8_fence();
    return true;
}

#ifdef MPTRAIN_EMULATE_AMX /* what later instructions do, by those of this level, for tests */
#define MPT__EMULATOR(name) mpt__avx2_##name
#define MPT__EMULATOR_FN MPT__AVX2
#endif
#define MPT__AVX2_LEVEL \
    true, &mpt__avx2_routines, &mpt__avx2_gemm_level, MPT__CHAIN(&mpt__avx2_chain_level)
#else
#define MPT__AVX2_LEVEL false, NULL, NULL, NULL
#endif

#endif
