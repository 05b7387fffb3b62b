/* ----
 * graph/capture.c: captured steps: a training step that runs from its recording.
 *
 * The first call of a step makes what is made once (gradients, moments, half forms), the second is
 * recorded, and from the third on the launches are repeated: by a graph of the backend where there
 * is one. What the host does in a step besides launching (the step number, tables of learning
 * rates, the scaler's watch) is done for every repetition, too.
 * ---- */
#ifndef MPT__GRAPH_CAPTURE_INCLUDED
#define MPT__GRAPH_CAPTURE_INCLUDED

#include "nn/norm.c"
#include "train/fit.c"

#ifdef MPTRAIN_NO_GRAPH

MPT__BEGIN_ABSENT
static void mpt__captured_free(mpt_context *ctx, void *object) {}
static void mpt__slice_end(mpt_context *ctx) {}

static mpt_status mpt__capture_missing(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "captured steps (MPTRAIN_NO_GRAPH)");
}

mpt_captured mpt_capture(mpt_context *ctx, mpt_step_fn fn, void *user) {
    mpt_captured none;
    mpt__capture_missing(ctx, "mpt_capture");
    mpt__zero(none);
    none.context = ctx;
    return none;
}

int64_t mpt_captured_count(mpt_captured handle) {
    mpt__capture_missing(handle.context, "mpt_capture");
    return -1;
}

mpt_status mpt_captured_destroy(mpt_captured handle) {
    return mpt__capture_missing(handle.context, "mpt_capture");
}

mpt_status mpt_captured_step(mpt_captured handle, mpt_tensor x, mpt_tensor y) {
    return mpt__capture_missing(handle.context, "mpt_capture");
}

mpt_status mpt_step_slice(
    mpt_captured handle, mpt_tensor x, mpt_tensor y, double seconds, bool *done) {
    if (done) *done = false;
    return mpt__capture_missing(handle.context, "mpt_capture");
}
MPT__END_ABSENT

#else

enum { MPT__CAPTURE_X, MPT__CAPTURE_Y, MPT__CAPTURE_INPUTS };
#define MPT__CAPTURE_TRIES 3
#define MPT__CAPTURE_CHECK 16 /* with config.debug, every so many steps are compared */

typedef struct {
    mpt__id id;
    mpt_step_fn fn;
    void *user;
    mpt_tensor input[MPT__CAPTURE_INPUTS]; /* what the launches read; null: none */
    mpt__recording *recording;             /* NULL: not yet */
    void *graph;                           /* of the backend; NULL: launches one by one */
    uint32_t workspace;                    /* storage of the graph's scratch memory; 0: none */
    int64_t calls, count;
    uint64_t gradients;  /* mpt__gradients_now of when recording began: all steps begin so .. */
    bool finds;          /* .. if gradients of parameters that were there matter .. */
    bool otherwise;      /* .. but the last one did not and ran by hand */
    int tries;           /* recordings that could not be repeated */
    mpt__ids ends;       /* what parameters have at its end */
    mpt__ids leaves;     /* other tensors and gradients there */
    mpt__ids forms;      /* that the step leaves up to date: launch, twice block + which, storage */
    uint64_t patterns;   /* what mpt__patterns_now was there */
    uint64_t modes[2];   /* mpt__modes_now when recording began and there: what it sets itself */
    int64_t updates;     /* of optimizers, before the step under way */
    int64_t next;        /* in slices: the launch to go on with .. */
    int64_t step;        /* .. of the step of this number .. */
    uint32_t seen_state; /* .. and what mpt__held_state was when it paused */
    bool drops;          /* dropout: the device needs the step number */
    uint64_t draws;      /* calls of RANDOM in a step: the device needs how many came before */
    bool eager;          /* cannot be captured, for a reason that the log has */
} mpt__captured;

MPT__HANDLES(captured, MPT__CAPTURED)

/* ==== Making and ending ==== */

static void mpt__graph_free(mpt_context *ctx, mpt__captured *captured) {
    if (captured->graph) ctx->backend.graph_destroy(ctx->backend.self, captured->graph);
    if (captured->workspace) mpt__storage_release(ctx, captured->workspace);
    captured->graph = NULL;
    captured->workspace = 0;
}

