/* ==== Memory and transfers ==== */

#define MPT__STAGES 4 /* uploads under way at once */
#define MPT__STAGE_BYTES ((size_t)1 << 20)

/* Page-locked memory that its owner fills. `read` ends an upload from it; before the next one,
   launches until `unused` are done, which may still use what the last one wrote. */
struct mpt__cuda_stage {
    mpt__cuda_stage *next;
    char *host;
    size_t bytes;
    cudaEvent_t read, unused;
};

/* An upload goes through page-locked memory to the card on a stream of its own while launches run,
   and in order with them from there to its place. `from_host` ends the first part of a stage's
   upload, `done` the second. */
struct mpt__cuda_transfers {
    cudaStream_t side;
    struct mpt__cuda_stage *stages;
    char *host, *device; /* MPT__STAGES stages */
    cudaEvent_t from_host[MPT__STAGES], done[MPT__STAGES];
    int next;
};

void mpt__cuda_transfers_destroy(mpt__cuda_transfers *t) {
    if (!t) return;
    for (int i = 0; i < MPT__STAGES; i++) {
        if (t->from_host[i]) cudaEventDestroy(t->from_host[i]);
        if (t->done[i]) cudaEventDestroy(t->done[i]);
    }
    cudaFreeHost(t->host);
    cudaFree(t->device);
    if (t->side) cudaStreamDestroy(t->side);
    free(t);
}

/* NULL, with what failed in *error. */
mpt__cuda_transfers *mpt__cuda_transfers_create(cudaError_t *error) {
    mpt__cuda_transfers *t = (mpt__cuda_transfers *)calloc(1, sizeof *t);
    *error = cudaErrorMemoryAllocation;
    if (!t) return NULL;
    *error = cudaStreamCreateWithFlags(&t->side, cudaStreamNonBlocking);
    if (*error == cudaSuccess)
        *error = cudaMallocHost((void **)&t->host, MPT__STAGES * MPT__STAGE_BYTES);
    if (*error == cudaSuccess)
        *error = cudaMalloc((void **)&t->device, MPT__STAGES * MPT__STAGE_BYTES);
    for (int i = 0; i < MPT__STAGES && *error == cudaSuccess; i++) {
        *error = cudaEventCreateWithFlags(&t->from_host[i], cudaEventDisableTiming);
        if (*error == cudaSuccess)
            *error = cudaEventCreateWithFlags(&t->done[i], cudaEventDisableTiming);
    }
    if (*error == cudaSuccess) return t;
    mpt__cuda_transfers_destroy(t);
    return NULL;
}

/* At most MPT__STAGE_BYTES. */
cudaError_t mpt__cuda_upload_piece(mpt__cuda *cuda, char *destination, const char *source,
                                   size_t bytes) {
    mpt__cuda_transfers *t = cuda->transfers;
    const int i = t->next;
    char *host = t->host + (size_t)i * MPT__STAGE_BYTES;
    char *device = t->device + (size_t)i * MPT__STAGE_BYTES;
    cudaError_t error = cudaEventSynchronize(t->done[i]);
    t->next = (i + 1) % MPT__STAGES;
    if (error != cudaSuccess) return error;
    memcpy(host, source, bytes);
    error = cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, t->side);
    if (error == cudaSuccess) error = cudaEventRecord(t->from_host[i], t->side);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->stream, t->from_host[i], 0);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(destination, device, bytes, cudaMemcpyDeviceToDevice, cuda->stream);
    if (error == cudaSuccess) error = cudaEventRecord(t->done[i], cuda->stream);
    return error;
}

/* Where the stage that holds this place hangs; NULL hangs there if none does. */
mpt__cuda_stage **mpt__cuda_stage_of(mpt__cuda *cuda, const void *place) {
    mpt__cuda_stage **at = &cuda->transfers->stages;
    while (*at && (uintptr_t)place - (uintptr_t)(*at)->host >= (*at)->bytes) at = &(*at)->next;
    return at;
}

