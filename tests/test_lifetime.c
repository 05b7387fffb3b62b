/* test_lifetime.c: how long handles, values, gradients and memory live: steps and scopes, keep and
   release, views, borrowed memory, accumulation, in-place changes, modes without history, long
   chains; the accounting against a counting allocator, and steps that allocate nothing. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

static mpt_context *make_context(arena *a, int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

static mpt_tensor values3(mpt_context *c, float a, float b, float d) {
    float values[3];
    values[0] = a, values[1] = b, values[2] = d;
    return mpt_from(c, MPT_F32, MPT_SHAPE(3), values);
}

static float at(mpt_tensor x, int i) {
    float values[64] = {0};
    mpt_read_f32(x, values, mpt_numel(x));
    return values[i];
}

static int64_t active(mpt_context *c) { return mpt_memory(c).current[MPT_MEMORY_ACTIVATION]; }

/* ==== Handles ==== */

TEST(handles_end_with_their_step) {
    mpt_context *c = make_context(NULL, 1);
    for (int i = 0; i < 40; i++) mpt_step_begin(c), mpt_step_end(c);
    mpt_step_begin(c);
    mpt_tensor t = mpt_ones(c, MPT_F32, MPT_SHAPE(3)), kept = mpt_keep(t), slot_taken;
    CHECK(mpt_valid(t) && mpt_valid(kept));
    mpt_step_end(c);
    CHECK(!mpt_valid(t) && mpt_valid(kept));
    mpt_step_begin(c);
    mpt_step_end(c);
    mpt_step_begin(c);
    slot_taken = mpt_zeros(c, MPT_F32, MPT_SHAPE(3)); /* takes the slot of t */
    CHECK(slot_taken.slot == t.slot && !mpt_valid(t));
    CHECK(!mpt_valid(mpt_relu(t)));
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_HANDLE);
    CHECK_CONTAINS(mpt_error(c), "tensor made in step 41 used in step 43");
    CHECK_CONTAINS(mpt_error(c), "mpt_relu");
    CHECK_CONTAINS(mpt_error(c), "mpt_keep");
    mpt_clear_error(c);
    CHECK_NEAR(at(kept, 1), 1, 0);
    mpt_release(kept);
    CHECK(!mpt_valid(kept));
    mpt_release(kept); /* again: nothing happens */
    CHECK(!mpt_failed(c));
    mpt_destroy(c);
}

TEST(scopes_nest) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor outside = mpt_ones(c, MPT_F32, MPT_SHAPE(3));
    int64_t before = active(c);
    mpt_scope_begin(c);
    mpt_tensor a = mpt_ones(c, MPT_F32, MPT_SHAPE(100));
    mpt_step_begin(c);
    mpt_tensor b = mpt_add_scalar(a, 1);
    mpt_scope_begin(c);
    mpt_tensor d = mpt_add_scalar(b, 1);
    CHECK_EQ_INT(mpt_scope_end(c), MPT_OK);
    CHECK(mpt_valid(b) && !mpt_valid(d));
    CHECK_EQ_INT(mpt_step_end(c), MPT_OK);
    CHECK(mpt_valid(a) && !mpt_valid(b));
    CHECK_EQ_INT(mpt_scope_end(c), MPT_OK);
    CHECK(!mpt_valid(a) && mpt_valid(outside));
    CHECK_EQ_INT(active(c), before);
    mpt_destroy(c);
}

TEST(views_keep_their_storage) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = mpt_arange(c, MPT_F32, 12), m = mpt_reshape(x, MPT_SHAPE(3, 4));
    mpt_tensor row = mpt_slice(m, 0, 1, 2, 1), t = mpt_transpose(m, 0, 1);
    int64_t before = active(c);
    mpt_release(x);
    mpt_release(m);
    CHECK_EQ_INT(active(c), before);
    CHECK_NEAR(at(row, 2), 6, 0);
    CHECK_NEAR(at(t, 1), 4, 0);
    float seven[4] = {7, 7, 7, 7};
    mpt_write(row, seven, sizeof seven);
    CHECK_NEAR(at(t, 1), 7, 0);
    mpt_release(row);
    mpt_release(t);
    CHECK_EQ_INT(active(c), 0);
    mpt_destroy(c);
}

