/* api_diagnose.c: mpt_diagnose names planted faults, calls nothing wrong that is not, and leaves a
   training as it was. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

#include "harness.h"

enum { INPUTS = 20, HIDDEN = 32, CLASSES = 3, SAMPLES = 256, BATCH = 64 };

/* What a fault may be planted in. */
typedef struct patient {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_loader loader;
    float x[SAMPLES * INPUTS];
    int64_t y[SAMPLES];
    double lr;
    bool sgd, all; /* all: of the net; else of its first child */
    mpt_diagnosis_config config;
} patient;

static patient p;
static char text[16384];

static double noise(uint32_t *state) { /* sum of four: a mean of 0, a deviation of 1.15 */
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *state = *state * 1664525u + 1013904223u;
        sum += (double)(*state >> 8) / (1 << 24) - 0.5;
    }
    return sum * 2;
}

/* Samples whose class is the largest of three sums of inputs. */
static void make_data(void) {
    uint32_t state = 1;
    for (int s = 0; s < SAMPLES; s++) {
        double sums[CLASSES] = {0, 0, 0};
        for (int i = 0; i < INPUTS; i++) {
            const double x = noise(&state);
            p.x[s * INPUTS + i] = (float)x, sums[i % CLASSES] += x;
        }
        p.y[s] = sums[1] > sums[0] ? sums[2] > sums[1] ? 2 : 1 : sums[2] > sums[0] ? 2 : 0;
    }
}

static mpt_module plain_net(void) {
    mpt_context *c = p.context;
    return mpt_sequential(c, mpt_nn_linear(c, INPUTS, HIDDEN), mpt_nn_relu(c),
        mpt_nn_linear(c, HIDDEN, HIDDEN), mpt_nn_relu(c), mpt_nn_linear(c, HIDDEN, CLASSES),
        mpt_nn_log_softmax(c, -1), MPT_END);
}

/* Multiplies and adds to the first `count` numbers of a parameter; 0: all. */
static void change(const char *path, float factor, float more, int64_t count) {
    static float values[4096];
    const mpt_tensor parameter = mpt_parameter(p.net, path);
    const int64_t n = mpt_numel(parameter);
    mpt_read_f32(parameter, values, n);
    for (int64_t i = 0; i < (count ? count : n); i++) values[i] = values[i] * factor + more;
    mpt_write(parameter, values, (size_t)n * sizeof *values);
}

static void begin(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.seed = 3;
    p.context = mpt_create(&config);
    make_data();
    p.net = plain_net();
    p.lr = 1e-3, p.sgd = false, p.all = true;
    p.config = mpt_diagnosis_config_default();
    p.config.steps = 8;
}

static mpt_diagnosis diagnose(void) {
    mpt_memory_dataset_config dc = mpt_memory_dataset_config_default();
    dc.count = SAMPLES, dc.shape = MPT_SHAPE(INPUTS), dc.inputs = p.x, dc.targets = p.y;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    p.loader = mpt_loader_create(p.context, mpt_memory_dataset(p.context, &dc), &lc);
    const mpt_module trained = p.all ? p.net : mpt_child(p.net, "0");
    mpt_adamw_config adam = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    adam.lr = sgd.lr = p.lr;
    p.optimizer = p.sgd ? mpt_sgd(trained, &sgd) : mpt_adamw(trained, &adam);
    size_t length = 0;
    const uint64_t hash = mpt_state_hash(p.context);
    const mpt_diagnosis found =
        mpt_diagnose(p.net, p.optimizer, p.loader, &p.config, text, sizeof text, &length);
    CHECK(length == strlen(text));
    CHECK(!mpt_failed(p.context) && mpt_state_hash(p.context) == hash && hash != 0);
    return found;
}

/* ==== Faults ==== */

