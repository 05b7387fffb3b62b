/* coordinate.c - a net that is a picture: it learns which colour is at (x, y), and writes what it
 * knows as a PNG, twice as large as what it saw.
 *
 * Coordinates alone give only blurs, as --features 0 shows. Sines and cosines of them, at random
 * frequencies, let the net draw edges (Fourier features, arXiv 2006.10739). They are computed in
 * fp32: in 16 bits the angle of a high frequency would be noise. The rest is mixed precision.
 * test arguments: --size 32 --steps 60 --width 32 --features 32 --hash-grid --out small.png */
#include "common.h"
#include "coordinate.h"
#include "picture.h"
#include "png.h"

enum { CHUNK = 4096, LARGER = 2 };

/* The middles of the pixels `first` and on, from -1 to 1. */
static void places(int width, int height, int64_t first, int64_t count, float *x) {
    for (int64_t i = 0; i < count; i++) {
        x[2 * i] = (float)((double)(2 * ((first + i) % width) + 1) / width - 1);
        x[2 * i + 1] = (float)((double)(2 * ((first + i) / width) + 1) / height - 1);
    }
}

/* Colours [height, width, 3] as bytes. */
static void render(mpt_context *ctx, const painter *p, int width, int height, uint8_t *rgb) {
    static float x[2 * CHUNK], y[3 * CHUNK];
    for (int64_t at = 0, all = (int64_t)width * height; at < all; at += CHUNK) {
        const int64_t count = all - at < CHUNK ? all - at : (int64_t)CHUNK;
        places(width, height, at, count, x);
        mpt_scope_begin(ctx);
        mpt_inference_begin(ctx);
        mpt_tensor in = mpt_from(ctx, MPT_F32, MPT_SHAPE(count, 2), x);
        mpt_read_f32(mpt_sigmoid(paint(p, in)), y, 3 * count);
        mpt_inference_end(ctx);
        mpt_scope_end(ctx);
        for (int64_t i = 0; i < 3 * count; i++) rgb[3 * at + i] = (uint8_t)(y[i] * 255 + 0.5f);
    }
}

/* Peak signal to noise, in dB: what is written, or without it the mean colour, against what was to
 * be learned. */
static double psnr(const picture *p, const uint8_t *rgb) {
    double squares = 0, sum[3] = {0, 0, 0};
    const int count = 3 * p->width * p->height;
    for (int i = 0; i < count; i++) {
        const double off = (double)p->rgb[i] - (rgb ? rgb[i] / 255.0 : 0.0);
        squares += off * off, sum[i % 3] += off;
    }
    for (int c = 0; c < 3 && !rgb; c++) squares -= sum[c] * sum[c] * 3 / count;
    return 10 * log10(count / (squares + 1e-12));
}

/* Every pixel's place and colour, in an order that is new each epoch. */
static mpt_loader make_loader(mpt_context *ctx, const picture *p, int64_t batch) {
    const int64_t count = (int64_t)p->width * p->height;
    float *x = (float *)malloc((size_t)count * 2 * sizeof *x);
    mpt_memory_dataset_config pixels = mpt_memory_dataset_config_default();
    if (x) places(p->width, p->height, 0, count, x);
    pixels.count = count;
    pixels.dtype = pixels.target_dtype = MPT_F32;
    pixels.shape = MPT_SHAPE(2), pixels.target_shape = MPT_SHAPE(3);
    pixels.inputs = x, pixels.targets = p->rgb;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = batch < count ? batch : count, lc.shuffle = lc.drop_last = true;
    mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &pixels), &lc);
    free(x);
    return loader;
}

static void train(mpt_context *ctx, const coordinate_settings *s, const painter *artist,
                  mpt_loader loader) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr, adamw.weight_decay = 0;
    mpt_optimizer optimizer = mpt_adamw(artist->net, &adamw);
    mpt_cosine_annealing(optimizer, s->steps, 0.0, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = precisions[s->precision].scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    progress bar = progress_begin("", true, 0, s->steps);
    while (progress_goes_on(&bar, ctx)) {
        mpt_batch b;
        if (!mpt_loader_next(loader, &b)) continue; /* the next call begins an epoch */
        mpt_step_begin(ctx);
        mpt_tensor loss = mpt_mse_loss(mpt_sigmoid(paint(artist, b.x)), b.y, MPT_MEAN);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
    }
    progress_clear(&bar);
}

/* A net that learned the picture; rgb: what it knows of it, as large as that was. */
static painter learn(mpt_context *ctx, const coordinate_settings *s, const picture *p, bool grid,
                     uint8_t *rgb) {
    painter artist = make_painter(ctx, s, grid);
    train(ctx, s, &artist, make_loader(ctx, p, s->batch));
    render(ctx, &artist, p->width, p->height, rgb);
    if (!mpt_failed(ctx))
        printf("%s: %lld parameters, PSNR of the %d x %d that it learned: %.2f dB\n",
               grid ? "Hash grid" : "Net", (long long)mpt_parameter_numel(artist.net), p->width,
               p->height, psnr(p, rgb));
    return artist;
}

static int run(mpt_context *ctx, const coordinate_settings *s, const picture *p) {
    const int width = LARGER * p->width, height = LARGER * p->height;
    uint8_t *rgb = (uint8_t *)malloc(3 * (size_t)width * (size_t)height);
    bool written = false;
    double quality = 0;
    if (rgb) {
        painter artist = learn(ctx, s, p, false, rgb);
        const double before = quality = psnr(p, rgb);
        if (s->hash_grid) {
            artist = learn(ctx, s, p, true, rgb), quality = psnr(p, rgb);
            printf("With the grid the squared error is %.2f times that without, in as many steps\n",
                   pow(10.0, (before - quality) / 10));
        }
        render(ctx, &artist, width, height, rgb);
        written = !mpt_failed(ctx) && png_write(s->out, width, height, rgb);
    }
    free(rgb);
    if (mpt_failed(ctx)) return fail_with_error("coordinate", ctx);
    if (!written) return fail("coordinate", EXIT_BAD_INPUT, "%s: cannot be written", s->out);
    printf("%s: %d x %d pixels\n", s->out, width, height);
    if (quality > psnr(p, NULL)) return 0;
    return fail("coordinate", 1, "one colour would have been nearer: %.2f dB", psnr(p, NULL));
}

int main(int argc, char **argv) {
    coordinate_settings s = {128,   600,  2048, 128, 128, 1, 0, 0.005, 8, NULL, "coordinate.png",
                             false, false};
    char error[256];
    if (!options_parse(coordinate_rows, COORDINATE_ROWS, argc, argv, &s, error, sizeof error))
        return fail("coordinate", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("coordinate", coordinate_rows, COORDINATE_ROWS, stdout), 0;
    picture p = s.image ? picture_read(s.image, (int)s.size) : picture_draw((int)s.size);
    if (!p.rgb)
        return fail("coordinate", EXIT_BAD_INPUT, "%s: %s", s.image ? s.image : "--size", p.error);
    mpt_config config = default_config("coordinate");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    const int status = ctx ? run(ctx, &s, &p) : fail_with_error("coordinate", ctx);
    mpt_destroy(ctx);
    free(p.rgb);
    return status;
}
