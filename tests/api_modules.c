/* api_modules.c: module trees and user-defined ops at the edges: creations that fail and are tried
   again, dropout and mpt_clear_error, trees destroyed while others use them, handles released where
   the library still needs what they name. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

static mpt_context *make_context(arena *a) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.seed = 5;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

/* ==== Creations that fail ==== */

/* Arguments in any order, a tree within a tree. */
static mpt_module nested(mpt_context *c) {
    return mpt_sequential(
        c, mpt_nn_linear(c, 3, 5), mpt_nn_relu(c),
        mpt_sequential(c, mpt_nn_linear(c, 5, 4), mpt_nn_tanh(c), mpt_nn_dropout(c, 0.5), MPT_END),
        mpt_nn_list(c, mpt_nn_linear_no_bias(c, 4, 2), MPT_END), MPT_END);
}

/* Two nets of one context, the first after a failure of allocation number `fail_at`. */
static void two_nets(int64_t fail_at, uint64_t hash[2], int64_t *calls, int *failures) {
    arena a;
    mpt_context *c = make_context(&a);
    int64_t before = a.calls;
    a.fail_at = fail_at ? before + fail_at : 0, a.failures = 1;
    *failures = 0;
    mpt_module net = nested(c);
    *calls = a.calls - before;
    if (mpt_failed(c)) {
        CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_MEMORY);
        CHECK_EQ_INT(net.slot, 0);
        mpt_clear_error(c);
        net = nested(c);
        ++*failures;
    }
    hash[0] = mpt_module_hash(net);
    hash[1] = mpt_module_hash(nested(c));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

TEST(a_second_try_draws_the_same_values) {
    uint64_t clean[2], hash[2];
    int64_t calls, count;
    int failures, failed = 0;
    two_nets(0, clean, &calls, &failures);
    CHECK(clean[0] != clean[1]);
    REQUIRE(calls > 20);
    for (int64_t n = 1; n <= calls; n++) {
        two_nets(n, hash, &count, &failures);
        CHECK(hash[0] == clean[0] && hash[1] == clean[1]);
        failed += failures;
    }
    CHECK_EQ_INT(failed, (int)calls);
}

/* What was given to a failed creation can be given to the next one, or be used alone. */
TEST(parts_of_a_failed_creation_stay) {
    mpt_context *c = make_context(NULL), *d = make_context(NULL);
    mpt_module parts[3], same[2];
    parts[0] = mpt_nn_linear(c, 3, 3), parts[1] = mpt_nn_linear(c, 3, 3);
    parts[2] = mpt_nn_linear(c, 3, 0);
    CHECK_EQ_INT(mpt_sequential_array(c, parts, 3).slot, 0);
    CHECK_CONTAINS(mpt_error(c), "3 -> 0 features");
    mpt_clear_error(c);
    mpt_module list = mpt_nn_list(c, MPT_END);
    CHECK_EQ_INT(mpt_add_child(list, "a", parts[2]), MPT_ERROR_HANDLE);
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_module_destroy(list), MPT_OK);
    mpt_module net = mpt_sequential_array(c, parts, 2);
    mpt_module loose = mpt_nn_linear(c, 3, 3), bad = parts[2];
    CHECK_EQ_INT(mpt_sequential(c, loose, bad, MPT_END).slot, 0);
    mpt_clear_error(c);
    mpt_module other = mpt_nn_linear(c, 3, 3);
    same[0] = mpt_nn_linear(d, 3, 3), same[1] = mpt_nn_linear(d, 3, 3);
    mpt_nn_list(d, MPT_END);
    CHECK(mpt_module_hash(net) == mpt_module_hash(mpt_sequential_array(d, same, 2)));
    CHECK_EQ_INT(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3))).slot != 0, 1);
    CHECK(mpt_valid(mpt_parameter(parts[1], "weight"))); /* its root is the net, nothing older */
    CHECK(mpt_module_hash(other) == mpt_module_hash(mpt_nn_linear(d, 3, 3)));
    CHECK(mpt_module_hash(loose) != mpt_module_hash(other)); /* numbers are never used twice */
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK_EQ_STR(mpt_error(d), "");
    mpt_destroy(c);
    mpt_destroy(d);
}

