/* ----
 * train/resume.c: whole trainings in files and in memory: to go on later, to go back, to compare.
 *
 * A checkpoint is a safetensors file: the weights under the names of mpt_save, all else as tensors
 * and numbers under names that begin with "mptrain.". A snapshot is the same in a block of memory,
 * without names. Nothing changes before all of it is checked.
 * ---- */
#ifndef MPT__TRAIN_RESUME_INCLUDED
#define MPT__TRAIN_RESUME_INCLUDED

#include "train/checkpoint.c"
#include "train/state.c"

#ifdef MPTRAIN_NO_RESUME

MPT__BEGIN_ABSENT
static mpt_status mpt__resume_missing(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "whole trainings (MPTRAIN_NO_RESUME)");
}

mpt_status mpt_checkpoint_save(mpt_context *ctx, const char *path) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_save");
}

mpt_status mpt_checkpoint_load(mpt_context *ctx, const char *path) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_load");
}

int64_t mpt_snapshot_bytes(mpt_context *ctx) {
    mpt__resume_missing(ctx, "mpt_snapshot_bytes");
    return -1;
}

mpt_status mpt_snapshot(mpt_context *ctx, void *block, size_t bytes) {
    return mpt__resume_missing(ctx, "mpt_snapshot");
}

mpt_status mpt_restore(mpt_context *ctx, const void *block, size_t bytes) {
    return mpt__resume_missing(ctx, "mpt_restore");
}

uint64_t mpt_state_hash(mpt_context *ctx) {
    mpt__resume_missing(ctx, "mpt_state_hash");
    return 0;
}
MPT__END_ABSENT

#else

static bool mpt__state_is_there(void *user, const char *name, bool now) {
    (void)user, (void)name;
    return now;
}

static void mpt__state_walk_begin(
    mpt__state_walk *w, mpt_context *ctx, mpt__state_visitor visit, void *user) {
    w->context = ctx;
    w->visit = visit, w->user = user;
    w->mode = MPT__STATE_READS;
    w->from = "the block";
    w->present = mpt__state_is_there;
}

static int64_t mpt__item_bytes(const mpt__state_item *item) {
    return item->count * (int64_t)mpt_dtype_size(item->dtype);
}

/* Whether an item is a number, wherever it lies, and no array. */
static bool mpt__item_single(const mpt__state_item *item) { return !item->storage && !item->array; }

/* Whether it has limits, so that its first 8 bytes are looked at. */
static bool mpt__item_limited(const mpt__state_item *item) {
    return mpt__item_single(item) || item->most != 0;
}

/* The 8 bytes of a number, wherever it lies. */
static void mpt__item_get(mpt_context *ctx, const mpt__state_item *item, int64_t *number) {
    if (item->host)
        memcpy(number, item->host, 8);
    else
        *number = mpt__scalar_get_i(ctx, item->slot);
}

static void mpt__item_set(mpt_context *ctx, const mpt__state_item *item, int64_t number) {
    if (item->host)
        memcpy(item->host, &number, 8);
    else
        mpt__scalar_set_i(ctx, item->slot, number);
}

/* Whether a number from `there` can stand in a number's place. */
static mpt_status mpt__number_check(
    mpt_context *ctx, const char *from, const mpt__state_item *item, int64_t there) {
    int64_t here;
    double x, y;
    const int64_t least = item->most < 0 ? item->most : 0, most = item->most - 2 * least;
    if (item->most && (there < least || there > most))
        return mpt__error(ctx, FORMAT, "%s: %s is %lld: expected %lld to %lld", from, item->name,
            there, least, most);
    if (item->storage) return MPT_OK;
    mpt__item_get(ctx, item, &here);
    memcpy(&x, &here, 8);
    memcpy(&y, &there, 8);
    if (item->rate && !(y >= 0 && mpt__f64_is_finite(y)))
        return mpt__error(
            ctx, FORMAT, "%s: %s is %g: expected a finite number, 0 or more", from, item->name, y);
    if (item->identity && here != there && !item->same)
        mpt__log(&ctx->base, MPT_LOG_WARNING,
            "%s: %s: %s is another than here; the training will not be the same", from, item->name,
            item->identity);
    if (!item->same || here == there) return MPT_OK;
    if (item->identity)
        return mpt__error(ctx, FORMAT, "%s: %s: of another training: %s are others than here", from,
            item->name, item->identity);
    if (item->dtype == MPT_I64)
        return mpt__error(
            ctx, FORMAT, "%s: %s is %lld there and %lld here", from, item->name, there, here);
    return mpt__error(ctx, FORMAT, "%s: %s is %g there and %g here", from, item->name, y, x);
}

