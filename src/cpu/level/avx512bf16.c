/* ----
 * cpu/level/avx512bf16.c: matrix products of bf16 by VDPBF16PS (AVX512_BF16), twice the rate of
 * fp32 where a CPU without tiles has it. Operands of any dtype take part where the launch rounds
 * them to bf16.
 *
 * An element of a panel is a pair of bf16, of an even k and the next one. The instruction adds the
 * product of the odd k, then that of the even one, each rounded once, with denormals as zero: the
 * bits of two FMA. Infinity and NaN come out as IEEE says.
 *
 * MPTRAIN_EMULATE_AMX, for tests in the repository: with those two FMA, on an AVX2 level.
 * ---- */
#ifndef MPT__CPU_LEVEL_AVX512BF16_INCLUDED
#define MPT__CPU_LEVEL_AVX512BF16_INCLUDED

#include "cpu/level/neon.c"

#if defined(MPT__HAS_AVX512) && \
    (defined(MPTRAIN_EMULATE_AMX) || (defined(__clang__) && __clang_major__ >= 9) || \
        (!defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 10))
#define MPT__HAS_BF16X2 1
#endif

#ifdef MPT__HAS_BF16X2

#ifdef MPTRAIN_EMULATE_AMX
#define MPT__BF16X2_BASE(name) MPT__EMULATOR(gemm_##name)
#define MPT__V(word) mpt__v8_##word
#define MPT__WIDTH 8
#define MPT__FN MPT__EMULATOR_FN
#else
#define MPT__BF16X2_BASE(name) mpt__avx512_gemm_##name
#define MPT__V(word) mpt__v16_##word
#define MPT__WIDTH 16
#define MPT__FN MPT__TARGET("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,f16c,fma") static
#endif
#define MPT__OP MPT__FN MPT__FORCE_INLINE

#define MPT__BF16X2_ROWS 14
#define MPT__BF16X2_MIDDLE 8
#define MPT__BF16X2_K 64 /* that are converted at a time where K is contiguous */

/* ==== Panels ==== */

#ifdef MPTRAIN_EMULATE_AMX
#include "tests/emulated_pairs.h"
#else

enum { MPT__BF16X2_WIDTH = 32, MPT__BF16X2_DIRECT = 8, MPT__BF16X2_RATE = 64 };
#define mpt__bf16x2_put_tile mpt__v16_put_tile

/* Stores bf16 by its instruction, which flushes denormals as the sums do. */
MPT__OP void mpt__bf16x2_store_as(void *p, v_f v, int64_t n, int dtype) {
    if (dtype == MPT_BF16 && n >= 16)
        _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
    else
        _mm256_mask_storeu_epi16(p, v_first(n), (__m256i)_mm512_cvtneps_pbh(v));
}
MPT__OP void mpt__bf16x2_store_both(void *p, v_f a, v_f b, int dtype) {
    (void)dtype;
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}
MPT__FN void mpt__bf16x2_finish_half(MPT__FINISH_TAKES) {
    mpt__avx512_gemm_finish_as(
        MPT__FINISH_GIVES, MPT_BF16, mpt__bf16x2_store_as, mpt__bf16x2_store_both);
}
static void mpt__bf16x2_finish(MPT__FINISH_TAKES) {
    (g->c_dtype == MPT_BF16 ? mpt__bf16x2_finish_half : mpt__avx512_gemm_finish)(MPT__FINISH_GIVES);
}

MPT__OP __m256i mpt__bf16x2_words(const char *p, __mmask16 lanes) {
    if (lanes == 0xffff) return _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_maskz_loadu_epi16(lanes, p);
}
MPT__OP v_f mpt__bf16x2_load(const char *p, __mmask16 lanes, int dtype) {
    if (dtype != MPT_F32) return mpt__v16_from_half(mpt__bf16x2_words(p, lanes), dtype);
    return lanes == 0xffff ? _mm512_loadu_ps(p) : _mm512_maskz_loadu_ps(lanes, p);
}