TEST(a_missing_end_is_found) {
    mpt_context *c = make_context(NULL);
    mpt_module many[400];
    for (int i = 0; i < 400; i++) many[i] = mpt_nn_relu(c);
    mpt_module net = mpt_sequential_array(c, many, 400);
    float x = -1;
    CHECK_NEAR(mpt_item(mpt_forward(net, mpt_from(c, MPT_F32, MPT_SHAPE(1), &x))), 0, 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Dropout and mpt_clear_error ==== */

enum { WIDTH = 64 };

static uint64_t kept(mpt_tensor y) {
    float values[WIDTH];
    uint64_t mask = 0;
    CHECK_EQ_INT(mpt_read_f32(y, values, WIDTH), MPT_OK);
    for (int i = 0; i < WIDTH; i++) mask |= (uint64_t)(values[i] != 0) << i;
    return mask;
}

/* Masks of a module and of the function, outside steps and inside one. `at` says where an error
   comes and is cleared: 1 before the first optimizer step, 2 after it, 3 inside a step, 0 nowhere;
   dropout runs before it, in vain. */
static uint64_t masks(int at) {
    mpt_context *c = make_context(NULL);
    mpt_module drop = mpt_nn_dropout(c, 0.5), net = mpt_nn_linear_no_bias(c, WIDTH, 1);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_tensor ones = mpt_ones(c, MPT_F32, MPT_SHAPE(WIDTH));
    uint64_t hash = 0;
    for (int round = 1; round <= 3; round++) {
        if (at == round) {
            if (at == 3) mpt_step_begin(c);
            mpt_forward(drop, ones);
            mpt_forward(drop, ones);
            mpt_dropout(ones, 0.5);
            mpt_rand(c, MPT_F32, MPT_SHAPE(2));
            mpt_reshape(ones, MPT_SHAPE(7));
            CHECK(mpt_failed(c));
            mpt_clear_error(c);
        }
        hash = hash * UINT64_C(31) + kept(mpt_forward(drop, ones));
        hash = hash * UINT64_C(31) + kept(mpt_dropout(ones, 0.5));
        hash = hash * UINT64_C(31) + kept(mpt_forward(drop, ones));
        if (round == 2) mpt_step_begin(c);
        mpt_zero_grad(opt);
        mpt_backward(mpt_sum(mpt_forward(net, mpt_forward(drop, ones)), 0, false));
        mpt_step(opt);
        if (round == 2) mpt_step_end(c);
    }
    hash ^= mpt_module_hash(net);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    return hash;
}

TEST(clear_error_takes_dropout_back) {
    uint64_t clean = masks(0);
    for (int round = 1; round <= 3; round++) CHECK(masks(round) == clean);
}

/* Forward before a step begins, backward in it: the mask is that of forward. */
TEST(backward_of_dropout_in_another_step) {
    mpt_context *c = make_context(NULL);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(WIDTH));
    mpt_requires_grad(x, true);
    mpt_tensor y = mpt_dropout(x, 0.5);
    mpt_step_begin(c);
    mpt_backward(mpt_sum(y, 0, false));
    CHECK(kept(mpt_grad(x)) == kept(y));
    mpt_clear_grad(x);
    y = mpt_dropout(x, 0.5);
    mpt_backward(mpt_sum(y, 0, false));
    CHECK(kept(mpt_grad(x)) == kept(y));
    mpt_step_end(c);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Trees that go while others use them ==== */

TEST(backward_after_a_tree_is_destroyed) {
    arena a;
    mpt_context *c = make_context(&a);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 3));
    mpt_requires_grad(x, true);
    mpt_module first = mpt_nn_linear(c, 3, 1), second = mpt_nn_linear(c, 3, 4096);
    mpt_backward(mpt_sum(mpt_forward(first, x), MPT_ALL_DIMS, false));
    mpt_clear_grad(x);
    mpt_tensor loss = mpt_sum(mpt_forward(second, x), MPT_ALL_DIMS, false);
    CHECK_EQ_INT(mpt_module_destroy(second), MPT_OK);
    CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
    CHECK(mpt_has_grad(x));
    float g[3];
    CHECK_EQ_INT(mpt_read_f32(mpt_grad(mpt_parameter(first, "weight")), g, 3), MPT_OK);
    CHECK(g[0] == 1 && g[1] == 1 && g[2] == 1); /* nothing of the second came here */
    for (int i = 0; i < 100; i++) {             /* destroyed trees leave no rows behind */
        mpt_module net = mpt_nn_linear(c, 2, 2);
        CHECK(mpt_module_hash(net) != 0);
        mpt_module_destroy(net);
        if (i == 9) a.refused = a.live;
    }
    CHECK(a.live - a.refused < 2048);
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

TEST(trees_are_not_too_deep) {
    mpt_context *c = make_context(NULL);
    mpt_module top = mpt_nn_list(c, MPT_END), at = top;
    int levels = 1;
    for (; levels < 1000; levels++) {
        mpt_module next = mpt_nn_list(c, MPT_END);
        if (mpt_add_child(at, "a", next) != MPT_OK) break;
        at = next;
    }
    CHECK_EQ_INT(levels, 200);
    CHECK_CONTAINS(mpt_error(c), "nest deeper than 200");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_parameter_count(top), 0);
    CHECK_EQ_INT(mpt_module_destroy(top), MPT_OK);
    mpt_destroy(c);
}

