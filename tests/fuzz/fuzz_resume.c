/* fuzz_resume.c: whole trainings from files, folders and blocks that were changed. The input is a
   script of changes to what a training saved: numbers, bytes, names, dtypes and shapes of entries,
   entries that go or are new; bytes of the whole; cuts. The file is put together again after the
   changes, with its hash as it was, true again, or left out, so that what stands behind its check
   is reached, too.

   Whatever comes, a training that does not take it is as before, to the bit, and can go on. One
   that does has it all: nothing differs from the file, and what it saves loads into another. */
#define MPTRAIN_NO_ATTENTION /* nothing here needs these, which take long to compile */
#define MPTRAIN_NO_FP8
#define MPTRAIN_NO_FIT
#define MPTRAIN_NO_GRAPH
#include "fuzz.h"

enum { MAX_SIZE = 512, MOST = 32768, ENTRIES = 160, KINDS = 4 };
enum { MEND = 4, NO_HASH = 8, USED = 16, WAITING = 32 }; /* bits of the first byte; 3: what it is */
enum { A_FILE, A_BLOCK, A_FOLDER, WAYS };

/* ==== Trainings ==== */

typedef struct resumed {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_ema ema;
    mpt_loader loader;
    mpt_batch batch;
    int kind;
} resumed;

enum { ADAMW, HALF_SGD, OF_THE_USER, LBFGS };

static mpt_status lean(mpt_context *c, const mpt_user_update *p, void *user) {
    (void)user;
    mpt_add_(p->state[0], p->gradient);
    mpt_add_(p->value, mpt_mul_scalar(p->state[0], -p->lr));
    return mpt_error_code(c);
}

static mpt_optimizer make_optimizer(mpt_module net, int kind) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_lbfgs_config lbfgs = mpt_lbfgs_config_default();
    mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
    sgd.momentum = 0.9, lbfgs.history_size = 3, lbfgs.max_iter = 3;
    own.update = lean, own.states = 1;
    switch (kind) {
    case ADAMW:
        return mpt_adamw(net, NULL);
    case HALF_SGD:
        return mpt_sgd(net, &sgd);
    case LBFGS:
        return mpt_lbfgs(net, &lbfgs);
    default:
        return mpt_user_optimizer(net, &own);
    }
}

static void make_resumed(resumed *t, mpt_context *c, int kind) {
    mpt_loader_config loading = mpt_loader_config_default();
    memset(t, 0, sizeof *t);
    t->context = c, t->kind = kind;
    t->net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, 3), mpt_nn_batch_norm1d(c, 3, NULL),
                            mpt_nn_dropout(c, 0.25), mpt_nn_linear(c, 3, CLASSES), MPT_END);
    if (kind == HALF_SGD) mpt_half(t->net, MPT_BF16);
    t->optimizer = make_optimizer(t->net, kind);
    t->scaler = mpt_grad_scaler(c, NULL);
    t->ema = mpt_ema_create(t->net, t->optimizer, NULL);
    if (kind == ADAMW) mpt_schedule_create(t->optimizer, mpt_cosine_lr(9, 0), MPT_PER_STEP);
    loading.batch = 4, loading.shuffle = true;
    if (kind == HALF_SGD) loading.dtype = MPT_BF16;
    t->loader = mpt_loader_create(c, make_data(c, 10), &loading);
}

static mpt_tensor loss_of(mpt_context *c, void *user) {
    const resumed *t = (const resumed *)user;
    (void)c;
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, t->batch.x), t->batch.y, NULL);
    mpt_backward(t->kind == LBFGS ? loss : mpt_scale_loss(t->scaler, loss));
    return loss;
}

/* Steps; `waiting`: gradients of one more are left for more of them. */
static void train(resumed *t, int steps, bool waiting) {
    mpt_context *c = t->context;
    for (int i = 0; i < steps + waiting && !mpt_failed(c); i++) {
        if (!next_batch(t->loader, &t->batch)) break;
        if (t->kind == LBFGS && i < steps) {
            mpt_lbfgs_step(t->optimizer, loss_of, t);
            mpt_zero_grad(t->optimizer);
            continue;
        }
        mpt_step_begin(c);
        mpt_metric_push(c, "loss", loss_of(c, t));
        if (i < steps) mpt_scaler_step(t->scaler, t->optimizer);
        if (i < steps) mpt_scaler_update(t->scaler);
        if (i < steps) mpt_zero_grad(t->optimizer);
        mpt_step_end(c);
        if (i < steps) mpt_ema_update(t->ema);
    }
}

