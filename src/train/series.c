/* ----
 * train/series.c: checkpoints in a folder: when one is written, which ones stay, and which one a
 * training goes on from.
 *
 * A file's name has the number of its step, so that the files tell what to do: nothing else is
 * kept, and a process may be killed between any two calls.
 * ---- */
#ifndef MPT__TRAIN_SERIES_INCLUDED
#define MPT__TRAIN_SERIES_INCLUDED

#include "train/resume.c"

MPT__DEFAULTS(mpt_checkpoint_config, {
    config.every = 1000;
    config.keep = 2;
    config.resume = true;
})

static mpt_checkpoint_stats mpt__checkpoint_nothing(void) {
    mpt_checkpoint_stats stats;
    mpt__zero(stats);
    stats.best = MPT__INF_F64;
    return stats;
}

/* ==== Asking for an end ==== */

/* For a signal's handler and other threads, too: nothing but one store. */
void mpt_request_stop(mpt_context *ctx, bool stop) {
    if (ctx) mpt__atomic_store32(&ctx->stop, stop);
}

bool mpt_stop_requested(const mpt_context *ctx) {
    return ctx && mpt__atomic_load32(&ctx->stop) != 0;
}

#ifdef MPTRAIN_NO_RESUME

MPT__BEGIN_ABSENT
mpt_status mpt_checkpoint_open(
    mpt_context *ctx, const char *folder, const mpt_checkpoint_config *config) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_open");
}

mpt_status mpt_checkpoint_step(mpt_context *ctx) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_open");
}

mpt_status mpt_checkpoint_best(mpt_context *ctx, double value) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_open");
}

mpt_status mpt_checkpoint_close(mpt_context *ctx) {
    return mpt__resume_missing(ctx, "mpt_checkpoint_open");
}

mpt_checkpoint_stats mpt_checkpoint_statistics(mpt_context *ctx) {
    mpt__resume_missing(ctx, "mpt_checkpoint_open");
    return mpt__checkpoint_nothing();
}

static void mpt__series_free(mpt_context *ctx) {}
MPT__END_ABSENT

#else

enum { MPT__SERIES_DIGITS = 12 }; /* of a step, so that the order of names is that of steps */

/* What is written, by the caller or a thread: `path`, then files before `number` go until `keep`
   are left. */
typedef struct {
    mpt__base *base;
    mpt__content_fn content;
    const void *of;
    char path[MPT__PATH_SIZE];
    int64_t number; /* of the step; -1: no other file goes */
} mpt__series_job;

typedef struct {
    char path[MPT__PATH_SIZE]; /* without a slash at the end */
    mpt_checkpoint_config config;
    mpt_checkpoint_stats stats;
    int64_t seen, saved; /* steps at the last look; in the newest file, or -1 */
    intptr_t lock;       /* 0: none */
    mpt__series_job job;
    mpt__base base; /* the thread's: errors of its own, which the next call passes on */
    double time;    /* of the thread's clock, for names */
    void *thread;   /* NULL: none runs */
    uint8_t *image; /* the file that the thread writes */
    int64_t image_bytes, image_room;
} mpt__series;

static mpt__series *mpt__series_of(const mpt_context *ctx) { return (mpt__series *)ctx->series; }

/* The number of steps, or, without mpt_step_begin, of updates. */
static int64_t mpt__series_number(const mpt_context *ctx) {
    return ctx->now.step > 0 ? ctx->now.step : ctx->now.updates;
}

/* ==== Files by their numbers ==== */

static bool mpt__series_name(const mpt__series *series, int64_t number, char path[MPT__PATH_SIZE]) {
    char digits[MPT__SERIES_DIGITS + 20];
    size_t n = mpt__format_text(digits, sizeof digits, "000000000000%lld", number);
    return mpt__format_text(path, MPT__PATH_SIZE, "%s/step-%s.safetensors", series->path,
               digits + n - MPT__SERIES_DIGITS) < MPT__PATH_SIZE;
}

/* The step in a file's name; -1 if it is none of ours. */
static int64_t mpt__series_number_of(const char *name) {
    int64_t number = 0;
    if (strncmp(name, "step-", 5) != 0) return -1;
    for (name += 5; *name >= '0' && *name <= '9'; name++) {
        if (number > INT64_MAX / 10 - 1) return -1;
        number = number * 10 + (*name - '0');
    }
    return strcmp(name, ".safetensors") == 0 ? number : -1;
}

/* Files up to a step: how many, the first and the last; -1: none. */
typedef struct {
    int64_t up_to, count, first, last;
} mpt__series_files;

