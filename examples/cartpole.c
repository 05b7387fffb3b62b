/* cartpole.c - a game that learns while it is played: 16 carts balance their poles, and each frame
 * gives some of its time to a training step, which stops between two launches.
 *
 * Policy gradient with a baseline (REINFORCE, Williams 1992). The carts play by a copy of the net
 * that changes between rounds only, so that what they learn depends on the seed, not on how fast
 * the machine is. Ends with status 0 once the last 100 episodes last --goal frames on average.
 * test arguments: --rounds 60 --goal 100 */
#include "common.h"
#include "cartpole_game.h"

typedef struct learner {
    mpt_context *ctx;
    mpt_module net, player; /* what is trained, and the copy that plays */
    mpt_optimizer optimizer;
    mpt_captured step;
    mpt_tensor x, y; /* a batch: seen and taught */
    int steps_left;  /* of this round's training */
    bool under_way;
    int64_t frames, late;
    double launch, longest, drawn; /* seconds: of a launch, of a frame's training; last picture */
} learner;

static mpt_module make_net(mpt_context *ctx) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, CART_INPUTS, 64), mpt_nn_tanh(ctx),
                          mpt_nn_linear(ctx, 64, 64), mpt_nn_tanh(ctx),
                          mpt_nn_linear(ctx, 64, OUTPUTS), MPT_END);
}

/* The step that mpt_capture records: moves that were worth more than expected become likelier. */
static mpt_status learn(mpt_context *ctx, void *user, mpt_tensor x, mpt_tensor y) {
    learner *l = (learner *)user;
    mpt_step_begin(ctx);
    mpt_tensor out = mpt_forward(l->net, x);
    mpt_tensor odds = mpt_log_softmax(mpt_slice(out, 1, 0, CART_MOVES, 1), 1);
    mpt_tensor expected = mpt_slice(out, 1, CART_MOVES, OUTPUTS, 1);
    mpt_tensor worth = mpt_slice(y, 1, CART_MOVES, OUTPUTS, 1);
    mpt_tensor better = mpt_sub(worth, mpt_detach(expected));
    better = mpt_div(better, mpt_add_scalar(mpt_std(better, MPT_ALL_DIMS, false, 1), 1e-3));
    mpt_tensor chosen = mpt_sum(mpt_mul(odds, mpt_slice(y, 1, 0, CART_MOVES, 1)), 1, true);
    mpt_tensor loss = mpt_sub(mpt_mse_loss(expected, worth, MPT_MEAN),
                              mpt_mean(mpt_mul(chosen, better), MPT_ALL_DIMS, false));
    mpt_zero_grad(l->optimizer);
    mpt_backward(loss);
    mpt_clip_grad_norm(l->optimizer, 1.0);
    mpt_step(l->optimizer);
    return mpt_step_end(ctx);
}

/* Trains for at most `seconds` and one launch longer; returns how long it was. */
static double train_a_little(learner *l, const game *g, double seconds) {
    const double start = seconds_now();
    bool done = false;
    if (!l->under_way) {
        mpt_write(l->x, g->seen[l->steps_left - 1], sizeof g->seen[0]);
        mpt_write(l->y, g->taught[l->steps_left - 1], sizeof g->taught[0]);
    }
    mpt_step_slice(l->step, l->x, l->y, seconds, &done);
    l->under_way = !done;
    l->steps_left -= done;
    return seconds_now() - start;
}

/* While the game loads: the two steps that are done by hand, and four more, launch by launch, to
 * know how long a launch takes. At a rate of 0 nothing is learned. */
