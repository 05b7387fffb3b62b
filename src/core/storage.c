/* ----
 * core/storage.c: public calls, the pool, launches, storages.
 * ---- */
#ifndef MPT__CORE_STORAGE_INCLUDED
#define MPT__CORE_STORAGE_INCLUDED

#include "core/share.c"

/* ==== Calls ==== */

/* Whether the context is this process's, else an error. */
static MPT__COLD bool mpt__not_forked(mpt_context *ctx) {
    if (ctx->base.process == mpt__process_id()) return true;
    return mpt__reject(ctx, THREAD,
        "this context was made before fork; make a new one in the child with mpt_create");
}

/* The contexts that live, and by which thread they were made: a null handle has none that could
   take its error. Entries are whole or empty, so that no lock is left behind by a fork. */
#ifdef MPTRAIN_NO_THREADS
enum { MPT__LIVING = 4 };
#else
enum { MPT__LIVING = 64 }; /* those beyond are not found */
#endif
static struct {
    int64_t context, maker; /* addresses; 0: free, 1: being filled in */
    int64_t number;         /* in the order of making */
} mpt__living[MPT__LIVING];

static MPT__THREAD_LOCAL char mpt__create_message[1024]; /* its address also stands for a thread */

static int64_t mpt__this_thread(void) { return (int64_t)(intptr_t)mpt__create_message; }

static void mpt__context_lives(mpt_context *ctx) {
    static int64_t count;
    int i = 0;
    while (i < MPT__LIVING && !mpt__atomic_cas64(&mpt__living[i].context, 0, 1)) i++;
    if (i == MPT__LIVING) return;
    mpt__living[i].maker = mpt__this_thread();
    mpt__living[i].number = mpt__atomic_add64(&count, 1);
    mpt__atomic_store64(&mpt__living[i].context, (int64_t)(intptr_t)ctx);
}

static void mpt__context_ends(const mpt_context *ctx) {
    for (int i = 0; i < MPT__LIVING; i++)
        mpt__atomic_cas64(&mpt__living[i].context, (int64_t)(intptr_t)ctx, 0);
}

static bool mpt__enter(mpt_context *ctx, const char *op);

/* A call whose handles are all null: an error of the context that this thread made last, so that
   one look at mpt_failed tells. */
static MPT__COLD bool mpt__enter_null(const char *op) {
    mpt_context *ctx = NULL;
    int64_t latest = -1;
    for (int i = 0; i < MPT__LIVING; i++) {
        int64_t at = mpt__atomic_load64(&mpt__living[i].context);
        if (at <= 1 || mpt__living[i].maker != mpt__this_thread() || mpt__living[i].number < latest)
            continue;
        ctx = (mpt_context *)(intptr_t)at;
        latest = mpt__living[i].number;
    }
    if (!ctx || !mpt__enter(ctx, op)) return false;
    return mpt__reject(ctx, HANDLE, "what it is called on is a null handle: {0}, never set");
}

/* Begins a public call: counts it, notes its name, and says whether it may go on (no sticky
   error). */
static MPT__INLINE bool mpt__enter(mpt_context *ctx, const char *op) {
    if (!ctx) return mpt__enter_null(op);
    ctx->base.call++;
    if (!mpt__ok(ctx)) return false;
    ctx->base.op = op;
    return !MPT__UNLIKELY(mpt__forked_fast(&ctx->base)) || mpt__not_forked(ctx);
}

/* The same for what gives something back: an earlier error does not stop it. */
static bool mpt__enter_anyway(mpt_context *ctx, const char *op) {
    mpt__enter(ctx, op);
    return ctx && !mpt__forked(&ctx->base);
}

/* The same for calls that begin something: there a build without threads asks the system, too. */
static bool mpt__enter_checked(mpt_context *ctx, const char *op) {
    return mpt__enter(ctx, op) && mpt__not_forked(ctx);
}

/* A null handle that no context made takes that of another argument, for the error. */
#define mpt__lend(handle, lender) ((handle).context ? (void)0 : (void)((handle).context = (lender)))

/* Whether no step stands between two of its launches, else an error. */
static bool mpt__no_slice(mpt_context *ctx) {
    if (!ctx->sliced) return true;
    return mpt__reject(
        ctx, STATE, "a step is under way in slices; call mpt_step_slice until it is done");
}

/* The status of a call whose context may be NULL. */
static mpt_status mpt__status_of(const mpt_context *ctx) {
    return ctx ? ctx->base.status : MPT_ERROR_HANDLE;
}

/* Makes a host array hold `need` rows, moved if it has to; false with an error recorded. */
#define mpt__room(ctx, array, capacity, need) \
    mpt__grow(&(ctx)->base, &(array), &(capacity), need, sizeof *(array), MPT_MEMORY_HOST)

/* The error null; of no context: an argument left out. */
static mpt_tensor mpt__null(mpt_context *ctx) {
    mpt_tensor null;
    null.context = ctx, null.slot = 0, null.generation = 0;
    return null;
}

static void *mpt__host_new(mpt_context *ctx, size_t bytes) {
    return mpt__allocate(&ctx->base, bytes, MPT_MEMORY_HOST);
}

/* An array that may be longer than memory can be: NULL with an error recorded. */
static void *mpt__host_array(mpt_context *ctx, int64_t count, size_t size) {
    if ((uint64_t)count <= (uint64_t)PTRDIFF_MAX / size)
        return mpt__host_new(ctx, (size_t)count * size);
    mpt__fail_memory(&ctx->base, (size_t)PTRDIFF_MAX, MPT_MEMORY_HOST);
    return NULL;
}

