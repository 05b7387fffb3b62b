/* ---------------------------------------------------------------------------------------------
 * 11_parallel.c: the thread pool of a context.
 *
 * Work comes as numbered chunks whose borders depend on the problem alone, never on the number of
 * threads: that is why no result changes with it. Chunks are claimed from one counter.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__11_PARALLEL_INCLUDED
#define MPT__11_PARALLEL_INCLUDED

#include "10_base.c"

/* ==== Contract ==== */

/* One chunk of work: `thread` is 0 for the caller, else the pool thread's number. Must not touch
   the base (no errors, no log, no memory). */
typedef void (*mpt__chunk_fn)(void *work, int64_t chunk, int thread);

typedef struct mpt__pool mpt__pool;

/* `threads` counts the caller; 0 = one per core; at most 64. NULL with an error recorded on
   failure: a thread could not be made, or memory is out. */
static mpt__pool *mpt__pool_create(mpt__base *base, int threads);
static void mpt__pool_destroy(mpt__pool *pool);
static int mpt__pool_threads(const mpt__pool *pool);

/* Runs fn for chunks 0..count-1. `cost` is the work of all chunks in rough nanoseconds of one core:
   below the threshold where waking threads pays, the caller does all of it. Returns when all is
   done. Floating-point state (FTZ/DAZ) of pool threads is that of the caller at the call. Not from
   within a chunk. A null pool means the calling thread alone. */
static void mpt__parallel(mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn,
                          void *work);

/* Runs that used more than one thread, and chunks done by each thread so far. */
static void mpt__pool_counts(const mpt__pool *pool, int64_t *parallel_runs, int64_t by_thread[64]);

/* Flush-to-zero and denormals-are-zero for SIMD compute kernels: returns what was set before. */
static uint32_t mpt__flush_denormals(bool on);
static void mpt__restore_denormals(uint32_t state);

/* ==== Implementation ==== */

/* Below this the caller does all of the work. Measured on two cores of a virtual machine (AMD EPYC,
   Linux 6.18): a spinning thread does its first chunk 0.3 us after the call, a sleeping one after
   35 to 60 us, and waking it costs the caller 5. So 100 us of work is about where a sleeper begins
   to pay; the 784-128-64-10 net at batch 64 was slower on two threads than on one. */
#define MPT__PARALLEL_COST 100000

/* Idle threads spin this often, about 8 us here (30 ns each), then sleep: it bridges the gap
   between two kernels of a step. None spins where threads outnumber cores. */
#define MPT__POOL_SPINS 256

#define MPT__POOL_MAX_THREADS 64

/* What the gate holds: who is in, whether more may enter, and the number of the run above both. */
#define MPT__GATE_INSIDE ((int64_t)0xffff)
#define MPT__GATE_OPEN ((int64_t)1 << 16)
#define MPT__GATE_RUN ((int64_t)1 << 17)

typedef struct mpt__pool_thread {
    mpt__pool *pool;
    void *handle;
    int64_t chunks; /* written inside the gate only */
    int number;
    char padding[64 - 2 * sizeof(void *) - sizeof(int64_t) - sizeof(int)];
} mpt__pool_thread;

struct mpt__pool {
    /* The run under way, written while the gate is shut and empty. */
    mpt__chunk_fn fn;
    void *work;
    int64_t count;
    uint32_t float_state;
    char padding_a[64];
    int64_t next; /* chunk to claim */
    char padding_b[64];
    int64_t gate;
    int32_t sleepers;     /* threads that wait for `opened` */
    int32_t caller_waits; /* 1 while the caller waits for `emptied` */
    int32_t stop;
    int32_t helped; /* 1 once a pool thread did a chunk of this run */
    char padding_c[64];
    mpt__base *base;
    void *mutex, *opened, *emptied;
    int threads;
    int started; /* pool threads that run */
    int spins;
    int64_t parallel_runs;
    mpt__pool_thread thread[MPT__POOL_MAX_THREADS]; /* 0 is the caller */
};

