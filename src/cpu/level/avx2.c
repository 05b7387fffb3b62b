/* ---------------------------------------------------------------------------------------------
 * cpu/level/avx2.c: the vector layer of AVX2 + FMA + F16C, and the kernels that it makes.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__CPU_LEVEL_AVX2_INCLUDED
#define MPT__CPU_LEVEL_AVX2_INCLUDED

#include "cpu/template/words.c"

#ifdef MPT__SIMD_X86
#define MPT__HAS_AVX2 1

/* ==== Vector layer: 8 floats, in addition to the words of ground/math.c ==== */

#define MPT__AVX2 MPT__TARGET("avx2,fma,f16c") static
#define MPT__AVX2_OP MPT__TARGET("avx2,fma,f16c") static MPT__FORCE_INLINE

MPT__AVX2_OP mpt__v8_f mpt__v8_zero(void) { return _mm256_setzero_ps(); }
MPT__AVX2_OP mpt__v8_f mpt__v8_load(const float *p) { return _mm256_loadu_ps(p); }
MPT__AVX2_OP void mpt__v8_store(float *p, mpt__v8_f v) { _mm256_storeu_ps(p, v); }
MPT__AVX2_OP mpt__v8_f mpt__v8_sqrt(mpt__v8_f a) { return _mm256_sqrt_ps(a); }
MPT__AVX2_OP mpt__v8_f mpt__v8_fma(mpt__v8_f a, mpt__v8_f b, mpt__v8_f c) {
    return _mm256_fmadd_ps(a, b, c);
}

