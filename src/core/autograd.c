/* ----
 * core/autograd.c: op calls, the tape, backward.
 *
 * Each op call that leads to a gradient leaves one record. Tensors hold their producer's record, a
 * record holds its inputs' slots: the graph lives exactly as long as something can still use it.
 * Backward walks it from the loss, depth first by input number, and so never depends on the order
 * in which a compiler evaluated the arguments of a call.
 * ---- */
#ifndef MPT__CORE_AUTOGRAD_INCLUDED
#define MPT__CORE_AUTOGRAD_INCLUDED

#include "core/region.c"

/* ==== Op calls ==== */

/* A tensor that lives until the end of the call; if forward saves it, until backward. */
static mpt__tensor *mpt__temporary(mpt__frame *frame, mpt_dtype dtype, const mpt_shape *shape) {
    mpt__tensor *tensor = mpt__tensor_unscoped(frame->context, dtype, shape, MPT_MEMORY_ACTIVATION);
    if (tensor) frame->temporary[frame->n_temporary++] = tensor;
    return tensor;
}

/* The call that can compute a result, or what it is a view of, again; NULL if none can. The version
   that it had stands behind the versions of what that call saved. */
static mpt__record *mpt__repeater(const mpt__tensor *tensor) {
    while (tensor->record && tensor->record->repeats == MPT__REPEATS_VIEW)
        tensor = tensor->record->in[0];
    bool repeats = tensor->record && tensor->record->repeats && tensor->output == 0;
    return repeats ? tensor->record : NULL;
}

/* Whether backward can have a tensor again as it is now: results changed in place are not. */
static bool mpt__comes_again(const mpt_context *ctx, const mpt__tensor *tensor) {
    const mpt__record *record = mpt__repeater(tensor);
    return record &&
        record->saved_version[record->n_saved] == ctx->storages[tensor->storage].version;
}

/* Leaves position `at` of what is saved to backward, where that can have the tensor again. */
static MPT__NOINLINE bool mpt__save_later(
    const mpt__frame *frame, const mpt__tensor *tensor, int at) {
    mpt__record *record = frame->record;
    if (tensor != frame->in[0] || record->again || !mpt__comes_again(frame->context, tensor))
        return false;
    record->saved[at] = NULL;
    record->again = (uint8_t)(at + 1);
    return true;
}

/* Forward keeps a tensor, or NULL, for backward, which finds it in saved[] at the same position. An
   input that can be computed again is not held: the record finds it in in[0], whose slot stays. */
static MPT__INLINE void mpt__save(mpt__frame *frame, mpt__tensor *tensor) {
    mpt__record *record = frame->record;
    if (!frame->records) return;
    int at = record->n_saved++;
    record->saved[at] = tensor;
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__in_region(frame->context) && mpt__save_not(frame, tensor, at)) return;
#endif
    if (!tensor) return;
    record->saved_version[at] = frame->context->storages[tensor->storage].version;
    if (mpt__recomputes(frame->context) && mpt__save_later(frame, tensor, at)) return;
    tensor->saves++;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__save_gate(frame) mpt__save(frame, (frame)->out[0])
#define mpt__asks_nothing(record) ((void)0)
#define mpt__gated(frame, at) false
#define mpt__gates_here(frame) false
#else
#define mpt__asks_nothing(record) \
    ((void)((record)->asks = (record)->gate = (record)->gates = (record)->gaters = 0))
/* In backward of a relu: dy was made with its slope already, see mpt__shrink. */
#define mpt__gated(frame, at) (!(frame)->saved[at])

/* mpt__save for a result of which backward asks no more than where it is <= 0. */
static MPT__INLINE void mpt__save_gate(mpt__frame *frame) {
    mpt__save(frame, frame->out[0]);
    frame->record->gate = frame->record->n_saved;
}

/* Whether the gradient of in[0] counts only where that is above 0; then the call gives none
   elsewhere. */
static MPT__UNUSED bool mpt__gates_here(const mpt__frame *frame) {
    mpt__record *from = frame->in[0]->record;
    if (!frame->records || !from || !from->gate || from->gaters == UINT8_MAX) return false;
    from->gaters++;
    frame->record->asks |= MPT__ASKS_GATED;
    return true;
}

enum { MPT__LET_GO_LEAST = 4096 }; /* elements: below it a launch costs more than is to gain */

/* In backward: lets go of in[0], which came again and was read for the last time, before its
   gradient is made. What came for this call alone, the call that made it holds, too. */
static void mpt__saved_over(mpt_context *ctx, mpt__record *record) {
    mpt__tensor *tensor = record->in[0], *whole = tensor;
    if (!record->n_saved || record->saved[0] != tensor) return;
    record->saved[0] = NULL;
    tensor->saves--;
    while (whole->record && whole->record->repeats == MPT__REPEATS_VIEW && whole->nodes == 1)
        whole = whole->record->in[0];
    mpt__record *from = whole->record;
    if (from && from->repeats == MPT__REPEATS && whole->nodes == 1 && from->n_saved > 0 &&
        from->saved[from->n_saved - 1] == whole) {
        from->n_saved--;
        whole->saves--;
        if (whole != tensor && !whole->saves) mpt__tensor_settle(ctx, whole);
    }
    if (!tensor->saves) mpt__tensor_settle(ctx, tensor);
}

/* A launch from result to bits, or back: all elements, as they lie. */
static mpt_status mpt__launch_gates(mpt_context *ctx, mpt__kernel kernel,
    const mpt__tensor *result, const mpt__tensor *bits) {
    const bool open = kernel == MPT__K_GATE_OPEN;
    mpt__launch *launch = mpt__launch_begin(ctx, kernel);
    mpt__operand_on(launch, open, result->storage, (mpt_dtype)result->dtype, 0,
        mpt__tensor_numel(result), open ? MPT__WRITE : MPT__READ);
    mpt__operand_of(launch, !open, bits, open ? MPT__READ : MPT__WRITE);
    return mpt__submit(ctx, launch);
}

