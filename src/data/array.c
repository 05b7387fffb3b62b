/* ----
 * data/array.c: arrays in files: NumPy's .npy and .npz, and raw numbers, read when needed.
 *
 * Headers are checked against the bytes that there are before anything is allocated for them.
 * ---- */
#ifndef MPT__DATA_ARRAY_INCLUDED
#define MPT__DATA_ARRAY_INCLUDED

#include "face/data.h"
#include "data/dataset.c"

/* ==== npy ==== */

/* An array as it lies in memory that belongs to a file. */
typedef struct {
    mpt_context *context;
    const char *path, *name; /* name: in an npz, or NULL */
    const uint8_t *bytes;    /* of all */
    size_t size;
    const uint8_t *elements;
    char kind;       /* f, i, u, b */
    int width;       /* of an element */
    bool big;        /* endian */
    bool transposed; /* the first dimension runs fastest */
    mpt_dtype dtype; /* what they become */
    mpt_shape shape;
} mpt__npy;

static void mpt__npy_tell(const mpt__npy *npy, const char *fault) {
    mpt__error(npy->context, FORMAT, "%s%s%s: %s", npy->path, npy->name ? ", " : "",
        npy->name ? npy->name : "", fault);
}
#define mpt__npy_fault(npy, fault) (mpt__npy_tell(npy, fault), false)

/* The header's text, a Python dictionary, while it is read. */
typedef struct {
    const char *at, *end;
} mpt__npy_text;

/* Skips blanks and, if it comes next, a word. */
static bool mpt__npy_take(mpt__npy_text *text, const char *word) {
    size_t n = strlen(word);
    while (text->at < text->end && (*text->at == ' ' || *text->at == '\n')) text->at++;
    if ((size_t)(text->end - text->at) < n || memcmp(text->at, word, n) != 0) return false;
    text->at += n;
    return true;
}

static const char mpt__npy_large[] = "its shape has a product of 2^63 or more";

/* False with what is wrong in `fault` if it is more than the spelling. */
static bool mpt__npy_shape(mpt__npy *npy, mpt__npy_text *text, const char **fault) {
    npy->shape.rank = 0;
    if (!mpt__npy_take(text, "(")) return false;
    while (!mpt__npy_take(text, ")")) {
        int64_t value = 0;
        const char *const begin = text->at;
        for (; text->at < text->end && *text->at >= '0' && *text->at <= '9'; text->at++) {
            int digit = *text->at - '0';
            if (value > (INT64_MAX - digit) / 10) *fault = mpt__npy_large;
            if (!*fault) value = value * 10 + digit;
        }
        if (text->at > begin && npy->shape.rank == MPT_MAX_RANK)
            *fault = "it has more than 8 dimensions";
        if (text->at == begin || *fault) return false;
        npy->shape.dim[npy->shape.rank++] = value;
        mpt__npy_take(text, "L");
        if (!mpt__npy_take(text, ",")) return mpt__npy_take(text, ")");
    }
    return true;
}

/* What an element becomes: by kind and width. */
static const struct {
    char kind;
    uint8_t width, dtype;
} mpt__npy_dtypes[] = {{'f', 2, MPT_F16}, {'f', 4, MPT_F32}, {'f', 8, MPT_F64}, {'b', 1, MPT_BOOL},
    {'u', 1, MPT_U8}, {'i', 1, MPT_I32}, {'i', 2, MPT_I32}, {'u', 2, MPT_I32}, {'i', 4, MPT_I32},
    {'u', 4, MPT_I64}, {'i', 8, MPT_I64}, {'u', 8, MPT_I64}};

