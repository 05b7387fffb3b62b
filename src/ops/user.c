/* ----
 * ops/user.c: ops that users define as compositions of ops.
 *
 * forward and backward run without history; the engine leaves one record for the whole, which holds
 * what forward saved.
 * ---- */
#ifndef MPT__OPS_USER_INCLUDED
#define MPT__OPS_USER_INCLUDED

#include "ops/recurrent.c"

typedef struct {
    mpt__id id;
    mpt_op_class cls;
    void *user;
} mpt__op;

MPT__HANDLES(op, MPT__USER_OP)

/* What the user's functions get: the frame, and slots for the handles that they set. */
enum { MPT__CALL_OUTPUT, MPT__CALL_SAVED, MPT__CALL_GRADIENT, MPT__CALL_KINDS };
enum { MPT__CALL_SLOTS = 8 }; /* the largest of the three maxima */

struct mpt_op_call {
    mpt__frame *frame;
    mpt__op *op;
    bool backward;
    mpt_tensor slot[MPT__CALL_KINDS][MPT__CALL_SLOTS];
};

mpt_op mpt_op_register(mpt_context *ctx, const mpt_op_class *cls, void *user) {
    if (!mpt__enter(ctx, "mpt_op_register")) return mpt__op_handle(ctx, NULL);
    bool good = cls && cls->name && cls->forward && cls->n_inputs >= 1 &&
        cls->n_inputs <= MPT__USER_INPUTS && cls->n_outputs >= 1 &&
        cls->n_outputs <= MPT__MAX_OUTPUTS;
    mpt__op *op = NULL;
    if (!good)
        mpt__error(ctx, ARGUMENT,
            "expected a class with a name, a forward, 1..%d inputs and 1..%d outputs",
            (int)MPT__USER_INPUTS, (int)MPT__MAX_OUTPUTS);
    else
        op = (mpt__op *)mpt__object_make(ctx, MPT__USER_OP, sizeof *op);
    if (op) op->cls = *cls, op->user = user;
    return mpt__op_handle(ctx, op);
}

/* ==== Calls of the user's functions ==== */

/* Begins a call on slot `index` of a kind; NULL with an error recorded. */
static mpt_tensor *mpt__call_slot(mpt_op_call *call, const char *name, int kind, int index) {
    if (!call || !mpt__enter(call->frame->context, name)) return NULL;
    int count = kind == MPT__CALL_OUTPUT ? call->frame->n_out
        : kind == MPT__CALL_SAVED        ? MPT__USER_INPUTS
                                         : call->frame->n_in;
    if (index >= 0 && index < count) return &call->slot[kind][index];
    mpt__error(call->frame->context, ARGUMENT, "op %s: index %d is not in 0..%d",
        call->op->cls.name, index, count - 1);
    return NULL;
}

static mpt_status mpt__call_set(
    mpt_op_call *call, const char *name, int kind, int index, mpt_tensor value) {
    mpt_tensor *slot = mpt__call_slot(call, name, kind, index);
    if (!call) return MPT_ERROR_ARGUMENT;
    mpt_context *ctx = call->frame->context;
    bool backward = kind == MPT__CALL_GRADIENT;
    if (slot && call->backward != backward)
        mpt__error(ctx, STATE, "to be called in %s only", backward ? "backward" : "forward");
    else if (slot && mpt__at(ctx, value, backward ? "gradient" : "value"))
        *slot = value;
    return ctx->base.status;
}

static mpt_tensor mpt__call_null(const mpt_op_call *call) {
    return mpt__null(call ? call->frame->context : NULL);
}

mpt_tensor mpt_op_input(mpt_op_call *call, int index) {
    if (!mpt__call_slot(call, "mpt_op_input", MPT__CALL_GRADIENT, index))
        return mpt__call_null(call);
    mpt_context *ctx = call->frame->context;
    const mpt__tensor *input = call->frame->in[index];
    if (!input)
        return mpt__refuse(
            ctx, HANDLE, "input %d of op %s is a null handle", index, call->op->cls.name);
    if (input->handle && input->storage) return mpt__handle(ctx, input);
    return mpt__refuse(ctx, STATE,
        "input %d of op %s is gone in backward; mpt_op_save it in forward", index,
        call->op->cls.name);
}

