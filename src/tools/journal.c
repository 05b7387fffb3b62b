/* ----
 * tools/journal.c: the journal: entries, and the files that they go to.
 * ---- */
#ifndef MPT__JOURNAL_INCLUDED
#define MPT__JOURNAL_INCLUDED

#include "events.c"

enum { MPT__TOOLS_EVENT_FILE, MPT__TOOLS_CSV_FILE, MPT__TOOLS_JSON_FILE, MPT__TOOLS_JOURNAL_FILES };
enum { MPT__TOOLS_TAG_BYTES = 255, MPT__TOOLS_BINS = 64, MPT__TOOLS_FLUSH_BYTES = 1 << 16 };

/* There is one event file in a folder, so that a training that goes on finds its own. */
#define MPT__TOOLS_EVENT_NAME "/events.out.tfevents.0000000000.mptrain"

static const mpt__tools_format mpt__tools_journal_formats[MPT__TOOLS_JOURNAL_FILES] = {
    {"event file", NULL, mpt__tools_event_read},
    {"CSV file", MPT__TOOLS_CSV_HEAD, mpt__tools_csv_read},
    {"JSON file", NULL, mpt__tools_json_read},
};

struct mpt_journal {
    mpt_journal_config config;
    mpt__tools_stream streams[MPT__TOOLS_JOURNAL_FILES];
    mpt__tools_bytes record;    /* that is being made */
    mpt_status status;          /* of opening it and of what is lost */
    double flushed;             /* when */
    int64_t fit_base, fit_last; /* steps before this fit; the last one logged */
    bool fit_began;
    char error[768];
};

mpt_journal_config mpt_journal_config_default(void) {
    mpt_journal_config config;
    memset(&config, 0, sizeof config);
    config.resume = true;
    config.flush_seconds = 2;
    config.every = 1;
    return config;
}

/* ==== Errors ==== */

/* Puts texts side by side into the journal's error, up to a NULL, and cuts what does not fit. */
static void mpt__tools_journal_say(mpt_journal *journal, const char *const *texts) {
    size_t n = 0;
    for (; *texts; texts++)
        for (const char *c = *texts; *c && n + 1 < sizeof journal->error; c++)
            journal->error[n++] = *c;
    journal->error[n] = 0;
}

/* Says what is wrong with the first file of which something is. */
static mpt_status mpt__tools_journal_look(mpt_journal *journal) {
    if (journal->status != MPT_OK) return journal->status;
    journal->error[0] = 0;
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
        const mpt__tools_stream *stream = &journal->streams[i];
        mpt__tools_bytes number = {NULL, 0, 0, false};
        if (!stream->fault || (stream->file && stream->error == 0)) continue;
        mpt__tools_put_integer(&number, stream->error);
        mpt__tools_bytes_put(&number, "", 1);
        const char *const system[] = {stream->format->name, " ", stream->path, ": cannot be ",
            stream->fault, ": ", strerror(stream->error), " (errno ",
            number.failed ? "?" : (const char *)number.data, ")", NULL};
        const char *const plain[] = {
            stream->format->name, " ", stream->path, ": cannot be ", stream->fault, NULL};
        mpt__tools_journal_say(journal, stream->error ? system : plain);
        mpt__tools_bytes_free(&number);
        return stream->error ? MPT_ERROR_IO : MPT_ERROR_FORMAT;
    }
    return MPT_OK;
}

/* An error that stays. */
static mpt_status mpt__tools_journal_fail(
    mpt_journal *journal, mpt_status status, const char *what, const char *name) {
    const char *const texts[] = {what, name, NULL};
    mpt__tools_journal_say(journal, texts);
    return journal->status = status;
}

/* An error of one call, which the next one that is right takes back. */
static mpt_status mpt__tools_journal_refuse(mpt_journal *journal, const char *what) {
    const char *const texts[] = {what, NULL};
    mpt__tools_journal_say(journal, texts);
    return MPT_ERROR_ARGUMENT;
}

const char *mpt_journal_error(const mpt_journal *journal) {
    return journal ? journal->error : "there is no journal, or no memory for one";
}

/* ==== Opening and closing ==== */

static double mpt__tools_journal_now(const mpt_journal *journal) {
    return journal->config.now ? journal->config.now(journal->config.user)
                               : mpt__tools_system_now();
}

