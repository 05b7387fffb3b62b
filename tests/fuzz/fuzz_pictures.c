/* fuzz_pictures.c: pictures, one after the other in one process. The first byte says how many
   channels are wanted; then come up to four files, each behind its length in two bytes. Whatever
   they hold, each is decoded or refused with a sentence that names it, and again with the same
   result after the others, of which nothing may be left in the decoder.

   The mutator knows segments of JPEG and chunks of PNG files, so that what it changes is read.
   stb_image's arithmetic overflows where a picture is odd enough: build it with -fwrapv and
   -fno-sanitize=signed-integer-overflow. */
#define MPTRAIN_STB_IMAGE
#ifndef STB_APART /* with it: stb_image is in tests/fuzz/stb_image.c */
#define MPTRAIN_STB_IMAGE_IMPLEMENTATION
#endif
#include "fuzz.h"

#include "../made_pictures.h"

/* What libFuzzer wrote is known, which the memory sanitizer cannot see. */
#define KNOWN(p, n) (void)0
#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#undef KNOWN
#define KNOWN(p, n) __msan_unpoison(p, n)
#endif
#endif

enum { MOST = 4, SIDE = 24, MAX_SIZE = 8192 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static int picture_count;

static bool list_pictures(void *user, const char *path, mpt_list_entry entry, void *to) {
    static const char *const names[MOST] = {"1.png", "2.jpg", "3.bmp", "4.jpeg"};
    (void)user;
    if (strcmp(path, "r") == 0) entry(to, "a", true);
    for (int i = 0; i < picture_count && strcmp(path, "r") != 0; i++) entry(to, names[i], false);
    return true;
}

/* Lays the files on the disk; returns how many there are. */
static int put_pictures(disk *d, const uint8_t *data, size_t size) {
    static const char *const paths[MOST] = {"r/a/1.png", "r/a/2.jpg", "r/a/3.bmp", "r/a/4.jpeg"};
    int count = 0;
    for (size_t at = 1; at + 2 < size && count < MOST; count++) {
        size_t n = (size_t)(data[at] | data[at + 1] << 8);
        at += 2;
        if (n > size - at) n = size - at;
        disk_file *file = (disk_file *)disk_open(d, paths[count], 'w');
        disk_write(d, file, data + at, n);
        disk_close(d, file);
        at += n;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static float x[2][MOST][4 * SIDE * SIDE];
    heap h;
    disk d;
    if (size < 4 || size > MAX_SIZE) return 0;
    mpt_config config = fuzz_config(&h);
    disk_use(&d, &config);
    config.io.list = list_pictures;
    picture_count = put_pictures(&d, data, size);
    mpt_context *context = mpt_create(&config);
    PROMISE(context != NULL);
    mpt_image_config images = mpt_image_config_default();
    mpt_transform step = mpt_transform_default(MPT_CENTER_CROP, SIDE, SIDE);
    images.steps = &step, images.step_count = 1, images.max_pixels = 1 << 14;
    images.channels = data[0] % 3 == 0 ? 1 : 2 + data[0] % 3;
    mpt_dataset pictures = mpt_image_folder(context, "r", &images);
    for (int again = 0; again < 2 && !mpt_failed(context); again++)
        for (int i = 0; i < picture_count; i++) {
            memset(x[again][i], 0, sizeof x[again][i]);
            const bool good = mpt_sample(pictures, i, x[again][i], NULL) == MPT_OK;
            PROMISE(good || strstr(mpt_error(context), ": a/"));
            mpt_clear_error(context);
            PROMISE(!again || memcmp(x[0][i], x[1][i], sizeof x[0][i]) == 0);
            for (int k = 0; k < images.channels * SIDE * SIDE; k++)
                PROMISE(x[again][i][k] >= 0.0f && x[again][i][k] <= 1.0f);
        }
    PROMISE(d.open_now == 0);
    mpt_destroy(context);
    PROMISE(h.live == 0);
    disk_free(&d);
    return 0;
}

/* ==== Mutation ==== */

/* The parts of a picture: segments of a JPEG with the data behind them, chunks of a PNG, else one.
   Returns how many; part i is from at[i] to at[i + 1]. */
enum { PARTS = 64 };

static int picture_parts(const uint8_t *p, size_t n, size_t at[PARTS + 1]) {
    int count = 0;
    size_t next = n > 8 && p[0] == 0x89 ? 8 : 2;
    at[count++] = 0;
    while (next + 12 <= n && count < PARTS && (p[0] == 0x89 || p[0] == 0xff)) {
        at[count++] = next;
        if (p[0] == 0x89) {
            const size_t length = (size_t)p[next + 2] << 8 | p[next + 3];
            next += 12 + length;
        } else {
            next += 2;
            while (next + 1 < n &&
                   (p[next] != 0xff || !p[next + 1] || (p[next + 1] & 0xf8) == 0xd0))
                next++;
            if (next + 1 == n) next = n;
        }
    }
    at[count] = n;
    return count;
}

/* Makes lengths of segments and chunks, and checksums, true again, mostly. */
static void picture_mend(uint8_t *p, size_t n, unsigned seed) {
    size_t at[PARTS + 1];
    const int count = picture_parts(p, n, at);
    for (int i = 1; i < count; i++) {
        uint8_t *part = p + at[i];
        const size_t size = at[i + 1] - at[i];
        if (seed % 16 == 0 || size < 12) continue;
        if (p[0] == 0xff && part[1] != 0xda) {
            part[2] = (uint8_t)((size - 2) >> 8), part[3] = (uint8_t)(size - 2);
        } else if (p[0] == 0x89) {
            part[0] = part[1] = 0;
            part[2] = (uint8_t)((size - 12) >> 8), part[3] = (uint8_t)(size - 12);
            const uint32_t crc = made_crc(part + 4, size - 8);
            for (int k = 0; k < 4; k++) part[size - 4 + (size_t)k] = (uint8_t)(crc >> (24 - 8 * k));
        }
    }
}

/* One change of a picture of n bytes in room for `most`; returns its new size. */
static size_t picture_change(uint8_t *p, size_t n, size_t most, unsigned seed) {
    static uint8_t whole[MAX_SIZE];
    size_t at[PARTS + 1];
    const int count = picture_parts(p, n, at), i = (int)(seed >> 4) % count;
    const int k = (int)(seed >> 12) % count;
    const size_t size = at[i + 1] - at[i], rest = n - at[i + 1];
    switch (seed % 8) {
    case 0: /* a part goes */
        memmove(p + at[i], p + at[i + 1], rest);
        return n - size;
    case 1: /* a part comes once more, somewhere */
        if (n + size > most) return n;
        memcpy(whole, p + at[i], size);
        memmove(p + at[k] + size, p + at[k], n - at[k]);
        memcpy(p + at[k], whole, size);
        return n + size;
    case 2: /* one byte near the beginning of a part */
        if (size > 4)
            p[at[i] + 4 + (seed >> 20) % (size - 4 < 24 ? size - 4 : 24)] ^=
                (uint8_t)(1u << (seed >> 9 & 7));
        return n;
    case 3: /* a restart marker in the data */
        if (n + 2 > most || size < 8) return n;
        memmove(p + at[i + 1] + 2, p + at[i + 1], rest);
        p[at[i + 1]] = 0xff, p[at[i + 1] + 1] = (uint8_t)(0xd0 | (seed >> 20 & 7));
        return n + 2;
    default: { /* anything, but within one part */
        memcpy(whole, p + at[i + 1], rest);
        const size_t changed = LLVMFuzzerMutate(p + at[i], size, most - n + size);
        KNOWN(p + at[i], changed);
        memcpy(p + at[i] + changed, whole, rest);
        return n - size + changed;
    }
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    static uint8_t picture[MAX_SIZE], after[MAX_SIZE];
    size_t at = 1, n = 0;
    KNOWN(data, size);
    if (seed % 10 == 0 || size < 8 || max_size > MAX_SIZE)
        return LLVMFuzzerMutate(data, size, max_size);
    for (unsigned skip = seed / 10 % MOST + 1; at + 2 < size && skip > 0; skip--) {
        const size_t next = at + 2 + n;
        if (n && next + 2 >= size) break;
        at = n ? next : at;
        n = (size_t)(data[at] | data[at + 1] << 8);
        if (n > size - at - 2) n = size - at - 2;
        if (n == 0) break;
    }
    if (n < 4) return LLVMFuzzerMutate(data, size, max_size);
    const size_t behind = size - at - 2 - n, most = max_size - size + n;
    memcpy(picture, data + at + 2, n);
    memcpy(after, data + at + 2 + n, behind);
    for (unsigned i = 0; i <= seed / 40 % 3 && n >= 4; i++)
        n = picture_change(picture, n, most, seed / 120 + 2654435761u * i);
    picture_mend(picture, n, seed / 7);
    data[at] = (uint8_t)n, data[at + 1] = (uint8_t)(n >> 8);
    memcpy(data + at + 2, picture, n);
    memcpy(data + at + 2 + n, after, behind);
    return at + 2 + n + behind;
}

/* ==== Seeds ==== */

/* Adds a file to a seed. */
static void seed_add(made *seed, const made *picture) {
    made_number(seed, (uint32_t)picture->n, -2);
    made_put(seed, picture->bytes, picture->n);
}

static void write_pictures(const char *folder, const char *name, const made *pictures, int count) {
    made seed;
    for (int channels = 0; channels < 3; channels++) {
        char full[64];
        seed.n = 0;
        made_number(&seed, (uint32_t)channels, 1);
        for (int i = 0; i < count; i++) seed_add(&seed, &pictures[i]);
        snprintf(full, sizeof full, "%s-%d", name, channels);
        write_seed(folder, full, seed.bytes, seed.n);
    }
}

static void write_jpegs(const char *folder, const uint8_t data[40]) {
    static made m[3];
    made_baseline(&m[0], 8, 1, 0x11, false, 0, data, 8);
    made_baseline(&m[1], 17, 3, 0x22, false, 1, "\0\0\xff\xd0\0\0\xff\xd1\0\0\xff\xd2\0\0", 14);
    made_progressive(&m[2], 12, 3, data, 20);
    write_pictures(folder, "jpeg", m, 3);
    made_baseline(&m[0], 9, 3, 0x21, true, 0, data, 16);
    made_baseline(&m[1], 8, 4, 0x11, false, 0, data, 40);
    made_progressive(&m[2], 20, 1, data, 12);
    write_pictures(folder, "jpeg-scans", m, 3);
    made_jpeg_begin(&m[0]);
    made_segment(&m[0], 0xee, "Adobe\0d\0\0\0\0\2", 12);
    made_frame(&m[0], 0xc1, 8, 8, 4, 0x12);
    made_jpeg_tables(&m[0]);
    made_scan(&m[0], 1, 4, 0, 0x003f00, data, 40);
    made_number(&m[0], 0xffd9, 2);
    write_pictures(folder, "jpeg-adobe", m, 2);
}

static void write_pngs(const char *folder, const uint8_t data[40]) {
    static const struct {
        uint8_t side, depth, color, interlace, colors;
        const char *transparency;
        size_t bytes;
    } rows[] = {
        {3, 8, 0, 0, 0, "\0\1", 2}, {5, 4, 3, 1, 5, "\0\200", 2},       {2, 16, 6, 1, 0, "", 0},
        {4, 2, 0, 0, 0, "\0\1", 2}, {3, 8, 2, 0, 0, "\0\1\0\2\0\3", 6}, {3, 1, 3, 0, 1, "", 0}};
    static made m[6];
    for (size_t i = 0; i < 6; i++) {
        made_png_begin(&m[i], rows[i].side, rows[i].side, rows[i].depth, rows[i].color,
                       rows[i].interlace);
        if (rows[i].colors) made_chunk(&m[i], "PLTE", data, (size_t)rows[i].colors * 3);
        if (rows[i].bytes) made_chunk(&m[i], "tRNS", rows[i].transparency, rows[i].bytes);
        uint8_t raw[64];
        memset(raw, 0, sizeof raw);
        if (!rows[i].interlace) raw[1] = data[1], raw[2] = data[5];
        if (i == 4) made_chunk(&m[i], "IDAT", "", 0);
        made_png_end(&m[i], raw, sizeof raw);
    }
    write_pictures(folder, "png", m, 3);
    write_pictures(folder, "png-others", m + 3, 3);
    /* A block of fixed codes: stored ones alone would not teach how pixels are packed. */
    made_png_begin(&m[0], 8, 8, 8, 0, 0);
    made_chunk(&m[0], "IDAT", "\x78\x9c\x63\x60\x40\x05\x00\x00\x48\x00\x01", 11);
    made_chunk(&m[0], "IEND", "", 0);
    write_pictures(folder, "png-packed", m, 2);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    static made m[4];
    uint8_t data[40];
    if (!folder) return 0;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 73 % 111);
    write_jpegs(folder, data);
    write_pngs(folder, data);
    made_bmp(&m[0], 40, 24, 5, 4, 0, 99);
    made_bmp(&m[1], 40, 8, 6, -3, 20, 7);
    made_bmp(&m[2], 12, 4, 5, 5, 16, 0x2d);
    made_bmp(&m[3], 40, 1, 9, 2, 2, 0x55);
    write_pictures(folder, "bmp", m, 4);
    made_bmp(&m[0], 40, 16, 5, 4, 3, 0x5a); /* the three colours are masks */
    m[0].bytes[30] = 3;
    memcpy(m[0].bytes + 54, "\0\xf8\0\0\xe0\7\0\0\x1f\0\0\0", 12);
    made_bmp(&m[1], 40, 32, 3, 3, 0, 0x5a);
    write_pictures(folder, "bmp-masks", m, 2);
    return 0;
}
