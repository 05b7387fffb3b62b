/* ----
 * ops/norm.c: normalisation and pooling as ops.
 * ---- */
#ifndef MPT__OPS_NORM_INCLUDED
#define MPT__OPS_NORM_INCLUDED

#include "ops/conv.c"

#ifdef MPTRAIN_NO_ATTENTION
static mpt_status mpt__no_rows_shape(mpt__frame *frame) {
    return mpt__error(
        frame->context, UNSUPPORTED, "built without layer and RMS norm (MPTRAIN_NO_ATTENTION)");
}
#endif
#ifdef MPTRAIN_NO_CONV
static mpt_status mpt__no_channels_shape(mpt__frame *frame) {
    return mpt__error(frame->context, UNSUPPORTED,
        "built without batch norm, group norm and pooling (MPTRAIN_NO_CONV)");
}
#endif

#ifdef MPT__HAS_NORMS

/* ==== Norms ==== */

/* in: x, weight?, bias?, then residual? (rows), mean?, variance? and residual? (batches). index[0]:
   dimensions of a row, or groups; index[1]: the module that keeps running statistics; index[2]: a
   relu follows; imm[0]: eps. */
enum { MPT__NORM_WEIGHT = 1, MPT__NORM_BIAS, MPT__NORM_MORE, MPT__NORM_RESIDUAL = 5 };
/* Saved: what was normalised, weight, mean (absent: 0), 1 / deviation, what relu gave. */
enum { MPT__NORM_SUM, MPT__NORM_WEIGHTS, MPT__NORM_MEAN, MPT__NORM_RSTD, MPT__NORM_OUT };

static bool mpt__norm_of_rows(const mpt__frame *frame) {
    return frame->op == MPT__OP_layer_norm || frame->op == MPT__OP_rms_norm;
}

/* Whether an optional argument is float and has the dimensions of x from `first` to `last`. */
static bool mpt__norm_argument(mpt__frame *frame, int i, int first, int last) {
    const mpt__tensor *x = frame->in[0], *got = i < frame->n_in ? frame->in[i] : NULL;
    mpt_shape want = MPT_SCALAR;
    if (!got) return true;
    if (!mpt__check_float(frame, i)) return false;
    for (int d = first; d < last; d++) want.dim[want.rank++] = x->shape.dim[d];
    bool same = got->shape.rank == want.rank;
    for (int d = 0; same && d < want.rank; d++) same = got->shape.dim[d] == want.dim[d];
    return same || mpt__reject(frame->context, SHAPE, "input %S: argument %d is %S, expected %S",
                               &x->shape, i + 1, &got->shape, &want);
}

static bool mpt__norm_begin(mpt__frame *frame, int least) {
    const mpt__tensor *x = frame->in[0];
    double eps = frame->attributes->imm[0];
    if (!mpt__check_float(frame, 0)) return false;
    if (x->shape.rank < least)
        return mpt__reject(
            frame->context, SHAPE, "input %S: expected at least %d dimensions", &x->shape, least);
    if (!(eps >= 0.0 && mpt__f64_is_finite(eps)))
        return mpt__reject(frame->context, ARGUMENT, "eps %g: expected 0 or more", eps);
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    return true;
}

/* What is added to x or to the result: of another dtype only if autocast promotes. */
static bool mpt__norm_residual(mpt__frame *frame, int i) {
    const mpt__tensor *x = frame->in[0], *more = i < frame->n_in ? frame->in[i] : NULL;
    if (!more) return true;
    if (!mpt__norm_argument(frame, i, 0, x->shape.rank)) return false;
    if (more->dtype == x->dtype) return true;
    if (!mpt__promotes(frame->context)) return mpt__dtype_mismatch(frame, 0, i) == MPT_OK;
    frame->out_dtype[0] = mpt__meeting_dtype(frame->context);
    return true;
}
#endif

#ifndef MPTRAIN_NO_ATTENTION
static mpt_status mpt__row_norm_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    int64_t dims = frame->attributes->index[0];
    if (!mpt__norm_begin(frame, 1)) return ctx->base.status;
    int rank = x->shape.rank;
    if (dims < 1 || dims > rank)
        return mpt__error(ctx, ARGUMENT, "%lld dimensions to normalise over: input %S has 1 to %d",
            dims, &x->shape, rank);
    for (int i = MPT__NORM_WEIGHT; i <= MPT__NORM_BIAS; i++)
        if (!mpt__norm_argument(frame, i, rank - (int)dims, rank)) return ctx->base.status;
    mpt__norm_residual(frame, MPT__NORM_MORE);
    return ctx->base.status;
}
#endif

