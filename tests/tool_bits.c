/* tool_bits.c: prints one hash of what 20 steps of training compute, in fp32, fp16, bf16 and pure
   half, with dropout, clipping, a schedule and every elementwise op. Compilers, languages and flags
   must not change it; MPTRAIN_ISA chooses the level. .ci/run compiles the implementation into it
   with -DMPTRAIN_IMPLEMENTATION; make links it with the object. */
#include MPTRAIN_HEADER_FILE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bits.h"

int main(void) {
    mpt_config config = mpt_config_default();
    uint64_t hash = training_bits(&config);
    mpt_context *context = mpt_create(&config);
    if (!context || !hash) {
        printf("failed: %s\n", mpt_error(context));
        return 1;
    }
    printf("%08lx%08lx %s\n", (unsigned long)(hash >> 32), (unsigned long)(hash & 0xffffffffu),
           mpt_isa_name(mpt_get_isa(context)));
    mpt_destroy(context);
    return 0;
}