static void mpt__host_free(mpt_context *ctx, void *pointer, size_t bytes) {
    if (pointer) mpt__release(&ctx->base, pointer, bytes, MPT_MEMORY_HOST);
}

/* An array that mpt__room grew. */
#define mpt__room_free(ctx, array, capacity) \
    mpt__host_free(ctx, array, (size_t)(capacity) * sizeof *(array))

static char *mpt__host_text(mpt_context *ctx, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = (char *)mpt__host_new(ctx, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

static void mpt__host_text_free(mpt_context *ctx, char *text) {
    if (text) mpt__host_free(ctx, text, strlen(text) + 1);
}

/* ==== The pool ====
 *
 * Idle memory stays with the storage row that had it last; rows are listed by size class. Classes:
 * multiples of 256 bytes up to 2 KB, then eight steps per doubling, from 128 KB on 32. Idle memory
 * serves its own class and requests down to a quarter of its size, but only what fills most of it
 * while less than an eighth of the peak is idle. From 128 KB on it is cut to size. */

enum {
    MPT__POOL_GRAIN = 256,
    MPT__POOL_REACH = 16, /* classes above its own that serve, too */
    MPT__POOL_MOVES = 64,
    MPT__POOL_FINE_BIT = 9, /* 128 KB of grains */
    MPT__POOL_FINE = 8 * (MPT__POOL_FINE_BIT - 2)
};

/* Where pointers have 32 bits there are few sizes, and no room for long lists. */
#define MPT__POOL_HAS_FINE (sizeof(void *) > 4)

static MPT__FORCE_INLINE int mpt__size_class(int64_t bytes) {
    uint64_t last = bytes > 0 ? ((uint64_t)bytes - 1) / MPT__POOL_GRAIN : 0;
    if (last < 8) return (int)last;
    const int bit = mpt__top_bit(last);
    if (MPT__POOL_HAS_FINE && MPT__UNLIKELY(bit >= MPT__POOL_FINE_BIT))
        return MPT__POOL_FINE + 32 * (bit - MPT__POOL_FINE_BIT - 1) + (int)(last >> (bit - 5));
    return 8 * (bit - 3) + (int)(last >> (bit - 3));
}

static int64_t mpt__class_bytes(int size_class) {
    if (size_class < 8) return (int64_t)(size_class + 1) * MPT__POOL_GRAIN;
    const bool fine = MPT__POOL_HAS_FINE && size_class >= MPT__POOL_FINE;
    const int from = fine ? size_class - MPT__POOL_FINE : size_class, steps = fine ? 5 : 3;
    const int bit = (from >> steps) + (fine ? MPT__POOL_FINE_BIT : 2);
    const int64_t part = (from & ((1 << steps) - 1)) + (1 << steps) + 1;
    return (part << (bit - steps)) * MPT__POOL_GRAIN;
}

static void mpt__pool_trim(mpt_context *ctx);

static void *mpt__device_try(mpt_context *ctx, int64_t bytes) {
    if ((uint64_t)bytes > (uint64_t)PTRDIFF_MAX) return NULL; /* of 32 bits */
    if (!ctx->backend.allocate) return mpt__allocate_raw(&ctx->base, (size_t)bytes);
    mpt__base *base = &ctx->base;
    if (base->memory_limit > 0 && bytes > base->memory_limit - base->memory.held) return NULL;
    base->memory.allocations++;
    void *pointer = ctx->backend.allocate(ctx->backend.self, (size_t)bytes);
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__is_dry(base)) pointer = (void *)(intptr_t)(ctx->dry_end += bytes);
#endif
    if (pointer) base->memory.held += bytes;
    return pointer;
}

/* Says why there is no memory: the device may have failed, or other programs may fill it. */
static MPT__COLD void mpt__device_refused(mpt_context *ctx, int64_t bytes, mpt_memory_kind kind) {
    mpt__backend *backend = &ctx->backend;
    bool fits = (uint64_t)bytes <= (uint64_t)PTRDIFF_MAX;
    char who[96] = "the allocator";
    if (backend->describe) {
        mpt_device_info device;
        mpt_status status = backend->synchronize(backend->self);
        if (status != MPT_OK) {
            mpt__backend_error(ctx, status);
            return;
        }
        mpt__zero(device);
        backend->describe(backend->self, &device);
        mpt__format_text(who, sizeof who, "the device, which has %B of %B free,",
            device.memory_free, device.memory);
    }
    mpt__fail_memory_of(&ctx->base, who, fits ? (size_t)bytes : (size_t)PTRDIFF_MAX, kind);
}

/* New memory; when there is none, idle memory goes back first. */
static void *mpt__device_new(mpt_context *ctx, int64_t bytes, mpt_memory_kind kind) {
    void *pointer = mpt__device_try(ctx, bytes);
    if (!pointer) {
        mpt__pool_trim(ctx);
        pointer = mpt__device_try(ctx, bytes);
    }
    if (!pointer) mpt__device_refused(ctx, bytes, kind);
    return pointer;
}

static void mpt__device_free(mpt_context *ctx, void *pointer, int64_t bytes) {
    if (!ctx->backend.release) {
        mpt__release_raw(&ctx->base, pointer, (size_t)bytes);
        return;
    }
    ctx->backend.release(ctx->backend.self, pointer, (size_t)bytes);
    ctx->base.memory.held -= bytes;
    ctx->base.memory.releases++;
}

static void mpt__workspace_free(mpt_context *ctx) {
    if (ctx->workspace) mpt__device_free(ctx, ctx->workspace, ctx->workspace_bytes);
    ctx->workspace = NULL;
    ctx->workspace_bytes = 0;
}

/* At least `bytes` of scratch memory; NULL with an error recorded. */
static void *mpt__workspace(mpt_context *ctx, int64_t bytes) {
    if (bytes <= ctx->workspace_bytes) return ctx->workspace;
    mpt__workspace_free(ctx);
    int64_t held = mpt__class_bytes(mpt__size_class(bytes));
    ctx->workspace = mpt__device_new(ctx, held, MPT_MEMORY_WORKSPACE);
    if (ctx->workspace) ctx->workspace_bytes = held;
    return ctx->workspace;
}

/* Whether a single tensor uses a storage; the references of recordings do not count. */
static MPT__INLINE bool mpt__storage_alone(const mpt_context *ctx, uint32_t id) {
    return ctx->storages[id].references - ctx->storages[id].recordings == 1;
}

static void mpt__storage_spare(mpt_context *ctx, uint32_t id) {
    ctx->storages[id].next_free = ctx->free_storage;
    ctx->free_storage = id;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__in_extents(size_class) false
#define mpt__extent_give(ctx, data) ((void)0)
#define mpt__extent_take(ctx, bytes, kind) NULL
#define mpt__extents_trim(ctx, bytes) ((void)0)
#else
/* ==== Large memory ====
 *
 * What an activation leaves is cut to the size of smaller ones, and idle neighbours become one.
 * What lies where depends on the order of requests, not on addresses: a dry run finds the same. */

static MPT__INLINE bool mpt__in_extents(int size_class) {
    return MPT__POOL_HAS_FINE && size_class >= MPT__POOL_FINE;
}

/* There is room for one more. */
static mpt__extent *mpt__extent_insert(mpt_context *ctx, int64_t at, char *data, int64_t bytes) {
    mpt__extent *extent = &ctx->extents[at];
    memmove(extent + 1, extent, (size_t)(ctx->extent_count++ - at) * sizeof *extent);
    extent->data = data, extent->bytes = bytes;
    extent->idle = extent->first = false;
    return extent;
}

static void mpt__extent_remove(mpt_context *ctx, int64_t at) {
    mpt__extent *extent = &ctx->extents[at];
    memmove(extent, extent + 1, (size_t)(--ctx->extent_count - at) * sizeof *extent);
}

/* Extent `at` and the next become one, if they can. */
static void mpt__extent_join(mpt_context *ctx, int64_t at) {
    if (at < 0 || at + 1 >= ctx->extent_count) return;
    mpt__extent *extent = &ctx->extents[at];
    if (!extent->idle || !extent[1].idle || extent[1].first) return;
    extent->bytes += extent[1].bytes;
    mpt__extent_remove(ctx, at + 1);
}

static void mpt__extent_give(mpt_context *ctx, const void *data) {
    int64_t at = 0;
    while (ctx->extents[at].data != data) at++;
    ctx->extents[at].idle = true;
    mpt__extent_join(ctx, at);
    mpt__extent_join(ctx, at - 1);
}

/* Idle rows give memory up. */
static void mpt__extents_gather(mpt_context *ctx) {
    for (int i = MPT__POOL_FINE; MPT__POOL_HAS_FINE && i < MPT__SIZE_CLASSES; i++)
        for (uint32_t id; (id = ctx->idle[i]) != 0;) {
            ctx->idle[i] = ctx->storages[id].next_free;
            mpt__extent_give(ctx, ctx->data[id]);
            ctx->data[id] = NULL;
            mpt__storage_spare(ctx, id);
        }
}

/* Whether it is a whole allocation. */
static bool mpt__extent_whole(const mpt_context *ctx, const mpt__extent *extent) {
    return extent->first &&
        (extent + 1 == ctx->extents + ctx->extent_count || extent[1].first);
}

/* Gives whole idle allocations back, the oldest first, until that many bytes are. */
static void mpt__extents_trim(mpt_context *ctx, int64_t bytes) {
    mpt__extents_gather(ctx);
    for (int64_t at = 0; at < ctx->extent_count && bytes > 0;) {
        const mpt__extent extent = ctx->extents[at++];
        if (!extent.idle || !mpt__extent_whole(ctx, &ctx->extents[at - 1])) continue;
        mpt__extent_remove(ctx, --at);
        mpt__device_free(ctx, extent.data, extent.bytes);
        bytes -= extent.bytes;
    }
}

/* The idle one to cut: cut ones go before whole ones, then small before large.
   Within a limit what is whole stays so: it can go back. */
static mpt__extent *mpt__extent_best(const mpt_context *ctx, int64_t bytes) {
    mpt__extent *best = NULL;
    bool best_whole = true;
    for (mpt__extent *e = ctx->extents; e < ctx->extents + ctx->extent_count; e++) {
        const bool whole = e->bytes > bytes && mpt__extent_whole(ctx, e);
        if (!e->idle || e->bytes < bytes || (whole && ctx->base.memory_limit > 0)) continue;
        if (best && (whole == best_whole ? e->bytes >= best->bytes : whole)) continue;
        best = e, best_whole = whole;
    }
    return best;
}

/* Idle allocations make way for a larger one, so often only while no more is in use than before:
   what repeats itself comes to rest. */
static void mpt__extents_make_way(mpt_context *ctx, int64_t bytes) {
    const int64_t peak = ctx->base.memory.total_peak;
    if (ctx->extents_peak != peak) ctx->extents_peak = peak, ctx->extents_moved = 0;
    if (ctx->extents_moved++ < MPT__POOL_MOVES) mpt__extents_trim(ctx, bytes);
}

static void *mpt__extent_take(mpt_context *ctx, int64_t bytes, mpt_memory_kind kind) {
    if (!mpt__room(ctx, ctx->extents, ctx->extent_capacity, ctx->extent_count + 1)) return NULL;
    mpt__extents_gather(ctx);
    mpt__extent *best = mpt__extent_best(ctx, bytes);
    if (!best) {
        mpt__extents_make_way(ctx, bytes);
        char *data = (char *)mpt__device_new(ctx, bytes, kind);
        if (data) mpt__extent_insert(ctx, ctx->extent_count, data, bytes)->first = true;
        return data;
    }
    best->idle = false;
    if (best->bytes > bytes)
        mpt__extent_insert(ctx, best - ctx->extents + 1, best->data + bytes, best->bytes - bytes)
            ->idle = true;
    best->bytes = bytes;
    return best->data;
}
#endif

/* Gives idle memory back. */
static void mpt__pool_trim(mpt_context *ctx) {
    mpt__workspace_free(ctx);
    mpt__extents_trim(ctx, INT64_MAX);
    for (int i = 0; i < MPT__SIZE_CLASSES; i++) {
        uint32_t id = ctx->idle[i];
        for (uint32_t next; id; id = next) {
            next = ctx->storages[id].next_free;
            mpt__device_free(ctx, ctx->data[id], mpt__class_bytes(i));
            ctx->data[id] = NULL;
            mpt__storage_spare(ctx, id);
        }
        ctx->idle[i] = 0;
    }
}

/* A row of the table of storages that has no memory; 0 on error. */
static MPT__FORCE_INLINE uint32_t mpt__storage_row(mpt_context *ctx) {
    uint32_t id = ctx->free_storage;
    if (id) {
        ctx->free_storage = ctx->storages[id].next_free;
        return id;
    }
    int64_t need = ctx->storage_count + 1;
    bool ok = mpt__room(ctx, ctx->storages, ctx->storage_capacity, need) &&
        mpt__room(ctx, ctx->data, ctx->data_capacity, need);
    return ok ? (uint32_t)ctx->storage_count++ : 0;
}

static MPT__FORCE_INLINE void mpt__idle_give(mpt_context *ctx, mpt__storage *storage, uint32_t id) {
    uint32_t *list = &ctx->idle[storage->size_class];
    storage->next_free = *list;
    *list = id;
}

static MPT__FORCE_INLINE uint32_t mpt__idle_pop(mpt_context *ctx, int size_class) {
    uint32_t id = ctx->idle[size_class];
    if (id) ctx->idle[size_class] = ctx->storages[id].next_free;
    return id;
}

/* A row with new memory. */
static MPT__NOINLINE uint32_t mpt__idle_new(
    mpt_context *ctx, int size_class, mpt_memory_kind kind) {
    uint32_t id = mpt__storage_row(ctx);
    if (!id) return 0;
    ctx->storages[id].size_class = (uint16_t)size_class;
    ctx->storages[id].held = mpt__class_bytes(size_class);
    const int64_t bytes = mpt__class_bytes(size_class);
    ctx->data[id] = mpt__in_extents(size_class) ? mpt__extent_take(ctx, bytes, kind)
                                               : mpt__device_new(ctx, bytes, kind);
    if (!ctx->data[id]) mpt__storage_spare(ctx, id);
    return ctx->data[id] ? id : 0;
}

static MPT__NOINLINE uint32_t mpt__idle_above(mpt_context *ctx, int wanted, mpt_memory_kind kind) {
    const mpt_memory_stats *memory = &ctx->base.memory;
    int reach = mpt__in_extents(wanted) ? 0 : ctx->pool_reach;
    if (mpt__recomputes(ctx) ||
        (MPT__POOL_HAS_FINE && memory->held - memory->total_current <= memory->total_peak / 8))
        reach /= 8;
    int last = wanted + reach;
    if (MPT__POOL_HAS_FINE && wanted < MPT__POOL_FINE && last > MPT__POOL_FINE)
        last += 3 * (last - MPT__POOL_FINE); /* which are four times as many */
    for (int i = wanted + 1; i <= last; i++)
        if (ctx->idle[i]) return mpt__idle_pop(ctx, i);
    return mpt__idle_new(ctx, wanted, kind);
}

/* A row with memory for `bytes`: idle memory of this class or one little above, else new. */
static MPT__FORCE_INLINE uint32_t mpt__idle_take(
    mpt_context *ctx, int64_t bytes, mpt_memory_kind kind) {
    int wanted = mpt__size_class(bytes);
    uint32_t id = mpt__idle_pop(ctx, wanted);
    return id ? id : mpt__idle_above(ctx, wanted, kind);
}

#ifndef MPTRAIN_NO_WATCH
/* Memory without a row, for what anomaly mode computes again; it must go back by mpt__pool_give,
   which then finds the row that is spare meanwhile. */
static void *mpt__pool_take(
    mpt_context *ctx, int64_t bytes, mpt_memory_kind kind, int *size_class) {
    uint32_t id = mpt__idle_take(ctx, bytes, kind);
    if (!id) return NULL;
    void *pointer = ctx->data[id];
    *size_class = ctx->storages[id].size_class;
    ctx->data[id] = NULL;
    mpt__storage_spare(ctx, id);
    return pointer;
}
#endif

static void mpt__pool_give(mpt_context *ctx, void *pointer, int size_class) {
    uint32_t id = ctx->free_storage;
    if (!id) {
        if (mpt__in_extents(size_class))
            mpt__extent_give(ctx, pointer);
        else
            mpt__device_free(ctx, pointer, mpt__class_bytes(size_class));
        return;
    }
    mpt__storage *storage = &ctx->storages[id];
    ctx->free_storage = storage->next_free;
    ctx->data[id] = pointer;
    storage->size_class = (uint16_t)size_class;
    storage->held = mpt__class_bytes(size_class);
    mpt__idle_give(ctx, storage, id);
}

/* ==== Launches ==== */

/* What the launches from here on come from, but for their record. */
static MPT__FORCE_INLINE void mpt__launch_origin(mpt_context *ctx, mpt__phase phase, int op) {
    ctx->launch.phase = (uint8_t)phase;
    ctx->launch.op = (uint16_t)op;
}

/* The context's launch, cleared but for its origin. */
static MPT__FORCE_INLINE mpt__launch *mpt__launch_begin(mpt_context *ctx, mpt__kernel kernel) {
    mpt__launch *launch = &ctx->launch; /* field by field: a memset of it all costs more */
    launch->kernel = (uint16_t)kernel;
    launch->n_operands = launch->function = launch->activation = launch->reduction = 0;
    launch->compute_dtype = MPT_F32;
    memset(launch->slot, 0, sizeof launch->slot);
    memset(launch->imm, 0, sizeof launch->imm);
    memset(launch->index, 0, sizeof launch->index);
    mpt__zero(launch->rng);
    return launch;
}

/* The operand at a position, still to be set; what is left out before it is none. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_at(mpt__launch *launch, int position) {
    int n = launch->n_operands;
    for (; n < position; n++) launch->operand[n].storage = 0;
    if (n == position) launch->n_operands = (uint8_t)(n + 1);
    return &launch->operand[position];
}

static MPT__FORCE_INLINE void mpt__operand_set(
    mpt__operand *operand, uint32_t storage, int dtype, mpt__access access) {
    operand->storage = storage;
    operand->dtype = (uint8_t)dtype;
    operand->access = (uint8_t)access;
    operand->scale_slot = operand->amax_slot = -1;
}

/* Copies at least `rank` of the MPT_MAX_RANK dimensions that both have room for. The first two one
   by one: a vector load of what scalar stores have just written waits for them. */
static MPT__FORCE_INLINE void mpt__copy_dims(int64_t *to, const int64_t *from, int rank) {
    to[0] = from[0];
    to[1] = from[1];
    if (rank > 2) memcpy(to + 2, from + 2, (MPT_MAX_RANK - 2) * sizeof *to);
}

static MPT__FORCE_INLINE void mpt__shape_copy(mpt_shape *to, const mpt_shape *from) {
    to->rank = from->rank;
    mpt__copy_dims(to->dim, from->dim, from->rank);
}

/* An operand on a tensor, of a rank of its own; its dimensions are still to be set. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_ranked(
    mpt__launch *launch, int position, const mpt__tensor *tensor, int rank, mpt__access access) {
    mpt__operand *operand = mpt__operand_at(launch, position);
    mpt__operand_set(operand, tensor->storage, tensor->dtype, access);
    operand->rank = (uint8_t)rank;
    operand->offset = tensor->offset;
    return operand;
}

/* Describes a tensor, in line for what small nets do in each step. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_inline(
    mpt__launch *launch, int position, const mpt__tensor *tensor, mpt__access access) {
    mpt__operand *operand =
        mpt__operand_ranked(launch, position, tensor, tensor->shape.rank, access);
    mpt__copy_dims(operand->shape, tensor->shape.dim, tensor->shape.rank);
    mpt__copy_dims(operand->stride, tensor->stride, tensor->shape.rank);
    return operand;
}

static MPT__NOINLINE mpt__operand *mpt__operand_show(
    mpt__operand *operand, const mpt__tensor *tensor, mpt__access access) {
    mpt__operand_set(operand, tensor->storage, tensor->dtype, access);
    operand->rank = (uint8_t)tensor->shape.rank;
    operand->offset = tensor->offset;
    mpt__copy_dims(operand->shape, tensor->shape.dim, tensor->shape.rank);
    mpt__copy_dims(operand->stride, tensor->stride, tensor->shape.rank);
    return operand;
}

/* Describes a tensor; shape and strides may be changed afterwards. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_of(
    mpt__launch *launch, int position, const mpt__tensor *tensor, mpt__access access) {
    return mpt__operand_show(mpt__operand_at(launch, position), tensor, access);
}
#define mpt__reads(launch, position, tensor) mpt__operand_of(launch, position, tensor, MPT__READ)
#define mpt__writes(launch, position, tensor) mpt__operand_of(launch, position, tensor, MPT__WRITE)

/* `count` elements of a storage in a row. */
static MPT__FORCE_INLINE mpt__operand *mpt__operand_on(mpt__launch *launch, int position,
    uint32_t storage, mpt_dtype dtype, int64_t offset, int64_t count, mpt__access access) {
    mpt__operand *operand = mpt__operand_at(launch, position);
    mpt__operand_set(operand, storage, (int)dtype, access);
    operand->rank = 1;
    operand->offset = offset;
    operand->shape[0] = count;
    operand->stride[0] = 1;
    return operand;
}

/* Turns the device error word, once it can be read, into the sticky error; gives the status. */
static MPT__COLD mpt_status mpt__fail_device(mpt_context *ctx) {
    const mpt__scalar *scalars = ctx->scalars;
    mpt_status status = (mpt_status)scalars[MPT__SLOT_ERROR].i;
    int64_t index = scalars[MPT__SLOT_ERROR_INDEX].i, launch = scalars[MPT__SLOT_ERROR_LAUNCH].i;
    int64_t size = scalars[MPT__SLOT_ERROR_SIZE].i;
    const mpt__scalar value = scalars[MPT__SLOT_ERROR_VALUE];
    char position[48] = "";
#ifndef MPTRAIN_NO_WATCH
    if (status == MPT_ERROR_NUMERIC && index < 0)
        return mpt__error_of(ctx, status,
            "the norm of the gradients is %g (launch %lld); no step was taken; "
            "mpt_anomaly_mode finds the op, mpt_error_if_nonfinite lets it pass",
            value.f, launch);
#endif
    if (status == MPT_ERROR_NUMERIC)
        return mpt__error_of(ctx, status,
            "element %lld of the input is not in [0, 1] but %g (launch %lld); "
            "mpt_binary_cross_entropy_with_logits takes logits",
            index, value.f, launch);
    if (index < 0)
        return mpt__error_of(ctx, status,
            "element %lld of the indices is %lld: expected 0 to %lld (launch %lld)", -1 - index,
            value.i, size - 1, launch);
    if (scalars[MPT__SLOT_ERROR_POSITION].i >= 0)
        mpt__format_text(
            position, sizeof position, ", position %lld", scalars[MPT__SLOT_ERROR_POSITION].i);
    return mpt__error_of(ctx, status,
        "target of sample %lld%s is %lld: expected a class number of 0 to %lld "
        "(launch %lld); check the labels, or name them with ignore_index",
        index, position, value.i, size - 1, launch);
}

#ifndef MPTRAIN_NO_WATCH
static MPT__COLD void mpt__note_clipped(mpt_context *ctx) {
    const mpt__scalar *scalars = ctx->scalars;
    int64_t slot = scalars[MPT__SLOT_CLIPPED].i;
    if (ctx->warned_clipped || scalars[slot].i <= scalars[MPT__SLOT_CLIPPED_AT].i) return;
    ctx->warned_clipped = true;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "mpt_clip_grad_norm: the norm was infinite or NaN, which makes gradients 0 or NaN, "
        "and a step took them; look at the norm and leave that step out, use a scaler, or "
        "leave mpt_error_if_nonfinite on; mpt_anomaly_mode finds the op");
}
#endif

/* Says once that a step took gradients that were clipped by a norm that is not finite: known on the
   device, and told where the host has what it knows anyway. */
static MPT__INLINE void mpt__check_clipped(mpt_context *ctx) {
#ifdef MPTRAIN_NO_WATCH
    (void)ctx;
#else
    if (ctx->scalars && ctx->scalars[MPT__SLOT_CLIPPED].i != 0) mpt__note_clipped(ctx);
#endif
}

static mpt_status mpt__check_device(mpt_context *ctx) {
    mpt__check_clipped(ctx);
    bool well = !ctx->scalars || ctx->scalars[MPT__SLOT_ERROR].i == 0;
    return MPT__LIKELY(well) ? ctx->base.status : mpt__fail_device(ctx);
}

/* Nothing is written that is shared; with config.debug, every element that an operand names lies in
   its storage. */
static MPT__COLD mpt_status mpt__check_operands(mpt_context *ctx, const mpt__launch *launch) {
#ifndef MPTRAIN_NO_WATCH
    if (mpt__launches_refused(ctx, launch, 1) || !ctx->config.debug) return ctx->base.status;
#endif
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *operand = &launch->operand[i];
        if (!operand->storage) continue;
        const mpt__storage *storage = &ctx->storages[operand->storage];
        int64_t last = operand->offset;
        bool empty = false;
        for (int d = 0; d < operand->rank; d++) {
            if (operand->shape[d] > 0) last += (operand->shape[d] - 1) * operand->stride[d];
            empty |= operand->shape[d] == 0;
        }
        if (empty) continue;
        int64_t width = mpt__dtype_info[operand->dtype].bytes;
        bool inside = operand->offset >= 0 && (last + 1) * width <= storage->bytes;
        if (storage->live && inside) continue;
        return mpt__error(ctx, DEVICE,
            "launch %lld (kernel %d): operand %d reaches element %lld of a storage "
            "of %lld bytes; this is a defect of mptrain",
            launch->number, (int)launch->kernel, i, last, storage->bytes);
    }
    return MPT_OK;
}

