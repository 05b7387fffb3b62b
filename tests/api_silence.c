/* What has an effect that nobody wants is no longer silent: an error where it is surely wrong, one
   line in the log where it may be meant. And what looks like it, but is right, stays legal. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"

#include <math.h>

/* ==== A small net, and what the log hears ==== */

static char log_text[4096];
static int log_lines;

static void hear(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level < MPT_LOG_WARNING) return;
    size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", message);
    log_lines++;
}

typedef struct small {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_tensor x, y;
} small;

static mpt_context *new_context(void) {
    mpt_config config = mpt_config_default();
    config.log.write = hear;
    log_text[0] = '\0', log_lines = 0;
    return mpt_create(&config);
}

static small new_small(void) {
    small s;
    mpt_context *c = s.context = new_context();
    s.net =
        mpt_sequential(c, mpt_nn_linear(c, 2, 3), mpt_nn_tanh(c), mpt_nn_linear(c, 3, 2), MPT_END);
    s.optimizer = mpt_sgd(s.net, NULL);
    s.scaler = mpt_grad_scaler(c, NULL);
    s.x = mpt_ones(c, MPT_F32, MPT_SHAPE(4, 2));
    s.y = mpt_zeros(c, MPT_I64, MPT_SHAPE(4));
    return s;
}

static mpt_tensor loss_of(const small *s) {
    return mpt_cross_entropy(mpt_forward(s->net, s->x), s->y, NULL);
}

/* The error names all of that, and is over. */
static void check_named(mpt_context *c, mpt_status status, const char *a, const char *b) {
    mpt_synchronize(c);
    CHECK_EQ_INT(mpt_error_code(c), status);
    CHECK_CONTAINS(mpt_error(c), a);
    CHECK_CONTAINS(mpt_error(c), b);
    mpt_clear_error(c);
}

/* ==== Gradients know whether they are scaled ==== */

TEST(scaled_gradients_need_their_scaler) {
    small s = new_small();
    uint64_t before = mpt_module_hash(s.net);
    mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
    mpt_step(s.optimizer);
    check_named(s.context, MPT_ERROR_STATE, "gradient of 0.weight", "mpt_scaler_step");
    mpt_scaler off;
    mpt_scaler_config config = mpt_scaler_config_default();
    config.enabled = false;
    off = mpt_grad_scaler(s.context, &config);
    mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
    mpt_scaler_step(off, s.optimizer);
    check_named(s.context, MPT_ERROR_STATE, "scaled loss", "mpt_scaler_step");
    for (int k = 0; k < 3; k++) {
        mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
        if (k == 0) mpt_clip_grad_norm(s.optimizer, 1);
        if (k == 1) mpt_grad_norm(s.optimizer, 2);
        if (k == 2) mpt_clip_grad_value(s.optimizer, 1);
        check_named(s.context, MPT_ERROR_STATE, "scaled loss", "mpt_unscale");
    }
    CHECK(mpt_module_hash(s.net) == before);
    mpt_destroy(s.context);
}

TEST(a_scaler_needs_scaled_gradients) {
    small s = new_small();
    uint64_t before = mpt_module_hash(s.net);
    mpt_scaler other = mpt_grad_scaler(s.context, NULL);
    mpt_scale_loss(other, loss_of(&s));
    for (int k = 0; k < 4; k++) {
        mpt_backward(k == 3 ? mpt_scale_loss(s.scaler, loss_of(&s)) : loss_of(&s));
        if (k == 0) mpt_scale_loss(s.scaler, loss_of(&s));
        if (k == 1)
            mpt_unscale(s.scaler, s.optimizer);
        else
            mpt_scaler_step(k == 3 ? other : s.scaler, s.optimizer);
        check_named(s.context, MPT_ERROR_STATE, "gradient of 0.weight",
                    k == 3 ? "another scaler" : "not scaled");
    }
    mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s))); /* twice, in two updates */
    mpt_unscale(s.scaler, s.optimizer);
    mpt_scaler_update(s.scaler);
    mpt_unscale(s.scaler, s.optimizer);
    check_named(s.context, MPT_ERROR_STATE, "unscaled already", "mpt_step");
    CHECK(mpt_module_hash(s.net) == before);
    mpt_destroy(s.context);
}

