/* api_cuda.c: whole trainings on the CPU and on a GPU, or what simulates one, in one program. Both
   draw the same numbers, so initial weights, batches and dropout masks are the same bits, and what
   they learn differs by the roundings of sums in another order alone. Run by suite.sh; without a
   GPU the tests say that they skip. */
#include MPTRAIN_HEADER_FILE
#include "../harness.h"

#include <math.h>

enum { SIDE = 28, CLASSES = 10, SAMPLES = 80, BATCH = 16, STEPS = 6, MAX_WEIGHTS = 128 * 784 };

/* ==== A training ==== */

/* SGD's steps are as long as the gradients, so its weights agree closely. AdamW's have one length,
   so that roundings decide where a gradient is close to zero; hence the mean, too. */
typedef struct recipe {
    const char *name;
    mpt_dtype autocast, parameters; /* batches arrive in the dtype of the parameters */
    bool scaled, adamw;
    double loss_off, weight_off,
        mean_off; /* of each loss, relative; of weights at most, in the mean */
    bool tf32;    /* on the GPU */
} recipe;

static const recipe recipes[] = {
    {"fp32, SGD", MPT_F32, MPT_F32, false, false, 2e-6, 2e-6, 5e-8, false},
    {"fp32", MPT_F32, MPT_F32, false, true, 2e-5, 2e-3, 1e-6, false},
    {"fp16 and scaler", MPT_F16, MPT_F32, true, true, 5e-3, 6e-3, 5e-5, false},
    {"bf16", MPT_BF16, MPT_F32, false, true, 1e-2, 6e-3, 2e-4, false},
    {"half and scaler", MPT_F32, MPT_F16, true, true, 5e-3, 6e-3, 1e-4, false},
    {"tf32", MPT_F32, MPT_F32, false, true, 5e-3, 6e-3, 1.5e-4, true}, /* fp16 has as many bits */
};
enum { RECIPES = sizeof recipes / sizeof recipes[0] };

typedef struct training {
    mpt_context *context;
    mpt_loader loader;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    const recipe *how;
    double loss; /* of the last step */
} training;

/* Squares of light, whose place depends on the class, on a grey noise. */
static mpt_dataset make_data(mpt_context *context) {
    static unsigned char images[SAMPLES][SIDE][SIDE];
    static int64_t digits[SAMPLES];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int i = 0; i < SAMPLES; i++) {
        digits[i] = i % CLASSES;
        for (int y = 0; y < SIDE; y++) {
            for (int x = 0; x < SIDE; x++) {
                bool lit = y / 6 == i % 5 && x / 14 == i % 2;
                images[i][y][x] = (unsigned char)((lit ? 180 : 0) + (i * 31 + y * 7 + x * 13) % 61);
            }
        }
    }
    config.count = SAMPLES;
    config.dtype = MPT_U8;
    config.shape = MPT_SHAPE(1, SIDE, SIDE);
    config.inputs = images;
    config.targets = digits;
    mpt_dataset data = mpt_memory_dataset(context, &config);
    mpt_normalize(data, 0.1307, 0.3081);
    return data;
}

static mpt_loader make_loader(mpt_context *context, mpt_dtype dtype) {
    mpt_loader_config loader = mpt_loader_config_default();
    loader.batch = BATCH;
    loader.shuffle = true;
    loader.dtype = dtype;
    return mpt_loader_create(context, make_data(context), &loader);
}