/* The first n lanes; none below 1, all from 8 up. */
MPT__AVX2_OP mpt__v8_m mpt__v8_first(int64_t n) {
    __m256i count = _mm256_set1_epi32((int)(n < 0 ? 0 : n > 8 ? 8 : n));
    return _mm256_cmpgt_epi32(count, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
MPT__AVX2_OP mpt__v8_f mpt__v8_load_first(const void *p, mpt__v8_m lanes) {
    return _mm256_maskload_ps((const float *)p, lanes);
}
MPT__AVX2_OP mpt__v8_m mpt__v8_greater(mpt__v8_f a, mpt__v8_f b) {
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
MPT__AVX2_OP mpt__v8_m mpt__v8_equal(mpt__v8_f a, mpt__v8_f b) {
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ));
}
MPT__AVX2_OP mpt__v8_m mpt__v8_is_nan(mpt__v8_f a) {
    return _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
/* Lanes of random words >= threshold, unsigned. */
MPT__AVX2_OP mpt__v8_m mpt__v8_words_from(const uint32_t *words, uint32_t threshold) {
    __m256i w = _mm256_loadu_si256((const __m256i *)(const void *)words);
    __m256i t = _mm256_set1_epi32((int)threshold);
    return _mm256_cmpeq_epi32(_mm256_max_epu32(w, t), w);
}

/* Rounds to MPT_F16 or MPT_BF16 and back; 0 leaves as is. */
MPT__AVX2_OP mpt__v8_f mpt__v8_round(mpt__v8_f v, int dtype) {
    if (dtype == MPT_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    if (dtype == MPT_BF16) {
        __m256i half = mpt__avx2_round_bf16(_mm256_castps_si256(v));
        return _mm256_castsi256_ps(_mm256_slli_epi32(half, 16));
    }
    return v;
}

MPT__AVX2_OP mpt__v8_f mpt__v8_from_half(__m128i half, int dtype) {
    if (dtype == MPT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
/* 8 elements of dtype F32, F16 or BF16 as floats. */
MPT__AVX2_OP mpt__v8_f mpt__v8_load_full(const void *p, int dtype) {
    if (dtype == MPT_F32) return _mm256_loadu_ps((const float *)p);
    return mpt__v8_from_half(_mm_loadu_si128((const __m128i *)p), dtype);
}
/* The first n of 8 elements, all from 8 up, none below 1; the rest 0. */
MPT__AVX2_OP mpt__v8_f mpt__v8_load_as(const void *p, int64_t n, int dtype) {
    if (n >= 8) return mpt__v8_load_full(p, dtype);
    if (dtype == MPT_F32) return _mm256_maskload_ps((const float *)p, mpt__v8_first(n));
    uint16_t rest[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < n; i++) rest[i] = ((const uint16_t *)p)[i];
    return mpt__v8_from_half(_mm_loadu_si128((const __m128i *)(const void *)rest), dtype);
}

/* Stores the first n (any number) of 8 lanes as elements of dtype F32, F16 or BF16. */
MPT__AVX2_OP void mpt__v8_store_as(void *p, mpt__v8_f v, int64_t n, int dtype) {
    __m128i half;
    if (dtype == MPT_F32) {
        if (n >= 8) {
            _mm256_storeu_ps((float *)p, v);
        } else {
            _mm256_maskstore_ps((float *)p, mpt__v8_first(n), v);
        }
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

/* Transposes 4 rows of W: lane 4 l + j of row r becomes lane 4 l + r of column j. */
#define MPT__X86_TRANSPOSE4(OP, V, P) \
    OP void V##_transpose4(V##_f *r0, V##_f *r1, V##_f *r2, V##_f *r3) { \
        V##_f low01 = P##_unpacklo_ps(*r0, *r1), high01 = P##_unpackhi_ps(*r0, *r1); \
        V##_f low23 = P##_unpacklo_ps(*r2, *r3), high23 = P##_unpackhi_ps(*r2, *r3); \
        *r0 = P##_shuffle_ps(low01, low23, 0x44); \
        *r1 = P##_shuffle_ps(low01, low23, 0xee); \
        *r2 = P##_shuffle_ps(high01, high23, 0x44); \
        *r3 = P##_shuffle_ps(high01, high23, 0xee); \
    }
MPT__X86_TRANSPOSE4(MPT__AVX2_OP, mpt__v8, _mm256)

/* Loads quarter l (4 lanes) from p + l * step, or stores it there. */
MPT__AVX2_OP mpt__v8_f mpt__v8_load_quads(const float *p, int64_t step) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + step), 1);
}
MPT__AVX2_OP void mpt__v8_store_quads(float *p, int64_t step, mpt__v8_f v) {
    _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    _mm_storeu_ps(p + step, _mm256_extractf128_ps(v, 1));
}

/* Stores past the caches, aligned; a fence makes them seen by other threads. */
MPT__AVX2_OP void mpt__v8_stream(float *p, mpt__v8_f v) { _mm256_stream_ps(p, v); }
MPT__AVX2_OP void mpt__v8_fence(void) { _mm_sfence(); }

/* The largest lane, none being NaN; and the sum of the lanes, folded in halves. */
#define MPT__AVX2_ACROSS(name, op) \
    MPT__AVX2_OP float mpt__v8_##name(mpt__v8_f v) { \
        __m128 a = _mm_##op##_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); \
        a = _mm_##op##_ps(a, _mm_movehl_ps(a, a)); \
        return _mm_cvtss_f32(_mm_##op##_ss(a, _mm_shuffle_ps(a, a, 1))); \
    }
MPT__AVX2_ACROSS(peak, max)
MPT__AVX2_ACROSS(total, add)

/* Sums s0 .. s7 over their lanes. */
MPT__AVX2_OP __m256 mpt__v8_sum8(__m256 s0, __m256 s1, __m256 s2, __m256 s3, __m256 s4, __m256 s5,
                                 __m256 s6, __m256 s7) {
    __m256 a = _mm256_hadd_ps(_mm256_hadd_ps(s0, s1), _mm256_hadd_ps(s2, s3));
    __m256 b = _mm256_hadd_ps(_mm256_hadd_ps(s4, s5), _mm256_hadd_ps(s6, s7));
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

MPT__SIMD_WORDS(MPT__AVX2_OP, mpt__v8, MPT__NAME_AVX2)

/* Doubles made of the floats of a vector. */
typedef struct mpt__v8_d {
    __m256d low, high;
} mpt__v8_d;
MPT__AVX2_OP mpt__v8_d mpt__v8_no_doubles(void) {
    mpt__v8_d v = {_mm256_setzero_pd(), _mm256_setzero_pd()};
    return v;
}
MPT__AVX2_OP void mpt__v8_add_doubles(double *p, mpt__v8_d v) {
    _mm256_storeu_pd(p, _mm256_add_pd(_mm256_loadu_pd(p), v.low));
    _mm256_storeu_pd(p + 4, _mm256_add_pd(_mm256_loadu_pd(p + 4), v.high));
}
MPT__AVX2_OP mpt__v8_d mpt__v8_add_squares(mpt__v8_d sum, mpt__v8_f x) {
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    sum.low = _mm256_fmadd_pd(low, low, sum.low);
    sum.high = _mm256_fmadd_pd(high, high, sum.high);
    return sum;
}

/* 64-bit integers. umul multiplies low words; ucount is at, at + 1 and so on. */
typedef __m256i mpt__v8_u;
MPT__AVX2_OP mpt__v8_u mpt__v8_uset(uint64_t a) { return _mm256_set1_epi64x((long long)a); }
MPT__AVX2_OP mpt__v8_u mpt__v8_ucount(uint64_t at) {
    return _mm256_add_epi64(mpt__v8_uset(at), _mm256_setr_epi64x(0, 1, 2, 3));
}
MPT__AVX2_OP mpt__v8_u mpt__v8_umul(mpt__v8_u a, mpt__v8_u b) { return _mm256_mul_epu32(a, b); }
MPT__AVX2_OP mpt__v8_u mpt__v8_uhigh(mpt__v8_u a) { return _mm256_srli_epi64(a, 32); }
MPT__AVX2_OP mpt__v8_u mpt__v8_uxor(mpt__v8_u a, mpt__v8_u b, mpt__v8_u c) {
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
}
/* The low words of lane 0 of a, b, c, d, then those of lane 1 and so on. */
MPT__AVX2_OP void mpt__v8_ustore(uint32_t *p, mpt__v8_u a, mpt__v8_u b, mpt__v8_u c, mpt__v8_u d) {
    __m256i ab = _mm256_blend_epi32(a, _mm256_slli_epi64(b, 32), 0xaa);
    __m256i cd = _mm256_blend_epi32(c, _mm256_slli_epi64(d, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    __m256i *to = (__m256i *)(void *)p;
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

MPT__AVX2 void mpt__avx2_gate(int16_t *dx, const int16_t *y, const int16_t *dy, int64_t n,
                              int16_t infinity) {
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

MPT__SIMD_ROWS(MPT__AVX2, MPT__AVX2_OP, mpt__avx2, mpt__v8, 8)
/* Values as in MPT__SIMD_UNARY and MPT__SIMD_BINARY. Wider vectors would gain nothing. */
#define MPT__STREAM_CASE(id, value) \
    case MPT__FN_##id: \
        for (; n > 0; n -= 8, out += 8, x += 8, y += 8) { \
            const mpt__v8_f a = mpt__v8_load_as(x, n, MPT_F32); \
            if (n >= 8) \
                mpt__v8_stream(out, value); \
            else \
                mpt__v8_store_as(out, value, n, MPT_F32); \
        } \
        break;
#define MPT__STREAM_B mpt__v8_load_as(y, n, MPT_F32)
MPT__AVX2 bool mpt__avx2_stream(int function, float *out, const float *x, const float *y, int64_t n,
                                float c) {
    const mpt__v8_f by = mpt__v8_set(c), zero = mpt__v8_zero();
    switch (function) {
        MPT__STREAM_CASE(RELU, mpt__v8_relu(a))
        MPT__STREAM_CASE(ADD_SCALAR, mpt__v8_add(a, by))
        MPT__STREAM_CASE(MUL_SCALAR, mpt__v8_mul(a, by))
        MPT__STREAM_CASE(ADD, mpt__v8_add(a, MPT__STREAM_B))
        MPT__STREAM_CASE(SUB, mpt__v8_sub(a, MPT__STREAM_B))
        MPT__STREAM_CASE(MUL, mpt__v8_mul(a, MPT__STREAM_B))
        MPT__STREAM_CASE(DIV, mpt__v8_div(a, MPT__STREAM_B))
        MPT__STREAM_CASE(RELU_BACKWARD,
                         mpt__v8_select(mpt__v8_greater(a, zero), MPT__STREAM_B,
                                        mpt__v8_select(mpt__v8_is_nan(a), MPT__STREAM_B, zero)))
    default:
        return false;
    }
    mpt__v8_fence();
    return true;
}

MPT__SIMD_LEVEL(MPT__AVX2, MPT__AVX2_OP, mpt__avx2, mpt__v8, 8, MPT__NAME_AVX2, mpt__ref,
                &mpt__convert_avx2, mpt__avx2_stream, mpt__avx2_gate, 0.15)

#endif
#endif
