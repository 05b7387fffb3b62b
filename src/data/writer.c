/* ------------------------
 * data/writer.c: files written as a whole or not at all.
 * ---------------------- */
#ifndef MPT__DATA_WRITER_INCLUDED
#define MPT__DATA_WRITER_INCLUDED

#include "core/context.h"

/* The file being written. */
typedef struct {
    mpt_context *context;
    void *file;
    const char *path; /* for messages: where it will be */
    int64_t position;
} mpt__writer;

/* Writes everything between open and close; false with an error recorded. */
typedef bool (*mpt__content_fn)(mpt__writer *writer, const void *of);

static bool mpt__write_bytes(mpt__writer *writer, const void *bytes, size_t n) {
    const mpt_io *io = mpt__io(&writer->context->base);
    size_t written = io->write ? io->write(io->user, writer->file, bytes, n) : 0;
    if (written != n)
        return mpt__reject(writer->context, IO, "%s: writing %lld bytes at byte %lld took %lld: %s",
                           writer->path, (int64_t)n, writer->position, (int64_t)written,
                           mpt__io_reason(&writer->context->base));
    writer->position += (int64_t)n;
    return true;
}

static bool mpt__write_content(mpt__writer *writer, mpt__content_fn content, const void *of) {
    if (!content(writer, of)) return false;
    const mpt_io *io = mpt__io(&writer->context->base);
    return (io->flush && io->flush(io->user, writer->file)) ||
           mpt__reject(writer->context, IO, "%s: cannot be written to the medium: %s", writer->path,
                       mpt__io_reason(&writer->context->base));
}

/* Writes beside the file, then puts the new one in its place; on failure nothing is left behind. */
static bool mpt__write_file(mpt_context *ctx, const char *path, mpt__content_fn content,
                            const void *of) {
    const mpt__base *base = &ctx->base;
    const mpt_io *io = mpt__io(base);
    mpt__writer writer = {ctx, NULL, path, 0};
    mpt__new_file t;
    if (strlen(path) >= MPT__PATH_SIZE - 64)
        return mpt__reject(ctx, ARGUMENT, "the path is longer than %d bytes", MPT__PATH_SIZE - 64);
    if (!mpt__new_file_begin(base, path, &t))
        return mpt__reject(ctx, IO, "cannot write %s: %s", path, mpt__io_reason(base));
    writer.file = io->open ? io->open(io->user, t.path, 'w') : NULL;
    if (!writer.file) {
        mpt__error(ctx, IO, "cannot write %s by way of %s: %s", path, t.path, mpt__io_reason(base));
        return mpt__new_file_end(&t, false);
    }
    bool good = mpt__write_content(&writer, content, of);
    if (!(mpt__io(base)->close && io->close(io->user, writer.file)) && good)
        good = mpt__reject(ctx, IO, "%s: cannot be closed: %s", path, mpt__io_reason(base));
    if (good && !(mpt__io(base)->commit && io->commit(io->user, t.path, t.target)))
        good = mpt__reject(ctx, IO, "cannot move the finished file to %s: %s", path,
                           mpt__io_reason(base));
    if (!good && io->remove) io->remove(io->user, t.path);
    return mpt__new_file_end(&t, good);
}

#endif
