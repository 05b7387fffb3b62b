/* ----
 * ops/attention.c: embedding and attention as ops, and the classifier that never holds all logits.
 * ---- */
#ifndef MPT__OPS_ATTENTION_INCLUDED
#define MPT__OPS_ATTENTION_INCLUDED

#include "ops/norm.c"

#ifdef MPTRAIN_NO_ATTENTION

static mpt_tensor mpt__no_attention(mpt_tensor x, const char *name) {
    mpt__absent(x.context, name, "attention and embedding (MPTRAIN_NO_ATTENTION)");
    return mpt__null(x.context);
}

#else

/* ==== Embedding ==== */

/* in: ids [..], weight [V, D]. index[0]: the padding row, -1 none. */
static mpt_status mpt__embedding_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *ids = frame->in[0], *w = frame->in[1];
    int64_t padding = frame->attributes->index[0];
    if (ids->dtype != MPT_I64)
        return mpt__error(ctx, DTYPE, "ids are %D: expected i64; mpt_cast them", ids->dtype);
    if (!mpt__check_float(frame, 1)) return ctx->base.status;
    if (w->shape.rank != 2 || ids->shape.rank == MPT_MAX_RANK)
        return mpt__error(ctx, SHAPE,
            "ids %S, weight %S: expected at most 7 dimensions, and [V, D]", &ids->shape, &w->shape);
    if (padding < -1 || padding >= w->shape.dim[0])
        return mpt__error(ctx, ARGUMENT,
            "padding_index %lld: expected a row of weight %S, or -1 for none", padding, &w->shape);
    frame->out_dtype[0] = (mpt_dtype)w->dtype;
    frame->out_shape[0] = ids->shape;
    frame->out_shape[0].dim[frame->out_shape[0].rank++] = w->shape.dim[1];
    return MPT_OK;
}

/* Sizes of a table [L, T, F], and cells of the first and the last level. */
static bool mpt__good_grid(const int64_t size[3], const int64_t cells[2]) {
    return size[0] > 0 && size[1] > 0 && size[2] > 0 && size[2] <= 8 && cells[0] > 0 &&
        cells[1] >= cells[0] && cells[1] <= 1 << 20;
}

/* in: x [.., D], table [L, T, F]. index: cells. */
static mpt_status mpt__hash_grid_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0], *table = frame->in[1];
    const int last = x->shape.rank - 1;
    const int64_t dims = last < 0 ? 0 : x->shape.dim[last], *size = table->shape.dim;
    const int64_t *cells = frame->attributes->index;
    if (!mpt__check_float(frame, 0) || !mpt__check_float(frame, 1))
        return frame->context->base.status;
    if (dims < 2 || dims > 3 || table->shape.rank != 3 || !mpt__good_grid(size, cells))
        return mpt__error(frame->context, SHAPE,
            "x %S, table %S, cells from %lld to %lld: expected [.., 2 or 3], [L, T, "
            "F] with F up to 8, and 1 to 2^20, rising",
            &x->shape, &table->shape, cells[0], cells[1]);
    if (x->flags & MPT__REQUIRES_GRAD)
        return mpt__error(frame->context, UNSUPPORTED, "x gets no gradient; mpt_detach it");
    frame->out_dtype[0] = (mpt_dtype)table->dtype;
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    frame->out_shape[0].dim[last] = size[0] * size[2];
    return MPT_OK;
}

/* Contiguous ids as [n]; rows as [n, D]. */
static void mpt__operand_ids(mpt__launch *launch, int position, const mpt__tensor *ids) {
    mpt__operand *o = mpt__operand_ranked(launch, position, ids, 1, MPT__READ);
    mpt__operand_dim(o, 0, mpt__tensor_numel(ids), 1);
}

/* That of a table [V, D] by ids, or of a grid's by places. */
static mpt__launch *mpt__embedding_launch(mpt__frame *frame, mpt__kernel kernel, mpt__kernel grid,
    int position, const mpt__tensor *ids, const mpt__tensor *table) {
    MPT__PLAIN_FLOATS;
    const int64_t *index = frame->attributes->index, levels = table->shape.dim[0];
    const bool places = table->shape.rank == 3;
    mpt__launch *launch = mpt__launch_begin(frame->context, places ? grid : kernel);
    launch->index[0] = index[0];
    if (places && levels > 1)
        launch->imm[0] = mpt__ln((double)index[1] / (double)index[0]) / (double)(levels - 1);
    if (places)
        mpt__operand_rows(launch, position, ids, false, MPT__READ);
    else
        mpt__operand_ids(launch, position, ids);
    return launch;
}

