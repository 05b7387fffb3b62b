/* picture.h - the picture that coordinate.c learns: an evening at the sea, drawn here, or a file
 * where the build has stb_image (MPTRAIN_STB_IMAGE). */
#ifndef PICTURE_H
#define PICTURE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef MPTRAIN_STB_IMAGE
#if __has_include(<stb_image.h>)
#include <stb_image.h>
#else
#include <stb/stb_image.h>
#endif
#endif

typedef struct picture {
    int width, height;
    float *rgb; /* [height, width, 3], 0 to 1; to be freed; NULL: `error` says why */
    const char *error;
} picture;

static inline float picture_shade(double value) {
    return (float)(value < 0 ? 0 : value > 1 ? 1 : value);
}

/* Sky, sun and hills above the horizon, waves and the sun's path below; x and y from 0 to 1. */
static inline void picture_paint(double x, double y, float *rgb) {
    const double horizon = 0.62, dx = x - 0.68, dy = y - 0.44, sun = sqrt(dx * dx + dy * dy);
    const double hill = horizon - 0.10 - 0.07 * sin(5 * x + 1) - 0.03 * sin(17 * x) * (1 - x);
    double red = 0.95 - 0.5 * (1 - y / horizon), green = 0.35 + 0.25 * y, blue = 0.65 - 0.4 * y;
    if (y > horizon) { /* waves grow towards us */
        const double depth = (y - horizon) / (1 - horizon), far_away = 1 / (0.12 + depth);
        const double wave = sin(60 * far_away + 9 * sin(7 * x + 20 * depth)) * (0.3 + 0.7 * depth);
        const double path = exp(-dx * dx / (0.003 + 0.02 * depth)) * (0.5 + 0.5 * wave);
        red = 0.12 + 0.06 * wave + 0.8 * path;
        green = 0.22 + 0.07 * wave + 0.45 * path;
        blue = 0.38 + 0.10 * wave + 0.1 * path;
    } else if (y > hill && x < 0.9) {
        red = 0.16, green = 0.12 + 0.1 * (y - hill), blue = 0.22;
    } else if (sun < 0.11) {
        red = 1, green = 0.86, blue = 0.45;
    } else {
        const double glow = exp(-8 * (sun - 0.11));
        red += 0.3 * glow, green += 0.3 * glow;
    }
    rgb[0] = picture_shade(red), rgb[1] = picture_shade(green), rgb[2] = picture_shade(blue);
}

static inline picture picture_make(int width, int height) {
    picture p = {width, height, NULL, "no memory for the picture"};
    p.rgb = (float *)malloc(3 * (size_t)width * (size_t)height * sizeof *p.rgb);
    return p;
}

static inline picture picture_draw(int size) {
    picture p = picture_make(size, size);
    for (int i = 0; p.rgb && i < size * size; i++)
        picture_paint((i % size + 0.5) / size, (i / size + 0.5) / size, p.rgb + 3 * i);
    return p;
}

/* The mean of each square of `step` x `step` bytes. */
static inline picture picture_reduce(const uint8_t *bytes, int width, int step, int w, int h) {
    picture p = picture_make(w, h);
    for (int i = 0; p.rgb && i < w * h * 3; i++) {
        const uint8_t *corner = bytes + 3 * (i / 3 / w * step * width + i / 3 % w * step) + i % 3;
        int sum = 0;
        for (int at = 0; at < step * step; at++) sum += corner[3 * (at / step * width + at % step)];
        p.rgb[i] = (float)sum / (float)(255 * step * step);
    }
    return p;
}

/* PNG, JPEG or BMP, made smaller by a whole number until no side is longer than `size`. */
static inline picture picture_read(const char *path, int size) {
    picture p = {0, 0, NULL, "built without image files (MPTRAIN_STB_IMAGE)"};
#ifdef MPTRAIN_STB_IMAGE
    int width = 0, height = 0, channels = 0;
    const bool sane = stbi_info(path, &width, &height, &channels) && width < 8192 && height < 8192;
    uint8_t *bytes = sane ? stbi_load(path, &width, &height, &channels, 3) : NULL;
    p.error = width < 8192 && height < 8192 ? stbi_failure_reason() : "more than 8191 pixels wide";
    if (!bytes) return p;
    const int step = ((width > height ? width : height) + size - 1) / size;
    if (width >= step && height >= step)
        p = picture_reduce(bytes, width, step, width / step, height / step);
    else
        p.error = "too narrow";
    stbi_image_free(bytes);
#else
    (void)path, (void)size, (void)picture_reduce;
#endif
    return p;
}

#endif
