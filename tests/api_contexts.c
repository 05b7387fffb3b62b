/* api_contexts.c: contexts on threads of a program: each has the bits that it has alone. */
#include MPTRAIN_HEADER_FILE
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#endif
#include "harness.h"
#include "training.h"

enum { CONTEXTS = 2, STEPS = 60 };

/* One thread's work: its own context, made and destroyed there. */
typedef struct work {
    uint64_t seed, hash;
    mpt_dtype precision;
    int threads;
    char error[200];
} work;

static void do_work(work *w) {
    training t;
    mpt_config config = mpt_config_default();
    config.seed = w->seed;
    config.threads = w->threads;
    mpt_context *context = mpt_create(&config);
    make_training(&t, context, w->precision, 0);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) mpt_set_scale(t.scaler, 1e30); /* a step that overflows */
        train_step(&t);
    }
    w->hash = training_hash(&t);
    snprintf(w->error, sizeof w->error, "%s", mpt_error(context));
    mpt_destroy(context);
}

#ifdef _WIN32
typedef HANDLE worker;
static DWORD WINAPI worker_main(void *w) { return do_work((work *)w), 0; }
static worker begin(work *w) { return CreateThread(NULL, 0, worker_main, w, 0, NULL); }
static void end(worker thread) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
#else
typedef pthread_t worker;
static void *worker_main(void *w) { return do_work((work *)w), (void *)NULL; }
static worker begin(work *w) {
    worker thread;
    if (pthread_create(&thread, NULL, worker_main, w) != 0) abort();
    return thread;
}
static void end(worker thread) { pthread_join(thread, NULL); }
#endif

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
        for (int i = 0; i < CONTEXTS; i++) workers[i] = begin(&both[i]);
        for (int i = 0; i < CONTEXTS; i++) end(workers[i]);
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

#if !defined(_WIN32) && !defined(MPTRAIN_NO_THREADS) && !defined(__SANITIZE_THREAD__)
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
    bad += mpt_loader_destroy(loader) != MPT_OK;
    mpt_destroy(context);
    return bad;
}

TEST(loaders_in_a_forked_child) {
    int status = 1;
    training t;
    mpt_batch batch;
    mpt_context *context = mpt_create(NULL);
    make_training(&t, context, MPT_F32, 2);
    CHECK(mpt_loader_next(t.loader, &batch));
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) _exit(child_main(t.loader, t.data));
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_EQ_INT(WEXITSTATUS(status), 0);
    CHECK(mpt_loader_next(t.loader, &batch));
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}
#else
TEST(loaders_in_a_forked_child) { SKIP("fork, threads"); }
#endif

TEST_TABLE = {T(two_contexts_on_two_threads), T(two_contexts_with_pools_of_threads),
              T(loaders_in_a_forked_child)};
TEST_MAIN
