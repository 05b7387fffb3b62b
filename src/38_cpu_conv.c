/* ---------------------------------------------------------------------------------------------
 * 38_cpu_conv.c: convolutions on the CPU.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_CONV_INCLUDED
#define MPT__38_CPU_CONV_INCLUDED

#include "37_gemm_run.c"

static void mpt__cpu_add_conv(mpt__cpu *cpu) { (void)cpu; }

#endif