/* Whether bits are worth it: of a fresh result that no view of it needs. */
static bool mpt__shrinks(const mpt_context *ctx, const mpt__tensor *result) {
    const int64_t numel = mpt__tensor_numel(result);
    const int64_t size = (int64_t)mpt_dtype_size((mpt_dtype)result->dtype);
    const bool narrow =
        result->dtype == MPT_F32 || result->dtype == MPT_F16 || result->dtype == MPT_BF16;
    return narrow && numel >= MPT__LET_GO_LEAST && result->offset == 0 &&
        numel * size == ctx->storages[result->storage].bytes &&
        mpt__storage_alone(ctx, result->storage);
}

/* Keeps bits in the place of a result that no other record saved and no handle names, or nothing,
   where all who read it gate their gradients. A changed one stays, for backward to say so. */
static void mpt__shrink(mpt_context *ctx, mpt__tensor *result) {
    mpt__record *record = result->record;
    const int at = record->gate - 1;
    if (record->gates || at >= record->n_saved || record->saved[at] != result || !mpt__ok(ctx) ||
        ctx->in_backward ||
        ctx->storages[result->storage].version != record->saved_version[at])
        return;
    if (result->nodes == record->gaters) {
        record->saved[at] = NULL;
        result->saves = 0;
        mpt__tensor_settle(ctx, result);
        return;
    }
    if (!mpt__shrinks(ctx, result)) return;
    const int64_t numel = mpt__tensor_numel(result);
    const int64_t groups = (numel + MPT__GATE_GROUP - 1) / MPT__GATE_GROUP;
    mpt_shape shape = MPT_SHAPE(groups * MPT__GATE_WORDS);
    mpt__tensor *bits = mpt__tensor_unscoped(ctx, MPT_I32, &shape, MPT_MEMORY_ACTIVATION);
    if (!bits) return;
    mpt__launch_origin(ctx, MPT__FORWARD, record->op);
    mpt__launch_gates(ctx, MPT__K_GATE_BITS, result, bits);
    mpt__launch_origin(ctx, MPT__OTHER, 0);
    bits->saves++;
    record->saved[record->n_saved] = bits;
    record->saved_version[record->n_saved++] = ctx->storages[bits->storage].version;
    record->gates = record->n_saved;
    record->asks |= MPT__ASKS_OPENED;
    mpt__tensor_drop(ctx, bits);
    mpt__storage_release(ctx, result->storage);
    result->storage = 0;
}

/* Before backward: the result again, as ones and zeros. */
static mpt_status mpt__open_gates(mpt_context *ctx, mpt__record *record) {
    mpt__tensor *result = record->gates ? record->saved[record->gate - 1] : NULL;
    if (!result || result->storage) return MPT_OK;
    int64_t bytes = mpt__tensor_numel(result) * (int64_t)mpt_dtype_size((mpt_dtype)result->dtype);
    result->storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_ACTIVATION, MPT__FROM_POOL, false);
    if (!result->storage) return ctx->base.status;
    ctx->storages[result->storage].version = record->saved_version[record->gate - 1];
    mpt__launch_origin(ctx, MPT__BACKWARD, record->op);
    return mpt__launch_gates(ctx, MPT__K_GATE_OPEN, result, record->saved[record->gates - 1]);
}
#endif

static MPT__INLINE void mpt__drop_temporaries(mpt__frame *frame) {
    for (int i = frame->n_temporary; i > 0; i--)
        mpt__tensor_drop(frame->context, frame->temporary[i - 1]);
}

/* ==== Records ==== */

/* Notes that backward can compute the result of a call again, if it can. */
static MPT__NOINLINE void mpt__note_repeats(const mpt__frame *frame) {
    mpt__record *record = frame->record;
    if (frame->is_view && mpt__repeater(frame->in[0])) record->repeats = MPT__REPEATS_VIEW;
    if (frame->is_view || !frame->context->can_repeat(frame)) return;
    record->repeats = MPT__REPEATS;
    record->saved_version[record->n_saved] =
        frame->context->storages[frame->out[0]->storage].version;
}

/* Leaves the record of a forward call that has ended, or, where there is none to leave, gives it
   back. */
static MPT__FORCE_INLINE void mpt__record_call(mpt__frame *frame, int n_out, mpt_status status) {
    mpt_context *ctx = frame->context;
    mpt__record *record = frame->record;
    if (status == MPT_OK) mpt__tell_watchers(ctx, MPT__OP_CALLED, frame);
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__in_region(ctx) && mpt__region_called(frame, n_out, status)) return;
#endif
    if (status != MPT_OK || !frame->records) {
        mpt__record_unsave(ctx, record);
        mpt__record_spare(ctx, record);
        return;
    }
    ctx->counters.op_records++;
    record->done = 0;
    record->live = 1;
    record->compute_dtype = (uint8_t)frame->compute;
    if (mpt__recomputes(ctx)) mpt__note_repeats(frame);
    record->layout = frame->layout;
    record->path = ctx->path;
    record->step = ctx->now.step;
    for (int i = 0; i < frame->n_in; i++)
        if (record->in[i]) record->in[i]->nodes++;
    for (int i = 0; i < n_out; i++) {
        record->grad[i] = NULL;
        frame->out[i]->record = record;
        frame->out[i]->output = (uint8_t)i;
        frame->out[i]->flags |= MPT__REQUIRES_GRAD;
    }
}

/* ==== The engine: one forward call ==== */

static void mpt__outputs_null(mpt_context *ctx, mpt_tensor *out, int n_out) {
    for (int i = 0; i < n_out; i++) out[i] = mpt__null(ctx);
}

/* The first context among the handles, so that an error finds its place. */
static mpt_context *mpt__context_of(const mpt_tensor *tensors, int count) {
    for (int i = 0; i < count; i++)
        if (tensors[i].context) return tensors[i].context;
    return NULL;
}

static MPT__COLD bool mpt__input_stale(mpt_context *ctx, mpt_tensor handle, int number) {
    char argument[24];
    mpt__format_text(argument, sizeof argument, "argument %d", number);
    mpt__stale(ctx, handle, argument);
    return false;
}

