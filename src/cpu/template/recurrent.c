/* ----
 * cpu/template/recurrent.c: a step of recurrent cells (mpt__cell_block, cpu/elementwise.c): the
 * operations of the reference level, cpu/recurrent.c, in the same order.
 * ---- */
#if defined(MPT__V) && !defined(MPTRAIN_NO_RECURRENT)

/* Behind n elements nothing is read or written. */
MPT__OP v_f MPT__LEVEL(cell_load)(const float *x, int64_t n) {
    return n >= MPT__WIDTH ? v_load(x) : v_load_as(x, n, MPT_F32);
}
MPT__OP void MPT__LEVEL(cell_store)(float *x, v_f value, int64_t n) {
    if (n >= MPT__WIDTH)
        v_store(x, value);
    else
        v_store_as(x, value, n, MPT_F32);
}
/* Element i, 0 where there is nothing. */
MPT__OP v_f MPT__LEVEL(cell_get)(const float *x, int64_t i, int64_t n) {
    return x != NULL ? MPT__LEVEL(cell_load)(x + i, n - i) : v_zero();
}
MPT__OP v_f MPT__LEVEL(cell_sum)(const mpt__cell_block *b, int gate, int64_t i) {
    v_f x = MPT__LEVEL(cell_get)(b->state[gate], i, b->n);
    if (b->bias[gate] == NULL) return x;
    return v_add(x, MPT__LEVEL(cell_load)(b->bias[gate] + i, b->n - i));
}

MPT__OP void MPT__LEVEL(cell_of)(const mpt__cell_block *b, int cell, int gates) {
    for (int64_t i = 0; i < b->n; i += MPT__WIDTH) {
        v_f a[4], p = v_zero(), h, before = MPT__LEVEL(cell_get)(b->before, i, b->n);
        for (int g = 0; g < gates; g++) {
            a[g] = MPT__LEVEL(cell_load)(b->in[g] + i, b->n - i);
            p = MPT__LEVEL(cell_sum)(b, g, i);
            if (cell != MPT__CELL_GRU || g < 2) a[g] = v_add(a[g], p);
        }
        if (cell == MPT__CELL_LSTM)
            h = v_lstm(a, &before), p = before;
        else if (cell == MPT__CELL_GRU)
            h = v_gru(a, p, before);
        else
            h = a[0] = cell == MPT__CELL_TANH ? v_tanh(a[0]) : v_relu(a[0]);
        for (int g = 0; g < gates; g++) MPT__LEVEL(cell_store)(b->out[g] + i, a[g], b->n - i);
        if (gates > 1 && b->after != NULL) MPT__LEVEL(cell_store)(b->after + i, p, b->n - i);
        MPT__LEVEL(cell_store)(b->h + i, h, b->n - i);
    }
}
MPT__FN void MPT__LEVEL(cell)(const mpt__cell_block *b) {
    switch (b->cell) {
    case MPT__CELL_TANH:
        MPT__LEVEL(cell_of)(b, MPT__CELL_TANH, 1);
        break;
    case MPT__CELL_RELU:
        MPT__LEVEL(cell_of)(b, MPT__CELL_RELU, 1);
        break;
    case MPT__CELL_LSTM:
        MPT__LEVEL(cell_of)(b, MPT__CELL_LSTM, 4);
        break;
    default:
        MPT__LEVEL(cell_of)(b, MPT__CELL_GRU, 3);
        break;
    }
}

MPT__OP void MPT__LEVEL(cell_slopes_of)(const mpt__cell_block *b, int cell, int gates) {
    for (int64_t i = 0; i < b->n; i += MPT__WIDTH) {
        const int64_t left = b->n - i;
        v_f a[4], dh = MPT__LEVEL(cell_load)(b->dh + i, left), rest = v_zero();
        v_f before = MPT__LEVEL(cell_get)(b->before, i, b->n);
        for (int g = 0; g < gates; g++) a[g] = MPT__LEVEL(cell_load)(b->in[g] + i, left);
        if (b->dy != NULL) dh = v_add(MPT__LEVEL(cell_load)(b->dy + i, left), dh);
        if (cell == MPT__CELL_LSTM) {
            v_f after = MPT__LEVEL(cell_load)(b->kept + i, left);
            v_f dc = MPT__LEVEL(cell_load)(b->dc + i, left);
            MPT__LEVEL(cell_store)(b->dc + i, v_lstm_slopes(a, before, after, dh, dc), left);
        } else if (cell == MPT__CELL_GRU) {
            v_f p = MPT__LEVEL(cell_load)(b->kept + i, left);
            rest = v_gru_slopes(a, &p, before, dh);
            MPT__LEVEL(cell_store)(b->more[0] + i, a[0], left);
            MPT__LEVEL(cell_store)(b->more[1] + i, a[1], left);
            MPT__LEVEL(cell_store)(b->more[2] + i, p, left);
        } else if (cell == MPT__CELL_TANH) {
            a[0] = v_mul(dh, v_sub(v_set(1), v_mul(a[0], a[0])));
        } else {
            a[0] = v_gate(a[0], dh);
        }
        MPT__LEVEL(cell_store)(b->dh + i, rest, left);
        for (int g = 0; g < gates; g++) MPT__LEVEL(cell_store)(b->out[g] + i, a[g], left);
    }
}
MPT__FN void MPT__LEVEL(cell_slopes)(const mpt__cell_block *b) {
    switch (b->cell) {
    case MPT__CELL_TANH:
        MPT__LEVEL(cell_slopes_of)(b, MPT__CELL_TANH, 1);
        break;
    case MPT__CELL_RELU:
        MPT__LEVEL(cell_slopes_of)(b, MPT__CELL_RELU, 1);
        break;
    case MPT__CELL_LSTM:
        MPT__LEVEL(cell_slopes_of)(b, MPT__CELL_LSTM, 4);
        break;
    default:
        MPT__LEVEL(cell_slopes_of)(b, MPT__CELL_GRU, 3);
        break;
    }
}

#endif
