// The kernel language of CUDA for a C++ compiler: what nvcc knows without a header. Included by the
// simulator's cuda_runtime.h. The functions behind it are in execute.cpp.
#ifndef CUDASIM_H
#define CUDASIM_H

#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
// A section of its own, which is filled with 0xff before each block.
#define CUDASIM_SHARED_SECTION ".cudasim_shared"
#define __shared__ static __attribute__((section(CUDASIM_SHARED_SECTION)))
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define __noinline__

// Not const: they change whenever another thread of the kernel goes on.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static const int warpSize = 32;

namespace cudasim {

struct config {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    config(dim3 g, dim3 b, size_t bytes = 0, cudaStream_t s = nullptr)
        : grid(g), block(b), shared(bytes), stream(s) {}
};

// Where in the .cu a barrier or a warp function is called.
struct site {
    const char *file;
    int line;
};

// One parameter of a launch, to look for host pointers in it.
struct parameter {
    const void *at;
    size_t size;
};

enum class warp_op { shuffle, down, up, exchange, ballot, sync, rows, mma };
enum class vote { count, all, any };

void enqueue_kernel(const config &c, const char *name, const void *kernel,
                    const parameter *parameters, size_t count, std::function<void()> thread);
void *dynamic_shared();
int barrier(site s, vote v, bool predicate);
// The value that the lane gets, or the ballot.
uint64_t warp(site s, warp_op op, unsigned mask, uint64_t value, int argument, int width);
[[noreturn]] void trap(site s);
[[noreturn]] void fail(site s, const char *format, ...) __attribute__((format(printf, 2, 3)));

// What a lane brings into mma.m16n8k16, and where it gets its part of the sum.
struct mma_lane {
    const uint32_t *a, *b; // four and two pairs of 16-bit numbers
    float *d;              // four, added to
    bool bfloat;
};

// A cp.async that is under way: `valid` of the bytes are copied, the others become 0.
struct copy {
    void *to;
    const void *from;
    unsigned bytes, valid;
};
void copy_later(const copy &c);
void commit_copies();
// Takes the next copy, in order, of all but the last `groups` groups; false when there is none.
bool next_copy(unsigned groups, copy *c);

// Arguments are converted once, at the launch, and copied for each thread, as CUDA does.
template <class... P, class... A>
void launch(const char *name, const config &c, void (*kernel)(P...), A &&...arguments) {
    static_assert(sizeof...(P) == sizeof...(A), "a launch passes all the kernel's parameters");
    const std::tuple<P...> values(std::forward<A>(arguments)...);
    std::apply(
        [&](const auto &...value) {
            const parameter list[sizeof...(P) + 1] = {{&value, sizeof value}..., {nullptr, 0}};
            enqueue_kernel(c, name, reinterpret_cast<const void *>(kernel), list, sizeof...(P),
                           [kernel, values] { std::apply(kernel, values); });
        },
        values);
}

template <class T> struct type_identity { using type = T; };
// A parameter that takes no part in the deduction of T.
template <class T> using same = typename type_identity<T>::type;

template <class To, class From> inline To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

} // namespace cudasim

// nvcc's overloads for kernels and typed pointers.
template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute a, int value) {
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), a, value);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, void (*kernel)(P...)) {
    return cudaFuncGetAttributes(attributes, reinterpret_cast<const void *>(kernel));
}

// ---- Barriers and warp functions ----------------------------------------------------------------

// Two plain defaults: in a braced one, g++ 12 gives the line of this header.
#define CUDASIM_HERE const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()
#define CUDASIM_SITE \
    ::cudasim::site { file_, line_ }

static inline void __syncthreads(CUDASIM_HERE) {
    ::cudasim::barrier(CUDASIM_SITE, ::cudasim::vote::count, false);
}
static inline int __syncthreads_count(int predicate, CUDASIM_HERE) {
    return ::cudasim::barrier(CUDASIM_SITE, ::cudasim::vote::count, predicate != 0);
}
static inline int __syncthreads_and(int predicate, CUDASIM_HERE) {
    return ::cudasim::barrier(CUDASIM_SITE, ::cudasim::vote::all, predicate != 0);
}
static inline int __syncthreads_or(int predicate, CUDASIM_HERE) {
    return ::cudasim::barrier(CUDASIM_SITE, ::cudasim::vote::any, predicate != 0);
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_HERE) {
    ::cudasim::warp(CUDASIM_SITE, ::cudasim::warp_op::sync, mask, 0, 0, 32);
}

