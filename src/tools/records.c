/* ----
 * tools/records.c: files that grow by records: opened again, mended, written, cut back.
 *
 * A record is a line of text, or, in an event file, a length, data and two checks (TensorFlow's
 * TFRecord): so a file that ends in the middle of one is known for what it is.
 * ---- */
#ifndef MPT__RECORDS_INCLUDED
#define MPT__RECORDS_INCLUDED

#include "numbers.c"

/* A file of records. What is to be written waits in `pending`. */
typedef struct mpt__tools_stream {
    const struct mpt__tools_format *format;
    char *path;
    FILE *file; /* at its end, without a buffer of its own, so that what is written is known */
    mpt__tools_bytes pending;
    int error;         /* the system's number; 0: all is well */
    const char *fault; /* what could not be done: "opened" */
    int64_t dropped;   /* bytes */
    bool fresh;        /* nothing is in it yet */
} mpt__tools_stream;

/* What a record that was read is. */
typedef enum {
    MPT__TOOLS_RECORD_NONE,    /* the file ends */
    MPT__TOOLS_RECORD_WHOLE,   /* and its step is known */
    MPT__TOOLS_RECORD_HEAD,    /* it has no step and stays */
    MPT__TOOLS_RECORD_BAD,     /* it is damaged, what is behind it is not */
    MPT__TOOLS_RECORD_TORN,    /* it ends too early, or nobody knows where it ends */
    MPT__TOOLS_RECORD_FOREIGN, /* nothing that a journal wrote */
    MPT__TOOLS_RECORD_FAILED   /* it could not be read, by errno */
} mpt__tools_record;

/* A kind of file: how the record that begins at the place of `file` is read, and what the first
   line is, if it is one of text. */
typedef struct mpt__tools_format {
    const char *name, *first;
    mpt__tools_record (*read)(FILE *file, mpt__tools_bytes *record, int64_t *step);
} mpt__tools_format;

/* Adds up to `size` bytes of the file to a record; returns how many. */
static size_t mpt__tools_record_add(FILE *file, mpt__tools_bytes *record, size_t size) {
    if (!mpt__tools_bytes_reserve(record, size)) return 0;
    const size_t got = fread(record->data + record->size, 1, size, file);
    record->size += got;
    return got;
}

/* ==== Lines ==== */

/* Whether a line begins as `head` does, as far as both go. */
static bool mpt__tools_begins(const mpt__tools_bytes *line, const char *head) {
    const size_t length = strlen(head);
    return memcmp(line->data, head, line->size < length ? line->size : length) == 0;
}

/* Reads a line with its end; RECORD_TORN where that is missing. */
static mpt__tools_record mpt__tools_line_read(FILE *file, mpt__tools_bytes *line) {
    int c = 0;
    line->size = 0;
    while (c != '\n' && (c = getc(file)) != EOF) {
        const unsigned char byte = (unsigned char)c;
        mpt__tools_bytes_put(line, &byte, 1);
    }
    if (ferror(file) || line->failed) return MPT__TOOLS_RECORD_FAILED;
    return c == '\n' ? MPT__TOOLS_RECORD_WHOLE
        : line->size ? MPT__TOOLS_RECORD_TORN
                     : MPT__TOOLS_RECORD_NONE;
}

/* The number that stands at text[at..size); false where there is none. */
static bool mpt__tools_number_at(const mpt__tools_bytes *text, size_t at, int64_t *number) {
    const size_t begin = at;
    *number = 0;
    for (; at < text->size && text->data[at] >= '0' && text->data[at] <= '9'; at++) {
        if (*number > (INT64_MAX - 9) / 10) return false;
        *number = *number * 10 + (text->data[at] - '0');
    }
    return at > begin;
}

#define MPT__TOOLS_CSV_HEAD "step,time,tag,value\n"
#define MPT__TOOLS_JSON_HEAD "{\"step\":"

static mpt__tools_record mpt__tools_csv_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
    const bool first = ftell(file) == 0;
    const mpt__tools_record found = mpt__tools_line_read(file, line);
    if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
    if (first &&
        (!mpt__tools_begins(line, MPT__TOOLS_CSV_HEAD) || line->size > strlen(MPT__TOOLS_CSV_HEAD)))
        return MPT__TOOLS_RECORD_FOREIGN;
    if (found == MPT__TOOLS_RECORD_TORN) return found;
    if (first) return MPT__TOOLS_RECORD_HEAD;
    return mpt__tools_number_at(line, 0, step) ? found : MPT__TOOLS_RECORD_BAD;
}

static mpt__tools_record mpt__tools_json_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
    const bool first = ftell(file) == 0;
    const mpt__tools_record found = mpt__tools_line_read(file, line);
    if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
    if (first && !mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD)) return MPT__TOOLS_RECORD_FOREIGN;
    if (found == MPT__TOOLS_RECORD_TORN) return found;
    return mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD) &&
            mpt__tools_number_at(line, strlen(MPT__TOOLS_JSON_HEAD), step)
        ? found
        : MPT__TOOLS_RECORD_BAD;
}

