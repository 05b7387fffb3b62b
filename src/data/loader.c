/* ----
 * data/loader.c: batches from a dataset, shuffled, converted, made ahead by worker threads.
 *
 * Batches lie in a ring of slots, allocated when the loader is made. A worker claims the number of
 * the next batch, fills its slot and marks it ready; the owner takes batches in order. What a batch
 * holds depends on (seed, epoch, number) alone. Workers allocate nothing and touch neither log nor
 * error: what went wrong travels in the slot and is reported in its turn.
 * ---- */
#ifndef MPT__DATA_LOADER_INCLUDED
#define MPT__DATA_LOADER_INCLUDED

#include "data/dataset.c"

#define MPT__MAX_WORKERS 64
#define MPT__MAX_PREFETCH 1024
#define MPT__SAMPLES_AHEAD 3 /* that are fetched while one is converted */
#define MPT__SAMPLES_CHUNK 4
#define MPT__SAMPLE_COST 60 /* ns of one core, about */
#ifdef MPTRAIN_NO_THREADS
#define MPT__HAS_WORKERS 0
#else
#define MPT__HAS_WORKERS 1
#endif

#define MPT__LOADER_STREAM UINT64_C(0x6f72646572)   /* "order" */
#define MPT__SAMPLE_STREAM UINT64_C(0x73616d706c65) /* "sample" */
#define MPT__WEIGHT_STREAM UINT64_C(0x776569676874) /* "weight" */
#define MPT__COLLATE_STREAM UINT64_C(0x6d6978)      /* "mix" */

/* Inputs and targets of a batch. */
enum { MPT__BATCH_X, MPT__BATCH_Y, MPT__BATCH_PARTS };

/* Room for a batch. Between claim and ready it is a worker's, else the owner's. */
typedef struct {
    uint32_t storage[MPT__BATCH_PARTS]; /* 0: a part that there is not */
    void *memory[MPT__BATCH_PARTS];     /* where workers write: the storage's own, or a stage */
    bool locked[MPT__BATCH_PARTS];      /* a stage of the backend: in use until it is settled */
    bool ready;
    int64_t size;    /* samples made */
    int64_t failed;  /* the first that could not be made, -1 = none */
    int64_t skipped; /* how many were left out for that */
    bool collate_failed;
    int worker;          /* that made it, from 1; 0: the owner has */
    double began, ended; /* when; 0 where the clock is not the system's */
    char error[MPT__SAMPLE_ERROR];
} mpt__loader_slot;

typedef struct mpt__loader mpt__loader;

typedef struct {
    mpt__loader *loader;
    void *thread;
    uint8_t *scratch; /* may be NULL; of a sample, then of a batch's targets for collate */
    int64_t samples;  /* under the mutex */
} mpt__worker;

struct mpt__loader {
    mpt__id id;
    mpt__base *base;
    mpt__dataset *dataset; /* referenced */
    mpt_loader_config config;
    mpt__pool *pool; /* makes batches without workers; NULL: the calling thread alone */
    mpt__delivery delivery;
    int64_t batches, samples; /* per epoch */
    int64_t total;            /* samples of all ranks */
    mpt_dtype target_dtype;   /* delivered */
    mpt_shape target_shape;
    bool remakes;                          /* collate makes other targets */
    int64_t *order;                        /* of the epoch; NULL without shuffling */
    double *weight_sums;                   /* of the samples up to each; NULL without weights */
    size_t sample_bytes[MPT__BATCH_PARTS]; /* 0: a part that there is not */

    mpt__loader_slot *slots;
    int64_t slot_count;
    mpt__worker workers[MPT__MAX_WORKERS]; /* 0 is the caller when config.workers is 0 */
    int thread_count;                      /* workers that run */
    uint8_t *scratch;                      /* of all workers, one after the other */
    size_t scratch_bytes;                  /* of one */

    /* Owner only. */
    bool open;           /* an epoch is under way */
    int64_t epoch;       /* of the next batch */
    uint64_t epoch_seed; /* of its samples' seeds */
    int64_t next;        /* number of the next batch in it */
    bool held;           /* batch next - 1 is in the user's hands */
    int64_t delivered, delivered_samples, skipped;
    double seconds_waited;
    uint64_t data_hash; /* of the dataset, where train/state.c has asked for it, or 0 */
    mpt_tensor batch[MPT__BATCH_PARTS]; /* handles of the batch in use; slot 0 = none */

    /* Under the mutex when there are workers. */
    void *mutex, *work, *ready;
    bool stop;
    int64_t claimed; /* batches of the epoch that someone makes or has made */
    int64_t limit;   /* and may be claimed */
    int busy;
};

/* ==== Making batches ==== */

/* Samples in a batch of the epoch. */
static int64_t mpt__batch_size(const mpt__loader *loader, int64_t number) {
    int64_t left = loader->samples - number * loader->config.batch;
    return left < loader->config.batch ? left : loader->config.batch;
}

