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
    if (WHOLE) asm("" : "+l"(rows.data)); /* two registers, not five for its parts */
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
        if (!__any_sync(MPT__ALL, shrink != 1.0f)) continue; /* as it is after a few tiles */
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
        __syncthreads(); /* k has come, and nobody needs v any more */
        mpt__tile_begin<F16, ANY, CARE, D, N, threads>(of_v, key, v);
        mpt__tile_scores<F16, D, N, held>(s, own, a, k);
        mpt__copy_wait();
        __syncthreads(); /* the other way round */
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

#endif /* MPT__MATRIX */

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
    static const int own = (SUMS & MPT__SLOPES ? 2 : 1) * cut::back_rows * cut::pitch; /* numbers */
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
    mpt__attention_span inner; /* where tiles begin that need no hiding */
    int row, begin, end;       /* row: the lane's first one */
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
        __syncthreads(); /* the tile has come, and nobody needs the one before it */
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

#endif /* MPT__MATRIX */

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
