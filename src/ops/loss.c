/* ----
 * ops/loss.c: losses. Results are fp32 whatever goes in.
 * ---- */
#ifndef MPT__OPS_LOSS_INCLUDED
#define MPT__OPS_LOSS_INCLUDED

#include "ops/index.c"

static bool mpt__check_float(mpt__frame *frame, int i) {
    mpt_dtype dtype = (mpt_dtype)frame->in[i]->dtype;
    if (mpt__dtype_computes(dtype)) return true;
    return mpt__reject(
        frame->context, DTYPE, "argument %d has dtype %D, expected a float dtype", i + 1, dtype);
}

static bool mpt__good_reduction(
    mpt_context *ctx, const char *name, mpt_reduction reduction, mpt_reduction last) {
    if (reduction >= MPT_MEAN && reduction <= last) return true;
    mpt__misuse(ctx, name, ARGUMENT, "reduction %d is none of MPT_MEAN .. %s", (int)reduction,
        last == MPT_NONE ? "MPT_NONE" : "MPT_BATCH_MEAN");
    return false;
}

/* `expected`: "above 0", "0 or more" or "a number". */
static bool mpt__good_number(
    mpt_context *ctx, const char *name, const char *what, double value, const char *expected) {
    bool good = *expected == '0' ? value >= 0.0 : expected[1] == 'b' ? value > 0.0 : value == value;
    if (!good) mpt__misuse(ctx, name, ARGUMENT, "%s %g is not %s", what, value, expected);
    return good;
}

/* A pair loss that needs so many inputs, of which so many get gradients; p and r, and how far its
   function lies behind the row's. */
static mpt_tensor mpt__apply_pair(const char *name, int op, const mpt_tensor *in, int n_in,
    mpt_reduction reduction, int required, int gradients, double p, double r, int behind) {
    mpt__attributes attributes = mpt__no_attributes;
    mpt_context *ctx = mpt__context_of(in, n_in);
    bool batch_mean = op == MPT__OP_kl_div || op == MPT__OP_soft_targets;
    if (!mpt__good_reduction(ctx, name, reduction, batch_mean ? MPT_BATCH_MEAN : MPT_NONE))
        return mpt__null(ctx);
    attributes.required = (uint8_t)required;
    attributes.index[0] = behind, attributes.index[1] = gradients;
    attributes.imm[0] = p, attributes.imm[1] = r;
    attributes.reduction = (uint8_t)reduction;
    return mpt__apply1(name, op, in, n_in, &attributes);
}

/* ==== Negative log-likelihood, cross-entropy ==== */

/* in: [N, C] or [C]; targets [N] or 0-d; class weights [C] or none. imm[0]: label smoothing. */
static mpt_status mpt__nll_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0], *t = frame->in[1], *w = frame->in[2];
    if (!mpt__check_float(frame, 0)) return ctx->base.status;
    if (t->dtype != MPT_I64)
        return mpt__error(ctx, DTYPE,
            "targets have dtype %D, expected i64 class numbers; mpt_cast them to "
            "MPT_I64, or set mpt_fit_config.loss to one of numbers",
            t->dtype);
    bool good = (x->shape.rank == 2 && t->shape.rank == 1 && t->shape.dim[0] == x->shape.dim[0]) ||
        (x->shape.rank == 1 && t->shape.rank == 0);
    if (!good)
        return mpt__error(ctx, SHAPE,
            "input %S and targets %S: expected [N, C] and [N], or [C] and a 0-d target", &x->shape,
            &t->shape);
    int64_t classes = x->shape.dim[x->shape.rank - 1];
    if (w && (w->shape.rank != 1 || w->shape.dim[0] != classes || w->dtype != frame->out_dtype[0]))
        return mpt__error(ctx, SHAPE, "weight %D %S: expected %D [%lld]", w->dtype, &w->shape,
            frame->out_dtype[0], classes);
    if (!(frame->attributes->imm[0] >= 0.0 && frame->attributes->imm[0] <= 1.0))
        return mpt__error(
            ctx, ARGUMENT, "label_smoothing %g is not in [0, 1]", frame->attributes->imm[0]);
    frame->out_shape[0].rank = 0;
    if (frame->attributes->reduction == MPT_NONE) mpt__shape_copy(&frame->out_shape[0], &t->shape);
    return MPT_OK;
}

static mpt__launch *mpt__loss_launch(mpt__frame *frame, mpt__kernel kernel) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->reduction = frame->attributes->reduction;
    for (int i = 0; i < 2; i++) launch->index[i] = frame->attributes->index[i];
    launch->imm[0] = frame->attributes->imm[0];
    return launch;
}

/* A vector, or a number as one element; a table, or a vector as its row. Inlined, as is all that a
   step of a small net runs. */
static MPT__FORCE_INLINE void mpt__operand_vector(
    mpt__launch *launch, int position, const mpt__tensor *tensor, mpt__access access) {
    bool number = tensor->shape.rank == 0;
    mpt__operand *operand = mpt__operand_ranked(launch, position, tensor, 1, access);
    mpt__operand_dim(operand, 0, number ? 1 : tensor->shape.dim[0], number ? 1 : tensor->stride[0]);
}

