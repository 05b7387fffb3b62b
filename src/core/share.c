/* ----
 * core/share.c: memory that several contexts read.
 *
 * What a context lends belongs, from then on, to all that have it, and goes back to the allocator
 * that it came from with the last of them, on whatever thread that ends. As long as there are two,
 * nobody may write it: launches, uploads and whoever asks before are refused.
 * ---- */
#ifndef MPT__CORE_SHARE_INCLUDED
#define MPT__CORE_SHARE_INCLUDED

#include "core/events.c"

#ifdef MPTRAIN_NO_WATCH
#define mpt__writing_refused(ctx, storage) false
#define mpt__launches_refused(ctx, launches, count) false
#else

struct mpt__shared {
    int64_t holders; /* storages of all contexts; atomic */
    void *data;
    int64_t bytes;
    mpt_allocator allocator; /* of the first lender, for a CPU's memory and for this */
};

static mpt__share_entry *mpt__share_of(mpt_context *ctx, uint32_t storage) {
    mpt__share_entry *share = ctx->shares;
    while (share->storage != storage) share++;
    return share;
}

/* A storage of this context becomes one that others can have, too. NULL with an error recorded. */
static mpt__shared *mpt__share_out(mpt_context *ctx, uint32_t id) {
    if (ctx->storages[id].source >= MPT__LENT) return mpt__share_of(ctx, id)->memory;
    if (!mpt__grow(&ctx->base, &ctx->shares, &ctx->share_capacity, ctx->share_count + 1,
            sizeof *ctx->shares, MPT_MEMORY_HOST))
        return NULL;
    const mpt_allocator allocator = ctx->base.allocator;
    mpt__shared *memory =
        (mpt__shared *)allocator.allocate(allocator.user, sizeof *memory, MPT__ALIGNMENT);
    if (!memory) {
        mpt__fail_memory(&ctx->base, sizeof *memory, MPT_MEMORY_HOST);
        return NULL;
    }
    memory->holders = 1;
    memory->data = ctx->data[id];
    memory->bytes = ctx->storages[id].held;
    memory->allocator = allocator;
    mpt__share_entry *share = &ctx->shares[ctx->share_count++];
    share->storage = id, share->memory = memory;
    ctx->storages[id].source = MPT__LENT;
    ctx->checks = true;
    return memory;
}

/* An unused row of the table of storages becomes that memory, with one reference; the context has
   room for one more share. */
static void mpt__share_in(mpt_context *ctx, uint32_t id, mpt__shared *memory, int64_t bytes) {
    mpt__storage *storage = &ctx->storages[id];
    mpt__zero(*storage);
    ctx->data[id] = memory->data;
    storage->bytes = bytes;
    storage->references = 1;
    storage->source = MPT__OTHERS;
    storage->kind = MPT_MEMORY_PARAMETER;
    storage->live = 1;
    mpt__share_entry *share = &ctx->shares[ctx->share_count++];
    share->storage = id, share->memory = memory;
    mpt__atomic_add64(&memory->holders, 1);
    ctx->checks = true;
}

/* The end of such a storage. What the device still does with it is done before others go on. */
static void mpt__share_end(mpt_context *ctx, uint32_t id) {
    mpt__share_entry *share = mpt__share_of(ctx, id);
    mpt__shared *memory = share->memory;
    const mpt__backend *backend = &ctx->backend;
    *share = ctx->shares[--ctx->share_count];
    ctx->checks = ctx->config.debug || ctx->share_count > 0;
    if (ctx->storages[id].source == MPT__LENT) {
        ctx->base.memory.held -= memory->bytes;
        ctx->base.memory.releases++;
    }
    if (!backend->synchronous) backend->synchronize(backend->self);
    if (mpt__atomic_add64(&memory->holders, -1) > 1) return;
    const mpt_allocator allocator = memory->allocator;
    if (backend->release)
        backend->release(backend->self, memory->data, (size_t)memory->bytes);
    else
        allocator.release(allocator.user, memory->data, (size_t)memory->bytes, MPT__ALIGNMENT);
    allocator.release(allocator.user, memory, sizeof *memory, MPT__ALIGNMENT);
}

/* The parameter whose values hold that byte; NULL: it is none. */
static const mpt__parameter *mpt__share_parameter(
    const mpt_context *ctx, uint32_t storage, int64_t byte) {
    for (int64_t i = 0; i < ctx->parameter_count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[i];
        if (parameter->live && parameter->tensor && parameter->tensor->storage == storage &&
            byte < (parameter->tensor->offset + parameter->numel) *
                    mpt__dtype_info[parameter->tensor->dtype].bytes)
            return parameter;
    }
    return NULL;
}

/* Whether a storage is one that must not be written now, with an error recorded. */
static MPT__COLD bool mpt__share_refuses(mpt_context *ctx, uint32_t id, int64_t byte) {
    const mpt__storage *storage = &ctx->storages[id];
    if (!id || storage->source < MPT__LENT) return false;
    int64_t others = mpt__atomic_add64(&mpt__share_of(ctx, id)->memory->holders, 0) - 1;
    if (storage->source == MPT__LENT && others == 0) return false;
    const mpt__parameter *parameter = mpt__share_parameter(ctx, id, byte);
    const char *kind = parameter ? "parameter " : "a buffer";
    const char *path = parameter ? parameter->path : "";
    if (storage->source == MPT__OTHERS)
        mpt__error(ctx, STATE,
            "%s%s is borrowed from another context (mpt_share_module) and read only; train "
            "or load a net of its own, and share that",
            kind, path);
    else
        mpt__error(ctx, STATE,
            "%s%s is lent to %lld other module%s (mpt_share_module), which may be reading "
            "it; destroy those first, or train and load another net",
            kind, path, others, others == 1 ? "" : "s");
    return true;
}

#define mpt__writing_refused(ctx, storage) \
    ((ctx)->share_count > 0 && mpt__share_refuses(ctx, storage, 0))

/* Whether launches, recorded before or about to run, would write such a storage. */
static MPT__COLD bool mpt__launches_refused(
    mpt_context *ctx, const mpt__launch *launches, int64_t count) {
    for (int64_t i = 0; i < count && ctx->share_count > 0; i++)
        for (int k = 0; k < launches[i].n_operands; k++) {
            const mpt__operand *operand = &launches[i].operand[k];
            if (operand->access != MPT__READ &&
                mpt__share_refuses(
                    ctx, operand->storage, operand->offset * mpt__dtype_info[operand->dtype].bytes))
                return true;
        }
    return false;
}
#endif

#endif