TEST(sums_of_scaled_and_unscaled_gradients) {
    small s = new_small();
    for (int k = 0; k < 2; k++) {
        mpt_backward(k ? loss_of(&s) : mpt_scale_loss(s.scaler, loss_of(&s)));
        mpt_backward(k ? mpt_scale_loss(s.scaler, loss_of(&s)) : loss_of(&s));
        mpt_scaler_step(s.scaler, s.optimizer);
        check_named(s.context, MPT_ERROR_STATE, "sum of scaled and unscaled", "mpt_zero_grad");
    }
    mpt_destroy(s.context);
}

/* The generator's loss leaves gradients in the discriminator, whose own are cleared later: both
   loops of the tutorials, with a scaler. */
TEST(what_others_leave_is_no_fault) {
    small s = new_small();
    mpt_module first = mpt_child(s.net, "0"), last = mpt_child(s.net, "2");
    mpt_optimizer_destroy(s.optimizer);
    mpt_optimizer generator = mpt_adam(first, NULL), judge = mpt_adam(last, NULL);
    for (int i = 0; i < 5; i++) {
        mpt_step_begin(s.context);
        mpt_zero_grad(judge);
        mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
        mpt_scaler_step(s.scaler, judge);
        mpt_zero_grad(generator);
        mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
        mpt_scaler_step(s.scaler, generator);
        mpt_scaler_update(s.scaler);
        mpt_step_end(s.context);
    }
    check_ok(s.context);
    CHECK_EQ_INT(mpt_applied_steps(judge), 5);
    CHECK_EQ_INT(log_lines, 0);
    mpt_destroy(s.context);
}

/* Accumulation, steps after mpt_unscale, gradients that the user scaled or gave or wrote. */
TEST(what_pytorch_allows) {
    small s = new_small();
    for (int i = 0; i < 3; i++) mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
    mpt_scaler_step(s.scaler, s.optimizer);
    mpt_scaler_update(s.scaler);
    mpt_zero_grad(s.optimizer);
    mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
    mpt_unscale(s.scaler, s.optimizer);
    mpt_grad_norm(s.optimizer, 2);
    mpt_step(s.optimizer);
    mpt_scaler_update(s.scaler);
    check_ok(s.context);
    mpt_zero_grad(s.optimizer);
    mpt_backward(mpt_mul_scalar(loss_of(&s), 1024)); /* by hand */
    mpt_scaler_step(s.scaler, s.optimizer);
    mpt_scaler_update(s.scaler);
    mpt_zero_grad(s.optimizer);
    mpt_backward_from(loss_of(&s), mpt_full(s.context, MPT_F32, MPT_SCALAR, 65536), false);
    mpt_scaler_step(s.scaler, s.optimizer);
    mpt_scaler_update(s.scaler);
    check_ok(s.context);
    mpt_zero_grad(s.optimizer);
    mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
    for (int i = 0; i < mpt_parameter_count(s.net); i++) {
        mpt_tensor g = mpt_grad(mpt_parameter_at(s.net, i, NULL, 0));
        mpt_mul_(g, mpt_full(s.context, MPT_F32, MPT_SCALAR, 1.0 / mpt_get_scale(s.scaler)));
    }
    mpt_step(s.optimizer);
    check_ok(s.context);
    mpt_destroy(s.context);
}

static mpt_status scaled_backward(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const small *s = (const small *)user;
    mpt_step_begin(c);
    mpt_zero_grad(s->optimizer);
    mpt_backward(mpt_scale_loss(s->scaler, mpt_cross_entropy(mpt_forward(s->net, x), y, NULL)));
    return mpt_step_end(c);
}

