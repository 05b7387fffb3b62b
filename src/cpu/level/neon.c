/* ----
 * cpu/level/neon.c: the vector layer of NEON (AArch64), and its kernels. Products of bf16 by later
 * CPUs' instructions are in cpu/level/neonbf16.c. fp16's own (FMLAL) are left alone: each makes as
 * many products as FMLA, with the same bits, and turning fp16 into fp32 while it is packed is 1.4 %
 * of the instructions of a product of 256^3.
 * ---- */
#ifndef MPT__CPU_LEVEL_NEON_INCLUDED
#define MPT__CPU_LEVEL_NEON_INCLUDED

#include "cpu/level/avx512.c"

#ifdef MPT__SIMD_NEON
#define MPT__HAS_NEON 1

#define MPT__V(word) mpt__v4_##word
#define MPT__FN static
#define MPT__OP static MPT__FORCE_INLINE

/* ==== Words: arithmetic, integers; contracts as in cpu/level/avx2.c ==== */

typedef float32x4_t mpt__v4_f;
typedef int32x4_t mpt__v4_i;
typedef uint32x4_t mpt__v4_m;

MPT__ARITHMETIC(MPT__OP, mpt__v4, v, q_f32)
MPT__OP v_f v_set(float a) { return vdupq_n_f32(a); }
MPT__OP v_f v_larger(v_f a, v_f b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
MPT__OP v_f v_smaller(v_f a, v_f b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
MPT__OP v_i v_bits(v_f a) { return vreinterpretq_s32_f32(a); }
MPT__OP v_i v_words(const void *p) { return vld1q_s32((const int32_t *)p); }
MPT__OP v_f v_float(v_i a) { return vreinterpretq_f32_s32(a); }
MPT__OP v_f v_convert(v_i a) { return vcvtq_f32_s32(a); }
MPT__OP v_i v_iset(int32_t a) { return vdupq_n_s32(a); }
MPT__OP v_i v_iadd(v_i a, v_i b) { return vaddq_s32(a, b); }
MPT__OP v_i v_isub(v_i a, v_i b) { return vsubq_s32(a, b); }
MPT__OP v_i v_iand(v_i a, v_i b) { return vandq_s32(a, b); }
MPT__OP v_i v_ior(v_i a, v_i b) { return vorrq_s32(a, b); }
MPT__OP v_i v_shl23(v_i a) { return vshlq_n_s32(a, 23); }
MPT__OP v_i mpt__v4_shr16(v_i a) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), 16));
}
MPT__OP v_i v_sar1(v_i a) { return vshrq_n_s32(a, 1); }
MPT__OP v_i v_sar23(v_i a) { return vshrq_n_s32(a, 23); }
MPT__OP v_m v_igt(v_i a, v_i b) { return vcgtq_s32(a, b); }
MPT__OP v_f v_select(v_m m, v_f a, v_f b) { return vbslq_f32(m, a, b); }
MPT__ROUND_BF16(MPT__OP, mpt__v4, mpt__neon_round_bf16)

/* ==== Words: floats, memory ==== */

MPT__OP v_f v_negate(v_f a) { return vnegq_f32(a); }
MPT__OP v_f v_abs(v_f a) { return vabsq_f32(a); }
MPT__OP v_m v_is_inf(v_f a) {
    return vceqq_s32(vandq_s32(v_bits(a), vdupq_n_s32(0x7fffffff)), vdupq_n_s32(0x7f800000));
}
MPT__OP v_f v_zero(void) { return vdupq_n_f32(0.0f); }
MPT__OP v_f v_load(const float *p) { return vld1q_f32(p); }
MPT__OP void v_store(float *p, v_f v) { vst1q_f32(p, v); }
MPT__OP v_f v_sqrt(v_f a) { return vsqrtq_f32(a); }
MPT__OP v_f v_fma(v_f a, v_f b, v_f c) { return vfmaq_f32(c, a, b); }
MPT__OP v_m v_greater(v_f a, v_f b) { return (v_m)MPT__LANES(a, >, b, vcgtq_f32); }
MPT__OP v_m v_equal(v_f a, v_f b) { return (v_m)MPT__LANES(a, ==, b, vceqq_f32); }
MPT__OP v_m v_is_nan(v_f a) {
    int32x4_t magnitude = vandq_s32(v_bits(a), vdupq_n_s32(0x7fffffff));
    return vcgtq_s32(magnitude, vdupq_n_s32(0x7f800000));
}
MPT__OP v_m v_first(int64_t n) {
    static const int32_t lanes[4] = {0, 1, 2, 3};
    return vcltq_s32(vld1q_s32(lanes), vdupq_n_s32((int32_t)(n < 0 ? 0 : n > 4 ? 4 : n)));
}
MPT__OP v_m v_words_from(const uint32_t *words, uint32_t threshold) {
    return vcgeq_u32(vld1q_u32(words), vdupq_n_u32(threshold));
}

MPT__OP v_f mpt__v4_from_half(uint16x4_t half, int dtype) {
    if (dtype == MPT_F16) return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}
