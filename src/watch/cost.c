/* ----
 * watch/cost.c: what a launch computes and moves, from its record alone.
 *
 * FLOP are counted as the field counts them: 2 M N K of a product, of a convolution the same with
 * its padding, of attention the pairs of query and key that see each other; what is computed by
 * element counts one for each word of its formula, an exponential like an addition. Bytes are those
 * of the elements that the kernel's contract reads and writes, each of them once: what a cache does
 * is not counted, nor is a workspace.
 * ---- */
#ifndef MPT__WATCH_COST_INCLUDED
#define MPT__WATCH_COST_INCLUDED

#include "watch/absent.c"

typedef struct mpt__cost {
    double flop, read, written; /* the latter two in bytes */
} mpt__cost;

/* ==== Elements ==== */

static double mpt__operand_numel(const mpt__operand *o) {
    double count = o->storage != 0;
    for (int d = 0; d < o->rank; d++) count *= (double)o->shape[d];
    return count;
}

/* Those that lie in memory: a dimension without a stride has one. */
static double mpt__operand_distinct(const mpt__operand *o) {
    double count = o->storage != 0;
    for (int d = 0; d < o->rank; d++)
        if (o->stride[d] != 0 || o->shape[d] == 0) count *= (double)o->shape[d];
    return count;
}

/* How many elements the segments of a launch have, where the host can see them; else what lies
   between the first one and the last. */
static double mpt__segments_numel(
    const mpt_context *ctx, const mpt__launch *launch, const mpt__operand *segments) {
    const int64_t *rows = ctx->backend.synchronous && !mpt__is_dry(&ctx->base) && segments->storage
        ? (const int64_t *)ctx->data[segments->storage]
        : NULL;
    double count = 0;
    if (!rows) return mpt__operand_numel(&launch->operand[0]);
    rows += segments->offset;
    for (int64_t i = 0; i < segments->shape[0]; i++, rows += MPT__SEGMENT_FIELDS)
        count += (double)rows[MPT__SEGMENT_COUNT];
    return count;
}

/* ==== By element ==== */

/* Words that choose, compare or are constants count nothing. */
static bool mpt__word_counts(const char *word) {
    static const char *const none[] = {
        "v_set", "v_zero", "v_select", "v_is_", "v_equal", "v_greater", "v_at_least"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (strncmp(word, none[i], strlen(none[i])) == 0) return false;
    return true;
}

/* How many of a function's formula count, by its text. */
static int mpt__function_words(int function) {
    static const char *const formulas[] = {"",
#define MPT__ROW(id, ns, value) #value,
        MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW) MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
    };
    const int functions = (int)(sizeof formulas / sizeof *formulas);
    const char *at = formulas[function < functions ? function : 0];
    int words = 0;
    while ((at = strstr(at, "v_")) != NULL) words += mpt__word_counts(at), at += 2;
    return words;
}

/* What each element of a rule's operand takes. */
typedef double (*mpt__each_fn)(const mpt__launch *launch);

