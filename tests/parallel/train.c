/* train.c - one training by as many ranks as mpirun starts, for run.sh: prints what came of it.

       train NET PRECISION WAY STEPS [FAULT RANK STEP]

   NET: mlp, drop (with dropout), norm (with batch norm), gpt; PRECISION: fp32, fp16, bf16
   WAY: tree (deterministic), mean, single (one process that accumulates by itself)
   FAULT: overflow (gradients of that rank, every STEP steps), kill, stop, fail (an error there)

   A step has BATCHES batches (environment; 4), dealt out to the ranks in blocks. The last line of
   rank 0 has a hash of weights and optimizer, and the mean loss of the last step. DEADLINE: that of
   mpt_parallel_config; LOAD: a file of weights to start from; RECOMPUTE: blocks of the gpt run
   again in backward, for the same bits; SHARD: each rank holds a part of the optimizer's states;
   BITS=8: those have 8 bits; HALF: weights are halves and have masters; KEEP: a checkpoint to write
   at the end, and behind each EACH steps; FROM, START: one to go on from, and with which step. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mptrain.h"
#include "mptrain_parallel.h"
#include "../../examples/gpt.h"

enum { MOST_BATCHES = 16, SAMPLES = 8, PIXELS = 100, CLASSES = 10, TOKENS = 16, SCALED = 1024 };

typedef struct training {
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_tensor positions;
    mpt_dtype precision;
    bool gpt, single, deterministic;
    int rank, world, steps, batches;
    const char *fault;
    int fault_rank, fault_step;
    double loss; /* mean of the last step */
} training;

static uint32_t drawn(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* ==== Nets and data ==== */

static mpt_module make_net(mpt_context *ctx, const char *name) {
    gpt_settings s = gpt_defaults;
    s.layers = 2, s.heads = 2, s.width = 32, s.context = TOKENS, s.vocabulary = 32;
    if (strcmp(name, "gpt") == 0) return make_gpt(ctx, &s);
    if (strcmp(name, "drop") == 0)
        return mpt_sequential(ctx, mpt_nn_linear(ctx, PIXELS, 48), mpt_nn_relu(ctx),
            mpt_nn_dropout(ctx, 0.3), mpt_nn_linear(ctx, 48, CLASSES), MPT_END);
    if (strcmp(name, "norm") == 0)
        return mpt_sequential(ctx, mpt_nn_linear(ctx, PIXELS, 48),
            mpt_nn_batch_norm1d(ctx, 48, NULL), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 48, CLASSES),
            MPT_END);
    return mpt_sequential(ctx, mpt_nn_linear(ctx, PIXELS, 64), mpt_nn_relu(ctx),
        mpt_nn_linear(ctx, 64, 32), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 32, CLASSES), MPT_END);
}

static mpt_tensor mlp_loss(const training *t, int64_t batch, float factor) {
    float x[SAMPLES][PIXELS];
    int64_t y[SAMPLES];
    uint64_t state = (uint64_t)batch * 977 + 5;
    for (int i = 0; i < SAMPLES; i++) {
        y[i] = drawn(&state) % CLASSES;
        uint64_t shape = (uint64_t)y[i] + 100;
        for (int j = 0; j < PIXELS; j++)
            x[i][j] = factor * ((float)(drawn(&shape) % 256) + (float)(drawn(&state) % 256)) / 512;
    }
    mpt_tensor in = mpt_from(t->ctx, MPT_F32, MPT_SHAPE(SAMPLES, PIXELS), x);
    mpt_tensor target = mpt_from(t->ctx, MPT_I64, MPT_SHAPE(SAMPLES), y);
    return mpt_cross_entropy(mpt_forward(t->net, in), target, NULL);
}

static mpt_tensor gpt_loss(const training *t, int64_t batch) {
    int64_t x[SAMPLES][TOKENS], y[SAMPLES][TOKENS];
    uint64_t state = (uint64_t)batch * 977 + 5;
    for (int i = 0; i < SAMPLES; i++) {
        int64_t token = drawn(&state) % 32, by = 1 + drawn(&state) % 5;
        for (int j = 0; j < TOKENS; j++) x[i][j] = token, token = y[i][j] = (token + by) % 32;
    }
    mpt_tensor in = mpt_from(t->ctx, MPT_I64, MPT_SHAPE(SAMPLES, TOKENS), x);
    mpt_tensor target = mpt_from(t->ctx, MPT_I64, MPT_SHAPE(SAMPLES, TOKENS), y);
    return mpt_linear_cross_entropy(
        hidden(t->net, in, t->positions), mpt_parameter(t->net, "wte.weight"), target, NULL);
}

