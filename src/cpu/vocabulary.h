/* ----
 * cpu/vocabulary.h: the words that kernels for several instruction sets are written in.
 *
 * A level (cpu/level/) is an instruction set. It gives its vocabulary, functions on vectors such as
 * mpt__v8_add, and then includes cpu/template/level.c, in which every kernel stands once as an
 * ordinary function: v_add there is MPT__V(add), which the level says is mpt__v8_add, and
 * MPT__LEVEL(softmax) is mpt__avx2_softmax. So a debugger enters each of them, and a compiler names
 * its line. In the one file mptrain.h the templates stand at the end, and the file includes itself
 * for each level.
 *
 * What a level says before it includes the templates; V, FN and OP before its own words, which are
 * written as kernels read them:
 *   MPT__V(word), MPT__LEVEL(name)   names of its words and of its kernels
 *   MPT__WIDTH                       floats of a vector: 4, 8 or 16; 1: one float; and 0, for
 *                                    functions.c alone: one mpt__real
 *   MPT__FN, MPT__OP                 target and storage class of a function, and of one to inline
 *
 * cpu/level/neon.c has the words that a level gives; others are made of these, or for 16 floats.
 * fma may round once or twice; all else has the bits of cpu/level/one.c.
 *
 * The words: words(p) loads 32-bit patterns from anywhere. larger(a, b) is a > b ? a : b and
 * smaller(a, b) is a < b ? a : b: both give b if either is NaN, as the x86 instructions do.
 * select(m, a, b) is m ? a : b. sar shifts with the sign. What a load or a store does is said in
 * cpu/level/avx2.c.
 * ---- */
#ifndef MPT__CPU_VOCABULARY_INCLUDED
#define MPT__CPU_VOCABULARY_INCLUDED

#include "ground/math.c"

#if defined(MPT__X86) && !defined(MPTRAIN_NO_SIMD)
#include <immintrin.h>
#elif defined(MPT__ARM64) && !defined(MPTRAIN_NO_SIMD)
#include <arm_neon.h>
#endif

/* The name of this file, where its users renamed it. Only the one file includes itself. */
#ifndef MPTRAIN_FILE
#define MPTRAIN_FILE "mptrain.h"
#endif

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

/* Arithmetic uses operators where the compiler has them for vectors: they obey the pragmas around
   this code, while the body of an intrinsic obeys those around the header that it came from. */
#if defined(_MSC_VER) && !defined(__clang__)
#define MPT__LANES(a, operation, b, intrinsic) intrinsic(a, b)
#else
#define MPT__LANES(a, operation, b, intrinsic) ((a)operation(b))
#endif
#define MPT__ARITHMETIC(OP, V, P, S) \
    OP V##_f V##_add(V##_f a, V##_f b) { return MPT__LANES(a, +, b, P##add##S); } \
    OP V##_f V##_sub(V##_f a, V##_f b) { return MPT__LANES(a, -, b, P##sub##S); } \
    OP V##_f V##_mul(V##_f a, V##_f b) { return MPT__LANES(a, *, b, P##mul##S); } \
    OP V##_f V##_div(V##_f a, V##_f b) { return MPT__LANES(a, /, b, P##div##S); }

/* Patterns of floats to bf16 in the low halves of words. */
#define MPT__ROUND_BF16(OP, V, NAME) \
    OP V##_i NAME(V##_i bits) { \
        V##_m nan = V##_igt(V##_iand(bits, V##_iset(0x7fffffff)), V##_iset(0x7f800000)); \
        V##_i odd = V##_iand(V##_shr16(bits), V##_iset(1)); \
        V##_i sum = V##_iadd(bits, V##_iadd(odd, V##_iset(0x7fff))); \
        return V##_bits(V##_select(nan, V##_float(V##_iset(0x7fc0)), V##_float(V##_shr16(sum)))); \
    }

