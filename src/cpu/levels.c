/* ----
 * cpu/levels.c: what this CPU can do, the levels of this build, and the making of a backend.
 * ---- */
#ifndef MPT__CPU_LEVELS_INCLUDED
#define MPT__CPU_LEVELS_INCLUDED

#include "cpu/link.h"
#include "cpu/optimizer.c"
#include "cpu/fp8.c"

#if defined(MPTRAIN_NO_SIMD)
#elif defined(MPT__X86) && defined(_MSC_VER)
#include <intrin.h>
#elif defined(MPT__X86)
#include <cpuid.h>
#elif defined(MPT__ARM64) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(MPT__ARM64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

/* ==== CPU features ==== */

enum {
    MPT__CPU_AVX2 = 1 << 0,   /* with FMA and F16C: what the AVX2 kernels need */
    MPT__CPU_AVX512 = 1 << 1, /* F, BW, VL, DQ: what the AVX-512 kernels need */
    MPT__CPU_AVX512_BF16 = 1 << 2,
    MPT__CPU_AVX512_FP16 = 1 << 3,
    MPT__CPU_AMX_TILE = 1 << 4, /* the CPU has tiles, whatever the system saves */
    MPT__CPU_AMX_BF16 = 1 << 5, /* present; the process must still ask Linux for permission */
    MPT__CPU_AMX_INT8 = 1 << 6,
    MPT__CPU_NEON = 1 << 7,     /* always on AArch64 */
    MPT__CPU_NEON_BF16 = 1 << 8 /* bfmmla, bfcvtn */
};

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
/* eax, ebx, ecx, edx of a leaf; all zero where the CPU lacks it. */
static void mpt__cpuid(uint32_t leaf, uint32_t subleaf, uint32_t words[4]) {
    memset(words, 0, 4 * sizeof *words);
#ifdef _MSC_VER
    int most[4];
    __cpuid(most, 0);
    if ((uint32_t)most[0] >= leaf) __cpuidex((int *)words, (int)leaf, (int)subleaf);
#else
    if (!__get_cpuid_count(leaf, subleaf, &words[0], &words[1], &words[2], &words[3]))
        memset(words, 0, 4 * sizeof *words);
#endif
}

/* The register states that the system saves. Needs OSXSAVE. */
MPT__TARGET("xsave") static uint64_t mpt__cpu_saved_state(void) { return (uint64_t)_xgetbv(0); }

#define MPT__XCR0_AVX UINT64_C(0x6)     /* xmm, ymm */
#define MPT__XCR0_AVX512 UINT64_C(0xe6) /* and mask registers, upper halves, zmm16-31 */
#define MPT__XCR0_AMX UINT64_C(0x60000) /* tile configuration, tile data */

/* A bit of leaf 7, numbered as in Intel's manual, volume 2, "CPUID". */
typedef struct {
    uint8_t subleaf, word, bit;
    uint16_t feature; /* MPT__CPU_ */
    uint32_t state;   /* of the registers it works on */
} mpt__cpu_bit;

static const mpt__cpu_bit mpt__cpu_bits[] = {{1, 0, 5, MPT__CPU_AVX512_BF16, MPT__XCR0_AVX512},
    {0, 3, 23, MPT__CPU_AVX512_FP16, MPT__XCR0_AVX512}, {0, 3, 24, MPT__CPU_AMX_TILE, 0},
    {0, 3, 22, MPT__CPU_AMX_BF16, MPT__XCR0_AMX}, {0, 3, 25, MPT__CPU_AMX_INT8, MPT__XCR0_AMX}};

