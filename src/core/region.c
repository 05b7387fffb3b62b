/* ----
 * core/region.c: parts of a forward that keep nothing for backward, which runs them again.
 *
 * Calls of a region leave records as others do, so backward goes the same way and forms the same
 * sums; but what they save is not held. At the first such record the region's forward runs again,
 * each call beside its twin, the record that it left, and gives that one what it saves. Calls whose
 * results nobody asks for are left out. A region in another is one of its calls.
 * ---- */
#ifndef MPT__CORE_REGION_INCLUDED
#define MPT__CORE_REGION_INCLUDED

#include "core/autocast.c"

#ifndef MPTRAIN_NO_FRUGAL

/* ==== Calls ==== */

static void mpt__region_append(mpt__region *region, mpt__record *call) {
    call->region = region;
    call->inner = NULL;
    call->before = region->last;
    call->after = NULL;
    if (region->last)
        region->last->after = call;
    else
        region->first = call;
    region->last = call;
}

/* Says which call of a repeated run is another than the first time (NULL: its end). */
static MPT__COLD mpt_status mpt__region_differs(
    mpt_context *ctx, const char *came, const mpt__record *twin) {
    const char *was = twin ? ctx->ops[twin->op].name : "its end";
    return mpt__error(ctx, STATE,
        "%s came where %s was: a recomputed forward makes the same calls each time", came,
        twin && twin->inner ? "a recomputed part" : was);
}

/* The twin of a call that begins in a repeated run: of that op, or (0) a region. */
static mpt__record *mpt__region_twin(mpt_context *ctx, int op, int n_in, int n_out) {
    mpt__record *twin = ctx->region->at;
    if (twin && twin->op == op && twin->n_in == n_in && twin->n_out == n_out) {
        ctx->region->at = twin->after;
        return twin;
    }
    mpt__region_differs(ctx, op ? ctx->ops[op].name : "a recomputed part", twin);
    return NULL;
}

/* A call with its inputs begins. */
static MPT__NOINLINE bool mpt__region_call(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__region *region = ctx->region;
    uint64_t *seen = &region->seen[ctx->runs_again];
    frame->skips = false;
    for (int i = 0; i < frame->n_in; i++) {
        if (!frame->in[i]) continue;
        *seen = mpt__hash_u64(*seen, ctx->storages[frame->in[i]->storage].version);
        *seen = mpt__hash_u64(*seen, (uint64_t)mpt__tensor_numel(frame->in[i]));
    }
    if (!ctx->runs_again) {
        mpt__region_append(region, frame->record);
        return true;
    }
    frame->twin = mpt__region_twin(ctx, frame->op, frame->n_in, frame->n_out);
    if (!frame->twin) return false;
    frame->records = frame->twin->asks & MPT__ASKS_GRADIENT;
    frame->skips = !(frame->twin->asks & (MPT__ASKS_ALWAYS | MPT__ASKS_NOW));
    if (frame->skips) { /* shapes are made, values are not */
        ctx->silent = *frame->row;
        ctx->silent.forward = NULL;
        frame->row = &ctx->silent;
    }
    frame->twin->asks &= (uint8_t)~MPT__ASKS_NOW;
    return true;
}

/* Whether a call does not hold what it would save. Parameters live anyway. */
static MPT__NOINLINE bool mpt__save_not(
    const mpt__frame *frame, const mpt__tensor *tensor, int at) {
    mpt__record *record = frame->record;
    int from = 0;
    if (frame->context->runs_again && frame->context->region->fills) return false;
    record->from[at] = MPT__FROM_OUTSIDE;
    if (!tensor || (tensor->parameter && !frame->context->runs_again)) return false;
    while (from < frame->n_in && frame->in[from] != tensor) from++;
    record->from[at] = (uint8_t)(from < frame->n_in ? from : MPT__FROM_CALL);
    record->asks |= from < frame->n_in ? MPT__ASKS_HOLES : MPT__ASKS_HOLES | MPT__ASKS_OWN;
    record->saved[at] = NULL;
    return true;
}