TEST(borrowed_memory_stays_the_callers) {
    arena a;
    mpt_context *c = make_context(&a, 1);
    float mine[4] = {1, 2, 3, 4};
    int64_t live = a.live, before = active(c);
    mpt_tensor x = mpt_wrap(c, MPT_F32, MPT_SHAPE(4), mine);
    CHECK_EQ_INT(active(c), before);
    mine[2] = 30;
    CHECK_NEAR(at(x, 2), 30, 0);
    float other[4] = {5, 6, 7, 8};
    mpt_write(x, other, sizeof other);
    CHECK_NEAR(mine[3], 8, 0);
    mpt_tensor view = mpt_slice(x, 0, 2, 4, 1);
    mpt_release(x);
    CHECK_NEAR(at(view, 0), 7, 0);
    mpt_release(view);
    CHECK(a.live - live < 64 * 1024);
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
    CHECK_NEAR(mine[0], 5, 0);
}

/* ==== Gradients ==== */

TEST(gradients_add_up_over_steps) {
    mpt_context *c = make_context(NULL, 1);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 3, 1), MPT_END);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_tensor w = mpt_parameter(net, "0.weight");
    CHECK(!mpt_has_grad(w));
    for (int i = 1; i <= 3; i++) {
        mpt_step_begin(c);
        mpt_backward(mpt_sum(mpt_forward(net, mpt_reshape(values3(c, 1, 2, 3), MPT_SHAPE(1, 3))),
                             MPT_ALL_DIMS, false));
        CHECK_EQ_INT(mpt_step_end(c), MPT_OK);
        CHECK(mpt_has_grad(w));
        CHECK_NEAR(at(mpt_grad(w), 2), 3.0 * i, 0);
    }
    uint64_t before = mpt_module_hash(net);
    mpt_zero_grad(opt);
    CHECK(!mpt_has_grad(w)); /* none, not zero: the step leaves the parameter alone */
    mpt_step(opt);
    CHECK(mpt_module_hash(net) == before);
    CHECK_EQ_INT(mpt_applied_steps(opt), 0);
    mpt_grad(w);
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_STATE);
    mpt_clear_error(c);
    mpt_backward(
        mpt_sum(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3))), MPT_ALL_DIMS, false));
    CHECK_NEAR(at(mpt_grad(w), 2), 1, 0); /* not added to what was there before */
    mpt_clear_grad(w);
    CHECK(!mpt_has_grad(w) && mpt_has_grad(mpt_parameter(net, "0.bias")));
    mpt_destroy(c);
}

TEST(gradients_of_leaves) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = values3(c, 1, 2, 3);
    mpt_requires_grad(x, true);
    for (int i = 1; i <= 2; i++) {
        mpt_step_begin(c);
        mpt_backward(mpt_sum(mpt_mul(x, x), 0, false));
        mpt_step_end(c);
        CHECK_NEAR(at(mpt_grad(x), 1), 4.0 * i, 0);
    }
    mpt_release(mpt_grad(x));
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_STATE); /* it belongs to x */
    mpt_clear_error(c);
    CHECK(!mpt_has_grad(x));
    mpt_backward(mpt_sum(mpt_mul(x, x), 0, false));
    mpt_tensor kept = mpt_keep(mpt_grad(x));
    mpt_clear_grad(x);
    CHECK(!mpt_has_grad(x));
    CHECK_NEAR(at(kept, 2), 6, 0);
    mpt_tensor y = mpt_mul(mpt_detach(x), x); /* half of it is history */
    mpt_backward(mpt_sum(y, 0, false));
    CHECK_NEAR(at(mpt_grad(x), 1), 2, 0);
    mpt_requires_grad(x, false);
    CHECK_EQ_INT(mpt_backward(mpt_sum(x, 0, false)), MPT_ERROR_STATE);
    mpt_destroy(c);
}

