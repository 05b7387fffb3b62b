/* made_pictures.h: small JPEG, PNG and BMP files made in code, good ones and any other. */
#ifndef TEST_MADE_PICTURES_H
#define TEST_MADE_PICTURES_H

#include <stdint.h>
#include <string.h>

enum { MADE_SIZE = 4096 };

typedef struct made {
    uint8_t bytes[MADE_SIZE];
    size_t n;
} made;

static void made_put(made *m, const void *bytes, size_t n) {
    if (n > MADE_SIZE - m->n) n = MADE_SIZE - m->n;
    if (n > 0) memcpy(m->bytes + m->n, bytes, n);
    m->n += n;
}

/* `count` bytes of a number, the highest first where count is positive, else the lowest first. */
static void made_number(made *m, uint32_t value, int count) {
    const int bytes = count < 0 ? -count : count;
    for (int i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)(value >> 8 * (count < 0 ? i : bytes - 1 - i));
        made_put(m, &byte, 1);
    }
}

/* ==== JPEG ==== */

static void made_segment(made *m, int marker, const void *body, size_t n) {
    made_number(m, 0xff00u | (uint32_t)marker, 2);
    made_number(m, (uint32_t)n + 2, 2);
    made_put(m, body, n);
}

static void made_quantisation(made *m, int number) {
    uint8_t body[65];
    memset(body, 2, sizeof body);
    body[0] = (uint8_t)number;
    made_segment(m, 0xdb, body, sizeof body);
}

/* Table `number` of class 0 (DC) or 1 (AC). Four symbols 00, 01, 10, 110; zero bits are a grey
   block in four bits. */
static void made_huffman(made *m, int class_, int number) {
    uint8_t body[21] = {0, 0, 3, 1};
    static const uint8_t dc[4] = {0, 1, 2, 3}, ac[4] = {0x00, 0x01, 0x12, 0xf0};
    body[0] = (uint8_t)(class_ << 4 | number);
    memcpy(body + 17, class_ ? ac : dc, 4);
    made_segment(m, 0xc4, body, sizeof body);
}

/* The first component has sampling factors `first` (0x22: both 2), the others 1; their ids are 1,
   2, ..., all use table 0. */
static void made_frame(made *m, int marker, int width, int height, int components, int first) {
    uint8_t body[18] = {8,
                        (uint8_t)(height >> 8),
                        (uint8_t)height,
                        (uint8_t)(width >> 8),
                        (uint8_t)width,
                        (uint8_t)components};
    for (int i = 0; i < components; i++) {
        body[6 + 3 * i] = (uint8_t)(i + 1);
        body[7 + 3 * i] = (uint8_t)(i ? 0x11 : first);
    }
    made_segment(m, marker, body, (size_t)(6 + 3 * components));
}

/* A scan of `count` components from `part` on; `tables` of each, DC << 4 | AC; `spectral` is first,
   last, high << 4 | low. Behind it `bytes` of coded data. */
static void made_scan(made *m, int part, int count, int tables, uint32_t spectral, const void *data,
                      size_t bytes) {
    uint8_t body[12] = {(uint8_t)count};
    size_t n = 1;
    for (int i = 0; i < count; i++) body[n++] = (uint8_t)(part + i), body[n++] = (uint8_t)tables;
    for (int i = 0; i < 3; i++) body[n++] = (uint8_t)(spectral >> (16 - 8 * i));
    made_segment(m, 0xda, body, n);
    made_put(m, data, bytes);
}

static void made_jpeg_begin(made *m) {
    m->n = 0;
    made_number(m, 0xffd8, 2);
    made_quantisation(m, 0);
}

static void made_jpeg_tables(made *m) {
    for (int i = 0; i < 2; i++) made_huffman(m, i, 0);
}

