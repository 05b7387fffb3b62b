/* ----
 * cpu/level/amx.c: matrix products of bf16 and fp16 on AMX tiles (TDPBF16PS), 16 times the rate of
 * AVX-512 in fp32. Operands in fp32 take part where the launch rounds them to one of the two.
 *
 * What is promised: fp32 sums of exact products, as on all levels, in another order. Infinity and
 * NaN come out as IEEE says. Denormals count as zero, as with FMA kernels, and so do sums of pairs
 * of products. A value of fp16 is split exactly into two of bf16, hi + lo (11 bits into 8 + 3; its
 * denormals are normal in bf16), for four products; infinity has no such parts, so a launch that
 * holds one is left to AVX-512 as a whole. On demand fp32 is multiplied in parts, too: hi and lo
 * are rounded, and lo lo is left out (mpt_benchmark has the bound); so large a value that its
 * product in parts could be no number while that in fp32 is one is left as well.
 *
 * MPTRAIN_EMULATE_AMX, for tests of the repository: tiles in portable C on an AVX2 level.
 * ---- */
#ifndef MPT__CPU_LEVEL_AMX_INCLUDED
#define MPT__CPU_LEVEL_AMX_INCLUDED

#include "cpu/level/avx512bf16.c"

#if defined(MPT__HAS_BF16X2) && !defined(MPTRAIN_NO_AMX)
#if defined(MPTRAIN_EMULATE_AMX)
#define MPT__HAS_AMX 1
#elif defined(__linux__) && defined(__LP64__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define MPT__HAS_AMX 1
#endif
#endif

#ifdef MPT__HAS_AMX

/* ==== Panels ====
 *
 * 32 rows of A or columns of B in tiles of 1 KB, zero-padded: per 32 k, per part (hi, lo), those of
 * outer 0..15 and, of more than 16, of 16..31. A tile of A has 16 rows of 32 k; one of B has 16
 * rows of 2 k for 16 columns. Of two parts each k below 16 is followed by the one 16 behind it,
 * which makes pairs of words by shifts. */

#define MPT__AMX_TILE 1024
#define MPT__AMX_WIDTH 32
#define MPT__AMX_K 32
#define MPT__AMX_HUGE 0x5e800000u /* 2^62; products of what is smaller are finite */

/* Whether two parts of a side are rounded. */
#define MPT__AMX_ROUNDED(dtype, round) ((dtype) == MPT_F32 && (round) == 0)

#ifdef MPTRAIN_EMULATE_AMX
#include "tests/emulated_tiles.h"
#else

/* A row of a tile from lanes of 16 elements at p and of 16 at q: p before q, or in turns (paired).
   Two parts: in turns, the second `gap` bytes behind; *bad becomes NaN where a value has no parts,
   or has the largest magnitude if these are rounded. */
MPT__OP void mpt__amx_row(char *to, int64_t gap, const char *p, __mmask16 p_lanes, const char *q,
    __mmask16 q_lanes, bool paired, int dtype, int round, int parts, __m512 *bad) {
    if (parts == 1) {
        _mm512_storeu_si512(to, mpt__bf16x2_row(p, p_lanes, q, q_lanes, paired, dtype));
        return;
    }
    const bool rounded = MPT__AMX_ROUNDED(dtype, round);
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    const __m512i half = _mm512_set1_epi32(rounded ? 0x8000 : 0);
    const __m512i x = v_bits(v_round(mpt__bf16x2_load(p, p_lanes, dtype), round));
    const __m512i y = v_bits(v_round(mpt__bf16x2_load(q, q_lanes, dtype), round));
    const __m512i x_high = _mm512_add_epi32(x, half) & high;
    const __m512i y_high = _mm512_add_epi32(y, half) & high;
    const v_f x_low = v_sub(v_float(x), v_float(x_high));
    const v_f y_low = v_sub(v_float(y), v_float(y_high));
    if (rounded) {
        const __mmask16 all = 0xffff;
        const __m512i most =
            _mm512_maskz_max_epu32(all, _mm512_slli_epi32(x, 1), _mm512_slli_epi32(y, 1));
        *bad = v_float(_mm512_maskz_max_epu32(all, v_bits(*bad), most));
    } else {
        *bad = v_add(*bad, v_add(x_low, y_low));
    }
    const __m512i x_words = _mm512_add_epi32(v_bits(x_low), half);
    const __m512i y_words = _mm512_add_epi32(v_bits(y_low), half);
    _mm512_storeu_si512(to, _mm512_srli_epi32(x_high, 16) | y_high);
    _mm512_storeu_si512(to + gap, _mm512_srli_epi32(x_words, 16) | (y_words & high));
}

