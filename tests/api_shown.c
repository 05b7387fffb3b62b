/* api_shown.c: the examples of the reference page, one or more for each group of declarations.
 *
 * `make reference` prints them under their groups, and fails where a group has none. An example
 * begins with a comment that names its group, as the group's banner does, and what it shows; it
 * ends with the test behind that comment. What stands before the test is printed as it is, then
 * the test's body, with assert for CHECK and "x" for test_tmp_path("x"). So what is below is
 * written for readers of the manual: it uses nothing else of the harness, and no helper that they
 * do not see. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <pthread.h>
#endif
#include "harness.h"

#ifdef _WIN32 /* what an example needs of pthread.h */
typedef struct pthread_t {
    HANDLE handle;
    void *(*run)(void *argument);
    void *argument;
} pthread_t;

static DWORD WINAPI pthread_main(void *thread) {
    ((pthread_t *)thread)->run(((pthread_t *)thread)->argument);
    return 0;
}

static void pthread_create(pthread_t *thread, const void *attributes, void *(*run)(void *),
                           void *argument) {
    (void)attributes;
    thread->run = run, thread->argument = argument;
    thread->handle = CreateThread(NULL, 0, pthread_main, thread, 0, NULL);
    if (!thread->handle) abort();
}

static void pthread_join(pthread_t thread, void **result) {
    (void)result;
    WaitForSingleObject(thread.handle, INFINITE);
    CloseHandle(thread.handle);
}
#endif

#ifdef MPTRAIN_NO_STDIO
#define mpt_log_stderr NULL
#endif

/* Each example ends without an error. */
#define mpt_destroy(ctx) (CHECK_EQ_STR(mpt_error(ctx), ""), mpt_destroy(ctx))

/* ==== Basic types: handles and shapes are values; a null handle leaves something out */
TEST(basic_types) {
    const float values[6] = {1, 2, 3, 4, 5, 6};
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(2, 3), values);
    mpt_tensor weight = mpt_ones(ctx, MPT_F32, MPT_SHAPE(1, 3));
    mpt_tensor no_bias = mpt_null_tensor();
    mpt_tensor y = mpt_linear(x, weight, no_bias, MPT_ACTIVATION_NONE); /* the rows' sums */
    mpt_shape shape = mpt_get_shape(y);
    float sums[2];
    mpt_read_f32(y, sums, 2);
    CHECK(shape.rank == 2 && shape.dim[0] == 2 && sums[0] == 6 && sums[1] == 15);
    mpt_destroy(ctx);
}

/* ==== Basic types: what fails gives a null handle, and what gets one passes it on */
TEST(basic_types_of_errors) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor a = mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 3));
    mpt_tensor b = mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 3));
    mpt_tensor wrong = mpt_matmul(a, b);       /* [2, 3] x [2, 3]: the error that mpt_error tells */
    mpt_tensor also_null = mpt_relu(wrong);    /* does nothing, and leaves that error as it is */
    if (mpt_failed(ctx)) mpt_clear_error(ctx); /* one check for all of it; from here, calls work */
    mpt_tensor right = mpt_matmul(a, mpt_transpose(b, 0, 1));
    CHECK(!mpt_valid(wrong) && !mpt_valid(also_null) && mpt_valid(right));
    mpt_destroy(ctx);
}

/* ==== Context: a seed, two threads, a log; what this machine computes best in */
TEST(context) {
    mpt_config config = mpt_config_default();
    config.seed = 7, config.threads = 2;
    config.log.write = mpt_log_stderr; /* warnings and errors; or a function of yours */
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return; /* the log tells why, and mpt_error(NULL) */
    const char *reason;
    mpt_dtype precision = mpt_precision_auto(ctx, &reason);
    char text[400];
    snprintf(text, sizeof text, "%s trains best in %s: %s", mpt_device_name(ctx),
             mpt_dtype_name(precision), reason);
    CHECK(strstr(text, " trains best in ") != NULL);
    mpt_destroy(ctx);
}

/* ==== Context: inference from several threads, a context for each, with one copy of the weights */
typedef struct request {
    mpt_context *ctx;
    mpt_module net;
    float input[4], output[2];
} request;

static void *answer(void *argument) {
    request *r = (request *)argument;
    mpt_inference_begin(r->ctx);
    mpt_tensor x = mpt_from(r->ctx, MPT_F32, MPT_SHAPE(1, 4), r->input);
    mpt_read_f32(mpt_forward(r->net, x), r->output, 2);
    mpt_inference_end(r->ctx);
    return NULL;
}

TEST(context_in_threads) {
    mpt_config config = mpt_config_default();
    config.threads = 1; /* each computes with the thread that uses it */
    mpt_context *ctx = mpt_create(&config);
    mpt_module net = mpt_nn_linear(ctx, 4, 2); /* and its training */
    request r[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++) r[i].input[k] = 1.0f;
        r[i].ctx = mpt_create(&config);
        r[i].net = mpt_nn_linear(r[i].ctx, 4, 2);
        mpt_share_module(r[i].net, net); /* uses both contexts, so before the thread */
        pthread_create(&threads[i], NULL, answer, &r[i]);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        mpt_destroy(r[i].ctx);
    }
    CHECK(r[0].output[0] == r[1].output[0] && r[0].output[1] == r[2].output[1]);
    mpt_destroy(ctx);
}

/* ==== Errors: a loop that leaves out the step of a bad batch */
TEST(errors) {
    const int64_t labels[4] = {0, 2, 9, 1}; /* there is no class 9 */
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 2, 3);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    char message[300] = "";
    for (int i = 0; i < 4; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(1, 2));
        mpt_tensor y = mpt_from(ctx, MPT_I64, MPT_SHAPE(1), &labels[i]);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
        mpt_zero_grad(opt);
        mpt_backward(loss);
        if (mpt_item(loss) < 100.0) mpt_step(opt); /* mpt_item waits: the device tells its errors */
        mpt_step_end(ctx);                         /* after an error, this does nothing either */
        if (!mpt_failed(ctx)) continue;
        snprintf(message, sizeof message, "batch %d: %s", i, mpt_error(ctx));
        mpt_clear_error(ctx); /* ends the step and drops its gradients; weights never changed */
    }
    CHECK(strstr(message, "batch 2") && mpt_applied_steps(opt) == 3 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Errors: a function that cleans up after itself, whatever happened in it */
static bool train_once(mpt_context *ctx, mpt_module net, mpt_optimizer opt, const int64_t *label) {
    mpt_step_begin(ctx);
    mpt_autocast_begin(ctx, MPT_BF16);
    mpt_tensor x = mpt_ones(ctx, MPT_F32, MPT_SHAPE(1, 2));
    mpt_tensor y = mpt_from(ctx, MPT_I64, MPT_SHAPE(1), label);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
    const bool good = mpt_item(loss) < 100.0; /* not when it is NaN, as after an error */
    if (!good) mpt_clear_error(ctx);          /* closes the region and the step, */
    mpt_autocast_end(ctx);                    /* which these may still do then, */
    if (good) mpt_zero_grad(opt), mpt_backward(loss), mpt_step(opt);
    mpt_step_end(ctx); /* up to the next step's begin */
    return good;
}

TEST(errors_and_cleanup) {
    const int64_t labels[3] = {0, 9, 2};
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 2, 3);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    int good = 0;
    for (int i = 0; i < 3; i++) good += train_once(ctx, net, opt, &labels[i]);
    CHECK(good == 2 && mpt_applied_steps(opt) == 2 && !mpt_step_is_open(ctx));
    mpt_destroy(ctx);
}

/* ==== Memory: the largest batch within a limit */
TEST(memory) {
    mpt_config config = mpt_config_default();
    config.memory_limit = 16 << 20; /* bytes */
    mpt_context *ctx = mpt_create(&config);
    mpt_module net = mpt_nn_linear(ctx, 64, 64);
    int64_t batch = 65536;
    for (; batch > 0; batch /= 2) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(batch, 64));
        mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
        mpt_step_end(ctx);
        if (!mpt_failed(ctx)) break;
        mpt_clear_error(ctx); /* the error was MPT_ERROR_MEMORY */
        mpt_memory_trim(ctx);
    }
    mpt_memory_stats now = mpt_memory(ctx);
    CHECK(batch >= 1024 && batch < 65536 && now.peak[MPT_MEMORY_ACTIVATION] < 16 << 20);
    mpt_destroy(ctx);
}

/* ==== Memory: what a training takes, before it takes it */
static mpt_status two_steps(mpt_context *ctx, int64_t batch, void *user) {
    mpt_module net = mpt_nn_linear(ctx, 64, 64);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    (void)user;
    for (int i = 0; i < 2; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(batch, 64));
        mpt_zero_grad(opt);
        mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    return mpt_error_code(ctx);
}

