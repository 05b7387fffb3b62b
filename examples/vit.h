/* vit.h - Vision Transformer with the names of torchvision's. An Image is Worth 16x16 Words, arXiv
 * 2010.11929. */
#ifndef VIT_H
#define VIT_H

#include <stdio.h>

#include "transformer.h"

/* Of ViT-B/16: 768, 12, 12, 3072, 16, 224, 3, 1000. */
typedef struct vit_shape {
    int64_t width, layers, heads, hidden; /* hidden: of the GELU layers */
    int64_t patch, size, channels;        /* pictures are size x size, patches patch x patch */
    int64_t classes;
    double dropout;
} vit_shape;

/* One token for each patch, in rows, and before them that of the class. */
static inline mpt_tensor vit_tokens(mpt_module self, mpt_tensor pictures) {
    mpt_tensor tokens;
    mpt_scope_begin(self.context);
    mpt_tensor x = run_child(self, "conv_proj", mpt_to_channels_last(pictures));
    mpt_tensor class_token = mpt_parameter(self, "class_token");
    const mpt_shape patches = mpt_get_shape(x), token = mpt_get_shape(class_token);
    x = mpt_transpose(mpt_flatten(x, 2, 3), 1, 2);
    mpt_tensor parts[2] = {mpt_expand(class_token, MPT_SHAPE(patches.dim[0], 1, token.dim[2])), x};
    tokens = mpt_add(mpt_cat(parts, 2, 1), mpt_parameter(self, "encoder.pos_embedding"));
    mpt_scope_return(self.context, &tokens, 1);
    return tokens;
}

/* `user` is the number of blocks. */
static inline mpt_status vit_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                     mpt_tensor *out, int n_out) {
    (void)n_in;
    mpt_scope_begin(self.context);
    mpt_tensor x = vit_tokens(self, in[0]);
    for (int i = 0; i < *(const int *)user; i++) {
        char name[64];
        snprintf(name, sizeof name, "encoder.layers.encoder_layer_%d", i);
        x = run_child(self, name, x);
    }
    x = run_child(self, "encoder.ln", x);
    out[0] = run_child(self, "heads.head", mpt_flatten(mpt_slice(x, 1, 0, 1, 1), 1, 2));
    return mpt_scope_return(self.context, out, n_out);
}

/* Pictures [N, channels, size, size] -> logits [N, classes]. */
static inline mpt_module make_vit(mpt_context *ctx, const vit_shape *s) {
    static mpt_module_class vit = {"vit", vit_forward, NULL, NULL, NULL, 1, 1};
    static transformer_kind kind = {"self_attention", false, false, true, 1e-6};
    static int depths[TRANSFORMER_BLOCKS + 1];
    const int64_t tokens = (s->size / s->patch) * (s->size / s->patch) + 1;
    depths[s->layers] = (int)s->layers;
    mpt_module self = mpt_module_create(ctx, &vit, &depths[s->layers]);
    mpt_module encoder = mpt_nn_list(ctx, MPT_END), layers = mpt_nn_list(ctx, MPT_END);
    mpt_module heads = mpt_nn_list(ctx, MPT_END);
    mpt_conv_config conv = mpt_conv_config_default();
    conv.stride[0] = conv.stride[1] = s->patch;
    const mpt_init normal = mpt_init_make(MPT_INIT_NORMAL, 0.0, 0.02);
    mpt_add_parameter(self, "class_token", MPT_SHAPE(1, 1, s->width), normal);
    mpt_add_child(self, "conv_proj",
                  mpt_nn_conv2d(ctx, s->channels, s->width, s->patch, s->patch, &conv));
    mpt_add_parameter(encoder, "pos_embedding", MPT_SHAPE(1, tokens, s->width), normal);
    for (int i = 0; i < (int)s->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "encoder_layer_%d", i);
        mpt_add_child(
            layers, name,
            transformer_block(ctx, s->width, (int)s->heads, s->hidden, &kind, s->dropout));
    }
    mpt_add_child(encoder, "layers", layers);
    mpt_add_child(encoder, "ln", layer_norm(ctx, s->width, kind.eps));
    mpt_add_child(self, "encoder", encoder);
    mpt_add_child(heads, "head", mpt_nn_linear(ctx, s->width, s->classes));
    mpt_add_child(self, "heads", heads);
    return self;
}

#endif