/* The header of bytes[size]; false with an error recorded. */
static bool mpt__npy_header(mpt__npy *npy) {
    const uint8_t *p = npy->bytes;
    size_t lead = npy->size > 6 && p[6] > 1 ? 12 : 10;
    const char *fault = NULL;
    int seen = 0;
    if (npy->size < lead || memcmp(p, "\x93NUMPY", 6) != 0 || p[6] < 1 || p[6] > 3)
        return ((npy->size > 6 && p[0] == 0x93) ||
                   mpt__refuse_known(npy->context, npy->path, p, npy->size, MPT__KNOWN_ALL)) &&
            mpt__npy_fault(npy, "no .npy data of version 1 to 3");
    uint64_t length = mpt__load_little_endian(p + 8, lead - 8);
    if (length > npy->size - lead) return mpt__npy_fault(npy, "it ends inside its header");
    mpt__npy_text text = {(const char *)p + lead, (const char *)p + lead + length};
    bool good = mpt__npy_take(&text, "{");
    while (good && !mpt__npy_take(&text, "}")) {
        if (mpt__npy_take(&text, "'descr': '")) {
            seen |= 1;
            good = text.end - text.at > 3 && strchr("<>|=", *text.at) != NULL;
            if (!good) break;
            npy->big = *text.at == '>';
            npy->kind = text.at[1], npy->width = text.at[2] - '0';
            text.at += 3;
            good = mpt__npy_take(&text, "'");
        } else if (mpt__npy_take(&text, "'fortran_order': ")) {
            seen |= 2;
            npy->transposed = mpt__npy_take(&text, "True");
            good = npy->transposed || mpt__npy_take(&text, "False");
        } else {
            seen |= 4;
            good = mpt__npy_take(&text, "'shape': ") && mpt__npy_shape(npy, &text, &fault);
        }
        mpt__npy_take(&text, ",");
    }
    mpt__npy_take(&text, "");
    if (fault) return mpt__npy_fault(npy, fault);
    if (!good || seen != 7 || text.at < text.end)
        return mpt__npy_fault(
            npy, "its header is not one of plain numbers in at most 8 dimensions");
    npy->dtype = MPT_DTYPE_NONE;
    for (size_t i = 0; i < sizeof mpt__npy_dtypes / sizeof *mpt__npy_dtypes; i++)
        if (mpt__npy_dtypes[i].kind == npy->kind && mpt__npy_dtypes[i].width == npy->width)
            npy->dtype = (mpt_dtype)mpt__npy_dtypes[i].dtype;
    if (npy->dtype == MPT_DTYPE_NONE)
        return mpt__npy_fault(npy, "its elements are no float, integer or bool of 1 to 8 bytes");
    size_t left = npy->size - lead - (size_t)length;
    int64_t numel = mpt__shape_numel(&npy->shape);
    if (numel < 1) return mpt__npy_fault(npy, numel < 0 ? mpt__npy_large : "it holds nothing");
    if (left % (size_t)npy->width != 0 || (uint64_t)numel != left / (size_t)npy->width)
        return mpt__reject(npy->context, FORMAT,
            "%s%s%s: %lld elements of %d bytes by its header, %lld bytes follow it", npy->path,
            npy->name ? ", " : "", npy->name ? npy->name : "", numel, npy->width, (int64_t)left);
    npy->elements = p + lead + length;
    return true;
}

/* One element as `to`: sign or zeros in front, or double to float. False: beyond int64. */
static bool mpt__npy_element(const mpt__npy *npy, const uint8_t *p, mpt_dtype to, uint8_t *out) {
    int width = npy->width;
    uint64_t bits = 0;
    double wide;
    for (int i = 0; i < width; i++) bits = bits << 8 | p[npy->big ? i : width - 1 - i];
    if (npy->kind == 'i' && width < 8 && bits >> (8 * width - 1)) bits |= ~UINT64_C(0) << 8 * width;
    if (npy->kind == 'b') bits = bits != 0;
    if (npy->kind == 'f' && to == MPT_F32 && width == 8) {
        memcpy(&wide, &bits, sizeof wide);
        float narrow = (float)wide;
        memcpy(out, &narrow, sizeof narrow);
        return true;
    }
    uint32_t word = (uint32_t)bits;
    uint16_t half = (uint16_t)bits;
    size_t size = mpt__dtype_info[to].bytes;
    if (size == 1) *out = (uint8_t)bits;
    if (size == 2) memcpy(out, &half, size);
    if (size == 4) memcpy(out, &word, size);
    if (size == 8) memcpy(out, &bits, size);
    return npy->kind != 'u' || width < 8 || bits <= INT64_MAX;
}

