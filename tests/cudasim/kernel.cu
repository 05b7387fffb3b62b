/* kernel.cu: the square of relu as an op that launches kernels of its own, as the manual shows it. */
#include "mptrain.h"

#include <cuda_runtime.h>

__global__ static void square(const float *x, float *y, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

__global__ static void square_back(const float *x, const float *dy, float *dx, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
}

static mpt_status forward(mpt_op_call *call, void *user) {
    mpt_tensor x = mpt_contiguous(mpt_op_input(call, 0));
    mpt_tensor y = mpt_zeros(x.context, MPT_F32, mpt_get_shape(x));
    const float *from = (const float *)mpt_device_data(x, false);
    float *to = (float *)mpt_device_data(y, true);
    cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
    const long long n = mpt_numel(x), blocks = (n + 255) / 256;
    if (!mpt_failed(x.context)) square<<<(unsigned)blocks, 256, 0, stream>>>(from, to, n);
    mpt_op_save(call, 0, x);
    return mpt_op_set_output(call, 0, y);
}

static mpt_status backward(mpt_op_call *call, void *user) {
    mpt_tensor x = mpt_op_saved(call, 0), dy = mpt_contiguous(mpt_op_output_grad(call, 0));
    mpt_tensor dx = mpt_zeros(x.context, MPT_F32, mpt_get_shape(x));
    const float *from = (const float *)mpt_device_data(x, false);
    const float *above = (const float *)mpt_device_data(dy, false);
    float *to = (float *)mpt_device_data(dx, true);
    cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
    const long long n = mpt_numel(x), blocks = (n + 255) / 256;
    if (!mpt_failed(x.context))
        square_back<<<(unsigned)blocks, 256, 0, stream>>>(from, above, to, n);
    return mpt_op_set_input_grad(call, 0, dx);
}

extern "C" mpt_op squared_relu(mpt_context *ctx) {
    const mpt_op_class cls = {"squared_relu", MPT_AUTOCAST_FP32, forward, backward, 1, 1};
    return mpt_op_register(ctx, &cls, NULL);
}
/* ---- So far the manual. ---- */

static mpt_status too_large(mpt_op_call *call, void *user) {
    mpt_tensor x = mpt_op_input(call, 0);
    cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
    float *none = NULL;
    if (stream) square<<<1, 2000, 0, stream>>>(none, none, 0LL); /* threads of a block */
    return mpt_op_set_output(call, 0, x);
}

/* An op whose launch goes wrong. */
extern "C" mpt_op wrong_launch(mpt_context *ctx) {
    const mpt_op_class cls = {"too_large", MPT_AUTOCAST_INPUT, too_large, NULL, 1, 1};
    return mpt_op_register(ctx, &cls, NULL);
}

/* Doubles a tensor in place, outside of any op. */
__global__ static void twice(float *x, long long n) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] *= 2;
}

extern "C" mpt_status double_it(mpt_tensor x) {
    float *at = (float *)mpt_device_data(x, true);
    cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
    const long long n = mpt_numel(x);
    if (at && stream) twice<<<(unsigned)((n + 127) / 128), 128, 0, stream>>>(at, n);
    return mpt_error_code(x.context);
}
