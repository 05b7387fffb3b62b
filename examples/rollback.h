/* rollback.h - what rollback.c knows of the other player: a pipe that is late and out of order. */
#ifndef ROLLBACK_H
#define ROLLBACK_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum {
    INPUTS = 4,  /* numbers that a player gives in each frame */
    WINDOW = 16, /* frames to go back at most */
    LATEST = 9,  /* frames that a message may be late on purpose */
    HELD = 12    /* frames that an input stays as it is */
};

/* What travels: a player's input in a frame. */
typedef struct message {
    int64_t frame, due; /* due: the receiver's frame in which it is let in */
    float input[INPUTS];
} message;

/* What is known of the frames that may still change. */
typedef struct inputs {
    int me, in, out;                /* 0 or 1; ends of the pipes */
    float value[WINDOW][2][INPUTS]; /* known or guessed, by frame and player */
    bool known[WINDOW];             /* the other one's */
    message late[4 * WINDOW];
    int late_count;
    int64_t frame, confirmed; /* the next one; all before this one are known */
    uint64_t draws;
} inputs;

/* xorshift64* */
static inline uint32_t draw(uint64_t *state) {
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return (uint32_t)(*state * UINT64_C(2685821657736338717) >> 32);
}

/* What a player does; it changes now and then. */
static inline void decide(int player, int64_t frame, float input[INPUTS]) {
    uint64_t seed = (uint64_t)(frame / HELD * 2 + player + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < INPUTS; i++) input[i] = (float)(draw(&seed) % 2001) / 1000 - 1;
}

/* Begins a frame: one's own input is told, the other one's is guessed to be as before. */
static inline bool inputs_next(inputs *p) {
    const int now = (int)(p->frame % WINDOW), before = (int)((p->frame + WINDOW - 1) % WINDOW);
    message m;
    memset(&m, 0, sizeof m);
    m.frame = p->frame++;
    decide(p->me, m.frame, m.input);
    memcpy(p->value[now][p->me], m.input, sizeof m.input);
    memcpy(p->value[now][1 - p->me], p->value[before][1 - p->me], sizeof m.input);
    p->known[now] = false;
    return write(p->out, &m, sizeof m) == sizeof m;
}

/* Lets in a message; false if it is about a frame to come. */
static inline bool inputs_learn(inputs *p, const message *m, int64_t *wrong) {
    if (m->frame >= p->frame) return false;
    float *guess = p->value[m->frame % WINDOW][1 - p->me];
    if (m->frame < *wrong && memcmp(guess, m->input, sizeof m->input) != 0) *wrong = m->frame;
    memcpy(guess, m->input, sizeof m->input);
    p->known[m->frame % WINDOW] = true;
    return true;
}

/* Takes what has arrived and is due; `wait`: one more message at least, and all of them. Returns
   the first frame that had been guessed wrongly, or the next frame; -1: the other one is gone. */
static inline int64_t inputs_receive(inputs *p, bool wait) {
    int64_t wrong = p->frame;
    message m;
    fcntl(p->in, F_SETFL, wait ? 0 : O_NONBLOCK);
    for (ssize_t n = 1; n > 0 && p->late_count < 4 * WINDOW;) {
        n = read(p->in, &m, sizeof m);
        if (n == 0 && wait) return -1;
        if (n != (ssize_t)sizeof m) break;
        m.due = p->frame + draw(&p->draws) % LATEST;
        p->late[p->late_count++] = m;
        if (wait) break;
    }
    for (int i = 0; i < p->late_count;) {
        if ((wait || p->late[i].due <= p->frame) && inputs_learn(p, &p->late[i], &wrong))
            p->late[i] = p->late[--p->late_count];
        else
            i++;
    }
    while (p->confirmed < p->frame && p->known[p->confirmed % WINDOW]) p->confirmed++;
    for (int64_t f = wrong + 1; f < p->frame; f++) /* what was guessed from a wrong guess */
        if (!p->known[f % WINDOW])
            memcpy(p->value[f % WINDOW][1 - p->me], p->value[(f - 1) % WINDOW][1 - p->me],
                   sizeof m.input);
    return wrong;
}

#endif