/* Bytes for making a sample, then a batch's targets of which collate makes others. */
static size_t mpt__loader_scratch(const mpt__dataset *dataset) {
    return (mpt__scratch_bytes(dataset) + 63) / 64 * 64;
}

/* Element i of what may not be there. */
static void *mpt__sample_place(void *memory, int64_t i, size_t bytes) {
    return memory ? (uint8_t *)memory + (size_t)i * bytes : NULL;
}

/* Sample i of this rank's epoch into x and y, or NULL; *index becomes its own number. */
static MPT__NOINLINE bool mpt__batch_sample(const mpt__loader *loader, int64_t i, uint8_t *scratch,
    void *x, void *y, int64_t *index, char error[MPT__SAMPLE_ERROR]) {
    const mpt_loader_config *config = &loader->config;
    int64_t place = (i * config->world + config->rank) % loader->total;
    int64_t soon = place + MPT__SAMPLES_AHEAD * config->world;
    *index = loader->order ? loader->order[place] : place;
    if (loader->order && soon < loader->total)
        mpt__sample_expect(loader->dataset, loader->order[soon]);
    /* A sample that weights draw twice is made in two ways. */
    return mpt__dataset_fetch(loader->dataset, &loader->delivery, *index,
        mpt__hash_u64(loader->epoch_seed, (uint64_t)(loader->weight_sums ? place : *index)),
        scratch, x, y, error);
}

/* A part of a batch whose samples lie in memory: none fails. */
typedef struct {
    const mpt__loader *loader;
    int64_t first, size;
    void *x, *y;
} mpt__batch_work;

static void mpt__batch_chunk(MPT__CHUNK_TAKES) {
    const mpt__batch_work *w = (const mpt__batch_work *)work;
    const mpt__loader *loader = w->loader;
    char error[MPT__SAMPLE_ERROR];
    int64_t i = chunk * MPT__SAMPLES_CHUNK, index;
    int64_t end = i + MPT__SAMPLES_CHUNK < w->size ? i + MPT__SAMPLES_CHUNK : w->size;
    (void)thread;
    for (; i < end; i++)
        mpt__batch_sample(loader, w->first + i, NULL,
            mpt__sample_place(w->x, i, loader->sample_bytes[MPT__BATCH_X]),
            mpt__sample_place(w->y, i, loader->dataset->target_bytes), &index, error);
}

/* Fills a slot, up to or without samples that fail. Any thread. */
static void mpt__batch_make(
    const mpt__loader *loader, mpt__loader_slot *slot, int64_t number, uint8_t *scratch) {
    MPT__PLAIN_FLOATS;
    const mpt_loader_config *config = &loader->config;
    int64_t first = number * config->batch, size = mpt__batch_size(loader, number);
    mpt__pool *pool = MPT__HAS_WORKERS ? loader->pool : NULL;
    char error[MPT__SAMPLE_ERROR];
    void *x = slot->memory[MPT__BATCH_X], *y = slot->memory[MPT__BATCH_Y];
    if (loader->remakes)
        y = loader->dataset->target_bytes ? scratch + mpt__loader_scratch(loader->dataset) : NULL;
    slot->failed = -1;
    slot->size = slot->skipped = 0;
    slot->collate_failed = false;
    if (mpt__is_dry(loader->base)) {
        slot->size = size;
        return;
    }
    if (pool) {
        mpt__batch_work work = {loader, first, size, x, y};
        mpt__parallel(pool, (size + MPT__SAMPLES_CHUNK - 1) / MPT__SAMPLES_CHUNK,
            size * (MPT__SAMPLE_COST + loader->dataset->numel / 2), mpt__batch_chunk, &work);
        slot->size = size;
    }
    for (int64_t i = first, index; !pool && i < first + size; i++) {
        if (mpt__batch_sample(loader, i, scratch,
                mpt__sample_place(x, slot->size, loader->sample_bytes[MPT__BATCH_X]),
                mpt__sample_place(y, slot->size, loader->dataset->target_bytes), &index, error)) {
            slot->size++;
            continue;
        }
        if (slot->failed < 0) memcpy(slot->error, error, sizeof error), slot->failed = index;
        if (!config->skip_bad) break;
        slot->skipped++;
    }
    if (config->collate && slot->size > 0 && (slot->failed < 0 || config->skip_bad)) {
        uint64_t batch = (uint64_t)(number * config->world + config->rank);
        mpt_collation made;
        made.size = slot->size, made.index = number;
        made.seed = mpt__hash_u64(mpt__hash_u64(loader->epoch_seed, MPT__COLLATE_STREAM), batch);
        made.x = x, made.y = y;
        made.out = loader->remakes ? slot->memory[MPT__BATCH_Y] : NULL;
        error[0] = 0;
        slot->collate_failed = !config->collate(config->collate_user, &made, error, sizeof error);
        error[sizeof error - 1] = 0;
        if (slot->collate_failed)
            mpt__format_text(
                slot->error, MPT__SAMPLE_ERROR, "%s", error[0] ? error : "it gave no message");
    }
}

