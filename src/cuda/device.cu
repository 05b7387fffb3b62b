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
    cudaEvent_t landed[2]; /* the last snapshot to each place */
    cudaEvent_t laps[2];   /* what a profiler times launches by; made when it first asks */
    int lap;               /* the one that was recorded last */
    char name[256];
    int processors;      /* streaming multiprocessors */
    int capability;      /* 90 for 9.0 */
    bool matrix;         /* kernels that use tensor cores by themselves are compiled in */
    int64_t memory;      /* bytes on the card */
    unsigned int *ticket; /* on the card; 0 between launches (mpt__last_block) */
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

/* ==== Errors ==== */

/* Records why a launch cannot be done. */
mpt_status mpt__cuda_refuse(mpt__cuda *cuda, mpt_status status, const char *what,
                            const char *detail) {
    snprintf(cuda->backend->error, sizeof cuda->backend->error, "%s: %s", what, detail);
    return status;
}

/* Tells the user of something that does not end the call. */
void mpt__cuda_warn(mpt__cuda *cuda, const char *text) {
    if (cuda->backend->warn) cuda->backend->warn(cuda->backend->listener, text);
}

/* Forgets an error, and tells whether the driver will repeat it for ever, because a kernel crashed.
   A stream that is captured cannot be asked: the question itself is an error of the capture, which
   ends with the graph. */
bool mpt__cuda_lasts(mpt__cuda *cuda, cudaError_t error) {
    const bool of_capture = error >= cudaErrorStreamCaptureUnsupported &&
                            error <= cudaErrorStreamCaptureWrongThread;
    cudaGetLastError();
    bool lasts = cudaPeekAtLastError() != cudaSuccess;
    if (!lasts && !of_capture && !cuda->capturing) lasts = cudaStreamQuery(cuda->stream) == error;
    cudaGetLastError();
    return lasts && !of_capture;
}

/* OK, or the status and the words of an error. One that lasts ends the use of this backend. */
mpt_status mpt__cuda_check(mpt__cuda *cuda, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return MPT_OK;
    if (!cuda->dead) mpt__cuda_refuse(cuda, MPT_ERROR_DEVICE, what, cudaGetErrorString(error));
    cuda->dead |= mpt__cuda_lasts(cuda, error);
    return MPT_ERROR_DEVICE;
}

/* For calls whose failure changes nothing that the caller does. */
void mpt__cuda_note(mpt__cuda *cuda, cudaError_t error, const char *what) {
    if (mpt__cuda_check(cuda, error, what) != MPT_OK) mpt__cuda_warn(cuda, cuda->backend->error);
}

/* Before a launch, whose own errors are fetched after it. What stands here nobody fetched: another
   part of the program left it in this thread, which must hear of it, and no kernel be blamed. */
mpt_status mpt__cuda_left_over(mpt__cuda *cuda) {
    char text[200];
    const cudaError_t error = cudaPeekAtLastError();
    if (error == cudaSuccess) return MPT_OK;
    if (mpt__cuda_lasts(cuda, error)) return mpt__cuda_check(cuda, error, "work on the GPU");
    snprintf(text, sizeof text,
             "other CUDA code of this thread left an error before a launch: %s; it is forgotten",
             cudaGetErrorString(error));
    mpt__cuda_warn(cuda, text);
    return MPT_OK;
}

/* The backend, its device being that of this thread from now on; NULL, with the reason in the
   backend's error, if it is dead or cannot be chosen. */
mpt__cuda *mpt__cuda_enter(void *self) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    if (cuda->dead) return NULL;
    const cudaError_t error = cudaSetDevice(cuda->device);
    return mpt__cuda_check(cuda, error, "choosing the GPU") == MPT_OK ? cuda : NULL;
}

/* ==== Arrays in device code ==== */

/* An operand as kernels see it: dimensions of size 1 left out, neighbours merged where all arrays
   of the launch allow it. */
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
/* __stcg: the compiler takes plain assignments of vectors apart here and there. */
__device__ __forceinline__ void mpt__store8(void *data, int dtype, long long at,
                                            const float x[8]) {
    if (dtype == MPT_F32) {
        float4 *to = (float4 *)((float *)data + at);
        __stcg(to, make_float4(x[0], x[1], x[2], x[3]));
        __stcg(to + 1, make_float4(x[4], x[5], x[6], x[7]));
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
        __stcg((uint4 *)((unsigned short *)data + at),
               make_uint4(word[0], word[1], word[2], word[3]));
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

__device__ __forceinline__ float mpt__block_product(float x) {
    __shared__ float part[MPT__WARP];
    for (int step = MPT__WARP / 2; step > 0; step /= 2) x *= __shfl_xor_sync(MPT__ALL, x, step);
    __syncthreads();
    if (threadIdx.x % MPT__WARP == 0) part[threadIdx.x / MPT__WARP] = x;
    __syncthreads();
    x = threadIdx.x % MPT__WARP < blockDim.x / MPT__WARP ? part[threadIdx.x % MPT__WARP] : 1.0f;
    for (int step = MPT__WARP / 2; step > 0; step /= 2) x *= __shfl_xor_sync(MPT__ALL, x, step);
    return x;
}

/* Whether this block is the last one of the grid to come here; it then sees, past the first-level
   cache, what the others wrote before. Every block comes once, with all its threads. */
__device__ bool mpt__last_block(unsigned int *ticket) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1; /* which makes it 0 again */
        __threadfence();
    }
    __syncthreads();
    return last;
}

