/* ----
 * ops/matmul.c: matrix products, and linear, which is one with a bias and an activation.
 * ---- */
#ifndef MPT__OPS_MATMUL_INCLUDED
#define MPT__OPS_MATMUL_INCLUDED

#include "ops/elementwise.c"

/* ==== Matrix products ==== */

static mpt_status mpt__matmul_mismatch(mpt__frame *frame, const char *why) {
    return mpt__error(
        frame->context, SHAPE, "%S x %S: %s", &frame->in[0]->shape, &frame->in[1]->shape, why);
}

/* A 1-d a is a row, a 1-d b a column; the output drops the dimension that was not there. */
static mpt_status mpt__matmul_shape(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    mpt_shape *out = &frame->out_shape[0];
    if (a->shape.rank == 0 || b->shape.rank == 0)
        return mpt__matmul_mismatch(frame,
                                    "both need at least one dimension; mpt_mul multiplies scalars");
    if (a->shape.dim[a->shape.rank - 1] != b->shape.dim[b->shape.rank > 1 ? b->shape.rank - 2 : 0])
        return mpt__matmul_mismatch(frame, "the last dimension of the first must equal the last "
                                           "but one of the second; mpt_transpose one of them");
    if (mpt__broadcast_dims(a, a->shape.rank > 1 ? a->shape.rank - 2 : 0, b,
            b->shape.rank > 1 ? b->shape.rank - 2 : 0, out) >= 0)
        return mpt__matmul_mismatch(frame, "leading dimensions do not broadcast");
    if (a->shape.rank > 1) out->dim[out->rank++] = a->shape.dim[a->shape.rank - 2];
    if (b->shape.rank > 1) out->dim[out->rank++] = b->shape.dim[b->shape.rank - 1];
    return MPT_OK;
}

/* A tensor as [batch.., rows, columns] of a matmul; row, column: whether it has that dimension.
   `batches` leading dimensions of sizes `batch`, by strides of 0; NULL: its own sizes or 1. */
static void mpt__matrix(mpt__tensor *view, const mpt__tensor *tensor, bool row, bool column,
    int batches, const int64_t *batch) {
    view->storage = tensor->storage;
    view->dtype = tensor->dtype;
    view->shape.rank = (uint8_t)(batches + 2);
    view->offset = tensor->offset;
    int from = tensor->shape.rank - 1;
    for (int to = batches + 1; to >= 0; to--) {
        bool there = to > batches ? column : to == batches ? row : from >= 0;
        view->shape.dim[to] = there ? tensor->shape.dim[from] : 1;
        view->stride[to] = there ? tensor->stride[from] : 0;
        if (there) from--;
        if (to >= batches || !batch) continue;
        if (view->shape.dim[to] != batch[to]) view->stride[to] = 0;
        view->shape.dim[to] = batch[to];
    }
}

/* The last two dimensions swapped. */
static mpt__tensor mpt__transposed_view(const mpt__tensor *tensor) {
    int a = tensor->shape.rank - 2, b = tensor->shape.rank - 1;
    mpt__tensor view = *tensor;
    view.shape.dim[a] = tensor->shape.dim[b], view.shape.dim[b] = tensor->shape.dim[a];
    view.stride[a] = tensor->stride[b], view.stride[b] = tensor->stride[a];
    return view;
}

static MPT__NOINLINE mpt__launch *mpt__gemm_launch(mpt__frame *frame) {
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_GEMM);
    launch->imm[0] = 1.0;
    launch->index[0] = frame->context->tf32;
    launch->compute_dtype = (uint8_t)frame->compute;
    return launch;
}

/* A launch of a product; its operands are to be set, and the compiler sees that it has none yet. */
static MPT__FORCE_INLINE mpt__launch *mpt__gemm_begin(mpt__frame *frame) {
    mpt__launch *launch = mpt__gemm_launch(frame);
    launch->n_operands = 0;
    return launch;
}

/* out = a b, views of equal rank >= 2. */
static mpt_status mpt__launch_gemm(mpt__frame *frame, const mpt__tensor *a, const mpt__tensor *b,
    const mpt__tensor *out, mpt__access access) {
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__reads(launch, 0, a);
    mpt__reads(launch, 1, b);
    mpt__operand_of(launch, 3, out, access);
    return mpt__submit(frame->context, launch);
}

