/* ----
 * ground/platform.h: what compilers and C libraries do differently: function attributes, the
 * pragmas that fix floating-point results, atomics, floating-point control, text without printf.
 *
 * This room, ground/files.c and ground/base.c alone hold atomics, compiler pragmas and system
 * calls.
 * ---- */
#ifndef MPT__GROUND_PLATFORM_INCLUDED
#define MPT__GROUND_PLATFORM_INCLUDED

#include "face/training.h"
#include "ground/types.h"

#include <stdarg.h>
#include <string.h>

/* One file holds all, or one the CPU backend and another the rest: both hold the ground, of which
   neither uses all, and what stands between them has external linkage. */
#if defined(MPTRAIN_CPU_SEPARATE) || defined(MPTRAIN_CPU_IMPLEMENTATION)
#if defined(MPTRAIN_STATIC) || \
    defined(MPTRAIN_IMPLEMENTATION) == defined(MPTRAIN_CPU_IMPLEMENTATION)
#error "mptrain: of the two files of MPTRAIN_CPU_SEPARATE neither is MPTRAIN_STATIC, nor both one"
#endif
#define MPT__TWO_FILES
#define MPT__SHARED extern
#else
#define MPT__SHARED static
#endif
#if !defined(MPT__TWO_FILES) || defined(MPTRAIN_CPU_IMPLEMENTATION)
#define MPT__CPU_HERE
#endif

#if defined(MPTRAIN_NO_STDIO) || defined(MPTRAIN_NO_FILES) || defined(MPTRAIN_CPU_IMPLEMENTATION)
#define MPT__NO_FILES 1
#endif

#if !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_CPU_IMPLEMENTATION)
#define MPT__HAS_STDERR 1
#include <stdio.h>
#endif

#if defined(_WIN32)
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <process.h>
#include <windows.h>
#else
#include <time.h>
#include <unistd.h>
#ifndef MPT__NO_FILES
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/utsname.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/file.h>
#endif
#endif
#ifndef MPTRAIN_NO_THREADS
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__linux__) && !defined(MPTRAIN_NO_SIMD) /* small machines have no huge pages */
#include <sys/mman.h>
#ifndef MADV_HUGEPAGE
extern int madvise(void *start, size_t bytes, int advice); /* hidden by -std=c11 */
#endif
#define MPT__HUGE_PAGE ((uintptr_t)1 << 21)
#define MPT__HUGE_ADVICE 14 /* MADV_HUGEPAGE */
#endif
#endif
#include <errno.h>
#include <float.h>
#include <stdlib.h>

/* ==== Portability ==== */

/* Specifiers carry no storage class: write `static MPT__INLINE int f(..)`. MPT__TARGET(isa) is a
   function attribute (or nothing), written before `static`: MPT__TARGET("avx2,fma,f16c"). */
#if defined(__GNUC__) || defined(__clang__)
#define MPT__INLINE inline
#ifndef MPT__FORCE_INLINE /* what counts branches (make coverage) sets inline: each is there once */
#define MPT__FORCE_INLINE inline __attribute__((always_inline))
#endif
#define MPT__NOINLINE __attribute__((noinline))
#define MPT__COLD __attribute__((noinline, cold)) /* for errors: what leads to them stands apart */
#define MPT__RESTRICT __restrict
#define MPT__ALIGN(n) __attribute__((aligned(n)))
#define MPT__LIKELY(x) __builtin_expect(!!(x), 1)
#define MPT__UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MPT__PREFETCH(p) __builtin_prefetch(p)
#define MPT__PREFETCH_FAR(p) __builtin_prefetch(p, 0, 2) /* not into the nearest cache */
#define MPT__UNUSED __attribute__((unused))
#elif defined(_MSC_VER)
#define MPT__INLINE __inline
#define MPT__FORCE_INLINE __forceinline
#define MPT__NOINLINE __declspec(noinline)
#define MPT__COLD __declspec(noinline)
#define MPT__RESTRICT __restrict
#define MPT__ALIGN(n) __declspec(align(n))
#define MPT__LIKELY(x) (x)
#define MPT__PREFETCH(p) ((void)(p))
#define MPT__PREFETCH_FAR(p) ((void)(p))
#define MPT__UNLIKELY(x) (x)
#define MPT__UNUSED
#else
#define MPT__INLINE inline
#define MPT__FORCE_INLINE inline
#define MPT__NOINLINE
#define MPT__COLD
#define MPT__RESTRICT
#define MPT__ALIGN(n) _Alignas(n)
#define MPT__LIKELY(x) (x)
#define MPT__PREFETCH(p) ((void)(p))
#define MPT__PREFETCH_FAR(p) ((void)(p))
#define MPT__UNLIKELY(x) (x)
#define MPT__UNUSED
#endif
/* What is inlined for speed alone would be a tenth of the portable code where size counts. */
#if defined(__OPTIMIZE_SIZE__) && defined(MPTRAIN_NO_SIMD)
#undef MPT__FORCE_INLINE
#define MPT__FORCE_INLINE inline
#endif

