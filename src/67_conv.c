/* ---------------------------------------------------------------------------------------------
 * 67_conv.c: convolutions: functions and layers.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__67_CONV_INCLUDED
#define MPT__67_CONV_INCLUDED

#include "61_module.c"

MPTRAIN_API mpt_conv_config mpt_conv_config_default(void) {
    mpt_conv_config config;
    memset(&config, 0, sizeof config);
    for (int d = 0; d < 2; d++) config.stride[d] = config.dilation[d] = 1;
    config.groups = 1;
    config.bias = true;
    return config;
}

/* Why the numbers of a config are none that a convolution has; NULL: they are fine. */
static const char *mpt__bad_conv(const mpt_conv_config *c, int op) {
    bool transposed = op == MPT__OP_conv_transpose2d;
    if (c->groups < 1 || c->groups > INT32_MAX) return "groups: expected 1 or more";
    for (int d = op == MPT__OP_conv1d; d < 2; d++) {
        int64_t most = c->stride[d] > c->dilation[d] ? c->stride[d] : c->dilation[d];
        if (c->stride[d] < 1 || c->dilation[d] < 1 || most > INT32_MAX)
            return "stride and dilation: expected 1 or more";
        if (c->padding[d] < 0 || c->padding[d] > INT32_MAX) return "padding: expected 0 or more";
        if (c->output_padding[d] < 0 || c->output_padding[d] >= (transposed ? most : 1))
            return transposed ? "output_padding: expected 0 to less than stride or dilation"
                              : "output_padding: only a transposed convolution has one";
        if (c->same && (transposed || c->stride[d] != 1))
            return "same: only with stride 1, and not transposed";
    }
    return NULL;
}

/* The attributes of a call, NULL config: defaults. Of one dimension the first of each pair is that
   of lines of size 1. False with an error recorded by `call`. */
static bool mpt__conv_attributes(mpt_context *context, const char *call, int op,
                                 const mpt_conv_config *config, mpt__attributes *a) {
    mpt_conv_config c = config ? *config : mpt_conv_config_default();
    const char *why = mpt__bad_conv(&c, op);
    if (why) {
        mpt__misuse(context, call, MPT_ERROR_ARGUMENT, "%s", why);
        return false;
    }
    if (op == MPT__OP_conv1d) {
        c.stride[0] = c.dilation[0] = 1;
        c.padding[0] = 0;
    }
    for (int d = 0; d < 2 && c.same; d++) c.padding[d] = 0; /* the shape rule's to find */
    *a = mpt__no_attributes;
    a->required = 2;
    a->index[MPT__CONV_GROUPS] = c.groups;
    a->index[MPT__CONV_STRIDE] = MPT__TWO(c.stride[0], c.stride[1]);
    a->index[MPT__CONV_PADDING] = MPT__TWO(c.padding[0], c.padding[1]);
    a->index[MPT__CONV_DILATION] = MPT__TWO(c.dilation[0], c.dilation[1]);
    a->index[MPT__CONV_OUTPUT_PADDING] = MPT__TWO(c.output_padding[0], c.output_padding[1]);
    a->index[MPT__CONV_SAME] = c.same;
    return true;
}

static mpt_tensor mpt__conv_call(const char *call, int op, mpt_tensor x, mpt_tensor weight,
                                 mpt_tensor bias, const mpt_conv_config *config) {
    mpt_tensor in[3];
    mpt__attributes attributes;
    in[0] = x, in[1] = weight, in[2] = bias;
    mpt_context *context = mpt__context_of(in, 3);
    if (context && !mpt__conv_attributes(context, call, op, config, &attributes))
        return mpt__null(context);
    return context ? mpt__apply1(call, op, in, 3, &attributes) : mpt__null(NULL);
}

MPTRAIN_API mpt_tensor mpt_conv2d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  const mpt_conv_config *config) {
    return mpt__conv_call("mpt_conv2d", MPT__OP_conv2d, x, weight, bias, config);
}
MPTRAIN_API mpt_tensor mpt_conv1d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  const mpt_conv_config *config) {
    return mpt__conv_call("mpt_conv1d", MPT__OP_conv1d, x, weight, bias, config);
}
MPTRAIN_API mpt_tensor mpt_conv_transpose2d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                            const mpt_conv_config *config) {
    return mpt__conv_call("mpt_conv_transpose2d", MPT__OP_conv_transpose2d, x, weight, bias,
                          config);
}

/* A layer with a weight of that shape, whose dimensions 0 and 1 are channels, still to be divided
   into groups. */
static mpt_module mpt__conv_layer(mpt_context *context, const char *call, mpt__layer layer,
                                  mpt_shape weight, const mpt_conv_config *config) {
    mpt__module *module = mpt__layer_new(context, call, layer);
    if (!module) return mpt__module_handle(context, NULL);
    const int op = mpt__layer_rows[layer].op;
    const bool transposed = op == MPT__OP_conv_transpose2d;
    int64_t out = weight.dim[transposed], fan = 1;
    bool good = true;
#ifdef MPTRAIN_NO_CONV
    mpt__error(context, MPT_ERROR_UNSUPPORTED, "built without convolutions (MPTRAIN_NO_CONV)");
#endif
    if (mpt__conv_attributes(context, call, op, config, &module->attributes)) {
        int64_t groups = module->attributes.index[MPT__CONV_GROUPS];
        for (int i = 0; i < weight.rank; i++)
            good = good && weight.dim[i] > 0 && (i > 1 || weight.dim[i] % groups == 0);
        if (!good)
            mpt__error(context, MPT_ERROR_ARGUMENT,
                       "weight %S in %lld groups: expected sizes of 1 or more, and channels that "
                       "the groups divide",
                       &weight, groups);
        weight.dim[1] /= groups;
    }
    mpt__layer_parameter(context, module, "weight", weight, 0);
    for (int i = 1; i < weight.rank && context->base.status == MPT_OK; i++) fan *= weight.dim[i];
    if (!config || config->bias) mpt__layer_parameter(context, module, "bias", MPT_SHAPE(out), fan);
    return mpt__layer_made(context, module);
}

MPTRAIN_API mpt_module mpt_nn_conv2d(mpt_context *context, int64_t in, int64_t out,
                                     int64_t kernel_h, int64_t kernel_w,
                                     const mpt_conv_config *config) {
    return mpt__conv_layer(context, "mpt_nn_conv2d", MPT__LAYER_conv2d,
                           MPT_SHAPE(out, in, kernel_h, kernel_w), config);
}
MPTRAIN_API mpt_module mpt_nn_conv1d(mpt_context *context, int64_t in, int64_t out, int64_t kernel,
                                     const mpt_conv_config *config) {
    return mpt__conv_layer(context, "mpt_nn_conv1d", MPT__LAYER_conv1d, MPT_SHAPE(out, in, kernel),
                           config);
}
MPTRAIN_API mpt_module mpt_nn_conv_transpose2d(mpt_context *context, int64_t in, int64_t out,
                                               int64_t kernel_h, int64_t kernel_w,
                                               const mpt_conv_config *config) {
    return mpt__conv_layer(context, "mpt_nn_conv_transpose2d", MPT__LAYER_conv_transpose2d,
                           MPT_SHAPE(in, out, kernel_h, kernel_w), config);
}

#endif
