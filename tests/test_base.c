/* The machine underneath: text, errors, memory, files, clock, callbacks, flags of the build. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER
#include "harness.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/stat.h>
#include <sys/wait.h>
#define HAVE_FORK 1
#endif
#if defined(MPT__X86) && defined(__GNUC__)
#include <immintrin.h>
#endif

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* ==== What the callbacks of a test share ==== */

typedef struct heap {
    int64_t live, calls, releases;
    int64_t fail_at; /* this call and all later ones fail; 0 = none */
    bool wrong;      /* a release with another size or alignment than its allocation */
} heap;

static void *heap_allocate(void *user, size_t bytes, size_t alignment) {
    heap *h = (heap *)user;
    unsigned char *at;
    h->calls++;
    if (h->fail_at && h->calls >= h->fail_at) return NULL;
    if (alignment < 4096) alignment = 4096;
    at = (unsigned char *)mpt__libc_allocate(NULL, bytes + 4096, alignment);
    if (!at) return NULL;
    memcpy(at, &bytes, sizeof bytes);
    memset(at + 4096, 0xa5, bytes);
    h->live += (int64_t)bytes;
    return at + 4096;
}

static void heap_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    heap *h = (heap *)user;
    unsigned char *at = (unsigned char *)pointer - 4096;
    h->releases++;
    if (memcmp(at, &bytes, sizeof bytes) != 0 || alignment != 64) h->wrong = true;
    h->live -= (int64_t)bytes;
    mpt__libc_release(NULL, at, bytes, 4096);
}

typedef struct log_lines {
    int count;
    mpt_log_level level;
    char last[1024];
} log_lines;

static void log_write(void *user, mpt_log_level level, const char *message) {
    log_lines *lines = (log_lines *)user;
    lines->count++;
    lines->level = level;
    mpt__format_text(lines->last, sizeof lines->last, "%s", message);
}

static void config_with_heap(mpt_config *config, heap *h) {
    memset(config, 0, sizeof *config);
    memset(h, 0, sizeof *h);
    config->allocator.allocate = heap_allocate;
    config->allocator.release = heap_release;
    config->allocator.user = h;
}

/* ==== Text ==== */

static const char *text_of(const char *format, ...) {
    static char text[256];
    va_list arguments;
    va_start(arguments, format);
    mpt__format_text_v(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, 8);
    return value;
}

TEST(formats_text) {
    const mpt_shape shape = MPT_SHAPE(2, 3, -1), scalar = MPT_SCALAR;
    CHECK_EQ_STR(text_of("plain"), "plain");
    CHECK_EQ_STR(text_of("%s|%d|%c|%%", "word", -42, 'x'), "word|-42|x|%");
    CHECK_EQ_STR(text_of("%s", (const char *)NULL), "(null)");
    CHECK_EQ_STR(text_of("%lld %lld", INT64_MIN, INT64_MAX),
                 "-9223372036854775808 9223372036854775807");
    CHECK_EQ_STR(text_of("%llu %llx", UINT64_MAX, UINT64_MAX),
                 "18446744073709551615 ffffffffffffffff");
    CHECK_EQ_STR(text_of("%S %S", &shape, &scalar), "[2, 3, -1] []");
    CHECK_EQ_STR(text_of("%B %B %B %B", (int64_t)0, (int64_t)1, (int64_t)1023, (int64_t)1536),
                 "0 bytes 1 byte 1023 bytes 1.5 KiB");
    CHECK_EQ_STR(text_of("%B", INT64_MAX), "8 EiB");
    CHECK_EQ_STR(text_of("50%"), "50");
    CHECK_EQ_STR(text_of("%lx|%y", 1), "lx|y"); /* no specifiers of its own */
    mpt_shape broken = MPT_SCALAR;
    broken.rank = 99; /* what a caller forged is not read beyond its end */
    CHECK_EQ_STR(text_of("%S", &broken), "[0, 0, 0, 0, 0, 0, 0, 0]");
    const uint8_t half = MPT_BF16;
    CHECK_EQ_STR(text_of("%D %D %D|", half, MPT_I64, 99), "bfloat16 int64 none|");
}