/* The three matrices of a call: a, b, and `y`, its output or the gradient of that. Parameters are
   read in their cast form. */
static bool mpt__matmul_views(
    mpt__frame *frame, mpt__tensor *const in[2], const mpt__tensor *y, mpt__tensor view[3]) {
    bool row = frame->in[0]->shape.rank > 1, column = frame->in[1]->shape.rank > 1;
    int batches = y->shape.rank - row - column;
    mpt__matrix(&view[2], y, row, column, batches, NULL);
    for (int i = 0; i < 2; i++) {
        mpt__source source;
        if (!mpt__gemm_source(frame->context, in[i], frame->compute, &source)) return false;
        mpt__matrix(&view[i], in[i], i == 1 || row, i == 0 || column, batches, view[2].shape.dim);
        view[i].storage = source.storage;
        view[i].dtype = source.dtype;
    }
    return true;
}

static mpt_status mpt__matmul_forward(mpt__frame *frame) {
    const mpt__tensor *a = frame->in[0], *b = frame->in[1];
    mpt__tensor view[3];
    mpt__save(frame, frame->in[0]);
    mpt__save(frame, frame->in[1]);
    if (a->shape.rank == 2 && b->shape.rank == 2 && !a->parameter && !b->parameter)
        return mpt__launch_gemm(frame, a, b, frame->out[0], MPT__WRITE);
    if (!mpt__matmul_views(frame, frame->in, frame->out[0], view)) return mpt__outcome(frame);
    return mpt__launch_gemm(frame, &view[0], &view[1], &view[2], MPT__WRITE);
}

/* Gradient i = left right (batched), summed over the batches in which the input was broadcast. */
static mpt_status mpt__matmul_gradient(
    mpt__frame *frame, int i, const mpt__tensor *left, const mpt__tensor *right) {
    mpt__access access;
    mpt__tensor *target = mpt__gradient_into(frame, i, &access);
    if (!target) return mpt__outcome(frame);
    int batches = left->shape.rank - 2;
    bool vector = target->shape.rank == 1, summed = false;
    mpt__tensor matrix;
    mpt__matrix(&matrix, target, i == 1 || !vector, i == 0 || !vector, batches, NULL);
    for (int d = 0; d < batches; d++) summed |= matrix.shape.dim[d] != left->shape.dim[d];
    if (!summed) return mpt__launch_gemm(frame, left, right, &matrix, access);
    mpt_shape full = left->shape;
    full.dim[batches + 1] = right->shape.dim[batches + 1];
    mpt__tensor *product = mpt__temporary(frame, mpt__loss_dtype(frame), &full);
    if (!product) return mpt__outcome(frame);
    mpt_status status = mpt__launch_gemm(frame, left, right, product, MPT__WRITE);
    if (status != MPT_OK) return status;
    return mpt__launch_reduce(frame->context, MPT__FN_SUM, product, &matrix, access);
}

static mpt_status mpt__matmul_backward(mpt__frame *frame) {
    mpt__tensor view[3], transposed;
    mpt_status status = MPT_OK;
    if (!mpt__matmul_views(frame, frame->saved, frame->dy[0], view)) return mpt__outcome(frame);
    if (mpt__wants(frame, 0)) {
        transposed = mpt__transposed_view(&view[1]);
        status = mpt__matmul_gradient(frame, 0, &view[2], &transposed);
    }
    if (status != MPT_OK || !mpt__wants(frame, 1)) return status;
    transposed = mpt__transposed_view(&view[0]);
    return mpt__matmul_gradient(frame, 1, &transposed, &view[2]);
}

mpt_tensor mpt_matmul(mpt_tensor a, mpt_tensor b) {
    return mpt__apply2("mpt_matmul", MPT__OP_matmul, a, b);
}

/* ==== Linear ==== */

static mpt_status mpt__linear_shape(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0], *w = frame->in[1], *bias = frame->in[2];
    if (w->shape.rank != 2 || x->shape.rank < 1 ||
        x->shape.dim[x->shape.rank - 1] != w->shape.dim[1])
        return mpt__error(frame->context, SHAPE,
            "input %S does not fit weight %S: expected [.., in] and [out, in]", &x->shape,
            &w->shape);
    if (bias && (bias->shape.rank != 1 || bias->shape.dim[0] != w->shape.dim[0]))
        return mpt__error(frame->context, SHAPE, "bias %S does not fit weight %S: expected [%lld]",
            &bias->shape, &w->shape, w->shape.dim[0]);
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    frame->out_shape[0].dim[x->shape.rank - 1] = w->shape.dim[0];
    return MPT_OK;
}