/* All elements in rows, `*bytes` that the caller releases; NULL with an error. */
static uint8_t *mpt__npy_read(
    const mpt__npy *npy, mpt_dtype to, mpt_memory_kind kind, size_t *bytes) {
    mpt__base *base = &npy->context->base;
    int64_t numel = mpt__shape_numel(&npy->shape), size = mpt__dtype_info[to].bytes;
    int64_t index[MPT_MAX_RANK] = {0};
    if (numel > PTRDIFF_MAX / size) {
        mpt__fail_memory(base, PTRDIFF_MAX, kind);
        return NULL;
    }
    *bytes = (size_t)(numel * size);
    uint8_t *out = (uint8_t *)mpt__allocate(base, *bytes, kind);
    for (int64_t i = 0; out && i < numel; i++) {
        int64_t at = i, step = 1;
        for (int k = 0; k < npy->shape.rank && npy->transposed; step *= npy->shape.dim[k++])
            at = (k ? at : 0) + index[k] * step;
        if (!mpt__npy_element(npy, npy->elements + at * npy->width, to, out + i * size)) {
            mpt__npy_tell(npy, "an element is 2^63 or more, which int64 does not hold");
            mpt__release(base, out, *bytes, kind);
            return NULL;
        }
        for (int k = npy->shape.rank; k-- > 0 && ++index[k] == npy->shape.dim[k];) index[k] = 0;
    }
    return out;
}

/* ==== npz: zip archives ==== */

enum { MPT__ZIP_END = 22, MPT__ZIP_ENTRY = 46, MPT__ZIP_LOCAL = 30 };

/* A file with arrays, and what of it had to be decompressed. */
typedef struct {
    mpt_context *context;
    const char *path;
    uint8_t *bytes;
    size_t size;
    uint8_t *unpacked;
    size_t unpacked_size;
} mpt__npz;

static void mpt__npz_close(mpt__npz *file) {
    mpt__host_free(file->context, file->bytes, file->size);
    mpt__host_free(file->context, file->unpacked, file->unpacked_size);
}

static bool mpt__npz_open(mpt__npz *file, mpt_context *ctx, const char *path) {
    mpt__zero(*file);
    file->context = ctx;
    file->path = path;
    file->bytes = mpt__reader_whole(ctx, path, &file->size);
    return file->bytes != NULL;
}

/* The entry "name.npy" in the directory at a zip file's end; false with an error recorded. */
static bool mpt__zip_find(const mpt__npz *file, const mpt__npy *npy, const uint8_t **entry) {
    const uint8_t *const p = file->bytes;
    size_t n = file->size, length = strlen(npy->name);
    size_t end = n < MPT__ZIP_END ? 0 : n - MPT__ZIP_END + 1, at, count;
    while (end > 0 && mpt__load_u32(p + end - 1) != 0x06054b50u) end--;
    if (end-- == 0)
        return ((n >= 4 && mpt__load_u32(p) == 0x04034b50u) ||
                   mpt__refuse_known(npy->context, npy->path, p, n, MPT__KNOWN_ALL)) &&
            mpt__npy_fault(npy, "this is no .npz: it has no directory");
    count = (size_t)mpt__load_little_endian(p + end + 10, 2);
    at = mpt__load_u32(p + end + 16);
    for (; count > 0; count--) {
        if (at > n || n - at < MPT__ZIP_ENTRY || mpt__load_u32(p + at) != 0x02014b50u)
            return mpt__npy_fault(npy, "the directory of the .npz is damaged, or it is zip64");
        *entry = p + at;
        size_t name = (size_t)mpt__load_little_endian(*entry + 28, 2);
        at += MPT__ZIP_ENTRY;
        if (name > n - at) continue;
        if (name == length + 4 && memcmp(p + at, npy->name, length) == 0 &&
            memcmp(p + at + length, ".npy", 4) == 0)
            return true;
        at += name + (size_t)mpt__load_little_endian(*entry + 30, 2) +
            (size_t)mpt__load_little_endian(*entry + 32, 2);
    }
    return mpt__npy_fault(npy, "the .npz has no array of this name");
}

