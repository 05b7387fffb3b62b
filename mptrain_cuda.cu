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
#include <stdarg.h>
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
        if (operand.shape[d] == 0) return 0;
        count *= operand.shape[d];
    }
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

/* ==== Along an axis: ARGMAX, SCATTER_AXIS, FIND_NONFINITE ==== */

/* ==== Reductions and softmax: REDUCE, SOFTMAX, SOFTMAX_BACKWARD ==== */

/* ==== Losses: NLL, NLL_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, METRIC_ADD ==== */

/* ==== Matrix products: GEMM ====
 *
 * cuBLASLt computes them, with bias and ReLU in its epilogue where it can. Operands that it cannot
 * read (another dtype, no contiguous dimension) are packed into workspace first; what it cannot
 * finish goes through an fp32 sum in workspace and a kernel of ours. A product that cuBLASLt refuses
 * is done by a plain kernel of ours. */

#define MPT__TILE 32          /* rows and columns of what a block of the plain kernel computes */
#define MPT__CANDIDATES 16    /* algorithms of a product that benchmark mode times */
#define MPT__PRODUCT_CALLS 64 /* for one launch; packing makes them fewer */
#ifndef MPT__SUM_BYTES        /* a test cuts smaller pieces */
#define MPT__SUM_BYTES (32 << 20) /* of fp32 sums at a time, which stay in L2 */
#endif

/* ---- Device code ---- */

/* x as an operand of a product in that dtype. */
__device__ __forceinline__ float mpt__rounded(float x, int compute_dtype) {
    if (compute_dtype == MPT_F16) return __half2float(__float2half_rn(x));
    if (compute_dtype == MPT_BF16) return __bfloat162float(__float2bfloat16_rn(x));
    return x;
}

__device__ float mpt__activated(float x, int activation) {
    switch (activation) {
    case MPT_ACTIVATION_RELU:
        return x > 0 || x != x ? x : 0.0f;
    case MPT_ACTIVATION_GELU:
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case MPT_ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case MPT_ACTIVATION_TANH:
        return tanhf(x);
    case MPT_ACTIVATION_SIGMOID:
        return 1.0f / (1.0f + expf(-x));
    default:
        return x;
    }
}

/* A copy into workspace: contiguous, of another dtype, rounded to the compute dtype on the way. */
struct mpt__pack {
    const void *from;
    void *to;
    int from_dtype, to_dtype, compute_dtype;
    bool in_eights;
    mpt__space space;
    long long stride[MPT_MAX_RANK];
};

struct mpt__packs {
    mpt__pack of[3];
};

__global__ void mpt__pack_kernel(mpt__packs packs) {
    const mpt__pack &p = packs.of[blockIdx.y];
    const long long eights = p.in_eights ? p.space.count / 8 : 0, rest = p.space.count - 8 * eights;
    MPT__EACH(i, eights) {
        float x[8];
        mpt__load8(p.from, p.from_dtype, 8 * i, x);
        for (int j = 0; j < 8; j++) x[j] = mpt__rounded(x[j], p.compute_dtype);
        mpt__store8(p.to, p.to_dtype, 8 * i, x);
    }
    MPT__EACH(i, rest) {
        const long long at = 8 * eights + i;
        const float x = mpt__load(p.from, p.from_dtype, mpt__locate(p.space, p.stride, at));
        mpt__store(p.to, p.to_dtype, at, mpt__rounded(x, p.compute_dtype));
    }
}

/* The rest of a product of which cuBLASLt left the plain sums, in the order of the space. */
__global__ void mpt__finish_kernel(const __grid_constant__ mpt__array out,
                                   const __grid_constant__ mpt__array bias,
                                   const __grid_constant__ mpt__space space, const float *sum,
                                   int compute_dtype, int activation) {
    MPT__EACH(i, space.count) {
        float x = sum[i];
        if (bias.data != NULL) {
            const float b = mpt__load(bias.data, bias.dtype, mpt__locate(space, bias.stride, i));
            x += mpt__rounded(b, compute_dtype);
        }
        mpt__put(out, mpt__locate(space, out.stride, i), mpt__activated(x, activation));
    }
}

/* What the plain kernel computes; strides as in the launch. */
struct mpt__plain {
    mpt__array a, b, bias, out;
    mpt__space batches;
    int rank, compute_dtype, activation;
    long long m, n, k;
    float alpha;
};

/* A tile of a matrix of rows x columns, zeros where it ends; neighbouring threads read neighbours in
   memory. */
__device__ void mpt__fetch_tile(float tile[MPT__TILE][MPT__TILE + 1], const mpt__array &array,
                                long long at, long long row, long long column, long long rows,
                                long long columns, int rank, int compute_dtype) {
    const long long down = array.stride[rank - 2], across = array.stride[rank - 1];
    const int lane = threadIdx.x % MPT__TILE;
    for (int line = threadIdx.x / MPT__TILE; line < MPT__TILE; line += blockDim.x / MPT__TILE) {
        const int i = down < across ? lane : line, j = down < across ? line : lane;
        const bool inside = row + i < rows && column + j < columns;
        const long long from = at + (row + i) * down + (column + j) * across;
        tile[i][j] = inside ? mpt__load(array.data, array.dtype, from) : 0.0f;
        tile[i][j] = mpt__rounded(tile[i][j], compute_dtype);
    }
}

/* A block per tile of the output; a thread has 4 elements of a column, 8 rows apart. Each sum runs
   over K in order. */