#ifndef MPTRAIN_NO_CONV
static mpt_status mpt__channel_norm_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    if (!mpt__norm_begin(frame, 2)) return ctx->base.status;
    int64_t channels = x->shape.dim[1], groups = frame->attributes->index[0];
    for (int i = MPT__NORM_WEIGHT; i < frame->n_in && i < MPT__NORM_RESIDUAL; i++)
        if (!mpt__norm_argument(frame, i, 1, 2)) return ctx->base.status;
    if (!mpt__norm_residual(frame, MPT__NORM_RESIDUAL)) return ctx->base.status;
    if (frame->op == MPT__OP_group_norm) {
        if (groups < 1 || channels % groups != 0)
            return mpt__error(ctx, ARGUMENT,
                "%lld groups do not divide the %lld channels of input %S", groups, channels,
                &x->shape);
    } else if (!frame->in[MPT__NORM_MORE] != !frame->in[MPT__NORM_MORE + 1]) {
        return mpt__error(ctx, ARGUMENT, "expected mean and variance, or neither");
    } else if (!frame->in[MPT__NORM_MORE] && channels > 0 && mpt__tensor_numel(x) / channels == 1) {
        return mpt__error(ctx, SHAPE,
            "input %S has one value for each channel: a batch has no variance; use "
            "larger batches, or mpt_eval",
            &x->shape);
    }
    return MPT_OK;
}
#endif

#ifdef MPT__HAS_NORMS
/* The stride of dimensions 2 and up as one; -1: they do not lie so. */
static int64_t mpt__inner_stride(const mpt__tensor *x) {
    int64_t stride = -1, next = -1;
    for (int d = x->shape.rank - 1; d > 1; d--) {
        if (x->shape.dim[d] == 1) continue;
        if (next >= 0 && x->stride[d] != next) return -1;
        if (next < 0) stride = x->stride[d];
        next = x->stride[d] * x->shape.dim[d];
    }
    return stride < 0 ? 1 : stride;
}

/* Dense, with the channels innermost. */
static bool mpt__channels_inside(const mpt__tensor *x) {
    if (x->shape.rank < 3 || mpt__tensor_contiguous(x)) return false;
    int64_t channels = x->shape.dim[1], inner = 1;
    for (int d = 2; d < x->shape.rank; d++) inner *= x->shape.dim[d];
    return x->stride[1] == 1 && mpt__inner_stride(x) == channels &&
        (x->shape.dim[0] == 1 || x->stride[0] == channels * inner);
}

/* A fresh tensor of the shape of x lies as that does. */
static void mpt__lie_as(mpt__tensor *to, const mpt__tensor *x) {
    if (mpt__channels_inside(x)) mpt__copy_dims(to->stride, x->stride, x->shape.rank);
}

/* A tensor of x's shape itself, or a copy that lies as x does. */
static const mpt__tensor *mpt__lying_as(
    mpt__frame *frame, const mpt__tensor *tensor, const mpt__tensor *x) {
    bool inside = mpt__channels_inside(x);
    if (inside ? mpt__channels_inside(tensor) : mpt__tensor_contiguous(tensor)) return tensor;
    mpt__tensor *copy = mpt__temporary(frame, (mpt_dtype)tensor->dtype, &tensor->shape);
    if (!copy) return NULL;
    mpt__lie_as(copy, x);
    return mpt__launch_copy(frame->context, tensor, copy, MPT__WRITE) == MPT_OK ? copy : NULL;
}