/* Lanes of 16 elements at p and of 16 at q in bf16: p before q, or in turns (paired). */
MPT__OP __m512i mpt__bf16x2_row(
    const char *p, __mmask16 p_lanes, const char *q, __mmask16 q_lanes, bool paired, int dtype) {
    __m512i row;
    if (dtype == MPT_BF16) {
        row = _mm512_castsi256_si512(mpt__bf16x2_words(p, p_lanes));
        row = _mm512_inserti64x4(row, mpt__bf16x2_words(q, q_lanes), 1);
    } else {
        v_f x = mpt__bf16x2_load(p, p_lanes, dtype);
        row = (__m512i)_mm512_cvtne2ps_pbh(mpt__bf16x2_load(q, q_lanes, dtype), x);
    }
    if (!paired) return row;
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i second = _mm512_add_epi32(i, _mm512_set1_epi32(16));
    return _mm512_permutexvar_epi16(_mm512_or_si512(i, _mm512_slli_epi32(second, 16)), row);
}

/* A panel of contiguous outer elements, k `step` bytes apart. What a vector has past the width is
   overwritten by the next pair. */
MPT__OP void mpt__bf16x2_pack_outer(uint32_t *to, int64_t width, const char *from, int64_t step,
    int64_t count, int64_t depth, int dtype) {
    const __mmask16 lanes[2] = {v_first(count), v_first(count - 16)};
    const int64_t apart = dtype == MPT_F32 ? 64 : 32;
    for (; depth > 0; depth -= 2, to += width, from += 2 * step) {
        const char *p = from, *q = depth > 1 ? from + step : from;
        for (int64_t r = 0; r < width; r += 16, p += apart, q += apart) {
            const __mmask16 here = lanes[r / 16];
            _mm512_storeu_si512(
                to + r, mpt__bf16x2_row(p, here, q, depth > 1 ? here : 0, true, dtype));
        }
    }
}

/* Lines of K, turned to bf16 side by side, then transposed as if a pair were a float. */
MPT__FN void mpt__bf16x2_pack_lines(uint32_t *to, int64_t width, const char *from,
    const mpt__gemm_side *side, int64_t count, int64_t depth) {
    MPT__ALIGN(64) uint32_t staged[32 * MPT__BF16X2_K / 2];
    float gathered[MPT__BF16X2_K];
    const mpt__gemm_side square = {(const char *)staged, MPT_F32, 0, MPT__BF16X2_K / 2, 1};
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    for (; depth > 0; depth -= MPT__BF16X2_K, to += MPT__BF16X2_K / 2 * width) {
        const int64_t n = mpt__smaller_of(depth, MPT__BF16X2_K);
        for (int64_t i = 0; i < count; i++) {
            const char *line = from + i * side->outer * bytes;
            if (side->inner != 1 || side->dtype != MPT_F32) {
                MPT__BF16X2_BASE(load)(gathered, line, side->inner, n, side->dtype, 0);
                line = (const char *)gathered;
            }
            for (int64_t x = 0; x < n; x += 32, line += 128) {
                const uint32_t lanes = n - x >= 32 ? 0xffffffffu : (1u << (n - x)) - 1;
                const v_f p = _mm512_maskz_loadu_ps((__mmask16)lanes, line);
                const v_f q = _mm512_maskz_loadu_ps((__mmask16)(lanes >> 16), line + 64);
                _mm512_storeu_si512(
                    staged + (i * MPT__BF16X2_K + x) / 2, (__m512i)_mm512_cvtne2ps_pbh(q, p));
            }
        }
        mpt__avx512_pack_inner((float *)(void *)to, (int)width, &square, 0, count, 0, (n + 1) / 2);
        from += MPT__BF16X2_K * side->inner * bytes;
    }
}

MPT__FN bool mpt__bf16x2_pack(void *panel, bool b, MPT__PACK_TAKES) {
    const int64_t width = b ? MPT__BF16X2_WIDTH : MPT__BF16X2_ROWS;
    const char *from = mpt__gemm_at(side, outer, k);
    const int64_t step = side->inner * mpt__dtype_info[side->dtype].bytes;
    uint32_t *to = (uint32_t *)panel;
    if (side->outer == 1 && side->inner != 1 && side->dtype != MPT_F16) {
        if (side->dtype == MPT_BF16)
            mpt__bf16x2_pack_outer(to, width, from, step, count, depth, MPT_BF16);
        else
            mpt__bf16x2_pack_outer(to, width, from, step, count, depth, MPT_F32);
    } else if (side->inner == 1 && side->dtype == MPT_BF16 && (side->outer | depth) % 2 == 0) {
        const mpt__gemm_side pairs = {from, MPT_F32, 0, side->outer / 2, 1};
        mpt__avx512_pack_inner((float *)panel, (int)width, &pairs, 0, count, 0, depth / 2);
    } else {
        mpt__bf16x2_pack_lines(to, width, from, side, count, depth);
    }
    return true;
}

