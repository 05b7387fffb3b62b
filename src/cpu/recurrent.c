/* ----
 * cpu/recurrent.c: a step of recurrent cells on the CPU.
 * ---- */
#ifndef MPT__CPU_RECURRENT_INCLUDED
#define MPT__CPU_RECURRENT_INCLUDED

#include "cpu/loss.c"

#ifndef MPTRAIN_NO_RECURRENT

/* ==== The reference level ==== */

static mpt__real mpt__ref_cell_sum(const mpt__cell_block *b, int gate, int64_t i) {
    mpt__real x = b->state[gate] ? b->state[gate][i] : 0;
    return b->bias[gate] ? x + b->bias[gate][i] : x;
}

static void mpt__ref_cell(const mpt__cell_block *b) {
    mpt__real a[4], p[4];
    for (int64_t i = 0; i < b->n; i++) {
        mpt__real before = b->before ? b->before[i] : 0;
        for (int g = 0; g < b->gates; g++) {
            p[g] = mpt__ref_cell_sum(b, g, i);
            a[g] = b->cell == MPT__CELL_GRU && g == 2 ? b->in[g][i] : b->in[g][i] + p[g];
        }
        if (b->cell == MPT__CELL_LSTM) {
            b->h[i] = mpt__real_lstm(a, &before);
            b->after[i] = before;
        } else if (b->cell == MPT__CELL_GRU) {
            b->h[i] = mpt__real_gru(a, p[2], before);
            if (b->after) b->after[i] = p[2];
        } else {
            a[0] = b->cell == MPT__CELL_TANH ? mpt__real_tanh(a[0]) : mpt__real_relu(a[0]);
            b->h[i] = a[0];
        }
        for (int g = 0; g < b->gates; g++) b->out[g][i] = a[g];
    }
}

static void mpt__ref_cell_slopes(const mpt__cell_block *b) {
    mpt__real a[4], p, dh;
    for (int64_t i = 0; i < b->n; i++) {
        mpt__real before = b->before ? b->before[i] : 0;
        for (int g = 0; g < b->gates; g++) a[g] = b->in[g][i];
        dh = b->dy ? b->dy[i] + b->dh[i] : b->dh[i];
        b->dh[i] = 0;
        if (b->cell == MPT__CELL_LSTM) {
            b->dc[i] = mpt__real_lstm_slopes(a, before, b->kept[i], dh, b->dc[i]);
        } else if (b->cell == MPT__CELL_GRU) {
            p = b->kept[i];
            b->dh[i] = mpt__real_gru_slopes(a, &p, before, dh);
            b->more[0][i] = a[0], b->more[1][i] = a[1], b->more[2][i] = p;
        } else if (b->cell == MPT__CELL_TANH) {
            a[0] = dh * (1 - a[0] * a[0]);
        } else {
            a[0] = mpt__real_gate(a[0], dh);
        }
        for (int g = 0; g < b->gates; g++) b->out[g][i] = a[g];
    }
}

/* ==== The kernels ==== */

/* Elements computed at a time: converted ones lie on the stack. */
#define MPT__CELL_BLOCK (MPT__BLOCK / 8)
#define MPT__CELL_OPERANDS 9

typedef struct {
    mpt__cpu_view view[MPT__CELL_OPERANDS];
    int64_t step[MPT__CELL_OPERANDS]; /* between rows */
    int64_t hidden, now;
    const mpt__routines *routines;
    int cell, gates;
    bool backward;
} mpt__cpu_cells;

/* Some elements of a row, with room for what does not lie where it is computed. */
typedef struct {
    const mpt__cpu_cells *w;
    int64_t row, at, n;
    int used;
    mpt__real room[20][MPT__CELL_BLOCK];
} mpt__cell_part;

static int64_t mpt__cell_place(const mpt__cell_part *part, int k, int gate) {
    return part->row * part->w->step[k] + gate * part->w->hidden + part->at;
}

/* Part `gate` of operand k; NULL: absent. */
static const mpt__real *mpt__cell_in(mpt__cell_part *part, int k, int gate) {
    const mpt__cpu_view *view = &part->w->view[k];
    if (!view->data) return NULL;
    return mpt__cpu_in(view, mpt__cell_place(part, k, gate), 1, part->room[part->used++], part->n);
}

static mpt__real *mpt__cell_out(mpt__cell_part *part, int k, int gate) {
    const mpt__cpu_view *view = &part->w->view[k];
    if (!view->data) return NULL;
    return mpt__cpu_out(view, mpt__cell_place(part, k, gate), 1, part->room[part->used++]);
}

static void mpt__cell_put(const mpt__cell_part *part, int k, int gate, const mpt__real *x) {
    if (x) mpt__cpu_put(&part->w->view[k], mpt__cell_place(part, k, gate), 1, x, part->n);
}

/* Operand `to`, if there, = operand `from`, or 0 without one. */
static void mpt__cell_move(mpt__cell_part *part, int to, int from, int gates) {
    static const mpt__real none[MPT__CELL_BLOCK] = {0};
    if (!part->w->view[to].data) return;
    for (int g = 0; g < gates; g++) {
        part->used = 0;
        const mpt__real *x = from < 0 ? NULL : mpt__cell_in(part, from, g);
        mpt__cpu_put_block(
            &part->w->view[to], mpt__cell_place(part, to, g), 1, x ? x : none, part->n);
    }
}

