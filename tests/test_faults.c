/* test_faults.c: the allocator, the files and the threads fail, each at every call in turn. Nothing
   may crash or leak; after mpt_clear_error training goes on with the bits of a run that never
   failed. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

#ifndef MPTRAIN_NO_THREADS
#define HAVE_THREADS 1
#endif

/* ==== Out of memory, at every call of the allocator ==== */

enum { STEPS = 6, MAX_RETRIES = 8 };

typedef struct scenario {
    training t;
    mpt_dtype precision; /* MPT_F16: autocast; MPT_BF16: parameters are bf16 */
    int failures;        /* refused calls seen as errors */
    int stuck;
    uint64_t hash;
} scenario;

/* After a piece of work: true if it is to be done again. */
static bool again(scenario *s, int *tries) {
    mpt_context *context = s->t.context;
    if (!mpt_failed(context)) return false;
    s->failures++;
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
    CHECK_CONTAINS(mpt_error(context), "out of memory");
    mpt_clear_error(context);
    CHECK(!mpt_failed(context));
    if (++*tries < MAX_RETRIES) return true;
    s->stuck = 1;
    return false;
}

static void scenario_step(scenario *s, int number) {
    training *t = &s->t;
    mpt_batch b;
    int tries = 0;
    do next_batch(t->loader, &b);
    while (again(s, &tries));
    do {
        mpt_status status = train_on(t, b);
        CHECK_EQ_INT(status, mpt_error_code(t->context));
    } while (again(s, &tries));
    CHECK_EQ_INT(mpt_applied_steps(t->optimizer), number + 1);
    CHECK_EQ_INT(mpt_step_number(t->context), number + 1);
}

static void scenario_make(scenario *s, mpt_context *context) {
    training *t = &s->t;
    mpt_adamw_config config = mpt_adamw_config_default();
    int tries = 0;
    t->context = context;
    t->precision = s->precision == MPT_BF16 ? MPT_F32 : s->precision;
    config.lr = 0.01;
    do t->data = make_data(context, SAMPLES);
    while (again(s, &tries));
    do
        t->loader =
            make_loader_of(context, t->data, 8, 0, s->precision == MPT_BF16 ? MPT_BF16 : MPT_F32);
    while (again(s, &tries));
    do t->net = make_unnamed_net(context);
    while (again(s, &tries));
    if (s->precision == MPT_BF16) do
            mpt_half(t->net, MPT_BF16);
        while (again(s, &tries));
    do t->optimizer = mpt_adamw(t->net, &config);
    while (again(s, &tries));
    do t->scaler = mpt_grad_scaler(context, NULL);
    while (again(s, &tries));
}

/* From mpt_create to mpt_destroy, each piece until it works. */
static void scenario_run(scenario *s, mpt_dtype precision, mpt_config *config, disk *d) {
    mpt_context *context = NULL;
    memset(s, 0, sizeof *s);
    s->precision = precision;
    for (int i = 0; i < MAX_RETRIES && !context; i++) {
        arena *a = (arena *)config->allocator.user;
        context = mpt_create(config);
        if (context) break;
        s->failures++;
        CHECK_CONTAINS(mpt_error(NULL), "out of memory");
        CHECK_EQ_INT(a->live, 0);
    }
    REQUIRE(context);
    scenario_make(s, context);
    for (int i = 0; i < STEPS && !s->stuck; i++) scenario_step(s, i);
    int tries = 0;
    do mpt_save(s->t.net, "weights");
    while (again(s, &tries));
    do s->hash = training_hash(&s->t);
    while (again(s, &tries));
    CHECK(!s->stuck);
    CHECK_EQ_INT(disk_count(d), 1);
    CHECK_EQ_INT(d->open_now, 0);
    mpt_destroy(context);
}

