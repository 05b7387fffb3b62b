/* ---------------------------------------------------------------------------------------------
 * ground/convert.c: the words for vectors, bulk conversions between fp32, fp16 and bf16, and bulk
 * tests for inf and NaN.
 *
 * Every level gives the bits of the scalar functions in ground/dtype.c for every input, with
 * flush-to- zero and denormals-are-zero on or off: bf16 and the tests use integers only; the fp16
 * instructions ignore FTZ, and DAZ only turns fp32 denormals into zeros, which fp16 would make of
 * them anyway. (AVX512_BF16's own conversion always flushes denormals, so it is not used.)
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__GROUND_CONVERT_INCLUDED
#define MPT__GROUND_CONVERT_INCLUDED

#include "ground/dtype.c"

/* Any alignment; source and destination do not overlap; n may be 0. */
typedef struct mpt__convert_table {
    void (*f16_to_f32)(const uint16_t *from, float *to, size_t n);
    void (*bf16_to_f32)(const uint16_t *from, float *to, size_t n);
    void (*f32_to_f16)(const float *from, uint16_t *to, size_t n);
    void (*f32_to_bf16)(const float *from, uint16_t *to, size_t n);
    bool (*all_finite_f32)(const float *values, size_t n);
    bool (*all_finite_f16)(const uint16_t *values, size_t n);
    bool (*all_finite_bf16)(const uint16_t *values, size_t n);
    /* to[i] = table[from[i]] */
    void (*u8_to_half)(const uint8_t *from, uint16_t *to, size_t n, const uint16_t table[256]);
} mpt__convert_table;

/* ==== Vocabulary ====
 *
 * The words in which conversions and the functions of ground/math.c are written, once for each
 * width: mpt__v1_add and so on, for 1, 4 (NEON), 8 (AVX2) and 16 (AVX-512) lanes. words(p) loads
 * 32-bit patterns from anywhere. larger(a, b) is a > b ? a : b and smaller(a, b) is a < b ? a : b:
 * both give b if either is NaN, as the x86 instructions do. select(m, a, b) is m ? a : b. sar
 * shifts with the sign.
 *
 * Arithmetic uses operators where the compiler has them for vectors: they obey the pragmas around
 * this code, while the body of an intrinsic obeys those around the header that it came from. */

#if defined(_MSC_VER) && !defined(__clang__)
#define MPT__LANES(a, operation, b, intrinsic) intrinsic(a, b)
#else
#define MPT__LANES(a, operation, b, intrinsic) ((a)operation(b))
#endif

#define MPT__ARITHMETIC(SPEC, V, P, S) \
    SPEC V##_f V##_add(V##_f a, V##_f b) { return MPT__LANES(a, +, b, P##add##S); } \
    SPEC V##_f V##_sub(V##_f a, V##_f b) { return MPT__LANES(a, -, b, P##sub##S); } \
    SPEC V##_f V##_mul(V##_f a, V##_f b) { return MPT__LANES(a, *, b, P##mul##S); } \
    SPEC V##_f V##_div(V##_f a, V##_f b) { return MPT__LANES(a, /, b, P##div##S); }

typedef float mpt__v1_f;
typedef uint32_t mpt__v1_i;
typedef bool mpt__v1_m;
#define MPT__V1 static MPT__INLINE

