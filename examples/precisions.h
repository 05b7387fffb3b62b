/* precisions.h - what a precision means for autocast, batches and parameters, and whether the loss
 * is scaled. Shared by the examples, the benchmarks and the tests of whole trainings. */
#ifndef PRECISIONS_H
#define PRECISIONS_H

#include "mptrain.h"

typedef struct precision {
    const char *name;
    mpt_dtype autocast, batch, parameters;
    bool scaled;
} precision;

static const precision precisions[] = {{"fp32", MPT_F32, MPT_F32, MPT_F32, false},
                                       {"fp16", MPT_F16, MPT_F16, MPT_F32, true},
                                       {"bf16", MPT_BF16, MPT_BF16, MPT_F32, false},
                                       {"half", MPT_F32, MPT_F16, MPT_F16, true}};
enum { PRECISIONS = sizeof precisions / sizeof precisions[0] };

#endif
