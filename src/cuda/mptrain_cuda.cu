/* ----
 * mptrain_cuda.cu: the CUDA backend of mptrain, for NVIDIA GPUs of compute capability 7.5 and up.
 *
 * With mptrain.h beside it and the CUDA toolkit at hand:
 *
 *     nvcc -O2 -arch=native -c mptrain_cuda.cu
 *     cc -O2 -DMPTRAIN_CUDA -c your_program.c            (where MPTRAIN_IMPLEMENTATION is defined)
 *     nvcc -arch=native your_program.o mptrain_cuda.o -lcublasLt -lm -lpthread
 *
 * It executes launches (waist/launch.h in mptrain.h: the contract of every kernel) and knows nothing
 * of tensors, modules or optimizers. All kernels go to one stream, in order; whatever varies from
 * step to step is read from device scalars, so the host never waits inside a step. Arithmetic is
 * fp32 on values converted on load and rounded once on store. Every sum has a tree that depends on
 * the problem alone, and no floating-point atomics are used: every run gives the same bits.
 * ---- */
#define MPTRAIN_BACKEND_API
#include "mptrain.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_cuda.cu are of different versions; copy both from one release"
#endif

namespace {

#include "device.cu"
#include "elementwise.cu"
#include "axis.cu"
#include "reduce.cu"
#include "loss.cu"
#include "resize.cu"
#include "products.cu"
#include "plans.cu"
#include "gemm.cu"
#include "update.cu"
#include "conv.cu"
#include "norm.cu"
#include "attention.cu"
#include "attention_matrix.cu"
#include "fp8.cu"
#include "recurrent.cu"
#include "runtime.cu"
