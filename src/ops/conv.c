/* ----
 * ops/conv.c: convolutions as ops, between an image x and an image y: forward computes y, or,
 * transposed, x. Kernels work on dense [N, H, W, C]; what lies otherwise is copied. One dimension
 * is two, of which the first has size 1.
 * ---- */
#ifndef MPT__OPS_CONV_INCLUDED
#define MPT__OPS_CONV_INCLUDED

#include "ops/loss.c"

/* attributes->index of a convolution: pairs (MPT__TWO) but for the first and the last. */
enum {
    MPT__CONV_GROUPS,
    MPT__CONV_STRIDE,
    MPT__CONV_PADDING,
    MPT__CONV_DILATION,
    MPT__CONV_OUTPUT_PADDING,
    MPT__CONV_SAME
};

#ifdef MPTRAIN_NO_CONV

static mpt_status mpt__conv_shape(mpt__frame *frame) {
    return mpt__error(frame->context, UNSUPPORTED, "built without convolutions (MPTRAIN_NO_CONV)");
}
#define mpt__conv_forward NULL
#define mpt__conv_backward NULL

#else

/* ==== Shapes ==== */

/* [N, C, L] as [N, C, 1, L]. */
static mpt__tensor mpt__image_view(const mpt__tensor *tensor) {
    mpt__tensor view = *tensor;
    if (view.shape.rank == 4) return view;
    view.shape.rank = 4;
    view.shape.dim[3] = tensor->shape.dim[2], view.stride[3] = tensor->stride[2];
    view.shape.dim[2] = 1, view.stride[2] = view.shape.dim[3] * view.stride[3];
    return view;
}

/* Size d (0: lines) of the output; sets the padding where it is to be `same`. */
static int64_t mpt__conv_size(mpt__frame *frame, int d, int64_t size, int64_t kernel) {
    int64_t *index = frame->attributes->index;
    int64_t stride = MPT__TWO_AT(index[MPT__CONV_STRIDE], d);
    int64_t reach = MPT__TWO_AT(index[MPT__CONV_DILATION], d) * (kernel - 1);
    int64_t padding = 2 * MPT__TWO_AT(index[MPT__CONV_PADDING], d);
    if (frame->op == MPT__OP_conv_transpose2d)
        return (size - 1) * stride - padding + reach + 1 +
            MPT__TWO_AT(index[MPT__CONV_OUTPUT_PADDING], d);
    if (index[MPT__CONV_SAME]) {
        index[MPT__CONV_PADDING] |= d ? reach / 2 : MPT__TWO(reach / 2, 0);
        return reach / 2 <= INT32_MAX ? size : 0;
    }
    return size + padding > reach ? (size + padding - reach - 1) / stride + 1 : 0;
}

static mpt_status mpt__conv_shape(mpt__frame *frame) {
    const mpt__tensor *bias = frame->in[2];
    int rank = frame->op == MPT__OP_conv1d ? 3 : 4;
    const mpt_shape *x = &frame->in[0]->shape, *w = &frame->in[1]->shape;
    mpt_shape *out = &frame->out_shape[0];
    bool transposed = frame->op == MPT__OP_conv_transpose2d;
    if (x->rank != rank || w->rank != rank)
        return mpt__error(frame->context, SHAPE,
            "input %S and weight %S: expected %d dimensions each", x, w, rank);
    int64_t groups = frame->attributes->index[MPT__CONV_GROUPS];
    int64_t in = transposed ? w->dim[0] : w->dim[1], inputs = x->dim[1] / groups;
    if (x->dim[1] % groups != 0 || w->dim[0] % groups != 0 || x->dim[1] < 1 || w->dim[0] < 1 ||
        w->dim[1] < 1 || in != (transposed ? x->dim[1] : inputs))
        return mpt__error(frame->context, SHAPE,
            "input %S does not fit weight %S in %lld groups: expected %s", x, w, groups,
            transposed ? "[N, C, ..] and [C, O / groups, ..]"
                       : "[N, C, ..] and [O, C / groups, ..]");
    *out = *x;
    out->dim[1] = transposed ? w->dim[1] * groups : w->dim[0];
    if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != out->dim[1]))
        return mpt__error(
            frame->context, SHAPE, "bias %S: expected [%lld]", &bias->shape, out->dim[1]);
    for (int i = 2; i < rank; i++) {
        bool good =
            x->dim[i] > 0 && x->dim[i] <= INT32_MAX && w->dim[i] > 0 && w->dim[i] <= INT32_MAX;
        out->dim[i] = good ? mpt__conv_size(frame, i - rank + 2, x->dim[i], w->dim[i]) : 0;
        if (out->dim[i] < 1)
            return mpt__error(frame->context, SHAPE,
                "no output: dimension %d of input %S, padded, is too small for "
                "weight %S, or larger than 2^31 - 1",
                i, x, w);
    }
    frame->layout = MPT__LAYOUT_KEPT;
    return MPT_OK;
}

