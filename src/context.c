/* ------------------------
 * context.c: contexts: made, destroyed, cleared of errors.
 * ---------------------- */
#ifndef MPT__CONTEXT_INCLUDED
#define MPT__CONTEXT_INCLUDED

#include "cpu/link.h"
#include "data/text.c"
#include "graph/capture.c"
#include "watch/check.c"

int mpt_version(void) { return MPTRAIN_VERSION; }

mpt_config mpt_config_default(void) {
    mpt_config config;
    mpt__zero(config);
    config.amx = true;
    config.debug = mpt__environment("MPTRAIN_DEBUG") != NULL;
    const char *isa = mpt__environment("MPTRAIN_ISA");
    if (isa) config.isa = mpt__cpu_isa_of_name(isa);
    return config;
}

const char *mpt_isa_name(mpt_isa isa) {
    return mpt__cpu_isa_name(isa);
}

int mpt_device_count(mpt_device device) {
#if defined(MPTRAIN_CUDA)
    char why[8];
    if (device == MPT_DEVICE_CUDA) return mpt__cuda_device_count(why, sizeof why);
#endif
    return device == MPT_DEVICE_CPU;
}

/* ==== Making ==== */

static bool mpt__check_config(mpt__base *base, const mpt_config *config) {
    if (config->threads < 0 || config->threads > 1024) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "threads = %d: expected 0 (one per core) to 1024",
                  config->threads);
    } else if (config->device < MPT_DEVICE_AUTO || config->device > MPT_DEVICE_CUDA) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "device %d is none of mpt_device", (int)config->device);
    } else if (config->device_index < 0) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "device_index = %d: the first device is 0",
                  config->device_index);
    } else if (config->memory_limit < 0) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "memory_limit is negative; 0 means none");
    }
    return base->status == MPT_OK;
}

#if defined(MPTRAIN_CUDA)
static void mpt__backend_warns(void *context, const char *text) {
    mpt__base *base = &((mpt_context *)context)->base;
    mpt__log(base, MPT_LOG_WARNING, "%s: %s", base->op ? base->op : "mptrain", text);
}
#endif

/* The backend that the configuration asks for. */
static bool mpt__backend_create(mpt_context *context) {
    const mpt_config *config = &context->config;
    mpt_device device = config->device;
    char why[160] = "it was built without MPTRAIN_CUDA";
    context->convert = &mpt__convert_portable;
#if defined(MPTRAIN_CUDA)
    if (device != MPT_DEVICE_CPU) {
        int count = mpt__cuda_device_count(why, sizeof why);
        if (count > 0) {
            mpt__backend *backend = &context->backend;
            mpt_status status = MPT_ERROR_ARGUMENT;
            if (config->device_index >= count)
                mpt__format_text(backend->error, sizeof backend->error,
                                 "device_index = %d, but there are %d GPUs", config->device_index,
                                 count);
            else
                status = mpt__cuda_backend_create(backend, MPTRAIN_VERSION, config->device_index,
                                                  config->debug);
            backend->warn = mpt__backend_warns;
            backend->listener = context;
            if (status == MPT_OK)
                context->config.device = MPT_DEVICE_CUDA;
            else
                mpt__backend_error(context, status);
            return status == MPT_OK;
        }
        static int32_t said; /* once per program, to the first log that hears it */
        if (device == MPT_DEVICE_AUTO && config->log.write && mpt__atomic_add32(&said, 1) == 0)
            mpt__log(&context->base, MPT_LOG_WARNING, "no GPU (%s): computing on the CPU", why);
    }
#endif
    if (device == MPT_DEVICE_CUDA) {
        mpt__error(context, DEVICE, "no CUDA device: %s; use MPT_DEVICE_AUTO or MPT_DEVICE_CPU",
                   why);
        return false;
    }
    context->config.device = MPT_DEVICE_CPU;
    if (mpt__cpu_backend_create(&context->base, config->isa, config->threads, config->amx,
                                &context->backend, &context->config.isa) != MPT_OK)
        return false;
    context->pool = mpt__cpu_lends(&context->backend, &context->convert);
#ifdef MPT__LINK_USE /* or the linker would not look for them */
    return true MPT__LINK_NAMES(MPT__LINK_USE);
#else
    return true;
#endif
}

