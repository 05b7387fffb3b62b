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