/* ==== Launches ==== */

/* Whether an image lies as a dense [N, H, W, C]. */
static bool mpt__image_dense(const mpt__tensor *image) {
    static const uint8_t order[] = {1, 3, 2, 0};
    int64_t step = 1;
    for (int i = 0; i < 4; i++) {
        int d = order[i];
        if (image->shape.dim[d] != 1 && image->stride[d] != step) return false;
        step *= image->shape.dim[d];
    }
    return true;
}

/* A dense image like that, until the call ends; false with an error recorded. */
static bool mpt__image_new(mpt__frame *frame, mpt__tensor *view, mpt_dtype dtype) {
    mpt__tensor *dense = mpt__temporary(frame, dtype, &view->shape);
    if (!dense) return false;
    mpt__channels_last_strides(dense);
    *view = *dense;
    return true;
}

/* A tensor as a dense image, copied where it is not. */
static bool mpt__image_as(mpt__frame *frame, mpt__tensor from, mpt_dtype dtype, mpt__tensor *view) {
    *view = from = mpt__image_view(&from);
    return mpt__image_dense(view) ||
        (mpt__image_new(frame, view, dtype) &&
            mpt__launch_copy(frame->context, &from, view, MPT__WRITE) == MPT_OK);
}

/* A tensor as a dense image of the dtype that products round to. */
static bool mpt__image_in(mpt__frame *frame, const mpt__tensor *tensor, mpt__tensor *view) {
    return mpt__image_as(frame, *tensor,
        frame->compute == MPT_F32 ? (mpt_dtype)tensor->dtype : frame->compute, view);
}

/* Weights in their form; where a CPU would have to copy that, as they are: rounding on the way
   costs nothing. */
static bool mpt__conv_weight(mpt__frame *frame, const mpt__tensor *weight, mpt__tensor *view) {
    mpt__source source = {weight->storage, weight->dtype};
    mpt__tensor from = mpt__image_view(weight);
    bool copied = !mpt__image_dense(&from) && frame->context->backend.synchronous;
    if (!copied && !mpt__gemm_source(frame->context, weight, frame->compute, &source)) return false;
    from.storage = source.storage;
    from.dtype = source.dtype;
    return mpt__image_in(frame, &from, view);
}

static void mpt__operand_image(
    mpt__launch *launch, int position, const mpt__tensor *image, mpt__access access) {
    static const uint8_t order[] = {0, 2, 3, 1};
    mpt__operand *operand = mpt__operand_ranked(launch, position, image, 4, access);
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        mpt__operand_dim(operand, i, image->shape.dim[order[i]], step);
        step *= operand->shape[i];
    }
}

/* What follows the sums of products; all of it may be absent. */
typedef struct {
    const mpt__tensor *bias, *residual; /* the latter a dense image */
    bool exact, relu;                   /* exact: the bias is not rounded */
} mpt__conv_end;

/* ==== Images channel by channel ==== */

/* One of the three launches, with all but its operands. */
static mpt__launch *mpt__conv_begin(
    const mpt__frame *frame, mpt__kernel kernel, const mpt__conv_end *end) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->compute_dtype = (uint8_t)frame->compute;
    for (int i = 0; i < 4; i++) launch->index[i] = frame->attributes->index[i];
    if (end && end->relu) launch->activation = MPT_ACTIVATION_RELU;
    if (end && end->exact) launch->imm[0] = 1;
    return launch;
}

/* What is faster so; measured on Zen 5. */
#define MPT__PLANES_CHANNELS 64   /* on a side, at most */
#define MPT__PLANES_PRODUCTS 256  /* channels of x times those of y, at most */
#define MPT__PLANES_OF_HALVES 144 /* the same where halves are multiplied */
#define MPT__PLANES_PIXELS 8      /* of a line, at least; of depthwise ones twice that */

