/* common.h - what the examples share: options, data, progress, reports, and how they fail. */
#ifndef COMMON_H
#define COMMON_H

#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <io.h>
#else
#include <unistd.h>
#endif

#include "data.h"
#include "mptrain.h"
#include "options.h"
#include "report.h"

/* ==== Failing ==== */

enum { EXIT_BAD_INPUT = 2 }; /* a bad option or a bad file; 1 is a training run that failed */

/* One line on stderr; the status that main shall return. */
static inline int fail(const char *program, int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    return status;
}

/* The same from the error of a context, or, if it is NULL, of the last mpt_create. */
static inline int fail_with_error(const char *program, mpt_context *ctx) {
    mpt_status status = ctx ? mpt_error_code(ctx) : MPT_ERROR_ARGUMENT;
    bool training = status == MPT_ERROR_NUMERIC || status == MPT_ERROR_MEMORY;
    return fail(program, training ? 1 : EXIT_BAD_INPUT, "%s", mpt_error(ctx));
}

/* ==== Time and terminal ==== */

/* Seconds from some start. */
static inline double seconds_now(void) {
#ifdef _WIN32
    return (double)clock() / CLOCKS_PER_SEC; /* elapsed time, there */
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
#endif
}

static inline bool stdout_is_terminal(void) {
#ifdef _WIN32
    return _isatty(_fileno(stdout)) != 0;
#else
    return isatty(fileno(stdout)) != 0;
#endif
}

/* ==== Making a context ==== */

enum { PROGRESS_WIDTH = 79, PROGRESS_BAR = 8, PROGRESS_LINES = 4 };

static const char *program_name;

/* A log that shows warnings, such as that there is no GPU. Errors stay out, since main prints the
   first one with its program's name; so does what only informs. */
static inline void show_warning(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level != MPT_LOG_WARNING) return;
    if (stdout_is_terminal()) printf("\r%*s\r", PROGRESS_WIDTH, ""); /* a line of progress */
    fflush(stdout);
    fprintf(stderr, "%s: %s\n", program_name, message);
}

/* The defaults and what the common options say, with warnings on stderr, or NULL: without. */
static inline mpt_config default_config(const char *program) {
    mpt_config config = mpt_config_default();
    program_name = program;
    config.memory_limit = common.memory_limit << 20;
    if (program) config.log.write = show_warning;
    return config;
}

/* ==== Progress ==== */

/* A line that is drawn over itself on a terminal; a few plain lines per epoch elsewhere. */
typedef struct progress {
    const char *label; /* "", or "fp16@64 " for one of many runs: no bar, fewer plain lines */
    bool on, terminal;
    int64_t epoch, epochs, batches; /* epoch from 1 */
    int64_t steps;                  /* done */
    int64_t printed;                /* lines of this epoch */
    double started, drawn;
    double epoch_started, fastest; /* seconds of the fastest epoch, 0 before the first */
    double last, seconds;          /* when the last step ended; of all of them together */
    double fastest_step;           /* which a busy machine disturbs least; 0 before the second */
} progress;

static inline progress progress_begin(const char *label, bool on, int64_t epochs, int64_t batches) {
    progress p;
    memset(&p, 0, sizeof p);
    p.label = label;
    p.on = on;
    p.terminal = stdout_is_terminal();
    p.epochs = epochs;
    p.batches = batches;
    p.started = p.epoch_started = p.last = seconds_now();
    return p;
}