/* Claims and runs chunks until none is left. Returns how many it did. */
static int64_t mpt__pool_work(mpt__pool *pool, int thread) {
    const int64_t count = pool->count;
    int64_t done = 0;
    for (;;) {
        const int64_t chunk = mpt__atomic_add64(&pool->next, 1);
        if (chunk >= count) return done;
        pool->fn(pool->work, chunk, thread);
        done++;
    }
}

/* Enters through the gate unless it is shut or `last` is the run behind it. */
static bool mpt__pool_enter(mpt__pool *pool, int64_t *last) {
    int64_t gate = mpt__atomic_load64(&pool->gate);
    while ((gate & MPT__GATE_OPEN) && gate / MPT__GATE_RUN != *last) {
        if (mpt__atomic_cas64(&pool->gate, gate, gate + 1)) {
            *last = gate / MPT__GATE_RUN;
            return true;
        }
        gate = mpt__atomic_load64(&pool->gate);
    }
    return false;
}

/* The last one out of a shut gate wakes a caller that sleeps for it. */
static void mpt__pool_leave(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    const int64_t before = mpt__atomic_add64(&pool->gate, -1);
    if ((before & (MPT__GATE_OPEN | MPT__GATE_INSIDE)) != 1) return;
    if (!mpt__atomic_load32(&pool->caller_waits)) return;
    t->mutex_lock(t->user, pool->mutex);
    t->condition_broadcast(t->user, pool->emptied);
    t->mutex_unlock(t->user, pool->mutex);
}

/* Spins, then sleeps, until there is a run to enter (true) or the pool stops (false). */
static bool mpt__pool_await_run(mpt__pool *pool, int64_t *last) {
    const mpt_threads *t = &pool->base->thread;
    bool entered = false;
    for (int i = 0; i < pool->spins; i++) {
        if (mpt__pool_enter(pool, last)) return true;
        mpt__spin_pause();
    }
    t->mutex_lock(t->user, pool->mutex);
    mpt__atomic_add32(&pool->sleepers, 1);
    while (!mpt__atomic_load32(&pool->stop) && !(entered = mpt__pool_enter(pool, last)))
        t->condition_wait(t->user, pool->opened, pool->mutex);
    mpt__atomic_add32(&pool->sleepers, -1);
    t->mutex_unlock(t->user, pool->mutex);
    return entered;
}

static void mpt__pool_main(void *argument) {
    mpt__pool_thread *self = (mpt__pool_thread *)argument;
    mpt__pool *pool = self->pool;
    int64_t last = 0;
    while (mpt__pool_await_run(pool, &last)) {
        int64_t done;
        mpt__set_float_state(pool->float_state);
        done = mpt__pool_work(pool, self->number);
        self->chunks += done;
        if (done) mpt__atomic_store32(&pool->helped, 1);
        mpt__pool_leave(pool);
    }
}

/* Shuts the gate and waits until nobody is inside. */
static void mpt__pool_close(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    mpt__atomic_add64(&pool->gate, -MPT__GATE_OPEN);
    for (int i = 0; i < pool->spins; i++) {
        if (!(mpt__atomic_load64(&pool->gate) & MPT__GATE_INSIDE)) return;
        mpt__spin_pause();
    }
    t->mutex_lock(t->user, pool->mutex);
    mpt__atomic_store32(&pool->caller_waits, 1);
    while (mpt__atomic_load64(&pool->gate) & MPT__GATE_INSIDE)
        t->condition_wait(t->user, pool->emptied, pool->mutex);
    mpt__atomic_store32(&pool->caller_waits, 0);
    t->mutex_unlock(t->user, pool->mutex);
}

static void mpt__parallel(mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn,
                          void *work) {
    const mpt_threads *t;
    int64_t run;
    if (count <= 0) return;
    if (!pool || pool->started == 0 || count == 1 || cost < MPT__PARALLEL_COST) {
        for (int64_t chunk = 0; chunk < count; chunk++) fn(work, chunk, 0);
        if (pool) pool->thread[0].chunks += count;
        return;
    }
    t = &pool->base->thread;
    pool->fn = fn;
    pool->work = work;
    pool->count = count;
    pool->float_state = mpt__float_state();
    mpt__atomic_store64(&pool->next, 0);
    mpt__atomic_store32(&pool->helped, 0);
    run = mpt__atomic_load64(&pool->gate) / MPT__GATE_RUN + 1;
    mpt__atomic_store64(&pool->gate, run * MPT__GATE_RUN + MPT__GATE_OPEN);
    /* A thread counts itself as a sleeper before its last look at the gate: either it sees this
       run, or it is seen here, and the lock waits until it sleeps. Waking it without the lock saves
       it from sleeping once more. */
    if (mpt__atomic_load32(&pool->sleepers)) {
        t->mutex_lock(t->user, pool->mutex);
        t->mutex_unlock(t->user, pool->mutex);
        t->condition_broadcast(t->user, pool->opened);
    }
    pool->thread[0].chunks += mpt__pool_work(pool, 0);
    mpt__pool_close(pool);
    pool->parallel_runs += mpt__atomic_load32(&pool->helped);
}