__global__ void mpt__plain_kernel(mpt__plain p) {
    __shared__ float a[MPT__TILE][MPT__TILE + 1], b[MPT__TILE][MPT__TILE + 1];
    const int x = threadIdx.x % MPT__TILE, y = threadIdx.x / MPT__TILE, rank = p.rank;
    const long long across = (p.n + MPT__TILE - 1) / MPT__TILE;
    const long long down = (p.m + MPT__TILE - 1) / MPT__TILE;
    for (long long t = blockIdx.x; t < across * down * p.batches.count; t += gridDim.x) {
        const long long batch = t / (across * down), j = t % across * MPT__TILE;
        const long long i = t / across % down * MPT__TILE;
        const long long at_a = mpt__locate(p.batches, p.a.stride, batch);
        const long long at_b = mpt__locate(p.batches, p.b.stride, batch);
        float sum[4] = {0, 0, 0, 0};
        for (long long k = 0; k < p.k; k += MPT__TILE) {
            mpt__fetch_tile(a, p.a, at_a, i, k, p.m, p.k, rank, p.compute_dtype);
            mpt__fetch_tile(b, p.b, at_b, k, j, p.k, p.n, rank, p.compute_dtype);
            __syncthreads();
            for (int e = 0; e < MPT__TILE; e++) {
                for (int r = 0; r < 4; r++) sum[r] += a[y + 8 * r][e] * b[e][x];
            }
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const long long row = i + y + 8 * r, column = j + x;
            if (row >= p.m || column >= p.n) continue;
            float value = p.alpha * sum[r];
            if (p.bias.data != NULL) {
                const long long from = mpt__locate(p.batches, p.bias.stride, batch) +
                                       row * p.bias.stride[rank - 2] +
                                       column * p.bias.stride[rank - 1];
                value += mpt__rounded(mpt__load(p.bias.data, p.bias.dtype, from), p.compute_dtype);
            }
            mpt__put(p.out,
                     mpt__locate(p.batches, p.out.stride, batch) + row * p.out.stride[rank - 2] +
                         column * p.out.stride[rank - 1],
                     mpt__activated(value, p.activation));
        }
    }
}

/* ---- The plain kernel ---- */

/* Any launch with elements in its output. */
mpt_status mpt__product_plain(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__operand &out = launch->operand[3];
    mpt__plain p;
    memset(&p, 0, sizeof p);
    p.a = mpt__array_of(call, 0);
    p.b = mpt__array_of(call, 1);
    p.bias = mpt__array_of(call, 2);
    p.out = mpt__array_of(call, 3);
    p.rank = out.rank;
    p.batches.rank = out.rank - 2;
    p.batches.count = 1;
    for (int d = 0; d < p.batches.rank; d++) {
        p.batches.shape[d] = out.shape[d];
        p.batches.count *= out.shape[d];
    }
    p.compute_dtype = launch->compute_dtype;
    p.activation = launch->activation;
    p.m = out.shape[out.rank - 2];
    p.n = out.shape[out.rank - 1];
    p.k = launch->operand[0].shape[out.rank - 1];
    p.alpha = (float)launch->imm[0];
    const long long tiles = (p.m + MPT__TILE - 1) / MPT__TILE * ((p.n + MPT__TILE - 1) / MPT__TILE);
    const unsigned int blocks = mpt__blocks(call, tiles * p.batches.count * MPT__THREADS);
    mpt__plain_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(p);
    return MPT_OK;
}

/* ---- A launch as cuBLASLt sees it ---- */

/* One matrix of each batch: A as [M, K], B as [N, K], the output as [M, N]. */
struct mpt__side {
    int dtype;
    long long size[2], stride[2];
    long long batch[MPT_MAX_RANK]; /* strides of the batch dimensions of the launch */
    int contiguous;                /* which of the two has stride 1 */
    long long at;                  /* where in the workspace it is packed; -1: it is not */
};

enum { MPT__SIDE_A, MPT__SIDE_B, MPT__SIDE_OUT, MPT__SIDES };

/* Neighbouring dimensions merged where the strides of all sides allow it. */
struct mpt__batches {
    mpt__space space;
    long long stride[MPT__SIDES][MPT_MAX_RANK];
};

/* `side` is in the order of the launch's operands 0, 1 and 3. */
struct mpt__product {
    mpt__side side[MPT__SIDES];
    mpt__batches loop;                         /* a call for each */
    long long batch, batch_stride[MPT__SIDES]; /* of a call */
    bool finish;         /* cuBLASLt leaves sums that finish_kernel makes the output from */
    bool bias;           /* in the epilogue */
    long long bias_at;   /* as mpt__side.at */
    long long workspace; /* bytes */
};

/* Adds an inner dimension to those that n arrays walk; merged into the one before it where the
   strides of all allow it. */
void mpt__space_append(mpt__space *space, long long (*stride)[MPT_MAX_RANK], int n, long long size,
                       const long long *by) {
    int last = space->rank - 1;
    bool merges = last >= 0;
    if (size == 1) return;
    for (int i = 0; i < n && merges; i++) merges = stride[i][last] == size * by[i];
    if (!merges) space->shape[++last] = 1;
    space->rank = last + 1;
    space->shape[last] *= size;
    for (int i = 0; i < n; i++) stride[i][last] = by[i];
}

/* An operand with `inner` as its second dimension. */
mpt__side mpt__side_of(const mpt__operand &operand, int inner) {
    const int outer = 2 * operand.rank - 3 - inner;
    mpt__side side;
    memset(&side, 0, sizeof side);
    side.dtype = operand.dtype;
    side.size[0] = operand.shape[outer], side.stride[0] = operand.stride[outer];
    side.size[1] = operand.shape[inner], side.stride[1] = operand.stride[inner];
    for (int d = 0; d < operand.rank - 2; d++) side.batch[d] = operand.stride[d];
    side.at = -1;
    return side;
}

/* Whether cuBLASLt can address the matrix: one dimension contiguous, lines that do not overlap in
   the other. Strides of dimensions of size 1 become what suits. */
bool mpt__side_fits(mpt__side *side) {
    for (int d = 1; d >= 0; d--) {
        if (side->size[d] == 1 && (d == 0 || side->stride[d] != 1))
            side->stride[d] = side->stride[!d] == 1 ? side->size[!d] : 1;
    }
    for (int d = 1; d >= 0; d--) {
        side->contiguous = d;
        if (side->stride[d] == 1 && side->stride[!d] >= side->size[d]) return true;
    }
    return false;
}

/* Room in the workspace, from where on. */
long long mpt__product_reserve(mpt__product *product, long long elements, int dtype) {
    const long long at = product->workspace;
    const long long bytes = elements * (long long)mpt_dtype_size((mpt_dtype)dtype);
    product->workspace += (bytes + 255) / 256 * 256;
    return at;
}

/* Gives a side a contiguous place in the workspace, its own dimensions in their order in memory,
   broadcast batches once. */
void mpt__product_pack(mpt__product *product, int s, int dtype, const mpt__operand &out) {
    mpt__side *side = &product->side[s];
    const int inner = s == MPT__SIDE_OUT || side->stride[1] <= side->stride[0];
    long long count = side->size[0] * side->size[1];
    side->dtype = dtype;
    side->contiguous = inner;
    side->stride[inner] = 1;
    side->stride[!inner] = side->size[inner];
    for (int d = out.rank - 3; d >= 0; d--) {
        if (side->batch[d] == 0) continue;
        side->batch[d] = count;
        count *= out.shape[d];
    }
    side->at = mpt__product_reserve(product, count, dtype);
}

