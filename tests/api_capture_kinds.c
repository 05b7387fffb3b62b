/* api_capture_kinds.c: what a step may hold, captured, compared on the way, and in slices of one
   launch: convolution, norms, dropout, attention, embedding and noise, with every optimizer and
   every precision, with overflows, clipping, averages and schedules: the bits of steps by hand. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"

enum { BY_HAND, CAPTURED, COMPARED, SLICED, WAYS };
enum { IN_F32, IN_BF16, IN_F16, HALF_F16, HALF_BF16, WITHOUT_MASTERS, PRECISIONS };
enum { STEPS = 24 };

typedef struct whole {
    mpt_module all, net, attention, embedding;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_ema ema;
    int precision;
} whole;

static mpt_tensor loss_of(mpt_context *context, const whole *w, mpt_tensor x, mpt_tensor y) {
    mpt_nll_config config = mpt_nll_config_default();
    config.label_smoothing = 0.1;
    mpt_tensor h = mpt_reshape(mpt_forward(w->net, x), MPT_SHAPE(2, 4, 16));
    h = mpt_forward(w->attention, h);
    h = mpt_add(h, mpt_forward(w->embedding, mpt_reshape(y, MPT_SHAPE(2, 4))));
    h = mpt_dropout(h, 0.1);
    mpt_tensor noise = mpt_mul_scalar(mpt_randn(context, MPT_F32, MPT_SHAPE(2, 4, 16)), 0.1);
    h = mpt_add(h, mpt_cast(noise, mpt_get_dtype(h)));
    return mpt_cross_entropy(mpt_reshape(h, MPT_SHAPE(8, 16)), y, &config);
}

static mpt_status whole_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const whole *w = (const whole *)user;
    const mpt_dtype casts = w->precision == IN_BF16  ? MPT_BF16
                            : w->precision == IN_F16 ? MPT_F16
                                                     : MPT_F32;
    mpt_step_begin(context);
    mpt_zero_grad(w->optimizer);
    mpt_autocast_begin(context, casts);
    mpt_tensor loss = loss_of(context, w, x, y);
    mpt_autocast_end(context);
    mpt_backward(mpt_scale_loss(w->scaler, loss));
    mpt_unscale(w->scaler, w->optimizer);
    mpt_clip_grad_norm(w->optimizer, 0.5);
    mpt_clip_grad_value(w->optimizer, 0.1);
    mpt_scaler_step(w->scaler, w->optimizer);
    mpt_scaler_update(w->scaler);
    mpt_ema_update(w->ema);
    mpt_metric_push(context, "loss", loss);
    return mpt_step_end(context);
}

#define WITH(kind, setting) \
    { \
        mpt_##kind##_config k = mpt_##kind##_config_default(); \
        k.stochastic_rounding = chance; \
        setting; \
        return mpt_##kind(all, &k); \
    }

static mpt_optimizer optimizer_of(mpt_module all, int number, bool chance) {
    switch (number) {
    case 0:
        WITH(sgd, k.momentum = 0.9)
    case 1:
        WITH(adam, k.lr = 0.01)
    case 2:
        WITH(adamw, k.amsgrad = true)
    case 3:
        WITH(rmsprop, (k.centered = true, k.momentum = 0.5))
    case 4:
        WITH(adagrad, k.lr_decay = 0.1)
    case 5:
        WITH(adadelta, k.rho = 0.8)
    case 6:
        WITH(lion, k.lr = 0.003)
    case 7:
        WITH(sgd, (k.momentum = 0.9, k.nesterov = true, k.weight_decay = 0.01))
#ifndef MPTRAIN_NO_WATCH
    case 9:
        WITH(muon, (k.lr = 0.01, k.adamw_names = "1.out_proj", k.weight_decay = 0.2))
#endif
    default:
        WITH(adamw, k.lr = 0.01)
    }
}

static void make_whole(whole *w, mpt_context *context, int number, int precision) {
    mpt_norm_config norm = mpt_norm_config_default();
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    mpt_scaler_config scaler = mpt_scaler_config_default();
    mpt_ema_config ema = mpt_ema_config_default();
    memset(w, 0, sizeof *w);
    if (number % 2) norm.momentum = -1;
    heads.dropout = 0.3;
    scaler.growth_interval = 7;
    ema.warmup = number % 3 == 0, ema.equal = number % 3 == 1;
    w->precision = precision;
    w->net = mpt_sequential(context, mpt_nn_conv2d(context, 3, 8, 3, 3, NULL),
                            mpt_nn_batch_norm2d(context, 8, &norm), mpt_nn_relu(context),
                            mpt_nn_flatten(context), mpt_nn_linear(context, 8 * 6 * 6, 16),
                            mpt_nn_layer_norm(context, MPT_SHAPE(16), NULL), mpt_nn_gelu(context),
                            mpt_nn_dropout(context, 0.2), MPT_END);
    w->attention = mpt_nn_multi_head_attention(context, 16, 2, &heads);
    w->embedding = mpt_nn_embedding(context, 16, 16, -1);
    w->all = mpt_nn_list(context, w->net, w->attention, w->embedding, MPT_END);
    mpt_set_label(w->all, "all"); /* the same values each time */
    if (precision >= HALF_F16) mpt_half(w->all, precision == HALF_F16 ? MPT_F16 : MPT_BF16);
    w->optimizer = optimizer_of(w->all, number, precision == WITHOUT_MASTERS);
    if (number == 7) mpt_cosine_annealing(w->optimizer, 30, 1e-4, MPT_PER_STEP);
    if (number == 8) mpt_warmup(w->optimizer, 0.1, 5, 20, 0, MPT_PER_STEP);
    w->scaler = mpt_grad_scaler(context, &scaler);
    w->ema = mpt_ema_create(w->all, w->optimizer, &ema);
}

