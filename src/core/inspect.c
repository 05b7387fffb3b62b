/* ----
 * core/inspect.c: what a context tells: its launches, where NaN began, counters, metrics, what it
 * is and holds, errors.
 * ---- */
#ifndef MPT__CORE_INSPECT_INCLUDED
#define MPT__CORE_INSPECT_INCLUDED

#include "core/recorder.c"

/* ==== What this room and those above share ==== */

static mpt_shape mpt__operand_shape(const mpt__operand *operand) {
    mpt_shape shape;
    shape.rank = operand->rank;
    for (int d = 0; d < operand->rank; d++) shape.dim[d] = operand->shape[d];
    return shape;
}

static const char *const mpt__kernel_names[] = {
#define MPT__ROW(id, name, effect) #name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* ==== Printer ==== */

static const char *const mpt__phase_names[] = {"forward", "backward", "update", "other"};

static void mpt__print_launch(MPT__HEARS) {
    const mpt__launch *launch = (const mpt__launch *)what;
    static const char *const access[] = {"?", "r", "w", "rw", "a"};
    const mpt__printer *printer = (const mpt__printer *)user;
    char text[1024];
    mpt__text line = mpt__text_make(text, sizeof text);
    mpt__write_text(&line, "%lld %s %s.%s", launch->number, mpt__kernel_names[launch->kernel],
        mpt__phase_names[launch->phase], launch->op ? ctx->ops[launch->op].name : "-");
    if (ctx->path) mpt__write_text(&line, " (%s)", mpt__path_text(ctx, ctx->path));
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *operand = &launch->operand[i];
        if (!operand->storage) continue;
        mpt_shape shape = mpt__operand_shape(operand);
        mpt__write_text(&line, " %s:%D%S@%d", access[operand->access], operand->dtype, &shape,
            (int)operand->storage);
    }
    printer->write(printer->user, text);
}

mpt_status mpt_print_launches(
    mpt_context *ctx, void (*write)(void *user, const char *line), void *user) {
    if (!mpt__enter(ctx, "mpt_print_launches")) return mpt__status_of(ctx);
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__print_launch);
    if (!write) return MPT_OK;
    ctx->printer.write = write;
    ctx->printer.user = user;
    return mpt__listen(ctx, MPT__LAUNCHED, mpt__print_launch, &ctx->printer);
}

/* ==== NaN tracer ==== */

/* Index of the first non-finite element of a view, -1: there is none. `data` is by storage id. */
static int64_t mpt__find_nonfinite(
    mpt_context *ctx, void *const *data, const mpt__operand *operand) {
    mpt__launch probe;
    mpt__zero(probe);
    probe.kernel = MPT__K_FIND_NONFINITE;
    probe.n_operands = 1;
    probe.slot[0] = MPT__SLOT_NONFINITE;
    probe.operand[0] = *operand;
    probe.operand[0].access = MPT__READ;
    mpt__execution execution;
    execution.data = data;
    execution.scalars = mpt__device_scalars(ctx);
    execution.workspace = NULL;
    if (mpt__launch_plainly(&ctx->backend, &execution, &probe) != MPT_OK) return -1;
    return mpt__scalar_get_i(ctx, MPT__SLOT_NONFINITE);
}

/* Whether a launch read what is not finite: then the fault is in the data, the weights or an op
   before. What the result has been written over cannot be told. */
static bool mpt__trace_read(
    mpt_context *ctx, const mpt__launch *traced, const mpt__operand *result) {
    for (int i = 0; i < traced->n_operands; i++) {
        const mpt__operand *operand = &traced->operand[i];
        if (operand->storage && operand->storage != result->storage &&
            operand->access == MPT__READ && mpt__dtype_info[operand->dtype].is_float &&
            mpt__find_nonfinite(ctx, ctx->data, operand) >= 0)
            return true;
    }
    return false;
}

static void mpt__trace_operand(
    mpt_context *ctx, mpt__tracer *tracer, const mpt__launch *traced, const mpt__operand *operand) {
    int64_t index = mpt__find_nonfinite(ctx, ctx->data, operand);
    if (index < 0) return;
    bool read = mpt__trace_read(ctx, traced, operand);
    mpt_shape shape = mpt__operand_shape(operand);
    uint32_t record = traced->op_record;
    const char *path = mpt__path_text(ctx, record ? ctx->records[record]->path : ctx->path);
    tracer->found = true;
    mpt__format_text(tracer->report, sizeof tracer->report,
        "step %lld: first non-finite value in the %s of %s%s%s (kernel %s): element "
        "%lld of a %D tensor %S%s",
        ctx->now.step, mpt__phase_names[traced->phase], mpt__origin_text(ctx, traced),
        *path ? ", module " : "", path, mpt__kernel_names[traced->kernel], index, operand->dtype,
        &shape, read ? "; what it read was not finite already" : "");
    mpt__log(&ctx->base, MPT_LOG_WARNING, "%s", tracer->report);
}

