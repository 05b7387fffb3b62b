/* misuse_norm.h: the cases of test_misuse.c for norms and pooling. */

TEST(norms) {
    mpt_context *c = f.context;
    mpt_norm_config config = mpt_norm_config_default();
    mpt_tensor sum, eight = mpt_ones(c, MPT_F32, MPT_SHAPE(8)), nil = f.nil;
    mpt_tensor image = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 4, 3, 3));
    TENSOR(mpt_layer_norm, mpt_layer_norm(t_, 1, nil, nil, 1e-5));
    CASE(mpt_layer_norm, ARGUMENT, "0 dimensions to normalise",
         mpt_layer_norm(f.x, 0, nil, nil, 0));
    CASE(mpt_layer_norm, ARGUMENT, "has 1 to 2", mpt_layer_norm(f.x, 3, nil, nil, 0));
    CASE(mpt_layer_norm, ARGUMENT, "eps -1: expected 0", mpt_layer_norm(f.x, 1, nil, nil, -1));
    CASE(mpt_layer_norm, SHAPE, "argument 2 is [4, 8], expected [8]",
         mpt_layer_norm(f.x, 1, f.x, nil, 1e-5));
    CASE(mpt_layer_norm, SHAPE, "argument 3 is [8], expected [4, 8]",
         mpt_layer_norm(f.x, 2, nil, eight, 1e-5));
    CASE(mpt_layer_norm, DTYPE, "expected a float", mpt_layer_norm(f.longs, 1, nil, nil, 1e-5));
    CASE(mpt_layer_norm, DTYPE, "argument 2", mpt_layer_norm(f.x, 1, f.longs, nil, 1e-5));
    CASE(mpt_layer_norm, SHAPE, "at least 1", mpt_layer_norm(f.scalar, 1, nil, nil, 1e-5));
    TENSOR(mpt_rms_norm, mpt_rms_norm(t_, 1, nil, 1e-5));
    CASE(mpt_rms_norm, SHAPE, "expected [8]", mpt_rms_norm(f.x, 1, f.scalar, 1e-5));
    TENSOR(mpt_add_layer_norm, mpt_add_layer_norm(t_, t_, 1, nil, nil, 1e-5, &sum));
    TENSOR(mpt_add_rms_norm, mpt_add_rms_norm(t_, t_, 1, nil, 1e-5, &sum));
    CASE(mpt_add_layer_norm, BAD_HANDLE, "argument 2 is a null",
         mpt_add_layer_norm(f.x, f.none, 1, nil, nil, 1e-5, &sum));
    CASE(mpt_add_layer_norm, ARGUMENT, "sum is NULL",
         mpt_add_layer_norm(f.x, f.x, 1, nil, nil, 1e-5, NULL));
    CASE(mpt_add_layer_norm, SHAPE, "argument 4 is [8], expected [4, 8]",
         mpt_add_layer_norm(f.x, eight, 1, nil, nil, 1e-5, &sum));
    CASE(mpt_add_rms_norm, DTYPE, "mpt_autocast_begin",
         mpt_add_rms_norm(f.x, f.half, 1, nil, 1e-5, &sum));
    TENSOR(mpt_batch_norm, mpt_batch_norm(t_, nil, nil, nil, nil, 1e-5));
    CASE(mpt_batch_norm, ARGUMENT, "mean and variance, or neither",
         mpt_batch_norm(f.x, eight, nil, nil, nil, 1e-5));
    CASE(mpt_batch_norm, SHAPE, "one value for each channel",
         mpt_batch_norm(mpt_slice(f.x, 0, 0, 1, 1), nil, nil, nil, nil, 1e-5));
    CASE(mpt_batch_norm, SHAPE, "at least 2", mpt_batch_norm(eight, nil, nil, nil, nil, 1e-5));
    CASE(mpt_batch_norm, SHAPE, "argument 4 is [4, 8], expected [8]",
         mpt_batch_norm(f.x, f.x, f.x, nil, nil, 1e-5));
    TENSOR(mpt_batch_norm_relu, mpt_batch_norm_relu(t_, nil, nil, nil, nil, 1e-5, t_));
    CASE(mpt_batch_norm_relu, SHAPE, "argument 6 is [8], expected [4, 8]",
         mpt_batch_norm_relu(f.x, nil, nil, nil, nil, 1e-5, eight));
    CASE(mpt_batch_norm_relu, DTYPE, "mpt_autocast_begin",
         mpt_batch_norm_relu(f.x, nil, nil, nil, nil, 1e-5, f.half));
    CASE(mpt_batch_norm_relu, BAD_HANDLE, "null",
         mpt_batch_norm_relu(f.none, nil, nil, nil, nil, 1e-5, f.x));
    TENSOR(mpt_group_norm, mpt_group_norm(t_, 2, nil, nil, 1e-5));
    CASE(mpt_group_norm, ARGUMENT, "3 groups do not divide", mpt_group_norm(f.x, 3, nil, nil, 0));
    CASE(mpt_group_norm, ARGUMENT, "0 groups", mpt_group_norm(f.x, 0, nil, nil, 0));
    QUIET(mpt_norm_config_default, config.eps > 0 && config.track);
    LAYER(mpt_nn_layer_norm, mpt_nn_layer_norm(NULL, MPT_SHAPE(3), NULL));
    LAYER(mpt_nn_rms_norm, mpt_nn_rms_norm(NULL, MPT_SHAPE(3), NULL));
    LAYER(mpt_nn_group_norm, mpt_nn_group_norm(NULL, 1, 3, NULL));
    LAYER(mpt_nn_batch_norm1d, mpt_nn_batch_norm1d(NULL, 3, NULL));
    LAYER(mpt_nn_batch_norm2d, mpt_nn_batch_norm2d(NULL, 3, NULL));
    CASE(mpt_nn_layer_norm, SHAPE, "of 1 or more", mpt_nn_layer_norm(c, MPT_SHAPE(3, 0), NULL));
    CASE(mpt_nn_rms_norm, SHAPE, "of 1 or more", mpt_nn_rms_norm(c, MPT_SCALAR, NULL));
    CASE(mpt_nn_group_norm, SHAPE, "of 1 or more", mpt_nn_group_norm(c, 1, -3, NULL));
    CASE(mpt_nn_group_norm, ARGUMENT, "2 groups do not", mpt_nn_group_norm(c, 2, 3, NULL));
    CASE(mpt_nn_batch_norm1d, SHAPE, "of 1 or more", mpt_nn_batch_norm1d(c, 0, NULL));
    CASE(mpt_nn_batch_norm2d, SHAPE, "elements", mpt_nn_batch_norm2d(c, INT64_MAX / 2, NULL));
    config.momentum = 1.5;
    CASE(mpt_nn_batch_norm2d, ARGUMENT, "momentum 1.5", mpt_nn_batch_norm2d(c, 3, &config));
    config.eps = (double)NAN;
    CASE(mpt_nn_layer_norm, ARGUMENT, "eps", mpt_nn_layer_norm(c, MPT_SHAPE(3), &config));
    CASE(mpt_forward, SHAPE, "expected [N, C, H, W]",
         mpt_forward(mpt_nn_batch_norm2d(c, 8, NULL), f.x));
    CASE(mpt_forward, SHAPE, "expected [N, C] or [N, C, L]",
         mpt_forward(mpt_nn_batch_norm1d(c, 4, NULL), image));
    CASE(mpt_batch_norm, SHAPE, "argument 2 is [3], expected [4]",
         mpt_forward(mpt_nn_batch_norm2d(c, 3, NULL), image));
    MODULE(mpt_buffer, mpt_buffer(h_, "running_mean"));
    CASE(mpt_buffer, ARGUMENT, "has no buffer \"weight\"",
         mpt_buffer(mpt_nn_batch_norm1d(c, 3, NULL), "weight"));
    CASE(mpt_buffer, ARGUMENT, "has no buffer \"9.running_var\"",
         mpt_buffer(f.net, "9.running_var"));
    CASE(mpt_buffer, ARGUMENT, "(null)", mpt_buffer(f.net, NULL));
    MODULE(mpt_refused_updates, CHECK(mpt_refused_updates(h_) <= 0));
    CASE(mpt_release, STATE, "mpt_",
         mpt_release(mpt_buffer(mpt_nn_batch_norm1d(c, 3, NULL), "running_mean")));
    CASE(mpt_copy_module, SHAPE, "no buffer", mpt_norm_config plain = mpt_norm_config_default();
         plain.track = false;
         mpt_copy_module(mpt_nn_batch_norm1d(c, 3, NULL), mpt_nn_batch_norm1d(c, 3, &plain)));
}

