/* api_scaling.c: why loss scaling exists, shown on a net small enough to train here. Its loss is
   one of many terms of a sum, so its gradients are tiny: without a scaler fp16 loses most of them,
   with one it learns what fp32 learns. And an overflow leaves no trace. */
#include MPTRAIN_HEADER_FILE
#include "golden.h"
#include "harness.h"

#include <math.h>

enum { FEATURES = 16, HIDDEN = 32, CLASSES = 10, CLUSTERS = 6 * CLASSES, BATCH = 64 };
enum { TRAIN = 2048, TEST_SET = 2048, EPOCHS = 12 };
/* A gradient of an output is at most 1 / (BATCH TERMS) = 4.0e-8. The least number of fp16 is
   6.0e-8: what is below half of it, three quarters of that, rounds to zero. */
#define TERMS 393216.0

static float inputs[TRAIN + TEST_SET][FEATURES];
static int64_t classes[TRAIN + TEST_SET];

/* Each class is six clouds around corners of a cube; no plane separates the classes. */
static void make_samples(void) {
    for (uint32_t i = 0; i < TRAIN + TEST_SET; i++) {
        uint32_t cluster = i % CLUSTERS;
        classes[i] = cluster % CLASSES;
        for (uint32_t k = 0; k < FEATURES; k++) {
            double corner = golden_uniform(1, cluster * FEATURES + k) < 0 ? -1.0 : 1.0;
            uint32_t at = (i * FEATURES + k) * 2;
            double noise = (double)golden_uniform(2, at) + (double)golden_uniform(2, at + 1);
            inputs[i][k] = (float)(corner + 0.25 * noise);
        }
    }
}

static mpt_loader make_loader(mpt_context *context, int64_t first, int64_t count, mpt_dtype dtype,
                              bool shuffle) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    mpt_loader_config loader = mpt_loader_config_default();
    config.count = count;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(FEATURES);
    config.inputs = inputs[first];
    config.targets = classes + first;
    loader.batch = BATCH;
    loader.shuffle = shuffle;
    loader.dtype = dtype;
    return mpt_loader_create(context, mpt_memory_dataset(context, &config), &loader);
}

typedef struct recipe {
    const char *name;
    mpt_dtype autocast, parameters; /* batches arrive in the dtype of the parameters */
    bool scaled, fixed, adamw;
    double scale; /* to begin with */
} recipe;

typedef struct trial {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_loader train, test;
    mpt_dtype autocast;
    int64_t zeros, gradients; /* counted by train_epochs */
} trial;

static trial make_trial(const recipe *r) {
    trial t;
    memset(&t, 0, sizeof t);
    make_samples();
    t.context = mpt_create(NULL);
    mpt_context *c = t.context;
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, HIDDEN), mpt_nn_relu(c),
                           mpt_nn_linear(c, HIDDEN, HIDDEN), mpt_nn_relu(c),
                           mpt_nn_linear(c, HIDDEN, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    if (r->parameters != MPT_F32) mpt_half(t.net, r->parameters);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 3e-3;
    adamw.eps = 1e-12; /* gradients are that small */
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = 0.1 * TERMS;
    sgd.momentum = 0.9;
    t.optimizer = r->adamw ? mpt_adamw(t.net, &adamw) : mpt_sgd(t.net, &sgd);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = r->scaled;
    sc.fixed = r->fixed;
    sc.init_scale = r->scale;
    t.scaler = mpt_grad_scaler(c, &sc);
    t.train = make_loader(c, 0, TRAIN, r->parameters, true);
    t.test = make_loader(c, TRAIN, TEST_SET, r->parameters, false);
    t.autocast = r->autocast;
    return t;
}

static void end_trial(trial *t) {
    CHECK_EQ_STR(mpt_error(t->context), "");
    mpt_destroy(t->context);
}

/* Adds the zeros among the gradients of all parameters. */
static void count_zeros(trial *t) {
    static float gradient[HIDDEN * HIDDEN];
    for (int i = 0; i < mpt_parameter_count(t->net); i++) {
        mpt_tensor parameter = mpt_parameter_at(t->net, i, NULL, 0);
        int64_t numel = mpt_numel(parameter);
        if (mpt_read_f32(mpt_grad(parameter), gradient, numel) != MPT_OK) return;
        for (int64_t k = 0; k < numel; k++) t->zeros += gradient[k] == 0.0f;
        t->gradients += numel;
    }
}

