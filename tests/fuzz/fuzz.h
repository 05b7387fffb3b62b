/* fuzz.h: what the fuzzers share: the library in the same translation unit, an allocator that
   counts, a reader of the fuzzer's bytes, and the files that a run starts from.

       clang -fsanitize=fuzzer,address,undefined -I. tests/fuzz/fuzz_api.c -lm -lpthread
       mkdir corpus && ./a.out -max_len=512 corpus

   An empty corpus folder, given as the first argument, is filled with seeds that the program makes
   itself. A finding ends the program and leaves the input beside it; the program with that file as
   its argument shows it again. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../training.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise of the library that must hold for every input. */
#define PROMISE(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
            abort(); \
        } \
    } while (0)

/* ==== Memory: exact blocks, so that the sanitizer sees a byte too far ==== */

typedef struct heap {
    int64_t live, peak, largest; /* bytes now, at most, in one call */
    int64_t calls, fail_at;      /* number of the one call refused; 0: none */
} heap;

static void *heap_allocate(void *user, size_t bytes, size_t alignment) {
    heap *h = (heap *)user;
    void *block = NULL;
    if (++h->calls == h->fail_at) return NULL;
    if (posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
        return NULL;
    memset(block, 0xa5, bytes); /* nobody may count on zeros */
    h->live += (int64_t)bytes;
    if (h->peak < h->live) h->peak = h->live;
    if (h->largest < (int64_t)bytes) h->largest = (int64_t)bytes;
    return block;
}

static void heap_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    (void)alignment;
    ((heap *)user)->live -= (int64_t)bytes;
    free(pointer);
}

/* A small, careful context: one thread, every launch checked, little memory. */
static mpt_config fuzz_config(heap *h) {
    mpt_config config = mpt_config_default();
    memset(h, 0, sizeof *h);
    config.threads = 1;
    config.debug = true;
    config.memory_limit = 16 << 20;
    config.allocator.allocate = heap_allocate;
    config.allocator.release = heap_release;
    config.allocator.user = h;
    return config;
}

/* The files of a folder of the disk; for config.io.list. */
static MAYBE_UNUSED bool list_files(void *user, const char *path, mpt_list_entry entry, void *to) {
    const disk *d = (const disk *)user;
    const size_t n = strlen(path);
    for (int i = 0; i < 8; i++)
        if (d->files[i].exists && strncmp(d->files[i].path, path, n) == 0)
            entry(to, d->files[i].path + n + 1, false);
    return true;
}

/* ==== Bytes ==== */

typedef struct fuzz_input {
    const uint8_t *data;
    size_t size, at;
} fuzz_input;

/* The next byte, 0 past the end. */
static MAYBE_UNUSED unsigned next_byte(fuzz_input *in) {
    return in->at < in->size ? in->data[in->at++] : 0;
}

/* ==== Seeds ==== */

/* Writes one file into the corpus folder; where there is no such folder, nothing happens. */
static void write_seed(const char *folder, const char *name, const void *data, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/seed-%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file) return;
    fwrite(data, 1, size, file);
    fclose(file);
}

/* The corpus folder: the first argument that is no option; NULL if there is none. */
static const char *corpus_folder(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (argv[i][0] != '-') return argv[i];
    return NULL;
}

#endif
