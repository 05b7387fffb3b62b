/* api_memory.c: what memory training takes: half precision against fp32 at a large batch, the table
   by kind, the allocator's own count, and no allocation once every shape has been seen. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

#include "../examples/precisions.h"

enum { IMAGE = 784, LARGE = 4096, PARAMETERS = 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10 };

/* The classifier of MNIST on images of noise, whose number a batch does not divide. */
typedef struct classifier {
    arena memory;
    training t;
    mpt_schedule schedule;
} classifier;

static mpt_dataset make_images(mpt_context *context, int64_t count) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    uint8_t *pixels = (uint8_t *)malloc((size_t)count * IMAGE);
    int64_t *labels = (int64_t *)malloc((size_t)count * sizeof *labels);
    uint32_t state = 1;
    for (int64_t i = 0; i < count * IMAGE; i++) {
        state = state * 1664525u + 1013904223u;
        pixels[i] = (uint8_t)(state >> 24);
    }
    for (int64_t i = 0; i < count; i++) labels[i] = i % 10;
    config.count = count;
    config.dtype = MPT_U8;
    config.shape = MPT_SHAPE(1, 28, 28);
    config.inputs = pixels;
    config.targets = labels;
    mpt_dataset images = mpt_memory_dataset(context, &config);
    free(pixels);
    free(labels);
    return images;
}

/* In place: the allocator's callback points to it. */
static void make_classifier(classifier *c, const precision *p, int64_t count, int64_t batch) {
    mpt_config config = mpt_config_default();
    arena_use(&c->memory, &config);
    mpt_context *context = mpt_create(&config);
    c->t.context = context;
    c->t.precision = p->autocast;
    c->t.loader = make_loader_of(context, make_images(context, count), batch, 0, p->batch);
    c->t.net =
        mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, IMAGE, 128),
                       mpt_nn_relu(context), mpt_nn_linear(context, 128, 64), mpt_nn_relu(context),
                       mpt_nn_linear(context, 64, 10), mpt_nn_log_softmax(context, -1), MPT_END);
    if (p->parameters != MPT_F32) mpt_half(c->t.net, p->parameters);
    c->t.optimizer = mpt_adamw(c->t.net, NULL);
    mpt_scaler_config sc = mpt_scaler_config_default();
    sc.enabled = p->scaled;
    c->t.scaler = mpt_grad_scaler(context, &sc);
    c->schedule = mpt_cosine_annealing(c->t.optimizer, 1000, 1e-5, MPT_PER_STEP);
}

static void train_epochs(classifier *c, int epochs) {
    mpt_batch b;
    for (int epoch = 0; epoch < epochs; epoch++)
        while (mpt_loader_next(c->t.loader, &b)) train_on(&c->t, b);
}

static void end_classifier(classifier *c) {
    CHECK_EQ_STR(mpt_error(c->t.context), "");
    mpt_destroy(c->t.context);
    CHECK_EQ_INT(c->memory.live, 0);
    CHECK_EQ_INT(c->memory.torn, 0);
}

/* ---- half precision saves memory ---- */

static int64_t least(const precision *p, mpt_memory_kind kind) {
    int64_t half_batch = LARGE * (IMAGE * 2 + 8), width = p->batch == MPT_F32 ? 4 : 2;
    switch (kind) {
    case MPT_MEMORY_PARAMETER:
        return PARAMETERS * (p->parameters == MPT_F32 ? 4 : 2);
    case MPT_MEMORY_MASTER:
        return p->parameters == MPT_F32 ? 0 : PARAMETERS * 4;
    case MPT_MEMORY_FORM:
        return p->autocast == MPT_F32 ? 0 : PARAMETERS * 2;
    case MPT_MEMORY_GRADIENT:
        return PARAMETERS * 4;
    case MPT_MEMORY_MOMENT:
        return PARAMETERS * 8;
    case MPT_MEMORY_BATCH:
        return half_batch + LARGE * IMAGE * (width - 2);
    /* what backward needs: both hidden layers, the logits' log-probabilities in fp32 */
    case MPT_MEMORY_ACTIVATION:
        return LARGE * ((128 + 64) * width + 10 * 4);
    default:
        return 0;
    }
}