TEST(memory_planned) {
    mpt_memory_stats stats;
    mpt_plan(NULL, two_steps, 1000, NULL, &stats);
    CHECK(stats.peak[MPT_MEMORY_MOMENT] >= 2 * 4 * (64 * 64 + 64));
    CHECK(stats.total_peak >= 4 * 64 * 1000);
    int64_t most = mpt_largest_batch(NULL, two_steps, NULL, 16 << 20, 1000000);
    CHECK(most > 10000 && most < 65536);
}

/* ==== Modules: as few of them run again by backward as it takes for a batch to fit */
static mpt_module deep(mpt_context *ctx) {
    mpt_module layers[8];
    for (int i = 0; i < 8; i++)
        layers[i] = mpt_sequential(ctx, mpt_nn_linear(ctx, 64, 64), mpt_nn_tanh(ctx),
                                   mpt_nn_linear(ctx, 64, 64), mpt_nn_tanh(ctx), MPT_END);
    return mpt_sequential_array(ctx, layers, 8);
}
static mpt_status two_deep_steps(mpt_context *ctx, int64_t batch, void *user) {
    mpt_module net = deep(ctx);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    (void)user;
    for (int i = 0; i < 2; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(batch, 64));
        mpt_zero_grad(opt);
        mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    return mpt_error_code(ctx);
}

TEST(layers_run_again_to_fit) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = deep(ctx);
    mpt_memory_stats stats; /* with none of them run again */
    mpt_plan(NULL, two_deep_steps, 4000, NULL, &stats);
    int64_t some = mpt_recompute_to_fit(net, "*", two_deep_steps, 4000, NULL, stats.held / 4 * 3);
    CHECK(some > 0 && some < 8); /* the first ones */
    mpt_destroy(ctx);
}

/* ==== Autograd: least memory, for about a third more time. Parts of a deep net are run again by
   backward, one after the other */
static mpt_status squeeze(
    mpt_context *context, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)context, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_tanh(mpt_mul_scalar(mpt_gelu(in[0]), 0.5));
    return MPT_OK;
}

TEST(autograd_recomputes) {
    int64_t peak[2];
    for (int parts = 0; parts <= 4; parts += 4) {
        mpt_context *ctx = mpt_create(NULL);
        mpt_module layers[16];
        for (int i = 0; i < 16; i++)
            layers[i] = mpt_sequential(ctx, mpt_nn_linear(ctx, 32, 32), mpt_nn_gelu(ctx),
                                       mpt_nn_tanh(ctx), MPT_END);
        mpt_module net = mpt_sequential_array(ctx, layers, 16);
        mpt_recompute_module(net, parts); /* 0: not at all */
        mpt_step_begin(ctx);
        mpt_tensor y = mpt_forward(net, mpt_randn(ctx, MPT_F32, MPT_SHAPE(256, 32))), z;
        mpt_recompute_call(ctx, squeeze, NULL, &y, 1, &z, 1); /* the same for a function */
        mpt_backward(mpt_mean(z, MPT_ALL_DIMS, false));
        mpt_step_end(ctx);
        peak[parts / 4] = mpt_memory(ctx).peak[MPT_MEMORY_ACTIVATION];
        CHECK(!mpt_failed(ctx));
        mpt_destroy(ctx);
    }
    CHECK(peak[1] < peak[0] / 2);
}

/* ==== Lifetime: what a step made ends with it, but for what is kept */
TEST(lifetime) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor best = mpt_null_tensor();
    double highest = -1.0;
    for (int i = 0; i < 5; i++) {
        mpt_step_begin(ctx);
        mpt_tensor guess = mpt_rand(ctx, MPT_F32, MPT_SHAPE(8));
        double score = mpt_item(mpt_sum(guess, MPT_ALL_DIMS, false));
        if (score > highest) {
            highest = score;
            if (mpt_valid(best)) mpt_release(best); /* the one before */
            best = mpt_keep(guess);
        }
        mpt_step_end(ctx); /* guess and its sum are gone */
    }
    CHECK(mpt_valid(best) && mpt_item(mpt_sum(best, MPT_ALL_DIMS, false)) == highest);
    mpt_destroy(ctx);
}

/* ==== Lifetime: a loop that is left in the middle of a step */
TEST(lifetime_of_a_step) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 4, 1);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    for (int i = 0; i < 1000; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(16, 4));
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), mpt_mean(x, 1, true), MPT_MEAN);
        if (mpt_item(loss) < 0.01) break; /* good enough */
        mpt_zero_grad(opt);
        mpt_backward(loss);
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    if (mpt_step_is_open(ctx)) mpt_step_end(ctx);
    CHECK(!mpt_step_is_open(ctx) && mpt_step_number(ctx) <= 1000 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Tensors: made, cut, joined, sorted, read */
TEST(tensors) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor x = mpt_reshape(mpt_arange(ctx, MPT_F32, 6), MPT_SHAPE(2, 3)); /* 0 1 2; 3 4 5 */
    mpt_tensor last = mpt_slice(x, 1, -1, 3, 1); /* a view of the column 2; 5 */
    mpt_tensor parts[2] = {x, last}, indices;
    mpt_tensor wide = mpt_cat(parts, 2, 1);                    /* 0 1 2 2; 3 4 5 5 */
    mpt_tensor largest = mpt_topk(wide, 2, 1, true, &indices); /* 2 2; 5 5, at 2 3; 2 3 */
    float values[4];
    int64_t where[4];
    char text[200];
    mpt_read_f32(largest, values, 4);
    mpt_read(indices, where, sizeof where);
    mpt_format(wide, NULL, text, sizeof text); /* to print */
    CHECK(values[0] == 2 && values[3] == 5 && where[0] == 2 && where[1] == 3 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Operations: columns to mean 0 and deviation 1, and their correlations */
TEST(operations) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor noise = mpt_randn(ctx, MPT_F32, MPT_SHAPE(100, 3));
    mpt_tensor x = mpt_cumsum(noise, 1); /* the columns have to do with one another */
    mpt_tensor centred = mpt_sub(x, mpt_mean(x, 0, true)); /* [100, 3] - [1, 3] */
    mpt_tensor z = mpt_div(centred, mpt_std(x, 0, true, 1.0));
    mpt_tensor products = mpt_matmul(mpt_transpose(z, 0, 1), z); /* [3, 3] */
    const mpt_tensor both[2] = {z, z};
    mpt_tensor same = mpt_einsum("ni,nj->ij", both, 2); /* by labels: the sum over n */
    mpt_tensor correlations = mpt_mul_scalar(products, 1.0 / 99.0);
    mpt_tensor outer = mpt_gt_scalar(mpt_abs(z), 2.0); /* bool */
    mpt_tensor cut = mpt_where(outer, mpt_mul_scalar(mpt_sign(z), 2.0), z);
    float r[9];
    mpt_read_f32(correlations, r, 9);
    CHECK(r[0] > 0.999f && r[0] < 1.001f && r[1] > 0.4f && r[1] == r[3] && mpt_valid(cut));
    CHECK(mpt_allclose(same, products, 1e-4, 1e-4));
    mpt_destroy(ctx);
}

/* ==== Operations: a loss of classes that are not equally frequent; some targets do not count */
TEST(operations_losses) {
    const float rarity[3] = {1, 1, 5};
    const int64_t classes[4] = {0, 2, -100, 1};
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor logits = mpt_randn(ctx, MPT_F32, MPT_SHAPE(4, 3));
    mpt_tensor targets = mpt_from(ctx, MPT_I64, MPT_SHAPE(4), classes);
    mpt_nll_config config = mpt_nll_config_default();
    config.weight = mpt_from(ctx, MPT_F32, MPT_SHAPE(3), rarity);
    config.label_smoothing = 0.1;
    mpt_tensor loss = mpt_cross_entropy(logits, targets, &config); /* the sample -100 is ignored */
    mpt_tensor hits = mpt_equal(mpt_argmax(logits, 1, false), targets);
    double right = mpt_item(mpt_sum(mpt_cast(hits, MPT_F32), 0, false));
    CHECK(mpt_item(loss) > 0.0 && right <= 3.0);
    mpt_destroy(ctx);
}

/* ==== Autograd: the lowest point of a function, by its gradient and without a module */
TEST(autograd) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(3));
    mpt_requires_grad(x, true);
    for (int i = 0; i < 60; i++) {
        mpt_step_begin(ctx);
        mpt_tensor squares = mpt_pow_scalar(mpt_add_scalar(x, -3.0), 2.0); /* (x - 3)^2 */
        mpt_backward(mpt_sum(squares, MPT_ALL_DIMS, false));
        mpt_no_grad_begin(ctx); /* the descent is not part of the function */
        mpt_add_(x, mpt_mul_scalar(mpt_grad(x), -0.1));
        mpt_no_grad_end(ctx);
        mpt_clear_grad(x);
        mpt_step_end(ctx);
    }
    CHECK(mpt_allclose(x, mpt_full(ctx, MPT_F32, MPT_SHAPE(3), 3.0), 1e-4, 0.0));
    mpt_destroy(ctx);
}

