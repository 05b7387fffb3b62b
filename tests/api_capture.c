/* api_capture.c: a captured step leaves the bits of the step itself: through dropout, overflows,
   schedules, short batches, evaluation in between; and says what it cannot repeat. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

static char log_text[8192];

static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level;
    size_t length = strlen(log_text);
    snprintf(log_text + length, sizeof log_text - length, "%s\n", message);
}

static mpt_context *make_context(bool debug) {
    mpt_config config = mpt_config_default();
    config.seed = 3;
    config.debug = debug;
    config.log.write = keep_log;
    log_text[0] = '\0';
    return mpt_create(&config);
}

static void check_ok(mpt_context *context) {
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
}

/* 43 samples in batches of 8: the last one of an epoch is short. */
static void make_short(training *t, mpt_context *context, mpt_dtype precision) {
    make_training(t, context, precision, 0);
    mpt_loader_destroy(t->loader);
    mpt_dataset_destroy(t->data);
    t->data = make_data(context, 43);
    t->loader = make_loader_of(context, t->data, 8, 0, MPT_F32);
    mpt_warmup(t->optimizer, 0.1, 20, 400, 0, MPT_PER_STEP);
}

static int by_hand; /* calls of the step function */

static mpt_status counted_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    by_hand++;
    return step_of(context, user, x, y);
}

static uint64_t stats_hash(const training *t, uint64_t hash) {
    mpt_synchronize(t->context);
    mpt_scaler_stats stats = mpt_scaler_statistics(t->scaler);
    hash = mix_hash(hash, (uint64_t)stats.steps);
    hash = mix_hash(hash, (uint64_t)stats.skipped);
    hash = mix_hash(hash, (uint64_t)mpt_step_number(t->context));
    return mix_hash(hash, training_hash(t));
}

/* A forward pass without gradients, which wants the newest weights. */
static uint64_t evaluate(const training *t, uint64_t hash) {
    mpt_batch b;
    if (!next_batch(t->loader, &b)) return 0;
    mpt_scope_begin(t->context);
    mpt_inference_begin(t->context);
    mpt_autocast_begin(t->context, t->precision);
    hash = mix_tensor(hash, mpt_forward(t->net, b.x));
    mpt_autocast_end(t->context);
    mpt_inference_end(t->context);
    mpt_scope_end(t->context);
    return hash;
}

/* `steps` steps, captured or not, with an overflow on the way and evaluations in between. */
static uint64_t train(mpt_dtype precision, bool capture, bool debug, int steps, int64_t *count) {
    training t;
    mpt_context *context = make_context(debug);
    uint64_t hash = 1;
    make_short(&t, context, precision);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    by_hand = 0;
    for (int i = 0; i < steps; i++) {
        mpt_batch b;
        if (i == steps / 2) mpt_set_scale(t.scaler, 1e30); /* the next steps overflow */
        if (i % 50 == 49) hash = evaluate(&t, hash);
        if (!next_batch(t.loader, &b)) break;
        if (capture)
            mpt_captured_step(captured, b.x, b.y);
        else
            counted_step(context, &t, b.x, b.y);
    }
    check_ok(context);
    hash = stats_hash(&t, hash);
    *count = mpt_captured_count(captured);
    mpt_captured_destroy(captured);
    check_ok(context);
    mpt_destroy(context);
    return hash;
}

TEST(captured_steps_leave_the_same_bits) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    const int steps = getenv("MPTRAIN_STEPS") ? 100 : 330; /* asked to be short */
    for (int i = 0; i < 3; i++) {
        int64_t captured, none;
        uint64_t hash = train(precisions[i], true, false, steps, &captured);
        CHECK_EQ_INT(by_hand + captured, steps);
        CHECK(captured > steps * 3 / 4);
        CHECK(hash == train(precisions[i], false, false, steps, &none));
        CHECK_EQ_INT(none, 0);
    }
}

TEST(debug_compares_and_leaves_the_same_bits) {
    int64_t captured, none;
    uint64_t hash = train(MPT_F16, true, true, 100, &captured);
    CHECK(captured > 70 && captured < 82); /* 2 by hand, 16 short, 6 compared */
    CHECK(hash == train(MPT_F16, false, true, 100, &none));
}

TEST(steady_steps_allocate_nothing) {
    training t;
    mpt_context *context = make_context(false);
    mpt_batch b;
    make_training(&t, context, MPT_F16, 0);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    for (int i = 0; i < 20; i++)
        if (next_batch(t.loader, &b)) mpt_captured_step(captured, b.x, b.y);
    int64_t before = mpt_memory(context).allocations;
    for (int i = 0; i < 200; i++)
        if (next_batch(t.loader, &b)) mpt_captured_step(captured, b.x, b.y);
    CHECK_EQ_INT(mpt_memory(context).allocations, before);
    check_ok(context);
    mpt_destroy(context); /* also ends what was captured */
}

/* ==== What cannot be captured ==== */