#ifdef MPTRAIN_NO_SIMD
#define mpt__conv_planes(frame, x, y) false /* no backend has them */
#else
/* Whether a backend's routines for few channels take images x and y as they lie. */
static bool mpt__conv_planes(const mpt__frame *frame, const mpt__tensor *x, const mpt__tensor *y) {
    const int64_t *index = frame->attributes->index;
    const mpt_shape *w = &frame->in[1]->shape;
    const int64_t in = x->shape.dim[1], out = y->shape.dim[1], groups = index[MPT__CONV_GROUPS];
    const unsigned good = 1u << MPT_F32 | 1u << MPT_F16 | 1u << MPT_BF16;
    const unsigned dtypes = 1u << x->dtype | 1u << y->dtype | 1u << frame->in[1]->dtype;
    if (!frame->context->backend.planes || frame->op == MPT__OP_conv_transpose2d) return false;
    if ((dtypes & ~good) != 0 || index[MPT__CONV_STRIDE] != MPT__TWO(1, 1) ||
        index[MPT__CONV_DILATION] != MPT__TWO(1, 1))
        return false;
    for (int d = 0; d < 2; d++) {
        const int64_t kernel = d == 0 && w->rank == 3 ? 1 : w->dim[w->rank - 2 + d];
        if (MPT__TWO_AT(index[MPT__CONV_PADDING], d) >= kernel) return false;
    }
    const int64_t most = frame->compute == MPT_F32 ? MPT__PLANES_PRODUCTS : MPT__PLANES_OF_HALVES;
    const int64_t pixels = y->shape.dim[y->shape.rank - 1];
    const bool few = groups == 1 && in <= MPT__PLANES_CHANNELS && out <= MPT__PLANES_CHANNELS &&
        in * out <= most && pixels >= MPT__PLANES_PIXELS;
    const bool depthwise = in == groups && out == groups && pixels >= 2 * MPT__PLANES_PIXELS;
    return (few || depthwise) && mpt__tensor_contiguous(x) && mpt__tensor_contiguous(y);
}
#endif

static void mpt__operand_planes(
    mpt__launch *launch, int position, const mpt__tensor *tensor, mpt__access access) {
    static const uint8_t order[] = {0, 3, 1, 2}, place[] = {0, 2, 3, 1};
    const mpt__tensor image = mpt__image_view(tensor);
    mpt__operand *operand = mpt__operand_ranked(launch, position, &image, 4, access);
    int64_t step = 1;
    for (int i = 3; i >= 0; i--) {
        mpt__operand_dim(operand, order[i], image.shape.dim[place[order[i]]], step);
        step *= image.shape.dim[i];
    }
}

/* One of the three launches, all tensors contiguous but the written one. end: of a forward one;
   gate, sums: operands 5 and 3 of a backward one, or NULL. */
static mpt_status mpt__launch_planes(mpt__frame *frame, mpt__kernel kernel,
    const mpt__tensor *const tensor[3], const mpt__conv_end *end, const mpt__tensor *gate,
    const mpt__tensor *sums, mpt__access sums_access, mpt__access access) {
    static const uint8_t written[] = {2, 0, 1};
    const int o = written[kernel - MPT__K_CONV];
    const mpt__tensor *to = tensor[o];
    const bool direct = mpt__tensor_contiguous(to);
    if (!direct && !(to = mpt__temporary(frame, (mpt_dtype)to->dtype, &to->shape)))
        return mpt__outcome(frame);
    mpt__launch *launch = mpt__conv_begin(frame, kernel, end);
    launch->imm[1] = 1;
    for (int i = 0; i < 3; i++)
        mpt__operand_planes(launch, i, i == o ? to : tensor[i],
            i != o       ? MPT__READ
                : direct ? access
                         : MPT__WRITE);
    if (sums) mpt__operand_of(launch, 3, sums, sums_access);
    if (gate) mpt__operand_planes(launch, 5, gate, MPT__READ);
    if (end && end->bias) mpt__reads(launch, 3, end->bias);
    mpt_status status = mpt__submit(frame->context, launch);
    if (status != MPT_OK || direct) return status;
    return mpt__launch_copy(frame->context, to, tensor[o], access);
}

/* A weight in its form, contiguous; NULL with an error recorded. */
static const mpt__tensor *mpt__planes_weight(
    mpt__frame *frame, const mpt__tensor *weight, mpt__tensor *view) {
    mpt__source source = {weight->storage, weight->dtype};
    if (!mpt__gemm_source(frame->context, weight, frame->compute, &source)) return NULL;
    *view = *weight;
    view->storage = source.storage;
    view->dtype = source.dtype;
    return mpt__contiguous_of(frame, view);
}