/* The bytes of an entry, checked against its checksum. */
static bool mpt__zip_read(mpt__npz *file, mpt__npy *npy, const uint8_t *entry, mpt__inflate *z) {
    const uint8_t *p = file->bytes;
    size_t n = file->size, method = (size_t)mpt__load_little_endian(entry + 10, 2);
    size_t packed = mpt__load_u32(entry + 20), size = mpt__load_u32(entry + 24);
    size_t at = mpt__load_u32(entry + 42);
    if (at > n || n - at < MPT__ZIP_LOCAL || mpt__load_u32(p + at) != 0x04034b50u)
        return mpt__npy_fault(npy, "its place in the .npz is damaged, or it is zip64");
    at += MPT__ZIP_LOCAL + (size_t)mpt__load_little_endian(p + at + 26, 2) +
        (size_t)mpt__load_little_endian(p + at + 28, 2);
    if ((method != 0 && method != 8) || (entry[8] & 1))
        return mpt__npy_fault(npy, "it is encrypted, or compressed in a way other than deflate");
    if (at > n || packed > n - at || (method == 0 && packed != size) ||
        (method == 8 && (size == 0 || size / MPT__DEFLATE_RATIO > packed)))
        return mpt__npy_fault(npy, "its size in the .npz is not possible");
    npy->bytes = p + at, npy->size = size;
    if (method == 8) {
        mpt__host_free(file->context, file->unpacked, file->unpacked_size);
        file->unpacked = (uint8_t *)mpt__host_new(file->context, size);
        file->unpacked_size = file->unpacked ? size : 0;
        if (!mpt__ok(file->context)) return false;
        if (!mpt__inflate_blocks(z, p + at, packed, file->unpacked, size))
            return mpt__npy_fault(npy, z->error ? z->error : "it unpacks to another size");
        npy->bytes = file->unpacked;
    }
    mpt__crc32_init(z->crc_table);
    return mpt__crc32(z->crc_table, npy->bytes, size) == mpt__load_u32(entry + 16) ||
        mpt__npy_fault(npy, "it does not match its checksum");
}

/* An array of an open file; `name` is NULL in an npy. */
static bool mpt__npy_open(mpt__npz *file, const char *name, mpt__npy *npy) {
    mpt__zero(*npy);
    npy->context = file->context;
    npy->path = file->path, npy->name = name;
    npy->bytes = file->bytes, npy->size = file->size;
    if (name) {
        const uint8_t *entry = NULL;
        mpt__inflate *z = mpt__zip_find(file, npy, &entry)
            ? (mpt__inflate *)mpt__host_new(file->context, sizeof *z)
            : NULL;
        bool good = z && mpt__zip_read(file, npy, entry, z);
        mpt__host_free(file->context, z, sizeof *z);
        if (!good) return false;
    }
    return mpt__npy_header(npy);
}

mpt_tensor mpt_numpy_tensor(mpt_context *ctx, const char *path, const char *name) {
    MPT__PLAIN_FLOATS;
    mpt__npz file;
    mpt__npy npy;
    size_t bytes = 0;
    mpt_tensor made = mpt__null(ctx);
    if (!mpt__enter_files(ctx, "mpt_numpy_tensor")) return made;
    uint8_t *data = mpt__npz_open(&file, ctx, path) && mpt__npy_open(&file, name, &npy)
        ? mpt__npy_read(&npy, npy.dtype, MPT_MEMORY_HOST, &bytes)
        : NULL;
    mpt__tensor *tensor =
        data ? mpt__tensor_new(ctx, npy.dtype, &npy.shape, MPT_MEMORY_ACTIVATION) : NULL;
    if (tensor)
        made = mpt__tensor_done(
            ctx, tensor, mpt__upload(ctx, tensor->storage, 0, data, (int64_t)bytes));
    mpt__host_free(ctx, data, bytes);
    mpt__npz_close(&file);
    return made;
}

