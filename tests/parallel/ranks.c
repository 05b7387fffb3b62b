/* ranks.c - what holds on any number of ranks: collectives, settings that differ, unused weights,
   gradients that are kept back, running statistics, an error on one rank. Run by run.sh; each rank
   ends with its own summary line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mptrain.h"
#include "mptrain_parallel.h"
#include "../harness.h"

static mpt_context *ctx;
static int rank, world;

/* ==== Tensors ==== */

static float value_of(mpt_tensor tensor, int index) {
    float values[64] = {0};
    CHECK(mpt_numel(tensor) <= 64);
    mpt_read_f32(tensor, values, mpt_numel(tensor));
    return values[index];
}

static mpt_tensor total(mpt_tensor x) { return mpt_sum(mpt_reshape(x, MPT_SHAPE(-1)), 0, false); }

TEST(tensors_travel) {
    const float mine[3] = {(float)rank, 1.0f, -(float)rank};
    mpt_scope_begin(ctx);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(3), mine);
    mpt_tensor all = mpt_all_gather(x);
    CHECK_EQ_INT(mpt_get_shape(all).dim[0], world);
    for (int r = 0; r < world; r++) CHECK_NEAR(value_of(all, 3 * r), r, 0);
    CHECK(mpt_all_reduce(x, MPT_PARALLEL_SUM) == MPT_OK);
    CHECK_NEAR(value_of(x, 0), world * (world - 1) / 2, 0);
    CHECK_NEAR(value_of(x, 1), world, 0);
    mpt_tensor y = mpt_from(ctx, MPT_F32, MPT_SHAPE(3), mine);
    CHECK(mpt_all_reduce(y, MPT_PARALLEL_MAX) == MPT_OK);
    CHECK_NEAR(value_of(y, 0), world - 1, 0);
    CHECK_NEAR(value_of(y, 2), 0, 0);
    mpt_tensor z = mpt_from(ctx, MPT_F32, MPT_SHAPE(3), mine);
    CHECK(mpt_broadcast(z, world - 1) == MPT_OK);
    CHECK_NEAR(value_of(z, 0), world - 1, 0);
    CHECK(mpt_barrier(ctx) == MPT_OK);
    mpt_scope_end(ctx);
}

TEST(other_dtypes_and_strides_travel) {
    mpt_scope_begin(ctx);
    mpt_tensor half = mpt_full(ctx, MPT_BF16, MPT_SHAPE(2, 3), 0.5 + rank);
    mpt_tensor turned = mpt_transpose(half, 0, 1);
    CHECK(mpt_all_reduce(turned, MPT_PARALLEL_MEAN) == MPT_OK);
    CHECK_NEAR(value_of(half, 5), 0.5 + (world - 1) / 2.0, 0);
    mpt_tensor whole = mpt_full(ctx, MPT_I64, MPT_SHAPE(2), rank + 1);
    CHECK(mpt_all_reduce(whole, MPT_PARALLEL_MIN) == MPT_OK);
    CHECK_NEAR(mpt_item(total(mpt_cast(whole, MPT_F32))), 2, 0);
    CHECK(mpt_all_reduce(whole, MPT_PARALLEL_MEAN) == MPT_ERROR_DTYPE);
    CHECK_CONTAINS(mpt_error(ctx), "cannot be averaged");
    mpt_clear_error(ctx);
    mpt_scope_end(ctx);
}

TEST(shapes_that_differ_are_an_error) {
    mpt_tensor x = mpt_keep(mpt_zeros(ctx, MPT_F32, MPT_SHAPE(rank == 0 ? 2 : 3)));
    mpt_status status = mpt_all_reduce(x, MPT_PARALLEL_SUM);
    CHECK_EQ_INT(status, world > 1 ? MPT_ERROR_SHAPE : MPT_OK);
    if (world > 1) CHECK_CONTAINS(mpt_error(ctx), "ranks disagree");
    mpt_clear_error(ctx);
    CHECK(mpt_barrier(ctx) == MPT_OK);
    CHECK(mpt_broadcast(x, world) == MPT_ERROR_ARGUMENT);
    mpt_clear_error(ctx);
    mpt_release(x);
}

/* ==== Nets ==== */

static mpt_module line(int64_t in, int64_t out) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, in, out), MPT_END);
}

/* What the gradient of sum(w x) by w is: x. */
static void pass(mpt_module net, float x) {
    mpt_tensor in = mpt_full(ctx, MPT_F32, MPT_SHAPE(1, 2), x);
    mpt_backward(total(mpt_forward(net, in)));
}

