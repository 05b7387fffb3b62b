/* ---------------------------------------------------------------------------------------------
 * mptrain_cuda.cu: the CUDA backend of mptrain, for NVIDIA GPUs of compute capability 7.5 and up.
 *
 * With mptrain.h beside it and the CUDA toolkit at hand:
 *
 *     nvcc -O2 -arch=native -c mptrain_cuda.cu
 *     cc -O2 -DMPTRAIN_CUDA -c your_program.c            (where MPTRAIN_IMPLEMENTATION is defined)
 *     nvcc -arch=native your_program.o mptrain_cuda.o -lcublasLt -lm -lpthread
 *
 * It executes launches (20_launch.h in mptrain.h: the contract of every kernel) and knows nothing
 * of tensors, modules or optimizers. All kernels go to one stream, in order; whatever varies from
 * step to step is read from device scalars, so the host never waits inside a step. Arithmetic is
 * fp32 on values converted on load and rounded once on store. Every sum has a tree that depends on
 * the problem alone, and no floating-point atomics are used: every run gives the same bits.
 * ------------------------------------------------------------------------------------------- */
#define MPTRAIN_BACKEND_API
#include "mptrain.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_cuda.cu are of different versions; copy both from one release"
#endif

namespace {

/* ==== The backend ==== */

#define MPT__THREADS 256  /* of a block, unless a kernel says otherwise */
#define MPT__WARP 32
#define MPT__ALL 0xffffffffu /* the lanes of a warp */

struct mpt__cuda {
    mpt__backend *backend;
    int device;
    bool debug; /* waits after each launch, so that an error names the one that failed */
    bool dead;  /* a kernel crashed: the driver answers nothing but errors from then on */
    bool benchmark; /* times the candidates of each matrix product */
    cudaStream_t stream;
    char name[256];
    int processors;      /* streaming multiprocessors */
    int capability;      /* 90 for 9.0 */
    int64_t memory;      /* bytes on the card */
    struct mpt__cuda_transfers *transfers;
    struct mpt__cuda_products *products; /* cuBLASLt and what it chose */
};

/* A launch with its operands resolved. data[i] is where operand i begins, its offset included; NULL
   if it is absent. Kernels run on `stream`; a kernel function returns MPT_OK, or a status with the
   reason in cuda->backend->error (mpt__cuda_refuse). Errors of the kernel launch itself are found
   after it returns. */
struct mpt__cuda_call {
    mpt__cuda *cuda;
    const mpt__launch *launch;
    void *data[MPT__MAX_OPERANDS];
    mpt__scalar *scalars; /* on the device */
    void *workspace;      /* on the device, launch->workspace bytes */
    cudaStream_t stream;
};

typedef mpt_status (*mpt__cuda_run)(const mpt__cuda_call *call);
/* Bytes of workspace that a launch needs. */
typedef int64_t (*mpt__cuda_workspace)(const mpt__launch *launch);

struct mpt__cuda_kernel {
    mpt__cuda_run run;
    mpt__cuda_workspace workspace; /* NULL: none */
};

/* Records why a launch cannot be done. */
mpt_status mpt__cuda_refuse(mpt__cuda *cuda, mpt_status status, const char *what,
                            const char *detail) {
    snprintf(cuda->backend->error, sizeof cuda->backend->error, "%s: %s", what, detail);
    return status;
}

/* ==== Arrays in device code ==== */

/* An operand as kernels see it: dimensions of size 1 left out, neighbours merged where all arrays of
   the launch allow it. */
struct mpt__array {
    void *data; /* NULL: absent */
    int dtype;  /* mpt_dtype */
    int accumulate;
    long long stride[MPT_MAX_RANK];
};

/* The common shape of the arrays of a launch; the last dimension is the innermost. */
struct mpt__space {
    int rank;
    long long count; /* elements */
    long long shape[MPT_MAX_RANK];
};

/* Element `at` of a contiguous array. Bits of integers beyond 2^24 are lost: COPY and EQUAL have
   their own way. */
__device__ __forceinline__ float mpt__load(const void *data, int dtype, long long at) {
    switch (dtype) {
    case MPT_F32: return ((const float *)data)[at];
    case MPT_F16: return __half2float(((const __half *)data)[at]);
    case MPT_BF16: return __bfloat162float(((const __nv_bfloat16 *)data)[at]);
    case MPT_F64: return (float)((const double *)data)[at];
    case MPT_I64: return (float)((const long long *)data)[at];
    case MPT_I32: return (float)((const int *)data)[at];
    case MPT_U8: return (float)((const unsigned char *)data)[at];
    case MPT_BOOL: return ((const unsigned char *)data)[at] != 0 ? 1.0f : 0.0f;
    case MPT_F8E4M3: return (float)((const __nv_fp8_e4m3 *)data)[at];
    case MPT_F8E5M2: return (float)((const __nv_fp8_e5m2 *)data)[at];
    default: return 0.0f;
    }
}

__device__ __forceinline__ void mpt__store(void *data, int dtype, long long at, float x) {
    switch (dtype) {
    case MPT_F32: ((float *)data)[at] = x; break;
    case MPT_F16: ((__half *)data)[at] = __float2half_rn(x); break;
    case MPT_BF16: ((__nv_bfloat16 *)data)[at] = __float2bfloat16_rn(x); break;
    case MPT_F64: ((double *)data)[at] = (double)x; break;
    /* Truncated and saturated by the conversion itself; NaN gives 0. */
    case MPT_I64: ((long long *)data)[at] = x == x ? __float2ll_rz(x) : 0; break;
    case MPT_I32: ((int *)data)[at] = x == x ? __float2int_rz(x) : 0; break;
    case MPT_U8:
        ((unsigned char *)data)[at] = (unsigned char)(x > 0 ? (x < 255.0f ? x : 255.0f) : 0.0f);
        break;
    case MPT_BOOL: ((unsigned char *)data)[at] = x != 0; break;
    case MPT_F8E4M3: ((__nv_fp8_e4m3 *)data)[at] = __nv_fp8_e4m3(x); break;
    case MPT_F8E5M2: ((__nv_fp8_e5m2 *)data)[at] = __nv_fp8_e5m2(x); break;
    default: break;
    }
}

/* Stores, or adds to what is there in fp32 and rounds the sum. */
__device__ __forceinline__ void mpt__put(const mpt__array &array, long long at, float x) {
    if (array.accumulate) x = mpt__load(array.data, array.dtype, at) + x;
    mpt__store(array.data, array.dtype, at, x);
}

/* Eight neighbours at once. `at` is a multiple of 8 and the array 16-byte aligned, so that fp32 and
   halves come in 128-bit pieces. */
__device__ __forceinline__ void mpt__load8(const void *data, int dtype, long long at, float x[8]) {
    if (dtype == MPT_F32) {
        const float4 *from = (const float4 *)((const float *)data + at);
        const float4 low = from[0], high = from[1];
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    } else if (dtype == MPT_F16 || dtype == MPT_BF16) {
        const uint4 packed = *(const uint4 *)((const unsigned short *)data + at);
        const unsigned int word[4] = {packed.x, packed.y, packed.z, packed.w};
        for (int i = 0; i < 8; i++) {
            const unsigned short bits = (unsigned short)(word[i / 2] >> (16 * (i % 2)));
            x[i] = dtype == MPT_F16 ? __half2float(__ushort_as_half(bits))
                                    : __uint_as_float((unsigned int)bits << 16);
        }
    } else {
        for (int i = 0; i < 8; i++) x[i] = mpt__load(data, dtype, at + i);
    }
}

__device__ __forceinline__ void mpt__store8(void *data, int dtype, long long at,
                                            const float x[8]) {
    if (dtype == MPT_F32) {
        float4 *to = (float4 *)((float *)data + at);
        to[0] = make_float4(x[0], x[1], x[2], x[3]);
        to[1] = make_float4(x[4], x[5], x[6], x[7]);
    } else if (dtype == MPT_F16 || dtype == MPT_BF16) {
        unsigned int word[4];
        for (int i = 0; i < 4; i++) {
            const unsigned short low = dtype == MPT_F16
                                           ? __half_as_ushort(__float2half_rn(x[2 * i]))
                                           : __bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i]));
            const unsigned short high =
                dtype == MPT_F16 ? __half_as_ushort(__float2half_rn(x[2 * i + 1]))
                                 : __bfloat16_as_ushort(__float2bfloat16_rn(x[2 * i + 1]));
            word[i] = (unsigned int)low | (unsigned int)high << 16;
        }
        *(uint4 *)((unsigned short *)data + at) = make_uint4(word[0], word[1], word[2], word[3]);
    } else {
        for (int i = 0; i < 8; i++) mpt__store(data, dtype, at + i, x[i]);
    }
}

__device__ __forceinline__ void mpt__put8(const mpt__array &array, long long at, float x[8]) {
    if (array.accumulate) {
        float old[8];
        mpt__load8(array.data, array.dtype, at, old);
        for (int i = 0; i < 8; i++) x[i] = old[i] + x[i];
    }
    mpt__store8(array.data, array.dtype, at, x);
}

/* Where element `index` of the space lies in an array of these strides. */
__device__ __forceinline__ long long mpt__locate(const mpt__space &space, const long long *stride,
                                                 long long index) {
    long long at = 0;
    for (int d = space.rank - 1; d > 0; d--) {
        at += index % space.shape[d] * stride[d];
        index /= space.shape[d];
    }
    return space.rank > 0 ? at + index * stride[0] : 0;
}

