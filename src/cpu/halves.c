/* ----
 * cpu/halves.c: elementwise kernels that work on the bits of halves, and results beyond the caches:
 * bit for bit those of cpu/elementwise.c.
 * ---- */
#ifndef MPT__CPU_HALVES_INCLUDED
#define MPT__CPU_HALVES_INCLUDED

#include "cpu/elementwise.c"

/* The work of a task that does not ask which thread it runs on. */
#define MPT__TASK(type, name) \
    const type *name = (const type *)work; \
    (void)thread

/* Chunks of work on `count` elements that take ns each. */
#define mpt__cpu_for(call, chunks, count, ns, run, work) \
    mpt__parallel((call)->pool, chunks, mpt__cpu_cost(call, count, ns), run, work)

/* Floats better kept out of the caches: with two operands more than 32 MB of L3 hold. On Zen 4
   they, and the kernel that reads them, gain from half as many on. */
#define MPT__BEYOND_CACHE (4 << 20)

#ifdef MPTRAIN_NO_SIMD /* small machines have neither room nor hurry */
#define mpt__cpu_unary mpt__cpu_unary_each
#define mpt__cpu_binary mpt__cpu_binary_each
#define mpt__cpu_lookup_bytes NULL
#else

/* ==== Results beyond the caches ==== */

static void mpt__cpu_stream_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_call, call);
    const mpt__launch *launch = call->launch;
    const mpt__real *x = (const mpt__real *)call->data[0], *y = (const mpt__real *)call->data[1];
    mpt__real *out = (mpt__real *)call->data[launch->kernel == MPT__K_BINARY ? 2 : 1];
    const int64_t i = chunk * MPT__CHUNK, left = mpt__cpu_numel(launch->operand) - i;
    call->routines->stream(launch->function, out + i, x + i, y + i, mpt__cpu_min(MPT__CHUNK, left),
        (mpt__real)launch->imm[0]);
}

/* False: no such launch. What replaces an operand is in the caches anyway. */
static bool mpt__cpu_stream(const mpt__cpu_call *call, int last) {
    const mpt__operand *o = call->launch->operand;
    const int64_t n = mpt__cpu_numel(o);
    mpt__real *out = (mpt__real *)call->data[last];
    if (n < MPT__BEYOND_CACHE || !call->routines->stream || (uintptr_t)out % 64 != 0 ||
        o[last].access != MPT__WRITE ||
        !call->routines->stream(call->launch->function, out, out, out, 0, 0))
        return false;
    for (int k = 0; k <= last; k++) {
        bool replaced = k < last && call->data[k] == call->data[last];
        if (replaced || !mpt__cpu_is_real(o[k].dtype) || mpt__cpu_dense(&o[k]) < 0) return false;
    }
    mpt__cpu_call work = *call;
    mpt__cpu_for(call, mpt__cpu_chunks(n, MPT__CHUNK), n, 2.0, mpt__cpu_stream_chunk, &work);
    return true;
}

/* ==== Functions of bf16 by a table ====
 *
 * Of the 65,536 bf16 numbers a launch of many more elements computes its function once, and looks
 * up those of its elements. In a net these are some thousands, which stay in the nearest cache;
 * fp16, with three bits more, gains nothing (Zen 4, steps of GPT). */

#define MPT__LOOKUP_SIZE 65536
#define MPT__LOOKUP_LEAST (4 * MPT__LOOKUP_SIZE) /* elements that a table is made for */
#define MPT__LOOKUP_SLOW 15 /* nanoseconds on the reference level of what is slower than a table */

/* Whether a function of two is the second one times some function of the first. */
static bool mpt__cpu_is_slope(int function) {
    switch (function) {
    case MPT__FN_GELU_BACKWARD:
    case MPT__FN_GELU_TANH_BACKWARD:
    case MPT__FN_SIN_BACKWARD:
    case MPT__FN_COS_BACKWARD:
    case MPT__FN_POW_SCALAR_BACKWARD:
    case MPT__FN_SILU_BACKWARD:
    case MPT__FN_SOFTPLUS_BACKWARD:
        return true;
    default:
        return false;
    }
}