/* An operand of the input's shape as [N, G, C, S]. */
static void mpt__norm_operand(const mpt__frame *frame, mpt__launch *launch, int position,
    const mpt__tensor *tensor, mpt__access access) {
    mpt__operand *o = mpt__operand_ranked(launch, position, tensor, 4, access);
    int64_t n = 1, c = 1, rank = tensor->shape.rank, groups = 1, s = 1;
    if (mpt__norm_of_rows(frame)) {
        for (int64_t d = 0; d < rank; d++)
            *(d < rank - frame->attributes->index[0] ? &n : &c) *= tensor->shape.dim[d];
        mpt__operand_dim(o, 0, n, c);
        mpt__operand_dim(o, 1, 1, 0);
        mpt__operand_dim(o, 2, c, 1);
        mpt__operand_dim(o, 3, 1, 1);
        return;
    }
    if (frame->op == MPT__OP_group_norm) groups = frame->attributes->index[0];
    c = tensor->shape.dim[1] / groups;
    for (int d = 2; d < rank; d++) s *= tensor->shape.dim[d];
    mpt__operand_dim(o, 0, tensor->shape.dim[0], tensor->stride[0]);
    mpt__operand_dim(o, 1, groups, c * tensor->stride[1]);
    mpt__operand_dim(o, 2, c, tensor->stride[1]);
    mpt__operand_dim(o, 3, s, mpt__inner_stride(tensor));
}

/* The statistics have one element for each row, group or channel. */
static mpt__tensor *mpt__norm_statistic(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    int64_t count = 1;
    for (int64_t d = 0; d < x->shape.rank - frame->attributes->index[0]; d++)
        count *= x->shape.dim[d];
    if (frame->op == MPT__OP_group_norm) count = x->shape.dim[0] * frame->attributes->index[0];
    if (frame->op == MPT__OP_batch_norm) count = x->shape.dim[1];
    mpt_shape shape = MPT_SHAPE(count);
    return mpt__temporary(frame, mpt__loss_dtype(frame), &shape);
}

static mpt__launch *mpt__normalise_launch(mpt__frame *frame, mpt__kernel kernel, bool given) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    launch->imm[0] = frame->attributes->imm[0];
    launch->index[0] = frame->op == MPT__OP_batch_norm;
    launch->index[1] = given;
    launch->index[2] = frame->op == MPT__OP_batch_norm && frame->attributes->index[2];
    return launch;
}

static mpt_status mpt__normalise_forward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    mpt__tensor *const *in = frame->in, *more[2] = {NULL, NULL}, *variance = NULL;
    const mpt__tensor *x = in[0], *dense[4] = {NULL, NULL, NULL, NULL}, *residual = NULL;
    bool rows = mpt__norm_of_rows(frame), batch = frame->op == MPT__OP_batch_norm;
    for (int i = 0; i < 2 && MPT__NORM_MORE + i < frame->n_in; i++)
        more[i] = in[MPT__NORM_MORE + i];
    bool given = batch && more[0];
    if (rows || mpt__inner_stride(x) < 0) x = mpt__contiguous_of(frame, x);
    mpt__tensor *const added = rows ? more[0] : frame->n_in > MPT__NORM_RESIDUAL ? in[5] : NULL;
    if (x && added) residual = mpt__lying_as(frame, added, x);
    if (!x || (added && !residual)) return ctx->base.status;
    for (int i = 0; i < 4; i++) {
        mpt__tensor *from = i < 2 ? in[MPT__NORM_WEIGHT + i] : given ? more[i - 2] : NULL;
        dense[i] = from ? mpt__contiguous_of(frame, from) : NULL;
        if (from && !dense[i]) return ctx->base.status;
    }
    mpt__tensor *mean = NULL, *rstd = mpt__norm_statistic(frame);
    if (rstd && !given && frame->op != MPT__OP_rms_norm && !(mean = mpt__norm_statistic(frame)))
        return ctx->base.status;
    if (rstd && batch && !given && frame->attributes->index[1])
        if (!(variance = mpt__norm_statistic(frame))) return ctx->base.status;
    if (!rstd) return ctx->base.status;
    mpt__save(frame, rows && residual ? frame->out[1] : in[0]);
    mpt__save(frame, in[MPT__NORM_WEIGHT]);
    mpt__save(frame, given ? more[0] : mean);
    mpt__save(frame, rstd);
    if (batch && frame->attributes->index[2]) mpt__save_gate(frame);
    if (!batch && mpt__recomputes(ctx)) mpt__save(frame, in[MPT__NORM_BIAS]);
    if (!rows) mpt__lie_as(frame->out[0], x);
    if (mpt__tensor_numel(x) == 0) return MPT_OK;
    mpt__launch *launch = mpt__normalise_launch(frame, MPT__K_NORM, given);
    mpt__norm_operand(frame, launch, 0, x, MPT__READ);
    if (residual) mpt__norm_operand(frame, launch, 1, residual, MPT__READ);
    for (int i = 0; i < 2; i++)
        if (dense[i]) mpt__reads(launch, 2 + i, dense[i]);
    mpt__norm_operand(frame, launch, 4, frame->out[0], MPT__WRITE);
    if (rows && residual) mpt__norm_operand(frame, launch, 5, frame->out[1], MPT__WRITE);
    if (given) mpt__reads(launch, 6, dense[2]);
    if (mean) mpt__writes(launch, 6, mean);
    mpt__writes(launch, 7, rstd);
    if (given) mpt__reads(launch, 8, dense[3]);
    if (variance) mpt__writes(launch, 8, variance);
    mpt_status status = mpt__submit(ctx, launch);
    if (status != MPT_OK || !variance || mpt__runs_again(ctx)) return status;
    MPT__PLAIN_FLOATS;
    double n = (double)mpt__tensor_numel(x) / (double)x->shape.dim[1];
    mpt__batch_statistics measured = {
        (uint32_t)frame->attributes->index[1], mean, variance, n / (n - 1.0)};
    mpt__tell(ctx, MPT__BATCH_MEASURED, &measured);
    return ctx->base.status;
}

