/* The spine: includes the rooms in order. tools/amalgamate.c makes ../mptrain.h from it.

   The wings, from the ground up; each may use those before it, but nobody above the waist knows the
   CPU, and nobody at all knows the context room, which knows all. What stands in cpu/template/ is
   included by each level (cpu/level/), once for each.

   Words that mean one thing:
     op record    what a call of an op leaves behind for backward: inputs, outputs, numbers
     launch       what an op asks of a backend: a kernel, operands, numbers; no pointers
     kernel       what a launch names; each backend has a table of them
     operand      a strided view of a storage, by the storage's number
     storage      a piece of device memory, counted apart from the tensors that see it
     slot         a number on the device (lr, loss scale, found_inf) that kernels read by its place
     block        what kernels load, compute and store at a time; also the one that holds all
                  parameters of a tree
     segment      where a parameter lies in that block
     chunk        the work that one thread takes in one go; results do not depend on who takes it
     level        an instruction set of the CPU
     word         an operation on a vector of a level: v_add; the vocabulary is all of them
     routines     what a level computes blocks with, made of words
     lane         a place in a vector, or one of the 16 partial sums that every sum has */
#include "face/manual.h"
#include "face/tensors.h"
#include "face/training.h"
#include "face/inspection.h"
#include "face/models.h"
#include "face/data.h"

#if defined(MPTRAIN_BACKEND_API) || defined(MPTRAIN_IMPLEMENTATION) || \
    defined(MPTRAIN_CPU_IMPLEMENTATION)
#include "waist/functions.h"
#include "waist/launch.h"
#endif

#if (defined(MPTRAIN_IMPLEMENTATION) || defined(MPTRAIN_CPU_IMPLEMENTATION)) && \
    !defined(MPT__IMPLEMENTED)
#define MPT__IMPLEMENTED
#include "ground/types.h"
#include "ground/platform.h"
#include "ground/files.c"
#include "ground/base.c"
#include "ground/json.c"
MPT__BEGIN_KERNELS
#include "ground/parallel.c"
#include "ground/random.c"
#include "ground/dtype.c"
#include "ground/convert.c"
#include "ground/elements.c"
#include "ground/math.c"
#include "cpu/link.h"
#ifdef MPT__CPU_HERE
#include "cpu/backend.c"
#include "cpu/vocabulary.h"
#include "cpu/level/one.c"
#include "cpu/elementwise.c"
#include "cpu/gates.c"
#include "cpu/halves.c"
#include "cpu/rows.c"
#include "cpu/loss.c"
#include "cpu/recurrent.c"
#include "cpu/optimizer.c"
#include "cpu/product.h"
#include "cpu/vectors.h"
#include "cpu/level/avx2.c"
#include "cpu/level/avx512.c"
#include "cpu/level/neon.c"
#include "cpu/level/avx512bf16.c"
#include "cpu/level/amx.c"
#include "cpu/level/neonbf16.c"
#include "cpu/vocabulary_end.h"
#include "cpu/gemm.c"
#include "cpu/sequences.c"
#include "cpu/conv.c"
#include "cpu/planes.c"
#include "cpu/conv_rows.c"
#include "cpu/norm.c"
#include "cpu/pool.c"
#include "cpu/attention.c"
#include "cpu/resize.c"
#include "cpu/fp8.c"
#ifdef MPTRAIN_COMPILE
#define MPT__PROGRAMS_HERE
#include "mptrain_compile.h"
#undef MPT__PROGRAMS_HERE
#endif
#endif
MPT__END_REGION
#ifdef MPT__CPU_HERE
MPT__BEGIN_COLD
#include "cpu/levels.c"
MPT__END_REGION
#endif
#ifdef MPTRAIN_IMPLEMENTATION
#include "core/context.h"
#include "core/events.c"
#include "core/share.c"
#include "core/storage.c"
#include "core/tensor.c"
#include "core/autocast.c"
MPT__BEGIN_COLD
#include "core/region.c"
MPT__END_REGION
#include "core/autograd.c"
MPT__BEGIN_COLD
#include "core/plan.c"
#include "core/recorder.c"
#include "core/inspect.c"
#include "core/values.c"
#include "core/anomaly.c"
MPT__END_REGION
#include "ops/op.c"
#include "ops/operand.c"
#include "ops/elementwise.c"
#include "ops/matmul.c"
#include "ops/reduce.c"
MPT__BEGIN_COLD
#include "ops/shape.c"
#include "ops/index.c"
MPT__END_REGION
#include "ops/loss.c"
MPT__BEGIN_COLD
#include "ops/conv.c"
#include "ops/norm.c"
#include "ops/attention.c"
#include "ops/resize.c"
#include "ops/recurrent.c"
#include "ops/user.c"
#include "ops/inplace.c"
#include "ops/einsum.c"
MPT__END_REGION
#include "ops/table.c"
MPT__BEGIN_KERNELS
#include "data/inflate.c"
MPT__END_REGION
MPT__BEGIN_COLD
#include "data/idx.c"
#include "data/dataset.c"
#include "data/writer.c"
MPT__END_REGION
MPT__BEGIN_DATA
#include "data/transform.c"
#include "data/numbers.c"
#include "data/table.c"
MPT__END_REGION
MPT__BEGIN_COLD
#include "data/table_file.c"
#include "data/array.c"
#include "data/decode.c"
#include "data/image.c"
MPT__END_REGION
MPT__BEGIN_DATA
#include "data/text.c"
MPT__END_REGION
MPT__BEGIN_COLD
#include "data/loader.c"
MPT__END_REGION
MPT__BEGIN_COLD
#include "nn/layers.c"
#include "nn/init.c"
MPT__END_REGION
#include "nn/module.c"
MPT__BEGIN_COLD
#include "nn/query.c"
#include "nn/hooks.c"
#include "nn/share.c"
#include "nn/lora.c"
#include "nn/placement.c"
#include "nn/conv.c"
#include "nn/norm.c"
#include "nn/attention.c"
#include "nn/recurrent.c"
#include "nn/fp8.c"
#include "nn/fuse.c"
MPT__END_REGION
#include "train/optimizer.h"
MPT__BEGIN_COLD
#include "train/rates.c"
#include "train/codes.c"
MPT__END_REGION
#include "train/optimizers.c"
MPT__BEGIN_COLD
#include "train/average.c"
MPT__END_REGION
#include "train/update.c"
#include "train/inside.c"
#include "train/scaler.c"
MPT__BEGIN_COLD
#include "train/own.c"
#include "train/lbfgs.c"
#include "train/muon.c"
#include "train/schedule.c"
#include "train/checkpoint.c"
#include "train/state.c"
#include "train/resume.c"
#include "train/compare.c"
#include "train/series.c"
#include "train/fit.c"
#include "graph/capture.c"
#include "watch/check.c"
#include "watch/classes.c"
#include "watch/absent.c"
#ifdef MPTRAIN_WATCH
#include "mptrain_watch.h"
#endif
#include "context.c"
MPT__END_REGION
#ifdef MPTRAIN_COMPILE
#include "mptrain_compile.h"
#endif
#ifdef MPTRAIN_USE_MPI
#include "mptrain_parallel.h"
#endif
#endif
MPT__END_UNUSED
MPT__END_FLOAT_CONTROL
#include "face/changelog.h"
#endif