MPT__OP uint16x4_t mpt__v4_to_half(v_f v, int dtype) {
    if (dtype == MPT_F16) return vreinterpret_u16_f16(vcvt_f16_f32(v));
    return vmovn_u32(vreinterpretq_u32_s32(mpt__neon_round_bf16(v_bits(v))));
}
MPT__OP v_f v_round(v_f v, int dtype) {
    if (dtype != MPT_F16 && dtype != MPT_BF16) return v;
    return mpt__v4_from_half(mpt__v4_to_half(v, dtype), dtype);
}
/* Memory of any type, which vld1 and vst1 do not promise to take. */
MPT__OP v_f v_load_full(const void *p, int dtype) {
    float32x4_t v;
    uint16x4_t half;
    if (dtype == MPT_F32) {
        memcpy(&v, p, sizeof v);
        return v;
    }
    memcpy(&half, p, sizeof half);
    return mpt__v4_from_half(half, dtype);
}
MPT__OP v_f v_load_as(const void *p, int64_t n, int dtype) {
    uint32_t rest[4] = {0, 0, 0, 0};
    if (n >= 4) return v_load_full(p, dtype);
    if (n > 0) memcpy(rest, p, (size_t)n * (dtype == MPT_F32 ? 4 : 2));
    return v_load_full(rest, dtype);
}
MPT__OP v_f v_load_first(const void *p, v_m lanes) {
    return v_load_as(p, (int64_t)vaddvq_u32(vshrq_n_u32(lanes, 31)), MPT_F32);
}
MPT__OP void v_store_as(void *p, v_f v, int64_t n, int dtype) {
    if (dtype != MPT_F32) {
        uint16x4_t half = mpt__v4_to_half(v, dtype);
        if (n > 0) memcpy(p, &half, n < 4 ? (size_t)n * 2 : sizeof half);
    } else if (n > 0) {
        memcpy(p, &v, n < 4 ? (size_t)n * 4 : sizeof v);
    }
}
MPT__OP void v_split(v_f *a, v_f *b) {
    const float32x4_t even = vuzp1q_f32(*a, *b);
    *b = vuzp2q_f32(*a, *b);
    *a = even;
}
MPT__OP void v_merge(v_f *a, v_f *b) {
    const float32x4_t low = vzip1q_f32(*a, *b);
    *b = vzip2q_f32(*a, *b);
    *a = low;
}
MPT__OP void v_transpose4(v_f *r0, v_f *r1, v_f *r2, v_f *r3) {
    float32x4_t low02 = vzip1q_f32(*r0, *r2), high02 = vzip2q_f32(*r0, *r2);
    float32x4_t low13 = vzip1q_f32(*r1, *r3), high13 = vzip2q_f32(*r1, *r3);
    *r0 = vzip1q_f32(low02, low13);
    *r1 = vzip2q_f32(low02, low13);
    *r2 = vzip1q_f32(high02, high13);
    *r3 = vzip2q_f32(high02, high13);
}
MPT__OP void v_store_bytes(uint8_t *p, v_f words, int64_t n) {
    const uint16x4_t half = vmovn_u32(vreinterpretq_u32_f32(words));
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(half, half));
    if (n > 0) memcpy(p, &bytes, n < 4 ? (size_t)n : 4);
}
MPT__OP v_f v_load_bytes(const uint8_t *p, int64_t n) {
    uint8x8_t bytes = vdup_n_u8(0);
    if (n > 0) memcpy(&bytes, p, n < 4 ? (size_t)n : 4);
    return vreinterpretq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
MPT__OP v_f v_load_quads(const float *p, int64_t step) {
    (void)step;
    return vld1q_f32(p);
}
MPT__OP void v_stream(float *p, v_f v) { vst1q_f32(p, v); }
MPT__OP void v_fence(void) {}
MPT__OP float v_peak(v_f v) { return vmaxvq_f32(v); }
MPT__OP float v_total(v_f v) {
    float32x2_t half = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(half, 0) + vget_lane_f32(half, 1);
}
MPT__OP void v_store_sums(
    float *to, v_f s0, v_f s1, v_f s2, v_f s3, v_f s4, v_f s5, v_f s6, v_f s7) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(s0, s1), vpaddq_f32(s2, s3)));
    vst1q_f32(to + 4, vpaddq_f32(vpaddq_f32(s4, s5), vpaddq_f32(s6, s7)));
}

typedef float64x2x2_t mpt__v4_d;
MPT__OP v_d v_no_doubles(void) {
    v_d v = {{vdupq_n_f64(0.0), vdupq_n_f64(0.0)}};
    return v;
}
MPT__OP void v_add_doubles(double *p, v_d v) {
    vst1q_f64(p, vaddq_f64(vld1q_f64(p), v.val[0]));
    vst1q_f64(p + 2, vaddq_f64(vld1q_f64(p + 2), v.val[1]));
}
MPT__OP v_d v_add_squares(v_d sum, v_f x) {
    float64x2_t low = vcvt_f64_f32(vget_low_f32(x)), high = vcvt_high_f64_f32(x);
    sum.val[0] = vfmaq_f64(sum.val[0], low, low);
    sum.val[1] = vfmaq_f64(sum.val[1], high, high);
    return sum;
}

