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
    bool capturing; /* launches go into a graph */
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
   halves come in 128-bit pieces; other dtypes, if there may be ANY, one by one. */
template <bool ANY = true>
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
    } else if (ANY) {
        for (int i = 0; i < 8; i++) x[i] = mpt__load(data, dtype, at + i);
    }
}

template <bool ANY = true>
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
    } else if (ANY) {
        for (int i = 0; i < 8; i++) mpt__store(data, dtype, at + i, x[i]);
    }
}

template <bool ANY = true>
__device__ __forceinline__ void mpt__put8(const mpt__array &array, long long at, float x[8]) {
    if (array.accumulate) {
        float old[8];
        mpt__load8<ANY>(array.data, array.dtype, at, old);
        for (int i = 0; i < 8; i++) x[i] = old[i] + x[i];
    }
    mpt__store8<ANY>(array.data, array.dtype, at, x);
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

/* The space of arrays of one shape: leaves out dimensions of size 1 and merges neighbours where the
   strides of all `n` arrays allow it. */
mpt__space mpt__merge(int rank, const int64_t *shape, mpt__array *const *arrays, int n) {
    mpt__space space;
    memset(&space, 0, sizeof space);
    space.count = 1;
    for (int d = 0; d < rank; d++) {
        const long long size = shape[d];
        bool merges = space.rank > 0;
        space.count *= size;
        if (size == 1) continue;
        for (int i = 0; i < n && merges; i++)
            merges = arrays[i]->stride[space.rank - 1] == size * arrays[i]->stride[d];
        if (!merges) space.rank++;
        space.shape[space.rank - 1] = merges ? space.shape[space.rank - 1] * size : size;
        for (int i = 0; i < n; i++) arrays[i]->stride[space.rank - 1] = arrays[i]->stride[d];
    }
    return space;
}

/* That of arrays of the shape of operand `position`. */
mpt__space mpt__space_of(const mpt__cuda_call *call, int position, mpt__array *const *arrays,
                         int n) {
    const mpt__operand &operand = call->launch->operand[position];
    return mpt__merge(operand.rank, operand.shape, arrays, n);
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

/* A line of elements is worked on by a group of threads: one, a warp, or a whole block. Which, and
   with it the tree of every sum, follows from the shapes and strides alone. */

#define MPT__LINE 1024 /* elements: longer lines get a block, shorter ones a warp */

/* The loop of a kernel whose groups take `count` lines. */
#define MPT__EACH_LINE(line, group, count)                                                    \
    for (long long line = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / (group);       \
         line < (count); line += (long long)gridDim.x * blockDim.x / (group))

/* Sum and maximum over the threads of a group; every thread gets the result. */
template <int GROUP> __device__ __forceinline__ float mpt__group_sum(float x) {
    if (GROUP > MPT__WARP) {
        x = mpt__block_sum(x);
    } else {
        for (int step = GROUP / 2; step > 0; step /= 2) x += __shfl_xor_sync(MPT__ALL, x, step);
    }
    return x;
}

template <int GROUP> __device__ __forceinline__ float mpt__group_max(float x) {
    if (GROUP > MPT__WARP) {
        x = mpt__block_max(x);
    } else {
        for (int step = GROUP / 2; step > 0; step /= 2)
            x = mpt__larger(x, __shfl_xor_sync(MPT__ALL, x, step));
    }
    return x;
}

/* Whether eights are 128-bit pieces. */
bool mpt__is_packed(int dtype) {
    return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* V neighbours, 8 or 1; eights of packed dtypes only. */
template <int V>
__device__ __forceinline__ void mpt__load_some(const mpt__array &array, long long at, float *x) {
    if (V == 8) {
        mpt__load8<false>(array.data, array.dtype, at, x);
    } else {
        x[0] = mpt__load(array.data, array.dtype, at);
    }
}

template <int V>
__device__ __forceinline__ void mpt__put_some(const mpt__array &array, long long at, float *x) {
    if (V == 8) {
        mpt__put8<false>(array, at, x);
    } else {
        mpt__put(array, at, x[0]);
    }
}

/* Whether eights can be taken along dimensions of these strides, of which the innermost has size
   `inner`, at all steps of the other dimensions. */
bool mpt__strides_in_eights(const mpt__array &array, const long long *along, int along_rank,
                            long long inner, const long long *others, int others_rank) {
    if (!mpt__is_packed(array.dtype) || (uintptr_t)array.data % 16 != 0) return false;
    if (along_rank == 0 || along[along_rank - 1] != 1 || inner % 8 != 0) return false;
    for (int d = 0; d < along_rank - 1; d++) {
        if (along[d] % 8 != 0) return false;
    }
    for (int d = 0; d < others_rank; d++) {
        if (others[d] % 8 != 0) return false;
    }
    return true;
}

/* What one pass of a reduction does: each output combines `chunks` chunks of the elements that it
   reduces, into `partial` where that is given, else into `out`. */
struct mpt__reduction {
    mpt__space kept, reduced; /* the outputs; what each of them reduces */
    mpt__array in, out;       /* strides over `kept` */
    long long along[MPT_MAX_RANK]; /* strides of `in` over `reduced` */
    long long chunk, chunks;
    float *partial; /* by rows [outputs, chunks], by columns [chunks, outputs] */
    float divisor;  /* of what goes to `out` */
    bool is_max, by_columns;
};

__device__ __forceinline__ float mpt__combine(bool is_max, float a, float b) {
    return is_max ? mpt__larger(a, b) : a + b;
}

__device__ __forceinline__ void mpt__reduce_put(const mpt__reduction &r, long long output,
                                                long long chunk, float x) {
    if (r.partial == NULL) {
        mpt__put(r.out, mpt__locate(r.kept, r.out.stride, output), x / r.divisor);
    } else {
        r.partial[r.by_columns ? chunk * r.kept.count + output : output * r.chunks + chunk] = x;
    }
}

/* A group for each chunk of each output. */
template <int GROUP, int V> __global__ void mpt__reduce_rows_kernel(mpt__reduction r) {
    const int lane = (int)(threadIdx.x % GROUP);
    MPT__EACH_LINE(piece, GROUP, r.kept.count * r.chunks) {
        const long long output = piece / r.chunks, begin = piece % r.chunks * r.chunk;
        const long long end = begin + r.chunk < r.reduced.count ? begin + r.chunk : r.reduced.count;
        const long long base = mpt__locate(r.kept, r.in.stride, output);
        const long long rest = end - (end - begin) % V;
        float x[V], result = r.is_max ? -INFINITY : 0.0f;
        for (long long i = begin + lane * V; i < rest; i += GROUP * V) {
            mpt__load_some<V>(r.in, base + mpt__locate(r.reduced, r.along, i), x);
            for (int half = V / 2; half > 0; half /= 2) {
                for (int k = 0; k < half; k++) x[k] = mpt__combine(r.is_max, x[k], x[k + half]);
            }
            result = mpt__combine(r.is_max, result, x[0]);
        }
        for (long long i = rest + lane; i < end; i += GROUP) {
            const long long at = base + mpt__locate(r.reduced, r.along, i);
            result = mpt__combine(r.is_max, result, mpt__load(r.in.data, r.in.dtype, at));
        }
        result = r.is_max ? mpt__group_max<GROUP>(result) : mpt__group_sum<GROUP>(result);
        if (lane == 0) mpt__reduce_put(r, output, piece % r.chunks, result);
    }
}

/* A block for each chunk of each tile of outputs: `width` threads side by side take V outputs each,
   and the block's MPT__THREADS / width lines of threads take turns at the elements. */
template <int V> __global__ void mpt__reduce_columns_kernel(mpt__reduction r, int width) {
    __shared__ float part[MPT__THREADS * V];
    const int lines = MPT__THREADS / width, line = (int)threadIdx.x / width, tile_size = width * V;
    const long long tiles = (r.kept.count + tile_size - 1) / tile_size;
    for (long long piece = blockIdx.x; piece < tiles * r.chunks; piece += gridDim.x) {
        const long long first = piece % tiles * tile_size, chunk = piece / tiles;
        const long long begin = chunk * r.chunk + line, column = first + threadIdx.x % width * V;
        const long long end = column >= r.kept.count ? 0
                              : (chunk + 1) * r.chunk < r.reduced.count ? (chunk + 1) * r.chunk
                                                                        : r.reduced.count;
        const long long base = mpt__locate(r.kept, r.in.stride, column);
        float x[V], result[V];
        for (int k = 0; k < V; k++) result[k] = r.is_max ? -INFINITY : 0.0f;
        for (long long i = begin; i < end; i += lines) {
            mpt__load_some<V>(r.in, base + mpt__locate(r.reduced, r.along, i), x);
            for (int k = 0; k < V; k++) result[k] = mpt__combine(r.is_max, result[k], x[k]);
        }
        __syncthreads(); /* `part` may still be read for the tile before */
        for (int k = 0; k < V; k++) part[threadIdx.x * V + k] = result[k];
        __syncthreads();
        for (int c = (int)threadIdx.x; c < tile_size && first + c < r.kept.count;
             c += MPT__THREADS) {
            float total = part[c];
            for (int l = 1; l < lines; l++)
                total = mpt__combine(r.is_max, total, part[l * tile_size + c]);
            mpt__reduce_put(r, first + c, chunk, total);
        }
    }
}

/* Sorts the dimensions into those that stay and those that go, and chooses the way. Chunks: enough
   to fill a large card, each long enough to be worth a block. */
void mpt__reduce_plan(const mpt__cuda_call *call, mpt__reduction *r) {
    const mpt__launch *launch = call->launch;
    const mpt__operand &in = launch->operand[0], &out = launch->operand[1];
    mpt__array going, *staying[2] = {&r->in, &r->out}, *along = &going;
    int64_t kept[MPT_MAX_RANK], reduced[MPT_MAX_RANK];
    r->in = mpt__array_of(call, 0);
    r->out = mpt__array_of(call, 1);
    going = r->in;
    for (int d = 0; d < in.rank; d++) {
        const bool goes = out.shape[d] == 1;
        kept[d] = goes ? 1 : in.shape[d];
        reduced[d] = goes ? in.shape[d] : 1;
    }
    r->kept = mpt__merge(in.rank, kept, staying, 2);
    r->reduced = mpt__merge(in.rank, reduced, &along, 1);
    memcpy(r->along, going.stride, sizeof r->along);

    const long long outputs = r->kept.count, n = r->reduced.count;
    const int inner_kept = r->kept.rank - 1, inner_reduced = r->reduced.rank - 1;
    r->by_columns = outputs > 1 && (n < 16 || r->in.stride[inner_kept] < r->along[inner_reduced]);
    const long long least = r->by_columns ? 64 : 4096, fill = r->by_columns ? 262144 : 1024;
    const long long most = r->by_columns ? 256 : 1024;
    long long chunks = outputs > 0 ? fill / outputs : 1;
    if (chunks > most) chunks = most;
    if (chunks > (n + least - 1) / least) chunks = (n + least - 1) / least;
    if (chunks < 1) chunks = 1;
    r->chunk = ((n + chunks - 1) / chunks + 7) / 8 * 8;
    r->chunks = n > 0 ? (n + r->chunk - 1) / r->chunk : 1; /* nothing to sum: the identity */
    r->is_max = launch->function == MPT__FN_MAX;
    r->divisor = launch->function == MPT__FN_MEAN ? (float)n : 1.0f;
    r->partial = NULL;
}

int64_t mpt__cuda_reduce_workspace(const mpt__launch *launch) {
    mpt__cuda_call call;
    mpt__reduction r;
    memset(&call, 0, sizeof call);
    call.launch = launch;
    mpt__reduce_plan(&call, &r);
    return r.chunks > 1 ? r.kept.count * r.chunks * (int64_t)sizeof(float) : 0;
}

void mpt__reduce_columns(const mpt__cuda_call *call, const mpt__reduction &r) {
    const bool eights = r.kept.rank > 0 &&
                        mpt__strides_in_eights(r.in, r.in.stride, r.kept.rank,
                                               r.kept.shape[r.kept.rank - 1], r.along,
                                               r.reduced.rank);
    const long long pieces = r.kept.count / (eights ? 8 : 1);
    int width = MPT__WARP;
    while (width > 1 && width / 2 >= pieces) width /= 2;
    const unsigned int blocks =
        mpt__blocks(call, (pieces + width - 1) / width * r.chunks * MPT__THREADS);
    if (eights) {
        mpt__reduce_columns_kernel<8><<<blocks, MPT__THREADS, 0, call->stream>>>(r, width);
    } else {
        mpt__reduce_columns_kernel<1><<<blocks, MPT__THREADS, 0, call->stream>>>(r, width);
    }
}

void mpt__reduce_rows(const mpt__cuda_call *call, const mpt__reduction &r) {
    const int rank = r.reduced.rank;
    /* A single dimension may end with less than eight; in others every eight lies within a line. */
    const long long inner = rank > 1 ? r.reduced.shape[rank - 1] : 0;
    const bool eights =
        mpt__strides_in_eights(r.in, r.along, rank, inner, r.in.stride, r.kept.rank);
    const bool is_long = r.chunk > MPT__LINE;
    const unsigned int blocks =
        mpt__blocks(call, r.kept.count * r.chunks * (is_long ? MPT__THREADS : MPT__WARP));
    if (is_long && eights) {
        mpt__reduce_rows_kernel<MPT__THREADS, 8><<<blocks, MPT__THREADS, 0, call->stream>>>(r);
    } else if (is_long) {
        mpt__reduce_rows_kernel<MPT__THREADS, 1><<<blocks, MPT__THREADS, 0, call->stream>>>(r);
    } else if (eights) {
        mpt__reduce_rows_kernel<MPT__WARP, 8><<<blocks, MPT__THREADS, 0, call->stream>>>(r);
    } else {
        mpt__reduce_rows_kernel<MPT__WARP, 1><<<blocks, MPT__THREADS, 0, call->stream>>>(r);
    }
}

/* The second pass of a reduction: combines its partial results. */
mpt__reduction mpt__reduce_rest(const mpt__reduction &first) {
    mpt__reduction r = first;
    long long step = first.by_columns ? 1 : first.chunks;
    r.in.data = first.partial;
    r.in.dtype = MPT_F32;
    for (int d = r.kept.rank - 1; d >= 0; d--) {
        r.in.stride[d] = step;
        step *= r.kept.shape[d];
    }
    r.reduced.rank = 1;
    r.reduced.count = r.reduced.shape[0] = r.chunk = first.chunks;
    r.along[0] = first.by_columns ? first.kept.count : 1;
    r.chunks = 1;
    r.partial = NULL;
    return r;
}

mpt_status mpt__cuda_reduce(const mpt__cuda_call *call) {
    mpt__reduction r;
    mpt__reduce_plan(call, &r);
    if (r.kept.count == 0) return MPT_OK;
    if (r.chunks > 1) r.partial = (float *)call->workspace;
    for (int pass = r.chunks > 1 ? 2 : 1; pass > 0; pass--) {
        if (r.by_columns) {
            mpt__reduce_columns(call, r);
        } else {
            mpt__reduce_rows(call, r);
        }
        if (pass == 2) r = mpt__reduce_rest(r);
    }
    return MPT_OK;
}

/* The lines of [outer, n, inner]: their space, which the arrays' strides are over, and the strides
   of the arrays along a line. */
struct mpt__lines {
    mpt__space space;
    mpt__array array[3];
    long long n, along[3];
    bool log;
};

/* The maximum of a line and the sum of exp(x - maximum) over it, in one pass: what a thread has is
   rescaled where its maximum grows. A NaN anywhere, and a line of nothing but -infinity, make the
   sum NaN. */
template <int GROUP, int V>
__device__ __forceinline__ float mpt__line_sum(const mpt__array &array, long long base, long long stride,
                               long long n, float *most) {
    float largest = -INFINITY, sum = 0.0f, x[V];
    for (long long i = threadIdx.x % GROUP * V; i < n; i += GROUP * V) {
        float above = largest;
        mpt__load_some<V>(array, base + i * stride, x);
        for (int k = 0; k < V; k++) above = mpt__larger(above, x[k]);
        if (above != largest) sum *= expf(largest - above);
        largest = above;
        for (int k = 0; k < V; k++) sum += x[k] == -INFINITY ? 0.0f : expf(x[k] - largest);
    }
    *most = mpt__group_max<GROUP>(largest);
    if (largest != *most) sum *= expf(largest - *most);
    sum = mpt__group_sum<GROUP>(sum);
    return *most == -INFINITY ? NAN : sum;
}

__device__ __forceinline__ float mpt__softmax_of(float x, float sum, float log_sum, bool log) {
    return log ? x - log_sum : expf(x) / sum;
}

/* [x, y] of lines of any length. */
template <int GROUP, int V> __global__ void mpt__softmax_kernel(mpt__lines lines) {
    MPT__EACH_LINE(line, GROUP, lines.space.count) {
        const long long from = mpt__locate(lines.space, lines.array[0].stride, line);
        const long long to = mpt__locate(lines.space, lines.array[1].stride, line);
        float most, x[V];
        const float sum =
            mpt__line_sum<GROUP, V>(lines.array[0], from, lines.along[0], lines.n, &most);
        const float log_sum = logf(sum);
        for (long long i = threadIdx.x % GROUP * V; i < lines.n; i += GROUP * V) {
            mpt__load_some<V>(lines.array[0], from + i * lines.along[0], x);
            for (int k = 0; k < V; k++)
                x[k] = mpt__softmax_of(x[k] - most, sum, log_sum, lines.log);
            mpt__put_some<V>(lines.array[1], to + i * lines.along[1], x);
        }
    }
}

/* Eights of lines that a warp holds in registers: MPT__LINE elements. */
#define MPT__HELD (MPT__LINE / MPT__WARP)

__global__ void mpt__softmax_short_kernel(mpt__lines lines) {
    const int lane = (int)(threadIdx.x % MPT__WARP);
    MPT__EACH_LINE(line, MPT__WARP, lines.space.count) {
        const long long from = mpt__locate(lines.space, lines.array[0].stride, line);
        const long long to = mpt__locate(lines.space, lines.array[1].stride, line);
        float x[MPT__HELD], most = -INFINITY, sum = 0.0f;
#pragma unroll
        for (int j = 0; j < MPT__HELD; j += 8) {
            const int i = lane * 8 + j * MPT__WARP;
            for (int k = 0; k < 8; k++) x[j + k] = -INFINITY; /* adds nothing */
            if (i < lines.n) mpt__load_some<8>(lines.array[0], from + i, x + j);
            for (int k = 0; k < 8; k++) most = mpt__larger(most, x[j + k]);
        }
        most = mpt__group_max<MPT__WARP>(most);
#pragma unroll
        for (int j = 0; j < MPT__HELD; j++) {
            x[j] -= most;
            const float e = expf(x[j]);
            if (!lines.log) x[j] = e;
            sum += e;
        }
        sum = mpt__group_sum<MPT__WARP>(sum);
        const float log_sum = logf(sum);
#pragma unroll
        for (int j = 0; j < MPT__HELD; j += 8) {
            const int i = lane * 8 + j * MPT__WARP;
            for (int k = 0; k < 8; k++) x[j + k] = lines.log ? x[j + k] - log_sum : x[j + k] / sum;
            if (i < lines.n) mpt__put_some<8>(lines.array[1], to + i, x + j);
        }
    }
}

/* Softmax: dx = y (dy - sum(dy y)); log_softmax: dx = dy - exp(y) sum(dy). */
__device__ __forceinline__ float mpt__softmax_slope(float y, float dy, float total, bool log) {
    return log ? dy - expf(y) * total : y * (dy - total);
}

/* [y, dy, dx] of lines of any length. */
template <int GROUP, int V> __global__ void mpt__softmax_backward_kernel(mpt__lines lines) {
    const long long first = threadIdx.x % GROUP * V, step = GROUP * V;
    MPT__EACH_LINE(line, GROUP, lines.space.count) {
        long long base[3];
        float y[V], dy[V], total = 0.0f;
        for (int k = 0; k < 3; k++)
            base[k] = mpt__locate(lines.space, lines.array[k].stride, line);
        for (long long i = first; i < lines.n; i += step) {
            mpt__load_some<V>(lines.array[0], base[0] + i * lines.along[0], y);
            mpt__load_some<V>(lines.array[1], base[1] + i * lines.along[1], dy);
            for (int k = 0; k < V; k++) total += lines.log ? dy[k] : dy[k] * y[k];
        }
        total = mpt__group_sum<GROUP>(total);
        for (long long i = first; i < lines.n; i += step) {
            mpt__load_some<V>(lines.array[0], base[0] + i * lines.along[0], y);
            mpt__load_some<V>(lines.array[1], base[1] + i * lines.along[1], dy);
            for (int k = 0; k < V; k++) dy[k] = mpt__softmax_slope(y[k], dy[k], total, lines.log);
            mpt__put_some<V>(lines.array[2], base[2] + i * lines.along[2], dy);
        }
    }
}

__global__ void mpt__softmax_backward_short_kernel(mpt__lines lines) {
    const int lane = (int)(threadIdx.x % MPT__WARP);
    MPT__EACH_LINE(line, MPT__WARP, lines.space.count) {
        long long base[3];
        float y[MPT__HELD], dy[MPT__HELD], total = 0.0f;
        for (int k = 0; k < 3; k++)
            base[k] = mpt__locate(lines.space, lines.array[k].stride, line);
#pragma unroll
        for (int j = 0; j < MPT__HELD; j += 8) {
            const int i = lane * 8 + j * MPT__WARP;
            for (int k = 0; k < 8; k++) y[j + k] = dy[j + k] = 0.0f;
            if (i < lines.n) {
                mpt__load_some<8>(lines.array[0], base[0] + i, y + j);
                mpt__load_some<8>(lines.array[1], base[1] + i, dy + j);
            }
            for (int k = j; k < j + 8; k++) total += lines.log ? dy[k] : dy[k] * y[k];
        }
        total = mpt__group_sum<MPT__WARP>(total);
#pragma unroll
        for (int j = 0; j < MPT__HELD; j += 8) {
            const int i = lane * 8 + j * MPT__WARP;
            for (int k = j; k < j + 8; k++)
                dy[k] = mpt__softmax_slope(y[k], dy[k], total, lines.log);
            if (i < lines.n) mpt__put_some<8>(lines.array[2], base[2] + i, dy + j);
        }
    }
}

/* How lines are taken: by one thread each where neighbouring lines lie side by side, else by warps
   or blocks; in eights where all arrays allow it. Short lines in eights stay in registers. */
enum mpt__way { MPT__BY_THREADS, MPT__BY_WARPS, MPT__BY_BLOCKS, MPT__BY_BLOCKS_8, MPT__HELD_8 };

mpt__way mpt__lines_of(const mpt__cuda_call *call, int operands, mpt__lines *lines) {
    const mpt__operand &o = call->launch->operand[0];
    const int64_t shape[3] = {o.shape[0], 1, o.shape[2]};
    mpt__array *arrays[3] = {&lines->array[0], &lines->array[1], &lines->array[2]};
    /* A thread adds up its line one by one, which is not for long ones. */
    bool eights = true, side_by_side = o.shape[1] <= MPT__LINE;
    memset(lines, 0, sizeof *lines);
    lines->n = o.shape[1];
    lines->log = call->launch->function == MPT__FN_LOG_SOFTMAX;
    for (int k = 0; k < operands; k++) {
        lines->array[k] = mpt__array_of(call, k);
        lines->along[k] = lines->array[k].stride[1];
    }
    lines->space = mpt__merge(3, shape, arrays, operands);
    const int inner = lines->space.rank - 1;
    for (int k = 0; k < operands; k++) {
        eights &= mpt__strides_in_eights(lines->array[k], &lines->along[k], 1, lines->n,
                                         lines->array[k].stride, lines->space.rank);
        side_by_side &= inner >= 0 && lines->space.shape[inner] >= MPT__WARP &&
                        lines->array[k].stride[inner] < lines->along[k];
    }
    if (side_by_side) return MPT__BY_THREADS;
    if (lines->n > MPT__LINE) return eights ? MPT__BY_BLOCKS_8 : MPT__BY_BLOCKS;
    return eights ? MPT__HELD_8 : MPT__BY_WARPS;
}

unsigned int mpt__line_blocks(const mpt__cuda_call *call, const mpt__lines &lines, mpt__way way) {
    static const int threads[] = {1, MPT__WARP, MPT__THREADS, MPT__THREADS, MPT__WARP};
    return mpt__blocks(call, lines.space.count * threads[way]);
}

mpt_status mpt__cuda_softmax(const mpt__cuda_call *call) {
    mpt__lines lines;
    const mpt__way way = mpt__lines_of(call, 2, &lines);
    const unsigned int blocks = mpt__line_blocks(call, lines, way), threads = MPT__THREADS;
    if (lines.space.count == 0 || lines.n == 0) return MPT_OK;
    switch (way) {
    case MPT__BY_THREADS:
        mpt__softmax_kernel<1, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_WARPS:
        mpt__softmax_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_BLOCKS:
        mpt__softmax_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_BLOCKS_8:
        mpt__softmax_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__HELD_8:
        mpt__softmax_short_kernel<<<blocks, threads, 0, call->stream>>>(lines);
        break;
    }
    return MPT_OK;
}

mpt_status mpt__cuda_softmax_backward(const mpt__cuda_call *call) {
    mpt__lines lines;
    const mpt__way way = mpt__lines_of(call, 3, &lines);
    const unsigned int blocks = mpt__line_blocks(call, lines, way), threads = MPT__THREADS;
    if (lines.space.count == 0 || lines.n == 0) return MPT_OK;
    switch (way) {
    case MPT__BY_THREADS:
        mpt__softmax_backward_kernel<1, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_WARPS:
        mpt__softmax_backward_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_BLOCKS:
        mpt__softmax_backward_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__BY_BLOCKS_8:
        mpt__softmax_backward_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(lines);
        break;
    case MPT__HELD_8:
        mpt__softmax_backward_short_kernel<<<blocks, threads, 0, call->stream>>>(lines);
        break;
    }
    return MPT_OK;
}

/* ==== Losses: NLL, NLL_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, METRIC_ADD ==== */

/* What the losses and their backward share. Absent operands have no data. */
struct mpt__loss {
    mpt__array x, target, weight, divisor, gradient, log_sum, out;
    long long rows, classes, ignore, number; /* number: of the launch */
    float smoothing;
    int reduction; /* mpt_reduction */
    bool from_logits;
    float *row_loss, *row_weight; /* [rows] */
    mpt__scalar *scalars;
};

enum { MPT__IGNORED = -1, MPT__BAD = -2 };

/* The class of a sample, or one of the above. */
__device__ __forceinline__ long long mpt__class_of(const mpt__loss &loss, long long row) {
    const long long t = ((const long long *)loss.target.data)[row * loss.target.stride[0]];
    return t == loss.ignore ? MPT__IGNORED : t < 0 || t >= loss.classes ? MPT__BAD : t;
}

__device__ __forceinline__ float mpt__class_weight(const mpt__loss &loss, long long c) {
    if (loss.weight.data == NULL) return 1.0f;
    return mpt__load(loss.weight.data, loss.weight.dtype, c * loss.weight.stride[0]);
}

__device__ __forceinline__ float mpt__logit(const mpt__loss &loss, long long row, long long c) {
    return mpt__load(loss.x.data, loss.x.dtype, row * loss.x.stride[0] + c * loss.x.stride[1]);
}

/* Sets the error word unless an earlier error stands there. */
__device__ void mpt__raise(mpt__scalar *scalars, long long status, long long number,
                           long long index) {
    unsigned long long *word = (unsigned long long *)&scalars[MPT__SLOT_ERROR].i;
    if (atomicCAS(word, 0ull, (unsigned long long)status) != 0) return;
    scalars[MPT__SLOT_ERROR_LAUNCH].i = number;
    scalars[MPT__SLOT_ERROR_INDEX].i = index;
}

/* Loss and weight of one sample, by one group. From logits: (1 - e) w (lse - x[t]) + e / C
   sum_c w_c (lse - x_c), the maximum kept apart so that large logits lose no digits. */
template <int GROUP, int V>
__device__ __forceinline__ void mpt__loss_row(const mpt__loss &loss, long long row) {
    const long long t = mpt__class_of(loss, row);
    float most = 0.0f, log_sum = 0.0f, all = 0.0f, weight = 0.0f, result = 0.0f;
    if (loss.from_logits) {
        const long long base = row * loss.x.stride[0];
        log_sum =
            logf(mpt__line_sum<GROUP, V>(loss.x, base, loss.x.stride[1], loss.classes, &most));
    }
    if (t >= 0 && loss.smoothing != 0.0f) {
        for (long long c = threadIdx.x % GROUP; c < loss.classes; c += GROUP)
            all += mpt__class_weight(loss, c) * (log_sum - (mpt__logit(loss, row, c) - most));
        all = mpt__group_sum<GROUP>(all);
    }
    if (threadIdx.x % GROUP != 0) return;
    if (t >= 0) {
        weight = mpt__class_weight(loss, t);
        result = weight * (log_sum - (mpt__logit(loss, row, t) - most));
        if (loss.smoothing != 0.0f)
            result = (1.0f - loss.smoothing) * result + loss.smoothing / (float)loss.classes * all;
    }
    if (loss.from_logits) {
        mpt__put(loss.log_sum, row * loss.log_sum.stride[0], most);
        mpt__put(loss.log_sum, row * loss.log_sum.stride[0] + loss.log_sum.stride[1], log_sum);
    }
    if (loss.reduction == MPT_NONE) mpt__put(loss.out, row * loss.out.stride[0], result);
    loss.row_loss[row] = result;
    loss.row_weight[row] = weight;
}

/* By one block, after all rows: the sums over the samples, and the first bad target, which is among
   the samples of weight 0. */
__device__ void mpt__loss_finish(const mpt__loss &loss) {
    __shared__ unsigned long long first_bad;
    float sum = 0.0f, weight = 0.0f;
    if (threadIdx.x == 0) first_bad = ~0ull;
    __syncthreads();
    for (long long row = threadIdx.x; row < loss.rows; row += blockDim.x) {
        sum += loss.row_loss[row];
        weight += loss.row_weight[row];
        if (loss.row_weight[row] == 0.0f && mpt__class_of(loss, row) == MPT__BAD)
            atomicMin(&first_bad, (unsigned long long)row);
    }
    sum = mpt__block_sum(sum);
    weight = mpt__block_sum(weight); /* and a barrier, after which first_bad stands */
    if (threadIdx.x != 0) return;
    const float by = loss.reduction == MPT_MEAN ? weight : 1.0f;
    if (loss.reduction != MPT_NONE) mpt__put(loss.out, 0, sum / by);
    mpt__put(loss.divisor, 0, by);
    if (first_bad != ~0ull)
        mpt__raise(loss.scalars, MPT_ERROR_INDEX, loss.number, (long long)first_bad);
}

/* Few samples fit in one block, which then finishes the loss by itself. */
#define MPT__LOSS_THREADS 512
#define MPT__LOSS_ROWS 128

template <int GROUP, int V>
__global__ void __launch_bounds__(MPT__LOSS_THREADS, 2) mpt__loss_kernel(mpt__loss loss) {
    MPT__EACH_LINE(row, GROUP, loss.rows) mpt__loss_row<GROUP, V>(loss, row);
    if (blockDim.x != MPT__LOSS_THREADS) return;
    __syncthreads();
    mpt__loss_finish(loss);
}

__global__ void __launch_bounds__(MPT__LOSS_THREADS, 2) mpt__loss_finish_kernel(mpt__loss loss) {
    mpt__loss_finish(loss);
}

mpt__loss mpt__loss_of(const mpt__cuda_call *call, int shape_of, bool from_logits) {
    const mpt__launch *launch = call->launch;
    mpt__loss loss;
    memset(&loss, 0, sizeof loss);
    loss.rows = launch->operand[shape_of].shape[0];
    loss.classes = launch->operand[shape_of].shape[1];
    loss.ignore = launch->index[0];
    loss.number = launch->number;
    loss.smoothing = from_logits ? (float)launch->imm[0] : 0.0f;
    loss.reduction = launch->reduction;
    loss.from_logits = from_logits;
    loss.scalars = call->scalars;
    return loss;
}

bool mpt__rows_in_eights(const mpt__array &array, long long classes) {
    return mpt__strides_in_eights(array, &array.stride[1], 1, classes, array.stride, 1);
}

int64_t mpt__cuda_nll_workspace(const mpt__launch *launch) {
    return launch->operand[0].shape[0] * 2 * (int64_t)sizeof(float);
}
int64_t mpt__cuda_cross_entropy_workspace(const mpt__launch *launch) {
    return mpt__cuda_nll_workspace(launch);
}

/* Operands as NLL has them; those of CROSS_ENTROPY begin alike. */
mpt_status mpt__loss_run(const mpt__cuda_call *call, bool from_logits) {
    mpt__loss loss = mpt__loss_of(call, 0, from_logits);
    mpt__array *array[6] = {&loss.x,   &loss.target,  &loss.weight,
                            &loss.out, &loss.divisor, &loss.log_sum};
    for (int i = 0; i < (from_logits ? 6 : 5); i++) *array[i] = mpt__array_of(call, i);
    loss.row_loss = (float *)call->workspace;
    loss.row_weight = loss.row_loss + loss.rows;

    const bool eights = mpt__rows_in_eights(loss.x, loss.classes);
    const bool by_blocks = from_logits && loss.classes > MPT__LINE;
    const bool alone = loss.rows <= MPT__LOSS_ROWS && !by_blocks;
    const int group = !from_logits ? 1 : by_blocks ? MPT__THREADS : MPT__WARP;
    const unsigned int threads = alone ? MPT__LOSS_THREADS : MPT__THREADS;
    const unsigned int blocks = alone ? 1 : mpt__blocks(call, loss.rows * group);
    if (!from_logits) {
        mpt__loss_kernel<1, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks && eights) {
        mpt__loss_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks) {
        mpt__loss_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (eights) {
        mpt__loss_kernel<MPT__WARP, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else {
        mpt__loss_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(loss);
    }
    if (!alone) mpt__loss_finish_kernel<<<1, MPT__LOSS_THREADS, 0, call->stream>>>(loss);
    return MPT_OK;
}

mpt_status mpt__cuda_nll(const mpt__cuda_call *call) { return mpt__loss_run(call, false); }
mpt_status mpt__cuda_cross_entropy(const mpt__cuda_call *call) { return mpt__loss_run(call, true); }

/* What a sample's loss gets of the gradient: dloss, divided where the loss was a mean. */
__device__ __forceinline__ float mpt__row_gradient(const mpt__loss &loss, long long row) {
    const long long at = loss.reduction == MPT_NONE ? row * loss.gradient.stride[0] : 0;
    const float g = mpt__load(loss.gradient.data, loss.gradient.dtype, at);
    if (loss.reduction != MPT_MEAN) return g;
    return g / mpt__load(loss.divisor.data, loss.divisor.dtype, 0);
}

/* The gradient of a sample, by a group. NLL: -g w at the target. From logits, with p = softmax(x):
   g ((1 - e) w_t (p - onehot) + e / C (p sum(w) - w)). Ignored samples get 0; and an infinite g
   leaves those classes 0 whose factor is 0. */
template <int GROUP, int V> __global__ void mpt__loss_backward_kernel(mpt__loss loss) {
    const long long first = threadIdx.x % GROUP * V;
    const float smooth = loss.smoothing / (float)loss.classes;
    float weight_sum = (float)loss.classes;
    if (smooth != 0.0f && loss.weight.data != NULL) {
        weight_sum = 0.0f;
        for (long long c = threadIdx.x % GROUP; c < loss.classes; c += GROUP)
            weight_sum += mpt__class_weight(loss, c);
        weight_sum = mpt__group_sum<GROUP>(weight_sum);
    }
    MPT__EACH_LINE(row, GROUP, loss.rows) {
        const long long t = mpt__class_of(loss, row), sums = row * loss.log_sum.stride[0];
        float scale = 0.0f, g = 0.0f, most = 0.0f, log_sum = 0.0f, x[V];
        if (t >= 0) {
            scale = (1.0f - loss.smoothing) * mpt__class_weight(loss, t);
            g = mpt__row_gradient(loss, row);
        }
        if (loss.log_sum.data != NULL) {
            most = mpt__load(loss.log_sum.data, loss.log_sum.dtype, sums);
            log_sum =
                mpt__load(loss.log_sum.data, loss.log_sum.dtype, sums + loss.log_sum.stride[1]);
        }
        for (long long c = first; c < loss.classes; c += GROUP * V) {
            const bool slopes = loss.from_logits && t >= 0;
            if (slopes)
                mpt__load_some<V>(loss.x, row * loss.x.stride[0] + c * loss.x.stride[1], x);
            for (int k = 0; k < V; k++) {
                const float p = slopes ? expf(x[k] - most - log_sum) : 0.0f;
                float dx = scale * p;
                if (slopes && smooth != 0.0f)
                    dx += smooth * (p * weight_sum - mpt__class_weight(loss, c + k));
                if (c + k == t) dx -= scale;
                x[k] = t < 0 || dx == 0.0f ? 0.0f : g * dx;
            }
            mpt__put_some<V>(loss.out, row * loss.out.stride[0] + c * loss.out.stride[1], x);
        }
    }
}

/* `first` is the operand of the targets; weights, divisor and dloss follow it. */
mpt_status mpt__loss_backward(const mpt__cuda_call *call, bool from_logits) {
    const int first = from_logits ? 1 : 0, out = from_logits ? 6 : 4;
    mpt__loss loss = mpt__loss_of(call, out, from_logits);
    mpt__array *array[4] = {&loss.target, &loss.weight, &loss.divisor, &loss.gradient};
    for (int i = 0; i < 4; i++) *array[i] = mpt__array_of(call, first + i);
    loss.out = mpt__array_of(call, out);
    if (from_logits) {
        loss.x = mpt__array_of(call, 0);
        loss.log_sum = mpt__array_of(call, 5);
    }
    if (loss.rows == 0 || loss.classes == 0) return MPT_OK;

    const bool eights = mpt__rows_in_eights(loss.out, loss.classes) &&
                        (!from_logits || mpt__rows_in_eights(loss.x, loss.classes));
    const bool by_blocks = loss.classes > MPT__LINE;
    const unsigned int threads = MPT__THREADS;
    const unsigned int blocks =
        mpt__blocks(call, loss.rows * (by_blocks ? MPT__THREADS : MPT__WARP));
    if (by_blocks && eights) {
        mpt__loss_backward_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks) {
        mpt__loss_backward_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (eights) {
        mpt__loss_backward_kernel<MPT__WARP, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else {
        mpt__loss_backward_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(loss);
    }
    return MPT_OK;
}

mpt_status mpt__cuda_nll_backward(const mpt__cuda_call *call) {
    return mpt__loss_backward(call, false);
}
mpt_status mpt__cuda_cross_entropy_backward(const mpt__cuda_call *call) {
    return mpt__loss_backward(call, true);
}

__global__ void mpt__metric_add_kernel(mpt__array value, mpt__scalar *sum, mpt__scalar *count) {
    sum->f += value.dtype == MPT_F64 ? *(const double *)value.data
                                     : (double)mpt__load(value.data, value.dtype, 0);
    count->i++;
}

mpt_status mpt__cuda_metric_add(const mpt__cuda_call *call) {
    const uint16_t *slot = call->launch->slot;
    mpt__metric_add_kernel<<<1, 1, 0, call->stream>>>(mpt__array_of(call, 0),
                                                      call->scalars + slot[0],
                                                      call->scalars + slot[1]);
    return MPT_OK;
}

/* ==== Matrix products: GEMM ==== */

/* ==== Optimizers and scaler ==== */

/* ==== Errors ==== */

/* OK, or the status and the words of an error. One that the driver will repeat for ever, because a
   kernel crashed, ends the use of this backend. */
mpt_status mpt__cuda_check(mpt__cuda *cuda, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return MPT_OK;
    if (!cuda->dead) mpt__cuda_refuse(cuda, MPT_ERROR_DEVICE, what, cudaGetErrorString(error));
    cudaGetLastError(); /* forgets it, unless it is of the lasting kind */
    if (cudaPeekAtLastError() != cudaSuccess || cudaStreamQuery(cuda->stream) == error)
        cuda->dead = true;
    cudaGetLastError();
    return MPT_ERROR_DEVICE;
}

/* ==== Memory and transfers ==== */

#define MPT__STAGES 4 /* uploads under way at once */
#define MPT__STAGE_BYTES ((size_t)1 << 20)

/* An upload goes through page-locked memory to the card on a stream of its own while launches run,
   and in order with them from there to its place. `from_host` ends the first part of a stage's
   upload, `done` the second. */
struct mpt__cuda_transfers {
    cudaStream_t side;
    char *host, *device; /* MPT__STAGES stages */
    cudaEvent_t from_host[MPT__STAGES], done[MPT__STAGES];
    int next;
};

void mpt__cuda_transfers_destroy(mpt__cuda_transfers *t) {
    if (!t) return;
    for (int i = 0; i < MPT__STAGES; i++) {
        if (t->from_host[i]) cudaEventDestroy(t->from_host[i]);
        if (t->done[i]) cudaEventDestroy(t->done[i]);
    }
    cudaFreeHost(t->host);
    cudaFree(t->device);
    if (t->side) cudaStreamDestroy(t->side);
    free(t);
}

/* NULL, with what failed in *error. */
mpt__cuda_transfers *mpt__cuda_transfers_create(cudaError_t *error) {
    mpt__cuda_transfers *t = (mpt__cuda_transfers *)calloc(1, sizeof *t);
    *error = cudaErrorMemoryAllocation;
    if (!t) return NULL;
    *error = cudaStreamCreateWithFlags(&t->side, cudaStreamNonBlocking);
    if (*error == cudaSuccess)
        *error = cudaMallocHost((void **)&t->host, MPT__STAGES * MPT__STAGE_BYTES);
    if (*error == cudaSuccess)
        *error = cudaMalloc((void **)&t->device, MPT__STAGES * MPT__STAGE_BYTES);
    for (int i = 0; i < MPT__STAGES && *error == cudaSuccess; i++) {
        *error = cudaEventCreateWithFlags(&t->from_host[i], cudaEventDisableTiming);
        if (*error == cudaSuccess)
            *error = cudaEventCreateWithFlags(&t->done[i], cudaEventDisableTiming);
    }
    if (*error == cudaSuccess) return t;
    mpt__cuda_transfers_destroy(t);
    return NULL;
}

/* At most MPT__STAGE_BYTES. */
cudaError_t mpt__cuda_upload_piece(mpt__cuda *cuda, char *destination, const char *source,
                                   size_t bytes) {
    mpt__cuda_transfers *t = cuda->transfers;
    const int i = t->next;
    char *host = t->host + (size_t)i * MPT__STAGE_BYTES;
    char *device = t->device + (size_t)i * MPT__STAGE_BYTES;
    cudaError_t error = cudaEventSynchronize(t->done[i]);
    t->next = (i + 1) % MPT__STAGES;
    if (error != cudaSuccess) return error;
    memcpy(host, source, bytes);
    error = cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, t->side);
    if (error == cudaSuccess) error = cudaEventRecord(t->from_host[i], t->side);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->stream, t->from_host[i], 0);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(destination, device, bytes, cudaMemcpyDeviceToDevice, cuda->stream);
    if (error == cudaSuccess) error = cudaEventRecord(t->done[i], cuda->stream);
    return error;
}

/* The backend, its device being that of this thread from now on; NULL if it is dead. */
mpt__cuda *mpt__cuda_enter(void *self) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    if (cuda->dead) return NULL;
    cudaSetDevice(cuda->device);
    return cuda;
}

mpt_status mpt__cuda_upload(void *self, void *destination, const void *source, size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    cudaError_t error = cudaSuccess;
    if (!cuda) return MPT_ERROR_DEVICE;
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += MPT__STAGE_BYTES) {
        const size_t left = bytes - at;
        error = mpt__cuda_upload_piece(cuda, (char *)destination + at, (const char *)source + at,
                                       left < MPT__STAGE_BYTES ? left : MPT__STAGE_BYTES);
    }
    return mpt__cuda_check(cuda, error, "upload to the GPU");
}

mpt_status mpt__cuda_snapshot(void *self, void *destination, const void *source, size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    return mpt__cuda_check(
        cuda, cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, cuda->stream),
        "download from the GPU");
}

mpt_status mpt__cuda_synchronize(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    return mpt__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "work on the GPU");
}

mpt_status mpt__cuda_download(void *self, void *destination, const void *source, size_t bytes) {
    mpt_status status = mpt__cuda_snapshot(self, destination, source, bytes);
    return status == MPT_OK ? mpt__cuda_synchronize(self) : status;
}

/* The context pools what it gets from here. NULL if there is no memory. */
void *mpt__cuda_allocate(void *self, size_t bytes) {
    void *pointer = NULL;
    if (!mpt__cuda_enter(self)) return NULL;
    if (cudaMalloc(&pointer, bytes) == cudaSuccess) return pointer;
    cudaGetLastError();
    return NULL;
}

/* Waits for the launches that may still use it. */
void mpt__cuda_release(void *self, void *pointer, size_t bytes) {
    (void)self;
    (void)bytes;
    cudaFree(pointer);
}

void *mpt__cuda_allocate_host(void *self, size_t bytes) {
    void *pointer = NULL;
    (void)self;
    if (cudaMallocHost(&pointer, bytes) == cudaSuccess) return pointer;
    cudaGetLastError();
    return NULL;
}

void mpt__cuda_release_host(void *self, void *pointer) {
    (void)self;
    cudaFreeHost(pointer);
}

/* ==== Launching ==== */

/* In the order of MPT__KERNELS. */
const mpt__cuda_kernel mpt__cuda_kernels[] = {
    {mpt__cuda_fill, NULL},
    {mpt__cuda_copy, NULL},
    {mpt__cuda_unary, NULL},
    {mpt__cuda_binary, NULL},
    {mpt__cuda_reduce, mpt__cuda_reduce_workspace},
    {mpt__cuda_argmax, NULL},
    {mpt__cuda_scatter_axis, NULL},
    {mpt__cuda_gemm, mpt__cuda_gemm_workspace},
    {mpt__cuda_softmax, NULL},
    {mpt__cuda_softmax_backward, NULL},
    {mpt__cuda_dropout, NULL},
    {mpt__cuda_random, NULL},
    {mpt__cuda_nll, mpt__cuda_nll_workspace},
    {mpt__cuda_nll_backward, NULL},
    {mpt__cuda_cross_entropy, mpt__cuda_cross_entropy_workspace},
    {mpt__cuda_cross_entropy_backward, mpt__cuda_cross_entropy_backward_workspace},
    {mpt__cuda_grad_norm, mpt__cuda_grad_norm_workspace},
    {mpt__cuda_grad_scale, NULL},
    {mpt__cuda_sgd, NULL},
    {mpt__cuda_adam, NULL},
    {mpt__cuda_clip, NULL},
    {mpt__cuda_scalar_set, NULL},
    {mpt__cuda_scalar_or, NULL},
    {mpt__cuda_scale_loss, NULL},
    {mpt__cuda_scaler_update, NULL},
    {mpt__cuda_metric_add, NULL},
    {mpt__cuda_find_nonfinite, NULL},
};
static_assert(sizeof mpt__cuda_kernels / sizeof mpt__cuda_kernels[0] == MPT__KERNEL_COUNT,
              "a kernel of the launch table has no implementation here");

const char *const mpt__cuda_kernel_names[] = {
#define MPT__ROW(id, name, effect) name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

bool mpt__cuda_implements(void *self, mpt__kernel kernel) {
    (void)self;
    return kernel < MPT__KERNEL_COUNT && mpt__cuda_kernels[kernel].run != NULL;
}

int64_t mpt__cuda_workspace_bytes(void *self, const mpt__launch *launch) {
    (void)self;
    if (launch->kernel >= MPT__KERNEL_COUNT) return 0;
    const mpt__cuda_kernel &kernel = mpt__cuda_kernels[launch->kernel];
    return kernel.workspace ? kernel.workspace(launch) : 0;
}

int mpt__width(int dtype) {
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

mpt_status mpt__cuda_launch(void *self, const mpt__execution *execution,
                            const mpt__launch *launch) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    char what[96];
    if (!cuda) return MPT_ERROR_DEVICE;
    if (launch->kernel >= MPT__KERNEL_COUNT) {
        snprintf(what, sizeof what, "number %d", (int)launch->kernel);
        return mpt__cuda_refuse(cuda, MPT_ERROR_UNSUPPORTED, "no such CUDA kernel", what);
    }
    mpt__cuda_call call;
    memset(&call, 0, sizeof call);
    call.cuda = cuda;
    call.launch = launch;
    call.scalars = execution->scalars;
    call.workspace = execution->workspace;
    call.stream = cuda->stream;
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand &o = launch->operand[i];
        char *base = (char *)execution->data[o.storage]; /* storage 0 is NULL */
        if (base) call.data[i] = base + o.offset * mpt__width(o.dtype);
    }
    mpt_status status = mpt__cuda_kernels[launch->kernel].run(&call);
    if (status != MPT_OK) return status;
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && cuda->debug && !cuda->capturing)
        error = cudaStreamSynchronize(cuda->stream);
    if (error == cudaSuccess) return MPT_OK;
    snprintf(what, sizeof what, "kernel %s, launch %lld", mpt__cuda_kernel_names[launch->kernel],
             (long long)launch->number);
    return mpt__cuda_check(cuda, error, what);
}