/* The dtype in which A and B are multiplied. */
int mpt__product_dtype(const mpt__launch *launch) {
    const int a = launch->operand[0].dtype, b = launch->operand[1].dtype;
    if (launch->compute_dtype != MPT_F32) return launch->compute_dtype;
    return a == b && (a == MPT_F16 || a == MPT_BF16) ? a : MPT_F32;
}

/* Whether the epilogue can add the bias: a row for all rows whose values the output's dtype holds. */
bool mpt__bias_fits(const mpt__launch *launch) {
    const mpt__operand &bias = launch->operand[2];
    const int to = launch->operand[3].dtype, compute = launch->compute_dtype;
    for (int d = 0; d < bias.rank - 1; d++) {
        if (bias.shape[d] > 1 && bias.stride[d] != 0) return false;
    }
    return to == MPT_F32 || to == (compute == MPT_F32 ? bias.dtype : compute);
}

/* The epilogue, and where the bias of it lies. */
void mpt__product_end(mpt__product *product, const mpt__launch *launch, bool out_fits) {
    const mpt__operand &bias = launch->operand[2], &out = launch->operand[3];
    const int compute = launch->compute_dtype;
    product->bias = bias.storage != 0;
    product->bias_at = -1;
    product->finish = !out_fits || launch->activation > MPT_ACTIVATION_RELU ||
                      (product->bias && !mpt__bias_fits(launch));
    if (product->finish) {
        product->bias = false;
        mpt__product_pack(product, MPT__SIDE_OUT, MPT_F32, out);
    }
    if (!product->bias) return;
    const long long n = bias.shape[bias.rank - 1],
                    bytes = (long long)mpt_dtype_size((mpt_dtype)bias.dtype);
    const bool as_is = bias.dtype == out.dtype && (compute == MPT_F32 || compute == bias.dtype) &&
                       (n == 1 || bias.stride[bias.rank - 1] == 1) && bias.offset * bytes % 16 == 0;
    if (!as_is) product->bias_at = mpt__product_reserve(product, n, out.dtype);
}

/* Batches that share B are more rows of A. */
void mpt__product_fold(mpt__product *product) {
    mpt__batches *loop = &product->loop;
    const int last = loop->space.rank - 1;
    if (last < 0 || loop->stride[MPT__SIDE_B][last] != 0) return;
    const long long more = loop->space.shape[last];
    mpt__side folded[MPT__SIDES];
    for (int s = 0; s < MPT__SIDES; s++) {
        mpt__side *side = &folded[s];
        *side = product->side[s];
        if (s == MPT__SIDE_B) continue;
        if (side->size[0] == 1) side->stride[0] = loop->stride[s][last];
        if (loop->stride[s][last] != side->size[0] * side->stride[0]) return;
        side->size[0] *= more;
        if (!mpt__side_fits(side) || (s == MPT__SIDE_OUT && side->contiguous == 0)) return;
    }
    memcpy(product->side, folded, sizeof folded);
    loop->space.rank--;
}

/* Merges the batch dimensions; the largest of what is left goes into each call. */
void mpt__product_batch(mpt__product *product, const mpt__operand &out) {
    mpt__batches *loop = &product->loop;
    int largest = 0;
    memset(loop, 0, sizeof *loop);
    for (int d = 0; d < out.rank - 2; d++) {
        long long stride[MPT__SIDES];
        for (int s = 0; s < MPT__SIDES; s++) stride[s] = product->side[s].batch[d];
        mpt__space_append(&loop->space, loop->stride, MPT__SIDES, out.shape[d], stride);
    }
    mpt__product_fold(product);
    mpt__space *space = &loop->space;
    product->batch = space->rank > 0 ? 0 : 1;
    for (int d = 0; d < space->rank; d++) {
        if (space->shape[d] <= product->batch) continue;
        largest = d;
        product->batch = space->shape[d];
    }
    for (int s = 0; s < MPT__SIDES; s++)
        product->batch_stride[s] = space->rank > 0 ? loop->stride[s][largest] : 0;
    for (int d = largest; d < space->rank - 1; d++) {
        space->shape[d] = space->shape[d + 1];
        for (int s = 0; s < MPT__SIDES; s++) loop->stride[s][d] = loop->stride[s][d + 1];
    }
    if (space->rank > 0) space->rank--;
    space->count = 1;
    for (int d = 0; d < space->rank; d++) space->count *= space->shape[d];
}

/* With `pack` all operands go through the workspace. */
mpt__product mpt__product_laid_out(const mpt__launch *launch, bool pack) {
    const mpt__operand &out = launch->operand[3];
    const int dtype = mpt__product_dtype(launch);
    mpt__product product;
    memset(&product, 0, sizeof product);
    product.side[MPT__SIDE_A] = mpt__side_of(launch->operand[0], out.rank - 1);
    product.side[MPT__SIDE_B] = mpt__side_of(launch->operand[1], out.rank - 2);
    product.side[MPT__SIDE_OUT] = mpt__side_of(out, out.rank - 1);
    for (int s = 0; s < MPT__SIDE_OUT; s++) {
        if (pack || product.side[s].dtype != dtype || !mpt__side_fits(&product.side[s]))
            mpt__product_pack(&product, s, dtype, out);
    }
    mpt__side *to = &product.side[MPT__SIDE_OUT];
    if (to->size[1] == 1) to->stride[1] = 1;
    const bool out_fits = !pack && (out.dtype == MPT_F32 || out.dtype == dtype) &&
                          mpt__side_fits(to) && to->contiguous == 1;
    mpt__product_end(&product, launch, out_fits);
    mpt__product_batch(&product, out);
    return product;
}

mpt__product mpt__product_of(const mpt__launch *launch) {
    const mpt__product product = mpt__product_laid_out(launch, false);
    return product.loop.space.count <= MPT__PRODUCT_CALLS ? product
                                                          : mpt__product_laid_out(launch, true);
}

/* ---- Plans: what cuBLASLt needs for a product, made once per kind of product ---- */