/* ==== Autograd: accumulation: four small batches make the step of a large one */
TEST(autograd_accumulates) {
    const int parts = 4;
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 8, 1);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    for (int i = 0; i < 3 * parts; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(16, 8));
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN);
        mpt_backward(mpt_mul_scalar(loss, 1.0 / parts)); /* gradients add up to the mean's */
        if (i % parts == parts - 1) {
            mpt_step(opt);
            mpt_zero_grad(opt);
        }
        mpt_step_end(ctx);
    }
    CHECK(mpt_applied_steps(opt) == 3 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Autocast: a forward pass in bf16, in which the last layer stays fp32 */
TEST(autocast) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 8, 16), mpt_nn_relu(ctx),
                                    mpt_nn_linear(ctx, 16, 2), MPT_END);
    mpt_set_dtype_policy(mpt_child(net, "2"), MPT_F32);
    mpt_step_begin(ctx);
    mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(4, 8));
    mpt_autocast_begin(ctx, MPT_BF16);
    mpt_tensor hidden = mpt_forward(mpt_child(net, "0"), x); /* bf16 */
    mpt_tensor y = mpt_forward(net, x);                      /* fp32, by the policy */
    mpt_tensor loss = mpt_mean(y, MPT_ALL_DIMS, false);      /* losses and sums are fp32 anyway */
    mpt_autocast_end(ctx);
    mpt_backward(loss); /* outside the region; gradients of parameters are fp32 */
    CHECK(mpt_get_dtype(hidden) == MPT_BF16 && mpt_get_dtype(y) == MPT_F32);
    mpt_step_end(ctx);
    mpt_destroy(ctx);
}

/* ==== Modules: one of your own, with a child and a parameter: x + gate tanh(linear(x)) */
static mpt_status gated_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor inner = mpt_tanh(mpt_forward(mpt_child(self, "inner"), in[0]));
    out[0] = mpt_add(in[0], mpt_mul(mpt_parameter(self, "gate"), inner));
    return MPT_OK;
}

static mpt_module gated(mpt_context *ctx, int64_t width) {
    const mpt_module_class cls = {"gated", gated_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(ctx, &cls, NULL);
    mpt_add_child(self, "inner", mpt_nn_linear(ctx, width, width));
    mpt_add_parameter(self, "gate", MPT_SHAPE(width), mpt_init_make(MPT_INIT_CONSTANT, 0.1, 0.0));
    return self;
}

TEST(modules) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net =
        mpt_sequential(ctx, gated(ctx, 8), gated(ctx, 8), mpt_nn_linear(ctx, 8, 1), MPT_END);
    mpt_tensor y = mpt_forward(net, mpt_ones(ctx, MPT_F32, MPT_SHAPE(4, 8)));
    mpt_tensor gate = mpt_parameter(net, "1.gate"); /* by its path, as in weights files */
    CHECK(mpt_numel(y) == 4 && mpt_numel(gate) == 8 && mpt_parameter_count(net) == 8);
    mpt_destroy(ctx);
}

/* ==== Modules: an op of your own: the sign, with a gradient as if it were the identity */
static mpt_status through_forward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_input(call, 0);
    mpt_op_save(call, 0, x); /* for backward */
    return mpt_op_set_output(call, 0, mpt_sign(x));
}

static mpt_status through_backward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_saved(call, 0), dy = mpt_op_output_grad(call, 0);
    mpt_tensor inside = mpt_le_scalar(mpt_abs(x), 1.0); /* none where |x| > 1 */
    mpt_tensor mask = mpt_cast(inside, mpt_get_dtype(dy));
    return mpt_op_set_input_grad(call, 0, mpt_mul(dy, mask));
}

TEST(modules_ops) {
    const mpt_op_class cls = {"through", MPT_AUTOCAST_INPUT, through_forward, through_backward, 1,
                              1};
    const float values[4] = {-2.0f, -0.5f, 0.5f, 2.0f};
    mpt_context *ctx = mpt_create(NULL);
    mpt_op op = mpt_op_register(ctx, &cls, NULL); /* once */
    mpt_tensor x = mpt_from(ctx, MPT_F32, MPT_SHAPE(4), values), y;
    mpt_requires_grad(x, true);
    mpt_op_apply(op, &x, 1, &y, 1); /* -1 -1 1 1 */
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
    float slopes[4];
    mpt_read_f32(mpt_grad(x), slopes, 4);
    CHECK(slopes[0] == 0 && slopes[1] == 1 && slopes[2] == 1 && slopes[3] == 0);
    mpt_destroy(ctx);
}

/* ==== Modules: hooks: how many of a layer's activations are alive, how large its gradient is */
static mpt_status count_alive(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    (void)in, (void)n_in, (void)n_out;
    mpt_tensor alive = mpt_cast(mpt_gt_scalar(out[0], 0.0), MPT_F32);
    *(double *)user = mpt_item(mpt_mean(alive, MPT_ALL_DIMS, false)); /* waits for a GPU */
    return mpt_error_code(self.context);
}

static mpt_status measure(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)output; /* of a module that has several */
    *(double *)user = mpt_item(mpt_sum(mpt_abs(*gradient), MPT_ALL_DIMS, false));
    return mpt_error_code(self.context);
}

TEST(modules_hooks) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 4, 16), mpt_nn_relu(ctx), MPT_END);
    double alive = -1, size = -1;
    mpt_hook_forward(mpt_child(net, "1"), count_alive, &alive);
    mpt_hook_backward(mpt_child(net, "1"), measure, &size);
    mpt_tensor y = mpt_forward(net, mpt_ones(ctx, MPT_F32, MPT_SHAPE(2, 4)));
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false)); /* 1 for each of 2 * 16 */
    CHECK(alive > 0 && alive < 1 && size == 32 && !mpt_failed(ctx));
    mpt_hook_forward(mpt_child(net, "1"), NULL, NULL); /* off, and the layers are fused again */
    mpt_hook_backward(mpt_child(net, "1"), NULL, NULL);
    mpt_destroy(ctx);
}

/* ==== Modules: an op of your own whose forward is C code: cube roots */
static mpt_status root_forward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_input(call, 0), y = mpt_null_tensor();
    const int64_t n = mpt_numel(x);
    float *values = (float *)malloc((size_t)n * sizeof *values);
    if (!values) return MPT_ERROR_MEMORY;
    if (mpt_read_f32(x, values, n) == MPT_OK) { /* waits, so not for captured steps */
        for (int64_t i = 0; i < n; i++) values[i] = cbrtf(values[i]);
        y = mpt_from(x.context, MPT_F32, mpt_get_shape(x), values);
    }
    free(values);
    mpt_op_save(call, 0, y);
    return mpt_op_set_output(call, 0, y);
}

static mpt_status root_backward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor y = mpt_op_saved(call, 0), dy = mpt_op_output_grad(call, 0);
    mpt_tensor slope = mpt_mul_scalar(mpt_mul(y, y), 3.0); /* dx / dy */
    return mpt_op_set_input_grad(call, 0, mpt_div(dy, slope));
}

TEST(modules_ops_in_c) {
    const mpt_op_class cls = {"root", MPT_AUTOCAST_FP32, root_forward, root_backward, 1, 1};
    mpt_context *ctx = mpt_create(NULL);
    mpt_op op = mpt_op_register(ctx, &cls, NULL);
    mpt_tensor x = mpt_full(ctx, MPT_F32, MPT_SHAPE(2, 2), 8.0), y;
    mpt_requires_grad(x, true);
    mpt_op_apply(op, &x, 1, &y, 1); /* 2 */
    mpt_backward(mpt_mean(y, MPT_ALL_DIMS, false));
    mpt_tensor slope = mpt_full(ctx, MPT_F32, MPT_SHAPE(2, 2), 1.0 / 12 / 4);
    CHECK(mpt_allclose(y, mpt_full(ctx, MPT_F32, MPT_SHAPE(2, 2), 2.0), 1e-6, 0.0));
    CHECK(mpt_allclose(mpt_grad(x), slope, 1e-6, 0.0));
    mpt_destroy(ctx);
}

/* ==== Modules: an op of your own with two inputs, silu(a) b, which saves no more than those */
static mpt_status gated_silu(mpt_op_call *call, void *user) {
    mpt_tensor a = mpt_op_input(call, 0), b = mpt_op_input(call, 1);
    ++*(int *)user; /* what mpt_op_register got */
    mpt_op_save(call, 0, a), mpt_op_save(call, 1, b);
    return mpt_op_set_output(call, 0, mpt_mul(mpt_silu(a), b)); /* by ops: on every device */
}

static mpt_status gated_silu_backward(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor a = mpt_op_saved(call, 0), b = mpt_op_saved(call, 1);
    mpt_tensor dy = mpt_op_output_grad(call, 0), s = mpt_sigmoid(a), silu = mpt_mul(a, s);
    mpt_tensor slope = mpt_sub(mpt_add(s, silu), mpt_mul(s, silu)); /* of silu */
    mpt_op_set_input_grad(call, 1, mpt_mul(dy, silu));
    return mpt_op_set_input_grad(call, 0, mpt_mul(dy, mpt_mul(slope, b)));
}

