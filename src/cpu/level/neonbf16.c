/* ----
 * cpu/level/neonbf16.c: matrix products of bf16 by BFMMLA (AArch64 with FEAT_BF16), four times what
 * FMLA multiplies per instruction. Operands of any dtype take part where the launch rounds them to
 * bf16.
 *
 * An element of a panel is a quad of bf16, of four k from a multiple of 4 on. The instruction takes
 * 2 rows and 2 columns of quads, and adds to each of 4 sums the two products of the lower k, then
 * those of the upper ones. Products are exact, a sum of two and what it is added to are rounded to
 * odd; what is below the smallest normal number counts as zero. Infinity and NaN come out as IEEE
 * says. Compilers agree on the instruction's name, but not on its intrinsic.
 * ---- */
#ifndef MPT__CPU_LEVEL_NEONBF16_INCLUDED
#define MPT__CPU_LEVEL_NEONBF16_INCLUDED

#include "cpu/level/neon.c"

#if defined(MPT__HAS_NEON)
#if defined(__clang__) && __clang_major__ >= 13 /* Apple counts its own */
#define MPT__HAS_BF16X4 1
#define MPT__BF16X4 MPT__TARGET("bf16")
#elif !defined(__clang__) && defined(__GNUC__) && __GNUC__ >= 10
#define MPT__HAS_BF16X4 1
#define MPT__BF16X4 MPT__TARGET("+bf16")
#endif
#endif

#ifdef MPT__HAS_BF16X4

#define MPT__V(word) mpt__v4_##word
#define MPT__FN MPT__BF16X4 static
#define MPT__OP MPT__FN MPT__FORCE_INLINE

enum { MPT__BF16X4_ROWS = 12, MPT__BF16X4_COLUMNS = 8, MPT__BF16X4_K = 64 };

/* ==== Panels ==== */

/* As sums do, it takes denormals for zero. */
MPT__OP uint16x4_t mpt__bf16x4_round(v_f v) {
    uint16x4_t half;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(half) : "w"(v));
    return half;
}
/* n elements of fp32 or bf16, and zeros. */
MPT__OP uint16x4_t mpt__bf16x4_load(const char *p, int64_t n, int dtype) {
    uint16x4_t half = vdup_n_u16(0);
    if (dtype == MPT_F32) return mpt__bf16x4_round(v_load_as(p, n, MPT_F32));
    if (n > 0) memcpy(&half, p, n < 4 ? (size_t)n * 2 : sizeof half);
    return half;
}

MPT__OP void mpt__bf16x4_line(
    uint16_t *to, int64_t width, const char *from, int64_t depth, int dtype) {
    const int64_t step = dtype == MPT_F32 ? 16 : 8;
    for (; depth >= 4; depth -= 4, to += 4 * width, from += step)
        vst1_u16(to, mpt__bf16x4_load(from, 4, dtype));
    if (depth > 0) vst1_u16(to, mpt__bf16x4_load(from, depth, dtype));
}

/* A panel of lines of K; other strides and fp16 by way of fp32. */
MPT__FN void mpt__bf16x4_pack_lines(uint16_t *to, int64_t width, const mpt__gemm_side *side,
    const char *from, int64_t count, int64_t depth) {
    float gathered[MPT__BF16X4_K];
    const int64_t bytes = mpt__dtype_info[side->dtype].bytes;
    for (; count > 0; count--, to += 4, from += side->outer * bytes) {
        if (side->inner == 1 && side->dtype == MPT_BF16) {
            mpt__bf16x4_line(to, width, from, depth, MPT_BF16);
        } else if (side->inner == 1 && side->dtype == MPT_F32) {
            mpt__bf16x4_line(to, width, from, depth, MPT_F32);
        } else {
            for (int64_t k = 0; k < depth; k += MPT__BF16X4_K) {
                const int64_t n = mpt__smaller_of(depth - k, MPT__BF16X4_K);
                mpt__neon_gemm_load(
                    gathered, from + k * side->inner * bytes, side->inner, n, side->dtype, 0);
                mpt__bf16x4_line(to + k * width, width, (const char *)gathered, n, MPT_F32);
            }
        }
    }
}