static mpt_module make_net(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_flatten(c), mpt_nn_linear(c, SIDE * SIDE, 128), mpt_nn_relu(c),
                          mpt_nn_dropout(c, 0.2), mpt_nn_linear(c, 128, 64), mpt_nn_relu(c),
                          mpt_nn_linear(c, 64, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
}

static mpt_context *make_context(mpt_device device, int64_t memory_limit) {
    mpt_config config = mpt_config_default();
    config.device = device;
    config.seed = 7;
    config.threads = 1;
    config.memory_limit = memory_limit;
    return mpt_create(&config);
}

static bool begin(training *t, mpt_device device, const recipe *how, int64_t memory_limit) {
    memset(t, 0, sizeof *t);
    t->context = make_context(device, memory_limit);
    if (!t->context) return false;
    t->how = how;
    if (device == MPT_DEVICE_CUDA) mpt_benchmark(t->context, false, how->tf32);
    t->loader = make_loader(t->context, how->parameters);
    t->net = make_net(t->context);
    if (how->parameters != MPT_F32) mpt_half(t->net, how->parameters);
    mpt_adamw_config adamw = mpt_adamw_config_default();
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_scaler_config scaler = mpt_scaler_config_default();
    sgd.lr = 0.05;
    sgd.momentum = 0.9;
    t->optimizer = how->adamw ? mpt_adamw(t->net, &adamw) : mpt_sgd(t->net, &sgd);
    scaler.enabled = how->scaled;
    t->scaler = mpt_grad_scaler(t->context, &scaler);
    return mpt_get_device(t->context) == device;
}

static mpt_status train_on(training *t, mpt_tensor x, mpt_tensor y) {
    mpt_step_begin(t->context);
    mpt_autocast_begin(t->context, t->how->autocast);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, x), y, NULL);
    mpt_autocast_end(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_unscale(t->scaler, t->optimizer);
    mpt_clip_grad_norm(t->optimizer, 1.0);
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    mpt_metric_push(t->context, "loss", loss);
    mpt_status status = mpt_step_end(t->context);
    t->loss = mpt_metric_mean(t->context, "loss", true);
    mpt_metric_reset(t->context, "loss");
    return status;
}

static bool next_batch(training *t, mpt_batch *b) {
    return mpt_loader_next(t->loader, b) || mpt_loader_next(t->loader, b);
}

static bool train_step(training *t) {
    mpt_batch b;
    return next_batch(t, &b) && train_on(t, b.x, b.y) == MPT_OK;
}

static uint64_t state_of(const training *t) {
    return mpt_module_hash(t->net) * UINT64_C(1099511628211) ^ mpt_optimizer_hash(t->optimizer);
}

static void end(training *t) {
    CHECK_EQ_STR(mpt_error(t->context), "");
    mpt_destroy(t->context);
}

/* One training on each device; false, and an error or the skip noted, where there are not two. */
static bool begin_both(training *cpu, training *gpu, const recipe *how) {
    if (mpt_device_count(MPT_DEVICE_CUDA) == 0) {
        test_lacks = "a GPU";
        return false;
    }
    bool both = begin(cpu, MPT_DEVICE_CPU, how, 0) && begin(gpu, MPT_DEVICE_CUDA, how, 0);
    CHECK(both);
    return both;
}

/* ==== The same numbers ==== */

static void check_same(mpt_tensor a, mpt_tensor b) {
    static unsigned char at_a[MAX_WEIGHTS * 8], at_b[MAX_WEIGHTS * 8];
    size_t bytes = (size_t)mpt_numel(a) * mpt_dtype_size(mpt_get_dtype(a));
    REQUIRE(bytes <= sizeof at_a && mpt_get_dtype(a) == mpt_get_dtype(b));
    CHECK_EQ_INT(mpt_read(a, at_a, bytes), MPT_OK);
    CHECK_EQ_INT(mpt_read(b, at_b, bytes), MPT_OK);
    CHECK_EQ_BITS(at_b, at_a, bytes);
}

TEST(draws_are_the_same_bits) {
    training cpu, gpu;
    if (!begin_both(&cpu, &gpu, &recipes[0])) return;
    CHECK(mpt_module_hash(cpu.net) == mpt_module_hash(gpu.net));
    for (int i = 0; i < 2 * SAMPLES / BATCH; i++) { /* two epochs, shuffled */
        mpt_batch a, b;
        REQUIRE(next_batch(&cpu, &a) && next_batch(&gpu, &b));
        check_same(a.x, b.x);
        check_same(a.y, b.y);
    }
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int i = 0; i < 3; i++) {
        mpt_tensor drawn[2], masked[2];
        for (int k = 0; k < 2; k++) {
            mpt_context *c = k ? gpu.context : cpu.context;
            mpt_step_begin(c);
            drawn[k] = i == 0 ? mpt_randn(c, dtypes[i], MPT_SHAPE(1001))
                              : mpt_rand(c, dtypes[i], MPT_SHAPE(1001));
            masked[k] = mpt_dropout(drawn[k], 0.3);
        }
        check_same(drawn[0], drawn[1]);
        check_same(masked[0], masked[1]);
        mpt_step_end(cpu.context);
        mpt_step_end(gpu.context);
    }
    end(&cpu);
    end(&gpu);
}

