/* ==== Convolutions ==== */

/* In the order of MPT__CONV_KERNELS, each with a comma behind it. */
#define MPT__CUDA_CONV_KERNELS