/* The path of a file, with the folders that it needs made; NULL without memory. */
static char *mpt__tools_journal_path(int file, const char *given) {
    mpt__tools_bytes path = {NULL, 0, 0, false};
    mpt__tools_bytes_put_text(&path, given);
    const size_t before = path.size;
    if (file == MPT__TOOLS_EVENT_FILE) mpt__tools_bytes_put_text(&path, MPT__TOOLS_EVENT_NAME);
    mpt__tools_bytes_put(&path, "", 1);
    if (path.failed) {
        mpt__tools_bytes_free(&path);
        return NULL;
    }
    char *text = (char *)path.data;
    size_t folder = file == MPT__TOOLS_EVENT_FILE ? before : strlen(text);
    while (file != MPT__TOOLS_EVENT_FILE && folder > 0 && !mpt__tools_is_separator(text[folder]))
        folder--;
    const char at = text[folder];
    text[folder] = 0;
    if (folder > 0) mpt__tools_folders_make(text);
    text[folder] = at;
    return text;
}

static bool mpt__tools_journal_open_file(mpt_journal *journal, int file, const char *path) {
    mpt__tools_stream *stream = &journal->streams[file];
    const bool anew = !journal->config.resume;
    if (!path) return true;
    stream->format = &mpt__tools_journal_formats[file];
    stream->path = mpt__tools_journal_path(file, path);
    if (!stream->path) {
        mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the path ", path);
        return false;
    }
    if ((anew || mpt__tools_stream_mend(stream, INT64_MAX)) &&
        mpt__tools_stream_open(stream, anew)) {
        if (file == MPT__TOOLS_EVENT_FILE && stream->fresh)
            mpt__tools_put_event_record(&stream->pending, NULL, mpt__tools_journal_now(journal));
        return true;
    }
    journal->status = mpt__tools_journal_look(journal);
    return false;
}

mpt_journal *mpt_journal_open(const mpt_journal_config *config) {
    mpt_journal *journal = (mpt_journal *)mpt__tools_allocate(sizeof *journal);
    if (!journal) return NULL;
    journal->config = config ? *config : mpt_journal_config_default();
    const mpt_journal_config *c = &journal->config;
    const char *const paths[MPT__TOOLS_JOURNAL_FILES] = {c->tensorboard, c->csv, c->jsonl};
    bool fine = true;
    if (c->every < 1)
        mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "every is less than 1", "");
    else if (!(c->flush_seconds >= 0))
        mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "flush_seconds is less than 0", "");
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES && fine && journal->status == MPT_OK; i++)
        fine = mpt__tools_journal_open_file(journal, i, paths[i]);
    journal->flushed = mpt__tools_journal_now(journal);
    return journal;
}

mpt_status mpt_journal_flush(mpt_journal *journal) {
    if (!journal) return MPT_ERROR_HANDLE;
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++)
        mpt__tools_stream_flush(&journal->streams[i]);
    journal->flushed = mpt__tools_journal_now(journal);
    return mpt__tools_journal_look(journal);
}

mpt_status mpt_journal_close(mpt_journal *journal) {
    if (!journal) return MPT_OK;
    mpt_status status = journal->status;
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
        mpt__tools_stream *stream = &journal->streams[i];
        if (!mpt__tools_stream_close(stream) && status == MPT_OK) status = MPT_ERROR_IO;
        mpt__tools_bytes_free(&stream->pending);
        mpt__tools_release(stream->path);
    }
    mpt__tools_bytes_free(&journal->record);
    mpt__tools_release(journal);
    return status;
}

int64_t mpt_journal_dropped(const mpt_journal *journal) {
    int64_t dropped = 0;
    for (int i = 0; journal && i < MPT__TOOLS_JOURNAL_FILES; i++)
        dropped += journal->streams[i].dropped;
    return dropped;
}

/* What waits is written first, so that it is taken back, too, where it is of later steps. */
mpt_status mpt_journal_rewind(mpt_journal *journal, int64_t step) {
    mpt_status status = mpt_journal_flush(journal);
    if (status != MPT_OK) return status;
    if (step < -1)
        return mpt__tools_journal_refuse(journal, "mpt_journal_rewind: step is less than -1");
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
        mpt__tools_stream *stream = &journal->streams[i];
        if (!stream->path) continue;
        bool fine = mpt__tools_stream_close(stream) && mpt__tools_stream_mend(stream, step);
        if (!fine || !mpt__tools_stream_open(stream, false)) {
            status = mpt__tools_journal_look(journal);
            journal->status = status;
        }
    }
    return journal->status;
}

