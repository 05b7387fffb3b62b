/* api_lbfgs.c: L-BFGS against plain C in double: its iterations, its line search by the conditions
   that it promises, where it ends; what an error leaves, what files keep. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include <string.h>

#include "harness.h"
#include "checks.h"
#include "training.h"

/* ==== A net that is a vector, and functions of it ==== */

static mpt_status no_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                             mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)in, (void)n_in, (void)out, (void)n_out;
    return MPT_ERROR_UNSUPPORTED;
}

static mpt_module new_vector(mpt_context *c, int64_t n, const float *values) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "vector", cls.forward = no_forward;
    mpt_module net = mpt_module_create(c, &cls, NULL);
    mpt_add_parameter(net, "x", MPT_SHAPE(n), mpt_init_make(MPT_INIT_ZEROS, 0, 0));
    mpt_write(mpt_parameter(net, "x"), values, (size_t)n * sizeof *values);
    return net;
}

enum wish {
    PLAIN,
    NO_BACKWARD,
    FAILS,
    NOT_ONE,
    NO_LOSS,
    INFINITE,
    STEPS,
    AGAIN,
    DESTROYS,
    OPENS,
    CLEARS,
    WISHES
};

typedef struct {
    mpt_module net;
    mpt_optimizer optimizer;
    int calls, at; /* the call that is other */
    enum wish wish;
} problem;

static mpt_tensor rosenbrock(mpt_context *c, void *user);

static mpt_tensor misbehave(mpt_context *c, problem *p, mpt_tensor loss) {
    if (p->wish != NO_BACKWARD) mpt_backward(loss);
    switch (p->wish) {
        case FAILS: mpt_matmul(loss, loss); break;
        case NOT_ONE: return mpt_parameter(p->net, "x");
        case NO_LOSS: return mpt_null_tensor();
        case INFINITE: return mpt_full(c, MPT_F32, MPT_SCALAR, INFINITY);
        case STEPS: mpt_step(p->optimizer); break;
        case AGAIN: mpt_lbfgs_step(p->optimizer, rosenbrock, p); break;
        case DESTROYS: mpt_optimizer_destroy(p->optimizer); break;
        case OPENS: mpt_scope_begin(c); break;
        case CLEARS:
            mpt_matmul(loss, loss);
            mpt_clear_error(c);
            return mpt_full(c, MPT_F32, MPT_SCALAR, 1);
        default: break;
    }
    return loss;
}

/* 100 (b - a^2)^2 + (1 - a)^2 */
static mpt_tensor rosenbrock(mpt_context *c, void *user) {
    problem *p = (problem *)user;
    mpt_tensor x = mpt_parameter(p->net, "x");
    mpt_tensor a = mpt_select(x, 0, 0), b = mpt_select(x, 0, 1);
    mpt_tensor off = mpt_sub(b, mpt_mul(a, a)), rest = mpt_add_scalar(mpt_neg(a), 1);
    mpt_tensor loss = mpt_sum(mpt_add(mpt_mul_scalar(mpt_mul(off, off), 100), mpt_mul(rest, rest)),
                              MPT_ALL_DIMS, false);
    if (p->calls++ == p->at && p->wish) return misbehave(c, p, loss);
    mpt_backward(loss);
    return loss;
}

static double rosenbrock_in_c(const double *x, double *slope) {
    const double off = x[1] - x[0] * x[0], rest = 1 - x[0];
    slope[0] = -400 * x[0] * off - 2 * rest, slope[1] = 200 * off;
    return 100 * off * off + rest * rest;
}

static const float start[2] = {-1.2f, 1};