/* MPT__PLAN_FIELDS(F): F(ID, "name"), what makes two products the same. */
#define MPT__PLAN_FIELDS(F)   \
    F(M, "m")                 \
    F(N, "n")                 \
    F(K, "k")                 \
    F(BATCH, "batch")         \
    F(DTYPE, "dtype")         \
    F(DTYPE_OUT, "dtype_out") \
    F(TF32, "tf32")           \
    F(EPILOGUE, "epilogue")   \
    F(ADD, "add")             \
    F(CONTIGUOUS_A, "a_by_k") \
    F(CONTIGUOUS_B, "b_by_k") \
    F(PITCH_A, "a_pitch")     \
    F(PITCH_B, "b_pitch")     \
    F(PITCH_OUT, "out_pitch") \
    F(STEP_A, "a_step")       \
    F(STEP_B, "b_step")       \
    F(STEP_OUT, "out_step")   \
    F(ALIGNED, "aligned")

typedef enum mpt__plan_field {
#define MPT__ROW(id, name) MPT__PLAN_##id,
    MPT__PLAN_FIELDS(MPT__ROW)
#undef MPT__ROW
        MPT__PLAN_FIELD_COUNT
} mpt__plan_field;

const char *const mpt__plan_names[] = {
#define MPT__ROW(id, name) name,
    MPT__PLAN_FIELDS(MPT__ROW)
#undef MPT__ROW
};

#define MPT__ALGORITHM_WORDS 8

struct mpt__plan {
    long long field[MPT__PLAN_FIELD_COUNT];
    cublasLtMatmulDesc_t operation; /* NULL: only read from a file so far */
    cublasLtMatrixLayout_t layout[MPT__SIDES];
    cublasLtMatmulAlgo_t algorithm;
    bool taken;                               /* an entry of the table */
    bool usable;                              /* cuBLASLt has an algorithm */
    bool pinned;                              /* chosen by time, now or when the file was written */
    long long nanoseconds, nanoseconds_first; /* of the choice, and of the first candidate */
};

struct mpt__cuda_products {
    mpt__cuda *cuda;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace; /* of cuBLASLt */
    size_t workspace_bytes;
    bool tf32; /* fp32 products may round their operands to TF32 */
    cudaEvent_t begin, end;
    mpt__plan *plans; /* a hash table, at most half full */
    long long capacity, count;
};

/* A call of a plan. */
struct mpt__plan_call {
    const void *a, *b, *bias;
    void *out;
    float alpha, beta;
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == MPT__ALGORITHM_WORDS * sizeof(uint64_t),
              "the text form of an algorithm");

cudaDataType_t mpt__cuda_dtype(long long dtype) {
    return dtype == MPT_F16 ? CUDA_R_16F : dtype == MPT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The entry of these fields, or the free one where it belongs. */
mpt__plan *mpt__plan_slot(mpt__plan *plans, long long capacity, const long long *field) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++) {
        hash = (hash ^ (uint64_t)field[f]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    for (uint64_t i = hash;; i++) {
        mpt__plan *plan = &plans[i & (uint64_t)(capacity - 1)];
        if (!plan->taken || memcmp(plan->field, field, sizeof plan->field) == 0) return plan;
    }
}

/* The entry of these fields, new if it was not there; NULL without memory. */
mpt__plan *mpt__plan_enter(mpt__cuda_products *products, const long long *field) {
    if (2 * (products->count + 1) > products->capacity) {
        const long long capacity = products->capacity > 0 ? 2 * products->capacity : 64;
        mpt__plan *plans = (mpt__plan *)calloc((size_t)capacity, sizeof *plans);
        if (plans == NULL) return NULL;
        for (long long i = 0; i < products->capacity; i++) {
            const mpt__plan *plan = &products->plans[i];
            if (plan->taken) *mpt__plan_slot(plans, capacity, plan->field) = *plan;
        }
        free(products->plans);
        products->plans = plans;
        products->capacity = capacity;
    }
    mpt__plan *plan = mpt__plan_slot(products->plans, products->capacity, field);
    if (!plan->taken) {
        memcpy(plan->field, field, sizeof plan->field);
        plan->taken = true;
        products->count++;
    }
    return plan;
}

/* cuBLASLt counts columns first: our rows are its columns, so that B comes before A. */
bool mpt__plan_describe(mpt__plan *plan) {
    const long long *f = plan->field;
    const long long outer[] = {f[MPT__PLAN_M], f[MPT__PLAN_N], f[MPT__PLAN_M]};
    const long long inner[] = {f[MPT__PLAN_K], f[MPT__PLAN_K], f[MPT__PLAN_N]};
    const bool by_inner[] = {f[MPT__PLAN_CONTIGUOUS_A] != 0, f[MPT__PLAN_CONTIGUOUS_B] != 0, true};
    const cudaDataType_t dtype = mpt__cuda_dtype(f[MPT__PLAN_DTYPE]);
    const cudaDataType_t dtype_out = mpt__cuda_dtype(f[MPT__PLAN_DTYPE_OUT]);
    const int batch = (int)f[MPT__PLAN_BATCH];
    if (batch != f[MPT__PLAN_BATCH]) return false;
    const cublasComputeType_t compute =
        f[MPT__PLAN_TF32] ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    int failed = cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F);
    const struct {
        cublasLtMatmulDescAttributes_t id;
        int32_t value;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, by_inner[MPT__SIDE_B] ? CUBLAS_OP_T : CUBLAS_OP_N},
        {CUBLASLT_MATMUL_DESC_TRANSB, by_inner[MPT__SIDE_A] ? CUBLAS_OP_N : CUBLAS_OP_T},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)f[MPT__PLAN_EPILOGUE]},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, dtype_out}};
    for (int i = 0; i < 4 && !failed; i++) {
        failed = cublasLtMatmulDescSetAttribute(plan->operation, attributes[i].id,
                                                &attributes[i].value, sizeof attributes[i].value);
    }
    for (int s = 0; s < MPT__SIDES && !failed; s++) {
        const long long step = f[MPT__PLAN_STEP_A + s], pitch = f[MPT__PLAN_PITCH_A + s];
        const uint64_t rows = (uint64_t)(by_inner[s] ? inner[s] : outer[s]);
        const uint64_t columns = (uint64_t)(by_inner[s] ? outer[s] : inner[s]);
        cublasLtMatrixLayout_t *layout = &plan->layout[s];
        failed = cublasLtMatrixLayoutCreate(layout, s == MPT__SIDE_OUT ? dtype_out : dtype, rows,
                                            columns, pitch);
        if (failed) break;
        failed |= cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                   &batch, sizeof batch);
        failed |= cublasLtMatrixLayoutSetAttribute(
            *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    }
    return !failed;
}

