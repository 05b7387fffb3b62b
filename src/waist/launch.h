/* ----
 * waist/launch.h: the waist. Above it ops, modules and optimizers; below it backends.
 *
 * Ops lower to launches; a backend executes launches and nothing else. A launch names storages by
 * id and device scalars by slot, never by pointer, so that it can be printed, counted, recorded,
 * replayed on other memory, or put into a graph. Whatever varies from step to step (learning rate,
 * loss scale, step counters, found_inf) lives in device scalars: a recorded launch stays valid.
 * ---- */
#ifndef MPT__WAIST_LAUNCH_INCLUDED
#define MPT__WAIST_LAUNCH_INCLUDED

#include "face/models.h"
#include "waist/functions.h"

#define MPT__MAX_OPERANDS 10
#define MPT__MAX_SLOTS 8
#if !defined(MPTRAIN_NO_CONV) || !defined(MPTRAIN_NO_ATTENTION)
#define MPT__HAS_NORMS
#endif

/* ==== Operands ==== */

typedef enum mpt__access {
    MPT__READ = 1,
    MPT__WRITE = 2, /* every element is written, nothing is read */
    MPT__READ_WRITE = 3,
    MPT__ACCUMULATE = 4 /* out += result, the sum rounded once to the operand's dtype */
} mpt__access;

/* A strided view of a storage. Offsets and strides count elements; a stride of 0 broadcasts (reads
   only); strides are never negative. storage 0 means that an optional operand is absent. */
typedef struct mpt__operand {
    uint32_t storage;
    uint8_t dtype;                 /* mpt_dtype */
    uint8_t rank;                  /* 0..8 */
    uint8_t access;                /* mpt__access */
    int16_t scale_slot, amax_slot; /* fp8: slots of the scale and of the running maximum; -1 none */
    int64_t offset;
    int64_t shape[MPT_MAX_RANK];
    int64_t stride[MPT_MAX_RANK];
} mpt__operand;

