/* ---------------------------------------------------------------------------------------------
 * cpu/template/words.c: the words of a vector level (mpt__words, cpu/elementwise.c) for any ISA:
 * macros that make them from a vocabulary, that of ground/math.c and the vector layer of
 * cpu/level/avx2.c, cpu/level/avx512.c or cpu/level/neon.c.
 *
 * Every word does the operations of its reference in the same order, and sums have the same tree:
 * the bits are those of the reference (NaN: as a class). The optimizers alone flush denormals to
 * zero, as moments that fade away would make them slow.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__CPU_TEMPLATE_WORDS_INCLUDED
#define MPT__CPU_TEMPLATE_WORDS_INCLUDED

#include "cpu/optimizer.c"

/* Vector kernels are in the build: a CPU that has them, and mpt__real is float. */
#define MPT__JOIN_TOKENS(a, b) a##b
#define MPT__JOIN(a, b) MPT__JOIN_TOKENS(a, b)
#define MPT__REAL_IS_float 1
#if !defined(MPTRAIN_NO_SIMD) && MPT__JOIN(MPT__REAL_IS_, MPT__REAL)
#if defined(MPT__X86)
#define MPT__SIMD_X86 1
#define MPT__SIMD 1
#elif defined(MPT__ARM64)
#define MPT__SIMD_NEON 1
#define MPT__SIMD 1
#endif
#endif

#ifdef MPT__SIMD

/* ==== The functions of a level ==== */

/* As MPT__REF_UNARY and MPT__REF_BINARY, R(ID, value), in the words of vocabulary V. F(name) is a
   function of ground/math.c. P(ID): the reference does it. */
