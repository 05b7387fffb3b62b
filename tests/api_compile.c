/* api_compile.c: a compiled step leaves the bits of the step itself, in fewer launches. */
#include MPTRAIN_HEADER_FILE
#include "mptrain_compile.h"
#include "harness.h"
#include "bits.h"

static mpt_context *make_context(int threads, bool debug) {
    mpt_config config = mpt_config_default();
    config.seed = 5;
    config.threads = threads;
    config.debug = debug;
    return mpt_create(&config);
}

/* Elsewhere a compiled step is a captured one. */
static bool compiles(void) { return mpt_device_count(MPT_DEVICE_CUDA) == 0; }

static void check_ok(mpt_context *context) {
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
}

/* ==== A net that touches most kernels ==== */

/* 60 steps in the way: 0 by hand, 1 captured, 2 compiled; an overflow on the way. */
static uint64_t train(mpt_dtype precision, int way, int threads, bool debug) {
    training t;
    mpt_context *context = make_context(threads, debug);
    make_training(&t, context, precision, 0);
    mpt_captured step = (way == 2 ? mpt_compile : mpt_capture)(context, step_of, &t);
    for (int i = 0; i < 60; i++) {
        mpt_batch b;
        if (i == 30) mpt_set_scale(t.scaler, 1e30);
        if (!next_batch(t.loader, &b)) break;
        if (way)
            mpt_captured_step(step, b.x, b.y);
        else
            step_of(context, &t, b.x, b.y);
    }
    check_ok(context);
    if (way == 2 && compiles()) {
        mpt_compile_stats stats;
        CHECK_EQ_INT(mpt_compile_statistics(step, &stats), MPT_OK);
        CHECK(stats.recordings >= 1 && stats.launches[1] <= stats.launches[0]);
        CHECK_EQ_INT(stats.launches[0] - stats.launches[1],
                     stats.fused - stats.programs + stats.dropped);
    }
    const uint64_t hash = training_hash(&t);
    mpt_destroy(context);
    return hash;
}

TEST(compiled_steps_leave_the_same_bits) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < 3; i++) {
        const uint64_t hash = train(precisions[i], 0, 1, false);
        CHECK(hash == train(precisions[i], 1, 1, false));
        CHECK(hash == train(precisions[i], 2, 1, false));
        CHECK(hash == train(precisions[i], 2, 3, false));
        CHECK(hash == train(precisions[i], 2, 2, true)); /* compares recordings */
    }
}

/* ==== Chains ==== */

typedef struct chain {
    mpt_tensor (*of)(mpt_tensor x, mpt_tensor w, mpt_tensor b);
    mpt_module net;
    mpt_tensor w, b, to;
    mpt_optimizer optimizer;
    mpt_dtype precision;
} chain;

static mpt_tensor swish(mpt_tensor x, mpt_tensor w, mpt_tensor b) {
    mpt_tensor y = mpt_add(mpt_mul(x, w), b);
    return mpt_mul(mpt_sigmoid(mpt_mul_scalar(y, 1.5)), y);
}

/* Rows and columns that spread, a view that is no longer dense, casts to and from halves. */
static mpt_tensor spread(mpt_tensor x, mpt_tensor w, mpt_tensor b) {
    mpt_tensor low = mpt_cast(mpt_mul(x, w), MPT_BF16);
    mpt_tensor y = mpt_add(mpt_cast(mpt_tanh(low), MPT_F32), b);
    mpt_tensor turned = mpt_transpose(mpt_transpose(y, 0, 1), 0, 1);
    return mpt_relu(mpt_sub(mpt_cast(mpt_exp(mpt_cast(turned, MPT_F16)), MPT_F32), y));
}

/* More operands than a program holds, and results that others want, too. */
static mpt_tensor many(mpt_tensor x, mpt_tensor w, mpt_tensor b) {
    mpt_tensor sum = x, kept = mpt_mul_scalar(x, 0.25);
    for (int i = 0; i < 12; i++) {
        mpt_tensor more = mpt_add_scalar(i % 2 ? w : b, 0.1 * i);
        sum = i % 3 ? mpt_add(sum, more) : mpt_mul(sum, more);
    }
    return mpt_add(mpt_matmul(sum, mpt_transpose(kept, 0, 1)), mpt_sum(kept, MPT_ALL_DIMS, false));
}

static mpt_status chain_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    chain *c = (chain *)user;
    (void)y;
    mpt_step_begin(context);
    mpt_autocast_begin(context, c->precision);
    mpt_tensor out = c->of(mpt_forward(c->net, x), c->w, c->b);
    mpt_autocast_end(context);
    mpt_zero_grad(c->optimizer);
    mpt_backward(mpt_mean(mpt_cast(out, MPT_F32), MPT_ALL_DIMS, false));
    mpt_step(c->optimizer);
    return mpt_step_end(context);
}

