/* ----
 * core/plan.c: memory before it is taken: where the storages of a list of launches lie, and dry
 * contexts.
 * ---- */
#ifndef MPT__CORE_PLAN_INCLUDED
#define MPT__CORE_PLAN_INCLUDED

#include "core/autograd.c"

#ifndef MPTRAIN_NO_FRUGAL

/* ==== Places ====
 *
 * Storages that come and go within a list of launches share one piece of memory: each lies where
 * nothing else does from the first launch that names it to the last. */

typedef struct {
    int64_t bytes;       /* 0: nobody names it */
    int64_t first, last; /* launches */
    int64_t offset;
    int64_t root; /* the stay whose place this one takes over: of an op in place; or itself */
} mpt__stay;

/* The largest first, of equal ones that which begins first: what is large then finds room between
   what is large. `order` gets the roots; returns how many there are. */
static int64_t mpt__stays_order(const mpt__stay *stays, int64_t count, int64_t *order) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!stays[i].bytes || stays[i].root != i) continue;
        int64_t at = n++;
        for (; at > 0 && stays[order[at - 1]].bytes < stays[i].bytes; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return n;
}

/* The smallest gap that a stay fits into, among those placed so far that live at some time with it.
   `placed` is ordered by offset. */
static int64_t mpt__stay_gap(
    const mpt__stay *stays, const int64_t *placed, int64_t n, const mpt__stay *stay) {
    int64_t at = 0, best = INT64_MAX, place = -1;
    for (int64_t i = 0; i < n; i++) {
        const mpt__stay *other = &stays[placed[i]];
        if (other->last < stay->first || stay->last < other->first) continue;
        const int64_t gap = other->offset - at, end = other->offset + other->bytes;
        if (gap >= stay->bytes && gap < best) best = gap, place = at;
        if (end > at) at = end;
    }
    return place < 0 ? at : place;
}

/* Gives each stay its offset; `room` holds two numbers for each. Returns the bytes of all. */
static int64_t mpt__stays_place(mpt__stay *stays, int64_t count, int64_t *room) {
    int64_t *order = room, *placed = room + count, total = 0;
    const int64_t roots = mpt__stays_order(stays, count, order);
    for (int64_t n = 0; n < roots; n++) {
        mpt__stay *stay = &stays[order[n]];
        stay->offset = mpt__stay_gap(stays, placed, n, stay);
        int64_t at = n;
        for (; at > 0 && stays[placed[at - 1]].offset > stay->offset; at--)
            placed[at] = placed[at - 1];
        placed[at] = order[n];
        if (stay->offset + stay->bytes > total) total = stay->offset + stay->bytes;
    }
    for (int64_t i = 0; i < count; i++) stays[i].offset = stays[stays[i].root].offset;
    return total;
}

/* Whether an operand is all of its storage, in order. */
static bool mpt__operand_is_all(const mpt_context *ctx, const mpt__operand *o) {
    int64_t numel = 1;
    for (int d = o->rank - 1; d >= 0; d--) {
        if (o->shape[d] != 1 && o->stride[d] != numel) return false;
        numel *= o->shape[d];
    }
    return o->offset == 0 &&
        numel * mpt__dtype_info[o->dtype].bytes == ctx->storages[o->storage].bytes;
}

/* Whether an elementwise launch may write its result over an operand: each element is read before
   it is written, and by nobody else. */
static bool mpt__may_overwrite(const mpt_context *ctx, const mpt__launch *launch, int input) {
    const int n = launch->kernel == MPT__K_UNARY ? 1 : launch->kernel == MPT__K_BINARY ? 2 : 0;
    const mpt__operand *in = &launch->operand[input], *out = &launch->operand[n];
    if (input >= n || out->access != MPT__WRITE || in->dtype != out->dtype) return false;
    for (int i = 0; i < n; i++)
        if (launch->operand[i].storage == in->storage &&
            !mpt__operand_is_all(ctx, &launch->operand[i]))
            return false;
    return mpt__operand_is_all(ctx, in) && mpt__operand_is_all(ctx, out);
}

/* Of launches, and of the storages that `where` numbers from 1 on, when they are named, and which
   take the place of others. */
static void mpt__stays_find(const mpt_context *ctx, const mpt__launch *launches, int64_t count,
    const uint32_t *where, mpt__stay *stays) {
    for (int64_t l = 0; l < count; l++)
        for (int i = 0; i < launches[l].n_operands; i++) {
            const uint32_t id = launches[l].operand[i].storage;
            if (!where[id]) continue;
            mpt__stay *stay = &stays[where[id] - 1];
            const int64_t bytes = ctx->storages[id].bytes + (ctx->storages[id].bytes == 0);
            if (!stay->bytes) stay->first = l;
            stay->bytes = (bytes + MPT__POOL_GRAIN - 1) / MPT__POOL_GRAIN * MPT__POOL_GRAIN;
            stay->last = l;
        }
    for (int64_t l = 0; l < count; l++)
        for (int i = 0; i < launches[l].n_operands; i++) {
            const mpt__launch *launch = &launches[l];
            const uint32_t in = where[launch->operand[i].storage],
                           out = where[launch->operand[launch->n_operands - 1].storage];
            if (!in || !out || in == out || stays[in - 1].last != l ||
                stays[out - 1].first != l || stays[out - 1].root != out - 1 ||
                !mpt__may_overwrite(ctx, launch, i))
                continue;
            mpt__stay *root = &stays[stays[in - 1].root];
            stays[out - 1].root = stays[in - 1].root;
            root->last = stays[out - 1].last;
            break;
        }
}

/* ==== Dry contexts ====
 *
 * A dry context is one of the CPU whose backend has been robbed of its hands: it says what scratch
 * memory a launch needs, but runs none, and what it hands out as memory is the address of a byte
 * that nobody reads or writes. All else, from the pool to the moments, is the real thing, so that
 * the bytes are those of the real run. */

static void *mpt__dry_allocate(void *self, size_t bytes) {
    static const char nothing[1] = {0};
    (void)self, (void)bytes;
    return (void *)(intptr_t)nothing;
}

static void mpt__dry_release(void *self, void *pointer, size_t bytes) {
    (void)self, (void)pointer, (void)bytes;
}

static mpt_status mpt__dry_upload(void *self, void *to, const void *from, size_t bytes) {
    (void)self, (void)to, (void)from, (void)bytes;
    return MPT_OK;
}

/* Every value is 0, also those of borrowed memory. */
static mpt_status mpt__dry_download(void *self, void *to, const void *from, size_t bytes) {
    (void)self, (void)from;
    memset(to, 0, bytes);
    return MPT_OK;
}

static mpt_status mpt__dry_launch(
    void *self, const mpt__execution *execution, const mpt__launch *launch) {
    (void)self, (void)execution, (void)launch;
    return MPT_OK;
}

/* Takes the hands from the backend that the context has. */
static void mpt__dry_begin(mpt_context *ctx) {
    mpt__backend *backend = &ctx->backend;
    backend->allocate = mpt__dry_allocate;
    backend->release = mpt__dry_release;
    backend->upload = mpt__dry_upload;
    backend->download = mpt__dry_download;
    backend->launch = mpt__dry_launch;
}
#endif

#endif