/* Finds the tensors of handles; those from `required` on may be absent. */
static bool mpt__find_inputs(
    mpt_context *ctx, const mpt_tensor *in, int n_in, int required, mpt__tensor **found) {
    for (int i = 0; i < n_in; i++) {
        found[i] = mpt__live(ctx, in[i]);
        if (!found[i] && (in[i].context || in[i].slot || i < required))
            return mpt__input_stale(ctx, in[i], i + 1);
    }
    return true;
}

/* Begins a forward call on a record. The caller sets its inputs, and where they are NULL here its
   attributes, too. */
static MPT__FORCE_INLINE bool mpt__call_begin(mpt__frame *frame, mpt_context *ctx, int op, int n_in,
    int n_out, const mpt__attributes *attributes) {
    mpt__record *record = mpt__record_take(ctx);
    if (!record) return false;
    if (attributes) record->attributes = *attributes;
    record->op = (uint16_t)op;
    record->n_in = (uint8_t)n_in;
    record->n_out = (uint8_t)n_out;
    record->references = (uint32_t)n_out;
    record->n_saved = record->again = record->repeats = 0;
    mpt__asks_nothing(record);
    frame->context = ctx; /* the frame is large: what is not set here, readers do not reach */
    frame->row = &ctx->ops[op];
    frame->op = op;
    frame->n_in = n_in;
    frame->n_out = n_out;
    frame->record = record;
    frame->in = record->in;
    frame->attributes = &record->attributes;
    frame->is_view = false;
    frame->layout = MPT__LAYOUT_CONTIGUOUS;
    frame->n_temporary = 0;
    return true;
}

/* Looks at the inputs: whether backward will follow. */
static MPT__FORCE_INLINE bool mpt__check_inputs(mpt__frame *frame) {
    unsigned flags = 0, dtypes = 0;
    for (int i = 0; i < frame->n_in; i++) {
        if (!frame->in[i]) continue;
        flags |= frame->in[i]->flags;
        dtypes |= 1u << frame->in[i]->dtype;
    }
    frame->dtypes = dtypes;
    frame->records = (flags & MPT__REQUIRES_GRAD) && !frame->context->no_grad_depth &&
        !frame->context->inference_depth && frame->row->backward;
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__in_region(frame->context) && !mpt__region_call(frame)) return false;
#endif
    if (!frame->records || !(flags & MPT__INFERENCE)) return true;
    return mpt__reject(frame->context, STATE,
        "a tensor made in inference mode cannot take part in backward; make it outside, "
        "or mpt_clone it");
}

/* Lays a new output of four dimensions out as the op wants it. */
static MPT__NOINLINE void mpt__output_layout(const mpt__frame *frame, mpt__tensor *out) {
    bool last = frame->layout == MPT__LAYOUT_CHANNELS_LAST;
    for (int i = 0; i < frame->n_in; i++) {
        const mpt__tensor *in = frame->in[i];
        last |= in && in->shape.rank == 4 && mpt__channels_last(in);
    }
    if (last) mpt__channels_last_strides(out);
}

static MPT__NOINLINE mpt__tensor *mpt__output_view(const mpt__frame *frame) {
    mpt__tensor view = *frame->in[0];
    view.shape = frame->out_shape[0];
    view.offset = frame->view_offset;
    mpt__copy_dims(view.stride, frame->view_stride, view.shape.rank);
    return mpt__tensor_alias(frame->context, &view);
}

static MPT__FORCE_INLINE mpt__tensor *mpt__output_new(const mpt__frame *frame) {
    if (frame->is_view) return mpt__output_view(frame);
    mpt__tensor *out = mpt__tensor_make(
        frame->context, frame->out_dtype[0], &frame->out_shape[0], MPT_MEMORY_ACTIVATION, true);
    if (frame->layout && frame->out_shape[0].rank == 4 && out) mpt__output_layout(frame, out);
    return out;
}

/* The first part of a forward call, up to the shapes and dtypes of its outputs. */
static MPT__FORCE_INLINE mpt_status mpt__call_shape(mpt__frame *frame) {
    if (!mpt__check_inputs(frame)) return mpt__outcome(frame);
    frame->out_dtype[0] = frame->compute = MPT_F32;
    if (frame->dtypes != 1u << MPT_F32 || mpt__autocast_dtype(frame->context) != MPT_F32) {
        mpt_status status = mpt__policy_dtype(frame);
        if (status != MPT_OK) return status;
    }
    return frame->row->shape(frame);
}

/* The second, once the outputs are there. */
static MPT__FORCE_INLINE mpt_status mpt__call_forward(mpt__frame *frame) {
    mpt__launch_origin(frame->context, MPT__FORWARD, frame->op);
    mpt_status status = frame->row->forward ? frame->row->forward(frame) : MPT_OK;
    mpt__launch_origin(frame->context, MPT__OTHER, 0);
    return status;
}

/* The last, whatever came of the others. */
static MPT__FORCE_INLINE void mpt__call_end(mpt__frame *frame, int n_out, mpt_status status) {
    mpt__record_call(frame, n_out, status);
    mpt__drop_temporaries(frame);
}

/* Runs an op of one output on the inputs of its record; NULL on error. */
static mpt__tensor *mpt__call_run(mpt__frame *frame) {
    mpt_status status = mpt__call_shape(frame);
    mpt__tensor *out = status == MPT_OK ? mpt__output_new(frame) : NULL;
    frame->out[0] = out;
    status = out ? mpt__call_forward(frame) : MPT_ERROR_STATE;
    mpt__call_end(frame, 1, status);
    if (status == MPT_OK) return out;
    if (out) mpt__tensor_drop(frame->context, out);
    return NULL;
}

/* Begins an op on handles, in the public call `name`; its attributes are still to be set. False:
   the call ends here. The first input that has a context gives it. */
static MPT__FORCE_INLINE bool mpt__apply_begin(
    mpt__frame *frame, const char *name, int op, const mpt_tensor *in, int n_in, int required) {
    mpt_context *ctx = mpt__context_of(in, n_in);
    if (!mpt__enter(ctx, name) || !mpt__call_begin(frame, ctx, op, n_in, 1, NULL)) return false;
    if (mpt__find_inputs(ctx, in, n_in, required, frame->record->in)) return true;
    mpt__record_spare(ctx, frame->record);
    return false;
}

