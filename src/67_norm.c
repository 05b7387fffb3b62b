/* ---------------------------------------------------------------------------------------------
 * 67_norm.c: normalisation and pooling: functions and layers.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__67_NORM_INCLUDED
#define MPT__67_NORM_INCLUDED

#include "67_conv.c"

#endif
