/* ----
 * context.c: contexts: made, destroyed, cleared of errors.
 * ---- */
#ifndef MPT__CONTEXT_INCLUDED
#define MPT__CONTEXT_INCLUDED

#include "core/plan.c"
#include "cpu/link.h"
#include "data/text.c"
#include "graph/capture.c"
#include "nn/placement.c"
#include "watch/absent.c"
#ifdef MPTRAIN_WATCH
#include "mptrain_watch.h"
#endif

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

const char *mpt_isa_name(mpt_isa isa) { return mpt__cpu_isa_name(isa); }

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
#ifdef MPTRAIN_NO_FRUGAL
    } else if (config->dry) {
        mpt__fail(base, MPT_ERROR_UNSUPPORTED, "built without %s", MPT__NOT_FRUGAL);
#endif
    } else if (config->device_index < 0) {
        mpt__fail(base, MPT_ERROR_ARGUMENT, "device_index = %d: the first device is 0",
            config->device_index);
    } else if (config->memory_limit < 0) {
        mpt__fail(
            base, MPT_ERROR_ARGUMENT, "memory_limit is %lld; 0 means none", config->memory_limit);
    }
    return base->status == MPT_OK;
}

#if defined(MPTRAIN_CUDA)
static void mpt__backend_warns(void *ctx, const char *text) {
    mpt__base *base = &((mpt_context *)ctx)->base;
    mpt__log(base, MPT_LOG_WARNING, "%s: %s", base->op ? base->op : "mptrain", text);
}
#endif

/* The backend that the configuration asks for. */
static bool mpt__backend_create(mpt_context *ctx) {
    const mpt_config *config = &ctx->config;
    mpt_device device = config->dry ? MPT_DEVICE_CPU : config->device;
    char why[160] = "it was built without MPTRAIN_CUDA";
    ctx->convert = &mpt__convert_portable;
#if defined(MPTRAIN_CUDA)
    if (device != MPT_DEVICE_CPU) {
        int count = mpt__cuda_device_count(why, sizeof why);
        if (count > 0) {
            mpt__backend *backend = &ctx->backend;
            mpt_status status = MPT_ERROR_ARGUMENT;
            if (config->device_index >= count)
                mpt__format_text(backend->error, sizeof backend->error,
                    "device_index = %d, but there are %d GPUs", config->device_index, count);
            else
                status = mpt__cuda_backend_create(
                    backend, MPTRAIN_VERSION, config->device_index, config->debug);
            backend->warn = mpt__backend_warns;
            backend->listener = ctx;
            if (status == MPT_OK)
                ctx->config.device = MPT_DEVICE_CUDA;
            else
                mpt__backend_error(ctx, status);
            return status == MPT_OK;
        }
        static int32_t said; /* once per program, to the first log that hears it */
        if (device == MPT_DEVICE_AUTO && config->log.write && mpt__atomic_add32(&said, 1) == 0)
            mpt__log(&ctx->base, MPT_LOG_WARNING, "no GPU (%s): computing on the CPU", why);
    }
#endif
    if (device == MPT_DEVICE_CUDA) {
        mpt__error(ctx, DEVICE, "no CUDA device: %s; use MPT_DEVICE_AUTO or MPT_DEVICE_CPU", why);
        return false;
    }
    ctx->config.device = MPT_DEVICE_CPU;
    if (mpt__cpu_backend_create(&ctx->base, config->isa, config->threads, config->amx,
            &ctx->backend, &ctx->config.isa) != MPT_OK)
        return false;
    ctx->pool = mpt__cpu_lends(&ctx->backend, &ctx->convert);
#ifndef MPTRAIN_NO_FRUGAL
    if (config->dry) mpt__dry_begin(ctx);
#endif
#ifndef MPTRAIN_NO_WATCH
    ctx->isa_name = mpt__cpu_isa_name(ctx->config.isa);
#endif
#ifdef MPT__LINK_USE /* or the linker would not look for them */
    return true MPT__LINK_NAMES(MPT__LINK_USE);
#else
    return true;
#endif
}

