/* ----
 * core/anomaly.c: anomaly mode: which op of a failed step overflowed, and whether fp32 would have.
 *
 * Every step is recorded, with a note of each launch that made a non-finite value. If the loss or
 * gradients are not finite before an update, or at the end of the step, its launches run once more
 * in memory of their own, where whatever was fp16 or bf16 is fp32. The first launch that is finite
 * there is where precision failed. If there is none the values themselves are at fault.
 * ---- */
#ifndef MPT__CORE_ANOMALY_INCLUDED
#define MPT__CORE_ANOMALY_INCLUDED

#include "core/values.c"

#ifdef MPTRAIN_NO_WATCH

MPT__BEGIN_ABSENT
static mpt_status mpt__watch_missing(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "what looks at a training (MPTRAIN_NO_WATCH)");
}

static void mpt__anomaly_stop(MPT__HEARS) {}
static void mpt__anomaly_free(mpt_context *ctx) {}

mpt_status mpt_anomaly_mode(mpt_context *ctx, bool on) {
    return mpt__watch_missing(ctx, "mpt_anomaly_mode");
}
mpt_anomaly_kind mpt_anomaly(mpt_context *ctx) { return MPT_ANOMALY_NONE; }
const char *mpt_anomaly_text(mpt_context *ctx) { return ""; }
MPT__END_ABSENT

#else

/* What a launch made that is not finite: its first such element. */
typedef struct {
    int64_t launch; /* position in the recording */
    int64_t index;
    uint32_t path; /* of the module */
    int operand;
    double value;
} mpt__finding;

typedef struct mpt__anomaly {
    void (*end)(mpt_context *ctx); /* a pointer: programs that never ask for this are without it */
    mpt__finding *findings;        /* of the open step */
    int64_t count, capacity;
    bool lost;   /* a loss that backward ran from was not finite */
    bool looked; /* the step was replayed already */
    mpt_anomaly_kind kind;
    char report[640];
} mpt__anomaly;

/* A storage in the replay. */
typedef struct {
    void *data; /* NULL: the replay reads the original */
    int size_class;
    uint8_t dtype, first; /* of its first use: as what, how; 0: it is not used */
    bool low, written;
} mpt__shadow;

static const uint8_t mpt__kernel_effects[] = {
#define MPT__ROW(id, name, effect) effect,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

static bool mpt__is_low(int dtype) { return dtype == MPT_F16 || dtype == MPT_BF16; }

/* A float element of a view, as a double, without the checks that a captured step would fail. */
static double mpt__element(
    mpt_context *ctx, void *const *data, const mpt__operand *operand, int64_t index) {
    int64_t at = operand->offset, bits = 0;
    double value = 0;
    size_t size = mpt_dtype_size((mpt_dtype)operand->dtype);
    for (int d = operand->rank - 1; d >= 0; index /= operand->shape[d--])
        at += index % operand->shape[d] * operand->stride[d];
    const char *from = (const char *)data[operand->storage] + at * (int64_t)size;
    ctx->backend.download(ctx->backend.self, &bits, from, size);
    mpt__load_f64(&value, &bits, operand->dtype, 0, 1, 1);
    return value;
}

/* ==== While a step runs ==== */

static void mpt__anomaly_launch(MPT__HEARS) {
    const mpt__launch *launch = (const mpt__launch *)what;
    mpt__anomaly *anomaly = (mpt__anomaly *)user;
    if (launch->phase > MPT__BACKWARD) return;
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *operand = &launch->operand[i];
        if (!operand->storage || operand->access == MPT__READ ||
            !mpt__dtype_info[operand->dtype].is_float)
            continue;
        int64_t index = mpt__find_nonfinite(ctx, ctx->data, operand);
        if (index < 0 || !mpt__room(ctx, anomaly->findings, anomaly->capacity, anomaly->count + 1))
            continue;
        mpt__finding *finding = &anomaly->findings[anomaly->count++];
        uint32_t record = launch->op_record;
        finding->launch = ctx->recorder->count - 1;
        finding->index = index;
        finding->path = record ? ctx->records[record]->path : ctx->path;
        finding->operand = i;
        finding->value = mpt__element(ctx, ctx->data, operand, index);
        return;
    }
}

/* Ends the recording of a step, if it is this mode's. */
static void mpt__anomaly_stop(MPT__HEARS) {
    (void)user, (void)what;
    if (!ctx->recorder || !ctx->recorder->own) return;
    const mpt__recording *recorder = mpt__recorder_stop(ctx);
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__anomaly_launch);
    mpt__object_free(ctx, MPT__RECORDING, recorder->id.slot);
}