typedef uint64x2_t mpt__v4_u;
MPT__OP v_u v_uset(uint64_t a) { return vdupq_n_u64(a); }
MPT__OP v_u v_ucount(uint64_t at) { return vsetq_lane_u64(at + 1, vdupq_n_u64(at), 1); }
MPT__OP v_u v_umul(v_u a, v_u b) { return vmull_u32(vmovn_u64(a), vmovn_u64(b)); }
MPT__OP v_u v_uhigh(v_u a) { return vshrq_n_u64(a, 32); }
MPT__OP v_u v_uxor(v_u a, v_u b, v_u c) { return veorq_u64(veorq_u64(a, b), c); }
MPT__OP void v_ustore(uint32_t *p, v_u a, v_u b, v_u c, v_u d) {
    uint32x2x4_t words = {{vmovn_u64(a), vmovn_u64(b), vmovn_u64(c), vmovn_u64(d)}};
    vst4_u32(p, words);
}

MPT__OP v_f v_gemm_quads(const char *p, int64_t row, int64_t lines) {
    (void)row;
    return lines > 0 ? v_load_full(p, MPT_F32) : v_zero();
}
MPT__OP void v_gemm_octs(
    const char *p, int64_t row, int64_t lines, int dtype, v_f *low, v_f *high) {
    (void)row;
    *low = lines > 0 ? v_load_full(p, dtype) : v_zero();
    *high = lines > 0 ? v_load_full(p + 8, dtype) : v_zero();
}
MPT__OP void v_store_both(void *p, v_f a, v_f b, int dtype) {
    v_store_as(p, a, 4, dtype);
    v_store_as((char *)p + 4 * (dtype == MPT_F32 ? 4 : 2), b, 4, dtype);
}

/* ==== Words: tables ==== */

#ifndef MPTRAIN_NO_FRUGAL
typedef const float *v_t;
MPT__OP v_t v_table(const float *p) { return p; }
MPT__OP v_f v_pick(v_t table, v_i at) {
    const float words[4] = {table[vgetq_lane_s32(at, 0) & 7], table[vgetq_lane_s32(at, 1) & 7],
        table[vgetq_lane_s32(at, 2) & 7], table[vgetq_lane_s32(at, 3) & 7]};
    return vld1q_f32(words);
}
MPT__OP v_i v_imax(v_i a, v_i b) { return vmaxq_s32(a, b); }
MPT__OP v_i v_iadd_if(v_m m, v_i a, v_i b) {
    return v_iadd(a, v_iand(vreinterpretq_s32_u32(m), b));
}
MPT__OP bool v_some(v_m m) { return vmaxvq_u32(m) != 0; }
#endif

/* ==== Words: 8 elements of 16 bits ==== */

#ifndef MPTRAIN_NO_CONV
typedef uint16x8_t mpt__v4_halves;
MPT__OP v_halves v_load_halves(const char *from, int64_t step, int round) {
    const float *x = (const float *)(const void *)from;
    (void)step;
    if (round == 0) return vld1q_u16((const uint16_t *)(const void *)from);
    return vcombine_u16(
        mpt__v4_to_half(vld1q_f32(x), round), mpt__v4_to_half(vld1q_f32(x + 4), round));
}
MPT__OP void v_store_halves(uint16_t *to, v_halves x) { vst1q_u16(to, x); }
MPT__OP v_halves v_halves_low(v_halves a, v_halves b) { return vzip1q_u16(a, b); }
MPT__OP v_halves v_halves_high(v_halves a, v_halves b) { return vzip2q_u16(a, b); }
#endif

/* ==== The level ==== */

#define MPT__LEVEL(name) mpt__neon_##name
#define MPT__WIDTH 4
#define MPT__BELOW(name) mpt__ref_##name
#define MPT__SLOWNESS 0.3
#define MPT__STREAM NULL
#define MPT__GATE NULL
#define MPT__HALVES_COPY mpt__neon_halves_copy
#define MPT__U8_TO_HALF mpt__portable_u8_to_half
#define MPT__TILE_FEW 4
#define MPT__TILE_MIDDLE 8
#define MPT__TILE_ROWS 12
#define MPT__DIRECT_ROWS 8
#define MPT__CHUNK_ROWS 168
#define MPT__RATE 16
#define MPT__IN_PLACE false
/* A vector of a panel of A holds four rows; the instruction multiplies by one of its lanes. */
#define MPT__ROW_START const v_f q0 = v_load(a0), q1 = v_load(a0 + 4), q2 = v_load(a0 + 8);
#define MPT__ROW_STEP(i, b, sum) vfmaq_laneq_f32(sum, b, i < 4 ? q0 : i < 8 ? q1 : q2, i % 4)
#include "cpu/template/functions.c"
#include "cpu/template/update.c"
#include "cpu/template/level.c"

#define MPT__NEON_LEVEL \
    true, &mpt__neon_routines, &mpt__neon_gemm_level, MPT__CHAIN(&mpt__neon_chain_level)
#else
#define MPT__NEON_LEVEL false, NULL, NULL, NULL
#endif

#endif
