/* watch.h: thread callbacks that know who holds a lock. They notice when what it guards has changed
 * while nobody held it, when somebody waits for a condition, wakes those who wait or lets go
 * without holding it, and when a thread ends with it. For tests that hold the implementation. */
#ifndef TEST_WATCH_H
#define TEST_WATCH_H

enum { WATCHED = 128 };

typedef struct watch {
    mpt_threads real;
    void *mutex; /* the last one that was made */
    void *loose; /* woken without the lock on purpose */
    int (*guarded)(const void *object, int64_t out[WATCHED]); /* how many numbers it guards */
    const void *object;                                       /* NULL: not yet */
    int64_t kept[WATCHED];                                    /* as they were when it was let go */
    int64_t owner;
    int32_t wakes, loose_wakes, faults;
} watch;

typedef struct watched_entry {
    watch *w;
    void (*entry)(void *argument);
    void *argument;
} watched_entry;

/* How often a thread has got the lock; the address tells threads apart. */
static MPT__THREAD_LOCAL int32_t watch_locks;

static int64_t watch_me(void) { return (int64_t)(uintptr_t)&watch_locks; }
static bool watch_mine(watch *w) { return mpt__atomic_load64(&w->owner) == watch_me(); }

static void watch_fault(watch *w, const char *what) {
    if (mpt__atomic_add32(&w->faults, 1) < 5) printf("\n  %s", what);
}

static void watch_acquired(watch *w, void *mutex) {
    int64_t now[WATCHED];
    if (mutex != w->mutex) return;
    mpt__atomic_store64(&w->owner, watch_me());
    watch_locks++;
    if (!w->object) return;
    const int count = w->guarded(w->object, now);
    if (memcmp(now, w->kept, (size_t)count * sizeof *now) != 0)
        watch_fault(w, "what a lock guards changed without it");
}

/* Whether the calling thread has the lock that it lets go. */
static bool watch_released(watch *w, void *mutex, const char *what) {
    if (mutex != w->mutex) return true;
    if (!watch_mine(w)) {
        watch_fault(w, what);
        return false;
    }
    if (w->object) w->guarded(w->object, w->kept);
    mpt__atomic_store64(&w->owner, 0);
    return true;
}

static void watch_lock(void *user, void *mutex) {
    watch *w = (watch *)user;
    w->real.mutex_lock(w->real.user, mutex);
    watch_acquired(w, mutex);
}

static void watch_unlock(void *user, void *mutex) {
    watch *w = (watch *)user;
    if (watch_released(w, mutex, "a lock is let go by who does not hold it"))
        w->real.mutex_unlock(w->real.user, mutex);
}

static void watch_wait(void *user, void *condition, void *mutex) {
    watch *w = (watch *)user;
    const bool held = watch_released(w, mutex, "waits without the lock");
    if (!held) w->real.mutex_lock(w->real.user, mutex);
    w->real.condition_wait(w->real.user, condition, mutex);
    if (held) watch_acquired(w, mutex);
    if (!held) w->real.mutex_unlock(w->real.user, mutex);
}

static void watch_wake(void *user, void *condition) {
    watch *w = (watch *)user;
    mpt__atomic_add32(condition == w->loose ? &w->loose_wakes : &w->wakes, 1);
    if (condition != w->loose && !watch_mine(w)) watch_fault(w, "wakes without the lock");
    w->real.condition_broadcast(w->real.user, condition);
}

static int watch_mutex_create(void *user, void **mutex) {
    watch *w = (watch *)user;
    const int status = w->real.mutex_create(w->real.user, mutex);
    w->mutex = *mutex;
    return status;
}

static void watch_mutex_destroy(void *user, void *mutex) {
    watch *w = (watch *)user;
    w->real.mutex_destroy(w->real.user, mutex);
}

static int watch_condition_create(void *user, void **condition) {
    watch *w = (watch *)user;
    return w->real.condition_create(w->real.user, condition);
}

static void watch_condition_destroy(void *user, void *condition) {
    watch *w = (watch *)user;
    w->real.condition_destroy(w->real.user, condition);
}

static void watch_main(void *argument) {
    watched_entry entry = *(watched_entry *)argument;
    free(argument);
    entry.entry(entry.argument);
    if (!watch_mine(entry.w)) return;
    watch_fault(entry.w, "a thread ends with the lock");
    watch_unlock(entry.w, entry.w->mutex);
}

static int watch_create(void *user, void **thread, void (*entry)(void *argument), void *argument) {
    watch *w = (watch *)user;
    watched_entry *one = (watched_entry *)malloc(sizeof *one);
    if (!one) return 1;
    one->w = w, one->entry = entry, one->argument = argument;
    return w->real.create(w->real.user, thread, watch_main, one);
}

static int watch_join(void *user, void *thread) {
    watch *w = (watch *)user;
    return w->real.join(w->real.user, thread);
}

/* `threads`, from then on watched. */
static void watch_use(watch *w, mpt_threads *threads,
                      int (*guarded)(const void *object, int64_t out[WATCHED])) {
    memset(w, 0, sizeof *w);
    w->real = *threads;
    w->guarded = guarded;
    threads->create = watch_create, threads->join = watch_join;
    threads->mutex_create = watch_mutex_create, threads->mutex_destroy = watch_mutex_destroy;
    threads->mutex_lock = watch_lock, threads->mutex_unlock = watch_unlock;
    threads->condition_create = watch_condition_create;
    threads->condition_destroy = watch_condition_destroy;
    threads->condition_wait = watch_wait, threads->condition_broadcast = watch_wake;
    threads->user = w;
}

/* What the lock guards, once there is such a thing. */
static void watch_object(watch *w, const void *object, void *loose) {
    watch_lock(w, w->mutex);
    w->object = object, w->loose = loose;
    watch_unlock(w, w->mutex);
}

#endif