TEST(formats_numbers) {
    CHECK_EQ_STR(text_of("%g %g %g %g", 0.0, -0.0, 1.0, -1.5), "0 -0 1 -1.5");
    CHECK_EQ_STR(text_of("%g %g", 0.0001, 0.00001), "0.0001 1e-05");
    CHECK_EQ_STR(text_of("%g %g", 999999.5, 100000.0), "1e+06 100000");
    CHECK_EQ_STR(text_of("%.3g %.3g", 2.5, 65504.0), "2.5 6.55e+04");
    CHECK_EQ_STR(text_of("%.1g %.1g %.1g", 0.25, 0.35, 9.5), "0.2 0.3 1e+01");
    CHECK_EQ_STR(text_of("%.17g", 0.1), "0.10000000000000001");
    CHECK_EQ_STR(text_of("%.17g", double_of(1)), "4.9406564584124654e-324");
    CHECK_EQ_STR(text_of("%.18g %.1000g", 0.1, 0.1), "0.10000000000000001 0.10000000000000001");
    CHECK_EQ_STR(text_of("%.0g %.g %.+", 0.16, 2.0), "0.2 2 +");
    CHECK_EQ_STR(text_of("%.17g", double_of(0x7fefffffffffffffull)), "1.7976931348623157e+308");
    CHECK_EQ_STR(text_of("%g %g %g", double_of(0x7ff8000000000000ull),
                         double_of(0x7ff0000000000000ull), double_of(0xfff0000000000000ull)),
                 "nan inf -inf");
}

/* Against the C library, which rounds exactly too (its own exponents have three digits on some
   versions of Windows). */
TEST(formats_numbers_like_libc) {
#if defined(_WIN32)
    SKIP("a printf with exact digits");
#else
    uint64_t state = 12345;
    int differing = 0;
    for (int i = 0; i < 20000; i++) {
        char want[64];
        const int precision = i % 17 + 1;
        double value;
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        value = double_of(i % 3 == 0 ? state : (state >> 12) | (uint64_t)(1013 + i % 20) << 52);
        if (i % 5 == 0) value = (double)(int64_t)(state >> 44) / 64.0;
        if (value != value) continue;
        snprintf(want, sizeof want, "%.*g", precision, value);
        char format[8] = "%.00g";
        format[2] = (char)('0' + precision / 10);
        format[3] = (char)('0' + precision % 10);
        if (strcmp(text_of(format, value), want) != 0 && differing++ < 3)
            CHECK_EQ_STR(text_of(format, value), want);
    }
    CHECK_EQ_INT(differing, 0);
#endif
}

TEST(truncates_text) {
    char out[8];
    memset(out, 'z', sizeof out);
    CHECK_EQ_INT(mpt__format_text(out, 5, "%s", "abcdefgh"), 8);
    CHECK_EQ_STR(out, "abcd");
    CHECK_EQ_INT(out[5], 'z');
    CHECK_EQ_INT(mpt__format_text(out, 0, "%d", 123), 3);
    CHECK_EQ_INT(mpt__format_text(NULL, 0, "%d", 123), 3);
    CHECK_EQ_INT(mpt__format_text(out, 1, "%d", 123), 3);
    CHECK_EQ_STR(out, "");
}

/* ==== Errors ==== */

TEST(first_error_sticks) {
    mpt__base base;
    mpt_config config;
    log_lines lines;
    memset(&config, 0, sizeof config);
    memset(&lines, 0, sizeof lines);
    config.log.write = log_write;
    config.log.user = &lines;
    mpt__base_init(&base, &config);
    CHECK_EQ_INT(base.status, MPT_OK);
    base.op = "linear", base.call = 812, base.step = 41;
    CHECK_EQ_INT(mpt__fail(&base, MPT_ERROR_SHAPE, "expected %d", 3), MPT_ERROR_SHAPE);
    CHECK_EQ_STR(base.message, "linear (call 812, step 41): expected 3");
    CHECK_EQ_INT(mpt__fail(&base, MPT_ERROR_DTYPE, "later"), MPT_ERROR_DTYPE);
    CHECK_EQ_INT(base.status, MPT_ERROR_SHAPE);
    CHECK_EQ_STR(base.message, "linear (call 812, step 41): expected 3");
    CHECK_EQ_INT(lines.count, 1);
    CHECK_EQ_INT(lines.level, MPT_LOG_ERROR);
    CHECK_EQ_STR(lines.last, base.message);
    base.status = MPT_OK, base.step = 0;
    mpt__fail(&base, MPT_ERROR_STATE, "x");
    CHECK_EQ_STR(base.message, "linear (call 812): x");
    base.status = MPT_OK, base.op = NULL;
    mpt__fail(&base, MPT_ERROR_STATE, "x");
    CHECK_EQ_STR(base.message, "x");
    mpt__log(&base, MPT_LOG_INFO, "%d steps", 7);
    CHECK_EQ_STR(lines.last, "7 steps");
    CHECK_EQ_INT(lines.level, MPT_LOG_INFO);
}