static uint32_t mpt__cpu_features_x86(void) {
    const uint32_t base =
        1u << 12 /* FMA */ | 1u << 27 /* OSXSAVE */ | 1u << 28 /* AVX */ | 1u << 29 /* F16C */;
    const uint32_t avx2 = 1u << 5, avx512 = 1u << 16 /* F */ | 1u << 17 /* DQ */ |
                                            1u << 30 /* BW */ | 1u << 31 /* VL */;
    uint32_t leaf1[4], leaf7[2][4], features = 0;
    uint64_t saved;
    mpt__cpuid(1, 0, leaf1);
    mpt__cpuid(7, 0, leaf7[0]);
    mpt__cpuid(7, 1, leaf7[1]);
    if ((leaf1[2] & base) != base || !(leaf7[0][1] & avx2)) return 0;
    saved = mpt__cpu_saved_state();
    if ((saved & MPT__XCR0_AVX) != MPT__XCR0_AVX) return 0;
    features |= MPT__CPU_AVX2;
    if ((saved & MPT__XCR0_AVX512) == MPT__XCR0_AVX512 && (leaf7[0][1] & avx512) == avx512)
        features |= MPT__CPU_AVX512;
    for (size_t i = 0; i < sizeof mpt__cpu_bits / sizeof *mpt__cpu_bits; i++) {
        const mpt__cpu_bit *b = &mpt__cpu_bits[i];
        if ((saved & b->state) == b->state && leaf7[b->subleaf][b->word] >> b->bit & 1)
            features |= b->feature;
    }
    return features;
}
#endif

/* The MPT__CPU_ bits that both CPU and operating system support. */
static uint32_t mpt__cpu_features(void) {
    uint32_t features = 0;
#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
    features = mpt__cpu_features_x86();
#elif defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
    int bf16 = 0;                                 /* FEAT_BF16 */
#if defined(__linux__)
    bf16 = (int)(getauxval(AT_HWCAP2) >> 14 & 1); /* HWCAP2_BF16; older headers lack the name */
#elif defined(__APPLE__)
    size_t size = sizeof bf16;
    if (sysctlbyname("hw.optional.arm.FEAT_BF16", &bf16, &size, NULL, 0) != 0) bf16 = 0;
#elif defined(PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE)
    bf16 = IsProcessorFeaturePresent(PF_ARM_V86_BF16_INSTRUCTIONS_AVAILABLE);
#endif
    features = MPT__CPU_NEON | (bf16 ? (uint32_t)MPT__CPU_NEON_BF16 : 0u);
#endif
    return features;
}

/* ==== Levels ==== */

/* A level has the kernels of all slower ones above it, from REF on, that the CPU has, too, and its
   own routines and products of matrices in place of theirs. */
typedef struct {
    mpt_isa isa;
    const char *name;
    uint32_t needs;                      /* MPT__CPU_ bits */
    bool built;                          /* in this build */
    const mpt__routines *routines;       /* NULL: those of the slower one */
    const struct mpt__gemm_level *gemm;  /* NULL: none but those that are made of routines */
    const struct mpt__gemm_level *chain; /* NULL, or the reference's products in its vectors */
} mpt__cpu_level;

#ifdef MPTRAIN_NO_RESUME
#define MPT__CHAIN(level) NULL
#define MPT__PORTABLE_LEVEL false, NULL, NULL, NULL
#else
#define MPT__CHAIN(level) level
#define MPT__PORTABLE_LEVEL true, NULL, NULL, NULL
#endif

/* From the slowest to the fastest. */
static const mpt__cpu_level mpt__cpu_levels[] = {
    {MPT_ISA_NULL, "null", 0, true, NULL, NULL, NULL},
    {MPT_ISA_REF, "ref", 0, true, &mpt__ref_routines, NULL, NULL},
    {MPT_ISA_PORTABLE, "portable", 0, MPT__PORTABLE_LEVEL},
    {MPT_ISA_AVX2, "avx2", MPT__CPU_AVX2, MPT__AVX2_LEVEL},
    {MPT_ISA_AVX512, "avx512", MPT__CPU_AVX512, MPT__AVX512_LEVEL},
    {MPT_ISA_AVX512_BF16, "avx512bf16", MPT__CPU_AVX512 | MPT__CPU_AVX512_BF16, MPT__BF16X2_LEVEL},
    {MPT_ISA_AMX, "amx", MPT__CPU_AVX512 | MPT__CPU_AMX_TILE | MPT__CPU_AMX_BF16, MPT__AMX_LEVEL},
    {MPT_ISA_NEON, "neon", MPT__CPU_NEON, MPT__NEON_LEVEL},
    {MPT_ISA_NEON_BF16, "neonbf16", MPT__CPU_NEON | MPT__CPU_NEON_BF16, MPT__BF16X4_LEVEL},
};
#define MPT__CPU_LEVEL_COUNT ((int)(sizeof mpt__cpu_levels / sizeof *mpt__cpu_levels))