/* ==== Entries ==== */

/* A tag or a text as JSON: in quotes, with control characters by number. */
static void mpt__tools_put_json_text(mpt__tools_bytes *to, const char *text) {
    static const char digits[] = "0123456789abcdef";
    mpt__tools_bytes_put(to, "\"", 1);
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            const char code[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
            mpt__tools_bytes_put(to, code, 6);
            continue;
        }
        if (c == '"' || c == '\\') mpt__tools_bytes_put(to, "\\", 1);
        mpt__tools_bytes_put(to, text, 1);
    }
    mpt__tools_bytes_put(to, "\"", 1);
}

/* JSON has no number for what is not finite: a string, by the names that Python's float takes. */
static void mpt__tools_put_json_number(mpt__tools_bytes *to, double value) {
    const bool finite = mpt__tools_is_finite(value);
    if (!finite) mpt__tools_bytes_put(to, "\"", 1);
    mpt__tools_put_number(to, value);
    if (!finite) mpt__tools_bytes_put(to, "\"", 1);
}

static void mpt__tools_put_json_numbers(
    mpt__tools_bytes *to, const char *name, const double *values, int count) {
    mpt__tools_bytes_put_text(to, name);
    for (int i = 0; i < count; i++) {
        mpt__tools_bytes_put(to, i ? "," : "[", 1);
        mpt__tools_put_json_number(to, values[i]);
    }
    mpt__tools_bytes_put_text(to, count ? "]" : "[]");
}

static void mpt__tools_put_json(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
    mpt__tools_bytes_put_text(to, MPT__TOOLS_JSON_HEAD);
    mpt__tools_put_integer(to, entry->step);
    mpt__tools_bytes_put_text(to, ",\"time\":");
    mpt__tools_put_json_number(to, entry->time);
    mpt__tools_bytes_put_text(to, ",\"tag\":");
    mpt__tools_put_json_text(to, entry->tag);
    if (entry->kind == MPT_JOURNAL_SCALAR) {
        mpt__tools_bytes_put_text(to, ",\"value\":");
        mpt__tools_put_json_number(to, entry->value);
    } else if (entry->kind == MPT_JOURNAL_TEXT) {
        mpt__tools_bytes_put_text(to, ",\"text\":");
        mpt__tools_put_json_text(to, entry->text);
    } else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
        const mpt_journal_bins *bins = entry->bins;
        static const char *const names[] = {",\"min\":", ",\"max\":", ",\"sum\":", ",\"squares\":"};
        const double numbers[] = {bins->min, bins->max, bins->sum, bins->squares};
        mpt__tools_bytes_put_text(to, ",\"count\":");
        mpt__tools_put_integer(to, bins->count);
        for (int i = 0; i < 4; i++) {
            mpt__tools_bytes_put_text(to, names[i]);
            mpt__tools_put_json_number(to, numbers[i]);
        }
        mpt__tools_put_json_numbers(to, ",\"limits\":", bins->limits, bins->bins);
        mpt__tools_put_json_numbers(to, ",\"counts\":", bins->counts, bins->bins);
    } else if (entry->kind == MPT_JOURNAL_GRAPH) {
        mpt__tools_bytes_put_text(to, ",\"graph_bytes\":");
        mpt__tools_put_integer(to, (int64_t)entry->graph_bytes);
    } else {
        static const char *const names[] = {",\"width\":", ",\"height\":", ",\"channels\":"};
        const int numbers[] = {entry->width, entry->height, entry->channels};
        for (int i = 0; i < 3; i++) {
            mpt__tools_bytes_put_text(to, names[i]);
            mpt__tools_put_integer(to, numbers[i]);
        }
    }
    mpt__tools_bytes_put_text(to, "}\n");
}

/* A row of the CSV file; a tag with a comma, a quote or a line's end stands in quotes (RFC 4180),
   the ends of lines in it as blanks, so that a row is a line. */
