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

#ifdef __cplusplus
}
#endif
#endif /* MPT__03_API_MODELS_INCLUDED */
