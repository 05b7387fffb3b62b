/* ----
 * train/checkpoint.c: weights as safetensors, to and from files and memory.
 *
 * A file is: the size of the header (u64), the header (JSON, padded with spaces to a multiple of
 * 8), the elements of all tensors without gaps; all numbers little-endian. Nothing that it claims
 * is believed before it is checked, and nothing changes before all of it is.
 * ---- */
#ifndef MPT__TRAIN_CHECKPOINT_INCLUDED
#define MPT__TRAIN_CHECKPOINT_INCLUDED

#include "nn/lora.c"
#include "data/dataset.c"
#include "data/writer.c"

/* Dtypes of safetensors that are none of ours, by size: files may hold them beside what is
   wanted. */
static const struct {
    char name[8];
    uint8_t bits;
} mpt__foreign_dtypes[] = {{"I16", 16}, {"I8", 8}, {"U16", 16}, {"U32", 32}, {"U64", 64},
    {"C64", 64}, {"F8_E8M0", 8}, {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}};

enum {
    MPT__FILE_DTYPES =
        MPT_DTYPE_COUNT + (int)(sizeof mpt__foreign_dtypes / sizeof mpt__foreign_dtypes[0])
};

/* Rows are those of mpt__dtype_info, then the foreign ones. */
static const char *mpt__file_dtype_name(int row) {
    return row < MPT_DTYPE_COUNT ? mpt__dtype_info[row].file_name
                                 : mpt__foreign_dtypes[row - MPT_DTYPE_COUNT].name;
}

static int mpt__file_dtype_bits(int row) {
    return row < MPT_DTYPE_COUNT ? 8 * mpt__dtype_info[row].bytes
                                 : mpt__foreign_dtypes[row - MPT_DTYPE_COUNT].bits;
}

#define MPT__SAFETENSORS_MAX_HEADER (16 << 20)
/* No tensor is described in fewer bytes: "":{"dtype":"U8","shape":[],"data_offsets":[0,1]} */
#define MPT__ENTRY_LEAST 49

/* One tensor of a file. */
typedef struct {
    mpt__span name;
    int64_t numel, begin, end; /* the last two in the data */
    int64_t weight;            /* where it goes: row + 1, 0 nowhere */
    uint32_t shape;            /* position of its '[' in the header */
    uint8_t dtype;             /* row, see mpt__file_dtype_name */
    uint8_t rank;              /* at most 255 */
    uint8_t part, parts;       /* of the weight's first dimension; 0 of 1: all of it */
    bool ignored, transpose;
} mpt__entry;

/* A file in memory, and the place in its header that is being read. */
typedef struct {
    mpt_context *context;
    mpt__json json;      /* the header, an own copy */
    mpt__entry *entries; /* sorted by name once all is checked */
    int64_t count;
    const uint8_t *data;
    int64_t data_bytes;
    uint8_t *own_data; /* NULL: the caller's */
} mpt__archive;

/* ==== The header ==== */

static bool mpt__archive_unequal(
    const mpt__archive *a, const char *text, int64_t expected, int64_t got) {
    return mpt__reject(a->context, FORMAT, "%s, byte %lld: %s: expected %lld, got %lld",
        a->json.name, 8 + (int64_t)a->json.at, text, expected, got);
}

static bool mpt__parse_dtype(mpt__archive *a, mpt__entry *entry) {
    mpt__span name;
    mpt__json_peek(&a->json);
    size_t start = a->json.at;
    if (!mpt__json_string(&a->json, &name)) return false;
    for (entry->dtype = MPT_F32; entry->dtype < MPT__FILE_DTYPES; entry->dtype++)
        if (mpt__span_is(name, mpt__file_dtype_name(entry->dtype))) return true;
    a->json.at = start;
    return mpt__json_refuse(&a->json, "an unknown dtype");
}

static bool mpt__parse_shape(mpt__archive *a, mpt__entry *entry) {
    bool done;
    mpt__json_peek(&a->json);
    entry->shape = (uint32_t)a->json.at;
    entry->numel = 1;
    if (!mpt__json_expect(&a->json, '[', "a list of dimensions expected")) return false;
    for (done = mpt__json_take(&a->json, ']'); !done; entry->rank++) {
        int64_t dim;
        if (!mpt__json_natural(&a->json, &dim)) return false;
        if (entry->rank == UINT8_MAX) return mpt__json_refuse(&a->json, "too many dimensions");
        if (dim > 0 && entry->numel > INT64_MAX / 64 / dim)
            return mpt__json_refuse(&a->json, "the dimensions multiply to too much");
        entry->numel *= dim;
        if (!mpt__json_more(&a->json, ']', &done)) return false;
    }
    return true;
}

static bool mpt__parse_offsets(mpt__archive *a, mpt__entry *entry) {
    static const char otherwise[] = "two offsets expected";
    return mpt__json_expect(&a->json, '[', otherwise) &&
        mpt__json_natural(&a->json, &entry->begin) && mpt__json_expect(&a->json, ',', otherwise) &&
        mpt__json_natural(&a->json, &entry->end) && mpt__json_expect(&a->json, ']', otherwise);
}