static void mpt__tools_put_csv(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
    const char *quote = strpbrk(entry->tag, ",\"\r\n") ? "\"" : "";
    mpt__tools_put_integer(to, entry->step);
    mpt__tools_bytes_put(to, ",", 1);
    mpt__tools_put_number(to, entry->time);
    mpt__tools_bytes_put(to, ",", 1);
    mpt__tools_bytes_put_text(to, quote);
    for (const char *c = entry->tag; *c; c++) {
        if (*c == '"') mpt__tools_bytes_put(to, "\"", 1);
        mpt__tools_bytes_put(to, *c == '\n' || *c == '\r' ? " " : c, 1);
    }
    mpt__tools_bytes_put_text(to, quote);
    mpt__tools_bytes_put(to, ",", 1);
    mpt__tools_put_number(to, entry->value);
    mpt__tools_bytes_put(to, "\n", 1);
}

/* Hands an entry to all files and to who listens. A record goes as a whole or not at all. */
static mpt_status mpt__tools_journal_enter(mpt_journal *journal, mpt_journal_entry *entry) {
    bool full = false;
    entry->time = mpt__tools_journal_now(journal);
    for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
        mpt__tools_stream *stream = &journal->streams[i];
        mpt__tools_bytes *record = &journal->record;
        if (!stream->file || (i == MPT__TOOLS_CSV_FILE && entry->kind != MPT_JOURNAL_SCALAR))
            continue;
        record->size = 0;
        if (i == MPT__TOOLS_EVENT_FILE) mpt__tools_put_event_record(record, entry, entry->time);
        if (i == MPT__TOOLS_CSV_FILE) mpt__tools_put_csv(record, entry);
        if (i == MPT__TOOLS_JSON_FILE) mpt__tools_put_json(record, entry);
        if (!record->failed) mpt__tools_bytes_put(&stream->pending, record->data, record->size);
        if (record->failed || stream->pending.failed) {
            record->failed = stream->pending.failed = false;
            return mpt__tools_journal_fail(
                journal, MPT_ERROR_MEMORY, "out of memory: an entry is lost: ", entry->tag);
        }
        full = full || stream->pending.size >= MPT__TOOLS_FLUSH_BYTES || stream->error != 0;
    }
    if (journal->config.entry) journal->config.entry(journal->config.user, entry);
    if (full || entry->time - journal->flushed >= journal->config.flush_seconds ||
        entry->time < journal->flushed)
        return mpt_journal_flush(journal);
    return mpt__tools_journal_look(journal);
}

/* An entry as far as all kinds have it; false where there is something wrong, and *status says
   what. */
static bool mpt__tools_journal_begin(mpt_journal *journal, mpt_journal_entry *entry,
    mpt_journal_kind kind, const char *tag, int64_t step, mpt_status *status) {
    memset(entry, 0, sizeof *entry);
    entry->kind = kind;
    entry->tag = tag;
    entry->step = step;
    *status = journal ? journal->status : MPT_ERROR_HANDLE;
    if (*status != MPT_OK) return false;
    if (!tag || !*tag || strlen(tag) > MPT__TOOLS_TAG_BYTES)
        *status = mpt__tools_journal_refuse(journal, "a tag has 1 to 255 bytes");
    else if (step < 0)
        *status = mpt__tools_journal_refuse(journal, "a step is 0 or more");
    return *status == MPT_OK;
}

mpt_status mpt_journal_scalar(mpt_journal *journal, const char *tag, int64_t step, double value) {
    mpt_journal_entry entry;
    mpt_status status;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_SCALAR, tag, step, &status))
        return status;
    entry.value = value;
    return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_text(mpt_journal *journal, const char *tag, int64_t step, const char *text) {
    mpt_journal_entry entry;
    mpt_status status;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_TEXT, tag, step, &status))
        return status;
    if (!text) return mpt__tools_journal_refuse(journal, "text is NULL");
    entry.text = text;
    return mpt__tools_journal_enter(journal, &entry);
}

/* ==== Tensors ==== */

/* The status of a call on a tensor that failed: the context has the words, if there is one. */
static mpt_status mpt__tools_journal_tensor_failed(mpt_journal *journal, mpt_context *ctx) {
    const char *const texts[] = {
        ctx ? mpt_error(ctx) : "a null handle in the place of a tensor or module", NULL};
    mpt__tools_journal_say(journal, texts);
    return ctx ? mpt_error_code(ctx) : MPT_ERROR_HANDLE;
}

