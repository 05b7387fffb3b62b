/* ------------------------
 * ground/elements.c: elements of any dtype, read and written one after the other.
 * ---------------------- */
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

/* Elements that lie together have a loop of their own, for speed: any stride is right for both. */
#ifdef __OPTIMIZE_SIZE__
#define MPT__OWN_LOOP(stride) false
#else
#define MPT__OWN_LOOP(stride) ((stride) == 1)
#endif
#define MPT__LOAD_CASE(id, storage, expression) \
    case id: { \
        const storage *from = (const storage *)data + offset; \
        if (MPT__OWN_LOOP(stride)) { \
            for (int64_t i = 0; i < n; i++) { \
                const storage v = from[i]; \
                to[i] = expression; \
            } \
        } else { \
            for (int64_t i = 0; i < n; i++) { \
                const storage v = from[i * stride]; \
                to[i] = expression; \
            } \
        } \
        break; \
    }
#define MPT__STORE_CASE(id, storage, expression) \
    case id: { \
        storage *to = (storage *)data + offset; \
        if (MPT__OWN_LOOP(stride)) { \
            for (int64_t i = 0; i < n; i++) to[i] = expression; \
        } else { \
            for (int64_t i = 0; i < n; i++) to[i * stride] = expression; \
        } \
        break; \
    }
#ifndef MPTRAIN_NO_FP8
#define MPT__LOAD_F8(type) \
    MPT__LOAD_CASE(MPT_F8E4M3, uint8_t, (type)mpt__f8e4m3_to_f32(v)) \
    MPT__LOAD_CASE(MPT_F8E5M2, uint8_t, (type)mpt__f8e5m2_to_f32(v))
#define MPT__STORE_F8 \
    MPT__STORE_CASE(MPT_F8E4M3, uint8_t, mpt__f32_to_f8e4m3((float)from[i], MPT__F8_SATFINITE)) \
    MPT__STORE_CASE(MPT_F8E5M2, uint8_t, mpt__f32_to_f8e5m2((float)from[i], MPT__F8_SATFINITE))
#else
#define MPT__LOAD_F8(type)
#define MPT__STORE_F8
#endif

/* Loads n elements, `stride` apart, beginning with the one at `offset`; any dtype. */
#define MPT__DEFINE_LOAD(name, type) \
    static void name(type *to, const void *data, uint8_t dtype, int64_t offset, int64_t stride, \
                     int64_t n) { \
        switch (dtype) { \
            MPT__LOAD_CASE(MPT_F32, float, (type)v) \
            MPT__LOAD_CASE(MPT_F16, uint16_t, (type)mpt__f16_to_f32(v)) \
            MPT__LOAD_CASE(MPT_BF16, uint16_t, (type)mpt__bf16_to_f32(v)) \
            MPT__LOAD_F8(type) \
            MPT__LOAD_CASE(MPT_F64, double, (type)v) \
            MPT__LOAD_CASE(MPT_I64, int64_t, (type)v) \
            MPT__LOAD_CASE(MPT_I32, int32_t, (type)v) \
            MPT__LOAD_CASE(MPT_U8, uint8_t, (type)v) \
            MPT__LOAD_CASE(MPT_BOOL, uint8_t, (type)(v != 0)) \
        default: \
            break; \
        } \
    }
/* Rounds (floats) or truncates (integers) once and stores. */
#define MPT__DEFINE_STORE(name, type) \
    static void name(void *data, uint8_t dtype, int64_t offset, int64_t stride, const type *from, \
                     int64_t n) { \
        switch (dtype) { \
            MPT__STORE_CASE(MPT_F32, float, (float)from[i]) \
            MPT__STORE_CASE(MPT_F16, uint16_t, mpt__f32_to_f16((float)from[i])) \
            MPT__STORE_CASE(MPT_BF16, uint16_t, mpt__f32_to_bf16((float)from[i])) \
            MPT__STORE_F8 \
            MPT__STORE_CASE(MPT_F64, double, (double)from[i]) \
            MPT__STORE_CASE( \
                MPT_I64, int64_t, \
                mpt__truncate_f64((double)from[i], -9223372036854775808.0, 9223372036854775808.0)) \
            MPT__STORE_CASE( \
                MPT_I32, int32_t, \
                (int32_t)mpt__truncate_f64((double)from[i], -2147483648.0, 2147483648.0)) \
            MPT__STORE_CASE(MPT_U8, uint8_t, \
                            (uint8_t)mpt__truncate_f64((double)from[i], 0.0, 256.0)) \
            MPT__STORE_CASE(MPT_BOOL, uint8_t, (uint8_t)(from[i] == 0 ? 0 : 1)) \
        default: \
            break; \
        } \
    }

MPT__DEFINE_LOAD(mpt__load_real, mpt__real)
MPT__DEFINE_STORE(mpt__store_real, mpt__real)
/* For F64 storage in ordinary builds, and where an answer must not depend on mpt__real. */
MPT__DEFINE_LOAD(mpt__load_f64, double)
MPT__DEFINE_STORE(mpt__store_f64, double)
/* For integers, exactly. */
MPT__DEFINE_LOAD(mpt__load_i64, int64_t)

/* Integers to a narrower integer dtype keep their low bits; BOOL is whether they are not 0. */
static void mpt__store_i64(void *data, uint8_t dtype, int64_t offset, int64_t stride,
                               const int64_t *from, int64_t n) {
    switch (dtype) {
        MPT__STORE_CASE(MPT_I64, int64_t, from[i])
        MPT__STORE_CASE(MPT_I32, int32_t, (int32_t)(uint32_t)(uint64_t)from[i])
        MPT__STORE_CASE(MPT_U8, uint8_t, (uint8_t)(uint64_t)from[i])
        MPT__STORE_CASE(MPT_BOOL, uint8_t, (uint8_t)(from[i] != 0))
    default:
        break;
    }
}

#endif