/* All of such a call: gives the output's handle or the error null. */
static mpt_tensor mpt__apply1(
    const char *name, int op, const mpt_tensor *in, int n_in, const mpt__attributes *attributes) {
    mpt__frame frame;
    mpt_context *ctx = mpt__context_of(in, n_in);
    if (!mpt__apply_begin(&frame, name, op, in, n_in, attributes->required)) return mpt__null(ctx);
    *frame.attributes = *attributes;
    return mpt__handle(ctx, mpt__call_run(&frame));
}

/* ==== Gradients of parameters ==== */

/* Whether there is a gradient; a captured step notes that what follows depends on it. */
static MPT__INLINE bool mpt__has_grad(mpt_context *ctx, const mpt__parameter *parameter) {
    if (mpt__is_capturing(ctx) && !parameter->cleared) ctx->found_gradients = true;
    return parameter->has_grad;
}

static MPT__INLINE void mpt__clear_grad(mpt__parameter *parameter) {
    parameter->has_grad = false;
    parameter->cleared = true;
}

/* Notes that a storage is changed in place. How a gradient is scaled only the user knows then. */
static void mpt__touched(mpt_context *ctx, uint32_t storage) {
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__in_region(ctx)) mpt__region_write(ctx, storage);
#endif
    ctx->storages[storage].version++;
    if (ctx->storages[storage].kind != MPT_MEMORY_GRADIENT) return;
    for (int64_t i = 0; i < ctx->parameter_count; i++)
        if (ctx->blocks[ctx->parameters[i].block].gradients == storage)
            ctx->parameters[i].scaler = MPT__UNKNOWN;
}

static void mpt__materialise_gradients(mpt_context *ctx, mpt__block *block) {
    if (!block->multiplier_slot) return;
    uint16_t slot = (uint16_t)block->multiplier_slot;
    block->multiplier_slot = 0;
    ctx->found_gradients = true;
    if (!block->gradients) return;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_UNARY);
    launch->function = MPT__FN_MUL_SLOT;
    launch->slot[0] = slot;
    mpt__operand_on(launch, 0, block->gradients, MPT_F32, 0, block->numel, MPT__READ);
    mpt__operand_on(launch, 1, block->gradients, MPT_F32, 0, block->numel, MPT__WRITE);
    mpt__submit(ctx, launch);
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__inside(parameter) false
#else
#define mpt__inside(parameter) ((parameter)->inside)
#endif

/* Ends the gradient that stands at a place, if there is one. */
static void mpt__gradient_drop(mpt_context *ctx, mpt__tensor **at) {
    mpt__tensor *gradient = *at;
    *at = NULL;
    if (gradient) mpt__tensor_drop(ctx, gradient);
}

static MPT__NOINLINE mpt__tensor *mpt__parameter_gradient_new(
    mpt_context *ctx, mpt__tensor *tensor) {
    mpt__block *block = &ctx->blocks[ctx->parameters[tensor->parameter - 1].block];
    const bool own = mpt__inside(&ctx->parameters[tensor->parameter - 1]);
    if (!block->gradients && !own)
        block->gradients =
            mpt__storage_new(ctx, block->numel * 4, MPT_MEMORY_GRADIENT, MPT__FROM_DEVICE, true);
    mpt__tensor view = *tensor;
    view.storage = block->gradients;
    view.dtype = MPT_F32;
#ifndef MPTRAIN_NO_FRUGAL
    if (own) {
        view.offset = 0;
        view.storage = mpt__storage_new(ctx, ctx->parameters[tensor->parameter - 1].numel * 4,
            MPT_MEMORY_GRADIENT, MPT__FROM_POOL, false);
    }
#endif
    tensor->gradient =
        view.storage ? mpt__tensor_outside(ctx, &view, MPT__KEPT | MPT__GRADIENT) : NULL;
    if (own && view.storage) mpt__storage_release(ctx, view.storage); /* the view's alone */
    return tensor->gradient;
}

/* The gradient of a parameter: a view of its block's, made on first use, dropped when it moves. */
static MPT__FORCE_INLINE mpt__tensor *mpt__parameter_gradient(
    mpt_context *ctx, mpt__tensor *tensor) {
    mpt__tensor *known = tensor->gradient;
    return known ? known : mpt__parameter_gradient_new(ctx, tensor);
}

/* ==== Where backward puts its results ==== */

/* Whether input i of the record under way wants a gradient. */
static bool mpt__wants(const mpt__frame *frame, int i) {
    return i < frame->n_in && frame->in[i] && (frame->in[i]->flags & MPT__REQUIRES_GRAD);
}

/* Where the gradient of a tensor that is no parameter is collected. */
static mpt__tensor **mpt__gradient_place(mpt__tensor *input) {
    return input->record ? &input->record->grad[input->output] : &input->gradient;
}

/* Whether nothing else reads a gradient, so that it may be changed in place. */
static bool mpt__owned(const mpt_context *ctx, const mpt__tensor *gradient) {
    return mpt__storage_alone(ctx, gradient->storage) && mpt__tensor_contiguous(gradient);
}

/* Whether a gradient is to be channels last, as what it belongs to. */
static MPT__INLINE bool mpt__keeps_layout(const mpt__frame *frame, const mpt__tensor *tensor) {
    return frame->layout && tensor->shape.rank == 4 && mpt__channels_last(tensor);
}

