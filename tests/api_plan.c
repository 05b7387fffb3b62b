/* api_plan.c: a dry run tells the bytes of the real one, kind by kind, for 24 trainings; what it
   does not do: compute, draw, read samples, write files; the largest batch of a budget. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

#include "../examples/precisions.h"

#ifndef MPTRAIN_NO_FRUGAL
#include "../examples/resnet.h"
#include "../examples/vit.h"

/* What plans are of. */
static mpt_config on_the_cpu(void) {
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CPU;
    return config;
}

/* ---- nets, each with what it reads ---- */

typedef struct net_row {
    const char *name;
    mpt_module (*make)(mpt_context *context);
    mpt_shape sample; /* without the batch; of rank 1 and i64: tokens */
    bool tokens;
} net_row;

static mpt_module make_mlp(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_linear(c, 784, 128), mpt_nn_relu(c), mpt_nn_dropout(c, 0.1),
                          mpt_nn_linear(c, 128, 64), mpt_nn_gelu(c), mpt_nn_linear(c, 64, 10),
                          MPT_END);
}

static mpt_module make_lenet(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_conv2d(c, 1, 6, 5, 5, NULL), mpt_nn_relu(c),
                          mpt_nn_max_pool2d(c, NULL), mpt_nn_conv2d(c, 6, 16, 5, 5, NULL),
                          mpt_nn_relu(c), mpt_nn_max_pool2d(c, NULL), mpt_nn_flatten(c),
                          mpt_nn_linear(c, 256, 120), mpt_nn_relu(c), mpt_nn_linear(c, 120, 10),
                          MPT_END);
}

static mpt_module make_resnet(mpt_context *c) { return resnet18(c, 3, 10, 8, false); }

static mpt_module make_small_vit(mpt_context *c) {
    static const vit_shape shape = {64, 3, 4, 128, 8, 32, 3, 10, 0.1};
    return make_vit(c, &shape);
}

static mpt_module make_lstm(mpt_context *c) {
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.layers = 2;
    return mpt_nn_lstm(c, 12, 24, &config);
}

static mpt_status text_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                               mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_forward(mpt_child(self, "head"),
                         mpt_forward(mpt_child(self, "body"),
                                     mpt_forward(mpt_child(self, "embed"), in[0])));
    return MPT_OK;
}

static mpt_module make_text(mpt_context *c) {
    static mpt_module_class cls = {"text", text_forward, NULL, NULL, NULL, 1, 1};
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    heads.causal = true;
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_add_child(self, "embed", mpt_nn_embedding(c, 65, 48, -1));
    mpt_add_child(self, "body",
                  mpt_sequential(c, mpt_nn_layer_norm(c, MPT_SHAPE(48), NULL),
                                 mpt_nn_multi_head_attention(c, 48, 4, &heads),
                                 mpt_nn_rms_norm(c, MPT_SHAPE(48), NULL), MPT_END));
    mpt_add_child(self, "head", mpt_nn_linear(c, 48, 65));
    return self;
}

static const net_row nets[] = {
    {"mlp", make_mlp, {1, {784}}, false},
    {"lenet", make_lenet, {3, {1, 28, 28}}, false},
    {"resnet", make_resnet, {3, {3, 32, 32}}, false},
    {"vit", make_small_vit, {3, {3, 32, 32}}, false},
    {"lstm", make_lstm, {2, {20, 12}}, false},
    {"text", make_text, {1, {33}}, true},
};
enum { NETS = sizeof nets / sizeof nets[0] };

/* ---- trainings ---- */

typedef mpt_optimizer optimizer_fn(mpt_module net);

static mpt_optimizer adamw(mpt_module net) { return mpt_adamw(net, NULL); }
static mpt_optimizer momentum(mpt_module net) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.momentum = 0.9;
    return mpt_sgd(net, &config);
}

typedef struct plan_case {
    const net_row *net;
    const precision *precision;
    optimizer_fn *optimizer;
    int steps;
    bool recomputes;
    mpt_memory_stats stats;
    float loss;
} plan_case;

