/* bits.h: one training that touches most kernels, as one hash. */
#ifndef TEST_BITS_H
#define TEST_BITS_H

#include "training.h"

static MAYBE_UNUSED uint64_t mix_hash(uint64_t hash, uint64_t more) {
    return (hash ^ more) * UINT64_C(1099511628211) + (hash >> 29);
}

static MAYBE_UNUSED uint64_t mix_tensor(uint64_t hash, mpt_tensor x) {
    static unsigned char bytes[1 << 16];
    size_t size = (size_t)mpt_numel(x) * mpt_dtype_size(mpt_get_dtype(x));
    if (size > sizeof bytes || mpt_read(x, bytes, size) != MPT_OK) return 0;
    size_t width = mpt_dtype_size(mpt_get_dtype(x));
    for (size_t i = 0; i < size; i += width) { /* values, not bytes: the order of bytes varies */
        uint64_t value = 0;
        uint16_t u2;
        uint32_t u4;
        if (width == 8)
            memcpy(&value, bytes + i, 8);
        else if (width == 4)
            memcpy(&u4, bytes + i, 4), value = u4;
        else if (width == 2)
            memcpy(&u2, bytes + i, 2), value = u2;
        else
            value = bytes[i];
        hash = mix_hash(hash, value);
    }
    return hash;
}

/* Weights of a net, by value. */
static MAYBE_UNUSED uint64_t mix_net(uint64_t hash, mpt_module net) {
    int count = mpt_parameter_count(net);
    for (int i = 0; i < count; i++) hash = mix_tensor(hash, mpt_parameter_at(net, i, NULL, 0));
    return hash;
}

/* Every elementwise op, reduction and view once, forward and backward. */
static MAYBE_UNUSED uint64_t ops_bits(mpt_context *c) {
    mpt_step_begin(c);
    mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(13, 21)),
               u = mpt_rand(c, MPT_F32, MPT_SHAPE(21));
    mpt_requires_grad(x, true);
    mpt_requires_grad(u, true);
    mpt_tensor y = mpt_mul(mpt_tanh(x), mpt_add_scalar(mpt_exp(mpt_mul_scalar(x, 0.5)), 1));
    y = mpt_add(y, mpt_sub(mpt_gelu(x), mpt_gelu_tanh(mpt_neg(x))));
    y = mpt_div(mpt_mul(y, mpt_sigmoid(x)), mpt_add_scalar(mpt_sqrt(u), 0.25));
    y = mpt_add(y, mpt_log(mpt_add_scalar(mpt_mul(x, x), 0.125)));
    mpt_tensor m = mpt_matmul(y, mpt_transpose(mpt_dropout(y, 0.3), 0, 1));
    mpt_tensor l = mpt_add(mpt_mean(mpt_log_softmax(m, -1), MPT_ALL_DIMS, false),
                           mpt_sum(mpt_max(mpt_softmax(y, 0), 1, false), 0, false));
    mpt_backward(
        mpt_add(l, mpt_mse_loss(mpt_slice(y, 1, 0, 20, 3), mpt_slice(x, 1, 1, 21, 3), MPT_MEAN)));
    uint64_t hash = mix_tensor(mix_tensor(7, mpt_grad(x)), mpt_grad(u));
    hash = mix_tensor(mix_tensor(hash, y), l);
    mpt_step_end(c);
    return hash;
}

static MAYBE_UNUSED uint64_t steps_bits(mpt_context *c, mpt_dtype precision, bool half) {
    training t;
    make_training(&t, c, precision, 0);
    mpt_optimizer_destroy(t.optimizer);
    if (half) mpt_half(t.net, MPT_F16);
    if (half) t.loader = make_loader_of(c, t.data, 8, 0, MPT_F16);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = 0.02, sgd.momentum = 0.9, sgd.nesterov = true, sgd.weight_decay = 1e-3;
    t.optimizer = precision == MPT_BF16 ? mpt_sgd(t.net, &sgd) : mpt_adamw(t.net, NULL);
    mpt_cosine_annealing(t.optimizer, 30, 1e-4, MPT_PER_STEP);
    for (int i = 0; i < 20; i++) train_step(&t);
    mpt_scaler_state s = mpt_scaler_get_state(t.scaler);
    uint64_t hash = mix_hash(mix_net(11, t.net), (uint64_t)s.growth_tracker + (uint64_t)s.scale);
    return mpt_applied_steps(t.optimizer) > 15 ? hash : 0;
}

/* 0 on failure. */
static MAYBE_UNUSED uint64_t training_bits(const mpt_config *config) {
    mpt_context *c = mpt_create(config);
    if (!c) return 0;
    uint64_t hash = mix_hash(1, ops_bits(c));
    hash = mix_hash(hash, steps_bits(c, MPT_F32, false));
    hash = mix_hash(hash, steps_bits(c, MPT_F16, false));
    hash = mix_hash(hash, steps_bits(c, MPT_BF16, false));
    hash = mix_hash(hash, steps_bits(c, MPT_F32, true));
    if (mpt_failed(c)) {
        printf("%s\n", mpt_error(c));
        hash = 0;
    }
    mpt_destroy(c);
    return hash;
}

#endif
