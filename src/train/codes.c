/* ----
 * train/codes.c: moments of 8 bits: the table of codes, and where in a state the moments of each
 * parameter lie.
 * ---- */
#ifndef MPT__TRAIN_CODES_INCLUDED
#define MPT__TRAIN_CODES_INCLUDED

#include "train/rates.c"

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__coded(optimizer) false
#define mpt__places_grow(optimizer, state) ((void)0)
#define mpt__places_lack(optimizer, state) false
#define mpt__place_take(optimizer, state, item, numel) ((void)0)
#define mpt__place_show(optimizer, item, row) ((void)0)
#define mpt__codes_grow(ctx, optimizer, state, larger, k) false
#define mpt__codes_show(launch, optimizer, state, position) ((void)0)
#else
#define mpt__coded(optimizer) ((optimizer)->codes != 0)

/* Bits of the last fp32 that is no nearer to b than to a. */
static uint32_t mpt__code_middle(float a, float b) {
    const double middle = ((double)a + (double)b) / 2;
    const float rounded = (float)middle;
    return mpt__f32_bits(rounded) - ((double)rounded > middle);
}

/* A codebook: between powers of ten, the middles of 2^i equal parts, or of twice as many. The
   lowest line rounds to no number below its first. */
static void mpt__codebook(int32_t *book, int is_unsigned) {
    float size[257] = {0}, *vector = (float *)(void *)(book + MPT__CODE_LIMIT);
    int n = 1;
    double power = 1e7;
    for (int i = 0; i < 8; i++, power /= 10) {
        const int parts = 1 << (i + is_unsigned), count = i < 7 ? parts : 1, first = n;
        const double below = i < 7 ? 2 * parts * power : 2 * parts + 9;
        for (int k = 0; k < count; k++) size[n++] = (float)((2 * parts + 18 * k + 9) / below);
        for (int k = i; k < 16; k += 8) {
            vector[k] = mpt__f32_from_bits(mpt__code_middle(size[first - 1], size[first]));
            vector[16 + k] = i < 7 ? (float)(parts * power / 9) : 0;
            vector[32 + k] = (float)(i < 7 ? parts - parts / 9.0 - 0.5 : parts);
            if (i == 0) vector[16 + k] = 18e6f / 11, vector[32 + k] = (float)parts - 0.4f;
            vector[48 + k] = (float)(parts + count - 1);
            vector[64 + (k + 7 - 7 * is_unsigned) % 16] = (float)below;
        }
    }
    for (int k = 0; k < n; k++) {
        const int at = is_unsigned ? k : MPT__CODE_ZERO + k;
        book[at] = (int32_t)mpt__f32_bits(size[k]);
        if (k > 0 && !is_unsigned && k <= MPT__CODE_ZERO)
            book[MPT__CODE_ZERO - k] = (int32_t)mpt__f32_bits(-size[k]);
    }
    for (int cell = 0, k = 0; cell < MPT__CODE_LIMIT - 256; cell++) {
        const uint32_t first = (uint32_t)(cell + MPT__CODE_LEAST) << 16;
        while (k + 1 < n && mpt__code_middle(size[k], size[k + 1]) < first) k++;
        const uint32_t last = k + 1 < n ? mpt__code_middle(size[k], size[k + 1]) : UINT32_MAX;
        book[256 + cell] =
            (int32_t)((uint32_t)k << 16 | (last >> 16 == first >> 16 ? last & 0xffff : 0xffff));
    }
}

/* The table of both, as a storage; 0 on error. */
static uint32_t mpt__codebooks(mpt_context *ctx) {
    const int64_t bytes = 2 * MPT__CODE_BOOK * (int64_t)sizeof(int32_t);
    int32_t *books = (int32_t *)mpt__host_new(ctx, (size_t)bytes);
    if (!books) return 0;
    mpt__codebook(books, 0);
    mpt__codebook(books + MPT__CODE_BOOK, 1);
    uint32_t storage =
        mpt__storage_new(ctx, bytes, MPT_MEMORY_WORKSPACE, MPT__FROM_DEVICE, false);
    if (storage) mpt__upload(ctx, storage, 0, books, bytes);
    mpt__host_free(ctx, books, (size_t)bytes);
    return storage;
}

enum { MPT__CODED_FROM = 4096 }; /* elements; smaller tensors, such as biases, keep fp32 */

static int64_t mpt__code_blocks(int64_t n) { return (n + MPT__CODE_BLOCK - 1) / MPT__CODE_BLOCK; }

/* Bytes of a moment of n elements. */
static int64_t mpt__moment_bytes(int64_t n) {
    const int64_t bytes =
        n < MPT__CODED_FROM ? 4 * n : mpt__code_peaks(n) + 4 * mpt__code_blocks(n);
    return (bytes + 63) / 64 * 64;
}

/* ==== Places ==== */

static void mpt__places_grow(const mpt__optimizer *optimizer, mpt__optim_state *state) {
    if (mpt__coded(optimizer) && state->used + state->wanted > state->bytes)
        state->bytes = state->used + state->wanted;
}

/* Whether a state has no room for what is wanted. */
static bool mpt__places_lack(const mpt__optimizer *optimizer, const mpt__optim_state *state) {
    return mpt__coded(optimizer) && state->used + state->wanted > state->bytes;
}

static void mpt__place_take(const mpt__optimizer *optimizer, mpt__optim_state *state,
    mpt__optim_item *item, int64_t numel) {
    if (!mpt__coded(optimizer)) return;
    item->place = numel < MPT__CODED_FROM ? state->used : ~state->used;
    state->used += mpt__moment_bytes(numel);
}

static void mpt__place_show(
    const mpt__optimizer *optimizer, const mpt__optim_item *item, int64_t *row) {
    if (mpt__coded(optimizer)) row[MPT__SEGMENT_PLACE] = item->place;
}

static void mpt__codes_show(mpt__launch *launch, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, const int *position) {
    if (!mpt__coded(optimizer)) return;
    for (int k = 0; k < MPT__MASTER; k++)
        if (state->mirror[k])
            mpt__operand_on(
                launch, position[k], state->mirror[k], MPT_U8, 0, state->bytes, MPT__READ_WRITE);
    mpt__operand_on(launch, 9, optimizer->codes, MPT_I32, 0, 2 * MPT__CODE_BOOK, MPT__READ);
}

#endif

#endif
