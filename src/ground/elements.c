/* ----
 * ground/elements.c: elements of any dtype, read and written one after the other.
 * ---- */
#ifndef MPT__GROUND_ELEMENTS_INCLUDED
#define MPT__GROUND_ELEMENTS_INCLUDED

#include "ground/convert.c"

/* Truncates; beyond the range the nearest end of it, NaN gives 0. */
static int64_t mpt__truncate_f64(double x, double low, double beyond) {
    if (mpt__f64_is_nan(x)) return 0;
    if (x < low) return (int64_t)low;
    if (x >= beyond) return beyond >= 9223372036854775808.0 ? INT64_MAX : (int64_t)beyond - 1;
    return (int64_t)x;
}

/* What each dtype is stored as, how that is read, and what is stored of what MPT__GET gives. */
#ifndef MPTRAIN_NO_FP8
#define MPT__STORED_F8(D) \
    D(MPT_F8E4M3, uint8_t, mpt__f8e4m3_to_f32, \
      mpt__f32_to_f8e4m3(MPT__GET(float), MPT__F8_SATFINITE)) \
    D(MPT_F8E5M2, uint8_t, mpt__f8e5m2_to_f32, \
        mpt__f32_to_f8e5m2(MPT__GET(float), MPT__F8_SATFINITE))
#else
#define MPT__STORED_F8(D)
#endif
#define MPT__STORED(D) \
    D(MPT_F32, float, , MPT__GET(float)) \
    D(MPT_F16, uint16_t, mpt__f16_to_f32, mpt__f32_to_f16(MPT__GET(float))) \
    D(MPT_BF16, uint16_t, mpt__bf16_to_f32, mpt__f32_to_bf16(MPT__GET(float))) \
    MPT__STORED_F8(D) \
    D(MPT_F64, double, , MPT__GET(double)) \
    D(MPT_I64, int64_t, , \
      mpt__truncate_f64(MPT__GET(double), -9223372036854775808.0, 9223372036854775808.0)) \
    D(MPT_I32, int32_t, , \
      (int32_t)mpt__truncate_f64(MPT__GET(double), -2147483648.0, 2147483648.0)) \
    D(MPT_U8, uint8_t, , (uint8_t)mpt__truncate_f64(MPT__GET(double), 0.0, 256.0)) \
    D(MPT_BOOL, uint8_t, !!, (uint8_t)(MPT__GET(double) != 0))

/* Elements that lie together have a loop of their own, for speed: any stride is right for both. gcc
   -O2 makes no vectors of it, so that only reals gain by it there. */
#ifdef __OPTIMIZE_SIZE__
#define MPT__OWN_LOOP false
#elif defined(__GNUC__) && !defined(__clang__)
#define MPT__OWN_LOOP (form == MPT__AS_REAL && stride == 1)
#else
#define MPT__OWN_LOOP (stride == 1)
#endif
#define MPT__LOAD_CASE(id, storage, in, out) \
    case id: { \
        const storage *from = (const storage *)data + offset; \
        if (MPT__OWN_LOOP) \
            for (int64_t i = 0; i < n; i++) MPT__PUT(in(from[i])); \
        else \
            for (int64_t i = 0; i < n; i++) MPT__PUT(in(from[i * stride])); \
    } break;
#define MPT__STORE_CASE(id, storage, in, out) \
    case id: { \
        storage *to = (storage *)data + offset; \
        if (MPT__OWN_LOOP) \
            for (int64_t i = 0; i < n; i++) to[i] = out; \
        else \
            for (int64_t i = 0; i < n; i++) to[i * stride] = out; \
    } break;

/* What elements are outside storage: known where the two functions below are called. */
typedef enum { MPT__AS_REAL, MPT__AS_F64, MPT__AS_I64 } mpt__form;

/* Loads n elements, `stride` apart, beginning with the one at `offset`; any dtype. */
static MPT__FORCE_INLINE void mpt__load_as(void *to, mpt__form form, const void *data,
    uint8_t dtype, int64_t offset, int64_t stride, int64_t n) {
#define MPT__PUT(value) \
    (form == MPT__AS_REAL  ? (void)(((mpt__real *)to)[i] = (mpt__real)value) \
     : form == MPT__AS_F64 ? (void)(((double *)to)[i] = (double)value) \
                           : (void)(((int64_t *)to)[i] = (int64_t)value))
    switch (dtype) { MPT__STORED(MPT__LOAD_CASE) }
#undef MPT__PUT
}