/* Straight to its place while launches run; those queued from here on find it there. */
cudaError_t mpt__cuda_upload_stage(mpt__cuda *cuda, const mpt__cuda_stage *stage,
                                   void *destination, const void *source, size_t bytes) {
    const cudaStream_t side = cuda->transfers->side;
    cudaError_t error = cudaStreamWaitEvent(side, stage->unused, 0);
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(destination, source, bytes, cudaMemcpyHostToDevice, side);
    if (error == cudaSuccess) error = cudaEventRecord(stage->read, side);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(cuda->stream, stage->read, 0);
    return error;
}

mpt_status mpt__cuda_upload(void *self, void *destination, const void *source, size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    cudaError_t error = cudaSuccess;
    if (!cuda) return MPT_ERROR_DEVICE;
    const mpt__cuda_stage *stage = *mpt__cuda_stage_of(cuda, source);
    if (stage) {
        error = mpt__cuda_upload_stage(cuda, stage, destination, source, bytes);
        bytes = 0;
    }
    for (size_t at = 0; at < bytes && error == cudaSuccess; at += MPT__STAGE_BYTES) {
        const size_t left = bytes - at;
        error = mpt__cuda_upload_piece(cuda, (char *)destination + at, (const char *)source + at,
                                       left < MPT__STAGE_BYTES ? left : MPT__STAGE_BYTES);
    }
    return mpt__cuda_check(cuda, error, "upload to the GPU");
}

cudaError_t mpt__cuda_queue_download(mpt__cuda *cuda, void *destination, const void *source,
                                     size_t bytes) {
    return cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToHost, cuda->stream);
}

mpt_status mpt__cuda_snapshot(void *self, int place, void *destination, const void *source,
                              size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    cudaError_t error = mpt__cuda_queue_download(cuda, destination, source, bytes);
    if (error == cudaSuccess) error = cudaEventRecord(cuda->landed[place], cuda->stream);
    return mpt__cuda_check(cuda, error, "snapshot of the GPU's scalars");
}

bool mpt__cuda_landed(void *self, int place) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    const cudaError_t error = cuda ? cudaEventQuery(cuda->landed[place]) : cudaErrorNotReady;
    if (error != cudaErrorNotReady) mpt__cuda_check(cuda, error, "snapshot of the GPU's scalars");
    return error == cudaSuccess;
}

mpt_status mpt__cuda_synchronize(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    return mpt__cuda_check(cuda, cudaStreamSynchronize(cuda->stream), "work on the GPU");
}

/* Also tells what the program's own launches left. */
void *mpt__cuda_stream(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return NULL;
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && cuda->debug) error = cudaStreamSynchronize(cuda->stream);
    const char *what = "CUDA code of the program's own";
    return mpt__cuda_check(cuda, error, what) == MPT_OK ? (void *)cuda->stream : NULL;
}

mpt_status mpt__cuda_download(void *self, void *destination, const void *source, size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    const cudaError_t error = mpt__cuda_queue_download(cuda, destination, source, bytes);
    const mpt_status status = mpt__cuda_check(cuda, error, "download from the GPU");
    return status == MPT_OK ? mpt__cuda_synchronize(self) : status;
}

/* The context pools what it gets from here. NULL if there is no memory. */
void *mpt__cuda_allocate(void *self, size_t bytes) {
    void *pointer = NULL;
    if (!mpt__cuda_enter(self)) return NULL;
    if (cudaMalloc(&pointer, bytes) == cudaSuccess) return pointer;
    cudaGetLastError();
    return NULL;
}

/* Waits for the launches that may still use it. */
void mpt__cuda_release(void *self, void *pointer, size_t bytes) {
    (void)bytes;
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (cuda) mpt__cuda_note(cuda, cudaFree(pointer), "giving memory of the GPU back");
}