static mpt_status mpt__embedding_forward(mpt__frame *frame) {
    const mpt__tensor *ids = mpt__contiguous_of(frame, frame->in[0]);
    if (!ids) return mpt__outcome(frame);
    mpt__save(frame, frame->in[0]);
    mpt__launch *launch =
        mpt__embedding_launch(frame, MPT__K_EMBEDDING, MPT__K_HASH_GRID, 1, ids, frame->in[1]);
    mpt__reads(launch, 0, frame->in[1]);
    mpt__operand_rows(launch, 2, frame->out[0], false, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

/* Straight into the gradient where that is fp32. */
static mpt_status mpt__embedding_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__access access;
    const mpt__tensor *dw = mpt__gradient_into(frame, 1, &access), *sum = dw;
    const mpt__tensor *ids = dw ? mpt__contiguous_of(frame, frame->saved[0]) : NULL;
    const mpt__tensor *dy = ids ? mpt__rows_source(frame, frame->dy[0]) : NULL;
    if (!dy) return ctx->base.status;
    bool wide = dw->dtype == MPT_F32 || dw->dtype == MPT_F64;
    if (!wide) sum = mpt__temporary(frame, MPT_F32, &dw->shape);
    if (!sum) return ctx->base.status;
    mpt__launch *launch = mpt__embedding_launch(
        frame, MPT__K_EMBEDDING_BACKWARD, MPT__K_HASH_GRID_BACKWARD, 0, ids, dw);
    mpt__operand_rows(launch, 1, dy, false, MPT__READ);
    mpt__operand_of(launch, 2, sum, wide ? access : MPT__WRITE);
    mpt_status status = mpt__submit(ctx, launch);
    return status != MPT_OK || wide ? status : mpt__launch_copy(ctx, sum, dw, access);
}

/* ==== Attention ====
 *
 * in: q, k, v and a mask or none. rank 0: they are [.., T, D]; else so many heads lie side by side
 * in the last dimension of [B, T, ..]: of three tensors, or of q alone, where q, k and v follow
 * each other. imm: scale, dropout; index: causal, stream and call of dropout, window, place of the
 * first query. */

typedef struct {
    mpt__tensor q, k, v;
} mpt__attention_views;

/* [.., T, D], or one of `parts` of the last dimension, by heads, as [B, H, T, D]. */
static mpt__tensor mpt__attention_view(
    const mpt__frame *frame, const mpt__tensor *x, int part, int parts) {
    mpt__tensor view = *x;
    int lead = 4 - x->shape.rank;
    view.shape.rank = 4;
    if (frame->attributes->rank == 0) {
        for (int i = 0; i < 4; i++) {
            view.shape.dim[i] = i < lead ? 1 : x->shape.dim[i - lead];
            view.stride[i] = i < lead ? 0 : x->stride[i - lead];
        }
        return view;
    }
    int64_t heads = frame->attributes->rank, width = x->shape.dim[2] / parts;
    view.shape.dim[1] = heads, view.stride[1] = width / heads * x->stride[2];
    view.shape.dim[2] = x->shape.dim[1], view.stride[2] = x->stride[1];
    view.shape.dim[3] = width / heads, view.stride[3] = x->stride[2];
    view.offset += part * width * x->stride[2];
    return view;
}

/* Views of q, k and v, or of what has their places in a gradient. */
static mpt__attention_views mpt__attention_split(
    const mpt__frame *frame, mpt__tensor *const in[3]) {
    mpt__attention_views views;
    bool packed = !frame->in[1];
    views.q = mpt__attention_view(frame, in[0], 0, packed ? 3 : 1);
    views.k = mpt__attention_view(frame, packed ? in[0] : in[1], 1, packed ? 3 : 1);
    views.v = mpt__attention_view(frame, packed ? in[0] : in[2], 2, packed ? 3 : 1);
    if (packed) return views;
    views.k.offset = in[1]->offset, views.v.offset = in[2]->offset;
    return views;
}

static mpt_status mpt__attention_mismatch(mpt__frame *frame, const char *expected) {
    const mpt__tensor *k = frame->in[1] ? frame->in[1] : frame->in[0];
    const mpt__tensor *v = frame->in[2] ? frame->in[2] : frame->in[0];
    return mpt__error(frame->context, SHAPE, "q %S, k %S, v %S: expected %s", &frame->in[0]->shape,
        &k->shape, &v->shape, expected);
}

static mpt_status mpt__attention_shape(mpt__frame *frame) {
    const mpt__tensor *q = frame->in[0], *mask = frame->in[3];
    int rank = q->shape.rank, heads = frame->attributes->rank, parts = frame->in[1] ? 1 : 3;
    bool good = heads ? rank == 3 : rank >= 2 && rank <= 4;
    for (int i = 0; good && i < 3; i++) {
        if (!frame->in[i]) continue;
        good = frame->in[i]->shape.rank == rank;
        if (good && heads)
            good =
                frame->in[i]->shape.dim[2] % (heads * parts) == 0 && frame->in[i]->shape.dim[2] > 0;
    }
    if (!good)
        return mpt__attention_mismatch(frame,
            heads ? "[B, T, E] with E a multiple of the heads"
                  : "[.., T, D] of equal ranks, 2 to 4; mpt_reshape others");
    mpt__attention_views at = mpt__attention_split(frame, frame->in);
    const int64_t *a = at.q.shape.dim, *b = at.k.shape.dim, *c = at.v.shape.dim;
    if (a[0] != b[0] || a[0] != c[0] || b[1] != c[1] || b[2] != c[2] || a[3] != b[3])
        return mpt__attention_mismatch(frame,
            "[B, H, T, D], [B, G, S, D] and [B, G, S, Dv]: the same B, "
            "G, S and D");
    if (b[1] == 0 ? a[1] != 0 : a[1] % b[1] != 0)
        return mpt__attention_mismatch(frame, "heads of q that are a multiple of those of k and v");
    if (a[3] == 0) return mpt__attention_mismatch(frame, "one element in a head or more");
    frame->out_shape[0] = q->shape;
    frame->out_shape[0].dim[rank - 1] = heads ? heads * c[3] : c[3];
    if (!mask) return MPT_OK;
    if (mask->flags & MPT__REQUIRES_GRAD)
        return mpt__error(frame->context, UNSUPPORTED,
            "the mask gets no gradient; mpt_detach it, or add it to scores of your own");
    if (mask->dtype != MPT_BOOL && !mpt__check_float(frame, 3)) return frame->context->base.status;
    int64_t full[4] = {a[0], a[1], a[2], b[2]};
    int lead = (heads ? 4 : rank) - mask->shape.rank;
    good = lead >= 0;
    for (int i = 0; good && i < mask->shape.rank; i++)
        good = mask->shape.dim[i] == 1 || mask->shape.dim[i] == full[4 - mask->shape.rank + i];
    if (good) return MPT_OK;
    return mpt__error(frame->context, SHAPE,
        "mask %S does not broadcast to the scores, %lld x %lld x %lld x %lld", &mask->shape, a[0],
        a[1], a[2], b[2]);
}

/* Operands 0 to 3 and what else the three kernels share. */
static mpt__launch *mpt__attention_launch(mpt__frame *frame, mpt__kernel kernel,
    const mpt__attention_views *at, const mpt__tensor *mask) {
    MPT__PLAIN_FLOATS;
    const mpt__attributes *a = frame->attributes;
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->imm[0] = a->imm[0];
    if (launch->imm[0] == 0.0) launch->imm[0] = 1.0 / sqrt((double)at->q.shape.dim[3]);
    launch->imm[1] = a->imm[1];
    launch->index[0] = a->index[0];
    launch->index[1] = a->index[3], launch->index[2] = a->index[4];
    launch->compute_dtype = (uint8_t)frame->compute;
    if (a->imm[1] > 0.0) mpt__dropout_key(launch, frame->context, a->index[1], a->index[2]);
    mpt__reads(launch, 0, &at->q);
    mpt__reads(launch, 1, &at->k);
    mpt__reads(launch, 2, &at->v);
    if (mask) {
        mpt__tensor scores = at->q;
        scores.shape.dim[3] = at->k.shape.dim[2];
        mpt__operand_spread(launch, 3, mask, &scores);
    }
    return launch;
}

/* A number for each query. */
static mpt__tensor *mpt__attention_numbers_new(mpt__frame *frame, const mpt__attention_views *at) {
    mpt_shape shape = at->q.shape;
    shape.dim[3] = 1;
    return mpt__temporary(frame, mpt__loss_dtype(frame), &shape);
}

/* Saved: q, k, v, mask, the output, the log-sum-exp of each query. */
static mpt_status mpt__attention_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__attention_views at = mpt__attention_split(frame, frame->in);
    if (frame->attributes->imm[1] > 0.0 && mpt__dropout_step(ctx, ctx->now.step) != MPT_OK)
        return ctx->base.status;
    mpt__tensor *lse = NULL, out = mpt__attention_view(frame, frame->out[0], 0, 1);
    for (int i = 0; i < 4; i++) mpt__save(frame, frame->in[i]);
    if (frame->records) {
        lse = mpt__attention_numbers_new(frame, &at);
        if (!lse) return ctx->base.status;
        mpt__save(frame, frame->out[0]);
        mpt__save(frame, lse);
    }
    mpt__launch *launch = mpt__attention_launch(frame, MPT__K_ATTENTION, &at, frame->in[3]);
    mpt__writes(launch, 4, &out);
    if (lse) mpt__writes(launch, 5, lse);
    return mpt__submit(ctx, launch);
}