/* ==== Steps ==== */

static void plant(training *t, int step) {
    if (!t->fault || t->rank != t->fault_rank || step != t->fault_step) return;
    if (strcmp(t->fault, "kill") == 0) kill(getpid(), SIGKILL);
    if (strcmp(t->fault, "stop") == 0) kill(getpid(), SIGSTOP);
    if (strcmp(t->fault, "fail") == 0) mpt_reshape(t->positions, MPT_SHAPE(3));
}

/* fp16 holds inputs times weights up to 65504. */
static float input_factor(const training *t, int step) {
    bool here = t->fault && strcmp(t->fault, "overflow") == 0 && t->rank == t->fault_rank;
    return here && step % t->fault_step == t->fault_step - 1 ? 3e38f : 1.0f;
}

static double train_batch(training *t, int step, int64_t batch) {
    mpt_autocast_begin(t->ctx, t->precision);
    mpt_tensor loss = t->gpt ? gpt_loss(t, batch) : mlp_loss(t, batch, input_factor(t, step));
    mpt_autocast_end(t->ctx);
    double value = mpt_item(loss);
    if (t->single) loss = mpt_mul_scalar(loss, 1.0 / t->batches);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    return value;
}

/* The mean over all batches of the step, added in their order. */
static double mean_loss(training *t, const double *losses, int count) {
    mpt_tensor mine = mpt_from(t->ctx, MPT_F64, MPT_SHAPE(count), losses);
    double all[MOST_BATCHES], sum = 0;
    mpt_tensor every = t->single ? mine : mpt_all_gather(mine);
    if (mpt_read(every, all, (size_t)t->batches * sizeof *all) != MPT_OK) return 0;
    for (int i = 0; i < t->batches; i++) sum += all[i];
    return sum / t->batches;
}

static void train_step(training *t, int step) {
    const int count = t->batches / t->world;
    double losses[MOST_BATCHES];
    mpt_step_begin(t->ctx);
    mpt_zero_grad(t->optimizer);
    for (int i = 0; i < count; i++) {
        if (i == count - 1) plant(t, step);
        losses[i] = train_batch(t, step, (int64_t)step * t->batches + t->rank * count + i);
    }
    mpt_unscale(t->scaler, t->optimizer);
    mpt_clip_grad_norm(t->optimizer, 1.0);
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    t->loss = mean_loss(t, losses, count);
    mpt_step_end(t->ctx);
}

static bool skipped(const training *t) {
    return t->precision == MPT_F16 && mpt_step_outcome(t->scaler) == MPT_OUTCOME_SKIPPED;
}

/* ==== The program ==== */

static int64_t state_bytes(const training *t) {
    const mpt_memory_stats stats = mpt_memory(t->ctx);
    return stats.current[MPT_MEMORY_MOMENT] + stats.current[MPT_MEMORY_MASTER];
}

static void begin(training *t, const char *net) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.seed = 7;
    t->ctx = mpt_create(&config);
    t->world = 1;
    if (!t->single) {
        mpt_parallel_config pc = mpt_parallel_config_default();
        const char *deadline = getenv("DEADLINE");
        if (deadline) pc.deadline = atof(deadline), pc.grace = 1;
        mpt_parallel_begin(t->ctx, &pc);
        t->rank = mpt_parallel_rank(t->ctx), t->world = mpt_parallel_world(t->ctx);
    }
    t->gpt = strcmp(net, "gpt") == 0;
    t->net = make_net(t->ctx, net);
    if (getenv("RECOMPUTE")) mpt_recompute_module(mpt_child(t->net, "h"), 2);
    if (getenv("LOAD")) mpt_load(t->net, getenv("LOAD"), NULL, NULL);
    t->positions = mpt_keep(mpt_arange(t->ctx, MPT_I64, TOKENS));
    mpt_data_parallel_config dc = mpt_data_parallel_config_default();
    dc.micro_batches = t->batches / t->world, dc.deterministic = t->deterministic;
    dc.bucket_bytes = 8192;
    if (!t->single) mpt_data_parallel(t->net, &dc);
    mpt_adamw_config ac = mpt_adamw_config_default();
    ac.lr = 2e-3;
    ac.state_bits = getenv("BITS") ? atoi(getenv("BITS")) : 32;
    if (getenv("HALF")) mpt_half(t->net, t->precision);
    t->optimizer = mpt_adamw(t->net, &ac);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = t->precision == MPT_F16;
    sc.init_scale = SCALED;
    t->scaler = mpt_grad_scaler(t->ctx, &sc);
    if (getenv("FROM")) mpt_checkpoint_load(t->ctx, getenv("FROM"));
    const int64_t whole = state_bytes(t);
    if (getenv("SHARD")) {
        mpt_shard_states(t->optimizer, true);
        printf("rank %d states %lld of %lld, %.4f\n", t->rank, (long long)state_bytes(t),
            (long long)whole, (double)state_bytes(t) / (double)whole);
    }
}

