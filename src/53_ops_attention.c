/* ---------------------------------------------------------------------------------------------
 * 53_ops_attention.c: embedding and attention as ops.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__53_OPS_ATTENTION_INCLUDED
#define MPT__53_OPS_ATTENTION_INCLUDED

#include "53_ops_norm.c"

#endif
