/* ----
 * ground/parallel.c: the thread pool of a context.
 *
 * Work comes as numbered chunks whose borders depend on the problem alone, never on the number of
 * threads: that is why no result changes with it. Chunks are claimed from one counter.
 * ---- */
#ifndef MPT__GROUND_PARALLEL_INCLUDED
#define MPT__GROUND_PARALLEL_INCLUDED

#include "ground/base.c"

/* ==== Contract ==== */

/* One chunk of work: `thread` is 0 for the caller, else the pool thread's number. Must not touch
   the base (no errors, no log, no memory). */
#define MPT__CHUNK_TAKES void *work, int64_t chunk, int thread
typedef void (*mpt__chunk_fn)(MPT__CHUNK_TAKES);

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
static void mpt__parallel(
    mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn, void *work);

/* Runs that used more than one thread, and chunks done by each thread so far. */
static void mpt__pool_counts(const mpt__pool *pool, int64_t *parallel_runs, int64_t by_thread[64]);

/* The state of floats that results are made in, whatever the program has set: to nearest even, no
   traps, denormals as IEEE has them or, for SIMD compute kernels, flushed to zero. Returns what was
   set before. */
static uint32_t mpt__flush_denormals(bool on);
static void mpt__restore_denormals(uint32_t state);
static void mpt__floats_end(const uint32_t *before);
/* In a kernel, which is launched with denormals as IEEE has them and leaves them so: reading the
   state anew would wait for all arithmetic under way. */
static void mpt__kernel_flushes(bool on);
static void mpt__kernel_flushed(bool on);

/* Whether the state is that, denormals as IEEE has them. */
static bool mpt__floats_plain(void);

/* A declaration: to the end of its block floats are as mpt__flush_denormals(false) has them, then
   again as before. It stands in public functions that compute, or above all that they compute, so
   that results do not depend on what the program has set. MSVC's C has nothing like it: there
   kernels alone are sure of it. */
#if defined(__GNUC__) && (defined(MPT__X86) || defined(MPT__ARM64))
#define MPT__PLAIN_FLOATS \
    const uint32_t floats_before __attribute__((cleanup(mpt__floats_end), unused)) = \
        mpt__flush_denormals(false)
#else
#define MPT__PLAIN_FLOATS (void)0
#endif

/* ==== Implementation ==== */

/* ns of one core. Work below PARALLEL_COST per thread stays with the caller, work below WAKE_COST
   wakes nobody, and a claim takes CLAIM_COST at least. Measured on two cores of a Xeon (Sapphire
   Rapids, KVM, Linux 6.18): a run costs 0.6 us with threads that wait awake, so that 10 us of work
   take 5.6; one that sleeps begins 6 to 20 us after the call (on an EPYC 35 to 60), and waking it
   costs the caller 2 (there 5). A step of the 784-128-64-10 net at batch 64, fp32 and AdamW, is
   1.33 times as fast as on one thread with these figures, 1.15 with 10000 and 100000. */
#define MPT__PARALLEL_COST 5000
#define MPT__WAKE_COST 50000
#define MPT__CLAIM_COST 1000
/* How long a thread without work stays awake (s): about what sleeping and being woken cost. From
   the second look at the clock on it offers its core to others. */
#define MPT__POOL_SPIN 50e-6
#define MPT__POOL_LOOKS 32 /* at the gate before one at the clock: 0.5 us */

/* Where other programs take the cores, a thread may lose its own amid a chunk, and the caller wait
   for milliseconds. After a run in which it waited for longer than it worked, it works alone for so
   many times the wait: waiting then costs 3 %. */
#define MPT__POOL_DISTRUST 32

#define MPT__POOL_MAX_THREADS 64

/* What the gate holds: how many threads are inside, how many more may enter, whether it is open,
   and above them the number of the run. */
#define MPT__GATE_INSIDE ((int64_t)0xff)
#define MPT__GATE_TICKET ((int64_t)1 << 8)
#define MPT__GATE_TICKETS ((int64_t)0xff << 8)
#define MPT__GATE_OPEN ((int64_t)1 << 16)
#define MPT__GATE_RUN ((int64_t)1 << 17)