/* Gradients of weight and bias of an empty batch. */
static mpt_status mpt__norm_nothing(
    mpt__frame *frame, mpt__tensor *const into[2], const mpt__access access[2]) {
    for (int i = 0; i < 2; i++)
        if (into[i] && access[i] == MPT__WRITE) mpt__launch_fill(frame->context, into[i], 0.0);
    return mpt__outcome(frame);
}

static mpt_status mpt__normalise_backward(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    bool rows = mpt__norm_of_rows(frame), residual = frame->n_out > 1;
    bool given = frame->op == MPT__OP_batch_norm && frame->in[MPT__NORM_MORE];
    const mpt__tensor *x = frame->saved[MPT__NORM_SUM], *dy = frame->dy[0], *extra = NULL;
    const mpt__tensor *weight = frame->saved[MPT__NORM_WEIGHTS];
    const mpt__tensor *mean = frame->saved[MPT__NORM_MEAN];
    bool relu = frame->op == MPT__OP_batch_norm && frame->attributes->index[2] &&
        !mpt__gated(frame, MPT__NORM_OUT);
    if (!dy) {
        mpt_status status = mpt__gradient_pass(frame, 0, frame->dy[1]);
        return status == MPT_OK ? mpt__gradient_pass(frame, MPT__NORM_MORE, frame->dy[1]) : status;
    }
    if (rows || mpt__inner_stride(x) < 0) x = mpt__contiguous_of(frame, x);
    if (x) dy = mpt__lying_as(frame, dy, x);
    if (weight) weight = mpt__contiguous_of(frame, weight);
    if (mean) mean = mpt__contiguous_of(frame, mean);
    if (residual && frame->dy[1]) extra = mpt__contiguous_of(frame, frame->dy[1]);
    if (relu && x) extra = mpt__lying_as(frame, frame->saved[MPT__NORM_OUT], x);
    mpt__access access[4] = {MPT__WRITE, MPT__WRITE, MPT__WRITE, MPT__WRITE};
    mpt__tensor *dx = NULL, *rest = NULL, *into[2];
    if (!x || (relu && !extra)) return ctx->base.status;
    if (!residual) {
        dx = mpt__gradient_into(frame, 0, &access[2]);
        if (dx && access[2] == MPT__WRITE && !rows) mpt__lie_as(dx, x);
        if (frame->n_in > MPT__NORM_RESIDUAL)
            rest = mpt__gradient_into(frame, MPT__NORM_RESIDUAL, &access[3]);
        if (rest && access[3] == MPT__WRITE) mpt__lie_as(rest, x);
    } else if (mpt__wants(frame, 0) || mpt__wants(frame, MPT__NORM_MORE)) {
        dx = mpt__temporary(frame, (mpt_dtype)x->dtype, &x->shape);
    }
    for (int i = 0; i < 2; i++)
        into[i] = mpt__gradient_into(frame, MPT__NORM_WEIGHT + i, &access[i]);
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (mpt__tensor_numel(x) == 0) return mpt__norm_nothing(frame, into, access);
    mpt__launch *launch = mpt__normalise_launch(frame, MPT__K_NORM_BACKWARD, given);
    launch->index[2] = relu;
    mpt__norm_operand(frame, launch, 0, x, MPT__READ);
    mpt__norm_operand(frame, launch, 1, dy, MPT__READ);
    if (weight) mpt__reads(launch, 2, weight);
    if (mean) mpt__reads(launch, 3, mean);
    mpt__reads(launch, 4, frame->saved[MPT__NORM_RSTD]);
    if (extra) mpt__norm_operand(frame, launch, 5, extra, MPT__READ);
    if (dx) mpt__norm_operand(frame, launch, 6, dx, access[2]);
    if (rest) mpt__norm_operand(frame, launch, 9, rest, access[3]);
    for (int i = 0; i < 2; i++)
        if (into[i]) mpt__operand_of(launch, 7 + i, into[i], access[i]);
    mpt_status status = mpt__submit(ctx, launch);
    if (!residual || !dx || status != MPT_OK) return status;
    status = mpt__gradient_pass(frame, 0, dx);
    return status == MPT_OK ? mpt__gradient_pass(frame, MPT__NORM_MORE, dx) : status;
}
#endif