/* A tensor's object, with its size checked against its offsets. */
static bool mpt__parse_tensor(mpt__archive *a, mpt__entry *entry) {
    static const struct {
        const char *name;
        bool (*parse)(mpt__archive *a, mpt__entry *entry);
    } fields[3] = {{"dtype", mpt__parse_dtype}, {"shape", mpt__parse_shape},
        {"data_offsets", mpt__parse_offsets}};
    int has = 0;
    if (!mpt__json_expect(&a->json, '{', "an object expected")) return false;
    for (bool done = false; !done;) {
        mpt__span key;
        int field = 0;
        mpt__json_peek(&a->json);
        size_t start = a->json.at;
        if (!mpt__json_key(&a->json, &key)) return false;
        size_t value = a->json.at;
        a->json.at = start;
        while (field < 3 && !mpt__span_is(key, fields[field].name)) field++;
        if (field == 3)
            return mpt__json_refuse(
                &a->json, "a key of a tensor is none of dtype, shape, data_offsets");
        if (has & 1 << field) return mpt__json_refuse(&a->json, "a key of a tensor comes twice");
        a->json.at = value;
        has |= 1 << field;
        if (!fields[field].parse(a, entry) || !mpt__json_more(&a->json, '}', &done)) return false;
    }
    if (has != 7) return mpt__json_refuse(&a->json, "a tensor lacks dtype, shape or data_offsets");
    int64_t bits = entry->numel * mpt__file_dtype_bits(entry->dtype);
    if (bits % 8 != 0) return mpt__json_refuse(&a->json, "a tensor ends within a byte");
    if (entry->begin > entry->end || entry->end > a->data_bytes)
        return mpt__archive_unequal(
            a, "the offsets of a tensor leave the data (its end)", a->data_bytes, entry->end);
    if (entry->end - entry->begin != bits / 8)
        return mpt__archive_unequal(a, "the offsets of a tensor do not fit its shape (bytes)",
            bits / 8, entry->end - entry->begin);
    return true;
}

/* Text about the file, by text: read and not kept. */
static bool mpt__parse_metadata(mpt__archive *a) {
    mpt__span text;
    if (!mpt__json_expect(&a->json, '{', "an object expected")) return false;
    for (bool done = mpt__json_take(&a->json, '}'); !done;)
        if (!mpt__json_key(&a->json, &text) || !mpt__json_string(&a->json, &text) ||
            !mpt__json_more(&a->json, '}', &done))
            return false;
    return true;
}

/* Reads the header into the entries, in the order of the file. No recursion. */
static bool mpt__archive_parse(mpt__archive *a) {
    bool has_metadata = false;
    if (a->json.text[0] != '{')
        return mpt__json_refuse(&a->json, "the header does not begin with '{'");
    a->json.at = 1;
    for (bool done = mpt__json_take(&a->json, '}'); !done;) {
        mpt__entry entry;
        mpt__zero(entry);
        if (!mpt__json_key(&a->json, &entry.name)) return false;
        bool metadata = mpt__span_is(entry.name, "__metadata__");
        if (metadata && has_metadata) return mpt__json_refuse(&a->json, "__metadata__ comes twice");
        if (!(metadata ? mpt__parse_metadata(a) : mpt__parse_tensor(a, &entry))) return false;
        if (metadata)
            has_metadata = true;
        else
            a->entries[a->count++] = entry;
        if (!mpt__json_more(&a->json, '}', &done)) return false;
    }
    return mpt__json_end(&a->json);
}

/* ==== Order and holes ==== */