static MPT__FORCE_INLINE void mpt__operand_table(
    mpt__launch *launch, int position, const mpt__tensor *tensor, mpt__access access) {
    bool row = tensor->shape.rank == 1;
    mpt__operand_matrix(launch, position, tensor, row ? 1 : tensor->shape.dim[0],
        row ? 1 : tensor->stride[0], false, access);
}

/* Saved: input (cross-entropy only), targets, weights, divisor, log-sum-exp of the rows. */
enum { MPT__NLL_INPUT, MPT__NLL_TARGETS, MPT__NLL_WEIGHTS, MPT__NLL_DIVISOR, MPT__NLL_ROWS };

static mpt_status mpt__nll_forward(mpt__frame *frame) {
    bool fused = frame->op == MPT__OP_cross_entropy;
    const mpt__tensor *x = frame->in[0];
    mpt_shape shape = MPT_SHAPE(1);
    mpt__tensor *divisor = mpt__temporary(frame, frame->out_dtype[0], &shape), *sums = NULL;
    if (fused) {
        shape = MPT_SHAPE(x->shape.rank == 2 ? x->shape.dim[0] : 1, 2);
        sums = mpt__temporary(frame, frame->out_dtype[0], &shape);
    }
    if (!divisor || (fused && !sums)) return mpt__outcome(frame);
    mpt__save(frame, fused ? frame->in[0] : NULL);
    mpt__save(frame, frame->in[1]);
    mpt__save(frame, frame->in[2]);
    mpt__save(frame, divisor);
    mpt__save(frame, sums);
    mpt__launch *launch = mpt__loss_launch(frame, fused ? MPT__K_CROSS_ENTROPY : MPT__K_NLL);
    mpt__operand_table(launch, 0, x, MPT__READ);
    mpt__operand_vector(launch, 1, frame->in[1], MPT__READ);
    if (frame->in[2]) mpt__operand_vector(launch, 2, frame->in[2], MPT__READ);
    mpt__operand_vector(launch, 3, frame->out[0], MPT__WRITE);
    mpt__operand_vector(launch, 4, divisor, MPT__WRITE);
    if (fused) mpt__operand_table(launch, 5, sums, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* dx of these losses: NLL_BACKWARD from the targets alone, CROSS_ENTROPY_BACKWARD from x, or from
   log-probabilities where the rows' sums are NULL. */
static mpt_status mpt__nll_gradient(mpt__frame *frame, mpt__kernel kernel, const mpt__tensor *x,
    const mpt__tensor *rows, const mpt__tensor *dx, mpt__access access) {
    int at = 0;
    const mpt__tensor *weights = frame->saved[MPT__NLL_WEIGHTS];
    mpt__launch *launch = mpt__loss_launch(frame, kernel);
    if (x) mpt__operand_table(launch, at++, x, MPT__READ);
    mpt__operand_vector(launch, at++, frame->saved[MPT__NLL_TARGETS], MPT__READ);
    if (weights) mpt__operand_vector(launch, at, weights, MPT__READ);
    mpt__operand_vector(launch, at + 1, frame->saved[MPT__NLL_DIVISOR], MPT__READ);
    mpt__operand_vector(launch, at + 2, frame->dy[0], MPT__READ);
    if (rows) mpt__operand_table(launch, at + 3, rows, MPT__READ);
    mpt__operand_table(launch, x ? at + 4 : at + 3, dx, access);
    return mpt__submit(frame->context, launch);
}

/* Whether the log-probabilities come straight from a log_softmax over classes that nothing else
   reads. Then both backward passes are one: dx = (exp(log p) - onehot) w g / divisor, written to
   the log_softmax's own input. Its record finds no gradient and does nothing. */
static bool mpt__nll_fuses(mpt_context *ctx, const mpt__tensor *x) {
    const mpt__record *below = x->record;
    if (!below || x->nodes != 1 || !mpt__tensor_contiguous(x)) return false;
    return below->op == MPT__OP_log_softmax && below->attributes.index[0] == x->shape.rank - 1 &&
        !below->done && !below->grad[0] &&
        (below->saved[0] == x || (mpt__was_region(below) && mpt__still_saved(ctx, below)));
}

static mpt_status mpt__nll_backward(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    bool fuses = mpt__nll_fuses(frame->context, x);
    mpt__frame below, *target = frame;
    if (fuses) {
        below.context = frame->context;
        below.n_in = 1;
        below.in = x->record->in;
        below.layout = MPT__LAYOUT_CONTIGUOUS;
        target = &below;
    }
    mpt__access access;
    mpt__tensor *dx = mpt__gradient_into(target, 0, &access);
    if (!dx) return frame->context->base.status;
    return mpt__nll_gradient(frame, fuses ? MPT__K_CROSS_ENTROPY_BACKWARD : MPT__K_NLL_BACKWARD,
        fuses ? x->record->saved[0] : NULL, NULL, dx, access);
}

static mpt_status mpt__cross_entropy_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__nll_gradient(frame, MPT__K_CROSS_ENTROPY_BACKWARD, frame->saved[MPT__NLL_INPUT],
        frame->saved[MPT__NLL_ROWS], frame->dx, frame->access);
}

/* Read where it stands: a copy's reader would wait for its stores. */
static const mpt_nll_config mpt__nll_defaults = {MPT_MEAN, -100, {NULL, 0, 0}, 0.0};

mpt_nll_config mpt_nll_config_default(void) { return mpt__nll_defaults; }

/* Cross-entropy against probabilities of the logits' shape; the classes are dimension 1, or 0 of a
   single sample. */
static mpt_tensor mpt__soft_cross_entropy(const char *name, mpt_tensor logits, mpt_tensor targets,
    mpt_shape shape, const mpt_nll_config *config) {
    MPT__PLAIN_FLOATS;
    int dim = shape.rank > 1 ? 1 : 0;
    const mpt__tensor *weight = mpt__live(logits.context, config->weight);
    mpt_tensor in[3];
    mpt__spares spares;
    spares.count = 0;
    if (config->ignore_index >= 0)
        return mpt__refuse(logits.context, ARGUMENT,
            "ignore_index %lld has no meaning where targets are probabilities",
            config->ignore_index);
    if (weight && (weight->shape.rank != 1 || weight->shape.dim[0] != shape.dim[dim]))
        return mpt__refuse(
            logits.context, SHAPE, "weight %S: expected [%lld]", &weight->shape, shape.dim[dim]);
    in[0] = mpt__spare(&spares, mpt_log_softmax(mpt__widened(&spares, logits), dim));
    in[1] = targets, in[2] = config->weight;
    if (weight) {
        mpt_shape by_class = shape;
        by_class.rank = shape.rank - dim;
        for (int i = 0; i < by_class.rank; i++) by_class.dim[i] = i > 0 ? 1 : shape.dim[dim];
        in[2] = mpt__spare(&spares, mpt_reshape(in[2], by_class));
    }
    mpt_reduction reduction = config->reduction == MPT_MEAN ? MPT_BATCH_MEAN : config->reduction;
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_soft_targets, in, 3, reduction, 2, 2,
        config->label_smoothing, config->label_smoothing / (double)shape.dim[dim], 0);
    if (reduction == MPT_NONE) loss = mpt_sum(mpt__spare(&spares, loss), dim, false);
    return mpt__spares_end(&spares, loss);
}