/* Each step of one iteration meets the conditions, in the double of the function. */
TEST(line_searches_keep_their_promise) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    mpt_context *c = mpt_create(NULL);
    problem p;
    memset(&p, 0, sizeof p);
    p.net = new_vector(c, 2, start);
    config.strong_wolfe = true, config.max_iter = 1, config.max_eval = 30;
    p.optimizer = mpt_lbfgs(p.net, &config);
    double x[2] = {(double)start[0], 1}, slope[2], next[2];
    double f = rosenbrock_in_c(x, slope), least = f;
    int steps = 0, met = 0;
    for (; steps < 60 && least > 1e-8; steps++) {
        float now[2];
        double there[2];
        CHECK_CLOSE(mpt_lbfgs_step(p.optimizer, rosenbrock, &p), f, 1e-4, 1e-9);
        mpt_read_f32(mpt_parameter(p.net, "x"), now, 2);
        next[0] = (double)now[0], next[1] = (double)now[1];
        least = rosenbrock_in_c(next, there);
        const double before = slope[0] * (next[0] - x[0]) + slope[1] * (next[1] - x[1]);
        const double after = there[0] * (next[0] - x[0]) + there[1] * (next[1] - x[1]);
        CHECK(before < 0 && least <= f + 1e-4 * before + 1e-7);
        met += fabs(after) <= -0.9 * before + 1e-7;
        memcpy(x, next, sizeof x), memcpy(slope, there, sizeof slope);
        f = least;
    }
    CHECK(met == steps && steps < 60);
    CHECK_NEAR(x[0], 1, 1e-3);
    CHECK_NEAR(x[1], 1, 2e-3);
    CHECK_EQ_INT(mpt_applied_steps(p.optimizer), steps);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* The whole way in a few steps of many iterations. */
TEST(rosenbrock_is_solved) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    mpt_context *c = mpt_create(NULL);
    problem p;
    float x[2];
    memset(&p, 0, sizeof p);
    p.net = new_vector(c, 2, start);
    config.strong_wolfe = true, config.max_iter = 100;
    p.optimizer = mpt_lbfgs(p.net, &config);
    CHECK_CLOSE(mpt_lbfgs_step(p.optimizer, rosenbrock, &p), 24.2, 1e-5, 0);
    mpt_read_f32(mpt_parameter(p.net, "x"), x, 2);
    CHECK_NEAR(x[0], 1, 1e-3);
    CHECK_NEAR(x[1], 1, 2e-3);
    CHECK(p.calls > 20 && p.calls < 80);
    CHECK(mpt_lbfgs_step(p.optimizer, rosenbrock, &p) < 1e-6);
    mpt_destroy(c);
}

/* ==== Least squares: iterations in double, and the solution of the normal equations ==== */

enum { ROWS = 20, WIDTH = 5, MEMORY = 3 };
static float inputs[ROWS][WIDTH], outputs[ROWS];

static void make_rows(void) {
    for (int i = 0; i < ROWS; i++) {
        outputs[i] = (float)cos(i * 1.3);
        for (int k = 0; k < WIDTH; k++)
            inputs[i][k] = (float)(sin(i * (k + 0.7) + k * k) * (1 + k % 3));
    }
}

static mpt_tensor squares(mpt_context *c, void *user) {
    problem *p = (problem *)user;
    mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(ROWS, WIDTH), inputs);
    mpt_tensor y = mpt_from(c, MPT_F32, MPT_SHAPE(ROWS, 1), outputs);
    mpt_tensor loss = mpt_mse_loss(mpt_forward(p->net, x), y, MPT_MEAN);
    p->calls++;
    mpt_backward(loss);
    return loss;
}

static double squares_in_c(const double *w, double *slope) {
    double loss = 0;
    memset(slope, 0, WIDTH * sizeof *slope);
    for (int i = 0; i < ROWS; i++) {
        double off = -(double)outputs[i];
        for (int k = 0; k < WIDTH; k++) off += w[k] * (double)inputs[i][k];
        for (int k = 0; k < WIDTH; k++) slope[k] += 2 * off * (double)inputs[i][k] / ROWS;
        loss += off * off / ROWS;
    }
    return loss;
}

static double dot(const double *a, const double *b) {
    double sum = 0;
    for (int k = 0; k < WIDTH; k++) sum += a[k] * b[k];
    return sum;
}

/* Iteration i (from 0) with the last MEMORY pairs, in the words of the book. */
typedef struct {
    double w[WIDTH], slope[WIDTH], s[100][WIDTH], y[100][WIDTH];
    int pairs;
} by_book;

