/* ---------------------------------------------------------------------------------------------
 * 72_loader.c: batches from a dataset, shuffled, converted, made ahead by worker threads.
 *
 * Batches lie in a ring of slots that the owner's thread allocates when the loader is made. A
 * worker claims the number of the next batch, fills its slot and marks it ready; the owner takes
 * batches in order. What a batch holds depends on (seed, epoch, number) alone. Workers allocate
 * nothing and touch neither log nor error: what went wrong travels in the slot and is reported in
 * its turn.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__72_LOADER_INCLUDED
#define MPT__72_LOADER_INCLUDED

#include "70_data.c"

#define MPT__MAX_WORKERS 64
#define MPT__MAX_PREFETCH 1024

#define MPT__LOADER_STREAM UINT64_C(0x6f72646572) /* "order" */
#define MPT__SAMPLE_STREAM UINT64_C(0x73616d706c65) /* "sample" */

/* Room for one batch. Between claim and ready it belongs to a worker, else to the owner. */
typedef struct mpt__loader_slot {
    uint32_t x_storage, y_storage; /* y: 0 without targets */
    void *x, *y;                   /* where workers write: the storage's memory, or staging */
    bool ready;
    int64_t failed; /* sample that could not be made, -1 = none */
    char error[256];
} mpt__loader_slot;

typedef struct mpt__loader mpt__loader;

typedef struct mpt__worker {
    mpt__loader *loader;
    void *thread;
    void *scratch;
    int64_t samples; /* under the mutex */
} mpt__worker;

struct mpt__loader {
    mpt__base *base;
    mpt__dataset *dataset; /* referenced */
    mpt_loader_config config;
    mpt__delivery delivery;
    int64_t batches;      /* per epoch */
    int64_t *order;       /* of the epoch; NULL without shuffling */
    size_t x_sample, y_sample, scratch_bytes; /* bytes */
    bool staged;          /* the device cannot be written to: batches are uploaded */

    mpt__loader_slot *slots;
    int64_t slot_count;
    mpt__worker *workers; /* at least one row; row 0 is the caller when config.workers is 0 */
    int thread_count;     /* workers that run */

    /* Owner only. */
    bool open;            /* an epoch is under way */
    int64_t epoch;        /* of the next batch */
    int64_t next;         /* number of the next batch in it */
    bool held;            /* batch next - 1 is in the user's hands */
    int64_t delivered;
    double seconds_waited;
    mpt_tensor x, y;      /* handles of the batch in use; slot 0 = none */

    /* Under the mutex when there are workers. */
    void *mutex, *work, *ready;
    bool stop;
    int64_t claimed;      /* batches of the epoch that someone makes or has made */
    int64_t limit;        /* and may be claimed */
    int busy;
};

static void mpt__loader_init(mpt_context *context);

/* ==== Making batches ==== */

/* Samples in a batch of the epoch. */
static int64_t mpt__batch_size(const mpt__loader *loader, int64_t number) {
    int64_t left = loader->dataset->count - number * loader->config.batch;
    return left < loader->config.batch ? left : loader->config.batch;
}

static uint64_t mpt__sample_seed(const mpt__loader *loader, int64_t index) {
    uint64_t seed = mpt__hash_u64(loader->config.seed, MPT__SAMPLE_STREAM);
    return mpt__hash_u64(mpt__hash_u64(seed, (uint64_t)loader->epoch), (uint64_t)index);
}

/* Fills a slot, up to the first sample that fails. Any thread. */
static void mpt__batch_make(const mpt__loader *loader, mpt__loader_slot *slot, int64_t number,
                            void *scratch) {
    int64_t first = number * loader->config.batch, size = mpt__batch_size(loader, number);
    uint32_t state = mpt__flush_denormals(false);
    slot->failed = -1;
    for (int64_t i = 0; i < size; i++) {
        int64_t index = loader->order ? loader->order[first + i] : first + i;
        uint8_t *x = (uint8_t *)slot->x + (size_t)i * loader->x_sample;
        uint8_t *y = slot->y ? (uint8_t *)slot->y + (size_t)i * loader->y_sample : NULL;
        if (mpt__dataset_fetch(loader->dataset, &loader->delivery, index,
                               mpt__sample_seed(loader, index), scratch, x, y, slot->error,
                               sizeof slot->error))
            continue;
        slot->error[sizeof slot->error - 1] = 0;
        slot->failed = index;
        break;
    }
    mpt__restore_denormals(state);
}