/* The scratch memory of a launch, counted for the peak; NULL on error. */
static MPT__NOINLINE void *mpt__launch_workspace(mpt_context *ctx, int64_t bytes) {
    void *workspace = mpt__workspace(ctx, bytes);
    if (!workspace) return NULL;
    mpt__account(&ctx->base, MPT_MEMORY_WORKSPACE, bytes);
    mpt__account_less(&ctx->base, MPT_MEMORY_WORKSPACE, bytes);
    return workspace;
}

static MPT__INLINE mpt__scalar *mpt__device_scalars(mpt_context *ctx) {
    return (mpt__scalar *)ctx->data[ctx->scalar_storage];
}

/* Elementwise launches on channels last: H and W as one dimension where all operands allow it, and,
   where the result lies so, channels as the last one: loops then run along memory. */
static MPT__NOINLINE void mpt__launch_order(mpt__launch *launch) {
    int n = launch->n_operands, last = launch->operand[n - 1].stride[1] == 1;
    bool merges = true;
    for (int i = 0; i < n; i++) {
        const mpt__operand *o = &launch->operand[i];
        merges = merges && o->stride[2] == o->shape[3] * o->stride[3];
    }
    for (int i = 0; i < n; i++) {
        mpt__operand *o = &launch->operand[i];
        int64_t channels = o->shape[1], step = o->stride[1];
        if (merges) {
            o->rank = 3;
            o->shape[2] *= o->shape[3], o->stride[2] = o->stride[3];
        }
        for (int d = 1; last && d < o->rank; d++) {
            bool end = d == o->rank - 1;
            o->shape[d] = end ? channels : o->shape[d + 1];
            o->stride[d] = end ? step : o->stride[d + 1];
        }
    }
}

