/* Journals of tools/mptrain_tools.h: event files, CSV and JSON to the byte, going on after kills at
   every byte, rewinding, full disks, files of others, pictures, mpt_fit, misuse. The tools see the
   declarations of mptrain.h alone. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#define MPTRAIN_TOOLS_STATIC
#include "harness.h"
#include "tools/mptrain_tools.h"

#include <math.h>
#ifndef _WIN32
#include <signal.h>
#include <sys/resource.h>
#endif

/* ==== Files ==== */

typedef struct content {
    unsigned char data[1 << 17];
    size_t size;
} content;

static void file_read(const char *path, content *to) {
    FILE *file = fopen(path, "rb");
    to->size = file ? fread(to->data, 1, sizeof to->data - 1, file) : 0;
    to->data[to->size] = 0;
    if (file) fclose(file);
}

static void file_write(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    if (!file) return;
    CHECK_EQ_INT(fwrite(data, 1, size, file), size);
    fclose(file);
}

/* The three files of a journal, by name. */
enum { EVENTS, CSV, JSONL, FILES };
typedef struct places {
    char folder[512], path[FILES][640];
} places;

static places places_make(const char *name) {
    places p;
    char part[64];
    memset(&p, 0, sizeof p);
    snprintf(p.folder, sizeof p.folder, "%s", test_tmp_path(name));
    snprintf(p.path[EVENTS], sizeof p.path[EVENTS], "%s/events.out.tfevents.0000000000.mptrain",
        p.folder);
    for (int i = CSV; i < FILES; i++) {
        snprintf(part, sizeof part, "%s.%s", name, i == CSV ? "csv" : "jsonl");
        snprintf(p.path[i], sizeof p.path[i], "%s", test_tmp_path(part));
    }
    for (int i = 0; i < FILES; i++) remove(p.path[i]);
    return p;
}

static double now_is;
static double clock_now(void *user) {
    (void)user;
    return now_is;
}

static mpt_journal *open_at(const places *p) {
    mpt_journal_config config = mpt_journal_config_default();
    config.tensorboard = p->folder, config.csv = p->path[CSV], config.jsonl = p->path[JSONL];
    config.now = clock_now;
    mpt_journal *journal = mpt_journal_open(&config);
    CHECK_EQ_STR(mpt_journal_error(journal), "");
    return journal;
}

/* What a step of these tests logs: the same each time, at the same time. */
static void log_step(mpt_journal *journal, int64_t step) {
    now_is = 1000.0 + (double)step * 0.5;
    CHECK_EQ_INT(mpt_journal_scalar(journal, "loss", step, 1.0 / (double)(step + 1)), MPT_OK);
    CHECK_EQ_INT(mpt_journal_scalar(journal, "a, \"b\"", step, -(double)step), MPT_OK);
    if (step % 2) CHECK_EQ_INT(mpt_journal_text(journal, "note", step, "line\n\"\\\t"), MPT_OK);
}

/* ==== Numbers and checks ==== */

static const char *number_text(double value) {
    static mpt__tools_bytes text;
    text.size = 0;
    mpt__tools_put_number(&text, value);
    mpt__tools_bytes_put(&text, "", 1);
    return (const char *)text.data;
}

