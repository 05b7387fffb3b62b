/* test_dtype.c: fp16, bf16, fp8 against their definition: every code decoded and encoded again,
   every midpoint between two values with its neighbours, all levels of SIMD against the scalar
   functions. MPTRAIN_EXHAUSTIVE=N visits every N-th of the 2^32 floats. */
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include "harness.h"

/* Which of the 2^32 floats to visit: every N-th, with N from the environment or the usual one. */
static uint32_t stride_or(uint32_t usual) {
    const char *value = getenv("MPTRAIN_EXHAUSTIVE");
    int stride = value ? atoi(value) : 0;
    return stride > 0 ? (uint32_t)stride : usual;
}

/* ---- the formats, as numbers ---- */

typedef struct format {
    const char *name;
    int mantissa, bias;
    uint32_t sign;     /* the sign bit */
    uint32_t largest;  /* code of the largest finite value */
    uint32_t overflow; /* code of what lies beyond */
    uint32_t nan;      /* a code of NaN */
    float (*decode)(uint32_t code);
    uint32_t (*encode)(float value);
    long (*walk)(const struct format *f, uint32_t stride);
} format;

static float decode_f16(uint32_t code) { return mpt__f16_to_f32((uint16_t)code); }
static float decode_bf16(uint32_t code) { return mpt__bf16_to_f32((uint16_t)code); }
static uint32_t encode_f16(float value) { return mpt__f32_to_f16(value); }
static uint32_t encode_bf16(float value) { return mpt__f32_to_bf16(value); }
#ifndef MPTRAIN_NO_FP8
static float decode_e4m3(uint32_t code) { return mpt__f8e4m3_to_f32((uint8_t)code); }
static float decode_e5m2(uint32_t code) { return mpt__f8e5m2_to_f32((uint8_t)code); }
static uint32_t saturate_e4m3(float v) { return mpt__f32_to_f8e4m3(v, MPT__F8_SATFINITE); }
static uint32_t encode_e4m3(float v) { return mpt__f32_to_f8e4m3(v, MPT__F8_NONSAT); }
static uint32_t saturate_e5m2(float v) { return mpt__f32_to_f8e5m2(v, MPT__F8_SATFINITE); }
static uint32_t encode_e5m2(float v) { return mpt__f32_to_f8e5m2(v, MPT__F8_NONSAT); }
#endif

/* The bits of the float that lies `eighths` (0 to 7) eighths of the way from `code` to the value
   above it, which for the largest finite code is what the format would have next. */
static uint32_t bits_between(const format *f, uint32_t code, uint32_t eighths) {
    uint64_t fraction = (uint64_t)(code & ((1u << f->mantissa) - 1)) * 8 + eighths;
    int exponent = (int)(code >> f->mantissa), point = f->mantissa + 3;
    if (exponent > 0) fraction += UINT64_C(8) << f->mantissa;
    if (exponent == 0) exponent = 1;
    exponent += 127 - f->bias; /* value = fraction * 2^(exponent - 127 - point) */
    if (fraction == 0) return 0;
    while (!(fraction >> point) && exponent > 1) fraction <<= 1, exponent--;
    if (!(fraction >> point)) exponent = 0;
    fraction &= (UINT64_C(1) << point) - 1;
    return (uint32_t)exponent << 23 | (uint32_t)(fraction << (23 - point));
}

/* The smallest positive float that must become more than `code`. */
static uint32_t threshold(const format *f, uint32_t code) {
    return bits_between(f, code, 4) + (code & 1 ? 0 : 1);
}

/* Rounding is monotone, so between its thresholds every float has the same code. Walks up through
   the positive floats, finite and infinite, by `stride`, and checks both signs. */
