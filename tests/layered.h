/* layered.h: two models of the layers that the nets of the examples do not have, as
 * tools/golden_models.py has them: Layers2d and Layers1d. */
#ifndef TEST_LAYERED_H
#define TEST_LAYERED_H

#include "../examples/transformer.h"

static inline mpt_tensor layers2d_mixed(mpt_module self, mpt_tensor x) {
    mpt_pool_config pool = mpt_pool_config_make(3, 2, 1);
    pool.ceil_mode = true, pool.count_padding = false;
    x = run_child(self, "depth", run_child(self, "stem", mpt_to_channels_last(x)));
    x = mpt_avg_pool2d(mpt_silu(run_child(self, "norm1", x)), &pool);
    return mpt_gelu_tanh(run_child(self, "instance_norm", run_child(self, "mixed", x)));
}

static inline mpt_status layers2d_forward(mpt_module self, void *user, const mpt_tensor *in,
                                          int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    const int64_t size = mpt_get_shape(in[0]).dim[2];
    mpt_tensor x = layers2d_mixed(self, in[0]), parts[2];
    parts[0] = run_child(self, "larger", run_child(self, "wider", x));
    parts[1] = mpt_interpolate(x, MPT_SHAPE(size, size), 0, MPT_NEAREST, false);
    x = run_child(self, "norm2", run_child(self, "narrow", mpt_cat(parts, 2, 1)));
    x = mpt_add(mpt_adaptive_max_pool2d(x, 5, 4), mpt_adaptive_avg_pool2d(x, 5, 4));
    out[0] = run_child(self, "fc", mpt_flatten(x, 1, 3));
    return MPT_OK;
}

/* ints: width, size, classes. [N, 3, size, size] -> [N, classes] */
static inline mpt_module make_layers2d(mpt_context *ctx, const int64_t *ints) {
    static mpt_module_class cls = {"layers2d", layers2d_forward, NULL, NULL, NULL, 1, 1};
    const int64_t w = ints[0];
    mpt_module self = mpt_module_create(ctx, &cls, NULL);
    mpt_conv_config padded = mpt_conv_config_default(), depth = padded, mixed, wider;
    padded.padding[0] = padded.padding[1] = 1;
    mixed = wider = padded;
    depth.same = true, depth.bias = false, depth.dilation[1] = 2, depth.groups = w;
    mixed.stride[0] = mixed.stride[1] = 2, mixed.groups = 2, mixed.bias = false;
    wider.stride[0] = wider.stride[1] = 2, wider.groups = 2;
    wider.output_padding[0] = wider.output_padding[1] = 1;
    mpt_add_child(self, "stem", mpt_nn_conv2d(ctx, 3, w, 3, 3, &padded));
    mpt_add_child(self, "depth", mpt_nn_conv2d(ctx, w, w, 4, 3, &depth));
    mpt_add_child(self, "norm1", mpt_nn_group_norm(ctx, 2, w, NULL));
    mpt_add_child(self, "mixed", mpt_nn_conv2d(ctx, w, w + 4, 3, 3, &mixed));
    mpt_add_child(self, "instance_norm", mpt_nn_group_norm(ctx, w + 4, w + 4, NULL));
    mpt_add_child(self, "wider", mpt_nn_conv_transpose2d(ctx, w + 4, w, 3, 3, &wider));
    mpt_add_child(self, "larger", mpt_nn_upsample(ctx, MPT_SCALAR, 1.5, MPT_BILINEAR, false));
    mpt_add_child(self, "narrow", mpt_nn_conv2d(ctx, 2 * w + 4, w, 1, 1, NULL));
    mpt_add_child(self, "norm2", mpt_nn_group_norm(ctx, 1, w, NULL));
    mpt_add_child(self, "fc", mpt_nn_linear(ctx, 20 * w, ints[2]));
    return self;
}

/* ---- sequences ---- */

/* [B, T, heads D] -> [B, heads, T, D] */
static inline mpt_tensor layers1d_heads(mpt_module self, const char *child, mpt_tensor x,
                                        int64_t heads) {
    x = run_child(self, child, x);
    const mpt_shape s = mpt_get_shape(x);
    x = mpt_reshape(x, MPT_SHAPE(s.dim[0], s.dim[1], heads, s.dim[2] / heads));
    return mpt_transpose(x, 1, 2);
}