mpt_status mpt_op_set_output(mpt_op_call *call, int index, mpt_tensor value) {
    return mpt__call_set(call, "mpt_op_set_output", MPT__CALL_OUTPUT, index, value);
}

mpt_status mpt_op_save(mpt_op_call *call, int index, mpt_tensor value) {
    return mpt__call_set(call, "mpt_op_save", MPT__CALL_SAVED, index, value);
}

mpt_tensor mpt_op_saved(mpt_op_call *call, int index) {
    const mpt_tensor *slot = mpt__call_slot(call, "mpt_op_saved", MPT__CALL_SAVED, index);
    return slot ? *slot : mpt__call_null(call);
}

mpt_tensor mpt_op_output_grad(mpt_op_call *call, int index) {
    if (!mpt__call_slot(call, "mpt_op_output_grad", MPT__CALL_OUTPUT, index))
        return mpt__call_null(call);
    mpt_context *ctx = call->frame->context;
    if (!call->backward) return mpt__refuse(ctx, STATE, "to be called in %s only", "backward");
    const mpt__tensor *dy = call->frame->dy[index];
    if (dy) return mpt__handle(ctx, mpt__tensor_alias(ctx, dy));
    const mpt__tensor *like = call->frame->saved[MPT__USER_INPUTS + index]; /* there are several */
    return mpt__filled(ctx, "mpt_op_output_grad", (mpt_dtype)like->dtype, &like->shape, 0.0);
}

mpt_status mpt_op_set_input_grad(mpt_op_call *call, int index, mpt_tensor gradient) {
    return mpt__call_set(call, "mpt_op_set_input_grad", MPT__CALL_GRADIENT, index, gradient);
}

/* ==== The row of the op table ====
 *
 * The outputs' shapes are known once forward has run: there is no shape rule, and mpt_op_apply does
 * what mpt__call_run does for other rows. */

static void mpt__user_call_begin(mpt_op_call *call, mpt__frame *frame, mpt__op *op, bool backward) {
    call->frame = frame;
    call->op = op;
    call->backward = backward;
    for (int kind = 0; kind < MPT__CALL_KINDS; kind++)
        mpt__outputs_null(frame->context, call->slot[kind], MPT__CALL_SLOTS);
}

/* The user's status, or the sticky one; a failure without a message gets one. */
static mpt_status mpt__user_status(
    mpt_context *ctx, const mpt__op *op, const char *call, mpt_status status) {
    ctx->base.op = call; /* not the last one that the user's function made */
#if defined(MPTRAIN_CUDA)
    if (mpt__ok(ctx) && ctx->queues) {
        ctx->queues = false;
        if (!ctx->backend.stream(ctx->backend.self))
            return mpt__error(ctx, DEVICE, "op %s: %s", op->cls.name, ctx->backend.error);
    }
#endif
    if (!mpt__ok(ctx) || status == MPT_OK) return ctx->base.status;
    return mpt__error_of(ctx, status, "op %s reported: %s", op->cls.name, mpt_status_name(status));
}

static mpt_status mpt__user_backward(mpt__frame *frame) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = frame->context;
    mpt__op *op =
        (mpt__op *)mpt__object_slot(ctx, MPT__USER_OP, (uint32_t)frame->attributes->index[0]);
    mpt_op_call call;
    mpt__user_call_begin(&call, frame, op, true);
    /* Saved tensors and gradients live in slots whose handles may have ended: show them as
       views. */
    if (mpt_scope_begin(ctx) != MPT_OK) return ctx->base.status;
    for (int i = 0; i < MPT__USER_INPUTS; i++) {
        const mpt__tensor *saved = frame->saved[i];
        if (!saved) continue;
        call.slot[MPT__CALL_SAVED][i] = mpt__handle(ctx, mpt__tensor_alias(ctx, saved));
    }
    mpt_status status =
        mpt__user_status(ctx, op, "mpt_backward", op->cls.backward(&call, op->user));
    for (int i = 0; i < frame->n_in && status == MPT_OK; i++) {
        mpt_tensor given = call.slot[MPT__CALL_GRADIENT][i];
        if (given.slot == 0 || !mpt__wants(frame, i)) continue;
        const mpt__tensor *gradient = mpt__at(ctx, given, "gradient");
        if (!gradient) break;
        if (!mpt__same_shape(gradient, frame->in[i])) {
            status = mpt__error(ctx, SHAPE, "op %s gave input %d a gradient %S, expected %S",
                op->cls.name, i, &gradient->shape, &frame->in[i]->shape);
            break;
        }
        status = mpt__gradient_pass(frame, i, gradient);
    }
    if (mpt__ok(ctx)) mpt_scope_end(ctx);
    return ctx->base.status;
}

