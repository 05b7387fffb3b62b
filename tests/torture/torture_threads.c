/* torture_threads.c: thread, mutex or condition number N cannot be made, once or from there on; and
   a clock that goes back, stands still, leaps or is no number. A failure is an error of threads
   that leaves no thread and no memory, what is done again ends with the bits of one thread and an
   honest clock, and figures of time stay numbers. Built with sanitizers. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#include <math.h>
#include <pthread.h>

#include "heap.h"
#include "trainings.h"

enum { STEPS = 12, CLOCKS = 6 };
enum { REFUSED, ERRORS, HOURS, FITS, SLICES };

/* ==== Threads that are counted and refused ==== */

typedef struct factory {
    int calls, refuse_at, refused, live; /* of what cannot be made from `refuse_at` on */
    bool onwards;
} factory;

typedef struct started {
    pthread_t id;
    void (*entry)(void *argument);
    void *argument;
} started;

static bool refuses(void *user) {
    factory *f = (factory *)user;
    const int n = ++f->calls;
    const bool refused =
        f->refuse_at > 0 && (n == f->refuse_at || (f->onwards && n > f->refuse_at));
    f->refused += refused;
    f->live += !refused;
    return refused;
}

static void gone(void *user, void *object) {
    ((factory *)user)->live--;
    free(object);
}

static void *started_main(void *of) {
    const started *s = (const started *)of;
    s->entry(s->argument);
    return NULL;
}

static int make_thread(void *user, void **thread, void (*entry)(void *argument), void *argument) {
    if (refuses(user)) return EAGAIN;
    started *s = (started *)malloc(sizeof *s);
    s->entry = entry, s->argument = argument;
    *thread = s;
    return pthread_create(&s->id, NULL, started_main, s);
}

static int join_thread(void *user, void *thread) {
    const int result = pthread_join(((started *)thread)->id, NULL);
    gone(user, thread);
    return result;
}

static int make_mutex(void *user, void **mutex) {
    if (refuses(user)) return ENOMEM;
    *mutex = malloc(sizeof(pthread_mutex_t));
    return pthread_mutex_init((pthread_mutex_t *)*mutex, NULL);
}

static void end_mutex(void *user, void *mutex) {
    pthread_mutex_destroy((pthread_mutex_t *)mutex);
    gone(user, mutex);
}

static void lock_mutex(void *user, void *mutex) {
    (void)user;
    pthread_mutex_lock((pthread_mutex_t *)mutex);
}

static void unlock_mutex(void *user, void *mutex) {
    (void)user;
    pthread_mutex_unlock((pthread_mutex_t *)mutex);
}

static int make_condition(void *user, void **condition) {
    if (refuses(user)) return ENOMEM;
    *condition = malloc(sizeof(pthread_cond_t));
    return pthread_cond_init((pthread_cond_t *)*condition, NULL);
}

static void end_condition(void *user, void *condition) {
    pthread_cond_destroy((pthread_cond_t *)condition);
    gone(user, condition);
}

static void wait_condition(void *user, void *condition, void *mutex) {
    (void)user;
    pthread_cond_wait((pthread_cond_t *)condition, (pthread_mutex_t *)mutex);
}

static void wake_condition(void *user, void *condition) {
    (void)user;
    pthread_cond_broadcast((pthread_cond_t *)condition);
}

static void use_factory(factory *f, mpt_config *config) {
    memset(f, 0, sizeof *f);
    config->thread.create = make_thread, config->thread.join = join_thread;
    config->thread.mutex_create = make_mutex, config->thread.mutex_destroy = end_mutex;
    config->thread.mutex_lock = lock_mutex, config->thread.mutex_unlock = unlock_mutex;
    config->thread.condition_create = make_condition;
    config->thread.condition_destroy = end_condition;
    config->thread.condition_wait = wait_condition;
    config->thread.condition_broadcast = wake_condition;
    config->thread.user = f;
}

/* ==== Clocks ==== */

typedef struct odd_clock {
    int kind;
    uint64_t state;
    double time;
} odd_clock;

/* From loader workers, too: the state is a number that any of them may have moved. */
static double odd_now(void *user) {
    odd_clock *clock = (odd_clock *)user;
    static const double odd[6] = {NAN, INFINITY, -INFINITY, -1e300, 1e300, 0};
    switch (clock->kind) {
    case 0:
        return clock->time -= 0.25; /* back */
    case 1:
        return 17; /* it stands */
    case 2:
        return (double)draw_below(&clock->state, 1000000) - 500000; /* it leaps */
    case 3:
        return odd[draw_below(&clock->state, 6)];
    case 4:
        return clock->time = clock->time < 5 ? clock->time + 1 : 0; /* an hour again and again */
    default:
        return NAN;
    }
}

/* ==== Cases ==== */

static plan random_plan(uint64_t *state) {
    static const int threads[4] = {2, 3, 4, 7}, workers[3] = {0, 1, 4};
    plan how;
    memset(&how, 0, sizeof how);
    how.precision = (int)draw_below(state, PRECISIONS);
    how.optimizer = (int)draw_below(state, OPTIMIZERS);
    how.width = draw_below(state, 2) ? 16 : 600;
    how.threads = threads[draw_below(state, 4)], how.workers = workers[draw_below(state, 3)];
    how.accumulate = draw_below(state, 2) ? 1 : 4, how.captured = draw_below(state, 2) == 0;
    how.overflow = -1, how.averaged = draw_below(state, 2) == 0, how.seed = draw(state);
    return how;
}

/* The same without anything odd. */
static uint64_t plain_hash(plan how) {
    how.threads = 1, how.workers = 0;
    training t = begin_training(&how);
    run_training(&t, 0, STEPS);
    const uint64_t hash = mpt_state_hash(t.context);
    end_training(&t);
    return hash;
}

