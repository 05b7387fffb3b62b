/* The thread pool and the loader under a scheduler of its own: one thread runs at a time, and at
   each lock, wait, wake, start, end and atomic access it is chosen who goes on. All choices with at
   most so many preemptions are tried, and a thread may wake from a wait for no reason once a run.
   MPTRAIN_SCHEDULES=N allows N preemptions more, which takes minutes. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#undef _FORTIFY_SOURCE /* it takes a jump from one stack to another for a fault */
#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>
#endif
#if defined(__GLIBC__) && defined(__GNUC__) && !defined(MPTRAIN_NO_THREADS) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if defined(__has_feature)
#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define SCHEDULED 1
#endif
#else
#define SCHEDULED 1
#endif
#endif
#if defined(SCHEDULED)
/* The library's atomics, clock, count of cores, and what a thread does that waits awake. */
static void schedule_look(const void *at);
static void schedule_access(const void *at);
static int schedule_clock(struct timespec *time);
static int schedule_cores(void *mask);
static int schedule_yield(void);
#define __atomic_load_n(at, order) (schedule_look(at), __atomic_load_n(at, order))
#define __atomic_store_n(at, value, order) (schedule_access(at), __atomic_store_n(at, value, order))
#define __atomic_fetch_add(at, value, order) \
    (schedule_access(at), __atomic_fetch_add(at, value, order))
#define __atomic_compare_exchange_n(at, expected, desired, weak, good, bad) \
    (schedule_access(at), __atomic_compare_exchange_n(at, expected, desired, weak, good, bad))
#define clock_gettime(clock, time) schedule_clock(time)
#define sched_getaffinity(process, size, mask) schedule_cores(mask)
#define sched_yield() schedule_yield()
#define __builtin_ia32_pause() ((void)0)
#endif
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER
#include "harness.h"

#if defined(SCHEDULED)
#include <setjmp.h>
#include <ucontext.h>

enum { THREADS = 4, STEPS = 4000, OBJECTS = 8, STACK = 512 * 1024 };
enum { UNUSED, READY, WANTS, WAITS, JOINS, ENDED };

typedef struct object {
    int owner;  /* of a mutex: a thread, -1 = nobody */
    int number; /* in the order in which they were made */
} object;

typedef struct strand {
    ucontext_t context; /* where it starts */
    jmp_buf place;      /* where it stopped: to jump there takes no system call */
    bool started;
    int state;
    object *mutex, *condition; /* that it wants or waits for */
    int joins;
    void (*entry)(void *argument);
    void *argument;
} strand;

/* The run under way, and the choices that led to it. */
static struct {
    ucontext_t host;
    strand strands[THREADS];
    object objects[OBJECTS];
    int made, running, preemptions, spurious, steps, depth;
    int chosen[STEPS], options[STEPS];
    const char *fault;
    int bound;
    int lost;   /* planted: the condition whose wakes are lost, -1 = none */
    bool torn;  /* planted: a wait gives up the lock before it sleeps */
    bool awake; /* there are cores enough for threads to wait awake, and time goes on */
    int64_t now;
    const void *looked; /* what the running thread read last, since when nobody else went on */
    bool yields;        /* the running one offers its core */
    bool active;
} plan;

static char stacks[THREADS][STACK];

static bool may_run(const strand *s) {
    if (s->state == WANTS) return s->mutex->owner < 0;
    if (s->state == JOINS) return plan.strands[s->joins].state == ENDED;
    return s->state == READY;
}

static void give_up(const char *fault) {
    plan.fault = fault;
    setcontext(&plan.host);
}

/* Who may go on: the running one first, or last if it offers its core; at the end those that may
   wake for no reason. */
static int list_options(int list[2 * THREADS]) {
    const bool stays = may_run(&plan.strands[plan.running]);
    int n = 0;
    if (stays && !plan.yields) list[n++] = plan.running;
    if (stays && !plan.yields && plan.preemptions >= plan.bound) return n;
    for (int i = 0; i < THREADS; i++)
        if (i != plan.running && may_run(&plan.strands[i])) list[n++] = i;
    if (plan.yields && (n == 0 || plan.preemptions < plan.bound)) list[n++] = plan.running;
    for (int i = 0; n > 0 && plan.spurious == 0 && i < THREADS; i++)
        if (plan.strands[i].state == WAITS) list[n++] = i;
    return n;
}

