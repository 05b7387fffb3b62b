/* ----
 * ground/convert.c: bulk conversions between fp32, fp16 and bf16, and bulk tests for inf and NaN,
 * as portable C. Vectors do the same with the same bits (cpu/template/convert.c).
 * ---- */
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
            MPT__EIGHT(MPT__LOOK_UP_AT) \
        } \
        for (; i < n; i++) to[i] = table[from[i]]; \
    }
#define MPT__EIGHT(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define MPT__LOOK_UP_AT(k) to[i + k] = table[from[i + k]];
MPT__LOOK_UP(u8_to_f32, float)
MPT__LOOK_UP(u8_to_half, uint16_t)

/* An exponent of all ones and `one` in its lowest bit give a carry to the sign, in each half of a
   word for 16-bit formats. */
static bool mpt__portable_finite(const void *values, size_t bytes, uint32_t exponent,
                                 uint32_t one) {
    const char *at = (const char *)values;
    uint32_t sum = 0;
    uint32_t word = 0;
    for (; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        sum |= (word & exponent) + one;
    }
    word = 0;
    if (bytes > 0) memcpy(&word, at, bytes);
    sum |= (word & exponent) + one;
    return (sum & 0x80008000u) == 0;
}
static bool mpt__portable_finite_f32(const float *values, size_t n) {
    return mpt__portable_finite(values, 4 * n, 0x7f800000, 0x00800000);
}
static bool mpt__portable_finite_f16(const uint16_t *values, size_t n) {
    return mpt__portable_finite(values, 2 * n, 0x7c007c00, 0x04000400);
}
static bool mpt__portable_finite_bf16(const uint16_t *values, size_t n) {
    return mpt__portable_finite(values, 2 * n, 0x7f807f80, 0x00800080);
}

static const mpt__convert_table mpt__convert_portable = {
    mpt__portable_f16_to_f32,  mpt__portable_bf16_to_f32, mpt__portable_f32_to_f16,
    mpt__portable_f32_to_bf16, mpt__portable_finite_f32,  mpt__portable_finite_f16,
    mpt__portable_finite_bf16, mpt__portable_u8_to_half};

#endif