static mpt_status waiting_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)y;
    mpt_step_begin(context);
    mpt_item(mpt_sum(x, MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

static mpt_status writing_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    static const float numbers[3] = {1, 2, 3};
    (void)y;
    mpt_step_begin(context);
    mpt_metric_push(context, "sum",
                    mpt_sum(mpt_mul(x, mpt_from(context, MPT_F32, MPT_SHAPE(3), numbers)),
                            MPT_ALL_DIMS, false));
    ++*(int *)user;
    return mpt_step_end(context);
}

/* Does another thing from its 20th call on. */
static mpt_status fickle_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    int *calls = (int *)user;
    (void)y;
    mpt_step_begin(context);
    mpt_tensor z = ++*calls < 3 ? mpt_tanh(x) : mpt_sigmoid(x);
    mpt_metric_push(context, "sum", mpt_sum(z, MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

TEST(waiting_is_an_error) {
    mpt_context *context = make_context(false);
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(3)), none;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, waiting_step, NULL);
    CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_OK);
    CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(context), "a captured step cannot wait for values");
    mpt_clear_error(context);
    CHECK(mpt_item(mpt_sum(x, MPT_ALL_DIMS, false)) == 3);
    mpt_destroy(context);
}

static mpt_status suicidal_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    mpt_captured *captured = (mpt_captured *)user;
    (void)x, (void)y;
    mpt_step_begin(context);
    if (mpt_step_number(context) == 2) mpt_captured_destroy(*captured);
    return mpt_step_end(context);
}

TEST(a_step_cannot_destroy_itself) {
    mpt_context *context = make_context(false);
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, suicidal_step, &captured);
    CHECK_EQ_INT(mpt_captured_step(captured, none, none), MPT_OK);
    CHECK_EQ_INT(mpt_captured_step(captured, none, none), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(context), "a step is being recorded");
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_captured_destroy(captured), MPT_OK);
    mpt_destroy(context);
}

TEST(writing_from_the_host_stays_by_hand) {
    mpt_context *context = make_context(false);
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(3)), none;
    int calls = 0;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, writing_step, &calls);
    for (int i = 0; i < 5; i++) CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_OK);
    CHECK_EQ_INT(calls, 5);
    CHECK_EQ_INT(mpt_captured_count(captured), 0);
    CHECK_CONTAINS(log_text, "it writes to tensors from the host");
    CHECK(mpt_metric_mean(context, "sum", true) == 6);
    mpt_destroy(context);
}

/* `steps` draws, each within a step of its own; 0: one without a step. */
typedef struct several {
    mpt_tensor sum;
    int steps;
} several;

static mpt_status several_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const several *s = (const several *)user;
    (void)y;
    for (int i = 0; i < (s->steps ? s->steps : 1); i++) {
        if (s->steps) mpt_step_begin(context);
        mpt_tensor kept = mpt_dropout(x, 0.5);
        mpt_add_(s->sum, kept);
        if (!s->steps) mpt_release(kept);
        if (s->steps) mpt_step_end(context);
    }
    return MPT_OK;
}

/* One repetition is one step: its number is a part of what dropout draws from. */
TEST(functions_of_no_step_or_two_stay_by_hand) {
    for (int steps = 0; steps < 3; steps++) {
        float sums[2][16];
        for (int capture = 0; capture < 2; capture++) {
            mpt_context *context = make_context(false);
            mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(16)), none;
            several s = {mpt_zeros(context, MPT_F32, MPT_SHAPE(16)), steps};
            memset(&none, 0, sizeof none);
            mpt_captured captured = mpt_capture(context, several_step, &s);
            for (int i = 0; i < 8; i++)
                if (capture)
                    mpt_captured_step(captured, x, none);
                else
                    several_step(context, &s, x, none);
            check_ok(context);
            if (capture) CHECK_EQ_INT(mpt_captured_count(captured), steps == 1 ? 6 : 0);
            if (capture && steps != 1) CHECK_CONTAINS(log_text, "is not one mpt_step_begin");
            mpt_read(s.sum, sums[capture], sizeof sums[capture]);
            mpt_destroy(context);
        }
        CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
    }
}

TEST(debug_names_what_changed) {
    mpt_context *context = make_context(true);
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(3)), none;
    int calls = 0;
    mpt_status status = MPT_OK;
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, fickle_step, &calls);
    for (int i = 0; i < 16 && status == MPT_OK; i++) status = mpt_captured_step(captured, x, none);
    CHECK_EQ_INT(status, MPT_ERROR_STATE);
    CHECK_EQ_INT(calls, 3);
    CHECK_CONTAINS(mpt_error(context), "launch 1 of 3 was kernel unary");
    mpt_clear_error(context);
    mpt_destroy(context);
}

typedef struct fickle {
    int calls, way;
} fickle;

