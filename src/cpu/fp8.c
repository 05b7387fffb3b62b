/* ----
 * cpu/fp8.c: scaled fp8 on the CPU.
 * ---- */
#ifndef MPT__CPU_FP8_INCLUDED
#define MPT__CPU_FP8_INCLUDED

#include "cpu/resize.c"

#ifndef MPTRAIN_NO_FP8

typedef struct mpt__cpu_fp8_work {
    mpt__cpu_view from, to;
    int64_t count;
    float scale; /* a power of two: its inverse is one, too */
    mpt__fp8_way way;
    float *most; /* of each chunk; NULL: nobody asks */
} mpt__cpu_fp8_work;

/* Codes of n numbers. Returns the largest finite magnitude among them. */
static float mpt__cpu_fp8_codes(
    const mpt__cpu_fp8_work *w, const mpt__real *x, uint8_t *to, int64_t n) {
    float most = 0;
    for (int64_t i = 0; i < n; i++) {
        float value = (float)x[i], size = mpt__f32_from_bits(mpt__f32_bits(value) & 0x7fffffffu);
        bool finite = mpt__f32_is_finite(value);
        if (finite && size > most) most = size;
        bool saturates = w->way == MPT__FP8_SATURATE || (w->way == MPT__FP8_SCALE && finite);
        mpt__f8_mode mode = saturates ? MPT__F8_SATFINITE : MPT__F8_NONSAT;
        value *= w->scale;
        to[i] = w->to.dtype == MPT_F8E4M3 ? mpt__f32_to_f8e4m3(value, mode)
                                          : mpt__f32_to_f8e5m2(value, mode);
    }
    return most;
}

static void mpt__cpu_fp8_chunk(MPT__CHUNK_TAKES) {
    const mpt__cpu_fp8_work *w = (const mpt__cpu_fp8_work *)work;
    int64_t begin = chunk * MPT__CHUNK, end = mpt__cpu_min(begin + MPT__CHUNK, w->count), n;
    mpt__real block[2][MPT__BLOCK];
    float most = 0;
    (void)thread;
    for (int64_t at = begin; at < end; at += n) {
        n = mpt__cpu_min(MPT__BLOCK, end - at);
        const mpt__real *x = mpt__cpu_in(&w->from, at, 1, block[0], n);
        if (w->way == MPT__FP8_WIDEN) {
            mpt__real *to = mpt__cpu_out(&w->to, at, 1, block[1]);
            for (int64_t i = 0; i < n; i++) to[i] = x[i] * (mpt__real)(1 / w->scale);
            mpt__cpu_put(&w->to, at, 1, to, n);
        } else {
            float here = mpt__cpu_fp8_codes(w, x, (uint8_t *)w->to.data + at, n);
            most = here > most ? here : most;
        }
    }
    if (w->most) w->most[chunk] = most;
}

static int64_t mpt__cpu_fp8_workspace(const mpt__launch *launch, int threads) {
    (void)threads;
    return mpt__cpu_chunks(launch->operand[0].shape[0], MPT__CHUNK) * (int64_t)sizeof(float);
}

static void mpt__cpu_fp8_scale(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    float *state = launch->n_operands > 2 ? (float *)call->data[2] : NULL;
    mpt__cpu_fp8_work w;
    w.from = mpt__cpu_view_of(call, 0);
    w.to = mpt__cpu_view_of(call, 1);
    w.count = launch->operand[0].shape[0];
    w.scale = state ? state[MPT__FP8_SCALE_NOW] : 1;
    w.way = (mpt__fp8_way)launch->index[0];
    bool watched = state && launch->operand[2].access == MPT__READ_WRITE;
    w.most = watched ? (float *)call->workspace : NULL;
    int64_t chunks = mpt__cpu_chunks(w.count, MPT__CHUNK);
    mpt__parallel(call->pool, chunks, mpt__cpu_cost(call, w.count, 4.0), mpt__cpu_fp8_chunk, &w);
    for (int64_t i = 0; i < chunks && watched; i++)
        if (w.most[i] > state[MPT__FP8_AMAX]) state[MPT__FP8_AMAX] = w.most[i];
}

static void mpt__cpu_fp8_update(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const int64_t width = launch->operand[0].shape[1];
    if (!mpt__gate_open(call, 0)) return;
    for (int64_t row = 0; row < launch->operand[0].shape[0]; row++)
        mpt__fp8_ends_step((float *)call->data[0] + row * width, width, row, launch->index[0] != 0,
            (int)launch->index[1]);
}
#endif

#endif