/* ==== Workers ==== */

/* Notes who made the batch and when; only the owner's thread asks a user's clock. */
static void mpt__worker_make(const mpt__worker *worker, mpt__loader_slot *slot, int64_t number) {
    const mpt__loader *loader = worker->loader;
#ifndef MPTRAIN_NO_WATCH
    const mpt_clock *clock = &loader->base->clock;
    const bool tells = clock->now == mpt__system_now;
    slot->worker = (int)(worker - loader->workers) + 1;
    slot->began = tells ? clock->now(clock->user) : 0.0;
#endif
    mpt__batch_make(loader, slot, number, worker->scratch);
#ifndef MPTRAIN_NO_WATCH
    slot->ended = tells ? clock->now(clock->user) : 0.0;
#endif
}

static void mpt__worker_run(void *argument) {
    MPT__PLAIN_FLOATS; /* a new thread has its maker's */
    mpt__worker *worker = (mpt__worker *)argument;
    mpt__loader *loader = worker->loader;
    const mpt_threads *thread = &loader->base->thread;
    thread->mutex_lock(thread->user, loader->mutex);
    for (;;) {
        while (!loader->stop && loader->claimed >= loader->limit)
            thread->condition_wait(thread->user, loader->work, loader->mutex);
        if (loader->stop) break;
        int64_t number = loader->claimed++;
        mpt__loader_slot *slot = &loader->slots[number % loader->slot_count];
        loader->busy++;
        thread->mutex_unlock(thread->user, loader->mutex);
        mpt__worker_make(worker, slot, number);
        thread->mutex_lock(thread->user, loader->mutex);
        worker->samples += mpt__batch_size(loader, number);
        slot->ready = true;
        loader->busy--;
        thread->condition_broadcast(thread->user, loader->ready);
    }
    thread->mutex_unlock(thread->user, loader->mutex);
}

static bool mpt__loader_works(const mpt__loader *loader) {
    return MPT__HAS_WORKERS && loader->thread_count > 0;
}

static void mpt__loader_lock(const mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (mpt__loader_works(loader)) thread->mutex_lock(thread->user, loader->mutex);
}

static void mpt__loader_unlock(const mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (mpt__loader_works(loader)) thread->mutex_unlock(thread->user, loader->mutex);
}

/* Lets workers make the batches before `limit`. Under the mutex. */
static void mpt__loader_allow(mpt__loader *loader, int64_t limit) {
    const mpt_threads *thread = &loader->base->thread;
    loader->limit = limit < loader->batches ? limit : loader->batches;
    if (mpt__loader_works(loader)) thread->condition_broadcast(thread->user, loader->work);
}

/* Ends the epoch under way, once no worker writes any more. */
static void mpt__loader_close_epoch(mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    mpt__loader_lock(loader);
    loader->limit = 0;
    while (MPT__HAS_WORKERS && loader->busy > 0)
        thread->condition_wait(thread->user, loader->ready, loader->mutex);
    mpt__loader_unlock(loader);
    loader->open = false;
    loader->epoch++;
    loader->next = 0;
}

/* Samples with replacement, as likely as their weights. What falls on the edge between two is the
   second one's, as in numpy's choice: the first one's share excludes its upper end. */
static void mpt__loader_draw(mpt__loader *loader, uint64_t seed, uint64_t epoch) {
    mpt__rng_key key = {seed, MPT__WEIGHT_STREAM, epoch};
    const double *sums = loader->weight_sums;
    int64_t last = loader->dataset->count - 1;
    for (int64_t i = 0; i < loader->total; i++) {
        double at = (double)mpt__random_below(key, (uint64_t)i, UINT64_C(1) << 53) *
            (1.0 / 9007199254740992.0) * sums[last];
        int64_t low = 0, high = last;
        while (low < high) {
            int64_t middle = low + (high - low) / 2;
            if (sums[middle] > at)
                high = middle;
            else
                low = middle + 1;
        }
        while (low > 0 && sums[low] == sums[low - 1]) low--; /* the product was rounded up */
        loader->order[i] = low;
    }
}

/* Starts the epoch at its batch number `first`. */
static void mpt__loader_open_epoch(mpt__loader *loader, int64_t first) {
    uint64_t seed = loader->config.seed, epoch = (uint64_t)loader->epoch;
    mpt__rng_key key = {seed, MPT__LOADER_STREAM, epoch};
    if (loader->weight_sums)
        mpt__loader_draw(loader, seed, epoch);
    else if (loader->order)
        mpt__random_permutation(key, loader->dataset->count, loader->order);
    loader->epoch_seed = mpt__hash_u64(mpt__hash_u64(seed, MPT__SAMPLE_STREAM), epoch);
    loader->open = true;
    loader->next = first;
    mpt__loader_lock(loader);
    loader->claimed = first;
    for (int64_t i = 0; i < loader->slot_count; i++) loader->slots[i].ready = false;
    mpt__loader_allow(loader, first + loader->slot_count);
    mpt__loader_unlock(loader);
}