/* In one way or another something else from its third call on, which is the first compared. */
static mpt_status ways_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    fickle *f = (fickle *)user;
    bool other = ++f->calls >= 3;
    mpt_tensor z = x;
    (void)y;
    mpt_step_begin(context);
    mpt_inference_begin(context);
    switch (f->way) {
    case 0: z = other ? mpt_tanh(x) : mpt_sigmoid(x); break;
    case 1: z = mpt_mul_scalar(x, other ? 2 : 3); break;
    case 2: z = mpt_sum(x, other ? 0 : 1, false); break;
    case 3: z = mpt_mse_loss(x, mpt_neg(x), other ? MPT_SUM : MPT_MEAN); break;
    case 4: z = other ? mpt_relu(mpt_relu(x)) : mpt_relu(x); break;
    case 5: z = other ? mpt_relu(x) : mpt_relu(mpt_relu(x)); break;
    case 6: z = mpt_relu(mpt_slice(x, 0, other, 3 + other, 1)); break;
    case 7: z = mpt_cast(mpt_cast(x, other ? MPT_F16 : MPT_BF16), MPT_F32); break;
    case 8: z = mpt_relu(mpt_slice(x, 0, 0, 3 + other, 1)); break;
    case 9: z = mpt_relu(other ? mpt_reshape(x, MPT_SHAPE(4, 2, 2)) : x); break;
    case 10: z = mpt_cumsum(x, other); break;
    default: z = other ? mpt_add(x, x) : mpt_relu(x); break;
    }
    mpt_inference_end(context);
    mpt_metric_push(context, "mean", mpt_mean(mpt_mul_scalar(z, 1), MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

TEST(debug_finds_every_difference) {
    for (int way = 0; way <= 11; way++) {
        mpt_context *context = make_context(true);
        mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(4, 4)), none;
        fickle f = {0, way};
        mpt_status status = MPT_OK;
        memset(&none, 0, sizeof none);
        mpt_captured captured = mpt_capture(context, ways_step, &f);
        for (int i = 0; i < 16 && status == MPT_OK; i++)
            status = mpt_captured_step(captured, x, none);
        CHECK_EQ_INT(status, MPT_ERROR_STATE);
        CHECK_EQ_INT(f.calls, 3);
        CHECK_CONTAINS(mpt_error(context), "is no longer what its function does: launch ");
        if (way == 4) CHECK_CONTAINS(mpt_error(context), "is now unary");
        if (test_failures) printf("\n  way %d", way);
        mpt_clear_error(context);
        mpt_destroy(context);
    }
}

static mpt_status norm_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user;
    mpt_step_begin(context);
    mpt_tensor z = mpt_layer_norm(x, 1, y, y, 1e-5);
    mpt_metric_push(context, "mean", mpt_mean(z, MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

/* An operand that a launch does not have may show what another launch left there. */
TEST(debug_looks_at_what_there_is) {
    mpt_context *context = make_context(true);
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(4, 4)), none, sum;
    mpt_tensor other = mpt_ones(context, MPT_F32, MPT_SHAPE(5, 7));
    memset(&none, 0, sizeof none);
    mpt_captured captured = mpt_capture(context, norm_step, NULL);
    for (int i = 0; i < 40; i++) {
        mpt_scope_begin(context);
        if (i > 3) mpt_add_layer_norm(other, other, 1, none, none, 1e-5, &sum);
        mpt_scope_end(context);
        mpt_captured_step(captured, x, none);
    }
    check_ok(context);
    CHECK(mpt_captured_count(captured) >= 34);
    mpt_destroy(context);
}

TEST(destroyed_members_are_named) {
    training t;
    mpt_context *context = make_context(false);
    mpt_batch b;
    make_training(&t, context, MPT_F32, 0);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    for (int i = 0; i < 4; i++)
        if (next_batch(t.loader, &b)) mpt_captured_step(captured, b.x, b.y);
    check_ok(context);
    mpt_optimizer_destroy(t.optimizer);
    CHECK(next_batch(t.loader, &b));
    CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(context), "the optimizer of the captured step was destroyed");
    mpt_destroy(context);
}

/* ==== Gradients that somebody clears between two steps ==== */

/* Forward and backward alone: gradients add up until somebody updates. */
static mpt_status adding_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const training *t = (const training *)user;
    by_hand++;
    mpt_step_begin(context);
    mpt_backward(mpt_nll_loss(mpt_forward(t->net, x), y, NULL));
    return mpt_step_end(context);
}

/* An update after every third batch; an error in between drops what has come so far. */
static uint64_t accumulate(bool capture, int64_t *count) {
    training t;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F32, 0);
    mpt_captured captured = mpt_capture(context, adding_step, &t);
    by_hand = 0;
    for (int i = 0; i < 60; i++) {
        mpt_batch b;
        if (!next_batch(t.loader, &b)) break;
        if (capture)
            mpt_captured_step(captured, b.x, b.y);
        else
            adding_step(context, &t, b.x, b.y);
        if (i % 20 == 10) {
            CHECK_EQ_INT(mpt_read(b.x, NULL, 1), MPT_ERROR_ARGUMENT);
            mpt_clear_error(context);
        }
        if (i % 3 == 2) {
            CHECK_EQ_INT(mpt_step(t.optimizer), MPT_OK);
            mpt_zero_grad(t.optimizer);
        }
    }
    check_ok(context);
    *count = mpt_captured_count(captured);
    uint64_t hash = training_hash(&t);
    mpt_destroy(context);
    return hash;
}