/* ==== Kernels ====
 *
 * MPT__KERNELS(K): K(ID, name, effect): a backend has it as mpt__cpu_name or mpt__cuda_name, and
 * this one list fills the tables of both. effect is 1 where the kernel changes state (weights,
 * moments, counters) and must not be repeated by a recompute.
 *
 * o0, o1 .. are positions in operand[]; an optional operand (?) that is absent keeps its place
 * (storage 0). r: read, w: written, a: may accumulate instead. "gate": nothing is written while the
 * error word is set, nor while the scalar of the found_inf slot, where one is given, is not 0.
 * Arithmetic is fp32 on values converted on load and rounded once on store (integer dtypes of COPY
 * and EQUAL: exact). Elements are counted in logical row-major order. Sums have a fixed tree of
 * fixed chunks.
 *
 * FILL      o0 w = imm[0], any dtype.
 * COPY      o1 wa = o0 r: any dtypes and strides, equal shapes. Float to integer truncates and
 *           saturates, NaN gives 0; to fp8 saturates.
 * UNARY     o1 wa = fn(o0 r), equal shapes; c = imm[0], d = imm[1]; s = slot[0].
 * BINARY    o2 wa = fn(o0 r, o1 r), equal shapes (broadcast by stride 0); c and d as above.
 * REDUCE    o1 wa = fn over the dimensions of o0 r in which o1 has size 1 (equal ranks): SUM, MEAN,
 *           MAX (NaN wins), PROD.
 * SQUARES   o1 rw, the sums of squares of o0 r, or of what differs from o2? rw, the means, over
 *           the dimensions in which o1 has size 1, *= imm[0]; index[0] = 1 takes the root. Sums
 *           that fp32 does not hold, being infinite or below 1e-30, are formed again, from o0 in
 *           double, and so are means that are not finite. o1 and o2 are f32, dense, of equal
 *           shapes.
 * ARGMAX    o1? w i64: index along dimension index[0] of the first maximum (fn MIN: minimum) of o0
 *           r, the first NaN before all; o2? w: that value. Both have size 1 there.
 * SCATTER_AXIS  o2 wa = 0, but along dimension index[0], at index o0 r (i64), the value of o1 r; o0
 *           and o1 have size 1 there. index[1] = 1: a bad index is an error, as of GATHER.
 * GEMM      o3 wa [.., M, N] = act(imm[0] * o0 r [.., M, K] o1 r [.., K, N] + o2? r); equal ranks
 *           >= 2, any strides, batch dimensions broadcast by stride 0; o2, the bias, has the shape
 *           of o3 with strides 0 where it broadcasts. compute_dtype F16 or BF16 rounds o0, o1, o2
 *           to it on load; accumulation is fp32; act only with w. K may be 0.
 * SOFTMAX   o0 r -> o1 w of equal shape along dimension index[0]; fn SOFTMAX or LOG_SOFTMAX.
 * SOFTMAX_BACKWARD  o0 r = y, o1 r = dy -> o2 wa = dx; fn, index as above.
 * DROPOUT   o1 wa = kept ? o0 r * float(1 / (1 - p)) : 0 with p = imm[0]; element i is kept when
 *           its 32 random bits >= p 2^32 (p = 1: none is). rng, with slot[0] (step, i64) mixed in.
 * RANDOM    o0 w from rng: UNIFORM imm[0] + (imm[1] - imm[0]) u, but at most imm[2], the number of
 *           o0's dtype below imm[1], which rounding would reach; or NORMAL with mean imm[0] and
 *           deviation imm[1]; the same bits on every backend and ISA. slot[1], if it is
 *           set, holds a number (i64) to be added to the key's call.
 * NLL       o0 r log-probabilities [N, C], o1 r targets i64 [N], o2? r weights [C] f32 -> o3 w loss
 *           f32 [1] (MEAN, SUM) or [N] (NONE), o4 w f32 [1]: the divisor, i.e. the sum of the kept
 *           weights (1 unless MEAN). index[0] = ignore_index. A bad target sets the error word
 *           {MPT_ERROR_INDEX, launch number, sample, position} if it is clear, and counts as
 *           ignored; index[1] = rows of a sample where it has more than one, else 0.
 * NLL_BACKWARD  o0 r targets, o1? r weights, o2 r divisor, o3 r dloss ([1] or [N]) -> o4 wa [N, C],
 *           every element. index[0], reduction as above.
 * CROSS_ENTROPY  as NLL, o0 r logits; o5 w f32 [N, 2]: log-sum-exp of each row in two parts, the
 *           maximum and the rest, so that large logits lose no digits; imm[0] label smoothing.
 * CROSS_ENTROPY_BACKWARD  o0 r logits, o1 r targets, o2? r weights, o3 r divisor, o4 r dloss, o5? r
 *           log-sum-exp (absent: o0 holds log-probabilities) -> o6 wa dlogits [N, C].
 * GRAD_NORM  o0 r gradients f32 (a block), o1 r segments; slot[0] multiplier; slot[1] found_inf:
 *           set to 1 when an element, or its product with the multiplier, is non-finite; slot[2]
 *           out: norm of the products, index[1] says which (mpt__norm; sums in double); with
 *           index[0] = 1 joined to the norm that stands there, as in sqrt(old^2 + sum); slot[3]
 *           loss scale: first multiplier = float(1 / scale) and found_inf = 0. A slot 0 is left
 *           out.
 * GRAD_SCALE  o0 rw gradients *= slot[0], over o1 r segments; then clamped to +-imm[0] if > 0.
 * SGD       o0 rw params (any float dtype; with a master only written), o1? rw master f32, o2 r
 *           gradients f32, o3? rw momentum f32, o4 r segments, o5 rw step counts i64, o7? r rates
 *           f64 [n] or [2, n]. slot[0] lr, with rates their entry at clamp(slot[3] - slot[4], 0,
 *           n - 1) (both i64), with two rows the second one's for imm[0]; slot[1] multiplier of the
 *           gradients; slot[2] found_inf; imm: momentum, dampening, decay; index[0]: Nesterov. With
 *           index[1] = 1 the step counts of all segments += 1 at the end, with 2 also slot[3], the
 *           applied steps. A step count of 0 copies g to momentum. index[2] = 1: gradients count
 *           with the other sign. index[3] = 1: o0 is bf16, without a master, and rounded
 *           stochastically: element i of the block (the operand's offset counts) by word i of rng,
 *           with the step count mixed into its stream. Gate.
 * ADAM      o0..o5 as SGD with o3 = m, o6 rw v. imm: beta1, beta2, eps, decay; index[0] = 1:
 *           decoupled decay. t = step count + 1. Gate.
 * CLIP      slot[0] multiplier (0: none) *= min(1, imm[0] / (slot[1] norm + 1e-6)), in fp32; o0? w
 *           f32 [1] = norm. slot[3] (0: only looks) steps applied: a norm that is not finite,
 *           unless slot[2] (0: none) holds a found_inf that will skip the step, sets the error word
 *           where index[0] is 1, else is noted in CLIPPED; a later one of the same count takes that
 *           back.
 * SCALAR_SET  slot[0] = imm[0] as double if index[0] is 0, else index[1] as integer.
 * SCALAR_OR  slot[0] = (slot[1] | slot[2]) != 0, integers.
 * SCALE_LOSS  UNARY MUL_SLOT, and slot[1] = 1 when an element of o0 is not finite; slot[2] (0:
 *           none) = slot[0] as an fp32 in the first bytes.
 * SCALER_UPDATE  slot[0] scale (a double that holds a float), slot[1] tracker, slot[2] found_inf of
 *           this update, slot[3] updates, slot[4] skipped, slot[5] skipped in a row, slot[6] last
 *           skipped update, slot[7] outcome, where slots from 3 on may be 0: not counted; imm:
 *           growth, backoff, floor, ceiling (0: none); index[0] interval, index[1]: fixed scale.
 *           amp-spec 2.3 with tracker >= interval. While the error word is set nothing changes.
 * METRIC_ADD  slot[0] sum += o0 r [1], slot[1] count (i64) += 1.
 * CUMSUM    o1 wa = sums of o0 r, of equal shape, along dimension index[0] up to each element,
 *           index[1]: from it to the end; the sum under way is a double.
 * GATHER    o2 wa: along dimension index[0], element j is element o1[j] (i64) of o0 r; o1 and o2
 *           have equal shapes, o0 has its own size there. o1 absent: element index[1] + index[2] j.
 *           A bad index, which gives 0, sets the error word {MPT_ERROR_INDEX, launch number, -1 -
 *           the first such element of o1} if it is clear; dimensions of stride 0 do not count.
 * SCATTER_ADD  o2 rw: along dimension index[0], element o0[j] (r, i64) += element j of o1 r, in the
 *           order of j; o0 and o1 have equal shapes. A bad index, which adds nothing: as GATHER.
 * TRIANGLE  o1 wa = o0 r where column - row, of the last two dimensions, is <= index[0] (index[1] =
 *           1: >=), else 0; equal shapes.
 * FIND_NONFINITE  slot[0] = index of the first non-finite element of o0 r, or -1.
 * MOMENTS   o0..o7 as ADAM, o6? and o8? rw further moments; imm and moments by function: see
 *           MPT__UPDATES in waist/functions.h. Gate.
 *           Moments of these three that are u8: bytes. A segment's begin at its place and are
 *           floats; or, the place being below 0, at ~place: a code for each element of what is one
 *           parameter, then (mpt__code_peaks) an fp32 for each block, its largest magnitude, which
 *           values of codes are multiples of. o9 r: the table of codes.
 * AVERAGE   o0 rw averages f32, o1 r values (any float dtype), dense: o0 += (1 - d)(o1 - o0) with
 *           d = imm[0], or, with n = slot[2] updates so far, min(imm[0], (1 + n) / (10 + n)) where
 *           index[0] is 1, n / (n + 1) where it is 2; at first o0 = o1. With index[1] = 1, slot[1]
 *           = slot[0] and slot[2] += 1 at the end. Nothing while they are equal (i64). Gate.
 * PAIR_LOSS o0 r, o1 r, o2? r, o3? r (1 where absent), of equal shapes (broadcast by stride 0) ->
 *           o4 w: fn of each element (NONE, of that shape), or the sum of all over imm[2] (else,
 *           one element); p = imm[0], r = imm[1]. BCE: an element of o0 outside
 *           [0, 1] sets the error word {MPT_ERROR_NUMERIC, launch number, element} if it is clear.
 * PAIR_LOSS_BACKWARD  o0 .. o3 as above, o4 r dloss -> o5 wa: the slope of fn by operand index[0],
 *           times dloss over imm[2].
 * ARGSORT   o1 w i64: the indices along dimension index[0] that put o0 r in order, as many as o1
 *           has places there, the size of o0 or fewer. fn MAX: the largest first. NaN counts as the
 *           largest; equal ones keep their order.
 * INTERPOLATE  o0 r [N, C, H, W] -> o1 wa [N, C, H2, W2] by mpt__resize_way index[0]; imm[0] and
 *           imm[1]: rows and columns of o0 per one of o1.
 * INTERPOLATE_BACKWARD  o0 r dy -> o1 wa dx; index, imm as above. Each element of dx sums its
 *           shares in the order of dy's.
 */
