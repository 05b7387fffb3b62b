/* coordinate.h - the model of coordinate.c and its options. */
#ifndef COORDINATE_H
#define COORDINATE_H

#include "options.h"
#include "precisions.h"

typedef struct coordinate_settings {
    int64_t size, steps, batch, width, features, precision, seed;
    double lr, detail;
    const char *image, *out;
    bool hash_grid, help;
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
    {"--hash-grid", OPTION_FLAG, offsetof(coordinate_settings, hash_grid), NULL, 0, 0,
     "and then the same with tables that are learned (Instant-NGP)"},
    {"--lr", OPTION_NUMBER, offsetof(coordinate_settings, lr), NULL, 0, 0, "default 0.005"},
    {"--precision", OPTION_CHOICE, offsetof(coordinate_settings, precision), "fp32|fp16|bf16", 0, 0,
     "default fp16"},
    {"--seed", OPTION_INT, offsetof(coordinate_settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(coordinate_settings, help), NULL, 0, 0, "this list"}};
enum { COORDINATE_ROWS = sizeof coordinate_rows / sizeof *coordinate_rows };

typedef struct painter {
    mpt_module net;
    mpt_tensor waves; /* [2, features], or a null handle */
    bool grid;        /* the net begins with one, which takes places from 0 to 1 */
    mpt_dtype autocast;
} painter;

/* [N, 2] -> logits of colours [N, 3] */
static inline mpt_tensor paint(const painter *p, mpt_tensor x) {
    mpt_context *ctx = x.context;
    if (p->waves.context) {
        mpt_tensor angle = mpt_matmul(x, p->waves), both[2] = {mpt_sin(angle), mpt_cos(angle)};
        x = mpt_cat(both, 2, 1);
    }
    if (p->grid) x = mpt_add_scalar(mpt_mul_scalar(x, 0.5), 0.5);
    mpt_autocast_begin(ctx, p->autocast);
    mpt_tensor y = mpt_forward(p->net, x);
    mpt_autocast_end(ctx);
    return mpt_cast(y, MPT_F32);
}

/* With a grid instead of waves: cells from an eighth of the picture to pixels, in 8 levels. */
static inline painter make_painter(mpt_context *ctx, const coordinate_settings *s, bool grid) {
    painter p = {{NULL, 0, 0}, {NULL, 0, 0}, grid, precisions[s->precision].autocast};
    const int64_t n = grid ? 0 : s->features, w = s->width;
    mpt_hash_grid_config tables = mpt_hash_grid_config_default();
    tables.levels = 8, tables.entries = 1 << 12;
    tables.coarsest = 8, tables.finest = s->size;
    if (n) p.waves = mpt_randn(ctx, MPT_F32, MPT_SHAPE(2, n));
    if (n) p.waves = mpt_mul_scalar(p.waves, s->detail * 3.14159265358979);
    const int64_t in = grid ? tables.levels * tables.features : n ? 2 * n : 2;
    p.net = mpt_sequential(ctx, mpt_nn_linear(ctx, in, w), mpt_nn_relu(ctx),
                           mpt_nn_linear(ctx, w, w), mpt_nn_relu(ctx), mpt_nn_linear(ctx, w, w),
                           mpt_nn_relu(ctx), mpt_nn_linear(ctx, w, 3), MPT_END);
    if (grid) p.net = mpt_sequential(ctx, mpt_nn_hash_grid(ctx, &tables), p.net, MPT_END);
    return p;
}

#endif