TEST(pooling) {
    mpt_context *c = f.context;
    mpt_pool_config two = mpt_pool_config_make(2, 0, 0), bad = mpt_pool_config_make(0, 1, 0);
    mpt_tensor image = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 4, 3, 3));
    QUIET(mpt_pool_config_make, two.window[1] == 2 && two.count_padding);
#define POOLS(kind) \
    TENSOR(mpt_##kind##_pool2d, mpt_##kind##_pool2d(t_, &two)); \
    TENSOR(mpt_##kind##_pool1d, mpt_##kind##_pool1d(t_, &two)); \
    TENSOR(mpt_adaptive_##kind##_pool2d, mpt_adaptive_##kind##_pool2d(t_, 1, 1)); \
    CASE(mpt_##kind##_pool2d, SHAPE, "expected [N, C, H, W]", mpt_##kind##_pool2d(f.x, &two)); \
    CASE(mpt_##kind##_pool1d, SHAPE, "expected [N, C, L]", mpt_##kind##_pool1d(f.x, &two)); \
    CASE(mpt_##kind##_pool2d, ARGUMENT, "expected 1 to 2^30", mpt_##kind##_pool2d(image, &bad)); \
    CASE(mpt_adaptive_##kind##_pool2d, ARGUMENT, "expected 1 to 2^30", \
         mpt_adaptive_##kind##_pool2d(image, 0, 1)); \
    CASE(mpt_##kind##_pool2d, ARGUMENT, "padding 2: expected 0 to half", \
         mpt_pool_config wide = mpt_pool_config_make(3, 1, 2); \
         mpt_##kind##_pool2d(image, &wide)); \
    CASE(mpt_##kind##_pool2d, SHAPE, "no output", \
         mpt_pool_config wide = mpt_pool_config_make(4, 1, 0); \
         mpt_##kind##_pool2d(image, &wide)); \
    CASE(mpt_##kind##_pool2d, DTYPE, "argument 1 is", \
         mpt_##kind##_pool2d(mpt_cast(image, MPT_I64), &two)); \
    LAYER(mpt_nn_##kind##_pool2d, mpt_nn_##kind##_pool2d(NULL, &two)); \
    CASE(mpt_##kind##_pool2d, ARGUMENT, "expected 1 to 2^30", \
         mpt_forward(mpt_nn_##kind##_pool2d(c, &bad), image))
    POOLS(max);
    POOLS(avg);
#undef POOLS
    LAYER(mpt_nn_adaptive_avg_pool2d, mpt_nn_adaptive_avg_pool2d(NULL, 1, 1));
    CASE(mpt_avg_pool2d, ARGUMENT, "expected 1 to 2^30",
         mpt_forward(mpt_nn_adaptive_avg_pool2d(c, -1, 1), image));
}
