/* The thread pool: every chunk once, the same bits for any number of threads, no races. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER
#include "harness.h"
#include "watch.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/wait.h>
#define HAVE_FORK 1
#endif

#define MANY 100000
#define ALWAYS (INT64_MAX / 2) /* a cost above any threshold */

static const int thread_counts[] = {1, 2, 3, 4, 7};
#define COUNTS (sizeof thread_counts / sizeof thread_counts[0])

#if defined(MPTRAIN_NO_THREADS)
#define NEEDS_THREADS SKIP("threads (MPTRAIN_NO_THREADS)")
#else
#define NEEDS_THREADS (void)0
#endif

/* ==== Work ==== */

typedef struct marks {
    int32_t done[MANY];
    int thread[MANY];
} marks;

static marks shared_marks;

static void mark(void *work, int64_t chunk, int thread) {
    marks *m = (marks *)work;
    m->done[chunk]++;
    m->thread[chunk] = thread;
}

/* A sum whose chunks are long enough for others to take their part. */
typedef struct sums {
    int64_t chunks;
    float partial[64];
} sums;

static void sum_chunk(void *work, int64_t chunk, int thread) {
    sums *s = (sums *)work;
    float sum = 0.0f;
    (void)thread;
    for (int i = 1; i < 20000; i++) sum += 1.0f / (float)(i + (int)chunk);
    s->partial[chunk] = sum;
}

/* ==== Tests ==== */

TEST(every_chunk_runs_once) {
    for (size_t c = 0; c < COUNTS; c++) {
        mpt__base base;
        mpt__pool *pool;
        int64_t runs, by_thread[64], total = 0, wrong = 0;
        mpt__base_init(&base, NULL);
        pool = mpt__pool_create(&base, thread_counts[c]);
        REQUIRE(pool != NULL);
        memset(&shared_marks, 0, sizeof shared_marks);
        for (int64_t count = 0, i = 0; i < 200; i++, count = i < 100 ? i : i * 400)
            mpt__parallel(pool, count, ALWAYS, mark, &shared_marks);
        mpt__pool_counts(pool, &runs, by_thread);
        for (int i = 0; i < 64; i++) {
            if (i >= mpt__pool_threads(pool)) CHECK_EQ_INT(by_thread[i], 0);
            total += by_thread[i];
        }
        for (int64_t i = 0, want = 0; i < MANY; i++, want = 0) {
            for (int64_t r = 0; r < 200; r++)
                if ((r < 100 ? r : r * 400) > i) want++;
            if (shared_marks.done[i] != want) wrong++;
            if (shared_marks.thread[i] < 0 || shared_marks.thread[i] >= thread_counts[c]) wrong++;
        }
        CHECK_EQ_INT(wrong, 0);
        CHECK_EQ_INT(total, 99 * 100 / 2 + 400 * (100 + 199) * 100 / 2);
        mpt__pool_destroy(pool);
        CHECK_EQ_INT(base.memory.held, 0);
        CHECK_EQ_INT(base.memory.total_current, 0);
    }
}

TEST(threads_take_part_and_bits_stay) {
    static sums first, now;
    NEEDS_THREADS;
    first.chunks = 64;
    for (size_t c = 0; c < COUNTS; c++) {
        mpt__base base;
        mpt__pool *pool;
        int64_t runs = 0, by_thread[64];
        int helpers = 0;
        mpt__base_init(&base, NULL);
        pool = mpt__pool_create(&base, thread_counts[c]);
        REQUIRE(pool != NULL);
        /* A busy machine may leave a thread out for a while. */
        const double start = mpt__system_now(NULL);
        while (helpers < thread_counts[c] - 1 && mpt__system_now(NULL) - start < 20) {
            sums *s = c == 0 ? &first : &now;
            mpt__parallel(pool, 64, ALWAYS, sum_chunk, s);
            CHECK_EQ_BITS(s->partial, first.partial, sizeof first.partial);
            mpt__pool_counts(pool, &runs, by_thread);
            helpers = 0;
            for (int i = 1; i < 64; i++) helpers += by_thread[i] > 0;
        }
        if (c == 0) mpt__parallel(pool, 64, ALWAYS, sum_chunk, &first);
        CHECK_EQ_INT(helpers, thread_counts[c] - 1);
        CHECK(thread_counts[c] > 1 ? runs > 0 : runs == 0);
        mpt__pool_destroy(pool);
    }
}