/* A hash of weights after some steps in a way, as above; what compiling did. */
static uint64_t run_chain(chain c, int rows, int way, int threads, mpt_compile_stats *stats) {
    const int64_t columns = 37;
    mpt_context *context = make_context(threads, false);
    c.net = mpt_sequential(context, mpt_nn_linear(context, 8, columns), MPT_END);
    c.optimizer = mpt_adamw(c.net, NULL);
    c.w = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(columns)));
    c.b = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(rows, 1)));
    mpt_tensor x = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(rows, 8)));
    mpt_captured step = (way == 2 ? mpt_compile : mpt_capture)(context, chain_step, &c);
    for (int i = 0; i < 12; i++) {
        if (way)
            mpt_captured_step(step, x, x);
        else
            chain_step(context, &c, x, x);
    }
    check_ok(context);
    if (way == 2) mpt_compile_statistics(step, stats);
    const uint64_t hash = mpt_module_hash(c.net);
    mpt_destroy(context);
    return hash;
}

TEST(chains_go_through_memory_once) {
    static mpt_tensor (*const chains[])(mpt_tensor, mpt_tensor, mpt_tensor) = {swish, spread, many};
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < 9; i++) {
        chain c;
        mpt_compile_stats stats;
        memset(&c, 0, sizeof c);
        c.of = chains[i / 3], c.precision = precisions[i % 3];
        const uint64_t hash = run_chain(c, 300, 0, 1, NULL);
        CHECK(hash == run_chain(c, 300, 1, 1, NULL));
        CHECK(hash == run_chain(c, 300, 2, 1, &stats));
        CHECK(hash == run_chain(c, 300, 2, 4, &stats));
        CHECK(!compiles() ||
              (stats.programs > 0 && stats.fused > stats.programs && stats.tensors > 0));
        CHECK(!compiles() || (stats.kept_out > 0 && stats.bytes[1] < stats.bytes[0]));
        CHECK(run_chain(c, 1, 0, 1, NULL) == run_chain(c, 1, 2, 1, &stats));
        if (test_failures) printf("\n  chain %d", i);
    }
}

/* ==== Programs made up at random ==== */

enum { KEPT = 3, VALUES = 40 };

typedef struct made_up {
    uint64_t seed;
    int64_t rows, columns;
    mpt_tensor kept[KEPT]; /* outlive the step: read, written, changed in place */
} made_up;

static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

/* One more value from those that there are. */
static mpt_tensor make_value(uint64_t *state, const mpt_tensor *value, int n) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    mpt_tensor a = value[draw(state, (uint32_t)n)], b = value[draw(state, (uint32_t)n)];
    switch (draw(state, 16)) {
    case 0: return mpt_add(a, b);
    case 1: return mpt_sub(a, b);
    case 2: return mpt_mul(a, b);
    case 3: return mpt_maximum(a, b);
    case 4: return mpt_tanh(a);
    case 5: return mpt_sigmoid(a);
    case 6: return mpt_relu(b);
    case 7: return mpt_mul_scalar(a, 0.5);
    case 8: return mpt_add_scalar(a, -0.25);
    case 9: return mpt_cast(a, dtypes[draw(state, 3)]);
    case 10: return mpt_cast(b, dtypes[draw(state, 3)]);
    case 11: return mpt_add(a, mpt_sum(b, MPT_ALL_DIMS, false));
    case 12: return mpt_add(mpt_sum(a, -1, true), b);
    case 13:
        if (mpt_get_shape(a).rank < 2) return mpt_abs(a);
        return mpt_contiguous(mpt_transpose(mpt_contiguous(mpt_transpose(a, 0, 1)), 0, 1));
    case 14: return mpt_gelu(a);
    default:
        if (mpt_get_shape(a).rank < 2 || mpt_get_shape(a).dim[0] != mpt_get_shape(a).dim[1])
            return mpt_neg(a);
        return mpt_neg(mpt_transpose(a, 0, 1));
    }
}

static mpt_status made_up_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const made_up *m = (const made_up *)user;
    uint64_t state = m->seed;
    mpt_tensor value[VALUES];
    int n = 0;
    mpt_step_begin(context);
    mpt_no_grad_begin(context);
    mpt_autocast_begin(context, MPT_BF16); /* dtypes may meet */
    value[n++] = x, value[n++] = y;
    for (int i = 0; i < KEPT; i++) value[n++] = m->kept[i];
    for (const int end = n + 4 + (int)draw(&state, 28); n < end; n++) {
        value[n] = make_value(&state, value, n);
        if (draw(&state, 6) == 0) mpt_copy_(m->kept[draw(&state, KEPT)], value[n]);
        if (draw(&state, 8) == 0) mpt_mul_scalar_(m->kept[draw(&state, KEPT)], 0.5);
    }
    mpt_copy_(m->kept[0], value[n - 1]);
    mpt_autocast_end(context);
    mpt_no_grad_end(context);
    return mpt_step_end(context);
}

