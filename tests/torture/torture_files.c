/* torture_files.c: every file that the library reads, cut at every byte, and with every bit of its
   header the other way round. Nothing crashes or leaks, no file makes the library ask for more than
   what it decodes to and 16 MiB, and what is refused is refused by the file's name and a reason.
   What is taken is used. Built with sanitizers. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#ifdef MPTRAIN_STB_IMAGE
#include "../made_pictures.h"
#endif
#include "heap.h"
#include "packed.h"
#include "trainings.h"

enum { MOST_BYTES = 1 << 16, ROOM = 16 << 20 };
enum { TAKEN, REFUSED, CUTS, FLIPS };

/* What one kind of file is read by. */
typedef struct kind {
    const char *name;
    bool whole;      /* none of its beginnings can be taken for one */
    size_t header;   /* bytes whose bits are turned; 0: all */
    int64_t decoded; /* at most so many bytes come out of it */
    void (*read)(mpt_context *c);
} kind;

static const char *path; /* the file that is read */
static const kind *now;
static uint8_t file[MOST_BYTES];
static size_t file_size, header_size;
static long stride, cuts;

/* ==== Readers ==== */

static void read_samples(mpt_dataset data) {
    static float room[1 << 16];
    mpt_sample_sizes sizes;
    const int64_t count = data.slot ? mpt_dataset_size(data) : 0;
    if (count <= 0) return;
    memset(&sizes, 0, sizeof sizes);
    mpt_sample_into(data, 0, NULL, 0, NULL, 0, &sizes);
    if (mpt_failed(data.context) || sizes.bytes + sizes.target_bytes > sizeof room) return;
    for (int64_t i = 0; i < count && i < 64; i++)
        if (mpt_sample_into(data, i, room, sizes.bytes, room + (sizes.bytes + 15) / 16 * 4,
                            sizes.target_bytes, NULL) != MPT_OK)
            return;
}

static plan small_plan(void) {
    plan how;
    memset(&how, 0, sizeof how);
    how.precision = FP16, how.optimizer = 2, how.threads = how.accumulate = 1, how.width = 4;
    how.overflow = -1, how.averaged = true, how.seed = 3;
    return how;
}

static void read_checkpoint(mpt_context *c) {
    const plan how = small_plan();
    training t = training_in(c, &how);
    const uint64_t before = mpt_state_hash(c);
    if (mpt_checkpoint_load(c, path) == MPT_OK) {
        run_training(&t, 0, 1); /* numbers may be any, the work has to end */
        return;
    }
    char said[1024];
    snprintf(said, sizeof said, "%s", mpt_error(c));
    mpt_clear_error(c);
    EXPECT_THAT(mpt_state_hash(c) == before, "a file that was refused has changed the training");
    mpt_checkpoint_load(c, path); /* refused again, in the same words */
    EXPECT_THAT(strcmp(strchr(said, ')'), strchr(mpt_error(c), ')')) == 0, "%s, then %s", said,
                mpt_error(c));
}

static void read_weights(mpt_context *c) {
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 3, 4), mpt_nn_linear(c, 4, 2), MPT_END);
    if (mpt_load(net, path, NULL, NULL) == MPT_OK) mpt_module_hash(net);
}

static void read_idx(mpt_context *c) { read_samples(mpt_idx(c, path, in_folder("labels"))); }

static void read_labels(mpt_context *c) { read_samples(mpt_idx(c, in_folder("images"), path)); }

static void read_npy(mpt_context *c) { read_samples(mpt_npy(c, path, NULL)); }

static void read_npz(mpt_context *c) { read_samples(mpt_npz(c, path, "x", "y")); }

static void read_csv(mpt_context *c) { read_samples(mpt_csv(c, path, NULL)); }

static void read_table(mpt_context *c) {
    mpt_table_config config = mpt_table_config_default();
    config.like = mpt_table_load(c, path);
    if (config.like.slot) read_samples(mpt_csv(c, in_folder("table.csv"), &config));
}