void mpt__plan_set_bias(const mpt__plan *plan, const void *bias) {
    if (bias == NULL) return;
    cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                   sizeof bias);
}

cublasStatus_t mpt__plan_run(const mpt__cuda_products *products, const mpt__plan *plan,
                             const cublasLtMatmulAlgo_t *algorithm, const mpt__plan_call *call) {
    const cublasLtMatrixLayout_t *layout = plan->layout;
    mpt__plan_set_bias(plan, call->bias);
    return cublasLtMatmul(products->handle, plan->operation, &call->alpha, call->b,
                          layout[MPT__SIDE_B], call->a, layout[MPT__SIDE_A], &call->beta, call->out,
                          layout[MPT__SIDE_OUT], call->out, layout[MPT__SIDE_OUT], algorithm,
                          products->workspace, products->workspace_bytes, products->cuda->stream);
}

/* The shortest of some times of a call in nanoseconds, after one to warm up; infinite if it
   fails. */
float mpt__plan_time(const mpt__cuda_products *products, const mpt__plan *plan,
                     const cublasLtMatmulAlgo_t *algorithm, const mpt__plan_call *call) {
    float best = INFINITY;
    int runs = 1;
    for (int round = 0; round < 6; round++) {
        float milliseconds = 0;
        cudaEventRecord(products->begin, products->cuda->stream);
        for (int i = 0; i < runs; i++) {
            if (mpt__plan_run(products, plan, algorithm, call) != CUBLAS_STATUS_SUCCESS)
                return INFINITY;
        }
        cudaEventRecord(products->end, products->cuda->stream);
        if (cudaEventSynchronize(products->end) != cudaSuccess ||
            cudaEventElapsedTime(&milliseconds, products->begin, products->end) != cudaSuccess)
            return INFINITY;
        if (round > 0) best = fminf(best, 1e6f * milliseconds / (float)runs);
        if (round == 0 && milliseconds < 0.5f) runs = 10;
    }
    return best;
}

/* Pins the fastest of the candidates, timed on an output of its own. One further down the list must
   be 2 % faster, so that noise does not choose. Without memory for that it is the first. */
void mpt__plan_pin(mpt__cuda_products *products, mpt__plan *plan,
                   const cublasLtMatmulHeuristicResult_t *found, int n,
                   const mpt__plan_call *call) {
    const long long *f = plan->field;
    const long long elements = (f[MPT__PLAN_BATCH] - 1) * f[MPT__PLAN_STEP_OUT] +
                               (f[MPT__PLAN_M] - 1) * f[MPT__PLAN_PITCH_OUT] + f[MPT__PLAN_N];
    const size_t bytes = (size_t)elements * mpt_dtype_size((mpt_dtype)f[MPT__PLAN_DTYPE_OUT]);
    mpt__plan_call trial = *call;
    float best = INFINITY;
    plan->pinned = true;
    if (cudaMalloc(&trial.out, bytes) != cudaSuccess) {
        cudaGetLastError(); /* which is not sticky */
        return;
    }
    cudaMemsetAsync(trial.out, 0, bytes, products->cuda->stream);
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const float time = mpt__plan_time(products, plan, &found[i].algo, &trial);
        if (i == 0) plan->nanoseconds_first = (long long)fminf(time, 1e15f);
        if (!(time < 0.98f * best)) continue;
        best = time;
        plan->algorithm = found[i].algo;
    }
    cudaFree(trial.out);
    plan->nanoseconds = (long long)fminf(best, 1e15f);
}

/* Finds an algorithm: the first that the heuristic names or, where `timed`, the fastest. */
void mpt__plan_choose(mpt__cuda_products *products, mpt__plan *plan, bool timed,
                      const mpt__plan_call *call) {
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes = (uint32_t)plan->field[MPT__PLAN_ALIGNED];
    cublasLtMatmulHeuristicResult_t found[MPT__CANDIDATES];
    int n = 0;
    for (int i = 0; i < 4; i++) {
        cublasLtMatmulPreferenceSetAttribute(products->preference, alignment[i], &bytes,
                                             sizeof bytes);
    }
    mpt__plan_set_bias(plan, call->bias);
    const cublasLtMatrixLayout_t *layout = plan->layout;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        products->handle, plan->operation, layout[MPT__SIDE_B], layout[MPT__SIDE_A],
        layout[MPT__SIDE_OUT], layout[MPT__SIDE_OUT], products->preference,
        timed ? MPT__CANDIDATES : 1, found, &n);
    plan->usable =
        status == CUBLAS_STATUS_SUCCESS && n > 0 && found[0].state == CUBLAS_STATUS_SUCCESS;
    if (!plan->usable) return;
    plan->algorithm = found[0].algo;
    if (timed) mpt__plan_pin(products, plan, found, n, call);
}