static MPT__FORCE_INLINE long walk(const format *f, uint32_t (*encode)(float), uint32_t stride) {
    long wrong = 0;
    uint64_t at = 0;
    for (uint32_t code = 0; code <= f->largest + 1; code++) {
        const uint32_t want = code <= f->largest ? code : f->overflow, sign = f->sign;
        const uint64_t end = code <= f->largest ? threshold(f, code) : 0x7f800001u;
        uint32_t differing = 0;
        for (; at < end; at += stride) {
            uint32_t bits = (uint32_t)at;
            differing += encode(mpt__f32_from_bits(bits)) != want;
            differing += encode(mpt__f32_from_bits(bits | 0x80000000u)) != (want | sign);
        }
        wrong += (long)differing;
    }
    return wrong;
}

/* One walk for each format, so that none of its 2^32 conversions is a call. */
#define WALK(NAME, encode) \
    static long NAME(const format *f, uint32_t stride) { return walk(f, encode, stride); }
WALK(walk_f16, encode_f16)
WALK(walk_bf16, encode_bf16)
#ifndef MPTRAIN_NO_FP8
WALK(walk_e4m3, encode_e4m3)
WALK(walk_saturated_e4m3, saturate_e4m3)
WALK(walk_e5m2, encode_e5m2)
WALK(walk_saturated_e5m2, saturate_e5m2)
#endif

static const format formats[] = {
    {"f16", 10, 15, 0x8000, 0x7bff, 0x7c00, 0x7e00, decode_f16, encode_f16, walk_f16},
    {"bf16", 7, 127, 0x8000, 0x7f7f, 0x7f80, 0x7fc0, decode_bf16, encode_bf16, walk_bf16},
#ifndef MPTRAIN_NO_FP8
    {"e4m3", 3, 7, 0x80, 0x7e, 0x7f, 0x7f, decode_e4m3, encode_e4m3, walk_e4m3},
    {"e4m3 saturating", 3, 7, 0x80, 0x7e, 0x7e, 0x7f, decode_e4m3, saturate_e4m3,
     walk_saturated_e4m3},
    {"e5m2", 2, 15, 0x80, 0x7b, 0x7c, 0x7f, decode_e5m2, encode_e5m2, walk_e5m2},
    {"e5m2 saturating", 2, 15, 0x80, 0x7b, 0x7b, 0x7f, decode_e5m2, saturate_e5m2,
     walk_saturated_e5m2},
#endif
};
enum { FORMATS = sizeof formats / sizeof *formats };

static int is_nan_code(const format *f, uint32_t code) {
    uint32_t magnitude = code & (f->sign - 1);
    return f->mantissa == 3 ? magnitude == 0x7f : magnitude > f->largest + 1;
}

TEST(every_code_decodes_to_its_value_and_back) {
    for (int k = 0; k < FORMATS; k++) {
        const format *f = &formats[k];
        long wrong = 0;
        for (uint32_t code = 0; code < 2 * f->sign; code++) {
            float value = f->decode(code);
            uint32_t bits = mpt__f32_bits(value), magnitude = code & (f->sign - 1);
            if (is_nan_code(f, code)) {
                wrong += !mpt__f32_is_nan(value) || !is_nan_code(f, f->encode(value));
            } else if (magnitude > f->largest) {
                wrong += (bits & 0x7fffffffu) != 0x7f800000u || (bits >> 31) != (code >= f->sign);
            } else {
                uint32_t sign = code >= f->sign ? 0x80000000u : 0;
                wrong += bits != (bits_between(f, magnitude, 0) | sign);
                wrong += f->encode(value) != code;
            }
        }
        CHECK_EQ_INT(wrong, 0);
        if (wrong) printf(" in %s", f->name);
    }
}

