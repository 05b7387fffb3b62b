/* ----
 * tools/events.c: TensorBoard's event files, and pictures as PNG.
 *
 * An event file is a row of records: length, data, and a masked CRC-32C of each; the data is a
 * protocol buffer, tensorflow.Event. PNG is that of RFC 2083, of stored blocks (RFC 1951), which
 * need no compressor.
 * ---- */
#ifndef MPT__EVENTS_INCLUDED
#define MPT__EVENTS_INCLUDED

#include "records.c"

/* ==== Checksums ==== */

/* The CRC of one kind: its polynomial with the lowest power in the highest bit. */
enum { MPT__TOOLS_CRC32_PNG, MPT__TOOLS_CRC32C };
static uint32_t mpt__tools_crc_update(
    int kind, uint32_t crc, const unsigned char *data, size_t size) {
    const uint32_t polynomial = kind == MPT__TOOLS_CRC32C ? 0x82F63B78u : 0xEDB88320u;
    uint32_t nibble[16]; /* what four bits add; small enough to be made each time */
    for (uint32_t i = 0; i < 16; i++) {
        nibble[i] = i;
        for (int bit = 0; bit < 4; bit++)
            nibble[i] = nibble[i] >> 1 ^ (nibble[i] & 1 ? polynomial : 0);
    }
    crc = ~crc;
    for (size_t i = 0; i < size; i++) {
        crc ^= data[i];
        crc = crc >> 4 ^ nibble[crc & 15];
        crc = crc >> 4 ^ nibble[crc & 15];
    }
    return ~crc;
}

/* TensorFlow's mask, so that a CRC of data with CRCs in it stays a good one. */
static uint32_t mpt__tools_crc_masked(const unsigned char *data, size_t size) {
    const uint32_t crc = mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, data, size);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ==== Protocol buffers ==== */

enum { MPT__TOOLS_WIRE_VARINT, MPT__TOOLS_WIRE_64, MPT__TOOLS_WIRE_BYTES, MPT__TOOLS_WIRE_32 = 5 };

static void mpt__tools_put_little(mpt__tools_bytes *to, uint64_t value, int bytes) {
    unsigned char data[8];
    for (int i = 0; i < bytes; i++) data[i] = (unsigned char)(value >> 8 * i);
    mpt__tools_bytes_put(to, data, (size_t)bytes);
}

static void mpt__tools_put_varint(mpt__tools_bytes *to, uint64_t value) {
    unsigned char data[10];
    size_t n = 0;
    for (; value >= 0x80; value >>= 7) data[n++] = (unsigned char)(value | 0x80);
    data[n++] = (unsigned char)value;
    mpt__tools_bytes_put(to, data, n);
}

static void mpt__tools_put_field(mpt__tools_bytes *to, int field, int wire) {
    mpt__tools_put_varint(to, (uint64_t)field << 3 | (uint64_t)wire);
}

static void mpt__tools_put_int_field(mpt__tools_bytes *to, int field, int64_t value) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_VARINT);
    mpt__tools_put_varint(to, (uint64_t)value);
}

static void mpt__tools_put_double_field(mpt__tools_bytes *to, int field, double value) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_64);
    mpt__tools_put_little(to, mpt__tools_bits_of(value), 8);
}

static void mpt__tools_put_bytes_field(
    mpt__tools_bytes *to, int field, const void *data, size_t size) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
    mpt__tools_put_varint(to, size);
    mpt__tools_bytes_put(to, data, size);
}

static void mpt__tools_put_text_field(mpt__tools_bytes *to, int field, const char *text) {
    mpt__tools_put_bytes_field(to, field, text, strlen(text));
}

static void mpt__tools_put_doubles_field(
    mpt__tools_bytes *to, int field, const double *values, int count) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
    mpt__tools_put_varint(to, (uint64_t)count * 8);
    for (int i = 0; i < count; i++) mpt__tools_put_little(to, mpt__tools_bits_of(values[i]), 8);
}

/* A message in a message: its length stands before it, in five bytes whatever it is, as it is known
   only behind it. */
enum { MPT__TOOLS_LENGTH_BYTES = 5 };
static size_t mpt__tools_message_begin(mpt__tools_bytes *to, int field) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
    mpt__tools_bytes_put(to, "\0\0\0\0", MPT__TOOLS_LENGTH_BYTES);
    return to->size;
}