static mpt_tensor inputs_of(mpt_context *c, const plan_case *p, int64_t batch) {
    mpt_shape shape = p->net->sample;
    for (int d = shape.rank++; d > 0; d--) shape.dim[d] = shape.dim[d - 1];
    shape.dim[0] = batch;
    if (p->net->tokens) return mpt_zeros(c, MPT_I64, shape);
    return mpt_ones(c, p->precision->batch, shape);
}

static mpt_status train_case(mpt_context *c, int64_t batch, void *user) {
    plan_case *p = (plan_case *)user;
    mpt_module net = p->net->make(c);
    if (p->precision->parameters != MPT_F32) mpt_half(net, p->precision->parameters);
    mpt_optimizer optimizer = p->optimizer(net);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->precision->scaled;
    mpt_scaler scaler = mpt_grad_scaler(c, &sc);
    for (int i = 0; i < p->steps; i++) {
        mpt_step_begin(c);
        if (p->recomputes) mpt_recompute_begin(c);
        mpt_tensor x = inputs_of(c, p, batch);
        mpt_autocast_begin(c, p->precision->autocast);
        mpt_tensor y = mpt_forward(net, x);
        mpt_autocast_end(c);
        mpt_tensor loss = mpt_mean(mpt_cast(y, MPT_F32), MPT_ALL_DIMS, false);
        if (p->recomputes) mpt_recompute_end(c);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);
        mpt_clip_grad_norm(optimizer, 1.0);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        p->loss = (float)mpt_item(loss);
        mpt_step_end(c);
    }
    p->stats = mpt_memory(c);
    return mpt_error_code(c);
}

static plan_case case_of(int net, int kind) {
    plan_case p;
    memset(&p, 0, sizeof p);
    p.net = &nets[net], p.precision = &precisions[kind];
    p.optimizer = kind % 2 ? momentum : adamw;
    p.steps = 3;
    p.recomputes = net == 3;
    return p;
}

/* The real run of a case, and its plan: all that mpt_memory tells is the same. */
static void check_plan(const mpt_config *config, plan_case *p, int64_t batch) {
    mpt_memory_stats plan;
    CHECK_EQ_INT(mpt_plan(config, train_case, batch, p, &plan), MPT_OK);
    CHECK_EQ_STR(mpt_error(NULL), "");
    CHECK(p->loss == 0.0f); /* nothing was computed */
    mpt_context *c = mpt_create(config);
    CHECK_EQ_INT(train_case(c, batch, p), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK(p->loss != 0.0f);
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++) {
        if (plan.peak[kind] != p->stats.peak[kind])
            TEST_FAIL_("%s in %s: %s: the plan says %lld, the run took %lld", p->net->name,
                       p->precision->name, mpt_memory_kind_name((mpt_memory_kind)kind),
                       (long long)plan.peak[kind], (long long)p->stats.peak[kind]);
        CHECK_EQ_INT(plan.current[kind], p->stats.current[kind]);
    }
    CHECK_EQ_INT(plan.total_peak, p->stats.total_peak);
    CHECK_EQ_INT(plan.held, p->stats.held);
    CHECK_EQ_INT(plan.allocations, p->stats.allocations);
    CHECK_EQ_INT(plan.releases, p->stats.releases);
}

TEST(plans_are_exact) {
    for (int n = 0; n < NETS; n++)
        for (int k = 0; k < PRECISIONS; k++) {
            plan_case p = case_of(n, k);
            mpt_config config = on_the_cpu();
            config.threads = 1 + n % 2;
            check_plan(&config, &p, 5 + n);
        }
}

/* A limit is kept by the plan as by the run: the largest batch passes in both, the next in none. */
TEST(largest_batch_of_a_budget) {
    for (int k = 0; k < PRECISIONS; k++) {
        plan_case p = case_of(k % 2, k);
        mpt_config config = on_the_cpu();
        config.threads = 1;
        int64_t budget = 6000000, most = mpt_largest_batch(&config, train_case, &p, budget, 100000);
        CHECK_EQ_STR(mpt_error(NULL), "");
        CHECK(most > 1 && most < 100000);
        config.memory_limit = budget;
        for (int more = 0; more < 2; more++) {
            mpt_context *c = mpt_create(&config);
            mpt_status want = more ? MPT_ERROR_MEMORY : MPT_OK;
            CHECK_EQ_INT(train_case(c, most + more, &p), want);
            mpt_destroy(c);
        }
        CHECK_EQ_INT(mpt_largest_batch(&config, train_case, &p, budget, 3), 3);
        CHECK_EQ_INT(mpt_largest_batch(&config, train_case, &p, 600000, 9), 0);
        CHECK_EQ_INT(mpt_largest_batch(&config, train_case, &p, 1, 9), 0);
        CHECK_EQ_STR(mpt_error(NULL), "");
    }
}

