/* ----
 * nn/share.c: one copy of the weights for a module in each of several contexts.
 * ---- */
#ifndef MPT__NN_SHARE_INCLUDED
#define MPT__NN_SHARE_INCLUDED

#include "nn/hooks.c"

#ifdef MPTRAIN_NO_WATCH

mpt_status mpt_share_module(mpt_module borrower, mpt_module lender) {
    mpt__lend(borrower, lender.context);
    return mpt__watch_missing(borrower.context, "mpt_share_module");
}

#else

/* A call under way. Rows are pairs: a storage of the lender's, and that of the borrower's which is
   to be the same memory, with a reference. */
typedef struct {
    mpt_context *to, *from;
    mpt__module *target, *origin;
    uint32_t *rows;
    int64_t count, capacity;
} mpt__sharing;

/* ==== What has to agree ==== */

static bool mpt__share_between(mpt_context *ctx, mpt_context *of, const char *whose) {
    const char *what = of->recorder            ? "a recording is under way"
        : of->sliced                           ? "a step is under way in slices"
        : of->step_depth                       ? "a step is open"
        : of->in_backward || of->forward_depth ? "a forward or backward runs"
                                               : NULL;
    if (!what) return true;
    return mpt__reject(ctx, STATE, "%s in the context of the %s; share between steps", what, whose);
}

static bool mpt__share_contexts(const mpt__sharing *s) {
    mpt_context *to = s->to, *from = s->from;
    if (to == from)
        return mpt__reject(to, ARGUMENT,
            "both modules are of one context, where one can be used in both places; "
            "mpt_tie ties single parameters");
    if (to->config.device != from->config.device ||
        mpt__is_dry(&to->base) != mpt__is_dry(&from->base) ||
        (!to->backend.synchronous && to->config.device_index != from->config.device_index))
        return mpt__reject(
            to, DEVICE, "the two contexts compute on different devices; mpt_copy_module copies");
    return mpt__share_between(to, to, "borrower") && mpt__share_between(to, from, "lender");
}

/* Of a parameter or buffer and its counterpart; `theirs` NULL: there is none. */
static bool mpt__share_fits(const mpt__sharing *s, const char *kind, const char *path,
    const mpt__tensor *mine, const char *their_path, const mpt__tensor *theirs) {
    path = mpt__relative_path(s->to, s->target, path);
    if (!theirs) return mpt__reject(s->to, SHAPE, "the lender has no %s %s", kind, path);
    their_path = mpt__relative_path(s->from, s->origin, their_path);
    if (strcmp(path, their_path) != 0)
        return mpt__reject(s->to, SHAPE, "%s %s is %s in the lender", kind, path, their_path);
    if (!mpt__same_shape(mine, theirs))
        return mpt__reject(s->to, SHAPE, "%s %s is %S here and %S in the lender", kind, path,
            &mine->shape, &theirs->shape);
    if (mine->dtype != theirs->dtype)
        return mpt__reject(s->to, DTYPE,
            "%s %s is %D here and %D in the lender; mpt_half makes them alike", kind, path,
            mine->dtype, theirs->dtype);
    return true;
}

/* The first parameter or buffer that one of the two has and the other has not is an error, and so
   is a parameter of the borrower's that is being trained. */
