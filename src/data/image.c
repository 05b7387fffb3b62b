/* ----
 * data/image.c: folders of image files, decoded by stb_image where the build has it; CIFAR-10.
 *
 * stb_image takes what it needs from libc (or STBI_MALLOC), at most a few times the pixels that
 * max_pixels allows. It reads through callbacks that notice when it asks for bytes past the end: it
 * would decode most torn files to something.
 * ---- */
#ifndef MPT__DATA_IMAGE_INCLUDED
#define MPT__DATA_IMAGE_INCLUDED

#include "data/decode.c"

MPT__DEFAULTS(mpt_image_config, {
    config.channels = 3;
    config.max_pixels = INT64_C(1) << 25;
})

#ifdef MPTRAIN_STB_IMAGE

/* ==== Lists of files ==== */

/* Paths relative to a folder, "class/name", each with its 0. */
typedef struct {
    mpt_context *context;
    char *text;
    int64_t length, room;
    int64_t *at; /* where each begins */
    int64_t count, at_room;
    char prefix[MPT__PATH_SIZE]; /* of what is added: "class/", or "" for folders alone */
    bool too_long;
} mpt__files;

static void mpt__files_free(mpt__files *files) {
    mpt__base *base = &files->context->base;
    mpt__release(base, files->text, (size_t)files->room, MPT_MEMORY_HOST);
    mpt__release(base, files->at, (size_t)files->at_room * sizeof *files->at, MPT_MEMORY_HOST);
}

static bool mpt__image_name(const char *name) {
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".bmp"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t n = strlen(endings[i]);
        bool same = length > n;
        for (size_t k = 0; k < n && same; k++) {
            const char c = name[length - n + k];
            same = (c >= 'A' && c <= 'Z' ? (char)(c + 32) : c) == endings[i][k];
        }
        if (same) return true;
    }
    return false;
}

/* What io.list reports: a folder where folders are looked for, else an image file. What has the
   name of one counts if it is, or may be, a folder, too: who opens it is told why it is none. */
static void mpt__files_entry(void *to, const char *name, bool is_folder) {
    mpt__files *files = (mpt__files *)to;
    mpt__base *base = &files->context->base;
    int64_t prefix = (int64_t)strlen(files->prefix), n = (int64_t)strlen(name) + 1;
    if (name[0] == '.' || !(prefix ? mpt__image_name(name) : is_folder)) return;
    if (prefix + n > MPT__PATH_SIZE) files->too_long = true;
    if (files->too_long ||
        !mpt__grow(
            base, &files->text, &files->room, files->length + prefix + n, 1, MPT_MEMORY_HOST) ||
        !mpt__grow(base, &files->at, &files->at_room, files->count + 1, sizeof *files->at,
            MPT_MEMORY_HOST))
        return;
    memcpy(files->text + files->length, files->prefix, (size_t)prefix);
    memcpy(files->text + files->length + prefix, name, (size_t)n);
    files->at[files->count++] = files->length;
    files->length += prefix + n;
}

static bool mpt__files_list(mpt__files *files, const char *path) {
    mpt_context *ctx = files->context;
    const mpt_io *io = mpt__io(&ctx->base);
    if (!io->list) return mpt__reject(ctx, IO, "cannot list %s: config.io has no `list`", path);
    if (!io->list(io->user, path, mpt__files_entry, files))
        return mpt__reject(ctx, IO, "cannot list %s: %s", path, mpt__io_reason(&ctx->base));
    if (files->too_long)
        return mpt__reject(ctx, IO, "%s: a path of more than %d bytes", path, MPT__PATH_SIZE - 1);
    return mpt__ok(ctx);
}

/* By bytes, '/' before all others, so that folders stay together. */
static int mpt__path_compare(const char *a, const char *b) {
    while (*a && *a == *b) a++, b++;
    int x = *a == '/' ? 1 : (uint8_t)*a * 2, y = *b == '/' ? 1 : (uint8_t)*b * 2;
    return x - y;
}