mpt_status mpt_journal_histogram(
    mpt_journal *journal, const char *tag, int64_t step, mpt_tensor tensor) {
    mpt_journal_entry entry;
    mpt_status status;
    int64_t found[MPT__TOOLS_BINS];
    double limits[MPT__TOOLS_BINS], counts[MPT__TOOLS_BINS];
    mpt_journal_bins bins;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, tag, step, &status))
        return status;
    if (!tensor.context || mpt_failed(tensor.context))
        return mpt__tools_journal_tensor_failed(journal, tensor.context);
    const mpt_tensor_stats s = mpt_statistics(tensor);
    memset(&bins, 0, sizeof bins);
    bins.count = s.count - s.nans - s.infinities;
    bins.limits = limits, bins.counts = counts;
    if (bins.count > 0 && !mpt_failed(tensor.context)) {
        const double n = (double)bins.count, part = (s.max - s.min) / (double)MPT__TOOLS_BINS;
        bins.min = s.min, bins.max = s.max, bins.sum = s.mean * n;
        bins.squares = (s.deviation * s.deviation + s.mean * s.mean) * n;
        bins.bins = s.min < s.max ? MPT__TOOLS_BINS : 1;
        found[0] = bins.count;
        if (s.min < s.max) mpt_histogram(tensor, s.min, s.max, found, MPT__TOOLS_BINS);
        for (int i = 0; i < bins.bins && !mpt_failed(tensor.context); i++) {
            limits[i] = i + 1 < bins.bins ? (double)(float)(s.min + (i + 1) * part) : s.max;
            counts[i] = (double)found[i];
        }
    }
    if (mpt_failed(tensor.context))
        return mpt__tools_journal_tensor_failed(journal, tensor.context);
    entry.bins = &bins;
    return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_module(
    mpt_journal *journal, int64_t step, mpt_module module, bool gradients) {
    enum { HEAD = 16, PATH = 1280 };
    char tag[HEAD + PATH];
    mpt_journal_entry entry;
    mpt_status status;
    const char *head = gradients ? "gradients/" : "weights/";
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, head, step, &status))
        return status;
    if (!module.context || mpt_failed(module.context))
        return mpt__tools_journal_tensor_failed(journal, module.context);
    const int count = mpt_parameter_count(module);
    const size_t length = strlen(head);
    memcpy(tag, head, length);
    for (int i = 0; i < count && status == MPT_OK; i++) {
        mpt_tensor tensor = mpt_parameter_at(module, i, tag + length, PATH);
        if (gradients && !mpt_has_grad(tensor)) continue;
        if (gradients) tensor = mpt_grad(tensor);
        tag[MPT__TOOLS_TAG_BYTES] = 0;
        status = mpt_journal_histogram(journal, tag, step, tensor);
    }
    if (mpt_failed(module.context))
        return mpt__tools_journal_tensor_failed(journal, module.context);
    return status;
}

/* ==== Pictures ==== */

