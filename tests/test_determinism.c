/* test_determinism.c: the same bits for any number of threads and workers, for both orders in which
   a compiler may evaluate arguments, in replay, on every platform; and other bits where they must
   differ. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

static mpt_context *make_context(int threads, uint64_t seed) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = seed;
    return mpt_create(&config);
}

/* ==== Threads and workers ==== */

/* The portable level is slow, more so under an emulator, where NEON is slow, too. */
static int64_t scaled(mpt_context *c, int64_t size) {
    mpt_isa isa = mpt_get_isa(c);
    return isa == MPT_ISA_REF ? size / 4 : isa >= MPT_ISA_NEON ? size / 2 : size;
}

/* A net that is worth several threads. */
static void make_wide(training *t, mpt_context *c, mpt_dtype precision) {
    memset(t, 0, sizeof *t);
    t->context = c, t->precision = precision;
    int64_t wide = scaled(c, 320);
    t->data = make_data(c, 600);
    t->loader = make_loader_of(c, t->data, 200, 0, MPT_F32);
    t->net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, wide), mpt_nn_gelu(c),
                            mpt_nn_dropout(c, 0.1), mpt_nn_linear(c, wide, wide), mpt_nn_relu(c),
                            mpt_nn_linear(c, wide, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    t->optimizer = mpt_adamw(t->net, NULL);
    t->scaler = mpt_grad_scaler(c, NULL);
}

/* Work whose results nobody needs, until each thread had some. */
static void let_all_work(mpt_context *c, int threads) {
    for (int i = 0; i < 5000; i++) {
        mpt_counters n = mpt_get_counters(c);
        bool all = true;
        for (int k = 0; k < threads; k++) all = all && n.by_thread[k] > 0;
        if (all) return;
        mpt_step_begin(c);
        mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(256, scaled(c, 512)));
        mpt_matmul(x, mpt_transpose(x, 0, 1));
        mpt_step_end(c);
    }
}

static uint64_t threads_hash(int threads, mpt_dtype precision) {
    mpt_context *c = make_context(threads, 5);
    training t;
    make_wide(&t, c, precision);
    for (int i = 0; i < 4; i++) train_step(&t);
    uint64_t hash = training_hash(&t);
    CHECK_EQ_STR(mpt_error(c), "");
    int64_t runs = mpt_get_counters(c).parallel_runs;
    if (mpt_get_threads(c) == threads && threads > 1) {
        let_all_work(c, threads); /* a busy machine may leave the few steps above to one thread */
        mpt_counters n = mpt_get_counters(c);
        CHECK(n.parallel_runs > 0);
        int workers = 0;
        for (int k = 0; k < threads; k++) workers += n.by_thread[k] > 0;
        CHECK_EQ_INT(workers, threads);
    } else {
        CHECK_EQ_INT(runs, 0);
    }
    mpt_destroy(c);
    return hash;
}

TEST(threads_do_not_change_bits) {
    static const int threads[] = {2, 3, 4, 7};
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int p = 0; p < 3; p++) {
        uint64_t one = threads_hash(1, precisions[p]);
        for (int i = 0; i < 4; i++) CHECK(threads_hash(threads[i], precisions[p]) == one);
    }
}