/* ==== Tensor cores ====
 *
 * Instructions of compute capability 8.0 and up, for whole warps. Compiled for older cards a kernel
 * that uses them is empty, and what it calls is not there: mpt__cuda.matrix says which it is. The
 * simulator of tests/cudasim executes each lane by lane. */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
#define MPT__MATRIX 1
#else
#define MPT__MATRIX 0
#endif

#if MPT__MATRIX
/* d += a b, of [16, 16] and [16, 8]: mma.m16n8k16 on bf16 or fp16, summed in fp32. */
template <bool F16>
__device__ __forceinline__ void mpt__mma(float (&d)[4], const unsigned int (&a)[4],
                                         unsigned int low, unsigned int high) {
#if defined(CUDASIM_H)
    const unsigned int b[2] = {low, high};
    cudasim::multiply(d, a, b, !F16);
#elif defined(__CUDA_ARCH__)
    if (F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(low), "r"(high));
#else
    (void)d, (void)a, (void)low, (void)high;
#endif
}

/* Four matrices [8, 8] of 16 bits from shared memory; lane 8 i + r names row r of matrix i. */
template <bool TRANSPOSED>
__device__ __forceinline__ void mpt__ldmatrix(unsigned int (&x)[4], const unsigned short *row) {
#if defined(CUDASIM_H)
    cudasim::load_matrices(x, row, TRANSPOSED);
#elif defined(__CUDA_ARCH__)
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(row);
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                     : "r"(at)
                     : "memory");
#else
    (void)x, (void)row;
#endif
}

/* Begins to copy BYTES, 4 or 16, from global to shared memory, or zeros if they are not THERE. */
template <int BYTES>
__device__ __forceinline__ void mpt__copy_begin(void *to, const void *from, bool there) {
#if defined(CUDASIM_H)
    cudasim::copy_async(to, from, BYTES, there ? BYTES : 0);
#elif defined(__CUDA_ARCH__)
    const unsigned int at = (unsigned int)__cvta_generic_to_shared(to);
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
                     "r"(there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from),
                     "r"(there ? 4 : 0)
                     : "memory");
#else
    (void)to, (void)from, (void)there;
#endif
}

/* Waits for all copies that this thread has begun; the others see them behind a barrier. */
__device__ __forceinline__ void mpt__copy_wait() {
#if defined(CUDASIM_H)
    cudasim::commit_copies();
    cudasim::wait_copies(0);
#elif defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* 2^x; 0 for what is below 2^-126. */
__device__ __forceinline__ float mpt__exp2(float x) {
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* Two numbers rounded to 16 bits, the first one in the lower half. */
template <bool F16> __device__ __forceinline__ unsigned int mpt__pack2(float low, float high) {
    unsigned int bits;
    if (F16) {
        const __half2 pair = __floats2half2_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    } else {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
        memcpy(&bits, &pair, sizeof bits);
    }
    return bits;
}
#endif /* MPT__MATRIX */

/* ==== Arrays in host code ==== */

long long mpt__count(int rank, const int64_t *shape) {
    long long count = 1;
    for (int d = 0; d < rank; d++)
        if (shape[d] == 0) return 0; /* the others may be too large to multiply */
    for (int d = 0; d < rank; d++) count *= shape[d];
    return count;
}

long long mpt__numel(const mpt__operand &operand) {
    return mpt__count(operand.rank, operand.shape);
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
    space.count = mpt__count(rank, shape);
    for (int d = 0; d < rank && space.count > 0; d++) {
        const long long size = shape[d];
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

/* That of arrays of the shape of operand `position`. */
mpt__space mpt__space_of(const mpt__cuda_call *call, int position, mpt__array *const *arrays,
                         int n) {
    const mpt__operand &operand = call->launch->operand[position];
    return mpt__merge(operand.rank, operand.shape, arrays, n);
}

/* Blocks for `count` pieces of work of one thread each, in a loop where there are more than the
   card runs at once. No result may depend on it. */
unsigned int mpt__blocks(const mpt__cuda_call *call, long long count) {
    const long long most = (long long)call->cuda->processors * 8;
    const long long blocks = (count + MPT__THREADS - 1) / MPT__THREADS;
    return (unsigned int)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/* The loop of a kernel over `count` pieces of work. */
#define MPT__EACH(i, count) \
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
         i += (long long)gridDim.x * blockDim.x)

