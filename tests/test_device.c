/* test_device.c: a device made of software in the place of mptrain_cuda.cu. Its memory is nowhere
   that the host can read, launches and uploads run later, counters reach the host late, and every
   call of it can fail. Training must have the bits of the CPU, the host must hold nothing that it
   did not ask for, and each failure must end in an error that names it. */
#define MPTRAIN_IMPLEMENTATION
#ifndef MPTRAIN_CUDA
#define MPTRAIN_CUDA
#endif
#define mpt__cuda_backend_create toy_create
#define mpt__cuda_device_count toy_count
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "training.h"

/* ==== The device ==== */

enum {
    TOY_LAUNCH,
    TOY_ALLOCATE,
    TOY_UPLOAD,
    TOY_DOWNLOAD,
    TOY_SYNCHRONIZE,
    TOY_HOST,
    TOY_SNAPSHOT,
    TOY_GRAPH_BEGIN,
    TOY_GRAPH_END,
    TOY_GRAPH_RUN,
    TOY_STAGE,
    TOY_SETTLE,
    TOY_CALLS
};
static const char *const toy_names[TOY_CALLS] = {
    "launch",   "allocate",    "upload",    "download",  "synchronize", "host",
    "snapshot", "graph begin", "graph end", "graph run", "stage",       "settle"};

/* Added to every address: what the host touches by mistake ends the program. */
#if UINTPTR_MAX > 0xffffffffu
#define TOY_BIAS ((uintptr_t)1 << 62)
#else
#define TOY_BIAS ((uintptr_t)0)
#endif
enum { TOY_LATE = 40, TOY_MOST = 4096, TOY_STAGES = 16 };

typedef struct toy_work {
    mpt__launch launch; /* or, with `to`: `bytes` bytes from `source` */
    void *data[MPT__MAX_OPERANDS + 1];
    void *scalars, *workspace, *to;
    const void *source;
    char *owned;
    size_t bytes;
} toy_work;

typedef struct toy_list {
    toy_work *work;
    int count;
} toy_list;

static struct {
    mpt__base base;
    mpt__backend cpu, *backend;
    toy_list queue, *graph; /* graph: launches go there */
    struct {
        char *memory;
        size_t bytes;
    } stages[TOY_STAGES]; /* memory of which uploads are read late, too */
    const void *place[2]; /* of the last snapshots */
    int64_t live, graphs, runs, staged;
    int64_t calls[TOY_CALLS], fail_at[TOY_CALLS], failures; /* one more than those */
    int devices;                                            /* how many there are */
    bool refuse;                                            /* to be made */
    int major;
    bool benchmark;
    char choices[64];
} toy;

static void *toy_real(const void *pointer) {
    return pointer ? (void *)((uintptr_t)pointer - TOY_BIAS) : NULL;
}

static mpt_status toy_call(int call) {
    const int64_t n = ++toy.calls[call], from = toy.fail_at[call];
    if (from == 0 || n < from || n > from + toy.failures) return MPT_OK;
    snprintf(toy.backend->error, sizeof toy.backend->error, "the toy's %s broke", toy_names[call]);
    return MPT_ERROR_DEVICE;
}

static mpt_status toy_execute(toy_work *work) {
    if (work->to) {
        memcpy(work->to, work->source, work->bytes);
        free(work->owned);
        return MPT_OK;
    }
    mpt__execution execution;
    execution.data = work->data;
    execution.scalars = (mpt__scalar *)work->scalars;
    execution.workspace = work->workspace;
    return toy.cpu.launch(toy.cpu.self, &execution, &work->launch);
}

static void toy_flush(void) {
    for (int i = 0; i < toy.queue.count; i++) CHECK_EQ_INT(toy_execute(&toy.queue.work[i]), MPT_OK);
    toy.queue.count = 0;
}

