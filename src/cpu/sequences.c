/* ------------------------
 * cpu/sequences.c: all steps of recurrent cells in one launch. The weight is packed once, threads
 * share out the sequences of the batch, and each goes through its own step by step: none waits for
 * another, and what a sequence gives depends on it alone.
 * ---------------------- */
#ifndef MPT__CPU_SEQUENCES_INCLUDED
#define MPT__CPU_SEQUENCES_INCLUDED

#include "cpu/gemm.c"

#if defined(MPT__HAS_GEMM) && !defined(MPTRAIN_NO_RECURRENT)

#define MPT__SEQUENCE_TILES 4 /* of sequences that a thread goes through at a time */

typedef struct {
    mpt__cpu_cells cells;
    const mpt__gemm_level *level;
    mpt__gemm_side weight;                          /* as B */
    int64_t time[MPT__MAX_OPERANDS];                /* elements from step to step */
    int64_t batch, steps, n, k, block, tile, chunk; /* block: of k; tile, chunk: of sequences */
    int64_t a_panel, b_panel, sums, room;           /* bytes; room: of a thread */
    char *panels, *rooms;
    bool reverse, last; /* last: the slope by the first state is asked for, too */
} mpt__cpu_sequences;

/* The level of its products, NULL: none, go step by step. */
static const mpt__gemm_level *mpt__sequence_level(
    const mpt__gemm_level *level, int dtype, int64_t m, int64_t n, int64_t k) {
    mpt__gemm g;
    memset(&g, 0, sizeof g);
    g.a.dtype = g.b.dtype = dtype;
    g.m = m, g.n = n, g.k = g.a.outer = k;
    g.a.inner = g.b.outer = 1;
    if (level->choose) level = level->choose(&g);
    return !level || level->refuses ? NULL : level;
}

static bool mpt__sequences_read(
    mpt__cpu_sequences *s, const mpt__gemm_level *level, const mpt__launch *launch, int threads) {
    const bool backward = launch->kernel == MPT__K_RECURRENT_BACKWARD;
    const mpt__operand *weight = &launch->operand[backward ? 9 : 1];
    const mpt__operand *gates = launch->operand;
    if (launch->index[2] == 0) return false;
    memset(s, 0, sizeof *s);
    s->steps = launch->index[2];
    s->batch = gates->shape[1];
    s->n = weight->shape[backward], s->k = weight->shape[!backward];
    s->level = level = mpt__sequence_level(level, launch->compute_dtype, s->batch, s->n, s->k);
    mpt__gemm_read_side(&s->weight, weight, launch, launch->compute_dtype, backward, !backward);
    s->reverse = launch->index[1] != 0, s->last = launch->index[3] != 0;
    s->tile = level->middle > 0 ? level->middle : mpt__smaller_of(level->rows, 16);
    s->chunk = mpt__smaller_of(mpt__gemm_panels(s->batch, threads), MPT__SEQUENCE_TILES * s->tile);
    s->chunk = mpt__round_up(s->chunk, s->tile);
    const int64_t blocks = mpt__gemm_panels(s->k, level->depth);
    s->block = mpt__round_up(mpt__gemm_panels(s->k, blocks), 32);
    s->a_panel = mpt__gemm_panel_bytes(level, s->block, level->rows);
    s->b_panel = mpt__gemm_panel_bytes(level, s->block, level->columns);
    if (!backward)
        s->sums = mpt__round_up(s->chunk, level->rows) * mpt__round_up(s->n, level->columns) * 4;
    s->room = mpt__round_up(s->sums + s->chunk / s->tile * s->a_panel, 64);
    return true;
}

static int64_t mpt__sequences_workspace(
    const mpt__gemm_level *level, const mpt__launch *launch, int threads) {
    mpt__cpu_sequences s;
    if (!mpt__sequences_read(&s, level, launch, threads)) return 0;
    return s.room * threads +
        mpt__gemm_panels(s.n, s.level->columns) * mpt__gemm_panels(s.k, s.block) * s.b_panel;
}

/* Operand k of a step, from a sequence on. */
static mpt__cpu_view mpt__sequences_view(
    const mpt__cpu_sequences *s, int k, int64_t t, int64_t row) {
    mpt__cpu_view view = s->cells.view[k];
    if (view.data)
        view.data = (char *)view.data +
            (t * s->time[k] + row * s->cells.step[k]) * mpt__dtype_info[view.dtype].bytes;
    return view;
}

/* Lines of 64 bytes to be fetched: what step `t` has of the sequences from `row` on, operand by
   operand, where they lie together. */
typedef struct {
    int64_t t, row, lines;
    int operand;
    const char *at;
} mpt__sequences_ahead;