/* The next batch of the epoch, made by a worker or here and now. */
static mpt__loader_slot *mpt__loader_wait(mpt_context *ctx, mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    const mpt_clock *clock = &loader->base->clock;
    mpt__loader_slot *slot = &loader->slots[loader->next % loader->slot_count];
    double start = clock->now(clock->user);
    if (!mpt__loader_works(loader)) {
        mpt__batch_make(loader, slot, loader->next, loader->workers[0].scratch);
        loader->workers[0].samples += mpt__batch_size(loader, loader->next);
    } else {
        mpt__loader_lock(loader);
        while (!slot->ready) thread->condition_wait(thread->user, loader->ready, loader->mutex);
        mpt__loader_unlock(loader);
    }
    const double end = clock->now(clock->user);
    loader->seconds_waited += end - start;
#ifdef MPTRAIN_NO_WATCH
    (void)ctx;
#else
    const int worker = slot->worker + (int)(loader->id.slot - 1) * MPT__MAX_WORKERS;
    const mpt__batch_wait wait = {
        start, end, slot->ended > 0 ? worker : 0, slot->began, slot->ended};
    mpt__tell(ctx, MPT__BATCH_CAME, &wait);
#endif
    return slot;
}

/* ==== Memory of slots ==== */

/* Bytes of a part of a slot. */
static size_t mpt__part_bytes(const mpt__loader *loader, int part) {
    return (size_t)loader->config.batch * loader->sample_bytes[part];
}

#if defined(MPTRAIN_CUDA)
/* Whether workers fill a stage to be uploaded, as they cannot write to the device. */
static bool mpt__slots_staged(const mpt_context *ctx) {
    return (ctx->backend.allocate || !ctx->backend.synchronous) && !mpt__is_dry(&ctx->base);
}

/* Page-locked where it can be, so that the device fetches it by itself. */
static void mpt__stage_make(mpt_context *ctx, mpt__loader_slot *slot, int part, size_t bytes) {
    mpt__base *base = &ctx->base;
    const mpt__backend *backend = &ctx->backend;
    int64_t held = base->memory.held + (int64_t)bytes;
    void *stage = NULL;
    if (backend->stage_new && (base->memory_limit == 0 || held <= base->memory_limit))
        stage = backend->stage_new(backend->self, bytes);
    slot->locked[part] = stage != NULL;
    slot->memory[part] = stage ? stage : mpt__allocate(base, bytes, MPT_MEMORY_BATCH);
    if (!stage) return;
    memset(stage, 0, bytes);
    base->memory.held = held;
    mpt__account(base, MPT_MEMORY_BATCH, (int64_t)bytes);
}

static void mpt__stage_end(mpt_context *ctx, mpt__loader_slot *slot, int part, size_t bytes) {
    mpt__base *base = &ctx->base;
    if (slot->locked[part]) {
        ctx->backend.stage_free(ctx->backend.self, slot->memory[part]);
        base->memory.held -= (int64_t)bytes;
        mpt__account_less(base, MPT_MEMORY_BATCH, (int64_t)bytes);
    } else {
        mpt__release(base, slot->memory[part], bytes, MPT_MEMORY_BATCH);
    }
}

/* Before a slot is filled again its upload is read. The host is a ring ahead at most. */
static void mpt__slot_settle(mpt_context *ctx, const mpt__loader_slot *slot) {
    mpt__backend *backend = &ctx->backend;
    for (int part = 0; part < MPT__BATCH_PARTS; part++)
        if (slot->locked[part] &&
            backend->stage_settle(backend->self, slot->memory[part]) != MPT_OK)
            mpt__error(ctx, DEVICE, "%s", backend->error);
}
#endif

/* ==== Delivery ==== */

/* Ends the handles of the batch in use that the user has not ended. */
static void mpt__batch_end(mpt_context *ctx, mpt__loader *loader) {
#if defined(MPTRAIN_CUDA)
    if (loader->held)
        mpt__slot_settle(ctx, &loader->slots[(loader->next - 1) % loader->slot_count]);
#endif
    for (int part = 0; part < MPT__BATCH_PARTS; part++) {
        mpt__tensor *tensor = mpt__live(ctx, loader->batch[part]);
        if (tensor) mpt__tensor_drop(ctx, tensor);
        loader->batch[part] = mpt__null(ctx);
    }
    loader->held = false;
}

/* Ends the batch in use and gives its slot back to the workers. What backward saved of it counts as
   changed. */
static void mpt__loader_take_back(mpt_context *ctx, mpt__loader *loader) {
    if (!loader->held) return;
    mpt__loader_slot *slot = &loader->slots[(loader->next - 1) % loader->slot_count];
    mpt__batch_end(ctx, loader);
    for (int part = 0; part < MPT__BATCH_PARTS; part++)
        if (slot->storage[part]) ctx->storages[slot->storage[part]].version++;
    mpt__loader_lock(loader);
    slot->ready = false;
    mpt__loader_allow(loader, loader->next + loader->slot_count);
    mpt__loader_unlock(loader);
}

