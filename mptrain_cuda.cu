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