static float gradient(mpt_module net, const char *path) {
    mpt_tensor grad = mpt_grad(mpt_parameter(net, path));
    return value_of(grad, 0);
}

TEST(gradients_are_means) {
    mpt_module net = line(2, 3);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    for (int tree = 0; tree < 2; tree++) {
        mpt_data_parallel_config c = mpt_data_parallel_config_default();
        c.deterministic = tree;
        CHECK(mpt_data_parallel(net, &c) == MPT_OK);
        int64_t allocations = 0;
        for (int i = 0; i < 6; i++) {
            if (i == 3) allocations = mpt_memory(ctx).allocations;
            mpt_step_begin(ctx);
            mpt_zero_grad(optimizer);
            pass(net, (float)(rank + i));
            CHECK_NEAR(gradient(net, "0.weight"), i + (world - 1) / 2.0, 1e-6);
            mpt_step_end(ctx);
        }
        CHECK_EQ_INT(mpt_memory(ctx).allocations, allocations);
    }
    mpt_parallel_stats stats = mpt_parallel_statistics(ctx);
    CHECK(stats.buckets == 1 && stats.bytes >= 9 * 4 && stats.reductions >= 6);
    CHECK_EQ_STR(mpt_error(ctx), "");
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
}

TEST(gradients_that_are_kept_back_add_up) {
    mpt_module net = line(2, 3);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    for (int tree = 0; tree < 2; tree++) {
        mpt_data_parallel_config c = mpt_data_parallel_config_default();
        c.deterministic = tree;
        CHECK(mpt_data_parallel(net, &c) == MPT_OK);
        mpt_step_begin(ctx);
        mpt_zero_grad(optimizer);
        CHECK(mpt_no_sync_begin(ctx) == MPT_OK);
        pass(net, (float)rank);
        CHECK_NEAR(gradient(net, "0.weight"), rank, 0);
        CHECK(mpt_no_sync_end(ctx) == MPT_OK);
        pass(net, (float)rank);
        CHECK_NEAR(gradient(net, "0.weight"), world - 1, 1e-6);
        mpt_step_end(ctx);
    }
    CHECK(mpt_no_sync_end(ctx) == MPT_ERROR_STATE);
    mpt_clear_error(ctx);
    for (int tree = 0; tree < 2; tree++) { /* three micro-batches: no power of two */
        mpt_data_parallel_config c = mpt_data_parallel_config_default();
        c.deterministic = tree, c.micro_batches = 3;
        CHECK(mpt_data_parallel(net, &c) == MPT_OK);
        for (int i = 0; i < 2; i++) {
            mpt_step_begin(ctx);
            mpt_zero_grad(optimizer);
            for (int m = 0; m < 3; m++) pass(net, (float)(3 * rank + m));
            CHECK_NEAR(gradient(net, "0.weight"), (3 * world - 1) / 2.0, 1e-5);
            mpt_step_end(ctx);
        }
        mpt_step_begin(ctx);
        pass(net, 1); /* behind a step without mpt_zero_grad */
        CHECK_EQ_INT(mpt_error_code(ctx), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(ctx), "mpt_zero_grad");
        mpt_clear_error(ctx);
        mpt_step_end(ctx);
    }
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
}

/* Two layers side by side: rank 0 uses the first, all others the second. */
TEST(unused_weights_count_as_zeros) {
    mpt_module first = mpt_nn_linear(ctx, 2, 3), second = mpt_nn_linear(ctx, 2, 3);
    mpt_module third = mpt_nn_linear(ctx, 2, 3);
    mpt_module net = mpt_sequential(ctx, first, second, third, MPT_END);
    for (int tree = 0; tree < 2; tree++) {
        mpt_data_parallel_config c = mpt_data_parallel_config_default();
        c.deterministic = tree, c.bucket_bytes = 4;
        CHECK(mpt_data_parallel(net, &c) == MPT_OK);
        for (int i = 0; i < 2; i++) {
            mpt_step_begin(ctx);
            pass(rank == 0 ? first : second, 4);
            CHECK_EQ_STR(mpt_error(ctx), "");
            CHECK_NEAR(gradient(net, "0.weight"), 4.0 / world, 1e-6);
            CHECK(mpt_has_grad(mpt_parameter(net, "1.weight")) == (world > 1));
            if (world > 1)
                CHECK_NEAR(gradient(net, "1.weight"), 4.0 * (world - 1) / world, 1e-6);
            CHECK(!mpt_has_grad(mpt_parameter(net, "2.weight")));
            for (int p = 0; p < 6; p++) mpt_clear_grad(mpt_parameter_at(net, p, NULL, 0));
            mpt_step_end(ctx);
        }
    }
    mpt_module_destroy(net);
}