TEST(small_work_stays_with_the_caller) {
    mpt__base base;
    mpt__pool *pool;
    int64_t runs, by_thread[64];
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 4);
    REQUIRE(pool != NULL);
    memset(&shared_marks, 0, sizeof shared_marks);
    for (int i = 0; i < 1000; i++)
        mpt__parallel(pool, 50, MPT__PARALLEL_COST - 1, mark, &shared_marks);
    mpt__parallel(pool, 1, ALWAYS, mark, &shared_marks);
    mpt__parallel(pool, 0, ALWAYS, mark, &shared_marks);
    mpt__parallel(pool, -3, ALWAYS, mark, &shared_marks);
    mpt__pool_counts(pool, &runs, by_thread);
    CHECK_EQ_INT(runs, 0);
    CHECK_EQ_INT(by_thread[0], 50001);
    CHECK_EQ_INT(by_thread[1] + by_thread[2] + by_thread[3], 0);
    mpt__parallel(NULL, 10, ALWAYS, mark, &shared_marks);
    CHECK_EQ_INT(shared_marks.done[9], 1001);
    mpt__pool_destroy(pool);
    mpt__pool_destroy(NULL);
}

/* Keeps the calling thread busy. */
static void rest(mpt__base *base, double seconds) {
    const double start = base->clock.now(base->clock.user);
    while (base->clock.now(base->clock.user) - start < seconds) mpt__spin_pause();
}

/* Short runs with pauses between them: the threads fall asleep and must wake. */
TEST(sleepers_wake) {
    mpt__base base;
    mpt__pool *pool;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 3);
    REQUIRE(pool != NULL);
    memset(&shared_marks, 0, sizeof shared_marks);
    for (int i = 0; i < 3000; i++) {
        mpt__parallel(pool, 4, ALWAYS, mark, &shared_marks);
        rest(&base, 1e-6 * (i % 60));
    }
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(shared_marks.done[i], 3000);
    mpt__pool_destroy(pool);
}

/* Chunks of pool threads take long, so that the caller is always the first to be through. */
typedef struct slow_work {
    mpt__base *base;
    int32_t done;
} slow_work;

static void slow_chunk(void *work, int64_t chunk, int thread) {
    slow_work *w = (slow_work *)work;
    (void)chunk;
    rest(w->base, thread ? 200e-6 : 2e-6);
    mpt__atomic_add32(&w->done, 1);
}

TEST(returns_when_all_is_done) {
    mpt__base base;
    mpt__pool *pool;
    slow_work work;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 3);
    REQUIRE(pool != NULL);
    work.base = &base;
    for (int i = 0; i < 300; i++) {
        mpt__atomic_store32(&work.done, 0);
        mpt__parallel(pool, 40, ALWAYS, slow_chunk, &work);
        CHECK_EQ_INT(mpt__atomic_load32(&work.done), 40);
    }
    mpt__pool_destroy(pool);
}

/* Lasts until `wanted` threads are at work, and leaves time for one more to come. */
typedef struct meeting {
    int32_t wanted, here, marked[64];
} meeting;

static void meet(void *work, int64_t chunk, int thread) {
    meeting *m = (meeting *)work;
    const double start = mpt__system_now(NULL);
    (void)chunk;
    if (m->marked[thread]) return;
    m->marked[thread] = 1;
    mpt__atomic_add32(&m->here, 1);
    while (mpt__atomic_load32(&m->here) < m->wanted && mpt__system_now(NULL) - start < 10)
        mpt__yield();
    for (int i = 0; i < 1000; i++) mpt__yield();
}

static void check_meeting(mpt__pool *pool, int64_t cost, int32_t wanted) {
    meeting m;
    memset(&m, 0, sizeof m);
    m.wanted = wanted;
    mpt__parallel(pool, 64, cost, meet, &m);
    CHECK_EQ_INT(m.here, wanted);
    while (pool->alone > 0) /* pays for what the caller waited */
        mpt__parallel(pool, 2, ALWAYS, mark, &shared_marks);
}