static void iterate_by_book(by_book *b, int i, double lr) {
    double q[WIDTH], alpha[100], old[WIDTH], sum = 0, t = lr;
    memcpy(q, b->slope, sizeof q);
    memcpy(old, b->slope, sizeof old);
    const int first = b->pairs > MEMORY ? b->pairs - MEMORY : 0, last = b->pairs - 1;
    for (int p = last; p >= first; p--) {
        alpha[p] = dot(b->s[p], q) / dot(b->s[p], b->y[p]);
        for (int k = 0; k < WIDTH; k++) q[k] -= alpha[p] * b->y[p][k];
    }
    for (int k = 0; k < WIDTH && last >= 0; k++)
        q[k] *= dot(b->s[last], b->y[last]) / dot(b->y[last], b->y[last]);
    for (int p = first; p <= last; p++) {
        const double beta = dot(b->y[p], q) / dot(b->s[p], b->y[p]);
        for (int k = 0; k < WIDTH; k++) q[k] += (alpha[p] - beta) * b->s[p][k];
    }
    for (int k = 0; k < WIDTH; k++) sum += fabs(b->slope[k]);
    if (i == 0 && sum > 1) t = lr / sum;
    for (int k = 0; k < WIDTH; k++) b->s[b->pairs][k] = -t * q[k], b->w[k] -= t * q[k];
    squares_in_c(b->w, b->slope);
    for (int k = 0; k < WIDTH; k++) b->y[b->pairs][k] = b->slope[k] - old[k];
    if (dot(b->s[b->pairs], b->y[b->pairs]) > 1e-10) b->pairs++;
}

/* The w that is best, by elimination. */
static void solve(double *w) {
    double a[WIDTH][WIDTH + 1] = {{0}};
    for (int i = 0; i < ROWS; i++)
        for (int r = 0; r < WIDTH; r++) {
            for (int k = 0; k < WIDTH; k++) a[r][k] += (double)inputs[i][r] * (double)inputs[i][k];
            a[r][WIDTH] += (double)inputs[i][r] * (double)outputs[i];
        }
    for (int r = 0; r < WIDTH; r++)
        for (int o = 0; o < WIDTH; o++) {
            const double factor = a[o][r] / a[r][r];
            for (int k = r; k <= WIDTH && o != r; k++) a[o][k] -= factor * a[r][k];
        }
    for (int r = 0; r < WIDTH; r++) w[r] = a[r][WIDTH] / a[r][r];
}

static mpt_optimizer small_lbfgs(mpt_module net, int max_iter, bool wolfe) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    config.history_size = MEMORY, config.max_iter = max_iter, config.strong_wolfe = wolfe;
    config.lr = 0.8;
    return mpt_lbfgs(net, &config);
}

static problem new_squares(mpt_context *c, int max_iter, bool wolfe) {
    problem p;
    memset(&p, 0, sizeof p);
    make_rows();
    p.net = mpt_nn_linear_no_bias(c, WIDTH, 1);
    p.optimizer = small_lbfgs(p.net, max_iter, wolfe);
    return p;
}

TEST(iterations_are_those_of_the_book) {
    by_book b;
    mpt_context *c = mpt_create(NULL);
    problem p = new_squares(c, 1, false);
    float w[WIDTH];
    mpt_read_f32(mpt_parameter(p.net, "weight"), w, WIDTH);
    b.pairs = 0;
    for (int k = 0; k < WIDTH; k++) b.w[k] = (double)w[k];
    double loss = squares_in_c(b.w, b.slope);
    for (int i = 0; i < 12; i++) {
        CHECK_CLOSE(mpt_lbfgs_step(p.optimizer, squares, &p), loss, 1e-4, 0);
        iterate_by_book(&b, i, 0.8);
        double slope[WIDTH];
        loss = squares_in_c(b.w, slope);
        mpt_read_f32(mpt_parameter(p.net, "weight"), w, WIDTH);
        for (int k = 0; k < WIDTH; k++) CHECK_NEAR(w[k], b.w[k], 1e-4);
    }
    CHECK(b.pairs > MEMORY && p.calls == 12);
    mpt_destroy(c);
}