/* Gives back all that recording took: the next call is as the second one was. */
static void mpt__captured_forget(mpt_context *ctx, mpt__captured *captured) {
    if (ctx->sliced == captured->id.slot) ctx->sliced = 0;
    mpt__graph_free(ctx, captured);
    if (captured->recording) {
        mpt__replay_memory(ctx, captured->recording, false);
        mpt__object_free(ctx, MPT__RECORDING, captured->recording->id.slot);
    }
    captured->recording = NULL;
    mpt__ids_free(ctx, &captured->ends);
    mpt__ids_free(ctx, &captured->leaves);
    mpt__ids_free(ctx, &captured->forms);
    captured->otherwise = false;
    for (int i = 0; i < MPT__CAPTURE_INPUTS; i++) mpt_release(captured->input[i]);
    memset(captured->input, 0, sizeof captured->input);
}

static void mpt__captured_free(mpt_context *ctx, void *object) {
    mpt__captured_forget(ctx, (mpt__captured *)object);
}

mpt_captured mpt_capture(mpt_context *ctx, mpt_step_fn fn, void *user) {
    mpt__captured *captured = NULL;
    if (!mpt__enter(ctx, "mpt_capture")) return mpt__captured_handle(ctx, NULL);
    if (!fn)
        mpt__error(ctx, ARGUMENT, "there is no step function");
    else
        captured = (mpt__captured *)mpt__object_make(ctx, MPT__CAPTURED, sizeof *captured);
    if (captured) captured->fn = fn, captured->user = user;
    return mpt__captured_handle(ctx, captured);
}

int64_t mpt_captured_count(mpt_captured handle) {
    const mpt__captured *captured = mpt__captured_enter(handle, "mpt_captured_count");
    return captured ? captured->count : -1;
}

static void mpt__slice_end(mpt_context *ctx);

mpt_status mpt_captured_destroy(mpt_captured handle) {
    const mpt__captured *captured = mpt__captured_enter(handle, "mpt_captured_destroy");
    if (captured && handle.context->capturing)
        return mpt__error(handle.context, STATE, "a step is being recorded; end it before");
    if (captured && handle.context->sliced == handle.slot) mpt__slice_end(handle.context);
    if (captured) mpt__object_free(handle.context, MPT__CAPTURED, captured->id.slot);
    return mpt__status_of(handle.context);
}

/* ==== Inputs ==== */

/* Whether what was recorded fits an input: both absent, or of one dtype and shape. */
static bool mpt__input_fits(mpt_context *ctx, mpt_tensor recorded, mpt_tensor given) {
    const mpt__tensor *a = mpt__live(ctx, recorded), *b = mpt__live(ctx, given);
    if (!a || !b) return !a && !given.slot;
    return a->dtype == b->dtype && mpt__same_shape(a, b);
}

/* Copies the inputs to where the launches read them. */
static mpt_status mpt__inputs_set(
    mpt_context *ctx, const mpt__captured *captured, const mpt_tensor *given) {
    for (int i = 0; i < MPT__CAPTURE_INPUTS; i++) {
        if (!captured->input[i].slot) continue;
        const mpt__tensor *to = mpt__live(ctx, captured->input[i]);
        mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_COPY);
        mpt__reads(launch, 0, mpt__live(ctx, given[i]));
        mpt__writes(launch, 1, to);
        mpt__submit(ctx, launch);
        ctx->storages[to->storage].version++;
    }
    return ctx->base.status;
}

/* Makes the fixed inputs, which lie as the first ones do. */
static mpt_status mpt__inputs_make(
    mpt_context *ctx, mpt__captured *captured, const mpt_tensor *given) {
    for (int i = 0; i < MPT__CAPTURE_INPUTS; i++) {
        if (!given[i].slot) continue;
        mpt_tensor made = mpt_zeros(ctx, mpt_get_dtype(given[i]), mpt_get_shape(given[i]));
        captured->input[i] = mpt_keep(made);
        const mpt__tensor *first = mpt__live(ctx, given[i]);
        if (mpt__ok(ctx) && first->shape.rank == 4 && mpt__channels_last(first))
            mpt__channels_last_strides(mpt__live(ctx, captured->input[i]));
        mpt_release(made);
    }
    return ctx->base.status;
}

/* ==== Gradients ====
 *
 * Whether a launch adds to a gradient or is the first to write it, and which rows an update has, is
 * recorded with it. So a step repeats only where it begins with the gradients that it was recorded
 * with; where somebody cleared some in between, it runs by hand. */

/* A number for which parameters have a gradient, and what those are still to be multiplied by. */
static uint64_t mpt__gradients_now(const mpt_context *ctx) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < ctx->block_count; i++)
        hash = mpt__hash_u64(hash, ctx->blocks[i].multiplier_slot);
    for (int64_t i = 0; i < ctx->parameter_count; i++)
        if (ctx->parameters[i].live && ctx->parameters[i].has_grad)
            hash = mpt__hash_u64(hash, (uint64_t)i << 32 | ctx->parameters[i].scaler);
    return hash;
}

