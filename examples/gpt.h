/* gpt.h - the model of gpt.c, its options, and weights of GPT-2 for it. */
#ifndef GPT_H
#define GPT_H

#include "options.h"
#include "transformer.h"

typedef struct gpt_settings {
    int64_t layers, heads, width, context, batch, steps, write, precision, seed, top_k;
    double lr, temperature, top_p;
    const char *text, *tokens, *weights, *save, *prompt;
    bool uncached, help;
    int64_t vocabulary; /* no option: 256, or that of the tokens */
} gpt_settings;

static const option_row gpt_rows[] = {
    {"--text", OPTION_TEXT, offsetof(gpt_settings, text), NULL, 0, 0, "a file to learn from"},
    {"--tokens", OPTION_TEXT, offsetof(gpt_settings, tokens), NULL, 0, 0,
     "a folder with vocab.json and merges.txt"},
    {"--weights", OPTION_TEXT, offsetof(gpt_settings, weights), NULL, 0, 0,
     "a safetensors file to start from: GPT-2's"},
    {"--save", OPTION_TEXT, offsetof(gpt_settings, save), NULL, 0, 0,
     "a safetensors file for what was learned"},
    {"--prompt", OPTION_TEXT, offsetof(gpt_settings, prompt), NULL, 0, 0,
     "a text to continue, default a line end"},
    {"--layers", OPTION_INT, offsetof(gpt_settings, layers), NULL, 1, TRANSFORMER_BLOCKS,
     "default 4"},
    {"--heads", OPTION_INT, offsetof(gpt_settings, heads), NULL, 1, 64, "default 4"},
    {"--width", OPTION_INT, offsetof(gpt_settings, width), NULL, 8, 8192, "default 128"},
    {"--context", OPTION_INT, offsetof(gpt_settings, context), NULL, 8, 8192,
     "tokens, default 128"},
    {"--batch", OPTION_INT, offsetof(gpt_settings, batch), NULL, 1, 4096, "default 16"},
    {"--steps", OPTION_INT, offsetof(gpt_settings, steps), NULL, 0, 1000000, "default 300"},
    {"--lr", OPTION_NUMBER, offsetof(gpt_settings, lr), NULL, 0, 0, "default 2e-3"},
    {"--write", OPTION_INT, offsetof(gpt_settings, write), NULL, 0, 100000, "tokens, default 300"},
    {"--temperature", OPTION_NUMBER, offsetof(gpt_settings, temperature), NULL, 0, 0,
     "default 0.7"},
    {"--top-k", OPTION_INT, offsetof(gpt_settings, top_k), NULL, 1, INT32_MAX,
     "draw from the likeliest so many, default all"},
    {"--top-p", OPTION_NUMBER, offsetof(gpt_settings, top_p), NULL, 0, 0,
     "and of those that together have this probability, default 1"},
    {"--no-cache", OPTION_FLAG, offsetof(gpt_settings, uncached), NULL, 0, 0,
     "compute all of the text again for each token"},
    {"--precision", OPTION_CHOICE, offsetof(gpt_settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--seed", OPTION_INT, offsetof(gpt_settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(gpt_settings, help), NULL, 0, 0, "this list"}};
enum { GPT_ROWS = sizeof gpt_rows / sizeof *gpt_rows };

static const gpt_settings gpt_defaults = {4,    4,    128,       128,  16,    300, 300,
                                          2,    0,    INT32_MAX, 2e-3, 0.7,   1.0, NULL,
                                          NULL, NULL, NULL,      "\n", false, false, 256};

/* Tokens [B, T] and positions [T] -> [B, T, width], to be multiplied by the embedding. */
static inline mpt_status gpt_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                     mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add(run_child(self, "wte", in[0]), run_child(self, "wpe", in[1]));
    out[0] = run_child(self, "ln_f", run_child(self, "h", x));
    return MPT_OK;
}

static inline mpt_module make_gpt(mpt_context *ctx, const gpt_settings *s) {
    static mpt_module_class gpt = {"gpt", gpt_forward, NULL, NULL, NULL, 2, 1};
    static transformer_kind kind = {"attn", true, true, false, 1e-5};
    mpt_module self = mpt_module_create(ctx, &gpt, NULL);
    mpt_add_child(self, "wte", mpt_nn_embedding(ctx, s->vocabulary, s->width, -1));
    mpt_add_child(self, "wpe", mpt_nn_embedding(ctx, s->context, s->width, -1));
    mpt_add_child(self, "h", transformer_blocks(ctx, s->layers, s->width, (int)s->heads, &kind));
    mpt_add_child(self, "ln_f", mpt_nn_layer_norm(ctx, MPT_SHAPE(s->width), NULL));
    mpt_set_init(self, NULL, mpt_init_make(MPT_INIT_NORMAL, 0.0, 0.02)); /* as GPT-2 */
    return self;
}

/* Loads weights of this program, or of Hugging Face's GPT-2, which keeps matrices as [in, out] and
 * causal masks as buffers. */
static inline mpt_status gpt_load(mpt_module net, const char *path, int *loaded) {
    static const mpt_rename names[] = {
        {"transformer.*", "*", false, 0, 0},
        {"*.c_attn.weight", "*.in_proj_weight", true, 0, 0},
        {"*.c_attn.bias", "*.in_proj_bias", false, 0, 0},
        {"*.attn.c_proj.weight", "*.attn.out_proj.weight", true, 0, 0},
        {"*.attn.c_proj.bias", "*.attn.out_proj.bias", false, 0, 0},
        {"*.c_fc.weight", "*.0.weight", true, 0, 0},
        {"*.c_fc.bias", "*.0.bias", false, 0, 0},
        {"*.mlp.c_proj.weight", "*.mlp.2.weight", true, 0, 0},
        {"*.mlp.c_proj.bias", "*.mlp.2.bias", false, 0, 0}};
    static const char *const ignored[] = {"*.attn.bias", "*.attn.masked_bias", "lm_head.weight"};
    mpt_load_config config = mpt_load_config_default();
    config.renames = names, config.rename_count = sizeof names / sizeof *names;
    config.ignore = ignored, config.ignore_count = sizeof ignored / sizeof *ignored;
    return mpt_load(net, path, &config, loaded);
}

static inline mpt_tensor hidden(mpt_module net, mpt_tensor tokens, mpt_tensor positions) {
    mpt_tensor in[2] = {tokens, positions}, out;
    mpt_forward_n(net, in, 2, &out, 1);
    return out;
}

/* What next_token reads: a probability and its token for each candidate, the likeliest first. */
typedef struct candidates {
    float *p;
    int64_t *token, count;
} candidates;

/* The candidate that `draw`, from 0 to 1, falls on, of the fewest that together have top_p. */
static inline int64_t pick_token(const candidates *c, double top_p, double draw) {
    double kept = 0.0, sum = 0.0;
    int64_t most = 0, i = 0;
    while (most < c->count && (most == 0 || kept < top_p)) kept += (double)c->p[most++];
    while (i < most - 1 && (sum += (double)c->p[i]) <= draw * kept) i++;
    return c->token[i];
}

/* Draws the token behind those seen, each by its probability to the power of 1 / temperature, from
 * the likeliest --top-k, and of those from the fewest that together have --top-p. What a cache
 * holds of them is not computed again. */
static inline int64_t next_token(mpt_context *ctx, mpt_module net, const gpt_settings *s,
                                 const int64_t *seen, int64_t length, const candidates *c) {
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    const int64_t past = mpt_cache_length(net), more = length - past;
    mpt_tensor tokens = mpt_from(ctx, MPT_I64, MPT_SHAPE(1, more), seen + past), token;
    mpt_tensor places = mpt_slice(mpt_arange(ctx, MPT_I64, length), 0, past, length, 1);
    mpt_tensor y = hidden(net, tokens, places);
    y = mpt_matmul(mpt_slice(y, 1, more - 1, more, 1),
                   mpt_transpose(mpt_parameter(net, "wte.weight"), 0, 1));
    y = mpt_softmax(mpt_mul_scalar(y, 1.0 / s->temperature), -1);
    mpt_read_f32(mpt_topk(y, c->count, -1, true, &token), c->p, c->count);
    mpt_read(token, c->token, (size_t)c->count * sizeof *c->token);
    const double draw = mpt_item(mpt_rand(ctx, MPT_F32, MPT_SCALAR));
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    return pick_token(c, s->top_p, draw);
}

#endif