/* At the start of a step. One that the user records, or captures, is not looked at. */
static void mpt__anomaly_start(MPT__HEARS) {
    mpt__anomaly *anomaly = (mpt__anomaly *)user;
    (void)what;
    anomaly->count = 0;
    anomaly->looked = anomaly->lost = false;
    if (ctx->recorder || mpt__recorder_start(ctx) != MPT_OK) return;
    ctx->recorder->own = true;
    mpt__listen(ctx, MPT__LAUNCHED, mpt__anomaly_launch, anomaly);
}

/* ==== The replay ==== */

/* What a launch is in the replay; false if it has no place there: what changes state other than
   tensors of the step. */
static bool mpt__anomaly_widen(const mpt__launch *from, mpt__launch *launch) {
    *launch = *from;
    if (launch->kernel == MPT__K_SCALE_LOSS) launch->kernel = MPT__K_UNARY;
    if (mpt__kernel_effects[launch->kernel] || launch->phase > MPT__BACKWARD) return false;
    if (mpt__is_low(launch->compute_dtype)) launch->compute_dtype = MPT_F32;
    for (int i = 0; i < launch->n_operands; i++)
        if (mpt__is_low(launch->operand[i].dtype)) launch->operand[i].dtype = MPT_F32;
    return true;
}

/* Runs a launch outside the context's order, on the memory that `data` names. */
static bool mpt__anomaly_run(mpt_context *ctx, void *const *data, mpt__launch *launch) {
    mpt__backend *backend = &ctx->backend;
    mpt__execution execution;
    execution.data = data;
    execution.scalars = mpt__device_scalars(ctx);
    execution.workspace = NULL;
    launch->workspace = backend->workspace ? backend->workspace(backend->self, launch) : 0;
    if (launch->workspace > 0) {
        execution.workspace = mpt__launch_workspace(ctx, launch->workspace);
        if (!execution.workspace) return false;
    }
    mpt_status status = mpt__launch_plainly(backend, &execution, launch);
    return status == MPT_OK || (mpt__backend_error(ctx, status), false);
}

/* How the launches up to the last finding use each storage. */
static void mpt__anomaly_uses(const mpt_context *ctx, int64_t last, mpt__shadow *shadows) {
    for (int64_t i = 0; i <= last; i++) {
        const mpt__launch *launch = &ctx->recorder->launches[i];
        mpt__launch wide;
        if (!mpt__anomaly_widen(launch, &wide)) continue;
        for (int k = 0; k < launch->n_operands; k++) {
            const mpt__operand *operand = &launch->operand[k];
            mpt__shadow *shadow = &shadows[operand->storage];
            if (!shadow->first) shadow->first = operand->access, shadow->dtype = operand->dtype;
            shadow->low = shadow->low || mpt__is_low(operand->dtype);
            shadow->written = shadow->written || operand->access != MPT__READ;
        }
    }
}

/* Memory for a storage that the replay writes or has in fp32: with the values of now where they are
   read before they are written, else zeros. */
static bool mpt__anomaly_shadow(mpt_context *ctx, uint32_t id, mpt__shadow *shadow) {
    int64_t bytes = ctx->storages[id].bytes * (shadow->low ? 2 : 1);
    bool copied = shadow->first == MPT__READ;
    if (copied && !ctx->data[id]) return false; /* written by the host, and gone */
    shadow->data =
        mpt__pool_take(ctx, bytes > 0 ? bytes : 1, MPT_MEMORY_WORKSPACE, &shadow->size_class);
    if (!shadow->data) return false;
    mpt__account(&ctx->base, MPT_MEMORY_WORKSPACE, mpt__class_bytes(shadow->size_class));
    void *pair[3] = {NULL, ctx->data[id], shadow->data};
    mpt__launch *launch = mpt__launch_begin(ctx, copied ? MPT__K_COPY : MPT__K_FILL);
    bool low = copied && mpt__is_low(shadow->dtype); /* of other dtypes bytes are what counts */
    int64_t count = copied && low ? bytes / 4 : copied ? ctx->storages[id].bytes : bytes;
    if (copied)
        mpt__operand_on(launch, 0, 1, low ? (mpt_dtype)shadow->dtype : MPT_U8, 0, count, MPT__READ);
    mpt__operand_on(launch, copied, 2, low ? MPT_F32 : MPT_U8, 0, count, MPT__WRITE);
    return bytes == 0 || mpt__anomaly_run(ctx, pair, launch);
}

