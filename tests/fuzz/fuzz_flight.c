/* fuzz_flight.c: flight logs that were changed. The input is a script of changes to a log that a
   training wrote: bytes, sizes, numbers of steps, pieces that go, come twice or change places, cuts
   and bytes of its own; or the log itself. The hashes of its pieces stay as they were or are made
   true again, so that what stands behind their check is reached, too.

   Whatever comes, a training that is compared with it, or whose log it is to be, has the bits of
   one without a log; memory stays within what the file's size accounts for; a file that is refused
   is not touched, and what is written behind one that is taken agrees with the training when that
   is done again. */
#define MPTRAIN_NO_ATTENTION /* nothing here needs these, which take long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_RECURRENT
#define MPTRAIN_NO_FP8
#define MPTRAIN_NO_FIT
#define MPTRAIN_NO_GRAPH
#define MPTRAIN_WATCH
#include "fuzz.h"

enum { MAX_SIZE = 512, MOST = 16384, STEPS = 6, PIECES = 16 };
enum { BY_STEPS = 1, MEND = 2, RAW = 4, OTHER_LEVEL = 8 }; /* bits of the first byte */

typedef struct bytes {
    uint8_t data[2 * MOST];
    size_t size;
} bytes;

static bytes logs[2];           /* by level */
static uint64_t after[STEPS + 1]; /* hashes of the training behind each step */

/* ==== Trainings ==== */

typedef struct flown {
    heap h;
    disk d;
    training t;
} flown;

static mpt_context *fly(flown *f) {
    mpt_config config = fuzz_config(&f->h);
    disk_use(&f->d, &config);
    mpt_context *context = mpt_create(&config);
    PROMISE(context != NULL);
    make_training(&f->t, context, MPT_F32, 0);
    return context;
}

static void land(flown *f) {
    mpt_destroy(f->t.context);
    PROMISE(f->h.live == 0 && f->d.open_now == 0);
    disk_free(&f->d);
}

static void steps(flown *f, int from, int to) {
    for (int i = from; i < to; i++) PROMISE(train_step(&f->t) == MPT_OK);
    if (after[to]) PROMISE(mpt_state_hash(f->t.context) == after[to]);
    after[to] = mpt_state_hash(f->t.context);
}

static void put_file(disk *d, const void *data, size_t size) {
    disk_file *file = (disk_file *)disk_open(d, "log", 'w');
    if (size) disk_write(d, file, data, size);
    disk_close(d, file);
}

static mpt_flight_config level_of(bool by_steps) {
    mpt_flight_config config = mpt_flight_config_default();
    config.level = by_steps ? MPT_FLIGHT_STEPS : MPT_FLIGHT_OPS;
    config.block = 2;
    return config;
}

static const bytes *log_of(bool by_steps) {
    bytes *log = &logs[by_steps];
    const mpt_flight_config config = level_of(by_steps);
    flown f;
    if (log->size) return log;
    mpt_context *c = fly(&f);
    PROMISE(mpt_flight_begin(c, "log", &config) == MPT_OK);
    for (int i = 0; i < STEPS; i++) steps(&f, i, i + 1);
    PROMISE(mpt_flight_end(c, NULL) == MPT_OK);
    const disk_file *file = disk_find(&f.d, "log", 0);
    PROMISE(file->bytes > 100 && file->bytes <= MOST);
    log->size = file->bytes;
    memcpy(log->data, file->data, file->bytes);
    land(&f);
    return log;
}

/* ==== Changes ==== */

static uint32_t number_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static void put_number(uint8_t *p, uint64_t value, int size) {
    for (int i = 0; i < size; i++) p[i] = (uint8_t)(value >> (8 * i));
}

/* Where pieces begin, as their sizes say; the last one is where that ends. Returns how many. */
static int pieces_of(const bytes *log, size_t *at) {
    int n = 0;
    for (at[0] = 0; n < PIECES && log->size - at[n] >= 16; n++) {
        const size_t size = number_at(log->data + at[n] + 4);
        if (size > log->size - at[n] - 16) break;
        at[n + 1] = at[n] + size + 16;
    }
    return n;
}

static void put_in(bytes *log, size_t at, const uint8_t *from, size_t n) {
    static uint8_t copy[MOST];
    if (log->size + n > MOST) return;
    memcpy(copy, from, n); /* it may be of the log */
    memmove(log->data + at + n, log->data + at, log->size - at);
    memcpy(log->data + at, copy, n);
    log->size += n;
}

static void take_out(bytes *log, size_t at, size_t n) {
    memmove(log->data + at, log->data + at + n, log->size - at - n);
    log->size -= n;
}

static void change(bytes *log, fuzz_input *in) {
    static const uint64_t numbers[] = {0, 1, 2, 3, 0x7f, 0x80, 0xff, 0xffff, 0x10000, 0x7fffffff,
        0x80000000u, 0xffffffffu, 0x7fffffffffffffff, 0x8000000000000000u, 0xffffffffffffffffu, 16};
    size_t at[PIECES + 1];
    const int count = pieces_of(log, at);
    const unsigned what = next_byte(in), which = next_byte(in), value = next_byte(in);
    if (log->size == 0) return;
    const size_t place = (which << 8 | next_byte(in)) % log->size;
    const int piece = count ? (int)(which % (unsigned)count) : 0;
    const size_t from = at[piece], n = count ? at[piece + 1] - from : 0;
    const uint64_t number = value & 1 ? numbers[value / 2 % 16] : value / 2;
    switch (what % 10) {
    case 0:
        log->data[place] = (uint8_t)value;
        break;
    case 1:
        log->data[place] ^= (uint8_t)(1u << value % 8);
        break;
    case 2: /* a number anywhere, of 2, 4 or 8 bytes */
        put_number(log->data + place, number, 2 << value % 3); /* there is room behind the log */
        break;
    case 3:
        log->size = place;
        break;
    case 4:
        take_out(log, from, n);
        break;
    case 5:
        if (n) put_in(log, at[value % (unsigned)count], log->data + from, n);
        break;
    case 6:
        put_number(log->data + from + 4, number, 4);
        break;
    case 7: /* of a block: its first step, how many, of a step: how many sums */
        if (n > 60) put_number(log->data + from + 8, number, 8);
        break;
    case 8:
        if (n > 60) put_number(log->data + from + (value % 3 ? 16 : 42), number, value % 3 ? 4 : 2);
        break;
    default: /* bytes of the input */
        put_in(log, place, in->data + in->at,
               value < in->size - in->at ? value : in->size - in->at);
    }
}