uint64_t mpt_state_hash(mpt_context *ctx) {
    mpt__state_walk w;
    uint64_t hash = 0;
    if (!mpt__enter(ctx, "mpt_state_hash") || !mpt__state_stands(ctx)) return 0;
    mpt__state_walk_begin(&w, ctx, mpt__hash_item, &hash);
    return mpt__visit_state(&w) == MPT_OK ? hash : 0;
}

/* ==== Save ==== */

/* What a file holds tells a damaged one from a whole one: the sum, over all tensors but this one,
   of a hash of name and bytes. Bytes, so that it may begin anywhere. */
static const char mpt__hash_name[] = "mptrain.hash";

/* Items by the width of their elements, wide ones first, so that all are aligned in the file. */
typedef struct {
    mpt__state_walk walk;
    mpt__text header;
    mpt__writer *writer; /* NULL: the header is being made */
    uint8_t *chunk;
    int64_t at;
    size_t width;
    uint64_t hash;
} mpt__state_saving;

/* Elements that lie on the host. */
static void mpt__write_array(
    mpt__writer *writer, const void *array, mpt_dtype dtype, int64_t count, uint8_t *chunk) {
    const int64_t size = (int64_t)mpt_dtype_size(dtype), total = count * size;
    for (int64_t done = 0, take; done < total; done += take) {
        take = total - done < MPT__SAVE_CHUNK ? total - done : MPT__SAVE_CHUNK;
        memcpy(chunk, (const uint8_t *)array + done, (size_t)take);
        mpt__file_order(chunk, (size_t)take, (size_t)size);
        mpt__write_bytes(writer, chunk, (size_t)take);
    }
}

static mpt_status mpt__save_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__state_saving *saving = (mpt__state_saving *)user;
    mpt__writer *writer = saving->writer;
    int64_t number;
    if (mpt_dtype_size(item->dtype) != saving->width) return ctx->base.status;
    if (!writer) {
        mpt__header_entry(&saving->header, item->name, item->dtype, &item->shape,
            mpt__item_bytes(item), &saving->at);
        return ctx->base.status;
    }
    writer->hash = mpt__hash_bytes(0, item->name, strlen(item->name));
    if (item->storage) {
        mpt__write_elements(
            writer, ctx, item->storage, item->dtype, item->offset, item->count, saving->chunk);
    } else if (item->array) {
        mpt__write_array(saving->writer, item->array, item->dtype, item->count, saving->chunk);
    } else {
        mpt__item_get(ctx, item, &number);
        mpt__file_order((uint8_t *)&number, 8, 8);
        mpt__write_bytes(writer, &number, 8);
    }
    saving->hash += writer->hash;
    return ctx->base.status;
}

static bool mpt__save_items(mpt__state_saving *saving) {
    saving->hash = 0;
    for (saving->width = 8; saving->width > 0; saving->width /= 2)
        if (mpt__visit_state(&saving->walk) != MPT_OK) return false;
    return true;
}

/* Visitors that read nothing yet cannot fail. */
static void mpt__state_header(mpt__state_saving *saving) {
    const mpt_shape bytes = MPT_SHAPE(8);
    saving->at = 0;
    saving->header.length = 0;
    mpt__header_begin(&saving->header);
    mpt__save_items(saving);
    mpt__header_entry(&saving->header, mpt__hash_name, MPT_U8, &bytes, 8, &saving->at);
    mpt__header_end(&saving->header);
}