void *mpt__cuda_allocate_host(void *self, size_t bytes) {
    void *pointer = NULL;
    if (!mpt__cuda_enter(self)) return NULL;
    if (cudaMallocHost(&pointer, bytes) == cudaSuccess) return pointer;
    cudaGetLastError();
    return NULL;
}

/* Of a dead device, too: it is memory of the host. */
void mpt__cuda_release_host(void *self, void *pointer) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    mpt__cuda_enter(self);
    const cudaError_t error = cudaFreeHost(pointer);
    if (!cuda->dead) mpt__cuda_note(cuda, error, "giving page-locked memory back");
}

/* Waits until an upload from it, if there is one under way, has been read. */
void mpt__cuda_stage_free(void *self, void *pointer) {
    mpt__cuda_stage **at = mpt__cuda_stage_of((mpt__cuda *)self, pointer), *stage = *at;
    if (!stage) return;
    *at = stage->next;
    mpt__cuda_enter(self);
    if (stage->read) cudaEventSynchronize(stage->read), cudaEventDestroy(stage->read);
    if (stage->unused) cudaEventDestroy(stage->unused);
    mpt__cuda_release_host(self, stage->host);
    free(stage);
}

void *mpt__cuda_stage_new(void *self, size_t bytes) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    mpt__cuda_stage *stage = cuda ? (mpt__cuda_stage *)calloc(1, sizeof *stage) : NULL;
    if (!stage) return NULL;
    stage->host = (char *)mpt__cuda_allocate_host(self, bytes);
    if (!stage->host) {
        free(stage);
        return NULL;
    }
    stage->bytes = bytes;
    stage->next = cuda->transfers->stages;
    cuda->transfers->stages = stage;
    /* Whoever waits leaves its core to the threads that make batches. */
    const unsigned int flags = cudaEventDisableTiming | cudaEventBlockingSync;
    cudaError_t error = cudaEventCreateWithFlags(&stage->read, flags);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&stage->unused, flags);
    if (error == cudaSuccess) error = cudaEventRecord(stage->unused, cuda->stream);
    if (error == cudaSuccess) return stage->host;
    mpt__cuda_stage_free(self, stage->host);
    return NULL;
}

mpt_status mpt__cuda_stage_settle(void *self, void *pointer) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    const mpt__cuda_stage *stage = *mpt__cuda_stage_of(cuda, pointer);
    cudaError_t error = cudaEventSynchronize(stage->read);
    if (error == cudaSuccess) error = cudaEventRecord(stage->unused, cuda->stream);
    return mpt__cuda_check(cuda, error, "upload of a batch to the GPU");
}

/* ==== Launching ==== */

/* Two kernels that one function computes. */
#define mpt__cuda_pair_loss_backward mpt__cuda_pair_loss
#define mpt__cuda_interpolate_backward mpt__cuda_interpolate
#define mpt__cuda_recurrent_backward mpt__cuda_recurrent
#define mpt__cuda_pool_backward mpt__cuda_pool
#define mpt__cuda_gate_open mpt__cuda_gate_bits
#define mpt__cuda_conv_backward_input mpt__cuda_conv
#define mpt__cuda_conv_backward_weight mpt__cuda_conv

