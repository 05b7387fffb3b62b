/* common.h - what the examples share: options, data, progress, reports, and how they fail. */
#ifndef COMMON_H
#define COMMON_H

#if !defined(_WIN32) && !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200809L
#endif
#include <math.h>
#include <signal.h>
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
    bool on, terminal, by_epoch;
    int64_t epochs, batches; /* of an epoch */
    int64_t steps, first;    /* done; of them by earlier processes */
    int64_t printed;         /* lines of this epoch */
    double loss;             /* mean of the last whole epoch */
    double started, drawn;
    double epoch_started, fastest; /* seconds of the fastest epoch, 0 before the first */
    double last, seconds;          /* when the last step ended; of all of them together */
    double fastest_step;           /* which a busy machine disturbs least; 0 before the second */
} progress;

/* Of `epochs` times `batches` steps; 0 epochs: of `batches` steps that are not reported as one. */
static inline progress progress_begin(const char *label, bool on, int64_t epochs, int64_t batches) {
    progress p;
    memset(&p, 0, sizeof p);
    p.label = label;
    p.on = on;
    p.terminal = stdout_is_terminal();
    p.by_epoch = epochs > 0;
    p.epochs = epochs > 0 ? epochs : 1;
    p.batches = batches;
    p.started = p.epoch_started = p.last = seconds_now();
    return p;
}

/* Steps of this process in a second. */
static inline double progress_speed(const progress *p) {
    return p->seconds > 0.0 ? (double)(p->steps - p->first) / p->seconds : 0.0;
}

static inline void progress_line(const progress *p, double loss, double scale, int64_t skipped,
                                 char *text, size_t size) {
    char bar[PROGRESS_BAR + 4] = "", total[24];
    const int64_t epoch = (p->steps - 1) / p->batches, batch = p->steps - epoch * p->batches;
    const double left = (double)(p->epochs * p->batches - p->steps) / progress_speed(p);
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
             p->label, (long long)epoch + 1, (long long)p->epochs, bar, digits, (long long)batch,
             total, loss, progress_speed(p), scale, (long long)skipped, left);
}

/* Takes the line off a terminal. */
static inline void progress_clear(const progress *p) {
    if (p->on && p->terminal) printf("\r%*s\r", PROGRESS_WIDTH, "");
    fflush(stdout);
}

/* Ends the line of an epoch with a report that stays. */
static inline void progress_epoch(progress *p, mpt_context *ctx) {
    double seconds = p->last - p->epoch_started;
    p->loss = mpt_metric_mean(ctx, "loss", true);
    mpt_metric_reset(ctx, "loss");
    if (p->fastest == 0.0 || seconds < p->fastest) p->fastest = seconds;
    p->epoch_started = p->last;
    p->printed = 0;
    if (!p->on || mpt_failed(ctx)) return;
    progress_clear(p);
    printf("%sEpoch %lld/%lld - Loss: %.4f\n", p->label, (long long)(p->steps / p->batches),
           (long long)p->epochs, p->loss);
    fflush(stdout);
}

/* Whether there are steps to do. */
static inline bool progress_goes_on(const progress *p, mpt_context *ctx) {
    return p->steps < p->epochs * p->batches && !mpt_failed(ctx) && !mpt_stop_requested(ctx);
}

/* Behind a step whose loss was pushed as the metric "loss". Waits for nothing, but at an epoch's
   end; saves where --checkpoint asks for it. */
static inline void progress_step(progress *p, mpt_context *ctx, mpt_scaler scaler) {
    char text[256];
    const double now = seconds_now(), step = now - p->last;
    const int64_t batch = p->steps++ % p->batches + 1;
    p->last = now, p->seconds = now - p->started;
    if (p->steps - p->first > 1 && (p->fastest_step == 0.0 || step < p->fastest_step))
        p->fastest_step = step;
    bool due = p->terminal ? now - p->drawn > 0.05 || batch == p->batches
                           : !*p->label && batch * PROGRESS_LINES / p->batches > p->printed;
    if (p->on && due) {
        mpt_scaler_stats stats = mpt_scaler_statistics(scaler);
        progress_line(p, mpt_metric_mean(ctx, "loss", false), stats.scale, stats.skipped, text,
                      sizeof text);
        if (p->terminal)
            printf("\r%-*.*s", PROGRESS_WIDTH, PROGRESS_WIDTH, text);
        else
            printf("%s\n", text);
        fflush(stdout);
        p->printed = batch * PROGRESS_LINES / p->batches;
        p->drawn = now;
    }
    if (batch == p->batches && p->by_epoch) progress_epoch(p, ctx);
#ifdef EXAMPLE_GOES_ON
    if (common.checkpoint) mpt_checkpoint_step(ctx);
#endif
}

#ifdef EXAMPLE_GOES_ON
enum { EXIT_STOPPED = 130 }; /* as a shell reports a program that Ctrl-C ends */

static mpt_context *volatile interrupted;

static void interrupt(int signal_number) {
    (void)signal_number;
    mpt_request_stop(interrupted, true);
    signal(SIGINT, SIG_DFL); /* whoever asks twice does not want to wait */
}

/* Goes on from the newest file of --checkpoint, once all that is trained has been made. */
static inline void progress_resume(progress *p, mpt_context *ctx) {
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    if (!common.checkpoint) return;
    if (common.save_every) config.every = common.save_every;
    config.resume = common.resume == 0;
    config.background = true;
    interrupted = ctx;
    signal(SIGINT, interrupt);
    mpt_checkpoint_open(ctx, common.checkpoint, &config);
    p->steps = p->first = mpt_step_number(ctx);
    p->printed = p->steps % p->batches * PROGRESS_LINES / p->batches;
    p->started = p->epoch_started = p->last = seconds_now();
    if (p->on && p->steps > 0)
        printf("Going on behind step %lld\n", (long long)p->steps);
}

/* Ends the training: 0, or what main shall return. */
static inline int progress_end(progress *p, mpt_context *ctx, const char *program) {
    if (mpt_failed(ctx)) progress_clear(p);
    if (common.checkpoint && !mpt_failed(ctx)) mpt_checkpoint_close(ctx);
    interrupted = NULL;
    if (mpt_failed(ctx)) return fail_with_error(program, ctx);
    if (!mpt_stop_requested(ctx)) return 0;
    progress_clear(p);
    return fail(program, EXIT_STOPPED, "stopped behind step %lld; the same command goes on",
                (long long)p->steps);
}
#endif

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