MPT__V1 float mpt__v1_add(float a, float b) { return a + b; }
MPT__V1 float mpt__v1_sub(float a, float b) { return a - b; }
MPT__V1 float mpt__v1_mul(float a, float b) { return a * b; }
MPT__V1 float mpt__v1_div(float a, float b) { return a / b; }
MPT__V1 float mpt__v1_set(float a) { return a; }
MPT__V1 float mpt__v1_larger(float a, float b) { return a > b ? a : b; }
MPT__V1 float mpt__v1_smaller(float a, float b) { return a < b ? a : b; }
MPT__V1 uint32_t mpt__v1_bits(float a) { return mpt__f32_bits(a); }
MPT__V1 uint32_t mpt__v1_words(const void *p) {
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}
MPT__V1 float mpt__v1_float(uint32_t a) { return mpt__f32_from_bits(a); }
MPT__V1 float mpt__v1_convert(uint32_t a) { return (float)(int32_t)a; }
MPT__V1 uint32_t mpt__v1_iset(int32_t a) { return (uint32_t)a; }
MPT__V1 uint32_t mpt__v1_iadd(uint32_t a, uint32_t b) { return a + b; }
MPT__V1 uint32_t mpt__v1_isub(uint32_t a, uint32_t b) { return a - b; }
MPT__V1 uint32_t mpt__v1_iand(uint32_t a, uint32_t b) { return a & b; }
MPT__V1 uint32_t mpt__v1_ior(uint32_t a, uint32_t b) { return a | b; }
MPT__V1 uint32_t mpt__v1_shl23(uint32_t a) { return a << 23; }
MPT__V1 uint32_t mpt__v1_shr16(uint32_t a) { return a >> 16; }
MPT__V1 uint32_t mpt__v1_sar1(uint32_t a) { return a >> 1 | (a & 0x80000000u); }
MPT__V1 uint32_t mpt__v1_sar23(uint32_t a) { return a >> 23 | (0u - (a >> 31)) << 9; }
MPT__V1 bool mpt__v1_igt(uint32_t a, uint32_t b) { return (int32_t)a > (int32_t)b; }
MPT__V1 float mpt__v1_select(bool m, float a, float b) { return m ? a : b; }

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
typedef __m256 mpt__v8_f;
typedef __m256i mpt__v8_i;
typedef __m256i mpt__v8_m;
#define MPT__V8 MPT__TARGET("avx2") static MPT__INLINE

