/* ----
 * waist/updates.inl: what optimizers do to a weight, or to a vector of them, in vocabulary words:
 * each a function that gets the weight p, its gradient g and its moments a, b, c, and gives the new
 * weight. What the words of mpt__law and mpt__pace mean is said in waist/arithmetic.inl.
 * ---- */
#ifdef MPT__V

/* An mpt__pace in the type of the words. */
typedef struct MPT__V(rates) {
    v_f lr, decay, shrink, keep1, add1, keep2, add2, eps, root;
    bool fresh;
} v_rates;

#define MPT__WEIGHT_TAKES \
    const mpt__law *law, const v_rates *r, v_f p, v_f g, v_f *a, v_f *b, v_f *c

/* The decay comes off the weight, or to the gradient, which is the result. */
MPT__OP v_f v_decayed(const mpt__law *law, const v_rates *r, v_f *p, v_f g) {
    if (law->decoupled)
        *p = v_sub(*p, v_mul(r->shrink, *p));
    else if (law->decays)
        g = v_add(g, v_mul(r->decay, *p));
    return g;
}
/* Means: of x, and of its squares. */
MPT__OP v_f v_follow(v_f keep, v_f mean, v_f add, v_f x) {
    return v_add(v_mul(keep, mean), v_mul(add, x));
}
MPT__OP v_f v_follow_squares(v_f keep, v_f mean, v_f add, v_f x) {
    return v_add(v_mul(keep, mean), v_mul(v_mul(add, x), x));
}

/* m = momentum m + (1 - dampening) g, at first g; p -= lr m, or, with Nesterov,
   p -= lr (g + momentum m). */
MPT__OP v_f v_sgd(MPT__WEIGHT_TAKES) {
    g = v_decayed(law, r, &p, g);
    (void)b, (void)c;
    if (law->moment[0]) {
        *a = r->fresh ? g : v_follow(r->keep1, *a, r->add1, g);
        g = law->nesterov ? v_add(g, v_mul(r->keep1, *a)) : *a;
    }
    return v_sub(p, v_mul(r->lr, g));
}

/* PyTorch's fused form: p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps), but with 1 / sqrt(c2) as a
   factor: divisions and roots are what an update waits for. */
MPT__OP v_f v_adam(MPT__WEIGHT_TAKES) {
    g = v_decayed(law, r, &p, g);
    (void)c;
    *a = v_follow(r->keep1, *a, r->add1, g);
    *b = v_follow_squares(r->keep2, *b, r->add2, g);
    v_f below = v_add(v_mul(v_sqrt(*b), r->root), r->eps);
    return v_sub(p, v_div(v_mul(r->lr, *a), below));
}

/* The functions of MOMENTS, whose decay is done already. Adam with the largest v so far, not
   corrected for bias, in place of v. */
MPT__OP v_f MPT__V(amsgrad)(MPT__WEIGHT_TAKES) {
    (void)law;
    *a = v_follow(r->keep1, *a, r->add1, g);
    *b = v_follow_squares(r->keep2, *b, r->add2, g);
    *c = v_max_nan(*c, *b);
    v_f below = v_add(v_mul(v_sqrt(*c), r->root), r->eps);
    return v_sub(p, v_div(v_mul(r->lr, *a), below));
}

/* v and, centred, the mean c follow; p -= lr b with b = momentum b + g / (sqrt(v - c^2) + eps).
   Rounding may leave v - c^2 below 0, which counts as 0. */
MPT__OP v_f MPT__V(rmsprop)(MPT__WEIGHT_TAKES) {
    v_f square = *a = v_follow_squares(r->keep2, *a, r->add2, g);
    if (law->moment[2]) {
        *c = v_follow(r->keep2, *c, r->add2, g);
        square = v_relu(v_sub(square, v_mul(*c, *c)));
    }
    v_f below = v_add(v_sqrt(square), r->eps);
    if (!law->moment[1]) return v_sub(p, v_div(v_mul(r->lr, g), below));
    *b = v_add(v_mul(r->keep1, *b), v_div(g, below));
    return v_sub(p, v_mul(r->lr, *b));
}

/* s += g^2; p -= lr / (1 + steps lr_decay) g / (sqrt(s) + eps) */
MPT__OP v_f MPT__V(adagrad)(MPT__WEIGHT_TAKES) {
    (void)law, (void)b, (void)c;
    *a = v_add(*a, v_mul(g, g));
    return v_sub(p, v_div(v_mul(r->lr, g), v_add(v_sqrt(*a), r->eps)));
}

/* d = sqrt(u + eps) / sqrt(v + eps) g with v the mean of g^2, u that of d^2; p -= lr d */
MPT__OP v_f MPT__V(adadelta)(MPT__WEIGHT_TAKES) {
    (void)law, (void)c;
    *a = v_follow_squares(r->keep1, *a, r->add1, g);
    g = v_mul(g, v_div(v_sqrt(v_add(*b, r->eps)), v_sqrt(v_add(*a, r->eps))));
    *b = v_follow_squares(r->keep1, *b, r->add1, g);
    return v_sub(p, v_mul(r->lr, g));
}

/* p -= lr sign(beta1 m + (1 - beta1) g), then m = beta2 m + (1 - beta2) g. */
MPT__OP v_f MPT__V(lion)(MPT__WEIGHT_TAKES) {
    v_f way = v_follow(r->keep1, *a, r->add1, g);
    (void)law, (void)b, (void)c;
    way = v_select(v_greater(way, v_zero()), v_set(1), way);
    way = v_select(v_greater(v_zero(), way), v_set(-1), way);
    *a = v_follow(r->keep2, *a, r->add2, g);
    return v_sub(p, v_mul(r->lr, way));
}

/* Any of them. */
MPT__OP v_f v_updated(MPT__WEIGHT_TAKES) {
    switch (law->function) {
    case MPT__FN_NONE:
        return law->corrects ? v_adam(law, r, p, g, a, b, c) : v_sgd(law, r, p, g, a, b, c);
#define MPT__ROW(id, name, ns, eps, decay, ways) \
    case MPT__FN_##id: \
        g = v_decayed(law, r, &p, g); \
        return MPT__V(name)(law, r, p, g, a, b, c);
        MPT__UPDATES(MPT__ROW)
#undef MPT__ROW
    default:
        return p;
    }
}

#endif
