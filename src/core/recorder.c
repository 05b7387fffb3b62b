/* ----
 * core/recorder.c: recordings of launches, and their replay.
 *
 * A recording owns copies of launches. Storages that were there before it began are held by
 * reference and replayed in place; storages made inside keep their ids for the recording alone, and
 * replay gives them memory of its own.
 * ---- */
#ifndef MPT__CORE_RECORDER_INCLUDED
#define MPT__CORE_RECORDER_INCLUDED

#include "core/plan.c"

typedef struct {
    uint32_t *id;
    int64_t count, capacity;
} mpt__ids;

static bool mpt__ids_add(mpt_context *ctx, mpt__ids *ids, uint32_t id) {
    if (!mpt__room(ctx, ids->id, ids->capacity, ids->count + 1)) return false;
    ids->id[ids->count++] = id;
    return true;
}

static void mpt__ids_free(mpt_context *ctx, mpt__ids *ids) {
    mpt__room_free(ctx, ids->id, ids->capacity);
    mpt__zero(*ids);
}

typedef struct mpt__recording {
    mpt__id id;
    mpt__launch *launches;
    int64_t count, capacity;
    int64_t storages_before;
    mpt__ids retired; /* given back while recording */
    mpt__ids held;    /* outlive the recording, with a reference each */
    mpt__ids work;    /* kind, slot, generation of what mpt__recorder_note was told */
    int64_t *offset;     /* of each retired one in the memory that they share; NULL: not planned */
    int64_t arena_bytes; /* of that memory */
    uint32_t arena;      /* its storage during replays; 0: none */
    bool failed;
    bool own; /* anomaly mode's */
} mpt__recording;

MPT__HANDLES(recording, MPT__RECORDING)

static void mpt__recorder_retire(mpt_context *ctx, uint32_t storage) {
    mpt__recording *recorder = ctx->recorder;
    if (!mpt__ids_add(ctx, &recorder->retired, storage)) recorder->failed = true;
}

/* Notes that the step being recorded updates this optimizer or scaler. */
static void mpt__recorder_note(mpt_context *ctx, mpt__object_kind kind, const mpt__id *id) {
    mpt__recording *recorder = ctx->recorder;
    if (!mpt__ids_add(ctx, &recorder->work, (uint32_t)kind) ||
        !mpt__ids_add(ctx, &recorder->work, id->slot) ||
        !mpt__ids_add(ctx, &recorder->work, id->generation))
        recorder->failed = true;
}

/* Takes a reference on every storage below id `limit` that a launch names and that is alive. */
static void mpt__recorder_hold(
    mpt_context *ctx, mpt__recording *recorder, const mpt__launch *launch, int64_t limit) {
    for (int i = 0; i < launch->n_operands; i++) {
        uint32_t id = launch->operand[i].storage;
        bool known = !id || (int64_t)id >= limit || !ctx->storages[id].live;
        for (int64_t h = 0; h < recorder->held.count && !known; h++)
            known = recorder->held.id[h] == id;
        if (known) continue;
        if (mpt__ids_add(ctx, &recorder->held, id)) {
            mpt__storage_retain(ctx, id);
            ctx->storages[id].recordings++;
        } else {
            recorder->failed = true;
        }
    }
}

/* What was there before is held from its first use on: it must still be there at replay. */
static void mpt__record_launch(MPT__HEARS) {
    const mpt__launch *launch = (const mpt__launch *)what;
    mpt__recording *recorder = (mpt__recording *)user;
    if (ctx->unrecorded) return;
    if (!mpt__room(ctx, recorder->launches, recorder->capacity, recorder->count + 1)) {
        recorder->failed = true;
        return;
    }
    mpt__launch *kept = &recorder->launches[recorder->count++];
    *kept = *launch;
#ifndef MPTRAIN_NO_WATCH
    kept->path = mpt__launch_path(ctx, launch);
#endif
    mpt__recorder_hold(ctx, recorder, launch, recorder->storages_before);
}

static void mpt__replay_forget(mpt_context *ctx, mpt__recording *recorder) {
    mpt__host_free(
        ctx, recorder->offset, (size_t)recorder->retired.count * sizeof *recorder->offset);
    recorder->offset = NULL;
}

