/* generated from src/ by tools/amalgamate.c: edit there */
/* ----
 * mptrain_cuda.cu: the CUDA backend of mptrain, for NVIDIA GPUs of compute capability 7.5 and up.
 *
 * With mptrain.h beside it and the CUDA toolkit at hand:
 *
 *		nvcc -O2 -arch=native -c mptrain_cuda.cu
 *		cc -O2 -DMPTRAIN_CUDA -c your_program.c				(where MPTRAIN_IMPLEMENTATION is defined)
 *		nvcc -arch=native your_program.o mptrain_cuda.o -lcublasLt -lm -lpthread
 *
 * It executes launches (waist/launch.h in mptrain.h: the contract of every kernel) and knows nothing
 * of tensors, modules or optimizers. All kernels go to one stream, in order; whatever varies from
 * step to step is read from device scalars, so the host never waits inside a step. Arithmetic is
 * fp32 on values converted on load and rounded once on store. Every sum has a tree that depends on
 * the problem alone, and no floating-point atomics are used: every run gives the same bits.
 * ---- */
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

#define MPT__THREADS 256	/* of a block, unless a kernel says otherwise */
#define MPT__WARP 32
#define MPT__ALL 0xffffffffu	/* the lanes of a warp */

struct mpt__cuda {
	mpt__backend *backend;
	int device;
	bool debug;	/* waits after each launch, so that an error names the one that failed */
	bool dead;	/* a kernel crashed: the driver answers nothing but errors from then on */
	bool capturing;	/* launches go into a graph */
	bool benchmark;	/* times the candidates of each matrix product */
	cudaStream_t stream;
	cudaEvent_t landed[2];	/* the last snapshot to each place */
	cudaEvent_t laps[2];	/* what a profiler times launches by; made when it first asks */
	int lap;				/* the one that was recorded last */
	char name[256];
	int processors;			/* streaming multiprocessors */
	int capability;			/* 90 for 9.0 */
	bool matrix;			/* kernels that use tensor cores by themselves are compiled in */
	int64_t memory;			/* bytes on the card */
	unsigned int *ticket;	/* on the card; 0 between launches (mpt__last_block) */
	struct mpt__cuda_transfers *transfers;
	struct mpt__cuda_products *products;	/* cuBLASLt and what it chose */
};

/* A launch with its operands resolved. data[i] is where operand i begins, its offset included; NULL
   if it is absent. Kernels run on `stream`; a kernel function returns MPT_OK, or a status with the
   reason in cuda->backend->error (mpt__cuda_refuse). Errors of the kernel launch itself are found
   after it returns. */
struct mpt__cuda_call {
	mpt__cuda *cuda;
	const mpt__launch *launch;
	void *data[MPT__MAX_OPERANDS];
	mpt__scalar *scalars;	/* on the device */
	void *workspace;		/* on the device, launch->workspace bytes */
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
	void *data;	/* NULL: absent */
	int dtype;	/* mpt_dtype */
	int accumulate;
	long long stride[MPT_MAX_RANK];
};

/* The common shape of the arrays of a launch; the last dimension is the innermost. */
struct mpt__space {
	int rank;
	long long count;	/* elements */
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

__device__ __forceinline__ float mpt__larger(float a, float b) {	/* NaN wins */
	return a > b || a != a ? a : b;
}

/* Of the values of all threads of a block of whole warps; every thread gets the result. All threads
   take part. The tree depends on blockDim alone. */
template <typename T> __device__ T mpt__block_sum(T x) {
	__shared__ T part[MPT__WARP];
	for (int step = MPT__WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(MPT__ALL, x, step);
	__syncthreads();	/* `part` may still be read for an earlier sum */
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
		last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;	/* which makes it 0 again */
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
#endif	/* MPT__MATRIX */

/* ==== Arrays in host code ==== */

long long mpt__count(int rank, const int64_t *shape) {
	long long count = 1;
	for (int d = 0; d < rank; d++)
		if (shape[d] == 0) return 0;	/* the others may be too large to multiply */
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

/* Over n arrays of one shape. */
mpt__walk mpt__walk_of(int n_dims, const int64_t *shape, const mpt__array *of, int n) {
	mpt__walk walk;
	mpt__array *arrays[3] = {&walk.array[0], &walk.array[1], &walk.array[2]};
	memset(&walk, 0, sizeof walk);
	memcpy(walk.array, of, (size_t)n * sizeof *of);
	walk.space = mpt__merge(n_dims, shape, arrays, n);
	const int rank = walk.space.rank;
	bool eights = rank == 1 || (rank > 1 && walk.space.shape[rank - 1] % 8 == 0);
	for (int i = 0; i < n && eights; i++) eights = mpt__has_eights(walk.space, walk.array[i]);
	walk.eights = eights ? walk.space.count / 8 : 0;
	return walk;
}

/* Over operands 0 .. n-1. */
mpt__walk mpt__walk_over(const mpt__cuda_call *call, int n) {
	const mpt__operand &operand = call->launch->operand[0];
	mpt__array arrays[3];
	for (int i = 0; i < n; i++) arrays[i] = mpt__array_of(call, i);
	return mpt__walk_of(operand.rank, operand.shape, arrays, n);
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
	unsigned long long sum = (unsigned long long)x;	/* modulo 2^64 */
	if (array.accumulate) sum += (unsigned long long)mpt__load_i64(array.data, array.dtype, at);
	mpt__store_i64(array.data, array.dtype, at, (long long)sum);
}

/* Through T: double where one side is F64, int64 between integers, fp32 otherwise. */
template <typename T> __global__ void mpt__copy_kernel(const mpt__walk walk) {
	const long long done = 8 * walk.eights;
	MPT__EACH(i, walk.eights) {	/* none but where T is float */
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

#define MPT__COPY_TILE 64	/* elements of a side; a row of halves is 128 bytes */

/* A copy between arrays that are dense in different dimensions: `from` in one of `columns`
   elements, `to` in one of `rows`. */
struct mpt__transposition {
	mpt__space rest;	/* the other dimensions */
	mpt__array from, to;
	long long columns, rows, from_step, to_step;	/* of from along rows, of to along columns */
};

__global__ void mpt__transpose_kernel(const mpt__transposition w) {
	__shared__ float tile[MPT__COPY_TILE][MPT__COPY_TILE + 1];
	const long long across = (w.columns + MPT__COPY_TILE - 1) / MPT__COPY_TILE;
	const long long down = (w.rows + MPT__COPY_TILE - 1) / MPT__COPY_TILE;
	const int x = threadIdx.x % MPT__COPY_TILE, y = threadIdx.x / MPT__COPY_TILE;
	for (long long t = blockIdx.x; t < w.rest.count * across * down; t += gridDim.x) {
		const long long column = t % across * MPT__COPY_TILE;
		const long long row = t / across % down * MPT__COPY_TILE;
		const long long from = mpt__locate(w.rest, w.from.stride, t / across / down) + column;
		const long long to = mpt__locate(w.rest, w.to.stride, t / across / down) + row;
		for (int j = y; j < MPT__COPY_TILE; j += MPT__THREADS / MPT__COPY_TILE) {
			if (column + x < w.columns && row + j < w.rows)
				tile[j][x] =
					mpt__load(w.from.data, w.from.dtype, from + x + (row + j) * w.from_step);
		}
		__syncthreads();
		for (int j = y; j < MPT__COPY_TILE; j += MPT__THREADS / MPT__COPY_TILE) {
			if (column + j < w.columns && row + x < w.rows)
				mpt__put(w.to, to + x + (column + j) * w.to_step, tile[x][j]);
		}
		__syncthreads();
	}
}

/* False where the copy is not of this kind. */
bool mpt__transpose(const mpt__cuda_call *call, const mpt__walk &walk) {
	const int least = 16;	/* below, most of a tile would be empty */
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
	if (wide) walk.eights = 0;	/* those go through fp32 */
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

#define MPT__SQRT_HALF 0.70710678118654752f		/* 1 / sqrt(2) */
#define MPT__SQRT_2_BY_PI 0.79788456080286536f	/* sqrt(2 / pi) */
#define MPT__NORMAL_PEAK 0.39894228040143268f	/* 1 / sqrt(2 pi) */
#define MPT__GELU_CUBE 0.044715f

/* The words that waist/functions.h is written in, for one float. */
#define MPT__OP __device__ __forceinline__
typedef float v_f;
MPT__OP float v_zero() { return 0.0f; }
MPT__OP float v_set(float a) { return a; }
MPT__OP float v_add(float a, float b) { return a + b; }
MPT__OP float v_sub(float a, float b) { return a - b; }
MPT__OP float v_mul(float a, float b) { return a * b; }
MPT__OP float v_div(float a, float b) { return a / b; }
MPT__OP float v_negate(float a) { return -a; }
MPT__OP float v_abs(float a) { return fabsf(a); }
MPT__OP float v_sign(float a) { return (float)((a > 0) - (a < 0)); }
MPT__OP float v_larger(float a, float b) { return a > b ? a : b; }
MPT__OP float v_smaller(float a, float b) { return a < b ? a : b; }
MPT__OP float v_select(bool m, float a, float b) { return m ? a : b; }
MPT__OP bool v_greater(float a, float b) { return a > b; }
MPT__OP bool v_equal(float a, float b) { return a == b; }
MPT__OP bool v_is_nan(float a) { return a != a; }
MPT__OP bool v_is_inf(float a) { return fabsf(a) == INFINITY; }
MPT__OP float v_sqrt(float a) { return sqrtf(a); }
MPT__OP float v_exp(float a) { return expf(a); }
MPT__OP float v_log(float a) { return logf(a); }
MPT__OP float v_normal(float a) { return 0.5f * erfcf(-MPT__SQRT_HALF * a); }
MPT__OP float v_tanh(float a) { return tanhf(a); }
MPT__OP float v_log1p(float a) { return log1pf(a); }
MPT__OP float v_expm1(float a) { return expm1f(a); }
MPT__OP float v_sigmoid(float a) {	/* without loss on either side */
	const float e = expf(-fabsf(a));
	return (a < 0 ? e : 1.0f) / (e + 1.0f);
}
MPT__OP float v_softplus(float a, float beta, float threshold) {
	return a * beta > threshold ? a : log1pf(expf(a * beta)) / beta;
}
/* Long ones are not worth a copy for each of eight elements. */
__device__ __noinline__ float v_sin(float a) { return sinf(a); }
__device__ __noinline__ float v_cos(float a) { return cosf(a); }
__device__ __noinline__ float v_pow(float a, float b) { return powf(a, b); }
MPT__OP float v_pow_slope(float a, float b) {
	if (b == 2.0f) return a + a;
	return b == 0 ? 0.0f : b * v_pow(a, b - 1.0f);
}
MPT__OP float v_pow_exponent(float a, float b) {
	return a == 0 && b >= 0 ? 0.0f : v_pow(a, b) * logf(a);
}
#define MPT__V(word) v_##word
/* ----
 * waist/functions.inl: words that are made of others, the same for every backend and width.
 * ---- */
#ifdef MPT__V

/* larger gives its second argument for NaN and for zeros; + 0 makes -0 a 0. */
MPT__OP v_f v_relu(v_f a) { return v_add(v_larger(v_zero(), a), v_zero()); }
/* d where y is not <= 0: the slope of relu by its output. */
MPT__OP v_f v_gate(v_f y, v_f d) {
	v_f kept = v_select(v_is_nan(y), d, v_zero());
	return v_select(v_greater(y, v_zero()), d, kept);
}
MPT__OP v_f v_max_nan(v_f a, v_f b) { return v_select(v_is_nan(a), a, v_larger(a, b)); }
/* a >= b ? 1 : 0 */
MPT__OP v_f v_at_least(v_f a, v_f b) {
	v_f one = v_set(1);
	return v_select(v_greater(a, b), one, v_select(v_equal(a, b), one, v_zero()));
}
MPT__OP v_f v_gelu(v_f a) { return v_mul(a, v_normal(a)); }
MPT__OP v_f v_gelu_slope(v_f a) {
	v_f e = v_exp(v_mul(v_mul(v_set(-0.5f), a), a));
	return v_add(v_normal(a), v_mul(v_mul(a, v_set(MPT__NORMAL_PEAK)), e));
}
/* (1 + tanh(y)) / 2 by the sigmoid of 2 y, which is faster, and loses nothing below 0. */
MPT__OP v_f v_gelu_share(v_f a) {
	v_f cube = v_mul(v_mul(v_mul(v_set(MPT__GELU_CUBE), a), a), a);
	return v_sigmoid(v_mul(v_set(2 * MPT__SQRT_2_BY_PI), v_add(a, cube)));
}
MPT__OP v_f v_gelu_tanh(v_f a) { return v_mul(a, v_gelu_share(a)); }
/* Where the share is 0 or 1 nothing is left for the second factor, which may be infinite there. */
MPT__OP v_f v_gelu_tanh_slope(v_f a) {
	v_f share = v_gelu_share(a), one = v_set(1);
	v_f rest = v_mul(share, v_sub(one, share));
	v_f factor = v_mul(v_mul(v_set(3 * MPT__GELU_CUBE), a), a);
	v_f more = v_mul(v_mul(a, rest), v_set(2 * MPT__SQRT_2_BY_PI));
	more = v_mul(more, v_add(one, factor));
	return v_select(v_equal(rest, v_zero()), share, v_add(share, more));
}
MPT__OP v_f v_silu_slope(v_f a) {
	v_f s = v_sigmoid(a), one = v_set(1);
	return v_mul(s, v_add(one, v_mul(a, v_sub(one, s))));
}

#ifndef MPTRAIN_NO_RECURRENT
/* ==== Recurrent cells ====
 *
 * a: what x gives to the gates, which become the gates; backward: the gates, which become the
 * slopes by what x and state gave. What they return is h, or the slope by the state before. */

/* i f g o; *c: before, then after. */
MPT__OP v_f v_lstm(v_f *a, v_f *c) {
	a[0] = v_sigmoid(a[0]), a[1] = v_sigmoid(a[1]);
	a[2] = v_tanh(a[2]), a[3] = v_sigmoid(a[3]);
	*c = v_add(v_mul(a[1], *c), v_mul(a[0], a[2]));
	return v_mul(a[3], v_tanh(*c));
}
/* dh and dc: slopes by h and by c after; returns that by c before. */
MPT__OP v_f v_lstm_slopes(v_f *a, v_f before, v_f after, v_f dh, v_f dc) {
	v_f one = v_set(1), i = a[0], f = a[1], g = a[2], o = a[3], t = v_tanh(after);
	v_f slope = v_add(dc, v_mul(v_mul(dh, o), v_sub(one, v_mul(t, t))));
	a[0] = v_mul(v_mul(slope, g), v_mul(i, v_sub(one, i)));
	a[1] = v_mul(v_mul(slope, before), v_mul(f, v_sub(one, f)));
	a[2] = v_mul(v_mul(slope, i), v_sub(one, v_mul(g, g)));
	a[3] = v_mul(v_mul(dh, t), v_mul(o, v_sub(one, o)));
	return v_mul(slope, f);
}
/* r z n; p: the third part of what h gives. */
MPT__OP v_f v_gru(v_f *a, v_f p, v_f h) {
	a[0] = v_sigmoid(a[0]), a[1] = v_sigmoid(a[1]);
	a[2] = v_tanh(v_add(a[2], v_mul(a[0], p)));
	return v_add(a[2], v_mul(a[1], v_sub(h, a[2])));
}
/* *p becomes the slope by it; returns what reaches h straight. */
MPT__OP v_f v_gru_slopes(v_f *a, v_f *p, v_f h, v_f dh) {
	v_f one = v_set(1), r = a[0], z = a[1], n = a[2];
	a[2] = v_mul(v_mul(dh, v_sub(one, z)), v_sub(one, v_mul(n, n)));
	a[1] = v_mul(v_mul(dh, v_sub(h, n)), v_mul(z, v_sub(one, z)));
	a[0] = v_mul(v_mul(a[2], *p), v_mul(r, v_sub(one, r)));
	*p = v_mul(a[2], r);
	return v_mul(dh, z);
}
#endif

#endif

template <int N>
__device__ __forceinline__ void mpt__unary_of(int function, float (&x)[N], float c, float d) {
	switch (function) {
#define MPT__ROW(id, ns, value) \
	case MPT__FN_##id: \
		for (int i = 0; i < N; i++) { \
			const float a = x[i]; \
			x[i] = value; \
		} \
		break;
		MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
	default: break;
	}
}

template <int N>
__device__ __forceinline__ void mpt__binary_of(int function, float (&x)[N], const float (&y)[N],
											   float c, float d) {
	switch (function) {
#define MPT__ROW(id, ns, value) \
	case MPT__FN_##id: \
		for (int i = 0; i < N; i++) { \
			const float a = x[i], b = y[i]; \
			x[i] = value; \
		} \
		break;
		MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
	default: break;
	}
}

__device__ __forceinline__ bool mpt__is_finite(float x) { return fabsf(x) < INFINITY; }

struct mpt__unary {
	int function;
	float c, d;
	const mpt__scalar *slot;	/* NULL: c stands there */
	mpt__scalar *nonfinite;		/* NULL, or set to 1 where an operand is not finite */
	mpt__scalar *seed;			/* NULL, or gets c in its first bytes */
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
	mpt__unary_of<N>(unary.function, x, c, unary.d);
	mpt__give<N>(walk, 1, at[1], x);
}

__global__ void mpt__unary_kernel(const mpt__walk walk, const mpt__unary unary) {
	const long long done = 8 * walk.eights;
	const float c = unary.slot != NULL ? (float)unary.slot->f : unary.c;
	if (unary.seed != NULL && blockIdx.x == 0 && threadIdx.x == 0) *(float *)unary.seed = c;
	MPT__EACH(i, walk.eights) mpt__unary_at<8>(walk, unary, c, 8 * i);
	MPT__EACH(i, walk.space.count - done) mpt__unary_at<1>(walk, unary, c, done + i);
}

mpt_status mpt__run_unary(const mpt__cuda_call *call, mpt__scalar *nonfinite, mpt__scalar *seed) {
	const mpt__launch *launch = call->launch;
	const mpt__walk walk = mpt__walk_over(call, 2);
	mpt__unary unary;
	if (walk.space.count == 0) return MPT_OK;
	memset(&unary, 0, sizeof unary);
	unary.function = launch->function;
	unary.c = (float)launch->imm[0];
	unary.d = (float)launch->imm[1];
	unary.slot = launch->function == MPT__FN_MUL_SLOT ? &call->scalars[launch->slot[0]] : NULL;
	unary.nonfinite = nonfinite;
	unary.seed = seed;
	mpt__unary_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, unary);
	return MPT_OK;
}

mpt_status mpt__cuda_unary(const mpt__cuda_call *call) { return mpt__run_unary(call, NULL, NULL); }

/* A finite loss may overflow by the scale: what counts is the loss. */
mpt_status mpt__cuda_scale_loss(const mpt__cuda_call *call) {
	const uint16_t *slot = call->launch->slot;
	return mpt__run_unary(call, &call->scalars[slot[1]],
						  slot[2] ? &call->scalars[slot[2]] : NULL);
}

struct mpt__binary {
	int function;
	float c, d;
};

template <int N>
__device__ __forceinline__ void mpt__binary_at(const mpt__walk &walk, const mpt__binary &binary,
											   long long index) {
	long long at[3];
	float x[N], y[N];
	mpt__locate_in<3>(walk, index, at);
	mpt__take<N>(walk, 0, at[0], x);
	mpt__take<N>(walk, 1, at[1], y);
	mpt__binary_of<N>(binary.function, x, y, binary.c, binary.d);
	mpt__give<N>(walk, 2, at[2], x);
}

__global__ void mpt__binary_kernel(const mpt__walk walk, const mpt__binary binary) {
	const long long done = 8 * walk.eights;
	MPT__EACH(i, walk.eights) mpt__binary_at<8>(walk, binary, 8 * i);
	MPT__EACH(i, walk.space.count - done) mpt__binary_at<1>(walk, binary, done + i);
}

__device__ __forceinline__ bool mpt__compare(int function, long long a, long long b) {
	switch (function) {
	case MPT__FN_EQUAL: return a == b;
	case MPT__FN_NOT_EQUAL: return a != b;
	case MPT__FN_LESS: return a < b;
	case MPT__FN_LESS_EQUAL: return a <= b;
	case MPT__FN_GREATER: return a > b;
	default: return a >= b;
	}
}

__global__ void mpt__compare_integers_kernel(const mpt__walk walk, int function) {
	MPT__EACH(i, walk.space.count) {
		long long at[3], x, y;
		mpt__locate_in<3>(walk, i, at);
		mpt__fetch(walk.array[0], at[0], x);
		mpt__fetch(walk.array[1], at[1], y);
		mpt__put(walk.array[2], at[2], mpt__compare(function, x, y) ? 1.0f : 0.0f);
	}
}

mpt_status mpt__cuda_binary(const mpt__cuda_call *call) {
	const int function = call->launch->function;
	const mpt__binary binary = {function, (float)call->launch->imm[0],
								(float)call->launch->imm[1]};
	const mpt__walk walk = mpt__walk_over(call, 3);
	const unsigned int blocks = mpt__walk_blocks(call, walk);
	if (walk.space.count == 0) return MPT_OK;
	if (function >= MPT__FN_EQUAL && function <= MPT__FN_GREATER_EQUAL &&
		mpt__is_integer(walk.array[0].dtype) &&
		mpt__is_integer(walk.array[1].dtype)) {
		mpt__compare_integers_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk, function);
	} else {
		mpt__binary_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk, binary);
	}
	return MPT_OK;
}

/* ---- Random numbers: the bits of ground/random.c and ground/math.c ---- */

struct mpt__key {
	unsigned long long seed, stream, call;
	const mpt__scalar *step;	/* NULL, or mixed into the stream */
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

#define MPT__COMMON static inline __host__ __device__
/* ----
 * waist/arithmetic.inl: what every backend computes with the same bits: hashes, random words, the
 * numbers of a loss scaler, of an optimizer's step and of fp8's scales. MPT__COMMON is the storage
 * class that a backend gives to such functions; words of launches are those of waist/launch.h.
 * ---- */
#ifdef MPT__COMMON

/* ==== Hashes ==== */

#define MPT__HASH_GOLDEN UINT64_C(0x9e3779b97f4a7c15)	/* 2^64 / golden ratio */

/* The finaliser of SplitMix64: a bijection in which every input bit reaches every output bit. */
MPT__COMMON uint64_t mpt__hash_mix(uint64_t x) {
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* Hashes an ordered pair; with one of the two fixed it is a bijection of the other. */
MPT__COMMON uint64_t mpt__hash_u64(uint64_t a, uint64_t b) {
	return mpt__hash_mix(mpt__hash_mix(a + MPT__HASH_GOLDEN) + b);
}

/* ==== Philox 4x32-10 ==== */

#define MPT__PHILOX_ROUNDS 10
#define MPT__PHILOX_M0 0xd2511f53u
#define MPT__PHILOX_M1 0xcd9e8d57u
#define MPT__PHILOX_W0 0x9e3779b9u	/* added to the key after each round */
#define MPT__PHILOX_W1 0xbb67ae85u

/* The bare generator, word by word as in the paper. */
MPT__COMMON void mpt__philox_block(
	const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
	uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
	uint32_t k0 = key[0], k1 = key[1];
	for (int round = 0; round < MPT__PHILOX_ROUNDS; round++) {
		uint64_t p0 = (uint64_t)MPT__PHILOX_M0 * c0;
		uint64_t p1 = (uint64_t)MPT__PHILOX_M1 * c2;
		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += MPT__PHILOX_W0;
		k1 += MPT__PHILOX_W1;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* Block `block` of a sequence. The mapping gives seeds their meaning and may not change: the Philox
 * key is the seed; counter words 0 and 1 are the block index, 2 and 3 the sequence, which is
 * mpt__hash_u64(stream, call); low words first. */
MPT__COMMON void mpt__philox(uint64_t seed, uint64_t sequence, uint64_t block, uint32_t out[4]) {
	uint32_t counter[4], key[2];
	counter[0] = (uint32_t)block;
	counter[1] = (uint32_t)(block >> 32);
	counter[2] = (uint32_t)sequence;
	counter[3] = (uint32_t)(sequence >> 32);
	key[0] = (uint32_t)seed;
	key[1] = (uint32_t)(seed >> 32);
	mpt__philox_block(counter, key, out);
}

/* ==== Optimizers ==== */

/* base^exponent by repeated squaring; 0^0 = 1. The relative error grows as |exponent| roundings. */
MPT__COMMON double mpt__power(double base, int64_t exponent) {
	uint64_t left = exponent < 0 ? 0 - (uint64_t)exponent : (uint64_t)exponent;
	double result = 1.0;
	for (; left > 0; left >>= 1) {
		if (left & 1) result *= base;
		base *= base;
	}
	return exponent < 0 ? 1.0 / result : result;
}

/* What a launch of SGD, ADAM or MOMENTS asks for, the same for all its segments. Truths are ints:
   a kernel of a GPU gets all bytes of this, and between bools there would be some that nobody wrote. */
typedef struct mpt__law {
	int function;
	int corrects;	/* means that began with 0 are divided by 1 - beta^t */
	int decays;		/* the gradient has a part that takes weights towards 0; */
	int decoupled;	/* or the weight itself is made smaller */
	int slows;		/* the rate is divided by 1 + imm[0] t */
	int dampens;	/* of SGD: 1 - imm[1] of a gradient comes in */
	int nesterov;
	int moment[3];	/* which there are */
	int eps, decay;	/* where they stand in imm; -1: none */
	double imm[4];
} mpt__law;

static inline mpt__law mpt__law_of(const mpt__launch *launch) {
	static const int rows[][3] = {
		{-1, 0, 0},
#define MPT__ROW(id, name, ns, eps, decay, ways) {eps, decay, ways},
		MPT__UPDATES(MPT__ROW)
#undef MPT__ROW
			{2, 3, MPT__CORRECTS},	/* ADAM */
		{-1, 2, 0}					/* SGD */
	};
	const bool sgd = launch->kernel == MPT__K_SGD, adam = launch->kernel == MPT__K_ADAM;
	const int count = (int)(sizeof rows / sizeof rows[0]), moment[3] = {3, 6, 8};
	const int *row = rows[sgd ? count - 1 : adam ? count - 2 : launch->function - MPT__FN_NO_UPDATE];
	mpt__law law;
	law.function = launch->function;
	law.eps = row[0], law.decay = row[1];
	law.corrects = (row[2] & MPT__CORRECTS) != 0, law.slows = (row[2] & MPT__SLOWS) != 0;
	law.decoupled = (row[2] & MPT__DECOUPLES) != 0 || (law.corrects && launch->index[0] == 1);
	law.dampens = sgd, law.nesterov = sgd && launch->index[0] != 0;
	for (int k = 0; k < 3; k++)
		law.moment[k] = moment[k] < launch->n_operands && launch->operand[moment[k]].storage != 0;
	memcpy(law.imm, launch->imm, sizeof law.imm);
	law.decays = law.imm[law.decay] != 0;
	return law;
}

/* And what depends on a segment's step count. keep1 and keep2: how much of their moments stays,
   add1 and add2 how much of what is new comes in. */
typedef struct mpt__pace {
	double lr, decay, shrink, keep1, add1, keep2, add2, eps, root;
	bool fresh;	/* no update before this one */
} mpt__pace;

/* `first` is imm[0], or what a table of rates has in its place, as it has `lr`. */
MPT__COMMON mpt__pace mpt__pace_of(const mpt__law *law, double lr, double first, int64_t step) {
	mpt__pace pace;
	pace.fresh = step == 0;
	pace.eps = law->eps < 0 ? 0 : law->imm[law->eps];
	pace.decay = law->imm[law->decay];
	pace.shrink = lr * pace.decay;
	pace.keep1 = first;
	pace.add1 = 1 - (law->dampens ? law->imm[1] : first);
	pace.keep2 = law->imm[1];
	pace.add2 = 1 - law->imm[1];
	pace.root = 1;
	if (law->corrects) {
		lr /= 1 - mpt__power(first, step + 1);
		pace.root = 1 / sqrt(1 - mpt__power(pace.keep2, step + 1));
	}
	if (law->slows) lr /= 1 + (double)step * law->imm[0];
	pace.lr = lr;
	return pace;
}

/* ==== Codes of moments ====
 *
 * The table has a codebook of signed moments, then one of the others: values of 256 codes; cells;
 * what vectors use (cpu/template/codes.c). A cell is for the numbers y of [2^-23, 1] with the same
 * upper 16 bits, of which no two middles between magnitudes lie in one: that of the least, counted
 * from 0, times 2^16 + the lower 16 bits of the last y that is no nearer to the next. */
enum {
	MPT__CODE_BLOCK = 256,
	MPT__CODE_ZERO = 127,
	MPT__CODE_LEAST = 0x3400,	/* upper bits of 2^-23 */
	MPT__CODE_LIMIT = 256 + 0x3f80 - MPT__CODE_LEAST + 1,
	MPT__CODE_BOOK = MPT__CODE_LIMIT + 5 * 16
};
#define MPT__CODE_LINES(book) ((const float *)(const void *)((book) + MPT__CODE_LIMIT))
#define MPT__CODE_DOUBT (1 / 16384.0f)	/* of 1 between two codes: more than twice the error */
/* Whether moment k has no sign. */
MPT__COMMON int mpt__law_unsigned(const mpt__law *law, int k) {
	return law->corrects ? k > 0 : law->function == MPT__FN_RMSPROP && k == 0;
}
/* The code of a moment with bits x, y those of its magnitude over the largest. What is not 0 has
   not that of 0: it keeps its sign, and a mean of squares what a step is divided by. */
MPT__COMMON uint32_t mpt__code_of(const int32_t *book, uint32_t x, uint32_t y, int is_unsigned) {
	const uint32_t least = (uint32_t)MPT__CODE_LEAST << 16;
	if (y < least) y = least;
	const uint32_t cell = (uint32_t)book[256 + (y >> 16) - MPT__CODE_LEAST];
	uint32_t code = (cell >> 16) + ((y & 0xffff) > (cell & 0xffff));
	if (code == 0 && (x & 0x7fffffff) >= 0x00800000) code = 1;
	if (is_unsigned) return code;
	if (!(x >> 31)) return MPT__CODE_ZERO + code;
	return code > MPT__CODE_ZERO ? 0 : MPT__CODE_ZERO - code;
}
/* What is kept of a block's largest magnitude: 0 for what is below fp32's normal numbers, NaN for
   what is not finite. Of neither there are codes but that of 0. */
MPT__COMMON uint32_t mpt__code_most(uint32_t bits) {
	return bits >= 0x7f800000 ? 0x7fc00000 : bits < 0x00800000 ? 0 : bits;
}
MPT__COMMON int mpt__code_is_number(uint32_t most) { return most != 0 && most < 0x7f800000; }
/* Where a parameter's largest magnitudes stand behind its n codes. */
MPT__COMMON int64_t mpt__code_peaks(int64_t n) { return (n + 3) / 4 * 4; }

/* ==== Loss scaler ==== */

/* The scale after an overflow. The floor stops the way down; it never lifts a scale that a user has
   set below it. */
MPT__COMMON double mpt__backed_off(double scale, double backoff, double floor_scale) {
	double next = (double)(float)(scale * backoff);
	if (next < floor_scale) next = floor_scale < scale ? floor_scale : scale;
	return next;
}

/* The scale after an interval of clean steps, unless it is no number of fp32; likewise with the
   ceiling. */
MPT__COMMON double mpt__grown(double scale, double growth, double ceiling) {
	double next = (double)(float)(scale * growth);
	if (!(next <= 3.4028234663852886e38)) return scale;
	if (ceiling > 0 && next > ceiling) next = ceiling > scale ? ceiling : scale;
	return next;
}

/* SCALER_UPDATE on the scalars s. */
MPT__COMMON void mpt__scaler_ends_update(
	mpt__scalar *s, const uint16_t *slot, const double *imm, int64_t interval, bool fixed) {
	s[slot[3]].i++;
	if (s[slot[2]].i != 0) {
		if (!fixed) s[slot[0]].f = mpt__backed_off(s[slot[0]].f, imm[1], imm[2]);
		s[slot[1]].i = 0;
		s[slot[4]].i++;
		s[slot[5]].i++;
		s[slot[6]].i = s[slot[3]].i;
		s[slot[7]].i = MPT_OUTCOME_SKIPPED;
		return;
	}
	s[slot[1]].i++;
	if (!fixed && s[slot[1]].i >= interval) {
		s[slot[0]].f = mpt__grown(s[slot[0]].f, imm[0], imm[3]);
		s[slot[1]].i = 0;
	}
	s[slot[5]].i = 0;
	s[slot[7]].i = MPT_OUTCOME_APPLIED;
}

/* The weight of a new value in an average, after n updates. */
MPT__COMMON double mpt__average_weight(int64_t form, double decay, double n) {
	double early = (1 + n) / (10 + n);
	if (n == 0) return 1;
	if (form == 2) return 1 / (n + 1);
	return 1 - (form == 1 && early < decay ? early : decay);
}

#ifndef MPTRAIN_NO_FP8
/* ==== Scales of fp8 ==== */

/* The power of two that takes `most` to the limit of a format at the most, where that is 7/4 of
   2^limit_exponent. */
MPT__COMMON float mpt__fp8_power(float most, int limit_exponent, int margin) {
	uint32_t bits;
	memcpy(&bits, &most, sizeof bits);
	int power = limit_exponent - ((int)(bits >> 23) - 127) - margin;
	if ((bits & 0x7fffffu) > 0x600000u) power--;
	if (power > MPT__FP8_POWERS) power = MPT__FP8_POWERS;
	if (power < -MPT__FP8_POWERS) power = -MPT__FP8_POWERS;
	bits = (uint32_t)(power + 127) << 23;
	memcpy(&most, &bits, sizeof most);
	return most;
}

/* FP8_UPDATE of row `row`, which has `width` floats. */
MPT__COMMON void mpt__fp8_ends_step(
	float *state, int64_t width, int64_t row, bool commit, int margin) {
	float most = 0;
	for (int64_t i = width - 1; i > MPT__FP8_HISTORY && commit; i--) state[i] = state[i - 1];
	if (commit) state[MPT__FP8_HISTORY] = state[MPT__FP8_AMAX];
	state[MPT__FP8_AMAX] = 0;
	for (int64_t i = MPT__FP8_HISTORY; i < width; i++)
		if (state[i] > most) most = state[i];
	if (commit && most > 0)
		state[MPT__FP8_SCALE_NOW] = mpt__fp8_power(most, row < 2 ? 8 : 15, margin);
}
#endif

#endif

__device__ __forceinline__ unsigned long long mpt__sequence_of(const mpt__key &key) {
	unsigned long long stream = key.stream;
	if (key.step != NULL) stream = mpt__hash_u64(stream, (unsigned long long)key.step->i);
	return mpt__hash_u64(stream, key.call);
}

struct mpt__dropout {
	mpt__key key;
	unsigned int threshold;	/* words from here on keep */
	float factor;
	int any;
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

#ifndef MPTRAIN_NO_FRUGAL
/* ---- Gates: a thread for each word ---- */

__device__ __forceinline__ long long mpt__gate_first(long long word) {
	return word / MPT__GATE_WORDS * MPT__GATE_GROUP + word % MPT__GATE_WORDS;
}

__global__ void mpt__gates_kernel(const void *x, int dtype, long long n, long long count,
								  unsigned int *words) {
	MPT__EACH(i, count) {
		const long long first = mpt__gate_first(i);
		unsigned int word = 0;
		for (int k = 0; k < 32 && first + MPT__GATE_WORDS * k < n; k++)
			if (mpt__load(x, dtype, first + MPT__GATE_WORDS * k) != 0.0f) word |= 1u << k;
		words[i] = word;
	}
}

__global__ void mpt__gates_open_kernel(const mpt__array y, long long n, long long count,
									   const unsigned int *words) {
	MPT__EACH(i, count) {
		const long long first = mpt__gate_first(i);
		const unsigned int word = words[i];
		for (int k = 0; k < 32 && first + MPT__GATE_WORDS * k < n; k++)
			mpt__put(y, first + MPT__GATE_WORDS * k, (float)(word >> k & 1));
	}
}

mpt_status mpt__cuda_gate_bits(const mpt__cuda_call *call) {
	const bool open = call->launch->kernel == MPT__K_GATE_OPEN;
	const int x = open ? 1 : 0;
	const long long n = call->launch->operand[x].shape[0];
	const long long count = call->launch->operand[1 - x].shape[0];
	unsigned int *const words = (unsigned int *)call->data[1 - x];
	const mpt__array array = mpt__array_of(call, x);
	if (open)
		mpt__gates_open_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(
			array, n, count, words);
	else
		mpt__gates_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(
			array.data, array.dtype, n, count, words);
	return MPT_OK;
}
#endif

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
	const mpt__scalar *draws;	/* NULL, or to be added to the call */
	int normal;
	float a, b;	/* lowest and beyond the highest; or mean and deviation */
	float most;	/* of the dtype, below b */
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
		x[k] = value < d.b ? fminf(value, d.most) : d.a;	/* the sum may round up to b */
	}
}

__global__ void mpt__random_kernel(const mpt__walk walk, const mpt__distribution d) {
	mpt__key key = d.key;
	if (d.draws != NULL) key.call += (unsigned long long)d.draws->i;
	const unsigned long long sequence = mpt__sequence_of(key);
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
	if (call->launch->slot[1] != 0) d.draws = &call->scalars[call->launch->slot[1]];
	d.normal = call->launch->function == MPT__FN_NORMAL;
	d.a = (float)call->launch->imm[0];
	d.b = (float)call->launch->imm[1];
	d.most = (float)call->launch->imm[2];
	mpt__random_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, d);
	return MPT_OK;
}

/* ==== Along an axis: ARGMAX, SCATTER_AXIS, FIND_NONFINITE ==== */

struct mpt__argmax {
	mpt__space lines;
	mpt__array from, index, value;	/* strides over the lines */
	long long n, stride;			/* along the dimension */
	float sign;						/* -1: the least */
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
			const float x = w.sign * mpt__load(w.from.data, w.from.dtype, from + i * w.stride);
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
			mpt__put(w.value, mpt__locate(w.lines, w.value.stride, line), w.sign * best);
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
	w.sign = call->launch->function == MPT__FN_MIN ? -1.0f : 1.0f;
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
	mpt__array index, value, to, axis;	/* axis: no data; locates the index along the dimension */
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

/* Sets the error word unless an earlier error stands there. */
__device__ void mpt__raise(mpt__scalar *scalars, long long status, long long number,
						   long long index, long long position, mpt__scalar value,
						   long long size) {
	unsigned long long *word = (unsigned long long *)&scalars[MPT__SLOT_ERROR].i;
	if (atomicCAS(word, 0ull, (unsigned long long)status) != 0) return;
	scalars[MPT__SLOT_ERROR_LAUNCH].i = number;
	scalars[MPT__SLOT_ERROR_INDEX].i = index;
	scalars[MPT__SLOT_ERROR_POSITION].i = position;
	scalars[MPT__SLOT_ERROR_VALUE] = value;
	scalars[MPT__SLOT_ERROR_SIZE].i = size;
}

#define MPT__CHECKERS 1024	/* threads that look at many indices */

/* One block finds the first element of `index` that is not in 0 .. size-1. No thread ends early, so
   that a thread's loads need not wait for each other. */
__global__ void __launch_bounds__(MPT__CHECKERS)
	mpt__check_indices_kernel(const mpt__space space, const mpt__array index, long long size,
							  mpt__scalar *scalars, long long number) {
	__shared__ unsigned long long first;
	unsigned long long mine = ~0ull;
	if (threadIdx.x == 0) first = ~0ull;
	__syncthreads();
#pragma unroll 4
	for (long long i = threadIdx.x; i < space.count; i += blockDim.x) {
		const long long x =
			mpt__load_i64(index.data, index.dtype, mpt__locate(space, index.stride, i));
		const bool bad = x < 0 || x >= size;
		mine = bad && (unsigned long long)i < mine ? (unsigned long long)i : mine;
	}
	if (mine != ~0ull) atomicMin(&first, mine);
	__syncthreads();
	if (threadIdx.x != 0 || first == ~0ull) return;
	mpt__scalar value;
	value.i = mpt__load_i64(index.data, index.dtype,
							mpt__locate(space, index.stride, (long long)first));
	mpt__raise(scalars, MPT_ERROR_INDEX, number, -1 - (long long)first, -1, value, size);
}

void mpt__check_indices(const mpt__cuda_call *call, int position, long long size) {
	const mpt__operand &o = call->launch->operand[position];
	mpt__array index = mpt__array_of(call, position), *arrays[1] = {&index};
	int64_t shape[MPT_MAX_RANK];
	if (index.data == NULL) return;
	for (int d = 0; d < o.rank; d++) shape[d] = o.stride[d] == 0 && o.shape[d] > 0 ? 1 : o.shape[d];
	const mpt__space space = mpt__merge(o.rank, shape, arrays, 1);
	if (space.count == 0) return;
	const unsigned int threads = space.count > 4 * MPT__CHECKERS ? MPT__CHECKERS : MPT__THREADS;
	mpt__check_indices_kernel<<<1, threads, 0, call->stream>>>(space, index, size, call->scalars,
															   call->launch->number);
}

mpt_status mpt__cuda_scatter_axis(const mpt__cuda_call *call) {
	const int axis = (int)call->launch->index[0];
	mpt__scatter w;
	mpt__array *arrays[4] = {&w.index, &w.value, &w.to, &w.axis};
	memset(&w, 0, sizeof w);
	w.index = mpt__array_of(call, 0);
	w.value = mpt__array_of(call, 1);
	w.to = mpt__array_of(call, 2);
	if (call->launch->index[1]) mpt__check_indices(call, 0, call->launch->operand[2].shape[axis]);
	w.index.stride[axis] = w.value.stride[axis] = 0;
	w.axis.stride[axis] = 1;
	w.space = mpt__space_of(call, 2, arrays, 4);
	if (w.space.count == 0) return MPT_OK;
	mpt__scatter_axis_kernel<<<mpt__blocks(call, w.space.count), MPT__THREADS, 0, call->stream>>>(
		w);
	return MPT_OK;
}

struct mpt__gather {
	mpt__space space;
	mpt__array from, index, to, axis;	/* axis: no data; locates j along the dimension */
	long long size, stride, first, step;
};

__global__ void mpt__gather_kernel(const mpt__gather w) {
	MPT__EACH(i, w.space.count) {
		long long k = w.first + w.step * mpt__locate(w.space, w.axis.stride, i);
		if (w.index.data != NULL)
			k = mpt__load_i64(w.index.data, w.index.dtype,
							  mpt__locate(w.space, w.index.stride, i));
		float x = 0;
		if (k >= 0 && k < w.size)
			mpt__fetch(w.from, mpt__locate(w.space, w.from.stride, i) + k * w.stride, x);
		mpt__put(w.to, mpt__locate(w.space, w.to.stride, i), x);
	}
}

mpt_status mpt__cuda_gather(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const int axis = (int)launch->index[0];
	mpt__gather w;
	mpt__array *arrays[4] = {&w.from, &w.index, &w.to, &w.axis};
	memset(&w, 0, sizeof w);
	w.from = mpt__array_of(call, 0);
	w.index = mpt__array_of(call, 1);
	w.to = mpt__array_of(call, 2);
	w.size = launch->operand[0].shape[axis];
	w.stride = launch->operand[0].stride[axis];
	w.first = launch->index[1];
	w.step = launch->index[2];
	w.from.stride[axis] = 0;
	w.axis.stride[axis] = 1;
	mpt__check_indices(call, 1, w.size);
	w.space = mpt__space_of(call, 2, arrays, 4);
	if (w.space.count == 0) return MPT_OK;
	mpt__gather_kernel<<<mpt__blocks(call, w.space.count), MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}

struct mpt__triangle {
	mpt__walk walk;
	long long rows, columns, diagonal;
	int upper;	/* or lower */
};

__global__ void mpt__triangle_kernel(const mpt__triangle w) {
	MPT__EACH(i, w.walk.space.count) {
		const long long diagonal = i % w.columns - i / w.columns % w.rows;
		long long at[2];
		float x = 0;
		mpt__locate_in<2>(w.walk, i, at);
		if (diagonal == w.diagonal || (diagonal > w.diagonal) == (w.upper != 0))
			mpt__fetch(w.walk.array[0], at[0], x);
		mpt__put(w.walk.array[1], at[1], x);
	}
}

mpt_status mpt__cuda_triangle(const mpt__cuda_call *call) {
	const mpt__operand &o = call->launch->operand[0];
	mpt__triangle w;
	w.walk = mpt__walk_over(call, 2);
	if (w.walk.space.count == 0) return MPT_OK;
	w.rows = o.shape[o.rank - 2];
	w.columns = o.shape[o.rank - 1];
	w.diagonal = call->launch->index[0];
	w.upper = call->launch->index[1] != 0;
	mpt__triangle_kernel<<<mpt__blocks(call, w.walk.space.count), MPT__THREADS, 0, call->stream>>>(
		w);
	return MPT_OK;
}

struct mpt__cumsum {
	mpt__space lines;
	mpt__array from, to;					/* strides over the lines */
	long long n, from_stride, to_stride;	/* along the dimension */
	int reverse;
};

/* A block for a line, which it takes in pieces of one element for each thread. */
__global__ void mpt__cumsum_kernel(const mpt__cumsum w) {
	__shared__ double part[MPT__THREADS];
	const int thread = (int)threadIdx.x;
	for (long long line = blockIdx.x; line < w.lines.count; line += gridDim.x) {
		const long long from = mpt__locate(w.lines, w.from.stride, line);
		const long long to = mpt__locate(w.lines, w.to.stride, line);
		double before = 0;
		for (long long begin = 0; begin < w.n; begin += MPT__THREADS) {
			const long long i = begin + thread, k = w.reverse ? w.n - 1 - i : i;
			double sum = 0;
			if (i < w.n) mpt__fetch(w.from, from + k * w.from_stride, sum);
			for (int step = 1; step < MPT__THREADS; step *= 2) {
				part[thread] = sum;
				__syncthreads();
				if (thread >= step) sum = part[thread - step] + sum;
				__syncthreads();
			}
			part[thread] = sum;
			__syncthreads();
			if (i < w.n) mpt__put(w.to, to + k * w.to_stride, (float)(before + sum));
			before += part[MPT__THREADS - 1];
			__syncthreads();
		}
	}
}

mpt_status mpt__cuda_cumsum(const mpt__cuda_call *call) {
	const mpt__operand *o = call->launch->operand;
	const int axis = (int)call->launch->index[0];
	int64_t shape[MPT_MAX_RANK];
	mpt__cumsum w;
	mpt__array *arrays[2] = {&w.from, &w.to};
	memset(&w, 0, sizeof w);
	w.from = mpt__array_of(call, 0);
	w.to = mpt__array_of(call, 1);
	w.n = o[0].shape[axis];
	w.from_stride = o[0].stride[axis];
	w.to_stride = o[1].stride[axis];
	w.reverse = call->launch->index[1] != 0;
	for (int d = 0; d < o[0].rank; d++) shape[d] = d == axis ? 1 : o[0].shape[d];
	w.lines = mpt__merge(o[0].rank, shape, arrays, 2);
	if (w.n == 0 || w.lines.count == 0) return MPT_OK;
	mpt__cumsum_kernel<<<mpt__blocks(call, w.lines.count * MPT__THREADS), MPT__THREADS, 0,
						 call->stream>>>(w);
	return MPT_OK;
}

/* ---- ARGSORT, and sorted ids ----
 *
 * An element is a word: its value as an integer that orders alike, and behind it its index. All
 * words of a line differ, so that there is one order, whatever sorts them. Blocks sort tiles of a
 * line in shared memory; then runs of the line are merged in pairs, a thread for an element. */

#define MPT__SORT_TILE (4 * MPT__THREADS)	/* words: 8 KB of shared memory */

struct mpt__sort {
	mpt__space lines;
	mpt__array from, to;	/* strides over the lines; to NULL: the words are wanted */
	long long n, k, from_stride, to_stride, tiles;
	unsigned long long *words;	/* [lines, n], twice; NULL: a line is one tile */
	int descending;
	int bits;					/* of a word that hold the index */
	long long size, padding;	/* of ids, all of 0 .. size-1 but the padding; size 0: of numbers */
};

/* Ids that count for nothing come behind all others. */
__device__ __forceinline__ unsigned long long mpt__sort_word(const mpt__sort &w, long long at,
															 long long index) {
	if (w.size > 0) {
		const long long id = mpt__load_i64(w.from.data, w.from.dtype, at);
		const bool counts = id >= 0 && id < w.size && id != w.padding;
		return (unsigned long long)(counts ? id : w.size) << w.bits | (unsigned long long)index;
	}
	const float x = mpt__load(w.from.data, w.from.dtype, at);
	const unsigned int bits = __float_as_uint(x == 0 ? 0.0f : x);
	unsigned int key = bits >> 31 ? ~bits : bits | 0x80000000u;
	if (x != x) key = 0xffffffffu;
	if (w.descending) key = ~key;
	return (unsigned long long)key << w.bits | (unsigned long long)index;
}

__device__ __forceinline__ void mpt__sort_put(const mpt__sort &w, long long line,
											  long long place, unsigned long long word) {
	if (place >= w.k) return;
	mpt__store_i64(w.to.data, w.to.dtype,
				   mpt__locate(w.lines, w.to.stride, line) + place * w.to_stride,
				   (long long)(word & ((1ull << w.bits) - 1)));
}

__global__ void mpt__sort_tiles_kernel(const mpt__sort w) {
	__shared__ unsigned long long word[MPT__SORT_TILE];
	const int thread = (int)threadIdx.x;
	for (long long tile = blockIdx.x; tile < w.lines.count * w.tiles; tile += gridDim.x) {
		const long long line = tile / w.tiles, begin = tile % w.tiles * MPT__SORT_TILE;
		const long long from = mpt__locate(w.lines, w.from.stride, line);
		for (int i = thread; i < MPT__SORT_TILE; i += MPT__THREADS) {
			word[i] = ~0ull;	/* behind all others */
			if (begin + i < w.n)
				word[i] = mpt__sort_word(w, from + (begin + i) * w.from_stride, begin + i);
		}
		__syncthreads();
		for (int size = 2; size <= MPT__SORT_TILE; size *= 2) {	/* Batcher's bitonic network */
			for (int step = size / 2; step > 0; step /= 2) {
				for (int p = thread; p < MPT__SORT_TILE / 2; p += MPT__THREADS) {
					const int i = 2 * p - p % step, j = i + step;
					const unsigned long long a = word[i], b = word[j];
					if ((a > b) == ((i & size) == 0)) word[i] = b, word[j] = a;
				}
				__syncthreads();
			}
		}
		for (int i = thread; i < MPT__SORT_TILE && begin + i < w.n; i += MPT__THREADS) {
			if (w.words == NULL)
				mpt__sort_put(w, line, i, word[i]);
			else
				w.words[line * w.n + begin + i] = word[i];
		}
		__syncthreads();
	}
}

/* Runs of `run` words: an element's place in the merged run is its own place and the number of
   those before it in the neighbouring run. The last merge writes the result. */
__global__ void mpt__sort_merge_kernel(const mpt__sort w, long long run,
									   const unsigned long long *from, unsigned long long *to) {
	MPT__EACH(at, w.lines.count * w.n) {
		const long long line = at / w.n, i = at % w.n, pair = i / (2 * run) * (2 * run);
		const long long middle = pair + run < w.n ? pair + run : w.n;
		const long long end = pair + 2 * run < w.n ? pair + 2 * run : w.n;
		const unsigned long long word = from[at];
		long long low = i < middle ? middle : pair, high = i < middle ? end : middle;
		const long long first = low;
		while (low < high) {
			const long long half = low + (high - low) / 2;
			if (from[line * w.n + half] < word)
				low = half + 1;
			else
				high = half;
		}
		const long long place = i < middle ? i + (low - first) : i - middle + low;
		if (2 * run >= w.n && w.to.data != NULL)
			mpt__sort_put(w, line, place, word);
		else
			to[line * w.n + place] = word;
	}
}

/* Returns where the words lie at the end, in order if they are what is wanted. */
const unsigned long long *mpt__sort_run(const mpt__cuda_call *call, mpt__sort *w) {
	const long long count = w->lines.count * w->n;
	w->tiles = (w->n + MPT__SORT_TILE - 1) / MPT__SORT_TILE;
	if (w->tiles > 1) w->words = (unsigned long long *)call->workspace;
	mpt__sort_tiles_kernel<<<mpt__blocks(call, w->lines.count * w->tiles * MPT__THREADS),
							 MPT__THREADS, 0, call->stream>>>(*w);
	unsigned long long *from = w->words, *to = w->tiles > 1 ? w->words + count : NULL;
	for (long long run = MPT__SORT_TILE; run < w->n; run *= 2) {
		mpt__sort_merge_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(
			*w, run, from, to);
		unsigned long long *kept = from;
		from = to, to = kept;
	}
	return from;
}

int64_t mpt__cuda_argsort_workspace(const mpt__launch *launch) {
	const mpt__operand &o = launch->operand[0];
	int64_t count = 1;
	for (int d = 0; d < o.rank; d++) count *= o.shape[d];
	return o.shape[launch->index[0]] > MPT__SORT_TILE ? 2 * count * 8 : 0;
}

mpt_status mpt__cuda_argsort(const mpt__cuda_call *call) {
	const mpt__operand *o = call->launch->operand;
	const int axis = (int)call->launch->index[0];
	int64_t shape[MPT_MAX_RANK];
	mpt__sort w;
	mpt__array *arrays[2] = {&w.from, &w.to};
	memset(&w, 0, sizeof w);
	w.from = mpt__array_of(call, 0);
	w.to = mpt__array_of(call, 1);
	w.n = o[0].shape[axis];
	w.k = o[1].shape[axis];
	w.from_stride = o[0].stride[axis];
	w.to_stride = o[1].stride[axis];
	w.bits = 32;
	w.descending = call->launch->function == MPT__FN_MAX;
	for (int d = 0; d < o[0].rank; d++) shape[d] = d == axis ? 1 : o[0].shape[d];
	w.lines = mpt__merge(o[0].rank, shape, arrays, 2);
	if (w.n == 0 || w.k == 0 || w.lines.count == 0) return MPT_OK;
	if (w.n >> 32)
		return mpt__cuda_refuse(call->cuda, MPT_ERROR_UNSUPPORTED, "argsort",
								"lines of 2^32 elements or more");
	mpt__sort_run(call, &w);
	return MPT_OK;
}

/* ---- SCATTER_ADD, EMBEDDING_BACKWARD ---- */

struct mpt__scatter_add {
	mpt__space lines;
	mpt__array index, from, to;	/* strides over the lines */
	long long n, size, index_stride, from_stride, to_stride;
	long long padding;	/* an index that adds nothing */
	int one;			/* all lines share their indices */
	int sorts;
	long long parts;					/* a power of 2, where nothing is sorted */
	const unsigned long long *words;	/* the line's indices, sorted (mpt__sort_word) */
	long long word_step;				/* from line to line */
	int bits;
};

/* Adds element j of a line to element k of it. */
__device__ __forceinline__ void mpt__scatter_one(const mpt__scatter_add &w, long long from,
												 long long to, long long j, long long k) {
	const float x = mpt__load(w.from.data, w.from.dtype, from + j * w.from_stride);
	const long long at = to + k * w.to_stride;
	mpt__store(w.to.data, w.to.dtype, at, mpt__load(w.to.data, w.to.dtype, at) + x);
}

/* A thread owns one part of a line, the elements whose number is that of the part, modulo the parts:
   it looks at all the line's indices, and what meets in one element adds up in order. So the number
   of parts changes no bit. */
__global__ void mpt__scatter_add_kernel(const mpt__scatter_add w) {
	MPT__EACH(i, w.lines.count * w.parts) {
		const long long line = i % w.lines.count, part = i / w.lines.count;
		const long long index = mpt__locate(w.lines, w.index.stride, line);
		const long long from = mpt__locate(w.lines, w.from.stride, line);
		const long long to = mpt__locate(w.lines, w.to.stride, line);
		for (long long j = 0; j < w.n; j++) {
			const long long k =
				mpt__load_i64(w.index.data, w.index.dtype, index + j * w.index_stride);
			if (k >= 0 && k < w.size && k != w.padding && (k & (w.parts - 1)) == part)
				mpt__scatter_one(w, from, to, j, k);
		}
	}
}

/* The same where all lines share their indices, as the columns of an embedding do: a warp owns a
   part of 32 lines and looks at 32 indices at a time. */
__global__ void mpt__scatter_add_shared_kernel(const mpt__scatter_add w) {
	const int lane = (int)(threadIdx.x % MPT__WARP);
	const long long bundles = (w.lines.count + MPT__WARP - 1) / MPT__WARP;
	const long long step = (long long)gridDim.x * blockDim.x / MPT__WARP;
	long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / MPT__WARP;
	for (; i < bundles * w.parts; i += step) {
		const long long line = i % bundles * MPT__WARP + lane, part = i / bundles;
		const bool is_line = line < w.lines.count;
		const long long from = is_line ? mpt__locate(w.lines, w.from.stride, line) : 0;
		const long long to = is_line ? mpt__locate(w.lines, w.to.stride, line) : 0;
		for (long long first = 0; first < w.n; first += MPT__WARP) {
			long long k = -1;
			if (first + lane < w.n)
				k = mpt__load_i64(w.index.data, w.index.dtype, (first + lane) * w.index_stride);
			const bool ours =
				k >= 0 && k < w.size && k != w.padding && (k & (w.parts - 1)) == part;
			for (unsigned int left = __ballot_sync(MPT__ALL, ours); left != 0; left &= left - 1) {
				const int next = __ffs((int)left) - 1;
				const long long at = __shfl_sync(MPT__ALL, k, next);
				if (is_line) mpt__scatter_one(w, from, to, first + next, at);
			}
		}
	}
}

/* To look at an index of another part is a small part of an addition, which waits for memory twice;
   in 256 parts it is the larger share of a thread's time. */
#define MPT__MOST_PARTS 256

/* Adds the elements from place p of the sorted words on whose index is that at p, in their order,
   which sorting kept: the bits are those of the kernels above. Loads do not wait for each other. */
__device__ void mpt__add_segment(const mpt__scatter_add &w, const unsigned long long *words,
								 long long p, long long from, long long to) {
	const unsigned long long index = words[p] >> w.bits, within = (1ull << w.bits) - 1;
	const long long at = to + (long long)index * w.to_stride;
	if (w.to.dtype != MPT_F32) {	/* each sum is rounded */
		for (; p < w.n && words[p] >> w.bits == index; p++)
			mpt__scatter_one(w, from, to, (long long)(words[p] & within), (long long)index);
		return;
	}
	float sum = ((const float *)w.to.data)[at];
	for (bool more = true; more; p += 8) {
		float x[8];
		bool ours[8];
#pragma unroll
		for (int i = 0; i < 8; i++) {
			const unsigned long long word = p + i < w.n ? words[p + i] : ~0ull;
			ours[i] = word >> w.bits == index;
			x[i] = 0;
			if (ours[i])
				x[i] = mpt__load(w.from.data, w.from.dtype,
								 from + (long long)(word & within) * w.from_stride);
		}
#pragma unroll
		for (int i = 0; i < 8; i++)
			if (ours[i]) sum += x[i];
		more = ours[7];
	}
	((float *)w.to.data)[at] = sum;
}

/* Neighbouring threads have `lanes` neighbouring lines of a place among the sorted words. The one of
   the first place of an index adds up all of that index. */
__global__ void mpt__add_segments_kernel(const mpt__scatter_add w, int lanes) {
	const int places = (int)blockDim.x / lanes, lane = (int)threadIdx.x % lanes;
	const long long first = (long long)blockIdx.x * places + (int)threadIdx.x / lanes;
	long long line = (long long)blockIdx.y * lanes + lane;
	for (; line < w.lines.count; line += (long long)gridDim.y * lanes) {
		const unsigned long long *words = w.words + line * w.word_step;
		const long long from = mpt__locate(w.lines, w.from.stride, line);
		const long long to = mpt__locate(w.lines, w.to.stride, line);
		for (long long p = first; p < w.n; p += (long long)gridDim.x * places) {
			const unsigned long long index = words[p] >> w.bits;
			if (index >= (unsigned long long)w.size) break;	/* those that count for nothing */
			if (p == 0 || words[p - 1] >> w.bits != index) mpt__add_segment(w, words, p, from, to);
		}
	}
}

/* What adds to what along dimension `axis`. Lines of more than a tile are sorted where that costs
   little memory; where lines are many a thread has one, or a part of one, and looks at its indices
   once. */
mpt__scatter_add mpt__scatter_add_of(const mpt__cuda_call *call, int axis, long long padding) {
	const mpt__operand *o = call->launch->operand;
	int64_t shape[MPT_MAX_RANK];
	mpt__scatter_add w;
	mpt__array *arrays[3] = {&w.index, &w.from, &w.to};
	memset(&w, 0, sizeof w);
	w.index = mpt__array_of(call, 0);
	w.from = mpt__array_of(call, 1);
	w.to = mpt__array_of(call, 2);
	w.n = o[1].shape[axis];
	w.size = o[2].shape[axis];
	w.index_stride = o[0].stride[axis];
	w.from_stride = o[1].stride[axis];
	w.to_stride = o[2].stride[axis];
	w.padding = padding;
	for (int d = 0; d < o[1].rank; d++) shape[d] = d == axis ? 1 : o[1].shape[d];
	w.lines = mpt__merge(o[1].rank, shape, arrays, 3);
	w.one = 1;
	for (int d = 0; d < w.lines.rank; d++) w.one &= w.index.stride[d] == 0;
	for (w.bits = 0; w.n > 1ll << w.bits;) w.bits++;
	w.sorts = w.n > MPT__SORT_TILE && (w.one || w.lines.count < MPT__WARP) && w.lines.count > 0 &&
			  w.size < 1ll << (62 - w.bits);
	return w;
}

int64_t mpt__scatter_workspace(const mpt__launch *launch, int axis) {
	mpt__cuda_call call;
	memset(&call, 0, sizeof call);
	call.launch = launch;
	const mpt__scatter_add w = mpt__scatter_add_of(&call, axis, -1);
	return w.sorts ? 2 * 8 * w.n * (w.one ? 1 : w.lines.count) : 0;
}

void mpt__scatter_sorted(const mpt__cuda_call *call, mpt__scatter_add *w) {
	mpt__sort sort;
	memset(&sort, 0, sizeof sort);
	sort.lines = w->lines;
	if (w->one) sort.lines.rank = 0, sort.lines.count = 1;
	sort.from = w->index;
	sort.from_stride = w->index_stride;
	sort.n = w->n;
	sort.bits = w->bits;
	sort.size = w->size;
	sort.padding = w->padding;
	w->words = mpt__sort_run(call, &sort);
	w->word_step = w->one ? 0 : w->n;
	int lanes = 1;
	while (lanes < MPT__THREADS && lanes < w->lines.count) lanes *= 2;
	const long long tiles = (w->lines.count + lanes - 1) / lanes;
	const unsigned int down = (unsigned int)(tiles < 65535 ? tiles : 65535);
	const dim3 blocks(mpt__blocks(call, w->n * lanes), down);
	mpt__add_segments_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(*w, lanes);
}

mpt_status mpt__scatter_run(const mpt__cuda_call *call, int axis, long long padding) {
	mpt__scatter_add w = mpt__scatter_add_of(call, axis, padding);
	mpt__check_indices(call, 0, w.size);
	if (w.n == 0 || w.lines.count == 0 || w.size == 0) return MPT_OK;
	if (w.sorts) {
		mpt__scatter_sorted(call, &w);
		return MPT_OK;
	}
	const long long most = w.n < w.size ? w.n : w.size;
	const long long room = (long long)mpt__blocks(call, LLONG_MAX / 2) * MPT__THREADS;
	for (w.parts = 1; w.parts < most && w.parts < MPT__MOST_PARTS; w.parts *= 2)
		if (w.lines.count * w.parts >= room) break;
	if (w.one && w.lines.count >= MPT__WARP) {
		const long long bundles = (w.lines.count + MPT__WARP - 1) / MPT__WARP;
		const unsigned int blocks = mpt__blocks(call, bundles * w.parts * MPT__WARP);
		mpt__scatter_add_shared_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(w);
	} else {
		const unsigned int blocks = mpt__blocks(call, w.lines.count * w.parts);
		mpt__scatter_add_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(w);
	}
	return MPT_OK;
}

int64_t mpt__cuda_scatter_add_workspace(const mpt__launch *launch) {
	return mpt__scatter_workspace(launch, (int)launch->index[0]);
}

mpt_status mpt__cuda_scatter_add(const mpt__cuda_call *call) {
	return mpt__scatter_run(call, (int)call->launch->index[0], -1);
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

/* A line of elements is worked on by a group of threads: one, a warp, or a whole block. Which, and
   with it the tree of every sum, follows from the shapes and strides alone. */

#define MPT__LINE 1024	/* elements: longer lines get a block, shorter ones a warp */

/* The loop of a kernel whose groups take `count` lines. */
#define MPT__EACH_LINE(line, group, count) \
	for (long long line = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / (group); \
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

template <int GROUP> __device__ __forceinline__ float mpt__group_product(float x) {
	if (GROUP > MPT__WARP) {
		x = mpt__block_product(x);
	} else {
		for (int step = GROUP / 2; step > 0; step /= 2) x *= __shfl_xor_sync(MPT__ALL, x, step);
	}
	return x;
}

/* V neighbours, 8 or 1; eights of streamed dtypes only. */
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
	if (!mpt__is_streamed(array.dtype) || (uintptr_t)array.data % 16 != 0) return false;
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
	mpt__space kept, reduced;	/* the outputs; what each of them reduces */
	mpt__array in, out;			/* strides over `kept` */
	long long along[MPT_MAX_RANK];	/* strides of `in` over `reduced` */
	long long chunk, chunks;
	float *partial;	/* by rows [outputs, chunks], by columns [chunks, outputs] */
	float divisor;	/* of what goes to `out` */
	int function, by_columns;
};

__device__ __forceinline__ float mpt__combine(int function, float a, float b) {
	return function == MPT__FN_MAX ? mpt__larger(a, b) : function == MPT__FN_PROD ? a * b : a + b;
}

/* What a reduction of nothing gives. */
__device__ __forceinline__ float mpt__identity(int function) {
	return function == MPT__FN_MAX ? -INFINITY : function == MPT__FN_PROD ? 1.0f : 0.0f;
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
		float x[V], result = mpt__identity(r.function);
		for (long long i = begin + lane * V; i < rest; i += GROUP * V) {
			mpt__load_some<V>(r.in, base + mpt__locate(r.reduced, r.along, i), x);
			for (int half = V / 2; half > 0; half /= 2) {
				for (int k = 0; k < half; k++) x[k] = mpt__combine(r.function, x[k], x[k + half]);
			}
			result = mpt__combine(r.function, result, x[0]);
		}
		for (long long i = rest + lane; i < end; i += GROUP) {
			const long long at = base + mpt__locate(r.reduced, r.along, i);
			result = mpt__combine(r.function, result, mpt__load(r.in.data, r.in.dtype, at));
		}
		result = r.function == MPT__FN_MAX    ? mpt__group_max<GROUP>(result)
				 : r.function == MPT__FN_PROD ? mpt__group_product<GROUP>(result)
											  : mpt__group_sum<GROUP>(result);
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
		for (int k = 0; k < V; k++) result[k] = mpt__identity(r.function);
		for (long long i = begin; i < end; i += lines) {
			mpt__load_some<V>(r.in, base + mpt__locate(r.reduced, r.along, i), x);
			for (int k = 0; k < V; k++) result[k] = mpt__combine(r.function, result[k], x[k]);
		}
		__syncthreads();	/* `part` may still be read for the tile before */
		for (int k = 0; k < V; k++) part[threadIdx.x * V + k] = result[k];
		__syncthreads();
		for (int c = (int)threadIdx.x; c < tile_size && first + c < r.kept.count;
			 c += MPT__THREADS) {
			float total = part[c];
			for (int l = 1; l < lines; l++)
				total = mpt__combine(r.function, total, part[l * tile_size + c]);
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
	r->chunks = n > 0 ? (n + r->chunk - 1) / r->chunk : 1;	/* nothing to sum: the identity */
	r->function = launch->function;
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

/* ---- Sums of squares beyond fp32 ---- */

/* The sum, by a block, of an output's elements, or of the squares of what differs from *mean. */
__device__ double mpt__wide_sum(const mpt__reduction &r, long long output, const double *mean) {
	const long long base = mpt__locate(r.kept, r.in.stride, output);
	double sum = 0.0;
	for (long long i = threadIdx.x; i < r.reduced.count; i += MPT__THREADS) {
		const long long at = base + mpt__locate(r.reduced, r.along, i);
		const double x = (double)mpt__load(r.in.data, r.in.dtype, at);
		sum += mean != NULL ? (x - *mean) * (x - *mean) : x;
	}
	return mpt__block_sum(sum);
}

/* A thread for each output; those that fp32 does not hold are then for the whole block. */
__global__ void mpt__squares_kernel(const mpt__reduction r, const mpt__array means, double factor,
									int root) {
	__shared__ int lost[MPT__THREADS];
	for (long long first = (long long)blockIdx.x * MPT__THREADS; first < r.kept.count;
		 first += (long long)gridDim.x * MPT__THREADS) {
		const long long own = first + threadIdx.x;
		lost[threadIdx.x] = 0;
		if (own < r.kept.count) {
			const long long at = mpt__locate(r.kept, r.out.stride, own);
			const float sum = mpt__load(r.out.data, r.out.dtype, at);
			lost[threadIdx.x] = !(sum >= MPT__LEAST_SQUARES && sum < INFINITY);
			const float y = __fmul_rn(sum, (float)factor);
			if (!lost[threadIdx.x]) mpt__put(r.out, at, root ? sqrtf(y) : y);
		}
		__syncthreads();
		for (int k = 0; k < MPT__THREADS; k++) {
			if (!lost[k]) continue;
			double mean =
				means.data != NULL ? (double)mpt__load(means.data, means.dtype, first + k) : 0.0;
			if (isinf(mean) || isnan(mean)) {
				mean = mpt__wide_sum(r, first + k, NULL) / (double)r.reduced.count;
				if (threadIdx.x == 0) mpt__put(means, first + k, (float)mean);
			}
			const double y = mpt__wide_sum(r, first + k, &mean) * factor;
			if (threadIdx.x == 0)
				mpt__put(r.out, mpt__locate(r.kept, r.out.stride, first + k),
						 (float)(root ? sqrt(y) : y));
		}
		__syncthreads();
	}
}

mpt_status mpt__cuda_squares(const mpt__cuda_call *call) {
	mpt__reduction r;
	mpt__reduce_plan(call, &r);
	if (r.kept.count == 0) return MPT_OK;
	mpt__squares_kernel<<<mpt__blocks(call, r.kept.count), MPT__THREADS, 0, call->stream>>>(
		r, mpt__array_of(call, 2), call->launch->imm[0], call->launch->index[0] != 0);
	return MPT_OK;
}

/* The lines of [outer, n, inner]: their space, which the arrays' strides are over, and the strides
   of the arrays along a line. */
struct mpt__lines {
	mpt__space space;
	mpt__array array[3];
	long long n, along[3];
	int log;
};

/* The maximum of a line and the sum of exp(x - maximum) over it, in one pass: what a thread has is
   rescaled where its maximum grows. A NaN anywhere, and a line of nothing but -infinity, make the
   sum NaN. */
template <int GROUP, int V>
__device__ __forceinline__ float mpt__line_sum(const mpt__array &array, long long base,
											   long long stride,
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
			for (int k = 0; k < 8; k++) x[j + k] = -INFINITY;	/* adds nothing */
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
	const int axis = (int)call->launch->index[0];
	int64_t shape[MPT_MAX_RANK] = {0};
	mpt__array *arrays[3] = {&lines->array[0], &lines->array[1], &lines->array[2]};
	/* A thread adds up its line one by one, which is not for long ones. */
	bool eights = true, side_by_side = o.shape[axis] <= MPT__LINE;
	memset(lines, 0, sizeof *lines);
	lines->n = o.shape[axis];
	lines->log = call->launch->function == MPT__FN_LOG_SOFTMAX;
	for (int k = 0; k < operands; k++) {
		lines->array[k] = mpt__array_of(call, k);
		lines->along[k] = lines->array[k].stride[axis];
	}
	for (int d = 0; d < o.rank; d++) shape[d] = d == axis ? 1 : o.shape[d];
	lines->space = mpt__merge(o.rank, shape, arrays, operands);
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
	long long rows, classes, ignore, number;	/* number: of the launch */
	long long sample_rows;						/* of a sample that has more than one, else 0 */
	float smoothing;
	int reduction;	/* mpt_reduction */
	int from_logits;
	float *row_loss, *row_weight;	/* [rows] */
	mpt__scalar *scalars;
};

enum { MPT__IGNORED = -1, MPT__BAD = -2 };

/* The class of a sample, or one of the above. */
__device__ __forceinline__ long long mpt__class_of(const mpt__loss &loss, long long row) {
	const long long t = ((const long long *)loss.target.data)[row * loss.target.stride[0]];
	if (t == loss.ignore) return MPT__IGNORED;
	return t < 0 || t >= loss.classes ? (long long)MPT__BAD : t;
}

__device__ __forceinline__ float mpt__class_weight(const mpt__loss &loss, long long c) {
	if (loss.weight.data == NULL) return 1.0f;
	return mpt__load(loss.weight.data, loss.weight.dtype, c * loss.weight.stride[0]);
}

__device__ __forceinline__ float mpt__logit(const mpt__loss &loss, long long row, long long c) {
	return mpt__load(loss.x.data, loss.x.dtype, row * loss.x.stride[0] + c * loss.x.stride[1]);
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
	weight = mpt__block_sum(weight);	/* and a barrier, after which first_bad stands */
	if (threadIdx.x != 0) return;
	const float by = loss.reduction == MPT_MEAN ? weight : 1.0f;
	if (loss.reduction != MPT_NONE) mpt__put(loss.out, 0, sum / by);
	mpt__put(loss.divisor, 0, by);
	if (first_bad == ~0ull) return;
	const long long bad = (long long)first_bad, rows = loss.sample_rows;
	mpt__scalar value;
	value.i = ((const long long *)loss.target.data)[bad * loss.target.stride[0]];
	mpt__raise(loss.scalars, MPT_ERROR_INDEX, loss.number, rows > 0 ? bad / rows : bad,
			   rows > 0 ? bad % rows : -1, value, loss.classes);
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
	loss.sample_rows = launch->index[1];
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

/* ---- Pair losses ---- */

/* Operands 0 to 3, of which absent ones are 1; of the loss or its gradient, 4; of dx, 5. Strides
   are over `space`. */
struct mpt__pair {
	mpt__space space;
	mpt__array array[6];
	int function, by, sums;	/* by: the operand of the slope, -1: the loss; sums: of all elements */
	float p, r, divisor;
	float *partial;					/* sums of the blocks */
	unsigned long long *first_bad;	/* of probabilities, else NULL */
	mpt__scalar *scalars;
	long long number;	/* of the launch */
};

#define MPT__PAIR_EXP(x) expf(x)
#define MPT__PAIR_LOG(x) logf(x)
#define MPT__PAIR_SQRT(x) sqrtf(x)
#define MPT__PAIR_NONE(x) 0.0f

__device__ __forceinline__ float mpt__pair_of(const mpt__pair &w, float a, float b, float c,
											  float d) {
	const float s = a - b, p = w.p, r = w.r;
	switch (w.function) {
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) \
	case MPT__FN_##id: { \
		const float e = MPT__PAIR_##word1((float)(of1)); \
		const float l = MPT__PAIR_##word2((float)(of2)); \
		(void)e, (void)l; \
		if (w.by < 0) return (float)(value); \
		if (w.by == 0) return (float)(da); \
		return (float)(w.by == 1 ? (db) : (dc)); \
	}
		MPT__PAIRS(MPT__ROW)
#undef MPT__ROW
	default: return 0.0f;
	}
}

__device__ __forceinline__ float mpt__pair_in(const mpt__pair &w, int k, long long index) {
	const mpt__array &array = w.array[k];
	if (array.data == NULL) return 1.0f;
	return mpt__load(array.data, array.dtype, mpt__locate(w.space, array.stride, index));
}

__global__ void mpt__pair_kernel(const mpt__pair w) {
	const int out = w.by < 0 ? 4 : 5;
	float sum = 0.0f;
	MPT__EACH(i, w.space.count) {
		const float a = mpt__pair_in(w, 0, i), b = mpt__pair_in(w, 1, i);
		float x = mpt__pair_of(w, a, b, mpt__pair_in(w, 2, i), mpt__pair_in(w, 3, i));
		if (w.first_bad != NULL && (a < 0.0f || a > 1.0f)) 
			atomicMin(w.first_bad, (unsigned long long)i);
		if (w.by >= 0) x *= mpt__pair_in(w, 4, i) / w.divisor;
		sum += x;
		if (!w.sums) mpt__put(w.array[out], mpt__locate(w.space, w.array[out].stride, i), x);
	}
	if (!w.sums) return;
	sum = mpt__block_sum(sum);
	if (threadIdx.x == 0) w.partial[blockIdx.x] = sum;
}

/* By one block: the sum of the blocks, and the first element that is no probability. */
__global__ void mpt__pair_finish_kernel(const mpt__pair w, int blocks) {
	float sum = 0.0f;
	for (int i = (int)threadIdx.x; i < blocks; i += (int)blockDim.x) sum += w.partial[i];
	sum = mpt__block_sum(sum);
	if (threadIdx.x != 0) return;
	if (w.sums) mpt__put(w.array[4], 0, sum / w.divisor);
	if (w.first_bad == NULL || *w.first_bad == ~0ull) return;
	const long long bad = (long long)*w.first_bad;
	mpt__scalar value;
	value.f = (double)mpt__pair_in(w, 0, bad);
	mpt__raise(w.scalars, MPT_ERROR_NUMERIC, w.number, bad, -1, value, 0);
}

/* Of a sum: the tree of additions must not depend on the card. */
unsigned int mpt__pair_blocks(long long count) {
	const long long blocks = (count + 8 * MPT__THREADS - 1) / (8 * MPT__THREADS);
	return (unsigned int)(blocks < 1 ? 1 : blocks < 1024 ? blocks : 1024);
}

/* The first bad element, then the blocks' sums. */
int64_t mpt__cuda_pair_loss_workspace(const mpt__launch *launch) {
	const bool sums = launch->reduction != MPT_NONE;
	return 8 + (sums ? mpt__pair_blocks(mpt__numel(launch->operand[0])) : 0) *
				   (int64_t)sizeof(float);
}

mpt_status mpt__cuda_pair_loss(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const bool backward = launch->kernel == MPT__K_PAIR_LOSS_BACKWARD;
	mpt__array *arrays[6];
	mpt__pair w;
	memset(&w, 0, sizeof w);
	w.function = launch->function;
	w.by = backward ? (int)launch->index[0] : -1;
	w.sums = !backward && launch->reduction != MPT_NONE;
	w.p = (float)launch->imm[0];
	w.r = (float)launch->imm[1];
	w.divisor = launch->reduction != MPT_NONE ? (float)launch->imm[2] : 1.0f;
	w.scalars = call->scalars;
	w.number = launch->number;
	for (int k = 0; k < 6; k++) {
		arrays[k] = &w.array[k];
		if (k < launch->n_operands) w.array[k] = mpt__array_of(call, k);
	}
	w.space = mpt__space_of(call, 0, arrays, 6);
	if (!backward) {
		w.partial = (float *)call->workspace + 2;
		if (w.function == MPT__FN_BCE) w.first_bad = (unsigned long long *)call->workspace;
	}
	if (w.first_bad) cudaMemsetAsync(w.first_bad, 0xff, sizeof *w.first_bad, call->stream);
	if (w.space.count == 0 && !w.sums) return MPT_OK;
	const unsigned int blocks =
		w.sums ? mpt__pair_blocks(w.space.count) : mpt__blocks(call, w.space.count);
	mpt__pair_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(w);
	if (w.sums || w.first_bad) {
		const int sums = w.sums ? (int)blocks : 0;
		mpt__pair_finish_kernel<<<1, MPT__THREADS, 0, call->stream>>>(w, sums);
	}
	return MPT_OK;
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

/* ==== Images of another size: INTERPOLATE, INTERPOLATE_BACKWARD ==== */

struct mpt__resize {
	mpt__array from, to;
	long long count, channels, from_size[2], to_size[2];	/* count: of elements written */
	float step[2];
	int way, last;	/* threads go along channels */
};

struct mpt__pixels {
	long long first, second;
	float weight;	/* of the second */
};

/* Which of `size` elements, at most two, element `at` of the result is made of. */
__device__ __forceinline__ mpt__pixels mpt__pixels_of(const mpt__resize &w, int axis,
													  long long at, long long size) {
	float x = (float)at * w.step[axis];
	if (w.way == MPT__RESIZE_CENTERS) x = w.step[axis] * ((float)at + 0.5f) - 0.5f;
	if (!(x > 0)) x = 0;
	mpt__pixels p;
	p.first = (long long)x < size - 1 ? (long long)x : size - 1;
	p.second = w.way != MPT__RESIZE_NEAREST && p.first < size - 1 ? p.first + 1 : p.first;
	p.weight = p.second > p.first ? x - (float)p.first : 0.0f;
	return p;
}

/* Where element i of [N, C, rows, columns], or of [N, rows, columns, C], is: its row and column, and
   its plane in an array. */
struct mpt__pixel {
	long long row, column, sample, channel;
};

__device__ __forceinline__ mpt__pixel mpt__pixel_of(const mpt__resize &w, const long long *size,
													long long i) {
	mpt__pixel p;
	if (w.last) p.channel = i % w.channels, i /= w.channels;
	p.column = i % size[1], i /= size[1];
	p.row = i % size[0], i /= size[0];
	if (!w.last) p.channel = i % w.channels, i /= w.channels;
	p.sample = i;
	return p;
}

__device__ __forceinline__ long long mpt__pixel_at(const mpt__array &array, const mpt__pixel &p,
												   long long row, long long column) {
	return p.sample * array.stride[0] + p.channel * array.stride[1] + row * array.stride[2] +
		   column * array.stride[3];
}

__global__ void mpt__interpolate_kernel(const mpt__resize w) {
	MPT__EACH(i, w.count) {
		const mpt__pixel p = mpt__pixel_of(w, w.to_size, i);
		const mpt__pixels y = mpt__pixels_of(w, 0, p.row, w.from_size[0]);
		const mpt__pixels x = mpt__pixels_of(w, 1, p.column, w.from_size[1]);
		float line[2];
		for (int k = 0; k < 2; k++) {
			const long long row = k == 0 ? y.first : y.second;
			line[k] = mpt__load(w.from.data, w.from.dtype, mpt__pixel_at(w.from, p, row, x.first));
			if (x.weight != 0)
				line[k] = (1 - x.weight) * line[k] +
						  x.weight * mpt__load(w.from.data, w.from.dtype,
											   mpt__pixel_at(w.from, p, row, x.second));
		}
		const float z = y.weight != 0 ? (1 - y.weight) * line[0] + y.weight * line[1] : line[0];
		mpt__put(w.to, mpt__pixel_at(w.to, p, p.row, p.column), z);
	}
}

/* The first of `count` results that element `at`, or one after it, has a share in. */
__device__ long long mpt__first_share(const mpt__resize &w, int axis, long long at, long long size,
									  long long count) {
	long long low = 0, high = count;
	while (low < high) {
		const long long half = low + (high - low) / 2;
		if (mpt__pixels_of(w, axis, half, size).second < at)
			low = half + 1;
		else
			high = half;
	}
	return low;
}

__device__ __forceinline__ float mpt__share(const mpt__pixels &p, long long at) {
	return (p.first == at ? 1 - p.weight : 0.0f) +
		   (p.second == at && p.second > p.first ? p.weight : 0.0f);
}

/* A thread for an element before, which sums its shares in the order of the results. */
__global__ void mpt__interpolate_backward_kernel(const mpt__resize w) {
	MPT__EACH(i, w.count) {
		const mpt__pixel p = mpt__pixel_of(w, w.to_size, i);
		const long long rows = w.from_size[0], columns = w.from_size[1];
		const long long left = mpt__first_share(w, 1, p.column, w.to_size[1], columns);
		float sum = 0;
		for (long long y = mpt__first_share(w, 0, p.row, w.to_size[0], rows); y < rows; y++) {
			const mpt__pixels row = mpt__pixels_of(w, 0, y, w.to_size[0]);
			if (row.first > p.row) break;
			const float share = mpt__share(row, p.row);
			for (long long x = left; x < columns; x++) {
				const mpt__pixels column = mpt__pixels_of(w, 1, x, w.to_size[1]);
				if (column.first > p.column) break;
				sum += mpt__share(column, p.column) *
					   (share * mpt__load(w.from.data, w.from.dtype, mpt__pixel_at(w.from, p, y, x)));
			}
		}
		mpt__put(w.to, mpt__pixel_at(w.to, p, p.row, p.column), sum);
	}
}

mpt_status mpt__cuda_interpolate(const mpt__cuda_call *call) {
	const mpt__operand *o = call->launch->operand;
	mpt__resize w;
	memset(&w, 0, sizeof w);
	w.from = mpt__array_of(call, 0);
	w.to = mpt__array_of(call, 1);
	w.channels = o[0].shape[1];
	w.count = 1;
	for (int d = 0; d < 4; d++) w.count *= o[1].shape[d];
	for (int i = 0; i < 2; i++) {
		w.from_size[i] = o[0].shape[2 + i];
		w.to_size[i] = o[1].shape[2 + i];
		w.step[i] = (float)call->launch->imm[i];
	}
	w.way = (int)call->launch->index[0];
	w.last = w.to.stride[1] == 1;
	if (w.count == 0) return MPT_OK;
	if (call->launch->kernel == MPT__K_INTERPOLATE) {
		mpt__interpolate_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
	} else {
		mpt__interpolate_backward_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0,
										   call->stream>>>(w);
	}
	return MPT_OK;
}

/* ==== Matrix products: GEMM ====
 *
 * cuBLASLt computes them, with bias and ReLU or GELU in its epilogue where it can. Operands that it
 * cannot read (another dtype, no contiguous dimension) are packed into workspace first; what it
 * cannot finish goes through an fp32 sum in workspace and a kernel of ours. A product that cuBLASLt
 * refuses is done by a plain kernel of ours. */

#define MPT__TILE 32			/* rows and columns of what a block of the plain kernel computes */
#define MPT__CANDIDATES 16		/* algorithms of a product that benchmark mode times */
#define MPT__PRODUCT_CALLS 64	/* for one launch; packing makes them fewer */
#ifndef MPT__SUM_BYTES			/* a test cuts smaller pieces */
#define MPT__SUM_BYTES (32 << 20)	/* of fp32 sums at a time, which stay in L2 */
#endif

/* ---- Device code ---- */

/* x as an operand of a product in that dtype. */
__device__ __forceinline__ float mpt__rounded(float x, int compute_dtype) {
	if (compute_dtype == MPT_F16) return __half2float(__float2half_rn(x));
	if (compute_dtype == MPT_BF16) return __bfloat162float(__float2bfloat16_rn(x));
	return x;
}

/* By mpt_activation. */
const uint8_t mpt__activations[] = {MPT__FN_NONE,      MPT__FN_RELU, MPT__FN_GELU,
									MPT__FN_GELU_TANH, MPT__FN_TANH, MPT__FN_SIGMOID};

/* Copies into workspace: contiguous, of another dtype, rounded to the compute dtype on the way. */
struct mpt__packs {
	mpt__walk of[3];
	int compute_dtype;
};

template <int N>
__device__ __forceinline__ void mpt__pack_at(const mpt__walk &walk, int compute_dtype,
											 long long index) {
	long long at[2];
	float x[N];
	mpt__locate_in<2>(walk, index, at);
	mpt__take<N>(walk, 0, at[0], x);
	for (int i = 0; i < N; i++) x[i] = mpt__rounded(x[i], compute_dtype);
	mpt__give<N>(walk, 1, at[1], x);
}

__global__ void mpt__pack_kernel(const __grid_constant__ mpt__packs packs) {
	const mpt__walk &walk = packs.of[blockIdx.y];
	const long long done = 8 * walk.eights;
	MPT__EACH(i, walk.eights) mpt__pack_at<8>(walk, packs.compute_dtype, 8 * i);
	MPT__EACH(i, walk.space.count - done) mpt__pack_at<1>(walk, packs.compute_dtype, done + i);
}

/* The rest of a product of which cuBLASLt left the plain sums; a walk over sums, bias (or NULL) and
   output. */
template <int N>
__device__ __forceinline__ void mpt__finish_at(const mpt__walk &walk, int compute_dtype,
											   int function, long long index) {
	long long at[3];
	float x[N], bias[N];
	mpt__locate_in<3>(walk, index, at);
	mpt__take<N>(walk, 0, at[0], x);
	if (walk.array[1].data != NULL) {
		mpt__take<N>(walk, 1, at[1], bias);
		for (int i = 0; i < N; i++) x[i] += mpt__rounded(bias[i], compute_dtype);
	}
	mpt__unary_of<N>(function, x, 0, 0);
	mpt__give<N>(walk, 2, at[2], x);
}

__global__ void mpt__finish_kernel(const __grid_constant__ mpt__walk walk, int compute_dtype,
								   int function) {
	const long long done = 8 * walk.eights;
	MPT__EACH(i, walk.eights) mpt__finish_at<8>(walk, compute_dtype, function, 8 * i);
	MPT__EACH(i, walk.space.count - done)
	mpt__finish_at<1>(walk, compute_dtype, function, done + i);
}

/* What the plain kernel computes; strides as in the launch. */
struct mpt__plain {
	mpt__array a, b, bias, out;
	mpt__space batches;
	int rank, compute_dtype, function;
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
			float value[1] = {p.alpha * sum[r]};
			if (p.bias.data != NULL) {
				const long long from = mpt__locate(p.batches, p.bias.stride, batch) +
									   row * p.bias.stride[rank - 2] +
									   column * p.bias.stride[rank - 1];
				value[0] +=
					mpt__rounded(mpt__load(p.bias.data, p.bias.dtype, from), p.compute_dtype);
			}
			mpt__unary_of<1>(p.function, value, 0, 0);
			mpt__put(p.out,
					 mpt__locate(p.batches, p.out.stride, batch) + row * p.out.stride[rank - 2] +
						 column * p.out.stride[rank - 1],
					 value[0]);
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
	p.function = mpt__activations[launch->activation];
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
	long long batch[MPT_MAX_RANK];	/* strides of the batch dimensions of the launch */
	int contiguous;					/* which of the two has stride 1 */
	long long at;					/* where in the workspace it is packed; -1: it is not */
};

enum { MPT__SIDE_A, MPT__SIDE_B, MPT__SIDE_OUT, MPT__SIDES };

/* `side` is in the order of the launch's operands 0, 1 and 3. */
struct mpt__product {
	mpt__side side[MPT__SIDES];
	mpt__space loop;				/* batches that could not be merged: a call for each */
	mpt__array along[MPT__SIDES];	/* their strides */
	long long batch, batch_stride[MPT__SIDES];	/* of a call */
	bool finish;			/* cuBLASLt leaves sums that finish_kernel makes the output from */
	bool bias;				/* in the epilogue */
	long long bias_at;		/* as mpt__side.at */
	long long workspace;	/* bytes */
};

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
	const long long bytes = elements * (long long)mpt__bytes_of(dtype);
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

/* Whether the epilogue has the activation. Its GELU is the tanh form, with an error that nobody
   documents: good for halves, not for fp32. */
bool mpt__activation_fits(const mpt__launch *launch) {
	const int activation = launch->activation;
	return activation <= MPT_ACTIVATION_RELU ||
		   (activation == MPT_ACTIVATION_GELU_TANH && launch->operand[3].dtype != MPT_F32);
}

/* The epilogue, and where the bias of it lies. */
void mpt__product_end(mpt__product *product, const mpt__launch *launch, bool out_fits) {
	const mpt__operand &bias = launch->operand[2], &out = launch->operand[3];
	const int compute = launch->compute_dtype;
	product->bias = bias.storage != 0;
	product->bias_at = -1;
	product->finish = !out_fits || !mpt__activation_fits(launch) ||
					  (product->bias && !mpt__bias_fits(launch));
	if (product->finish) {
		product->bias = false;
		mpt__product_pack(product, MPT__SIDE_OUT, MPT_F32, out);
	}
	if (!product->bias) return;
	const long long n = bias.shape[bias.rank - 1], bytes = (long long)mpt__bytes_of(bias.dtype);
	const bool as_is = bias.dtype == out.dtype && (compute == MPT_F32 || compute == bias.dtype) &&
					   (n == 1 || bias.stride[bias.rank - 1] == 1) && bias.offset * bytes % 16 == 0;
	if (!as_is) product->bias_at = mpt__product_reserve(product, n, out.dtype);
}

/* Batches that share B are more rows of A. */
void mpt__product_fold(mpt__product *product) {
	const int last = product->loop.rank - 1;
	mpt__side folded[MPT__SIDES];
	memcpy(folded, product->side, sizeof folded);
	for (int s = 0; s < MPT__SIDES; s++) {
		mpt__side *side = &folded[s];
		const long long step = last < 0 ? -1 : product->along[s].stride[last];
		if (s == MPT__SIDE_B && step != 0) return;
		if (s == MPT__SIDE_B) continue;
		if (side->size[0] == 1) side->stride[0] = step;
		if (last < 0 || step != side->size[0] * side->stride[0]) return;
		side->size[0] *= product->loop.shape[last];
		if (!mpt__side_fits(side) || (s == MPT__SIDE_OUT && side->contiguous == 0)) return;
	}
	memcpy(product->side, folded, sizeof folded);
	product->loop.rank--;
}

/* Merges the batch dimensions; the largest of what is left goes into each call. */
void mpt__product_batch(mpt__product *product, const mpt__operand &out) {
	mpt__space *loop = &product->loop;
	mpt__array *along[MPT__SIDES];
	int largest = 0;
	for (int s = 0; s < MPT__SIDES; s++) {
		along[s] = &product->along[s];
		memcpy(along[s]->stride, product->side[s].batch, sizeof along[s]->stride);
	}
	*loop = mpt__merge(out.rank - 2, out.shape, along, MPT__SIDES);
	mpt__product_fold(product);
	for (int d = 1; d < loop->rank; d++) {
		if (loop->shape[d] > loop->shape[largest]) largest = d;
	}
	product->batch = loop->rank > 0 ? loop->shape[largest] : 1;
	for (int s = 0; s < MPT__SIDES; s++)
		product->batch_stride[s] = loop->rank > 0 ? along[s]->stride[largest] : 0;
	loop->count = 1;
	for (int d = 0, to = 0; d < loop->rank; d++) {
		if (d == largest) continue;
		loop->count *= loop->shape[d];
		loop->shape[to] = loop->shape[d];
		for (int s = 0; s < MPT__SIDES; s++) along[s]->stride[to] = along[s]->stride[d];
		to++;
	}
	if (loop->rank > 0) loop->rank--;
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
	return product.loop.count <= MPT__PRODUCT_CALLS ? product : mpt__product_laid_out(launch, true);
}
/* ---- Plans: what cuBLASLt needs for a product, made once per kind of product ---- */

/* MPT__PLAN_FIELDS(F): F(ID, "name"), what makes two products the same. */
#define MPT__PLAN_FIELDS(F) \
	F(M, "m") \
	F(N, "n") \
	F(K, "k") \
	F(BATCH, "batch") \
	F(DTYPE, "dtype") \
	F(DTYPE_OUT, "dtype_out") \
	F(TF32, "tf32") \
	F(EPILOGUE, "epilogue") \
	F(ADD, "add") \
	F(CONTIGUOUS_A, "a_by_k") \
	F(CONTIGUOUS_B, "b_by_k") \
	F(PITCH_A, "a_pitch") \
	F(PITCH_B, "b_pitch") \
	F(PITCH_OUT, "out_pitch") \
	F(STEP_A, "a_step") \
	F(STEP_B, "b_step") \
	F(STEP_OUT, "out_step") \
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
	cublasLtMatmulDesc_t operation;	/* NULL: only read from a file so far */
	cublasLtMatrixLayout_t layout[MPT__SIDES];
	cublasLtMatmulAlgo_t algorithm;
	bool taken;									/* an entry of the table */
	bool usable;								/* cuBLASLt has an algorithm */
	bool pinned;								/* chosen by time, now or when the file was written */
	long long nanoseconds, nanoseconds_first;	/* of the choice, and of the first candidate */
};

struct mpt__cuda_products {
	mpt__cuda *cuda;
	cublasLtHandle_t handle;
	cublasLtMatmulPreference_t preference;
	void *workspace;	/* of cuBLASLt */
	size_t workspace_bytes;
	bool tf32;	/* fp32 products may round their operands to TF32 */
	cudaEvent_t begin, end;
	mpt__plan *plans;	/* a hash table, at most half full */
	long long capacity, count;
	unsigned int said;	/* a bit for each dtype of which a refusal was logged */
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
cublasStatus_t mpt__plan_describe(mpt__plan *plan) {
	const long long *f = plan->field;
	const long long outer[] = {f[MPT__PLAN_M], f[MPT__PLAN_N], f[MPT__PLAN_M]};
	const long long inner[] = {f[MPT__PLAN_K], f[MPT__PLAN_K], f[MPT__PLAN_N]};
	const bool by_inner[] = {f[MPT__PLAN_CONTIGUOUS_A] != 0, f[MPT__PLAN_CONTIGUOUS_B] != 0, true};
	const cudaDataType_t dtype = mpt__cuda_dtype(f[MPT__PLAN_DTYPE]);
	const cudaDataType_t dtype_out = mpt__cuda_dtype(f[MPT__PLAN_DTYPE_OUT]);
	const int batch = (int)f[MPT__PLAN_BATCH];
	if (batch != f[MPT__PLAN_BATCH]) return CUBLAS_STATUS_NOT_SUPPORTED;
	const cublasComputeType_t compute =
		f[MPT__PLAN_TF32] ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
	cublasStatus_t failed = cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F);
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
		if (!failed)
			failed = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
													  &batch, sizeof batch);
		if (!failed)
			failed = cublasLtMatrixLayoutSetAttribute(
				*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
	}
	return failed;
}

/* What mpt__plan_describe made, or began to. */
void mpt__plan_forget(mpt__plan *plan) {
	for (int s = 0; s < MPT__SIDES; s++) {
		if (plan->layout[s] != NULL) cublasLtMatrixLayoutDestroy(plan->layout[s]);
		plan->layout[s] = NULL;
	}
	if (plan->operation != NULL) cublasLtMatmulDescDestroy(plan->operation);
	plan->operation = NULL;
}

cublasStatus_t mpt__plan_set_bias(const mpt__plan *plan, const void *bias) {
	if (bias == NULL) return CUBLAS_STATUS_SUCCESS;
	return cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
										  sizeof bias);
}

cublasStatus_t mpt__plan_run(const mpt__cuda_products *products, const mpt__plan *plan,
							 const cublasLtMatmulAlgo_t *algorithm, const mpt__plan_call *call) {
	const cublasLtMatrixLayout_t *layout = plan->layout;
	const cublasStatus_t status = mpt__plan_set_bias(plan, call->bias);
	if (status != CUBLAS_STATUS_SUCCESS) return status;
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
	const size_t bytes = (size_t)elements * mpt__bytes_of((int)f[MPT__PLAN_DTYPE_OUT]);
	mpt__plan_call trial = *call;
	float best = INFINITY;
	plan->pinned = true;
	if (cudaMalloc(&trial.out, bytes) != cudaSuccess) {
		cudaGetLastError();	/* which is not sticky */
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
	mpt__cuda_note(products->cuda, cudaFree(trial.out), "giving memory of a trial back");
	cudaGetLastError();	/* what a candidate failed with is not the launch's */
	plan->nanoseconds = (long long)fminf(best, 1e15f);
}

/* Finds an algorithm: the first that the heuristic names or, where `timed`, the fastest. */
cublasStatus_t mpt__plan_choose(mpt__cuda_products *products, mpt__plan *plan, bool timed,
								const mpt__plan_call *call) {
	static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	const uint32_t bytes = (uint32_t)plan->field[MPT__PLAN_ALIGNED];
	cublasLtMatmulHeuristicResult_t found[MPT__CANDIDATES];
	int n = 0;
	cublasStatus_t status = mpt__plan_set_bias(plan, call->bias);
	for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++) {
		status = cublasLtMatmulPreferenceSetAttribute(products->preference, alignment[i], &bytes,
													  sizeof bytes);
	}
	if (status != CUBLAS_STATUS_SUCCESS) return status;
	const cublasLtMatrixLayout_t *layout = plan->layout;
	status = cublasLtMatmulAlgoGetHeuristic(
		products->handle, plan->operation, layout[MPT__SIDE_B], layout[MPT__SIDE_A],
		layout[MPT__SIDE_OUT], layout[MPT__SIDE_OUT], products->preference,
		timed ? MPT__CANDIDATES : 1, found, &n);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = n > 0 ? found[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
	if (status != CUBLAS_STATUS_SUCCESS) return status;
	plan->algorithm = found[0].algo;
	if (timed) mpt__plan_pin(products, plan, found, n, call);
	return status;
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

/* Makes of the plan what is missing to run it. Nothing is timed while the stream is captured: that
   is made up for at the next call outside. */
cublasStatus_t mpt__plan_ready(mpt__cuda_products *products, mpt__plan *plan,
							   const mpt__plan_call *call) {
	const bool made = plan->operation != NULL, timed = products->cuda->benchmark;
	cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
	if (!made) {
		status = mpt__plan_describe(plan);
		plan->usable = status == CUBLAS_STATUS_SUCCESS;
		plan->pinned = plan->usable && plan->pinned && mpt__plan_check(products, plan);
	}
	if (!plan->usable || plan->pinned) return status;
	if (made && (!timed || products->cuda->capturing)) return status;
	status = mpt__plan_choose(products, plan, timed && !products->cuda->capturing, call);
	if (made) return CUBLAS_STATUS_SUCCESS;	/* it keeps what it had */
	plan->usable = status == CUBLAS_STATUS_SUCCESS;
	return status;
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
	const int activation = product->finish ? 0 : call->launch->activation;
	int epilogue = activation == MPT_ACTIVATION_RELU        ? CUBLASLT_EPILOGUE_RELU
				   : activation == MPT_ACTIVATION_GELU_TANH ? CUBLASLT_EPILOGUE_GELU
															: 0;
	if (product->bias) epilogue |= CUBLASLT_EPILOGUE_BIAS;
	if (epilogue == 0) epilogue = CUBLASLT_EPILOGUE_DEFAULT;
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
		const uint64_t bytes = mpt__bytes_of(side[s].dtype);
		addresses |= (uint64_t)(uintptr_t)mpt__product_data(call, product, s);
		if (product->batch > 1) addresses |= (uint64_t)product->batch_stride[s] * bytes;
		for (int d = 0; d < product->loop.rank; d++)
			addresses |= (uint64_t)product->along[s].stride[d] * bytes;
		field[MPT__PLAN_PITCH_A + s] = side[s].stride[!side[s].contiguous];
		field[MPT__PLAN_STEP_A + s] = product->batch > 1 ? product->batch_stride[s] : 0;
	}
	field[MPT__PLAN_ALIGNED] = (long long)(addresses & (~addresses + 1));
}

/* A copy of those dimensions of an operand to `at` in the workspace. */
mpt__walk mpt__pack_of(const mpt__cuda_call *call, int position, long long at, int dtype, int rank,
					   const int64_t *shape, const long long *stride) {
	mpt__array array[2];
	long long step = 1;
	array[0] = array[1] = mpt__array_of(call, position);
	array[1].data = (char *)call->workspace + at;
	array[1].dtype = dtype;
	for (int d = rank - 1; d >= 0; d--) {
		array[0].stride[d] = stride[d];
		array[1].stride[d] = step;
		step *= shape[d];
	}
	return mpt__walk_of(rank, shape, array, 2);
}

mpt__walk mpt__pack_side(const mpt__cuda_call *call, const mpt__side *side, int s) {
	const mpt__operand &out = call->launch->operand[3];
	const mpt__side from = mpt__side_of(call->launch->operand[s], out.rank - 1 - s);
	int64_t shape[MPT_MAX_RANK];
	long long stride[MPT_MAX_RANK];
	int rank = 0;
	for (int d = 0; d < out.rank - 2; d++) {
		if (from.batch[d] == 0) continue;	/* broadcast: once */
		shape[rank] = out.shape[d], stride[rank] = from.batch[d];
		rank++;
	}
	for (int i = 0; i < 2; i++) {
		const int d = i == 1 ? side->contiguous : !side->contiguous;
		shape[rank] = from.size[d], stride[rank] = from.stride[d];
		rank++;
	}
	return mpt__pack_of(call, s, side->at, side->dtype, rank, shape, stride);
}

/* The copies that the product needs, in one launch. */
void mpt__product_copies(const mpt__cuda_call *call, const mpt__product *product) {
	const mpt__operand &bias = call->launch->operand[2];
	mpt__packs packs;
	unsigned int n = 0, blocks = 1;
	memset(&packs, 0, sizeof packs);
	packs.compute_dtype = call->launch->compute_dtype;
	for (int s = 0; s < MPT__SIDE_OUT; s++) {
		if (product->side[s].at >= 0) packs.of[n++] = mpt__pack_side(call, &product->side[s], s);
	}
	if (product->bias && product->bias_at >= 0) {
		const long long stride = bias.stride[bias.rank - 1];
		packs.of[n++] = mpt__pack_of(call, 2, product->bias_at, call->launch->operand[3].dtype, 1,
									 &bias.shape[bias.rank - 1], &stride);
	}
	for (unsigned int i = 0; i < n; i++) {
		const unsigned int need = mpt__walk_blocks(call, packs.of[i]);
		if (need > blocks) blocks = need;
	}
	if (n > 0) mpt__pack_kernel<<<dim3(blocks, n), MPT__THREADS, 0, call->stream>>>(packs);
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

/* One call of the plan for each batch that could not be merged. */
cublasStatus_t mpt__product_run(const mpt__cuda_call *call, const mpt__product *product,
								const mpt__plan *plan, const mpt__plan_call *first) {
	const mpt__space &loop = product->loop;
	for (long long i = 0; i < loop.count; i++) {
		long long at[MPT__SIDES];
		for (int s = 0; s < MPT__SIDES; s++) {
			at[s] = 0;
			for (long long d = loop.rank - 1, rest = i; d >= 0; rest /= loop.shape[d--])
				at[s] += rest % loop.shape[d] * product->along[s].stride[d];
			at[s] *= (long long)mpt__bytes_of(product->side[s].dtype);
		}
		mpt__plan_call run = *first;
		run.a = (const char *)run.a + at[MPT__SIDE_A];
		run.b = (const char *)run.b + at[MPT__SIDE_B];
		run.out = (char *)run.out + at[MPT__SIDE_OUT];
		const cublasStatus_t status =
			mpt__plan_run(call->cuda->products, plan, &plan->algorithm, &run);
		if (status != CUBLAS_STATUS_SUCCESS) return status;
	}
	return CUBLAS_STATUS_SUCCESS;
}

/* The product for a message. */
void mpt__product_name(const mpt__launch *launch, char *text, size_t size) {
	const mpt__operand &a = launch->operand[0], &out = launch->operand[3];
	const int dtype = mpt__product_dtype(launch);
	long long batch = 1;
	for (int d = 0; d < out.rank - 2; d++) batch *= out.shape[d];
	snprintf(text, size, "%s product of %lld x [%lld, %lld] and [%lld, %lld]",
			 dtype == MPT_F16 ? "float16" : dtype == MPT_BF16 ? "bfloat16" : "float32", batch,
			 (long long)out.shape[out.rank - 2], (long long)a.shape[a.rank - 1],
			 (long long)a.shape[a.rank - 1], (long long)out.shape[out.rank - 1]);
}

/* What cuBLASLt has no way for is done by the plain kernel, as long as the plan lives. That is slow,
   which is said once for each dtype. */
mpt_status mpt__product_refused(const mpt__cuda_call *call, mpt__plan *plan,
								cublasStatus_t status) {
	mpt__cuda *cuda = call->cuda;
	const unsigned int dtype = 1u << mpt__product_dtype(call->launch);
	char name[128], text[320];
	plan->usable = plan->pinned = false;
	if (cuda->products->said & dtype) return mpt__product_plain(call);
	cuda->products->said |= dtype;
	mpt__product_name(call->launch, name, sizeof name);
	snprintf(text, sizeof text,
			 "cuBLASLt refused a %s on compute capability %d.%d (%s): a plain kernel computes it "
			 "and others like it, many times slower",
			 name, cuda->capability / 10, cuda->capability % 10, cublasLtGetStatusName(status));
	mpt__cuda_warn(cuda, text);
	return mpt__product_plain(call);
}

/* Any other failure is none of the product: the next launch tries again. */
mpt_status mpt__product_failed(const mpt__cuda_call *call, mpt__plan *plan, cublasStatus_t status) {
	const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
	const cudaError_t error = cudaPeekAtLastError();
	char name[128], text[240];
	if (!plan->usable) mpt__plan_forget(plan);
	mpt__product_name(call->launch, name, sizeof name);
	snprintf(text, sizeof text, "%s: cuBLASLt: %s", name, cublasLtGetStatusName(status));
	if (error != cudaSuccess) return mpt__cuda_check(call->cuda, error, text);
	return mpt__cuda_refuse(call->cuda, memory ? MPT_ERROR_MEMORY : MPT_ERROR_DEVICE, "gemm", text);
}

/* The output from the sums in workspace, which lie in the order of its elements. */
void mpt__product_finish(const mpt__cuda_call *call, void *sums) {
	const mpt__launch *launch = call->launch;
	const mpt__operand &out = launch->operand[3];
	mpt__array array[3];
	long long step = 1;
	for (int i = 0; i < 3; i++) array[i] = mpt__array_of(call, i == 0 ? 3 : i + 1);
	array[0].data = sums;
	array[0].dtype = MPT_F32;
	for (int d = out.rank - 1; d >= 0; d--) {
		array[0].stride[d] = step;
		step *= out.shape[d];
	}
	const mpt__walk walk = mpt__walk_of(out.rank, out.shape, array, 3);
	mpt__finish_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(
		walk, launch->compute_dtype, mpt__activations[launch->activation]);
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
	mpt__plan *plan = mpt__plan_enter(call->cuda->products, field);
	if (plan == NULL)
		return mpt__cuda_refuse(call->cuda, MPT_ERROR_MEMORY, "gemm", "no memory for its plan");
	if (plan->operation != NULL && !plan->usable) return mpt__product_plain(call);
	cublasStatus_t status = mpt__plan_ready(call->cuda->products, plan, &run);
	/* Every call of a plan does the same, so that only the first can be refused. */
	if (status == CUBLAS_STATUS_SUCCESS) status = mpt__product_run(call, &product, plan, &run);
	switch (status) {
	case CUBLAS_STATUS_SUCCESS:
		if (product.finish) mpt__product_finish(call, run.out);
		return MPT_OK;
	case CUBLAS_STATUS_NOT_SUPPORTED:
	case CUBLAS_STATUS_INVALID_VALUE:
	case CUBLAS_STATUS_ARCH_MISMATCH: return mpt__product_refused(call, plan, status);
	default: return mpt__product_failed(call, plan, status);
	}
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
			const long long bytes = (long long)mpt__bytes_of(operand.dtype);
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

/* The functions of the backend, whose contract is theirs. */
void mpt__cuda_benchmark(void *self, bool benchmark, bool tf32) {
	mpt__cuda *cuda = (mpt__cuda *)self;
	cuda->benchmark = benchmark;
	cuda->products->tf32 = tf32;
}

size_t mpt__cuda_benchmark_text(void *self, char *text, size_t capacity) {
	const mpt__cuda_products *products = ((mpt__cuda *)self)->products;
	mpt__text to = {text, capacity, 0};
	mpt__products_title(products, &to);
	for (long long i = 0; i < products->capacity; i++) {
		if (products->plans[i].taken) mpt__plan_print(&products->plans[i], &to);
	}
	return to.length;
}

mpt_status mpt__cuda_benchmark_read(void *self, const char *text) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	char title[512];
	mpt__text own = {title, sizeof title, 0};
	if (!cuda) return MPT_ERROR_DEVICE;
	mpt__products_title(cuda->products, &own);
	if (strncmp(text, title, strlen(title)) != 0) {
		return mpt__cuda_refuse(cuda, MPT_ERROR_UNSUPPORTED, "benchmark results ignored",
								"they are from another card, driver or cuBLASLt");
	}
	for (text = strchr(text, '\n') + 1; *text != 0; text = strchr(text, '\n') + 1) {
		mpt__plan read;
		if (!mpt__plan_read(text, &read)) {
			return mpt__cuda_refuse(cuda, MPT_ERROR_FORMAT, "benchmark results",
									"a line is not as mptrain writes it");
		}
		if (!read.pinned) continue;
		mpt__plan *plan = mpt__plan_enter(cuda->products, read.field);
		if (plan == NULL) {
			return mpt__cuda_refuse(cuda, MPT_ERROR_MEMORY, "benchmark results",
									"no memory for them");
		}
		if (!plan->pinned) mpt__plan_adopt(cuda->products, plan, &read);
	}
	return MPT_OK;
}

/* ---- Making and ending ---- */

void mpt__cuda_products_destroy(mpt__cuda_products *products) {
	if (products == NULL) return;
	for (long long i = 0; i < products->capacity; i++) mpt__plan_forget(&products->plans[i]);
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

/* The segments of a launch, cut into chunks of `size` elements that are numbered through. How many
   chunks there are stands in device memory; the host knows that they are not more than `most`. */
struct mpt__segments {
	const long long *rows;
	long long count, size, most;
};

/* The chunk that a block has under way. */
struct mpt__chunk {
	long long segment, before;	/* chunks of earlier segments */
	long long first, count;		/* elements */
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
	int aligned;
	int norm;	/* mpt__norm */
	float limit;
	mpt__segments segments;
	mpt__slots slot;
	mpt__scalar *scalars;
	mpt__norm_part *part;	/* [segments.most] */
	unsigned int *ticket;
};

mpt__gradients mpt__gradients_of(const mpt__cuda_call *call) {
	mpt__gradients g;
	memset(&g, 0, sizeof g);
	g.data = (float *)call->data[0];
	g.aligned = (uintptr_t)g.data % 16 == 0;
	g.norm = (int)call->launch->index[1];
	g.limit = (float)call->launch->imm[0];
	g.segments = mpt__segments_of(call->launch, 1, call->data[1]);
	g.slot = mpt__slots_of(call->launch);
	g.scalars = call->scalars;
	g.part = (mpt__norm_part *)call->workspace;
	g.ticket = call->cuda->ticket;
	return g;
}

/* 1 / scale where a loss scale is given. */
__device__ __forceinline__ float mpt__norm_multiplier(const mpt__gradients &g) {
	if (g.slot.at[3] != 0) return (float)(1 / g.scalars[g.slot.at[3]].f);
	return mpt__factor(g.scalars, g.slot.at[0]);
}

template <int NORM, int N>
__device__ __forceinline__ void mpt__add_squares(const mpt__gradients &g, float multiplier,
												 long long at, mpt__norm_part &part) {
	float x[N];
	mpt__read<N>(g.data, MPT_F32, at, x);
	for (int i = 0; i < N; i++) {
		const float product = x[i] * multiplier;	/* infinity times 0 is NaN */
		if (!mpt__is_finite(product)) part.nonfinite = 1;
		if (g.slot.at[2] == 0) continue;
		if (NORM == MPT__NORM_2)
			part.squares += (double)product * (double)product;
		else if (NORM == MPT__NORM_1)
			part.squares += (double)fabsf(product);
		else
			part.squares = (double)mpt__larger((float)part.squares, fabsf(product));
	}
}

/* The sum of all threads' squares, or their maximum, which is a float's. */
__device__ __forceinline__ double mpt__join_norms(const mpt__gradients &g, double x) {
	return g.norm == MPT__NORM_MAX ? (double)mpt__block_max((float)x) : mpt__block_sum(x);
}

/* Adds up the parts, and sets the slots. One block. */
__device__ void mpt__norm_finish(const mpt__gradients &g, bool joined) {
	mpt__norm_part all = {0, 0};
	for (long long i = threadIdx.x; i < g.segments.most; i += MPT__THREADS) {
		const double more = __ldcg(&g.part[i].squares);
		all.squares = g.norm == MPT__NORM_MAX
						  ? (double)mpt__larger((float)all.squares, (float)more)
						  : all.squares + more;
		all.nonfinite |= __ldcg(&g.part[i].nonfinite);
	}
	all.squares = mpt__join_norms(g, all.squares);
	all.nonfinite = __syncthreads_or(all.nonfinite != 0);
	if (threadIdx.x != 0) return;
	if (g.slot.at[3] != 0) g.scalars[g.slot.at[0]].f = (double)mpt__norm_multiplier(g);
	if (g.slot.at[1] != 0 && (g.slot.at[3] != 0 || all.nonfinite != 0))
		g.scalars[g.slot.at[1]].i = all.nonfinite;
	if (g.slot.at[2] != 0) {
		double *norm = &g.scalars[g.slot.at[2]].f, old = joined ? *norm : 0.0;
		*norm = g.norm == MPT__NORM_2   ? sqrt(old * old + all.squares)
				: g.norm == MPT__NORM_1 ? old + all.squares
										: (double)mpt__larger((float)old, (float)all.squares);
	}
}

/* The tree: a thread's elements of a chunk, the threads of a block, then the chunks likewise. */
template <int NORM>
__global__ void mpt__grad_norm_kernel(const mpt__gradients g, bool joined) {
	const float multiplier = mpt__norm_multiplier(g);
	mpt__chunk chunk = {0, 0, 0, 0};
	for (long long number = blockIdx.x; number < g.segments.most; number += gridDim.x) {
		mpt__norm_part part = {0, 0};
		if (mpt__seek(g.segments, number, chunk)) {
			const long long eights = mpt__chunk_eights(chunk, g.aligned);
			MPT__EACH_OF_BLOCK(i, eights) {
				mpt__add_squares<NORM, 8>(g, multiplier, chunk.first + 8 * i, part);
			}
			MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
				mpt__add_squares<NORM, 1>(g, multiplier, chunk.first + 8 * eights + i, part);
			}
		}
		part.squares = mpt__join_norms(g, part.squares);
		part.nonfinite = __syncthreads_or(part.nonfinite != 0);
		if (threadIdx.x == 0) g.part[number] = part;
	}
	if (mpt__last_block(g.ticket)) mpt__norm_finish(g, joined);
}

int64_t mpt__cuda_grad_norm_workspace(const mpt__launch *launch) {
	return mpt__segments_of(launch, 1, NULL).most * (int64_t)sizeof(mpt__norm_part);
}

mpt_status mpt__cuda_grad_norm(const mpt__cuda_call *call) {
	const mpt__gradients g = mpt__gradients_of(call);
	auto kernel = g.norm == MPT__NORM_2   ? mpt__grad_norm_kernel<MPT__NORM_2>
				  : g.norm == MPT__NORM_1 ? mpt__grad_norm_kernel<MPT__NORM_1>
										  : mpt__grad_norm_kernel<MPT__NORM_MAX>;
	kernel<<<mpt__segment_blocks(call, g.segments), MPT__THREADS, 0, call->stream>>>(
		g, call->launch->index[0] != 0);
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
	void *param;	/* of `dtype`; with a master only written */
	int dtype;
	float *master, *first, *second, *third;	/* NULL: absent */
	const int *books;	/* not NULL: moments are bytes */
	const float *gradient;
	int aligned, maximize;
	mpt__law law;
	int stochastic;	/* rounding of param, by this key */
	mpt__key key;
	long long before;	/* words before that of the first element */
	mpt__segments segments;
	long long *steps;
	const double *rates;	/* NULL: the rate is in slot[0] */
	long long rate_count;
	int cycles;	/* a second row of rates has momentum or beta1 */
	long long commit;	/* 0, 1: the segments' step counts, 2: and the applied steps */
	mpt__slots slot;
	mpt__scalar *scalars;
	unsigned int *ticket;
};

/* ----
 * waist/updates.inl: what optimizers do to a weight, or to a vector of them, in vocabulary words:
 * each a function that gets the weight p, its gradient g and its moments a, b, c, and gives the new
 * weight. What the words of mpt__law and mpt__pace mean is said in waist/arithmetic.inl.
 * ---- */
#ifdef MPT__V

/* An mpt__pace in the type of the words. */
typedef struct MPT__V(rates) {
	v_f lr, decay, shrink, keep1, add1, keep2, add2, eps, root;
	bool fresh;
} v_rates;

#define MPT__WEIGHT_TAKES \
	const mpt__law *law, const v_rates *r, v_f p, v_f g, v_f *a, v_f *b, v_f *c

/* The decay comes off the weight, or to the gradient, which is the result. */
MPT__OP v_f v_decayed(const mpt__law *law, const v_rates *r, v_f *p, v_f g) {
	if (law->decoupled)
		*p = v_sub(*p, v_mul(r->shrink, *p));
	else if (law->decays)
		g = v_add(g, v_mul(r->decay, *p));
	return g;
}
/* Means: of x, and of its squares. */
MPT__OP v_f v_follow(v_f keep, v_f mean, v_f add, v_f x) {
	return v_add(v_mul(keep, mean), v_mul(add, x));
}
MPT__OP v_f v_follow_squares(v_f keep, v_f mean, v_f add, v_f x) {
	return v_add(v_mul(keep, mean), v_mul(v_mul(add, x), x));
}

/* m = momentum m + (1 - dampening) g, at first g; p -= lr m, or, with Nesterov,
   p -= lr (g + momentum m). */
MPT__OP v_f v_sgd(MPT__WEIGHT_TAKES) {
	g = v_decayed(law, r, &p, g);
	(void)b, (void)c;
	if (law->moment[0]) {
		*a = r->fresh ? g : v_follow(r->keep1, *a, r->add1, g);
		g = law->nesterov ? v_add(g, v_mul(r->keep1, *a)) : *a;
	}
	return v_sub(p, v_mul(r->lr, g));
}

/* PyTorch's fused form: p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps), but with 1 / sqrt(c2) as a
   factor: divisions and roots are what an update waits for. */
MPT__OP v_f v_adam(MPT__WEIGHT_TAKES) {
	g = v_decayed(law, r, &p, g);
	(void)c;
	*a = v_follow(r->keep1, *a, r->add1, g);
	*b = v_follow_squares(r->keep2, *b, r->add2, g);
	v_f below = v_add(v_mul(v_sqrt(*b), r->root), r->eps);
	return v_sub(p, v_div(v_mul(r->lr, *a), below));
}

/* The functions of MOMENTS, whose decay is done already. Adam with the largest v so far, not
   corrected for bias, in place of v. */
MPT__OP v_f MPT__V(amsgrad)(MPT__WEIGHT_TAKES) {
	(void)law;
	*a = v_follow(r->keep1, *a, r->add1, g);
	*b = v_follow_squares(r->keep2, *b, r->add2, g);
	*c = v_max_nan(*c, *b);
	v_f below = v_add(v_mul(v_sqrt(*c), r->root), r->eps);
	return v_sub(p, v_div(v_mul(r->lr, *a), below));
}

/* v and, centred, the mean c follow; p -= lr b with b = momentum b + g / (sqrt(v - c^2) + eps).
   Rounding may leave v - c^2 below 0, which counts as 0. */
MPT__OP v_f MPT__V(rmsprop)(MPT__WEIGHT_TAKES) {
	v_f square = *a = v_follow_squares(r->keep2, *a, r->add2, g);
	if (law->moment[2]) {
		*c = v_follow(r->keep2, *c, r->add2, g);
		square = v_relu(v_sub(square, v_mul(*c, *c)));
	}
	v_f below = v_add(v_sqrt(square), r->eps);
	if (!law->moment[1]) return v_sub(p, v_div(v_mul(r->lr, g), below));
	*b = v_add(v_mul(r->keep1, *b), v_div(g, below));
	return v_sub(p, v_mul(r->lr, *b));
}

/* s += g^2; p -= lr / (1 + steps lr_decay) g / (sqrt(s) + eps) */
MPT__OP v_f MPT__V(adagrad)(MPT__WEIGHT_TAKES) {
	(void)law, (void)b, (void)c;
	*a = v_add(*a, v_mul(g, g));
	return v_sub(p, v_div(v_mul(r->lr, g), v_add(v_sqrt(*a), r->eps)));
}

/* d = sqrt(u + eps) / sqrt(v + eps) g with v the mean of g^2, u that of d^2; p -= lr d */
MPT__OP v_f MPT__V(adadelta)(MPT__WEIGHT_TAKES) {
	(void)law, (void)c;
	*a = v_follow_squares(r->keep1, *a, r->add1, g);
	g = v_mul(g, v_div(v_sqrt(v_add(*b, r->eps)), v_sqrt(v_add(*a, r->eps))));
	*b = v_follow_squares(r->keep1, *b, r->add1, g);
	return v_sub(p, v_mul(r->lr, g));
}

/* p -= lr sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g. */
MPT__OP v_f MPT__V(lion)(MPT__WEIGHT_TAKES) {
	v_f way = v_follow(r->keep1, *a, r->add1, g);
	(void)law, (void)b, (void)c;
	way = v_select(v_greater(way, v_zero()), v_set(1), way);
	way = v_select(v_greater(v_zero(), way), v_set(-1), way);
	*a = v_follow(r->keep2, *a, r->add2, g);
	return v_sub(p, v_mul(r->lr, way));
}

/* Any of them. */
MPT__OP v_f v_updated(MPT__WEIGHT_TAKES) {
	switch (law->function) {
	case MPT__FN_NONE:
		return law->corrects ? v_adam(law, r, p, g, a, b, c) : v_sgd(law, r, p, g, a, b, c);
#define MPT__ROW(id, name, ns, eps, decay, ways) \
	case MPT__FN_##id: \
		g = v_decayed(law, r, &p, g); \
		return MPT__V(name)(law, r, p, g, a, b, c);
		MPT__UPDATES(MPT__ROW)
#undef MPT__ROW
	default:
		return p;
	}
}

#endif

/* What depends on the step count of a segment. */
struct mpt__segment_pace {
	v_rates rates;
	unsigned long long sequence;	/* of random words */
};

__device__ mpt__segment_pace mpt__segment_pace_of(const mpt__update &u, long long segment) {
	const long long step =
		u.steps[u.segments.rows[segment * MPT__SEGMENT_FIELDS + MPT__SEGMENT_STEP]];
	double lr = u.scalars[u.slot.at[0]].f, first = u.law.imm[0];
	if (u.rates != NULL) {
		const long long at = u.scalars[u.slot.at[3]].i - u.scalars[u.slot.at[4]].i;
		const double *rate = u.rates + (at < 0 ? 0 : at < u.rate_count ? at : u.rate_count - 1);
		lr = *rate;
		if (u.cycles) first = rate[u.rate_count];
	}
	const mpt__pace pace = mpt__pace_of(&u.law, lr, first, step);
	mpt__segment_pace own;
	own.rates = {(float)pace.lr,   (float)pace.decay, (float)pace.shrink, (float)pace.keep1,
				 (float)pace.add1, (float)pace.keep2, (float)pace.add2,   (float)pace.eps,
				 (float)pace.root, pace.fresh};
	own.sequence = mpt__hash_u64(mpt__hash_u64(u.key.stream, (uint64_t)step), u.key.call);
	return own;
}

/* To bf16 numbers, which the store then keeps: up where the random word carries. `element` is a
   multiple of N. */
template <int N>
__device__ __forceinline__ void mpt__round_by_chance(const mpt__update &u, const mpt__segment_pace &pace,
													 long long element, float (&p)[N]) {
	unsigned int word[4] = {0, 0, 0, 0};
	for (int i = 0; i < N; i++) {
		if (i % 4 == 0) mpt__philox(u.key.seed, pace.sequence, (element + i) / 4, word);
		const int k = N == 1 ? (int)(element & 3) : i % 4;
		const unsigned int random =
			k == 0 ? word[0] : k == 1 ? word[1] : k == 2 ? word[2] : word[3];
		const unsigned int bits = __float_as_uint(p[i]);
		if (!isnan(p[i])) p[i] = __uint_as_float((bits + (random >> 16)) & 0xffff0000u);
	}
}

/* SGD and Adam apart from each other, and from all that v_updated knows: in one kernel they spill. */
enum { MPT__UPDATE_SGD, MPT__UPDATE_ADAM, MPT__UPDATE_MOMENTS };

template <int FORM>
__device__ __forceinline__ float mpt__updated(const mpt__update &u, const mpt__segment_pace &pace,
											  float p, float g, float *m, float *v, float *w) {
	auto update = FORM == MPT__UPDATE_MOMENTS ? v_updated
				  : FORM == MPT__UPDATE_ADAM  ? v_adam
											  : v_sgd;
	return update(&u.law, &pace.rates, p, g, m, v, w);
}

template <int N, int FORM>
__device__ __forceinline__ void mpt__update_at(const mpt__update &u, const mpt__segment_pace &pace,
											   float multiplier, long long at) {
	float p[N], g[N], m[N] = {0}, v[N] = {0}, w[N] = {0};
	mpt__read<N>(u.gradient, MPT_F32, at, g);
	if (u.first != NULL) mpt__read<N>(u.first, MPT_F32, at, m);
	if (u.second != NULL) mpt__read<N>(u.second, MPT_F32, at, v);
	if (u.master != NULL) {
		mpt__read<N>(u.master, MPT_F32, at, p);
	} else {
		mpt__read<N>(u.param, u.dtype, at, p);
	}
	if (FORM == MPT__UPDATE_MOMENTS && u.third != NULL) mpt__read<N>(u.third, MPT_F32, at, w);
	for (int i = 0; i < N; i++)
		p[i] = mpt__updated<FORM>(u, pace, p[i], g[i] * multiplier, &m[i], &v[i], &w[i]);
	if (u.first != NULL) mpt__write<N>(u.first, MPT_F32, at, m);
	if (u.second != NULL) mpt__write<N>(u.second, MPT_F32, at, v);
	if (FORM == MPT__UPDATE_MOMENTS && u.third != NULL) mpt__write<N>(u.third, MPT_F32, at, w);
	if (u.master != NULL) mpt__write<N>(u.master, MPT_F32, at, p);
	if (u.stochastic) mpt__round_by_chance<N>(u, pace, u.before + at, p);
	mpt__write<N>(u.param, u.dtype, at, p);
}

/* ---- Moments that are bytes ---- */

/* Eight elements, or the first `count` of them. */
template <bool WHOLE>
__device__ __forceinline__ void mpt__read_some(const void *data, int dtype, long long at, int count,
											   float (&x)[8]) {
	if (WHOLE)
		mpt__load8(data, dtype, at, x);
	else
		for (int i = 0; i < 8; i++) x[i] = i < count ? mpt__load(data, dtype, at + i) : 0;
}
template <bool WHOLE>
__device__ __forceinline__ void mpt__write_some(void *data, int dtype, long long at, int count,
												const float (&x)[8]) {
	if (WHOLE)
		mpt__store8(data, dtype, at, x);
	else
		for (int i = 0; i < count; i++) mpt__store(data, dtype, at + i, x[i]);
}

/* A segment's moment k of elements [at, at + count), up to eight for each thread of the warp that
   has a block of codes; and back. */
struct mpt__coded {
	unsigned char *bytes;	/* of the segment; NULL: there is no such moment */
	float *peaks;			/* NULL: its bytes are floats */
	const int *book;
	int plain;
};

__device__ __forceinline__ mpt__coded mpt__coded_of(const mpt__update &u, const long long *row,
													float *moment, int k) {
	const long long place = row[MPT__SEGMENT_PLACE];
	mpt__coded c = {(unsigned char *)moment, NULL, NULL, mpt__law_unsigned(&u.law, k)};
	if (moment == NULL) return c;
	c.bytes += place < 0 ? ~place : place;
	c.book = u.books + c.plain * MPT__CODE_BOOK;
	if (place < 0) c.peaks = (float *)(c.bytes + mpt__code_peaks(row[MPT__SEGMENT_COUNT]));
	return c;
}

template <bool WHOLE>
__device__ __forceinline__ void mpt__decode(const mpt__coded &c, long long at, int count,
											float (&x)[8]) {
	if (c.bytes == NULL) return;
	if (c.peaks == NULL) {
		mpt__read_some<WHOLE>(c.bytes, MPT_F32, at, count, x);
		return;
	}
	const float peak = c.peaks[at / MPT__CODE_BLOCK];
	uint2 eight = {0, 0};
	if (WHOLE) eight = *(const uint2 *)(c.bytes + at);
	for (int i = 0; i < 8; i++) {
		int code = (int)((i < 4 ? eight.x : eight.y) >> i % 4 * 8 & 255);
		if (!WHOLE) code = i < count ? c.bytes[at + i] : MPT__CODE_ZERO;
		x[i] = __int_as_float(c.book[code]) * peak;
	}
}

template <bool WHOLE>
__device__ __forceinline__ void mpt__encode(const mpt__coded &c, long long at, int count,
											const float (&x)[8]) {
	if (c.bytes == NULL) return;
	if (c.peaks == NULL) {
		mpt__write_some<WHOLE>(c.bytes, MPT_F32, at, count, x);
		return;
	}
	unsigned int most = 0;
	for (int i = 0; i < 8; i++) {
		const unsigned int size = __float_as_uint(x[i]) & 0x7fffffff;
		if ((WHOLE || i < count) && size > most) most = size;
	}
	for (int step = MPT__WARP / 2; step > 0; step /= 2) {
		const unsigned int other = __shfl_xor_sync(MPT__ALL, most, step);
		if (other > most) most = other;
	}
	most = mpt__code_most(most);
	const float peak = __uint_as_float(most);
	if (threadIdx.x % MPT__WARP == 0) c.peaks[at / MPT__CODE_BLOCK] = peak;
	uint2 eight = {0, 0};
	for (int i = 0; i < 8; i++) {
		unsigned int code = c.plain ? 0 : MPT__CODE_ZERO;
		if (mpt__code_is_number(most))
			code = mpt__code_of(c.book, __float_as_uint(x[i]),
								__float_as_uint(x[i] / peak) & 0x7fffffff, c.plain);
		if (i < 4)
			eight.x |= code << i * 8;
		else
			eight.y |= code << (i - 4) * 8;
		if (!WHOLE && i < count) c.bytes[at + i] = (unsigned char)code;
	}
	if (WHOLE) *(uint2 *)(c.bytes + at) = eight;
}

/* A thread's share of a block: `at` counts from the segment's begin, which lies at `first`. */
template <bool WHOLE, int FORM>
__device__ __forceinline__ void mpt__coded_at(const mpt__update &u, const mpt__segment_pace &pace,
											  const mpt__coded (&of)[3], float multiplier,
											  long long first, long long at, int count) {
	float p[8], g[8], m[8] = {0}, v[8] = {0}, w[8] = {0};
	const long long place = first + at;
	void *value = u.master != NULL ? (void *)u.master : u.param;
	mpt__read_some<WHOLE>(u.gradient, MPT_F32, place, count, g);
	mpt__read_some<WHOLE>(value, u.master != NULL ? (int)MPT_F32 : u.dtype, place, count, p);
	mpt__decode<WHOLE>(of[0], at, count, m);
	mpt__decode<WHOLE>(of[1], at, count, v);
	if (FORM == MPT__UPDATE_MOMENTS) mpt__decode<WHOLE>(of[2], at, count, w);
	for (int i = 0; i < 8; i++)
		p[i] = mpt__updated<FORM>(u, pace, p[i], g[i] * multiplier, &m[i], &v[i], &w[i]);
	mpt__encode<WHOLE>(of[0], at, count, m);
	mpt__encode<WHOLE>(of[1], at, count, v);
	if (FORM == MPT__UPDATE_MOMENTS) mpt__encode<WHOLE>(of[2], at, count, w);
	if (u.master != NULL) mpt__write_some<WHOLE>(u.master, MPT_F32, place, count, p);
	if (u.stochastic && WHOLE) mpt__round_by_chance<8>(u, pace, u.before + place, p);
	for (int i = 0; i < 8 && u.stochastic && !WHOLE; i++) {
		float one[1] = {p[i]};
		mpt__round_by_chance<1>(u, pace, u.before + place + i, one);
		p[i] = one[0];
	}
	mpt__write_some<WHOLE>(u.param, u.dtype, place, count, p);
}

/* A warp takes a block of codes: a chunk is so many whole ones, but for the last of a segment. */
template <int FORM>
__device__ void mpt__coded_chunk(const mpt__update &u, const mpt__segment_pace &pace,
								 float multiplier, const mpt__chunk &chunk) {
	const long long *row = u.segments.rows + chunk.segment * MPT__SEGMENT_FIELDS;
	const long long first = row[MPT__SEGMENT_OFFSET], begin = chunk.first - first;
	const mpt__coded of[3] = {mpt__coded_of(u, row, u.first, 0),
							  mpt__coded_of(u, row, u.second, 1),
							  mpt__coded_of(u, row, u.third, 2)};
	const int warp = threadIdx.x / MPT__WARP, own = threadIdx.x % MPT__WARP * 8;
	for (long long at = warp * MPT__CODE_BLOCK; at < chunk.count;
		 at += MPT__THREADS / MPT__WARP * MPT__CODE_BLOCK) {
		const long long left = chunk.count - at;
		if (u.aligned && first % 8 == 0 && left >= MPT__CODE_BLOCK) {
			mpt__coded_at<true, FORM>(u, pace, of, multiplier, first, begin + at + own, 8);
		} else {
			const int count = left - own < 0 ? 0 : left - own > 8 ? 8 : (int)(left - own);
			mpt__coded_at<false, FORM>(u, pace, of, multiplier, first, begin + at + own, count);
		}
	}
}

/* The end of an update: its steps are counted. One block. */
__device__ void mpt__commit(const mpt__update &u) {
	MPT__EACH_OF_BLOCK(segment, u.segments.count) {
		const long long *row = u.segments.rows + segment * MPT__SEGMENT_FIELDS;
		for (long long i = 0; i < row[MPT__SEGMENT_STEPS]; i++)
			u.steps[row[MPT__SEGMENT_STEP] + i]++;
	}
	if (u.commit == 2 && threadIdx.x == 0) u.scalars[u.slot.at[3]].i++;
}

template <int FORM, bool CODED>
__device__ __forceinline__ void mpt__update_chunks(const mpt__update &u) {
	__shared__ mpt__segment_pace shared;
	mpt__segment_pace pace;
	const float multiplier = mpt__factor(u.scalars, u.slot.at[1]) * (u.maximize ? -1.0f : 1.0f);
	mpt__chunk chunk = {0, 0, 0, 0};
	long long segment = -1;
	if (!mpt__gate_open(u.scalars, u.slot.at[2])) return;
	for (long long number = blockIdx.x; mpt__seek(u.segments, number, chunk); number += gridDim.x) {
		if (chunk.segment != segment) {
			segment = chunk.segment;
			__syncthreads();	/* all have read that of an earlier segment */
			if (threadIdx.x == 0) shared = mpt__segment_pace_of(u, segment);
			__syncthreads();
			pace = shared;
		}
		if (CODED) {
			mpt__coded_chunk<FORM>(u, pace, multiplier, chunk);
			continue;
		}
		const long long eights = mpt__chunk_eights(chunk, u.aligned);
		MPT__EACH_OF_BLOCK(i, eights) {
			mpt__update_at<8, FORM>(u, pace, multiplier, chunk.first + 8 * i);
		}
		MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
			mpt__update_at<1, FORM>(u, pace, multiplier, chunk.first + 8 * eights + i);
		}
	}
	if (u.commit != 0 && mpt__last_block(u.ticket)) mpt__commit(u);
}

template <int FORM>
__global__ void mpt__update_kernel(const mpt__update u) {
	mpt__update_chunks<FORM, false>(u);
}
template <int FORM>
__global__ void mpt__coded_update_kernel(const mpt__update u) {
	mpt__update_chunks<FORM, true>(u);
}

mpt__update mpt__update_of(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	mpt__update u;
	memset(&u, 0, sizeof u);
	u.param = call->data[0];
	u.dtype = launch->operand[0].dtype;
	u.master = (float *)call->data[1];
	u.gradient = (const float *)call->data[2];
	u.law = mpt__law_of(launch);
	u.first = u.law.moment[0] ? (float *)call->data[3] : NULL;
	u.second = u.law.moment[1] ? (float *)call->data[6] : NULL;
	u.third = u.law.moment[2] ? (float *)call->data[8] : NULL;
	u.maximize = launch->index[2] != 0;
	u.segments = mpt__segments_of(launch, 4, call->data[4]);
	u.steps = (long long *)call->data[5];
	u.rates = launch->n_operands > 7 ? (const double *)call->data[7] : NULL;
	if (u.rates != NULL) {
		const mpt__operand &rates = launch->operand[7];
		u.rate_count = rates.shape[rates.rank - 1];
		u.cycles = rates.rank == 2;
	}
	u.books = launch->n_operands > 9 ? (const int *)call->data[9] : NULL;
	u.stochastic = launch->index[3] != 0;
	u.key = mpt__key_of(call);
	u.before = launch->operand[0].offset;
	u.commit = launch->index[1];
	u.slot = mpt__slots_of(launch);
	u.scalars = call->scalars;
	u.ticket = call->cuda->ticket;
	return u;
}

mpt_status mpt__run_update(const mpt__cuda_call *call) {
	mpt__update u = mpt__update_of(call);
	const void *arrays[6] = {u.param, u.master, u.gradient, u.first, u.second, u.third};
	const unsigned int blocks = mpt__segment_blocks(call, u.segments);
	u.aligned = mpt__is_streamed(u.dtype) && u.before % 8 == 0;
	for (int i = 0; i < 6; i++) u.aligned = u.aligned && (uintptr_t)arrays[i] % 16 == 0;
#define MPT__UPDATE_KERNEL(form) \
	(u.books ? mpt__coded_update_kernel<form> : mpt__update_kernel<form>)
	auto kernel = u.law.function != MPT__FN_NONE ? MPT__UPDATE_KERNEL(MPT__UPDATE_MOMENTS)
				  : u.law.corrects              ? MPT__UPDATE_KERNEL(MPT__UPDATE_ADAM)
												: MPT__UPDATE_KERNEL(MPT__UPDATE_SGD);
	kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(u);
	return MPT_OK;
}

mpt_status mpt__cuda_sgd(const mpt__cuda_call *call) { return mpt__run_update(call); }
mpt_status mpt__cuda_adam(const mpt__cuda_call *call) { return mpt__run_update(call); }
mpt_status mpt__cuda_moments(const mpt__cuda_call *call) { return mpt__run_update(call); }

/* ---- Averages ---- */

struct mpt__average {
	float *average;
	const void *value;	/* of `dtype` */
	int dtype;
	long long count, eights;
	double decay;
	long long form;
	int commits;
	mpt__slots slot;	/* applied steps, those seen, updates */
	mpt__scalar *scalars;
	unsigned int *ticket;
};

template <int N>
__device__ __forceinline__ void mpt__average_at(const mpt__average &a, float weight, long long at) {
	float average[N], value[N];
	mpt__read<N>(a.average, MPT_F32, at, average);
	mpt__read<N>(a.value, a.dtype, at, value);
	for (int i = 0; i < N; i++)
		average[i] = weight == 1 ? value[i] : average[i] + weight * (value[i] - average[i]);
	mpt__write<N>(a.average, MPT_F32, at, average);
}

__global__ void mpt__average_kernel(const mpt__average a) {
	mpt__scalar *applied = &a.scalars[a.slot.at[0]], *seen = &a.scalars[a.slot.at[1]];
	mpt__scalar *updates = &a.scalars[a.slot.at[2]];
	if (!mpt__gate_open(a.scalars, 0) || applied->i == seen->i) return;
	const float weight = (float)mpt__average_weight(a.form, a.decay, (double)updates->i);
	MPT__EACH(i, a.eights) { mpt__average_at<8>(a, weight, 8 * i); }
	MPT__EACH(i, a.count - 8 * a.eights) { mpt__average_at<1>(a, weight, 8 * a.eights + i); }
	if (a.commits && mpt__last_block(a.ticket) && threadIdx.x == 0) {
		seen->i = applied->i;
		updates->i++;
	}
}

mpt_status mpt__cuda_average(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	mpt__average a;
	memset(&a, 0, sizeof a);
	a.average = (float *)call->data[0];
	a.value = call->data[1];
	a.dtype = launch->operand[1].dtype;
	a.count = launch->operand[0].shape[0];
	const bool aligned = mpt__is_streamed(a.dtype) && (uintptr_t)a.average % 16 == 0 &&
						 (uintptr_t)a.value % 16 == 0;
	a.eights = aligned ? a.count / 8 : 0;
	a.decay = launch->imm[0];
	a.form = launch->index[0];
	a.commits = launch->index[1] != 0;
	a.slot = mpt__slots_of(launch);
	a.scalars = call->scalars;
	a.ticket = call->cuda->ticket;
	const unsigned int blocks = mpt__blocks(call, a.eights > 0 ? a.eights : a.count);
	mpt__average_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(a);
	return MPT_OK;
}

/* ---- Scalars ---- */

/* What CLIP does beside clipping. */
struct mpt__clip_note {
	mpt__scalar *scalars;
	int found_slot, applied_slot;	/* 0: none */
	long long raises, number;
};

__device__ void mpt__clip_noted(const mpt__clip_note &n, float norm) {
	mpt__scalar *noted = &n.scalars[MPT__SLOT_CLIPPED], *at = &n.scalars[MPT__SLOT_CLIPPED_AT];
	const long long applied = n.scalars[n.applied_slot].i;
	mpt__scalar value;
	value.f = (double)norm;
	if (!isfinite(norm) && (n.found_slot == 0 || n.scalars[n.found_slot].i == 0)) {
		if (n.raises) mpt__raise(n.scalars, MPT_ERROR_NUMERIC, n.number, -1, -1, value, 0);
		if (n.raises || noted->i != 0) return;
		noted->i = n.applied_slot;
		at->i = applied;
	} else if (noted->i == n.applied_slot && at->i == applied) {
		noted->i = 0;
	}
}

/* A NaN norm makes the multiplier NaN, as in PyTorch. */
__global__ void mpt__clip_kernel(mpt__scalar *multiplier, const mpt__scalar *norm, float most,
								 mpt__array out, const mpt__clip_note note) {
	const float size = (float)norm->f;
	float factor = most / (size + 1e-6f);
	if (factor > 1) factor = 1;
	if (multiplier != NULL) multiplier->f = (double)((float)multiplier->f * factor);
	if (out.data != NULL) mpt__put(out, 0, size);
	if (note.applied_slot != 0) mpt__clip_noted(note, size);
}

mpt_status mpt__cuda_clip(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const mpt__clip_note note = {call->scalars, launch->slot[2], launch->slot[3],
								 launch->index[0] != 0, launch->number};
	mpt__scalar *multiplier = launch->slot[0] != 0 ? &call->scalars[launch->slot[0]] : NULL;
	mpt__clip_kernel<<<1, 1, 0, call->stream>>>(multiplier, &call->scalars[launch->slot[1]],
												(float)launch->imm[0], mpt__array_of(call, 0), note);
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
	double imm[4];
	long long interval;
	int fixed;
	mpt__slots slot;
};

__global__ void mpt__scaler_update_kernel(const mpt__scaler_settings w, mpt__scalar *scalars) {
	if (!mpt__gate_open(scalars, 0)) return;
	mpt__scaler_ends_update(scalars, w.slot.at, w.imm, w.interval, w.fixed != 0);
}

mpt_status mpt__cuda_scaler_update(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	mpt__scaler_settings w;
	memset(&w, 0, sizeof w);
	memcpy(w.imm, launch->imm, sizeof w.imm);
	w.interval = launch->index[0];
	w.fixed = launch->index[1] != 0;
	w.slot = mpt__slots_of(launch);
	mpt__scaler_update_kernel<<<1, 1, 0, call->stream>>>(w, call->scalars);
	return MPT_OK;
}

/* ==== Convolutions ====
 *
 * Products of matrices that are gathered from images while tiles are fetched, in fp32; the kernel
 * goes over groups as over batches. Of gradients of weights, whose K is all pixels, blocks take
 * slices of K, which a second kernel adds up in order. */

#define MPT__CONV_TILE 64
#define MPT__CONV_DEPTH 16
#define MPT__CONV_SLICE 2048	/* pixels of a slice, at least */
#define MPT__CONV_SLICES 64		/* at most */

struct mpt__conv_args {
	mpt__array x, w, y, bias, more;	/* more: what is added, lying as the output does */
	int kernel, compute_dtype, slices, relu, bias_dtype;	/* bias_dtype: what it is rounded to */
	int size[2], out_size[2], taps[2], stride[2], padding[2], dilation[2];
	long long images, groups, in, out;	/* channels of a group */
	long long m, n, k, depth;			/* of a group's product; K of a slice */
	float *partial;						/* [slices, groups, m, n]; NULL: one slice */
};

/* A pixel of a grid: its image, and where its first tap lies (of input gradients before the
   division by the stride). */
struct mpt__conv_spot {
	long long image;
	int at[2];
};

__device__ __forceinline__ mpt__conv_spot mpt__conv_spot_of(const mpt__conv_args &p,
															long long pixel) {
	const bool input = p.kernel == MPT__K_CONV_BACKWARD_INPUT;
	const int *grid = input ? p.size : p.out_size;
	mpt__conv_spot spot;
	for (int d = 1; d >= 0; d--) {
		const int i = (int)(pixel % grid[d]);
		pixel /= grid[d];
		spot.at[d] = input ? i + p.padding[d] : i * p.stride[d] - p.padding[d];
	}
	spot.image = pixel;
	return spot;
}

/* Where a pixel's tap lies among the pixels of the image that is read; -1: outside. */
__device__ __forceinline__ long long mpt__conv_tap(const mpt__conv_args &p,
												   const mpt__conv_spot &spot, int ty, int tx) {
	const bool input = p.kernel == MPT__K_CONV_BACKWARD_INPUT;
	const int *size = input ? p.out_size : p.size;
	const int tap[2] = {ty, tx};
	long long at[2];
	for (int d = 0; d < 2; d++) {
		const long long far = (long long)tap[d] * p.dilation[d];
		at[d] = input ? spot.at[d] - far : spot.at[d] + far;
		if (at[d] < 0 || (input && at[d] % p.stride[d] != 0)) return -1;
		if (input) at[d] /= p.stride[d];
		if (at[d] >= size[d]) return -1;
	}
	return (spot.image * size[0] + at[0]) * size[1] + at[1];
}

__device__ __forceinline__ float mpt__conv_load(const mpt__conv_args &p, const mpt__array &array,
												long long at) {
	return mpt__rounded(mpt__load(array.data, array.dtype, at), p.compute_dtype);
}

/* Element `column` (tap, channel) of the row of a pixel, in a group. */
__device__ __forceinline__ float mpt__conv_element(const mpt__conv_args &p,
												   const mpt__conv_spot &spot, long long group,
												   long long column) {
	const bool input = p.kernel == MPT__K_CONV_BACKWARD_INPUT;
	const long long channels = input ? p.out : p.in, tap = column / channels;
	const long long pixel =
		mpt__conv_tap(p, spot, (int)(tap / p.taps[1]), (int)(tap % p.taps[1]));
	if (pixel < 0) return 0;
	const long long channel = group * channels + column % channels;
	return mpt__conv_load(p, input ? p.y : p.x, pixel * p.groups * channels + channel);
}

/* Row k, column j of the kernel as B of a product. */
__device__ __forceinline__ float mpt__conv_weight(const mpt__conv_args &p, long long group,
												  long long k, long long j) {
	const long long depth = (long long)p.taps[0] * p.taps[1] * p.in, first = group * p.out;
	if (p.kernel == MPT__K_CONV) return mpt__conv_load(p, p.w, (first + j) * depth + k);
	return mpt__conv_load(p, p.w, (first + k % p.out) * depth + k / p.out * p.in + j);
}

/* A sum as it is written. */
__device__ __forceinline__ void mpt__conv_put(const mpt__conv_args &p, const mpt__array &to,
											  long long at, float value) {
	if (p.more.data != NULL) value += mpt__load(p.more.data, p.more.dtype, at);
	if (p.relu && value <= 0) value = 0;
	mpt__put(to, at, value);
}

__device__ __forceinline__ float mpt__conv_bias(const mpt__conv_args &p, long long at) {
	return mpt__rounded(mpt__load(p.bias.data, p.bias.dtype, at), p.bias_dtype);
}

/* A block per tile of a product, or of a slice of one; a thread has 4 by 4 elements, 16 apart. Each
   sum runs over K in order. WEIGHTS: the gradient of the kernel. */
template <bool WEIGHTS>
__global__ void mpt__conv_kernel(const __grid_constant__ mpt__conv_args p) {
	enum { TILE = MPT__CONV_TILE, DEPTH = MPT__CONV_DEPTH };
	__shared__ float a[DEPTH][TILE + 1], b[DEPTH][TILE + 1];
	__shared__ mpt__conv_spot spot[TILE];	/* of the rows, or of the K under way */
	const int x = threadIdx.x % 16, y = threadIdx.x / 16;
	const long long across = (p.n + TILE - 1) / TILE, down = (p.m + TILE - 1) / TILE;
	const long long tiles = across * down, all = tiles * p.groups * p.slices;
	for (long long t = blockIdx.x; t < all; t += gridDim.x) {
		const long long i0 = t / across % down * TILE, j0 = t % across * TILE;
		const long long group = t / tiles % p.groups, slice = t / tiles / p.groups;
		const long long begin = slice * p.depth;
		const long long end = begin + p.depth < p.k ? begin + p.depth : p.k;
		float sum[4][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
		if (!WEIGHTS && threadIdx.x < TILE && i0 + threadIdx.x < p.m)
			spot[threadIdx.x] = mpt__conv_spot_of(p, i0 + threadIdx.x);
		__syncthreads();
		for (long long k0 = begin; k0 < end; k0 += DEPTH) {
			if (WEIGHTS) {
				if (threadIdx.x < DEPTH && k0 + threadIdx.x < end)
					spot[threadIdx.x] = mpt__conv_spot_of(p, k0 + threadIdx.x);
				__syncthreads();
			}
			for (int e = threadIdx.x; e < TILE * DEPTH; e += MPT__THREADS) {
				const int wide = e % TILE, deep = e / TILE;	/* neighbours along a tile's width */
				const int row = WEIGHTS ? wide : e / DEPTH, step = WEIGHTS ? deep : e % DEPTH;
				float left = 0, right = 0;
				if (i0 + row < p.m && k0 + step < end)
					left = WEIGHTS ? mpt__conv_load(p, p.y, ((k0 + step) * p.groups + group) * p.m +
																i0 + row)
								   : mpt__conv_element(p, spot[row], group, k0 + step);
				a[step][row] = left;
				const bool along = !WEIGHTS && p.kernel == MPT__K_CONV;	/* neighbours along K */
				const int column = along ? e / DEPTH : wide, at = along ? e % DEPTH : deep;
				if (j0 + column < p.n && k0 + at < end)
					right = WEIGHTS ? mpt__conv_element(p, spot[at], group, j0 + column)
									: mpt__conv_weight(p, group, k0 + at, j0 + column);
				b[at][column] = right;
			}
			__syncthreads();
#pragma unroll
			for (int e = 0; e < DEPTH; e++) {
				for (int r = 0; r < 4; r++) {
					for (int c = 0; c < 4; c++) sum[r][c] += a[e][y + 16 * r] * b[e][x + 16 * c];
				}
			}
			__syncthreads();
		}
#pragma unroll
		for (int e = 0; e < 16; e++) {
			const long long i = i0 + y + 16 * (e / 4), j = j0 + x + 16 * (e % 4);
			if (i >= p.m || j >= p.n) continue;
			float value = sum[e / 4][e % 4];
			if (WEIGHTS && p.partial != NULL) {
				p.partial[((slice * p.groups + group) * p.m + i) * p.n + j] = value;
				continue;
			}
			if (!WEIGHTS && p.bias.data != NULL)
				value += mpt__conv_bias(p, group * p.n + j);
			const long long at = WEIGHTS ? (group * p.m + i) * p.n + j
										 : (i * p.groups + group) * p.n + j;
			mpt__conv_put(p, WEIGHTS ? p.w : p.kernel == MPT__K_CONV ? p.y : p.x, at, value);
		}
	}
}

/* The sums of all slices. */
__global__ void mpt__conv_slices_kernel(const __grid_constant__ mpt__conv_args p) {
	const long long count = p.groups * p.m * p.n;
	MPT__EACH(i, count) {
		float sum = 0;
		for (int s = 0; s < p.slices; s++) sum += p.partial[s * count + i];
		mpt__put(p.w, i, sum);
	}
}

/* ---- Depthwise: a group for each channel ---- */

/* A thread per element, after the bias. */
__global__ void mpt__conv_depthwise_kernel(const __grid_constant__ mpt__conv_args p) {
	const bool input = p.kernel == MPT__K_CONV_BACKWARD_INPUT;
	const int taps = p.taps[0] * p.taps[1];
	MPT__EACH(i, p.m * p.groups) {
		const long long channel = i % p.groups;
		const mpt__conv_spot spot = mpt__conv_spot_of(p, i / p.groups);
		float sum = p.bias.data != NULL ? mpt__conv_bias(p, channel) : 0.0f;
		for (int t = 0; t < taps; t++) {
			const long long pixel = mpt__conv_tap(p, spot, t / p.taps[1], t % p.taps[1]);
			if (pixel < 0) continue;
			sum += mpt__conv_load(p, input ? p.y : p.x, pixel * p.groups + channel) *
				   mpt__conv_load(p, p.w, channel * taps + t);
		}
		mpt__conv_put(p, input ? p.x : p.y, i, sum);
	}
}

/* A block per tap and 32 channels: eight lanes of pixels, which add up in order. */
__global__ void mpt__conv_depthwise_weights_kernel(const __grid_constant__ mpt__conv_args p) {
	__shared__ float part[MPT__THREADS];
	const int taps = p.taps[0] * p.taps[1], lanes = MPT__THREADS / MPT__WARP;
	const long long blocks = (p.groups + MPT__WARP - 1) / MPT__WARP * taps;
	for (long long t = blockIdx.x; t < blocks; t += gridDim.x) {
		const int tap = (int)(t % taps);
		const long long channel = t / taps * MPT__WARP + threadIdx.x % MPT__WARP;
		float sum = 0;
		for (long long k = threadIdx.x / MPT__WARP; k < p.k && channel < p.groups; k += lanes) {
			const long long pixel =
				mpt__conv_tap(p, mpt__conv_spot_of(p, k), tap / p.taps[1], tap % p.taps[1]);
			if (pixel < 0) continue;
			sum += mpt__conv_load(p, p.x, pixel * p.groups + channel) *
				   mpt__conv_load(p, p.y, k * p.groups + channel);
		}
		part[threadIdx.x] = sum;
		__syncthreads();
		if (threadIdx.x < MPT__WARP && channel < p.groups) {
			for (int l = 1; l < lanes; l++) sum += part[threadIdx.x + l * MPT__WARP];
			mpt__put(p.w, channel * taps + tap, sum);
		}
		__syncthreads();
	}
}

/* ---- Launches ---- */

mpt__conv_args mpt__conv_args_of(const mpt__launch *launch) {
	const mpt__operand &x = launch->operand[0], &w = launch->operand[1], &y = launch->operand[2];
	mpt__conv_args p;
	memset(&p, 0, sizeof p);
	p.kernel = launch->kernel;
	p.compute_dtype = launch->compute_dtype;
	p.bias_dtype = launch->imm[0] != 0 ? (int)MPT_F32 : (int)launch->compute_dtype;
	p.relu = launch->activation == MPT_ACTIVATION_RELU;
	p.images = x.shape[0];
	p.groups = launch->index[0];
	for (int d = 0; d < 2; d++) {
		p.size[d] = (int)x.shape[d + 1], p.out_size[d] = (int)y.shape[d + 1];
		p.taps[d] = (int)w.shape[d + 1];
		p.stride[d] = (int)MPT__TWO_AT(launch->index[1], d);
		p.padding[d] = (int)MPT__TWO_AT(launch->index[2], d);
		p.dilation[d] = (int)MPT__TWO_AT(launch->index[3], d);
	}
	p.in = x.shape[3] / p.groups, p.out = y.shape[3] / p.groups;
	const long long taps = (long long)p.taps[0] * p.taps[1];
	const long long pixels = p.images * p.out_size[0] * p.out_size[1];
	const bool input = p.kernel == MPT__K_CONV_BACKWARD_INPUT;
	p.m = input ? p.images * p.size[0] * p.size[1] : pixels;
	p.n = input ? p.in : p.out;
	p.k = taps * (input ? p.out : p.in);
	if (p.kernel == MPT__K_CONV_BACKWARD_WEIGHT) p.m = p.out, p.n = taps * p.in, p.k = pixels;
	const long long slices = p.kernel == MPT__K_CONV_BACKWARD_WEIGHT ? p.k / MPT__CONV_SLICE : 1;
	p.slices = (int)(slices < 1 ? 1 : slices < MPT__CONV_SLICES ? slices : MPT__CONV_SLICES);
	p.depth = (p.k + p.slices - 1) / p.slices;
	return p;
}

int64_t mpt__cuda_conv_workspace(const mpt__launch *launch) {
	const mpt__conv_args p = mpt__conv_args_of(launch);
	if (p.slices == 1 || (p.in == 1 && p.out == 1)) return 0;
	return p.slices * p.groups * p.m * p.n * (int64_t)sizeof(float);
}

mpt_status mpt__cuda_conv(const mpt__cuda_call *call) {
	mpt__conv_args p = mpt__conv_args_of(call->launch);
	const bool weights = p.kernel == MPT__K_CONV_BACKWARD_WEIGHT;
	p.x = mpt__array_of(call, 0), p.w = mpt__array_of(call, 1);
	p.y = mpt__array_of(call, 2), p.bias = mpt__array_of(call, 3), p.more = mpt__array_of(call, 4);
	if (p.m == 0 || p.n == 0) return MPT_OK;
	if (p.in == 1 && p.out == 1) {
		if (weights) {
			const long long blocks =
				(p.groups + MPT__WARP - 1) / MPT__WARP * p.taps[0] * p.taps[1] * MPT__THREADS;
			mpt__conv_depthwise_weights_kernel<<<mpt__blocks(call, blocks), MPT__THREADS, 0,
												 call->stream>>>(p);
		} else {
			mpt__conv_depthwise_kernel<<<mpt__blocks(call, p.m * p.groups), MPT__THREADS, 0,
										 call->stream>>>(p);
		}
		return MPT_OK;
	}
	const long long tiles = (p.m + MPT__CONV_TILE - 1) / MPT__CONV_TILE *
							((p.n + MPT__CONV_TILE - 1) / MPT__CONV_TILE) * p.groups * p.slices;
	const unsigned int blocks = mpt__blocks(call, tiles * MPT__THREADS);
	if (!weights) {
		mpt__conv_kernel<false><<<blocks, MPT__THREADS, 0, call->stream>>>(p);
		return MPT_OK;
	}
	if (p.slices > 1) p.partial = (float *)call->workspace;
	mpt__conv_kernel<true><<<blocks, MPT__THREADS, 0, call->stream>>>(p);
	if (p.slices > 1) {
		const unsigned int adders = mpt__blocks(call, p.groups * p.m * p.n);
		mpt__conv_slices_kernel<<<adders, MPT__THREADS, 0, call->stream>>>(p);
	}
	return MPT_OK;
}
/* ==== Normalisation and pooling ==== */

enum { MPT__N, MPT__G, MPT__C, MPT__S };

/* A norm over [N, G, C, S]. Rows and groups: what shares a mean is taken by a warp or a block, in
   lines along C, with a weight for each element, or along S, with one for all. Batches: sums of
   each channel by chunks, then their ends, then the elements. */
struct mpt__norm_call {
	mpt__array x, residual, y, sum, dy, extra, dx, rest;	/* strides of the four dimensions */
	mpt__array weight, bias, mean, variance, dweight, dbias;
	float *rstd;
	long long size[4], count, lines, length, channels;
	int line, step, along_c, of_channels, given, relu;
	float eps;
	long long of, chunk, chunks;	/* sums of channels: elements of each, those of a chunk, chunks */
	float *partial, *column;	/* [chunks, 2, channels]; MPT__COLUMNS times [channels] */
};

/* y or dx of an element is dy a + (x - mean) rstd b + c of its channel's numbers; of y rstd, which
   is in b, counts as 1. */
enum {
	MPT__COLUMN_MEAN,
	MPT__COLUMN_A,
	MPT__COLUMN_B,
	MPT__COLUMN_C,
	MPT__COLUMN_RSTD,
	MPT__COLUMNS
};

#define MPT__CHANNELS 32	/* side by side in a block */
#define MPT__NORM_BLOCKS 264	/* most that keep sums of columns for their rows: two for each of many
								multiprocessors; results depend on it */

/* a / b and, in *rest, what is left: divisions of 64 bits take as long as the memory does. */
__device__ __forceinline__ long long mpt__divide(long long a, long long b, long long *rest) {
	if (((unsigned long long)(a | b) >> 32) == 0) {
		const unsigned int quotient = (unsigned int)a / (unsigned int)b;
		*rest = (unsigned int)a - quotient * (unsigned int)b;
		return quotient;
	}
	*rest = a % b;
	return a / b;
}

/* Element i of statistic [n, g] in an array. */
__device__ __forceinline__ long long mpt__norm_place(const mpt__norm_call &w, const mpt__array &a,
													 long long n, long long g, long long i) {
	long long step = i;
	const long long line = w.lines == 1 ? 0 : mpt__divide(i, w.length, &step);
	return n * a.stride[MPT__N] + g * a.stride[MPT__G] + line * a.stride[w.line] +
		   step * a.stride[w.step];
}

/* Of V elements from i on: the numbers of their channels in `of`, or `otherwise`. */
template <int V>
__device__ __forceinline__ void mpt__norm_weights(const mpt__norm_call &w, const mpt__array &of,
												  long long g, long long i, float otherwise,
												  float *out) {
	long long step = i;
	const long long line = w.lines == 1 ? 0 : mpt__divide(i, w.length, &step);
	const long long at = g * w.size[MPT__C] + (w.along_c ? step : line);
	for (int k = 0; k < V; k++) out[k] = otherwise;
	if (of.data == NULL) return;
	if (w.along_c) {
		mpt__load_some<V>(of, at, out);
	} else {
		const float all = mpt__load(of.data, of.dtype, at);
		for (int k = 0; k < V; k++) out[k] = all;
	}
}

__device__ __forceinline__ float mpt__norm_rstd(double variance, float eps) {
	if (variance >= 1e-30 && variance < 1e38) {
		const float root = sqrtf((float)variance + eps);
		return 1.0f / root;
	}
	const double root = sqrt(variance + (double)eps);
	return root < 3e-39 ? 0.0f : (float)(1.0 / root);
}

/* Whether a sum of squares is beyond fp32: too large, or so small that eps does not make up. */
__device__ __forceinline__ bool mpt__norm_is_lost(float squares, float eps) {
	return !(squares < INFINITY) || (squares < MPT__LEAST_SQUARES && eps < MPT__LEAST_SQUARES);
}

/* x, or the sum with the residual, which it stores, as rounded there. */
template <int V>
__device__ __forceinline__ void mpt__norm_load(const mpt__norm_call &w, long long n, long long g,
											   long long i, float *x) {
	float r[V];
	mpt__load_some<V>(w.x, mpt__norm_place(w, w.x, n, g, i), x);
	if (w.residual.data == NULL) return;
	mpt__load_some<V>(w.residual, mpt__norm_place(w, w.residual, n, g, i), r);
	for (int k = 0; k < V; k++) x[k] += r[k];
	const long long to = mpt__norm_place(w, w.sum, n, g, i);
	mpt__put_some<V>(w.sum, to, x);
	for (int k = 0; k < V; k++) {
		if (w.sum.dtype == MPT_F16) x[k] = __half2float(__float2half_rn(x[k]));
		if (w.sum.dtype == MPT_BF16) x[k] = __bfloat162float(__float2bfloat16_rn(x[k]));
	}
}

template <int GROUP> __device__ __forceinline__ double mpt__group_sum_wide(double x) {
	if (GROUP > MPT__WARP) {
		x = mpt__block_sum(x);
	} else {
		for (int step = GROUP / 2; step > 0; step /= 2) x += __shfl_xor_sync(MPT__ALL, x, step);
	}
	return x;
}

/* Mean, if there is one, and variance of statistic [n, g] in double. */
template <int GROUP>
__device__ double mpt__norm_wide(const mpt__norm_call &w, long long n, long long g, float *mean) {
	const mpt__array &from = w.residual.data != NULL ? w.sum : w.x;
	double middle = 0.0, total = 0.0;
	if (GROUP > MPT__WARP) {
		__syncthreads();	/* others have stored sums with the residual */
	} else {
		__syncwarp();
	}
	for (int pass = w.mean.data == NULL; pass < 2; pass++) {
		total = 0.0;
		for (long long i = threadIdx.x % GROUP; i < w.count; i += GROUP) {
			const long long at = mpt__norm_place(w, from, n, g, i);
			const double d = (double)mpt__load(from.data, from.dtype, at) - middle;
			total += pass == 0 ? d : d * d;
		}
		total = mpt__group_sum_wide<GROUP>(total) / (double)w.count;
		if (pass == 0) middle = total;
	}
	*mean = (float)middle;
	return total;
}

template <int GROUP, int V> __global__ void mpt__norm_rows_kernel(const mpt__norm_call w) {
	const long long first = threadIdx.x % GROUP * V, step = GROUP * V;
	MPT__EACH_LINE(row, GROUP, w.size[MPT__N] * w.size[MPT__G]) {
		const long long n = row / w.size[MPT__G], g = row % w.size[MPT__G];
		const mpt__array &from = w.residual.data != NULL ? w.sum : w.x;
		float x[V], weight[V], bias[V], total = 0.0f, mean = 0.0f;
		for (long long i = first; i < w.count; i += step) {
			mpt__norm_load<V>(w, n, g, i, x);
			for (int k = 0; k < V; k++) total += x[k];
		}
		if (w.mean.data != NULL) mean = mpt__group_sum<GROUP>(total) / (float)w.count;
		total = 0.0f;
		for (long long i = first; i < w.count; i += step) {
			mpt__load_some<V>(from, mpt__norm_place(w, from, n, g, i), x);
			for (int k = 0; k < V; k++) total += (x[k] - mean) * (x[k] - mean);
		}
		total = mpt__group_sum<GROUP>(total);
		double variance = (double)(total / (float)w.count);
		if (mpt__norm_is_lost(total, w.eps)) variance = mpt__norm_wide<GROUP>(w, n, g, &mean);
		const float rstd = mpt__norm_rstd(variance, w.eps);
		for (long long i = first; i < w.count; i += step) {
			mpt__load_some<V>(from, mpt__norm_place(w, from, n, g, i), x);
			mpt__norm_weights<V>(w, w.weight, g, i, 1.0f, weight);
			mpt__norm_weights<V>(w, w.bias, g, i, 0.0f, bias);
			for (int k = 0; k < V; k++) x[k] = (x[k] - mean) * rstd * weight[k] + bias[k];
			mpt__put_some<V>(w.y, mpt__norm_place(w, w.y, n, g, i), x);
		}
		if (first != 0) continue;
		w.rstd[row] = rstd;
		if (w.mean.data != NULL) mpt__put(w.mean, row, mean);
		if (w.variance.data != NULL) mpt__put(w.variance, row, (float)variance);
	}
}

/* Rows of up to MPT__LINE elements, in eights, stay in a warp's registers. */
__global__ void mpt__norm_held_kernel(const mpt__norm_call w) {
	const int lane = (int)(threadIdx.x % MPT__WARP);
	MPT__EACH_LINE(row, MPT__WARP, w.size[MPT__N]) {
		float x[MPT__HELD], weight[8], bias[8], total = 0.0f, mean = 0.0f;
#pragma unroll
		for (int j = 0; j < MPT__HELD; j += 8) {
			const int i = lane * 8 + j * MPT__WARP;
			for (int k = 0; k < 8; k++) x[j + k] = 0.0f;
			if (i < w.count) mpt__norm_load<8>(w, row, 0, i, x + j);
			for (int k = 0; k < 8; k++) total += x[j + k];
		}
		if (w.mean.data != NULL) mean = mpt__group_sum<MPT__WARP>(total) / (float)w.count;
		total = 0.0f;
#pragma unroll
		for (int j = 0; j < MPT__HELD; j += 8) {
			const bool there = lane * 8 + j * MPT__WARP < w.count;
			for (int k = 0; k < 8; k++) {
				const float d = there ? x[j + k] - mean : 0.0f;
				total += d * d;
			}
		}
		total = mpt__group_sum<MPT__WARP>(total);
		double variance = (double)(total / (float)w.count);
		if (mpt__norm_is_lost(total, w.eps))
			variance = mpt__norm_wide<MPT__WARP>(w, row, 0, &mean);
		const float rstd = mpt__norm_rstd(variance, w.eps);
#pragma unroll
		for (int j = 0; j < MPT__HELD; j += 8) {
			const int i = lane * 8 + j * MPT__WARP;
			if (i >= w.count) continue;
			mpt__norm_weights<8>(w, w.weight, 0, i, 1.0f, weight);
			mpt__norm_weights<8>(w, w.bias, 0, i, 0.0f, bias);
			for (int k = 0; k < 8; k++)
				x[j + k] = (x[j + k] - mean) * rstd * weight[k] + bias[k];
			mpt__put_some<8>(w.y, row * w.y.stride[MPT__N] + i, x + j);
		}
		if (lane != 0) continue;
		w.rstd[row] = rstd;
		if (w.mean.data != NULL) mpt__put(w.mean, row, mean);
	}
}

__device__ __forceinline__ float mpt__norm_mean(const mpt__norm_call &w, long long statistic) {
	return w.mean.data != NULL ? mpt__load(w.mean.data, w.mean.dtype, statistic) : 0.0f;
}

template <int GROUP, int V> __global__ void mpt__norm_rows_back_kernel(const mpt__norm_call w) {
	const long long first = threadIdx.x % GROUP * V, step = GROUP * V;
	MPT__EACH_LINE(row, GROUP, w.size[MPT__N] * w.size[MPT__G]) {
		const long long n = row / w.size[MPT__G], g = row % w.size[MPT__G];
		const float mean = mpt__norm_mean(w, row), rstd = w.rstd[row];
		float x[V], dy[V], weight[V], shift = 0.0f, slope = 0.0f;
		for (long long i = first; i < w.count; i += step) {
			mpt__load_some<V>(w.x, mpt__norm_place(w, w.x, n, g, i), x);
			mpt__load_some<V>(w.dy, mpt__norm_place(w, w.dy, n, g, i), dy);
			mpt__norm_weights<V>(w, w.weight, g, i, 1.0f, weight);
			for (int k = 0; k < V; k++) {
				dy[k] *= weight[k];
				shift += dy[k];
				slope += dy[k] * ((x[k] - mean) * rstd);
			}
		}
		shift = mpt__group_sum<GROUP>(shift) / (float)w.count;
		slope = mpt__group_sum<GROUP>(slope) / (float)w.count;
		if (w.mean.data == NULL) shift = 0.0f;
		for (long long i = first; i < w.count; i += step) {
			mpt__load_some<V>(w.x, mpt__norm_place(w, w.x, n, g, i), x);
			mpt__load_some<V>(w.dy, mpt__norm_place(w, w.dy, n, g, i), dy);
			mpt__norm_weights<V>(w, w.weight, g, i, 1.0f, weight);
			for (int k = 0; k < V; k++)
				dy[k] = (dy[k] * weight[k] - shift - (x[k] - mean) * rstd * slope) * rstd;
			if (w.extra.data != NULL) {
				mpt__load_some<V>(w.extra, mpt__norm_place(w, w.extra, n, g, i), x);
				for (int k = 0; k < V; k++) dy[k] += x[k];
			}
			mpt__put_some<V>(w.dx, mpt__norm_place(w, w.dx, n, g, i), dy);
		}
	}
}

/* What the warps of a block hold for its columns, added up in their order. */
__device__ __forceinline__ void mpt__norm_columns_out(const mpt__norm_call &w, const float *held,
													  float *to) {
	__shared__ float part[MPT__LINE];
	const int lane = (int)(threadIdx.x % MPT__WARP), warp = (int)(threadIdx.x / MPT__WARP);
	for (int turn = 0; turn < (int)blockDim.x / MPT__WARP; turn++) {
		__syncthreads();
		if (turn != warp) continue;
#pragma unroll
		for (int j = 0; j < MPT__HELD; j++) {
			const int i = lane * 8 + j / 8 * 8 * MPT__WARP + j % 8;
			part[i] = turn == 0 ? held[j] : part[i] + held[j];
		}
	}
	__syncthreads();
	for (long long i = threadIdx.x; i < w.count; i += blockDim.x) to[i] = part[i];
}

/* The same rows backward. A block keeps the sums of its rows' columns: rows b, b + blocks .. of the
   warps in order. */
__global__ void mpt__norm_held_back_kernel(const mpt__norm_call w) {
	const int lane = (int)(threadIdx.x % MPT__WARP);
	const bool columns = w.partial != NULL;
	float dw[MPT__HELD], db[MPT__HELD];
#pragma unroll
	for (int j = 0; j < MPT__HELD; j++) dw[j] = db[j] = 0.0f;
	MPT__EACH_LINE(row, MPT__WARP, w.size[MPT__N]) {
		const float mean = mpt__norm_mean(w, row), rstd = w.rstd[row];
		float x[MPT__HELD], dy[MPT__HELD], weight[8], shift = 0.0f, slope = 0.0f;
#pragma unroll
		for (int j = 0; j < MPT__HELD; j += 8) {
			const int i = lane * 8 + j * MPT__WARP;
			for (int k = 0; k < 8; k++) x[j + k] = dy[j + k] = 0.0f;
			if (i >= w.count) continue;
			mpt__load_some<8>(w.x, row * w.x.stride[MPT__N] + i, x + j);
			mpt__load_some<8>(w.dy, row * w.dy.stride[MPT__N] + i, dy + j);
			mpt__norm_weights<8>(w, w.weight, 0, i, 1.0f, weight);
			for (int k = 0; k < 8; k++) {
				x[j + k] = (x[j + k] - mean) * rstd;
				dw[j + k] += dy[j + k] * x[j + k];
				db[j + k] += dy[j + k];
				dy[j + k] *= weight[k];
				shift += dy[j + k];
				slope += dy[j + k] * x[j + k];
			}
		}
		if (w.dx.data == NULL) continue;
		shift = mpt__group_sum<MPT__WARP>(shift) / (float)w.count;
		slope = mpt__group_sum<MPT__WARP>(slope) / (float)w.count;
		if (w.mean.data == NULL) shift = 0.0f;
#pragma unroll
		for (int j = 0; j < MPT__HELD; j += 8) {
			const int i = lane * 8 + j * MPT__WARP;
			if (i >= w.count) continue;
			for (int k = 0; k < 8; k++)
				dy[j + k] = (dy[j + k] - shift - x[j + k] * slope) * rstd;
			if (w.extra.data != NULL) {
				mpt__load_some<8>(w.extra, row * w.extra.stride[MPT__N] + i, weight);
				for (int k = 0; k < 8; k++) dy[j + k] += weight[k];
			}
			mpt__put_some<8>(w.dx, row * w.dx.stride[MPT__N] + i, dy + j);
		}
	}
	if (!columns) return;
	float *to = w.partial + 2 * (long long)blockIdx.x * w.channels;
	mpt__norm_columns_out(w, dw, to + w.channels);
	mpt__norm_columns_out(w, db, to);
}

/* ---- Sums of channels ---- */

/* How many numbers, their mean, the sum of squares of what they differ from it by; or two sums. */
struct mpt__moments {
	float n, a, b;
};

__device__ __forceinline__ mpt__moments mpt__moments_join(mpt__moments p, const mpt__moments &q,
														  bool slopes) {
	const float n = p.n + q.n, d = q.a - p.a;
	if (slopes) {
		p.a += q.a;
		p.b += q.b;
	} else if (q.n > 0.0f) {	/* Chan, Golub, LeVeque 1979 */
		p.a += d * (q.n / n);
		p.b += q.b + d * d * (p.n * q.n / n);
	}
	p.n = n;
	return p;
}

struct mpt__channel_sum {
	mpt__moments sum;
	float pivot;
};

/* Adds element [n, s] of channel g C + c. */
__device__ __forceinline__ void mpt__channel_add(const mpt__norm_call &w, long long g, long long c,
												 long long n, long long s, bool slopes,
												 mpt__channel_sum *sum) {
	const float x = mpt__load(w.x.data, w.x.dtype,
							  n * w.x.stride[MPT__N] + g * w.x.stride[MPT__G] +
								  c * w.x.stride[MPT__C] + s * w.x.stride[MPT__S]);
	if (slopes) {
		const long long statistic = w.of_channels ? c : n * w.size[MPT__G] + g;
		float dy = mpt__load(w.dy.data, w.dy.dtype,
							 n * w.dy.stride[MPT__N] + g * w.dy.stride[MPT__G] +
								 c * w.dy.stride[MPT__C] + s * w.dy.stride[MPT__S]);
		if (w.relu && mpt__load(w.y.data, w.y.dtype,
								n * w.y.stride[MPT__N] + c * w.y.stride[MPT__C] +
									s * w.y.stride[MPT__S]) <= 0.0f)
			dy = 0.0f;
		sum->sum.a += dy;
		sum->sum.b += dy * ((x - mpt__norm_mean(w, statistic)) * w.rstd[statistic]);
	} else {
		if (sum->sum.n == 0.0f) sum->pivot = x;	/* squares of small differences lose little */
		sum->sum.a += x - sum->pivot;
		sum->sum.b += (x - sum->pivot) * (x - sum->pivot);
	}
	sum->sum.n += 1.0f;
}

__device__ __forceinline__ mpt__moments mpt__channel_end(const mpt__channel_sum &sum, bool slopes) {
	mpt__moments m = sum.sum;
	if (slopes || m.n == 0.0f) return m;
	const float shift = m.a / m.n;
	m.b -= m.a * shift;
	m.a = sum.pivot + shift;
	if (m.b < 0.0f) m.b = 0.0f;
	return m;
}

/* Joins those of the threads of a block that are `width` apart, in pairs; they end in the first
   ones. */
__device__ __forceinline__ mpt__moments mpt__moments_fold(mpt__moments m, int width, bool slopes) {
	__shared__ mpt__moments part[MPT__THREADS];
	__syncthreads();
	part[threadIdx.x] = m;
	for (int half = MPT__THREADS / 2; half >= width; half /= 2) {
		__syncthreads();
		if ((int)threadIdx.x < half)
			part[threadIdx.x] = mpt__moments_join(part[threadIdx.x], part[threadIdx.x + half],
												  slopes);
	}
	__syncthreads();
	return part[threadIdx.x];
}

/* A block for each chunk of `width` channels: one, or MPT__CHANNELS side by side. */
template <int WIDTH> __global__ void mpt__channel_sums_kernel(const mpt__norm_call w, int slopes) {
	const long long tiles = (w.channels + WIDTH - 1) / WIDTH;
	for (long long piece = blockIdx.x; piece < tiles * w.chunks; piece += gridDim.x) {
		const long long chunk = piece / tiles;
		const long long channel = piece % tiles * WIDTH + threadIdx.x % WIDTH;
		const long long begin = chunk * w.chunk, stop = begin + w.chunk;
		const long long end = channel >= w.channels ? 0 : stop < w.of ? stop : w.of;
		mpt__channel_sum sum = {{0.0f, 0.0f, 0.0f}, 0.0f};
		const long long step = MPT__THREADS / WIDTH, size = w.size[MPT__S];
		long long j = begin + threadIdx.x / WIDTH, s, c, s_step;
		const long long g = mpt__divide(channel, w.size[MPT__C], &c);
		long long n = mpt__divide(j, size, &s);
		const long long n_step = mpt__divide(step, size, &s_step);
		for (; j < end; j += step) {
			mpt__channel_add(w, g, c, n, s, slopes != 0, &sum);
			n += n_step, s += s_step;
			if (s >= size) s -= size, n++;
		}
		const mpt__moments m =
			mpt__moments_fold(mpt__channel_end(sum, slopes != 0), WIDTH, slopes != 0);
		if (threadIdx.x < WIDTH && channel < w.channels) {
			w.partial[2 * chunk * w.channels + channel] = m.a;
			w.partial[(2 * chunk + 1) * w.channels + channel] = m.b;
		}
	}
}

/* The moments of a channel in double, by a block; *variance is of its elements. */
__device__ mpt__moments mpt__channel_wide(const mpt__norm_call &w, long long channel,
										  double *variance) {
	double middle = 0.0, total = 0.0;
	for (int pass = 0; pass < 2; pass++) {
		total = 0.0;
		for (long long i = threadIdx.x; i < w.of; i += MPT__THREADS) {
			long long s;
			const long long n = mpt__divide(i, w.size[MPT__S], &s);
			const long long at = n * w.x.stride[MPT__N] + channel * w.x.stride[MPT__C] +
								 s * w.x.stride[MPT__S];
			const double d = (double)mpt__load(w.x.data, w.x.dtype, at) - middle;
			total += pass == 0 ? d : d * d;
		}
		total = mpt__block_sum(total) / (double)w.of;
		if (pass == 0) middle = total;
	}
	*variance = total;
	const mpt__moments m = {(float)w.of, (float)middle, (float)(total * (double)w.of)};
	return m;
}

/* What the chunks of a channel come to, and what follows from it. */
__global__ void mpt__channel_end_kernel(const mpt__norm_call w, int slopes) {
	__shared__ int lost[MPT__CHANNELS];
	const long long tiles = (w.channels + MPT__CHANNELS - 1) / MPT__CHANNELS;
	for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
		const long long channel = tile * MPT__CHANNELS + threadIdx.x % MPT__CHANNELS;
		const bool there = channel < w.channels;
		mpt__moments m = {0.0f, 0.0f, 0.0f};
		for (long long k = threadIdx.x / MPT__CHANNELS; there && k < w.chunks;
			 k += MPT__THREADS / MPT__CHANNELS) {
			const long long left = w.of - k * w.chunk;
			const mpt__moments more = {(float)(left < w.chunk ? left : w.chunk),
									   w.partial[2 * k * w.channels + channel],
									   w.partial[(2 * k + 1) * w.channels + channel]};
			m = mpt__moments_join(m, more, slopes != 0);
		}
		m = mpt__moments_fold(m, MPT__CHANNELS, slopes != 0);
		double wide = (double)(m.b / (float)w.of);
		if (threadIdx.x < MPT__CHANNELS)
			lost[threadIdx.x] = there && !slopes && !w.given && mpt__norm_is_lost(m.b, w.eps);
		__syncthreads();
		for (int k = 0; k < MPT__CHANNELS; k++) {
			double variance;
			if (!lost[k]) continue;
			const mpt__moments all = mpt__channel_wide(w, tile * MPT__CHANNELS + k, &variance);
			if ((int)threadIdx.x == k) m = all, wide = variance;
		}
		__syncthreads();	/* `lost` is read */
		if (!there || threadIdx.x >= MPT__CHANNELS) continue;
		const float weight =
			w.weight.data != NULL ? mpt__load(w.weight.data, w.weight.dtype, channel) : 1.0f;
		float *column = w.column + channel;
		if (slopes) {
			if (w.dweight.data != NULL) mpt__put(w.dweight, channel, m.b);
			if (w.dbias.data != NULL) mpt__put(w.dbias, channel, m.a);
			if (!w.of_channels) continue;
			const float rstd = w.rstd[channel], n = w.given ? INFINITY : (float)w.of;
			column[MPT__COLUMN_MEAN * w.channels] = mpt__norm_mean(w, channel);
			column[MPT__COLUMN_A * w.channels] = weight * rstd;
			column[MPT__COLUMN_B * w.channels] = w.given ? 0.0f : -m.b * weight / n * rstd;
			column[MPT__COLUMN_RSTD * w.channels] = rstd;
			column[MPT__COLUMN_C * w.channels] = w.given ? 0.0f : -m.a * weight / n * rstd;
			continue;
		}
		const float mean = w.given ? mpt__norm_mean(w, channel) : m.a;
		const double variance =
			w.given ? (double)mpt__load(w.variance.data, w.variance.dtype, channel) : wide;
		const float rstd = mpt__norm_rstd(variance, w.eps);
		w.rstd[channel] = rstd;
		if (!w.given) mpt__put(w.mean, channel, mean);
		if (!w.given && w.variance.data != NULL) mpt__put(w.variance, channel, (float)variance);
		column[MPT__COLUMN_MEAN * w.channels] = mean;
		column[MPT__COLUMN_B * w.channels] = rstd * weight;
		column[MPT__COLUMN_RSTD * w.channels] = 1.0f;
		column[MPT__COLUMN_C * w.channels] =
			w.bias.data != NULL ? mpt__load(w.bias.data, w.bias.dtype, channel) : 0.0f;
	}
}

/* The elements of a batch, V neighbours at a time, which share a channel or have one each. */
template <int V>
__global__ void mpt__channel_apply_kernel(const mpt__norm_call w, const mpt__array to) {
	MPT__EACH(piece, w.size[MPT__N] * w.lines * w.length / V) {
		long long rest, step;
		const long long n = mpt__divide(piece * V, w.count, &rest);
		const long long line = mpt__divide(rest, w.length, &step);
		const long long channel = w.along_c ? step : line;
		const bool back = w.dy.data != NULL;
		float x[V], dy[V], more[V];
		mpt__load_some<V>(w.x, mpt__norm_place(w, w.x, n, 0, rest), x);
		for (int k = 0; k < V; k++) dy[k] = more[k] = 0.0f;
		if (back) mpt__load_some<V>(w.dy, mpt__norm_place(w, w.dy, n, 0, rest), dy);
		if (back && w.relu) mpt__load_some<V>(w.y, mpt__norm_place(w, w.y, n, 0, rest), more);
		for (int k = 0; k < V && back && w.relu; k++)
			if (more[k] <= 0.0f) dy[k] = 0.0f;
		if (to.data != NULL) {
			if (!back && w.residual.data != NULL)
				mpt__load_some<V>(w.residual, mpt__norm_place(w, w.residual, n, 0, rest), more);
			for (int k = 0; k < V; k++) {
				const float *column = w.column + channel + (w.along_c ? k : 0);
				const float a = back ? column[MPT__COLUMN_A * w.channels] : 0.0f;
				x[k] = dy[k] * a +
					   (x[k] - column[MPT__COLUMN_MEAN * w.channels]) *
						   column[MPT__COLUMN_RSTD * w.channels] *
						   column[MPT__COLUMN_B * w.channels] +
					   column[MPT__COLUMN_C * w.channels];
				if (!back) x[k] += more[k];
				if (!back && w.relu && x[k] <= 0.0f) x[k] = 0.0f;
			}
			mpt__put_some<V>(to, mpt__norm_place(w, to, n, 0, rest), x);
		}
		if (w.rest.data != NULL)
			mpt__put_some<V>(w.rest, mpt__norm_place(w, w.rest, n, 0, rest), dy);
	}
}

/* ---- Launching ---- */

/* Whether lines of this array can be taken in eights. */
bool mpt__norm_eights(const mpt__norm_call &w, const mpt__array &array) {
	if (array.data == NULL) return true;
	if (!mpt__is_streamed(array.dtype) || (uintptr_t)array.data % 16 != 0) return false;
	for (int d = 0; d < 4; d++)
		if (d != w.step && w.size[d] != 1 && array.stride[d] % 8 != 0) return false;
	return array.stride[w.step] == 1 && w.length % 8 == 0;
}

/* The numbers of channels are read in eights along C. */
bool mpt__norm_weight_eights(const mpt__norm_call &w, const mpt__array &array) {
	if (array.data == NULL || !w.along_c) return true;
	return mpt__is_streamed(array.dtype) && (uintptr_t)array.data % 16 == 0 &&
		   w.size[MPT__C] % 8 == 0;
}

mpt__array mpt__norm_array(const mpt__cuda_call *call, int position) {
	mpt__array none;
	memset(&none, 0, sizeof none);
	const bool there = position < call->launch->n_operands && call->data[position] != NULL;
	return there ? mpt__array_of(call, position) : none;
}

/* All but the pointers. */
mpt__norm_call mpt__norm_shape_of(const mpt__launch *launch) {
	const mpt__operand &o = launch->operand[0];
	const bool back = launch->kernel == MPT__K_NORM_BACKWARD;
	mpt__norm_call w;
	memset(&w, 0, sizeof w);
	for (int d = 0; d < 4; d++) w.size[d] = o.shape[d];
	w.of_channels = launch->index[0] != 0;
	w.given = launch->index[1] != 0;
	w.relu = launch->index[2] != 0;
	w.eps = (float)launch->imm[0];
	w.along_c = o.shape[MPT__S] == 1 || (o.stride[MPT__C] == 1 && o.stride[MPT__S] != 1);
	w.step = w.along_c ? MPT__C : MPT__S;
	w.line = w.along_c ? MPT__S : MPT__C;
	w.length = w.size[w.step];
	w.lines = w.size[w.line];
	w.count = w.lines * w.length;
	w.channels = w.size[MPT__G] * w.size[MPT__C];
	w.of = w.size[MPT__N] * w.size[MPT__S];
	if (w.count == 0 || w.of == 0 || w.channels == 0) return w;
	if (back && !w.of_channels && w.lines == 1 && w.size[MPT__G] == 1 && w.along_c &&
		w.count <= MPT__LINE && w.count % 8 == 0) {
		const long long blocks = (w.of + MPT__THREADS / MPT__WARP - 1) / (MPT__THREADS / MPT__WARP);
		w.chunks = blocks < MPT__NORM_BLOCKS ? blocks : MPT__NORM_BLOCKS;
		w.chunk = 0;	/* by rows held in registers, if their memory allows it */
	}
	/* Some thousand blocks fill any card; a chunk is worth one. */
	const long long tiles = w.along_c ? (w.channels + MPT__CHANNELS - 1) / MPT__CHANNELS
									  : w.channels;
	long long chunks = (1024 + tiles - 1) / tiles, most = (w.of + 255) / 256;
	if (chunks > most) chunks = most;
	const long long chunk = (w.of + chunks - 1) / chunks;
	w.chunk = chunk;
	if ((w.of + chunk - 1) / chunk > w.chunks) w.chunks = (w.of + chunk - 1) / chunk;
	return w;
}

int64_t mpt__cuda_norm_workspace(const mpt__launch *launch) {
	const mpt__norm_call w = mpt__norm_shape_of(launch);
	if (launch->kernel == MPT__K_NORM && !w.of_channels) return 0;
	return (2 * w.chunks + MPT__COLUMNS) * w.channels * (int64_t)sizeof(float);
}

void mpt__channel_sums(const mpt__cuda_call *call, mpt__norm_call &w, bool slopes, bool sums) {
	const long long tiles = (w.channels + MPT__CHANNELS - 1) / MPT__CHANNELS;
	w.chunks = (w.of + w.chunk - 1) / w.chunk;
	if (sums && w.along_c) {
		mpt__channel_sums_kernel<MPT__CHANNELS>
			<<<mpt__blocks(call, tiles * w.chunks * MPT__THREADS), MPT__THREADS, 0,
			   call->stream>>>(w, slopes);
	} else if (sums) {
		mpt__channel_sums_kernel<1><<<mpt__blocks(call, w.channels * w.chunks * MPT__THREADS),
									  MPT__THREADS, 0, call->stream>>>(w, slopes);
	}
	mpt__channel_end_kernel<<<mpt__blocks(call, tiles * MPT__THREADS), MPT__THREADS, 0,
							  call->stream>>>(w, slopes);
}

void mpt__channel_apply(const mpt__cuda_call *call, const mpt__norm_call &w, const mpt__array &to) {
	const long long all = w.size[MPT__N] * w.count;
	if (mpt__norm_eights(w, w.x) && mpt__norm_eights(w, w.dy) && mpt__norm_eights(w, to) &&
		mpt__norm_eights(w, w.y) && mpt__norm_eights(w, w.residual) &&
		mpt__norm_eights(w, w.rest)) {
		mpt__channel_apply_kernel<8>
			<<<mpt__blocks(call, all / 8), MPT__THREADS, 0, call->stream>>>(w, to);
	} else {
		mpt__channel_apply_kernel<1>
			<<<mpt__blocks(call, all), MPT__THREADS, 0, call->stream>>>(w, to);
	}
}

mpt_status mpt__cuda_norm(const mpt__cuda_call *call) {
	mpt__norm_call w = mpt__norm_shape_of(call->launch);
	w.x = mpt__norm_array(call, 0);
	w.residual = mpt__norm_array(call, 1);
	w.weight = mpt__norm_array(call, 2);
	w.bias = mpt__norm_array(call, 3);
	w.y = mpt__norm_array(call, 4);
	w.sum = mpt__norm_array(call, 5);
	w.mean = mpt__norm_array(call, 6);
	w.rstd = (float *)call->data[7];
	w.variance = mpt__norm_array(call, 8);
	if (w.count == 0 || w.of == 0) return MPT_OK;
	if (w.of_channels) {
		w.partial = (float *)call->workspace;
		w.column = w.partial + 2 * w.chunks * w.channels;
		if (w.given) w.chunks = 0;
		mpt__channel_sums(call, w, false, !w.given);
		mpt__channel_apply(call, w, w.y);
		return MPT_OK;
	}
	const long long rows = w.size[MPT__N] * w.size[MPT__G];
	const bool eights = mpt__norm_eights(w, w.x) && mpt__norm_eights(w, w.residual) &&
						mpt__norm_eights(w, w.y) && mpt__norm_eights(w, w.sum) &&
						mpt__norm_weight_eights(w, w.weight) && mpt__norm_weight_eights(w, w.bias);
	if (w.count > MPT__LINE && eights) {
		mpt__norm_rows_kernel<MPT__THREADS, 8>
			<<<mpt__blocks(call, rows * MPT__THREADS), MPT__THREADS, 0, call->stream>>>(w);
	} else if (w.count > MPT__LINE) {
		mpt__norm_rows_kernel<MPT__THREADS, 1>
			<<<mpt__blocks(call, rows * MPT__THREADS), MPT__THREADS, 0, call->stream>>>(w);
	} else if (eights && w.lines == 1 && w.size[MPT__G] == 1 && w.along_c) {
		mpt__norm_held_kernel<<<mpt__blocks(call, rows * MPT__WARP), MPT__THREADS, 0,
								call->stream>>>(w);
	} else {
		mpt__norm_rows_kernel<MPT__WARP, 1>
			<<<mpt__blocks(call, rows * MPT__WARP), MPT__THREADS, 0, call->stream>>>(w);
	}
	return MPT_OK;
}

mpt_status mpt__cuda_norm_backward(const mpt__cuda_call *call) {
	mpt__norm_call w = mpt__norm_shape_of(call->launch);
	w.x = mpt__norm_array(call, 0);
	w.dy = mpt__norm_array(call, 1);
	w.weight = mpt__norm_array(call, 2);
	w.mean = mpt__norm_array(call, 3);
	w.rstd = (float *)call->data[4];
	(w.relu ? w.y : w.extra) = mpt__norm_array(call, 5);
	w.rest = mpt__norm_array(call, 9);
	w.dx = mpt__norm_array(call, 6);
	w.dweight = mpt__norm_array(call, 7);
	w.dbias = mpt__norm_array(call, 8);
	if (w.count == 0 || w.of == 0) return MPT_OK;
	const bool columns = w.dweight.data != NULL || w.dbias.data != NULL;
	const long long rows = w.size[MPT__N] * w.size[MPT__G];
	w.partial = (float *)call->workspace;
	w.column = w.partial + 2 * w.chunks * w.channels;
	if (w.of_channels) {
		mpt__channel_sums(call, w, true, true);
		if (w.dx.data != NULL || w.rest.data != NULL) mpt__channel_apply(call, w, w.dx);
		return MPT_OK;
	}
	const bool eights = mpt__norm_eights(w, w.x) && mpt__norm_eights(w, w.dy) &&
						mpt__norm_eights(w, w.extra) && mpt__norm_eights(w, w.dx) &&
						mpt__norm_weight_eights(w, w.weight);
	if (eights && w.lines == 1 && w.size[MPT__G] == 1 && w.along_c && w.count <= MPT__LINE) {
		const long long blocks = (rows + MPT__THREADS / MPT__WARP - 1) / (MPT__THREADS / MPT__WARP);
		mpt__norm_call held = w;
		held.chunks = blocks < MPT__NORM_BLOCKS ? blocks : MPT__NORM_BLOCKS;
		if (!columns) held.partial = NULL;
		mpt__norm_held_back_kernel<<<(unsigned int)held.chunks, MPT__THREADS, 0, call->stream>>>(
			held);
		if (!columns) return MPT_OK;
		mpt__channel_end_kernel<<<mpt__blocks(call, (w.channels + MPT__CHANNELS - 1) /
														MPT__CHANNELS * MPT__THREADS),
								  MPT__THREADS, 0, call->stream>>>(held, 1);
		return MPT_OK;
	}
	if (w.dx.data != NULL && w.count > MPT__LINE && eights) {
		mpt__norm_rows_back_kernel<MPT__THREADS, 8>
			<<<mpt__blocks(call, rows * MPT__THREADS), MPT__THREADS, 0, call->stream>>>(w);
	} else if (w.dx.data != NULL && w.count > MPT__LINE) {
		mpt__norm_rows_back_kernel<MPT__THREADS, 1>
			<<<mpt__blocks(call, rows * MPT__THREADS), MPT__THREADS, 0, call->stream>>>(w);
	} else if (w.dx.data != NULL) {
		mpt__norm_rows_back_kernel<MPT__WARP, 1>
			<<<mpt__blocks(call, rows * MPT__WARP), MPT__THREADS, 0, call->stream>>>(w);
	}
	if (columns) mpt__channel_sums(call, w, true, true);
	return MPT_OK;
}

struct mpt__running_call {
	const float *mean, *variance, *old;	/* the first two may be absent */
	const long long *count;
	float *to;
	long long *counts;
	long long channels;
	double momentum, unbiased;
	const mpt__scalar *scalars;
};

__device__ __forceinline__ float mpt__running_value(const mpt__running_call &w, long long i,
													double momentum) {
	const double old = (double)w.old[i];
	double fresh = i < w.channels ? (double)w.mean[i]
								  : (double)w.variance[i - w.channels] * w.unbiased;
	return (float)(old + momentum * (fresh - old));
}

/* One block. */
__global__ void mpt__running_stats_kernel(const mpt__running_call w) {
	if (!mpt__gate_open(w.scalars, 0)) return;
	const double momentum = w.momentum < 0 ? 1.0 / (double)(w.count[0] + 1) : w.momentum;
	int bad = 0;
	for (long long i = threadIdx.x; w.mean != NULL && i < 2 * w.channels; i += blockDim.x)
		if (!mpt__is_finite(mpt__running_value(w, i, momentum))) bad = 1;
	bad = __syncthreads_or(bad);
	const long long updates = w.count[0], refused = w.count[1];
	for (long long i = threadIdx.x; i < 2 * w.channels; i += blockDim.x)
		w.to[i] = w.mean != NULL && !bad ? mpt__running_value(w, i, momentum) : w.old[i];
	__syncthreads();	/* all have read the counts, which may be those that change */
	if (threadIdx.x != 0) return;
	w.counts[0] = updates + (w.mean != NULL && !bad);
	w.counts[1] = refused + (w.mean != NULL && bad);
}

mpt_status mpt__cuda_running_stats(const mpt__cuda_call *call) {
	mpt__running_call w;
	memset(&w, 0, sizeof w);
	w.mean = (const float *)call->data[0];
	w.variance = (const float *)call->data[1];
	w.old = (const float *)call->data[2];
	w.count = (const long long *)call->data[3];
	w.to = (float *)call->data[4];
	w.counts = (long long *)call->data[5];
	w.channels = call->launch->operand[2].shape[1];
	w.momentum = call->launch->imm[0];
	w.unbiased = call->launch->imm[1];
	w.scalars = call->scalars;
	mpt__running_stats_kernel<<<1, MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}

/* ---- Pooling ---- */

struct mpt__pooling {
	mpt__array large, small_one;	/* x or dx, y or dy: strides of N, C, H, W */
	void *index;	/* i32 where `wide`, else u8 */
	long long index_stride[4];
	long long n, c, in[2], out[2], window[2], step[2], padding[2];
	int most, adaptive, padding_counts, positive, wide, inside;	/* inside: channels lie innermost */
};

/* What output i of dimension d (0: H, 1: W) covers; returns its size in a mean. */
__device__ __forceinline__ long long mpt__pooling_bounds(const mpt__pooling &w, int d, long long i,
														 long long *begin, long long *end) {
	if (w.adaptive) {
		*begin = i * w.in[d] / w.out[d];
		*end = ((i + 1) * w.in[d] + w.out[d] - 1) / w.out[d];
		return *end - *begin;
	}
	const long long first = i * w.step[d] - w.padding[d];
	const long long stop = first + w.window[d], most = w.in[d] + w.padding[d];
	const long long last = stop < most ? stop : most;
	*begin = first > 0 ? first : 0;
	*end = last < w.in[d] ? last : w.in[d];
	return w.padding_counts ? last - first : *end - *begin;
}

/* Piece i of [N, C, h, w], the innermost dimension of memory being the last. */
__device__ __forceinline__ void mpt__pooling_piece(const mpt__pooling &w, long long i,
												   const long long *size, long long at[4]) {
	long long rest = i;
	if (w.inside) rest = mpt__divide(rest, w.c, &at[1]);
	rest = mpt__divide(rest, size[1], &at[3]);
	rest = mpt__divide(rest, size[0], &at[2]);
	if (!w.inside) rest = mpt__divide(rest, w.c, &at[1]);
	at[0] = rest;
}

__device__ __forceinline__ long long mpt__pooling_at(const long long *stride, const long long *at) {
	return at[0] * stride[0] + at[1] * stride[1] + at[2] * stride[2] + at[3] * stride[3];
}

__global__ void mpt__pool_kernel(const mpt__pooling w) {
	MPT__EACH(i, w.n * w.c * w.out[0] * w.out[1]) {
		long long at[4], h0, h1, w0, w1;
		mpt__pooling_piece(w, i, w.out, at);
		long long size = mpt__pooling_bounds(w, 0, at[2], &h0, &h1);
		size *= mpt__pooling_bounds(w, 1, at[3], &w0, &w1);
		const long long base = at[0] * w.large.stride[0] + at[1] * w.large.stride[1];
		float best = w.most ? -INFINITY : 0.0f;
		int index = 0, number = 0;
		for (long long h = h0; h < h1; h++) {
			for (long long k = w0; k < w1; k++, number++) {
				const float x = mpt__load(w.large.data, w.large.dtype,
										  base + h * w.large.stride[2] + k * w.large.stride[3]);
				if (!w.most) {
					best += x;
				} else if (x > best || x != x) {
					best = x;
					index = number;
				}
			}
		}
		if (!w.most) best /= (float)size;
		mpt__put(w.small_one, mpt__pooling_at(w.small_one.stride, at), best);
		if (w.index == NULL) continue;
		const long long place = mpt__pooling_at(w.index_stride, at);
		if (w.positive && best <= 0.0f) index = -1;
		if (w.wide)
			((int *)w.index)[place] = index;
		else
			((unsigned char *)w.index)[place] = (unsigned char)index;
	}
}

/* A thread for each input: from every output whose window covers it. */
__global__ void mpt__pool_backward_kernel(const mpt__pooling w) {
	MPT__EACH(i, w.n * w.c * w.in[0] * w.in[1]) {
		long long at[4], begin[2], end[2], from[4], top, left, last;
		mpt__pooling_piece(w, i, w.in, at);
		for (int d = 0; d < 2; d++) {
			const long long to = at[2 + d] + w.padding[d], before = to - w.window[d];
			begin[d] = w.adaptive    ? at[2 + d] * w.out[d] / w.in[d]
					   : before < 0 ? 0
									: before / w.step[d] + 1;
			end[d] = w.adaptive ? ((at[2 + d] + 1) * w.out[d] + w.in[d] - 1) / w.in[d]
								: to / w.step[d] + 1;
			if (end[d] > w.out[d]) end[d] = w.out[d];
		}
		float sum = 0.0f;
		from[0] = at[0], from[1] = at[1];
		for (from[2] = begin[0]; from[2] < end[0]; from[2]++) {
			const long long high = mpt__pooling_bounds(w, 0, from[2], &top, &last);
			for (from[3] = begin[1]; from[3] < end[1]; from[3]++) {
				const long long size = high * mpt__pooling_bounds(w, 1, from[3], &left, &last);
				if (w.most) {
					const long long place = mpt__pooling_at(w.index_stride, from);
					const long long index = w.wide ? ((const int *)w.index)[place]
												   : ((const unsigned char *)w.index)[place];
					if (index != (at[2] - top) * (last - left) + at[3] - left) continue;
				}
				const float dy = mpt__load(w.small_one.data, w.small_one.dtype,
										   mpt__pooling_at(w.small_one.stride, from));
				sum += w.most ? dy : dy / (float)size;
			}
		}
		mpt__put(w.large, mpt__pooling_at(w.large.stride, at), sum);
	}
}

mpt_status mpt__cuda_pool(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const bool back = launch->kernel == MPT__K_POOL_BACKWARD;
	const int large = back ? 2 : 0, less = back ? 0 : 1, index = back ? 1 : 2;
	const mpt__operand &x = launch->operand[large], &y = launch->operand[less];
	mpt__pooling w;
	memset(&w, 0, sizeof w);
	w.large = mpt__norm_array(call, large);
	w.small_one = mpt__norm_array(call, less);
	if (index < launch->n_operands) {
		w.index = call->data[index];
		w.wide = launch->operand[index].dtype == MPT_I32;
	}
	w.n = x.shape[0];
	w.c = x.shape[1];
	for (int d = 0; d < 4; d++)
		w.index_stride[d] = w.index != NULL ? launch->operand[index].stride[d] : 0;
	for (int d = 0; d < 2; d++) {
		const int shift = d == 0 ? 32 : 0;
		w.in[d] = x.shape[2 + d];
		w.out[d] = y.shape[2 + d];
		w.window[d] = launch->index[0] >> shift & 0xffffffff;
		w.step[d] = launch->index[1] >> shift & 0xffffffff;
		w.padding[d] = launch->index[2] >> shift & 0xffffffff;
	}
	w.most = launch->function == MPT__FN_MAX;
	w.padding_counts = (launch->index[3] & 1) != 0;
	w.adaptive = (launch->index[3] & 2) != 0;
	w.positive = (launch->index[3] & 4) != 0;
	w.inside = x.stride[1] == 1;
	const long long *size = back ? w.in : w.out;
	const long long all = w.n * w.c * size[0] * size[1];
	if (all == 0) return MPT_OK;
	if (back) {
		mpt__pool_backward_kernel<<<mpt__blocks(call, all), MPT__THREADS, 0, call->stream>>>(w);
	} else {
		mpt__pool_kernel<<<mpt__blocks(call, all), MPT__THREADS, 0, call->stream>>>(w);
	}
	return MPT_OK;
}
/* ==== Embedding and attention ==== */

/* Rows of `table` [size, columns] that the ids name, in `rows` [n, columns]; backward the table is
   the gradient. */
struct mpt__embedding {
	mpt__array table, ids, rows;
	long long n, size, columns, padding;
};

__device__ __forceinline__ long long mpt__id_at(const mpt__embedding &w, long long j) {
	const long long id = ((const long long *)w.ids.data)[j * w.ids.stride[0]];
	return id >= 0 && id < w.size ? id : -1;
}

template <int V> __global__ void mpt__embedding_kernel(const mpt__embedding w) {
	const long long pieces = w.columns / V;
	MPT__EACH(i, w.n * pieces) {
		const long long j = i / pieces, c = i % pieces * V, id = mpt__id_at(w, j);
		float x[V];
		for (int k = 0; k < V; k++) x[k] = 0.0f;
		if (id >= 0) mpt__load_some<V>(w.table, id * w.table.stride[0] + c * w.table.stride[1], x);
		mpt__put_some<V>(w.rows, j * w.rows.stride[0] + c * w.rows.stride[1], x);
	}
}

mpt__embedding mpt__embedding_of(const mpt__cuda_call *call, int table, int ids, int rows) {
	const mpt__operand *o = call->launch->operand;
	mpt__embedding w;
	w.table = mpt__array_of(call, table);
	w.ids = mpt__array_of(call, ids);
	w.rows = mpt__array_of(call, rows);
	w.n = o[ids].shape[0];
	w.size = o[table].shape[0];
	w.columns = o[table].shape[1];
	w.padding = call->launch->index[0];
	mpt__check_indices(call, ids, w.size);
	return w;
}

mpt_status mpt__cuda_embedding(const mpt__cuda_call *call) {
	const mpt__embedding w = mpt__embedding_of(call, 0, 1, 2);
	const long long count = w.n * w.columns;
	if (count == 0) return MPT_OK;
	if (mpt__rows_in_eights(w.table, w.columns) && mpt__rows_in_eights(w.rows, w.columns)) {
		mpt__embedding_kernel<8>
			<<<mpt__blocks(call, count / 8), MPT__THREADS, 0, call->stream>>>(w);
	} else {
		mpt__embedding_kernel<1><<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(w);
	}
	return MPT_OK;
}

int64_t mpt__cuda_embedding_backward_workspace(const mpt__launch *launch) {
	return mpt__scatter_workspace(launch, 0);
}

/* Rows are scattered to those of the gradient that their ids name. */
mpt_status mpt__cuda_embedding_backward(const mpt__cuda_call *call) {
	const mpt__operand &table = call->launch->operand[2];
	const size_t bytes = (size_t)mpt__numel(table) * mpt__bytes_of(table.dtype);
	if (table.access != MPT__ACCUMULATE && bytes > 0)
		cudaMemsetAsync(call->data[2], 0, bytes, call->stream);
	return mpt__scatter_run(call, 0, call->launch->index[0]);
}

/* ---- Attention ----
 *
 * A block of threads has a block of its own side (queries, or keys and values) in shared memory and
 * goes over the other side. A tile holds a row for each element of the other side. */

struct mpt__attention {
	mpt__array q, k, v, mask, lse, dout, delta, out, dq, dk, dv;	/* lse: written by forward */
	long long heads, group, queries, keys, blocks, items;	/* group: query heads of a key head */
	long long window, past;
	int depth, width, n;	/* n: of each side in a tile */
	int rows;				/* of its own side in a block's work */
	unsigned int *leaks;	/* for each block (attention_matrix.cu); NULL: nothing is hidden */
	int compute, causal, drops;
	int eights[4];		/* whether rows of q, k, v and dout come in pieces of eight */
	int store_eights[3];	/* those of out or dq, of dk and of dv */
	float scale, steep;	/* steep: the same for powers of two */
	mpt__dropout dropout;
};

/* A piece of work: a block of its own side. */
struct mpt__attention_item {
	long long batch, head, first;
	int n;
};

__device__ __forceinline__ mpt__attention_item mpt__attention_at(const mpt__attention &w,
																 long long item, bool by_keys) {
	const long long heads = by_keys ? w.heads / w.group : w.heads;
	mpt__attention_item t;
	t.first = item % w.blocks * w.rows;
	t.head = item / w.blocks % heads;
	t.batch = item / w.blocks / heads;
	const long long left = (by_keys ? w.keys : w.queries) - t.first;
	t.n = (int)(left < w.rows ? left : w.rows);
	return t;
}

/* Shared memory of a block, as much as its launch says. */
__device__ __forceinline__ float *mpt__attention_shared() {
	extern __shared__ __align__(16) float mpt__attention_room[];
	return mpt__attention_room;
}

__device__ __forceinline__ long long mpt__attention_row(const mpt__array &array, long long b,
														long long h, long long row) {
	return b * array.stride[0] + h * array.stride[1] + row * array.stride[2];
}

/* As the matrix products of this dtype read it. */
__device__ __forceinline__ float mpt__computed(float x, int compute) {
	if (compute == MPT_F16) return __half2float(__float2half_rn(x));
	return compute == MPT_BF16 ? __bfloat162float(__float2bfloat16_rn(x)) : x;
}

/* n rows times `factor` into shared memory, where a row takes columns + 1: no two of them begin in
   one bank. */
__device__ void mpt__attention_load(const mpt__array &array, int compute, long long b, long long h,
									long long first, int n, int columns, float factor, float *to) {
	const long long from = mpt__attention_row(array, b, h, first);
	for (int i = (int)threadIdx.x; i < n * columns; i += (int)blockDim.x) {
		const int r = i / columns, c = i % columns;
		const float x =
			mpt__load(array.data, array.dtype, from + r * array.stride[2] + c * array.stride[3]);
		to[r * (columns + 1) + c] = mpt__computed(x, compute) * factor;
	}
}

/* Those of `rows`: a bit for each. */
__device__ void mpt__attention_store(const mpt__array &array, const mpt__attention_item &t,
									 int columns, float factor, const float *from,
									 unsigned int rows) {
	const long long to = mpt__attention_row(array, t.batch, t.head, t.first);
	for (int i = (int)threadIdx.x; i < t.n * columns; i += (int)blockDim.x) {
		const int r = i / columns, c = i % columns;
		if (!(rows >> r & 1)) continue;
		mpt__put(array, to + r * array.stride[2] + c * array.stride[3],
				 from[r * (columns + 1) + c] * factor);
	}
}

__device__ __forceinline__ float mpt__attention_dot(const float *a, const float *b, int n) {
	float sum = 0.0f;
	for (int i = 0; i < n; i++) sum += a[i] * b[i];
	return sum;
}

/* What a mask adds to a score: -infinity where the query does not see the key. */
__device__ __forceinline__ float mpt__attention_mask(const mpt__attention &w, long long b,
													 long long h, long long query, long long key) {
	if (w.causal && (key > query + w.past || key <= query + w.past - w.window)) return -INFINITY;
	if (w.mask.data == NULL) return 0.0f;
	const float mask = mpt__load(w.mask.data, w.mask.dtype,
								 mpt__attention_row(w.mask, b, h, query) + key * w.mask.stride[3]);
	return w.mask.dtype != MPT_BOOL ? mask : mask != 0.0f ? 0.0f : -INFINITY;
}

/* What a mask and the diagonal make of a score, which may be NaN where it is not seen. */
__device__ __forceinline__ float mpt__attention_score(const mpt__attention &w, float score,
													  long long b, long long h, long long query,
													  long long key) {
	const float mask = mpt__attention_mask(w, b, h, query, key);
	return mask == -INFINITY ? mask : score + mask;
}

/* The factor that dropout gives a weight. */
__device__ __forceinline__ float mpt__attention_kept(const mpt__attention &w,
													 unsigned long long sequence, long long b,
													 long long h, long long query, long long key) {
	const long long at = ((b * w.heads + h) * w.queries + query) * ((w.keys + 3) / 4 * 4) + key;
	unsigned int word[4];
	mpt__philox(w.dropout.key.seed, sequence, at / 4, word);
	if (at % 4 > 1) word[0] = word[2], word[1] = word[3];	/* an index would be a stack */
	return mpt__kept(w.dropout, at % 2 ? word[1] : word[0], 1.0f);
}

/* Where a tile stands: its first element on the own side and on the other one. */
struct mpt__attention_tile {
	long long batch, head, own, other;
	bool by_keys, careful;
};

__device__ __forceinline__ bool mpt__attention_hides(const mpt__attention &w,
													 const mpt__attention_tile &t, int own,
													 int other) {
	const long long a = t.own + own, b = t.other + other;
	return mpt__attention_mask(w, t.batch, t.head, t.by_keys ? b : a, t.by_keys ? a : b) ==
		   -INFINITY;
}

/* sum[n, columns] += tile^T rows, of m rows on the other side. With care, what is not seen has no
   part in it: 0 times NaN is NaN. */
__device__ void mpt__attention_add(const mpt__attention &w, const mpt__attention_tile &t,
								   const float *tile, const float *rows, int m, int n, int columns,
								   float *sum) {
	for (int i = (int)threadIdx.x; i < n * columns; i += (int)blockDim.x) {
		const int r = i / columns, c = i % columns;
		float x = sum[r * (columns + 1) + c];
		if (!t.careful) {
			for (int k = 0; k < m; k++) x += tile[k * w.n + r] * rows[k * (columns + 1) + c];
		} else {
			for (int k = 0; k < m; k++)
				if (!mpt__attention_hides(w, t, r, k))
					x += tile[k * w.n + r] * rows[k * (columns + 1) + c];
		}
		sum[r * (columns + 1) + c] = x;
	}
}

/* Whether what is masked out may be in the block's sums: then they are formed again with care. */
__device__ bool mpt__attention_leaks(const mpt__attention &w, const float *sum, int n,
									 int columns) {
	int bad = 0;
	if (!w.causal && w.mask.data == NULL) return false;
	for (int i = (int)threadIdx.x; i < n * columns; i += (int)blockDim.x)
		bad |= !(fabsf(sum[i / columns * (columns + 1) + i % columns]) < INFINITY);
	return __syncthreads_or(bad) != 0;
}

/* Which rows are not finite, up to 32: a bit for each. */
__device__ unsigned int mpt__attention_broken(const float *sum, int n, int columns) {
	const int r = (int)threadIdx.x % MPT__WARP;
	int bad = 0;
	for (int c = 0; r < n && c < columns; c++)
		bad |= !(fabsf(sum[r * (columns + 1) + c]) < INFINITY);
	return __ballot_sync(MPT__ALL, bad);
}

__device__ __forceinline__ void mpt__attention_clear(float *x, int count) {
	for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) x[i] = 0.0f;
}

__device__ __forceinline__ unsigned long long mpt__attention_sequence(const mpt__attention &w) {
	return w.drops ? mpt__sequence_of(w.dropout.key) : 0;
}

/* The keys that the own queries see: from a first one to an end. */
__device__ __forceinline__ long long mpt__attention_first_key(const mpt__attention &w,
															  const mpt__attention_item &t) {
	const long long key = t.first + w.past + 1 - w.window;
	return w.causal && key > 0 ? key : 0;
}
__device__ __forceinline__ long long mpt__attention_seen(const mpt__attention &w,
														 const mpt__attention_item &t) {
	return w.causal && t.first + t.n + w.past < w.keys ? t.first + t.n + w.past : w.keys;
}

/* Raises a query's running maximum and shrinks its sum by as much; the tile becomes the weights. */
__device__ void mpt__attention_softmax(const mpt__attention &w, float *tile, int m, int n,
									   float *most, float *total, float *shrink) {
	const int r = (int)threadIdx.x;
	if (r < n) {
		float top = most[r];
		for (int c = 0; c < m; c++) top = mpt__larger(top, tile[c * w.n + r]);
		const float base = isinf(top) ? 0.0f : top;
		shrink[r] = expf(most[r] - base);
		float sum = total[r] * shrink[r];
		for (int c = 0; c < m; c++) {
			const float p = expf(tile[c * w.n + r] - base);
			tile[c * w.n + r] = p;
			sum += p;
		}
		most[r] = top;
		total[r] = sum;
	}
}

/* Writes the rows of `out` and `lse` of a piece of work, or SOME: those that are not finite by what
   they see. Returns which, a bit for each. */
__device__ unsigned int mpt__attention_item_out(const mpt__attention &w,
												const mpt__attention_item &t,
												unsigned long long sequence, bool some) {
	const int wide = w.depth + 1, out = w.width + 1;
	float *q = mpt__attention_shared(), *k = q + w.n * wide, *v = k + w.n * wide;
	float *sum = v + w.n * out, *tile = sum + w.n * out, *most = tile + w.n * w.n;
	float *total = most + w.n, *shrink = total + w.n;
	const long long key_head = t.head / w.group, seen = mpt__attention_seen(w, t);
	bool careful = some;
	mpt__attention_load(w.q, w.compute, t.batch, t.head, t.first, t.n, w.depth, w.scale, q);
again:
	mpt__attention_clear(sum, w.n * out);
	mpt__attention_clear(total, w.n);
	for (int r = (int)threadIdx.x; r < w.n; r += (int)blockDim.x) most[r] = -INFINITY;
	for (long long key = mpt__attention_first_key(w, t); key < seen; key += w.n) {
		const int m = (int)(seen - key < w.n ? seen - key : w.n);
		const mpt__attention_tile at = {t.batch, t.head, t.first, key, false, careful};
		mpt__attention_load(w.k, w.compute, t.batch, key_head, key, m, w.depth, 1.0f, k);
		mpt__attention_load(w.v, w.compute, t.batch, key_head, key, m, w.width, 1.0f, v);
		__syncthreads();
		for (int i = (int)threadIdx.x; i < m * t.n; i += (int)blockDim.x) {
			const int c = i / t.n, r = i % t.n;
			const float score = mpt__attention_dot(q + r * wide, k + c * wide, w.depth);
			tile[c * w.n + r] =
				mpt__attention_score(w, score, t.batch, t.head, t.first + r, key + c);
		}
		__syncthreads();
		mpt__attention_softmax(w, tile, m, t.n, most, total, shrink);
		__syncthreads();
		for (int i = (int)threadIdx.x; i < t.n * w.width; i += (int)blockDim.x)
			sum[i / w.width * out + i % w.width] *= shrink[i / w.width];
		for (int i = (int)threadIdx.x; w.drops && i < m * t.n; i += (int)blockDim.x) {
			const int c = i / t.n, r = i % t.n;
			tile[c * w.n + r] *=
				mpt__attention_kept(w, sequence, t.batch, t.head, t.first + r, key + c);
		}
		__syncthreads();
		mpt__attention_add(w, at, tile, v, m, t.n, w.width, sum);
		__syncthreads();
	}
	__syncthreads();
	if (!careful && mpt__attention_leaks(w, sum, t.n, w.width)) {
		careful = true;
		goto again;
	}
	const unsigned int rows = some ? mpt__attention_broken(sum, t.n, w.width) : ~0u;
	for (int i = (int)threadIdx.x; i < t.n * w.width; i += (int)blockDim.x) {
		const int r = i / w.width, c = i % w.width;
		if (!(rows >> r & 1)) continue;
		const float x = total[r] == 0.0f ? 0.0f : sum[r * out + c] * (1.0f / total[r]);
		mpt__put(w.out, mpt__attention_row(w.out, t.batch, t.head, t.first + r) +
							c * w.out.stride[3], x);
	}
	for (int r = (int)threadIdx.x; w.lse.data != NULL && r < t.n; r += (int)blockDim.x) {
		const float base = isinf(most[r]) ? 0.0f : most[r];
		if (!(rows >> r & 1)) continue;
		mpt__put(w.lse, mpt__attention_row(w.lse, t.batch, t.head, t.first + r),
				 total[r] == 0.0f ? INFINITY : base + logf(total[r]));
	}
	__syncthreads();
	return rows;
}

__global__ void __launch_bounds__(MPT__THREADS, 2) mpt__attention_kernel(const mpt__attention w) {
	const unsigned long long sequence = mpt__attention_sequence(w);
	for (long long item = blockIdx.x; item < w.items; item += gridDim.x)
		mpt__attention_item_out(w, mpt__attention_at(w, item, false), sequence, false);
}

__device__ __forceinline__ float mpt__attention_number(const mpt__array &array, long long b,
													   long long h, long long row) {
	return mpt__load(array.data, array.dtype, mpt__attention_row(array, b, h, row));
}

/* Writes the rows of `dq`, or SOME, as above, and of `delta`: sums of dout out, which the other
   pass reads. `half`: what dout is rounded to for products, or 0. */
__device__ unsigned int mpt__attention_item_dq(const mpt__attention &w,
											   const mpt__attention_item &t,
											   unsigned long long sequence, int half, bool some) {
	const int wide = w.depth + 1, out = w.width + 1;
	float *q = mpt__attention_shared(), *dout = q + w.n * wide, *k = dout + w.n * out;
	float *v = k + w.n * wide, *sum = v + w.n * out, *slope = sum + w.n * wide;
	float *lse = slope + w.n * w.n, *delta = lse + w.n;
	bool careful = some;
	const long long key_head = t.head / w.group, seen = mpt__attention_seen(w, t);
	mpt__attention_load(w.dout, 0, t.batch, t.head, t.first, t.n, w.width, 1.0f, dout);
	mpt__attention_load(w.out, 0, t.batch, t.head, t.first, t.n, w.width, 1.0f, v);
	mpt__attention_load(w.q, w.compute, t.batch, t.head, t.first, t.n, w.depth, w.scale, q);
	__syncthreads();
	for (int r = (int)threadIdx.x; r < t.n; r += (int)blockDim.x) {
		delta[r] = mpt__attention_dot(dout + r * out, v + r * out, w.width);
		lse[r] = mpt__attention_number(w.lse, t.batch, t.head, t.first + r);
		mpt__put(w.delta, mpt__attention_row(w.delta, t.batch, t.head, t.first + r), delta[r]);
		for (int c = 0; half != 0 && c < w.width; c++)
			dout[r * out + c] = mpt__computed(dout[r * out + c], half);
	}
again:
	mpt__attention_clear(sum, w.n * wide);
	__syncthreads();
	const long long first = mpt__attention_first_key(w, t);
	for (long long key = first; w.dq.data != NULL && key < seen; key += w.n) {
		const int m = (int)(seen - key < w.n ? seen - key : w.n);
		const mpt__attention_tile at = {t.batch, t.head, t.first, key, false, careful};
		mpt__attention_load(w.k, w.compute, t.batch, key_head, key, m, w.depth, 1.0f, k);
		mpt__attention_load(w.v, w.compute, t.batch, key_head, key, m, w.width, 1.0f, v);
		__syncthreads();
		for (int i = (int)threadIdx.x; i < m * t.n; i += (int)blockDim.x) {
			const int c = i / t.n, r = i % t.n;
			const long long query = t.first + r;
			float score = mpt__attention_dot(q + r * wide, k + c * wide, w.depth);
			score = mpt__attention_score(w, score, t.batch, t.head, query, key + c);
			float g = mpt__attention_dot(dout + r * out, v + c * out, w.width);
			if (w.drops) g *= mpt__attention_kept(w, sequence, t.batch, t.head, query, key + c);
			slope[c * w.n + r] =
				score == -INFINITY ? 0.0f : expf(score - lse[r]) * (g - delta[r]);
		}
		__syncthreads();
		mpt__attention_add(w, at, slope, k, m, t.n, w.depth, sum);
		__syncthreads();
	}
	if (!careful && mpt__attention_leaks(w, sum, t.n, w.depth)) {
		careful = true;
		goto again;
	}
	const unsigned int rows = some ? mpt__attention_broken(sum, t.n, w.depth) : ~0u;
	if (w.dq.data != NULL) mpt__attention_store(w.dq, t, w.depth, w.scale, sum, rows);
	__syncthreads();
	return rows;
}

__global__ void __launch_bounds__(MPT__THREADS, 2)
	mpt__attention_dq_kernel(const mpt__attention w) {
	const unsigned long long sequence = mpt__attention_sequence(w);
	for (long long item = blockIdx.x; item < w.items; item += gridDim.x)
		mpt__attention_item_dq(w, mpt__attention_at(w, item, false), sequence, 0, false);
}

/* Writes the rows of `dk` and `dv`, or SOME. */
__device__ unsigned int mpt__attention_item_dkv(const mpt__attention &w,
												const mpt__attention_item &t,
												unsigned long long sequence, int half, bool some) {
	const int wide = w.depth + 1, out = w.width + 1;
	float *k = mpt__attention_shared(), *v = k + w.n * wide, *q = v + w.n * out;
	float *dout = q + w.n * wide, *dk = dout + w.n * out, *dv = dk + w.n * wide;
	float *weight = dv + w.n * out, *slope = weight + w.n * w.n;
	const long long begin = w.causal && t.first > w.past ? t.first - w.past : 0;
	const long long last = t.first + t.n - 1 + w.window - w.past;
	const long long end = w.causal && last < w.queries ? last : w.queries;
	bool careful = some;
	mpt__attention_load(w.k, w.compute, t.batch, t.head, t.first, t.n, w.depth, w.scale, k);
	mpt__attention_load(w.v, w.compute, t.batch, t.head, t.first, t.n, w.width, 1.0f, v);
again:
	mpt__attention_clear(dk, w.n * (wide + out));
	for (long long h = t.head * w.group; h < (t.head + 1) * w.group; h++) {
		for (long long query = begin; query < end; query += w.n) {
			const int m = (int)(end - query < w.n ? end - query : w.n);
			const mpt__attention_tile tile = {t.batch, h, t.first, query, true, careful};
			mpt__attention_load(w.q, w.compute, t.batch, h, query, m, w.depth, 1.0f, q);
			mpt__attention_load(w.dout, half, t.batch, h, query, m, w.width, 1.0f, dout);
			__syncthreads();
			for (int i = (int)threadIdx.x; i < m * t.n; i += (int)blockDim.x) {
				const int c = i / t.n, r = i % t.n;
				const long long at = query + c;
				float score = mpt__attention_dot(q + c * wide, k + r * wide, w.depth);
				score = mpt__attention_score(w, score, t.batch, h, at, t.first + r);
				float g = mpt__attention_dot(dout + c * out, v + r * out, w.width), kept = 1.0f;
				if (w.drops)
					kept = mpt__attention_kept(w, sequence, t.batch, h, at, t.first + r);
				const float p =
					score == -INFINITY
						? 0.0f
						: expf(score - mpt__attention_number(w.lse, t.batch, h, at));
				const float delta = mpt__attention_number(w.delta, t.batch, h, at);
				weight[c * w.n + r] = p * kept;
				slope[c * w.n + r] = score == -INFINITY ? 0.0f : p * (g * kept - delta);
			}
			__syncthreads();
			mpt__attention_add(w, tile, slope, q, m, t.n, w.depth, dk);
			mpt__attention_add(w, tile, weight, dout, m, t.n, w.width, dv);
			__syncthreads();
		}
	}
	__syncthreads();
	if (!careful && (mpt__attention_leaks(w, dk, t.n, w.depth) ||
					 mpt__attention_leaks(w, dv, t.n, w.width))) {
		careful = true;
		goto again;
	}
	const unsigned int rows = !some ? ~0u
									: mpt__attention_broken(dk, t.n, w.depth) |
										  mpt__attention_broken(dv, t.n, w.width);
	if (w.dk.data != NULL) mpt__attention_store(w.dk, t, w.depth, w.scale, dk, rows);
	if (w.dv.data != NULL) mpt__attention_store(w.dv, t, w.width, 1.0f, dv, rows);
	__syncthreads();
	return rows;
}

__global__ void __launch_bounds__(MPT__THREADS, 2)
	mpt__attention_dkv_kernel(const mpt__attention w) {
	const unsigned long long sequence = mpt__attention_sequence(w);
	for (long long item = blockIdx.x; item < w.items; item += gridDim.x)
		mpt__attention_item_dkv(w, mpt__attention_at(w, item, true), sequence, 0, false);
}

#define MPT__ATTENTION_ROOM 49152	/* bytes of shared memory that every card gives a block */

/* Shared memory of a block whose tiles are n by n. */
size_t mpt__attention_bytes(const mpt__attention &w, bool by_keys) {
	const int floats = (w.depth + w.width + 2) * (by_keys ? 3 : 2) + (by_keys ? 0 : w.depth + 4) +
					   (by_keys ? 2 : 1) * w.n;
	return (size_t)w.n * (size_t)floats * sizeof(float);
}

/* What the three kernels share; false, with the reason recorded, where a row is too long. */
bool mpt__attention_of(const mpt__cuda_call *call, bool by_keys, mpt__attention *w) {
	const mpt__launch *launch = call->launch;
	const mpt__operand *o = launch->operand;
	const double p = launch->imm[1], lowest = p * 4294967296.0;
	memset(w, 0, sizeof *w);
	w->q = mpt__array_of(call, 0);
	w->k = mpt__array_of(call, 1);
	w->v = mpt__array_of(call, 2);
	w->mask = mpt__array_of(call, 3);
	w->heads = o[0].shape[1];
	w->group = o[1].shape[1] > 0 ? w->heads / o[1].shape[1] : 1;
	w->queries = o[0].shape[2];
	w->keys = o[1].shape[2];
	w->compute = launch->compute_dtype;
	w->causal = launch->index[0] != 0;
	w->window = launch->index[1] > 0 ? launch->index[1] : (long long)1 << 60;
	w->past = launch->index[2];
	w->scale = (float)launch->imm[0];
	w->drops = p > 0;
	w->dropout.key = mpt__key_of(call);
	w->dropout.any = lowest <= 4294967295.0;
	w->dropout.factor = w->dropout.any ? (float)(1 / (1 - p)) : 0.0f;
	w->dropout.threshold = w->dropout.any && lowest > 0 ? (unsigned int)ceil(lowest) : 0;
	w->depth = (int)(o[0].shape[3] < MPT__ATTENTION_ROOM ? o[0].shape[3] : MPT__ATTENTION_ROOM);
	w->width = (int)(o[2].shape[3] < MPT__ATTENTION_ROOM ? o[2].shape[3] : MPT__ATTENTION_ROOM);
	for (w->n = 32; w->n > 1 && mpt__attention_bytes(*w, by_keys) > MPT__ATTENTION_ROOM;) w->n /= 2;
	if (mpt__attention_bytes(*w, by_keys) > MPT__ATTENTION_ROOM) {
		mpt__cuda_refuse(call->cuda, MPT_ERROR_UNSUPPORTED, "attention",
						 "a head is too wide for the shared memory of a GPU (about 2000 elements)");
		return false;
	}
	w->rows = w->n;
	w->blocks = ((by_keys ? w->keys : w->queries) + w->n - 1) / w->n;
	w->items = o[0].shape[0] * (by_keys ? w->heads / w->group : w->heads) * w->blocks;
	return true;
}

unsigned int mpt__attention_blocks(const mpt__attention &w) {
	return (unsigned int)(w.items < (1 << 20) ? w.items : 1 << 20);
}

/* ---- Rotary positions ---- */

struct mpt__rope {
	mpt__array x, y;
	long long count, heads, rows, half, first;	/* count: pairs */
	double base, sign;
	int neighbours;
};

__global__ void mpt__rope_kernel(const mpt__rope w) {
	MPT__EACH(i, w.count) {
		const long long pair = i % w.half, t = i / w.half % w.rows;
		const long long h = i / w.half / w.rows % w.heads, b = i / w.half / w.rows / w.heads;
		const double angle =
			(double)(w.first + t) * pow(w.base, -(double)pair / (double)w.half);
		const float cosine = (float)cos(angle), sine = (float)(sin(angle) * w.sign);
		const long long one = w.neighbours ? 2 * pair : pair;
		const long long two = w.neighbours ? one + 1 : one + w.half;
		const long long from = mpt__attention_row(w.x, b, h, t);
		const long long to = mpt__attention_row(w.y, b, h, t);
		const float p = mpt__load(w.x.data, w.x.dtype, from + one * w.x.stride[3]);
		const float q = mpt__load(w.x.data, w.x.dtype, from + two * w.x.stride[3]);
		mpt__put(w.y, to + one * w.y.stride[3], p * cosine - q * sine);
		mpt__put(w.y, to + two * w.y.stride[3], p * sine + q * cosine);
	}
}

mpt_status mpt__cuda_rope(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const int64_t *size = launch->operand[0].shape;
	mpt__rope w;
	memset(&w, 0, sizeof w);
	w.x = mpt__array_of(call, 0);
	w.y = mpt__array_of(call, 1);
	w.heads = size[1], w.rows = size[2], w.half = size[3] / 2;
	w.count = size[0] * w.heads * w.rows * w.half;
	w.first = launch->index[0], w.neighbours = launch->index[1] != 0;
	w.base = launch->imm[0], w.sign = launch->imm[1];
	if (w.count == 0) return MPT_OK;
	mpt__rope_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}

/* ---- Hash grids ---- */

#define MPT__GRID_BATCH 64	/* points that a block holds, backward */
#define MPT__GRID_CORNERS 8

struct mpt__grid {
	mpt__array x, table, rows;
	long long points, levels, entries, features, coarsest;
	double growth;
	long long dims;
};

/* Where the entries around point n lie, on a level, and their weights. */
__device__ void mpt__grid_corners(const mpt__grid &w, long long level, long long n, long long *row,
								  float *weight) {
	const unsigned int primes[3] = {1, 2654435761u, 805459861u};
	const long long cells =
		(long long)((double)w.coarsest * exp((double)level * w.growth) + 1e-6);
	long long low[3], step[4] = {1, 1, 1, 1};
	double part[3][2];
	for (int d = 0; d < w.dims; d++) {
		const double most = (double)cells;
		double at = most * (double)mpt__load(w.x.data, w.x.dtype,
											 n * w.x.stride[0] + d * w.x.stride[1]);
		if (at < 0) at = 0;
		if (at > most) at = most;
		low[d] = at < most ? (long long)at : cells - 1;
		part[d][1] = at - (double)low[d], part[d][0] = 1 - part[d][1];
		step[d + 1] = step[d] * (cells + 1);
	}
	for (int c = 0; c < 1 << w.dims; c++) {
		unsigned int hash = 0;
		long long place = 0;
		double product = 1;
		for (int d = 0; d < w.dims; d++) {
			const long long p = low[d] + (c >> d & 1);
			product *= part[d][c >> d & 1];
			hash ^= (unsigned int)p * primes[d], place += p * step[d];
		}
		row[c] = level * w.table.stride[0] + (step[w.dims] <= w.entries ? place : hash % w.entries) * w.table.stride[1];
		weight[c] = (float)product;
	}
}

__global__ void mpt__grid_kernel(const mpt__grid w) {
	MPT__EACH(i, w.points * w.levels) {
		const long long n = i / w.levels, level = i % w.levels;
		long long row[MPT__GRID_CORNERS];
		float weight[MPT__GRID_CORNERS];
		mpt__grid_corners(w, level, n, row, weight);
		for (long long f = 0; f < w.features; f++) {
			float sum = 0;
			for (int c = 0; c < 1 << w.dims; c++)
				sum += weight[c] * mpt__load(w.table.data, w.table.dtype, row[c] + f * w.table.stride[2]);
			mpt__put(w.rows, n * w.rows.stride[0] + (level * w.features + f) * w.rows.stride[1], sum);
		}
	}
}

/* A block has a level, a thread of it every so many rows, to which it alone adds: in order. */
__global__ void mpt__grid_backward_kernel(const mpt__grid w) {
	__shared__ long long row[MPT__GRID_BATCH * MPT__GRID_CORNERS];
	__shared__ float weight[MPT__GRID_BATCH * MPT__GRID_CORNERS];
	const long long level = blockIdx.x;
	for (long long first = 0; first < w.points; first += MPT__GRID_BATCH) {
		const int n = (int)(w.points - first < MPT__GRID_BATCH ? w.points - first : MPT__GRID_BATCH);
		__syncthreads();
		if ((int)threadIdx.x < n)
			mpt__grid_corners(w, level, first + threadIdx.x,
							  row + threadIdx.x * MPT__GRID_CORNERS,
							  weight + threadIdx.x * MPT__GRID_CORNERS);
		__syncthreads();
		for (int i = 0; i < n * MPT__GRID_CORNERS; i++) {
			if (i % MPT__GRID_CORNERS >= 1 << w.dims || row[i] / w.features % blockDim.x != threadIdx.x) continue;
			const long long from = (first + i / MPT__GRID_CORNERS) * w.rows.stride[0];
			for (long long f = 0; f < w.features; f++) {
				const float dy = mpt__load(
					w.rows.data, w.rows.dtype,
					from + (level * w.features + f) * w.rows.stride[1]);
				if (w.table.dtype == MPT_F64)
					((double *)w.table.data)[row[i] + f] += (double)(weight[i] * dy);
				else
					((float *)w.table.data)[row[i] + f] += weight[i] * dy;
			}
		}
	}
}

mpt__grid mpt__grid_of(const mpt__cuda_call *call, int places, int table, int rows) {
	const mpt__operand *o = call->launch->operand;
	mpt__grid w;
	memset(&w, 0, sizeof w);
	w.x = mpt__array_of(call, places);
	w.table = mpt__array_of(call, table);
	w.rows = mpt__array_of(call, rows);
	w.points = o[places].shape[0], w.dims = o[places].shape[1];
	w.levels = o[table].shape[0], w.entries = o[table].shape[1], w.features = o[table].shape[2];
	w.coarsest = call->launch->index[0], w.growth = call->launch->imm[0];
	return w;
}

mpt_status mpt__cuda_hash_grid(const mpt__cuda_call *call) {
	const mpt__grid w = mpt__grid_of(call, 1, 0, 2);
	const long long count = w.points * w.levels;
	if (count > 0)
		mpt__grid_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}

mpt_status mpt__cuda_hash_grid_backward(const mpt__cuda_call *call) {
	const mpt__grid w = mpt__grid_of(call, 0, 2, 1);
	const size_t size = w.table.dtype == MPT_F64 ? sizeof(double) : sizeof(float);
	const size_t bytes = size * (size_t)(w.levels * w.entries * w.features);
	if (!w.table.accumulate) cudaMemsetAsync(w.table.data, 0, bytes, call->stream);
	if (w.points > 0)
		mpt__grid_backward_kernel<<<(unsigned int)w.levels, MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}
/* ==== Attention on tensor cores ====
 *
 * Of bf16 and fp16. A block has rows of its own side, 16 to a warp, and goes over tiles of the
 * other side in shared memory. Both products of a tile are of the warp's rows: scores = own
 * other^T, and sums += weights other, where the weights come from the scores in registers, rounded
 * to 16 bits as a product's operand. Rows in shared memory are 8 numbers longer than D: then the
 * eight rows of a matrix that is loaded lie in different banks.
 *
 * Of a fragment [16, 8] a lane has rows lane / 4 and lane / 4 + 8, and columns lane % 4 * 2 and the
 * one after it. What is wider or narrower than D is cut off by zeros.
 *
 * What is not seen has weights of 0, which does no good to NaN. Where sums are not finite and
 * something is hidden, a block stores nothing but that it leaks, and a second kernel does its work
 * again, with care: the kernels of all cards find those rows that are not finite by what they see,
 * and store them (mpt__attention_again). The others see nothing of that kind: the same code, which
 * now takes what is not finite for 0, gives them the bits that they have where nothing is hidden
 * that is not finite. */

#define MPT__LOG2E 1.44269504088896341f
#define MPT__LN2 0.693147180559945309f

/* How attention of heads of up to D elements is cut: keys of a tile forward, warps of a block and
   elements of a tile backward, where wide heads leave registers and shared memory for less. */
template <int D> struct mpt__attention_cut {
	static const int pitch = D + 8, keys = D <= 64 ? 64 : D <= 96 ? 32 : 16;
	static const int warps = 4, rows = 16 * warps;
	static const int back_warps = D <= 64 ? 4 : 8, back_rows = 16 * back_warps;
	static const int others = D <= 64 ? 32 : 16, stages = D <= 64 ? 2 : 1;
};

#if MPT__MATRIX

/* Element `at` of an array of numbers of 32 or 16 bits. */
__device__ __forceinline__ float mpt__attention_element(const void *data, int dtype, long long at) {
	if (dtype == MPT_F32) return ((const float *)data)[at];
	const unsigned short bits = ((const unsigned short *)data)[at];
	return dtype == MPT_F16 ? __half2float(__ushort_as_half(bits))
							: __uint_as_float((unsigned int)bits << 16);
}

/* Rows of one head in memory. Strides and lengths fit into ints, as
   mpt__attention_matrix sees to. */
struct mpt__attention_rows {
	const char *data;
	int step, column_step, dtype, columns, count, eights;
};

/* Which rows of a block are stored before it works with care: a bit for each. */
template <bool CARE> __device__ __forceinline__ unsigned int *mpt__attention_stored() {
	if constexpr (CARE) {
		__shared__ unsigned int rows[4];
		return rows;
	} else {
		return NULL;
	}
}

/* Whether two numbers of 16 bits are finite. */
template <bool F16> __device__ __forceinline__ bool mpt__finite2(unsigned int pair) {
	const unsigned int most = F16 ? 0x7c00 : 0x7f80;
	return (pair & most) != most && (pair >> 16 & most) != most;
}

template <bool WHOLE>
__device__ __forceinline__ mpt__attention_rows
mpt__attention_rows_of(const mpt__array &array, long long b, long long h, int columns, int count,
					   int eights) {
	mpt__attention_rows rows;
	const int size = array.dtype == MPT_F32 ? 4 : 2;
	rows.data = (const char *)array.data + (b * array.stride[0] + h * array.stride[1]) * size;
	rows.dtype = array.dtype;
	rows.step = (int)array.stride[2];
	rows.column_step = (int)array.stride[3];
	rows.columns = columns;
	rows.count = count;
	rows.eights = eights;
#if defined(__CUDA_ARCH__)
	if (WHOLE) asm("" : "+l"(rows.data));	/* two registers, not five for its parts */
#endif
	return rows;
}

/* Begins to copy ROWS rows from `first` on, which are halves in pieces of eight. Beyond the last
   one comes that one again, whose weights are 0 or whose sums nobody stores; beyond its columns
   come zeros, and with CARE for what is not finite, too. */
template <bool F16, bool CARE, int D, int ROWS, int THREADS>
__device__ __forceinline__ void mpt__tile_copy(const mpt__attention_rows &rows, int first,
											   unsigned short *to) {
	const int pieces = D <= 32 ? 4 : D <= 64 ? 8 : 16, apart = THREADS / pieces;
	const int r = (int)threadIdx.x / pieces, c = (int)threadIdx.x % pieces * 8;
	const int step = rows.step * 2, last = rows.count - 1;
	const bool there = c < rows.columns;
	const char *from = rows.data + c * 2;
	if (c >= D) return;
	to += r * (D + 8) + c;
	if (!CARE && first + ROWS <= rows.count) {
		from += (long long)(first + r) * step;
#pragma unroll
		for (int j = 0; j < ROWS / apart; j++)
			mpt__copy_begin<16>(to + j * apart * (D + 8), from + (long long)step * (j * apart),
								there);
		return;
	}
#pragma unroll 1
	for (int j = 0; j < ROWS; j += apart) {
		const int row = first + r + j < last ? first + r + j : last;
		const char *piece = from + (long long)row * step;
		bool good = there;
#pragma unroll 1
		for (int i = 0; CARE && good && i < 4; i++)
			good = mpt__finite2<F16>(((const unsigned int *)piece)[i]);
		mpt__copy_begin<16>(to + j * (D + 8), piece, good);
	}
}

/* The same of any rows, if there may be ANY: others pass through registers, where they are
   rounded. */
template <bool F16, bool ANY, bool CARE, int D, int ROWS, int THREADS>
__device__ __forceinline__ void mpt__tile_begin(const mpt__attention_rows &rows, int first,
												unsigned short *to) {
	if (!ANY || rows.eights) mpt__tile_copy<F16, CARE, D, ROWS, THREADS>(rows, first, to);
	const int numbers = !ANY || rows.eights ? 0 : ROWS * D / 2;
#pragma unroll 1
	for (int i = (int)threadIdx.x; i < numbers; i += THREADS) {
		const int r = i / (D / 2), c = i % (D / 2) * 2, last = rows.count - 1;
		const int row = first + r < last ? first + r : last;
		const long long at = (long long)row * rows.step + (long long)c * rows.column_step;
		float x[2] = {0.0f, 0.0f};
		if (c < rows.columns) x[0] = mpt__attention_element(rows.data, rows.dtype, at);
		if (c + 1 < rows.columns)
			x[1] = mpt__attention_element(rows.data, rows.dtype, at + rows.column_step);
		const unsigned int pair = mpt__pack2<F16>(x[0], x[1]);
		const bool good = !CARE || mpt__finite2<F16>(pair);
		*(unsigned int *)(to + r * (D + 8) + c) = good ? pair : 0;
	}
}

/* A warp's rows as the left operand of products: from the lane's row of the fragments. */
template <int D>
__device__ __forceinline__ void mpt__tile_left(const unsigned short *own, unsigned int (&a)[4],
											   int step) {
	const int lane = (int)threadIdx.x % MPT__WARP;
	mpt__ldmatrix<false>(a, own + lane % 16 * (D + 8) + lane / 16 * 8 + step * 16);
}

/* s = own other^T, [16, N]; what the warp's rows are comes by steps of 16 columns, from `held`
   registers or from shared memory. */
template <bool F16, int D, int N, bool HELD>
__device__ __forceinline__ void mpt__tile_scores(float (&s)[N / 8][4], const unsigned short *own,
												 const unsigned int (&held)[D / 16][4],
												 const unsigned short *other) {
	const int lane = (int)threadIdx.x % MPT__WARP;
	const unsigned short *at = other + (lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8;
#pragma unroll
	for (int n = 0; n < N / 8; n++)
		for (int i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
	for (int k = 0; k < D / 16; k++) {
		unsigned int a[4], b[4];
		if (HELD)
			for (int i = 0; i < 4; i++) a[i] = held[k][i];
		else
			mpt__tile_left<D>(own, a, k);
#pragma unroll
		for (int n = 0; n < N / 16; n++) {
			mpt__ldmatrix<false>(b, at + n * 16 * (D + 8) + k * 16);
			mpt__mma<F16>(s[2 * n], a, b[0], b[1]);
			mpt__mma<F16>(s[2 * n + 1], a, b[2], b[3]);
		}
	}
}

/* sum += weights other, [16, D]. */
template <bool F16, int D, int N>
__device__ __forceinline__ void mpt__tile_add(float (&sum)[D / 8][4], const float (&s)[N / 8][4],
											  const unsigned short *other) {
	const int lane = (int)threadIdx.x % MPT__WARP;
	const unsigned short *at = other + lane % 16 * (D + 8) + lane / 16 * 8;
#pragma unroll
	for (int k = 0; k < N / 16; k++) {
		unsigned int b[4];
		const unsigned int a[4] = {mpt__pack2<F16>(s[2 * k][0], s[2 * k][1]),
								   mpt__pack2<F16>(s[2 * k][2], s[2 * k][3]),
								   mpt__pack2<F16>(s[2 * k + 1][0], s[2 * k + 1][1]),
								   mpt__pack2<F16>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
		for (int n = 0; n < D / 16; n++) {
			mpt__ldmatrix<true>(b, at + k * 16 * (D + 8) + n * 16);
			mpt__mma<F16>(sum[2 * n], a, b[0], b[1]);
			mpt__mma<F16>(sum[2 * n + 1], a, b[2], b[3]);
		}
	}
}

/* The elements of the other side that one of the own side sees: from low on, below high. */
struct mpt__attention_span {
	int low, high;
};

template <bool BY_KEYS>
__device__ __forceinline__ mpt__attention_span mpt__attention_span_of(const mpt__attention &w,
																	  int own) {
	const int past = (int)w.past, window = (int)w.window;
	mpt__attention_span span = {0, (int)(BY_KEYS ? w.queries : w.keys)};
	if (w.causal) {
		const int low = BY_KEYS ? own - past : own + past + 1 - window;
		const int high = BY_KEYS ? own - past + window : own + past + 1;
		span.low = low > 0 ? low : 0;
		span.high = high < span.high ? high : span.high;
	}
	return span;
}

/* Where tiles of N may begin of which every row of a piece of work sees everything. */
template <bool BY_KEYS, int N>
__device__ __forceinline__ mpt__attention_span
mpt__attention_inner(const mpt__attention &w, const mpt__attention_item &t) {
	const mpt__attention_span first = mpt__attention_span_of<BY_KEYS>(w, (int)t.first);
	const mpt__attention_span last = mpt__attention_span_of<BY_KEYS>(w, (int)t.first + t.n - 1);
	const mpt__attention_span inner = {last.low, first.high - N};
	return inner;
}

/* Hides what lies outside the spans of the lane's two rows. `other`: where the tile begins. */
template <bool BY_KEYS, int N>
__device__ __forceinline__ void mpt__tile_hide(const mpt__attention &w, float (&s)[N / 8][4],
											   int own, int other) {
	const int start = other + (int)threadIdx.x % 4 * 2;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const mpt__attention_span span = mpt__attention_span_of<BY_KEYS>(w, own + half * 8);
		const int low = span.low - start, high = span.high - start;
#pragma unroll
		for (int i = 0; i < N / 4; i++) {
			const int c = i / 2 * 8 + i % 2;
			if (c < low || c >= high) s[i / 2][half * 2 + i % 2] = -INFINITY;
		}
	}
}

/* Adds the mask, which is multiplied by `factor`. */
template <bool BY_KEYS, int N>
__device__ __forceinline__ void mpt__tile_mask(const mpt__attention &w, float (&s)[N / 8][4],
											   long long b, long long h, int own, int other,
											   float factor) {
	const long long from = b * w.mask.stride[0] + h * w.mask.stride[1];
	const int pair = (int)threadIdx.x % 4 * 2, dtype = w.mask.dtype;
#pragma unroll
	for (int n = 0; n < N / 8; n++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int one = own + i / 2 * 8, two = other + n * 8 + pair + i % 2;
			const int query = BY_KEYS ? two : one, key = BY_KEYS ? one : two;
			if (query >= (int)w.queries || key >= (int)w.keys) continue;
			const long long at = from + query * w.mask.stride[2] + key * w.mask.stride[3];
			const float x =
				dtype == MPT_BOOL
					? (((const unsigned char *)w.mask.data)[at] ? 0.0f : -INFINITY)
					: mpt__attention_element(w.mask.data, dtype, at);
			s[n][i] = x == -INFINITY ? x : s[n][i] + x * factor;
		}
	}
}

/* Which of the lane's elements dropout keeps: a bit for each. */
template <bool BY_KEYS, int N>
__device__ __forceinline__ unsigned int mpt__tile_kept(const mpt__attention &w, long long b,
													   long long h, int own, int other) {
	const unsigned long long sequence = mpt__attention_sequence(w);
	const int pair = (int)threadIdx.x % 4 * 2;
	unsigned int kept = 0;
#pragma unroll 1
	for (int e = 0; e < N / 2; e++) {
		const int one = own + e % 4 / 2 * 8, two = other + e / 4 * 8 + pair + e % 2;
		const float factor = mpt__attention_kept(w, sequence, b, h, BY_KEYS ? two : one,
												 BY_KEYS ? one : two);
		kept |= (factor != 0.0f ? 1u : 0u) << e;
	}
	return kept;
}

/* Whether a sum is not finite where something is hidden, which may have leaked into it as 0 times
   NaN. */
template <int D>
__device__ __forceinline__ bool mpt__tile_leaks(const mpt__attention &w,
												const float (&sum)[D / 8][4]) {
	int bad = 0;
	if (w.leaks == NULL) return false;
#pragma unroll
	for (int n = 0; n < D / 8; n++)
		for (int i = 0; i < 4; i++) bad |= !(fabsf(sum[n][i]) < INFINITY);
	return __syncthreads_or(bad) != 0;
}

/* Notes whether a block leaks. */
__device__ __forceinline__ bool mpt__block_leaks(const mpt__attention &w, unsigned int block,
												 bool leaks) {
	if (w.leaks != NULL && threadIdx.x == 0) w.leaks[block] = leaks;
	return leaks;
}

/* Stores those rows of a piece of work that are not finite by what they see, in pieces for which
   there is shared memory; marks them in shared memory. `half`: what dout is rounded to. */
enum { MPT__ATTENTION_OUT, MPT__ATTENTION_DQ, MPT__ATTENTION_DKV };
__device__ __noinline__ void mpt__attention_again(const mpt__attention &w,
												  const mpt__attention_item &all, int pass,
												  int half) {
	const unsigned long long sequence = mpt__attention_sequence(w);
	unsigned int *stored = mpt__attention_stored<true>(), rows = 0;
	mpt__attention_item t = all;
	if (threadIdx.x < 4) stored[threadIdx.x] = 0;
	__syncthreads();
	for (int done = 0; done < all.n; done += w.n) {
		t.first = all.first + done;
		t.n = all.n - done < w.n ? all.n - done : w.n;
		if (pass == MPT__ATTENTION_OUT) rows = mpt__attention_item_out(w, t, sequence, true);
		if (pass == MPT__ATTENTION_DQ) rows = mpt__attention_item_dq(w, t, sequence, half, true);
		if (pass == MPT__ATTENTION_DKV) rows = mpt__attention_item_dkv(w, t, sequence, half, true);
		if (threadIdx.x == 0) stored[done / 32] |= rows << done % 32;
	}
	__syncthreads();
}

/* The block's sums, by rows of columns + 1 in shared memory, to where they belong, but those that
   are `stored`, if any. */
__device__ __noinline__ void mpt__attention_give(const mpt__array &array,
												 const mpt__attention_item &t, int columns,
												 float factor, int eights,
												 const unsigned int *stored) {
	const float *from = mpt__attention_shared();
	if (!eights) {
		mpt__attention_item some = t;
		for (int done = 0; done < t.n; done += 32) {
			some.first = t.first + done;
			some.n = t.n - done < 32 ? t.n - done : 32;
			mpt__attention_store(array, some, columns, factor, from + done * (columns + 1),
								 stored != NULL ? ~stored[done / 32] : ~0u);
		}
		return;
	}
	const long long to = mpt__attention_row(array, t.batch, t.head, t.first);
	for (int i = (int)threadIdx.x; i < t.n * (columns / 8); i += (int)blockDim.x) {
		const int r = i / (columns / 8), c = i % (columns / 8) * 8;
		float x[8];
		if (stored != NULL && stored[r / 32] >> r % 32 & 1) continue;
		for (int k = 0; k < 8; k++) x[k] = from[r * (columns + 1) + c + k] * factor;
		mpt__put8<false>(array, to + r * array.stride[2] + c, x);
	}
}

/* Sums times a factor for each of the lane's rows, into shared memory for that. */
template <int D>
__device__ __forceinline__ void mpt__tile_put(const float (&sum)[D / 8][4], int columns,
											  float first, float second) {
	const int lane = (int)threadIdx.x % MPT__WARP;
	float *to = mpt__attention_shared() +
				((int)threadIdx.x / MPT__WARP * 16 + lane / 4) * (columns + 1);
	__syncthreads();
#pragma unroll
	for (int n = 0; n < D / 8; n++) {
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const int c = n * 8 + lane % 4 * 2 + i % 2;
			if (c < columns)
				to[i / 2 * 8 * (columns + 1) + c] = sum[n][i] * (i < 2 ? first : second);
		}
	}
	__syncthreads();
}

/* ---- Forward ---- */

/* What a lane knows of its two rows: the largest score so far, and the sum of its weights. */
struct mpt__attention_state {
	float most[2], total[2];
};

__device__ __forceinline__ float mpt__quad_max(float x) {
	x = fmaxf(x, __shfl_xor_sync(MPT__ALL, x, 1));
	return fmaxf(x, __shfl_xor_sync(MPT__ALL, x, 2));
}
__device__ __forceinline__ float mpt__quad_sum(float x) {
	x += __shfl_xor_sync(MPT__ALL, x, 1);
	return x + __shfl_xor_sync(MPT__ALL, x, 2);
}

/* Scores become weights; what was summed before shrinks to the new maximum. A NaN is no maximum,
   but its weight is NaN. */
template <int D, int N>
__device__ __forceinline__ void mpt__tile_softmax(float (&s)[N / 8][4], float (&sum)[D / 8][4],
												  mpt__attention_state *state, float scale) {
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float top = fmaxf(s[0][2 * half], s[0][2 * half + 1]), total = 0.0f;
#pragma unroll
		for (int n = 1; n < N / 8; n++)
			top = fmaxf(fmaxf(top, s[n][2 * half]), s[n][2 * half + 1]);
		top = fmaxf(state->most[half], mpt__quad_max(top));
		const float base = top == -INFINITY ? 0.0f : top * scale;
		const float shrink = mpt__exp2(state->most[half] * scale - base);
#pragma unroll
		for (int n = 0; n < N / 8; n++) {
#pragma unroll
			for (int i = 2 * half; i < 2 * half + 2; i++) {
				s[n][i] = mpt__exp2(__fmaf_rn(s[n][i], scale, -base));
				total += s[n][i];
			}
		}
		state->most[half] = top;
		state->total[half] = state->total[half] * shrink + total;
		if (!__any_sync(MPT__ALL, shrink != 1.0f)) continue;	/* as it is after a few tiles */
#pragma unroll
		for (int n = 0; n < D / 8; n++) {
			sum[n][2 * half] *= shrink;
			sum[n][2 * half + 1] *= shrink;
		}
	}
}

/* Sums over the softmax's to `out`, and its logarithm to `lse`. */
template <int D, bool CARE>
__device__ __forceinline__ void mpt__forward_end(const mpt__attention &w,
												 const mpt__attention_item &t, int row,
												 const float (&sum)[D / 8][4],
												 const mpt__attention_state &state) {
	const unsigned int *stored = mpt__attention_stored<CARE>();
	float factor[2];
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const float total = mpt__quad_sum(state.total[half]);
		const int at = row + 8 * half, r = at - (int)t.first;
		factor[half] = total == 0.0f ? 0.0f : 1.0f / total;
		if (w.lse.data != NULL && threadIdx.x % 4 == 0 && r < t.n &&
			!(CARE && stored[r / 32] >> r % 32 & 1))
			((float *)w.lse.data)[mpt__attention_row(w.lse, t.batch, t.head, at)] =
				total == 0.0f ? INFINITY : state.most[half] * w.scale + logf(total);
	}
	mpt__tile_put<D>(sum, w.width, factor[0], factor[1]);
	mpt__attention_give(w.out, t, w.width, 1.0f, w.store_eights[0], stored);
}

/* The work of a block. ANY: with a mask, with dropout, or of other rows than halves in pieces of
   eight. */
template <bool F16, int D, bool ANY, bool CARE>
__device__ __forceinline__ void mpt__attention_forward(const mpt__attention &w,
													   unsigned int block) {
	typedef mpt__attention_cut<D> cut;
	const int N = cut::keys, threads = MPT__WARP * cut::warps, steps = D / 16;
	const bool held = D <= 32;
	const int lane = (int)threadIdx.x % MPT__WARP, warp = (int)threadIdx.x / MPT__WARP;
	unsigned short *q = (unsigned short *)mpt__attention_shared();
	unsigned short *k = q + cut::rows * cut::pitch, *v = k + N * cut::pitch;
	const unsigned short *own = q + warp * 16 * cut::pitch;
	/* The last blocks of rows see most keys: they begin first. */
	const mpt__attention_item t = mpt__attention_at(w, w.items - 1 - block, false);
	const mpt__attention_span inner = mpt__attention_inner<false, N>(w, t);
	const long long key_head = t.head / w.group;
	const int row = (int)t.first + warp * 16 + lane / 4, end = (int)mpt__attention_seen(w, t);
	const mpt__attention_rows of_k =
		mpt__attention_rows_of<(D > 64)>(w.k, t.batch, key_head, w.depth, (int)w.keys, w.eights[1]);
	const mpt__attention_rows of_v =
		mpt__attention_rows_of<(D > 64)>(w.v, t.batch, key_head, w.width, (int)w.keys, w.eights[2]);
	mpt__attention_state state = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
	float sum[D / 8][4], s[N / 8][4];
	unsigned int a[steps][4];
	int key = (int)mpt__attention_first_key(w, t);
#pragma unroll
	for (int n = 0; n < D / 8; n++)
		for (int i = 0; i < 4; i++) sum[n][i] = 0.0f;
	mpt__tile_begin<F16, ANY, false, D, cut::rows, threads>(
		mpt__attention_rows_of<(D > 64)>(w.q, t.batch, t.head, w.depth, (int)w.queries,
										 w.eights[0]),
		(int)t.first, q);
	if (key < end) mpt__tile_begin<F16, ANY, false, D, N, threads>(of_k, key, k);
	if (held) {
		mpt__copy_wait();
		__syncthreads();
#pragma unroll
		for (int i = 0; i < steps; i++) mpt__tile_left<D>(own, a[i], i);
	}
#pragma unroll 1
	for (; key < end; key += N) {
		mpt__copy_wait();
		__syncthreads();	/* k has come, and nobody needs v any more */
		mpt__tile_begin<F16, ANY, CARE, D, N, threads>(of_v, key, v);
		mpt__tile_scores<F16, D, N, held>(s, own, a, k);
		mpt__copy_wait();
		__syncthreads();	/* the other way round */
		if (key + N < end) mpt__tile_begin<F16, ANY, false, D, N, threads>(of_k, key + N, k);
		if (ANY && w.mask.data != NULL)
			mpt__tile_mask<false, N>(w, s, t.batch, t.head, row, key, 1.0f / w.scale);
		if (key < inner.low || key > inner.high) mpt__tile_hide<false, N>(w, s, row, key);
		mpt__tile_softmax<D, N>(s, sum, &state, w.steep);
		if (ANY && w.drops) {
			const unsigned int kept = mpt__tile_kept<false, N>(w, t.batch, t.head, row, key);
#pragma unroll
			for (int e = 0; e < N / 2; e++)
				s[e / 4][e % 4] *= kept >> e & 1 ? w.dropout.factor : 0.0f;
		}
		mpt__tile_add<F16, D, N>(sum, s, v);
	}
	mpt__copy_wait();
	if (CARE || !mpt__block_leaks(w, block, mpt__tile_leaks<D>(w, sum)))
		mpt__forward_end<D, CARE>(w, t, row, sum, state);
}

#endif	/* MPT__MATRIX */

template <bool F16, int D, bool ANY>
__global__ void __launch_bounds__(MPT__WARP *mpt__attention_cut<D>::warps, ANY ? 2 : 4)
	mpt__attention_matrix_kernel(const __grid_constant__ mpt__attention w) {
#if MPT__MATRIX
	mpt__attention_forward<F16, D, ANY, false>(w, blockIdx.x);
#endif
}

/* The work of those blocks that leak. */
template <bool F16, int D>
__global__ void __launch_bounds__(MPT__WARP *mpt__attention_cut<D>::warps, 1)
	mpt__attention_careful_kernel(const __grid_constant__ mpt__attention w) {
#if MPT__MATRIX
	for (unsigned int block = blockIdx.x; block < w.items; block += gridDim.x) {
		if (!w.leaks[block]) continue;
		mpt__attention_again(w, mpt__attention_at(w, w.items - 1 - block, false),
							 MPT__ATTENTION_OUT, 0);
		mpt__attention_forward<F16, D, true, true>(w, block);
		__syncthreads();
	}
#endif
}

/* ---- Backward ----
 *
 * One kernel for all gradients: its own side is that whose gradient it sums, and scores and
 * products dout v^T are formed again. dq: own rows of q and dout, others of k and v. dk and dv: own
 * rows of k and v, others of q and dout, of all heads that share the keys. Wide heads sum dk and dv
 * one after the other. */

/* What is summed: slopes times q or k, weights times dout. */
enum { MPT__SLOPES = 1, MPT__WEIGHTS = 2 };

template <int D, bool BY_KEYS, int SUMS> struct mpt__attention_block {
	typedef mpt__attention_cut<D> cut;
	static const int own = (SUMS & MPT__SLOPES ? 2 : 1) * cut::back_rows * cut::pitch;	/* numbers */
	static const int stage = 2 * cut::others * cut::pitch;
	static const int floats = BY_KEYS ? cut::stages * 2 * cut::others : cut::back_rows;
};

#if MPT__MATRIX

/* The sums of dout out of the block's rows, to memory and to `delta`. */
template <bool CARE>
__device__ __forceinline__ void mpt__attention_deltas(const mpt__attention &w,
													  const mpt__attention_item &t, int rows,
													  float *delta) {
	const int lane = (int)threadIdx.x % MPT__WARP;
#pragma unroll 1
	for (int r = (int)threadIdx.x / MPT__WARP; r < rows; r += (int)blockDim.x / MPT__WARP) {
		float sum = 0.0f;
		if (r < t.n) {
			const long long a = mpt__attention_row(w.dout, t.batch, t.head, t.first + r);
			const long long b = mpt__attention_row(w.out, t.batch, t.head, t.first + r);
#pragma unroll 1
			for (int c = lane; c < w.width; c += MPT__WARP)
				sum += mpt__attention_element(w.dout.data, w.dout.dtype, a + c * w.dout.stride[3]) *
					   mpt__attention_element(w.out.data, w.out.dtype, b + c * w.out.stride[3]);
		}
		for (int step = MPT__WARP / 2; step > 0; step /= 2)
			sum += __shfl_xor_sync(MPT__ALL, sum, step);
		if (lane != 0) continue;
		delta[r] = CARE && !(fabsf(sum) < INFINITY) ? 0.0f : sum;
		if (r < t.n)
			((float *)w.delta.data)[mpt__attention_row(w.delta, t.batch, t.head, t.first + r)] =
				sum;
	}
}

/* Begins to copy N of the numbers of queries, and zeros beyond the last one or, with care, for what
   is not finite. */
template <int N, bool CARE>
__device__ __forceinline__ void mpt__numbers_begin(const mpt__array &array, long long b,
												   long long h, int first, int count, int thread,
												   float *to) {
	if (thread < 0 || thread >= N) return;
	bool there = first + thread < count;
	const float *from = (const float *)array.data +
						mpt__attention_row(array, b, h, there ? first + thread : first);
	if (CARE) there = there && fabsf(*from) < INFINITY;
	mpt__copy_begin<4>(to + thread, from, there);
}

/* Where a block is, and which elements of the other side it goes over. */
struct mpt__attention_place {
	mpt__attention_item t;
	mpt__attention_span inner;	/* where tiles begin that need no hiding */
	int row, begin, end;		/* row: the lane's first one */
};

template <bool BY_KEYS, int N>
__device__ __forceinline__ mpt__attention_place mpt__attention_place_of(const mpt__attention &w,
																		long long item) {
	mpt__attention_place p;
	p.t = mpt__attention_at(w, item, BY_KEYS);
	p.inner = mpt__attention_inner<BY_KEYS, N>(w, p.t);
	p.row = (int)p.t.first + (int)threadIdx.x / MPT__WARP * 16 + (int)threadIdx.x % MPT__WARP / 4;
	if (BY_KEYS) {
		const long long last = p.t.first + p.t.n - 1 + w.window - w.past;
		p.begin = (int)(w.causal && p.t.first > w.past ? p.t.first - w.past : 0);
		p.end = (int)(w.causal && last < w.queries ? last : w.queries);
	} else {
		p.begin = (int)mpt__attention_first_key(w, p.t);
		p.end = (int)mpt__attention_seen(w, p.t);
	}
	return p;
}

/* Begins to copy rows of q and dout of a head, or of k and v, either of them with care or not. */
template <bool F16, int D, bool ANY, bool CARE, bool CARE_SECOND, bool KEYS, bool SECOND, int ROWS,
		  int THREADS>
__device__ __forceinline__ void mpt__pair_begin(const mpt__attention &w, long long b, int h,
												int first, unsigned short *to) {
	const int count = (int)(KEYS ? w.keys : w.queries);
	const bool whole = D > 64 && ROWS < mpt__attention_cut<D>::back_rows;
	mpt__tile_begin<F16, ANY, CARE, D, ROWS, THREADS>(
		mpt__attention_rows_of<whole>(KEYS ? w.k : w.q, b, h, w.depth, count, w.eights[KEYS]),
		first, to);
	if (SECOND)
		mpt__tile_begin<F16, ANY, CARE_SECOND, D, ROWS, THREADS>(
			mpt__attention_rows_of<whole>(KEYS ? w.v : w.dout, b, h, w.width, count,
										  w.eights[KEYS ? 2 : 3]),
			first, to + ROWS * (D + 8));
}

/* A tile of the other side, and the numbers of its queries. */
template <bool F16, int D, bool ANY, bool CARE, bool BY_KEYS>
__device__ __forceinline__ void mpt__others_begin(const mpt__attention &w, long long b, int h,
												  int first, unsigned short *to, float *numbers) {
	typedef mpt__attention_cut<D> cut;
	const int N = cut::others, count = (int)w.queries, thread = (int)threadIdx.x;
	const int head = BY_KEYS ? h : (int)(h / w.group);
	mpt__pair_begin<F16, D, ANY, CARE, CARE, !BY_KEYS, true, N, MPT__WARP * cut::back_warps>(
		w, b, head, first, to);
	if (!BY_KEYS) return;
	mpt__numbers_begin<N, CARE>(w.lse, b, h, first, count, thread, numbers);
	mpt__numbers_begin<N, CARE>(w.delta, b, h, first, count, thread - N, numbers + N);
}

/* Log-sum-exps, as powers of two, and deltas of the lane's two queries. */
__device__ __forceinline__ void mpt__rows_numbers(const mpt__attention &w,
												  const mpt__attention_item &t,
												  const float *deltas, float *lse, float *delta) {
	const int row = (int)threadIdx.x / MPT__WARP * 16 + (int)threadIdx.x % MPT__WARP / 4;
	const float *from = (const float *)w.lse.data;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int near = row + half * 8;
		const long long at = mpt__attention_row(w.lse, t.batch, t.head, t.first + near);
		lse[half] = near < t.n ? from[at] * MPT__LOG2E : 0.0f;
		delta[half] = deltas[near];
	}
}

/* Scores s become weights, and g = dout v^T slopes. `numbers`: of the tile's queries, by keys. */
template <bool ANY, bool BY_KEYS, bool SLOPES, int N>
__device__ __forceinline__ void mpt__tile_slopes(const mpt__attention &w, float (&s)[N / 8][4],
												 float (&g)[N / 8][4], const float *numbers,
												 const float *lse, const float *delta,
												 unsigned int kept) {
	const int pair = (int)threadIdx.x % 4 * 2;
#pragma unroll
	for (int n = 0; n < N / 8; n++) {
		float by[4], less[4];
		if (BY_KEYS) {
			const float2 a = *(const float2 *)(numbers + n * 8 + pair);
			const float2 b = *(const float2 *)(numbers + N + n * 8 + pair);
			by[0] = by[2] = a.x * MPT__LOG2E, by[1] = by[3] = a.y * MPT__LOG2E;
			less[0] = less[2] = b.x, less[1] = less[3] = b.y;
		} else {
			for (int i = 0; i < 4; i++) by[i] = lse[i / 2], less[i] = delta[i / 2];
		}
#pragma unroll
		for (int i = 0; i < 4; i++) {
			const float p = mpt__exp2(__fmaf_rn(s[n][i], w.steep, -by[i]));
			float factor = 1.0f;
			if (ANY && w.drops) factor = kept >> (n * 4 + i) & 1 ? w.dropout.factor : 0.0f;
			s[n][i] = ANY ? p * factor : p;
			if (SLOPES) g[n][i] = p * ((ANY ? g[n][i] * factor : g[n][i]) - less[i]);
		}
	}
}

/* The sums to where they belong, unless they leak. */
template <int D, bool BY_KEYS, int SUMS, bool CARE>
__device__ __forceinline__ void mpt__back_end(const mpt__attention &w,
											  const mpt__attention_item &t, unsigned int block,
											  const float (&sum)[D / 8][4],
											  const float (&more)[D / 8][4]) {
	const unsigned int *stored = mpt__attention_stored<CARE>();
	bool leaks = !CARE && (SUMS & MPT__SLOPES) && mpt__tile_leaks<D>(w, sum);
	if (!CARE && (SUMS & MPT__WEIGHTS) && mpt__tile_leaks<D>(w, more)) leaks = true;
	if (!CARE && mpt__block_leaks(w, block, leaks)) return;
	if ((SUMS & MPT__SLOPES) && (!BY_KEYS || w.dk.data != NULL)) {
		mpt__tile_put<D>(sum, w.depth, w.scale, w.scale);
		mpt__attention_give(BY_KEYS ? w.dk : w.dq, t, w.depth, 1.0f, w.store_eights[BY_KEYS],
							stored);
	}
	if ((SUMS & MPT__WEIGHTS) && w.dv.data != NULL) {
		mpt__tile_put<D>(more, w.width, 1.0f, 1.0f);
		mpt__attention_give(w.dv, t, w.width, 1.0f, w.store_eights[2], stored);
	}
}

/* The work of a block. Its own q or k make scores alone: they need no care. */
template <bool F16, int D, bool ANY, bool BY_KEYS, int SUMS, bool CARE>
__device__ __forceinline__ void mpt__attention_backward(const mpt__attention &w,
														unsigned int block) {
	typedef mpt__attention_cut<D> cut;
	typedef mpt__attention_block<D, BY_KEYS, SUMS> room;
	const int N = cut::others, threads = MPT__WARP * cut::back_warps, stages = cut::stages;
	const bool slopes = (SUMS & MPT__SLOPES) != 0, weights = (SUMS & MPT__WEIGHTS) != 0;
	unsigned short *own = (unsigned short *)mpt__attention_shared(), *others = own + room::own;
	float *numbers = (float *)(others + stages * room::stage);
	const mpt__attention_place at = mpt__attention_place_of<BY_KEYS, N>(
		w, BY_KEYS ? block : w.items - 1 - block);
	const long long batch = at.t.batch;
	const int head_end = (int)(BY_KEYS ? (at.t.head + 1) * w.group : at.t.head + 1);
	float sum[D / 8][4], more[D / 8][4], s[N / 8][4], g[N / 8][4], lse[2], delta[2];
	const unsigned int none[D / 16][4] = {};
	int head = (int)(BY_KEYS ? at.t.head * w.group : at.t.head), other = at.begin, stage = 0;
	if (!BY_KEYS) mpt__attention_deltas<CARE>(w, at.t, cut::back_rows, numbers);
	if (!BY_KEYS && w.dq.data == NULL) return;
	mpt__pair_begin<F16, D, ANY, false, CARE, BY_KEYS, slopes, cut::back_rows, threads>(
		w, batch, (int)at.t.head, (int)at.t.first, own);
	if (!BY_KEYS) {
		__syncthreads();
		mpt__rows_numbers(w, at.t, numbers, lse, delta);
	}
#pragma unroll
	for (int n = 0; n < D / 8; n++)
		for (int i = 0; i < 4; i++) sum[n][i] = more[n][i] = 0.0f;
	if (at.begin < at.end)
		mpt__others_begin<F16, D, ANY, CARE, BY_KEYS>(w, batch, head, other, others, numbers);
	else
		head = head_end;
	own += (int)threadIdx.x / MPT__WARP * 16 * cut::pitch;
#pragma unroll 1
	while (head < head_end) {
		const unsigned short *first = others + stage * room::stage;
		const unsigned short *second = first + N * cut::pitch;
		const bool turns = other + N >= at.end;
		const int next_head = turns ? head + 1 : head, next = turns ? at.begin : other + N;
		const int to = stages == 2 ? stage ^ 1 : 0;
		mpt__copy_wait();
		__syncthreads();	/* the tile has come, and nobody needs the one before it */
		if (stages == 2 && next_head < head_end)
			mpt__others_begin<F16, D, ANY, CARE, BY_KEYS>(w, batch, next_head, next,
													others + to * room::stage,
													numbers + to * 2 * N);
		mpt__tile_scores<F16, D, N, false>(s, own, none, first);
		if (slopes)
			mpt__tile_scores<F16, D, N, false>(g, own + cut::back_rows * cut::pitch, none, second);
		if (ANY && w.mask.data != NULL)
			mpt__tile_mask<BY_KEYS, N>(w, s, batch, head, at.row, other, 1.0f / w.scale);
		if (other < at.inner.low || other > at.inner.high)
			mpt__tile_hide<BY_KEYS, N>(w, s, at.row, other);
		unsigned int kept = 0;
		if (ANY && w.drops) kept = mpt__tile_kept<BY_KEYS, N>(w, batch, head, at.row, other);
		mpt__tile_slopes<ANY, BY_KEYS, slopes, N>(w, s, g, numbers + stage * 2 * N, lse, delta,
												  kept);
		if (slopes) mpt__tile_add<F16, D, N>(sum, g, first);
		if (weights) mpt__tile_add<F16, D, N>(more, s, second);
		if (stages == 1) __syncthreads();
		if (stages == 1 && next_head < head_end)
			mpt__others_begin<F16, D, ANY, CARE, BY_KEYS>(w, batch, next_head, next, others,
														  numbers);
		head = next_head, other = next, stage = to;
	}
	mpt__copy_wait();
	mpt__back_end<D, BY_KEYS, SUMS, CARE>(w, at.t, block, sum, more);
}

#endif	/* MPT__MATRIX */

template <bool F16, int D, bool ANY, bool BY_KEYS, int SUMS>
__global__ void __launch_bounds__(MPT__WARP *mpt__attention_cut<D>::back_warps,
								  ANY ? 1 : 16 / mpt__attention_cut<D>::back_warps)
	mpt__attention_matrix_back_kernel(const __grid_constant__ mpt__attention w) {
#if MPT__MATRIX
	mpt__attention_backward<F16, D, ANY, BY_KEYS, SUMS, false>(w, blockIdx.x);
#endif
}

template <bool F16, int D, bool BY_KEYS, int SUMS>
__global__ void __launch_bounds__(MPT__WARP *mpt__attention_cut<D>::back_warps, 1)
	mpt__attention_careful_back_kernel(const __grid_constant__ mpt__attention w) {
#if MPT__MATRIX
	for (unsigned int block = blockIdx.x; block < w.items; block += gridDim.x) {
		if (!w.leaks[block]) continue;
		const long long item = BY_KEYS ? block : w.items - 1 - block;
		mpt__attention_again(w, mpt__attention_at(w, item, BY_KEYS),
							 BY_KEYS ? MPT__ATTENTION_DKV : MPT__ATTENTION_DQ,
							 F16 ? MPT_F16 : MPT_BF16);
		mpt__attention_backward<F16, D, true, BY_KEYS, SUMS, true>(w, block);
		__syncthreads();
	}
#endif
}

/* ---- Host ---- */

/* Whether the rows of an array come in pieces of eight that are aligned. */
int mpt__attention_eights(const mpt__array &array, int columns) {
	bool good = array.stride[3] == 1 && columns % 8 == 0 && (size_t)array.data % 16 == 0;
	good = good && (array.dtype == MPT_F32 || array.dtype == MPT_F16 || array.dtype == MPT_BF16);
	for (int d = 0; d < 3; d++) good = good && array.stride[d] % 8 == 0;
	return good;
}

int mpt__attention_whole(const mpt__array &array, int half, int columns) {
	return array.dtype == half && mpt__attention_eights(array, columns);
}

/* The halves that tensor cores multiply: those of the region, or, of tensors that are halves, their
   own. 0: none. */
int mpt__attention_half(const mpt__cuda_call *call, const mpt__attention &w) {
	const int own = w.compute == MPT_F32 ? w.q.dtype : w.compute;
	const bool half = own == MPT_F16 || own == MPT_BF16;
	if (!call->cuda->matrix || !half) return 0;
	if (w.compute == MPT_F32 && (w.k.dtype != own || w.v.dtype != own)) return 0;
	return own;
}

/* Numbers of 32 or 16 bits, if any, whose strides within a head fit into ints. */
bool mpt__attention_fits(const mpt__array &array) {
	const long long most = 1 << 28;
	for (int d = 2; d < 4; d++)
		if (array.data != NULL && array.stride[d] > most) return false;
	return array.data == NULL || array.dtype == MPT_F32 || array.dtype == MPT_F16 ||
		   array.dtype == MPT_BF16;
}

/* Room for whether each block leaks, of which every one has 64 rows or more. */
int64_t mpt__cuda_attention_workspace(const mpt__launch *launch) {
	const int64_t *q = launch->operand[0].shape, keys = launch->operand[1].shape[2];
	if (launch->index[0] == 0 && launch->operand[3].storage == 0) return 0;
	return q[0] * q[1] * (((q[2] > keys ? q[2] : keys) + 63) / 64) * (int64_t)sizeof(unsigned int);
}

/* Whether tensor cores can do it, and how it is cut then. What they take: numbers of 32 and 16
   bits, a factor that may divide a mask, a mask of the usual dtypes. */
bool mpt__attention_matrix(const mpt__cuda_call *call, mpt__attention *w, bool by_keys, int rows,
						   size_t bytes) {
	const long long most = 0x7fffffff, longest = 1 << 29;
	const int half = mpt__attention_half(call, *w), mask = w->mask.dtype;
	if (!mpt__attention_fits(w->q) || !mpt__attention_fits(w->k) || !mpt__attention_fits(w->v))
		return false;
	if (!mpt__attention_fits(w->dout) || !mpt__attention_fits(w->out)) return false;
	if (w->queries > longest || w->keys > longest || w->past > longest) return false;
	if (w->window > 2 * longest) w->window = 2 * longest;
	if (w->lse.data != NULL && w->lse.dtype != MPT_F32) return false;
	if (w->delta.data != NULL && w->delta.dtype != MPT_F32) return false;
	if (w->mask.data != NULL && mask != MPT_BOOL && mask != MPT_F32 && mask != half) return false;
	if (!(w->scale > 1e-30f && w->scale < 1e30f)) return false;
	w->rows = rows;
	w->steep = w->scale * MPT__LOG2E;
	w->blocks = ((by_keys ? w->keys : w->queries) + rows - 1) / rows;
	w->items = call->launch->operand[0].shape[0] * (by_keys ? w->heads / w->group : w->heads);
	if (w->items > most / w->blocks) return false;
	w->items *= w->blocks;
	w->leaks = w->causal || w->mask.data != NULL ? (unsigned int *)call->workspace : NULL;
	for (w->n = 32; mpt__attention_bytes(*w, by_keys) > bytes;) w->n /= 2;
	w->eights[0] = mpt__attention_whole(w->q, half, w->depth);
	w->eights[1] = mpt__attention_whole(w->k, half, w->depth);
	w->eights[2] = mpt__attention_whole(w->v, half, w->width);
	w->eights[3] = mpt__attention_whole(w->dout, half, w->width);
	return true;
}

/* Blocks of a second kernel, which mostly finds nothing to do. */
unsigned int mpt__attention_few(const mpt__cuda_call *call, const mpt__attention &w) {
	const long long most = 4LL * call->cuda->processors;
	return (unsigned int)(w.items < most ? w.items : most);
}

/* Whether a kernel can have so much shared memory. */
bool mpt__attention_shares(void (*kernel)(mpt__attention), size_t bytes) {
	if (bytes + 16 <= MPT__ATTENTION_ROOM) return true;
	if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
		cudaSuccess)
		return true;
	cudaGetLastError();
	return false;
}

template <bool F16, int D, bool ANY>
bool mpt__attention_matrix_out(const mpt__cuda_call *call, mpt__attention w) {
	typedef mpt__attention_cut<D> cut;
	const size_t tiles = (size_t)(cut::rows + 2 * cut::keys) * cut::pitch * 2;
	const size_t sums = (size_t)cut::rows * (D + 1) * sizeof(float);
	const size_t bytes = tiles > sums ? tiles : sums;
	if (!mpt__attention_matrix(call, &w, false, cut::rows, bytes)) return false;
	w.store_eights[0] = mpt__attention_eights(w.out, w.width);
	mpt__attention_matrix_kernel<F16, D, ANY>
		<<<(unsigned int)w.items, MPT__WARP * cut::warps, bytes, call->stream>>>(w);
	if (w.leaks != NULL)
		mpt__attention_careful_kernel<F16, D>
			<<<mpt__attention_few(call, w), MPT__WARP * cut::warps, bytes, call->stream>>>(w);
	return true;
}

template <bool F16, int D, bool ANY, bool BY_KEYS, int SUMS>
bool mpt__attention_matrix_back(const mpt__cuda_call *call, mpt__attention w) {
	typedef mpt__attention_cut<D> cut;
	typedef mpt__attention_block<D, BY_KEYS, SUMS> room;
	size_t bytes = (size_t)(room::own + cut::stages * room::stage) * 2 + room::floats * 4;
	const size_t sums = (size_t)cut::back_rows * (D + 1) * sizeof(float);
	if (bytes < sums) bytes = sums;
	if (!mpt__attention_matrix(call, &w, BY_KEYS, cut::back_rows, bytes)) return false;
	w.store_eights[0] = mpt__attention_eights(w.dq, w.depth);
	w.store_eights[1] = mpt__attention_eights(w.dk, w.depth);
	w.store_eights[2] = mpt__attention_eights(w.dv, w.width);
	const unsigned int blocks = (unsigned int)w.items, threads = MPT__WARP * cut::back_warps;
	if (!mpt__attention_shares(mpt__attention_matrix_back_kernel<F16, D, ANY, BY_KEYS, SUMS>,
							   bytes) ||
		!mpt__attention_shares(mpt__attention_careful_back_kernel<F16, D, BY_KEYS, SUMS>, bytes))
		return false;
	mpt__attention_matrix_back_kernel<F16, D, ANY, BY_KEYS, SUMS>
		<<<blocks, threads, bytes, call->stream>>>(w);
	if (w.leaks != NULL && (BY_KEYS || w.dq.data != NULL))
		mpt__attention_careful_back_kernel<F16, D, BY_KEYS, SUMS>
			<<<mpt__attention_few(call, w), threads, bytes, call->stream>>>(w);
	return true;
}

/* The gradients that `w` has room for: of queries, or of keys and values. */
template <bool F16, int D, bool ANY>
bool mpt__attention_matrix_gradients(const mpt__cuda_call *call, const mpt__attention &w) {
	if (w.out.data != NULL)
		return mpt__attention_matrix_back<F16, D, ANY, false, MPT__SLOPES>(call, w);
	if constexpr (D <= 64) {
		return mpt__attention_matrix_back<F16, D, ANY, true, MPT__SLOPES | MPT__WEIGHTS>(call, w);
	} else {
		mpt__attention keys = w, values = w;
		keys.dv.data = values.dk.data = NULL;
		if (keys.dk.data != NULL &&
			!mpt__attention_matrix_back<F16, D, ANY, true, MPT__SLOPES>(call, keys))
			return false;
		return values.dv.data == NULL ||
			   mpt__attention_matrix_back<F16, D, ANY, true, MPT__WEIGHTS>(call, values);
	}
}

template <bool F16, int D, bool ANY>
bool mpt__attention_matrix_in(const mpt__cuda_call *call, const mpt__attention &w, bool back) {
	return back ? mpt__attention_matrix_gradients<F16, D, ANY>(call, w)
				: mpt__attention_matrix_out<F16, D, ANY>(call, w);
}

/* By the smallest D into which a head fits; what is ANY has fewer, each of which takes a second to
   compile. */
template <bool F16>
bool mpt__attention_matrix_of(const mpt__cuda_call *call, const mpt__attention &w, bool back) {
	const int depth = w.depth > w.width ? w.depth : w.width, half = F16 ? MPT_F16 : MPT_BF16;
	if (depth == 0 || depth > 128) return false;
	bool any = w.mask.data != NULL || w.drops || !mpt__attention_whole(w.q, half, w.depth);
	any = any || !mpt__attention_whole(w.k, half, w.depth);
	any = any || !mpt__attention_whole(w.v, half, w.width);
	any = any || (w.dout.data != NULL && !mpt__attention_whole(w.dout, half, w.width));
	if (any && depth <= 64) return mpt__attention_matrix_in<F16, 64, true>(call, w, back);
	if (any) return mpt__attention_matrix_in<F16, 128, true>(call, w, back);
	if (depth <= 32) return mpt__attention_matrix_in<F16, 32, false>(call, w, back);
	if (depth <= 64) return mpt__attention_matrix_in<F16, 64, false>(call, w, back);
	if (depth <= 96) return mpt__attention_matrix_in<F16, 96, false>(call, w, back);
	return mpt__attention_matrix_in<F16, 128, false>(call, w, back);
}

/* Forward or backward, if tensor cores can do it. */
bool mpt__cuda_attention_matrix(const mpt__cuda_call *call, const mpt__attention &w, bool back) {
	const int half = mpt__attention_half(call, w);
	if (half == 0) return false;
	return half == MPT_F16 ? mpt__attention_matrix_of<true>(call, w, back)
						   : mpt__attention_matrix_of<false>(call, w, back);
}

/* ---- Either way ---- */

mpt_status mpt__cuda_attention(const mpt__cuda_call *call) {
	mpt__attention w;
	if (!mpt__attention_of(call, false, &w)) return MPT_ERROR_UNSUPPORTED;
	w.out = mpt__array_of(call, 4);
	w.lse = mpt__array_of(call, 5);
	if (w.items == 0 || mpt__cuda_attention_matrix(call, w, false)) return MPT_OK;
	mpt__attention_kernel<<<mpt__attention_blocks(w), MPT__THREADS, mpt__attention_bytes(w, false),
							call->stream>>>(w);
	return MPT_OK;
}

mpt_status mpt__cuda_attention_dq(const mpt__cuda_call *call) {
	mpt__attention w;
	if (!mpt__attention_of(call, false, &w)) return MPT_ERROR_UNSUPPORTED;
	w.lse = mpt__array_of(call, 4);
	w.dout = mpt__array_of(call, 5);
	w.delta = mpt__array_of(call, 6);
	w.dq = mpt__array_of(call, 7);
	w.out = mpt__array_of(call, 8);
	if (w.items == 0 || mpt__cuda_attention_matrix(call, w, true)) return MPT_OK;
	mpt__attention_dq_kernel<<<mpt__attention_blocks(w), MPT__THREADS,
							   mpt__attention_bytes(w, false), call->stream>>>(w);
	return MPT_OK;
}

mpt_status mpt__cuda_attention_dkv(const mpt__cuda_call *call) {
	mpt__attention w;
	if (!mpt__attention_of(call, true, &w)) return MPT_ERROR_UNSUPPORTED;
	w.lse = mpt__array_of(call, 4);
	w.dout = mpt__array_of(call, 5);
	w.delta = mpt__array_of(call, 6);
	w.dk = mpt__array_of(call, 7);
	w.dv = mpt__array_of(call, 8);
	if (w.items == 0 || mpt__cuda_attention_matrix(call, w, true)) return MPT_OK;
	mpt__attention_dkv_kernel<<<mpt__attention_blocks(w), MPT__THREADS,
								mpt__attention_bytes(w, true), call->stream>>>(w);
	return MPT_OK;
}
/* ----
 * cuda/fp8.cu: scaled fp8.
 * ---- */

struct mpt__fp8 {
	const void *from;
	void *to;
	int from_dtype, to_dtype, way;
	long long count;
	const float *state;	/* NULL: a scale of 1 */
	float *most;		/* NULL: nobody asks */
};

/* A code; what was not finite may overflow where the rest saturates. */
__device__ __forceinline__ unsigned char mpt__fp8_code(const mpt__fp8 &f, float x, float scale) {
	const bool saturates =
		f.way == MPT__FP8_SATURATE || (f.way == MPT__FP8_SCALE && mpt__is_finite(x));
	const __nv_saturation_t mode = saturates ? __NV_SATFINITE : __NV_NOSAT;
	const float scaled = __fmul_rn(x, scale);
	return (unsigned char)__nv_cvt_float_to_fp8(
		scaled, mode, f.to_dtype == MPT_F8E4M3 ? __NV_E4M3 : __NV_E5M2);
}

__global__ void mpt__fp8_scale_kernel(const mpt__fp8 f) {
	const float scale = f.state != NULL ? f.state[MPT__FP8_SCALE_NOW] : 1.0f;
	float most = 0;
	MPT__EACH(i, f.count) {
		const float x = mpt__load(f.from, f.from_dtype, i);
		if (f.way == MPT__FP8_WIDEN) {
			mpt__store(f.to, f.to_dtype, i, __fmul_rn(x, 1 / scale));
		} else {
			((unsigned char *)f.to)[i] = mpt__fp8_code(f, x, scale);
			if (mpt__is_finite(x) && fabsf(x) > most) most = fabsf(x);
		}
	}
	if (f.most == NULL) return;
	most = mpt__block_max(most);
	if (threadIdx.x == 0) atomicMax((int *)f.most, __float_as_int(most));	/* ordered as ints are */
}

mpt_status mpt__cuda_fp8_scale(const mpt__cuda_call *call) {
	const mpt__launch *launch = call->launch;
	const bool stated = launch->n_operands > 2;
	mpt__fp8 f;
	memset(&f, 0, sizeof f);
	f.from = call->data[0];
	f.to = call->data[1];
	f.from_dtype = launch->operand[0].dtype;
	f.to_dtype = launch->operand[1].dtype;
	f.way = (int)launch->index[0];
	f.count = launch->operand[0].shape[0];
	f.state = stated ? (const float *)call->data[2] : NULL;
	if (stated && launch->operand[2].access == MPT__READ_WRITE)
		f.most = (float *)call->data[2] + MPT__FP8_AMAX;
	if (f.count == 0) return MPT_OK;
	mpt__fp8_scale_kernel<<<mpt__blocks(call, f.count), MPT__THREADS, 0, call->stream>>>(f);
	return MPT_OK;
}

/* One thread for each row. */
__global__ void mpt__fp8_update_kernel(float *states, long long width, int commit, int margin,
									   const mpt__scalar *scalars) {
	if (!mpt__gate_open(scalars, 0)) return;
	mpt__fp8_ends_step(states + threadIdx.x * width, width, threadIdx.x, commit != 0, margin);
}

mpt_status mpt__cuda_fp8_update(const mpt__cuda_call *call) {
	const mpt__operand &states = call->launch->operand[0];
	mpt__fp8_update_kernel<<<1, (unsigned int)states.shape[0], 0, call->stream>>>(
		(float *)call->data[0], states.shape[1], call->launch->index[0] != 0,
		(int)call->launch->index[1], call->scalars);
	return MPT_OK;
}
/* ==== Recurrent cells: RECURRENT, RECURRENT_BACKWARD ==== */

/* A row of an operand for each sequence. */
struct mpt__cell_rows {
	void *data;	/* NULL: absent */
	long long step;
	int dtype, unused;
};

struct mpt__cells {
	mpt__cell_rows at[9];
	long long count, hidden, now;
	int cell, gates;
};

/* Element i of part `gate` of a row; 0 where there is none. */
__device__ __forceinline__ float mpt__cell_get(const mpt__cells &w, int k, long long row, int gate,
											   long long i) {
	const mpt__cell_rows &from = w.at[k];
	if (from.data == NULL) return 0.0f;
	return mpt__load(from.data, from.dtype, row * from.step + gate * w.hidden + i);
}

__device__ __forceinline__ void mpt__cell_put(const mpt__cells &w, int k, long long row, int gate,
											  long long i, float x) {
	const mpt__cell_rows &to = w.at[k];
	if (to.data != NULL)
		mpt__store(to.data, to.dtype, row * to.step + gate * w.hidden + i, x);
}

__device__ __forceinline__ bool mpt__cell_over(const mpt__cells &w, int k, long long row) {
	const mpt__cell_rows &lengths = w.at[k];
	return lengths.data != NULL && ((const long long *)lengths.data)[row * lengths.step] <= w.now;
}

__device__ __forceinline__ void mpt__cell_over_forward(const mpt__cells &w, long long row,
													   long long i) {
	mpt__cell_put(w, 4, row, 0, i,
				  w.cell == MPT__CELL_LSTM ? mpt__cell_get(w, 3, row, 0, i) : 0.0f);
	mpt__cell_put(w, 5, row, 0, i, 0.0f);
	mpt__cell_put(w, 7, row, 0, i, mpt__cell_get(w, 8, row, 0, i));
}

__global__ void mpt__cell_kernel(const mpt__cells w) {
	MPT__EACH(k, w.count) {
		const long long row = k / w.hidden, i = k % w.hidden;
		float a[4], p[4], h, before = mpt__cell_get(w, 3, row, 0, i);
		if (mpt__cell_over(w, 6, row)) {
			mpt__cell_over_forward(w, row, i);
			continue;
		}
		for (int g = 0; g < 4; g++) {
			if (g >= w.gates) break;
			p[g] = mpt__cell_get(w, 1, row, g, i) + mpt__cell_get(w, 2, row, g, i);
			a[g] = mpt__cell_get(w, 0, row, g, i);
			if (w.cell != MPT__CELL_GRU || g < 2) a[g] += p[g];
		}
		switch (w.cell) {
		case MPT__CELL_LSTM:
			h = v_lstm(a, &before);
			mpt__cell_put(w, 4, row, 0, i, before);
			break;
		case MPT__CELL_GRU:
			h = v_gru(a, p[2], before);
			mpt__cell_put(w, 4, row, 0, i, p[2]);
			break;
		case MPT__CELL_TANH: h = a[0] = v_tanh(a[0]); break;
		case MPT__CELL_RELU: h = a[0] = v_relu(a[0]); break;
		default: h = p[0]; break;
		}
		for (int g = 0; g < 4; g++)
			if (g < w.gates) mpt__cell_put(w, 0, row, g, i, a[g]);
		mpt__cell_put(w, 5, row, 0, i, h);
		mpt__cell_put(w, 7, row, 0, i, h);
	}
}

__global__ void mpt__cell_slopes_kernel(const mpt__cells w) {
	MPT__EACH(k, w.count) {
		const long long row = k / w.hidden, i = k % w.hidden;
		float a[4] = {0.0f, 0.0f, 0.0f, 0.0f}, p = 0.0f, rest = 0.0f;
		const bool over = mpt__cell_over(w, 8, row);
		for (int g = 0; g < 4; g++)
			if (g < w.gates && !over) a[g] = mpt__cell_get(w, 0, row, g, i);
		if (!over) {
			const float dh = mpt__cell_get(w, 5, row, 0, i) + mpt__cell_get(w, 6, row, 0, i);
			const float before = mpt__cell_get(w, 3, row, 0, i);
			p = mpt__cell_get(w, 4, row, 0, i);
			switch (w.cell) {
			case MPT__CELL_LSTM:
				mpt__cell_put(w, 7, row, 0, i,
							  v_lstm_slopes(a, before, p, dh, mpt__cell_get(w, 7, row, 0, i)));
				break;
			case MPT__CELL_GRU: rest = v_gru_slopes(a, &p, before, dh); break;
			case MPT__CELL_TANH: a[0] = dh * (1 - a[0] * a[0]); break;
			case MPT__CELL_RELU: a[0] = v_gate(a[0], dh); break;
			default: a[0] = dh; break;
			}
			mpt__cell_put(w, 6, row, 0, i, rest);
		}
		for (int g = 0; g < 4; g++)
			if (g < w.gates) mpt__cell_put(w, 1, row, g, i, a[g]);
		for (int g = 0; g < 3; g++) mpt__cell_put(w, 2, row, g, i, g < 2 ? a[g] : p);
	}
}

mpt_status mpt__cuda_recurrent(const mpt__cuda_call *call) {
	static const int gates[] = {1, 1, 4, 3, 1};
	const mpt__launch *launch = call->launch;
	const bool backward = launch->kernel == MPT__K_RECURRENT_BACKWARD;
	const mpt__operand &size = launch->operand[backward ? 6 : 5];
	mpt__cells w;
	memset(&w, 0, sizeof w);
	w.cell = (int)launch->index[0];
	w.gates = gates[w.cell];
	w.now = launch->index[1];
	w.hidden = size.shape[1];
	w.count = size.shape[0] * w.hidden;
	for (int k = 0; k < launch->n_operands && k < 9; k++) {
		if (launch->operand[k].storage == 0) continue;
		w.at[k].data = call->data[k];
		w.at[k].dtype = launch->operand[k].dtype;
		w.at[k].step = k == 2 && !backward ? 0 : launch->operand[k].stride[0];
	}
	if (w.count == 0) return MPT_OK;
	if (backward)
		mpt__cell_slopes_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
	else
		mpt__cell_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
	return MPT_OK;
}

/* ==== Memory and transfers ==== */

#define MPT__STAGES 4	/* uploads under way at once */
#define MPT__STAGE_BYTES ((size_t)1 << 20)

/* Page-locked memory that its owner fills. `read` ends an upload from it; before the next one,
   launches until `unused` are done, which may still use what the last one wrote. */
struct mpt__cuda_stage {
	mpt__cuda_stage *next;
	char *host;
	size_t bytes;
	cudaEvent_t read, unused;
};

/* An upload goes through page-locked memory to the card on a stream of its own while launches run,
   and in order with them from there to its place. `from_host` ends the first part of a stage's
   upload, `done` the second. */
struct mpt__cuda_transfers {
	cudaStream_t side;
	struct mpt__cuda_stage *stages;
	char *host, *device;	/* MPT__STAGES stages */
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

/* Where the stage that holds this place hangs; NULL hangs there if none does. */
mpt__cuda_stage **mpt__cuda_stage_of(mpt__cuda *cuda, const void *place) {
	mpt__cuda_stage **at = &cuda->transfers->stages;
	while (*at && (uintptr_t)place - (uintptr_t)(*at)->host >= (*at)->bytes) at = &(*at)->next;
	return at;
}

/* Straight to its place while launches run; those queued from here on find it there. */
cudaError_t mpt__cuda_upload_stage(mpt__cuda *cuda, const mpt__cuda_stage *stage,
								   void *destination, const void *source, size_t bytes) {
	const cudaStream_t side = cuda->transfers->side;
	cudaError_t error = cudaStreamWaitEvent(side, stage->unused, 0);
	if (error == cudaSuccess)
		error = cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, side);
	if (error == cudaSuccess) error = cudaEventRecord(stage->read, side);
	if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->stream, stage->read, 0);
	return error;
}

mpt_status mpt__cuda_upload(void *self, void *destination, const void *source, size_t bytes) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	cudaError_t error = cudaSuccess;
	if (!cuda) return MPT_ERROR_DEVICE;
	const mpt__cuda_stage *stage = *mpt__cuda_stage_of(cuda, source);
	if (stage) {
		error = mpt__cuda_upload_stage(cuda, stage, destination, source, bytes);
		bytes = 0;
	}
	for (size_t at = 0; at < bytes && error == cudaSuccess; at += MPT__STAGE_BYTES) {
		const size_t left = bytes - at;
		error = mpt__cuda_upload_piece(cuda, (char *)destination + at, (const char *)source + at,
									   left < MPT__STAGE_BYTES ? left : MPT__STAGE_BYTES);
	}
	return mpt__cuda_check(cuda, error, "upload to the GPU");
}

cudaError_t mpt__cuda_queue_download(mpt__cuda *cuda, void *destination, const void *source,
									 size_t bytes) {
	return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, cuda->stream);
}

mpt_status mpt__cuda_snapshot(void *self, int place, void *destination, const void *source,
							  size_t bytes) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda) return MPT_ERROR_DEVICE;
	cudaError_t error = mpt__cuda_queue_download(cuda, destination, source, bytes);
	if (error == cudaSuccess) error = cudaEventRecord(cuda->landed[place], cuda->stream);
	return mpt__cuda_check(cuda, error, "snapshot of the GPU's scalars");
}

bool mpt__cuda_landed(void *self, int place) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	const cudaError_t error = cuda ? cudaEventQuery(cuda->landed[place]) : cudaErrorNotReady;
	if (error != cudaErrorNotReady) mpt__cuda_check(cuda, error, "snapshot of the GPU's scalars");
	return error == cudaSuccess;
}

mpt_status mpt__cuda_synchronize(void *self) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda) return MPT_ERROR_DEVICE;
	return mpt__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "work on the GPU");
}

/* Also tells what the program's own launches left. */
void *mpt__cuda_stream(void *self) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda) return NULL;
	cudaError_t error = cudaGetLastError();
	if (error == cudaSuccess && cuda->debug) error = cudaStreamSynchronize(cuda->stream);
	const char *what = "CUDA code of the program's own";
	return mpt__cuda_check(cuda, error, what) == MPT_OK ? (void *)cuda->stream : NULL;
}

mpt_status mpt__cuda_download(void *self, void *destination, const void *source, size_t bytes) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda) return MPT_ERROR_DEVICE;
	const cudaError_t error = mpt__cuda_queue_download(cuda, destination, source, bytes);
	const mpt_status status = mpt__cuda_check(cuda, error, "download from the GPU");
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
	(void)bytes;
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (cuda) mpt__cuda_note(cuda, cudaFree(pointer), "giving memory of the GPU back");
}

void *mpt__cuda_allocate_host(void *self, size_t bytes) {
	void *pointer = NULL;
	if (!mpt__cuda_enter(self)) return NULL;
	if (cudaMallocHost(&pointer, bytes) == cudaSuccess) return pointer;
	cudaGetLastError();
	return NULL;
}

/* Of a dead device, too: it is memory of the host. */
void mpt__cuda_release_host(void *self, void *pointer) {
	mpt__cuda *cuda = (mpt__cuda *)self;
	mpt__cuda_enter(self);
	const cudaError_t error = cudaFreeHost(pointer);
	if (!cuda->dead) mpt__cuda_note(cuda, error, "giving page-locked memory back");
}

/* Waits until an upload from it, if there is one under way, has been read. */
void mpt__cuda_stage_free(void *self, void *pointer) {
	mpt__cuda_stage **at = mpt__cuda_stage_of((mpt__cuda *)self, pointer), *stage = *at;
	if (!stage) return;
	*at = stage->next;
	mpt__cuda_enter(self);
	if (stage->read) cudaEventSynchronize(stage->read), cudaEventDestroy(stage->read);
	if (stage->unused) cudaEventDestroy(stage->unused);
	mpt__cuda_release_host(self, stage->host);
	free(stage);
}

void *mpt__cuda_stage_new(void *self, size_t bytes) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	mpt__cuda_stage *stage = cuda ? (mpt__cuda_stage *)calloc(1, sizeof *stage) : NULL;
	if (!stage) return NULL;
	stage->host = (char *)mpt__cuda_allocate_host(self, bytes);
	if (!stage->host) {
		free(stage);
		return NULL;
	}
	stage->bytes = bytes;
	stage->next = cuda->transfers->stages;
	cuda->transfers->stages = stage;
	/* Whoever waits leaves its core to the threads that make batches. */
	const unsigned int flags = cudaEventDisableTiming | cudaEventBlockingSync;
	cudaError_t error = cudaEventCreateWithFlags(&stage->read, flags);
	if (error == cudaSuccess) error = cudaEventCreateWithFlags(&stage->unused, flags);
	if (error == cudaSuccess) error = cudaEventRecord(stage->unused, cuda->stream);
	if (error == cudaSuccess) return stage->host;
	mpt__cuda_stage_free(self, stage->host);
	return NULL;
}

mpt_status mpt__cuda_stage_settle(void *self, void *pointer) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda) return MPT_ERROR_DEVICE;
	const mpt__cuda_stage *stage = *mpt__cuda_stage_of(cuda, pointer);
	cudaError_t error = cudaEventSynchronize(stage->read);
	if (error == cudaSuccess) error = cudaEventRecord(stage->unused, cuda->stream);
	return mpt__cuda_check(cuda, error, "upload of a batch to the GPU");
}

/* ==== Launching ==== */

/* Two kernels that one function computes. */
#define mpt__cuda_pair_loss_backward mpt__cuda_pair_loss
#define mpt__cuda_interpolate_backward mpt__cuda_interpolate
#define mpt__cuda_recurrent_backward mpt__cuda_recurrent
#define mpt__cuda_pool_backward mpt__cuda_pool
#define mpt__cuda_gate_open mpt__cuda_gate_bits
#define mpt__cuda_conv_backward_input mpt__cuda_conv
#define mpt__cuda_conv_backward_weight mpt__cuda_conv

const mpt__cuda_run mpt__cuda_kernels[] = {
#define MPT__ROW(id, name, effect) mpt__cuda_##name,
	MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* Those of the others need none. */
int64_t mpt__cuda_workspace_bytes(void *self, const mpt__launch *launch) {
	(void)self;
	switch (launch->kernel) {
	case MPT__K_REDUCE: return mpt__cuda_reduce_workspace(launch);
	case MPT__K_GEMM: return mpt__cuda_gemm_workspace(launch);
	case MPT__K_NLL: return mpt__cuda_nll_workspace(launch);
	case MPT__K_CROSS_ENTROPY: return mpt__cuda_cross_entropy_workspace(launch);
	case MPT__K_GRAD_NORM: return mpt__cuda_grad_norm_workspace(launch);
	case MPT__K_PAIR_LOSS: return mpt__cuda_pair_loss_workspace(launch);
	case MPT__K_SCATTER_ADD: return mpt__cuda_scatter_add_workspace(launch);
	case MPT__K_ARGSORT: return mpt__cuda_argsort_workspace(launch);
	case MPT__K_CONV: return mpt__cuda_conv_workspace(launch);
	case MPT__K_CONV_BACKWARD_INPUT: return mpt__cuda_conv_workspace(launch);
	case MPT__K_CONV_BACKWARD_WEIGHT: return mpt__cuda_conv_workspace(launch);
	case MPT__K_NORM: return mpt__cuda_norm_workspace(launch);
	case MPT__K_NORM_BACKWARD: return mpt__cuda_norm_workspace(launch);
	case MPT__K_ATTENTION: return mpt__cuda_attention_workspace(launch);
	case MPT__K_ATTENTION_DQ: return mpt__cuda_attention_workspace(launch);
	case MPT__K_ATTENTION_DKV: return mpt__cuda_attention_workspace(launch);
	case MPT__K_EMBEDDING_BACKWARD: return mpt__cuda_embedding_backward_workspace(launch);
	default: return 0;
	}
}

const char *const mpt__cuda_kernel_names[] = {
#define MPT__ROW(id, name, effect) #name,
	MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

bool mpt__cuda_implements(void *self, mpt__kernel kernel) {
	(void)self;
	return kernel < MPT__KERNEL_COUNT && mpt__cuda_kernels[kernel] != NULL;
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
		char *base = (char *)execution->data[o.storage];	/* storage 0 is NULL */
		if (base) call.data[i] = base + o.offset * (int64_t)mpt__bytes_of(o.dtype);
	}
	mpt_status status = mpt__cuda_left_over(cuda);
	if (status == MPT_OK) status = mpt__cuda_kernels[launch->kernel](&call);
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

/* A capture that went wrong is ended all the same, so that the stream works again; only then can be
   asked whether the device still does. */
mpt_status mpt__cuda_graph_end(void *self, void **graph) {
	mpt__cuda *cuda = (mpt__cuda *)self;
	cudaGraph_t captured = NULL;
	cudaGraphExec_t executable = NULL;
	if (!cuda->capturing) return MPT_ERROR_DEVICE;
	cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
	cuda->capturing = false;
	if (!graph) {
		error = cudaStreamQuery(cuda->stream);
		if (error != cudaSuccess && error != cudaErrorNotReady)
			cuda->dead |= mpt__cuda_lasts(cuda, error);
	} else if (error == cudaSuccess) {
		error = cudaGraphInstantiate(&executable, captured, 0);
	}
	if (captured) mpt__cuda_note(cuda, cudaGraphDestroy(captured), "dropping a graph");
	if (!graph) return MPT_OK;
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
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (cuda) mpt__cuda_note(cuda, cudaGraphExecDestroy((cudaGraphExec_t)graph), "ending a graph");
}

/* ==== Time ==== */

/* Between two events in the stream, so that neither the way of a launch to the card nor the wait
   for it counts. 0 where there is nothing before, and on an error, which the next launch tells. */
double mpt__cuda_lap(void *self) {
	mpt__cuda *cuda = mpt__cuda_enter(self);
	if (!cuda || cuda->capturing) return 0;
	const int before = cuda->lap, now = !before;
	const bool first = !cuda->laps[0];
	cudaError_t error = cudaSuccess;
	for (int i = 0; i < 2 && error == cudaSuccess && first; i++)
		error = cudaEventCreateWithFlags(&cuda->laps[i], cudaEventDefault);
	if (error == cudaSuccess) error = cudaEventRecord(cuda->laps[now], cuda->stream);
	if (error == cudaSuccess) error = cudaEventSynchronize(cuda->laps[now]);
	float milliseconds = 0;
	if (error == cudaSuccess && !first)
		error = cudaEventElapsedTime(&milliseconds, cuda->laps[before], cuda->laps[now]);
	cuda->lap = now;
	return mpt__cuda_check(cuda, error, "timing a launch") == MPT_OK ? 1e-3 * milliseconds : 0;
}

/* ==== Making and ending ==== */

void mpt__cuda_describe(void *self, mpt_device_info *info) {
	const mpt__cuda *cuda = (const mpt__cuda *)self;
	size_t free_bytes = 0, bytes = 0;
	if (mpt__cuda_enter(self) && cudaMemGetInfo(&free_bytes, &bytes) != cudaSuccess) {
		free_bytes = 0;
		cudaGetLastError();
	}
	info->memory = cuda->memory;
	info->memory_free = (int64_t)free_bytes;
	info->major = cuda->capability / 10;
	info->minor = cuda->capability % 10;
	info->fast_half = cuda->capability >= 70;
}

void mpt__cuda_destroy(void *self) {
	mpt__cuda *cuda = (mpt__cuda *)self;
	mpt__cuda_enter(self);
	if (cuda->stream) cudaStreamSynchronize(cuda->stream);
	mpt__cuda_products_destroy(cuda->products);
	mpt__cuda_transfers_destroy(cuda->transfers);
	for (int i = 0; i < 2; i++)
		if (cuda->landed[i]) cudaEventDestroy(cuda->landed[i]);
	for (int i = 0; i < 2; i++)
		if (cuda->laps[i]) cudaEventDestroy(cuda->laps[i]);
	cudaFree(cuda->ticket);
	if (cuda->stream) cudaStreamDestroy(cuda->stream);
	cudaGetLastError();
	free(cuda);
}

/* Reads what the card is, and makes what every launch needs. */
mpt_status mpt__cuda_start(mpt__cuda *cuda) {
	cudaDeviceProp card;
	cudaFuncAttributes kernel;
	cudaError_t error = cudaSetDevice(cuda->device);
	if (error == cudaSuccess) error = cudaGetDeviceProperties(&card, cuda->device);
	if (error == cudaSuccess) error = cudaFuncGetAttributes(&kernel, mpt__fill_kernel);
	if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
		cudaGetLastError();
		snprintf(cuda->backend->error, sizeof cuda->backend->error,
				 "mptrain_cuda.cu was compiled for other GPUs than %.99s, of compute capability "
				 "%d.%d: compile it with -arch=sm_%d%d, or set MPT_DEVICE_CPU",
				 card.name, card.major, card.minor, card.major, card.minor);
		return MPT_ERROR_DEVICE;
	}
	if (error == cudaSuccess)
		error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
	for (int i = 0; i < 2 && error == cudaSuccess; i++)
		error = cudaEventCreateWithFlags(&cuda->landed[i], cudaEventDisableTiming);
	if (error == cudaSuccess) error = cudaMalloc((void **)&cuda->ticket, sizeof *cuda->ticket);
	if (error == cudaSuccess)
		error = cudaMemsetAsync(cuda->ticket, 0, sizeof *cuda->ticket, cuda->stream);
	if (error != cudaSuccess) return mpt__cuda_check(cuda, error, "opening the GPU");
	snprintf(cuda->name, sizeof cuda->name, "%s", card.name);
	cuda->processors = card.multiProcessorCount;
	cuda->capability = card.major * 10 + card.minor;
	cuda->matrix = cuda->capability >= 80 && kernel.ptxVersion >= 80;
	cuda->memory = (int64_t)card.totalGlobalMem;
	cuda->transfers = mpt__cuda_transfers_create(&error);
	if (!cuda->transfers) return mpt__cuda_check(cuda, error, "memory for transfers");
	cuda->products = mpt__cuda_products_create(cuda);
	return cuda->products ? MPT_OK : MPT_ERROR_DEVICE;	/* it has said why */
}

}  // namespace

extern "C" int mpt__cuda_device_count(char *why, size_t size) {
	int count = 0;
	const cudaError_t error = cudaGetDeviceCount(&count);
	if (error == cudaSuccess && count > 0) return count;
	cudaGetLastError();
	snprintf(why, size, "%s",
			 error == cudaErrorInsufficientDriver
				 ? "no NVIDIA driver, or one too old for this CUDA toolkit"
			 : error == cudaSuccess ? "there is no GPU"
									: cudaGetErrorString(error));
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
	backend->stream = mpt__cuda_stream;
	backend->allocate_host = mpt__cuda_allocate_host;
	backend->release_host = mpt__cuda_release_host;
	backend->stage_new = mpt__cuda_stage_new;
	backend->stage_settle = mpt__cuda_stage_settle;
	backend->stage_free = mpt__cuda_stage_free;
	backend->snapshot = mpt__cuda_snapshot;
	backend->landed = mpt__cuda_landed;
	backend->lap = mpt__cuda_lap;
	backend->graph_begin = mpt__cuda_graph_begin;
	backend->graph_end = mpt__cuda_graph_end;
	backend->graph_run = mpt__cuda_graph_run;
	backend->graph_destroy = mpt__cuda_graph_destroy;
	backend->benchmark = mpt__cuda_benchmark;
	backend->benchmark_text = mpt__cuda_benchmark_text;
	backend->benchmark_read = mpt__cuda_benchmark_read;
	backend->destroy = mpt__cuda_destroy;
	return MPT_OK;
}