/* ==== Graphs ==== */

mpt_status mpt__cuda_graph_begin(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    const mpt_status status =
        mpt__cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                        "beginning a graph");
    cuda->capturing = status == MPT_OK;
    return status;
}

/* A capture that went wrong is ended all the same, so that the stream works again. */
mpt_status mpt__cuda_graph_end(void *self, void **graph) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    if (!cuda) return MPT_ERROR_DEVICE;
    if (!cuda->capturing) return MPT_ERROR_DEVICE;
    cuda->capturing = false;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
    if (error == cudaSuccess && graph) error = cudaGraphInstantiate(&executable, captured, 0);
    if (captured) cudaGraphDestroy(captured);
    if (!graph) {
        cudaGetLastError();
        return MPT_OK;
    }
    *graph = executable;
    return mpt__cuda_check(cuda, error, "ending a graph");
}

mpt_status mpt__cuda_graph_run(void *self, void *graph) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    cudaError_t error = cudaGraphLaunch((cudaGraphExec_t)graph, cuda->stream);
    if (error == cudaSuccess && cuda->debug) error = cudaStreamSynchronize(cuda->stream);
    return mpt__cuda_check(cuda, error, "a captured step");
}

void mpt__cuda_graph_destroy(void *self, void *graph) {
    if (mpt__cuda_enter(self)) cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

/* ==== Making and ending ==== */

void mpt__cuda_describe(void *self, mpt_device_info *info) {
    const mpt__cuda *cuda = (const mpt__cuda *)self;
    size_t free_bytes = 0, bytes = 0;
    if (!cuda->dead && cudaMemGetInfo(&free_bytes, &bytes) != cudaSuccess) cudaGetLastError();
    info->memory = cuda->memory;
    info->memory_free = (int64_t)free_bytes;
    info->major = cuda->capability / 10;
    info->minor = cuda->capability % 10;
    info->fast_half = cuda->capability >= 70;
}

void mpt__cuda_destroy(void *self) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    mpt__cuda_products_destroy(cuda->products);
    mpt__cuda_transfers_destroy(cuda->transfers);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    cudaGetLastError();
    free(cuda);
}