/* to = 16 rows of 16 dwords, `row` bytes apart, transposed. */
MPT__FN MPT__NOINLINE void mpt__amx_transpose(char *to, const char *from, int64_t row) {
    float *out = (float *)(void *)to;
    for (int j = 0; j < 4; j++, out += 64, from += 16) {
        v_f r0 = v_gemm_quads(from, row, 16);
        v_f r1 = v_gemm_quads(from + row, row, 16);
        v_f r2 = v_gemm_quads(from + 2 * row, row, 16);
        v_f r3 = v_gemm_quads(from + 3 * row, row, 16);
        v_transpose4(&r0, &r1, &r2, &r3);
        v_store(out, r0), v_store(out + 16, r1);
        v_store(out + 32, r2), v_store(out + 48, r3);
    }
}

/* The tiles of all parts, `gap` bytes apart, from `count` outer elements at `from` by n k. */
MPT__OP void mpt__amx_pack_tile(char *to, int64_t gap, bool b, const char *from, int64_t outer,
    int64_t inner, int64_t count, int64_t n, int dtype, int round, int parts, __m512 *bad) {
    MPT__ALIGN(64) char staged[2 * MPT__AMX_TILE];
    const int bytes = dtype == MPT_F32 ? 4 : 2;
    const bool along_k = inner == 1 && outer != 1, transposed = along_k == b;
    const bool whole = count >= 16 && n >= MPT__AMX_K;
    const int64_t apart = along_k || parts == 2 ? 16 : 1; /* k from p to q */
    const int64_t step = (along_k ? outer : apart == 1 ? 2 * inner : inner) * bytes;
    const int64_t second = apart * inner * bytes, part = transposed ? MPT__AMX_TILE : gap;
    char *rows = transposed ? staged : to;
    if (whole && parts == 1 && dtype == MPT_BF16 && along_k && b) {
        mpt__amx_transpose(to, from, step);
        return;
    }
    const __mmask16 p_lanes = v_first(along_k ? n : count);
    const __mmask16 q_lanes = along_k ? v_first(n - 16) : p_lanes;
    const int64_t lines = along_k ? count : apart == 1 ? (n + 1) / 2 : n;
    int64_t i = 0;
    for (; i < 16 && whole; i++, rows += 64, from += step)
        mpt__amx_row(
            rows, part, from, 0xffff, from + second, 0xffff, !along_k, dtype, round, parts, bad);
    for (; i < 16 && i < lines; i++, rows += 64, from += step) {
        const bool both = along_k || (apart == 1 ? 2 * i : i) + apart < n;
        mpt__amx_row(rows, part, from, p_lanes, from + second, both ? q_lanes : 0, !along_k, dtype,
            round, parts, bad);
    }
    for (; i < 16; i++, rows += 64) {
        _mm512_storeu_si512(rows, _mm512_setzero_si512());
        if (parts == 2) _mm512_storeu_si512(rows + part, _mm512_setzero_si512());
    }
    if (transposed) mpt__amx_transpose(to, staged, 64);
    if (transposed && parts == 2) mpt__amx_transpose(to + gap, staged + MPT__AMX_TILE, 64);
}

MPT__OP bool mpt__amx_pack_as(
    char *panel, bool b, MPT__PACK_TAKES, int dtype, int round, int parts) {
    const int64_t gap = 2 * MPT__AMX_TILE, bytes = dtype == MPT_F32 ? 4 : 2;
    const int64_t o_step = side->outer, k_step = side->inner;
    const char *from = side->data + (outer * o_step + k * k_step) * bytes;
    __m512 bad = _mm512_setzero_ps();
    for (; depth > 0;
         depth -= MPT__AMX_K, panel += gap * parts, from += MPT__AMX_K * k_step * bytes) {
        for (int64_t o = 0; o < count; o += 16)
            mpt__amx_pack_tile(panel + o / 16 * MPT__AMX_TILE, gap, b, from + o * o_step * bytes,
                o_step, k_step, count - o, depth, dtype, round, parts, &bad);
    }
    if (MPT__AMX_ROUNDED(dtype, round) && parts == 2) {
        const __m512i limit = _mm512_set1_epi32((int)(2 * MPT__AMX_HUGE));
        return _mm512_cmp_epu32_mask(v_bits(bad), limit, _MM_CMPINT_LT) == 0xffff;
    }
    return _mm512_cmp_ps_mask(bad, bad, _CMP_UNORD_Q) == 0;
}

