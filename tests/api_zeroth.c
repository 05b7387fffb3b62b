/* api_zeroth.c: mpt_zeroth_step learns by forwards alone, in the memory of inference, and leaves
 * weights as they were where it cannot. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

#include "harness.h"

enum { ROWS = 64, INPUTS = 6, CLASSES = 3, WIDE = 256 };

typedef enum fault { NO_FAULT, NOT_FINITE, MISTAKE, LATE } fault;

/* What a loss is of. */
typedef struct problem {
    mpt_context *c;
    mpt_module net;
    mpt_tensor x, y;
    fault fault;
    int calls;
} problem;

static problem make_problem(int threads, int hidden) {
    problem p;
    memset(&p, 0, sizeof p);
    mpt_config config = mpt_config_default();
    config.threads = threads;
    p.c = mpt_create(&config);
    p.net = mpt_sequential(p.c, mpt_nn_linear(p.c, INPUTS, hidden), mpt_nn_tanh(p.c),
        mpt_nn_linear(p.c, hidden, CLASSES), MPT_END);
    p.x = mpt_keep(mpt_randn(p.c, MPT_F32, MPT_SHAPE(ROWS, INPUTS)));
    p.y = mpt_keep(mpt_argmax(mpt_slice(p.x, 1, 0, CLASSES, 1), 1, false));
    return p;
}

static mpt_tensor loss_of(mpt_module net, void *user) {
    problem *p = (problem *)user;
    const bool now = ++p->calls % 2 == 0 || p->fault != LATE;
    if (p->fault == NOT_FINITE) return mpt_full(p->c, MPT_F32, MPT_SHAPE(1), NAN);
    if (now && (p->fault == MISTAKE || p->fault == LATE)) return mpt_matmul(p->x, p->x);
    return mpt_cross_entropy(mpt_forward(net, p->x), p->y, NULL);
}

static mpt_zeroth_config settings(int directions) {
    mpt_zeroth_config config = mpt_zeroth_config_default();
    config.lr = 0.3, config.directions = directions;
    return config;
}

TEST(losses_fall) {
    problem p = make_problem(1, 16);
    const mpt_zeroth_config config = settings(8);
    double first = 0, last = 0;
    for (int i = 0; i < 400; i++) {
        const mpt_zeroth step = mpt_zeroth_step(p.net, loss_of, &p, &config, i);
        CHECK_EQ_INT(step.status, MPT_OK);
        if (i == 0) first = step.loss;
        last = step.loss;
    }
    printf(" from %.3f to %.3f", first, last);
    CHECK(p.calls == 400 * 2 * 8 && first > 0.9 && last < 0.35);
    CHECK_EQ_STR(mpt_error(p.c), "");
    mpt_destroy(p.c);
}

/* The mean over many directions of slope times direction is the gradient: so a step goes down as
   far as the gradient says. */
TEST(steps_go_where_gradients_say) {
    problem p = make_problem(1, 16);
    mpt_zeroth_config config = settings(64);
    config.lr = 1e-3;
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_optimizer optimizer = mpt_sgd(p.net, &sgd);
    mpt_step_begin(p.c);
    mpt_zero_grad(optimizer);
    mpt_tensor loss = loss_of(p.net, &p);
    const double before = mpt_item(loss);
    mpt_backward(loss);
    const double norm = mpt_item(mpt_grad_norm(optimizer, 2));
    mpt_step_end(p.c);
    double fall = 0;
    for (int i = 0; i < 64; i++) mpt_zeroth_step(p.net, loss_of, &p, &config, i);
    mpt_scope_begin(p.c);
    fall = before - mpt_item(loss_of(p.net, &p));
    mpt_scope_end(p.c);
    printf(" %.5f, by the gradient %.5f", fall, 64 * 1e-3 * norm * norm);
    CHECK(fall > 0.7 * 64 * 1e-3 * norm * norm && fall < 1.2 * 64 * 1e-3 * norm * norm);
    mpt_destroy(p.c);
}

static uint64_t trained(int threads, int64_t first, uint64_t seed) {
    problem p = make_problem(threads, 16);
    mpt_zeroth_config config = settings(2);
    config.seed = seed;
    for (int i = 0; i < 5; i++) mpt_zeroth_step(p.net, loss_of, &p, &config, first + i);
    const uint64_t hash = mpt_module_hash(p.net);
    mpt_destroy(p.c);
    return hash;
}

TEST(steps_and_seeds_decide_on_every_bit) {
    const uint64_t hash = trained(1, 0, 0);
    CHECK(trained(1, 0, 0) == hash && trained(3, 0, 0) == hash);
    CHECK(trained(1, 1, 0) != hash && trained(1, 0, 1) != hash);
}

