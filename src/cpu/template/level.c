/* ----
 * cpu/template/level.c: the kernels of an instruction set: what a level includes behind its words
 * (cpu/vocabulary.h), cpu/template/functions.c and cpu/template/update.c. Besides what these ask
 * for the level says:
 *
 *   MPT__BELOW(name)   kernels of the level below, which do what is too narrow for vectors
 *   MPT__SLOWNESS      nanoseconds of what takes the reference level one
 *   MPT__STREAM, MPT__GATE, MPT__HALVES_COPY, MPT__U8_TO_HALF   functions of its own or of
 *                      another level; or NULL
 *   MPT__OWN_SCALE, MPT__OWN_ROWS   it has v_scale, or rows, already
 *   and those of cpu/template/gemm.c
 * ---- */
#ifdef MPT__V
#include "cpu/template/convert.c"

/* X(k) for the vectors that make MPT__SUM_LANES and MPT__NORM_LANES, and how they fold in
   halves. */
#if MPT__WIDTH == 16
#define MPT__VECTORS(X) X(0)
#define MPT__FOLD s0
#define MPT__NORM_VECTORS(X) X(0) X(1)
#define MPT__NORM_FOLD(s) v_total(v_add(s##0, s##1))
#elif MPT__WIDTH == 8
#define MPT__VECTORS(X) X(0) X(1)
#define MPT__FOLD v_add(s0, s1)
#define MPT__NORM_VECTORS(X) X(0) X(1) X(2) X(3)
#define MPT__NORM_FOLD(s) v_total(v_add(v_add(s##0, s##2), v_add(s##1, s##3)))
#else
#define MPT__VECTORS(X) X(0) X(1) X(2) X(3)
#define MPT__FOLD v_add(v_add(s0, s2), v_add(s1, s3))
#define MPT__NORM_VECTORS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define MPT__NORM_FOLD(s) \
    v_total(v_add(v_add(v_add(s##0, s##4), v_add(s##2, s##6)), \
                  v_add(v_add(s##1, s##5), v_add(s##3, s##7))))
#endif
#define MPT__FOUR(X) X(0) X(1) X(2) X(3)

#include "cpu/template/rows.c"
#include "cpu/template/norm.c"
#include "cpu/template/gemm.c"
#include "cpu/template/halves.c"
#include "cpu/template/recurrent.c"
#include "cpu/template/pool.c"
#include "cpu/template/planes.c"
#include "cpu/template/codes.c"

#define MPT__HERE_UNARY(id, ns, value) MPT__LEVEL(unary_##id),
#define MPT__HERE_BINARY(id, ns, value) MPT__LEVEL(binary_##id),
#define MPT__OTHER_UNARY(id, ns, value) mpt__ref_unary_##id,
#define MPT__OTHER_BINARY(id, ns, value) mpt__ref_binary_##id,
static const mpt__routines MPT__LEVEL(routines) = {
    MPT__SLOWNESS,
    true,
    &MPT__LEVEL(convert),
    {MPT__UNARY_FUNCTIONS(MPT__HERE_UNARY, MPT__OTHER_UNARY) MPT__LEVEL(unary_SPLAT)},
    {MPT__BINARY_FUNCTIONS(MPT__HERE_BINARY, MPT__OTHER_BINARY)},
    MPT__LEVEL(peak),
    MPT__LEVEL(add_lanes),
    MPT__LEVEL(max_lanes),
#ifdef MPTRAIN_NO_CONV
    mpt__ref_sum_products,
    NULL,
    NULL,
#else
    MPT__LEVEL(sum_products),
    MPT__LEVEL(windows),
    MPT__LEVEL(planes),
#endif
    MPT__LEVEL(add_exp),
    MPT__LEVEL(softmax),
    MPT__LEVEL(softmax_backward),
    MPT__LEVEL(add_squares),
    MPT__LEVEL(random),
    MPT__LEVEL(dropout),
    MPT__LEVEL(transpose),
    MPT__LEVEL(rows),
    MPT__STREAM,
    MPT__LEVEL(sgd),
    MPT__LEVEL(adam),
    MPT__MOMENTS,
    MPT__GATE,
#ifdef MPTRAIN_NO_CONV
    NULL,
#else
    MPT__HALVES_COPY,
#endif
    &MPT__LEVEL(gemm_level),
    true,
#if defined(MPTRAIN_NO_CONV) && defined(MPTRAIN_NO_ATTENTION)
    MPT__REF_NORM_WORDS
#else
    MPT__LEVEL(norm_sums),
    MPT__LEVEL(norm),
    MPT__LEVEL(norm_slope),
    MPT__LEVEL(norm_columns),
#if MPT__WIDTH == 16
    MPT__LEVEL(norm_next),
    MPT__LEVEL(norm_slope_next)
#else
    NULL,
    NULL
#endif
#endif
#ifndef MPTRAIN_NO_RECURRENT
    ,
    MPT__LEVEL(cell),
    MPT__LEVEL(cell_slopes)
#endif
#ifndef MPTRAIN_NO_FRUGAL
    ,
    MPT__LEVEL(gates),
    MPT__LEVEL(decode),
    MPT__LEVEL(code_peak),
    MPT__LEVEL(encode)
#endif
};

#undef MPT__VECTORS
#undef MPT__FOLD
#undef MPT__NORM_VECTORS
#undef MPT__NORM_FOLD
#endif

/* What the level said counts no more. */
#undef MPT__V
#undef MPT__LEVEL
#undef MPT__WIDTH
#undef MPT__FN
#undef MPT__OP
#undef MPT__ANY_UPDATE
#undef MPT__MOMENTS
#undef MPT__BELOW
#undef MPT__SLOWNESS
#undef MPT__STREAM
#undef MPT__GATE
#undef MPT__HALVES_COPY
#undef MPT__U8_TO_HALF
#undef MPT__TILE_FEW
#undef MPT__TILE_MIDDLE
#undef MPT__TILE_ROWS
#undef MPT__DIRECT_ROWS
#undef MPT__CHUNK_ROWS
#undef MPT__RATE
#undef MPT__IN_PLACE
#undef MPT__OWN_SCALE
#undef MPT__OWN_ROWS
#undef MPT__ROW_START
#undef MPT__ROW_STEP