/* The running thread stops here until it is chosen. */
static void choose(void) {
    int list[2 * THREADS], next;
    const int before = plan.running;
    for (;;) {
        const int n = list_options(list);
        if (n == 0) give_up("nobody can go on");
        if (plan.steps == STEPS) give_up("it does not end");
        if (plan.steps >= plan.depth) plan.chosen[plan.steps] = 0;
        plan.options[plan.steps] = n;
        next = list[plan.chosen[plan.steps++]];
        if (plan.strands[next].state != WAITS) break;
        plan.strands[next].state = WANTS;
        plan.spurious++;
    }
    if (plan.yields ? next == before : next != before && may_run(&plan.strands[before]))
        plan.preemptions++;
    plan.yields = false;
    plan.looked = NULL;
    if (plan.strands[next].state == WANTS) plan.strands[next].mutex->owner = next;
    plan.strands[next].state = READY;
    plan.running = next;
    if (next == before || _setjmp(plan.strands[before].place) != 0) return;
    if (plan.strands[next].started) _longjmp(plan.strands[next].place, 1);
    plan.strands[next].started = true;
    setcontext(&plan.strands[next].context);
}

static void schedule_access(const void *at) {
    if (plan.active && at != (const void *)&mpt__known_process) choose();
}

/* Who looks again without having been interrupted sees what it saw. */
static void schedule_look(const void *at) {
    if (plan.looked == at) return;
    schedule_access(at);
    plan.looked = at;
}

/* Where threads outnumber cores they sleep at once, and time decides nothing. */
static int schedule_clock(struct timespec *time) {
    memset(time, 0, sizeof *time);
    if (plan.awake) time->tv_nsec = (long)(plan.now += 30000);
    return 0;
}

static int schedule_cores(void *mask) {
    const uint64_t cores = plan.awake ? 0xff : 1;
    memcpy(mask, &cores, sizeof cores);
    return 0;
}

static int schedule_yield(void) {
    plan.yields = true;
    choose();
    return 0;
}

static void strand_main(void) {
    strand *self = &plan.strands[plan.running];
    self->entry(self->argument);
    self->state = ENDED;
    if (self != plan.strands) choose();
    for (int i = 0; i < THREADS; i++)
        if (plan.strands[i].state != UNUSED && plan.strands[i].state != ENDED)
            give_up("a thread outlives its owner");
    setcontext(&plan.host);
}

static int schedule_create(void *user, void **thread, void (*entry)(void *argument),
                           void *argument) {
    int i = 0;
    (void)user;
    while (i < THREADS && plan.strands[i].state != UNUSED) i++;
    if (i == THREADS) return 1;
    strand *s = &plan.strands[i];
    s->entry = entry, s->argument = argument, s->state = READY;
    s->started = i == 0;
    getcontext(&s->context);
    s->context.uc_stack.ss_sp = stacks[i];
    s->context.uc_stack.ss_size = STACK;
    s->context.uc_link = NULL;
    makecontext(&s->context, strand_main, 0);
    *thread = s;
    if (i > 0) choose();
    return 0;
}

static int schedule_join(void *user, void *thread) {
    (void)user;
    plan.strands[plan.running].joins = (int)((strand *)thread - plan.strands);
    plan.strands[plan.running].state = JOINS;
    choose();
    ((strand *)thread)->state = UNUSED;
    return 0;
}

static int schedule_object(void *user, void **made) {
    (void)user;
    if (plan.made == OBJECTS) return 1;
    plan.objects[plan.made].owner = -1;
    plan.objects[plan.made].number = plan.made;
    *made = &plan.objects[plan.made++];
    return 0;
}

static void schedule_gone(void *user, void *made) {
    (void)user;
    if (((object *)made)->owner >= 0) give_up("a lock ends that somebody holds");
}

static void schedule_lock(void *user, void *mutex) {
    strand *self = &plan.strands[plan.running];
    (void)user;
    self->mutex = (object *)mutex;
    self->state = WANTS;
    choose();
}

static void schedule_unlock(void *user, void *mutex) {
    (void)user;
    if (((object *)mutex)->owner != plan.running) give_up("unlocks what it does not hold");
    ((object *)mutex)->owner = -1;
    choose();
}

static void schedule_wait(void *user, void *condition, void *mutex) {
    strand *self = &plan.strands[plan.running];
    (void)user;
    choose(); /* who wakes without the lock may do so just now */
    if (((object *)mutex)->owner != plan.running) give_up("waits without the lock");
    ((object *)mutex)->owner = -1;
    if (plan.torn) choose();
    self->mutex = (object *)mutex;
    self->condition = (object *)condition;
    self->state = WAITS;
    choose();
}

static void schedule_wake(void *user, void *condition) {
    (void)user;
    choose();
    if (((object *)condition)->number == plan.lost) return;
    for (int i = 0; i < THREADS; i++)
        if (plan.strands[i].state == WAITS && plan.strands[i].condition == condition)
            plan.strands[i].state = WANTS;
}