/* A part of a slot as a tensor that only the loader ends; the error null on failure. */
static mpt_tensor mpt__batch_tensor(mpt_context *ctx, const mpt__loader *loader,
    const mpt__loader_slot *slot, int part, int64_t size) {
    const mpt_shape *sample =
        part == MPT__BATCH_X ? &loader->dataset->shape : &loader->target_shape;
    mpt_dtype dtype = part == MPT__BATCH_X ? loader->delivery.to : loader->target_dtype;
    mpt_shape shape;
    shape.rank = sample->rank + 1;
    shape.dim[0] = size;
    for (int i = 0; i < sample->rank; i++) shape.dim[i + 1] = sample->dim[i];
#if defined(MPTRAIN_CUDA)
    if (mpt__slots_staged(ctx) &&
        mpt__upload(ctx, slot->storage[part], 0, slot->memory[part],
            size * (int64_t)loader->sample_bytes[part]) != MPT_OK)
        return mpt__null(ctx);
#endif
    mpt__tensor view = mpt__view_on(slot->storage[part], dtype, &shape, 0);
    return mpt__handle(ctx, mpt__tensor_outside(ctx, &view, MPT__KEPT));
}

static bool mpt__loader_advance(mpt_context *ctx, mpt__loader *loader, mpt_batch *batch) {
    mpt__loader_take_back(ctx, loader);
    if (!loader->open) mpt__loader_open_epoch(loader, 0);
    if (loader->next == loader->batches) {
        mpt__loader_close_epoch(loader);
        return false;
    }
    int64_t number = loader->next;
    const mpt__loader_slot *slot = mpt__loader_wait(ctx, loader);
    int64_t size = slot->size;
    loader->next++;
    loader->held = true;
    batch->index = number;
    const char *why = slot->error[0] ? slot->error : "the dataset gave no message";
    bool skips = slot->failed >= 0 && size > 0 && loader->config.skip_bad;
    if (slot->collate_failed || (slot->failed >= 0 && !skips)) {
        char what[40] = "collate of ";
        if (!slot->collate_failed)
            mpt__format_text(what, sizeof what, "sample %lld (", slot->failed);
        mpt__error(ctx, IO,
            "%sbatch %lld of epoch %lld%s: %s; after mpt_clear_error the loader goes on "
            "with the next batch",
            what, number, loader->epoch, slot->collate_failed ? "" : ")", why);
        mpt__loader_take_back(ctx, loader);
        return false;
    }
    if (skips)
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "batch %lld of epoch %lld: %lld samples left out, the first is %lld: %s", number,
            loader->epoch, slot->skipped, slot->failed, why);
    for (int part = 0; part < MPT__BATCH_PARTS; part++)
        if (slot->storage[part])
            loader->batch[part] = mpt__batch_tensor(ctx, loader, slot, part, size);
    if (!mpt__ok(ctx)) { /* out of memory: the same batch is the next one again */
        mpt__batch_end(ctx, loader);
        loader->next--;
        return false;
    }
    batch->x = loader->batch[MPT__BATCH_X];
    batch->y = loader->batch[MPT__BATCH_Y];
    batch->size = size;
    loader->delivered++;
    loader->delivered_samples += size;
    loader->skipped += slot->skipped;
    return true;
}

MPT__HANDLES(loader, MPT__LOADER)
MPT__HANDLE_AT(loader, MPT__LOADER)

bool mpt_loader_next(mpt_loader handle, mpt_batch *batch) {
    MPT__PLAIN_FLOATS;
    if (batch) {
        mpt__zero(*batch);
        batch->x.context = batch->y.context = handle.context;
    }
    mpt__loader *loader = mpt__loader_enter(handle, "mpt_loader_next");
    if (!loader) return false;
    if (!batch) return mpt__reject(handle.context, ARGUMENT, "batch is NULL");
    return mpt__loader_advance(handle.context, loader, batch);
}

/* ==== Making and ending loaders ==== */

MPT__DEFAULTS(mpt_loader_config, {
    config.batch = 64;
    config.prefetch = 2;
    config.world = 1;
    config.dtype = MPT_F32;
})

/* Ends and joins the workers; safe at any stage of creation. */
static void mpt__loader_stop(mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (!MPT__HAS_WORKERS) return;
    mpt__loader_lock(loader);
    loader->stop = true;
    if (mpt__loader_works(loader)) thread->condition_broadcast(thread->user, loader->work);
    mpt__loader_unlock(loader);
    for (int i = 0; i < loader->thread_count; i++)
        thread->join(thread->user, loader->workers[i].thread);
    if (loader->ready) thread->condition_destroy(thread->user, loader->ready);
    if (loader->work) thread->condition_destroy(thread->user, loader->work);
    if (loader->mutex) thread->mutex_destroy(thread->user, loader->mutex);
}

/* Workers, or the caller in their place. */
static int mpt__loader_makers(const mpt__loader *loader) {
    return loader->config.workers > 0 ? loader->config.workers : 1;
}

