/* api_models_large.c: ResNet-18 on 224 x 224 pictures and ViT-B/16 as their papers have them: how
   many parameters, logits and two steps against PyTorch in fp32, one step more in bf16, time and
   memory. A heavy test: up to 350 MB of weights and as much of gradients. */
#include "../examples/resnet.h"
#include "../examples/vit.h"
#include "models.h"

enum { LOGITS = 100 };

static double seconds(void) { return (double)clock() / CLOCKS_PER_SEC; } /* of all threads */

/* The rule of tools/golden_models.py: norms about 1, biases small, matrices by their fan in. */
static void fill(mpt_module net) {
    for (int i = 0; i < mpt_parameter_count(net); i++) {
        char path[200], label[220];
        mpt_tensor t = mpt_parameter_at(net, i, path, sizeof path);
        const mpt_shape shape = mpt_get_shape(t);
        const int64_t numel = mpt_numel(t);
        const size_t length = strlen(path);
        const bool weight = length > 6 && strcmp(path + length - 6, "weight") == 0;
        float *values = (float *)malloc((size_t)(numel > 0 ? numel : 1) * sizeof *values);
        snprintf(label, sizeof label, "large/%s", path);
        const uint32_t stream = stream_of(label);
        const double fan_in = (double)numel / (double)shape.dim[0];
        const float scale = shape.rank == 1    ? (weight ? 0.25f : 0.125f)
                            : shape.dim[0] > 1 ? (float)sqrt(3.0 / fan_in)
                                               : 0.5f;
        for (int64_t k = 0; values && k < numel; k++)
            values[k] = golden_uniform(stream, (uint32_t)k) * scale +
                        (shape.rank == 1 && weight ? 1.0f : 0.0f);
        if (values) mpt_write(t, values, (size_t)numel * sizeof *values);
        free(values);
    }
}

/* One step; the logits of it where that is not NULL. Returns the loss. */
static double step(mpt_module net, mpt_optimizer optimizer, mpt_tensor x, mpt_tensor y,
                   mpt_dtype precision, double *logits) {
    mpt_context *ctx = net.context;
    mpt_step_begin(ctx);
    mpt_autocast_begin(ctx, precision);
    mpt_tensor out = mpt_forward(net, x);
    mpt_tensor loss = mpt_cross_entropy(out, y, NULL);
    mpt_autocast_end(ctx);
    mpt_zero_grad(optimizer);
    mpt_backward(loss);
    mpt_step(optimizer);
    const int64_t numel = mpt_numel(out);
    float *values = (float *)calloc((size_t)(numel > 0 ? numel : 1), sizeof *values);
    if (values) mpt_read_f32(out, values, numel);
    for (int64_t i = 0; values && logits && i < LOGITS; i++) logits[i] = values[i * numel / LOGITS];
    free(values);
    const double value = mpt_item(loss);
    mpt_step_end(ctx);
    return value;
}

/* As in api_models.c: four times as far from PyTorch's fp32 as that is from its fp64, or the
   tolerance of one op. */
static void compare(const golden_case *c, const char *what, const double *values) {
    char name[32];
    double size = 0;
    snprintf(name, sizeof name, "f32 %s", what);
    const golden_tensor *f32 = golden_find(c, name);
    snprintf(name, sizeof name, "f64 %s", what);
    for (int64_t i = 0; i < f32->count; i++) size += pow(golden_value(f32, i), 2);
    const double floor_ = 1.3e-6 * sqrt(size / (double)f32->count);
    const double own = 4 * distance(NULL, golden_find(c, name), f32, NULL);
    const double got = distance(values, NULL, f32, NULL), allowed = own > floor_ ? own : floor_;
    if (!(got <= allowed))
        TEST_FAIL_("%s: %s are %.3g off PyTorch's fp32, allowed is %.3g", c->label, what, got,
                   allowed);
}

