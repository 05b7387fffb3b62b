/* api_user_optimizer.c: optimizers that are written against mpt_user_optimizer: by hand in C, to
   the bit; with ops, against other arithmetic; what an error may not touch; what files keep. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include <string.h>

#include "harness.h"
#include "checks.h"
#include "training.h"

enum { IN = 6, MIDDLE = 5, OUT = 3, ROWS = 8, PARAMETERS = 4 };
static const char *const paths[PARAMETERS] = {"0.weight", "0.bias", "2.weight", "2.bias"};
static const int sizes[PARAMETERS] = {MIDDLE * IN, MIDDLE, OUT * MIDDLE, OUT};
enum { LARGEST = MIDDLE * IN };

static mpt_module new_net(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_linear(c, IN, MIDDLE), mpt_nn_tanh(c),
                          mpt_nn_linear(c, MIDDLE, OUT), MPT_END);
}

/* A loss of step i. Inputs are `scale` times numbers of size 1. */
static mpt_tensor loss_of(mpt_module net, int i, mpt_dtype dtype, double scale) {
    float x[ROWS * IN], y[ROWS * OUT];
    for (int k = 0; k < ROWS * IN; k++) x[k] = (float)(sin(k * 1.7 + i * 0.3) * scale);
    for (int k = 0; k < ROWS * OUT; k++) y[k] = (float)cos(k * 0.9 + i * 0.1);
    mpt_tensor in = mpt_from(net.context, MPT_F32, MPT_SHAPE(ROWS, IN), x);
    mpt_tensor out = mpt_from(net.context, MPT_F32, MPT_SHAPE(ROWS, OUT), y);
    return mpt_mse_loss(mpt_cast(mpt_forward(net, mpt_cast(in, dtype)), MPT_F32), out, MPT_MEAN);
}

static void read_all(mpt_module net, float to[PARAMETERS][LARGEST], bool gradients) {
    for (int k = 0; k < PARAMETERS; k++) {
        mpt_tensor parameter = mpt_parameter(net, paths[k]);
        if (gradients && !mpt_has_grad(parameter)) continue;
        mpt_read_f32(gradients ? mpt_grad(parameter) : parameter, to[k], sizes[k]);
    }
}

/* ==== Sign SGD, by the same arithmetic in C ==== */

enum mood {
    WILLING,
    REPORTS,
    FAILS,
    BAD_INDEX,
    STEPS,
    GOES_BACK,
    ADDS,
    DESTROYS,
    OPENS,
    CLOSES,
    RELEASES,
    RECORDS,
    CLEARS,
    MOODS
};

typedef struct {
    enum mood mood;
    int at; /* the call that is in that mood */
    int calls;
    double lr[PARAMETERS], decay[PARAMETERS];
    int64_t step[PARAMETERS];
    int group[PARAMETERS];
    mpt_optimizer optimizer;
    mpt_module net;
    mpt_tensor loss;
} sign_sgd;

static mpt_status misbehave(mpt_context *c, const mpt_user_update *u, const sign_sgd *s) {
    const int64_t index = 7;
    const mpt_group_config plain = {1, 0};
    switch (s->mood) {
        case REPORTS: return MPT_ERROR_NUMERIC;
        case FAILS: mpt_matmul(u->value, mpt_ones(c, MPT_F32, MPT_SHAPE(77, 2))); break;
        case BAD_INDEX:
            mpt_index_select(u->value, 0, mpt_from(c, MPT_I64, MPT_SHAPE(1), &index));
            break;
        case STEPS: mpt_step(s->optimizer); break;
        case GOES_BACK: mpt_backward(s->loss); break;
        case ADDS: mpt_optimizer_add(s->optimizer, s->net, "0.bias", &plain); break;
        case DESTROYS: mpt_optimizer_destroy(s->optimizer); break;
        case OPENS: mpt_scope_begin(c); break;
        case CLOSES: mpt_scope_end(c); break;
        case RELEASES: mpt_release(u->value); break;
        case RECORDS: mpt_record_begin(c); break;
        case CLEARS:
            mpt_matmul(u->value, mpt_ones(c, MPT_F32, MPT_SHAPE(77, 2)));
            mpt_clear_error(c); /* does nothing here */
            return MPT_OK;
        default: break;
    }
    return MPT_OK;
}