/* The next tensor from slot *i on that has a gradient and is no parameter; 0: none. */
static uint32_t mpt__next_leaf(mpt_context *ctx, int64_t *i) {
    for (int64_t at = *i; at < ctx->tensor_count;) {
        const mpt__tensor *tensor = mpt__slot(ctx, (uint32_t)at);
        do {
            at++;
            if (!tensor->gradient || tensor->parameter) continue;
            *i = at;
            return (uint32_t)(at - 1);
        } while (tensor++, at % MPT__TENSOR_CHUNK);
    }
    return 0;
}

static uint32_t mpt__gradient_storage(mpt_context *ctx, uint32_t leaf) {
    return mpt__slot(ctx, leaf)->gradient->storage;
}

/* Slot and storage of every such gradient. */
static bool mpt__leaves_note(mpt_context *ctx, mpt__ids *leaves) {
    int64_t i = 1;
    for (uint32_t leaf; (leaf = mpt__next_leaf(ctx, &i)) != 0;)
        if (!mpt__ids_add(ctx, leaves, leaf) ||
            !mpt__ids_add(ctx, leaves, mpt__gradient_storage(ctx, leaf)))
            return false;
    return true;
}

static bool mpt__leaves_are(mpt_context *ctx, const mpt__ids *leaves) {
    int64_t i = 1, n = 0;
    for (uint32_t leaf; (leaf = mpt__next_leaf(ctx, &i)) != 0; n += 2)
        if (n == leaves->count || leaves->id[n] != leaf ||
            leaves->id[n + 1] != mpt__gradient_storage(ctx, leaf))
            return false;
    return n == leaves->count;
}

/* Whether a step that found some gradients and left others can be repeated: of the same tensors,
   and none that it has read is elsewhere now. */
static bool mpt__leaves_repeat(
    const mpt_context *ctx, const mpt__ids *before, const mpt__ids *after) {
    bool repeat = before->count == after->count;
    for (int64_t i = 0; i < before->count && repeat; i += 2)
        repeat = before->id[i] == after->id[i] &&
            (before->id[i + 1] == after->id[i + 1] ||
                ctx->storages[before->id[i + 1]].recordings == 0);
    return repeat;
}

/* What parameters have at the end of a recorded step, as far as it is the step's doing: a number
   whose last bit is has_grad, the multiplier, and by what the gradient is scaled. */
static bool mpt__gradients_note(mpt_context *ctx, mpt__captured *captured) {
    for (int64_t i = 0; i < ctx->parameter_count; i++) {
        const mpt__parameter *p = &ctx->parameters[i];
        if (p->live && (p->cleared || captured->finds) &&
            (!mpt__ids_add(ctx, &captured->ends, (uint32_t)i << 1 | p->has_grad) ||
                !mpt__ids_add(ctx, &captured->ends, ctx->blocks[p->block].multiplier_slot) ||
                !mpt__ids_add(ctx, &captured->ends, p->scaler)))
            return false;
    }
    return mpt__leaves_note(ctx, &captured->leaves);
}

static void mpt__gradients_set(mpt_context *ctx, const mpt__ids *ends) {
    for (int64_t i = 0; i < ends->count; i += 3) {
        mpt__parameter *parameter = &ctx->parameters[ends->id[i] >> 1];
        if (!parameter->live) continue;
        parameter->has_grad = ends->id[i] & 1;
        ctx->blocks[parameter->block].multiplier_slot = ends->id[i + 1];
        parameter->scaler = ends->id[i + 2];
    }
}

/* ==== Forms of weights ====
 *
 * A recording makes each form anew. Where the step's updates write it with the values, as they
 * mostly do, repetitions need not, as long as nobody else changes those. */

/* The launch, of a recording, that makes a form before its values change; -1: none does. */
static int64_t mpt__form_made(
    const mpt__recording *recording, const mpt__block *block, uint32_t form) {
    for (int64_t i = 0; i < recording->count; i++) {
        const mpt__launch *launch = &recording->launches[i];
        if (launch->kernel == MPT__K_COPY && launch->operand[1].storage == form) return i;
        for (int k = 0; k < launch->n_operands; k++)
            if (launch->operand[k].storage == block->values &&
                launch->operand[k].access != MPT__READ)
                return -1;
    }
    return -1;
}