static int64_t mpt__cpu_lookup_bytes(const mpt__launch *launch, int threads) {
    const mpt__operand *x = &launch->operand[0];
    (void)threads;
    if (x->dtype != MPT_BF16) return 0;
    const bool slow = launch->kernel == MPT__K_UNARY
        ? mpt__cpu_unary_ns[MPT__UNARY_AT(launch->function)] >= MPT__LOOKUP_SLOW
        : mpt__cpu_is_slope(launch->function);
    if (!slow || mpt__cpu_numel(x) < MPT__LOOKUP_LEAST) return 0;
    return MPT__LOOKUP_SIZE * (int64_t)sizeof(mpt__real);
}

/* MPT__BLOCK elements of the table. */
static void mpt__cpu_lookup_make(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_map, map);
    mpt__cpu_view in = mpt__cpu_view_of(map->call, 0), out = mpt__cpu_view_of(map->call, 1);
    mpt__real x[MPT__BLOCK], one[MPT__BLOCK], y[MPT__BLOCK];
    mpt__real *to = map->body ? map->table + chunk * MPT__BLOCK : y;
    uint16_t half[MPT__BLOCK];
    for (int i = 0; i < MPT__BLOCK; i++) half[i] = (uint16_t)(chunk * MPT__BLOCK + i);
    in.data = half, out.data = map->table;
    mpt__cpu_get(&in, 0, 1, x, MPT__BLOCK);
    if (map->operands == 2) {
        map->unary(to, x, MPT__BLOCK, map->c, map->d);
    } else {
        for (int i = 0; i < MPT__BLOCK; i++) one[i] = 1;
        map->binary(to, x, one, MPT__BLOCK, map->c, map->d);
    }
    if (to == y) mpt__cpu_put_block(&out, chunk * MPT__BLOCK, 1, y, MPT__BLOCK);
}

/* Where bf16 comes of bf16, both dense, the table has bf16, too. */
static void mpt__cpu_find_halves(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_map, map);
    const mpt__cpu_call *call = map->call;
    const uint16_t *table = (const uint16_t *)(const void *)map->table;
    const int64_t begin = chunk * MPT__CHUNK, left = mpt__cpu_numel(call->launch->operand) - begin;
    const int64_t n = mpt__cpu_min(MPT__CHUNK, left);
    const uint16_t *half = (const uint16_t *)call->data[0] + begin;
    uint16_t *to = (uint16_t *)call->data[1] + begin;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const uint16_t a = table[half[i]], b = table[half[i + 1]];
        const uint16_t c = table[half[i + 2]], d = table[half[i + 3]];
        to[i] = a, to[i + 1] = b, to[i + 2] = c, to[i + 3] = d;
    }
    for (; i < n; i++) to[i] = table[half[i]];
}

/* to[i] = table[half[i * step]]; dense ones four at a time, in half the time. */
static void mpt__cpu_find(
    mpt__real *to, const mpt__real *table, const uint16_t *half, int64_t step, int64_t n) {
    int64_t i = 0;
    for (; step == 1 && i + 4 <= n; i += 4) {
        const mpt__real a = table[half[i]], b = table[half[i + 1]];
        const mpt__real c = table[half[i + 2]], d = table[half[i + 3]];
        to[i] = a, to[i + 1] = b, to[i + 2] = c, to[i + 3] = d;
    }
    for (; i < n; i++) to[i] = table[half[i * step]];
}