static toy_work *toy_add(toy_list *list) {
    if (list == &toy.queue && list->count >= TOY_LATE) toy_flush();
    if (!list->work) list->work = (toy_work *)calloc(TOY_MOST, sizeof(toy_work));
    toy_work *work = &list->work[list->count++];
    memset(work, 0, sizeof *work);
    return work;
}

static mpt_status toy_launch(void *self, const mpt__execution *execution,
                             const mpt__launch *launch) {
    (void)self;
    if (toy_call(TOY_LAUNCH) != MPT_OK) return MPT_ERROR_DEVICE;
    toy_work *work = toy_add(toy.graph ? toy.graph : &toy.queue);
    work->launch = *launch;
    work->scalars = toy_real(execution->scalars);
    work->workspace = toy_real(execution->workspace);
    for (int i = 0; i < launch->n_operands; i++) {
        uint32_t id = launch->operand[i].storage;
        if (!id) continue;
        work->data[i + 1] = toy_real(execution->data[id]);
        work->launch.operand[i].storage = (uint32_t)(i + 1);
    }
    return MPT_OK;
}

static void toy_copy(void *to, const void *source, char *owned, size_t bytes) {
    toy_work *work = toy_add(&toy.queue);
    work->to = to, work->source = source, work->owned = owned, work->bytes = bytes;
}

static mpt_status toy_upload(void *self, void *to, const void *source, size_t bytes) {
    (void)self;
    if (toy_call(TOY_UPLOAD) != MPT_OK) return MPT_ERROR_DEVICE;
    for (int i = 0; i < TOY_STAGES; i++) {
        if ((uintptr_t)source - (uintptr_t)toy.stages[i].memory >= toy.stages[i].bytes) continue;
        toy_copy(toy_real(to), source, NULL, bytes);
        toy.staged++;
        return MPT_OK;
    }
    char *owned = (char *)malloc(bytes);
    memcpy(owned, source, bytes);
    toy_copy(toy_real(to), owned, owned, bytes);
    return MPT_OK;
}

static mpt_status toy_download(void *self, void *to, const void *source, size_t bytes) {
    (void)self;
    if (toy_call(TOY_DOWNLOAD) != MPT_OK) return MPT_ERROR_DEVICE;
    toy_flush();
    memcpy(to, toy_real(source), bytes);
    return MPT_OK;
}

static mpt_status toy_snapshot(void *self, int place, void *to, const void *source, size_t bytes) {
    (void)self;
    if (toy_call(TOY_SNAPSHOT) != MPT_OK) return MPT_ERROR_DEVICE;
    toy_copy(to, toy_real(source), NULL, bytes);
    memset(to, 0xff, bytes); /* garbage until it is there */
    toy.place[place] = to;
    return MPT_OK;
}

static bool toy_landed(void *self, int place) {
    (void)self;
    for (int i = 0; i < toy.queue.count; i++)
        if (toy.queue.work[i].to == toy.place[place]) return false;
    return true;
}

static mpt_status toy_synchronize(void *self) {
    (void)self;
    if (toy_call(TOY_SYNCHRONIZE) != MPT_OK) return MPT_ERROR_DEVICE;
    toy_flush();
    return MPT_OK;
}

static void *toy_allocate(void *self, size_t bytes) {
    (void)self;
    if (toy_call(TOY_ALLOCATE) != MPT_OK) return NULL;
    void *pointer = mpt__allocate_raw(&toy.base, bytes);
    memset(pointer, 0xa5, bytes);
    toy.live += (int64_t)bytes;
    return (char *)pointer + TOY_BIAS;
}

static void toy_release(void *self, void *pointer, size_t bytes) {
    (void)self;
    toy_flush();
    toy.live -= (int64_t)bytes;
    mpt__release_raw(&toy.base, toy_real(pointer), bytes);
}

static void *toy_allocate_host(void *self, size_t bytes) {
    (void)self;
    return toy_call(TOY_HOST) == MPT_OK ? malloc(bytes) : NULL;
}

