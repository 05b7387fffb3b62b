/* ==== Embedding and attention ==== */

/* In the order of MPT__ATTENTION_KERNELS, each with a comma behind it. */
#define MPT__CUDA_ATTENTION_KERNELS

