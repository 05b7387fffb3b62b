/* ==== Convolutions ====
 *
 * Products of matrices that are gathered from images while tiles are fetched, in fp32; the kernel
 * goes over groups as over batches. Of gradients of weights, whose K is all pixels, blocks take
 * slices of K, which a second kernel adds up in order. */

#define MPT__CONV_TILE 64
#define MPT__CONV_DEPTH 16
#define MPT__CONV_SLICE 2048 /* pixels of a slice, at least */
#define MPT__CONV_SLICES 64  /* at most */

struct mpt__conv_args {
    mpt__array x, w, y, bias, more; /* more: what is added, lying as the output does */
    int kernel, compute_dtype, slices, relu, bias_dtype; /* bias_dtype: what it is rounded to */
    int size[2], out_size[2], taps[2], stride[2], padding[2], dilation[2];
    long long images, groups, in, out; /* channels of a group */
    long long m, n, k, depth;          /* of a group's product; K of a slice */
    float *partial;                    /* [slices, groups, m, n]; NULL: one slice */
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
    __shared__ mpt__conv_spot spot[TILE]; /* of the rows, or of the K under way */
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
                const int wide = e % TILE, deep = e / TILE; /* neighbours along a tile's width */
                const int row = WEIGHTS ? wide : e / DEPTH, step = WEIGHTS ? deep : e % DEPTH;
                float left = 0, right = 0;
                if (i0 + row < p.m && k0 + step < end)
                    left = WEIGHTS ? mpt__conv_load(p, p.y, ((k0 + step) * p.groups + group) * p.m +
                                                                i0 + row)
                                   : mpt__conv_element(p, spot[row], group, k0 + step);
                a[step][row] = left;
                const bool along = !WEIGHTS && p.kernel == MPT__K_CONV; /* neighbours along K */
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