static mpt_tensor apply_op(mpt_context *ctx, void *user, const mpt_tensor *in, int n_in) {
    mpt_tensor out = mpt_null_tensor();
    (void)ctx;
    mpt_op_apply(*(mpt_op *)user, in, n_in, &out, 1);
    return out;
}

TEST(modules_ops_of_two) {
    const mpt_op_class cls = {
        "gated_silu", MPT_AUTOCAST_INPUT, gated_silu, gated_silu_backward, 2, 1};
    int calls = 0;
    mpt_context *ctx = mpt_create(NULL);
    mpt_op op = mpt_op_register(ctx, &cls, &calls);
    mpt_tensor in[2] = {mpt_randn(ctx, MPT_F32, MPT_SHAPE(3, 4)),
                        mpt_randn(ctx, MPT_F32, MPT_SHAPE(3, 4))};
    mpt_status status = mpt_gradcheck(ctx, apply_op, &op, in, 2, NULL); /* is backward right? */
    CHECK(status == MPT_OK && calls > 1);
    mpt_destroy(ctx);
}

/* ==== Optimizers: groups with rates of their own, a schedule, clipped gradients */
TEST(optimizers) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 8, 16), mpt_nn_relu(ctx),
                                    mpt_nn_linear(ctx, 16, 1), MPT_END);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    mpt_group_config plain = {1e-3, 0.0}; /* lr, weight decay: none for this bias */
    mpt_optimizer_add(opt, net, "2.bias", &plain);
    mpt_warmup(opt, 0.1, 10, 50, 1e-4, MPT_PER_STEP); /* up for 10 steps, down for 40 */
    for (int i = 0; i < 50; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(32, 8));
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN);
        mpt_zero_grad(opt);
        mpt_backward(loss);
        mpt_clip_grad_norm(opt, 1.0);
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    CHECK(mpt_optimizer_groups(opt) == 2 && mpt_get_lr(opt, 0) < 2e-4);
    mpt_destroy(ctx);
}

/* ==== Optimizers: gradients that do not outlive their updates */
TEST(updates_inside_backward) {
#ifdef MPTRAIN_NO_FRUGAL
    SKIP("what saves memory");
#else
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 8, 64), mpt_nn_relu(ctx),
                                    mpt_nn_linear(ctx, 64, 1), MPT_END);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    mpt_update_in_backward(opt, true);
    for (int i = 0; i < 20; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(32, 8));
        mpt_backward(mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN));
        mpt_step(opt); /* ends the step: no mpt_zero_grad, no clipping, no scaler */
        mpt_step_end(ctx);
    }
    CHECK_EQ_INT(mpt_memory(ctx).current[MPT_MEMORY_GRADIENT], 0);
    CHECK_EQ_STR(mpt_error(ctx), "");
    mpt_destroy(ctx);
#endif
}

/* ==== Optimizers: two nets under one optimizer, each with its rate */
TEST(optimizers_of_two_nets) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module encoder = mpt_nn_linear(ctx, 8, 2), decoder = mpt_nn_linear(ctx, 2, 8);
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.1;
    mpt_optimizer opt = mpt_sgd(encoder, &config);
    mpt_group_config slower = {0.05, 0.0};
    mpt_optimizer_add(opt, decoder, NULL, &slower); /* group 1: all of the other net */
    for (int i = 0; i < 10; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(16, 8));
        mpt_tensor copy = mpt_forward(decoder, mpt_forward(encoder, x));
        mpt_zero_grad(opt); /* of both */
        mpt_backward(mpt_mse_loss(copy, x, MPT_MEAN));
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    double rates = mpt_get_lr(opt, 0) + mpt_get_lr(opt, 1);
    CHECK(rates > 0.149 && rates < 0.151 && mpt_applied_steps(opt) == 10);
    mpt_destroy(ctx);
}

/* ==== Optimizers: one of your own: the sign of a running mean of gradients */
static mpt_status lean(mpt_context *ctx, const mpt_user_update *p, void *user) {
    const double momentum = *(const double *)user;
    mpt_mul_scalar_(p->state[0], momentum); /* all of it in place, by ops: on every device */
    mpt_add_(p->state[0], mpt_mul_scalar(p->gradient, 1 - momentum));
    mpt_mul_scalar_(p->value, 1 - p->lr * p->weight_decay);
    mpt_add_(p->value, mpt_mul_scalar(mpt_sign(p->state[0]), -p->lr));
    return mpt_error_code(ctx);
}

TEST(optimizers_of_your_own) {
    double momentum = 0.9, last = 1;
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 8, 1);
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    config.update = lean, config.user = &momentum, config.lr = 0.05;
    config.states = 1, config.state_names[0] = "momentum"; /* as checkpoints call it */
    mpt_optimizer opt = mpt_user_optimizer(net, &config);
    mpt_schedule_create(opt, mpt_cosine_lr(200, 0), MPT_PER_STEP);
    for (int i = 0; i < 200; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(32, 8));
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN);
        mpt_zero_grad(opt);
        mpt_backward(loss);
        mpt_step(opt); /* calls lean for "weight" and for "bias" */
        if (i == 199) last = mpt_item(loss);
        mpt_step_end(ctx);
    }
    CHECK(last < 1e-3 && mpt_applied_steps(opt) == 200);
    mpt_destroy(ctx);
}

/* ==== Optimizers: L-BFGS, which asks for the loss of several points: a net becomes a curve */
typedef struct curve {
    mpt_module net;
    mpt_tensor t, y;
} curve;

static mpt_tensor curve_loss(mpt_context *ctx, void *user) {
    curve *f = (curve *)user;
    (void)ctx;
    mpt_tensor loss = mpt_mse_loss(mpt_forward(f->net, f->t), f->y, MPT_MEAN);
    mpt_backward(loss); /* gradients were cleared */
    return loss;
}

TEST(optimizers_lbfgs) {
    mpt_context *ctx = mpt_create(NULL);
    curve f;
    f.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 1, 8), mpt_nn_tanh(ctx),
                           mpt_nn_linear(ctx, 8, 1), MPT_END);
    f.t = mpt_mul_scalar(mpt_reshape(mpt_arange(ctx, MPT_F32, 40), MPT_SHAPE(40, 1)), 0.1);
    f.y = mpt_add_scalar(mpt_exp(mpt_neg(f.t)), 0.5);
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    config.strong_wolfe = true;
    mpt_optimizer opt = mpt_lbfgs(f.net, &config);
    double loss = 1;
    for (int i = 0; i < 5; i++) loss = mpt_lbfgs_step(opt, curve_loss, &f); /* 20 iterations each */
    CHECK(loss < 1e-4);
    mpt_destroy(ctx);
}

/* ==== Optimizers: Muon for hidden matrices, AdamW for biases and the last layer */
TEST(optimizers_muon) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 8, 32), mpt_nn_tanh(ctx),
                                    mpt_nn_linear(ctx, 32, 32), mpt_nn_tanh(ctx),
                                    mpt_nn_linear(ctx, 32, 1), MPT_END);
    mpt_muon_config config = mpt_muon_config_default();
    config.adjust = MPT_MUON_MATCH_RMS_ADAMW; /* steps as large as AdamW's: one rate for both */
    config.lr = config.adamw.lr = 3e-3;
    config.adamw_names = "4";
    mpt_optimizer opt = mpt_muon(net, &config); /* group 0: Muon, group 1: AdamW */
    double first = 0, last = 1;
    for (int i = 0; i < 100; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(32, 8));
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN);
        mpt_zero_grad(opt);
        mpt_backward(loss);
        mpt_step(opt);
        last = mpt_item(loss);
        if (i == 0) first = last;
        mpt_step_end(ctx);
    }
    CHECK(last < 0.05 * first && mpt_applied_steps(opt) == 100);
    mpt_destroy(ctx);
}

/* ==== Gradient scaler: steps in fp16; one that overflows is skipped */
TEST(gradient_scaler) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 8, 1);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    mpt_scaler scaler = mpt_grad_scaler(ctx, NULL);
    for (int i = 0; i < 5; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_full(ctx, MPT_F32, MPT_SHAPE(4, 8), i == 3 ? 1e6 : 1.0);
        mpt_autocast_begin(ctx, MPT_F16); /* where 1e6 is infinite */
        mpt_tensor loss = mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false);
        mpt_autocast_end(ctx);
        mpt_zero_grad(opt);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, opt); /* before anything that looks at gradients */
        mpt_clip_grad_norm(opt, 1.0);
        mpt_scaler_step(scaler, opt); /* in place of mpt_step */
        mpt_scaler_update(scaler);
        mpt_step_end(ctx);
    }
    CHECK(mpt_applied_steps(opt) == 4 && mpt_get_scale(scaler) == 32768.0);
    mpt_destroy(ctx);
}