/* Whether a gated kernel may write. */
__device__ __forceinline__ bool mpt__gate_open(const mpt__scalar *scalars, int found_inf_slot) {
    return scalars[MPT__SLOT_ERROR].i == 0 &&
           (found_inf_slot == 0 || scalars[found_inf_slot].i == 0);
}

/* ==== Sums and maxima of a block ==== */

__device__ __forceinline__ float mpt__larger(float a, float b) { /* NaN wins */
    return a > b || a != a ? a : b;
}

/* Of the values of all threads of a block of whole warps; every thread gets the result. All threads
   take part. The tree depends on blockDim alone. */
template <typename T> __device__ T mpt__block_sum(T x) {
    __shared__ T part[MPT__WARP];
    for (int step = MPT__WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(MPT__ALL, x, step);
    __syncthreads(); /* `part` may still be read for an earlier sum */
    if (threadIdx.x % MPT__WARP == 0) part[threadIdx.x / MPT__WARP] = x;
    __syncthreads();
    x = threadIdx.x % MPT__WARP < blockDim.x / MPT__WARP ? part[threadIdx.x % MPT__WARP] : (T)0;
    for (int step = MPT__WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(MPT__ALL, x, step);
    return x;
}

__device__ __forceinline__ float mpt__block_max(float x) {
    __shared__ float part[MPT__WARP];
    for (int step = MPT__WARP / 2; step > 0; step /= 2)
        x = mpt__larger(x, __shfl_xor_sync(MPT__ALL, x, step));
    __syncthreads();
    if (threadIdx.x % MPT__WARP == 0) part[threadIdx.x / MPT__WARP] = x;
    __syncthreads();
    x = threadIdx.x % MPT__WARP < blockDim.x / MPT__WARP ? part[threadIdx.x % MPT__WARP]
                                                         : -INFINITY;
    for (int step = MPT__WARP / 2; step > 0; step /= 2)
        x = mpt__larger(x, __shfl_xor_sync(MPT__ALL, x, step));
    return x;
}

/* ==== Arrays in host code ==== */

long long mpt__numel(const mpt__operand &operand) {
    long long count = 1;
    for (int d = 0; d < operand.rank; d++) {
        if (operand.shape[d] == 0) return 0; /* the others may be too large to multiply */
    }
    for (int d = 0; d < operand.rank; d++) count *= operand.shape[d];
    return count;
}

mpt__array mpt__array_of(const mpt__cuda_call *call, int position) {
    const mpt__operand &operand = call->launch->operand[position];
    mpt__array array;
    memset(&array, 0, sizeof array);
    array.data = position < call->launch->n_operands ? call->data[position] : NULL;
    array.dtype = operand.dtype;
    array.accumulate = operand.access == MPT__ACCUMULATE;
    for (int d = 0; d < operand.rank; d++) array.stride[d] = operand.stride[d];
    return array;
}

/* The space of arrays of one shape, that of operand `position`: leaves out dimensions of size 1 and
   merges neighbours where the strides of all `n` arrays allow it. */
mpt__space mpt__space_of(const mpt__cuda_call *call, int position, mpt__array *const *arrays,
                         int n) {
    const mpt__operand &operand = call->launch->operand[position];
    mpt__space space;
    memset(&space, 0, sizeof space);
    space.count = mpt__numel(operand);
    if (space.count == 0) return space;
    for (int d = 0; d < operand.rank; d++) {
        const long long size = operand.shape[d];
        bool merges = space.rank > 0;
        if (size == 1) continue;
        for (int i = 0; i < n && merges; i++)
            merges = arrays[i]->stride[space.rank - 1] == size * arrays[i]->stride[d];
        if (!merges) space.rank++;
        space.shape[space.rank - 1] = merges ? space.shape[space.rank - 1] * size : size;
        for (int i = 0; i < n; i++) arrays[i]->stride[space.rank - 1] = arrays[i]->stride[d];
    }
    return space;
}

/* Whether an array can be walked in eights by mpt__load8: one dimension, neighbours adjacent, 16-byte
   aligned. */
bool mpt__in_eights(const mpt__space &space, const mpt__array &array) {
    return space.rank <= 1 && (space.count <= 1 || array.stride[0] == 1) &&
           (uintptr_t)array.data % 16 == 0;
}

/* Blocks for `count` pieces of work of one thread each, in a loop where there are more than the card
   runs at once. No result may depend on it. */
unsigned int mpt__blocks(const mpt__cuda_call *call, long long count) {
    const long long most = (long long)call->cuda->processors * 8;
    const long long blocks = (count + MPT__THREADS - 1) / MPT__THREADS;
    return (unsigned int)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* The loop of a kernel over `count` pieces of work. */
#define MPT__EACH(i, count)                                                          \
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (long long)gridDim.x * blockDim.x)

/* ==== Elementwise: FILL, COPY, UNARY, BINARY, SCALE_LOSS, DROPOUT, RANDOM ==== */

/* Arrays of one shape, walked together: `eights` pieces of eight neighbours, then the elements that
   are left, one by one. */
struct mpt__walk {
    mpt__space space;
    mpt__array array[3];
    long long eights;
};

/* fp32 and halves: what mpt__load8 takes in 128-bit pieces. */
bool mpt__is_streamed(int dtype) {
    return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* Whether neighbours in the innermost dimension lie together and aligned, or are one and the same
   element. */
bool mpt__has_eights(const mpt__space &space, const mpt__array &array) {
    const int inner = space.rank - 1;
    bool dense = array.stride[inner] == 1 && mpt__is_streamed(array.dtype) &&
                 (uintptr_t)array.data % 16 == 0;
    for (int d = 0; d < inner; d++) dense = dense && array.stride[d] % 8 == 0;
    return dense || array.stride[inner] == 0;
}

/* Over operands 0 .. n-1. */
mpt__walk mpt__walk_over(const mpt__cuda_call *call, int n) {
    mpt__walk walk;
    mpt__array *arrays[3];
    memset(&walk, 0, sizeof walk);
    for (int i = 0; i < n; i++) {
        walk.array[i] = mpt__array_of(call, i);
        arrays[i] = &walk.array[i];
    }
    walk.space = mpt__space_of(call, 0, arrays, n);
    const int rank = walk.space.rank;
    bool eights = rank == 1 || (rank > 1 && walk.space.shape[rank - 1] % 8 == 0);
    for (int i = 0; i < n && eights; i++) eights = mpt__has_eights(walk.space, walk.array[i]);
    walk.eights = eights ? walk.space.count / 8 : 0;
    return walk;
}

unsigned int mpt__walk_blocks(const mpt__cuda_call *call, const mpt__walk &walk) {
    const long long single = walk.space.count - 8 * walk.eights;
    return mpt__blocks(call, walk.eights > single ? walk.eights : single);
}

/* Where element `index` lies in each of the first N arrays. */
template <int N>
__device__ __forceinline__ void mpt__locate_in(const mpt__walk &walk, long long index,
                                               long long (&at)[N]) {
    for (int i = 0; i < N; i++) at[i] = 0;
    for (int d = walk.space.rank - 1; d >= 0; d--) {
        const long long coordinate = d > 0 ? index % walk.space.shape[d] : index;
        for (int i = 0; i < N; i++) at[i] += coordinate * walk.array[i].stride[d];
        if (d > 0) index /= walk.space.shape[d];
    }
}

/* N = 8 neighbours, or N = 1 element. */
template <int N>
__device__ __forceinline__ void mpt__read(const void *data, int dtype, long long at,
                                          float (&x)[N]) {
    if (N == 8) {
        mpt__load8(data, dtype, at, x);
    } else {
        x[0] = mpt__load(data, dtype, at);
    }
}

template <int N>
__device__ __forceinline__ void mpt__write(void *data, int dtype, long long at,
                                           const float (&x)[N]) {
    if (N == 8) {
        mpt__store8(data, dtype, at, x);
    } else {
        mpt__store(data, dtype, at, x[0]);
    }
}

/* The same of array k of a walk, which may be broadcast. */
template <int N>
__device__ __forceinline__ void mpt__take(const mpt__walk &walk, int k, long long at,
                                          float (&x)[N]) {
    const mpt__array &array = walk.array[k];
    if (N == 8 && array.stride[walk.space.rank - 1] == 0) {
        const float same = mpt__load(array.data, array.dtype, at);
        for (int i = 0; i < N; i++) x[i] = same;
    } else {
        mpt__read<N>(array.data, array.dtype, at, x);
    }
}

template <int N>
__device__ __forceinline__ void mpt__give(const mpt__walk &walk, int k, long long at,
                                          float (&x)[N]) {
    if (N == 8) {
        mpt__put8(walk.array[k], at, x);
    } else {
        mpt__put(walk.array[k], at, x[0]);
    }
}

/* Elements as double and as int64, for what fp32 would not keep. */
__device__ __forceinline__ double mpt__load_f64(const void *data, int dtype, long long at) {
    switch (dtype) {
    case MPT_F64: return ((const double *)data)[at];
    case MPT_I64: return (double)((const long long *)data)[at];
    case MPT_I32: return (double)((const int *)data)[at];
    default: return (double)mpt__load(data, dtype, at);
    }
}

__device__ __forceinline__ void mpt__store_f64(void *data, int dtype, long long at, double x) {
    switch (dtype) {
    case MPT_F64: ((double *)data)[at] = x; break;
    case MPT_I64: ((long long *)data)[at] = x == x ? __double2ll_rz(x) : 0; break;
    case MPT_I32: ((int *)data)[at] = x == x ? __double2int_rz(x) : 0; break;
    case MPT_BOOL: ((unsigned char *)data)[at] = x != 0; break;
    default: mpt__store(data, dtype, at, (float)x); break;
    }
}

__device__ __forceinline__ long long mpt__load_i64(const void *data, int dtype, long long at) {
    switch (dtype) {
    case MPT_I64: return ((const long long *)data)[at];
    case MPT_I32: return ((const int *)data)[at];
    case MPT_BOOL: return ((const unsigned char *)data)[at] != 0;
    default: return ((const unsigned char *)data)[at];
    }
}

/* A narrower integer keeps the low bits. */
__device__ __forceinline__ void mpt__store_i64(void *data, int dtype, long long at, long long x) {
    switch (dtype) {
    case MPT_I64: ((long long *)data)[at] = x; break;
    case MPT_I32: ((int *)data)[at] = (int)(unsigned int)x; break;
    case MPT_BOOL: ((unsigned char *)data)[at] = x != 0; break;
    default: ((unsigned char *)data)[at] = (unsigned char)x; break;
    }
}

__global__ void mpt__fill_kernel(const mpt__walk walk, double value) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) {
        long long at[1];
        float x[8];
        for (int k = 0; k < 8; k++) x[k] = (float)value;
        mpt__locate_in<1>(walk, 8 * i, at);
        mpt__give<8>(walk, 0, at[0], x);
    }
    MPT__EACH(i, walk.space.count - done) {
        long long at[1];
        mpt__locate_in<1>(walk, done + i, at);
        mpt__store_f64(walk.array[0].data, walk.array[0].dtype, at[0], value);
    }
}

mpt_status mpt__cuda_fill(const mpt__cuda_call *call) {
    const mpt__walk walk = mpt__walk_over(call, 1);
    if (walk.space.count == 0) return MPT_OK;
    mpt__fill_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(
        walk, call->launch->imm[0]);
    return MPT_OK;
}

/* ---- Copies ---- */

__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, float &x) {
    x = mpt__load(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, double &x) {
    x = mpt__load_f64(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, long long &x) {
    x = mpt__load_i64(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, float x) {
    mpt__put(array, at, x);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, double x) {
    if (array.accumulate) x = mpt__load_f64(array.data, array.dtype, at) + x;
    mpt__store_f64(array.data, array.dtype, at, x);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, long long x) {
    unsigned long long sum = (unsigned long long)x; /* modulo 2^64 */
    if (array.accumulate) sum += (unsigned long long)mpt__load_i64(array.data, array.dtype, at);
    mpt__store_i64(array.data, array.dtype, at, (long long)sum);
}

/* Through T: double where one side is F64, int64 between integers, fp32 otherwise. */
template <typename T> __global__ void mpt__copy_kernel(const mpt__walk walk) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) { /* none but where T is float */
        long long at[2];
        float x[8];
        mpt__locate_in<2>(walk, 8 * i, at);
        mpt__take<8>(walk, 0, at[0], x);
        mpt__give<8>(walk, 1, at[1], x);
    }
    MPT__EACH(i, walk.space.count - done) {
        long long at[2];
        T x;
        mpt__locate_in<2>(walk, done + i, at);
        mpt__fetch(walk.array[0], at[0], x);
        mpt__add_into(walk.array[1], at[1], x);
    }
}

#define MPT__TILE 64 /* elements of a side; a row of halves is 128 bytes */

/* A copy between arrays that are dense in different dimensions: `from` in one of `columns`
   elements, `to` in one of `rows`. */
struct mpt__transposition {
    mpt__space rest; /* the other dimensions */
    mpt__array from, to;
    long long columns, rows, from_step, to_step; /* of from along rows, of to along columns */
};

__global__ void mpt__transpose_kernel(const mpt__transposition w) {
    __shared__ float tile[MPT__TILE][MPT__TILE + 1];
    const long long across = (w.columns + MPT__TILE - 1) / MPT__TILE;
    const long long down = (w.rows + MPT__TILE - 1) / MPT__TILE;
    const int x = threadIdx.x % MPT__TILE, y = threadIdx.x / MPT__TILE;
    for (long long t = blockIdx.x; t < w.rest.count * across * down; t += gridDim.x) {
        const long long column = t % across * MPT__TILE, row = t / across % down * MPT__TILE;
        const long long from = mpt__locate(w.rest, w.from.stride, t / across / down) + column;
        const long long to = mpt__locate(w.rest, w.to.stride, t / across / down) + row;
        for (int j = y; j < MPT__TILE; j += MPT__THREADS / MPT__TILE) {
            if (column + x < w.columns && row + j < w.rows)
                tile[j][x] =
                    mpt__load(w.from.data, w.from.dtype, from + x + (row + j) * w.from_step);
        }
        __syncthreads();
        for (int j = y; j < MPT__TILE; j += MPT__THREADS / MPT__TILE) {
            if (column + j < w.columns && row + x < w.rows)
                mpt__put(w.to, to + x + (column + j) * w.to_step, tile[x][j]);
        }
        __syncthreads();
    }
}

/* False where the copy is not of this kind. */
bool mpt__transpose(const mpt__cuda_call *call, const mpt__walk &walk) {
    const int least = 16; /* below, most of a tile would be empty */
    int dense[2] = {-1, -1};
    mpt__transposition w;
    memset(&w, 0, sizeof w);
    w.from = walk.array[0];
    w.to = walk.array[1];
    for (int d = 0; d < walk.space.rank; d++) {
        if (walk.space.shape[d] < least) continue;
        if (w.from.stride[d] == 1) dense[0] = d;
        if (w.to.stride[d] == 1) dense[1] = d;
    }
    if (dense[0] < 0 || dense[1] < 0 || dense[0] == dense[1]) return false;
    w.columns = walk.space.shape[dense[0]];
    w.rows = walk.space.shape[dense[1]];
    w.from_step = w.from.stride[dense[1]];
    w.to_step = w.to.stride[dense[0]];
    w.rest.count = walk.space.count / (w.columns * w.rows);
    for (int d = 0; d < walk.space.rank; d++) {
        if (d == dense[0] || d == dense[1]) continue;
        const int rank = w.rest.rank++;
        w.rest.shape[rank] = walk.space.shape[d];
        w.from.stride[rank] = w.from.stride[d];
        w.to.stride[rank] = w.to.stride[d];
    }
    mpt__transpose_kernel<<<mpt__blocks(call, walk.space.count / 16), MPT__THREADS, 0,
                            call->stream>>>(w);
    return true;
}

bool mpt__is_integer(int dtype) {
    return dtype == MPT_I64 || dtype == MPT_I32 || dtype == MPT_U8 || dtype == MPT_BOOL;
}

size_t mpt__bytes_of(int dtype) {
    switch (dtype) {
    case MPT_F64:
    case MPT_I64: return 8;
    case MPT_F32:
    case MPT_I32: return 4;
    case MPT_F16:
    case MPT_BF16: return 2;
    default: return 1;
    }
}

mpt_status mpt__cuda_copy(const mpt__cuda_call *call) {
    mpt__walk walk = mpt__walk_over(call, 2);
    const mpt__array &from = walk.array[0], &to = walk.array[1];
    const mpt__space &space = walk.space;
    const bool flat =
        space.rank == 0 || (space.rank == 1 && from.stride[0] == 1 && to.stride[0] == 1);
    const bool wide = from.dtype == MPT_F64 || to.dtype == MPT_F64;
    const bool integers = mpt__is_integer(from.dtype) && mpt__is_integer(to.dtype);
    if (space.count == 0) return MPT_OK;
    if (wide) walk.eights = 0; /* those go through fp32 */
    const unsigned int blocks = mpt__walk_blocks(call, walk);
    if (flat && from.dtype == to.dtype && !to.accumulate) {
        cudaMemcpyAsync(to.data, from.data, (size_t)space.count * mpt__bytes_of(to.dtype),
                        cudaMemcpyDeviceToDevice, call->stream);
    } else if (wide) {
        mpt__copy_kernel<double><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    } else if (integers) {
        mpt__copy_kernel<long long><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    } else if (!mpt__transpose(call, walk)) {
        mpt__copy_kernel<float><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    }
    return MPT_OK;
}

/* ---- Functions ---- */

#define MPT__SQRT_HALF 0.70710678118654752f    /* 1 / sqrt(2) */
#define MPT__SQRT_2_BY_PI 0.79788456080286536f /* sqrt(2 / pi) */
#define MPT__NORMAL_PEAK 0.39894228040143268f  /* 1 / sqrt(2 pi) */
#define MPT__GELU_CUBE 0.044715f

__device__ __forceinline__ float mpt__sigmoid(float a) { /* without loss on either side */
    const float e = expf(-fabsf(a));
    return (a < 0 ? e : 1.0f) / (e + 1.0f);
}

__device__ __forceinline__ float mpt__gelu_inner(float a) {
    return MPT__SQRT_2_BY_PI * (a + MPT__GELU_CUBE * a * a * a);
}

__device__ __forceinline__ float mpt__gelu_slope(float a) {
    const float below = 0.5f * (1.0f + erff(a * MPT__SQRT_HALF));
    return below + a * MPT__NORMAL_PEAK * expf(-0.5f * a * a);
}

__device__ __forceinline__ float mpt__gelu_tanh_slope(float a) {
    const float t = tanhf(mpt__gelu_inner(a)), rest = 1.0f - t * t, slope = 0.5f * (1.0f + t);
    if (rest == 0) return slope; /* the other factor may be infinite here */
    return slope + 0.5f * a * rest * MPT__SQRT_2_BY_PI * (1.0f + 3.0f * MPT__GELU_CUBE * a * a);
}

/* R(name, value): as in 30_cpu_ref.c; a the element, b the second one, c the constant. */
#define MPT__UNARY_FUNCTIONS(R)                                 \
    R(NEG, -a)                                                  \
    R(EXP, expf(a))                                             \
    R(LOG, logf(a))                                             \
    R(SQRT, sqrtf(a))                                           \
    R(RELU, a > 0 || a != a ? a : 0.0f)                         \
    R(GELU, 0.5f * a * (1.0f + erff(a * MPT__SQRT_HALF)))       \
    R(GELU_TANH, 0.5f * a * (1.0f + tanhf(mpt__gelu_inner(a)))) \
    R(TANH, tanhf(a))                                           \
    R(SIGMOID, mpt__sigmoid(a))                                 \
    R(ADD_SCALAR, a + c)                                        \
    R(MUL_SCALAR, a *c)                                         \
    R(MUL_SLOT, a *c)                                           \
    R(ISNAN, a != a ? 1.0f : 0.0f)                              \
    R(ISINF, fabsf(a) == INFINITY ? 1.0f : 0.0f)

#define MPT__BINARY_FUNCTIONS(R)                      \
    R(ADD, a + b)                                     \
    R(SUB, a - b)                                     \
    R(MUL, a *b)                                      \
    R(DIV, a / b)                                     \
    R(EQUAL, a == b ? 1.0f : 0.0f)                    \
    R(RELU_BACKWARD, a <= 0 ? 0.0f : b)               \
    R(GELU_BACKWARD, b *mpt__gelu_slope(a))           \
    R(GELU_TANH_BACKWARD, b *mpt__gelu_tanh_slope(a)) \
    R(TANH_BACKWARD, b *(1.0f - a * a))               \
    R(SIGMOID_BACKWARD, b *a *(1.0f - a))             \
    R(SQRT_BACKWARD, b / (2.0f * a))

template <int N>
__device__ __forceinline__ void mpt__unary_of(int function, float (&x)[N], float c) {
    switch (function) {
#define MPT__ROW(id, value)           \
    case MPT__FN_##id:                \
        for (int i = 0; i < N; i++) { \
            const float a = x[i];     \
            x[i] = value;             \
        }                             \
        break;
        MPT__UNARY_FUNCTIONS(MPT__ROW)
#undef MPT__ROW
    default: break;
    }
}

template <int N>
__device__ __forceinline__ void mpt__binary_of(int function, float (&x)[N], const float (&y)[N]) {
    switch (function) {
#define MPT__ROW(id, value)                 \
    case MPT__FN_##id:                      \
        for (int i = 0; i < N; i++) {       \
            const float a = x[i], b = y[i]; \
            x[i] = value;                   \
        }                                   \
        break;
        MPT__BINARY_FUNCTIONS(MPT__ROW)
#undef MPT__ROW
    default: break;
    }
}

__device__ __forceinline__ bool mpt__is_finite(float x) { return fabsf(x) < INFINITY; }

struct mpt__unary {
    int function;
    float c;
    const mpt__scalar *slot; /* NULL: c stands there */
    mpt__scalar *nonfinite;  /* NULL, or set to 1 where an operand is not finite */
};

template <int N>
__device__ __forceinline__ void mpt__unary_at(const mpt__walk &walk, const mpt__unary &unary,
                                              float c, long long index) {
    long long at[2];
    float x[N];
    mpt__locate_in<2>(walk, index, at);
    mpt__take<N>(walk, 0, at[0], x);
    if (unary.nonfinite != NULL) {
        for (int i = 0; i < N; i++) {
            if (!mpt__is_finite(x[i])) atomicExch((unsigned long long *)&unary.nonfinite->i, 1ull);
        }
    }
    mpt__unary_of<N>(unary.function, x, c);
    mpt__give<N>(walk, 1, at[1], x);
}

__global__ void mpt__unary_kernel(const mpt__walk walk, const mpt__unary unary) {
    const long long done = 8 * walk.eights;
    const float c = unary.slot != NULL ? (float)unary.slot->f : unary.c;
    MPT__EACH(i, walk.eights) mpt__unary_at<8>(walk, unary, c, 8 * i);
    MPT__EACH(i, walk.space.count - done) mpt__unary_at<1>(walk, unary, c, done + i);
}

mpt_status mpt__run_unary(const mpt__cuda_call *call, mpt__scalar *nonfinite) {
    const mpt__launch *launch = call->launch;
    const mpt__walk walk = mpt__walk_over(call, 2);
    mpt__unary unary;
    if (walk.space.count == 0) return MPT_OK;
    memset(&unary, 0, sizeof unary);
    unary.function = launch->function;
    unary.c = (float)launch->imm[0];
    unary.slot = launch->function == MPT__FN_MUL_SLOT ? &call->scalars[launch->slot[0]] : NULL;
    unary.nonfinite = nonfinite;
    mpt__unary_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, unary);
    return MPT_OK;
}