/* Backward starts from a constant of the context, which nothing may change. */
TEST(backward_from_a_leaf) {
    mpt_context *c = make_context(NULL, 1);
    mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int d = 0; d < 3; d++) {
        mpt_tensor x = mpt_ones(c, dtypes[d], MPT_SHAPE(1, 1));
        mpt_requires_grad(x, true);
        for (int i = 1; i <= 3; i++) {
            CHECK_EQ_INT(mpt_backward(x), MPT_OK);
            CHECK_NEAR(mpt_item(mpt_grad(x)), i, 0);
        }
        mpt_tensor y = mpt_mul_scalar(x, 3);
        CHECK_EQ_INT(mpt_backward(mpt_add(y, y)), MPT_OK);
        CHECK_NEAR(mpt_item(mpt_grad(x)), 9, 0);
    }
    mpt_destroy(c);
}

/* An activation's gradient may be taken in place only where nobody else reads what came in: not
   where two layers share it, nor where it is the caller's. */
TEST(gradients_in_place) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(4, 3)), none, w[2], y[2];
    float want[2][6], got[6], ones[8], after[8];
    memset(&none, 0, sizeof none);
    for (int i = 0; i < 2; i++) {
        w[i] = mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3));
        mpt_requires_grad(w[i], true);
    }
    for (int fused = 0; fused < 2; fused++) {
        for (int i = 0; i < 2; i++) {
            y[i] = mpt_linear(x, w[i], none, fused ? MPT_ACTIVATION_RELU : MPT_ACTIVATION_NONE);
            if (!fused) y[i] = mpt_relu(y[i]);
        }
        CHECK_EQ_INT(mpt_backward(mpt_sum(mpt_add(y[0], y[1]), MPT_ALL_DIMS, false)), MPT_OK);
        for (int i = 0; i < 2; i++) {
            mpt_read_f32(mpt_grad(w[i]), fused ? got : want[i], 6);
            if (fused) CHECK_EQ_BITS(got, want[i], sizeof got);
            mpt_clear_grad(w[i]);
        }
    }
    mpt_tensor seed = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 2));
    mpt_read_f32(seed, ones, 8);
    CHECK_EQ_INT(mpt_backward_from(mpt_linear(x, w[0], none, MPT_ACTIVATION_RELU), seed, false),
                 MPT_OK);
    mpt_read_f32(seed, after, 8);
    CHECK_EQ_BITS(after, ones, sizeof ones);
    mpt_destroy(c);
}

TEST(retain_and_second_backward) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = values3(c, 1, 2, 3), none, loss;
    memset(&none, 0, sizeof none);
    mpt_requires_grad(x, true);
    loss = mpt_sum(mpt_exp(x), 0, false);
    CHECK_EQ_INT(mpt_backward_from(loss, none, true), MPT_OK);
    CHECK_EQ_INT(mpt_backward_from(loss, none, false), MPT_OK);
    CHECK_CLOSE(at(mpt_grad(x), 0), 2 * 2.7182818, 1e-6, 0);
    CHECK_EQ_INT(mpt_backward_from(loss, none, false), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "second time");
    CHECK_CONTAINS(mpt_error(c), "retain");
    mpt_destroy(c);
}

TEST(backward_gives_saved_tensors_back) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1000));
    mpt_requires_grad(x, true);
    int64_t before = active(c);
    mpt_tensor y = mpt_exp(x), z = mpt_exp(y), loss = mpt_sum(z, 0, false);
    mpt_release(y);
    mpt_release(z);
    CHECK(active(c) - before >= 2 * 4000); /* saved for backward */
    mpt_backward(loss);
    CHECK(active(c) - before < 4000); /* as it went, though the loss still holds its history */
    mpt_release(loss);
    CHECK_EQ_INT(active(c), before);
    mpt_destroy(c);
}