/* Turns in[0] from [N, C, d1..] into [N d1.., C], and the targets in[1] into [N d1..]. Gives the
   rows of a sample, or -1. */
static int64_t mpt__fold_positions(
    mpt__spares *spares, mpt_tensor in[2], const mpt__tensor *x, const mpt__tensor *t) {
    mpt_context *ctx = in[0].context;
    mpt_shape order = x->shape, rows = MPT_SHAPE(0, 0);
    int rank = x->shape.rank;
    bool fits = t->shape.rank == rank - 1;
    int64_t positions = 1;
    for (int i = 0; fits && i < rank - 1; i++) {
        int from = i > 0 ? i + 1 : 0;
        order.dim[i] = from;
        fits = t->shape.dim[i] == x->shape.dim[from];
        if (i > 0) positions *= t->shape.dim[i];
    }
    if (!fits) {
        mpt__refuse(ctx, SHAPE, "input %S and targets %S: expected [N, C, d1..] and [N, d1..]",
            &x->shape, &t->shape);
        return -1;
    }
    order.dim[rank - 1] = 1;
    rows.dim[0] = mpt__tensor_numel(t);
    rows.dim[1] = x->shape.dim[1];
    in[0] = mpt__spare(spares, mpt_permute(in[0], order));
    in[0] = mpt__spare(spares, mpt_reshape(in[0], rows));
    rows.rank = 1;
    in[1] = mpt__spare(spares, mpt_reshape(in[1], rows));
    return positions;
}

#ifdef MPTRAIN_NO_WATCH
#define mpt__check_source(ctx, name, nll, x) ((void)0)
#else
/* Looks at the op that a loss's input comes from: a product with weights has no log-probabilities,
   nor has a softmax, whose probabilities are no logits either. Said once. */
static void mpt__check_source(mpt_context *ctx, const char *name, bool nll, const mpt__tensor *x) {
    const mpt__record *from = x->record;
    while (from &&
        (from->op == MPT__OP_reshape || from->op == MPT__OP_permute || from->op == MPT__OP_cast))
        from = from->in[0] ? from->in[0]->record : NULL;
    if (!from || ctx->warned_scores) return;
    bool softmax = from->op == MPT__OP_softmax;
    if (!softmax && (!nll || ctx->ops[from->op].policy != MPT__POLICY_LOW)) return;
    ctx->warned_scores = true;
    mpt__log(&ctx->base, MPT_LOG_WARNING, "%s: the input comes from %s, but it takes %s", name,
        ctx->ops[from->op].name,
        nll ? "log-probabilities: use mpt_log_softmax before it, or mpt_cross_entropy instead"
            : "logits: leave the softmax out");
}
#endif

