/* A program that uses the library: makes a context and sums a tensor. Valid C11 and C++11. With
   -DIMPLEMENT it holds the implementation, otherwise it links one. */
#ifdef IMPLEMENT
#define MPTRAIN_IMPLEMENTATION
#endif
#include <string.h>
#include "mptrain.h"

/* Of other.c, which uses the library in a second translation unit. */
#ifdef TWO_UNITS
#ifdef __cplusplus
extern "C"
#endif
double other_sum(void);
#endif

int main(void) {
    mpt_context *ctx = mpt_create(NULL);
    double sum = mpt_item(mpt_sum(mpt_ones(ctx, MPT_F32, MPT_SHAPE(3, 4)), MPT_ALL_DIMS, false));
    int wrong = ctx == NULL || mpt_failed(ctx) || sum < 11.5 || sum > 12.5;
    /* What is left out is an error that names it, and nothing but an error. */
#ifdef MPTRAIN_NO_TABLES
    mpt_csv_memory(ctx, "a,b\n1,2\n", 8, NULL);
    wrong |= !strstr(mpt_error(ctx), "built without tables (MPTRAIN_NO_TABLES)");
    mpt_clear_error(ctx);
#endif
#ifdef MPTRAIN_NO_TEXT
    mpt_char_tokenizer(ctx, "text");
    wrong |= !strstr(mpt_error(ctx), "built without tokenizers (MPTRAIN_NO_TEXT)");
    mpt_clear_error(ctx);
#endif
    mpt_destroy(ctx);
#ifdef TWO_UNITS
    wrong |= other_sum() < 11.5;
#endif
    return wrong;
}