TEST(as_many_threads_as_there_is_work_for) {
    enum { HELPERS = MPT__WAKE_COST / MPT__PARALLEL_COST };
    mpt__base base;
    mpt__pool *pool;
    NEEDS_THREADS;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, HELPERS + 20);
    REQUIRE(pool != NULL);
    check_meeting(pool, MPT__WAKE_COST, HELPERS + 1);
    check_meeting(pool, ALWAYS, HELPERS + 20);
    mpt__pool_destroy(pool);
}

/* Threads that are awake take work that would wake none; left alone, they sleep. */
TEST(threads_stay_awake_for_a_while) {
    mpt__base base;
    mpt__pool *pool;
    double start;
    int64_t runs, by_thread[64], before = 0;
    bool helped = false;
    NEEDS_THREADS;
    if (mpt__core_count() < 2) SKIP("a second core");
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 2);
    REQUIRE(pool != NULL);
    start = mpt__system_now(NULL);
    while (!helped && mpt__system_now(NULL) - start < 20) {
        static sums s;
        mpt__parallel(pool, 64, ALWAYS, sum_chunk, &s);
        mpt__pool_counts(pool, &runs, by_thread);
        before = by_thread[1];
        mpt__parallel(pool, 64, MPT__WAKE_COST - 1, sum_chunk, &s);
        mpt__pool_counts(pool, &runs, by_thread);
        helped = by_thread[1] > before;
    }
    CHECK(helped);
    start = mpt__system_now(NULL);
    while (mpt__atomic_load32(&pool->sleepers) < 1 && mpt__system_now(NULL) - start < 10)
        mpt__yield();
    CHECK_EQ_INT(mpt__atomic_load32(&pool->sleepers), 1);
    before = by_thread[1];
    for (int i = 0; i < 100; i++) mpt__parallel(pool, 64, MPT__WAKE_COST - 1, mark, &shared_marks);
    mpt__pool_counts(pool, &runs, by_thread);
    CHECK_EQ_INT(by_thread[1], before);
    mpt__pool_destroy(pool);
}

/* The caller's chunks end as soon as the other thread has one, which is long. */
static void late_chunk(void *work, int64_t chunk, int thread) {
    slow_work *w = (slow_work *)work;
    const double start = mpt__system_now(NULL);
    (void)chunk;
    if (thread) {
        mpt__atomic_store32(&w->done, 1);
        rest(w->base, 20e-3);
    }
    while (!mpt__atomic_load32(&w->done) && mpt__system_now(NULL) - start < 10) mpt__yield();
}

/* A thread that keeps the caller waiting is not asked again for a while. */
TEST(a_slow_thread_is_left_alone) {
    const int64_t cost = 1000000;
    mpt__base base;
    mpt__pool *pool;
    slow_work work;
    int64_t runs, by_thread[64], before;
    NEEDS_THREADS;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 2);
    REQUIRE(pool != NULL);
    work.base = &base;
    for (int run = 0; run < 100 && pool->alone <= 0; run++) {
        work.done = 0;
        mpt__parallel(pool, 2, ALWAYS, late_chunk, &work);
    }
    REQUIRE(pool->alone >= MPT__POOL_SPIN * 1e9 * MPT__POOL_DISTRUST);
    mpt__pool_counts(pool, &runs, by_thread);
    before = by_thread[1];
    CHECK(before > 0);
    while (pool->alone > 0) mpt__parallel(pool, 40, cost, mark, &shared_marks);
    mpt__pool_counts(pool, &runs, by_thread);
    CHECK_EQ_INT(by_thread[1], before);
    mpt__pool_destroy(pool);
}

/* Each chunk notes the floating-point state that it finds. */
static void note_state(void *work, int64_t chunk, int thread) {
    uint32_t *states = (uint32_t *)work;
    float sum = 0.0f;
    for (int i = 1; i < 2000; i++) sum += 1.0f / (float)i;
    states[chunk] = mpt__float_state() + (sum < 0.0f);
    (void)thread;
}

TEST(float_state_reaches_the_threads) {
    static uint32_t states[64];
    mpt__base base;
    mpt__pool *pool;
    uint32_t before;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 3);
    REQUIRE(pool != NULL);
    before = mpt__flush_denormals(true);
    if (mpt__float_state() != mpt__float_state_flush(before, true)) {
        mpt__pool_destroy(pool);
        SKIP("flush-to-zero (valgrind has none)");
    }
    for (int run = 0; run < 100; run++) {
        const uint32_t want = mpt__float_state_flush(before, run % 2 == 0);
        int wrong = 0;
        mpt__flush_denormals(run % 2 == 0);
        mpt__parallel(pool, 64, ALWAYS, note_state, states);
        for (int i = 0; i < 64; i++) wrong += states[i] != want;
        CHECK_EQ_INT(wrong, 0);
    }
    mpt__restore_denormals(before);
    CHECK_EQ_INT(mpt__float_state(), before);
    mpt__pool_destroy(pool);
}