static uint64_t workers_hash(int workers) {
    mpt_context *c = make_context(1, 5);
    training t;
    make_training(&t, c, MPT_F16, workers);
    if (mpt_error_code(c) == MPT_ERROR_UNSUPPORTED) { /* built without threads */
        mpt_destroy(c);
        return workers_hash(0);
    }
    for (int i = 0; i < 12; i++) train_step(&t);
    uint64_t hash = training_hash(&t);
    for (int i = 0; i < 20000; i++) { /* until each worker had its turn */
        mpt_loader_stats s = mpt_loader_statistics(t.loader);
        int at_work = 0;
        for (int k = 0; k < workers; k++) at_work += s.by_worker[k] > 0;
        if (at_work == workers) break;
        mpt_batch b;
        next_batch(t.loader, &b);
        if (i == 19999) CHECK_EQ_INT(at_work, workers);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    return hash;
}

TEST(workers_do_not_change_bits) {
    uint64_t none = workers_hash(0);
    CHECK(workers_hash(1) == none);
    CHECK(workers_hash(4) == none);
}

/* ==== Orders of evaluation ==== */

/* linear, relu, (linear, dropout), linear: made forwards or backwards. */
static mpt_module ordered_net(mpt_context *c, bool backwards) {
    mpt_module m[4], inner[2];
    for (int n = 0; n < 4; n++) {
        int i = backwards ? 3 - n : n;
        if (i == 0) m[0] = mpt_nn_linear(c, FEATURES, 16);
        if (i == 1) m[1] = mpt_nn_relu(c);
        if (i == 3) m[3] = mpt_nn_linear(c, 16, CLASSES);
        if (i != 2) continue;
        if (backwards) inner[1] = mpt_nn_dropout(c, 0.5);
        inner[0] = mpt_nn_linear(c, 16, 16);
        if (!backwards) inner[1] = mpt_nn_dropout(c, 0.5);
        m[2] = mpt_sequential_array(c, inner, 2);
    }
    return mpt_sequential_array(c, m, 4);
}

static uint64_t ordered_hash(bool backwards) {
    mpt_context *c = make_context(1, 3);
    mpt_module net = ordered_net(c, backwards);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, FEATURES)), a, b, y;
    uint64_t hash = mpt_module_hash(net);
    mpt_step_begin(c);
    /* a sum whose terms are made in either order: backward adds up by input number */
    if (backwards)
        b = mpt_exp(mpt_forward(net, x)), a = mpt_tanh(mpt_forward(net, x));
    else
        a = mpt_tanh(mpt_forward(net, x)), b = mpt_exp(mpt_forward(net, x));
    (void)a;
    y = mpt_forward(mpt_child(net, "0"), x);
    mpt_tensor left, right;
    if (backwards)
        right = mpt_exp(y), left = mpt_tanh(y);
    else
        left = mpt_tanh(y), right = mpt_exp(y);
    mpt_backward(mpt_sum(mpt_add(left, right), MPT_ALL_DIMS, false));
    hash = mix_tensor(hash, mpt_grad(mpt_parameter(net, "0.weight")));
    mpt_step_end(c);
    CHECK(mpt_valid(x) && !mpt_valid(b));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    return hash;
}

TEST(order_of_arguments) { CHECK(ordered_hash(false) == ordered_hash(true)); }

TEST(nets_seeds_and_labels) {
    mpt_context *c = make_context(1, 3), *d = make_context(1, 3), *e = make_context(1, 4);
    mpt_module first = ordered_net(c, false), second = ordered_net(c, true);
    CHECK(mpt_module_hash(first) != mpt_module_hash(second)); /* two nets of one context differ */
    CHECK(mpt_module_hash(ordered_net(d, true)) == mpt_module_hash(first));
    CHECK(mpt_module_hash(ordered_net(e, true)) != mpt_module_hash(first)); /* another seed */
    mpt_nn_relu(d);
    mpt_module named = ordered_net(c, false), same = ordered_net(d, false),
               other = ordered_net(d, false);
    mpt_set_label(named, "critic");
    mpt_set_label(same, "critic");
    mpt_set_label(other, "actor");
    CHECK(mpt_module_hash(named) == mpt_module_hash(same)); /* by label, not by creation */
    CHECK(mpt_module_hash(named) != mpt_module_hash(other));
    float w0[16 * FEATURES], w2[16 * 16];
    mpt_read_f32(mpt_parameter(first, "0.weight"), w0, 16 * FEATURES);
    mpt_read_f32(mpt_parameter(first, "2.0.weight"), w2, 16 * 16);
    CHECK(w0[0] != w2[0] && w0[0] != w0[1]); /* by path, by element */
    mpt_destroy(c);
    mpt_destroy(d);
    mpt_destroy(e);
}