static void use_tokenizer(mpt_tokenizer t) {
    static const char text[] = "the cat, low lower";
    int32_t tokens[64];
    char back[64];
    if (!t.slot) return;
    const int64_t n = mpt_encode(t, text, sizeof text - 1, tokens, 64);
    if (n < 0) {
        mpt_clear_error(t.context); /* a character that the file lacks */
        return;
    }
    EXPECT_THAT(mpt_decode(t, tokens, n, back, 64) == sizeof text - 1 &&
                    memcmp(back, text, sizeof text - 1) == 0,
                "a text does not come back");
}

static void read_characters(mpt_context *c) { use_tokenizer(mpt_char_tokenizer(c, path)); }

static void read_vocabulary(mpt_context *c) {
    use_tokenizer(mpt_bpe_tokenizer(c, path, in_folder("merges")));
}

static void read_merges(mpt_context *c) {
    use_tokenizer(mpt_bpe_tokenizer(c, in_folder("vocabulary"), path));
}

static void read_tokens(mpt_context *c) {
    mpt_window_config config = mpt_window_config_default();
    config.block = 4, config.vocabulary = 400;
    read_samples(mpt_token_file(c, path, 2, &config));
}

static void read_text(mpt_context *c) {
    mpt_window_config config = mpt_window_config_default();
    config.block = 4;
    mpt_tokenizer t = mpt_char_tokenizer(c, in_folder("characters"));
    if (t.slot) read_samples(mpt_text_file(t, path, &config));
}

#ifdef MPTRAIN_STB_IMAGE
static void read_picture(mpt_context *c) {
    read_samples(mpt_image_folder(c, in_folder("folder"), NULL));
}
#endif

/* ==== Files ==== */

static void make_checkpoint(void) {
    const plan how = small_plan();
    training t = begin_training(&how);
    run_training(&t, 0, 3);
    EXPECT_THAT(mpt_checkpoint_save(t.context, in_folder("checkpoint")) == MPT_OK, "%s",
                mpt_error(t.context));
    mpt_module net = mpt_sequential(t.context, mpt_nn_linear(t.context, 3, 4),
                                    mpt_nn_linear(t.context, 4, 2), MPT_END);
    EXPECT_THAT(mpt_save(net, in_folder("weights")) == MPT_OK, "%s", mpt_error(t.context));
    mpt_dataset table = mpt_csv(t.context, in_folder("table.csv"), NULL);
    EXPECT_THAT(mpt_table_save(table, in_folder("table")) == MPT_OK, "%s", mpt_error(t.context));
    end_training(&t);
}

/* All bytes as GPT-2 writes them, and two merges. */
static void make_vocabulary(void) {
    static char text[1 << 13];
    size_t n = 0;
    for (int byte = 0, other = 256; byte < 256; byte++) {
        const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"\\u%04x\": %d", byte ? ", " : "{",
                              (unsigned)(plain ? byte : other++), byte);
    }
    n += (size_t)snprintf(text + n, sizeof text - n, ", \"lo\": 256, \"low\": 257}");
    write_whole(in_folder("vocabulary"), text, n);
    write_whole(in_folder("merges"), "#version: 0.2\nl o\nlo w\n", 23);
}

