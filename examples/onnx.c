/* onnx.c - a net for other runtimes: trained here, run by onnxruntime, a browser or an engine.
 *
 * Learns on which of two spirals a point lies, and writes spirals.onnx, which has the weights, a
 * batch of any size and logarithms of probabilities as its output:
 *
 *     session = onnxruntime.InferenceSession("spirals.onnx")
 *     session.run(None, {"points": numpy.zeros((5, 2), "float32")})
 *
 * test arguments: */
#define MPTRAIN_TOOLS_IMPLEMENTATION
#define MPTRAIN_TOOLS_STATIC
#include "common.h"
#include "tools/mptrain_tools.h"

#include <math.h>

enum { SAMPLES = 400 };

/* Two arms around the middle, one and a half times. */
static void spirals(float (*points)[2], int64_t *arms) {
    for (int i = 0; i < SAMPLES; i++) {
        const double r = 0.1 + 0.9 * (i / 2) / (SAMPLES / 2), turn = 9.4 * r + 3.14159 * (i % 2);
        points[i][0] = (float)(r * cos(turn)), points[i][1] = (float)(r * sin(turn));
        arms[i] = i % 2;
    }
}

static bool show(void *user, const mpt_progress *p) {
    (void)user;
    if (p->epoch_end && p->epoch % 50 == 0) printf("%s\n", p->text);
    return true;
}

static int write_net(mpt_context *ctx, mpt_module net) {
    static const char *const inputs[] = {"points"}, *const outputs[] = {"log_probabilities"};
    char why[256];
    mpt_onnx_config config = mpt_onnx_config_default();
    config.inputs = inputs, config.outputs = outputs;
    mpt_tensor sample = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(1, 2)); /* its numbers do not matter */
    const mpt_status status =
        mpt_onnx_export(net, &sample, 1, "spirals.onnx", &config, why, sizeof why);
    mpt_release(sample);
    if (status == MPT_OK) printf("spirals.onnx is written\n");
    if (status != MPT_OK) fprintf(stderr, "onnx: %s\n", why);
    return status == MPT_OK ? 0 : 1;
}

int main(void) {
    static float points[SAMPLES][2];
    static int64_t arms[SAMPLES];
    mpt_config config = default_config("onnx");
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("onnx", ctx);
    spirals(points, arms);
    mpt_memory_dataset_config samples = mpt_memory_dataset_config_default();
    samples.count = SAMPLES, samples.dtype = MPT_F32, samples.shape = MPT_SHAPE(2);
    samples.inputs = points, samples.targets = arms;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = 50, lc.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &samples), &lc);

    mpt_module net = mpt_sequential(
        ctx, mpt_nn_linear(ctx, 2, 32), mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 32, 32),
        mpt_nn_gelu(ctx), mpt_nn_linear(ctx, 32, 2), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 0.01;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 150, fit.precision = MPT_F32, fit.progress = show;
    mpt_fit(net, optimizer, loader, &fit);
    const mpt_evaluation test = mpt_evaluate(net, loader, MPT_F32);
    if (mpt_failed(ctx)) return fail_with_error("onnx", ctx);
    printf("%.1f %% of the points are on their arm\n", 100.0 * test.accuracy);
#ifdef MPTRAIN_WATCH
    const int status = write_net(ctx, net);
#else
    const int status = 0;
    (void)write_net;
    printf("built without MPTRAIN_WATCH, which sees what a net computes: nothing is written\n");
#endif
    mpt_destroy(ctx);
    return status ? status : test.accuracy > 0.95 ? 0 : fail("onnx", 1, "did not learn spirals");
}
