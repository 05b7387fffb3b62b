/* api_inside.c: updates inside backward: the bits of mpt_step, gradients in the memory of a few
   layers, and what is refused before anything changes. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

enum { BATCH = 16, WIDTH = 64, KINDS = 8 };

typedef struct run_kind {
    const char *name;
    int optimizer; /* 0 adamw, 1 sgd with momentum, 2 adamw that rounds by chance, 3 rmsprop, 4
                      adamw with moments of 8 bits */
    mpt_dtype precision, parameters;
    bool inside, tied;
} run_kind;

typedef struct outcome {
    uint64_t net, optimizer, loss;
    int64_t applied, gradients, number;
} outcome;

static mpt_optimizer make_optimizer(mpt_module net, int kind) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    adamw.lr = 0.01, adamw.weight_decay = 0.1;
    sgd.lr = 0.05, sgd.momentum = 0.9, sgd.nesterov = true, sgd.weight_decay = 1e-3;
    adamw.stochastic_rounding = kind == 2;
    if (kind == 4) adamw.state_bits = 8;
    return kind == 1 ? mpt_sgd(net, &sgd) : kind == 3 ? mpt_rmsprop(net, NULL)
                                                      : mpt_adamw(net, &adamw);
}

static mpt_module make_layers(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_linear(c, WIDTH, WIDTH), mpt_nn_relu(c),
                          mpt_nn_linear(c, WIDTH, WIDTH), mpt_nn_gelu(c), mpt_nn_dropout(c, 0.1),
                          mpt_nn_linear(c, WIDTH, WIDTH), mpt_nn_tanh(c),
                          mpt_nn_linear(c, WIDTH, KINDS), MPT_END);
}

/* tied: the third layer's weight works once more, in the first product, and once by a view. */
static mpt_tensor run_loss(mpt_module net, mpt_tensor x, mpt_tensor t, bool tied) {
    if (tied) {
        mpt_tensor none, w = mpt_parameter(net, "5.weight");
        memset(&none, 0, sizeof none);
        x = mpt_linear(x, w, none, MPT_ACTIVATION_RELU);
        x = mpt_add(x, mpt_matmul(x, mpt_detach(w)));
    }
    return mpt_cross_entropy(mpt_forward(net, x), t, NULL);
}

static outcome run(const run_kind *kind, int steps) {
    outcome o;
    mpt_config config = mpt_config_default();
    config.seed = 3;
    mpt_context *c = mpt_create(&config);
    mpt_module net = make_layers(c);
    if (kind->parameters != MPT_F32) mpt_half(net, kind->parameters);
    mpt_optimizer optimizer = make_optimizer(net, kind->optimizer);
    mpt_group_config group = {0.003, 0};
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "2.weight", &group), 1);
    mpt_schedule schedule = mpt_cosine_annealing(optimizer, 10, 1e-4, MPT_PER_STEP);
    (void)schedule;
    CHECK_EQ_INT(mpt_update_in_backward(optimizer, kind->inside), MPT_OK);
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = i % KINDS;
    mpt_tensor t = mpt_keep(mpt_from(c, MPT_I64, MPT_SHAPE(BATCH), labels));
    mpt_tensor x = mpt_keep(mpt_cast(mpt_randn(c, MPT_F32, MPT_SHAPE(BATCH, WIDTH)),
                                     kind->parameters));
    o.loss = 1;
    for (int i = 0; i < steps; i++) {
        mpt_step_begin(c);
        mpt_autocast_begin(c, kind->precision);
        mpt_tensor loss = run_loss(net, x, t, kind->tied);
        mpt_autocast_end(c);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        CHECK(!kind->inside || !mpt_has_grad(mpt_parameter(net, "0.weight")));
        mpt_step(optimizer);
        o.loss = mix_tensor(o.loss, loss);
        mpt_step_end(c);
    }
    o.net = mpt_module_hash(net), o.optimizer = mpt_optimizer_hash(optimizer);
    o.applied = mpt_applied_steps(optimizer);
    o.gradients = mpt_memory(c).peak[MPT_MEMORY_GRADIENT];
    o.number = mpt_step_number(c);
    if (mpt_failed(c)) TEST_FAIL_("%s: %s", kind->name, mpt_error(c));
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_GRADIENT] == 0, kind->inside);
    mpt_destroy(c);
    return o;
}