static mpt_tensor tiny_loss(mpt_tensor out, mpt_tensor y, void *user) {
    (void)user;
    return mpt_mul_scalar(mpt_nll_loss(out, y, NULL), 1e-6);
}
static mpt_tensor log_of_zero(mpt_tensor out, mpt_tensor y, void *user) {
    (void)user, (void)y;
    const mpt_tensor probability = mpt_exp(mpt_mul_scalar(out, 1000));
    return mpt_neg(mpt_mean(mpt_log(probability), MPT_ALL_DIMS, false));
}
static mpt_tensor root_of_zero(mpt_tensor out, mpt_tensor y, void *user) {
    (void)user, (void)y;
    const mpt_tensor zeros = mpt_mul_scalar(out, 0);
    return mpt_mean(mpt_sqrt(zeros), MPT_ALL_DIMS, false);
}
static mpt_status root_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_sqrt(in[0]);
    return MPT_OK;
}
static mpt_status skip_second(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_log_softmax(mpt_forward(mpt_child(self, "used"), in[0]), -1);
    return MPT_OK;
}

static void overflow(void) { change("2.weight", 60000, 0, 0); }
static void underflow(void) { p.config.loss = tiny_loss, p.config.scaled = false; }
static void bad_sample(void) { p.x[77 * INPUTS + 4] = NAN; }
static void zero_log(void) { p.config.loss = log_of_zero; }
static void zero_root(void) { p.config.loss = root_of_zero; }
static void dead_layer(void) { change("0.bias", 0, -100, 0); }
static void dead_units(void) { change("2.bias", 0, -100, 20); }
static void large_weights(void) { change("4.weight", 3000, 0, 0); }
static void bad_weights(void) { change("2.weight", 0, NAN, 1); }
static void no_normalize(void) {
    for (int i = 0; i < SAMPLES * INPUTS; i++) p.x[i] = 128 + 60 * p.x[i];
}
static void frozen(void) { mpt_freeze(mpt_child(p.net, "4"), true); }
static void high_rate(void) { p.lr = 0.1; }
static void low_rate(void) { p.lr = 1e-9; }
static void one_class(void) {
    for (int i = 0; i < SAMPLES; i++) p.y[i] = 2;
}
static void half_optimized(void) { p.all = false; }
static void rises(void) { p.sgd = true, p.lr = 30; }
static void deep(bool squashed, float factor) {
    mpt_context *c = p.context;
    mpt_module a[6];
    for (int i = 0; i < 6; i++) a[i] = squashed ? mpt_nn_sigmoid(c) : mpt_nn_leaky_relu(c, 0.5);
    p.net =
        mpt_sequential(c, mpt_nn_linear(c, INPUTS, HIDDEN), a[0], mpt_nn_linear(c, HIDDEN, HIDDEN),
            a[1], mpt_nn_linear(c, HIDDEN, HIDDEN), a[2], mpt_nn_linear(c, HIDDEN, HIDDEN), a[3],
            mpt_nn_linear(c, HIDDEN, HIDDEN), a[4], mpt_nn_linear(c, HIDDEN, HIDDEN), a[5],
            mpt_nn_linear(c, HIDDEN, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    for (int i = 0; i < 12; i += 2) {
        char path[16];
        snprintf(path, sizeof path, "%d.weight", i);
        change(path, factor, 0, 0);
    }
}
static void vanishing(void) { deep(true, 0.3f); }
static void exploding(void) { deep(false, 20); }
static void saturated(void) {
    mpt_context *c = p.context;
    p.net = mpt_sequential(c, mpt_nn_linear(c, INPUTS, HIDDEN), mpt_nn_tanh(c),
        mpt_nn_linear(c, HIDDEN, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    change("0.weight", 90, 0, 0);
}
static void root_layer(void) {
    mpt_context *c = p.context;
    mpt_module_class cls = {"root", root_forward, NULL, NULL, NULL, 1, 1};
    p.net = mpt_sequential(c, mpt_nn_linear(c, INPUTS, HIDDEN), mpt_module_create(c, &cls, NULL),
        mpt_nn_linear(c, HIDDEN, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
}
static void unused(void) {
    mpt_module_class cls = {"two", skip_second, NULL, NULL, NULL, 1, 1};
    p.net = mpt_module_create(p.context, &cls, NULL);
    mpt_add_child(p.net, "used", mpt_nn_linear(p.context, INPUTS, CLASSES));
    mpt_add_child(p.net, "unused", mpt_nn_linear(p.context, INPUTS, CLASSES));
}

static const struct {
    const char *name;
    mpt_fault fault;
    void (*plant)(void);
    const char *place;
    double least, most; /* of the value */
} faults[] = {{"overflow in fp16", MPT_FAULT_FORWARD_OVERFLOW, overflow, "2", 65504, 1e9},
    {"underflow without a scaler", MPT_FAULT_UNDERFLOW, underflow, NULL, 0.5, 1},
    {"NaN in a sample", MPT_FAULT_INPUT_NONFINITE, bad_sample, "", 77 - 64, 77 - 64},
    {"logarithm of 0 in the loss", MPT_FAULT_LOSS_NONFINITE, zero_log, "", INFINITY, INFINITY},
    {"root of 0 in the loss", MPT_FAULT_BACKWARD_NONFINITE, zero_root, "5", 1, 1e9},
    {"steps that are all skipped", MPT_FAULT_SKIPS, zero_root, "", 5, 8},
    {"a dead layer", MPT_FAULT_DEAD_LAYER, dead_layer, "1", 1, 1},
    {"dead units", MPT_FAULT_DEAD_UNITS, dead_units, "3", 0.6, 0.9},
    {"exploding weights", MPT_FAULT_WEIGHTS_LARGE, large_weights, "4.weight", 300, 1e4},
    {"weights that are broken", MPT_FAULT_WEIGHTS_NONFINITE, bad_weights, "2.weight", 1, 1},
    {"inputs as bytes", MPT_FAULT_INPUT_RANGE, no_normalize, "", 60, 80},
    {"frozen by mistake", MPT_FAULT_FROZEN, frozen, "4.weight", 2, 2},
    {"a rate 100 times too large", MPT_FAULT_RATE_HIGH, high_rate, NULL, 0.5, 10},
    {"a rate far too small", MPT_FAULT_RATE_LOW, low_rate, "", 1e-10, 1e-7},
    {"one class alone", MPT_FAULT_TARGETS_CONSTANT, one_class, "", 2, 2},
    {"an optimizer of the first layer alone", MPT_FAULT_NO_OPTIMIZER, half_optimized, "2.weight", 1,
        1},
    {"a loss that rises", MPT_FAULT_LOSS_RISES, rises, "", 2, INFINITY},
    {"vanishing gradients", MPT_FAULT_VANISHING, vanishing, "0", 1e4, 1e30},
    {"exploding gradients", MPT_FAULT_EXPLODING, exploding, "0", 1e4, 1e30},
    {"saturated units", MPT_FAULT_SATURATED, saturated, "1", 0.8, 1},
    {"a layer that makes NaN", MPT_FAULT_FORWARD_NONFINITE, root_layer, "1", 1, 1e9},
    {"a layer that is not used", MPT_FAULT_UNREACHED, unused, "unused.weight", 1, 1}};

static const mpt_finding *find(const mpt_diagnosis *all, mpt_fault fault) {
    for (int i = 0; i < all->count; i++)
        if (all->finding[i].fault == fault) return &all->finding[i];
    return NULL;
}

TEST(every_planted_fault_is_named) {
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        begin();
        faults[i].plant();
        const mpt_diagnosis all = diagnose();
        const mpt_finding *found = find(&all, faults[i].fault);
        if (!found) printf("    %s: not found in\n%s\n", faults[i].name, text);
        CHECK(found != NULL);
        if (found) {
            const bool right = found->value >= faults[i].least && found->value <= faults[i].most &&
                (!faults[i].place || strcmp(found->place, faults[i].place) == 0);
            if (!right)
                printf("    %s: %g at %s, %s\n", faults[i].name, found->value, found->place,
                    found->text);
            CHECK(right);
            CHECK(strstr(text, found->text) &&
                found->step >= (faults[i].fault != MPT_FAULT_WEIGHTS_NONFINITE));
        }
        mpt_destroy(p.context);
    }
}

TEST(a_healthy_training_has_no_findings) {
    for (int precision = 0; precision < 3; precision++) {
        begin();
        p.config.precision = precision == 0 ? MPT_F32 : precision == 1 ? MPT_F16 : MPT_BF16;
        p.config.steps = 20;
        const mpt_diagnosis all = diagnose();
        if (all.count) printf("%s\n", text);
        CHECK_EQ_INT(all.count, 0);
        CHECK_EQ_INT(all.status, MPT_OK);
        CHECK_EQ_INT((int)all.steps, 20);
        CHECK(all.last_loss < all.first_loss && all.seconds[0] > 0 && all.seconds[1] > 0);
        CHECK(strstr(text, "nothing is wrong") && strstr(text, "log_softmax"));
        mpt_destroy(p.context);
    }
}

/* ==== What else must hold ==== */

static int forward_calls, backward_calls;
static mpt_status count_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)self, (void)in, (void)n_in, (void)out, (void)n_out;
    forward_calls += user == &p;
    return MPT_OK;
}
static mpt_status count_backward(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)self, (void)output, (void)gradient;
    backward_calls += user == &p;
    return MPT_OK;
}

TEST(hooks_of_the_users_run_and_come_back) {
    void *user = NULL;
    begin();
    const mpt_module layer = mpt_child(p.net, "2");
    mpt_hook_forward(layer, count_forward, &p);
    mpt_hook_backward(layer, count_backward, &p);
    diagnose();
    CHECK(forward_calls >= 16 && backward_calls >= 16);
    CHECK(mpt_get_forward_hook(layer, &user) == count_forward && user == &p);
    CHECK(mpt_get_backward_hook(layer, NULL) == count_backward);
    CHECK(mpt_get_forward_hook(mpt_child(p.net, "0"), &user) == NULL && user == NULL);
    mpt_destroy(p.context);
}

TEST(an_error_on_the_way_is_told_and_undone) {
    begin();
    p.y[100] = 77; /* no such class */
    const mpt_diagnosis all = diagnose();
    CHECK(all.status != MPT_OK && all.steps < 8);
    CHECK(mpt_get_forward_hook(mpt_child(p.net, "0"), NULL) == NULL);
    mpt_step_begin(p.context);
    size_t length = 7;
    CHECK(mpt_diagnose(p.net, p.optimizer, p.loader, NULL, text, 9, &length).status ==
        MPT_ERROR_STATE);
    CHECK(length == 0 && !*text);
    mpt_clear_error(p.context);
    mpt_step_end(p.context);
    mpt_module none;
    memset(&none, 0, sizeof none);
    CHECK(mpt_diagnose(none, p.optimizer, p.loader, NULL, NULL, 0, NULL).status != MPT_OK);
    mpt_destroy(p.context);
}

TEST(scales_and_gradients_are_told) {
    mpt_scaler_config sc = mpt_scaler_config_default();
    begin();
    sc.init_scale = (float)(1 << 24);
    p.config.scaler = mpt_grad_scaler(p.context, &sc);
    const mpt_diagnosis all = diagnose();
    CHECK(all.skipped >= 1 && all.scale < (double)(1 << 24));
    CHECK_CONTAINS(text, "loss scale: 1.678e+07, 8.389e+06 from step 2 on");
    CHECK_CONTAINS(text, " at the end\n");
    const char *line = strstr(text, "\n0 "), *bar = line ? strchr(line, '|') : NULL;
    CHECK(bar && bar[17] == '|' && bar[18] == '\n');
    CHECK(bar && memchr(bar, '@', 17)); /* where most are */
    CHECK(bar && bar[1] == ' ' && bar[16] == ' ');
    mpt_destroy(p.context);
}

TEST(modules_are_listed) {
    char path[8] = "?";
    begin();
    CHECK_EQ_INT(mpt_module_count(p.net), 7);
    CHECK_EQ_STR(mpt_module_kind(p.net), "sequential");
    CHECK(mpt_module_at(p.net, 0, path, sizeof path).slot == p.net.slot && !*path);
    const mpt_module third = mpt_module_at(p.net, 3, path, sizeof path);
    CHECK_EQ_STR(path, "2");
    CHECK_EQ_STR(mpt_module_kind(third), "linear");
    CHECK_EQ_INT(mpt_module_count(third), 1);
    CHECK_EQ_INT(mpt_get_requires_grad(mpt_parameter(p.net, "2.weight")), 1);
    mpt_freeze(third, true);
    CHECK_EQ_INT(mpt_get_requires_grad(mpt_parameter(p.net, "2.weight")), 0);
    CHECK(mpt_module_at(p.net, 7, NULL, 0).slot == 0);
    CHECK_CONTAINS(mpt_error(p.context), "module 7: the tree has 7");
    mpt_destroy(p.context);
}

/* ==== Precisions side by side ==== */

static mpt_module make_net(mpt_context *context, void *user) {
    (void)user;
    p.context = context;
    return plain_net();
}
static mpt_optimizer make_optimizer(mpt_module net, void *user) {
    (void)user;
    return mpt_adamw(net, NULL);
}
static mpt_loader make_loader(mpt_context *context, void *user) {
    mpt_memory_dataset_config dc = mpt_memory_dataset_config_default();
    mpt_loader_config lc = mpt_loader_config_default();
    (void)user;
    dc.count = SAMPLES, dc.shape = MPT_SHAPE(INPUTS), dc.inputs = p.x, dc.targets = p.y;
    lc.batch = BATCH, lc.shuffle = true;
    return mpt_loader_create(context, mpt_memory_dataset(context, &dc), &lc);
}

TEST(precisions_stand_side_by_side) {
    mpt_training training = {make_net, make_optimizer, make_loader, NULL, NULL};
    mpt_precision_run runs[MPT_PRECISION_RUNS];
    mpt_config config = mpt_config_default();
    config.threads = 1;
    make_data();
    const size_t length = mpt_compare_precisions(&training, &config, 100, runs, text, sizeof text);
    CHECK(length == strlen(text) && length > 400);
    for (int i = 0; i < MPT_PRECISION_RUNS; i++) {
        CHECK_EQ_INT(runs[i].status, MPT_OK);
        CHECK(runs[i].loss[4] < 0.8 * runs[i].loss[0] && runs[i].seconds > 0 && runs[i].peak > 0);
        CHECK_NEAR(runs[i].loss[4], runs[0].loss[4], 0.03);
        CHECK(strstr(text, runs[i].name) && (runs[i].scale > 1) == (i == 1 || i == 3));
    }
    CHECK(runs[0].loss[4] != runs[1].loss[4] && runs[1].loss[4] != runs[3].loss[4]);
    p.y[3] = 9; /* an error in each of them */
    mpt_compare_precisions(&training, &config, 10, runs, text, sizeof text);
    for (int i = 0; i < MPT_PRECISION_RUNS; i++) CHECK(runs[i].status != MPT_OK);
    CHECK(strstr(text, "half bf16 "));
    CHECK_EQ_INT((int)mpt_compare_precisions(&training, NULL, 4, runs, text, 9), 0);
    CHECK_EQ_INT((int)mpt_compare_precisions(NULL, NULL, 100, runs, NULL, 0), 0);
    CHECK_EQ_INT((int)mpt_compare_precisions(&training, NULL, 100, NULL, NULL, 0), 0);
}

TEST_TABLE = {T(every_planted_fault_is_named), T(a_healthy_training_has_no_findings),
    T(hooks_of_the_users_run_and_come_back), T(an_error_on_the_way_is_told_and_undone),
    T(scales_and_gradients_are_told), T(modules_are_listed), T(precisions_stand_side_by_side)};
TEST_MAIN