static void mpt__series_entry(void *to, const char *name, bool is_folder) {
    mpt__series_files *files = (mpt__series_files *)to;
    const int64_t number = mpt__series_number_of(name);
    if (is_folder || number < 0 || number > files->up_to) return;
    files->count++;
    if (files->first < 0 || number < files->first) files->first = number;
    if (number > files->last) files->last = number;
}

static bool mpt__series_list(
    mpt__base *base, const char *path, int64_t up_to, mpt__series_files *files) {
    const mpt_io *io = mpt__io(base);
    files->up_to = up_to, files->count = 0, files->first = files->last = -1;
    if (io->list && io->list(io->user, path, mpt__series_entry, files)) return true;
    mpt__fail(base, MPT_ERROR_IO, "cannot list %s: %s", path,
        io->list ? mpt__io_reason(base) : "config.io has no `list`");
    return false;
}

/* ==== Writing ==== */

/* A file goes when the new one is in its place, and durable. Any thread. */
static bool mpt__series_write(mpt__series *series) {
    mpt__series_job *job = &series->job;
    mpt__base *base = job->base;
    char old[MPT__PATH_SIZE];
    if (!mpt__write_file(base, job->path, job->content, job->of)) return false;
    if (mpt__is_dry(base)) return true; /* nor does an older one go */
    for (mpt__series_files files; job->number >= 0;) {
        if (!mpt__series_list(base, series->path, job->number, &files)) return false;
        if (files.count <= series->config.keep) break;
        const mpt_io *io = mpt__io(base);
        mpt__series_name(series, files.first, old);
        if (io->remove && io->remove(io->user, old)) continue;
        mpt__fail(base, MPT_ERROR_IO, "cannot remove %s: %s", old,
            io->remove ? mpt__io_reason(base) : "config.io has no `remove`");
        return false;
    }
    return true;
}

static bool mpt__series_image(mpt__writer *writer, const void *of) {
    const mpt__series *series = (const mpt__series *)of;
    return mpt__write_bytes(writer, series->image, (size_t)series->image_bytes);
}

static void mpt__series_run(void *argument) { mpt__series_write((mpt__series *)argument); }

/* Waits for the thread, and passes its error on. */
static mpt_status mpt__series_wait(mpt_context *ctx, mpt__series *series) {
    const mpt_threads *thread = &ctx->base.thread;
    if (!series->thread) return ctx->base.status;
    if (thread->join(thread->user, series->thread) != 0)
        return mpt__error(ctx, THREAD, "the thread that writes checkpoints cannot be joined");
    series->thread = NULL;
    if (series->base.status == MPT_OK) return ctx->base.status;
    return mpt__error_of(ctx, series->base.status, "in the background: %s", series->base.message);
}

static double mpt__series_time(void *user) { return *(const double *)user; }

/* Makes the file in memory, which a thread may write while the training goes on. */
static bool mpt__series_copy(mpt_context *ctx, mpt__series *series, mpt__state_saving *saving) {
    mpt__writer writer;
    const int64_t bytes = 8 + (int64_t)saving->header.length + saving->at;
    mpt__zero(writer);
    if (!mpt__grow(&ctx->base, &series->image, &series->image_room, bytes, 1, MPT_MEMORY_HOST))
        return false;
    writer.base = &ctx->base, writer.path = series->job.path, writer.memory = series->image;
    series->image_bytes = bytes;
    series->base = ctx->base;
    series->base.status = MPT_OK, series->base.message[0] = 0;
    series->base.op = NULL, series->base.module = NULL;
    series->base.log.write = mpt__log_nowhere;
    series->time = ctx->base.clock.now(ctx->base.clock.user);
    series->base.clock.now = mpt__series_time, series->base.clock.user = &series->time;
    series->job.base = &series->base;
    series->job.content = mpt__series_image, series->job.of = series;
    return mpt__state_content(&writer, saving);
}

/* Writes job.path, or has it written. */
static bool mpt__series_begin(mpt_context *ctx, mpt__series *series) {
    const mpt_threads *thread = &ctx->base.thread;
    mpt__state_saving saving;
    bool good = mpt__saving_begin(ctx, &saving), apart = false;
    if (good && series->config.background && thread->create) {
        good = mpt__series_copy(ctx, series, &saving);
        apart = good && thread->create(thread->user, &series->thread, mpt__series_run, series) == 0;
        if (!apart) series->thread = NULL;
    }
    saving.writer = NULL;
    if (good && !apart) { /* also where there is no thread to be had */
        series->job.base = &ctx->base;
        series->job.content = mpt__state_content, series->job.of = &saving;
        good = mpt__series_write(series);
    }
    mpt__saving_end(ctx, &saving);
    return good;
}