static void every_allocation_fails(mpt_dtype precision, int64_t failures) {
    mpt_config config = mpt_config_default();
    scenario clean, s;
    arena a;
    disk d;
    config.threads = 1;
    arena_use(&a, &config);
    disk_use(&d, &config);
    scenario_run(&clean, precision, &config, &d);
    int64_t calls = a.calls;
    CHECK_EQ_INT(clean.failures, 0);
    CHECK_EQ_INT(a.live, 0);
    CHECK_EQ_INT(a.torn, 0);
    CHECK(calls > 50);
    disk_file *file = disk_find(&d, "weights", 0);
    REQUIRE(file != NULL);
    size_t bytes = file->bytes;
    char *saved = (char *)malloc(bytes);
    memcpy(saved, file->data, bytes);
    int refused = 0, failed = 0;
    for (int64_t n = 1; n <= calls && test_failures == 0; n++) {
        disk_free(&d);
        arena_use(&a, &config);
        disk_use(&d, &config);
        a.fail_at = n, a.failures = failures;
        scenario_run(&s, precision, &config, &d);
        refused += a.refused > 0;
        failed += s.failures > 0;
        CHECK_EQ_INT(a.live, 0);
        CHECK_EQ_INT(a.blocks, 0);
        CHECK_EQ_INT(a.torn, 0);
        CHECK(s.hash == clean.hash);
        file = disk_find(&d, "weights", 0);
        CHECK(file && file->bytes == bytes && memcmp(file->data, saved, bytes) == 0);
        if (test_failures) printf("\n  with allocation %lld refused", (long long)n);
    }
    CHECK_EQ_INT(refused, (int)calls); /* each of them was reached */
    /* Where memory lies idle it is given back and asked for again: a help against one refusal. */
    CHECK(refused - failed <= (failures == 1 ? 20 : 0));
    free(saved);
    disk_free(&d);
}

TEST(allocations_fail_fp16) { every_allocation_fails(MPT_F16, 1); }
TEST(allocations_fail_pure_half) { every_allocation_fails(MPT_BF16, 1); }
TEST(allocations_fail_twice) { every_allocation_fails(MPT_F16, 2); }

/* A step after mpt_optimizer_add moved a parameter from one group to another, or, where call number
   `at` and all behind it are refused, did not; *failed tells. */
static uint64_t regrouped(int64_t at, bool *failed) {
    mpt_config config = mpt_config_default();
    const mpt_group_config slow = {0.125, 0}, fast = {0.5, 0};
    arena a;
    config.threads = 1;
    arena_use(&a, &config);
    mpt_context *context = mpt_create(&config);
    mpt_module net = make_unnamed_net(context);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, net, "0.weight", &slow), 1);
    mpt_schedule_create(optimizer, mpt_constant_lr(1, 1), MPT_PER_STEP);
    a.fail_at = a.calls + at, a.failures = INT64_MAX / 2;
    *failed = mpt_optimizer_add(optimizer, net, "0.weight", &fast) < 0;
    a.fail_at = 0;
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_optimizer_groups(optimizer), *failed ? 2 : 3);
    mpt_backward(mpt_sum(mpt_parameter(net, "0.weight"), MPT_ALL_DIMS, false));
    mpt_step(optimizer);
    CHECK_EQ_STR(mpt_error(context), "");
    uint64_t hash = mpt_module_hash(net);
    mpt_destroy(context);
    return hash;
}

TEST(group_that_could_not_be_made) {
    bool failed = true;
    uint64_t kept = 0;
    for (int64_t at = 1; failed && at < 100 && test_failures == 0; at++) {
        uint64_t hash = regrouped(at, &failed);
        if (at == 1) CHECK(failed);
        if (at == 1) kept = hash;
        CHECK((hash == kept) == failed);
    }
    CHECK(!failed);
}

/* A batch that could not be handed out is not lost. */
TEST(batch_is_handed_out_later) {
    for (int workers = 0; workers < 3; workers += 2) {
        mpt_config config = mpt_config_default();
        arena a;
        mpt_batch b;
        arena_use(&a, &config);
        mpt_context *context = mpt_create(&config);
        mpt_loader loader =
            make_loader_of(context, make_data(context, SAMPLES), 8, workers, MPT_F32);
        a.fail_at = a.calls + 1, a.failures = 1;
        CHECK(!mpt_loader_next(loader, &b));
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
        mpt_clear_error(context);
        CHECK(mpt_loader_next(loader, &b));
        CHECK_EQ_INT(b.index, 0);
        CHECK(mpt_loader_next(loader, &b));
        CHECK_EQ_INT(b.index, 1);
        mpt_destroy(context);
        CHECK_EQ_INT(a.live, 0);
    }
}

/* ==== Out of memory at a large batch, then a small one ==== */