#define MPT__KERNELS(K) \
    MPT__CORE_KERNELS(K) \
    MPT__CONV_KERNELS(K) MPT__NORM_KERNELS(K) MPT__ATTENTION_KERNELS(K) MPT__FP8_KERNELS(K) \
    MPT__RECURRENT_KERNELS(K) MPT__GATE_KERNELS(K) MPT__PROGRAM_KERNELS(K)
#define MPT__CORE_KERNELS(K) \
    K(FILL, fill, 0) \
    K(COPY, copy, 0) \
    K(UNARY, unary, 0) \
    K(BINARY, binary, 0) \
    K(REDUCE, reduce, 0) \
    K(SQUARES, squares, 0) \
    K(ARGMAX, argmax, 0) \
    K(SCATTER_AXIS, scatter_axis, 0) \
    K(GEMM, gemm, 0) \
    K(SOFTMAX, softmax, 0) \
    K(SOFTMAX_BACKWARD, softmax_backward, 0) \
    K(DROPOUT, dropout, 0) \
    K(RANDOM, random, 0) \
    K(NLL, nll, 0) \
    K(NLL_BACKWARD, nll_backward, 0) \
    K(CROSS_ENTROPY, cross_entropy, 0) \
    K(CROSS_ENTROPY_BACKWARD, cross_entropy_backward, 0) \
    K(GRAD_NORM, grad_norm, 1) \
    K(GRAD_SCALE, grad_scale, 1) \
    K(SGD, sgd, 1) \
    K(ADAM, adam, 1) \
    K(CLIP, clip, 1) \
    K(SCALAR_SET, scalar_set, 1) \
    K(SCALAR_OR, scalar_or, 1) \
    K(SCALE_LOSS, scale_loss, 1) \
    K(SCALER_UPDATE, scaler_update, 1) \
    K(METRIC_ADD, metric_add, 1) \
    K(FIND_NONFINITE, find_nonfinite, 0) \
    K(MOMENTS, moments, 1) \
    K(AVERAGE, average, 1) \
    K(PAIR_LOSS, pair_loss, 0) \
    K(PAIR_LOSS_BACKWARD, pair_loss_backward, 0) \
    K(CUMSUM, cumsum, 0) \
    K(GATHER, gather, 0) \
    K(SCATTER_ADD, scatter_add, 0) \
    K(TRIANGLE, triangle, 0) \
    K(ARGSORT, argsort, 0) \
    K(INTERPOLATE, interpolate, 0) \
    K(INTERPOLATE_BACKWARD, interpolate_backward, 0)

/* ---- Convolutions ----
 *
 * Between an image x [N, H, W, C] and an image y [N, OH, OW, O], both dense, by a kernel w [O, KH,
 * KW, C / groups], dense: y[n, i, j, o] = sum over a, b, c of w[o, a, b, c] times x[n, i stride -
 * pad + a dilation, j .., first channel of o's group + c], zero outside. Each launch computes one
 * of the three: o0 is x, o1 w, o2 y or its gradient. index[0] groups, index[1] stride, index[2] pad
 * before the first line and pixel, index[3] dilation, each MPT__TWO(along lines, along pixels).
 * compute_dtype F16 or BF16 rounds what is read to it; accumulation is fp32.
 *
 * CONV                  o0 r, o1 r, o2 wa = act(y + o3? r, the bias [O], + o4? r, which lies as o2
 *                       does and is of its dtype; it and act, NONE or RELU, only with w). imm[0] =
 *                       1: o3 is not rounded on load.
 * CONV_BACKWARD_INPUT   o0 wa = what y's gradient o2 r is to x by o1 r, + o3? r, a bias [C], with
 *                       o4 and act as above.
 * CONV_BACKWARD_WEIGHT  o0 r, o1 wa, o2 r.
 * imm[1] = 1, where the backend takes planes: o0 .. o2 lie as dense [N, C, H, W] and [O,
 * C / groups, KH, KW]; strides and dilations are 1, paddings less than the kernel, and o4 is
 * absent. Backward: where o5? r, which lies as o2 and is of its dtype, is <= 0, o2 counts as 0;
 * o3? wa of WEIGHT: the sums of o2, [O]. */
#define MPT__CONV_KERNELS(K) \
    K(CONV, conv, 0) \
    K(CONV_BACKWARD_INPUT, conv_backward_input, 0) \
    K(CONV_BACKWARD_WEIGHT, conv_backward_weight, 0)
