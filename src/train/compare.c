/* ----
 * train/compare.c: where two runs of a training part: the first piece of its state that differs.
 * ---- */
#ifndef MPT__TRAIN_COMPARE_INCLUDED
#define MPT__TRAIN_COMPARE_INCLUDED

#include "train/resume.c"

#ifdef MPTRAIN_NO_RESUME

MPT__BEGIN_ABSENT
size_t mpt_checkpoint_difference(mpt_context *ctx, const char *path, char *text, size_t size) {
    mpt__text_make(text, size);
    mpt__resume_missing(ctx, "mpt_checkpoint_difference");
    return 0;
}

size_t mpt_snapshot_difference(
    mpt_context *ctx, const void *block, size_t bytes, char *text, size_t size) {
    mpt__text_make(text, size);
    mpt__resume_missing(ctx, "mpt_snapshot");
    return 0;
}
MPT__END_ABSENT

#else

/* The other run: a file, or a block, and what was found. */
typedef struct {
    mpt__archive *archive; /* NULL: the snapshot */
    mpt__snapshot snapshot;
    mpt__text text;
    uint8_t *chunk;
    bool found; /* the first difference is in the text */
} mpt__comparing;

static void mpt__compare_place(mpt__text *text, const mpt_shape *shape, int64_t at) {
    int64_t inner = 1;
    for (int d = 0; d < shape->rank; d++) inner *= shape->dim[d];
    for (int d = 0; d < shape->rank; d++) {
        inner /= shape->dim[d];
        mpt__write_text(text, "%s%lld", d == 0 ? "[" : ", ", at / inner);
        at %= inner;
    }
    if (shape->rank > 0) mpt__write_text(text, "]");
}

static void mpt__compare_value(mpt__text *text, mpt_dtype dtype, const void *element) {
    double value;
    int64_t number;
    if (dtype == MPT_I64) {
        memcpy(&number, element, 8);
        mpt__write_text(text, "%lld", number);
        return;
    }
    mpt__load_f64(&value, element, (uint8_t)dtype, 0, 1, 1);
    mpt__write_text(text, "%.9g", value);
}

/* Elements from number `first` on, in the file's order of bytes or the machine's. */
static void mpt__compare_bytes(mpt__comparing *c, const mpt__state_item *item, int64_t first,
    const uint8_t *here, const uint8_t *there, int64_t n) {
    const size_t size = mpt_dtype_size(item->dtype);
    int64_t one[2];
    int64_t at = 0;
    if (c->found || memcmp(here, there, (size_t)n * size) == 0) return;
    while (memcmp(here + (size_t)at * size, there + (size_t)at * size, size) == 0) at++;
    memcpy(&one[0], here + (size_t)at * size, size);
    memcpy(&one[1], there + (size_t)at * size, size);
    for (int k = 0; k < 2 && c->archive; k++) mpt__file_order((uint8_t *)&one[k], size, size);
    c->found = true;
    mpt__write_text(&c->text, "%s", item->name);
    mpt__compare_place(&c->text, &item->shape, first + at);
    mpt__write_text(&c->text, " is ");
    mpt__compare_value(&c->text, item->dtype, &one[0]);
    mpt__write_text(&c->text, " here and ");
    mpt__compare_value(&c->text, item->dtype, &one[1]);
    mpt__write_text(&c->text, " there");
}

/* Where an item lies in the other run, of the same kind; NULL where it does not. */
static const uint8_t *mpt__compare_there(mpt__comparing *c, const mpt__state_item *item) {
    const int64_t n = mpt__item_bytes(item);
    const uint64_t mark = mpt__item_mark(item);
    if (!c->archive) {
        const uint8_t *from = mpt__snapshot_take(&c->snapshot, 8 + mpt__aligned_up(n, 8));
        return from && memcmp(from, &mark, 8) == 0 ? from + 8 : NULL;
    }
    mpt__entry *entry = mpt__state_entry(c->archive, item->name);
    if (!entry) return NULL;
    entry->weight = 1; /* seen */
    return entry->dtype == item->dtype && entry->end - entry->begin == n
        ? c->archive->data + entry->begin
        : NULL;
}