static uint64_t large_batch_run(bool try_large, mpt_dtype precision) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.memory_limit = 3 << 20;
    mpt_context *context = mpt_create(&config);
    training t;
    make_training(&t, context, precision, 0);
    mpt_tensor leaf = mpt_ones(context, MPT_F32, MPT_SHAPE(1));
    mpt_requires_grad(leaf, true);
    for (int i = 0; i < 3; i++) train_step(&t);
    CHECK_EQ_INT(mpt_error_code(context), MPT_OK);
    uint64_t before = training_hash(&t);
    if (try_large) {
        mpt_batch b;
        memset(&b, 0, sizeof b);
        mpt_dataset data = make_data(context, 16384);
        mpt_loader loader = make_loader_of(context, data, 16384, 0, MPT_F32);
        CHECK(mpt_loader_next(loader, &b));
        CHECK_EQ_INT(mpt_backward(mpt_mul_scalar(leaf, 2.0)), MPT_OK);
        mpt_rand(context, MPT_F32, MPT_SHAPE(3)); /* a draw that the error takes back */
        CHECK_EQ_INT(train_on(&t, b), MPT_ERROR_MEMORY);
        CHECK_CONTAINS(mpt_error(context), "smaller batch");
        CHECK(!mpt_valid(mpt_add_scalar(leaf, 1.0))); /* the error stays until it is cleared */
        CHECK_EQ_INT(mpt_step(t.optimizer), MPT_ERROR_MEMORY);
        mpt_clear_error(context);
        CHECK(
            !mpt_has_grad(leaf)); /* gradients of all leaves are discarded, not only parameters' */
        CHECK(!mpt_has_grad(mpt_parameter(t.net, "0.weight")));
        CHECK_EQ_INT(mpt_step_number(context), 3);
        CHECK(training_hash(&t) == before);
        mpt_loader_destroy(loader);
        mpt_dataset_destroy(data);
    }
    for (int i = 0; i < 3; i++) train_step(&t);
    CHECK_EQ_INT(mpt_error_code(context), MPT_OK);
    uint64_t hash = training_hash(&t);
    CHECK(hash != before);
    mpt_destroy(context);
    return hash;
}

TEST(large_batch_then_small) {
    CHECK(large_batch_run(true, MPT_F32) == large_batch_run(false, MPT_F32));
    CHECK(large_batch_run(true, MPT_F16) == large_batch_run(false, MPT_F16));
}

/* Idle memory of the pool goes back before a request is refused. */
TEST(idle_memory_makes_room) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.memory_limit = 3 << 20;
    mpt_context *context = mpt_create(&config);
    for (int64_t n = 8; n > 2; n--) {
        mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE((n % 2 ? 10 : 2) << 16));
        CHECK(mpt_valid(x));
        mpt_release(x);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* A bad target poisons the step on the device: weights stay, the next one is as if it never was. */
static uint64_t bad_target_run(bool bad) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    mpt_context *context = mpt_create(&config);
    training t;
    make_training(&t, context, MPT_BF16, 0);
    train_step(&t);
    uint64_t before = training_hash(&t);
    if (bad) {
        int64_t targets[8] = {0, 1, 2, 3, 0, 7, 2, 3};
        mpt_batch b;
        memset(&b, 0, sizeof b);
        b.x = mpt_keep(mpt_ones(context, MPT_F32, MPT_SHAPE(8, FEATURES)));
        b.y = mpt_keep(mpt_from(context, MPT_I64, MPT_SHAPE(8), targets));
        train_on(&t, b);
        mpt_synchronize(context);
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_INDEX);
        CHECK_CONTAINS(mpt_error(context), "sample 5");
        mpt_clear_error(context);
        CHECK(training_hash(&t) == before);
    }
    for (int i = 0; i < 3; i++) train_step(&t);
    CHECK_EQ_INT(mpt_error_code(context), MPT_OK);
    uint64_t hash = training_hash(&t);
    mpt_destroy(context);
    return hash;
}

TEST(bad_target_then_good_ones) { CHECK(bad_target_run(true) == bad_target_run(false)); }

/* ==== Files ==== */

static void put_file(disk *d, const char *path, const void *data, size_t bytes) {
    disk_file *file = (disk_file *)disk_open(d, path, 'w');
    disk_write(d, file, data, bytes);
    disk_close(d, file);
}

static void put_idx(disk *d) {
    unsigned char images[16 + 5 * 4] = {0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 2};
    unsigned char labels[8 + 5] = {0, 0, 8, 1, 0, 0, 0, 5, 1, 2, 3, 0, 1};
    for (int i = 0; i < 20; i++) images[16 + i] = (unsigned char)(i * 12);
    put_file(d, "images", images, sizeof images);
    put_file(d, "labels", labels, sizeof labels);
}