static bool mpt__state_content(mpt__writer *writer, const void *of) {
    mpt__state_saving *saving = (mpt__state_saving *)(uintptr_t)of;
    saving->writer = writer;
    writer->hashes = true;
    if (!mpt__write_header(writer, &saving->header) || !mpt__save_items(saving)) return false;
    mpt__file_order((uint8_t *)&saving->hash, 8, 8);
    return mpt__write_bytes(writer, &saving->hash, 8);
}

/* Makes the header of a training that stands still; mpt__saving_end comes last, however it went. */
static bool mpt__saving_begin(mpt_context *ctx, mpt__state_saving *saving) {
    mpt__zero(*saving);
    mpt__state_walk_begin(&saving->walk, ctx, mpt__save_item, saving);
    if (!mpt__state_stands(ctx)) return false;
    mpt__state_header(saving);
    saving->header.size = saving->header.length + 1;
    saving->header.out = (char *)mpt__host_new(ctx, saving->header.size);
    saving->chunk = (uint8_t *)mpt__host_new(ctx, MPT__SAVE_CHUNK);
    if (!saving->header.out || !saving->chunk) return false;
    mpt__state_header(saving);
    return true;
}

static void mpt__saving_end(mpt_context *ctx, mpt__state_saving *saving) {
    mpt__host_free(ctx, saving->header.out, saving->header.size);
    mpt__host_free(ctx, saving->chunk, MPT__SAVE_CHUNK);
}

static mpt_status mpt__state_save(mpt_context *ctx, const char *path) {
    mpt__state_saving saving;
    if (mpt__saving_begin(ctx, &saving))
        mpt__write_file(&ctx->base, path, mpt__state_content, &saving);
    mpt__saving_end(ctx, &saving);
    return ctx->base.status;
}

mpt_status mpt_checkpoint_save(mpt_context *ctx, const char *path) {
    MPT__PLAIN_FLOATS;
    if (!mpt__enter(ctx, "mpt_checkpoint_save") || mpt__no_files(ctx)) return mpt__status_of(ctx);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty");
    return mpt__state_save(ctx, path);
}

/* ==== Load ==== */

static mpt__entry *mpt__state_entry(mpt__archive *a, const char *name) {
    return mpt__entries_find(a->entries, a->count, mpt__span_of(name));
}

static bool mpt__entry_there(void *user, const char *name, bool now) {
    (void)now;
    return mpt__state_entry((mpt__archive *)user, name) != NULL;
}

static int64_t mpt__entry_number(const mpt__archive *a, const mpt__entry *entry) {
    int64_t number;
    memcpy(&number, a->data + entry->begin, 8);
    mpt__file_order((uint8_t *)&number, 8, 8);
    return number;
}

/* Whether an item is in the file as it has to be. */
static mpt_status mpt__check_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__archive *a = (mpt__archive *)user;
    mpt__entry *entry = mpt__state_entry(a, item->name);
    if (!entry)
        return mpt__error(ctx, FORMAT,
            "%s: the file has no %s; it is of another training, or of weights alone", a->json.name,
            item->name);
    mpt_shape shape = mpt__archive_shape(a, entry);
    bool same = entry->dtype == item->dtype && entry->rank == item->shape.rank;
    for (int d = 0; same && d < shape.rank; d++) same = shape.dim[d] == item->shape.dim[d];
    if (!same)
        return mpt__error(ctx, SHAPE, "%s: %s is %s %S there and %s %S here", a->json.name,
            item->name, mpt__file_dtype_name(entry->dtype), &shape,
            mpt__dtype_info[item->dtype].file_name, &item->shape);
    entry->weight = 1; /* known */
    if (!mpt__item_limited(item)) return MPT_OK;
    return mpt__number_check(ctx, a->json.name, item, mpt__entry_number(a, entry));
}