TEST(captured_steps_know_it_too) {
    small s = new_small();
    mpt_captured captured = mpt_capture(s.context, scaled_backward, &s);
    for (int i = 0; i < 5; i++) {
        mpt_captured_step(captured, s.x, s.y);
        mpt_scaler_step(s.scaler, s.optimizer);
        mpt_scaler_update(s.scaler);
        check_ok(s.context);
    }
    CHECK_EQ_INT(mpt_captured_count(captured), 3);
    mpt_captured_step(captured, s.x, s.y);
    CHECK_EQ_INT(mpt_captured_count(captured), 4);
    mpt_step(s.optimizer);
    check_named(s.context, MPT_ERROR_STATE, "scaled loss", "mpt_scaler_step");
    mpt_destroy(s.context);
}

/* ==== Gradients that nobody clears ==== */

TEST(a_forgotten_zero_grad_is_named) {
    small s = new_small();
    int i = 0;
    for (; i < 20 && !mpt_failed(s.context); i++) {
        mpt_backward(mpt_scale_loss(s.scaler, loss_of(&s)));
        mpt_scaler_step(s.scaler, s.optimizer);
        mpt_scaler_update(s.scaler);
    }
    CHECK_EQ_INT(i, 2);
    check_named(s.context, MPT_ERROR_STATE, "never cleared for 1 step:", "mpt_zero_grad");
    CHECK_EQ_INT(log_lines, 1); /* the error */
    for (i = 0; i < 9; i++) {
        mpt_backward(loss_of(&s));
        mpt_step(s.optimizer);
    }
    check_ok(s.context);
    CHECK_EQ_INT(log_lines, 2);
    CHECK_CONTAINS(log_text, "never cleared for 3 steps");
    mpt_destroy(s.context);
}

/* Several backward passes before one step are accumulation, wherever the gradients are cleared;
   two optimizers over one net, each clearing its own, forget nothing. */
TEST(accumulation_is_no_forgotten_zero_grad) {
    for (int k = 0; k < 3; k++) {
        small s = new_small();
        mpt_sgd_config config = mpt_sgd_config_default();
        config.allow_shared = true;
        mpt_optimizer other = mpt_sgd(mpt_child(s.net, "2"), &config);
        for (int i = 0; i < 9; i++) {
            if (k == 0) mpt_zero_grad(s.optimizer);
            for (int b = 0; b < 4; b++) mpt_backward(loss_of(&s));
            mpt_step(s.optimizer);
            if (k == 1) mpt_zero_grad(s.optimizer);
            if (k == 2) {
                mpt_zero_grad(other);
                mpt_backward(loss_of(&s));
                mpt_step(other);
                mpt_zero_grad(s.optimizer);
            }
        }
        check_ok(s.context);
        CHECK_EQ_INT(log_lines, 0);
        mpt_destroy(s.context);
    }
}

/* Where only the diagnosis of skipped steps can tell: the user gives the gradient. */
TEST(a_diagnosis_names_what_was_not_cleared) {
    small s = new_small();
    mpt_scale_loss(s.scaler, loss_of(&s));
    for (int i = 0; i < 200 && !mpt_failed(s.context); i++) {
        double seed = i ? 1.0 : INFINITY;
        mpt_backward_from(loss_of(&s), mpt_full(s.context, MPT_F32, MPT_SCALAR, seed), false);
        mpt_scaler_step(s.scaler, s.optimizer);
        mpt_scaler_update(s.scaler);
    }
    CHECK(strstr(mpt_error(s.context), "no op") == NULL);
    CHECK(strstr(mpt_error(s.context), "learning rate") == NULL);
    check_named(s.context, MPT_ERROR_NUMERIC, "never cleared for 99 steps", "mpt_zero_grad");
    mpt_destroy(s.context);
}