/* ==== Data: arrays of the program, a part of them for validation, batches in random order */
TEST(data) {
    float inputs[100][2];
    int64_t targets[100];
    for (int i = 0; i < 100; i++)
        inputs[i][0] = (float)(i % 10), inputs[i][1] = (float)i, targets[i] = i % 10 > 4;
    mpt_context *ctx = mpt_create(NULL);
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 100, config.dtype = MPT_F32, config.shape = MPT_SHAPE(2);
    config.inputs = inputs, config.targets = targets; /* copied */
    mpt_dataset parts[2];
    const double shares[2] = {0.8, 0.2};
    mpt_random_split(mpt_memory_dataset(ctx, &config), shares, 2, 1, parts);
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = 32, loading.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, parts[0], &loading);
    int64_t samples = 0;
    for (mpt_batch batch; mpt_loader_next(loader, &batch);) /* one epoch: x [32, 2], y [32] */
        samples += batch.size;
    CHECK(samples == 80 && mpt_dataset_size(parts[1]) == 20 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Data: samples that a function makes, in two worker threads */
static bool wave(void *user, int64_t index, uint64_t seed, void *input, void *target, char *error,
                 size_t error_size) {
    float *x = (float *)input;
    (void)seed;                            /* for what shall differ from epoch to epoch */
    if (index >= *(const int64_t *)user) { /* fails the batch, and the loop ends with this error */
        snprintf(error, error_size, "there is no wave %d", (int)index);
        return false;
    }
    for (int i = 0; i < 16; i++) x[i] = (float)((index + 1) * i % 16);
    *(int64_t *)target = index % 2;
    return true;
}

TEST(data_of_functions) {
    int64_t waves = 64;
    mpt_context *ctx = mpt_create(NULL);
    mpt_user_dataset_config config;
    memset(&config, 0, sizeof config); /* target_shape: rank 0 */
    config.count = 64, config.dtype = MPT_F32, config.shape = MPT_SHAPE(16);
    config.target_dtype = MPT_I64, config.sample = wave, config.user = &waves;
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = 16, loading.workers = 2;
    mpt_loader loader = mpt_loader_create(ctx, mpt_user_dataset(ctx, &config), &loading);
    mpt_batch batch;
    int64_t batches = 0;
    while (mpt_loader_next(loader, &batch)) batches++; /* or train on x [16, 16] and y [16] */
    CHECK(batches == 4 && mpt_loader_statistics(loader).samples == 64 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Files: weights out of one net and into another */
TEST(files) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 4, 2); /* and its training */
    mpt_save(net, test_tmp_path("net.safetensors"));
    mpt_module copy = mpt_nn_linear(ctx, 4, 2); /* in the next program: the same code, */
    int loaded = 0;
    mpt_load(copy, test_tmp_path("net.safetensors"), NULL, &loaded); /* and these values */
    if (mpt_failed(ctx)) fprintf(stderr, "%s\n", mpt_error(ctx));
    CHECK(loaded == 2 && mpt_module_hash(copy) == mpt_module_hash(net));
    mpt_destroy(ctx);
}

static mpt_module classifier(mpt_context *ctx, int64_t classes) {
    return mpt_sequential(ctx, mpt_nn_linear(ctx, 4, 8), mpt_nn_relu(ctx),
                          mpt_nn_linear(ctx, 8, classes), MPT_END);
}

static void train_some(mpt_context *ctx, mpt_module net, mpt_optimizer opt) {
    for (int i = 0; i < 5; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(16, 4));
        mpt_tensor y = mpt_argmax(x, 1, false);
        mpt_zero_grad(opt);
        mpt_backward(mpt_cross_entropy(mpt_forward(net, x), y, NULL));
        mpt_step(opt);
        mpt_step_end(ctx);
    }
}

/* ==== Whole trainings: saved and gone on with, and a try that is taken back */
TEST(whole_trainings) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = classifier(ctx, 4);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    train_some(ctx, net, opt);
    mpt_checkpoint_save(ctx, test_tmp_path("training.safetensors")); /* every now and then */
    train_some(ctx, net, opt);
    uint64_t hash = mpt_state_hash(ctx);
    mpt_destroy(ctx); /* the computer goes off .. */

    ctx = mpt_create(NULL); /* .. and the program begins as it did the first time */
    net = classifier(ctx, 4), opt = mpt_adamw(net, NULL);
    mpt_checkpoint_load(ctx, test_tmp_path("training.safetensors"));
    train_some(ctx, net, opt);
    CHECK(mpt_state_hash(ctx) == hash && !mpt_failed(ctx));

    int64_t bytes = mpt_snapshot_bytes(ctx); /* the same in memory: a try, and back */
    void *before = malloc((size_t)bytes);
    mpt_snapshot(ctx, before, (size_t)bytes);
    train_some(ctx, net, opt);
    mpt_restore(ctx, before, (size_t)bytes);
    CHECK(mpt_state_hash(ctx) == hash && !mpt_failed(ctx));
    free(before);

    mpt_checkpoint_open(ctx, test_tmp_path("run"), NULL); /* by itself, in a folder */
    train_some(ctx, net, opt);
    mpt_checkpoint_step(ctx); /* behind each step: writes what is due */
    mpt_checkpoint_close(ctx);
    CHECK(!mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Files: fine-tuning: a body from a file, first frozen, then slow; a head for other classes */
TEST(files_fine_tuning) {
    static const char *const head[] = {"2.*"};
    mpt_context *ctx = mpt_create(NULL);
    mpt_save(classifier(ctx, 10), test_tmp_path("ten.safetensors")); /* as somebody trained it */
    mpt_module net = classifier(ctx, 4), body = mpt_child(net, "0");
    mpt_load_config config = mpt_load_config_default();
    config.strict = false, config.ignore = head, config.ignore_count = 1;
    int loaded = 0;
    mpt_load(net, test_tmp_path("ten.safetensors"), &config, &loaded); /* "0.weight", "0.bias" */
    mpt_optimizer opt = mpt_adamw(net, NULL);
    mpt_freeze(body, true); /* no gradients, so no steps; and as in mpt_eval */
    uint64_t before = mpt_module_hash(body);
    train_some(ctx, net, opt);
    bool frozen = mpt_module_hash(body) == before;
    mpt_freeze(body, false);
    mpt_group_config slow = {1e-5, 1e-2}; /* lr, weight decay; the head keeps 1e-3 */
    mpt_optimizer_add(opt, body, NULL, &slow);
    train_some(ctx, net, opt);
    CHECK(loaded == 2 && frozen && mpt_module_hash(body) != before && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Files: fine-tuning in little memory: adapters alone are trained, kept in a file of their
   own, and in the end added to the weights */
TEST(files_adapters) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = classifier(ctx, 4);
    mpt_lora(net, "*", 2, 4); /* all linear layers, of rank 2, times 4 / 2 */
    mpt_optimizer opt = mpt_adamw(net, NULL); /* has states for the adapters alone */
    train_some(ctx, net, opt);
    mpt_lora_save(net, test_tmp_path("adapters.safetensors"));
    mpt_optimizer_destroy(opt);
    mpt_lora_remove(net); /* the net is as it was before, to the bit */
    mpt_lora(net, "*", 2, 4);
    mpt_load_config config = mpt_load_config_default();
    config.strict = false; /* the file has no other weights */
    int loaded = 0;
    mpt_load(net, test_tmp_path("adapters.safetensors"), &config, &loaded);
    mpt_lora_merge(net); /* an ordinary net, which gives what the adapted one gave */
    CHECK(loaded == 4 && mpt_parameter_count(net) == 4 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Metrics, inspection: a mean without waiting, what a net consists of, its weights */
TEST(metrics_inspection) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 8, 4);
    for (int i = 0; i < 10; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(16, 8));
        mpt_metric_push(ctx, "size", mpt_mean(mpt_abs(mpt_forward(net, x)), MPT_ALL_DIMS, false));
        mpt_step_end(ctx);
    }
    double size = mpt_metric_mean(ctx, "size", true); /* waits once, for all ten */
    char table[2000];
    mpt_summary(net, table, sizeof table); /* to print: layers, shapes, bytes */
    mpt_tensor_stats weights = mpt_statistics(mpt_parameter(net, "weight"));
    CHECK(size > 0.0 && weights.nans == 0 && weights.max < 0.36); /* 1 / sqrt(8) */
    mpt_destroy(ctx);
}

/* ==== Metrics, inspection: what the time of a training goes into */
TEST(metrics_profile) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_nn_linear(ctx, 8, 4);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    mpt_profile_begin(ctx, NULL);
    for (int i = 0; i < 10; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(16, 8));
        mpt_backward(mpt_mean(mpt_abs(mpt_forward(net, x)), MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_zero_grad(optimizer);
        mpt_step_end(ctx);
    }
    mpt_profile_end(ctx);
    char table[8000];
    mpt_profile_text(ctx, table, sizeof table); /* to print: ops, modules and kernels by time */
    mpt_profile_row first;
    int64_t ops = mpt_profile_rows(ctx, MPT_PROFILE_OP, &first, 1);
    mpt_profile_total total = mpt_get_profile_total(ctx);
    CHECK(ops > 4 && total.steps == 10 && first.seconds <= total.all.seconds);
    mpt_destroy(ctx);
}

/* ==== Metrics, inspection: whether the gradient of a function of yours is right */
static mpt_tensor swish(mpt_context *context, void *user, const mpt_tensor *in, int n_in) {
    (void)context, (void)user, (void)n_in;
    return mpt_mul(in[0], mpt_sigmoid(in[0]));
}

TEST(metrics_gradcheck) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(4, 3));
    mpt_status status = mpt_gradcheck(ctx, swish, NULL, &x, 1, NULL);
    if (status != MPT_OK) fprintf(stderr, "%s\n", mpt_error(ctx)); /* which element, by how much */
    CHECK(status == MPT_OK);
    mpt_destroy(ctx);
}