const mpt__cuda_run mpt__cuda_kernels[] = {
#define MPT__ROW(id, name, effect) mpt__cuda_##name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* Those of the others need none. */
int64_t mpt__cuda_workspace_bytes(void *self, const mpt__launch *launch) {
    (void)self;
    switch (launch->kernel) {
    case MPT__K_REDUCE: return mpt__cuda_reduce_workspace(launch);
    case MPT__K_GEMM: return mpt__cuda_gemm_workspace(launch);
    case MPT__K_NLL: return mpt__cuda_nll_workspace(launch);
    case MPT__K_CROSS_ENTROPY: return mpt__cuda_cross_entropy_workspace(launch);
    case MPT__K_GRAD_NORM: return mpt__cuda_grad_norm_workspace(launch);
    case MPT__K_PAIR_LOSS: return mpt__cuda_pair_loss_workspace(launch);
    case MPT__K_SCATTER_ADD: return mpt__cuda_scatter_add_workspace(launch);
    case MPT__K_ARGSORT: return mpt__cuda_argsort_workspace(launch);
    case MPT__K_CONV: return mpt__cuda_conv_workspace(launch);
    case MPT__K_CONV_BACKWARD_INPUT: return mpt__cuda_conv_workspace(launch);
    case MPT__K_CONV_BACKWARD_WEIGHT: return mpt__cuda_conv_workspace(launch);
    case MPT__K_NORM: return mpt__cuda_norm_workspace(launch);
    case MPT__K_NORM_BACKWARD: return mpt__cuda_norm_workspace(launch);
    case MPT__K_ATTENTION: return mpt__cuda_attention_workspace(launch);
    case MPT__K_ATTENTION_DQ: return mpt__cuda_attention_workspace(launch);
    case MPT__K_ATTENTION_DKV: return mpt__cuda_attention_workspace(launch);
    case MPT__K_EMBEDDING_BACKWARD: return mpt__cuda_embedding_backward_workspace(launch);
    default: return 0;
    }
}

const char *const mpt__cuda_kernel_names[] = {
#define MPT__ROW(id, name, effect) #name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

bool mpt__cuda_implements(void *self, mpt__kernel kernel) {
    (void)self;
    return kernel < MPT__KERNEL_COUNT && mpt__cuda_kernels[kernel] != NULL;
}

mpt_status mpt__cuda_launch(void *self, const mpt__execution *execution,
                            const mpt__launch *launch) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    char what[96];
    if (!cuda) return MPT_ERROR_DEVICE;
    if (launch->kernel >= MPT__KERNEL_COUNT) {
        snprintf(what, sizeof what, "number %d", (int)launch->kernel);
        return mpt__cuda_refuse(cuda, MPT_ERROR_UNSUPPORTED, "no such CUDA kernel", what);
    }
    mpt__cuda_call call;
    memset(&call, 0, sizeof call);
    call.cuda = cuda;
    call.launch = launch;
    call.scalars = execution->scalars;
    call.workspace = execution->workspace;
    call.stream = cuda->stream;
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand &o = launch->operand[i];
        char *base = (char *)execution->data[o.storage]; /* storage 0 is NULL */
        if (base) call.data[i] = base + o.offset * (int64_t)mpt__bytes_of(o.dtype);
    }
    mpt_status status = mpt__cuda_left_over(cuda);
    if (status == MPT_OK) status = mpt__cuda_kernels[launch->kernel](&call);
    if (status != MPT_OK) return status;
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && cuda->debug && !cuda->capturing)
        error = cudaStreamSynchronize(cuda->stream);
    if (error == cudaSuccess) return MPT_OK;
    snprintf(what, sizeof what, "kernel %s, launch %lld", mpt__cuda_kernel_names[launch->kernel],
             (long long)launch->number);
    return mpt__cuda_check(cuda, error, what);
}

/* ==== Graphs ==== */

mpt_status mpt__cuda_graph_begin(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    const mpt_status status =
        mpt__cuda_check(cuda, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal),
                        "beginning a graph");
    cuda->capturing = status == MPT_OK;
    return status;
}

/* A capture that went wrong is ended all the same, so that the stream works again; only then can be
   asked whether the device still does. */
mpt_status mpt__cuda_graph_end(void *self, void **graph) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    cudaGraph_t captured = NULL;
    cudaGraphExec_t executable = NULL;
    if (!cuda->capturing) return MPT_ERROR_DEVICE;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
    cuda->capturing = false;
    if (!graph) {
        error = cudaStreamQuery(cuda->stream);
        if (error != cudaSuccess && error != cudaErrorNotReady)
            cuda->dead |= mpt__cuda_lasts(cuda, error);
    } else if (error == cudaSuccess) {
        error = cudaGraphInstantiate(&executable, captured, 0);
    }
    if (captured) mpt__cuda_note(cuda, cudaGraphDestroy(captured), "dropping a graph");
    if (!graph) return MPT_OK;
    *graph = executable;
    return mpt__cuda_check(cuda, error, "ending a graph");
}