/* The device scalars, and what the host sees of them. */
static bool mpt__scalars_start(mpt_context *context) {
    int64_t bytes = MPT__SLOT_COUNT * (int64_t)sizeof(mpt__scalar);
    mpt__backend *backend = &context->backend;
    if (context->storage_count == 0) context->storage_count = 1; /* storage 0 means none */
    uint32_t storage = mpt__storage_new(context, bytes, MPT_MEMORY_HOST, MPT__FROM_DEVICE, false);
    if (!storage) return false;
    mpt__scalar *scalars = (mpt__scalar *)context->data[storage];
    if (!backend->synchronous)
        scalars = (mpt__scalar *)backend->allocate_host(backend->self, 4 * (size_t)bytes);
    if (!scalars) {
        mpt__fail_memory(&context->base, (size_t)bytes, MPT_MEMORY_HOST);
        return false;
    }
    context->scalar_storage = storage;
    context->scalars = scalars;
    memset(scalars, 0, (backend->synchronous ? 1 : 4) * (size_t)bytes);
    scalars[MPT__SLOT_ONE].f = 1.0;
    float one = 1.0f;
    memcpy(&scalars[MPT__SLOT_ONE_F32], &one, sizeof one);
    return backend->synchronous || mpt__upload(context, storage, 0, scalars, bytes) == MPT_OK;
}

/* The parts that need the backend: device scalars and the tables' destructors. */
static bool mpt__context_start(mpt_context *context) {
    context->pool_reach = MPT__POOL_REACH;
    context->ops = mpt__op_rows;
    context->can_repeat = mpt__can_repeat, context->repeat = mpt__repeat;
    if (!mpt__scalars_start(context)) return false;
    context->module_training = true;
    context->launch.phase = MPT__OTHER;
    context->autocast[0] = MPT_F32;
    context->objects[MPT__MODULE].destroy = mpt__module_free;
    context->objects[MPT__RECORDING].destroy = mpt__recorder_free;
    context->objects[MPT__CAPTURED].destroy = mpt__captured_free;
    context->objects[MPT__OPTIMIZER].destroy = mpt__optimizer_free;
    context->objects[MPT__SCALER].destroy = mpt__scaler_free;
    context->objects[MPT__SCHEDULE].destroy = mpt__schedule_free;
    context->objects[MPT__EMA].destroy = mpt__ema_free;
    context->objects[MPT__DATASET].destroy = mpt__dataset_release;
    context->objects[MPT__LOADER].destroy = mpt__loader_free;
    context->objects[MPT__TOKENIZER].destroy = mpt__tokenizer_free;
    return mpt__ok(context);
}

mpt_context *mpt_create(const mpt_config *config) {
    mpt_config defaults = mpt_config_default();
    if (!config) config = &defaults;
    mpt__set_create_error("");
    mpt__base base; /* until there is a context to hold it */
    mpt__base_init(&base, config);
    base.op = "mpt_create";
    mpt_context *context = NULL;
    if (base.status == MPT_OK && mpt__check_config(&base, config))
        context = (mpt_context *)mpt__allocate(&base, sizeof *context, MPT_MEMORY_HOST);
    if (!context) {
        mpt__set_create_error(base.message);
        return NULL;
    }
    mpt_memory_stats memory = base.memory;
    mpt__base_init(&context->base, config);
    context->base.memory = memory;
    context->base.op = "mpt_create";
    context->base.process = mpt__process_id();
    context->config = *config;
    if (mpt__backend_create(context) && mpt__context_start(context)) return context;
    mpt__set_create_error(context->base.message);
    mpt_destroy(context);
    return NULL;
}

/* ==== Destroying ==== */

/* In this order workers stop before what they read goes, and optimizers before parameters. */
static const mpt__object_kind mpt__destroy_order[MPT__OBJECT_KINDS] = {
    MPT__LOADER, MPT__DATASET,   MPT__CAPTURED, MPT__RECORDING, MPT__EMA,      MPT__SCHEDULE,
    MPT__SCALER, MPT__OPTIMIZER, MPT__MODULE,   MPT__USER_OP,   MPT__TOKENIZER};