/* ==== Metrics, inspection: where a run went another way than it did before */
#if !defined(MPTRAIN_NO_FILES) && defined(MPTRAIN_WATCH)
TEST(metrics_flight) {
    const char *path = test_tmp_path("run.flight");
    remove(path);
    for (int again = 0; again < 2; again++) {
        mpt_flight_report report;
        mpt_config config = mpt_config_default();
        config.device = MPT_DEVICE_CPU;
        mpt_context *ctx = mpt_create(&config);
        mpt_module net = mpt_nn_linear(ctx, 4, 2);
        mpt_optimizer opt = mpt_sgd(net, NULL);
        if (again)
            mpt_flight_replay(ctx, path); /* the same program, with this call instead */
        else
            mpt_flight_begin(ctx, path, NULL);
        for (int i = 0; i < 5; i++) {
            mpt_step_begin(ctx);
            mpt_tensor x = mpt_full(ctx, MPT_F32, MPT_SHAPE(3, 4), again && i == 2 ? 1.5 : 1);
            mpt_zero_grad(opt);
            mpt_backward(mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false));
            mpt_step(opt);
            mpt_step_end(ctx);
        }
        mpt_flight_end(ctx, &report);
        CHECK_EQ_INT(report.step, again ? 3 : 0);
        CHECK_EQ_STR(report.op, again ? "fill" : "");
        CHECK_EQ_STR(mpt_error(ctx), "");
        mpt_destroy(ctx);
    }
}
#endif

/* ==== Captured steps: the body of the loop as a function, which soon runs without being called */
typedef struct model {
    mpt_module net;
    mpt_optimizer opt;
} model;

static mpt_status model_step(mpt_context *ctx, void *user, mpt_tensor x, mpt_tensor y) {
    model *m = (model *)user;
    mpt_step_begin(ctx);
    mpt_tensor loss = mpt_mse_loss(mpt_forward(m->net, x), y, MPT_MEAN);
    mpt_zero_grad(m->opt);
    mpt_backward(loss);
    mpt_step(m->opt);
    mpt_metric_push(ctx, "loss", loss); /* mpt_item would wait, which cannot be captured */
    return mpt_step_end(ctx);
}

TEST(captured_steps) {
    mpt_context *ctx = mpt_create(NULL);
    model m;
    m.net = mpt_nn_linear(ctx, 3, 1), m.opt = mpt_sgd(m.net, NULL);
    mpt_captured captured = mpt_capture(ctx, model_step, &m);
    for (int i = 0; i < 20; i++) {
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(8, 3)), y = mpt_sum(x, 1, true);
        mpt_captured_step(captured, x, y);
        mpt_release(x), mpt_release(y); /* which were made outside of a step */
    }
    CHECK(mpt_captured_count(captured) >= 16 && mpt_applied_steps(m.opt) == 20);
    mpt_destroy(ctx);
}

/* ==== The net seen: what a forward pass computes */
TEST(a_net_seen) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 3, 4), mpt_nn_relu(ctx), MPT_END);
    mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(8, 3));
    mpt_graph graph = mpt_trace(net, &x, 1);
    for (int i = 0; i < mpt_graph_count(graph); i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        if (node->kind == MPT_NODE_OP && strcmp(node->name, "relu") == 0) /* reads node->input[0] */
            CHECK(node->shape[0].dim[1] == 4 && strcmp(node->module, "1") == 0);
    }
    mpt_graph_destroy(graph);
    mpt_destroy(ctx);
}

/* ==== Fit: a whole training with validation, progress and an early end; then what it is worth */
static bool show_epoch(void *user, const mpt_progress *progress) {
    double *best = (double *)user;
    if (!progress->epoch_end) return true; /* after every step, too */
    if (progress->validation_loss < *best) *best = progress->validation_loss;
    /* puts(progress->text) would show the epoch in a line */
    return true; /* false would end the training */
}

static void load_data(mpt_context *ctx, mpt_dataset parts[2]) { /* numbers, and whether they are */
    const double shares[2] = {0.75, 0.25};                      /* above 0 */
    float inputs[200];
    int64_t targets[200];
    for (int i = 0; i < 200; i++) inputs[i] = (float)i / 100.0f - 1.0f, targets[i] = i > 100;
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 200, config.dtype = MPT_F32, config.shape = MPT_SHAPE(1);
    config.inputs = inputs, config.targets = targets;
    mpt_random_split(mpt_memory_dataset(ctx, &config), shares, 2, 1, parts);
}

TEST(fit) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_dataset parts[2];
    load_data(ctx, parts);
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 1, 8), mpt_nn_tanh(ctx),
                                    mpt_nn_linear(ctx, 8, 2), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config rates = mpt_adamw_config_default();
    rates.lr = 0.05;
    double best = 1e9;
    mpt_fit_config config = mpt_fit_config_default();
    config.epochs = 30, config.patience = 5;
    config.validation = mpt_loader_create(ctx, parts[1], NULL);
    config.progress = show_epoch, config.user = &best;
    mpt_loader train = mpt_loader_create(ctx, parts[0], NULL);
    mpt_fit_result result = mpt_fit(net, mpt_adamw(net, &rates), train, &config);
    mpt_evaluation test = mpt_evaluate(net, config.validation, MPT_F32);
    CHECK(result.status == MPT_OK && test.accuracy > 0.9 && best < 0.3);
    mpt_destroy(ctx);
}

/* ==== Convolution: a small net for pictures, channels last from its first layer on */
TEST(convolution) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_conv_config same = mpt_conv_config_default(), half = mpt_conv_config_default();
    same.same = true;                    /* as large as the input */
    half.stride[0] = half.stride[1] = 2; /* half as large */
    half.padding[0] = half.padding[1] = 1;
    mpt_module net = mpt_sequential(
        ctx, mpt_nn_conv2d(ctx, 3, 8, 3, 3, &same), mpt_nn_relu(ctx), /* [4, 8, 16, 16] */
        mpt_nn_conv2d(ctx, 8, 16, 3, 3, &half), mpt_nn_relu(ctx),     /* [4, 16, 8, 8] */
        mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 16 * 8 * 8, 10), MPT_END);
    mpt_tensor pictures = mpt_rand(ctx, MPT_F32, MPT_SHAPE(4, 3, 16, 16));
    mpt_tensor logits = mpt_forward(net, mpt_to_channels_last(pictures));
    CHECK(mpt_get_shape(logits).dim[0] == 4 && mpt_get_shape(logits).dim[1] == 10);
    mpt_destroy(ctx);
}

/* ==== Normalisation and pooling: a block with batch norm, trained, then fused for inference */
TEST(normalisation_and_pooling) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_conv_config conv = mpt_conv_config_default();
    conv.bias = false; /* the norm has one */
    mpt_module net = mpt_sequential(
        ctx, mpt_nn_conv2d(ctx, 1, 4, 3, 3, &conv), mpt_nn_batch_norm2d(ctx, 4, NULL),
        mpt_nn_relu(ctx), mpt_nn_max_pool2d(ctx, NULL), mpt_nn_adaptive_avg_pool2d(ctx, 1, 1),
        mpt_nn_flatten(ctx), mpt_nn_linear(ctx, 4, 2), MPT_END);
    mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(8, 1, 10, 10));
    mpt_forward(net, x); /* in training: by the batch's statistics, and the running ones move */
    mpt_eval(net);       /* by the running ones */
    mpt_inference_begin(ctx);
    mpt_tensor slow = mpt_forward(net, x);
    int64_t pairs = mpt_fuse(net, x, NULL, 0); /* convolution, norm and relu in one launch */
    mpt_tensor fast = mpt_forward(net, x);
    CHECK(pairs == 1 && mpt_allclose(fast, slow, 1e-4, 1e-5));
    mpt_inference_end(ctx);
    mpt_destroy(ctx);
}

