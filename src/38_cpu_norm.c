/* ---------------------------------------------------------------------------------------------
 * 38_cpu_norm.c: normalisation and pooling on the CPU.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_NORM_INCLUDED
#define MPT__38_CPU_NORM_INCLUDED

#include "38_cpu_conv.c"

static void mpt__cpu_add_norm(mpt__cpu *cpu) { (void)cpu; }

#endif
