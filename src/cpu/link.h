/* ----
 * cpu/link.h: all that the context room knows of the CPU backend: the border between two files.
 * ---- */
#ifndef MPT__CPU_LINK_INCLUDED
#define MPT__CPU_LINK_INCLUDED

#include "ground/parallel.c"
#include "ground/convert.c"
#include "waist/launch.h"

#ifdef __cplusplus
extern "C" {
#endif
/* "auto" for AUTO and for values that are no level. */
MPT__SHARED const char *mpt__cpu_isa_name(mpt_isa isa);
/* The level of a name ("ref", "avx2", ..), AUTO for "auto" and "", UNKNOWN for any other. */
MPT__SHARED mpt_isa mpt__cpu_isa_of_name(const char *name);
/* Fills `backend`, which must not move while it lives, with a CPU backend of level `isa` (AUTO: the
   best there is) and a pool of `threads` (0: one per core). *chosen is the level taken. */
MPT__SHARED mpt_status mpt__cpu_backend_create(
    mpt__base *base, mpt_isa isa, int threads, bool amx, mpt__backend *backend, mpt_isa *chosen);
/* What others may use of it: its threads, and the conversions of its level. */
MPT__SHARED mpt__pool *mpt__cpu_lends(
    const mpt__backend *backend, const mpt__convert_table **convert);

#ifdef MPT__TWO_FILES
/* Each option is part of a name that the CPU file defines and the other uses: where they differ,
   the linker says which name there is not. */
#ifdef MPTRAIN_NO_THREADS
#define MPT__LINK_NO_THREADS with
#else
#define MPT__LINK_NO_THREADS without
#endif
#ifdef MPTRAIN_NO_SIMD
#define MPT__LINK_NO_SIMD with
#else
#define MPT__LINK_NO_SIMD without
#endif
#ifdef MPTRAIN_NO_AMX
#define MPT__LINK_NO_AMX with
#else
#define MPT__LINK_NO_AMX without
#endif
#ifdef MPTRAIN_EMULATE_AMX
#define MPT__LINK_EMULATE_AMX with
#else
#define MPT__LINK_EMULATE_AMX without
#endif
#ifdef MPTRAIN_NO_CONV
#define MPT__LINK_NO_CONV with
#else
#define MPT__LINK_NO_CONV without
#endif
#ifdef MPTRAIN_NO_ATTENTION
#define MPT__LINK_NO_ATTENTION with
#else
#define MPT__LINK_NO_ATTENTION without
#endif
#ifdef MPTRAIN_NO_FP8
#define MPT__LINK_NO_FP8 with
#else
#define MPT__LINK_NO_FP8 without
#endif
#ifdef MPTRAIN_NO_RECURRENT
#define MPT__LINK_NO_RECURRENT with
#else
#define MPT__LINK_NO_RECURRENT without
#endif
#ifdef MPTRAIN_NO_FRUGAL
#define MPT__LINK_NO_FRUGAL with
#else
#define MPT__LINK_NO_FRUGAL without
#endif
#ifdef MPTRAIN_COMPILE
#define MPT__LINK_COMPILE with
#else
#define MPT__LINK_COMPILE without
#endif
#define MPT__LINK_NAME(X, how, option) X(mpt__cpu_file_##how##_MPTRAIN_##option)
#define MPT__LINK_OPTION(X, how, option) MPT__LINK_NAME(X, how, option)
#define MPT__LINK(X, option) MPT__LINK_OPTION(X, MPT__LINK_##option, option)
#define MPT__LINK_NUMBERS(X, a, b, c, real) X(mpt__cpu_file_of_version_##a##_##b##_##c##_in_##real)
#define MPT__LINK_VALUES(X, a, b, c, real) MPT__LINK_NUMBERS(X, a, b, c, real)
#define MPT__LINK_NAMES(X) \
    MPT__LINK(X, NO_THREADS) \
    MPT__LINK(X, NO_SIMD) \
    MPT__LINK(X, NO_AMX) MPT__LINK(X, EMULATE_AMX) MPT__LINK(X, NO_CONV) \
        MPT__LINK(X, NO_ATTENTION) MPT__LINK(X, NO_FP8) MPT__LINK(X, NO_RECURRENT) \
            MPT__LINK(X, NO_FRUGAL) MPT__LINK(X, COMPILE) \
            MPT__LINK_VALUES(X, MPTRAIN_VERSION_MAJOR, MPTRAIN_VERSION_MINOR, \
                             MPTRAIN_VERSION_PATCH, MPT__REAL)
extern const char mpt__file_with_MPTRAIN_CPU_SEPARATE;
#ifdef MPTRAIN_CPU_IMPLEMENTATION
#define MPT__LINK_DEFINE(name) \
    extern const char *const name; \
    const char *const name = &mpt__file_with_MPTRAIN_CPU_SEPARATE;
MPT__LINK_NAMES(MPT__LINK_DEFINE)
#else
#define MPT__LINK_DECLARE(name) extern const char *const name;
MPT__LINK_NAMES(MPT__LINK_DECLARE)
#define MPT__LINK_USE(name) &&name
const char mpt__file_with_MPTRAIN_CPU_SEPARATE = 1;
#endif
#endif
#ifdef __cplusplus
}
#endif

#endif