/* Saving over an older file with callback `callback` failing at its call number `at`. */
static bool save_fails(disk *d, mpt_module net, int callback, int at) {
    memset(d->calls, 0, sizeof d->calls);
    d->fail_at[callback] = at;
    mpt_status status = mpt_save(net, "weights");
    d->fail_at[callback] = 0;
    CHECK_EQ_INT(d->open_now, 0);
    if (d->calls[callback] < at) {
        CHECK_EQ_INT(status, MPT_OK);
        return false;
    }
    CHECK_EQ_INT(status, MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(net.context), "mpt_save");
    CHECK_CONTAINS(mpt_error(net.context), "weights");
    mpt_clear_error(net.context);
    return true;
}

TEST(files_fail_while_saving) {
    static const int writing[] = {DISK_OPEN, DISK_WRITE, DISK_FLUSH, DISK_CLOSE, DISK_COMMIT};
    mpt_config config = mpt_config_default();
    disk d;
    disk_use(&d, &config);
    mpt_context *context = mpt_create(&config);
    training t;
    make_training(&t, context, MPT_F32, 0);
    REQUIRE(mpt_save(t.net, "weights") == MPT_OK);
    disk_file *file = disk_find(&d, "weights", 0);
    size_t bytes = file->bytes;
    char *old = (char *)malloc(bytes);
    memcpy(old, file->data, bytes);
    train_step(&t);
    for (int i = 0; i < 5; i++) {
        int n = 1;
        for (; n < 100 && save_fails(&d, t.net, writing[i], n); n++) {
            file = disk_find(&d, "weights", 0); /* the old file is still there, and alone */
            CHECK(file && file->bytes == bytes && memcmp(file->data, old, bytes) == 0);
            CHECK_EQ_INT(disk_count(&d), 1);
        }
        CHECK(n > 1); /* it failed at least once, and then it worked: */
        file = disk_find(&d, "weights", 0);
        CHECK(file && file->bytes == bytes && memcmp(file->data, old, bytes) != 0);
        CHECK_EQ_INT(disk_count(&d), 1);
        disk_remove(&d, "weights");
        put_file(&d, "weights", old, bytes);
    }
    free(old);
    mpt_destroy(context);
    disk_free(&d);
}

TEST(files_fail_while_loading) {
    static const int reading[] = {DISK_OPEN, DISK_READ, DISK_SIZE};
    mpt_config config = mpt_config_default();
    disk d;
    disk_use(&d, &config);
    mpt_context *context = mpt_create(&config);
    training t;
    make_training(&t, context, MPT_F32, 0);
    REQUIRE(mpt_save(t.net, "weights") == MPT_OK);
    for (int i = 0; i < 3; i++) {
        int n = 1, loaded = -1;
        train_step(&t);
        uint64_t before = mpt_module_hash(t.net);
        for (;; n++) {
            memset(d.calls, 0, sizeof d.calls);
            d.fail_at[reading[i]] = n;
            mpt_status status = mpt_load(t.net, "weights", NULL, &loaded);
            d.fail_at[reading[i]] = 0;
            CHECK_EQ_INT(d.open_now, 0);
            if (status == MPT_OK || n > 50) break;
            CHECK_EQ_INT(status, MPT_ERROR_IO);
            CHECK_CONTAINS(mpt_error(context), "mpt_load");
            CHECK_EQ_INT(loaded, 0);
            mpt_clear_error(context);
            CHECK(mpt_module_hash(t.net) == before);
        }
        CHECK(n > 1);
        CHECK_EQ_INT(loaded, 4);
    }
    mpt_destroy(context);
    disk_free(&d);
}

TEST(files_fail_under_a_dataset) {
    static const int reading[] = {DISK_OPEN, DISK_READ, DISK_SIZE, DISK_SEEK};
    mpt_config config = mpt_config_default();
    arena a;
    disk d;
    arena_use(&a, &config);
    disk_use(&d, &config);
    mpt_context *context = mpt_create(&config);
    put_idx(&d);
    for (int i = 0; i < 4; i++) {
        for (int n = 1; n < 50; n++) {
            memset(d.calls, 0, sizeof d.calls);
            d.fail_at[reading[i]] = n;
            mpt_dataset data = mpt_idx(context, "images", "labels");
            d.fail_at[reading[i]] = 0;
            if (mpt_failed(context)) {
                CHECK_EQ_INT(data.slot, 0);
                CHECK_CONTAINS(mpt_error(context), "mpt_idx");
                mpt_clear_error(context);
                CHECK_EQ_INT(d.open_now, 0);
                continue;
            }
            CHECK_EQ_INT(mpt_dataset_size(data), 5);
            float x[4];
            int64_t y = -1;
            CHECK_EQ_INT(mpt_sample(data, 2, x, &y), MPT_OK);
            CHECK_EQ_INT(y, 3);
            CHECK_NEAR(x[1], 9 * 12 / 255.0, 1e-6);
            mpt_dataset_destroy(data);
            if (d.calls[reading[i]] < n) break;
        }
    }
    mpt_destroy(context);
    CHECK_EQ_INT(a.live, 0);
    CHECK_EQ_INT(d.open_now, 0);
    disk_free(&d);
}