/* NULL for AUTO and for values that are no level. */
static const mpt__cpu_level *mpt__cpu_find_level(mpt_isa isa) {
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++)
        if (mpt__cpu_levels[i].isa == isa) return &mpt__cpu_levels[i];
    return NULL;
}

/* Whether `isa` can run with these features. AUTO, NULL and REF always can. */
static bool mpt__isa_supported(mpt_isa isa, uint32_t features) {
    const mpt__cpu_level *level = mpt__cpu_find_level(isa);
    return level ? (features & level->needs) == level->needs : isa == MPT_ISA_AUTO;
}

MPT__SHARED const char *mpt__cpu_isa_name(mpt_isa isa) {
    const mpt__cpu_level *level = mpt__cpu_find_level(isa);
    return level ? level->name : "auto";
}

MPT__SHARED mpt_isa mpt__cpu_isa_of_name(const char *name) {
    if (*name == '\0' || strcmp(name, "auto") == 0) return MPT_ISA_AUTO;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++)
        if (strcmp(name, mpt__cpu_levels[i].name) == 0) return mpt__cpu_levels[i].isa;
    return MPT_ISA_UNKNOWN;
}

/* AUTO: the fastest level of this build that the features allow. Where there are tiles, VDPBF16PS
   is slower than FMA in fp32 (measured on Sapphire Rapids). */
static mpt_isa mpt__cpu_best(uint32_t features, bool amx) {
    mpt_isa best = MPT_ISA_REF;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
        const mpt__cpu_level *level = &mpt__cpu_levels[i];
        if (!level->built || level->isa == MPT_ISA_NULL || level->isa == MPT_ISA_PORTABLE ||
            !mpt__isa_supported(level->isa, features))
            continue;
        if (level->isa == MPT_ISA_AVX512_BF16 && (features & MPT__CPU_AMX_TILE)) continue;
        if (level->isa != MPT_ISA_AMX || amx) best = level->isa;
    }
    return best;
}

/* ==== Backend ==== */