/* ==== Workers ==== */

static void mpt__worker_run(void *argument) {
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
        mpt__batch_make(loader, slot, number, worker->scratch);
        thread->mutex_lock(thread->user, loader->mutex);
        worker->samples += mpt__batch_size(loader, number);
        slot->ready = true;
        loader->busy--;
        thread->condition_broadcast(thread->user, loader->ready);
    }
    thread->mutex_unlock(thread->user, loader->mutex);
}

static void mpt__loader_lock(const mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (loader->thread_count > 0) thread->mutex_lock(thread->user, loader->mutex);
}

static void mpt__loader_unlock(const mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (loader->thread_count > 0) thread->mutex_unlock(thread->user, loader->mutex);
}

/* Lets workers make the batches before `limit`. Under the mutex. */
static void mpt__loader_allow(mpt__loader *loader, int64_t limit) {
    const mpt_threads *thread = &loader->base->thread;
    loader->limit = limit < loader->batches ? limit : loader->batches;
    if (loader->thread_count > 0) thread->condition_broadcast(thread->user, loader->work);
}

/* Ends the epoch under way; returns when no worker writes any more. */
static void mpt__loader_close_epoch(mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    mpt__loader_lock(loader);
    loader->limit = 0;
    while (loader->busy > 0) thread->condition_wait(thread->user, loader->ready, loader->mutex);
    mpt__loader_unlock(loader);
    loader->open = false;
    loader->epoch++;
    loader->next = 0;
}

static void mpt__loader_open_epoch(mpt__loader *loader) {
    if (loader->order) {
        mpt__rng_key key;
        key.seed = loader->config.seed;
        key.stream = MPT__LOADER_STREAM;
        key.call = (uint64_t)loader->epoch;
        mpt__random_permutation(key, loader->dataset->count, loader->order);
    }
    loader->open = true;
    mpt__loader_lock(loader);
    loader->claimed = 0;
    for (int64_t i = 0; i < loader->slot_count; i++) loader->slots[i].ready = false;
    mpt__loader_allow(loader, loader->slot_count);
    mpt__loader_unlock(loader);
}

/* The next batch of the epoch, made by a worker or here and now. */
static mpt__loader_slot *mpt__loader_wait(mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    mpt__loader_slot *slot = &loader->slots[loader->next % loader->slot_count];
    double start = loader->base->clock.now(loader->base->clock.user);
    if (loader->thread_count == 0) {
        mpt__batch_make(loader, slot, loader->next, loader->workers[0].scratch);
        loader->workers[0].samples += mpt__batch_size(loader, loader->next);
    } else {
        mpt__loader_lock(loader);
        while (!slot->ready) thread->condition_wait(thread->user, loader->ready, loader->mutex);
        mpt__loader_unlock(loader);
    }
    loader->seconds_waited += loader->base->clock.now(loader->base->clock.user) - start;
    return slot;
}

/* ==== Delivery ==== */

static mpt_batch mpt__batch_none(mpt_context *context) {
    mpt_batch batch;
    memset(&batch, 0, sizeof batch);
    batch.x.context = batch.y.context = context;
    return batch;
}

/* Ends a handle that the user may have ended already. */
static void mpt__batch_end(mpt_context *context, mpt_tensor *handle) {
    if (handle->slot != 0) {
        mpt__tensor *tensor = mpt__slot(context, handle->slot);
        if (tensor->generation == handle->generation) mpt__tensor_drop(context, tensor);
    }
    handle->slot = 0;
}

/* Ends the batch in use and gives its slot back to the workers. What backward saved of it counts as
   changed from here on. */
static void mpt__loader_take_back(mpt_context *context, mpt__loader *loader) {
    if (!loader->held) return;
    mpt__loader_slot *slot = &loader->slots[(loader->next - 1) % loader->slot_count];
    mpt__batch_end(context, &loader->x);
    mpt__batch_end(context, &loader->y);
    context->storages[slot->x_storage].version++;
    if (slot->y_storage) context->storages[slot->y_storage].version++;
    loader->held = false;
    mpt__loader_lock(loader);
    slot->ready = false;
    mpt__loader_allow(loader, loader->next + loader->slot_count);
    mpt__loader_unlock(loader);
}