/* Whether the algorithm that a file named can do the product, in our workspace. */
bool mpt__plan_check(const mpt__cuda_products *products, const mpt__plan *plan) {
    const cublasLtMatrixLayout_t *layout = plan->layout;
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(products->handle, plan->operation, layout[MPT__SIDE_B],
                                   layout[MPT__SIDE_A], layout[MPT__SIDE_OUT],
                                   layout[MPT__SIDE_OUT], &plan->algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= products->workspace_bytes;
}

/* The plan for these fields, ready to run; NULL without memory. Nothing is timed while the stream
   is captured: that is made up for at the next call outside. */
mpt__plan *mpt__plan_get(mpt__cuda_products *products, const long long *field,
                         const mpt__plan_call *call) {
    mpt__plan *plan = mpt__plan_enter(products, field);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (plan == NULL) return NULL;
    const bool made = plan->operation != NULL;
    if (!made) {
        plan->usable = mpt__plan_describe(plan);
        plan->pinned = plan->usable && plan->pinned && mpt__plan_check(products, plan);
    }
    if (!plan->usable || plan->pinned || (made && !products->cuda->benchmark)) return plan;
    cudaStreamIsCapturing(products->cuda->stream, &capture);
    const bool timed = products->cuda->benchmark && capture == cudaStreamCaptureStatusNone;
    if (timed || !made) mpt__plan_choose(products, plan, timed, call);
    return plan;
}

/* ---- Running a launch ---- */

/* Where side s of the product begins. */
char *mpt__product_data(const mpt__cuda_call *call, const mpt__product *product, int s) {
    const long long at = product->side[s].at;
    return at < 0 ? (char *)call->data[s == MPT__SIDE_OUT ? 3 : s] : (char *)call->workspace + at;
}

/* The fields of the plan for these calls. */
void mpt__product_fields(const mpt__cuda_call *call, const mpt__product *product,
                         const mpt__plan_call *run, long long *field) {
    const mpt__side *side = product->side;
    const int dtype = side[MPT__SIDE_A].dtype;
    uint64_t addresses = 256 | (uint64_t)(uintptr_t)run->bias;
    const bool relu = !product->finish && call->launch->activation == MPT_ACTIVATION_RELU;
    int epilogue = relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
    if (product->bias) epilogue = relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
    field[MPT__PLAN_M] = side[MPT__SIDE_OUT].size[0];
    field[MPT__PLAN_N] = side[MPT__SIDE_OUT].size[1];
    field[MPT__PLAN_K] = side[MPT__SIDE_A].size[1];
    field[MPT__PLAN_BATCH] = product->batch;
    field[MPT__PLAN_DTYPE] = dtype;
    field[MPT__PLAN_DTYPE_OUT] = side[MPT__SIDE_OUT].dtype;
    field[MPT__PLAN_TF32] = dtype == MPT_F32 && call->cuda->products->tf32;
    field[MPT__PLAN_EPILOGUE] = epilogue;
    field[MPT__PLAN_ADD] = run->beta != 0;
    field[MPT__PLAN_CONTIGUOUS_A] = side[MPT__SIDE_A].contiguous;
    field[MPT__PLAN_CONTIGUOUS_B] = side[MPT__SIDE_B].contiguous;
    for (int s = 0; s < MPT__SIDES; s++) {
        const uint64_t bytes = mpt_dtype_size((mpt_dtype)side[s].dtype);
        addresses |= (uint64_t)(uintptr_t)mpt__product_data(call, product, s);
        if (product->batch > 1) addresses |= (uint64_t)product->batch_stride[s] * bytes;
        for (int d = 0; d < product->loop.space.rank; d++)
            addresses |= (uint64_t)product->loop.stride[s][d] * bytes;
        field[MPT__PLAN_PITCH_A + s] = side[s].stride[!side[s].contiguous];
        field[MPT__PLAN_STEP_A + s] = product->batch > 1 ? product->batch_stride[s] : 0;
    }
    field[MPT__PLAN_ALIGNED] = (long long)(addresses & (~addresses + 1));
}

/* A copy of operand `position` to `at` in the workspace. */
mpt__pack mpt__pack_begin(const mpt__cuda_call *call, int position, long long at, int dtype) {
    mpt__pack pack;
    memset(&pack, 0, sizeof pack);
    pack.from = call->data[position];
    pack.to = (char *)call->workspace + at;
    pack.from_dtype = call->launch->operand[position].dtype;
    pack.to_dtype = dtype;
    pack.compute_dtype = call->launch->compute_dtype;
    pack.space.count = 1;
    return pack;
}

void mpt__pack_append(mpt__pack *pack, long long size, long long stride) {
    mpt__space_append(&pack->space, &pack->stride, 1, size, &stride);
    pack->space.count *= size;
}

/* The copies that the product needs, in one launch. */
void mpt__product_copies(const mpt__cuda_call *call, const mpt__product *product) {
    const mpt__operand &out = call->launch->operand[3], &bias = call->launch->operand[2];
    mpt__packs packs;
    long long most = 1;
    unsigned int n = 0;
    memset(&packs, 0, sizeof packs);
    for (int s = 0; s < MPT__SIDE_OUT; s++) {
        const mpt__side *side = &product->side[s];
        const int inner = side->contiguous;
        if (side->at < 0) continue;
        const mpt__side from = mpt__side_of(call->launch->operand[s], out.rank - 1 - s);
        mpt__pack *pack = &packs.of[n++];
        *pack = mpt__pack_begin(call, s, side->at, side->dtype);
        for (int d = 0; d < out.rank - 2; d++) {
            if (from.batch[d] != 0) mpt__pack_append(pack, out.shape[d], from.batch[d]);
        }
        mpt__pack_append(pack, from.size[!inner], from.stride[!inner]);
        mpt__pack_append(pack, from.size[inner], from.stride[inner]);
    }
    if (product->bias && product->bias_at >= 0) {
        mpt__pack *pack = &packs.of[n++];
        *pack = mpt__pack_begin(call, 2, product->bias_at, out.dtype);
        mpt__pack_append(pack, bias.shape[bias.rank - 1], bias.stride[bias.rank - 1]);
    }
    for (unsigned int i = 0; i < n; i++) {
        mpt__pack *pack = &packs.of[i];
        pack->in_eights = pack->space.rank <= 1 &&
                          (pack->space.rank == 0 || pack->stride[0] == 1) &&
                          (uintptr_t)pack->from % 16 == 0;
        if (pack->space.count > most) most = pack->space.count;
    }
    if (n == 0) return;
    const dim3 grid(mpt__blocks(call, (most + 7) / 8), n);
    mpt__pack_kernel<<<grid, MPT__THREADS, 0, call->stream>>>(packs);
}

mpt__plan_call mpt__product_call(const mpt__cuda_call *call, const mpt__product *product) {
    mpt__plan_call run;
    run.a = mpt__product_data(call, product, MPT__SIDE_A);
    run.b = mpt__product_data(call, product, MPT__SIDE_B);
    run.out = mpt__product_data(call, product, MPT__SIDE_OUT);
    run.bias = NULL;
    if (product->bias) {
        run.bias =
            product->bias_at < 0 ? call->data[2] : (char *)call->workspace + product->bias_at;
    }
    run.alpha = (float)call->launch->imm[0];
    run.beta = !product->finish && call->launch->operand[3].access == MPT__ACCUMULATE ? 1.0f : 0.0f;
    return run;
}

/* One call of the plan for each batch that could not be merged; false if cuBLASLt refused. */
bool mpt__product_run(const mpt__cuda_call *call, const mpt__product *product,
                      const mpt__plan *plan, const mpt__plan_call *first) {
    const mpt__batches *loop = &product->loop;
    for (long long i = 0; i < loop->space.count; i++) {
        long long at[MPT__SIDES] = {0, 0, 0}, rest = i;
        for (int d = loop->space.rank - 1; d >= 0; d--) {
            for (int s = 0; s < MPT__SIDES; s++)
                at[s] += rest % loop->space.shape[d] * loop->stride[s][d];
            rest /= loop->space.shape[d];
        }
        for (int s = 0; s < MPT__SIDES; s++)
            at[s] *= (long long)mpt_dtype_size((mpt_dtype)product->side[s].dtype);
        mpt__plan_call run = *first;
        run.a = (const char *)run.a + at[MPT__SIDE_A];
        run.b = (const char *)run.b + at[MPT__SIDE_B];
        run.out = (char *)run.out + at[MPT__SIDE_OUT];
        if (mpt__plan_run(call->cuda->products, plan, &plan->algorithm, &run) !=
            CUBLAS_STATUS_SUCCESS)
            return false;
    }
    return true;
}

/* The output from the sums in workspace. */
void mpt__product_finish(const mpt__cuda_call *call, const float *sum) {
    mpt__array out = mpt__array_of(call, 3), bias = mpt__array_of(call, 2);
    mpt__array *arrays[] = {&out, &bias};
    const mpt__space space = mpt__space_of(call, 3, arrays, 2);
    const unsigned int blocks = mpt__blocks(call, space.count);
    mpt__finish_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(
        out, bias, space, sum, call->launch->compute_dtype, call->launch->activation);
}

/* A launch with elements in its output. */
mpt_status mpt__product_launch(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__operand &a = launch->operand[0];
    if (a.shape[a.rank - 1] == 0) return mpt__product_plain(call);
    const mpt__product product = mpt__product_of(launch);
    const mpt__plan_call run = mpt__product_call(call, &product);
    long long field[MPT__PLAN_FIELD_COUNT];
    mpt__product_copies(call, &product);
    mpt__product_fields(call, &product, &run, field);
    mpt__plan *plan = mpt__plan_get(call->cuda->products, field, &run);
    if (plan == NULL)
        return mpt__cuda_refuse(call->cuda, MPT_ERROR_MEMORY, "gemm", "no memory for its plan");
    /* Every call of a plan does the same, so that only the first can be refused. */
    plan->usable = plan->usable && mpt__product_run(call, &product, plan, &run);
    if (!plan->usable) return mpt__product_plain(call);
    if (product.finish) mpt__product_finish(call, (const float *)run.out);
    return MPT_OK;
}

/* How much of dimension 0 of the output to do at a time, so that sums in workspace stay few. */
long long mpt__gemm_piece(const mpt__launch *launch) {
    const mpt__operand &out = launch->operand[3];
    const long long rows = out.shape[0], bytes = 4 * mpt__numel(out);
    if (bytes <= MPT__SUM_BYTES || rows < 2 || !mpt__product_of(launch).finish) return rows;
    const long long piece = MPT__SUM_BYTES / (bytes / rows);
    return piece > 128 ? piece / 128 * 128 : piece > 1 ? piece : 1;
}

/* The launch for `count` of dimension 0. */
mpt__launch mpt__gemm_cut(const mpt__launch *launch, long long count) {
    mpt__launch cut = *launch;
    for (int i = 0; i < 4; i++) {
        if (i != 1 || cut.operand[i].rank > 2) cut.operand[i].shape[0] = count;
    }
    return cut;
}

int64_t mpt__cuda_gemm_workspace(const mpt__launch *launch) {
    if (mpt__numel(launch->operand[3]) == 0) return 0;
    const long long rows = launch->operand[3].shape[0], piece = mpt__gemm_piece(launch);
    if (piece >= rows) return mpt__product_of(launch).workspace;
    const mpt__launch cut = mpt__gemm_cut(launch, piece);
    return mpt__product_of(&cut).workspace;
}

mpt_status mpt__cuda_gemm(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    if (mpt__numel(launch->operand[3]) == 0) return MPT_OK;
    const long long rows = launch->operand[3].shape[0], piece = mpt__gemm_piece(launch);
    if (piece >= rows) return mpt__product_launch(call);
    for (long long row = 0; row < rows; row += piece) {
        const mpt__launch cut = mpt__gemm_cut(launch, piece < rows - row ? piece : rows - row);
        mpt__cuda_call part = *call;
        part.launch = &cut;
        for (int i = 0; i < 4; i++) {
            const mpt__operand &operand = launch->operand[i];
            const long long bytes = (long long)mpt_dtype_size((mpt_dtype)operand.dtype);
            if (part.data[i] == NULL || (i == 1 && operand.rank == 2)) continue;
            part.data[i] = (char *)part.data[i] + row * operand.stride[0] * bytes;
        }
        const mpt_status status = mpt__product_launch(&part);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

/* ---- What benchmark mode chose, as text ---- */

/* Text that grows; what does not fit is only counted. */
struct mpt__text {
    char *text;
    size_t capacity, length;
};

void mpt__text_add(mpt__text *to, const char *format, ...) {
    const size_t room = to->length < to->capacity ? to->capacity - to->length : 0;
    va_list values;
    va_start(values, format);
    const int n = vsnprintf(room > 0 ? to->text + to->length : NULL, room, format, values);
    va_end(values);
    to->length += n > 0 ? (size_t)n : 0;
}

/* The first line: an algorithm means the same only on the same card with the same libraries. */
void mpt__products_title(const mpt__cuda_products *products, mpt__text *to) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    mpt__text_add(to, "mptrain products 1: %s, capability %d, driver %d, cublasLt %llu\n",
                  products->cuda->name, products->cuda->capability, driver,
                  (unsigned long long)cublasLtGetVersion());
}

/* What follows the fields of a plan that is not pinned, by whether it is usable. */
const char *const mpt__plan_unpinned[] = {" plain kernel\n", " heuristic\n"};

void mpt__plan_print(const mpt__plan *plan, mpt__text *to) {
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++)
        mpt__text_add(to, f == 0 ? "%s=%lld" : " %s=%lld", mpt__plan_names[f], plan->field[f]);
    for (int i = 0; i < MPT__ALGORITHM_WORDS && plan->pinned; i++)
        mpt__text_add(to, " algorithm=%llx", (unsigned long long)plan->algorithm.data[i]);
    if (plan->pinned)
        mpt__text_add(to, " ns=%lld first=%lld\n", plan->nanoseconds, plan->nanoseconds_first);
    else
        mpt__text_add(to, "%s", mpt__plan_unpinned[plan->usable]);
}

/* The number after "name=" at *text, which moves behind it, or becomes NULL for good if something
   else stands there. */
unsigned long long mpt__text_number(const char **text, const char *name, int base) {
    const size_t length = strlen(name);
    const char *at = *text;
    char *end = NULL;
    if (at == NULL) return 0;
    *text = NULL;
    if (*at == ' ') at++;
    if (strncmp(at, name, length) != 0 || at[length] != '=') return 0;
    at += length + 1;
    const unsigned long long number = strtoull(at, &end, base);
    if (end != at) *text = end;
    return number;
}

/* A line of mpt__plan_print; false if it is none. */
bool mpt__plan_read(const char *text, mpt__plan *plan) {
    memset(plan, 0, sizeof *plan);
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++)
        plan->field[f] = (long long)mpt__text_number(&text, mpt__plan_names[f], 10);
    for (int i = 0; i < 2 && text != NULL; i++) {
        const char *unpinned = mpt__plan_unpinned[i];
        if (strncmp(text, unpinned, strlen(unpinned)) == 0) return true;
    }
    for (int i = 0; i < MPT__ALGORITHM_WORDS; i++)
        plan->algorithm.data[i] = mpt__text_number(&text, "algorithm", 16);
    plan->nanoseconds = (long long)mpt__text_number(&text, "ns", 10);
    plan->nanoseconds_first = (long long)mpt__text_number(&text, "first", 10);
    plan->pinned = text != NULL && *text == '\n';
    return plan->pinned;
}