typedef struct {
    mpt__pool *pool;
    void *handle;
    int64_t chunks; /* written inside the gate only */
    double spin;    /* how long it stays awake the next time */
    int64_t last;   /* the run that it took part in */
    int number;
    char padding[64]; /* its neighbour's line is not its own */
} mpt__pool_thread;

struct mpt__pool {
    /* The run under way, written while the gate is shut and empty. */
    mpt__chunk_fn fn;
    void *work;
    int64_t count, grain; /* chunks in all and of one claim */
    uint32_t float_state;
    char padding_a[64];
    int64_t next; /* chunk to claim */
    char padding_b[64];
    int64_t gate;
    int32_t sleepers;     /* threads that wait for `opened` and that nobody has woken yet */
    int32_t caller_waits; /* 1 while the caller waits for `emptied` */
    int32_t stop;
    char padding_c[64];
    mpt__base *base;
    void *mutex, *opened, *emptied;
    int threads;
    int started;  /* pool threads that run */
    double spin;  /* MPT__POOL_SPIN, or 0 where threads outnumber cores */
    double alone; /* ns of work that the caller does without the others */
    int64_t parallel_runs;
    mpt__pool_thread thread[MPT__POOL_MAX_THREADS]; /* 0 is the caller */
};

/* Claims and runs chunks until none is left. Returns how many it did. */
static int64_t mpt__pool_work(mpt__pool *pool, int thread) {
    int64_t count = pool->count, grain = pool->grain;
    int64_t done = 0;
    for (;;) {
        int64_t chunk = mpt__atomic_add64(&pool->next, grain);
        int64_t end = chunk + grain < count ? chunk + grain : count;
        if (chunk >= count) return done;
        done += end - chunk;
        for (; chunk < end; chunk++) pool->fn(pool->work, chunk, thread);
    }
}

/* Enters through the gate unless it is shut, or enough did, or this was its last run. */
static bool mpt__pool_enter(mpt__pool_thread *self) {
    int64_t *at = &self->pool->gate, gate = mpt__atomic_load64(at);
    while ((gate & MPT__GATE_OPEN) && (gate & MPT__GATE_TICKETS) &&
        gate / MPT__GATE_RUN != self->last) {
        if (mpt__atomic_cas64(at, gate, gate + 1 - MPT__GATE_TICKET)) {
            self->last = gate / MPT__GATE_RUN;
            return true;
        }
        gate = mpt__atomic_load64(at);
    }
    return false;
}

/* The last one out of a shut gate wakes a caller that sleeps for it. */
static void mpt__pool_leave(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    int64_t before = mpt__atomic_add64(&pool->gate, -1);
    if ((before & (MPT__GATE_OPEN | MPT__GATE_INSIDE)) != 1) return;
    if (!mpt__atomic_load32(&pool->caller_waits)) return;
    t->mutex_lock(t->user, pool->mutex);
    t->condition_broadcast(t->user, pool->emptied);
    t->mutex_unlock(t->user, pool->mutex);
}

/* Until there is a run to enter (true) or the pool stops (false). A thread stays awake for as long
   as that paid the last time, so that an idle program, or one whose runs are far apart, takes no
   core from others; one that is woken too late waits for the next run awake. */
static bool mpt__pool_await_run(mpt__pool_thread *self) {
    mpt__pool *pool = self->pool;
    const mpt_threads *t = &pool->base->thread;
    bool entered = false, stop = false;
    while (!entered && !stop) {
        double start = mpt__system_now(NULL);
        for (double now = start; now - start < self->spin; now = mpt__system_now(NULL)) {
            for (int i = 0; i < MPT__POOL_LOOKS; i++) {
                if (mpt__pool_enter(self)) return true;
                mpt__spin_pause();
            }
            mpt__yield();
        }
        t->mutex_lock(t->user, pool->mutex);
        mpt__atomic_add32(&pool->sleepers, 1);
        entered = mpt__pool_enter(self);
        stop = mpt__atomic_load32(&pool->stop) != 0;
        if (entered || stop) {
            mpt__atomic_add32(&pool->sleepers, -1);
        } else {
            t->condition_wait(t->user, pool->opened, pool->mutex);
            entered = mpt__pool_enter(self);
        }
        t->mutex_unlock(t->user, pool->mutex);
        if (!entered || mpt__system_now(NULL) - start < pool->spin) {
            self->spin = pool->spin;
        } else {
            self->spin = self->spin > MPT__POOL_SPIN / 64 ? self->spin / 2 : 0;
        }
    }
    return entered;
}