static double mpt__each_none(const mpt__launch *l) { return (void)l, 0; }
static double mpt__each_1(const mpt__launch *l) { return (void)l, 1; }
static double mpt__each_2(const mpt__launch *l) { return (void)l, 2; }
static double mpt__each_3(const mpt__launch *l) { return (void)l, 3; }
static double mpt__each_4(const mpt__launch *l) { return (void)l, 4; }
static double mpt__each_5(const mpt__launch *l) { return (void)l, 5; }
static double mpt__each_function(const mpt__launch *l) { return mpt__function_words(l->function); }
static double mpt__each_square(const mpt__launch *l) { return l->operand[2].storage ? 3 : 2; }
static double mpt__each_scaled(const mpt__launch *l) { return l->imm[0] > 0 ? 3 : 1; }
static double mpt__each_resized(const mpt__launch *l) {
    return l->index[0] == MPT__RESIZE_NEAREST ? 0 : 7; /* four products, three sums */
}
/* The multiplier and the step; weight decay; momentum; Nesterov's look ahead. */
static double mpt__each_sgd(const mpt__launch *l) {
    return 3 + 2 * (l->imm[2] != 0) + (l->operand[3].storage ? 3 + 2 * (l->index[0] != 0) : 0);
}
/* The multiplier, decay, 3 for m, 4 for v, 6 for the step. */
static double mpt__each_adam(const mpt__launch *l) { return 14 + 2 * (l->imm[3] != 0); }
static double mpt__each_moments(const mpt__launch *l) {
    static const uint8_t words[] = {15, 9, 7, 13, 9}; /* in the order of MPT__UPDATES */
    const int row = l->function - MPT__FN_NO_UPDATE - 1;
    return words[row] + 2.0 * (l->operand[6].storage != 0) + 2.0 * (l->operand[8].storage != 0);
}
/* Mean and variance, unless they are given; difference, deviation, weight, bias, residual, relu. */
static double mpt__each_norm(const mpt__launch *l) {
    const mpt__operand *o = l->operand;
    return (l->index[1] == 1 ? 0 : 4) + 2 + (o[1].storage != 0) + (o[2].storage != 0) +
        (o[3].storage != 0) + (l->index[2] == 1);
}
/* What is normalised again; the two sums; the slope by s. */
static double mpt__each_norm_slope(const mpt__launch *l) {
    return 2 + 3 + (l->operand[6].storage ? 5 : 0) + (l->index[2] == 1);
}
/* Elements of a window; on average, where windows share out what there is. */
static double mpt__window(const mpt__launch *l, const mpt__operand *x, const mpt__operand *y) {
    double elements[2];
    for (int d = 0; d < 2; d++) {
        const int64_t in = x->shape[2 + d], out = y->shape[2 + d];
        int64_t all = 0;
        for (int64_t i = 0; i < out; i++) all += ((i + 1) * in + out - 1) / out - i * in / out;
        elements[d] = l->index[3] != 2 ? (double)MPT__TWO_AT(l->index[0], d)
            : out > 0                  ? (double)all / (double)out
                                       : 0;
    }
    return elements[0] * elements[1];
}
static double mpt__each_window(const mpt__launch *l) {
    return mpt__window(l, &l->operand[0], &l->operand[1]);
}
static double mpt__each_window_slope(const mpt__launch *l) {
    return l->function == MPT__FN_MAX ? 1 : mpt__window(l, &l->operand[2], &l->operand[0]);
}
static double mpt__each_cell(const mpt__launch *l) {
    static const uint8_t forward[] = {3, 3, 17, 14, 0}, backward[] = {4, 3, 24, 21, 1};
    return (l->kernel == MPT__K_RECURRENT ? forward : backward)[l->index[0]];
}

/* ==== Products ==== */

static double mpt__flop_gemm(const mpt__launch *l) {
    const mpt__operand *a = &l->operand[0], *out = &l->operand[3];
    const double extra =
        (l->operand[2].storage != 0) + (l->activation != MPT_ACTIVATION_NONE) + (l->imm[0] != 1);
    return mpt__operand_numel(out) * (2 * (double)a->shape[a->rank - 1] + extra);
}

static double mpt__flop_conv(const mpt__launch *l) {
    const mpt__operand *x = &l->operand[0], *w = &l->operand[1], *y = &l->operand[2];
    const double taps = w->shape[0] > 0 ? mpt__operand_numel(w) / (double)w->shape[0] : 0;
    const bool weight = l->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    const mpt__operand *out = l->kernel == MPT__K_CONV ? y : x;
    double extra = (l->operand[3].storage != 0) + (l->activation != MPT_ACTIVATION_NONE);
    if (weight) out = y, extra = l->operand[3].storage != 0;
    extra += !weight && l->operand[4].storage != 0;
    return 2 * mpt__operand_numel(y) * taps + extra * mpt__operand_numel(out);
}

