/* api_faults.c: what only a device that fails on demand can show: the end of its memory, graphs
   that cannot be made, a device that dies, debug mode; and that steps do not wait. Needs the
   simulator. */
#define MPTRAIN_BACKEND_API
#include MPTRAIN_HEADER_FILE
#include "../harness.h"
#include "../training.h"
#include "control.h"

/* Of cudaError_t. */
enum {
    NO_MEMORY = 2,
    NO_KERNEL = 209,
    NOT_A_HANDLE = 400,
    BAD_ADDRESS = 700,
    NOT_CAPTURABLE = 900,
    INVALIDATED = 901
};
/* Of cublasStatus_t. */
enum { NO_CUBLAS_MEMORY = 3, NOT_EXECUTED = 13 };

static char log_text[4096];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

/* Of the CUDA runtime, as other code of a program would call it. */
extern int cudaFree(void *pointer);
extern int cudaSetDevice(int device);
extern int cudaPeekAtLastError(void);

static mpt_context *make_context_on(int device, bool debug) {
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CUDA;
    config.device_index = device;
    config.debug = debug;
    config.log.write = keep_log;
    log_text[0] = '\0';
    return mpt_create(&config);
}

static mpt_context *make_context(bool debug) { return make_context_on(0, debug); }

/* The end of a test: the device is sound again. */
static void end(mpt_context *context) {
    cudasim_fail("", 0, 0, 0);
    mpt_destroy(context);
}

/* ==== The backend ==== */

TEST(every_kernel_is_there) {
    static const char *const names[] = {
#define MPT__ROW(id, name, effect) #name,
        MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
    };
    mpt__backend backend;
    REQUIRE(mpt__cuda_backend_create(&backend, MPTRAIN_VERSION, 0, false) == MPT_OK);
    for (int k = 0; k < MPT__KERNEL_COUNT; k++) /* programs are the CPU's */
        if (strcmp(names[k], "program") != 0 &&
            !backend.implements(backend.self, (mpt__kernel)k))
            TEST_FAIL_("no %s", names[k]);
    CHECK(!backend.implements(backend.self, MPT__KERNEL_COUNT));
    backend.destroy(backend.self);
}

TEST(files_of_one_release) {
    mpt__backend backend;
    CHECK(mpt__cuda_backend_create(&backend, MPTRAIN_VERSION + 1, 0, false) == MPT_ERROR_DEVICE);
    CHECK_CONTAINS(backend.error, "copy both from one release");
}

TEST(the_device_is_described) {
    mpt_context *context = make_context(false);
    mpt_device_info device = mpt_get_device_info(context);
    CHECK_EQ_INT(device.device, MPT_DEVICE_CUDA);
    CHECK_EQ_INT(mpt_device_count(MPT_DEVICE_CUDA), 1);
    CHECK_EQ_STR(device.name, mpt_device_name(context));
    CHECK_EQ_INT(device.memory, INT64_C(4096) << 20);
    CHECK(device.memory_free > 0 && device.memory_free < device.memory);
    CHECK(device.major == 9 && device.minor == 0 && device.fast_half);
    end(context);
    mpt_config config = mpt_config_default();
    config.device_index = 3;
    CHECK(mpt_create(&config) == NULL);
    CHECK_CONTAINS(mpt_error(NULL), "device_index = 3, but there are 1 GPUs");
    cudasim_fail("cudaFuncGetAttributes", 0, NO_KERNEL, 0);
    CHECK(make_context(false) == NULL);
    CHECK_CONTAINS(mpt_error(NULL), "compile it with -arch=sm_90");
    cudasim_fail("", 0, 0, 0);
}

/* Memory of the device, all of its programs together. */
static int64_t in_use(mpt_context *context) {
    mpt_device_info device = mpt_get_device_info(context);
    return device.memory - device.memory_free;
}

/* Each call works on the device of its context, whatever was chosen before: the simulator ends a
   program that uses what is another device's. Eager and captured steps, the choices of benchmark
   mode, models that move, ends in another order. */