static inline void progress_line(const progress *p, int64_t batch, double loss, double scale,
                                 int64_t skipped, char *text, size_t size) {
    char bar[PROGRESS_BAR + 4] = "", total[24];
    double elapsed = seconds_now() - p->started;
    double left = elapsed / (double)p->steps * (double)(p->epochs * p->batches - p->steps);
    int filled = (int)(batch * PROGRESS_BAR / p->batches);
    int digits = snprintf(total, sizeof total, "%lld", (long long)p->batches);
    if (!*p->label) {
        memset(bar, '-', PROGRESS_BAR + 2);
        memset(bar + 1, '#', (size_t)filled);
        bar[0] = '[', bar[PROGRESS_BAR + 1] = ']', bar[PROGRESS_BAR + 2] = ' ';
        bar[PROGRESS_BAR + 3] = '\0';
    }
    snprintf(text, size,
             "%s%lld/%lld %s%*lld/%s loss %.4f %.0f steps/s scale %.0f skipped %lld ETA %.0f s",
             p->label, (long long)p->epoch, (long long)p->epochs, bar, digits, (long long)batch,
             total, loss, (double)p->steps / elapsed, scale, (long long)skipped, left);
}

/* After a step; `batch` counts from 1. Waits for nothing. */
static inline void progress_step(progress *p, mpt_context *ctx, mpt_scaler scaler, int64_t batch) {
    char text[256];
    double now = seconds_now(), step = now - p->last;
    p->steps++;
    p->last = now, p->seconds = now - p->started;
    if (p->steps > 1 && (p->fastest_step == 0.0 || step < p->fastest_step)) p->fastest_step = step;
    if (!p->on) return;
    bool due = p->terminal ? now - p->drawn > 0.05 || batch == p->batches
                           : !*p->label && batch * PROGRESS_LINES / p->batches > p->printed;
    if (!due) return;
    mpt_scaler_stats stats = mpt_scaler_statistics(scaler);
    progress_line(p, batch, mpt_metric_mean(ctx, "loss", false), stats.scale, stats.skipped, text,
                  sizeof text);
    if (p->terminal)
        printf("\r%-*.*s", PROGRESS_WIDTH, PROGRESS_WIDTH, text);
    else
        printf("%s\n", text);
    fflush(stdout);
    p->printed = batch * PROGRESS_LINES / p->batches;
    p->drawn = now;
}

/* Takes the line off a terminal. */
static inline void progress_clear(const progress *p) {
    if (p->on && p->terminal) printf("\r%*s\r", PROGRESS_WIDTH, "");
    fflush(stdout);
}

/* Ends the line of an epoch with a report that stays. */
static inline void progress_epoch(progress *p, double loss) {
    double now = seconds_now(), seconds = now - p->epoch_started;
    if (p->fastest == 0.0 || seconds < p->fastest) p->fastest = seconds;
    p->epoch_started = now;
    p->printed = 0;
    if (!p->on) return;
    progress_clear(p);
    printf("%sEpoch %lld/%lld - Loss: %.4f\n", p->label, (long long)p->epoch, (long long)p->epochs,
           loss);
    fflush(stdout);
}

/* ==== Results ==== */

/* The run as one JSON object, with its figure of merit, where --json names a file. Returns what
 * main shall return. */
static inline int write_results(mpt_context *ctx, const progress *p, mpt_scaler scaler,
                                const char *metric, double value) {
    FILE *file = common.json ? fopen(common.json, "w") : NULL;
    if (!common.json) return 0;
    if (file) {
        const mpt_memory_stats memory = mpt_memory(ctx);
        fprintf(file, "{");
        json_text(file, "program", program_name);
        json_text(file, "isa", mpt_isa_name(mpt_get_isa(ctx)));
        json_number(file, metric, value);
        json_number(file, "steps", (double)p->steps);
        json_number(file, "skipped_steps", (double)mpt_scaler_statistics(scaler).skipped);
        json_number(file, "seconds", p->seconds);
        json_number(file, "fastest_step_seconds", p->fastest_step);
        json_peaks(file, memory.peak, memory.total_peak);
        fprintf(file, "}\n");
    }
    const bool good = file && !ferror(file);
    if (file && fclose(file) == 0 && good) return 0;
    return fail(program_name, EXIT_BAD_INPUT, "%s: cannot be written", common.json);
}

#endif