TEST(a_shared_module_is_one) {
    mpt_context *c = make_context(1, 3);
    mpt_module shared = mpt_nn_linear_no_bias(c, 2, 2);
    mpt_module net = mpt_sequential(c, shared, mpt_sequential(c, shared, MPT_END), MPT_END);
    char path[32];
    float w[4] = {1, 2, 3, 4}, x[2] = {1, 1}, g[4];
    CHECK_EQ_INT(mpt_parameter_count(net), 1);
    CHECK_EQ_INT(mpt_parameter_numel(net), 4);
    mpt_tensor weight = mpt_parameter_at(net, 0, path, sizeof path);
    CHECK_EQ_STR(path, "0.weight"); /* the first path */
    CHECK(mpt_parameter(net, "1.0.weight").slot == weight.slot);
    mpt_write(weight, w, sizeof w);
    mpt_backward(
        mpt_sum(mpt_forward(net, mpt_from(c, MPT_F32, MPT_SHAPE(1, 2), x)), MPT_ALL_DIMS, false));
    mpt_read(mpt_grad(weight), g, sizeof g);
    /* y = W W x: dW = s (W x)^T + (W^T s) x^T */
    CHECK_NEAR(g[0], 3 + 4, 0);
    CHECK_NEAR(g[1], 7 + 4, 0);
    CHECK_NEAR(g[2], 3 + 6, 0);
    CHECK_NEAR(g[3], 7 + 6, 0);
    CHECK_EQ_INT(mpt_module_destroy(net), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Dropout ==== */

static uint64_t mask_of(mpt_module net, mpt_context *c) {
    uint64_t mask = 0;
    float y[64];
    mpt_step_begin(c);
    mpt_read_f32(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(64))), y, 64);
    for (int i = 0; i < 64; i++) {
        CHECK(y[i] == 0 || y[i] == 2);
        mask |= (uint64_t)(y[i] != 0) << i;
    }
    mpt_step_end(c);
    return mask;
}

TEST(dropout_by_path_and_step) {
    mpt_context *c = make_context(1, 3), *d = make_context(1, 3);
    mpt_module a = mpt_sequential(c, mpt_nn_dropout(c, 0.5), MPT_END), b;
    mpt_module two[2];
    b = mpt_nn_dropout(d, 0.5);
    b = mpt_sequential_array(d, &b, 1);
    uint64_t first = mask_of(a, c), second = mask_of(a, c);
    CHECK(first != second && first != 0 && ~first != 0); /* by step */
    CHECK(mask_of(b, d) == first);
    CHECK(mask_of(b, d) == second);
    mpt_step_begin(c); /* a step that is given up draws again what it drew */
    mpt_forward(a, mpt_ones(c, MPT_F32, MPT_SHAPE(64)));
    mpt_reshape(mpt_ones(c, MPT_F32, MPT_SHAPE(64)), MPT_SHAPE(63));
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_SHAPE);
    mpt_clear_error(c); /* back to the last optimizer step: there was none */
    CHECK(mask_of(a, c) == first);
    CHECK(mask_of(a, c) == second);
    two[0] = mpt_nn_flatten(c), two[1] = mpt_nn_dropout(c, 0.5);
    mpt_module other = mpt_sequential_array(c, two, 2);
    CHECK(mask_of(mpt_child(other, "1"), c) != mask_of(b, d)); /* by path */
    mpt_tensor ones = mpt_ones(c, MPT_F32, MPT_SHAPE(64));
    CHECK(!mpt_allclose(mpt_forward(a, ones), mpt_forward(a, ones), 0, 0)); /* by call in a step */
    mpt_eval(a);
    CHECK(mpt_allclose(mpt_forward(a, ones), ones, 0, 0));
    mpt_train(a);
    mpt_inference_begin(c);
    CHECK(mpt_allclose(mpt_forward(a, ones), ones, 0, 0));
    mpt_inference_end(c);
    mpt_destroy(c);
    mpt_destroy(d);
}

/* ==== Replay ==== */

/* A step on a fixed batch, so that it can be replayed. */
static void fixed_step(training *t, mpt_tensor x, mpt_tensor y) {
    mpt_batch b;
    memset(&b, 0, sizeof b);
    b.x = x, b.y = y;
    train_on(t, b);
}

