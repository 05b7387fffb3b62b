/* ----
 * waist/functions.inl: words that are made of others, the same for every backend and width.
 * ---- */
#ifdef MPT__V

/* larger gives its second argument for NaN and for zeros; + 0 makes -0 a 0. */
MPT__OP v_f v_relu(v_f a) { return v_add(v_larger(v_zero(), a), v_zero()); }
/* d where y is not <= 0: the slope of relu by its output. */
MPT__OP v_f v_gate(v_f y, v_f d) {
    v_f kept = v_select(v_is_nan(y), d, v_zero());
    return v_select(v_greater(y, v_zero()), d, kept);
}
MPT__OP v_f v_max_nan(v_f a, v_f b) { return v_select(v_is_nan(a), a, v_larger(a, b)); }
/* a >= b ? 1 : 0 */
MPT__OP v_f v_at_least(v_f a, v_f b) {
    v_f one = v_set(1);
    return v_select(v_greater(a, b), one, v_select(v_equal(a, b), one, v_zero()));
}
MPT__OP v_f v_gelu(v_f a) { return v_mul(a, v_normal(a)); }
MPT__OP v_f v_gelu_slope(v_f a) {
    v_f e = v_exp(v_mul(v_mul(v_set(-0.5f), a), a));
    return v_add(v_normal(a), v_mul(v_mul(a, v_set(MPT__NORMAL_PEAK)), e));
}
/* (1 + tanh(y)) / 2 by the sigmoid of 2 y, which is faster, and loses nothing below 0. */
MPT__OP v_f v_gelu_share(v_f a) {
    v_f cube = v_mul(v_mul(v_mul(v_set(MPT__GELU_CUBE), a), a), a);
    return v_sigmoid(v_mul(v_set(2 * MPT__SQRT_2_BY_PI), v_add(a, cube)));
}
MPT__OP v_f v_gelu_tanh(v_f a) { return v_mul(a, v_gelu_share(a)); }
/* Where the share is 0 or 1 nothing is left for the second factor, which may be infinite there. */
MPT__OP v_f v_gelu_tanh_slope(v_f a) {
    v_f share = v_gelu_share(a), one = v_set(1);
    v_f rest = v_mul(share, v_sub(one, share));
    v_f factor = v_mul(v_mul(v_set(3 * MPT__GELU_CUBE), a), a);
    v_f more = v_mul(v_mul(a, rest), v_set(2 * MPT__SQRT_2_BY_PI));
    more = v_mul(more, v_add(one, factor));
    return v_select(v_equal(rest, v_zero()), share, v_add(share, more));
}
MPT__OP v_f v_silu_slope(v_f a) {
    v_f s = v_sigmoid(a), one = v_set(1);
    return v_mul(s, v_add(one, v_mul(a, v_sub(one, s))));
}

#ifndef MPTRAIN_NO_RECURRENT
/* ==== Recurrent cells ====
 *
 * a: what x gives to the gates, which become the gates; backward: the gates, which become the
 * slopes by what x and state gave. What they return is h, or the slope by the state before. */

/* i f g o; *c: before, then after. */
MPT__OP v_f v_lstm(v_f *a, v_f *c) {
    a[0] = v_sigmoid(a[0]), a[1] = v_sigmoid(a[1]);
    a[2] = v_tanh(a[2]), a[3] = v_sigmoid(a[3]);
    *c = v_add(v_mul(a[1], *c), v_mul(a[0], a[2]));
    return v_mul(a[3], v_tanh(*c));
}
/* dh and dc: slopes by h and by c after; returns that by c before. */
MPT__OP v_f v_lstm_slopes(v_f *a, v_f before, v_f after, v_f dh, v_f dc) {
    v_f one = v_set(1), i = a[0], f = a[1], g = a[2], o = a[3], t = v_tanh(after);
    v_f slope = v_add(dc, v_mul(v_mul(dh, o), v_sub(one, v_mul(t, t))));
    a[0] = v_mul(v_mul(slope, g), v_mul(i, v_sub(one, i)));
    a[1] = v_mul(v_mul(slope, before), v_mul(f, v_sub(one, f)));
    a[2] = v_mul(v_mul(slope, i), v_sub(one, v_mul(g, g)));
    a[3] = v_mul(v_mul(dh, t), v_mul(o, v_sub(one, o)));
    return v_mul(slope, f);
}
/* r z n; p: the third part of what h gives. */
MPT__OP v_f v_gru(v_f *a, v_f p, v_f h) {
    a[0] = v_sigmoid(a[0]), a[1] = v_sigmoid(a[1]);
    a[2] = v_tanh(v_add(a[2], v_mul(a[0], p)));
    return v_add(a[2], v_mul(a[1], v_sub(h, a[2])));
}
/* *p becomes the slope by it; returns what reaches h straight. */
MPT__OP v_f v_gru_slopes(v_f *a, v_f *p, v_f h, v_f dh) {
    v_f one = v_set(1), r = a[0], z = a[1], n = a[2];
    a[2] = v_mul(v_mul(dh, v_sub(one, z)), v_sub(one, v_mul(n, n)));
    a[1] = v_mul(v_mul(dh, v_sub(h, n)), v_mul(z, v_sub(one, z)));
    a[0] = v_mul(v_mul(a[2], *p), v_mul(r, v_sub(one, r)));
    *p = v_mul(a[2], r);
    return v_mul(dh, z);
}
#endif

#endif