static void toy_release_host(void *self, void *pointer) {
    (void)self;
    toy_flush();
    free(pointer);
}

static void *toy_stage_new(void *self, size_t bytes) {
    (void)self;
    for (int i = 0; i < TOY_STAGES; i++) {
        if (toy.stages[i].memory) continue;
        if (toy_call(TOY_STAGE) != MPT_OK) return NULL;
        toy.stages[i].bytes = bytes;
        return toy.stages[i].memory = (char *)malloc(bytes);
    }
    return NULL;
}

static mpt_status toy_stage_settle(void *self, void *stage) {
    (void)self, (void)stage;
    if (toy_call(TOY_SETTLE) != MPT_OK) return MPT_ERROR_DEVICE;
    toy_flush();
    return MPT_OK;
}

static void toy_stage_free(void *self, void *stage) {
    toy_flush();
    for (int i = 0; i < TOY_STAGES; i++)
        if (toy.stages[i].memory == stage) memset(&toy.stages[i], 0, sizeof toy.stages[i]);
    toy_release_host(self, stage);
}

static mpt_status toy_graph_begin(void *self) {
    (void)self;
    if (toy_call(TOY_GRAPH_BEGIN) != MPT_OK) return MPT_ERROR_DEVICE;
    toy.graph = (toy_list *)calloc(1, sizeof(toy_list));
    toy.graphs++;
    return MPT_OK;
}

static void toy_graph_destroy(void *self, void *graph) {
    (void)self;
    if (!graph) return;
    free(((toy_list *)graph)->work);
    free(graph);
    toy.graphs--;
}

static mpt_status toy_graph_end(void *self, void **graph) {
    toy_list *made = toy.graph;
    toy.graph = NULL;
    if (graph && toy_call(TOY_GRAPH_END) == MPT_OK) {
        *graph = made;
        return MPT_OK;
    }
    toy_graph_destroy(self, made);
    return graph ? MPT_ERROR_DEVICE : MPT_OK;
}

static mpt_status toy_graph_run(void *self, void *graph) {
    (void)self;
    if (toy_call(TOY_GRAPH_RUN) != MPT_OK) return MPT_ERROR_DEVICE;
    toy.runs++;
    for (int i = 0; i < ((toy_list *)graph)->count; i++)
        *toy_add(&toy.queue) = ((toy_list *)graph)->work[i];
    return MPT_OK;
}

static int64_t toy_workspace(void *self, const mpt__launch *launch) {
    (void)self;
    return toy.cpu.workspace ? toy.cpu.workspace(toy.cpu.self, launch) : 0;
}

static bool toy_implements(void *self, mpt__kernel kernel) {
    (void)self;
    return toy.cpu.implements(toy.cpu.self, kernel);
}

static void toy_describe(void *self, mpt_device_info *info) {
    (void)self;
    info->memory = INT64_C(8) << 30, info->memory_free = INT64_C(3) << 30;
    info->major = toy.major, info->fast_half = toy.major >= 7;
}

static void toy_benchmark(void *self, bool benchmark, bool tf32) {
    (void)self, (void)tf32;
    toy.benchmark = benchmark;
}

static size_t toy_benchmark_text(void *self, char *text, size_t capacity) {
    (void)self;
    if (capacity > 0) snprintf(text, capacity, "%s", toy.choices);
    return strlen(toy.choices);
}

static mpt_status toy_benchmark_read(void *self, const char *text) {
    (void)self;
    snprintf(toy.backend->error, sizeof toy.backend->error, "choices of \"%.20s\"", text);
    if (strncmp(text, "toy", 3) != 0) return MPT_ERROR_UNSUPPORTED;
    if (strlen(text) >= sizeof toy.choices) return MPT_ERROR_FORMAT;
    strcpy(toy.choices, text);
    return MPT_OK;
}