/* One input overflows. */
static mpt_tensor input_of(mpt_context *context, int precision, int step) {
    static const mpt_dtype dtype[PRECISIONS] = {MPT_F32, MPT_F32,  MPT_F32,
                                                MPT_F16, MPT_BF16, MPT_BF16};
    mpt_tensor x = mpt_randn(context, dtype[precision], MPT_SHAPE(8, 3, 8, 8));
    if (step != STEPS / 2) return x;
    mpt_tensor large = mpt_mul_scalar(x, 1e30);
    mpt_release(x);
    return large;
}

static void one_step(mpt_context *context, whole *w, mpt_captured captured, int way, int step) {
    int64_t classes[8];
    bool done = way != SLICED;
    for (int i = 0; i < 8; i++) classes[i] = (step + 3 * i) % 16;
    mpt_tensor x = input_of(context, w->precision, step);
    mpt_tensor y = mpt_from(context, MPT_I64, MPT_SHAPE(8), classes);
    if (way == BY_HAND)
        whole_step(context, w, x, y);
    else if (way != SLICED)
        mpt_captured_step(captured, x, y);
    while (!done && !mpt_failed(context)) mpt_step_slice(captured, x, y, 0, &done);
    mpt_release(x);
    mpt_release(y);
}

static uint64_t run(int way, int number, int precision) {
    mpt_config config = mpt_config_default();
    whole w;
    uint64_t bits;
    config.debug = way == COMPARED;
    config.seed = 5;
    mpt_context *context = mpt_create(&config);
    make_whole(&w, context, number, precision);
    mpt_captured captured = mpt_capture(context, whole_step, &w);
    for (int step = 0; step < STEPS; step++) one_step(context, &w, captured, way, step);
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    CHECK_EQ_INT(mpt_captured_count(captured), way == BY_HAND ? 0 : STEPS - 2 - config.debug);
    double loss = mpt_metric_mean(context, "loss", true);
    memcpy(&bits, &loss, sizeof bits);
    uint64_t hash = mpt_module_hash(w.all) * 31 + mpt_optimizer_hash(w.optimizer) * 7 +
                    mpt_ema_hash(w.ema) + (loss == loss ? bits : 1);
    mpt_destroy(context);
    return hash;
}

/* In two precisions each, so that every one comes three times. */
static void compare(int number) {
    for (int i = 0; i < 2; i++) {
        const int precision = (number + 3 * i) % PRECISIONS;
        uint64_t hash = run(BY_HAND, number, precision);
        for (int way = CAPTURED; way < WAYS; way++) {
            CHECK(run(way, number, precision) == hash);
            if (test_failures) printf("\n  precision %d, way %d", precision, way);
        }
    }
}

TEST(sgd) { compare(0); }
TEST(adam) { compare(1); }
TEST(amsgrad) { compare(2); }
TEST(rmsprop) { compare(3); }
TEST(adagrad) { compare(4); }
TEST(adadelta) { compare(5); }
TEST(lion) { compare(6); }
TEST(nesterov_and_cosine) { compare(7); }
TEST(adamw_and_warmup) { compare(8); }
TEST(muon) { compare(9); }

TEST_TABLE = {T(sgd),
              T(adam),
              T(amsgrad),
              T(rmsprop),
              T(adagrad),
              T(adadelta),
              T(lion),
              T(nesterov_and_cosine),
              T(adamw_and_warmup),
              T(muon)};

TEST_MAIN
