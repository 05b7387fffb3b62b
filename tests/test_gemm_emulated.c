/* test_gemm_emulated.c: the tests of matrix products with AMX tiles emulated in portable C, so that
   a CPU with AVX2 runs that level, too. */
#define MPTRAIN_IMPLEMENTATION
#define MPTRAIN_EMULATE_AMX
#include "test_gemm.c"
