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
                           long long index, long long position) {
    unsigned long long *word = (unsigned long long *)&scalars[MPT__SLOT_ERROR].i;
    if (atomicCAS(word, 0ull, (unsigned long long)status) != 0) return;
    scalars[MPT__SLOT_ERROR_LAUNCH].i = number;
    scalars[MPT__SLOT_ERROR_INDEX].i = index;
    scalars[MPT__SLOT_ERROR_POSITION].i = position;
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
    if (threadIdx.x == 0 && first != ~0ull)
        mpt__raise(scalars, MPT_ERROR_INDEX, number, -1 - (long long)first, -1);
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