/* ==== Normalisation and pooling: frozen batch norm in a net that trains */
TEST(normalisation_frozen) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_linear(ctx, 4, 8), mpt_nn_batch_norm1d(ctx, 8, NULL),
                       mpt_nn_relu(ctx), mpt_nn_linear(ctx, 8, 1), MPT_END);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_freeze(mpt_child(net, "1"), true); /* running statistics are used and left as they are, */
    mpt_train(net);                        /* whatever this says; no steps of weight and bias */
    uint64_t before = mpt_module_hash(mpt_child(net, "1"));
    for (int i = 0; i < 3; i++) {
        mpt_step_begin(ctx);
        mpt_tensor x = mpt_rand(ctx, MPT_F32, MPT_SHAPE(16, 4));
        mpt_zero_grad(opt);
        mpt_backward(mpt_mse_loss(mpt_forward(net, x), mpt_sum(x, 1, true), MPT_MEAN));
        mpt_step(opt);
        mpt_step_end(ctx);
    }
    CHECK(mpt_module_hash(mpt_child(net, "1")) == before && mpt_applied_steps(opt) == 3);
    mpt_destroy(ctx);
}

/* ==== Embedding and attention: the next of 50 tokens, by one block and with tied weights */
static mpt_status lm_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                             mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_forward(mpt_child(self, "table"), in[0]); /* [B, T] -> [B, T, 16] */
    mpt_tensor normed = mpt_forward(mpt_child(self, "norm"), x);
    x = mpt_add(x, mpt_forward(mpt_child(self, "attention"), normed));
    out[0] = mpt_forward(mpt_child(self, "head"), x); /* [B, T, 50] */
    return MPT_OK;
}

TEST(embedding_and_attention) {
    const mpt_module_class cls = {"lm", lm_forward, NULL, NULL, NULL, 1, 1};
    mpt_context *ctx = mpt_create(NULL);
    mpt_module net = mpt_module_create(ctx, &cls, NULL);
    mpt_multi_head_config causal = mpt_multi_head_config_default();
    causal.causal = true; /* no token sees later ones */
    mpt_add_child(net, "table", mpt_nn_embedding(ctx, 50, 16, -1));
    mpt_add_child(net, "norm", mpt_nn_layer_norm(ctx, MPT_SHAPE(16), NULL));
    mpt_add_child(net, "attention", mpt_nn_multi_head_attention(ctx, 16, 4, &causal));
    mpt_add_child(net, "head", mpt_nn_linear_no_bias(ctx, 16, 50));
    mpt_tie(net, "head.weight", "table.weight"); /* one matrix [50, 16] for both */
    mpt_tensor tokens = mpt_reshape(mpt_arange(ctx, MPT_I64, 18), MPT_SHAPE(2, 9));
    mpt_tensor x = mpt_slice(tokens, 1, 0, 8, 1), y = mpt_slice(tokens, 1, 1, 9, 1);
    mpt_tensor logits = mpt_reshape(mpt_forward(net, x), MPT_SHAPE(-1, 50));
    mpt_tensor loss = mpt_cross_entropy(logits, mpt_reshape(y, MPT_SHAPE(-1)), NULL);
    CHECK(mpt_item(loss) > 0.0 && mpt_parameter_count(net) == 7);
    mpt_destroy(ctx);
}

/* ==== Embedding and attention: a block as in Llama, of a whole text and token by token */
static mpt_status llama_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add(in[0], mpt_forward(mpt_child(self, "attention"), in[0]));
    out[0] = mpt_add(x, mpt_forward(mpt_child(self, "mlp"), x)); /* [B, T, 16] */
    return MPT_OK;
}

TEST(rotary_positions_gates_and_a_cache) {
    const mpt_module_class cls = {"llama", llama_forward, NULL, NULL, NULL, 1, 1};
    mpt_context *ctx = mpt_create(NULL);
    mpt_multi_head_config how = mpt_multi_head_config_default();
    how.causal = how.qk_norm = true;
    how.rope = mpt_rope_config_default(), how.window = 4; /* the last 4 places alone */
    mpt_module net = mpt_module_create(ctx, &cls, NULL);
    mpt_add_child(net, "attention", mpt_nn_multi_head_attention(ctx, 16, 4, &how));
    mpt_add_child(net, "mlp",
                  mpt_sequential(ctx, mpt_nn_linear_no_bias(ctx, 16, 64), /* both halves */
                                 mpt_nn_glu(ctx, MPT_GATE_SILU),          /* [.., 64] -> [.., 32] */
                                 mpt_nn_linear_no_bias(ctx, 32, 16), MPT_END));
    mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(1, 9, 16)), y, last;
    mpt_inference_begin(ctx);
    y = mpt_slice(mpt_forward(net, x), 1, 8, 9, 1);
    mpt_cache_begin(net, 1, 9);
    last = mpt_forward(net, mpt_slice(x, 1, 0, 6, 1)); /* a prompt, then one by one */
    for (int64_t t = mpt_cache_length(net); t < 9; t++)
        last = mpt_forward(net, mpt_slice(x, 1, t, t + 1, 1));
    CHECK(mpt_allclose(y, last, 1e-4, 1e-5) && mpt_cache_length(net) == 9);
    mpt_cache_end(net);
    mpt_inference_end(ctx);
    mpt_destroy(ctx);
}

/* ==== Recurrent layers: sequences of several lengths, then one number after the other */
TEST(recurrent_layers) {
    static const int64_t steps[3] = {7, 4, 5};
    mpt_context *ctx = mpt_create(NULL);
    mpt_recurrent_config two = mpt_recurrent_config_default();
    two.layers = 2, two.batch_first = true;
    mpt_module net = mpt_nn_gru(ctx, 1, 16, &two);
    mpt_tensor x = mpt_randn(ctx, MPT_F32, MPT_SHAPE(3, 7, 1)), out[2]; /* [B, T, 1] */
    mpt_tensor in[] = {x, mpt_from(ctx, MPT_I64, MPT_SHAPE(3), steps)};
    mpt_forward_n(net, in, 2, out, 2); /* every step [3, 7, 16]; the state at the end [2, 3, 16] */
    mpt_tensor given[] = {mpt_slice(x, 1, 0, 1, 1), mpt_zeros(ctx, MPT_F32, MPT_SHAPE(2, 3, 16))};
    for (int t = 0; t < 7; t++) { /* the same for the longest, as numbers come in */
        mpt_tensor now[2];
        given[0] = mpt_slice(x, 1, t, t + 1, 1);
        mpt_forward_n(net, given, 2, now, 2);
        given[1] = mpt_detach(now[1]);
    }
    mpt_tensor last = mpt_slice(out[1], 1, 0, 1, 1);
    CHECK(mpt_allclose(last, mpt_slice(given[1], 1, 0, 1, 1), 1e-5, 1e-6));
    mpt_destroy(ctx);
}

/* ==== Images of another size: a decoder that doubles its picture twice */
TEST(images_of_another_size) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_conv_config same = mpt_conv_config_default();
    same.same = true;
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_upsample(ctx, MPT_SCALAR, 2.0, MPT_NEAREST, false),
                       mpt_nn_conv2d(ctx, 8, 4, 3, 3, &same), mpt_nn_relu(ctx),
                       mpt_nn_upsample(ctx, MPT_SCALAR, 2.0, MPT_BILINEAR, false),
                       mpt_nn_conv2d(ctx, 4, 3, 3, 3, &same), mpt_nn_sigmoid(ctx), MPT_END);
    mpt_tensor pictures = mpt_forward(net, mpt_rand(ctx, MPT_F32, MPT_SHAPE(2, 8, 7, 7)));
    mpt_tensor wide = mpt_interpolate(pictures, MPT_SHAPE(10, 20), 0.0, MPT_BILINEAR, false);
    CHECK(mpt_get_shape(pictures).dim[3] == 28 && mpt_get_shape(wide).dim[3] == 20);
    mpt_destroy(ctx);
}

/* ==== Images: pictures in memory, cropped and mirrored at random as they are delivered */
TEST(images) {
    static uint8_t pixels[10][3][32][32]; /* RGB, each colour by itself */
    static int64_t classes[10];
    mpt_context *ctx = mpt_create(NULL);
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 10, config.dtype = MPT_U8, config.shape = MPT_SHAPE(3, 32, 32);
    config.inputs = pixels, config.targets = classes;
    mpt_transform steps[3] = {mpt_transform_default(MPT_RANDOM_CROP, 28, 28),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0),
                              mpt_transform_default(MPT_NORMALIZE, 0, 0)};
    steps[0].padding = 2;
    for (int c = 0; c < 3; c++) steps[2].mean[c] = 0.5, steps[2].deviation[c] = 0.25;
    mpt_dataset varied = mpt_transformed(mpt_memory_dataset(ctx, &config), steps, 3);
    mpt_loader loader = mpt_loader_create(ctx, varied, NULL);
    mpt_batch batch;
    mpt_loader_next(loader, &batch);
    mpt_shape shape = mpt_get_shape(batch.x); /* [10, 3, 28, 28], of (0 - 0.5) / 0.25 */
    CHECK(shape.dim[0] == 10 && shape.dim[3] == 28 && !mpt_failed(ctx));
    mpt_destroy(ctx);
}