mpt_status mpt__cuda_unary(const mpt__cuda_call *call) { return mpt__run_unary(call, NULL); }

/* A finite loss may overflow by the scale: what counts is the loss. */
mpt_status mpt__cuda_scale_loss(const mpt__cuda_call *call) {
    return mpt__run_unary(call, &call->scalars[call->launch->slot[1]]);
}

template <int N>
__device__ __forceinline__ void mpt__binary_at(const mpt__walk &walk, int function,
                                               long long index) {
    long long at[3];
    float x[N], y[N];
    mpt__locate_in<3>(walk, index, at);
    mpt__take<N>(walk, 0, at[0], x);
    mpt__take<N>(walk, 1, at[1], y);
    mpt__binary_of<N>(function, x, y);
    mpt__give<N>(walk, 2, at[2], x);
}

__global__ void mpt__binary_kernel(const mpt__walk walk, int function) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) mpt__binary_at<8>(walk, function, 8 * i);
    MPT__EACH(i, walk.space.count - done) mpt__binary_at<1>(walk, function, done + i);
}

__global__ void mpt__equal_integers_kernel(const mpt__walk walk) {
    MPT__EACH(i, walk.space.count) {
        long long at[3], x, y;
        mpt__locate_in<3>(walk, i, at);
        mpt__fetch(walk.array[0], at[0], x);
        mpt__fetch(walk.array[1], at[1], y);
        mpt__put(walk.array[2], at[2], x == y ? 1.0f : 0.0f);
    }
}