static mpt_status fails(mpt_context *c, int64_t batch, void *user) {
    (void)user;
    if (batch > 1) mpt_reshape(mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 3)), MPT_SHAPE(7));
    return batch > 1 ? MPT_OK : MPT_ERROR_IO;
}

/* ---- blocks run again for a budget ---- */

enum { BLOCKS = 6, PICTURES = 24 };

static mpt_module make_blocks(mpt_context *c) {
    static const vit_shape shape = {64, BLOCKS, 4, 128, 8, 32, 3, 10, 0.1};
    return make_vit(c, &shape);
}

static mpt_status train_blocks(mpt_module net, int64_t batch) {
    mpt_context *c = net.context;
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    for (int i = 0; i < 2; i++) {
        int64_t labels[PICTURES] = {0};
        mpt_step_begin(c);
        mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(batch, 3, 32, 32));
        mpt_tensor y = mpt_from(c, MPT_I64, MPT_SHAPE(batch), labels);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_cross_entropy(mpt_forward(net, x), y, NULL));
        mpt_step(optimizer);
        mpt_step_end(c);
    }
    return mpt_error_code(c);
}

/* *user blocks run again because they are asked to. */
static mpt_status with_blocks(mpt_context *c, int64_t batch, void *user) {
    mpt_module net = make_blocks(c);
    for (int i = 0; i < *(const int *)user; i++) {
        char path[64];
        snprintf(path, sizeof path, "encoder.layers.encoder_layer_%d", i);
        mpt_recompute_module(mpt_child(net, path), 1);
    }
    return train_blocks(net, batch);
}
static mpt_status without_optimizer(mpt_context *c, int64_t batch, void *user) {
    mpt_forward(make_blocks(c), mpt_zeros(c, MPT_F32, MPT_SHAPE(batch, 3, 32, 32)));
    return (void)user, mpt_error_code(c);
}

/* What is held with so many of them; 0: more than the limit. */
/* One that chooses its blocks itself, as the real one does. */
static mpt_status with_fitting_blocks(mpt_context *c, int64_t batch, void *user) {
    mpt_module net = make_blocks(c);
    CHECK_EQ_INT(mpt_recompute_to_fit(net, "encoder.layers.*", with_fitting_blocks, batch, user,
                                      1 << 30),
                 0);
    return train_blocks(net, batch);
}

static int64_t held_with(mpt_config config, int64_t limit, int blocks) {
    mpt_memory_stats plan;
    config.memory_limit = limit;
    mpt_status status = mpt_plan(&config, with_blocks, PICTURES, &blocks, &plan);
    CHECK(status == MPT_OK || status == MPT_ERROR_MEMORY);
    return plan.held;
}

/* A training within a limit of its own, whose blocks mpt_recompute_to_fit chooses. */
static uint64_t train_within(mpt_config config, int64_t budget, int64_t *blocks) {
    int none = 0;
    config.memory_limit = budget;
    mpt_context *c = mpt_create(&config);
    mpt_module net = make_blocks(c);
    if (budget)
        *blocks = mpt_recompute_to_fit(net, "encoder.layers.*", with_blocks, PICTURES, &none,
                                       budget);
    CHECK_EQ_INT(train_blocks(net, PICTURES), MPT_OK);
    const uint64_t hash = mpt_module_hash(net);
    mpt_destroy(c);
    return hash;
}

TEST(as_few_blocks_as_fit_are_run_again) {
    mpt_config config = on_the_cpu();
    config.threads = 1;
    int64_t blocks = 0, most = 0;
    const uint64_t plain = train_within(config, 0, NULL);
    const int64_t all = held_with(config, 0, 0), least = held_with(config, 0, BLOCKS);
    for (int i = 0; i <= BLOCKS; i++) {
        const int64_t budget = all - (all - least) * i / BLOCKS;
        CHECK(train_within(config, budget, &blocks) == plain);
        CHECK(blocks >= most && blocks <= i);
        most = blocks;
        CHECK(held_with(config, budget, (int)blocks) > 0);
        CHECK(blocks == 0 || held_with(config, budget, (int)blocks - 1) == 0);
    }
    CHECK(most >= BLOCKS / 2);
}

