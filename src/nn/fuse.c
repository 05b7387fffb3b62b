/* ----
 * nn/fuse.c: which convolutions are fused with the batch norm behind them, from the op records of a
 * forward. How they run then stands in nn/conv.c.
 * ---- */
#ifndef MPT__NN_FUSE_INCLUDED
#define MPT__NN_FUSE_INCLUDED

#include "nn/norm.c"

#ifdef MPTRAIN_NO_CONV

int64_t mpt_fuse(mpt_module module, mpt_tensor x, char *text, size_t size) {
    (void)x;
    if (text && size > 0) *text = '\0';
    mpt__misuse(
        module.context, "mpt_fuse", UNSUPPORTED, "built without convolutions (MPTRAIN_NO_CONV)");
    return -1;
}
mpt_status mpt_unfuse(mpt_module module) {
    mpt__module_enter(module, "mpt_unfuse");
    return mpt__status_of(module.context);
}

#else

static bool mpt__is_conv(const mpt__module *module) {
    return module->layer == MPT__LAYER_conv2d || module->layer == MPT__LAYER_conv1d ||
        module->layer == MPT__LAYER_conv_transpose2d;
}

static void mpt__unfuse(mpt_context *ctx, mpt__module *root) {
    mpt__walk walk;
    for (mpt__module *m = mpt__walk_begin(&walk, ctx, root); m; m = mpt__walk_next(&walk)) {
        if (!mpt__is_conv(m)) continue;
        mpt__running_free(ctx, m->running);
        m->running = NULL, *mpt__run_place(m) = NULL;
    }
}

mpt_status mpt_unfuse(mpt_module module) {
    mpt__module *found = mpt__module_enter(module, "mpt_unfuse");
    if (found && module.context->module)
        return mpt__error(module.context, STATE, "a forward is under way");
    if (found) mpt__unfuse(module.context, found);
    return mpt__status_of(module.context);
}

/* ==== The trace ==== */

/* Marks the records of now, so that those of the trace are told from them. */
static uint32_t mpt__trace_mark(mpt_context *ctx) {
    uint32_t mark = ++ctx->walk_mark;
    for (int64_t i = 1; i < ctx->record_count; i++)
        if (ctx->records[i]->live) ctx->records[i]->mark = mark;
    return mark;
}

/* All parameters and modules of a tree for the trace, as in evaluation, but recorded; or back. */
static void mpt__trace_modes(mpt_context *ctx, mpt__module *root, bool begin) {
    mpt__walk walk;
    const mpt__module_parameter *row;
    for (mpt__module *m = mpt__walk_begin(&walk, ctx, root); m; m = mpt__walk_next(&walk)) {
        if (begin)
            mpt__mode_put_by(m, false);
        else
            mpt__mode_back(m);
    }
    mpt__walk_begin(&walk, ctx, root);
    while ((row = mpt__walk_parameter(&walk)) != NULL) {
        mpt__tensor *tensor = ctx->parameters[row->parameter - 1].tensor;
        if (begin) tensor->flags |= MPT__REQUIRES_GRAD;
        if (!begin && !(tensor->flags & MPT__LEAF)) tensor->flags &= (uint8_t)~MPT__REQUIRES_GRAD;
    }
}

typedef struct {
    mpt_context *context;
    uint32_t mark;
    const mpt__tensor *out; /* of the net */
} mpt__trace;

/* The next record of the trace from number *at on; NULL at the end. */
static const mpt__record *mpt__trace_next(const mpt__trace *trace, int64_t *at) {
    while (*at < trace->context->record_count) {
        const mpt__record *record = trace->context->records[(*at)++];
        if (record->live && record->mark != trace->mark) return record;
    }
    return NULL;
}

/* How often a layer was called; *call: the last time. */
static int mpt__trace_calls(
    const mpt__trace *trace, const mpt__module *module, const mpt__record **call) {
    const mpt__record *record;
    int count = 0;
    for (int64_t at = 1; (record = mpt__trace_next(trace, &at)) != NULL;)
        if (record->path == module->path && record->op == mpt__layer_rows[module->layer].op)
            *call = record, count++;
    return count;
}