#if defined(__x86_64__) || defined(_M_X64)
#define MPT__X86 1
#endif
#if defined(__aarch64__) || defined(_M_ARM64)
#define MPT__ARM64 1
#endif

#if (defined(MPT__X86) || defined(MPT__ARM64)) && (defined(__GNUC__) || defined(__clang__))
#define MPT__TARGET(isa) __attribute__((target(isa)))
#else
#define MPT__TARGET(isa)
#endif

/* Nothing where there are no threads: then a plain static does. */
#if defined(MPTRAIN_NO_THREADS)
#define MPT__THREAD_LOCAL
#elif defined(_MSC_VER) && !defined(__clang__)
#define MPT__THREAD_LOCAL __declspec(thread)
#elif defined(__GNUC__) || defined(__clang__)
#define MPT__THREAD_LOCAL __thread
#else
#define MPT__THREAD_LOCAL _Thread_local
#endif

/* The bits of results must not depend on the flags of the user's build. From here to
   the changelog the implementation is compiled without contraction of a * b + c and without any of
   -ffast-math. gcc decides this per calling function, so that intrinsics obey, too. clang cannot
   fully: with -ffast-math the back end still fuses unless floating-point exceptions count as
   effects (slower, same bits), which it supports for x86 only; a bare -ffp-contract=fast cannot be
   seen here, and intrinsics keep -ffast-math where the user's own file has included <immintrin.h>
   before. */
#if defined(__clang__)
#if defined(__x86_64__) || defined(__i386__)
#pragma float_control(precise, on, push)
#ifdef __FAST_MATH__
#pragma float_control(except, on)
#endif
#define MPT__END_FLOAT_CONTROL _Pragma("float_control(pop)")
#elif defined(__FAST_MATH__)
#error "mptrain: clang cannot undo -ffast-math for this CPU; compile the implementation without it"
#else
#define MPT__END_FLOAT_CONTROL
#endif
#pragma clang fp contract(off)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("no-fast-math", "no-unsafe-math-optimizations", "no-finite-math-only", \
                     "no-associative-math", "no-reciprocal-math", "signed-zeros", \
                     "no-cx-limited-range", "no-math-errno", "fp-contract=off", \
                     "excess-precision=fast")
#ifdef __cplusplus /* g++ warns inside its own AVX-512 header (its bug 105593) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#define MPT__END_FLOAT_CONTROL _Pragma("GCC diagnostic pop") _Pragma("GCC pop_options")
#else
#define MPT__END_FLOAT_CONTROL _Pragma("GCC pop_options")
#endif
#elif defined(_MSC_VER)
#pragma float_control(precise, on, push)
#pragma fp_contract(off)
#define MPT__END_FLOAT_CONTROL __pragma(float_control(pop))
#else
#pragma STDC FP_CONTRACT OFF
#define MPT__END_FLOAT_CONTROL
#endif