/* mpt__gradient_into for what is no parameter. */
static MPT__NOINLINE mpt__tensor *mpt__activation_into(
    const mpt__frame *frame, mpt__tensor *input, mpt__access *access) {
    mpt_context *ctx = frame->context;
    mpt__tensor **place = mpt__gradient_place(input), *old = *place;
    *access = old ? MPT__ACCUMULATE : MPT__WRITE;
    if (old && mpt__owned(ctx, old)) return old;
    if (old && mpt__storage_alone(ctx, old->storage) && mpt__keeps_layout(frame, old)) return old;
    mpt__tensor *own =
        mpt__tensor_unscoped(ctx, (mpt_dtype)input->dtype, &input->shape, MPT_MEMORY_GRADIENT);
    if (!own) return NULL;
    own->flags = MPT__KEPT | MPT__GRADIENT;
    if (mpt__keeps_layout(frame, input)) mpt__channels_last_strides(own);
    *place = own;
    if (old) { /* passed on without a copy before, so others read it: leave theirs alone */
        mpt__launch_copy(ctx, old, own, MPT__WRITE);
        mpt__tensor_drop(ctx, old);
    }
    return own;
}

/* Notes by what the gradient that a parameter is about to get is multiplied. A sum of both kinds is
   wrong only where somebody uses it: a generator's loss leaves some in its discriminator. */
static MPT__FORCE_INLINE void mpt__note_scale(
    const mpt_context *ctx, mpt__parameter *parameter, bool adds) {
    uint32_t scaler = ctx->loss_scaler;
    if (!adds)
        parameter->scaler = scaler, parameter->since = (uint32_t)ctx->now.updates;
    else if (MPT__UNLIKELY(parameter->scaler != scaler))
        parameter->scaler =
            scaler == MPT__UNKNOWN || parameter->scaler == MPT__UNKNOWN ? MPT__UNKNOWN : MPT__MIXED;
}

/* Gradient number i's destination: NULL if it is not wanted or on error, else a tensor to write to
   with *access: the first contribution overwrites, later ones accumulate. Parameters collect in
   their fp32 block, others in a tensor of their own dtype. */
static mpt__tensor *mpt__gradient_into(const mpt__frame *frame, int i, mpt__access *access) {
    if (!mpt__wants(frame, i)) return NULL;
    mpt__tensor *input = frame->in[i];
    if (!input->parameter) return mpt__activation_into(frame, input, access);
    mpt__parameter *parameter = &frame->context->parameters[input->parameter - 1];
    bool adds = mpt__has_grad(frame->context, parameter);
    *access = adds ? MPT__ACCUMULATE : MPT__WRITE;
    mpt__note_scale(frame->context, parameter, adds);
    parameter->has_grad = true; /* after an error nobody asks */
    return mpt__parameter_gradient(frame->context, input);
}

/* The destination of an op's only gradient, frame->dx; false where that is all there is to do. */
static bool mpt__dx_into(mpt__frame *frame) {
    frame->dx = mpt__gradient_into(frame, 0, &frame->access);
    return frame->dx != NULL;
}

/* Hands a gradient of the input's shape on: without a copy where nothing was collected yet. `view`
   may be a tensor outside all tables (a view of dy). */
static mpt_status mpt__gradient_pass(mpt__frame *frame, int i, const mpt__tensor *view) {
    mpt_context *ctx = frame->context;
    if (!mpt__wants(frame, i)) return MPT_OK;
    mpt__tensor *input = frame->in[i];
    if (input->record && input->dtype == view->dtype) {
        mpt__tensor **place = mpt__gradient_place(input);
        if (!*place) {
            *place = mpt__tensor_outside(ctx, view, MPT__KEPT | MPT__GRADIENT);
            return ctx->base.status;
        }
    }
    mpt__access access;
    mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    return target ? mpt__launch_copy(ctx, view, target, access) : ctx->base.status;
}

/* ==== Backward ==== */

/* Lists the records from `root` down, in the reverse of a post-order that takes inputs in their
   order. `next` links the list, and before that the stack of records under way, of which each goes
   on with its input `cursor`. */
static mpt__record *mpt__walk_order(mpt_context *ctx, mpt__record *root) {
    uint32_t mark = ++ctx->walk_mark;
    mpt__record *order = NULL, *under = NULL;
    for (mpt__record *record = root; record;) {
        if (record->mark != mark) { /* its first visit */
            record->mark = mark;
            record->cursor = 0;
            record->next = under;
        }
        mpt__record *below = NULL;
        int cursor = record->cursor;
        for (int n = record->n_in; cursor < n;) {
            const mpt__tensor *input = record->in[cursor++];
            if (!input || !input->record || !(input->flags & MPT__REQUIRES_GRAD)) continue;
            below = input->record;
            if (below->mark != mark) break;
            below = NULL;
        }
        record->cursor = (uint8_t)cursor;
        if (below) {
            under = record;
            record = below;
        } else {
            under = record->next;
            record->next = order, order = record;
            record = under;
        }
    }
    return order;
}

static const char *mpt__path_text(const mpt_context *ctx, uint32_t path) {
    return path ? ctx->paths[path] : "";
}

/* The path of the module whose forward runs, or whose op's backward does: for errors. */
static const char *mpt__path_now(const mpt__base *base) {
    const mpt_context *ctx = (const mpt_context *)base; /* its first member */
    uint32_t record = ctx->in_backward ? ctx->launch.op_record : 0;
#if defined(MPTRAIN_CUDA)
    if (!ctx->backend.synchronous && ctx->scalars && ctx->scalars[MPT__SLOT_ERROR].i != 0)
        return ""; /* a device tells late, and what runs now may be another module */
#endif
    return mpt__path_text(ctx, record ? ctx->records[record]->path : ctx->path);
}

#ifndef MPTRAIN_NO_WATCH
/* The path of the module that a launch belongs to, which of one that is replayed was noted. */
static uint16_t mpt__launch_path(const mpt_context *ctx, const mpt__launch *launch) {
    const uint32_t path = launch->path ? launch->path
        : launch->phase == MPT__BACKWARD && launch->op_record
        ? ctx->records[launch->op_record]->path
        : ctx->path;
    return path <= UINT16_MAX ? (uint16_t)path : 0;
}
#endif

/* What a launch belongs to, for reports. */
static const char *mpt__origin_text(const mpt_context *ctx, const mpt__launch *launch) {
    return launch->op                    ? ctx->ops[launch->op].name
        : launch->phase == MPT__BACKWARD ? "gradients that were there before"
                                         : "what is no op";
}