static mpt_context *make_context(heap *h, disk *d) {
    mpt_config config = fuzz_config(h);
    disk_use(d, &config);
    config.io.list = list_files;
    mpt_context *context = mpt_create(&config);
    PROMISE(context != NULL);
    return context;
}

/* ==== What trainings save ==== */

typedef struct entry {
    char name[120], shape[40];
    int dtype; /* of dtype_names */
    size_t size;
    uint8_t data[800];
} entry;

typedef struct saved {
    uint8_t file[MOST], block[MOST];
    size_t file_size, block_size;
    entry entries[ENTRIES];
    int count;
} saved;

static saved all_saved[KINDS][2];
static const char *const dtype_names[] = {"F32", "I64", "F64", "U8", "BF16", "F16", "I32", "F9"};
enum { DTYPES = sizeof dtype_names / sizeof *dtype_names };

/* The entries of a file, by the library's own reader. */
static void take_apart(mpt_context *c, saved *s) {
    mpt__archive a;
    memset(&a, 0, sizeof a);
    a.context = c, a.json.name = "saved";
    PROMISE(mpt__archive_read_memory(&a, s->file, s->file_size) && a.count <= ENTRIES);
    s->count = (int)a.count;
    for (int i = 0; i < s->count; i++) {
        const mpt__entry *from = &a.entries[i];
        entry *to = &s->entries[i];
        const char *shape = (const char *)a.json.text + from->shape;
        to->size = (size_t)(from->end - from->begin);
        PROMISE(from->name.length < sizeof to->name && to->size <= sizeof to->data);
        memcpy(to->name, from->name.text, from->name.length);
        for (size_t k = 0; k == 0 || shape[k - 1] != ']'; k++) to->shape[k] = shape[k];
        while (strcmp(dtype_names[to->dtype], mpt__file_dtype_name(from->dtype)) != 0) to->dtype++;
        memcpy(to->data, a.data + from->begin, to->size);
    }
    mpt__archive_free(&a);
}

static saved *saved_of(int kind, bool waiting) {
    saved *s = &all_saved[kind][waiting];
    heap h;
    disk d;
    resumed t;
    if (s->count) return s;
    mpt_context *c = make_context(&h, &d);
    make_resumed(&t, c, kind);
    train(&t, 3, waiting);
    PROMISE(mpt_checkpoint_save(c, "saved") == MPT_OK);
    const disk_file *file = disk_find(&d, "saved", 0);
    s->file_size = file->bytes;
    s->block_size = (size_t)mpt_snapshot_bytes(c);
    PROMISE(s->file_size <= MOST && s->block_size <= MOST);
    memcpy(s->file, file->data, file->bytes);
    PROMISE(mpt_snapshot(c, s->block, s->block_size) == MPT_OK);
    take_apart(c, s);
    mpt_destroy(c);
    disk_free(&d);
    return s;
}

/* ==== Changes ==== */

static fuzz_input in;

static size_t next_number(void) {
    const unsigned low = next_byte(&in);
    return low | (size_t)next_byte(&in) << 8;
}

/* Eight bytes: a number at an end of what numbers hold, or any. */
static void change_number(uint8_t *at) {
    static const int64_t rare[] = {0,
                                   -1,
                                   1,
                                   2,
                                   3,
                                   100,
                                   INT64_MAX,
                                   INT64_MIN,
                                   INT64_MAX - 1,
                                   INT32_MAX,
                                   INT64_C(1) << 32,
                                   INT64_C(1) << 40};
    static const double odd[] = {0.0, -1.0, 1e308, 5e-324, 1.0, 1e-8};
    const unsigned b = next_byte(&in);
    double x = odd[b % 6];
    int64_t number = rare[b % 12];
    if (b >= 240) x = b & 1 ? -sqrt(-1.0) : 1e308 * 10;
    if (b >= 128) memcpy(&number, &x, 8);
    if (b >= 64 && b < 128)
        for (int i = 0; i < 64; i += 16) number = (int64_t)((uint64_t)number << 16 | next_number());
    memcpy(at, &number, 8);
}

