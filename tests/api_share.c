/* api_share.c: one copy of the weights in several contexts: threads that infer at once give the
   lender's bits; the memory; what differs is named; nothing writes what is shared; whoever ends
   first. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"
#ifndef MPTRAIN_NO_THREADS
#include "workers.h"
#endif

enum { ROWS = 6, SIDE = 6, KINDS = 5, BORROWERS = 4, ROUNDS = 8 };

static mpt_context *context_of(arena *a) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

/* Convolution and batch norm, dropout, linear layers. */
static mpt_module net_of(mpt_context *c, int64_t hidden) {
    mpt_module parts[8];
    parts[0] = mpt_nn_conv2d(c, 2, 4, 3, 3, NULL), parts[1] = mpt_nn_batch_norm2d(c, 4, NULL);
    parts[2] = mpt_nn_relu(c), parts[3] = mpt_nn_flatten(c);
    parts[4] = mpt_nn_dropout(c, 0.5);
    parts[5] = mpt_nn_linear(c, 4 * (SIDE - 2) * (SIDE - 2), hidden), parts[6] = mpt_nn_relu(c);
    parts[7] = mpt_nn_linear(c, hidden, KINDS);
    return mpt_sequential_array(c, parts, 8);
}

static mpt_tensor pictures(mpt_context *c, int number) {
    float values[ROWS * 2 * SIDE * SIDE];
    for (int i = 0; i < ROWS * 2 * SIDE * SIDE; i++)
        values[i] = (float)((i * 37 + number * 11) % 101 - 50) / 40.0f;
    return mpt_from(c, MPT_F32, MPT_SHAPE(ROWS, 2, SIDE, SIDE), values);
}

static mpt_tensor loss_of(mpt_module net, int number) {
    mpt_tensor y = mpt_forward(net, pictures(net.context, number));
    return mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false);
}

static mpt_status train(mpt_module net, mpt_optimizer opt, int steps) {
    for (int i = 0; i < steps && !mpt_failed(net.context); i++) {
        mpt_step_begin(net.context);
        mpt_zero_grad(opt);
        mpt_backward(loss_of(net, i));
        mpt_step(opt);
        mpt_step_end(net.context);
    }
    return mpt_error_code(net.context);
}

/* A net that has been trained a little, and is in evaluation. */
static mpt_module trained(mpt_context *c, int steps) {
    mpt_module net = net_of(c, 16);
    mpt_optimizer opt = mpt_adamw(net, NULL);
    CHECK_EQ_INT(train(net, opt, steps), MPT_OK);
    mpt_optimizer_destroy(opt);
    mpt_eval(net);
    return net;
}

static mpt_module borrowed(mpt_context *c, mpt_module lender) {
    mpt_module net = net_of(c, 16);
    CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK_EQ_STR(mpt_error(lender.context), "");
    return net;
}

/* What a net in evaluation gives for some pictures, in a precision. */
static void infer(mpt_module net, int number, mpt_dtype precision, float out[ROWS * KINDS]) {
    mpt_context *c = net.context;
    memset(out, 0, ROWS * KINDS * sizeof *out);
    mpt_step_begin(c);
    mpt_inference_begin(c);
    if (precision != MPT_F32) mpt_autocast_begin(c, precision);
    mpt_tensor y = mpt_forward(net, pictures(c, number));
    if (precision != MPT_F32) mpt_autocast_end(c);
    mpt_read_f32(mpt_cast(y, MPT_F32), out, ROWS * KINDS);
    mpt_inference_end(c);
    mpt_step_end(c);
}

static void same_inference(mpt_module net, mpt_module as) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int p = 0; p < 3; p++) {
        float got[ROWS * KINDS], want[ROWS * KINDS];
        infer(as, p, precisions[p], want);
        infer(net, p, precisions[p], got);
        CHECK_EQ_BITS(got, want, sizeof want);
    }
    CHECK(mpt_module_hash(net) == mpt_module_hash(as));
    CHECK_EQ_STR(mpt_error(net.context), "");
    CHECK_EQ_STR(mpt_error(as.context), "");
}

/* ==== Threads ==== */

#ifndef MPTRAIN_NO_THREADS