static inline mpt_tensor layers1d_shared(mpt_module self, mpt_tensor x, int64_t heads) {
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = true, config.scale = 0.8;
    mpt_tensor q = layers1d_heads(self, "query", x, heads);
    mpt_tensor k = layers1d_heads(self, "key", x, heads / 2);
    mpt_tensor v = layers1d_heads(self, "value", x, heads / 2);
    x = mpt_scaled_dot_product_attention(q, k, v, &config);
    return mpt_flatten(mpt_transpose(x, 1, 2), 2, 3);
}

static inline mpt_tensor layers1d_conv(mpt_module self, mpt_tensor x) {
    const mpt_pool_config pool = mpt_pool_config_make(3, 1, 1);
    x = run_child(self, "bn1", run_child(self, "conv1", mpt_transpose(x, 1, 2)));
    x = run_child(self, "conv2", mpt_gelu(x));
    return mpt_transpose(mpt_add(mpt_avg_pool1d(x, &pool), mpt_max_pool1d(x, &pool)), 1, 2);
}

static inline mpt_status layers1d_forward(mpt_module self, void *user, const mpt_tensor *in,
                                          int n_in, mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    const int64_t *ints = (const int64_t *)user, length = ints[2];
    const mpt_shape ids = mpt_get_shape(in[0]);
    mpt_tensor other = mpt_slice(in[0], 1, length, ids.dim[1], 1), cross[4], a;
    mpt_tensor seen = mpt_ne_scalar(other, (double)ints[4]);
    mpt_tensor t = run_child(self, "embed", in[0]);
    cross[1] = cross[2] = mpt_slice(t, 1, length, ids.dim[1], 1);
    cross[3] = mpt_reshape(seen, MPT_SHAPE(ids.dim[0], 1, 1, ids.dim[1] - length));
    t = layers1d_conv(self, mpt_slice(t, 1, 0, length, 1));
    cross[0] = run_child(self, "rms_norm", t);
    mpt_forward_n(mpt_child(self, "cross"), cross, 4, &a, 1);
    t = mpt_add(t, a);
    t = mpt_add(t, layers1d_shared(self, t, ints[1]));
    out[0] = run_child(self, "fc", run_child(self, "bn2", mpt_flatten(t, 0, 1)));
    return MPT_OK;
}

/* ints: width, heads, length, vocabulary, padding, classes. Ids [N, length + that of the other
   text], i64 -> [N length / 2, classes] */
static inline mpt_module make_layers1d(mpt_context *ctx, const int64_t *ints) {
    static mpt_module_class cls = {"layers1d", layers1d_forward, NULL, NULL, NULL, 1, 1};
    static int64_t kept[6];
    const int64_t w = ints[0];
    memcpy(kept, ints, sizeof kept);
    mpt_module self = mpt_module_create(ctx, &cls, kept);
    mpt_conv_config same = mpt_conv_config_default(), half = same;
    mpt_norm_config rms = mpt_norm_config_default();
    same.same = true, same.bias = false, same.dilation[1] = 2, same.groups = 4;
    half.stride[1] = 2, half.padding[1] = 1;
    rms.eps = 1e-5;
    mpt_add_child(self, "embed", mpt_nn_embedding(ctx, ints[3], w, ints[4]));
    mpt_add_child(self, "conv1", mpt_nn_conv1d(ctx, w, w, 4, &same));
    mpt_add_child(self, "bn1", mpt_nn_batch_norm1d(ctx, w, NULL));
    mpt_add_child(self, "conv2", mpt_nn_conv1d(ctx, w, w, 3, &half));
    mpt_add_child(self, "rms_norm", mpt_nn_rms_norm(ctx, MPT_SHAPE(w), &rms));
    mpt_add_child(self, "cross", mpt_nn_multi_head_attention(ctx, w, (int)ints[1], NULL));
    mpt_add_child(self, "query", mpt_nn_linear_no_bias(ctx, w, w));
    mpt_add_child(self, "key", mpt_nn_linear_no_bias(ctx, w, w / 2));
    mpt_add_child(self, "value", mpt_nn_linear_no_bias(ctx, w, w / 2));
    mpt_add_child(self, "bn2", mpt_nn_batch_norm1d(ctx, w, NULL));
    mpt_add_child(self, "fc", mpt_nn_linear(ctx, w, ints[5]));
    return self;
}

#endif