TEST(numbers_are_the_shortest) {
    static const struct {
        double value;
        const char *text;
    } rows[] = {{0, "0"}, {-0.0, "-0.0"}, {1, "1"}, {0.1, "0.1"}, {-2.5, "-2.5"}, {65536, "65536"},
        {1e-4, "0.0001"}, {1.5e-5, "1.5e-05"}, {1e16, "1e+16"},
        {1234567890123456, "1234567890123456"}, {0.1 + 0.2, "0.30000000000000004"},
        {5e-324, "5e-324"}, {9007199254740993.0, "9007199254740992"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"}, {1e23, "1e+23"},
        {9.5367431640625e-07, "9.5367431640625e-07"}, {INFINITY, "inf"}, {-INFINITY, "-inf"},
        {NAN, "nan"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ_STR(number_text(rows[i].value), rows[i].text);
    uint64_t state = 1;
    for (int i = 0; i < 3000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint64_t bits = i % 3 ? state ^ state >> 31 : state << 52; /* powers of two, too */
        double value, back;
        char shorter[40];
        memcpy(&value, &bits, sizeof value);
        if (!mpt__tools_is_finite(value)) continue;
        const char *text = number_text(value);
        back = strtod(text, NULL);
        CHECK_EQ_BITS(&back, &value, sizeof value);
        int digits = 0;
        for (const char *c = text; *c && *c != 'e'; c++)
            digits += *c >= '0' && *c <= '9' && (digits || *c != '0');
        if (!strchr(text, 'e') || digits < 2) continue;
        snprintf(shorter, sizeof shorter, "%.*e", digits - 2, value);
#ifndef _WIN32 /* whose strtod is off by a place */
        CHECK(strtod(shorter, NULL) != value);
#endif
    }
}

TEST(checks_are_those_of_the_books) {
    const unsigned char *nine = (const unsigned char *)"123456789";
    CHECK_EQ_INT(mpt__tools_crc_update(MPT__TOOLS_CRC32_PNG, 0, nine, 9), 0xCBF43926u);
    CHECK_EQ_INT(mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, nine, 9), 0xE3069283u);
    CHECK_EQ_INT(
        mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, (const unsigned char *)"a", 1), 0xC1D04330u);
}

/* ==== To the byte ==== */

/* Everything that a journal takes, in the order that tools/check_journal.py expects. */
static void log_all(mpt_journal *journal, mpt_context *ctx) {
    static const float numbers[] = {-1, -0.5f, 0, 0.25f, 0.5f, 1, 3, NAN};
    static const float grey[] = {0, 0.5f, 1, 2, -1, NAN};
    static const unsigned char colours[] = {255, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    log_step(journal, 0);
    log_step(journal, 1);
    log_step(journal, 300);
    mpt_journal_scalar(journal, "inf", 301, INFINITY);
    mpt_journal_scalar(journal, "nan", 301, NAN);
    mpt_journal_histogram(journal, "spread", 302, mpt_from(ctx, MPT_F32, MPT_SHAPE(8), numbers));
    mpt_journal_histogram(journal, "one", 302, mpt_ones(ctx, MPT_F16, MPT_SHAPE(5)));
    mpt_journal_histogram(journal, "none", 302, mpt_zeros(ctx, MPT_F32, MPT_SHAPE(0)));
    mpt_journal_image(journal, "grey", 303, mpt_from(ctx, MPT_F32, MPT_SHAPE(2, 3), grey));
    mpt_journal_image(journal, "colour", 303, mpt_from(ctx, MPT_U8, MPT_SHAPE(3, 2, 2), colours));
    mpt_journal_pixels(journal, "rgba", 303, colours, 1, 3, 4);
    CHECK_EQ_STR(mpt_journal_error(journal), "");
    CHECK_EQ_STR(mpt_error(ctx), "");
}

/* Of the event file of log_all, which TensorBoard has read (tools/check_journal.py). */
enum { EVENT_BYTES = 2304 };
static const uint32_t event_check = 1200449883u;

static const char csv_begins[] =
    "step,time,tag,value\n0,1000,loss,1\n0,1000,\"a, \"\"b\"\"\",-0.0\n1,1000.5,loss,0.5\n"
    "1,1000.5,\"a, \"\"b\"\"\",-1\n300,1150,loss,0.0033222591362126247\n"
    "300,1150,\"a, \"\"b\"\"\",-300\n301,1150,inf,inf\n301,1150,nan,nan\n";

TEST(files_to_the_byte) {
    static content found;
    mpt_context *ctx = mpt_create(NULL);
    places p = places_make("all");
    now_is = 1000;
    mpt_journal *journal = open_at(&p);
    log_all(journal, ctx);
    CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
    file_read(p.path[CSV], &found);
    CHECK_EQ_STR((const char *)found.data, csv_begins);
    file_read(p.path[JSONL], &found);
    CHECK_CONTAINS((const char *)found.data,
        "{\"step\":1,\"time\":1000.5,\"tag\":\"note\",\"text\":\"line\\u000a\\\"\\\\\\u0009\"}\n");
    CHECK_CONTAINS((const char *)found.data,
        "{\"step\":301,\"time\":1150,\"tag\":\"inf\",\"value\":\"inf\"}\n");
    CHECK_CONTAINS((const char *)found.data,
        "\"tag\":\"one\",\"count\":5,\"min\":1,\"max\":1,\"sum\":5,\"squares\":5,\"limits\":[1],"
        "\"counts\":[5]}\n");
    CHECK_CONTAINS((const char *)found.data,
        "\"tag\":\"spread\",\"count\":7,\"min\":-1,\"max\":3,\"sum\":3.25,\"squares\":11.5625,");
    CHECK_CONTAINS((const char *)found.data,
        "{\"step\":303,\"time\":1150,\"tag\":\"rgba\",\"width\":1,\"height\":3,\"channels\":4}\n");
    file_read(p.path[EVENTS], &found);
    CHECK_EQ_INT(found.size, EVENT_BYTES);
    CHECK_EQ_INT(mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, found.data, found.size), event_check);
    mpt_destroy(ctx);
}

/* Reads a stored PNG back: every check is right and rows are as they were. */
static void check_png(const unsigned char *png, size_t size, const unsigned char *pixels, int width,
    int height, int channels) {
    static unsigned char raw[1 << 17];
    size_t at = 8, n = 0;
    CHECK(size > 8 && memcmp(png, "\x89PNG\r\n\x1a\n", 8) == 0);
    while (at + 12 <= size) {
        size_t length = (size_t)png[at] << 24 | (size_t)png[at + 1] << 16 |
            (size_t)png[at + 2] << 8 | png[at + 3];
        const unsigned char *crc = png + at + 8 + length;
        uint32_t want =
            (uint32_t)crc[0] << 24 | (uint32_t)crc[1] << 16 | (uint32_t)crc[2] << 8 | crc[3];
        CHECK_EQ_INT(
            mpt__tools_crc_update(MPT__TOOLS_CRC32_PNG, 0, png + at + 4, length + 4), want);
        if (memcmp(png + at + 4, "IDAT", 4) == 0) {
            size_t block = at + 10;
            for (int last = 0; !last;) {
                last = png[block];
                size_t part = (size_t)png[block + 1] | (size_t)png[block + 2] << 8;
                CHECK_EQ_INT(part ^ 0xFFFF, png[block + 3] | png[block + 4] << 8);
                memcpy(raw + n, png + block + 5, part);
                n += part, block += 5 + part;
            }
            CHECK_EQ_INT(block + 4, at + 8 + length);
        }
        at += 12 + length;
    }
    CHECK_EQ_INT(at, size);
    size_t row = (size_t)width * (size_t)channels;
    CHECK_EQ_INT(n, (row + 1) * (size_t)height);
    for (int y = 0; y < height; y++) {
        CHECK_EQ_INT(raw[(row + 1) * (size_t)y], 0);
        CHECK_EQ_BITS(raw + (row + 1) * (size_t)y + 1, pixels + row * (size_t)y, row);
    }
}

typedef struct heard {
    int count, kinds[4];
    unsigned char png[1 << 17];
    size_t png_bytes;
    double last, sum;
} heard;

static void hear(void *user, const mpt_journal_entry *entry) {
    heard *h = (heard *)user;
    h->count++, h->kinds[entry->kind]++;
    h->last = entry->value;
    if (entry->kind == MPT_JOURNAL_IMAGE && entry->png_bytes <= sizeof h->png) {
        memcpy(h->png, entry->png, entry->png_bytes);
        h->png_bytes = entry->png_bytes;
    }
    h->sum = 0;
    for (int i = 0; entry->bins && i < entry->bins->bins; i++) h->sum += entry->bins->counts[i];
}

TEST(a_listener_hears_all_without_files) {
    static heard h;
    static unsigned char pixels[301 * 75 * 3];
    mpt_context *ctx = mpt_create(NULL);
    mpt_journal_config config = mpt_journal_config_default();
    memset(&h, 0, sizeof h);
    config.entry = hear, config.user = &h;
    mpt_journal *journal = mpt_journal_open(&config);
    log_all(journal, ctx);
    CHECK(h.kinds[0] == 8 && h.kinds[1] == 1 && h.kinds[2] == 3 && h.kinds[3] == 3);
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (unsigned char)(i * 7);
    mpt_journal_pixels(journal, "large", 1, pixels, 301, 75, 3); /* more than one block */
    check_png(h.png, h.png_bytes, pixels, 301, 75, 3);
    static const float values[] = {0, 0.5f, 1, 2, -1, NAN, 0.2f, 1, 0, 1, 0, 1};
    static const unsigned char want[] = {0, 0, 0, 128, 0, 255, 255, 51, 0, 255, 255, 255};
    mpt_journal_image(journal, "planes", 1, mpt_from(ctx, MPT_F32, MPT_SHAPE(3, 2, 2), values));
    check_png(h.png, h.png_bytes, want, 2, 2, 3);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 3, 4), mpt_nn_relu(ctx), MPT_END);
    memset(&h, 0, sizeof h);
    CHECK_EQ_INT(mpt_journal_module(journal, 7, net, true), MPT_OK);
    CHECK_EQ_INT(h.count, 0);
    mpt_backward(
        mpt_sum(mpt_forward(net, mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 3))), MPT_ALL_DIMS, false));
    CHECK_EQ_INT(mpt_journal_module(journal, 7, net, true), MPT_OK);
    CHECK_EQ_INT(mpt_journal_module(journal, 7, net, false), MPT_OK);
    CHECK_EQ_INT(h.count, 4);
    CHECK_NEAR(h.sum, 4, 0); /* the last is the bias */
    mpt_journal_close(journal);
    mpt_destroy(ctx);
}