typedef struct work {
    mpt_context *context;
    mpt_module net;
    mpt_tensor result; /* of captured steps, in memory of its own */
    float out[ROUNDS][3][ROWS * KINDS], captured[ROUNDS][ROWS * KINDS];
    char error[200];
} work;

static mpt_status captured_inference(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    work *w = (work *)user;
    (void)y;
    mpt_step_begin(c);
    mpt_no_grad_begin(c);
    mpt_copy_(w->result, mpt_forward(w->net, x));
    mpt_no_grad_end(c);
    return mpt_step_end(c);
}

static void do_work(void *argument) {
    work *w = (work *)argument;
    mpt_context *c = w->context;
    w->result = mpt_keep(mpt_zeros(c, MPT_F32, MPT_SHAPE(ROWS, KINDS)));
    mpt_captured step = mpt_capture(c, captured_inference, w);
    for (int i = 0; i < ROUNDS; i++) {
        infer(w->net, i, MPT_F32, w->out[i][0]);
        infer(w->net, i, MPT_BF16, w->out[i][1]);
        infer(w->net, i, MPT_F16, w->out[i][2]);
        mpt_scope_begin(c);
        mpt_captured_step(step, pictures(c, i), mpt_null_tensor());
        mpt_scope_end(c);
        mpt_read_f32(w->result, w->captured[i], ROWS * KINDS);
    }
    snprintf(w->error, sizeof w->error, "%s", mpt_error(c));
}

TEST(threads_infer_at_once_on_one_copy) {
    static work alone, w[BORROWERS + 1];
    worker workers[BORROWERS];
    mpt_context *c = context_of(NULL);
    w[BORROWERS].context = alone.context = c;
    w[BORROWERS].net = alone.net = trained(c, 5);
    do_work(&alone);
    CHECK_EQ_STR(alone.error, "");
    for (int i = 0; i < BORROWERS; i++) {
        w[i].context = context_of(NULL);
        w[i].net = borrowed(w[i].context, alone.net);
    }
    for (int i = 0; i < BORROWERS; i++) worker_begin(&workers[i], do_work, &w[i]);
    do_work(&w[BORROWERS]); /* the lender infers, too */
    for (int i = 0; i < BORROWERS; i++) worker_end(&workers[i]);
    for (int i = 0; i <= BORROWERS; i++) {
        CHECK_EQ_STR(w[i].error, "");
        CHECK_EQ_BITS(w[i].out, alone.out, sizeof alone.out);
        CHECK_EQ_BITS(w[i].captured, alone.captured, sizeof alone.captured);
    }
    CHECK_EQ_BITS(alone.captured[2], alone.out[2][0], sizeof alone.captured[2]);
    for (int i = 0; i < BORROWERS; i++) mpt_destroy(w[i].context);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

static void end_context(void *argument) { mpt_destroy(((work *)argument)->context); }

TEST(contexts_end_at_once_on_threads) {
    for (int round = 0; round < 10; round++) {
        static work w[BORROWERS + 1];
        worker workers[BORROWERS + 1];
        w[0].context = context_of(NULL);
        mpt_module lender = trained(w[0].context, 1);
        for (int i = 1; i <= BORROWERS; i++) {
            w[i].context = context_of(NULL);
            borrowed(w[i].context, lender);
        }
        for (int i = 0; i <= BORROWERS; i++) worker_begin(&workers[i], end_context, &w[i]);
        for (int i = 0; i <= BORROWERS; i++) worker_end(&workers[i]);
    }
}

#else
TEST(threads_infer_at_once_on_one_copy) { SKIP("threads"); }
TEST(contexts_end_at_once_on_threads) { SKIP("threads"); }
#endif

/* ==== Memory ==== */

TEST(the_borrower_has_no_copy) {
    enum { WIDE = 400, BYTES = WIDE * WIDE * 4 };
    static float sums[WIDE];
    arena of_lender, of_borrower;
    mpt_config config = mpt_config_default();
    config.threads = 1, config.device = MPT_DEVICE_CPU; /* whose memory the allocator gives */
    arena_use(&of_lender, &config);
    mpt_context *c = mpt_create(&config);
    arena_use(&of_borrower, &config);
    mpt_context *d = mpt_create(&config);
    mpt_module lender = mpt_nn_linear(c, WIDE, WIDE), net = mpt_nn_linear(d, WIDE, WIDE);
    mpt_module_hash(lender), mpt_module_hash(net);
    int64_t before = of_borrower.live, lent = of_lender.live;
    CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
    CHECK(of_lender.live - lent < 1000 && lent > BYTES);
    CHECK(before - of_borrower.live > BYTES - 4000);
    CHECK_EQ_INT(mpt_memory(d).current[MPT_MEMORY_PARAMETER], 0);
    CHECK(mpt_memory(c).current[MPT_MEMORY_PARAMETER] > BYTES);
    for (int i = 0; i < 3; i++) { /* half copies are each context's own */
        mpt_step_begin(d);
        mpt_autocast_begin(d, MPT_BF16);
        mpt_forward(net, mpt_ones(d, MPT_F32, MPT_SHAPE(2, WIDE)));
        mpt_autocast_end(d);
        mpt_step_end(d);
    }
    CHECK(mpt_memory(d).current[MPT_MEMORY_FORM] >= BYTES / 2);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_FORM], 0);
    mpt_destroy(c);
    CHECK(of_lender.live > BYTES && of_lender.live < BYTES + 8000); /* the borrower's, now */
    mpt_step_begin(d);
    mpt_read_f32(mpt_forward(net, mpt_ones(d, MPT_F32, MPT_SHAPE(1, WIDE))), sums, WIDE);
    mpt_step_end(d);
    CHECK_EQ_STR(mpt_error(d), "");
    mpt_destroy(d);
    CHECK(of_lender.live == 0 && of_lender.blocks == 0 && of_lender.torn == 0);
    CHECK(of_borrower.live == 0 && of_borrower.blocks == 0 && of_borrower.torn == 0);
}

