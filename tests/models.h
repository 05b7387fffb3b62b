/* models.h: what the tests of whole models share. */
#ifndef TEST_MODELS_H
#define TEST_MODELS_H

#include "golden.h"

/* CRC-32 of a text: the stream of `noise` in tools/golden.py. */
static inline uint32_t stream_of(const char *text) {
    uint32_t crc = 0xffffffffu;
    for (; *text; text++) {
        crc ^= (uint8_t)*text;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1)));
    }
    return ~crc;
}

/* [n, 3, size, size] */
static inline mpt_tensor random_pictures(mpt_context *ctx, uint32_t stream, int64_t n,
                                         int64_t size) {
    const int64_t count = n * 3 * size * size;
    float *values = (float *)malloc((size_t)count * sizeof *values);
    for (int64_t i = 0; values && i < count; i++) values[i] = golden_uniform(stream, (uint32_t)i);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(n, 3, size, size), values);
    free(values);
    return x;
}

/* Root of the mean square of (a - b) / scale, which is 1 where there is none. */
static inline double distance(const double *a, const golden_tensor *ga, const golden_tensor *b,
                              const double *scale) {
    double sum = 0;
    for (int64_t i = 0; i < b->count; i++) {
        double off = (a ? a[i] : golden_value(ga, i)) - golden_value(b, i);
        if (scale) off /= scale[i];
        sum += off * off;
    }
    return sqrt(sum / (double)(b->count ? b->count : 1));
}

#endif