static bool mpt__path_before(const void *text, int64_t a, int64_t b) {
    return mpt__path_compare((const char *)text + a, (const char *)text + b) < 0;
}

static void mpt__files_sort(mpt__files *files) {
    mpt__sort_by(files->at, files->count, mpt__path_before, files->text);
}

/* The index of a path among sorted ones; -1 if it is not there. */
static int64_t mpt__files_find(const mpt__files *files, const char *path) {
    int64_t low = 0, high = files->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = mpt__path_compare(files->text + files->at[middle], path);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* ==== Manifests ==== */

static int mpt__hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0'
        : c >= 'a' && c <= 'f'  ? c - 'a' + 10
        : c >= 'A' && c <= 'F'  ? c - 'A' + 10
                                : -1;
}

/* One line "64 digits, a space, a space or *, path" of n bytes; NULL, or what is wrong. */
static const char *mpt__manifest_line(
    const char *line, size_t n, uint8_t digest[32], char path[MPT__PATH_SIZE]) {
    if (n > 0 && line[n - 1] == '\r') n--;
    if (n < 67 || line[64] != ' ' || (line[65] != ' ' && line[65] != '*'))
        return "is not a SHA-256 in 64 digits, two spaces and a path";
    for (int i = 0; i < 32; i++) {
        int high = mpt__hex_digit(line[2 * i]), low = mpt__hex_digit(line[2 * i + 1]);
        if (high < 0 || low < 0) return "has a hash that is not 64 hexadecimal digits";
        digest[i] = (uint8_t)(high << 4 | low);
    }
    line += 66, n -= 66;
    if (n > 2 && line[0] == '.' && line[1] == '/') line += 2, n -= 2;
    if (n >= MPT__PATH_SIZE) return "has a path that is too long";
    memcpy(path, line, n);
    path[n] = 0;
    return strlen(path) == n ? NULL : "has a path with a zero byte";
}

/* The file of a path, which may be one of Windows. */
static int64_t mpt__manifest_find(const mpt__files *files, char path[MPT__PATH_SIZE]) {
    int64_t index = mpt__files_find(files, path);
    if (index >= 0) return index;
    for (char *at = path; *at; at++)
        if (*at == '\\') *at = '/';
    return mpt__files_find(files, strncmp(path, "./", 2) == 0 ? path + 2 : path);
}

/* Gives every file its digest of the manifest `text`, which has a line for each. */
static bool mpt__manifest_read(const mpt__files *files, const char *path, const char *text,
    size_t n, uint8_t (*digests)[32], uint8_t *named) {
    char file[MPT__PATH_SIZE];
    int64_t number = 1;
    if (!mpt__refuse_known(files->context, path, (const uint8_t *)text, n, MPT__KNOWN_ALL))
        return false;
    for (size_t at = mpt__mark_bytes(text, n), end; at < n; at = end + 1, number++) {
        uint8_t digest[32];
        for (end = at; end < n && text[end] != '\n';) end++;
        if (end == at || (end == at + 1 && text[at] == '\r')) continue;
        const char *fault = mpt__manifest_line(text + at, end - at, digest, file);
        if (fault)
            return mpt__reject(files->context, FORMAT, "%s: line %lld %s", path, number, fault);
        if (!mpt__image_name(file)) continue;
        int64_t index = mpt__manifest_find(files, file);
        if (index < 0 || named[index])
            return mpt__reject(files->context, FORMAT, "%s: line %lld names %s, which %s", path,
                number, file, index < 0 ? "is not there" : "an earlier line names, too");
        memcpy(digests[index], digest, sizeof digest);
        named[index] = 1;
    }
    for (int64_t i = 0; i < files->count; i++)
        if (!named[i])
            return mpt__reject(
                files->context, FORMAT, "%s: has no line for %s", path, files->text + files->at[i]);
    return true;
}

/* ==== Image folders ==== */

