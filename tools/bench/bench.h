/* bench.h: what the kernel benchmarks share: backends of every level, launches on plain memory, and
   medians of alternating runs. Times of one run are compared with each other and with ceilings
   measured between them, never with another run: machines are shared and clocks vary. */
#ifndef BENCH_H
#define BENCH_H

#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_ROUNDS = 9, BENCH_MAX = 12 };

static mpt__base bench_base;

/* Seconds: CPU time of the process for one thread, which other processes do not disturb much, wall
   clock for more. */
static double bench_now(bool wall) {
#if defined(CLOCK_PROCESS_CPUTIME_ID) && defined(CLOCK_MONOTONIC)
    struct timespec t;
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#else
    (void)wall;
    return (double)clock() / CLOCKS_PER_SEC;
#endif
}

/* One kernel on one level: a launch and where it runs. */
typedef struct bench_case {
    mpt__backend *backend;
    mpt__launch launch;
    void *data[MPT__MAX_OPERANDS + 1];
    mpt__scalar scalars[64];
    void *workspace;
} bench_case;

/* NULL where the CPU or the build lacks the level. */
static mpt__backend *bench_backend(mpt_isa isa, int threads) {
    static mpt__backend kept[8][3];
    mpt__backend *backend = &kept[isa][threads];
    mpt_isa chosen;
    if (backend->launch != NULL) return backend;
    if (bench_base.allocator.allocate == NULL) {
        mpt_config config;
        memset(&config, 0, sizeof config);
        mpt__base_init(&bench_base, &config);
    }
    if (mpt__cpu_backend_create(&bench_base, isa, threads, isa == MPT_ISA_AMX, backend, &chosen) !=
        MPT_OK) {
        bench_base.status = MPT_OK;
        memset(backend, 0, sizeof *backend);
        return NULL;
    }
    return backend;
}

/* Memory with a page of its own, written once; n elements of a float dtype in (-1, 1). */
static void *bench_memory(int dtype, int64_t n) {
    char *p = (char *)malloc((size_t)n * 8 + 8192);
    uint32_t state = 1;
    p += 4096 - (uintptr_t)p % 4096;
    for (int64_t i = 0; i < n; i++) {
        float x;
        state = state * 1664525u + 1013904223u;
        x = (float)(state >> 8) / 8388608.0f - 1.0f;
        mpt__store_real(p, (uint8_t)dtype, i, 1, &x, 1);
    }
    return p;
}

static void bench_init(bench_case *c, mpt__backend *backend, mpt__kernel kernel) {
    memset(c, 0, sizeof *c);
    c->backend = backend;
    c->launch.kernel = (uint16_t)kernel;
    c->launch.compute_dtype = MPT_F32;
    c->launch.imm[0] = 1;
    c->scalars[MPT__SLOT_ONE].f = 1;
}

/* Operand i: [rows, columns] with these strides; data may be shared between cases. */
static void bench_operand(bench_case *c, int i, int dtype, int64_t rows, int64_t columns,
                          int64_t row_stride, int64_t column_stride, int access, void *data) {
    mpt__operand *o = &c->launch.operand[i];
    o->storage = (uint32_t)(i + 1);
    o->dtype = (uint8_t)dtype;
    o->rank = 2;
    o->access = (uint8_t)access;
    o->shape[0] = rows, o->shape[1] = columns;
    o->stride[0] = row_stride, o->stride[1] = column_stride;
    c->data[i + 1] = data;
    if (c->launch.n_operands <= i) c->launch.n_operands = (uint8_t)(i + 1);
}

static void bench_ready(bench_case *c) {
    int64_t bytes = c->backend->workspace(c->backend->self, &c->launch);
    c->workspace = malloc((size_t)bytes + 64);
    c->workspace = (char *)c->workspace + (64 - (uintptr_t)c->workspace % 64);
}

static void bench_run(bench_case *c) {
    mpt__execution execution;
    execution.data = c->data;
    execution.scalars = c->scalars;
    execution.workspace = c->workspace;
    c->backend->launch(c->backend->self, &execution, &c->launch);
}

static int bench_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Median seconds of one call of each function, alternating; about `seconds` for each in all. */
typedef void (*bench_fn)(void *work);
static void bench_measure(bench_fn *fn, void **work, int n, double seconds, bool wall,
                          double *median) {
    double sample[BENCH_MAX][BENCH_ROUNDS];
    long repeat[BENCH_MAX];
    for (int i = 0; i < n; i++) {
        double start, took = 0;
        fn[i](work[i]);
        for (repeat[i] = 1;; repeat[i] *= 2) {
            start = bench_now(wall);
            for (long k = 0; k < repeat[i]; k++) fn[i](work[i]);
            took = bench_now(wall) - start;
            if (took > seconds / BENCH_ROUNDS / 4) break;
        }
        repeat[i] = (long)((double)repeat[i] * (seconds / BENCH_ROUNDS) / took) + 1;
    }
    for (int round = 0; round < BENCH_ROUNDS; round++) {
        for (int i = 0; i < n; i++) {
            double start = bench_now(wall);
            for (long k = 0; k < repeat[i]; k++) fn[i](work[i]);
            sample[i][round] = (bench_now(wall) - start) / (double)repeat[i];
        }
    }
    for (int i = 0; i < n; i++) {
        qsort(sample[i], BENCH_ROUNDS, sizeof(double), bench_order);
        median[i] = sample[i][BENCH_ROUNDS / 2];
    }
}

static void bench_run_case(void *work) { bench_run((bench_case *)work); }

#endif