static mpt__launch *mpt__attention_back_launch(mpt__frame *frame, mpt__kernel kernel,
    const mpt__attention_views *at, const mpt__tensor *dout, const mpt__tensor *delta,
    mpt__access access) {
    mpt__launch *launch = mpt__attention_launch(frame, kernel, at, frame->saved[3]);
    mpt__reads(launch, 4, frame->saved[5]);
    mpt__reads(launch, 5, dout);
    mpt__operand_of(launch, 6, delta, access);
    return launch;
}

static mpt_status mpt__attention_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__attention_views at = mpt__attention_split(frame, frame->saved), to = at;
    mpt__tensor *delta = mpt__attention_numbers_new(frame, &at), *target[3] = {NULL, NULL, NULL};
    mpt__tensor out = mpt__attention_view(frame, frame->saved[4], 0, 1);
    mpt__tensor dout = mpt__attention_view(frame, frame->dy[0], 0, 1);
    mpt__access access[3] = {MPT__WRITE, MPT__WRITE, MPT__WRITE};
    bool packed = !frame->in[1];
    if (!delta) return ctx->base.status;
    if (frame->attributes->imm[1] > 0.0 && mpt__dropout_step(ctx, frame->record->step) != MPT_OK)
        return ctx->base.status;
    for (int i = 0; i < 3; i++)
        if (frame->in[i]) target[i] = mpt__gradient_into(frame, i, &access[i]);
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (packed) target[1] = target[2] = target[0], access[1] = access[2] = access[0];
    mpt__tensor *view[3] = {&to.q, &to.k, &to.v};
    for (int i = 0; i < 3; i++)
        if (target[i])
            *view[i] = mpt__attention_view(frame, target[i], packed ? i : 0, packed ? 3 : 1);
    bool others = target[1] || target[2];
    bool later = others && !ctx->backend.describe && mpt__tensor_numel(&at.k) > 0;
    mpt__launch *launch =
        mpt__attention_back_launch(frame, MPT__K_ATTENTION_DQ, &at, &dout, delta, MPT__WRITE);
    if (target[0] && !later) mpt__operand_of(launch, 7, &to.q, access[0]);
    mpt__reads(launch, 8, &out);
    mpt_status status = mpt__submit(ctx, launch);
    if (status != MPT_OK || !others) return status;
    launch = mpt__attention_back_launch(frame, MPT__K_ATTENTION_DKV, &at, &dout, delta, MPT__READ);
    if (target[1]) mpt__operand_of(launch, 7, &to.k, access[1]);
    if (target[2]) mpt__operand_of(launch, 8, &to.v, access[2]);
    if (target[0] && later) mpt__operand_of(launch, 9, &to.q, access[0]);
    return mpt__submit(ctx, launch);
}

