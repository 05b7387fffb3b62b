/* ---------------------------------------------------------------------------------------------
 * 38_cpu_attention.c: embedding and attention on the CPU.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_ATTENTION_INCLUDED
#define MPT__38_CPU_ATTENTION_INCLUDED

#include "38_cpu_norm.c"

static void mpt__cpu_add_attention(mpt__cpu *cpu) { (void)cpu; }

#endif
