/* png.h - writes a picture as PNG without compressing it: zlib's stored blocks, which every reader
 * takes. The formats are those of RFC 1950, RFC 1951 and the PNG specification. */
#ifndef PNG_H
#define PNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* CRC-32 of a chunk's type and data. */
static inline uint32_t png_crc(const uint8_t *data, size_t bytes) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static inline void png_u32(uint8_t *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* `chunk` has its type at 4 and its data from 8 on, and room for four more bytes. */
static inline bool png_chunk(FILE *file, uint8_t *chunk, const char *type, size_t bytes) {
    png_u32(chunk, (uint32_t)bytes);
    memcpy(chunk + 4, type, 4);
    png_u32(chunk + 8 + bytes, png_crc(chunk + 4, bytes + 4));
    return fwrite(chunk, 1, bytes + 12, file) == bytes + 12;
}

/* zlib's form of the rows, each behind a byte that names no filter; returns its bytes. */
static inline size_t png_pack(const uint8_t *rgb, size_t row, size_t height, uint8_t *to) {
    const size_t total = (row + 1) * height, most = 65535;
    uint32_t a = 1, b = 0; /* Adler-32 */
    size_t at = 0;
    to[at++] = 0x78, to[at++] = 0x01;
    for (size_t i = 0; i < total; i++) {
        if (i % most == 0) { /* a block's head: whether it is the last, its size, twice */
            const size_t size = total - i < most ? total - i : most;
            to[at++] = total - i <= most;
            to[at++] = (uint8_t)size, to[at++] = (uint8_t)(size >> 8);
            to[at++] = (uint8_t)~size, to[at++] = (uint8_t)(~size >> 8);
        }
        to[at] = i % (row + 1) ? rgb[i / (row + 1) * row + i % (row + 1) - 1] : 0;
        a = (a + to[at++]) % 65521;
        b = (b + a) % 65521;
    }
    png_u32(to + at, b << 16 | a);
    return at + 4;
}

/* Three bytes per pixel, row by row from the top. False: no memory, or it cannot be written. */
static inline bool png_write(const char *path, int width, int height, const uint8_t *rgb) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    uint8_t head[8 + 13 + 4] = {0}, end[12] = {0};
    const size_t row = 3 * (size_t)width, raw = (row + 1) * (size_t)height;
    uint8_t *body = (uint8_t *)malloc(raw + 5 * (raw / 65535 + 1) + 32);
    FILE *file = body ? fopen(path, "wb") : NULL;
    bool good = file != NULL;
    if (file) {
        png_u32(head + 8, (uint32_t)width);
        png_u32(head + 12, (uint32_t)height);
        head[16] = 8, head[17] = 2; /* bits, RGB */
        good = fwrite(signature, 1, 8, file) == 8 && png_chunk(file, head, "IHDR", 13) &&
               png_chunk(file, body, "IDAT", png_pack(rgb, row, (size_t)height, body + 8)) &&
               png_chunk(file, end, "IEND", 0);
        good = fclose(file) == 0 && good;
    }
    free(body);
    return good;
}

#endif