static void mend(bytes *log) {
    size_t at[PIECES + 1];
    const int count = pieces_of(log, at);
    for (int i = 0; i < count; i++) {
        const size_t n = at[i + 1] - at[i] - 8;
        put_number(log->data + at[i] + n, mpt__hash_bytes(0, log->data + at[i], n), 8);
    }
}

/* ==== What must hold ==== */

static bool ends(const char *text, size_t size) { return memchr(text, 0, size) != NULL; }

static void check_report(const mpt_flight_report *r, int done) {
    PROMISE((unsigned)r->kind <= MPT_FLIGHT_STATE && r->steps >= 0 && r->steps <= done);
    PROMISE(ends(r->op, sizeof r->op) && ends(r->module, sizeof r->module));
    PROMISE(ends(r->parameter, sizeof r->parameter) && ends(r->text, sizeof r->text));
    PROMISE((r->kind == MPT_FLIGHT_SAME) == (r->text[0] == 0));
    PROMISE(r->kind == MPT_FLIGHT_SAME || (r->step >= 1 && r->step <= done));
}

/* A training is compared with it. */
static void replayed(const bytes *log) {
    flown f;
    mpt_flight_report report;
    mpt_context *c = fly(&f);
    put_file(&f.d, log->data, log->size);
    f.h.largest = 0;
    const mpt_status status = mpt_flight_replay(c, "log");
    PROMISE(status == MPT_OK || status == MPT_ERROR_FORMAT);
    PROMISE(f.h.largest <= (int64_t)log->size * 16 + 100000);
    if (status != MPT_OK) mpt_clear_error(c);
    steps(&f, 0, 3);
    if (status == MPT_OK) {
        PROMISE(mpt_flight_end(c, &report) == MPT_OK);
        check_report(&report, 3);
    }
    land(&f);
}

/* What a training has written behind it is what another one does. */
static void agrees(const disk_file *file, int kept) {
    flown f;
    mpt_flight_report report;
    mpt_context *c = fly(&f);
    put_file(&f.d, file->data, file->bytes);
    PROMISE(mpt_flight_replay(c, "log") == MPT_OK);
    steps(&f, 0, kept + 2);
    PROMISE(mpt_flight_end(c, &report) == MPT_OK);
    check_report(&report, kept + 2);
    PROMISE(report.kind == MPT_FLIGHT_SAME ? report.steps >= 2 : report.step <= kept);
    land(&f);
}

/* A training goes on with it. */
static void gone_on(const bytes *log, bool by_steps, int before) {
    flown f;
    const mpt_flight_config config = level_of(by_steps);
    mpt_context *c = fly(&f);
    steps(&f, 0, before);
    put_file(&f.d, log->data, log->size);
    f.h.largest = 0;
    const mpt_status status = mpt_flight_begin(c, "log", &config);
    const disk_file *file = disk_find(&f.d, "log", 0);
    PROMISE(f.h.largest <= (int64_t)log->size * 16 + 100000);
    if (status != MPT_OK) {
        PROMISE(status == MPT_ERROR_FORMAT || status == MPT_ERROR_ARGUMENT);
        PROMISE(file->bytes == log->size);
        PROMISE(log->size == 0 || memcmp(file->data, log->data, log->size) == 0);
        mpt_clear_error(c);
    }
    steps(&f, before, before + 2);
    if (status == MPT_OK) {
        PROMISE(mpt_flight_end(c, NULL) == MPT_OK);
        agrees(file, before);
    }
    land(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bytes changed;
    fuzz_input in = {data, size, 2};
    if (size < 2 || size > MAX_SIZE) return 0;
    const int flags = data[0];
    changed = *log_of((flags & BY_STEPS) != 0);
    if (flags & RAW) {
        changed.size = size - 2;
        memcpy(changed.data, data + 2, size - 2);
    }
    while (!(flags & RAW) && in.at < in.size) change(&changed, &in);
    if (flags & MEND) mend(&changed);
    replayed(&changed);
    gone_on(&changed, (flags & BY_STEPS) == ((flags & OTHER_LEVEL) ? 0 : BY_STEPS), data[1] % 4);
    return 0;
}

/* ==== Seeds ==== */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    if (!folder) return 0;
    for (int i = 0; i < 120; i++) {
        uint8_t seed[10] = {0};
        char name[20];
        seed[0] = (uint8_t)(i % 4 | (i % 16 == 9 ? OTHER_LEVEL : 0)), seed[1] = (uint8_t)(i / 3);
        seed[2] = (uint8_t)i, seed[3] = (uint8_t)(i * 7), seed[4] = (uint8_t)(i * 13);
        seed[5] = (uint8_t)(i * 29), seed[6] = (uint8_t)(i / 2), seed[7] = (uint8_t)(i * 3);
        seed[8] = (uint8_t)(i * 5);
        snprintf(name, sizeof name, "change-%d", i);
        write_seed(folder, name, seed, i < 8 ? 2 : sizeof seed);
    }
    return 0;
}
