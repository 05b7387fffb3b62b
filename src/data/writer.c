/* ----
 * data/writer.c: files written as a whole or not at all.
 * ---- */
#ifndef MPT__DATA_WRITER_INCLUDED
#define MPT__DATA_WRITER_INCLUDED

#include "core/context.h"

/* The file being written, or what it would hold. Errors are the base's. */
typedef struct {
    mpt__base *base;
    void *file;
    const char *path; /* for messages: where it will be */
    int64_t position;
    uint8_t *memory; /* NULL: all goes to the file */
    bool hashes;
    uint64_t hash; /* of the pieces since its owner set it, where it hashes */
} mpt__writer;

#define mpt__write_reject(writer, STATUS, ...) \
    (mpt__fail((writer)->base, MPT_ERROR_##STATUS, __VA_ARGS__), false)

/* Writes everything between open and close; false with an error recorded. */
typedef bool (*mpt__content_fn)(mpt__writer *writer, const void *of);

static bool mpt__write_bytes(mpt__writer *writer, const void *bytes, size_t n) {
    const mpt_io *io = mpt__io(writer->base);
    size_t written = n;
    if (writer->hashes) writer->hash = mpt__hash_bytes(writer->hash, bytes, n);
    if (writer->memory)
        memcpy(writer->memory + writer->position, bytes, n);
    else
        written = io->write ? io->write(io->user, writer->file, bytes, n) : 0;
    if (written != n)
        return mpt__write_reject(writer, IO, "%s: writing %lld bytes at byte %lld took %lld: %s",
            writer->path, (int64_t)n, writer->position, (int64_t)written,
            mpt__io_reason(writer->base));
    writer->position += (int64_t)n;
    return true;
}

static bool mpt__write_content(mpt__writer *writer, mpt__content_fn content, const void *of) {
    if (!content(writer, of)) return false;
    const mpt_io *io = mpt__io(writer->base);
    return (io->flush && io->flush(io->user, writer->file)) ||
        mpt__write_reject(writer, IO, "%s: cannot be written to the medium: %s", writer->path,
            mpt__io_reason(writer->base));
}

/* Writes beside the file, then puts the new one in its place; a failure leaves nothing. */
static bool mpt__write_file(
    mpt__base *base, const char *path, mpt__content_fn content, const void *of) {
    const mpt_io *io = mpt__io(base);
    mpt__writer writer;
    mpt__new_file t;
    mpt__zero(writer);
    writer.base = base, writer.path = path;
    if (mpt__is_dry(base)) return true;
    if (strlen(path) >= MPT__PATH_SIZE - 64)
        return mpt__write_reject(
            &writer, ARGUMENT, "the path is longer than %d bytes", MPT__PATH_SIZE - 64);
    if (!mpt__new_file_begin(base, path, &t))
        return mpt__write_reject(&writer, IO, "cannot write %s: %s", path, mpt__io_reason(base));
    writer.file = io->open ? io->open(io->user, t.path, 'w') : NULL;
    if (!writer.file) {
        mpt__fail(base, MPT_ERROR_IO, "cannot write %s by way of %s: %s", path, t.path,
            mpt__io_reason(base));
        return mpt__new_file_end(&t, false);
    }
    bool good = mpt__write_content(&writer, content, of);
    if (!(mpt__io(base)->close && io->close(io->user, writer.file)) && good)
        good =
            mpt__write_reject(&writer, IO, "%s: cannot be closed: %s", path, mpt__io_reason(base));
    if (good && !(mpt__io(base)->commit && io->commit(io->user, t.path, t.target)))
        good = mpt__write_reject(
            &writer, IO, "cannot move the finished file to %s: %s", path, mpt__io_reason(base));
    if (!good && io->remove) io->remove(io->user, t.path);
    return mpt__new_file_end(&t, good);
}

#endif