/* What a folder's samples are made of, in one allocation. */
typedef struct {
    mpt__pipeline plan;
    mpt_image_config config;
    const char *root;
    const char *text;
    const int64_t *at;
    const int64_t *labels;
    const uint8_t (*digests)[32]; /* NULL: no manifest */
} mpt__folder;

typedef struct {
    uint8_t *pixels; /* of stbi */
    int width, height;
} mpt__decoded;

/* Says that a picture is too large, for its folder or for stb_image. */
static bool mpt__picture_fits(mpt__image_file *file, const mpt_image_config *config) {
    int64_t pixels = (int64_t)file->width * file->height;
    int values = config->channels > file->values ? config->channels : file->values;
    if (file->width < 1 || file->height < 1 || pixels > config->max_pixels)
        return mpt__fault(file, "%d x %d pixels; max_pixels is %lld", file->height, file->width,
            config->max_pixels);
    if (pixels <= (INT64_C(1) << 30) / values && file->width <= MPT__STB_SIDE &&
        file->height <= MPT__STB_SIDE)
        return true;
    return mpt__fault(file,
        "%d x %d pixels of %d values; stb_image decodes up to 2^30 values and sides of %d",
        file->height, file->width, values, (int)MPT__STB_SIDE);
}

/* Decodes or only measures an open file; false with a sentence in file->error. */
static bool mpt__image_decode(const mpt__folder *folder, mpt__image_file *file,
    const uint8_t *digest, bool measure, mpt__decoded *out) {
    static const stbi_io_callbacks callbacks = {mpt__image_read, mpt__image_skip, mpt__image_end};
    uint8_t sum[32];
    int channels = 0;
    if (!mpt__picture_walk(file) || !mpt__picture_fits(file, &folder->config)) return false;
    out->width = file->width, out->height = file->height;
    if (measure) return true;
    if (!mpt__image_rewind(file, file->format, digest != NULL))
        return mpt__fault(file, "cannot go back to its beginning: %s", mpt__io_reason(file->base));
    file->chunk_at = 8;
    mpt__image_refill(file);
    out->pixels = stbi_load_from_callbacks(
        &callbacks, file, &out->width, &out->height, &channels, folder->config.channels);
    bool starved = file->starved;
    while ((digest || file->format == MPT__PNG) && mpt__image_refill(file)) continue;
    if (file->torn) return mpt__picture_unread(file);
    mpt__sha256_end(&file->sha, sum);
    if (digest && memcmp(sum, digest, sizeof sum) != 0)
        return mpt__fault(file, "its SHA-256 is not that of the manifest");
    if (starved) return mpt__picture_short(file);
    if (file->fault >= 0)
        return mpt__fault(file, "a PNG chunk has a wrong checksum (at byte %lld)", file->fault);
    if (!out->pixels) return mpt__fault(file, "%s", stbi_failure_reason());
    if (out->width != file->width || out->height != file->height)
        return mpt__fault(file, "decoded to another size than its header says");
    return true;
}

static bool mpt__image_open(const mpt__base *base, const mpt__folder *folder, int64_t index,
    bool measure, mpt__image_file *file, mpt__decoded *out, char *error) {
    char path[2 * MPT__PATH_SIZE];
    const char *name = folder->text + folder->at[index];
    const mpt_io *io = mpt__io(base);
    mpt__format_text(path, sizeof path, "%s/%s", folder->root, name);
    memset(file, 0, offsetof(mpt__image_file, detours));
    mpt__zero(*out);
    file->base = base;
    file->path = name, file->error = error;
    file->fault = -1;
    file->handle = io->open && io->read ? io->open(io->user, path, 'r') : NULL;
    if (!file->handle) {
        mpt__format_text(
            error, MPT__SAMPLE_ERROR, "cannot open %s: %s", path, mpt__io_reason(base));
        return false;
    }
    file->size = mpt__io(base)->size ? io->size(io->user, file->handle) : -1;
    bool good = file->size < 0 ? mpt__fault(file, "its size is not known: %s", mpt__io_reason(base))
                               : mpt__image_decode(folder, file,
                                     folder->digests ? folder->digests[index] : NULL, measure, out);
    if (io->close) io->close(io->user, file->handle);
    return good;
}