/* The device scalars, and what the host sees of them. */
static bool mpt__scalars_start(mpt_context *ctx) {
    int64_t bytes = MPT__SLOT_COUNT * (int64_t)sizeof(mpt__scalar);
    mpt__backend *backend = &ctx->backend;
    if (ctx->storage_count == 0) ctx->storage_count = 1; /* storage 0 means none */
    uint32_t storage;
    if (mpt__is_dry(&ctx->base)) { /* the one storage that is read without being asked for */
        ctx->scalars = (mpt__scalar *)mpt__host_new(ctx, (size_t)bytes);
        storage = ctx->scalars ? mpt__storage_wrap(ctx, ctx->scalars, bytes) : 0;
    } else {
        storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_HOST, MPT__FROM_DEVICE, false);
    }
    if (!storage) return false;
    mpt__scalar *scalars = (mpt__scalar *)ctx->data[storage];
    if (!backend->synchronous)
        scalars = (mpt__scalar *)backend->allocate_host(backend->self, 4 * (size_t)bytes);
    if (!scalars) {
        mpt__fail_memory(&ctx->base, (size_t)bytes, MPT_MEMORY_HOST);
        return false;
    }
    ctx->scalar_storage = storage;
    ctx->scalars = scalars;
    memset(scalars, 0, (backend->synchronous ? 1 : 4) * (size_t)bytes);
    scalars[MPT__SLOT_ONE].f = 1.0;
    float one = 1.0f;
    memcpy(&scalars[MPT__SLOT_ONE_F32], &one, sizeof one);
    return backend->synchronous || mpt__upload(ctx, storage, 0, scalars, bytes) == MPT_OK;
}

/* The parts that need the backend: device scalars and the tables' destructors. */
static bool mpt__context_start(mpt_context *ctx) {
    ctx->checks = ctx->config.debug;
    ctx->ops = mpt__op_rows;
    ctx->pool_reach = MPT__POOL_REACH;
    ctx->base.module = mpt__path_now;
    ctx->can_repeat = mpt__can_repeat, ctx->repeat = mpt__repeat;
#ifndef MPTRAIN_NO_FRUGAL
    ctx->shrink = mpt__let_go;
#endif
    if (!mpt__scalars_start(ctx)) return false;
    ctx->module_training = true;
    ctx->launch.phase = MPT__OTHER;
    ctx->autocast[0] = MPT_F32;
    ctx->best = MPT__INF_F64;
    ctx->objects[MPT__MODULE].destroy = mpt__module_free;
    ctx->objects[MPT__RECORDING].destroy = mpt__recorder_free;
    ctx->objects[MPT__CAPTURED].destroy = mpt__captured_free;
    ctx->objects[MPT__GRAPH].destroy = mpt__graph_end;
    ctx->objects[MPT__OPTIMIZER].destroy = mpt__optimizer_free;
    ctx->objects[MPT__SCALER].destroy = mpt__scaler_free;
    ctx->objects[MPT__SCHEDULE].destroy = mpt__schedule_free;
    ctx->objects[MPT__EMA].destroy = mpt__ema_free;
    ctx->objects[MPT__DATASET].destroy = mpt__dataset_release;
    ctx->objects[MPT__LOADER].destroy = mpt__loader_free;
    ctx->objects[MPT__TOKENIZER].destroy = mpt__tokenizer_free;
    return mpt__ok(ctx);
}

mpt_context *mpt_create(const mpt_config *config) {
    mpt_config defaults = mpt_config_default();
    if (!config) config = &defaults;
    mpt__set_create_error("");
    mpt__base base; /* until there is a context to hold it */
    mpt__base_init(&base, config);
    base.op = "mpt_create";
    mpt_context *ctx = NULL;
    if (base.status == MPT_OK && mpt__check_config(&base, config))
        ctx = (mpt_context *)mpt__allocate(&base, sizeof *ctx, MPT_MEMORY_HOST);
    if (!ctx) {
        mpt__set_create_error(base.message);
        return NULL;
    }
    mpt_memory_stats memory = base.memory;
    mpt__base_init(&ctx->base, config);
    ctx->base.memory = memory;
    ctx->base.op = "mpt_create";
    ctx->base.process = mpt__process_id();
    ctx->config = *config;
    if (mpt__backend_create(ctx) && mpt__context_start(ctx)) {
        mpt__context_lives(ctx);
        return ctx;
    }
    mpt__set_create_error(ctx->base.message);
    mpt_destroy(ctx);
    return NULL;
}

/* ==== Destroying ==== */

/* In this order workers stop before what they read goes, and optimizers before parameters. */
static const mpt__object_kind mpt__destroy_order[MPT__OBJECT_KINDS] = {MPT__LOADER, MPT__DATASET,
    MPT__CAPTURED, MPT__RECORDING, MPT__EMA, MPT__SCHEDULE, MPT__SCALER, MPT__OPTIMIZER,
    MPT__MODULE, MPT__USER_OP, MPT__TOKENIZER, MPT__GRAPH};

