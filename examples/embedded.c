/* embedded.c - training where there is no malloc, no file system and no thread.
 *
 * The library is built in its smallest profile, inside this file, and gets all of its memory from
 * a static array. The net learns which way a simulated sensor is moving, from 16 readings. Counts
 * the allocator's calls: after the first steps there are none, so training runs for ever in the
 * same memory.
 * test arguments: */
#define MPTRAIN_NO_STDIO
#define MPTRAIN_NO_THREADS
#define MPTRAIN_NO_SIMD
#define MPTRAIN_STATIC
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <stdio.h>

enum { ARENA_BYTES = 1 << 20, READINGS = 16, BATCH = 32, STEPS = 2000, WARM_UP = 10 };

/* ==== The arena: a stack that also takes back its top block ==== */

static unsigned char arena_memory[ARENA_BYTES];
typedef struct arena {
    size_t used, most;
    int64_t calls;
} arena;

static void *arena_allocate(void *user, size_t bytes, size_t alignment) {
    arena *a = (arena *)user;
    size_t at = a->used + (size_t)(-(intptr_t)(arena_memory + a->used) & (intptr_t)(alignment - 1));
    a->calls++;
    if (at > ARENA_BYTES || bytes > ARENA_BYTES - at) return NULL;
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

/* The log goes wherever the machine can show a line. */
static void show_warning(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_WARNING) fprintf(stderr, "embedded: %s\n", message);
}

/* ==== The task: a noisy ramp; class 0 falls, 1 stays, 2 rises ==== */

static uint32_t noise_state = 1;
static float noise(void) {
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / 8388608.0f - 1.0f;
}

static void read_sensor(float *readings, int64_t *classes) {
    for (int i = 0; i < BATCH; i++) {
        float start = noise(), slope = 0.0f;
        classes[i] = (int64_t)((noise() + 1.0f) * 1.4999f);
        slope = 0.03f * (float)(classes[i] - 1);
        for (int t = 0; t < READINGS; t++)
            readings[i * READINGS + t] = start + slope * (float)t + 0.3f * noise();
    }
}

int main(void) {
    static float readings[BATCH * READINGS];
    static int64_t classes[BATCH];
    arena memory = {0, 0, 0};
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.isa = MPT_ISA_REF; /* the only one in this build, whatever MPTRAIN_ISA says */
    config.log.write = show_warning;
    config.allocator.allocate = arena_allocate;
    config.allocator.release = arena_release;
    config.allocator.user = &memory;
    mpt_context *ctx = mpt_create(&config);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, READINGS, 24), mpt_nn_relu(ctx),
                       mpt_nn_linear(ctx, 24, 3), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_half(net, MPT_F16); /* parameters in 16 bits; the optimizer keeps fp32 masters */
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(ctx, NULL);

    int64_t calls_before = 0, right = 0, seen = 0;
    for (int step = 1; step <= STEPS; step++) {
        read_sensor(readings, classes);
        mpt_step_begin(ctx);
        mpt_tensor x =
            mpt_cast(mpt_from(ctx, MPT_F32, MPT_SHAPE(BATCH, READINGS), readings), MPT_F16);
        mpt_tensor y = mpt_from(ctx, MPT_I64, MPT_SHAPE(BATCH), classes);
        mpt_tensor output = mpt_forward(net, x), loss = mpt_nll_loss(output, y, NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
        if (step > STEPS - 100) { /* new readings each time, so this is a test */
            mpt_tensor hits = mpt_equal(mpt_argmax(output, -1, false), y);
            right += (int64_t)mpt_item(mpt_sum(mpt_cast(hits, MPT_F32), MPT_ALL_DIMS, false));
            seen += BATCH;
        }
        mpt_step_end(ctx);
        if (step == WARM_UP) calls_before = memory.calls;
        if (step == STEPS - 100 && memory.calls != calls_before) break;
        if (mpt_failed(ctx)) break;
    }
    if (mpt_failed(ctx)) {
        fprintf(stderr, "embedded: %s\n", mpt_error(ctx));
        return 1;
    }
    int64_t parameters = mpt_parameter_numel(net), applied = mpt_applied_steps(optimizer);
    mpt_destroy(ctx);
    double accuracy = seen > 0 ? 100.0 * (double)right / (double)seen : 0.0;
    printf("%lld parameters, %lld steps, %.1f %% right\n", (long long)parameters,
           (long long)applied, accuracy);
    printf("arena: %.1f KiB at most; allocator calls: %lld up to step %d, none after\n",
           (double)memory.most / 1024.0, (long long)calls_before, (int)WARM_UP);
    if (seen == 0) fprintf(stderr, "embedded: the allocator was called in a steady-state step\n");
    return seen > 0 && accuracy > 80.0 ? 0 : 1;
}
