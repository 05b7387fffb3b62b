/* The smallest profile at work: the 784-128-64-10 classifier trains with AdamW at batch 16, and all
   that the library asks for comes from a static arena of 3 MB. The digits lie outside of it, as in
   flash. The weights are saved through callbacks into an array, and a second net takes them from
   there and sees the same. Built for armhf and run by qemu in run.sh. */
#define MPTRAIN_NO_STDIO
#define MPTRAIN_NO_THREADS
#define MPTRAIN_NO_SIMD
#define MPTRAIN_STATIC
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <stdio.h>

#include "../../examples/digits.h"

enum { ARENA = 3 << 20, TRAIN = 1600, TEST = 400, BATCH = 16, EPOCHS = 2, WEIGHTS = 440 << 10 };

/* ==== Memory and files of a machine that has none ==== */

static unsigned char arena_memory[ARENA];
typedef struct arena {
    size_t used, most;
    int64_t calls;
} arena;

/* A stack that takes back its top block alone. */
static void *arena_allocate(void *user, size_t bytes, size_t alignment) {
    arena *a = (arena *)user;
    size_t at = a->used + (size_t)(-(intptr_t)(arena_memory + a->used) & (intptr_t)(alignment - 1));
    a->calls++;
    if (at > ARENA || bytes > ARENA - at) return NULL;
    a->used = at + bytes;
    if (a->used > a->most) a->most = a->used;
    return arena_memory + at;
}

static void arena_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    arena *a = (arena *)user;
    (void)alignment;
    a->calls++;
    if ((unsigned char *)pointer + bytes == arena_memory + a->used) a->used -= bytes;
}

static unsigned char weights[WEIGHTS];
static size_t weight_bytes;

static void *flash_open(void *user, const char *path, char mode) {
    (void)path;
    weight_bytes = 0;
    return mode == 'w' ? user : NULL;
}
static size_t flash_write(void *user, void *file, const void *bytes, size_t n) {
    (void)user, (void)file;
    if (n > WEIGHTS - weight_bytes) return 0;
    memcpy(weights + weight_bytes, bytes, n);
    weight_bytes += n;
    return n;
}
static bool flash_done(void *user, void *file) { return user == file; }
static bool flash_commit(void *user, const char *temporary, const char *path) {
    return user && temporary != path;
}

/* ==== The task ==== */

static uint8_t images[TRAIN + TEST][DIGITS_PIXELS];
static int64_t labels[TRAIN + TEST];

static mpt_dataset digits(mpt_context *ctx, int64_t first, int64_t count) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.inputs = images[first];
    config.targets = labels + first;
    config.dtype = MPT_U8;
    config.shape = MPT_SHAPE(DIGITS_PIXELS);
    config.count = count;
    config.copy = false;
    return mpt_memory_dataset(ctx, &config);
}

static mpt_loader batches(mpt_context *ctx, mpt_dataset dataset, bool shuffle) {
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = BATCH;
    config.shuffle = shuffle;
    config.workers = 0;
    return mpt_loader_create(ctx, dataset, &config);
}

static mpt_module classifier(mpt_context *ctx) {
    mpt_module first = mpt_nn_linear(ctx, DIGITS_PIXELS, 128);
    mpt_module second = mpt_nn_linear(ctx, 128, 64);
    return mpt_sequential(ctx, first, mpt_nn_relu(ctx), second, mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 64, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
}

static int right_answers(mpt_context *ctx, mpt_module net, mpt_loader loader) {
    double right = 0.0;
    mpt_batch b;
    mpt_inference_begin(ctx);
    while (mpt_loader_next(loader, &b)) {
        mpt_scope_begin(ctx);
        mpt_tensor hits = mpt_equal(mpt_argmax(mpt_forward(net, b.x), -1, false), b.y);
        right += mpt_item(mpt_sum(mpt_cast(hits, MPT_F32), MPT_ALL_DIMS, false));
        mpt_scope_end(ctx);
    }
    mpt_inference_end(ctx);
    return mpt_failed(ctx) ? -1 : (int)right;
}

/* Two epochs; how often the allocator was called in the second one. */
static int64_t train(mpt_context *ctx, mpt_module net, mpt_loader loader, const arena *memory) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = 3e-3f; /* few steps: the emulator has to be done with them in half a minute */
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    int64_t calls = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        mpt_batch b;
        calls = memory->calls;
        while (mpt_loader_next(loader, &b)) {
            mpt_step_begin(ctx);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(net, b.x), b.y, NULL);
            mpt_zero_grad(optimizer);
            mpt_backward(loss);
            mpt_step(optimizer);
            mpt_step_end(ctx);
        }
    }
    return memory->calls - calls;
}

/* Sums of more halves than a block of this profile holds. */
static bool halves_add_up(mpt_context *ctx) {
    mpt_scope_begin(ctx);
    mpt_tensor x = mpt_full(ctx, MPT_BF16, MPT_SHAPE(3, 5000), 0.5);
    const double sum = mpt_item(mpt_sum(mpt_cast(mpt_sum(x, 1, false), MPT_F32), 0, false));
    mpt_scope_end(ctx);
    return sum == 3 * 2496.0; /* 2500 as bf16, three times */
}

int main(void) {
    arena memory = {0, 0, 0};
    for (int i = 0; i < TRAIN + TEST; i++) {
        uint8_t label;
        digits_render(DIGITS_TRAIN_SEED, i, images[i], &label);
        labels[i] = label;
    }
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.isa = MPT_ISA_REF;
    config.allocator.allocate = arena_allocate;
    config.allocator.release = arena_release;
    config.allocator.user = &memory;
    config.io.open = flash_open;
    config.io.write = flash_write;
    config.io.flush = config.io.close = flash_done;
    config.io.commit = flash_commit;
    config.io.user = &weight_bytes;
    mpt_context *ctx = mpt_create(&config);
    mpt_loader seen = batches(ctx, digits(ctx, 0, TRAIN), true);
    mpt_loader unseen = batches(ctx, digits(ctx, TRAIN, TEST), false);

    mpt_module net = classifier(ctx);
    const int64_t late_calls = train(ctx, net, seen, &memory);
    const int right = right_answers(ctx, net, unseen);
    mpt_save(net, "weights");
    mpt_module copy = classifier(ctx);
    const int before = right_answers(ctx, copy, unseen);
    mpt_load_memory(copy, weights, weight_bytes, NULL, NULL);
    const int after = right_answers(ctx, copy, unseen);
    const bool sums = halves_add_up(ctx);
    if (!sums) printf("embedded: halves do not add up\n");
    if (mpt_failed(ctx)) printf("embedded: %s\n", mpt_error(ctx));
    bool good = sums && !mpt_failed(ctx) && late_calls == 0 && right > TEST * 7 / 10 &&
                after == right && before < TEST / 2;
    printf("%d of %d digits; %d before and %d after the weights came from an array of %d bytes; "
           "at most %d of %d bytes; %d allocator calls in the last epoch\n",
           right, (int)TEST, before, after, (int)weight_bytes, (int)memory.most, (int)ARENA,
           (int)late_calls);
    mpt_destroy(ctx);
    return good ? 0 : 1;
}