#define MPT__TWO(lines, pixels) ((int64_t)(lines) << 32 | (int64_t)(pixels))
#define MPT__TWO_AT(pair, d) ((pair) >> ((d) ? 0 : 32) & 0x7fffffff)

/* ---- Normalisation, pooling ----
 *
 * NORM      [N, G, C, S] o0 r x, o1? r residual, o2? r weight and o3? r bias, dense [G C] -> o4 w y
 *           = (s - mean) rstd weight + bias with s = x, or x + residual rounded to the dtype of o5
 *           w, where that goes; o6? mean (absent: 0), o7 w rstd = 1 / sqrt(variance + imm[0]), 0
 *           where that is infinite; o8? variance (over n); each dense. index[0] = 0: statistics of
 *           every [n, g]; 1: of every c, G being 1, and the residual is added to y. index[1] = 1:
 *           o6 and o8 are read, else written. index[2] = 1: y is relu of that.
 * NORM_BACKWARD  o0 r s, o1 r dy, o2? r weight, o3? r mean, o4 r rstd, o5? r gradient of s from
 *           elsewhere, or y with index[2] = 1: where it is <= 0, dy counts as 0 -> o6? wa ds, o7?
 *           wa dweight, o8? wa dbias, o9? wa dresidual (of index[0] = 1). index as above.
 * RUNNING_STATS  o2 r [2, C] f32 (means; variances) and o3 r [2] i64 (updates; refused ones) -> o4
 *           w, o5 w: copies, or, with o0 r mean and o1 r variance of a batch [C] f32, those of old
 *           + imm[0] (new - old), imm[1] times the variance being the new one; imm[0] < 0: 1 / the
 *           count of updates. A result that is not finite: copies, and one more refused. Gate.
 * POOL      o0 r x [N, C, H, W] -> o1 w y [N, C, OH, OW]: fn MAX (NaN wins) or MEAN of the elements
 *           of each window; o2? w u8 or i32: which of them, counted line by line, was the first
 *           maximum. index[0..2]: window, step and padding, those of H times 2^32 plus those of W;
 *           index[3] = 1: the padding counts in means; 2: element i begins at floor(i in / out)
 *           and ends at ceil((i + 1) in / out); 4: a maximum that is <= 0 was none, 255 or -1.
 * POOL_BACKWARD  o0 r dy, o1? r as o2 above (MAX) -> o2 wa dx. fn, index as above.
 */
#define MPT__NORM_KERNELS(K) \
    K(NORM, norm, 0) \
    K(NORM_BACKWARD, norm_backward, 0) \
    K(RUNNING_STATS, running_stats, 1) \
    K(POOL, pool, 0) \
    K(POOL_BACKWARD, pool_backward, 0)

/* ---- Embedding, attention ----
 *
 * EMBEDDING o2 w [n, D] = the rows of o0 r [V, D] that o1 r [n] (i64) names; a bad index: as
 *           GATHER.
 * EMBEDDING_BACKWARD  o2 wa f32 [V, D]: row o0 r [n] (i64) += row j of o1 r [n, D], in the order of
 *           j; rows of index[0] are left out. A bad index, which adds nothing: as GATHER.
 * ATTENTION o4 w [B, H, T, Dv] = softmax(s) o2 r [B, G, S, Dv], with the scores s = imm[0] o0 r [B,
 *           H, T, D] o1 r [B, G, S, D]^T + o3? r [B, H, T, S] (BOOL: 0 and -infinity); head h meets
 *           head h G / H of o1 and o2, and G divides H. index[0] = 1: query t sees keys up to t +
 *           index[2], of them the last index[1] where that is not 0. A query that sees nothing gets
 *           0. o5? w f32 [B, H, T, 1]: log-sum-exp of its scores, +infinity where it sees nothing.
 *           imm[1]: probability of dropout on the softmax; weight [b, h, t, s] draws word ((b H +
 *           h) T + t) S' + s of rng, as DROPOUT, with S' = S rounded up to 4. compute_dtype rounds
 *           o0 to o2 as in GEMM, at times weights; else fp32.
 * ATTENTION_DQ  o0 .. o3 as above, o4 r log-sum-exp, o5 r dout, o8 r out -> o6 w f32 [B, H, T, 1]:
 *           sums of dout out, o7? wa dq.
 * ATTENTION_DKV  o0 .. o5 as in ATTENTION_DQ, o6 r -> o7? wa dk, o8? wa dv, on CPUs o9? wa dq.
 * ROPE      o1 wa [B, H, T, D] = o0 r, where pair i of D / 2 is turned by imm[1] (index[0] + t)
 *           imm[0]^(-2 i / D) radians: elements i and i + D / 2, or with index[1] = 1 elements 2 i
 *           and 2 i + 1. Angles are doubles, products and sums fp32.
 * HASH_GRID o2 w [N, L F]: of level l the sum of weights times entries of o0 r [L, T, F], at
 *           the 2^D corners of the cell in which o1 r [N, D], D 2 or 3, lies among R^D, R being
 *           floor(index[0] exp(l imm[0]) + 1e-6); what is not within 0 and 1 is at the edge. A
 *           weight is the product of the parts of the cell on the other side, in doubles, rounded.
 *           Corner p is entry sum p_d (R + 1)^d where (R + 1)^D <= T, else p_d times 1, 2654435761
 *           and 805459861, of 32 bits, by exclusive or, modulo T.
 * HASH_GRID_BACKWARD  o0 r [N, D], o1 r [N, L F] -> o2 wa f32 [L, T, F], dense: the same entries +=
 *           weights times o1, in the order of N, then of corners, whose bit d is p_d's. */