MPT__OP v_f v_dot2(v_f sum, v_f a, v_f b) {
    return _mm512_dpbf16_ps(
        sum, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b));
}
/* An integer is broadcast beside the ports that products need, a float is not. */
MPT__OP v_f v_word(const float *p) {
    int32_t word;
    memcpy(&word, p, sizeof word);
    return _mm512_castsi512_ps(_mm512_set1_epi32(word));
}
MPT__OP void v_store_pair(uint16_t *to, v_f x, v_f y) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}
/* to[i] = elements i and i + apart as a pair; as far as whole vectors go. */
MPT__FN MPT__UNUSED void mpt__bf16x2_apart(
    uint32_t *to, const uint16_t *from, int64_t apart, int64_t count) {
    for (int64_t i = 0; i < count; i += 16, from += 16)
        _mm512_storeu_si512(to + i,
            mpt__bf16x2_row(
                (const char *)from, 0xffff, (const char *)(from + apart), 0xffff, true, MPT_BF16));
}

#endif

/* ==== Tiles ==== */

#define MPT__BF16X2_STEP(i) \
    if (i < height) x##i = v_dot2(x##i, v_set(MPT__LINES_A##i), b0); \
    if (i < height) y##i = v_dot2(y##i, v_set(MPT__LINES_A##i), b1);