TEST(every_midpoint_and_its_neighbours_round_to_nearest_even) {
    for (int k = 0; k < FORMATS; k++) {
        const format *f = &formats[k];
        long wrong = 0;
        for (uint32_t code = 0; code <= f->largest; code++) {
            uint32_t above = code == f->largest ? f->overflow : code + 1;
            uint32_t middle = bits_between(f, code, 4);
            uint32_t even = code & 1 ? above : code;
            for (uint32_t sign = 0; sign < 2; sign++) {
                uint32_t s = sign << 31, signed_code = sign * f->sign;
                wrong += f->encode(mpt__f32_from_bits((middle - 1) | s)) != (code | signed_code);
                wrong += f->encode(mpt__f32_from_bits(middle | s)) != (even | signed_code);
                wrong += f->encode(mpt__f32_from_bits((middle + 1) | s)) != (above | signed_code);
            }
        }
        CHECK_EQ_INT(wrong, 0);
        if (wrong) printf(" in %s", f->name);
    }
}

TEST(floats_between_round_likewise) {
    for (int k = 0; k < FORMATS; k++)
        CHECK_EQ_INT(formats[k].walk(&formats[k], stride_or(1021)), 0);
}

TEST(every_nan_stays_a_nan) {
    for (int k = 0; k < FORMATS; k++) {
        long wrong = 0;
        for (uint64_t at = 0x7f800001u; at <= 0x7fffffffu; at += stride_or(257)) {
            float plus = mpt__f32_from_bits((uint32_t)at);
            float minus = mpt__f32_from_bits((uint32_t)at | 0x80000000u);
            wrong += !is_nan_code(&formats[k], formats[k].encode(plus));
            wrong += !is_nan_code(&formats[k], formats[k].encode(minus));
        }
        CHECK_EQ_INT(wrong, 0);
    }
    /* Also where chance rounds: no word may carry into the exponent. */
    for (uint32_t word = 0; word < 32; word++) {
        const float nan = mpt__f32_from_bits(word & 1 ? 0xff800001u : 0x7fffffffu);
        CHECK_EQ_INT(mpt__f32_to_bf16_stochastic(nan, word * 0x08421085u), 0x7fc0);
    }
}

/* How many positive floats up to infinity get at least `code`, found by bisection. */
static uint32_t count_from(const format *f, uint32_t code) {
    uint32_t low = 0, high = 0x7f800001u;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (f->encode(mpt__f32_from_bits(middle)) >= code)
            high = middle;
        else
            low = middle + 1;
    }
    return 0x7f800001u - low;
}

TEST(known_values) {
    CHECK_EQ_INT(mpt__f32_to_f16(2049.0f), 0x6800);
    CHECK_EQ_INT(mpt__f32_to_f16(2051.0f), 0x6802);
    CHECK_EQ_INT(mpt__f32_to_f16(1.0f / 3.0f), 0x3555);
    CHECK_EQ_INT(mpt__f32_to_f16(1e-8f), 0);
    CHECK_EQ_INT(mpt__f32_to_f16(mpt__f32_from_bits(0x387fffffu)), 0x0400);
    CHECK_EQ_INT(mpt__f32_to_f16(65504.0f), 0x7bff);
    CHECK_EQ_INT(mpt__f32_to_f16(65519.996f), 0x7bff);
    CHECK_EQ_INT(mpt__f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQ_INT(mpt__f32_to_f16(-0.0f), 0x8000);
    CHECK_EQ_INT(mpt__f32_to_f16(mpt__f32_from_bits(0xff800001u)), 0xfe00);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x3f808000u)), 0x3f80);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x3f818000u)), 0x3f82);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x3f808001u)), 0x3f81);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x00018000u)), 0x0002);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x7f800001u)), 0x7fc0);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0xffc12345u)), 0x7fc0);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x7f7f8000u)), 0x7f80);
    CHECK_EQ_INT(mpt__f32_to_bf16(mpt__f32_from_bits(0x7f7f7fffu)), 0x7f7f);
    /* A double goes through float, as in PyTorch: here onto a tie, and from there to even. */
    CHECK_EQ_INT(mpt__f32_to_f16((float)(1.0 + 1.0 / 2048 + 1.0 / 1099511627776.0)), 0x3c00);
}