#define MPT__ATTENTION_KERNELS(K) \
    K(EMBEDDING, embedding, 0) \
    K(EMBEDDING_BACKWARD, embedding_backward, 0) \
    K(ATTENTION, attention, 0) \
    K(ATTENTION_DQ, attention_dq, 0) \
    K(ATTENTION_DKV, attention_dkv, 0) \
    K(ROPE, rope, 0) \
    K(HASH_GRID, hash_grid, 0) \
    K(HASH_GRID_BACKWARD, hash_grid_backward, 0)

/* ---- fp8 ----
 *
 * The state of a tensor that is kept in fp8 is a row of f32: scale, a power of two; largest finite
 * magnitude since the last update; those before the updates so far, the latest first.
 *
 * FP8_SCALE   o0 r [n] -> o1 w [n], both dense; o2? r or rw a state (absent: a scale of 1).
 *             index[0] (mpt__fp8_way): o1 is fp8 and o0 scale, where SCALE saturates what was
 *             finite and leaves infinities to overflow, NONSAT lets all overflow (E4M3: NaN, E5M2:
 *             infinity), SATURATE none; WIDEN: o1 is float and o0 / scale. o2 rw: its magnitude
 *             takes part.
 * FP8_UPDATE  o0 rw states [rows, width]: the magnitude of now becomes 0; with index[0] = 1 it
 *             enters the history first, and the scale becomes 2^(floor(log2(limit / largest in the
 *             history)) - index[1]), limit being 448 in rows 0 and 1, else 57344; with a history of
 *             zeros it stays. Exponents are within +-MPT__FP8_POWERS. Gate. */
#define MPT__FP8_KERNELS(K) \
    K(FP8_SCALE, fp8_scale, 0) \
    K(FP8_UPDATE, fp8_update, 1)
typedef enum mpt__fp8_way {
    MPT__FP8_SCALE,
    MPT__FP8_NONSAT,
    MPT__FP8_SATURATE,
    MPT__FP8_WIDEN
} mpt__fp8_way;
enum { MPT__FP8_SCALE_NOW, MPT__FP8_AMAX, MPT__FP8_HISTORY }; /* in a state */
enum { MPT__FP8_POWERS = 100, MPT__FP8_LONGEST = 1024 };

/* ---- Gates ----
 *
 * A bit for each of n elements in a row, 16 words for every 512 of them: bit k of word 16 g + j is
 * that of element 512 g + 16 k + j, so that vectors of any width make the words.
 *
 * GATE_BITS  o0 r [n] f32, f16 or bf16 -> o1 w i32: where o0 is not 0.
 * GATE_OPEN  o0 r i32 -> o1 w [n]: 1 and 0. */
#ifdef MPTRAIN_NO_FRUGAL
#define MPT__GATE_KERNELS(K)
#else
#define MPT__GATE_KERNELS(K) \
    K(GATE_BITS, gate_bits, 0) \
    K(GATE_OPEN, gate_open, 0)
#endif
#define MPT__GATE_GROUP 512
#define MPT__GATE_WORDS 16

/* ---- Programs ----
 *
 * PROGRAM   index[1] launches in one, which stand index[0] launches behind it: see
 *           cpu/program.c. */
#ifdef MPTRAIN_COMPILE
#define MPT__PROGRAM_KERNELS(K) K(PROGRAM, program, 0)
#else
#define MPT__PROGRAM_KERNELS(K)
#endif
#define MPT__PROGRAM_MEMBERS 8

/* ---- Recurrent cells ----
 *
 * A step of B sequences by a cell, index[0], of H numbers; all operands are [B, n] with neighbours
 * in a row, n being H or G H with G gates side by side: 1; LSTM: 4, i f g o; GRU: 3, r z n. Slopes
 * are those of the loss. A sequence whose o(lengths) <= index[1], the step's number, is over: it
 * gives 0, and what its state is stays.
 *
 * RECURRENT  o0 rw: what x gives to the gates, in; the gates, out. o1? r: what the state gives, o2?
 *           r [G H]: its bias; absent: 0. o3? r: LSTM c, GRU h before, absent: 0; o4? w: LSTM c,
 *           GRU the third part of o1 + o2. o5 w h. o6? r lengths i64 [B], o7? w h that stays, where
 *           a sequence is over o8? r, absent: 0. CARRY: o5 w = o1 r, n any.
 * RECURRENT_BACKWARD  o0 r gates, o3? r and o4 r as above; o5? r slope by h; o6 rw slope by the
 *           state after, which becomes what of that by the state before does not go through o2; o7
 *           rw the same of c (LSTM). o1 w slopes by what x gives, o2? w by what the state gives
 *           (GRU; those of others are o1). o8? r lengths. CARRY: o1 w = o5 + o6, which becomes
 *           0.
 *
 * All steps in one launch, where the backend unrolls: index[2] is their number, index[1]: backwards
 * in time. What differs from step to step is [T, B, ..]; products are of compute_dtype.
 * RECURRENT  o1 r is the weight [G H, H], o3? r h and o8? r c before the first step; o4 may be
 *           [B, H].
 * RECURRENT_BACKWARD  o9 r is the weight, o3? r what the first step began with: c of an LSTM, else
 *           h; o7 r the states (GRU); o6 becomes the slope by h before that step if index[3]. */
#define MPT__RECURRENT_KERNELS(K) \
    K(RECURRENT, recurrent, 0) \
    K(RECURRENT_BACKWARD, recurrent_backward, 0)
typedef enum mpt__cell {
    MPT__CELL_TANH,
    MPT__CELL_RELU,
    MPT__CELL_LSTM,
    MPT__CELL_GRU,
    MPT__CELL_CARRY
} mpt__cell;

typedef enum mpt__kernel {
#define MPT__ROW(id, name, effect) MPT__K_##id,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
        MPT__KERNEL_COUNT
} mpt__kernel;