/* The host's share of a launch computes as the CPU's kernels do, which see to that themselves. */
static MPT__NOINLINE mpt_status mpt__launch_plainly(
    const mpt__backend *backend, const mpt__execution *execution, const mpt__launch *launch) {
    MPT__PLAIN_FLOATS;
    return backend->launch(backend->self, execution, launch);
}

static MPT__NOINLINE int64_t mpt__workspace_plainly(
    const mpt__backend *backend, const mpt__launch *launch) {
    MPT__PLAIN_FLOATS;
    return backend->workspace(backend->self, launch);
}

/* Runs a launch, its operands set. */
static MPT__NOINLINE mpt_status mpt__submit(mpt_context *ctx, mpt__launch *launch) {
    mpt__backend *backend = &ctx->backend;
    mpt__wait_no_more(ctx);
    if (!mpt__ok(ctx)) return ctx->base.status;
    launch->number = ++ctx->counters.launches;
    if (launch->kernel <= MPT__K_BINARY && launch->operand[0].rank == 4 &&
        (launch->operand[0].stride[1] == 1 ||
            launch->operand[launch->n_operands - 1].stride[1] == 1))
        mpt__launch_order(launch);
    if (ctx->checks && mpt__check_operands(ctx, launch) != MPT_OK) return ctx->base.status;
    mpt__execution execution = {ctx->data, mpt__device_scalars(ctx), NULL};
    launch->workspace = !backend->workspace ? 0
        : backend->synchronous              ? backend->workspace(backend->self, launch)
                                            : mpt__workspace_plainly(backend, launch);
    if (launch->workspace > 0) {
        execution.workspace = mpt__launch_workspace(ctx, launch->workspace);
        if (!execution.workspace) return ctx->base.status;
    }
    mpt__tell_watchers(ctx, MPT__LAUNCHES, launch);
    mpt_status status = backend->synchronous ? backend->launch(backend->self, &execution, launch)
                                             : mpt__launch_plainly(backend, &execution, launch);
    if (status != MPT_OK) return mpt__backend_error(ctx, status);
    mpt__tell(ctx, MPT__LAUNCHED, launch);
    bool well = !backend->synchronous || execution.scalars[MPT__SLOT_ERROR].i == 0;
    return MPT__LIKELY(well) ? ctx->base.status : mpt__fail_device(ctx);
}