/* What one of two files does not use of the ground. */
#if defined(MPT__TWO_FILES) && defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define MPT__END_UNUSED _Pragma("GCC diagnostic pop")
#else
#define MPT__END_UNUSED
#endif

/* Around what stands for functions that a build leaves out: they look at no parameter. */
#if defined(__GNUC__)
#define MPT__BEGIN_ABSENT \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"")
#define MPT__END_ABSENT _Pragma("GCC diagnostic pop")
#elif defined(_MSC_VER)
#define MPT__BEGIN_ABSENT __pragma(warning(push)) __pragma(warning(disable : 4100))
#define MPT__END_ABSENT __pragma(warning(pop))
#else
#define MPT__BEGIN_ABSENT
#define MPT__END_ABSENT
#endif

/* How hard gcc works on regions of rooms under -O2 and more: half of the time that gcc takes at -O2
   buys nothing measurable there. COLD: what no step runs for long, and so for size (a twentieth of
   the object), without passes that take a quarter of the time above the waist and make nothing
   smaller. DATA: loops over pixels and characters. KERNELS: loops over elements, which need no more
   instructions than with -O2. One pragma says all: gcc 12 forgets what a second one switches off.
   Between regions gcc inlines only what it is forced to, so rooms that share small functions share
   one. clang can only make what is COLD small, which takes a sixth of its time and a seventh of the
   object; gcc for Windows keeps vectors on a stack that is aligned to 16 bytes (its bug 54412), and
   at -O1 more of them. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(_WIN32) && defined(__OPTIMIZE__) && \
    !defined(__OPTIMIZE_SIZE__)
#define MPT__PRAGMA(text) _Pragma(#text)
#define MPT__OPTIMIZE(...) \
    MPT__PRAGMA(GCC push_options) \
    MPT__PRAGMA(GCC optimize(__VA_ARGS__, "no-tree-pta", "no-tree-ccp", "no-tree-bit-ccp", \
        "no-tree-copy-prop", "no-rerun-cse-after-loop"))
#define MPT__BEGIN_COLD \
    MPT__OPTIMIZE("Os", "no-tree-dominator-opts", "no-thread-jumps", "no-gcse", "no-ivopts", \
        "no-tree-vrp", "no-tree-pre", "no-schedule-insns2", "no-code-hoisting", "no-tree-sink", \
        "no-tree-dse", "no-tree-slsr", "no-tree-sra")
#define MPT__BEGIN_DATA MPT__OPTIMIZE("O1")
#define MPT__BEGIN_KERNELS \
    MPT__OPTIMIZE("O1", "inline-small-functions", "inline-functions", "gcse", "strict-aliasing", \
        "expensive-optimizations")
#define MPT__END_REGION _Pragma("GCC pop_options")
#elif defined(__clang__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define MPT__BEGIN_COLD \
    _Pragma("clang attribute push(__attribute__((minsize)), apply_to = function)")
#define MPT__BEGIN_DATA _Pragma("clang attribute push")
#define MPT__BEGIN_KERNELS _Pragma("clang attribute push")
#define MPT__END_REGION _Pragma("clang attribute pop")
#else
#define MPT__BEGIN_COLD
#define MPT__BEGIN_DATA
#define MPT__BEGIN_KERNELS
#define MPT__END_REGION
#endif

/* Where floats are computed in double (strict ISO C on s390x), the excess-precision pragma of gcc
   takes that back: same bits, proven by the pinned results of the tests. x87 has no such way. */
#if FLT_EVAL_METHOD == 2 || (FLT_EVAL_METHOD == 1 && (!defined(__GNUC__) || defined(__clang__)))
#ifdef __cplusplus
#define MPT__REFUSE(why) static_assert(false, why)
#else
#define MPT__REFUSE(why) _Static_assert(0, why)
#endif
MPT__REFUSE("mptrain: floats are computed with more precision here, so results would differ from "
            "machine to machine; compile with -msse2 -mfpmath=sse (x86), with "
            "-fexcess-precision=fast, or with -std=gnu11 instead of -std=c11");