/* The last parameter's layer is the net itself: it has no path. */
TEST(a_net_of_one_layer_has_no_layer_bias) {
    mpt_context *c = new_context();
    mpt_module net = mpt_nn_linear(c, 2, 1);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_scaler_config config = mpt_scaler_config_default();
    config.fixed = true, config.init_scale = 3e38, config.max_scale = 0;
    mpt_scaler scaler = mpt_grad_scaler(c, &config);
    mpt_set_init(net, "weight", mpt_init_make(MPT_INIT_CONSTANT, 1e-3, 0));
    mpt_tensor x = mpt_full(c, MPT_F32, MPT_SHAPE(1, 2), 1e8);
    for (int i = 0; i < 200 && !mpt_failed(c); i++) {
        mpt_zero_grad(optimizer);
        mpt_tensor y = mpt_forward(net, x);
        mpt_backward(mpt_scale_loss(scaler, mpt_sum(mpt_mul_scalar(y, 1e-7), -1, false)));
        mpt_scaler_step(scaler, optimizer);
        mpt_scaler_update(scaler);
    }
    CHECK(strstr(mpt_error(c), "layer bias") == NULL);
    check_named(c, MPT_ERROR_NUMERIC, "(weight)", "keep the layer that has it in fp32");
    mpt_destroy(c);
}

/* ==== Null handles ==== */

/* What a program forgot to make, {0}, is an error that one look at mpt_failed finds. */
TEST(null_handles_stick) {
    small s = new_small();
    mpt_module no_module;
    mpt_optimizer no_optimizer;
    mpt_scaler no_scaler;
    mpt_loader no_loader;
    mpt_dataset no_data;
    mpt_schedule no_schedule;
    mpt_captured no_captured;
    mpt_batch batch;
    memset(&no_module, 0, sizeof no_module), memset(&no_optimizer, 0, sizeof no_optimizer);
    memset(&no_scaler, 0, sizeof no_scaler), memset(&no_loader, 0, sizeof no_loader);
    memset(&no_data, 0, sizeof no_data), memset(&no_schedule, 0, sizeof no_schedule);
    memset(&no_captured, 0, sizeof no_captured);
#define NULL_HANDLE(call, name) (call, check_named(s.context, MPT_ERROR_HANDLE, name, "null"))
    NULL_HANDLE(mpt_step(no_optimizer), "mpt_step");
    NULL_HANDLE(mpt_zero_grad(no_optimizer), "mpt_zero_grad");
    NULL_HANDLE(mpt_forward(no_module, s.x), "the module is");
    NULL_HANDLE(mpt_forward(s.net, mpt_null_tensor()), "input is");
    NULL_HANDLE(mpt_scale_loss(no_scaler, s.x), "the scaler is");
    NULL_HANDLE(mpt_unscale(no_scaler, s.optimizer), "the scaler is");
    NULL_HANDLE(mpt_scaler_update(no_scaler), "mpt_scaler_update");
    NULL_HANDLE(mpt_add_child(no_module, "a", s.net), "the module is");
    NULL_HANDLE(mpt_optimizer_add(no_optimizer, s.net, NULL, NULL), "the optimizer is");
    NULL_HANDLE(mpt_captured_step(no_captured, s.x, s.y), "the captured step is");
    NULL_HANDLE(mpt_loader_next(no_loader, &batch), "mpt_loader_next");
    NULL_HANDLE(mpt_dataset_size(no_data), "mpt_dataset_size");
    NULL_HANDLE(mpt_schedule_step(no_schedule), "mpt_schedule_step");
    NULL_HANDLE(mpt_adam(no_module, NULL), "mpt_adam");
    NULL_HANDLE(mpt_backward(mpt_null_tensor()), "mpt_backward");
    NULL_HANDLE(mpt_add(mpt_null_tensor(), mpt_null_tensor()), "mpt_add");
    NULL_HANDLE(mpt_item(mpt_null_tensor()), "mpt_item");
    NULL_HANDLE(mpt_fit(no_module, s.optimizer, no_loader, NULL), "the module is");
    NULL_HANDLE(mpt_fit(no_module, no_optimizer, no_loader, NULL), "mpt_fit");
    NULL_HANDLE(mpt_conv2d(mpt_null_tensor(), mpt_null_tensor(), mpt_null_tensor(), NULL),
                "mpt_conv2d");
    mpt_release(mpt_null_tensor());
    CHECK(!mpt_valid(mpt_null_tensor()));
    check_ok(s.context);
    mpt_destroy(s.context);
}