/* How often the result of a call was used; *user: by what, NULL: it is the net's own result. */
static int mpt__trace_uses(
    const mpt__trace *trace, const mpt__record *call, const mpt__record **user) {
    const mpt__record *record;
    int count = trace->out->record == call;
    *user = NULL;
    for (int64_t at = 1; (record = mpt__trace_next(trace, &at)) != NULL;)
        for (int i = 0; i < record->n_in; i++)
            if (record->in[i] && record->in[i]->record == call) *user = record, count++;
    return count;
}

/* The batch norm layer that made a call; NULL: it was none. */
static mpt__module *mpt__trace_norm(mpt_context *ctx, const mpt__record *call) {
    MPT__EACH_OBJECT(mpt__module, module, ctx, MPT__MODULE) {
        if (module->frozen && module->path == call->path && mpt__is_batch_norm(module))
            return module;
    }
    return NULL;
}

/* ==== Pairing ==== */

/* Tries the folded numbers; says what is wrong with them, NULL: nothing, or an error recorded. */
static const char *mpt__fold_try(mpt_context *ctx, const mpt__module *conv, const mpt__module *norm,
    const mpt__record *call, const mpt__record *next) {
    mpt__tensor *const from[] = {
        call->in[1], call->in[2], next->in[1], next->in[2], next->in[3], next->in[4]};
    const char *why = NULL;
    mpt__frame frame;
    mpt__tensor view[2];
    mpt__attributes attributes = call->attributes;
    frame.context = ctx;
    frame.op = call->op;
    frame.attributes = &attributes;
    frame.compute = MPT_F32;
    frame.n_temporary = 0;
    mpt_status status =
        mpt__fold_anew(&frame, conv->running, from, norm->attributes.imm[0], false, view);
    mpt__drop_temporaries(&frame);
    for (int i = 0; i < 2 && status == MPT_OK; i++) {
        mpt_shape numel = MPT_SHAPE(mpt__tensor_numel(&view[i]));
        mpt__tensor flat = mpt__view_on(view[i].storage, MPT_F32, &numel, view[i].offset);
        size_t bytes = ((size_t)numel.dim[0] + 1) * sizeof(float);
        float *values = (float *)mpt__host_new(ctx, bytes);
        if (values) status = mpt__read_as(ctx, &flat, MPT_F32, values);
        for (int64_t k = 0; values && status == MPT_OK && k < numel.dim[0]; k++)
            if (!(values[k] <= 65504.0f && values[k] >= -65504.0f))
                why = "its weights times the norm's scale would be beyond fp16";
        mpt__host_free(ctx, values, bytes);
    }
    return why;
}

/* Pairs a convolution with its norm. Says why not, else NULL. */
static const char *mpt__fuse_layer(const mpt__trace *trace, mpt__module *conv,
    const mpt__record **call, const mpt__record **next, mpt__module **norm) {
    mpt_context *ctx = trace->context;
    int calls = mpt__trace_calls(trace, conv, call);
    if (calls != 1) return calls ? "it is called more than once" : "it is not called";
    int uses = mpt__trace_uses(trace, *call, next);
    if (uses != 1) return uses ? "its result is used more than once" : "its result is not used";
    if (!*next) return "its result is the net's";
    if ((*next)->op != MPT__OP_batch_norm || (*next)->in[0]->record != *call ||
        (*call)->attributes.activation != MPT_ACTIVATION_NONE)
        return "no batch norm takes its result";
    *norm = mpt__trace_norm(ctx, *next);
    if (!*norm) return "the batch norm after it is no layer";
    if (!(*next)->in[3]) return "the batch norm after it keeps no running statistics";
    const mpt__tensor *weight = (*call)->in[1];
    if (weight->dtype == MPT_F64) return "its weights are float64";
    if ((*call)->op == MPT__OP_conv_transpose2d && (*call)->attributes.index[MPT__CONV_GROUPS] != 1)
        return "it is transposed, of more than one group";
    int64_t floats = mpt__aligned_up(mpt__tensor_numel(weight), mpt__block_grain(MPT_F32)) +
        (*next)->in[3]->shape.dim[0];
    conv->running = (mpt__running *)mpt__host_new(ctx, sizeof *conv->running);
    if (!conv->running) return NULL;
    mpt__zero(*conv->running);
    conv->running->norm = (*norm)->id.slot;
    conv->running->values =
        mpt__storage_new(ctx, floats * 4, MPT_MEMORY_FORM, MPT__FROM_DEVICE, false);
    const char *why = conv->running->values ? mpt__fold_try(ctx, conv, *norm, *call, *next) : NULL;
    if (!why && mpt__ok(ctx)) {
        *mpt__run_place(conv) = mpt__fused_forward;
        return NULL;
    }
    mpt__running_free(ctx, conv->running);
    conv->running = NULL;
    return why;
}