/* One update on a batch whose loss is multiplied by `factor` / TERMS. The mean loss before it. */
static double train_on(trial *t, const mpt_batch *b, double factor, bool counting) {
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->autocast);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, b->x), b->y, NULL);
    mpt_autocast_end(t->context);
    double value = mpt_item(loss);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, mpt_mul_scalar(loss, factor / TERMS)));
    if (counting) count_zeros(t);
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    mpt_step_end(t->context);
    return value;
}

/* The losses of all steps, if `curve` is not NULL. */
static int64_t train_epochs(trial *t, int epochs, double *curve) {
    int64_t steps = 0;
    for (int epoch = 0; epoch < epochs; epoch++) {
        mpt_batch b;
        while (mpt_loader_next(t->train, &b)) {
            double loss = train_on(t, &b, 1.0, true);
            if (curve) curve[steps] = loss;
            steps++;
        }
    }
    return steps;
}

/* ---- underflow and its cure ---- */

typedef struct result {
    double zeros, accuracy, scale; /* both in percent */
    int64_t skipped;
} result;

static result run(const recipe *r) {
    result out;
    trial t = make_trial(r);
    train_epochs(&t, EPOCHS, NULL);
    out.zeros = 100.0 * (double)t.zeros / (double)t.gradients;
    out.accuracy = 100.0 * mpt_evaluate(t.net, t.test, t.autocast).accuracy;
    out.scale = mpt_get_scale(t.scaler);
    out.skipped = mpt_scaler_statistics(t.scaler).skipped;
    end_trial(&t);
    printf("\n  %-22s %6.1f %% zeros %7.2f %% right, scale %g, %lld skipped", r->name, out.zeros,
           out.accuracy, out.scale, (long long)out.skipped);
    return out;
}

TEST(underflow_and_its_cure) {
    static const recipe fp32 = {"fp32", MPT_F32, MPT_F32, false, false, false, 65536};
    static const recipe bare = {
        "fp16 without scaler", MPT_F16, MPT_F32, false, false, false, 65536};
    static const recipe cures[] = {
        {"fp16 with scaler", MPT_F16, MPT_F32, true, false, false, 65536},
        {"fp16, static 1e4", MPT_F16, MPT_F32, true, true, false, 1e4},
        {"half with scaler", MPT_F32, MPT_F16, true, false, false, 65536},
        {"bf16 without scaler", MPT_BF16, MPT_F32, false, false, false, 65536}};
    result reference = run(&fp32), lost = run(&bare);
    CHECK(reference.accuracy > 98.0);
    CHECK(lost.zeros > 50.0);
    CHECK(lost.zeros > reference.zeros + 40.0);
    CHECK(lost.accuracy < reference.accuracy - 5.0);
    for (int i = 0; i < 4; i++) {
        result cured = run(&cures[i]);
        CHECK_NEAR(cured.accuracy, reference.accuracy, 0.5);
        CHECK_NEAR(cured.zeros, reference.zeros, 10.0);
        if (cures[i].fixed) CHECK(cured.scale == cures[i].scale);
    }
}

/* ---- one learning rate for fp32 and fp16 ---- */