/* Casts inputs as the class asks; the casts are ops of their own and carry gradients. */
static void mpt__user_cast_inputs(
    mpt_context *ctx, const mpt__op *op, const mpt_tensor *in, int n_in, mpt_tensor *cast) {
    mpt_dtype low = mpt__autocast_dtype(ctx);
    mpt_dtype want = op->cls.autocast == MPT_AUTOCAST_LOW ? low : MPT_F32;
    bool region = low != MPT_F32 && op->cls.autocast != MPT_AUTOCAST_INPUT;
    for (int i = 0; i < n_in; i++) {
        cast[i] = in[i];
        const mpt__tensor *tensor = region ? mpt__live(ctx, in[i]) : NULL;
        mpt_dtype dtype = tensor ? (mpt_dtype)tensor->dtype : want;
        if (mpt__dtype_computes(dtype) && dtype != want) cast[i] = mpt_cast(in[i], want);
    }
    ctx->base.op = "mpt_op_apply";
}

/* Before a forward of the user's, which may call others: their nesting has a limit. */
static bool mpt__user_forward_begin(mpt_context *ctx, const char *name) {
    if (ctx->forward_depth == MPT__MAX_DEPTH) {
        mpt__error(ctx, STATE, "forward of %s runs in itself or nests deeper than %d calls", name,
            MPT__MAX_DEPTH);
        return false;
    }
    ctx->forward_depth++;
    return true;
}

/* Keeps what the gradient of an output looks like that nobody uses: a shape without memory. */
static void mpt__user_save_shape(mpt__frame *frame, int i) {
    mpt_context *ctx = frame->context;
    mpt__tensor *kept = mpt__tensor_outside(ctx, frame->out[i], MPT__KEPT);
    if (!kept) return;
    mpt__storage_release(ctx, kept->storage);
    mpt__storage_retain(ctx, kept->storage = ctx->scalar_storage);
    mpt__save(frame, kept);
    mpt__tensor_drop(ctx, kept);
}

/* Runs forward without history and turns what it set into outputs of one record. */
static mpt_status mpt__user_run(mpt__frame *frame, mpt__op *op, mpt_op_call *call) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = frame->context;
    if (!mpt__user_forward_begin(ctx, op->cls.name)) return ctx->base.status;
    for (int i = 0; i < frame->n_in; i++)
        if (frame->in[i]) frame->in[i]->saves++;
    int depth = ctx->no_grad_depth++;
    mpt__tell_watchers(ctx, MPT__USER_OP_BEGAN, frame);
    mpt__user_status(ctx, op, "mpt_op_apply", op->cls.forward(call, op->user));
    ctx->forward_depth--;
    ctx->no_grad_depth = depth; /* forward may have cleared an error */
    for (int i = 0; i < frame->n_in; i++) {
        if (!frame->in[i]) continue;
        if (!frame->in[i]->handle)
            mpt__error(ctx, STATE, "op %s ended its input %d", op->cls.name, i);
        frame->in[i]->saves--;
        mpt__tensor_settle(ctx, frame->in[i]);
    }
    if (!mpt__ok(ctx)) return ctx->base.status;
    for (int i = 0; i < frame->n_out; i++) {
        mpt_tensor output = call->slot[MPT__CALL_OUTPUT][i];
        if (output.slot == 0)
            return mpt__error(ctx, STATE, "op %s did not set output %d", op->cls.name, i);
        const mpt__tensor *value = mpt__at(ctx, output, "output");
        if (!value) return ctx->base.status;
        frame->out[i] = mpt__tensor_alias(ctx, value);
        if (!frame->out[i]) return ctx->base.status;
    }
    for (int i = 0; i < MPT__USER_INPUTS; i++) {
        mpt_tensor saved = call->slot[MPT__CALL_SAVED][i];
        mpt__save(frame, saved.slot ? mpt__at(ctx, saved, "saved tensor") : NULL);
    }
    for (int i = 0; i < frame->n_out && frame->n_out > 1; i++) mpt__user_save_shape(frame, i);
    return ctx->base.status;
}