mpt_status mpt_journal_pixels(mpt_journal *journal, const char *tag, int64_t step,
    const unsigned char *pixels, int width, int height, int channels) {
    enum { MOST = 1 << 28 }; /* bytes; a chunk of PNG ends at 2^31 */
    mpt_journal_entry entry;
    mpt_status status;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
        return status;
    if (!pixels) return mpt__tools_journal_refuse(journal, "pixels is NULL");
    if (width < 1 || height < 1 || width > MOST / 4 / height)
        return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
    if (channels != 1 && channels != 3 && channels != 4)
        return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
    mpt__tools_bytes png = {NULL, 0, 0, false};
    mpt__tools_put_png(&png, pixels, width, height, channels);
    if (png.failed) {
        mpt__tools_bytes_free(&png);
        return mpt__tools_journal_fail(
            journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
    }
    entry.png = png.data, entry.png_bytes = png.size;
    entry.width = width, entry.height = height, entry.channels = channels;
    status = mpt__tools_journal_enter(journal, &entry);
    mpt__tools_bytes_free(&png);
    return status;
}

/* A value from 0 to 1 as a byte, to nearest. */
static unsigned char mpt__tools_pixel_of(float value) {
    if (!(value > 0.0f)) return 0;
    return value < 1.0f ? (unsigned char)(value * 255.0f + 0.5f) : 255;
}

/* Rows of channels side by side from channels behind one another. */
static bool mpt__tools_image_read(
    mpt_tensor image, int channels, int64_t area, unsigned char *pixels) {
    const int64_t count = channels * area;
    const bool bytes = mpt_get_dtype(image) == MPT_U8;
    void *values = mpt__tools_allocate((size_t)count * (bytes ? 1 : sizeof(float)));
    bool fine = values != NULL;
    if (fine && bytes) fine = mpt_read(image, values, (size_t)count) == MPT_OK;
    if (fine && !bytes) fine = mpt_read_f32(image, (float *)values, count) == MPT_OK;
    for (int64_t i = 0; fine && i < count; i++)
        pixels[i % area * channels + i / area] =
            bytes ? ((unsigned char *)values)[i] : mpt__tools_pixel_of(((float *)values)[i]);
    mpt__tools_release(values);
    return fine;
}

mpt_status mpt_journal_image(
    mpt_journal *journal, const char *tag, int64_t step, mpt_tensor image) {
    enum { MOST = 1 << 26 };
    mpt_journal_entry entry;
    mpt_status status;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
        return status;
    if (!image.context || mpt_failed(image.context))
        return mpt__tools_journal_tensor_failed(journal, image.context);
    const mpt_shape shape = mpt_get_shape(image);
    if (mpt_failed(image.context)) return mpt__tools_journal_tensor_failed(journal, image.context);
    const mpt_dtype dtype = mpt_get_dtype(image);
    if (dtype != MPT_U8 && dtype != MPT_F32 && dtype != MPT_F16 && dtype != MPT_BF16)
        return mpt__tools_journal_refuse(journal, "an image is of u8, fp32, fp16 or bf16");
    if (shape.rank != 2 && shape.rank != 3)
        return mpt__tools_journal_refuse(journal, "an image has the shape [H, W] or [C, H, W]");
    const int first = shape.rank - 2;
    const int64_t height = shape.dim[first], width = shape.dim[first + 1];
    const int64_t channels = first ? shape.dim[0] : 1;
    if (width < 1 || height < 1 || width > MOST / height)
        return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
    if (channels != 1 && channels != 3 && channels != 4)
        return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
    unsigned char *pixels =
        (unsigned char *)mpt__tools_allocate((size_t)(channels * width * height));
    if (pixels && mpt__tools_image_read(image, (int)channels, width * height, pixels))
        status =
            mpt_journal_pixels(journal, tag, step, pixels, (int)width, (int)height, (int)channels);
    else if (mpt_failed(image.context))
        status = mpt__tools_journal_tensor_failed(journal, image.context);
    else
        status =
            mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
    mpt__tools_release(pixels);
    return status;
}

/* ==== Fit ==== */

/* What a fit says of an epoch: a value that is not there is left out. */
static void mpt__tools_journal_if_known(
    mpt_journal *journal, const char *tag, int64_t step, double value) {
    if (mpt__tools_bits_of(value) << 1 <= 0x7FFull << 53)
        mpt_journal_scalar(journal, tag, step, value);
}

bool mpt_journal_fit(void *user, const mpt_progress *p) {
    mpt_journal *journal = (mpt_journal *)user;
    if (!journal || !p) return true;
    if (!journal->fit_began) mpt_journal_rewind(journal, p->step ? p->step - 1 : 0);
    if (journal->fit_began && p->step < journal->fit_last)
        journal->fit_base += journal->fit_last; /* another fit */
    journal->fit_began = true;
    journal->fit_last = p->step;
    const int64_t step = journal->fit_base + p->step;
    if (p->epoch_end) {
        mpt_journal_scalar(journal, "epoch/loss", step, p->loss);
        mpt__tools_journal_if_known(journal, "validation/loss", step, p->validation_loss);
        mpt__tools_journal_if_known(journal, "validation/accuracy", step, p->validation_accuracy);
        mpt_journal_flush(journal);
        return true;
    }
    if (p->step % journal->config.every != 0) return true;
    mpt_journal_scalar(journal, "loss", step, p->loss);
    mpt__tools_journal_if_known(journal, "lr", step, p->lr);
    mpt_journal_scalar(journal, "scale", step, p->scale);
    mpt_journal_scalar(journal, "skipped", step, (double)p->skipped_steps);
    mpt__tools_journal_if_known(journal, "grad_norm", step, p->grad_norm);
    mpt_journal_scalar(journal, "steps_per_second", step, p->steps_per_second);
    mpt_journal_scalar(journal, "waiting", step, p->seconds_waited);
    mpt_journal_scalar(journal, "memory", step, (double)p->memory);
    return true;
}

#endif