static void mpt__pool_main(void *argument) {
    MPT__PLAIN_FLOATS; /* a new thread has its maker's */
    mpt__pool_thread *self = (mpt__pool_thread *)argument;
    mpt__pool *pool = self->pool;
    while (mpt__pool_await_run(self)) {
        mpt__set_float_state(pool->float_state);
        self->chunks += mpt__pool_work(pool, self->number);
        mpt__pool_leave(pool);
    }
}

static void mpt__pool_sleep_until_empty(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    t->mutex_lock(t->user, pool->mutex);
    mpt__atomic_add32(&pool->caller_waits, 1); /* a store may pass the load: qemu's on ARM does */
    while (mpt__atomic_load64(&pool->gate) & MPT__GATE_INSIDE)
        t->condition_wait(t->user, pool->emptied, pool->mutex);
    mpt__atomic_add32(&pool->caller_waits, -1);
    t->mutex_unlock(t->user, pool->mutex);
}

/* Shuts the gate and waits until nobody is inside. */
static void mpt__pool_close(mpt__pool *pool, double started) {
    double shut = 0, now = 0;
    mpt__atomic_add64(&pool->gate, -MPT__GATE_OPEN);
    for (int i = 0; mpt__atomic_load64(&pool->gate) & MPT__GATE_INSIDE; i++) {
        if (i % MPT__POOL_LOOKS == 0) {
            now = mpt__system_now(NULL);
            if (i == 0) shut = now;
            if (i > 0) mpt__yield();
            if (now - shut < pool->spin) continue;
            mpt__pool_sleep_until_empty(pool);
            now = mpt__system_now(NULL);
            break;
        }
        mpt__spin_pause();
    }
    if (now - shut > shut - started + MPT__POOL_SPIN)
        pool->alone = (now - shut) * 1e9 * MPT__POOL_DISTRUST;
}

/* Wakes who sleeps. A thread counts itself as a sleeper before its last look at the gate: either
   it sees the run, or it is seen here, and the lock waits until it sleeps. Waking it without the
   lock saves it from sleeping once more. After a fork nobody sleeps here, and one who is gone may
   have the lock. */
static void mpt__pool_wake(mpt__pool *pool) {
    const mpt_threads *t = &pool->base->thread;
    if (pool->base->process != mpt__process_id()) return;
    t->mutex_lock(t->user, pool->mutex);
    mpt__atomic_store32(&pool->sleepers, 0);
    t->mutex_unlock(t->user, pool->mutex);
    t->condition_broadcast(t->user, pool->opened);
}

/* mpt__parallel with helpers. */
static MPT__NOINLINE void mpt__pool_run(
    mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn, void *work) {
    int64_t shares = cost / MPT__PARALLEL_COST;
    int64_t helpers = shares < pool->started ? shares : pool->started;
    int64_t most = count / (4 * (helpers + 1));
    int64_t run, done;
    int32_t sleepers;
    double started;
    pool->grain = (int64_t)((double)count * MPT__CLAIM_COST / (double)cost);
    if (pool->grain > most) pool->grain = most;
    if (pool->grain < 1) pool->grain = 1;
    pool->fn = fn;
    pool->work = work;
    pool->count = count;
    pool->float_state = mpt__float_state();
    started = mpt__system_now(NULL);
    mpt__atomic_store64(&pool->next, 0);
    run = mpt__atomic_load64(&pool->gate) / MPT__GATE_RUN + 1;
    mpt__atomic_store64(
        &pool->gate, run * MPT__GATE_RUN + MPT__GATE_OPEN + helpers * MPT__GATE_TICKET);
    sleepers = mpt__atomic_load32(&pool->sleepers);
    if (cost >= MPT__WAKE_COST && sleepers > 0 && pool->started - sleepers < helpers)
        mpt__pool_wake(pool);
    done = mpt__pool_work(pool, 0);
    mpt__pool_close(pool, started);
    pool->thread[0].chunks += done;
    pool->parallel_runs += done < count;
}