/* ==== Rotary positions ====
 *
 * rank: heads, as above. imm[0]: base; index: the first position, interleaved. */

static mpt_status mpt__rope_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    const int rank = x->shape.rank, heads = frame->attributes->rank;
    if (!mpt__check_float(frame, 0)) return frame->context->base.status;
    bool good = heads ? rank == 3 : rank >= 2 && rank <= 4;
    const int64_t width = good ? x->shape.dim[rank - 1] : 0, unit = heads ? 2 * heads : 2;
    if (width < unit || width % unit != 0)
        return mpt__error(frame->context, SHAPE, "input %S: expected %s with an even D", &x->shape,
            heads ? "[B, T, heads * D]" : "[.., T, D] of rank 2 to 4");
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    return MPT_OK;
}

static mpt_status mpt__rope_launch(mpt__frame *frame, const mpt__tensor *from,
    const mpt__tensor *to, double sign, mpt__access access) {
    const mpt__attributes *a = frame->attributes;
    const mpt__tensor x = mpt__attention_view(frame, from, 0, 1);
    const mpt__tensor y = mpt__attention_view(frame, to, 0, 1);
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_ROPE);
    launch->imm[0] = a->imm[0], launch->imm[1] = sign;
    launch->index[0] = a->index[0], launch->index[1] = a->index[1];
    mpt__reads(launch, 0, &x);
    mpt__operand_of(launch, 1, &y, access);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__rope_forward(mpt__frame *frame) {
    return mpt__rope_launch(frame, frame->in[0], frame->out[0], 1.0, MPT__WRITE);
}

/* The gradient is turned back. */
static mpt_status mpt__rope_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    return mpt__rope_launch(frame, frame->dy[0], frame->dx, -1.0, frame->access);
}

/* ==== Linear and cross-entropy ====
 *
 * in: x [.., D], weight [V, D], targets [..], class weights or none. The logits of some rows exist
 * at a time; backward computes them again and turns them into their gradient in place. */

#define MPT__LOGIT_BYTES ((int64_t)32 << 20) /* of the logits that exist at a time, about */