/* What this process may use. AMX counts if the system grants its tiles, which is asked only where
   they may be wanted: it is for the life of the process. */
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
    if (!level) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "isa (MPTRAIN_ISA) %d: expected %s", (int)isa,
            "auto, ref, avx2, avx512, avx512bf16, amx, neon, neonbf16 or portable");
        return false;
    }
    if (!level->built) {
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

/* ==== The table of kernels ==== */

/* Functions that are a kernel by another name, or left out of this build. */
#define mpt__cpu_pair_loss_backward mpt__cpu_pair_loss
#ifdef MPTRAIN_NO_CONV
#define mpt__cpu_conv NULL
#define mpt__cpu_pool NULL
#define mpt__cpu_running_stats NULL
#define mpt__cpu_interpolate NULL
#else
#define mpt__cpu_conv mpt__ref_conv
#define mpt__cpu_interpolate mpt__cpu_resize
#endif
#define mpt__cpu_conv_backward_input mpt__cpu_conv
#define mpt__cpu_conv_backward_weight mpt__cpu_conv
#define mpt__cpu_pool_backward mpt__cpu_pool
#define mpt__cpu_interpolate_backward mpt__cpu_interpolate
#ifdef MPTRAIN_NO_ATTENTION
#define mpt__cpu_embedding NULL
#define mpt__cpu_embedding_backward NULL
#define mpt__cpu_attention NULL
#define mpt__cpu_rope NULL
#define mpt__cpu_hash_grid NULL
#endif
#define mpt__cpu_hash_grid_backward mpt__cpu_hash_grid
#define mpt__cpu_attention_dq mpt__cpu_attention
#define mpt__cpu_attention_dkv mpt__cpu_attention
#ifndef MPT__HAS_NORMS
#define mpt__cpu_norm NULL
#else
#define mpt__cpu_norm mpt__norm_run
#endif
#define mpt__cpu_norm_backward mpt__cpu_norm
#ifdef MPTRAIN_NO_FP8
#define mpt__cpu_fp8_scale NULL
#define mpt__cpu_fp8_update NULL
#endif

#ifdef MPTRAIN_NO_RECURRENT
#define mpt__cpu_recurrent NULL
#endif
#define mpt__cpu_recurrent_backward mpt__cpu_recurrent

/* They compute in the routines of any level. */
static const mpt__cpu_run mpt__cpu_kernels[] = {
#define MPT__ROW(id, name, effect) mpt__cpu_##name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* Those of the others need none. */
static const struct {
    mpt__kernel kernel;
    mpt__cpu_workspace bytes;
} mpt__cpu_workspaces[] = {
    {MPT__K_UNARY, mpt__cpu_lookup_bytes},
    {MPT__K_BINARY, mpt__cpu_lookup_bytes},
    {MPT__K_REDUCE, mpt__cpu_reduce_workspace},
    {MPT__K_NLL, mpt__cpu_loss_workspace},
    {MPT__K_CROSS_ENTROPY, mpt__cpu_loss_workspace},
    {MPT__K_GRAD_NORM, mpt__cpu_grad_norm_workspace},
    {MPT__K_PAIR_LOSS, mpt__cpu_pair_workspace},
    {MPT__K_ARGSORT, mpt__cpu_argsort_workspace},
#ifndef MPTRAIN_NO_CONV
    {MPT__K_CONV, mpt__ref_conv_workspace},
    {MPT__K_CONV_BACKWARD_INPUT, mpt__ref_conv_workspace},
    {MPT__K_CONV_BACKWARD_WEIGHT, mpt__ref_conv_workspace},
    {MPT__K_INTERPOLATE, mpt__cpu_resize_workspace},
    {MPT__K_INTERPOLATE_BACKWARD, mpt__cpu_resize_workspace},
#endif
#ifdef MPT__HAS_NORMS
    {MPT__K_NORM, mpt__norm_workspace},
    {MPT__K_NORM_BACKWARD, mpt__norm_workspace},
#endif
#ifndef MPTRAIN_NO_ATTENTION
    {MPT__K_ATTENTION, mpt__attention_workspace},
    {MPT__K_ATTENTION_DQ, mpt__attention_workspace},
    {MPT__K_ATTENTION_DKV, mpt__attention_workspace},
#endif
#ifndef MPTRAIN_NO_FP8
    {MPT__K_FP8_SCALE, mpt__cpu_fp8_workspace},
#endif
};

/* All kernels, then what each level up to the cpu's has instead. */
static void mpt__cpu_add_levels(mpt__cpu *cpu) {
    cpu->routines = &mpt__ref_routines;
    for (int k = 0; k < MPT__KERNEL_COUNT; k++) cpu->kernel[k].run = mpt__cpu_kernels[k];
    for (size_t i = 0; i < sizeof mpt__cpu_workspaces / sizeof *mpt__cpu_workspaces; i++) {
        mpt__cpu_kernel *row = &cpu->kernel[mpt__cpu_workspaces[i].kernel];
        row->workspace = mpt__cpu_workspaces[i].bytes;
        row->scratch = row->workspace != NULL;
    }
    const mpt__cpu_level *last = mpt__cpu_find_level(cpu->isa);
    for (const mpt__cpu_level *level = mpt__cpu_levels; level <= last; level++) {
        const bool runs = level == last || mpt__isa_supported(level->isa, mpt__cpu_features());
        if (!level->built || !runs) continue;
        if (level->routines) cpu->routines = level->routines;
        cpu->backend->planes = cpu->routines->planes != NULL;
#ifdef MPT__HAS_GEMM
        if (!level->gemm) continue;
        mpt__cpu_add_products(cpu, level->gemm, MPT__K_GEMM, mpt__gemm_run, mpt__gemm_workspace);
        mpt__cpu_add_convs(cpu, level->gemm);
#ifndef MPTRAIN_NO_RECURRENT
        mpt__cpu_add_sequences(cpu, level->gemm);
#endif
#endif
    }
    if (cpu->routines->copy_halves) mpt__cpu_add(cpu, MPT__K_COPY, cpu->routines->copy_halves);
#if defined(MPT__HAS_BF16X2) && !defined(MPTRAIN_NO_ATTENTION)
    for (int k = MPT__K_ATTENTION; k <= MPT__K_ATTENTION_DKV; k++)
        if (cpu->isa == MPT_ISA_AVX512_BF16) cpu->kernel[k].run = mpt__bf16x2_attention;
#endif
}

#if defined(MPT__HAS_GEMM) && !defined(MPTRAIN_NO_RESUME)
/* The reference's kernels in the widest vectors of its bits, and products in its order. False where
   memory is out. */
static bool mpt__cpu_add_portable(mpt__cpu *cpu) {
    const mpt__cpu_level *best = NULL;
    for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
        const mpt__cpu_level *level = &mpt__cpu_levels[i];
        if (level->chain && mpt__isa_supported(level->isa, mpt__cpu_features())) best = level;
    }
    if (!best) return true;
    mpt__routines *own = (mpt__routines *)mpt__allocate(cpu->base, sizeof *own, MPT_MEMORY_HOST);
    if (!own) return false;
    *own = *best->routines;
    own->sum_products = mpt__ref_routines.sum_products;
    own->flushes = mpt__ref_routines.flushes;
    own->gemm = NULL;
    cpu->routines = own;
    cpu->own = own, cpu->own_bytes = sizeof *own;
    mpt__cpu_add_products(cpu, best->chain, MPT__K_GEMM, mpt__gemm_run, mpt__gemm_workspace);
    cpu->backend->unrolls = 0;
    cpu->backend->planes = false;
    return true;
}
#endif

MPT__SHARED mpt_status mpt__cpu_backend_create(
    mpt__base *base, mpt_isa isa, int threads, bool amx, mpt__backend *backend, mpt_isa *chosen) {
    uint32_t features =
        mpt__cpu_granted_features(amx && (isa == MPT_ISA_AUTO || isa == MPT_ISA_AMX));
#ifdef MPTRAIN_EMULATE_AMX
    if (isa == MPT_ISA_AVX512_BF16 && (features & MPT__CPU_AVX2))
        features |= MPT__CPU_AVX512 | MPT__CPU_AVX512_BF16;
#endif
    if (isa == MPT_ISA_AUTO) isa = mpt__cpu_best(features, amx);
    if (!mpt__cpu_check_level(base, isa, features, amx)) return base->status;
    mpt__cpu *cpu = mpt__cpu_create(base, isa, mpt__cpu_find_level(isa)->name, threads, backend);
    if (!cpu) return base->status;
    if (isa != MPT_ISA_NULL) mpt__cpu_add_levels(cpu);
    *chosen = isa;
#if defined(MPT__HAS_GEMM) && !defined(MPTRAIN_NO_RESUME)
    if (isa == MPT_ISA_PORTABLE && !mpt__cpu_add_portable(cpu)) {
        backend->destroy(backend->self);
        memset(backend, 0, sizeof *backend);
        return base->status;
    }
#endif
    return MPT_OK;
}

MPT__SHARED mpt__pool *mpt__cpu_lends(
    const mpt__backend *backend, const mpt__convert_table **convert) {
    const mpt__cpu *cpu = (const mpt__cpu *)backend->self;
    if (cpu->routines) *convert = cpu->routines->convert;
    return cpu->pool;
}

#endif