static mpt_status mpt__launch_fill(mpt_context *ctx, const mpt__tensor *tensor, double value) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FILL);
    launch->imm[0] = value;
    mpt__writes(launch, 0, tensor);
    return mpt__submit(ctx, launch);
}

static mpt_status mpt__launch_copy(
    mpt_context *ctx, const mpt__tensor *from, const mpt__tensor *to, mpt__access access) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_COPY);
    mpt__reads(launch, 0, from);
    mpt__operand_of(launch, 1, to, access);
    return mpt__submit(ctx, launch);
}

/* ==== Storages ==== */

static void mpt__storage_retain(mpt_context *ctx, uint32_t storage) {
    ctx->storages[storage].references++;
}

/* The end of a storage that a recording names or that is not the pool's. */
static MPT__NOINLINE void mpt__storage_end(mpt_context *ctx, uint32_t id) {
    const mpt__storage *storage = &ctx->storages[id];
    void *data = ctx->data[id];
    ctx->data[id] = NULL;
    if (storage->source != MPT__BORROWED && storage->source != MPT__OTHERS)
        mpt__account_less(&ctx->base, (mpt_memory_kind)storage->kind, storage->held);
    if (storage->source == MPT__FROM_POOL)
        mpt__pool_give(ctx, data, storage->size_class);
    else if (storage->source == MPT__FROM_DEVICE)
        mpt__device_free(ctx, data, storage->held);
#ifndef MPTRAIN_NO_WATCH
    else if (storage->source >= MPT__LENT)
        mpt__share_end(ctx, id);
#endif
    if (ctx->retire)
        ctx->retire(ctx, id);
    else
        mpt__storage_spare(ctx, id);
}