TEST(gradients_add_up_over_captured_steps) {
    int64_t captured, none;
    uint64_t hash = accumulate(true, &captured);
    CHECK_EQ_INT(by_hand + captured, 60);
    CHECK(captured >= 30); /* all but the first after an update or an error */
    CHECK(hash == accumulate(false, &none));
}

/* The optimizer's update is outside, and so is the clearing, each time. */
TEST(captured_steps_leave_gradients_for_others) {
    uint64_t hash[2];
    for (int capture = 0; capture < 2; capture++) {
        training t;
        mpt_batch b;
        mpt_context *context = make_context(false);
        make_training(&t, context, MPT_F32, 0);
        mpt_captured captured = mpt_capture(context, adding_step, &t);
        by_hand = 0;
        for (int i = 0; i < 20 && next_batch(t.loader, &b); i++) {
            mpt_zero_grad(t.optimizer);
            if (capture)
                mpt_captured_step(captured, b.x, b.y);
            else
                adding_step(context, &t, b.x, b.y);
            CHECK(mpt_has_grad(mpt_parameter_at(t.net, 0, NULL, 0)));
            CHECK_EQ_INT(mpt_step(t.optimizer), MPT_OK);
        }
        CHECK_EQ_INT(by_hand, capture ? 2 : 20);
        check_ok(context);
        hash[capture] = training_hash(&t);
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
}

/* Another net's gradients are nobody's business. */
TEST(gradients_of_others_stay) {
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    make_training(&t, context, MPT_F16, 0);
    mpt_module other = mpt_nn_linear(context, FEATURES, CLASSES);
    mpt_tensor weight = mpt_parameter_at(other, 0, NULL, 0);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    by_hand = 0;
    for (int i = 0; i < 20 && next_batch(t.loader, &b); i++) {
        CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_OK);
        CHECK(mpt_has_grad(weight) == (i > 5 && i <= 12));
        if (i == 5) mpt_backward(mpt_sum(mpt_forward(other, b.x), MPT_ALL_DIMS, false));
        if (i == 12) mpt_clear_grad(weight);
    }
    CHECK_EQ_INT(by_hand, 2);
    check_ok(context);
    mpt_destroy(context);
}

/* Short batches, which run by hand, only reach the last layer: the rows of the optimizer change,
   and the captured step with them. */
static mpt_status parts_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const training *t = (const training *)user;
    bool all = mpt_get_shape(x).dim[0] == 8;
    mpt_tensor twice[2];
    twice[0] = twice[1] = x;
    by_hand++;
    mpt_step_begin(context);
    mpt_zero_grad(t->optimizer);
    mpt_tensor hidden =
        all ? mpt_forward(mpt_child(t->net, "0"), x) : mpt_cat(twice, 2, 1);
    hidden = mpt_forward(mpt_child(t->net, "3"), hidden);
    mpt_backward(mpt_nll_loss(mpt_log_softmax(hidden, -1), y, NULL));
    mpt_step(t->optimizer);
    return mpt_step_end(context);
}

TEST(other_rows_of_an_optimizer_are_recorded_anew) {
    uint64_t hash[2];
    for (int capture = 0; capture < 2; capture++) {
        training t;
        mpt_batch b;
        mpt_context *context = make_context(false);
        make_short(&t, context, MPT_F32);
        mpt_captured captured = mpt_capture(context, parts_step, &t);
        by_hand = 0;
        for (int i = 0; i < 48 && next_batch(t.loader, &b); i++) {
            if (capture)
                mpt_captured_step(captured, b.x, b.y);
            else
                parts_step(context, &t, b.x, b.y);
        }
        check_ok(context);
        if (capture) CHECK_EQ_INT(by_hand + mpt_captured_count(captured), 48);
        if (capture) CHECK(mpt_captured_count(captured) >= 20);
        hash[capture] = training_hash(&t);
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
}

/* ==== What is drawn ==== */

typedef struct drawing {
    mpt_tensor weight; /* [4, 4] */
    mpt_optimizer optimizer;
    int way;
} drawing;

/* Noise of one kind or another on its way. */
static mpt_status drawing_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const drawing *d = (const drawing *)user;
    mpt_attention_config attention = mpt_attention_config_default();
    (void)y;
    attention.dropout = 0.5;
    mpt_step_begin(context);
    mpt_zero_grad(d->optimizer);
    mpt_tensor z = mpt_matmul(x, d->weight), q;
    switch (d->way) {
    case 0: z = mpt_dropout(z, 0.5); break;
    case 1:
        q = mpt_reshape(z, MPT_SHAPE(1, 1, 8, 4));
        z = mpt_scaled_dot_product_attention(q, q, q, &attention);
        break;
    case 2:
        z = mpt_mul(z, mpt_randn(context, MPT_F32, MPT_SHAPE(8, 4)));
        z = mpt_add(z, mpt_randn_seeded(context, MPT_F32, MPT_SHAPE(4), 7));
        break;
    case 3:
        z = mpt_mul(z, mpt_rand(context, MPT_F32, MPT_SHAPE(8, 4)));
        z = mpt_dropout(mpt_add(z, mpt_rand(context, MPT_F32, MPT_SHAPE(4))), 0.25);
        break;
    case 4: mpt_relu_(z); break; /* in place: the step's own memory is its own */
    case 5: z = mpt_mul(z, mpt_arange(context, MPT_F32, 4)); break;
    case 6: z = mpt_index_select(z, 1, mpt_arange(context, MPT_I64, 4)); break;
    default: z = mpt_mul(z, z); break;
    }
    mpt_backward(mpt_sum(mpt_mul(z, z), MPT_ALL_DIMS, false));
    mpt_step(d->optimizer);
    return mpt_step_end(context);
}