/* Peaks of one epoch at a large batch: none below what it must be. What parameters and optimizer
   hold in the end is that and at most 1 KB for gaps and counters. */
static mpt_memory_stats measure(const precision *p) {
    classifier c;
    make_classifier(&c, p, LARGE + LARGE / 2, LARGE);
    train_epochs(&c, 1);
    mpt_memory_stats m = mpt_memory(c.t.context);
    printf("\n  %-5s", p->name);
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++) {
        int64_t need = least(p, (mpt_memory_kind)kind);
        bool exact = kind == MPT_MEMORY_PARAMETER || kind == MPT_MEMORY_MASTER ||
                     kind == MPT_MEMORY_FORM || kind == MPT_MEMORY_MOMENT;
        printf(" %10lld", (long long)m.peak[kind]);
        CHECK(m.peak[kind] >= need);
        if (exact) CHECK(m.current[kind] <= (need == 0 ? 0 : need + 1024));
    }
    printf(" %10lld", (long long)(m.total_peak - m.peak[MPT_MEMORY_DATA]));
    end_classifier(&c);
    return m;
}

TEST(half_saves_memory) {
    mpt_memory_stats m[PRECISIONS];
    printf("\n       ");
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++)
        printf(" %10s", mpt_memory_kind_name((mpt_memory_kind)kind));
    printf("  but data");
    for (int i = 0; i < PRECISIONS; i++) m[i] = measure(&precisions[i]);
    double fp32 = (double)(m[0].total_peak - m[0].peak[MPT_MEMORY_DATA]);
    for (int i = 1; i < PRECISIONS; i++) {
        double ratio = (double)(m[i].total_peak - m[i].peak[MPT_MEMORY_DATA]) / fp32;
        printf("\n  %s takes %.3f of fp32", precisions[i].name, ratio);
        CHECK(ratio <= 0.65);
        CHECK_EQ_INT(m[i].peak[MPT_MEMORY_DATA], m[0].peak[MPT_MEMORY_DATA]);
        CHECK((double)m[i].peak[MPT_MEMORY_ACTIVATION] <
              0.65 * (double)m[0].peak[MPT_MEMORY_ACTIVATION]);
    }
}

/* Half tensors take two bytes an element, as do batches that a loader delivers in half. */
TEST(half_is_sixteen_bits) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int i = 0; i < 3; i++) {
        int64_t width = i == 0 ? 4 : 2, numel = 1 << 20;
        mpt_context *context = mpt_create(NULL);
        CHECK_EQ_INT(mpt_dtype_size(dtypes[i]), width);
        int64_t before = mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
        mpt_tensor x = mpt_ones(context, dtypes[i], MPT_SHAPE(1024, 1024));
        int64_t taken = mpt_memory(context).current[MPT_MEMORY_ACTIVATION] - before;
        CHECK_EQ_INT(taken, numel * width);
        mpt_tensor y = mpt_mul(x, x);
        CHECK_EQ_INT(mpt_get_dtype(y), dtypes[i]);
        taken = mpt_memory(context).current[MPT_MEMORY_ACTIVATION] - before;
        CHECK_EQ_INT(taken, 2 * numel * width);
        mpt_release(x);
        mpt_release(y);
        CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_ACTIVATION], before);

        before = mpt_memory(context).current[MPT_MEMORY_BATCH];
        mpt_loader loader = make_loader_of(context, make_images(context, 512), 512, 0, dtypes[i]);
        mpt_batch b;
        CHECK(mpt_loader_next(loader, &b));
        CHECK_EQ_INT(mpt_get_dtype(b.x), dtypes[i]);
        taken = mpt_memory(context).current[MPT_MEMORY_BATCH] - before;
        CHECK(taken >= 512 * (IMAGE * width + 8));
        CHECK(taken <= 512 * (IMAGE * width + 8) + 4096);
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
    }
}

/* ---- steady state ---- */

/* After an epoch, its short last batch included, training calls the allocator no more, and the
   context's books are the allocator's. Returns what is held, idle memory and all, per peak byte. */
