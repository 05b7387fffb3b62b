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

/* ---- Plans: what cuBLASLt needs for a product, made once per kind of product ---- */

/* MPT__PLAN_FIELDS(F): F(ID, "name"), what makes two products the same. */
#define MPT__PLAN_FIELDS(F) \
    F(M, "m") \
    F(N, "n") \
    F(K, "k") \
    F(BATCH, "batch") \
    F(DTYPE, "dtype") \
    F(DTYPE_OUT, "dtype_out") \
    F(TF32, "tf32") \
    F(EPILOGUE, "epilogue") \
    F(ADD, "add") \
    F(CONTIGUOUS_A, "a_by_k") \
    F(CONTIGUOUS_B, "b_by_k") \
    F(PITCH_A, "a_pitch") \
    F(PITCH_B, "b_pitch") \
    F(PITCH_OUT, "out_pitch") \
    F(STEP_A, "a_step") \
    F(STEP_B, "b_step") \
    F(STEP_OUT, "out_step") \
    F(ALIGNED, "aligned")

typedef enum mpt__plan_field {
#define MPT__ROW(id, name) MPT__PLAN_##id,
    MPT__PLAN_FIELDS(MPT__ROW)
#undef MPT__ROW
        MPT__PLAN_FIELD_COUNT
} mpt__plan_field;

const char *const mpt__plan_names[] = {
#define MPT__ROW(id, name) name,
    MPT__PLAN_FIELDS(MPT__ROW)
#undef MPT__ROW
};

#define MPT__ALGORITHM_WORDS 8

struct mpt__plan {
    long long field[MPT__PLAN_FIELD_COUNT];
    cublasLtMatmulDesc_t operation; /* NULL: only read from a file so far */
    cublasLtMatrixLayout_t layout[MPT__SIDES];
    cublasLtMatmulAlgo_t algorithm;
    bool taken;                               /* an entry of the table */
    bool usable;                              /* cuBLASLt has an algorithm */
    bool pinned;                              /* chosen by time, now or when the file was written */
    long long nanoseconds, nanoseconds_first; /* of the choice, and of the first candidate */
};

struct mpt__cuda_products {
    mpt__cuda *cuda;
    cublasLtHandle_t handle;
    cublasLtMatmulPreference_t preference;
    void *workspace; /* of cuBLASLt */
    size_t workspace_bytes;
    bool tf32; /* fp32 products may round their operands to TF32 */
    cudaEvent_t begin, end;
    mpt__plan *plans; /* a hash table, at most half full */
    long long capacity, count;
    unsigned int said; /* a bit for each dtype of which a refusal was logged */
};

/* A call of a plan. */
struct mpt__plan_call {
    const void *a, *b, *bias;
    void *out;
    float alpha, beta;
};

static_assert(sizeof(cublasLtMatmulAlgo_t) == MPT__ALGORITHM_WORDS * sizeof(uint64_t),
              "the text form of an algorithm");

cudaDataType_t mpt__cuda_dtype(long long dtype) {
    return dtype == MPT_F16 ? CUDA_R_16F : dtype == MPT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* The entry of these fields, or the free one where it belongs. */
mpt__plan *mpt__plan_slot(mpt__plan *plans, long long capacity, const long long *field) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++) {
        hash = (hash ^ (uint64_t)field[f]) * UINT64_C(0x100000001b3);
        hash ^= hash >> 29;
    }
    for (uint64_t i = hash;; i++) {
        mpt__plan *plan = &plans[i & (uint64_t)(capacity - 1)];
        if (!plan->taken || memcmp(plan->field, field, sizeof plan->field) == 0) return plan;
    }
}

/* The entry of these fields, new if it was not there; NULL without memory. */
mpt__plan *mpt__plan_enter(mpt__cuda_products *products, const long long *field) {
    if (2 * (products->count + 1) > products->capacity) {
        const long long capacity = products->capacity > 0 ? 2 * products->capacity : 64;
        mpt__plan *plans = (mpt__plan *)calloc((size_t)capacity, sizeof *plans);
        if (plans == NULL) return NULL;
        for (long long i = 0; i < products->capacity; i++) {
            const mpt__plan *plan = &products->plans[i];
            if (plan->taken) *mpt__plan_slot(plans, capacity, plan->field) = *plan;
        }
        free(products->plans);
        products->plans = plans;
        products->capacity = capacity;
    }
    mpt__plan *plan = mpt__plan_slot(products->plans, products->capacity, field);
    if (!plan->taken) {
        memcpy(plan->field, field, sizeof plan->field);
        plan->taken = true;
        products->count++;
    }
    return plan;
}