static size_t mpt__loader_scratches(const mpt__loader *loader) {
    return (size_t)mpt__loader_makers(loader) * loader->scratch_bytes;
}

/* One loader more or less reads a dataset. */
static void mpt__dataset_loaders(mpt__dataset *dataset, int by) {
    dataset->loaders += by;
    (dataset->parent ? dataset->parent : dataset)->readers += by;
}

/* Frees a loader in any stage of creation. */
static void mpt__loader_free(mpt_context *ctx, void *object) {
    mpt__loader *loader = (mpt__loader *)object;
    mpt__base *base = &ctx->base;
    mpt__loader_stop(loader);
    loader->held = false; /* nobody fills its slot again */
    mpt__batch_end(ctx, loader);
    for (int64_t i = 0; loader->slots && i < MPT__BATCH_PARTS * loader->slot_count; i++) {
        mpt__loader_slot *slot = &loader->slots[i / MPT__BATCH_PARTS];
        int part = (int)(i % MPT__BATCH_PARTS);
        if (!slot->storage[part]) continue;
#if defined(MPTRAIN_CUDA)
        if (mpt__slots_staged(ctx)) mpt__stage_end(ctx, slot, part, mpt__part_bytes(loader, part));
#endif
        mpt__storage_release(ctx, slot->storage[part]);
    }
    mpt__room_free(ctx, loader->slots, loader->slot_count);
    mpt__release(base, loader->scratch, mpt__loader_scratches(loader), MPT_MEMORY_BATCH);
    mpt__release(base, loader->order, (size_t)loader->total * sizeof(int64_t), MPT_MEMORY_BATCH);
    mpt__release(base, loader->weight_sums, (size_t)loader->dataset->count * sizeof(double),
        MPT_MEMORY_BATCH);
    mpt__dataset_loaders(loader->dataset, -1);
    mpt__dataset_release(ctx, loader->dataset);
}

/* Whether each of a loader's parts fits into memory: 32-bit sizes would wrap. False with an error
   recorded. */
static bool mpt__loader_measure(mpt_context *ctx, mpt__loader *loader) {
    const mpt__dataset *dataset = loader->dataset;
    const mpt_loader_config *config = &loader->config;
    int64_t most = PTRDIFF_MAX, batch = config->batch;
    size_t *bytes = loader->sample_bytes;
    int64_t unused;
    if (!mpt__sample_size(ctx, "input", loader->delivery.to, &dataset->shape, batch, &unused,
            &bytes[MPT__BATCH_X]) ||
        (loader->target_dtype != MPT_DTYPE_NONE &&
            !mpt__sample_size(ctx, "target", loader->target_dtype, &loader->target_shape, batch,
                &unused, &bytes[MPT__BATCH_Y])))
        return false;
    uint64_t scratch = mpt__loader_scratch(dataset);
    if (loader->remakes) scratch += (uint64_t)batch * dataset->target_bytes;
    loader->scratch_bytes = (size_t)((scratch + 63) / 64 * 64);
    if (scratch <= (uint64_t)(most / mpt__loader_makers(loader) - 64) &&
        ((!config->shuffle && !config->weights) ||
            loader->total <= most / (int64_t)sizeof(int64_t)))
        return true;
    mpt__fail_memory(&ctx->base, (size_t)most, MPT_MEMORY_BATCH);
    return false;
}

/* All memory of a loader; false with an error recorded. */
static bool mpt__loader_allocate(mpt_context *ctx, mpt__loader *loader) {
    mpt__base *base = &ctx->base;
    const double *weights = loader->config.weights;
    loader->slots =
        (mpt__loader_slot *)mpt__host_new(ctx, (size_t)loader->slot_count * sizeof *loader->slots);
    loader->scratch =
        (uint8_t *)mpt__allocate(base, mpt__loader_scratches(loader), MPT_MEMORY_BATCH);
    if (weights)
        loader->weight_sums = (double *)mpt__allocate(
            base, (size_t)loader->dataset->count * sizeof(double), MPT_MEMORY_BATCH);
    for (int64_t i = 0; loader->weight_sums && i < loader->dataset->count; i++)
        loader->weight_sums[i] = weights[i] + (i > 0 ? loader->weight_sums[i - 1] : 0.0);
    loader->config.weights = NULL; /* the caller's */
    if (loader->config.shuffle || weights)
        loader->order = (int64_t *)mpt__allocate(
            base, (size_t)loader->total * sizeof(int64_t), MPT_MEMORY_BATCH);
    for (int64_t i = 0; base->status == MPT_OK && i < MPT__BATCH_PARTS * loader->slot_count; i++) {
        mpt__loader_slot *slot = &loader->slots[i / MPT__BATCH_PARTS];
        int part = (int)(i % MPT__BATCH_PARTS);
        size_t bytes = mpt__part_bytes(loader, part);
        if (bytes == 0) continue;
        slot->storage[part] =
            mpt__storage_new(ctx, (int64_t)bytes, MPT_MEMORY_BATCH, MPT__FROM_DEVICE, false);
        slot->memory[part] = ctx->data[slot->storage[part]];
#if defined(MPTRAIN_CUDA)
        if (slot->storage[part] && mpt__slots_staged(ctx)) mpt__stage_make(ctx, slot, part, bytes);
#endif
    }
    return base->status == MPT_OK;
}