/* What targets become. */
static mpt_dtype mpt__npy_target(mpt_dtype dtype) {
    return dtype == MPT_F64 ? MPT_F32 : dtype == MPT_F32 || dtype == MPT_F16 ? dtype : MPT_I64;
}

/* A part of samples, all of it in owned[part]. */
static bool mpt__npy_part(mpt__npz *file, const char *name, int part, int64_t count,
    mpt_user_dataset_config *samples, uint8_t **data, size_t *bytes) {
    mpt__npy npy;
    if (!mpt__npy_open(file, name, &npy)) return false;
    if (npy.shape.rank < 1 || (part && npy.shape.dim[0] != count))
        return mpt__reject(file->context, FORMAT,
            "%s%s%s: its shape is %S; the first dimension counts samples%s", file->path,
            name ? ", " : "", name ? name : "", &npy.shape, part ? ", as many as inputs" : "");
    mpt_dtype dtype = part ? mpt__npy_target(npy.dtype) : npy.dtype;
    *data = mpt__npy_read(&npy, dtype, MPT_MEMORY_DATA, bytes);
    samples->count = npy.shape.dim[0];
    *(part ? &samples->target_dtype : &samples->dtype) = dtype;
    mpt_shape *shape = part ? &samples->target_shape : &samples->shape;
    *shape = npy.shape;
    shape->rank--;
    memmove(shape->dim, shape->dim + 1, sizeof shape->dim - sizeof *shape->dim);
    return *data != NULL;
}