TEST(captured_steps_draw_anew) {
    for (int way = 0; way < 8; way++) {
        uint64_t hash[3];
        for (int run = 0; run < 3; run++) { /* by hand, captured, compared in between */
            mpt_context *context = make_context(run == 2);
            mpt_module net = mpt_nn_linear_no_bias(context, 4, 4);
            mpt_sgd_config config = mpt_sgd_config_default();
            config.lr = 1e-3;
            drawing d;
            mpt_tensor none;
            memset(&none, 0, sizeof none);
            d.way = way, d.optimizer = mpt_sgd(net, &config);
            d.weight = mpt_parameter_at(net, 0, NULL, 0);
            mpt_captured captured = mpt_capture(context, drawing_step, &d);
            int64_t allocations = 0;
            for (int i = 0; i < 40; i++) {
                if (i == 20) allocations = mpt_memory(context).allocations;
                mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(8, 4));
                if (run)
                    mpt_captured_step(captured, x, none);
                else
                    drawing_step(context, &d, x, none);
                mpt_release(x);
            }
            check_ok(context);
            if (run) CHECK(mpt_captured_count(captured) >= 36);
            if (run < 2) CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
            hash[run] = mpt_module_hash(net);
            mpt_destroy(context);
        }
        CHECK(hash[0] == hash[1]);
        CHECK(hash[0] == hash[2]);
        if (test_failures) printf("\n  way %d", way);
    }
}

/* 40 steps, before each of which something may be changed. */
static uint64_t change_between(mpt_dtype precision, void (*change)(const training *t, int step),
                               bool capture, int64_t *count) {
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    make_training(&t, context, precision, 0);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    for (int i = 0; i < 40 && next_batch(t.loader, &b); i++) {
        change(&t, i);
        if (capture)
            mpt_captured_step(captured, b.x, b.y);
        else
            counted_step(context, &t, b.x, b.y);
        if (i % 10 == 7) evaluate(&t, 0);
    }
    check_ok(context);
    *count = mpt_captured_count(captured);
    uint64_t hash = training_hash(&t);
    mpt_destroy(context);
    return hash;
}

/* How many of them ran without their function, and left the bits that they leave with it. */
static int64_t repeated(mpt_dtype precision, void (*change)(const training *t, int step)) {
    int64_t captured, none;
    uint64_t hash = change_between(precision, change, true, &captured);
    CHECK(hash == change_between(precision, change, false, &none));
    return captured;
}

static void change_options(const training *t, int step) {
    if (step % 10 == 5) mpt_set_option(t->optimizer, 0, "weight_decay", 0.1 * step);
    if (step % 10 == 8) mpt_set_lr(t->optimizer, -1, 1e-3 * step);
}

TEST(other_options_are_recorded_anew) {
    CHECK_EQ_INT(repeated(MPT_F32, change_options), 30); /* two of ten by hand */
}

/* A schedule that ends, another one that begins; one per epoch reads no table. */
static void change_schedules(const training *t, int step) {
    static mpt_schedule schedule;
    if (step == 6) schedule = mpt_warmup(t->optimizer, 0.1, 5, 30, 0, MPT_PER_STEP);
    if (step == 20) mpt_schedule_destroy(schedule);
    if (step == 22) mpt_set_lr(t->optimizer, -1, 3e-3);
    if (step == 27) schedule = mpt_cosine_annealing(t->optimizer, 40, 0, MPT_PER_EPOCH);
    if (step > 27) mpt_schedule_step(schedule);
}

TEST(other_schedules_are_recorded_anew) {
    CHECK(repeated(MPT_F32, change_schedules) >= 30);
}

/* Factors of the scaler that the launches have in them. */
static void change_scaler(const training *t, int step) {
    if (step % 12 != 7) return;
    mpt_scaler_state state = mpt_scaler_get_state(t->scaler);
    state.growth_interval = 2 + step / 12, state.growth_factor = 4;
    mpt_scaler_set_state(t->scaler, &state);
}

