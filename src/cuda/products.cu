/* ==== Matrix products: GEMM ====
 *
 * cuBLASLt computes them, with bias and ReLU or GELU in its epilogue where it can. Operands that it
 * cannot read (another dtype, no contiguous dimension) are packed into workspace first; what it
 * cannot finish goes through an fp32 sum in workspace and a kernel of ours. A product that cuBLASLt
 * refuses is done by a plain kernel of ours. */

#define MPT__TILE 32          /* rows and columns of what a block of the plain kernel computes */
#define MPT__CANDIDATES 16    /* algorithms of a product that benchmark mode times */
#define MPT__PRODUCT_CALLS 64 /* for one launch; packing makes them fewer */
#ifndef MPT__SUM_BYTES        /* a test cuts smaller pieces */
#define MPT__SUM_BYTES (32 << 20) /* of fp32 sums at a time, which stay in L2 */
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
    long long batch[MPT_MAX_RANK]; /* strides of the batch dimensions of the launch */
    int contiguous;                /* which of the two has stride 1 */
    long long at;                  /* where in the workspace it is packed; -1: it is not */
};

enum { MPT__SIDE_A, MPT__SIDE_B, MPT__SIDE_OUT, MPT__SIDES };

/* `side` is in the order of the launch's operands 0, 1 and 3. */
struct mpt__product {
    mpt__side side[MPT__SIDES];
    mpt__space loop;              /* batches that could not be merged: a call for each */
    mpt__array along[MPT__SIDES]; /* their strides */
    long long batch, batch_stride[MPT__SIDES]; /* of a call */
    bool finish;         /* cuBLASLt leaves sums that finish_kernel makes the output from */
    bool bias;           /* in the epilogue */
    long long bias_at;   /* as mpt__side.at */
    long long workspace; /* bytes */
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