/* Runs the module that its data names, or itself. */
static mpt_status calls_another(mpt_module self, void *data, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    const mpt_module *other = (const mpt_module *)data;
    out[0] = mpt_forward(other ? *other : self, in[0]);
    return MPT_OK;
}

/* An op that applies the op in its data. */
static mpt_status applies(mpt_op_call *call, void *data) {
    const mpt_tensor x = mpt_op_input(call, 0);
    mpt_tensor y;
    return mpt_op_apply(*(const mpt_op *)data, &x, 1, &y, 1);
}

static mpt_op register_echo(mpt_context *c) {
    static mpt_op itself;
    mpt_op_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "echo op", cls.forward = applies, cls.n_inputs = cls.n_outputs = 1;
    return itself = mpt_op_register(c, &cls, &itself);
}

TEST(a_forward_that_runs_in_itself_is_refused) {
    mpt_context *c = make_context(NULL);
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "echo", cls.forward = calls_another;
    mpt_module relu = mpt_nn_relu(c);
    mpt_module self = mpt_module_create(c, &cls, NULL), good = mpt_module_create(c, &cls, &relu);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 4, 4), self, MPT_END);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4));
    for (int i = 0; i < 2; i++) {
        mpt_forward(net, x);
        CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(c), "forward of echo runs in itself or nests deeper than 200");
        mpt_clear_error(c);
    }
    const mpt_op op = register_echo(c);
    mpt_tensor y;
    mpt_op_apply(op, &x, 1, &y, 1);
    CHECK_CONTAINS(mpt_error(c), "forward of echo op runs in itself or nests deeper than 200");
    mpt_clear_error(c);
    for (int i = 0; i < 300; i++) mpt_release(mpt_forward(good, x));
    CHECK_NEAR(mpt_item(mpt_sum(mpt_forward(good, x), 0, false)), 4, 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(parameters_of_no_elements_and_of_too_many) {
    mpt_context *c = make_context(NULL);
    mpt_init ones = mpt_init_make(MPT_INIT_ONES, 0, 0);
    mpt_module net = mpt_nn_list(c, MPT_END), vast = mpt_nn_list(c, MPT_END);
    mpt_add_parameter(net, "none", MPT_SHAPE(0, 3), ones);
    CHECK_EQ_INT(mpt_parameter_numel(net), 0);
    CHECK_EQ_INT(mpt_numel(mpt_parameter(net, "none")), 0);
    CHECK_EQ_INT(mpt_step(mpt_sgd(net, NULL)), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    for (int i = 0; i < 9; i++) {
        char name[2] = {(char)('a' + i), 0};
        mpt_add_child(vast, name, mpt_nn_linear_no_bias(c, INT64_C(1) << 29, INT64_C(1) << 29));
    }
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK(!mpt_valid(mpt_parameter(vast, "a.weight")));
    CHECK_CONTAINS(mpt_error(c), "more than 2^59 elements");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_module_destroy(vast), MPT_OK);
    mpt_destroy(c);
}

/* ==== Misuse inside user-defined ops: handles released, errors cleared ==== */

static int act;

static void try_in_vain(mpt_tensor x) {
    mpt_reshape(x, MPT_SHAPE(7));
    CHECK_EQ_INT(mpt_error_code(x.context), MPT_ERROR_SHAPE);
    mpt_clear_error(x.context);
}

static mpt_status doubles(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_input(call, 0), y = mpt_mul_scalar(x, 2);
    mpt_op_save(call, 0, x);
    mpt_op_set_output(call, 0, y);
    if (act == 1) mpt_release(x);
    if (act == 5) try_in_vain(x);
    if (act == 2) mpt_release(y);
    return MPT_OK;
}

static mpt_status doubles_back(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor dy = mpt_op_output_grad(call, 0), dx = mpt_mul_scalar(dy, 2);
    mpt_op_set_input_grad(call, 0, dx);
    if (act == 3) mpt_release(dy);
    if (act == 3) mpt_zeros(dy.context, MPT_F32, MPT_SHAPE(5));
    if (act == 4) mpt_release(mpt_op_saved(call, 0));
    if (act == 6) try_in_vain(dx);
    return MPT_OK;
}

static mpt_status several(mpt_op_call *call, void *user) {
    (void)user;
    for (int i = 0; i < 3; i++)
        mpt_op_set_output(call, i, mpt_mul_scalar(mpt_op_input(call, 0), i + 2));
    for (int i = 0; i < 8; i++) mpt_op_save(call, i, mpt_op_input(call, 0));
    return MPT_OK;
}

static mpt_status several_back(mpt_op_call *call, void *user) {
    mpt_tensor sum = mpt_mul_scalar(mpt_op_output_grad(call, 0), 2);
    for (int i = 1; i < 3; i++)
        sum = mpt_add(sum, mpt_mul_scalar(mpt_op_output_grad(call, i), i + 2));
    *(mpt_shape *)user = mpt_get_shape(mpt_op_output_grad(call, 1));
    return mpt_op_set_input_grad(call, 0, sum);
}

static mpt_status early(mpt_op_call *call, void *user) {
    (void)user;
    mpt_op_output_grad(call, 0);
    return MPT_OK;
}

/* The gradient of an output that nobody uses is zeros, also where its handle is gone, and what
   backward does to it in place is seen by nobody else. */
TEST(unused_outputs_of_user_ops) {
    mpt_context *c = make_context(NULL);
    mpt_op_class cls;
    mpt_shape seen = MPT_SCALAR;
    memset(&cls, 0, sizeof cls);
    cls.name = "several", cls.forward = several, cls.backward = several_back;
    cls.n_inputs = 1, cls.n_outputs = 3;
    mpt_op op = mpt_op_register(c, &cls, &seen);
    int64_t before = 0;
    for (int used = 0; used < 3; used++) {
        mpt_step_begin(c);
        mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 2)), out[3];
        float g[6];
        mpt_requires_grad(x, true);
        REQUIRE(mpt_op_apply(op, &x, 1, out, 3) == MPT_OK);
        for (int i = 0; i < 3; i++)
            if (i != used) mpt_release(out[i]);
        mpt_backward(mpt_sum(out[used], MPT_ALL_DIMS, false));
        mpt_read_f32(mpt_grad(x), g, 6);
        for (int i = 0; i < 6; i++) CHECK(g[i] == (float)(used + 2));
        CHECK(seen.rank == 2 && seen.dim[0] == 3 && seen.dim[1] == 2);
        mpt_step_end(c);
        int64_t now = mpt_memory(c).current[MPT_MEMORY_ACTIVATION];
        if (used) CHECK_EQ_INT(now, before);
        before = now;
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 2)), out[3];
    cls.forward = early;
    mpt_op_apply(mpt_op_register(c, &cls, &seen), &x, 1, out, 3);
    CHECK_CONTAINS(mpt_error(c), "mpt_op_output_grad");
    CHECK_CONTAINS(mpt_error(c), "to be called in backward only");
    mpt_destroy(c);
}