/* ==== Threads: create, mutex and condition fail at every call ==== */

#ifdef HAVE_THREADS
#ifdef _WIN32
#include <windows.h>
#else
#include <pthread.h>
#endif

typedef struct factory {
    int calls, fail_at, threads, objects;
} factory;

typedef struct started {
    void (*entry)(void *argument);
    void *argument;
#ifdef _WIN32
    HANDLE handle;
#else
    pthread_t handle;
#endif
} started;

static bool factory_fails(factory *f) { return ++f->calls == f->fail_at; }

#ifdef _WIN32
static DWORD WINAPI started_main(void *s) {
    ((started *)s)->entry(((started *)s)->argument);
    return 0;
}
#else
static void *started_main(void *s) {
    ((started *)s)->entry(((started *)s)->argument);
    return NULL;
}
#endif

static int factory_create(void *user, void **thread, void (*entry)(void *), void *argument) {
    factory *f = (factory *)user;
    if (factory_fails(f)) return 1;
    started *s = (started *)malloc(sizeof *s);
    s->entry = entry, s->argument = argument;
    *thread = s;
    f->threads++;
#ifdef _WIN32
    s->handle = CreateThread(NULL, 0, started_main, s, 0, NULL);
    return s->handle == NULL;
#else
    return pthread_create(&s->handle, NULL, started_main, s);
#endif
}

static int factory_join(void *user, void *thread) {
    started *s = (started *)thread;
#ifdef _WIN32
    WaitForSingleObject(s->handle, INFINITE);
    CloseHandle(s->handle);
#else
    pthread_join(s->handle, NULL);
#endif
    ((factory *)user)->threads--;
    free(s);
    return 0;
}

#ifdef _WIN32
typedef CRITICAL_SECTION os_mutex;
typedef CONDITION_VARIABLE os_condition;
#define os_mutex_init(m) (InitializeCriticalSection(m), 0)
#define os_mutex_destroy(m) DeleteCriticalSection(m)
#define os_lock(m) EnterCriticalSection(m)
#define os_unlock(m) LeaveCriticalSection(m)
#define os_condition_init(c) (InitializeConditionVariable(c), 0)
#define os_condition_destroy(c) ((void)(c))
#define os_wait(c, m) SleepConditionVariableCS(c, m, INFINITE)
#define os_wake(c) WakeAllConditionVariable(c)
#else
typedef pthread_mutex_t os_mutex;
typedef pthread_cond_t os_condition;
#define os_mutex_init(m) pthread_mutex_init(m, NULL)
#define os_mutex_destroy(m) pthread_mutex_destroy(m)
#define os_lock(m) pthread_mutex_lock(m)
#define os_unlock(m) pthread_mutex_unlock(m)
#define os_condition_init(c) pthread_cond_init(c, NULL)
#define os_condition_destroy(c) pthread_cond_destroy(c)
#define os_wait(c, m) pthread_cond_wait(c, m)
#define os_wake(c) pthread_cond_broadcast(c)
#endif

static int factory_mutex(void *user, void **mutex) {
    factory *f = (factory *)user;
    if (factory_fails(f)) return 1;
    *mutex = malloc(sizeof(os_mutex));
    f->objects++;
    return os_mutex_init((os_mutex *)*mutex);
}
static void factory_mutex_destroy(void *user, void *mutex) {
    ((factory *)user)->objects--;
    os_mutex_destroy((os_mutex *)mutex);
    free(mutex);
}
static void factory_lock(void *user, void *mutex) {
    (void)user;
    os_lock((os_mutex *)mutex);
}
static void factory_unlock(void *user, void *mutex) {
    (void)user;
    os_unlock((os_mutex *)mutex);
}
static int factory_condition(void *user, void **condition) {
    factory *f = (factory *)user;
    if (factory_fails(f)) return 1;
    *condition = malloc(sizeof(os_condition));
    f->objects++;
    return os_condition_init((os_condition *)*condition);
}
static void factory_condition_destroy(void *user, void *condition) {
    ((factory *)user)->objects--;
    os_condition_destroy((os_condition *)condition);
    free(condition);
}
static void factory_wait(void *user, void *condition, void *mutex) {
    (void)user;
    os_wait((os_condition *)condition, (os_mutex *)mutex);
}
static void factory_wake(void *user, void *condition) {
    (void)user;
    os_wake((os_condition *)condition);
}