/* All gradients of a convolution. */
static mpt_status mpt__planes_backward(mpt__frame *frame) {
    const mpt__tensor *gate = NULL, *x = frame->saved[0], *tensor[3] = {NULL, NULL, frame->dy[0]};
    mpt__tensor weight;
    mpt__access access, sums_access = MPT__WRITE;
    if (frame->attributes->activation == MPT_ACTIVATION_RELU) gate = frame->saved[2];
    tensor[0] = mpt__gradient_into(frame, 0, &access);
    if (tensor[0]) {
        tensor[1] = mpt__planes_weight(frame, frame->saved[1], &weight);
        if (!tensor[1] ||
            mpt__launch_planes(frame, MPT__K_CONV_BACKWARD_INPUT, tensor, NULL, gate, NULL,
                MPT__WRITE, access) != MPT_OK)
            return mpt__outcome(frame);
    }
    tensor[0] = x, tensor[1] = mpt__gradient_into(frame, 1, &access);
    const mpt__tensor *sums = mpt__gradient_into(frame, 2, &sums_access);
    if (!tensor[1]) return mpt__outcome(frame);
    return mpt__launch_planes(
        frame, MPT__K_CONV_BACKWARD_WEIGHT, tensor, NULL, gate, sums, sums_access, access);
}

/* One of the three launches, with image[i] as operand i, and `out` written: itself, or by way of a
   dense image. */
static mpt_status mpt__launch_conv(mpt__frame *frame, mpt__kernel kernel, mpt__tensor image[3],
    const mpt__conv_end *end, const mpt__tensor *out, mpt__access access) {
    static const uint8_t written[] = {2, 0, 1};
    int o = written[kernel - MPT__K_CONV];
    mpt__tensor to = mpt__image_view(out);
    bool direct = mpt__image_dense(&to);
    image[o] = to;
    if (!direct &&
        !mpt__image_new(frame, &image[o],
            access == MPT__ACCUMULATE ? mpt__loss_dtype(frame) : (mpt_dtype)to.dtype))
        return mpt__outcome(frame);
    mpt__launch *launch = mpt__conv_begin(frame, kernel, end);
    for (int i = 0; i < 3; i++)
        mpt__operand_image(launch, i, &image[i], i != o ? MPT__READ : direct ? access : MPT__WRITE);
    if (end && end->bias) mpt__reads(launch, 3, end->bias);
    if (end && end->residual) mpt__operand_image(launch, 4, end->residual, MPT__READ);
    mpt_status status = mpt__submit(frame->context, launch);
    if (status != MPT_OK || direct) return status;
    return mpt__launch_copy(frame->context, &image[o], &to, access);
}

/* What forward computes of the weight and what follows, the residual lying anyhow. */
static mpt_status mpt__conv_compute(
    mpt__frame *frame, const mpt__tensor *weight, mpt__conv_end end) {
    bool transposed = frame->op == MPT__OP_conv_transpose2d;
    mpt__tensor image[3], residual;
    const mpt__tensor *bias = end.bias; /* which kernels read as elements in a row */
    if (bias && !(end.bias = mpt__contiguous_of(frame, bias))) return mpt__outcome(frame);
    if (mpt__conv_planes(frame, frame->in[0], frame->out[0])) {
        const mpt__tensor *of[3] = {frame->in[0], NULL, frame->out[0]};
        of[1] = mpt__planes_weight(frame, weight, &image[1]);
        if (!of[1] ||
            (end.residual &&
                mpt__launch_copy(frame->context, end.residual, of[2], MPT__WRITE) != MPT_OK))
            return mpt__outcome(frame);
        return mpt__launch_planes(frame, MPT__K_CONV, of, &end, NULL, NULL, MPT__READ,
            end.residual ? MPT__ACCUMULATE : MPT__WRITE);
    }
    if (!mpt__image_in(frame, frame->in[0], &image[transposed ? 2 : 0]) ||
        !mpt__conv_weight(frame, weight, &image[1]) ||
        (end.residual && !mpt__image_in(frame, end.residual, &residual)))
        return mpt__outcome(frame);
    if (end.residual) end.residual = &residual;
    return mpt__launch_conv(frame, transposed ? MPT__K_CONV_BACKWARD_INPUT : MPT__K_CONV, image,
        &end, frame->out[0], MPT__WRITE);
}

/* ==== Waiting for a norm ==== */