TEST(misuse_inside_user_ops) {
    mpt_context *c = make_context(NULL);
    mpt_op_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "doubles", cls.forward = doubles, cls.backward = doubles_back;
    cls.n_inputs = cls.n_outputs = 1;
    mpt_op op = mpt_op_register(c, &cls, NULL);
    for (act = 0; act <= 6; act++) {
        mpt_tensor w = mpt_ones(c, MPT_F32, MPT_SHAPE(5)), y;
        mpt_requires_grad(w, true);
        mpt_backward(mpt_sum(w, 0, false)); /* there is history, whatever was done before */
        mpt_clear_grad(w);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_tensor x = mpt_add_scalar(w, 1);
        mpt_status status = mpt_op_apply(op, &x, 1, &y, 1);
        CHECK_EQ_INT(status, act == 1 ? MPT_ERROR_STATE : act == 2 ? MPT_ERROR_HANDLE : MPT_OK);
        if (act == 6) { /* an error in backward stays until it has ended */
            CHECK_EQ_INT(mpt_backward(mpt_sum(y, 0, false)), MPT_ERROR_SHAPE);
        } else if (status == MPT_OK) {
            mpt_tensor sum = mpt_sum(mpt_add(y, mpt_mul_scalar(y, 1)), 0, false);
            CHECK_EQ_INT(mpt_backward(sum), MPT_OK);
            CHECK_NEAR(mpt_item(mpt_slice(mpt_grad(w), 0, 4, 5, 1)), 4, 0);
        }
        if (act < 5) mpt_clear_error(c);
    }
    mpt_clear_error(c);
    mpt_tensor last = mpt_ones(c, MPT_F32, MPT_SHAPE(1));
    mpt_requires_grad(last, true);
    CHECK_EQ_INT(mpt_backward(mpt_mul(last, last)), MPT_OK);
    mpt_destroy(c);
}