static void load(learner *l, const game *g, const cartpole_settings *s) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    double longest = 0;
    adamw.lr = s->lr, adamw.weight_decay = 0;
    l->net = make_net(l->ctx), l->player = make_net(l->ctx);
    l->optimizer = mpt_adamw(l->net, &adamw);
    l->x = mpt_zeros(l->ctx, MPT_F32, MPT_SHAPE(BATCH, CART_INPUTS));
    l->y = mpt_zeros(l->ctx, MPT_F32, MPT_SHAPE(BATCH, OUTPUTS));
    l->step = mpt_capture(l->ctx, learn, l);
    mpt_set_lr(l->optimizer, -1, 0.0);
    for (int step = 0; step < 6 && !mpt_failed(l->ctx); step += !l->under_way) {
        if (!l->under_way) l->steps_left = 1, longest = 0;
        longest = fmax(longest, train_a_little(l, g, 0.0));
        if (step > 1 && !l->under_way && (l->launch == 0 || longest < l->launch))
            l->launch = longest; /* of the step that was least disturbed */
    }
    mpt_set_lr(l->optimizer, -1, s->lr);
    mpt_copy_module(l->player, l->net);
}

static void play(learner *l, game *g) {
    float seen[CARTS][CART_INPUTS], out[CARTS][OUTPUTS] = {{0}};
    for (int i = 0; i < CARTS; i++) cart_see(&g->carts[i].at, seen[i]);
    mpt_scope_begin(l->ctx);
    mpt_inference_begin(l->ctx);
    mpt_tensor x = mpt_from(l->ctx, MPT_F32, MPT_SHAPE(CARTS, CART_INPUTS), seen);
    mpt_read_f32(mpt_forward(l->player, x), &out[0][0], CARTS * OUTPUTS);
    mpt_inference_end(l->ctx);
    mpt_scope_end(l->ctx);
    game_frame(g, out);
}

/* The frame loop: every cart's episode, and the training of what the round before was worth. */
static void play_round(learner *l, game *g, double budget) {
    for (game_begin_round(g); game_is_on(g) || l->steps_left > 0; l->frames++) {
        if (mpt_failed(l->ctx)) return;
        if (game_is_on(g)) play(l, g);
        if (stdout_is_terminal() && seconds_now() - l->drawn > 1.0 / 30)
            game_show(g), l->drawn = seconds_now();
        const double seconds = l->steps_left > 0 ? train_a_little(l, g, budget) : 0.0;
        l->late += seconds > budget + l->launch;
        if (seconds > l->longest) l->longest = seconds;
    }
    game_end_round(g);
    mpt_copy_module(l->player, l->net);
    l->steps_left = BATCHES;
}

static int run(learner *l, game *g, const cartpole_settings *s) {
    load(l, g, s);
    double mean = 0;
    for (int64_t round = 0; round < s->rounds && !mpt_failed(l->ctx); round++) {
        play_round(l, g, s->budget / 1000);
        mean = game_mean_length(g);
        if (g->episodes >= LAST && mean >= (double)s->goal) break;
    }
    if (stdout_is_terminal()) printf("\r%79s\r", "");
    if (mpt_failed(l->ctx)) return fail_with_error("cartpole", l->ctx);
    printf("%lld frames with at most %.2f ms of training and a launch of %.2f ms: %lld were late, "
           "the longest took %.2f ms\n",
           (long long)l->frames, s->budget, 1e3 * l->launch, (long long)l->late, 1e3 * l->longest);
    printf("The last %d of %lld episodes: %.1f frames of %d on average\n", LAST,
           (long long)g->episodes, mean, EPISODE);
    if (mean >= (double)s->goal) return 0;
    return fail("cartpole", 1, "that is below the goal, %lld", (long long)s->goal);
}

int main(int argc, char **argv) {
    static game g;
    cartpole_settings s = {300, 475, 0, 1.0, 0.0005, false};
    learner l;
    char error[256];
    if (!options_parse(cartpole_rows, CARTPOLE_ROWS, argc, argv, &s, error, sizeof error))
        return fail("cartpole", EXIT_BAD_INPUT, "%s", error);
    if (s.help) return options_help("cartpole", cartpole_rows, CARTPOLE_ROWS, stdout), 0;
    memset(&l, 0, sizeof l);
    mpt_config config = default_config("cartpole");
    config.seed = g.random.state = (uint64_t)s.seed;
    config.threads = 1; /* the other cores have a game to draw */
    l.ctx = mpt_create(&config);
    const int status = l.ctx ? run(&l, &g, &s) : fail_with_error("cartpole", NULL);
    mpt_destroy(l.ctx);
    return status;
}