/* A tensor over the front of a storage that only the loader ends. */
static mpt_tensor mpt__batch_tensor(mpt_context *context, uint32_t storage, mpt_dtype dtype,
                                    const mpt_shape *sample, int64_t size) {
    mpt_shape shape;
    shape.rank = sample->rank + 1;
    shape.dim[0] = size;
    for (int i = 0; i < sample->rank; i++) shape.dim[i + 1] = sample->dim[i];
    mpt__tensor *tensor = mpt__tensor_on(context, storage, dtype, &shape, NULL, 0);
    if (!tensor) return mpt__null(context);
    mpt__tensor_keep(tensor);
    tensor->flags &= (uint8_t)~MPT__INFERENCE; /* data, wherever it was asked for */
    return mpt__handle(context, tensor);
}

/* Hands a slot out as tensors; false with an error recorded. */
static bool mpt__batch_hand_out(mpt_context *context, mpt__loader *loader,
                                const mpt__loader_slot *slot, int64_t size, mpt_batch *batch) {
    const mpt__dataset *dataset = loader->dataset;
    if (loader->staged) {
        mpt__upload(context, slot->x_storage, 0, slot->x, size * (int64_t)loader->x_sample);
        if (slot->y_storage)
            mpt__upload(context, slot->y_storage, 0, slot->y, size * (int64_t)loader->y_sample);
        if (context->base.status != MPT_OK) return false;
    }
    loader->x = mpt__batch_tensor(context, slot->x_storage, loader->delivery.to, &dataset->shape,
                                  size);
    if (slot->y_storage) {
        loader->y = mpt__batch_tensor(context, slot->y_storage, dataset->target_dtype,
                                      &dataset->target_shape, size);
    }
    if (context->base.status != MPT_OK) return false;
    batch->x = loader->x;
    batch->y = loader->y;
    batch->size = size;
    return true;
}

static bool mpt__loader_advance(mpt_context *context, mpt__loader *loader, mpt_batch *batch) {
    mpt__loader_take_back(context, loader);
    if (!loader->open) mpt__loader_open_epoch(loader);
    if (loader->next == loader->batches) {
        mpt__loader_close_epoch(loader);
        return false;
    }
    int64_t number = loader->next, size = mpt__batch_size(loader, number);
    const mpt__loader_slot *slot = mpt__loader_wait(loader);
    loader->next++;
    loader->held = true;
    batch->index = number;
    if (slot->failed >= 0) {
        mpt__error(context, MPT_ERROR_IO,
                   "sample %lld (batch %lld of epoch %lld): %s; after mpt_clear_error the loader "
                   "goes on with the next batch", slot->failed, number, loader->epoch,
                   slot->error[0] ? slot->error : "the dataset gave no message");
        mpt__loader_take_back(context, loader);
        return false;
    }
    if (mpt__batch_hand_out(context, loader, slot, size, batch)) {
        loader->delivered++;
        return true;
    }
    mpt__batch_end(context, &loader->x); /* out of memory: the same batch is the next one again */
    mpt__batch_end(context, &loader->y);
    loader->held = false;
    loader->next--;
    return false;
}

static mpt__loader *mpt__loader_at(mpt_context *context, mpt_loader handle) {
    return (mpt__loader *)mpt__object_at(context, MPT__LOADER, handle.context, handle.slot,
                                         handle.generation);
}

MPTRAIN_API bool mpt_loader_next(mpt_loader handle, mpt_batch *batch) {
    mpt_context *context = handle.context;
    if (batch) *batch = mpt__batch_none(context);
    if (!mpt__enter(context, "mpt_loader_next")) return false;
    mpt__loader *loader = mpt__loader_at(context, handle);
    if (!loader) return false;
    if (!batch) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "batch is NULL");
        return false;
    }
    if (loader->thread_count > 0 && context->base.process != mpt__process_id()) {
        mpt__error(context, MPT_ERROR_THREAD,
                   "this loader's workers stayed behind in the parent process; make a new context "
                   "after fork");
        return false;
    }
    return mpt__loader_advance(context, loader, batch);
}

/* ==== Making and ending loaders ==== */