static void mpt__anomaly_shadows_free(mpt_context *ctx, const mpt__shadow *shadows, int64_t count) {
    for (int64_t id = 0; id < count; id++) {
        if (!shadows[id].data) continue;
        mpt__account_less(
            &ctx->base, MPT_MEMORY_WORKSPACE, mpt__class_bytes(shadows[id].size_class));
        mpt__pool_give(ctx, shadows[id].data, shadows[id].size_class);
    }
}

/* Says what a finding is; `wide` is what fp32 has in its place. */
static void mpt__anomaly_report(
    mpt_context *ctx, const mpt__finding *finding, mpt_anomaly_kind kind, double wide) {
    mpt__anomaly *anomaly = ctx->anomaly;
    const mpt__launch *launch = &ctx->recorder->launches[finding->launch];
    const mpt__operand *operand = &launch->operand[finding->operand];
    const char *path = mpt__path_text(ctx, finding->path);
    mpt_shape shape = mpt__operand_shape(operand);
    mpt__text text = mpt__text_make(anomaly->report, sizeof anomaly->report);
    anomaly->kind = kind;
    mpt__write_text(&text, "step %lld: %s of %s%s%s (kernel %s): element %lld of a %D tensor %S ",
        ctx->now.step, mpt__phase_names[launch->phase], mpt__origin_text(ctx, launch),
        *path ? ", module " : "", path, mpt__kernel_names[launch->kernel], finding->index,
        operand->dtype, &shape);
    if (kind == MPT_ANOMALY_PRECISION)
        mpt__write_text(&text,
            "is %g; in float32 it is %g. Keep that module in fp32 with "
            "mpt_set_dtype_policy%s, or take MPT_BF16 for MPT_F16",
            finding->value, wide, launch->phase == MPT__BACKWARD ? ", lower the loss scale" : "");
    else if (kind == MPT_ANOMALY_VALUES)
        mpt__write_text(&text,
            "is %g, in float32 too: precision is not the cause. Check the data, the "
            "learning rate, and logarithms, divisions and roots before it",
            finding->value);
    else
        mpt__write_text(&text, "is %g; what fp32 would have given cannot be said: an input is gone",
            finding->value);
    mpt__log(&ctx->base, MPT_LOG_WARNING, "%s", anomaly->report);
}

/* Runs the launches on the shadows, and reports the first finding that fp32 does not share, or, if
   it shares them all, the first NaN among them, or else the first. */
static void mpt__anomaly_compare(mpt_context *ctx, void *const *data) {
    const mpt__anomaly *anomaly = ctx->anomaly;
    const mpt__finding *finding = anomaly->findings, *end = finding + anomaly->count;
    const mpt__finding *worst = finding;
    for (int64_t i = 0; finding < end; i++) {
        mpt__launch launch;
        bool runs = mpt__anomaly_widen(&ctx->recorder->launches[i], &launch);
        if (runs && !mpt__anomaly_run(ctx, data, &launch)) return;
        if (i < finding->launch) continue;
        const mpt__operand *operand = &launch.operand[finding->operand];
        if (runs && mpt__find_nonfinite(ctx, data, operand) < 0) {
            mpt__anomaly_report(ctx, finding, MPT_ANOMALY_PRECISION,
                mpt__element(ctx, data, operand, finding->index));
            return;
        }
        if (mpt__f64_is_nan(finding->value) && !mpt__f64_is_nan(worst->value)) worst = finding;
        finding++;
    }
    mpt__anomaly_report(ctx, worst, MPT_ANOMALY_VALUES, 0);
}

static void mpt__anomaly_replay(mpt_context *ctx) {
    const mpt__anomaly *anomaly = ctx->anomaly;
    int64_t count = ctx->storage_count, last = anomaly->findings[anomaly->count - 1].launch;
    size_t bytes = (size_t)count * (sizeof(mpt__shadow) + sizeof(void *));
    mpt__shadow *shadows = (mpt__shadow *)mpt__host_new(ctx, bytes);
    if (!shadows) return;
    void **data = (void **)(void *)(shadows + count);
    mpt__anomaly_uses(ctx, last, shadows);
    bool ready = true;
    for (int64_t id = 1; id < count && ready; id++) {
        if (!shadows[id].first) continue;
        ready = shadows[id].low || shadows[id].written
            ? mpt__anomaly_shadow(ctx, (uint32_t)id, &shadows[id])
            : ctx->data[id] != NULL;
    }
    for (int64_t id = 0; id < count; id++)
        data[id] = shadows[id].data ? shadows[id].data : ctx->data[id];
    if (ready)
        mpt__anomaly_compare(ctx, data);
    else if (mpt__ok(ctx))
        mpt__anomaly_report(ctx, anomaly->findings, MPT_ANOMALY_UNKNOWN, 0);
    mpt__anomaly_shadows_free(ctx, shadows, count);
    mpt__host_free(ctx, shadows, bytes);
}