/* cuBLASLt counts columns first: our rows are its columns, so that B comes before A. */
cublasStatus_t mpt__plan_describe(mpt__plan *plan) {
    const long long *f = plan->field;
    const long long outer[] = {f[MPT__PLAN_M], f[MPT__PLAN_N], f[MPT__PLAN_M]};
    const long long inner[] = {f[MPT__PLAN_K], f[MPT__PLAN_K], f[MPT__PLAN_N]};
    const bool by_inner[] = {f[MPT__PLAN_CONTIGUOUS_A] != 0, f[MPT__PLAN_CONTIGUOUS_B] != 0, true};
    const cudaDataType_t dtype = mpt__cuda_dtype(f[MPT__PLAN_DTYPE]);
    const cudaDataType_t dtype_out = mpt__cuda_dtype(f[MPT__PLAN_DTYPE_OUT]);
    const int batch = (int)f[MPT__PLAN_BATCH];
    if (batch != f[MPT__PLAN_BATCH]) return CUBLAS_STATUS_NOT_SUPPORTED;
    const cublasComputeType_t compute =
        f[MPT__PLAN_TF32] ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasStatus_t failed = cublasLtMatmulDescCreate(&plan->operation, compute, CUDA_R_32F);
    const struct {
        cublasLtMatmulDescAttributes_t id;
        int32_t value;
    } attributes[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, by_inner[MPT__SIDE_B] ? CUBLAS_OP_T : CUBLAS_OP_N},
        {CUBLASLT_MATMUL_DESC_TRANSB, by_inner[MPT__SIDE_A] ? CUBLAS_OP_N : CUBLAS_OP_T},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, (int32_t)f[MPT__PLAN_EPILOGUE]},
        {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, dtype_out}};
    for (int i = 0; i < 4 && !failed; i++) {
        failed = cublasLtMatmulDescSetAttribute(plan->operation, attributes[i].id,
                                                &attributes[i].value, sizeof attributes[i].value);
    }
    for (int s = 0; s < MPT__SIDES && !failed; s++) {
        const long long step = f[MPT__PLAN_STEP_A + s], pitch = f[MPT__PLAN_PITCH_A + s];
        const uint64_t rows = (uint64_t)(by_inner[s] ? inner[s] : outer[s]);
        const uint64_t columns = (uint64_t)(by_inner[s] ? outer[s] : inner[s]);
        cublasLtMatrixLayout_t *layout = &plan->layout[s];
        failed = cublasLtMatrixLayoutCreate(layout, s == MPT__SIDE_OUT ? dtype_out : dtype, rows,
                                            columns, pitch);
        if (!failed)
            failed = cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                      &batch, sizeof batch);
        if (!failed)
            failed = cublasLtMatrixLayoutSetAttribute(
                *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    }
    return failed;
}

/* What mpt__plan_describe made, or began to. */
void mpt__plan_forget(mpt__plan *plan) {
    for (int s = 0; s < MPT__SIDES; s++) {
        if (plan->layout[s] != NULL) cublasLtMatrixLayoutDestroy(plan->layout[s]);
        plan->layout[s] = NULL;
    }
    if (plan->operation != NULL) cublasLtMatmulDescDestroy(plan->operation);
    plan->operation = NULL;
}

cublasStatus_t mpt__plan_set_bias(const mpt__plan *plan, const void *bias) {
    if (bias == NULL) return CUBLAS_STATUS_SUCCESS;
    return cublasLtMatmulDescSetAttribute(plan->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias);
}

cublasStatus_t mpt__plan_run(const mpt__cuda_products *products, const mpt__plan *plan,
                             const cublasLtMatmulAlgo_t *algorithm, const mpt__plan_call *call) {
    const cublasLtMatrixLayout_t *layout = plan->layout;
    const cublasStatus_t status = mpt__plan_set_bias(plan, call->bias);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul(products->handle, plan->operation, &call->alpha, call->b,
                          layout[MPT__SIDE_B], call->a, layout[MPT__SIDE_A], &call->beta, call->out,
                          layout[MPT__SIDE_OUT], call->out, layout[MPT__SIDE_OUT], algorithm,
                          products->workspace, products->workspace_bytes, products->cuda->stream);
}

/* The shortest of some times of a call in nanoseconds, after one to warm up; infinite if it
   fails. */
