/* ----
 * nn/conv.c: layers of images: convolutions, upsampling.
 * ---- */
#ifndef MPT__NN_CONV_INCLUDED
#define MPT__NN_CONV_INCLUDED

#include "nn/lora.c"

/* A layer with a weight of that shape, whose dimensions 0 and 1 are channels, still to be divided
   into groups. */
static mpt_module mpt__conv_layer(mpt_context *ctx, const char *call, mpt__layer layer,
    mpt_shape weight, const mpt_conv_config *config) {
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    if (!module) return mpt__module_handle(ctx, NULL);
    int op = mpt__layer_rows[layer].op;
    bool transposed = op == MPT__OP_conv_transpose2d;
    int64_t out = weight.dim[transposed], fan = 1;
    bool good = true;
#ifdef MPTRAIN_NO_CONV
    mpt__error(ctx, UNSUPPORTED, "built without convolutions (MPTRAIN_NO_CONV)");
#endif
    if (mpt__conv_attributes(ctx, call, op, config, &module->attributes)) {
        int64_t groups = module->attributes.index[MPT__CONV_GROUPS];
        for (int i = 0; i < weight.rank; i++)
            good = good && weight.dim[i] > 0 && (i > 1 || weight.dim[i] % groups == 0);
        if (!good)
            mpt__error(ctx, ARGUMENT,
                "weight %S in %lld groups: expected sizes of 1 or more, and channels that "
                "the groups divide",
                &weight, groups);
        weight.dim[1] /= groups;
    }
    mpt__layer_parameter(ctx, module, "weight", weight, 0);
    for (int i = 1; i < weight.rank && mpt__ok(ctx); i++) fan *= weight.dim[i];
    if (!config || config->bias) mpt__layer_parameter(ctx, module, "bias", MPT_SHAPE(out), fan);
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_conv2d(mpt_context *ctx, int64_t in, int64_t out, int64_t kernel_h,
    int64_t kernel_w, const mpt_conv_config *config) {
    return mpt__conv_layer(
        ctx, "mpt_nn_conv2d", MPT__LAYER_conv2d, MPT_SHAPE(out, in, kernel_h, kernel_w), config);
}
mpt_module mpt_nn_conv1d(
    mpt_context *ctx, int64_t in, int64_t out, int64_t kernel, const mpt_conv_config *config) {
    return mpt__conv_layer(
        ctx, "mpt_nn_conv1d", MPT__LAYER_conv1d, MPT_SHAPE(out, in, kernel), config);
}
mpt_module mpt_nn_conv_transpose2d(mpt_context *ctx, int64_t in, int64_t out, int64_t kernel_h,
    int64_t kernel_w, const mpt_conv_config *config) {
    return mpt__conv_layer(ctx, "mpt_nn_conv_transpose2d", MPT__LAYER_conv_transpose2d,
        MPT_SHAPE(in, out, kernel_h, kernel_w), config);
}

mpt_module mpt_nn_upsample(
    mpt_context *ctx, mpt_shape size, double scale, mpt_interpolation mode, bool align_corners) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_nn_upsample", MPT__LAYER_upsample);
    if (module)
        mpt__interpolate_attributes(ctx, &size, scale, mode, align_corners, &module->attributes);
    return mpt__layer_made(ctx, module);
}

/* ==== Fused with the norm behind ====
 *
 * Where nothing asks for gradients, a convolution that mpt_fuse paired with a batch norm waits for
 * that one to be called, and both are one launch, of weights that have the norm's scale in them.
 * Those are made anew whenever what they come from has changed. */

static MPT__UNUSED mpt_tensor mpt__fused_forward(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu) {
    (void)residual, (void)relu;
    bool waits = ctx->no_grad_depth || ctx->inference_depth;
    ctx->waiting.module = waits ? module->id.slot : 0;
    mpt__tensor *out = mpt__op_layer_forward(ctx, module, mpt__live(ctx, x), MPT_ACTIVATION_NONE);
    ctx->waiting.module = 0;
    return mpt__handle(ctx, out);
}

#ifndef MPTRAIN_NO_CONV

/* The folded weight, channels last or, for planes, contiguous, and behind it the bias. */
static void mpt__folded_views(const mpt__running *fused, const mpt__tensor *weight,
    mpt_dtype compute, int64_t channels, bool planes, mpt__tensor view[2]) {
    mpt_shape each = MPT_SHAPE(channels);
    int64_t place = mpt__aligned_up(mpt__tensor_numel(weight), mpt__block_grain(MPT_F32));
    view[0] = mpt__image_view(weight);
    view[0] = mpt__view_on(fused->values, compute, &view[0].shape, 0);
    if (!planes) mpt__channels_last_strides(&view[0]);
    view[1] = mpt__view_on(fused->values, MPT_F32, &each, place);
}