mpt_status mpt__cuda_binary(const mpt__cuda_call *call) {
    const int function = call->launch->function;
    const mpt__walk walk = mpt__walk_over(call, 3);
    const unsigned int blocks = mpt__walk_blocks(call, walk);
    if (walk.space.count == 0) return MPT_OK;
    if (function == MPT__FN_EQUAL && mpt__is_integer(walk.array[0].dtype) &&
        mpt__is_integer(walk.array[1].dtype)) {
        mpt__equal_integers_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    } else {
        mpt__binary_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk, function);
    }
    return MPT_OK;
}

/* ---- Random numbers: the bits of 12_random.c and 15_math.c ---- */

struct mpt__key {
    unsigned long long seed, stream, call;
    const mpt__scalar *step; /* NULL, or mixed into the stream */
};

mpt__key mpt__key_of(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__key key;
    key.seed = launch->rng.seed;
    key.stream = launch->rng.stream;
    key.call = launch->rng.call;
    key.step = launch->slot[0] != 0 ? &call->scalars[launch->slot[0]] : NULL;
    return key;
}

__device__ __forceinline__ unsigned long long mpt__hash_mix(unsigned long long x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

__device__ __forceinline__ unsigned long long mpt__hash_u64(unsigned long long a,
                                                            unsigned long long b) {
    return mpt__hash_mix(mpt__hash_mix(a + 0x9e3779b97f4a7c15ull) + b);
}

__device__ __forceinline__ unsigned long long mpt__sequence_of(const mpt__key &key) {
    unsigned long long stream = key.stream;
    if (key.step != NULL) stream = mpt__hash_u64(stream, (unsigned long long)key.step->i);
    return mpt__hash_u64(stream, key.call);
}

/* Words 4 block .. 4 block + 3 of a sequence: Philox 4x32-10. */
__device__ __forceinline__ void mpt__philox(unsigned long long seed, unsigned long long sequence,
                                            long long block, unsigned int *word) {
    unsigned int c0 = (unsigned int)block, c1 = (unsigned int)(block >> 32);
    unsigned int c2 = (unsigned int)sequence, c3 = (unsigned int)(sequence >> 32);
    unsigned int k0 = (unsigned int)seed, k1 = (unsigned int)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const unsigned long long p0 = (unsigned long long)0xd2511f53u * c0;
        const unsigned long long p1 = (unsigned long long)0xcd9e8d57u * c2;
        c0 = (unsigned int)(p1 >> 32) ^ c1 ^ k0;
        c1 = (unsigned int)p1;
        c2 = (unsigned int)(p0 >> 32) ^ c3 ^ k1;
        c3 = (unsigned int)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

struct mpt__dropout {
    mpt__key key;
    unsigned int threshold; /* words from here on keep */
    float factor;
    bool any;
};

__device__ __forceinline__ float mpt__kept(const mpt__dropout &dropout, unsigned int word,
                                           float x) {
    return dropout.any && word >= dropout.threshold ? __fmul_rn(x, dropout.factor) : 0.0f;
}

/* Where there are no eights, in fours: what one block of random words is for. */
__global__ void mpt__dropout_kernel(const mpt__walk walk, const mpt__dropout dropout) {
    const unsigned long long sequence = mpt__sequence_of(dropout.key);
    const long long done = 8 * walk.eights, count = walk.space.count;
    MPT__EACH(i, walk.eights) {
        unsigned int word[8];
        long long at[2];
        float x[8];
        mpt__philox(dropout.key.seed, sequence, 2 * i, word);
        mpt__philox(dropout.key.seed, sequence, 2 * i + 1, word + 4);
        mpt__locate_in<2>(walk, 8 * i, at);
        mpt__take<8>(walk, 0, at[0], x);
        for (int k = 0; k < 8; k++) x[k] = mpt__kept(dropout, word[k], x[k]);
        mpt__give<8>(walk, 1, at[1], x);
    }
    MPT__EACH(i, (count - done + 3) / 4) {
        const long long first = done + 4 * i;
        unsigned int word[4];
        mpt__philox(dropout.key.seed, sequence, first / 4, word);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            long long at[2];
            float x;
            if (first + k >= count) continue;
            mpt__locate_in<2>(walk, first + k, at);
            mpt__fetch(walk.array[0], at[0], x);
            mpt__put(walk.array[1], at[1], mpt__kept(dropout, word[k], x));
        }
    }
}

/* An element is kept when its word is p 2^32 or more; where no word is, as for a p of NaN, none. */
mpt_status mpt__cuda_dropout(const mpt__cuda_call *call) {
    const double p = call->launch->imm[0], lowest = p * 4294967296.0;
    const mpt__walk walk = mpt__walk_over(call, 2);
    mpt__dropout dropout;
    if (walk.space.count == 0) return MPT_OK;
    memset(&dropout, 0, sizeof dropout);
    dropout.key = mpt__key_of(call);
    dropout.any = lowest <= 4294967295.0;
    dropout.factor = dropout.any ? (float)(1 / (1 - p)) : 0.0f;
    dropout.threshold = dropout.any && lowest > 0 ? (unsigned int)ceil(lowest) : 0;
    mpt__dropout_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk,
                                                                                         dropout);
    return MPT_OK;
}

