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