/* After a fork the child has no pool threads, and locks may be held by nobody: then nothing is
   waited for, and what the thread callbacks made is lost. */
static void mpt__pool_destroy(mpt__pool *pool) {
    mpt__base *base;
    const mpt_threads *t;
    if (!pool) return;
    base = pool->base;
    t = &base->thread;
    if (base->process == mpt__process_id()) {
        if (pool->started > 0) {
            t->mutex_lock(t->user, pool->mutex);
            mpt__atomic_store32(&pool->stop, 1);
            t->condition_broadcast(t->user, pool->opened);
            t->mutex_unlock(t->user, pool->mutex);
        }
        for (int i = 1; i <= pool->started; i++) t->join(t->user, pool->thread[i].handle);
        if (pool->emptied) t->condition_destroy(t->user, pool->emptied);
        if (pool->opened) t->condition_destroy(t->user, pool->opened);
        if (pool->mutex) t->mutex_destroy(t->user, pool->mutex);
    }
    mpt__release(base, pool, sizeof *pool, MPT_MEMORY_HOST);
}

/* Starts the pool threads; false if one could not be made. */
static bool mpt__pool_start(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    if (t->mutex_create(t->user, &pool->mutex) != 0 ||
        t->condition_create(t->user, &pool->opened) != 0 ||
        t->condition_create(t->user, &pool->emptied) != 0)
        return false;
    for (int i = 1; i < pool->threads; i++) {
        mpt__pool_thread *thread = &pool->thread[i];
        thread->pool = pool;
        thread->number = i;
        if (t->create(t->user, &thread->handle, mpt__pool_main, thread) != 0) return false;
        pool->started = i;
    }
    return true;
}

static mpt__pool *mpt__pool_create(mpt__base *base, int threads) {
    mpt__pool *pool = (mpt__pool *)mpt__allocate(base, sizeof *pool, MPT_MEMORY_HOST);
    const int cores = mpt__core_count();
    if (!pool) return NULL;
    if (threads <= 0) threads = cores;
    if (threads > MPT__POOL_MAX_THREADS) threads = MPT__POOL_MAX_THREADS;
#if defined(MPTRAIN_NO_THREADS)
    threads = 1;
#endif
    pool->base = base;
    pool->threads = threads > 1 ? threads : 1;
    pool->spins = threads <= cores ? MPT__POOL_SPINS : 0;
    if (threads > 1 && !mpt__pool_start(pool)) {
        mpt__fail(base, MPT_ERROR_THREAD, "could not make thread %d of %d; set config.threads to "
                  "fewer, or to 1 for none", pool->started + 2, threads);
        mpt__pool_destroy(pool);
        return NULL;
    }
    return pool;
}

static int mpt__pool_threads(const mpt__pool *pool) {
    return pool->threads;
}

static void mpt__pool_counts(const mpt__pool *pool, int64_t *parallel_runs, int64_t by_thread[64]) {
    *parallel_runs = pool->parallel_runs;
    for (int i = 0; i < MPT__POOL_MAX_THREADS; i++) by_thread[i] = pool->thread[i].chunks;
}

static uint32_t mpt__flush_denormals(bool on) {
    const uint32_t before = mpt__float_state();
    const uint32_t after = mpt__float_state_flush(before, on);
    if (after != before) mpt__set_float_state(after);
    return before;
}

static void mpt__restore_denormals(uint32_t state) {
    mpt__set_float_state(state);
}

#endif