TEST(whoever_ends_first) {
    for (int order = 0; order < 6; order++) {
        static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        arena a[3];
        mpt_context *c[3];
        mpt_module net[3];
        bool module_first = order % 2 == 1; /* the module, then its context */
        float want[ROWS * KINDS], got[ROWS * KINDS];
        for (int i = 0; i < 3; i++) c[i] = context_of(&a[i]);
        net[0] = trained(c[0], 2);
        infer(net[0], 1, MPT_F32, want);
        net[1] = borrowed(c[1], net[0]);
        net[2] = borrowed(c[2], net[order < 3 ? 0 : 1]); /* what is borrowed may be lent */
        for (int k = 0; k < 3; k++) {
            int ends = orders[order][k];
            if (module_first) CHECK_EQ_INT(mpt_module_destroy(net[ends]), MPT_OK);
            CHECK_EQ_STR(mpt_error(c[ends]), "");
            mpt_destroy(c[ends]);
            for (int left = k + 1; left < 3; left++) {
                infer(net[orders[order][left]], 1, MPT_F32, got);
                CHECK_EQ_BITS(got, want, sizeof want);
            }
        }
        for (int i = 0; i < 3; i++) CHECK(a[i].live == 0 && a[i].blocks == 0 && a[i].torn == 0);
    }
}

TEST(memory_that_is_refused) {
    for (int whose = 0; whose < 2; whose++) {
        int64_t tried = 0;
        for (int64_t at = 1;; at++) {
            arena a[2];
            mpt_context *c = context_of(&a[0]), *d = context_of(&a[1]);
            mpt_module lender = trained(c, 1), net = net_of(d, 16);
            mpt_module_hash(net);
            a[whose].fail_at = a[whose].calls + at, a[whose].failures = 1;
            mpt_status status = mpt_share_module(net, lender);
            bool refused = a[whose].refused > 0;
            a[whose].fail_at = 0;
            CHECK((status == MPT_OK) || refused);
            if (status != MPT_OK) {
                tried++;
                CHECK_CONTAINS(mpt_error(d), "memory");
                mpt_clear_error(c), mpt_clear_error(d);
                mpt_optimizer opt = mpt_sgd(net, NULL); /* it still is its own, and the lender's */
                CHECK_EQ_INT(train(net, opt, 1), MPT_OK);
                mpt_optimizer_destroy(opt);
                CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
            }
            same_inference(net, lender);
            mpt_destroy(at % 2 ? c : d);
            mpt_destroy(at % 2 ? d : c);
            CHECK(a[0].live == 0 && a[1].live == 0);
            if (!refused) break;
        }
        CHECK(tried > 1);
    }
}

/* ==== What has to agree ==== */