static void make_files(void) {
    static const char csv[] = "size,colour,\"a, b\",class\n1.5,red,3,yes\n2e3,\"gr\"\"een\",4,no\n"
                              "-7,red,5,yes\n0.25,blue,6,no\n";
    static const char text[] = "the cat, low lower \xc3\xa4\xe2\x82\xac\n";
    uint8_t images[16 + 96] = {0, 0, 8, 3, 0, 0, 0, 6, 0, 0, 0, 4, 0, 0, 0, 4};
    uint8_t labels[8 + 6] = {0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 0, 1, 2};
    char npy[128 + 24] = "\x93NUMPY\x01";
    const int head = snprintf(npy + 10, 118, "%s%54s\n",
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }", "");
    uint8_t tokens[64];
    for (int i = 0; i < 96; i++) images[16 + i] = (uint8_t)(i * 5);
    for (int i = 0; i < 64; i++) tokens[i] = (uint8_t)(i % 2 ? i == 33 : i * 3);
    npy[7] = 0, npy[8] = (char)head;
    write_whole(in_folder("images"), images, sizeof images);
    write_whole(in_folder("labels"), labels, sizeof labels);
    write_whole(in_folder("idx.gz"), idx_gz, sizeof idx_gz);
    write_whole(in_folder("array.npy"), npy, 10 + (size_t)head + 24);
    write_whole(in_folder("arrays.npz"), npz, sizeof npz);
    write_whole(in_folder("table.csv"), csv, sizeof csv - 1);
    write_whole(in_folder("characters"), text, sizeof text - 1);
    write_whole(in_folder("tokens"), tokens, sizeof tokens);
    make_vocabulary();
    make_checkpoint();
#ifdef MPTRAIN_STB_IMAGE
    static made m;
    uint8_t rows[6 * 16];
    for (int k = 0; k < (int)sizeof rows; k++) rows[k] = (uint8_t)(k % 16 ? k : 0);
    mkdir(in_folder("folder"), 0755), mkdir(in_folder("folder/a"), 0755);
    made_bmp(&m, 40, 24, 5, 6, 0, 40);
    write_whole(in_folder("picture.bmp"), m.bytes, m.n);
    made_png_begin(&m, 5, 6, 8, 2, 0);
    made_png_end(&m, rows, sizeof rows);
    write_whole(in_folder("picture.png"), m.bytes, m.n);
    made_baseline(&m, 24, 3, 0x22, true, 0, "", 0);
    write_whole(in_folder("picture.jpg"), m.bytes, m.n);
    made_progressive(&m, 24, 3, "", 0);
    write_whole(in_folder("progressive.jpg"), m.bytes, m.n);
#endif
}