/* Gives the twin of a call what that one saves, or, where it was left out, the inputs. */
static void mpt__twin_fill(const mpt__frame *frame) {
    const mpt__record *now = frame->record;
    mpt__record *twin = frame->twin;
    for (int at = 0; at < twin->n_saved; at++) {
        if (twin->from[at] == MPT__FROM_OUTSIDE) continue;
        mpt__tensor *tensor = frame->skips ? frame->in[twin->from[at]] : now->saved[at];
        twin->saved[at] = tensor;
        if (!tensor) continue;
        twin->saved_version[at] = frame->skips
            ? frame->context->storages[tensor->storage].version
            : now->saved_version[at];
        tensor->saves++;
    }
    twin->asks &= (uint8_t)~MPT__ASKS_HOLES;
}

/* A call has ended. False: it leaves a record as other calls do. Layouts of images, which only
   forward knows, decide what others call: those calls are always repeated. */
static MPT__NOINLINE bool mpt__region_called(mpt__frame *frame, int n_out, mpt_status status) {
    mpt_context *ctx = frame->context;
    mpt__record *record = frame->record;
    bool records = status == MPT_OK && frame->records;
    if (!ctx->runs_again && records) {
        record->asks |= MPT__ASKS_GRADIENT | MPT__ASKS_OPEN;
        if (frame->out[0]->shape.rank == 4) record->asks |= MPT__ASKS_ALWAYS;
        ctx->region->live++;
        return false;
    }
    for (int i = 0; i < n_out && records; i++) frame->out[i]->flags |= MPT__REQUIRES_GRAD;
    if (records && ctx->region->fills && frame->twin->asks & MPT__ASKS_HOLES)
        mpt__twin_fill(frame);
    mpt__record_unsave(ctx, record);
    record->live = 0;
    if (ctx->runs_again) {
        mpt__record_spare(ctx, record);
    } else {
        record->asks = MPT__ASKS_ALWAYS;
        mpt__ask_always(record->in, record->n_in);
    }
    return true;
}

/* A storage is about to be changed in place. */
static MPT__COLD void mpt__region_write(mpt_context *ctx, uint32_t storage) {
    if (ctx->runs_again) return;
    mpt__region_read(ctx);
    if (ctx->storages[storage].made < ctx->region->number)
        mpt__error(ctx, STATE,
            "a recomputed forward would change a tensor from outside twice: do it before or after");
}

/* ==== Runs ==== */

/* Whether a forward that is to be repeated leaves something to backward. */
static bool mpt__regions(const mpt_context *ctx) {
    return !ctx->no_grad_depth && !ctx->inference_depth;
}

static void mpt__region_note(const mpt_context *ctx, mpt__region *region) {
    region->path = ctx->path, region->module = ctx->module, region->path_hash = ctx->path_hash;
    region->training = ctx->module_training, region->now = ctx->now;
}

/* A region about to run for the first time: it holds its inputs, unless it is in another. */
static mpt__region *mpt__region_new(
    mpt_context *ctx, const mpt__region *what, const mpt_tensor *in) {
    mpt__region *region = ctx->free_region, *older = ctx->regions;
    mpt__record *head = mpt__record_take(ctx);
    if (!head) return NULL;
    if (region) {
        ctx->free_region = region->next;
        older = region->older;
    } else {
        region = (mpt__region *)mpt__host_new(ctx, sizeof *region);
        if (!region) mpt__record_spare(ctx, head);
        if (!region) return NULL;
        ctx->regions = region;
    }
    *region = *what;
    region->older = older, region->above = ctx->region, region->head = head;
    region->live = 1;
    region->number = ++ctx->region_count;
    region->autocast = ctx->autocast[ctx->autocast_depth];
    region->narrow = ctx->narrow[ctx->autocast_depth];
    mpt__region_note(ctx, region);
    head->op = head->asks = 0;
    head->live = head->done = head->n_out = 0;
    head->n_in = head->n_saved = (uint8_t)region->n_in;
    for (int i = 0; i < region->n_in; i++) {
        mpt__tensor *tensor = mpt__live(ctx, in[i]);
        head->saved[i] = region->above ? NULL : tensor;
        if (!region->above) tensor->saves++;
        if (region->above) mpt__ask_always(&tensor, 1);
    }
    if (!region->above) return region;
    head->asks = MPT__ASKS_HOLES;
    region->above->live++;
    mpt__region_append(region->above, head);
    head->inner = region;
    return region;
}