/* ==== Going on ==== */

static void check_same(const places *p, const content *want, const char *what, size_t at) {
    static content found;
    for (int i = 0; i < FILES; i++) {
        file_read(p->path[i], &found);
        if (found.size == want[i].size && memcmp(found.data, want[i].data, found.size) == 0)
            continue;
        TEST_FAIL_("%s differs, %s at byte %d", p->path[i], what, (int)at);
    }
}

static void read_all(const places *p, content *to) {
    for (int i = 0; i < FILES; i++) file_read(p->path[i], &to[i]);
}

enum { LAST = 6 };

/* Whatever byte a kill has left as the last one: what was whole stays, and once the training has
   gone on from a checkpoint before it, nobody sees that there was a kill. */
TEST(cut_at_every_byte) {
    static content whole[FILES];
    places p = places_make("cut");
    size_t longest = 0;
    now_is = 1000;
    mpt_journal *journal = open_at(&p);
    for (int step = 0; step <= LAST; step++) log_step(journal, step);
    mpt_journal_close(journal);
    read_all(&p, whole);
    for (int i = 0; i < FILES; i++) longest = whole[i].size > longest ? whole[i].size : longest;
    for (size_t cut = 0; cut <= longest; cut++) {
        for (int i = 0; i < FILES; i++)
            file_write(p.path[i], whole[i].data, cut < whole[i].size ? cut : whole[i].size);
        now_is = 1000; /* of the event file's head */
        journal = open_at(&p);
        CHECK_EQ_INT(mpt_journal_flush(journal), MPT_OK);
        if (cut == longest) CHECK_EQ_INT(mpt_journal_dropped(journal), 0);
        for (int i = 0; i < FILES; i++) {
            static content found;
            file_read(p.path[i], &found);
            CHECK(
                found.size <= whole[i].size && memcmp(found.data, whole[i].data, found.size) == 0);
            for (size_t k = found.size; i != EVENTS && k < cut && k < whole[i].size; k++)
                CHECK(whole[i].data[k] != '\n'); /* only what has no end is gone */
        }
        const int64_t from = cut < 600 ? -1 : 0; /* of step 0 all files have all by then */
        CHECK_EQ_INT(mpt_journal_rewind(journal, from), MPT_OK);
        for (int64_t step = from + 1; step <= LAST; step++) log_step(journal, step);
        CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
        check_same(&p, whole, "cut", cut);
    }
}

