/* emulated_tiles.h: tiles of src/cpu/level/amx.c and their packing in portable C, with the bits of
   the instructions (but for products below the smallest normal number, by one ulp of a sum).
   MPTRAIN_EMULATE_AMX includes it in that place. */
#ifndef EMULATED_TILES_H
#define EMULATED_TILES_H

enum { MPT__AMX_RATE = 4 };

static bool mpt__amx_pack_of(void *panel, bool b, const mpt__gemm_side *side, int64_t outer,
                             int64_t count, int64_t k, int64_t depth, int parts) {
    const bool rounded = MPT__AMX_ROUNDED(side->dtype, side->round);
    const uint32_t half = rounded ? 0x8000 : 0;
    memset(panel, 0, (size_t)(mpt__round_up(depth, MPT__AMX_K) * MPT__AMX_WIDTH * 2 * parts));
    for (int64_t o = 0; o < count; o++) {
        for (int64_t i = 0; i < depth; i++) {
            float value;
            mpt__load_real(&value, mpt__gemm_at(side, outer + o, k + i), (uint8_t)side->dtype, 0, 1,
                          1);
            if (side->round == MPT_F16) value = mpt__f16_to_f32(mpt__f32_to_f16(value));
            if (parts == 2 && !mpt__f32_is_finite(value)) return false;
            if (rounded && parts == 2 && (mpt__f32_bits(value) & 0x7fffffffu) >= MPT__AMX_HUGE)
                return false;
            for (int part = 0; part < parts; part++) {
                uint16_t bits = mpt__f32_to_bf16(value);
                if (parts == 2) bits = (uint16_t)((mpt__f32_bits(value) + half) >> 16);
                int64_t tile = (i / MPT__AMX_K * parts + part) * 2 + o / 16, at = i % MPT__AMX_K;
                if (parts == 2) at = at % 16 * 2 + at / 16;
                int64_t row = b ? at / 2 : o % 16, column = b ? o % 16 * 2 + at % 2 : at;
                ((uint16_t *)panel)[tile * 512 + row * 32 + column] = bits;
                value -= mpt__bf16_to_f32(bits);
            }
        }
    }
    return true;
}

static MPT__THREAD_LOCAL uint32_t mpt__amx_tiles[8][256];

static void mpt__amx_bracket(bool begin) { (void)begin; }
static bool mpt__amx_request(void) { return true; }

static float mpt__amx_flush(float x) {
    uint32_t bits = mpt__f32_bits(x);
    return mpt__f32_from_bits((bits & 0x7f800000u) != 0 ? bits : bits & 0x80000000u);
}
/* What one half of a dword holds. */
static float mpt__amx_value(uint32_t dword, int half) {
    return mpt__amx_flush(mpt__f32_from_bits(half ? dword & 0xffff0000u : dword << 16));
}
/* As Intel's manual has it: sums over the even and over the odd k, then these two, then C. */
static void mpt__amx_multiply(int c, int a, int b) {
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            float sum[2] = {0, 0};
            for (int k = 0; k < 32; k++) {
                float product = mpt__amx_value(mpt__amx_tiles[a][i * 16 + k / 2], k % 2) *
                                mpt__amx_value(mpt__amx_tiles[b][k / 2 * 16 + j], k % 2);
                sum[k % 2] = mpt__amx_flush(sum[k % 2] + product); /* products are exact */
            }
            uint32_t *to = &mpt__amx_tiles[c][i * 16 + j];
            float before = mpt__amx_flush(mpt__f32_from_bits(*to));
            *to = mpt__f32_bits(mpt__amx_flush(before + mpt__amx_flush(sum[0] + sum[1])));
        }
    }
}

#define MPT__TILE_CLEAR(t) memset(mpt__amx_tiles[t], 0, MPT__AMX_TILE)
#define MPT__TILE_LOAD(t, p, step) \
    for (int64_t r = 0; r < 16; r++) { \
        memcpy(mpt__amx_tiles[t] + r * 16, (const char *)(p) + r * (step), 64); \
    }
#define MPT__TILE_SAVE(t, p, step) \
    for (int64_t r = 0; r < 16; r++) { \
        memcpy((char *)(p) + r * (step), mpt__amx_tiles[t] + r * 16, 64); \
    }
#define MPT__TILE_MULTIPLY(c, a, b) mpt__amx_multiply(c, a, b)

#endif