/* Undefined again in cpu/vocabulary_end.h. */
#define v_f MPT__V(f)
#define v_i MPT__V(i)
#define v_m MPT__V(m)
#define v_d MPT__V(d)
#define v_u MPT__V(u)
#define v_zero MPT__V(zero)
#define v_set MPT__V(set)
#define v_load MPT__V(load)
#define v_store MPT__V(store)
#define v_load_full MPT__V(load_full)
#define v_load_as MPT__V(load_as)
#define v_load_first MPT__V(load_first)
#define v_store_as MPT__V(store_as)
#define v_stream MPT__V(stream)
#define v_fence MPT__V(fence)
#define v_first MPT__V(first)
#define v_words_from MPT__V(words_from)
#define v_load_quads MPT__V(load_quads)
#define v_transpose4 MPT__V(transpose4)
#define v_split MPT__V(split)
#define v_merge MPT__V(merge)
#define v_store_bytes MPT__V(store_bytes)
#define v_load_bytes MPT__V(load_bytes)
#define v_load_two MPT__V(load_two)
#define v_load_apart MPT__V(load_apart)
#define v_store_two MPT__V(store_two)
#define v_in_order MPT__V(in_order)
#define v_store_both MPT__V(store_both)
#define v_load_rest MPT__V(load_rest)
#define v_stream_as MPT__V(stream_as)
#define v_add MPT__V(add)
#define v_sub MPT__V(sub)
#define v_mul MPT__V(mul)
#define v_div MPT__V(div)
#define v_fma MPT__V(fma)
#define v_sqrt MPT__V(sqrt)
#define v_larger MPT__V(larger)
#define v_smaller MPT__V(smaller)
#define v_select MPT__V(select)
#define v_greater MPT__V(greater)
#define v_equal MPT__V(equal)
#define v_is_nan MPT__V(is_nan)
#define v_round MPT__V(round)
#define v_peak MPT__V(peak)
#define v_total MPT__V(total)
#define v_store_sums MPT__V(store_sums)
#define v_negate MPT__V(negate)
#define v_abs MPT__V(abs)
#define v_is_inf MPT__V(is_inf)
#define v_bits MPT__V(bits)
#define v_float MPT__V(float)
#define v_words MPT__V(words)
#define v_convert MPT__V(convert)
#define v_iset MPT__V(iset)
#define v_iadd MPT__V(iadd)
#define v_isub MPT__V(isub)
#define v_iand MPT__V(iand)
#define v_ior MPT__V(ior)
#define v_igt MPT__V(igt)
#define v_shl23 MPT__V(shl23)
#define v_sar1 MPT__V(sar1)
#define v_sar23 MPT__V(sar23)
#define v_uset MPT__V(uset)
#define v_ucount MPT__V(ucount)
#define v_umul MPT__V(umul)
#define v_uhigh MPT__V(uhigh)
#define v_uxor MPT__V(uxor)
#define v_ustore MPT__V(ustore)
#define v_no_doubles MPT__V(no_doubles)
#define v_add_doubles MPT__V(add_doubles)
#define v_add_squares MPT__V(add_squares)
#define v_scale MPT__V(scale)
#define v_polynomial MPT__V(polynomial)
#define v_pairs MPT__V(pairs)
#define v_exp MPT__V(exp)
#define v_log MPT__V(log)
#define v_sigmoid MPT__V(sigmoid)
#define v_tanh MPT__V(tanh)
#define v_normal MPT__V(normal)
#define v_rates MPT__V(rates)
#define v_decayed MPT__V(decayed)
#define v_follow MPT__V(follow)
#define v_follow_squares MPT__V(follow_squares)
#define v_sgd MPT__V(sgd)
#define v_adam MPT__V(adam)
#define v_updated MPT__V(updated)
#define v_relu MPT__V(relu)
#define v_max_nan MPT__V(max_nan)
#define v_at_least MPT__V(at_least)
#define v_gate MPT__V(gate)
#define v_gelu_share MPT__V(gelu_share)
#define v_gelu MPT__V(gelu)
#define v_gelu_tanh MPT__V(gelu_tanh)
#define v_gelu_slope MPT__V(gelu_slope)
#define v_gelu_tanh_slope MPT__V(gelu_tanh_slope)
#define v_silu_slope MPT__V(silu_slope)
#define v_lstm MPT__V(lstm)
#define v_lstm_slopes MPT__V(lstm_slopes)
#define v_gru MPT__V(gru)
#define v_gru_slopes MPT__V(gru_slopes)
#define v_log1p MPT__V(log1p)
#define v_expm1 MPT__V(expm1)
#define v_sign MPT__V(sign)
#define v_sin MPT__V(sin)
#define v_cos MPT__V(cos)
#define v_pow MPT__V(pow)
#define v_softplus MPT__V(softplus)
#define v_pow_slope MPT__V(pow_slope)
#define v_pow_exponent MPT__V(pow_exponent)
#define v_gemm_quads MPT__V(gemm_quads)
#define v_gemm_octs MPT__V(gemm_octs)
#define v_put_tile MPT__V(put_tile)
#define v_activate MPT__V(activate)
#define v_halves MPT__V(halves)
#define v_load_halves MPT__V(load_halves)
#define v_store_halves MPT__V(store_halves)
#define v_halves_low MPT__V(halves_low)
#define v_halves_high MPT__V(halves_high)
#define v_dot2 MPT__V(dot2)
#define v_word MPT__V(word)
#define v_store_pair MPT__V(store_pair)
#define v_t MPT__V(t)
#define v_table MPT__V(table)
#define v_pick MPT__V(pick)
#define v_imax MPT__V(imax)
#define v_iadd_if MPT__V(iadd_if)
#define v_some MPT__V(some)

#endif
