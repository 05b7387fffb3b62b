/* ---------------------------------------------------------------------------------------------
 * nn/resize.c: images of another size: function and layer.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__NN_RESIZE_INCLUDED
#define MPT__NN_RESIZE_INCLUDED

#include "nn/attention.c"

/* What was asked for as attributes of the op; false with an error recorded if it makes no sense. */
static bool mpt__interpolate_attributes(mpt_context *context, const mpt_shape *size, double scale,
                                        mpt_interpolation mode, bool align_corners,
                                        mpt__attributes *attributes) {
    MPT__PLAIN_FLOATS;
    bool sized = size->rank == 2, scaled = size->rank == 0 && scale > 0.0;
    *attributes = mpt__no_attributes;
#ifdef MPTRAIN_NO_CONV
    return mpt__reject(context, MPT_ERROR_UNSUPPORTED,
                       "built without interpolation (MPTRAIN_NO_CONV)");
#endif
    for (int i = 0; i < 2 && sized; i++) {
        sized = size->dim[i] >= 1;
        attributes->index[i] = size->dim[i];
    }
    if (!sized && !scaled)
        return mpt__reject(context, MPT_ERROR_ARGUMENT,
                           "size %S, scale %g: expected MPT_SHAPE(height, width), or MPT_SCALAR "
                           "and a scale above 0",
                           size, scale);
    if (mode != MPT_NEAREST && mode != MPT_BILINEAR)
        return mpt__reject(context, MPT_ERROR_ARGUMENT,
                           "mode %d is neither MPT_NEAREST nor MPT_BILINEAR", (int)mode);
    if (align_corners && mode == MPT_NEAREST)
        return mpt__reject(context, MPT_ERROR_ARGUMENT, "MPT_NEAREST has no corners to align");
    attributes->index[2] = mode == MPT_NEAREST ? MPT__RESIZE_NEAREST
                           : align_corners     ? MPT__RESIZE_CORNERS
                                               : MPT__RESIZE_CENTERS;
    attributes->imm[0] = scale;
    return true;
}

MPTRAIN_API mpt_tensor mpt_interpolate(mpt_tensor x, mpt_shape size, double scale,
                                       mpt_interpolation mode, bool align_corners) {
    static const char name[] = "mpt_interpolate";
    mpt__attributes attributes;
    if (!mpt__enter(x.context, name) ||
        !mpt__interpolate_attributes(x.context, &size, scale, mode, align_corners, &attributes))
        return mpt__null(x.context);
    return mpt__apply1(name, MPT__OP_interpolate, &x, 1, &attributes);
}

MPTRAIN_API mpt_module mpt_nn_upsample(mpt_context *context, mpt_shape size, double scale,
                                       mpt_interpolation mode, bool align_corners) {
    mpt__module *module = mpt__layer_new(context, "mpt_nn_upsample", MPT__LAYER_upsample);
    if (module)
        mpt__interpolate_attributes(context, &size, scale, mode, align_corners,
                                    &module->attributes);
    return mpt__layer_made(context, module);
}

#endif
