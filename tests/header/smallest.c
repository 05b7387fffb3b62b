/* The smallest program that trains: a context, two linear layers and SGD, in the smallest profile,
   which is without recurrent layers and dry runs as the embedded one is, and a static array. Prints
   how much of the array it needs at most: what a program does not use should cost it nothing. Built
   for armhf and run by qemu in run.sh. */
#define MPTRAIN_NO_STDIO
#define MPTRAIN_NO_THREADS
#define MPTRAIN_NO_SIMD
#define MPTRAIN_NO_RECURRENT
#define MPTRAIN_NO_FRUGAL
#define MPTRAIN_STATIC
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <stdio.h>

static unsigned char arena[1 << 20];
static size_t used, most;

/* A stack that takes back its top block alone. */
static void *arena_allocate(void *user, size_t bytes, size_t alignment) {
    const size_t at = used + (size_t)(-(intptr_t)(arena + used) & (intptr_t)(alignment - 1));
    (void)user;
    if (at > sizeof arena || bytes > sizeof arena - at) return NULL;
    used = at + bytes;
    if (used > most) most = used;
    return arena + at;
}

static void arena_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    (void)user, (void)alignment;
    if ((unsigned char *)pointer + bytes == arena + used) used -= bytes;
}

int main(void) {
    const float inputs[] = {0, 0, 0, 1, 1, 0, 1, 1}, wanted[] = {0, 1, 1, 0};
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.isa = MPT_ISA_REF;
    config.allocator.allocate = arena_allocate;
    config.allocator.release = arena_release;
    mpt_context *ctx = mpt_create(&config);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 8), mpt_nn_tanh(ctx),
                                    mpt_nn_linear(ctx, 8, 1), MPT_END);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    sgd.lr = 0.5;
    mpt_optimizer optimizer = mpt_sgd(net, &sgd);
    double last = 1;
    for (int step = 0; step < 1000 && !mpt_failed(ctx); step++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(4, 2), inputs);
        mpt_tensor y = mpt_from(ctx, MPT_F32, MPT_SHAPE(4, 1), wanted);
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), y, MPT_MEAN);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        last = mpt_item(loss);
        mpt_step_end(ctx);
    }
    if (mpt_failed(ctx)) fprintf(stderr, "smallest: %s\n", mpt_error(ctx));
    const int wrong = mpt_failed(ctx) || last > 0.01;
    mpt_destroy(ctx);
    printf("%d\n", (int)most);
    return wrong;
}
