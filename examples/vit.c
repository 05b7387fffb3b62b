/* vit.c - a Vision Transformer on small pictures: CIFAR-10 from its binary files, or drawn digits.
 *
 * A token for each patch, one for the class, blocks of attention; AdamW with a warm rate, crops and
 * flips that loader threads make. Parameters have torchvision's names: it goes on from its vit_b_16
 * with --width 768 --layers 12 --heads 12 --patch 16 --size 224 --weights FILE.
 * test arguments: --width 16 --layers 2 --heads 2 --patch 7 --subset 128 --epochs 1 --batch 32 */
#define EXAMPLE_GOES_ON
#include "common.h"
#include "pictures.h"
#include "precisions.h"
#include "vit.h"

typedef struct settings {
    int64_t width, layers, heads, patch, size, epochs, batch, subset, precision, workers, seed;
    double lr, dropout;
    const char *data, *weights;
    bool help;
} settings;

static const option_row rows[] = {
    {"--data", OPTION_TEXT, offsetof(settings, data), NULL, 0, 0,
     "a folder with data_batch_1.bin .."},
    {"--weights", OPTION_TEXT, offsetof(settings, weights), NULL, 0, 0,
     "a safetensors file to start from, without its head"},
    {"--width", OPTION_INT, offsetof(settings, width), NULL, 8, 4096, "192: ViT-Ti; default 96"},
    {"--layers", OPTION_INT, offsetof(settings, layers), NULL, 1, TRANSFORMER_BLOCKS, "default 6"},
    {"--heads", OPTION_INT, offsetof(settings, heads), NULL, 1, 64, "default 3"},
    {"--patch", OPTION_INT, offsetof(settings, patch), NULL, 1, 64, "pixels, default 4"},
    {"--size", OPTION_INT, offsetof(settings, size), NULL, 0, 512, "of pictures, 0: their own"},
    {"--epochs", OPTION_INT, offsetof(settings, epochs), NULL, 1, 10000, "default 10"},
    {"--batch", OPTION_INT, offsetof(settings, batch), NULL, 1, 8192, "default 64"},
    {"--subset", OPTION_INT, offsetof(settings, subset), NULL, 2, 50000, "pictures, default 4096"},
    {"--precision", OPTION_CHOICE, offsetof(settings, precision), "fp32|fp16|bf16", 0, 0,
     "default bf16"},
    {"--lr", OPTION_NUMBER, offsetof(settings, lr), NULL, 0, 0, "the highest, default 1e-3"},
    {"--dropout", OPTION_NUMBER, offsetof(settings, dropout), NULL, 0, 0, "default none"},
    {"--workers", OPTION_INT, offsetof(settings, workers), NULL, 0, 64, "default 1"},
    {"--seed", OPTION_INT, offsetof(settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows };

static int train(mpt_context *ctx, const settings *s) {
    const precision *p = &precisions[s->precision];
    data_sets sets;
    pictures_open(ctx, s->data, s->subset, s->size, &sets);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = s->batch, lc.workers = (int)s->workers, lc.dtype = p->batch;
    mpt_loader tests = mpt_loader_create(ctx, sets.test, &lc);
    lc.shuffle = lc.drop_last = true;
    mpt_loader loader = mpt_loader_create(ctx, sets.train, &lc);
    vit_shape shape = {s->width, s->layers, s->heads, 4 * s->width, s->patch, s->size, 1, 10, 0.0};
    if (!s->size) shape.size = s->data ? 32 : DIGITS_SIZE;
    shape.channels = s->data ? 3 : 1, shape.dropout = s->dropout;
    mpt_module net = make_vit(ctx, &shape);
    int loaded = 0;
    if (s->weights) pictures_load(net, s->weights, "heads.*", &loaded);
    if (s->weights) printf("%d tensors from %s\n", loaded, s->weights);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = s->lr, adamw.weight_decay = 0.05;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    const int64_t steps = s->epochs * mpt_loader_batches(loader);
    mpt_warmup(optimizer, 0.01, steps / 10 + 1, steps + 1, s->lr / 100, MPT_PER_STEP);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
    if (mpt_failed(ctx)) return fail_with_error("vit", ctx);
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
        mpt_unscale(scaler, optimizer);
        mpt_clip_grad_norm(optimizer, 1.0);
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
        progress_step(&bar, ctx, scaler);
    }
    const int status = progress_end(&bar, ctx, "vit");
    if (status != 0) return status;
    const double seconds = seconds_now() - bar.started;
    const mpt_loader_stats stats = mpt_loader_statistics(loader);
    const mpt_evaluation test = mpt_evaluate(net, tests, p->autocast);
    mpt_save(net, "vit.safetensors");
    if (mpt_failed(ctx)) return fail_with_error("vit", ctx);
    printf(
        "Test accuracy: %.2f %%, %.0f pictures per second, %.1f %% of the time waited for data\n",
        100.0 * test.accuracy, progress_speed(&bar) * (double)s->batch,
        100.0 * stats.seconds_waited / seconds);
    return write_results(ctx, &bar, scaler, "test_accuracy", test.accuracy);
}

int main(int argc, char **argv) {
    settings s = {96, 6, 3, 4, 0, 10, 64, 4096, 2, 1, 0, 1e-3, 0.0, NULL, NULL, false};
    char error[256];
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("vit", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("vit", rows, ROWS, stdout), 0;
    mpt_config config = default_config("vit");
    config.seed = (uint64_t)s.seed;
    mpt_context *ctx = mpt_create(&config);
    const int status = ctx ? train(ctx, &s) : fail_with_error("vit", ctx);
    mpt_destroy(ctx);
    return status;
}
