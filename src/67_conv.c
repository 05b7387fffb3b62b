/* ---------------------------------------------------------------------------------------------
 * 67_conv.c: convolutions: functions and layers.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__67_CONV_INCLUDED
#define MPT__67_CONV_INCLUDED

#include "61_module.c"

#endif