/* A panel whose outer elements are contiguous, k `step` bytes apart. */
MPT__OP void mpt__bf16x4_pack_outer(uint16_t *to, int64_t width, const char *from, int64_t step,
    int64_t count, int64_t depth, int dtype) {
    const int64_t apart = dtype == MPT_F32 ? 16 : 8;
    for (; depth > 0; depth -= 4, from += 4 * step)
        for (int64_t r = 0; r < width; r += 4, to += 16) {
            const char *p = from + r / 4 * apart;
            const int64_t n = count - r;
            uint16x4x4_t quads;
            if (depth >= 4 && n >= 4) {
                quads.val[0] = mpt__bf16x4_load(p, 4, dtype);
                quads.val[1] = mpt__bf16x4_load(p + step, 4, dtype);
                quads.val[2] = mpt__bf16x4_load(p + 2 * step, 4, dtype);
                quads.val[3] = mpt__bf16x4_load(p + 3 * step, 4, dtype);
            } else {
                quads.val[0] = mpt__bf16x4_load(p, n, dtype);
                quads.val[1] = mpt__bf16x4_load(p + step, depth > 1 ? n : 0, dtype);
                quads.val[2] = mpt__bf16x4_load(p + 2 * step, depth > 2 ? n : 0, dtype);
                quads.val[3] = mpt__bf16x4_load(p + 3 * step, depth > 3 ? n : 0, dtype);
            }
            vst4_u16(to, quads);
        }
}

MPT__FN bool mpt__bf16x4_pack(void *panel, bool b, MPT__PACK_TAKES) {
    const int64_t width = b ? MPT__BF16X4_COLUMNS : MPT__BF16X4_ROWS;
    const char *from = mpt__gemm_at(side, outer, k);
    const int64_t step = side->inner * mpt__dtype_info[side->dtype].bytes;
    uint16_t *to = (uint16_t *)panel;
    if (side->outer == 1 && side->inner != 1 && side->dtype == MPT_BF16) {
        mpt__bf16x4_pack_outer(to, width, from, step, count, depth, MPT_BF16);
    } else if (side->outer == 1 && side->inner != 1 && side->dtype == MPT_F32) {
        mpt__bf16x4_pack_outer(to, width, from, step, count, depth, MPT_F32);
    } else {
        if (count < width) memset(to, 0, (size_t)(mpt__round_up(depth, 4) * width * 2));
        mpt__bf16x4_pack_lines(to, width, side, from, count, depth);
    }
    return true;
}

/* ==== Tiles ==== */

/* Rows 2 i and 2 i + 1: sums of columns 0 and 1 (w), 2 and 3 (x), and so on. */
#define MPT__BF16X4_ZERO(i) v_f w##i = v_zero(), x##i = w##i, y##i = w##i, z##i = w##i;
#define MPT__BF16X4_STEP(i) \
    if (i < pairs) { \
        const uint16x8_t pair = vld1q_u16(of + 8 * i); \
        w##i = mpt__bf16x4_sum(w##i, pair, b0); \
        x##i = mpt__bf16x4_sum(x##i, pair, b1); \
        y##i = mpt__bf16x4_sum(y##i, pair, b2); \
        z##i = mpt__bf16x4_sum(z##i, pair, b3); \
    }