static void mpt__tools_message_end(mpt__tools_bytes *to, size_t begin) {
    if (to->failed) return;
    const size_t length = to->size - begin;
    for (int i = 0; i < MPT__TOOLS_LENGTH_BYTES; i++)
        to->data[begin - MPT__TOOLS_LENGTH_BYTES + (size_t)i] =
            (unsigned char)((length >> 7 * i & 0x7F) |
                (i + 1 < MPT__TOOLS_LENGTH_BYTES ? 0x80 : 0));
}

/* ==== Events ==== */

/* The field numbers of tensorflow.Event and what is in it. */
enum {
    MPT__TOOLS_EVENT_TIME = 1,
    MPT__TOOLS_EVENT_STEP = 2,
    MPT__TOOLS_EVENT_VERSION = 3,
    MPT__TOOLS_EVENT_GRAPH = 4,
    MPT__TOOLS_EVENT_SUMMARY = 5,
    MPT__TOOLS_SUMMARY_VALUE = 1,
    MPT__TOOLS_VALUE_TAG = 1,
    MPT__TOOLS_VALUE_SIMPLE = 2,
    MPT__TOOLS_VALUE_IMAGE = 4,
    MPT__TOOLS_VALUE_HISTOGRAM = 5,
    MPT__TOOLS_VALUE_TENSOR = 8,
    MPT__TOOLS_VALUE_METADATA = 9,
    MPT__TOOLS_TENSOR_DTYPE = 1,
    MPT__TOOLS_TENSOR_SHAPE = 2,
    MPT__TOOLS_TENSOR_STRING = 8,
    MPT__TOOLS_DTYPE_STRING = 7
};

static void mpt__tools_put_histogram_value(mpt__tools_bytes *to, const mpt_journal_bins *bins) {
    const double numbers[] = {bins->min, bins->max, (double)bins->count, bins->sum, bins->squares};
    const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_HISTOGRAM);
    for (int i = 0; i < 5; i++) mpt__tools_put_double_field(to, i + 1, numbers[i]);
    mpt__tools_put_doubles_field(to, 6, bins->limits, bins->bins);
    mpt__tools_put_doubles_field(to, 7, bins->counts, bins->bins);
    mpt__tools_message_end(to, message);
}

static void mpt__tools_put_image_value(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
    const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_IMAGE);
    mpt__tools_put_int_field(to, 1, entry->height);
    mpt__tools_put_int_field(to, 2, entry->width);
    mpt__tools_put_int_field(to, 3, entry->channels);
    mpt__tools_put_bytes_field(to, 4, entry->png, entry->png_bytes);
    mpt__tools_message_end(to, message);
}

/* A text is a tensor of one string that belongs to the plugin "text". */
static void mpt__tools_put_text_value(mpt__tools_bytes *to, const char *text) {
    size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_TENSOR);
    mpt__tools_put_int_field(to, MPT__TOOLS_TENSOR_DTYPE, MPT__TOOLS_DTYPE_STRING);
    mpt__tools_put_bytes_field(
        to, MPT__TOOLS_TENSOR_SHAPE, "\x12\x02\x08\x01", 4); /* one dimension of 1 */
    mpt__tools_put_text_field(to, MPT__TOOLS_TENSOR_STRING, text);
    mpt__tools_message_end(to, message);
    message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_METADATA);
    const size_t plugin = mpt__tools_message_begin(to, 1);
    mpt__tools_put_text_field(to, 1, "text");
    mpt__tools_message_end(to, plugin);
    mpt__tools_message_end(to, message);
}