static double check_steady_state(const precision *p, int64_t batch, int64_t last) {
    classifier c;
    make_classifier(&c, p, 3 * batch + last, batch);
    train_epochs(&c, 1);
    int64_t calls = c.memory.calls, blocks = c.memory.blocks;
    train_epochs(&c, batch < 100 ? 20 : 2);
    mpt_memory_stats m = mpt_memory(c.t.context);
    CHECK_EQ_INT(c.memory.calls, calls);
    CHECK_EQ_INT(c.memory.blocks, blocks);
    CHECK_EQ_INT(m.allocations, calls);
    CHECK_EQ_INT(m.allocations - m.releases, blocks);
    CHECK_CLOSE(m.held, c.memory.live, 0.01, 0);
    CHECK(m.total_current <= m.held && m.total_peak <= m.held);
    int64_t sum = 0;
    for (int kind = 0; kind < MPT_MEMORY_KINDS; kind++) sum += m.current[kind];
    CHECK_EQ_INT(sum, m.total_current);
    printf("\n  %s, batches of %lld and %lld: %lld calls, peak %.1f KB, held %.1f KB", p->name,
           (long long)batch, (long long)last, (long long)calls, (double)m.total_peak / 1024,
           (double)m.held / 1024);
    end_classifier(&c);
    return (double)m.held / (double)m.total_peak;
}

TEST(steady_state_allocates_nothing) {
    static const int64_t batches[][2] = {{64, 64}, {64, 21}, {1024, 1024}, {1024, 341}, {1024, 1}};
    for (int i = 0; i < PRECISIONS; i++)
        for (int k = 0; k < 5; k++)
            CHECK(check_steady_state(&precisions[i], batches[k][0], batches[k][1]) <= 1.25);
}

/* Idle memory goes back when asked for, and training goes on. */
TEST(trim_gives_back) {
    classifier c;
    make_classifier(&c, &precisions[1], 200, 64);
    train_epochs(&c, 1);
    int64_t live = c.memory.live;
    mpt_memory_trim(c.t.context);
    CHECK(c.memory.live < live);
    mpt_memory_stats m = mpt_memory(c.t.context);
    CHECK_CLOSE(m.held, c.memory.live, 0.01, 0);
    CHECK_CLOSE(m.total_current, c.memory.live, 0.01, 0);
    train_epochs(&c, 1);
    CHECK_CLOSE(c.memory.live, live, 0.01, 0);
    end_classifier(&c);
}

/* ==== Loops without steps ==== */

static void hear_leftovers(void *user, mpt_log_level level, const char *message) {
    if (level == MPT_LOG_WARNING && strstr(message, "mpt_step_begin and mpt_step_end"))
        ++*(int *)user;
}

/* Training and prediction with and without a step or scope; many tensors that are kept. */
TEST(loops_without_steps_are_told) {
    static const int rounds[6] = {1700, 1700, 9000, 9000, 17000, 400}, told[6] = {1, 0, 1, 0, 0, 0};
    for (int way = 0; way < 6; way++) {
        int warnings = 0;
        mpt_config config = mpt_config_default();
        config.log.write = hear_leftovers, config.log.user = &warnings;
        config.threads = 1;
        mpt_context *c = mpt_create(&config);
        mpt_module net = mpt_nn_linear(c, 2, 1);
        mpt_optimizer sgd = mpt_sgd(net, NULL);
        const float x[2] = {1, 2};
        for (int i = 0; i < rounds[way]; i++) {
            if (way == 1) mpt_step_begin(c);
            if (way == 3) mpt_scope_begin(c);
            mpt_tensor in = mpt_from(c, MPT_F32, MPT_SHAPE(1, 2), x);
            if (way == 4) mpt_keep(in), mpt_release(in);
            if (way < 4 || way == 5) in = mpt_forward(net, in);
            if (way < 2 || way == 5) {
                mpt_zero_grad(sgd);
                mpt_backward(mpt_sum(in, MPT_ALL_DIMS, false));
                mpt_step(sgd);
            }
            if (way == 1) mpt_step_end(c);
            if (way == 3) mpt_scope_end(c);
        }
        CHECK_EQ_STR(mpt_error(c), "");
        CHECK_EQ_INT(warnings, told[way]);
        mpt_destroy(c);
    }
}

