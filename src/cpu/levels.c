/* ---------------------------------------------------------------------------------------------
 * cpu/levels.c: the ISA levels of this build, and the making of a CPU backend.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__CPU_LEVELS_INCLUDED
#define MPT__CPU_LEVELS_INCLUDED

#include "cpu/optimizer.c"
#include "cpu/fp8.c"

/* ==== Levels ==== */

/* A level has all the kernels of those above it in this table up to REF, and adds its own. */
typedef struct mpt__cpu_level {
    mpt_isa isa;
    const char *name;
    void (*add)(mpt__cpu *cpu); /* NULL: not in this build */
} mpt__cpu_level;

/* From the slowest to the fastest. */
static const mpt__cpu_level mpt__cpu_levels[] = {
    {MPT_ISA_NULL, "null", NULL},
    {MPT_ISA_REF, "ref", mpt__cpu_add_ref},
    {MPT_ISA_AVX2, "avx2", mpt__cpu_add_avx2},
    {MPT_ISA_AVX512, "avx512", mpt__cpu_add_avx512},
    {MPT_ISA_AVX512_BF16, "avx512bf16", mpt__cpu_add_pairs},
    {MPT_ISA_AMX, "amx", mpt__cpu_add_amx},
    {MPT_ISA_NEON, "neon", mpt__cpu_add_neon},
    {MPT_ISA_NEON_BF16, "neonbf16", mpt__cpu_add_quads},
};
#define MPT__CPU_LEVEL_COUNT ((int)(sizeof mpt__cpu_levels / sizeof *mpt__cpu_levels))

/* NULL for AUTO and for values that are no level. */
static const mpt__cpu_level *mpt__cpu_find_level(mpt_isa isa) {
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
        if (mpt__cpu_levels[i].isa == isa) return &mpt__cpu_levels[i];
    }
    return NULL;
}

/* The level of a name ("ref", "avx2", ..), AUTO for "auto" and "", UNKNOWN for any other. */
static mpt_isa mpt__cpu_isa_of_name(const char *name) {
    if (*name == '\0' || strcmp(name, "auto") == 0) return MPT_ISA_AUTO;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
        if (strcmp(name, mpt__cpu_levels[i].name) == 0) return mpt__cpu_levels[i].isa;
    }
    return MPT_ISA_UNKNOWN;
}

/* What AUTO means: the fastest level that is built in and that a CPU with these features has. Where
   there are tiles, VDPBF16PS is slower than FMA in fp32 (measured on Sapphire Rapids). */
static mpt_isa mpt__cpu_best(uint32_t features, bool amx) {
    mpt_isa best = MPT_ISA_REF;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
        const mpt__cpu_level *level = &mpt__cpu_levels[i];
        if (level->add == NULL || !mpt__isa_supported(level->isa, features)) continue;
        if (level->isa == MPT_ISA_AVX512_BF16 && (features & MPT__CPU_AMX_TILE)) continue;
        if (level->isa != MPT_ISA_AMX || amx) best = level->isa;
    }
    return best;
}

/* ==== Backend ==== */

/* What this process may use of the CPU's features. AMX counts if the system grants its tiles, for
   which it is asked only where they may be wanted: it is for the life of the process. */
static uint32_t mpt__cpu_granted_features(bool amx) {
    uint32_t features = mpt__cpu_features();
#ifdef MPTRAIN_EMULATE_AMX
    const uint32_t emulated = MPT__CPU_AMX_TILE | MPT__CPU_AMX_BF16 | MPT__CPU_AVX512;
    if (amx && (features & MPT__CPU_AVX2)) return features | emulated;
#endif
#ifdef MPT__HAS_AMX
    const uint32_t needed = MPT__CPU_AMX_TILE | MPT__CPU_AMX_BF16 | MPT__CPU_AVX512_BF16;
    if (amx && (features & needed) == needed && mpt__amx_request()) return features;
#endif
    (void)amx;
    return features & ~(uint32_t)MPT__CPU_AMX_BF16;
}

/* Whether a backend of `isa` can be made here; records why not. */
static bool mpt__cpu_check_level(mpt__base *base, mpt_isa isa, uint32_t features, bool amx) {
    const mpt__cpu_level *level = mpt__cpu_find_level(isa);
    const char *best = mpt__cpu_find_level(mpt__cpu_best(features, amx))->name;
    if (level == NULL) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "isa (MPTRAIN_ISA) %d: expected %s", (int)isa,
                  "auto, ref, avx2, avx512, avx512bf16, amx, neon or neonbf16");
        return false;
    }
    if (level->add == NULL && isa != MPT_ISA_NULL) {
        mpt__fail(base, MPT_ERROR_UNSUPPORTED,
                  "this program was built without the %s kernels; the best it has here is %s "
                  "(MPT_ISA_AUTO)",
                  level->name, best);
        return false;
    }
    if (isa == MPT_ISA_AMX && !amx) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "isa asks for amx, but amx is off in the config");
        return false;
    }
    if (!mpt__isa_supported(isa, features)) {
        mpt__fail(base, MPT_ERROR_DEVICE,
                  "this CPU cannot run the %s kernels; the best that it can is %s (MPT_ISA_AUTO)",
                  level->name, best);
        return false;
    }
    return true;
}

/* Fills `backend`, which must not move while it lives, with a CPU backend of level `isa` (AUTO: the
   best there is) and a pool of `threads` (0: one per core). *chosen is the level taken. */
static mpt_status mpt__cpu_backend_create(mpt__base *base, mpt_isa isa, int threads, bool amx,
                                          mpt__backend *backend, mpt_isa *chosen) {
    uint32_t features =
        mpt__cpu_granted_features(amx && (isa == MPT_ISA_AUTO || isa == MPT_ISA_AMX));
#ifdef MPTRAIN_EMULATE_AMX
    if (isa == MPT_ISA_AVX512_BF16 && (features & MPT__CPU_AVX2))
        features |= MPT__CPU_AVX512 | MPT__CPU_AVX512_BF16;
#endif
    if (isa == MPT_ISA_AUTO) isa = mpt__cpu_best(features, amx);
    if (!mpt__cpu_check_level(base, isa, features, amx)) return base->status;
    mpt__cpu *cpu = mpt__cpu_create(base, isa, mpt__cpu_find_level(isa)->name, threads, backend);
    if (cpu == NULL) return base->status;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT && isa != MPT_ISA_NULL; i++) {
        const mpt__cpu_level *level = &mpt__cpu_levels[i];
        bool runs = level->isa == isa || mpt__isa_supported(level->isa, mpt__cpu_features());
        if (level->add != NULL && runs) level->add(cpu);
        if (level->isa == isa) break;
    }
    if (isa != MPT_ISA_NULL) {
        mpt__cpu_add_conv(cpu);
        mpt__cpu_add_norm(cpu);
        mpt__cpu_add_pool(cpu);
        mpt__cpu_add_attention(cpu);
        mpt__cpu_add_resize(cpu);
        mpt__cpu_add_fp8(cpu);
    }
    *chosen = isa;
    return MPT_OK;
}

#endif