float mpt__plan_time(const mpt__cuda_products *products, const mpt__plan *plan,
                     const cublasLtMatmulAlgo_t *algorithm, const mpt__plan_call *call) {
    float best = INFINITY;
    int runs = 1;
    for (int round = 0; round < 6; round++) {
        float milliseconds = 0;
        cudaEventRecord(products->begin, products->cuda->stream);
        for (int i = 0; i < runs; i++) {
            if (mpt__plan_run(products, plan, algorithm, call) != CUBLAS_STATUS_SUCCESS)
                return INFINITY;
        }
        cudaEventRecord(products->end, products->cuda->stream);
        if (cudaEventSynchronize(products->end) != cudaSuccess ||
            cudaEventElapsedTime(&milliseconds, products->begin, products->end) != cudaSuccess)
            return INFINITY;
        if (round > 0) best = fminf(best, 1e6f * milliseconds / (float)runs);
        if (round == 0 && milliseconds < 0.5f) runs = 10;
    }
    return best;
}

/* Pins the fastest of the candidates, timed on an output of its own. One further down the list must
   be 2 % faster, so that noise does not choose. Without memory for that it is the first. */
void mpt__plan_pin(mpt__cuda_products *products, mpt__plan *plan,
                   const cublasLtMatmulHeuristicResult_t *found, int n,
                   const mpt__plan_call *call) {
    const long long *f = plan->field;
    const long long elements = (f[MPT__PLAN_BATCH] - 1) * f[MPT__PLAN_STEP_OUT] +
                               (f[MPT__PLAN_M] - 1) * f[MPT__PLAN_PITCH_OUT] + f[MPT__PLAN_N];
    const size_t bytes = (size_t)elements * mpt__bytes_of((int)f[MPT__PLAN_DTYPE_OUT]);
    mpt__plan_call trial = *call;
    float best = INFINITY;
    plan->pinned = true;
    if (cudaMalloc(&trial.out, bytes) != cudaSuccess) {
        cudaGetLastError(); /* which is not sticky */
        return;
    }
    cudaMemsetAsync(trial.out, 0, bytes, products->cuda->stream);
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
        const float time = mpt__plan_time(products, plan, &found[i].algo, &trial);
        if (i == 0) plan->nanoseconds_first = (long long)fminf(time, 1e15f);
        if (!(time < 0.98f * best)) continue;
        best = time;
        plan->algorithm = found[i].algo;
    }
    mpt__cuda_note(products->cuda, cudaFree(trial.out), "giving memory of a trial back");
    cudaGetLastError(); /* what a candidate failed with is not the launch's */
    plan->nanoseconds = (long long)fminf(best, 1e15f);
}