static void mpt__cpu_lookup_body(MPT__MAP_TAKES) {
    const mpt__cpu_walk *from = &map->walk[0];
    const int64_t step = mpt__cpu_inner(&from->loop);
    const int last = map->operands - 1;
    mpt__real found[MPT__BLOCK], in[MPT__BLOCK];
    (void)first;
    for (int64_t done = 0, m; done < n; done += m) {
        const uint16_t *half = (const uint16_t *)from->view.data + at[0].offset;
        m = mpt__cpu_min(mpt__cpu_room(&at[0], &from->loop), n - done);
        mpt__cpu_find(found + done, map->table, half, step, m);
        mpt__cpu_advance(&at[0], &from->loop, m);
    }
    if (last == 2) {
        const mpt__real *y = mpt__cpu_take(&map->walk[1], &at[1], in, n);
        map->call->routines->binary[MPT__BINARY_MUL](found, found, y, n, 0, 0);
    }
    mpt__cpu_give(&map->walk[last], &at[last], found, n);
}

static bool mpt__cpu_looks_up(const mpt__cpu_call *call) {
    return call->workspace && mpt__cpu_lookup_bytes(call->launch, 0) > 0;
}

static void mpt__cpu_lookup(const mpt__cpu_call *call, mpt__cpu_map map, int operands) {
    const mpt__operand *o = call->launch->operand;
    const int64_t numel = mpt__cpu_numel(o);
    const bool halves = operands == 2 && o[1].dtype == MPT_BF16 && o[1].access == MPT__WRITE &&
        mpt__cpu_dense(&o[0]) == numel && mpt__cpu_dense(&o[1]) == numel;
    map.body = halves ? NULL : mpt__cpu_lookup_body;
    map.table = (mpt__real *)call->workspace;
    map.call = call, map.operands = operands;
    mpt__cpu_for(call, MPT__LOOKUP_SIZE / MPT__BLOCK, MPT__LOOKUP_SIZE, MPT__LOOKUP_SLOW,
        mpt__cpu_lookup_make, &map);
    if (halves)
        mpt__cpu_for(call, mpt__cpu_chunks(numel, MPT__CHUNK), numel, MPT__LOOKUP_SLOW,
            mpt__cpu_find_halves, &map);
    else
        mpt__cpu_map_run(&map, call, operands, MPT__LOOKUP_SLOW);
}

static void mpt__cpu_unary(const mpt__cpu_call *call) {
    if (mpt__cpu_looks_up(call))
        mpt__cpu_lookup(call, mpt__cpu_unary_map(call), 2);
    else if (!mpt__cpu_stream(call, 1))
        mpt__cpu_unary_each(call);
}

/* ==== ReLU's backward ==== */

static void mpt__cpu_gate_body(MPT__MAP_TAKES) {
    int16_t *p[3];
    for (int k = 0; k < 3; k++) {
        const mpt__cpu_walk *w = &map->walk[k];
        if (mpt__cpu_inner(&w->loop) != 1 || mpt__cpu_together(map, at, n) < n) {
            mpt__cpu_binary_body(map, at, first, n);
            return;
        }
        p[k] = (int16_t *)w->view.data + at[k].offset;
    }
    map->call->routines->gate(
        p[2], p[0], p[1], n, map->walk[0].view.dtype == MPT_F16 ? -1024 : -128);
    mpt__cpu_advance_all(map, at, n);
}

static bool mpt__cpu_gates(const mpt__cpu_call *call) {
    const mpt__operand *o = call->launch->operand;
    return call->launch->function == MPT__FN_RELU_BACKWARD && call->routines->gate &&
        mpt__cpu_is_half(o->dtype) && o[1].dtype == o->dtype && o[2].dtype == o->dtype &&
        o[2].access == MPT__WRITE;
}

static void mpt__cpu_binary(const mpt__cpu_call *call) {
    if (mpt__cpu_looks_up(call)) {
        mpt__cpu_lookup(call, mpt__cpu_binary_map(call), 3);
    } else if (mpt__cpu_gates(call)) {
        mpt__cpu_map map = mpt__cpu_binary_map(call);
        map.body = mpt__cpu_gate_body;
        mpt__cpu_map_run(&map, call, 3, mpt__cpu_binary_ns[MPT__BINARY_RELU_BACKWARD]);
    } else if (!mpt__cpu_stream(call, 2)) {
        mpt__cpu_binary_each(call);
    }
}
#endif
#endif