#define MPT__BF16X2_BIAS(i) x##i = v_add(x##i, b0), y##i = v_add(y##i, b1);
#define MPT__BF16X2_RELU(i) x##i = v_relu(x##i), y##i = v_relu(y##i);
#define MPT__BF16X2_STORE_HALF(i) \
    if (i < height) v_store_pair(half + i * ldc, x##i, y##i);
#define MPT__BF16X2_STORE(i) \
    if (i < height) v_store(c + i * ldc, x##i), v_store(c + i * ldc + MPT__WIDTH, y##i);

/* A whole tile of `height` rows by two vectors of floats or (HALF) of bf16, whose b[1] is read. */
MPT__OP void mpt__bf16x2_tile_of(MPT__TILE_TAKES, int height) {
    const float *from = mpt__gemm_floats_of(b), *bias = mpt__gemm_floats_of(b + 1);
    (void)rows, (void)columns;
    MPT__TILE_LINES(a, true, 0)
    MPT__ROWS_14(MPT__TILE_ZERO)
    for (; depth > 0; depth -= 2, from += 2 * MPT__WIDTH) {
        const v_f b0 = v_load(from), b1 = v_load(from + MPT__WIDTH);
        MPT__ROWS_14(MPT__BF16X2_STEP)
        MPT__TILE_NEXT(true);
    }
    if (height >= MPT__BF16X2_MIDDLE && (how & MPT__GEMM_HALF)) {
        uint16_t *half = (uint16_t *)(void *)c;
        if (bias) {
            const v_f b0 = v_load(bias), b1 = v_load(bias + MPT__WIDTH);
            MPT__ROWS_14(MPT__BF16X2_BIAS)
        }
        if (b[1].inner != 0) { MPT__ROWS_14(MPT__BF16X2_RELU) }
        MPT__ROWS_14(MPT__BF16X2_STORE_HALF)
        return;
    }
    MPT__ROWS_14(MPT__BF16X2_STORE)
}
MPT__FN void mpt__bf16x2_tile4(MPT__TILE_TAKES) { mpt__bf16x2_tile_of(MPT__TILE_GIVES, 4); }
MPT__FN void mpt__bf16x2_tile8(MPT__TILE_TAKES) { mpt__bf16x2_tile_of(MPT__TILE_GIVES, 8); }
MPT__FN void mpt__bf16x2_tile14(MPT__TILE_TAKES) { mpt__bf16x2_tile_of(MPT__TILE_GIVES, 14); }

/* ==== Lines of pixels ==== */

#ifdef MPT__HAS_NORMS
MPT__OP v_f mpt__bf16x2_word_step(v_f sum, const float *a, v_f b) {
    return v_dot2(sum, v_word(a), b);
}
MPT__OP v_f mpt__bf16x2_step(v_f sum, const float *a, v_f b) { return v_dot2(sum, v_set(*a), b); }
MPT__FN void mpt__bf16x2_lines_narrow(MPT__TILE_TAKES) {
    MPT__BF16X2_BASE(lines_of)(MPT__TILE_GIVES, MPT__BF16X2_DIRECT, false, mpt__bf16x2_word_step);
}
MPT__FN void mpt__bf16x2_lines_wide(MPT__TILE_TAKES) {
    MPT__BF16X2_BASE(lines_of)(MPT__TILE_GIVES, MPT__BF16X2_DIRECT, true, mpt__bf16x2_step);
}
static void mpt__bf16x2_lines_apart(MPT__TILE_TAKES) {
    (columns > MPT__WIDTH ? mpt__bf16x2_lines_wide : mpt__bf16x2_lines_narrow)(MPT__TILE_GIVES);
}
#ifdef MPTRAIN_NO_CONV
#define mpt__bf16x2_lines mpt__bf16x2_lines_apart
#else
/* Three neighbouring taps of rows `o` elements apart, all of A's line and b->outer floats apart in
   B: what is broadcast is multiplied three times. `none` is for nobody. */
#define MPT__BF16X2_TAP(A, P, Q, R) \
    { \
        const v_f s = v_word(&MPT__LINES_A##A); \
        P = v_dot2(P, s, b0), Q = v_dot2(Q, s, b1), R = v_dot2(R, s, b2); \
    }
#define MPT__BF16X2_TAPS(X) \
    X(0, x0, none, none) X(1, x1, x0, none) X(2, x2, x1, x0) X(3, x3, x2, x1) X(4, x4, x3, x2) \
    X(5, x5, x4, x3)
#ifdef MPTRAIN_EMULATE_AMX
#define MPT__BF16X2_ALL_TAPS(X) MPT__BF16X2_TAPS(X) X(6, none, x5, x4) X(7, none, none, x5)
#else
#define MPT__BF16X2_ALL_TAPS(X) \
    MPT__BF16X2_TAPS(X) X(6, x6, x5, x4) X(7, x7, x6, x5) X(8, none, x7, x6) X(9, none, none, x7)
#endif
#define MPT__BF16X2_TAPS_STORE(i) \
    if (i < MPT__BF16X2_DIRECT && i < rows) { \
        float *p = c + i * ldc; \
        if (add) x##i = v_add(v_load_as(p, columns, MPT_F32), x##i); \
        v_store_as(p, x##i, columns, MPT_F32); \
    }
#define MPT__BF16X2_ZERO(i) v_f x##i = v_zero();
MPT__FN void mpt__bf16x2_taps(MPT__TILE_TAKES) {
    const bool add = (how & MPT__GEMM_ADD) != 0;
    const int64_t o = a->outer, next = b->outer, b_step = b->inner;
    v_f none = v_zero();
    MPT__ROWS_8(MPT__BF16X2_ZERO)
    for (; how >= 0; how -= MPT__GEMM_MORE, a++, b++) {
        const float *from = mpt__gemm_floats_of(b), *a0 = mpt__gemm_floats_of(a);
        const float *a3 = a0 + 3 * o, *a6 = a3 + 3 * o, *a9 = a6 + 3 * o;
        for (int64_t p = 0; p < depth; p++, from += b_step) {
            const v_f b0 = v_load(from), b1 = v_load(from + next);
            const v_f b2 = v_load(from + 2 * next);
            MPT__BF16X2_ALL_TAPS(MPT__BF16X2_TAP)
            a0++, a3++, a6++, a9++;
        }
        (void)a9;
    }
    MPT__ROWS_8(MPT__BF16X2_TAPS_STORE)
}
static void mpt__bf16x2_lines(MPT__TILE_TAKES) {
    (b->outer > 1 ? mpt__bf16x2_taps : mpt__bf16x2_lines_apart)(MPT__TILE_GIVES);
}
#endif
#endif

static void mpt__bf16x2_tile(MPT__TILE_TAKES) {
    MPT__ALIGN(64) float beside[MPT__BF16X2_ROWS * MPT__BF16X2_WIDTH];
    const bool add = (how & MPT__GEMM_ADD) != 0;
    const int whole = rows > 8 ? 14 : rows > 4 ? 8 : 4;
    const bool room = (how & (MPT__GEMM_ROOM | MPT__GEMM_HALF)) ||
                      (rows == whole && columns == MPT__BF16X2_WIDTH && !add);
    float *to = room ? c : beside;
    const int64_t ld = room ? ldc : (int64_t)MPT__BF16X2_WIDTH;
    (whole == 14  ? mpt__bf16x2_tile14
     : whole == 8 ? mpt__bf16x2_tile8
                  : mpt__bf16x2_tile4)(depth, a, b, to, ld, rows, columns, how);
    if (!room) mpt__bf16x2_put_tile(beside, MPT__BF16X2_WIDTH, c, ldc, rows, columns, add);
}

#ifndef MPTRAIN_NO_ATTENTION
/* c = factor times the products of up to 8 rows of pairs, o floats apart, and their panel. */
#define MPT__BF16X2_LINE(i) \
    x##i = v_dot2(x##i, v_set(MPT__LINES_A##i), b0); \
    y##i = v_dot2(y##i, v_set(MPT__LINES_A##i), b1);
#define MPT__BF16X2_PUT(i) \
    if (i < rows) { \
        v_store_as(c + i * ldc, v_mul(x##i, times), columns, MPT_F32); \
        v_store_as(c + i * ldc + MPT__WIDTH, v_mul(y##i, times), columns - MPT__WIDTH, MPT_F32); \
    }
MPT__FN void mpt__bf16x2_attend(int64_t depth, const float *a0, int64_t o, const float *b, float *c,
                                int64_t ldc, int64_t rows, int64_t columns, float factor) {
    const v_f times = v_set(factor);
    const float *a3 = a0 + 3 * o, *a6 = a0 + 6 * o;
    MPT__ROWS_8(MPT__TILE_ZERO)
    for (; depth > 0; depth--, a0++, a3++, a6++, b += 2 * MPT__WIDTH) {
        const v_f b0 = v_load(b), b1 = v_load(b + MPT__WIDTH);
        MPT__ROWS_8(MPT__BF16X2_LINE)
    }
    MPT__ROWS_8(MPT__BF16X2_PUT)
}
#endif

/* ==== The level ==== */

static const mpt__gemm_level *mpt__bf16x2_choose(const mpt__gemm *g);
static const mpt__gemm_level mpt__bf16x2_gemm_level = {
    MPT__BF16X2_ROWS, MPT__BF16X2_WIDTH, MPT__BF16X2_DIRECT, 2, 2, 2048, 336, MPT__BF16X2_RATE,
    mpt__bf16x2_tile, MPT__BF16X2_BASE(direct), MPT__GEMM_CONV_OF(mpt__bf16x2_lines),
    MPT__BF16X2_DIRECT, MPT__BF16X2_BASE(sweep), MPT__BF16X2_BASE(dot), mpt__bf16x2_pack,
    MPT__BF16X2_BASE(load), mpt__bf16x2_finish, NULL, mpt__bf16x2_choose, false, true,
    MPT__BF16X2_MIDDLE};

/* Gradients of the weights of few channels are faster in fp32. */
static const mpt__gemm_level *mpt__bf16x2_choose(const mpt__gemm *g) {
    const bool halves = mpt__gemm_dtype(&g->a) == MPT_BF16 && mpt__gemm_dtype(&g->b) == MPT_BF16;
    const mpt__gemm_image *image = g->a_image ? g->a_image : g->b_image;
    const bool few = image && image->channels < (g->a_image ? 8 : 2);
    return halves && !few ? &mpt__bf16x2_gemm_level : &MPT__BF16X2_BASE(level);
}

#define MPT__BF16X2_LEVEL true, NULL, &mpt__bf16x2_gemm_level, NULL
#else
#define MPT__BF16X2_LEVEL false, NULL, NULL, NULL
#endif

#endif