/* ==== Recordings ==== */

/* ==== Where in a net ==== */

static mpt_status calls_what_fails(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                   mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_matmul(in[0], mpt_zeros(self.context, MPT_F32, MPT_SHAPE(9, 9)));
    return MPT_OK;
}

static mpt_status double_forward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_op_set_output(call, 0, mpt_mul_scalar(mpt_op_input(call, 0), 2));
    return MPT_OK;
}
static mpt_status bad_backward(mpt_op_call *call, void *user) {
    (void)call, (void)user;
    return MPT_ERROR_NUMERIC;
}
static mpt_status runs_the_op(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    (void)self, (void)n_in, (void)n_out;
    return mpt_op_apply(*(mpt_op *)user, in, 1, out, 1);
}

/* Errors name the module that runs, those of backward the one that ran; others none. */
TEST(errors_name_the_module) {
    mpt_context *c = make_context(NULL);
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "mine", cls.forward = calls_what_fails, cls.n_inputs = cls.n_outputs = 1;
    mpt_op_class op_class;
    memset(&op_class, 0, sizeof op_class);
    op_class.name = "bad", op_class.n_inputs = op_class.n_outputs = 1;
    op_class.forward = double_forward, op_class.backward = bad_backward;
    mpt_op op = mpt_op_register(c, &op_class, NULL);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3));
    for (int way = 0; way < 4; way++) {
        mpt_module inner = mpt_nn_linear(c, 4, 1);
        if (way == 1) inner = mpt_module_create(c, &cls, NULL);
        if (way == 2) inner = mpt_nn_batch_norm2d(c, 3, NULL);
        if (way == 3) cls.forward = runs_the_op, inner = mpt_module_create(c, &cls, &op);
        mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 3, 3), mpt_nn_relu(c),
                                        mpt_sequential(c, mpt_nn_tanh(c), inner, MPT_END),
                                        mpt_nn_relu(c), MPT_END);
        mpt_tensor out = mpt_forward(net, x);
        if (way == 3) {
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
        }
        CHECK_CONTAINS(mpt_error(c), ", module 2.1): ");
        mpt_clear_error(c);
        mpt_matmul(x, x);
        CHECK(mpt_failed(c) && !strstr(mpt_error(c), "module"));
        mpt_clear_error(c);
    }
    mpt_destroy(c);
}

TEST(recordings_do_not_nest) {
    arena a;
    mpt_context *c = make_context(&a);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(4));
    mpt_record_begin(c);
    mpt_release(mpt_add_scalar(mpt_mul_scalar(x, 2), 1));
    mpt_recording recording = mpt_record_end(c);
    CHECK_EQ_INT(mpt_recording_launches(recording), 2);
    mpt_record_begin(c);
    CHECK_EQ_INT(mpt_replay(recording), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "mpt_record_end");
    mpt_clear_error(c);
    mpt_record_begin(c);
    CHECK_EQ_INT(mpt_recording_destroy(recording), MPT_ERROR_STATE);
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_replay(recording), MPT_OK);
    CHECK_EQ_INT(mpt_recording_destroy(recording), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* A recording works on the memory that it saw: after mpt_half has moved parameters it says so. */
TEST(a_recording_ends_with_mpt_half) {
    arena a;
    mpt_context *c = make_context(&a);
    mpt_module net = mpt_nn_linear(c, 4, 2), other = mpt_nn_linear(c, 4, 2);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1, 4));
    mpt_forward(other, x);
    mpt_record_begin(c);
    mpt_keep(mpt_forward(net, x));
    mpt_recording recording = mpt_record_end(c);
    CHECK_EQ_INT(mpt_half(other, MPT_BF16), MPT_OK);
    CHECK_EQ_INT(mpt_replay(recording), MPT_OK);
    CHECK_EQ_INT(mpt_half(net, MPT_BF16), MPT_OK);
    CHECK_EQ_INT(mpt_replay(recording), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "record anew");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_recording_destroy(recording), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

TEST_TABLE = {T(a_second_try_draws_the_same_values),
              T(parts_of_a_failed_creation_stay),
              T(a_missing_end_is_found),
              T(clear_error_takes_dropout_back),
              T(backward_of_dropout_in_another_step),
              T(backward_after_a_tree_is_destroyed),
              T(trees_are_not_too_deep),
              T(a_forward_that_runs_in_itself_is_refused),
              T(parameters_of_no_elements_and_of_too_many),
              T(unused_outputs_of_user_ops),
              T(misuse_inside_user_ops),
              T(errors_name_the_module),
              T(recordings_do_not_nest),
              T(a_recording_ends_with_mpt_half)};
TEST_MAIN
