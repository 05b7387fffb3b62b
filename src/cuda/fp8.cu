/* ----
 * cuda/fp8.cu: scaled fp8.
 * ---- */

struct mpt__fp8 {
    const void *from;
    void *to;
    int from_dtype, to_dtype, way;
    long long count;
    const float *state; /* NULL: a scale of 1 */
    float *most;        /* NULL: nobody asks */
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
    if (threadIdx.x == 0) atomicMax((int *)f.most, __float_as_int(most)); /* ordered as ints are */
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