static void mpt__recorder_free(mpt_context *ctx, void *object) {
    mpt__recording *recorder = (mpt__recording *)object;
    for (int64_t i = 0; i < recorder->held.count; i++) {
        ctx->storages[recorder->held.id[i]].recordings--;
        mpt__storage_release(ctx, recorder->held.id[i]);
    }
    for (int64_t i = 0; i < recorder->retired.count; i++)
        mpt__storage_spare(ctx, recorder->retired.id[i]);
    mpt__room_free(ctx, recorder->launches, recorder->capacity);
    mpt__replay_forget(ctx, recorder);
    mpt__ids_free(ctx, &recorder->retired);
    mpt__ids_free(ctx, &recorder->held);
    mpt__ids_free(ctx, &recorder->work);
}

/* Anomaly mode leaves a step in which the user has recordings alone. */
static bool mpt__recorder_idle(mpt_context *ctx) {
    mpt__tell(ctx, MPT__RECORDING_ASKED, NULL);
    if (ctx->recorder) mpt__error(ctx, STATE, "a recording is under way; mpt_record_end ends it");
    return !ctx->recorder;
}

static mpt_status mpt__recorder_start(mpt_context *ctx) {
    mpt__recording *recorder =
        (mpt__recording *)mpt__object_make(ctx, MPT__RECORDING, sizeof *recorder);
    if (!recorder) return ctx->base.status;
    mpt__pool_trim(ctx); /* its rows would seem to be storages of before, which replays hold */
    recorder->storages_before = ctx->storage_count;
    if (mpt__listen(ctx, MPT__LAUNCHED, mpt__record_launch, recorder) != MPT_OK) {
        mpt__object_free(ctx, MPT__RECORDING, recorder->id.slot);
        return ctx->base.status;
    }
    ctx->device_step = -1; /* so that the recording sets it */
    ctx->recorder = recorder;
    ctx->retire = mpt__recorder_retire;
    for (int64_t i = 0; i < ctx->block_count; i++) { /* so that the casts are recorded */
        mpt__block *block = &ctx->blocks[i];
        uint32_t version = block->live ? ctx->storages[block->values].version : 0;
        block->form_version[0] = block->form_version[1] = version - 1;
    }
    /* From here on no id is used twice: the free ones wait until the end. */
    ctx->recorded_free_storage = ctx->free_storage;
    ctx->free_storage = 0;
    return MPT_OK;
}

mpt_status mpt_record_begin(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_record_begin") || !mpt__no_slice(ctx)) return mpt__status_of(ctx);
    return mpt__recorder_idle(ctx) ? mpt__recorder_start(ctx) : ctx->base.status;
}

/* Stops recording, if one is under way; the free ids of before are free again. */
static mpt__recording *mpt__recorder_stop(mpt_context *ctx) {
    mpt__recording *recorder = ctx->recorder;
    if (!recorder) return NULL;
    mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__record_launch);
    uint32_t *last = &ctx->free_storage;
    while (*last) last = &ctx->storages[*last].next_free;
    *last = ctx->recorded_free_storage;
    ctx->recorder = NULL;
    ctx->retire = NULL;
    return recorder;
}

mpt_recording mpt_record_end(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_record_end")) return mpt__recording_handle(ctx, NULL);
#ifndef MPTRAIN_NO_GRAPH
    if (mpt__is_capturing(ctx)) {
        mpt__error(ctx, STATE, "the recording is that of a captured step, which ends it by itself");
        return mpt__recording_handle(ctx, NULL);
    }
#endif
    mpt__tell(ctx, MPT__RECORDING_ASKED, NULL);
    mpt__recording *recorder = mpt__recorder_stop(ctx);
    if (!recorder) mpt__error(ctx, STATE, "no recording is under way; mpt_record_begin starts one");
    for (int64_t i = 0; recorder && i < recorder->count; i++)
        mpt__recorder_hold(ctx, recorder, &recorder->launches[i], INT64_MAX);
    if (!recorder || !recorder->failed) return mpt__recording_handle(ctx, recorder);
    mpt__object_free(ctx, MPT__RECORDING, recorder->id.slot);
    return mpt__recording_handle(ctx, NULL);
}

/* Where the retired storages lie in the memory that a replay takes. What is idle goes back first:
   one large piece has no use for many small ones. */
