/* ------------------------
 * cpu/template/update.c: the updates of optimizers: whole vectors first, with nothing to decide in
 * the loop, then the rest.
 * ---------------------- */
#ifdef MPT__V

MPT__OP void MPT__LEVEL(sgd_part)(const mpt__cpu_update *w, float *p, const float *g, float *m,
                                  float *v, void *half, int64_t n, bool whole) {
    const int dtype = w->param.dtype;
    const v_f multiplier = v_set(w->multiplier), decay = v_set(w->decay);
    const v_f momentum = v_set(w->momentum), keep = v_set(w->keep);
    const v_f lr = v_set(w->lr);
    const bool decays = w->decay != 0, first = w->step == 0, nesterov = w->nesterov;
    (void)v;
    for (int64_t i = 0; i < n; i += MPT__WIDTH) {
        const int64_t left = whole ? MPT__WIDTH : n - i;
        v_f weight = v_load_as(p + i, left, MPT_F32);
        v_f step = v_mul(v_load_as(g + i, left, MPT_F32), multiplier);
        if (decays) step = v_add(step, v_mul(decay, weight));
        if (m != NULL) {
            v_f moment = step;
            if (!first) {
                moment = v_mul(momentum, v_load_as(m + i, left, MPT_F32));
                moment = v_add(moment, v_mul(keep, step));
            }
            v_store_as(m + i, moment, left, MPT_F32);
            step = nesterov ? v_add(step, v_mul(momentum, moment)) : moment;
        }
        weight = v_sub(weight, v_mul(lr, step));
        v_store_as(p + i, weight, left, MPT_F32);
        if (half != NULL) v_store_as((uint16_t *)half + i, weight, left, dtype);
    }
}
MPT__OP void MPT__LEVEL(adam_part)(const mpt__cpu_update *w, float *p, const float *g, float *m,
                                   float *v, void *half, int64_t n, bool whole) {
    const int dtype = w->param.dtype;
    const v_f multiplier = v_set(w->multiplier), decay = v_set(w->decay);
    const v_f beta1 = v_set(w->beta1), rest1 = v_set(w->rest1);
    const v_f beta2 = v_set(w->beta2), rest2 = v_set(w->rest2);
    const v_f eps = v_set(w->eps), size = v_set(w->step_size);
    const v_f root = v_set(w->root_factor), shrink = v_set(w->shrink);
    const bool decoupled = w->decoupled, decays = !decoupled && w->decay != 0;
    for (int64_t i = 0; i < n; i += MPT__WIDTH) {
        const int64_t left = whole ? MPT__WIDTH : n - i;
        v_f weight = v_load_as(p + i, left, MPT_F32);
        v_f gradient = v_mul(v_load_as(g + i, left, MPT_F32), multiplier);
        if (decoupled) weight = v_sub(weight, v_mul(shrink, weight));
        if (decays) gradient = v_add(gradient, v_mul(decay, weight));
        v_f m1 = v_mul(beta1, v_load_as(m + i, left, MPT_F32));
        v_f v1 = v_mul(beta2, v_load_as(v + i, left, MPT_F32));
        m1 = v_add(m1, v_mul(rest1, gradient));
        v1 = v_add(v1, v_mul(v_mul(rest2, gradient), gradient));
        v_f below = v_add(v_mul(v_sqrt(v1), root), eps);
        weight = v_sub(weight, v_div(v_mul(size, m1), below));
        v_store_as(m + i, m1, left, MPT_F32);
        v_store_as(v + i, v1, left, MPT_F32);
        v_store_as(p + i, weight, left, MPT_F32);
        if (half != NULL) v_store_as((uint16_t *)half + i, weight, left, dtype);
    }
}

/* The rest begins at `at`; halves are at `half`, or follow in a pass of their own. */
MPT__OP void MPT__LEVEL(update)(const mpt__cpu_update *w, float *p, const float *g, float *m,
                                float *v, void *half, int64_t n,
                                void part(const mpt__cpu_update *, float *, const float *, float *,
                                          float *, void *, int64_t, bool)) {
    const int64_t rest = n % MPT__WIDTH, at = n - rest;
    part(w, p, g, m, v, half, at, true);
    if (rest > 0) {
        void *last = half != NULL ? (uint16_t *)half + at : NULL;
        part(w, p + at, g + at, m != NULL ? m + at : m, v != NULL ? v + at : v, last, rest, false);
    }
}
MPT__FN void MPT__LEVEL(sgd)(const mpt__cpu_update *w, float *p, const float *g, float *m, float *v,
                             void *half, int64_t n) {
    MPT__LEVEL(update)(w, p, g, m, v, half, n, MPT__LEVEL(sgd_part));
}
/* Rounding to bf16 in the many instructions of 8 lanes would crowd out the roots and quotients;
   measured. */
MPT__FN void MPT__LEVEL(adam)(const mpt__cpu_update *w, float *p, const float *g, float *m,
                              float *v, void *half, int64_t n) {
    const bool apart = MPT__WIDTH == 8 && w->param.dtype == MPT_BF16;
    MPT__LEVEL(update)(w, p, g, m, v, apart ? NULL : half, n, MPT__LEVEL(adam_part));
    if (apart && half != NULL)
        w->param.routines->convert->f32_to_bf16(p, (uint16_t *)half, (size_t)n);
}

#endif
