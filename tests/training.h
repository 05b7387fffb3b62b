/* training.h: what the tests of training share: an allocator that counts and refuses, files in
   memory that fail on demand, a small net with data, optimizer and scaler, one step, one hash. */
#ifndef TEST_TRAINING_H
#define TEST_TRAINING_H

#if defined(__GNUC__)
#define MAYBE_UNUSED __attribute__((unused))
#else
#define MAYBE_UNUSED
#endif

/* ==== An allocator that counts its live bytes and refuses the calls from `fail_at` on ==== */

typedef struct arena {
    int64_t live, blocks, calls; /* bytes and blocks out there; calls of allocate so far */
    int64_t fail_at, failures;   /* number of the first call refused (0: none), how many are */
    int64_t refused, torn;       /* calls refused; releases whose size or alignment was wrong */
} arena;

typedef struct arena_block {
    size_t bytes, alignment;
    void *base;
} arena_block;

static MAYBE_UNUSED void *arena_allocate(void *user, size_t bytes, size_t alignment) {
    arena *a = (arena *)user;
    a->calls++;
    if (a->fail_at && a->calls >= a->fail_at && a->calls < a->fail_at + a->failures) {
        a->refused++;
        return NULL;
    }
    char *base = (char *)malloc(bytes + alignment + sizeof(arena_block));
    if (!base) return NULL;
    uintptr_t at =
        ((uintptr_t)base + sizeof(arena_block) + alignment - 1) & ~(uintptr_t)(alignment - 1);
    arena_block block;
    block.bytes = bytes, block.alignment = alignment, block.base = base;
    memcpy((char *)at - sizeof block, &block, sizeof block);
    memset((char *)at, 0xa5, bytes); /* nobody may count on zeros */
    a->live += (int64_t)bytes;
    a->blocks++;
    return (char *)at;
}

static MAYBE_UNUSED void arena_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    arena *a = (arena *)user;
    arena_block block;
    memcpy(&block, (char *)pointer - sizeof block, sizeof block);
    if (block.bytes != bytes || block.alignment != alignment) a->torn++;
    a->live -= (int64_t)block.bytes;
    a->blocks--;
    free(block.base);
}

static MAYBE_UNUSED void arena_use(arena *a, mpt_config *config) {
    memset(a, 0, sizeof *a);
    config->allocator.allocate = arena_allocate;
    config->allocator.release = arena_release;
    config->allocator.user = a;
}

/* ==== Files in memory: every callback counts; call number fail_at of one of them fails ==== */

enum {
    DISK_OPEN,
    DISK_READ,
    DISK_WRITE,
    DISK_SEEK,
    DISK_SIZE,
    DISK_FLUSH,
    DISK_CLOSE,
    DISK_COMMIT,
    DISK_LIST,
    DISK_REMOVE,
    DISK_CALLBACKS
};

typedef struct disk_file {
    char path[300];
    char *data;
    size_t bytes, room, at;
    int exists, is_open;
} disk_file;

typedef struct disk {
    disk_file files[8];
    int calls[DISK_CALLBACKS], fail_at[DISK_CALLBACKS], open_now;
} disk;

static MAYBE_UNUSED int disk_fails(disk *d, int callback) {
    d->calls[callback]++;
    return d->fail_at[callback] && d->calls[callback] == d->fail_at[callback];
}

static MAYBE_UNUSED disk_file *disk_find(disk *d, const char *path, int make) {
    disk_file *unused = NULL;
    for (int i = 0; i < 8; i++) {
        if (d->files[i].exists && strcmp(d->files[i].path, path) == 0) return &d->files[i];
        if (!d->files[i].exists && !d->files[i].is_open && !unused) unused = &d->files[i];
    }
    if (!make || !unused || strlen(path) >= sizeof unused->path) return NULL;
    strcpy(unused->path, path);
    unused->exists = 1;
    return unused;
}

static MAYBE_UNUSED void *disk_open(void *user, const char *path, char mode) {
    disk *d = (disk *)user;
    if (disk_fails(d, DISK_OPEN)) return NULL;
    disk_file *file = disk_find(d, path, mode == 'w');
    if (!file || file->is_open) return NULL;
    if (mode == 'w') file->bytes = 0;
    file->at = 0;
    file->is_open = 1;
    d->open_now++;
    return file;
}