/* The event of an entry; of NULL the one that every file begins with. */
static void mpt__tools_put_event(
    mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
    mpt__tools_put_double_field(to, MPT__TOOLS_EVENT_TIME, time);
    if (!entry) {
        mpt__tools_put_text_field(to, MPT__TOOLS_EVENT_VERSION, "brain.Event:2");
        return;
    }
    mpt__tools_put_int_field(to, MPT__TOOLS_EVENT_STEP, entry->step);
    if (entry->kind == MPT_JOURNAL_GRAPH) {
        mpt__tools_put_bytes_field(to, MPT__TOOLS_EVENT_GRAPH, entry->graph, entry->graph_bytes);
        return;
    }
    const size_t summary = mpt__tools_message_begin(to, MPT__TOOLS_EVENT_SUMMARY);
    const size_t value = mpt__tools_message_begin(to, MPT__TOOLS_SUMMARY_VALUE);
    mpt__tools_put_text_field(to, MPT__TOOLS_VALUE_TAG, entry->tag);
    if (entry->kind == MPT_JOURNAL_SCALAR) {
        const float rounded = (float)entry->value;
        uint32_t bits;
        memcpy(&bits, &rounded, sizeof bits);
        mpt__tools_put_field(to, MPT__TOOLS_VALUE_SIMPLE, MPT__TOOLS_WIRE_32);
        mpt__tools_put_little(to, bits, 4);
    } else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
        mpt__tools_put_histogram_value(to, entry->bins);
    } else if (entry->kind == MPT_JOURNAL_IMAGE) {
        mpt__tools_put_image_value(to, entry);
    } else {
        mpt__tools_put_text_value(to, entry->text);
    }
    mpt__tools_message_end(to, value);
    mpt__tools_message_end(to, summary);
}

/* An event as a record. */
static void mpt__tools_put_event_record(
    mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
    const size_t begin = to->size;
    mpt__tools_bytes_put(to, "\0\0\0\0\0\0\0\0\0\0\0", 12);
    mpt__tools_put_event(to, entry, time);
    if (to->failed) return;
    const size_t length = to->size - begin - 12;
    for (int i = 0; i < 8; i++)
        to->data[begin + (size_t)i] = (unsigned char)((uint64_t)length >> 8 * i);
    const uint32_t check = mpt__tools_crc_masked(to->data + begin, 8);
    for (int i = 0; i < 4; i++) to->data[begin + 8 + (size_t)i] = (unsigned char)(check >> 8 * i);
    mpt__tools_put_little(to, mpt__tools_crc_masked(to->data + begin + 12, length), 4);
}

/* ==== Reading them ==== */

static uint64_t mpt__tools_little(const unsigned char *data, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)data[i] << 8 * i;
    return value;
}

/* Moves *at behind a varint; false where there is none. */
static bool mpt__tools_varint_at(
    const unsigned char *data, size_t size, size_t *at, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < size; shift += 7) {
        const unsigned char byte = data[(*at)++];
        *value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

/* What an event is, and its step. */
static mpt__tools_record mpt__tools_event_look(
    const unsigned char *data, size_t size, int64_t *step) {
    mpt__tools_record found = MPT__TOOLS_RECORD_WHOLE;
    uint64_t key, value;
    size_t at = 0;
    while (at < size) {
        if (!mpt__tools_varint_at(data, size, &at, &key)) return MPT__TOOLS_RECORD_BAD;
        const int wire = (int)(key & 7);
        if (wire == MPT__TOOLS_WIRE_VARINT || wire == MPT__TOOLS_WIRE_BYTES) {
            if (!mpt__tools_varint_at(data, size, &at, &value)) return MPT__TOOLS_RECORD_BAD;
            if (key >> 3 == MPT__TOOLS_EVENT_STEP && wire == MPT__TOOLS_WIRE_VARINT)
                *step = (int64_t)value;
            if (key >> 3 == MPT__TOOLS_EVENT_VERSION) found = MPT__TOOLS_RECORD_HEAD;
            if (wire == MPT__TOOLS_WIRE_VARINT) value = 0;
        } else {
            value = wire == MPT__TOOLS_WIRE_64 ? 8 : wire == MPT__TOOLS_WIRE_32 ? 4 : UINT64_MAX;
        }
        if (value > size - at) return MPT__TOOLS_RECORD_BAD;
        at += (size_t)value;
    }
    return found;
}

/* Reads the record at the place of `file`. Memory grows by what is there, not by what it claims. */
static mpt__tools_record mpt__tools_event_read(
    FILE *file, mpt__tools_bytes *record, int64_t *step) {
    enum { HEAD = 12, CHECK = 4, PIECE = 65536 };
    uint64_t left = HEAD, length = 0;
    record->size = 0;
    while (left > 0) {
        const size_t piece = left < PIECE ? (size_t)left : (size_t)PIECE;
        const size_t got = mpt__tools_record_add(file, record, piece);
        if (ferror(file) || record->failed) return MPT__TOOLS_RECORD_FAILED;
        if (got < piece) return record->size ? MPT__TOOLS_RECORD_TORN : MPT__TOOLS_RECORD_NONE;
        left -= piece;
        if (record->size != HEAD || length > 0) continue;
        length = mpt__tools_little(record->data, 8);
        if (mpt__tools_little(record->data + 8, 4) != mpt__tools_crc_masked(record->data, 8) ||
            length > INT64_MAX || length == 0)
            return MPT__TOOLS_RECORD_TORN;
        left = length + CHECK;
    }
    const unsigned char *data = record->data + HEAD;
    if (mpt__tools_little(data + length, CHECK) != mpt__tools_crc_masked(data, (size_t)length))
        return MPT__TOOLS_RECORD_BAD;
    return mpt__tools_event_look(data, (size_t)length, step);
}

/* ==== PNG ==== */

static void mpt__tools_put_big(mpt__tools_bytes *to, uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) {
        const unsigned char byte = (unsigned char)(value >> shift);
        mpt__tools_bytes_put(to, &byte, 1);
    }
}

