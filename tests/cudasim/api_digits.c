/* api_digits.c: the main job, MNIST with 784-128-64-10 and AdamW, on the CPU and on a GPU, or what
   simulates one, side by side: the same batches, and losses and accuracies that agree. The digits
   are those of MPTRAIN_DATA/mnist, else those that the examples draw. MPTRAIN_STEPS=3 makes it
   short enough for a sanitizer; 200 are the default. */
#include MPTRAIN_HEADER_FILE
#include "../harness.h"

#include <math.h>

#include "../../examples/data.h"
#include "../../examples/precisions.h"

enum { BATCH = 64, TAIL = 20, TESTED = 512 };

/* How far the devices may be apart. What each step rounds its own way grows from step to step:
   `early` is the relative difference of a loss in the first three steps, `late` that of the mean of
   the last twenty, `points` that of the accuracies after them, in percent of the tested digits. In
   the simulator they were 8e-7, 6e-3 and 0.6 at most. */
typedef struct apart {
    double early, late, points;
} apart;
static const apart limits[3] = {{1e-5, 1e-3, 0.8}, {1e-4, 3e-2, 1.6}, {1e-4, 3e-2, 1.6}};

typedef struct run {
    mpt_context *context;
    mpt_loader loader;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dataset test;
    double early[3], tail, accuracy;
} run;

static bool begin(run *r, mpt_device device, const precision *p) {
    const char *folder = test_data_path("mnist");
    mpt_config config = mpt_config_default();
    memset(r, 0, sizeof *r);
    config.device = device;
    config.seed = 5;
    r->context = mpt_create(&config);
    if (!r->context) return false;
    mpt_context *c = r->context;
    data_sets data = data_open(c, data_is_there(folder) ? folder : NULL);
    printf("%s", p->autocast == MPT_F32 && device == MPT_DEVICE_CPU ? data.name : "");
    mpt_loader_config loader = mpt_loader_config_default();
    loader.batch = BATCH;
    loader.shuffle = true;
    loader.dtype = p->batch;
    r->loader = mpt_loader_create(c, data.train, &loader);
    r->test = mpt_subset(data.test, 0, TESTED);
    r->net = mpt_sequential(c, mpt_nn_flatten(c), mpt_nn_linear(c, 784, 128), mpt_nn_relu(c),
                            mpt_nn_linear(c, 128, 64), mpt_nn_relu(c), mpt_nn_linear(c, 64, 10),
                            mpt_nn_log_softmax(c, -1), MPT_END);
    r->optimizer = mpt_adamw(r->net, NULL);
    mpt_scaler_config scaler = mpt_scaler_config_default();
    scaler.enabled = p->scaled;
    r->scaler = mpt_grad_scaler(c, &scaler);
    return mpt_get_device(c) == device;
}

static void train(run *r, const precision *p, int steps) {
    mpt_context *c = r->context;
    for (int step = 0; step < steps && !mpt_failed(c); step++) {
        mpt_batch b;
        CHECK(mpt_loader_next(r->loader, &b));
        mpt_step_begin(c);
        mpt_autocast_begin(c, p->autocast);
        mpt_tensor loss = mpt_nll_loss(mpt_forward(r->net, b.x), b.y, NULL);
        mpt_autocast_end(c);
        mpt_metric_push(c, "loss", loss);
        mpt_zero_grad(r->optimizer);
        mpt_backward(mpt_scale_loss(r->scaler, loss));
        mpt_scaler_step(r->scaler, r->optimizer);
        mpt_scaler_update(r->scaler);
        mpt_step_end(c);
        if (step < 3) r->early[step] = mpt_metric_mean(c, "loss", true);
        if (step < 3 || step == steps - TAIL - 1) mpt_metric_reset(c, "loss");
    }
    if (steps > TAIL + 3) r->tail = mpt_metric_mean(c, "loss", true);
    mpt_loader_config loader = mpt_loader_config_default();
    loader.batch = 256;
    loader.dtype = p->batch;
    if (steps > TAIL + 3)
        r->accuracy =
            mpt_evaluate(r->net, mpt_loader_create(c, r->test, &loader), p->autocast).accuracy;
    CHECK_EQ_STR(mpt_error(c), "");
}

static void both(int row) {
    const precision *p = &precisions[row];
    const char *asked = getenv("MPTRAIN_STEPS");
    const int steps = asked ? atoi(asked) : 200;
    run cpu, gpu;
    if (mpt_device_count(MPT_DEVICE_CUDA) == 0) SKIP("a GPU");
    REQUIRE(begin(&cpu, MPT_DEVICE_CPU, p) && begin(&gpu, MPT_DEVICE_CUDA, p));
    train(&cpu, p, steps);
    train(&gpu, p, steps);
    double early = 0;
    for (int i = 0; i < 3; i++) {
        double off = fabs(gpu.early[i] - cpu.early[i]) / cpu.early[i];
        if (!(off <= early)) early = off;
    }
    mpt_scaler_stats ours = mpt_scaler_statistics(gpu.scaler);
    CHECK_EQ_INT(ours.skipped, mpt_scaler_statistics(cpu.scaler).skipped);
    CHECK(mpt_get_scale(gpu.scaler) == mpt_get_scale(cpu.scaler));
    printf("\n  %d steps: loss %.4f, first steps off by %.1e", steps, gpu.early[0], early);
    CHECK(early <= limits[row].early);
    if (steps > TAIL + 3) {
        double late = fabs(gpu.tail - cpu.tail) / cpu.tail;
        double points = 100 * fabs(gpu.accuracy - cpu.accuracy);
        printf("; then %.4f and %.4f, off by %.1e; right %.2f and %.2f %%", cpu.tail, gpu.tail,
               late, 100 * cpu.accuracy, 100 * gpu.accuracy);
        CHECK(late <= limits[row].late);
        CHECK(points <= limits[row].points);
        CHECK(gpu.accuracy > 0.8);
    }
    mpt_destroy(cpu.context);
    mpt_destroy(gpu.context);
}

TEST(digits_fp32) { both(0); }
TEST(digits_fp16_and_scaler) { both(1); }
TEST(digits_bf16) { both(2); }

TEST_TABLE = {T(digits_fp32), T(digits_fp16_and_scaler), T(digits_bf16)};
TEST_MAIN