static void refused(mpt_module net, mpt_module lender, mpt_status status, const char *words) {
    CHECK_EQ_INT(mpt_share_module(net, lender), status);
    CHECK_CONTAINS(mpt_error(net.context), words);
    mpt_clear_error(net.context);
    if (lender.context) CHECK_EQ_STR(mpt_error(lender.context), "");
}

TEST(the_first_difference_is_named) {
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 1), half = net_of(d, 16), named = mpt_nn_linear(d, 3, 3);
    mpt_norm_config untracked = mpt_norm_config_default();
    untracked.track = false;
    refused(net_of(d, 17), lender, MPT_ERROR_SHAPE,
            "parameter 5.weight is [17, 64] here and [16, 64] in the lender");
    mpt_half(half, MPT_BF16);
    refused(half, lender, MPT_ERROR_DTYPE,
            "parameter 0.weight is bfloat16 here and float32 in the lender");
    refused(mpt_sequential(d, mpt_nn_linear(d, 3, 3), MPT_END), mpt_nn_linear(c, 3, 3),
            MPT_ERROR_SHAPE, "parameter 0.weight is weight in the lender");
    refused(mpt_nn_linear(d, 3, 3), mpt_nn_relu(c), MPT_ERROR_SHAPE,
            "the lender has no parameter weight");
    refused(mpt_nn_relu(d), mpt_nn_linear(c, 3, 3), MPT_ERROR_SHAPE,
            "the borrower has no parameter weight");
    refused(mpt_nn_batch_norm1d(d, 3, NULL), mpt_nn_batch_norm1d(c, 3, &untracked), MPT_ERROR_SHAPE,
            "the lender has no buffer running_mean");
    refused(mpt_nn_batch_norm1d(d, 3, &untracked), mpt_nn_batch_norm1d(c, 3, NULL), MPT_ERROR_SHAPE,
            "the borrower has no buffer running_mean");
    refused(mpt_nn_linear(c, 3, 3), mpt_nn_linear(c, 3, 3), MPT_ERROR_ARGUMENT,
            "both modules are of one context");
    mpt_optimizer opt = mpt_sgd(named, NULL);
    refused(named, mpt_nn_linear(c, 3, 3), MPT_ERROR_STATE, "weight belongs to an optimizer");
    mpt_optimizer_destroy(opt);
    CHECK_EQ_INT(mpt_share_module(named, mpt_nn_linear(c, 3, 3)), MPT_OK);
    mpt_step_begin(c);
    refused(net_of(d, 16), lender, MPT_ERROR_STATE, "a step is open in the context of the lender");
    mpt_step_end(c);
    mpt_step_begin(d);
    refused(named, mpt_nn_linear(c, 3, 3), MPT_ERROR_STATE,
            "a step is open in the context of the b");
    mpt_record_begin(d);
    refused(named, mpt_nn_linear(c, 3, 3), MPT_ERROR_STATE, "a recording is under way");
    mpt_tensor wrong = mpt_matmul(pictures(c, 0), mpt_ones(c, MPT_F32, MPT_SHAPE(7, 7)));
    CHECK(!mpt_valid(wrong));
    CHECK(mpt_share_module(named, lender) != MPT_OK);
    CHECK_CONTAINS(mpt_error(d), "the lender's context failed: ");
    mpt_destroy(c);
    mpt_destroy(d);
}

/* ==== Nobody writes ==== */

typedef struct side {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer opt; /* of the lender */
    mpt_ema ema;
    mpt_captured captured;
    mpt_recording recording;
    const char *path;
    char *snapshot;
    size_t bytes;
    const char *words;
} side;

static mpt_status captured_training(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const side *s = (const side *)user;
    (void)y;
    mpt_step_begin(c);
    mpt_zero_grad(s->opt);
    mpt_tensor z = mpt_forward(s->net, x);
    mpt_backward(mpt_mean(mpt_mul(z, z), MPT_ALL_DIMS, false));
    mpt_step(s->opt);
    return mpt_step_end(c);
}