MPTRAIN_API mpt_loader_config mpt_loader_config_default(void) {
    mpt_loader_config config;
    memset(&config, 0, sizeof config);
    config.batch = 64;
    config.prefetch = 2;
    config.dtype = MPT_F32;
    return config;
}

/* Ends and joins the workers (after a fork there are none); safe at any stage of creation. */
static void mpt__loader_stop(mpt__loader *loader) {
    const mpt_threads *thread = &loader->base->thread;
    if (loader->base->process != mpt__process_id()) {
        loader->thread_count = 0;
        return;
    }
    if (loader->thread_count > 0) {
        thread->mutex_lock(thread->user, loader->mutex);
        loader->stop = true;
        thread->condition_broadcast(thread->user, loader->work);
        thread->mutex_unlock(thread->user, loader->mutex);
    }
    for (int i = 0; i < loader->thread_count; i++)
        thread->join(thread->user, loader->workers[i].thread);
    loader->thread_count = 0;
    if (loader->ready) thread->condition_destroy(thread->user, loader->ready);
    if (loader->work) thread->condition_destroy(thread->user, loader->work);
    if (loader->mutex) thread->mutex_destroy(thread->user, loader->mutex);
}

static int mpt__worker_rows(const mpt__loader *loader) {
    return loader->config.workers > 0 ? loader->config.workers : 1;
}

/* Elements of the widest batch. */
static int64_t mpt__loader_capacity(const mpt__loader *loader) {
    int64_t batch = loader->config.batch, count = loader->dataset->count;
    return batch < count ? batch : count;
}

static void mpt__slot_drop(mpt_context *context, const mpt__loader *loader,
                           mpt__loader_slot *slot) {
    size_t capacity = (size_t)mpt__loader_capacity(loader);
    if (slot->x_storage) mpt__storage_release(context, slot->x_storage);
    if (slot->y_storage) mpt__storage_release(context, slot->y_storage);
    if (!loader->staged) return;
    mpt__release(&context->base, slot->x, capacity * loader->x_sample, MPT_MEMORY_BATCH);
    mpt__release(&context->base, slot->y, capacity * loader->y_sample, MPT_MEMORY_BATCH);
}

/* Frees a loader in any stage of creation. */
static void mpt__loader_free(mpt_context *context, mpt__loader *loader) {
    mpt__base *base = &context->base;
    mpt__loader_stop(loader);
    mpt__batch_end(context, &loader->x);
    mpt__batch_end(context, &loader->y);
    for (int64_t i = 0; loader->slots && i < loader->slot_count; i++)
        mpt__slot_drop(context, loader, &loader->slots[i]);
    mpt__host_free(context, loader->slots, (size_t)loader->slot_count * sizeof *loader->slots);
    for (int i = 0; loader->workers && i < mpt__worker_rows(loader); i++)
        mpt__release(base, loader->workers[i].scratch, loader->scratch_bytes, MPT_MEMORY_BATCH);
    mpt__host_free(context, loader->workers,
                   (size_t)mpt__worker_rows(loader) * sizeof *loader->workers);
    if (loader->order) {
        mpt__release(base, loader->order, (size_t)loader->dataset->count * sizeof(int64_t),
                     MPT_MEMORY_BATCH);
    }
    loader->dataset->loaders--;
    mpt__dataset_release(context, loader->dataset);
    mpt__host_free(context, loader, sizeof *loader);
}

static void mpt__loader_destroy(mpt_context *context, void *object) {
    mpt__loader_free(context, (mpt__loader *)object);
}

static void mpt__loader_init(mpt_context *context) {
    context->objects[MPT__LOADER].destroy = mpt__loader_destroy;
}

/* Storage and, for devices, staging memory of one part of a slot. */
static bool mpt__slot_part(mpt_context *context, const mpt__loader *loader, size_t sample,
                           uint32_t *storage, void **memory) {
    size_t bytes = (size_t)mpt__loader_capacity(loader) * sample;
    *storage = mpt__storage_new(context, (int64_t)bytes, MPT_MEMORY_BATCH, MPT__FROM_DEVICE, false);
    if (!*storage) return false;
    *memory = loader->staged ? mpt__allocate(&context->base, bytes, MPT_MEMORY_BATCH)
                             : context->data[*storage];
    return *memory != NULL;
}

