/* ----
 * nn/fp8.c: linear layers whose products are of fp8 numbers, by delayed scaling.
 *
 * A layer keeps a scale for each of x, weight and gradient, a power of two that the largest values
 * of the last steps give. Forward puts x and weight into E4M3 and saves these, backward the
 * gradient into E5M2; products are of the numbers that stand for, widened to fp32, which is exact.
 * ---- */
#ifndef MPT__NN_FP8_INCLUDED
#define MPT__NN_FP8_INCLUDED

#include "nn/recurrent.c"

mpt_fp8_config mpt_fp8_config_default(void) {
    mpt_fp8_config config = {16, 0};
    return config;
}

#ifdef MPTRAIN_NO_FP8

MPT__BEGIN_ABSENT
mpt_tensor mpt_cast_fp8(mpt_tensor x, mpt_dtype dtype, bool saturate) {
    mpt__absent(x.context, "mpt_cast_fp8", "fp8 (MPTRAIN_NO_FP8)");
    return mpt__null(x.context);
}

mpt_status mpt_fp8(mpt_module module, const mpt_fp8_config *config) {
    return mpt__absent(module.context, "mpt_fp8", "fp8 (MPTRAIN_NO_FP8)");
}
MPT__END_ABSENT

#else

/* ==== Casts ==== */

/* A dense tensor by row `row` of a layer's state (NULL: a scale of 1), as `dtype`; NULL on
   error. */
static mpt__tensor *mpt__fp8_cast(mpt_context *ctx, const mpt__tensor *x, mpt_dtype dtype,
    mpt__fp8_way way, const mpt__tensor *state, int row, bool watched) {
    mpt__tensor *out = mpt__tensor_new(ctx, dtype, &x->shape, MPT_MEMORY_ACTIVATION);
    if (!out) return NULL;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FP8_SCALE);
    int64_t count = mpt__tensor_numel(x);
    mpt__operand_on(launch, 0, x->storage, (mpt_dtype)x->dtype, x->offset, count, MPT__READ);
    mpt__operand_on(launch, 1, out->storage, dtype, out->offset, count, MPT__WRITE);
    if (state)
        mpt__operand_on(launch, 2, state->storage, MPT_F32,
            state->offset + row * state->shape.dim[1], state->shape.dim[1],
            watched ? MPT__READ_WRITE : MPT__READ);
    launch->index[0] = way;
    if (mpt__submit(ctx, launch) == MPT_OK) return out;
    mpt__tensor_drop(ctx, out);
    return NULL;
}

mpt_tensor mpt_cast_fp8(mpt_tensor x, mpt_dtype dtype, bool saturate) {
    const mpt__tensor *tensor = mpt__enter_at(x, "mpt_cast_fp8", "argument 1");
    if (!tensor) return mpt__null(x.context);
    if (dtype != MPT_F8E4M3 && dtype != MPT_F8E5M2)
        return mpt__refuse(x.context, DTYPE, "expected MPT_F8E4M3 or MPT_F8E5M2, got %D", dtype);
    if (tensor->dtype != MPT_F32 && tensor->dtype != MPT_F16 && tensor->dtype != MPT_BF16)
        return mpt__refuse(
            x.context, DTYPE, "argument 1 is %D; mpt_cast it to float32 first", tensor->dtype);
    mpt_tensor dense = mpt__tensor_contiguous(tensor) ? x : mpt_clone(x);
    tensor = mpt__live(x.context, dense);
    mpt__tensor *out = NULL;
    if (tensor && mpt__ok(x.context))
        out = mpt__fp8_cast(x.context, tensor, dtype,
            saturate ? MPT__FP8_SATURATE : MPT__FP8_NONSAT, NULL, 0, false);
    if (dense.slot != x.slot) mpt_release(dense);
    return out ? mpt__handle(x.context, out) : mpt__null(x.context);
}

/* ==== The layer as an op ====
 *
 * A user-defined op of the library's own: inputs x, weight, bias (or none) and the state. */

enum { MPT__FP8_X, MPT__FP8_WEIGHT, MPT__FP8_GRADIENT, MPT__FP8_ROWS };