static mpt_status mpt__linear_nll_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0], *w = frame->in[1], *t = frame->in[2], *by = frame->in[3];
    mpt_dtype low = mpt__autocast_dtype(ctx);
    int rank = x->shape.rank;
    if (!mpt__check_float(frame, 0) || !mpt__check_float(frame, 1)) return ctx->base.status;
    if (t->dtype != MPT_I64)
        return mpt__error(ctx, DTYPE,
            "targets have dtype %D, expected i64 class numbers; mpt_cast them to MPT_I64",
            t->dtype);
    bool good = rank >= 2 && w->shape.rank == 2 && t->shape.rank == rank - 1 &&
        x->shape.dim[rank - 1] == w->shape.dim[1];
    for (int i = 0; good && i < rank - 1; i++) good = t->shape.dim[i] == x->shape.dim[i];
    if (!good)
        return mpt__error(ctx, SHAPE,
            "input %S, weight %S, targets %S: expected [.., D], [V, D] and [..]", &x->shape,
            &w->shape, &t->shape);
    if (by &&
        (by->shape.rank != 1 || by->shape.dim[0] != w->shape.dim[0] ||
            by->dtype != frame->out_dtype[0]))
        return mpt__error(ctx, SHAPE, "class weights %D %S: expected %D [%lld]", by->dtype,
            &by->shape, frame->out_dtype[0], w->shape.dim[0]);
    if (!mpt__promotes(ctx) && x->dtype != w->dtype) return mpt__dtype_mismatch(frame, 0, 1);
    if (x->dtype != MPT_F64) frame->compute = low;
    frame->attributes->index[1] = 1; /* rows of a sample */
    for (int i = 1; i < rank - 1; i++) frame->attributes->index[1] *= x->shape.dim[i];
    if (rank == 2) frame->attributes->index[1] = 0;
    frame->out_shape[0].rank = 0;
    if (frame->attributes->reduction == MPT_NONE) mpt__shape_copy(&frame->out_shape[0], &t->shape);
    return MPT_OK;
}

/* The rows under way: at .. at+n-1 of all. */
typedef struct {
    int64_t at, n, step, all;
    mpt__tensor logits; /* room for `step` rows */
    const mpt__tensor *x, *weight, *targets;
} mpt__logit_rows;

static bool mpt__logits_begin(mpt__frame *frame, mpt__tensor *const in[3], mpt__logit_rows *rows) {
    rows->weight = in[1];
    rows->x = mpt__rows_source(frame, in[0]);
    rows->targets = mpt__contiguous_of(frame, in[2]);
    if (!rows->x || !rows->targets) return false;
    int64_t classes = in[1]->shape.dim[0];
    rows->at = rows->n = 0;
    rows->all = mpt__tensor_numel(in[2]);
    rows->step = MPT__LOGIT_BYTES / 4 / (classes > 0 ? classes : 1) / 16 * 16;
    if (rows->step < 16) rows->step = 16;
    if (rows->step > rows->all) rows->step = rows->all;
    mpt_shape room = MPT_SHAPE(rows->step, classes);
    mpt__tensor *logits = mpt__temporary(frame, mpt__loss_dtype(frame), &room);
    if (logits) rows->logits = *logits;
    return logits != NULL;
}

/* Rows at .. of a tensor [.., columns], or its elements, as an operand. */
static void mpt__operand_part(mpt__launch *launch, int position, const mpt__tensor *tensor,
    const mpt__logit_rows *rows, bool transposed, mpt__access access) {
    mpt__operand *o = mpt__operand_rows(launch, position, tensor, transposed, access);
    int row = transposed ? 1 : 0;
    o->offset += rows->at * o->stride[row];
    o->shape[row] = rows->n;
}
static void mpt__operand_numbers(mpt__launch *launch, int position, const mpt__tensor *tensor,
    const mpt__logit_rows *rows, mpt__access access) {
    mpt__operand *o = mpt__operand_ranked(launch, position, tensor, 1, access);
    mpt__operand_dim(o, 0, rows->n, 1);
    o->offset += rows->at;
}

/* The logits of the next rows; false at the end and on error. */
static bool mpt__logits_next(mpt__frame *frame, mpt__logit_rows *rows) {
    mpt__source w;
    rows->at += rows->n;
    rows->n = rows->all - rows->at < rows->step ? rows->all - rows->at : rows->step;
    rows->logits.shape.dim[0] = rows->n;
    if (rows->n == 0 || !mpt__gemm_source(frame->context, rows->weight, frame->compute, &w))
        return false;
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__operand_part(launch, 0, rows->x, rows, false, MPT__READ);
    mpt__linear_weight(launch, rows->weight, &w, true);
    mpt__operand_rows(launch, 3, &rows->logits, false, MPT__WRITE);
    return mpt__submit(frame->context, launch) == MPT_OK;
}