/* The region that comes next in a repeated run of the one around it. */
static mpt__region *mpt__region_again(mpt_context *ctx, const mpt_tensor *in, int n_in) {
    mpt__record *head = mpt__region_twin(ctx, 0, n_in, 0);
    mpt__region *region = head ? head->inner : NULL;
    if (!region) return NULL;
    bool fills = ctx->region->fills && head->asks & MPT__ASKS_HOLES && region->live > 0;
    for (int i = 0; i < n_in && fills; i++) {
        head->saved[i] = mpt__live(ctx, in[i]);
        head->saved[i]->saves++;
    }
    if (fills) head->asks = 0, head->n_saved = (uint8_t)n_in;
    region->fills = false;
    return region;
}

/* Ends the scope of a region's run, but for its results. */
static mpt_status mpt__region_return(mpt_context *ctx, const mpt_tensor *out, int n_out) {
    if (ctx->scope_depth == ctx->step_depth) return MPT_OK; /* the forward has ended it */
    int64_t kept = ctx->scope_start[--ctx->scope_depth];
    for (int i = 0; i < n_out; i++) {
        const mpt__tensor *result = mpt__live(ctx, out[i]);
        if (result) mpt__scope_keep(ctx, result, &kept);
    }
    mpt__scope_drop(ctx, kept);
    if (ctx->scope_depth == 0) ctx->scoped_count = 0;
    return MPT_OK;
}

/* Runs a region's forward; `what` says it, which is no more than that the first time. */
static mpt_status mpt__region_forward(mpt_context *ctx, mpt__region *region, mpt__region *what,
    const mpt_tensor *in, mpt_tensor *out) {
    mpt__region *above = ctx->region;
    const int recomputes = ctx->recompute_depth;
    if (mpt__scope_open(ctx) != MPT_OK) return ctx->base.status;
    region->at = region->first;
    region->seen[ctx->runs_again] = 0;
    ctx->region = region;
    ctx->recompute_depth = 0; /* nothing is held that it could spare */
    what->run(ctx, what, in, out);
    mpt__wait_no_more(ctx);
    ctx->region = above;
    ctx->recompute_depth = recomputes;
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (ctx->runs_again && region->at) return mpt__region_differs(ctx, "its end", region->at);
    if (ctx->runs_again && region->seen[0] != region->seen[1])
        return mpt__error(ctx, STATE,
            "what a recomputed forward reads has changed since (mpt_write, an op in place, an "
            "optimizer step); do that after mpt_backward");
    return mpt__region_return(ctx, out, region->n_out);
}

/* A forward that keeps nothing: what->run on these inputs. */
static mpt_status mpt__region_run(mpt_context *ctx, mpt__region *what, const mpt_tensor *in,
    int n_in, mpt_tensor *out, int n_out) {
    if (n_in > MPT__USER_INPUTS || n_out > MPT__USER_INPUTS)
        return mpt__error(ctx, UNSUPPORTED,
            "a recomputed forward of %d inputs and %d outputs: expected at most %d", n_in, n_out,
            (int)MPT__USER_INPUTS);
    what->n_in = n_in, what->n_out = n_out;
    bool again = ctx->runs_again;
    mpt__region *region =
        again ? mpt__region_again(ctx, in, n_in) : mpt__region_new(ctx, what, in);
    if (!region) return ctx->base.status;
    mpt__region_forward(ctx, region, what, in, out);
    if (!again) mpt__region_less(ctx, region);
    return ctx->base.status;
}

/* ==== Backward ==== */

static void mpt__ask_now(mpt__tensor *tensor) {
    if (tensor && tensor->record) tensor->record->asks |= MPT__ASKS_NOW;
}

/* Finds which calls a repeated run needs, from the last one back: those that make what is to be
   saved, and what these read. `whole`: all of them. */
static void mpt__region_ask(const mpt__region *region, bool fills, bool whole) {
    whole = whole || region->whole;
    for (mpt__record *call = region->last; call; call = call->before) {
        if (call->inner) {
            mpt__region_ask(call->inner, false, whole);
            continue;
        }
        bool holes = fills && call->asks & MPT__ASKS_HOLES;
        if (whole || (holes && call->asks & MPT__ASKS_OWN)) call->asks |= MPT__ASKS_NOW;
        bool asks = call->asks & (MPT__ASKS_NOW | MPT__ASKS_ALWAYS);
        for (int i = 0; i < call->n_in && asks && call->live; i++) mpt__ask_now(call->in[i]);
        for (int at = 0; at < call->n_saved && holes; at++)
            if (call->from[at] < MPT__FROM_CALL) mpt__ask_now(call->in[call->from[at]]);
    }
}