/* What was asked has failed, and nothing changed. */
static void nothing_written(const side *s, uint64_t hash, const char *what) {
    mpt_context *c = s->context;
    if (!mpt_failed(c)) TEST_FAIL_("%s is no error", what);
    if (!strstr(mpt_error(c), s->words)) TEST_FAIL_("%s: %s", what, mpt_error(c));
    mpt_clear_error(c);
    if (mpt_module_hash(s->net) != hash) TEST_FAIL_("%s changed values", what);
    CHECK_EQ_STR(mpt_error(c), "");
}
#define REFUSED(call) ((void)(call), nothing_written(s, hash, #call))

/* Of either side. */
static void all_writes(const side *s) {
    mpt_context *c = s->context;
    mpt_module net = s->net;
    uint64_t hash = mpt_module_hash(net);
    mpt_tensor weight = mpt_parameter(net, "5.weight"), mean = mpt_buffer(net, "1.running_mean");
    static float values[16 * 64];
    memset(values, 0, sizeof values);
    REFUSED(mpt_write(weight, values, sizeof values));
    CHECK_EQ_INT(mpt_write(weight, values, sizeof values), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "parameter 5.weight is ");
    mpt_clear_error(c);
    REFUSED(mpt_write(mean, values, 16));
    REFUSED((mpt_no_grad_begin(c), mpt_fill_(weight, 3)));
    REFUSED((mpt_no_grad_begin(c),
             mpt_add_(mpt_slice(weight, 0, 3, 5, 1), mpt_ones(c, MPT_F32, MPT_SCALAR))));
    REFUSED((mpt_no_grad_begin(c), mpt_mul_scalar_(mpt_detach(weight), 2)));
    REFUSED((mpt_no_grad_begin(c), mpt_copy_(mean, mpt_ones(c, MPT_F32, MPT_SCALAR))));
    REFUSED(mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_CONSTANT, 1, 0)));
    REFUSED(mpt_set_init(net, "0.bias", mpt_init_make(MPT_INIT_CONSTANT, 1, 0)));
    REFUSED(mpt_half(net, MPT_BF16));
    REFUSED(mpt_load(net, s->path, NULL, NULL));
    mpt_module other = net_of(c, 16);
    REFUSED(mpt_copy_module(net, other));
    CHECK_EQ_INT(mpt_load(other, s->path, NULL, NULL), MPT_OK); /* which nobody borrows */
    mpt_module_destroy(other);
    REFUSED(mpt_restore(c, s->snapshot, s->bytes));
    CHECK_EQ_INT(mpt_save(net, s->path), MPT_OK);
}