static bool mpt__loader_start(mpt_context *ctx, mpt__loader *loader) {
    const mpt_threads *thread = &ctx->base.thread;
    int wanted = loader->config.workers;
    for (int i = 0; loader->scratch && i < mpt__loader_makers(loader); i++)
        loader->workers[i].scratch = loader->scratch + (size_t)i * loader->scratch_bytes;
    if (!MPT__HAS_WORKERS || wanted == 0) return true;
    if (thread->mutex_create(thread->user, &loader->mutex) != 0) loader->mutex = NULL;
    if (thread->condition_create(thread->user, &loader->work) != 0) loader->work = NULL;
    if (thread->condition_create(thread->user, &loader->ready) != 0) loader->ready = NULL;
    if (!loader->mutex || !loader->work || !loader->ready)
        return mpt__reject(ctx, THREAD, "no mutex or condition could be made");
    for (int i = 0; i < wanted; loader->thread_count = ++i) {
        mpt__worker *worker = &loader->workers[i];
        worker->loader = loader;
        if (thread->create(thread->user, &worker->thread, mpt__worker_run, worker) != 0)
            return mpt__reject(ctx, THREAD, "only %d of %d workers could be started", i, wanted);
    }
    return true;
}

/* Samples of each rank in an epoch. */
static int64_t mpt__loader_share(const mpt_loader_config *config, int64_t total) {
    return total / config->world + (total % config->world != 0 && !config->drop_last);
}

/* What is wrong with a config; false with an error recorded. */
static bool mpt__loader_check(
    mpt_context *ctx, const mpt__dataset *dataset, const mpt_loader_config *config) {
    if (!mpt__dataset_filled(ctx, dataset)) return false;
    if (config->batch < 1)
        return mpt__reject(ctx, ARGUMENT, "batch is %lld; at least 1", config->batch);
    if (config->workers < 0 || config->workers > MPT__MAX_WORKERS)
        return mpt__reject(ctx, ARGUMENT, "workers is %d; from 0 (the calling thread) to %d",
            config->workers, MPT__MAX_WORKERS);
    if (config->workers > 0 && (config->prefetch < 1 || config->prefetch > MPT__MAX_PREFETCH))
        return mpt__reject(ctx, ARGUMENT, "prefetch is %d; from 1 to %d batches per worker",
            config->prefetch, MPT__MAX_PREFETCH);
    if (config->dtype != MPT_F32 && config->dtype != MPT_F16 && config->dtype != MPT_BF16)
        return mpt__reject(
            ctx, DTYPE, "dtype %D: batches are MPT_F32, MPT_F16 or MPT_BF16", config->dtype);
    if (config->samples < 0 || config->samples > PTRDIFF_MAX / 8 ||
        (config->samples > 0 && !config->weights))
        return mpt__reject(ctx, ARGUMENT,
            "samples is %lld; it counts those that weights draw, 0 for as many as there are",
            config->samples);
    double sum = 0.0;
    for (int64_t i = 0; config->weights && i < dataset->count; i++) {
        if (!(config->weights[i] >= 0.0 && config->weights[i] <= 1e300))
            return mpt__reject(ctx, ARGUMENT,
                "weight %lld is %g; weights are finite and not negative", i, config->weights[i]);
        sum += config->weights[i];
    }
    if (config->weights && !(sum > 0.0 && mpt__f64_is_finite(sum)))
        return mpt__reject(
            ctx, ARGUMENT, "the weights sum to %g: expected a finite sum above 0", sum);
    if (config->world < 1 || config->rank < 0 || config->rank >= config->world)
        return mpt__reject(ctx, ARGUMENT, "rank %d of world %d; ranks are 0 to world - 1",
            config->rank, config->world);
    int64_t samples =
        mpt__loader_share(config, config->samples > 0 ? config->samples : dataset->count);
    if (config->drop_last && config->batch > samples)
        return mpt__reject(ctx, ARGUMENT, "drop_last leaves nothing: batch %lld of %lld samples",
            config->batch, samples);
    mpt_dtype target = config->target_dtype;
    if (target != MPT_DTYPE_NONE && (!config->collate || !mpt__target_dtype(target)))
        return mpt__reject(ctx, DTYPE, "target_dtype %D%s; collate makes i64, f32, f16 or bf16",
            target, config->collate ? "" : " without collate");
    if (!MPT__HAS_WORKERS && config->workers > 0)
        return mpt__reject(ctx, UNSUPPORTED,
            "workers is %d, but this is built without threads (MPTRAIN_NO_THREADS); expected 0",
            config->workers);
    return true;
}