/* ==== Files ==== */

static bool mpt__tools_stream_fails(mpt__tools_stream *stream, const char *fault) {
    stream->error = errno ? errno : EIO;
    stream->fault = fault;
    return false;
}

/* Reads all records from where `from` begins. Those of steps up to `last` go to `to`, where that is
   a file. *dropped becomes the bytes of the others. False: it failed. */
static bool mpt__tools_stream_sift(
    mpt__tools_stream *stream, FILE *from, FILE *to, int64_t last, int64_t *dropped) {
    mpt__tools_bytes record = {NULL, 0, 0, false};
    bool fine = true;
    *dropped = 0;
    while (fine) {
        int64_t step = 0;
        errno = 0;
        const mpt__tools_record found = stream->format->read(from, &record, &step);
        if (found == MPT__TOOLS_RECORD_NONE) break;
        if (found == MPT__TOOLS_RECORD_FOREIGN) {
            errno = 0;
            stream->fault = "gone on with, as no journal wrote it";
            fine = false;
        } else if (found == MPT__TOOLS_RECORD_FAILED) {
            fine = mpt__tools_stream_fails(stream, "read");
        } else if (found == MPT__TOOLS_RECORD_HEAD ||
            (found == MPT__TOOLS_RECORD_WHOLE && step <= last)) {
            if (to && fwrite(record.data, 1, record.size, to) != record.size)
                fine = mpt__tools_stream_fails(stream, "written anew");
        } else {
            *dropped += (int64_t)record.size;
        }
        if (found == MPT__TOOLS_RECORD_TORN) {
            while (getc(from) != EOF) ++*dropped;
            break;
        }
    }
    mpt__tools_bytes_free(&record);
    return fine;
}

/* Leaves in a closed file what is whole and of steps up to `last`. It is replaced as a whole, so
   that a kill leaves the old one or the new one. */
static bool mpt__tools_stream_mend(mpt__tools_stream *stream, int64_t last) {
    int64_t dropped;
    errno = 0;
    FILE *from = mpt__tools_file_open(stream->path, "rb");
    if (!from) return errno == ENOENT ? true : mpt__tools_stream_fails(stream, "opened");
    bool fine = mpt__tools_stream_sift(stream, from, NULL, last, &dropped);
    if (!fine || dropped == 0) {
        fclose(from);
        return fine;
    }
    mpt__tools_bytes name = {NULL, 0, 0, false};
    mpt__tools_bytes_put_text(&name, stream->path);
    mpt__tools_bytes_put(&name, ".new", 5);
    const char *path = (const char *)name.data;
    errno = 0;
    FILE *to = name.failed ? NULL : mpt__tools_file_open(path, "wb");
    rewind(from);
    fine = to ? mpt__tools_stream_sift(stream, from, to, last, &dropped)
              : mpt__tools_stream_fails(stream, "written anew");
    fclose(from);
    if (to && fclose(to) != 0 && fine) fine = mpt__tools_stream_fails(stream, "written anew");
    if (fine && mpt__tools_file_move(path, stream->path) != 0)
        fine = mpt__tools_stream_fails(stream, "replaced");
    if (!fine && to) mpt__tools_file_remove(path);
    if (fine) stream->dropped += dropped;
    mpt__tools_bytes_free(&name);
    return fine;
}

/* Opens the file for what is added to it. */
static bool mpt__tools_stream_open(mpt__tools_stream *stream, bool anew) {
    errno = 0;
    stream->file = mpt__tools_file_open(stream->path, anew ? "wb" : "ab");
    if (!stream->file) return mpt__tools_stream_fails(stream, "opened");
    setvbuf(stream->file, NULL, _IONBF, 0);
    if (fseek(stream->file, 0, SEEK_END) != 0) errno = 0; /* a pipe or a device has no end */
    stream->fresh = ftell(stream->file) <= 0;
    if (stream->fresh && stream->format->first)
        mpt__tools_bytes_put_text(&stream->pending, stream->format->first);
    return true;
}

/* Writes what waits. What is written leaves `pending`, the rest stays. */
static bool mpt__tools_stream_flush(mpt__tools_stream *stream) {
    mpt__tools_bytes *pending = &stream->pending;
    if (!stream->file || pending->size == 0) return stream->error == 0;
    errno = 0;
    const size_t written = fwrite(pending->data, 1, pending->size, stream->file);
    if (written < pending->size)
        mpt__tools_stream_fails(stream, "written");
    else
        stream->error = 0;
    clearerr(stream->file);
    memmove(pending->data, pending->data + written, pending->size - written);
    pending->size -= written;
    return stream->error == 0;
}

/* False where the last bytes could not be written. */
static bool mpt__tools_stream_close(mpt__tools_stream *stream) {
    bool fine = mpt__tools_stream_flush(stream);
    errno = 0;
    if (stream->file && fclose(stream->file) != 0) fine = mpt__tools_stream_fails(stream, "closed");
    stream->file = NULL;
    return fine;
}

#endif