static void mpt__sequences_fetch(const mpt__cpu_sequences *s, mpt__sequences_ahead *ahead,
    int64_t rows, mpt__gemm_side *a, int64_t lines) {
    while (ahead->lines <= 0 && ahead->operand < 8) {
        const int k = ahead->operand++;
        if (s->time[k] < s->cells.step[k] * rows) continue;
        const mpt__cpu_view view = mpt__sequences_view(s, k, ahead->t, ahead->row);
        ahead->at = (const char *)view.data;
        ahead->lines = rows * s->cells.step[k] * mpt__dtype_info[view.dtype].bytes / 64;
    }
    if (ahead->lines <= 0) return;
    a[1].data = ahead->at, a[1].inner = 64;
    ahead->at += 64 * lines, ahead->lines -= lines;
}

/* c[rows, n] = or (how) += A times the weight, of sequences from `row` on; step t comes next. */
static void mpt__sequences_product(const mpt__cpu_sequences *s, const mpt__gemm_side *a,
    int64_t row, int64_t rows, float *c, int64_t ldc, int how, char *room, int64_t t) {
    mpt__sequences_ahead ahead = {t, row, 0, 0, NULL};
    const mpt__gemm_level *level = s->level;
    const int64_t panels = mpt__gemm_panels(s->n, level->columns), unit = level->unit;
    const bool in_place = level->in_place && a->dtype == (unit == 1 ? MPT_F32 : MPT_BF16) &&
        a->round == 0 && (a->outer | s->k) % unit == 0 && (uintptr_t)a->data % sizeof(float) == 0;
    const bool next = level->in_place && t >= 0 && t < s->steps;
    for (int64_t k = 0; k < s->k; k += s->block, how |= MPT__GEMM_ADD) {
        const int64_t depth = mpt__smaller_of(s->block, s->k - k);
        mpt__gemm_side tile[MPT__SEQUENCE_TILES][2], b[2];
        for (int64_t i = 0; i < rows; i += s->tile) {
            mpt__gemm_side *of = tile[i / s->tile];
            const int64_t count = mpt__smaller_of(s->tile, rows - i);
            char *panel = room + i / s->tile * s->a_panel;
            of[0] = of[1] = *a;
            of[0].data = in_place && count == s->tile ? mpt__gemm_at(a, i, k) : panel;
            of[0].outer = of[0].data == panel ? 1 : a->outer / unit;
            of[0].inner = of[0].data == panel ? level->rows : 1;
            if (of[0].data == panel) level->pack(panel, false, a, i, count, k, depth);
        }
        b[0] = s->weight, b[1] = s->weight;
        b[0].inner = level->columns, b[0].outer = 1, b[1].data = NULL;
        for (int64_t j = 0; j < panels; j++) {
            const int64_t at = j * level->columns;
            b[0].data = s->panels + (k / s->block * panels + j) * s->b_panel;
            for (int64_t i = 0; i < rows; i += s->tile) {
                mpt__gemm_side *of = tile[i / s->tile];
                of[1].data = of[0].data, of[1].inner = 0;
                if (next) mpt__sequences_fetch(s, &ahead, rows, of, depth / unit);
                level->tile(depth, tile[i / s->tile], b, c + i * ldc + at, ldc,
                    (int)mpt__smaller_of(s->tile, rows - i),
                    (int)mpt__smaller_of(level->columns, s->n - at), how);
            }
        }
    }
}

static mpt__gemm_side mpt__sequences_rows(
    const mpt__cpu_sequences *s, int k, const mpt__cpu_view *view) {
    mpt__gemm_side side = s->weight;
    const int compute = mpt__gemm_dtype(&s->weight);
    side.data = (const char *)view->data;
    side.dtype = view->dtype;
    side.round = compute == MPT_F32 || compute == view->dtype ? 0 : compute;
    side.outer = s->cells.step[k], side.inner = 1;
    return side;
}

static void mpt__sequences_forward(
    const mpt__cpu_sequences *s, int64_t row, int64_t rows, int thread) {
    char *room = s->rooms + thread * s->room;
    float *sums = (float *)(void *)room;
    const int64_t ld = mpt__round_up(s->n, s->level->columns);
    const int cell = s->cells.cell, kept = s->cells.view[7].data ? 7 : 5;
    for (int64_t step = 0, last = 0; step < s->steps; step++) {
        const int64_t t = s->reverse ? s->steps - 1 - step : step;
        const int before = step == 0 ? 3 : kept, inner = step == 0 ? 8 : 4;
        mpt__cpu_cells c = s->cells;
        const mpt__cpu_view state = mpt__sequences_view(s, before, last, row);
        for (int k = 0; k < 8; k++) c.view[k] = mpt__sequences_view(s, k, t, row);
        c.now = t;
        memset(&c.view[1], 0, sizeof c.view[1]);
        if (state.data) {
            const mpt__gemm_side a = mpt__sequences_rows(s, before, &state);
            mpt__sequences_product(s, &a, row, rows, sums, ld, MPT__GEMM_ROOM, room + s->sums,
                t + (s->reverse ? -1 : 1));
            c.view[1] = c.view[0];
            c.view[1].data = sums, c.step[1] = ld;
        }
        c.view[8] = c.view[3] = state, c.step[8] = c.step[3] = s->cells.step[before];
        if (cell == MPT__CELL_LSTM) {
            c.view[3] = mpt__sequences_view(s, inner, last, row);
            c.step[3] = s->cells.step[inner];
        }
        for (int64_t i = 0; i < rows; i++) mpt__cpu_cells_row(&c, i, thread);
        last = t;
    }
}