static mpt_status sign_update(mpt_context *c, const mpt_user_update *u, void *user) {
    sign_sgd *s = (sign_sgd *)user;
    int k = 0;
    while (strcmp(paths[k], u->path) != 0) k++;
    s->lr[k] = u->lr, s->decay[k] = u->weight_decay;
    s->step[k] = u->step, s->group[k] = u->group;
    mpt_mul_scalar_(u->value, 1 - u->lr * u->weight_decay);
    mpt_add_(u->value, mpt_mul_scalar(mpt_sign(u->gradient), -u->lr));
    mpt_add_(u->state[0], u->gradient);
    CHECK_EQ_INT(mpt_get_dtype(u->value), MPT_F32);
    CHECK_EQ_INT(mpt_get_dtype(u->gradient), MPT_F32);
    CHECK(u->state[1].slot == 0);
    return s->calls++ == s->at && s->mood ? misbehave(c, u, s) : mpt_error_code(c);
}

static mpt_optimizer sign_optimizer(mpt_module net, sign_sgd *s) {
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    CHECK(config.lr == 1e-3 && config.weight_decay == 0 && config.states == 0);
    memset(s, 0, sizeof *s);
    config.update = sign_update, config.user = s;
    config.lr = 1e-4, config.weight_decay = 0.5;
    config.states = 1, config.state_names[0] = "sum";
    s->net = net;
    return s->optimizer = mpt_user_optimizer(net, &config);
}

static float to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&x, &bits, 4);
    return x;
}

/* The step of an element, in fp32. */
static float by_hand(float value, float gradient, double lr, double decay) {
    const float kept = value * (float)(1 - lr * decay);
    const float sign = gradient > 0 ? 1.0f : gradient < 0 ? -1.0f : 0.0f;
    return kept + sign * (float)-lr;
}