/* Workers fill memory again that the device has read, and copies into a batch wait for those who
   still read the last one that lay there: nobody here waits for the device while batches go by. */
TEST(batches_are_whole_when_they_are_read) {
    enum { BATCHES = 2 * SAMPLES / BATCH };
    training cpu, gpu;
    mpt_tensor x[BATCHES], y[BATCHES];
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = BATCH;
    config.prefetch = 1;
    for (config.workers = 0; config.workers <= 2; config.workers++) {
        if (!begin_both(&cpu, &gpu, &recipes[0])) return;
        mpt_loader ahead = mpt_loader_create(gpu.context, make_data(gpu.context), &config);
        mpt_loader plain = mpt_loader_create(cpu.context, make_data(cpu.context), &config);
        for (int i = 0; i < BATCHES; i++) {
            mpt_batch b;
            REQUIRE(mpt_loader_next(ahead, &b) || mpt_loader_next(ahead, &b));
            x[i] = mpt_clone(b.x), y[i] = mpt_clone(b.y);
        }
        for (int i = 0; i < BATCHES; i++) {
            mpt_batch b;
            REQUIRE(mpt_loader_next(plain, &b) || mpt_loader_next(plain, &b));
            check_same(b.x, x[i]);
            check_same(b.y, y[i]);
        }
        end(&cpu);
        end(&gpu);
    }
}

/* ==== The same training ==== */

/* The largest and the mean difference of all weights. */
static void compare_weights(mpt_module a, mpt_module b, double *largest, double *mean) {
    static float at_a[MAX_WEIGHTS], at_b[MAX_WEIGHTS];
    double sum = 0, count = 0;
    *largest = 0;
    for (int i = 0; i < mpt_parameter_count(a); i++) {
        int64_t n = mpt_numel(mpt_parameter_at(a, i, NULL, 0));
        mpt_read_f32(mpt_parameter_at(a, i, NULL, 0), at_a, n);
        mpt_read_f32(mpt_parameter_at(b, i, NULL, 0), at_b, n);
        for (int64_t k = 0; k < n; k++) {
            double off = fabs((double)at_a[k] - (double)at_b[k]);
            if (!(off <= *largest)) *largest = off;
            sum += off;
        }
        count += (double)n;
    }
    *mean = sum / count;
}

TEST(trainings_agree) {
    for (int i = 0; i < RECIPES; i++) {
        training cpu, gpu;
        double largest, mean, loss_off = 0, first = 0;
        if (!begin_both(&cpu, &gpu, &recipes[i])) return;
        for (int step = 0; step < STEPS; step++) {
            REQUIRE(train_step(&cpu) && train_step(&gpu));
            double off = fabs(gpu.loss - cpu.loss) / cpu.loss;
            if (!(off <= loss_off)) loss_off = off;
            if (step == 0) first = gpu.loss;
            CHECK_EQ_INT(mpt_step_outcome(gpu.scaler), mpt_step_outcome(cpu.scaler));
            CHECK(mpt_get_scale(gpu.scaler) == mpt_get_scale(cpu.scaler));
        }
        compare_weights(cpu.net, gpu.net, &largest, &mean);
        printf("\n  %-16s loss %.4f -> %.4f, off by %.1e; weights by %.1e, in the mean %.1e",
               recipes[i].name, first, gpu.loss, loss_off, largest, mean);
        CHECK(loss_off <= recipes[i].loss_off);
        CHECK(largest <= recipes[i].weight_off);
        CHECK(mean <= recipes[i].mean_off);
        CHECK(gpu.loss < first); /* it learns */
        end(&cpu);
        end(&gpu);
    }
}

