/* misuse_conv.h: the cases of test_misuse.c for convolutions. */

/* What all three take; x and w fit each other. */
#define CONVOLUTION(function, x_, w_, fault) \
    do { \
        mpt_conv_config c_ = mpt_conv_config_default(); \
        TENSOR(function, function(t_, t_, f.nil, NULL)); \
        CASE(function, BAD_HANDLE, "argument 2 is a null", function(x_, f.nil, f.nil, NULL)); \
        CASE(function, BAD_HANDLE, "argument 3", function(x_, w_, f.stale, NULL)); \
        CASE(function, SHAPE, fault, function(f.x, w_, f.nil, NULL)); \
        CASE(function, SHAPE, fault, function(x_, f.scalar, f.nil, NULL)); \
        CASE(function, SHAPE, "expected [2]", function(x_, w_, f.wide, NULL)); \
        CASE(function, DTYPE, "argument 1 is float16, argument 2 is float32", \
             function(mpt_cast(x_, MPT_F16), w_, f.nil, NULL)); \
        CASE(function, DTYPE, "argument 1 is int64", \
             function(mpt_cast(x_, MPT_I64), w_, f.nil, NULL)); \
        c_.groups = 5; \
        CASE(function, SHAPE, "in 5 groups", function(x_, w_, f.nil, &c_)); \
        c_.groups = 0; \
        CASE(function, ARGUMENT, "groups: expected 1 to 2^31", function(x_, w_, f.nil, &c_)); \
        c_ = mpt_conv_config_default(); \
        c_.stride[1] = 0; \
        CASE(function, ARGUMENT, "stride and dilation: expected 1", function(x_, w_, f.nil, &c_)); \
        c_.stride[1] = INT64_MAX; \
        CASE(function, ARGUMENT, "stride and dilation: expected 1", function(x_, w_, f.nil, &c_)); \
        c_ = mpt_conv_config_default(); \
        c_.dilation[1] = -1; \
        CASE(function, ARGUMENT, "stride and dilation: expected 1", function(x_, w_, f.nil, &c_)); \
        c_ = mpt_conv_config_default(); \
        c_.padding[1] = -1; \
        CASE(function, ARGUMENT, "padding: expected 0 to 2^31", function(x_, w_, f.nil, &c_)); \
        c_ = mpt_conv_config_default(); \
        c_.output_padding[1] = 1; \
        CASE(function, ARGUMENT, "output_padding: ", function(x_, w_, f.nil, &c_)); \
        c_ = mpt_conv_config_default(); \
        c_.same = true; \
        c_.stride[1] = 2; \
        CASE(function, ARGUMENT, "same: only with stride 1", function(x_, w_, f.nil, &c_)); \
    } while (0)

#define CONVOLUTION_LAYER(function, made, none) \
    do { \
        mpt_conv_config *l_ = NULL, bad_ = mpt_conv_config_default(); \
        LAYER(function, none); \
        bad_.groups = 2; \
        l_ = &bad_; \
        CASE(function, ARGUMENT, "in 2 groups: expected sizes of 1 or more", made); \
        bad_.groups = -1; \
        CASE(function, ARGUMENT, "groups: expected 1 to 2^31", made); \
    } while (0)