TEST(least_squares_are_found) {
    double best[WIDTH];
    for (int wolfe = 0; wolfe < 2; wolfe++) {
        mpt_context *c = mpt_create(NULL);
        problem p = new_squares(c, 40, wolfe);
        float w[WIDTH];
        solve(best);
        mpt_lbfgs_step(p.optimizer, squares, &p);
        mpt_read_f32(mpt_parameter(p.net, "weight"), w, WIDTH);
        for (int k = 0; k < WIDTH; k++) CHECK_NEAR(w[k], best[k], 1e-4);
        CHECK(p.calls < 50);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

/* Evaluations are counted: no iteration begins behind max_eval of them. */
TEST(evaluations_have_a_bound) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    mpt_context *c = mpt_create(NULL);
    problem p;
    memset(&p, 0, sizeof p);
    p.net = new_vector(c, 2, start);
    config.lr = 1e-3, config.max_iter = 100, config.max_eval = 7;
    p.optimizer = mpt_lbfgs(p.net, &config);
    mpt_lbfgs_step(p.optimizer, rosenbrock, &p);
    CHECK_EQ_INT(p.calls, 7);
    mpt_set_lr(p.optimizer, 0, 0); /* moves nothing, so that a step ends where it began */
    mpt_lbfgs_step(p.optimizer, rosenbrock, &p);
    CHECK_EQ_INT(p.calls, 9);
    mpt_destroy(c);
}

/* Half parameters have masters, which take the steps. */
TEST(bf16_has_masters) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    mpt_context *c = mpt_create(NULL);
    problem p;
    float w[WIDTH], last[WIDTH];
    memset(&p, 0, sizeof p);
    make_rows();
    p.net = mpt_nn_linear_no_bias(c, WIDTH, 1);
    mpt_half(p.net, MPT_BF16);
    mpt_autocast_begin(c, MPT_BF16);
    config.lr = 1e-3, config.max_iter = 1; /* below what bf16 resolves */
    p.optimizer = mpt_lbfgs(p.net, &config);
    mpt_read_f32(mpt_parameter(p.net, "weight"), w, WIDTH);
    double first = 0;
    for (int i = 0; i < 200; i++) {
        const double loss = mpt_lbfgs_step(p.optimizer, squares, &p);
        if (i == 0) first = loss;
    }
    mpt_read_f32(mpt_parameter(p.net, "weight"), last, WIDTH);
    CHECK(mpt_lbfgs_step(p.optimizer, squares, &p) < 0.97 * first);
    CHECK(memcmp(w, last, sizeof w) != 0);
    mpt_autocast_end(c);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Errors ==== */

TEST(an_error_changes_no_weight) {
    static const char *const says[WISHES] = {"",
                                             "no parameter has a gradient",
                                             "mpt_matmul",
                                             "a loss of shape [2], expected one element",
                                             "loss of the closure is a null handle",
                                             "the loss is inf",
                                             "an optimizer's update is under way",
                                             "a step of this optimizer is under way",
                                             "an optimizer's update is under way",
                                             "began or ended a scope",
                                             "cleared an error"};
    for (int wish = NO_BACKWARD; wish < WISHES; wish++)
        for (int at = 0; at < 6; at += 3) {
            mpt_context *c = mpt_create(NULL);
            mpt_lbfgs_config config = mpt_lbfgs_config_default();
            problem p;
            memset(&p, 0, sizeof p);
            p.net = new_vector(c, 2, start);
            config.lr = 0.1, config.max_eval = 10;
            p.optimizer = mpt_lbfgs(p.net, &config);
            const uint64_t hash = mpt_module_hash(p.net), state = mpt_optimizer_hash(p.optimizer);
            p.wish = (enum wish)wish, p.at = at;
            mpt_step_begin(c);
            const double loss = mpt_lbfgs_step(p.optimizer, rosenbrock, &p);
            CHECK(isnan(loss) && mpt_failed(c));
            CHECK_CONTAINS(mpt_error(c), says[wish]);
            mpt_clear_error(c);
            mpt_step_end(c);
            CHECK(hash == mpt_module_hash(p.net));
            CHECK(at > 0 || state == mpt_optimizer_hash(p.optimizer));
            CHECK_EQ_INT(mpt_applied_steps(p.optimizer), 0);
            p.wish = PLAIN;
            CHECK_CLOSE(mpt_lbfgs_step(p.optimizer, rosenbrock, &p), 24.2, 1e-5, 0);
            CHECK(hash != mpt_module_hash(p.net));
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_destroy(c);
        }
}

/* A line search goes back from what is not finite. */
TEST(line_searches_come_back_from_infinity) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    mpt_context *c = mpt_create(NULL);
    problem p;
    float x[2];
    memset(&p, 0, sizeof p);
    p.net = new_vector(c, 2, start);
    config.lr = 1e12, config.strong_wolfe = true, config.max_iter = 50, config.max_eval = 500;
    p.optimizer = mpt_lbfgs(p.net, &config); /* 1e12 squared thrice is beyond fp32 */
    for (int i = 0; i < 10; i++) mpt_lbfgs_step(p.optimizer, rosenbrock, &p);
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK(mpt_lbfgs_step(p.optimizer, rosenbrock, &p) < 24.2);
    mpt_read_f32(mpt_parameter(p.net, "x"), x, 2);
    CHECK(isfinite(x[0]) && isfinite(x[1]));
    mpt_destroy(c);
}

