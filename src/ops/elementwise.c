/* ----
 * ops/elementwise.c: ops on each element: of one tensor, of two, a choice between two, dropout.
 * ---- */
#ifndef MPT__OPS_ELEMENTWISE_INCLUDED
#define MPT__OPS_ELEMENTWISE_INCLUDED

#include "ops/operand.c"

/* ==== Elementwise, one input ==== */

static mpt_status mpt__unary_shape(mpt__frame *frame) {
    frame->layout = MPT__LAYOUT_KEPT;
    mpt__shape_copy(&frame->out_shape[0], &frame->in[0]->shape);
    return MPT_OK;
}

static mpt_status mpt__predicate_shape(mpt__frame *frame) {
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__unary_shape(frame);
}

/* out = fn(in), `in` broadcast to the shape of `out`. */
static mpt_status mpt__launch_unary(mpt__frame *frame, unsigned function, const mpt__tensor *in,
    const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_UNARY);
    launch->function = (uint8_t)function;
    launch->slot[0] = (uint16_t)frame->attributes->index[0];
    for (int i = 0; i < 2; i++) launch->imm[i] = frame->attributes->imm[i];
    mpt__operand_spread(launch, 0, in, out);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__unary_forward(mpt__frame *frame) {
    return mpt__launch_unary(frame, frame->row->function, frame->in[0], frame->out[0], MPT__WRITE);
}

/* Notes on the device whether the loss was finite: then a later overflow lies in backward. */
static mpt_status mpt__scale_loss_forward(mpt__frame *frame) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_SCALE_LOSS);
    launch->function = MPT__FN_MUL_SLOT;
    for (int i = 0; i < 3; i++) launch->slot[i] = (uint16_t)frame->attributes->index[i];
    mpt__reads(launch, 0, frame->in[0]);
    mpt__writes(launch, 1, frame->out[0]);
    return mpt__submit(frame->context, launch);
}

/* What follows such a call in backward need not hold its result: that comes again from the input,
   which is held anyhow. */
#ifdef MPTRAIN_NO_FRUGAL
#define mpt__come_again(frame) ((void)0)
#else
static void mpt__come_again(const mpt__frame *frame) {
    const int64_t numel = mpt__tensor_numel(frame->out[0]);
    if (MPT__RECOMPUTES && frame->records && numel >= MPT__LET_GO_LEAST) mpt__note_repeats(frame);
}
#endif

static mpt_status mpt__unary_keep_in_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    mpt_status status = mpt__unary_forward(frame);
    mpt__come_again(frame);
    return status;
}

static mpt_status mpt__unary_keep_out_forward(mpt__frame *frame) {
    mpt__save(frame, frame->out[0]);
    return mpt__unary_forward(frame);
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__relu_forward mpt__unary_keep_out_forward
#else
static mpt_status mpt__relu_forward(mpt__frame *frame) {
    mpt__save_gate(frame);
    return mpt__unary_forward(frame);
}
#endif

/* out = fn(a, b), both broadcast to the shape of `out`. */
static mpt_status mpt__launch_binary(mpt_context *ctx, unsigned function, const mpt__tensor *a,
    const mpt__tensor *b, const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_BINARY);
    launch->function = (uint8_t)function;
    mpt__operand_spread(launch, 0, a, out);
    mpt__operand_spread(launch, 1, b, out);
    mpt__operand_of(launch, 2, out, access);
    return mpt__submit(ctx, launch);
}

/* dx = f(saved, dy); only log divides dy by what it saved, so its operands change places. */
static mpt_status mpt__unary_backward(mpt__frame *frame) {
    if (mpt__gated(frame, 0)) return mpt__gradient_pass(frame, 0, frame->dy[0]);
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    unsigned function = frame->row->backward_function;
    bool swapped = function == MPT__FN_DIV;
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_BINARY);
    launch->function = (uint8_t)function;
    for (int i = 0; i < 2; i++) launch->imm[i] = frame->attributes->imm[i];
    mpt__operand_spread(launch, swapped ? 1 : 0, frame->saved[0], frame->dx);
    mpt__operand_spread(launch, swapped ? 0 : 1, frame->dy[0], frame->dx);
    mpt__operand_of(launch, 2, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}

