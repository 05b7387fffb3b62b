/* emulated_pairs.h: what src/cpu/level/avx512bf16.c asks of AVX512_BF16, by two FMA on an AVX2
   level: the bits are the same. MPTRAIN_EMULATE_AMX includes it in that place. */
#ifndef EMULATED_PAIRS_H
#define EMULATED_PAIRS_H

enum { MPT__BF16X2_WIDTH = 16, MPT__BF16X2_DIRECT = 6, MPT__BF16X2_RATE = 4 };
#define mpt__bf16x2_finish MPT__EMULATOR(gemm_finish)
#define mpt__bf16x2_put_tile mpt__v8_put_tile

static bool mpt__bf16x2_pack(void *panel, bool b, const mpt__gemm_side *side, int64_t outer,
                            int64_t count, int64_t k, int64_t depth) {
    const int64_t width = b ? MPT__BF16X2_WIDTH : MPT__BF16X2_ROWS;
    uint16_t *to = (uint16_t *)panel;
    memset(to, 0, (size_t)(mpt__round_up(depth, 2) * width * 2));
    for (int64_t o = 0; o < count; o++) {
        for (int64_t i = 0; i < depth; i++) {
            float value;
            mpt__load_real(&value, mpt__gemm_at(side, outer + o, k + i), (uint8_t)side->dtype, 0, 1,
                          1);
            to[(i / 2 * width + o) * 2 + i % 2] = mpt__f32_to_bf16(value);
        }
    }
    return true;
}

MPT__OP v_f v_dot2(v_f sum, v_f a, v_f b) {
    const __m256 odd = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000));
    const __m256 low_a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a), 16));
    const __m256 low_b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(b), 16));
    sum = _mm256_fmadd_ps(_mm256_and_ps(a, odd), _mm256_and_ps(b, odd), sum);
    return _mm256_fmadd_ps(low_a, low_b, sum);
}

MPT__OP v_f v_word(const float *p) { return v_set(*p); }
MPT__OP void v_store_pair(uint16_t *to, v_f x, v_f y) {
    v_store_as(to, x, 8, MPT_BF16);
    v_store_as(to + 8, y, 8, MPT_BF16);
}

static MPT__UNUSED void mpt__bf16x2_apart(uint32_t *to, const uint16_t *from, int64_t apart,
                                         int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i] | (uint32_t)from[i + apart] << 16;
}

#endif