static void mpt__fp8_end(mpt_context *ctx, mpt_tensor handle) {
    mpt__tensor *tensor = handle.slot ? mpt__live(ctx, handle) : NULL;
    if (tensor) mpt__tensor_drop(ctx, tensor);
}

/* `x` as [rows, columns], quantised by a row of the state; the null handle on error. */
static mpt_tensor mpt__fp8_quantised(
    mpt_op_call *call, mpt_tensor x, int64_t columns, int row, bool watched) {
    mpt_context *ctx = call->frame->context;
    mpt_tensor flat = mpt_reshape(x, MPT_SHAPE(-1, columns)), dense = flat;
    const mpt__tensor *tensor = mpt__live(ctx, flat);
    if (tensor && !mpt__tensor_contiguous(tensor)) dense = mpt_clone(flat); /* a view */
    tensor = mpt__live(ctx, dense);
    mpt__tensor *out = NULL;
    if (tensor && mpt__ok(ctx))
        out = mpt__fp8_cast(ctx, tensor, row == MPT__FP8_GRADIENT ? MPT_F8E5M2 : MPT_F8E4M3,
            MPT__FP8_SCALE, call->frame->in[3], row, watched);
    mpt__fp8_end(ctx, flat);
    if (dense.slot != flat.slot) mpt__fp8_end(ctx, dense);
    return out ? mpt__handle(ctx, out) : mpt__null(ctx);
}

static mpt_tensor mpt__fp8_widened(mpt_op_call *call, mpt_tensor quantised, int row) {
    mpt_context *ctx = call->frame->context;
    const mpt__tensor *tensor = mpt__live(ctx, quantised);
    mpt__tensor *out = tensor
        ? mpt__fp8_cast(ctx, tensor, MPT_F32, MPT__FP8_WIDEN, call->frame->in[3], row, false)
        : NULL;
    return out ? mpt__handle(ctx, out) : mpt__null(ctx);
}

/* That of the module whose call it is; NULL if it is no more. */
static mpt__running *mpt__fp8_running(mpt_op_call *call) {
    uint32_t slot = (uint32_t)(uintptr_t)call->op->user;
    const mpt__module *module = mpt__module_slot(call->frame->context, slot);
    mpt__running *running = module ? module->running : NULL;
    return running && running->values == call->frame->in[3]->storage ? running : NULL;
}

/* Whether the call takes note of magnitudes: in training; the step then ends with an update. */
static bool mpt__fp8_watched(mpt_op_call *call) {
    mpt_context *ctx = call->frame->context;
    mpt__running *running = mpt__fp8_running(call);
    const mpt__module *module = mpt__module_slot(ctx, (uint32_t)(uintptr_t)call->op->user);
    if (!running || !mpt__in_training(module) || ctx->inference_depth) return false;
    mpt__running_wait(ctx, running);
    return true;
}

static mpt_tensor mpt__fp8_as(mpt_tensor x, mpt_dtype dtype) {
    return mpt_get_dtype(x) == dtype ? x : mpt_cast(x, dtype);
}