/* What was learnt on one device goes on on the other. */
TEST(weights_move_between_devices) {
    training cpu, gpu;
    double largest, mean;
    if (!begin_both(&cpu, &gpu, &recipes[0])) return;
    const char *path = test_tmp_path("weights.safetensors");
    REQUIRE(train_step(&gpu) && mpt_module_hash(gpu.net) != mpt_module_hash(cpu.net));
    CHECK_EQ_INT(mpt_save(gpu.net, path), MPT_OK);
    CHECK_EQ_INT(mpt_load(cpu.net, path, NULL, NULL), MPT_OK);
    CHECK(mpt_module_hash(gpu.net) == mpt_module_hash(cpu.net));
    REQUIRE(train_step(&cpu));
    CHECK_EQ_INT(mpt_save(cpu.net, path), MPT_OK);
    CHECK_EQ_INT(mpt_load(gpu.net, path, NULL, NULL), MPT_OK);
    CHECK(mpt_module_hash(gpu.net) == mpt_module_hash(cpu.net));
    REQUIRE(train_step(&gpu));
    CHECK_EQ_INT(mpt_copy_module(cpu.net, gpu.net), MPT_OK);
    compare_weights(cpu.net, gpu.net, &largest, &mean);
    CHECK(largest == 0);
    remove(path);
    end(&cpu);
    end(&gpu);
}

/* ==== TF32 ==== */

enum { TF32_ROWS = 48, TF32_INNER = 96, TF32_COLUMNS = 40 };

/* x [2, rows, inner] times w [columns, inner] transposed, and the gradients of both by `upstream`;
   with `sizes` of the sizes of all values. */
static void products_of(mpt_context *c, bool sizes, float *out[3]) {
    static const int64_t numel[3] = {2 * TF32_ROWS * TF32_INNER, TF32_COLUMNS * TF32_INNER,
                                     2 * TF32_ROWS * TF32_COLUMNS};
    const mpt_shape shapes[3] = {MPT_SHAPE(2, TF32_ROWS, TF32_INNER),
                                 MPT_SHAPE(TF32_COLUMNS, TF32_INNER),
                                 MPT_SHAPE(2, TF32_ROWS, TF32_COLUMNS)};
    static float values[2 * TF32_ROWS * TF32_INNER];
    mpt_tensor t[3];
    uint32_t drawn = 11;
    mpt_scope_begin(c);
    for (int i = 0; i < 3; i++) {
        for (int64_t j = 0; j < numel[i]; j++) {
            drawn = drawn * 1664525u + 1013904223u;
            values[j] = (float)(drawn >> 8) * (2.0f / (1 << 24)) - 1.0f;
            if (sizes) values[j] = fabsf(values[j]);
        }
        t[i] = mpt_from(c, MPT_F32, shapes[i], values);
        if (i < 2) mpt_requires_grad(t[i], true);
    }
    mpt_tensor y = mpt_matmul(t[0], mpt_transpose(t[1], 0, 1));
    mpt_backward_from(y, t[2], false);
    const mpt_tensor results[3] = {mpt_grad(t[0]), mpt_grad(t[1]), y};
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(mpt_read_f32(results[i], out[i], numel[i]), MPT_OK);
    mpt_scope_end(c);
}

/* Both operands lose what is behind ten bits, so that each product of two is off by less than 2^-9
   of its size, rounded or cut off. It is off by more than roundings of fp32 can explain where the
   card has TF32, and by less without being asked for it. */
TEST(tf32_products) {
    static float memory[4][3][2 * TF32_ROWS * TF32_INNER];
    float *at[4][3];
    training cpu, gpu;
    double worst[2] = {0, 0};
    if (!begin_both(&cpu, &gpu, &recipes[0])) return;
    for (int i = 0; i < 12; i++) at[i / 3][i % 3] = memory[i / 3][i % 3];
    products_of(cpu.context, false, at[0]);
    products_of(cpu.context, true, at[1]);
    products_of(gpu.context, false, at[2]);
    CHECK_EQ_INT(mpt_benchmark(gpu.context, false, true), MPT_OK);
    products_of(gpu.context, false, at[3]);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++)
            for (int j = 0; j < 2 * TF32_ROWS * TF32_INNER; j++) {
                const double size = (double)memory[1][i][j];
                const double off = fabs((double)memory[2 + k][i][j] - (double)memory[0][i][j]);
                if (size > 0 && !(off <= worst[k] * size)) worst[k] = off / size;
            }
    printf("\n  off by %.1e of the sum of sizes in fp32, %.1e in TF32", worst[0], worst[1]);
    CHECK(worst[0] < 1e-6);
    CHECK(worst[1] < 1.0 / 512);
    CHECK(worst[1] > 1e-5 || mpt_get_device_info(gpu.context).major < 8);
    end(&cpu);
    end(&gpu);
}

