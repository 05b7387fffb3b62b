/* ---------------------------------------------------------------------------------------------
 * 73_checkpoint.c: weights as safetensors, to and from files and memory.
 *
 * A file is: the size of the header (u64), the header (JSON, padded with spaces to a multiple of
 * 8), then the elements of all tensors without gaps; all numbers little-endian. A file is data:
 * nothing it claims is believed before it is checked, and nothing changes before all of it is.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__73_CHECKPOINT_INCLUDED
#define MPT__73_CHECKPOINT_INCLUDED

#include "61_module.c"
#include "70_data.c"

/* ==== Contract ==== */

#define MPT__SAFETENSORS_MAX_HEADER (16 << 20)

/* One tensor of a file. Names lie, decoded, in the header's own memory. */
typedef struct mpt__entry {
    uint32_t name, name_length; /* in the header */
    uint32_t shape;             /* position of its '[' in the header */
    uint8_t dtype;              /* row of mpt__file_dtypes */
    uint8_t rank;               /* at most 255 */
    bool used;
    int64_t begin, end;         /* in the data */
} mpt__entry;

/* Where and why a header is refused. */
typedef struct mpt__refusal {
    const char *text; /* NULL: all is well */
    int64_t position; /* in the header */
    int64_t expected, got;
    bool numbers; /* expected and got say something */
} mpt__refusal;

/* Reads a header of n bytes (n >= 2) for `data_bytes` of data. Without `entries` it only checks and
   counts; with them (room for the count of such a call) it fills them in the order of the file and
   decodes the names in place. Pure: no memory, no recursion. */
static bool mpt__safetensors_parse(uint8_t *header, size_t n, int64_t data_bytes,
                                   mpt__entry *entries,
                                   int64_t *count, mpt__refusal *refusal);
/* Checks that the tensors fill the data without holes or overlaps and that no name comes twice;
   sorts by name. */
static bool mpt__safetensors_check(const uint8_t *header, mpt__entry *entries, int64_t count,
                                   int64_t data_bytes, mpt__refusal *refusal);
/* The entry of a name among those sorted by mpt__safetensors_check, or NULL. */
static mpt__entry *mpt__safetensors_find(const uint8_t *header, mpt__entry *entries, int64_t count,
                                         const char *name);

/* The dtypes of safetensors files. Those without a dtype of ours are known by size only, so that
   files which hold them beside what is wanted can be read. */
static const struct {
    char name[10];
    uint8_t bits;
    uint8_t dtype; /* mpt_dtype, MPT_DTYPE_NONE if there is none */
} mpt__file_dtypes[] = {
    {"F32", 32, MPT_F32},   {"F16", 16, MPT_F16},   {"BF16", 16, MPT_BF16},
    {"F64", 64, MPT_F64},   {"I64", 64, MPT_I64},   {"I32", 32, MPT_I32},
    {"U8", 8, MPT_U8},      {"BOOL", 8, MPT_BOOL},
#ifndef MPTRAIN_NO_FP8
    {"F8_E4M3", 8, MPT_F8E4M3}, {"F8_E5M2", 8, MPT_F8E5M2},
#else
    {"F8_E4M3", 8, 0},      {"F8_E5M2", 8, 0},
#endif
    {"I16", 16, 0},         {"I8", 8, 0},           {"U16", 16, 0},
    {"U32", 32, 0},         {"U64", 64, 0},         {"C64", 64, 0},
    {"F8_E8M0", 8, 0},      {"F4", 4, 0},           {"F6_E2M3", 6, 0},
    {"F6_E3M2", 6, 0}};

#define MPT__FILE_DTYPES ((int)(sizeof mpt__file_dtypes / sizeof mpt__file_dtypes[0]))

/* ==== JSON ==== */

/* A place in the header. After a refusal nothing moves any more. */
typedef struct mpt__json {
    const uint8_t *text;
    size_t n, at;
    mpt__refusal *refusal;
} mpt__json;

static bool mpt__json_refuse(mpt__json *json, const char *text) {
    if (!json->refusal->text) {
        json->refusal->text = text;
        json->refusal->position = (int64_t)json->at;
    }
    return false;
}

static bool mpt__json_refuse_numbers(mpt__json *json, const char *text, int64_t expected,
                                     int64_t got) {
    if (!json->refusal->text) {
        json->refusal->expected = expected;
        json->refusal->got = got;
        json->refusal->numbers = true;
    }
    return mpt__json_refuse(json, text);
}

static void mpt__json_space(mpt__json *json) {
    while (json->at < json->n) {
        uint8_t c = json->text[json->at];
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
        json->at++;
    }
}

/* The next byte that is no white space, 0 at the end. */
static uint8_t mpt__json_peek(mpt__json *json) {
    mpt__json_space(json);
    return json->at < json->n ? json->text[json->at] : 0;
}

static bool mpt__json_expect(mpt__json *json, uint8_t c, const char *otherwise) {
    if (mpt__json_peek(json) != c) return mpt__json_refuse(json, otherwise);
    json->at++;
    return true;
}

/* After an element of a list that ends with `close`: true if another one follows. */
static bool mpt__json_more(mpt__json *json, uint8_t close, bool *done) {
    uint8_t c = mpt__json_peek(json);
    if (c != ',' && c != close)
        return mpt__json_refuse(json, "',' or the closing bracket expected");
    json->at++;
    *done = c == close;
    return true;
}

/* A natural number below 2^63, without sign, fraction, exponent or leading zeros. */
static bool mpt__json_natural(mpt__json *json, int64_t *value) {
    uint8_t c = mpt__json_peek(json);
    size_t start = json->at;
    *value = 0;
    if (c < '0' || c > '9') return mpt__json_refuse(json, "a whole number expected");
    while (json->at < json->n) {
        c = json->text[json->at];
        if (c < '0' || c > '9') break;
        if (*value > (INT64_MAX - (c - '0')) / 10)
            return mpt__json_refuse(json, "the number is too large");
        *value = *value * 10 + (c - '0');
        json->at++;
    }
    if (json->text[start] == '0' && json->at > start + 1)
        return mpt__json_refuse(json, "a number begins with 0");
    if (json->at < json->n && (c == '.' || c == 'e' || c == 'E'))
        return mpt__json_refuse(json, "a whole number expected");
    return true;
}