static void change_name(char *name) {
    static const char *const names[] = {"mptrain.metric.new.count",
                                        "mptrain.metric.new.sum",
                                        "mptrain.metric..count",
                                        "mptrain.metric.loss.count",
                                        "mptrain.draws.net.0.2.count",
                                        "mptrain.net.1.used",
                                        "mptrain.hash",
                                        "0.weight",
                                        "mptrain.gradient.net.0.0.weight.value",
                                        "mptrain.gradient.net.0.0.weight.scaler"};
    static const char letters[] = "0123456789.abz\"\\\xc3";
    const unsigned b = next_byte(&in);
    if (b < 64)
        strcpy(name, names[b % 10]);
    else if (*name)
        name[next_byte(&in) % strlen(name)] = letters[b % (sizeof letters - 1)];
}

static void change_shape(entry *e) {
    const unsigned b = next_byte(&in);
    const size_t n = strlen(e->shape);
    if (b < 64)
        strcpy(e->shape, b & 1 ? "[]" : "[1]");
    else if (n > 2 && n < 30 && b < 128)
        strcpy(e->shape + n - 1, b & 1 ? ",1]" : ",0]");
    else
        snprintf(e->shape, sizeof e->shape, b & 1 ? "[%u]" : "[1,%u]",
                 (unsigned)(e->size >> b % 4));
}

/* One change of one entry. */
static void change_entry(saved *s, unsigned what) {
    entry *e = &s->entries[next_byte(&in) % s->count], *other;
    switch (what) {
    case 0:
        *e = s->entries[--s->count];
        break;
    case 1:
        change_name(e->name);
        break;
    case 2:
        e->dtype = (int)(next_byte(&in) % DTYPES);
        break;
    case 3:
        change_shape(e);
        break;
    case 4:
        e->size = e->size > 8 && next_byte(&in) & 1 ? e->size - 4 : 8;
        break;
    case 5:
        other = &s->entries[next_byte(&in) % s->count];
        memcpy(e->data, other->data, sizeof e->data);
        break;
    case 6:
        if (s->count == ENTRIES) break;
        s->entries[s->count] = *e;
        change_name(s->entries[s->count++].name);
        break;
    default:
        if (e->size >= 8) change_number(e->data + (e->size - 8) / 8 * (what & 1) * 8);
        if (e->size < 8 && e->size > 0) e->data[0] ^= (uint8_t)next_byte(&in);
        break;
    }
    if (s->count == 0) s->count = 1;
}

static size_t put(uint8_t *to, size_t at, const void *bytes, size_t n) {
    if (n > MOST - at) n = MOST - at;
    memcpy(to + at, bytes, n);
    return at + n;
}

/* The file of the entries. */
static void put_together(saved *s, int flags) {
    char text[400];
    uint64_t sum = 0;
    size_t at = 8, offset = 0;
    for (int i = 0; i < s->count; i++) {
        entry *e = &s->entries[i];
        const uint64_t hash = mpt__hash_bytes(0, e->name, strlen(e->name));
        if (strcmp(e->name, "mptrain.hash") != 0) sum += mpt__hash_bytes(hash, e->data, e->size);
    }
    for (int i = 0; i < s->count; i++) {
        entry *e = &s->entries[i];
        if (strcmp(e->name, "mptrain.hash") == 0) {
            if (flags & NO_HASH) *e = s->entries[--s->count];
            if (flags & NO_HASH && i == s->count) break;
            if (!(flags & NO_HASH) && flags & MEND) memcpy(e->data, &sum, 8);
        }
        const int n = snprintf(text, sizeof text,
                               "%c\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%d,%d]}",
                               i ? ',' : '{', e->name, dtype_names[e->dtype], e->shape, (int)offset,
                               (int)(offset + e->size));
        offset += e->size;
        at = put(s->file, at, text, (size_t)n);
    }
    at = put(s->file, at, "}       ", 1 + (7 & ~at));
    const uint64_t header = at - 8;
    memcpy(s->file, &header, 8);
    for (int i = 0; i < s->count; i++)
        at = put(s->file, at, s->entries[i].data, s->entries[i].size);
    s->file_size = at;
}