static void sign_steps(mpt_dtype dtype) {
    static float master[PARAMETERS][LARGEST], gradient[PARAMETERS][LARGEST],
        now[PARAMETERS][LARGEST];
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    sign_sgd s;
    if (dtype != MPT_F32) mpt_half(net, dtype);
    sign_optimizer(net, &s);
    read_all(net, master, false);
    for (int i = 0; i < 20; i++) {
        mpt_step_begin(c);
        mpt_zero_grad(s.optimizer);
        mpt_backward(loss_of(net, i, dtype, 1));
        if (i % 3 == 2) mpt_clip_grad_norm(s.optimizer, 0.01);
        read_all(net, gradient, true);
        mpt_step(s.optimizer);
        mpt_step_end(c);
        read_all(net, now, false);
        for (int k = 0; k < PARAMETERS; k++) {
            for (int e = 0; e < sizes[k]; e++) {
                master[k][e] = by_hand(master[k][e], gradient[k][e], 1e-4, 0.5);
                const float want = dtype == MPT_F32 ? master[k][e] : to_bf16(master[k][e]);
                CHECK(now[k][e] == want);
            }
            CHECK_EQ_INT(s.step[k], i + 1);
        }
    }
    CHECK_EQ_INT(s.calls, 20 * PARAMETERS);
    CHECK_EQ_INT(mpt_applied_steps(s.optimizer), 20);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(sign_sgd_in_fp32) { sign_steps(MPT_F32); }
TEST(sign_sgd_in_bf16_with_masters) { sign_steps(MPT_BF16); }

/* In fp16 a step that overflows calls nothing, and counts nothing. */
TEST(sign_sgd_in_fp16_skips) {
    static float before[PARAMETERS][LARGEST], gradient[PARAMETERS][LARGEST],
        now[PARAMETERS][LARGEST];
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    mpt_scaler scaler = mpt_grad_scaler(c, NULL);
    sign_sgd s;
    sign_optimizer(net, &s);
    for (int i = 0; i < 8; i++) {
        const bool overflows = i == 3 || i == 5;
        const uint64_t hash = mpt_optimizer_hash(s.optimizer);
        mpt_step_begin(c);
        mpt_autocast_begin(c, MPT_F16);
        mpt_tensor loss = loss_of(net, i, MPT_F32, overflows ? 1e6 : 1);
        mpt_autocast_end(c);
        mpt_zero_grad(s.optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, s.optimizer);
        read_all(net, gradient, true), read_all(net, before, false);
        mpt_scaler_step(scaler, s.optimizer);
        mpt_scaler_update(scaler);
        mpt_step_end(c);
        read_all(net, now, false);
        for (int k = 0; k < PARAMETERS; k++)
            for (int e = 0; e < sizes[k]; e++)
                CHECK(now[k][e] == (overflows ? before[k][e]
                                              : by_hand(before[k][e], gradient[k][e], 1e-4, 0.5)));
        CHECK((hash == mpt_optimizer_hash(s.optimizer)) == overflows);
        CHECK_EQ_INT(mpt_step_outcome(scaler), overflows ? MPT_OUTCOME_SKIPPED
                                                         : MPT_OUTCOME_APPLIED);
    }
    CHECK(s.calls == 6 * PARAMETERS && s.step[0] == 6 && mpt_applied_steps(s.optimizer) == 6);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Muon, against plain C in double ==== */

static const double polynomial[3] = {3.4445, -4.7750, 2.0315};
static const double muon_lr = 0.02, muon_momentum = 0.95;

/* The nearest thing to U V' of a matrix U S V', by five Newton-Schulz steps. */
static mpt_tensor orthogonal(mpt_tensor g) {
    const mpt_shape shape = mpt_get_shape(g);
    const bool tall = shape.dim[0] > shape.dim[1];
    mpt_tensor size = mpt_sqrt(mpt_sum(mpt_mul(g, g), MPT_ALL_DIMS, false));
    mpt_tensor x = mpt_div(g, mpt_add_scalar(size, 1e-7));
    if (tall) x = mpt_transpose(x, 0, 1);
    for (int i = 0; i < 5; i++) {
        mpt_tensor a = mpt_matmul(x, mpt_transpose(x, 0, 1));
        mpt_tensor b = mpt_add(mpt_mul_scalar(a, polynomial[1]),
                               mpt_mul_scalar(mpt_matmul(a, a), polynomial[2]));
        x = mpt_add(mpt_mul_scalar(x, polynomial[0]), mpt_matmul(b, x));
    }
    return tall ? mpt_transpose(x, 0, 1) : x;
}

static mpt_status muon_update(mpt_context *c, const mpt_user_update *u, void *user) {
    (void)user;
    mpt_mul_scalar_(u->state[0], muon_momentum);
    mpt_add_(u->state[0], u->gradient);
    mpt_tensor step = mpt_add(u->gradient, mpt_mul_scalar(u->state[0], muon_momentum));
    if (mpt_get_shape(u->value).rank == 2) step = orthogonal(step);
    mpt_add_(u->value, mpt_mul_scalar(step, -u->lr));
    return mpt_error_code(c);
}

/* The same on a matrix in double, written for rows <= columns. */
static void orthogonal_in_c(double *x, int rows, int columns) {
    double a[8][8], b[8][8], y[LARGEST], size = 0;
    for (int i = 0; i < rows * columns; i++) size += x[i] * x[i];
    for (int i = 0; i < rows * columns; i++) x[i] /= sqrt(size) + 1e-7;
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                a[i][j] = 0;
                for (int k = 0; k < columns; k++)
                    a[i][j] += x[i * columns + k] * x[j * columns + k];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < rows; j++) {
                b[i][j] = polynomial[1] * a[i][j];
                for (int k = 0; k < rows; k++) b[i][j] += polynomial[2] * a[i][k] * a[k][j];
            }
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < columns; j++) {
                double sum = polynomial[0] * x[i * columns + j];
                for (int k = 0; k < rows; k++) sum += b[i][k] * x[k * columns + j];
                y[i * columns + j] = sum;
            }
        memcpy(x, y, (size_t)(rows * columns) * sizeof *x);
    }
}