/* Notes those forms that are up to date at the end of the step. */
static bool mpt__forms_note(mpt_context *ctx, mpt__captured *captured) {
    for (uint32_t i = 0; i < 2 * ctx->block_count; i++) {
        const mpt__block *block = &ctx->blocks[i / 2];
        const uint32_t form = block->form[i % 2];
        int64_t made = -1;
        if (form && block->form_version[i % 2] == ctx->storages[block->values].version)
            made = mpt__form_made(captured->recording, block, form);
        if (made >= 0 &&
            (!mpt__ids_add(ctx, &captured->forms, (uint32_t)made) ||
                !mpt__ids_add(ctx, &captured->forms, i) ||
                !mpt__ids_add(ctx, &captured->forms, form)))
            return false;
    }
    return true;
}

/* The version of the values that a form was made of, and which they have now; NULL: the block has
   ended. */
static uint32_t *mpt__form_version(mpt_context *ctx, const uint32_t *noted, uint32_t *now) {
    mpt__block *block = &ctx->blocks[noted[1] / 2];
    *now = ctx->storages[block->values].version;
    return block->form[noted[1] % 2] == noted[2] ? &block->form_version[noted[1] % 2] : NULL;
}

/* Whether a launch would make a form that is up to date. */
static bool mpt__form_stands(mpt_context *ctx, const mpt__ids *forms, int64_t launch) {
    uint32_t now;
    for (int64_t i = 0; i < forms->count; i += 3) {
        const uint32_t *noted = &forms->id[i], *version = mpt__form_version(ctx, noted, &now);
        if (noted[0] == launch) return version && *version == now;
    }
    return false;
}

/* At the end of a repetition, when all values have a new version. */
static void mpt__forms_set(mpt_context *ctx, const mpt__ids *forms) {
    uint32_t now;
    for (int64_t i = 0; i < forms->count; i += 3) {
        uint32_t *version = mpt__form_version(ctx, &forms->id[i], &now);
        if (version) *version = now;
    }
}

static void mpt__repeat_launch(mpt_context *ctx, const mpt__captured *captured, int64_t i) {
    if (captured->recording->launches[i].kernel != MPT__K_COPY ||
        !mpt__form_stands(ctx, &captured->forms, i))
        mpt__submit(ctx, &captured->recording->launches[i]);
}

static void *mpt__work_object(mpt_context *ctx, const uint32_t *work) {
    const mpt__object *row = &ctx->objects[work[0]].rows[work[1]];
    if (row->generation == work[2]) return row->object;
    mpt__error(ctx, STATE, "the %s of the captured step was destroyed", mpt__object_names[work[0]]);
    return NULL;
}

/* A number for what is in training, what has a dtype of its own and what is frozen. */
static uint64_t mpt__modes_now(const mpt_context *ctx) {
    uint64_t hash = 0;
    MPT__EACH_OBJECT(const mpt__module, module, ctx, MPT__MODULE) {
        if (!mpt__in_training(module) || module->policy || mpt__hooks_of(module))
            hash = mpt__hash_u64(hash,
                (uint64_t)module_at << 10 | (uint64_t)module->policy << 2 |
                    (mpt__hooks_of(module) ? 2 : 0) | (mpt__in_training(module) ? 0 : 1));
    }
    for (int64_t i = 0; i < ctx->parameter_count; i++) {
        const mpt__parameter *p = &ctx->parameters[i];
        if (p->live && !(p->tensor->flags & MPT__REQUIRES_GRAD))
            hash = mpt__hash_u64(hash + 1, (uint64_t)i);
    }
    return hash;
}

/* A number that changes with rows and options of the optimizers that a step updates, with the
   factors of its scalers and with where parameters are. */
static uint64_t mpt__patterns_now(mpt_context *ctx, const mpt__recording *recording) {
    uint64_t sum = ctx->moves; /* of counts that only grow */
    for (int64_t i = 0; i < recording->work.count; i += 3) {
        const uint32_t *work = &recording->work.id[i];
        bool scaler = work[0] == MPT__SCALER;
        if (work[0] != MPT__OPTIMIZER && !scaler) continue;
        const void *object = mpt__work_object(ctx, work);
        if (object)
            sum += scaler ? ((const mpt__scaler *)object)->changes
                          : ((const mpt__optimizer *)object)->patterns;
    }
    return sum;
}

/* ==== Recording ==== */

/* Stops trying, and says why. */
static void mpt__capture_give_up(mpt_context *ctx, mpt__captured *captured, const char *why) {
    captured->eager = true;
    mpt__log(
        &ctx->base, MPT_LOG_WARNING, "mpt_captured_step: every step runs by itself, since %s", why);
}

static mpt_status mpt__step_by_hand(
    mpt_context *ctx, const mpt__captured *captured, const mpt_tensor *input) {
    mpt_status status = captured->fn(ctx, captured->user, input[0], input[1]);
    return !mpt__ok(ctx) ? ctx->base.status : status;
}

