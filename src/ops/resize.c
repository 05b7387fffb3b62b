/* ----
 * ops/resize.c: images of another size as an op.
 * ---- */
#ifndef MPT__OPS_RESIZE_INCLUDED
#define MPT__OPS_RESIZE_INCLUDED

#include "ops/attention.c"

#ifndef MPTRAIN_NO_CONV

/* index[0], index[1]: height and width, or 0 where the scale imm[0] counts; index[2]: the way. The
   numbers become steps of rows and columns, computed as PyTorch does. */
static mpt_status mpt__interpolate_shape(mpt__frame *frame) {
    MPT__PLAIN_FLOATS;
    const mpt__tensor *x = frame->in[0];
    mpt__attributes *a = frame->attributes;
    mpt_shape *out = &frame->out_shape[0];
    double scale = a->imm[0];
    mpt__unary_shape(frame);
    if (x->shape.rank != 4 || x->shape.dim[2] < 1 || x->shape.dim[3] < 1)
        return mpt__error(frame->context, SHAPE,
            "%S: expected [N, C, H, W] with pixels to choose from", &x->shape);
    for (int i = 0; i < 2; i++) {
        int64_t from = x->shape.dim[2 + i], to = a->index[i];
        double wanted = (double)from * scale;
        if (to == 0) to = wanted < 1073741824.0 ? (int64_t)wanted : -1;
        if (to < 1 || to > 1073741824)
            return mpt__error(frame->context, SHAPE,
                "%S by %g: expected a size of 1 to 2^30 pixels each way", &x->shape, scale);
        float step = a->index[i] == 0 ? (float)(1.0 / scale) : (float)from / (float)to;
        if (a->index[2] == MPT__RESIZE_CORNERS)
            step = to > 1 ? (float)(from - 1) / (float)(to - 1) : 0.0f;
        a->imm[i] = (double)step;
        out->dim[2 + i] = to;
    }
    return MPT_OK;
}

static mpt_status mpt__launch_interpolate(mpt__frame *frame, mpt__kernel kernel,
    const mpt__tensor *from, const mpt__tensor *to, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->index[0] = frame->attributes->index[2];
    for (int i = 0; i < 2; i++) launch->imm[i] = frame->attributes->imm[i];
    mpt__reads(launch, 0, from);
    mpt__operand_of(launch, 1, to, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__interpolate_forward(mpt__frame *frame) {
    return mpt__launch_interpolate(
        frame, MPT__K_INTERPOLATE, frame->in[0], frame->out[0], MPT__WRITE);
}

static mpt_status mpt__interpolate_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__launch_interpolate(
        frame, MPT__K_INTERPOLATE_BACKWARD, frame->dy[0], frame->dx, frame->access);
}

#else
#define mpt__interpolate_shape NULL
#define mpt__interpolate_forward NULL
#define mpt__interpolate_backward NULL
#endif /* MPTRAIN_NO_CONV */

/* ==== The functions ==== */

MPT__BEGIN_COLD

/* What was asked for as attributes of the op; false with an error recorded if it makes no sense. */
static bool mpt__interpolate_attributes(mpt_context *ctx, const mpt_shape *size, double scale,
    mpt_interpolation mode, bool align_corners, mpt__attributes *attributes) {
    MPT__PLAIN_FLOATS;
    bool sized = size->rank == 2, scaled = size->rank == 0 && scale > 0.0;
    *attributes = mpt__no_attributes;
#ifdef MPTRAIN_NO_CONV
    return mpt__reject(ctx, UNSUPPORTED, "built without interpolation (MPTRAIN_NO_CONV)");
#endif
    for (int i = 0; i < 2 && sized; i++) {
        sized = size->dim[i] >= 1;
        attributes->index[i] = size->dim[i];
    }
    if (!sized && !scaled)
        return mpt__reject(ctx, ARGUMENT,
            "size %S, scale %g: expected MPT_SHAPE(height, width), or MPT_SCALAR "
            "and a scale above 0",
            size, scale);
    if (mode != MPT_NEAREST && mode != MPT_BILINEAR)
        return mpt__reject(
            ctx, ARGUMENT, "mode %d is neither MPT_NEAREST nor MPT_BILINEAR", (int)mode);
    if (align_corners && mode == MPT_NEAREST)
        return mpt__reject(ctx, ARGUMENT, "MPT_NEAREST has no corners to align");
    attributes->index[2] = mode == MPT_NEAREST ? MPT__RESIZE_NEAREST
        : align_corners                        ? MPT__RESIZE_CORNERS
                                               : MPT__RESIZE_CENTERS;
    attributes->imm[0] = scale;
    return true;
}

mpt_tensor mpt_interpolate(
    mpt_tensor x, mpt_shape size, double scale, mpt_interpolation mode, bool align_corners) {
    static const char name[] = "mpt_interpolate";
    mpt__attributes attributes;
    if (!mpt__enter(x.context, name) ||
        !mpt__interpolate_attributes(x.context, &size, scale, mode, align_corners, &attributes))
        return mpt__null(x.context);
    return mpt__apply1(name, MPT__OP_interpolate, &x, 1, &attributes);
}

MPT__END_REGION

#endif