TEST(frozen_weights_stay) {
    problem p = make_problem(1, 16);
    const mpt_zeroth_config config = settings(1);
    const mpt_module first = mpt_child(p.net, "0"), last = mpt_child(p.net, "2");
    mpt_freeze(first, true);
    const uint64_t frozen = mpt_module_hash(first), free = mpt_module_hash(last);
    CHECK_EQ_INT(mpt_zeroth_step(p.net, loss_of, &p, &config, 0).status, MPT_OK);
    CHECK(mpt_module_hash(first) == frozen && mpt_module_hash(last) != free);
    mpt_destroy(p.c);
}

static double largest_change(mpt_module net, const float *before, float *now) {
    double most = 0;
    int64_t at = 0;
    for (int i = 0; i < mpt_parameter_count(net); i++) {
        const mpt_tensor t = mpt_parameter_at(net, i, NULL, 0);
        mpt_read(t, now + at, (size_t)mpt_numel(t) * 4), at += mpt_numel(t);
    }
    for (int64_t i = 0; before && i < at; i++)
        most = fmax(most, fabs((double)(now[i] - before[i])));
    return most;
}

TEST(what_went_wrong_is_told_and_undone) {
    static float before[4096], now[4096];
    static const struct {
        fault fault;
        mpt_status status;
        const char *says;
    } rows[] = {{NOT_FINITE, MPT_ERROR_NUMERIC, ""}, {MISTAKE, MPT_ERROR_SHAPE, "matmul"},
        {LATE, MPT_ERROR_SHAPE, "matmul"}};
    const mpt_zeroth_config config = settings(3);
    for (int i = 0; i < 3; i++) {
        problem p = make_problem(1, 16);
        largest_change(p.net, NULL, before);
        p.fault = rows[i].fault;
        const mpt_zeroth step = mpt_zeroth_step(p.net, loss_of, &p, &config, 0);
        CHECK_EQ_INT(step.status, rows[i].status);
        CHECK_CONTAINS(step.error, rows[i].says);
        CHECK(largest_change(p.net, before, now) < 1e-6);
        CHECK_EQ_STR(mpt_error(p.c), "");
        p.fault = NO_FAULT;
        CHECK_EQ_INT(mpt_zeroth_step(p.net, loss_of, &p, &config, 0).status, MPT_OK);
        mpt_destroy(p.c);
    }
}

TEST(arguments_are_checked) {
    problem p = make_problem(1, 4);
    mpt_module none;
    memset(&none, 0, sizeof none);
    const mpt_zeroth_config bad[] = {
        {-1, 1e-3, 1, 0}, {NAN, 1e-3, 1, 0}, {1, 0, 1, 0}, {1, 1e-3, 0, 0}, {1, 1e-3, 65, 0}};
    const uint64_t hash = mpt_module_hash(p.net);
    for (int i = 0; i < 5; i++) {
        const mpt_zeroth step = mpt_zeroth_step(p.net, loss_of, &p, &bad[i], 0);
        CHECK(step.status == MPT_ERROR_ARGUMENT && strstr(step.error, "1 to 64"));
    }
    CHECK_EQ_INT(mpt_zeroth_step(none, loss_of, &p, NULL, 0).status, MPT_ERROR_ARGUMENT);
    CHECK_EQ_INT(mpt_zeroth_step(p.net, NULL, &p, NULL, 0).status, MPT_ERROR_ARGUMENT);
    CHECK(mpt_module_hash(p.net) == hash);
    mpt_destroy(p.c);
}

/* Beside the net: a copy of its largest parameter, and what a forward needs at a time. */
TEST(the_memory_of_inference_is_enough) {
    problem p = make_problem(1, WIDE);
    const int64_t before = mpt_memory(p.c).total_current;
    mpt_memory_reset_peak(p.c);
    CHECK_EQ_INT(mpt_zeroth_step(p.net, loss_of, &p, NULL, 0).status, MPT_OK);
    const mpt_memory_stats m = mpt_memory(p.c);
    CHECK_EQ_INT(m.peak[MPT_MEMORY_GRADIENT] + m.peak[MPT_MEMORY_MOMENT], 0);
    CHECK(m.total_peak - before < 3 * ROWS * WIDE * 4 + 65536);
    mpt_destroy(p.c);
}

TEST_TABLE = {T(losses_fall), T(steps_go_where_gradients_say),
    T(steps_and_seeds_decide_on_every_bit), T(frozen_weights_stay),
    T(what_went_wrong_is_told_and_undone), T(arguments_are_checked),
    T(the_memory_of_inference_is_enough)};
TEST_MAIN