TEST(updates_inside_have_the_bits_of_steps) {
    static const run_kind kinds[] = {
        {"adamw", 0, MPT_F32, MPT_F32, false, false},
        {"adamw, bf16", 0, MPT_BF16, MPT_F32, false, false},
        {"adamw, bf16 weights", 0, MPT_F32, MPT_BF16, false, false},
        {"by chance", 2, MPT_F32, MPT_BF16, false, false},
        {"sgd", 1, MPT_F32, MPT_F32, false, false},
        {"rmsprop", 3, MPT_F32, MPT_F32, false, false},
        {"8 bits", 4, MPT_F32, MPT_F32, false, false},
        {"8 bits, bf16 weights", 4, MPT_F32, MPT_BF16, false, true},
        {"tied", 0, MPT_F32, MPT_F32, false, true},
        {"tied, bf16", 1, MPT_BF16, MPT_F32, false, true},
    };
    for (int i = 0; i < (int)(sizeof kinds / sizeof *kinds); i++) {
        run_kind inside = kinds[i];
        inside.inside = true;
        outcome a = run(&kinds[i], 6), b = run(&inside, 6);
        if (a.loss != b.loss || a.net != b.net || a.optimizer != b.optimizer)
            TEST_FAIL_("%s: other bits", kinds[i].name);
        CHECK_EQ_INT(a.applied, 6);
        CHECK_EQ_INT(b.applied, 6);
        printf("\n  %-20s gradients at most %lld bytes, inside %lld", kinds[i].name,
               (long long)a.gradients, (long long)b.gradients);
        CHECK(b.gradients * (kinds[i].tied ? 1 : 2) < a.gradients);
    }
}

/* ==== What is refused ==== */

typedef struct place {
    mpt_context *c;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_tensor x, t;
    uint64_t hash;
} place;

static place place_make(void) {
    place p;
    p.c = mpt_create(NULL);
    p.net = make_layers(p.c);
    p.optimizer = mpt_adamw(p.net, NULL);
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = i % KINDS;
    p.x = mpt_keep(mpt_randn(p.c, MPT_F32, MPT_SHAPE(BATCH, WIDTH)));
    p.t = mpt_keep(mpt_from(p.c, MPT_I64, MPT_SHAPE(BATCH), labels));
    p.hash = mpt_module_hash(p.net);
    return p;
}

static void refused(place *p, const char *why) {
    CHECK_EQ_INT(mpt_error_code(p->c), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(p->c), why);
    mpt_clear_error(p->c);
    CHECK(mpt_module_hash(p->net) == p->hash);
    CHECK_EQ_INT(mpt_applied_steps(p->optimizer), 0);
}

TEST(what_needs_all_gradients_is_refused) {
    place p = place_make();
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    mpt_scaler scaler = mpt_grad_scaler(p.c, NULL);
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    CHECK_EQ_INT(mpt_update_in_backward(p.optimizer, true), MPT_OK);
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    refused(&p, "has a gradient already");
    mpt_zero_grad(p.optimizer);
    mpt_backward(mpt_scale_loss(scaler, run_loss(p.net, p.x, p.t, false)));
    refused(&p, "the loss is scaled");
    mpt_backward_from(run_loss(p.net, p.x, p.t, false), none, true);
    refused(&p, "retain = false");
    mpt_clip_grad_norm(p.optimizer, 1);
    refused(&p, "leaves no gradients");
    mpt_clip_grad_value(p.optimizer, 1);
    refused(&p, "leaves no gradients");
    mpt_grad_norm(p.optimizer, 2);
    refused(&p, "leaves no gradients");
    mpt_tensor y = mpt_mul(mpt_parameter(p.net, "7.bias"), mpt_parameter(p.net, "7.bias"));
    mpt_tensor loss = mpt_add(run_loss(p.net, p.x, p.t, false), mpt_sum(y, 0, false));
    mpt_no_grad_begin(p.c);
    mpt_mul_scalar_(p.x, 2);
    mpt_no_grad_end(p.c);
    mpt_backward(loss); /* the first layer comes last, but what it saved is looked at before */
    refused(&p, "changed in place");
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    CHECK_CONTAINS(mpt_error(p.c), "updated inside backward already");
    mpt_clear_error(p.c);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 1);
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    mpt_step(p.optimizer);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 2);
    CHECK_EQ_INT(mpt_update_in_backward(p.optimizer, false), MPT_OK);
    mpt_zero_grad(p.optimizer);
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    mpt_clip_grad_norm(p.optimizer, 1);
    mpt_step(p.optimizer);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 3);
    CHECK_EQ_STR(mpt_error(p.c), "");
    mpt_destroy(p.c);
}

