/* cartpole_game.h - the game of cartpole.c: 16 carts at once, an episode each per round, moments of
 * them to learn from, and the options. */
#ifndef CARTPOLE_GAME_H
#define CARTPOLE_GAME_H

#include <stdio.h>

#include "cartpole.h"
#include "options.h"

enum { CARTS = 16, BATCH = 1024, BATCHES = 4, OUTPUTS = CART_MOVES + 1, LAST = 100 };

typedef struct cartpole_settings {
    int64_t rounds, goal, seed;
    double budget, lr;
    bool help;
} cartpole_settings;

static const option_row cartpole_rows[] = {
    {"--rounds", OPTION_INT, offsetof(cartpole_settings, rounds), NULL, 1, 100000,
     "at most; default 300"},
    {"--goal", OPTION_INT, offsetof(cartpole_settings, goal), NULL, 1, EPISODE,
     "frames, default 475"},
    {"--budget", OPTION_NUMBER, offsetof(cartpole_settings, budget), NULL, 0, 0,
     "milliseconds of a frame for training, default 1"},
    {"--lr", OPTION_NUMBER, offsetof(cartpole_settings, lr), NULL, 0, 0, "default 0.0005"},
    {"--seed", OPTION_INT, offsetof(cartpole_settings, seed), NULL, 0, INT32_MAX, "default 0"},
    {"--help", OPTION_FLAG, offsetof(cartpole_settings, help), NULL, 0, 0, "this list"}};
enum { CARTPOLE_ROWS = sizeof cartpole_rows / sizeof *cartpole_rows };

typedef struct game {
    cart_random random;
    cart_record carts[CARTS];
    /* The last round's: what was seen; moved left, moved right, what it was worth. */
    float seen[BATCHES][BATCH][CART_INPUTS], taught[BATCHES][BATCH][OUTPUTS];
    int lengths[LAST]; /* of episodes */
    int64_t episodes;
} game;

static inline void game_begin_round(game *g) {
    for (int i = 0; i < CARTS; i++) cart_begin(&g->carts[i], &g->random);
}

static inline bool game_is_on(const game *g) {
    for (int i = 0; i < CARTS; i++)
        if (g->carts[i].playing) return true;
    return false;
}

/* One frame: each cart moves by chance, as likely to the left and to the right as the first two of
 * its outputs, which are logits, say. */
static inline void game_frame(game *g, float (*outputs)[OUTPUTS]) {
    for (int i = 0; i < CARTS; i++) {
        const double right = 1 / (1 + exp((double)(outputs[i][0] - outputs[i][1])));
        const bool choice = cart_draw(&g->random) < right;
        if (g->carts[i].playing) cart_frame(&g->carts[i], choice);
    }
}

/* Notes how long the episodes were, and draws moments from all of them. */
static inline void game_end_round(game *g) {
    int ends[CARTS], total = 0;
    for (int i = 0; i < CARTS; i++) {
        ends[i] = total += g->carts[i].length;
        g->lengths[g->episodes++ % LAST] = g->carts[i].length;
    }
    for (int n = 0; n < BATCHES * BATCH; n++) {
        int at = (int)(cart_draw(&g->random) * total), i = 0;
        while (at >= ends[i]) i++;
        const cart_record *r = &g->carts[i];
        float *taught = g->taught[n / BATCH][n % BATCH];
        at -= ends[i] - r->length;
        memcpy(g->seen[n / BATCH][n % BATCH], r->inputs[at], sizeof r->inputs[at]);
        taught[0] = (float)!r->right[at], taught[1] = (float)r->right[at];
        taught[2] = r->worth[at];
    }
}

/* Frames per episode, of the last ones. */
static inline double game_mean_length(const game *g) {
    double sum = 0;
    const int64_t count = g->episodes < LAST ? g->episodes : (int64_t)LAST;
    for (int64_t i = 0; i < count; i++) sum += g->lengths[i];
    return sum / (double)(count ? count : 1);
}

/* The first cart that still plays. */
static inline void game_show(const game *g) {
    char text[64];
    int i = 0;
    while (i + 1 < CARTS && !g->carts[i].playing) i++;
    cart_draw_text(&g->carts[i].at, text, 50);
    printf("\r%s %5lld episodes, %3.0f", text, (long long)g->episodes, game_mean_length(g));
    fflush(stdout);
}

#endif