static void fill(mpt_tensor weight, double value) {
    mpt_no_grad_begin(ctx);
    mpt_fill_(weight, value);
    mpt_no_grad_end(ctx);
}

TEST(weights_and_statistics_are_those_of_rank_0) {
    mpt_module net = mpt_sequential(
        ctx, mpt_nn_linear(ctx, 2, 3), mpt_nn_batch_norm1d(ctx, 3, NULL), MPT_END);
    mpt_tensor weight = mpt_parameter(net, "0.weight");
    fill(weight, rank);
    CHECK_EQ_INT(mpt_compare_ranks(net), world > 1 ? MPT_ERROR_STATE : MPT_OK);
    if (world > 1) CHECK_CONTAINS(mpt_error(ctx), "rank 1 has other weights");
    mpt_clear_error(ctx);
    CHECK(mpt_data_parallel(net, NULL) == MPT_OK);
    CHECK_NEAR(value_of(weight, 0), 0, 0);
    mpt_step_begin(ctx);
    const float mine[4] = {(float)rank, 1, 2, (float)rank};
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(2, 2), mine);
    fill(weight, 0.5);
    mpt_backward(total(mpt_forward(net, x)));
    mpt_step_end(ctx);
    CHECK_EQ_STR(mpt_error(ctx), "");
    CHECK(mpt_compare_ranks(net) == MPT_OK);
    mpt_module_destroy(net);
}

TEST(nets_and_settings_that_differ_are_errors) {
    if (world == 1) SKIP("a second rank");
    mpt_module net = line(2, rank == 1 ? 4 : 3);
    CHECK(mpt_data_parallel(net, NULL) == MPT_ERROR_SHAPE);
    CHECK_CONTAINS(mpt_error(ctx), "rank 1 has 0.weight float32 [4, 2]");
    mpt_clear_error(ctx);
    mpt_module same = line(2, 3);
    mpt_data_parallel_config c = mpt_data_parallel_config_default();
    c.micro_batches = rank == 1 ? 2 : 1;
    CHECK(mpt_data_parallel(same, &c) == MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(mpt_error(ctx), "micro_batches");
    mpt_clear_error(ctx);
    c.micro_batches = 1;
    mpt_freeze(same, rank == 1);
    mpt_data_parallel(same, &c);
    CHECK(mpt_failed(ctx));
    mpt_clear_error(ctx);
    mpt_module_destroy(net);
    mpt_module_destroy(same);
}

/* An op of the user's that fails in backward, on one rank alone. */
static mpt_status pass_on(mpt_op_call *call, void *user) {
    (void)user;
    return mpt_op_set_output(call, 0, mpt_mul_scalar(mpt_op_input(call, 0), 1.0));
}

static mpt_status fail_there(mpt_op_call *call, void *user) {
    if (rank != *(int *)user)
        return mpt_op_set_input_grad(call, 0, mpt_op_output_grad(call, 0));
    mpt_reshape(mpt_op_output_grad(call, 0), MPT_SHAPE(5));
    return MPT_ERROR_SHAPE;
}

TEST(an_error_in_backward_is_that_of_all) {
    int where = world - 1;
    const mpt_op_class cls = {"odd", MPT_AUTOCAST_INPUT, pass_on, fail_there, 1, 1};
    mpt_op op = mpt_op_register(ctx, &cls, &where);
    mpt_module net = line(2, 3);
    CHECK(mpt_data_parallel(net, NULL) == MPT_OK);
    for (int i = 0; i < 2; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(1, 2)), y = mpt_forward(net, x), z;
        mpt_op_apply(op, &y, 1, &z, 1);
        CHECK(mpt_backward(total(z)) != MPT_OK);
        if (rank != where) {
            char text[24];
            snprintf(text, sizeof text, "rank %d failed", where);
            CHECK_CONTAINS(mpt_error(ctx), text);
        }
        CHECK_CONTAINS(mpt_error(ctx), "cannot become [5]");
        mpt_clear_error(ctx); /* and all go on together */
        mpt_step_end(ctx);
        mpt_step_begin(ctx);
        pass(net, (float)rank);
        CHECK_NEAR(gradient(net, "0.weight"), (world - 1) / 2.0, 1e-6);
        mpt_clear_grad(mpt_parameter(net, "0.weight"));
        mpt_clear_grad(mpt_parameter(net, "0.bias"));
        mpt_step_end(ctx);
    }
    mpt_module_destroy(net);
}