/* ==== Large idle memory ==== */

enum { MB = 1 << 20 };

static mpt_tensor bytes_of(mpt_context *c, double megabytes, int value) {
    return mpt_full(c, MPT_U8, MPT_SHAPE((int64_t)(megabytes * MB)), value);
}

/* Megabytes that the context holds, small things left out. */
static int held_by(mpt_context *c) { return (int)((mpt_memory(c).held + MB / 2) / MB); }

static void check_filled(mpt_tensor tensor, int value) {
    const int64_t n = mpt_numel(tensor);
    uint8_t *bytes = (uint8_t *)malloc((size_t)n);
    int64_t wrong = 0;
    CHECK_EQ_INT(mpt_read(tensor, bytes, (size_t)n), MPT_OK);
    for (int64_t i = 0; i < n; i++) wrong += bytes[i] != value;
    CHECK_EQ_INT(wrong, 0);
    free(bytes);
}

/* What was one tensor serves several without more memory, and together again a large one. */
TEST(large_idle_memory_is_cut_and_joined) {
    if (sizeof(void *) < 8) SKIP("pointers of 64 bits");
    mpt_context *c = mpt_create(NULL);
    mpt_tensor part[4];
    mpt_scope_begin(c);
    mpt_release(bytes_of(c, 4, 9));
    CHECK_EQ_INT(held_by(c), 4);
    for (int i = 0; i < 4; i++) part[i] = bytes_of(c, 1, i);
    CHECK_EQ_INT(held_by(c), 4);
    for (int i = 0; i < 4; i++) check_filled(part[i], i);
    mpt_release(part[0]), mpt_release(part[2]);
    mpt_tensor two = bytes_of(c, 2, 7); /* the two that are idle do not touch */
    CHECK_EQ_INT(held_by(c), 6);
    check_filled(part[1], 1), check_filled(part[3], 3);
    mpt_release(part[1]), mpt_release(part[3]);
    mpt_tensor four = bytes_of(c, 4, 5);
    CHECK_EQ_INT(held_by(c), 6);
    check_filled(two, 7), check_filled(four, 5);
    mpt_release(two), mpt_release(four);
    mpt_memory_trim(c);
    CHECK_EQ_INT(held_by(c), 0);
    mpt_release(bytes_of(c, 4, 1));
    part[0] = bytes_of(c, 1, 2);
    mpt_memory_trim(c); /* what is in use in part stays */
    CHECK_EQ_INT(held_by(c), 4);
    check_filled(part[0], 2);
    mpt_scope_end(c);
    mpt_memory_trim(c);
    CHECK_EQ_INT(held_by(c), 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* An idle allocation that is too small goes before a larger one comes; where there is a limit none
   is cut, so that all that is idle can go. */
TEST(large_idle_memory_makes_way) {
    mpt_config config = mpt_config_default();
    if (sizeof(void *) < 8) SKIP("pointers of 64 bits");
    for (int limited = 0; limited < 2; limited++) {
        config.memory_limit = limited ? 6 * MB : 0;
        mpt_context *c = mpt_create(&config);
        mpt_scope_begin(c);
        mpt_release(bytes_of(c, 3, 1));
        mpt_tensor large = bytes_of(c, 4, 2);
        CHECK_EQ_INT(held_by(c), 4);
        mpt_release(large);
        mpt_tensor small = bytes_of(c, 1, 3);
        CHECK_EQ_INT(held_by(c), limited ? 1 : 4);
        large = bytes_of(c, 4.5, 4);
        CHECK_EQ_INT(held_by(c), limited ? 6 : 9); /* of 5.5 and 8.5 */
        check_filled(small, 3), check_filled(large, 4);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_scope_end(c);
        mpt_destroy(c);
    }
}

TEST_TABLE = {T(loops_without_steps_are_told), T(half_saves_memory), T(half_is_sixteen_bits),
              T(steady_state_allocates_nothing), T(trim_gives_back),
              T(large_idle_memory_is_cut_and_joined), T(large_idle_memory_makes_way)};
TEST_MAIN