TEST(rewinding_takes_back_later_steps) {
    static content whole[FILES];
    places p = places_make("rewind");
    now_is = 1000;
    mpt_journal *journal = open_at(&p);
    for (int step = 0; step <= LAST; step++) log_step(journal, step);
    mpt_journal_close(journal);
    read_all(&p, whole);
    for (int to = 0; to <= LAST; to++) {
        journal = open_at(&p);
        for (int step = 50; step < 60; step++) log_step(journal, step);
        CHECK_EQ_INT(mpt_journal_rewind(journal, to), MPT_OK);
        CHECK(mpt_journal_dropped(journal) > 0);
        for (int step = to + 1; step <= LAST; step++) log_step(journal, step);
        CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
        check_same(&p, whole, "rewound", (size_t)to);
    }
    mpt_journal_config config = mpt_journal_config_default();
    config.csv = p.path[CSV], config.resume = false;
    CHECK_EQ_INT(mpt_journal_close(mpt_journal_open(&config)), MPT_OK);
    file_read(p.path[CSV], &whole[0]);
    CHECK_EQ_STR((const char *)whole[0].data, "step,time,tag,value\n");
}

/* A byte changed in the middle costs the record that it is in. */
TEST(damage_costs_one_record) {
    static content whole[FILES], found;
    places p = places_make("damage");
    now_is = 1000;
    mpt_journal *journal = open_at(&p);
    for (int step = 0; step <= LAST; step++) log_step(journal, step);
    mpt_journal_close(journal);
    read_all(&p, whole);
    const size_t at = whole[EVENTS].size / 2;
    int alone = 0;
    for (size_t i = at; i < at + 60; i++) { /* a whole record and more */
        whole[EVENTS].data[i] ^= 4;
        file_write(p.path[EVENTS], whole[EVENTS].data, whole[EVENTS].size);
        whole[EVENTS].data[i] ^= 4;
        journal = open_at(&p);
        CHECK(mpt_journal_dropped(journal) > 0);
        CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
        file_read(p.path[EVENTS], &found);
        alone += whole[EVENTS].size - found.size < 100;
        journal = open_at(&p); /* what was mended is whole */
        CHECK_EQ_INT(mpt_journal_dropped(journal), 0);
        mpt_journal_close(journal);
    }
    CHECK(
        alone >= 40 && alone < 60); /* behind a damaged length nobody knows where the next one is */
}