/* Ends the chunk whose length stands at `begin`: the length and the check. */
static void mpt__tools_png_end(mpt__tools_bytes *to, size_t begin) {
    if (to->failed) return;
    const size_t length = to->size - begin - 8;
    for (int i = 0; i < 4; i++)
        to->data[begin + (size_t)i] = (unsigned char)(length >> (24 - 8 * i));
    mpt__tools_put_big(
        to, mpt__tools_crc_update(MPT__TOOLS_CRC32_PNG, 0, to->data + begin + 4, length + 4));
}

static size_t mpt__tools_png_begin(mpt__tools_bytes *to, const char *type) {
    const size_t begin = to->size;
    mpt__tools_put_big(to, 0);
    mpt__tools_bytes_put(to, type, 4);
    return begin;
}

/* The pixels' rows, each behind a byte that says it is as it is, in blocks of at most 65,535. */
static void mpt__tools_put_stored(
    mpt__tools_bytes *to, const unsigned char *rows, size_t height, size_t width) {
    const size_t total = height * (width + 1);
    uint32_t a = 1, b = 0; /* Adler-32 */
    for (size_t at = 0; at < total; at++) {
        if (at % 65535 == 0) {
            const size_t left = total - at, length = left < 65535 ? left : 65535;
            const unsigned char last = length == left;
            mpt__tools_bytes_put(to, &last, 1);
            mpt__tools_put_little(to, length, 2);
            mpt__tools_put_little(to, length ^ 0xFFFF, 2);
        }
        const size_t row = at / (width + 1), column = at % (width + 1);
        const unsigned char byte = column ? rows[row * width + column - 1] : 0;
        mpt__tools_bytes_put(to, &byte, 1);
        a = (a + byte) % 65521, b = (b + a) % 65521;
    }
    mpt__tools_put_big(to, b << 16 | a);
}

/* A PNG file of `channels` bytes per pixel: 1 grey, 3 RGB, 4 RGBA. */
static void mpt__tools_put_png(
    mpt__tools_bytes *to, const unsigned char *pixels, int width, int height, int channels) {
    const unsigned char format[5] = {8,
        (unsigned char)(channels == 1 ? 0
                : channels == 3       ? 2
                                      : 6),
        0, 0, 0};
    mpt__tools_bytes_put(to, "\x89PNG\r\n\x1a\n", 8);
    size_t chunk = mpt__tools_png_begin(to, "IHDR");
    mpt__tools_put_big(to, (uint32_t)width);
    mpt__tools_put_big(to, (uint32_t)height);
    mpt__tools_bytes_put(to, format, sizeof format);
    mpt__tools_png_end(to, chunk);
    chunk = mpt__tools_png_begin(to, "IDAT");
    mpt__tools_bytes_put(to, "\x78\x01", 2);
    mpt__tools_put_stored(to, pixels, (size_t)height, (size_t)width * (size_t)channels);
    mpt__tools_png_end(to, chunk);
    chunk = mpt__tools_png_begin(to, "IEND");
    mpt__tools_png_end(to, chunk);
}

#endif