#define MPT__SIMD_UNARY(R, P, FN, N, V, W, F) \
    R(NEG, V##_float(V##_iadd(V##_bits(a), V##_iset(MPT__SIGN_BIT))), FN, N, V, W) \
    R(EXP, F(exp)(a), FN, N, V, W) \
    R(LOG, F(log)(a), FN, N, V, W) \
    R(SQRT, V##_sqrt(a), FN, N, V, W) \
    R(RELU, V##_relu(a), FN, N, V, W) \
    R(GELU, V##_gelu(a), FN, N, V, W) \
    R(GELU_TANH, V##_gelu_tanh(a), FN, N, V, W) \
    R(TANH, F(tanh)(a), FN, N, V, W) \
    R(SIGMOID, F(sigmoid)(a), FN, N, V, W) \
    R(ADD_SCALAR, V##_add(a, V##_set(c)), FN, N, V, W) \
    R(MUL_SCALAR, V##_mul(a, V##_set(c)), FN, N, V, W) \
    R(MUL_SLOT, V##_mul(a, V##_set(c)), FN, N, V, W) \
    R(ISNAN, V##_select(V##_is_nan(a), V##_set(1.0f), V##_zero()), FN, N, V, W) \
    R(ISINF, \
      V##_select(V##_equal(V##_float(V##_iand(V##_bits(a), V##_iset(0x7fffffff))), \
                           V##_float(V##_iset(0x7f800000))), \
                 V##_set(1.0f), V##_zero()), \
      FN, N, V, W) \
    R(NOT, V##_select(V##_equal(a, V##_zero()), V##_set(1.0f), V##_zero()), FN, N, V, W) \
    P(LOG1P) \
    R(RSQRT, V##_div(V##_set(1.0f), V##_sqrt(a)), FN, N, V, W) \
    R(ABS, V##_float(V##_iand(V##_bits(a), V##_iset(0x7fffffff))), FN, N, V, W) \
    P(SIGN) \
    P(SIN) \
    P(COS) \
    R(CLAMP, V##_smaller(V##_set(d), V##_larger(V##_set(c), a)), FN, N, V, W) \
    P(POW_SCALAR) \
    R(LEAKY_RELU, V##_select(V##_greater(a, V##_zero()), a, V##_mul(a, V##_set(c))), FN, N, V, W) \
    P(ELU) \
    R(SILU, V##_mul(a, F(sigmoid)(a)), FN, N, V, W) \
    P(SOFTPLUS) \
    P(FINITE) \
    P(ONE_FOR_ZERO) \
    R(SPLAT, ((void)a, V##_set(c)), FN, N, V, W)

#define MPT__SIMD_BINARY(R, P, FN, N, V, W, F) \
    R(ADD, V##_add(a, b), FN, N, V, W) \
    R(SUB, V##_sub(a, b), FN, N, V, W) \
    R(MUL, V##_mul(a, b), FN, N, V, W) \
    R(DIV, V##_div(a, b), FN, N, V, W) \
    R(EQUAL, V##_select(V##_equal(a, b), V##_set(1.0f), V##_zero()), FN, N, V, W) \
    R(NOT_EQUAL, V##_select(V##_equal(a, b), V##_zero(), V##_set(1.0f)), FN, N, V, W) \
    R(LESS, V##_select(V##_greater(b, a), V##_set(1.0f), V##_zero()), FN, N, V, W) \
    R(LESS_EQUAL, V##_at_least(b, a), FN, N, V, W) \
    R(GREATER, V##_select(V##_greater(a, b), V##_set(1.0f), V##_zero()), FN, N, V, W) \
    R(GREATER_EQUAL, V##_at_least(a, b), FN, N, V, W) \
    P(AND) \
    P(OR) \
    R(MINIMUM, V##_select(V##_is_nan(a), a, V##_smaller(a, b)), FN, N, V, W) \
    R(MAXIMUM, V##_max_nan(a, b), FN, N, V, W) \
    P(POW) \
    R(KEEP, V##_select(V##_equal(a, V##_zero()), V##_set(-0.0f), V##_mul(a, b)), FN, N, V, W) \
    R(DROP, V##_select(V##_equal(a, V##_zero()), b, V##_set(-0.0f)), FN, N, V, W) \
    P(SHARE) \
    P(POW_SLOPE) \
    P(POW_EXPONENT) \
    R(RELU_BACKWARD, \
      V##_select(V##_greater(a, V##_zero()), b, V##_select(V##_is_nan(a), b, V##_zero())), FN, N, \
      V, W) \
    R(GELU_BACKWARD, V##_mul(b, V##_gelu_slope(a)), FN, N, V, W) \
    R(GELU_TANH_BACKWARD, V##_mul(b, V##_gelu_tanh_slope(a)), FN, N, V, W) \
    R(TANH_BACKWARD, V##_mul(b, V##_sub(V##_set(1.0f), V##_mul(a, a))), FN, N, V, W) \
    R(SIGMOID_BACKWARD, V##_mul(V##_mul(b, a), V##_sub(V##_set(1.0f), a)), FN, N, V, W) \
    R(SQRT_BACKWARD, V##_div(b, V##_mul(V##_set(2.0f), a)), FN, N, V, W) \
    P(LOG1P_BACKWARD) \
    P(RSQRT_BACKWARD) \
    P(ABS_BACKWARD) \
    P(SIN_BACKWARD) \
    P(COS_BACKWARD) \
    R(CLAMP_BACKWARD, \
      V##_select(V##_greater(a, V##_set(c)), \
                 V##_select(V##_greater(V##_set(d), a), b, V##_zero()), V##_zero()), \
      FN, N, V, W) \
    P(HARDTANH_BACKWARD) \
    P(POW_SCALAR_BACKWARD) \
    R(LEAKY_RELU_BACKWARD, V##_select(V##_greater(a, V##_zero()), b, V##_mul(b, V##_set(c))), FN, \
      N, V, W) \
    P(ELU_BACKWARD) \
    R(SILU_BACKWARD, V##_mul(b, V##_silu_slope(a)), FN, N, V, W) \
    P(SOFTPLUS_BACKWARD) \
    P(RATIO) \
    R(SQUARED_DIFFERENCE, V##_mul(V##_sub(a, b), V##_sub(a, b)), FN, N, V, W) \
    R(EXP_DIFFERENCE, F(exp)(V##_sub(a, b)), FN, N, V, W) \
    P(PROD_SHARE)

/* FN and OP: target and storage class of a function and of one to be inlined; N: prefix of what is
   made; V: vocabulary; W: its lanes; F: names of the functions of ground/math.c. */
#define MPT__SIMD_WORDS(OP, V, F) \
    /* larger gives its second argument for NaN and for zeros; + 0 makes -0 a 0 */ \
    OP V##_f V##_relu(V##_f a) { return V##_add(V##_larger(V##_zero(), a), V##_zero()); } \
    OP V##_f V##_exp(V##_f a) { return F(exp)(a); } \
    OP V##_f V##_gelu_inner(V##_f a) { \
        V##_f cube = V##_mul(V##_mul(V##_mul(V##_set(MPT__GELU_CUBE), a), a), a); \
        return V##_mul(V##_set(MPT__SQRT_2_BY_PI), V##_add(a, cube)); \
    } \
    OP V##_f V##_gelu(V##_f a) { \
        V##_f erf = F(erf)(V##_mul(a, V##_set(MPT__SQRT_HALF))); \
        return V##_mul(V##_mul(V##_set(0.5f), a), V##_add(V##_set(1.0f), erf)); \
    } \
    OP V##_f V##_gelu_tanh(V##_f a) { \
        V##_f t = F(tanh)(V##_gelu_inner(a)); \
        return V##_mul(V##_mul(V##_set(0.5f), a), V##_add(V##_set(1.0f), t)); \
    } \
    OP V##_f V##_gelu_slope(V##_f a) { \
        V##_f erf = F(erf)(V##_mul(a, V##_set(MPT__SQRT_HALF))); \
        V##_f below = V##_mul(V##_set(0.5f), V##_add(V##_set(1.0f), erf)); \
        V##_f e = F(exp)(V##_mul(V##_mul(V##_set(-0.5f), a), a)); \
        return V##_add(below, V##_mul(V##_mul(a, V##_set(MPT__NORMAL_PEAK)), e)); \
    } \
    OP V##_f V##_gelu_tanh_slope(V##_f a) { \
        V##_f t = F(tanh)(V##_gelu_inner(a)), one = V##_set(1.0f); \
        V##_f rest = V##_sub(one, V##_mul(t, t)); \
        V##_f slope = V##_mul(V##_set(0.5f), V##_add(one, t)); \
        V##_f factor = V##_mul(V##_mul(V##_set(3 * MPT__GELU_CUBE), a), a); \
        V##_f more = V##_mul(V##_mul(V##_set(0.5f), a), rest); \
        more = V##_mul(V##_mul(more, V##_set(MPT__SQRT_2_BY_PI)), V##_add(one, factor)); \
        return V##_select(V##_equal(rest, V##_zero()), slope, V##_add(slope, more)); \
    } \
    OP V##_f V##_max_nan(V##_f a, V##_f b) { \
        return V##_select(V##_is_nan(a), a, V##_larger(a, b)); \
    } \
    /* a >= b ? 1 : 0 */ \
    OP V##_f V##_at_least(V##_f a, V##_f b) { \
        V##_f one = V##_set(1.0f); \
        return V##_select(V##_greater(a, b), one, V##_select(V##_equal(a, b), one, V##_zero())); \
    } \
    OP V##_f V##_silu_slope(V##_f a) { \
        V##_f s = F(sigmoid)(a), one = V##_set(1.0f); \
        return V##_mul(s, V##_add(one, V##_mul(a, V##_sub(one, s)))); \
    }

/* out[i] = VALUE of a, from x, and (in 2) b, from y. */
#define MPT__SIMD_EACH1(V, W, VALUE) \
    int64_t i = 0; \
    for (; i + W <= n; i += W) { \
        V##_f a = V##_load(x + i); \
        V##_store(out + i, VALUE); \
    } \
    if (i < n) { \
        V##_f a = V##_load_as(x + i, n - i, MPT_F32); \
        V##_store_as(out + i, VALUE, n - i, MPT_F32); \
    }
#define MPT__SIMD_EACH2(V, W, VALUE) \
    int64_t i = 0; \
    for (; i + W <= n; i += W) { \
        V##_f a = V##_load(x + i), b = V##_load(y + i); \
        V##_store(out + i, VALUE); \
    } \
    if (i < n) { \
        V##_f a = V##_load_as(x + i, n - i, MPT_F32), b = V##_load_as(y + i, n - i, MPT_F32); \
        V##_store_as(out + i, VALUE, n - i, MPT_F32); \
    }

/* The functions of MPT__SIMD_UNARY and MPT__SIMD_BINARY, then the other words. */
#define MPT__SIMD_UNARY_ROW(id, value, FN, N, V, W) \
    FN void N##_unary_##id(float *out, const float *x, int64_t n, float c, float d) { \
        (void)c, (void)d; \
        MPT__SIMD_EACH1(V, W, value) \
    }
#define MPT__SIMD_BINARY_ROW(id, value, FN, N, V, W) \
    FN void N##_binary_##id(float *out, const float *x, const float *y, int64_t n, float c, \
                            float d) { \
        (void)c, (void)d; \
        MPT__SIMD_EACH2(V, W, value) \
    }

#define MPT__SIMD_PEAK(FN, N, V, W) \
    FN float N##_peak(const float *x, int64_t n, float start) { \
        if (n < W) return mpt__ref_peak(x, n, start); \
        V##_f top = V##_set(start); \
        for (int64_t i = 0; i + W <= n; i += W) top = V##_larger(V##_load(x + i), top); \
        return V##_peak(V##_larger(V##_load(x + n - W), top)); \
    }

/* In blocks of W rows and 4 columns, the last ones of a side reaching back over what is done; level
   REST takes what is narrower. The rows of one line of memory of `to` follow each other, so that a
   store beyond the caches fills it. */
#define MPT__SIMD_TRANSPOSE(FN, OP, N, V, W, REST) \
    OP void N##_turn(float *to, int64_t to_step, const float *from, int64_t from_step, \
                     int64_t rows, int64_t columns, void store(float *p, V##_f v)) { \
        for (int64_t line = 0; line < rows; line += 16) { \
            for (int64_t c = 0; c < columns; c += 4) { \
                for (int64_t r = line; r < rows && r < line + 16; r += W) { \
                    const int64_t i = mpt__ref_min(r, rows - W); \
                    const int64_t j = mpt__ref_min(c, columns - 4); \
                    const float *x = from + i * from_step + j; \
                    float *at = to + j * to_step + i; \
                    V##_f r0 = V##_load_quads(x, 4 * from_step); \
                    V##_f r1 = V##_load_quads(x + from_step, 4 * from_step); \
                    V##_f r2 = V##_load_quads(x + 2 * from_step, 4 * from_step); \
                    V##_f r3 = V##_load_quads(x + 3 * from_step, 4 * from_step); \
                    V##_transpose4(&r0, &r1, &r2, &r3); \
                    store(at, r0), store(at + to_step, r1); \
                    store(at + 2 * to_step, r2), store(at + 3 * to_step, r3); \
                } \
            } \
        } \
    } \
    FN void N##_transpose(float *to, int64_t to_step, const float *from, int64_t from_step, \
                          int64_t rows, int64_t columns, bool beyond_cache) { \
        if (rows < W || columns < 4) { \
            REST##_transpose(to, to_step, from, from_step, rows, columns, false); \
        } else if (beyond_cache) { \
            N##_turn(to, to_step, from, from_step, rows, columns, V##_stream); \
            V##_fence(); \
        } else { \
            N##_turn(to, to_step, from, from_step, rows, columns, V##_store); \
        } \
    }

/* X(k) for the vectors of W lanes that make MPT__SUM_LANES. */
#define MPT__SIMD_VECTORS_16(X, V) X(0, V, 16)
#define MPT__SIMD_VECTORS_8(X, V) X(0, V, 8) X(1, V, 8)
#define MPT__SIMD_VECTORS_4(X, V) X(0, V, 4) X(1, V, 4) X(2, V, 4) X(3, V, 4)

#define MPT__LANES_LOAD(k, V, W) V##_f s##k = V##_load(lane + k * W);
#define MPT__LANES_ADD(k, V, W) s##k = V##_add(s##k, V##_load(x + k * W));
#define MPT__LANES_MAX(k, V, W) s##k = V##_max_nan(s##k, V##_load(x + k * W));
#define MPT__LANES_STORE(k, V, W) V##_store(lane + k * W, s##k);
#define MPT__SIMD_LANES(FN, N, V, W, word, STEP) \
    FN void N##_##word##_lanes(float *lane, int64_t first, const float *x, int64_t n) { \
        const int64_t head = mpt__ref_min(n, (MPT__SUM_LANES - first % MPT__SUM_LANES) % 16); \
        mpt__ref_##word##_lanes(lane, first, x, head); \
        MPT__SIMD_VECTORS_##W(MPT__LANES_LOAD, V); \
        for (x += head, n -= head; n >= MPT__SUM_LANES; n -= MPT__SUM_LANES) { \
            MPT__SIMD_VECTORS_##W(STEP, V); \
            x += MPT__SUM_LANES; \
        } \
        MPT__SIMD_VECTORS_##W(MPT__LANES_STORE, V); \
        mpt__ref_##word##_lanes(lane, first + head, x, n); \
    }

/* Four i share what they load of w; those past the last one repeat it, for nobody. n >= W is known
   where it is so. */
#define MPT__PRODUCTS_LOAD(V, at) V##_load_as(at, n, MPT_F32)
#define MPT__PRODUCTS_OF_FOUR(V) \
    { \
        V##_f s0 = MPT__PRODUCTS_LOAD(V, start); \
        V##_f s1 = MPT__PRODUCTS_LOAD(V, start + i1 * p->start_step); \
        V##_f s2 = MPT__PRODUCTS_LOAD(V, start + i2 * p->start_step); \
        V##_f s3 = MPT__PRODUCTS_LOAD(V, start + i3 * p->start_step); \
        for (int64_t j = 0; j < p->depth; j++, w += p->w_step) { \
            const float *x = p->x[j] + i * p->x_step + c; \
            V##_f b = MPT__PRODUCTS_LOAD(V, w); \
            s0 = V##_fma(MPT__PRODUCTS_LOAD(V, x), b, s0); \
            s1 = V##_fma(MPT__PRODUCTS_LOAD(V, x + x1), b, s1); \
            s2 = V##_fma(MPT__PRODUCTS_LOAD(V, x + x2), b, s2); \
            s3 = V##_fma(MPT__PRODUCTS_LOAD(V, x + x3), b, s3); \
        } \
        V##_store_as(out, s0, n, MPT_F32); \
        if (i1 > 0) V##_store_as(out + i1 * p->out_step, s1, n, MPT_F32); \
        if (i2 > i1) V##_store_as(out + i2 * p->out_step, s2, n, MPT_F32); \
        if (i3 > i2) V##_store_as(out + i3 * p->out_step, s3, n, MPT_F32); \
    }
#ifdef MPTRAIN_NO_CONV
#define MPT__SIMD_SUM_PRODUCTS(FN, N, V, W)
#define MPT__SUM_PRODUCTS_OF(N) mpt__ref_sum_products
#else
#define MPT__SUM_PRODUCTS_OF(N) N##_sum_products
#define MPT__SIMD_SUM_PRODUCTS(FN, N, V, W) \
    FN void N##_sum_products(const mpt__product_sums *p) { \
        for (int64_t i = 0; i < p->count; i += 4) { \
            const int64_t last = p->count - i - 1, i1 = last > 0, i2 = last > 1 ? 2 : i1; \
            const int64_t i3 = last > 2 ? 3 : i2; \
            const int64_t x1 = i1 * p->x_step, x2 = i2 * p->x_step, x3 = i3 * p->x_step; \
            for (int64_t c = 0; c < p->n; c += W) { \
                const float *start = p->start + i * p->start_step + c, *w = p->w + c; \
                float *out = p->out + i * p->out_step + c; \
                int64_t n = W; \
                if (p->n - c >= W) MPT__PRODUCTS_OF_FOUR(V) else { \
                    n = p->n - c; \
                    MPT__PRODUCTS_OF_FOUR(V) \
                } \
            } \
        } \
    }
#endif

#define MPT__EXP_STEP(k, V, W) \
    d = V##_sub(V##_load(x + k * W), shift); \
    e = V##_exp(d); \
    V##_store(out + k * W, differences ? d : e); \
    s##k = V##_add(s##k, e);
/* What lies behind the n elements adds nothing to its lane. */
#define MPT__EXP_REST(k, V, W) \
    d = V##_sub(V##_load_as(x + k * W, n - k * W, MPT_F32), shift); \
    e = V##_exp(d); \
    V##_store_as(out + k * W, differences ? d : e, n - k * W, MPT_F32); \
    V##_store_as(rest + k * W, e, n - k * W, MPT_F32); \
    s##k = V##_add(s##k, V##_load(rest + k * W));
#define MPT__SIMD_ADD_EXP(FN, N, V, W) \
    FN void N##_add_exp(float *lane, float *out, const float *x, int64_t n, float most, \
                        bool differences) { \
        const V##_f shift = V##_set(most); \
        float rest[MPT__SUM_LANES] = {0}; \
        V##_f d, e; \
        MPT__SIMD_VECTORS_##W(MPT__LANES_LOAD, V); \
        for (; n >= MPT__SUM_LANES; n -= MPT__SUM_LANES) { \
            MPT__SIMD_VECTORS_##W(MPT__EXP_STEP, V); \
            x += MPT__SUM_LANES, out += MPT__SUM_LANES; \
        } \
        if (n > 0) { MPT__SIMD_VECTORS_##W(MPT__EXP_REST, V); } \
        MPT__SIMD_VECTORS_##W(MPT__LANES_STORE, V); \
    }

#define MPT__SIMD_FOLD_16(V) s0
#define MPT__SIMD_FOLD_8(V) V##_add(s0, s1)
#define MPT__SIMD_FOLD_4(V) V##_add(V##_add(s0, s2), V##_add(s1, s3))
#define MPT__SIMD_SOFTMAX(FN, N, V, W) \
    FN void N##_softmax(float *out, const float *x, int64_t n, bool log) { \
        float lane[MPT__SUM_LANES] = {0}; \
        const float most = N##_peak(x, n, -mpt__real_infinity()) + 0.0f; \
        N##_add_exp(lane, out, x, n, most, log); \
        MPT__SIMD_VECTORS_##W(MPT__LANES_LOAD, V); \
        float total = V##_total(MPT__SIMD_FOLD_##W(V)); \
        if (log) { \
            N##_unary_LOG(&total, &total, 1, 0, 0); \
            N##_unary_ADD_SCALAR(out, out, n, -total, 0); \
        } else { \
            N##_unary_MUL_SCALAR(out, out, n, 1 / total, 0); \
        } \
    }

/* y dy or dy; and y (dy - total) or dy - exp(y) total: of a, from y, and b, from dy. */
#define MPT__SLOPE_ADDEND(V) (log ? b : V##_mul(b, a))
#define MPT__SLOPE(V) (log ? V##_sub(b, V##_mul(V##_exp(a), total)) : V##_mul(a, V##_sub(b, total)))
#define MPT__SLOPE_STEP(k, V, W) \
    a = V##_load(y + i + k * W), b = V##_load(dy + i + k * W); \
    s##k = V##_add(s##k, MPT__SLOPE_ADDEND(V));
#define MPT__SLOPE_REST(k, V, W) \
    a = V##_load_as(y + i + k * W, n - i - k * W, MPT_F32); \
    b = V##_load_as(dy + i + k * W, n - i - k * W, MPT_F32); \
    s##k = V##_add(s##k, MPT__SLOPE_ADDEND(V));
#define MPT__SLOPE_START(k, V, W) V##_f s##k = V##_zero();
#define MPT__SIMD_SOFTMAX_BACKWARD(FN, N, V, W) \
    FN void N##_softmax_backward(float *dx, const float *y, const float *dy, int64_t n, \
                                 bool log) { \
        V##_f a, b; \
        int64_t i = 0; \
        MPT__SIMD_VECTORS_##W(MPT__SLOPE_START, V); \
        for (; i + MPT__SUM_LANES <= n; i += MPT__SUM_LANES) { \
            MPT__SIMD_VECTORS_##W(MPT__SLOPE_STEP, V); \
        } \
        if (i < n) { MPT__SIMD_VECTORS_##W(MPT__SLOPE_REST, V); } \
        const V##_f total = V##_set(V##_total(MPT__SIMD_FOLD_##W(V))); \
        for (i = 0; i + W <= n; i += W) { \
            a = V##_load(y + i), b = V##_load(dy + i); \
            V##_store(dx + i, MPT__SLOPE(V)); \
        } \
        if (i < n) { \
            a = V##_load_as(y + i, n - i, MPT_F32), b = V##_load_as(dy + i, n - i, MPT_F32); \
            V##_store_as(dx + i, MPT__SLOPE(V), n - i, MPT_F32); \
        } \
    }

/* X(k) for four vectors at a time: of one run, or of two or four, or of columns. */
#define MPT__SIMD_FOUR(X, V, W) X(0, V, W) X(1, V, W) X(2, V, W) X(3, V, W)

/* The rows of norms, for floats and for halves of either type, which a branch tells apart. What is
   there or wanted beside x is decided where it is used: a loop for each case would not be faster,
   but large. X(k) for the vectors that make MPT__NORM_LANES. */
#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)
/* Row r of a part; where there is none, of x, which nobody looks at. */
static MPT__INLINE char *mpt__norm_place(const mpt__norm_block *b, int part, int64_t r) {
    if (b->data[part] == NULL) part = MPT__PART_X;
    return b->data[part] + r * b->step[part];
}

/* Numbers of channels, and nothing but x, dy and out: what there are loops of its own for. */
static bool mpt__norm_plain(const mpt__norm_block *b) {
    return b->mode != MPT__NORM_LINES && !b->relu && b->data[MPT__PART_MORE] == NULL &&
           b->data[MPT__PART_OUT] != NULL && b->data[MPT__PART_REST] == NULL;
}

/* A word of the reference on the elements from i on of some rows: less than 16. */
static MPT__NOINLINE void mpt__norm_rest(mpt__norm_fn word, const mpt__norm_block *b, int64_t r,
                                         int64_t rows, int64_t i) {
    const int64_t n = b->n - i, size = b->dtype == MPT_F32 ? 4 : 2;
    mpt__real part[MPT__PARTS][16];
    mpt__norm_block one = *b;
    one.rows = 1, one.n = n;
    for (int64_t end = r + rows; r < end; r++) {
        mpt__norm_begin_at(&one, b, r, i);
        for (int k = 0; k < MPT__PARTS; k++) {
            if (b->data[k] == NULL) continue;
            if (k < MPT__PART_OUT)
                mpt__load_real(part[k], mpt__norm_place(b, k, r) + i * size, b->dtype, 0, 1, n);
            one.data[k] = (char *)part[k];
        }
        word(&one);
        for (int k = MPT__PART_OUT; k < MPT__PARTS; k++)
            if (b->data[k] != NULL)
                mpt__store_real(mpt__norm_place(b, k, r) + i * size, b->dtype, 0, 1, part[k], n);
    }
}

#define MPT__NORM_VECTORS_16(X, V) X(0, V, 16) X(1, V, 16)
#define MPT__NORM_VECTORS_8(X, V) X(0, V, 8) X(1, V, 8) X(2, V, 8) X(3, V, 8)
#define MPT__NORM_VECTORS_4(X, V) \
    X(0, V, 4) X(1, V, 4) X(2, V, 4) X(3, V, 4) X(4, V, 4) X(5, V, 4) X(6, V, 4) X(7, V, 4)
#define MPT__NORM_FOLD_16(V, s) V##_total(V##_add(s##0, s##1))
#define MPT__NORM_FOLD_8(V, s) V##_total(V##_add(V##_add(s##0, s##2), V##_add(s##1, s##3)))
#define MPT__NORM_FOLD_4(V, s) \
    V##_total(V##_add(V##_add(V##_add(s##0, s##4), V##_add(s##2, s##6)), \
                      V##_add(V##_add(s##1, s##5), V##_add(s##3, s##7))))
/* Masks are cheap with the widest vectors alone: elsewhere what fills no vector is a call. */
#define MPT__NORM_LOAD_16(FN, OP, V) \
    OP V##_f V##_load_rest(const void *p, int64_t n, int dtype) { \
        return V##_load_as(p, n, dtype); \
    }
#define MPT__NORM_LOAD_8(FN, OP, V) \
    FN MPT__NOINLINE V##_f V##_load_rest(const void *p, int64_t n, int dtype) { \
        return V##_load_as(p, n, dtype); \
    }
#define MPT__NORM_LOAD_4 MPT__NORM_LOAD_8
#define MPT__NORM_ZERO(k, V, W) V##_f s##k = V##_zero(), t##k = V##_zero();
#define MPT__NORM_CLEAR(k, V, W) s##k = t##k = V##_zero();
#define MPT__NORM_LOAD_LANES(k, V, W) \
    s##k = V##_load(lane + k * W), t##k = V##_load(lane + MPT__NORM_LANES + k * W);
#define MPT__NORM_STORE_LANES(k, V, W) \
    V##_store(lane + k * W, s##k), V##_store(lane + MPT__NORM_LANES + k * W, t##k);
#define MPT__NORM_SUM(k, V, W) \
    e = d = V##_sub(V##_load_full(x + k * W * size, dtype), mean); \
    if (slopes) { \
        d = V##_load_full(dy + k * W * size, dtype); \
        if (relu) d = V##_gate(V##_load_full(y + k * W * size, dtype), d); \
        if (lines) d = V##_mul(d, V##_load(weight + k * W)); \
    } \
    s##k = V##_add(s##k, d), t##k = V##_add(t##k, V##_mul(d, e));
/* Of the widest vectors: rows of bf16 as V##_load_two has them, as far as there are pairs. */
#define MPT__NORM_PAIRS_8(...)
#define MPT__NORM_PAIRS_4(...)
#define MPT__NORM_PAIRS_16(...) __VA_ARGS__
#define MPT__PAIR_SUM(k, V, W) \
    e##k = V##_sub(e##k, mean); \
    if (relu) d##k = V##_gate(y##k, d##k); \
    s##k = V##_add(s##k, d##k), t##k = V##_add(t##k, V##_mul(d##k, e##k));
#define MPT__PAIR_SUM_ONE(k, V, W) \
    e##k = V##_sub(e##k, mean); \
    s##k = V##_add(s##k, e##k), t##k = V##_add(t##k, V##_mul(e##k, e##k));
#define MPT__PAIR_FETCH(p) \
    MPT__PREFETCH_FAR(p + i * size + MPT__NORM_SOON); \
    if (dtype == MPT_F32) MPT__PREFETCH_FAR(p + i * size + MPT__NORM_SOON + 64);
#define MPT__PAIR_NORM(k, V, W) \
    v##k = V##_mul(V##_sub(v##k, mean), rstd); \
    if (biased) v##k = V##_add(v##k, bias);
#define MPT__PAIR_SLOPE(k, V, W) \
    v##k = V##_mul(V##_sub(v##k, mean), slope); \
    d##k = V##_sub(V##_sub(V##_mul(d##k, weight), shift), v##k);
#define MPT__NORM_SUM_REST(k, V, W) \
    e = V##_sub(V##_load_rest(x + k * W * size, left - k * W, dtype), mean); \
    e = d = V##_select(V##_first(left - k * W), e, V##_zero()); \
    if (slopes) { \
        d = V##_load_rest(dy + k * W * size, left - k * W, dtype); \
        if (relu) d = V##_gate(V##_load_rest(y + k * W * size, left - k * W, dtype), d); \
        if (lines) d = V##_mul(d, V##_load_rest(weight + k * W, left - k * W, MPT_F32)); \
    } \
    s##k = V##_add(s##k, d), t##k = V##_add(t##k, V##_mul(d, e));
/* Vector k of a row, and of the next. */
#define MPT__NORM_NEXT(k, V, W) \
    if (centred) v##k = V##_sub(v##k, mean); \
    v##k = V##_mul(V##_mul(v##k, rstd), V##_load(weight + k * W)); \
    if (bias) v##k = V##_add(v##k, V##_load(bias + k * W));
#define MPT__NORM_NEXT_SUM(k, V, W) \
    if (centred) e##k = V##_sub(e##k, next_mean), s##k = V##_add(s##k, e##k); \
    t##k = V##_add(t##k, V##_mul(e##k, e##k));
/* What a step reads comes before what it writes, which may lie as far into a page: a CPU that first
   compares no more than that would wait. Of floats the next row comes last: those that no cache
   holds took 8 % longer otherwise (measured on Zen 4). */
#define MPT__NORM_SLOPE_GET(k, V, W) \
    w##k = V##_load(weight + k * W), dw##k = V##_load(dw + k * W); \
    if (db) db##k = V##_load(db + k * W);
#define MPT__NORM_SLOPE_AHEAD(V) \
    V##_load_two(next, &e0, &e1, dtype), V##_load_two(next_dy, &g0, &g1, dtype);
#define MPT__NORM_SLOPE_NEXT(k, V, W) \
    if (dtype == MPT_F32) { MPT__NORM_SLOPE_GET(k, V, W) } \
    if (centred) v##k = V##_sub(v##k, mean); \
    v##k = V##_mul(v##k, rstd); \
    V##_store(dw + k * W, V##_add(dw##k, V##_mul(d##k, v##k))); \
    if (db) V##_store(db + k * W, V##_add(db##k, d##k)); \
    d##k = V##_mul(d##k, w##k); \
    if (centred) d##k = V##_sub(d##k, shift); \
    d##k = V##_mul(V##_sub(d##k, V##_mul(v##k, slope)), rstd);
#define MPT__NORM_SLOPE_SUM(k, V, W) \
    g##k = V##_mul(g##k, w##k); \
    if (centred) s##k = V##_add(s##k, g##k), e##k = V##_sub(e##k, next_mean); \
    t##k = V##_add(t##k, V##_mul(g##k, e##k));
/* Passes: of the level with the widest vectors, whose gain pays for their size. Pairs of bf16 come
   as two vectors, those of even places and those of odd ones: so do weights, sums and bias. What is
   read lies in pages that no cache foresees: all lines of a step are asked for. */
#define MPT__NORM_AHEAD 4096 /* bytes */
#define MPT__NORM_SOON 2048  /* of rows that are read twice, which come sooner */
#define MPT__NORM_FETCH(p) \
    MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD); \
    if (dtype == MPT_F32) MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD + 64);
#define MPT__NORM_PASSES_8(FN, OP, N, V, W)
#define MPT__NORM_PASSES_4(FN, OP, N, V, W)
#define MPT__NORM_PASSES_WORDS_16(N) N##_norm_next, N##_norm_slope_next
#define MPT__NORM_PASSES_WORDS_8(N) NULL, NULL
#define MPT__NORM_PASSES_WORDS_4(N) NULL, NULL
#define MPT__NORM_PASSES_16(FN, OP, N, V, W) \
    OP void N##_norm_next_of(mpt__norm_block *b, int dtype) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size; \
        const bool centred = b->mean, streams = b->beyond_cache; \
        const V##_f mean = V##_set(centred ? *b->mean : 0), rstd = V##_set(*b->rstd); \
        const V##_f next_mean = V##_set(b->next_mean); \
        const float *weight = b->weight, *bias = b->bias; \
        const char *x = b->data[MPT__PART_X], *end = x + b->n * size, *next = b->next[0]; \
        char *out = b->data[MPT__PART_OUT]; \
        V##_f v0, v1, e0, e1; \
        MPT__NORM_VECTORS_##W(MPT__NORM_ZERO, V); \
        for (; x < end; x += by, next += by, out += by) { \
            MPT__NORM_FETCH(next) \
            V##_load_two(x, &v0, &v1, dtype); \
            MPT__NORM_VECTORS_##W(MPT__NORM_NEXT, V); \
            V##_load_two(next, &e0, &e1, dtype); \
            V##_store_two(out, v0, v1, dtype, streams); \
            MPT__NORM_VECTORS_##W(MPT__NORM_NEXT_SUM, V); \
            weight += MPT__NORM_LANES; \
            if (bias) bias += MPT__NORM_LANES; \
        } \
        if (streams && b->last) V##_fence(); \
        V##_in_order(&s0, &s1, dtype), V##_in_order(&t0, &t1, dtype); \
        b->total[0] = MPT__NORM_FOLD_##W(V, s), b->total[1] = MPT__NORM_FOLD_##W(V, t); \
    } \
    OP void N##_norm_slope_next_of(mpt__norm_block *b, int dtype) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size; \
        const bool centred = b->mean, streams = b->beyond_cache; \
        const V##_f mean = V##_set(centred ? *b->mean : 0), rstd = V##_set(*b->rstd); \
        const V##_f shift = V##_set(*b->shift), slope = V##_set(*b->slope); \
        const V##_f next_mean = V##_set(b->next_mean); \
        const float *weight = b->weight; \
        const char *x = b->data[MPT__PART_X], *dy = b->data[MPT__PART_DY]; \
        const char *end = x + b->n * size; \
        const char *next = b->next[0], *next_dy = b->next[1]; \
        char *out = b->data[MPT__PART_OUT]; \
        float *dw = b->sum[0], *db = b->sum[1]; \
        V##_f d0, d1, v0, v1, e0, e1, g0, g1, w0, w1, dw0, dw1; \
        V##_f db0 = V##_zero(), db1 = db0; \
        MPT__NORM_VECTORS_##W(MPT__NORM_ZERO, V); \
        for (; x < end; x += by, dy += by, next += by, next_dy += by, out += by) { \
            MPT__NORM_FETCH(next) \
            MPT__NORM_FETCH(next_dy) \
            V##_load_two(x, &v0, &v1, dtype), V##_load_two(dy, &d0, &d1, dtype); \
            if (dtype != MPT_F32) { \
                MPT__NORM_SLOPE_AHEAD(V) \
                MPT__NORM_VECTORS_##W(MPT__NORM_SLOPE_GET, V) \
            } \
            MPT__NORM_VECTORS_##W(MPT__NORM_SLOPE_NEXT, V); \
            V##_store_two(out, d0, d1, dtype, streams); \
            if (dtype == MPT_F32) { MPT__NORM_SLOPE_AHEAD(V) } \
            MPT__NORM_VECTORS_##W(MPT__NORM_SLOPE_SUM, V); \
            weight += MPT__NORM_LANES, dw += MPT__NORM_LANES; \
            if (db) db += MPT__NORM_LANES; \
        } \
        if (streams && b->last) V##_fence(); \
        V##_in_order(&s0, &s1, dtype), V##_in_order(&t0, &t1, dtype); \
        b->total[0] = MPT__NORM_FOLD_##W(V, s), b->total[1] = MPT__NORM_FOLD_##W(V, t); \
    } \
    MPT__NORM_WORD(FN, N, norm_next) \
    MPT__NORM_WORD(FN, N, norm_slope_next)
/* Columns of bf16 in pairs, down the rows, with their numbers in registers; false where a word has
   to do without. */
#define MPT__IN_PAIRS(b) \
    ((b)->mode == MPT__NORM_COLUMNS && (b)->dtype == MPT_BF16 && (b)->n % 32 == 0 && \
     !(b)->beyond_cache)
#define MPT__PAIR_PLACE(part) mpt__norm_place(b, part, r) + 2 * i
#define MPT__PAIR_LOAD(V, part, a) \
    MPT__PREFETCH_FAR(MPT__PAIR_PLACE(part) + 2048); \
    V##_load_two(MPT__PAIR_PLACE(part), &a##0, &a##1, MPT_BF16);
#define MPT__PAIR_STORE(V, part, a) \
    V##_store_two(MPT__PAIR_PLACE(part), a##0, a##1, MPT_BF16, false);
#define MPT__PAIR_NUMBER(V, a) V##_f a##0, a##1; V##_load_apart(b->a + i, &a##0, &a##1);
#define MPT__COLUMN_NORM(V, k) \
    v##k = V##_add(V##_mul(V##_sub(v##k, mean##k), rstd##k), bias##k);
#define MPT__COLUMN_SLOPE(V, k) \
    v##k = V##_mul(V##_sub(v##k, mean##k), slope##k); \
    d##k = V##_sub(V##_sub(V##_mul(d##k, weight##k), shift##k), v##k);
#define MPT__NORM_IN_PAIRS_8(FN, OP, N, V, W)
#define MPT__NORM_IN_PAIRS_4(FN, OP, N, V, W)
#define MPT__NORM_IN_PAIRS_16(FN, OP, N, V, W) \
    FN bool N##_norm_pairs(const mpt__norm_block *b) { \
        V##_f v0, v1, y0, y1; \
        if (!MPT__IN_PAIRS(b) || !b->bias) return false; \
        for (int64_t i = 0; i < b->n; i += 32) { \
            MPT__PAIR_NUMBER(V, mean) \
            MPT__PAIR_NUMBER(V, rstd) \
            MPT__PAIR_NUMBER(V, bias) \
            for (int64_t r = 0; r < b->rows; r++) { \
                MPT__PAIR_LOAD(V, MPT__PART_X, v) \
                MPT__COLUMN_NORM(V, 0) \
                MPT__COLUMN_NORM(V, 1) \
                if (b->data[MPT__PART_MORE]) { \
                    MPT__PAIR_LOAD(V, MPT__PART_MORE, y) \
                    v0 = V##_add(v0, y0), v1 = V##_add(v1, y1); \
                } \
                if (b->relu) v0 = V##_relu(v0), v1 = V##_relu(v1); \
                MPT__PAIR_STORE(V, MPT__PART_OUT, v) \
            } \
        } \
        return true; \
    } \
    FN bool N##_norm_slope_pairs(const mpt__norm_block *b) { \
        V##_f v0, v1, d0, d1, y0 = V##_zero(), y1 = y0; \
        const bool more = b->data[MPT__PART_MORE]; \
        if (!MPT__IN_PAIRS(b) || !b->data[MPT__PART_OUT]) return false; \
        for (int64_t i = 0; i < b->n; i += 32) { \
            MPT__PAIR_NUMBER(V, mean) \
            MPT__PAIR_NUMBER(V, weight) \
            MPT__PAIR_NUMBER(V, shift) \
            MPT__PAIR_NUMBER(V, slope) \
            for (int64_t r = 0; r < b->rows; r++) { \
                MPT__PAIR_LOAD(V, MPT__PART_X, v) \
                MPT__PAIR_LOAD(V, MPT__PART_DY, d) \
                if (more) { MPT__PAIR_LOAD(V, MPT__PART_MORE, y) } \
                if (b->relu) d0 = V##_gate(y0, d0), d1 = V##_gate(y1, d1); \
                if (b->data[MPT__PART_REST]) { MPT__PAIR_STORE(V, MPT__PART_REST, d) } \
                MPT__COLUMN_SLOPE(V, 0) \
                MPT__COLUMN_SLOPE(V, 1) \
                if (!b->relu && more) d0 = V##_add(d0, y0), d1 = V##_add(d1, y1); \
                MPT__PAIR_STORE(V, MPT__PART_OUT, d) \
            } \
        } \
        return true; \
    }
/* Vector k of some columns, down the rows. */
#define MPT__COLUMN_BEGIN(k, V, W) \
    const V##_f mean##k = V##_load(mean + k * W); \
    V##_f s##k = V##_load(sum + k * W), t##k = V##_load(more + k * W);
#define MPT__COLUMN_SUM(k, V, W) \
    e = d = V##_sub(V##_load_full(x + k * W * size, dtype), mean##k); \
    if (slopes) { \
        d = V##_load_full(dy + k * W * size, dtype); \
        if (relu) d = V##_gate(V##_load_full(y + k * W * size, dtype), d); \
    } \
    s##k = V##_add(s##k, d), t##k = V##_add(t##k, V##_mul(d, e));
#define MPT__COLUMN_AHEAD(p, W) \
    for (int64_t k = 0; k < 4 * W * size; k += 64) MPT__PREFETCH_FAR(p + MPT__NORM_AHEAD + k);
#define MPT__COLUMN_END(k, V, W) V##_store(sum + k * W, s##k), V##_store(more + k * W, t##k);
#define MPT__SIMD_NORM(FN, OP, N, V, W) \
    OP V##_f V##_gate(V##_f y, V##_f d) { \
        V##_f kept = V##_select(V##_is_nan(y), d, V##_zero()); \
        return V##_select(V##_greater(y, V##_zero()), d, kept); \
    } \
    OP void V##_stream_as(void *p, V##_f v, int dtype) { \
        if (dtype == MPT_F32) \
            V##_stream((float *)p, v); \
        else \
            V##_store_as(p, v, W, dtype); \
    } \
    MPT__NORM_LOAD_##W(FN, OP, V) \
    OP void N##_norm_sums_of(mpt__norm_block *b, int dtype) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2, by = MPT__NORM_LANES * size; \
        const int64_t left = b->n % MPT__NORM_LANES; \
        const bool rows = b->mode == MPT__NORM_ROWS, slopes = b->data[MPT__PART_DY]; \
        const bool relu = b->relu, lines = !rows; \
        float *lane = b->lane; \
        V##_f d, e; \
        MPT__NORM_VECTORS_##W(MPT__NORM_ZERO, V) \
        if (lane) { MPT__NORM_VECTORS_##W(MPT__NORM_LOAD_LANES, V) } \
        for (int64_t r = 0; r < b->rows; r++) { \
            const V##_f mean = V##_set(b->mean[rows ? r : 0]); \
            const char *x = mpt__norm_place(b, MPT__PART_X, r), *end = x + (b->n - left) * size; \
            const char *dy = mpt__norm_place(b, MPT__PART_DY, r); \
            const char *y = mpt__norm_place(b, MPT__PART_MORE, r); \
            const float *weight = b->weight; \
            MPT__NORM_PAIRS_##W( \
                V##_f d0, d1, e0, e1, y0 = V##_zero(), y1 = y0; \
                for (; rows && !slopes && x < end; x += by) { \
                    V##_load_two(x, &e0, &e1, dtype); \
                    MPT__NORM_VECTORS_##W(MPT__PAIR_SUM_ONE, V) \
                } \
                for (; rows && x < end; x += by, dy += by, y += by) { \
                    V##_load_two(x, &e0, &e1, dtype), V##_load_two(dy, &d0, &d1, dtype); \
                    if (relu) V##_load_two(y, &y0, &y1, dtype); \
                    MPT__NORM_VECTORS_##W(MPT__PAIR_SUM, V) \
                } if (rows) V##_in_order(&s0, &s1, dtype), V##_in_order(&t0, &t1, dtype);) \
            for (; x < end; x += by, dy += by, y += by) { \
                MPT__NORM_VECTORS_##W(MPT__NORM_SUM, V) \
                if (lines && slopes) weight += MPT__NORM_LANES; \
            } \
            if (left) { MPT__NORM_VECTORS_##W(MPT__NORM_SUM_REST, V) } \
            if (lane) { MPT__NORM_VECTORS_##W(MPT__NORM_STORE_LANES, V) } \
            if (lines && r + 1 < b->rows) continue; \
            b->total[0] = MPT__NORM_FOLD_##W(V, s), b->total[1] = MPT__NORM_FOLD_##W(V, t); \
            if (lines) return; \
            for (int k = 0; k < 2; k++) \
                if (b->sum[k]) b->sum[k][r] += b->total[k]; \
            MPT__NORM_VECTORS_##W(MPT__NORM_CLEAR, V) \
        } \
    } \
    /* The last vector of a row reaches back over the one before it, or, where that would count \
       twice and where it is the only one, is done by the reference. */ \
    OP void N##_norm_of(mpt__norm_block *b, int dtype, bool plain) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2, n = b->n < W ? 0 : b->n; \
        const bool relu = !plain && b->relu, more = !plain && b->data[MPT__PART_MORE]; \
        const bool lines = !plain && b->mode == MPT__NORM_LINES, streams = b->beyond_cache; \
        const bool columns = b->mode == MPT__NORM_COLUMNS, biased = b->bias; \
        const float *means = b->mean, *rstds = b->rstd, *biases = b->bias, *weights = b->weight; \
        V##_f bias = V##_zero(), v; \
        for (int64_t r = 0; r < b->rows; r++) { \
            const char *x = mpt__norm_place(b, MPT__PART_X, r); \
            const char *y = mpt__norm_place(b, MPT__PART_MORE, r); \
            char *out = mpt__norm_place(b, MPT__PART_OUT, r); \
            V##_f mean = V##_set(means[columns ? 0 : r]), rstd = V##_set(rstds[columns ? 0 : r]); \
            if (!columns && !lines && biased) bias = V##_set(biases[r]); \
            int64_t i = 0; \
            MPT__NORM_PAIRS_##W(V##_f v0, v1; const bool fetches = b->fetches; \
                for (; plain && !columns && i + 32 <= n; i += 32) { \
                    V##_load_two(x + i * size, &v0, &v1, dtype); \
                    if (fetches) { MPT__PAIR_FETCH(x) } \
                    MPT__NORM_VECTORS_##W(MPT__PAIR_NORM, V) \
                    V##_store_two(out + i * size, v0, v1, dtype, streams); \
                }) \
            for (; i < n; i += W) { \
                if (i > n - W) i = n - W; \
                if (columns) mean = V##_load(means + i), rstd = V##_load(rstds + i); \
                if ((columns || lines) && biased) bias = V##_load(biases + i); \
                v = V##_mul(V##_sub(V##_load_full(x + i * size, dtype), mean), rstd); \
                if (lines) v = V##_mul(v, V##_load(weights + i)); \
                if (biased) v = V##_add(v, bias); \
                if (more) v = V##_add(v, V##_load_full(y + i * size, dtype)); \
                if (relu) v = V##_relu(v); \
                if (streams) \
                    V##_stream_as(out + i * size, v, dtype); \
                else \
                    V##_store_as(out + i * size, v, W, dtype); \
            } \
        } \
        if (streams) V##_fence(); \
        if (n == 0) mpt__norm_rest(mpt__ref_norm, b, 0, b->rows, 0); \
    } \
    OP void N##_norm_slope_of(mpt__norm_block *b, int dtype, bool plain) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2; \
        const bool relu = !plain && b->relu, more = !plain && !relu && b->data[MPT__PART_MORE]; \
        const bool is_out = plain || b->data[MPT__PART_OUT]; \
        const bool is_rest = !plain && b->data[MPT__PART_REST], streams = b->beyond_cache; \
        const bool lines = !plain && b->mode == MPT__NORM_LINES; \
        const bool columns = b->mode == MPT__NORM_COLUMNS; \
        const int64_t n = lines ? b->n / W * W : b->n < W ? 0 : b->n; \
        const float *means = b->mean, *shifts = b->shift, *slopes = b->slope, *weights = b->weight;\
        float *const dw = lines ? b->sum[0] : NULL, *const db = lines ? b->sum[1] : NULL; \
        V##_f rstd = V##_zero(), d, v; \
        for (int64_t r = 0; r < b->rows; r++) { \
            const int64_t of = columns ? 0 : r; \
            const char *x = mpt__norm_place(b, MPT__PART_X, r); \
            const char *dy = mpt__norm_place(b, MPT__PART_DY, r); \
            const char *y = mpt__norm_place(b, MPT__PART_MORE, r); \
            char *out = mpt__norm_place(b, MPT__PART_OUT, r); \
            char *rest = mpt__norm_place(b, MPT__PART_REST, r); \
            V##_f mean = V##_set(means[of]), weight = V##_set(weights[lines ? 0 : of]); \
            V##_f shift = V##_set(shifts[of]), slope = V##_set(slopes[of]); \
            if (lines) rstd = V##_set(b->rstd[r]); \
            int64_t i = 0; \
            MPT__NORM_PAIRS_##W(V##_f d0, d1, v0, v1; const bool fetches = b->fetches; \
                for (; plain && !columns && i + 32 <= n; i += 32) { \
                    V##_load_two(x + i * size, &v0, &v1, dtype); \
                    V##_load_two(dy + i * size, &d0, &d1, dtype); \
                    if (fetches) { \
                        MPT__PAIR_FETCH(x) \
                        MPT__PAIR_FETCH(dy) \
                    } \
                    MPT__NORM_VECTORS_##W(MPT__PAIR_SLOPE, V) \
                    V##_store_two(out + i * size, d0, d1, dtype, streams); \
                }) \
            for (; i < n; i += W) { \
                if (i > n - W) i = n - W; \
                if (columns || lines) weight = V##_load(weights + i); \
                if (columns) { \
                    mean = V##_load(means + i); \
                    shift = V##_load(shifts + i), slope = V##_load(slopes + i); \
                } \
                d = V##_load_full(dy + i * size, dtype); \
                if (relu) d = V##_gate(V##_load_full(y + i * size, dtype), d); \
                v = V##_sub(V##_load_full(x + i * size, dtype), mean); \
                if (lines) v = V##_mul(v, rstd); \
                if (is_rest) V##_store_as(rest + i * size, d, W, dtype); \
                if (dw) V##_store(dw + i, V##_add(V##_load(dw + i), V##_mul(d, v))); \
                if (db) V##_store(db + i, V##_add(V##_load(db + i), d)); \
                if (!is_out) continue; \
                d = V##_sub(V##_sub(V##_mul(d, weight), shift), V##_mul(v, slope)); \
                if (lines) d = V##_mul(d, rstd); \
                if (more) d = V##_add(d, V##_load_full(y + i * size, dtype)); \
                if (streams) \
                    V##_stream_as(out + i * size, d, dtype); \
                else \
                    V##_store_as(out + i * size, d, W, dtype); \
            } \
        } \
        if (streams) V##_fence(); \
        if (n < b->n) mpt__norm_rest(mpt__ref_norm_slope, b, 0, b->rows, n); \
    } \
    OP void N##_norm_columns_of(mpt__norm_block *b, int dtype) { \
        const int64_t size = dtype == MPT_F32 ? 4 : 2, whole = b->n / W * W, rows = b->rows; \
        const bool relu = b->relu, slopes = b->data[MPT__PART_DY]; \
        const int64_t x_by = b->step[MPT__PART_X], dy_by = slopes ? b->step[MPT__PART_DY] : 0; \
        const int64_t y_by = relu ? b->step[MPT__PART_MORE] : 0; \
        V##_f d, e; \
        for (int64_t i = 0, by; i < whole; i += by) { \
            const float *mean = b->mean + i; \
            float *sum = b->sum[0] + i, *more = b->sum[1] + i; \
            const char *x = mpt__norm_place(b, MPT__PART_X, 0) + i * size; \
            const char *dy = mpt__norm_place(b, MPT__PART_DY, 0) + i * size; \
            const char *y = mpt__norm_place(b, MPT__PART_MORE, 0) + i * size; \
            by = whole - i < 4 * W ? W : 4 * W; \
            if (by == W) { \
                MPT__COLUMN_BEGIN(0, V, W) \
                for (int64_t r = 0; r < rows; r++, x += x_by, dy += dy_by, y += y_by) { \
                    MPT__COLUMN_SUM(0, V, W) \
                } \
                MPT__COLUMN_END(0, V, W) \
            } else { \
                MPT__SIMD_FOUR(MPT__COLUMN_BEGIN, V, W) \
                for (int64_t r = 0; r < rows; r++, x += x_by, dy += dy_by, y += y_by) { \
                    MPT__COLUMN_AHEAD(x, W) \
                    if (slopes) { MPT__COLUMN_AHEAD(dy, W) } \
                    if (relu) { MPT__COLUMN_AHEAD(y, W) } \
                    MPT__SIMD_FOUR(MPT__COLUMN_SUM, V, W) \
                } \
                MPT__SIMD_FOUR(MPT__COLUMN_END, V, W) \
            } \
        } \
        if (whole < b->n) mpt__norm_rest(mpt__ref_norm_columns, b, 0, b->rows, whole); \
    } \
    MPT__NORM_PASSES_##W(FN, OP, N, V, W) \
    MPT__NORM_WORD(FN, N, norm_sums) \
    MPT__NORM_IN_PAIRS_##W(FN, OP, N, V, W) \
    MPT__NORM_WORD_PLAIN(FN, N, norm, W) \
    MPT__NORM_WORD_PLAIN(FN, N, norm_slope, W) \
    MPT__NORM_WORD(FN, N, norm_columns)
#define MPT__NORM_WORD(FN, N, name) \
    FN void N##_##name(mpt__norm_block *b) { \
        if (b->dtype == MPT_F32) \
            N##_##name##_of(b, MPT_F32); \
        else if (b->dtype == MPT_F16) \
            N##_##name##_of(b, MPT_F16); \
        else \
            N##_##name##_of(b, MPT_BF16); \
    }
#define MPT__NORM_WORD_PLAIN(FN, N, name, W) \
    FN void N##_##name(mpt__norm_block *b) { \
        MPT__NORM_PAIRS_##W(if (N##_##name##_pairs(b)) return;) \
        const bool plain = mpt__norm_plain(b); \
        if (b->dtype == MPT_F32 && plain) \
            N##_##name##_of(b, MPT_F32, true); \
        else if (b->dtype == MPT_F32) \
            N##_##name##_of(b, MPT_F32, false); \
        else if (b->dtype == MPT_BF16 && plain) \
            N##_##name##_of(b, MPT_BF16, true); \
        else \
            N##_##name##_of(b, b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16, false); \
    }
#define MPT__SIMD_NORM_WORDS(N, W) \
    N##_norm_sums, N##_norm, N##_norm_slope, N##_norm_columns, MPT__NORM_PASSES_WORDS_##W(N)
#else
#define MPT__SIMD_NORM(FN, OP, N, V, W)
#define MPT__SIMD_NORM_WORDS(N, W) MPT__REF_NORM_WORDS
#endif

/* All is inlined: what a call stores for short rows would wait among the stores of these. */
#define MPT__SIMD_ROWS(FN, OP, N, V, W) \
    OP void N##_line(char *to, const char *from, int64_t bytes, bool adds) { \
        for (int64_t k = 0; k < bytes; k += 4 * W) { \
            const V##_f v = V##_load((const float *)(const void *)(from + k)); \
            float *out = (float *)(void *)(to + k); \
            V##_store(out, adds ? V##_add(V##_load(out), v) : v); \
        } \
    } \
    FN void N##_rows(const mpt__rows *r) { \
        if (r->adds) \
            mpt__rows_each(r, true, N##_line); \
        else \
            mpt__rows_each(r, false, N##_line); \
    }

/* The square of a float is exact in double, so that fusing it with the sum changes nothing. */
#define MPT__SQUARES_START(k, V, W) V##_d s##k = V##_no_doubles();
#define MPT__SQUARES_ADD(k, V, W) \
    s##k = V##_add_squares(s##k, V##_mul(V##_load(x + i + k * W), by));
#define MPT__SQUARES_END(k, V, W) V##_add_doubles(lane + k * W, s##k);
#define MPT__SIMD_SQUARES(FN, N, V, W) \
    FN void N##_add_squares(double *lane, const float *x, int64_t n, float multiplier) { \
        const int64_t run = MPT__SQUARE_RUN(n), runs = MPT__SQUARE_RUNS * run; \
        const float *const rest = x + runs; \
        mpt__ref_add_run(lane, rest, n - runs, multiplier); \
        const V##_f by = V##_set(multiplier); \
        while (x < rest) { \
            x += run; \
            MPT__SIMD_VECTORS_##W(MPT__SQUARES_START, V) \
            for (int64_t i = -run; i != 0; i += MPT__SUM_LANES) { \
                if (W == 16) MPT__PREFETCH(x + run + i); \
                MPT__SIMD_VECTORS_##W(MPT__SQUARES_ADD, V) \
            } \
            MPT__SIMD_VECTORS_##W(MPT__SQUARES_END, V) \
        } \
    }

/* Philox 4x32-10 (ground/random.c) in 64-bit lanes of which the low words count: W / 2 blocks in
   each of two sets of counters, a and b. keys[2 r] and keys[2 r + 1] are those of round r. */
static void mpt__philox_keys(uint64_t seed, uint64_t keys[2 * MPT__PHILOX_ROUNDS]) {
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int r = 0; r < MPT__PHILOX_ROUNDS; r++) {
        keys[2 * r] = key0, keys[2 * r + 1] = key1;
        key0 += MPT__PHILOX_W0, key1 += MPT__PHILOX_W1;
    }
}
#define MPT__PHILOX_HALF(V, c, r) \
    p = V##_umul(c##0, m0), q = V##_umul(c##2, m1); \
    c##0 = V##_uxor(V##_uhigh(q), c##1, V##_uset(keys[2 * r])), c##1 = q; \
    c##2 = V##_uxor(V##_uhigh(p), c##3, V##_uset(keys[2 * r + 1])), c##3 = p
#define MPT__SIMD_RANDOM(FN, OP, N, V, W) \
    OP void N##_philox(const uint64_t *keys, uint64_t sequence, uint64_t block, \
                       uint32_t out[4 * W]) { \
        const V##_u m0 = V##_uset(MPT__PHILOX_M0), m1 = V##_uset(MPT__PHILOX_M1); \
        V##_u a0 = V##_ucount(block), b0 = V##_ucount(block + W / 2), p, q; \
        V##_u a1 = V##_uhigh(a0), b1 = V##_uhigh(b0); \
        V##_u a2 = V##_uset(sequence), a3 = V##_uset(sequence >> 32), b2 = a2, b3 = a3; \
        for (int r = 0; r < MPT__PHILOX_ROUNDS; r++) { \
            MPT__PHILOX_HALF(V, a, r); \
            MPT__PHILOX_HALF(V, b, r); \
        } \
        V##_ustore(out, a0, a1, a2, a3); \
        V##_ustore(out + 2 * W, b0, b1, b2, b3); \
    } \
    FN void N##_random(mpt__rng_key key, uint64_t first, size_t n, uint32_t *out) { \
        const uint64_t sequence = mpt__hash_u64(key.stream, key.call); \
        uint64_t keys[2 * MPT__PHILOX_ROUNDS]; \
        mpt__philox_keys(key.seed, keys); \
        for (; n >= 4 * W; n -= 4 * W, first += 4 * W, out += 4 * W) \
            N##_philox(keys, sequence, first / 4, out); \
        mpt__random_bits(key, first, n, out); \
    } \
    FN void N##_dropout(float *out, const float *x, int64_t n, mpt__rng_key key, uint64_t first, \
                        uint32_t threshold, float factor) { \
        const uint64_t sequence = mpt__hash_u64(key.stream, key.call); \
        const int64_t whole = n / (4 * W) * (4 * W); \
        uint64_t keys[2 * MPT__PHILOX_ROUNDS]; \
        uint32_t words[4 * W]; \
        mpt__ref_dropout_block(out + whole, x + whole, n - whole, key, first + (uint64_t)whole, \
                               threshold, factor); \
        mpt__philox_keys(key.seed, keys); \
        const V##_f by = V##_set(factor); \
        for (int64_t at = 0; at < whole; at += 4 * W) { \
            N##_philox(keys, sequence, (first + (uint64_t)at) / 4, words); \
            for (int k = 0; k < 4 * W; k += W) { \
                V##_f v = V##_mul(V##_load(x + at + k), by); \
                V##_m kept = V##_words_from(words + k, threshold); \
                V##_store(out + at + k, V##_select(kept, v, V##_zero())); \
            } \
        } \
    }

/* Updates: whole vectors first, with nothing to decide in the loop, then the rest. APART: halves
   follow in a pass of their own. */
#define MPT__SIMD_UPDATE_PARTS(FN, N, W, word, APART) \
    FN void N##_##word(const mpt__ref_update *w, float *p, const float *g, float *m, float *v, \
                       void *half, int64_t n) { \
        const int64_t rest = n % W, at = n - rest; \
        void *along = (APART) ? NULL : half; \
        N##_##word##_part(w, p, g, m, v, along, at, true); \
        if (rest > 0) { \
            void *last = along != NULL ? (uint16_t *)along + at : NULL; \
            float *m_last = m != NULL ? m + at : m, *v_last = v != NULL ? v + at : v; \
            N##_##word##_part(w, p + at, g + at, m_last, v_last, last, rest, false); \
        } \
        if (along != half) w->param.words->convert->f32_to_bf16(p, (uint16_t *)half, (size_t)n);\
    }
#define MPT__SIMD_UPDATE(FN, OP, N, V, W) \
    OP void N##_sgd_part(const mpt__ref_update *w, float *p, const float *g, float *m, float *v, \
                         void *half, int64_t n, bool whole) { \
        const int dtype = w->param.dtype; \
        const V##_f multiplier = V##_set(w->multiplier), decay = V##_set(w->decay); \
        const V##_f momentum = V##_set(w->momentum), keep = V##_set(w->keep); \
        const V##_f lr = V##_set(w->lr); \
        const bool decays = w->decay != 0, first = w->step == 0, nesterov = w->nesterov; \
        (void)v; \
        for (int64_t i = 0; i < n; i += W) { \
            const int64_t left = whole ? W : n - i; \
            V##_f weight = V##_load_as(p + i, left, MPT_F32); \
            V##_f step = V##_mul(V##_load_as(g + i, left, MPT_F32), multiplier); \
            if (decays) step = V##_add(step, V##_mul(decay, weight)); \
            if (m != NULL) { \
                V##_f moment = step; \
                if (!first) { \
                    moment = V##_mul(momentum, V##_load_as(m + i, left, MPT_F32)); \
                    moment = V##_add(moment, V##_mul(keep, step)); \
                } \
                V##_store_as(m + i, moment, left, MPT_F32); \
                step = nesterov ? V##_add(step, V##_mul(momentum, moment)) : moment; \
            } \
            weight = V##_sub(weight, V##_mul(lr, step)); \
            V##_store_as(p + i, weight, left, MPT_F32); \
            if (half != NULL) V##_store_as((uint16_t *)half + i, weight, left, dtype); \
        } \
    } \
    OP void N##_adam_part(const mpt__ref_update *w, float *p, const float *g, float *m, float *v, \
                          void *half, int64_t n, bool whole) { \
        const int dtype = w->param.dtype; \
        const V##_f multiplier = V##_set(w->multiplier), decay = V##_set(w->decay); \
        const V##_f beta1 = V##_set(w->beta1), rest1 = V##_set(w->rest1); \
        const V##_f beta2 = V##_set(w->beta2), rest2 = V##_set(w->rest2); \
        const V##_f eps = V##_set(w->eps), size = V##_set(w->step_size); \
        const V##_f root = V##_set(w->root_factor), shrink = V##_set(w->shrink); \
        const bool decoupled = w->decoupled, decays = !decoupled && w->decay != 0; \
        for (int64_t i = 0; i < n; i += W) { \
            const int64_t left = whole ? W : n - i; \
            V##_f weight = V##_load_as(p + i, left, MPT_F32); \
            V##_f gradient = V##_mul(V##_load_as(g + i, left, MPT_F32), multiplier); \
            if (decoupled) weight = V##_sub(weight, V##_mul(shrink, weight)); \
            if (decays) gradient = V##_add(gradient, V##_mul(decay, weight)); \
            V##_f m1 = V##_mul(beta1, V##_load_as(m + i, left, MPT_F32)); \
            V##_f v1 = V##_mul(beta2, V##_load_as(v + i, left, MPT_F32)); \
            m1 = V##_add(m1, V##_mul(rest1, gradient)); \
            v1 = V##_add(v1, V##_mul(V##_mul(rest2, gradient), gradient)); \
            V##_f below = V##_add(V##_mul(V##_sqrt(v1), root), eps); \
            weight = V##_sub(weight, V##_div(V##_mul(size, m1), below)); \
            V##_store_as(m + i, m1, left, MPT_F32); \
            V##_store_as(v + i, v1, left, MPT_F32); \
            V##_store_as(p + i, weight, left, MPT_F32); \
            if (half != NULL) V##_store_as((uint16_t *)half + i, weight, left, dtype); \
        } \
    } \
    MPT__SIMD_UPDATE_PARTS(FN, N, W, sgd, false) \
    /* Rounding to bf16 in many instructions would crowd out the roots and quotients; measured. */\
    MPT__SIMD_UPDATE_PARTS(FN, N, W, adam, W == 8 && w->param.dtype == MPT_BF16)

/* The words; REST is the level below that transposes what is narrow. */
#define MPT__SIMD_PORTABLE(id)
#define MPT__SIMD_UNARY_REF(id) mpt__ref_unary_##id,
#define MPT__SIMD_BINARY_REF(id) mpt__ref_binary_##id,
#define MPT__SIMD_UNARY_NAME(id, value, FN, N, V, W) N##_unary_##id,
#define MPT__SIMD_BINARY_NAME(id, value, FN, N, V, W) N##_binary_##id,
#define MPT__SIMD_LEVEL(FN, OP, N, V, W, F, REST, convert, stream, gate, slowness) \
    MPT__SIMD_UNARY(MPT__SIMD_UNARY_ROW, MPT__SIMD_PORTABLE, FN, N, V, W, F) \
    MPT__SIMD_BINARY(MPT__SIMD_BINARY_ROW, MPT__SIMD_PORTABLE, FN, N, V, W, F) \
    MPT__SIMD_PEAK(FN, N, V, W) \
    MPT__SIMD_LANES(FN, N, V, W, add, MPT__LANES_ADD) \
    MPT__SIMD_LANES(FN, N, V, W, max, MPT__LANES_MAX) \
    MPT__SIMD_SUM_PRODUCTS(FN, N, V, W) \
    MPT__SIMD_ADD_EXP(FN, N, V, W) \
    MPT__SIMD_SOFTMAX(FN, N, V, W) \
    MPT__SIMD_SOFTMAX_BACKWARD(FN, N, V, W) \
    MPT__SIMD_TRANSPOSE(FN, OP, N, V, W, REST) \
    MPT__SIMD_SQUARES(FN, N, V, W) \
    MPT__SIMD_RANDOM(FN, OP, N, V, W) \
    MPT__SIMD_UPDATE(FN, OP, N, V, W) \
    MPT__SIMD_NORM(FN, OP, N, V, W) \
    static const mpt__words N##_words = { \
        slowness, \
        true, \
        convert, \
        {MPT__SIMD_UNARY(MPT__SIMD_UNARY_NAME, MPT__SIMD_UNARY_REF, FN, N, V, W, F)}, \
        {MPT__SIMD_BINARY(MPT__SIMD_BINARY_NAME, MPT__SIMD_BINARY_REF, FN, N, V, W, F)}, \
        N##_peak, \
        N##_add_lanes, \
        N##_max_lanes, \
        MPT__SUM_PRODUCTS_OF(N), \
        N##_add_exp, \
        N##_softmax, \
        N##_softmax_backward, \
        N##_add_squares, \
        N##_random, \
        N##_dropout, \
        N##_transpose, \
        N##_rows, \
        stream, \
        N##_sgd, \
        N##_adam, \
        gate, \
        true, \
        MPT__SIMD_NORM_WORDS(N, W)};

#endif
#endif