static MPT__INLINE void mpt__storage_release(mpt_context *ctx, uint32_t id) {
    mpt__storage *storage = &ctx->storages[id];
    if (--storage->references > 0) return;
    storage->live = 0;
    if (storage->source != MPT__FROM_POOL || ctx->retire) {
        mpt__storage_end(ctx, id);
        return;
    }
    mpt__account_less(&ctx->base, (mpt_memory_kind)storage->kind, storage->held);
    mpt__idle_give(ctx, storage, id);
}

/* Counts a row's memory and makes it a storage with one reference. */
static MPT__FORCE_INLINE void mpt__storage_start(mpt_context *ctx, uint32_t id, int64_t bytes,
    mpt_memory_kind kind, mpt__storage_source source) {
    mpt__storage *storage = &ctx->storages[id];
    storage->bytes = bytes;
    storage->references = 1;
    storage->recordings = 0;
    storage->version = 0;
    storage->source = (uint8_t)source;
    storage->kind = (uint8_t)kind;
    storage->live = 1;
#ifndef MPTRAIN_NO_FRUGAL
    storage->made = ctx->region_count;
#endif
    mpt__account(&ctx->base, kind, storage->held);
}

/* A storage of unset values (zero: set to 0). 0 on error. */
static uint32_t mpt__storage_new(
    mpt_context *ctx, int64_t bytes, mpt_memory_kind kind, mpt__storage_source source, bool zero) {
    int64_t held = bytes > 0 ? bytes : 1;
    bool pooled = source == MPT__FROM_POOL;
    uint32_t id = pooled ? mpt__idle_take(ctx, held, kind) : mpt__storage_row(ctx);
    if (!id) return 0;
    if (!pooled) {
        ctx->data[id] = mpt__device_new(ctx, held, kind);
        ctx->storages[id].held = held;
        if (!ctx->data[id]) {
            mpt__storage_spare(ctx, id);
            return 0;
        }
    }
    mpt__storage_start(ctx, id, bytes, kind, source);
    if (zero && bytes > 0) {
        mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_FILL);
        mpt__operand_on(launch, 0, id, MPT_U8, 0, bytes, MPT__WRITE);
        if (mpt__submit(ctx, launch) != MPT_OK) {
            mpt__storage_release(ctx, id);
            return 0;
        }
    }
    return id;
}

