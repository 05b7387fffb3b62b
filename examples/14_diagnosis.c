/* 14_diagnosis.c - lesson 14: what went wrong. Ten trainings, each with one fault.
 *
 * mpt_diagnose of tools/mptrain_tools.h trains for a few steps and looks at every layer meanwhile,
 * also in fp32, then puts everything back as it was. What it finds has a kind, a place and advice.
 * Each of these faults costs people hours: the program runs, no error is raised, and nothing is
 * learned. The log tells of numbers that are none by itself. test warnings: 4
 * test arguments: */
#include "lesson.h"

#include "data.h"

#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

enum { SAMPLES = 1024, PIXELS = DIGITS_PIXELS, HIDDEN = 32 };

typedef struct training {
    mpt_context *ctx;
    mpt_module net;
    double mean, deviation; /* what inputs are normalised by */
    double lr;
    bool first_layer_only; /* that is what the optimizer gets */
    mpt_diagnosis_config config;
} training;

/* Sets all numbers of a parameter, or multiplies them. */
static void change(training *t, const char *path, float factor, float more) {
    static float values[PIXELS * HIDDEN];
    mpt_tensor parameter = mpt_parameter(t->net, path);
    int64_t count = mpt_numel(parameter);
    mpt_read_f32(parameter, values, count);
    for (int64_t i = 0; i < count; i++) values[i] = values[i] * factor + more;
    mpt_write(parameter, values, (size_t)count * sizeof *values);
}

static mpt_tensor one_of_a_million(mpt_tensor out, mpt_tensor y, void *user) {
    (void)user;
    return mpt_mul_scalar(mpt_nll_loss(out, y, NULL), 1e-6);
}
static mpt_tensor own_logarithm(mpt_tensor out, mpt_tensor y, void *user) {
    mpt_tensor probability = mpt_exp(mpt_mul_scalar(out, 100.0)); /* some are 0 */
    (void)y, (void)user;
    return mpt_neg(mpt_mean(mpt_log(probability), MPT_ALL_DIMS, false));
}

static void nothing(training *t) { (void)t; }
static void bytes_as_they_are(training *t) { t->mean = 0, t->deviation = 1.0 / 255; }
static void rate_too_large(training *t) { t->lr = 0.3; }
static void rate_too_small(training *t) { t->lr = 1e-10; }
static void no_scaler(training *t) { t->config.loss = one_of_a_million, t->config.scaled = false; }
static void logarithm_of_zero(training *t) { t->config.loss = own_logarithm; }
static void too_large_for_fp16(training *t) { change(t, "3.weight", 1e6f, 0); }
static void all_biases_negative(training *t) { change(t, "1.bias", 0, -1000); }
static void last_layer_frozen(training *t) { mpt_freeze(mpt_child(t->net, "5"), true); }
static void optimizer_of_a_part(training *t) { t->first_layer_only = true; }
static void broken_weights(training *t) { change(t, "5.bias", 0, NAN); }

static const struct {
    const char *what;
    void (*plant)(training *t);
    mpt_fault fault; /* MPT_FAULTS: none */
} cases[] = {{"nothing is wrong", nothing, MPT_FAULTS},
    {"pixels of 0 to 255, not normalised", bytes_as_they_are, MPT_FAULT_INPUT_RANGE},
    {"a learning rate of 0.3 for AdamW", rate_too_large, MPT_FAULT_RATE_HIGH},
    {"a learning rate of 1e-10", rate_too_small, MPT_FAULT_RATE_LOW},
    {"a small loss in fp16, without a scaler", no_scaler, MPT_FAULT_UNDERFLOW},
    {"a logarithm of one's own", logarithm_of_zero, MPT_FAULT_LOSS_NONFINITE},
    {"a layer whose outputs fp16 does not hold", too_large_for_fp16, MPT_FAULT_FORWARD_OVERFLOW},
    {"biases that keep a relu at 0", all_biases_negative, MPT_FAULT_DEAD_LAYER},
    {"the last layer is frozen", last_layer_frozen, MPT_FAULT_FROZEN},
    {"the optimizer has one layer of three", optimizer_of_a_part, MPT_FAULT_NO_OPTIMIZER},
    {"weights from a training that broke", broken_weights, MPT_FAULT_WEIGHTS_NONFINITE}};

static bool was_found(const mpt_diagnosis *all, mpt_fault fault) {
    for (int i = 0; i < all->count; i++)
        if (all->finding[i].fault == fault) return true;
    return fault == MPT_FAULTS && all->count == 0;
}

/* Plants fault number i, and prints what is found; whether it is the right thing. */
static bool diagnose(mpt_context *ctx, int i) {
    static char text[16384];
    training t = {ctx, {0}, DATA_MEAN, DATA_DEVIATION, 1e-3, false, {0}};
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_loader_config lc = mpt_loader_config_default();
    t.config = mpt_diagnosis_config_default();
    t.config.steps = 8;
    t.net = mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, PIXELS, HIDDEN),
        mpt_nn_relu(ctx), mpt_nn_linear(ctx, HIDDEN, HIDDEN), mpt_nn_relu(ctx),
        mpt_nn_linear(ctx, HIDDEN, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
    cases[i].plant(&t);
    mpt_dataset digits = data_drawn(ctx, DIGITS_TRAIN_SEED, SAMPLES);
    mpt_normalize(digits, t.mean, t.deviation);
    lc.batch = 64, lc.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, digits, &lc);
    adamw.lr = t.lr;
    mpt_module trained = t.first_layer_only ? mpt_child(t.net, "1") : t.net;
    mpt_optimizer optimizer = mpt_adamw(trained, &adamw);
    const mpt_diagnosis all =
        mpt_diagnose(t.net, optimizer, loader, &t.config, text, sizeof text, NULL);
    if (i == 0) printf("%s", text); /* the whole of it once */
    for (int k = 0; k < all.count; k++) printf("%s\n", all.finding[k].text);
    return was_found(&all, cases[i].fault);
}

int main(void) {
    enum { COUNT = (int)(sizeof cases / sizeof *cases) };
    mpt_context *ctx = lesson_begin("14_diagnosis", "Lesson 14: what went wrong");
    int found = 0;
    if (!ctx) return EXIT_BAD_INPUT;
    for (int i = 0; i < COUNT; i++) {
        heading(cases[i].what);
        mpt_scope_begin(ctx);
        found += diagnose(ctx, i);
        mpt_scope_end(ctx);
    }
    printf("\n%d of %d faults were found, and where there is none nothing was\n", found - 1,
        COUNT - 1);
    return lesson_end(ctx, found == COUNT);
}
