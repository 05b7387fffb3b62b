/* ==== Normalisation and pooling ==== */

enum { MPT__N, MPT__G, MPT__C, MPT__S };

/* A norm over [N, G, C, S]. Rows and groups: what shares a mean is taken by a warp or a block, in
   lines along C, with a weight for each element, or along S, with one for all. Batches: sums of
   each channel by chunks, then their ends, then the elements. */
struct mpt__norm_call {
    mpt__array x, residual, y, sum, dy, extra, dx, rest; /* strides of the four dimensions */
    mpt__array weight, bias, mean, variance, dweight, dbias;
    float *rstd;
    long long size[4], count, lines, length, channels;
    int line, step, along_c, of_channels, given, relu;
    float eps;
    long long of, chunk, chunks; /* sums of channels: elements of each, those of a chunk, chunks */
    float *partial, *column; /* [chunks, 2, channels]; MPT__COLUMNS times [channels] */
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

#define MPT__CHANNELS 32 /* side by side in a block */
#define MPT__NORM_BLOCKS 264 /* most that keep sums of columns for their rows: two for each of many
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
        __syncthreads(); /* others have stored sums with the residual */
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
    } else if (q.n > 0.0f) { /* Chan, Golub, LeVeque 1979 */
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
        if (sum->sum.n == 0.0f) sum->pivot = x; /* squares of small differences lose little */
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
        __syncthreads(); /* `lost` is read */
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
        w.chunk = 0; /* by rows held in registers, if their memory allows it */
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
    const float *mean, *variance, *old; /* the first two may be absent */
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
    __syncthreads(); /* all have read the counts, which may be those that change */
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
    mpt__array large, small_one; /* x or dx, y or dy: strides of N, C, H, W */
    void *index; /* i32 where `wide`, else u8 */
    long long index_stride[4];
    long long n, c, in[2], out[2], window[2], step[2], padding[2];
    int most, adaptive, padding_counts, positive, wide, inside; /* inside: channels lie innermost */
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