/* What a record saved first is there, and as it was. */
static MPT__INLINE bool mpt__still_saved(mpt_context *ctx, const mpt__record *record) {
#ifndef MPTRAIN_NO_FRUGAL
    if (record->asks & MPT__ASKS_HOLES && mpt__region_fill(ctx, record->region) != MPT_OK)
        return false;
#endif
    const mpt__tensor *saved = record->saved[0];
    return saved && ctx->storages[saved->storage].version == record->saved_version[0];
}

/* Saved tensors must still hold what forward saw. */
static mpt_status mpt__check_saved(mpt_context *ctx, const mpt__record *record) {
    if (record->done)
        return mpt__error(ctx, STATE,
            "backward through %s for the second time, but its saved tensors are "
            "gone; pass retain = true to the first mpt_backward_from",
            ctx->ops[record->op].name);
    for (int i = 0; i < record->n_saved; i++) {
        const mpt__tensor *saved = record->saved[i];
        if (saved && ctx->storages[saved->storage].version != record->saved_version[i])
            return mpt__error(ctx, STATE,
                "a tensor that %s saved for backward was changed in place since (mpt_write, "
                "an op such as mpt_add_, or an optimizer step); mpt_clone it first",
                ctx->ops[record->op].name);
    }
    return MPT_OK;
}

/* Fills in the frame of the call that left a record. */
static void mpt__frame_of(mpt__frame *frame, mpt_context *ctx, mpt__record *record) {
    frame->n_temporary = 0;
    frame->context = ctx;
    frame->op = record->op;
    frame->n_in = record->n_in;
    frame->n_out = record->n_out;
    frame->compute = (mpt_dtype)record->compute_dtype;
    frame->layout = record->layout;
    frame->attributes = &record->attributes;
    frame->record = record;
    frame->row = &ctx->ops[record->op];
    frame->in = record->in;
    frame->saved = record->saved;
    frame->dy = record->grad;
    frame->records = false;
    mpt__launch_origin(ctx, MPT__BACKWARD, record->op);
    ctx->launch.op_record = record->number;
}

/* Computes again a tensor that no record held. From then on the record it comes from holds it, as a
   result that it saved, until its own backward: all who need it share it. */
static mpt_status mpt__compute_again(mpt_context *ctx, mpt__tensor *tensor) {
    mpt__frame frame;
    mpt__record *record = tensor->record;
    if (mpt__check_saved(ctx, record) != MPT_OK) return ctx->base.status;
    int64_t bytes = mpt__tensor_numel(tensor) * (int64_t)mpt_dtype_size((mpt_dtype)tensor->dtype);
    tensor->storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_ACTIVATION, MPT__FROM_POOL, false);
    if (!tensor->storage) return ctx->base.status;
    mpt__frame_of(&frame, ctx, record);
    frame.out[0] = tensor;
    mpt_status status = ctx->repeat(&frame);
    mpt__drop_temporaries(&frame);
    if (status != MPT_OK) return status;
    ctx->storages[tensor->storage].version = record->saved_version[record->n_saved];
    record->saved[record->n_saved++] = tensor;
    tensor->saves++;
    return MPT_OK;
}

/* Before backward: in[0] becomes saved, where it was not held. */
static mpt_status mpt__save_again(mpt_context *ctx, mpt__record *record, bool retain) {
    mpt__tensor *tensor = record->in[0];
    int at = record->again - 1;
    const uint8_t came = retain ? MPT__CAME_TO_STAY : MPT__CAME_AGAIN;
    if (record->again >= MPT__CAME_TO_STAY) {
        record->again = came;
        return MPT_OK;
    }
    if (!tensor->storage) {
        mpt__tensor *whole = tensor;
        while (whole->record->repeats == MPT__REPEATS_VIEW) whole = whole->record->in[0];
        if (!whole->storage && mpt__compute_again(ctx, whole) != MPT_OK) return ctx->base.status;
        if (tensor != whole) mpt__storage_retain(ctx, whole->storage);
        tensor->storage = whole->storage;
    }
    record->saved[at] = tensor;
    tensor->saves++;
    record->again = came;
    return MPT_OK;
}

static MPT__FORCE_INLINE bool mpt__any_gradient(const mpt__record *record) {
    bool any = false;
    for (int i = 0; i < record->n_out; i++) any |= record->grad[i] != NULL;
    return any;
}

static MPT__FORCE_INLINE mpt_status mpt__backward_plainly(
    mpt_context *ctx, mpt__record *record, bool retain) {
    mpt__frame frame;
    const bool any = mpt__any_gradient(record);
    mpt_status status = MPT_OK;
    if (MPT__RECOMPUTES && any && record->again && !record->done)
        status = mpt__save_again(ctx, record, retain);
    if (any && status == MPT_OK) status = mpt__check_saved(ctx, record);
    if (any && status == MPT_OK) {
        mpt__frame_of(&frame, ctx, record);
        status = frame.row->backward(&frame);
        mpt__drop_temporaries(&frame);
        for (int i = 0; i < record->n_out; i++) mpt__gradient_drop(ctx, &record->grad[i]);
    }
    if (!retain && status == MPT_OK) {
        record->done = 1;
        mpt__record_unsave(ctx, record);
    }
    return status;
}

#ifndef MPTRAIN_NO_FRUGAL
/* The same where what is saved has to come back, or a region hears of it. */
static MPT__NOINLINE mpt_status mpt__backward_asking(
    mpt_context *ctx, mpt__record *record, bool retain) {
    const bool any = mpt__any_gradient(record);
    mpt_status status = MPT_OK;
    if (any && record->asks & MPT__ASKS_HOLES) status = mpt__region_fill(ctx, record->region);
    if (any && status == MPT_OK) status = mpt__open_gates(ctx, record);
    if (status == MPT_OK) status = mpt__backward_plainly(ctx, record, retain);
    if (status == MPT_OK && record->region) mpt__region_used(ctx, record, retain);
    return status;
}
#endif