static void factory_use(factory *f, mpt_config *config) {
    memset(f, 0, sizeof *f);
    config->thread.create = factory_create;
    config->thread.join = factory_join;
    config->thread.mutex_create = factory_mutex;
    config->thread.mutex_destroy = factory_mutex_destroy;
    config->thread.mutex_lock = factory_lock;
    config->thread.mutex_unlock = factory_unlock;
    config->thread.condition_create = factory_condition;
    config->thread.condition_destroy = factory_condition_destroy;
    config->thread.condition_wait = factory_wait;
    config->thread.condition_broadcast = factory_wake;
    config->thread.user = f;
}

/* Context with three threads, loader with two workers; whatever fails is done again. */
static uint64_t threads_run(int fail_at, int *calls, int *failures) {
    mpt_config config = mpt_config_default();
    factory f;
    arena a;
    config.threads = 3;
    arena_use(&a, &config);
    factory_use(&f, &config);
    f.fail_at = fail_at;
    mpt_context *context = mpt_create(&config);
    if (!context) {
        (*failures)++;
        CHECK_CONTAINS(mpt_error(NULL), "thread");
        CHECK_EQ_INT(f.threads + f.objects, 0);
        CHECK_EQ_INT(a.live, 0);
        context = mpt_create(&config);
    }
    if (!context) return 0;
    training t;
    make_training(&t, context, MPT_F16, 0);
    mpt_loader loader = make_loader_of(context, t.data, 8, 2, MPT_F32);
    if (mpt_failed(context)) {
        (*failures)++;
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_THREAD);
        CHECK_CONTAINS(mpt_error(context), "mpt_loader_create");
        CHECK_EQ_INT(loader.slot, 0);
        mpt_clear_error(context);
        loader = make_loader_of(context, t.data, 8, 2, MPT_F32);
    }
    mpt_loader_destroy(t.loader);
    t.loader = loader;
    for (int i = 0; i < 7; i++) train_step(&t);
    CHECK_EQ_INT(mpt_error_code(context), MPT_OK);
    uint64_t hash = training_hash(&t);
    mpt_destroy(context);
    CHECK_EQ_INT(f.threads, 0);
    CHECK_EQ_INT(f.objects, 0);
    CHECK_EQ_INT(a.live, 0);
    *calls = f.calls;
    return hash;
}

TEST(threads_fail_to_start) {
    int calls = 0, failures = 0, more;
    uint64_t clean = threads_run(0, &calls, &failures);
    CHECK_EQ_INT(failures, 0);
    CHECK(calls >= 2 + 2 + 3); /* threads, workers, and what they wait on */
    for (int n = 1; n <= calls; n++) CHECK(threads_run(n, &more, &failures) == clean);
    CHECK_EQ_INT(failures, calls);
}
#else
TEST(threads_fail_to_start) { SKIP("threads"); }
#endif

/* ==== Folders of checkpoints, with callbacks that are missing or fail ==== */

#if !defined(MPTRAIN_NO_RESUME)
static void expect(mpt_context *c, mpt_status code, const char *says) {
    CHECK_EQ_INT(mpt_error_code(c), code);
    CHECK_CONTAINS(mpt_error(c), says);
    mpt_clear_error(c);
}

/* A training that is about to open a folder. */
static mpt_context *begin_folder(mpt_config *config, training *t) {
    mpt_context *c = mpt_create(config);
    make_training(t, c, MPT_F32, 0);
    train_step(t);
    return c;
}

