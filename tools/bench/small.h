/* small.h: the small nets that bench_small.c trains with this library and others.c with others: one
   table, so that all do the same work. Both hold batches of the same made-up numbers. */
#ifndef BENCH_SMALL_H
#define BENCH_SMALL_H

#include <stdlib.h>
#include <string.h>

enum { SMALL_LAYERS = 4 };

typedef struct small_net {
    const char *name;
    int sizes[SMALL_LAYERS + 1], layers, batch;
    int tanh;    /* between layers, else ReLU */
    int squared; /* the mean squared error, else cross entropy of class numbers */
    int rmsprop; /* else SGD without momentum */
} small_net;

static const small_net small_nets[] = {
    {"24-8-2", {24, 8, 2}, 2, 200, 1, 1, 0},
    {"4-32-16-4", {4, 32, 16, 4}, 3, 32, 0, 0, 1},
    {"dqn", {4, 128, 128, 2}, 3, 128, 0, 1, 1}, /* the net that learns to hold a pole upright */
    {"mnist", {784, 128, 64, 10}, 3, 64, 0, 0, 1}};

static inline const small_net *small_find(const char *name) {
    for (size_t i = 0; i < sizeof small_nets / sizeof small_nets[0]; i++)
        if (strcmp(small_nets[i].name, name) == 0) return &small_nets[i];
    return NULL;
}

static inline int small_inputs(const small_net *n) { return n->sizes[0]; }
static inline int small_outputs(const small_net *n) { return n->sizes[n->layers]; }

/* n made-up numbers between -1 and 1. */
static inline void small_fill(float *to, int n) {
    for (int i = 0; i < n; i++) to[i] = (float)((unsigned)i * 7919u % 2001u) / 1000.0f - 1.0f;
}

/* Multiplications and additions of a step, forward and backward. */
static inline double small_work(const small_net *n) {
    double work = 0;
    for (int i = 0; i < n->layers; i++)
        work += (i > 0 ? 6.0 : 4.0) * n->sizes[i] * n->sizes[i + 1] * n->batch;
    return work;
}

#endif
