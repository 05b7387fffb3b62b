/* ----
 * waist/functions.h: every elementwise function of UNARY and BINARY, once. From this list come
 * mpt__function (waist/launch.h), the tables of the CPU's levels, and the switch of CUDA.
 *
 * E(ID, nanoseconds, value) or S(..): a is the element, b the second one, c and d are the constants
 * of the launch. A value is written in the words of cpu/vocabulary.h, which each backend gives for
 * its own numbers; waist/functions.inl makes some more of them. S: what the CPU computes one by one
 * on every level, since it has no vector of it. Nanoseconds are those of the reference level.
 * ---- */
#ifndef MPT__WAIST_FUNCTIONS_INCLUDED
#define MPT__WAIST_FUNCTIONS_INCLUDED

#define MPT__TRUTH(m) v_select(m, v_set(1), v_zero())

#define MPT__UNARY_FUNCTIONS(E, S) \
    E(NEG, 2, v_negate(a)) \
    E(EXP, 8, v_exp(a)) \
    E(LOG, 10, v_log(a)) \
    E(SQRT, 6, v_sqrt(a)) \
    E(RELU, 2, v_relu(a)) \
    E(GELU, 15, v_gelu(a)) \
    E(GELU_TANH, 15, v_gelu_tanh(a)) \
    E(TANH, 12, v_tanh(a)) \
    E(SIGMOID, 10, v_sigmoid(a)) \
    E(ADD_SCALAR, 2, v_add(a, v_set(c))) \
    E(MUL_SCALAR, 2, v_mul(a, v_set(c))) \
    E(MUL_SLOT, 2, v_mul(a, v_set(c))) /* c: the device scalar slot[0] */ \
    E(ISNAN, 2, MPT__TRUTH(v_is_nan(a))) \
    E(ISINF, 2, MPT__TRUTH(v_is_inf(a))) \
    E(NOT, 2, MPT__TRUTH(v_equal(a, v_zero()))) \
    S(LOG1P, 25, v_log1p(a)) \
    E(RSQRT, 8, v_div(v_set(1), v_sqrt(a))) \
    E(ABS, 2, v_abs(a)) \
    S(SIGN, 2, v_sign(a)) \
    S(SIN, 25, v_sin(a)) \
    S(COS, 25, v_cos(a)) \
    E(CLAMP, 2, v_smaller(v_set(d), v_larger(v_set(c), a))) \
    S(POW_SCALAR, 50, v_pow(a, v_set(c))) \
    E(LEAKY_RELU, 2, v_select(v_greater(a, v_zero()), a, v_mul(a, v_set(c)))) \
    S(ELU, 20, v_select(v_greater(a, v_zero()), a, v_mul(v_set(c), v_expm1(a)))) \
    E(SILU, 12, v_mul(a, v_sigmoid(a))) \
    S(SOFTPLUS, 45, v_softplus(a, v_set(c), v_set(d))) \
    S(FINITE, 2, v_select(v_is_inf(a), v_zero(), a)) \
    S(ONE_FOR_ZERO, 2, v_select(v_equal(a, v_zero()), v_set(1), a))

/* Results of EQUAL to OR are bool. In the slopes of RELU, TANH, SIGMOID, SQRT and RSQRT a is the
   saved output, in the others the input. KEEP and DROP: adding -0 changes nothing. */