static mpt_status mpt__apply_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__archive *a = (mpt__archive *)user;
    const mpt__entry *entry = mpt__state_entry(a, item->name);
    int64_t size = (int64_t)mpt_dtype_size(item->dtype);
    if (!entry) return mpt__error(ctx, FORMAT, "%s: no %s", a->json.name, item->name);
    if (mpt__item_single(item)) { /* what has to be the same is, and others may be reading it */
        if (!item->same) mpt__item_set(ctx, item, mpt__entry_number(a, entry));
        return ctx->base.status;
    }
    if (mpt__big_endian())
        mpt__file_order(a->own_data + entry->begin, (size_t)mpt__item_bytes(item), (size_t)size);
    if (item->array) {
        memcpy(item->array, a->data + entry->begin, (size_t)mpt__item_bytes(item));
        return ctx->base.status;
    }
    return mpt__upload(
        ctx, item->storage, item->offset * size, a->data + entry->begin, mpt__item_bytes(item));
}

/* Metrics that the file has and the context does not know yet. */
static bool mpt__state_metrics_make(mpt_context *ctx, const mpt__archive *a) {
    static const char before[] = "mptrain.metric.", behind[] = ".count";
    for (int64_t i = 0; i < a->count && mpt__ok(ctx); i++) {
        const mpt__span name = a->entries[i].name;
        const size_t head = sizeof before - 1, tail = sizeof behind - 1;
        char metric[sizeof ctx->metrics[0].name];
        if (name.length < head + tail || name.length - head - tail >= sizeof metric ||
            memcmp(name.text, before, head) != 0 ||
            memcmp(name.text + name.length - tail, behind, tail) != 0)
            continue;
        memcpy(metric, name.text + head, name.length - head - tail);
        metric[name.length - head - tail] = 0;
        if (!mpt__metric_find(ctx, metric)) mpt__metric_make(ctx, metric);
    }
    return mpt__ok(ctx);
}

/* Whether a file holds what was written; one that others made need not say. */
static bool mpt__state_is_whole(mpt__archive *a) {
    mpt__entry *stated = mpt__state_entry(a, mpt__hash_name);
    uint64_t sum = 0, expected;
    if (!stated) return true;
    for (int64_t i = 0; i < a->count; i++) {
        const mpt__entry *entry = &a->entries[i];
        uint64_t hash = mpt__hash_bytes(0, entry->name.text, entry->name.length);
        if (entry == stated) continue;
        for (int64_t at = entry->begin, n; at < entry->end; at += n) {
            n = entry->end - at < MPT__SAVE_CHUNK ? entry->end - at : MPT__SAVE_CHUNK;
            hash = mpt__hash_bytes(hash, a->data + at, (size_t)n);
        }
        sum += hash;
    }
    stated->weight = 1; /* known */
    if (stated->end - stated->begin != 8) return false;
    memcpy(&expected, a->data + stated->begin, 8);
    mpt__file_order((uint8_t *)&expected, 8, 8);
    return sum == expected;
}

/* Checks that all of a file is known, then takes it over. */
static mpt_status mpt__state_load(mpt_context *ctx, mpt__archive *a, bool whole) {
    mpt__state_walk w;
    char shown[MPT__SHOWN_NAME];
    const int metrics = ctx->metric_count;
    mpt__state_walk_begin(&w, ctx, mpt__check_item, a);
    w.mode = MPT__STATE_CHECKS;
    w.present = mpt__entry_there;
    w.from = a->json.name;
    if (mpt__state_metrics_make(ctx, a)) mpt__visit_state(&w);
    for (int64_t i = 0; i < a->count && mpt__ok(ctx); i++)
        if (!a->entries[i].weight)
            mpt__error(ctx, FORMAT, "%s: this training has no %s", a->json.name,
                mpt__show_name(a->entries[i].name, shown));
    if (mpt__ok(ctx) && !whole)
        mpt__error(ctx, FORMAT, "%s: it is damaged: %s is not that of what it holds", a->json.name,
            mpt__hash_name);
    while (!mpt__ok(ctx) && ctx->metric_count > metrics) {
        const mpt__metric *metric = &ctx->metrics[--ctx->metric_count];
        mpt__scalar_free(ctx, metric->sum_slot);
        mpt__scalar_free(ctx, metric->count_slot);
    }
    if (!mpt__ok(ctx)) return ctx->base.status;
    w.mode = MPT__STATE_APPLIES;
    w.visit = mpt__apply_item;
    return mpt__visit_state(&w);
}