mpt_status mpt__cuda_graph_run(void *self, void *graph) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda) return MPT_ERROR_DEVICE;
    cudaError_t error = cudaGraphLaunch((cudaGraphExec_t)graph, cuda->stream);
    if (error == cudaSuccess && cuda->debug) error = cudaStreamSynchronize(cuda->stream);
    return mpt__cuda_check(cuda, error, "a captured step");
}

void mpt__cuda_graph_destroy(void *self, void *graph) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (cuda) mpt__cuda_note(cuda, cudaGraphExecDestroy((cudaGraphExec_t)graph), "ending a graph");
}

/* ==== Time ==== */

/* Between two events in the stream, so that neither the way of a launch to the card nor the wait
   for it counts. 0 where there is nothing before, and on an error, which the next launch tells. */
double mpt__cuda_lap(void *self) {
    mpt__cuda *cuda = mpt__cuda_enter(self);
    if (!cuda || cuda->capturing) return 0;
    const int before = cuda->lap, now = !before;
    const bool first = !cuda->laps[0];
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && error == cudaSuccess && first; i++)
        error = cudaEventCreateWithFlags(&cuda->laps[i], cudaEventDefault);
    if (error == cudaSuccess) error = cudaEventRecord(cuda->laps[now], cuda->stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(cuda->laps[now]);
    float milliseconds = 0;
    if (error == cudaSuccess && !first)
        error = cudaEventElapsedTime(&milliseconds, cuda->laps[before], cuda->laps[now]);
    cuda->lap = now;
    return mpt__cuda_check(cuda, error, "timing a launch") == MPT_OK ? 1e-3 * milliseconds : 0;
}

/* ==== Making and ending ==== */

void mpt__cuda_describe(void *self, mpt_device_info *info) {
    const mpt__cuda *cuda = (const mpt__cuda *)self;
    size_t free_bytes = 0, bytes = 0;
    if (mpt__cuda_enter(self) && cudaMemGetInfo(&free_bytes, &bytes) != cudaSuccess) {
        free_bytes = 0;
        cudaGetLastError();
    }
    info->memory = cuda->memory;
    info->memory_free = (int64_t)free_bytes;
    info->major = cuda->capability / 10;
    info->minor = cuda->capability % 10;
    info->fast_half = cuda->capability >= 70;
}

void mpt__cuda_destroy(void *self) {
    mpt__cuda *cuda = (mpt__cuda *)self;
    mpt__cuda_enter(self);
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    mpt__cuda_products_destroy(cuda->products);
    mpt__cuda_transfers_destroy(cuda->transfers);
    for (int i = 0; i < 2; i++)
        if (cuda->landed[i]) cudaEventDestroy(cuda->landed[i]);
    for (int i = 0; i < 2; i++)
        if (cuda->laps[i]) cudaEventDestroy(cuda->laps[i]);
    cudaFree(cuda->ticket);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    cudaGetLastError();
    free(cuda);
}

