/* spiral.c - a training by several processes: each takes its share of every epoch.
 *
 *     mpicc -O2 -I. -Itools examples/parallel/spiral.c library.c -lm -lpthread -o spiral
 *     mpirun -n 4 ./spiral
 *
 * where library.c is `#define MPTRAIN_USE_MPI`, `#define MPTRAIN_IMPLEMENTATION` and
 * `#include "mptrain.h"`. `make test-parallel` builds and runs it. */
#include <stdio.h>

#include "mptrain.h"
#include "mptrain_parallel.h"

enum { POINTS = 512, EPOCHS = 80 };

/* Two arms of a spiral, by turns: rotations by a fixed angle, that grow. */
static void make_points(float points[POINTS][2], int64_t arms[POINTS]) {
    float x = 0.05f, y = 0.0f;
    for (int i = 0; i < POINTS; i += 2) {
        const float turned = 0.99978f * x - 0.0209f * y;
        y = (0.0209f * x + 0.99978f * y) * 1.01f;
        x = turned * 1.01f;
        points[i][0] = x, points[i][1] = y, arms[i] = 0;
        points[i + 1][0] = -x, points[i + 1][1] = -y, arms[i + 1] = 1;
    }
}

static mpt_loader make_loader(mpt_context *ctx) {
    static float points[POINTS][2];
    static int64_t arms[POINTS];
    make_points(points, arms);
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = POINTS, data.shape = MPT_SHAPE(2), data.inputs = points, data.targets = arms;
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 64 / mpt_parallel_world(ctx), config.shuffle = config.drop_last = true;
    config.rank = mpt_parallel_rank(ctx), config.world = mpt_parallel_world(ctx);
    return mpt_loader_create(ctx, mpt_memory_dataset(ctx, &data), &config);
}

/* The mean of the epoch's losses, of all ranks. */
static double train_epoch(mpt_context *ctx, mpt_module net, mpt_optimizer opt, mpt_loader loader) {
    mpt_batch b;
    mpt_metric_reset(ctx, "loss");
    while (mpt_loader_next(loader, &b)) {
        mpt_step_begin(ctx);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, b.x), b.y, NULL);
        mpt_metric_push(ctx, "loss", loss);
        mpt_zero_grad(opt);
        mpt_backward(loss); /* every rank gets the mean of all ranks' gradients */
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    mpt_scope_begin(ctx);
    mpt_tensor mean =
        mpt_full(ctx, MPT_F32, MPT_SCALAR, mpt_metric_mean(ctx, "loss", true));
    mpt_all_reduce(mean, MPT_PARALLEL_MEAN);
    const double value = mpt_item(mean);
    mpt_scope_end(ctx);
    return value;
}

int main(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1; /* ranks share the cores */
    mpt_context *ctx = mpt_create(&config);
    mpt_parallel_begin(ctx, NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 64), mpt_nn_tanh(ctx),
        mpt_nn_linear(ctx, 64, 64), mpt_nn_tanh(ctx), mpt_nn_linear(ctx, 64, 2), MPT_END);
    mpt_data_parallel(net, NULL);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 1e-2;
    mpt_optimizer opt = mpt_adamw(net, &adamw);
    mpt_loader loader = make_loader(ctx);
    double loss = 1.0;
    for (int epoch = 0; epoch < EPOCHS && !mpt_failed(ctx); epoch++)
        loss = train_epoch(ctx, net, opt, loader);
    mpt_compare_ranks(net);
    if (mpt_parallel_rank(ctx) == 0)
        printf("%d ranks, loss %.4f\n", mpt_parallel_world(ctx), loss);
    const int failed = mpt_failed(ctx) || loss > 0.1;
    if (mpt_failed(ctx)) fprintf(stderr, "rank %d: %s\n", mpt_parallel_rank(ctx), mpt_error(ctx));
    mpt_parallel_end(ctx);
    mpt_destroy(ctx);
    return failed;
}