/* What is in the way is told; what a folder holds besides checkpoints is left alone. */
TEST(folders_with_less) {
    mpt_config config = mpt_config_default();
    mpt_checkpoint_config saving = mpt_checkpoint_config_default();
    training t;
    disk d;
    char longer[5000];
    disk_use(&d, &config);
    saving.every = 1, saving.keep = 1;
    put_file(&d, "folder/step-0a.safetensors", "", 0);
    put_file(&d, "folder/step-99999999999999999999.safetensors", "", 0);
    put_file(&d, "folder/step-12.txt", "", 0);
    put_file(&d, "folder/other", "", 0);
    config.io.remove = NULL;
    mpt_context *c = begin_folder(&config, &t);
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    mpt_checkpoint_open(c, longer, &saving);
    expect(c, MPT_ERROR_ARGUMENT, "the path is longer than");
    CHECK_EQ_INT(mpt_checkpoint_open(c, "folder//", &saving), MPT_OK); /* goes on from nothing */
    CHECK_EQ_INT(mpt_checkpoint_step(c), MPT_OK); /* nothing is due */
    train_step(&t);
    CHECK_EQ_INT(mpt_checkpoint_step(c), MPT_OK);
    CHECK(disk_find(&d, "folder/step-000000000002.safetensors", 0) != NULL);
    train_step(&t);
    mpt_checkpoint_step(c);
    expect(c, MPT_ERROR_IO, "step-000000000002.safetensors: config.io has no `remove`");
    mpt_checkpoint_close(c);
    mpt_clear_error(c);
    mpt_destroy(c);
    config.io.remove = disk_drop;
    saving.resume = false;
    c = begin_folder(&config, &t);
    d.fail_at[DISK_LIST] = d.calls[DISK_LIST] + 1;
    mpt_checkpoint_open(c, "empty", &saving);
    expect(c, MPT_ERROR_IO, "cannot list empty: ");
    CHECK_EQ_INT(mpt_checkpoint_open(c, "/", &saving), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_close(c), MPT_OK);
    CHECK(disk_find(&d, "//step-000000000001.safetensors", 0) != NULL);
    mpt_destroy(c);
    config.io.list = NULL;
    c = begin_folder(&config, &t);
    mpt_checkpoint_open(c, "empty", &saving);
    expect(c, MPT_ERROR_IO, "cannot list empty: config.io has no `list`");
    mpt_destroy(c);
    CHECK_EQ_INT(d.open_now, 0);
    disk_free(&d);
}

/* A snapshot, and a file of weights, into a net that nobody used yet, with every allocation refused
   in turn: then all of it is there, with the gradients that wait, or an error. */
TEST(states_into_unused_nets) {
    static uint8_t block[1 << 14];
    mpt_config config = mpt_config_default();
    arena a;
    disk d;
    uint64_t hash = 0;
    int64_t refused = 0;
    config.threads = 1;
    disk_use(&d, &config);
    for (int64_t at = 0; at < 200; at++) { /* 0: where the state comes from */
        arena_use(&a, &config);
        mpt_context *c = mpt_create(&config);
        mpt_module net = mpt_nn_linear(c, 3, 2);
        if (at == 0) {
            mpt_backward(mpt_sum(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3))),
                                 MPT_ALL_DIMS, false));
            CHECK_EQ_INT(mpt_snapshot(c, block, sizeof block), MPT_OK);
            CHECK_EQ_INT(mpt_save(net, "weights"), MPT_OK);
            hash = mpt_state_hash(c);
        } else {
            a.fail_at = a.calls + (at + 1) / 2, a.failures = 1 << 30;
            const bool weights = at % 2 == 0;
            weights ? mpt_load(net, "weights", NULL, NULL) : mpt_restore(c, block, sizeof block);
            if (a.refused > 0 && mpt_failed(c)) {
                expect(c, MPT_ERROR_MEMORY, "out of memory");
                refused++;
            }
            a.fail_at = 0;
            CHECK_EQ_INT(mpt_restore(c, block, sizeof block), MPT_OK);
            CHECK(mpt_state_hash(c) == hash);
            if (a.refused == 0 && at > 40) at = 200;
        }
        mpt_destroy(c);
        CHECK_EQ_INT(a.live, 0);
    }
    CHECK(refused >= 4);
    disk_free(&d);
}

static mpt_module ended;

static bool close_and_end(void *user, void *file) {
    mpt_module_destroy(ended);
    return disk_close(user, file);
}