/* Loads a file into a training that stands still; *damaged (may be NULL): the file alone is to
   blame. */
static mpt_status mpt__state_load_file(mpt_context *ctx, const char *path, bool *damaged) {
    mpt__archive archive;
    mpt__reader file;
    mpt__zero(archive);
    archive.context = ctx, archive.json.name = path;
    if (!mpt__reader_open(&file, ctx, path)) return ctx->base.status;
    bool good = mpt__archive_read_file(&archive, &file);
    mpt__reader_close(&file);
    const bool whole = good && mpt__state_is_whole(&archive);
    if (damaged) *damaged = good ? !whole : ctx->base.status == MPT_ERROR_FORMAT;
    if (good) mpt__state_load(ctx, &archive, whole);
    mpt__archive_free(&archive);
    return ctx->base.status;
}

mpt_status mpt_checkpoint_load(mpt_context *ctx, const char *path) {
    MPT__PLAIN_FLOATS;
    if (!mpt__enter(ctx, "mpt_checkpoint_load") || mpt__no_files(ctx)) return mpt__status_of(ctx);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty");
    if (!mpt__state_stands(ctx)) return ctx->base.status;
    return mpt__state_load_file(ctx, path, NULL);
}

/* ==== Snapshots ==== */

/* A block of memory that items lie in, each behind a hash of what it is. */
typedef struct {
    uint8_t *bytes;
    int64_t at, size; /* `at` counts on where the block ends */
} mpt__snapshot;

static uint64_t mpt__item_mark(const mpt__state_item *item) {
    uint64_t mark = mpt__hash_bytes((uint64_t)item->dtype, item->name, strlen(item->name));
    return mpt__hash_u64(mark, (uint64_t)item->count);
}

/* The place of the next n bytes; NULL where they are only counted. */
static uint8_t *mpt__snapshot_take(mpt__snapshot *snapshot, int64_t n) {
    int64_t at = snapshot->at;
    snapshot->at += n;
    return snapshot->bytes && snapshot->at <= snapshot->size ? snapshot->bytes + at : NULL;
}

static mpt_status mpt__snapshot_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__snapshot *snapshot = (mpt__snapshot *)user;
    const uint64_t mark = mpt__item_mark(item);
    int64_t n = mpt__item_bytes(item), number, size = (int64_t)mpt_dtype_size(item->dtype);
    uint8_t *to = mpt__snapshot_take(snapshot, 8 + mpt__aligned_up(n, 8));
    if (!to) return ctx->base.status;
    memcpy(to, &mark, 8);
    memset(to + 8 + n, 0, (size_t)(mpt__aligned_up(n, 8) - n));
    if (item->storage) return mpt__download(ctx, to + 8, item->storage, item->offset * size, n);
    if (item->array) return memcpy(to + 8, item->array, (size_t)n), ctx->base.status;
    mpt__item_get(ctx, item, &number);
    memcpy(to + 8, &number, 8);
    return ctx->base.status;
}

/* A mark in the block tells whether what may be missing is there. */
static bool mpt__snapshot_writes(void *user, const char *name, bool now) {
    uint64_t there = now;
    (void)name;
    uint8_t *to = mpt__snapshot_take((mpt__snapshot *)user, 8);
    if (to) memcpy(to, &there, 8);
    return now;
}

static bool mpt__snapshot_reads(void *user, const char *name, bool now) {
    uint64_t there = now;
    (void)name;
    const uint8_t *from = mpt__snapshot_take((mpt__snapshot *)user, 8);
    if (from) memcpy(&there, from, 8);
    return there == 1;
}