/* Rounds (floats) or truncates (integers) once and stores. */
static MPT__FORCE_INLINE void mpt__store_as(void *data, uint8_t dtype, int64_t offset,
    int64_t stride, const void *from, mpt__form form, int64_t n) {
#define MPT__GET(type) \
    (form == MPT__AS_REAL ? (type)((const mpt__real *)from)[i] : (type)((const double *)from)[i])
    switch (dtype) { MPT__STORED(MPT__STORE_CASE) }
#undef MPT__GET
}

static void mpt__load_real(
    mpt__real *to, const void *data, uint8_t dtype, int64_t offset, int64_t stride, int64_t n) {
    mpt__load_as(to, MPT__AS_REAL, data, dtype, offset, stride, n);
}

static void mpt__store_real(
    void *data, uint8_t dtype, int64_t offset, int64_t stride, const mpt__real *from, int64_t n) {
    mpt__store_as(data, dtype, offset, stride, from, MPT__AS_REAL, n);
}

/* For F64 storage in ordinary builds, and where an answer must not depend on mpt__real. */
static void mpt__load_f64(
    double *to, const void *data, uint8_t dtype, int64_t offset, int64_t stride, int64_t n) {
    mpt__load_as(to, MPT__AS_F64, data, dtype, offset, stride, n);
}

static void mpt__store_f64(
    void *data, uint8_t dtype, int64_t offset, int64_t stride, const double *from, int64_t n) {
    mpt__store_as(data, dtype, offset, stride, from, MPT__AS_F64, n);
}

/* For integers, exactly. */
static void mpt__load_i64(
    int64_t *to, const void *data, uint8_t dtype, int64_t offset, int64_t stride, int64_t n) {
    mpt__load_as(to, MPT__AS_I64, data, dtype, offset, stride, n);
}

/* Integers to a narrower integer dtype keep their low bits; BOOL is whether they are not 0. */
static void mpt__store_i64(
    void *data, uint8_t dtype, int64_t offset, int64_t stride, const int64_t *from, int64_t n) {
    const mpt__form form = MPT__AS_I64;
    (void)form;
    switch (dtype) {
        MPT__STORE_CASE(MPT_I64, int64_t, , from[i])
        MPT__STORE_CASE(MPT_I32, int32_t, , (int32_t)(uint32_t)(uint64_t)from[i])
        MPT__STORE_CASE(MPT_U8, uint8_t, , (uint8_t)(uint64_t)from[i])
        MPT__STORE_CASE(MPT_BOOL, uint8_t, , (uint8_t)(from[i] != 0))
    }
}

/* What is left of a number in storage of a dtype. */
static mpt__real mpt__as_stored(uint8_t dtype, mpt__real value) {
    uint64_t stored = 0;
    mpt__store_real(&stored, dtype, 0, 1, &value, 1);
    mpt__load_real(&value, &stored, dtype, 0, 1, 1);
    return value;
}

/* The largest number of a float dtype below `bound`, or `at` it. It is looked for among all floats,
   in their order: what counts is from which on the conversion itself reaches the bound. */
static float mpt__number_below(uint8_t dtype, float bound, bool at) {
    mpt__real found = 0;
    int64_t below = -0x7f800000, above = 0x7f800000;
    while (above - below > 1) {
        const int64_t middle = (below + above) / 2;
        const uint32_t bits = (uint32_t)(middle < 0 ? INT64_C(0x80000000) - middle : middle);
        const mpt__real value = mpt__as_stored(dtype, (mpt__real)mpt__f32_from_bits(bits));
        const bool is_below = value < (mpt__real)bound || (at && value == (mpt__real)bound);
        below = is_below ? middle : below, above = is_below ? above : middle;
        found = is_below ? value : found;
    }
    return (float)found;
}

#endif