/* ==== Benchmark mode ==== */

/* What one program has timed another one takes over, and times nothing. */
TEST(choices_of_benchmark_mode_move) {
    static char text[1 << 14], again[1 << 14];
    training first, second;
    if (!begin_both(&first, &second, &recipes[3])) return;
    end(&first);
    REQUIRE(begin(&first, MPT_DEVICE_CUDA, &recipes[3], 0));
    CHECK_EQ_INT(mpt_benchmark(first.context, true, false), MPT_OK);
    REQUIRE(train_step(&first) && train_step(&first));
    CHECK(mpt_benchmark_text(first.context, text, sizeof text) == strlen(text));
    CHECK_CONTAINS(text, " algorithm=");
    CHECK(strstr(text, "heuristic\n") == NULL);
    CHECK_EQ_INT(mpt_benchmark_read(second.context, text), MPT_OK);
    REQUIRE(train_step(&second) && train_step(&second));
    mpt_benchmark_text(second.context, again, sizeof again);
    CHECK_EQ_STR(again, text);
    CHECK(state_of(&first) == state_of(&second));
    end(&first);
    end(&second);
}

/* ==== Mishaps ==== */

/* An overflow leaves no trace but a smaller scale. */
TEST(overflow_is_skipped) {
    training cpu, gpu;
    if (!begin_both(&cpu, &gpu, &recipes[2])) return;
    REQUIRE(train_step(&cpu) && train_step(&gpu));
    uint64_t before = state_of(&gpu);
    mpt_set_scale(cpu.scaler, 1e38);
    mpt_set_scale(gpu.scaler, 1e38);
    REQUIRE(train_step(&cpu) && train_step(&gpu));
    CHECK_EQ_INT(mpt_step_outcome(cpu.scaler), MPT_OUTCOME_SKIPPED);
    CHECK_EQ_INT(mpt_step_outcome(gpu.scaler), MPT_OUTCOME_SKIPPED);
    CHECK(state_of(&gpu) == before);
    CHECK(mpt_get_scale(gpu.scaler) == mpt_get_scale(cpu.scaler));
    CHECK_EQ_INT(mpt_scaler_statistics(gpu.scaler).skipped, 1);
    mpt_set_scale(gpu.scaler, 1024);
    REQUIRE(train_step(&gpu));
    CHECK_EQ_INT(mpt_step_outcome(gpu.scaler), MPT_OUTCOME_APPLIED);
    CHECK(state_of(&gpu) != before);
    end(&cpu);
    end(&gpu);
}

/* The first bad target is named as on the CPU, by whichever call comes to know of it, and no weight
   moves. */
TEST(bad_targets_are_named) {
    training cpu, gpu, *both[2] = {&cpu, &gpu};
    static int64_t digits[BATCH] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 10, 2, -1, 99, 5};
    char said[300] = "";
    if (!begin_both(&cpu, &gpu, &recipes[0])) return;
    for (int k = 0; k < 2; k++) {
        training *t = both[k];
        REQUIRE(train_step(t));
        uint64_t before = state_of(t);
        mpt_tensor x = mpt_keep(mpt_ones(t->context, MPT_F32, MPT_SHAPE(BATCH, 1, SIDE, SIDE)));
        mpt_tensor y = mpt_keep(mpt_from(t->context, MPT_I64, MPT_SHAPE(BATCH), digits));
        train_on(t, x, y);
        mpt_synchronize(t->context);
        CHECK_EQ_INT(mpt_error_code(t->context), MPT_ERROR_INDEX);
        const char *words = strstr(mpt_error(t->context), "target of sample 11");
        if (k == 0) snprintf(said, sizeof said, "%s", words ? words : "nothing");
        CHECK_EQ_STR(words, said);
        mpt_clear_error(t->context);
        CHECK(state_of(t) == before);
        CHECK(train_step(t));
        CHECK(state_of(t) != before);
        end(t);
    }
}