TEST(changes_in_place_are_caught) {
    mpt_context *c = make_context(NULL, 1);
    float ones[3] = {1, 1, 1};
    mpt_tensor x = values3(c, 1, 2, 3), y = values3(c, 4, 5, 6);
    mpt_requires_grad(x, true);
    mpt_tensor loss = mpt_sum(mpt_mul(x, y), 0, false);
    mpt_write(mpt_slice(y, 0, 0, 3, 1), ones, sizeof ones); /* through a view */
    CHECK_EQ_INT(mpt_backward(loss), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "mul saved for backward was changed in place");
    mpt_clear_error(c);
    loss = mpt_sum(mpt_add(x, y), 0, false); /* saves nothing: a change does no harm */
    mpt_write(y, ones, sizeof ones);
    CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 3, 3), mpt_nn_linear(c, 3, 1), MPT_END);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_tensor in = mpt_reshape(y, MPT_SHAPE(1, 3));
    mpt_tensor first = mpt_sum(mpt_forward(net, in), MPT_ALL_DIMS, false);
    mpt_tensor second = mpt_sum(mpt_forward(net, in), MPT_ALL_DIMS, false);
    mpt_backward(first);
    mpt_step(opt);
    CHECK_EQ_INT(mpt_backward(second), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "optimizer step");
    mpt_destroy(c);
}

/* ==== Without history ==== */

TEST(no_grad_leaves_no_records) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = values3(c, 1, 2, 3);
    mpt_requires_grad(x, true);
    int64_t before = mpt_get_counters(c).op_records;
    mpt_no_grad_begin(c);
    mpt_no_grad_begin(c);
    mpt_no_grad_end(c);
    mpt_tensor y = mpt_mul(x, x);
    mpt_no_grad_end(c);
    CHECK_EQ_INT(mpt_get_counters(c).op_records, before);
    CHECK_EQ_INT(mpt_backward(mpt_sum(y, 0, false)), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "mpt_no_grad_begin");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_backward(mpt_sum(mpt_mul(x, y), 0, false)), MPT_OK); /* y is a constant */
    CHECK_NEAR(at(mpt_grad(x), 2), 9, 0);
    CHECK(mpt_get_counters(c).op_records > before);
    mpt_destroy(c);
}

/* Bytes of activations that live on after a forward of eight layers; the peak goes to *peak. */
static int64_t forward_keeps(bool inference, int64_t *peak) {
    mpt_context *c = make_context(NULL, 1);
    mpt_module layers[16];
    for (int i = 0; i < 16; i++) layers[i] = i % 2 ? mpt_nn_relu(c) : mpt_nn_linear(c, 64, 64);
    mpt_module net = mpt_sequential_array(c, layers, 16);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(256, 64));
    mpt_release(mpt_forward(net, x));
    int64_t before = active(c);
    mpt_memory_reset_peak(c);
    if (inference) mpt_inference_begin(c);
    mpt_tensor y = mpt_forward(net, x);
    if (inference) mpt_inference_end(c);
    int64_t keeps = active(c) - before;
    *peak = mpt_memory(c).peak[MPT_MEMORY_ACTIVATION] - before;
    CHECK(mpt_valid(y));
    if (inference) {
        mpt_tensor w = mpt_ones(c, MPT_F32, MPT_SHAPE(256, 64));
        mpt_requires_grad(w, true);
        CHECK(!mpt_valid(mpt_mul(y, w)));
        CHECK_CONTAINS(mpt_error(c), "inference mode");
    }
    mpt_destroy(c);
    return keeps;
}

TEST(inference_keeps_no_activations) {
    const int64_t layer = 256 * 64 * 4;
    int64_t peak, kept = forward_keeps(false, &peak);
    CHECK(forward_keeps(true, &peak) < 2 * layer); /* the result alone, in memory that fitted */
    CHECK(peak < 4 * layer);
    CHECK(kept >= 7 * layer); /* what backward needs */
}

/* A user's module that puts its input by for a later one, as skip connections do. */
static mpt_tensor put_by;
static mpt_status skip_from(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                            mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    put_by = in[0];
    out[0] = mpt_mul_scalar(in[0], 2);
    return MPT_OK;
}
static mpt_status skip_to(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                          mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_add(in[0], put_by);
    return MPT_OK;
}

TEST(skip_connections_find_their_tensor) {
    mpt_context *c = make_context(NULL, 1);
    mpt_module_class from, to;
    memset(&from, 0, sizeof from);
    from.name = "from", from.forward = skip_from, from.n_inputs = from.n_outputs = 1;
    to = from, to.name = "to", to.forward = skip_to;
    mpt_module net = mpt_sequential(
        c, mpt_nn_tanh(c),
        mpt_sequential(c, mpt_module_create(c, &from, NULL), mpt_nn_tanh(c), MPT_END),
        mpt_nn_tanh(c), mpt_module_create(c, &to, NULL), MPT_END);
    mpt_tensor y = mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(1)));
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK_CLOSE(mpt_item(y), 0.76159416 + 0.72564713, 1e-2, 0);
    mpt_destroy(c);
}