static mpt_status mpt__backward_record(mpt_context *ctx, mpt__record *record, bool retain) {
#ifndef MPTRAIN_NO_FRUGAL
    if (MPT__UNLIKELY(record->asks != 0)) return mpt__backward_asking(ctx, record, retain);
#endif
    return mpt__backward_plainly(ctx, record, retain);
}

/* Gives up gradients that a failed pass left in records. */
static void mpt__drop_record_gradients(mpt_context *ctx) {
    for (int64_t r = 1; r < ctx->record_count; r++) {
        mpt__record *record = ctx->records[r];
        for (int i = 0; record->live && i < record->n_out; i++)
            mpt__gradient_drop(ctx, &record->grad[i]);
    }
}

/* Pending multipliers belong to gradients of a finished pass: new ones add to their true values. */
static void mpt__materialise_all(mpt_context *ctx) {
    for (int64_t i = 0; i < ctx->block_count; i++) {
        if (ctx->blocks[i].live && ctx->blocks[i].multiplier_slot)
            mpt__materialise_gradients(ctx, &ctx->blocks[i]);
    }
}

/* The gradient that enters, the caller's or `one`, as if the tensor were an op's input. */
static mpt_status mpt__seed_gradient(
    mpt_context *ctx, mpt__tensor *tensor, mpt_tensor gradient, mpt__tensor *one) {
    const mpt__tensor *seed = one;
    bool wide = tensor->dtype == MPT_F64;
    one->handle = 0;
    mpt__shape_copy(&one->shape, &tensor->shape);
    mpt__copy_dims(one->stride, tensor->stride, tensor->shape.rank);
    one->storage = ctx->scalar_storage;
    one->dtype = wide ? MPT_F64 : MPT_F32;
    one->offset = wide ? MPT__SLOT_ONE : 2 * MPT__SLOT_ONE_F32;
    if (gradient.context || gradient.slot) {
        seed = mpt__at(ctx, gradient, "gradient");
        if (!seed) return ctx->base.status;
        if (!mpt__same_shape(seed, tensor))
            return mpt__error(
                ctx, SHAPE, "gradient has shape %S, the tensor %S", &seed->shape, &tensor->shape);
    } else if (mpt__tensor_numel(tensor) != 1) {
        return mpt__error(ctx, SHAPE,
            "backward needs a one-element tensor, this has shape %S; reduce it with "
            "mpt_mean or mpt_sum, or pass a gradient to mpt_backward_from",
            &tensor->shape);
    } else if (tensor->record && tensor->dtype == one->dtype) {
        tensor->record->grad[tensor->output] = one;
        return MPT_OK;
    }
    mpt__frame frame;
    frame.context = ctx;
    frame.n_in = 1;
    frame.in = &tensor;
    frame.layout = MPT__LAYOUT_KEPT;
    return mpt__gradient_pass(&frame, 0, seed);
}

/* What the gradients of a pass are multiplied by, unless it meets a scaled loss: nothing that is
   known where the user gives the gradient to begin with, or a loss times a number of the user's. */
static uint32_t mpt__root_scale(
    const mpt_context *ctx, const mpt__tensor *root, mpt_tensor gradient) {
    const mpt__record *record = root->record;
    const unsigned function = record ? ctx->ops[record->op].function : (unsigned)MPT__FN_NONE;
    bool times = function == MPT__FN_MUL ||
        (function == MPT__FN_MUL_SCALAR && record->attributes.imm[0] > 1.0);
    return gradient.slot || times ? MPT__UNKNOWN : MPT__PLAIN;
}

mpt_status mpt_backward_from(mpt_tensor tensor, mpt_tensor gradient, bool retain) {
    mpt__lend(tensor, gradient.context);
    mpt_context *ctx = tensor.context;
    if (!mpt__enter_checked(ctx, "mpt_backward") || !mpt__no_slice(ctx)) return mpt__status_of(ctx);
    mpt__tensor *root = mpt__at(ctx, tensor, "loss");
    if (!root) return ctx->base.status;
    if (!(root->flags & MPT__REQUIRES_GRAD))
        return mpt__error(ctx, STATE,
            "backward from a tensor without history: nothing it was computed from requires a "
            "gradient (gradients have none), or it was made under mpt_no_grad_begin or in "
            "inference mode");
#ifndef MPTRAIN_NO_WATCH
    if (ctx->in_update)
        return mpt__error(ctx, STATE,
            "an optimizer's update is under way, and is made of ops alone; call "
            "mpt_backward before mpt_step");
#endif
    if (ctx->in_backward)
        return mpt__error(ctx, STATE,
            "a backward pass is under way; a user op's backward is made of ops and "
            "cannot start another one");
    mpt__tell(ctx, MPT__LOSS_KNOWN, root);
    ctx->loose_passes += ctx->scope_depth == 0;
    ctx->in_backward = true;
    ctx->loss_scaler = mpt__root_scale(ctx, root, gradient);
    mpt__materialise_all(ctx);
    ctx->launch.phase = MPT__BACKWARD;
    mpt__tensor one; /* in no table, and without a handle that could end */
    mpt__storage_retain(ctx, ctx->scalar_storage); /* or it would seem to be its owner */
    mpt_status status = mpt__seed_gradient(ctx, root, gradient, &one);
    ctx->no_grad_depth++;
    root->nodes++; /* holds the records, whatever a user op's backward ends */
    mpt__record *record = mpt__walk_order(ctx, root->record);
#ifndef MPTRAIN_NO_FRUGAL
    if (MPT__UNLIKELY(ctx->walk != NULL) && status == MPT_OK) {
        status = ctx->walk(ctx, record, retain);
        record = NULL;
    }
#endif
    for (; record && status == MPT_OK; record = record->next)
        status = mpt__backward_record(ctx, record, retain);
    root->nodes--;
    ctx->no_grad_depth--;
    mpt__launch_origin(ctx, MPT__OTHER, 0);
    ctx->launch.op_record = 0;
    ctx->in_backward = false;
    if (status != MPT_OK) mpt__drop_record_gradients(ctx);
    mpt__storage_release(ctx, ctx->scalar_storage);
    mpt__tensor_settle(ctx, root);
    return status;
}