/* The weight as operand 1, in the form that mpt__gemm_source chose. */
static MPT__FORCE_INLINE void mpt__linear_weight(
    mpt__launch *launch, const mpt__tensor *weight, const mpt__source *source, bool transposed) {
    mpt__operand *operand = mpt__operand_matrix(
        launch, 1, weight, weight->shape.dim[0], weight->stride[0], transposed, MPT__READ);
    operand->storage = source->storage;
    operand->dtype = source->dtype;
}

static const mpt__tensor *mpt__rows_source(mpt__frame *frame, const mpt__tensor *tensor) {
    return tensor->shape.rank <= 2 ? tensor : mpt__contiguous_of(frame, tensor);
}

static mpt__function mpt__activation_function(mpt_activation activation, bool backward) {
    static const uint8_t functions[][2] = {
        {MPT__FN_NONE, MPT__FN_NONE},          {MPT__FN_RELU, MPT__FN_RELU_BACKWARD},
        {MPT__FN_GELU, MPT__FN_GELU_BACKWARD}, {MPT__FN_GELU_TANH, MPT__FN_GELU_TANH_BACKWARD},
        {MPT__FN_TANH, MPT__FN_TANH_BACKWARD}, {MPT__FN_SIGMOID, MPT__FN_SIGMOID_BACKWARD},
    };
    return (mpt__function)functions[activation][backward];
}

/* GELU's derivative needs its input, so training keeps it instead of fusing. */
static bool mpt__activation_keeps_input(mpt_activation activation) {
    return activation == MPT_ACTIVATION_GELU || activation == MPT_ACTIVATION_GELU_TANH;
}

#ifndef MPTRAIN_NO_FRUGAL
/* The dtype that all who saved x, each at its first place, read it in; F32 where they do not agree,
   or one needs more of it. */
static mpt_dtype mpt__rounded_to(const mpt_context *ctx, const mpt__tensor *x) {
    mpt_dtype dtype = MPT_F32;
    int found = 0;
    for (int64_t r = 1; r < ctx->record_count; r++) {
        const mpt__record *record = ctx->records[r];
        if (!record->live || record->done) continue;
        if (record->again && record->in[0] == x) return MPT_F32;
        if (record->n_saved == 0 || record->saved[0] != x) continue;
        const bool other = found > 0 && record->compute_dtype != dtype;
        if (record->op != MPT__OP_linear || record->region || other) return MPT_F32;
        dtype = (mpt_dtype)record->compute_dtype;
        found++;
    }
    return found == x->saves ? dtype : MPT_F32;
}

enum { MPT__NARROW_LEAST = 1 << 18 }; /* elements: of 1 MB half is worth a copy */

/* Keeps halves in the place of fp32 that no handle names and that linear layers alone saved: they
   round it when they read it, in forward as in backward, so no bit changes. */
static void mpt__narrow(mpt_context *ctx, mpt__tensor *x) {
    const bool may = !mpt__in_region(ctx) && !ctx->in_backward && mpt__ok(ctx) &&
        mpt__tensor_numel(x) >= MPT__NARROW_LEAST;
    const mpt_dtype dtype = may && mpt__shrinks(ctx, x) ? mpt__rounded_to(ctx, x) : MPT_F32;
    if (dtype == MPT_F32) return;
    mpt__tensor *halves = mpt__tensor_unscoped(ctx, dtype, &x->shape, MPT_MEMORY_ACTIVATION);
    if (!halves) return;
    mpt__copy_dims(halves->stride, x->stride, x->shape.rank);
    mpt__launch_origin(ctx, MPT__FORWARD, MPT__OP_linear);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_COPY);
    const int64_t numel = mpt__tensor_numel(x);
    mpt__operand_on(launch, 0, x->storage, MPT_F32, 0, numel, MPT__READ);
    mpt__operand_on(launch, 1, halves->storage, dtype, 0, numel, MPT__WRITE);
    mpt__submit(ctx, launch);
    mpt__launch_origin(ctx, MPT__OTHER, 0);
    for (int64_t r = 1; r < ctx->record_count; r++) {
        mpt__record *record = ctx->records[r];
        if (!record->live || record->n_saved == 0 || record->saved[0] != x) continue;
        record->saved[0] = halves;
        record->saved_version[0] = ctx->storages[halves->storage].version;
        halves->saves++;
    }
    mpt__tensor_drop(ctx, halves);
    x->saves = 0;
    mpt__tensor_settle(ctx, x);
}