/* dx = f(dy) for functions that are linear. */
static mpt_status mpt__linear_unary_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_unary(
        frame, frame->row->backward_function, frame->dy[0], frame->dx, frame->access);
}

/* Where backward begins here, the gradient is the scale itself, which forward left as an fp32. */
static mpt_status mpt__scale_loss_backward(mpt__frame *frame) {
    mpt__tensor scale;
    const mpt__tensor *dy = frame->dy[0];
    frame->context->loss_scaler = (uint32_t)frame->attributes->index[3];
    if (dy->storage != frame->context->scalar_storage || dy->offset != 2 * MPT__SLOT_ONE_F32)
        return mpt__linear_unary_backward(frame);
    scale.storage = dy->storage;
    scale.dtype = dy->dtype;
    scale.offset = 2 * frame->attributes->index[2];
    mpt__shape_copy(&scale.shape, &dy->shape);
    mpt__copy_dims(scale.stride, dy->stride, dy->shape.rank);
    return mpt__gradient_pass(frame, 0, &scale);
}

static mpt_status mpt__pass_backward(mpt__frame *frame) {
    return mpt__gradient_pass(frame, 0, frame->dy[0]);
}

#define MPT__DEFINE_UNARY(id) \
    mpt_tensor mpt_##id(mpt_tensor x) { \
        mpt__attributes attributes = mpt__no_attributes; \
        return mpt__apply1("mpt_" #id, MPT__OP_##id, &x, 1, &attributes); \
    }
MPT__DEFINE_UNARY(neg)
MPT__DEFINE_UNARY(exp)
MPT__DEFINE_UNARY(log)
MPT__DEFINE_UNARY(sqrt)
MPT__DEFINE_UNARY(relu)
MPT__DEFINE_UNARY(gelu)
MPT__DEFINE_UNARY(gelu_tanh)
MPT__DEFINE_UNARY(tanh)
MPT__DEFINE_UNARY(sigmoid)
MPT__DEFINE_UNARY(isnan)
MPT__DEFINE_UNARY(isinf)
MPT__DEFINE_UNARY(logical_not)
MPT__DEFINE_UNARY(log1p)
MPT__DEFINE_UNARY(rsqrt)
MPT__DEFINE_UNARY(abs)
MPT__DEFINE_UNARY(sign)
MPT__DEFINE_UNARY(sin)
MPT__DEFINE_UNARY(cos)
MPT__DEFINE_UNARY(silu)
#undef MPT__DEFINE_UNARY

mpt_tensor mpt_add_scalar(mpt_tensor x, double value) {
    return mpt__apply_number("mpt_add_scalar", MPT__OP_add_scalar, x, value);
}
mpt_tensor mpt_mul_scalar(mpt_tensor x, double value) {
    return mpt__apply_number("mpt_mul_scalar", MPT__OP_mul_scalar, x, value);
}
mpt_tensor mpt_pow_scalar(mpt_tensor x, double exponent) {
    return mpt__apply_number("mpt_pow_scalar", MPT__OP_pow_scalar, x, exponent);
}
mpt_tensor mpt_leaky_relu(mpt_tensor x, double slope) {
    return mpt__apply_number("mpt_leaky_relu", MPT__OP_leaky_relu, x, slope);
}
mpt_tensor mpt_elu(mpt_tensor x, double alpha) {
    return mpt__apply_number("mpt_elu", MPT__OP_elu, x, alpha);
}

/* Why a pair of numbers is none that `op` takes; NULL: it is fine. */
static const char *mpt__bad_numbers(int op, double a, double b) {
    if (op == MPT__OP_softplus)
        return a > 0.0 && b == b ? NULL : "beta %g, threshold %g: expected beta > 0";
    if (op != MPT__OP_clamp && op != MPT__OP_hardtanh) return NULL;
    return a <= b ? NULL : "min %g, max %g: expected min <= max";
}

static mpt_tensor mpt__apply_numbers(const char *name, int op, mpt_tensor x, double a, double b) {
    const char *why = mpt__bad_numbers(op, a, b);
    if (why && x.context) return mpt__misused(x.context, name, ARGUMENT, why, a, b);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = a;
    attributes.imm[1] = b;
    return mpt__apply1(name, op, &x, 1, &attributes);
}

