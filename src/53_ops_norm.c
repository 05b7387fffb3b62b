/* ---------------------------------------------------------------------------------------------
 * 53_ops_norm.c: normalisation and pooling as ops.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__53_OPS_NORM_INCLUDED
#define MPT__53_OPS_NORM_INCLUDED

#include "53_ops_conv.c"

#endif