static void toy_destroy(void *self) {
    (void)self;
    toy_flush();
    free(toy.queue.work);
    toy.queue.work = NULL;
    toy.cpu.destroy(toy.cpu.self);
}

int toy_count(char *why, size_t size) {
    if (toy.devices == 0) snprintf(why, size, "the toy box is empty");
    return toy.devices;
}

mpt_status toy_create(mpt__backend *backend, int version, int device, bool debug) {
    (void)debug;
    mpt_isa chosen;
    mpt_config config = mpt_config_default();
    CHECK_EQ_INT(version, MPTRAIN_VERSION);
    snprintf(backend->error, sizeof backend->error, "toy %d is broken", device);
    if (toy.refuse) return MPT_ERROR_DEVICE;
    toy.backend = backend;
    mpt__base_init(&toy.base, &config);
    if (mpt__cpu_backend_create(&toy.base, MPT_ISA_REF, 1, false, &toy.cpu, &chosen) != MPT_OK)
        return MPT_ERROR_DEVICE;
    backend->name = "toy", backend->self = &toy, backend->synchronous = false;
    backend->implements = toy_implements, backend->describe = toy_describe;
    backend->workspace = toy_workspace, backend->launch = toy_launch;
    backend->allocate = toy_allocate, backend->release = toy_release;
    backend->upload = toy_upload, backend->download = toy_download;
    backend->synchronize = toy_synchronize;
    backend->snapshot = toy_snapshot, backend->landed = toy_landed;
    backend->allocate_host = toy_allocate_host, backend->release_host = toy_release_host;
    backend->stage_new = toy_stage_new, backend->stage_settle = toy_stage_settle;
    backend->stage_free = toy_stage_free;
    backend->graph_begin = toy_graph_begin, backend->graph_end = toy_graph_end;
    backend->graph_run = toy_graph_run, backend->graph_destroy = toy_graph_destroy;
    backend->benchmark = toy_benchmark, backend->benchmark_text = toy_benchmark_text;
    backend->benchmark_read = toy_benchmark_read, backend->destroy = toy_destroy;
    return MPT_OK;
}

static char log_text[4096];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

static void toy_reset(void) {
    memset(&toy, 0, sizeof toy);
    toy.devices = 2, toy.major = 8;
    log_text[0] = '\0';
}

static mpt_config toy_config(mpt_device device) {
    mpt_config config = mpt_config_default();
    config.device = device, config.isa = MPT_ISA_REF, config.threads = 1, config.seed = 9;
    config.log.write = keep_log;
    return config;
}

static mpt_context *toy_context(mpt_device device) {
    mpt_config config = toy_config(device);
    return mpt_create(&config);
}

/* ==== Training has the bits of the CPU ==== */

enum { TOY_STEPS = 14 };

/* Steps by hand or captured, on a schedule; a hash of all that training changes. */
static uint64_t train_toy(mpt_context *context, mpt_dtype precision, bool capture) {
    training t;
    make_training(&t, context, precision, capture ? 2 : 0);
    mpt_warmup(t.optimizer, 0.1, 5, 40, 0, MPT_PER_STEP);
    mpt_captured captured = mpt_capture(context, step_of, &t);
    for (int i = 0; i < TOY_STEPS && !mpt_failed(context); i++) {
        mpt_batch b;
        if (!next_batch(t.loader, &b)) break;
        if (capture)
            mpt_captured_step(captured, b.x, b.y);
        else
            train_on(&t, b);
    }
    return training_hash(&t);
}

TEST(training_has_the_bits_of_the_cpu) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int i = 0; i < 3; i++) {
        uint64_t hash[4];
        for (int run = 0; run < 4; run++) {
            toy_reset();
            mpt_context *context = toy_context(run & 1 ? MPT_DEVICE_CUDA : MPT_DEVICE_CPU);
            hash[run] = train_toy(context, precisions[i], run >= 2);
            check_ok(context);
            CHECK_EQ_INT(toy.runs, run == 3 ? TOY_STEPS - 2 : 0);
            CHECK_EQ_INT(toy.staged, run & 1 ? 2 * TOY_STEPS : 0);
            CHECK_EQ_INT(toy.live > 0, run & 1);
            mpt_destroy(context);
            CHECK_EQ_INT(toy.live, 0);
            CHECK_EQ_INT(toy.graphs, 0);
            CHECK(hash[run] == hash[0]);
        }
    }
}