/* Stops in the middle by way of a file, whose name beside the target is made of the time. */
static uint64_t hash_with_stop(training *t, long n) {
    char path[64];
    snprintf(path, sizeof path, "net%ld", n % 4);
    run_training(t, 0, STEPS / 2);
    mpt_checkpoint_save(t->context, in_folder(path));
    run_training(t, STEPS / 2, STEPS);
    mpt_checkpoint_load(t->context, in_folder(path));
    run_training(t, STEPS / 2, STEPS);
    EXPECT_THAT(files_named(".mptrain-") == 0, "files are left");
    return mpt_state_hash(t->context);
}

static void refused_thread(long n) {
    uint64_t state = case_seed(n);
    const plan how = random_plan(&state);
    mpt_config config;
    heap h;
    factory f;
    training t;
    int calls = 0;
    for (int round = 0; round < 2; round++) { /* the first one counts what there is to refuse */
        config = heap_config(&h);
        config.threads = how.threads, config.seed = how.seed;
        use_factory(&f, &config);
        f.onwards = draw_below(&state, 2) == 0;
        f.refuse_at = round ? 1 + (int)draw_below(&state, calls) : 0;
        mpt_context *c = mpt_create(&config);
        if (!c) {
            counts->figures[ERRORS]++;
            EXPECT_THAT(round && strstr(mpt_error(NULL), "thread"), "%s", mpt_error(NULL));
            EXPECT_THAT(f.live == 0 && h.live == 0, "mpt_create leaves %d objects, %lld bytes",
                        f.live, (long long)h.live);
            f.refuse_at = 0;
            c = mpt_create(&config);
        }
        t = training_in(c, &how);
        if (mpt_failed(c)) { /* the loader is what is made last */
            counts->figures[ERRORS]++;
            EXPECT_THAT(round && mpt_error_code(c) == MPT_ERROR_THREAD, "%s", mpt_error(c));
            mpt_clear_error(c);
            f.refuse_at = 0;
            t.loader = make_loader(c, how.workers);
        }
        const uint64_t hash = hash_with_stop(&t, n);
        EXPECT_THAT(hash == plain_hash(how), "other bits with %d threads, %d workers", how.threads,
                    how.workers);
        calls = f.calls;
        counts->figures[REFUSED] += f.refused > 0;
        end_training(&t);
        EXPECT_THAT(f.live == 0 && h.live == 0, "%d objects, %lld bytes are left", f.live,
                    (long long)h.live);
    }
}

static bool look_at_figures(void *user, const mpt_progress *progress) {
    (void)user;
    EXPECT_THAT(progress->text && strlen(progress->text) < 400, "the line of progress");
    counts->figures[FITS]++;
    return true;
}

/* Slices of a step end, however the clock goes. */
static void slice_a_step(training *t) {
    mpt_batch batch;
    bool done = false;
    mpt_captured captured = mpt_capture(t->context, micro_batch, t);
    for (int step = 0; step < 4; step++) {
        if (!mpt_loader_next(t->loader, &batch)) mpt_loader_next(t->loader, &batch);
        done = false;
        for (int i = 0; i < 10000 && !done && !mpt_failed(t->context); i++)
            mpt_step_slice(captured, batch.x, batch.y, 1e-4, &done);
        EXPECT_THAT(done, "a step in slices does not end: %s", mpt_error(t->context));
        counts->figures[SLICES]++;
        if (t->how.accumulate > 1) mpt_zero_grad(t->optimizer);
    }
}

static void odd_time(long n) {
    uint64_t state = case_seed(n);
    const plan how = random_plan(&state);
    mpt_config config = mpt_config_default();
    mpt_fit_config fit = mpt_fit_config_default();
    odd_clock clock;
    memset(&clock, 0, sizeof clock);
    clock.kind = (int)(n / 2 % CLOCKS), clock.state = state;
    config.threads = how.threads, config.seed = how.seed, config.device = MPT_DEVICE_CPU;
    config.clock.now = odd_now, config.clock.user = &clock;
    training t = training_in(mpt_create(&config), &how);
    EXPECT_THAT(hash_with_stop(&t, n) == plain_hash(how), "clock %d gives other bits", clock.kind);
#ifndef MPTRAIN_NO_GRAPH
    slice_a_step(&t);
#endif
    if (how.precision <= BF16) {
        fit.epochs = 2, fit.progress = look_at_figures, fit.checkpoint = in_folder("best");
        fit.scaler = t.scaler, fit.validation = make_loader(t.context, 0);
        const mpt_fit_result result = mpt_fit(t.net, t.optimizer, t.loader, &fit);
        EXPECT_THAT(result.status == MPT_OK && result.epochs == 2, "%s", mpt_error(t.context));
    }
    EXPECT_THAT(!mpt_failed(t.context), "clock %d: %s", clock.kind, mpt_error(t.context));
    counts->figures[HOURS]++;
    end_training(&t);
}

static void one_case(long n) {
    if (n % 2)
        odd_time(n);
    else
        refused_thread(n);
}

int main(int argc, char **argv) {
    torture_arguments(argc, argv, 2000);
    torture_begin();
    folder_begin("threads");
    torture_cases(options.cases, 50, one_case);
    folder_end();
    return torture_end("threads", options.cases,
                       "%ld threads or locks refused, %ld of them errors, %ld odd clocks with %ld "
                       "slices of steps and %ld lines of progress",
                       counts->figures[REFUSED], counts->figures[ERRORS], counts->figures[HOURS],
                       counts->figures[SLICES], counts->figures[FITS]);
}