/* What five steps leave in what is kept, in bits; by hand, captured, compiled, or in slices. */
static uint64_t run_made_up(uint64_t seed, int way, int64_t *fused) {
    made_up m;
    mpt_context *context = make_context(way == 2 ? 3 : 1, false);
    uint64_t hash = 1;
    m.seed = seed;
    m.rows = seed % 5 == 0 ? 90 : 7, m.columns = seed % 5 == 0 ? 61 : 5;
    if (seed % 3 == 1) m.columns = m.rows; /* what lies across has the same shape */
    const mpt_shape shape = MPT_SHAPE(m.rows, m.columns);
    m.kept[0] = mpt_keep(mpt_randn(context, MPT_F32, shape));
    m.kept[1] = mpt_keep(mpt_cast(mpt_randn(context, MPT_F32, shape), MPT_BF16));
    m.kept[2] = mpt_keep(mpt_cast(mpt_randn(context, MPT_F32, shape), MPT_F16));
    mpt_tensor x = mpt_keep(mpt_randn(context, MPT_F32, shape));
    mpt_tensor y = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(m.columns)));
    mpt_captured step = (way >= 2 ? mpt_compile : mpt_capture)(context, made_up_step, &m);
    for (int i = 0; i < 5; i++) {
        bool done = way != 3;
        if (way == 0)
            made_up_step(context, &m, x, y);
        else if (done)
            mpt_captured_step(step, x, y);
        while (!done && !mpt_failed(context)) mpt_step_slice(step, x, y, 0.0, &done);
    }
    check_ok(context);
    for (int i = 0; i < KEPT; i++) hash = mix_tensor(hash, m.kept[i]);
    mpt_compile_stats stats;
    if (way >= 2 && mpt_compile_statistics(step, &stats) == MPT_OK) *fused += stats.fused;
    mpt_destroy(context);
    return hash;
}

TEST(any_program_leaves_the_same_bits) {
    const bool brief = getenv("MPTRAIN_STEPS") || !compiles(); /* asked to be, or slow */
    const uint64_t programs = brief ? 60 : 400;
    int64_t fused = 0;
    for (uint64_t seed = 0; seed < programs && !test_failures; seed++) {
        const uint64_t hash = run_made_up(seed, 0, NULL);
        CHECK(hash == run_made_up(seed, 1, NULL));
        CHECK(hash == run_made_up(seed, 2, &fused));
        CHECK(hash == run_made_up(seed, 3, &fused));
        if (test_failures) printf("\n  program %d", (int)seed);
    }
    CHECK(!compiles() || fused > (int64_t)programs * 5);
}

/* ==== Around it ==== */

TEST(errors_are_named) {
    training t;
    mpt_context *context = make_context(1, false);
    mpt_compile_stats stats;
    make_training(&t, context, MPT_F32, 0);
    mpt_captured captured = mpt_capture(context, step_of, &t);
    mpt_captured none = mpt_compile(context, NULL, NULL);
    CHECK(mpt_failed(context) && strstr(mpt_error(context), "no step function"));
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_compile_statistics(none, &stats), MPT_ERROR_HANDLE);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_compile_statistics(captured, &stats), MPT_ERROR_ARGUMENT);
    CHECK(strstr(mpt_error(context), "of mpt_capture"));
    mpt_clear_error(context);
    mpt_captured compiled = mpt_compile(context, step_of, &t);
    CHECK_EQ_INT(mpt_compile_statistics(compiled, NULL), MPT_ERROR_ARGUMENT);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_compile_statistics(compiled, &stats), MPT_OK);
    CHECK_EQ_INT(stats.recordings, 0);
    CHECK_EQ_INT(mpt_captured_destroy(compiled), MPT_OK);
    check_ok(context);
    mpt_destroy(context);
}

