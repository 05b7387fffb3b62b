/* ---------------------------------------------------------------------------------------------
 * 03_api_models.h: the public API of what convolutional networks and transformers are made of.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__03_API_MODELS_INCLUDED
#define MPT__03_API_MODELS_INCLUDED

#include "02_api_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Convolution ========================================================================== */

/* Images are [N, C, H, W], as in PyTorch, in memory contiguous or channels last, that is as a dense
   [N, H, W, C], which convolutions compute in. What comes from a channels-last tensor, by a
   convolution or elementwise, is channels last too; other layouts are copied where they meet a
   convolution, in launches of their own. So convert a batch once, at the start of the net. */
MPTRAIN_API mpt_tensor mpt_to_channels_last(mpt_tensor x); /* x itself if it is */
MPTRAIN_API bool mpt_is_channels_last(mpt_tensor x);       /* false for other ranks than 4 */

/* Pairs: along H and along W. One dimension: the second one. */
typedef struct mpt_conv_config {
    int64_t stride[2];         /* 1 */
    int64_t padding[2];        /* 0; zeros on both sides. Transposed: so much less output */
    int64_t output_padding[2]; /* 0; transposed only: more output at the end */
    int64_t dilation[2];       /* 1 */
    int64_t groups;            /* 1; of channels, each with kernels of its own */
    bool same;                 /* stride 1: padding such that the output has the input's size, an
                                  odd one more at the end; `padding` does not count */
    bool bias;                 /* true; layers: whether there is one */
} mpt_conv_config;
MPTRAIN_API mpt_conv_config mpt_conv_config_default(void);

/* As in torch.nn.functional: x [N, C, H, W], weight [O, C / groups, KH, KW], bias [O] or a null
   handle -> [N, O, OH, OW] with OH = (H + 2 padding - dilation (KH - 1) - 1) / stride + 1. Of one
   dimension without H. Transposed, the gradient of such a convolution by its input: weight [C,
   O / groups, KH, KW] -> OH = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1.
   fp32 sums whatever the dtype; f16 or bf16 inside autocast. A NULL config means defaults. */
MPTRAIN_API mpt_tensor mpt_conv2d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  const mpt_conv_config *config);
MPTRAIN_API mpt_tensor mpt_conv1d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                  const mpt_conv_config *config);
MPTRAIN_API mpt_tensor mpt_conv_transpose2d(mpt_tensor x, mpt_tensor weight, mpt_tensor bias,
                                            const mpt_conv_config *config);

/* Layers of them, parameters "weight" and "bias", with PyTorch's default values: uniform within 1 /
   sqrt(second dimension of weight times kernel elements). */
MPTRAIN_API mpt_module mpt_nn_conv2d(mpt_context *context, int64_t in, int64_t out,
                                     int64_t kernel_h, int64_t kernel_w,
                                     const mpt_conv_config *config);
MPTRAIN_API mpt_module mpt_nn_conv1d(mpt_context *context, int64_t in, int64_t out, int64_t kernel,
                                     const mpt_conv_config *config);
MPTRAIN_API mpt_module mpt_nn_conv_transpose2d(mpt_context *context, int64_t in, int64_t out,
                                               int64_t kernel_h, int64_t kernel_w,
                                               const mpt_conv_config *config);

/* ==== Normalisation and pooling ============================================================ */

/* ==== Embedding and attention ============================================================== */

#ifdef __cplusplus
}
#endif
#endif /* MPT__03_API_MODELS_INCLUDED */