TEST(known_values_fp8) {
#ifndef MPTRAIN_NO_FP8
    float inf = mpt__f32_from_bits(0x7f800000u);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(17.0f, MPT__F8_NONSAT), 0x58);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(19.0f, MPT__F8_NONSAT), 0x5a);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(3.0f / 1024, MPT__F8_NONSAT), 0x02);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(464.0f, MPT__F8_NONSAT), 0x7e);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(464.00003f, MPT__F8_NONSAT), 0x7f);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(-1e30f, MPT__F8_SATFINITE), 0xfe);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(inf, MPT__F8_SATFINITE), 0x7e);
    CHECK_EQ_INT(mpt__f32_to_f8e4m3(inf, MPT__F8_NONSAT), 0x7f);
    CHECK_EQ_INT(mpt__f32_to_f8e5m2(3.0f / 131072, MPT__F8_NONSAT), 0x02);
    CHECK_EQ_INT(mpt__f32_to_f8e5m2(61440.0f, MPT__F8_NONSAT), 0x7c);
    CHECK_EQ_INT(mpt__f32_to_f8e5m2(-61440.0f, MPT__F8_SATFINITE), 0xfb);
    CHECK_EQ_INT(mpt__f32_to_f8e5m2(inf, MPT__F8_SATFINITE), 0x7b);
    CHECK_EQ_INT(count_from(&formats[2], 0x7f), 999817216);
    CHECK_EQ_INT(0x7f800001 - count_from(&formats[2], 1), 981467137);
    CHECK_EQ_INT(count_from(&formats[4], 0x7c), 940572673);
#else
    (void)count_from;
    SKIP("fp8 (MPTRAIN_NO_FP8)");
#endif
}

/* ---- SIMD ---- */

static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AVX2, MPT_ISA_AVX512, MPT_ISA_NEON};
enum { LEVELS = sizeof levels / sizeof *levels, BLOCK = 4096 + 29 };

static const mpt__convert_table *convert_of(mpt_isa isa) {
    const mpt__routines *routines = mpt__cpu_find_level(isa)->routines;
    return routines ? routines->convert : &mpt__convert_portable;
}

/* Converts blocks of odd length at every level, so that vectors and tails both work, starting one
   element off alignment; compares with the scalar functions on every bit. */
static long compare_from_f32(uint32_t stride) {
    static float from[BLOCK + 1];
    static uint16_t half[BLOCK + 1], brain[BLOCK + 1], want_half[BLOCK], want_brain[BLOCK];
    const uint32_t features = mpt__cpu_features();
    long wrong = 0;
    for (uint64_t start = 0; start < UINT64_C(1) << 32; start += (uint64_t)BLOCK * stride) {
        for (uint32_t i = 0; i < BLOCK; i++) {
            from[i + 1] = mpt__f32_from_bits((uint32_t)start + i * stride);
            want_half[i] = mpt__f32_to_f16(from[i + 1]);
            want_brain[i] = mpt__f32_to_bf16(from[i + 1]);
        }
        for (int level = 0; level < LEVELS; level++) {
            const mpt__convert_table *table = convert_of(levels[level]);
            if (!mpt__isa_supported(levels[level], features)) continue;
            table->f32_to_f16(from + 1, half + 1, BLOCK);
            table->f32_to_bf16(from + 1, brain + 1, BLOCK);
            wrong += memcmp(half + 1, want_half, sizeof want_half) != 0;
            wrong += memcmp(brain + 1, want_brain, sizeof want_brain) != 0;
        }
    }
    return wrong;
}