static mpt_tensor mpt__apply_nll(
    const char *name, int op, mpt_tensor input, mpt_tensor targets, const mpt_nll_config *config) {
    if (!config) config = &mpt__nll_defaults;
    mpt_tensor in[] = {input, targets, config->weight};
    mpt_context *ctx = mpt__context_of(in, 3);
    if (!mpt__good_reduction(ctx, name, config->reduction, MPT_NONE)) return mpt__null(ctx);
    double smoothing = op == MPT__OP_cross_entropy ? config->label_smoothing : 0.0;
    const mpt__tensor *x = ctx ? mpt__live(ctx, input) : NULL;
    if (x) mpt__check_source(ctx, name, op == MPT__OP_nll_loss, x);
    bool plain = x && x->shape.rank <= 2 && op == MPT__OP_nll_loss;
    const mpt__tensor *t = ctx && !plain ? mpt__live(ctx, targets) : NULL;
    bool probable = op == MPT__OP_cross_entropy && x && t && mpt__same_shape(x, t) &&
        mpt__dtype_info[t->dtype].is_float && x->shape.rank > 0;
    bool folds = !probable && x && t && x->shape.rank > 2;
    if ((probable || folds) && !mpt__enter(ctx, name)) return mpt__null(ctx);
    if (probable && smoothing >= 0.0 && smoothing <= 1.0)
        return mpt__soft_cross_entropy(name, input, targets, x->shape, config);
    mpt_shape each;
    mpt__spares spares;
    int64_t positions = 0;
    spares.count = each.rank = 0;
    if (folds) {
        each = t->shape;
        positions = mpt__fold_positions(&spares, in, x, t);
        if (positions < 0) return mpt__null(ctx);
    }
    mpt__frame frame;
    mpt_tensor loss = mpt__null(ctx);
    if (mpt__apply_begin(&frame, name, op, in, 3, 2)) {
        *frame.attributes = mpt__no_attributes; /* one copied here would wait for its own stores */
        frame.attributes->index[0] = config->ignore_index;
        frame.attributes->index[1] = positions;
        frame.attributes->reduction = (uint8_t)config->reduction;
        frame.attributes->required = 2;
        frame.attributes->imm[0] = smoothing;
        loss = mpt__handle(ctx, mpt__call_run(&frame));
    }
    if (!folds) return loss;
    if (config->reduction == MPT_NONE) loss = mpt_reshape(mpt__spare(&spares, loss), each);
    return mpt__spares_end(&spares, loss);
}

mpt_tensor mpt_nll_loss(
    mpt_tensor log_probabilities, mpt_tensor targets, const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_nll_loss", MPT__OP_nll_loss, log_probabilities, targets, config);
}

mpt_tensor mpt_cross_entropy(mpt_tensor logits, mpt_tensor targets, const mpt_nll_config *config) {
    return mpt__apply_nll("mpt_cross_entropy", MPT__OP_cross_entropy, logits, targets, config);
}

MPT__BEGIN_COLD
/* ==== Pair losses ====
 *
 * fn(input, target, more, more) of each element in one launch, with its sum. index[0]: distance
 * from the row's function to that of the call; index[1]: so many inputs get gradients; imm[0] and
 * imm[1]: the function's p and r. */

static mpt_status mpt__pair_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    frame->layout = MPT__LAYOUT_KEPT;
    for (int i = 0; i < frame->n_in; i++) {
        const mpt__tensor *other = frame->in[i];
        if (!other) continue;
        if (!mpt__check_float(frame, i)) return mpt__outcome(frame);
        if (i == 1 && !mpt__same_shape(x, other))
            return mpt__error(frame->context, SHAPE,
                "input %S and target %S: expected equal shapes; mpt_reshape or mpt_expand",
                &x->shape, &other->shape);
        int lead = x->shape.rank - other->shape.rank;
        bool fits = lead >= 0;
        for (int d = 0; fits && d < other->shape.rank; d++)
            fits = other->shape.dim[d] == 1 || other->shape.dim[d] == x->shape.dim[lead + d];
        if (!fits)
            return mpt__error(frame->context, SHAPE,
                "argument %d is %S, which does not broadcast to the input's %S", i + 1,
                &other->shape, &x->shape);
    }
    frame->out_shape[0].rank = 0;
    if (frame->attributes->reduction == MPT_NONE) mpt__shape_copy(&frame->out_shape[0], &x->shape);
    return MPT_OK;
}

/* The sum's divisor. Class probabilities have one loss for all C classes. */
static double mpt__pair_divisor(const mpt__frame *frame, const mpt__tensor *x) {
    int rank = x->shape.rank;
    double n = (double)mpt__tensor_numel(x);
    if (frame->attributes->reduction == MPT_MEAN) return n;
    if (frame->attributes->reduction != MPT_BATCH_MEAN || rank == 0) return 1.0;
    if (frame->op != MPT__OP_soft_targets) return (double)x->shape.dim[0];
    return n / (double)x->shape.dim[rank > 1 ? 1 : 0];
}

static mpt__launch *mpt__pair_launch(
    mpt__frame *frame, mpt__kernel kernel, mpt__tensor *const in[4]) {
    mpt__launch *launch = mpt__loss_launch(frame, kernel);
    launch->function = (uint8_t)((int)frame->row->function + (int)frame->attributes->index[0]);
    launch->imm[1] = frame->attributes->imm[1];
    launch->imm[2] = mpt__pair_divisor(frame, in[0]);
    for (int i = 0; i < 4; i++)
        if (in[i]) mpt__operand_spread(launch, i, in[i], in[0]);
    return launch;
}