/* Looks at all targets, and at a mean's divisor. `losses`: [rows] with MPT_NONE, else [1]. */
static mpt_status mpt__linear_nll_divisor(mpt__frame *frame, const mpt__logit_rows *rows,
    const mpt__tensor *losses, const mpt__tensor *divisor) {
    mpt__launch *launch = mpt__loss_launch(frame, MPT__K_NLL);
    mpt__tensor one = *divisor; /* in place of log-probabilities */
    one.storage = frame->context->scalar_storage;
    one.offset = one.dtype == MPT_F64 ? MPT__SLOT_ONE : 2 * MPT__SLOT_ONE_F32;
    mpt__operand *o = mpt__operand_ranked(launch, 0, &one, 2, MPT__READ);
    mpt__operand_dim(o, 0, rows->all, 0);
    mpt__operand_dim(o, 1, rows->weight->shape.dim[0], 0);
    mpt__operand_ids(launch, 1, rows->targets);
    if (frame->in[3]) mpt__reads(launch, 2, frame->in[3]);
    o = mpt__operand_ranked(launch, 3, losses, 1, MPT__WRITE);
    mpt__operand_dim(o, 0, launch->reduction == MPT_NONE ? rows->all : 1, 1);
    mpt__writes(launch, 4, divisor);
    return mpt__submit(frame->context, launch);
}

/* Saved: x, weight, targets, class weights, divisor, log-sum-exp of the rows in two parts. */
static mpt_status mpt__linear_nll_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__logit_rows rows;
    if (!mpt__logits_begin(frame, frame->in, &rows)) return ctx->base.status;
    bool each = frame->attributes->reduction == MPT_NONE;
    mpt_shape one = MPT_SHAPE(1), all = MPT_SHAPE(rows.all), two = MPT_SHAPE(rows.all, 2);
    mpt_dtype dtype = frame->out_dtype[0];
    mpt__tensor *divisor = mpt__temporary(frame, dtype, &one), *losses = frame->out[0];
    mpt__tensor *sums = divisor ? mpt__temporary(frame, dtype, &two) : NULL;
    mpt__tensor *unused = sums ? mpt__temporary(frame, dtype, &one) : NULL;
    if (unused && !each) losses = mpt__temporary(frame, dtype, &all);
    if (!unused || !losses) return ctx->base.status;
    for (int i = 0; i < 4; i++) mpt__save(frame, frame->in[i]);
    mpt__save(frame, divisor);
    mpt__save(frame, sums);
    if (mpt__linear_nll_divisor(frame, &rows, each ? losses : unused, divisor) != MPT_OK)
        return ctx->base.status;
    while (mpt__logits_next(frame, &rows)) {
        mpt__launch *launch = mpt__loss_launch(frame, MPT__K_CROSS_ENTROPY);
        launch->reduction = MPT_NONE;
        mpt__operand_rows(launch, 0, &rows.logits, false, MPT__READ);
        mpt__operand_numbers(launch, 1, rows.targets, &rows, MPT__READ);
        if (frame->in[3]) mpt__reads(launch, 2, frame->in[3]);
        mpt__operand_numbers(launch, 3, losses, &rows, MPT__WRITE);
        mpt__writes(launch, 4, unused);
        mpt__operand_part(launch, 5, sums, &rows, false, MPT__WRITE);
        if (mpt__submit(ctx, launch) != MPT_OK) return ctx->base.status;
    }
    if (each || !mpt__ok(ctx)) return ctx->base.status;
    mpt__launch_reduce(ctx, MPT__FN_SUM, losses, frame->out[0], MPT__WRITE);
    if (frame->attributes->reduction != MPT_MEAN) return ctx->base.status;
    mpt__tensor number = *divisor;
    number.shape.rank = 0;
    return mpt__launch_binary(ctx, MPT__FN_DIV, frame->out[0], &number, frame->out[0], MPT__WRITE);
}