/* Changes that the next bytes tell, up to a byte of 255. */
static void change_all(saved *s, int flags) {
    fuzz_input rest;
    bool apart = false;
    for (rest = in; in.at < in.size;) {
        const unsigned what = next_byte(&in);
        if (what == 255) break;
        if (what < 200) {
            change_entry(s, what % 12);
            apart = true;
        }
        if (what >= 200) next_number();
        if (what >= 200 && what < 228 && s->block_size >= 8)
            change_number(s->block + next_number() % (s->block_size / 8) * 8);
    }
    if (apart || flags & (MEND | NO_HASH)) put_together(s, flags);
    for (; rest.at < in.at;) {
        const unsigned what = next_byte(&rest), low = next_byte(&rest);
        if (what < 228) continue;
        const size_t at = low | (size_t)(what & 127) << 8;
        if (what < 252 && s->file_size) s->file[at % s->file_size] ^= (uint8_t)(1 << what % 8);
        if (what < 252 && s->block_size) s->block[at % s->block_size] ^= (uint8_t)(1 << what % 8);
        if (what == 252 && at < s->file_size) s->file_size = at;
        if (what == 252 && at < s->block_size) s->block_size = at;
        if (what > 252 && low % 32 < s->block_size) s->block_size -= low % 32;
        if (what > 252 && low % 32 < s->file_size) s->file_size -= low % 32;
    }
}

/* ==== Loading ==== */

static void put_file(disk *d, const char *path, const void *data, size_t size) {
    disk_file *file = (disk_file *)disk_open(d, path, 'w');
    PROMISE(file != NULL);
    disk_write(d, file, data, size);
    disk_close(d, file);
}

/* What is promised of each call. */
static bool outcome(mpt_context *c, mpt_status status, const disk *d) {
    PROMISE(status == mpt_error_code(c));
    PROMISE((status == MPT_OK) == (mpt_error(c)[0] == 0));
    PROMISE(d->open_now == 0);
    mpt_clear_error(c);
    return status == MPT_OK;
}

/* How a training differs from a file, or from a block. */
static size_t difference(mpt_context *c, const uint8_t *block, size_t size, char *text, size_t room,
                         bool *failed) {
    memset(text, 'x', room);
    const uint64_t before = mpt_state_hash(c);
    const size_t n = block ? mpt_snapshot_difference(c, block, size, text, room)
                           : mpt_checkpoint_difference(c, "r/step-3.safetensors", text, room);
    *failed = mpt_failed(c);
    PROMISE(memchr(text, 0, room) && strlen(text) == (n < room ? n : room - 1));
    PROMISE(!*failed || n == 0);
    mpt_clear_error(c);
    PROMISE(mpt_state_hash(c) == before);
    return n;
}

/* What no training saves, and loading drops: draws of modules, which are counted in loops without
   steps alone, a place in an epoch that is not open, and values of a net that is not in use. */
static bool no_training_has(const char *difference) {
    return strstr(difference, "mptrain.draws.") ||
           strstr(difference, "mptrain.loader.0.next is 0 here") ||
           strstr(difference, "mptrain.net.0.used is 1 here");
}

/* A training that took what there was: it has it, hands it on and trains. */
static void goes_on(resumed *t, disk *d, const uint8_t *block, size_t size) {
    mpt_context *c = t->context;
    heap h;
    disk other_disk;
    resumed other;
    bool failed;
    char text[100];
    const size_t n = difference(c, block, size, text, sizeof text, &failed);
    PROMISE(!failed && (n == 0 || no_training_has(text)));
    const uint64_t hash = mpt_state_hash(c);
    PROMISE(hash != 0 && mpt_checkpoint_save(c, "again") == MPT_OK);
    mpt_context *next = make_context(&h, &other_disk);
    make_resumed(&other, next, t->kind);
    const disk_file *file = disk_find(d, "again", 0);
    put_file(&other_disk, "again", file->data, file->bytes);
    PROMISE(mpt_checkpoint_load(next, "again") == MPT_OK && mpt_state_hash(next) == hash);
    mpt_destroy(next);
    disk_free(&other_disk);
    PROMISE(h.live == 0);
    train(t, 2, false);
    mpt_clear_error(c);
}

