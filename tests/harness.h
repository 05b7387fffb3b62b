/* harness.h - the test harness: one file, C11 and C++17, nothing but libc.

       #include "harness.h"
       TEST(adds_up) { CHECK_EQ_INT(1 + 1, 2); }
       TEST(reads_mnist) { if (!have_mnist()) SKIP("data/mnist"); CHECK(...); }
       TEST_TABLE = { T(adds_up), T(reads_mnist) };
       TEST_MAIN

   A test missing from the table is an unused static function, which the compiler reports. The
   checks print and go on; REQUIRE and SKIP leave the test function. They belong on the main
   thread. Arguments, or MPTRAIN_TEST_ONLY, select tests by a part of their name. */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct test_entry {
    const char *name;
    void (*run)(void);
} test_entry;

static int test_failures;         /* failed checks of the running test */
static const char *test_lacks;    /* what the running test was skipped for, or NULL */

#define TEST(name) static void test_##name(void)
#define T(name) { #name, test_##name }
#define TEST_TABLE static const test_entry test_table[]

#define TEST_FAIL_(...) \
    (test_failures++, printf("\n  %s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__))
#define CHECK(cond) ((void)((cond) || TEST_FAIL_("CHECK(%s)", #cond)))
#define REQUIRE(cond) do { if (!(cond)) { TEST_FAIL_("REQUIRE(%s)", #cond); return; } } while (0)
#define SKIP(what) do { test_lacks = (what); return; } while (0)
/* Where values are seen some steps late, as on a GPU. */
#define NEEDS_PROMPT_DEVICE \
    if (mpt_device_count(MPT_DEVICE_CUDA) > 0) SKIP("a device that answers at once")
#define CHECK_EQ_INT(got, want) \
    test_eq_int(__FILE__, __LINE__, #got, (long long)(got), (long long)(want))
#define CHECK_EQ_STR(got, want) test_eq_str(__FILE__, __LINE__, #got, (got), (want), 0)
#define CHECK_CONTAINS(got, part) test_eq_str(__FILE__, __LINE__, #got, (got), (part), 1)
/* got and want point to `bytes` bytes each. */
#define CHECK_EQ_BITS(got, want, bytes) \
    test_eq_bits(__FILE__, __LINE__, #got, (got), (want), (size_t)(bytes))
/* |got - want| <= atol, and |got - want| <= atol + rtol |want|; a NaN never passes. */
#define CHECK_NEAR(got, want, atol) CHECK_CLOSE(got, want, 0.0, atol)
#define CHECK_CLOSE(got, want, rtol, atol) \
    test_close(__FILE__, __LINE__, #got, (double)(got), (double)(want), (rtol), (atol))

static inline void test_eq_int(const char *file, int line, const char *expr, long long got,
                               long long want) {
    if (got == want) return;
    test_failures++;
    printf("\n  %s:%d: %s is %lld, expected %lld", file, line, expr, got, want);
}

static inline void test_eq_str(const char *file, int line, const char *expr, const char *got,
                               const char *want, int part) {
    if (got && want && (part ? strstr(got, want) != NULL : strcmp(got, want) == 0)) return;
    if (!got && !want) return;
    test_failures++;
    printf("\n  %s:%d: %s is \"%s\", expected %s\"%s\"", file, line, expr, got ? got : "(null)",
           part ? "it to contain " : "", want ? want : "(null)");
}

static inline void test_eq_bits(const char *file, int line, const char *expr, const void *got,
                                const void *want, size_t bytes) {
    const unsigned char *g = (const unsigned char *)got, *w = (const unsigned char *)want;
    size_t at = 0, differing = 0, i;
    if (bytes == 0 || memcmp(got, want, bytes) == 0) return;
    for (i = bytes; i-- > 0;) {
        if (g[i] != w[i]) { at = i; differing++; }
    }
    test_failures++;
    printf("\n  %s:%d: %s differs in %lu of %lu bytes, first at byte %lu:", file, line, expr,
           (unsigned long)differing, (unsigned long)bytes, (unsigned long)at);
    at &= ~(size_t)3;
    for (i = at; i < bytes && i < at + 4; i++) printf(" %02x", g[i]);
    printf(", expected");
    for (i = at; i < bytes && i < at + 4; i++) printf(" %02x", w[i]);
}

static inline void test_close(const char *file, int line, const char *expr, double got,
                              double want, double rtol, double atol) {
    double size = want < 0 ? -want : want, off = got < want ? want - got : got - want;
    if (off <= atol + rtol * size || got == want) return;
    test_failures++;
    printf("\n  %s:%d: %s is %.9g, expected %.9g; off by %.3g, allowed %.3g", file, line, expr, got,
           want, off, atol + rtol * size);
}

/* A path for a scratch file, different for each test file. The buffer is reused by every fourth
   call. The data path is where real data sets lie: MPTRAIN_DATA, else data/. */
static inline const char *test_path_(const char *folder, const char *prefix, const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s%s", folder, prefix, name);
    return path;
}

static inline const char *test_data_path(const char *name) {
    const char *folder = getenv("MPTRAIN_DATA");
    return test_path_(folder && *folder ? folder : "data", "", name);
}

static inline const char *test_tmp_path_(const char *file, const char *name) {
    const char *folder = getenv("MPTRAIN_TEST_TMP"), *base = strrchr(file, '/');
    char prefix[64];
    snprintf(prefix, sizeof prefix, "%.50s.", base ? base + 1 : file);
    return test_path_(folder && *folder ? folder : ".", prefix, name);
}
#define test_tmp_path(name) test_tmp_path_(__FILE__, name)

static inline int test_selected(const char *name, int argc, char **argv) {
    const char *only = getenv("MPTRAIN_TEST_ONLY");
    int i;
    if (only && *only && !strstr(name, only)) return 0;
    for (i = 1; i < argc; i++) if (strstr(name, argv[i])) return 1;
    return argc < 2;
}

static inline int test_run(const test_entry *table, size_t count, int argc, char **argv) {
    int passed = 0, failed = 0, skipped = 0;
    size_t i;
    for (i = 0; i < count; i++) {
        clock_t start = clock();
        if (!test_selected(table[i].name, argc, argv)) continue;
        test_failures = 0;
        test_lacks = NULL;
        printf("%s ...", table[i].name);
        fflush(stdout);
        table[i].run();
        printf(" %.2f s", (double)(clock() - start) / (double)CLOCKS_PER_SEC);
        if (test_failures) { failed++; printf("\nFAIL %s\n", table[i].name); }
        else if (!test_lacks) { passed++; printf(" ok\n"); }
        else { skipped++; printf("\nskip %s: lacks %s\n", table[i].name, test_lacks); }
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}

#define TEST_MAIN \
    int main(int argc, char **argv) { \
        return test_run(test_table, sizeof test_table / sizeof *test_table, argc, argv); \
    }

#endif