TEST(two_devices) {
    const int64_t large = 64 << 20;
    training t[2];
    mpt_context *context[2];
    mpt_captured captured[2];
    cudasim_set_devices(2);
    for (int i = 0; i < 2; i++) {
        context[i] = make_context_on(i, false);
        make_training(&t[i], context[i], MPT_F16, 0);
        captured[i] = mpt_capture(context[i], step_of, &t[i]);
    }
    CHECK_EQ_INT(mpt_device_count(MPT_DEVICE_CUDA), 2);
    const int64_t before[] = {in_use(context[0]), in_use(context[1])};
    mpt_tensor x = mpt_zeros(context[1], MPT_U8, MPT_SHAPE(large));
    CHECK_EQ_INT(in_use(context[0]), before[0]);
    CHECK_EQ_INT(in_use(context[1]), before[1] + large);
    cudaSetDevice(0);
    CHECK_EQ_INT(mpt_get_device_info(context[1]).memory_free + in_use(context[1]),
                 mpt_get_device_info(context[1]).memory);
    CHECK_EQ_INT(in_use(context[1]), before[1] + large);
    mpt_release(x);
    for (int step = 0; step < 8; step++) {
        for (int i = 0; i < 2; i++) {
            mpt_batch b;
            CHECK(next_batch(t[i].loader, &b));
            cudaSetDevice(step % 2);
            CHECK_EQ_INT(step < 4 ? train_on(&t[i], b) : mpt_captured_step(captured[i], b.x, b.y),
                         MPT_OK);
        }
    }
    CHECK(training_hash(&t[0]) == training_hash(&t[1]));
    CHECK_EQ_INT(mpt_copy_module(t[0].net, t[1].net), MPT_OK);
    for (int i = 0; i < 2; i++) {
        cudaSetDevice(1 - i);
        mpt_memory_trim(context[i]);
        CHECK_EQ_STR(mpt_error(context[i]), "");
    }
    CHECK_EQ_STR(log_text, "");
    char choices[8192];
    mpt_benchmark(context[1], true, false);
    CHECK_EQ_INT(train_step(&t[1]), MPT_OK);
    CHECK(mpt_benchmark_text(context[1], choices, sizeof choices) < sizeof choices);
    cudaSetDevice(1);
    CHECK_EQ_INT(mpt_benchmark_read(context[0], choices), MPT_OK);
    cudaSetDevice(0);
    mpt_destroy(context[1]);
    cudaSetDevice(1);
    mpt_destroy(context[0]);
    cudaSetDevice(0);
    cudasim_set_devices(1);
}

/* ==== Memory ==== */

static void limit_memory(int64_t bytes) { cudasim_set_memory((size_t)bytes); }
static void lift_limit(void) { cudasim_set_memory((size_t)4096 << 20); }

/* Between normal steps a large batch, for which the device has that much room and no more. */
static uint64_t large_batch_run(mpt_dtype precision, bool large) {
    static const int64_t rooms[] = {0, 128 << 10, 600 << 10, 1200 << 10};
    training t;
    mpt_context *context = make_context(false);
    make_training(&t, context, precision, 0);
    CHECK_EQ_INT(train_step(&t), MPT_OK);
    uint64_t before = training_hash(&t);
    for (int i = 0; i < 4 && large; i++) {
        mpt_batch b;
        mpt_dataset data = make_data(context, 16384);
        mpt_loader loader = make_loader_of(context, data, 16384, 0, MPT_F32);
        CHECK(mpt_loader_next(loader, &b));
        mpt_memory_trim(context);
        limit_memory(in_use(context) + rooms[i]);
        CHECK_EQ_INT(train_on(&t, b), MPT_ERROR_MEMORY);
        lift_limit();
        if (i == 3) printf("\n  %s", mpt_error(context));
        CHECK_CONTAINS(mpt_error(context), "out of memory: the device, which has ");
        CHECK_CONTAINS(mpt_error(context), " free, refused ");
        CHECK_CONTAINS(mpt_error(context), " in use: ");
        CHECK_CONTAINS(mpt_error(context), "batch ");
        CHECK_CONTAINS(mpt_error(context), "; try a smaller batch");
        mpt_clear_error(context);
        CHECK(training_hash(&t) == before);
        mpt_loader_destroy(loader);
        mpt_dataset_destroy(data);
    }
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    uint64_t hash = training_hash(&t);
    CHECK(hash != before);
    end(context);
    return hash;
}

