/* api_contexts.c: contexts on threads of a program: each has the bits that it has alone. */
#include MPTRAIN_HEADER_FILE
#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif
#include "harness.h"
#include "training.h"
#include "workers.h"

enum { CONTEXTS = 2, STEPS = 60 };

static mpt_context *volatile busiest; /* the last one that began to work, and still lives */

/* One thread's work: its own context, made and destroyed there. */
typedef struct work {
    uint64_t seed, hash;
    mpt_dtype precision;
    int threads;
    char error[200];
} work;

/* Who forks with a context of another thread keeps that one from ending it meanwhile. */
#ifdef _WIN32
static void busy_lock(void) {}
static void busy_unlock(void) {}
#else
static pthread_mutex_t busy_mutex = PTHREAD_MUTEX_INITIALIZER;
static void busy_lock(void) { pthread_mutex_lock(&busy_mutex); }
static void busy_unlock(void) { pthread_mutex_unlock(&busy_mutex); }
#endif

static void do_work(void *argument) {
    work *w = (work *)argument;
    training t;
    mpt_config config = mpt_config_default();
    config.seed = w->seed;
    config.threads = w->threads;
    mpt_context *context = mpt_create(&config);
    busy_lock();
    busiest = context;
    busy_unlock();
    make_training(&t, context, w->precision, 0);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) mpt_set_scale(t.scaler, 1e30); /* a step that overflows */
        train_step(&t);
    }
    w->hash = training_hash(&t);
    snprintf(w->error, sizeof w->error, "%s", mpt_error(context));
    busy_lock();
    busiest = NULL;
    busy_unlock();
    mpt_destroy(context);
}

/* Both at once, over and over, against each alone. */
static void side_by_side(int threads) {
    work alone[CONTEXTS], both[CONTEXTS];
    memset(alone, 0, sizeof alone);
    for (int i = 0; i < CONTEXTS; i++) {
        alone[i].seed = (uint64_t)i + 1;
        alone[i].precision = i ? MPT_BF16 : MPT_F16;
        alone[i].threads = threads;
        do_work(&alone[i]);
        CHECK_EQ_STR(alone[i].error, "");
    }
    CHECK(alone[0].hash != alone[1].hash);
    for (int round = 0; round < 4; round++) {
        worker workers[CONTEXTS];
        memcpy(both, alone, sizeof both);
        for (int i = 0; i < CONTEXTS; i++) both[i].hash = 0;
        for (int i = 0; i < CONTEXTS; i++) worker_begin(&workers[i], do_work, &both[i]);
        for (int i = 0; i < CONTEXTS; i++) worker_end(&workers[i]);
        for (int i = 0; i < CONTEXTS; i++) {
            CHECK_EQ_STR(both[i].error, "");
            CHECK(both[i].hash == alone[i].hash);
        }
    }
}

TEST(two_contexts_on_two_threads) { side_by_side(1); }

TEST(two_contexts_with_pools_of_threads) {
    mpt_config config = mpt_config_default();
    config.threads = 2;
    mpt_context *context = mpt_create(&config);
    const bool pools = mpt_get_threads(context) == 2;
    mpt_destroy(context);
    if (!pools) SKIP("threads (MPTRAIN_NO_THREADS)");
    side_by_side(2);
}

/* In a child, ThreadSanitizer takes the threads of its parent, which are not there, for leaks. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LEAKS_THREADS
#endif
#endif
#if !defined(_WIN32) && !defined(MPTRAIN_NO_THREADS) && !defined(__SANITIZE_THREAD__)
#define HAVE_FORK
/* Whether that was refused since the context is the parent's. */
static bool refused(mpt_context *context) {
    const bool right = mpt_error_code(context) == MPT_ERROR_THREAD;
    if (!right) printf("\n  %s", mpt_error(context));
    mpt_clear_error(context);
    return right;
}

/* In a child nobody makes the batches of its parent's loaders, whose locks a worker may have held,
   and new ones of that context could not be ended. */