TEST(other_optimizers_are_refused) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = make_layers(c);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.allow_shared = true;
    mpt_muon_config muon = mpt_muon_config_default();
    muon.allow_shared = true;
    const mpt_optimizer optimizers[] = {mpt_adamw(net, &adamw), mpt_muon(net, &muon)};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ_INT(mpt_update_in_backward(optimizers[i], true), MPT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(mpt_error(c), i ? "need all gradients" : "allow_shared");
        mpt_clear_error(c);
    }
    mpt_destroy(c);
}

/* A bad target is found on the device, before the first update. */
TEST(bad_targets_change_nothing) {
    place p = place_make();
    int64_t labels[BATCH] = {0};
    labels[5] = KINDS;
    mpt_update_in_backward(p.optimizer, true);
    mpt_step_begin(p.c);
    mpt_backward(run_loss(p.net, p.x, mpt_from(p.c, MPT_I64, MPT_SHAPE(BATCH), labels), false));
    mpt_step(p.optimizer);
    mpt_step_end(p.c);
    mpt_synchronize(p.c);
    CHECK_EQ_INT(mpt_error_code(p.c), MPT_ERROR_INDEX);
    mpt_clear_error(p.c);
    CHECK(mpt_module_hash(p.net) == p.hash);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 0);
    mpt_backward(run_loss(p.net, p.x, p.t, false));
    mpt_step(p.optimizer);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 1);
    CHECK_EQ_STR(mpt_error(p.c), "");
    mpt_destroy(p.c);
}

/* Memory that is out in the midst: some layers are updated, which the log says; one goes on. */
static void hear_half(void *user, mpt_log_level level, const char *message) {
    if (level == MPT_LOG_ERROR && strstr(message, "others not")) ++*(int *)user;
}

TEST(memory_that_is_out_is_told) {
    if (mpt_device_count(MPT_DEVICE_CUDA) > 0) SKIP("memory from the allocator");
    int told = 0, failed = 0;
    for (int call = 1; call < 40; call++) {
        arena memory;
        mpt_config config = mpt_config_default();
        arena_use(&memory, &config);
        config.log.write = hear_half, config.log.user = &told;
        config.threads = 1;
        mpt_context *c = mpt_create(&config);
        mpt_module net = make_layers(c);
        mpt_optimizer optimizer = mpt_adamw(net, NULL);
        mpt_update_in_backward(optimizer, true);
        const int64_t labels[BATCH] = {0};
        mpt_tensor t = mpt_from(c, MPT_I64, MPT_SHAPE(BATCH), labels);
        mpt_tensor loss = run_loss(net, mpt_randn(c, MPT_F32, MPT_SHAPE(BATCH, WIDTH)), t, false);
        mpt_memory_trim(c);
        memory.fail_at = memory.calls + call, memory.failures = 1000;
        if (mpt_backward(loss) != MPT_OK) {
            failed++;
            CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_MEMORY);
            memory.fail_at = 0;
            mpt_clear_error(c);
            CHECK_EQ_INT(mpt_applied_steps(optimizer), 0);
            loss = run_loss(net, mpt_randn(c, MPT_F32, MPT_SHAPE(BATCH, WIDTH)), t, false);
            CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
        }
        memory.fail_at = 0;
        mpt_step(optimizer);
        CHECK_EQ_INT(mpt_applied_steps(optimizer), 1);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
        CHECK_EQ_INT(memory.live, 0);
    }
    printf(" %d failed, %d amid updates", failed, told);
    CHECK(failed > told && told > 0);
}

TEST_TABLE = {T(updates_inside_have_the_bits_of_steps), T(what_needs_all_gradients_is_refused),
              T(other_optimizers_are_refused), T(bad_targets_change_nothing),
              T(memory_that_is_out_is_told)};
TEST_MAIN