TEST(out_of_memory_is_survived) {
    CHECK(large_batch_run(MPT_F32, true) == large_batch_run(MPT_F32, false));
    CHECK(large_batch_run(MPT_F16, true) == large_batch_run(MPT_F16, false));
}

/* The pool gives idle memory back before a request is refused. */
TEST(idle_memory_makes_room) {
    mpt_context *context = make_context(false);
    mpt_release(mpt_ones(context, MPT_F32, MPT_SHAPE(1 << 20)));
    int64_t held = mpt_memory(context).held;
    limit_memory(in_use(context) + (1 << 20));
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(5 << 18));
    lift_limit();
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK(mpt_item(mpt_sum(x, MPT_ALL_DIMS, false)) == 5 << 18);
    CHECK(mpt_memory(context).held < held + (2 << 20));
    end(context);
}

/* ==== Work ==== */

/* The switches of threads that the gradient of a table takes, and its seconds. */
static double embedding_work(int64_t n, int64_t size, int kinds) {
    mpt_context *context = make_context(false);
    int64_t *ids = (int64_t *)malloc((size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = kinds == 1 ? size / 2 : i * 7919 % size;
    mpt_tensor table = mpt_ones(context, MPT_F32, MPT_SHAPE(size, 4));
    mpt_requires_grad(table, true);
    mpt_tensor loss =
        mpt_sum(mpt_embedding(mpt_from(context, MPT_I64, MPT_SHAPE(n), ids), table, -1),
                MPT_ALL_DIMS, false);
    const unsigned long long before = cudasim_switches();
    mpt_backward(loss);
    mpt_synchronize(context);
    const double work = (double)(cudasim_switches() - before);
    CHECK(mpt_item(mpt_sum(mpt_grad(table), MPT_ALL_DIMS, false)) == (double)(4 * n));
    CHECK(mpt_item(mpt_max(mpt_grad(table), MPT_ALL_DIMS, false)) ==
          (kinds == 1 ? (double)n : (double)((n + size - 1) / size)));
    free(ids);
    end(context);
    return work;
}

/* Many ids cost little more each than few do, all different or all the same. */
TEST(work_of_an_embedding) {
    double each[2];
    for (int kinds = 0; kinds < 2; kinds++) {
        for (int i = 0; i < 2; i++) {
            const int64_t n = i ? 65536 : 4096;
            each[i] = embedding_work(n, 50257, kinds) / (double)n;
        }
        CHECK(each[1] < 1.5 * each[0]);
        printf("\n  switches of each id: %.0f of 4,096, %.0f of 65,536", each[0], each[1]);
    }
}

/* ==== Waiting ==== */

/* Once it has seen its shapes a step neither waits nor asks for memory: these calls would fail. */
TEST(steps_do_not_wait) {
    static const char *const calls[] = {"cudaStreamSynchronize",
                                        "cudaDeviceSynchronize",
                                        "cudaEventSynchronize",
                                        "cudaMemcpy",
                                        "cudaMalloc",
                                        "cudaFree",
                                        "cudaHostAlloc",
                                        "cudaStreamQuery"};
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F16, 0);
    for (int i = 0; i < 20; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        CHECK(next_batch(t.loader, &b));
        if (b.size < 8) CHECK(next_batch(t.loader, &b));
        cudasim_fail(calls[i], 0, BAD_ADDRESS, 1);
        CHECK_EQ_INT(train_on(&t, b), MPT_OK);
        CHECK_EQ_INT(train_on(&t, b), MPT_OK);
        /* A batch is uploaded behind the host's back. Only for the one before it to have left its
           memory, which is filled again, a loader waits. */
        if (strcmp(calls[i], "cudaEventSynchronize") != 0) CHECK(next_batch(t.loader, &b));
        cudasim_fail("", 0, 0, 0);
        CHECK_EQ_STR(mpt_error(context), "");
    }
    end(context);
}

/* What the host sees of the device's scalars is whole at any time: a snapshot that is there, and
   what the host wrote after it. While a copy is on its way the simulator fills its place with
   garbage. */
TEST(the_host_reads_while_snapshots_land) {
    uint64_t hash[2];
    for (int late = 0; late < 2; late++) {
        training t;
        mpt_context *context = make_context(false);
        make_training(&t, context, MPT_F16, 0);
        mpt_tensor one = mpt_ones(context, MPT_F32, MPT_SHAPE(1));
        mpt_synchronize(context);
        cudasim_set_deferred(late);
        double most = 0;
        for (int i = 0; i < 12; i++) {
            mpt_metric_push(context, "one", one);
            CHECK_EQ_INT(train_step(&t), MPT_OK);
            double mean = mpt_metric_mean(context, "one", false);
            CHECK(mean != mean || mean == 1);
            if (mean == 1) most++;
            CHECK_EQ_STR(mpt_error(context), "");
        }
        CHECK(late || most == 12);
        CHECK(mpt_metric_mean(context, "one", true) == 1);
        /* A snapshot from before the reset does not bring the old values back. */
        mpt_metric_push(context, "one", one);
        CHECK_EQ_INT(train_step(&t), MPT_OK);
        mpt_metric_reset(context, "one");
        cudasim_set_deferred(false);
        cudasim_set_deferred(late);
        CHECK(!(mpt_metric_mean(context, "one", false) == 1));
        mpt_metric_push(context, "one", one);
        CHECK_EQ_INT(train_step(&t), MPT_OK);
        CHECK(!late || !(mpt_metric_mean(context, "one", false) == 1));
        cudasim_set_deferred(false);
        CHECK(mpt_metric_mean(context, "one", false) == 1);
        hash[late] = training_hash(&t);
        end(context);
    }
    CHECK(hash[0] == hash[1]);
}

/* Batches lie in page-locked memory, all of it given back, or where there is none in memory that
   uploads copy first: the same bits. */
TEST(batches_lie_in_locked_memory) {
    uint64_t hash[3];
    for (int run = 0; run < 3; run++) {
        training t;
        mpt_context *context = make_context(false);
        const size_t before = cudasim_locked();
        const int64_t counted = mpt_memory(context).current[MPT_MEMORY_BATCH];
        mpt_dataset data = make_data(context, SAMPLES);
        if (run > 0) cudasim_fail("cudaHostAlloc", run - 1, NO_MEMORY, 0);
        mpt_loader loader = make_loader_of(context, data, 8, 2, MPT_F32);
        const size_t batch = 8 * FEATURES * sizeof(float), digits = 8 * sizeof(int64_t);
        const size_t ring = 5 * (batch + digits) - (run == 1 ? batch : run == 2 ? digits : 0);
        CHECK_EQ_INT(cudasim_locked() - before, ring);
        CHECK(mpt_memory(context).current[MPT_MEMORY_BATCH] - counted >=
              (int64_t)(2 * 5 * (batch + digits)));
        mpt_loader_destroy(loader);
        CHECK_EQ_INT(cudasim_locked(), before);
        if (run > 0) cudasim_fail("cudaHostAlloc", run - 1, NO_MEMORY, 0);
        make_training(&t, context, MPT_F32, 2);
        for (int i = 0; i < 9; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
        CHECK_EQ_STR(mpt_error(context), "");
        hash[run] = training_hash(&t);
        CHECK(hash[run] == hash[0]);
        mpt_dataset_destroy(data);
        end(context);
        CHECK(cudasim_locked() < before);
    }
}

/* ==== Graphs ==== */

static bool last_fault_happened;

/* Six steps, the second of which cannot become a graph if `call` fails. */
static uint64_t captured_run(const char *call, int after, int error) {
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F16, 0);
    mpt_captured captured = mpt_capture(context, step_of, &t);
    for (int i = 0; i < 6; i++) {
        CHECK(next_batch(t.loader, &b));
        if (i == 1) cudasim_fail(call, after, error, 0);
        CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_OK);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_captured_count(captured), 4);
    uint64_t hash = training_hash(&t);
    last_fault_happened = cudasim_failed();
    end(context);
    return hash;
}