/* Rows of channels through the norm, given its weight, bias and statistics. */
static mpt_status mpt__fold_launch(mpt__frame *frame, const mpt__tensor *from, bool across,
    const mpt__tensor *to, mpt__tensor *const norm[4], const mpt__tensor *rstd, double eps) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_NORM);
    int64_t channels = rstd->shape.dim[0], first = across ? from->shape.dim[0] : 1;
    int64_t inner = mpt__tensor_numel(from) / channels / first;
    const mpt__tensor *const ends[] = {from, to};
    launch->imm[0] = eps;
    launch->index[0] = launch->index[1] = 1;
    for (int i = 0; i < 2; i++) {
        mpt__operand *o =
            mpt__operand_ranked(launch, i * 4, ends[i], 4, i ? MPT__WRITE : MPT__READ);
        mpt__operand_dim(o, 0, first, channels * inner);
        mpt__operand_dim(o, 1, 1, channels * inner);
        mpt__operand_dim(o, 2, channels, inner);
        mpt__operand_dim(o, 3, inner, 1);
        for (int k = 0; k < 2 && !i; k++)
            if (norm[k]) mpt__reads(launch, 2 + k, norm[k]);
    }
    mpt__reads(launch, 6, norm[2]);
    mpt__writes(launch, 7, rstd);
    mpt__reads(launch, 8, norm[3]);
    return mpt__submit(frame->context, launch);
}

/* in: the weight and the bias of the convolution, those of the norm, its mean and variance. */
static mpt_status mpt__fold(
    mpt__frame *frame, mpt__tensor *const in[6], double eps, const mpt__tensor view[2]) {
    mpt__tensor *rstd = mpt__temporary(frame, MPT_F32, &view[1].shape);
    mpt__tensor *zero = mpt__temporary(frame, MPT_F32, &view[1].shape);
    mpt__tensor *scaled = mpt__temporary(frame, MPT_F32, &view[0].shape);
    if (!rstd || !zero || !scaled) return frame->context->base.status;
    mpt__tensor *const scale[] = {in[2], NULL, zero, in[5]};
    bool across = frame->op == MPT__OP_conv_transpose2d;
    mpt__launch_fill(frame->context, zero, 0.0);
    mpt__fold_launch(frame, in[0], across, scaled, scale, rstd, eps);
    mpt__launch_copy(frame->context, scaled, &view[0], MPT__WRITE);
    return mpt__fold_launch(frame, in[1] ? in[1] : zero, false, &view[1], in + 2, rstd, eps);
}

/* Makes the folded weight and bias where they are not those of now. A recording has them made by
   each replay. */
static mpt_status mpt__fold_anew(mpt__frame *frame, mpt__running *fused, mpt__tensor *const in[6],
    double eps, bool planes, mpt__tensor view[2]) {
    uint64_t made_of = mpt__hash_u64(1 + planes, (uint64_t)frame->compute);
    for (int i = 0; i < 6; i++) {
        if (!in[i]) continue;
        uint64_t version = frame->context->storages[in[i]->storage].version;
        made_of = mpt__hash_u64(made_of, (uint64_t)in[i]->storage << 32 | version);
    }
    mpt__folded_views(fused, in[0], frame->compute, in[4]->shape.dim[0], planes, view);
    if (made_of == fused->made_of && !frame->context->recorder) return MPT_OK;
    fused->made_of = 0;
    if (mpt__fold(frame, in, eps, view) == MPT_OK) fused->made_of = made_of;
    return frame->context->base.status;
}
#endif

/* A batch norm of in (x, weight, bias, mean, variance, residual) in one launch with the convolution
   that gives x; NULL where it is not that one which waits, or x is wanted by itself, too. */
static mpt__tensor *mpt__fused_norm(
    mpt_context *ctx, const mpt__module *norm, const mpt_tensor in[6], bool relu) {
#ifdef MPTRAIN_NO_CONV
    (void)ctx, (void)norm, (void)in, (void)relu;
    return NULL;
#else
    mpt__tensor *x = ctx->waiting.out, *found[6], *out = NULL, view[2];
    if (!x || mpt__live(ctx, in[0]) != x || !in[3].slot) return NULL;
    for (int i = 1; i < 6; i++) found[i] = mpt__live(ctx, in[i]);
    const mpt__tensor *residual = found[5];
    if (!mpt__storage_alone(ctx, x->storage) || x->saves != 1 || x->nodes ||
        (in[5].slot && !residual) ||
        (residual &&
            (residual == x || residual->dtype != x->dtype || !mpt__same_shape(residual, x))))
        return NULL;
    mpt__module *conv = mpt__module_slot(ctx, ctx->waiting.conv);
    if (!conv || !conv->running || conv->running->norm != norm->id.slot ||
        found[3]->shape.dim[0] != x->shape.dim[1])
        return NULL;
    mpt__frame frame;
    mpt__waiting taken;
    mpt__waiting_begin(&frame, ctx, &taken);
    mpt__tensor *const from[] = {taken.in[1], taken.in[2], found[1], found[2], found[3], found[4]};
    const bool planes = mpt__conv_planes(&frame, taken.in[0], taken.out);
    if (mpt__fold_anew(&frame, conv->running, from, norm->attributes.imm[0], planes, view) ==
        MPT_OK)
        out = frame.out[0] = mpt__tensor_alias(ctx, x);
    mpt__conv_end end = {&view[1], residual, true, relu};
    if (out && mpt__conv_compute(&frame, &view[0], end) != MPT_OK) {
        mpt__tensor_drop(ctx, out);
        out = NULL;
    }
    mpt__waiting_end(&frame, &taken);
    mpt__tensor_drop(ctx, x);
    return out;
#endif
}

#endif