/* Baseline: `components` in one scan, or each in its own. */
static void made_baseline(made *m, int side, int components, int first, bool apart, int restart,
                          const void *data, size_t bytes) {
    made_jpeg_begin(m);
    made_frame(m, 0xc0, side, side, components, first);
    made_jpeg_tables(m);
    if (restart) made_number(m, 0xffdd0004, 4), made_number(m, (uint32_t)restart, 2);
    for (int i = 0; i < (apart ? components : 1); i++)
        made_scan(m, i + 1, apart ? 1 : components, 0, 0x003f00, data, bytes);
    made_number(m, 0xffd9, 2);
}

/* Progressive: all DC to bit 1, AC 1 to 5 of each component to bit 1, their last bit, then the rest
   and the DC's last bit. */
static void made_progressive(made *m, int side, int components, const void *data, size_t bytes) {
    static const uint32_t of_each[] = {0x010501, 0x010510, 0x063f00};
    made_jpeg_begin(m);
    made_frame(m, 0xc2, side, side, components, components > 1 ? 0x21 : 0x11);
    made_jpeg_tables(m);
    made_scan(m, 1, components, 0, 0x000001, data, bytes);
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < components; i++) made_scan(m, i + 1, 1, 0, of_each[k], data, bytes);
    made_scan(m, 1, components, 0, 0x000010, data, bytes);
    made_number(m, 0xffd9, 2);
}

/* ==== PNG ==== */

static uint32_t made_crc(const uint8_t *p, size_t n) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static void made_chunk(made *m, const char *type, const void *body, size_t n) {
    made_number(m, (uint32_t)n, 4);
    const size_t at = m->n;
    made_put(m, type, 4);
    made_put(m, body, n);
    made_number(m, made_crc(m->bytes + at, m->n - at), 4);
}

static void made_png_begin(made *m, uint32_t width, uint32_t height, int depth, int color,
                           int interlace) {
    made header;
    header.n = m->n = 0;
    made_put(m, "\x89PNG\r\n\x1a\n", 8);
    made_number(&header, width, 4), made_number(&header, height, 4);
    made_number(&header, (uint32_t)(depth << 8 | color), 2);
    made_number(&header, (uint32_t)interlace, 3);
    made_chunk(m, "IHDR", header.bytes, header.n);
}

/* `n` bytes of rows, filter bytes and all, stored. */
static void made_png_end(made *m, const void *rows, size_t n) {
    made packed;
    packed.n = 0;
    made_number(&packed, 0x780101, 3);
    made_number(&packed, (uint32_t)n, -2), made_number(&packed, ~(uint32_t)n, -2);
    made_put(&packed, rows, n);
    made_number(&packed, 0, 4);
    made_chunk(m, "IDAT", packed.bytes, packed.n);
    made_chunk(m, "IEND", "", 0);
}

/* ==== BMP ==== */

/* A header of 12 or 40 bytes, a palette of `colors` (7 i, 3 i, i), then rows of `fill`. */
static void made_bmp(made *m, int header, int bits, int width, int height, int colors, int fill) {
    const int entry = header == 12 ? 3 : 4, size = header == 12 ? -2 : -4;
    const int row = (width * bits + 31) / 32 * 4;
    m->n = 0;
    made_put(m, "BM", 2);
    made_number(m, 0, 4), made_number(m, 0, 4);
    made_number(m, (uint32_t)(14 + header + colors * entry), -4);
    made_number(m, (uint32_t)header, -4);
    made_number(m, (uint32_t)width, size), made_number(m, (uint32_t)height, size);
    made_number(m, 1, -2), made_number(m, (uint32_t)bits, -2);
    for (int i = 0; header == 40 && i < 6; i++) made_number(m, 0, 4);
    for (int i = 0; i < colors; i++)
        made_number(m, (uint32_t)(7 * i % 256 << 16 | 3 * i % 256 << 8 | i), -entry);
    const int64_t pixels = (int64_t)row * (height < 0 ? -height : height);
    for (int64_t i = 0; i < pixels && i < MADE_SIZE; i++) made_number(m, (uint32_t)fill, 1);
}

#endif