TEST(nothing_writes_the_lenders_values) {
    static side given, *s = &given;
    char path[300];
    snprintf(path, sizeof path, "%s", test_tmp_path("share.safetensors"));
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    s->context = c, s->net = trained(c, 3), s->path = path, s->words = "is lent to 1 other module ";
    s->opt = mpt_adamw(s->net, NULL);
    s->ema = mpt_ema_create(s->net, s->opt, NULL);
    s->captured = mpt_capture(c, captured_training, s);
    mpt_tensor x = mpt_keep(pictures(c, 1));
    for (int i = 0; i < 3; i++) mpt_captured_step(s->captured, x, mpt_null_tensor());
    mpt_record_begin(c);
    train(s->net, s->opt, 1);
    s->recording = mpt_record_end(c);
    mpt_module net = borrowed(d, s->net);
    mpt_save(s->net, path);
    s->bytes = (size_t)mpt_snapshot_bytes(c);
    s->snapshot = (char *)malloc(s->bytes);
    CHECK_EQ_INT(mpt_snapshot(c, s->snapshot, s->bytes), MPT_OK);
    all_writes(s);
    uint64_t hash = mpt_module_hash(s->net), state = mpt_state_hash(c);
    mpt_train(s->net);
    REFUSED(mpt_forward(s->net, x)); /* which takes statistics of the batch */
    mpt_freeze(mpt_child(s->net, "1"), true);
    REFUSED(train(s->net, s->opt, 1)); /* a gradient is no value, the step would be */
    REFUSED(mpt_replay(s->recording));
    REFUSED(mpt_ema_apply(s->ema));
    CHECK_EQ_INT(mpt_state_hash(c), state);
    mpt_freeze(mpt_child(s->net, "1"), false);
    mpt_eval(s->net);
    same_inference(net, s->net);
    mpt_module_destroy(net); /* with the last borrower it ends */
    CHECK_EQ_INT(train(s->net, s->opt, 1), MPT_OK);
    CHECK_EQ_INT(mpt_ema_apply(s->ema), MPT_OK);
    CHECK_EQ_INT(mpt_ema_restore(s->ema), MPT_OK);
    CHECK_EQ_INT(mpt_restore(c, s->snapshot, s->bytes), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    CHECK(mpt_module_hash(s->net) == hash);
    free(s->snapshot);
    remove(path);
    mpt_destroy(c);
    mpt_destroy(d);
}

TEST(nothing_writes_the_borrowers_values) {
    static side given, *s = &given;
    char path[300];
    snprintf(path, sizeof path, "%s", test_tmp_path("share.safetensors"));
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 3);
    s->context = d, s->net = borrowed(d, lender), s->path = path;
    s->words = "from another context (mpt_share_module)";
    CHECK_EQ_INT(mpt_save(s->net, path), MPT_OK);
    s->bytes = (size_t)mpt_snapshot_bytes(d);
    s->snapshot = (char *)malloc(s->bytes);
    CHECK_EQ_INT(mpt_snapshot(d, s->snapshot, s->bytes), MPT_OK);
    all_writes(s);
    uint64_t hash = mpt_module_hash(s->net);
    CHECK(hash == mpt_module_hash(lender) && !mpt_is_training(s->net));
    REFUSED(mpt_train(s->net));
    REFUSED(mpt_train(mpt_child(s->net, "4")));
    REFUSED(mpt_freeze(s->net, false));
    REFUSED(mpt_requires_grad(mpt_parameter(s->net, "7.bias"), true));
    REFUSED(mpt_adamw(s->net, NULL));
    REFUSED(mpt_optimizer_add(mpt_sgd(mpt_nn_linear(d, 2, 2), NULL), s->net, NULL, NULL));
    mpt_eval(s->net), mpt_freeze(s->net, true);
    same_inference(s->net, lender);
    mpt_load(lender, path, NULL, NULL);
    CHECK_CONTAINS(mpt_error(c), "is lent to 1 other module ");
    mpt_clear_error(c);
    mpt_tensor x = pictures(d, 2);
    mpt_requires_grad(x, true); /* gradients of an input pass through what is borrowed */
    mpt_tensor y = mpt_forward(s->net, x);
    CHECK_EQ_INT(mpt_backward(mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false)), MPT_OK);
    CHECK(mpt_valid(mpt_grad(x)) && !mpt_valid(mpt_grad(mpt_parameter(s->net, "7.bias"))));
    mpt_clear_error(d);
    free(s->snapshot);
    remove(path);
    mpt_destroy(c);
    mpt_destroy(d);
}

static int halved;
static mpt_status halve(mpt_context *c, const mpt_user_update *p, void *user) {
    (void)user;
    halved++;
    mpt_mul_scalar_(p->value, 0.5);
    return mpt_error_code(c);
}

static mpt_tensor again(mpt_context *c, void *user) {
    mpt_tensor loss = loss_of(((const side *)user)->net, 1);
    mpt_backward(loss);
    halved++;
    return mpt_failed(c) ? mpt_null_tensor() : loss;
}

TEST(fits_files_and_other_optimizers) {
    static side given, *s = &given;
    char path[300];
    snprintf(path, sizeof path, "%s", test_tmp_path("share.checkpoint"));
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 1), net = borrowed(d, lender);
    s->context = c, s->net = lender, s->words = "is lent to 1 other module (mpt_share_module)";
    uint64_t hash = mpt_module_hash(lender);
    float values[ROWS * 2 * SIDE * SIDE];
    int64_t targets[ROWS];
    memset(values, 0, sizeof values), memset(targets, 0, sizeof targets);
    mpt_user_optimizer_config own = mpt_user_optimizer_config_default();
    own.update = halve;
    mpt_optimizer opt = mpt_user_optimizer(lender, &own);
    REFUSED(train(lender, opt, 1));
    mpt_optimizer_destroy(opt);
    opt = mpt_lbfgs(lender, NULL);
    REFUSED(mpt_lbfgs_step(opt, again, s));
    CHECK_EQ_INT(halved, 0);
    mpt_optimizer_destroy(opt);
    CHECK_EQ_INT(mpt_checkpoint_save(c, path), MPT_OK);
    REFUSED(mpt_checkpoint_load(c, path));
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    data.inputs = values, data.targets = targets, data.count = ROWS;
    data.shape = MPT_SHAPE(2, SIDE, SIDE);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 1;
    mpt_loader loader = mpt_loader_create(c, mpt_memory_dataset(c, &data), NULL);
    opt = mpt_sgd(lender, NULL);
    CHECK_EQ_STR(mpt_error(c), "");
    REFUSED(mpt_fit(lender, opt, loader, &fit));
    same_inference(net, (mpt_eval(lender), lender));
    remove(path);
    mpt_destroy(c);
    mpt_destroy(d);
}

