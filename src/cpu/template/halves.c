/* ----
 * cpu/template/halves.c: copies from one layout to another, of 16 bits as they are or of fp32 to 16
 * bits, which would otherwise go through floats in blocks. Vectors of 16 floats would gain nothing.
 * ---- */
#if defined(MPT__V) && MPT__WIDTH < 16 && !defined(MPTRAIN_NO_CONV)

/* 2 MPT__WIDTH rows of 8 elements become 8 rows; rows k and k + 8 lie in one vector. To
   interleave all vectors k and k + 4 turns the bits of an element's vector and lane by one: after
   three times those of its row and of its column have changed places. */
#define MPT__HALVES_EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define MPT__HALVES_LOAD(k) x##k = v_load_halves(from + k * step, step, round);
#define MPT__HALVES_STORE(k) v_store_halves(to + k * to_step, y##k);
#define MPT__HALVES_PAIR(x, y, k, next, low, high) \
    y##low = v_halves_low(x##k, x##next), y##high = v_halves_high(x##k, x##next);
#define MPT__HALVES_TURN(x, y) \
    MPT__HALVES_PAIR(x, y, 0, 4, 0, 1) MPT__HALVES_PAIR(x, y, 1, 5, 2, 3) \
    MPT__HALVES_PAIR(x, y, 2, 6, 4, 5) MPT__HALVES_PAIR(x, y, 3, 7, 6, 7)

/* n rows of m elements, `step` bytes apart; the last tiles of a side reach back over what is done.
   The two tiles that share a line of memory of `to` follow each other. */
MPT__OP void MPT__LEVEL(halves_turn)(uint16_t *out, int64_t to_step, const char *in, int64_t step,
                                     int64_t n, int64_t m, int round) {
    enum { ROWS = 2 * MPT__WIDTH, LINE = 32 };
    v_halves x0, x1, x2, x3, x4, x5, x6, x7, y0, y1, y2, y3, y4, y5, y6, y7;
    for (int64_t line = 0; line < n; line += LINE) {
        for (int64_t c = 0; c < m; c += 8) {
            for (int64_t r = line; r < n && r < line + LINE; r += ROWS) {
                const int64_t i = mpt__cpu_min(r, n - ROWS), j = mpt__cpu_min(c, m - 8);
                const char *from = in + i * step + j * (round ? 4 : 2);
                uint16_t *to = out + j * to_step + i;
                MPT__HALVES_EACH(MPT__HALVES_LOAD)
                MPT__HALVES_TURN(x, y)
                MPT__HALVES_TURN(y, x)
                MPT__HALVES_TURN(x, y)
                MPT__HALVES_EACH(MPT__HALVES_STORE)
            }
        }
    }
}

MPT__FN void MPT__LEVEL(halves_chunk)(MPT__CHUNK_TAKES) {
    const mpt__cpu_transposition *w = (const mpt__cpu_transposition *)work;
    const int64_t i = chunk % w->along * MPT__COPY_RUN;
    const int64_t j = chunk / w->along % w->across * MPT__COPY_TILE;
    const int64_t m = mpt__cpu_min(MPT__COPY_RUN, w->size[0] - i);
    const int64_t n = mpt__cpu_min(MPT__COPY_TILE, w->size[1] - j), to_step = w->step[1];
    const mpt__cpu_view *view[] = {&w->walk[0].view, &w->walk[1].view};
    const int round = view[0]->dtype == MPT_F32 ? view[1]->dtype : 0;
    const int64_t bytes = round ? 4 : 2, step = w->step[0] * bytes;
    mpt__cpu_cursor at[2];
    (void)thread;
    for (int k = 0; k < 2; k++) {
        mpt__cpu_start(&at[k], &w->walk[k].loop, chunk / w->along / w->across);
    }
    const char *from = (const char *)view[0]->data + (at[0].offset + i) * bytes + j * step;
    uint16_t *to = (uint16_t *)view[1]->data + at[1].offset + i * to_step + j;
    if (n < (2 * MPT__WIDTH) || m < 8) {
        for (int64_t r = 0; r < n; r++) {
            for (int64_t c = 0; c < m; c++)
                to[c * to_step + r] = mpt__halves_one(from + r * step + c * bytes, round);
        }
    } else if (round == 0) {
        MPT__LEVEL(halves_turn)(to, to_step, from, step, n, m, 0);
    } else if (round == MPT_F16) {
        MPT__LEVEL(halves_turn)(to, to_step, from, step, n, m, MPT_F16);
    } else {
        MPT__LEVEL(halves_turn)(to, to_step, from, step, n, m, MPT_BF16);
    }
}

static void MPT__LEVEL(halves_copy)(const mpt__cpu_call *call) {
    const mpt__operand *o = call->launch->operand;
    if (!mpt__cpu_is_half(o[1].dtype) || o[1].access == MPT__ACCUMULATE ||
        (o[0].dtype != o[1].dtype && o[0].dtype != MPT_F32) || mpt__cpu_numel(&o[0]) == 0 ||
        !mpt__cpu_copy_transposed(call, MPT__LEVEL(halves_chunk)))
        mpt__cpu_fall_back(call);
}

#endif