static int end(training *t) {
    const mpt_parallel_stats stats = mpt_parallel_statistics(t->ctx);
    bool failed = mpt_failed(t->ctx);
    if (failed) {
        char path[64];
        printf("rank %d error: %s\n", t->rank, mpt_error(t->ctx));
        if (stats.lost_rank < 0) mpt_parallel_end(t->ctx);
        mpt_clear_error(t->ctx);
        snprintf(path, sizeof path, "saved-%d.safetensors", t->rank);
        if (mpt_save(t->net, path) == MPT_OK) printf("rank %d saved %s\n", t->rank, path);
        if (stats.lost_rank >= 0) mpt_parallel_end(t->ctx);
    } else {
        if (t->precision == MPT_F16)
            printf("rank %d scale %.9g skipped %d, not finite %d by rank %d in %s\n", t->rank,
                mpt_get_scale(t->scaler), (int)mpt_scaler_statistics(t->scaler).skipped,
                (int)stats.nonfinite, stats.nonfinite_rank, stats.nonfinite_parameter);
        if (getenv("SHARD")) mpt_shard_states(t->optimizer, false);
        if (getenv("KEEP") && t->rank == 0) mpt_checkpoint_save(t->ctx, getenv("KEEP"));
        if (!t->single) mpt_compare_ranks(t->net);
        failed = mpt_failed(t->ctx);
        if (failed) printf("rank %d error: %s\n", t->rank, mpt_error(t->ctx));
        if (t->rank == 0)
            printf("hash %016llx %016llx loss %.9g buckets %d\n",
                (unsigned long long)mpt_module_hash(t->net),
                (unsigned long long)mpt_optimizer_hash(t->optimizer), t->loss,
                (int)stats.buckets);
        if (!t->single) mpt_parallel_end(t->ctx);
    }
    fflush(stdout);
    mpt_destroy(t->ctx);
    return failed;
}

int main(int argc, char **argv) {
    static training t;
    signal(SIGUSR1, SIG_IGN); /* MPICH's launcher sends it when a rank has died */
    if (argc != 5 && argc != 8) return 2;
    t.precision = strcmp(argv[2], "fp16") == 0 ? MPT_F16
        : strcmp(argv[2], "bf16") == 0         ? MPT_BF16
                                               : MPT_F32;
    t.single = strcmp(argv[3], "single") == 0;
    t.deterministic = strcmp(argv[3], "tree") == 0;
    t.steps = atoi(argv[4]);
    t.batches = getenv("BATCHES") ? atoi(getenv("BATCHES")) : 4;
    if (t.batches < 1 || t.batches > MOST_BATCHES) return 2;
    if (argc == 8) t.fault = argv[5], t.fault_rank = atoi(argv[6]), t.fault_step = atoi(argv[7]);
    begin(&t, argv[1]);
    int step = getenv("START") ? atoi(getenv("START")) : 0;
    const int each = getenv("EACH") ? atoi(getenv("EACH")) : 0;
    printf("rank %d pid %d\n", t.rank, (int)getpid());
    fflush(stdout);
    for (; step < t.steps && !mpt_failed(t.ctx); step++) {
        train_step(&t, step);
        if (each && step % each == 0 && t.rank == 0 && !mpt_failed(t.ctx))
            mpt_checkpoint_save(t.ctx, getenv("KEEP"));
        if (skipped(&t)) printf("rank %d skipped step %d\n", t.rank, step);
    }
    return end(&t);
}