/* A graph that cannot be made is a warning, and launches go one by one with the same bits. */
TEST(without_a_graph_launches_go_one_by_one) {
    static const int calls[] = {TOY_GRAPH_BEGIN, TOY_GRAPH_END};
    toy_reset();
    mpt_context *context = toy_context(MPT_DEVICE_CUDA);
    uint64_t clean = train_toy(context, MPT_F16, true);
    mpt_destroy(context);
    for (int i = 0; i < 2; i++) {
        toy_reset();
        toy.fail_at[calls[i]] = 1;
        context = toy_context(MPT_DEVICE_CUDA);
        CHECK(train_toy(context, MPT_F16, true) == clean);
        check_ok(context);
        CHECK_EQ_INT(toy.runs, 0);
        CHECK_CONTAINS(log_text, "no graph (the toy's graph ");
        CHECK_CONTAINS(log_text, toy_names[calls[i]]);
        mpt_destroy(context);
        CHECK_EQ_INT(toy.live + toy.graphs, 0);
    }
    toy_reset();
    toy.fail_at[TOY_GRAPH_RUN] = 3;
    context = toy_context(MPT_DEVICE_CUDA);
    train_toy(context, MPT_F16, true);
    check_error(context, MPT_ERROR_DEVICE, "the toy's graph run broke");
    mpt_destroy(context);
}

/* ==== Each call fails in turn ==== */

typedef struct attempt {
    mpt_context *context;
    int call, errors; /* what is to fail; errors seen */
} attempt;

/* After a piece of work: whether it is to be done again. */
static bool again(attempt *a) {
    mpt_context *context = a->context;
    if (!mpt_failed(context)) return false;
    bool memory = a->call == TOY_ALLOCATE;
    CHECK_EQ_INT(mpt_error_code(context), memory ? MPT_ERROR_MEMORY : MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(context), memory ? "the device, which has 3 GiB of 8" : "the toy's");
    CHECK_CONTAINS(mpt_error(context), memory ? "free," : toy_names[a->call]);
    mpt_clear_error(context);
    return ++a->errors < 8;
}

#define PIECE(...) \
    do { __VA_ARGS__; } while (again(a))

static uint64_t hash_of(attempt *a, mpt_module net) {
    uint64_t hash;
    PIECE(hash = mpt_module_hash(net));
    return hash;
}

/* Averages in the module and out again; where either fails, what there was is not lost. */
static void average_and_back(attempt *a, mpt_module net, mpt_ema ema) {
    uint64_t before = hash_of(a, net);
    while (mpt_ema_apply(ema) != MPT_OK && again(a)) {
        mpt_ema_restore(ema); /* of what was applied, or nothing was */
        mpt_clear_error(a->context);
        CHECK(hash_of(a, net) == before);
    }
    PIECE(mpt_ema_restore(ema));
    CHECK(hash_of(a, net) == before);
}

