/* mnist99.c - learns to read 99 of 100 handwritten digits that it never saw, in some seconds.
 *
 * Two convolutions of 5 x 5 and two linear layers, one pass over the 60,000 digits: what makes it
 * short is a rate that rises quickly and falls to zero, norms behind the convolutions, and targets
 * that are a little less than certain. The mean over seeds counts, since one run may be lucky.
 *
 *   build/mnist99                         five seeds in bf16
 *   build/mnist99 --precision fp32 --seeds 1
 * test arguments: --subset 2048 --seeds 1 */
#include "common.h"
#include "precisions.h"

typedef struct settings {
    int64_t seeds, epochs, batch, subset, precision;
    double lr;
    const char *data;
    bool help;
} settings;

static const option_row rows[] = {
    {"--seeds", OPTION_INT, offsetof(settings, seeds), NULL, 1, 1000, "trainings, default 5"},
    {"--epochs", OPTION_INT, offsetof(settings, epochs), NULL, 1, 1000, "default 1"},
    {"--batch", OPTION_INT, offsetof(settings, batch), NULL, 2, 60000, "default 192"},
    {"--lr", OPTION_NUMBER, offsetof(settings, lr), NULL, 0, 0, "at its highest, default 0.01"},
    {"--precision", OPTION_CHOICE, offsetof(settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--data", OPTION_TEXT, offsetof(settings, data), NULL, 0, 0,
     "folder with MNIST's idx files, plain or .gz"},
    {"--subset", OPTION_INT, offsetof(settings, subset), NULL, 1, 60000,
     "train on the first N digits only"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows };

typedef struct result {
    double accuracy, seconds; /* on the test digits; of the training alone */
} result;

/* A convolution, the largest of 2 x 2, a norm, ReLU. The norm has a bias, so the first has none. */
static mpt_module block(mpt_context *ctx, int64_t from, int64_t to) {
    mpt_conv_config plain = mpt_conv_config_default();
    plain.bias = false;
    return mpt_sequential(ctx, mpt_nn_conv2d(ctx, from, to, 5, 5, &plain),
                          mpt_nn_max_pool2d(ctx, NULL), mpt_nn_batch_norm2d(ctx, to, NULL),
                          mpt_nn_relu(ctx), MPT_END);
}

static mpt_module make_net(mpt_context *ctx) {
    return mpt_sequential(ctx, block(ctx, 1, 8), block(ctx, 8, 24), mpt_nn_flatten(ctx),
                          mpt_nn_linear(ctx, 24 * 4 * 4, 64), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 64, 10), MPT_END);
}

static void train(mpt_context *ctx, const settings *s, mpt_loader loader, mpt_module net) {
    const precision *p = &precisions[s->precision];
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_scaler_config sc = mpt_scaler_config_default();
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    mpt_nll_config unsure = mpt_nll_config_default();
    adamw.lr = s->lr, sc.enabled = p->scaled;
    cycle.total = mpt_loader_batches(loader) * s->epochs;
    unsure.label_smoothing = 0.1;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    mpt_one_cycle(optimizer, &cycle, MPT_PER_STEP);
    for (int64_t epoch = 0; epoch < s->epochs && !mpt_failed(ctx); epoch++) {
        mpt_batch b;
        while (mpt_loader_next(loader, &b)) {
            mpt_step_begin(ctx);
            mpt_autocast_begin(ctx, p->autocast);
            mpt_tensor scores = mpt_forward(net, mpt_to_channels_last(b.x));
            mpt_tensor loss = mpt_cross_entropy(scores, b.y, &unsure);
            mpt_autocast_end(ctx);
            mpt_zero_grad(optimizer);
            mpt_backward(mpt_scale_loss(scaler, loss));
            mpt_scaler_step(scaler, optimizer);
            mpt_scaler_update(scaler);
            mpt_step_end(ctx);
        }
    }
    mpt_synchronize(ctx);
}

/* One training from a seed; what main shall return. */
static int run(const settings *s, int64_t seed, result *r) {
    mpt_config config = default_config("mnist99");
    config.seed = (uint64_t)seed;
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("mnist99", NULL);
    data_sets data = data_open(ctx, s->data);
    if (s->subset) data.train = mpt_subset(data.train, 0, s->subset);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = s->batch, lc.shuffle = true, lc.drop_last = true;
    lc.dtype = precisions[s->precision].batch;
    mpt_loader loader = mpt_loader_create(ctx, data.train, &lc);
    mpt_module net = make_net(ctx);
    if (seed == 0 && !mpt_failed(ctx))
        printf("Data: %s; %lld parameters, %s\n", data.name, (long long)mpt_parameter_numel(net),
               precisions[s->precision].name);
    const double start = seconds_now();
    train(ctx, s, loader, net);
    r->seconds = seconds_now() - start;
    lc.shuffle = lc.drop_last = false;
    r->accuracy = mpt_evaluate(net, mpt_loader_create(ctx, data.test, &lc),
                               precisions[s->precision].autocast)
                      .accuracy;
    const int status = mpt_failed(ctx) ? fail_with_error("mnist99", ctx) : 0;
    mpt_destroy(ctx);
    return status;
}

int main(int argc, char **argv) {
    settings s = {5, 1, 192, 0, 2, 0.01, NULL, false};
    result r = {0, 0}, sum = {0, 0};
    char error[256];
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("mnist99", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("mnist99", rows, ROWS, stdout), 0;
    for (int64_t seed = 0; seed < s.seeds; seed++) {
        const int status = run(&s, seed, &r);
        if (status != 0) return status;
        printf("seed %lld: %.2f %% of the test digits right, %.2f s\n", (long long)seed,
               100 * r.accuracy, r.seconds);
        sum.accuracy += r.accuracy, sum.seconds += r.seconds;
    }
    printf("mean: %.3f %%, %.2f s\n", 100 * sum.accuracy / (double)s.seeds,
           sum.seconds / (double)s.seeds);
    return 0;
}