mpt_tensor mpt_clamp(mpt_tensor x, double min, double max) {
    MPT__PLAIN_FLOATS;
    return mpt__apply_numbers("mpt_clamp", MPT__OP_clamp, x, min, max);
}
mpt_tensor mpt_hardtanh(mpt_tensor x, double min, double max) {
    MPT__PLAIN_FLOATS;
    return mpt__apply_numbers("mpt_hardtanh", MPT__OP_hardtanh, x, min, max);
}
mpt_tensor mpt_softplus(mpt_tensor x, double beta, double threshold) {
    return mpt__apply_numbers("mpt_softplus", MPT__OP_softplus, x, beta, threshold);
}

/* ==== Elementwise, two inputs ==== */

/* Broadcasts the first `na` dimensions of a against the first `nb` of b; -1, or the dimension of
   the result in which they do not fit. */
static int mpt__broadcast_dims(
    const mpt__tensor *a, int na, const mpt__tensor *b, int nb, mpt_shape *out) {
    out->rank = na > nb ? na : nb;
    for (int i = 0; i < out->rank; i++) {
        int ia = i - (out->rank - na), ib = i - (out->rank - nb);
        int64_t sa = ia < 0 ? 1 : a->shape.dim[ia], sb = ib < 0 ? 1 : b->shape.dim[ib];
        if (sa != sb && sa != 1 && sb != 1) return i;
        out->dim[i] = sa == 1 ? sb : sa;
    }
    return -1;
}

static mpt_status mpt__binary_shape(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    frame->layout = MPT__LAYOUT_KEPT;
    int misfit = mpt__broadcast_dims(a, a->shape.rank, b, b->shape.rank, &frame->out_shape[0]);
    if (misfit < 0) return MPT_OK;
    int back = frame->out_shape[0].rank - misfit;
    return mpt__error(frame->context, SHAPE,
        "shapes %S and %S do not broadcast: dimension %d is %lld against %lld", &a->shape,
        &b->shape, misfit, a->shape.dim[a->shape.rank - back], b->shape.dim[b->shape.rank - back]);
}

static mpt_status mpt__equal_shape(mpt__frame *frame) {
    if (mpt__dtypes_meet(frame, 0, 1) != MPT_OK) return mpt__outcome(frame);
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__binary_shape(frame);
}

static mpt_status mpt__logical_shape(mpt__frame *frame) {
    frame->out_dtype[0] = MPT_BOOL;
    return mpt__binary_shape(frame);
}

static mpt_status mpt__binary_forward(mpt__frame *frame) {
    if (frame->op == MPT__OP_mul) { /* each for the gradient of the other */
        mpt__save(frame, mpt__wants(frame, 1) ? frame->in[0] : NULL);
        mpt__save(frame, mpt__wants(frame, 0) ? frame->in[1] : NULL);
    } else if (frame->op == MPT__OP_div) {
        mpt__save(frame, NULL);
        mpt__save(frame, frame->in[1]);
        mpt__save(frame, mpt__wants(frame, 1) ? frame->out[0] : NULL);
    }
    return mpt__launch_binary(frame->context, frame->row->function, frame->in[0], frame->in[1],
        frame->out[0], MPT__WRITE);
}

/* Sums `full` over the dimensions in which `part` was broadcast. */
static mpt_status mpt__launch_reduce(mpt_context *ctx, unsigned function, const mpt__tensor *full,
    const mpt__tensor *part, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_REDUCE);
    launch->function = (uint8_t)function;
    mpt__reads(launch, 0, full);
    mpt__operand_padded(launch, 1, part, full->shape.rank, access);
    return mpt__submit(ctx, launch);
}

/* Gradient i is fn(a, b) in the output's shape, summed to the input's. b NULL: a alone, through a
   function of one input. */
