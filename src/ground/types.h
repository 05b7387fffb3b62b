/* ----
 * ground/types.h: the table of dtypes.
 * ---- */
#ifndef MPT__GROUND_TYPES_INCLUDED
#define MPT__GROUND_TYPES_INCLUDED

#include "face/tensors.h"

typedef struct mpt__dtype_row {
    const char *name;      /* PyTorch's */
    const char *file_name; /* safetensors' */
    uint8_t bytes;
    bool is_float;
    uint8_t digits;    /* decimal digits that tell any two values apart; 0 for integers */
    double max_finite; /* for int64 the double next to it, 2^63 */
    double min_normal; /* 1 for integers */
    double epsilon;    /* distance from 1 to the next value */
} mpt__dtype_row;

/* Indexed by mpt_dtype. */
static const mpt__dtype_row mpt__dtype_info[MPT_DTYPE_COUNT] = {
    {"none", "", 0, false, 0, 0.0, 0.0, 0.0},
    {"float32", "F32", 4, true, 9, 3.4028234663852886e38, 1.1754943508222875e-38, 1.0 / 8388608.0},
    {"float16", "F16", 2, true, 5, 65504.0, 1.0 / 16384.0, 1.0 / 1024.0},
    {"bfloat16", "BF16", 2, true, 4, 3.3895313892515355e38, 1.1754943508222875e-38, 1.0 / 128.0},
    {"float8_e4m3fn", "F8_E4M3", 1, true, 3, 448.0, 1.0 / 64.0, 1.0 / 8.0},
    {"float8_e5m2", "F8_E5M2", 1, true, 2, 57344.0, 1.0 / 16384.0, 1.0 / 4.0},
    {"float64", "F64", 8, true, 17, 1.7976931348623157e308, 2.2250738585072014e-308,
        1.0 / 4503599627370496.0},
    {"int64", "I64", 8, false, 0, 9223372036854775808.0, 1.0, 1.0},
    {"int32", "I32", 4, false, 0, 2147483647.0, 1.0, 1.0},
    {"uint8", "U8", 1, false, 0, 255.0, 1.0, 1.0},
    {"bool", "BOOL", 1, false, 0, 1.0, 1.0, 1.0},
};

/* Of what is no dtype the first row, "none" of 0 bytes. */
static const mpt__dtype_row *mpt__dtype_row_of(mpt_dtype dtype) {
    return &mpt__dtype_info[(unsigned)dtype < MPT_DTYPE_COUNT ? dtype : MPT_DTYPE_NONE];
}

#ifndef MPTRAIN_CPU_IMPLEMENTATION
MPTRAIN_API const char *mpt_dtype_name(mpt_dtype dtype) { return mpt__dtype_row_of(dtype)->name; }

MPTRAIN_API size_t mpt_dtype_size(mpt_dtype dtype) { return mpt__dtype_row_of(dtype)->bytes; }
#endif

#endif