static void mpt__sequences_backward(
    const mpt__cpu_sequences *s, int64_t row, int64_t rows, int thread) {
    const int cell = s->cells.cell, of = cell == MPT__CELL_GRU ? 2 : 1;
    const int before = cell == MPT__CELL_LSTM ? 4 : 7;
    const bool adds = cell == MPT__CELL_GRU || s->cells.view[8].data;
    for (int64_t step = s->steps - 1; step >= 0; step--) {
        const int64_t t = s->reverse ? s->steps - 1 - step : step,
                      last = s->reverse ? t + 1 : t - 1;
        const int from = step == 0 ? 3 : before;
        mpt__cpu_cells c = s->cells;
        for (int k = 0; k < 9; k++) c.view[k] = mpt__sequences_view(s, k, t, row);
        c.now = t;
        c.view[3] = mpt__sequences_view(s, from, last, row), c.step[3] = s->cells.step[from];
        if (cell != MPT__CELL_LSTM) c.view[7].data = NULL;
        for (int64_t i = 0; i < rows; i++) mpt__cpu_cells_row(&c, i, thread);
        if (step == 0 && !s->last) return;
        const mpt__gemm_side a = mpt__sequences_rows(s, of, &c.view[of]);
        mpt__sequences_product(s, &a, row, rows, (float *)c.view[6].data, c.step[6],
            adds ? MPT__GEMM_ADD : 0, s->rooms + thread * s->room, last);
    }
}

static void mpt__sequences_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_sequences *s = (const mpt__cpu_sequences *)work;
    const int64_t row = chunk * s->chunk, rows = mpt__smaller_of(s->chunk, s->batch - row);
    if (s->level->bracket) s->level->bracket(true);
    if (s->cells.backward)
        mpt__sequences_backward(s, row, rows, thread);
    else
        mpt__sequences_forward(s, row, rows, thread);
    if (s->level->bracket) s->level->bracket(false);
}

static void mpt__cpu_sequences_run(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_sequences s;
    if (!mpt__sequences_read(&s, call->kernel->level, launch, mpt__pool_threads(call->pool))) {
        mpt__cpu_recurrent(call);
        return;
    }
    mpt__cpu_cells_of(call, &s.cells);
    for (int k = 0; k < MPT__CELL_OPERANDS && k < launch->n_operands; k++) {
        const mpt__operand *o = &launch->operand[k];
        s.time[k] = o->rank > 2 ? o->stride[0] : 0;
        if (o->rank > 1) s.cells.step[k] = o->stride[o->rank - 2];
    }
    const int64_t panels = mpt__gemm_panels(s.n, s.level->columns);
    s.weight.data = (const char *)call->data[s.cells.backward ? 9 : 1];
    s.rooms = (char *)call->workspace;
    s.panels = s.rooms + s.room * mpt__pool_threads(call->pool);
    mpt__kernel_flushes(true);
    for (int64_t k = 0, at = 0; k < s.k; k += s.block)
        for (int64_t j = 0; j < panels; j++, at++)
            s.level->pack(s.panels + at * s.b_panel, true, &s.weight, j * s.level->columns,
                mpt__smaller_of(s.level->columns, s.n - j * s.level->columns), k,
                mpt__smaller_of(s.block, s.k - k));
    const int64_t each = s.n * s.k / s.level->rate + 8 * s.n;
    mpt__parallel(call->pool, mpt__gemm_panels(s.batch, s.chunk), s.steps * s.batch * each,
        mpt__sequences_chunk, &s);
    mpt__kernel_flushed(true);
}

/* Steps in one launch, of the dtypes that this level takes. */
static void mpt__cpu_add_sequences(mpt__cpu *cpu, const mpt__gemm_level *level) {
    static const uint8_t dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int k = MPT__K_RECURRENT; k <= MPT__K_RECURRENT_BACKWARD; k++) {
        mpt__cpu_kernel *row = &cpu->kernel[k];
        row->run = mpt__cpu_sequences_run;
        row->level = level;
        row->level_workspace = mpt__sequences_workspace;
        row->scratch = true;
    }
    cpu->backend->unrolls = 0;
    for (int i = 0; i < 3; i++)
        if (mpt__sequence_level(level, dtypes[i], 64, 64, 64) != NULL)
            cpu->backend->unrolls |= 1u << dtypes[i];
}

#endif

#endif