TEST(files_of_others_stay) {
    static content found;
    static const char text[] = "name,weight\nanna,3\n";
    places p = places_make("others");
    mpt_journal_config config = mpt_journal_config_default();
    for (int i = CSV; i < FILES; i++) {
        config.csv = i == CSV ? p.path[i] : NULL, config.jsonl = i == CSV ? NULL : p.path[i];
        for (size_t size = sizeof text - 1; size > 0; size /= 3) {
            file_write(p.path[i], text, size);
            mpt_journal *journal = mpt_journal_open(&config);
            CHECK_CONTAINS(mpt_journal_error(journal), p.path[i]);
            CHECK_CONTAINS(mpt_journal_error(journal), "no journal wrote it");
            CHECK_EQ_INT(mpt_journal_scalar(journal, "loss", 1, 2), MPT_ERROR_FORMAT);
            CHECK_EQ_INT(mpt_journal_close(journal), MPT_ERROR_FORMAT);
            file_read(p.path[i], &found);
            CHECK(found.size == size && memcmp(found.data, text, size) == 0);
        }
        remove(p.path[i]);
    }
}

/* ==== Disks ==== */

TEST(folders_that_cannot_be) {
    places p = places_make("unwritable");
    char inside[700];
    file_write(p.path[CSV], "x", 1);
    snprintf(inside, sizeof inside, "%s/folder/log.csv", p.path[CSV]);
    for (int way = 0; way < 2; way++) {
        mpt_journal_config config = mpt_journal_config_default();
        config.csv = way ? NULL : inside, config.tensorboard = way ? inside : NULL;
        mpt_journal *journal = mpt_journal_open(&config);
        CHECK_CONTAINS(mpt_journal_error(journal), inside);
        CHECK_CONTAINS(mpt_journal_error(journal), "cannot be opened: ");
        CHECK_CONTAINS(mpt_journal_error(journal), "(errno ");
        CHECK_EQ_INT(mpt_journal_scalar(journal, "loss", 1, 2), MPT_ERROR_IO);
        CHECK_EQ_INT(mpt_journal_flush(journal), MPT_ERROR_IO);
        CHECK_EQ_INT(mpt_journal_rewind(journal, 1), MPT_ERROR_IO);
        CHECK_EQ_INT(mpt_journal_close(journal), MPT_ERROR_IO);
    }
    remove(p.path[CSV]);
}