/* The last context that the thread made and that lives has the error; of none nobody hears. */
TEST(null_handles_find_the_last_context) {
    mpt_context *first = new_context(), *second = new_context();
    CHECK(mpt_item(mpt_null_tensor()) != 0);
    CHECK(!mpt_failed(first));
    check_named(second, MPT_ERROR_HANDLE, "mpt_item", "null");
    mpt_destroy(second);
    mpt_item(mpt_null_tensor());
    check_named(first, MPT_ERROR_HANDLE, "mpt_item", "null");
    mpt_destroy(first);
    CHECK(mpt_item(mpt_null_tensor()) != 0);
}

/* ==== Cleanup code ==== */

static void open_all(mpt_context *c) {
    mpt_scope_begin(c), mpt_step_begin(c), mpt_scope_begin(c);
    mpt_no_grad_begin(c), mpt_no_grad_begin(c), mpt_inference_begin(c), mpt_recompute_begin(c);
    mpt_autocast_begin(c, MPT_F16);
}

static void close_all(mpt_context *c) {
    mpt_autocast_end(c), mpt_recompute_end(c), mpt_inference_end(c);
    mpt_no_grad_end(c), mpt_no_grad_end(c);
    mpt_scope_end(c), mpt_step_end(c), mpt_scope_end(c);
}

/* What mpt_clear_error has closed may be ended once; more ends are an error as ever. */
TEST(ends_after_mpt_clear_error) {
    mpt_context *c = new_context();
    CHECK(!mpt_step_is_open(c) && !mpt_step_is_open(NULL));
    for (int i = 0; i < 2; i++) {
        open_all(c);
        CHECK(mpt_step_is_open(c));
        mpt_add(mpt_zeros(c, MPT_F32, MPT_SHAPE(2)), mpt_zeros(c, MPT_F32, MPT_SHAPE(3)));
        mpt_clear_error(c);
        CHECK(!mpt_step_is_open(c));
        if (i) mpt_no_grad_begin(c), mpt_no_grad_end(c); /* in between */
        close_all(c);
        check_ok(c);
    }
    mpt_step_end(c);
    check_named(c, MPT_ERROR_STATE, "mpt_step_end", "no step is open");
    mpt_scope_end(c);
    check_named(c, MPT_ERROR_STATE, "mpt_scope_end", "no scope is open");
    mpt_no_grad_end(c);
    check_named(c, MPT_ERROR_STATE, "mpt_no_grad_end", "no open region");
    mpt_autocast_end(c);
    check_named(c, MPT_ERROR_STATE, "mpt_autocast_end", "no open region");
    open_all(c);
    close_all(c);
    mpt_step_begin(c);
    mpt_item(mpt_zeros(c, MPT_F32, MPT_SHAPE(2)));
    mpt_clear_error(c);
    mpt_step_begin(c), mpt_step_end(c);
    mpt_step_end(c); /* the guard of a step that another has followed */
    check_named(c, MPT_ERROR_STATE, "mpt_step_end", "no step is open");
    mpt_destroy(c);
}

TEST(a_disabled_scaler_has_scale_1) {
    mpt_context *c = new_context();
    mpt_scaler_config config = mpt_scaler_config_default();
    config.enabled = false;
    mpt_scaler scaler = mpt_grad_scaler(c, &config);
    CHECK(mpt_get_scale(scaler) == 1 && mpt_scaler_statistics(scaler).scale == 1);
    mpt_scaler_state state = mpt_scaler_get_state(scaler);
    CHECK(state.scale == 1);
    mpt_set_scale(scaler, 8);
    mpt_scaler_set_state(scaler, &state);
    CHECK(mpt_scaler_get_state(scaler).scale == 1);
    check_ok(c);
    mpt_destroy(c);
}