/* ==== Text: characters as tokens and back, and windows of them to train on */
TEST(text) {
    const char *path = test_tmp_path("input.txt");
    FILE *file = fopen(path, "wb");
    fputs("to be or not to be, that is the question", file);
    fclose(file);
    mpt_context *ctx = mpt_create(NULL);
    mpt_tokenizer chars = mpt_char_tokenizer(ctx, path);
    int32_t tokens[16];
    char back[16] = "";
    int64_t count = mpt_encode(chars, "not to be", 9, tokens, 16);
    mpt_decode(chars, tokens, count, back, 15);
    mpt_window_config window = mpt_window_config_default();
    window.block = 8;
    mpt_loader loader = mpt_loader_create(ctx, mpt_text_file(chars, path, &window), NULL);
    mpt_batch batch; /* x: [4, 8] windows; y: the same one token further */
    mpt_loader_next(loader, &batch);
    CHECK(strcmp(back, "not to be") == 0 && mpt_get_shape(batch.y).dim[1] == 8);
    mpt_destroy(ctx);
}

/* ==== Tables: from a CSV file to predictions of rows that came later */
static const char homes[] = "area,town,kind\n50,Ulm,flat\n60,Bonn,flat\n55,Ulm,flat\n"
                            "150,Bonn,house\n170,Ulm,house\n,Bonn,house\n";
/* The kind, which is to be predicted, has to be there, but may be any. */
static const char later[] = "area,town,kind\n160,Ulm,flat\n52,Bonn,flat\n";

TEST(tables) {
    mpt_context *ctx = mpt_create(NULL);
    mpt_table_config config = mpt_table_config_default(); /* the last column is the target */
    config.missing = true;                                /* one area is not known */
    mpt_dataset table = mpt_csv_memory(ctx, homes, strlen(homes), &config);
    mpt_table_fit(table, true); /* areas to mean 0 and deviation 1; towns are one-hot */
    mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, mpt_dataset_shape(table).dim[0], 2),
                                    mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_adamw_config rates = mpt_adamw_config_default();
    mpt_fit_config fit = mpt_fit_config_default();
    rates.lr = 0.1, fit.epochs = 200;
    mpt_fit(net, mpt_adamw(net, &rates), mpt_loader_create(ctx, table, NULL), &fit);
    config.like = table; /* its towns and kinds, its mean and deviation */
    mpt_dataset rows = mpt_csv_memory(ctx, later, strlen(later), &config);
    mpt_batch batch;
    mpt_loader_next(mpt_loader_create(ctx, rows, NULL), &batch);
    int64_t kinds[2];
    mpt_read(mpt_argmax(mpt_forward(net, batch.x), 1, false), kinds, sizeof kinds);
    CHECK(strcmp(mpt_class_name(table, kinds[0]), "house") == 0 && kinds[1] == 0);
    mpt_destroy(ctx);
}

/* ==== Tables: a program without the training data reads as that which trained */
TEST(tables_of_later) {
    const char rents[] = "age,town,rent\n30,Ulm,500\n40,Bonn,700\n50,Ulm,600\n";
    const char asked[] = "age,town\n40,Ulm\n";
    mpt_context *ctx = mpt_create(NULL);
    mpt_dataset table = mpt_csv_memory(ctx, rents, strlen(rents), NULL);
    mpt_table_fit(table, true);
    mpt_table_save(table, test_tmp_path("columns.csv")); /* beside the weights of mpt_save */
    mpt_table_config config = mpt_table_config_default();
    config.like = mpt_table_load(ctx, test_tmp_path("columns.csv")); /* in that other program */
    config.target = "";                                              /* nobody knows the rent */
    mpt_dataset row = mpt_csv_memory(ctx, asked, strlen(asked), &config);
    float inputs[3]; /* age; Bonn; Ulm */
    mpt_sample(row, 0, inputs, NULL);
    CHECK(inputs[0] == 0.0f && inputs[1] == 0.0f && inputs[2] == 1.0f);
    mpt_destroy(ctx);
}

/* ==== Arrays: a file of fp32 numbers, read sample by sample, however long it is */
TEST(arrays) {
    const float numbers[3][4] = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}};
    FILE *file = fopen(test_tmp_path("numbers.raw"), "wb"); /* as NumPy's tofile writes it */
    fwrite(numbers, sizeof numbers, 1, file);
    fclose(file);
    mpt_context *ctx = mpt_create(NULL);
    mpt_raw_config config = mpt_raw_config_default();
    config.inputs = test_tmp_path("numbers.raw"), config.shape = MPT_SHAPE(4);
    mpt_dataset samples = mpt_raw_files(ctx, &config); /* count: as many as the file holds */
    float sample[4];
    mpt_sample(samples, 2, sample, NULL);
    CHECK(mpt_dataset_size(samples) == 3 && sample[0] == 8 && sample[3] == 11);
    mpt_destroy(ctx);
}

/* What a build leaves out does not run there: an option that is defined expands to other text than
   its name. */
TEST(left_out) { SKIP("what this build leaves out"); }
#define WORDS_(words) #words
#define WORDS(words) WORDS_(words)
#define T_UNLESS(option, name) \
    { #name, sizeof WORDS(option) == sizeof #option ? test_##name : test_left_out }
#if defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_FILES)
#define MPTRAIN_NO_FILES
#endif
#if defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_TEXT)
#define MPTRAIN_NO_TEXT /* that of a file */
#endif
#if (defined(MPTRAIN_NO_FILES) || defined(MPTRAIN_NO_FIT)) && !defined(MPTRAIN_NO_TABLES)
#define MPTRAIN_NO_TABLES /* those that are saved, or trained on by mpt_fit */
#endif
#if defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_RESUME)
#define MPTRAIN_NO_RESUME /* with files */
#endif
#ifndef MPTRAIN_WATCH
#define MPTRAIN_NO_WATCHERS
#endif

TEST_TABLE = {T(basic_types),
              T(basic_types_of_errors),
              T(context),
              T(context_in_threads),
              T(errors),
              T(errors_and_cleanup),
              T(memory),
              T_UNLESS(MPTRAIN_NO_FRUGAL, memory_planned),
              T_UNLESS(MPTRAIN_NO_FRUGAL, layers_run_again_to_fit),
              T(lifetime),
              T(lifetime_of_a_step),
              T(tensors),
              T(operations),
              T(operations_losses),
              T(autograd),
              T(autograd_accumulates),
              T_UNLESS(MPTRAIN_NO_FRUGAL, autograd_recomputes),
              T(autocast),
              T(modules),
              T_UNLESS(MPTRAIN_NO_WATCH, modules_hooks),
              T(modules_ops),
              T(modules_ops_in_c),
              T_UNLESS(MPTRAIN_NO_WATCH, modules_ops_of_two),
              T(optimizers),
              T(updates_inside_backward),
              T(optimizers_of_two_nets),
              T_UNLESS(MPTRAIN_NO_WATCH, optimizers_of_your_own),
              T_UNLESS(MPTRAIN_NO_WATCH, optimizers_lbfgs),
              T_UNLESS(MPTRAIN_NO_WATCH, optimizers_muon),
              T(gradient_scaler),
              T(data),
              T_UNLESS(MPTRAIN_NO_THREADS, data_of_functions),
              T_UNLESS(MPTRAIN_NO_FILES, files),
              T_UNLESS(MPTRAIN_NO_FILES, files_fine_tuning),
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_FRUGAL)
              T(files_adapters),
#endif
              T_UNLESS(MPTRAIN_NO_RESUME, whole_trainings),
              T_UNLESS(MPTRAIN_NO_WATCH, metrics_inspection),
              T_UNLESS(MPTRAIN_NO_WATCHERS, metrics_profile),
              T_UNLESS(MPTRAIN_NO_WATCH, metrics_gradcheck),
#if !defined(MPTRAIN_NO_FILES) && defined(MPTRAIN_WATCH)
              T(metrics_flight),
#endif
              T_UNLESS(MPTRAIN_NO_GRAPH, captured_steps),
              T_UNLESS(MPTRAIN_NO_WATCHERS, a_net_seen),
              T_UNLESS(MPTRAIN_NO_FIT, fit),
              T_UNLESS(MPTRAIN_NO_CONV, convolution),
              T_UNLESS(MPTRAIN_NO_CONV, normalisation_and_pooling),
              T_UNLESS(MPTRAIN_NO_CONV, normalisation_frozen),
              T_UNLESS(MPTRAIN_NO_ATTENTION, embedding_and_attention),
              T_UNLESS(MPTRAIN_NO_ATTENTION, rotary_positions_gates_and_a_cache),
              T_UNLESS(MPTRAIN_NO_RECURRENT, recurrent_layers),
              T_UNLESS(MPTRAIN_NO_CONV, images_of_another_size),
              T(images),
              T_UNLESS(MPTRAIN_NO_TEXT, text),
              T_UNLESS(MPTRAIN_NO_TABLES, tables),
              T_UNLESS(MPTRAIN_NO_TABLES, tables_of_later),
              T_UNLESS(MPTRAIN_NO_FILES, arrays)};
TEST_MAIN