static void mpt__destroy_objects(mpt_context *ctx) {
    for (int k = 0; k < MPT__OBJECT_KINDS; k++) {
        mpt__object_table *table = &ctx->objects[mpt__destroy_order[k]];
        for (int64_t i = 1; i < table->count; i++)
            if (table->rows[i].object) mpt__object_free(ctx, mpt__destroy_order[k], (uint32_t)i);
        mpt__room_free(ctx, table->rows, table->capacity);
    }
}

static void mpt__destroy_tensors(mpt_context *ctx) {
    for (int64_t i = 1; i < ctx->tensor_count; i++) {
        mpt__tensor *tensor = mpt__slot(ctx, (uint32_t)i);
        if (tensor->handle) mpt__tensor_drop(ctx, tensor);
    }
    for (int64_t i = 1; i < ctx->storage_count; i++) {
        if (!ctx->storages[i].live) continue;
        ctx->storages[i].references = 1;
        mpt__storage_release(ctx, (uint32_t)i);
    }
    mpt__pool_trim(ctx);
}

static void mpt__destroy_tables(mpt_context *ctx) {
    for (int64_t i = 0; i < ctx->tensor_count; i += MPT__TENSOR_CHUNK)
        mpt__host_free(ctx, ctx->tensors[i], MPT__TENSOR_CHUNK * sizeof(mpt__tensor));
    mpt__room_free(ctx, ctx->tensors, ctx->tensor_capacity);
    for (int64_t i = 1; i < ctx->path_count; i++) mpt__host_text_free(ctx, ctx->paths[i]);
    mpt__room_free(ctx, ctx->paths, ctx->path_capacity);
    mpt__room_free(ctx, ctx->parameters, ctx->parameter_capacity);
    mpt__room_free(ctx, ctx->blocks, ctx->block_capacity);
    for (int64_t i = 0; i < ctx->record_count; i += MPT__RECORD_CHUNK)
        mpt__host_free(ctx, ctx->records[i], MPT__RECORD_CHUNK * sizeof(mpt__record));
    mpt__room_free(ctx, ctx->records, ctx->record_capacity);
#ifndef MPTRAIN_NO_FRUGAL
    for (mpt__region *region = ctx->regions, *older; region; region = older) {
        older = region->older;
        mpt__host_free(ctx, region, sizeof *region);
    }
#endif
    mpt__room_free(ctx, ctx->scoped, ctx->scoped_capacity);
#ifndef MPTRAIN_NO_FRUGAL
    mpt__room_free(ctx, ctx->extents, ctx->extent_capacity);
#endif
    mpt__room_free(ctx, ctx->storages, ctx->storage_capacity);
    mpt__room_free(ctx, ctx->data, ctx->data_capacity);
    mpt__room_free(ctx, ctx->shares, ctx->share_capacity);
}

void mpt_destroy(mpt_context *ctx) {
    if (!ctx) return;
    mpt__context_ends(ctx);
    if (mpt__forked(&ctx->base)) return; /* its memory may be amid a change */
    mpt__series_free(ctx);
    mpt__anomaly_free(ctx);
    mpt__profile_free(ctx);
    mpt__flight_free(ctx);
    mpt__recorder_stop(ctx);
    for (int64_t i = 0; i < ctx->block_count; i++) /* nobody reads gradients any more */
        ctx->blocks[i].multiplier_slot = 0;
    mpt__destroy_objects(ctx);
    mpt__destroy_tensors(ctx);
    mpt__destroy_tables(ctx);
    if (mpt__is_dry(&ctx->base))
        mpt__host_free(ctx, ctx->scalars, MPT__SLOT_COUNT * sizeof(mpt__scalar));
    if (ctx->backend.release_host && ctx->scalars)
        ctx->backend.release_host(ctx->backend.self, ctx->scalars);
    if (ctx->backend.destroy) ctx->backend.destroy(ctx->backend.self);
    mpt__base base = ctx->base; /* outlives the memory it releases */
    mpt__release(&base, ctx, sizeof *ctx, MPT_MEMORY_HOST);
}

/* ==== Plans ==== */