TEST(long_chains) {
    arena a;
    mpt_context *c = make_context(&a, 1);
    const int length = 100000;
    mpt_tensor x = mpt_zeros(c, MPT_F32, MPT_SHAPE(1)), y = x;
    mpt_requires_grad(x, true);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < length; i++) {
            mpt_tensor next = mpt_add_scalar(y, 1);
            if (i > 0 && round == 0) mpt_release(y);
            y = next;
        }
        CHECK_EQ_INT(mpt_backward(y), MPT_OK);
        CHECK_NEAR(mpt_item(mpt_grad(x)), 1.0 + round, 0);
        CHECK_NEAR(mpt_item(y), (double)length, 0);
        mpt_release(y); /* the chain goes with its end, or stays with the handles on it */
        y = x;
    }
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* ==== Accounting ==== */

static void check_accounting(mpt_context *c, const arena *a) {
    mpt_memory_stats m = mpt_memory(c);
    int64_t sum = 0;
    for (int k = 0; k < MPT_MEMORY_KINDS; k++) {
        sum += m.current[k];
        CHECK(m.current[k] >= 0 && m.peak[k] >= m.current[k]);
    }
    CHECK_EQ_INT(sum, m.total_current);
    CHECK_EQ_INT(m.held, a->live);
    CHECK_EQ_INT(m.allocations - m.releases, a->blocks);
    CHECK_EQ_INT(m.allocations, a->calls);
    CHECK(m.total_current <= m.held);
}

TEST(accounting_equals_the_allocator) {
    arena a;
    mpt_context *c = make_context(&a, 2);
    training t;
    check_accounting(c, &a);
    make_training(&t, c, MPT_F16, 2);
    check_accounting(c, &a);
    for (int i = 0; i < 12; i++) {
        train_step(&t);
        check_accounting(c, &a);
    }
    mpt_memory_stats m = mpt_memory(c);
    const int64_t block = (128 + 64 + 64 + 64) * 4; /* parameters, each aligned to 256 bytes */
    CHECK_EQ_INT(m.current[MPT_MEMORY_PARAMETER], block);
    CHECK_EQ_INT(m.current[MPT_MEMORY_GRADIENT], block);
    CHECK_EQ_INT(m.current[MPT_MEMORY_FORM], block / 2);
    CHECK_EQ_INT(m.current[MPT_MEMORY_MASTER], 0);
    CHECK(m.current[MPT_MEMORY_MOMENT] >= 2 * (128 + 64 + 64 + 4) * 4);
    CHECK(m.current[MPT_MEMORY_DATA] >= SAMPLES * (FEATURES * 4 + 8));
    CHECK(m.current[MPT_MEMORY_BATCH] >= 8 * (FEATURES * 4 + 8));
    CHECK_EQ_INT(m.current[MPT_MEMORY_ACTIVATION], 0); /* between steps */
    mpt_memory_trim(c);
    check_accounting(c, &a);
    m = mpt_memory(c);
    CHECK((m.held - m.total_current) * 100 <= m.held); /* nothing idle: live use within 1 % */
    mpt_memory_reset_peak(c);
    m = mpt_memory(c);
    CHECK_EQ_INT(m.total_peak, m.total_current);
    mpt_optimizer_destroy(t.optimizer);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_MOMENT], 0);
    mpt_loader_destroy(t.loader);
    mpt_dataset_destroy(t.data);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_BATCH], 0);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_DATA], 0);
    mpt_module_destroy(t.net);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_PARAMETER], 0);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_GRADIENT], 0);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_FORM], 0);
    check_accounting(c, &a);
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* Steps of MLP, AdamW, scaler and loader, with a smaller last batch: once every shape was seen
   there is no call of the allocator, and the peak is near what lives. */