static MAYBE_UNUSED size_t disk_read(void *user, void *handle, void *buffer, size_t bytes) {
    disk_file *file = (disk_file *)handle;
    if (disk_fails((disk *)user, DISK_READ)) return 0;
    size_t left = file->bytes - file->at, n = bytes < left ? bytes : left;
    if (n) memcpy(buffer, file->data + file->at, n);
    file->at += n;
    return n;
}

static MAYBE_UNUSED size_t disk_write(void *user, void *handle, const void *buffer, size_t bytes) {
    disk_file *file = (disk_file *)handle;
    if (disk_fails((disk *)user, DISK_WRITE)) return bytes / 2;
    if (file->at + bytes > file->room) {
        char *larger = (char *)realloc(file->data, file->at + 2 * bytes);
        if (!larger) return 0;
        file->data = larger;
        file->room = file->at + 2 * bytes;
    }
    if (bytes) memcpy(file->data + file->at, buffer, bytes);
    file->at += bytes;
    if (file->bytes < file->at) file->bytes = file->at;
    return bytes;
}

static MAYBE_UNUSED bool disk_seek(void *user, void *handle, int64_t position) {
    disk_file *file = (disk_file *)handle;
    if (disk_fails((disk *)user, DISK_SEEK) || position < 0 || (size_t)position > file->bytes)
        return false;
    file->at = (size_t)position;
    return true;
}

static MAYBE_UNUSED int64_t disk_size(void *user, void *handle) {
    if (disk_fails((disk *)user, DISK_SIZE)) return -1;
    return (int64_t)((disk_file *)handle)->bytes;
}

static MAYBE_UNUSED bool disk_flush(void *user, void *handle) {
    (void)handle;
    return !disk_fails((disk *)user, DISK_FLUSH);
}

static MAYBE_UNUSED bool disk_close(void *user, void *handle) {
    disk *d = (disk *)user;
    ((disk_file *)handle)->is_open = 0;
    d->open_now--;
    return !disk_fails(d, DISK_CLOSE);
}

static MAYBE_UNUSED bool disk_remove(void *user, const char *path) {
    disk_file *file = disk_find((disk *)user, path, 0);
    if (!file) return false;
    file->exists = 0;
    return true;
}

static MAYBE_UNUSED bool disk_commit(void *user, const char *temporary, const char *path) {
    disk *d = (disk *)user;
    disk_file *file = disk_find(d, temporary, 0);
    if (disk_fails(d, DISK_COMMIT) || !file) return false;
    disk_remove(d, path);
    strcpy(file->path, path);
    return true;
}

/* The library's own removals, which may fail. */
static MAYBE_UNUSED bool disk_drop(void *user, const char *path) {
    return !disk_fails((disk *)user, DISK_REMOVE) && disk_remove((disk *)user, path);
}

/* The files whose paths begin with a folder's; every path can be one. */
static MAYBE_UNUSED bool disk_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    disk *d = (disk *)user;
    const size_t n = strlen(path);
    if (disk_fails(d, DISK_LIST)) return false;
    for (int i = 0; i < 8; i++) {
        const char *name = d->files[i].path;
        if (d->files[i].exists && strncmp(name, path, n) == 0 && name[n] == '/')
            entry(to, name + n + 1, false);
    }
    return true;
}

static MAYBE_UNUSED void disk_use(disk *d, mpt_config *config) {
    memset(d, 0, sizeof *d);
    config->io.open = disk_open;
    config->io.read = disk_read;
    config->io.write = disk_write;
    config->io.seek = disk_seek;
    config->io.size = disk_size;
    config->io.flush = disk_flush;
    config->io.close = disk_close;
    config->io.commit = disk_commit;
    config->io.remove = disk_drop;
    config->io.list = disk_list;
    config->io.user = d;
}

static MAYBE_UNUSED void disk_free(disk *d) {
    for (int i = 0; i < 8; i++) free(d->files[i].data);
    memset(d, 0, sizeof *d);
}

static MAYBE_UNUSED int disk_count(const disk *d) {
    int count = 0;
    for (int i = 0; i < 8; i++) count += d->files[i].exists;
    return count;
}

/* ==== A small training: 8 features, 4 classes, a net with dropout ==== */

enum { FEATURES = 8, CLASSES = 4, SAMPLES = 40 };

/* Values that every format holds exactly. */
static MAYBE_UNUSED float sample_value(int64_t i) {
    return (float)(int)((uint32_t)i * 2654435761u >> 23 & 255u) / 128.0f - 1.0f;
}