/* Pairs what can be, a line of text for each convolution; returns how many. */
static int64_t mpt__fuse_all(const mpt__trace *trace, mpt__module *root, mpt__text *text) {
    int64_t count = 0;
    mpt__walk walk;
    for (mpt__module *m = mpt__walk_begin(&walk, trace->context, root); m;
         m = mpt__walk_next(&walk)) {
        if (!mpt__is_conv(m)) continue;
        const mpt__record *call = NULL, *next = NULL, *last = NULL;
        mpt__module *norm = NULL;
        const char *why = mpt__fuse_layer(trace, m, &call, &next, &norm);
        if (!mpt__ok(trace->context)) return -1;
        const char *name = *walk.path ? walk.path : m->cls.name;
        if (why) {
            mpt__write_text(text, "%s: by itself, since %s\n", name, why);
            continue;
        }
        count++;
        mpt__write_text(text, "%s + %s%s%s", name, mpt__path_text(trace->context, norm->path),
            next->n_in > 5 && next->in[5] ? " + residual" : "",
            next->attributes.index[2] ? " + relu" : "");
        if (mpt__trace_uses(trace, next, &last) == 1 && last && last->op == MPT__OP_relu)
            mpt__write_text(text, " (the relu after it apart: see config.relu of the norm)");
        mpt__write_text(text, "\n");
    }
    return count;
}

int64_t mpt_fuse(mpt_module module, mpt_tensor x, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = module.context;
    mpt__text lines = mpt__text_make(text, size);
    mpt__module *root = mpt__module_enter(module, "mpt_fuse");
    const mpt__tensor *given = root ? mpt__at(ctx, x, "x") : NULL;
    if (!given || (!root->frozen && mpt__freeze(ctx, root) != MPT_OK)) return -1;
    if (ctx->module || ctx->recorder || ctx->in_backward) {
        mpt__error(ctx, STATE, "a forward, a backward or a recording is under way");
        return -1;
    }
    if (mpt_scope_begin(ctx) != MPT_OK) return -1;
    int no_grad = ctx->no_grad_depth, inference = ctx->inference_depth;
    int64_t count = -1;
    mpt__unfuse(ctx, root);
    ctx->no_grad_depth = ctx->inference_depth = 0;
    mpt__trace_modes(ctx, root, true);
    mpt__trace trace = {ctx, mpt__trace_mark(ctx), NULL};
    mpt__tensor *image = mpt__tensor_alias(ctx, given);
    if (image) trace.out = mpt__live(ctx, mpt_forward(module, mpt__handle(ctx, image)));
    mpt__trace_modes(ctx, root, false);
    ctx->base.op = "mpt_fuse";
    if (trace.out && mpt__ok(ctx)) count = mpt__fuse_all(&trace, root, &lines);
    ctx->no_grad_depth = no_grad, ctx->inference_depth = inference;
    mpt__scope_drop(ctx, ctx->scope_start[--ctx->scope_depth]);
    return mpt__ok(ctx) ? count : -1;
}

#endif
#endif