/* Files that cannot be looked into, written or closed, and none to remove what is left with. */
TEST(files_that_fail_twice) {
    mpt_config config = mpt_config_default();
    disk d;
    char longer[5000];
    disk_use(&d, &config);
    config.io.remove = NULL;
    mpt_context *c = mpt_create(&config);
    mpt_module net = mpt_nn_linear(c, 3, 2);
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
    mpt_save(net, longer);
    expect(c, MPT_ERROR_ARGUMENT, "the path is longer than");
    d.fail_at[DISK_WRITE] = d.fail_at[DISK_CLOSE] = 1;
    mpt_save(net, "weights");
    expect(c, MPT_ERROR_IO, "weights: writing");
    put_file(&d, "text", "this is a text and no file of weights at all", 44);
    memset(&d.calls, 0, sizeof d.calls);
    d.fail_at[DISK_READ] = 2;
    mpt_load(net, "text", NULL, NULL);
    expect(c, MPT_ERROR_IO, "text: reading");
    mpt_destroy(c);
    memset(&d.fail_at, 0, sizeof d.fail_at);
    c = mpt_create(&config); /* a net that ends while its weights are read */
    ended = mpt_nn_linear(c, 3, 2);
    CHECK_EQ_INT(mpt_save(ended, "weights"), MPT_OK);
    mpt_destroy(c);
    config.io.close = close_and_end;
    c = mpt_create(&config);
    ended = mpt_nn_linear(c, 3, 2);
    CHECK(mpt_load(ended, "weights", NULL, NULL) != MPT_OK);
    CHECK_CONTAINS(mpt_error(c), "the module was destroyed");
    mpt_destroy(c);
    disk_free(&d);
}

/* A clock that goes back counts no time. */
static double clock_back(void *user) { return (*(double *)user)--; }

TEST(folders_by_a_clock_that_goes_back) {
    mpt_config config = mpt_config_default();
    training t;
    disk d;
    double now = 1e6;
    disk_use(&d, &config);
    config.clock.now = clock_back, config.clock.user = &now;
    mpt_context *c = begin_folder(&config, &t);
    CHECK_EQ_INT(mpt_checkpoint_open(c, "folder", NULL), MPT_OK);
    train_step(&t);
    CHECK_EQ_INT(mpt_checkpoint_best(c, 1), MPT_OK);
    mpt_checkpoint_stats stats = mpt_checkpoint_statistics(c);
    CHECK(stats.files == 1 && stats.seconds == 0 && stats.longest == 0);
    CHECK_EQ_INT(mpt_checkpoint_close(c), MPT_OK);
    mpt_destroy(c);
    disk_free(&d);
}

#ifdef HAVE_THREADS
/* The first time. */
static int failing_join(void *user, void *thread) {
    factory *f = (factory *)user;
    if (f->fail_at != -1) return f->fail_at = -1, 1;
    return factory_join(user, thread);
}

/* Threads that do not start, or do not end: files are written by the caller, or an error tells. */
TEST(folders_without_threads) {
    for (int kind = 1; kind < 3; kind++) { /* they fail to start, to end */
        mpt_config config = mpt_config_default();
        mpt_checkpoint_config saving = mpt_checkpoint_config_default();
        training t;
        factory f;
        disk d;
        config.threads = 1;
        disk_use(&d, &config);
        factory_use(&f, &config);
        if (kind == 2) config.thread.join = failing_join;
        mpt_context *c = begin_folder(&config, &t);
        REQUIRE(c != NULL);
        saving.every = 1, saving.background = true;
        CHECK_EQ_INT(mpt_checkpoint_open(c, "folder", &saving), MPT_OK);
        if (kind == 1) f.fail_at = f.calls + 1;
        train_step(&t);
        CHECK_EQ_INT(mpt_checkpoint_step(c), MPT_OK);
        CHECK_EQ_INT(f.threads, kind == 2);
        mpt_checkpoint_close(c);
        CHECK(disk_find(&d, "folder/step-000000000002.safetensors", 0) != NULL);
        if (kind == 2)
            expect(c, MPT_ERROR_THREAD, "the thread that writes checkpoints cannot be joined");
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
        disk_free(&d);
    }
}
#else
TEST(folders_without_threads) { SKIP("threads"); }
#endif
#endif

#ifndef MPTRAIN_NO_RESUME
#define FOLDERS \
    T(folders_with_less), T(states_into_unused_nets), T(files_that_fail_twice), \
     T(folders_by_a_clock_that_goes_back), T(folders_without_threads),
#else
#define FOLDERS
#endif

TEST_TABLE = {FOLDERS
    T(allocations_fail_fp16),      T(allocations_fail_pure_half), T(allocations_fail_twice),
    T(batch_is_handed_out_later),  T(large_batch_then_small),     T(idle_memory_makes_room),
    T(bad_target_then_good_ones),  T(files_fail_while_saving),    T(files_fail_while_loading),
    T(files_fail_under_a_dataset), T(threads_fail_to_start),      T(group_that_could_not_be_made)};
TEST_MAIN