/* ==== The functions of norms ==== */

MPT__BEGIN_COLD

static mpt__attributes mpt__norm_attributes(int64_t count, double eps) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = count;
    attributes.imm[0] = eps;
    attributes.required = 1;
    return attributes;
}

static mpt_tensor mpt__apply_norm(const char *name, int op, mpt_tensor x, int64_t count,
    mpt_tensor weight, mpt_tensor bias, double eps) {
    mpt_tensor in[] = {x, weight, bias};
    mpt__attributes attributes = mpt__norm_attributes(count, eps);
    return mpt__apply1(name, op, in, 3, &attributes);
}

mpt_tensor mpt_layer_norm(mpt_tensor x, int dims, mpt_tensor weight, mpt_tensor bias, double eps) {
    return mpt__apply_norm("mpt_layer_norm", MPT__OP_layer_norm, x, dims, weight, bias, eps);
}
mpt_tensor mpt_rms_norm(mpt_tensor x, int dims, mpt_tensor weight, double eps) {
    return mpt__apply_norm("mpt_rms_norm", MPT__OP_rms_norm, x, dims, weight, mpt__null(NULL), eps);
}
mpt_tensor mpt_group_norm(
    mpt_tensor x, int64_t groups, mpt_tensor weight, mpt_tensor bias, double eps) {
    return mpt__apply_norm("mpt_group_norm", MPT__OP_group_norm, x, groups, weight, bias, eps);
}

/* mpt__call_run for a norm whose second output is the sum that it normalises. */
static mpt_status mpt__norm_run_both(mpt__frame *frame) {
    mpt_status status = mpt__call_shape(frame);
    frame->out[0] = frame->out[1] = NULL;
    for (int i = 0; i < 2 && status == MPT_OK; i++) {
        frame->out[i] = mpt__output_new(frame);
        status = frame->context->base.status;
    }
    status = frame->out[1] ? mpt__call_forward(frame) : MPT_ERROR_STATE;
    mpt__call_end(frame, 2, status);
    for (int i = 0; i < 2 && status != MPT_OK; i++)
        if (frame->out[i]) mpt__tensor_drop(frame->context, frame->out[i]);
    return status;
}

static mpt_tensor mpt__apply_add_norm(const char *name, int op, mpt_tensor x, mpt_tensor residual,
    int dims, mpt_tensor weight, mpt_tensor bias, double eps, mpt_tensor *sum) {
    mpt_tensor in[4];
    mpt__frame frame;
    in[0] = x, in[1] = weight, in[2] = bias, in[3] = residual;
    mpt_context *ctx = mpt__context_of(in, 4);
    mpt__attributes attributes = mpt__norm_attributes(dims, eps);
    if (sum) *sum = mpt__null(ctx);
    if (!mpt__enter(ctx, name)) return mpt__null(ctx);
    if (!sum) return mpt__refuse(ctx, ARGUMENT, "sum is NULL");
    if (!mpt__at(ctx, x, "argument 1") || !mpt__at(ctx, residual, "argument 2") ||
        !mpt__call_begin(&frame, ctx, op, 4, 2, &attributes))
        return mpt__null(ctx);
    if (!mpt__find_inputs(ctx, in, 4, 1, frame.record->in)) {
        mpt__record_spare(ctx, frame.record);
        return mpt__null(ctx);
    }
    if (mpt__norm_run_both(&frame) != MPT_OK) return mpt__null(ctx);
    *sum = mpt__handle(ctx, frame.out[1]);
    return mpt__handle(ctx, frame.out[0]);
}