TEST(without_a_graph_launches_go_one_by_one) {
    static const struct {
        const char *call;
        int after, error;
    } cases[] = {{"cudaStreamBeginCapture", 0, NOT_CAPTURABLE},
                 {"cudaStreamEndCapture", 0, NOT_CAPTURABLE},
                 {"cudaGraphInstantiate", 0, NO_MEMORY}};
    uint64_t with_graph = captured_run("", 0, 0);
    CHECK_EQ_STR(log_text, "");
    for (int i = 0; i < 3; i++) {
        CHECK(captured_run(cases[i].call, cases[i].after, cases[i].error) == with_graph);
        CHECK_CONTAINS(log_text, "mpt_captured_step: no graph (");
        CHECK_CONTAINS(log_text, "launches go one by one");
    }
}

/* Whatever fails while launches become a graph, training goes on with the same bits. */
TEST(any_call_inside_a_capture_may_fail) {
    static const int errors[] = {NOT_CAPTURABLE, NO_MEMORY, INVALIDATED, NOT_A_HANDLE};
    uint64_t with_graph = captured_run("", 0, 0);
    int calls = 0;
    for (int i = 0;; i++) {
        uint64_t hash = captured_run("captured", i, errors[i % 4]);
        if (!last_fault_happened) break;
        CHECK(hash == with_graph);
        CHECK_CONTAINS(log_text, "mpt_captured_step: no graph (");
        calls++;
    }
    CHECK(calls > 40);
    printf("\n  %d calls", calls);
}