/* A storage over the caller's memory. */
static uint32_t mpt__storage_wrap(mpt_context *ctx, void *data, int64_t bytes) {
    uint32_t id = mpt__storage_row(ctx);
    if (!id) return 0;
    mpt__storage *storage = &ctx->storages[id];
    mpt__zero(*storage);
    ctx->data[id] = data;
    storage->bytes = bytes;
    storage->references = 1;
    storage->source = MPT__BORROWED;
    storage->live = 1;
    return id;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__region_read(ctx) ((void)0)
#else
/* Something outside the graph reads what the regions under way make. */
static void mpt__region_read(mpt_context *ctx) {
    for (mpt__region *region = ctx->region; region; region = region->above) region->whole = true;
}
#endif

/* A replay, or who else does as one, wrote a storage: masters that agreed with it still do. */
static void mpt__values_replayed(mpt_context *ctx, uint32_t storage) {
    for (int64_t i = 0; i < ctx->block_count; i++) {
        mpt__block *block = &ctx->blocks[i];
        if (block->values == storage) block->updates[0]++, block->updates[1]++;
    }
}

/* Waits for the device and turns its error word into the sticky error. */
static void mpt__wait(mpt_context *ctx) {
    mpt__backend *backend = &ctx->backend;
    if (backend->synchronous) return;
    mpt_status status = backend->download(backend->self, ctx->scalars, mpt__device_scalars(ctx),
        MPT__SLOT_COUNT * sizeof(mpt__scalar));
    if (status != MPT_OK) {
        mpt__backend_error(ctx, status);
        return;
    }
    ctx->landing[0] = ctx->landing[1] = 0; /* what is newer is there */
    mpt__check_device(ctx);
}

/* Bytes of host memory into or out of a storage, in order with launches; downloads wait. */
static mpt_status mpt__upload(
    mpt_context *ctx, uint32_t storage, int64_t byte_offset, const void *source, int64_t bytes) {
    if (bytes == 0) return MPT_OK;
    mpt__wait_no_more(ctx);
#ifndef MPTRAIN_NO_WATCH
    if (ctx->share_count > 0 && mpt__share_refuses(ctx, storage, byte_offset))
        return ctx->base.status;
#endif
    mpt__backend *backend = &ctx->backend;
    mpt_status status = backend->upload(
        backend->self, (char *)ctx->data[storage] + byte_offset, source, (size_t)bytes);
    if (status != MPT_OK) return mpt__backend_error(ctx, status);
    ctx->host_writes++;
    ctx->storages[storage].version++;
    return MPT_OK;
}

static mpt_status mpt__download(
    mpt_context *ctx, void *destination, uint32_t storage, int64_t byte_offset, int64_t bytes) {
    if (bytes == 0) return MPT_OK;
    mpt__wait_no_more(ctx);
    if (mpt__is_capturing(ctx))
        return mpt__error(ctx, STATE,
            "a captured step cannot wait for values; call mpt_metric_push in it, and "
            "mpt_metric_mean or mpt_item after it");
    mpt__region_read(ctx);
    mpt__backend *backend = &ctx->backend;
    mpt_status status = backend->download(
        backend->self, destination, (char *)ctx->data[storage] + byte_offset, (size_t)bytes);
    if (status != MPT_OK) return mpt__backend_error(ctx, status);
    mpt__wait(ctx);
    return mpt__check_device(ctx);
}

#endif