/* The logits of the rows become their gradient. */
static mpt_status mpt__logits_slopes(
    mpt__frame *frame, const mpt__logit_rows *rows, const mpt__tensor *dloss) {
    mpt__launch *launch = mpt__loss_launch(frame, MPT__K_CROSS_ENTROPY_BACKWARD);
    mpt__operand_rows(launch, 0, &rows->logits, false, MPT__READ);
    mpt__operand_numbers(launch, 1, rows->targets, rows, MPT__READ);
    if (frame->saved[3]) mpt__reads(launch, 2, frame->saved[3]);
    mpt__reads(launch, 3, frame->saved[4]);
    if (launch->reduction == MPT_NONE)
        mpt__operand_numbers(launch, 4, dloss, rows, MPT__READ);
    else
        mpt__operand_padded(launch, 4, dloss, 1, MPT__READ);
    mpt__operand_part(launch, 5, frame->saved[5], rows, false, MPT__READ);
    mpt__operand_rows(launch, 6, &rows->logits, false, MPT__WRITE);
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__linear_nll_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__logit_rows rows;
    mpt__access to_x, to_w;
    const mpt__tensor *dx = mpt__gradient_into(frame, 0, &to_x);
    const mpt__tensor *dw = mpt__gradient_into(frame, 1, &to_w), *sum = dw;
    const mpt__tensor *dloss = mpt__contiguous_of(frame, frame->dy[0]);
    if (!dloss || !mpt__logits_begin(frame, frame->saved, &rows)) return ctx->base.status;
    bool wide = !dw || dw->dtype == MPT_F32 || dw->dtype == MPT_F64;
    if (!wide) sum = mpt__temporary(frame, MPT_F32, &dw->shape);
    if (!wide && !sum) return ctx->base.status;
    mpt__access access = wide ? to_w : MPT__WRITE;
    if (rows.all == 0 && sum && access == MPT__WRITE) mpt__launch_fill(ctx, sum, 0.0);
    while (mpt__logits_next(frame, &rows)) {
        mpt__source w;
        if (mpt__logits_slopes(frame, &rows, dloss) != MPT_OK ||
            !mpt__gemm_source(ctx, rows.weight, frame->compute, &w))
            return ctx->base.status;
        mpt__launch *launch = mpt__gemm_begin(frame);
        if (dx) {
            mpt__operand_rows(launch, 0, &rows.logits, false, MPT__READ);
            mpt__linear_weight(launch, rows.weight, &w, false);
            mpt__operand_part(launch, 3, dx, &rows, false, to_x);
            mpt__submit(ctx, launch);
        }
        if (!sum) continue;
        launch = mpt__gemm_begin(frame);
        mpt__operand_rows(launch, 0, &rows.logits, true, MPT__READ);
        mpt__operand_part(launch, 1, rows.x, &rows, false, MPT__READ);
        mpt__operand_of(launch, 3, sum, access);
        mpt__submit(ctx, launch);
        access = MPT__ACCUMULATE;
    }
    if (wide || !mpt__ok(ctx)) return ctx->base.status;
    return mpt__launch_copy(ctx, sum, dw, to_w);
}

#endif

/* ==== The functions ==== */

MPT__BEGIN_COLD

MPT__DEFAULTS(mpt_attention_config, )

MPT__DEFAULTS(mpt_rope_config, config.base = 10000.0;)

#ifdef MPTRAIN_NO_ATTENTION

MPT__BEGIN_ABSENT
mpt_tensor mpt_embedding(mpt_tensor ids, mpt_tensor weight, int64_t padding_index) {
    return mpt__no_attention(ids, "mpt_embedding");
}
mpt_tensor mpt_scaled_dot_product_attention(
    mpt_tensor q, mpt_tensor k, mpt_tensor v, const mpt_attention_config *config) {
    return mpt__no_attention(q, "mpt_scaled_dot_product_attention");
}
mpt_tensor mpt_rope(mpt_tensor x, const mpt_rope_config *config) {
    return mpt__no_attention(x, "mpt_rope");
}
mpt_tensor mpt_glu(mpt_tensor x, int dim, mpt_gate gate) { return mpt__no_attention(x, "mpt_glu"); }
mpt_tensor mpt_hash_grid(mpt_tensor x, mpt_tensor table, int64_t coarsest, int64_t finest) {
    (void)table, (void)coarsest, (void)finest;
    return mpt__no_attention(x, "mpt_hash_grid");
}
mpt_tensor mpt_linear_cross_entropy(
    mpt_tensor x, mpt_tensor weight, mpt_tensor targets, const mpt_nll_config *config) {
    return mpt__no_attention(x, "mpt_linear_cross_entropy");
}
MPT__END_ABSENT

#else

mpt_tensor mpt_embedding(mpt_tensor ids, mpt_tensor weight, int64_t padding_index) {
    mpt_tensor in[] = {ids, weight};
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = padding_index;
    attributes.required = 2;
    return mpt__apply1("mpt_embedding", MPT__OP_embedding, in, 2, &attributes);
}

/* Attributes of a call; `heads` as MPT__OP_scaled_dot_product_attention has them. */
static mpt__attributes mpt__attention_attributes(
    int heads, bool causal, double dropout, double scale, uint64_t stream, uint64_t call) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.required = 3;
    attributes.rank = (uint8_t)heads;
    attributes.imm[0] = scale;
    attributes.imm[1] = dropout;
    attributes.index[0] = causal;
    attributes.index[1] = (int64_t)stream;
    attributes.index[2] = (int64_t)call;
    return attributes;
}

mpt_tensor mpt_scaled_dot_product_attention(
    mpt_tensor q, mpt_tensor k, mpt_tensor v, const mpt_attention_config *config) {
    static const char name[] = "mpt_scaled_dot_product_attention";
    mpt_attention_config none = mpt_attention_config_default();
    if (!config) config = &none;
    mpt_tensor in[] = {q, k, v, config->mask};
    mpt_context *ctx = mpt__context_of(in, 4);
    double p = config->dropout;
    const int64_t far_end = (int64_t)1 << 40;
    if (config->window < 0 || config->window > far_end || config->offset < 0 ||
        config->offset > far_end || (config->window && !config->causal))
        return mpt__misused(ctx, name, ARGUMENT,
            "window %lld, offset %lld: expected 0 to 2^40, and a window of causal "
            "attention alone",
            config->window, config->offset);
    if (!(p >= 0.0 && p <= 1.0) || !mpt__f64_is_finite(config->scale))
        return mpt__misused(ctx, name, ARGUMENT,
            "dropout %g, scale %g: expected a probability, and a finite number", p, config->scale);
    if (ctx && (!ctx->module_training || ctx->inference_depth)) p = 0.0;
    bool drops = ctx && p > 0.0;
    mpt__attributes attributes = mpt__attention_attributes(0, config->causal, p, config->scale,
        drops ? mpt__hash_u64(ctx->path_hash, 1) : 0, drops ? ctx->now.module_calls++ : 0);
    attributes.index[3] = config->window, attributes.index[4] = config->offset;
    return mpt__apply1(name, MPT__OP_scaled_dot_product_attention, in, 4, &attributes);
}