/* What the host has to do for the objects of one kind that a step updates, launches apart. */
static mpt_status mpt__host_work(
    mpt_context *ctx, const mpt__recording *recording, mpt__object_kind kind);

/* One step by `fn` on the fixed inputs, recorded; NULL with an error recorded, or without one where
   the step writes from the host. */
static mpt__recording *mpt__record_step(mpt_context *ctx, const mpt__captured *captured) {
    if (mpt_record_begin(ctx) != MPT_OK) return NULL;
    ctx->capturing = ctx->unrecorded = true;
    ctx->draws_before = ctx->now.draws;
    mpt__scalar_set_i(ctx, MPT__SLOT_DRAWS, (int64_t)ctx->now.draws);
    ctx->unrecorded = false;
    int64_t writes = ctx->host_writes;
    mpt__step_by_hand(ctx, captured, captured->input);
    ctx->capturing = false;
    if (!ctx->recorder) return NULL; /* cleared away with an error */
    mpt__recording *recording = mpt__recorder_stop(ctx);
    for (int64_t i = 0; i < recording->count; i++)
        mpt__recorder_hold(ctx, recording, &recording->launches[i], INT64_MAX);
    mpt__host_work(ctx, recording, MPT__SCALER);
    if (!recording->failed && mpt__ok(ctx) && ctx->host_writes == writes) return recording;
    mpt__object_free(ctx, MPT__RECORDING, recording->id.slot);
    return NULL;
}

/* The launches as a graph, on memory that stays theirs. False where that is not possible. */
static bool mpt__graph_make(mpt_context *ctx, mpt__captured *captured) {
    mpt__backend *backend = &ctx->backend;
    const mpt__recording *recording = captured->recording;
    int64_t bytes = 0;
    for (int64_t i = 0; i < recording->count; i++)
        if (recording->launches[i].workspace > bytes) bytes = recording->launches[i].workspace;
    if (bytes > 0) {
        captured->workspace =
            mpt__storage_new(ctx, bytes, MPT_MEMORY_WORKSPACE, MPT__FROM_POOL, false);
        if (!captured->workspace) return false;
    }
    mpt__execution execution;
    execution.data = ctx->data;
    execution.scalars = mpt__device_scalars(ctx);
    execution.workspace = ctx->data[captured->workspace];
    mpt_status status = backend->graph_begin(backend->self);
    for (int64_t i = 0; i < recording->count && status == MPT_OK; i++)
        status = mpt__launch_plainly(backend, &execution, &recording->launches[i]);
    bool all = status == MPT_OK;
    status = backend->graph_end(backend->self, all ? &captured->graph : NULL);
    if (all && status == MPT_OK) return true;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "mpt_captured_step: no graph (%s): launches go one by one", backend->error);
    return false;
}

/* Records a step that finds these gradients of tensors; false if it cannot be repeated. */
static bool mpt__capture_try(
    mpt_context *ctx, mpt__captured *captured, const mpt_tensor *given, const mpt__ids *before) {
    captured->gradients = mpt__gradients_now(ctx);
    captured->modes[0] = mpt__modes_now(ctx);
    for (int64_t i = 0; i < ctx->parameter_count; i++) ctx->parameters[i].cleared = false;
    ctx->found_gradients = false;
    int64_t step = ctx->now.step;
    if (mpt__inputs_make(ctx, captured, given) == MPT_OK &&
        mpt__inputs_set(ctx, captured, given) == MPT_OK)
        captured->recording = mpt__record_step(ctx, captured);
    captured->finds = ctx->found_gradients;
    captured->draws = ctx->now.draws - ctx->draws_before;
    mpt__recording *recording = captured->recording;
    if (!recording || ctx->now.step != step + 1) { /* one is counted, which dropout draws by */
        if (mpt__ok(ctx))
            mpt__capture_give_up(ctx, captured,
                recording ? "its function is not one mpt_step_begin and mpt_step_end"
                          : "it writes to tensors from the host");
        return false;
    }
    captured->patterns = mpt__patterns_now(ctx, recording);
    captured->modes[1] = mpt__modes_now(ctx);
    if (!mpt__gradients_note(ctx, captured) || !mpt__forms_note(ctx, captured) ||
        !mpt__replay_memory(ctx, recording, true))
        return false;
    bool repeats = mpt__leaves_repeat(ctx, before, &captured->leaves);
    if (!repeats && ++captured->tries == MPT__CAPTURE_TRIES)
        mpt__capture_give_up(
            ctx, captured, "it does not leave the gradients of tensors as it found them");
    return repeats;
}