/* The losses one by one. That of the second step may also be as far off as PyTorch's fp32 in
   channels_last, where sums go in another order: of the numbers that the relus get, millions, one
   that rounds to the other side of 0 changes gradients by 0.8 %. */
static void compare_losses(const golden_case *c, const double losses[2]) {
    const golden_tensor *f32 = golden_find(c, "f32 loss"), *f64 = golden_find(c, "f64 loss");
    const golden_tensor *last = golden_find(c, "last loss");
    for (int i = 0; i < 2; i++) {
        const double want = golden_value(f32, i), own = 4 * fabs(golden_value(f64, i) - want);
        const double other = i > 0 ? fabs(golden_value(last, i) - want) : 0;
        const double allowed = fmax(fmax(own, other), 1.3e-6 * fabs(want));
        if (!(fabs(losses[i] - want) <= allowed))
            TEST_FAIL_("%s: loss %d is %.3g off PyTorch's fp32, allowed is %.3g", c->label, i,
                       fabs(losses[i] - want), allowed);
    }
}

static void run(const golden_case *c, mpt_module net, int64_t parameters, int64_t batch,
                int64_t size) {
    static double logits[LOGITS];
    mpt_context *ctx = net.context;
    char label[32];
    double losses[2], started[2];
    snprintf(label, sizeof label, "%s/x", strcmp(c->label, "resnet18") == 0 ? "resnet18" : "vit");
    if (strstr(mpt_error(ctx), "built without")) SKIP("convolutions and attention");
    CHECK_EQ_INT(mpt_parameter_numel(net), parameters);
    CHECK_EQ_INT(c->ints[c->n_ints - 1], parameters);
    fill(net);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = c->reals[0];
    mpt_optimizer optimizer = mpt_sgd(net, &sgd);
    mpt_tensor x = random_pictures(ctx, stream_of(label), batch, size);
    mpt_tensor y = mpt_from(ctx, MPT_I64, MPT_SHAPE(batch), golden_find(c, "y")->data);
    started[0] = seconds();
    losses[0] = step(net, optimizer, x, y, MPT_F32, logits);
    losses[1] = step(net, optimizer, x, y, MPT_F32, NULL);
    started[1] = seconds();
    compare(c, "logits", logits);
    compare_losses(c, losses);
    CHECK(step(net, optimizer, x, y, MPT_BF16, NULL) < losses[0]);
    CHECK_EQ_STR(mpt_error(ctx), "");
    printf("batch %d: %.2f s of processor time per step in fp32, %.2f s in bf16; peak %.0f MB ",
           (int)batch, (started[1] - started[0]) / 2, seconds() - started[1],
           1e-6 * (double)mpt_memory(ctx).total_peak);
}

/* The case of that name; false fails the test. */
static bool find_case(golden_file *file, golden_case *c, const char *name) {
    if (!golden_open(file, "models.bin")) return false;
    while (golden_next(file, c))
        if (strcmp(c->op, "model_large") == 0 && strcmp(c->label, name) == 0) return true;
    TEST_FAIL_("models.bin has no large %s", name);
    return false;
}

TEST(resnet18) {
    golden_file file;
    static golden_case c;
    REQUIRE(find_case(&file, &c, "resnet18"));
    mpt_context *ctx = mpt_create(NULL);
    run(&c, resnet18(ctx, 3, 1000, 64, true), 11689512, 2, 224);
    mpt_destroy(ctx);
    golden_close(&file);
}

TEST(vit_b_16) {
    static const vit_shape base = {768, 12, 12, 3072, 16, 224, 3, 1000, 0.0};
    golden_file file;
    static golden_case c;
    REQUIRE(find_case(&file, &c, "vit_b_16"));
    mpt_context *ctx = mpt_create(NULL);
    run(&c, make_vit(ctx, &base), 86567656, 1, 224);
    mpt_destroy(ctx);
    golden_close(&file);
}

TEST_TABLE = {T(resnet18), T(vit_b_16)};
TEST_MAIN