static void mpt__anomaly_loss(MPT__HEARS) {
    const mpt__tensor *loss = (const mpt__tensor *)what;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FIND_NONFINITE);
    mpt__reads(launch, 0, loss);
    if (mpt__find_nonfinite(ctx, ctx->data, &launch->operand[0]) >= 0)
        ((mpt__anomaly *)user)->lost = true;
}

/* Whether any gradient of a parameter is not finite. */
static bool mpt__gradients_failed(mpt_context *ctx) {
    for (int64_t i = 0; i < ctx->parameter_count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[i];
        if (!parameter->live || !parameter->has_grad) continue;
        mpt__operand operand;
        mpt__zero(operand);
        operand.storage = ctx->blocks[parameter->block].gradients;
        operand.dtype = MPT_F32;
        operand.rank = 1;
        operand.offset = parameter->offset;
        operand.shape[0] = parameter->numel;
        operand.stride[0] = 1;
        if (mpt__find_nonfinite(ctx, ctx->data, &operand) >= 0) return true;
    }
    return false;
}

static void mpt__anomaly_look(MPT__HEARS) {
    mpt__anomaly *anomaly = (mpt__anomaly *)user;
    (void)what;
    if (!ctx->recorder || !ctx->recorder->own || ctx->recorder->failed || anomaly->count == 0 ||
        anomaly->looked || !mpt__ok(ctx) || !(anomaly->lost || mpt__gradients_failed(ctx)))
        return;
    anomaly->looked = true;
    mpt__anomaly_replay(ctx);
}

/* ==== API ==== */

static const struct {
    mpt__event event;
    mpt__hear hear;
} mpt__anomaly_hears[] = {{MPT__STEP_BEGAN, mpt__anomaly_start},
    {MPT__LOSS_KNOWN, mpt__anomaly_loss}, {MPT__GRADIENTS_DONE, mpt__anomaly_look},
    {MPT__STEP_ENDED, mpt__anomaly_stop}, {MPT__RECORDING_ASKED, mpt__anomaly_stop}};
#define MPT__ANOMALY_HEARS (int)(sizeof mpt__anomaly_hears / sizeof mpt__anomaly_hears[0])

static void mpt__anomaly_free(mpt_context *ctx) {
    if (ctx->anomaly) ctx->anomaly->end(ctx);
}

static void mpt__anomaly_end(mpt_context *ctx) {
    mpt__anomaly *anomaly = ctx->anomaly;
    mpt__anomaly_stop(ctx, NULL, NULL);
    for (int i = 0; i < MPT__ANOMALY_HEARS; i++)
        mpt__listen_no_more(ctx, mpt__anomaly_hears[i].event, mpt__anomaly_hears[i].hear);
    mpt__room_free(ctx, anomaly->findings, anomaly->capacity);
    mpt__host_free(ctx, anomaly, sizeof *anomaly);
    ctx->anomaly = NULL;
}

mpt_status mpt_anomaly_mode(mpt_context *ctx, bool on) {
    if (!mpt__enter(ctx, "mpt_anomaly_mode")) return mpt__status_of(ctx);
    if (ctx->step_depth)
        return mpt__error(
            ctx, STATE, "step %lld is open; switch anomaly mode between steps", ctx->now.step);
    if (!on) mpt__anomaly_free(ctx);
    if (on && !ctx->anomaly)
        ctx->anomaly = (mpt__anomaly *)mpt__host_new(ctx, sizeof *ctx->anomaly);
    if (ctx->anomaly) ctx->anomaly->end = mpt__anomaly_end;
    for (int i = 0; on && ctx->anomaly && i < MPT__ANOMALY_HEARS; i++)
        mpt__listen(ctx, mpt__anomaly_hears[i].event, mpt__anomaly_hears[i].hear, ctx->anomaly);
    return ctx->base.status;
}

mpt_anomaly_kind mpt_anomaly(mpt_context *ctx) {
    return ctx && ctx->anomaly ? ctx->anomaly->kind : MPT_ANOMALY_NONE;
}

const char *mpt_anomaly_text(mpt_context *ctx) {
    return ctx && ctx->anomaly ? ctx->anomaly->report : "";
}

#endif /* MPTRAIN_NO_WATCH */

#endif