#define MPT__BF16X4_STORE(i) \
    if (i < pairs) mpt__bf16x4_store(to + 2 * i * ld, ld, add, w##i, x##i); \
    if (i < pairs) mpt__bf16x4_store(to + 2 * i * ld + 4, ld, add, y##i, z##i);
#define MPT__BF16X4_ROWS_6(X) X(0) X(1) X(2) X(3) X(4) X(5)

MPT__OP v_f mpt__bf16x4_sum(v_f sum, uint16x8_t a, uint16x8_t b) {
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}
MPT__OP void mpt__bf16x4_store(float *to, int64_t ld, bool add, v_f left, v_f right) {
    const float64x2_t l = vreinterpretq_f64_f32(left), r = vreinterpretq_f64_f32(right);
    v_f upper = vreinterpretq_f32_f64(vzip1q_f64(l, r));
    v_f lower = vreinterpretq_f32_f64(vzip2q_f64(l, r));
    if (add) upper = vaddq_f32(vld1q_f32(to), upper), lower = vaddq_f32(vld1q_f32(to + ld), lower);
    vst1q_f32(to, upper);
    vst1q_f32(to + ld, lower);
}

/* A whole tile of 2 `pairs` rows. */
MPT__OP void mpt__bf16x4_of(
    int64_t depth, const char *a, const char *b, float *to, int64_t ld, bool add, int pairs) {
    const uint16_t *of = (const uint16_t *)(const void *)a;
    const uint16_t *from = (const uint16_t *)(const void *)b;
    MPT__BF16X4_ROWS_6(MPT__BF16X4_ZERO)
    for (; depth > 0; depth -= 4) {
        const uint16x8_t b0 = vld1q_u16(from), b1 = vld1q_u16(from + 8);
        const uint16x8_t b2 = vld1q_u16(from + 16), b3 = vld1q_u16(from + 24);
        MPT__BF16X4_ROWS_6(MPT__BF16X4_STEP)
        of += 4 * MPT__BF16X4_ROWS, from += 4 * MPT__BF16X4_COLUMNS;
    }
    MPT__BF16X4_ROWS_6(MPT__BF16X4_STORE)
}
#define MPT__BF16X4_TILE(name, pairs) \
    MPT__FN void name(int64_t depth, const char *a, const char *b, float *to, int64_t ld, \
                            bool add) { \
        mpt__bf16x4_of(depth, a, b, to, ld, add, pairs); \
    }
MPT__BF16X4_TILE(mpt__bf16x4_tile2, 2)
MPT__BF16X4_TILE(mpt__bf16x4_tile4, 4)
MPT__BF16X4_TILE(mpt__bf16x4_tile6, 6)

static void mpt__bf16x4_tile(MPT__TILE_TAKES) {
    MPT__ALIGN(64) float beside[MPT__BF16X4_ROWS * MPT__BF16X4_COLUMNS];
    const int whole = rows > 8 ? 12 : rows > 4 ? 8 : 4;
    const bool add = (how & MPT__GEMM_ADD) != 0;
    const bool room = (how & MPT__GEMM_ROOM) || (rows == whole && columns == MPT__BF16X4_COLUMNS);
    (whole == 12  ? mpt__bf16x4_tile6
     : whole == 8 ? mpt__bf16x4_tile4
                  : mpt__bf16x4_tile2)(depth, a->data, b->data, room ? c : beside,
                                       room ? ldc : (int64_t)MPT__BF16X4_COLUMNS, room && add);
    if (!room) v_put_tile(beside, MPT__BF16X4_COLUMNS, c, ldc, rows, columns, add);
}

/* ==== The level ==== */

MPT__OP void mpt__bf16x4_store_as(void *p, v_f v, int64_t n, int dtype) {
    const uint16x4_t half = mpt__bf16x4_round(v);
    (void)dtype;
    if (n > 0) memcpy(p, &half, n < 4 ? (size_t)n * 2 : sizeof half);
}
MPT__OP void mpt__bf16x4_store_both(void *p, v_f a, v_f b, int dtype) {
    mpt__bf16x4_store_as(p, a, 4, dtype);
    mpt__bf16x4_store_as((char *)p + 8, b, 4, dtype);
}
MPT__FN void mpt__bf16x4_finish_half(MPT__FINISH_TAKES) {
    mpt__neon_gemm_finish_as(
        MPT__FINISH_GIVES, MPT_BF16, mpt__bf16x4_store_as, mpt__bf16x4_store_both);
}
static void mpt__bf16x4_finish(MPT__FINISH_TAKES) {
    (g->c_dtype == MPT_BF16 ? mpt__bf16x4_finish_half : mpt__neon_gemm_finish)(MPT__FINISH_GIVES);
}

static const mpt__gemm_level *mpt__bf16x4_choose(const mpt__gemm *g);
static const mpt__gemm_level mpt__bf16x4_gemm_level = {
    MPT__BF16X4_ROWS, MPT__BF16X4_COLUMNS, 8, 2, 4, 768, 168, 32, mpt__bf16x4_tile,
    mpt__neon_gemm_direct, NULL, 0, mpt__neon_gemm_sweep, mpt__neon_gemm_dot, mpt__bf16x4_pack,
    mpt__neon_gemm_load, mpt__bf16x4_finish, NULL, mpt__bf16x4_choose, false, false, 0};

/* Images packed for few products take more instructions than fp32 does; counted. */
static const mpt__gemm_level *mpt__bf16x4_choose(const mpt__gemm *g) {
    const bool halves = mpt__gemm_dtype(&g->a) == MPT_BF16 && mpt__gemm_dtype(&g->b) == MPT_BF16;
    const bool few = g->a_image ? g->a_image->channels * g->n < 96 : g->b_image && g->m < 32;
    return halves && !few ? &mpt__bf16x4_gemm_level : &mpt__neon_gemm_level;
}

#undef MPT__V
#undef MPT__FN
#undef MPT__OP
#define MPT__BF16X4_LEVEL true, NULL, &mpt__bf16x4_gemm_level, NULL
#else
#define MPT__BF16X4_LEVEL false, NULL, NULL, NULL
#endif

#endif