/* Where any of its allocations is refused the step is as it was, or recorded by a later call. */
TEST(without_memory_steps_go_on) {
    chain c;
    mpt_compile_stats stats;
    int64_t refused = 1, fail = 1;
    memset(&c, 0, sizeof c);
    c.of = swish, c.precision = MPT_BF16;
    const uint64_t hash = run_chain(c, 20, 0, 1, NULL);
    for (; refused; fail++) {
        arena a;
        mpt_config config = mpt_config_default();
        config.seed = 5, config.threads = 1;
        arena_use(&a, &config);
        mpt_context *context = mpt_create(&config);
        c.net = mpt_sequential(context, mpt_nn_linear(context, 8, 37), MPT_END);
        c.optimizer = mpt_adamw(c.net, NULL);
        c.w = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(37)));
        c.b = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(20, 1)));
        mpt_tensor x = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(20, 8)));
        mpt_captured step = mpt_compile(context, chain_step, &c);
        mpt_captured_step(step, x, x);
        a.fail_at = a.calls + fail, a.failures = 1;
        const mpt_status status = mpt_captured_step(step, x, x);
        a.fail_at = 0;
        refused = a.refused;
        if (status != MPT_OK) mpt_clear_error(context);
        const int64_t done = mpt_step_number(context);
        for (int64_t i = done; i < 12; i++) mpt_captured_step(step, x, x);
        check_ok(context);
        mpt_compile_statistics(step, &stats);
        if (done == 2) CHECK(hash == mpt_module_hash(c.net));
        mpt_destroy(context);
        CHECK_EQ_INT(a.live, 0);
    }
    CHECK(fail > 5);
}

TEST(steady_steps_allocate_nothing) {
    training t;
    mpt_context *context = make_context(2, false);
    mpt_batch b;
    make_training(&t, context, MPT_BF16, 0);
    mpt_captured step = mpt_compile(context, step_of, &t);
    for (int i = 0; i < 20; i++)
        if (next_batch(t.loader, &b)) mpt_captured_step(step, b.x, b.y);
    const int64_t before = mpt_memory(context).allocations;
    for (int i = 0; i < 100; i++)
        if (next_batch(t.loader, &b)) mpt_captured_step(step, b.x, b.y);
    CHECK_EQ_INT(mpt_memory(context).allocations, before);
    check_ok(context);
    mpt_destroy(context);
}

static mpt_status dead_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const mpt_tensor *to = (const mpt_tensor *)user;
    (void)y;
    mpt_step_begin(context);
    mpt_no_grad_begin(context);
    mpt_mul(mpt_exp(x), x); /* nobody reads it */
    mpt_copy_(*to, mpt_mul_scalar(x, 2));
    mpt_no_grad_end(context);
    return mpt_step_end(context);
}

TEST(what_nobody_reads_is_left_out) {
    if (!compiles()) SKIP("a CPU backend");
    mpt_context *context = make_context(1, false);
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(50));
    mpt_tensor to = mpt_zeros(context, MPT_F32, MPT_SHAPE(50));
    mpt_captured step = mpt_compile(context, dead_step, &to);
    mpt_compile_stats stats;
    float in[50], out[50];
    for (int i = 0; i < 4; i++) mpt_captured_step(step, x, x);
    CHECK_EQ_INT(mpt_compile_statistics(step, &stats), MPT_OK);
    CHECK_EQ_INT(stats.launches[0], 4);
    CHECK_EQ_INT(stats.launches[1], 1); /* the product, to where it was copied */
    CHECK_EQ_INT(stats.dropped, 3);
    mpt_read(x, in, sizeof in);
    mpt_read(to, out, sizeof out);
    for (int i = 0; i < 50; i++) CHECK_NEAR(out[i], 2 * in[i], 0);
    check_ok(context);
    mpt_destroy(context);
}

static mpt_status turning_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const mpt_tensor to = *(const mpt_tensor *)user;
    (void)x, (void)y;
    mpt_step_begin(context);
    mpt_no_grad_begin(context);
    mpt_copy_(to, mpt_neg(mpt_transpose(to, 0, 1)));
    mpt_no_grad_end(context);
    return mpt_step_end(context);
}

/* What is read across cannot be written where it is read. */
TEST(what_is_turned_in_place_stays_apart) {
    enum { N = 60 }; /* more than goes through a block at once */
    mpt_context *context = make_context(1, false);
    mpt_tensor to = mpt_randn(context, MPT_F32, MPT_SHAPE(N, N));
    static float before[N * N], after[N * N];
    mpt_captured step = mpt_compile(context, turning_step, &to);
    mpt_read(to, before, sizeof before);
    for (int i = 0; i < 5; i++) mpt_captured_step(step, to, to);
    mpt_read(to, after, sizeof after);
    for (int i = 0; i < N * N; i++) CHECK_NEAR(after[i], -before[i % N * N + i / N], 0);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {
    T(compiled_steps_leave_the_same_bits), T(chains_go_through_memory_once),
    T(any_program_leaves_the_same_bits),   T(errors_are_named),
    T(without_memory_steps_go_on),         T(steady_steps_allocate_nothing),
    T(what_nobody_reads_is_left_out),      T(what_is_turned_in_place_stays_apart),
};

TEST_MAIN
