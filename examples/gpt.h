/* gpt.h - the model of gpt.c and its options. */
#ifndef GPT_H
#define GPT_H

#include "options.h"
#include "transformer.h"

typedef struct gpt_settings {
    int64_t layers, heads, width, context, batch, steps, write, precision, seed;
    double lr, temperature;
    const char *text;
    bool help;
} gpt_settings;

static const option_row gpt_rows[] = {
    {"--text", OPTION_TEXT, offsetof(gpt_settings, text), NULL, 0, 0, "a file to learn from"},
    {"--layers", OPTION_INT, offsetof(gpt_settings, layers), NULL, 1, TRANSFORMER_BLOCKS,
     "default 4"},
    {"--heads", OPTION_INT, offsetof(gpt_settings, heads), NULL, 1, 64, "default 4"},
    {"--width", OPTION_INT, offsetof(gpt_settings, width), NULL, 8, 8192, "default 128"},
    {"--context", OPTION_INT, offsetof(gpt_settings, context), NULL, 8, 8192, "bytes, default 128"},
    {"--batch", OPTION_INT, offsetof(gpt_settings, batch), NULL, 1, 4096, "default 16"},
    {"--steps", OPTION_INT, offsetof(gpt_settings, steps), NULL, 1, 1000000, "default 300"},
    {"--lr", OPTION_NUMBER, offsetof(gpt_settings, lr), NULL, 0, 0, "default 2e-3"},
    {"--write", OPTION_INT, offsetof(gpt_settings, write), NULL, 0, 100000, "bytes, default 300"},
    {"--temperature", OPTION_NUMBER, offsetof(gpt_settings, temperature), NULL, 0, 0,
     "default 0.7"},
    {"--precision", OPTION_CHOICE, offsetof(gpt_settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--seed", OPTION_INT, offsetof(gpt_settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(gpt_settings, help), NULL, 0, 0, "this list"}};
enum { GPT_ROWS = sizeof gpt_rows / sizeof *gpt_rows };

static const gpt_settings gpt_defaults = {4, 4, 128,  128, 16,   300,  300,
                                          2, 0, 2e-3, 0.7, NULL, false};

enum { BYTES = 256 };

/* Bytes [B, T] and positions [T] -> [B, T, width], to be multiplied by the embedding. */
static inline mpt_status gpt_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                     mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add(run_child(self, "wte", in[0]), run_child(self, "wpe", in[1]));
    out[0] = run_child(self, "ln_f", run_child(self, "h", x));
    return MPT_OK;
}

static inline mpt_module make_gpt(mpt_context *ctx, const gpt_settings *s) {
    static mpt_module_class gpt = {"gpt", gpt_forward, NULL, NULL, NULL, 2, 1};
    mpt_module self = mpt_module_create(ctx, &gpt, NULL);
    mpt_add_child(self, "wte", mpt_nn_embedding(ctx, BYTES, s->width, -1));
    mpt_add_child(self, "wpe", mpt_nn_embedding(ctx, s->context, s->width, -1));
    mpt_add_child(self, "h", transformer_blocks(ctx, s->layers, s->width, (int)s->heads, true));
    mpt_add_child(self, "ln_f", mpt_nn_layer_norm(ctx, MPT_SHAPE(s->width), NULL));
    mpt_set_init(self, NULL, mpt_init_make(MPT_INIT_NORMAL, 0.0, 0.02)); /* as GPT-2 */
    return self;
}

static inline mpt_tensor hidden(mpt_module net, mpt_tensor bytes, mpt_tensor positions) {
    mpt_tensor in[2] = {bytes, positions}, out;
    mpt_forward_n(net, in, 2, &out, 1);
    return out;
}

#endif