/* From the first tensor to the last number read, each piece until it works. */
static uint64_t all_pieces(attempt *a, disk *d) {
    mpt_context *context = a->context;
    training t, copy;
    mpt_captured captured;
    mpt_ema ema;
    float seen[16];
    double mean = 0, item = 0;
    t.context = context, t.precision = MPT_F16;
    PIECE(t.data = make_data(context, SAMPLES));
    PIECE(t.loader = make_loader_of(context, t.data, 8, 0, MPT_F32));
    PIECE(t.net = make_net(context));
    PIECE(t.optimizer = mpt_adamw(t.net, NULL));
    PIECE(t.scaler = mpt_grad_scaler(context, NULL));
    PIECE(mpt_warmup(t.optimizer, 0.1, 5, 40, 0, MPT_PER_STEP));
    PIECE(ema = mpt_ema_create(t.net, t.optimizer, NULL));
    PIECE(captured = mpt_capture(context, step_of, &t));
    for (int i = 0; i < 8; i++) {
        mpt_batch b;
        PIECE(next_batch(t.loader, &b));
        PIECE(if (mpt_step_number(context) > i) continue; /* done before it failed */
              i % 2 ? mpt_captured_step(captured, b.x, b.y) : train_on(&t, b));
        PIECE(mpt_tensor mass = mpt_sum(mpt_forward(t.net, b.x), MPT_ALL_DIMS, false);
              mpt_metric_push(context, "mass", mass); item = mpt_item(mass));
        CHECK(item == item);
    }
    PIECE(mean = mpt_metric_mean(context, "mass", true));
    CHECK(mean == mean);
    average_and_back(a, t.net, ema);
    PIECE(mpt_read_f32(mpt_parameter(t.net, "0.bias"), seen, 16));
    PIECE(mpt_synchronize(context));
    PIECE(mpt_set_scale(t.scaler, 128));
    PIECE(CHECK(mpt_get_scale(t.scaler) == 128 || mpt_failed(context)));
    PIECE(mpt_save(t.net, "weights"));
    PIECE(mpt_load(t.net, "weights", NULL, NULL));
    PIECE(copy.net = make_net(context));
    PIECE(mpt_copy_module(copy.net, t.net));
    PIECE(CHECK(mpt_module_hash(copy.net) == mpt_module_hash(t.net) || mpt_failed(context)));
    CHECK_EQ_INT(d->open_now, 0);
    uint64_t hash = 0;
    PIECE(hash = training_hash(&t));
    return hash;
}

static uint64_t run_pieces(attempt *a) {
    mpt_config config = toy_config(MPT_DEVICE_CUDA);
    disk d;
    disk_use(&d, &config);
    a->context = mpt_create(&config);
    if (!a->context) {
        CHECK_CONTAINS(mpt_error(NULL), a->call == TOY_ALLOCATE ? "the device, which has 3 GiB of 8"
                                        : a->call == TOY_HOST   ? "out of memory"
                                                                : toy_names[a->call]);
        CHECK_EQ_INT(toy.live, 0);
        a->errors++;
        a->context = mpt_create(&config);
    }
    uint64_t hash = a->context ? all_pieces(a, &d) : 0;
    check_ok(a->context);
    mpt_destroy(a->context);
    CHECK_EQ_INT(toy.live + toy.graphs, 0);
    disk_free(&d);
    return hash;
}

static void each_call_fails(int call, bool same_bits) {
    attempt a;
    memset(&a, 0, sizeof a);
    a.call = call;
    toy_reset();
    uint64_t clean = run_pieces(&a);
    int64_t calls = toy.calls[call], step = calls / 150 + 1; /* launches are many */
    CHECK_EQ_INT(a.errors, 0);
    CHECK(calls > 0);
    for (int64_t n = 1; n <= calls && test_failures == 0; n += step) {
        toy_reset();
        a.errors = 0;
        toy.fail_at[call] = n, toy.failures = call == TOY_ALLOCATE;
        uint64_t hash = run_pieces(&a);
        CHECK(a.errors > 0 || strstr(log_text, "no graph (the toy's launch broke)"));
        CHECK(!same_bits || hash == clean);
        if (test_failures) printf("\n  %s number %lld", toy_names[call], (long long)n);
    }
}