/* ==== Pair losses ====
 *
 * R(ID, word, of, word, of, value, slope by a, by b, by c): what PAIR_LOSS computes, in each
 * backend's own arithmetic. a, b, c, d: elements of o0 .. o3; s = a - b; e and l: the words (EXP,
 * LOG, SQRT, NONE) of the expressions before them, the second of which may use e. In the formulas
 * NaN stays NaN, and what has no weight counts nothing, though it may be infinite. They are without
 * branches that data could make hard to foresee. */
#define MPT__FLOOR(x, y) ((x) < (y) ? (y) : (x))
#define MPT__CEILING(x, y) ((x) > (y) ? (y) : (x))
#define MPT__ABS(x) MPT__FLOOR(x, -(x))
#define MPT__SIGN(x) ((float)(((x) > 0) - ((x) < 0)))
#define MPT__RAMP(x) ((x) < 0 ? 0 : (x))
#define MPT__PRODUCT(weight, x) \
    ((weight) * (x) == (weight) * (x) || (weight) != 0 ? (weight) * (x) : 0)
/* x where the condition holds, else y; both finite */
#define MPT__PICK(condition, x, y) ((float)(condition) * (x) + (float)!(condition) * (y))
/* log(1 + e) for e >= 0 from l = log of the rounded 1 + e (Higham, Accuracy and Stability 1.14) */
#define MPT__LOG1P(e, l) (1 + (e) == 1 ? (e) : (l) * ((e) / (1 + (e)-1)))
#define MPT__PAIRS(R) \
    R(MSE, NONE, 0, NONE, 0, s *s, 2 * s, -2 * s, 0) \
    R(L1, NONE, 0, NONE, 0, MPT__ABS(s), MPT__SIGN(s), -MPT__SIGN(s), 0) \
    R(SMOOTH_L1, NONE, 0, NONE, 0, \
      MPT__CEILING(MPT__ABS(s), p) * (MPT__ABS(s) - 0.5f * MPT__CEILING(MPT__ABS(s), p)) / p, \
      MPT__FLOOR(MPT__CEILING(s, p), -p) / p, -MPT__FLOOR(MPT__CEILING(s, p), -p) / p, 0) \
    R(HUBER, NONE, 0, NONE, 0, \
      MPT__CEILING(MPT__ABS(s), p) * (MPT__ABS(s) - 0.5f * MPT__CEILING(MPT__ABS(s), p)), \
      MPT__FLOOR(MPT__CEILING(s, p), -p), -MPT__FLOOR(MPT__CEILING(s, p), -p), 0) \
    R(BCE_WITH_LOGITS, EXP, -MPT__ABS(a), LOG, 1 + e, \
      c * (MPT__PRODUCT(1 - b, MPT__RAMP(a)) + MPT__PRODUCT(d * b, MPT__RAMP(-a)) + \
           (1 + (d - 1) * b) * MPT__LOG1P(e, l)), \
      c * ((1 - b) * MPT__PICK(a < 0, e, 1) - d * b * MPT__PICK(a < 0, 1, e)) / (1 + e), \
      c * ((d - 1) * (MPT__RAMP(-a) + MPT__LOG1P(e, l)) - a), 0) \
    R(BCE, LOG, a, LOG, 1 - a, -c * (b * MPT__FLOOR(e, -100) + (1 - b) * MPT__FLOOR(l, -100)), \
      c * (a - b) / MPT__FLOOR(a * (1 - a), 1e-12f), \
      c * (MPT__FLOOR(l, -100) - MPT__FLOOR(e, -100)), 0) \
    R(KL_DIV, LOG, b, NONE, 0, MPT__PRODUCT(b, e - a), -b, b == 0 ? 0 : e + 1 - a, 0) \
    R(KL_DIV_LOG, EXP, b, NONE, 0, MPT__PRODUCT(e, b - a), -e, MPT__PRODUCT(e, b - a + 1), 0) \
    R(GAUSSIAN_NLL, LOG, MPT__FLOOR(c, p), NONE, 0, 0.5f * (e + s * s / MPT__FLOOR(c, p)) + r, \
      s / MPT__FLOOR(c, p), -s / MPT__FLOOR(c, p), \
      0.5f * (1 - s * s / MPT__FLOOR(c, p)) / MPT__FLOOR(c, p)) \
    R(SOFT_MARGIN, EXP, -MPT__ABS(a *b), LOG, 1 + e, MPT__RAMP(-a * b) + MPT__LOG1P(e, l), \
      -b * MPT__PICK(a * b > 0, e, 1) / (1 + e), -a * MPT__PICK(a * b > 0, e, 1) / (1 + e), 0) \
    R(HINGE, NONE, 0, NONE, 0, \
      b == 1    ? a \
      : b == -1 ? MPT__RAMP(p - a) \
                : a + MPT__RAMP(p - a), \
      (b == -1 ? 0 : 1.0f) - (b != 1 && p - a > 0 ? 1.0f : 0), 0, 0) \
    R(RANKING, NONE, 0, NONE, 0, MPT__RAMP(p - c * s), p - c * s > 0 ? -c : 0, \
      p - c * s > 0 ? c : 0, (p - c * s > 0 ? -1.0f : 0) * s) \
    R(TRIPLET, NONE, 0, NONE, 0, MPT__RAMP(p + a - (r != 0 && c < b ? c : b)), \
      p + a - (r != 0 && c < b ? c : b) > 0 ? 1.0f : 0, \
      p + a - b > 0 && !(r != 0 && c < b) ? -1.0f : 0, \
      p + a - c > 0 && r != 0 && c < b ? -1.0f : 0) \
    R(COSINE_EMBEDDING, SQRT, (b + r) * (c + r), NONE, 0, \
      d == 1    ? 1 - a / e \
      : d == -1 ? MPT__RAMP(a / e - p) \
                : 0, \
      MPT__COSINE_SIGN / e, MPT__COSINE_SIGN * -0.5f * (a / e) / (b + r), \
      MPT__COSINE_SIGN * -0.5f * (a / e) / (c + r)) \
    R(SOFT_TARGETS, NONE, 0, NONE, 0, MPT__PRODUCT(c *(b * (1 - p) + r), -a), \
      -c *(b * (1 - p) + r), -MPT__PRODUCT(c *(1 - p), a), 0) \
    R(POISSON, LOG, a + p, LOG, b, a - b * e + MPT__STIRLING, 1 - b / (a + p), \
      MPT__STIRLING_DB - e, 0) \
    R(POISSON_LOG, EXP, a, LOG, b, e - b * a + MPT__STIRLING, e - b, MPT__STIRLING_DB - a, 0) \
    R(MULTI_MARGIN, NONE, 0, NONE, 0, \
      b != 0 ? 0 : d * MPT__RAMP(p - c + a) * (r == 2 ? MPT__RAMP(p - c + a) : 1), \
      b != 0 ? 0 : MPT__MARGIN_SLOPE, 0, b != 0 ? 0 : -MPT__MARGIN_SLOPE)