/* Takes what waits, as its call's frame; mpt__waiting_end follows. */
static void mpt__waiting_begin(mpt__frame *frame, mpt_context *ctx, mpt__waiting *taken) {
    *taken = ctx->waiting;
    ctx->waiting.out = NULL;
    frame->context = ctx;
    frame->op = taken->op;
    frame->n_in = 3;
    frame->in = taken->in;
    frame->out[0] = taken->out;
    frame->attributes = &taken->attributes;
    frame->compute = (mpt_dtype)taken->compute;
    frame->n_temporary = 0;
    mpt__launch_origin(ctx, MPT__FORWARD, taken->op);
}

static void mpt__waiting_end(mpt__frame *frame, const mpt__waiting *taken) {
    mpt__tensor *const held[] = {taken->in[0], taken->out};
    mpt__drop_temporaries(frame);
    mpt__launch_origin(frame->context, MPT__OTHER, 0);
    for (int i = 0; i < 2; i++)
        if (--held[i]->saves == 0) mpt__tensor_settle(frame->context, held[i]);
}

static MPT__COLD void mpt__run_waiting(mpt_context *ctx) {
    mpt__launch filled = ctx->launch; /* the one that comes after */
    mpt__waiting taken;
    mpt__frame frame;
    mpt__waiting_begin(&frame, ctx, &taken);
    mpt__conv_end end = {taken.in[2], NULL, false, false};
    mpt__conv_compute(&frame, taken.in[1], end);
    mpt__waiting_end(&frame, &taken);
    ctx->launch = filled;
}

static mpt_status mpt__conv_forward(mpt__frame *frame) {
    bool relu = frame->attributes->activation == MPT_ACTIVATION_RELU;
    mpt__conv_end end = {frame->in[2], NULL, false, relu};
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    if (relu) mpt__save_gate(frame);
    if (!frame->context->waiting.module) return mpt__conv_compute(frame, frame->in[1], end);
    mpt__wait_no_more(frame->context);
    mpt__waiting *waiting = &frame->context->waiting;
    for (int i = 0; i < 3; i++) waiting->in[i] = frame->in[i];
    waiting->out = frame->out[0];
    waiting->conv = waiting->module;
    waiting->in[0]->saves++, waiting->out->saves++;
    waiting->attributes = *frame->attributes;
    waiting->op = (uint16_t)frame->op;
    waiting->compute = (uint8_t)frame->compute;
    waiting->run = mpt__run_waiting;
    return MPT_OK;
}

static mpt_status mpt__conv_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    bool transposed = frame->op == MPT__OP_conv_transpose2d;
    int in = transposed ? 2 : 0;
    mpt__tensor dy, image[3];
    mpt__access access;
    const bool relu =
        frame->attributes->activation == MPT_ACTIVATION_RELU && !mpt__gated(frame, 2);
    if ((!relu || frame->saved[2]->dtype == frame->dy[0]->dtype) &&
        (mpt__wants(frame, 1) || !mpt__wants(frame, 2)) &&
        mpt__conv_planes(frame, frame->saved[0], frame->dy[0]))
        return mpt__planes_backward(frame);
    if (!mpt__image_in(frame, frame->dy[0], &dy)) return ctx->base.status;
    if (relu) { /* in place if nobody else reads */
        mpt__tensor y = mpt__image_view(frame->saved[2]), from = dy;
        if (!mpt__storage_alone(ctx, dy.storage) &&
            !mpt__image_new(frame, &dy, (mpt_dtype)dy.dtype))
            return ctx->base.status;
        mpt__launch_binary(ctx, MPT__FN_RELU_BACKWARD, &y, &from, &dy, MPT__WRITE);
    }
    const mpt__tensor *to = mpt__gradient_into(frame, 0, &access);
    if (to) {
        if (!mpt__conv_weight(frame, frame->saved[1], &image[1])) return ctx->base.status;
        image[2 - in] = dy;
        mpt__launch_conv(
            frame, transposed ? MPT__K_CONV : MPT__K_CONV_BACKWARD_INPUT, image, NULL, to, access);
    }
    to = mpt__gradient_into(frame, 1, &access);
    if (to) {
        if (!mpt__image_in(frame, frame->saved[0], &image[in])) return ctx->base.status;
        image[2 - in] = dy;
        mpt__launch_conv(frame, MPT__K_CONV_BACKWARD_WEIGHT, image, NULL, to, access);
    }
    to = mpt__gradient_into(frame, 2, &access);
    if (to) {
        mpt__tensor each = *to; /* [1, O, 1, 1] */
        each.shape = dy.shape;
        each.shape.dim[0] = each.shape.dim[2] = each.shape.dim[3] = 1;
        for (int d = 0; d < 4; d++) each.stride[d] = d == 1 ? to->stride[0] : 0;
        mpt__launch_reduce(ctx, MPT__FN_SUM, &dy, &each, access);
    }
    return ctx->base.status;
}