/* Bytes that a forward leaves for backward. */
static int64_t kept_by(mpt_module net) {
    mpt_context *c = net.context;
    mpt_scope_begin(c);
    mpt_tensor y = mpt_forward(net, mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 3, 32, 32)));
    mpt_scope_return(c, &y, 1);
    const int64_t bytes = mpt_memory(c).current[MPT_MEMORY_ACTIVATION];
    mpt_release(y);
    return bytes;
}

static void count_errors(void *user, mpt_log_level level, const char *message) {
    (void)message;
    *(int *)user += level == MPT_LOG_ERROR;
}

/* What is tried and does not fit is nobody's error, and a training may ask for itself. */
TEST(trials_are_quiet_and_end) {
    mpt_config config = on_the_cpu();
    int errors = 0, none = 0;
    config.log.write = count_errors, config.log.user = &errors;
    const int64_t all = held_with(config, 0, 0), least = held_with(config, 0, BLOCKS);
    mpt_context *c = mpt_create(&config);
    mpt_module net = make_blocks(c);
    CHECK(mpt_recompute_to_fit(net, "encoder.layers.*", with_blocks, PICTURES, &none,
                               (all + least) / 2) > 0);
    CHECK(mpt_largest_batch(&config, with_blocks, &none, all, 1000) >= PICTURES);
    CHECK_EQ_INT(errors, 0);
    CHECK_EQ_INT(mpt_recompute_to_fit(net, "encoder.layers.*", with_fitting_blocks, 2, NULL,
                                      1 << 30),
                 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(blocks_that_cannot_fit_are_told) {
    mpt_config config = on_the_cpu();
    mpt_context *c = mpt_create(&config);
    mpt_module net = make_blocks(c);
    int none = 0;
    kept_by(net); /* the pool is filled */
    const int64_t kept = kept_by(net);
    const struct {
        const char *pattern, *says;
        mpt_plan_fn train;
        int64_t batch, budget;
    } rows[] = {
        {"decoder.*", "no module below the net fits \"decoder.*\"", with_blocks, 2, 1 << 30},
        {"*.*.*", "one '*' at most", with_blocks, 2, 1 << 30},
        {NULL, "got \"NULL\"", with_blocks, 2, 1 << 30},
        {"*", "a function", NULL, 2, 1 << 30},
        {"*", "a batch of 0", with_blocks, 0, 1 << 30},
        {"*", "and 0 bytes", with_blocks, 2, 0},
        {"encoder.layers.*", "even if all 6 run again", with_blocks, 2, 1 << 20},
        {"*", "makes no optimizer", without_optimizer, 2, 1 << 30},
        {"*", "the function that trains returned", fails, 1, 1 << 30},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        CHECK_EQ_INT(mpt_recompute_to_fit(net, rows[i].pattern, rows[i].train, rows[i].batch, &none,
                                          rows[i].budget),
                     -1);
        CHECK_CONTAINS(mpt_error(c), rows[i].says);
        mpt_clear_error(c);
        CHECK_EQ_INT(kept_by(net), kept); /* no block is run again */
    }
    mpt_destroy(c);
}

/* ---- what a dry run leaves alone ---- */

static int samples_read;

static bool count_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                         char *error, size_t error_size) {
    float *x = (float *)input;
    (void)user, (void)seed, (void)error, (void)error_size;
    for (int i = 0; i < 784; i++) x[i] = (float)(index % 7);
    *(int64_t *)target = index % 10;
    __atomic_fetch_add(&samples_read, 1, __ATOMIC_RELAXED); /* workers count, too */
    return true;
}

typedef struct fit_case {
    int workers;
    double loss;
    mpt_memory_stats stats;
} fit_case;

static mpt_status fit_counted(mpt_context *c, int64_t batch, void *user) {
    fit_case *f = (fit_case *)user;
    mpt_user_dataset_config data;
    memset(&data, 0, sizeof data);
    data.count = 10 * batch, data.sample = count_sample;
    data.shape = MPT_SHAPE(784), data.dtype = MPT_F32;
    data.target_dtype = MPT_I64;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = batch, lc.shuffle = true, lc.workers = f->workers;
    mpt_loader loader = mpt_loader_create(c, mpt_user_dataset(c, &data), &lc);
    mpt_module net = make_mlp(c);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 2;
    mpt_fit_result result = mpt_fit(net, mpt_adamw(net, NULL), loader, &fit);
    f->loss = result.train_loss;
    mpt_save(net, "plan.safetensors");
    f->stats = mpt_memory(c);
    return mpt_error_code(c);
}

TEST(reads_and_writes_nothing) {
    for (int workers = 0; workers < 3; workers += 2) {
        fit_case f;
        mpt_memory_stats plan;
        f.workers = workers;
        remove("plan.safetensors");
        samples_read = 0;
        CHECK_EQ_INT(mpt_plan(NULL, fit_counted, 16, &f, &plan), MPT_OK);
        CHECK_EQ_STR(mpt_error(NULL), "");
        CHECK_EQ_INT(samples_read, 0);
        FILE *file = fopen("plan.safetensors", "rb");
        CHECK(file == NULL);
        mpt_config config = on_the_cpu();
        mpt_context *c = mpt_create(&config);
        CHECK_EQ_INT(fit_counted(c, 16, &f), MPT_OK);
        mpt_destroy(c);
        CHECK(samples_read > 0);
        CHECK_EQ_INT(plan.peak[MPT_MEMORY_BATCH], f.stats.peak[MPT_MEMORY_BATCH]);
        CHECK_EQ_INT(plan.total_peak, f.stats.total_peak);
        remove("plan.safetensors");
    }
}

/* ---- errors ---- */

TEST(errors_are_told) {
    mpt_memory_stats plan;
    CHECK_EQ_INT(mpt_plan(NULL, NULL, 1, NULL, &plan), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(NULL), "is NULL");
    CHECK_EQ_INT(mpt_plan(NULL, fails, 0, NULL, &plan), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(NULL), "a batch of 0, expected at least 1");
    CHECK_EQ_INT(mpt_plan(NULL, fails, 2, NULL, &plan), MPT_ERROR_SHAPE);
    CHECK_CONTAINS(mpt_error(NULL), "mpt_reshape");
    CHECK_EQ_INT(plan.total_peak, 0);
    CHECK_EQ_INT(mpt_plan(NULL, fails, 1, NULL, NULL), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(NULL), "the function that trains returned");
    CHECK_EQ_INT(mpt_largest_batch(NULL, fails, NULL, 1000000000, 8), -1);
    CHECK_CONTAINS(mpt_error(NULL), "the function that trains returned");
    CHECK_EQ_INT(mpt_largest_batch(NULL, fails, NULL, 0, 8), -1);
    CHECK_CONTAINS(mpt_error(NULL), "less than one byte");
    CHECK_EQ_INT(mpt_largest_batch(NULL, fails, NULL, 5, 0), -1);
    CHECK_CONTAINS(mpt_error(NULL), "a batch of 0");
    mpt_config config = on_the_cpu();
    config.threads = -1;
    CHECK_EQ_INT(mpt_plan(&config, fails, 1, NULL, NULL), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(NULL), "threads = -1");
    CHECK_EQ_INT(mpt_largest_batch(&config, fails, NULL, 1000000000, 8), -1);
}

TEST_TABLE = {T(plans_are_exact), T(largest_batch_of_a_budget),
              T(as_few_blocks_as_fit_are_run_again),
              T(trials_are_quiet_and_end), T(blocks_that_cannot_fit_are_told),
              T(reads_and_writes_nothing),
              T(errors_are_told)};
#else
TEST(told_to_be_absent) {
    mpt_config config = mpt_config_default();
    config.dry = true;
    CHECK(mpt_create(&config) == NULL);
    CHECK_CONTAINS(mpt_error(NULL), "MPTRAIN_NO_FRUGAL");
}

TEST_TABLE = {T(told_to_be_absent)};
#endif

TEST_MAIN
