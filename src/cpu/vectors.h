/* ----
 * cpu/vectors.h: what the kernels of all vector levels share.
 * ---- */
#ifndef MPT__CPU_VECTORS_INCLUDED
#define MPT__CPU_VECTORS_INCLUDED

#include "cpu/product.h"

#ifdef MPT__SIMD

/* The keys of Philox's rounds (ground/random.c), two for each. */
static void mpt__philox_keys(uint64_t seed, uint64_t keys[2 * MPT__PHILOX_ROUNDS]) {
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < MPT__PHILOX_ROUNDS; r++) {
        keys[2 * r] = key0, keys[2 * r + 1] = key1;
        key0 += MPT__PHILOX_W0, key1 += MPT__PHILOX_W1;
    }
}

#ifndef MPTRAIN_NO_CONV
/* An element of a copy, of fp32 where it is to be rounded. */
static uint16_t mpt__halves_one(const char *from, int round) {
    const float *x = (const float *)(const void *)from;
    if (round == 0) return *(const uint16_t *)(const void *)from;
    return round == MPT_F16 ? mpt__f32_to_f16(*x) : mpt__f32_to_bf16(*x);
}
#endif

/* ==== Rows of norms ==== */

#ifdef MPT__HAS_NORMS
/* Row r of a part; where there is none, of x, which nobody looks at. */
static MPT__INLINE char *mpt__norm_place(const mpt__norm_block *b, int part, int64_t r) {
    if (b->data[part] == NULL) part = MPT__PART_X;
    return b->data[part] + r * b->step[part];
}

/* Numbers of channels, and nothing but x, dy and out: what there are loops of its own for. */
static bool mpt__norm_plain(const mpt__norm_block *b) {
    return b->mode != MPT__NORM_LINES && !b->relu && b->data[MPT__PART_MORE] == NULL &&
        b->data[MPT__PART_OUT] != NULL && b->data[MPT__PART_REST] == NULL;
}

/* A word of the reference on the elements from i on of some rows: less than 16. */
static MPT__NOINLINE void mpt__norm_rest(
    mpt__norm_fn word, const mpt__norm_block *b, int64_t r, int64_t rows, int64_t i) {
    const int64_t n = b->n - i, size = b->dtype == MPT_F32 ? 4 : 2;
    mpt__real part[MPT__PARTS][16];
    mpt__norm_block one = *b;
    one.rows = 1, one.n = n;
    for (int64_t end = r + rows; r < end; r++) {
        mpt__norm_begin_at(&one, b, r, i);
        for (int k = 0; k < MPT__PARTS; k++) {
            if (b->data[k] == NULL) continue;
            if (k < MPT__PART_OUT)
                mpt__load_real(part[k], mpt__norm_place(b, k, r) + i * size, b->dtype, 0, 1, n);
            one.data[k] = (char *)part[k];
        }
        word(&one);
        for (int k = MPT__PART_OUT; k < MPT__PARTS; k++)
            if (b->data[k] != NULL)
                mpt__store_real(mpt__norm_place(b, k, r) + i * size, b->dtype, 0, 1, part[k], n);
    }
}
#endif

#endif
#endif