mpt_tensor mpt_add_layer_norm(mpt_tensor x, mpt_tensor residual, int dims, mpt_tensor weight,
    mpt_tensor bias, double eps, mpt_tensor *sum) {
    return mpt__apply_add_norm(
        "mpt_add_layer_norm", MPT__OP_layer_norm, x, residual, dims, weight, bias, eps, sum);
}
mpt_tensor mpt_add_rms_norm(
    mpt_tensor x, mpt_tensor residual, int dims, mpt_tensor weight, double eps, mpt_tensor *sum) {
    return mpt__apply_add_norm(
        "mpt_add_rms_norm", MPT__OP_rms_norm, x, residual, dims, weight, mpt__null(NULL), eps, sum);
}

/* in: x, weight, bias, mean, variance, residual. index[1]: slot of the module whose running
   statistics the batch's go to; 0: none. */
static mpt_tensor mpt__apply_batch_norm(
    const mpt_tensor in[6], double eps, uint32_t module, bool relu) {
    mpt__attributes attributes = mpt__norm_attributes(0, eps);
    attributes.index[1] = module;
    attributes.index[2] = relu;
    return mpt__apply1(relu ? "mpt_batch_norm_relu" : "mpt_batch_norm", MPT__OP_batch_norm, in,
        in[5].slot || relu ? 6 : 5, &attributes);
}

mpt_tensor mpt_batch_norm(mpt_tensor x, mpt_tensor mean, mpt_tensor variance, mpt_tensor weight,
    mpt_tensor bias, double eps) {
    mpt_tensor in[] = {x, weight, bias, mean, variance, mpt__null(NULL)};
    return mpt__apply_batch_norm(in, eps, 0, false);
}
mpt_tensor mpt_batch_norm_relu(mpt_tensor x, mpt_tensor mean, mpt_tensor variance,
    mpt_tensor weight, mpt_tensor bias, double eps, mpt_tensor residual) {
    mpt_tensor in[] = {x, weight, bias, mean, variance, residual};
    return mpt__apply_batch_norm(in, eps, 0, true);
}

MPT__END_REGION

/* ==== Pooling ==== */

/* index[0..1]: window, or sizes of the output (adaptive); [2..3] steps, [4..5] padding, of H and W;
   [6]: MPT__POOL_.. */
enum {
    MPT__POOL_COUNTS_PADDING = 1,
    MPT__POOL_ADAPTIVE = 2,
    MPT__POOL_CEILING = 4,
    MPT__POOL_POSITIVE = 4 /* of launches */
};

#ifndef MPTRAIN_NO_CONV
#define MPT__POOL_MOST (INT64_C(1) << 30) /* of all these numbers */

static mpt_status mpt__pooling_shape(mpt__frame *frame) {
    mpt_context *ctx = frame->context;
    const mpt__tensor *x = frame->in[0];
    const int64_t *a = frame->attributes->index;
    if (x->shape.rank != 4)
        return mpt__error(ctx, SHAPE, "input %S: expected [N, C, H, W]", &x->shape);
    mpt__shape_copy(&frame->out_shape[0], &x->shape);
    for (int d = 0; d < 2; d++) {
        int64_t in = x->shape.dim[2 + d], window = a[d], step = a[2 + d], padding = a[4 + d];
        bool adaptive = a[6] & MPT__POOL_ADAPTIVE;
        if (window < 1 || window > MPT__POOL_MOST ||
            (!adaptive && (step < 1 || step > MPT__POOL_MOST)))
            return mpt__error(ctx, ARGUMENT,
                "window or output size %lld, step %lld: expected 1 to 2^30", window, step);
        if (!adaptive && (padding < 0 || padding > window / 2))
            return mpt__error(ctx, ARGUMENT, "padding %lld: expected 0 to half the window of %lld",
                padding, window);
        bool ceiling = !adaptive && (a[6] & MPT__POOL_CEILING);
        int64_t room = in + 2 * padding - window + (ceiling ? step - 1 : 0);
        int64_t out = adaptive ? window : room / step + 1;
        if (ceiling && (out - 1) * step >= in + padding) out--; /* it would begin in the padding */
        if ((!adaptive && room < 0) || in < 1 || in > MPT__POOL_MOST ||
            in * x->shape.dim[2] > INT32_MAX)
            return mpt__error(ctx, SHAPE,
                "input %S with a window of %lld and padding of %lld: no output, or "
                "more than 2^31 - 1 places in an image",
                &x->shape, window, padding);
        frame->out_shape[0].dim[2 + d] = out;
    }
    return MPT_OK;
}