static void mpt__trace_launch(MPT__HEARS) {
    const mpt__launch *launch = (const mpt__launch *)what;
    mpt__tracer *tracer = (mpt__tracer *)user;
    if (launch->phase == MPT__OTHER) return;
    for (int i = 0; i < launch->n_operands && !tracer->found; i++) {
        const mpt__operand *operand = &launch->operand[i];
        if (operand->storage && operand->access != MPT__READ &&
            mpt__dtype_info[operand->dtype].is_float)
            mpt__trace_operand(ctx, tracer, launch, operand);
    }
}

static mpt_status mpt__trace_start(mpt_context *ctx, bool on) {
    ctx->tracer.on = on;
    ctx->tracer.found = false;
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__trace_launch);
    return mpt__listen(ctx, MPT__LAUNCHED, mpt__trace_launch, &ctx->tracer);
}

mpt_status mpt_trace_nan(mpt_context *ctx, bool on) {
    if (!mpt__enter(ctx, "mpt_trace_nan")) return mpt__status_of(ctx);
    if (on) return mpt__trace_start(ctx, true);
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__trace_launch);
    ctx->tracer.on = false;
    return MPT_OK;
}

const char *mpt_nan_report(mpt_context *ctx) {
    return ctx && ctx->tracer.found ? ctx->tracer.report : "";
}

/* ==== Counters ==== */

mpt_counters mpt_get_counters(mpt_context *ctx) {
    mpt_counters counters;
    mpt__zero(counters);
    if (!ctx) return counters;
    counters = ctx->counters;
    counters.calls = ctx->base.call;
    if (ctx->backend.counts)
        ctx->backend.counts(ctx->backend.self, &counters.parallel_runs, counters.by_thread);
    return counters;
}

/* ==== Looking at the device without waiting ==== */

#if defined(MPTRAIN_CUDA)

/* Brings the host view of the device scalars up to the last snapshot that is there. */
static void mpt__scalars_look(mpt_context *ctx) {
    const mpt__backend *backend = &ctx->backend;
    if (backend->synchronous) return;
    const mpt__scalar *set = ctx->scalars + 3 * MPT__SLOT_COUNT;
    for (int i = 0; i < 2; i++) {
        int place = i ^ (ctx->landing[0] > ctx->landing[1]); /* the older first */
        int64_t number = ctx->landing[place];
        if (!number || !backend->landed(backend->self, place)) continue;
        const mpt__scalar *from = ctx->scalars + (1 + place) * MPT__SLOT_COUNT;
        for (int slot = 0; slot < MPT__SLOT_COUNT; slot++)
            if (set[slot].i < number) ctx->scalars[slot] = from[slot];
        ctx->landing[place] = 0;
    }
}

/* Asks for a snapshot. Of two under way the older one is left alone, so that it arrives. */
static void mpt__scalars_ask(mpt_context *ctx) {
    mpt__backend *backend = &ctx->backend;
    if (backend->synchronous) return;
    mpt__scalars_look(ctx);
    const int64_t *under_way = ctx->landing;
    int place = under_way[0] && (!under_way[1] || under_way[1] > under_way[0]);
    mpt_status status =
        backend->snapshot(backend->self, place, ctx->scalars + (1 + place) * MPT__SLOT_COUNT,
            mpt__device_scalars(ctx), MPT__SLOT_COUNT * sizeof(mpt__scalar));
    ctx->landing[place] = status == MPT_OK ? ++ctx->snapshots : 0;
    if (status != MPT_OK) mpt__backend_error(ctx, status);
}

#else

static MPT__INLINE void mpt__scalars_look(mpt_context *ctx) { (void)ctx; }
static MPT__INLINE void mpt__scalars_ask(mpt_context *ctx) { (void)ctx; }

#endif

/* ==== Metrics ==== */

static mpt__metric *mpt__metric_find(mpt_context *ctx, const char *name) {
    for (int i = 0; i < ctx->metric_count; i++)
        if (strcmp(ctx->metrics[i].name, name) == 0) return &ctx->metrics[i];
    return NULL;
}