static mpt_status mpt__broadcast_gradient(
    mpt__frame *frame, int i, unsigned function, const mpt__tensor *a, const mpt__tensor *b) {
    mpt_context *ctx = frame->context;
    if (!mpt__wants(frame, i)) return MPT_OK;
    const mpt__tensor *dy = frame->dy[0];
    bool whole = mpt__same_shape(frame->in[i], dy);
    if (function == MPT__FN_NONE && whole) return mpt__gradient_pass(frame, i, a);
    mpt__access access;
    mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    if (!target) return ctx->base.status;
    if (function == MPT__FN_NONE) return mpt__launch_reduce(ctx, MPT__FN_SUM, a, target, access);
    const mpt__tensor *product = target;
    if (!whole) {
        product = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
        if (!product) return ctx->base.status;
    }
    mpt__access first = whole ? access : MPT__WRITE;
    mpt_status status = b ? mpt__launch_binary(ctx, function, a, b, product, first)
                          : mpt__launch_unary(frame, function, a, product, first);
    if (status != MPT_OK || whole) return status;
    return mpt__launch_reduce(ctx, MPT__FN_SUM, product, target, access);
}

/* Of a sum, or of a difference, whose second gradient is negative. */
static mpt_status mpt__add_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_NONE, dy, NULL);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, frame->row->backward_function, dy, NULL);
}

static mpt_status mpt__mul_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_MUL, dy, frame->saved[1]);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, MPT__FN_MUL, dy, frame->saved[0]);
}

/* y = a / b: da = dy / b, db = -(dy / b) y */
static mpt_status mpt__div_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0], *b = frame->saved[1];
    mpt_status status = mpt__broadcast_gradient(frame, 0, MPT__FN_DIV, dy, b);
    if (status != MPT_OK || !mpt__wants(frame, 1)) return status;
    mpt__tensor *quotient = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
    if (!quotient) return frame->context->base.status;
    status = mpt__launch_binary(frame->context, MPT__FN_DIV, dy, b, quotient, MPT__WRITE);
    if (status == MPT_OK)
        status = mpt__launch_unary(frame, MPT__FN_NEG, quotient, quotient, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 1, MPT__FN_MUL, quotient, frame->saved[2]);
}

/* Gradient i is dy times slope(a, b). */
static mpt_status mpt__sloped_gradient(
    mpt__frame *frame, int i, unsigned slope, const mpt__tensor *a, const mpt__tensor *b) {
    if (!mpt__wants(frame, i)) return MPT_OK;
    const mpt__tensor *dy = frame->dy[0];
    mpt__tensor *factor = mpt__temporary(frame, mpt__loss_dtype(frame), &dy->shape);
    if (!factor) return mpt__outcome(frame);
    mpt_status status = mpt__launch_binary(frame->context, slope, a, b, factor, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, i, MPT__FN_KEEP, factor, dy);
}

static mpt_status mpt__binary_keep_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    return mpt__binary_forward(frame);
}

/* Where both are equal, each gets half. */
static mpt_status mpt__extremum_backward(mpt__frame *frame) {
    const mpt__tensor *a = frame->saved[0], *b = frame->saved[1];
    bool least = frame->row->function == MPT__FN_MINIMUM;
    mpt_status status = mpt__sloped_gradient(frame, 0, MPT__FN_SHARE, least ? b : a, least ? a : b);
    if (status != MPT_OK) return status;
    return mpt__sloped_gradient(frame, 1, MPT__FN_SHARE, least ? a : b, least ? b : a);
}

static mpt_status mpt__pow_backward(mpt__frame *frame) {
    const mpt__tensor *a = frame->saved[0], *b = frame->saved[1];
    mpt_status status = mpt__sloped_gradient(frame, 0, MPT__FN_POW_SLOPE, a, b);
    if (status != MPT_OK) return status;
    return mpt__sloped_gradient(frame, 1, MPT__FN_POW_EXPONENT, a, b);
}

/* Most powers are squares, which are products. */
static mpt_status mpt__pow_scalar_forward(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    if (frame->attributes->imm[0] != 2.0) return mpt__unary_keep_in_forward(frame);
    mpt__save(frame, frame->in[0]);
    return mpt__launch_binary(frame->context, MPT__FN_MUL, x, x, frame->out[0], MPT__WRITE);
}