/* How many pairs of a query and a key see each other, in each head. */
static double mpt__attention_pairs(const mpt__launch *l) {
    const int64_t queries = l->operand[0].shape[2], keys = l->operand[1].shape[2];
    double pairs = 0;
    if (l->index[0] != 1) return (double)queries * (double)keys;
    for (int64_t t = 0; t < queries; t++) {
        int64_t end = t + l->index[2] + 1, first = l->index[1] ? end - l->index[1] : 0;
        end = end < keys ? end : keys, first = first > 0 ? first : 0;
        pairs += end > first ? (double)(end - first) : 0;
    }
    return pairs;
}

/* Products of length D and Dv for each pair, and what is done with its score: scale, largest,
   difference, exponential, sum; backwards the exponential again and its slope. */
static double mpt__flop_attention(const mpt__launch *l) {
    const mpt__operand *q = &l->operand[0];
    const double d = (double)q->shape[3], dv = (double)l->operand[2].shape[3];
    const double heads = (double)(q->shape[0] * q->shape[1]);
    const bool dq = l->operand[l->kernel == MPT__K_ATTENTION_DQ ? 7 : 9].storage != 0;
    double pair = 2 * (d + dv) + 5 + (l->operand[3].storage != 0);
    if (l->kernel == MPT__K_ATTENTION_DKV) pair += 2 * (d + dv);
    if (l->kernel != MPT__K_ATTENTION && dq) pair += 2 * d;
    if (l->kernel != MPT__K_ATTENTION_DQ) return heads * mpt__attention_pairs(l) * pair;
    return heads * (dq ? mpt__attention_pairs(l) * pair : 0) +
        2 * mpt__operand_numel(&l->operand[5]);
}

static double mpt__flop_hash_grid(const mpt__launch *l) {
    const bool back = l->kernel == MPT__K_HASH_GRID_BACKWARD;
    const mpt__operand *x = &l->operand[back ? 0 : 1], *y = &l->operand[back ? 1 : 2];
    const mpt__operand *table = &l->operand[back ? 2 : 0];
    const double corners = x->shape[1] == 2 ? 4 : 8, levels = (double)table->shape[0];
    return corners * (2 * mpt__operand_numel(y) + levels * mpt__operand_numel(x));
}

/* Gates by element, and, where all steps are one launch, the product with the state of each. */
static double mpt__flop_recurrent(const mpt__launch *l) {
    const bool back = l->kernel == MPT__K_RECURRENT_BACKWARD;
    static const uint8_t gates[] = {1, 1, 4, 3, 1};
    const mpt__operand *all = &l->operand[l->index[0] == MPT__CELL_CARRY ? 1 : 0];
    const double n = mpt__operand_numel(all), hidden = n / gates[l->index[0]];
    const mpt__operand *weight = &l->operand[back ? 9 : 1];
    const double product = l->index[2] > 0 ? 2 * n * (double)weight->shape[1] : 0;
    return product + hidden * mpt__each_cell(l);
}

/* ==== What is not read or written whole ==== */

/* How many elements of an operand are touched where a kernel picks among them; of no other. */
static double mpt__cost_picked(const mpt__launch *l, int operand) {
    const mpt__operand *o = l->operand;
    switch (l->kernel * 16 + operand) {
        case MPT__K_GATHER * 16: return mpt__operand_numel(&o[2]);
        case MPT__K_SCATTER_ADD * 16 + 2: return mpt__operand_numel(&o[1]);
        case MPT__K_NLL * 16: return mpt__operand_numel(&o[1]);
        case MPT__K_EMBEDDING * 16: return mpt__operand_numel(&o[2]);
        case MPT__K_EMBEDDING_BACKWARD * 16 + 2: return mpt__operand_numel(&o[1]);
        case MPT__K_HASH_GRID * 16:
            return mpt__operand_numel(&o[2]) * (o[1].shape[1] == 2 ? 4 : 8);
        case MPT__K_HASH_GRID_BACKWARD * 16 + 2:
            return mpt__operand_numel(&o[1]) * (o[0].shape[1] == 2 ? 4 : 8);
        case MPT__K_SGD * 16 + 7:
        case MPT__K_ADAM * 16 + 7:
        case MPT__K_MOMENTS * 16 + 7: return 1; /* this step's rate */
        default: return -1;
    }
}