/* The natural logarithm of a number in [2^-32, 1]. Here and below all products are __dmul_rn, so
   that none is contracted with a sum. */
__device__ double mpt__ln(double x) {
    const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
    const unsigned long long offset = 0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull;
    const long long k = (long long)((bits + offset) >> 52) - 1023;
    const double m = __longlong_as_double((long long)(bits - ((unsigned long long)k << 52)));
    const double f = m - 1.0, s = f / (2.0 + f), z = __dmul_rn(s, s), e = (double)k;
    double sum = 1.0 / 23;
    for (int i = 21; i >= 3; i -= 2) sum = __dmul_rn(sum, z) + 1.0 / i;
    sum = __dmul_rn(__dmul_rn(__dmul_rn(2.0, s), z), sum);
    sum = __dmul_rn(2.0, s) + (sum + __dmul_rn(e, 0x1.cf79abc9e3b3ap-40));
    return __dmul_rn(e, 0x1.62e42fefap-1) + sum;
}

/* Sine and cosine of quadrant * pi/2 + r, |r| <= pi/4. */
__device__ void mpt__sincos_quadrant(unsigned int quadrant, double r, double *sine,
                                     double *cosine) {
    const double odd[8] = {-1.0 / 6,
                           1.0 / 120,
                           -1.0 / 5040,
                           1.0 / 362880,
                           -1.0 / 39916800,
                           1.0 / 6227020800.0,
                           -1.0 / 1307674368000.0,
                           1.0 / 355687428096000.0};
    const double even[7] = {
        1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const double z = __dmul_rn(r, r), half = __dmul_rn(0.5, z), base = 1.0 - half;
    double s = odd[7], c = even[6];
    for (int i = 6; i >= 0; i--) s = __dmul_rn(s, z) + odd[i];
    for (int i = 5; i >= 0; i--) c = __dmul_rn(c, z) + even[i];
    s = r + __dmul_rn(__dmul_rn(r, z), s);
    c = base + (((1.0 - base) - half) + __dmul_rn(__dmul_rn(z, z), c));
    *sine = quadrant & 1 ? c : s;
    *cosine = quadrant & 1 ? s : c;
    if (quadrant & 2) *sine = -*sine;
    if ((quadrant + 1) & 2) *cosine = -*cosine;
}

struct mpt__distribution {
    mpt__key key;
    bool normal;
    float a, b; /* lowest and beyond the highest; or mean and deviation */
};

/* Box and Muller: two words to two elements. */
__device__ __forceinline__ void mpt__normal_pair(const mpt__distribution &d,
                                                 unsigned int radius_bits, unsigned int angle_bits,
                                                 float *x) {
    const double radius =
        sqrt(__dmul_rn(-2.0, mpt__ln(((double)radius_bits + 1.0) / 4294967296.0)));
    const unsigned int quadrant = (angle_bits + 0x20000000u) >> 30;
    const double rest = (double)(int)(angle_bits - (quadrant << 30));
    double sine, cosine;
    mpt__sincos_quadrant(quadrant, __dmul_rn(rest, 1.5707963267948966 / 1073741824.0), &sine,
                         &cosine);
    x[0] = (float)((double)d.a + __dmul_rn((double)d.b, __dmul_rn(cosine, radius)));
    x[1] = (float)((double)d.a + __dmul_rn((double)d.b, __dmul_rn(sine, radius)));
}

/* Elements 4 block .. 4 block + 3. */
__device__ __forceinline__ void mpt__draw(const mpt__distribution &d, unsigned long long sequence,
                                          long long block, float *x) {
    const float range = d.b - d.a;
    unsigned int word[4];
    mpt__philox(d.key.seed, sequence, block, word);
    if (d.normal) {
        mpt__normal_pair(d, word[0], word[1], x);
        mpt__normal_pair(d, word[2], word[3], x + 2);
        return;
    }
    for (int k = 0; k < 4; k++) {
        const float u = (float)(word[k] >> 8) * (1.0f / 16777216.0f);
        const float value = __fadd_rn(d.a, __fmul_rn(range, u));
        x[k] = value < d.b ? value : d.a; /* the sum may round up to b */
    }
}

__global__ void mpt__random_kernel(const mpt__walk walk, const mpt__distribution d) {
    const unsigned long long sequence = mpt__sequence_of(d.key);
    const long long done = 8 * walk.eights, count = walk.space.count;
    MPT__EACH(i, walk.eights) {
        long long at[1];
        float x[8];
        mpt__draw(d, sequence, 2 * i, x);
        mpt__draw(d, sequence, 2 * i + 1, x + 4);
        mpt__locate_in<1>(walk, 8 * i, at);
        mpt__give<8>(walk, 0, at[0], x);
    }
    MPT__EACH(i, (count - done + 3) / 4) {
        const long long first = done + 4 * i;
        float x[4];
        mpt__draw(d, sequence, first / 4, x);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            long long at[1];
            if (first + k >= count) continue;
            mpt__locate_in<1>(walk, first + k, at);
            mpt__put(walk.array[0], at[0], x[k]);
        }
    }
}

mpt_status mpt__cuda_random(const mpt__cuda_call *call) {
    const mpt__walk walk = mpt__walk_over(call, 1);
    mpt__distribution d;
    if (walk.space.count == 0) return MPT_OK;
    memset(&d, 0, sizeof d);
    d.key = mpt__key_of(call);
    d.normal = call->launch->function == MPT__FN_NORMAL;
    d.a = (float)call->launch->imm[0];
    d.b = (float)call->launch->imm[1];
    mpt__random_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, d);
    return MPT_OK;
}

/* ==== Along an axis: ARGMAX, SCATTER_AXIS, FIND_NONFINITE ==== */

struct mpt__argmax {
    mpt__space lines;
    mpt__array from, index, value; /* strides over the lines */
    long long n, stride;           /* along the dimension */
};

/* Whether (x, i) comes before (y, j): NaN before numbers, the larger one, the first one. */
__device__ __forceinline__ bool mpt__beats(float x, long long i, float y, long long j) {
    const bool x_nan = x != x, y_nan = y != y;
    if (x_nan != y_nan) return x_nan;
    return x > y || ((x_nan || x == y) && i < j);
}