/* ==== Messages name the place ==== */

static mpt_status waiting_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                  mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    mpt_synchronize(in[0].context);
    out[0] = mpt_relu(in[0]);
    return MPT_OK;
}

TEST(bad_labels_are_told_with_their_bounds) {
    mpt_context *c = new_context();
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(3, 4)), none = mpt_null_tensor();
    static const int64_t high[3] = {0, 17, 1}, low[3] = {0, 1, -1};
    static const float p[3] = {0, -0.25f, 1};
    mpt_cross_entropy(x, mpt_from(c, MPT_I64, MPT_SHAPE(3), high), NULL);
    check_named(c, MPT_ERROR_INDEX, "target of sample 1 is 17: expected a class number of 0 to 3",
                "ignore_index");
    mpt_nll_loss(x, mpt_from(c, MPT_I64, MPT_SHAPE(3), low), NULL);
    check_named(c, MPT_ERROR_INDEX, "target of sample 2 is -1:", "0 to 3");
    mpt_cross_entropy(mpt_ones(c, MPT_F32, MPT_SHAPE(1, 4, 3)),
                      mpt_from(c, MPT_I64, MPT_SHAPE(1, 3), high), NULL);
    check_named(c, MPT_ERROR_INDEX, "target of sample 0, position 1 is 17", "0 to 3");
    mpt_embedding(mpt_from(c, MPT_I64, MPT_SHAPE(3), high), x, -1);
    check_named(c, MPT_ERROR_INDEX, "element 1 of the indices is 17: expected 0 to 2", "launch");
    mpt_index_select(x, 1, mpt_from(c, MPT_I64, MPT_SHAPE(3), low));
    check_named(c, MPT_ERROR_INDEX, "element 2 of the indices is -1: expected 0 to 3", "launch");
    mpt_one_hot(mpt_from(c, MPT_I64, MPT_SHAPE(3), high), 5);
    check_named(c, MPT_ERROR_INDEX, "element 1 of the indices is 17: expected 0 to 4", "launch");
    mpt_binary_cross_entropy(mpt_from(c, MPT_F32, MPT_SHAPE(3), p),
                             mpt_ones(c, MPT_F32, MPT_SHAPE(3)), none, MPT_MEAN);
    check_named(c, MPT_ERROR_NUMERIC, "element 1 of the input is not in [0, 1] but -0.25",
                "logits");
    mpt_binary_cross_entropy(mpt_neg(mpt_ones(c, MPT_F32, MPT_SHAPE(2))),
                             mpt_ones(c, MPT_F32, MPT_SHAPE(2)), none, MPT_MEAN);
    check_named(c, MPT_ERROR_NUMERIC, "element 0 of the input is not in [0, 1] but -1",
                "takes logits");
    mpt_embedding(mpt_full(c, MPT_I64, MPT_SHAPE(2), 9), x, -1);
    check_named(c, MPT_ERROR_INDEX, "element 0 of the indices is 9: expected 0 to 2", "launch");
    mpt_cross_entropy(x, mpt_full(c, MPT_I64, MPT_SHAPE(3), 4), NULL);
    check_named(c, MPT_ERROR_INDEX, "target of sample 0 is 4: expected", "0 to 3");
    mpt_module_class cls; /* what a device tells late names no module, for it would be another */
    memset(&cls, 0, sizeof cls);
    cls.name = "waits", cls.forward = waiting_forward, cls.n_inputs = cls.n_outputs = 1;
    mpt_module net = mpt_sequential(c, mpt_module_create(c, &cls, NULL), MPT_END);
    mpt_cross_entropy(x, mpt_from(c, MPT_I64, MPT_SHAPE(3), high), NULL);
    mpt_forward(net, x);
    CHECK(strstr(mpt_error(c), ", module") == NULL);
    check_named(c, MPT_ERROR_INDEX, "target of sample 1 is 17", "0 to 3");
    mpt_destroy(c);
}

/* ==== Norms that are not finite ==== */

