/* transformer.h - what gpt.c and vit.c share: blocks of attention and a GELU layer, each around a
 * shortcut and behind a norm. */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include "mptrain.h"

enum { TRANSFORMER_BLOCKS = 96 };

static inline mpt_tensor run_child(mpt_module self, const char *child, mpt_tensor x) {
    return mpt_forward(mpt_child(self, child), x);
}

static inline mpt_status transformer_block_forward(mpt_module self, void *user,
                                                   const mpt_tensor *in, int n_in, mpt_tensor *out,
                                                   int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add(in[0], run_child(self, "attn", run_child(self, "ln_1", in[0])));
    out[0] = mpt_add(x, run_child(self, "mlp", run_child(self, "ln_2", x)));
    return MPT_OK;
}

/* [B, T, width] -> [B, T, width] */
static inline mpt_module transformer_block(mpt_context *ctx, int64_t width, int heads,
                                           bool causal) {
    static mpt_module_class cls = {"block", transformer_block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(ctx, &cls, NULL);
    mpt_multi_head_config attention = mpt_multi_head_config_default();
    attention.causal = causal;
    mpt_add_child(self, "ln_1", mpt_nn_layer_norm(ctx, MPT_SHAPE(width), NULL));
    mpt_add_child(self, "attn", mpt_nn_multi_head_attention(ctx, width, heads, &attention));
    mpt_add_child(self, "ln_2", mpt_nn_layer_norm(ctx, MPT_SHAPE(width), NULL));
    mpt_add_child(self, "mlp",
                  mpt_sequential(ctx, mpt_nn_linear(ctx, width, 4 * width), mpt_nn_gelu_tanh(ctx),
                                 mpt_nn_linear(ctx, 4 * width, width), MPT_END));
    return self;
}

/* `count` blocks, at most TRANSFORMER_BLOCKS, one behind the other. */
static inline mpt_module transformer_blocks(mpt_context *ctx, int64_t count, int64_t width,
                                            int heads, bool causal) {
    mpt_module blocks[TRANSFORMER_BLOCKS];
    for (int64_t i = 0; i < count; i++) blocks[i] = transformer_block(ctx, width, heads, causal);
    return mpt_sequential_array(ctx, blocks, (int)count);
}

#endif