/* Reads what the card is, and makes what every launch needs. */
mpt_status mpt__cuda_start(mpt__cuda *cuda) {
    cudaDeviceProp card;
    cudaFuncAttributes kernel;
    cudaError_t error = cudaSetDevice(cuda->device);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&card, cuda->device);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&kernel, mpt__fill_kernel);
    if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
        cudaGetLastError();
        snprintf(cuda->backend->error, sizeof cuda->backend->error,
                 "mptrain_cuda.cu was compiled for other GPUs than %.99s, of compute capability "
                 "%d.%d: compile it with -arch=sm_%d%d, or set MPT_DEVICE_CPU",
                 card.name, card.major, card.minor, card.major, card.minor);
        return MPT_ERROR_DEVICE;
    }
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&cuda->landed[i], cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaMalloc((void **)&cuda->ticket, sizeof *cuda->ticket);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(cuda->ticket, 0, sizeof *cuda->ticket, cuda->stream);
    if (error != cudaSuccess) return mpt__cuda_check(cuda, error, "opening the GPU");
    snprintf(cuda->name, sizeof cuda->name, "%s", card.name);
    cuda->processors = card.multiProcessorCount;
    cuda->capability = card.major * 10 + card.minor;
    cuda->matrix = cuda->capability >= 80 && kernel.ptxVersion >= 80;
    cuda->memory = (int64_t)card.totalGlobalMem;
    cuda->transfers = mpt__cuda_transfers_create(&error);
    if (!cuda->transfers) return mpt__cuda_check(cuda, error, "memory for transfers");
    cuda->products = mpt__cuda_products_create(cuda);
    return cuda->products ? MPT_OK : MPT_ERROR_DEVICE; /* it has said why */
}

}  // namespace

extern "C" int mpt__cuda_device_count(char *why, size_t size) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    snprintf(why, size, "%s",
             error == cudaErrorInsufficientDriver
                 ? "no NVIDIA driver, or one too old for this CUDA toolkit"
             : error == cudaSuccess ? "there is no GPU"
                                    : cudaGetErrorString(error));
    return 0;
}

extern "C" mpt_status mpt__cuda_backend_create(mpt__backend *backend, int version, int device,
                                               bool debug) {
    memset(backend, 0, sizeof *backend);
    if (version != MPTRAIN_VERSION) {
        snprintf(backend->error, sizeof backend->error,
                 "mptrain.h has version %d, mptrain_cuda.cu has %d; copy both from one release",
                 version, MPTRAIN_VERSION);
        return MPT_ERROR_DEVICE;
    }
    mpt__cuda *cuda = (mpt__cuda *)calloc(1, sizeof *cuda);
    if (!cuda) return MPT_ERROR_MEMORY;
    cuda->backend = backend;
    cuda->device = device;
    cuda->debug = debug;
    const mpt_status status = mpt__cuda_start(cuda);
    if (status != MPT_OK) {
        mpt__cuda_destroy(cuda);
        return status;
    }
    backend->name = cuda->name;
    backend->self = cuda;
    backend->implements = mpt__cuda_implements;
    backend->describe = mpt__cuda_describe;
    backend->workspace = mpt__cuda_workspace_bytes;
    backend->launch = mpt__cuda_launch;
    backend->allocate = mpt__cuda_allocate;
    backend->release = mpt__cuda_release;
    backend->upload = mpt__cuda_upload;
    backend->download = mpt__cuda_download;
    backend->synchronize = mpt__cuda_synchronize;
    backend->stream = mpt__cuda_stream;
    backend->allocate_host = mpt__cuda_allocate_host;
    backend->release_host = mpt__cuda_release_host;
    backend->stage_new = mpt__cuda_stage_new;
    backend->stage_settle = mpt__cuda_stage_settle;
    backend->stage_free = mpt__cuda_stage_free;
    backend->snapshot = mpt__cuda_snapshot;
    backend->landed = mpt__cuda_landed;
    backend->lap = mpt__cuda_lap;
    backend->graph_begin = mpt__cuda_graph_begin;
    backend->graph_end = mpt__cuda_graph_end;
    backend->graph_run = mpt__cuda_graph_run;
    backend->graph_destroy = mpt__cuda_graph_destroy;
    backend->benchmark = mpt__cuda_benchmark;
    backend->benchmark_text = mpt__cuda_benchmark_text;
    backend->benchmark_read = mpt__cuda_benchmark_read;
    backend->destroy = mpt__cuda_destroy;
    return MPT_OK;
}
