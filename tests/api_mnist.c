/* api_mnist.c: the main job on the real digits. 784-128-64-10, batch 64, 5 epochs, seeds 0 to 4, in
   every precision, against the accuracies that PyTorch reached (tests/golden/mnist_reference.txt).
   A heavy test: about 100,000 steps. It needs mnist/ in the folder that MPTRAIN_DATA names.
   The digits that are drawn where there is no MNIST get bounds of their own. */
#include MPTRAIN_HEADER_FILE
#include "golden.h"
#include "harness.h"

#include "../examples/data.h"
#include "../examples/precisions.h"

enum { SEEDS = 5, EPOCHS = 5, BATCH = 64 };

/* In percent of the 10,000 test digits. */
static const double mean_at_least = 97.2, each_at_least = 96.7, means_apart = 0.35;

static bool have_mnist(void) {
    static const char *const names[] = {"mnist/train-images-idx3-ubyte",
                                        "mnist/train-images-idx3-ubyte.gz"};
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(test_data_path(names[i]), "rb");
        if (!file) continue;
        fclose(file);
        return true;
    }
    return false;
}

static mpt_loader open_digits(mpt_context *context, mpt_split split, mpt_dtype dtype) {
    mpt_dataset digits = mpt_mnist(context, test_data_path("mnist"), split);
    mpt_loader_config config = mpt_loader_config_default();
    mpt_normalize(digits, 0.1307, 0.3081);
    config.batch = BATCH;
    config.shuffle = split == MPT_TRAIN;
    config.dtype = dtype;
    return mpt_loader_create(context, digits, &config);
}

static mpt_optimizer make_optimizer(mpt_module net, bool use_adamw) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    adamw.lr = 1e-3;
    sgd.lr = 0.01;
    return use_adamw ? mpt_adamw(net, &adamw) : mpt_sgd(net, &sgd);
}

/* Test accuracy in percent; the seconds of training are added to *seconds. */
static double train(const precision *p, bool adamw, uint64_t seed, double *seconds,
                    int64_t *skipped) {
    mpt_config config = mpt_config_default();
    config.seed = seed;
    mpt_context *context = mpt_create(&config);
    mpt_loader loader = open_digits(context, MPT_TRAIN, p->batch);
    mpt_module net =
        mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 784, 128),
                       mpt_nn_relu(context), mpt_nn_linear(context, 128, 64), mpt_nn_relu(context),
                       mpt_nn_linear(context, 64, 10), mpt_nn_log_softmax(context, -1), MPT_END);
    if (p->parameters != MPT_F32) mpt_half(net, p->parameters);
    mpt_optimizer optimizer = make_optimizer(net, adamw);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(context, &sc);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = EPOCHS;
    fit.precision = p->autocast;
    fit.scaler = scaler;
    mpt_fit_result result = mpt_fit(net, optimizer, loader, &fit);
    double accuracy =
        100.0 * mpt_evaluate(net, open_digits(context, MPT_TEST, p->batch), p->autocast).accuracy;
    *seconds += result.seconds;
    *skipped += result.skipped_steps;
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(result.steps, EPOCHS * ((60000 + BATCH - 1) / BATCH));
    mpt_destroy(context);
    return accuracy;
}

/* Trains all seeds, prints a line of the table, returns the mean accuracy. */
static double train_seeds(const char *name, const precision *p, bool adamw, double *lowest) {
    double mean = 0, seconds = 0;
    int64_t skipped = 0;
    *lowest = 100;
    printf("\n  %-6s", name);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        double accuracy = train(p, adamw, seed, &seconds, &skipped);
        printf(" %7.2f", accuracy);
        fflush(stdout);
        mean += accuracy / SEEDS;
        if (accuracy < *lowest) *lowest = accuracy;
    }
    printf(" %8.3f %8lld %8.2f", mean, (long long)skipped, seconds / SEEDS);
    return mean;
}

static void print_heading(void) {
    printf("\n  seed  ");
    for (int seed = 0; seed < SEEDS; seed++) printf(" %7d", seed);
    printf(" %8s %8s %8s", "mean", "skipped", "seconds");
}

TEST(every_precision) {
    double mean[PRECISIONS], lowest;
    if (!have_mnist()) SKIP("mnist/ in the folder of MPTRAIN_DATA");
    double reference = golden_mnist_mean("adamw", "statistics");
    print_heading();
    for (int i = 0; i < PRECISIONS; i++) { /* held against the first */
        mean[i] = train_seeds(precisions[i].name, &precisions[i], true, &lowest);
        CHECK(mean[i] >= mean_at_least);
        CHECK(lowest >= each_at_least);
        CHECK_NEAR(mean[i], mean[0], means_apart);
    }
    printf("\n  PyTorch's mean: %.3f", reference);
    CHECK_NEAR(mean[0], reference, means_apart);
}

TEST(plain_recipe) {
    double lowest;
    if (!have_mnist()) SKIP("mnist/ in the folder of MPTRAIN_DATA");
    double reference = golden_mnist_mean("sgd", "statistics");
    print_heading();
    double mean = train_seeds("sgd", &precisions[0], false, &lowest);
    printf("\n  PyTorch's mean: %.3f", reference);
    CHECK_NEAR(mean, reference, means_apart);
}

/* Accuracy on the drawn digits, in percent, without or with the hidden layers. */
static double drawn_accuracy(mpt_context *context, bool hidden) {
    mpt_loader_config lc = mpt_loader_config_default();
    mpt_loader test =
        mpt_loader_create(context, data_drawn(context, DIGITS_TEST_SEED, DIGITS_TEST_COUNT), &lc);
    lc.batch = 32;
    lc.shuffle = true;
    mpt_loader train =
        mpt_loader_create(context, data_drawn(context, DIGITS_TRAIN_SEED, 24000), &lc);
    mpt_module net =
        hidden ? mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 784, 128),
                                mpt_nn_relu(context), mpt_nn_linear(context, 128, 64),
                                mpt_nn_relu(context), mpt_nn_linear(context, 64, 10),
                                mpt_nn_log_softmax(context, -1), MPT_END)
               : mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 784, 10),
                                mpt_nn_log_softmax(context, -1), MPT_END);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 0.002;
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 3;
    CHECK_EQ_INT(mpt_fit(net, mpt_adamw(net, &adamw), train, &fit).status, MPT_OK);
    return 100 * mpt_evaluate(net, test, MPT_F32).accuracy;
}

/* The digits that stand in for MNIST are neither too easy nor too hard for their purpose. */
TEST(drawn_digits_need_hidden_layers) {
    mpt_context *context = mpt_create(NULL);
    CHECK_NEAR(drawn_accuracy(context, false), 85, 5);
    CHECK_NEAR(drawn_accuracy(context, true), 98, 2);
    mpt_destroy(context);
}

TEST_TABLE = {T(every_precision), T(plain_recipe), T(drawn_digits_need_hidden_layers)};
TEST_MAIN