#define MPT__DEFINE_BINARY(id) \
    mpt_tensor mpt_##id(mpt_tensor a, mpt_tensor b) { \
        return mpt__apply2("mpt_" #id, MPT__OP_##id, a, b); \
    }
MPT__DEFINE_BINARY(add)
MPT__DEFINE_BINARY(sub)
MPT__DEFINE_BINARY(mul)
MPT__DEFINE_BINARY(div)
MPT__DEFINE_BINARY(equal)
MPT__DEFINE_BINARY(lt)
MPT__DEFINE_BINARY(le)
MPT__DEFINE_BINARY(gt)
MPT__DEFINE_BINARY(ge)
MPT__DEFINE_BINARY(ne)
MPT__DEFINE_BINARY(logical_and)
MPT__DEFINE_BINARY(logical_or)
MPT__DEFINE_BINARY(pow)
MPT__DEFINE_BINARY(minimum)
MPT__DEFINE_BINARY(maximum)
#undef MPT__DEFINE_BINARY

/* Compares with a number in the tensor's dtype, as PyTorch does; integers and a number that is none
   of theirs meet in fp32. */
static mpt_tensor mpt__compare_number(const char *name, int op, mpt_tensor x, double value) {
    MPT__PLAIN_FLOATS;
    const mpt__tensor *tensor = mpt__enter_at(x, name, "argument 1");
    if (!tensor) return mpt__null(x.context);
    mpt_dtype dtype = (mpt_dtype)tensor->dtype;
    double limit = dtype == MPT_I64 ? 9007199254740992.0 : dtype == MPT_I32 ? 2147483647.0 : 0.0;
    bool whole = value >= -limit && value <= limit && value == (double)(int64_t)value;
    bool casts = !mpt__dtype_info[dtype].is_float && !whole;
    mpt_tensor a = casts ? mpt_cast(x, MPT_F32) : x;
    mpt_tensor b = mpt_full(x.context, casts ? MPT_F32 : dtype, MPT_SCALAR, value);
    mpt_tensor out = mpt__apply2(name, op, a, b);
    mpt_release(b);
    if (casts) mpt_release(a);
    return out;
}

#define MPT__DEFINE_COMPARISON(id, op) \
    mpt_tensor mpt_##id##_scalar(mpt_tensor x, double value) { \
        return mpt__compare_number("mpt_" #id "_scalar", MPT__OP_##op, x, value); \
    }
MPT__DEFINE_COMPARISON(lt, lt)
MPT__DEFINE_COMPARISON(le, le)
MPT__DEFINE_COMPARISON(gt, gt)
MPT__DEFINE_COMPARISON(ge, ge)
MPT__DEFINE_COMPARISON(eq, equal)
MPT__DEFINE_COMPARISON(ne, ne)
#undef MPT__DEFINE_COMPARISON

MPT__BEGIN_COLD
/* ==== Choice ==== */

/* A condition, and two tensors that share a dtype or meet in fp32. */
static mpt_status mpt__where_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *condition = frame->in[0], *a = frame->in[1], *b = frame->in[2];
    if (condition->dtype != MPT_BOOL)
        return mpt__error(ctx, DTYPE, "argument 1 is %D: expected bool, as comparisons give it",
            condition->dtype);
    for (int i = 1; i < 3; i++)
        if (mpt__input_computes(frame, i) != MPT_OK) return ctx->base.status;
    frame->layout = MPT__LAYOUT_KEPT;
    frame->out_dtype[0] = a->dtype == b->dtype ? (mpt_dtype)a->dtype : MPT_F32;
    if (mpt__dtypes_meet(frame, 1, 2) != MPT_OK) return ctx->base.status;
    mpt__tensor choice = *a;
    int misfit = mpt__broadcast_dims(a, a->shape.rank, b, b->shape.rank, &choice.shape);
    if (misfit < 0)
        misfit = mpt__broadcast_dims(
            condition, condition->shape.rank, &choice, choice.shape.rank, &frame->out_shape[0]);
    if (misfit < 0) return MPT_OK;
    return mpt__error(ctx, SHAPE, "shapes %S, %S and %S do not broadcast", &condition->shape,
        &a->shape, &b->shape);
}

