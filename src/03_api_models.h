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

/* ==== Normalisation and pooling ============================================================ */

/* Norms compute in fp32 whatever goes in and give their input's dtype, also inside autocast:
   y = (x - mean) / sqrt(variance + eps) weight + bias, with the variance over n. weight and bias
   may be of another float dtype than x, or left out (null handles). eps >= 0. */

/* Over the last `dims` dimensions, whose shape weight and bias have. Layer Normalization,
   arXiv:1607.06450; torch.nn.functional.layer_norm. */
MPTRAIN_API mpt_tensor mpt_layer_norm(mpt_tensor x, int dims, mpt_tensor weight, mpt_tensor bias,
                                      double eps);
/* The same without mean and bias: x / sqrt(mean of x^2 + eps) weight. arXiv:1910.07467. */
MPTRAIN_API mpt_tensor mpt_rms_norm(mpt_tensor x, int dims, mpt_tensor weight, double eps);
/* In one pass over memory: *sum = x + residual, of one shape, rounded to their dtype, and the norm
   of that. */
MPTRAIN_API mpt_tensor mpt_add_layer_norm(mpt_tensor x, mpt_tensor residual, int dims,
                                          mpt_tensor weight, mpt_tensor bias, double eps,
                                          mpt_tensor *sum);
MPTRAIN_API mpt_tensor mpt_add_rms_norm(mpt_tensor x, mpt_tensor residual, int dims,
                                        mpt_tensor weight, double eps, mpt_tensor *sum);
/* [N, C, ..] over all but dimension 1, weight and bias [C]: with mean and variance [C], which get
   no gradient, or, where both are null handles, with those of the batch, which then must have more
   than one value for each channel. arXiv:1502.03167; torch.nn.functional.batch_norm, whose running
   statistics are the modules' here. */
MPTRAIN_API mpt_tensor mpt_batch_norm(mpt_tensor x, mpt_tensor mean, mpt_tensor variance,
                                      mpt_tensor weight, mpt_tensor bias, double eps);
/* [N, C, ..] over groups of neighbouring channels of one sample, weight and bias [C]; as many
   groups as channels: instance norm. arXiv:1803.08494; torch.nn.functional.group_norm. */
MPTRAIN_API mpt_tensor mpt_group_norm(mpt_tensor x, int64_t groups, mpt_tensor weight,
                                      mpt_tensor bias, double eps);

/* Of batch norm alone: momentum, the part of a new statistic in the running one (negative: 1 / the
   number of updates, which makes it the mean of all), and track, without which a module has no
   running statistics and takes those of the batch also when it does not train. */
typedef struct mpt_norm_config {
    double eps;        /* 1e-5 */
    bool weight, bias; /* true; weight 1, bias 0 at first; of RMS norm no bias */
    double momentum;   /* 0.1 */
    bool track;        /* true */
} mpt_norm_config;
MPTRAIN_API mpt_norm_config mpt_norm_config_default(void);
/* Over the last dimensions, which are `shape`. Parameters "weight", "bias". */
MPTRAIN_API mpt_module mpt_nn_layer_norm(mpt_context *context, mpt_shape shape,
                                         const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_rms_norm(mpt_context *context, mpt_shape shape,
                                       const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_group_norm(mpt_context *context, int64_t groups, int64_t channels,
                                         const mpt_norm_config *config);
/* Of [N, C] or [N, C, L], and of [N, C, H, W]. Buffers, named and saved as PyTorch's:
   "running_mean", "running_var" (over n - 1) and "num_batches_tracked". A forward in training, but
   not in inference mode, changes them; in a step, at its end, and not if it fails. An update that
   is not finite, as of a batch that overflowed, is left out and counted. In evaluation they stand
   for the batch's. */
MPTRAIN_API mpt_module mpt_nn_batch_norm1d(mpt_context *context, int64_t features,
                                           const mpt_norm_config *config);
MPTRAIN_API mpt_module mpt_nn_batch_norm2d(mpt_context *context, int64_t features,
                                           const mpt_norm_config *config);
/* A buffer by its path ("1.running_mean"); it lives as long as its module. */
MPTRAIN_API mpt_tensor mpt_buffer(mpt_module module, const char *path);
/* How many updates of running statistics were left out in a module and all below it; waits. -1 on
   error. */
MPTRAIN_API int64_t mpt_refused_updates(mpt_module module);

/* Windows that slide over [N, C, H, W], one number for H and one for W; in 1d over [N, C, L] by the
   first numbers. Outputs are as many as fit, or, with ceil_mode, one more that begins inside and
   ends beyond. */
typedef struct mpt_pool_config {
    int64_t window[2];
    int64_t step[2];    /* 0: as large as the window */
    int64_t padding[2]; /* on both sides, at most half the window */
    bool ceil_mode;     /* false */
    bool count_padding; /* true: the padding's zeros count in means */
} mpt_pool_config;
MPTRAIN_API mpt_pool_config mpt_pool_config_make(int64_t window, int64_t step, int64_t padding);
/* The largest element of each window (a NaN is larger than all; of equal ones the first gets the
   gradient), or their mean. NULL means windows of 2. Torch's max_pool2d and avg_pool2d. The result
   lies in memory as x does, its channels innermost or not. */
MPTRAIN_API mpt_tensor mpt_max_pool2d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_avg_pool2d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_max_pool1d(mpt_tensor x, const mpt_pool_config *config);
MPTRAIN_API mpt_tensor mpt_avg_pool1d(mpt_tensor x, const mpt_pool_config *config);
/* [N, C, height, width] whatever the size of x: element i is of those from floor(i in / out) to
   ceil((i + 1) in / out). */
MPTRAIN_API mpt_tensor mpt_adaptive_avg_pool2d(mpt_tensor x, int64_t height, int64_t width);
MPTRAIN_API mpt_tensor mpt_adaptive_max_pool2d(mpt_tensor x, int64_t height, int64_t width);
MPTRAIN_API mpt_module mpt_nn_max_pool2d(mpt_context *context, const mpt_pool_config *config);
MPTRAIN_API mpt_module mpt_nn_avg_pool2d(mpt_context *context, const mpt_pool_config *config);
MPTRAIN_API mpt_module mpt_nn_adaptive_avg_pool2d(mpt_context *context, int64_t height,
                                                  int64_t width);

/* ==== Embedding and attention ============================================================== */

#ifdef __cplusplus
}
#endif
#endif /* MPT__03_API_MODELS_INCLUDED */
