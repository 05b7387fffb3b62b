/* ------------------------
 * waist/functions.inl: words that are made of others, the same for every backend and width.
 * ---------------------- */
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
MPT__OP v_f v_gelu_inner(v_f a) {
    v_f cube = v_mul(v_mul(v_mul(v_set(MPT__GELU_CUBE), a), a), a);
    return v_mul(v_set(MPT__SQRT_2_BY_PI), v_add(a, cube));
}
MPT__OP v_f v_gelu(v_f a) {
    v_f erf = v_erf(v_mul(a, v_set(MPT__SQRT_HALF)));
    return v_mul(v_mul(v_set(0.5f), a), v_add(v_set(1), erf));
}
MPT__OP v_f v_gelu_tanh(v_f a) {
    v_f t = v_tanh(v_gelu_inner(a));
    return v_mul(v_mul(v_set(0.5f), a), v_add(v_set(1), t));
}
MPT__OP v_f v_gelu_slope(v_f a) {
    v_f erf = v_erf(v_mul(a, v_set(MPT__SQRT_HALF)));
    v_f below = v_mul(v_set(0.5f), v_add(v_set(1), erf));
    v_f e = v_exp(v_mul(v_mul(v_set(-0.5f), a), a));
    return v_add(below, v_mul(v_mul(a, v_set(MPT__NORMAL_PEAK)), e));
}
/* Where tanh is 1 nothing is left for the second factor, which may be infinite there. */
MPT__OP v_f v_gelu_tanh_slope(v_f a) {
    v_f t = v_tanh(v_gelu_inner(a)), one = v_set(1);
    v_f rest = v_sub(one, v_mul(t, t));
    v_f slope = v_mul(v_set(0.5f), v_add(one, t));
    v_f factor = v_mul(v_mul(v_set(3 * MPT__GELU_CUBE), a), a);
    v_f more = v_mul(v_mul(v_set(0.5f), a), rest);
    more = v_mul(v_mul(more, v_set(MPT__SQRT_2_BY_PI)), v_add(one, factor));
    return v_select(v_equal(rest, v_zero()), slope, v_add(slope, more));
}
MPT__OP v_f v_silu_slope(v_f a) {
    v_f s = v_sigmoid(a), one = v_set(1);
    return v_mul(s, v_add(one, v_mul(a, v_sub(one, s))));
}

#endif