/* The second call. */
static mpt_status mpt__capture_record(
    mpt_context *ctx, mpt__captured *captured, const mpt_tensor *given) {
    mpt__ids before;
    mpt__zero(before);
    bool done = mpt__leaves_note(ctx, &before) && mpt__capture_try(ctx, captured, given, &before);
    mpt__ids_free(ctx, &before);
    if (!done) {
        mpt__captured_forget(ctx, captured);
        return ctx->base.status;
    }
    const mpt__recording *recording = captured->recording;
    for (int64_t i = 0; i < recording->count; i++)
        captured->drops |= recording->launches[i].slot[0] == MPT__SLOT_STEP;
    if (ctx->backend.graph_begin && !mpt__graph_make(ctx, captured)) mpt__graph_free(ctx, captured);
    return ctx->base.status;
}

/* ==== Repeating ==== */

static mpt_status mpt__host_work(
    mpt_context *ctx, const mpt__recording *recording, mpt__object_kind kind) {
    for (int64_t i = 0; i < recording->work.count && mpt__ok(ctx); i += 3) {
        const uint32_t *work = &recording->work.id[i];
        void *object = work[0] == (uint32_t)kind ? mpt__work_object(ctx, work) : NULL;
        if (!object) continue;
        if (kind == MPT__SCALER) {
            mpt__scaler_watch(ctx, (mpt__scaler *)object);
        } else {
            mpt__schedule_before_step(ctx, (mpt__optimizer *)object);
            ctx->now.updates++;
        }
    }
    return ctx->base.status;
}

static mpt_status mpt__repeat_begin(mpt_context *ctx, mpt__captured *captured) {
    if (mpt__launches_refused(ctx, captured->recording->launches, captured->recording->count))
        return ctx->base.status;
    captured->updates = ctx->now.updates;
    ctx->now.step++;
    ctx->base.step = ctx->now.step;
    ctx->now.module_calls = 0;
    mpt__tell_watchers(ctx, MPT__REPEAT_BEGAN, captured);
    if (mpt__host_work(ctx, captured->recording, MPT__OPTIMIZER) != MPT_OK) return ctx->base.status;
    if (captured->drops) mpt__scalar_set_i(ctx, MPT__SLOT_STEP, ctx->now.step);
    ctx->device_step = captured->drops ? ctx->now.step : -1;
    if (captured->draws) mpt__scalar_set_i(ctx, MPT__SLOT_DRAWS, (int64_t)ctx->now.draws);
    ctx->now.draws += captured->draws;
    return ctx->base.status;
}

static mpt_status mpt__repeat_end(mpt_context *ctx, mpt__captured *captured) {
    mpt__replay_versions(ctx, captured->recording);
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__forms_set(ctx, &captured->forms);
    mpt__tell_watchers(ctx, MPT__REPEAT_ENDED, captured);
    if (ctx->now.updates > captured->updates) ctx->committed = ctx->now;
    mpt__gradients_set(ctx, &captured->ends);
    captured->count++;
    mpt__scalars_ask(ctx);
    return mpt__host_work(ctx, captured->recording, MPT__SCALER);
}

static mpt_status mpt__capture_repeat(mpt_context *ctx, mpt__captured *captured) {
    mpt__backend *backend = &ctx->backend;
    if (mpt__repeat_begin(ctx, captured) != MPT_OK) return ctx->base.status;
    if (captured->graph) {
        mpt_status status = backend->graph_run(backend->self, captured->graph);
        if (status != MPT_OK) return mpt__backend_error(ctx, status);
    } else {
        for (int64_t i = 0; i < captured->recording->count && mpt__ok(ctx); i++)
            mpt__repeat_launch(ctx, captured, i);
    }
    return mpt__repeat_end(ctx, captured);
}

/* ==== Slices ==== */

/* A number that changes with any of the tensors, made before, that the launches name. */
static uint32_t mpt__held_state(const mpt_context *ctx, const mpt__recording *recording) {
    uint32_t sum = 0; /* of counts that only grow */
    for (int64_t i = 0; i < recording->held.count; i++)
        sum += ctx->storages[recording->held.id[i]].version;
    return sum;
}