static mpt__launch *mpt__pooling_launch(mpt__frame *frame, mpt__kernel kernel) {
    mpt__launch *launch = mpt__launch_begin(frame->context, kernel);
    const int64_t *a = frame->attributes->index;
    launch->function = frame->row->function;
    for (int k = 0; k < 3; k++) launch->index[k] = a[2 * k] * (INT64_C(1) << 32) + a[2 * k + 1];
    launch->index[3] = a[6] & (MPT__POOL_COUNTS_PADDING | MPT__POOL_ADAPTIVE);
    return launch;
}

/* Means of whole channels are an ordinary reduction. */
static bool mpt__pools_all(const mpt__frame *frame) {
    const int64_t *a = frame->attributes->index;
    return frame->op == MPT__OP_avg_pool2d && (a[6] & MPT__POOL_ADAPTIVE) && a[0] == 1 && a[1] == 1;
}

static mpt_status mpt__pooling_forward(mpt__frame *frame) {
    const mpt__tensor *x = frame->in[0];
    mpt__tensor *index = NULL;
    if (mpt__pools_all(frame))
        return mpt__launch_reduce(frame->context, MPT__FN_MEAN, x, frame->out[0], MPT__WRITE);
    if (frame->records && frame->op == MPT__OP_max_pool2d) {
        const int64_t *a = frame->attributes->index, *in = x->shape.dim;
        const int64_t most = a[6] & MPT__POOL_ADAPTIVE /* elements of a window */
            ? (in[2] / a[0] + 2) * (in[3] / a[1] + 2)
            : a[0] * a[1];
        const mpt_dtype dtype = most <= UINT8_MAX ? MPT_U8 : MPT_I32;
        index = mpt__temporary(frame, dtype, &frame->out_shape[0]);
        if (!index) return mpt__outcome(frame);
        mpt__save(frame, index);
    }
    if (mpt__channels_inside(x)) {
        const mpt_shape *out = &frame->out_shape[0];
        int64_t *to = frame->out[0]->stride;
        to[1] = 1, to[3] = out->dim[1];
        to[2] = out->dim[3] * to[3], to[0] = out->dim[2] * to[2];
        if (index) mpt__copy_dims(index->stride, to, 4);
    }
    mpt__launch *launch = mpt__pooling_launch(frame, MPT__K_POOL);
    mpt__reads(launch, 0, x);
    mpt__writes(launch, 1, frame->out[0]);
    if (index) mpt__writes(launch, 2, index);
    if (index && mpt__gates_here(frame)) launch->index[3] |= MPT__POOL_POSITIVE;
    return mpt__submit(frame->context, launch);
}

static mpt_status mpt__pooling_backward(mpt__frame *frame) {
    if (!mpt__dx_into(frame)) return mpt__outcome(frame);
    const mpt__tensor *x = frame->in[0], *dy = frame->dy[0];
    if (frame->access == MPT__WRITE) mpt__lie_as(frame->dx, x);
    if (mpt__pools_all(frame)) {
        mpt__launch *launch = mpt__launch_begin(frame->context, MPT__K_UNARY);
        launch->function = MPT__FN_MUL_SCALAR;
        launch->imm[0] = mpt__one_of(x->shape.dim[2] * x->shape.dim[3]);
        mpt__operand_spread(launch, 0, dy, frame->dx);
        mpt__operand_of(launch, 1, frame->dx, frame->access);
        return mpt__submit(frame->context, launch);
    }
    mpt__launch *launch = mpt__pooling_launch(frame, MPT__K_POOL_BACKWARD);
    mpt__reads(launch, 0, dy);
    if (frame->saved[0] && frame->op == MPT__OP_max_pool2d) mpt__reads(launch, 1, frame->saved[0]);
    mpt__operand_of(launch, 2, frame->dx, frame->access);
    return mpt__submit(frame->context, launch);
}
#endif