TEST(muon_against_double) {
    static float gradient[PARAMETERS][LARGEST], now[PARAMETERS][LARGEST];
    double value[PARAMETERS][LARGEST], momentum[PARAMETERS][LARGEST] = {{0}};
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    config.update = muon_update, config.states = 1, config.lr = muon_lr;
    mpt_optimizer optimizer = mpt_user_optimizer(net, &config);
    read_all(net, now, false);
    for (int k = 0; k < PARAMETERS; k++)
        for (int e = 0; e < sizes[k]; e++) value[k][e] = (double)now[k][e];
    for (int i = 0; i < 12; i++) {
        mpt_step_begin(c);
        mpt_zero_grad(optimizer);
        mpt_backward(loss_of(net, i, MPT_F32, 1));
        read_all(net, gradient, true);
        mpt_step(optimizer);
        mpt_step_end(c);
        read_all(net, now, false);
        for (int k = 0; k < PARAMETERS; k++) {
            double step[LARGEST];
            for (int e = 0; e < sizes[k]; e++) {
                const double g = (double)gradient[k][e];
                momentum[k][e] = muon_momentum * momentum[k][e] + g;
                step[e] = g + muon_momentum * momentum[k][e];
            }
            if (k % 2 == 0) orthogonal_in_c(step, k ? OUT : MIDDLE, k ? MIDDLE : IN);
            for (int e = 0; e < sizes[k]; e++) {
                value[k][e] -= muon_lr * step[e];
                CHECK_NEAR(now[k][e], value[k][e], 2e-5);
            }
        }
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* Matrices with more rows than columns are turned for it: the result is the same, turned back. */
TEST(muon_turns_tall_matrices) {
    mpt_context *c = mpt_create(NULL);
    mpt_tensor g = mpt_randn(c, MPT_F32, MPT_SHAPE(7, 4));
    mpt_tensor wide = orthogonal(mpt_transpose(g, 0, 1));
    CHECK(mpt_allclose(orthogonal(g), mpt_transpose(wide, 0, 1), 1e-6, 1e-6));
    mpt_destroy(c);
}

/* ==== Groups, rates, accumulation, parameters without a gradient ==== */

TEST(groups_and_schedules) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    const mpt_group_config other = {0.5, 0.25};
    sign_sgd s;
    sign_optimizer(net, &s);
    CHECK_EQ_INT(mpt_optimizer_add(s.optimizer, net, "2.bias", &other), 1);
    mpt_schedule_create(s.optimizer, mpt_exponential_lr(0.5), MPT_PER_STEP);
    for (int i = 0; i < 4; i++) {
        CHECK_CLOSE(mpt_get_lr(s.optimizer, 1), 0.5 * pow(0.5, i), 1e-12, 0);
        mpt_step_begin(c);
        mpt_zero_grad(s.optimizer);
        mpt_backward(loss_of(net, i, MPT_F32, 1));
        mpt_step(s.optimizer);
        mpt_step_end(c);
        CHECK_CLOSE(s.lr[0], 1e-4 * pow(0.5, i), 1e-12, 0);
        CHECK_CLOSE(s.lr[3], 0.5 * pow(0.5, i), 1e-12, 0);
        CHECK(s.decay[0] == 0.5 && s.decay[3] == 0.25 && s.group[2] == 0 && s.group[3] == 1);
    }
    mpt_set_option(s.optimizer, 1, "weight_decay", 0.125);
    mpt_set_lr(s.optimizer, 0, 8);
    mpt_clear_grad(mpt_parameter(net, "0.bias")); /* is left alone */
    const int calls = s.calls;
    mpt_step(s.optimizer);
    CHECK(s.calls == calls + 3 && s.step[1] == 4 && s.step[0] == 5 && s.decay[3] == 0.125);
    CHECK_CLOSE(s.lr[0], 8 * pow(0.5, 4), 1e-12, 0);
    mpt_set_option(s.optimizer, 0, "momentum", 1);
    check_error(c, MPT_ERROR_ARGUMENT, "there are weight_decay");
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    cycle.total = 10;
    sign_sgd second;
    mpt_one_cycle(sign_optimizer(new_net(c), &second), &cycle, MPT_PER_STEP);
    check_error(c, MPT_ERROR_STATE, "no momentum that could cycle");
    mpt_destroy(c);
}

TEST(gradients_accumulate) {
    static float first[PARAMETERS][LARGEST], both[PARAMETERS][LARGEST], sum[PARAMETERS][LARGEST];
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    sign_sgd s;
    sign_optimizer(net, &s);
    mpt_backward(loss_of(net, 0, MPT_F32, 1));
    read_all(net, first, true);
    mpt_backward(loss_of(net, 1, MPT_F32, 1));
    read_all(net, both, true);
    read_all(net, sum, false);
    for (int k = 0; k < PARAMETERS; k++)
        for (int e = 0; e < sizes[k]; e++) sum[k][e] = by_hand(sum[k][e], both[k][e], 1e-4, 0.5);
    mpt_step(s.optimizer);
    read_all(net, first, false);
    for (int k = 0; k < PARAMETERS; k++) CHECK_EQ_BITS(first[k], sum[k], (size_t)sizes[k] * 4);
    mpt_destroy(c);
}

/* An update runs without history and outside autocast, wherever the step is called. */
static mpt_status looking_update(mpt_context *c, const mpt_user_update *u, void *user) {
    mpt_tensor leaf = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 2));
    mpt_requires_grad(leaf, true);
    mpt_tensor product = mpt_matmul(leaf, leaf);
    CHECK_EQ_INT(mpt_get_dtype(product), MPT_F32);
    mpt_add_(leaf, leaf); /* what history would refuse */
    mpt_autocast_begin(c, MPT_F16); /* closed behind it */
    mpt_no_grad_begin(c);
    ++*(int *)user;
    return mpt_fill_(u->value, 3).slot ? MPT_OK : mpt_error_code(c);
}