TEST(other_factors_are_recorded_anew) {
    CHECK(repeated(MPT_F32, change_scaler) >= 30);
}

/* Layers that are frozen, or out of training, for a while. */
static void change_modes(const training *t, int step) {
    if (step % 10 == 4)
        mpt_requires_grad(mpt_parameter(t->net, "0.weight"), step != 4 && step != 24);
    if (step == 19) mpt_eval(mpt_child(t->net, "2"));
    if (step == 29) mpt_train(t->net);
}

TEST(other_modes_are_recorded_anew) {
    CHECK(repeated(MPT_F32, change_modes) >= 20);
}

/* A layer that is kept in fp32, for a while. */
static void change_policy(const training *t, int step) {
    if (step == 9) mpt_set_dtype_policy(mpt_child(t->net, "3"), MPT_F32);
    if (step == 25) mpt_set_dtype_policy(mpt_child(t->net, "3"), MPT_DTYPE_NONE);
}

TEST(other_dtypes_are_recorded_anew) {
    CHECK(repeated(MPT_F16, change_policy) >= 30);
}

/* Weights written between steps, whose half forms the updates would have left up to date. */
static void change_weights(const training *t, int step) {
    mpt_tensor weight = mpt_parameter(t->net, "0.weight"), random;
    if (step % 10 != 6) return;
    mpt_scope_begin(t->context);
    mpt_no_grad_begin(t->context);
    random = mpt_mul_scalar(mpt_randn(t->context, MPT_F32, mpt_get_shape(weight)), 0.1);
    mpt_copy_(weight, random);
    mpt_no_grad_end(t->context);
    mpt_scope_end(t->context);
}

TEST(other_weights_have_other_forms) {
    CHECK_EQ_INT(repeated(MPT_BF16, change_weights), 38);
    CHECK_EQ_INT(repeated(MPT_F16, change_weights), 38);
}

/* Launches of the last of 10 steps. */
static int64_t launches_of(mpt_dtype precision, bool capture) {
    training t;
    mpt_batch b;
    mpt_context *context = make_context(false);
    int64_t before = 0;
    make_training(&t, context, precision, 0);
    mpt_captured captured = mpt_capture(context, counted_step, &t);
    for (int i = 0; i < 10 && next_batch(t.loader, &b); i++) {
        before = mpt_get_counters(context).launches;
        if (capture)
            mpt_captured_step(captured, b.x, b.y);
        else
            counted_step(context, &t, b.x, b.y);
    }
    check_ok(context);
    const int64_t launches = mpt_get_counters(context).launches - before;
    mpt_destroy(context);
    return launches;
}

/* No weight is rounded again that an update has left rounded. */
TEST(repeated_steps_launch_what_steps_do) {
    const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    NEEDS_PROMPT_DEVICE; /* elsewhere a graph is one launch */
    for (int i = 0; i < 3; i++) /* and copies of both inputs */
        CHECK_EQ_INT(launches_of(precisions[i], true), launches_of(precisions[i], false) + 2);
}

static mpt_status picture_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const training *t = (const training *)user;
    mpt_step_begin(context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_cross_entropy(mpt_flatten(mpt_forward(t->net, x), 1, -1), y, NULL));
    mpt_step(t->optimizer);
    return mpt_step_end(context);
}

/* Pictures lie as they come: otherwise each convolution would move them, and round otherwise. */
TEST(inputs_lie_as_they_come) {
    uint64_t hash[2];
    int64_t launches[2];
    for (int run = 0; run < 2; run++) {
        training t;
        memset(&t, 0, sizeof t);
        mpt_context *context = make_context(false);
        mpt_conv_config padded = mpt_conv_config_default();
        padded.padding[0] = padded.padding[1] = 1;
        t.net = mpt_sequential(context, mpt_nn_conv2d(context, 8, 16, 3, 3, &padded),
                               mpt_nn_batch_norm2d(context, 16, NULL), mpt_nn_relu(context),
                               mpt_nn_conv2d(context, 16, 1, 1, 1, NULL), MPT_END);
        t.optimizer = mpt_adamw(t.net, NULL);
        mpt_tensor x =
            mpt_to_channels_last(mpt_randn(context, MPT_F32, MPT_SHAPE(6, 8, 5, 7)));
        mpt_tensor y = mpt_zeros(context, MPT_I64, MPT_SHAPE(6));
        mpt_captured captured = mpt_capture(context, picture_step, &t);
        for (int i = 0; i < 6; i++) {
            launches[run] = mpt_get_counters(context).launches;
            if (run)
                mpt_captured_step(captured, x, y);
            else
                picture_step(context, &t, x, y);
        }
        launches[run] = mpt_get_counters(context).launches - launches[run];
        check_ok(context);
        hash[run] = mpt_module_hash(t.net);
        mpt_destroy(context);
    }
    CHECK(hash[0] == hash[1]);
    if (mpt_device_count(MPT_DEVICE_CUDA) == 0) /* there a graph is one launch */
        CHECK_EQ_INT(launches[1], launches[0] + 2);
}