static long compare_to_f32(const mpt__convert_table *table) {
    static uint16_t codes[65536];
    static float half[65536], brain[65536];
    long wrong = 0;
    for (uint32_t code = 0; code < 65536; code++) codes[code] = (uint16_t)code;
    table->f16_to_f32(codes, half, 65536);
    table->bf16_to_f32(codes, brain, 65536);
    for (uint32_t code = 0; code < 65536; code++) {
        wrong += mpt__f32_bits(half[code]) != mpt__f32_bits(mpt__f16_to_f32((uint16_t)code));
        wrong += mpt__f32_bits(brain[code]) != code << 16;
    }
    return wrong;
}

/* Lengths 0 to 70 must leave what lies behind them alone. */
static long check_lengths(const mpt__convert_table *table) {
    long wrong = 0;
    for (size_t n = 0; n <= 70; n++) {
        float from[70], wide[72];
        uint16_t codes[70], half[72];
        for (size_t i = 0; i < 70; i++) from[i] = (float)i, codes[i] = mpt__f32_to_f16((float)i);
        for (size_t i = 0; i < 72; i++) wide[i] = -1.0f, half[i] = 0xabcd;
        table->f32_to_f16(from, half, n);
        for (size_t i = 0; i < 72; i++) wrong += half[i] != (i < n ? codes[i] : 0xabcd);
        table->f16_to_f32(codes, wide, n);
        for (size_t i = 0; i < 72; i++) wrong += wide[i] != (i < n ? (float)i : -1.0f);
        for (size_t i = 0; i < 70; i++) codes[i] = mpt__f32_to_bf16((float)i);
        for (size_t i = 0; i < 72; i++) wide[i] = -1.0f, half[i] = 0xabcd;
        table->f32_to_bf16(from, half, n);
        for (size_t i = 0; i < 72; i++) wrong += half[i] != (i < n ? codes[i] : 0xabcd);
        table->bf16_to_f32(codes, wide, n);
        for (size_t i = 0; i < 72; i++) wrong += wide[i] != (i < n ? (float)i : -1.0f);
    }
    return wrong;
}

/* Runs `check` at every level; the flush modes of the CPU must make no difference. */
TEST(bulk_conversions_give_the_scalar_bits) {
    CHECK_EQ_INT(compare_from_f32(stride_or(509)), 0);
    for (int i = 0; i < LEVELS; i++) {
        const mpt__convert_table *table = convert_of(levels[i]);
        if (!mpt__isa_supported(levels[i], mpt__cpu_features())) continue;
        CHECK_EQ_INT(compare_to_f32(table), 0);
        CHECK_EQ_INT(check_lengths(table), 0);
    }
}

TEST(flush_modes_do_not_reach_conversions) {
#if (defined(MPT__X86) || defined(MPT__ARM64)) && (defined(__GNUC__) || defined(__clang__))
#ifdef MPT__X86
    uint32_t before, flushing;
    __asm__ volatile("stmxcsr %0" : "=m"(before));
    flushing = before | 0x8040u; /* FTZ, DAZ */
    __asm__ volatile("ldmxcsr %0" ::"m"(flushing));
#else
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" ::"r"(before | 1u << 24)); /* FZ */
#endif
    long wrong = 0;
    for (int i = 0; i < LEVELS; i++) {
        const mpt__convert_table *table = convert_of(levels[i]);
        if (!mpt__isa_supported(levels[i], mpt__cpu_features())) continue;
        wrong += compare_to_f32(table);
    }
    wrong += compare_from_f32(10007);
    wrong += mpt__f32_to_bf16(mpt__f32_from_bits(0x00018000u)) != 2;
    wrong += mpt__f32_to_f16(mpt__f32_from_bits(0x33800000u)) != 1;
#ifdef MPT__X86
    __asm__ volatile("ldmxcsr %0" ::"m"(before));
#else
    __asm__ volatile("msr fpcr, %0" ::"r"(before));
#endif
    CHECK_EQ_INT(wrong, 0);
#else
    SKIP("a way to set flush-to-zero");
#endif
}

