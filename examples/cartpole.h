/* cartpole.h - a cart that balances a pole: the motion, an episode's record, a picture of text.
 *
 * The equations and limits of Barto, Sutton and Anderson (1983), as Gymnasium's CartPole-v1 has
 * them. */
#ifndef CARTPOLE_H
#define CARTPOLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { CART_INPUTS = 4, CART_MOVES = 2, EPISODE = 500 }; /* frames: then it counts as balanced */

typedef struct cart {
    double place, speed, angle, spin; /* m, m/s, rad from upright, rad/s */
} cart;

typedef struct cart_random {
    uint64_t state;
} cart_random;

/* Uniform in [0, 1), by SplitMix64. */
static inline double cart_draw(cart_random *r) {
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0; /* 2^53 */
}

/* Almost upright, almost at rest. */
static inline cart cart_start(cart_random *r) {
    cart c;
    c.place = 0.1 * cart_draw(r) - 0.05;
    c.speed = 0.1 * cart_draw(r) - 0.05;
    c.angle = 0.1 * cart_draw(r) - 0.05;
    c.spin = 0.1 * cart_draw(r) - 0.05;
    return c;
}

/* One fiftieth of a second with a push of 10 N to the right or to the left. False: it fell, by more
 * than 12 degrees, or left the track of 2.4 m to each side. */
static inline bool cart_move(cart *c, bool right) {
    const double gravity = 9.8, pole = 0.1, total = 1.1, length = 0.5, second = 0.02;
    const double sine = sin(c->angle), cosine = cos(c->angle);
    const double push = ((right ? 10.0 : -10.0) + pole * length * c->spin * c->spin * sine) / total;
    const double turn =
        (gravity * sine - cosine * push) / (length * (4.0 / 3.0 - pole * cosine * cosine / total));
    const double pull = push - pole * length * turn * cosine / total;
    c->place += second * c->speed;
    c->speed += second * pull;
    c->angle += second * c->spin;
    c->spin += second * turn;
    return fabs(c->place) <= 2.4 && fabs(c->angle) <= 12 * 3.14159265358979323846 / 180;
}

/* What the net sees, in numbers of about 1. */
static inline void cart_see(const cart *c, float *inputs) {
    inputs[0] = (float)c->place;
    inputs[1] = (float)c->speed;
    inputs[2] = (float)(5 * c->angle);
    inputs[3] = (float)c->spin;
}

/* What one cart did from its start to its end. */
typedef struct cart_record {
    cart at;
    bool playing;
    int length;
    float inputs[EPISODE][CART_INPUTS];
    bool right[EPISODE];
    float worth[EPISODE]; /* once it has ended */
} cart_record;

static inline void cart_begin(cart_record *r, cart_random *random) {
    r->at = cart_start(random);
    r->length = 0;
    r->playing = true;
}

/* One frame. At its end each moment is worth the frames that were still to come, later ones less,
 * as a share of the most that it can be; with EPISODE frames as if there was no end. */
static inline void cart_frame(cart_record *r, bool right) {
    const double discount = 0.99;
    cart_see(&r->at, r->inputs[r->length]);
    r->right[r->length++] = right;
    const bool up = cart_move(&r->at, right);
    r->playing = up && r->length < EPISODE;
    if (r->playing) return;
    double worth = up ? 1.0 : 0.0;
    for (int i = r->length - 1; i >= 0; i--) {
        worth = (1 - discount) + discount * worth;
        r->worth[i] = (float)worth;
    }
}

/* The track with the cart as a line of text; the pole's lean is drawn larger than it is. */
static inline void cart_draw_text(const cart *c, char *text, int width) {
    static const char poles[] = "\\\\||//";
    int at = (int)((c->place / 2.4 + 1) / 2 * (width - 2));
    int lean = (int)((c->angle / 0.21 + 1) * 3);
    memset(text, '_', (size_t)width);
    text[width] = '\0';
    at = at < 0 ? 0 : at > width - 3 ? width - 3 : at;
    memcpy(text + at, "[ ]", 3);
    text[at + 1] = poles[lean < 0 ? 0 : lean > 5 ? 5 : lean];
}

#endif