#define CUDASIM_SHUFFLE(name, op, argument_type) \
    template <class T> \
    static inline T name(unsigned mask, T value, argument_type argument, int width = 32, \
                         CUDASIM_HERE) { \
        static_assert(sizeof(T) <= 8, "at most 8 bytes"); \
        uint64_t bits = 0; \
        std::memcpy(&bits, &value, sizeof value); \
        bits = ::cudasim::warp(CUDASIM_SITE, ::cudasim::warp_op::op, mask, bits, (int)argument, \
                               width); \
        std::memcpy((void *)&value, &bits, sizeof value); \
        return value; \
    }
CUDASIM_SHUFFLE(__shfl_sync, shuffle, int)
CUDASIM_SHUFFLE(__shfl_xor_sync, exchange, int)
CUDASIM_SHUFFLE(__shfl_down_sync, down, unsigned)
CUDASIM_SHUFFLE(__shfl_up_sync, up, unsigned)

static inline unsigned __ballot_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    return (unsigned)::cudasim::warp(CUDASIM_SITE, ::cudasim::warp_op::ballot, mask, predicate != 0,
                                     0, 32);
}
static inline int __any_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    return __ballot_sync(mask, predicate, file_, line_) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, CUDASIM_HERE) {
    return __ballot_sync(mask, !predicate, file_, line_) == 0;
}
// TSan knows no fences: all of them meet at one word.
namespace cudasim {
inline unsigned fence_word;
}
static inline void __threadfence() {
    __atomic_fetch_add(&::cudasim::fence_word, 0u, __ATOMIC_ACQ_REL);
}
static inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
static inline void __trap(CUDASIM_HERE) { ::cudasim::trap(CUDASIM_SITE); }

// ---- Atomics: relaxed, as on the device ---------------------------------------------------------

namespace cudasim {
template <size_t size> struct word;
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };

// *at = change(*at); the old value.
template <class T, class F> inline T update(T *at, F change) {
    using bits = typename word<sizeof(T)>::type;
    bits *cell = reinterpret_cast<bits *>(at), old = __atomic_load_n(cell, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(cell, &old, bit_cast<bits>(change(bit_cast<T>(old))), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return bit_cast<T>(old);
}
} // namespace cudasim

#define CUDASIM_ATOMIC(name, result) \
    template <class T> static inline T name(T *at, ::cudasim::same<T> value) { \
        return ::cudasim::update(at, [value](T old) -> T { \
            (void)old; \
            return (T)(result); \
        }); \
    }
CUDASIM_ATOMIC(atomicAdd, old + value)
CUDASIM_ATOMIC(atomicSub, old - value)
CUDASIM_ATOMIC(atomicExch, value)
CUDASIM_ATOMIC(atomicMax, old < value ? value : old)
CUDASIM_ATOMIC(atomicMin, value < old ? value : old)
CUDASIM_ATOMIC(atomicOr, old | value)
CUDASIM_ATOMIC(atomicAnd, old &value)
CUDASIM_ATOMIC(atomicXor, old ^ value)
CUDASIM_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
template <class T>
static inline T atomicCAS(T *at, ::cudasim::same<T> expected, ::cudasim::same<T> value) {
    return ::cudasim::update(at, [=](T old) { return old == expected ? value : old; });
}

// ---- Tensor cores and asynchronous copies, as the PTX manual defines them: lane by lane ---------

namespace cudasim {

inline unsigned lane_of_thread() {
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}

// ldmatrix.sync.aligned.m8n8.x4[.trans].shared.b16: lane 8 i + r gives row r of matrix i.
inline void load_matrices(uint32_t out[4], const void *row, bool transposed, CUDASIM_HERE) {
    const void *rows[32] = {row};
    const unsigned lane = lane_of_thread();
    if ((uintptr_t)row % 16) fail(CUDASIM_SITE, "ldmatrix: a row is not aligned to 16 bytes");
    warp(CUDASIM_SITE, warp_op::rows, 0xffffffffu, (uint64_t)(uintptr_t)rows, 0, 32);
    for (unsigned i = 0; i < 4; i++) {
        if (!transposed) {
            out[i] = ((const uint32_t *)rows[8 * i + lane / 4])[lane % 4];
            continue;
        }
        const void *const *two = rows + 8 * i + lane % 4 * 2;
        const uint32_t low = ((const uint16_t *)two[0])[lane / 4];
        out[i] = low | (uint32_t)((const uint16_t *)two[1])[lane / 4] << 16;
    }
}

// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32 with d as its own addend.
inline void multiply(float d[4], const uint32_t a[4], const uint32_t b[2], bool bfloat,
                     CUDASIM_HERE) {
    const mma_lane lane = {a, b, d, bfloat};
    warp(CUDASIM_SITE, warp_op::mma, 0xffffffffu, (uint64_t)(uintptr_t)&lane, bfloat, 32);
}

// cp.async: what is there until the thread waits for it is not the data.
inline void copy_async(void *to, const void *from, unsigned bytes, unsigned valid, CUDASIM_HERE) {
    if ((uintptr_t)to % bytes || (valid && (uintptr_t)from % bytes))
        fail(CUDASIM_SITE, "cp.async: an address is not aligned to %u bytes", bytes);
    for (unsigned i = 0; i < bytes / 4; i++) ((uint32_t *)to)[i] = 0xffffffffu;
    copy_later(copy{to, from, bytes, valid});
}
inline void wait_copies(unsigned groups) {
    copy c;
    while (next_copy(groups, &c))
        for (unsigned i = 0; i < c.bytes / 2; i++)
            ((uint16_t *)c.to)[i] = 2 * i < c.valid ? ((const uint16_t *)c.from)[i] : uint16_t{0};
}

} // namespace cudasim

// ---- Loads and stores with cache hints ----------------------------------------------------------

#define CUDASIM_LOAD(name) \
    template <class T> static inline T name(const T *at) { return *at; }
#define CUDASIM_STORE(name) \
    template <class T> static inline void name(T *at, ::cudasim::same<T> value) { *at = value; }
CUDASIM_LOAD(__ldg)
CUDASIM_LOAD(__ldca)
CUDASIM_LOAD(__ldcg)
CUDASIM_LOAD(__ldcs)
CUDASIM_LOAD(__ldlu)
CUDASIM_LOAD(__ldcv)
CUDASIM_STORE(__stwb)
CUDASIM_STORE(__stcg)
CUDASIM_STORE(__stcs)
CUDASIM_STORE(__stwt)

// ---- Arithmetic. The approximate functions are exact here: tests leave room for a device's error

#define CUDASIM_1(type, name, result) \
    static inline type name(type a) { return (result); }
#define CUDASIM_2(type, name, result) \
    static inline type name(type a, type b) { return (result); }
CUDASIM_2(float, __fadd_rn, a + b)
CUDASIM_2(float, __fsub_rn, a - b)
CUDASIM_2(float, __fmul_rn, a *b)
CUDASIM_2(float, __fdiv_rn, a / b)
CUDASIM_2(float, __fdividef, a / b)
CUDASIM_1(float, __fsqrt_rn, std::sqrt(a))
CUDASIM_1(float, __frcp_rn, 1.0f / a)
CUDASIM_1(float, __frsqrt_rn, (float)(1.0 / std::sqrt((double)a)))
CUDASIM_1(float, rsqrtf, (float)(1.0 / std::sqrt((double)a)))
CUDASIM_1(float, __saturatef, a > 0 ? (a < 1 ? a : 1) : 0)
CUDASIM_2(double, __dadd_rn, a + b)
CUDASIM_2(double, __dsub_rn, a - b)
CUDASIM_2(double, __dmul_rn, a *b)
CUDASIM_2(double, __ddiv_rn, a / b)
CUDASIM_1(double, __dsqrt_rn, std::sqrt(a))
CUDASIM_1(double, __drcp_rn, 1.0 / a)
CUDASIM_1(double, rsqrt, 1.0 / std::sqrt(a))
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

// glibc has functions of these names, so that only macros can stand for them.
#define __expf cudasim_expf
#define __exp10f cudasim_exp10f
#define __logf cudasim_logf
#define __log2f cudasim_log2f
#define __log10f cudasim_log10f
#define __powf cudasim_powf
#define __sinf cudasim_sinf
#define __cosf cudasim_cosf
#define __tanf cudasim_tanf
#define __tanhf cudasim_tanhf
#define __sincosf cudasim_sincosf
CUDASIM_1(float, cudasim_expf, std::exp(a))
CUDASIM_1(float, cudasim_exp10f, std::pow(10.0f, a))
CUDASIM_1(float, cudasim_logf, std::log(a))
CUDASIM_1(float, cudasim_log2f, std::log2(a))
CUDASIM_1(float, cudasim_log10f, std::log10(a))
CUDASIM_2(float, cudasim_powf, std::pow(a, b))
CUDASIM_1(float, cudasim_sinf, std::sin(a))
CUDASIM_1(float, cudasim_cosf, std::cos(a))
CUDASIM_1(float, cudasim_tanf, std::tan(a))
CUDASIM_1(float, cudasim_tanhf, std::tanh(a))
static inline void cudasim_sincosf(float a, float *sine, float *cosine) {
    *sine = std::sin(a);
    *cosine = std::cos(a);
}

// ---- Bits and conversions -----------------------------------------------------------------------

#define CUDASIM_BITS(to, name, from) \
    static inline to name(from a) { return ::cudasim::bit_cast<to>(a); }
CUDASIM_BITS(int, __float_as_int, float)
CUDASIM_BITS(unsigned, __float_as_uint, float)
CUDASIM_BITS(float, __int_as_float, int)
CUDASIM_BITS(float, __uint_as_float, unsigned)
CUDASIM_BITS(long long, __double_as_longlong, double)
CUDASIM_BITS(double, __longlong_as_double, long long)
static inline int __double2hiint(double a) { return (int)(__double_as_longlong(a) >> 32); }
static inline int __double2loint(double a) { return (int)__double_as_longlong(a); }
static inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((uint64_t)(unsigned)high << 32 | (unsigned)low));
}