static void mpt__cell_forward(mpt__cell_part *part, bool over) {
    const mpt__cpu_cells *w = part->w;
    mpt__cell_block b;
    if (over) {
        mpt__cell_move(part, 4, w->cell == MPT__CELL_LSTM ? 3 : -1, 1);
        mpt__cell_move(part, 5, -1, 1);
        mpt__cell_move(part, 7, 8, 1);
        return;
    }
    if (w->cell == MPT__CELL_CARRY) {
        mpt__cell_move(part, 5, 1, 1);
        mpt__cell_move(part, 7, 1, 1);
        return;
    }
    memset(&b, 0, sizeof b);
    b.cell = w->cell, b.gates = w->gates, b.n = part->n;
    for (int g = 0; g < w->gates; g++) {
        b.in[g] = mpt__cell_in(part, 0, g);
        b.out[g] = mpt__cell_out(part, 0, g);
        b.state[g] = mpt__cell_in(part, 1, g);
        b.bias[g] = mpt__cell_in(part, 2, g);
    }
    b.before = mpt__cell_in(part, 3, 0);
    b.after = mpt__cell_out(part, 4, 0);
    b.h = mpt__cell_out(part, 5, 0);
    w->routines->cell(&b);
    for (int g = 0; g < w->gates; g++) mpt__cell_put(part, 0, g, b.out[g]);
    mpt__cell_put(part, 4, 0, b.after);
    mpt__cell_put(part, 5, 0, b.h);
    if (w->view[7].data)
        mpt__cpu_put_block(&w->view[7], mpt__cell_place(part, 7, 0), 1, b.h, part->n);
}

static void mpt__cell_backward(mpt__cell_part *part, bool over) {
    const mpt__cpu_cells *w = part->w;
    mpt__cell_block b;
    if (over) {
        mpt__cell_move(part, 1, -1, w->gates);
        mpt__cell_move(part, 2, -1, w->gates);
        return;
    }
    memset(&b, 0, sizeof b);
    b.cell = w->cell, b.gates = w->gates, b.n = part->n;
    b.dy = mpt__cell_in(part, 5, 0);
    b.dh =
        mpt__cpu_edit(&w->view[6], mpt__cell_place(part, 6, 0), part->room[part->used++], part->n);
    for (int g = 0; g < w->gates; g++) b.out[g] = mpt__cell_out(part, 1, g);
    if (w->cell == MPT__CELL_CARRY) {
        for (int64_t i = 0; i < b.n; i++) {
            b.out[0][i] = b.dy ? b.dy[i] + b.dh[i] : b.dh[i];
            b.dh[i] = 0;
        }
    } else {
        for (int g = 0; g < w->gates; g++) b.in[g] = mpt__cell_in(part, 0, g);
        for (int g = 0; g < w->gates && w->cell == MPT__CELL_GRU; g++)
            b.more[g] = mpt__cell_out(part, 2, g);
        b.before = mpt__cell_in(part, 3, 0);
        b.kept = mpt__cell_in(part, 4, 0);
        if (w->view[7].data)
            b.dc = mpt__cpu_edit(
                &w->view[7], mpt__cell_place(part, 7, 0), part->room[part->used++], part->n);
        w->routines->cell_slopes(&b);
    }
    for (int g = 0; g < w->gates; g++) mpt__cell_put(part, 1, g, b.out[g]);
    for (int g = 0; g < 3; g++) mpt__cell_put(part, 2, g, b.more[g]);
    mpt__cell_put(part, 6, 0, b.dh);
    mpt__cell_put(part, 7, 0, b.dc);
}

static void mpt__cpu_cells_row(void *work, int64_t row, int thread) {
    MPT__TASK(mpt__cpu_cells, w);
    const int lengths = w->backward ? 8 : 6;
    mpt__cell_part part;
    part.w = w, part.row = row;
    bool over = w->view[lengths].data &&
        mpt__cpu_get_integer(&w->view[lengths], row * w->step[lengths]) <= w->now;
    for (part.at = 0; part.at < w->hidden; part.at += part.n) {
        part.n = mpt__cpu_min(w->hidden - part.at, MPT__CELL_BLOCK);
        part.used = 0;
        if (w->backward)
            mpt__cell_backward(&part, over);
        else
            mpt__cell_forward(&part, over);
    }
}

/* Operands are rows of hidden numbers, or of as many for each gate. */
static void mpt__cpu_cells_of(const mpt__cpu_call *call, mpt__cpu_cells *w) {
    static const uint8_t gates[] = {1, 1, 4, 3, 1};
    const mpt__launch *launch = call->launch;
    memset(w, 0, sizeof *w);
    w->backward = launch->kernel == MPT__K_RECURRENT_BACKWARD;
    w->cell = (int)launch->index[0];
    w->gates = gates[w->cell];
    w->routines = call->routines;
    for (int k = 0; k < launch->n_operands && k < MPT__CELL_OPERANDS; k++) {
        const mpt__operand *o = &launch->operand[k];
        if (o->storage == 0) continue;
        w->view[k] = mpt__cpu_view_of(call, k);
        w->step[k] = k == 2 && !w->backward ? 0 : o->stride[0];
    }
    const mpt__operand *size = &launch->operand[w->backward ? 6 : 5];
    w->hidden = size->shape[size->rank - 1];
}

static void mpt__cpu_recurrent(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_cells w;
    mpt__cpu_cells_of(call, &w);
    w.now = launch->index[1];
    const int64_t rows = launch->operand[w.backward ? 6 : 5].shape[0];
    const int64_t cost = mpt__cpu_cost(call, mpt__cpu_times(rows, w.hidden), 12.0 * w.gates);
    mpt__parallel(call->pool, rows, cost, mpt__cpu_cells_row, &w);
}

#endif

#endif
