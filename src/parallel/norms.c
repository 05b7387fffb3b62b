/* ----
 * parallel/norms.c: batch norms whose statistics are those of the batches of all ranks.
 *
 * The kernel of the norm stays as it is. Forward it is given a mean and variance, which are made
 * here before it runs. Backward it takes off the means of this rank's gradients, as it always does,
 * and what those of all ranks would take off besides is taken off here behind it: a small
 * correction, as batches are alike. Sums are in double, over ranks in their order.
 * ---- */
#ifndef MPT__PARALLEL_NORMS_INCLUDED
#define MPT__PARALLEL_NORMS_INCLUDED

#include "parallel/buckets.c"

enum { MPT__SYNC_CHANNELS = 8192, MPT__SYNC_PIECE = 256 };

/* What is done with each element x of channel c, forward and backward; dy is behind relu. */
typedef enum {
    MPT__SYNC_MEAN,    /* a[c] += x */
    MPT__SYNC_SQUARES, /* b[c] += (x - mean[c])^2 */
    MPT__SYNC_SLOPES,  /* a[c] += dy, b[c] += dy (x - mean[c]) */
    MPT__SYNC_CORRECT  /* dx += a[c] + b[c] (x - mean[c]) */
} mpt__sync_pass;

typedef struct mpt__norm_sync {
    uint32_t storage, variance; /* in which this lies; what the kernel reads where nobody asks */
    double *mine, *all;         /* the number of elements, then two sums for each channel */
    double *mean, *a, *b;
    double total;               /* elements of each channel in the last forward, of all ranks */
    MPI_Request request;
    bool under_way; /* sums of the backward that is running */
} mpt__norm_sync;

/* ==== Elements ==== */

/* An operand of the norm's, [N, 1, C, S], or one number for each channel. */
static bool mpt__norm_has(const mpt__launch *launch, int i) {
    return i < launch->n_operands && launch->operand[i].storage != 0;
}

static void mpt__channels_get(
    const mpt_context *ctx, const mpt__launch *launch, int i, int64_t channels, double *to) {
    const mpt__operand *o = &launch->operand[i];
    for (int64_t c = 0; c < channels && !mpt__norm_has(launch, i); c++) to[c] = 1.0;
    if (mpt__norm_has(launch, i))
        mpt__load_f64(to, ctx->data[o->storage], o->dtype, o->offset, 1, channels);
}

/* Where element `at` of a line lies; lines go along channels, or along what is in one. */
static int64_t mpt__line_place(
    const mpt__operand *o, int64_t n, int64_t line, int64_t at, bool along_channels) {
    return o->offset + n * o->stride[0] + line * o->stride[along_channels ? 3 : 2] +
        at * o->stride[along_channels ? 2 : 3];
}

static void mpt__line_get(const mpt_context *ctx, const mpt__operand *o, const int64_t where[3],
    bool along, int64_t count, double *to) {
    mpt__load_f64(to, ctx->data[o->storage], o->dtype,
        mpt__line_place(o, where[0], where[1], where[2], along), o->stride[along ? 2 : 3], count);
}

static void mpt__sync_piece(mpt_context *ctx, const mpt__launch *launch, const mpt__norm_sync *sync,
    mpt__sync_pass pass, const int64_t where[3], int64_t count, bool along) {
    double x[MPT__SYNC_PIECE], y[MPT__SYNC_PIECE], gate[MPT__SYNC_PIECE];
    static const int of[] = {0, 0, 1, 6};
    const mpt__operand *o = &launch->operand[0], *other = &launch->operand[of[pass]];
    const int by = along ? 1 : 0;
    const int64_t c = along ? where[2] : where[1];
    const double *mean = sync->mean + c;
    double *a = sync->a + c, *b = sync->b + c;
    mpt__line_get(ctx, o, where, along, count, x);
    if (pass >= MPT__SYNC_SLOPES) mpt__line_get(ctx, other, where, along, count, y);
    if (pass == MPT__SYNC_SLOPES && launch->index[2] && mpt__norm_has(launch, 5)) {
        mpt__line_get(ctx, &launch->operand[5], where, along, count, gate);
        for (int64_t i = 0; i < count; i++) y[i] = gate[i] > 0 ? y[i] : 0;
    }
    for (int64_t i = 0, k = 0; i < count; i++, k += by) {
        switch (pass) {
        case MPT__SYNC_MEAN: a[k] += x[i]; break;
        case MPT__SYNC_SQUARES: b[k] += (x[i] - mean[k]) * (x[i] - mean[k]); break;
        case MPT__SYNC_SLOPES: a[k] += y[i], b[k] += y[i] * (x[i] - mean[k]); break;
        case MPT__SYNC_CORRECT: y[i] += a[k] + b[k] * (x[i] - mean[k]); break;
        default: break;
        }
    }
    if (pass == MPT__SYNC_CORRECT)
        mpt__store_f64(ctx->data[other->storage], other->dtype,
            mpt__line_place(other, where[0], where[1], where[2], along),
            other->stride[along ? 2 : 3], y, count);
}