/* A panel of a side that is contiguous in one direction, and fp32 if it is to be rounded. */
MPT__FN bool mpt__amx_pack_dense(char *panel, bool b, MPT__PACK_TAKES) {
    const int dtype = side->dtype, round = side->round;
#define MPT__AMX_PACK(DTYPE, ROUND, PARTS) \
    if (dtype == DTYPE && round == ROUND) { \
        return mpt__amx_pack_as(panel, b, MPT__PACK_GIVES, DTYPE, ROUND, PARTS); \
    }
    MPT__AMX_PACK(MPT_BF16, 0, 1)
    MPT__AMX_PACK(MPT_F32, MPT_BF16, 1)
    MPT__AMX_PACK(MPT_F16, 0, 2)
    MPT__AMX_PACK(MPT_F32, MPT_F16, 2)
    return mpt__amx_pack_as(panel, b, MPT__PACK_GIVES, MPT_F32, 0, 2);
}

static bool mpt__amx_pack_of(void *panel, bool b, MPT__PACK_TAKES, int parts) {
    float gathered[16 * MPT__AMX_K];
    const int dtype = mpt__gemm_dtype(side), round = dtype == MPT_F32 ? 0 : dtype;
    const mpt__gemm_side square = {(const char *)gathered, MPT_F32, round, MPT__AMX_K, 1};
    char *to = (char *)panel;
    bool good = true;
    if ((side->inner == 1 || side->outer == 1) && (side->dtype == MPT_F32 || side->round == 0))
        return mpt__amx_pack_dense(to, b, MPT__PACK_GIVES);
    for (int64_t at = 0; at < depth; at += MPT__AMX_K, to += 2 * parts * MPT__AMX_TILE) {
        const int64_t n = mpt__smaller_of(depth - at, MPT__AMX_K);
        for (int64_t o = 0; o < count; o += 16) {
            const int64_t lines = mpt__smaller_of(count - o, 16);
            for (int64_t i = 0; i < lines; i++)
                MPT__BF16X2_BASE(load)
                (gathered + i * MPT__AMX_K, mpt__gemm_at(side, outer + o + i, k + at), side->inner,
                    n, side->dtype, 0);
            good &= mpt__amx_pack_dense(to + o / 16 * MPT__AMX_TILE, b, &square, 0, lines, 0, n);
        }
    }
    return good;
}

/* ==== Tiles ====
 *
 * Tiles 0 to 3 are C (two by two), 4 and 5 of A, 6 and 7 of B. */

/* All tiles have 16 rows of 64 bytes. Compilers' own intrinsics let stores to what is loaded here
   move behind the load. Configuration and release take 135 ns. */