static bool mpt__replay_plan(mpt_context *ctx, mpt__recording *recorder) {
    const int64_t n = recorder->retired.count;
    recorder->offset = (int64_t *)mpt__host_array(ctx, n, sizeof *recorder->offset);
    bool made = recorder->offset != NULL;
#ifdef MPTRAIN_NO_FRUGAL /* one behind the other */
    for (int64_t i = 0; i < n && made; i++) {
        recorder->offset[i] = recorder->arena_bytes;
        recorder->arena_bytes +=
            mpt__class_bytes(mpt__size_class(ctx->storages[recorder->retired.id[i]].bytes));
    }
#else
    const int64_t ids = ctx->storage_count;
    mpt__stay *stays = (mpt__stay *)mpt__host_array(ctx, n, sizeof *stays);
    int64_t *room = (int64_t *)mpt__host_array(ctx, 2 * n, sizeof *room);
    uint32_t *where = (uint32_t *)mpt__host_array(ctx, ids, sizeof *where);
    made = made && stays && room && where;
    for (int64_t i = 0; i < n && made; i++) {
        where[recorder->retired.id[i]] = (uint32_t)i + 1;
        stays[i].root = i;
    }
    if (made) {
        mpt__stays_find(ctx, recorder->launches, recorder->count, where, stays);
        recorder->arena_bytes = mpt__stays_place(stays, n, room);
        for (int64_t i = 0; i < n; i++) recorder->offset[i] = stays[i].offset;
    }
    mpt__host_free(ctx, stays, (size_t)n * sizeof *stays);
    mpt__host_free(ctx, room, (size_t)n * 2 * sizeof *room);
    mpt__host_free(ctx, where, (size_t)ids * sizeof *where);
#endif
    if (made)
        mpt__pool_trim(ctx);
    else
        mpt__replay_forget(ctx, recorder);
    return made;
}

/* Gives every retired id memory again (`give` true) or takes it back. */
static bool mpt__replay_memory(mpt_context *ctx, mpt__recording *recorder, bool give) {
    if (recorder->retired.count == 0) return true;
    if (give && !recorder->offset && !mpt__replay_plan(ctx, recorder)) return false;
    if (give && recorder->arena_bytes > 0) {
        recorder->arena = mpt__storage_new(
            ctx, recorder->arena_bytes, MPT_MEMORY_ACTIVATION, MPT__FROM_POOL, false);
        if (!recorder->arena) return false;
    }
    for (int64_t i = 0; i < recorder->retired.count; i++) {
        const uint32_t id = recorder->retired.id[i];
        char *arena = give ? (char *)ctx->data[recorder->arena] : NULL;
        ctx->data[id] = arena ? arena + recorder->offset[i] : NULL;
        ctx->storages[id].live = give;
    }
    if (!give && recorder->arena) mpt__storage_release(ctx, recorder->arena);
    if (!give) recorder->arena = 0;
    return true;
}

/* What was held has new values, as far as anybody knows. */
static void mpt__replay_versions(mpt_context *ctx, const mpt__recording *recorder) {
    for (int64_t i = 0; i < recorder->held.count; i++) {
        ctx->storages[recorder->held.id[i]].version++;
        mpt__values_replayed(ctx, recorder->held.id[i]);
    }
}

/* Runs the launches of a recording whose storages have memory. */
static void mpt__replay_launches(mpt_context *ctx, const mpt__recording *recorder) {
    for (int64_t i = 0; i < recorder->count && mpt__ok(ctx); i++)
        mpt__submit(ctx, &recorder->launches[i]);
}

mpt_status mpt_replay(mpt_recording recording) {
    mpt_context *ctx = recording.context;
    mpt__recording *recorder = mpt__recording_enter(recording, "mpt_replay");
    if (!recorder || !mpt__recorder_idle(ctx) || !mpt__no_slice(ctx)) return mpt__status_of(ctx);
    for (int64_t i = 0; i < recorder->held.count; i++)
        if (ctx->storages[recorder->held.id[i]].live == 2)
            return mpt__error(
                ctx, STATE, "mpt_half has moved parameters since the recording; record anew");
    if (mpt__launches_refused(ctx, recorder->launches, recorder->count)) return ctx->base.status;
    bool ready = mpt__replay_memory(ctx, recorder, true);
    ctx->device_step = -1; /* the launches may set it */
    if (ready) mpt__replay_launches(ctx, recorder);
    mpt__replay_versions(ctx, recorder);
    mpt__replay_memory(ctx, recorder, false);
    return ctx->base.status;
}

int64_t mpt_recording_launches(mpt_recording recording) {
    mpt__recording *recorder = mpt__recording_enter(recording, "mpt_recording_launches");
    return recorder ? recorder->count : -1;
}

mpt_status mpt_recording_destroy(mpt_recording recording) {
    mpt_context *ctx = recording.context;
    if (mpt__recording_enter(recording, "mpt_recording_destroy") && mpt__recorder_idle(ctx))
        mpt__object_free(ctx, MPT__RECORDING, recording.slot);
    return mpt__status_of(ctx);
}

#endif