static int child_main(mpt_loader loader, mpt_dataset data) {
    mpt_context *context = loader.context;
    mpt_batch batch;
    int bad = 0;
    alarm(60);
    bad += mpt_loader_next(loader, &batch) || !refused(context);
    bad += mpt_loader_reset(loader) != MPT_ERROR_THREAD || !refused(context);
    bad += mpt_loader_seek(loader, 1, 0) != MPT_ERROR_THREAD || !refused(context);
    bad += mpt_loader_statistics(loader).batches != 0 || !refused(context);
    make_loader_of(context, data, 8, 2, MPT_F32);
    bad += !refused(context);
    bad += mpt_loader_destroy(loader) != MPT_ERROR_THREAD || !refused(context);
    mpt_destroy(context);
    return bad;
}

/* Whether the child comes to its end, as it must however deep in a call its copy of the parent is:
   its memory is left alone, no thread of the parent's is joined. */
static int ends_well(pid_t child) {
    int status = 1;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Another thread forks while this one trains with threads of its own. */
TEST(fork_while_another_thread_trains) {
#ifdef LEAKS_THREADS
    SKIP("fork beside threads, without ThreadSanitizer");
#else
    work w;
    memset(&w, 0, sizeof w);
    w.threads = 2, w.precision = MPT_F16;
    do_work(&w);
    const uint64_t alone = w.hash;
    worker thread;
    worker_begin(&thread, do_work, &w);
    for (int i = 0; i < 40; i++) {
        fflush(stdout);
        busy_lock();
        mpt_context *busy = busiest;
        const pid_t child = fork();
        if (child == 0) {
            alarm(60);
            if (busy && !refused(busy)) _exit(1);
            mpt_destroy(busy);
            _exit(0);
        }
        busy_unlock();
        CHECK(ends_well(child));
    }
    worker_end(&thread);
    CHECK_EQ_STR(w.error, "");
    CHECK(w.hash == alone);
#endif
}

/* A child that goes on where its parent's callback forked: the fit ends with the error. */
static pid_t fitting_child;
static bool fork_in_fit(void *user, const mpt_progress *progress) {
    (void)user;
    if (progress->batch == 2 && fitting_child < 0) fitting_child = fork();
    if (fitting_child == 0) alarm(60);
    return true;
}

TEST(fork_in_the_progress_of_a_fit) {
    training t;
    mpt_config config = mpt_config_default();
    config.threads = 2;
    mpt_context *context = mpt_create(&config);
    mpt_fit_config fit = mpt_fit_config_default();
    make_training(&t, context, MPT_F32, 2);
    fit.epochs = 2, fit.progress = fork_in_fit;
    fitting_child = -1;
    fflush(stdout);
    const mpt_fit_result result = mpt_fit(t.net, t.optimizer, t.loader, &fit);
    if (fitting_child == 0) {
        const bool told = result.status == MPT_ERROR_THREAD && refused(context);
        mpt_destroy(context);
        _exit(told ? 0 : 1);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK(fitting_child > 0 && ends_well(fitting_child));
    mpt_destroy(context);
}

TEST(loaders_in_a_forked_child) {
    training t;
    mpt_batch batch;
    mpt_context *context = mpt_create(NULL);
    make_training(&t, context, MPT_F32, 2);
    CHECK(mpt_loader_next(t.loader, &batch));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(child_main(t.loader, t.data));
    CHECK(ends_well(child));
    CHECK(mpt_loader_next(t.loader, &batch));
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}
#else
TEST(loaders_in_a_forked_child) { SKIP("fork, threads"); }
TEST(fork_while_another_thread_trains) { SKIP("fork, threads"); }
TEST(fork_in_the_progress_of_a_fit) { SKIP("fork, threads"); }
#endif

TEST_TABLE = {T(two_contexts_on_two_threads), T(two_contexts_with_pools_of_threads),
              T(loaders_in_a_forked_child), T(fork_while_another_thread_trains),
              T(fork_in_the_progress_of_a_fit)};
TEST_MAIN
