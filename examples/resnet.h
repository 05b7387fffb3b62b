/* resnet.h - ResNet-18 with the names of torchvision's, for small pictures or for large ones. Deep
 * Residual Learning, arXiv 1512.03385. */
#ifndef RESNET_H
#define RESNET_H

#include "mptrain.h"

static inline mpt_tensor resnet_run(mpt_module self, const char *child, mpt_tensor x) {
    return mpt_forward(mpt_child(self, child), x);
}

/* Two convolutions around a shortcut; `user` points to a 1 where the shortcut has one, too. */
static inline mpt_status resnet_block_forward(mpt_module self, void *user, const mpt_tensor *in,
                                              int n_in, mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    mpt_tensor shortcut = *(const int *)user ? resnet_run(self, "downsample", in[0]) : in[0];
    mpt_tensor x = resnet_run(self, "bn1", resnet_run(self, "conv1", in[0]));
    const mpt_tensor sum[2] = {resnet_run(self, "conv2", x), shortcut};
    return mpt_forward_n(mpt_child(self, "bn2"), sum, 2, out, 1);
}

/* A convolution without bias, padded so that a stride of 1 keeps the size. */
static inline mpt_module resnet_conv(mpt_context *ctx, int64_t in, int64_t out, int64_t kernel,
                                     int64_t stride) {
    mpt_conv_config config = mpt_conv_config_default();
    config.bias = false;
    config.stride[0] = config.stride[1] = stride;
    config.padding[0] = config.padding[1] = kernel / 2;
    return mpt_nn_conv2d(ctx, in, out, kernel, kernel, &config);
}

/* With the relu behind it, and what is added before that, in one pass over memory. */
static inline mpt_module resnet_norm(mpt_context *ctx, int64_t channels) {
    mpt_norm_config config = mpt_norm_config_default();
    config.relu = true;
    return mpt_nn_batch_norm2d(ctx, channels, &config);
}

static inline mpt_module resnet_block(mpt_context *ctx, int64_t in, int64_t out, int64_t stride) {
    static int shortcuts[2] = {0, 1};
    static mpt_module_class cls = {"block", resnet_block_forward, NULL, NULL, NULL, 1, 1};
    const int other = stride != 1 || in != out;
    mpt_module self = mpt_module_create(ctx, &cls, &shortcuts[other]);
    mpt_add_child(self, "conv1", resnet_conv(ctx, in, out, 3, stride));
    mpt_add_child(self, "bn1", resnet_norm(ctx, out));
    mpt_add_child(self, "conv2", resnet_conv(ctx, out, out, 3, 1));
    mpt_add_child(self, "bn2", resnet_norm(ctx, out));
    if (other)
        mpt_add_child(self, "downsample",
                      mpt_sequential(ctx, resnet_conv(ctx, in, out, 1, stride),
                                     mpt_nn_batch_norm2d(ctx, out, NULL), MPT_END));
    return self;
}

/* In the layout of the pictures. `large`: the stem of large ones, which ends in a pooling. */
static inline mpt_tensor resnet_logits(mpt_module self, mpt_tensor x, bool large) {
    static const char *const layers[] = {"layer1", "layer2", "layer3", "layer4", "avgpool"};
    x = resnet_run(self, "bn1", resnet_run(self, "conv1", x));
    if (large) x = resnet_run(self, "maxpool", x);
    for (int i = 0; i < 5; i++) x = resnet_run(self, layers[i], x);
    return resnet_run(self, "fc", mpt_flatten(x, 1, -1));
}

/* `user` points to a 1 for large pictures. */
static inline mpt_status resnet_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                        mpt_tensor *out, int n_out) {
    mpt_tensor x = mpt_to_channels_last(in[0]); /* the layout that convolutions like */
    (void)n_in, (void)n_out;
    out[0] = resnet_logits(self, x, *(const int *)user != 0);
    return MPT_OK;
}

/* Pictures [N, channels, H, W] -> logits [N, classes]. Width 64 is ResNet-18; `large`: for 224 x
 * 224, else for 28 x 28 or 32 x 32. */
static inline mpt_module resnet18(mpt_context *ctx, int64_t channels, int64_t classes,
                                  int64_t width, bool large) {
    static int stems[2] = {0, 1};
    static mpt_module_class cls = {"resnet18", resnet_forward, NULL, NULL, NULL, 1, 1};
    mpt_pool_config pool = mpt_pool_config_make(3, 2, 1);
    mpt_module self = mpt_module_create(ctx, &cls, &stems[large]);
    mpt_add_child(self, "conv1", resnet_conv(ctx, channels, width, large ? 7 : 3, large ? 2 : 1));
    mpt_add_child(self, "bn1", resnet_norm(ctx, width));
    if (large) mpt_add_child(self, "maxpool", mpt_nn_max_pool2d(ctx, &pool));
    for (int i = 0; i < 4; i++) {
        const char *const name[] = {"layer1", "layer2", "layer3", "layer4"};
        const int64_t out = width << i, in = i ? out / 2 : out;
        mpt_module first = resnet_block(ctx, in, out, i ? 2 : 1);
        mpt_add_child(self, name[i],
                      mpt_sequential(ctx, first, resnet_block(ctx, out, out, 1), MPT_END));
    }
    mpt_add_child(self, "avgpool", mpt_nn_adaptive_avg_pool2d(ctx, 1, 1));
    mpt_add_child(self, "fc", mpt_nn_linear(ctx, 8 * width, classes));
    return self;
}

#endif