/* Saves the training of now as a step's file; number -1: as the best one. */
static mpt_status mpt__series_save(mpt_context *ctx, int64_t number) {
    mpt__series *series = mpt__series_of(ctx);
    const mpt_clock *clock = &ctx->base.clock;
    const double start = clock->now(clock->user);
    if (mpt__series_wait(ctx, series) != MPT_OK) return ctx->base.status;
    series->job.number = number;
    if (number < 0)
        mpt__format_text(series->job.path, MPT__PATH_SIZE, "%s/best.safetensors", series->path);
    else
        mpt__series_name(series, number, series->job.path);
    if (mpt__series_begin(ctx, series)) {
        series->stats.files++;
        if (number >= 0) series->saved = number;
    }
    const double seconds = clock->now(clock->user) - start;
    if (seconds > 0) series->stats.seconds += seconds;
    if (seconds > series->stats.longest) series->stats.longest = seconds;
    return ctx->base.status;
}

/* ==== Opening and closing ==== */

static void mpt__series_free(mpt_context *ctx) {
    mpt__series *series = mpt__series_of(ctx);
    const mpt_threads *thread = &ctx->base.thread;
    if (!series) return;
    if (series->thread) thread->join(thread->user, series->thread);
    mpt__release(&ctx->base, series->image, (size_t)series->image_room, MPT_MEMORY_HOST);
    mpt__folder_unlock(series->lock);
    mpt__host_free(ctx, series, sizeof *series);
    ctx->series = NULL;
}

/* A log that leaves out errors, which may be none in the end. */
static void mpt__series_hear(void *user, mpt_log_level level, const char *message) {
    const mpt_logger *log = (const mpt_logger *)user;
    if (level != MPT_LOG_ERROR) log->write(log->user, level, message);
}

/* Takes the newest file; a damaged one is left, and the one before it taken. */
static mpt_status mpt__series_resume(mpt_context *ctx, mpt__series *series) {
    mpt__series_files files;
    int64_t up_to = INT64_MAX;
    char path[MPT__PATH_SIZE];
    bool damaged = false;
    while (mpt__series_list(&ctx->base, series->path, up_to, &files) && files.last >= 0) {
        mpt_logger log = ctx->base.log;
        ctx->base.log.write = mpt__series_hear, ctx->base.log.user = &log;
        mpt__series_name(series, files.last, path);
        mpt__state_load_file(ctx, path, &damaged);
        ctx->base.log = log;
        if (mpt__ok(ctx)) {
            series->stats.resumed = files.last;
            mpt__log(&ctx->base, MPT_LOG_INFO, "mpt_checkpoint_open: goes on from %s", path);
            return MPT_OK;
        }
        if (!damaged || files.first == files.last) break;
        mpt__log(&ctx->base, MPT_LOG_WARNING, "%s; the file before it is taken", ctx->base.message);
        ctx->base.status = MPT_OK, ctx->base.message[0] = 0;
        up_to = files.last - 1;
    }
    if (!mpt__ok(ctx)) mpt__log_write(&ctx->base, MPT_LOG_ERROR, ctx->base.message);
    return ctx->base.status;
}

/* What a folder must be before a training may write to it. */
static bool mpt__series_take(mpt_context *ctx, mpt__series *series) {
    mpt__series_files files;
    bool taken;
    if (!mpt__folder_lock(&ctx->base, series->path, &series->lock, &taken))
        return taken ? mpt__reject(ctx, STATE, "%s: another training writes its checkpoints there",
                           series->path)
                     : mpt__reject(ctx, IO, "cannot write to the folder %s: %s", series->path,
                           mpt__io_reason(&ctx->base));
    if (series->config.resume) return mpt__series_resume(ctx, series) == MPT_OK;
    if (!mpt__series_list(&ctx->base, series->path, INT64_MAX, &files)) return false;
    return files.last < 0 ||
        mpt__reject(ctx, STATE,
            "%s has a training's checkpoints, up to step %lld: set resume, or take "
            "another folder",
            series->path, files.last);
}