#endif

/* ==== The functions ==== */

MPT__BEGIN_COLD

MPT__DEFAULTS(mpt_conv_config, {
    for (int d = 0; d < 2; d++) config.stride[d] = config.dilation[d] = 1;
    config.groups = 1;
    config.bias = true;
})

/* What is wrong with a config's numbers; NULL: nothing. */
static const char *mpt__bad_conv(const mpt_conv_config *c, int op) {
    bool transposed = op == MPT__OP_conv_transpose2d;
    if (c->groups < 1 || c->groups > INT32_MAX) return "groups: expected 1 to 2^31 - 1";
    for (int d = op == MPT__OP_conv1d; d < 2; d++) {
        int64_t most = c->stride[d] > c->dilation[d] ? c->stride[d] : c->dilation[d];
        if (c->stride[d] < 1 || c->dilation[d] < 1 || most > INT32_MAX)
            return "stride and dilation: expected 1 to 2^31 - 1";
        if (c->padding[d] < 0 || c->padding[d] > INT32_MAX)
            return "padding: expected 0 to 2^31 - 1";
        if (c->output_padding[d] < 0 || c->output_padding[d] >= (transposed ? most : 1))
            return transposed ? "output_padding: expected 0 to less than stride or dilation"
                              : "output_padding: only a transposed convolution has one";
        if (c->same && (transposed || c->stride[d] != 1))
            return "same: only with stride 1, and not transposed";
    }
    return NULL;
}

/* The attributes of a call, NULL config: defaults. Of one dimension the first of each pair is for
   lines of size 1. False with an error recorded by `call`. */
static bool mpt__conv_attributes(
    mpt_context *ctx, const char *call, int op, const mpt_conv_config *config, mpt__attributes *a) {
    mpt_conv_config c = config ? *config : mpt_conv_config_default();
    const char *why = mpt__bad_conv(&c, op);
    if (why) {
        mpt__misuse(ctx, call, ARGUMENT, "%s", why);
        return false;
    }
    if (op == MPT__OP_conv1d) {
        c.stride[0] = c.dilation[0] = 1;
        c.padding[0] = c.output_padding[0] = 0;
    }
    for (int d = 0; d < 2 && c.same; d++) c.padding[d] = 0; /* the shape rule's to find */
    *a = mpt__no_attributes;
    a->required = 2;
    a->index[MPT__CONV_GROUPS] = c.groups;
    a->index[MPT__CONV_STRIDE] = MPT__TWO(c.stride[0], c.stride[1]);
    a->index[MPT__CONV_PADDING] = MPT__TWO(c.padding[0], c.padding[1]);
    a->index[MPT__CONV_DILATION] = MPT__TWO(c.dilation[0], c.dilation[1]);
    a->index[MPT__CONV_OUTPUT_PADDING] = MPT__TWO(c.output_padding[0], c.output_padding[1]);
    a->index[MPT__CONV_SAME] = c.same;
    return true;
}

static mpt_tensor mpt__conv_call(const char *call, int op, mpt_tensor x, mpt_tensor weight,
    mpt_tensor bias, const mpt_conv_config *config) {
    mpt_tensor in[3];
    mpt__attributes attributes;
    in[0] = x, in[1] = weight, in[2] = bias;
    mpt_context *ctx = mpt__context_of(in, 3);
    if (!ctx) mpt__enter(ctx, call);
    if (!ctx || !mpt__conv_attributes(ctx, call, op, config, &attributes)) return mpt__null(ctx);
    return mpt__apply1(call, op, in, 3, &attributes);
}

#define MPT__DEFINE_CONV(name) \
    mpt_tensor mpt_##name( \
        mpt_tensor x, mpt_tensor weight, mpt_tensor bias, const mpt_conv_config *config) { \
        return mpt__conv_call("mpt_" #name, MPT__OP_##name, x, weight, bias, config); \
    }
MPT__DEFINE_CONV(conv2d)
MPT__DEFINE_CONV(conv1d)
MPT__DEFINE_CONV(conv_transpose2d)
#undef MPT__DEFINE_CONV

MPT__END_REGION

#endif