/* LANES neighbours share a line. */
template <int LANES> __global__ void mpt__argmax_kernel(const mpt__argmax w) {
    const int lane = threadIdx.x % LANES;
    const long long step = (long long)gridDim.x * blockDim.x / LANES;
    long long line = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    for (; line < w.lines.count; line += step) {
        const long long from = mpt__locate(w.lines, w.from.stride, line);
        float best = -INFINITY;
        long long where = w.n;
        for (long long i = lane; i < w.n; i += LANES) {
            const float x = mpt__load(w.from.data, w.from.dtype, from + i * w.stride);
            if (mpt__beats(x, i, best, where)) best = x, where = i;
        }
        for (int by = LANES / 2; by > 0; by /= 2) {
            const float x = __shfl_xor_sync(MPT__ALL, best, by);
            const long long i = __shfl_xor_sync(MPT__ALL, where, by);
            if (mpt__beats(x, i, best, where)) best = x, where = i;
        }
        if (lane != 0) continue;
        if (w.index.data != NULL)
            mpt__store_i64(w.index.data, w.index.dtype, mpt__locate(w.lines, w.index.stride, line),
                           where);
        if (w.value.data != NULL)
            mpt__put(w.value, mpt__locate(w.lines, w.value.stride, line), best);
    }
}

mpt_status mpt__cuda_argmax(const mpt__cuda_call *call) {
    const mpt__operand &o = call->launch->operand[0];
    const int axis = (int)call->launch->index[0];
    mpt__argmax w;
    mpt__array *arrays[3] = {&w.from, &w.index, &w.value};
    memset(&w, 0, sizeof w);
    w.from = mpt__array_of(call, 0);
    w.index = mpt__array_of(call, 1);
    w.value = mpt__array_of(call, 2);
    w.n = o.shape[axis];
    w.stride = o.stride[axis];
    if (w.n == 0 || (w.index.data == NULL && w.value.data == NULL)) return MPT_OK;
    w.lines = mpt__space_of(call, w.index.data != NULL ? 1 : 2, arrays, 3);
    if (w.lines.count == 0) return MPT_OK;
    /* A warp for a line where its elements are neighbours, or lines are too few for the card. */
    if (w.n >= MPT__WARP && (w.stride == 1 || w.lines.count < 4096)) {
        mpt__argmax_kernel<MPT__WARP>
            <<<mpt__blocks(call, w.lines.count * MPT__WARP), MPT__THREADS, 0, call->stream>>>(w);
    } else {
        mpt__argmax_kernel<1>
            <<<mpt__blocks(call, w.lines.count), MPT__THREADS, 0, call->stream>>>(w);
    }
    return MPT_OK;
}

struct mpt__scatter {
    mpt__space space;
    mpt__array index, value, to, axis; /* axis: no data; locates the index along the dimension */
};

__global__ void mpt__scatter_axis_kernel(const mpt__scatter w) {
    MPT__EACH(i, w.space.count) {
        const long long k = mpt__locate(w.space, w.axis.stride, i);
        const long long index =
            mpt__load_i64(w.index.data, w.index.dtype, mpt__locate(w.space, w.index.stride, i));
        float x = 0;
        if (index == k) mpt__fetch(w.value, mpt__locate(w.space, w.value.stride, i), x);
        mpt__put(w.to, mpt__locate(w.space, w.to.stride, i), x);
    }
}

mpt_status mpt__cuda_scatter_axis(const mpt__cuda_call *call) {
    const int axis = (int)call->launch->index[0];
    mpt__scatter w;
    mpt__array *arrays[4] = {&w.index, &w.value, &w.to, &w.axis};
    memset(&w, 0, sizeof w);
    w.index = mpt__array_of(call, 0);
    w.value = mpt__array_of(call, 1);
    w.to = mpt__array_of(call, 2);
    w.index.stride[axis] = w.value.stride[axis] = 0;
    w.axis.stride[axis] = 1;
    w.space = mpt__space_of(call, 2, arrays, 4);
    if (w.space.count == 0) return MPT_OK;
    mpt__scatter_axis_kernel<<<mpt__blocks(call, w.space.count), MPT__THREADS, 0, call->stream>>>(
        w);
    return MPT_OK;
}

/* `first` begins as -1, which is the largest of the unsigned. */
__global__ void mpt__find_nonfinite_kernel(const mpt__walk walk, mpt__scalar *first) {
    const long long done = 8 * walk.eights;
    long long found = -1;
    MPT__EACH(i, walk.eights) {
        long long at[1];
        float x[8];
        mpt__locate_in<1>(walk, 8 * i, at);
        mpt__take<8>(walk, 0, at[0], x);
        for (int k = 7; k >= 0; k--) {
            if (!mpt__is_finite(x[k])) found = 8 * i + k;
        }
        if (found >= 0) break;
    }
    MPT__EACH(i, walk.space.count - done) {
        long long at[1];
        double x;
        if (found >= 0) break;
        mpt__locate_in<1>(walk, done + i, at);
        mpt__fetch(walk.array[0], at[0], x);
        if (!(fabs(x) < INFINITY)) found = done + i;
    }
    if (found >= 0) atomicMin((unsigned long long *)&first->i, (unsigned long long)found);
}

mpt_status mpt__cuda_find_nonfinite(const mpt__cuda_call *call) {
    const mpt__walk walk = mpt__walk_over(call, 1);
    mpt__scalar *first = &call->scalars[call->launch->slot[0]];
    cudaMemsetAsync(first, 0xff, sizeof *first, call->stream);
    if (walk.space.count == 0) return MPT_OK;
    mpt__find_nonfinite_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(
        walk, first);
    return MPT_OK;
}

/* ==== Reductions and softmax: REDUCE, SOFTMAX, SOFTMAX_BACKWARD ==== */

/* ==== Losses: NLL, NLL_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, METRIC_ADD ==== */

/* ==== Matrix products: GEMM ==== */

/* ==== Optimizers and scaler ==== */

/* The segments of a launch, cut into chunks of `size` elements that are numbered through. How many
   chunks there are stands in device memory; the host knows that they are not more than `most`. */
struct mpt__segments {
    const long long *rows;
    long long count, size, most;
};

/* The chunk that a block has under way. */
struct mpt__chunk {
    long long segment, before; /* chunks of earlier segments */
    long long first, count;    /* elements */
};

/* Operand `position` of a launch over the elements of operand 0. Large chunks make fewer partial
   sums, small ones spread a small net over the card. */
mpt__segments mpt__segments_of(const mpt__launch *launch, int position, const void *rows) {
    const long long elements = mpt__numel(launch->operand[0]);
    mpt__segments segments;
    segments.rows = (const long long *)rows;
    segments.count = launch->operand[position].shape[0];
    segments.size = elements > 4 << 20 ? 8192 : 2048;
    segments.most = elements / segments.size + segments.count;
    return segments;
}

unsigned int mpt__segment_blocks(const mpt__cuda_call *call, const mpt__segments &segments) {
    return mpt__blocks(call, segments.most * MPT__THREADS);
}

/* Moves on to chunk `number`, which does not lie before the last one; false behind the end. Every
   warp looks for itself, at 32 segments at a time. */
__device__ bool mpt__seek(const mpt__segments &segments, long long number, mpt__chunk &chunk) {
    const int lane = threadIdx.x % MPT__WARP;
    while (chunk.segment < segments.count) {
        const long long segment = chunk.segment + lane;
        const long long *row = segments.rows + segment * MPT__SEGMENT_FIELDS;
        const long long own = segment < segments.count
                                  ? (row[MPT__SEGMENT_COUNT] + segments.size - 1) / segments.size
                                  : 0;
        long long sum = own;
        for (int step = 1; step < MPT__WARP; step *= 2) {
            const long long earlier = __shfl_up_sync(MPT__ALL, sum, step);
            if (lane >= step) sum += earlier;
        }
        const unsigned int past = __ballot_sync(MPT__ALL, chunk.before + sum > number);
        const int here = past != 0 ? __ffs((int)past) - 1 : MPT__WARP - 1;
        chunk.before += __shfl_sync(MPT__ALL, past != 0 ? sum - own : sum, here);
        chunk.segment += past != 0 ? here : MPT__WARP;
        if (past != 0) {
            row = segments.rows + chunk.segment * MPT__SEGMENT_FIELDS;
            const long long begin = (number - chunk.before) * segments.size;
            chunk.first = row[MPT__SEGMENT_OFFSET] + begin;
            chunk.count = row[MPT__SEGMENT_COUNT] - begin;
            if (chunk.count > segments.size) chunk.count = segments.size;
            return true;
        }
    }
    return false;
}

/* The loop of a block over the pieces of a chunk. */
#define MPT__EACH_OF_BLOCK(i, count) for (long long i = threadIdx.x; i < (count); i += MPT__THREADS)

/* Pieces of eight in a chunk of arrays whose memory is aligned, or not. */
__device__ __forceinline__ long long mpt__chunk_eights(const mpt__chunk &chunk, bool aligned) {
    return aligned && chunk.first % 8 == 0 ? chunk.count / 8 : 0;
}

/* A device scalar used as a factor; slot 0: 1. */
__device__ __forceinline__ float mpt__factor(const mpt__scalar *scalars, int slot) {
    return slot != 0 ? (float)scalars[slot].f : 1.0f;
}

struct mpt__slots {
    unsigned short at[MPT__MAX_SLOTS];
};

mpt__slots mpt__slots_of(const mpt__launch *launch) {
    mpt__slots slots;
    memcpy(slots.at, launch->slot, sizeof slots.at);
    return slots;
}

/* ---- Gradients ---- */

/* Of one chunk. */
struct mpt__norm_part {
    double squares;
    long long nonfinite;
};