TEST(each_launch_fails) { each_call_fails(TOY_LAUNCH, false); }
TEST(each_allocation_fails) {
    each_call_fails(TOY_ALLOCATE, true);
    each_call_fails(TOY_HOST, true);
}
/* Without memory to stage batches in, uploads copy them: no error, the same bits. */
TEST(without_stages_uploads_copy) {
    uint64_t hash[3];
    for (int run = 0; run < 3; run++) {
        toy_reset();
        toy.fail_at[TOY_STAGE] = run > 0, toy.failures = run == 2 ? 99 : 0;
        mpt_context *context = toy_context(MPT_DEVICE_CUDA);
        hash[run] = train_toy(context, MPT_F32, false);
        check_ok(context);
        CHECK_EQ_INT(toy.staged, (2 - run) * TOY_STEPS);
        CHECK(mpt_memory(context).current[MPT_MEMORY_BATCH] > 0);
        mpt_destroy(context);
        CHECK_EQ_INT(toy.live, 0);
        CHECK(hash[run] == hash[0]);
    }
}
TEST(each_copy_fails) {
    each_call_fails(TOY_UPLOAD, false);
    each_call_fails(TOY_DOWNLOAD, false);
    each_call_fails(TOY_SNAPSHOT, false);
    each_call_fails(TOY_SETTLE, false);
}

/* ==== What is late, and what is asked of the device ==== */

/* Bad targets are seen after some steps; until then no weight has changed. */
TEST(a_bad_target_is_seen_late) {
    toy_reset();
    mpt_context *context = toy_context(MPT_DEVICE_CUDA);
    int64_t targets[8] = {0, 1, 2, 3, 0, 7, 2, 3};
    training t;
    mpt_batch b;
    make_training(&t, context, MPT_F32, 0);
    train_step(&t);
    uint64_t before = training_hash(&t);
    memset(&b, 0, sizeof b);
    b.x = mpt_ones(context, MPT_F32, MPT_SHAPE(8, FEATURES));
    b.y = mpt_from(context, MPT_I64, MPT_SHAPE(8), targets);
    CHECK_EQ_INT(train_on(&t, b), MPT_OK); /* not known yet */
    mpt_synchronize(context);
    check_error(context, MPT_ERROR_INDEX, "target of sample 5");
    CHECK(training_hash(&t) == before);
    train_step(&t);
    check_ok(context);
    CHECK(training_hash(&t) != before);
    mpt_destroy(context);
}

TEST(devices_are_chosen) {
    toy_reset();
    mpt_context *context = toy_context(MPT_DEVICE_AUTO);
    REQUIRE(context);
    const char *why;
    mpt_device_info info = mpt_get_device_info(context);
    CHECK_EQ_INT(mpt_get_device(context), MPT_DEVICE_CUDA);
    CHECK_EQ_STR(mpt_device_name(context), "toy");
    CHECK_EQ_INT(info.memory >> 30, 8);
    CHECK_EQ_INT(mpt_get_threads(context), 1);
    CHECK_EQ_INT(mpt_device_count(MPT_DEVICE_CUDA), 2);
    static const struct {
        int major;
        mpt_dtype dtype;
        const char *why;
    } cards[] = {{6, MPT_F32, "no Tensor Cores"},
                 {7, MPT_F16, "but not bf16"},
                 {8, MPT_BF16, "multiply bf16, whose range"}};
    for (int i = 0; i < 3; i++) {
        toy.major = cards[i].major;
        CHECK_EQ_INT(mpt_precision_auto(context, &why), cards[i].dtype);
        CHECK_CONTAINS(why, cards[i].why);
    }
    char text[2000];
    mpt_determinism(context, text, sizeof text);
    CHECK_CONTAINS(text, "on toy: sums in other trees");
    float own[2] = {1, 2};
    mpt_wrap(context, MPT_F32, MPT_SHAPE(2), own);
    check_error(context, MPT_ERROR_UNSUPPORTED, "only CPU contexts can borrow memory");
    mpt_destroy(context);

    mpt_config config = toy_config(MPT_DEVICE_CUDA);
    config.device_index = 2;
    CHECK(!mpt_create(&config));
    CHECK_CONTAINS(mpt_error(NULL), "device_index = 2, but there are 2 GPUs");
    toy.refuse = true;
    CHECK(!toy_context(MPT_DEVICE_CUDA));
    CHECK_CONTAINS(mpt_error(NULL), "toy 0 is broken");
    toy.devices = 0;
    CHECK(!toy_context(MPT_DEVICE_CUDA));
    CHECK_CONTAINS(mpt_error(NULL), "no CUDA device: the toy box is empty");
    log_text[0] = '\0';
    for (int i = 0; i < 2; i++) { /* said once */
        context = toy_context(MPT_DEVICE_AUTO);
        CHECK_EQ_INT(mpt_get_device(context), MPT_DEVICE_CPU);
        CHECK_CONTAINS(log_text, i ? "" : "no GPU (the toy box is empty): computing on the CPU");
        mpt_destroy(context);
    }
    CHECK_EQ_STR(log_text, "no GPU (the toy box is empty): computing on the CPU\n");
}