TEST(what_is_around_an_update) {
    int calls = 0;
    float values[OUT];
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    config.update = looking_update, config.user = &calls;
    mpt_optimizer optimizer = mpt_user_optimizer(net, &config);
    mpt_step_begin(c);
    mpt_backward(loss_of(net, 0, MPT_F32, 1));
    mpt_autocast_begin(c, MPT_BF16);
    mpt_step(optimizer);
    CHECK_EQ_INT(mpt_get_dtype(mpt_matmul(mpt_ones(c, MPT_F32, MPT_SHAPE(2, 2)),
                                          mpt_ones(c, MPT_F32, MPT_SHAPE(2, 2)))),
                 MPT_BF16);
    mpt_autocast_end(c);
    mpt_backward(loss_of(net, 0, MPT_F32, 1)); /* history again */
    mpt_step_end(c);
    CHECK_EQ_INT(calls, PARAMETERS);
    mpt_read_f32(mpt_parameter(net, "2.bias"), values, OUT);
    for (int i = 0; i < OUT; i++) CHECK(values[i] == 3);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Errors ==== */

TEST(an_error_changes_nothing) {
    static const char *const says[MOODS] = {"",
                                            "the update of 2.weight reported",
                                            "mpt_matmul",
                                            "of the indices is 7",
                                            "an optimizer's update is under way",
                                            "mpt_backward before mpt_step",
                                            "call this before mpt_step",
                                            "call this before mpt_step",
                                            "the update of 2.weight began or ended a scope",
                                            "the update of 2.weight began or ended a scope",
                                            "the update of 2.weight released a tensor",
                                            "the update of 2.weight began or ended",
                                            "mpt_matmul"};
    for (int mood = REPORTS; mood < MOODS; mood++) {
        sign_sgd s, twin;
        mpt_context *c = mpt_create(NULL);
        mpt_module net = new_net(c), other = new_net(c);
        sign_optimizer(net, &s), sign_optimizer(other, &twin);
        mpt_copy_module(other, net);
        for (int i = 0; i < 3; i++) {
            const uint64_t weights = mpt_module_hash(net), state = mpt_optimizer_hash(s.optimizer);
            s.mood = i == 1 ? (enum mood)mood : WILLING, s.at = s.calls + 2;
            mpt_step_begin(c);
            mpt_zero_grad(s.optimizer);
            s.loss = loss_of(net, i, MPT_F32, 1);
            mpt_backward_from(s.loss, mpt_null_tensor(), true);
            mpt_step(s.optimizer);
            if (i == 1) {
                CHECK(mpt_failed(c));
                CHECK_CONTAINS(mpt_error(c), says[mood]);
                mpt_clear_error(c);
            }
            mpt_step_end(c);
            CHECK((weights == mpt_module_hash(net)) == (i == 1));
            CHECK((state == mpt_optimizer_hash(s.optimizer)) == (i == 1));
            if (i == 1) continue;
            mpt_step_begin(c);
            mpt_zero_grad(twin.optimizer);
            mpt_backward(loss_of(other, i, MPT_F32, 1));
            mpt_step(twin.optimizer);
            mpt_step_end(c);
        }
        CHECK(mpt_optimizer_hash(s.optimizer) == mpt_optimizer_hash(twin.optimizer));
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

#ifndef MPTRAIN_NO_GRAPH
static mpt_status captured_update(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    sign_sgd *s = (sign_sgd *)user;
    (void)x, (void)y;
    mpt_step_begin(c);
    mpt_zero_grad(s->optimizer);
    mpt_backward(mpt_sum(mpt_parameter(s->net, "0.bias"), MPT_ALL_DIMS, false));
    mpt_step(s->optimizer);
    return mpt_step_end(c);
}

TEST(captured_steps_and_recordings_refuse) {
    sign_sgd s;
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    sign_optimizer(net, &s);
    mpt_captured step = mpt_capture(c, captured_update, &s);
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(1));
    for (int i = 0; i < 3 && !mpt_failed(c); i++) mpt_captured_step(step, x, x);
    check_error(c, MPT_ERROR_UNSUPPORTED, "neither captured steps nor recordings");
    const uint64_t hash = mpt_module_hash(net);
    mpt_backward(loss_of(net, 0, MPT_F32, 1));
    mpt_record_begin(c);
    mpt_step(s.optimizer);
    check_error(c, MPT_ERROR_UNSUPPORTED, "neither captured steps nor recordings");
    CHECK(hash == mpt_module_hash(net));
    mpt_destroy(c);
}
#endif

TEST(configs_that_are_refused) {
    mpt_context *c = mpt_create(NULL);
    mpt_module net = new_net(c);
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    mpt_user_optimizer(net, NULL);
    check_error(c, MPT_ERROR_ARGUMENT, "expected a config with an update");
    config.update = muon_update, config.states = 4;
    mpt_user_optimizer(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "0..3 states, got 4");
    config.states = 2, config.state_names[1] = "two words";
    mpt_user_optimizer(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "state_names[1] = \"two words\"");
    config.state_names[1] = "step";
    mpt_user_optimizer(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "neither \"master\" nor \"step\"");
    config.state_names[0] = "m", config.state_names[1] = "m";
    mpt_user_optimizer(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "two states are named \"m\"");
    config.state_names[1] = NULL, config.lr = -1;
    mpt_user_optimizer(net, &config);
    check_error(c, MPT_ERROR_ARGUMENT, "lr = -1");
    config.lr = 1;
    mpt_user_optimizer(net, &config); /* none of the failures holds the parameters */
    check_ok(c);
    mpt_destroy(c);
}

/* ==== What files keep, and memory ==== */

static void muon_steps(mpt_module net, mpt_optimizer optimizer, int from, int to) {
    for (int i = from; i < to; i++) {
        mpt_step_begin(net.context);
        mpt_zero_grad(optimizer);
        mpt_backward(loss_of(net, i, MPT_F32, 1));
        mpt_step(optimizer);
        mpt_step_end(net.context);
    }
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
static mpt_optimizer named_muon(mpt_module net, const char *name) {
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    config.update = muon_update, config.states = 1, config.state_names[0] = name;
    return mpt_user_optimizer(net, &config);
}

TEST(stopped_and_gone_on) {
    const char *path = test_tmp_path("own.safetensors");
    mpt_context *c[3];
    mpt_module net[3];
    mpt_optimizer optimizer[3];
    for (int i = 0; i < 3; i++) {
        c[i] = mpt_create(NULL), net[i] = new_net(c[i]);
        optimizer[i] = named_muon(net[i], i < 2 ? "momentum" : NULL);
    }
    muon_steps(net[0], optimizer[0], 0, 4);
    CHECK_EQ_INT(mpt_checkpoint_save(c[0], path), MPT_OK);
    CHECK_EQ_INT(mpt_checkpoint_load(c[1], path), MPT_OK);
    CHECK(mpt_state_hash(c[0]) == mpt_state_hash(c[1]));
    for (int i = 0; i < 2; i++) muon_steps(net[i], optimizer[i], 4, 9);
    CHECK(mpt_state_hash(c[0]) == mpt_state_hash(c[1]));
    CHECK_EQ_INT(mpt_applied_steps(optimizer[1]), 9);
    mpt_checkpoint_load(c[2], path); /* another name of its state */
    check_error(c[2], MPT_ERROR_FORMAT, "no mptrain.optimizer.0.net.0.0.weight.state0");
    for (int i = 0; i < 3; i++) mpt_destroy(c[i]);
}
#endif

TEST(steps_take_no_memory) {
    arena memory;
    mpt_config config = mpt_config_default();
    arena_use(&memory, &config);
    mpt_context *c = mpt_create(&config);
    mpt_module net = new_net(c);
    mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
    own.update = muon_update, own.states = 1;
    mpt_optimizer optimizer = mpt_user_optimizer(net, &own);
    muon_steps(net, optimizer, 0, 3);
    const int64_t calls = memory.calls;
    muon_steps(net, optimizer, 3, 9);
    CHECK_EQ_INT(memory.calls, calls);
    mpt_optimizer_destroy(optimizer);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK(memory.live == 0 && memory.torn == 0);
}

#ifndef MPTRAIN_NO_FIT
/* The short road takes them, too, in fp16 with a scaler. */
TEST(fits_take_them) {
    float x[64][IN];
    int64_t y[64];
    for (int i = 0; i < 64; i++) {
        y[i] = i % OUT;
        for (int k = 0; k < IN; k++) x[i][k] = (float)sin(i * 0.3 + k) + 2.0f * (k == i % OUT);
    }
    mpt_context *c = mpt_create(NULL);
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.count = 64, data.dtype = MPT_F32, data.shape = MPT_SHAPE(IN);
    data.inputs = x, data.targets = y;
    mpt_module net = mpt_sequential(c, new_net(c), mpt_nn_log_softmax(c, -1), MPT_END);
    mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
    own.update = muon_update, own.states = 1, own.lr = muon_lr;
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 1, config.precision = MPT_F16;
    mpt_optimizer optimizer = mpt_user_optimizer(net, &own);
    mpt_loader loader = mpt_loader_create(c, mpt_memory_dataset(c, &data), NULL);
    const double first = mpt_fit(net, optimizer, loader, &config).train_loss;
    config.epochs = 60;
    CHECK(mpt_fit(net, optimizer, loader, &config).train_loss < 0.5 * first);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}
#endif

/* Each allocation of making and of two steps is refused once: an error, and then all goes on. */
TEST(each_allocation_is_refused) {
    uint64_t whole = 0;
    for (int64_t n = 0; n < 1000; n++) {
        arena memory;
        mpt_config config = mpt_config_default();
        mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
        arena_use(&memory, &config);
        config.threads = 1;
        mpt_context *c = mpt_create(&config);
        mpt_module net = new_net(c);
        own.update = muon_update, own.states = 1;
        memory.fail_at = n ? memory.calls + n : 0, memory.failures = 1;
        mpt_optimizer optimizer = mpt_user_optimizer(net, &own);
        if (mpt_failed(c)) {
            check_error(c, MPT_ERROR_MEMORY, "");
            optimizer = mpt_user_optimizer(net, &own);
        }
        for (int i = 0; i < 2;) {
            const uint64_t before = mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer);
            muon_steps(net, optimizer, i, i + 1);
            if (!mpt_failed(c)) i++;
            if (!mpt_failed(c)) continue;
            check_error(c, MPT_ERROR_MEMORY, "");
            CHECK((mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer)) == before);
        }
        const uint64_t hash = mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer);
        if (n == 0) whole = hash;
        CHECK(hash == whole);
        mpt_destroy(c);
        CHECK(memory.live == 0 && memory.torn == 0);
        if (n > 0 && memory.refused == 0) break;
        CHECK(n < 999);
    }
}

TEST_TABLE = {T(sign_sgd_in_fp32),
              T(sign_sgd_in_bf16_with_masters),
              T(sign_sgd_in_fp16_skips),
              T(muon_against_double),
              T(muon_turns_tall_matrices),
              T(groups_and_schedules),
              T(gradients_accumulate),
              T(what_is_around_an_update),
              T(an_error_changes_nothing),
#ifndef MPTRAIN_NO_GRAPH
              T(captured_steps_and_recordings_refuse),
#endif
              T(configs_that_are_refused),
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
              T(stopped_and_gone_on),
#endif
              T(steps_take_no_memory),
#ifndef MPTRAIN_NO_FIT
              T(fits_take_them),
#endif
              T(each_allocation_is_refused)};
TEST_MAIN