struct mpt__gradients {
    float *data;
    bool aligned;
    float limit;
    mpt__segments segments;
    mpt__slots slot;
    mpt__scalar *scalars;
    mpt__norm_part *part; /* [segments.most] */
};

mpt__gradients mpt__gradients_of(const mpt__cuda_call *call) {
    mpt__gradients g;
    memset(&g, 0, sizeof g);
    g.data = (float *)call->data[0];
    g.aligned = (uintptr_t)g.data % 16 == 0;
    g.limit = (float)call->launch->imm[0];
    g.segments = mpt__segments_of(call->launch, 1, call->data[1]);
    g.slot = mpt__slots_of(call->launch);
    g.scalars = call->scalars;
    g.part = (mpt__norm_part *)call->workspace;
    return g;
}

/* 1 / scale where a loss scale is given. */
__device__ __forceinline__ float mpt__norm_multiplier(const mpt__gradients &g) {
    if (g.slot.at[3] != 0) return (float)(1 / g.scalars[g.slot.at[3]].f);
    return mpt__factor(g.scalars, g.slot.at[0]);
}

template <int N>
__device__ __forceinline__ void mpt__add_squares(const mpt__gradients &g, float multiplier,
                                                 long long at, mpt__norm_part &part) {
    float x[N];
    mpt__read<N>(g.data, MPT_F32, at, x);
    for (int i = 0; i < N; i++) {
        const float product = x[i] * multiplier; /* infinity times 0 is NaN */
        if (!mpt__is_finite(product)) part.nonfinite = 1;
        if (g.slot.at[2] != 0) part.squares += (double)product * (double)product;
    }
}

/* The tree: a thread's elements of a chunk, the threads of a block, then the chunks likewise. */
__global__ void mpt__norm_parts_kernel(const mpt__gradients g) {
    const float multiplier = mpt__norm_multiplier(g);
    mpt__chunk chunk = {0, 0, 0, 0};
    for (long long number = blockIdx.x; number < g.segments.most; number += gridDim.x) {
        mpt__norm_part part = {0, 0};
        if (mpt__seek(g.segments, number, chunk)) {
            const long long eights = mpt__chunk_eights(chunk, g.aligned);
            MPT__EACH_OF_BLOCK(i, eights) {
                mpt__add_squares<8>(g, multiplier, chunk.first + 8 * i, part);
            }
            MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
                mpt__add_squares<1>(g, multiplier, chunk.first + 8 * eights + i, part);
            }
        }
        part.squares = mpt__block_sum(part.squares);
        part.nonfinite = __syncthreads_or(part.nonfinite != 0);
        if (threadIdx.x == 0) g.part[number] = part;
    }
}

/* One block: adds up the parts and sets the slots. */
__global__ void mpt__norm_finish_kernel(const mpt__gradients g, bool joined) {
    mpt__norm_part all = {0, 0};
    for (long long i = threadIdx.x; i < g.segments.most; i += blockDim.x) {
        all.squares += g.part[i].squares;
        all.nonfinite |= g.part[i].nonfinite;
    }
    all.squares = mpt__block_sum(all.squares);
    all.nonfinite = __syncthreads_or(all.nonfinite != 0);
    if (threadIdx.x != 0) return;
    if (g.slot.at[3] != 0) g.scalars[g.slot.at[0]].f = (double)mpt__norm_multiplier(g);
    if (g.slot.at[1] != 0 && (g.slot.at[3] != 0 || all.nonfinite != 0))
        g.scalars[g.slot.at[1]].i = all.nonfinite;
    if (g.slot.at[2] != 0) {
        double *norm = &g.scalars[g.slot.at[2]].f;
        *norm = sqrt((joined ? *norm * *norm : 0.0) + all.squares);
    }
}

int64_t mpt__cuda_grad_norm_workspace(const mpt__launch *launch) {
    return mpt__segments_of(launch, 1, NULL).most * (int64_t)sizeof(mpt__norm_part);
}

mpt_status mpt__cuda_grad_norm(const mpt__cuda_call *call) {
    const mpt__gradients g = mpt__gradients_of(call);
    if (g.segments.most > 0) {
        mpt__norm_parts_kernel<<<mpt__segment_blocks(call, g.segments), MPT__THREADS, 0,
                                 call->stream>>>(g);
    }
    mpt__norm_finish_kernel<<<1, 4 * MPT__THREADS, 0, call->stream>>>(g,
                                                                      call->launch->index[0] != 0);
    return MPT_OK;
}

template <int N>
__device__ __forceinline__ void mpt__scale_at(const mpt__gradients &g, float multiplier,
                                              long long at) {
    float x[N];
    mpt__read<N>(g.data, MPT_F32, at, x);
    for (int i = 0; i < N; i++) {
        x[i] *= multiplier;
        if (g.limit > 0) x[i] = x[i] > g.limit ? g.limit : x[i] < -g.limit ? -g.limit : x[i];
    }
    mpt__write<N>(g.data, MPT_F32, at, x);
}

__global__ void mpt__grad_scale_kernel(const mpt__gradients g) {
    const float multiplier = mpt__factor(g.scalars, g.slot.at[0]);
    mpt__chunk chunk = {0, 0, 0, 0};
    for (long long number = blockIdx.x; mpt__seek(g.segments, number, chunk); number += gridDim.x) {
        const long long eights = mpt__chunk_eights(chunk, g.aligned);
        MPT__EACH_OF_BLOCK(i, eights) { mpt__scale_at<8>(g, multiplier, chunk.first + 8 * i); }
        MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
            mpt__scale_at<1>(g, multiplier, chunk.first + 8 * eights + i);
        }
    }
}

mpt_status mpt__cuda_grad_scale(const mpt__cuda_call *call) {
    const mpt__gradients g = mpt__gradients_of(call);
    if (g.segments.most == 0) return MPT_OK;
    mpt__grad_scale_kernel<<<mpt__segment_blocks(call, g.segments), MPT__THREADS, 0,
                             call->stream>>>(g);
    return MPT_OK;
}

/* ---- Updates ---- */

struct mpt__update {
    void *param; /* of `dtype`; with a master only written */
    int dtype;
    float *master, *first, *second; /* NULL: absent */
    const float *gradient;
    bool aligned, adam, variant; /* Nesterov; decoupled decay */
    float keep1, add1;           /* momentum, 1 - dampening; beta1, 1 - beta1 */
    float keep2, add2, eps, decay;
    double imm[4];
    mpt__segments segments;
    long long *steps;
    const double *rates; /* NULL: the rate is in slot[0] */
    long long rate_count;
    long long commit; /* 0, 1: the segments' step counts, 2: and the applied steps */
    mpt__slots slot;
    mpt__scalar *scalars;
};

/* What depends on the step count of a segment. */
struct mpt__pace {
    float lr; /* of Adam: over c1 */
    float root_factor, shrink;
    bool fresh; /* no update before this one */
};

/* base^exponent by repeated squaring. */
__device__ double mpt__power(double base, long long exponent) {
    double result = 1;
    for (; exponent > 0; exponent /= 2) {
        if (exponent % 2 != 0) result *= base;
        base *= base;
    }
    return result;
}

__device__ mpt__pace mpt__pace_of(const mpt__update &u, long long segment) {
    const long long step =
        u.steps[u.segments.rows[segment * MPT__SEGMENT_FIELDS + MPT__SEGMENT_STEP]];
    mpt__pace pace = {0, 0, 0, step == 0};
    double lr = u.scalars[u.slot.at[0]].f;
    if (u.rates != NULL) {
        const long long at = u.scalars[u.slot.at[3]].i - u.scalars[u.slot.at[4]].i;
        lr = u.rates[at < 0 ? 0 : at < u.rate_count ? at : u.rate_count - 1];
    }
    pace.lr = (float)lr;
    if (u.adam) {
        pace.lr = (float)(lr / (1 - mpt__power(u.imm[0], step + 1)));
        pace.root_factor = (float)(1 / sqrt(1 - mpt__power(u.imm[1], step + 1)));
        pace.shrink = (float)(lr * u.imm[3]);
    }
    return pace;
}

/* g += decay p; m = momentum m + (1 - dampening) g, at first g; p -= lr m, or, with Nesterov,
   p -= lr (g + momentum m). */
__device__ __forceinline__ void mpt__sgd_of(const mpt__update &u, const mpt__pace &pace, float &p,
                                            float g, float &m) {
    if (u.decay != 0) g += u.decay * p;
    if (u.first != NULL) {
        m = pace.fresh ? g : u.keep1 * m + u.add1 * g;
        g = u.variant ? g + u.keep1 * m : m;
    }
    p -= pace.lr * g;
}

/* PyTorch's fused form, but with 1 / sqrt(c2) as a factor. */
__device__ __forceinline__ void mpt__adam_of(const mpt__update &u, const mpt__pace &pace, float &p,
                                             float g, float &m, float &v) {
    if (u.variant) {
        p -= pace.shrink * p;
    } else if (u.decay != 0) {
        g += u.decay * p;
    }
    m = u.keep1 * m + u.add1 * g;
    v = u.keep2 * v + u.add2 * g * g;
    p -= pace.lr * m / (sqrtf(v) * pace.root_factor + u.eps);
}