static void refuse(mpt_context *c, mpt_module net, const mpt_lbfgs_config *config,
                   const char *says) {
    CHECK(mpt_lbfgs(net, config).slot == 0);
    check_error(c, MPT_ERROR_ARGUMENT, says);
}

TEST(what_is_refused) {
    mpt_context *c = mpt_create(NULL);
    mpt_lbfgs_config good = mpt_lbfgs_config_default(), bad = good;
    const mpt_group_config group = {1, 0};
    problem p;
    memset(&p, 0, sizeof p);
    p.net = new_vector(c, 2, start);
    bad.history_size = 0, refuse(c, p.net, &bad, "history_size = 0");
    bad.history_size = 10001, refuse(c, p.net, &bad, "history_size = 10001; expected 1 to 10000");
    bad = good, bad.max_iter = 0, refuse(c, p.net, &bad, "max_iter = 0");
    bad = good, bad.max_eval = -1, refuse(c, p.net, &bad, "max_eval = -1");
    bad = good, bad.tolerance_grad = -1, refuse(c, p.net, &bad, "tolerance_grad = -1");
    bad = good, bad.tolerance_change = NAN, refuse(c, p.net, &bad, "tolerance_change");
    bad = good, bad.lr = -1, refuse(c, p.net, &bad, "lr = -1");
    p.optimizer = mpt_lbfgs(p.net, NULL); /* none of those holds the parameters */
    CHECK(isnan(mpt_lbfgs_step(p.optimizer, NULL, NULL)));
    check_error(c, MPT_ERROR_ARGUMENT, "closure is NULL");
    rosenbrock(c, &p);
    mpt_step(p.optimizer);
    check_error(c, MPT_ERROR_STATE, "call mpt_lbfgs_step");
    mpt_optimizer_add(p.optimizer, p.net, NULL, &group);
    check_error(c, MPT_ERROR_UNSUPPORTED, "takes all parameters together");
    mpt_set_option(p.optimizer, 0, "weight_decay", 1);
    check_error(c, MPT_ERROR_ARGUMENT, "no options but its lr");
    mpt_lbfgs_step(mpt_sgd(mpt_nn_linear(c, 2, 2), NULL), rosenbrock, &p);
    check_error(c, MPT_ERROR_ARGUMENT, "not of mpt_lbfgs");
    mpt_record_begin(c);
    mpt_lbfgs_step(p.optimizer, rosenbrock, &p);
    check_error(c, MPT_ERROR_UNSUPPORTED, "neither captured steps nor recordings");
    mpt_backward(mpt_scale_loss(mpt_grad_scaler(c, NULL), mpt_sum(mpt_parameter(p.net, "x"),
                                                                  MPT_ALL_DIMS, false)));
    mpt_lbfgs_step(p.optimizer, rosenbrock, &p); /* clears them */
    check_ok(c);
    mpt_destroy(c);
}

/* ==== What files and snapshots keep, and memory ==== */

#if !defined(MPTRAIN_NO_RESUME) && !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST(stopped_and_gone_on) {
    const char *path = test_tmp_path("lbfgs.safetensors");
    static unsigned char block[1 << 16];
    mpt_context *c[2] = {mpt_create(NULL), mpt_create(NULL)};
    problem p[2] = {new_squares(c[0], 3, true), new_squares(c[1], 3, true)};
    for (int i = 0; i < 2; i++) mpt_lbfgs_step(p[0].optimizer, squares, &p[0]);
    CHECK_EQ_INT(mpt_checkpoint_save(c[0], path), MPT_OK);
    CHECK_EQ_INT(mpt_snapshot(c[0], block, sizeof block), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_load(c[1], path), MPT_OK);
    const uint64_t stopped = mpt_state_hash(c[0]);
    CHECK(mpt_state_hash(c[1]) == stopped);
    for (int i = 0; i < 2; i++) mpt_lbfgs_step(p[i].optimizer, squares, &p[i]);
    const uint64_t hash = mpt_state_hash(c[0]);
    CHECK(hash != stopped && mpt_state_hash(c[1]) == hash);
    CHECK_EQ_INT(mpt_restore(c[1], block, sizeof block), MPT_OK);
    CHECK(mpt_state_hash(c[1]) == stopped);
    mpt_lbfgs_step(p[1].optimizer, squares, &p[1]);
    CHECK(mpt_state_hash(c[1]) == hash);
    mpt_context *other = mpt_create(NULL);
    mpt_lbfgs(mpt_nn_linear_no_bias(other, WIDTH, 1), NULL); /* with another history */
    mpt_checkpoint_load(other, path);
    CHECK_EQ_INT(mpt_error_code(other), MPT_ERROR_SHAPE);
    CHECK_CONTAINS(mpt_error(other), "lbfgs.rho");
    mpt_destroy(other);
    for (int i = 0; i < 2; i++) mpt_destroy(c[i]);
}
#endif