static bool mpt__loader_allocate(mpt_context *context, mpt__loader *loader) {
    mpt__base *base = &context->base;
    int64_t count = loader->dataset->count;
    int rows = mpt__worker_rows(loader);
    loader->workers = (mpt__worker *)mpt__host_new(context, (size_t)rows * sizeof *loader->workers);
    loader->slots = (mpt__loader_slot *)mpt__host_new(
        context, (size_t)loader->slot_count * sizeof *loader->slots);
    if (!loader->workers || !loader->slots) return false;
    for (int i = 0; i < rows; i++) {
        loader->workers[i].loader = loader;
        if (loader->scratch_bytes == 0) continue;
        loader->workers[i].scratch = mpt__allocate(base, loader->scratch_bytes, MPT_MEMORY_BATCH);
        if (!loader->workers[i].scratch) return false;
    }
    if (loader->config.shuffle) {
        loader->order = (int64_t *)mpt__allocate(base, (size_t)count * sizeof(int64_t),
                                                 MPT_MEMORY_BATCH);
        if (!loader->order) return false;
    }
    for (int64_t i = 0; i < loader->slot_count; i++) {
        mpt__loader_slot *slot = &loader->slots[i];
        if (!mpt__slot_part(context, loader, loader->x_sample, &slot->x_storage, &slot->x))
            return false;
        if (loader->y_sample &&
            !mpt__slot_part(context, loader, loader->y_sample, &slot->y_storage, &slot->y))
            return false;
    }
    return true;
}

static bool mpt__loader_start(mpt_context *context, mpt__loader *loader) {
    const mpt_threads *thread = &context->base.thread;
    int wanted = loader->config.workers;
    if (wanted == 0) return true;
    if (thread->mutex_create(thread->user, &loader->mutex) != 0) loader->mutex = NULL;
    if (thread->condition_create(thread->user, &loader->work) != 0) loader->work = NULL;
    if (thread->condition_create(thread->user, &loader->ready) != 0) loader->ready = NULL;
    if (!loader->mutex || !loader->work || !loader->ready) {
        mpt__error(context, MPT_ERROR_THREAD, "no mutex or condition could be made");
        return false;
    }
    for (int i = 0; i < wanted; i++) {
        mpt__worker *worker = &loader->workers[i];
        if (thread->create(thread->user, &worker->thread, mpt__worker_run, worker) != 0) {
            mpt__error(context, MPT_ERROR_THREAD, "only %d of %d workers could be started", i,
                       wanted);
            return false;
        }
        loader->thread_count = i + 1;
    }
    return true;
}

/* What is wrong with a config; false with an error recorded. */
static bool mpt__loader_check(mpt_context *context, const mpt__dataset *dataset,
                              const mpt_loader_config *config) {
    if (config->batch < 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "batch is %lld; at least 1", config->batch);
    } else if (config->workers < 0 || config->workers > MPT__MAX_WORKERS) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "workers is %d; from 0 (the calling thread) to %d",
                   config->workers, MPT__MAX_WORKERS);
    } else if (config->workers > 0 &&
               (config->prefetch < 1 || config->prefetch > MPT__MAX_PREFETCH)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "prefetch is %d; from 1 to %d batches per worker",
                   config->prefetch, MPT__MAX_PREFETCH);
    } else if (config->dtype != MPT_F32 && config->dtype != MPT_F16 && config->dtype != MPT_BF16) {
        mpt__error(context, MPT_ERROR_DTYPE, "dtype %s: batches are MPT_F32, MPT_F16 or MPT_BF16",
                   mpt_dtype_name(config->dtype));
    } else if (config->drop_last && config->batch > dataset->count) {
        mpt__error(context, MPT_ERROR_ARGUMENT,
                   "drop_last leaves nothing: batch %lld of %lld samples", config->batch,
                   dataset->count);
    }
#ifdef MPTRAIN_NO_THREADS
    if (config->workers > 0) {
        mpt__error(context, MPT_ERROR_UNSUPPORTED,
                   "workers is %d, but this is built without threads (MPTRAIN_NO_THREADS); 0 loads "
                   "on the calling thread", config->workers);
    }
#endif
    return context->base.status == MPT_OK;
}