MPT__ARITHMETIC(MPT__V8, mpt__v8, _mm256_, _ps)
MPT__V8 __m256 mpt__v8_set(float a) { return _mm256_set1_ps(a); }
MPT__V8 __m256 mpt__v8_larger(__m256 a, __m256 b) { return _mm256_max_ps(a, b); }
MPT__V8 __m256 mpt__v8_smaller(__m256 a, __m256 b) { return _mm256_min_ps(a, b); }
MPT__V8 __m256i mpt__v8_bits(__m256 a) { return _mm256_castps_si256(a); }
MPT__V8 __m256i mpt__v8_words(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
MPT__V8 __m256 mpt__v8_float(__m256i a) { return _mm256_castsi256_ps(a); }
MPT__V8 __m256 mpt__v8_convert(__m256i a) { return _mm256_cvtepi32_ps(a); }
MPT__V8 __m256i mpt__v8_iset(int32_t a) { return _mm256_set1_epi32(a); }
MPT__V8 __m256i mpt__v8_iadd(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
MPT__V8 __m256i mpt__v8_isub(__m256i a, __m256i b) { return _mm256_sub_epi32(a, b); }
MPT__V8 __m256i mpt__v8_iand(__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
MPT__V8 __m256i mpt__v8_ior(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }
MPT__V8 __m256i mpt__v8_shl23(__m256i a) { return _mm256_slli_epi32(a, 23); }
MPT__V8 __m256i mpt__v8_shr16(__m256i a) { return _mm256_srli_epi32(a, 16); }
MPT__V8 __m256i mpt__v8_sar1(__m256i a) { return _mm256_srai_epi32(a, 1); }
MPT__V8 __m256i mpt__v8_sar23(__m256i a) { return _mm256_srai_epi32(a, 23); }
MPT__V8 __m256i mpt__v8_igt(__m256i a, __m256i b) { return _mm256_cmpgt_epi32(a, b); }
MPT__V8 __m256 mpt__v8_select(__m256i m, __m256 a, __m256 b) {
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m));
}

typedef __m512 mpt__v16_f;
typedef __m512i mpt__v16_i;
typedef __mmask16 mpt__v16_m;
#define MPT__V16_STATIC MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq") static
#define MPT__V16 MPT__V16_STATIC MPT__INLINE
#define MPT__V16_ALL ((__mmask16)0xffff) /* without a mask, gcc warns about its own header */

MPT__ARITHMETIC(MPT__V16, mpt__v16, _mm512_, _ps)
MPT__V16 __m512 mpt__v16_set(float a) { return _mm512_set1_ps(a); }
MPT__V16 __m512 mpt__v16_larger(__m512 a, __m512 b) {
    return _mm512_maskz_max_ps(MPT__V16_ALL, a, b);
}
MPT__V16 __m512 mpt__v16_smaller(__m512 a, __m512 b) {
    return _mm512_maskz_min_ps(MPT__V16_ALL, a, b);
}
MPT__V16 __m512i mpt__v16_bits(__m512 a) { return _mm512_castps_si512(a); }
MPT__V16 __m512i mpt__v16_words(const void *p) { return _mm512_loadu_si512(p); }
MPT__V16 __m512 mpt__v16_float(__m512i a) { return _mm512_castsi512_ps(a); }
MPT__V16 __m512 mpt__v16_convert(__m512i a) { return _mm512_maskz_cvtepi32_ps(MPT__V16_ALL, a); }
MPT__V16 __m512i mpt__v16_iset(int32_t a) { return _mm512_set1_epi32(a); }
MPT__V16 __m512i mpt__v16_iadd(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
MPT__V16 __m512i mpt__v16_isub(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
MPT__V16 __m512i mpt__v16_iand(__m512i a, __m512i b) { return _mm512_and_si512(a, b); }
MPT__V16 __m512i mpt__v16_ior(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
MPT__V16 __m512i mpt__v16_shl23(__m512i a) { return _mm512_maskz_slli_epi32(MPT__V16_ALL, a, 23); }
MPT__V16 __m512i mpt__v16_shr16(__m512i a) { return _mm512_maskz_srli_epi32(MPT__V16_ALL, a, 16); }
MPT__V16 __m512i mpt__v16_sar23(__m512i a) { return _mm512_maskz_srai_epi32(MPT__V16_ALL, a, 23); }
MPT__V16 __mmask16 mpt__v16_igt(__m512i a, __m512i b) { return _mm512_cmpgt_epi32_mask(a, b); }
MPT__V16 __m512 mpt__v16_select(__mmask16 m, __m512 a, __m512 b) {
    return _mm512_mask_blend_ps(m, b, a);
}
#endif

#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
typedef float32x4_t mpt__v4_f;
typedef int32x4_t mpt__v4_i;
typedef uint32x4_t mpt__v4_m;
#define MPT__V4 static MPT__INLINE

MPT__ARITHMETIC(MPT__V4, mpt__v4, v, q_f32)
MPT__V4 mpt__v4_f mpt__v4_set(float a) { return vdupq_n_f32(a); }
MPT__V4 mpt__v4_f mpt__v4_larger(mpt__v4_f a, mpt__v4_f b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
MPT__V4 mpt__v4_f mpt__v4_smaller(mpt__v4_f a, mpt__v4_f b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}
MPT__V4 mpt__v4_i mpt__v4_bits(mpt__v4_f a) { return vreinterpretq_s32_f32(a); }
MPT__V4 mpt__v4_i mpt__v4_words(const void *p) { return vld1q_s32((const int32_t *)p); }
MPT__V4 mpt__v4_f mpt__v4_float(mpt__v4_i a) { return vreinterpretq_f32_s32(a); }
MPT__V4 mpt__v4_f mpt__v4_convert(mpt__v4_i a) { return vcvtq_f32_s32(a); }
MPT__V4 mpt__v4_i mpt__v4_iset(int32_t a) { return vdupq_n_s32(a); }
MPT__V4 mpt__v4_i mpt__v4_iadd(mpt__v4_i a, mpt__v4_i b) { return vaddq_s32(a, b); }
MPT__V4 mpt__v4_i mpt__v4_isub(mpt__v4_i a, mpt__v4_i b) { return vsubq_s32(a, b); }
MPT__V4 mpt__v4_i mpt__v4_iand(mpt__v4_i a, mpt__v4_i b) { return vandq_s32(a, b); }
MPT__V4 mpt__v4_i mpt__v4_ior(mpt__v4_i a, mpt__v4_i b) { return vorrq_s32(a, b); }
MPT__V4 mpt__v4_i mpt__v4_shl23(mpt__v4_i a) { return vshlq_n_s32(a, 23); }
MPT__V4 mpt__v4_i mpt__v4_shr16(mpt__v4_i a) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), 16));
}
MPT__V4 mpt__v4_i mpt__v4_sar1(mpt__v4_i a) { return vshrq_n_s32(a, 1); }
MPT__V4 mpt__v4_i mpt__v4_sar23(mpt__v4_i a) { return vshrq_n_s32(a, 23); }
MPT__V4 mpt__v4_m mpt__v4_igt(mpt__v4_i a, mpt__v4_i b) { return vcgtq_s32(a, b); }
MPT__V4 mpt__v4_f mpt__v4_select(mpt__v4_m m, mpt__v4_f a, mpt__v4_f b) {
    return vbslq_f32(m, a, b);
}
#endif

/* ==== Text of all levels ==== */

/* One conversion of a level: W elements at a time by its step, the rest by that of REST. */
#define MPT__CONVERT_LOOP(SPEC, W, LEVEL, REST, NAME, FROM, TO) \
    SPEC void mpt__##LEVEL##_##NAME(const FROM *from, TO *to, size_t n) { \
        size_t i = 0; \
        for (; i + (W) <= n; i += (W)) mpt__##LEVEL##_##NAME##_step(from + i, to + i); \
        if (i < n) mpt__##REST##_##NAME(from + i, to + i, n - i); \
    }
