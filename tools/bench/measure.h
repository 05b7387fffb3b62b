/* measure.h: what the benchmarks through the public API share: clocks, the machine, the mode of its
   matrix tiles, ceilings, and subjects that a driver starts in turn over a pipe.

   Include it first. Times of one run are compared with each other, alternating, never with another
   run: machines are shared and clocks vary. */
#ifndef MEASURE_H
#define MEASURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include MPTRAIN_HEADER_FILE

#if defined(__x86_64__) && defined(__linux__) && \
    ((defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11))
#define MEASURE_X86 1
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#define MEASURE_THREADS 1
#include <pthread.h>
#endif

/* ==== Clocks ==== */

#ifdef CLOCK_MONOTONIC
static inline double measure_clock(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
#else
#define CLOCK_PROCESS_CPUTIME_ID 0
#define CLOCK_MONOTONIC 0
#define measure_clock(id) ((double)clock() / CLOCKS_PER_SEC)
#endif

/* CPU seconds of the process, which other processes disturb little. */
static inline double measure_cpu(void) { return measure_clock(CLOCK_PROCESS_CPUTIME_ID); }
static inline double measure_wall(void) { return measure_clock(CLOCK_MONOTONIC); }

static inline int measure_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline double measure_median(const double *values, int n) {
    double sorted[64];
    memcpy(sorted, values, (size_t)n * sizeof *values);
    qsort(sorted, (size_t)n, sizeof *sorted, measure_order);
    return sorted[n / 2];
}

/* ==== Subjects ==== */

typedef struct subject {
    void (*run)(void *self);
    void (*end)(void *self);
    void *self;
    double work;          /* of one run: floating point operations, or bytes moved */
    mpt_context *context; /* NULL: not the library's work */
    long repeat;          /* runs between two looks at the clock */
} subject;

/* Seconds of one run. `best` is wall clock, of the least disturbed piece of the sample. */
typedef struct sample {
    double cpu, wall, best;
    long runs;
} sample;

#define MEASURE_PIECE 0.002 /* seconds: long beside a clock call, short beside a time slice */

static inline sample measure(subject *s, double seconds) {
    sample result;
    double cpu = measure_cpu(), start = measure_wall(), now = start;
    result.runs = 0, result.best = 1e30;
    if (s->repeat < 1) s->repeat = 1;
    do {
        double piece = now;
        long repeat = s->repeat;
        for (long i = 0; i < repeat; i++) s->run(s->self);
        if (s->context) mpt_synchronize(s->context);
        now = measure_wall();
        result.runs += repeat;
        if (now - piece < MEASURE_PIECE)
            s->repeat *= 2;
        else if ((now - piece) / (double)repeat < result.best)
            result.best = (now - piece) / (double)repeat;
    } while (now - start < seconds);
    result.cpu = (measure_cpu() - cpu) / (double)result.runs;
    result.wall = (now - start) / (double)result.runs;
    if (result.best > result.wall) result.best = result.wall;
    return result;
}

/* What counts: CPU time of one thread, wall clock of more. */
static inline double measure_seconds(subject *s, double seconds, int threads) {
    sample taken = measure(s, seconds);
    return threads > 1 ? taken.best : taken.cpu;
}

/* ==== Ceilings, and the mode of the tiles ==== */

typedef struct ceiling {
    double (*kernel)(int steps); /* returns its floating point operations */
    int threads, steps;
} ceiling;

#ifdef MEASURE_X86
#define MEASURE_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
#define MEASURE_MAKE_256(i) x##i = _mm256_set1_ps(1e-3f * i),
#define MEASURE_STEP_256(i) x##i = _mm256_fmadd_ps(x##i, a, b);
#define MEASURE_SUM_256(i) a = _mm256_add_ps(a, x##i);
#define MEASURE_MAKE_512(i) x##i = _mm512_set1_ps(1e-3f * i),
#define MEASURE_STEP_512(i) x##i = _mm512_fmadd_ps(x##i, a, b);
#define MEASURE_SUM_512(i) a = _mm512_add_ps(a, x##i);

/* Independent chains of multiply-add and nothing else: what no product can pass. */
__attribute__((target("avx2,fma"), noinline)) static double ceiling_256(int steps) {
    __m256 MEASURE_CHAINS(MEASURE_MAKE_256) a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    float sink[8];
    for (int i = 0; i < steps; i++) { MEASURE_CHAINS(MEASURE_STEP_256) }
    MEASURE_CHAINS(MEASURE_SUM_256)
    _mm256_storeu_ps(sink, a);
    return sink[0] == 0.0f ? 0.0 : 12.0 * 16.0 * steps;
}

__attribute__((target("avx512f"), noinline)) static double ceiling_512(int steps) {
    __m512 MEASURE_CHAINS(MEASURE_MAKE_512) a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    float sink[16];
    for (int i = 0; i < steps; i++) { MEASURE_CHAINS(MEASURE_STEP_512) }
    MEASURE_CHAINS(MEASURE_SUM_512)
    _mm512_storeu_ps(sink, a);
    return sink[0] == 0.0f ? 0.0 : 12.0 * 32.0 * steps;
}

#define MEASURE_STEP_PAIRS(i) x##i = _mm512_dpbf16_ps(x##i, (__m512bh)a, (__m512bh)b);

/* The same of pairs of bf16. */
__attribute__((target("avx512f,avx512bf16"), noinline)) static double ceiling_pairs(int steps) {
    __m512 MEASURE_CHAINS(MEASURE_MAKE_512) a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    float sink[16];
    for (int i = 0; i < steps; i++) { MEASURE_CHAINS(MEASURE_STEP_PAIRS) }
    MEASURE_CHAINS(MEASURE_SUM_512)
    _mm512_storeu_ps(sink, a);
    return sink[0] == 0.0f ? 0.0 : 12.0 * 64.0 * steps;
}

typedef struct measure_tiles {
    unsigned char palette, start, reserved[14];
    unsigned short bytes[16];
    unsigned char rows[16];
} measure_tiles;

#define MEASURE_AMX __attribute__((target("amx-tile,amx-bf16"), noinline))
#define MEASURE_TILE_FLOP (4.0 * 16 * 16 * 32 * 2) /* of four products */

MEASURE_AMX static void measure_tiles_on(void) {
    measure_tiles tiles;
    memset(&tiles, 0, sizeof tiles);
    tiles.palette = 1;
    for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
    __asm__ volatile("ldtilecfg %0" : : "m"(tiles));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
}

/* 2 x 2 tiles of C, operands from the first level cache. */
MEASURE_AMX static double ceiling_tiles(int steps) {
    static const char operands[4][4096] __attribute__((aligned(64))) = {{0}};
    measure_tiles_on();
    for (int i = 0; i < steps; i++) {
        const char *p = operands[i & 3];
        _tile_loadd(4, p, 64);
        _tile_loadd(6, p + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, p + 2048, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, p + 3072, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return MEASURE_TILE_FLOP * steps;
}

MEASURE_AMX static double ceiling_tiles_no_loads(int steps) {
    measure_tiles_on();
    for (int i = 0; i < steps; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return MEASURE_TILE_FLOP * steps;
}

/* Whether this process may use tiles; asks the system once. */
static inline bool measure_has_tiles(void) {
    enum { GET_SUPPORTED = 0x1021, ASK = 0x1023, TILE_DATA = 18 };
    static int known = -1;
    unsigned long features = 0;
    if (known >= 0) return known == 1;
    known = syscall(SYS_arch_prctl, GET_SUPPORTED, &features) == 0 &&
            (features >> TILE_DATA & 1) != 0 && syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
    return known == 1;
}
#else
static inline bool measure_has_tiles(void) { return false; }
#endif

/* The kernel of a ceiling by name; NULL where this CPU or compiler lacks it. */
static inline double (*ceiling_find(const char *name))(int) {
#ifdef MEASURE_X86
    if (strcmp(name, "tiles") == 0 && measure_has_tiles()) return ceiling_tiles;
    if (strcmp(name, "pairs") == 0 && __builtin_cpu_supports("avx512bf16")) return ceiling_pairs;
    if (strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f")) return ceiling_512;
    if (strcmp(name, "avx2") == 0 && __builtin_cpu_supports("fma")) return ceiling_256;
#endif
    (void)name;
    return NULL;
}

static inline void *ceiling_thread(void *self) {
    const ceiling *c = (const ceiling *)self;
    c->kernel(c->steps);
    return NULL;
}

static inline void ceiling_run(void *self) {
    const ceiling *c = (const ceiling *)self;
#ifdef MEASURE_THREADS
    pthread_t thread[64];
    int started = 0;
    while (started < c->threads - 1 && started < 64 &&
           pthread_create(&thread[started], NULL, ceiling_thread, self) == 0)
        started++;
    c->kernel(c->steps);
    while (started > 0) pthread_join(thread[--started], NULL);
#else
    c->kernel(c->steps);
#endif
}

/* Tile loads here are either fast or about four times slower, and flip within seconds for reasons
   outside the process. */
typedef enum tile_mode { TILES_NONE, TILES_FAST, TILES_SLOW } tile_mode;
static const char *const tile_mode_names[] = {"none", "fast", "slow"};

/* About 1 ms: loads that cost less than the products beside them are fast. */
static inline tile_mode measure_tile_mode(void) {
#ifdef MEASURE_X86
    double with = 1e30, without = 1e30;
    if (!measure_has_tiles()) return TILES_NONE;
    for (int i = 0; i < 3; i++) {
        double start = measure_cpu(), middle, end;
        ceiling_tiles(2000);
        middle = measure_cpu();
        ceiling_tiles_no_loads(2000);
        end = measure_cpu();
        if (middle - start < with) with = middle - start;
        if (end - middle < without) without = end - middle;
    }
    return with < 2.0 * without ? TILES_FAST : TILES_SLOW;
#else
    return TILES_NONE;
#endif
}

/* ==== Repetitions ==== */

enum { MEASURE_MAX = 16, MEASURE_REPETITIONS = 7 };

typedef struct repetitions {
    double seconds[MEASURE_MAX][MEASURE_REPETITIONS]; /* of one run, by subject */
    double median[MEASURE_MAX];
    int kept, discarded; /* repetitions */
    int slow, busy;      /* of the kept ones: tiles in the slow mode; too few free cores */
} repetitions;

/* Whether so many threads of plain arithmetic get nearly so many cores. True where that cannot be
   measured. */
static inline bool measure_cores_free(int threads) {
    enum { STEPS = 1000000, TRIES = 3 };
    double best[2] = {1e30, 1e30};
    ceiling c;
    c.kernel = ceiling_find("avx512") ? ceiling_find("avx512") : ceiling_find("avx2");
    c.steps = STEPS;
    if (!c.kernel || threads < 2) return true;
    for (int i = 0; i < 2 * TRIES; i++) {
        double start = measure_wall(), took;
        c.threads = i % 2 ? threads : 1;
        ceiling_run(&c);
        took = measure_wall() - start;
        if (took < best[i % 2]) best[i % 2] = took;
    }
    return best[1] < 1.2 * best[0];
}

/* Takes turns until MEASURE_REPETITIONS are kept or as many again were not: one counts only if the
   tiles were in one mode all along. */
static inline void measure_alternating(subject **subjects, int n, double seconds, int threads,
                                       repetitions *r) {
    r->kept = r->discarded = r->slow = r->busy = 0;
    while (r->kept < MEASURE_REPETITIONS && r->discarded < MEASURE_REPETITIONS) {
        tile_mode mode = measure_tile_mode();
        bool mixed = false, busy = !measure_cores_free(threads);
        for (int i = 0; i < n && !mixed; i++) {
            r->seconds[i][r->kept] = measure_seconds(subjects[i], seconds, threads);
            mixed = measure_tile_mode() != mode;
        }
        r->discarded += mixed;
        r->slow += !mixed && mode == TILES_SLOW;
        r->busy += !mixed && busy;
        r->kept += !mixed;
    }
    for (int i = 0; i < n; i++)
        r->median[i] = r->kept > 0 ? measure_median(r->seconds[i], r->kept) : 0.0;
}

/* Median over repetitions of a's seconds by b's in the same one: how many times faster b is. */
static inline double measure_ratio(const repetitions *r, int a, int b) {
    double ratio[MEASURE_REPETITIONS];
    for (int i = 0; i < r->kept; i++) ratio[i] = r->seconds[a][i] / r->seconds[b][i];
    return r->kept > 0 ? measure_median(ratio, r->kept) : 0.0;
}

static inline void measure_note(const repetitions *r, char *text, size_t size) {
    snprintf(text, size, "%d of %d slow, %d mixed", r->slow, r->kept, r->discarded);
    if (r->busy > 0 && strlen(text) < size)
        snprintf(text + strlen(text), size - strlen(text), ", %d WITHOUT FREE CORES", r->busy);
}

/* ==== The machine ==== */

static inline void measure_machine(char *text, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(text, size, "unknown CPU");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(text, size, "%s", colon + 2);
        break;
    }
    if (file) fclose(file);
}

/* One line: CPU, level of the library, mode of the tiles, compiler. */
static inline void measure_print_machine(void) {
    char cpu[256];
    mpt_context *context = mpt_create(NULL);
    measure_machine(cpu, sizeof cpu);
    printf("machine: %s; level %s; tiles %s; compiler %s\n", cpu,
           context ? mpt_isa_name(mpt_get_isa(context)) : mpt_error(NULL),
           tile_mode_names[measure_tile_mode()],
#ifdef __VERSION__
           __VERSION__
#else
           "unknown"
#endif
    );
    mpt_destroy(context);
}

/* ==== Serving ==== */

/* Makes a subject from the words after its name; false with a message in `error`. */
typedef struct subject_maker {
    const char *name;
    bool (*make)(subject *s, int argc, char **argv, char *error, size_t size);
} subject_maker;

enum { SERVE_SUBJECTS = 256, SERVE_WORDS = 24 };

static inline bool serve_make(subject *s, const subject_maker *makers, int argc, char **argv) {
    char error[512] = "unknown subject";
    memset(s, 0, sizeof *s);
    for (; argc > 0 && makers->name; makers++) {
        if (strcmp(makers->name, argv[0]) != 0) continue;
        if (makers->make(s, argc - 1, argv + 1, error, sizeof error)) {
            s->run(s->self);
            s->run(s->self);
            if (!s->context || !mpt_failed(s->context)) return true;
            snprintf(error, sizeof error, "%s", mpt_error(s->context));
        }
        if (s->end) s->end(s->self);
        break;
    }
    memset(s, 0, sizeof *s);
    printf("error %s\n", error);
    return false;
}

/* Reads lines until the input ends, answers each with one:
       make NAME WORDS..   ->  made NUMBER WORK LEVEL, or error TEXT
       run NUMBER SECONDS  ->  took CPU WALL BEST RUNS: seconds of one run
       memory NUMBER       ->  memory PEAK HELD: bytes, the highest since the last such line
       end NUMBER          ->  ended
       mode                ->  mode none|fast|slow */
static inline int measure_serve(const subject_maker *makers) {
    static subject subjects[SERVE_SUBJECTS];
    char line[1024];
    while (fgets(line, sizeof line, stdin)) {
        char *words[SERVE_WORDS];
        int n = 0;
        for (char *word = strtok(line, " \n"); word && n < SERVE_WORDS; word = strtok(NULL, " \n"))
            words[n++] = word;
        int number = n > 1 ? atoi(words[1]) : 0;
        bool known = number >= 0 && number < SERVE_SUBJECTS && subjects[number].run;
        if (n > 1 && strcmp(words[0], "make") == 0) {
            for (number = 0; number < SERVE_SUBJECTS - 1 && subjects[number].run;) number++;
            subject *s = &subjects[number];
            if (serve_make(s, makers, n - 1, words + 1))
                printf("made %d %.17g %s\n", number, s->work,
                       s->context ? mpt_isa_name(mpt_get_isa(s->context)) : "none");
        } else if (n > 2 && known && strcmp(words[0], "run") == 0) {
            sample taken = measure(&subjects[number], atof(words[2]));
            printf("took %.9g %.9g %.9g %ld\n", taken.cpu, taken.wall, taken.best, taken.runs);
        } else if (known && strcmp(words[0], "memory") == 0) {
            mpt_context *context = subjects[number].context;
            mpt_memory_stats stats = mpt_memory(context);
            printf("memory %.0f %.0f\n", (double)stats.total_peak, (double)stats.held);
            mpt_memory_reset_peak(context);
        } else if (known && strcmp(words[0], "end") == 0) {
            if (subjects[number].end) subjects[number].end(subjects[number].self);
            memset(&subjects[number], 0, sizeof subjects[number]);
            printf("ended\n");
        } else if (n > 0 && strcmp(words[0], "mode") == 0) {
            printf("mode %s\n", tile_mode_names[measure_tile_mode()]);
        } else {
            printf("error no such command or subject: %s %d\n", n > 0 ? words[0] : "", number);
        }
        fflush(stdout);
    }
    return 0;
}

#endif