TEST(steps_take_no_memory) {
    arena memory;
    mpt_config config = mpt_config_default();
    arena_use(&memory, &config);
    mpt_context *c = mpt_create(&config);
    problem p = new_squares(c, 4, true);
    mpt_lbfgs_step(p.optimizer, squares, &p);
    const int64_t calls = memory.calls;
    for (int i = 0; i < 3; i++) {
        const float away[WIDTH] = {3, -2, (float)i, 5, 1}; /* something to do */
        mpt_write(mpt_parameter(p.net, "weight"), away, sizeof away);
        mpt_lbfgs_step(p.optimizer, squares, &p);
    }
    CHECK_EQ_INT(memory.calls, calls);
    mpt_optimizer_destroy(p.optimizer);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK(memory.live == 0 && memory.torn == 0);
}

/* Each allocation of making and of a step is refused once: an error, and then all goes on. */
TEST(each_allocation_is_refused) {
    uint64_t whole = 0;
    for (int64_t n = 0; n < 1000; n++) {
        arena memory;
        mpt_config config = mpt_config_default();
        arena_use(&memory, &config);
        config.threads = 1;
        mpt_context *c = mpt_create(&config);
        problem p;
        memset(&p, 0, sizeof p);
        make_rows();
        p.net = mpt_nn_linear_no_bias(c, WIDTH, 1);
        memory.fail_at = n ? memory.calls + n : 0, memory.failures = 1;
        p.optimizer = small_lbfgs(p.net, 4, true);
        if (mpt_failed(c)) {
            check_error(c, MPT_ERROR_MEMORY, "");
            p.optimizer = small_lbfgs(p.net, 4, true);
        }
        const uint64_t before = mpt_module_hash(p.net);
        mpt_lbfgs_step(p.optimizer, squares, &p);
        if (mpt_failed(c)) {
            check_error(c, MPT_ERROR_MEMORY, "");
            CHECK(mpt_module_hash(p.net) == before);
            mpt_lbfgs_step(p.optimizer, squares, &p);
        }
        const uint64_t hash = mpt_module_hash(p.net) ^ mpt_optimizer_hash(p.optimizer);
        if (n == 0) whole = hash;
        CHECK(hash == whole);
        mpt_destroy(c);
        CHECK(memory.live == 0 && memory.torn == 0);
        if (n > 0 && memory.refused == 0) break;
        CHECK(n < 999);
    }
}

/* The same bits with any number of threads. */
TEST(threads_change_nothing) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        mpt_config config = mpt_config_default();
        config.threads = 1 + 2 * i;
        mpt_context *c = mpt_create(&config);
        problem p = new_squares(c, 5, true);
        for (int k = 0; k < 3; k++) mpt_lbfgs_step(p.optimizer, squares, &p);
        hash[i] = mpt_optimizer_hash(p.optimizer) ^ mpt_module_hash(p.net);
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1]);
}

TEST_TABLE = {T(line_searches_keep_their_promise),
              T(rosenbrock_is_solved),
              T(iterations_are_those_of_the_book),
              T(least_squares_are_found),
              T(evaluations_have_a_bound),
              T(bf16_has_masters),
              T(an_error_changes_no_weight),
              T(line_searches_come_back_from_infinity),
              T(what_is_refused),
#if !defined(MPTRAIN_NO_RESUME) && !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
              T(stopped_and_gone_on),
#endif
              T(steps_take_no_memory),
              T(each_allocation_is_refused),
              T(threads_change_nothing)};
TEST_MAIN