/* Reads what the card is, and makes what every launch needs. */
mpt_status mpt__cuda_start(mpt__cuda *cuda) {
    cudaDeviceProp card;
    cudaError_t error = cudaSetDevice(cuda->device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&card, cuda->device);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return mpt__cuda_check(cuda, error, "opening the GPU");
    snprintf(cuda->name, sizeof cuda->name, "%s", card.name);
    cuda->processors = card.multiProcessorCount;
    cuda->capability = card.major * 10 + card.minor;
    cuda->memory = (int64_t)card.totalGlobalMem;
    cuda->transfers = mpt__cuda_transfers_create(&error);
    if (!cuda->transfers) return mpt__cuda_check(cuda, error, "memory for transfers");
    cuda->products = mpt__cuda_products_create(cuda);
    return cuda->products ? MPT_OK : MPT_ERROR_DEVICE; /* it has said why */
}

}  // namespace

extern "C" int mpt__cuda_device_count(char *why, size_t size) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    snprintf(why, size, "%s", error == cudaSuccess ? "there is no GPU" : cudaGetErrorString(error));
    return 0;
}

extern "C" mpt_status mpt__cuda_backend_create(mpt__backend *backend, int version, int device,
                                               bool debug) {
    memset(backend, 0, sizeof *backend);
    if (version != MPTRAIN_VERSION) {
        snprintf(backend->error, sizeof backend->error,
                 "mptrain.h has version %d, mptrain_cuda.cu has %d; copy both from one release",
                 version, MPTRAIN_VERSION);
        return MPT_ERROR_DEVICE;
    }
    mpt__cuda *cuda = (mpt__cuda *)calloc(1, sizeof *cuda);
    if (!cuda) return MPT_ERROR_MEMORY;
    cuda->backend = backend;
    cuda->device = device;
    cuda->debug = debug;
    const mpt_status status = mpt__cuda_start(cuda);
    if (status != MPT_OK) {
        mpt__cuda_destroy(cuda);
        return status;
    }
    backend->name = cuda->name;
    backend->self = cuda;
    backend->implements = mpt__cuda_implements;
    backend->describe = mpt__cuda_describe;
    backend->workspace = mpt__cuda_workspace_bytes;
    backend->launch = mpt__cuda_launch;
    backend->allocate = mpt__cuda_allocate;
    backend->release = mpt__cuda_release;
    backend->upload = mpt__cuda_upload;
    backend->download = mpt__cuda_download;
    backend->synchronize = mpt__cuda_synchronize;
    backend->allocate_host = mpt__cuda_allocate_host;
    backend->release_host = mpt__cuda_release_host;
    backend->snapshot = mpt__cuda_snapshot;
    backend->graph_begin = mpt__cuda_graph_begin;
    backend->graph_end = mpt__cuda_graph_end;
    backend->graph_run = mpt__cuda_graph_run;
    backend->graph_destroy = mpt__cuda_graph_destroy;
    backend->destroy = mpt__cuda_destroy;
    return MPT_OK;
}