/* The mean of what a net without an optimizer gives. */
static mpt_status output_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    (void)y;
    mpt_step_begin(context);
    mpt_autocast_begin(context, MPT_BF16);
    mpt_tensor out = mpt_forward(*(mpt_module *)user, x);
    mpt_metric_push(context, "out", mpt_mean(out, MPT_ALL_DIMS, false));
    mpt_autocast_end(context);
    return mpt_step_end(context);
}

TEST(parameters_elsewhere_are_recorded_anew) {
    mpt_context *context = make_context(false);
    mpt_module net = mpt_nn_linear(context, 4, 2);
    mpt_captured captured = mpt_capture(context, output_step, &net);
    mpt_tensor none = {context, 0, 0}, x = mpt_zeros(context, MPT_F32, MPT_SHAPE(3, 4));
    for (int step = 0; step < 8; step++) {
        if (step == 4) mpt_half(net, MPT_BF16);
        mpt_set_init(net, "bias", mpt_init_make(MPT_INIT_CONSTANT, step, 0));
        mpt_captured_step(captured, x, none);
        CHECK(mpt_metric_mean(context, "out", true) == step);
        mpt_metric_reset(context, "out");
    }
    CHECK(mpt_captured_count(captured) >= 4);
    check_ok(context);
    mpt_destroy(context);
}

typedef struct leaf_user {
    mpt_tensor leaf;
    bool clears;
    int calls;
} leaf_user;

/* The gradient of sum(leaf * x) is x. */
static mpt_status leaf_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    leaf_user *u = (leaf_user *)user;
    (void)y;
    u->calls++;
    mpt_step_begin(context);
    if (u->clears) mpt_clear_grad(u->leaf);
    mpt_backward(mpt_sum(mpt_mul(u->leaf, x), MPT_ALL_DIMS, false));
    return mpt_step_end(context);
}

TEST(gradients_of_tensors_are_as_by_hand) {
    for (int way = 0; way < 3; way++) { /* cleared inside, sometimes outside, always outside */
        static const float ones[3] = {1, 1, 1};
        leaf_user u;
        mpt_tensor none;
        mpt_context *context = make_context(false);
        memset(&none, 0, sizeof none);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(3), ones);
        u.leaf = mpt_zeros(context, MPT_F32, MPT_SHAPE(3));
        u.clears = way == 0, u.calls = 0;
        mpt_requires_grad(u.leaf, true);
        mpt_captured captured = mpt_capture(context, leaf_step, &u);
        for (int i = 0, since = 0; i < 12; i++) {
            bool clear = way == 2 || (way == 1 && i % 4 == 3);
            float grad[3] = {0, 0, 0};
            CHECK_EQ_INT(mpt_captured_step(captured, x, none), MPT_OK);
            since = way == 0 ? 1 : since + 1;
            CHECK_EQ_INT(mpt_read(mpt_grad(u.leaf), grad, sizeof grad), MPT_OK);
            CHECK(grad[0] == (float)since);
            if (clear) mpt_clear_grad(u.leaf), since = 0;
        }
        CHECK_EQ_INT(u.calls, way == 0 ? 2 : way == 1 ? 6 : 12);
        if (way == 2) CHECK_CONTAINS(log_text, "does not leave the gradients of tensors");
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Whatever allocation fails while a step is recorded: an error, and it is captured later on. */
TEST(without_memory_it_is_recorded_later) {
    for (int64_t n = 1, refused = 1; refused; n++) {
        training t;
        arena a;
        mpt_batch b;
        mpt_config config = mpt_config_default();
        config.threads = 1;
        arena_use(&a, &config);
        mpt_context *context = mpt_create(&config);
        REQUIRE(context != NULL);
        make_training(&t, context, MPT_F16, 0);
        mpt_captured captured = mpt_capture(context, counted_step, &t);
        CHECK(next_batch(t.loader, &b));
        CHECK_EQ_INT(mpt_captured_step(captured, b.x, b.y), MPT_OK);
        CHECK(next_batch(t.loader, &b));
        a.fail_at = a.calls + n, a.failures = 1000;
        mpt_captured_step(captured, b.x, b.y);
        a.fail_at = 0;
        refused = a.refused;
        if (refused) CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
        mpt_clear_error(context);
        for (int i = 0; i < 4; i++)
            if (next_batch(t.loader, &b)) mpt_captured_step(captured, b.x, b.y);
        check_ok(context);
        CHECK(mpt_captured_count(captured) >= 3);
        mpt_destroy(context);
        CHECK_EQ_INT(a.live, 0);
        CHECK_EQ_INT(a.torn, 0);
    }
}

/* ---- memory ---- */

/* The peak of steps of a deep net, by hand or captured. */
static int64_t peak_of_steps(bool captured) {
    training t;
    mpt_context *c = make_context(false);
    memset(&t, 0, sizeof t);
    t.context = c;
    mpt_module layers[33];
    for (int i = 0; i < 32; i++) layers[i] = i % 2 ? mpt_nn_gelu(c) : mpt_nn_linear(c, 64, 64);
    layers[32] = mpt_nn_log_softmax(c, -1);
    t.net = mpt_sequential_array(c, layers, 33);
    t.optimizer = mpt_adamw(t.net, NULL);
    t.scaler = mpt_grad_scaler(c, NULL);
    t.precision = MPT_F16;
    mpt_captured step = mpt_capture(c, step_of, &t);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(128, 64));
    mpt_tensor y = mpt_zeros(c, MPT_I64, MPT_SHAPE(128));
    for (int i = 0; i < 6; i++) {
        if (i == 3) mpt_memory_reset_peak(c);
        if (captured)
            mpt_captured_step(step, x, y);
        else
            step_of(c, &t, x, y);
    }
    const int64_t peak = mpt_memory(c).peak[MPT_MEMORY_ACTIVATION];
    check_ok(c);
    mpt_destroy(c);
    return peak;
}

