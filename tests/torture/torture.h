/* torture.h: what the torture programs share: their arguments, a seeded source of numbers, cases
   that run in processes of their own, so that a crash is counted and the next case begins, and a
   folder that is theirs. POSIX only. A program ends with one line of figures and its seed, which
   --seed takes again, and with status 1 when anything was wrong. */
#ifndef TORTURE_H
#define TORTURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__GNUC__)
#define TORTURE_UNUSED __attribute__((unused))
#else
#define TORTURE_UNUSED
#endif

/* ==== Arguments ==== */

typedef struct torture_options {
    long cases;
    uint64_t seed;
    const char *folder; /* an existing one; ours lies in it */
} torture_options;

static torture_options options;

/* program [--cases N] [--seed N] [--folder PATH] */
static void torture_arguments(int argc, char **argv, long cases) {
    options.cases = cases, options.seed = 1, options.folder = ".";
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "--cases") == 0)
            options.cases = strtol(value, NULL, 10);
        else if (value && strcmp(argv[i], "--seed") == 0)
            options.seed = strtoull(value, NULL, 10);
        else if (value && strcmp(argv[i], "--folder") == 0)
            options.folder = value;
        else {
            fprintf(stderr, "%s: expected --cases N, --seed N or --folder PATH, got %s\n", argv[0],
                    argv[i]);
            exit(2);
        }
    }
}

/* ==== Numbers: splitmix64 ==== */

static uint64_t mixed(uint64_t x) {
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Case `n` of a seed draws the same numbers whatever came before it. */
static TORTURE_UNUSED uint64_t case_seed(long n) {
    return mixed(options.seed ^ mixed((uint64_t)n));
}

static TORTURE_UNUSED uint64_t draw(uint64_t *state) { return mixed((*state)++); }

/* 0 up to n - 1. */
static TORTURE_UNUSED long draw_below(uint64_t *state, long n) {
    return (long)(draw(state) % (uint64_t)n);
}

/* ==== What all processes of a program count ==== */

enum { TORTURE_FIGURES = 12 };
typedef struct torture_counts {
    long next, crashes, failures, errors; /* errors: those that the library was asked for */
    long figures[TORTURE_FIGURES];        /* what a program likes */
    uint64_t hashes[TORTURE_FIGURES];
    volatile int phase, place; /* of a child, for its parent to see */
} torture_counts;

static torture_counts *counts;

static void torture_begin(void) {
    counts = (torture_counts *)mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (counts == MAP_FAILED) {
        perror("mmap");
        exit(2);
    }
    memset((void *)counts, 0, sizeof *counts);
}

/* Notes something wrong; the first few are told. */
static TORTURE_UNUSED void torture_failed(int line, const char *format, ...) {
    va_list rest;
    if (++counts->failures > 20) return;
    printf("line %d: ", line);
    va_start(rest, format);
    vprintf(format, rest);
    va_end(rest);
    printf("\n");
    fflush(stdout);
}

#define EXPECT_THAT(condition, ...) \
    ((void)((condition) || (torture_failed(__LINE__, __VA_ARGS__), 0)))

/* ==== Processes ==== */

/* Runs `work` in a child, `seconds` at most; its wait status. */
static TORTURE_UNUSED int torture_child(void (*work)(long n), long n, unsigned seconds) {
    int status = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(2);
    }
    if (child == 0) {
        alarm(seconds);
        work(n);
        fflush(stdout);
        exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    return status;
}

static long torture_last;
static void (*torture_work)(long n);

static void torture_stretch(long n) {
    for (; n < torture_last; n++) {
        counts->next = n;
        alarm(120);
        torture_work(n);
    }
    counts->next = n;
}

/* Cases 0 up to count - 1, as many as `together` in one process; one that ends badly is counted. */
static TORTURE_UNUSED void torture_cases(long count, long together, void (*work)(long n)) {
    torture_work = work;
    for (long first = 0; first < count;) {
        torture_last = first + together < count ? first + together : count;
        counts->next = first;
        const int status = torture_child(torture_stretch, first, 120);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            first = torture_last;
            continue;
        }
        counts->crashes++;
        printf("case %ld ended with %s %d\n", counts->next,
               WIFSIGNALED(status) ? "signal" : "status",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        first = counts->next + 1;
        if (counts->crashes > 20) break;
    }
}

/* The last line of a program: what it did, and the status to end with. */
static int torture_end(const char *name, long cases, const char *format, ...) {
    va_list rest;
    printf("%s: %ld cases, %ld crashes, %ld failures, ", name, cases, counts->crashes,
           counts->failures);
    va_start(rest, format);
    vprintf(format, rest);
    va_end(rest);
    printf(", seed %llu\n", (unsigned long long)options.seed);
    return counts->crashes + counts->failures > 0 || cases == 0;
}

/* ==== A folder ==== */

static char torture_folder[512];

static TORTURE_UNUSED const char *in_folder(const char *name) {
    static char paths[8][700];
    static int next;
    char *path = paths[next++ & 7];
    snprintf(path, sizeof paths[0], "%s/%s", torture_folder, name);
    return path;
}

/* How many files there are whose names hold `part`. */
static TORTURE_UNUSED int files_named(const char *part) {
    int n = 0;
    DIR *const directory = opendir(torture_folder);
    for (const struct dirent *item; directory && (item = readdir(directory)) != NULL;)
        if (strcmp(item->d_name, ".") != 0 && strcmp(item->d_name, "..") != 0)
            n += strstr(item->d_name, part) != NULL;
    if (directory) closedir(directory);
    return n;
}

static TORTURE_UNUSED void empty_folder(const char *folder) {
    char path[1024];
    DIR *const directory = opendir(folder);
    for (const struct dirent *item; directory && (item = readdir(directory)) != NULL;) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        snprintf(path, sizeof path, "%s/%s", folder, item->d_name);
        if (unlink(path) == 0) continue;
        empty_folder(path);
        rmdir(path);
    }
    if (directory) closedir(directory);
}

static TORTURE_UNUSED void folder_begin(const char *name) {
    snprintf(torture_folder, sizeof torture_folder, "%s/torture-%s-%ld", options.folder, name,
             (long)getpid());
    if (mkdir(torture_folder, 0755) != 0 && errno != EEXIST) {
        perror(torture_folder);
        exit(2);
    }
    empty_folder(torture_folder);
}

static TORTURE_UNUSED void folder_end(void) {
    empty_folder(torture_folder);
    rmdir(torture_folder);
}

static TORTURE_UNUSED size_t read_whole(const char *path, void *bytes, size_t most) {
    FILE *file = fopen(path, "rb");
    const size_t n = file ? fread(bytes, 1, most, file) : 0;
    if (file) fclose(file);
    return n;
}

static TORTURE_UNUSED void write_whole(const char *path, const void *bytes, size_t n) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
}

#endif