static void load(const saved *s, const saved *whole, int way, int kind, bool used) {
    heap h;
    disk d;
    resumed t;
    bool failed, good;
    char text[20];
    mpt_context *c = make_context(&h, &d);
    make_resumed(&t, c, kind);
    if (used) train(&t, 1, false); /* what waits for more is dropped with any error */
    const uint64_t before = mpt_state_hash(c);
    PROMISE(!mpt_failed(c) && before != 0);
    uint8_t *block = (uint8_t *)malloc(s->block_size ? s->block_size : 1);
    PROMISE(block != NULL);
    memcpy(block, s->block, s->block_size);
    put_file(&d, "r/step-3.safetensors", s->file, s->file_size);
    h.largest = 0;
    difference(c, way == A_BLOCK ? block : NULL, s->block_size, text, sizeof text, &failed);
    if (way == A_BLOCK) {
        good = outcome(c, mpt_restore(c, block, s->block_size), &d);
    } else if (way == A_FILE) {
        good = outcome(c, mpt_checkpoint_load(c, "r/step-3.safetensors"), &d);
    } else {
        disk_remove(&d, "r/step-3.safetensors");
        put_file(&d, "r/step-000000000002.safetensors", whole->file, whole->file_size);
        put_file(&d, "r/step-000000000003.safetensors", s->file, s->file_size);
        good = outcome(c, mpt_checkpoint_open(c, "r", NULL), &d);
        PROMISE(!good || mpt_checkpoint_statistics(c).resumed >= 2);
        if (good && mpt_checkpoint_statistics(c).resumed == 3)
            put_file(&d, "r/step-3.safetensors", s->file, s->file_size);
        else
            put_file(&d, "r/step-3.safetensors", whole->file, whole->file_size);
        PROMISE((mpt_checkpoint_close(c) == MPT_OK) == good);
        mpt_clear_error(c);
    }
    PROMISE(h.largest <= (int64_t)s->file_size * 16 + 300000);
    if (good) goes_on(&t, &d, way == A_BLOCK ? block : NULL, s->block_size);
    if (!good) {
        PROMISE(mpt_state_hash(c) == before && !mpt_failed(c));
        PROMISE(mpt_restore(c, whole->block, whole->block_size) == MPT_OK);
        train(&t, 1, false);
        PROMISE(!mpt_failed(c));
    }
    free(block);
    mpt_destroy(c);
    PROMISE(h.live == 0);
    disk_free(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static saved changed;
    if (size < 2 || size > MAX_SIZE) return 0;
    const int flags = data[0], way = flags % 4 % WAYS, kind = data[1] % KINDS;
    const saved *whole = saved_of(kind, (flags & WAITING) != 0);
    in.data = data, in.size = size, in.at = 2;
    changed = *whole;
    change_all(&changed, flags);
    load(&changed, whole, way, kind, (flags & USED) != 0);
    return 0;
}

/* ==== Seeds ==== */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    if (!folder) return 0;
    for (int i = 0; i < 160; i++) {
        uint8_t seed[8] = {0};
        char name[20];
        seed[0] = (uint8_t)(i % 64), seed[1] = (uint8_t)(i / 5);
        seed[2] = (uint8_t)(i * 7 % 256), seed[3] = (uint8_t)(i * 11);
        seed[4] = (uint8_t)(i * 5), seed[5] = (uint8_t)(i % 12);
        seed[6] = (uint8_t)(i * 13), seed[7] = (uint8_t)(i * 3);
        snprintf(name, sizeof name, "change-%d", i);
        write_seed(folder, name, seed, i < 24 ? 2 : sizeof seed);
    }
    return 0;
}