/* Launches of the step under way for so long, one at least; ends it after the last. */
static mpt_status mpt__slice_run(mpt_context *ctx, mpt__captured *captured, double seconds) {
    const mpt__recording *recording = captured->recording;
    const mpt_clock *clock = &ctx->base.clock;
    double start = clock->now(clock->user);
    ctx->sliced = 0; /* so an error ends it, too */
    while (captured->next < recording->count && mpt__ok(ctx)) {
        mpt__repeat_launch(ctx, captured, captured->next++);
        if (!(clock->now(clock->user) - start < seconds)) break;
    }
    if (!mpt__ok(ctx) || captured->next == recording->count) return mpt__repeat_end(ctx, captured);
    ctx->sliced = captured->id.slot;
    captured->seen_state = mpt__held_state(ctx, recording);
    return MPT_OK;
}

static mpt_status mpt__slice_go_on(mpt_context *ctx, mpt__captured *captured, double seconds) {
    if (mpt__held_state(ctx, captured->recording) != captured->seen_state)
        return mpt__error(ctx, STATE,
            "a tensor of the step under way was changed between its slices (mpt_write, "
            "an op in place, an optimizer or a load); it ends here");
    if (captured->drops && ctx->device_step != captured->step) {
        mpt__scalar_set_i(ctx, MPT__SLOT_STEP, captured->step);
        ctx->device_step = captured->step;
    }
    return mpt__slice_run(ctx, captured, seconds);
}

/* Whether a launch changes what outlives its step. Gradients do not: an error drops them; nor what
   the end of a step takes over or forgets: running statistics to come, magnitudes for fp8. */
static bool mpt__launch_lasts(const mpt_context *ctx, const mpt__launch *launch) {
    bool lasts = launch->kernel == MPT__K_METRIC_ADD || launch->kernel == MPT__K_SCALER_UPDATE;
    if (launch->kernel == MPT__K_FP8_SCALE ||
        (launch->kernel == MPT__K_RUNNING_STATS && launch->operand[0].storage))
        return false;
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        const mpt__storage *storage = &ctx->storages[o->storage];
        if (o->access != MPT__READ && storage->kind != MPT_MEMORY_GRADIENT &&
            storage->kind != MPT_MEMORY_FORM && storage->references > storage->recordings)
            lasts = true; /* somebody else has it, too */
    }
    return lasts;
}

/* Gives up a step between two launches; once it has changed what lasts it is done to its end. */
static void mpt__slice_end(mpt_context *ctx) {
    bool changed = false;
    if (!ctx->sliced) return;
    mpt__captured *captured = (mpt__captured *)ctx->objects[MPT__CAPTURED].rows[ctx->sliced].object;
    for (int64_t i = 0; i < captured->next && !changed; i++)
        changed = mpt__launch_lasts(ctx, &captured->recording->launches[i]);
    ctx->sliced = 0;
    if (changed)
        mpt__slice_run(ctx, captured, (double)INFINITY);
    else
        mpt__running_settle(ctx, false);
}

/* ==== Comparing ==== */

static bool mpt__same_launch(const mpt__launch *a, const mpt__launch *b) {
    bool same = a->kernel == b->kernel && a->function == b->function &&
        a->n_operands == b->n_operands && a->reduction == b->reduction &&
        memcmp(a->slot, b->slot, sizeof a->slot) == 0 &&
        memcmp(a->imm, b->imm, sizeof a->imm) == 0 &&
        memcmp(a->index, b->index, sizeof a->index) == 0 &&
        memcmp(&a->rng, &b->rng, sizeof a->rng) == 0;
    for (int i = 0; i < a->n_operands && same; i++) {
        const mpt__operand *x = &a->operand[i], *y = &b->operand[i];
        if (!x->storage && !y->storage) continue; /* none; the rest is of an earlier launch */
        same = x->dtype == y->dtype && x->rank == y->rank && x->access == y->access &&
            x->offset == y->offset && x->storage && y->storage &&
            memcmp(x->shape, y->shape, x->rank * sizeof *x->shape) == 0;
    }
    return same;
}

/* One step by `fn`, which must launch what was recorded. */
static mpt_status mpt__capture_compare(mpt_context *ctx, const mpt__captured *captured) {
    const mpt__recording *old = captured->recording;
    mpt__recording *now = mpt__record_step(ctx, captured);
    if (!now) return ctx->base.status;
    int64_t i = 0;
    while (
        i < old->count && i < now->count && mpt__same_launch(&old->launches[i], &now->launches[i]))
        i++;
    if (i < old->count || i < now->count) {
        const mpt__recording *longer = i < now->count ? now : old;
        mpt__error(ctx, STATE,
            "the captured step is no longer what its function does: launch %lld of %lld was "
            "kernel %s and is now %s; do the same in every step, or run this one by hand",
            (long long)i + 1, (long long)longer->count,
            i < old->count ? mpt__kernel_names[old->launches[i].kernel] : "none",
            i < now->count ? mpt__kernel_names[now->launches[i].kernel] : "none");
    }
    mpt__object_free(ctx, MPT__RECORDING, now->id.slot);
    return ctx->base.status;
}