/* What no handle names any more need not be held whole. */
static void mpt__let_go(mpt_context *ctx, mpt__tensor *tensor) {
    if (tensor->flags & MPT__ROUNDED)
        mpt__narrow(ctx, tensor);
    else
        mpt__shrink(ctx, tensor);
}
#endif


#ifdef MPTRAIN_NO_FRUGAL
#define mpt__linear_keep(frame) mpt__save(frame, (frame)->in[0])
#define mpt__linear_kept(frame) true
#define mpt__linear_notes(frame) ((void)0)
#else
#define mpt__linear_notes(frame) \
    if ((frame)->compute != MPT_F32 && (frame)->in[0]->dtype == MPT_F32) \
    (frame)->in[0]->flags |= MPT__ROUNDED
/* Only the gradient of the weight needs x, which may come again. */
#define mpt__linear_keep(frame) \
    ((frame)->in[1]->flags & MPT__REQUIRES_GRAD && \
                !((frame)->in[0]->record && (frame)->in[0]->record->repeats) \
            ? mpt__save(frame, (frame)->in[0]) \
            : mpt__save_lightly(frame))
#define mpt__linear_kept(frame) ((frame)->saved[0] != NULL)

static MPT__NOINLINE void mpt__save_lightly(mpt__frame *frame) {
    mpt__tensor *x = frame->in[1]->flags & MPT__REQUIRES_GRAD ? frame->in[0] : NULL;
    const int at = frame->record->n_saved;
    mpt__save(frame, x);
    if (!x || !frame->records || mpt__in_region(frame->context) || frame->record->again) return;
    if (mpt__save_later(frame, x, at)) x->saves--;
}
#endif

static mpt_status mpt__linear_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt_activation activation = (mpt_activation)frame->attributes->activation;
    const mpt__tensor *x = mpt__rows_source(frame, frame->in[0]), *bias = frame->in[2];
    mpt__source w;
    if (!x || !mpt__gemm_source(ctx, frame->in[1], frame->compute, &w)) return ctx->base.status;
    mpt__linear_keep(frame);
    mpt__linear_notes(frame);
    mpt__save(frame, frame->in[1]);
    bool split = false;
    mpt__tensor *before = frame->out[0];
    if (activation == MPT_ACTIVATION_RELU) {
        mpt__save_gate(frame);
    } else if (activation != MPT_ACTIVATION_NONE) {
        split = frame->records && mpt__activation_keeps_input(activation);
        if (split) before = mpt__temporary(frame, frame->out_dtype[0], &frame->out_shape[0]);
        if (!before) return ctx->base.status;
        mpt__save(frame, before);
    }
    mpt__launch *launch = mpt__gemm_begin(frame);
    launch->activation = (uint8_t)(split ? MPT_ACTIVATION_NONE : activation);
    mpt__operand *rows = mpt__operand_rows(launch, 0, x, false, MPT__READ);
    mpt__linear_weight(launch, frame->in[1], &w, true);
    if (bias) mpt__operand_matrix(launch, 2, bias, rows->shape[0], 0, false, MPT__READ);
    mpt__operand_rows(launch, 3, before, false, MPT__WRITE);
    mpt_status status = mpt__submit(ctx, launch);
    if (status != MPT_OK || !split) return status;
    status = mpt__launch_unary(
        frame, mpt__activation_function(activation, false), before, frame->out[0], MPT__WRITE);
    mpt__come_again(frame);
    return status;
}