/* Gradients times k, clipped, without a step. */
static mpt_tensor clipped(const small *s, double k, double p) {
    mpt_zero_grad(s->optimizer);
    mpt_backward(mpt_mul_scalar(loss_of(s), k));
    return p == 2 ? mpt_clip_grad_norm(s->optimizer, 1) : mpt_clip_grad_norm_p(s->optimizer, 1, p);
}

static int times_told(const char *words) {
    int n = 0;
    for (const char *at = log_text; (at = strstr(at, words)) != NULL; at++) n++;
    return n;
}

/* On request they pass, as in PyTorch, but the log hears of a step that takes what they leave:
   once, and of no step that is left out or skipped. */
TEST(steps_after_norms_that_are_not_finite_are_told) {
    static const double bad[3] = {INFINITY, NAN, -INFINITY};
    for (int k = 0; k < 3; k++) {
        small s = new_small();
        double p = k == 1 ? INFINITY : 2;
        mpt_error_if_nonfinite(s.optimizer, false);
        uint64_t before = mpt_module_hash(s.net);
        for (int i = 0; i < 3; i++) { /* seen by the program, which leaves the step out */
            CHECK(!(mpt_item(clipped(&s, bad[k], p)) < 1e30));
            if (i == 1) continue;
            mpt_item(clipped(&s, 1, p));
            mpt_step(s.optimizer);
            CHECK(mpt_item(clipped(&s, 1, p)) < 1e30);
        }
        mpt_zero_grad(s.optimizer);
        mpt_backward(mpt_scale_loss(s.scaler, mpt_mul_scalar(loss_of(&s), bad[k])));
        mpt_unscale(s.scaler, s.optimizer);
        mpt_clip_grad_norm_p(s.optimizer, 1, p); /* the scaler skips the step */
        mpt_scaler_step(s.scaler, s.optimizer);
        mpt_scaler_update(s.scaler);
        CHECK_EQ_INT(mpt_step_outcome(s.scaler), MPT_OUTCOME_SKIPPED);
        clipped(&s, 1, p);
        mpt_step(s.optimizer);
        CHECK(mpt_item(mpt_grad_norm(s.optimizer, 2)) < 1e30);
        CHECK_EQ_INT(times_told("the norm was infinite or NaN"), 0);
        CHECK(mpt_module_hash(s.net) != before);
        for (int i = 0; i < 2; i++) {
            clipped(&s, bad[k], p);
            mpt_step(s.optimizer);
            mpt_item(loss_of(&s));
            CHECK_EQ_INT(times_told("the norm was infinite or NaN"), 1);
        }
        check_ok(s.context);
        mpt_destroy(s.context);
    }
}

/* Scores, or probabilities, where a loss wants the logarithms of these: told once, by the op that
   they come from, through views and casts. */
TEST(losses_of_what_they_do_not_take_are_told) {
    for (int k = 0; k < 10; k++) {
        small s = new_small();
        mpt_context *c = s.context;
        mpt_step_begin(c);
        mpt_autocast_begin(c, k & 1 ? MPT_BF16 : MPT_F32);
        mpt_tensor y = mpt_forward(s.net, s.x), labels = s.y;
        if (k / 2 == 1) y = mpt_log_softmax(y, 1);
        if (k / 2 == 2) y = mpt_softmax(y, 1);
        if (k / 2 == 3) y = mpt_permute(mpt_reshape(y, MPT_SHAPE(2, 2, 2)), MPT_SHAPE(0, 2, 1));
        if (k / 2 == 3) labels = mpt_zeros(c, MPT_I64, MPT_SHAPE(2, 2));
        for (int i = 0; i < 2; i++)
            k / 2 < 4 ? mpt_nll_loss(y, labels, NULL) : mpt_cross_entropy(y, labels, NULL);
        mpt_autocast_end(c);
        mpt_no_grad_begin(c);
        mpt_nll_loss(mpt_zeros(c, MPT_F32, MPT_SHAPE(4, 2)), s.y, NULL); /* from nowhere known */
        mpt_no_grad_end(c);
        CHECK_EQ_INT(log_lines, k / 2 != 1 && k / 2 != 4);
        if (log_lines) CHECK_CONTAINS(log_text, k / 2 == 2 ? "from softmax" : "from linear");
        if (log_lines) CHECK_CONTAINS(log_text, "mpt_nll_loss: the input comes");
        mpt_cross_entropy(mpt_softmax(mpt_forward(s.net, s.x), 1), s.y, NULL);
        CHECK_EQ_INT(log_lines, 1);
        if (k / 2 == 1) CHECK_CONTAINS(log_text, "leave the softmax out");
        mpt_step_end(c);
        check_ok(c);
        mpt_destroy(c);
    }
}