/* All elements, along memory where x lies so. */
static void mpt__sync_pass_over(
    mpt_context *ctx, const mpt__launch *launch, const mpt__norm_sync *sync, mpt__sync_pass pass) {
    const mpt__operand *x = &launch->operand[0];
    const bool along = x->shape[3] == 1 || (x->stride[2] == 1 && x->stride[3] != 1);
    const int64_t lines = x->shape[along ? 3 : 2], length = x->shape[along ? 2 : 3];
    for (int64_t n = 0; n < x->shape[0]; n++)
        for (int64_t line = 0; line < lines; line++)
            for (int64_t at = 0; at < length; at += MPT__SYNC_PIECE) {
                const int64_t where[3] = {n, line, at}, left = length - at, most = MPT__SYNC_PIECE;
                mpt__sync_piece(ctx, launch, sync, pass, where,
                    left < most ? left : most, along);
            }
}

/* ==== Between ranks ==== */

static int mpt__sync_send(const mpt__world *w, mpt__norm_sync *sync, int64_t channels) {
    const int count = (int)(1 + 2 * channels);
    memcpy(sync->mine + 1, sync->a, (size_t)channels * sizeof(double));
    memcpy(sync->mine + 1 + channels, sync->b, (size_t)channels * sizeof(double));
    return MPI_Iallgather(sync->mine, count, MPI_DOUBLE, sync->all, count, MPI_DOUBLE,
        w->comm[MPT__MPI_CALLS], &sync->request);
}

/* Mean and variance of the whole batch for the kernel that is about to run. */
static void mpt__sync_forward(
    mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, mpt__launch *launch) {
    const int64_t channels = launch->operand[0].shape[2];
    const double own = (double)(launch->operand[0].shape[0] * launch->operand[0].shape[3]);
    const size_t bytes = (size_t)channels * sizeof(double);
    memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
    mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_MEAN);
    for (int64_t c = 0; c < channels; c++) sync->a[c] /= own;
    memcpy(sync->mean, sync->a, bytes);
    mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_SQUARES);
    sync->mine[0] = own;
    int code = mpt__sync_send(w, sync, channels);
    if (mpt__world_wait(ctx, w, &sync->request, 1, code) != MPT_OK) return;
    memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
    sync->total = 0;
    for (int r = 0; r < w->world; r++) {
        const double *from = sync->all + r * (1 + 2 * channels);
        sync->total += from[0];
        for (int64_t c = 0; c < channels; c++) sync->a[c] += from[0] * from[1 + c];
    }
    for (int64_t c = 0; c < channels; c++) sync->a[c] /= sync->total;
    for (int r = 0; r < w->world; r++) {
        const double *from = sync->all + r * (1 + 2 * channels);
        for (int64_t c = 0; c < channels; c++) {
            const double off = from[1 + c] - sync->a[c];
            sync->b[c] += from[1 + channels + c] + from[0] * off * off;
        }
    }
    for (int64_t c = 0; c < channels; c++) sync->b[c] /= sync->total;
    if (!mpt__norm_has(launch, 8)) {
        *mpt__operand_at(launch, 8) = launch->operand[7];
        launch->operand[8].storage = sync->variance, launch->operand[8].offset = 0;
    }
    for (int i = 6; i <= 8; i += 2) {
        mpt__operand *o = &launch->operand[i];
        o->access = MPT__READ;
        mpt__store_f64(ctx->data[o->storage], o->dtype, o->offset, 1,
            i == 6 ? sync->a : sync->b, channels);
    }
    launch->index[1] = 1;
}

/* This rank's sums of gradients leave while the kernel runs. */
static void mpt__sync_backward(
    mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, const mpt__launch *launch) {
    const int64_t channels = launch->operand[0].shape[2];
    const size_t bytes = (size_t)channels * sizeof(double);
    memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
    mpt__channels_get(ctx, launch, 3, channels, sync->mean);
    mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_SLOPES);
    sync->mine[0] = (double)(launch->operand[0].shape[0] * launch->operand[0].shape[3]);
    const int code = mpt__sync_send(w, sync, channels);
    sync->under_way = code == MPI_SUCCESS;
    if (code != MPI_SUCCESS) mpt__mpi_failed(ctx, w, code);
}