/* Each launch writes -0 where the other has the element: that adds to it without a trace. */
static mpt_status mpt__where_forward(mpt__frame *frame) {
    mpt__save(frame, frame->in[0]);
    mpt_status status = mpt__launch_binary(
        frame->context, MPT__FN_KEEP, frame->in[0], frame->in[1], frame->out[0], MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__launch_binary(
        frame->context, MPT__FN_DROP, frame->in[0], frame->in[2], frame->out[0], MPT__ACCUMULATE);
}

static mpt_status mpt__where_backward(mpt__frame *frame) {
    const mpt__tensor *dy = frame->dy[0], *condition = frame->saved[0];
    mpt_status status = mpt__broadcast_gradient(frame, 1, MPT__FN_KEEP, condition, dy);
    if (status != MPT_OK) return status;
    return mpt__broadcast_gradient(frame, 2, MPT__FN_DROP, condition, dy);
}

mpt_tensor mpt_where(mpt_tensor condition, mpt_tensor a, mpt_tensor b) {
    mpt_tensor in[] = {condition, a, b};
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = 3;
    return mpt__apply1("mpt_where", MPT__OP_where, in, 3, &attributes);
}
MPT__END_REGION

/* ==== Dropout ==== */

/* Sets the number of forward's step, which is a part of the key that masks are drawn from. */
static mpt_status mpt__dropout_step(mpt_context *ctx, int64_t step) {
    if (ctx->device_step == step) return MPT_OK;
    ctx->unrecorded = mpt__is_capturing(ctx);
    mpt__scalar_set_i(ctx, MPT__SLOT_STEP, step);
    ctx->unrecorded = false;
    if (mpt__ok(ctx)) ctx->device_step = step;
    return ctx->base.status;
}

static void mpt__dropout_key(mpt__launch *launch, mpt_context *ctx, int64_t stream, int64_t call) {
    launch->rng.seed = ctx->config.seed;
    launch->rng.stream = (uint64_t)stream;
    launch->rng.call = (uint64_t)call;
    launch->slot[0] = MPT__SLOT_STEP;
}

static mpt_status mpt__launch_dropout(mpt__frame *frame, int64_t step, const mpt__tensor *in,
    const mpt__tensor *out, mpt__access access) {
    mpt_context *ctx = frame->context;
    if (mpt__dropout_step(ctx, step) != MPT_OK) return ctx->base.status;
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_DROPOUT);
    launch->imm[0] = frame->attributes->imm[0];
    mpt__dropout_key(launch, ctx, frame->attributes->index[0], frame->attributes->index[1]);
    mpt__reads(launch, 0, in);
    mpt__operand_of(launch, 1, out, access);
    return mpt__submit(ctx, launch);
}

static mpt_status mpt__dropout_forward(mpt__frame *frame) {
    return mpt__launch_dropout(
        frame, frame->context->now.step, frame->in[0], frame->out[0], MPT__WRITE);
}

/* Draws the mask again: nothing was kept. */
static mpt_status mpt__dropout_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_dropout(frame, frame->record->step, frame->dy[0], frame->dx, frame->access);
}

/* The draw of one call: `stream` names who draws, `call` counts its calls in a step. */
static mpt_tensor mpt__dropout_call(mpt_tensor x, double p, uint64_t stream, uint64_t call) {
    if (x.context && !(p >= 0.0 && p <= 1.0))
        return mpt__misused(x.context, "mpt_dropout", ARGUMENT, "p = %g is not in [0, 1]", p);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.imm[0] = p;
    attributes.index[0] = (int64_t)stream;
    attributes.index[1] = (int64_t)call;
    bool identity =
        p == 0.0 || (x.context && (!x.context->module_training || x.context->inference_depth));
    if (identity && x.context && mpt_valid(x)) return mpt_reshape(x, mpt_get_shape(x));
    return mpt__apply1("mpt_dropout", MPT__OP_dropout, &x, 1, &attributes);
}

mpt_tensor mpt_dropout(mpt_tensor x, double p) {
    uint64_t stream = x.context ? mpt__hash_u64(x.context->path_hash, 1) : 0;
    return mpt__dropout_call(x, p, stream, x.context ? x.context->now.module_calls++ : 0);
}

#endif