#define MPT__CONVERT_LOOPS(SPEC, W, LEVEL, REST) \
    MPT__CONVERT_LOOP(SPEC, W, LEVEL, REST, f16_to_f32, uint16_t, float) \
    MPT__CONVERT_LOOP(SPEC, W, LEVEL, REST, bf16_to_f32, uint16_t, float) \
    MPT__CONVERT_LOOP(SPEC, W, LEVEL, REST, f32_to_f16, float, uint16_t) \
    MPT__CONVERT_LOOP(SPEC, W, LEVEL, REST, f32_to_bf16, float, uint16_t)

/* Eight, or W, fp32 patterns to bf16 in the low halves of words. */
#define MPT__ROUND_BF16(SPEC, V, NAME) \
    SPEC MPT__INLINE V##_i NAME(V##_i bits) { \
        V##_m nan = V##_igt(V##_iand(bits, V##_iset(0x7fffffff)), V##_iset(0x7f800000)); \
        V##_i odd = V##_iand(V##_shr16(bits), V##_iset(1)); \
        V##_i sum = V##_iadd(bits, V##_iadd(odd, V##_iset(0x7fff))); \
        return V##_bits(V##_select(nan, V##_float(V##_iset(0x7fc0)), V##_float(V##_shr16(sum)))); \
    }

/* The tests of a level, and its table with the look-up of level BYTES. An exponent of all ones and
   `one` in its lowest bit give a carry to the sign, in each half of a word for 16-bit formats. Four
   runs are read side by side: one core gets more out of memory from several pages at once. */
#define MPT__FINITE_OF(V, p) V##_iadd(V##_iand(V##_words(p), mask), carry)
#define MPT__FINITE_FOUR(V, p, run) \
    V##_ior(V##_ior(MPT__FINITE_OF(V, p), MPT__FINITE_OF(V, p + run)), \
            V##_ior(MPT__FINITE_OF(V, p + 2 * run), MPT__FINITE_OF(V, p + 3 * run)))
