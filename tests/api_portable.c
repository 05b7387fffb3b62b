/* api_portable.c: MPT_ISA_PORTABLE gives the bits of MPT_ISA_REF, whatever vectors there are. */
#include "mptrain.h"

#include <stdio.h>
#include <string.h>

#include "harness.h"

enum { STEPS = 4, CLASSES = 7 };

typedef struct {
    mpt_isa isa;
    int threads;
    mpt_dtype region, parameters;
} way;

static mpt_module mlp(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_flatten(c), mpt_nn_linear(c, 400, 67), mpt_nn_relu(c),
                          mpt_nn_layer_norm(c, MPT_SHAPE(67), NULL), mpt_nn_linear(c, 67, 33),
                          mpt_nn_gelu(c), mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, 33, 9),
                          mpt_nn_tanh(c), mpt_nn_linear(c, 9, CLASSES), MPT_END);
}

#ifndef MPTRAIN_NO_CONV
static mpt_module cnn(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_conv2d(c, 1, 6, 3, 3, NULL), mpt_nn_batch_norm2d(c, 6, NULL),
                          mpt_nn_relu(c), mpt_nn_max_pool2d(c, NULL),
                          mpt_nn_conv2d(c, 6, 5, 3, 3, NULL), mpt_nn_group_norm(c, 1, 5, NULL),
                          mpt_nn_flatten(c), mpt_nn_linear(c, 245, CLASSES), MPT_END);
}
#endif

#ifndef MPTRAIN_NO_ATTENTION
/* 20 pixels of 20 numbers each: a sequence. */
static mpt_status attend(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_reshape(in[0], MPT_SHAPE(-1, 20, 20));
    x = mpt_forward(mpt_child(self, "attention"), x);
    out[0] = mpt_forward(mpt_child(self, "head"), mpt_flatten(x, 1, -1));
    return MPT_OK;
}

static mpt_module transformer(mpt_context *c) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "attends", cls.forward = attend, cls.n_inputs = cls.n_outputs = 1;
    mpt_module net = mpt_module_create(c, &cls, NULL);
    mpt_multi_head_config config = mpt_multi_head_config_default();
    config.causal = true, config.dropout = 0.1;
    mpt_add_child(net, "attention", mpt_nn_multi_head_attention(c, 20, 4, &config));
    mpt_add_child(net, "head", mpt_nn_linear(c, 400, CLASSES));
    return net;
}
#endif

static uint64_t train(const way *w, mpt_module (*make)(mpt_context *c), int batch, int optimizer) {
    mpt_config config = mpt_config_default();
    config.isa = w->isa, config.threads = w->threads, config.seed = 11,
    config.device = MPT_DEVICE_CPU;
    mpt_context *c = mpt_create(&config);
    if (!c) return 0;
    mpt_module net = make(c);
    if (w->parameters != MPT_F32) mpt_half(net, w->parameters);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.momentum = 0.9, sgd.nesterov = true;
    mpt_optimizer o = optimizer ? mpt_adamw(net, NULL) : mpt_sgd(net, &sgd);
    mpt_scaler scaler = mpt_grad_scaler(c, NULL);
    for (int i = 0; i < STEPS; i++) {
        mpt_step_begin(c);
        mpt_zero_grad(o);
        for (int k = 0; k < 2; k++) { /* gradients add up */
            mpt_tensor x = mpt_randn(c, w->parameters, MPT_SHAPE(batch, 1, 20, 20));
            mpt_tensor y = mpt_argmax(mpt_randn(c, MPT_F32, MPT_SHAPE(batch, CLASSES)), 1, false);
            mpt_autocast_begin(c, w->region);
            mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
            mpt_autocast_end(c);
            mpt_backward(mpt_scale_loss(scaler, loss));
        }
        mpt_unscale(scaler, o);
        mpt_clip_grad_norm(o, 1);
        mpt_scaler_step(scaler, o);
        mpt_scaler_update(scaler);
        mpt_step_end(c);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    const uint64_t hash = mpt_module_hash(net) ^ mpt_optimizer_hash(o);
    mpt_destroy(c);
    return hash;
}

static bool portable_is_there(void) {
    mpt_config config = mpt_config_default();
    config.isa = MPT_ISA_PORTABLE;
    mpt_context *c = mpt_create(&config);
    mpt_destroy(c);
    return c != NULL;
}

static void compare(mpt_module (*make)(mpt_context *c)) {
    static const struct {
        mpt_dtype region, parameters;
    } precisions[] = {
        {MPT_F32, MPT_F32}, {MPT_BF16, MPT_F32}, {MPT_F16, MPT_F32}, {MPT_F32, MPT_BF16}};
    static const int batches[] = {1, 5, 64};
    for (int p = 0; p < 4; p++)
        for (int b = 0; b < 3; b++) {
            const int optimizer = (p + b) % 2;
            way w = {MPT_ISA_REF, 1, precisions[p].region, precisions[p].parameters};
            const uint64_t expected = train(&w, make, batches[b], optimizer);
            w.isa = MPT_ISA_PORTABLE;
            for (w.threads = 1; w.threads <= 3; w.threads += 2)
                if (train(&w, make, batches[b], optimizer) != expected || expected == 0)
                    TEST_FAIL_("precision %d, batch %d: other bits", p, batches[b]);
        }
}

TEST(dense_nets) {
    if (!portable_is_there()) SKIP("the portable level");
    compare(mlp);
}

TEST(nets_for_pictures) {
#ifdef MPTRAIN_NO_CONV
    SKIP("convolutions");
#else
    if (!portable_is_there()) SKIP("the portable level");
    compare(cnn);
#endif
}

TEST(nets_with_attention) {
#ifdef MPTRAIN_NO_ATTENTION
    SKIP("attention");
#else
    if (!portable_is_there()) SKIP("the portable level");
    compare(transformer);
#endif
}

/* Products of all small shapes, deep ones, sums that go on, and numbers at the edges. */
TEST(products) {
    static const int sizes[][3] = {{1, 1, 1},     {3, 17, 5},    {15, 31, 33},
                                   {14, 32, 400}, {29, 65, 385}, {2, 3, 900},
                                   {64, 1, 77},   {1, 64, 769},  {33, 47, 1000}};
    if (!portable_is_there()) SKIP("the portable level");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        static float out[2][2][64 * 65];
        const int m = sizes[i][0], n = sizes[i][1], k = sizes[i][2];
        for (int level = 0; level < 2; level++) {
            mpt_config config = mpt_config_default();
            config.isa = level ? MPT_ISA_PORTABLE : MPT_ISA_REF, config.seed = 2;
            config.device = MPT_DEVICE_CPU;
            mpt_context *c = mpt_create(&config);
            mpt_tensor a = mpt_randn(c, MPT_F32, MPT_SHAPE(m, k));
            mpt_tensor b = mpt_randn(c, MPT_F32, MPT_SHAPE(k, n));
            mpt_tensor tiny = mpt_mul_scalar(a, 1e-39); /* subnormal ones, too */
            mpt_read_f32(mpt_matmul(a, b), out[level][0], m * n);
            mpt_read_f32(mpt_matmul(tiny, b), out[level][1], m * n);
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_destroy(c);
        }
        for (int j = 0; j < 2; j++)
            CHECK_EQ_BITS(out[1][j], out[0][j], (size_t)(m * n) * sizeof(float));
    }
}

TEST_TABLE = {T(dense_nets), T(nets_for_pictures), T(nets_with_attention), T(products)};
TEST_MAIN
