/* ==== Reductions and softmax: REDUCE, SOFTMAX, SOFTMAX_BACKWARD ==== */

/* A line of elements is worked on by a group of threads: one, a warp, or a whole block. Which, and
   with it the tree of every sum, follows from the shapes and strides alone. */

#define MPT__LINE 1024 /* elements: longer lines get a block, shorter ones a warp */

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
    mpt__space kept, reduced; /* the outputs; what each of them reduces */
    mpt__array in, out;       /* strides over `kept` */
    long long along[MPT_MAX_RANK]; /* strides of `in` over `reduced` */
    long long chunk, chunks;
    float *partial; /* by rows [outputs, chunks], by columns [chunks, outputs] */
    float divisor;  /* of what goes to `out` */
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
        __syncthreads(); /* `part` may still be read for the tile before */
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
    r->chunks = n > 0 ? (n + r->chunk - 1) / r->chunk : 1; /* nothing to sum: the identity */
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