static const mpt_threads scheduled = {
    schedule_create, schedule_join, schedule_object, schedule_gone, schedule_lock, schedule_unlock,
    schedule_object, schedule_gone, schedule_wait,   schedule_wake, NULL};

/* One run of `body`, as `plan.chosen` has it up to `plan.depth`. */
static void run_once(void (*body)(void *argument), void *argument) {
    volatile bool again = false;
    void *first;
    memset(plan.strands, 0, sizeof plan.strands);
    plan.made = plan.running = plan.preemptions = plan.spurious = plan.steps = 0;
    plan.now = 0, plan.looked = NULL, plan.yields = false;
    schedule_create(NULL, &first, body, argument);
    getcontext(&plan.host);
    if (!again) {
        again = true;
        plan.active = true;
        setcontext(&plan.strands[0].context);
    }
    plan.active = false;
}

/* Runs `body` in all ways, to the first fault, which it returns, or NULL. */
static const char *explore(const char *name, int bound, void (*body)(void *argument),
                           void *argument) {
    const char *more = getenv("MPTRAIN_SCHEDULES");
    const int failures = test_failures;
    long runs = 0;
    plan.bound = bound + (more ? atoi(more) : 0);
    plan.depth = 0;
    plan.fault = NULL;
    do {
        run_once(body, argument);
        runs++;
        while (plan.steps > 0 && plan.chosen[plan.steps - 1] + 1 >= plan.options[plan.steps - 1])
            plan.steps--;
        plan.depth = plan.steps;
        if (plan.depth > 0) plan.chosen[plan.depth - 1]++;
    } while (plan.depth > 0 && !plan.fault && test_failures == failures);
    if (more)
        printf("\n  %s%s: %ld runs, %s", name, plan.awake ? ", awake" : "", runs,
            plan.fault ? plan.fault : "no fault");
    return plan.fault;
}

/* ==== The pool ==== */

typedef struct pool_case {
    int threads, jobs, chunks;
} pool_case;

static void count_chunk(void *work, int64_t chunk, int thread) {
    (void)thread;
    choose(); /* it takes its time */
    ((int *)work)[chunk]++;
}

static void pool_body(void *argument) {
    const pool_case *c = (const pool_case *)argument;
    mpt__base base;
    mpt__base_init(&base, NULL);
    base.thread = scheduled;
    mpt__pool *pool = mpt__pool_create(&base, c->threads);
    if (!pool) give_up("no pool");
    for (int job = 0; job < c->jobs; job++) {
        int done[8] = {0};
        mpt__parallel(pool, c->chunks, INT64_MAX / 2, count_chunk, done);
        for (int i = 0; i < 8; i++)
            if (done[i] != (i < c->chunks)) give_up("a chunk is not done once");
    }
    mpt__pool_destroy(pool);
}

static const char *explore_pool(int bound, int threads, int jobs, int chunks) {
    char name[64];
    pool_case c;
    c.threads = threads, c.jobs = jobs, c.chunks = chunks;
    snprintf(name, sizeof name, "pool of %d, %d jobs of %d chunks", threads, jobs, chunks);
    return explore(name, bound, pool_body, &c);
}

TEST(pool_under_all_schedules) {
    plan.lost = -1;
    CHECK_EQ_STR(explore_pool(3, 2, 1, 2), NULL);
    CHECK_EQ_STR(explore_pool(3, 2, 2, 2), NULL);
    CHECK_EQ_STR(explore_pool(2, 2, 3, 3), NULL);
    CHECK_EQ_STR(explore_pool(2, 3, 1, 3), NULL);
    CHECK_EQ_STR(explore_pool(1, 3, 2, 2), NULL);
    CHECK_EQ_STR(explore_pool(1, 3, 3, 3), NULL);
    plan.awake = true;
    CHECK_EQ_STR(explore_pool(4, 2, 1, 2), NULL);
    CHECK_EQ_STR(explore_pool(3, 2, 2, 2), NULL);
    CHECK_EQ_STR(explore_pool(1, 3, 2, 2), NULL);
    plan.awake = false;
}

/* ==== The loader ==== */

enum { MOST_BATCH = 2 };

typedef struct loader_case {
    mpt_context *context;
    int workers, prefetch, batch, samples;
    int bad;    /* a sample that fails, -1 = none */
    int making; /* samples that workers make just now */
    mpt_dataset dataset;
} loader_case;

static bool make_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    loader_case *c = (loader_case *)user;
    (void)seed, (void)target, (void)error, (void)error_size;
    c->making++;
    choose();
    *(float *)input = (float)index + 1;
    c->making--;
    return index != c->bad;
}

