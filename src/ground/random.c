/* ----
 * ground/random.c: counter-based random numbers and 64-bit hashes.
 *
 * Pure functions. The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011): a key and an element index give 32 random bits, whatever was drawn before,
 * by however many threads, in chunks of whatever size, on whatever CPU.
 * ---- */
#ifndef MPT__GROUND_RANDOM_INCLUDED
#define MPT__GROUND_RANDOM_INCLUDED

#include <math.h>

#include "ground/base.c"
#include "waist/launch.h"

/* ==== Hashes ==== */

#define MPT__COMMON static MPT__INLINE
#include "waist/arithmetic.inl"

static MPT__INLINE uint64_t mpt__load_little_endian(const uint8_t *p, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

/* Hashes n bytes; the same on little and big endian machines. `seed` may be an earlier hash, which
 * chains the two. */
static uint64_t mpt__hash_bytes(uint64_t seed, const void *data, size_t n) {
    const uint8_t *p = (const uint8_t *)data;
    uint64_t hash = mpt__hash_u64(seed, (uint64_t)n);
    for (; n >= 8; n -= 8, p += 8)
        hash = mpt__hash_mix(hash + mpt__load_little_endian(p, 8)) ^ MPT__HASH_GOLDEN;
    return n > 0 ? mpt__hash_mix(hash + mpt__load_little_endian(p, n)) : hash;
}

/* ==== Random words ==== */

/* Names one sequence of random words: the seed of the context, a stream (say, the hash of a
 * module's path) and the number of the call within it. Different keys give unrelated sequences;
 * among n of them two are equal with probability n^2 / 2^65. */
typedef struct {
    uint64_t seed;
    uint64_t stream;
    uint64_t call;
} mpt__rng_key;

/* Writes words first .. first+n-1 of the key's sequence; word i is word i % 4 of block i / 4. */
static void mpt__random_bits(mpt__rng_key key, uint64_t first, size_t n, uint32_t *out) {
    uint64_t sequence = mpt__hash_u64(key.stream, key.call);
    while (n > 0) {
        uint32_t words[4];
        size_t skip = (size_t)(first & 3);
        size_t take = 4 - skip < n ? 4 - skip : n;
        mpt__philox(key.seed, sequence, first >> 2, words);
        for (size_t i = 0; i < take; i++) out[i] = words[skip + i];
        out += take;
        first += take;
        n -= take;
    }
}

/* ==== Distributions (the normal one is in ground/math.c, which has its logarithm and sine) ==== */

/* The top 24 bits as a float in [0, 1): a multiple of 2^-24. */
static MPT__INLINE float mpt__uniform_from_bits(uint32_t bits) {
    return (float)(bits >> 8) * (1.0f / 16777216.0f);
}

/* Elements first .. first+n-1 of a sequence uniform in [low, high). low < high; both and their
 * difference are finite. Element i depends on word i of the key alone. */
static void mpt__random_uniform(
    mpt__rng_key key, uint64_t first, size_t n, float low, float high, float *out) {
    float range = high - low;
    uint32_t words[64];
    for (size_t done = 0; done < n;) {
        size_t take = n - done < 64 ? n - done : 64;
        mpt__random_bits(key, first + done, take, words);
        for (size_t i = 0; i < take; i++) {
            /* Assigned step by step: within an expression a compiler may keep more than float. */
            float offset = range * mpt__uniform_from_bits(words[i]);
            float value = low + offset;
            /* The sum may round up to high, which is not in the interval. */
            out[done + i] = value < high ? value : low;
        }
        done += take;
    }
}

/* The low half of the 128-bit product of a and b, and its high half. */
static MPT__INLINE uint64_t mpt__multiply_u64(uint64_t a, uint64_t b, uint64_t *high) {
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t low = a0 * b0;
    uint64_t middle = a1 * b0 + (low >> 32);
    uint64_t middle2 = a0 * b1 + (middle & 0xffffffffu);
    *high = a1 * b1 + (middle >> 32) + (middle2 >> 32);
    return middle2 << 32 | (low & 0xffffffffu);
}

/* Element `index` of a sequence of integers in [0, bound), bound >= 1, each exactly equally likely
 * (Lemire, "Fast random integer generation in an interval", 2019). Uses block `index` of the key,
 * and that of further sequences derived from it in the rare case that both its tries are rejected.
 */
static MPT__FORCE_INLINE uint64_t mpt__random_below(
    mpt__rng_key key, uint64_t index, uint64_t bound) {
    uint64_t sequence = mpt__hash_u64(key.stream, key.call);
    for (;;) {
        uint32_t words[4];
        mpt__philox(key.seed, sequence, index, words);
        for (int i = 0; i < 4; i += 2) {
            uint64_t high, low;
            low = mpt__multiply_u64((uint64_t)words[i + 1] << 32 | words[i], bound, &high);
            if (low >= bound || low >= (0 - bound) % bound) return high; /* 2^64 mod bound */
        }
        sequence = mpt__hash_u64(sequence, index);
    }
}

/* A random order of 0 .. n-1, every one equally likely (Fisher and Yates, inside out). */
static void mpt__random_permutation(mpt__rng_key key, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n; i++) {
        int64_t j = (int64_t)mpt__random_below(key, (uint64_t)i, (uint64_t)i + 1);
        out[i] = out[j];
        out[j] = i;
    }
}

#endif