static uint64_t replay_hash(bool replay, mpt_dtype precision, bool half) {
    mpt_context *c = make_context(1, 9);
    mpt_tensor x = mpt_randn(c, half ? MPT_F16 : MPT_F32, MPT_SHAPE(8, FEATURES));
    int64_t labels[8] = {0, 1, 2, 3, 3, 2, 1, 0};
    mpt_tensor y = mpt_from(c, MPT_I64, MPT_SHAPE(8), labels);
    training t;
    memset(&t, 0, sizeof t);
    t.context = c, t.precision = precision;
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, 32), mpt_nn_relu(c),
                           mpt_nn_linear(c, 32, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    if (half) mpt_half(t.net, MPT_F16);
    t.optimizer = mpt_adamw(t.net, NULL);
    t.scaler = mpt_grad_scaler(c, NULL);
    fixed_step(&t, x, y);
    mpt_autocast_begin(c,
                       MPT_F16); /* leaves fresh forms of the weights: a recording must not rely */
    mpt_release(mpt_forward(t.net, mpt_cast(x, MPT_F32))); /* on them */
    mpt_autocast_end(c);
    if (mpt_failed(c)) mpt_clear_error(c);
    if (replay) {
        mpt_record_begin(c);
        fixed_step(&t, x, y);
        mpt_recording r = mpt_record_end(c);
        CHECK(mpt_recording_launches(r) > 10);
        for (int i = 0; i < 4; i++) CHECK_EQ_INT(mpt_replay(r), MPT_OK);
        mpt_recording_destroy(r);
    } else {
        for (int i = 0; i < 5; i++) fixed_step(&t, x, y);
    }
    fixed_step(&t, x, y);
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK_EQ_INT(mpt_applied_steps(t.optimizer), 7);
    uint64_t hash = training_hash(&t);
    mpt_destroy(c);
    return hash;
}

TEST(replay_has_the_bits_of_eager_steps) {
    CHECK(replay_hash(true, MPT_F32, false) == replay_hash(false, MPT_F32, false));
    CHECK(replay_hash(true, MPT_F16, false) == replay_hash(false, MPT_F16, false));
    CHECK(replay_hash(true, MPT_F32, true) == replay_hash(false, MPT_F32, true));
}

/* ==== The same everywhere ==== */

/* On every compiler, platform and instruction set. Who changes what is drawn or computed on the
   portable path changes them on purpose. */
#define INIT_BITS UINT64_C(0x90a801c6e7269380)
#define REFERENCE_BITS UINT64_C(0x5d0b5507762e3360)

TEST(initial_values_are_pinned) {
    mpt_context *c = make_context(1, 42);
    mpt_module net = ordered_net(c, false);
    mpt_set_label(net, "pinned");
    mpt_set_init(net, "2.0.weight", mpt_init_make(MPT_INIT_KAIMING_NORMAL, 1.4142135, 0));
    mpt_set_init(net, "3.weight", mpt_init_make(MPT_INIT_XAVIER_UNIFORM, 1, 0));
    mpt_set_init(net, "0.bias", mpt_init_make(MPT_INIT_NORMAL, 0.5, 0.25));
    uint64_t hash = mix_net(1, net);
    if (hash != INIT_BITS) {
        printf("\n  initial values: %08lx%08lx", (unsigned long)(hash >> 32),
               (unsigned long)(hash & 0xffffffffu));
        test_failures++;
    }
    mpt_destroy(c);
}

TEST(reference_training_is_pinned) {
    mpt_config config = mpt_config_default();
    config.isa = MPT_ISA_REF;
    config.threads = 2;
    uint64_t hash = training_bits(&config);
    if (hash != REFERENCE_BITS) {
        printf("\n  reference: %08lx%08lx", (unsigned long)(hash >> 32),
               (unsigned long)(hash & 0xffffffffu));
        test_failures++;
    }
    config.threads = 1;
    CHECK(training_bits(&config) == hash);
#ifndef MPTRAIN_NO_RESUME
    config.isa = MPT_ISA_PORTABLE;
    CHECK(training_bits(&config) == hash);
#endif
}

TEST_TABLE = {T(threads_do_not_change_bits),
              T(workers_do_not_change_bits),
              T(order_of_arguments),
              T(nets_seeds_and_labels),
              T(a_shared_module_is_one),
              T(dropout_by_path_and_step),
              T(replay_has_the_bits_of_eager_steps),
              T(initial_values_are_pinned),
              T(reference_training_is_pinned)};
TEST_MAIN