static mpt_status mpt__series_open(
    mpt_context *ctx, const char *path, const mpt_checkpoint_config *config) {
    if (mpt__no_files(ctx)) return ctx->base.status;
    if (ctx->series)
        return mpt__error(ctx, STATE, "%s is open already; call mpt_checkpoint_close before",
            mpt__series_of(ctx)->path);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "the folder's path is empty");
    if (strlen(path) >= MPT__PATH_SIZE - 128)
        return mpt__error(ctx, ARGUMENT, "the path is longer than %d bytes", MPT__PATH_SIZE - 128);
    if (config->every < 0)
        return mpt__error(ctx, ARGUMENT, "every is %lld steps; 0 (never) or more", config->every);
    if (config->keep < 1)
        return mpt__error(ctx, ARGUMENT, "keep is %d files; 1 or more", config->keep);
    if (!mpt__state_stands(ctx)) return ctx->base.status;
    mpt__series *series = (mpt__series *)mpt__host_new(ctx, sizeof *series);
    if (!series) return ctx->base.status;
    size_t n = mpt__format_text(series->path, sizeof series->path, "%s", path);
    while (n > 1 && series->path[n - 1] == '/') series->path[--n] = 0;
    series->config = *config;
    series->stats = mpt__checkpoint_nothing();
    series->saved = -1;
    ctx->series = series;
    if (!mpt__series_take(ctx, series)) mpt__series_free(ctx);
    if (!ctx->series) return ctx->base.status;
    series->seen = mpt__series_number(ctx);
    if (series->seen == 0 || series->stats.resumed > 0) series->saved = series->seen;
    return ctx->base.status;
}

/* Writes what is due; `now`: in any case. */
static mpt_status mpt__series_step(mpt_context *ctx, bool now) {
    mpt__series *series = mpt__series_of(ctx);
    const int64_t number = mpt__series_number(ctx), every = series->config.every;
    const bool due = every > 0 && number / every > series->seen / every;
    series->seen = number;
    return due || now ? mpt__series_save(ctx, number) : ctx->base.status;
}

/* Writes the training's end, waits for it and lets the folder go. */
static mpt_status mpt__series_close(mpt_context *ctx, bool save) {
    if (save && mpt__ok(ctx)) mpt__series_step(ctx, true);
    mpt__series_wait(ctx, mpt__series_of(ctx));
    mpt__series_free(ctx);
    return ctx->base.status;
}

/* ==== Public ==== */

/* Enters a call that needs an open folder between steps; false with an error recorded. */
static bool mpt__series_enter(mpt_context *ctx, const char *call) {
    if (!mpt__enter(ctx, call)) return false;
    if (!ctx->series)
        return mpt__reject(ctx, STATE, "no folder is open; call mpt_checkpoint_open before");
    if (ctx->step_depth > 0 || mpt__is_capturing(ctx))
        return mpt__reject(ctx, STATE, "a step is under way; call it behind mpt_step_end");
    return true;
}

mpt_status mpt_checkpoint_open(
    mpt_context *ctx, const char *folder, const mpt_checkpoint_config *config) {
    MPT__PLAIN_FLOATS;
    const mpt_checkpoint_config defaults = mpt_checkpoint_config_default();
    if (!mpt__enter(ctx, "mpt_checkpoint_open")) return mpt__status_of(ctx);
    return mpt__series_open(ctx, folder, config ? config : &defaults);
}

mpt_status mpt_checkpoint_step(mpt_context *ctx) {
    MPT__PLAIN_FLOATS;
    if (!mpt__series_enter(ctx, "mpt_checkpoint_step")) return mpt__status_of(ctx);
    return mpt__series_step(
        ctx, mpt_stop_requested(ctx) && mpt__series_of(ctx)->saved < mpt__series_number(ctx));
}

mpt_status mpt_checkpoint_best(mpt_context *ctx, double value) {
    MPT__PLAIN_FLOATS;
    if (!mpt__series_enter(ctx, "mpt_checkpoint_best")) return mpt__status_of(ctx);
    if (!(value < ctx->best)) return MPT_OK;
    ctx->best = value;
    return mpt__series_save(ctx, -1);
}

mpt_status mpt_checkpoint_close(mpt_context *ctx) {
    MPT__PLAIN_FLOATS;
    if (!mpt__series_enter(ctx, "mpt_checkpoint_close")) return mpt__status_of(ctx);
    return mpt__series_close(ctx, mpt__series_of(ctx)->saved < mpt__series_number(ctx));
}

mpt_checkpoint_stats mpt_checkpoint_statistics(mpt_context *ctx) {
    mpt_checkpoint_stats stats = mpt__checkpoint_nothing();
    if (!mpt__series_enter(ctx, "mpt_checkpoint_statistics")) return stats;
    stats = mpt__series_of(ctx)->stats;
    stats.best = ctx->best;
    return stats;
}

#endif /* MPTRAIN_NO_RESUME */

#endif