static void mpt__amx_bracket(bool begin) {
    struct {
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    if (!begin) {
        __asm__ volatile("tilerelease" ::: "memory");
        return;
    }
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int i = 0; i < 8; i++) config.bytes[i] = 64, config.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

/* Asks Linux for the tile registers, by arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): for
   the process, and before the threads that use them. */
static bool mpt__amx_request(void) {
    long result = 158;
    __asm__ volatile("syscall" : "+a"(result) : "D"(0x1023l), "S"(18l) : "rcx", "r11", "memory");
    return result == 0;
}

enum { MPT__AMX_RATE = 400 };
#define MPT__TILE_CLEAR(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")
#define MPT__TILE_LOAD(t, p, step) \
    __asm__ volatile("{tileloadd (%0,%1), %%tmm" #t "|tileloadd tmm" #t ", [%0+%1]}" ::"r"(p), \
                     "r"((int64_t)(step)) \
                     : "memory")
#define MPT__TILE_SAVE(t, p, step) \
    __asm__ volatile("{tilestored %%tmm" #t ", (%0,%1)|tilestored [%0+%1], tmm" #t "}" ::"r"(p), \
                     "r"((int64_t)(step)) \
                     : "memory")
#define MPT__TILE_MULTIPLY(c, a, b) \
    __asm__ volatile("{tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c "|tdpbf16ps tmm" #c \
                     ", tmm" #a ", tmm" #b "}" :: \
                         : "memory")
#endif

/* C += A B for the tiles of A and B that are loaded. */
#define MPT__AMX_PRODUCT \
    MPT__TILE_MULTIPLY(0, 4, 6); \
    if (across) MPT__TILE_MULTIPLY(1, 4, 7); \
    if (down) MPT__TILE_MULTIPLY(2, 5, 6); \
    if (across && down) MPT__TILE_MULTIPLY(3, 5, 7);
#define MPT__AMX_LOAD_A(part) \
    MPT__TILE_LOAD(4, a + (part)*2 * MPT__AMX_TILE, 64); \
    if (down) MPT__TILE_LOAD(5, a + ((part)*2 + 1) * MPT__AMX_TILE, 64);
#define MPT__AMX_LOAD_B(part) \
    MPT__TILE_LOAD(6, b + (part)*2 * MPT__AMX_TILE, 64); \
    if (across) MPT__TILE_LOAD(7, b + ((part)*2 + 1) * MPT__AMX_TILE, 64);

/* With parts in an order that takes the fewest loads. */
static void mpt__amx_sums(
    int64_t depth, const char *a, const char *b, bool down, bool across, int products) {
    const int64_t step = 2 * MPT__AMX_TILE * (products > 1 ? 2 : 1);
    for (; depth > 0; depth -= MPT__AMX_K, a += step, b += step) {
        if (products > 1) { MPT__AMX_LOAD_A(1) }
        if (products == 4) { MPT__AMX_LOAD_B(1) MPT__AMX_PRODUCT }
        MPT__AMX_LOAD_B(0)
        if (products > 1) { MPT__AMX_PRODUCT }
        MPT__AMX_LOAD_A(0)
        MPT__AMX_PRODUCT
        if (products > 1) { MPT__AMX_LOAD_B(1) MPT__AMX_PRODUCT }
    }
}

/* Where C has no room for it, a tile is summed beside C. */
static void mpt__amx_tile_of(MPT__TILE_TAKES, int products) {
    MPT__ALIGN(64) float beside[MPT__AMX_WIDTH * MPT__AMX_WIDTH];
    const bool down = rows > 16, across = columns > 16, add = (how & MPT__GEMM_ADD) != 0;
    const bool room = (how & MPT__GEMM_ROOM) || (rows == 32 && columns == 32);
    float *to = room ? c : beside;
    const int64_t ld = room ? ldc : MPT__AMX_WIDTH, step = ld * (int64_t)sizeof(float);
    if (room && add) {
        MPT__TILE_LOAD(0, to, step);
        MPT__TILE_LOAD(1, to + 16, step);
        MPT__TILE_LOAD(2, to + 16 * ld, step);
        MPT__TILE_LOAD(3, to + 16 * ld + 16, step);
    } else {
        MPT__TILE_CLEAR(0);
        MPT__TILE_CLEAR(1);
        MPT__TILE_CLEAR(2);
        MPT__TILE_CLEAR(3);
    }
    mpt__amx_sums(depth, a->data, b->data, down, across, products);
    MPT__TILE_SAVE(0, to, step);
    if (across) MPT__TILE_SAVE(1, to + 16, step);
    if (down) MPT__TILE_SAVE(2, to + 16 * ld, step);
    if (across && down) MPT__TILE_SAVE(3, to + 16 * ld + 16, step);
    if (room) return;
    mpt__bf16x2_put_tile(beside, MPT__AMX_WIDTH, c, ldc, rows, columns, add);
}

/* ==== The level ==== */

static const mpt__gemm_level *mpt__amx_choose(const mpt__gemm *g);

/* N products of the parts of two values: 1 where each has one, else 4, or 3 without lo lo. */
#define MPT__AMX_TILE_OF(name, N) \
    static void name(MPT__TILE_TAKES) { mpt__amx_tile_of(MPT__TILE_GIVES, N); }
#define MPT__AMX_PACK_OF(name, PARTS) \
    static bool name(void *panel, bool b, MPT__PACK_TAKES) { \
        return mpt__amx_pack_of(panel, b, MPT__PACK_GIVES, PARTS); \
    }
MPT__AMX_TILE_OF(mpt__amx_tile, 1)
MPT__AMX_TILE_OF(mpt__amx_split_tile, 4)
MPT__AMX_TILE_OF(mpt__amx_fast_tile, 3)
MPT__AMX_PACK_OF(mpt__amx_pack, 1)
MPT__AMX_PACK_OF(mpt__amx_split_pack, 2)

#define MPT__AMX_TABLE(TILE, PACK, BYTES, DEPTH, RATE, REFUSES) \
    { \
        32, 32, 0, BYTES, MPT__AMX_K, DEPTH, 256, RATE, TILE, NULL, NULL, 0, NULL, NULL, PACK, \
            MPT__BF16X2_BASE(load), mpt__bf16x2_finish, mpt__amx_bracket, mpt__amx_choose, \
            REFUSES, false, 0 \
    }
static const mpt__gemm_level mpt__amx_gemm_level =
    MPT__AMX_TABLE(mpt__amx_tile, mpt__amx_pack, 2, 1024, MPT__AMX_RATE, false);
static const mpt__gemm_level mpt__amx_split_gemm_level =
    MPT__AMX_TABLE(mpt__amx_split_tile, mpt__amx_split_pack, 4, 832, MPT__AMX_RATE / 3, true);
static const mpt__gemm_level mpt__amx_fast_gemm_level =
    MPT__AMX_TABLE(mpt__amx_fast_tile, mpt__amx_split_pack, 4, 832, MPT__AMX_RATE / 3, true);

#ifndef MPTRAIN_EMULATE_AMX
/* Whether tiles are faster than FMA kernels, by ns of both: measured for sizes 4 to 1024 in all
   layouts, right within 30 %. */
static bool mpt__amx_pays(const mpt__gemm *g, bool split) {
    const int64_t down = (g->m + 15) / 16, across = (g->n + 15) / 16, deep = (g->k + 31) / 32;
    const int64_t pack = split ? 75 : 45, multiply = split ? 45 : 10, finish = 45;
    const bool dots = g->a.inner == 1 && g->b.inner == 1;
    if (down >= 4 && across >= 4 && deep >= 2) return true;
    return 900 + (down + across) * deep * pack + down * across * (deep * multiply + finish) <
        200 + g->m * g->k / 8 * (dots ? g->n : across * 12) / 3;
}

/* What is too small or too exact for tiles: AVX-512 with the rounding of this room. */
static const mpt__gemm_level mpt__amx_other_gemm_level = {14, 32, 8, 4, 1, 384, 336, 32,
    mpt__avx512_gemm_tile, mpt__avx512_gemm_direct, MPT__GEMM_CONV_OF(mpt__avx512_gemm_direct), 8,
    mpt__avx512_gemm_sweep, mpt__avx512_gemm_dot, mpt__avx512_gemm_pack, mpt__avx512_gemm_load,
    mpt__bf16x2_finish, NULL, NULL, false, true, 8};
#endif

static const mpt__gemm_level *mpt__amx_choose(const mpt__gemm *g) {
    const int a = mpt__gemm_dtype(&g->a), b = mpt__gemm_dtype(&g->b);
    const bool fast = g->fast && a == MPT_F32 && b == MPT_F32;
    const bool split = fast || a == MPT_F16 || b == MPT_F16;
    const bool exact = !fast && (a == MPT_F32 || b == MPT_F32);
#ifdef MPTRAIN_EMULATE_AMX
    if (exact || g->k == 0) return NULL;
#else
    if (exact || !mpt__amx_pays(g, split)) return &mpt__amx_other_gemm_level;
#endif
    return fast ? &mpt__amx_fast_gemm_level
        : split ? &mpt__amx_split_gemm_level
                : &mpt__amx_gemm_level;
}

#define MPT__AMX_LEVEL true, NULL, &mpt__amx_gemm_level, NULL
#else
#define MPT__AMX_LEVEL false, NULL, NULL, NULL
#endif
/* What cpu/level/avx512bf16.c said. */
#undef MPT__V
#undef MPT__WIDTH
#undef MPT__FN
#undef MPT__OP

#endif