static mpt_status mpt__pair_forward(mpt__frame *frame) {
    mpt__tensor *in[4] = {NULL, NULL, NULL, NULL};
    for (int i = 0; i < 4; i++) {
        if (i < frame->n_in) in[i] = frame->in[i];
        mpt__save(frame, in[i]);
    }
    mpt__launch *launch = mpt__pair_launch(frame, MPT__K_PAIR_LOSS, in);
    mpt__writes(launch, 4, frame->out[0]);
    return mpt__submit(frame->context, launch);
}

/* One launch per gradient; that of a broadcast input is summed. */
static mpt_status mpt__pair_backward(mpt__frame *frame) {
    const mpt__tensor *x = frame->saved[0];
    for (int i = 0; i < frame->attributes->index[1]; i++) {
        if (!mpt__wants(frame, i)) continue;
        mpt__access access;
        const mpt__tensor *target = mpt__gradient_into(frame, i, &access), *to = target;
        bool whole = mpt__same_shape(frame->in[i], x);
        if (target && !whole) to = mpt__temporary(frame, mpt__loss_dtype(frame), &x->shape);
        if (!to) return frame->context->base.status;
        mpt__launch *launch = mpt__pair_launch(frame, MPT__K_PAIR_LOSS_BACKWARD, frame->saved);
        launch->index[0] = i;
        mpt__operand_spread(launch, 4, frame->dy[0], x);
        mpt__operand_of(launch, 5, to, whole ? access : MPT__WRITE);
        mpt_status status = mpt__submit(frame->context, launch);
        if (status == MPT_OK && !whole)
            status = mpt__launch_reduce(frame->context, MPT__FN_SUM, to, target, access);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

static mpt_tensor mpt__apply_plain_pair(
    const char *name, int op, mpt_tensor input, mpt_tensor target, mpt_reduction reduction) {
    mpt_tensor in[] = {input, target};
    return mpt__apply_pair(name, op, in, 2, reduction, 2, 2, 0.0, 0.0, 0);
}

#define MPT__DEFINE_LOSS(name) \
    mpt_tensor mpt_##name(mpt_tensor input, mpt_tensor target, mpt_reduction reduction) { \
        return mpt__apply_plain_pair("mpt_" #name, MPT__OP_##name, input, target, reduction); \
    }
MPT__DEFINE_LOSS(mse_loss)
MPT__DEFINE_LOSS(l1_loss)
MPT__DEFINE_LOSS(soft_margin_loss)
#undef MPT__DEFINE_LOSS

/* With a number, called `what`, that must be `good`. */
static mpt_tensor mpt__apply_number_pair(const char *name, int op, mpt_tensor input,
    mpt_tensor target, mpt_reduction reduction, double number, const char *what, const char *good) {
    mpt_tensor in[] = {input, target};
    mpt_context *ctx = mpt__context_of(in, 2);
    if (!mpt__good_number(ctx, name, what, number, good)) return mpt__null(ctx);
    /* With a beta of 0 smooth_l1_loss is l1_loss, not 0 / 0. */
    bool l1 = op == MPT__OP_smooth_l1_loss && !(number > 0.0);
    return mpt__apply_pair(name, op, in, 2, reduction, 2,
        op == MPT__OP_hinge_embedding_loss ? 1 : 2, number, 0.0,
        l1 ? (int)MPT__FN_L1 - (int)MPT__FN_SMOOTH_L1 : 0);
}

mpt_tensor mpt_smooth_l1_loss(
    mpt_tensor input, mpt_tensor target, double beta, mpt_reduction reduction) {
    return mpt__apply_number_pair("mpt_smooth_l1_loss", MPT__OP_smooth_l1_loss, input, target,
        reduction, beta, "beta", "0 or more");
}
mpt_tensor mpt_huber_loss(
    mpt_tensor input, mpt_tensor target, double delta, mpt_reduction reduction) {
    return mpt__apply_number_pair(
        "mpt_huber_loss", MPT__OP_huber_loss, input, target, reduction, delta, "delta", "above 0");
}
mpt_tensor mpt_hinge_embedding_loss(
    mpt_tensor input, mpt_tensor target, double margin, mpt_reduction reduction) {
    return mpt__apply_number_pair("mpt_hinge_embedding_loss", MPT__OP_hinge_embedding_loss, input,
        target, reduction, margin, "margin", "a number");
}

mpt_tensor mpt_binary_cross_entropy_with_logits(mpt_tensor logits, mpt_tensor target,
    mpt_tensor weight, mpt_tensor pos_weight, mpt_reduction reduction) {
    mpt_tensor in[] = {logits, target, weight, pos_weight};
    return mpt__apply_pair("mpt_binary_cross_entropy_with_logits",
        MPT__OP_binary_cross_entropy_with_logits, in, 4, reduction, 2, 2, 0.0, 0.0, 0);
}

mpt_tensor mpt_binary_cross_entropy(
    mpt_tensor probabilities, mpt_tensor target, mpt_tensor weight, mpt_reduction reduction) {
    mpt_tensor in[] = {probabilities, target, weight};
    return mpt__apply_pair("mpt_binary_cross_entropy", MPT__OP_binary_cross_entropy, in, 3,
        reduction, 2, 2, 0.0, 0.0, 0);
}

mpt_tensor mpt_kl_div(
    mpt_tensor input, mpt_tensor target, bool log_target, mpt_reduction reduction) {
    mpt_tensor in[] = {input, target};
    return mpt__apply_pair("mpt_kl_div", MPT__OP_kl_div, in, 2, reduction, 2, 2, 0.0, 0.0,
        log_target ? MPT__FN_KL_DIV_LOG - MPT__FN_KL_DIV : 0);
}

mpt_tensor mpt_gaussian_nll_loss(mpt_tensor input, mpt_tensor target, mpt_tensor variance,
    bool full, double eps, mpt_reduction reduction) {
    static const char name[] = "mpt_gaussian_nll_loss";
    mpt_tensor in[] = {input, target, variance};
    mpt_context *ctx = mpt__context_of(in, 3);
    if (!mpt__good_number(ctx, name, "eps", eps, "0 or more")) return mpt__null(ctx);
    const mpt__tensor *x = ctx ? mpt__live(ctx, input) : NULL;
    const mpt__tensor *v = ctx ? mpt__live(ctx, variance) : NULL;
    mpt__spares spares;
    spares.count = 0;
    if (x && v && v->shape.rank == x->shape.rank - 1) {
        mpt_shape shape = v->shape;
        shape.dim[shape.rank++] = 1;
        in[2] = mpt__spare(&spares, mpt_reshape(variance, shape));
    }
    double half_log_2_pi = 0.91893853320467274;
    return mpt__spares_end(&spares,
        mpt__apply_pair(name, MPT__OP_gaussian_nll_loss, in, 3, reduction, 3, 3, eps,
            full ? half_log_2_pi : 0.0, 0));
}

mpt_tensor mpt_margin_ranking_loss(
    mpt_tensor a, mpt_tensor b, mpt_tensor target, double margin, mpt_reduction reduction) {
    mpt_tensor in[] = {a, b, target};
    return mpt__apply_pair("mpt_margin_ranking_loss", MPT__OP_margin_ranking_loss, in, 3, reduction,
        3, 3, margin, 0.0, 0);
}

mpt_tensor mpt_poisson_nll_loss(mpt_tensor input, mpt_tensor target, bool log_input, bool full,
    double eps, mpt_reduction reduction) {
    static const char name[] = "mpt_poisson_nll_loss";
    mpt_tensor in[] = {input, target};
    if (!mpt__good_number(mpt__context_of(in, 2), name, "eps", eps, "0 or more"))
        return mpt__null(mpt__context_of(in, 2));
    return mpt__apply_pair(name, MPT__OP_poisson_nll_loss, in, 2, reduction, 2, 2, eps, full,
        log_input ? MPT__FN_POISSON_LOG - MPT__FN_POISSON : 0);
}

/* ---- Means over the classes, the last dimension ---- */

/* The losses of samples, from those of their classes. */
static mpt_tensor mpt__by_sample(mpt__spares *spares, mpt_tensor loss, mpt_reduction reduction) {
    if (reduction == MPT_MEAN) return loss;
    loss = mpt_mean(mpt__spare(spares, loss), -1, false);
    return reduction == MPT_NONE ? loss : mpt_sum(mpt__spare(spares, loss), MPT_ALL_DIMS, false);
}

mpt_tensor mpt_multilabel_soft_margin_loss(
    mpt_tensor input, mpt_tensor target, mpt_tensor weight, mpt_reduction reduction) {
    static const char name[] = "mpt_multilabel_soft_margin_loss";
    mpt__spares spares;
    mpt_tensor in[] = {input, target, weight};
    spares.count = 0;
    if (!mpt__good_reduction(mpt__context_of(in, 3), name, reduction, MPT_NONE))
        return mpt__null(mpt__context_of(in, 3));
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_binary_cross_entropy_with_logits, in, 3,
        reduction == MPT_MEAN ? MPT_MEAN : MPT_NONE, 2, 2, 0.0, 0.0, 0);
    return mpt__spares_end(&spares, mpt__by_sample(&spares, loss, reduction));
}

/* A pair is an input and whether it is the target's; beside it stand the target's input and
   weight. */
mpt_tensor mpt_multi_margin_loss(mpt_tensor input, mpt_tensor targets, int p, double margin,
    mpt_tensor weight, mpt_reduction reduction) {
    static const char name[] = "mpt_multi_margin_loss";
    mpt__spares spares;
    mpt_tensor in[4];
    in[0] = input, in[1] = targets, in[2] = weight;
    mpt_context *ctx = mpt__context_of(in, 3);
    spares.count = 0;
    if (!mpt__good_reduction(ctx, name, reduction, MPT_NONE) ||
        !mpt__good_number(ctx, name, "margin", margin, "a number") || !mpt__enter(ctx, name))
        return mpt__null(ctx);
    const mpt__tensor *x = mpt__at(ctx, input, "argument 1");
    const mpt__tensor *t = x ? mpt__at(ctx, targets, "argument 2") : NULL;
    const mpt__tensor *w =
        t && (weight.context || weight.slot) ? mpt__at(ctx, weight, "argument 5") : NULL;
    if (!t || !mpt__ok(ctx)) return mpt__null(ctx);
    bool fits = x->shape.rank == 2 && t->shape.rank == 1 && t->shape.dim[0] == x->shape.dim[0] &&
        (!w || (w->shape.rank == 1 && w->shape.dim[0] == x->shape.dim[1]));
    if (!fits)
        return mpt__refuse(ctx, SHAPE,
            "input %S and targets %S: expected [N, C] and [N], and a weight [C] or none", &x->shape,
            &t->shape);
    if (p != 1 && p != 2) return mpt__refuse(ctx, ARGUMENT, "p = %d: expected 1 or 2", p);
    mpt_shape column = MPT_SHAPE(x->shape.dim[0], 1);
    mpt_tensor by_row[2];
    by_row[0] = input;
    by_row[1] = mpt__spare(&spares, mpt_reshape(targets, column));
    in[2] = mpt__spare(&spares, mpt__apply_index(name, MPT__OP_gather, by_row, 2, 1));
    in[1] = mpt__spare(&spares, mpt_one_hot(targets, x->shape.dim[1]));
    in[1] = mpt__spare(&spares, mpt_cast(in[1], MPT_F32));
    if (w) {
        in[3] = mpt__spare(&spares, mpt_index_select(weight, 0, targets));
        in[3] = mpt__spare(&spares, mpt_reshape(in[3], column));
    }
    mpt_tensor loss = mpt__apply_pair(name, MPT__OP_multi_margin_loss, in, w ? 4 : 3,
        reduction == MPT_MEAN ? MPT_MEAN : MPT_NONE, 3, 3, margin, p, 0);
    return mpt__spares_end(&spares, mpt__by_sample(&spares, loss, reduction));
}

/* ---- Of vectors: sums of products along a dimension, then a pair loss of those ---- */

static mpt_tensor mpt__dot(mpt__spares *spares, mpt_tensor a, mpt_tensor b, int dim) {
    return mpt__spare(spares, mpt_sum(mpt__spare(spares, mpt_mul(a, b)), dim, false));
}

/* |a - b + eps| */
static mpt_tensor mpt__distance(mpt__spares *spares, mpt_tensor a, mpt_tensor b, double eps) {
    mpt_tensor difference = mpt__spare(spares, mpt_sub(a, b));
    difference = mpt__spare(spares, mpt_add_scalar(difference, eps));
    return mpt__spare(spares, mpt_norm(difference, 2, -1, false));
}

/* Begins such a call: one shape for all, halves become fp32. */
static bool mpt__vectors(mpt__spares *spares, const char *name, mpt_tensor *in, int n) {
    static const char *const argument[] = {"argument 1", "argument 2", "argument 3"};
    mpt_context *ctx = mpt__context_of(in, n);
    const mpt__tensor *first = NULL;
    spares->count = 0;
    if (!mpt__enter(ctx, name)) return false;
    for (int i = 0; i < n; i++) {
        const mpt__tensor *x = mpt__at(ctx, in[i], argument[i]);
        if (!x) return false;
        if (i == 0) first = x;
        if (!mpt__dtype_computes((mpt_dtype)x->dtype))
            return mpt__reject(
                ctx, DTYPE, "%s has dtype %D, expected a float dtype", argument[i], x->dtype);
        if (x->shape.rank == 0 || !mpt__same_shape(x, first))
            return mpt__reject(ctx, SHAPE,
                "%s is %S: expected equal shapes of one dimension or more", argument[i], &x->shape);
    }
    for (int i = 0; i < n; i++) in[i] = mpt__widened(spares, in[i]);
    return true;
}

mpt_tensor mpt_triplet_margin_loss(mpt_tensor anchor, mpt_tensor positive, mpt_tensor negative,
    double margin, double eps, bool swap, mpt_reduction reduction) {
    static const char name[] = "mpt_triplet_margin_loss";
    mpt__spares spares;
    mpt_tensor in[3], of[3];
    in[0] = anchor, in[1] = positive, in[2] = negative;
    if (!mpt__vectors(&spares, name, in, 3)) return mpt__null(mpt__context_of(in, 3));
    of[0] = mpt__distance(&spares, in[0], in[1], eps);
    of[1] = mpt__distance(&spares, in[0], in[2], eps);
    if (swap) of[2] = mpt__distance(&spares, in[1], in[2], eps);
    return mpt__spares_end(&spares,
        mpt__apply_pair(
            name, MPT__OP_triplet_margin_loss, of, swap ? 3 : 2, reduction, 2, 3, margin, swap, 0));
}

/* ---- Cosines ----
 *
 * Of a and b with lengths |a| and |b|, or eps where these are below it: the sum of a (b / |b|),
 * over |a|. No product of lengths comes up, which fp32 might not hold. */

/* The length of input i, and that with eps, imm[0], where it is below; NULL on error. */
static mpt__tensor *mpt__lengths(
    mpt__frame *frame, int i, mpt__tensor *each, mpt__tensor **at_least) {
    const mpt__tensor *x = frame->in[i];
    mpt__tensor *length = mpt__unreduced_new(frame);
    *at_least = length ? mpt__unreduced_new(frame) : NULL;
    if (!*at_least) return NULL;
    mpt__launch_binary(frame->context, MPT__FN_MUL, x, x, each, MPT__WRITE);
    mpt__launch_reduce(frame->context, MPT__FN_SUM, each, length, MPT__WRITE);
    mpt__launch_squares(frame, x, NULL, length, 1.0, true);
    frame->attributes->imm[1] = (double)INFINITY;
    mpt__launch_unary(frame, MPT__FN_CLAMP, length, *at_least, MPT__WRITE);
    return length;
}

static mpt_status mpt__cosine_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__tensor *each = mpt__elements_new(frame), *cosine = each ? mpt__unreduced_new(frame) : NULL;
    mpt__tensor *length[2] = {NULL, NULL}, *least[2];
    for (int i = 0; cosine && i < 2; i++) length[i] = mpt__lengths(frame, i, each, &least[i]);
    if (!length[0] || !length[1]) return ctx->base.status;
    mpt__tensor out = mpt__unreduced_view(frame, frame->out[0]);
    for (int i = 0; i < 2; i++) mpt__save(frame, frame->in[i]);
    for (int i = 0; i < 2; i++) mpt__save(frame, length[i]);
    for (int i = 0; i < 2; i++) mpt__save(frame, least[i]);
    mpt__save(frame, cosine);
    mpt__launch_binary(ctx, MPT__FN_DIV, frame->in[1], least[1], each, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_MUL, frame->in[0], each, each, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, each, cosine, MPT__WRITE);
    mpt__launch_binary(ctx, MPT__FN_DIV, cosine, least[0], cosine, MPT__WRITE);
    return mpt__launch_copy(ctx, cosine, &out, MPT__WRITE);
}

