/* memory.h: for the tests of data: an allocator that says no at one call, or from there on,
 * and knows what it gave,
 * contexts, scratch files. After the header of the library and harness.h. */
#ifndef TEST_MEMORY_H
#define TEST_MEMORY_H

typedef struct counted {
    int64_t calls, fails, live, largest;
    bool onwards; /* the calls after that one fail, too */
} counted;

static inline void *counted_allocate(void *user, size_t bytes, size_t alignment) {
    counted *c = (counted *)user;
    if ((int64_t)bytes > c->largest) c->largest = (int64_t)bytes;
    c->calls++;
    if (c->fails > 0 && (c->calls == c->fails || (c->onwards && c->calls > c->fails))) return NULL;
    char *block = (char *)malloc(bytes + alignment + sizeof(void *));
    if (!block) return NULL;
    c->live += (int64_t)bytes;
    uintptr_t at = ((uintptr_t)block + sizeof(void *) + alignment - 1) / alignment * alignment;
    memcpy((char *)at - sizeof block, &block, sizeof block);
    return (void *)at;
}

static inline void counted_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    char *block;
    (void)alignment;
    ((counted *)user)->live -= (int64_t)bytes;
    memcpy(&block, (char *)pointer - sizeof block, sizeof block);
    free(block);
}

static inline void count_memory(mpt_config *config, counted *c) {
    memset(c, 0, sizeof *c);
    config->threads = 1;
    config->allocator.allocate = counted_allocate, config->allocator.release = counted_release;
    config->allocator.user = c;
}

static inline mpt_context *make_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    return mpt_create(&config);
}

/* Whether this build reads files. */
static inline bool have_files(mpt_context *context) {
    mpt_char_tokenizer(context, "no such file");
    bool built = strstr(mpt_error(context), "MPTRAIN_NO_FILES") == NULL;
    mpt_clear_error(context);
    return built;
}

#define NEEDS_FILES \
    if (!have_files(context)) { \
        mpt_destroy(context); \
        SKIP("files"); \
    }

#define EXPECT(code, text) \
    CHECK_EQ_INT(mpt_error_code(context), code); \
    CHECK_CONTAINS(mpt_error(context), text); \
    mpt_clear_error(context)

/* Writes a scratch file and returns its path. */
static inline const char *put_file_at(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (file) {
        if (n) fwrite(bytes, 1, n, file);
        fclose(file);
    }
    return path;
}
#define put_file(name, bytes, n) put_file_at(test_tmp_path(name), bytes, n)
#define put_text(name, text) put_file(name, text, strlen(text))

#endif
