/* ----
 * cpu/template/update.c: the updates of optimizers: whole vectors first, with nothing to decide in
 * the loop, then the rest.
 * ---- */
#ifdef MPT__V
#include "waist/updates.inl"

MPT__OP v_rates MPT__LEVEL(rates)(const mpt__pace *pace) {
    v_rates r;
    r.lr = v_set((mpt__real)pace->lr), r.decay = v_set((mpt__real)pace->decay);
    r.shrink = v_set((mpt__real)pace->shrink), r.eps = v_set((mpt__real)pace->eps);
    r.keep1 = v_set((mpt__real)pace->keep1), r.add1 = v_set((mpt__real)pace->add1);
    r.keep2 = v_set((mpt__real)pace->keep2), r.add2 = v_set((mpt__real)pace->add2);
    r.root = v_set((mpt__real)pace->root), r.fresh = pace->fresh;
    return r;
}

/* By `update`, a function of waist/updates.inl. `whole`: n is a multiple of the width; `first`,
   `second`, `third`: which moments there are; `simple`: no decay is decoupled. */
MPT__OP void MPT__LEVEL(update)(const mpt__cpu_update *w, mpt__real *p, const mpt__real *g,
    mpt__real *const *m, void *half, int64_t n, bool whole, bool first, bool second, bool third,
    bool simple, v_f update(const mpt__law *, const v_rates *, v_f, v_f, v_f *, v_f *, v_f *)) {
    const int dtype = w->param.dtype;
    mpt__law law = w->law;
    const v_rates r = MPT__LEVEL(rates)(&w->pace);
    const v_f multiplier = v_set(w->multiplier);
    mpt__real *const ma = m[0], *const mb = m[1], *const mc = m[2]; /* no store changes these */
    v_f a = v_zero(), b = v_zero(), c = v_zero();
    law.moment[0] = first, law.moment[1] = second, law.moment[2] = third;
    law.decoupled = law.decoupled && !simple;
    for (int64_t i = 0; i < n; i += MPT__WIDTH) {
        const int64_t left = whole || n - i > MPT__WIDTH ? MPT__WIDTH : n - i;
        v_f weight = v_load_as(p + i, left, MPT_F32);
        v_f gradient = v_mul(v_load_as(g + i, left, MPT_F32), multiplier);
        if (first) a = v_load_as(ma + i, left, MPT_F32);
        if (second) b = v_load_as(mb + i, left, MPT_F32);
        if (third) c = v_load_as(mc + i, left, MPT_F32);
        weight = update(&law, &r, weight, gradient, &a, &b, &c);
        if (first) v_store_as(ma + i, a, left, MPT_F32);
        if (second) v_store_as(mb + i, b, left, MPT_F32);
        if (third) v_store_as(mc + i, c, left, MPT_F32);
        v_store_as(p + i, weight, left, MPT_F32);
        if (half != NULL) v_store_as((uint16_t *)half + i, weight, left, dtype);
    }
}

/* Those that are not worth a loop of their own, and what is less than a vector. The wide level
   takes that of the level below, which has the same bits. */
#if MPT__WIDTH < 16
#define MPT__ANY_UPDATE MPT__LEVEL(any_update)
MPT__FN void MPT__LEVEL(any_update)(MPT__BLOCK_TAKES) {
    MPT__LEVEL(update)(w, p, g, m, MPT__WIDTH > 1 ? half : NULL, n, false, m[0] != NULL,
                       m[1] != NULL, m[2] != NULL, false, v_updated);
    if (MPT__WIDTH == 1 && half != NULL) mpt__store_real(half, w->param.dtype, 0, 1, p, n);
}
#define MPT__MOMENTS MPT__ANY_UPDATE
#else
#define MPT__ANY_UPDATE MPT__BELOW(any_update)
#define MPT__MOMENTS MPT__LEVEL(moments)
#endif

/* The rest of a block, from `at` on, which is less than a vector. */
MPT__FN void MPT__LEVEL(update_rest)(const mpt__cpu_update *w, mpt__real *p, const mpt__real *g,
    mpt__real *const *m, void *half, int64_t at, int64_t n) {
    mpt__real *rest[3];
    for (int k = 0; k < 3; k++) rest[k] = m[k] != NULL ? m[k] + at : NULL;
    if (half != NULL) half = (uint16_t *)half + at;
    if (at < n) MPT__ANY_UPDATE(w, p + at, g + at, rest, half, n - at);
}
MPT__FN void MPT__LEVEL(sgd)(MPT__BLOCK_TAKES) {
    const int64_t at = n - n % MPT__WIDTH;
    void *along = MPT__WIDTH > 1 ? half : NULL;
    if (m[0] != NULL)
        MPT__LEVEL(update)(w, p, g, m, along, at, true, true, false, false, true, v_sgd);
    else
        MPT__LEVEL(update)(w, p, g, m, along, at, true, false, false, false, true, v_sgd);
    MPT__LEVEL(update_rest)(w, p, g, m, along, at, n);
    if (MPT__WIDTH == 1 && half != NULL) mpt__store_real(half, w->param.dtype, 0, 1, p, n);
}
#if MPT__WIDTH == 16
MPT__OP v_f MPT__LEVEL(plain_rmsprop)(MPT__WEIGHT_TAKES) {
    g = v_decayed(law, r, &p, g);
    return MPT__V(rmsprop)(law, r, p, g, a, b, c);
}
/* Plain RMSprop waits for roots and quotients, and some CPUs do 16 in the time of 8; the others are
   too seldom for more code. */
MPT__FN void MPT__LEVEL(moments)(MPT__BLOCK_TAKES) {
    const bool plain = w->law.function == MPT__FN_RMSPROP && m[1] == NULL && m[2] == NULL;
    const int64_t at = plain ? n - n % MPT__WIDTH : 0;
    MPT__LEVEL(update)
    (w, p, g, m, half, at, true, true, false, false, false, MPT__LEVEL(plain_rmsprop));
    MPT__LEVEL(update_rest)(w, p, g, m, half, at, n);
}
#endif
/* Rounding to bf16 in the many instructions of 8 lanes would crowd out the roots and quotients;
   measured. */
MPT__FN void MPT__LEVEL(adam)(MPT__BLOCK_TAKES) {
    const int64_t at = n - n % MPT__WIDTH;
    const bool apart = MPT__WIDTH == 1 || (MPT__WIDTH == 8 && w->param.dtype == MPT_BF16);
    void *along = apart ? NULL : half;
    MPT__LEVEL(update)(w, p, g, m, along, at, true, true, true, false, false, v_adam);
    MPT__LEVEL(update_rest)(w, p, g, m, along, at, n);
    if (apart && half != NULL) {
#if MPT__WIDTH == 8
        w->param.routines->convert->f32_to_bf16(p, (uint16_t *)half, (size_t)n);
#else
        mpt__store_real(half, w->param.dtype, 0, 1, p, n);
#endif
    }
}

#endif