/* Everything that follows from dataset and config. */
static void mpt__loader_plan(
    mpt_context *ctx, mpt__loader *loader, mpt__dataset *dataset, const mpt_loader_config *config) {
    int64_t ring = config->workers > 0 ? (int64_t)config->prefetch * config->workers + 1 : 1;
    mpt_dtype to = mpt__dataset_whole(dataset) ? dataset->dtype : config->dtype;
    loader->base = &ctx->base;
    loader->dataset = dataset;
    dataset->references++;
    mpt__dataset_loaders(dataset, 1);
    loader->config = *config;
    if (MPT__HAS_WORKERS && config->workers == 0 && dataset->inputs) loader->pool = ctx->pool;
    loader->total = config->samples > 0 ? config->samples : dataset->count;
    loader->samples = mpt__loader_share(config, loader->total);
    if (config->batch > loader->samples) loader->config.batch = loader->samples;
    if (config->seed == 0)
        loader->config.seed = mpt__hash_u64(ctx->config.seed, MPT__LOADER_STREAM);
    mpt__delivery_begin(ctx, &loader->delivery, dataset, to);
    loader->batches = loader->samples / loader->config.batch;
    if (!config->drop_last && loader->samples % loader->config.batch != 0) loader->batches++;
    loader->slot_count = ring < loader->batches ? ring : loader->batches;
    loader->remakes = config->target_dtype != MPT_DTYPE_NONE;
    loader->target_dtype = loader->remakes ? config->target_dtype : dataset->target_dtype;
    loader->target_shape = loader->remakes ? config->target_shape : dataset->target_shape;
}

mpt_loader mpt_loader_create(
    mpt_context *ctx, mpt_dataset dataset, const mpt_loader_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_loader_config defaults = mpt_loader_config_default();
    if (!config) config = &defaults;
    mpt__dataset *source =
        mpt__enter_checked(ctx, "mpt_loader_create") ? mpt__dataset_at(ctx, dataset) : NULL;
    mpt__loader *loader = NULL;
    if (source && mpt__loader_check(ctx, source, config))
        loader = (mpt__loader *)mpt__object_make(ctx, MPT__LOADER, sizeof *loader);
    if (loader) {
        mpt__loader_plan(ctx, loader, source, config);
        if (mpt__loader_measure(ctx, loader) && mpt__loader_allocate(ctx, loader) &&
            mpt__loader_start(ctx, loader))
            return mpt__loader_handle(ctx, loader);
        mpt__object_free(ctx, MPT__LOADER, loader->id.slot);
    }
    return mpt__loader_handle(ctx, NULL);
}

int64_t mpt_loader_batches(mpt_loader handle) {
    const mpt__loader *loader = mpt__loader_enter(handle, "mpt_loader_batches");
    return loader ? loader->batches : -1;
}

mpt_status mpt_loader_reset(mpt_loader handle) {
    MPT__PLAIN_FLOATS;
    mpt__loader *loader = mpt__loader_enter(handle, "mpt_loader_reset");
    if (!loader) return mpt__status_of(handle.context);
    mpt__loader_take_back(handle.context, loader);
    if (loader->open) mpt__loader_close_epoch(loader);
    return MPT_OK;
}

#define MPT__LAST_EPOCH (INT64_C(1) << 59) /* so that counting on cannot overflow */

mpt_status mpt_loader_seek(mpt_loader handle, int64_t epoch, int64_t batch) {
    MPT__PLAIN_FLOATS;
    mpt__loader *loader = mpt__loader_enter(handle, "mpt_loader_seek");
    if (!loader) return mpt__status_of(handle.context);
    if (epoch < 0 || epoch > MPT__LAST_EPOCH || batch < 0 || batch > loader->batches)
        return mpt__error(handle.context, INDEX,
            "batch %lld of epoch %lld: an epoch has batches 0 to %lld, epochs are 0 to 2^59", batch,
            epoch, loader->batches - 1);
    mpt__loader_take_back(handle.context, loader);
    if (loader->open) mpt__loader_close_epoch(loader);
    loader->epoch = epoch;
    mpt__loader_open_epoch(loader, batch);
    return MPT_OK;
}

mpt_loader_stats mpt_loader_statistics(mpt_loader handle) {
    mpt_loader_stats stats;
    mpt__zero(stats);
    const mpt__loader *loader = mpt__loader_enter(handle, "mpt_loader_statistics");
    if (!loader) return stats;
    stats.batches = loader->delivered;
    stats.samples = loader->delivered_samples;
    stats.skipped = loader->skipped;
    stats.epoch = loader->epoch;
    stats.next = loader->next;
    stats.seconds_waited = loader->seconds_waited;
    mpt__loader_lock(loader);
    for (int i = 0; i < MPT__MAX_WORKERS; i++) stats.by_worker[i] = loader->workers[i].samples;
    mpt__loader_unlock(loader);
    return stats;
}

MPT__DESTROYS(loader, MPT__LOADER)

#endif