/* Every byte at every place of arrays of every length to 290, at odd addresses. */
TEST(look_ups_take_every_entry) {
    static const size_t room = 292;
    float wide[256];
    uint16_t half[256];
    uint8_t from[292];
    for (uint32_t i = 0; i < 256; i++) {
        wide[i] = mpt__f32_from_bits(0x3f800000u + i * 66051u);
        half[i] = (uint16_t)(i * 257u ^ 0x5aa5u);
    }
    for (int level = 0; level < LEVELS; level++) {
        const mpt__convert_table *table = convert_of(levels[level]);
        long wrong = 0;
        if (!mpt__isa_supported(levels[level], mpt__cpu_features())) continue;
        for (size_t n = 0; n < room; n++) {
            float f[292];
            uint16_t h[292];
            for (size_t i = 0; i < room; i++) {
                from[i] = (uint8_t)(i * 5 + n);
                f[i] = -1.0f, h[i] = 0xabcd;
            }
            mpt__portable_u8_to_f32(from + 1, f + 1, n ? n - 1 : 0, wide);
            table->u8_to_half(from + 1, h + 1, n ? n - 1 : 0, half);
            for (size_t i = 0; i < room; i++) {
                bool inside = i > 0 && i < n;
                wrong += f[i] != (inside ? wide[from[i]] : -1.0f);
                wrong += h[i] != (inside ? half[from[i]] : 0xabcd);
            }
        }
        CHECK_EQ_INT(wrong, 0);
    }
}

/* Each special value at each place of an array of each length must be seen. */
TEST(all_finite_sees_every_place) {
    static const uint32_t specials[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u};
    for (int level = 0; level < LEVELS; level++) {
        const mpt__convert_table *table = convert_of(levels[level]);
        long wrong = 0;
        if (!mpt__isa_supported(levels[level], mpt__cpu_features())) continue;
        for (size_t n = 0; n < 300; n += n < 40 ? 1 : 37) {
            float wide[300];
            uint16_t half[300], brain[300];
            for (size_t i = 0; i < n; i++) {
                wide[i] = mpt__f32_from_bits(i % 2 ? 0xff7fffffu : 1u);
                half[i] = i % 2 ? 0xfbff : 1;
                brain[i] = i % 2 ? 0xff7f : 1;
            }
            wrong += !table->all_finite_f32(wide, n) + !table->all_finite_f16(half, n) +
                     !table->all_finite_bf16(brain, n);
            for (size_t at = 0; at < n; at++) {
                float was = wide[at];
                uint16_t was_half = half[at], was_brain = brain[at];
                wide[at] = mpt__f32_from_bits(specials[at % 4]);
                half[at] = (uint16_t)(at % 4 == 3 ? 0x7c01 : at % 2 ? 0xfc00 : 0x7c00);
                brain[at] = (uint16_t)(at % 4 == 3 ? 0x7f81 : at % 2 ? 0xff80 : 0x7f80);
                wrong += table->all_finite_f32(wide, n) + table->all_finite_f16(half, n) +
                         table->all_finite_bf16(brain, n);
                wide[at] = was;
                half[at] = was_half;
                brain[at] = was_brain;
            }
        }
        CHECK_EQ_INT(wrong, 0);
    }
}