#endif

/* Around a header of others: the warnings of the user's build are not for it. */
#if defined(MPTRAIN_STB_IMAGE_IMPLEMENTATION) && !defined(STB_IMAGE_IMPLEMENTATION)
#define STB_IMAGE_IMPLEMENTATION
#endif
#if defined(STB_IMAGE_IMPLEMENTATION) && defined(MPTRAIN_STB_IMAGE)
#ifndef STBI_ASSERT
#define STBI_ASSERT(condition) ((void)0) /* a library does not end its program */
#endif
#ifndef STBI_MALLOC
/* What the decoder does not write is zero, not what the picture before it left. */
#define MPT__STB_ZEROED
#define STBI_MALLOC(bytes) calloc(1, bytes)
#define STBI_REALLOC_SIZED(old, before, bytes) mpt__stb_resize(old, before, bytes)
#define STBI_FREE(block) free(block)
#endif
#endif
#if defined(__GNUC__) || defined(__clang__)
#define MPT__FOREIGN_CODE_BEGIN \
    _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wconversion\"") \
        _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"") \
            _Pragma("GCC diagnostic ignored \"-Wshadow\"") \
                _Pragma("GCC diagnostic ignored \"-Wcast-qual\"") \
                    _Pragma("GCC diagnostic ignored \"-Wunused-function\"") \
                        _Pragma("GCC diagnostic ignored \"-Wextra\"")
#define MPT__FOREIGN_CODE_END _Pragma("GCC diagnostic pop")
#elif defined(_MSC_VER)
#define MPT__FOREIGN_CODE_BEGIN __pragma(warning(push, 0))
#define MPT__FOREIGN_CODE_END __pragma(warning(pop))
#else
#define MPT__FOREIGN_CODE_BEGIN
#define MPT__FOREIGN_CODE_END
#endif

/* ==== Contract ==== */

/* Text without printf and without a locale. Understands %s %d (int) %lld (int64_t) %llu (uint64_t)
   %llx %c %% %g (double, 6 digits) %.Ng (N <= 17; exactly rounded), %S (const mpt_shape *, as
   "[2, 3]") and %B (int64_t bytes, as "1.5 MiB"). Always terminates; returns the length that the
   whole text needs. */
static size_t mpt__format_text(char *out, size_t size, const char *format, ...);
static size_t mpt__format_text_v(char *out, size_t size, const char *format, va_list arguments);

/* Atomics, sequentially consistent; plain where the build has no threads. add returns the value
   before; cas returns whether it was `expected` and now is `desired`. */
static int32_t mpt__atomic_load32(const int32_t *at);
static int64_t mpt__atomic_load64(const int64_t *at);
static void mpt__atomic_store32(int32_t *at, int32_t value);
static void mpt__atomic_store64(int64_t *at, int64_t value);
static int32_t mpt__atomic_add32(int32_t *at, int32_t value);
static int64_t mpt__atomic_add64(int64_t *at, int64_t value);
static bool mpt__atomic_cas32(int32_t *at, int32_t expected, int32_t desired);
static bool mpt__atomic_cas64(int64_t *at, int64_t expected, int64_t desired);
/* Tells the core that this is a spin loop; offers the core to another thread. */
static void mpt__spin_pause(void);
static void mpt__yield(void);

/* The calling thread's floating-point control: rounding, flushing of denormals. */
static uint32_t mpt__float_state(void);
static void mpt__set_float_state(uint32_t state);
/* `state` with flush-to-zero and denormals-are-zero on or off. */
static uint32_t mpt__float_state_flush(uint32_t state, bool on);

/* ==== Atomics ==== */