/* Finds an algorithm: the first that the heuristic names or, where `timed`, the fastest. */
cublasStatus_t mpt__plan_choose(mpt__cuda_products *products, mpt__plan *plan, bool timed,
                                const mpt__plan_call *call) {
    static const cublasLtMatmulPreferenceAttributes_t alignment[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint32_t bytes = (uint32_t)plan->field[MPT__PLAN_ALIGNED];
    cublasLtMatmulHeuristicResult_t found[MPT__CANDIDATES];
    int n = 0;
    cublasStatus_t status = mpt__plan_set_bias(plan, call->bias);
    for (int i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++) {
        status = cublasLtMatmulPreferenceSetAttribute(products->preference, alignment[i], &bytes,
                                                      sizeof bytes);
    }
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    const cublasLtMatrixLayout_t *layout = plan->layout;
    status = cublasLtMatmulAlgoGetHeuristic(
        products->handle, plan->operation, layout[MPT__SIDE_B], layout[MPT__SIDE_A],
        layout[MPT__SIDE_OUT], layout[MPT__SIDE_OUT], products->preference,
        timed ? MPT__CANDIDATES : 1, found, &n);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = n > 0 ? found[0].state : CUBLAS_STATUS_NOT_SUPPORTED;
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    plan->algorithm = found[0].algo;
    if (timed) mpt__plan_pin(products, plan, found, n, call);
    return status;
}

/* Whether the algorithm that a file named can do the product, in our workspace. */
bool mpt__plan_check(const mpt__cuda_products *products, const mpt__plan *plan) {
    const cublasLtMatrixLayout_t *layout = plan->layout;
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoCheck(products->handle, plan->operation, layout[MPT__SIDE_B],
                                   layout[MPT__SIDE_A], layout[MPT__SIDE_OUT],
                                   layout[MPT__SIDE_OUT], &plan->algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= products->workspace_bytes;
}

/* Makes of the plan what is missing to run it. Nothing is timed while the stream is captured: that
   is made up for at the next call outside. */
cublasStatus_t mpt__plan_ready(mpt__cuda_products *products, mpt__plan *plan,
                               const mpt__plan_call *call) {
    const bool made = plan->operation != NULL, timed = products->cuda->benchmark;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (!made) {
        status = mpt__plan_describe(plan);
        plan->usable = status == CUBLAS_STATUS_SUCCESS;
        plan->pinned = plan->usable && plan->pinned && mpt__plan_check(products, plan);
    }
    if (!plan->usable || plan->pinned) return status;
    if (made && (!timed || products->cuda->capturing)) return status;
    status = mpt__plan_choose(products, plan, timed && !products->cuda->capturing, call);
    if (made) return CUBLAS_STATUS_SUCCESS; /* it keeps what it had */
    plan->usable = status == CUBLAS_STATUS_SUCCESS;
    return status;
}

/* ---- Running a launch ---- */

/* Where side s of the product begins. */
char *mpt__product_data(const mpt__cuda_call *call, const mpt__product *product, int s) {
    const long long at = product->side[s].at;
    return at < 0 ? (char *)call->data[s == MPT__SIDE_OUT ? 3 : s] : (char *)call->workspace + at;
}

/* The fields of the plan for these calls. */
void mpt__product_fields(const mpt__cuda_call *call, const mpt__product *product,
                         const mpt__plan_call *run, long long *field) {
    const mpt__side *side = product->side;
    const int dtype = side[MPT__SIDE_A].dtype;
    uint64_t addresses = 256 | (uint64_t)(uintptr_t)run->bias;
    const int activation = product->finish ? 0 : call->launch->activation;
    int epilogue = activation == MPT_ACTIVATION_RELU        ? CUBLASLT_EPILOGUE_RELU
                   : activation == MPT_ACTIVATION_GELU_TANH ? CUBLASLT_EPILOGUE_GELU
                                                            : 0;
    if (product->bias) epilogue |= CUBLASLT_EPILOGUE_BIAS;
    if (epilogue == 0) epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    field[MPT__PLAN_M] = side[MPT__SIDE_OUT].size[0];
    field[MPT__PLAN_N] = side[MPT__SIDE_OUT].size[1];
    field[MPT__PLAN_K] = side[MPT__SIDE_A].size[1];
    field[MPT__PLAN_BATCH] = product->batch;
    field[MPT__PLAN_DTYPE] = dtype;
    field[MPT__PLAN_DTYPE_OUT] = side[MPT__SIDE_OUT].dtype;
    field[MPT__PLAN_TF32] = dtype == MPT_F32 && call->cuda->products->tf32;
    field[MPT__PLAN_EPILOGUE] = epilogue;
    field[MPT__PLAN_ADD] = run->beta != 0;
    field[MPT__PLAN_CONTIGUOUS_A] = side[MPT__SIDE_A].contiguous;
    field[MPT__PLAN_CONTIGUOUS_B] = side[MPT__SIDE_B].contiguous;
    for (int s = 0; s < MPT__SIDES; s++) {
        const uint64_t bytes = mpt__bytes_of(side[s].dtype);
        addresses |= (uint64_t)(uintptr_t)mpt__product_data(call, product, s);
        if (product->batch > 1) addresses |= (uint64_t)product->batch_stride[s] * bytes;
        for (int d = 0; d < product->loop.rank; d++)
            addresses |= (uint64_t)product->along[s].stride[d] * bytes;
        field[MPT__PLAN_PITCH_A + s] = side[s].stride[!side[s].contiguous];
        field[MPT__PLAN_STEP_A + s] = product->batch > 1 ? product->batch_stride[s] : 0;
    }
    field[MPT__PLAN_ALIGNED] = (long long)(addresses & (~addresses + 1));
}

/* A copy of those dimensions of an operand to `at` in the workspace. */
mpt__walk mpt__pack_of(const mpt__cuda_call *call, int position, long long at, int dtype, int rank,
                       const int64_t *shape, const long long *stride) {
    mpt__array array[2];
    long long step = 1;
    array[0] = array[1] = mpt__array_of(call, position);
    array[1].data = (char *)call->workspace + at;
    array[1].dtype = dtype;
    for (int d = rank - 1; d >= 0; d--) {
        array[0].stride[d] = stride[d];
        array[1].stride[d] = step;
        step *= shape[d];
    }
    return mpt__walk_of(rank, shape, array, 2);
}

mpt__walk mpt__pack_side(const mpt__cuda_call *call, const mpt__side *side, int s) {
    const mpt__operand &out = call->launch->operand[3];
    const mpt__side from = mpt__side_of(call->launch->operand[s], out.rank - 1 - s);
    int64_t shape[MPT_MAX_RANK];
    long long stride[MPT_MAX_RANK];
    int rank = 0;
    for (int d = 0; d < out.rank - 2; d++) {
        if (from.batch[d] == 0) continue; /* broadcast: once */
        shape[rank] = out.shape[d], stride[rank] = from.batch[d];
        rank++;
    }
    for (int i = 0; i < 2; i++) {
        const int d = i == 1 ? side->contiguous : !side->contiguous;
        shape[rank] = from.size[d], stride[rank] = from.stride[d];
        rank++;
    }
    return mpt__pack_of(call, s, side->at, side->dtype, rank, shape, stride);
}

/* The copies that the product needs, in one launch. */
void mpt__product_copies(const mpt__cuda_call *call, const mpt__product *product) {
    const mpt__operand &bias = call->launch->operand[2];
    mpt__packs packs;
    unsigned int n = 0, blocks = 1;
    memset(&packs, 0, sizeof packs);
    packs.compute_dtype = call->launch->compute_dtype;
    for (int s = 0; s < MPT__SIDE_OUT; s++) {
        if (product->side[s].at >= 0) packs.of[n++] = mpt__pack_side(call, &product->side[s], s);
    }
    if (product->bias && product->bias_at >= 0) {
        const long long stride = bias.stride[bias.rank - 1];
        packs.of[n++] = mpt__pack_of(call, 2, product->bias_at, call->launch->operand[3].dtype, 1,
                                     &bias.shape[bias.rank - 1], &stride);
    }
    for (unsigned int i = 0; i < n; i++) {
        const unsigned int need = mpt__walk_blocks(call, packs.of[i]);
        if (need > blocks) blocks = need;
    }
    if (n > 0) mpt__pack_kernel<<<dim3(blocks, n), MPT__THREADS, 0, call->stream>>>(packs);
}

mpt__plan_call mpt__product_call(const mpt__cuda_call *call, const mpt__product *product) {
    mpt__plan_call run;
    run.a = mpt__product_data(call, product, MPT__SIDE_A);
    run.b = mpt__product_data(call, product, MPT__SIDE_B);
    run.out = mpt__product_data(call, product, MPT__SIDE_OUT);
    run.bias = NULL;
    if (product->bias) {
        run.bias =
            product->bias_at < 0 ? call->data[2] : (char *)call->workspace + product->bias_at;
    }
    run.alpha = (float)call->launch->imm[0];
    run.beta = !product->finish && call->launch->operand[3].access == MPT__ACCUMULATE ? 1.0f : 0.0f;
    return run;
}

/* One call of the plan for each batch that could not be merged. */
cublasStatus_t mpt__product_run(const mpt__cuda_call *call, const mpt__product *product,
                                const mpt__plan *plan, const mpt__plan_call *first) {
    const mpt__space &loop = product->loop;
    for (long long i = 0; i < loop.count; i++) {
        long long at[MPT__SIDES];
        for (int s = 0; s < MPT__SIDES; s++) {
            at[s] = 0;
            for (long long d = loop.rank - 1, rest = i; d >= 0; rest /= loop.shape[d--])
                at[s] += rest % loop.shape[d] * product->along[s].stride[d];
            at[s] *= (long long)mpt__bytes_of(product->side[s].dtype);
        }
        mpt__plan_call run = *first;
        run.a = (const char *)run.a + at[MPT__SIDE_A];
        run.b = (const char *)run.b + at[MPT__SIDE_B];
        run.out = (char *)run.out + at[MPT__SIDE_OUT];
        const cublasStatus_t status =
            mpt__plan_run(call->cuda->products, plan, &plan->algorithm, &run);
        if (status != CUBLAS_STATUS_SUCCESS) return status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* The product for a message. */
void mpt__product_name(const mpt__launch *launch, char *text, size_t size) {
    const mpt__operand &a = launch->operand[0], &out = launch->operand[3];
    const int dtype = mpt__product_dtype(launch);
    long long batch = 1;
    for (int d = 0; d < out.rank - 2; d++) batch *= out.shape[d];
    snprintf(text, size, "%s product of %lld x [%lld, %lld] and [%lld, %lld]",
             dtype == MPT_F16 ? "float16" : dtype == MPT_BF16 ? "bfloat16" : "float32", batch,
             (long long)out.shape[out.rank - 2], (long long)a.shape[a.rank - 1],
             (long long)a.shape[a.rank - 1], (long long)out.shape[out.rank - 1]);
}

/* What cuBLASLt has no way for is done by the plain kernel, as long as the plan lives. That is slow,
   which is said once for each dtype. */
mpt_status mpt__product_refused(const mpt__cuda_call *call, mpt__plan *plan,
                                cublasStatus_t status) {
    mpt__cuda *cuda = call->cuda;
    const unsigned int dtype = 1u << mpt__product_dtype(call->launch);
    char name[128], text[320];
    plan->usable = plan->pinned = false;
    if (cuda->products->said & dtype) return mpt__product_plain(call);
    cuda->products->said |= dtype;
    mpt__product_name(call->launch, name, sizeof name);
    snprintf(text, sizeof text,
             "cuBLASLt refused a %s on compute capability %d.%d (%s): a plain kernel computes it "
             "and others like it, many times slower",
             name, cuda->capability / 10, cuda->capability % 10, cublasLtGetStatusName(status));
    mpt__cuda_warn(cuda, text);
    return mpt__product_plain(call);
}

/* Any other failure is none of the product: the next launch tries again. */
mpt_status mpt__product_failed(const mpt__cuda_call *call, mpt__plan *plan, cublasStatus_t status) {
    const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
    const cudaError_t error = cudaPeekAtLastError();
    char name[128], text[240];
    if (!plan->usable) mpt__plan_forget(plan);
    mpt__product_name(call->launch, name, sizeof name);
    snprintf(text, sizeof text, "%s: cuBLASLt: %s", name, cublasLtGetStatusName(status));
    if (error != cudaSuccess) return mpt__cuda_check(call->cuda, error, text);
    return mpt__cuda_refuse(call->cuda, memory ? MPT_ERROR_MEMORY : MPT_ERROR_DEVICE, "gemm", text);
}

/* The output from the sums in workspace, which lie in the order of its elements. */
void mpt__product_finish(const mpt__cuda_call *call, void *sums) {
    const mpt__launch *launch = call->launch;
    const mpt__operand &out = launch->operand[3];
    mpt__array array[3];
    long long step = 1;
    for (int i = 0; i < 3; i++) array[i] = mpt__array_of(call, i == 0 ? 3 : i + 1);
    array[0].data = sums;
    array[0].dtype = MPT_F32;
    for (int d = out.rank - 1; d >= 0; d--) {
        array[0].stride[d] = step;
        step *= out.shape[d];
    }
    const mpt__walk walk = mpt__walk_of(out.rank, out.shape, array, 3);
    mpt__finish_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(
        walk, launch->compute_dtype, mpt__activations[launch->activation]);
}

/* A launch with elements in its output. */
mpt_status mpt__product_launch(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__operand &a = launch->operand[0];
    if (a.shape[a.rank - 1] == 0) return mpt__product_plain(call);
    const mpt__product product = mpt__product_of(launch);
    const mpt__plan_call run = mpt__product_call(call, &product);
    long long field[MPT__PLAN_FIELD_COUNT];
    mpt__product_copies(call, &product);
    mpt__product_fields(call, &product, &run, field);
    mpt__plan *plan = mpt__plan_enter(call->cuda->products, field);
    if (plan == NULL)
        return mpt__cuda_refuse(call->cuda, MPT_ERROR_MEMORY, "gemm", "no memory for its plan");
    if (plan->operation != NULL && !plan->usable) return mpt__product_plain(call);
    cublasStatus_t status = mpt__plan_ready(call->cuda->products, plan, &run);
    /* Every call of a plan does the same, so that only the first can be refused. */
    if (status == CUBLAS_STATUS_SUCCESS) status = mpt__product_run(call, &product, plan, &run);
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        if (product.finish) mpt__product_finish(call, run.out);
        return MPT_OK;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_ARCH_MISMATCH: return mpt__product_refused(call, plan, status);
    default: return mpt__product_failed(call, plan, status);
    }
}

/* How much of dimension 0 of the output to do at a time, so that sums in workspace stay few. */
long long mpt__gemm_piece(const mpt__launch *launch) {
    const mpt__operand &out = launch->operand[3];
    const long long rows = out.shape[0], bytes = 4 * mpt__numel(out);
    if (bytes <= MPT__SUM_BYTES || rows < 2 || !mpt__product_of(launch).finish) return rows;
    const long long piece = MPT__SUM_BYTES / (bytes / rows);
    return piece > 128 ? piece / 128 * 128 : piece > 1 ? piece : 1;
}

/* The launch for `count` of dimension 0. */
mpt__launch mpt__gemm_cut(const mpt__launch *launch, long long count) {
    mpt__launch cut = *launch;
    for (int i = 0; i < 4; i++) {
        if (i != 1 || cut.operand[i].rank > 2) cut.operand[i].shape[0] = count;
    }
    return cut;
}

int64_t mpt__cuda_gemm_workspace(const mpt__launch *launch) {
    if (mpt__numel(launch->operand[3]) == 0) return 0;
    const long long rows = launch->operand[3].shape[0], piece = mpt__gemm_piece(launch);
    if (piece >= rows) return mpt__product_of(launch).workspace;
    const mpt__launch cut = mpt__gemm_cut(launch, piece);
    return mpt__product_of(&cut).workspace;
}

mpt_status mpt__cuda_gemm(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    if (mpt__numel(launch->operand[3]) == 0) return MPT_OK;
    const long long rows = launch->operand[3].shape[0], piece = mpt__gemm_piece(launch);
    if (piece >= rows) return mpt__product_launch(call);
    for (long long row = 0; row < rows; row += piece) {
        const mpt__launch cut = mpt__gemm_cut(launch, piece < rows - row ? piece : rows - row);
        mpt__cuda_call part = *call;
        part.launch = &cut;
        for (int i = 0; i < 4; i++) {
            const mpt__operand &operand = launch->operand[i];
            const long long bytes = (long long)mpt__bytes_of(operand.dtype);
            if (part.data[i] == NULL || (i == 1 && operand.rank == 2)) continue;
            part.data[i] = (char *)part.data[i] + row * operand.stride[0] * bytes;
        }
        const mpt_status status = mpt__product_launch(&part);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

/* ---- What benchmark mode chose, as text ---- */

/* Text that grows; what does not fit is only counted. */
struct mpt__text {
    char *text;
    size_t capacity, length;
};

void mpt__text_add(mpt__text *to, const char *format, ...) {
    const size_t room = to->length < to->capacity ? to->capacity - to->length : 0;
    va_list values;
    va_start(values, format);
    const int n = vsnprintf(room > 0 ? to->text + to->length : NULL, room, format, values);
    va_end(values);
    to->length += n > 0 ? (size_t)n : 0;
}

/* The first line: an algorithm means the same only on the same card with the same libraries. */
void mpt__products_title(const mpt__cuda_products *products, mpt__text *to) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    mpt__text_add(to, "mptrain products 1: %s, capability %d, driver %d, cublasLt %llu\n",
                  products->cuda->name, products->cuda->capability, driver,
                  (unsigned long long)cublasLtGetVersion());
}

/* What follows the fields of a plan that is not pinned, by whether it is usable. */
const char *const mpt__plan_unpinned[] = {" plain kernel\n", " heuristic\n"};

void mpt__plan_print(const mpt__plan *plan, mpt__text *to) {
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++)
        mpt__text_add(to, f == 0 ? "%s=%lld" : " %s=%lld", mpt__plan_names[f], plan->field[f]);
    for (int i = 0; i < MPT__ALGORITHM_WORDS && plan->pinned; i++)
        mpt__text_add(to, " algorithm=%llx", (unsigned long long)plan->algorithm.data[i]);
    if (plan->pinned)
        mpt__text_add(to, " ns=%lld first=%lld\n", plan->nanoseconds, plan->nanoseconds_first);
    else
        mpt__text_add(to, "%s", mpt__plan_unpinned[plan->usable]);
}

/* The number after "name=" at *text, which moves behind it, or becomes NULL for good if something
   else stands there. */
unsigned long long mpt__text_number(const char **text, const char *name, int base) {
    const size_t length = strlen(name);
    const char *at = *text;
    char *end = NULL;
    if (at == NULL) return 0;
    *text = NULL;
    if (*at == ' ') at++;
    if (strncmp(at, name, length) != 0 || at[length] != '=') return 0;
    at += length + 1;
    const unsigned long long number = strtoull(at, &end, base);
    if (end != at) *text = end;
    return number;
}

/* A line of mpt__plan_print; false if it is none. */
bool mpt__plan_read(const char *text, mpt__plan *plan) {
    memset(plan, 0, sizeof *plan);
    for (int f = 0; f < MPT__PLAN_FIELD_COUNT; f++)
        plan->field[f] = (long long)mpt__text_number(&text, mpt__plan_names[f], 10);
    for (int i = 0; i < 2 && text != NULL; i++) {
        const char *unpinned = mpt__plan_unpinned[i];
        if (strncmp(text, unpinned, strlen(unpinned)) == 0) return true;
    }
    for (int i = 0; i < MPT__ALGORITHM_WORDS; i++)
        plan->algorithm.data[i] = mpt__text_number(&text, "algorithm", 16);
    plan->nanoseconds = (long long)mpt__text_number(&text, "ns", 10);
    plan->nanoseconds_first = (long long)mpt__text_number(&text, "first", 10);
    plan->pinned = text != NULL && *text == '\n';
    return plan->pinned;
}

/* Takes the choice that was read. A plan already made must be able to run it; any other finds that
   out when it is made. */
void mpt__plan_adopt(const mpt__cuda_products *products, mpt__plan *plan, const mpt__plan *read) {
    const cublasLtMatmulAlgo_t old = plan->algorithm;
    plan->algorithm = read->algorithm;
    plan->pinned = plan->operation == NULL || (plan->usable && mpt__plan_check(products, plan));
    plan->nanoseconds = read->nanoseconds;
    plan->nanoseconds_first = read->nanoseconds_first;
    if (!plan->pinned) plan->algorithm = old;
}

/* The functions of the backend, whose contract is theirs. */
void mpt__cuda_benchmark(void *self, bool benchmark, bool tf32) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    cuda->benchmark = benchmark;
    cuda->products->tf32 = tf32;
}

size_t mpt__cuda_benchmark_text(void *self, char *text, size_t capacity) {
    const mpt__cuda_products *products = ((mpt__cuda *)self)->products;
    mpt__text to = {text, capacity, 0};
    mpt__products_title(products, &to);
    for (long long i = 0; i < products->capacity; i++) {
        if (products->plans[i].taken) mpt__plan_print(&products->plans[i], &to);
    }
    return to.length;
}

mpt_status mpt__cuda_benchmark_read(void *self, const char *text) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    char title[512];
    mpt__text own = {title, sizeof title, 0};
    if (!cuda) return MPT_ERROR_DEVICE;
    mpt__products_title(cuda->products, &own);
    if (strncmp(text, title, strlen(title)) != 0) {
        return mpt__cuda_refuse(cuda, MPT_ERROR_UNSUPPORTED, "benchmark results ignored",
                                "they are from another card, driver or cuBLASLt");
    }
    for (text = strchr(text, '\n') + 1; *text != 0; text = strchr(text, '\n') + 1) {
        mpt__plan read;
        if (!mpt__plan_read(text, &read)) {
            return mpt__cuda_refuse(cuda, MPT_ERROR_FORMAT, "benchmark results",
                                    "a line is not as mptrain writes it");
        }
        if (!read.pinned) continue;
        mpt__plan *plan = mpt__plan_enter(cuda->products, read.field);
        if (plan == NULL) {
            return mpt__cuda_refuse(cuda, MPT_ERROR_MEMORY, "benchmark results",
                                    "no memory for them");
        }
        if (!plan->pinned) mpt__plan_adopt(cuda->products, plan, &read);
    }
    return MPT_OK;
}

/* ---- Making and ending ---- */

void mpt__cuda_products_destroy(mpt__cuda_products *products) {
    if (products == NULL) return;
    for (long long i = 0; i < products->capacity; i++) mpt__plan_forget(&products->plans[i]);
    if (products->preference != NULL) cublasLtMatmulPreferenceDestroy(products->preference);
    if (products->handle != NULL) cublasLtDestroy(products->handle);
    if (products->begin != NULL) cudaEventDestroy(products->begin);
    if (products->end != NULL) cudaEventDestroy(products->end);
    cudaFree(products->workspace);
    free(products->plans);
    free(products);
}

/* Sums of halves are only ever reduced in fp32. */
bool mpt__products_begin(mpt__cuda_products *products) {
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t bytes = products->workspace_bytes;
    return cublasLtCreate(&products->handle) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceCreate(&products->preference) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(
               products->preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
               sizeof reductions) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(products->preference,
                                                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                sizeof bytes) == CUBLAS_STATUS_SUCCESS &&
           cudaEventCreate(&products->begin) == cudaSuccess &&
           cudaEventCreate(&products->end) == cudaSuccess &&
           cudaMalloc(&products->workspace, products->workspace_bytes) == cudaSuccess;
}

/* NULL if cuBLASLt or memory fails, with the reason in the backend's error. */
mpt__cuda_products *mpt__cuda_products_create(mpt__cuda *cuda) {
    mpt__cuda_products *products = (mpt__cuda_products *)calloc(1, sizeof *products);
    if (products != NULL) {
        products->cuda = cuda;
        products->workspace_bytes = (size_t)(cuda->capability >= 90 ? 32 : 8) << 20;
        if (mpt__products_begin(products)) return products;
    }
    mpt__cuda_products_destroy(products);
    mpt__cuda_refuse(cuda, MPT_ERROR_DEVICE, "cuBLASLt",
                     "cannot be started (memory, or its version)");
    return NULL;
}