static mpt_status mpt__compare_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__comparing *c = (mpt__comparing *)user;
    const int64_t size = (int64_t)mpt_dtype_size(item->dtype), most = MPT__SAVE_CHUNK / size;
    if (c->found) return ctx->base.status;
    const uint8_t *there = mpt__compare_there(c, item);
    if (!there) {
        c->found = true;
        mpt__write_text(&c->text, "%s of shape %S and dtype %D is here alone", item->name,
            &item->shape, item->dtype);
        return ctx->base.status;
    }
    for (int64_t at = 0, n; at < item->count && !item->identity; at += n) {
        n = item->count - at < most ? item->count - at : most;
        if (item->storage)
            mpt__download(ctx, c->chunk, item->storage, (item->offset + at) * size, n * size);
        else if (item->array)
            memcpy(c->chunk, (const uint8_t *)item->array + at * size, (size_t)(n * size));
        else
            mpt__item_get(ctx, item, (int64_t *)(void *)c->chunk);
        if (!mpt__ok(ctx)) break;
        if (c->archive) mpt__file_order(c->chunk, (size_t)(n * size), (size_t)size);
        mpt__compare_bytes(c, item, at, c->chunk, there + at * size, n);
    }
    return ctx->base.status;
}

/* What only one of the two has is a difference; what is here is shown. */
static bool mpt__compare_present(void *user, const char *name, bool now) {
    mpt__comparing *c = (mpt__comparing *)user;
    const bool there = c->archive ? mpt__entry_there(c->archive, name, now)
                                  : mpt__snapshot_reads(&c->snapshot, name, now);
    if (there != now && !c->found) {
        c->found = true;
        mpt__write_text(&c->text, "%s is %s alone", name, now ? "here" : "there");
    }
    return now;
}

static size_t mpt__compare(mpt_context *ctx, mpt__comparing *c) {
    mpt__state_walk w;
    char shown[MPT__SHOWN_NAME];
    c->chunk = (uint8_t *)mpt__host_new(ctx, MPT__SAVE_CHUNK);
    mpt__state_walk_begin(&w, ctx, mpt__compare_item, c);
    w.present = mpt__compare_present;
    if (c->chunk) mpt__visit_state(&w);
    for (int64_t i = 0; c->archive && i < c->archive->count && !c->found && mpt__ok(ctx); i++) {
        const mpt__entry *entry = &c->archive->entries[i];
        if (entry->weight || mpt__span_is(entry->name, mpt__hash_name)) continue;
        c->found = true;
        mpt__write_text(&c->text, "%s is there alone", mpt__show_name(entry->name, shown));
    }
    mpt__host_free(ctx, c->chunk, MPT__SAVE_CHUNK);
    return mpt__ok(ctx) ? c->text.length : 0;
}

size_t mpt_checkpoint_difference(mpt_context *ctx, const char *path, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt__comparing c;
    mpt__archive archive;
    mpt__reader file;
    size_t length = 0;
    mpt__zero(c);
    mpt__zero(archive);
    c.text = mpt__text_make(text, size);
    c.archive = &archive;
    if (!mpt__enter(ctx, "mpt_checkpoint_difference") || mpt__no_files(ctx)) return 0;
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty"), (size_t)0;
    archive.context = ctx, archive.json.name = path;
    if (!mpt__state_stands(ctx) || !mpt__reader_open(&file, ctx, path)) return 0;
    const bool good = mpt__archive_read_file(&archive, &file);
    mpt__reader_close(&file);
    if (good) length = mpt__compare(ctx, &c);
    mpt__archive_free(&archive);
    return length;
}

size_t mpt_snapshot_difference(
    mpt_context *ctx, const void *block, size_t bytes, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt__comparing c;
    mpt__zero(c);
    c.text = mpt__text_make(text, size);
    c.snapshot.bytes = (uint8_t *)(uintptr_t)block;
    c.snapshot.size = bytes < PTRDIFF_MAX ? (int64_t)bytes : (int64_t)PTRDIFF_MAX;
    if (!mpt__enter(ctx, "mpt_snapshot_difference")) return 0;
    if (!block) return mpt__error(ctx, ARGUMENT, "block is NULL"), (size_t)0;
    return mpt__state_stands(ctx) ? mpt__compare(ctx, &c) : 0;
}

#endif /* MPTRAIN_NO_RESUME */

#endif