TEST(convolutions) {
    mpt_context *c = f.context;
    mpt_conv_config config = mpt_conv_config_default();
    QUIET(mpt_conv_config_default, config.groups == 1 && config.bias && config.stride[1] == 1);
    mpt_tensor image = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3, 4, 5));
    mpt_tensor line = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3, 5));
    mpt_tensor kernel = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3, 2, 2));
    mpt_tensor spread = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 2, 2, 2));
    mpt_tensor taps = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3, 2));
    CONVOLUTION(mpt_conv2d, image, kernel, "expected 4 dimensions each");
    CONVOLUTION(mpt_conv1d, line, taps, "expected 3 dimensions each");
    CONVOLUTION(mpt_conv_transpose2d, image, spread, "expected 4 dimensions each");
    config.dilation[0] = 4;
    CASE(mpt_conv2d, SHAPE, "no output: dimension 2 of input [1, 3, 4, 5]",
         mpt_conv2d(image, kernel, f.nil, &config));
    config.dilation[0] = INT32_MAX;
    CASE(mpt_conv2d, SHAPE, "no output", mpt_conv2d(image, kernel, f.nil, &config));
    config = mpt_conv_config_default();
    config.padding[1] = 4;
    CASE(mpt_conv_transpose2d, SHAPE, "no output: dimension 3",
         mpt_conv_transpose2d(image, spread, f.nil, &config));
    CASE(mpt_conv2d, SHAPE, "does not fit weight [3, 2, 2, 2]",
         mpt_conv2d(image, spread, f.nil, NULL));
    CASE(mpt_conv_transpose2d, SHAPE, "does not fit weight [2, 3, 2, 2]",
         mpt_conv_transpose2d(image, kernel, f.nil, NULL));
    mpt_tensor vast = mpt_expand(f.scalar, MPT_SHAPE(1 << 28, 1, 1 << 28, 1));
    mpt_tensor many = mpt_expand(f.scalar, MPT_SHAPE(1 << 20, 1, 1, 1));
    CASE(mpt_conv2d, SHAPE, "elements", mpt_conv2d(vast, many, f.nil, NULL));
    CASE(mpt_conv2d, SHAPE, "no output",
         mpt_conv2d(mpt_zeros(c, MPT_F32, MPT_SHAPE(1, 3, 0, 5)), kernel, f.nil, NULL));
    CONVOLUTION_LAYER(mpt_nn_conv2d, mpt_nn_conv2d(c, 3, 4, 1, 1, l_),
                      mpt_nn_conv2d(NULL, 3, 4, 1, 1, l_));
    CONVOLUTION_LAYER(mpt_nn_conv1d, mpt_nn_conv1d(c, 3, 4, 1, l_),
                      mpt_nn_conv1d(NULL, 3, 4, 1, l_));
    CONVOLUTION_LAYER(mpt_nn_conv_transpose2d, mpt_nn_conv_transpose2d(c, 3, 4, 1, 1, l_),
                      mpt_nn_conv_transpose2d(NULL, 3, 4, 1, 1, l_));
    CASE(mpt_nn_conv2d, ARGUMENT, "expected sizes of 1 or more",
         mpt_nn_conv2d(c, 3, 4, 0, 1, NULL));
    CASE(mpt_nn_conv2d, SHAPE, "elements", mpt_nn_conv2d(c, INT64_MAX, 4, INT64_MAX, 1, NULL));
    CASE(mpt_conv2d, SHAPE, "input [4, 8] and weight [4, 3, 1, 1]",
         mpt_forward(mpt_nn_conv2d(c, 3, 4, 1, 1, NULL), f.x));
    MODULE(mpt_fuse, CHECK_EQ_INT(mpt_fuse(h_, image, NULL, 0), -1));
    MODULE(mpt_unfuse, mpt_unfuse(h_));
    mpt_module conv = mpt_nn_conv2d(c, 3, 4, 1, 1, NULL);
    CASE(mpt_fuse, BAD_HANDLE, "x is a null handle",
         CHECK_EQ_INT(mpt_fuse(conv, f.nil, NULL, 0), -1));
    CASE(mpt_fuse, BAD_HANDLE, "x", CHECK_EQ_INT(mpt_fuse(conv, f.stale, NULL, 0), -1));
    CASE(mpt_fuse, STATE, "a recording is under way", mpt_record_begin(c);
         CHECK_EQ_INT(mpt_fuse(conv, image, NULL, 0), -1));
    QUIET(mpt_fuse, mpt_fuse(conv, image, NULL, 0) == 0);
}