/* Everything that follows from dataset and config. */
static void mpt__loader_plan(mpt_context *context, mpt__loader *loader, mpt__dataset *dataset,
                             const mpt_loader_config *config) {
    int64_t ring = config->workers > 0 ? (int64_t)config->prefetch * config->workers + 1 : 1;
    loader->base = &context->base;
    loader->dataset = dataset;
    dataset->references++;
    dataset->loaders++;
    loader->config = *config;
    if (config->batch > dataset->count) loader->config.batch = dataset->count;
    if (config->seed == 0)
        loader->config.seed = mpt__hash_u64(context->config.seed, MPT__LOADER_STREAM);
    mpt__delivery_begin(context, &loader->delivery, dataset, config->dtype);
    loader->batches = dataset->count / loader->config.batch;
    if (!config->drop_last && dataset->count % loader->config.batch != 0) loader->batches++;
    loader->slot_count = ring < loader->batches ? ring : loader->batches;
    loader->x_sample = (size_t)dataset->numel * mpt__dtype_info[loader->delivery.to].bytes;
    loader->y_sample = dataset->target_bytes;
    loader->scratch_bytes = mpt__fetch_scratch(dataset, &loader->delivery);
    loader->staged = context->backend.allocate != NULL || !context->backend.synchronous;
    loader->x = loader->y = mpt__null(context);
}

MPTRAIN_API mpt_loader mpt_loader_create(mpt_context *context, mpt_dataset dataset,
                                         const mpt_loader_config *config) {
    mpt_loader_config defaults = mpt_loader_config_default();
    mpt_loader handle;
    handle.context = context, handle.slot = 0, handle.generation = 0;
    if (!mpt__enter(context, "mpt_loader_create")) return handle;
    if (!config) config = &defaults;
    mpt__dataset *source = mpt__dataset_at(context, dataset);
    if (!source || !mpt__loader_check(context, source, config)) return handle;
    mpt__loader *loader = (mpt__loader *)mpt__host_new(context, sizeof *loader);
    if (!loader) return handle;
    mpt__loader_plan(context, loader, source, config);
    if (mpt__loader_allocate(context, loader) && mpt__loader_start(context, loader))
        handle.slot = mpt__object_new(context, MPT__LOADER, loader, &handle.generation);
    if (handle.slot == 0) mpt__loader_free(context, loader);
    return handle;
}

MPTRAIN_API int64_t mpt_loader_batches(mpt_loader handle) {
    mpt_context *context = handle.context;
    if (!mpt__enter(context, "mpt_loader_batches")) return -1;
    const mpt__loader *loader = mpt__loader_at(context, handle);
    return loader ? loader->batches : -1;
}

MPTRAIN_API mpt_status mpt_loader_reset(mpt_loader handle) {
    mpt_context *context = handle.context;
    if (!mpt__enter(context, "mpt_loader_reset"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__loader *loader = mpt__loader_at(context, handle);
    if (!loader) return context->base.status;
    mpt__loader_take_back(context, loader);
    if (loader->open) mpt__loader_close_epoch(loader);
    return MPT_OK;
}

MPTRAIN_API mpt_loader_stats mpt_loader_statistics(mpt_loader handle) {
    mpt_context *context = handle.context;
    mpt_loader_stats stats;
    memset(&stats, 0, sizeof stats);
    if (!mpt__enter(context, "mpt_loader_statistics")) return stats;
    const mpt__loader *loader = mpt__loader_at(context, handle);
    if (!loader) return stats;
    stats.batches = loader->delivered;
    stats.epoch = loader->epoch;
    stats.seconds_waited = loader->seconds_waited;
    mpt__loader_lock(loader);
    for (int i = 0; i < mpt__worker_rows(loader); i++)
        stats.by_worker[i] = loader->workers[i].samples;
    mpt__loader_unlock(loader);
    return stats;
}

MPTRAIN_API mpt_status mpt_loader_destroy(mpt_loader handle) {
    mpt_context *context = handle.context;
    if (!context) return MPT_ERROR_HANDLE;
    mpt__enter(context, "mpt_loader_destroy");
    if (!mpt__loader_at(context, handle)) return context->base.status;
    mpt__object_free(context, MPT__LOADER, handle.slot);
    return MPT_OK;
}

#endif