/* log b! as Stirling has it, where b > 1 */
#define MPT__STIRLING (r != 0 && b > 1 ? b * l - b + 0.5f * (1.837877066f + l) : 0)
#define MPT__STIRLING_DB (r != 0 && b > 1 ? l + 0.5f / b : 0)
#define MPT__MARGIN_SLOPE (p - c + a > 0 ? d * (r == 2 ? 2 * (p - c + a) : 1) : 0)
#define MPT__COSINE_SIGN (d == 1 ? -1.0f : d == -1 && a / e > p ? 1.0f : 0.0f)

/* The functions of UNARY, BINARY, REDUCE, SOFTMAX, RANDOM and MOMENTS. Those that give bool compare
   integers exactly. */
typedef enum mpt__function {
    MPT__FN_NONE = 0,
#define MPT__ROW(id, ns, value) MPT__FN_##id,
    MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW)
    MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
    /* reductions */
    MPT__FN_SUM,
    MPT__FN_MEAN,
    MPT__FN_MAX,
    MPT__FN_PROD,
    MPT__FN_MIN, /* of ARGMAX alone */
    /* softmax */
    MPT__FN_SOFTMAX,
    MPT__FN_LOG_SOFTMAX,
    /* random */
    MPT__FN_UNIFORM,
    MPT__FN_NORMAL,
    /* updates */
    MPT__FN_NO_UPDATE,
#define MPT__ROW(id, name, ns, eps, decay, ways) MPT__FN_##id,
    MPT__UPDATES(MPT__ROW)
#undef MPT__ROW
/* losses */
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) MPT__FN_##id,
    MPT__PAIRS(MPT__ROW)
#undef MPT__ROW
        MPT__FUNCTION_COUNT
} mpt__function;

/* The norms of GRAD_NORM: root of the sum of squares, sum of magnitudes, largest magnitude. */
typedef enum mpt__norm { MPT__NORM_2, MPT__NORM_1, MPT__NORM_MAX } mpt__norm;

/* Sums of squares below this may have lost what squares below fp32's range had. */
#define MPT__LEAST_SQUARES 1e-30f

/* Where INTERPOLATE finds element i, given the step s: at floor(i s); between the two elements
   around s (i + 1/2) - 1/2, or around s i, by their distance. */
typedef enum mpt__resize_way {
    MPT__RESIZE_NEAREST,
    MPT__RESIZE_CENTERS,
    MPT__RESIZE_CORNERS
} mpt__resize_way;

/* ==== Device scalars ==== */

/* One storage of 8-byte scalars. Slot 0 is never used; the first ones have a fixed meaning. */
typedef union mpt__scalar {
    double f;
    int64_t i;
} mpt__scalar;

enum {
    MPT__SLOT_NONE = 0,
    MPT__SLOT_ERROR,          /* i: mpt_status of the first device error, 0 = none */
    MPT__SLOT_ERROR_LAUNCH,   /* i: number of the launch that set it */
    MPT__SLOT_ERROR_INDEX,    /* i: the sample or element */
    MPT__SLOT_ERROR_POSITION, /* i: the position in the sample; -1: it has but one */
    MPT__SLOT_ERROR_VALUE,    /* i, or f where values are floats: what stands there */
    MPT__SLOT_ERROR_SIZE,     /* i: how many classes or rows there are */
    MPT__SLOT_CLIPPED,        /* i: slot[3] of a CLIP by a norm that was not finite, 0 = none */
    MPT__SLOT_CLIPPED_AT,     /* i: what stood there then; if there is more now, a step took it */
    MPT__SLOT_STEP,           /* i: step number, part of the dropout key */
    MPT__SLOT_DRAWS,          /* i: calls of RANDOM before a captured step */
    MPT__SLOT_ONE,            /* f: 1, a multiplier that does nothing */
    MPT__SLOT_ONE_F32,        /* 1 as an fp32 in the first bytes: what backward starts from */
    MPT__SLOT_NONFINITE,      /* i: result of FIND_NONFINITE */
    MPT__SLOT_FIRST_FREE,
    MPT__SLOT_COUNT = 1024
};

/* ==== Segments ==== */

/* Optimizer kernels run over segments of a block: an i64 storage of rows {offset, count, step count
   index, how many step counts from there on are its own, place of its moments where they are
   bytes}; the operand's shape is [n, 5]. Gaps between segments are left alone. */
enum {
    MPT__SEGMENT_OFFSET,
    MPT__SEGMENT_COUNT,
    MPT__SEGMENT_STEP,
    MPT__SEGMENT_STEPS,
    MPT__SEGMENT_PLACE,
    MPT__SEGMENT_FIELDS
};

/* ==== Launches ==== */

/* What a random kernel draws: element i of (seed, stream, call, step) is the same on every
   backend. */
typedef struct mpt__rng {
    uint64_t seed, stream, call;
} mpt__rng;