static mpt__metric *mpt__metric_make(mpt_context *ctx, const char *name) {
    int room = (int)(sizeof ctx->metrics / sizeof ctx->metrics[0]);
    mpt__metric *metric = &ctx->metrics[ctx->metric_count];
    if (ctx->metric_count == room || strlen(name) >= sizeof metric->name) {
        mpt__error(ctx, ARGUMENT,
            "metric \"%s\": at most %d metrics, names of at most %d characters", name, room,
            (int)sizeof metric->name - 1);
        return NULL;
    }
    metric->sum_slot = mpt__scalar_new_f(ctx, 0.0);
    metric->count_slot = metric->sum_slot ? mpt__scalar_new_i(ctx, 0) : 0;
    if (!metric->count_slot) {
        mpt__scalar_free(ctx, metric->sum_slot);
        return NULL;
    }
    mpt__format_text(metric->name, sizeof metric->name, "%s", name);
    ctx->metric_count++;
    return metric;
}

mpt_status mpt_metric_push(mpt_context *ctx, const char *name, mpt_tensor value) {
    if (!mpt__enter(ctx, "mpt_metric_push")) return mpt__status_of(ctx);
    if (!name) return mpt__error(ctx, ARGUMENT, "name is NULL");
    const mpt__tensor *found = mpt__at(ctx, value, "value");
    if (!found || mpt__runs_again(ctx)) return ctx->base.status;
    if (mpt__tensor_numel(found) != 1 || !mpt__dtype_info[found->dtype].is_float)
        return mpt__error(
            ctx, SHAPE, "expected one float element, got %D %S", found->dtype, &found->shape);
    mpt__metric *metric = mpt__metric_find(ctx, name);
    if (!metric) metric = mpt__metric_make(ctx, name);
    if (!metric) return ctx->base.status;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_METRIC_ADD);
    launch->slot[0] = metric->sum_slot;
    launch->slot[1] = metric->count_slot;
    mpt__operand_on(
        launch, 0, found->storage, (mpt_dtype)found->dtype, found->offset, 1, MPT__READ);
    return mpt__submit(ctx, launch);
}

/* The mean by the host's view of the device. */
static double mpt__metric_seen(const mpt_context *ctx, const mpt__metric *metric) {
    int64_t count = metric ? ctx->scalars[metric->count_slot].i : 0;
    if (metric && mpt__is_dry(&ctx->base)) return 0; /* nobody counts there */
    return count > 0 ? ctx->scalars[metric->sum_slot].f / (double)count : MPT__NAN_F64;
}

double mpt_metric_mean(mpt_context *ctx, const char *name, bool wait) {
    MPT__PLAIN_FLOATS;
    double none = MPT__NAN_F64;
    if (!mpt__enter(ctx, "mpt_metric_mean") || !name) return none;
    const mpt__metric *metric = mpt__metric_find(ctx, name);
    if (!metric) return none;
    if (wait) {
        mpt__wait(ctx);
    } else {
        mpt__scalars_look(ctx);
    }
    return mpt__metric_seen(ctx, metric);
}

mpt_status mpt_metric_reset(mpt_context *ctx, const char *name) {
    if (!mpt__enter(ctx, "mpt_metric_reset")) return mpt__status_of(ctx);
    if (!name) return mpt__error(ctx, ARGUMENT, "name is NULL");
    const mpt__metric *metric = mpt__metric_find(ctx, name);
    if (!metric) return MPT_OK;
    mpt__scalar_set_f(ctx, metric->sum_slot, 0.0);
    mpt__scalar_set_i(ctx, metric->count_slot, 0);
    return ctx->base.status;
}

/* ==== What a context is and holds ==== */

mpt_isa mpt_get_isa(mpt_context *ctx) { return ctx ? ctx->config.isa : MPT_ISA_AUTO; }
int mpt_get_threads(mpt_context *ctx) {
    if (!ctx) return 0;
    return ctx->pool ? mpt__pool_threads(ctx->pool) : 1;
}
mpt_device mpt_get_device(mpt_context *ctx) { return ctx ? ctx->config.device : MPT_DEVICE_AUTO; }
const char *mpt_device_name(mpt_context *ctx) {
    if (!ctx) return "none";
    return ctx->config.device == MPT_DEVICE_CPU ? "CPU" : ctx->backend.name;
}

mpt_device_info mpt_get_device_info(mpt_context *ctx) {
    mpt_device_info info;
    mpt__zero(info);
    if (!ctx) return info;
    info.device = ctx->config.device;
    info.index = ctx->config.device == MPT_DEVICE_CPU ? 0 : ctx->config.device_index;
    mpt_isa isa = ctx->config.isa;
    info.fast_half = isa == MPT_ISA_AMX || isa == MPT_ISA_AVX512_BF16 || isa == MPT_ISA_NEON_BF16;
    mpt__format_text(info.name, sizeof info.name, "%s", mpt_device_name(ctx));
    if (ctx->backend.describe) ctx->backend.describe(ctx->backend.self, &info);
    return info;
}