static bool mpt__share_compare(const mpt__sharing *s) {
    mpt__walk mine, theirs;
    const mpt__parameter *a, *b;
    mpt__buffer here, there;
    mpt__walk_begin(&mine, s->to, s->target);
    mpt__walk_begin(&theirs, s->from, s->origin);
    while (a = mpt__walk_values(&mine), b = mpt__walk_values(&theirs), a != NULL) {
        if (!mpt__share_fits(
                s, "parameter", a->path, a->tensor, b ? b->path : NULL, b ? b->tensor : NULL))
            return false;
        if (a->optimizer)
            return mpt__reject(s->to, STATE,
                "parameter %s belongs to an optimizer, which cannot train what is "
                "borrowed; mpt_optimizer_destroy it first",
                a->path);
    }
    if (b)
        return mpt__reject(s->to, SHAPE, "the borrower has no parameter %s, which the lender has",
            mpt__relative_path(s->from, s->origin, b->path));
    mpt__walk_begin(&mine, s->to, s->target);
    mpt__walk_begin(&theirs, s->from, s->origin);
    for (;;) {
        bool one = mpt__walk_buffer(&mine, &here), other = mpt__walk_buffer(&theirs, &there);
        if (!one && !other) return mpt__ok(s->to);
        if (!one)
            return mpt__reject(s->to, SHAPE, "the borrower has no buffer %s, which the lender has",
                mpt__relative_path(s->from, s->origin, there.path));
        if (!mpt__share_fits(s, "buffer", here.path, here.tensor, other ? there.path : NULL,
                other ? there.tensor : NULL))
            return false;
    }
}

/* ==== Before anything changes ==== */

/* The borrower's storage of the lender's memory; 0: not yet made. */
static uint32_t mpt__share_row(const mpt__sharing *s, uint32_t storage) {
    for (int64_t i = 0; i < s->count; i += 2)
        if (s->rows[i] == storage) return s->rows[i + 1];
    return 0;
}

/* Makes it, or finds that of another net of the borrower's; false with an error recorded. */
static bool mpt__share_make(mpt__sharing *s, uint32_t storage) {
    mpt_context *to = s->to;
    if (mpt__share_row(s, storage)) return true;
    if (!mpt__room(to, s->rows, s->capacity, s->count + 2) ||
        !mpt__room(to, to->shares, to->share_capacity, to->share_count + 1))
        return false;
    mpt__shared *memory = mpt__share_out(s->from, storage);
    if (!memory)
        return mpt__reject(to, STATE, "the lender's context failed: %s", mpt_error(s->from));
    uint32_t row = 0;
    for (int64_t i = 0; i < to->share_count && !row; i++)
        if (to->shares[i].memory == memory) row = to->shares[i].storage;
    if (row) {
        mpt__storage_retain(to, row);
    } else {
        row = mpt__storage_row(to);
        if (!row) return false;
        mpt__share_in(to, row, memory, s->from->storages[storage].bytes);
    }
    s->rows[s->count] = storage, s->rows[s->count + 1] = row;
    s->count += 2;
    return true;
}

/* The borrower's block over a storage; UINT32_MAX: there is none. */
static uint32_t mpt__share_block(const mpt_context *ctx, uint32_t storage) {
    for (int64_t i = 0; i < ctx->block_count; i++)
        if (ctx->blocks[i].live && ctx->blocks[i].values == storage) return (uint32_t)i;
    return UINT32_MAX;
}

static bool mpt__share_prepare(mpt__sharing *s) {
    mpt_context *to = s->to;
    mpt__walk walk;
    mpt__buffer buffer;
    const mpt__parameter *theirs;
    mpt__walk_begin(&walk, s->from, s->origin);
    while ((theirs = mpt__walk_values(&walk)) != NULL) {
        if (!mpt__share_make(s, theirs->tensor->storage)) return false;
        uint32_t row = mpt__share_row(s, theirs->tensor->storage);
        if (mpt__share_block(to, row) != UINT32_MAX) continue;
        uint32_t index = mpt__block_new(to, (mpt_dtype)theirs->tensor->dtype);
        if (index == UINT32_MAX) return false;
        to->blocks[index].values = row;
        to->blocks[index].numel = s->from->blocks[theirs->block].numel;
        mpt__storage_retain(to, row);
    }
    mpt__walk_begin(&walk, s->from, s->origin);
    while (mpt__walk_buffer(&walk, &buffer))
        if (!mpt__share_make(s, buffer.tensor->storage)) return false;
    return mpt__ok(to);
}