static void mpt__parallel(
    mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn, void *work) {
    if (count <= 0) return;
    if (pool && count > 1 && cost >= MPT__PARALLEL_COST && pool->started > 0 && pool->alone <= 0 &&
        (cost >= MPT__WAKE_COST || mpt__atomic_load32(&pool->sleepers) < pool->started)) {
        mpt__pool_run(pool, count, cost, fn, work);
        return;
    }
    for (int64_t chunk = 0; chunk < count; chunk++) fn(work, chunk, 0);
    if (!pool) return;
    pool->thread[0].chunks += count;
    if (pool->alone > 0) pool->alone -= (double)cost;
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
        thread->spin = pool->spin;
        if (t->create(t->user, &thread->handle, mpt__pool_main, thread) != 0) return false;
        pool->started = i;
    }
    return true;
}

static mpt__pool *mpt__pool_create(mpt__base *base, int threads) {
    mpt__pool *pool = (mpt__pool *)mpt__allocate(base, sizeof *pool, MPT_MEMORY_HOST);
    int cores = mpt__core_count();
    if (!pool) return NULL;
    if (threads <= 0) threads = cores;
    if (threads > MPT__POOL_MAX_THREADS) threads = MPT__POOL_MAX_THREADS;
#if defined(MPTRAIN_NO_THREADS)
    threads = 1;
#endif
    pool->base = base;
    pool->threads = threads > 1 ? threads : 1;
    pool->spin = threads <= cores ? MPT__POOL_SPIN : 0;
    if (threads > 1 && !mpt__pool_start(pool)) {
        mpt__fail(base, MPT_ERROR_THREAD,
            "could not make thread %d of %d; set config.threads to fewer, or to 1 for none",
            pool->started + 2, threads);
        mpt__pool_destroy(pool);
        return NULL;
    }
    return pool;
}

static int mpt__pool_threads(const mpt__pool *pool) { return pool->threads; }

static void mpt__pool_counts(const mpt__pool *pool, int64_t *parallel_runs, int64_t by_thread[64]) {
    *parallel_runs = pool->parallel_runs;
    for (int i = 0; i < MPT__POOL_MAX_THREADS; i++) by_thread[i] = pool->thread[i].chunks;
}

static MPT__NOINLINE uint32_t mpt__flush_denormals(bool on) {
    uint32_t before = mpt__float_state();
    uint32_t after = mpt__float_state_flush((uint32_t)MPT__FLOAT_PLAIN, on);
    if (after != before) mpt__set_float_state(after);
    return before;
}

static void mpt__restore_denormals(uint32_t state) { mpt__set_float_state(state); }

static MPT__FORCE_INLINE bool mpt__floats_plain(void) {
    uint32_t state = (uint32_t)MPT__GET_FLOAT_STATE();
    return (state & (uint32_t)MPT__FLOAT_STATE_BITS) == (uint32_t)MPT__FLOAT_PLAIN;
}

static void mpt__kernel_flushes(bool on) {
    if (on) mpt__set_float_state(mpt__float_state_flush((uint32_t)MPT__FLOAT_PLAIN, true));
}

static void mpt__kernel_flushed(bool on) {
    if (on) mpt__set_float_state((uint32_t)MPT__FLOAT_PLAIN);
}

static MPT__NOINLINE MPT__UNUSED void mpt__floats_end(const uint32_t *before) {
    if (MPT__UNLIKELY(*before != (uint32_t)MPT__FLOAT_PLAIN)) mpt__set_float_state(*before);
}

#endif