/* S is the ending of the 64-bit names of Windows, C what it calls the type. */
#if defined(MPTRAIN_NO_THREADS)
#define MPT__ATOMIC_LOAD(at, C, S) (*(at))
#define MPT__ATOMIC_STORE(at, value, C, S) ((void)(*(at) = (value)))
#define MPT__ATOMIC_ADD(at, value, C, S) ((*(at) += (value)) - (value))
#define MPT__ATOMIC_CAS(at, expected, desired, C, S) \
    (*(at) == (expected) ? (*(at) = (desired), true) : false)
#elif defined(_MSC_VER) && !defined(__clang__)
#define MPT__ATOMIC_CAS(at, expected, desired, C, S) \
    (_InterlockedCompareExchange##S((volatile C *)(uintptr_t)(at), desired, expected) == (expected))
/* A compare-and-swap of zero by zero is a full-barrier load on every Windows CPU. */
#define MPT__ATOMIC_LOAD(at, C, S) \
    _InterlockedCompareExchange##S((volatile C *)(uintptr_t)(at), 0, 0)
#define MPT__ATOMIC_STORE(at, value, C, S) ((void)InterlockedExchange##S((volatile C *)(at), value))
#define MPT__ATOMIC_ADD(at, value, C, S) InterlockedExchangeAdd##S((volatile C *)(at), value)
#else
#define MPT__ATOMIC_LOAD(at, C, S) __atomic_load_n(at, __ATOMIC_SEQ_CST)
#define MPT__ATOMIC_STORE(at, value, C, S) __atomic_store_n(at, value, __ATOMIC_SEQ_CST)
#define MPT__ATOMIC_ADD(at, value, C, S) __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST)
#define MPT__ATOMIC_CAS(at, expected, desired, C, S) \
    __atomic_compare_exchange_n(at, &(expected), desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
#endif

static MPT__INLINE int32_t mpt__atomic_load32(const int32_t *at) {
    return MPT__ATOMIC_LOAD(at, long, );
}
static MPT__INLINE int64_t mpt__atomic_load64(const int64_t *at) {
    return MPT__ATOMIC_LOAD(at, __int64, 64);
}
static MPT__INLINE void mpt__atomic_store32(int32_t *at, int32_t value) {
    MPT__ATOMIC_STORE(at, value, long, );
}
static MPT__INLINE void mpt__atomic_store64(int64_t *at, int64_t value) {
    MPT__ATOMIC_STORE(at, value, __int64, 64);
}
static MPT__INLINE int32_t mpt__atomic_add32(int32_t *at, int32_t value) {
    return MPT__ATOMIC_ADD(at, value, long, );
}
static MPT__INLINE int64_t mpt__atomic_add64(int64_t *at, int64_t value) {
    return MPT__ATOMIC_ADD(at, value, __int64, 64);
}
static MPT__INLINE bool mpt__atomic_cas32(int32_t *at, int32_t expected, int32_t desired) {
    return MPT__ATOMIC_CAS(at, expected, desired, long, );
}
static MPT__INLINE bool mpt__atomic_cas64(int64_t *at, int64_t expected, int64_t desired) {
    return MPT__ATOMIC_CAS(at, expected, desired, __int64, 64);
}

/* The number of the highest bit of a value above 0. */
static MPT__INLINE int mpt__top_bit(uint64_t value) {
#if defined(__GNUC__) || defined(__clang__)
    return 63 - __builtin_clzll(value);
#else
    int bit = 0;
    while ((value >>= 1) != 0) bit++;
    return bit;
#endif
}

static MPT__INLINE void mpt__spin_pause(void) {
#if defined(_MSC_VER) && !defined(__clang__)
    YieldProcessor();
#elif defined(MPT__X86)
    __builtin_ia32_pause();
#elif defined(MPT__ARM64) && defined(__clang__)
    __builtin_arm_yield();
#elif !defined(MPTRAIN_NO_THREADS)
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#endif
}

static MPT__INLINE void mpt__yield(void) {
#if defined(_WIN32)
    SwitchToThread();
#elif !defined(MPTRAIN_NO_THREADS)
    sched_yield();
#endif
}

/* ==== Floating-point control ==== */

/* The registers; on MSVC what the C library makes of them. */
#if defined(_MSC_VER) && !defined(__clang__)
enum { MPT__FLUSH_BITS = _DN_FLUSH, MPT__FLOAT_STATE_BITS = _MCW_DN | _MCW_RC };
enum { MPT__FLOAT_PLAIN = 0 };
#define MPT__GET_FLOAT_STATE() _controlfp(0, 0)
#define MPT__SET_FLOAT_STATE(state) _controlfp(state, MPT__FLOAT_STATE_BITS)
#elif defined(MPT__X86)
enum { MPT__FLUSH_BITS = 0x8040, MPT__FLOAT_STATE_BITS = ~0x3f }; /* without the sticky flags */
enum { MPT__FLOAT_PLAIN = 0x1f80 };
#define MPT__GET_FLOAT_STATE() __builtin_ia32_stmxcsr()
#define MPT__SET_FLOAT_STATE(state) __builtin_ia32_ldmxcsr(state)
#elif defined(MPT__ARM64)
enum { MPT__FLUSH_BITS = 1 << 24, MPT__FLOAT_STATE_BITS = -1 };
enum { MPT__FLOAT_PLAIN = 0 };
#if defined(__clang__)
#define MPT__GET_FLOAT_STATE() __builtin_arm_rsr64("fpcr")
#define MPT__SET_FLOAT_STATE(state) __builtin_arm_wsr64("fpcr", state)
#else
#define MPT__GET_FLOAT_STATE() __builtin_aarch64_get_fpcr()
#define MPT__SET_FLOAT_STATE(state) __builtin_aarch64_set_fpcr(state)
#endif
#else
enum { MPT__FLUSH_BITS = 0, MPT__FLOAT_STATE_BITS = 0 };
enum { MPT__FLOAT_PLAIN = 0 };
#define MPT__GET_FLOAT_STATE() 0
#define MPT__SET_FLOAT_STATE(state) (void)(state)
#endif

/* Never inlined: no arithmetic on memory moves across the change. The volatile copy keeps compilers
   from taking two reads for one. */
static MPT__NOINLINE uint32_t mpt__float_state(void) {
    volatile uint32_t state = (uint32_t)MPT__GET_FLOAT_STATE();
    return state & (uint32_t)MPT__FLOAT_STATE_BITS;
}

static MPT__NOINLINE void mpt__set_float_state(uint32_t state) { MPT__SET_FLOAT_STATE(state); }

static uint32_t mpt__float_state_flush(uint32_t state, bool on) {
    const uint32_t bits = (uint32_t)MPT__FLUSH_BITS;
    return on ? state | bits : state & ~bits;
}

/* ==== Text ==== */

/* A destination that counts what did not fit. */
typedef struct mpt__text {
    char *out;
    size_t size, length;
} mpt__text;

static void mpt__text_char(mpt__text *text, char c) {
    if (text->length + 1 < text->size) text->out[text->length] = c;
    text->length++;
}

static void mpt__text_string(mpt__text *text, const char *string) {
    if (!string) string = "(null)";
    while (*string) mpt__text_char(text, *string++);
}

static void mpt__text_unsigned(mpt__text *text, uint64_t value, unsigned radix) {
    char digits[24];
    int count = 0;
    do {
        digits[count++] = "0123456789abcdef"[value % radix];
        value /= radix;
    } while (value);
    while (count) mpt__text_char(text, digits[--count]);
}

static void mpt__text_signed(mpt__text *text, int64_t value) {
    if (value < 0) mpt__text_char(text, '-');
    mpt__text_unsigned(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10);
}

static void mpt__text_shape(mpt__text *text, const mpt_shape *shape) {
    mpt__text_char(text, '[');
    for (int i = 0; i < shape->rank && i < MPT_MAX_RANK; i++) {
        if (i) mpt__text_string(text, ", ");
        mpt__text_signed(text, shape->dim[i]);
    }
    mpt__text_char(text, ']');
}

/* A natural number in digits of base 10^9, the lowest first. 88 hold 2^54 * 5^1076. */
typedef struct mpt__big {
    uint32_t digit[88];
    int count;
} mpt__big;

static void mpt__big_multiply(mpt__big *big, uint32_t factor) {
    uint64_t carry = 0;
    for (int i = 0; i < big->count; i++) {
        carry += (uint64_t)big->digit[i] * factor;
        big->digit[i] = (uint32_t)(carry % 1000000000u);
        carry /= 1000000000u;
    }
    while (carry) {
        big->digit[big->count++] = (uint32_t)(carry % 1000000000u);
        carry /= 1000000000u;
    }
}

/* The mantissa of a finite value > 0 with these bits, which is mantissa * 2^*exponent. */
static uint64_t mpt__mantissa_of(uint64_t bits, int *exponent) {
    const int field = (int)(bits >> 52 & 0x7ff);
    const uint64_t fraction = bits & 0xfffffffffffffull;
    *exponent = (field ? field : 1) - 1075;
    return field ? fraction | (uint64_t)1 << 52 : fraction;
}

/* The decimal digits of mantissa * 2^exponent, of at most 54 bits from -1076 on, exact and without
   leading zeros. Returns their number; the value is 0.d1d2d3.. * 10^*point. */
static int mpt__exact_digits(uint64_t mantissa, int exponent, char digits[800], int *point) {
    int count = 0;
    mpt__big big;
    while (!(mantissa & 1) && exponent < 0) mantissa >>= 1, exponent++;
    /* m * 2^-k = (m * 5^k) / 10^k. */
    *point = exponent < 0 ? exponent : 0;
    for (big.count = 0; mantissa; mantissa /= 1000000000u)
        big.digit[big.count++] = (uint32_t)(mantissa % 1000000000u);
    for (; exponent > 0; exponent -= exponent < 29 ? exponent : 29)
        mpt__big_multiply(&big, (uint32_t)1 << (exponent < 29 ? exponent : 29));
    for (; exponent <= -13; exponent += 13) mpt__big_multiply(&big, 1220703125u);
    for (; exponent < 0; exponent++) mpt__big_multiply(&big, 5);
    for (int i = big.count - 1; i >= 0; i--) {
        uint32_t place = 100000000u, digit = big.digit[i];
        for (; place; place /= 10) {
            const char c = (char)('0' + digit / place % 10);
            if (count || c != '0') digits[count++] = c;
        }
    }
    *point += count;
    return count;
}

/* Rounds to `keep` digits, half to even, and drops trailing zeros. Returns the number left. */
static int mpt__round_digits(char *digits, int count, int keep, int *point) {
    if (count > keep) {
        bool up = digits[keep] > '5';
        if (digits[keep] == '5') {
            up = ((digits[keep - 1] - '0') & 1) != 0;
            for (int i = keep + 1; i < count; i++)
                if (digits[i] != '0') up = true;
        }
        count = keep;
        while (up && count && digits[count - 1] == '9') count--;
        if (up && count) digits[count - 1]++;
        if (up && !count) digits[count++] = '1', ++*point;
    }
    while (count > 1 && digits[count - 1] == '0') count--;
    return count;
}

/* As %.<precision>g of a C library in the C locale. */
static void mpt__text_double(mpt__text *text, double value, int precision) {
    uint64_t bits;
    char digits[800];
    int point, count, exponent;
    memcpy(&bits, &value, 8);
    if (precision > 17) precision = 17;
    if (precision < 1) precision = 1;
    if (bits << 1 > (uint64_t)0x7ff << 53) {
        mpt__text_string(text, "nan");
        return;
    }
    if (bits >> 63) mpt__text_char(text, '-');
    bits = bits << 1 >> 1;
    if (bits == (uint64_t)0x7ff << 52 || bits == 0) {
        mpt__text_string(text, bits ? "inf" : "0");
        return;
    }
    const uint64_t mantissa = mpt__mantissa_of(bits, &exponent);
    count = mpt__exact_digits(mantissa, exponent, digits, &point);
    count = mpt__round_digits(digits, count, precision, &point);
    exponent = point - 1;
    if (exponent < -4 || exponent >= precision) point = 1;
    for (int i = point < 1 ? point - 1 : 0; i < count || i < point; i++) {
        if (i == point && i > 0) mpt__text_char(text, '.');
        mpt__text_char(text, i < 0 || i >= count ? '0' : digits[i]);
        if (i == point - 1 && point < 1) mpt__text_char(text, '.');
    }
    if (exponent < -4 || exponent >= precision) {
        mpt__text_string(text, exponent < 0 ? "e-" : "e+");
        if (exponent < 0) exponent = -exponent;
        if (exponent < 10) mpt__text_char(text, '0');
        mpt__text_signed(text, exponent);
    }
}

static void mpt__text_bytes(mpt__text *text, int64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024.0; value /= 1024.0) unit++;
    mpt__text_double(text, value, value >= 1000.0 ? 4 : 3);
    mpt__text_char(text, ' ');
    mpt__text_string(text, bytes == 1 ? "byte" : units[unit]);
}

static size_t mpt__format_text_v(char *out, size_t size, const char *format, va_list arguments) {
    mpt__text text;
    text.out = out, text.size = size, text.length = 0;
    for (; *format; format++) {
        int precision = 6;
        if (*format != '%') {
            mpt__text_char(&text, *format);
            continue;
        }
        format++;
        if (*format == '.')
            for (precision = 0, format++; *format >= '0' && *format <= '9'; format++)
                precision = precision < 100 ? precision * 10 + (*format - '0') : precision;
        if (format[0] == 'l' && format[1] == 'l') {
            format += 2;
            if (*format == 'd') mpt__text_signed(&text, va_arg(arguments, int64_t));
            if (*format == 'u') mpt__text_unsigned(&text, va_arg(arguments, uint64_t), 10);
            if (*format == 'x') mpt__text_unsigned(&text, va_arg(arguments, uint64_t), 16);
        } else if (*format == 's') {
            mpt__text_string(&text, va_arg(arguments, const char *));
        } else if (*format == 'd') {
            mpt__text_signed(&text, va_arg(arguments, int));
        } else if (*format == 'c') {
            mpt__text_char(&text, (char)va_arg(arguments, int));
        } else if (*format == 'g') {
            mpt__text_double(&text, va_arg(arguments, double), precision);
        } else if (*format == 'S') {
            mpt__text_shape(&text, va_arg(arguments, const mpt_shape *));
        } else if (*format == 'D') {
            mpt__text_string(&text, mpt__dtype_row_of((mpt_dtype)va_arg(arguments, int))->name);
        } else if (*format == 'B') {
            mpt__text_bytes(&text, va_arg(arguments, int64_t));
        } else {
            mpt__text_char(&text, *format);
        }
        if (!*format) break;
    }
    if (size) out[text.length < size ? text.length : size - 1] = 0;
    return text.length;
}

static size_t mpt__format_text(char *out, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const size_t length = mpt__format_text_v(out, size, format, arguments);
    va_end(arguments);
    return length;
}

/* Text that grows in a caller's buffer. */
static mpt__text mpt__text_make(char *out, size_t size) {
    mpt__text text;
    text.out = out, text.size = out ? size : 0, text.length = 0;
    if (text.size) out[0] = '\0';
    return text;
}

static void mpt__write_text(mpt__text *text, const char *format, ...) {
    char *at = text->length < text->size ? text->out + text->length : NULL;
    va_list arguments;
    va_start(arguments, format);
    text->length += mpt__format_text_v(at, at ? text->size - text->length : 0, format, arguments);
    va_end(arguments);
}

#endif
