/* The second translation unit of use.c; it holds an implementation of its own when MPTRAIN_STATIC
   and IMPLEMENT are defined. */
#ifdef IMPLEMENT
#define MPTRAIN_IMPLEMENTATION
#endif
#include "mptrain.h"

#ifdef __cplusplus
extern "C"
#endif
double other_sum(void);

double other_sum(void) {
    mpt_context *ctx = mpt_create(NULL);
    double sum = mpt_item(mpt_sum(mpt_ones(ctx, MPT_F32, MPT_SHAPE(12)), 0, false));
    mpt_destroy(ctx);
    return sum;
}