/* ==== Whatever else a net can be ==== */

TEST(another_lender_takes_over) {
    arena a[3];
    mpt_context *c[3];
    mpt_module net[3], second;
    for (int i = 0; i < 3; i++) c[i] = context_of(&a[i]);
    net[0] = trained(c[0], 1), net[1] = trained(c[1], 4);
    net[2] = borrowed(c[2], net[0]);
    second = borrowed(c[2], net[0]); /* two nets of one context */
    same_inference(net[2], net[0]);
    same_inference(second, net[0]);
    CHECK_EQ_INT(mpt_share_module(net[2], net[0]), MPT_OK); /* what it has already */
    same_inference(net[2], net[0]);
    CHECK_EQ_INT(mpt_share_module(net[2], net[1]), MPT_OK);
    same_inference(net[2], net[1]);
    same_inference(second, net[0]);
    CHECK_EQ_INT(mpt_share_module(second, net[1]), MPT_OK);
    mpt_optimizer opt = mpt_sgd(net[0], NULL); /* nobody has its values any more */
    mpt_train(net[0]);
    CHECK_EQ_INT(train(net[0], opt, 1), MPT_OK);
    mpt_destroy(c[1]);
    CHECK_EQ_INT(mpt_module_destroy(net[2]), MPT_OK);
    CHECK(mpt_module_hash(second) != mpt_module_hash(net[0]));
    mpt_destroy(c[0]);
    mpt_destroy(c[2]);
    for (int i = 0; i < 3; i++) CHECK(a[i].live == 0 && a[i].torn == 0);
}

TEST(what_was_recorded_before) {
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 3), net = trained(d, 1);
#ifndef MPTRAIN_NO_THREADS
    static work w;
    float want[ROWS * KINDS], got[ROWS * KINDS];
    w.context = d, w.net = net, w.result = mpt_keep(mpt_zeros(d, MPT_F32, MPT_SHAPE(ROWS, KINDS)));
    mpt_captured step = mpt_capture(d, captured_inference, &w);
    mpt_tensor x = mpt_keep(pictures(d, 1));
    for (int i = 0; i < 4; i++) mpt_captured_step(step, x, mpt_null_tensor());
    int64_t replays = mpt_captured_count(step);
    CHECK(replays > 0);
#endif
    mpt_record_begin(d);
    mpt_forward(net, pictures(d, 1));
    mpt_recording recording = mpt_record_end(d);
    CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
#ifndef MPTRAIN_NO_THREADS
    infer(lender, 1, MPT_F32, want);
    for (int i = 0; i < 4; i++) { /* recorded anew, then repeated */
        CHECK_EQ_INT(mpt_captured_step(step, x, mpt_null_tensor()), MPT_OK);
        mpt_read_f32(w.result, got, ROWS * KINDS);
        CHECK_EQ_BITS(got, want, sizeof want);
    }
    CHECK(mpt_captured_count(step) > replays);
#endif
    CHECK_EQ_INT(mpt_replay(recording), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(d), "record anew");
    mpt_destroy(c);
    mpt_destroy(d);
}

static mpt_module half_net(mpt_context *c) {
    mpt_module net = trained(c, 2);
    mpt_half(net, MPT_BF16);
    return net;
}

