/* ----
 * cpu/backend.c: the CPU backend: one table of kernels per ISA level, filled by the rooms here.
 * ---- */
#ifndef MPT__CPU_BACKEND_INCLUDED
#define MPT__CPU_BACKEND_INCLUDED

#include "ground/parallel.c"
#include "ground/random.c"
#include "ground/dtype.c"
#include "waist/launch.h"

/* ==== Contract ==== */

typedef struct mpt__cpu_kernel mpt__cpu_kernel;
struct mpt__routines;   /* what a level computes with; cpu/elementwise.c */
struct mpt__gemm_level; /* and its products; cpu/product.h */

/* A launch with its operands resolved: data[i] points at operand i's element at its offset. */
typedef struct mpt__cpu_call {
    const mpt__launch *launch;
    const mpt__cpu_kernel *kernel; /* the row under way, for mpt__cpu_fall_back */
    const struct mpt__routines *routines;
    void *data[MPT__MAX_OPERANDS]; /* NULL: absent */
    mpt__scalar *scalars;
    void *workspace;
    mpt__pool *pool;
} mpt__cpu_call;

typedef void (*mpt__cpu_run)(const mpt__cpu_call *call);
/* Bytes of workspace for a launch, per pool and problem; ~bytes where the row that this one
   replaced may have to run it; may be NULL for none. */
typedef int64_t (*mpt__cpu_workspace)(const mpt__launch *launch, int threads);

struct mpt__cpu_kernel {
    mpt__cpu_run run;
    mpt__cpu_workspace workspace;
    const struct mpt__gemm_level *level; /* NULL: any level's; else it and not `workspace` asks: */
    int64_t (*level_workspace)(
        const struct mpt__gemm_level *level, const mpt__launch *launch, int threads);
    const mpt__cpu_kernel *fallback; /* the row that this one replaced; NULL in ref */
    bool scratch;                    /* this row or one that it falls back to asks for workspace */
};

/* Levels stand on each other and replace the rows of products: of matrices and of three kinds of
   convolutions. One of them replaces COPY. */
#ifdef MPTRAIN_NO_SIMD
#define MPT__CPU_REPLACED 1
#else
#define MPT__CPU_REPLACED (4 * (MPT_ISA_UNKNOWN - MPT_ISA_REF - 1) + 1)
#endif

/* ref fills every row with kernels that compute in the routines of a level; a level puts its
   routines in their place, and replaces the rows that take more than those. Such a kernel hands a
   launch that it cannot take (odd dtype, strides) to the row it replaced by mpt__cpu_fall_back. */
typedef struct mpt__cpu {
    mpt__base *base;
    mpt__pool *pool;
    mpt_isa isa;
    mpt__backend *backend;
    const struct mpt__routines *routines; /* of the highest level */
    void *own;                            /* NULL, or routines that are this backend's */
    size_t own_bytes;
    mpt__cpu_kernel kernel[MPT__KERNEL_COUNT];
    mpt__cpu_kernel replaced[MPT__CPU_REPLACED];
    int n_replaced;
} mpt__cpu;

/* Makes `run` the kernel of its row, over what stands there. */
static MPT__NOINLINE MPT__UNUSED mpt__cpu_kernel *mpt__cpu_add(
    mpt__cpu *cpu, mpt__kernel id, mpt__cpu_run run) {
    mpt__cpu_kernel *row = &cpu->kernel[id], *replaced = &cpu->replaced[cpu->n_replaced++];
    *replaced = *row;
    row->run = run;
    row->fallback = replaced;
    row->workspace = NULL;
    row->level = NULL;
    return row;
}

/* Runs a call by the row that the one under way replaced. */
static MPT__UNUSED void mpt__cpu_fall_back(const mpt__cpu_call *call) {
    mpt__cpu_call lower = *call;
    lower.kernel = call->kernel->fallback;
    lower.kernel->run(&lower);
}

/* Sets the error word unless an earlier error stands there. */
static MPT__COLD void mpt__cpu_raise(const mpt__cpu_call *call, mpt_status status, int64_t index,
    int64_t position, mpt__scalar value, int64_t size) {
    mpt__scalar *scalars = call->scalars;
    if (scalars[MPT__SLOT_ERROR].i != 0) return;
    scalars[MPT__SLOT_ERROR].i = status;
    scalars[MPT__SLOT_ERROR_LAUNCH].i = call->launch->number;
    scalars[MPT__SLOT_ERROR_INDEX].i = index;
    scalars[MPT__SLOT_ERROR_POSITION].i = position;
    scalars[MPT__SLOT_ERROR_VALUE] = value;
    scalars[MPT__SLOT_ERROR_SIZE].i = size;
}

/* Whether a gated kernel may write; found_inf_slot 0: only the error word decides. */
static bool mpt__gate_open(const mpt__cpu_call *call, int found_inf_slot) {
    if (call->scalars[MPT__SLOT_ERROR].i != 0) return false;
    return found_inf_slot == 0 || call->scalars[found_inf_slot].i == 0;
}

/* The key of what a launch draws: (seed, stream, call), or, where slot[0] names a step,
   (seed, hash_u64(stream, step), call). */
static mpt__rng_key mpt__cpu_rng_key(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__rng_key key;
    key.seed = launch->rng.seed;
    key.stream = launch->rng.stream;
    key.call = launch->rng.call;
    if (launch->slot[0] != 0) {
        key.stream = mpt__hash_u64(key.stream, (uint64_t)call->scalars[launch->slot[0]].i);
    }
    return key;
}