#define MPT__CONVERT_TABLE(SPEC, V, W, LEVEL, BYTES) \
    SPEC bool mpt__##LEVEL##_finite(const void *values, size_t bytes, int32_t exponent, \
                                    int32_t one) { \
        const V##_i mask = V##_iset(exponent), carry = V##_iset(one); \
        const size_t step = 4 * (W); \
        const char *at = (const char *)values; \
        V##_i sum = V##_iset(0); \
        uint32_t words[4 * (W)] = {0}, all = 0; \
        const size_t run = bytes / sizeof words * step, rest = bytes - 4 * run; \
        for (size_t i = 0; i < run; i += step, at += step) \
            sum = V##_ior(sum, MPT__FINITE_FOUR(V, at, run)); \
        if (rest > 0) memcpy(words, at + 3 * run, rest); \
        sum = V##_ior(sum, MPT__FINITE_FOUR(V, (const char *)words, step)); \
        memcpy(words, &sum, sizeof sum); \
        for (int i = 0; i < (W); i++) all |= words[i]; \
        return (all & 0x80008000u) == 0; \
    } \
    static bool mpt__##LEVEL##_finite_f32(const float *values, size_t n) { \
        return mpt__##LEVEL##_finite(values, 4 * n, 0x7f800000, 0x00800000); \
    } \
    static bool mpt__##LEVEL##_finite_f16(const uint16_t *values, size_t n) { \
        return mpt__##LEVEL##_finite(values, 2 * n, 0x7c007c00, 0x04000400); \
    } \
    static bool mpt__##LEVEL##_finite_bf16(const uint16_t *values, size_t n) { \
        return mpt__##LEVEL##_finite(values, 2 * n, 0x7f807f80, 0x00800080); \
    } \
    static const mpt__convert_table mpt__convert_##LEVEL = { \
        mpt__##LEVEL##_f16_to_f32,  mpt__##LEVEL##_bf16_to_f32, mpt__##LEVEL##_f32_to_f16, \
        mpt__##LEVEL##_f32_to_bf16, mpt__##LEVEL##_finite_f32,  mpt__##LEVEL##_finite_f16, \
        mpt__##LEVEL##_finite_bf16, mpt__##BYTES##_u8_to_half};

/* ==== Levels ==== */

static void mpt__portable_f16_to_f32(const uint16_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = mpt__f16_to_f32(from[i]);
}
static void mpt__portable_bf16_to_f32(const uint16_t *from, float *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = mpt__bf16_to_f32(from[i]);
}
static void mpt__portable_f32_to_f16(const float *from, uint16_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = mpt__f32_to_f16(from[i]);
}
static void mpt__portable_f32_to_bf16(const float *from, uint16_t *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = mpt__f32_to_bf16(from[i]);
}
/* Eight a turn take less than half the instructions of one. */
#define MPT__LOOK_UP(NAME, TYPE) \
    static void mpt__portable_##NAME(const uint8_t *from, TYPE *to, size_t n, const TYPE *table) { \
        size_t i = 0; \
        for (; i + 8 <= n; i += 8) { \
            to[i] = table[from[i]], to[i + 1] = table[from[i + 1]]; \
            to[i + 2] = table[from[i + 2]], to[i + 3] = table[from[i + 3]]; \
            to[i + 4] = table[from[i + 4]], to[i + 5] = table[from[i + 5]]; \
            to[i + 6] = table[from[i + 6]], to[i + 7] = table[from[i + 7]]; \
        } \
        for (; i < n; i++) to[i] = table[from[i]]; \
    }
MPT__LOOK_UP(u8_to_f32, float)
MPT__LOOK_UP(u8_to_half, uint16_t)
MPT__CONVERT_TABLE(static, mpt__v1, 1, portable, portable)

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
#define MPT__CONVERT_AVX2 MPT__TARGET("avx2,f16c") static