TEST(long_error_is_cut) {
    static char name[3000];
    mpt__base base;
    memset(name, 'n', sizeof name - 1);
    mpt__base_init(&base, NULL);
    base.op = name;
    mpt__fail(&base, MPT_ERROR_STATE, "%s", name);
    CHECK_EQ_INT(strlen(base.message), sizeof base.message - 1);
    base.status = MPT_OK, base.op = "op";
    mpt__fail(&base, MPT_ERROR_STATE, "%s", name);
    CHECK_EQ_INT(strlen(base.message), sizeof base.message - 1);
}

TEST(error_is_one_line) {
    mpt__base base;
    mpt__base_init(&base, NULL);
    mpt__fail(&base, MPT_ERROR_IO, "cannot open %s", "a\nb\r\nc");
    CHECK_EQ_STR(base.message, "cannot open a?b??c");
}

TEST(create_error_is_kept) {
    mpt__set_create_error("no such device");
    CHECK_EQ_STR(mpt__create_error(), "no such device");
}

/* ==== Memory ==== */

TEST(memory_is_accounted_by_kind) {
    heap h;
    mpt_config config;
    mpt__base base;
    unsigned char *a, *b;
    config_with_heap(&config, &h);
    mpt__base_init(&base, &config);
    CHECK(mpt__allocate(&base, 0, MPT_MEMORY_HOST) == NULL);
    CHECK_EQ_INT(base.status, MPT_OK);
    a = (unsigned char *)mpt__allocate(&base, 1000, MPT_MEMORY_PARAMETER);
    b = (unsigned char *)mpt__allocate(&base, 500, MPT_MEMORY_GRADIENT);
    REQUIRE(a && b);
    CHECK_EQ_INT((uintptr_t)a % 64, 0);
    CHECK_EQ_INT(a[0] | a[999], 0);
    CHECK_EQ_INT(base.memory.current[MPT_MEMORY_PARAMETER], 1000);
    CHECK_EQ_INT(base.memory.total_current, 1500);
    CHECK_EQ_INT(base.memory.held, h.live);
    mpt__release(&base, a, 1000, MPT_MEMORY_PARAMETER);
    a = (unsigned char *)mpt__allocate(&base, 200, MPT_MEMORY_PARAMETER);
    CHECK_EQ_INT(base.memory.peak[MPT_MEMORY_PARAMETER], 1000);
    CHECK_EQ_INT(base.memory.current[MPT_MEMORY_PARAMETER], 200);
    CHECK_EQ_INT(base.memory.total_peak, 1500);
    mpt__release(&base, a, 200, MPT_MEMORY_PARAMETER);
    mpt__release(&base, b, 500, MPT_MEMORY_GRADIENT);
    mpt__release(&base, NULL, 99, MPT_MEMORY_GRADIENT);
    a = (unsigned char *)mpt__allocate_raw(&base, 4096);
    mpt__account(&base, MPT_MEMORY_ACTIVATION, 300);
    CHECK_EQ_INT(base.memory.held, 4096);
    CHECK_EQ_INT(base.memory.total_current, 300);
    mpt__account(&base, MPT_MEMORY_ACTIVATION, -300);
    mpt__release_raw(&base, a, 4096);
    CHECK_EQ_INT(base.memory.total_current, 0);
    CHECK_EQ_INT(base.memory.held, 0);
    CHECK_EQ_INT(h.live, 0);
    CHECK_EQ_INT(base.memory.allocations, h.calls);
    CHECK_EQ_INT(base.memory.releases, h.releases);
    CHECK(!h.wrong);
}

TEST(memory_limit_names_what_is_in_use) {
    mpt_config config;
    mpt__base base;
    void *a, *b, *c, *d;
    memset(&config, 0, sizeof config);
    config.memory_limit = 10000;
    mpt__base_init(&base, &config);
    a = mpt__allocate(&base, 4096, MPT_MEMORY_ACTIVATION);
    b = mpt__allocate(&base, 1024, MPT_MEMORY_MOMENT);
    c = mpt__allocate(&base, 2048, MPT_MEMORY_PARAMETER);
    d = mpt__allocate(&base, 10, MPT_MEMORY_HOST);
    base.op = "relu", base.call = 3, base.step = 2;
    CHECK(mpt__allocate_raw(&base, 5000) == NULL);
    CHECK_EQ_INT(base.status, MPT_OK);
    CHECK(mpt__allocate(&base, 5000, MPT_MEMORY_ACTIVATION) == NULL);
    CHECK_EQ_INT(base.status, MPT_ERROR_MEMORY);
    CHECK_EQ_STR(base.message,
                 "relu (call 3, step 2): out of memory: asked for 4.88 KiB for activation beyond "
                 "the memory_limit of 9.77 KiB; 7.01 KiB held, 7.01 KiB in use: activation 4 KiB, "
                 "parameter 2 KiB, moment 1 KiB; try a smaller batch, mpt_memory_trim or a higher "
                 "memory_limit");
    mpt__release(&base, a, 4096, MPT_MEMORY_ACTIVATION);
    mpt__release(&base, b, 1024, MPT_MEMORY_MOMENT);
    mpt__release(&base, c, 2048, MPT_MEMORY_PARAMETER);
    mpt__release(&base, d, 10, MPT_MEMORY_HOST);
    CHECK_EQ_INT(base.memory.held, 0);
    base.status = MPT_OK;
    CHECK(mpt__allocate(&base, SIZE_MAX, MPT_MEMORY_DATA) == NULL);
    CHECK_CONTAINS(base.message, "memory_limit");
}