static MAYBE_UNUSED mpt_dataset make_data(mpt_context *context, int64_t count) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    float *inputs = (float *)malloc((size_t)count * FEATURES * sizeof(float));
    int64_t *targets = (int64_t *)malloc((size_t)count * sizeof(int64_t));
    for (int64_t i = 0; i < count * FEATURES; i++) inputs[i] = sample_value(i);
    for (int64_t i = 0; i < count; i++) targets[i] = (i * 7 + i / 5) % CLASSES;
    config.count = count;
    config.dtype = MPT_F32;
    config.shape = MPT_SHAPE(FEATURES);
    config.inputs = inputs;
    config.targets = targets;
    mpt_dataset data = mpt_memory_dataset(context, &config);
    free(inputs);
    free(targets);
    return data;
}

static MAYBE_UNUSED mpt_module make_unnamed_net(mpt_context *context) {
    mpt_module layers[5];
    layers[0] = mpt_nn_linear(context, FEATURES, 16);
    layers[1] = mpt_nn_relu(context);
    layers[2] = mpt_nn_dropout(context, 0.25);
    layers[3] = mpt_nn_linear(context, 16, CLASSES);
    layers[4] = mpt_nn_log_softmax(context, -1);
    return mpt_sequential_array(context, layers, 5);
}

static MAYBE_UNUSED mpt_module make_net(mpt_context *context) {
    mpt_module net = make_unnamed_net(context);
    mpt_set_label(net, "net"); /* the same values wherever it is made */
    return net;
}

typedef struct training {
    mpt_context *context;
    mpt_dataset data;
    mpt_loader loader;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype precision;
} training;

static MAYBE_UNUSED mpt_loader make_loader_of(mpt_context *context, mpt_dataset data, int64_t batch,
                                              int workers, mpt_dtype dtype) {
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = batch;
    config.shuffle = true;
    config.workers = workers;
    config.dtype = dtype;
    return mpt_loader_create(context, data, &config);
}

/* Everything but the context. */
static MAYBE_UNUSED void make_training(training *t, mpt_context *context, mpt_dtype precision,
                                       int workers) {
    memset(t, 0, sizeof *t);
    t->context = context;
    t->precision = precision;
    t->data = make_data(context, SAMPLES);
    t->loader = make_loader_of(context, t->data, 8, workers, MPT_F32);
    t->net = make_net(context);
    mpt_adamw_config config = mpt_adamw_config_default();
    config.lr = 0.01;
    t->optimizer = mpt_adamw(t->net, &config);
    t->scaler = mpt_grad_scaler(context, NULL);
}

static MAYBE_UNUSED mpt_status train_on(training *t, mpt_batch b) {
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->precision);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, b.x), b.y, NULL);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_unscale(t->scaler, t->optimizer);
    mpt_clip_grad_norm(t->optimizer, 1.0);
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    return mpt_step_end(t->context);
}

/* The next batch, over the end of an epoch. */
static MAYBE_UNUSED bool next_batch(mpt_loader loader, mpt_batch *b) {
    return mpt_loader_next(loader, b) ||
           (!mpt_failed(loader.context) && mpt_loader_next(loader, b));
}

static MAYBE_UNUSED mpt_status train_step(training *t) {
    mpt_batch b;
    if (!next_batch(t->loader, &b)) return mpt_error_code(t->context);
    return train_on(t, b);
}

/* The same as a step that mpt_capture takes; user: the training. */
static MAYBE_UNUSED mpt_status step_of(mpt_context *context, void *user, mpt_tensor x,
                                       mpt_tensor y) {
    mpt_batch b;
    (void)context;
    memset(&b, 0, sizeof b);
    b.x = x, b.y = y;
    return train_on((training *)user, b);
}

/* Of weights, moments, masters, step counts and loss scale. */
static MAYBE_UNUSED uint64_t training_hash(const training *t) {
    mpt_scaler_state state = mpt_scaler_get_state(t->scaler);
    uint64_t hash = mpt_module_hash(t->net), bits;
    hash = hash * UINT64_C(1099511628211) ^ mpt_optimizer_hash(t->optimizer);
    memcpy(&bits, &state.scale, sizeof bits);
    hash = hash * UINT64_C(1099511628211) ^ bits;
    return hash * UINT64_C(1099511628211) ^ (uint64_t)state.growth_tracker;
}

#endif