MPT__ROUND_BF16(MPT__CONVERT_AVX2, mpt__v8, mpt__avx2_round_bf16)
/* The same without a NaN. */
MPT__CONVERT_AVX2 MPT__INLINE __m256i mpt__avx2_round_number(__m256i bits) {
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i below = _mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff));
    return _mm256_srli_epi32(_mm256_add_epi32(below, odd), 16);
}
/* Two of them in a row. That there is a NaN is seldom. */
MPT__CONVERT_AVX2 MPT__INLINE __m256i mpt__avx2_round_two(__m256 a, __m256 b) {
    __m256i low = _mm256_castps_si256(a), high = _mm256_castps_si256(b);
    if (_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0)
        low = mpt__avx2_round_bf16(low), high = mpt__avx2_round_bf16(high);
    else
        low = mpt__avx2_round_number(low), high = mpt__avx2_round_number(high);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
}

MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_f16_to_f32_step(const uint16_t *from, float *to) {
    _mm256_storeu_ps(to, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from)));
}
MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_bf16_to_f32_step(const uint16_t *from, float *to) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
    _mm256_storeu_ps(to, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}
MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_f32_to_f16_step(const float *from, uint16_t *to) {
    __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128((__m128i *)(void *)to, half);
}
MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_half_f32_to_bf16_step(const float *from,
                                                                   uint16_t *to) {
    __m256i words = mpt__avx2_round_bf16(mpt__v8_words(from));
    __m256i twice = _mm256_packus_epi32(words, words); /* its quarters: 0 0 1 1 */
    __m256i packed = _mm256_permute4x64_epi64(twice, 0x08);
    _mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(packed));
}
MPT__CONVERT_AVX2 MPT__INLINE void mpt__avx2_f32_to_bf16_step(const float *from, uint16_t *to) {
    _mm256_storeu_si256((__m256i *)(void *)to, mpt__avx2_round_two(_mm256_loadu_ps(from),
                                                                  _mm256_loadu_ps(from + 8)));
}
MPT__CONVERT_LOOP(MPT__CONVERT_AVX2, 8, avx2, portable, f16_to_f32, uint16_t, float)
MPT__CONVERT_LOOP(MPT__CONVERT_AVX2, 8, avx2, portable, bf16_to_f32, uint16_t, float)
MPT__CONVERT_LOOP(MPT__CONVERT_AVX2, 8, avx2, portable, f32_to_f16, float, uint16_t)
MPT__CONVERT_LOOP(MPT__CONVERT_AVX2, 8, avx2_half, portable, f32_to_bf16, float, uint16_t)
MPT__CONVERT_LOOP(MPT__CONVERT_AVX2, 16, avx2, avx2_half, f32_to_bf16, float, uint16_t)
MPT__CONVERT_TABLE(MPT__CONVERT_AVX2, mpt__v8, 8, avx2, portable)

/* MPT__ROUND_BF16 in fewer instructions, with masks, in place; nan: whether there may be any. */
MPT__V16 __m512i mpt__avx512_round_high(__m512i bits, bool nan) {
    const __m512i half = _mm512_set1_epi32(0x8000), below = _mm512_set1_epi32(0x7fff);
    const __m512 value = _mm512_castsi512_ps(bits);
    __mmask16 none = nan ? _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q) : (__mmask16)0;
    __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i sum = _mm512_mask_add_epi32(_mm512_add_epi32(bits, below), odd, bits, half);
    return nan ? _mm512_mask_mov_epi32(sum, none, _mm512_set1_epi32(0x7fc00000)) : sum;
}
MPT__V16 __m256i mpt__avx512_round_bf16(__m512i bits) {
    const __m512i high = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0x1f001d, 0x1b0019, 0x170015,
                                          0x130011, 0xf000d, 0xb0009, 0x70005, 0x30001);
    bits = mpt__avx512_round_high(bits, true);
    return _mm512_castsi512_si256(_mm512_maskz_permutexvar_epi16(0xffffffff, high, bits));
}
MPT__V16 __m256i mpt__avx512_round_f16(__m512 value) {
    return _mm512_maskz_cvtps_ph(MPT__V16_ALL, value, _MM_FROUND_TO_NEAREST_INT);
}
/* The first n of 16 lanes. */
#define MPT__V16_FIRST(n) ((__mmask16)((1u << (n)) - 1))