TEST(allocator_that_refuses) {
    heap h;
    mpt_config config;
    mpt__base base;
    void *array = NULL;
    int64_t capacity = 0;
    config_with_heap(&config, &h);
    mpt__base_init(&base, &config);
    REQUIRE(mpt__grow(&base, &array, &capacity, 3, sizeof(int), MPT_MEMORY_HOST));
    CHECK(capacity >= 3);
    ((int *)array)[2] = 77;
    h.fail_at = h.calls + 1;
    CHECK(!mpt__grow(&base, &array, &capacity, 100, sizeof(int), MPT_MEMORY_HOST));
    CHECK_EQ_INT(base.status, MPT_ERROR_MEMORY);
    CHECK_CONTAINS(base.message, "the allocator refused");
    CHECK_CONTAINS(base.message, "for host");
    CHECK_EQ_INT(((int *)array)[2], 77);
    base.status = MPT_OK, h.fail_at = 0;
    REQUIRE(mpt__grow(&base, &array, &capacity, 100, sizeof(int), MPT_MEMORY_HOST));
    CHECK(capacity >= 100);
    CHECK_EQ_INT(((int *)array)[2], 77);
    CHECK_EQ_INT(((int *)array)[99], 0);
    CHECK(!mpt__grow(&base, &array, &capacity, INT64_MAX, sizeof(int), MPT_MEMORY_HOST));
    mpt__release(&base, array, (size_t)capacity * sizeof(int), MPT_MEMORY_HOST);
    CHECK_EQ_INT(h.live, 0);
    CHECK(!h.wrong);
}

/* What a program may ask for by mistake is refused before any arithmetic can wrap around. */
TEST(sizes_beyond_all_memory) {
    mpt__base base;
    mpt_config config;
    void *array = NULL;
    int64_t capacity = 0;
    CHECK(mpt__libc_allocate(NULL, SIZE_MAX, 64) == NULL);
    CHECK(mpt__libc_allocate(NULL, PTRDIFF_MAX - 64, 64) == NULL);
    mpt__base_init(&base, NULL);
    CHECK(mpt__allocate_raw(&base, 0) == NULL);
    mpt__release_raw(&base, NULL, 5);
    CHECK_EQ_INT(base.memory.held, 0);
    CHECK_EQ_INT(base.memory.releases, 0);
    CHECK(mpt__allocate(&base, SIZE_MAX, MPT_MEMORY_DATA) == NULL);
    CHECK_EQ_INT(base.status, MPT_ERROR_MEMORY);
    CHECK_CONTAINS(base.message, SIZE_MAX > UINT32_MAX ? "the allocator refused 8 EiB for data"
                                                       : "the allocator refused 2 GiB for data");
    base.status = MPT_OK;
    /* Doubling would overflow: all that an array can have is asked for, and refused. */
    CHECK(!mpt__grow(&base, &array, &capacity, PTRDIFF_MAX - 3, 1, MPT_MEMORY_HOST));
    CHECK_EQ_INT(base.status, MPT_ERROR_MEMORY);
    CHECK_CONTAINS(base.message, "for host");
    CHECK(array == NULL && capacity == 0);
    memset(&config, 0, sizeof config);
    config.memory_limit = 1000;
    mpt__base_init(&base, &config);
    CHECK(mpt__allocate(&base, SIZE_MAX, MPT_MEMORY_DATA) == NULL);
    CHECK_CONTAINS(base.message, SIZE_MAX > UINT32_MAX ? "asked for 8 EiB for data beyond the"
                                                       : "asked for 2 GiB for data beyond the");
    CHECK_CONTAINS(base.message, "memory_limit of 1000 bytes");
    CHECK_EQ_STR(mpt_memory_kind_name(MPT_MEMORY_DATA), "data");
    CHECK_EQ_STR(mpt_memory_kind_name((mpt_memory_kind)MPT_MEMORY_KINDS), "unknown");
}