#ifdef _WIN32
TEST(full_disks_lose_nothing) { SKIP("a limit for the size of files"); }
#else
static bool limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

/* Files end in the middle of a record; when there is room again, its second half follows. */
TEST(full_disks_lose_nothing) {
    enum { STEPS = 400, ROOM = 16001 };
    static content whole[FILES];
    places p = places_make("full");
    now_is = 1000;
    mpt_journal *journal = open_at(&p);
    for (int step = 0; step < STEPS; step++) log_step(journal, step);
    CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
    read_all(&p, whole);
    for (int i = 0; i < FILES; i++) remove(p.path[i]);
    now_is = 1000;
    journal = open_at(&p);
    if (!limit_files(ROOM)) SKIP("a limit for the size of files");
    int refused = 0;
    for (int step = 0; step < STEPS; step++) {
        now_is = 1000.0 + step * 0.5;
        refused += mpt_journal_scalar(journal, "loss", step, 1.0 / (step + 1)) == MPT_ERROR_IO;
        refused += mpt_journal_scalar(journal, "a, \"b\"", step, -(double)step) == MPT_ERROR_IO;
        if (step % 2)
            refused += mpt_journal_text(journal, "note", step, "line\n\"\\\t") == MPT_ERROR_IO;
    }
    mpt_status status = mpt_journal_flush(journal);
    char error[768];
    snprintf(error, sizeof error, "%s", mpt_journal_error(journal));
    limit_files(0);
    CHECK(refused > 100);
    CHECK_EQ_INT(status, MPT_ERROR_IO);
    CHECK_CONTAINS(error, p.path[EVENTS]);
    CHECK_CONTAINS(error, "cannot be written: ");
    CHECK_EQ_INT(mpt_journal_flush(journal), MPT_OK);
    CHECK_EQ_STR(mpt_journal_error(journal), "");
    CHECK_EQ_INT(mpt_journal_close(journal), MPT_OK);
    check_same(&p, whole, "full", ROOM);
}
#endif

/* ==== Fit ==== */

enum { SAMPLES = 40, BATCH = 8, BATCHES = SAMPLES / BATCH, EPOCHS = 3 };

typedef struct stopping {
    mpt_journal *journal;
    mpt_context *ctx;
    int64_t after;
} stopping;

static bool log_and_stop(void *user, const mpt_progress *progress) {
    stopping *s = (stopping *)user;
    now_is = 1000;
    mpt_journal_fit(s->journal, progress);
    if (progress->step == s->after && !progress->epoch_end) mpt_request_stop(s->ctx, true);
    return true;
}

static void empty(const char *folder) {
    char path[700];
    for (int step = 0; step <= EPOCHS * BATCHES; step++) {
        snprintf(path, sizeof path, "%s/step-%012d.safetensors", folder, step);
        remove(path);
    }
}

/* Fits with checkpoints each 2 steps, from the newest or anew; until `after`, unless that is 0. */
static mpt_fit_result fit_logged(const places *p, const char *run, bool anew, int64_t after) {
    static float x[SAMPLES * 4];
    static int64_t y[SAMPLES];
    for (int i = 0; i < SAMPLES * 4; i++) x[i] = (float)(i * 37 % 101) / 101.0f;
    for (int i = 0; i < SAMPLES; i++) y[i] = i % 3;
    mpt_context *ctx = mpt_create(NULL);
    mpt_memory_dataset_config dc = mpt_memory_dataset_config_default();
    dc.count = SAMPLES, dc.dtype = MPT_F32, dc.shape = MPT_SHAPE(4), dc.inputs = x, dc.targets = y;
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = BATCH;
    mpt_loader valid = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &dc), &lc);
    lc.shuffle = true;
    mpt_loader train = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &dc), &lc);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 4, 3), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_fit_config fc = mpt_fit_config_default();
    stopping s = {open_at(p), ctx, after};
    fc.epochs = EPOCHS, fc.validation = valid, fc.clip_norm = 1, fc.precision = MPT_F16;
    fc.checkpoints = run, fc.save_every = 2;
    if (anew) empty(run);
    fc.progress = log_and_stop, fc.user = &s;
    mpt_fit_result result = mpt_fit(net, optimizer, train, &fc);
    CHECK_EQ_STR(mpt_error(ctx), "");
    CHECK_EQ_INT(mpt_journal_close(s.journal), MPT_OK);
    mpt_destroy(ctx);
    return result;
}