TEST(the_table_of_dtypes_is_right) {
    CHECK_EQ_INT(sizeof mpt__dtype_info / sizeof *mpt__dtype_info, MPT_DTYPE_COUNT);
    CHECK_EQ_STR(mpt__dtype_info[MPT_F32].file_name, "F32");
    CHECK_EQ_STR(mpt__dtype_info[MPT_BF16].name, "bfloat16");
    CHECK_EQ_STR(mpt__dtype_info[MPT_BOOL].file_name, "BOOL");
    CHECK_EQ_INT(mpt__dtype_info[MPT_I64].bytes, 8);
    CHECK(mpt__dtype_info[MPT_F16].max_finite == (double)decode_f16(0x7bff));
    CHECK(mpt__dtype_info[MPT_BF16].max_finite == (double)decode_bf16(0x7f7f));
    CHECK(mpt__dtype_info[MPT_F16].min_normal == (double)decode_f16(0x0400));
    CHECK(mpt__dtype_info[MPT_BF16].min_normal == (double)decode_bf16(0x0080));
    CHECK(mpt__dtype_info[MPT_F16].epsilon == (double)decode_f16(0x3c01) - 1.0);
    CHECK(mpt__dtype_info[MPT_BF16].epsilon == (double)decode_bf16(0x3f81) - 1.0);
    CHECK(mpt__dtype_info[MPT_F32].max_finite == (double)mpt__f32_from_bits(0x7f7fffffu));
    CHECK(mpt__f64_bits(mpt__dtype_info[MPT_F64].max_finite) == UINT64_C(0x7fefffffffffffff));
    CHECK(mpt__f64_bits(mpt__dtype_info[MPT_F64].min_normal) == UINT64_C(0x0010000000000000));
}

TEST(cpu_features_are_consistent) {
    uint32_t features = mpt__cpu_features();
    if (features & MPT__CPU_AVX512) CHECK(features & MPT__CPU_AVX2);
    if (features & MPT__CPU_AMX_BF16) CHECK(features & MPT__CPU_AMX_TILE);
    CHECK(mpt__isa_supported(MPT_ISA_REF, 0) && !mpt__isa_supported(MPT_ISA_AVX2, 0));
    CHECK(!mpt__isa_supported(MPT_ISA_UNKNOWN, UINT32_MAX));
    CHECK_EQ_INT(mpt__cpu_isa_of_name(""), MPT_ISA_AUTO);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("ref"), MPT_ISA_REF);
    CHECK_EQ_INT(mpt__cpu_isa_of_name("sse"), MPT_ISA_UNKNOWN);
    CHECK_EQ_INT(mpt__cpu_best(0, true), MPT_ISA_REF);
#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
    const uint32_t most = MPT__CPU_AVX2 | MPT__CPU_AVX512; /* of a CPU of ours to make up */
    CHECK_EQ_INT(mpt__cpu_best(MPT__CPU_AVX2, true), MPT_ISA_AVX2);
    CHECK_EQ_INT(mpt__cpu_best(most | MPT__CPU_AMX_TILE | MPT__CPU_AMX_BF16, false),
                 MPT_ISA_AVX512);
#endif
#ifdef MPT__HAS_NEON
    CHECK(features & MPT__CPU_NEON);
    CHECK_EQ_INT(mpt__cpu_best(MPT__CPU_NEON, true), MPT_ISA_NEON);
#endif
#ifdef MPT__HAS_BF16X4
    CHECK_EQ_INT(mpt__cpu_best(MPT__CPU_NEON | MPT__CPU_NEON_BF16, true), MPT_ISA_NEON_BF16);
    CHECK(!mpt__isa_supported(MPT_ISA_NEON_BF16, MPT__CPU_NEON));
#endif
#if (defined(__GNUC__) || defined(__clang__)) && defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
    CHECK_EQ_INT((features & MPT__CPU_AVX2) != 0, __builtin_cpu_supports("avx2") != 0);
    CHECK_EQ_INT((features & MPT__CPU_AVX512) != 0, __builtin_cpu_supports("avx512bw") != 0);
#endif
}

TEST_TABLE = {T(every_code_decodes_to_its_value_and_back),
              T(every_midpoint_and_its_neighbours_round_to_nearest_even),
              T(floats_between_round_likewise),
              T(every_nan_stays_a_nan),
              T(known_values),
              T(known_values_fp8),
              T(bulk_conversions_give_the_scalar_bits),
              T(flush_modes_do_not_reach_conversions),
              T(look_ups_take_every_entry),
              T(all_finite_sees_every_place),
              T(the_table_of_dtypes_is_right),
              T(cpu_features_are_consistent)};
TEST_MAIN