TEST(misuse_is_named) {
    mpt_module net = line(2, 3);
    CHECK(mpt_parallel_begin(ctx, NULL) == MPT_ERROR_STATE);
    mpt_clear_error(ctx);
    mpt_data_parallel_config c = mpt_data_parallel_config_default();
    c.micro_batches = 0;
    CHECK(mpt_data_parallel(net, &c) == MPT_ERROR_ARGUMENT);
    mpt_clear_error(ctx);
    c.micro_batches = 2;
    CHECK(mpt_data_parallel(net, &c) == MPT_OK);
    mpt_no_sync_begin(ctx);
    mpt_step_begin(ctx);
    pass(net, 1);
    CHECK_CONTAINS(mpt_error(ctx), "micro_batches = 1");
    mpt_clear_error(ctx);
    mpt_no_sync_end(ctx);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_update_in_backward(optimizer, true);
    mpt_step_begin(ctx);
    pass(net, 1);
    CHECK_CONTAINS(mpt_error(ctx), "mpt_update_in_backward");
    mpt_clear_error(ctx);
    mpt_update_in_backward(optimizer, false);
    mpt_context *other = mpt_create(NULL);
    CHECK(mpt_barrier(other) == MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(other), "mpt_parallel_begin");
    CHECK_EQ_INT(mpt_parallel_world(other), 1);
    mpt_destroy(other);
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
}

/* Dropout leaves out others on each rank, and in each batch of a step. */
TEST(masks_differ) {
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 3), mpt_nn_dropout(ctx, 0.5), MPT_END);
    mpt_module drop = mpt_child(net, "1");
    mpt_data_parallel_config c = mpt_data_parallel_config_default();
    c.micro_batches = 2;
    CHECK(mpt_data_parallel(net, &c) == MPT_OK);
    mpt_step_begin(ctx);
    mpt_tensor ones = mpt_ones(ctx, MPT_F32, MPT_SHAPE(64)), kept[2];
    for (int i = 0; i < 2; i++) {
        kept[i] = mpt_forward(drop, ones);
        pass(net, 1);
    }
    CHECK(!mpt_allclose(kept[0], kept[1], 0, 0));
    mpt_tensor first = mpt_clone(kept[0]);
    CHECK(mpt_broadcast(first, 0) == MPT_OK);
    CHECK(mpt_allclose(first, kept[0], 0, 0) == (rank == 0));
    mpt_step_end(ctx);
    CHECK_EQ_STR(mpt_error(ctx), "");
    mpt_module_destroy(net);
}

/* Frozen weights and those of another net are left alone. */
TEST(what_is_not_trained_does_not_travel) {
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 3), mpt_nn_linear(ctx, 3, 3), MPT_END);
    mpt_freeze(mpt_child(net, "0"), true);
    CHECK(mpt_data_parallel(net, NULL) == MPT_OK);
    CHECK_EQ_INT(mpt_parallel_statistics(ctx).bytes, (12 + world - 1) / world * world * 4);
    mpt_module other = line(2, 3);
    mpt_step_begin(ctx);
    pass(other, (float)rank);
    CHECK_NEAR(gradient(other, "0.weight"), rank, 0);
    mpt_step_end(ctx);
    mpt_module_destroy(other);
    mpt_module_destroy(net);
    mpt_step_begin(ctx);
    mpt_module third = line(2, 3);
    pass(third, 1);
    CHECK_CONTAINS(mpt_error(ctx), "was destroyed");
    mpt_clear_error(ctx);
    mpt_module_destroy(third);
}

/* ==== States in parts ==== */