static void mpt__destroy_objects(mpt_context *context) {
    for (int k = 0; k < MPT__OBJECT_KINDS; k++) {
        mpt__object_table *table = &context->objects[mpt__destroy_order[k]];
        for (int64_t i = 1; i < table->count; i++)
            if (table->rows[i].object)
                mpt__object_free(context, mpt__destroy_order[k], (uint32_t)i);
        mpt__room_free(context, table->rows, table->capacity);
    }
}

static void mpt__destroy_tensors(mpt_context *context) {
    for (int64_t i = 1; i < context->tensor_count; i++) {
        mpt__tensor *tensor = mpt__slot(context, (uint32_t)i);
        if (tensor->handle) mpt__tensor_drop(context, tensor);
    }
    for (int64_t i = 1; i < context->storage_count; i++) {
        if (!context->storages[i].live) continue;
        context->storages[i].references = 1;
        mpt__storage_release(context, (uint32_t)i);
    }
    mpt__pool_trim(context);
}

static void mpt__destroy_tables(mpt_context *context) {
    for (int64_t i = 0; i < context->tensor_count; i += MPT__TENSOR_CHUNK)
        mpt__host_free(context, context->tensors[i], MPT__TENSOR_CHUNK * sizeof(mpt__tensor));
    mpt__room_free(context, context->tensors, context->tensor_capacity);
    for (int64_t i = 1; i < context->path_count; i++)
        mpt__host_text_free(context, context->paths[i]);
    mpt__room_free(context, context->paths, context->path_capacity);
    mpt__room_free(context, context->parameters, context->parameter_capacity);
    mpt__room_free(context, context->blocks, context->block_capacity);
    for (int64_t i = 0; i < context->record_count; i += MPT__RECORD_CHUNK)
        mpt__host_free(context, context->records[i], MPT__RECORD_CHUNK * sizeof(mpt__record));
    mpt__room_free(context, context->records, context->record_capacity);
    mpt__room_free(context, context->scoped, context->scoped_capacity);
    mpt__room_free(context, context->storages, context->storage_capacity);
    mpt__room_free(context, context->data, context->data_capacity);
}

void mpt_destroy(mpt_context *context) {
    if (!context || mpt__forked(&context->base)) return; /* its memory may be amid a change */
    mpt__anomaly_free(context);
    mpt__recorder_stop(context);
    for (int64_t i = 0; i < context->block_count; i++) /* nobody reads gradients any more */
        context->blocks[i].multiplier_slot = 0;
    mpt__destroy_objects(context);
    mpt__destroy_tensors(context);
    mpt__destroy_tables(context);
    if (context->backend.release_host && context->scalars)
        context->backend.release_host(context->backend.self, context->scalars);
    if (context->backend.destroy) context->backend.destroy(context->backend.self);
    mpt__base base = context->base; /* outlives the memory it releases */
    mpt__release(&base, context, sizeof *context, MPT_MEMORY_HOST);
}

/* ==== Errors ==== */

void mpt_clear_error(mpt_context *context) {
    if (!context || mpt__ok(context) || context->in_backward) return;
    if (context->base.in_log) return;
    context->base.status = MPT_OK;
    context->base.message[0] = '\0';
    if (mpt__forked(&context->base)) return; /* the next call fails again */
    mpt__wait(context);
    context->scalars[MPT__SLOT_ERROR].i = 0;
    if (!context->backend.synchronous) {
        context->scalars[MPT__SLOT_ERROR + 3 * MPT__SLOT_COUNT].i = context->snapshots;
        mpt__upload(context, context->scalar_storage,
                    MPT__SLOT_ERROR * (int64_t)sizeof(mpt__scalar),
                    &context->scalars[MPT__SLOT_ERROR], sizeof(mpt__scalar));
    }
    mpt__slice_end(context);
    context->base.status = MPT_OK;
    mpt__discard_history(context);
    mpt__scaler_forget(context);
    mpt__draws_forget(context);
    mpt__running_settle(context, false);
    mpt__anomaly_stop(context, NULL, NULL);
    const mpt__recording *stopped = mpt__recorder_stop(context);
    if (stopped) mpt__object_free(context, MPT__RECORDING, stopped->id.slot);
    context->now = context->committed;
    context->base.step = context->now.step;
    context->path = context->module = 0;
    context->path_hash = 0;
    context->module_training = true;
}

#endif