/* da = (b / |b| - a y / |a|) dy / |a|; a of length 0 has no part in the second term. */
static mpt_status mpt__cosine_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__tensor *const *saved = frame->saved;
    mpt__tensor dy = mpt__unreduced_view(frame, frame->dy[0]);
    mpt__tensor *each = mpt__elements_new(frame), *own = each ? mpt__elements_new(frame) : NULL;
    mpt__tensor *factor = own ? mpt__unreduced_new(frame) : NULL;
    for (int i = 0; factor && i < 2; i++) {
        mpt__access access;
        if (!mpt__wants(frame, i)) continue;
        mpt__tensor *target = mpt__gradient_into(frame, i, &access);
        if (!target) return ctx->base.status;
        mpt__launch_binary(ctx, MPT__FN_RATIO, saved[2 + i], saved[6], factor, MPT__WRITE);
        mpt__launch_binary(ctx, MPT__FN_MUL, saved[i], factor, own, MPT__WRITE);
        mpt__launch_binary(ctx, MPT__FN_DIV, saved[1 - i], saved[5 - i], each, MPT__WRITE);
        mpt__launch_binary(ctx, MPT__FN_SUB, each, own, each, MPT__WRITE);
        mpt__launch_binary(ctx, MPT__FN_DIV, &dy, saved[4 + i], factor, MPT__WRITE);
        mpt__launch_binary(ctx, MPT__FN_MUL, each, factor, target, access);
    }
    return ctx->base.status;
}