/* Of TRIANGLE, what stays. */
static double mpt__cost_triangle(const mpt__launch *l) {
    const mpt__operand *o = &l->operand[0];
    const int64_t rows = o->shape[o->rank - 2], columns = o->shape[o->rank - 1];
    double kept = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t end = row + l->index[0] + (l->index[1] == 1 ? 0 : 1);
        end = end < 0 ? 0 : end < columns ? end : columns;
        kept += (double)(l->index[1] == 1 ? columns - end : end);
    }
    return rows * columns > 0
        ? mpt__operand_numel(o) / (double)(rows * columns) * kept
        : 0;
}

/* ==== The table ==== */

typedef struct mpt__cost_rule {
    mpt__each_fn each; /* for each element of the operand; NULL: `whole` */
    double (*whole)(const mpt__launch *launch);
    int8_t operand, segments; /* segments: the operand that has them; -1: none */
} mpt__cost_rule;

/* One for each kernel, by its name: what has none does not compile. */
#define MPT__EACH(words, operand) {mpt__each_##words, NULL, operand, -1}
#define MPT__WHOLE(name) {NULL, mpt__flop_##name, 0, -1}
#define MPT__BY_SEGMENT(words, segments) {mpt__each_##words, NULL, 0, segments}
#define MPT__COST_fill MPT__EACH(none, 0)
#define MPT__COST_copy MPT__EACH(none, 1)
#define MPT__COST_unary MPT__EACH(function, 1)
#define MPT__COST_binary MPT__EACH(function, 2)
#define MPT__COST_reduce MPT__EACH(1, 0)
#define MPT__COST_squares MPT__EACH(square, 0)
#define MPT__COST_argmax MPT__EACH(1, 0)
#define MPT__COST_scatter_axis MPT__EACH(none, 2)
#define MPT__COST_gemm MPT__WHOLE(gemm)
#define MPT__COST_softmax MPT__EACH(5, 0) /* largest, difference, exponential, sum, quotient */
#define MPT__COST_softmax_backward MPT__EACH(4, 0)
#define MPT__COST_dropout MPT__EACH(1, 0)
#define MPT__COST_random MPT__EACH(2, 0)
#define MPT__COST_nll MPT__EACH(2, 1)
#define MPT__COST_nll_backward MPT__EACH(1, 0)
#define MPT__COST_cross_entropy MPT__EACH(4, 0)
#define MPT__COST_cross_entropy_backward MPT__EACH(3, 0)
#define MPT__COST_grad_norm MPT__BY_SEGMENT(3, 1)
#define MPT__COST_grad_scale MPT__BY_SEGMENT(scaled, 1)
#define MPT__COST_sgd MPT__BY_SEGMENT(sgd, 4)
#define MPT__COST_adam MPT__BY_SEGMENT(adam, 4)
#define MPT__COST_moments MPT__BY_SEGMENT(moments, 4)
#define MPT__COST_clip MPT__EACH(none, 0)
#define MPT__COST_scalar_set MPT__EACH(none, 0)
#define MPT__COST_scalar_or MPT__EACH(none, 0)
#define MPT__COST_scale_loss MPT__EACH(1, 0)
#define MPT__COST_scaler_update MPT__EACH(none, 0)
#define MPT__COST_metric_add MPT__EACH(1, 0)
#define MPT__COST_find_nonfinite MPT__EACH(none, 0)
#define MPT__COST_average MPT__EACH(3, 0)
#define MPT__COST_pair_loss MPT__EACH(4, 0)
#define MPT__COST_pair_loss_backward MPT__EACH(5, 0)
#define MPT__COST_cumsum MPT__EACH(1, 0)
#define MPT__COST_gather MPT__EACH(none, 2)
#define MPT__COST_scatter_add MPT__EACH(1, 1)
#define MPT__COST_triangle MPT__EACH(none, 0)
#define MPT__COST_argsort MPT__EACH(none, 0)
#define MPT__COST_interpolate MPT__EACH(resized, 1)
#define MPT__COST_interpolate_backward MPT__EACH(resized, 0)
#define MPT__COST_conv MPT__WHOLE(conv)
#define MPT__COST_conv_backward_input MPT__WHOLE(conv)
#define MPT__COST_conv_backward_weight MPT__WHOLE(conv)
#define MPT__COST_norm MPT__EACH(norm, 0)
#define MPT__COST_norm_backward MPT__EACH(norm_slope, 0)
#define MPT__COST_running_stats MPT__EACH(3, 2)
#define MPT__COST_pool MPT__EACH(window, 1)
#define MPT__COST_pool_backward MPT__EACH(window_slope, 0)
#define MPT__COST_embedding MPT__EACH(none, 2)
#define MPT__COST_embedding_backward MPT__EACH(1, 1)
#define MPT__COST_attention MPT__WHOLE(attention)
#define MPT__COST_attention_dq MPT__WHOLE(attention)
#define MPT__COST_attention_dkv MPT__WHOLE(attention)
#define MPT__COST_rope MPT__EACH(3, 0) /* of a pair, four products and two sums */
#define MPT__COST_hash_grid MPT__WHOLE(hash_grid)
#define MPT__COST_hash_grid_backward MPT__WHOLE(hash_grid)
#define MPT__COST_fp8_scale MPT__EACH(1, 0)
#define MPT__COST_fp8_update MPT__EACH(none, 0)
#define MPT__COST_gate_bits MPT__EACH(1, 0)
#define MPT__COST_gate_open MPT__EACH(none, 1)
#define MPT__COST_program MPT__EACH(1, 0)
#define MPT__COST_recurrent MPT__WHOLE(recurrent)
#define MPT__COST_recurrent_backward MPT__WHOLE(recurrent)
static const mpt__cost_rule mpt__cost_rules[] = {
#define MPT__ROW(id, name, effect) MPT__COST_##name,
    MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* Bytes of all operands. Those that lie in the block that the segments are of count by these. */
static void mpt__cost_bytes(
    const mpt__launch *launch, const mpt__cost_rule *rule, double in_segments, mpt__cost *cost) {
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *o = &launch->operand[i];
        if (!o->storage) continue;
        double count = mpt__operand_distinct(o);
        const double picked = mpt__cost_picked(launch, i);
        if (picked >= 0 && picked < count) count = picked;
        if (launch->kernel == MPT__K_TRIANGLE && i == 0) count = mpt__cost_triangle(launch);
        if (rule->segments > 0 && o->dtype != MPT_I64 && o->dtype != MPT_F64) count = in_segments;
        const double bytes = count * (double)mpt_dtype_size((mpt_dtype)o->dtype);
        const bool form = rule->segments == 4 && i == 0 && launch->operand[1].storage;
        if (o->access != MPT__WRITE && !form) cost->read += bytes; /* a form is only written */
        if (o->access != MPT__READ) cost->written += bytes;
    }
}

static mpt__cost mpt__launch_cost(const mpt_context *ctx, const mpt__launch *launch) {
    const mpt__cost_rule *rule = &mpt__cost_rules[launch->kernel];
    mpt__cost cost = {0, 0, 0};
    mpt__launch l = *launch; /* in which what is left out at the end is absent */
    for (int i = l.n_operands; i < MPT__MAX_OPERANDS; i++) l.operand[i].storage = 0;
    const double count = rule->segments > 0
        ? mpt__segments_numel(ctx, &l, &l.operand[rule->segments])
        : mpt__operand_numel(&l.operand[rule->operand]);
    cost.flop = rule->each ? count * rule->each(&l) : rule->whole(&l);
    mpt__cost_bytes(&l, rule, count, &cost);
    return cost;
}

#endif