MPT__V16 void mpt__avx512_rest_f16_to_f32(const uint16_t *from, float *to, size_t n) {
    __m256i half = _mm256_maskz_loadu_epi16(MPT__V16_FIRST(n), from);
    _mm512_mask_storeu_ps(to, MPT__V16_FIRST(n), _mm512_maskz_cvtph_ps(MPT__V16_ALL, half));
}
MPT__V16 void mpt__avx512_rest_bf16_to_f32(const uint16_t *from, float *to, size_t n) {
    __m256i half = _mm256_maskz_loadu_epi16(MPT__V16_FIRST(n), from);
    __m512i wide = _mm512_maskz_cvtepu16_epi32(MPT__V16_ALL, half);
    _mm512_mask_storeu_epi32(to, MPT__V16_FIRST(n),
                             _mm512_maskz_slli_epi32(MPT__V16_ALL, wide, 16));
}
MPT__V16 void mpt__avx512_rest_f32_to_f16(const float *from, uint16_t *to, size_t n) {
    __m512 value = _mm512_maskz_loadu_ps(MPT__V16_FIRST(n), from);
    _mm256_mask_storeu_epi16(to, MPT__V16_FIRST(n), mpt__avx512_round_f16(value));
}
MPT__V16 void mpt__avx512_rest_f32_to_bf16(const float *from, uint16_t *to, size_t n) {
    __m512i bits = _mm512_maskz_loadu_epi32(MPT__V16_FIRST(n), from);
    _mm256_mask_storeu_epi16(to, MPT__V16_FIRST(n), mpt__avx512_round_bf16(bits));
}
#define mpt__avx512_f16_to_f32_step(from, to) mpt__avx512_rest_f16_to_f32(from, to, 16)
#define mpt__avx512_bf16_to_f32_step(from, to) mpt__avx512_rest_bf16_to_f32(from, to, 16)
#define mpt__avx512_f32_to_f16_step(from, to) mpt__avx512_rest_f32_to_f16(from, to, 16)
#define mpt__avx512_f32_to_bf16_step(from, to) mpt__avx512_rest_f32_to_bf16(from, to, 16)
MPT__CONVERT_LOOPS(MPT__V16_STATIC, 16, avx512, avx512_rest)

/* Two registers of the table per look-up, the higher bits of the index select among the results. */
MPT__V16_STATIC void mpt__avx512_u8_to_half(const uint8_t *from, uint16_t *to, size_t n,
                                            const uint16_t table[256]) {
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
MPT__CONVERT_TABLE(MPT__V16_STATIC, mpt__v16, 16, avx512, avx512)
#endif

#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
MPT__ROUND_BF16(static, mpt__v4, mpt__neon_round_bf16)

MPT__V4 void mpt__neon_f16_to_f32_step(const uint16_t *from, float *to) {
    vst1q_f32(to, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))));
}
MPT__V4 void mpt__neon_bf16_to_f32_step(const uint16_t *from, float *to) {
    vst1q_f32(to, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)));
}
MPT__V4 void mpt__neon_f32_to_f16_step(const float *from, uint16_t *to) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(from))));
}
MPT__V4 void mpt__neon_f32_to_bf16_step(const float *from, uint16_t *to) {
    vst1_u16(to, vmovn_u32(vreinterpretq_u32_s32(mpt__neon_round_bf16(mpt__v4_words(from)))));
}
MPT__CONVERT_LOOPS(static, 4, neon, portable)
MPT__CONVERT_TABLE(static, mpt__v4, 4, neon, portable)
#endif

/* The table for a level that this CPU has. */
static const mpt__convert_table *mpt__convert_table_for(mpt_isa isa) {
#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
    if (isa == MPT_ISA_AVX2) return &mpt__convert_avx2;
    if (isa >= MPT_ISA_AVX512 && isa <= MPT_ISA_AMX) return &mpt__convert_avx512;
#endif
#if defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
    if (isa >= MPT_ISA_NEON) return &mpt__convert_neon;
#endif
    (void)isa;
    return &mpt__convert_portable;
}

#endif