TEST(choices_of_products) {
    toy_reset();
    mpt_context *context = toy_context(MPT_DEVICE_CUDA);
    char text[2000];
    CHECK_EQ_INT(mpt_benchmark(context, true, true), MPT_OK);
    CHECK(toy.benchmark);
    mpt_determinism(context, text, sizeof text);
    CHECK_CONTAINS(text, "mpt_benchmark chose by timing");
    CHECK_CONTAINS(text, "rounded to TF32");
    CHECK_EQ_INT(mpt_benchmark_read(context, "toy 1"), MPT_OK);
    CHECK_EQ_INT(mpt_benchmark_text(context, text, sizeof text), 5);
    CHECK_EQ_STR(text, "toy 1");
    CHECK_EQ_INT(mpt_benchmark_text(context, NULL, 9), 5);
    CHECK_EQ_INT(mpt_benchmark_read(context, "another card"), MPT_OK);
    CHECK_CONTAINS(log_text, "mpt_benchmark_read: choices of \"another card\"");
    memset(text, 't', 100), memcpy(text, "toy", 3), text[100] = '\0';
    mpt_benchmark_read(context, text);
    check_error(context, MPT_ERROR_FORMAT, "choices of \"toyttt");
    mpt_benchmark_read(context, NULL);
    check_error(context, MPT_ERROR_ARGUMENT, "text is NULL");
    mpt_destroy(context);
}

/* Memory that the limit refuses, and a device that fails while it is asked why there is none. */
TEST(memory_of_the_device) {
    toy_reset();
    mpt_config config = toy_config(MPT_DEVICE_CUDA);
    config.memory_limit = 1 << 20;
    mpt_context *context = mpt_create(&config);
    mpt_tensor fits = mpt_zeros(context, MPT_F32, MPT_SHAPE(1000));
    mpt_zeros(context, MPT_F32, MPT_SHAPE(1 << 20));
    check_error(context, MPT_ERROR_MEMORY, "out of memory");
    CHECK(mpt_valid(fits));
    toy.fail_at[TOY_SYNCHRONIZE] = toy.calls[TOY_SYNCHRONIZE] + 1;
    mpt_zeros(context, MPT_F32, MPT_SHAPE(1 << 20));
    check_error(context, MPT_ERROR_DEVICE, "the toy's synchronize broke");
    mpt_destroy(context);
    CHECK_EQ_INT(toy.live, 0);
}

TEST_TABLE = {T(training_has_the_bits_of_the_cpu),
              T(without_a_graph_launches_go_one_by_one),
              T(each_launch_fails),
              T(each_allocation_fails),
              T(without_stages_uploads_copy),
              T(each_copy_fails),
              T(a_bad_target_is_seen_late),
              T(devices_are_chosen),
              T(choices_of_products),
              T(memory_of_the_device)};
TEST_MAIN