static const kind kinds[] = {
    {"checkpoint", true, 8, 1 << 16, read_checkpoint},
    {"weights", true, 0, 1 << 12, read_weights},
    {"images", true, 0, 1 << 12, read_idx},
    {"labels", true, 0, 1 << 12, read_labels},
    {"idx.gz", true, 0, 1 << 12, read_idx},
    {"array.npy", true, 0, 1 << 12, read_npy},
    {"arrays.npz", true, 0, 1 << 12, read_npz},
    {"table.csv", false, 0, 1 << 12, read_csv},
    {"table", false, 0, 1 << 12, read_table},
    {"characters", false, 0, 1 << 12, read_characters},
    {"characters", false, 0, 1 << 12, read_text},
    {"vocabulary", true, 0, 1 << 16, read_vocabulary},
    {"merges", false, 0, 1 << 12, read_merges},
    {"tokens", false, 0, 1 << 12, read_tokens},
#ifdef MPTRAIN_STB_IMAGE
    {"picture.bmp", false, 0, 1 << 14, read_picture},
    {"picture.png", false, 0, 1 << 14, read_picture},
    {"picture.jpg", false, 0, 1 << 14, read_picture},
    {"progressive.jpg", false, 0, 1 << 14, read_picture},
#endif
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* ==== Cases ==== */

/* Reads the file in a context of its own; true if it was taken. */
static bool read_once(void) {
    heap h;
    mpt_config config = heap_config(&h);
    config.seed = 3;
    h.limit = ROOM + now->decoded;
    mpt_context *c = mpt_create(&config);
    const int64_t before = h.live;
    h.peak = h.largest = 0;
    now->read(c);
    const bool taken = !mpt_failed(c);
    /* Pictures are named from their class on; a table may be at odds with the file of another,
       a token with its vocabulary. */
    EXPECT_THAT(taken || strstr(mpt_error(c), torture_folder) || strstr(mpt_error(c), "a/x.") ||
                    strstr(mpt_error(c), "of the row is"),
                "no place: %s", mpt_error(c));
    EXPECT_THAT(taken || mpt_error_code(c) != MPT_ERROR_MEMORY, "%s", mpt_error(c));
    EXPECT_THAT(h.peak - before <= ROOM + now->decoded && h.largest <= ROOM + now->decoded,
                "%lld bytes at a time, %lld in one call", (long long)(h.peak - before),
                (long long)h.largest);
    mpt_destroy(c);
    EXPECT_THAT(h.live == 0, "%lld bytes are left", (long long)h.live);
    return taken;
}

/* The first `cuts` cases are beginnings of the file, then comes each bit of its header. */
static void one_file(long n) {
    const long before = counts->failures;
    uint64_t state = case_seed(n);
    const bool cut = n < cuts;
    const size_t last = cut ? file_size - 1 : 8 * header_size - 1;
    size_t at = (size_t)((cut ? n : n - cuts) * stride + draw_below(&state, stride));
    if (at > last) at = last;
    if (cut) {
        write_whole(path, file, at);
    } else {
        file[at / 8] = (uint8_t)(file[at / 8] ^ 1 << at % 8);
        write_whole(path, file, file_size);
        file[at / 8] = (uint8_t)(file[at / 8] ^ 1 << at % 8);
    }
    const bool taken = read_once();
    EXPECT_THAT(!taken || !cut || !now->whole, "a part of a file was taken for one");
    counts->figures[taken ? TAKEN : REFUSED]++;
    counts->figures[cut ? CUTS : FLIPS]++;
    if (counts->failures > before && before < 20)
        printf("%s, %s %ld\n", now->name, cut ? "cut at" : "with other bit", (long)at);
}

static void whole_file(long n) {
    (void)n;
    write_whole(path, file, file_size);
    EXPECT_THAT(read_once(), "%s: the file itself is refused", now->name);
}

/* All cases of a kind of file; returns how many. */
static long one_kind(const kind *k) {
    static char place[700];
    now = k;
    file_size = read_whole(in_folder(k->name), file, sizeof file);
    header_size = k->header ? k->header : file_size;
    if (k->header == 8) /* a length, and so many bytes of JSON */
        header_size += (size_t)file[0] | (size_t)file[1] << 8;
    const char *ending = strrchr(k->name, '.');
    char name[64] = "folder/a/x";
#ifdef MPTRAIN_STB_IMAGE
    if (k->read != read_picture)
#endif
        snprintf(name, sizeof name, "%s", "taken");
    snprintf(place, sizeof place, "%s%s", in_folder(name), ending ? ending : "");
    path = place;
    const long all = (long)(file_size + 8 * header_size);
    stride = 1 + all / options.cases;
    cuts = ((long)file_size + stride - 1) / stride;
    const long total = cuts + ((long)(8 * header_size) + stride - 1) / stride;
    const long taken = counts->figures[TAKEN];
    counts->crashes += torture_child(whole_file, 0, 60) != 0;
    torture_cases(total, 2000, one_file);
    printf("%s: %ld of %ld, %ld taken\n", k->name, total, all, counts->figures[TAKEN] - taken);
    unlink(path);
    return total;
}

int main(int argc, char **argv) {
    long cases = 0;
    torture_arguments(argc, argv, 1000000);
    torture_begin();
    folder_begin("files");
    make_files();
    for (int k = 0; k < KINDS && counts->crashes < 20; k++) cases += one_kind(&kinds[k]);
#ifndef MPTRAIN_STB_IMAGE
    printf("skipped: pictures, which need stb_image.h\n");
#endif
    folder_end();
    return torture_end("files", cases, "%ld cut, %ld with another bit, %ld refused, %ld taken",
                       counts->figures[CUTS], counts->figures[FLIPS], counts->figures[REFUSED],
                       counts->figures[TAKEN]);
}