TEST(what_needs_whole_states_is_an_error) {
    mpt_module net = line(40, 30), more = line(2, 3);
    mpt_sgd_config c = mpt_sgd_config_default();
    c.momentum = 0.9;
    mpt_optimizer optimizer = mpt_sgd(net, &c);
    CHECK(mpt_shard_states(optimizer, false) == MPT_OK); /* they are whole */
    CHECK(mpt_shard_states(optimizer, true) == MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(ctx), "mpt_data_parallel");
    mpt_clear_error(ctx);
    CHECK(mpt_data_parallel(net, NULL) == MPT_OK);
    const int64_t whole = mpt_memory(ctx).current[MPT_MEMORY_MOMENT];
    CHECK(mpt_shard_states(optimizer, true) == MPT_OK);
    CHECK(mpt_shard_states(optimizer, true) == MPT_OK);
    const int64_t part = mpt_memory(ctx).current[MPT_MEMORY_MOMENT];
    CHECK(part <= whole / world + 256);
    mpt_optimizer_hash(optimizer);
    CHECK_CONTAINS(mpt_error(ctx), "mpt_shard_states");
    mpt_clear_error(ctx);
    CHECK(mpt_checkpoint_save(ctx, "never") != MPT_OK);
    CHECK_CONTAINS(mpt_error(ctx), "mpt_shard_states");
    mpt_clear_error(ctx);
    CHECK(mpt_optimizer_add(optimizer, more, NULL, NULL) < 0);
    CHECK_CONTAINS(mpt_error(ctx), "mpt_shard_states");
    mpt_clear_error(ctx);
    CHECK(mpt_shard_states(optimizer, false) == MPT_OK);
    CHECK_EQ_INT(mpt_memory(ctx).current[MPT_MEMORY_MOMENT], whole);
    CHECK(mpt_optimizer_hash(optimizer) != 0);
    CHECK(mpt_shard_states(optimizer, true) == MPT_OK);
    mpt_optimizer_destroy(optimizer); /* with what is in parts */
    mpt_optimizer muon = mpt_muon(net, NULL);
    if (!mpt_failed(ctx)) {
        CHECK(mpt_shard_states(muon, true) == MPT_ERROR_UNSUPPORTED);
        mpt_clear_error(ctx);
        mpt_optimizer_destroy(muon);
    }
    mpt_clear_error(ctx);
    mpt_module_destroy(net);
    mpt_module_destroy(more);
}

/* ==== Batch norms over all ranks ==== */

enum { CHANNELS = 5, SIDE = 4, PIXELS = SIDE * SIDE, PICTURE = 2 * PIXELS, OUT = 3 * PIXELS };

/* How often the same test is done, and how. */
typedef struct norm_way {
    mpt_dtype low;
    bool last, relu, track;
    double near; /* of the largest gradient of the same weight */
} norm_way;

static mpt_module norm_net(mpt_context *in, const norm_way *way) {
    mpt_norm_config norm = mpt_norm_config_default();
    norm.relu = way->relu, norm.track = way->track;
    return mpt_sequential(in, mpt_nn_conv2d(in, 2, CHANNELS, 1, 1, NULL),
        mpt_nn_batch_norm2d(in, CHANNELS, &norm), mpt_nn_conv2d(in, CHANNELS, 3, 1, 1, NULL),
        MPT_END);
}

static float picture_value(int64_t i, int by) {
    return (float)((i * 7919 + i / 13 * 31 + by) % 101) / 50 - 1.2f + (float)(i / 64) * 0.1f;
}

/* Weights that depend on nothing but their number. */
static void norm_weights(mpt_module net) {
    for (int p = 0; p < mpt_parameter_count(net); p++) {
        float values[64];
        mpt_tensor weight = mpt_parameter_at(net, p, NULL, 0);
        const int64_t n = mpt_numel(weight);
        for (int64_t i = 0; i < n; i++) values[i] = picture_value(i, 17 * p) + 0.3f;
        mpt_no_grad_begin(ctx);
        mpt_write(weight, values, (size_t)n * sizeof *values);
        mpt_no_grad_end(ctx);
    }
}

/* A step of pictures `first` to first + count - 1, whose losses are summed. */
static void norm_step(mpt_context *in, mpt_module net, const norm_way *way, int first, int count) {
    static float x[64 * PICTURE], t[64 * OUT];
    for (int64_t i = 0; i < count * PICTURE; i++) x[i] = picture_value(first * PICTURE + i, 0);
    for (int64_t i = 0; i < count * OUT; i++) t[i] = picture_value(first * OUT + i, 50);
    mpt_step_begin(in);
    mpt_tensor pictures = mpt_from(in, MPT_F32, MPT_SHAPE(count, 2, SIDE, SIDE), x);
    mpt_tensor factors = mpt_from(in, MPT_F32, MPT_SHAPE(count, 3, SIDE, SIDE), t);
    if (way->last) pictures = mpt_to_channels_last(pictures);
    mpt_autocast_begin(in, way->low);
    mpt_tensor y = mpt_forward(net, pictures);
    mpt_autocast_end(in);
    y = mpt_cast(y, MPT_F32);
    mpt_backward(total(mpt_mul(mpt_mul(y, y), factors)));
    mpt_step_end(in);
}