mpt_status mpt_op_apply(mpt_op op, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt__lend(op, in ? mpt__context_of(in, n_in) : NULL);
    mpt_context *ctx = op.context;
    if (out) mpt__outputs_null(ctx, out, n_out);
    mpt__op *found = mpt__op_enter(op, "mpt_op_apply");
    if (!found) return mpt__status_of(ctx);
    if (!in || !out || n_in != found->cls.n_inputs || n_out != found->cls.n_outputs)
        return mpt__error(ctx, ARGUMENT, "op %s takes %d inputs and %d outputs, got %d and %d",
            found->cls.name, found->cls.n_inputs, found->cls.n_outputs, n_in, n_out);
    mpt_tensor cast[MPT__USER_INPUTS];
    mpt__user_cast_inputs(ctx, found, in, n_in, cast);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = (int64_t)op.slot;
    mpt__frame frame;
    mpt__zero(frame);
    if (!mpt__ok(ctx) || !mpt__call_begin(&frame, ctx, MPT__OP_user, n_in, n_out, &attributes))
        return ctx->base.status;
    frame.compute = MPT_F32;
    mpt_op_call call;
    mpt__user_call_begin(&call, &frame, found, false);
    mpt_status status = MPT_ERROR_HANDLE;
    if (mpt__find_inputs(ctx, cast, n_in, 0, frame.record->in) && mpt__check_inputs(&frame)) {
        frame.records = frame.records && found->cls.backward;
        status = mpt__user_run(&frame, found, &call);
    }
    mpt__record_call(&frame, n_out, status);
    for (int i = 0; i < n_out; i++) {
        if (status == MPT_OK)
            out[i] = mpt__handle(ctx, frame.out[i]);
        else if (frame.out[i])
            mpt__tensor_drop(ctx, frame.out[i]);
    }
    return ctx->base.status;
}

/* ==== Kernels of the program's own ==== */

#if defined(MPTRAIN_CUDA)
/* Whether work may be queued that is no launch, else an error. */
static bool mpt__queue_open(mpt_context *ctx) {
    if (!ctx->backend.stream)
        return mpt__reject(ctx, UNSUPPORTED,
            "this context computes on the CPU (mpt_get_device tells); mpt_read and "
            "mpt_from are what C code there works with");
    if (ctx->recorder && !ctx->recorder->own)
        return mpt__reject(ctx, UNSUPPORTED,
            "a kernel of your own is no launch of the library's: neither captured "
            "steps nor recordings can repeat it");
    if (ctx->recorder) ctx->recorder->failed = true; /* anomaly mode is silent then */
    mpt__wait_no_more(ctx);
    mpt__region_read(ctx);
    return mpt__ok(ctx);
}

void *mpt_device_data(mpt_tensor tensor, bool writes) {
    mpt_context *ctx = tensor.context;
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_device_data", "tensor");
    if (!found || !mpt__queue_open(ctx)) return NULL;
    if (!mpt__tensor_contiguous(found)) {
        mpt__error(ctx, STATE, "the elements of the tensor %S are not in order; mpt_contiguous %s",
            &found->shape,
            writes ? "gives a copy, and mpt_copy_ writes one back" : "gives them so");
        return NULL;
    }
    if (writes && mpt__writing_refused(ctx, found->storage)) return NULL;
    if (writes) mpt__touched(ctx, found->storage);
    return (char *)ctx->data[found->storage] +
        found->offset * (int64_t)mpt__dtype_info[found->dtype].bytes;
}

void *mpt_device_stream(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_device_stream") || !mpt__queue_open(ctx)) return NULL;
    void *stream = ctx->backend.stream(ctx->backend.self);
    ctx->queues = stream != NULL;
    if (!stream) mpt__backend_error(ctx, MPT_ERROR_DEVICE);
    return stream;
}
#else
void *mpt_device_data(mpt_tensor tensor, bool writes) {
    (void)writes;
    mpt__absent(tensor.context, "mpt_device_data", "MPTRAIN_CUDA");
    return NULL;
}
void *mpt_device_stream(mpt_context *ctx) {
    mpt__absent(ctx, "mpt_device_stream", "MPTRAIN_CUDA");
    return NULL;
}
#endif

#endif