/* ==== Backend functions ==== */

static bool mpt__cpu_implements(void *self, mpt__kernel kernel) {
    const mpt__cpu *cpu = (const mpt__cpu *)self;
    return cpu->isa == MPT_ISA_NULL || cpu->kernel[kernel].run != NULL;
}

/* Enough for the row and for those that it may fall back to. */
static int64_t mpt__cpu_workspace_bytes(void *self, const mpt__launch *launch) {
    const mpt__cpu *cpu = (const mpt__cpu *)self;
    int64_t bytes = 0;
    if (launch->kernel >= MPT__KERNEL_COUNT) return 0;
    const mpt__cpu_kernel *row = &cpu->kernel[launch->kernel];
    for (bool below = true; below && row != NULL && row->scratch; row = row->fallback) {
        const int threads = mpt__pool_threads(cpu->pool);
        int64_t need = row->level != NULL ? row->level_workspace(row->level, launch, threads)
            : row->workspace != NULL      ? row->workspace(launch, threads)
                                          : ~0;
        below = need < 0;
        if (below) need = ~need;
        if (need > bytes) bytes = need;
    }
    return bytes;
}

static MPT__COLD void mpt__cpu_run_plainly(const mpt__cpu_call *call) {
    const uint32_t before = mpt__flush_denormals(false);
    call->kernel->run(call);
    mpt__restore_denormals(before);
}

static mpt_status mpt__cpu_launch(
    void *self, const mpt__execution *execution, const mpt__launch *launch) {
    const mpt__cpu *cpu = (const mpt__cpu *)self;
    if (launch->kernel >= MPT__KERNEL_COUNT || cpu->kernel[launch->kernel].run == NULL) {
        mpt__format_text(cpu->backend->error, sizeof cpu->backend->error,
            "the %s backend has no kernel number %d", cpu->backend->name, (int)launch->kernel);
        return MPT_ERROR_UNSUPPORTED;
    }
    mpt__cpu_call call;
    call.launch = launch;
    call.kernel = &cpu->kernel[launch->kernel];
    call.routines = cpu->routines;
    call.scalars = execution->scalars;
    call.workspace = execution->workspace;
    call.pool = cpu->pool;
    memset(call.data, 0, sizeof call.data);
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        char *base = (char *)execution->data[o->storage]; /* storage 0 is NULL */
        if (base != NULL) call.data[i] = base + o->offset * mpt__dtype_info[o->dtype].bytes;
    }
    /* Kernels start with denormals as IEEE has them, whatever the program set; those that flush
       them say so themselves. */
    if (MPT__LIKELY(mpt__floats_plain()))
        call.kernel->run(&call);
    else
        mpt__cpu_run_plainly(&call);
    return MPT_OK;
}

static mpt_status mpt__cpu_launch_nothing(
    void *self, const mpt__execution *execution, const mpt__launch *launch) {
    (void)self;
    (void)execution;
    (void)launch;
    return MPT_OK;
}

/* Uploads and downloads alike: device memory is host memory. */
static mpt_status mpt__cpu_transfer(
    void *self, void *destination, const void *source, size_t bytes) {
    (void)self;
    if (bytes > 0) memcpy(destination, source, bytes);
    return MPT_OK;
}

static mpt_status mpt__cpu_synchronize(void *self) {
    (void)self;
    return MPT_OK;
}

static void mpt__cpu_counts(void *self, int64_t *parallel_runs, int64_t by_thread[64]) {
    mpt__pool_counts(((const mpt__cpu *)self)->pool, parallel_runs, by_thread);
}

static void mpt__cpu_destroy(void *self) {
    mpt__cpu *cpu = (mpt__cpu *)self;
    mpt__pool_destroy(cpu->pool);
    mpt__release(cpu->base, cpu->own, cpu->own_bytes, MPT_MEMORY_HOST);
    mpt__release(cpu->base, cpu, sizeof *cpu, MPT_MEMORY_HOST);
}

/* Fills `backend` with a CPU backend of this level that has a pool but no kernels yet. NULL, with
   the error recorded in `base`, when memory or threads are out. `backend` must not move while it
   lives. */
static mpt__cpu *mpt__cpu_create(
    mpt__base *base, mpt_isa isa, const char *name, int threads, mpt__backend *backend) {
    mpt__cpu *cpu = (mpt__cpu *)mpt__allocate(base, sizeof *cpu, MPT_MEMORY_HOST);
    if (cpu == NULL) return NULL;
    cpu->pool = mpt__pool_create(base, isa == MPT_ISA_NULL ? 1 : threads);
    if (cpu->pool == NULL) {
        mpt__release(base, cpu, sizeof *cpu, MPT_MEMORY_HOST);
        return NULL;
    }
    cpu->base = base;
    cpu->isa = isa;
    cpu->backend = backend;
    memset(backend, 0, sizeof *backend);
    backend->name = name;
    backend->self = cpu;
    backend->synchronous = true;
    backend->implements = mpt__cpu_implements;
    backend->workspace = isa == MPT_ISA_NULL ? NULL : mpt__cpu_workspace_bytes;
    backend->launch = isa == MPT_ISA_NULL ? mpt__cpu_launch_nothing : mpt__cpu_launch;
    backend->upload = mpt__cpu_transfer;
    backend->download = mpt__cpu_transfer;
    backend->synchronize = mpt__cpu_synchronize;
    backend->counts = mpt__cpu_counts;
    backend->destroy = mpt__cpu_destroy;
    return cpu;
}

#endif