#ifdef MPTRAIN_NO_FRUGAL
MPT__BEGIN_ABSENT
mpt_status mpt_plan(const mpt_config *config, mpt_plan_fn train, int64_t batch, void *user,
    mpt_memory_stats *stats) {
    mpt_config dry = mpt_config_default();
    dry.dry = true;
    mpt_create(&dry); /* says why not */
    if (stats) mpt__zero(*stats);
    return MPT_ERROR_UNSUPPORTED;
}

int64_t mpt_largest_batch(
    const mpt_config *config, mpt_plan_fn train, void *user, int64_t budget, int64_t most) {
    mpt_plan(config, train, most, user, NULL);
    return -1;
}

int64_t mpt_recompute_to_fit(mpt_module net, const char *pattern, mpt_plan_fn train, int64_t batch,
    void *user, int64_t budget) {
    mpt__frugal_missing(net.context, "mpt_recompute_to_fit");
    return -1;
}
MPT__END_ABSENT
#else
/* What a dry run is to be, and what it found. */
typedef struct {
    const mpt_config *config;
    mpt_plan_fn train;
    int64_t batch;
    void *user;
    int64_t limit;        /* of memory; 0: none */
    const char *pattern;  /* NULL, or which modules may run again */
    int64_t count, found; /* how many do, and might */
    mpt_memory_stats stats;
} mpt__dry_run;

/* What went wrong is left for mpt_error(NULL). */
static mpt_status mpt__plan_run(mpt__dry_run *run) {
    const int64_t limit = run->limit;
    const mpt_config *config = run->config;
    mpt_config dry = config ? *config : mpt_config_default();
    mpt_status status;
    dry.dry = true, dry.device = MPT_DEVICE_CPU;
    if (limit > 0) dry.memory_limit = limit, dry.log.write = NULL;
    mpt_context *ctx = mpt_create(&dry);
    if (!ctx) {
        dry.memory_limit = 0;
        ctx = limit > 0 ? mpt_create(&dry) : NULL;
        mpt_destroy(ctx);
        return ctx ? MPT_ERROR_MEMORY : MPT_ERROR_ARGUMENT;
    }
    ctx->placement.pattern = run->pattern, ctx->placement.count = run->count;
    status = run->train(ctx, run->batch, run->user);
    ctx->base.op = "mpt_plan";
    if (mpt__ok(ctx) && status != MPT_OK)
        mpt__error_of(ctx, status, "the function that trains returned \"%s\" for a batch of %lld",
            mpt_status_name(status), run->batch);
    status = ctx->base.status;
    run->found = ctx->placement.found;
    mpt__zero(run->stats);
    if (status == MPT_OK) run->stats = ctx->base.memory;
    char message[sizeof ctx->base.message];
    memcpy(message, ctx->base.message, sizeof message);
    mpt_destroy(ctx);
    mpt__set_create_error(message);
    return status;
}

static bool mpt__plan_asked(mpt_plan_fn train, int64_t batch) {
    char message[96] = "mpt_plan: the function that trains is NULL";
    if (train && batch >= 1) return true;
    if (train)
        mpt__format_text(
            message, sizeof message, "mpt_plan: a batch of %lld, expected at least 1", batch);
    mpt__set_create_error(message);
    return false;
}

mpt_status mpt_plan(const mpt_config *config, mpt_plan_fn train, int64_t batch, void *user,
    mpt_memory_stats *stats) {
    mpt__dry_run run;
    mpt__zero(run);
    run.config = config, run.train = train, run.batch = batch, run.user = user;
    mpt_status status = MPT_ERROR_ARGUMENT;
    if (mpt__plan_asked(train, batch)) status = mpt__plan_run(&run);
    if (stats) *stats = run.stats;
    return status;
}

int64_t mpt_largest_batch(
    const mpt_config *config, mpt_plan_fn train, void *user, int64_t budget, int64_t most) {
    if (!mpt__plan_asked(train, most)) return -1;
    if (budget < 1) {
        mpt__set_create_error("mpt_largest_batch: the budget is less than one byte");
        return -1;
    }
    /* Twice as many until it does not fit, then the middle between what does and what does not. */
    mpt__dry_run run;
    mpt__zero(run);
    run.config = config, run.train = train, run.user = user, run.limit = budget;
    int64_t fits = 0, beyond = 0;
    for (int64_t wanted = 1; fits < most && beyond != fits + 1;) {
        run.batch = wanted;
        mpt_status status = mpt__plan_run(&run);
        if (status != MPT_OK && status != MPT_ERROR_MEMORY) return -1;
        if (status == MPT_OK)
            fits = wanted;
        else
            beyond = wanted;
        wanted = beyond ? fits + (beyond - fits) / 2 : fits <= most / 2 ? 2 * fits : most;
    }
    mpt__set_create_error("");
    return fits;
}