/* Rows of the CSV file but for speed and memory. */
static void rows_of(const char *path, content *to) {
    static content found;
    file_read(path, &found);
    to->size = 0;
    for (char *line = (char *)found.data, *next; *line; line = next) {
        next = strchr(line, '\n') ? strchr(line, '\n') + 1 : line + strlen(line);
        const size_t length = (size_t)(next - line);
        char row[256];
        snprintf(row, sizeof row, "%.*s", (int)length, line);
        if (strstr(row, "_per_second") || strstr(row, "waiting") || strstr(row, "memory")) continue;
        memcpy(to->data + to->size, line, length);
        to->size += length;
    }
    to->data[to->size] = 0;
}

static int rows_with(const content *rows, const char *tag) {
    int n = 0;
    for (const char *at = (const char *)rows->data; (at = strstr(at, tag)) != NULL; at++) n++;
    return n;
}

TEST(a_fit_that_was_stopped_leaves_the_same_rows) {
    static content want, got;
    char runs[2][512];
    snprintf(runs[0], sizeof runs[0], "%s", test_tmp_path("run-whole"));
    snprintf(runs[1], sizeof runs[1], "%s", test_tmp_path("run-parts"));
    places whole = places_make("fit"), parts = places_make("parts");
    CHECK_EQ_INT(fit_logged(&whole, runs[0], true, 0).steps, EPOCHS * BATCHES);
    CHECK(fit_logged(&parts, runs[1], true, 7).interrupted);
    mpt_journal *behind = open_at(&parts); /* as if it had been killed a few steps later */
    for (int step = 8; step < 12; step++) mpt_journal_scalar(behind, "loss", step, 99);
    mpt_journal_close(behind);
    CHECK_EQ_INT(fit_logged(&parts, runs[1], false, 0).steps, EPOCHS * BATCHES);
    rows_of(whole.path[CSV], &want);
    rows_of(parts.path[CSV], &got);
    CHECK_EQ_STR((const char *)got.data, (const char *)want.data);
    CHECK_EQ_INT(rows_with(&want, ",loss,"), EPOCHS * BATCHES);
    CHECK_EQ_INT(rows_with(&want, ",lr,0.001\n"), EPOCHS * BATCHES);
    CHECK_EQ_INT(rows_with(&want, ",scale,65536\n"), EPOCHS * BATCHES);
    CHECK_EQ_INT(rows_with(&want, ",skipped,0\n"), EPOCHS * BATCHES);
    CHECK_EQ_INT(rows_with(&want, ",grad_norm,"), EPOCHS * BATCHES);
    CHECK_EQ_INT(rows_with(&want, ",validation/accuracy,"), EPOCHS);
    CHECK_EQ_INT(rows_with(&want, ",epoch/loss,"), EPOCHS);
}

/* ==== Misuse ==== */

TEST(misuse_is_told) {
    const unsigned char pixel[4] = {1, 2, 3, 4};
    char tag[300];
    mpt_tensor none;
    mpt_module no_module;
    memset(&none, 0, sizeof none), memset(&no_module, 0, sizeof no_module);
    memset(tag, 'a', sizeof tag), tag[256] = 0;
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 2));
    CHECK_EQ_INT(mpt_journal_scalar(NULL, "a", 1, 1), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_text(NULL, "a", 1, "b"), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_histogram(NULL, "a", 1, x), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_module(NULL, 1, no_module, false), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_image(NULL, "a", 1, x), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_pixels(NULL, "a", 1, pixel, 1, 1, 1), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_flush(NULL), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_rewind(NULL, 1), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_journal_close(NULL), MPT_OK);
    CHECK_EQ_INT(mpt_journal_dropped(NULL), 0);
    CHECK_CONTAINS(mpt_journal_error(NULL), "no journal");
    CHECK(mpt_journal_fit(NULL, NULL));
    mpt_journal *journal = mpt_journal_open(NULL);
    CHECK(mpt_journal_fit(journal, NULL));