static void mpt__sync_behind(
    mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, const mpt__launch *launch) {
    const int64_t channels = launch->operand[0].shape[2];
    const size_t bytes = (size_t)channels * sizeof(double);
    double total = 0;
    sync->under_way = false;
    if (mpt__world_wait(ctx, w, &sync->request, 1, MPI_SUCCESS) != MPT_OK ||
        !mpt__norm_has(launch, 6))
        return;
    memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
    for (int r = 0; r < w->world; r++) {
        const double *from = sync->all + r * (1 + 2 * channels);
        total += from[0];
        for (int64_t c = 0; c < channels; c++)
            sync->a[c] += from[1 + c], sync->b[c] += from[1 + channels + c];
    }
    double *weight = sync->all, *rstd = sync->all + channels; /* what was in them has been added */
    mpt__channels_get(ctx, launch, 2, channels, weight);
    mpt__channels_get(ctx, launch, 4, channels, rstd);
    for (int64_t c = 0; c < channels; c++) {
        const double scale = weight[c] * rstd[c], own = sync->mine[0];
        sync->a[c] = scale * (sync->mine[1 + c] / own - sync->a[c] / total);
        sync->b[c] = scale * rstd[c] * rstd[c] *
            (sync->mine[1 + channels + c] / own - sync->b[c] / total);
    }
    mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_CORRECT);
}

/* ==== What is heard ==== */

static bool mpt__sync_concerns(mpt_context *ctx, const mpt__world *w, const mpt__launch *launch) {
    const bool norm = launch->kernel == MPT__K_NORM || launch->kernel == MPT__K_NORM_BACKWARD;
    if (!norm || !launch->index[0] || launch->index[1] || w->lost || !mpt__ok(ctx)) return false;
    if (launch->operand[0].shape[2] <= MPT__SYNC_CHANNELS) return true;
    return mpt__reject(ctx, UNSUPPORTED, "sync_batch_norm: %lld channels; at most %d",
        launch->operand[0].shape[2], (int)MPT__SYNC_CHANNELS);
}

static void mpt__sync_launches(mpt_context *ctx, void *user, const void *what) {
    MPT__PLAIN_FLOATS;
    mpt__launch *launch = (mpt__launch *)(uintptr_t)what;
    mpt__world *w = (mpt__world *)user;
    mpt__norm_sync *sync = mpt__net_of(w)->sync;
    if (launch->kernel == MPT__K_RUNNING_STATS && mpt__norm_has(launch, 0) && sync->total > 1)
        launch->imm[1] = sync->total / (sync->total - 1);
    if (!mpt__sync_concerns(ctx, w, launch)) return;
    if (launch->kernel == MPT__K_NORM)
        mpt__sync_forward(ctx, w, sync, launch);
    else
        mpt__sync_backward(ctx, w, sync, launch);
}

static void mpt__sync_launched(mpt_context *ctx, void *user, const void *what) {
    MPT__PLAIN_FLOATS;
    const mpt__launch *launch = (const mpt__launch *)what;
    mpt__world *w = (mpt__world *)user;
    mpt__norm_sync *sync = mpt__net_of(w)->sync;
    if (launch->kernel == MPT__K_NORM_BACKWARD && sync->under_way)
        mpt__sync_behind(ctx, w, sync, launch);
}

/* ==== Making ==== */

static void mpt__sync_end(mpt_context *ctx, const mpt__world *w, mpt__norm_sync *sync) {
    mpt__listen_no_more(ctx, MPT__LAUNCHES, mpt__sync_launches);
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__sync_launched);
    if (!sync || w->lost) return;
    mpt__scratch_end(ctx, sync->variance);
    mpt__storage_release(ctx, sync->storage);
}

static mpt__norm_sync *mpt__sync_begin(mpt_context *ctx, mpt__world *w) {
    const int64_t each = (1 + 2 * MPT__SYNC_CHANNELS) * (int64_t)sizeof(double);
    const int64_t head = ((int64_t)sizeof(mpt__norm_sync) + 63) / 64 * 64;
    const int64_t bytes =
        head + each * (w->world + 1) + 3 * MPT__SYNC_CHANNELS * (int64_t)sizeof(double);
    uint32_t storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
    if (!storage) return NULL;
    mpt__norm_sync *sync = (mpt__norm_sync *)ctx->data[storage];
    sync->storage = storage;
    sync->mine = (double *)(void *)((char *)sync + head);
    sync->all = sync->mine + 1 + 2 * MPT__SYNC_CHANNELS;
    sync->mean = sync->all + w->world * (1 + 2 * MPT__SYNC_CHANNELS);
    sync->a = sync->mean + MPT__SYNC_CHANNELS, sync->b = sync->a + MPT__SYNC_CHANNELS;
    sync->variance = mpt__storage_new(
        ctx, MPT__SYNC_CHANNELS * 8, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
    if (sync->variance && w->world > 1) {
        mpt__listen(ctx, MPT__LAUNCHES, mpt__sync_launches, w);
        mpt__listen(ctx, MPT__LAUNCHED, mpt__sync_launched, w);
    }
    return sync;
}

#endif
