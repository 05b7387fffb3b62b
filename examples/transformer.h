/* transformer.h - what gpt.c and vit.c share: blocks of attention and a GELU layer, each around a
 * shortcut and behind a norm. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include "mptrain.h"

enum { TRANSFORMER_BLOCKS = 96 };

/* In what the blocks of two models differ. */
typedef struct transformer_kind {
    const char *attention; /* its name */
    bool causal;           /* no look ahead */
    bool tanh;             /* GELU by tanh */
    bool dropout;          /* layers for it behind both linear ones */
    double eps;            /* of norms */
} transformer_kind;

static inline mpt_tensor run_child(mpt_module self, const char *child, mpt_tensor x) {
    return mpt_forward(mpt_child(self, child), x);
}

static inline mpt_module layer_norm(mpt_context *ctx, int64_t width, double eps) {
    mpt_norm_config config = mpt_norm_config_default();
    config.eps = eps;
    return mpt_nn_layer_norm(ctx, MPT_SHAPE(width), &config);
}

/* What lies between the two ends here. */
static inline mpt_tensor run_branch(mpt_module self, const char *norm, const char *child,
                                    mpt_tensor x) {
    mpt_scope_begin(self.context);
    mpt_tensor y = run_child(self, child, run_child(self, norm, x));
    mpt_scope_return(self.context, &y, 1);
    return y;
}

static inline mpt_status transformer_block_forward(mpt_module self, void *user,
                                                   const mpt_tensor *in, int n_in, mpt_tensor *out,
                                                   int n_out) {
    const transformer_kind *kind = (const transformer_kind *)user;
    (void)n_in;
    mpt_scope_begin(self.context);
    mpt_tensor x = mpt_add(in[0], run_branch(self, "ln_1", kind->attention, in[0]));
    out[0] = mpt_add(x, run_branch(self, "ln_2", "mlp", x));
    return mpt_scope_return(self.context, out, n_out);
}

/* [B, T, width] -> [B, T, width] */
static inline mpt_module transformer_block(mpt_context *ctx, int64_t width, int heads,
                                           int64_t hidden, transformer_kind *kind, double dropout) {
    static mpt_module_class cls = {"block", transformer_block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(ctx, &cls, kind);
    mpt_multi_head_config attention = mpt_multi_head_config_default();
    attention.causal = kind->causal, attention.dropout = dropout;
    mpt_add_child(self, "ln_1", layer_norm(ctx, width, kind->eps));
    mpt_add_child(self, kind->attention,
                  mpt_nn_multi_head_attention(ctx, width, heads, &attention));
    mpt_add_child(self, "ln_2", layer_norm(ctx, width, kind->eps));
    mpt_module mlp[5] = {mpt_nn_linear(ctx, width, hidden),
                         kind->tanh ? mpt_nn_gelu_tanh(ctx) : mpt_nn_gelu(ctx)};
    int n = 2;
    if (kind->dropout) mlp[n++] = mpt_nn_dropout(ctx, dropout);
    mlp[n++] = mpt_nn_linear(ctx, hidden, width);
    if (kind->dropout) mlp[n++] = mpt_nn_dropout(ctx, dropout);
    mpt_add_child(self, "mlp", mpt_sequential_array(ctx, mlp, n));
    return self;
}

/* `count` blocks, at most TRANSFORMER_BLOCKS, one behind the other. */
static inline mpt_module transformer_blocks(mpt_context *ctx, int64_t count, int64_t width,
                                            int heads, transformer_kind *kind) {
    mpt_module blocks[TRANSFORMER_BLOCKS];
    for (int64_t i = 0; i < count; i++)
        blocks[i] = transformer_block(ctx, width, heads, 4 * width, kind, 0.0);
    return mpt_sequential_array(ctx, blocks, (int)count);
}

#endif