TEST(one_rate_one_curve) {
    enum { CURVE_EPOCHS = 4, MAX_STEPS = CURVE_EPOCHS * TRAIN / BATCH };
    static const recipe fp32 = {"fp32", MPT_F32, MPT_F32, false, false, false, 65536};
    static const recipe others[] = {
        {"fp16 with scaler", MPT_F16, MPT_F32, true, false, false, 65536},
        {"fp16 from 2^20", MPT_F16, MPT_F32, true, false, false, 1048576},
        {"fp16, static 1e4", MPT_F16, MPT_F32, true, true, false, 1e4},
        {"bf16 without scaler", MPT_BF16, MPT_F32, false, false, false, 65536}};
    static double want[MAX_STEPS], got[MAX_STEPS];
    trial t = make_trial(&fp32);
    int64_t steps = train_epochs(&t, CURVE_EPOCHS, want);
    CHECK_EQ_INT(steps, MAX_STEPS);
    CHECK(want[steps - 1] < 0.1 * want[0]);
    end_trial(&t);
    for (int i = 0; i < 4; i++) {
        double apart = 0, allowed = others[i].autocast == MPT_BF16 ? 0.05 : 0.02;
        t = make_trial(&others[i]);
        CHECK_EQ_INT(train_epochs(&t, CURVE_EPOCHS, got), steps);
        CHECK_EQ_INT(mpt_scaler_statistics(t.scaler).skipped, 0);
        for (int64_t k = 0; k < steps; k++)
            apart = fabs(got[k] - want[k]) > apart ? fabs(got[k] - want[k]) : apart;
        printf("\n  %-22s at most %.4f from fp32 on its way from %.3f to %.3f", others[i].name,
               apart, want[0], want[steps - 1]);
        CHECK(apart < allowed);
        end_trial(&t);
    }
}

/* ---- an overflow leaves no trace ---- */

/* A loss factor that no gradient of that run survives. */
static double forced_overflow(const recipe *r) {
    return r->autocast == MPT_F16 || r->parameters == MPT_F16 ? 1e9 : 3e38 * TERMS;
}

typedef struct snapshot {
    uint64_t weights, state; /* state: moments, masters, step counts */
    int64_t applied;
} snapshot;

static snapshot take(const trial *t) {
    snapshot s;
    s.weights = mpt_module_hash(t->net);
    s.state = mpt_optimizer_hash(t->optimizer);
    s.applied = mpt_applied_steps(t->optimizer);
    return s;
}

static void check_same(snapshot got, snapshot want) {
    CHECK(got.weights == want.weights);
    CHECK(got.state == want.state);
    CHECK_EQ_INT(got.applied, want.applied);
}

/* Ten steps of the first epoch; with `overflow`, three more updates fail: before the first, fifth
   and sixth one. */
static snapshot ten_steps(const recipe *r, bool overflow) {
    trial t = make_trial(r);
    mpt_batch b;
    for (int step = 0; step < 10; step++) {
        CHECK(mpt_loader_next(t.train, &b));
        if (overflow && (step == 0 || step == 4 || step == 5)) {
            snapshot before = take(&t);
            double scale = mpt_get_scale(t.scaler);
            train_on(&t, &b, forced_overflow(r), false);
            CHECK_EQ_INT(mpt_step_outcome(t.scaler), MPT_OUTCOME_SKIPPED);
            CHECK(mpt_get_scale(t.scaler) == (r->fixed ? scale : scale / 2));
            check_same(take(&t), before);
        }
        train_on(&t, &b, 1.0, false);
        CHECK_EQ_INT(mpt_step_outcome(t.scaler), MPT_OUTCOME_APPLIED);
    }
    CHECK_EQ_INT(mpt_scaler_statistics(t.scaler).skipped, overflow ? 3 : 0);
    snapshot after = take(&t);
    CHECK_EQ_INT(after.applied, 10);
    end_trial(&t);
    return after;
}

/* In fp32 a scale that has moved by a power of two changes no bit; fp16 rounds its subnormals
   elsewhere, so there the scale stands still. */
TEST(overflow_leaves_no_trace) {
    static const recipe all[] = {{"fp32", MPT_F32, MPT_F32, true, false, true, 65536},
                                 {"fp32, SGD", MPT_F32, MPT_F32, true, false, false, 65536},
                                 {"fp16", MPT_F16, MPT_F32, true, true, true, 65536},
                                 {"fp16, SGD", MPT_F16, MPT_F32, true, true, false, 1e4},
                                 {"half", MPT_F32, MPT_F16, true, true, true, 65536},
                                 {"half bf16, SGD", MPT_F32, MPT_BF16, true, true, false, 65536}};
    for (int i = 0; i < (int)(sizeof all / sizeof all[0]); i++) {
        recipe r = all[i];
        printf("\n  %s", r.name);
        check_same(ten_steps(&r, true), ten_steps(&r, false));
    }
}

TEST_TABLE = {T(underflow_and_its_cure), T(one_rate_one_curve), T(overflow_leaves_no_trace)};
TEST_MAIN