/* A crash inside a capture is found at its end. */
TEST(a_crash_inside_a_capture) {
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F16, 0);
    mpt_captured captured = mpt_capture(context, step_of, &t);
    CHECK(next_batch(t.loader, &b));
    CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_OK);
    cudasim_fail("captured", 20, BAD_ADDRESS, 1);
    mpt_captured_step(captured, b.x, b.y);
    CHECK_CONTAINS(log_text, "no graph (");
    CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(context), "illegal");
    end(context);
}

/* ==== A device that dies ==== */

/* After a crashed kernel the driver repeats its error for ever. What the host knows stays readable,
   nothing pretends to work, and the CPU goes on. */
TEST(a_dead_device) {
    training t, other;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F16, 0);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
    mpt_synchronize(context);
    mpt_scaler_stats stats = mpt_scaler_statistics(t.scaler);
    cudasim_fail("launch", 5, BAD_ADDRESS, 1);
    CHECK_EQ_INT(train_step(&t), MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(context), "kernel ");
    CHECK_CONTAINS(mpt_error(context), "illegal");
    for (int i = 0; i < 2; i++) {
        mpt_clear_error(context);
        CHECK_EQ_INT(mpt_step_number(context), 3);
        CHECK_EQ_INT(mpt_scaler_statistics(t.scaler).steps, stats.steps);
        CHECK(mpt_scaler_statistics(t.scaler).scale == stats.scale);
        CHECK(!mpt_valid(mpt_zeros(context, MPT_F32, MPT_SHAPE(i ? 1 << 20 : 1))));
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_DEVICE);
        CHECK_CONTAINS(mpt_error(context), "illegal");
    }
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CPU;
    config.threads = 1;
    make_training(&other, mpt_create(&config), MPT_F32, 0);
    CHECK_EQ_INT(train_step(&other), MPT_OK);
    mpt_destroy(other.context);
    end(context);
}

/* Without waiting, the call that waits next hears of it; debug mode names the launch. */
TEST(debug_names_the_launch) {
    for (int debug = 0; debug < 2; debug++) {
        training t;
        mpt_context *context = make_context(debug != 0);
        make_training(&t, context, MPT_F32, 0);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
        CHECK_EQ_INT(mpt_synchronize(context), MPT_OK);
        cudasim_fail("cudaStreamSynchronize", debug ? 7 : 0, BAD_ADDRESS, 1);
        mpt_status status = train_step(&t);
        CHECK_EQ_INT(status, debug ? MPT_ERROR_DEVICE : MPT_OK);
        CHECK_EQ_INT(mpt_synchronize(context), MPT_ERROR_DEVICE);
        CHECK_CONTAINS(mpt_error(context), debug ? ": kernel " : "work on the GPU");
        if (debug) CHECK_CONTAINS(mpt_error(context), ", launch ");
        printf("\n  %s", mpt_error(context));
        end(context);
    }
}

/* An error that the program's own CUDA code left is told of and blamed on no kernel; one that ours
   left is its own message, and none stays. */