/* Takes the choice that was read. A plan already made must be able to run it; any other finds that
   out when it is made. */
void mpt__plan_adopt(const mpt__cuda_products *products, mpt__plan *plan, const mpt__plan *read) {
    const cublasLtMatmulAlgo_t old = plan->algorithm;
    plan->algorithm = read->algorithm;
    plan->pinned = plan->operation == NULL || (plan->usable && mpt__plan_check(products, plan));
    plan->nanoseconds = read->nanoseconds;
    plan->nanoseconds_first = read->nanoseconds_first;
    if (!plan->pinned) plan->algorithm = old;
}

/* A line that names card and libraries, then one per kind of product with its algorithm, its time and
   that of the heuristic's first choice. Returns the length, of which `capacity` - 1 bytes are
   written. */
size_t mpt__cuda_products_print(const mpt__cuda_products *products, char *text, size_t capacity) {
    mpt__text to = {text, capacity, 0};
    mpt__products_title(products, &to);
    for (long long i = 0; i < products->capacity; i++) {
        if (products->plans[i].taken) mpt__plan_print(&products->plans[i], &to);
    }
    return to.length;
}

/* Pins what such a text (ending with a 0) names, for products not pinned yet. A text from another
   card or other libraries is refused as a whole, with MPT_ERROR_UNSUPPORTED; with a line that is
   none, what came before stands. */