static void steady_state(mpt_dtype precision, int64_t batch, int threads, int workers) {
    arena a;
    mpt_context *c = make_context(&a, threads);
    training t;
    memset(&t, 0, sizeof t);
    t.context = c, t.precision = precision;
    int64_t wide = mpt_get_isa(c) == MPT_ISA_REF ? 64 : 256; /* which is slow */
    t.data = make_data(c, 1000);
    t.loader = make_loader_of(c, t.data, batch, workers, MPT_F32);
    t.net = mpt_sequential(c, mpt_nn_linear(c, FEATURES, wide), mpt_nn_relu(c),
                           mpt_nn_linear(c, wide, wide), mpt_nn_relu(c),
                           mpt_nn_linear(c, wide, CLASSES), mpt_nn_log_softmax(c, -1), MPT_END);
    t.optimizer = mpt_adamw(t.net, NULL);
    t.scaler = mpt_grad_scaler(c, NULL);
    for (int i = 0; i < 8; i++) train_step(&t); /* batches of all sizes */
    mpt_memory_reset_peak(c);
    int64_t calls = a.calls, blocks = a.blocks, live = a.live;
    for (int i = 0; i < 12; i++) train_step(&t);
    CHECK_EQ_INT(mpt_error_code(c), MPT_OK);
    CHECK_EQ_INT(a.calls, calls);
    CHECK_EQ_INT(a.blocks, blocks);
    mpt_memory_stats m = mpt_memory(c);
    CHECK((double)live <= 1.25 * (double)m.total_peak); /* the pool holds little beyond the need */
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

TEST(steady_steps_allocate_nothing) {
    steady_state(MPT_F32, 250, 1, 0);
    steady_state(MPT_F16, 250, 1, 0);
    steady_state(MPT_BF16, 250, 2, 2);
    steady_state(MPT_F32, 300, 1, 0); /* with a last batch of 100 */
    steady_state(MPT_F16, 300, 2, 0);
    steady_state(MPT_F32, 450, 1, 0); /* of 100 too, but less than a quarter */
    steady_state(MPT_F32, 700, 1, 0); /* of 300: less than half */
}

/* The pool: what one shape left serves a smaller one. */
TEST(smaller_shapes_reuse_larger_ones) {
    arena a;
    mpt_context *c = make_context(&a, 1);
    int64_t calls = 0;
    for (int64_t n = 1000; n >= 600; n -= 40) {
        mpt_step_begin(c);
        mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(n, 16));
        for (int i = 0; i < 5; i++) x = mpt_add_scalar(x, 1);
        mpt_step_end(c);
        if (n == 1000) calls = a.calls;
    }
    CHECK_EQ_INT(a.calls, calls);
    mpt_destroy(c);
}

TEST(deep_names_in_a_summary) {
    mpt_context *c = make_context(NULL, 1);
    char name[196], text[4096];
    memset(name, 'n', sizeof name);
    name[195] = 0;
    mpt_module module = mpt_nn_linear(c, 2, 2);
    for (int i = 0; i < 4; i++) {
        mpt_module above = mpt_nn_list(c, MPT_END);
        mpt_add_child(above, name, module);
        module = above;
    }
    size_t need = mpt_summary(module, text, sizeof text);
    CHECK(need > 500 && need < sizeof text && strlen(text) == need);
    CHECK_CONTAINS(text, "total: 6 parameters");
    mpt_destroy(c);
}

TEST_TABLE = {T(handles_end_with_their_step),
              T(scopes_nest),
              T(views_keep_their_storage),
              T(borrowed_memory_stays_the_callers),
              T(gradients_add_up_over_steps),
              T(gradients_of_leaves),
              T(backward_from_a_leaf),
              T(gradients_in_place),
              T(retain_and_second_backward),
              T(backward_gives_saved_tensors_back),
              T(changes_in_place_are_caught),
              T(no_grad_leaves_no_records),
              T(inference_keeps_no_activations),
              T(skip_connections_find_their_tensor),
              T(long_chains),
              T(accounting_equals_the_allocator),
              T(steady_steps_allocate_nothing),
              T(smaller_shapes_reuse_larger_ones),
              T(deep_names_in_a_summary)};
TEST_MAIN
