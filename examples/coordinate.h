/* coordinate.h - the model of coordinate.c and its options. */
#ifndef COORDINATE_H
#define COORDINATE_H

#include "options.h"
#include "precisions.h"

typedef struct coordinate_settings {
    int64_t size, steps, batch, width, features, precision, seed;
    double lr, detail;
    const char *image, *out;
    bool help;
} coordinate_settings;

static const option_row coordinate_rows[] = {
    {"--image", OPTION_TEXT, offsetof(coordinate_settings, image), NULL, 0, 0,
     "PNG, JPEG or BMP; needs MPTRAIN_STB_IMAGE"},
    {"--out", OPTION_TEXT, offsetof(coordinate_settings, out), NULL, 0, 0,
     "default coordinate.png"},
    {"--size", OPTION_INT, offsetof(coordinate_settings, size), NULL, 8, 1024,
     "longest side, default 128"},
    {"--steps", OPTION_INT, offsetof(coordinate_settings, steps), NULL, 1, 1000000, "default 600"},
    {"--batch", OPTION_INT, offsetof(coordinate_settings, batch), NULL, 1, 65536,
     "pixels, default 2048"},
    {"--width", OPTION_INT, offsetof(coordinate_settings, width), NULL, 1, 4096, "default 128"},
    {"--features", OPTION_INT, offsetof(coordinate_settings, features), NULL, 0, 4096,
     "frequencies, default 128"},
    {"--detail", OPTION_NUMBER, offsetof(coordinate_settings, detail), NULL, 0, 0,
     "deviation of the frequencies, default 8"},
    {"--lr", OPTION_NUMBER, offsetof(coordinate_settings, lr), NULL, 0, 0, "default 0.005"},
    {"--precision", OPTION_CHOICE, offsetof(coordinate_settings, precision), "fp32|fp16|bf16", 0, 0,
     "default fp16"},
    {"--seed", OPTION_INT, offsetof(coordinate_settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(coordinate_settings, help), NULL, 0, 0, "this list"}};
enum { COORDINATE_ROWS = sizeof coordinate_rows / sizeof *coordinate_rows };

typedef struct painter {
    mpt_module net;
    mpt_tensor waves; /* [2, features], or a null handle */
    mpt_dtype autocast;
} painter;

/* [N, 2] -> logits of colours [N, 3] */
static inline mpt_tensor paint(const painter *p, mpt_tensor x) {
    mpt_context *ctx = x.context;
    if (p->waves.context) {
        mpt_tensor angle = mpt_matmul(x, p->waves), both[2] = {mpt_sin(angle), mpt_cos(angle)};
        x = mpt_cat(both, 2, 1);
    }
    mpt_autocast_begin(ctx, p->autocast);
    mpt_tensor y = mpt_forward(p->net, x);
    mpt_autocast_end(ctx);
    return mpt_cast(y, MPT_F32);
}

static inline painter make_painter(mpt_context *ctx, const coordinate_settings *s) {
    painter p = {{NULL, 0, 0}, {NULL, 0, 0}, precisions[s->precision].autocast};
    const int64_t n = s->features, w = s->width;
    if (n) p.waves = mpt_randn(ctx, MPT_F32, MPT_SHAPE(2, n));
    if (n) p.waves = mpt_mul_scalar(p.waves, s->detail * 3.14159265358979);
    p.net = mpt_sequential(ctx, mpt_nn_linear(ctx, n ? 2 * n : 2, w), mpt_nn_relu(ctx),
                           mpt_nn_linear(ctx, w, w), mpt_nn_relu(ctx), mpt_nn_linear(ctx, w, w),
                           mpt_nn_relu(ctx), mpt_nn_linear(ctx, w, 3), MPT_END);
    return p;
}

#endif
