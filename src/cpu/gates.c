/* ----
 * cpu/gates.c: on the CPU, a bit for each element: what is left of a result of which only the sign
 * is still needed.
 * ---- */
#ifndef MPT__CPU_GATES_INCLUDED
#define MPT__CPU_GATES_INCLUDED

#include "cpu/elementwise.c"

#ifndef MPTRAIN_NO_FRUGAL

typedef struct mpt__gates_work {
    mpt__cpu_view x;
    uint32_t *words;
    int64_t n;
    bool open;
} mpt__gates_work;

static void mpt__ref_gates(uint32_t *words, mpt__real *x, bool open) {
    if (!open) memset(words, 0, MPT__GATE_WORDS * sizeof *words);
    for (int i = 0; i < MPT__GATE_GROUP; i++) {
        uint32_t *word = &words[i % MPT__GATE_WORDS];
        if (open)
            x[i] = (mpt__real)(*word >> i / MPT__GATE_WORDS & 1);
        else
            *word |= (uint32_t)(x[i] != 0) << i / MPT__GATE_WORDS;
    }
}

static void mpt__gates_task(void *work, int64_t task, int thread) {
    const mpt__gates_work *w = (const mpt__gates_work *)work;
    const int64_t at = task * MPT__GATE_GROUP, n = mpt__cpu_min(w->n - at, MPT__GATE_GROUP);
    void (*gates)(uint32_t *words, mpt__real *x, bool open) = w->x.routines->gates;
    mpt__real block[MPT__GATE_GROUP] = {0}, *x = block;
    (void)thread;
    if (n == MPT__GATE_GROUP) x = mpt__cpu_out(&w->x, at, 1, block);
    if (!w->open && x == block) mpt__cpu_get(&w->x, at, 1, block, n);
    (gates ? gates : mpt__ref_gates)(w->words + task * MPT__GATE_WORDS, x, w->open);
    for (int64_t i = 0; w->open && x == block && i < n; i += MPT__BLOCK)
        mpt__cpu_put_block(&w->x, at + i, 1, block + i, mpt__cpu_min(n - i, MPT__BLOCK));
}

static void mpt__cpu_gate_bits(const mpt__cpu_call *call) {
    mpt__gates_work w;
    w.open = call->launch->kernel == MPT__K_GATE_OPEN;
    w.x = mpt__cpu_view_of(call, w.open);
    w.words = (uint32_t *)call->data[!w.open];
    w.n = mpt__cpu_numel(&call->launch->operand[w.open]);
    mpt__parallel(
        call->pool, mpt__cpu_chunks(w.n, MPT__GATE_GROUP), w.n / 4, mpt__gates_task, &w);
}
#define mpt__cpu_gate_open mpt__cpu_gate_bits

#endif

#endif