static mpt_status mpt__snapshot_check(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__snapshot *snapshot = (mpt__snapshot *)user;
    const uint64_t mark = mpt__item_mark(item);
    const uint8_t *from =
        mpt__snapshot_take(snapshot, 8 + mpt__aligned_up(mpt__item_bytes(item), 8));
    int64_t number;
    if (from && memcmp(from, &mark, 8) == 0) {
        memcpy(&number, from + 8, 8);
        return mpt__item_limited(item) ? mpt__number_check(ctx, "the block", item, number) : MPT_OK;
    }
    return mpt__error(
        ctx, FORMAT, "the block is no snapshot of this training: %s is not in it", item->name);
}

static mpt_status mpt__snapshot_apply(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__snapshot *snapshot = (mpt__snapshot *)user;
    int64_t n = mpt__item_bytes(item), number, size = (int64_t)mpt_dtype_size(item->dtype);
    const uint8_t *from = mpt__snapshot_take(snapshot, 8 + mpt__aligned_up(n, 8));
    if (!from) return mpt__error(ctx, FORMAT, "the block ends before %s", item->name);
    if (item->storage) return mpt__upload(ctx, item->storage, item->offset * size, from + 8, n);
    if (item->array) return memcpy(item->array, from + 8, (size_t)n), ctx->base.status;
    memcpy(&number, from + 8, 8);
    if (!item->same) mpt__item_set(ctx, item, number);
    return ctx->base.status;
}

/* Writes a snapshot, or counts its bytes; -1 with an error recorded. */
static int64_t mpt__snapshot_make(mpt_context *ctx, void *block, size_t bytes) {
    mpt__snapshot snapshot = {(uint8_t *)block, 0, (int64_t)bytes};
    mpt__state_walk w;
    if (!mpt__state_stands(ctx)) return -1;
    mpt__state_walk_begin(&w, ctx, mpt__snapshot_item, &snapshot);
    w.present = mpt__snapshot_writes;
    return mpt__visit_state(&w) == MPT_OK ? snapshot.at : -1;
}

int64_t mpt_snapshot_bytes(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_snapshot_bytes")) return -1;
    return mpt__snapshot_make(ctx, NULL, 0);
}

mpt_status mpt_snapshot(mpt_context *ctx, void *block, size_t bytes) {
    if (bytes > PTRDIFF_MAX) bytes = PTRDIFF_MAX;
    if (!mpt__enter(ctx, "mpt_snapshot")) return mpt__status_of(ctx);
    if (!block) return mpt__error(ctx, ARGUMENT, "block is NULL");
    const int64_t need = mpt__snapshot_make(ctx, NULL, 0);
    if (need > 0 && (uint64_t)need > bytes)
        return mpt__error(
            ctx, ARGUMENT, "the block has %lld bytes, a snapshot %lld", (int64_t)bytes, need);
    if (need > 0) mpt__snapshot_make(ctx, block, bytes);
    return ctx->base.status;
}

mpt_status mpt_restore(mpt_context *ctx, const void *block, size_t bytes) {
    MPT__PLAIN_FLOATS;
    mpt__snapshot snapshot = {(uint8_t *)(uintptr_t)block, 0, (int64_t)bytes};
    mpt__state_walk w;
    if (!mpt__enter(ctx, "mpt_restore")) return mpt__status_of(ctx);
    if (!block || bytes > PTRDIFF_MAX)
        return mpt__error(ctx, ARGUMENT, "%lld bytes%s", (int64_t)bytes, block ? "" : " at NULL");
    if (!mpt__state_stands(ctx)) return ctx->base.status;
    mpt__state_walk_begin(&w, ctx, mpt__snapshot_check, &snapshot);
    w.mode = MPT__STATE_CHECKS;
    w.present = mpt__snapshot_reads;
    if (mpt__visit_state(&w) != MPT_OK) return ctx->base.status;
    w.mode = MPT__STATE_APPLIES;
    w.visit = mpt__snapshot_apply;
    snapshot.at = 0;
    return mpt__visit_state(&w);
}

#endif /* MPTRAIN_NO_RESUME */

#endif