mpt_dtype mpt_precision_auto(mpt_context *ctx, const char **reason) {
    mpt_device_info info = mpt_get_device_info(ctx);
    bool gpu = info.device == MPT_DEVICE_CUDA;
    mpt_dtype precision = !info.fast_half ? MPT_F32 : gpu && info.major < 8 ? MPT_F16 : MPT_BF16;
    const char *why = "there is no context";
    if (ctx)
        why = precision == MPT_F16  ? "this GPU's Tensor Cores multiply fp16, but not bf16"
            : precision == MPT_BF16 ? gpu
                ? "this GPU's Tensor Cores multiply bf16, whose range is that of fp32"
                : "this CPU multiplies bf16 faster than fp32, whose range it has"
            : gpu ? "this GPU has no Tensor Cores: halves would save memory, not time"
                  : "the CPU's kernels in use multiply in fp32: halves would save memory, not time";
    if (reason) *reason = why;
    return precision;
}

mpt_status mpt_benchmark(mpt_context *ctx, bool benchmark, bool tf32) {
    if (!mpt__enter(ctx, "mpt_benchmark")) return mpt__status_of(ctx);
    mpt__backend *backend = &ctx->backend;
    ctx->tf32 = tf32 && (backend->benchmark || ctx->config.isa == MPT_ISA_AMX);
    if (!backend->benchmark) return MPT_OK;
    backend->benchmark(backend->self, benchmark, tf32);
    ctx->timed_products = benchmark;
    return MPT_OK;
}

size_t mpt_benchmark_text(mpt_context *ctx, char *text, size_t capacity) {
    if (text && capacity > 0) *text = '\0';
    if (!mpt__enter(ctx, "mpt_benchmark_text") || !ctx->backend.benchmark_text) return 0;
    return ctx->backend.benchmark_text(ctx->backend.self, text, text ? capacity : 0);
}

mpt_status mpt_benchmark_read(mpt_context *ctx, const char *text) {
    if (!mpt__enter(ctx, "mpt_benchmark_read")) return mpt__status_of(ctx);
    mpt__backend *backend = &ctx->backend;
    if (!text) return mpt__error(ctx, ARGUMENT, "text is NULL");
    if (!backend->benchmark_read) return MPT_OK;
    mpt_status status = backend->benchmark_read(backend->self, text);
    if (status == MPT_ERROR_UNSUPPORTED)
        mpt__log(&ctx->base, MPT_LOG_INFO, "mpt_benchmark_read: %s", backend->error);
    else if (status != MPT_OK)
        return mpt__backend_error(ctx, status);
    return MPT_OK;
}

mpt_status mpt_synchronize(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_synchronize")) return mpt__status_of(ctx);
    mpt__wait(ctx);
    return ctx->base.status;
}

mpt_memory_stats mpt_memory(mpt_context *ctx) {
    mpt_memory_stats none;
    mpt__zero(none);
    return ctx ? ctx->base.memory : none;
}

void mpt_memory_reset_peak(mpt_context *ctx) {
    if (!ctx) return;
    mpt_memory_stats *memory = &ctx->base.memory;
    for (int i = 0; i < MPT_MEMORY_KINDS; i++) memory->peak[i] = memory->current[i];
    memory->total_peak = memory->total_current;
}

void mpt_memory_trim(mpt_context *ctx) {
    if (mpt__enter_anyway(ctx, "mpt_memory_trim")) mpt__pool_trim(ctx);
}

/* ==== Errors ==== */

/* The status; in a child of fork an error. */
static mpt_status mpt__status_now(mpt_context *ctx) {
    if (mpt__ok(ctx) && mpt__forked_fast(&ctx->base)) mpt__not_forked(ctx);
    return ctx->base.status;
}

bool mpt_failed(mpt_context *ctx) { return !ctx || mpt__status_now(ctx) != MPT_OK; }

/* The error of failed mpt_create calls, kept per thread where the compiler can. */
static void mpt__set_create_error(const char *message) {
    mpt__format_text(mpt__create_message, sizeof mpt__create_message, "%s", message);
}

static const char *mpt__create_error(void) { return mpt__create_message; }

const char *mpt_error(mpt_context *ctx) {
    if (!ctx) return mpt__create_error();
    return mpt__status_now(ctx) != MPT_OK ? ctx->base.message : "";
}

mpt_status mpt_error_code(mpt_context *ctx) {
    return ctx ? mpt__status_now(ctx) : MPT_ERROR_HANDLE;
}

#endif
