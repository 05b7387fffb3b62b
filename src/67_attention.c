/* ---------------------------------------------------------------------------------------------
 * 67_attention.c: embedding and attention: functions and layers.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__67_ATTENTION_INCLUDED
#define MPT__67_ATTENTION_INCLUDED

#include "67_norm.c"

#endif