TEST(pool_clamps_threads) {
    mpt__base base;
    mpt__pool *pool;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 0);
    REQUIRE(pool != NULL);
    CHECK_EQ_INT(mpt__pool_threads(pool), mpt__core_count() > 64 ? 64 : mpt__core_count());
    mpt__pool_destroy(pool);
    NEEDS_THREADS;
    pool = mpt__pool_create(&base, 1000);
    REQUIRE(pool != NULL);
    CHECK_EQ_INT(mpt__pool_threads(pool), 64);
    memset(&shared_marks, 0, sizeof shared_marks);
    for (int i = 0; i < 20; i++) mpt__parallel(pool, 1000, ALWAYS, mark, &shared_marks);
    CHECK_EQ_INT(shared_marks.done[999], 20);
    mpt__pool_destroy(pool);
    CHECK_EQ_INT(base.memory.held, 0);
}

/* ==== Locks ==== */

static int guarded_by_pool(const void *object, int64_t out[WATCHED]) {
    const mpt__pool *pool = (const mpt__pool *)object;
    out[0] = mpt__atomic_load32(&pool->sleepers);
    out[1] = mpt__atomic_load32(&pool->caller_waits);
    out[2] = mpt__atomic_load32(&pool->stop);
    return 3;
}

/* Threads that sleep are woken, the caller waits asleep, and all that is told by the lock changes
   under it: else somebody may fall asleep just after the call that should have woken it. Without
   the lock that is rare, and others do the work; here it is told. */
TEST(the_pool_keeps_its_lock) {
    watch w;
    mpt__base base;
    slow_work work;
    NEEDS_THREADS;
    mpt__base_init(&base, NULL);
    watch_use(&w, &base.thread, guarded_by_pool);
    mpt__pool *pool = mpt__pool_create(&base, 3);
    REQUIRE(pool != NULL);
    watch_object(&w, pool, pool->opened);
    work.base = &base, work.done = 0;
    const double start = mpt__system_now(NULL);
    while ((mpt__atomic_load32(&w.loose_wakes) < 10 || mpt__atomic_load32(&w.wakes) < 10) &&
           mpt__system_now(NULL) - start < 20) {
        pool->alone = 0;
        mpt__parallel(pool, 8, ALWAYS, slow_chunk, &work);
        rest(&base, 300e-6); /* until they sleep */
    }
    CHECK(mpt__atomic_load32(&w.loose_wakes) >= 10 && mpt__atomic_load32(&w.wakes) >= 10);
    mpt__pool_destroy(pool);
    CHECK_EQ_INT(w.faults, 0);
}

static int guarded_by_loader(const void *object, int64_t out[WATCHED]) {
    const mpt__loader *loader = (const mpt__loader *)object;
    int n = 0;
    out[n++] = loader->claimed, out[n++] = loader->limit;
    out[n++] = loader->busy, out[n++] = loader->stop;
    for (int64_t i = 0; i < loader->slot_count; i++) out[n++] = loader->slots[i].ready;
    for (int i = 0; i < MPT__MAX_WORKERS; i++) out[n++] = loader->workers[i].samples;
    return n;
}

/* How many samples are being made; those of the first batch take long. */
static bool slow_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    int32_t *inside = (int32_t *)user;
    const double start = mpt__system_now(NULL);
    (void)seed, (void)target, (void)error, (void)error_size;
    mpt__atomic_add32(inside, 1);
    while (index < 2 && mpt__system_now(NULL) - start < 4e-3) mpt__yield();
    *(float *)input = (float)index;
    mpt__atomic_add32(inside, -1);
    return true;
}