TEST(errors_of_others) {
    static char of_the_host[8];
    for (int debug = 0; debug < 2; debug++) {
        training t;
        mpt_context *context = make_context(debug != 0);
        make_training(&t, context, MPT_F32, 0);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
        CHECK(cudaFree(of_the_host) != 0);
        CHECK_EQ_INT(train_step(&t), MPT_OK);
        CHECK_CONTAINS(log_text, "other CUDA code of this thread left an error before a launch: "
                                 "invalid argument; it is forgotten");
        log_text[0] = '\0';
        cudasim_fail("cudaFree", 0, NOT_A_HANDLE, 0);
        mpt_memory_trim(context);
        CHECK(cudasim_failed());
        CHECK_CONTAINS(log_text, "giving memory of the GPU back: invalid resource handle");
        log_text[0] = '\0';
        CHECK_EQ_INT(cudaPeekAtLastError(), 0);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
        cudasim_fail("cudaSetDevice", 3, NOT_A_HANDLE, 0);
        CHECK_EQ_INT(train_step(&t), MPT_ERROR_DEVICE);
        CHECK_CONTAINS(mpt_error(context), "choosing the GPU: invalid resource handle");
        mpt_clear_error(context);
        CHECK_EQ_INT(train_step(&t), MPT_OK);
        end(context);
    }
}

/* ==== Products ==== */

/* Turing has no bf16 in its matrix units: what cuBLASLt refuses takes the plain kernel, which users
   hear of once. */
TEST(a_refused_dtype_is_said_once) {
    training t;
    cudasim_set_capability(75);
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_BF16, 0);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(&t), MPT_OK);
    printf("\n  %s", log_text);
    CHECK_CONTAINS(log_text, "mpt_linear: cuBLASLt refused a bfloat16 product of 1 x [8, ");
    CHECK_CONTAINS(log_text, " on compute capability 7.5 (CUBLAS_STATUS_NOT_SUPPORTED): a plain");
    const char *said = strstr(log_text, "cuBLASLt refused");
    CHECK(said && !strstr(said + 1, "cuBLASLt refused"));
    end(context);
    cudasim_set_capability(90);
}

/* A failure that is none of the product's is an error, not a slow kernel with other bits. */
TEST(a_product_that_fails_is_tried_again) {
    static const char *const calls[] = {"cublasLtMatmul", "cublasLtMatmulDescCreate",
                                        "cublasLtMatrixLayoutSetAttribute",
                                        "cublasLtMatmulPreferenceSetAttribute",
                                        "cublasLtMatmulAlgoGetHeuristic"};
    uint64_t hash[6];
    for (int i = 0; i < 6; i++) {
        training t;
        mpt_batch b;
        mpt_context *context = make_context(false);
        make_training(&t, context, MPT_F16, 0);
        CHECK(next_batch(t.loader, &b));
        if (i < 5) {
            cudasim_fail(calls[i], 0, i == 1 ? NO_CUBLAS_MEMORY : NOT_EXECUTED, 0);
            CHECK_EQ_INT(train_on(&t, b), i == 1 ? MPT_ERROR_MEMORY : MPT_ERROR_DEVICE);
            CHECK_CONTAINS(mpt_error(context), "cuBLASLt: CUBLAS_STATUS_");
            mpt_clear_error(context);
        }
        for (int k = 0; k < 3; k++) CHECK_EQ_INT(train_on(&t, b), MPT_OK);
        CHECK(strstr(log_text, "plain") == NULL);
        hash[i] = training_hash(&t);
        end(context);
    }
    for (int i = 0; i < 5; i++) CHECK(hash[i] == hash[5]);
}

TEST_TABLE = {T(every_kernel_is_there),
              T(files_of_one_release),
              T(the_device_is_described),
              T(two_devices),
              T(out_of_memory_is_survived),
              T(idle_memory_makes_room),
              T(work_of_an_embedding),
              T(steps_do_not_wait),
              T(the_host_reads_while_snapshots_land),
              T(batches_lie_in_locked_memory),
              T(without_a_graph_launches_go_one_by_one),
              T(any_call_inside_a_capture_may_fail),
              T(a_crash_inside_a_capture),
              T(a_dead_device),
              T(debug_names_the_launch),
              T(errors_of_others),
              T(a_refused_dtype_is_said_once),
              T(a_product_that_fails_is_tried_again)};
TEST_MAIN
