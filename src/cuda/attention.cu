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
    mpt__array q, k, v, mask, lse, dout, delta, out, dq, dk, dv; /* lse: written by forward */
    long long heads, group, queries, keys, blocks, items; /* group: query heads of a key head */
    long long window, past;
    int depth, width, n; /* n: of each side in a tile */
    int rows;            /* of its own side in a block's work */
    unsigned int *leaks; /* for each block (attention_matrix.cu); NULL: nothing is hidden */
    int compute, causal, drops;
    int eights[4];      /* whether rows of q, k, v and dout come in pieces of eight */
    int store_eights[3]; /* those of out or dq, of dk and of dv */
    float scale, steep; /* steep: the same for powers of two */
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
    if (at % 4 > 1) word[0] = word[2], word[1] = word[3]; /* an index would be a stack */
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

#define MPT__ATTENTION_ROOM 49152 /* bytes of shared memory that every card gives a block */

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
    long long count, heads, rows, half, first; /* count: pairs */
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

#define MPT__GRID_BATCH 64 /* points that a block holds, backward */
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