/* One batch. The owner gives the last one back and takes this one, each under the lock. */
static bool next_under_lock(mpt_loader loader) {
    mpt_batch batch;
    float values[2];
    const int32_t before = watch_locks;
    const bool more = mpt_loader_next(loader, &batch);
    CHECK(watch_locks - before >= 2);
    if (!more) return false;
    CHECK_EQ_INT(mpt_read_f32(batch.x, values, 2), MPT_OK);
    CHECK(values[0] == (float)(2 * batch.index) && values[1] == values[0] + 1);
    return true;
}

TEST(a_loader_keeps_its_lock) {
    watch w;
    mpt__base base;
    int32_t inside = 0;
    mpt_user_dataset_config data;
    mpt_loader_config config = mpt_loader_config_default();
    mpt_config where = mpt_config_default();
    NEEDS_THREADS;
    mpt__base_init(&base, NULL);
    where.threads = 1, where.thread = base.thread;
    watch_use(&w, &where.thread, guarded_by_loader);
    mpt_context *context = mpt_create(&where);
    REQUIRE(context != NULL);
    memset(&data, 0, sizeof data);
    data.count = 24, data.dtype = MPT_F32, data.shape = MPT_SCALAR;
    data.sample = slow_sample, data.user = &inside;
    config.batch = 2, config.workers = 2;
    mpt_loader loader = mpt_loader_create(context, mpt_user_dataset(context, &data), &config);
    REQUIRE(!mpt_failed(context));
    watch_object(&w, mpt__loader_at(context, loader), NULL);
    for (int epoch = 0; epoch < 4; epoch++) {
        for (int i = 0; i < 12; i++) CHECK(next_under_lock(loader));
        CHECK(!next_under_lock(loader)); /* gives back, ends the epoch */
        const int32_t before = watch_locks;
        CHECK_EQ_INT(mpt_loader_statistics(loader).batches, 12 * (epoch + 1) + epoch);
        CHECK_EQ_INT(watch_locks, before + 1);
        CHECK(next_under_lock(loader));
        for (int end = 0; end < 2; end++) { /* both return when nobody makes a sample */
            CHECK_EQ_INT(mpt_loader_seek(loader, 2 * epoch, 0), MPT_OK);
            const double start = mpt__system_now(NULL);
            while (!mpt__atomic_load32(&inside) && mpt__system_now(NULL) - start < 10) mpt__yield();
            CHECK_EQ_INT(end ? mpt_loader_reset(loader) : mpt_loader_seek(loader, 9, 12), MPT_OK);
            CHECK_EQ_INT(mpt__atomic_load32(&inside), 0);
        }
        CHECK(watch_locks - before >= 12);
    }
    mpt_loader_destroy(loader);
    CHECK_EQ_INT(mpt__atomic_load32(&inside), 0);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
    CHECK_EQ_INT(w.faults, 0);
}

/* ==== Failing callbacks ==== */

static mpt_threads real;
static int creations_left;

static int create_or_fail(void *user, void **thread, void (*entry)(void *), void *argument) {
    return creations_left-- > 0 ? real.create(user, thread, entry, argument) : -1;
}

static int mutex_or_fail(void *user, void **mutex) {
    return creations_left-- > 0 ? real.mutex_create(user, mutex) : -1;
}

static int condition_or_fail(void *user, void **condition) {
    return creations_left-- > 0 ? real.condition_create(user, condition) : -1;
}

TEST(failing_threads_are_an_error) {
    NEEDS_THREADS;
    /* A mutex, two conditions, three threads: six things that can fail. */
    for (int allowed = 0; allowed <= 6; allowed++) {
        mpt__base base;
        mpt__pool *pool;
        mpt__base_init(&base, NULL);
        real = base.thread;
        base.thread.create = create_or_fail;
        base.thread.mutex_create = mutex_or_fail;
        base.thread.condition_create = condition_or_fail;
        creations_left = allowed;
        pool = mpt__pool_create(&base, 4);
        CHECK((pool != NULL) == (allowed == 6));
        if (allowed < 6) {
            CHECK_EQ_INT(base.status, MPT_ERROR_THREAD);
            CHECK_CONTAINS(base.message, "set config.threads");
        }
        if (allowed == 4) CHECK_CONTAINS(base.message, "could not make thread 3 of 4");
        mpt__pool_destroy(pool);
        CHECK_EQ_INT(base.memory.held, 0);
    }
}