/* ==== The functions of pooling ==== */

MPT__BEGIN_COLD

mpt_pool_config mpt_pool_config_make(int64_t window, int64_t step, int64_t padding) {
    mpt_pool_config config;
    mpt__zero(config);
    for (int d = 0; d < 2; d++) {
        config.window[d] = window;
        config.step[d] = step;
        config.padding[d] = padding;
    }
    config.count_padding = true;
    return config;
}

static mpt__attributes mpt__pooling_attributes(const mpt_pool_config *given) {
    mpt_pool_config config = given ? *given : mpt_pool_config_make(2, 0, 0);
    mpt__attributes attributes = mpt__no_attributes;
    for (int d = 0; d < 2; d++) {
        attributes.index[d] = config.window[d];
        attributes.index[2 + d] = config.step[d] ? config.step[d] : config.window[d];
        attributes.index[4 + d] = config.padding[d];
    }
    attributes.index[6] = (config.count_padding ? MPT__POOL_COUNTS_PADDING : 0) |
        (config.ceil_mode ? MPT__POOL_CEILING : 0);
    return attributes;
}

static mpt__attributes mpt__adaptive_attributes(int64_t height, int64_t width) {
    mpt__attributes attributes = mpt__no_attributes;
    attributes.index[0] = height;
    attributes.index[1] = width;
    attributes.index[6] = MPT__POOL_ADAPTIVE;
    return attributes;
}

/* [N, C, L] as [N, C, 1, L], whose windows are one high. */
static mpt_tensor mpt__apply_pool1d(
    const char *name, int op, mpt_tensor x, const mpt_pool_config *config) {
    const mpt__tensor *tensor = mpt__enter_at(x, name, "argument 1");
    mpt__attributes attributes = mpt__pooling_attributes(config);
    mpt__spares spares;
    spares.count = 0;
    if (!tensor) return mpt__null(x.context);
    if (tensor->shape.rank != 3)
        return mpt__refuse(x.context, SHAPE, "input %S: expected [N, C, L]", &tensor->shape);
    mpt_shape shape =
        MPT_SHAPE(tensor->shape.dim[0], tensor->shape.dim[1], 1, tensor->shape.dim[2]);
    for (int k = 0; k < 6; k += 2) {
        attributes.index[k + 1] = attributes.index[k];
        attributes.index[k] = k < 4;
    }
    mpt_tensor flat = mpt__spare(&spares, mpt_reshape(x, shape));
    mpt_tensor y = mpt__apply1(name, op, &flat, 1, &attributes);
    if (!y.slot) return mpt__spares_end(&spares, y);
    shape = mpt_get_shape(y);
    shape.dim[2] = shape.dim[3];
    shape.rank = 3;
    return mpt__spares_end(&spares, mpt_reshape(mpt__spare(&spares, y), shape));
}

static mpt_tensor mpt__apply_pool(
    const char *name, int op, mpt_tensor x, mpt__attributes attributes) {
    return mpt__apply1(name, op, &x, 1, &attributes);
}

#define MPT__DEFINE_POOL(kind) \
    mpt_tensor mpt_##kind##_pool1d(mpt_tensor x, const mpt_pool_config *config) { \
        return mpt__apply_pool1d("mpt_" #kind "_pool1d", MPT__OP_##kind##_pool2d, x, config); \
    } \
    mpt_tensor mpt_##kind##_pool2d(mpt_tensor x, const mpt_pool_config *config) { \
        return mpt__apply_pool("mpt_" #kind "_pool2d", MPT__OP_##kind##_pool2d, x, \
            mpt__pooling_attributes(config)); \
    }
MPT__DEFINE_POOL(max)
MPT__DEFINE_POOL(avg)
#undef MPT__DEFINE_POOL
mpt_tensor mpt_adaptive_max_pool2d(mpt_tensor x, int64_t height, int64_t width) {
    return mpt__apply_pool(
        "mpt_adaptive_max_pool2d", MPT__OP_max_pool2d, x, mpt__adaptive_attributes(height, width));
}
mpt_tensor mpt_adaptive_avg_pool2d(mpt_tensor x, int64_t height, int64_t width) {
    return mpt__apply_pool(
        "mpt_adaptive_avg_pool2d", MPT__OP_avg_pool2d, x, mpt__adaptive_attributes(height, width));
}

MPT__END_REGION

#endif