static mpt_status mpt__fp8_op_forward(mpt_op_call *call, void *user) {
    mpt_context *ctx = call->frame->context;
    mpt__tensor *const *in = call->frame->in;
    mpt_shape shape = in[0]->shape;
    int64_t columns = in[1]->shape.dim[1];
    (void)user;
    if (shape.rank < 1 || shape.dim[shape.rank - 1] != columns)
        return mpt__error(ctx, SHAPE,
            "linear layer in fp8: input %S does not fit weight %S (the last "
            "dimension has to be %lld)",
            &shape, &in[1]->shape, columns);
    mpt_dtype dtype = mpt__autocast_dtype(ctx);
    if (dtype == MPT_F32) dtype = (mpt_dtype)in[0]->dtype;
    if (!mpt__dtype_computes((mpt_dtype)in[0]->dtype))
        return mpt__error(ctx, DTYPE, "linear layer in fp8: the input is %D", in[0]->dtype);
    mpt__running *running = mpt__fp8_running(call);
    bool watched = mpt__fp8_watched(call);
    if (!running || mpt_scope_begin(ctx) != MPT_OK) return ctx->base.status;
    mpt_tensor wide[2], y;
    mpt_autocast_begin(ctx, MPT_F32);
    for (int i = 0; i < 2; i++) {
        mpt_tensor codes = mpt__fp8_quantised(call, mpt__handle(ctx, in[i]), columns, i, watched);
        wide[i] = mpt__fp8_widened(call, codes, i);
        running->spare[i] = mpt_keep(codes);
    }
    y = in[2] ? mpt__fp8_as(mpt__handle(ctx, in[2]), MPT_F32) : mpt__null(NULL);
    y = mpt__fp8_as(mpt_linear(wide[0], wide[1], y, MPT_ACTIVATION_NONE), dtype);
    shape.dim[shape.rank - 1] = in[1]->shape.dim[0];
    running->spare[2] = mpt_keep(mpt_reshape(y, shape));
    mpt_autocast_end(ctx);
    mpt_scope_end(ctx);
    for (int i = 0; i < 2; i++) mpt_op_save(call, i, running->spare[i]);
    return mpt_op_set_output(call, 0, running->spare[2]);
}

static mpt_status mpt__fp8_op_backward(mpt_op_call *call, void *user) {
    const mpt__frame *frame = call->frame;
    int64_t outputs = frame->in[1]->shape.dim[0];
    mpt_tensor dy = mpt_reshape(mpt_op_output_grad(call, 0), MPT_SHAPE(-1, outputs));
    bool watched = mpt__fp8_watched(call);
    (void)user;
    mpt_autocast_begin(frame->context, MPT_F32); /* mpt_backward may be called in any region */
    if (mpt__wants(frame, 2))
        mpt_op_set_input_grad(call, 2, mpt_sum(mpt__fp8_as(dy, MPT_F32), 0, false));
    mpt_tensor codes = mpt__fp8_quantised(call, dy, outputs, MPT__FP8_GRADIENT, watched);
    mpt_tensor slope = mpt__fp8_widened(call, codes, MPT__FP8_GRADIENT);
    if (mpt__wants(frame, 0)) {
        mpt_tensor weight = mpt__fp8_widened(call, mpt_op_saved(call, 1), MPT__FP8_WEIGHT);
        mpt_tensor dx = mpt__fp8_as(mpt_matmul(slope, weight), (mpt_dtype)frame->in[0]->dtype);
        mpt_op_set_input_grad(call, 0, mpt_reshape(dx, frame->in[0]->shape));
        mpt_release(weight);
    }
    if (mpt__wants(frame, 1)) {
        mpt_tensor x = mpt__fp8_widened(call, mpt_op_saved(call, 0), MPT__FP8_X);
        mpt_op_set_input_grad(call, 1, mpt_matmul(mpt_transpose(slope, 0, 1), x));
    }
    mpt_autocast_end(frame->context);
    return frame->context->base.status;
}

static mpt_tensor mpt__fp8_forward(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu) {
    mpt__running *running = module->running;
    (void)residual, (void)relu;
    mpt_op op = {ctx, running->op_slot, running->op_generation};
    mpt_tensor in[4], out = mpt__null(ctx);
    in[0] = x;
    for (int i = 0; i < 2; i++)
        in[1 + i] =
            i < module->parameter_count ? mpt__parameter_handle(ctx, module, i) : mpt__null(NULL);
    in[3] = mpt__handle(ctx, running->buffer[MPT__BUFFER_FP8]);
    mpt_op_apply(op, in, 4, &out, 1);
    for (int i = 0; i < 3; i++) { /* what was saved lives on until backward has used it */
        mpt__fp8_end(ctx, running->spare[i]);
        running->spare[i] = mpt__null(ctx);
    }
    return out;
}

/* ==== State ==== */