static bool mpt__folder_make(MPT__MAKE_TAKES) {
    const mpt__folder *folder = (const mpt__folder *)dataset->state;
    const mpt__pipeline *plan = &folder->plan;
    mpt__image_file *file = (mpt__image_file *)(void *)(work + mpt__pipeline_bytes(plan));
    mpt__decoded image;
    bool good = mpt__image_open(dataset->base, folder, at, false, file, &image, error);
    if (good) {
        mpt__picture picture = mpt__picture_of(plan, image.pixels, NULL, image.height, image.width);
        picture.channel_step = 1, picture.column_step = plan->channels;
        picture.row_step = plan->channels * image.width;
        good = mpt__pipeline_run(plan, &picture, seed, work, (float *)input, error);
        if (!good) {
            char said[MPT__SAMPLE_ERROR];
            memcpy(said, error, sizeof said);
            mpt__format_text(
                error, MPT__SAMPLE_ERROR, "%s: %s", folder->text + folder->at[at], said);
        }
    }
    if (image.pixels) stbi_image_free(image.pixels);
    if (good && target) memcpy(target, &folder->labels[at], sizeof(int64_t));
    return good;
}

/* The classes and files of a folder, both to be freed. */
static bool mpt__folder_list(const char *root, mpt__files *classes, mpt__files *files) {
    char path[2 * MPT__PATH_SIZE];
    if (!mpt__files_list(classes, root)) return false;
    mpt__files_sort(classes);
    if (classes->count == 0)
        return mpt__reject(files->context, IO, "%s has no subfolders; each one is a class", root);
    for (int64_t i = 0; i < classes->count; i++) {
        const char *name = classes->text + classes->at[i];
        int64_t before = files->count;
        if (mpt__format_text(files->prefix, MPT__PATH_SIZE, "%s/", name) >= MPT__PATH_SIZE)
            return mpt__reject(files->context, IO, "%s: a path that is too long", root);
        mpt__format_text(path, sizeof path, "%s/%s", root, name);
        if (!mpt__files_list(files, path)) return false;
        if (files->count == before)
            return mpt__reject(
                files->context, IO, "%s holds no .png, .jpg, .jpeg or .bmp file", path);
    }
    mpt__files_sort(files);
    return true;
}

/* Bytes of a part of what a folder owns, a multiple of 8. */
static size_t mpt__folder_part(size_t bytes) { return (bytes + 7) / 8 * 8; }