static void expect_batch(const loader_case *c, mpt_loader loader, int number) {
    mpt_batch batch;
    float values[MOST_BATCH];
    const int first = number * c->batch, left = c->samples - first;
    const int size = left < c->batch ? left : c->batch;
    const bool fails = c->bad >= 0 && c->bad / c->batch == number;
    if (mpt_loader_next(loader, &batch) == fails) give_up("no batch, or one that should fail");
    if (fails) {
        if (mpt_error_code(c->context) != MPT_ERROR_IO) give_up("the wrong error");
        mpt_clear_error(c->context);
        return;
    }
    if (batch.index != number || batch.size != size) give_up("a batch out of its turn");
    mpt_read_f32(batch.x, values, size);
    for (int i = 0; i < size; i++)
        if (values[i] != (float)(first + i + 1)) give_up("wrong bytes");
}

/* An epoch to its end, one that is left amid it, a batch of a third, the end amid it. Two workers
   leave out the first, as there are too many schedules. */
static void loader_body(void *argument) {
    loader_case *c = (loader_case *)argument;
    mpt_batch batch;
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = c->batch, config.workers = c->workers, config.prefetch = c->prefetch;
    c->making = 0;
    mpt_loader loader = mpt_loader_create(c->context, c->dataset, &config);
    if (mpt_failed(c->context)) give_up("no loader");
    for (int i = 0; c->workers < 2 && i * c->batch < c->samples; i++) expect_batch(c, loader, i);
    if (c->workers < 2 && mpt_loader_next(loader, &batch)) give_up("a batch too many");
    expect_batch(c, loader, 0);
    mpt_loader_reset(loader);
    if (c->making > 0) give_up("an epoch has ended that a worker works for");
    expect_batch(c, loader, 0);
    mpt_loader_destroy(loader);
}

/* What a fault leaves stays reachable: it may have been told amid a call. */
static const char *explore_loader(int bound, int workers, int prefetch, int batch,
    int samples, int bad) {
    static loader_case c;
    char name[64];
    mpt_user_dataset_config data;
    mpt_config where = mpt_config_default();
    where.threads = 1, where.thread = scheduled;
    c.workers = workers, c.prefetch = prefetch, c.batch = batch, c.samples = samples;
    c.bad = bad;
    c.context = mpt_create(&where);
    memset(&data, 0, sizeof data);
    data.count = samples, data.dtype = MPT_F32, data.shape = MPT_SCALAR;
    data.sample = make_sample, data.user = &c;
    c.dataset = mpt_user_dataset(c.context, &data);
    snprintf(name, sizeof name, "loader, %d workers, prefetch %d, %d of %d samples, bad %d",
        workers, prefetch, batch, samples, bad);
    const char *fault = explore(name, bound, loader_body, &c);
    if (!fault) mpt_destroy(c.context);
    return fault;
}

TEST(loader_under_all_schedules) {
    plan.lost = -1;
    CHECK_EQ_STR(explore_loader(2, 1, 1, 2, 5, -1), NULL);
    CHECK_EQ_STR(explore_loader(2, 1, 2, 2, 5, 1), NULL);
    CHECK_EQ_STR(explore_loader(0, 2, 1, 2, 5, -1), NULL);
    CHECK_EQ_STR(explore_loader(1, 2, 2, 1, 4, -1), NULL);
}

/* ==== What it must find ==== */

/* Wakes of one condition that get lost, and waits that give up the lock before they sleep. */
TEST(planted_faults_are_found) {
    for (int lost = 1; lost <= 2; lost++) {
        plan.lost = lost;
        CHECK_EQ_STR(explore_pool(2, 2, 1, 2), "nobody can go on");
        CHECK_EQ_STR(explore_loader(1, 1, 1, 2, 5, -1), "nobody can go on");
    }
    plan.awake = true;
    plan.lost = 1;
    CHECK_EQ_STR(explore_pool(2, 2, 1, 2), "nobody can go on");
    plan.awake = false;
    plan.lost = -1;
    plan.torn = true;
    CHECK_EQ_STR(explore_pool(2, 2, 1, 2), "nobody can go on");
    CHECK_EQ_STR(explore_loader(1, 1, 1, 2, 5, -1), "nobody can go on");
    plan.torn = false;
}
#else
TEST(pool_under_all_schedules) { SKIP("glibc's contexts, without sanitizers"); }
TEST(loader_under_all_schedules) { SKIP("glibc's contexts, without sanitizers"); }
TEST(planted_faults_are_found) { SKIP("glibc's contexts, without sanitizers"); }
#endif

TEST_TABLE = {T(pool_under_all_schedules), T(loader_under_all_schedules),
              T(planted_faults_are_found)};
TEST_MAIN
