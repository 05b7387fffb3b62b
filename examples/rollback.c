/* rollback.c - two processes train the same net in lockstep over a pipe, as two players of a game
 * with an opponent that learns do, though what the other one does arrives late and out of order.
 *
 * Nobody waits: what is not known yet is guessed to be as before. When the truth comes and differs,
 * the training goes back to a snapshot of that frame and runs again from there.
 * test arguments: --frames 2000
 * test warnings: 1 (without a GPU each player says where it computes) */
#include "common.h"

typedef struct settings {
    int64_t frames;
    bool help;
} settings;

static const option_row rows[] = {
    {"--frames", OPTION_INT, offsetof(settings, frames), NULL, 1, 10000000, "default 10000"},
    {"--help", OPTION_FLAG, offsetof(settings, help), NULL, 0, 0, "this list"}};
enum { ROWS = sizeof rows / sizeof *rows };

#ifdef _WIN32
static int play_both(int64_t frames) {
    (void)frames;
    printf("rollback: this example needs fork and pipes\n");
    return 0;
}
#else
#include <sys/wait.h>

#include "rollback.h"

typedef struct player {
    inputs known;
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
    void *snapshot[WINDOW]; /* the training before a frame */
    size_t bytes;
    int64_t hashed; /* frames whose snapshots are in `agreed`, as they cannot change any more */
    uint64_t agreed;
    int64_t steps, restores;
    double snapshot_seconds, restore_seconds;
} player;

/* One step on both inputs of a frame: the net learns their products. */
static void step(player *p, int64_t frame) {
    float(*input)[INPUTS] = p->known.value[frame % WINDOW], product[INPUTS];
    for (int i = 0; i < INPUTS; i++) product[i] = input[0][i] * input[1][i];
    const double start = seconds_now();
    mpt_snapshot(p->ctx, p->snapshot[frame % WINDOW], p->bytes);
    p->snapshot_seconds += seconds_now() - start, p->steps++;
    mpt_step_begin(p->ctx);
    mpt_tensor x = mpt_from(p->ctx, MPT_F32, MPT_SHAPE(1, 2 * INPUTS), input);
    mpt_tensor y = mpt_from(p->ctx, MPT_F32, MPT_SHAPE(1, INPUTS), product);
    mpt_backward(mpt_mse_loss(mpt_forward(p->net, x), y, MPT_MEAN));
    mpt_step(p->optimizer);
    mpt_zero_grad(p->optimizer); /* so that each snapshot has as many bytes */
    mpt_step_end(p->ctx);
}

/* Learns of the other one, and goes back where it had been guessed wrongly; false: it is gone. */
static bool catch_up(player *p, bool wait) {
    const int64_t from = inputs_receive(&p->known, wait);
    if (from >= 0 && from < p->known.frame) {
        const double start = seconds_now();
        mpt_restore(p->ctx, p->snapshot[from % WINDOW], p->bytes);
        p->restore_seconds += seconds_now() - start, p->restores++;
        for (int64_t frame = from; frame < p->known.frame; frame++) step(p, frame);
    }
    for (; p->hashed < p->known.confirmed; p->hashed++) {
        const uint8_t *bytes = (const uint8_t *)p->snapshot[p->hashed % WINDOW];
        for (size_t i = 0; i < p->bytes && p->hashed % 100 == 0; i++) /* FNV-1a */
            p->agreed = (p->agreed ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return from >= 0 && !mpt_failed(p->ctx);
}

/* Plays all frames; *agreed is what both have to come to. */
static int play(int me, int in, int out, int64_t frames, uint64_t *agreed) {
    static player p;
    mpt_config config = default_config("rollback");
    config.threads = 1, config.seed = 1;
    mpt_context *ctx = p.ctx = mpt_create(&config);
    p.known.me = me, p.known.in = in, p.known.out = out, p.known.draws = 7u + (unsigned)me;
    p.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2 * INPUTS, 96), mpt_nn_tanh(ctx),
                           mpt_nn_linear(ctx, 96, 96), mpt_nn_tanh(ctx),
                           mpt_nn_linear(ctx, 96, INPUTS), MPT_END);
    p.optimizer = mpt_adamw(p.net, NULL);
    p.bytes = (size_t)mpt_snapshot_bytes(ctx);
    for (int i = 0; i < WINDOW; i++) p.snapshot[i] = calloc(1, p.bytes);
    bool good = !mpt_failed(ctx);
    while (good && p.known.frame < frames) {
        good = catch_up(&p, p.known.frame - p.known.confirmed >= WINDOW - 1);
        if (p.known.frame - p.known.confirmed >= WINDOW - 1) continue; /* far ahead: wait */
        good = good && inputs_next(&p.known);
        if (good) step(&p, p.known.frame - 1);
    }
    while (good && p.known.confirmed < frames) good = catch_up(&p, true);
    *agreed = p.agreed ^ mpt_state_hash(ctx);
    const int status = mpt_failed(ctx) ? fail_with_error("rollback", ctx) : !good;
    if (status == 0)
        printf("player %d: %lld frames, %lld times back, %lld steps in all; %.3f ms for a snapshot "
               "and %.3f to go back, of %lld parameters\n",
               me, (long long)frames, (long long)p.restores, (long long)p.steps,
               1e3 * p.snapshot_seconds / (double)p.steps,
               p.restores ? 1e3 * p.restore_seconds / (double)p.restores : 0.0,
               (long long)mpt_parameter_numel(p.net));
    fflush(stdout);
    for (int i = 0; i < WINDOW; i++) free(p.snapshot[i]);
    mpt_destroy(ctx);
    return status;
}

static int play_both(int64_t frames) {
    int there[2], back[2], ended = 1;
    uint64_t mine = 0, yours = 0;
    if (pipe(there) != 0 || pipe(back) != 0) return fail("rollback", 1, "no pipes");
    const pid_t child = fork();
    if (child < 0) return fail("rollback", 1, "no second process");
    close(there[child ? 0 : 1]), close(back[child ? 1 : 0]);
    if (child == 0) {
        const int status = play(1, there[0], back[1], frames, &mine);
        _exit(status != 0 || write(back[1], &mine, sizeof mine) != sizeof mine);
    }
    const int status = play(0, back[0], there[1], frames, &mine);
    const bool told = read(back[0], &yours, sizeof yours) == sizeof yours;
    if (waitpid(child, &ended, 0) != child || ended != 0 || status != 0 || !told) return 1;
    printf("%016llx and %016llx\n", (unsigned long long)mine, (unsigned long long)yours);
    return mine == yours ? 0 : fail("rollback", 1, "the two have trained differently");
}
#endif

int main(int argc, char **argv) {
    settings s = {10000, false};
    char error[256];
    if (!options_parse(rows, ROWS, argc, argv, &s, error, sizeof error))
        return fail("rollback", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("rollback", rows, ROWS, stdout), 0;
    return play_both(s.frames);
}
