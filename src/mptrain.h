/* The spine: includes the rooms in order. tools/amalgamate.c makes ../mptrain.h from it. */
#include "00_manual.h"
#include "01_api.h"
#include "02_api_train.h"
#include "03_api_models.h"
#include "04_api_data.h"

#if defined(MPTRAIN_BACKEND_API) || defined(MPTRAIN_IMPLEMENTATION)
#include "20_launch.h"
#endif

#if defined(MPTRAIN_IMPLEMENTATION) && !defined(MPT__IMPLEMENTED)
#define MPT__IMPLEMENTED
#include "10_platform.h"
#include "10_files.c"
#include "10_base.c"
MPT__BEGIN_KERNELS
#include "11_parallel.c"
#include "12_random.c"
#include "13_dtype.c"
#include "14_convert.c"
#include "15_math.c"
#include "17_inflate.c"
#include "18_idx.c"
#include "29_cpu.c"
#include "30_cpu_ref.c"
#include "30_cpu_halves.c"
#include "30_cpu_rows.c"
#include "31_cpu_loss.c"
#include "31_cpu_train.c"
#include "32_cpu_simd.c"
#include "32_cpu_avx2.c"
#include "33_cpu_avx512.c"
#include "34_cpu_neon.c"
#include "35_gemm.c"
#include "36_gemm_bf16.c"
#include "36_gemm_amx.c"
#include "36_gemm_neon.c"
#include "37_gemm_run.c"
#include "38_cpu_conv.c"
#include "38_cpu_conv_rows.c"
#include "38_cpu_norm.c"
#include "38_cpu_pool.c"
#include "38_cpu_attention.c"
#include "38_cpu_resize.c"
#include "38_cpu_fp8.c"
MPT__END_LEVEL
MPT__BEGIN_COLD
#include "39_cpu_table.c"
MPT__END_LEVEL
#include "40_context.h"
#include "40_tensor.c"
#include "41_autograd.c"
#include "42_autocast.c"
MPT__BEGIN_COLD
#include "43_inspect.c"
#include "44_values.c"
#include "45_anomaly.c"
MPT__END_LEVEL
#include "50_ops.c"
#include "51_ops_math.c"
#include "52_ops_shape.c"
#include "53_ops_loss.c"
#include "53_ops_conv.c"
#include "53_ops_norm.c"
#include "53_ops_attention.c"
#include "53_ops_resize.c"
MPT__BEGIN_COLD
#include "54_ops_user.c"
MPT__END_LEVEL
#include "55_ops_api.c"
#include "56_inplace.c"
#include "60_nn.c"
MPT__BEGIN_COLD
#include "61_module.c"
MPT__END_LEVEL
#include "62_optim.c"
#include "62_update.c"
#include "63_scaler.c"
MPT__BEGIN_COLD
#include "64_schedule.c"
#include "65_init.c"
#include "66_average.c"
#include "67_conv.c"
#include "67_norm.c"
#include "67_attention.c"
#include "67_resize.c"
#include "67_fp8.c"
#include "68_check.c"
#include "68_fuse.c"
MPT__END_LEVEL
MPT__BEGIN_COLD
#include "70_data.c"
MPT__END_LEVEL
MPT__BEGIN_DATA
#include "71_transform.c"
#include "71_table.c"
MPT__END_LEVEL
MPT__BEGIN_COLD
#include "71_array.c"
#include "71_picture.c"
#include "71_image.c"
MPT__END_LEVEL
MPT__BEGIN_DATA
#include "71_text.c"
MPT__END_LEVEL
MPT__BEGIN_COLD
#include "72_loader.c"
#include "73_checkpoint.c"
#include "80_fit.c"
#include "81_compile.c"
#include "90_context.c"
MPT__END_LEVEL
#include "99_end.h"
#endif