/* The inputs of a region, whose handles may have ended. */
static bool mpt__region_inputs(mpt_context *ctx, const mpt__region *region, mpt_tensor *in) {
    for (int i = 0; i < region->n_in; i++) {
        mpt__tensor *held = region->head->saved[i], *shown = held;
        if (!held->handle) shown = mpt__tensor_alias(ctx, held);
        if (!shown) return false;
        if (shown != held) shown->flags |= held->flags & MPT__REQUIRES_GRAD;
        in[i] = mpt__handle(ctx, shown);
    }
    return true;
}

/* Puts another state in force, and the one of now in its place. */
static void mpt__region_swap(mpt_context *ctx, mpt__region *state) {
    const mpt__region then = *state;
    mpt__region_note(ctx, state);
    ctx->path = then.path, ctx->module = then.module, ctx->path_hash = then.path_hash;
    ctx->module_training = then.training, ctx->now = then.now;
    ctx->runs_again = !ctx->runs_again;
}

/* Runs a region again, in the state of then. */
static void mpt__region_repeat(mpt_context *ctx, mpt__region *region) {
    const int no_grads = ctx->no_grad_depth, inferences = ctx->inference_depth;
    const int autocasts = ctx->autocast_depth, scopes = ctx->scope_depth;
    mpt__region state = *region;
    mpt_tensor in[MPT__USER_INPUTS], out[MPT__USER_INPUTS];
    if (mpt__scope_open(ctx) != MPT_OK) return;
    ctx->no_grad_depth = ctx->inference_depth = 0;
    ctx->launch.op_record = 0;
    for (int i = 0; i < region->n_out; i++) out[i] = mpt__null(ctx);
    mpt__region_swap(ctx, &state);
    const mpt_dtype low = (mpt_dtype)region->autocast;
    if (mpt__autocast_open(ctx, "mpt_autocast_begin", low, region->narrow) == MPT_OK &&
        mpt__region_inputs(ctx, region, in))
        mpt__region_forward(ctx, region, region, in, out);
    mpt__region_swap(ctx, &state);
    ctx->launch.phase = MPT__BACKWARD;
    ctx->base.op = "mpt_backward";
    mpt__scope_drop(ctx, ctx->scope_start[ctx->scope_depth = scopes]);
    ctx->no_grad_depth = no_grads, ctx->inference_depth = inferences;
    ctx->autocast_depth = autocasts;
}

/* Gives the calls of a region, and the regions in it, what they did not hold. */
static MPT__NOINLINE mpt_status mpt__region_fill(mpt_context *ctx, mpt__region *region) {
    if (region->head->asks & MPT__ASKS_HOLES && mpt__region_fill(ctx, region->above) != MPT_OK)
        return ctx->base.status;
    region->fills = true;
    mpt__region_ask(region, true, false);
    mpt__region_repeat(ctx, region);
    if (mpt__ok(ctx)) return MPT_OK;
    const size_t length = strlen(ctx->base.message);
    mpt__format_text(ctx->base.message + length, sizeof ctx->base.message - length,
        " (backward ran a forward again)");
    return ctx->base.status;
}

/* Backward has used a record, and comes again (retain) or does not. */
static MPT__NOINLINE void mpt__region_used(mpt_context *ctx, mpt__record *record, bool retain) {
    if (!retain) {
        mpt__region_leave(ctx, record);
        return;
    }
    for (int at = 0; at < record->n_saved; at++) {
        mpt__tensor *tensor = record->saved[at];
        if (!tensor || record->from[at] == MPT__FROM_OUTSIDE) continue;
        record->saved[at] = NULL;
        record->asks |= MPT__ASKS_HOLES;
        if (--tensor->saves == 0) mpt__tensor_settle(ctx, tensor);
    }
}

#endif /* MPTRAIN_NO_FRUGAL */

#endif