TEST(half_a_callback_group_is_an_error) {
    heap h;
    mpt_config config;
    mpt__base base;
    config_with_heap(&config, &h);
    config.allocator.release = NULL;
    mpt__base_init(&base, &config);
    CHECK_EQ_INT(base.status, MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(base.message, "config.allocator");
    memset(&config, 0, sizeof config);
    mpt__base_init(&base, NULL);
    config.thread.create = base.thread.create;
    mpt__base_init(&base, &config);
    CHECK_CONTAINS(base.message, "config.thread has 1 of its 10 functions");
}

/* ==== Files ==== */

static bool write_file(mpt__base *base, const char *path, const char *content) {
    void *file = base->io.open(base->io.user, path, 'w');
    size_t moved;
    if (!file) return false;
    moved = base->io.write(base->io.user, file, content, strlen(content));
    return base->io.close(base->io.user, file) && moved == strlen(content);
}

static const char *read_file(mpt__base *base, const char *path) {
    static char content[64];
    void *file = base->io.open(base->io.user, path, 'r');
    size_t moved;
    if (!file) return NULL;
    moved = base->io.read(base->io.user, file, content, sizeof content - 1);
    content[moved] = 0;
    base->io.close(base->io.user, file);
    return content;
}

#if defined(MPT__NO_FILES)
#define NEEDS_FILES SKIP("files (MPTRAIN_NO_FILES)")
#else
#define NEEDS_FILES (void)0
#endif

TEST(files_read_and_write) {
    mpt__base base;
    const char *path = test_tmp_path("gr\xc3\xbc\xc3\x9f"
                                     "e.bin"); /* not ASCII */
    char buffer[8];
    void *file;
    NEEDS_FILES;
    mpt__base_init(&base, NULL);
    REQUIRE(write_file(&base, path, "hello files"));
    CHECK_EQ_STR(read_file(&base, path), "hello files");
    file = base.io.open(NULL, path, 'r');
    REQUIRE(file != NULL);
    CHECK_EQ_INT(base.io.size(NULL, file), 11);
    CHECK(base.io.seek(NULL, file, 6));
    CHECK_EQ_INT(base.io.size(NULL, file), 11);
    CHECK_EQ_INT(base.io.read(NULL, file, buffer, 8), 5);
    CHECK_EQ_BITS(buffer, "files", 5);
    CHECK_EQ_INT(base.io.write(NULL, file, "x", 1), 0);
    CHECK(!base.io.seek(NULL, file, -5));
    CHECK(base.io.close(NULL, file));
    CHECK(write_file(&base, path, "short"));
    CHECK_EQ_STR(read_file(&base, path), "short");
    CHECK(base.io.remove(NULL, path));
    CHECK(!base.io.remove(NULL, path));
}

TEST(files_beyond_4_gib) {
    mpt__base base;
    const char *path = test_tmp_path("large.bin");
    const int64_t far_out = ((int64_t)5 << 30) + 3;
    char c = 0;
    void *file;
    bool sparse;
    NEEDS_FILES;
    mpt__base_init(&base, NULL);
    file = base.io.open(NULL, path, 'w');
    REQUIRE(file != NULL);
    sparse = base.io.seek(NULL, file, far_out) && base.io.write(NULL, file, "!", 1) == 1;
    CHECK(base.io.close(NULL, file));
    if (!sparse) {
        base.io.remove(NULL, path);
        SKIP("a file system with sparse files");
    }
    file = base.io.open(NULL, path, 'r');
    REQUIRE(file != NULL);
    CHECK_EQ_INT(base.io.size(NULL, file), far_out + 1);
    CHECK(base.io.seek(NULL, file, far_out));
    CHECK_EQ_INT(base.io.read(NULL, file, &c, 1), 1);
    CHECK_EQ_INT(c, '!');
    CHECK(base.io.close(NULL, file));
    CHECK(base.io.remove(NULL, path));
}

TEST(failed_files_have_reasons) {
    mpt__base base;
    mpt_config config;
    mpt__base_init(&base, NULL);
#if defined(MPT__NO_FILES)
    CHECK(!base.io.open);
    CHECK_CONTAINS(mpt__io_reason(&base), "this build has no files");
#else
    CHECK(base.io.open(NULL, test_tmp_path("missing"), 'r') == NULL);
    CHECK_CONTAINS(mpt__io_reason(&base), "no such file");
    CHECK(base.io.open(NULL, ".", 'r') == NULL);
    CHECK_CONTAINS(mpt__io_reason(&base), "a directory");
    CHECK(!base.io.commit(NULL, test_tmp_path("missing"), test_tmp_path("target")));
    CHECK_CONTAINS(mpt__io_reason(&base), "no such file");
#endif
    /* A user's group is not mixed with the built-in one. */
    memset(&config, 0, sizeof config);
    config.io.read = base.io.read;
    mpt__base_init(&base, &config);
    CHECK(base.io.read && !base.io.open && !base.io.size && !base.io.commit && !base.io.close);
#if !defined(MPT__NO_FILES)
    mpt__io(&base);
    CHECK_CONTAINS(mpt__io_reason(&base), "callback");
    errno = EIO; /* the words for errno are those of systems whose own calls set it */
#if defined(_WIN32)
    CHECK_CONTAINS(mpt__io_reason(&base), "callback");
#else
    CHECK_EQ_STR(mpt__io_reason(&base), "input or output error");
#endif
#endif
}

/* Whichever function of config.io is set, the others are not filled with built-in ones. */
TEST(one_callback_of_io_is_taken_as_it_is) {
#if defined(MPT__NO_FILES)
    SKIP("files (MPTRAIN_NO_FILES)");
#else
    mpt__base built_in, base;
    mpt_config config;
    mpt__base_init(&built_in, NULL);
    for (int k = 0; k < 10; k++) {
        const mpt_io all = built_in.io;
        memset(&config, 0, sizeof config);
        mpt_io *io = &config.io;
        if (k == 0) io->open = all.open;
        if (k == 1) io->read = all.read;
        if (k == 2) io->write = all.write;
        if (k == 3) io->seek = all.seek;
        if (k == 4) io->size = all.size;
        if (k == 5) io->flush = all.flush;
        if (k == 6) io->close = all.close;
        if (k == 7) io->commit = all.commit;
        if (k == 8) io->remove = all.remove;
        if (k == 9) io->list = all.list;
        mpt__base_init(&base, &config);
        const mpt_io *got = &base.io;
        CHECK_EQ_INT(base.status, MPT_OK);
        CHECK_EQ_INT(!!got->open + !!got->read + !!got->write + !!got->seek + !!got->size +
                         !!got->flush + !!got->close + !!got->commit + !!got->remove + !!got->list,
                     1);
    }
#endif
}

#if defined(HAVE_FORK) && !defined(MPT__NO_FILES)
static void count_entry(void *to, const char *name, bool folder) {
    (void)name, (void)folder;
    ++*(int *)to;
}

/* A file that was closed, or never opened: each call fails, and none moves a byte. */
TEST(calls_on_no_file_fail) {
    mpt__base base;
    void *nothing = (void *)(intptr_t)30000;
    char c = 'x';
    mpt__base_init(&base, NULL);
    CHECK_EQ_INT(base.io.read(NULL, nothing, &c, 1), 0);
    CHECK_EQ_INT(base.io.write(NULL, nothing, &c, 1), 0);
    CHECK(!base.io.seek(NULL, nothing, 0));
    CHECK_EQ_INT(base.io.size(NULL, nothing), -1);
    CHECK(!base.io.flush(NULL, nothing));
    CHECK(!base.io.close(NULL, nothing));
    CHECK_EQ_STR(mpt__io_reason(&base), "no open file");
    CHECK_EQ_INT(c, 'x');
}

/* A pipe cannot be made durable, nor has it a size: a commit leaves both files as they are. It
   opens, and ends, at once where nobody writes to it. */
TEST(commit_needs_a_durable_file) {
    mpt__base base;
    char pipe_path[512];
    const char *path = test_tmp_path("kept.bin");
    struct stat found;
    mpt__base_init(&base, NULL);
    mpt__format_text(pipe_path, sizeof pipe_path, "%s", test_tmp_path("pipe"));
    base.io.remove(NULL, pipe_path);
    if (mkfifo(pipe_path, 0600) != 0) SKIP("named pipes");
    alarm(60); /* what would wait for ever */
    void *unwritten = base.io.open(NULL, pipe_path, 'r');
    alarm(0);
    CHECK(unwritten && base.io.size(NULL, unwritten) == -1 && base.io.close(NULL, unwritten));
    REQUIRE(write_file(&base, path, "kept"));
    const int descriptor = mpt__open_descriptor(pipe_path, O_RDWR, 0);
    if (descriptor < 0 || fsync(descriptor) == 0) SKIP("a pipe that refuses to be made durable");
    CHECK_EQ_INT(base.io.size(NULL, (void *)((intptr_t)descriptor + 1)), -1);
    close(descriptor);
    CHECK(!base.io.commit(NULL, pipe_path, path));
    CHECK_EQ_STR(read_file(&base, path), "kept");
    CHECK(stat(pipe_path, &found) == 0 && S_ISFIFO(found.st_mode));
    CHECK(base.io.remove(NULL, pipe_path) && base.io.remove(NULL, path));
}

TEST(directories_of_all_kinds) {
    static char path[6000];
    mpt__base base;
    int entries = 0;
    mpt__base_init(&base, NULL);
    CHECK(mpt__sync_directory("a name without a directory"));
    CHECK(!mpt__sync_directory(test_tmp_path("no_such_directory/file")));
    CHECK_EQ_STR(mpt__io_reason(&base), "no such file or directory");
#if defined(__linux__)
    CHECK(mpt__sync_directory("/proc/version")); /* a file system without fsync */
#endif
    CHECK(!base.io.list(NULL, test_tmp_path("no_such_directory"), count_entry, &entries));
    CHECK_EQ_STR(mpt__io_reason(&base), "no such file or directory");
    memset(path, 'x', sizeof path - 2);
    path[4100] = '/';
    CHECK(!mpt__sync_directory(path));
    CHECK_CONTAINS(mpt__io_reason(&base), "too long");
    /* A path that just fits: those of what is in the folder do not. */
    for (int i = 0; i < 4094; i++) path[i] = i % 2 ? '/' : '.';
    path[4094] = 0;
    CHECK_EQ_INT(entries, 0);
    CHECK(!base.io.list(NULL, path, count_entry, &entries));
    CHECK_CONTAINS(mpt__io_reason(&base), "too long");
    CHECK_EQ_INT(entries, 0);
}
#endif

TEST(commit_replaces_or_leaves) {
    mpt__base base;
    char temporary[512], other[512];
    const char *path = test_tmp_path("weights.bin");
    const char *in_nowhere = test_tmp_path("no_such_directory/weights.bin");
    void *file;
    NEEDS_FILES;
    mpt__base_init(&base, NULL);
    REQUIRE(write_file(&base, path, "old"));
    REQUIRE(mpt__temporary_path(&base, path, "", temporary, sizeof temporary));
    REQUIRE(mpt__temporary_path(&base, path, "", other, sizeof other));
    CHECK(strcmp(temporary, other) != 0);
    CHECK(!mpt__temporary_path(&base, path, "", other, strlen(temporary)));
    file = base.io.open(NULL, temporary, 'w');
    REQUIRE(file != NULL);
    CHECK_EQ_INT(base.io.write(NULL, file, "new", 3), 3);
    CHECK(base.io.flush(NULL, file));
    CHECK(base.io.close(NULL, file));
    CHECK_EQ_STR(read_file(&base, path), "old");
    CHECK(!base.io.commit(NULL, temporary, in_nowhere));
    CHECK_EQ_STR(read_file(&base, temporary), "new");
    CHECK(base.io.commit(NULL, temporary, path));
    CHECK_EQ_STR(read_file(&base, path), "new");
    CHECK(read_file(&base, temporary) == NULL);
    CHECK(base.io.remove(NULL, path));
}

TEST(temporary_path_without_directory) {
    mpt__base base;
    char path[64];
    mpt__base_init(&base, NULL);
    REQUIRE(mpt__temporary_path(&base, "net.safetensors", "", path, sizeof path));
    CHECK_EQ_BITS(path, ".mptrain-", 9);
    REQUIRE(mpt__temporary_path(&base, "C:\\runs\\net.bin", "", path, sizeof path));
#ifdef _WIN32
    CHECK_EQ_BITS(path, "C:\\runs\\.mptrain-", 17);
#else
    CHECK_EQ_BITS(path, ".mptrain-", 9); /* all of it is a file's name */
#endif
    CHECK(!mpt__temporary_path(&base, "/a/folder/net.bin", "", path, 10));
}

/* ==== Clock, process, floating-point state ==== */

TEST(clock_and_process) {
    mpt__base base;
    double a, b;
    mpt__base_init(&base, NULL);
    a = base.clock.now(base.clock.user);
    do b = base.clock.now(base.clock.user);
    while (b == a);
    CHECK(b > a && b - a < 1.0);
    CHECK(mpt__core_count() >= 1);
    CHECK_EQ_INT(base.process, mpt__process_id());
#if defined(HAVE_FORK) && !defined(__SANITIZE_THREAD__)
    {
        int status = 1;
        const pid_t child = fork();
        if (child == 0) _exit(mpt__process_id() != base.process ? 0 : 1);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
#endif
}

TEST(environment_variables) {
    CHECK(mpt__environment("MPTRAIN_THIS_IS_NOT_SET") == NULL);
    CHECK(mpt__environment("PATH") != NULL);
}

TEST(float_state_round_trip) {
    const uint32_t before = mpt__float_state();
    const uint32_t on = mpt__float_state_flush(before, true);
    volatile float tiny = 1e-38f, small = 0.25f;
    float product;
    CHECK_EQ_INT(mpt__float_state_flush(on, false), mpt__float_state_flush(before, false));
    mpt__set_float_state(mpt__float_state_flush(before, false));
    product = tiny * small;
    CHECK(product > 0.0f);
    mpt__set_float_state(on);
    if (mpt__float_state() != on) SKIP("flush-to-zero (valgrind has none)");
    product = tiny * small;
#if defined(MPT__X86) || defined(MPT__ARM64)
    CHECK(product == 0.0f);
#endif
    mpt__set_float_state(before);
    CHECK_EQ_INT(mpt__float_state(), before);
}

/* ==== Flags of the build ==== */

static float flag_x[512], flag_y[512], flag_z[512];

static float flag_multiply_add(float a, float b, float c) { return a * b + c; }

static void flag_scalar(void) {
    for (int i = 0; i < 512; i++)
        flag_z[i] = flag_multiply_add(flag_x[i], flag_y[i], flag_x[511 - i]) / flag_y[i];
}

static float flag_sum(void) {
    float sum = 0.0f;
    for (int i = 0; i < 512; i++) sum += flag_z[i] * flag_x[i];
    return sum;
}

/* Over the values, not the bytes: their order is the machine's. */
static uint64_t flag_hash(uint64_t hash, const float *values, int count) {
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        hash = (hash ^ bits) * 0x100000001b3ull;
    }
    return hash;
}

#if defined(MPT__X86) && defined(__GNUC__)
MPT__TARGET("avx2,fma") static void flag_vector(float out[16]) {
    __m256 sum = _mm256_setzero_ps();
    float scalar = 0.0f;
    for (int i = 0; i < 512; i += 8) {
        const __m256 x = _mm256_loadu_ps(flag_x + i), y = _mm256_loadu_ps(flag_y + i);
        sum = _mm256_add_ps(sum, _mm256_mul_ps(x, y));
        sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(flag_z + i), sum);
    }
    for (int i = 0; i < 512; i++) scalar = scalar + flag_x[i] * flag_z[i];
    memset(out, 0, 16 * sizeof *out);
    _mm256_storeu_ps(out, sum);
    out[8] = scalar;
}
#endif