static inline int __popc(unsigned a) { return __builtin_popcount(a); }
static inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
static inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
static inline int __clzll(long long a) { return a ? __builtin_clzll((unsigned long long)a) : 64; }
static inline int __ffs(int a) { return __builtin_ffs(a); }
static inline int __ffsll(long long a) { return __builtin_ffsll(a); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((uint64_t)a * b >> 32);
}
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((((uint64_t)high << 32 | low) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}

namespace cudasim {
// Float to integer as the device does it: saturated, NaN gives 0 (0x80000000.. for 64 bits).
template <class To, class From> inline To to_integer(From a) {
    const To low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    if (a != a) return sizeof(To) == 8 ? (To)(uint64_t{1} << 63) : To{0};
    if (a < (From)low) return low;
    return a >= (From)high ? high : (To)a;
}
} // namespace cudasim

#define CUDASIM_TO_INTEGER(to, part, from, from_part) \
    static inline to __##from_part##2##part##_rn(from a) { \
        return ::cudasim::to_integer<to>(std::nearbyint(a)); \
    } \
    static inline to __##from_part##2##part##_rz(from a) { \
        return ::cudasim::to_integer<to>(std::trunc(a)); \
    } \
    static inline to __##from_part##2##part##_rd(from a) { \
        return ::cudasim::to_integer<to>(std::floor(a)); \
    } \
    static inline to __##from_part##2##part##_ru(from a) { \
        return ::cudasim::to_integer<to>(std::ceil(a)); \
    }
CUDASIM_TO_INTEGER(int, int, float, float)
CUDASIM_TO_INTEGER(unsigned, uint, float, float)
CUDASIM_TO_INTEGER(long long, ll, float, float)
CUDASIM_TO_INTEGER(unsigned long long, ull, float, float)
CUDASIM_TO_INTEGER(int, int, double, double)
CUDASIM_TO_INTEGER(unsigned, uint, double, double)
CUDASIM_TO_INTEGER(long long, ll, double, double)
CUDASIM_TO_INTEGER(unsigned long long, ull, double, double)

#define CUDASIM_TO_FLOAT(to, name, from) \
    static inline to name(from a) { return (to)a; }
CUDASIM_TO_FLOAT(float, __int2float_rn, int)
CUDASIM_TO_FLOAT(float, __uint2float_rn, unsigned)
CUDASIM_TO_FLOAT(float, __ll2float_rn, long long)
CUDASIM_TO_FLOAT(float, __ull2float_rn, unsigned long long)
CUDASIM_TO_FLOAT(float, __double2float_rn, double)
CUDASIM_TO_FLOAT(double, __int2double_rn, int)
CUDASIM_TO_FLOAT(double, __uint2double_rn, unsigned)
CUDASIM_TO_FLOAT(double, __ll2double_rn, long long)
CUDASIM_TO_FLOAT(double, __ull2double_rn, unsigned long long)

#define CUDASIM_MIN_MAX(type) \
    CUDASIM_2(type, min, b < a ? b : a) \
    CUDASIM_2(type, max, a < b ? b : a)
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
CUDASIM_2(float, min, std::fmin(a, b))
CUDASIM_2(float, max, std::fmax(a, b))
CUDASIM_2(double, min, std::fmin(a, b))
CUDASIM_2(double, max, std::fmax(a, b))

#endif