/* Out of memory says so, and the training goes on as if nothing had been. */
TEST(out_of_memory_is_survived) {
    training t, alone;
    const int64_t limit = 64 << 20;
    if (!begin_both(&alone, &t, &recipes[0])) return;
    end(&t);
    end(&alone);
    REQUIRE(begin(&t, MPT_DEVICE_CUDA, &recipes[0], limit));
    REQUIRE(begin(&alone, MPT_DEVICE_CUDA, &recipes[0], 0));
    REQUIRE(train_step(&t) && train_step(&alone));
    uint64_t before = state_of(&t);
    mpt_step_begin(t.context);
    mpt_tensor large = mpt_ones(t.context, MPT_F32, MPT_SHAPE(limit / 4));
    CHECK(!mpt_valid(large));
    CHECK_EQ_INT(mpt_error_code(t.context), MPT_ERROR_MEMORY);
    CHECK_CONTAINS(mpt_error(t.context), "asked for 64 MiB");
    CHECK_CONTAINS(mpt_error(t.context), "memory_limit");
    mpt_clear_error(t.context);
    CHECK(state_of(&t) == before);
    REQUIRE(train_step(&t) && train_step(&alone));
    CHECK(state_of(&t) == state_of(&alone));
    CHECK(mpt_memory(t.context).held <= limit);
    end(&t);
    end(&alone);
}

/* A batch far beyond the memory of the card, without a limit of ours. */
TEST(huge_batch_is_survived) {
    training t, alone;
    if (!begin_both(&alone, &t, &recipes[2])) return;
    end(&alone);
    REQUIRE(begin(&alone, MPT_DEVICE_CUDA, &recipes[2], 0));
    REQUIRE(train_step(&t) && train_step(&alone));
    const uint64_t before = state_of(&t);
    const int64_t batch = mpt_get_device_info(t.context).memory / 64;
    mpt_tensor x = mpt_ones(t.context, MPT_F32, MPT_SHAPE(1, 1, SIDE, SIDE));
    mpt_tensor y = mpt_zeros(t.context, MPT_I64, MPT_SHAPE(1));
    CHECK_EQ_INT(train_on(&t, mpt_expand(x, MPT_SHAPE(batch, 1, SIDE, SIDE)),
                          mpt_expand(y, MPT_SHAPE(batch))),
                 MPT_ERROR_MEMORY);
    printf("\n  %s", mpt_error(t.context));
    CHECK_CONTAINS(mpt_error(t.context), "out of memory: the device, which has ");
    CHECK_CONTAINS(mpt_error(t.context), "; try a smaller batch");
    mpt_clear_error(t.context);
    CHECK(state_of(&t) == before);
    REQUIRE(train_step(&t) && train_step(&alone));
    CHECK(state_of(&t) == state_of(&alone));
    end(&t);
    end(&alone);
}

/* ==== Captured steps ==== */

static mpt_status step_of(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    training *t = (training *)user;
    mpt_step_begin(context);
    mpt_tensor loss = mpt_nll_loss(mpt_forward(t->net, x), y, NULL);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    return mpt_step_end(context);
}

/* A graph leaves the same bits as its launches, one by one. */
TEST(captured_steps_are_the_same_bits) {
    training eager, captured;
    if (!begin_both(&eager, &captured, &recipes[4])) return;
    end(&eager);
    REQUIRE(begin(&eager, MPT_DEVICE_CUDA, &recipes[4], 0));
    mpt_captured step = mpt_capture(captured.context, step_of, &captured);
    for (int i = 0; i < STEPS; i++) {
        mpt_batch a, b;
        REQUIRE(next_batch(&eager, &a) && next_batch(&captured, &b));
        CHECK_EQ_INT(step_of(eager.context, &eager, a.x, a.y), MPT_OK);
        CHECK_EQ_INT(mpt_captured_step(step, b.x, b.y), MPT_OK);
    }
    CHECK_EQ_INT(mpt_captured_count(step), STEPS - 2);
    CHECK(state_of(&captured) == state_of(&eager));
    CHECK(mpt_get_scale(captured.scaler) == mpt_get_scale(eager.scaler));
    mpt_captured_destroy(step);
    end(&eager);
    end(&captured);
}

TEST_TABLE = {T(draws_are_the_same_bits),        T(batches_are_whole_when_they_are_read),
              T(trainings_agree),
              T(weights_move_between_devices),   T(tf32_products),
              T(choices_of_benchmark_mode_move), T(overflow_is_skipped),
              T(bad_targets_are_named),          T(out_of_memory_is_survived),
              T(huge_batch_is_survived),         T(captured_steps_are_the_same_bits)};
TEST_MAIN