mpt_status mpt_backward(mpt_tensor loss) { return mpt_backward_from(loss, mpt__null(NULL), false); }

/* ==== Leaves and their gradients ==== */

mpt_status mpt_requires_grad(mpt_tensor tensor, bool on) {
    mpt_context *ctx = tensor.context;
    mpt__tensor *leaf = mpt__enter_at(tensor, "mpt_requires_grad", "tensor");
    if (!leaf) return mpt__status_of(ctx);
    if (leaf->record)
        return mpt__error(ctx, STATE,
            "only leaves collect gradients, this was computed from others; mpt_detach it");
    if (on && !mpt__dtype_info[leaf->dtype].is_float)
        return mpt__error(ctx, DTYPE, "a tensor of dtype %D cannot have a gradient", leaf->dtype);
    if (on && (leaf->flags & MPT__INFERENCE))
        return mpt__error(ctx, STATE, "made in inference mode; mpt_clone it outside");
#ifndef MPTRAIN_NO_WATCH
    if (on && leaf->parameter && ctx->storages[leaf->storage].source == MPT__OTHERS &&
        mpt__writing_refused(ctx, leaf->storage))
        return ctx->base.status;
#endif
    if (on) {
        leaf->flags |= MPT__REQUIRES_GRAD | MPT__LEAF;
    } else {
        leaf->flags &= (uint8_t) ~(MPT__REQUIRES_GRAD | MPT__LEAF);
    }
    return MPT_OK;
}

static bool mpt__leaf_has_grad(mpt_context *ctx, const mpt__tensor *leaf) {
    return leaf->parameter ? mpt__has_grad(ctx, &ctx->parameters[leaf->parameter - 1])
                           : leaf->gradient != NULL;
}

bool mpt_has_grad(mpt_tensor tensor) {
    const mpt__tensor *leaf = mpt__enter_at(tensor, "mpt_has_grad", "tensor");
    return leaf && mpt__leaf_has_grad(tensor.context, leaf);
}

bool mpt_get_requires_grad(mpt_tensor tensor) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_get_requires_grad", "tensor");
    return found && found->flags & MPT__REQUIRES_GRAD;
}

mpt_tensor mpt_grad(mpt_tensor tensor) {
    mpt_context *ctx = tensor.context;
    mpt__tensor *leaf = mpt__enter_at(tensor, "mpt_grad", "tensor");
    if (!leaf) return mpt__null(ctx);
    if (!mpt__leaf_has_grad(ctx, leaf))
        return mpt__refuse(ctx, STATE,
            "the tensor has no gradient: none came since zero_grad, or it is no "
            "leaf; mpt_has_grad tells");
    if (!leaf->parameter) return mpt__handle(ctx, leaf->gradient);
    mpt__materialise_gradients(ctx, &ctx->blocks[ctx->parameters[leaf->parameter - 1].block]);
    const mpt__tensor *view = mpt__parameter_gradient(ctx, leaf);
    if (!view) return mpt__null(ctx);
    return mpt__handle(ctx, mpt__tensor_alias(ctx, view));
}

mpt_status mpt_clear_grad(mpt_tensor tensor) {
    mpt__tensor *leaf = mpt__enter_at(tensor, "mpt_clear_grad", "tensor");
    if (!leaf) return mpt__status_of(tensor.context);
    if (leaf->parameter) mpt__clear_grad(&tensor.context->parameters[leaf->parameter - 1]);
    mpt__gradient_drop(tensor.context, &leaf->gradient);
    return MPT_OK;
}

/* ==== Modes ==== */

/* Counts a nesting depth up or down. */
static mpt_status mpt__nest(
    mpt_context *ctx, const char *name, int *depth, int *dropped, int change) {
    if (!mpt__enter(ctx, name)) return mpt__status_of(ctx);
    if (*depth + change < 0) {
        if (*dropped == 0)
            return mpt__error(ctx, STATE, "there is no open region that this could end");
        depth = dropped;
    }
    *depth += change;
    return MPT_OK;
}

#define MPT__DEFINE_NEST(name, region, change) \
    mpt_status name(mpt_context *ctx) { \
        return mpt__nest(ctx, #name, ctx ? &ctx->region##_depth : NULL, \
                         ctx ? &ctx->dropped_##region : NULL, change); \
    }
MPT__DEFINE_NEST(mpt_no_grad_begin, no_grad, 1)
MPT__DEFINE_NEST(mpt_no_grad_end, no_grad, -1)
MPT__DEFINE_NEST(mpt_inference_begin, inference, 1)
MPT__DEFINE_NEST(mpt_inference_end, inference, -1)
MPT__DEFINE_NEST(mpt_recompute_begin, recompute, 1)
MPT__DEFINE_NEST(mpt_recompute_end, recompute, -1)
MPT__DEFINE_NEST(mpt_autocast_end, autocast, -1)

static void mpt__discard_history(mpt_context *ctx) {
    mpt__drop_record_gradients(ctx);
    mpt__scope_drop(ctx, 0);
    ctx->dropped_step |= ctx->step_depth > 0;
    ctx->dropped_scopes += ctx->scope_depth - (ctx->step_depth > 0);
    ctx->dropped_no_grad += ctx->no_grad_depth, ctx->dropped_inference += ctx->inference_depth;
    ctx->dropped_recompute += ctx->recompute_depth, ctx->dropped_autocast += ctx->autocast_depth;
    ctx->scope_depth = ctx->step_depth = 0;
    ctx->no_grad_depth = ctx->inference_depth = ctx->autocast_depth = 0;
    ctx->recompute_depth = 0;
    mpt__launch_origin(ctx, MPT__OTHER, 0);
    ctx->launch.op_record = 0;
    for (int64_t i = 0; i < ctx->parameter_count; i++) ctx->parameters[i].has_grad = false;
    for (int64_t i = 0; i < ctx->block_count; i++) ctx->blocks[i].multiplier_slot = 0;
    for (int64_t i = 1; i < ctx->tensor_count; i++)
        mpt__gradient_drop(ctx, &mpt__slot(ctx, (uint32_t)i)->gradient);
}

#endif