template <int N>
__device__ __forceinline__ void mpt__update_at(const mpt__update &u, const mpt__pace &pace,
                                               float multiplier, long long at) {
    float p[N], g[N], m[N] = {0}, v[N] = {0};
    mpt__read<N>(u.gradient, MPT_F32, at, g);
    if (u.first != NULL) mpt__read<N>(u.first, MPT_F32, at, m);
    if (u.second != NULL) mpt__read<N>(u.second, MPT_F32, at, v);
    if (u.master != NULL) {
        mpt__read<N>(u.master, MPT_F32, at, p);
    } else {
        mpt__read<N>(u.param, u.dtype, at, p);
    }
    for (int i = 0; i < N; i++) {
        if (u.adam) {
            mpt__adam_of(u, pace, p[i], g[i] * multiplier, m[i], v[i]);
        } else {
            mpt__sgd_of(u, pace, p[i], g[i] * multiplier, m[i]);
        }
    }
    if (u.first != NULL) mpt__write<N>(u.first, MPT_F32, at, m);
    if (u.second != NULL) mpt__write<N>(u.second, MPT_F32, at, v);
    if (u.master != NULL) mpt__write<N>(u.master, MPT_F32, at, p);
    mpt__write<N>(u.param, u.dtype, at, p);
}

__global__ void mpt__update_kernel(const mpt__update u) {
    __shared__ mpt__pace pace;
    const float multiplier = mpt__factor(u.scalars, u.slot.at[1]);
    mpt__chunk chunk = {0, 0, 0, 0};
    long long segment = -1;
    if (!mpt__gate_open(u.scalars, u.slot.at[2])) return;
    for (long long number = blockIdx.x; mpt__seek(u.segments, number, chunk); number += gridDim.x) {
        if (chunk.segment != segment) {
            segment = chunk.segment;
            __syncthreads(); /* the pace may still be in use for an earlier segment */
            if (threadIdx.x == 0) pace = mpt__pace_of(u, segment);
            __syncthreads();
        }
        const long long eights = mpt__chunk_eights(chunk, u.aligned);
        MPT__EACH_OF_BLOCK(i, eights) {
            mpt__update_at<8>(u, pace, multiplier, chunk.first + 8 * i);
        }
        MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
            mpt__update_at<1>(u, pace, multiplier, chunk.first + 8 * eights + i);
        }
    }
}

/* The end of an update: its steps are counted. One block. */
__global__ void mpt__commit_kernel(const mpt__update u) {
    if (!mpt__gate_open(u.scalars, u.slot.at[2])) return;
    MPT__EACH_OF_BLOCK(segment, u.segments.count) {
        const long long *row = u.segments.rows + segment * MPT__SEGMENT_FIELDS;
        for (long long i = 0; i < row[MPT__SEGMENT_STEPS]; i++)
            u.steps[row[MPT__SEGMENT_STEP] + i]++;
    }
    if (u.commit == 2 && threadIdx.x == 0) u.scalars[u.slot.at[3]].i++;
}

/* What both optimizers have. */
mpt__update mpt__update_of(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__update u;
    memset(&u, 0, sizeof u);
    u.param = call->data[0];
    u.dtype = launch->operand[0].dtype;
    u.master = (float *)call->data[1];
    u.gradient = (const float *)call->data[2];
    u.first = (float *)call->data[3];
    u.keep1 = (float)launch->imm[0];
    u.variant = launch->index[0] == 1;
    memcpy(u.imm, launch->imm, sizeof u.imm);
    u.segments = mpt__segments_of(launch, 4, call->data[4]);
    u.steps = (long long *)call->data[5];
    u.rates = launch->n_operands > 7 ? (const double *)call->data[7] : NULL;
    u.rate_count = u.rates != NULL ? launch->operand[7].shape[0] : 0;
    u.commit = launch->index[1];
    u.slot = mpt__slots_of(launch);
    u.scalars = call->scalars;
    return u;
}

mpt_status mpt__run_update(const mpt__cuda_call *call, mpt__update *u) {
    const void *arrays[5] = {u->param, u->master, u->gradient, u->first, u->second};
    u->aligned = mpt__is_streamed(u->dtype);
    for (int i = 0; i < 5; i++) u->aligned = u->aligned && (uintptr_t)arrays[i] % 16 == 0;
    if (u->segments.most > 0) {
        mpt__update_kernel<<<mpt__segment_blocks(call, u->segments), MPT__THREADS, 0,
                             call->stream>>>(*u);
    }
    if (u->commit != 0) mpt__commit_kernel<<<1, MPT__THREADS, 0, call->stream>>>(*u);
    return MPT_OK;
}

mpt_status mpt__cuda_sgd(const mpt__cuda_call *call) {
    mpt__update u = mpt__update_of(call);
    u.add1 = (float)(1 - u.imm[1]);
    u.decay = (float)u.imm[2];
    return mpt__run_update(call, &u);
}

mpt_status mpt__cuda_adam(const mpt__cuda_call *call) {
    mpt__update u = mpt__update_of(call);
    u.adam = true;
    u.second = (float *)call->data[6];
    u.add1 = (float)(1 - u.imm[0]);
    u.keep2 = (float)u.imm[1];
    u.add2 = (float)(1 - u.imm[1]);
    u.eps = (float)u.imm[2];
    u.decay = (float)u.imm[3];
    return mpt__run_update(call, &u);
}

/* ---- Scalars ---- */

/* A NaN norm makes the multiplier NaN, as in PyTorch. */
__global__ void mpt__clip_kernel(mpt__scalar *multiplier, const mpt__scalar *norm, float most,
                                 mpt__array out) {
    const float size = (float)norm->f;
    float factor = most / (size + 1e-6f);
    if (factor > 1) factor = 1;
    multiplier->f = (double)((float)multiplier->f * factor);
    if (out.data != NULL) mpt__put(out, 0, size);
}

mpt_status mpt__cuda_clip(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__clip_kernel<<<1, 1, 0, call->stream>>>(&call->scalars[launch->slot[0]],
                                                &call->scalars[launch->slot[1]],
                                                (float)launch->imm[0], mpt__array_of(call, 0));
    return MPT_OK;
}

__global__ void mpt__scalar_set_kernel(mpt__scalar *to, mpt__scalar value) { *to = value; }

mpt_status mpt__cuda_scalar_set(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scalar value;
    if (launch->index[0] == 0) {
        value.f = launch->imm[0];
    } else {
        value.i = launch->index[1];
    }
    mpt__scalar_set_kernel<<<1, 1, 0, call->stream>>>(&call->scalars[launch->slot[0]], value);
    return MPT_OK;
}

__global__ void mpt__scalar_or_kernel(mpt__scalar *to, const mpt__scalar *a, const mpt__scalar *b) {
    to->i = (a->i | b->i) != 0;
}

mpt_status mpt__cuda_scalar_or(const mpt__cuda_call *call) {
    const uint16_t *slot = call->launch->slot;
    mpt__scalar *scalars = call->scalars;
    mpt__scalar_or_kernel<<<1, 1, 0, call->stream>>>(&scalars[slot[0]], &scalars[slot[1]],
                                                     &scalars[slot[2]]);
    return MPT_OK;
}

struct mpt__scaler_settings {
    double growth, backoff, floor_scale, ceiling;
    long long interval;
    bool fixed;
    mpt__slots slot;
};

/* Floor and ceiling stop the way down and up; neither moves a scale that a user has set beyond. */
__global__ void mpt__scaler_update_kernel(const mpt__scaler_settings w, mpt__scalar *scalars) {
    double &scale = scalars[w.slot.at[0]].f;
    int64_t &tracker = scalars[w.slot.at[1]].i, &updates = scalars[w.slot.at[3]].i;
    int64_t &in_a_row = scalars[w.slot.at[5]].i, &outcome = scalars[w.slot.at[7]].i;
    if (!mpt__gate_open(scalars, 0)) return;
    updates++;
    if (scalars[w.slot.at[2]].i != 0) {
        double next = (double)(float)(scale * w.backoff);
        if (next < w.floor_scale) next = w.floor_scale < scale ? w.floor_scale : scale;
        if (!w.fixed) scale = next;
        tracker = 0;
        scalars[w.slot.at[4]].i++;
        in_a_row++;
        scalars[w.slot.at[6]].i = updates;
        outcome = MPT_OUTCOME_SKIPPED;
        return;
    }
    tracker++;
    if (!w.fixed && tracker >= w.interval) {
        double next = (double)(float)(scale * w.growth);
        if (!(fabs(next) < INFINITY)) next = scale;
        if (w.ceiling > 0 && next > w.ceiling) next = w.ceiling > scale ? w.ceiling : scale;
        scale = next;
        tracker = 0;
    }
    in_a_row = 0;
    outcome = MPT_OUTCOME_APPLIED;
}

mpt_status mpt__cuda_scaler_update(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scaler_settings w;
    memset(&w, 0, sizeof w);
    w.growth = launch->imm[0];
    w.backoff = launch->imm[1];
    w.floor_scale = launch->imm[2];
    w.ceiling = launch->imm[3];
    w.interval = launch->index[0];
    w.fixed = launch->index[1] != 0;
    w.slot = mpt__slots_of(launch);
    mpt__scaler_update_kernel<<<1, 1, 0, call->stream>>>(w, call->scalars);
    return MPT_OK;
}

/* ==== Memory and transfers ==== */

/* ==== Launching ==== */

/* ==== Making and ending ==== */

}  // namespace