mpt_status mpt__cuda_products_read(mpt__cuda_products *products, const char *text) {
    char title[512];
    mpt__text own = {title, sizeof title, 0};
    mpt__products_title(products, &own);
    if (strncmp(text, title, strlen(title)) != 0) {
        return mpt__cuda_refuse(products->cuda, MPT_ERROR_UNSUPPORTED, "benchmark results ignored",
                                "they are from another card, driver or cuBLASLt");
    }
    for (text = strchr(text, '\n') + 1; *text != 0;) {
        mpt__plan read;
        if (!mpt__plan_read(text, &read)) {
            return mpt__cuda_refuse(products->cuda, MPT_ERROR_FORMAT, "benchmark results",
                                    "a line is not as mptrain writes it");
        }
        mpt__plan *plan = read.pinned ? mpt__plan_enter(products, read.field) : NULL;
        if (read.pinned && plan == NULL) {
            return mpt__cuda_refuse(products->cuda, MPT_ERROR_MEMORY, "benchmark results",
                                    "no memory for them");
        }
        if (plan != NULL && !plan->pinned) mpt__plan_adopt(products, plan, &read);
        text = strchr(text, '\n') + 1;
    }
    return MPT_OK;
}

/* ---- Making and ending ---- */

void mpt__cuda_products_destroy(mpt__cuda_products *products) {
    if (products == NULL) return;
    for (long long i = 0; i < products->capacity; i++) {
        const mpt__plan *plan = &products->plans[i];
        for (int s = 0; s < MPT__SIDES; s++)
            if (plan->layout[s] != NULL) cublasLtMatrixLayoutDestroy(plan->layout[s]);
        if (plan->operation != NULL) cublasLtMatmulDescDestroy(plan->operation);
    }
    if (products->preference != NULL) cublasLtMatmulPreferenceDestroy(products->preference);
    if (products->handle != NULL) cublasLtDestroy(products->handle);
    if (products->begin != NULL) cudaEventDestroy(products->begin);
    if (products->end != NULL) cudaEventDestroy(products->end);
    cudaFree(products->workspace);
    free(products->plans);
    free(products);
}

/* Sums of halves are only ever reduced in fp32. */
bool mpt__products_begin(mpt__cuda_products *products) {
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t bytes = products->workspace_bytes;
    return cublasLtCreate(&products->handle) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceCreate(&products->preference) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(
               products->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
               sizeof reductions) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(products->preference,
                                                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                sizeof bytes) == CUBLAS_STATUS_SUCCESS &&
           cudaEventCreate(&products->begin) == cudaSuccess &&
           cudaEventCreate(&products->end) == cudaSuccess &&
           cudaMalloc(&products->workspace, products->workspace_bytes) == cudaSuccess;
}

/* NULL if cuBLASLt or memory fails, with the reason in the backend's error. */
mpt__cuda_products *mpt__cuda_products_create(mpt__cuda *cuda) {
    mpt__cuda_products *products = (mpt__cuda_products *)calloc(1, sizeof *products);
    if (products != NULL) {
        products->cuda = cuda;
        products->workspace_bytes = (size_t)(cuda->capability >= 90 ? 32 : 8) << 20;
        if (mpt__products_begin(products)) return products;
    }
    mpt__cuda_products_destroy(products);
    mpt__cuda_refuse(cuda, MPT_ERROR_DEVICE, "cuBLASLt",
                     "cannot be started (memory, or its version)");
    return NULL;
}

/* ==== Optimizers and scaler ==== */

/* ==== Memory and transfers ==== */

/* ==== Launching ==== */

/* ==== Making and ending ==== */

}  // namespace