/* Whether a training fits if so many modules are run again; any other error goes to the net's
   context. */
static bool mpt__placement_fits(mpt_context *ctx, mpt__dry_run *run, int64_t count) {
    run->count = count;
    mpt_status status = mpt__plan_run(run);
    if (status != MPT_OK && status != MPT_ERROR_MEMORY)
        mpt__error_of(ctx, status, "%s", mpt_error(NULL));
    else if (status == MPT_OK && run->found == 0)
        mpt__error(ctx, ARGUMENT,
            "the function that trains makes no optimizer of a net with a module that fits \"%s\"",
            run->pattern);
    return status == MPT_OK;
}

int64_t mpt_recompute_to_fit(mpt_module net, const char *pattern, mpt_plan_fn train, int64_t batch,
    void *user, int64_t budget) {
    mpt__module *found = mpt__module_enter(net, "mpt_recompute_to_fit");
    if (!found) return -1;
    mpt_context *ctx = net.context;
    if (ctx->placement.pattern) return 0; /* `train` of a dry run calls this itself */
    if (!train || batch < 1 || budget < 1 || !mpt__pattern_good(pattern)) {
        mpt__error(ctx, ARGUMENT,
            "expected a pattern with one '*' at most, a function, and a batch and a budget of at "
            "least 1; got \"%s\", a batch of %lld and %lld bytes",
            pattern ? pattern : "NULL", batch, budget);
        return -1;
    }
    const int64_t most = mpt__recompute_first(ctx, found, pattern, 0);
    mpt__dry_run run;
    mpt__zero(run);
    run.config = &ctx->config, run.train = train, run.batch = batch, run.user = user;
    run.limit = budget, run.pattern = pattern;
    if (most == 0)
        mpt__error(ctx, ARGUMENT, "no module below the net fits \"%s\"; mpt_summary lists them",
            pattern);
    else if (!mpt__placement_fits(ctx, &run, most) && mpt__ok(ctx))
        mpt__error(ctx, MEMORY, "a batch of %lld takes more than %B, even if all %lld run again",
            batch, budget, most);
    int64_t fits = most, beyond = -1;
    while (mpt__ok(ctx) && fits - beyond > 1) {
        const int64_t middle = beyond + (fits - beyond) / 2;
        if (mpt__placement_fits(ctx, &run, middle))
            fits = middle;
        else
            beyond = middle;
    }
    if (!mpt__ok(ctx)) return -1;
    mpt__set_create_error("");
    mpt__recompute_first(ctx, found, pattern, fits);
    return fits;
}
#endif

/* ==== Errors ==== */

void mpt_clear_error(mpt_context *ctx) {
    if (!ctx || mpt__ok(ctx) || ctx->in_backward) return;
    if (ctx->base.in_log) return;
    ctx->base.status = MPT_OK;
    ctx->base.message[0] = '\0';
    if (mpt__forked(&ctx->base)) return; /* the next call fails again */
    mpt__wait(ctx);
    ctx->scalars[MPT__SLOT_ERROR].i = 0;
    if (!ctx->backend.synchronous) {
        ctx->scalars[MPT__SLOT_ERROR + 3 * MPT__SLOT_COUNT].i = ctx->snapshots;
        mpt__upload(ctx, ctx->scalar_storage, MPT__SLOT_ERROR * (int64_t)sizeof(mpt__scalar),
            &ctx->scalars[MPT__SLOT_ERROR], sizeof(mpt__scalar));
    }
    mpt__slice_end(ctx);
    ctx->base.status = MPT_OK;
    mpt__discard_history(ctx);
    mpt__scaler_forget(ctx);
    mpt__inside_forget(ctx);
    mpt__draws_forget(ctx);
    mpt__running_settle(ctx, false);
    mpt__anomaly_stop(ctx, NULL, NULL);
    const mpt__recording *stopped = mpt__recorder_stop(ctx);
    if (stopped) mpt__object_free(ctx, MPT__RECORDING, stopped->id.slot);
    ctx->now = ctx->committed;
    ctx->base.step = ctx->now.step;
    ctx->path = ctx->module = 0;
    ctx->path_hash = 0;
    ctx->module_training = true;
}

#endif