/* Four hexadecimal digits. */
static bool mpt__json_hex(mpt__json *json, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = json->at < json->n ? json->text[json->at] : 0;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit > 15) return mpt__json_refuse(json, "four hexadecimal digits expected");
        *value = *value << 4 | digit;
        json->at++;
    }
    return true;
}

/* What follows "\u": one code point, from two escapes if it is beyond 16 bits. */
static bool mpt__json_code_point(mpt__json *json, uint32_t *code) {
    uint32_t low;
    if (!mpt__json_hex(json, code)) return false;
    if (*code == 0) return mpt__json_refuse(json, "a NUL in a string");
    if (*code < 0xd800 || *code > 0xdfff) return true;
    if (*code > 0xdbff || json->n - json->at < 2 || json->text[json->at] != '\\' ||
        json->text[json->at + 1] != 'u')
        return mpt__json_refuse(json, "half of a surrogate pair");
    json->at += 2;
    if (!mpt__json_hex(json, &low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return mpt__json_refuse(json, "half of a surrogate pair");
    *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    return true;
}

static int mpt__utf8_encode(uint32_t code, uint8_t out[4]) {
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[4] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(lead[more] | code >> (6 * more));
    for (int i = 1; i <= more; i++)
        out[i] = (uint8_t)(0x80 | (code >> (6 * (more - i)) & 0x3f));
    return more + 1;
}

/* The length of the UTF-8 sequence at p, at most n bytes; 0 if it is none (overlong, surrogate,
   beyond U+10FFFF, cut off). */
static int mpt__utf8_length(const uint8_t *p, size_t n) {
    int length = p[0] < 0x80   ? 1
                 : p[0] < 0xc2 ? 0
                 : p[0] < 0xe0 ? 2
                 : p[0] < 0xf0 ? 3
                 : p[0] < 0xf5 ? 4
                               : 0;
    if ((size_t)length > n) return 0;
    for (int i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    if (length < 3) return length;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) ||
        (p[0] == 0xf0 && p[1] < 0x90) || (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return length;
}

/* One character of a string, decoded to UTF-8, 1 to 4 bytes in `out`; 0 after a refusal. */
static int mpt__json_character(mpt__json *json, uint8_t out[4]) {
    static const char escapes[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const uint8_t *p = json->text + json->at;
    if (*p < 0x20) return mpt__json_refuse(json, "a control character in a string");
    if (*p != '\\') {
        int length = mpt__utf8_length(p, json->n - json->at);
        if (length == 0) return mpt__json_refuse(json, "a string is not valid UTF-8");
        for (int i = 0; i < length; i++) out[i] = p[i];
        json->at += (size_t)length;
        return length;
    }
    if (json->n - json->at < 2) return mpt__json_refuse(json, "a string without end");
    json->at += 2;
    if (p[1] == 'u') {
        uint32_t code;
        return mpt__json_code_point(json, &code) ? mpt__utf8_encode(code, out) : 0;
    }
    for (int i = 0; escapes[i]; i++) {
        if (p[1] != (uint8_t)escapes[i]) continue;
        out[0] = (uint8_t)meanings[i];
        return 1;
    }
    return mpt__json_refuse(json, "an unknown escape");
}

/* A string: its first `room` decoded bytes go to `out` (which may be the string's own place in the
   text), *length is the length of all of it. */
static bool mpt__json_string(mpt__json *json, uint8_t *out, size_t room, size_t *length) {
    *length = 0;
    if (!mpt__json_expect(json, '"', "a string expected")) return false;
    while (json->at < json->n) {
        uint8_t character[4];
        if (json->text[json->at] == '"') {
            json->at++;
            return true;
        }
        int bytes = mpt__json_character(json, character);
        if (bytes == 0) return false;
        for (int i = 0; i < bytes; i++, ++*length)
            if (*length < room) out[*length] = character[i];
    }
    return mpt__json_refuse(json, "a string without end");
}

/* ==== The header ==== */

enum { MPT__HAS_DTYPE = 1, MPT__HAS_SHAPE = 2, MPT__HAS_OFFSETS = 4 };

static bool mpt__parse_dtype(mpt__json *json, mpt__entry *entry) {
    uint8_t name[12];
    size_t length;
    mpt__json_space(json);
    size_t start = json->at;
    if (!mpt__json_string(json, name, sizeof name, &length)) return false;
    for (int i = 0; i < MPT__FILE_DTYPES; i++) {
        if (strlen(mpt__file_dtypes[i].name) != length ||
            memcmp(mpt__file_dtypes[i].name, name, length) != 0)
            continue;
        entry->dtype = (uint8_t)i;
        return true;
    }
    json->at = start;
    return mpt__json_refuse(json, "an unknown dtype");
}

/* A list of natural numbers: dimensions, with their product. */
static bool mpt__parse_shape(mpt__json *json, mpt__entry *entry, int64_t *numel) {
    bool done;
    *numel = 1;
    entry->rank = 0;
    mpt__json_space(json);
    entry->shape = (uint32_t)json->at;
    if (!mpt__json_expect(json, '[', "a list of dimensions expected")) return false;
    done = mpt__json_peek(json) == ']';
    if (done) json->at++;
    while (!done) {
        int64_t dim;
        if (!mpt__json_natural(json, &dim)) return false;
        if (entry->rank == UINT8_MAX) return mpt__json_refuse(json, "too many dimensions");
        if (dim > 0 && *numel > INT64_MAX / 64 / dim)
            return mpt__json_refuse(json, "the dimensions multiply to too much");
        *numel *= dim;
        entry->rank++;
        if (!mpt__json_more(json, ']', &done)) return false;
    }
    return true;
}

static bool mpt__parse_offsets(mpt__json *json, mpt__entry *entry) {
    bool done;
    return mpt__json_expect(json, '[', "two offsets expected") &&
           mpt__json_natural(json, &entry->begin) &&
           mpt__json_expect(json, ',', "two offsets expected") &&
           mpt__json_natural(json, &entry->end) && mpt__json_more(json, ']', &done) &&
           (done || mpt__json_refuse(json, "two offsets expected"));
}

/* One field of a tensor; `has` collects those seen. */
static bool mpt__parse_field(mpt__json *json, mpt__entry *entry, int *has, int64_t *numel) {
    static const char *const names[] = {"dtype", "shape", "data_offsets"};
    uint8_t key[16];
    size_t length;
    mpt__json_space(json);
    size_t start = json->at;
    if (!mpt__json_string(json, key, sizeof key, &length)) return false;
    size_t end = json->at;
    for (int i = 0; i < 3; i++) {
        if (strlen(names[i]) != length || memcmp(names[i], key, length) != 0) continue;
        json->at = start;
        if (*has & 1 << i) return mpt__json_refuse(json, "a key of a tensor comes twice");
        json->at = end;
        *has |= 1 << i;
        if (!mpt__json_expect(json, ':', "':' expected")) return false;
        return i == 0   ? mpt__parse_dtype(json, entry)
               : i == 1 ? mpt__parse_shape(json, entry, numel)
                        : mpt__parse_offsets(json, entry);
    }
    json->at = start;
    return mpt__json_refuse(json, "a key of a tensor is none of dtype, shape, data_offsets");
}

/* A tensor's object, with its size checked against its offsets. */
static bool mpt__parse_tensor(mpt__json *json, mpt__entry *entry, int64_t data_bytes) {
    int has = 0;
    bool done = false;
    int64_t numel = 0;
    if (!mpt__json_expect(json, '{', "an object expected")) return false;
    while (!done) {
        if (!mpt__parse_field(json, entry, &has, &numel) || !mpt__json_more(json, '}', &done))
            return false;
    }
    if (has != (MPT__HAS_DTYPE | MPT__HAS_SHAPE | MPT__HAS_OFFSETS))
        return mpt__json_refuse(json, "a tensor lacks dtype, shape or data_offsets");
    int64_t bits = numel * mpt__file_dtypes[entry->dtype].bits;
    if (bits % 8 != 0) return mpt__json_refuse(json, "a tensor ends within a byte");
    if (entry->begin > entry->end || entry->end > data_bytes)
        return mpt__json_refuse_numbers(json, "the offsets of a tensor leave the data (its end)",
                                        data_bytes, entry->end);
    if (entry->end - entry->begin != bits / 8)
        return mpt__json_refuse_numbers(json,
                                        "the offsets of a tensor do not fit its shape (bytes)",
                                        bits / 8, entry->end - entry->begin);
    return true;
}

/* Text about the file, by text: read and not kept. */
static bool mpt__parse_metadata(mpt__json *json) {
    size_t length;
    bool done;
    if (!mpt__json_expect(json, '{', "an object expected")) return false;
    done = mpt__json_peek(json) == '}';
    if (done) json->at++;
    while (!done) {
        if (!mpt__json_string(json, NULL, 0, &length) ||
            !mpt__json_expect(json, ':', "':' expected") ||
            !mpt__json_string(json, NULL, 0, &length) || !mpt__json_more(json, '}', &done))
            return false;
    }
    return true;
}

static bool mpt__safetensors_parse(uint8_t *header, size_t n, int64_t data_bytes,
                                   mpt__entry *entries,
                                   int64_t *count, mpt__refusal *refusal) {
    static const char metadata[] = "__metadata__";
    bool done, has_metadata = false;
    mpt__json json;
    json.text = header, json.n = n, json.at = 0, json.refusal = refusal;
    memset(refusal, 0, sizeof *refusal);
    *count = 0;
    if (header[0] != '{') return mpt__json_refuse(&json, "the header does not begin with '{'");
    json.at = 1;
    done = mpt__json_peek(&json) == '}';
    if (done) json.at++;
    while (!done) {
        mpt__entry entry;
        uint8_t key[16];
        size_t length;
        memset(&entry, 0, sizeof entry);
        mpt__json_space(&json);
        size_t start = json.at;
        if (!mpt__json_string(&json, key, sizeof key, &length) ||
            !mpt__json_expect(&json, ':', "':' expected"))
            return false;
        if (length == sizeof metadata - 1 && memcmp(key, metadata, length) == 0) {
            if (has_metadata) return mpt__json_refuse(&json, "__metadata__ comes twice");
            has_metadata = true;
            if (!mpt__parse_metadata(&json)) return false;
        } else {
            if (!mpt__parse_tensor(&json, &entry, data_bytes)) return false;
            if (entries) { /* the string again, over itself: it is no longer than its spelling */
                mpt__json again = json;
                again.at = start;
                mpt__json_string(&again, header + start + 1, n, &length);
                entry.name = (uint32_t)(start + 1);
                entry.name_length = (uint32_t)length;
                entries[*count] = entry;
            }
            ++*count;
        }
        if (!mpt__json_more(&json, '}', &done)) return false;
    }
    mpt__json_space(&json);
    return json.at == n || mpt__json_refuse(&json, "text after the header's end");
}

/* ==== Order and holes ==== */

/* Names as bytes, the shorter one first where one begins the other. */
static int mpt__compare_text(const uint8_t *a, size_t a_length, const uint8_t *b, size_t b_length) {
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int mpt__compare_names(const uint8_t *header, const mpt__entry *a, const mpt__entry *b) {
    return mpt__compare_text(header + a->name, a->name_length, header + b->name, b->name_length);
}

static int mpt__compare_offsets(const uint8_t *header, const mpt__entry *a, const mpt__entry *b) {
    (void)header;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

typedef int (*mpt__compare_entries)(const uint8_t *header, const mpt__entry *a,
                                    const mpt__entry *b);

static void mpt__entry_swap(mpt__entry *a, mpt__entry *b) {
    mpt__entry kept = *a;
    *a = *b;
    *b = kept;
}

/* Heapsort: n log n whatever the file holds, without recursion. */
static void mpt__sort_entries(const uint8_t *header, mpt__entry *entries, int64_t count,
                              mpt__compare_entries compare) {
    int64_t start = count / 2, end = count;
    while (end > 1) {
        if (start > 0) {
            start--;
        } else {
            end--;
            mpt__entry_swap(&entries[0], &entries[end]);
        }
        for (int64_t parent = start, child; (child = 2 * parent + 1) < end; parent = child) {
            if (child + 1 < end && compare(header, &entries[child], &entries[child + 1]) < 0)
                child++;
            if (compare(header, &entries[parent], &entries[child]) >= 0) break;
            mpt__entry_swap(&entries[parent], &entries[child]);
        }
    }
}

static bool mpt__safetensors_check(const uint8_t *header, mpt__entry *entries, int64_t count,
                                   int64_t data_bytes, mpt__refusal *refusal) {
    mpt__json json;
    int64_t filled = 0;
    json.text = header, json.n = 0, json.at = 0, json.refusal = refusal;
    mpt__sort_entries(header, entries, count, mpt__compare_offsets);
    for (int64_t i = 0; i < count; i++) {
        json.at = entries[i].name;
        if (entries[i].begin != filled)
            return mpt__json_refuse_numbers(&json,
                                            entries[i].begin > filled
                                                ? "a hole in the data before this tensor (byte)"
                                                : "this tensor overlaps another one (byte)",
                                            filled, entries[i].begin);
        filled = entries[i].end;
    }
    json.at = 0;
    if (filled != data_bytes)
        return mpt__json_refuse_numbers(&json, "the tensors do not fill the data (bytes)",
                                        data_bytes,
                                        filled);
    mpt__sort_entries(header, entries, count, mpt__compare_names);
    for (int64_t i = 1; i < count; i++) {
        json.at = entries[i].name;
        if (mpt__compare_names(header, &entries[i - 1], &entries[i]) == 0)
            return mpt__json_refuse(&json, "a tensor's name comes twice");
    }
    return true;
}

static mpt__entry *mpt__safetensors_find(const uint8_t *header, mpt__entry *entries, int64_t count,
                                         const char *name) {
    const uint8_t *wanted = (const uint8_t *)name;
    size_t length = strlen(name);
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        mpt__entry *entry = &entries[middle];
        int order = mpt__compare_text(header + entry->name, entry->name_length, wanted, length);
        if (order == 0) return entry;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return NULL;
}

/* ==== Parameters ==== */

#define MPT__WEIGHTS_PATH 512

/* A save or load under way. */
typedef struct mpt__weights {
    mpt_context *context;
    mpt_module module;
    const char *op; /* for messages: the public calls made on the way leave their own names */
    int64_t call;
    int count;
    char path[MPT__WEIGHTS_PATH]; /* of the parameter that `at` gave last */
} mpt__weights;

static void mpt__weights_name_call(mpt__weights *weights) {
    weights->context->base.op = weights->op;
    weights->context->base.call = weights->call;
}

/* Enters the public function `op`; false with the status to return. */
static bool mpt__weights_begin(mpt__weights *weights, mpt_module module, const char *op,
                               mpt_status *status) {
    mpt_context *context = module.context;
    memset(weights, 0, sizeof *weights);
    *status = MPT_ERROR_HANDLE;
    if (!context) return false;
    bool entered = mpt__enter(context, op);
    weights->context = context;
    weights->module = module;
    weights->op = op;
    weights->call = context->base.call;
    if (entered && mpt__module_at(context, module)) weights->count = mpt_parameter_count(module);
    if (entered) mpt__weights_name_call(weights);
    *status = context->base.status;
    return *status == MPT_OK;
}

/* Parameter number i, its name in weights->path; NULL with an error recorded. */
static const mpt__tensor *mpt__weights_at(mpt__weights *weights, int i) {
    mpt_context *context = weights->context;
    mpt_tensor handle =
        mpt_parameter_at(weights->module, i, weights->path, sizeof weights->path);
    mpt__weights_name_call(weights);
    if (context->base.status != MPT_OK) return NULL;
    if (strlen(weights->path) >= sizeof weights->path - 1) {
        mpt__error(context, MPT_ERROR_UNSUPPORTED, "the name %s.. is longer than %d bytes",
                   weights->path, MPT__WEIGHTS_PATH - 2);
        return NULL;
    }
    return mpt__at(context, handle, weights->path);
}

static int64_t mpt__weights_bytes(const mpt__tensor *tensor) {
    return mpt__tensor_numel(tensor) * mpt__dtype_info[tensor->dtype].bytes;
}

static bool mpt__big_endian(void) {
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    return first == 0;
}

/* Turns elements of `size` bytes around where this machine's order is not the file's. */
static void mpt__file_order(uint8_t *bytes, size_t n, size_t size) {
    if (size < 2 || !mpt__big_endian()) return;
    for (size_t at = 0; at + size <= n; at += size) {
        for (size_t i = 0; i < size / 2; i++) {
            uint8_t kept = bytes[at + i];
            bytes[at + i] = bytes[at + size - 1 - i];
            bytes[at + size - 1 - i] = kept;
        }
    }
}

static void mpt__put_u64(uint8_t out[8], uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t mpt__get_u64(const uint8_t in[8]) {
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value |= (uint64_t)in[i] << (8 * i);
    return value;
}

/* ==== Save ==== */

/* Text that is counted first and written afterwards. */
typedef struct mpt__header {
    char *text; /* NULL while counting */
    size_t length;
} mpt__header;

static void mpt__header_bytes(mpt__header *header, const char *bytes, size_t n) {
    if (header->text) memcpy(header->text + header->length, bytes, n);
    header->length += n;
}

static void mpt__header_text(mpt__header *header, const char *text) {
    mpt__header_bytes(header, text, strlen(text));
}

static void mpt__header_number(mpt__header *header, int64_t value) {
    char text[24];
    mpt__header_bytes(header, text, mpt__format_text(text, sizeof text, "%lld", value));
}

static void mpt__header_string(mpt__header *header, const char *string) {
    static const char digits[] = "0123456789abcdef";
    mpt__header_text(header, "\"");
    for (; *string; string++) {
        char escape[] = "\\u0000";
        uint8_t c = (uint8_t)*string;
        if (c == '"' || c == '\\') mpt__header_text(header, "\\");
        if (c >= 0x20) {
            mpt__header_bytes(header, string, 1);
            continue;
        }
        escape[4] = digits[c >> 4];
        escape[5] = digits[c & 15];
        mpt__header_text(header, escape);
    }
    mpt__header_text(header, "\"");
}

static void mpt__header_tensor(mpt__header *header, const char *name, const mpt__tensor *tensor,
                               int64_t begin) {
    mpt__header_text(header, ",");
    mpt__header_string(header, name);
    mpt__header_text(header, ":{\"dtype\":\"");
    mpt__header_text(header, mpt__dtype_info[tensor->dtype].file_name);
    mpt__header_text(header, "\",\"shape\":[");
    for (int i = 0; i < tensor->rank; i++) {
        if (i > 0) mpt__header_text(header, ",");
        mpt__header_number(header, tensor->shape[i]);
    }
    mpt__header_text(header, "],\"data_offsets\":[");
    mpt__header_number(header, begin);
    mpt__header_text(header, ",");
    mpt__header_number(header, begin + mpt__weights_bytes(tensor));
    mpt__header_text(header, "]}");
}

/* What comes of each parameter in the order of the file: wide elements first, so that every tensor
   is aligned, then the order of the tree. */
typedef bool (*mpt__save_visit)(mpt__weights *weights, const mpt__tensor *tensor, int64_t begin,
                                void *user);

static bool mpt__save_each(mpt__weights *weights, mpt__save_visit visit, void *user) {
    int64_t begin = 0;
    for (int size = 8; size >= 1; size /= 2) {
        for (int i = 0; i < weights->count; i++) {
            const mpt__tensor *tensor = mpt__weights_at(weights, i);
            if (!tensor) return false;
            if (mpt__dtype_info[tensor->dtype].bytes != size) continue;
            if (!visit(weights, tensor, begin, user)) return false;
            begin += mpt__weights_bytes(tensor);
        }
    }
    return true;
}

static bool mpt__save_header_visit(mpt__weights *weights, const mpt__tensor *tensor, int64_t begin,
                                   void *user) {
    mpt__header *header = (mpt__header *)user;
    mpt__header_tensor(header, weights->path, tensor, begin);
    return true;
}

static bool mpt__save_header(mpt__weights *weights, mpt__header *header) {
    header->length = 0;
    mpt__header_text(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    if (!mpt__save_each(weights, mpt__save_header_visit, header)) return false;
    mpt__header_text(header, "}");
    while (header->length % 8 != 0) mpt__header_text(header, " ");
    return true;
}

/* The file being written. */
typedef struct mpt__writer {
    void *file;
    const char *path; /* for messages: where it will be */
    int64_t position;
    uint8_t *chunk;
} mpt__writer;

#define MPT__SAVE_CHUNK (256 << 10) /* bytes; a multiple of every element size */

static bool mpt__write_bytes(mpt_context *context, mpt__writer *writer, const void *bytes,
                             size_t n) {
    const mpt_io *io = &context->base.io;
    size_t written = io->write(io->user, writer->file, bytes, n);
    if (written == n) {
        writer->position += (int64_t)n;
        return true;
    }
    mpt__error(context, MPT_ERROR_IO, "%s: writing %lld bytes at byte %lld took %lld: %s",
               writer->path, (int64_t)n, writer->position, (int64_t)written,
               mpt__io_reason(&context->base));
    return false;
}

static bool mpt__save_data_visit(mpt__weights *weights, const mpt__tensor *tensor, int64_t begin,
                                 void *user) {
    mpt__writer *writer = (mpt__writer *)user;
    size_t size = mpt__dtype_info[tensor->dtype].bytes;
    int64_t total = mpt__weights_bytes(tensor), start = tensor->offset * (int64_t)size;
    (void)begin;
    for (int64_t done = 0; done < total;) {
        int64_t take = total - done < MPT__SAVE_CHUNK ? total - done : MPT__SAVE_CHUNK;
        if (mpt__download(weights->context, writer->chunk, tensor->storage, start + done, take) !=
            MPT_OK)
            return false;
        mpt__file_order(writer->chunk, (size_t)take, size);
        if (!mpt__write_bytes(weights->context, writer, writer->chunk, (size_t)take)) return false;
        done += take;
    }
    return true;
}

/* Everything between open and close. */
static bool mpt__save_content(mpt__weights *weights, mpt__writer *writer,
                              const mpt__header *header) {
    const mpt_io *io = &weights->context->base.io;
    uint8_t size[8];
    mpt__put_u64(size, (uint64_t)header->length);
    if (!mpt__write_bytes(weights->context, writer, size, sizeof size) ||
        !mpt__write_bytes(weights->context, writer, header->text, header->length) ||
        !mpt__save_each(weights, mpt__save_data_visit, writer))
        return false;
    if (io->flush(io->user, writer->file)) return true;
    mpt__error(weights->context, MPT_ERROR_IO, "%s: cannot be written to the medium: %s",
               writer->path, mpt__io_reason(&weights->context->base));
    return false;
}

/* Writes beside the file, then puts the new one in its place; on failure nothing is left behind. */
static void mpt__save_file(mpt__weights *weights, const mpt__header *header, const char *path,
                           uint8_t *chunk) {
    mpt_context *context = weights->context;
    const mpt_io *io = &context->base.io;
    char temporary[MPT__PATH_SIZE];
    mpt__writer writer;
    if (!mpt__temporary_path(&context->base, path, temporary, sizeof temporary)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "the path is longer than %d bytes",
                   MPT__PATH_SIZE - 64);
        return;
    }
    writer.path = path, writer.position = 0, writer.chunk = chunk;
    writer.file = io->open(io->user, temporary, 'w');
    if (!writer.file) {
        mpt__error(context, MPT_ERROR_IO, "cannot write %s by way of %s: %s", path, temporary,
                   mpt__io_reason(&context->base));
        return;
    }
    bool good = mpt__save_content(weights, &writer, header);
    if (!io->close(io->user, writer.file) && good) {
        good = false;
        mpt__error(context, MPT_ERROR_IO, "%s: cannot be closed: %s", path,
                   mpt__io_reason(&context->base));
    }
    if (good && io->commit(io->user, temporary, path)) return;
    if (good) {
        mpt__error(context, MPT_ERROR_IO, "cannot move the finished file to %s: %s", path,
                   mpt__io_reason(&context->base));
    }
    io->remove(io->user, temporary);
}

MPTRAIN_API mpt_status mpt_save(mpt_module module, const char *path) {
    mpt__weights weights;
    mpt__header header;
    mpt_status status;
    if (!mpt__weights_begin(&weights, module, "mpt_save", &status)) return status;
    mpt_context *context = weights.context;
    if (mpt__no_files(context)) return context->base.status;
    if (!path || !*path) return mpt__error(context, MPT_ERROR_ARGUMENT, "path is empty");
    header.text = NULL;
    if (!mpt__save_header(&weights, &header)) return context->base.status;
    size_t length = header.length;
    header.text = (char *)mpt__host_new(context, length);
    uint8_t *chunk = (uint8_t *)mpt__host_new(context, MPT__SAVE_CHUNK);
    if (header.text && chunk && mpt__save_header(&weights, &header))
        mpt__save_file(&weights, &header, path, chunk);
    mpt__host_free(context, header.text, length);
    mpt__host_free(context, chunk, MPT__SAVE_CHUNK);
    return context->base.status;
}

/* ==== Load ==== */

/* A checked file: header and data in memory. */
typedef struct mpt__archive {
    mpt_context *context;
    const char *name; /* of the file, or "memory", for messages */
    uint8_t *header;  /* own copy */
    size_t header_bytes;
    mpt__entry *entries;
    int64_t count;
    const uint8_t *data;
    int64_t data_bytes;
    uint8_t *own_data; /* NULL: the caller's */
} mpt__archive;

MPTRAIN_API mpt_load_config mpt_load_config_default(void) {
    mpt_load_config config;
    config.strict = true;
    return config;
}

static void mpt__archive_free(mpt__archive *archive) {
    mpt_context *context = archive->context;
    mpt__host_free(context, archive->header, archive->header_bytes);
    mpt__host_free(context, archive->entries, (size_t)archive->count * sizeof *archive->entries);
    mpt__host_free(context, archive->own_data, (size_t)archive->data_bytes);
}

/* The size of the header from the first 8 bytes of `total`; false with an error recorded. */
static bool mpt__archive_size(mpt__archive *archive, const uint8_t first[8], int64_t total) {
    uint64_t size = mpt__get_u64(first);
    if (size < 2 || size > MPT__SAFETENSORS_MAX_HEADER || size > (uint64_t)(total - 8)) {
        mpt__error(archive->context, MPT_ERROR_FORMAT,
                   "%s: no safetensors file: at byte 0 a header size from 2 to %lld expected, got "
                   "%llu",
                   archive->name,
                   total - 8 < MPT__SAFETENSORS_MAX_HEADER ? total - 8
                                                           : (int64_t)MPT__SAFETENSORS_MAX_HEADER,
                   size);
        return false;
    }
    archive->header_bytes = (size_t)size;
    archive->data_bytes = total - 8 - (int64_t)size;
    archive->header = (uint8_t *)mpt__host_new(archive->context, archive->header_bytes);
    return archive->header != NULL;
}

static bool mpt__archive_too_short(mpt__archive *archive, int64_t total) {
    if (total >= 10) return false;
    mpt__error(archive->context, MPT_ERROR_FORMAT,
               "%s: no safetensors file: %lld bytes, at least 10 expected", archive->name, total);
    return true;
}

static bool mpt__archive_refuse(mpt__archive *archive, const mpt__refusal *refusal) {
    int64_t position = 8 + refusal->position;
    if (refusal->numbers) {
        mpt__error(archive->context, MPT_ERROR_FORMAT, "%s, byte %lld: %s: expected %lld, got %lld",
                   archive->name, position, refusal->text, refusal->expected, refusal->got);
    } else {
        mpt__error(archive->context, MPT_ERROR_FORMAT, "%s, byte %lld: %s", archive->name, position,
                   refusal->text);
    }
    return false;
}

/* Parses and checks the header, before any data is read. */
static bool mpt__archive_parse(mpt__archive *archive) {
    mpt__refusal refusal;
    int64_t count;
    if (!mpt__safetensors_parse(archive->header, archive->header_bytes, archive->data_bytes, NULL,
                                &count, &refusal))
        return mpt__archive_refuse(archive, &refusal);
    archive->entries =
        (mpt__entry *)mpt__host_new(archive->context, (size_t)count * sizeof *archive->entries);
    if (archive->context->base.status != MPT_OK) return false;
    archive->count = count;
    if (!mpt__safetensors_parse(archive->header, archive->header_bytes, archive->data_bytes,
                                archive->entries, &count, &refusal) ||
        !mpt__safetensors_check(archive->header, archive->entries, count, archive->data_bytes,
                                &refusal))
        return mpt__archive_refuse(archive, &refusal);
    return true;
}

/* All of a file, the data last: a file that cannot be read to its end changes nothing. */
static bool mpt__archive_read_file(mpt__archive *archive, mpt__reader *file) {
    uint8_t first[8];
    if (mpt__archive_too_short(archive, file->size)) return false;
    if (!mpt__reader_read(file, first, sizeof first) ||
        !mpt__archive_size(archive, first, file->size) ||
        !mpt__reader_read(file, archive->header, archive->header_bytes) ||
        !mpt__archive_parse(archive))
        return false;
    if (archive->data_bytes == 0) return true;
    archive->own_data =
        (uint8_t *)mpt__host_new(archive->context, (size_t)archive->data_bytes);
    archive->data = archive->own_data;
    return archive->own_data &&
           mpt__reader_read(file, archive->own_data, (size_t)archive->data_bytes);
}

static bool mpt__archive_read_memory(mpt__archive *archive, const void *data, size_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    int64_t total = bytes > PTRDIFF_MAX ? -1 : (int64_t)bytes;
    if (mpt__archive_too_short(archive, total) || !mpt__archive_size(archive, p, total))
        return false;
    memcpy(archive->header, p + 8, archive->header_bytes);
    archive->data = p + 8 + archive->header_bytes;
    return mpt__archive_parse(archive);
}

/* A name from a file for a message: shortened, control characters replaced. */
static const char *mpt__archive_name(const mpt__archive *archive, const mpt__entry *entry,
                                     char out[96]) {
    size_t n = entry->name_length < 90 ? entry->name_length : 90;
    for (size_t i = 0; i < n; i++) {
        uint8_t c = archive->header[entry->name + i];
        out[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    mpt__format_text(out + n, 96 - n, "%s", n < entry->name_length ? ".." : "");
    return out;
}

/* The dimensions of an entry; those beyond the eighth are counted in its rank alone. */
static mpt_shape mpt__archive_shape(const mpt__archive *archive, const mpt__entry *entry) {
    mpt__refusal refusal;
    mpt__json json;
    mpt_shape shape = MPT_SCALAR;
    memset(&refusal, 0, sizeof refusal);
    json.text = archive->header, json.n = archive->header_bytes, json.refusal = &refusal;
    json.at = entry->shape + 1;
    for (; shape.rank < entry->rank && shape.rank < MPT_MAX_RANK; shape.rank++, json.at++) {
        mpt__json_natural(&json, &shape.dim[shape.rank]);
        mpt__json_space(&json);
    }
    return shape;
}

/* Elements of an entry, converted on the way: calls `take` with blocks of at most
   MPT__ELEMENT_BLOCK elements of the parameter's dtype. */
typedef struct mpt__copy {
    const mpt__archive *archive;
    const mpt__entry *entry;
    const mpt__tensor *tensor;
    const mpt__convert_table *convert;
    mpt_dtype from, to;
} mpt__copy;

/* Block number `block` in the file's dtype, in this machine's byte order. Returns its elements. */
static size_t mpt__copy_block(const mpt__copy *copy, int64_t first, uint8_t *raw) {
    size_t size = mpt__dtype_info[copy->from].bytes;
    int64_t left = mpt__tensor_numel(copy->tensor) - first;
    size_t take = left < MPT__ELEMENT_BLOCK ? (size_t)left : MPT__ELEMENT_BLOCK;
    memcpy(raw, copy->archive->data + copy->entry->begin + first * (int64_t)size, take * size);
    mpt__file_order(raw, take * size, size);
    return take;
}

/* Whether a value that is finite in the file would not be so as a parameter. */
static bool mpt__copy_overflows(const mpt__copy *copy, int64_t *index, double *value) {
    uint8_t raw[MPT__ELEMENT_BLOCK * 8];
    float block[MPT__ELEMENT_BLOCK], back[MPT__ELEMENT_BLOCK];
    uint16_t half[MPT__ELEMENT_BLOCK * 2];
    int64_t numel = mpt__tensor_numel(copy->tensor);
    for (int64_t first = 0; first < numel; first += MPT__ELEMENT_BLOCK) {
        size_t n = mpt__copy_block(copy, first, raw);
        mpt__elements_to_f32(copy->from, raw, block, n);
        mpt__elements_from_f32(copy->convert, copy->to, block, half, n);
        mpt__elements_to_f32(copy->to, half, back, n);
        for (size_t i = 0; i < n; i++) {
            double original = block[i];
            if (copy->from == MPT_F64) memcpy(&original, raw + i * 8, sizeof original);
            if (mpt__f32_is_finite(back[i]) || !mpt__f64_is_finite(original)) continue;
            *index = first + (int64_t)i;
            *value = original;
            return true;
        }
    }
    return false;
}

static mpt_status mpt__copy_in(const mpt__copy *copy) {
    uint8_t raw[MPT__ELEMENT_BLOCK * 8];
    float block[MPT__ELEMENT_BLOCK];
    uint16_t converted[MPT__ELEMENT_BLOCK * 2]; /* room for fp32 */
    const mpt__tensor *tensor = copy->tensor;
    int64_t size = mpt__dtype_info[copy->to].bytes, numel = mpt__tensor_numel(tensor);
    mpt_context *context = copy->archive->context;
    const void *from = raw;
    if (copy->from == copy->to && !mpt__big_endian()) {
        return mpt__upload(context, tensor->storage, tensor->offset * size,
                           copy->archive->data + copy->entry->begin, numel * size);
    }
    for (int64_t first = 0; first < numel; first += MPT__ELEMENT_BLOCK) {
        size_t n = mpt__copy_block(copy, first, raw);
        if (copy->from != copy->to) {
            mpt__elements_to_f32(copy->from, raw, block, n);
            mpt__elements_from_f32(copy->convert, copy->to, block, converted, n);
            from = converted;
        }
        mpt_status status = mpt__upload(context, tensor->storage, (tensor->offset + first) * size,
                                        from, (int64_t)n * size);
        if (status != MPT_OK) return status;
    }
    return MPT_OK;
}

/* Checks that an entry can become the parameter that `weights` names, or records an error. */
static bool mpt__load_check(mpt__weights *weights, const mpt__copy *copy) {
    mpt_context *context = weights->context;
    const mpt__archive *archive = copy->archive;
    const char *file_dtype = mpt__file_dtypes[copy->entry->dtype].name;
    mpt_shape want = mpt__shape_of(copy->tensor), got = mpt__archive_shape(archive, copy->entry);
    bool same = want.rank == copy->entry->rank;
    int64_t index;
    double value;
    for (int i = 0; same && i < want.rank; i++) same = want.dim[i] == got.dim[i];
    if (!same) {
        mpt__error(context, MPT_ERROR_SHAPE, "%s: %s has shape %S, the parameter %S", archive->name,
                   weights->path, &got, &want);
        return false;
    }
    if (copy->from == MPT_DTYPE_NONE) {
        mpt__error(context, MPT_ERROR_DTYPE, "%s: %s is %s, which does not convert to %s",
                   archive->name, weights->path, file_dtype, mpt_dtype_name(copy->to));
        return false;
    }
    if (copy->from == copy->to || !mpt__copy_overflows(copy, &index, &value)) return true;
    mpt__error(context, MPT_ERROR_NUMERIC,
               "%s: element %lld of %s is %g, beyond the range of the parameter's %s",
               archive->name, index, weights->path, value, mpt_dtype_name(copy->to));
    return false;
}

static bool mpt__load_find(mpt__weights *weights, mpt__archive *archive, int i, mpt__copy *copy) {
    copy->archive = archive;
    copy->convert = mpt__convert_table_for(weights->context->config.isa);
    copy->tensor = mpt__weights_at(weights, i);
    copy->entry = NULL;
    if (!copy->tensor) return false;
    mpt__entry *entry = mpt__safetensors_find(archive->header, archive->entries, archive->count,
                                              weights->path);
    copy->entry = entry;
    if (!entry) return true;
    entry->used = true;
    copy->from = (mpt_dtype)mpt__file_dtypes[entry->dtype].dtype;
    copy->to = (mpt_dtype)copy->tensor->dtype;
    return true;
}

/* Names on one side only, counted and the first one given. */
static void mpt__load_strict(mpt__weights *weights, const mpt__archive *archive, int missing,
                             const char *first_missing) {
    char name[96], unexpected[160] = "", lacking[MPT__WEIGHTS_PATH + 64] = "";
    int64_t extra = 0;
    for (int64_t i = 0; i < archive->count; i++) {
        const mpt__entry *entry = &archive->entries[i];
        if (entry->used) continue;
        if (extra == 0) mpt__archive_name(archive, entry, name);
        extra++;
    }
    if (missing == 0 && extra == 0) return;
    if (missing > 0) {
        mpt__format_text(lacking, sizeof lacking, "%d parameters are missing, first %s", missing,
                         first_missing);
    }
    if (extra > 0) {
        mpt__format_text(unexpected, sizeof unexpected, "%lld tensors have no parameter, first %s",
                         extra, name);
    }
    mpt__error(weights->context, MPT_ERROR_FORMAT, "%s: %s%s%s; strict = false takes what fits",
               archive->name, lacking, missing > 0 && extra > 0 ? "; " : "", unexpected);
}

/* Checks all, then copies all. */
static void mpt__load_archive(mpt__weights *weights, mpt__archive *archive, bool strict,
                              int *loaded) {
    mpt_context *context = weights->context;
    char first_missing[MPT__WEIGHTS_PATH] = "";
    int missing = 0, found = 0;
    mpt__copy copy;
    for (int i = 0; i < weights->count; i++) {
        if (!mpt__load_find(weights, archive, i, &copy)) return;
        if (!copy.entry) {
            if (missing++ == 0) memcpy(first_missing, weights->path, sizeof first_missing);
        } else if (!mpt__load_check(weights, &copy)) {
            return;
        }
    }
    if (strict) mpt__load_strict(weights, archive, missing, first_missing);
    if (context->base.status != MPT_OK) return;
    for (int i = 0; i < weights->count; i++) {
        if (!mpt__load_find(weights, archive, i, &copy)) return;
        if (!copy.entry) continue;
        if (mpt__copy_in(&copy) != MPT_OK) return;
        found++;
    }
    if (loaded) *loaded = found;
}

MPTRAIN_API mpt_status mpt_load(mpt_module module, const char *path, const mpt_load_config *config,
                                int *loaded) {
    mpt__weights weights;
    mpt__archive archive;
    mpt__reader file;
    mpt_status status;
    if (loaded) *loaded = 0;
    if (!mpt__weights_begin(&weights, module, "mpt_load", &status)) return status;
    mpt_context *context = weights.context;
    if (mpt__no_files(context)) return context->base.status;
    if (!path || !*path) return mpt__error(context, MPT_ERROR_ARGUMENT, "path is empty");
    if (!mpt__reader_open(&file, context, path)) return context->base.status;
    memset(&archive, 0, sizeof archive);
    archive.context = context;
    archive.name = path;
    bool good = mpt__archive_read_file(&archive, &file);
    mpt__reader_close(&file);
    if (good) mpt__load_archive(&weights, &archive, !config || config->strict, loaded);
    mpt__archive_free(&archive);
    return context->base.status;
}

MPTRAIN_API mpt_status mpt_load_memory(mpt_module module, const void *data, size_t bytes,
                                       const mpt_load_config *config, int *loaded) {
    mpt__weights weights;
    mpt__archive archive;
    mpt_status status;
    if (loaded) *loaded = 0;
    if (!mpt__weights_begin(&weights, module, "mpt_load_memory", &status)) return status;
    mpt_context *context = weights.context;
    if (!data) return mpt__error(context, MPT_ERROR_ARGUMENT, "data is NULL");
    memset(&archive, 0, sizeof archive);
    archive.context = context;
    archive.name = "memory";
    if (mpt__archive_read_memory(&archive, data, bytes))
        mpt__load_archive(&weights, &archive, !config || config->strict, loaded);
    mpt__archive_free(&archive);
    return context->base.status;
}

#endif