/* dy times the derivative of the activation; in place where nobody else reads dy. */
static const mpt__tensor *mpt__linear_inner(mpt__frame *frame, const mpt__tensor *dy) {
    mpt_activation activation = (mpt_activation)frame->attributes->activation;
    if (!dy || activation == MPT_ACTIVATION_NONE || mpt__gated(frame, 2)) return dy;
    const mpt__tensor *inner = dy;
    if (!mpt__owned(frame->context, dy)) {
        inner = mpt__temporary(frame, (mpt_dtype)dy->dtype, &dy->shape);
        if (!inner) return NULL;
    }
    mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_BINARY);
    launch->function = (uint8_t)mpt__activation_function(activation, true);
    mpt__operand_inline(launch, 0, frame->saved[2], MPT__READ);
    mpt__operand_inline(launch, 1, dy, MPT__READ);
    mpt__operand_inline(launch, 2, inner, MPT__WRITE);
    return mpt__submit(frame->context, launch) == MPT_OK ? inner : NULL;
}

static MPT__FORCE_INLINE void mpt__linear_dx(mpt__frame *frame, const mpt__tensor *dy) {
    mpt__access access;
    mpt__source w;
    const mpt__tensor *dx = mpt__gradient_into(frame, 0, &access);
    if (!dx || !mpt__gemm_source(frame->context, frame->saved[1], frame->compute, &w)) return;
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__operand_rows(launch, 0, dy, false, MPT__READ);
    mpt__linear_weight(launch, frame->saved[1], &w, false);
    mpt__operand_rows(launch, 3, dx, false, access);
    mpt__submit(frame->context, launch);
}

static MPT__FORCE_INLINE void mpt__linear_dw(mpt__frame *frame, const mpt__tensor *dy) {
    mpt__access access;
    if (!mpt__linear_kept(frame)) return;
    const mpt__tensor *dw = mpt__gradient_into(frame, 1, &access);
    if (!dw) return;
    const mpt__tensor *x = mpt__rows_source(frame, frame->saved[0]);
    if (!x) return;
    mpt__launch *launch = mpt__gemm_begin(frame);
    mpt__operand_rows(launch, 0, dy, true, MPT__READ);
    mpt__operand_rows(launch, 1, x, false, MPT__READ);
    mpt__operand_matrix(launch, 3, dw, dw->shape.dim[0], dw->stride[0], false, access);
    mpt__submit(frame->context, launch);
}

#ifndef MPTRAIN_NO_FRUGAL
/* Where x was computed again it goes first, and leaves its memory to its gradient. */
static MPT__NOINLINE void mpt__linear_again(mpt__frame *frame, const mpt__tensor *dy) {
    mpt__linear_dw(frame, dy);
    if (frame->record->again == MPT__CAME_AGAIN) mpt__saved_over(frame->context, frame->record);
    mpt__linear_dx(frame, dy);
}
#endif

/* The gradient of x comes first: whoever is behind waits for it. */
static mpt_status mpt__linear_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *dy = mpt__linear_inner(frame, mpt__rows_source(frame, frame->dy[0]));
    if (!dy) return ctx->base.status;
    mpt__access access;
#ifndef MPTRAIN_NO_FRUGAL
    if (MPT__UNLIKELY(frame->record->again)) {
        mpt__linear_again(frame, dy);
    } else
#endif
    {
        mpt__linear_dx(frame, dy);
        mpt__linear_dw(frame, dy);
    }
    const mpt__tensor *db = mpt__gradient_into(frame, 2, &access);
    if (db) {
        mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_REDUCE);
        launch->function = MPT__FN_SUM;
        const mpt__operand *rows = mpt__operand_rows(launch, 0, dy, false, MPT__READ);
        mpt__operand_matrix(launch, 1, db, 1, 0, false, access);
        if (rows->shape[0] == 1) launch->kernel = MPT__K_COPY; /* nothing to sum */
        mpt__submit(ctx, launch);
    }
    return ctx->base.status;
}

mpt_tensor mpt_linear(mpt_tensor x, mpt_tensor weight, mpt_tensor bias, mpt_activation activation) {
    mpt_tensor in[] = {x, weight, bias};
    mpt_context *ctx = mpt__context_of(in, 3);
    if (activation < MPT_ACTIVATION_NONE || activation > MPT_ACTIVATION_SIGMOID)
        return mpt__misused(ctx, "mpt_linear", ARGUMENT, "activation %d is none of mpt_activation",
            (int)activation);
    mpt__attributes attributes = mpt__no_attributes;
    attributes.activation = (uint8_t)activation;
    attributes.required = 2;
    return mpt__apply1("mpt_linear", MPT__OP_linear, in, 3, &attributes);
}

#endif