TEST(pure_halves_and_fused_layers) {
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = half_net(c), net = net_of(d, 16), plain = trained(c, 2);
    mpt_half(net, MPT_BF16);
    CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
    CHECK_EQ_INT(mpt_get_dtype(mpt_parameter(net, "5.weight")), MPT_BF16);
    CHECK(mpt_module_hash(net) == mpt_module_hash(lender));
    float want[ROWS * KINDS], got[ROWS * KINDS];
    infer(lender, 1, MPT_BF16, want);
    infer(net, 1, MPT_BF16, got);
    CHECK_EQ_BITS(got, want, sizeof want);
    mpt_module fused = trained(d, 1);
    mpt_eval(fused);
    CHECK_EQ_INT(mpt_fuse(fused, pictures(d, 1), NULL, 0), 1);
    infer(fused, 1, MPT_F32, got); /* folded weights that then are of other values */
    CHECK_EQ_INT(mpt_share_module(fused, plain), MPT_OK);
    CHECK_EQ_INT(mpt_fuse(plain, pictures(c, 1), NULL, 0), 1);
    same_inference(fused, plain);
    mpt_destroy(c);
    mpt_destroy(d);
}

/* A part of a tree borrows a part of another one; the rest of each stays its own. */
TEST(a_part_of_a_net) {
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 3), net = net_of(d, 16);
    mpt_tensor x = mpt_keep(pictures(d, 1)), y = mpt_keep(pictures(c, 1));
    float got[4], want[4];
    CHECK_EQ_INT(mpt_share_module(mpt_child(net, "0"), mpt_child(lender, "0")), MPT_OK);
    mpt_read_f32(mpt_parameter(net, "0.bias"), got, 4);
    mpt_read_f32(mpt_parameter(lender, "0.bias"), want, 4);
    CHECK_EQ_BITS(got, want, sizeof want);
    CHECK_EQ_INT(mpt_sgd(net, NULL).slot, 0);
    CHECK_CONTAINS(mpt_error(d), "parameter 0.weight is borrowed");
    mpt_clear_error(d);
    mpt_optimizer opt = mpt_sgd(mpt_child(net, "7"), NULL);
    CHECK_EQ_INT(train(net, opt, 2), MPT_OK);
    CHECK(mpt_is_training(net) && !mpt_is_training(mpt_child(net, "0")));
    double apart = mpt_item(mpt_max(
        mpt_abs(mpt_reshape(mpt_forward(mpt_child(net, "0"), x), MPT_SHAPE(-1))), 0, false));
    double same = mpt_item(mpt_max(
        mpt_abs(mpt_reshape(mpt_forward(mpt_child(lender, "0"), y), MPT_SHAPE(-1))), 0, false));
    CHECK(apart == same);
    mpt_tensor beside = mpt_parameter(lender, "0.bias");
    CHECK_EQ_INT(mpt_write(beside, got, sizeof got), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "parameter 0.bias is lent");
    mpt_clear_error(c);
    opt = mpt_sgd(mpt_child(lender, "7"), NULL); /* in the same memory */
    CHECK_EQ_INT(train(lender, opt, 1), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), " is lent to 1 other module");
    mpt_destroy(c);
    mpt_destroy(d);
}

TEST(other_contexts_cost_what_they_did) {
    mpt_context *c = context_of(NULL), *d = context_of(NULL);
    mpt_module lender = trained(c, 1), net = borrowed(d, lender);
    mpt_module own = net_of(d, 16); /* a net beside it trains as ever, and allocates nothing */
    mpt_optimizer opt = mpt_adamw(own, NULL);
    CHECK_EQ_INT(train(own, opt, 5), MPT_OK);
    int64_t before = mpt_memory(d).allocations;
    CHECK_EQ_INT(train(own, opt, 5), MPT_OK);
    float out[ROWS * KINDS];
    infer(net, 1, MPT_BF16, out);
    int64_t after = mpt_memory(d).allocations;
    CHECK(after >= before);
    for (int i = 0; i < 3; i++) infer(net, 1, MPT_BF16, out);
    CHECK_EQ_INT(mpt_memory(d).allocations, after);
    mpt_destroy(d);
    mpt_destroy(c);
}

TEST_TABLE = {T(threads_infer_at_once_on_one_copy),
              T(contexts_end_at_once_on_threads),
              T(the_borrower_has_no_copy),
              T(whoever_ends_first),
              T(memory_that_is_refused),
              T(the_first_difference_is_named),
              T(nothing_writes_the_lenders_values),
              T(nothing_writes_the_borrowers_values),
              T(fits_files_and_other_optimizers),
              T(another_lender_takes_over),
              T(what_was_recorded_before),
              T(pure_halves_and_fused_layers),
              T(a_part_of_a_net),
              T(other_contexts_cost_what_they_did)};
TEST_MAIN
