/* ---------------------------------------------------------------------------------------------
 * 03_api_models.h: the public API of what convolutional networks and transformers are made of.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__03_API_MODELS_INCLUDED
#define MPT__03_API_MODELS_INCLUDED

#include "02_api_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Convolution ========================================================================== */

/* ==== Normalisation and pooling ============================================================ */

/* ==== Embedding and attention ============================================================== */

/* ==== Images of another size =============================================================== */

typedef enum mpt_interpolation { MPT_NEAREST = 0, MPT_BILINEAR } mpt_interpolation;
/* torch.nn.functional.interpolate of [N, C, H, W]: to MPT_SHAPE(height, width), or, with MPT_SCALAR
   for the size, to `scale` times the size, rounded down. align_corners, of MPT_BILINEAR: the
   corners stay where they are; else a pixel is the area around its centre. */
MPTRAIN_API mpt_tensor mpt_interpolate(mpt_tensor x, mpt_shape size, double scale,
                                       mpt_interpolation mode, bool align_corners);
MPTRAIN_API mpt_module mpt_nn_upsample(mpt_context *context, mpt_shape size, double scale,
                                       mpt_interpolation mode, bool align_corners);

#ifdef __cplusplus
}
#endif
#endif /* MPT__03_API_MODELS_INCLUDED */