static bool mpt__path_within(const char *path, const char *folder) {
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* Copies the lists behind the folder's head, for which `state` has room. */
static void mpt__folder_fill(mpt__dataset *dataset, const char *root, const mpt__files *classes,
    const mpt__files *files, const mpt_image_config *config) {
    mpt__folder *folder = (mpt__folder *)dataset->owned[0];
    uint8_t *at = (uint8_t *)dataset->owned[0] + mpt__folder_part(sizeof *folder);
    const char **names = (const char **)(void *)at;
    at += mpt__folder_part((size_t)classes->count * sizeof *names);
    int64_t *labels = (int64_t *)(void *)at;
    at += (size_t)files->count * sizeof *labels;
    int64_t *places = (int64_t *)(void *)at;
    at += (size_t)files->count * sizeof *places;
    if (config->manifest) {
        folder->digests = (const uint8_t(*)[32])(void *)at;
        at += (size_t)files->count * 32;
    }
    char *text = (char *)at;
    memcpy(places, files->at, (size_t)files->count * sizeof *places);
    memcpy(text, files->text, (size_t)files->length);
    memcpy(text + files->length, classes->text, (size_t)classes->length);
    memcpy(text + files->length + classes->length, root, strlen(root) + 1);
    for (int64_t i = 0; i < classes->count; i++) names[i] = text + files->length + classes->at[i];
    for (int64_t i = 0, label = 0; i < files->count; i++) {
        const char *path = text + places[i];
        while (label + 1 < classes->count && !mpt__path_within(path, names[label])) label++;
        labels[i] = label;
    }
    folder->config = *config;
    folder->root = text + files->length + classes->length;
    folder->text = text, folder->at = places, folder->labels = labels;
    dataset->classes = (const char *const *)(const void *)names;
    dataset->class_count = classes->count;
}

/* Reads the manifest into the folder's digests. */
static bool mpt__folder_manifest(mpt_context *ctx, mpt__dataset *dataset, const mpt__files *files) {
    const mpt__folder *folder = (const mpt__folder *)dataset->state;
    const char *path = folder->config.manifest;
    mpt__reader file;
    if (!mpt__reader_open(&file, ctx, path)) return false;
    uint8_t *text =
        file.size ? mpt__reader_rest(&file, (const uint8_t *)"", 0, MPT_MEMORY_HOST) : NULL;
    uint8_t *named = (uint8_t *)mpt__host_new(ctx, (size_t)files->count);
    uint8_t(*digests)[32] = (uint8_t(*)[32])(uintptr_t)folder->digests;
    mpt__reader_close(&file);
    bool good = named && mpt__ok(ctx) &&
        mpt__manifest_read(files, path, (const char *)text, (size_t)file.size, digests, named);
    mpt__host_free(ctx, text, (size_t)file.size);
    mpt__host_free(ctx, named, (size_t)files->count);
    return good;
}

/* Without steps that set it, the size of the first picture; then the plan. */
static bool mpt__folder_plan(mpt_context *ctx, const mpt__folder *probe, mpt__pipeline *plan) {
    const mpt_image_config *config = &probe->config;
    char error[MPT__SAMPLE_ERROR];
    mpt__decoded image;
    if (!mpt__pipeline_plan(ctx, config->steps, config->step_count, config->channels, 0, 0, plan))
        return false;
    if (plan->height > 0) return true;
    mpt__image_file *file = (mpt__image_file *)mpt__host_new(ctx, sizeof *file);
    if (!file) return false;
    bool good = mpt__image_open(&ctx->base, probe, 0, true, file, &image, error);
    mpt__host_free(ctx, file, sizeof *file);
    if (!good) return mpt__reject(ctx, IO, "%s (the first picture sets the size of all)", error);
    return mpt__pipeline_plan(
        ctx, config->steps, config->step_count, config->channels, image.height, image.width, plan);
}

static mpt__dataset *mpt__folder_new(mpt_context *ctx, const char *root, const mpt__files *classes,
    const mpt__files *files, const mpt_image_config *config) {
    mpt_user_dataset_config samples;
    mpt__folder probe;
    mpt__zero(samples);
    mpt__zero(probe);
    probe.config = *config;
    probe.root = root;
    probe.text = files->text, probe.at = files->at;
    if (!mpt__folder_plan(ctx, &probe, &probe.plan)) return NULL;
    samples.count = files->count;
    samples.dtype = MPT_F32;
    samples.shape = MPT_SHAPE(config->channels, probe.plan.height, probe.plan.width);
    samples.target_dtype = MPT_I64;
    size_t bytes = mpt__folder_part(sizeof probe) +
        mpt__folder_part((size_t)classes->count * sizeof(char *)) +
        (size_t)files->count * (2 * sizeof(int64_t) + (config->manifest ? 32 : 0)) +
        (size_t)files->length + (size_t)classes->length + strlen(root) + 1;
    mpt__dataset *dataset = mpt__planned_new(ctx, &samples, &probe.plan, mpt__folder_make, bytes);
    if (!dataset) return NULL;
    dataset->work_bytes = mpt__pipeline_bytes(&probe.plan) + sizeof(mpt__image_file);
    mpt__folder_fill(dataset, root, classes, files, config);
    if (!config->manifest || mpt__folder_manifest(ctx, dataset, files)) return dataset;
    mpt__dataset_release(ctx, dataset);
    return NULL;
}

static mpt__dataset *mpt__folder_open(
    mpt_context *ctx, const char *root, const mpt_image_config *config) {
    mpt__files *lists = (mpt__files *)mpt__host_new(ctx, 2 * sizeof *lists);
    mpt__dataset *dataset = NULL;
    if (!lists) return NULL;
    lists[0].context = lists[1].context = ctx;
    if (mpt__folder_list(root, &lists[0], &lists[1]))
        dataset = mpt__folder_new(ctx, root, &lists[0], &lists[1], config);
    mpt__files_free(&lists[0]);
    mpt__files_free(&lists[1]);
    mpt__host_free(ctx, lists, 2 * sizeof *lists);
    return dataset;
}

#endif

mpt_dataset mpt_image_folder(mpt_context *ctx, const char *folder, const mpt_image_config *config) {
    mpt_image_config defaults = mpt_image_config_default();
    mpt__dataset *dataset = NULL;
    if (!config) config = &defaults;
    if (!mpt__enter_files(ctx, "mpt_image_folder")) return mpt__dataset_handle(ctx, NULL);
    if (!folder || !folder[0] || strlen(folder) >= MPT__PATH_SIZE) {
        mpt__error(ctx, ARGUMENT, "folder is %s",
            !folder          ? "NULL"
                : !folder[0] ? "empty"
                             : "too long a path");
    } else if (config->channels != 1 && config->channels != 3 && config->channels != 4) {
        mpt__error(ctx, ARGUMENT, "channels is %d; 1 grey, 3 RGB, 4 RGBA", config->channels);
    } else if (config->max_pixels < 1) {
        mpt__error(ctx, ARGUMENT, "max_pixels is %lld; at least 1", config->max_pixels);
    } else {
#ifdef MPTRAIN_STB_IMAGE
        mpt__decoder_warn(ctx);
        dataset = mpt__folder_open(ctx, folder, config);
#else
        mpt__error(ctx, UNSUPPORTED, "built without image files (MPTRAIN_STB_IMAGE)");
#endif
    }
    return mpt__dataset_publish(ctx, dataset);
}

/* ==== CIFAR-10 ==== */

enum { MPT__CIFAR_PIXELS = 3 * 32 * 32, MPT__CIFAR_RECORD = 1 + MPT__CIFAR_PIXELS };

static const char *const mpt__cifar_classes[10] = {
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};

/* Opens file number `i` of a split and checks its size. */
static bool mpt__cifar_open(mpt_context *ctx, const char *directory, mpt_split split, int i,
    char path[MPT__PATH_SIZE], mpt__reader *file) {
    size_t length = split == MPT_TEST
        ? mpt__format_text(path, MPT__PATH_SIZE, "%s/test_batch.bin", directory)
        : mpt__format_text(path, MPT__PATH_SIZE, "%s/data_batch_%d.bin", directory, i + 1);
    if (length >= MPT__PATH_SIZE)
        return mpt__reject(ctx, ARGUMENT, "the path of the directory is too long");
    if (!mpt__reader_open(file, ctx, path)) return false;
    if (file->size > 0 && file->size % MPT__CIFAR_RECORD == 0) return true;
    bool plain = file->size == 0 || mpt__reader_plain(file, MPT__KNOWN_ALL);
    mpt__reader_close(file);
    return plain &&
        mpt__reject(ctx, FORMAT,
            "%s: %lld bytes are not a number of records of %d (a label, 3 x 32 x 32 pixels)", path,
            file->size, (int)MPT__CIFAR_RECORD);
}

/* Moves the labels out of records, so that their pixels lie one after the other. */
static bool mpt__cifar_split(mpt_context *ctx, const char *path, uint8_t *records, int64_t count,
    uint8_t *pixels, uint8_t *labels) {
    for (int64_t i = 0; i < count; i++) {
        const uint8_t *record = records + i * MPT__CIFAR_RECORD;
        if (record[0] > 9)
            return mpt__reject(ctx, FORMAT,
                "%s: label %d in record %lld (byte %lld); labels are 0 to 9", path, (int)record[0],
                i, i * MPT__CIFAR_RECORD);
        labels[i] = record[0];
        memmove(pixels + i * MPT__CIFAR_PIXELS, record + 1, MPT__CIFAR_PIXELS);
    }
    return true;
}

static bool mpt__cifar_read(
    mpt_context *ctx, const char *directory, mpt_split split, mpt__dataset *dataset) {
    uint8_t *pixels = (uint8_t *)dataset->owned[0], *labels = (uint8_t *)dataset->owned[1];
    char path[MPT__PATH_SIZE];
    int64_t done = 0;
    for (int i = 0; i < (split == MPT_TEST ? 1 : 5); i++) {
        mpt__reader file;
        if (!mpt__cifar_open(ctx, directory, split, i, path, &file)) return false;
        int64_t count = file.size / MPT__CIFAR_RECORD;
        /* The records end where those to come begin: moving pixels down never overtakes. */
        uint8_t *records = pixels + done * MPT__CIFAR_RECORD;
        bool good = count <= dataset->count - done;
        if (!good)
            mpt__error(ctx, IO, "%s: it grew while it was read", path);
        else
            good = mpt__reader_read(&file, records, (size_t)file.size);
        mpt__reader_close(&file);
        if (!good || !mpt__cifar_split(ctx, path, records, count, pixels + done * MPT__CIFAR_PIXELS,
                                       labels + done))
            return false;
        done += count;
    }
    if (done == dataset->count) return true;
    return mpt__reject(ctx, IO, "%s: it shrank while it was read", path);
}

static mpt__dataset *mpt__cifar_new(mpt_context *ctx, const char *directory, mpt_split split) {
    mpt_user_dataset_config samples;
    char path[MPT__PATH_SIZE];
    mpt__zero(samples);
    samples.dtype = MPT_U8;
    samples.shape = MPT_SHAPE(3, 32, 32);
    samples.target_dtype = MPT_I64;
    for (int i = 0; i < (split == MPT_TEST ? 1 : 5); i++) {
        mpt__reader file;
        if (!mpt__cifar_open(ctx, directory, split, i, path, &file)) return NULL;
        samples.count += file.size / MPT__CIFAR_RECORD;
        mpt__reader_close(&file);
    }
    mpt__dataset *dataset = mpt__dataset_new(ctx, &samples, true);
    if (!dataset) return NULL;
    for (int i = 0; i < 2; i++)
        mpt__dataset_room(ctx, dataset, i, (size_t)samples.count * (i ? 1 : MPT__CIFAR_RECORD));
    if (mpt__ok(ctx) && mpt__cifar_read(ctx, directory, split, dataset)) {
        dataset->inputs = (const uint8_t *)dataset->owned[0];
        dataset->targets = (const uint8_t *)dataset->owned[1];
        dataset->byte_targets = true;
        dataset->classes = mpt__cifar_classes, dataset->class_count = 10;
        return dataset;
    }
    mpt__dataset_release(ctx, dataset);
    return NULL;
}

mpt_dataset mpt_cifar10(mpt_context *ctx, const char *directory, mpt_split split) {
    mpt__dataset *dataset = NULL;
    if (!mpt__enter_files(ctx, "mpt_cifar10")) return mpt__dataset_handle(ctx, NULL);
    if (mpt__split_good(ctx, directory, split)) dataset = mpt__cifar_new(ctx, directory, split);
    return mpt__dataset_publish(ctx, dataset);
}

#endif
