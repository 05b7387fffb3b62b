/* ==== Compiled steps ==========================================================================

    mpt_captured step = mpt_compile(ctx, train_step, &my);   <- instead of mpt_capture
    ...
    mpt_captured_step(step, batch.x, batch.y);

A compiled step is a captured one, made, called, sliced and destroyed as such, with the same rules
(see mpt_capture). When it is recorded, its launches are rewritten:

- What computes element by element on equally many elements (sums, products, activations and their
  slopes, casts) goes into one launch, "program", tile by tile in the nearest cache: a chain of five
  such ops reads and writes memory once, not five times.
  Ops on more than 2^18 halves, whose time goes into conversions, stay alone, but for casts.
- Tensors that only such a launch makes and reads are never in memory, and take none.
- Launches are left out whose results nobody reads.

The bits are those of the captured step, in all precisions: each tile is computed by the same
kernels, in the same order, and halves are rounded where they were. So the weights after a thousand
compiled steps are those after a thousand plain ones.

Only the CPU runs such launches; on a GPU a compiled step is a captured one. */
#ifndef MPT__GRAPH_FACE_INCLUDED
#define MPT__GRAPH_FACE_INCLUDED

#include "face/training.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A step that runs from a rewritten recording. Arguments, errors and ownership are mpt_capture's;
   the context frees it at its end. Source: torch.compile. */
MPTRAIN_API mpt_captured mpt_compile(mpt_context *context, mpt_step_fn fn, void *user);

typedef struct mpt_compile_stats {
    int64_t recordings;       /* so far: the first, and those of other shapes, modes, options */
    int64_t launches[2];      /* of the last one: as recorded, as rewritten */
    int64_t programs, fused;  /* launches that hold several; how many those hold */
    int64_t dropped;          /* whose results nobody read */
    int64_t bytes[2];         /* that operands have: as recorded, as rewritten */
    int64_t tensors, kept_out; /* that programs have in the cache alone; their bytes */
    double seconds;           /* that rewriting took, by the context's clock */
} mpt_compile_stats;
/* Of a compiled step; all 0 before its second call. MPT_ERROR_ARGUMENT: mpt_capture made it. */
MPTRAIN_API mpt_status mpt_compile_statistics(mpt_captured step, mpt_compile_stats *stats);

#ifdef __cplusplus
}
#endif

#endif
