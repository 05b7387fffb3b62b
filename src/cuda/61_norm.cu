/* ==== Normalisation and pooling ==== */

/* In the order of MPT__NORM_KERNELS, each with a comma behind it. */
#define MPT__CUDA_NORM_KERNELS