static int mpt__entry_compare(const mpt__entry *a, const mpt__entry *b, bool by_name) {
    if (by_name) return mpt__span_compare(a->name, b->name);
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

static void mpt__entry_swap(mpt__entry *a, mpt__entry *b) {
    mpt__entry kept = *a;
    *a = *b;
    *b = kept;
}

/* Heapsort: n log n whatever the file holds, without recursion. */
static void mpt__entries_sort(mpt__entry *entries, int64_t count, bool by_name) {
    int64_t start = count / 2, end = count;
    while (end > 1) {
        if (start > 0)
            start--;
        else
            mpt__entry_swap(&entries[0], &entries[--end]);
        for (int64_t parent = start, child; (child = 2 * parent + 1) < end; parent = child) {
            if (child + 1 < end &&
                mpt__entry_compare(&entries[child], &entries[child + 1], by_name) < 0)
                child++;
            if (mpt__entry_compare(&entries[parent], &entries[child], by_name) >= 0) break;
            mpt__entry_swap(&entries[parent], &entries[child]);
        }
    }
}

/* Whether tensors fill the data without holes or overlaps, each name once. */
static bool mpt__archive_check(mpt__archive *a) {
    int64_t filled = 0;
    mpt__entries_sort(a->entries, a->count, false);
    for (int64_t i = 0; i < a->count; i++) {
        const mpt__entry *entry = &a->entries[i];
        a->json.at = (size_t)(entry->name.text - a->json.text);
        if (entry->begin > filled)
            return mpt__archive_unequal(
                a, "a hole in the data before this tensor (byte)", filled, entry->begin);
        if (entry->begin < filled)
            return mpt__archive_unequal(
                a, "this tensor overlaps another one (byte)", filled, entry->begin);
        filled = entry->end;
    }
    a->json.at = 0;
    if (filled != a->data_bytes)
        return mpt__archive_unequal(
            a, "the tensors do not fill the data (bytes)", a->data_bytes, filled);
    mpt__entries_sort(a->entries, a->count, true);
    for (int64_t i = 1; i < a->count; i++) {
        a->json.at = (size_t)(a->entries[i].name.text - a->json.text);
        if (mpt__entry_compare(&a->entries[i - 1], &a->entries[i], true) == 0)
            return mpt__json_refuse(&a->json, "a tensor's name comes twice");
    }
    return true;
}

/* The entry of a name among sorted ones, or NULL. */
static mpt__entry *mpt__entries_find(mpt__entry *entries, int64_t count, mpt__span name) {
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = mpt__span_compare(entries[middle].name, name);
        if (order == 0) return &entries[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ==== Parameters ==== */

/* Parameters and buffers of a save or load, with their names in the file. */
typedef struct {
    const char *path;
    const mpt__tensor *tensor;
    uint32_t parts, seen; /* of a load: into how many it was divided, and a bit for each */
} mpt__weight;

typedef struct {
    mpt__weight *rows;
    int64_t count;
} mpt__weights;

static void mpt__weight_set(mpt__weight *weight, const char *path, const mpt__tensor *tensor) {
    weight->path = path;
    weight->tensor = tensor;
    weight->parts = weight->seen = 0;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__weight_asked(ctx, weight, adapters) true
#else
/* Whether a weight is asked for: any, or those of adapters alone. */
static bool mpt__weight_asked(mpt_context *ctx, const mpt__buffer *weight, bool adapters) {
    const uint32_t parameter = weight->tensor->parameter;
    return !adapters ||
        (parameter && mpt__module_slot(ctx, ctx->parameters[parameter - 1].module)->lora ==
            MPT__LORA_ADAPTER);
}
#endif

/* Those that are asked for, in the order of the tree, which it freezes; false with an error
   recorded. */
static bool mpt__weights_make(mpt_module module, bool adapters, mpt__weights *weights) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_at(ctx, module);
    mpt__buffer weight;
    mpt__walk walk;
    weights->rows = NULL;
    weights->count = 0;
    if (!found || mpt__freeze(ctx, found) != MPT_OK) return false;
    mpt__walk_begin(&walk, ctx, found);
    while (mpt__walk_weight(&walk, &weight))
        weights->count += mpt__weight_asked(ctx, &weight, adapters);
    if (adapters && weights->count == 0)
        return mpt__reject(ctx, STATE, "the module has no adapters; mpt_lora makes them");
    weights->rows = (mpt__weight *)mpt__host_new(ctx, (size_t)weights->count * sizeof(mpt__weight));
    if (!weights->rows) weights->count = 0;
    mpt__walk_begin(&walk, ctx, found);
    for (int64_t row = 0; row < weights->count;) {
        mpt__walk_weight(&walk, &weight);
        if (mpt__weight_asked(ctx, &weight, adapters))
            mpt__weight_set(&weights->rows[row++], mpt__relative_path(ctx, found, weight.path),
                weight.tensor);
    }
    return mpt__ok(ctx);
}

static void mpt__weights_free(mpt_context *ctx, mpt__weights *weights) {
    mpt__room_free(ctx, weights->rows, weights->count);
}

/* ==== Save ==== */

static int mpt__weight_width(const mpt__weight *weight) {
    return mpt__dtype_info[weight->tensor->dtype].bytes;
}

/* Wide elements first, so that every tensor of the file is aligned. */
static void mpt__weights_sort(mpt__weights *weights) {
    for (int64_t i = 1; i < weights->count; i++) {
        mpt__weight moved = weights->rows[i];
        int64_t to = i;
        for (; to > 0 && mpt__weight_width(&weights->rows[to - 1]) < mpt__weight_width(&moved);
             to--)
            weights->rows[to] = weights->rows[to - 1];
        weights->rows[to] = moved;
    }
}

static void mpt__header_string(mpt__text *header, const char *string) {
    mpt__text_char(header, '"');
    for (; *string; string++) {
        if (*string == '"' || *string == '\\') mpt__text_char(header, '\\');
        if ((uint8_t)*string >= 0x20)
            mpt__text_char(header, *string);
        else
            mpt__write_text(header, "\\u00%d%llx", *string >> 4 & 1, (uint64_t)*string & 15);
    }
    mpt__text_char(header, '"');
}

/* A tensor's part of the header; *at: where its elements begin, then end. */
static void mpt__header_entry(mpt__text *header, const char *name, mpt_dtype dtype,
    const mpt_shape *shape, int64_t bytes, int64_t *at) {
    mpt__text_char(header, ',');
    mpt__header_string(header, name);
    mpt__write_text(header, ":{\"dtype\":\"%s\",\"shape\":[", mpt__dtype_info[dtype].file_name);
    for (int d = 0; d < shape->rank; d++)
        mpt__write_text(header, "%s%lld", d > 0 ? "," : "", shape->dim[d]);
    mpt__write_text(header, "],\"data_offsets\":[%lld,%lld]}", *at, *at + bytes);
    *at += bytes;
}

static void mpt__header_begin(mpt__text *header) {
    mpt__write_text(header, "{\"__metadata__\":{\"format\":\"pt\"}");
}

static void mpt__header_end(mpt__text *header) {
    mpt__text_char(header, '}');
    while (header->length % 8 != 0) mpt__text_char(header, ' ');
}

/* The header, counted at least: what does not fit is not written. */
static void mpt__save_header(const mpt__weights *weights, mpt__text *header) {
    int64_t at = 0;
    mpt__header_begin(header);
    for (int64_t i = 0; i < weights->count; i++) {
        const mpt__tensor *tensor = weights->rows[i].tensor;
        mpt__header_entry(header, weights->rows[i].path, (mpt_dtype)tensor->dtype, &tensor->shape,
            mpt__tensor_bytes(tensor), &at);
    }
    mpt__header_end(header);
}

#define MPT__SAVE_CHUNK (256 << 10) /* bytes; a multiple of every element size */

/* What is saved, and room for a part on its way from the backend. */
typedef struct {
    mpt_context *context;
    const mpt__weights *weights;
    const mpt__text *header;
    uint8_t *chunk;
} mpt__saving;

/* `count` elements of a storage from number `first` on. */
static bool mpt__write_elements(mpt__writer *writer, mpt_context *ctx, uint32_t storage,
    mpt_dtype dtype, int64_t first, int64_t count, uint8_t *chunk) {
    int64_t size = (int64_t)mpt_dtype_size(dtype), total = count * size;
    for (int64_t done = 0, take; done < total; done += take) {
        take = total - done < MPT__SAVE_CHUNK ? total - done : MPT__SAVE_CHUNK;
        if (mpt__download(ctx, chunk, storage, first * size + done, take) != MPT_OK) return false;
        mpt__file_order(chunk, (size_t)take, (size_t)size);
        if (!mpt__write_bytes(writer, chunk, (size_t)take)) return false;
    }
    return true;
}

/* The header behind its size. */
static bool mpt__write_header(mpt__writer *writer, const mpt__text *header) {
    uint8_t size[8];
    for (int i = 0; i < 8; i++) size[i] = (uint8_t)((uint64_t)header->length >> (8 * i));
    return mpt__write_bytes(writer, size, sizeof size) &&
        mpt__write_bytes(writer, header->out, header->length);
}

static bool mpt__save_content(mpt__writer *writer, const void *of) {
    const mpt__saving *saving = (const mpt__saving *)of;
    bool good = mpt__write_header(writer, saving->header);
    for (int64_t i = 0; i < saving->weights->count && good; i++) {
        const mpt__tensor *tensor = saving->weights->rows[i].tensor;
        good = mpt__write_elements(writer, saving->context, tensor->storage,
            (mpt_dtype)tensor->dtype, tensor->offset, mpt__tensor_numel(tensor), saving->chunk);
    }
    return good;
}

/* `adapters`: of the weights of a module those of its adapters alone. */
static mpt_status mpt__save_module(
    mpt_module module, const char *path, const char *call, bool adapters) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = module.context;
    mpt__weights weights;
    mpt__text header = {NULL, 0, 0};
    mpt__saving saving = {ctx, &weights, &header, NULL};
    if (!mpt__enter(ctx, call) || !mpt__module_at(ctx, module) || mpt__no_files(ctx))
        return mpt__status_of(ctx);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty");
    if (mpt__weights_make(module, adapters, &weights)) {
        mpt__weights_sort(&weights);
        mpt__save_header(&weights, &header);
        header.size = header.length + 1;
        header.length = 0;
        header.out = (char *)mpt__host_new(ctx, header.size);
        saving.chunk = (uint8_t *)mpt__host_new(ctx, MPT__SAVE_CHUNK);
        if (header.out && saving.chunk) {
            mpt__save_header(&weights, &header);
            mpt__write_file(&ctx->base, path, mpt__save_content, &saving);
        }
        mpt__host_free(ctx, header.out, header.size);
        mpt__host_free(ctx, saving.chunk, MPT__SAVE_CHUNK);
    }
    mpt__weights_free(ctx, &weights);
    return ctx->base.status;
}

mpt_status mpt_save(mpt_module module, const char *path) {
    return mpt__save_module(module, path, "mpt_save", false);
}

#ifndef MPTRAIN_NO_FRUGAL
mpt_status mpt_lora_save(mpt_module module, const char *path) {
    return mpt__save_module(module, path, "mpt_lora_save", true);
}
#endif

/* ==== Load ==== */

MPT__DEFAULTS(mpt_load_config, config.strict = true;)

enum { MPT__LOAD_PARTS = 16, MPT__LOAD_NAME = 1024 };

static bool mpt__rename_good(const mpt_rename *rule) {
    return mpt__pattern_good(rule->from) && mpt__pattern_good(rule->to) &&
        (strchr(rule->from, '*') || !strchr(rule->to, '*')) && rule->part >= 0 &&
        rule->parts >= 0 && rule->parts <= MPT__LOAD_PARTS &&
        rule->part < (rule->parts ? rule->parts : 1);
}

static bool mpt__load_config_good(mpt_context *ctx, const mpt_load_config *config) {
    const char *table = "renames", *wanted = "counts of 0, or tables";
    int i = 0;
    if (config->rename_count >= 0 && config->ignore_count >= 0 &&
        (config->rename_count == 0 || config->renames) &&
        (config->ignore_count == 0 || config->ignore)) {
        wanted = "names with one '*' at most, in `to` only if in `from`, and part 0 of 0 or a part "
                 "of 1 to 16";
        while (i < config->rename_count && mpt__rename_good(&config->renames[i])) i++;
        if (i == config->rename_count) {
            table = "ignore", wanted = "a name with one '*' at most";
            for (i = 0; i < config->ignore_count && mpt__pattern_good(config->ignore[i]);) i++;
            if (i == config->ignore_count) return true;
        }
    }
    return mpt__reject(ctx, ARGUMENT, "%s[%d]: expected %s", table, i, wanted);
}

/* Bytes of a name that are the config's prefix and its dot; -1 if it begins otherwise. */
static int64_t mpt__prefix_length(const mpt_load_config *config, mpt__span name) {
    size_t n = config->prefix ? strlen(config->prefix) : 0;
    if (n == 0) return 0;
    if (name.length <= n || memcmp(name.text, config->prefix, n) != 0) return -1;
    if (config->prefix[n - 1] == '.') return (int64_t)n;
    return name.text[n] == '.' ? (int64_t)n + 1 : -1;
}

/* Puts into *name what the rules make of an entry's name, each from what those before it made, in
   one or the other half of `room`; false where that is too long. */
static bool mpt__load_rename(const mpt_load_config *config, mpt__entry *entry, mpt__span *name,
    uint8_t room[2][MPT__LOAD_NAME]) {
    int64_t prefix = mpt__prefix_length(config, entry->name);
    *name = entry->name;
    if (prefix > 0) name->text += prefix, name->length -= (size_t)prefix;
    entry->part = 0, entry->parts = 1, entry->transpose = false;
    for (int i = 0; i < config->rename_count; i++) {
        const mpt_rename *rule = &config->renames[i];
        uint8_t *out = room[name->text == room[0]];
        mpt__span star, to = mpt__span_of(rule->to);
        if (!mpt__pattern_fits(rule->from, *name, &star)) continue;
        const char *at = strchr(rule->to, '*');
        size_t head = at ? (size_t)(at - rule->to) : to.length;
        size_t tail = at ? to.length - head - 1 : 0;
        if (!at) star.length = 0;
        if (head + star.length + tail > MPT__LOAD_NAME) return false;
        memcpy(out, to.text, head);
        memcpy(out + head, star.text, star.length);
        memcpy(out + head + star.length, to.text + to.length - tail, tail);
        name->text = out;
        name->length = head + star.length + tail;
        entry->transpose = entry->transpose != rule->transpose;
        if (rule->parts > 0) entry->part = (uint8_t)rule->part, entry->parts = (uint8_t)rule->parts;
    }
    return true;
}

enum { MPT__SHOWN_NAME = 112 };

/* A name of the file for messages: short, without control characters. */
static const char *mpt__show_name(mpt__span name, char text[MPT__SHOWN_NAME]) {
    size_t n = 0;
    for (; n < name.length && n < MPT__SHOWN_NAME - 1; n++)
        text[n] = name.text[n] < 0x20 ? '?' : (char)name.text[n];
    text[n] = '\0';
    return text;
}

static size_t mpt__archive_capacity(const mpt__archive *a) {
    return (a->json.size / MPT__ENTRY_LEAST + 1) * sizeof *a->entries;
}

static void mpt__archive_free(mpt__archive *a) {
    mpt__host_free(a->context, a->json.text, a->json.size);
    mpt__host_free(a->context, a->entries, mpt__archive_capacity(a));
    mpt__host_free(a->context, a->own_data, (size_t)a->data_bytes);
}

static int64_t mpt__header_most(int64_t total) {
    return total - 8 < MPT__SAFETENSORS_MAX_HEADER ? total - 8 : MPT__SAFETENSORS_MAX_HEADER;
}

static bool mpt__header_sized(const uint8_t first[8], int64_t total) {
    uint64_t size = mpt__load_little_endian(first, 8);
    return size >= 2 && size <= (uint64_t)mpt__header_most(total);
}

/* Makes room for the header of a file of `total` bytes, the first n of which are given. */
static bool mpt__archive_begin(mpt__archive *a, const uint8_t *first, size_t n, int64_t total) {
    int64_t most = mpt__header_most(total);
    uint64_t size = mpt__load_little_endian(first, 8);
    if (!mpt__header_sized(first, total))
        return mpt__refuse_known(a->context, a->json.name, first, n, MPT__KNOWN_ALL) &&
            mpt__reject(a->context, FORMAT,
                "%s: no safetensors file: at byte 0 a header size from 2 to %lld "
                "expected, got %llu",
                a->json.name, most, size);
    a->json.base = &a->context->base;
    a->json.size = (size_t)size;
    a->json.before = 8;
    a->data_bytes = total - 8 - (int64_t)size;
    a->json.text = (uint8_t *)mpt__host_new(a->context, a->json.size);
    return a->json.text != NULL;
}

static bool mpt__archive_too_short(const mpt__archive *a, int64_t total) {
    return total < 10 &&
        !mpt__reject(a->context, FORMAT,
            "%s: no safetensors file: %lld bytes, at least 10 expected", a->json.name, total);
}

/* Reads and checks the header, before any data is read. */
static bool mpt__archive_open(mpt__archive *a) {
    a->entries = (mpt__entry *)mpt__host_new(a->context, mpt__archive_capacity(a));
    return a->entries && mpt__archive_parse(a) && mpt__archive_check(a);
}

/* All of a file, the data last: one that cannot be read to its end changes nothing. */
static bool mpt__archive_read_file(mpt__archive *a, mpt__reader *file) {
    uint8_t first[64];
    size_t n = 8, more = file->size < 64 ? (size_t)file->size - n : sizeof first - n;
    if (mpt__archive_too_short(a, file->size) || !mpt__reader_read(file, first, n)) return false;
    /* Of a file of another kind more tells which. */
    if (!mpt__header_sized(first, file->size) && mpt__reader_read(file, first + n, more)) n += more;
    if (!mpt__ok(a->context) || !mpt__archive_begin(a, first, n, file->size) ||
        !mpt__reader_read(file, a->json.text, a->json.size) || !mpt__archive_open(a))
        return false;
    if (a->data_bytes == 0) return true;
    a->data = a->own_data = (uint8_t *)mpt__host_new(a->context, (size_t)a->data_bytes);
    return a->own_data && mpt__reader_read(file, a->own_data, (size_t)a->data_bytes);
}

static bool mpt__archive_read_memory(mpt__archive *a, const uint8_t *data, size_t bytes) {
    int64_t total = bytes > PTRDIFF_MAX ? -1 : (int64_t)bytes;
    size_t head = bytes < 64 ? bytes : 64;
    if (mpt__archive_too_short(a, total) || !mpt__archive_begin(a, data, head, total)) return false;
    memcpy(a->json.text, data + 8, a->json.size);
    a->data = data + 8 + a->json.size;
    return mpt__archive_open(a);
}

/* An entry's dimensions; those beyond the eighth count in its rank alone. */
static mpt_shape mpt__archive_shape(mpt__archive *a, const mpt__entry *entry) {
    mpt_shape shape = MPT_SCALAR;
    a->json.at = entry->shape + 1;
    for (; shape.rank < entry->rank && shape.rank < MPT_MAX_RANK; shape.rank++, a->json.at++) {
        mpt__json_natural(&a->json, &shape.dim[shape.rank]);
        mpt__json_peek(&a->json);
    }
    return shape;
}

/* An entry on its way into a parameter, block by block. */
typedef struct {
    mpt__archive *archive;
    const mpt__entry *entry;
    const char *path;
    const mpt__tensor *tensor;
    const mpt__convert_table *convert;
    mpt_shape shape;                     /* of the entry, turned where it is transposed */
    int from, to;                        /* rows of mpt__dtype_info */
    uint8_t raw[MPT__ELEMENT_BLOCK * 8]; /* of the file, in this machine's byte order */
    float exact[MPT__ELEMENT_BLOCK];
    uint16_t converted[MPT__ELEMENT_BLOCK * 4]; /* room for i64 */
} mpt__copy;

/* Fills the three from element `first` on. Returns the block's elements. */
static size_t mpt__copy_block(mpt__copy *copy, int64_t first) {
    size_t size = mpt__dtype_info[copy->from].bytes;
    int64_t left = copy->entry->numel - first;
    const uint8_t *data = copy->archive->data + copy->entry->begin;
    size_t n = left < MPT__ELEMENT_BLOCK ? (size_t)left : MPT__ELEMENT_BLOCK;
    if (!copy->entry->transpose) memcpy(copy->raw, data + first * (int64_t)size, n * size);
    for (size_t i = 0; i < n && copy->entry->transpose; i++) {
        int64_t at = first + (int64_t)i, rows = copy->shape.dim[0], columns = copy->shape.dim[1];
        memcpy(copy->raw + i * size, data + (at % columns * rows + at / columns) * (int64_t)size,
            size);
    }
    mpt__file_order(copy->raw, n * size, size);
    mpt__elements_to_f32((mpt_dtype)copy->from, copy->raw, copy->exact, n);
    mpt__elements_from_f32(copy->convert, (mpt_dtype)copy->to, copy->exact, copy->converted, n);
    return n;
}

/* Refuses values finite in the file that would not be so as a parameter. */
static bool mpt__copy_check(mpt__copy *copy) {
    float back[MPT__ELEMENT_BLOCK];
    if (copy->from == copy->to) return true;
    for (int64_t first = 0; first < copy->entry->numel; first += MPT__ELEMENT_BLOCK) {
        size_t n = mpt__copy_block(copy, first);
        mpt__elements_to_f32((mpt_dtype)copy->to, copy->converted, back, n);
        for (size_t i = 0; i < n; i++) {
            double value = copy->exact[i];
            if (copy->from == MPT_F64) memcpy(&value, copy->raw + i * 8, sizeof value);
            if (!mpt__f32_is_finite(back[i]) && mpt__f64_is_finite(value))
                return mpt__reject(copy->archive->context, NUMERIC,
                    "%s: element %lld of %s is %g, beyond the range of the parameter's %s",
                    copy->archive->json.name, first + (int64_t)i, copy->path, value,
                    mpt__dtype_info[copy->to].name);
        }
    }
    return true;
}

static bool mpt__copy_in(mpt__copy *copy) {
    const mpt__tensor *tensor = copy->tensor;
    int64_t size = mpt__dtype_info[copy->to].bytes, numel = copy->entry->numel;
    int64_t offset = tensor->offset + copy->entry->part * numel;
    bool same = copy->from == copy->to;
    if (same && !mpt__big_endian() && !copy->entry->transpose)
        return mpt__upload(copy->archive->context, tensor->storage, offset * size,
                   copy->archive->data + copy->entry->begin, numel * size) == MPT_OK;
    for (int64_t first = 0; first < numel; first += MPT__ELEMENT_BLOCK) {
        size_t n = mpt__copy_block(copy, first);
        if (mpt__upload(copy->archive->context, tensor->storage, (offset + first) * size,
                same ? (const void *)copy->raw : copy->converted, (int64_t)n * size) != MPT_OK)
            return false;
    }
    return true;
}

/* False for an entry that goes nowhere. */
static bool mpt__copy_begin(
    mpt__copy *copy, mpt__archive *a, const mpt__weights *weights, const mpt__entry *entry) {
    if (!entry->weight) return false;
    const mpt__weight *weight = &weights->rows[entry->weight - 1];
    copy->archive = a;
    copy->entry = entry;
    copy->path = weight->path;
    copy->tensor = weight->tensor;
    copy->convert = a->context->convert;
    copy->from = entry->dtype;
    copy->to = weight->tensor->dtype;
    copy->shape = mpt__archive_shape(a, entry);
    if (entry->transpose) {
        copy->shape.dim[0] = copy->shape.dim[1];
        copy->shape.dim[1] = mpt__archive_shape(a, entry).dim[0];
    }
    return true;
}

/* Whether an entry can become its parameter or a part of it, else an error. */
static bool mpt__load_check(mpt__copy *copy) {
    mpt__archive *a = copy->archive;
    const mpt__entry *entry = copy->entry;
    mpt_shape want = copy->tensor->shape;
    char shown[MPT__SHOWN_NAME];
    if (mpt__writing_refused(a->context, copy->tensor->storage)) return false;
    bool divides = entry->parts == 1 || (want.rank > 0 && want.dim[0] % entry->parts == 0);
    bool same = divides && want.rank == entry->rank && (!entry->transpose || entry->rank == 2);
    if (divides && want.rank > 0) want.dim[0] /= entry->parts;
    for (int i = 0; same && i < want.rank; i++) same = want.dim[i] == copy->shape.dim[i];
    if (!same) {
        mpt_shape got = mpt__archive_shape(a, entry);
        bool renamed = !mpt__span_is(entry->name, copy->path);
        return mpt__reject(a->context, SHAPE, "%s: %s%s%s has shape %S%s, %s %S", a->json.name,
            mpt__show_name(entry->name, shown), renamed ? ", renamed to " : "",
            renamed ? copy->path : "", &got, entry->transpose ? ", to be transposed" : "",
            entry->parts > 1 ? "a part of the parameter" : "the parameter", &want);
    }
    bool converts = copy->from == copy->to || mpt__dtype_info[copy->to].is_float;
    if (!mpt__elements_known(copy->from) || !converts)
        return mpt__reject(a->context, DTYPE, "%s: %s is %s, which does not convert to %s",
            a->json.name, copy->path, mpt__file_dtype_name(entry->dtype),
            mpt__dtype_info[copy->to].name);
    return mpt__copy_check(copy);
}

/* Gives an entry its place; false with an error recorded where that is taken. */
static bool mpt__load_place(
    mpt__archive *a, const mpt__weights *weights, mpt__entry *entry, const mpt__entry *found) {
    mpt__weight *weight = &weights->rows[found->begin];
    uint32_t bit = 1u << entry->part;
    char shown[MPT__SHOWN_NAME];
    if (weight->seen && (weight->parts != entry->parts || (weight->seen & bit)))
        return mpt__reject(a->context, FORMAT,
            "%s: %s becomes %s, and so does another tensor of the file", a->json.name,
            mpt__show_name(entry->name, shown), weight->path);
    weight->parts = entry->parts;
    weight->seen |= bit;
    entry->weight = found->begin + 1;
    return true;
}

/* Finds the parameter of each entry by way of the sorted paths. */
static bool mpt__load_map(const mpt__weights *weights, mpt__archive *a,
    const mpt_load_config *config, mpt__entry *paths) {
    uint8_t room[2][MPT__LOAD_NAME];
    char shown[MPT__SHOWN_NAME];
    mpt__span name;
    for (int64_t i = 0; i < weights->count; i++) {
        paths[i].name = mpt__span_of(weights->rows[i].path);
        paths[i].begin = i;
    }
    mpt__entries_sort(paths, weights->count, true);
    for (int64_t i = 0; i < a->count; i++) {
        mpt__entry *entry = &a->entries[i], *found;
        entry->ignored = mpt__prefix_length(config, entry->name) < 0;
        for (int k = 0; k < config->ignore_count && !entry->ignored; k++)
            entry->ignored = mpt__pattern_fits(config->ignore[k], entry->name, &name);
        if (entry->ignored) continue;
        if (!mpt__load_rename(config, entry, &name, room))
            return mpt__reject(a->context, ARGUMENT,
                "%s: the renames make more than %d bytes of %s", a->json.name, MPT__LOAD_NAME,
                mpt__show_name(entry->name, shown));
        found = mpt__entries_find(paths, weights->count, name);
        if (found && !mpt__load_place(a, weights, entry, found)) return false;
    }
    return true;
}

/* Names on one side only, counted and the first one given: an error of a strict load, else told to
   the log. That nothing fits is never meant, but of a file ignored as a whole. */
static bool mpt__load_compare(
    const mpt__weights *weights, const mpt__archive *a, const mpt_load_config *config) {
    const char *first_missing = "", *advice = "";
    mpt__entry *first = NULL;
    char shown[MPT__SHOWN_NAME] = "", made[MPT__SHOWN_NAME] = "", text[512];
    uint8_t room[2][MPT__LOAD_NAME];
    int64_t missing = 0, extra = 0, found = 0;
    for (int64_t i = weights->count - 1; i >= 0; i--) {
        const mpt__weight *weight = &weights->rows[i];
        if (weight->seen && weight->seen == (1u << weight->parts) - 1) continue;
        first_missing = weight->path, missing++;
    }
    for (int64_t i = a->count - 1; i >= 0; i--) {
        found += a->entries[i].weight != 0;
        if (!a->entries[i].weight && !a->entries[i].ignored) first = &a->entries[i], extra++;
    }
    if (missing == 0 && extra == 0) return true;
    if (first) {
        mpt__span name;
        mpt__load_rename(config, first, &name, room);
        mpt__show_name(first->name, shown);
        if (name.text != first->name.text) mpt__show_name(name, made);
    }
    bool nothing = found == 0 && (extra > 0 || config->prefix);
    if (config->strict)
        advice =
            "; of mpt_load_config, strict = false takes what fits, and renames and ignore tell "
            "about names";
    else if (nothing)
        advice = ": nothing was loaded; prefix, renames and ignore of mpt_load_config tell about "
                 "names";
    mpt__format_text(text, sizeof text,
        "%lld parameters are missing%s%s; %lld tensors have no parameter%s%s%s%s%s", missing,
        missing ? ", first " : "", first_missing, extra, extra ? ", first " : "", shown,
        *made ? ", renamed to " : "", made, advice);
    if (config->strict) return mpt__reject(a->context, FORMAT, "%s: %s", a->json.name, text);
    mpt__log(
        &a->context->base, nothing ? MPT_LOG_WARNING : MPT_LOG_INFO, "%s: %s", a->json.name, text);
    return true;
}

/* Checks all, then copies all. Returns how many, 0 with an error recorded. */
static int mpt__load_weights(
    const mpt__weights *weights, mpt__archive *a, const mpt_load_config *config) {
    size_t bytes = (size_t)(weights->count + 1) * sizeof(mpt__entry);
    mpt__entry *paths = (mpt__entry *)mpt__host_new(a->context, bytes);
    bool good = paths && mpt__load_map(weights, a, config, paths);
    mpt__copy copy;
    int found = 0;
    mpt__host_free(a->context, paths, bytes);
    for (int64_t i = 0; good && i < a->count; i++)
        if (mpt__copy_begin(&copy, a, weights, &a->entries[i])) good = mpt__load_check(&copy);
    if (!good || !mpt__load_compare(weights, a, config)) return 0;
    for (int64_t i = 0; i < a->count; i++) {
        if (!mpt__copy_begin(&copy, a, weights, &a->entries[i])) continue;
        if (!mpt__copy_in(&copy)) return 0;
        found++;
    }
    return found;
}

/* The part of a load that follows once the archive was read, or was not. */
static mpt_status mpt__load_end(
    mpt_module module, mpt__archive *a, bool good, const mpt_load_config *config, int *loaded) {
    MPT__PLAIN_FLOATS;
    mpt_load_config defaults = mpt_load_config_default();
    mpt__weights weights = {NULL, 0};
    if (good && mpt__weights_make(module, false, &weights)) {
        int found = mpt__load_weights(&weights, a, config ? config : &defaults);
        if (loaded) *loaded = found;
    }
    mpt__weights_free(a->context, &weights);
    mpt__archive_free(a);
    return a->context->base.status;
}

static bool mpt__load_begin(mpt_module module, const char *op, mpt__archive *a, const char *name,
    const mpt_load_config *config, int *loaded) {
    mpt__zero(*a);
    a->context = module.context;
    a->json.name = name;
    if (loaded) *loaded = 0;
    return mpt__enter(a->context, op) && mpt__module_at(a->context, module) &&
        (!config || mpt__load_config_good(a->context, config));
}

mpt_status mpt_load(
    mpt_module module, const char *path, const mpt_load_config *config, int *loaded) {
    mpt_context *ctx = module.context;
    mpt__archive archive;
    mpt__reader file;
    if (!mpt__load_begin(module, "mpt_load", &archive, path, config, loaded) || mpt__no_files(ctx))
        return mpt__status_of(ctx);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty");
    if (!mpt__reader_open(&file, ctx, path)) return ctx->base.status;
    bool good = mpt__archive_read_file(&archive, &file);
    mpt__reader_close(&file);
    return mpt__load_end(module, &archive, good, config, loaded);
}

mpt_status mpt_load_memory(
    mpt_module module, const void *data, size_t bytes, const mpt_load_config *config, int *loaded) {
    mpt__archive archive;
    if (!mpt__load_begin(module, "mpt_load_memory", &archive, "memory", config, loaded))
        return mpt__status_of(module.context);
    if (!data) return mpt__error(module.context, ARGUMENT, "data is NULL");
    return mpt__load_end(module, &archive,
        mpt__archive_read_memory(&archive, (const uint8_t *)data, bytes), config, loaded);
}

#endif