/* From a file of each, or from one with both names. */
static mpt_dataset mpt__npy_dataset(
    mpt_context *ctx, const char *const paths[2], const char *const names[2]) {
    mpt_user_dataset_config samples;
    mpt__dataset *dataset = NULL;
    mpt__npz file;
    uint8_t *data[2] = {NULL, NULL};
    size_t bytes[2] = {0, 0};
    mpt__zero(samples);
    bool good = mpt__npz_open(&file, ctx, paths[0]) &&
        mpt__npy_part(&file, names[0], 0, 0, &samples, &data[0], &bytes[0]);
    if (good && (paths[1] || names[1])) {
        if (paths[1]) {
            mpt__npz_close(&file);
            good = mpt__npz_open(&file, ctx, paths[1]);
        }
        good =
            good && mpt__npy_part(&file, names[1], 1, samples.count, &samples, &data[1], &bytes[1]);
    }
    mpt__npz_close(&file);
    if (good) dataset = mpt__dataset_new(ctx, &samples, true);
    for (int i = 0; i < 2; i++) {
        if (!dataset)
            mpt__release(&ctx->base, data[i], bytes[i], MPT_MEMORY_DATA);
        else
            mpt__dataset_own(dataset, i, data[i], bytes[i]);
    }
    if (dataset) dataset->inputs = data[0], dataset->targets = data[1];
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_npy(mpt_context *ctx, const char *inputs_path, const char *targets_path) {
    MPT__PLAIN_FLOATS;
    const char *const paths[2] = {inputs_path, targets_path}, *const names[2] = {NULL, NULL};
    if (!mpt__enter_files(ctx, "mpt_npy")) return mpt__dataset_handle(ctx, NULL);
    return mpt__npy_dataset(ctx, paths, names);
}

mpt_dataset mpt_npz(mpt_context *ctx, const char *path, const char *inputs, const char *targets) {
    MPT__PLAIN_FLOATS;
    const char *const paths[2] = {path, NULL}, *const names[2] = {inputs, targets};
    if (!mpt__enter_files(ctx, "mpt_npz")) return mpt__dataset_handle(ctx, NULL);
    if (inputs) return mpt__npy_dataset(ctx, paths, names);
    return mpt__refuse_dataset(ctx, ARGUMENT, "inputs is NULL; it names an array in the .npz");
}

/* ==== Raw numbers in files ==== */

MPT__DEFAULTS(mpt_raw_config, {
    config.dtype = MPT_F32;
    config.target_dtype = MPT_I64;
    config.shape = config.target_shape = MPT_SCALAR;
})

/* Inputs and targets in their files: owned[0], with the paths behind it. */
typedef struct {
    struct {
        const char *path;
        int64_t offset, stride;
    } part[2];
} mpt__raw;

static bool mpt__raw_make(MPT__MAKE_TAKES) {
    const mpt__raw *raw = (const mpt__raw *)dataset->state;
    (void)seed, (void)work;
    for (int i = 0; i < 2; i++) {
        void *to = i ? target : input;
        if (to &&
            !mpt__file_part(dataset->base, raw->part[i].path,
                raw->part[i].offset + at * raw->part[i].stride,
                i ? dataset->target_bytes : dataset->input_bytes, to, error))
            return false;
    }
    return true;
}

/* How many samples of `bytes` a file holds; -1 with an error recorded. */
static int64_t mpt__raw_count(
    mpt_context *ctx, const char *path, int64_t offset, int64_t *stride, size_t bytes) {
    mpt__reader file;
    if (!mpt__reader_open_up_to(&file, ctx, path, INT64_MAX)) return -1;
    bool good = mpt__reader_plain(&file, MPT__KNOWN_TEXT);
    mpt__reader_close(&file);
    if (!good) return -1;
    if (*stride == 0) *stride = (int64_t)bytes;
    if (offset >= 0 && *stride > 0 && offset <= file.size &&
        file.size - offset >= (int64_t)bytes) /* the last one need not be followed by a gap */
        return (file.size - offset - (int64_t)bytes) / *stride + 1;
    mpt__error(ctx, FORMAT,
        "%s: no sample of %lld bytes, %lld apart, from byte %lld on in %lld bytes", path,
        (int64_t)bytes, *stride, offset, file.size);
    return -1;
}

static mpt__dataset *mpt__raw_new(mpt_context *ctx, const mpt_raw_config *config) {
    const char *const paths[2] = {config->inputs, config->targets};
    size_t first = strlen(paths[0]) + 1, second = paths[1] ? strlen(paths[1]) + 1 : 0;
    mpt_user_dataset_config samples;
    mpt__zero(samples);
    samples.count = config->count ? config->count : 1;
    samples.dtype = config->dtype, samples.shape = config->shape;
    samples.target_dtype = paths[1] ? config->target_dtype : MPT_DTYPE_NONE;
    samples.target_shape = config->target_shape;
    mpt__dataset *dataset = mpt__dataset_new(ctx, &samples, false);
    if (!dataset) return NULL;
    mpt__raw *raw =
        (mpt__raw *)mpt__dataset_room(ctx, dataset, 0, sizeof(mpt__raw) + first + second);
    for (int i = 0; raw && i < 2 && paths[i]; i++) {
        char *text = (char *)(raw + 1) + (i ? first : 0);
        memcpy(text, paths[i], i ? second : first);
        raw->part[i].path = text;
        raw->part[i].offset = i ? config->target_offset : config->offset;
        raw->part[i].stride = i ? config->target_stride : config->stride;
        int64_t count = mpt__raw_count(ctx, text, raw->part[i].offset, &raw->part[i].stride,
            i ? dataset->target_bytes : dataset->input_bytes);
        if (i == 0 && config->count == 0 && count > 0) dataset->count = count;
        if (count >= 0 && count < dataset->count)
            mpt__error(ctx, FORMAT, "%s: %lld samples, expected %lld", text, count, dataset->count);
    }
    dataset->state = raw;
    dataset->make = mpt__raw_make;
    if (mpt__ok(ctx)) return dataset;
    mpt__dataset_release(ctx, dataset);
    return NULL;
}

mpt_dataset mpt_raw_files(mpt_context *ctx, const mpt_raw_config *config) {
    mpt__dataset *dataset = NULL;
    if (!mpt__enter_files(ctx, "mpt_raw_files")) return mpt__dataset_handle(ctx, NULL);
    if (!config || !config->inputs)
        mpt__error(ctx, ARGUMENT, "%s is NULL", config ? "config->inputs" : "config");
    else
        dataset = mpt__raw_new(ctx, config);
    return mpt__dataset_publish(ctx, dataset);
}

#endif