#define MPT__BINARY_FUNCTIONS(E, S) \
    E(ADD, 2, v_add(a, b)) \
    E(SUB, 2, v_sub(a, b)) \
    E(MUL, 2, v_mul(a, b)) \
    E(DIV, 3, v_div(a, b)) \
    E(EQUAL, 2, MPT__TRUTH(v_equal(a, b))) \
    E(NOT_EQUAL, 2, v_select(v_equal(a, b), v_zero(), v_set(1))) \
    E(LESS, 2, MPT__TRUTH(v_greater(b, a))) \
    E(LESS_EQUAL, 2, v_at_least(b, a)) \
    E(GREATER, 2, MPT__TRUTH(v_greater(a, b))) \
    E(GREATER_EQUAL, 2, v_at_least(a, b)) \
    S(AND, 2, v_select(v_equal(a, v_zero()), v_zero(), \
                       v_select(v_equal(b, v_zero()), v_zero(), v_set(1)))) \
    S(OR, 2, v_select(v_equal(a, v_zero()), v_select(v_equal(b, v_zero()), v_zero(), v_set(1)), \
                      v_set(1))) \
    E(MINIMUM, 2, v_select(v_is_nan(a), a, v_smaller(a, b))) \
    E(MAXIMUM, 2, v_max_nan(a, b)) \
    S(POW, 50, v_pow(a, b)) \
    E(KEEP, 2, v_select(v_equal(a, v_zero()), v_set(-0.0f), v_mul(a, b))) \
    E(DROP, 2, v_select(v_equal(a, v_zero()), b, v_set(-0.0f))) \
    S(SHARE, 2, v_select(v_greater(b, a), v_zero(), \
                         v_select(v_equal(a, b), v_set(0.5f), v_set(1)))) \
    S(POW_SLOPE, 50, v_pow_slope(a, b)) /* of a^b by a, 0 for b = 0 */ \
    S(POW_EXPONENT, 70, v_pow_exponent(a, b)) /* of a^b by b, 0 for a = 0 <= b */ \
    E(RELU_BACKWARD, 2, v_gate(a, b)) \
    E(GELU_BACKWARD, 20, v_mul(b, v_gelu_slope(a))) \
    E(GELU_TANH_BACKWARD, 20, v_mul(b, v_gelu_tanh_slope(a))) \
    E(TANH_BACKWARD, 2, v_mul(b, v_sub(v_set(1), v_mul(a, a)))) \
    E(SIGMOID_BACKWARD, 2, v_mul(v_mul(b, a), v_sub(v_set(1), a))) \
    E(SQRT_BACKWARD, 3, v_div(b, v_mul(v_set(2), a))) \
    S(LOG1P_BACKWARD, 3, v_div(b, v_add(v_set(1), a))) \
    S(RSQRT_BACKWARD, 2, v_mul(v_mul(v_mul(v_mul(b, v_set(-0.5f)), a), a), a)) \
    S(ABS_BACKWARD, 2, v_mul(b, v_sign(a))) \
    S(SIN_BACKWARD, 25, v_mul(b, v_cos(a))) \
    S(COS_BACKWARD, 25, v_mul(v_negate(b), v_sin(a))) \
    E(CLAMP_BACKWARD, 2, v_select(v_greater(a, v_set(c)), \
                                  v_select(v_greater(v_set(d), a), b, v_zero()), v_zero())) \
    S(HARDTANH_BACKWARD, 2, \
      v_select(v_greater(v_at_least(v_set(c), a), v_zero()), v_zero(), \
               v_select(v_greater(v_at_least(a, v_set(d)), v_zero()), v_zero(), b))) \
    S(POW_SCALAR_BACKWARD, 50, v_mul(b, v_pow_slope(a, v_set(c)))) \
    E(LEAKY_RELU_BACKWARD, 2, v_select(v_greater(a, v_zero()), b, v_mul(b, v_set(c)))) \
    S(ELU_BACKWARD, 10, v_select(v_greater(a, v_zero()), b, v_mul(v_mul(b, v_set(c)), v_exp(a)))) \
    E(SILU_BACKWARD, 12, v_mul(b, v_silu_slope(a))) \
    S(SOFTPLUS_BACKWARD, 12, v_select(v_greater(v_mul(a, v_set(c)), v_set(d)), b, \
                                      v_mul(b, v_sigmoid(v_mul(a, v_set(c)))))) \
    S(RATIO, 3, v_select(v_equal(a, v_zero()), v_zero(), v_div(b, a))) \
    E(SQUARED_DIFFERENCE, 2, v_mul(v_sub(a, b), v_sub(a, b))) \
    E(EXP_DIFFERENCE, 9, v_exp(v_sub(a, b))) \
    /* b zeros in a product */ \
    S(PROD_SHARE, 4, \
      v_select(v_equal(b, v_zero()), v_div(v_set(1), a), \
               v_select(v_equal(b, v_set(1)), MPT__TRUTH(v_equal(a, v_zero())), v_zero())))

/* The updates of MOMENTS: U(ID, formula of waist/updates.inl, ns, eps, decay, ways). imm has the
   settings of the optimizer's rule in their order, three at most, and weight decay behind them: eps
   and decay are places there, -1 if there is no eps. Ways are any of the three, added up. What the
   settings and moments are:
     AMSGRAD   those of ADAM; and its largest v
     RMSPROP   momentum, alpha, eps, decay; v, momentum?, mean? (there where centred)
     ADAGRAD   lr_decay, eps, decay; the sum
     ADADELTA  rho, eps, decay; the means of g^2 and of steps^2
     LION      beta1, beta2, decay (decoupled); m */
enum { MPT__CORRECTS = 1, MPT__DECOUPLES = 2, MPT__SLOWS = 4 }; /* as mpt__law has them */
#define MPT__UPDATES(U) \
    U(AMSGRAD, amsgrad, 30, 2, 3, MPT__CORRECTS) \
    U(RMSPROP, rmsprop, 25, 2, 3, 0) \
    U(ADAGRAD, adagrad, 18, 1, 2, MPT__SLOWS) \
    U(ADADELTA, adadelta, 28, 1, 2, 0) \
    U(LION, lion, 20, -1, 2, MPT__DECOUPLES)

#endif