static bool mpt__good_rope(const mpt_rope_config *config) {
    return config->base > 0.0 && mpt__f64_is_finite(config->base) && config->offset >= 0 &&
        config->offset <= (int64_t)1 << 40;
}

mpt_tensor mpt_rope(mpt_tensor x, const mpt_rope_config *config) {
    static const char name[] = "mpt_rope";
    mpt_rope_config defaults = mpt_rope_config_default();
    if (!config) config = &defaults;
    if (!mpt__good_rope(config) || config->heads < 0 || config->heads > 255)
        return mpt__misused(x.context, name, ARGUMENT,
            "base %g, offset %lld, %d heads: expected more than 0, 0 to 2^40, and "
            "at most 255",
            config->base, config->offset, config->heads);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.rank = (uint8_t)config->heads;
    attributes.imm[0] = config->base;
    attributes.index[0] = config->offset;
    attributes.index[1] = config->interleaved;
    return mpt__apply1(name, MPT__OP_rope, &x, 1, &attributes);
}

static bool mpt__check_gate(mpt_context *ctx, mpt_gate gate) {
    return gate == MPT_GATE_SIGMOID || gate == MPT_GATE_SILU || gate == MPT_GATE_GELU ||
        mpt__reject(ctx, ARGUMENT, "gate %d is no mpt_gate", (int)gate);
}

mpt_tensor mpt_glu(mpt_tensor x, int dim, mpt_gate gate) {
    static const char name[] = "mpt_glu";
    const mpt__tensor *found = mpt__enter_at(x, name, "argument 1");
    if (!found) return mpt__null(x.context);
    const int rank = found->shape.rank, axis = dim < 0 ? dim + rank : dim;
    if (axis < 0 || axis >= rank || found->shape.dim[axis] % 2 != 0)
        return mpt__misused(
            x.context, name, SHAPE, "input %S: dimension %d has no two halves", &found->shape, dim);
    if (!mpt__check_gate(x.context, gate)) return mpt__null(x.context);
    const int64_t half = found->shape.dim[axis] / 2;
    mpt__spares spares;
    spares.count = 0;
    mpt_tensor a = mpt__spare(&spares, mpt_slice(x, axis, 0, half, 1));
    mpt_tensor b = mpt__spare(&spares, mpt_slice(x, axis, half, 2 * half, 1));
    if (gate == MPT_GATE_SIGMOID)
        b = mpt__spare(&spares, mpt_sigmoid(b));
    else
        a = mpt__spare(&spares, gate == MPT_GATE_SILU ? mpt_silu(a) : mpt_gelu(a));
    return mpt__spares_end(&spares, mpt_mul(a, b));
}

mpt_tensor mpt_hash_grid(mpt_tensor x, mpt_tensor table, int64_t coarsest, int64_t finest) {
    mpt_tensor in[] = {x, table};
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = coarsest, attributes.index[1] = finest;
    attributes.required = 2;
    return mpt__apply1("mpt_hash_grid", MPT__OP_hash_grid, in, 2, &attributes);
}

mpt_tensor mpt_linear_cross_entropy(
    mpt_tensor x, mpt_tensor weight, mpt_tensor targets, const mpt_nll_config *config) {
    static const char name[] = "mpt_linear_cross_entropy";
    mpt_nll_config defaults = mpt_nll_config_default();
    if (!config) config = &defaults;
    mpt_tensor in[] = {x, weight, targets, config->weight};
    mpt_context *ctx = mpt__context_of(in, 4);
    if (!mpt__good_reduction(ctx, name, config->reduction, MPT_NONE)) return mpt__null(ctx);
    if (!(config->label_smoothing >= 0.0 && config->label_smoothing <= 1.0))
        return mpt__misused(
            ctx, name, ARGUMENT, "label_smoothing %g is not in [0, 1]", config->label_smoothing);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = config->ignore_index;
    attributes.reduction = (uint8_t)config->reduction;
    attributes.required = 3;
    attributes.imm[0] = config->label_smoothing;
    return mpt__apply1(name, MPT__OP_linear_cross_entropy, in, 4, &attributes);
}

#endif

MPT__END_REGION

#endif