/* One hash for every compiler and every set of flags. Loop-wise sums, products next to sums, NaN
   and signed zero are what -ffast-math and contraction would change. */
TEST(flags_do_not_change_bits) {
    uint64_t hash = 0xcbf29ce484222325ull;
    uint32_t state = 1;
    float value;
    volatile float nan_maker = 0.0f;
    for (int i = 0; i < 512; i++) {
        state = state * 1664525u + 1013904223u;
        flag_x[i] = (float)(state >> 8) * (1.0f / 16777216.0f) - 0.5f;
        state = state * 1664525u + 1013904223u;
        flag_y[i] = (float)(state >> 8) * (1.0f / 16777216.0f) + 0.5f;
    }
    flag_scalar();
    hash = flag_hash(hash, flag_z, 512);
    value = flag_sum();
    hash = flag_hash(hash, &value, 1);
    CHECK_EQ_STR(text_of("%llx", hash), "d36f76ed473e4428");
    value = nan_maker / nan_maker;
    CHECK(value != value);
    CHECK(!(value > 1.0f) && !(value < 1.0f));
    value = -nan_maker * 1.0f + 0.0f;
    CHECK_EQ_STR(text_of("%g", (double)value), "0");
#if defined(MPT__X86) && defined(__GNUC__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        float out[16];
        flag_vector(out);
        hash = flag_hash(hash, out, 16);
        CHECK_EQ_STR(text_of("%llx", hash), "8405ddc54eb90d97");
    }
#endif
}

TEST_TABLE = {T(formats_text),
              T(formats_numbers),
              T(formats_numbers_like_libc),
              T(truncates_text),
              T(first_error_sticks),
              T(long_error_is_cut),
              T(error_is_one_line),
              T(create_error_is_kept),
              T(memory_is_accounted_by_kind),
              T(memory_limit_names_what_is_in_use),
              T(allocator_that_refuses),
              T(sizes_beyond_all_memory),
              T(half_a_callback_group_is_an_error),
              T(files_read_and_write),
              T(files_beyond_4_gib),
              T(failed_files_have_reasons),
              T(one_callback_of_io_is_taken_as_it_is),
#if defined(HAVE_FORK) && !defined(MPT__NO_FILES)
              T(calls_on_no_file_fail),
              T(commit_needs_a_durable_file),
              T(directories_of_all_kinds),
#endif
              T(commit_replaces_or_leaves),
              T(temporary_path_without_directory),
              T(clock_and_process),
              T(environment_variables),
              T(float_state_round_trip),
              T(flags_do_not_change_bits)};
TEST_MAIN