mpt_tensor mpt_cosine_similarity(mpt_tensor a, mpt_tensor b, int dim, double eps) {
    static const char name[] = "mpt_cosine_similarity";
    mpt__spares spares;
    mpt_tensor in[2];
    in[0] = a, in[1] = b;
    mpt_context *ctx = mpt__context_of(in, 2);
    if (!mpt__good_number(ctx, name, "eps", eps, "above 0") || !mpt__vectors(&spares, name, in, 2))
        return mpt__null(ctx);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = dim;
    attributes.index[2] = dim == MPT_ALL_DIMS;
    attributes.imm[0] = eps;
    attributes.required = 2;
    return mpt__spares_end(
        &spares, mpt__apply1(name, MPT__OP_cosine_similarity, in, 2, &attributes));
}

/* a b, a a and b b into of[]. */
static void mpt__products(mpt__spares *spares, const mpt_tensor in[2], int dim, mpt_tensor of[3]) {
    of[0] = mpt__dot(spares, in[0], in[1], dim);
    of[1] = mpt__dot(spares, in[0], in[0], dim);
    of[2] = mpt__dot(spares, in[1], in[1], dim);
}

mpt_tensor mpt_cosine_embedding_loss(
    mpt_tensor a, mpt_tensor b, mpt_tensor target, double margin, mpt_reduction reduction) {
    static const char name[] = "mpt_cosine_embedding_loss";
    double eps = 1e-12; /* PyTorch's, added to the squares */
    mpt__spares spares;
    mpt_tensor in[2], of[4];
    in[0] = a, in[1] = b;
    if (!mpt__vectors(&spares, name, in, 2)) return mpt__null(mpt__context_of(in, 2));
    mpt__products(&spares, in, -1, of);
    of[3] = target;
    return mpt__spares_end(&spares,
        mpt__apply_pair(
            name, MPT__OP_cosine_embedding_loss, of, 4, reduction, 4, 3, margin, eps, 0));
}
MPT__END_REGION

#endif