/* ==== A step ==== */

/* Whether a step has to run by hand: what it depends on is not as it was at the recording, which is
   forgotten, or it begins with other gradients. For the second time in turn that is recorded. */
static bool mpt__begins_otherwise(mpt_context *ctx, mpt__captured *captured) {
    uint64_t modes = mpt__modes_now(ctx);
    bool again = captured->otherwise;
    bool changed = mpt__patterns_now(ctx, captured->recording) != captured->patterns ||
        (modes != captured->modes[0] && modes != captured->modes[1]);
    captured->otherwise = (captured->finds && mpt__gradients_now(ctx) != captured->gradients) ||
        !mpt__leaves_are(ctx, &captured->leaves);
    if (!changed && (!captured->otherwise || !again)) return captured->otherwise;
    mpt__captured_forget(ctx, captured);
    return changed;
}

/* `seconds`: of the first slice, after which the step may stand between two launches. */
static mpt_status mpt__captured_begin(
    mpt__captured *captured, mpt_context *ctx, const mpt_tensor *given, double seconds) {
    if (ctx->step_depth || ctx->recorder)
        return mpt__error(ctx, STATE, "a %s is under way; captured steps stand alone",
            ctx->recorder ? "recording" : "step");
    for (int i = 0; i < MPT__CAPTURE_INPUTS; i++)
        if (given[i].slot && !mpt__at(ctx, given[i], i ? "y" : "x")) return ctx->base.status;
    captured->calls++;
    if (captured->calls == 1 || captured->eager) return mpt__step_by_hand(ctx, captured, given);
    bool otherwise = captured->recording && mpt__begins_otherwise(ctx, captured);
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (otherwise) return mpt__step_by_hand(ctx, captured, given);
    if (!captured->recording) return mpt__capture_record(ctx, captured, given);
    for (int i = 0; i < MPT__CAPTURE_INPUTS; i++)
        if (!mpt__input_fits(ctx, captured->input[i], given[i]))
            return mpt__step_by_hand(ctx, captured, given);
    if (mpt__inputs_set(ctx, captured, given) != MPT_OK) return ctx->base.status;
    if (ctx->config.debug && captured->calls % MPT__CAPTURE_CHECK == 0)
        return mpt__capture_compare(ctx, captured);
    if (!ctx->backend.synchronous || !(seconds < (double)INFINITY))
        return mpt__capture_repeat(ctx, captured);
    if (mpt__repeat_begin(ctx, captured) != MPT_OK) return ctx->base.status;
    captured->next = 0;
    captured->step = ctx->now.step;
    return mpt__slice_run(ctx, captured, seconds);
}

mpt_status mpt_captured_step(mpt_captured handle, mpt_tensor x, mpt_tensor y) {
    mpt__lend(handle, x.context ? x.context : y.context);
    mpt__captured *captured = mpt__captured_enter(handle, "mpt_captured_step");
    mpt_tensor given[MPT__CAPTURE_INPUTS];
    given[MPT__CAPTURE_X] = x, given[MPT__CAPTURE_Y] = y;
    if (!captured || !mpt__no_slice(handle.context)) return mpt__status_of(handle.context);
    return mpt__captured_begin(captured, handle.context, given, (double)INFINITY);
}

mpt_status mpt_step_slice(
    mpt_captured handle, mpt_tensor x, mpt_tensor y, double seconds, bool *done) {
    MPT__PLAIN_FLOATS;
    mpt__lend(handle, x.context ? x.context : y.context);
    mpt_context *ctx = handle.context;
    mpt__captured *captured = mpt__captured_enter(handle, "mpt_step_slice");
    mpt_tensor given[MPT__CAPTURE_INPUTS];
    given[MPT__CAPTURE_X] = x, given[MPT__CAPTURE_Y] = y;
    mpt_status status = mpt__status_of(ctx);
    if (captured && !(seconds >= 0.0))
        status = mpt__error(ctx, ARGUMENT, "seconds = %g: expected 0 or more", seconds);
    else if (captured && ctx->sliced == handle.slot)
        status = mpt__slice_go_on(ctx, captured, seconds);
    else if (captured && mpt__no_slice(ctx))
        status = mpt__captured_begin(captured, ctx, given, seconds);
    else if (captured)
        status = ctx->base.status;
    if (done) *done = captured && status == MPT_OK && !ctx->sliced;
    return status;
}

#endif /* MPTRAIN_NO_GRAPH */

#endif