/* Unless they are let pass they are errors, and the step does nothing. */
TEST(norms_that_are_not_finite_are_errors) {
    small s = new_small();
    uint64_t before = mpt_module_hash(s.net);
    for (int k = 0; k < 4; k++) {
        clipped(&s, k & 1 ? NAN : INFINITY, k & 2 ? 2 : 1);
        mpt_step(s.optimizer);
        check_named(s.context, MPT_ERROR_NUMERIC, "norm of the gradients is nan", "no step");
        CHECK(mpt_module_hash(s.net) == before);
    }
    mpt_tensor half = mpt_full(s.context, MPT_F32, MPT_SHAPE(2), 0.5); /* of the same status */
    mpt_binary_cross_entropy(mpt_full(s.context, MPT_F32, MPT_SHAPE(2), 2), half, mpt_null_tensor(),
                             MPT_MEAN);
    check_named(s.context, MPT_ERROR_NUMERIC, "element 0 of the input", "[0, 1]");
    for (int k = 0; k < 2; k++) { /* the scaler skips the step, twice */
        mpt_zero_grad(s.optimizer);
        mpt_backward(mpt_scale_loss(s.scaler, mpt_mul_scalar(loss_of(&s), k ? NAN : INFINITY)));
        mpt_unscale(s.scaler, s.optimizer);
        mpt_clip_grad_norm(s.optimizer, 1);
        mpt_scaler_step(s.scaler, s.optimizer);
        mpt_scaler_update(s.scaler);
        CHECK_EQ_INT(mpt_step_outcome(s.scaler), MPT_OUTCOME_SKIPPED);
        check_ok(s.context);
    }
    clipped(&s, INFINITY, 2); /* the update of before is over */
    mpt_step(s.optimizer);
    check_named(s.context, MPT_ERROR_NUMERIC, "norm of the gradients", "no step");
    CHECK(mpt_module_hash(s.net) == before);
    mpt_error_if_nonfinite(s.optimizer, false);
    CHECK(!(mpt_item(clipped(&s, INFINITY, 2)) < 1e30));
    clipped(&s, 1, 2);
    mpt_step(s.optimizer);
    check_ok(s.context);
    CHECK(mpt_module_hash(s.net) != before);
    mpt_destroy(s.context);
}

TEST_TABLE = {
    T(scaled_gradients_need_their_scaler),
    T(a_scaler_needs_scaled_gradients),
    T(sums_of_scaled_and_unscaled_gradients),
    T(what_others_leave_is_no_fault),
    T(what_pytorch_allows),
    T(captured_steps_know_it_too),
    T(a_forgotten_zero_grad_is_named),
    T(accumulation_is_no_forgotten_zero_grad),
    T(a_diagnosis_names_what_was_not_cleared),
    T(a_net_of_one_layer_has_no_layer_bias),
    T(null_handles_stick),
    T(null_handles_find_the_last_context),
    T(ends_after_mpt_clear_error),
    T(a_disabled_scaler_has_scale_1),
    T(bad_labels_are_told_with_their_bounds),
    T(steps_after_norms_that_are_not_finite_are_told),
    T(norms_that_are_not_finite_are_errors),
    T(losses_of_what_they_do_not_take_are_told),
};
TEST_MAIN
