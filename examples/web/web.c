/* web.c - the digits net in a browser: `make web` writes build/web/digits.html, one file that needs
 * no server. page.html shows what these functions tell. All runs have the portable bits, so that a
 * page and this program, which prints hashes, agree:
 *
 *   web 20          the hashes of all runs behind 20 steps */
#include "../common.h"
#include "../data.h"

#ifdef __EMSCRIPTEN__
#include <emscripten.h>
#define FOR_PAGE EMSCRIPTEN_KEEPALIVE
#else
#define FOR_PAGE
#endif

enum { BATCH = 64, TRAIN_DIGITS = 8192, TEST_DIGITS = 1000, HIDDEN = 128, RUNS = 4 };

/* Run 0 is what the page draws. The others learn from a loss that is one of 100,000 terms of a sum:
 * most of its gradients are too small for fp16. */
typedef struct run {
    mpt_dtype precision;
    bool scaled;
    double term;
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_loader loader, tests;
    double zeros; /* of the last step */
} run;

static run runs[RUNS] = {{MPT_F16, true, 1, NULL, {0}, {0}, {0}, {0}, {0}, 0},
    {MPT_F32, false, 1e-5, NULL, {0}, {0}, {0}, {0}, {0}, 0},
    {MPT_F16, false, 1e-5, NULL, {0}, {0}, {0}, {0}, {0}, 0},
    {MPT_F16, true, 1e-5, NULL, {0}, {0}, {0}, {0}, {0}, 0}};
static float filters[HIDDEN * DIGITS_PIXELS], pixels[DIGITS_PIXELS], probability[10];

FOR_PAGE bool web_begin(int number, int seed) {
    run *r = &runs[number];
    mpt_config config = default_config("web");
    config.isa = MPT_ISA_PORTABLE, config.seed = (uint64_t)seed, config.threads = 1;
    mpt_destroy(r->ctx);
    mpt_context *ctx = r->ctx = mpt_create(&config);
    mpt_dataset digits = data_drawn(ctx, DIGITS_TRAIN_SEED, TRAIN_DIGITS);
    mpt_dataset unseen = data_drawn(ctx, DIGITS_TEST_SEED, TEST_DIGITS);
    mpt_normalize(digits, DATA_MEAN, DATA_DEVIATION);
    mpt_normalize(unseen, DATA_MEAN, DATA_DEVIATION);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    r->tests = mpt_loader_create(ctx, unseen, &lc);
    lc.shuffle = true;
    r->loader = mpt_loader_create(ctx, digits, &lc);
    r->net = mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, DIGITS_PIXELS, HIDDEN),
        mpt_nn_relu(ctx), mpt_nn_linear(ctx, HIDDEN, 64), mpt_nn_relu(ctx),
        mpt_nn_linear(ctx, 64, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
    r->optimizer = mpt_adamw(r->net, NULL);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = r->scaled;
    r->scaler = mpt_grad_scaler(ctx, &sc);
    return !mpt_failed(ctx);
}

/* The share of the first layer's gradients that are exactly zero. */
static double share_of_zeros(run *r) {
    double zeros = 0;
    mpt_read_f32(mpt_grad(mpt_parameter(r->net, "1.weight")), filters, HIDDEN * DIGITS_PIXELS);
    for (int i = 0; i < HIDDEN * DIGITS_PIXELS; i++) zeros += filters[i] == 0.0f;
    return zeros / (HIDDEN * DIGITS_PIXELS);
}

/* One step; its loss, or -1. */
FOR_PAGE double web_step(int number) {
    run *r = &runs[number];
    mpt_batch b;
    if (!mpt_loader_next(r->loader, &b) && !mpt_loader_next(r->loader, &b)) return -1;
    mpt_step_begin(r->ctx);
    mpt_autocast_begin(r->ctx, r->precision);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(r->net, b.x), b.y, NULL);
    mpt_autocast_end(r->ctx);
    double value = mpt_item(loss);
    mpt_zero_grad(r->optimizer);
    mpt_backward(mpt_scale_loss(r->scaler, mpt_mul_scalar(loss, r->term)));
    if (r->term != 1) r->zeros = share_of_zeros(r);
    mpt_scaler_step(r->scaler, r->optimizer);
    mpt_scaler_update(r->scaler);
    mpt_step_end(r->ctx);
    return mpt_failed(r->ctx) ? -1 : value;
}

FOR_PAGE double web_accuracy(int number) {
    return mpt_evaluate(runs[number].net, runs[number].tests, runs[number].precision).accuracy;
}
FOR_PAGE double web_zeros(int number) { return runs[number].zeros; }
FOR_PAGE double web_scale(int number) { return mpt_get_scale(runs[number].scaler); }
FOR_PAGE int web_skipped(int number) {
    return (int)mpt_scaler_statistics(runs[number].scaler).skipped;
}
FOR_PAGE const char *web_error(int number) { return mpt_error(runs[number].ctx); }

/* The weights of the first layer, 128 pictures of 28 x 28. */
FOR_PAGE const float *web_filters(int number) {
    mpt_tensor weight = mpt_parameter(runs[number].net, "1.weight");
    return mpt_read_f32(weight, filters, HIDDEN * DIGITS_PIXELS) == MPT_OK ? filters : NULL;
}

/* Ten probabilities of what stands in web_pixels: 28 x 28, ink from 0 to 1. */
FOR_PAGE float *web_pixels(void) { return pixels; }
FOR_PAGE const float *web_predict(int number) {
    run *r = &runs[number];
    for (int i = 0; i < DIGITS_PIXELS; i++)
        pixels[i] = (pixels[i] - (float)DATA_MEAN) / (float)DATA_DEVIATION;
    mpt_scope_begin(r->ctx);
    mpt_inference_begin(r->ctx);
    mpt_tensor x = mpt_from(r->ctx, MPT_F32, MPT_SHAPE(1, DIGITS_PIXELS), pixels);
    mpt_read_f32(mpt_exp(mpt_forward(r->net, x)), probability, 10);
    mpt_inference_end(r->ctx);
    mpt_scope_end(r->ctx);
    return probability;
}

/* What the page draws for show: digit `index` of those that no run has seen. */
FOR_PAGE int web_example(int index) {
    uint8_t image[DIGITS_PIXELS], label;
    digits_render(DIGITS_TEST_SEED, index, image, &label);
    for (int i = 0; i < DIGITS_PIXELS; i++) pixels[i] = (float)image[i] / 255.0f;
    return label;
}

/* Hashes of all that the runs know behind so many steps, as text. */
FOR_PAGE const char *web_hashes(int steps) {
    static char text[RUNS * 24];
    int length = 0;
    for (int i = 0; i < RUNS; i++) {
        double loss = web_begin(i, 1) ? 0 : -1;
        for (int s = 0; s < steps && loss >= 0; s++) loss = web_step(i);
        if (loss < 0) return web_error(i);
        length += snprintf(text + length, sizeof text - (size_t)length, "%016llx ",
            (unsigned long long)mpt_state_hash(runs[i].ctx));
    }
    return text;
}

#ifndef __EMSCRIPTEN__
int main(int argc, char **argv) {
    puts(web_hashes(argc > 1 ? atoi(argv[1]) : 20));
    for (int i = 0; i < RUNS; i++) mpt_destroy(runs[i].ctx);
    return 0;
}
#endif