/* The step's largest values enter the history and give the next scales, or are forgotten. */
static void mpt__fp8_settle(mpt_context *ctx, mpt__running *running, bool commit) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FP8_UPDATE);
    launch->index[0] = commit;
    launch->index[1] = running->margin;
    mpt__operand_of(launch, 0, running->buffer[MPT__BUFFER_FP8], MPT__READ_WRITE);
    mpt__submit(ctx, launch);
    ctx->storages[running->values].version++;
}

/* Ops live as long as the context: that of a module's slot is for each module that comes there. */
static mpt_op mpt__fp8_op_of(mpt_context *ctx, uint32_t slot) {
    static const mpt_op_class cls = {
        "fp8_linear", MPT_AUTOCAST_INPUT, mpt__fp8_op_forward, mpt__fp8_op_backward, 4, 1};
    void *user = (void *)(uintptr_t)slot;
    for (int64_t i = 1; i < ctx->objects[MPT__USER_OP].count; i++) {
        const mpt__op *op = (const mpt__op *)mpt__object_slot(ctx, MPT__USER_OP, (uint32_t)i);
        if (op && op->cls.forward == cls.forward && op->user == user)
            return mpt__op_handle(ctx, op);
    }
    return mpt_op_register(ctx, &cls, user);
}

/* Scales of 1, an empty history. */
static void mpt__fp8_new(mpt_context *ctx, mpt__module *module, const mpt_fp8_config *config) {
    mpt_shape shape = MPT_SHAPE(MPT__FP8_ROWS, MPT__FP8_HISTORY + config->history);
    mpt__running *running = (mpt__running *)mpt__host_new(ctx, sizeof *running);
    if (!running) return;
    module->running = running;
    *mpt__run_place(module) = mpt__fp8_forward;
    running->margin = config->margin;
    running->values = mpt__storage_new(
        ctx, shape.dim[0] * shape.dim[1] * 4, MPT_MEMORY_PARAMETER, MPT__FROM_DEVICE, true);
    if (!running->values) return;
    mpt__tensor view = mpt__view_on(running->values, MPT_F32, &shape, 0);
    running->buffer[MPT__BUFFER_FP8] = mpt__tensor_outside(ctx, &view, MPT__KEPT | MPT__GRADIENT);
    if (!running->buffer[MPT__BUFFER_FP8]) return;
    running->settle = mpt__fp8_settle;
    for (int row = 0; row < MPT__FP8_ROWS; row++) {
        mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FILL);
        launch->imm[0] = 1;
        mpt__operand_on(launch, 0, running->values, MPT_F32,
            row * shape.dim[1] + MPT__FP8_SCALE_NOW, 1, MPT__WRITE);
        mpt__submit(ctx, launch);
    }
    mpt_op op = mpt__fp8_op_of(ctx, module->id.slot);
    running->op_slot = op.slot, running->op_generation = op.generation;
}

mpt_status mpt_fp8(mpt_module handle, const mpt_fp8_config *config) {
    mpt_context *ctx = handle.context;
    mpt_fp8_config c = config ? *config : mpt_fp8_config_default();
    mpt__module *module = mpt__module_enter(handle, "mpt_fp8");
    if (!module) return mpt__status_of(ctx);
    if (c.history < 1 || c.history > MPT__FP8_LONGEST || c.margin < 0 || c.margin > 32)
        return mpt__error(ctx, ARGUMENT, "history = %d, margin = %d; expected 1..%d and 0..32",
            c.history, c.margin, (int)MPT__FP8_LONGEST);
    if (module->frozen)
        return mpt__error(ctx, STATE,
            "the tree is in use; call mpt_fp8 before its first forward, optimizer, "
            "save or value read");
    int64_t layers = 0;
    mpt__walk walk;
    for (module = mpt__walk_begin(&walk, ctx, module); module && mpt__ok(ctx);
         module = mpt__walk_next(&walk)) {
        if (module->layer != MPT__LAYER_linear) continue;
        layers++;
        if (!module->running) mpt__fp8_new(ctx, module, &c);
    }
    if (layers == 0 && mpt__ok(ctx))
        mpt__error(ctx, ARGUMENT,
            "the module has no linear layer; those of mpt_nn_linear are what fp8 is for");
    return ctx->base.status;
}

#endif

#endif