#define REFUSED(call, status, words) \
    do { \
        CHECK_EQ_INT(call, status); \
        CHECK_CONTAINS(mpt_journal_error(journal), words); \
        CHECK_EQ_INT(mpt_journal_scalar(journal, "fine", 1, 1), MPT_OK); \
        CHECK_EQ_STR(mpt_journal_error(journal), ""); \
    } while (0)
    REFUSED(mpt_journal_scalar(journal, NULL, 1, 1), MPT_ERROR_ARGUMENT, "255 bytes");
    REFUSED(mpt_journal_scalar(journal, "", 1, 1), MPT_ERROR_ARGUMENT, "255 bytes");
    REFUSED(mpt_journal_scalar(journal, tag, 1, 1), MPT_ERROR_ARGUMENT, "255 bytes");
    REFUSED(mpt_journal_scalar(journal, "a", -1, 1), MPT_ERROR_ARGUMENT, "0 or more");
    REFUSED(mpt_journal_rewind(journal, -2), MPT_ERROR_ARGUMENT, "less than -1");
    REFUSED(mpt_journal_text(journal, "a", 1, NULL), MPT_ERROR_ARGUMENT, "NULL");
    REFUSED(mpt_journal_pixels(journal, "a", 1, NULL, 1, 1, 1), MPT_ERROR_ARGUMENT, "NULL");
    REFUSED(mpt_journal_pixels(journal, "a", 1, pixel, 0, 1, 1), MPT_ERROR_ARGUMENT, "pixels");
    REFUSED(mpt_journal_pixels(journal, "a", 1, pixel, 1 << 20, 1 << 20, 1), MPT_ERROR_ARGUMENT,
        "pixels");
    REFUSED(mpt_journal_pixels(journal, "a", 1, pixel, 1, 1, 2), MPT_ERROR_ARGUMENT, "channels");
    REFUSED(mpt_journal_image(journal, "a", 1, mpt_ones(ctx, MPT_F32, MPT_SHAPE(2))),
        MPT_ERROR_ARGUMENT, "[H, W]");
    REFUSED(mpt_journal_image(journal, "a", 1, mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 3, 3))),
        MPT_ERROR_ARGUMENT, "channels");
    REFUSED(mpt_journal_image(journal, "a", 1, mpt_zeros(ctx, MPT_I64, MPT_SHAPE(2, 3))),
        MPT_ERROR_ARGUMENT, "u8, fp32");
    REFUSED(mpt_journal_image(journal, "a", 1, none), MPT_ERROR_HANDLE, "null handle");
    REFUSED(mpt_journal_histogram(journal, "a", 1, none), MPT_ERROR_HANDLE, "null handle");
    REFUSED(mpt_journal_module(journal, 1, no_module, true), MPT_ERROR_HANDLE, "null handle");
    mpt_release(x);
    REFUSED(mpt_journal_image(journal, "a", 1, x), MPT_ERROR_HANDLE, mpt_error(ctx));
    REFUSED(mpt_journal_histogram(journal, "a", 1, x), MPT_ERROR_HANDLE, mpt_error(ctx));
    CHECK(strlen(mpt_error(ctx)) > 0);
    mpt_clear_error(ctx);
    mpt_journal_close(journal);
    mpt_journal_config config = mpt_journal_config_default();
    config.every = 0;
    journal = mpt_journal_open(&config);
    CHECK_CONTAINS(mpt_journal_error(journal), "every");
    CHECK_EQ_INT(mpt_journal_close(journal), MPT_ERROR_ARGUMENT);
    config.every = 1, config.flush_seconds = -1;
    journal = mpt_journal_open(&config);
    CHECK_CONTAINS(mpt_journal_error(journal), "flush_seconds");
    CHECK_EQ_INT(mpt_journal_close(journal), MPT_ERROR_ARGUMENT);
    mpt_destroy(ctx);
}

TEST_TABLE = {T(numbers_are_the_shortest), T(checks_are_those_of_the_books), T(files_to_the_byte),
    T(a_listener_hears_all_without_files), T(cut_at_every_byte),
    T(rewinding_takes_back_later_steps), T(damage_costs_one_record), T(files_of_others_stay),
    T(folders_that_cannot_be), T(full_disks_lose_nothing),
    T(a_fit_that_was_stopped_leaves_the_same_rows), T(misuse_is_told)};
TEST_MAIN