TEST(pool_without_memory_is_an_error) {
    for (int64_t limit = 64; limit < 8192; limit += 96) {
        mpt_config config;
        mpt__base base;
        mpt__pool *pool;
        memset(&config, 0, sizeof config);
        config.memory_limit = limit;
        mpt__base_init(&base, &config);
        pool = mpt__pool_create(&base, 4);
        CHECK((pool == NULL) == (base.status != MPT_OK));
        if (!pool) CHECK_CONTAINS(base.message, "out of memory");
        mpt__pool_destroy(pool);
        CHECK_EQ_INT(base.memory.held, 0);
    }
}

/* A child has none of the pool's threads: it must not wait for them, nor for a lock that one of
   them may have held. */
TEST(pool_ends_in_a_forked_child) {
#if defined(HAVE_FORK) && !defined(__SANITIZE_THREAD__)
    mpt__base base;
    mpt__pool *pool;
    int status = 1;
    pid_t child;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 3);
    REQUIRE(pool != NULL);
    mpt__parallel(pool, 64, ALWAYS, mark, &shared_marks);
    rest(&base, 5e-3); /* the threads fall asleep */
    child = fork();
    if (child == 0) {
        alarm(20);
        if (pool->mutex) base.thread.mutex_lock(base.thread.user, pool->mutex);
        mpt__parallel(pool, 64, ALWAYS, mark, &shared_marks);
        if (pool->mutex) base.thread.mutex_unlock(base.thread.user, pool->mutex);
        mpt__pool_destroy(pool);
        _exit(0);
    }
    /* Its locks and thread records are lost to the child, which is what valgrind ends it for. */
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    mpt__pool_destroy(pool);
    CHECK_EQ_INT(base.memory.held, 0);
#else
    SKIP("fork");
#endif
}

/* ==== Atomics ==== */

typedef struct counters {
    int32_t added32, swapped32;
    int64_t added64, swapped64;
} counters;

static void count_up(void *work, int64_t chunk, int thread) {
    counters *c = (counters *)work;
    (void)chunk, (void)thread;
    for (int i = 0; i < 1000; i++) {
        int32_t old32;
        int64_t old64;
        mpt__atomic_add32(&c->added32, 1);
        mpt__atomic_add64(&c->added64, (int64_t)1 << 32);
        do old32 = mpt__atomic_load32(&c->swapped32);
        while (!mpt__atomic_cas32(&c->swapped32, old32, old32 + 2));
        do old64 = mpt__atomic_load64(&c->swapped64);
        while (!mpt__atomic_cas64(&c->swapped64, old64, old64 + 3));
    }
}

TEST(atomics_lose_nothing) {
    static counters c;
    mpt__base base;
    mpt__pool *pool;
    mpt__base_init(&base, NULL);
    pool = mpt__pool_create(&base, 4);
    REQUIRE(pool != NULL);
    mpt__parallel(pool, 100, ALWAYS, count_up, &c);
    CHECK_EQ_INT(c.added32, 100000);
    CHECK_EQ_INT(c.added64, 100000 * ((int64_t)1 << 32));
    CHECK_EQ_INT(c.swapped32, 200000);
    CHECK_EQ_INT(c.swapped64, 300000);
    mpt__atomic_store32(&c.added32, -5);
    mpt__atomic_store64(&c.added64, INT64_MIN);
    CHECK_EQ_INT(mpt__atomic_load32(&c.added32), -5);
    CHECK_EQ_INT(mpt__atomic_load64(&c.added64), INT64_MIN);
    CHECK(!mpt__atomic_cas32(&c.added32, 0, 1) && !mpt__atomic_cas64(&c.added64, 0, 1));
    mpt__pool_destroy(pool);
}

TEST_TABLE = {T(every_chunk_runs_once),
              T(threads_take_part_and_bits_stay),
              T(small_work_stays_with_the_caller),
              T(sleepers_wake),
              T(returns_when_all_is_done),
              T(as_many_threads_as_there_is_work_for),
              T(threads_stay_awake_for_a_while),
              T(a_slow_thread_is_left_alone),
              T(float_state_reaches_the_threads),
              T(pool_clamps_threads),
              T(failing_threads_are_an_error),
              T(pool_without_memory_is_an_error),
              T(pool_ends_in_a_forked_child),
              T(the_pool_keeps_its_lock),
              T(a_loader_keeps_its_lock),
              T(atomics_lose_nothing)};
TEST_MAIN
