/* files.h: whole files of bytes, for tests that cut and damage them. */
#ifndef TEST_FILES_H
#define TEST_FILES_H

#include "harness.h"

static inline size_t file_bytes(const char *path, uint8_t *bytes, size_t most) {
    FILE *file = fopen(path, "rb");
    size_t n = file ? fread(bytes, 1, most, file) : 0;
    if (file) fclose(file);
    return n;
}

static inline void file_make(const char *path, const uint8_t *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    REQUIRE(file && fwrite(bytes, 1, n, file) == n && fclose(file) == 0);
}

#endif