static void norm_compare(mpt_module net, mpt_module whole, const norm_way *way) {
    for (int p = 0; p < mpt_parameter_count(net); p++) {
        float got[64], want[64], most = 0;
        const int64_t n = mpt_numel(mpt_parameter_at(net, p, NULL, 0));
        mpt_read_f32(mpt_grad(mpt_parameter_at(net, p, NULL, 0)), got, n);
        mpt_read_f32(mpt_grad(mpt_parameter_at(whole, p, NULL, 0)), want, n);
        for (int64_t i = 0; i < n; i++) most = fabsf(want[i]) > most ? fabsf(want[i]) : most;
        /* The bias before the norm has none, but for rounding. */
        if (p == 1) most = 0.1f * (float)world * PIXELS;
        for (int64_t i = 0; i < n; i++)
            CHECK_NEAR(got[i] * (float)world, want[i], way->near * (double)most);
    }
    static const char *const names[] = {"1.running_mean", "1.running_var"};
    for (int b = 0; b < 2 && way->track; b++) {
        float got[CHANNELS], want[CHANNELS];
        mpt_read_f32(mpt_buffer(net, names[b]), got, CHANNELS);
        mpt_read_f32(mpt_buffer(whole, names[b]), want, CHANNELS);
        for (int c = 0; c < CHANNELS; c++)
            CHECK_NEAR(got[c], want[c], way->low == MPT_F32 ? 1e-6 : 1e-3);
    }
}

/* Ranks have batches of 3, 4, .. pictures; another context all of them. */
TEST(batch_norms_of_all_ranks_are_those_of_the_whole_batch) {
    static const norm_way ways[] = {{MPT_F32, false, false, true, 1e-5},
        {MPT_F32, false, true, true, 1e-5}, {MPT_F32, true, true, true, 1e-5},
        {MPT_F32, true, false, false, 1e-5}, {MPT_BF16, false, true, true, 3e-2},
        {MPT_BF16, true, false, true, 3e-2}, {MPT_F16, true, true, false, 4e-3}};
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        const norm_way *way = &ways[k];
        mpt_context *other = mpt_create(NULL);
        mpt_module net = norm_net(ctx, way), whole = norm_net(other, way);
        norm_weights(net), norm_weights(whole);
        mpt_data_parallel_config c = mpt_data_parallel_config_default();
        c.sync_batch_norm = c.keep_buffers = true;
        CHECK(mpt_data_parallel(net, &c) == MPT_OK);
        norm_step(ctx, net, way, rank * 3 + rank * (rank - 1) / 2, 3 + rank);
        norm_step(other, whole, way, 0, world * 3 + world * (world - 1) / 2);
        CHECK_EQ_STR(mpt_error(ctx), "");
        CHECK_EQ_STR(mpt_error(other), "");
        norm_compare(net, whole, way);
        CHECK(mpt_compare_ranks(net) == MPT_OK);
        mpt_module_destroy(net);
        mpt_destroy(other);
    }
}

TEST_TABLE = {T(tensors_travel), T(other_dtypes_and_strides_travel),
    T(shapes_that_differ_are_an_error), T(gradients_are_means),
    T(gradients_that_are_kept_back_add_up), T(unused_weights_count_as_zeros),
    T(weights_and_statistics_are_those_of_rank_0), T(nets_and_settings_that_differ_are_errors),
    T(an_error_in_backward_is_that_of_all), T(misuse_is_named), T(masks_differ),
    T(what_is_not_trained_does_not_travel), T(what_needs_whole_states_is_an_error),
    T(batch_norms_of_all_ranks_are_those_of_the_whole_batch)};

/* Each rank writes to a file of its own: lines of several would mix. */
int main(int argc, char **argv) {
    mpt_config config = mpt_config_default();
    mpt_parallel_config pc = mpt_parallel_config_default();
    char path[64];
    config.threads = 1;
    pc.deadline = 20, pc.grace = 1;
    ctx = mpt_create(&config);
    if (mpt_parallel_begin(ctx, &pc) != MPT_OK) return 2;
    rank = mpt_parallel_rank(ctx), world = mpt_parallel_world(ctx);
    snprintf(path, sizeof path, "rank-%d.log", rank);
    if (!freopen(path, "w", stdout)) return 2;
    const int failed = test_run(test_table, sizeof test_table / sizeof *test_table, argc, argv);
    fflush(stdout);
    mpt_parallel_end(ctx);
    mpt_destroy(ctx);
    return failed;
}
