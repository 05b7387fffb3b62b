/* resnet.c - ResNet-18 on CIFAR-10 from its binary files, a folder of photos, or drawn digits.
 *
 * Convolutions in channels-last memory, batch norm, shortcuts; SGD with momentum, a one-cycle rate,
 * crops and flips that loader threads make. Parameters have torchvision's names. Photos need
 * stb_image: CPPFLAGS='-DMPTRAIN_STB_IMAGE -DMPTRAIN_STB_IMAGE_IMPLEMENTATION'.
 * test arguments: --width 4 --subset 128 --epochs 1 --batch 32 */
#define EXAMPLE_GOES_ON
#include "common.h"
#include "pictures.h"
#include "precisions.h"
#include "resnet.h"

typedef struct settings {
    int64_t width, epochs, batch, subset, precision, workers, seed, size;
    double lr;
    const char *data, *images, *weights;
    bool help;
} settings;

static const option_row rows[] = {
    {"--data", OPTION_TEXT, offsetof(settings, data), NULL, 0, 0,
     "a folder with data_batch_1.bin .."},
    {"--images", OPTION_TEXT, offsetof(settings, images), NULL, 0, 0,
     "photos: train/CLASS/.jpg, val/CLASS/.jpg"},
    {"--weights", OPTION_TEXT, offsetof(settings, weights), NULL, 0, 0,
     "a safetensors file to start from, without fc"},
    {"--size", OPTION_INT, offsetof(settings, size), NULL, 0, 512,
     "of pictures, 0: their own, of photos 224; from 64 on ImageNet's stem"},
    {"--width", OPTION_INT, offsetof(settings, width), NULL, 1, 1024, "64: ResNet-18; default 16"},
    {"--epochs", OPTION_INT, offsetof(settings, epochs), NULL, 1, 10000, "default 3"},
    {"--batch", OPTION_INT, offsetof(settings, batch), NULL, 2, 8192, "default 64"},
    {"--subset", OPTION_INT, offsetof(settings, subset), NULL, 2, 50000, "pictures, default 4096"},
    {"--precision", OPTION_CHOICE, offsetof(settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--lr", OPTION_NUMBER, offsetof(settings, lr), NULL, 0, 0, "the highest, default 0.1"},
    {"--workers", OPTION_INT, offsetof(settings, workers), NULL, 0, 64, "default 1"},
    {"--seed", OPTION_INT, offsetof(settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows };

static int train(mpt_context *ctx, const settings *s) {
    const precision *p = &precisions[s->precision];
    const bool photos = s->images != NULL;
    const int64_t size = photos && !s->size ? 224 : s->size, channels = photos || s->data ? 3 : 1;
    int64_t classes = 10;
    data_sets sets;
    if (photos)
        classes = pictures_photos(ctx, s->images, size, &sets);
    else
        pictures_open(ctx, s->data, s->subset, size, &sets);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = s->batch, lc.workers = (int)s->workers, lc.dtype = p->batch;
    mpt_loader tests = mpt_loader_create(ctx, sets.test, &lc);
    lc.shuffle = lc.drop_last = true;
    mpt_loader loader = mpt_loader_create(ctx, sets.train, &lc);
    mpt_module net = resnet18(ctx, channels, classes, s->width, size >= 64);
    int loaded = 0;
    if (s->weights) pictures_load(net, s->weights, "fc.*", &loaded);
    if (s->weights) printf("%d tensors from %s\n", loaded, s->weights);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = s->lr, sgd.momentum = 0.9, sgd.nesterov = true, sgd.weight_decay = 5e-4;
    mpt_optimizer optimizer = mpt_sgd(net, &sgd);
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    cycle.max_lr = s->lr, cycle.total = s->epochs * mpt_loader_batches(loader);
    mpt_one_cycle(optimizer, &cycle, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    if (mpt_failed(ctx)) return fail_with_error("resnet", ctx);
    printf("%s, %lld parameters, %s\n", sets.name, (long long)mpt_parameter_numel(net), p->name);

    progress bar = progress_begin("", true, s->epochs, mpt_loader_batches(loader));
    progress_resume(&bar, ctx);
    while (progress_goes_on(&bar, ctx)) {
        mpt_batch b;
        if (!mpt_loader_next(loader, &b)) continue; /* the next call begins an epoch */
        mpt_step_begin(ctx);
        mpt_autocast_begin(ctx, p->autocast);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, b.x), b.y, NULL);
        mpt_autocast_end(ctx);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
    }
    const int status = progress_end(&bar, ctx, "resnet");
    if (status != 0) return status;
    const double seconds = seconds_now() - bar.started;
    const mpt_loader_stats stats = mpt_loader_statistics(loader);
    /* Evaluation with each convolution, its norm, relu and shortcut as one launch. */
    mpt_fuse(net, mpt_zeros(ctx, MPT_F32, MPT_SHAPE(1, channels, 32, 32)), NULL, 0);
    const mpt_evaluation test = mpt_evaluate(net, tests, p->autocast);
    mpt_save(net, "resnet.safetensors");
    if (mpt_failed(ctx)) return fail_with_error("resnet", ctx);
    printf(
        "Test accuracy: %.2f %%, %.0f pictures per second, %.1f %% of the time waited for data\n",
        100.0 * test.accuracy, progress_speed(&bar) * (double)s->batch,
        100.0 * stats.seconds_waited / seconds);
    return write_results(ctx, &bar, scaler, "test_accuracy", test.accuracy);
}

int main(int argc, char **argv) {
    settings s = {16, 3, 64, 4096, 2, 1, 0, 0, 0.1, NULL, NULL, NULL, false};
    char error[256];
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("resnet", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("resnet", rows, ROWS, stdout), 0;
    mpt_config config = default_config("resnet");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    const int status = ctx ? train(ctx, &s) : fail_with_error("resnet", ctx);
    mpt_destroy(ctx);
    return status;
}