/* Gives back what the call holds, and blocks in which nothing came to lie. */
static void mpt__share_settle(mpt__sharing *s) {
    mpt_context *to = s->to;
    for (int64_t i = 0; i < s->count; i += 2) {
        uint32_t index = mpt__share_block(to, s->rows[i + 1]);
        if (index != UINT32_MAX && to->blocks[index].parameters == 0)
            mpt__block_free(to, &to->blocks[index]);
        mpt__storage_release(to, s->rows[i + 1]);
    }
    mpt__room_free(to, s->rows, s->capacity);
}

/* ==== The change ==== */

/* A storage of running state gives way to another one. */
static void mpt__share_state(
    mpt_context *ctx, mpt__running *running, uint32_t *storage, uint32_t row) {
    uint32_t old = *storage;
    if (!old || old == row) return;
    for (int i = 0; i < MPT__BUFFERS; i++) {
        mpt__tensor *tensor = running->buffer[i];
        if (!tensor || tensor->storage != old) continue;
        tensor->storage = row;
        mpt__storage_retain(ctx, row);
        mpt__storage_release(ctx, old);
    }
    ctx->storages[row].version += ctx->storages[old].version + 1;
    ctx->storages[old].live = 2;
    *storage = row;
    mpt__storage_retain(ctx, row);
    mpt__storage_release(ctx, old);
    ctx->moves++;
}

static void mpt__share_change(const mpt__sharing *s) {
    mpt_context *to = s->to;
    mpt__walk mine, theirs;
    mpt__parameter *a;
    const mpt__parameter *b;
    mpt__walk_begin(&mine, to, s->target);
    mpt__walk_begin(&theirs, s->from, s->origin);
    while ((a = mpt__walk_values(&mine)) != NULL && (b = mpt__walk_values(&theirs)) != NULL) {
        uint32_t row = mpt__share_row(s, b->tensor->storage);
        if (a->tensor->storage != row || a->tensor->offset != b->tensor->offset)
            mpt__move_parameter(to, a, mpt__share_block(to, row), b->tensor->offset, false);
    }
    mpt__module *m = mpt__walk_begin(&mine, to, s->target);
    mpt__module *of = mpt__walk_begin(&theirs, s->from, s->origin);
    for (; m && of; m = mpt__walk_next(&mine), of = mpt__walk_next(&theirs)) {
        m->fixed = m->borrows = true;
        mpt__parameters_collect(to, m, false);
    }
    mpt__buffer here, there;
    mpt__walk_begin(&mine, to, s->target);
    mpt__walk_begin(&theirs, s->from, s->origin);
    while (mpt__walk_buffer(&mine, &here) && mpt__walk_buffer(&theirs, &there)) {
        mpt__running *running = mine.module->running;
        uint32_t row = mpt__share_row(s, there.tensor->storage), was = here.tensor->storage;
        if (was == running->values) mpt__share_state(to, running, &running->values, row);
        if (was == running->counts) mpt__share_state(to, running, &running->counts, row);
    }
}

mpt_status mpt_share_module(mpt_module borrower, mpt_module lender) {
    mpt__lend(borrower, lender.context);
    mpt__sharing s;
    mpt__zero(s);
    s.to = borrower.context, s.from = lender.context;
    s.target = mpt__module_enter(borrower, "mpt_share_module");
    if (!s.target) return mpt__status_of(s.to);
    if (!s.from) return mpt__error(s.to, HANDLE, "the lender is a null handle");
    if (!mpt__share_contexts(&s) || mpt__freeze(s.to, s.target) != MPT_OK) return s.to->base.status;
    s.origin = mpt__module_frozen(lender, "mpt_share_module");
    if (s.origin) mpt__wait(s.from); /* so that values are there, whoever reads them */
    if (!s.origin || !mpt__ok(s.from))
        return mpt__error(s.to, STATE, "the lender's context failed: %s", mpt_error(s.from));
    if (mpt__share_compare(&s)) {
        if (mpt__share_prepare(&s)) mpt__share_change(&s);
        mpt__share_settle(&s);
    }
    return s.to->base.status;
}

#endif /* MPTRAIN_NO_WATCH */

#endif