typedef struct mpt__launch {
    uint16_t kernel; /* mpt__kernel */
    uint8_t n_operands;
    uint8_t function;      /* mpt__function */
    uint8_t compute_dtype; /* GEMM, CONV..: MPT_F32, MPT_F16 or MPT_BF16 */
    uint8_t activation;    /* GEMM, CONV..: mpt_activation */
    uint8_t reduction;     /* losses: mpt_reduction */
    uint8_t phase;         /* origin: mpt__phase */
    uint32_t op_record;    /* origin: record number in the tape, 0 = none */
    uint16_t op;           /* origin: row of the op table */
    uint16_t slot[MPT__MAX_SLOTS];
    uint16_t path;     /* of a recorded one: its module's, as in the context; 0 = none or unknown */
    int64_t number;    /* of this launch in its context, from 1 */
    int64_t workspace; /* bytes that the backend asked for */
    double imm[4];
    int64_t index[4];
    mpt__rng rng;
    mpt__operand operand[MPT__MAX_OPERANDS];
} mpt__launch;

typedef enum mpt__phase { MPT__FORWARD, MPT__BACKWARD, MPT__UPDATE, MPT__OTHER } mpt__phase;

/* What a backend needs to resolve a launch. `data` is indexed by storage id; entry 0 is NULL. */
typedef struct mpt__execution {
    void *const *data;
    mpt__scalar *scalars; /* where the device has them */
    void *workspace;
} mpt__execution;

/* A backend. All functions get `self`. Memory is 256-byte aligned device memory. Launches
   execute in order; `launch` may return before the work is done, `synchronize` waits for it. A
   status other than MPT_OK means that the backend failed, with `error` holding a sentence. */
typedef struct mpt__backend {
    const char *name;
    void *self;
    bool synchronous; /* results and scalars can be read on the host right after `launch` */
    bool planes;      /* CONV.. takes images that lie channel by channel */
    uint32_t unrolls; /* bits of the dtypes in which RECURRENT takes all steps in one launch */
    char error[256];
    bool (*implements)(void *self, mpt__kernel kernel);
    void (*describe)(void *self, mpt_device_info *info);         /* NULL: it is the CPU */
    int64_t (*workspace)(void *self, const mpt__launch *launch); /* NULL: none is ever needed */
    mpt_status (*launch)(void *self, const mpt__execution *execution, const mpt__launch *launch);
    void *(*allocate)(void *self, size_t bytes); /* NULL: the context's own allocator serves */
    void (*release)(void *self, void *pointer, size_t bytes);
    mpt_status (*upload)(void *self, void *destination, const void *source, size_t bytes);
    mpt_status (*download)(void *self, void *destination, const void *source, size_t bytes);
    mpt_status (*synchronize)(void *self);
    /* NULL: launches are done when they return. What the program queues work of its own on, on the
       calling thread, in order with launches; NULL if what it queued before went wrong. */
    void *(*stream)(void *self);
    /* Where `synchronous` is false: host memory that `snapshot` can write to, and a download into
       it that is done some time later, at the latest by the next `synchronize`; nobody may touch it
       until then. `place` 0 or 1 tells two such downloads apart, and `landed` whether the last one
       to that place is done. */
    void *(*allocate_host)(void *self, size_t bytes);
    void (*release_host)(void *self, void *pointer);
    /* NULL: none. Page-locked host memory for uploads, NULL where no more is to be had. An upload
       from it returns before it is read. stage_settle waits until it has been; the next upload from
       it writes when what was launched until then is done. */
    void *(*stage_new)(void *self, size_t bytes);
    mpt_status (*stage_settle)(void *self, void *stage);
    void (*stage_free)(void *self, void *stage);
    mpt_status (*snapshot)(void *self, int place, void *destination, const void *source,
                           size_t bytes);
    bool (*landed)(void *self, int place);
    /* Launches between begin and end are not executed but put into a graph, which runs them as
       often as wanted on the memory that they had then. NULL: no graphs; end with NULL drops it. */
    mpt_status (*graph_begin)(void *self);
    mpt_status (*graph_end)(void *self, void **graph);
    mpt_status (*graph_run)(void *self, void *graph);
    void (*graph_destroy)(void *self, void *graph);
    double (*lap)(void *self); /* NULL, or waits: seconds of the device since the call before */
    /* NULL: there is nothing to choose. `benchmark`: of each new kind of matrix product the fastest
       way is found by timing and kept; else the library's first choice is taken, so that every run
       gives the same bits. `tf32`: fp32 products may round their operands to TF32. */
    void (*benchmark)(void *self, bool benchmark, bool tf32);
    /* The choices as text: a line that names card and libraries, then one per kind of product,
       with the algorithm, and times where it was timed. Returns the length; at most `capacity`
       bytes are written, the last one 0. */
    size_t (*benchmark_text)(void *self, char *text, size_t capacity);
    /* Keeps the choices of such a text for products not timed yet. MPT_ERROR_UNSUPPORTED: it is
       from another card or other libraries; nothing of it is used. MPT_ERROR_FORMAT: what stands
       before the bad line is kept. */
    mpt_status (*benchmark_read)(void *self, const char *text);
    /* Set by the context: hears what the user should know of a call that succeeds. */
    void (*warn)(void *listener, const char *text);
    void *listener;
    void (*counts)(void *self, int64_t *parallel_runs, int64_t by_thread[64]);
    void (*destroy)(void *self);
} mpt__backend;

#if defined(MPTRAIN_CUDA) || defined(__CUDACC__)
#if defined(__cplusplus)
extern "C" {
#endif
/* mptrain_cuda.cu. `version` is the caller's MPTRAIN_VERSION; debug waits after every launch. A
   status other than MPT_OK leaves the reason in backend->error. `backend` must not move. */
mpt_status mpt__cuda_backend_create(mpt__backend *backend, int version, int device, bool debug);
/* How many GPUs there are; where there are none, `why` gets the driver's words. */
int mpt__cuda_device_count(char *why, size_t size);
#if defined(__cplusplus)
}
#endif
#endif

#endif
