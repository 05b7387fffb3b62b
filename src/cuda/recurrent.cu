/* ==== Recurrent cells: RECURRENT, RECURRENT_BACKWARD ==== */

/* A row of an operand for each sequence. */
struct mpt__cell_rows {
    void *data; /* NULL: absent */
    long long step;
    int dtype, unused;
};

struct mpt__cells {
    mpt__cell_rows at[9];
    long long count, hidden, now;
    int cell, gates;
};

/* Element i of part `gate` of a row; 0 where there is none. */
__device__ __forceinline__ float mpt__cell_get(const mpt__cells &w, int k, long long row, int gate,
                                               long long i) {
    const mpt__cell_rows &from = w.at[k];
    if (from.data == NULL) return 0.0f;
    return mpt__load(from.data, from.dtype, row * from.step + gate * w.hidden + i);
}

__device__ __forceinline__ void mpt__cell_put(const mpt__cells &w, int k, long long row, int gate,
                                              long long i, float x) {
    const mpt__cell_rows &to = w.at[k];
    if (to.data != NULL)
        mpt__store(to.data, to.dtype, row * to.step + gate * w.hidden + i, x);
}

__device__ __forceinline__ bool mpt__cell_over(const mpt__cells &w, int k, long long row) {
    const mpt__cell_rows &lengths = w.at[k];
    return lengths.data != NULL && ((const long long *)lengths.data)[row * lengths.step] <= w.now;
}

__device__ __forceinline__ void mpt__cell_over_forward(const mpt__cells &w, long long row,
                                                       long long i) {
    mpt__cell_put(w, 4, row, 0, i,
                  w.cell == MPT__CELL_LSTM ? mpt__cell_get(w, 3, row, 0, i) : 0.0f);
    mpt__cell_put(w, 5, row, 0, i, 0.0f);
    mpt__cell_put(w, 7, row, 0, i, mpt__cell_get(w, 8, row, 0, i));
}

__global__ void mpt__cell_kernel(const mpt__cells w) {
    MPT__EACH(k, w.count) {
        const long long row = k / w.hidden, i = k % w.hidden;
        float a[4], p[4], h, before = mpt__cell_get(w, 3, row, 0, i);
        if (mpt__cell_over(w, 6, row)) {
            mpt__cell_over_forward(w, row, i);
            continue;
        }
        for (int g = 0; g < 4; g++) {
            if (g >= w.gates) break;
            p[g] = mpt__cell_get(w, 1, row, g, i) + mpt__cell_get(w, 2, row, g, i);
            a[g] = mpt__cell_get(w, 0, row, g, i);
            if (w.cell != MPT__CELL_GRU || g < 2) a[g] += p[g];
        }
        switch (w.cell) {
        case MPT__CELL_LSTM:
            h = v_lstm(a, &before);
            mpt__cell_put(w, 4, row, 0, i, before);
            break;
        case MPT__CELL_GRU:
            h = v_gru(a, p[2], before);
            mpt__cell_put(w, 4, row, 0, i, p[2]);
            break;
        case MPT__CELL_TANH: h = a[0] = v_tanh(a[0]); break;
        case MPT__CELL_RELU: h = a[0] = v_relu(a[0]); break;
        default: h = p[0]; break;
        }
        for (int g = 0; g < 4; g++)
            if (g < w.gates) mpt__cell_put(w, 0, row, g, i, a[g]);
        mpt__cell_put(w, 5, row, 0, i, h);
        mpt__cell_put(w, 7, row, 0, i, h);
    }
}

__global__ void mpt__cell_slopes_kernel(const mpt__cells w) {
    MPT__EACH(k, w.count) {
        const long long row = k / w.hidden, i = k % w.hidden;
        float a[4] = {0.0f, 0.0f, 0.0f, 0.0f}, p = 0.0f, rest = 0.0f;
        const bool over = mpt__cell_over(w, 8, row);
        for (int g = 0; g < 4; g++)
            if (g < w.gates && !over) a[g] = mpt__cell_get(w, 0, row, g, i);
        if (!over) {
            const float dh = mpt__cell_get(w, 5, row, 0, i) + mpt__cell_get(w, 6, row, 0, i);
            const float before = mpt__cell_get(w, 3, row, 0, i);
            p = mpt__cell_get(w, 4, row, 0, i);
            switch (w.cell) {
            case MPT__CELL_LSTM:
                mpt__cell_put(w, 7, row, 0, i,
                              v_lstm_slopes(a, before, p, dh, mpt__cell_get(w, 7, row, 0, i)));
                break;
            case MPT__CELL_GRU: rest = v_gru_slopes(a, &p, before, dh); break;
            case MPT__CELL_TANH: a[0] = dh * (1 - a[0] * a[0]); break;
            case MPT__CELL_RELU: a[0] = v_gate(a[0], dh); break;
            default: a[0] = dh; break;
            }
            mpt__cell_put(w, 6, row, 0, i, rest);
        }
        for (int g = 0; g < 4; g++)
            if (g < w.gates) mpt__cell_put(w, 1, row, g, i, a[g]);
        for (int g = 0; g < 3; g++) mpt__cell_put(w, 2, row, g, i, g < 2 ? a[g] : p);
    }
}

mpt_status mpt__cuda_recurrent(const mpt__cuda_call *call) {
    static const int gates[] = {1, 1, 4, 3, 1};
    const mpt__launch *launch = call->launch;
    const bool backward = launch->kernel == MPT__K_RECURRENT_BACKWARD;
    const mpt__operand &size = launch->operand[backward ? 6 : 5];
    mpt__cells w;
    memset(&w, 0, sizeof w);
    w.cell = (int)launch->index[0];
    w.gates = gates[w.cell];
    w.now = launch->index[1];
    w.hidden = size.shape[1];
    w.count = size.shape[0] * w.hidden;
    for (int k = 0; k < launch->n_operands && k < 9; k++) {
        if (launch->operand[k].storage == 0) continue;
        w.at[k].data = call->data[k];
        w.at[k].dtype = launch->operand[k].dtype;
        w.at[k].step = k == 2 && !backward ? 0 : launch->operand[k].stride[0];
    }
    if (w.count == 0) return MPT_OK;
    if (backward)
        mpt__cell_slopes_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
    else
        mpt__cell_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
    return MPT_OK;
}

