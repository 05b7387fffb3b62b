/* ==== Along an axis: ARGMAX, SCATTER_AXIS, FIND_NONFINITE ==== */

struct mpt__argmax {
    mpt__space lines;
    mpt__array from, index, value; /* strides over the lines */
    long long n, stride;           /* along the dimension */
    float sign;                    /* -1: the least */
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
    mpt__array index, value, to, axis; /* axis: no data; locates the index along the dimension */
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

#define MPT__CHECKERS 1024 /* threads that look at many indices */

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
    mpt__array from, index, to, axis; /* axis: no data; locates j along the dimension */
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
    int upper; /* or lower */
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
    mpt__array from, to;                  /* strides over the lines */
    long long n, from_stride, to_stride; /* along the dimension */
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

#define MPT__SORT_TILE (4 * MPT__THREADS) /* words: 8 KB of shared memory */

struct mpt__sort {
    mpt__space lines;
    mpt__array from, to; /* strides over the lines; to NULL: the words are wanted */
    long long n, k, from_stride, to_stride, tiles;
    unsigned long long *words; /* [lines, n], twice; NULL: a line is one tile */
    int descending;
    int bits;                /* of a word that hold the index */
    long long size, padding; /* of ids, all of 0 .. size-1 but the padding; size 0: of numbers */
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
            word[i] = ~0ull; /* behind all others */
            if (begin + i < w.n)
                word[i] = mpt__sort_word(w, from + (begin + i) * w.from_stride, begin + i);
        }
        __syncthreads();
        for (int size = 2; size <= MPT__SORT_TILE; size *= 2) { /* Batcher's bitonic network */
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
    mpt__array index, from, to; /* strides over the lines */
    long long n, size, index_stride, from_stride, to_stride;
    long long padding; /* an index that adds nothing */
    int one;           /* all lines share their indices */
    int sorts;
    long long parts;                 /* a power of 2, where nothing is sorted */
    const unsigned long long *words; /* the line's indices, sorted (mpt__sort_word) */
    long long word_step;             /* from line to line */
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
    if (w.to.dtype != MPT_F32) { /* each sum is rounded */
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
            if (index >= (unsigned long long)w.size) break; /* those that count for nothing */
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