/* What a step makes and drops lies in one piece of memory, where one thing takes the place of
   another, as in the pool: beside it are only the copies of the inputs, and of weights in half. */
TEST(repeated_steps_take_what_one_takes) {
    const int64_t inputs = 128 * 64 * 4 + 128 * 8, forms = 16 * 64 * 65 * 2;
    const int64_t eager = peak_of_steps(false), captured = peak_of_steps(true);
    printf("%lld by hand, %lld captured ", (long long)eager, (long long)captured);
    CHECK(captured <= eager + eager / 20 + inputs + forms);
}

/* Refused memory, wherever the first replay asks for it, is an error; the next replay is whole. */
TEST(replays_go_on_where_memory_was_refused) {
    float want[256], got[256];
    int64_t failing = 0, refused;
    for (int failures = 1; failures < 3; failures++)
        for (failing = refused = 1; refused; failing++) {
            arena memory;
            mpt_config config = mpt_config_default();
            config.device = MPT_DEVICE_CPU; /* whose memory the callback gives */
            arena_use(&memory, &config);
            mpt_context *c = mpt_create(&config);
            mpt_tensor x = mpt_rand(c, MPT_F32, MPT_SHAPE(256)), out = mpt_neg(x);
            CHECK_EQ_INT(mpt_record_begin(c), MPT_OK);
            mpt_scope_begin(c);
            mpt_copy_(out, mpt_mul(mpt_gelu(mpt_softmax(x, 0)), mpt_cumsum(mpt_exp(x), 0)));
            mpt_scope_end(c);
            mpt_recording recording = mpt_record_end(c);
            mpt_read_f32(out, want, 256);
            mpt_fill_(out, 7);
            memory.fail_at = memory.calls + failing, memory.failures = failures;
            mpt_status status = mpt_replay(recording);
            refused = memory.refused;
            CHECK(status == MPT_OK || (refused && status == MPT_ERROR_MEMORY));
            memory.fail_at = 0;
            mpt_clear_error(c);
            CHECK_EQ_INT(mpt_replay(recording), MPT_OK);
            mpt_read_f32(out, got, 256);
            CHECK_EQ_BITS(got, want, sizeof want);
            check_ok(c);
            mpt_destroy(c);
            CHECK_EQ_INT(memory.live, 0);
        }
    CHECK(failing > 3); /* there was something to refuse */
}

TEST_TABLE = {
    T(captured_steps_leave_the_same_bits),  T(debug_compares_and_leaves_the_same_bits),
    T(steady_steps_allocate_nothing),       T(waiting_is_an_error),
    T(writing_from_the_host_stays_by_hand), T(debug_names_what_changed),
    T(functions_of_no_step_or_two_stay_by_hand), T(debug_looks_at_what_there_is),
    T(debug_finds_every_difference),
    T(destroyed_members_are_named),         T(a_step_cannot_destroy_itself),
    T(without_memory_it_is_recorded_later), T(gradients_add_up_over_captured_steps),
    T(captured_steps_leave_gradients_for_others),
    T(other_rows_of_an_optimizer_are_recorded_anew),
    T(captured_steps_draw_anew),            T(other_options_are_recorded_anew),
    T(other_schedules_are_recorded_anew),   T(other_factors_are_recorded_anew),
    T(other_modes_are_recorded_anew),       T(other_dtypes_are_recorded_anew),
    T(other_weights_have_other_forms),      T(inputs_lie_as_they_come),
    T(repeated_steps_launch_what_steps_do),
    T(gradients_of_others_stay),            T(gradients_of_tensors_are_as_by_hand),
    T(parameters_elsewhere_are_recorded_anew),
    T(repeated_steps_take_what_one_takes),
    T(replays_go_on_where_memory_was_refused),
};

TEST_MAIN
