/* api_checkpointing.c: forwards that backward runs again: the same bits as without, in every
   precision, with any number of threads, captured or not; what may not be run again is named; and
   memory is what it is for. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

#ifndef MPTRAIN_NO_FRUGAL

static mpt_context *make_context(arena *a, int threads) {
    mpt_config config = mpt_config_default();
    config.seed = 23;
    config.threads = threads;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

static mpt_tensor none(void) {
    mpt_tensor t;
    memset(&t, 0, sizeof t);
    return t;
}

/* ==== Nets ==== */

static mpt_module mlp(mpt_context *c) {
    mpt_module part[4];
    for (int i = 0; i < 4; i++)
        part[i] = mpt_sequential(c, mpt_nn_linear(c, 24, 24),
                                 i % 2 ? mpt_nn_relu(c) : mpt_nn_gelu(c), mpt_nn_dropout(c, 0.25),
                                 MPT_END);
    return mpt_sequential(c, part[0], part[1], part[2], part[3], mpt_nn_linear(c, 24, 24),
                          mpt_nn_tanh(c), mpt_nn_linear(c, 24, 7), MPT_END);
}

/* x + f(x), with batch norms: of a whole forward of the user's. */
static mpt_status residual_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                   mpt_tensor *out, int n_out) {
    mpt_tensor x = mpt_forward(mpt_child(self, "conv"), in[0]);
    (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_relu(mpt_add(in[0], mpt_forward(mpt_child(self, "norm"), x)));
    return MPT_OK;
}

static mpt_module residual(mpt_context *c) {
    static mpt_module_class cls = {"residual", residual_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_conv_config conv = mpt_conv_config_default();
    conv.padding[0] = conv.padding[1] = 1;
    conv.bias = false;
    mpt_add_child(self, "conv", mpt_nn_conv2d(c, 6, 6, 3, 3, &conv));
    mpt_add_child(self, "norm", mpt_nn_batch_norm2d(c, 6, NULL));
    return self;
}

static mpt_module conv_net(mpt_context *c) {
    mpt_conv_config conv = mpt_conv_config_default();
    conv.padding[0] = conv.padding[1] = 1;
    conv.bias = false;
    return mpt_sequential(c, mpt_nn_conv2d(c, 2, 6, 3, 3, &conv), mpt_nn_batch_norm2d(c, 6, NULL),
                          mpt_nn_relu(c), residual(c), mpt_nn_max_pool2d(c, NULL), residual(c),
                          mpt_nn_flatten(c), mpt_nn_dropout(c, 0.1), mpt_nn_linear(c, 96, 7),
                          MPT_END);
}

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    mpt_tensor x = mpt_forward(mpt_child(self, "norm"), in[0]);
    (void)user, (void)n_in, (void)n_out;
    x = mpt_add(in[0], mpt_forward(mpt_child(self, "attention"), x));
    out[0] = mpt_add(x, mpt_forward(mpt_child(self, "mlp"), x));
    return MPT_OK;
}

static mpt_module block(mpt_context *c) {
    static mpt_module_class cls = {"block", block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_norm_config norm = mpt_norm_config_default();
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    heads.dropout = 0.1, heads.causal = true;
    mpt_add_child(self, "norm", mpt_nn_layer_norm(c, MPT_SHAPE(16), &norm));
    mpt_add_child(self, "attention", mpt_nn_multi_head_attention(c, 16, 2, &heads));
    mpt_add_child(self, "mlp",
                  mpt_sequential(c, mpt_nn_rms_norm(c, MPT_SHAPE(16), &norm),
                                 mpt_nn_linear(c, 16, 64), mpt_nn_gelu(c),
                                 mpt_nn_linear(c, 64, 16), mpt_nn_dropout(c, 0.1), MPT_END));
    return self;
}

static mpt_module transformer(mpt_context *c) {
    return mpt_sequential(c, block(c), block(c), block(c), mpt_nn_linear(c, 16, 7), MPT_END);
}

typedef struct net_kind {
    const char *name;
    mpt_module (*make)(mpt_context *c);
    mpt_shape x;
} net_kind;

static int net_count(void) { return 3; }
static net_kind net_of(int i) {
    net_kind kinds[] = {{"mlp", mlp, MPT_SHAPE(8, 24)},
                        {"conv", conv_net, MPT_SHAPE(4, 2, 8, 8)},
                        {"transformer", transformer, MPT_SHAPE(2, 9, 16)}};
    return kinds[i];
}

/* ==== What is run again ==== */

typedef enum how { PLAIN, WHOLE, EACH, PARTS, NESTED, HOWS } how;

/* Child number i; a null handle if there is none. */
static mpt_module child(mpt_module module, int i) {
    char path[8];
    snprintf(path, sizeof path, "%d", i);
    mpt_module found = mpt_child(module, path);
    if (mpt_failed(module.context)) mpt_clear_error(module.context);
    return found;
}

static int children(mpt_module module) {
    int count = 0;
    while (child(module, count).slot) count++;
    return count;
}

static void mark(mpt_module net, how which) {
    int count = children(net);
    if (which == WHOLE) mpt_recompute_module(net, 1);
    if (which == PARTS || which == NESTED) mpt_recompute_module(net, which == PARTS ? 3 : 2);
    for (int i = 0; i < count && (which == EACH || which == NESTED); i++)
        mpt_recompute_module(child(net, i), 1);
    if (which == NESTED && children(child(net, 0)) == 3)
        mpt_recompute_module(child(child(net, 0), 2), 1);
}

typedef struct run {
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype precision;
    bool narrow;   /* sums of halves and fp32 are halves */
    int backwards; /* of halves of the batch */
} run;

static mpt_status run_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const run *r = (const run *)user;
    const int64_t rows = mpt_get_shape(x).dim[0] / r->backwards;
    mpt_step_begin(c);
    mpt_zero_grad(r->optimizer);
    for (int i = 0; i < r->backwards; i++) {
        mpt_tensor part = mpt_slice(x, 0, i * rows, (i + 1) * rows, 1);
        if (r->narrow)
            mpt_autocast_begin_narrow(c, r->precision);
        else
            mpt_autocast_begin(c, r->precision);
        mpt_tensor out = mpt_forward(r->net, part);
        out = mpt_reshape(out, MPT_SHAPE(-1, 7));
        mpt_autocast_end(c);
        out = mpt_log_softmax(mpt_cast(out, MPT_F32), -1);
        int64_t count = mpt_get_shape(out).dim[0];
        mpt_tensor loss =
            mpt_nll_loss(out, mpt_slice(y, 0, i * count, (i + 1) * count, 1), NULL);
        mpt_backward(mpt_scale_loss(r->scaler, loss));
        mpt_metric_push(c, "loss", loss);
    }
    mpt_scaler_step(r->scaler, r->optimizer);
    mpt_scaler_update(r->scaler);
    return mpt_step_end(c);
}

typedef enum storage { AUTOCAST, NARROW, HALF } storage;

/* Steps; all state as a hash. The last two may not allocate. */
static uint64_t run_net(const net_kind *kind, how which, mpt_dtype precision, storage kept,
                        int threads, bool capture, int backwards) {
    enum { STEPS = 6 };
    arena a;
    run r;
    const bool half = kept == HALF;
    mpt_context *c = make_context(&a, threads);
    r.narrow = kept == NARROW;
    r.net = kind->make(c);
    mark(r.net, which);
    if (half) mpt_half(r.net, precision);
    r.optimizer = mpt_adamw(r.net, NULL);
    r.scaler = mpt_grad_scaler(c, NULL);
    r.precision = half ? MPT_F32 : precision;
    r.backwards = backwards;
    mpt_tensor x = mpt_randn(c, half ? precision : MPT_F32, kind->x);
    x = mpt_keep(x);
    int64_t rows = kind->x.rank == 3 ? kind->x.dim[0] * kind->x.dim[1] : kind->x.dim[0];
    int64_t targets[32];
    for (int64_t i = 0; i < rows; i++) targets[i] = i % 7;
    mpt_tensor y = mpt_keep(mpt_from(c, MPT_I64, MPT_SHAPE(rows), targets));
    mpt_captured captured = mpt_capture(c, run_step, &r);
    int64_t calls = 0;
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS - 2) calls = a.calls;
        if (capture)
            mpt_captured_step(captured, x, y);
        else
            run_step(c, &r, x, y);
    }
    CHECK_EQ_INT(a.calls, calls);
    double loss = mpt_metric_mean(c, "loss", true);
    uint64_t hash = mpt_module_hash(r.net), bits;
    memcpy(&bits, &loss, sizeof bits);
    hash = mix_hash(hash, bits);
    if (mpt_failed(c)) TEST_FAIL_("%s: %s", kind->name, mpt_error(c));
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
    return hash;
}

static void compare(int net, mpt_dtype precision, storage kept, int backwards) {
    static const char *const names[] = {"", "narrow ", "pure "};
    net_kind kind = net_of(net);
    const uint64_t plain = run_net(&kind, PLAIN, precision, kept, 1, false, backwards);
    for (int which = WHOLE; which < HOWS; which++) {
        for (int at = 0; at < 4; at++) {
            int threads = 1 + at % 2;
            bool capture = at / 2 != 0;
            if (run_net(&kind, (how)which, precision, kept, threads, capture, backwards) != plain)
                TEST_FAIL_("%s, way %d, %s%s, %d threads, captured %d: other bits", kind.name,
                           which, names[kept], mpt_dtype_name(precision), threads, (int)capture);
        }
    }
}

TEST(nets_learn_the_same_bits) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int net = 0; net < net_count(); net++)
        for (int p = 0; p < 3; p++) compare(net, precisions[p], AUTOCAST, 1);
}

TEST(narrow_regions_learn_the_same_bits) {
    for (int net = 0; net < net_count(); net++) compare(net, MPT_BF16, NARROW, 1);
}

TEST(pure_half_learns_the_same_bits) {
    for (int net = 0; net < net_count(); net++) {
        compare(net, MPT_F16, HALF, 1);
        compare(net, MPT_BF16, HALF, 1);
    }
}

TEST(gradients_add_up_to_the_same_bits) {
    for (int net = 0; net < net_count(); net++) compare(net, MPT_BF16, AUTOCAST, 2);
}

/* ==== Forwards by hand ==== */

/* Weights, and what a forward is told. */
typedef struct hand {
    mpt_context *c;
    mpt_tensor x, w, v;
    bool again, inner;
    int calls, repeats;
} hand;

static mpt_tensor leaf(mpt_context *c, mpt_shape shape) {
    mpt_tensor t = mpt_keep(mpt_mul_scalar(mpt_randn(c, MPT_F32, shape), 0.5));
    mpt_requires_grad(t, true);
    return t;
}

static void hand_make(hand *h, bool again) {
    memset(h, 0, sizeof *h);
    h->c = make_context(NULL, 2);
    h->again = again;
    h->x = leaf(h->c, MPT_SHAPE(12, 16));
    h->w = leaf(h->c, MPT_SHAPE(16, 16));
    h->v = leaf(h->c, MPT_SHAPE(16, 16));
}

typedef mpt_status (*hand_fn)(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);

static mpt_status call(hand *h, hand_fn fn, const mpt_tensor *in, int n_in, mpt_tensor *out,
                       int n_out) {
    return h->again ? mpt_recompute_call(h->c, fn, h, in, n_in, out, n_out)
                    : fn(h->c, h, in, n_in, out, n_out);
}

/* Everything that draws, and a part in a part. */
static mpt_status f_inner(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor y = mpt_matmul(mpt_dropout(mpt_silu(in[0]), 0.3), in[1]);
    out[0] = mpt_add(y, mpt_mul_scalar(mpt_randn_like(y), 0.1));
    out[1] = mpt_tanh(mpt_mul(y, mpt_rand(c, MPT_F32, mpt_get_shape(y))));
    return MPT_OK;
}

static mpt_status f_draws(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    hand *h = (hand *)user;
    (void)n_in, (void)n_out;
    h->calls++, h->repeats += mpt_is_recomputing(c);
    mpt_tensor x = mpt_dropout(in[0], 0.2), two[2], args[2];
    mpt_autocast_begin(c, MPT_BF16);
    args[0] = mpt_matmul(x, h->w), args[1] = h->v;
    if (h->inner)
        mpt_recompute_call(c, f_inner, h, args, 2, two, 2);
    else
        f_inner(c, h, args, 2, two, 2);
    mpt_autocast_end(c);
    mpt_no_grad_begin(c);
    mpt_tensor mask = mpt_dropout(mpt_ones(c, MPT_F32, mpt_get_shape(two[0])), 0.5);
    mpt_no_grad_end(c);
    out[0] = mpt_mul(mpt_add(mpt_cast(two[0], MPT_F32), two[1]), mask);
    return MPT_OK;
}

static uint64_t gradients(hand *h) {
    mpt_tensor leaves[3];
    uint64_t hash = 5;
    leaves[0] = h->x, leaves[1] = h->w, leaves[2] = h->v;
    for (int i = 0; i < 3; i++) {
        if (mpt_has_grad(leaves[i])) hash = mix_tensor(hash, mpt_grad(leaves[i]));
        mpt_clear_grad(leaves[i]);
    }
    return hash;
}

static mpt_tensor square(mpt_tensor x) { return mpt_mean(mpt_mul(x, x), MPT_ALL_DIMS, false); }

TEST(functions_draw_the_same_numbers) {
    uint64_t hash[3];
    for (int which = 0; which < 3; which++) {
        hand h;
        hand_make(&h, which > 0);
        h.inner = which == 2;
        hash[which] = 1;
        for (int step = 0; step < 3; step++) {
            mpt_tensor y;
            if (step) mpt_step_begin(h.c);
            call(&h, f_draws, &h.x, 1, &y, 1);
            mpt_tensor z;
            call(&h, f_draws, &y, 1, &z, 1);
            mpt_tensor after = mpt_rand(h.c, MPT_F32, MPT_SHAPE(3));
            mpt_backward(square(mpt_mul(z, mpt_dropout(z, 0.5))));
            hash[which] = mix_hash(hash[which], gradients(&h));
            hash[which] = mix_tensor(mix_tensor(hash[which], z), after);
            hash[which] = mix_tensor(hash[which], mpt_rand(h.c, MPT_F32, MPT_SHAPE(3)));
            if (step) mpt_step_end(h.c);
        }
        CHECK_EQ_INT(h.calls, which ? 12 : 6);
        CHECK_EQ_INT(h.repeats, which ? 6 : 0);
        if (mpt_failed(h.c)) TEST_FAIL_("%s", mpt_error(h.c));
        mpt_destroy(h.c);
    }
    CHECK(hash[1] == hash[0]);
    CHECK(hash[2] == hash[0]);
}

TEST(two_losses_over_one_forward) {
    uint64_t hash[3];
    for (int which = 0; which < 3; which++) {
        hand h;
        hand_make(&h, which > 0);
        h.inner = which == 2;
        mpt_step_begin(h.c);
        mpt_tensor y, z;
        call(&h, f_draws, &h.x, 1, &y, 1);
        call(&h, f_draws, &y, 1, &z, 1);
        mpt_tensor loss = square(z);
        mpt_backward_from(loss, none(), true);
        hash[which] = gradients(&h);
        mpt_backward_from(mpt_sum(y, MPT_ALL_DIMS, false), none(), true);
        hash[which] = mix_hash(hash[which], gradients(&h));
        mpt_backward_from(loss, none(), false);
        hash[which] = mix_hash(hash[which], gradients(&h));
        CHECK(!mpt_failed(h.c));
        CHECK_EQ_INT(mpt_backward(square(z)), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(h.c), "second time");
        mpt_destroy(h.c);
    }
    CHECK(hash[1] == hash[0]);
    CHECK(hash[2] == hash[0]);
}

/* A long skip around parts, whose gradient has to be summed in the order of all records. */
TEST(gradients_from_beside_a_part) {
    uint64_t hash[2];
    for (int again = 0; again < 2; again++) {
        hand h;
        hand_make(&h, again != 0);
        mpt_step_begin(h.c);
        mpt_tensor x = mpt_gelu(h.x), y, z;
        call(&h, f_draws, &x, 1, &y, 1);
        call(&h, f_draws, &y, 1, &z, 1);
        mpt_backward(square(mpt_add(mpt_mul(x, z), mpt_add(y, mpt_matmul(x, h.w)))));
        hash[again] = gradients(&h);
        CHECK(!mpt_failed(h.c));
        mpt_destroy(h.c);
    }
    CHECK(hash[0] == hash[1]);
}

/* Changes its own tensors, reads values, keeps one. */
static mpt_status f_looks(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    hand *h = (hand *)user;
    (void)n_in, (void)n_out;
    mpt_scope_begin(c);
    mpt_tensor y = mpt_matmul(in[0], h->w), scale = mpt_full(c, MPT_F32, MPT_SHAPE(16), 0.5);
    mpt_mul_scalar_(y, 1.5);
    mpt_fill_(scale, mpt_item(mpt_mean(mpt_tanh(y), MPT_ALL_DIMS, false)) > 0 ? 2.0 : 3.0);
    out[0] = mpt_relu(mpt_mul(mpt_add_(y, in[0]), scale));
    mpt_metric_push(c, "seen", square(out[0]));
    return mpt_scope_return(c, out, 1);
}

TEST(forwards_that_look_at_values) {
    uint64_t hash[2];
    double seen[2];
    for (int again = 0; again < 2; again++) {
        hand h;
        hand_make(&h, again != 0);
        mpt_step_begin(h.c);
        mpt_tensor y, z;
        call(&h, f_looks, &h.x, 1, &y, 1);
        call(&h, f_looks, &y, 1, &z, 1);
        mpt_backward(square(z));
        hash[again] = gradients(&h);
        mpt_step_end(h.c);
        seen[again] = mpt_metric_mean(h.c, "seen", true);
        if (mpt_failed(h.c)) TEST_FAIL_("%s", mpt_error(h.c));
        mpt_destroy(h.c);
    }
    CHECK(hash[0] == hash[1]);
    CHECK(seen[0] == seen[1]);
}

/* ==== Where there is no history ==== */

TEST(without_history_nothing_changes) {
    uint64_t hash[2];
    int64_t launches[2];
    for (int which = 0; which < 2; which++) {
        mpt_context *c = make_context(NULL, 1);
        mpt_module net = conv_net(c);
        mark(net, which ? NESTED : PLAIN);
        mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(4, 2, 8, 8)));
        mpt_eval(net);
        mpt_scope_begin(c);
        mpt_no_grad_begin(c);
        hash[which] = mix_tensor(3, mpt_forward(net, x));
        mpt_no_grad_end(c);
        mpt_inference_begin(c);
        hash[which] = mix_tensor(hash[which], mpt_forward(net, x));
        launches[which] = mpt_get_counters(c).launches;
        mpt_inference_end(c);
        mpt_tensor y = mpt_forward(net, x); /* with history, in evaluation */
        mpt_backward(square(y));
        hash[which] = mix_tensor(hash[which], y);
        for (int i = 0; i < mpt_parameter_count(net); i++)
            hash[which] = mix_tensor(hash[which], mpt_grad(mpt_parameter_at(net, i, NULL, 0)));
        mpt_scope_end(c);
        hash[which] = mix_hash(hash[which], mpt_module_hash(net));
        if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1]);
    CHECK_EQ_INT(launches[0], launches[1]);
}

/* ==== Modules of many kinds ==== */

/* Of a module that is called in several places, outputs that nobody uses, hooks. */
typedef struct seen {
    int forwards, repeats, backwards;
} seen;

static mpt_status count_forward(mpt_module module, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    seen *s = (seen *)user;
    (void)in, (void)n_in, (void)n_out;
    s->forwards++, s->repeats += mpt_is_recomputing(module.context);
    out[0] = mpt_mul_scalar(out[0], 0.75); /* one that changes the result */
    return MPT_OK;
}

static mpt_status count_backward(mpt_module module, void *user, int output, mpt_tensor *gradient) {
    (void)module, (void)output;
    ((seen *)user)->backwards++;
    *gradient = mpt_mul_scalar(*gradient, 2.0);
    return MPT_OK;
}

static mpt_status shared_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                 mpt_tensor *out, int n_out) {
    mpt_module one = mpt_child(self, "one"), part = mpt_child(self, "part");
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_forward(one, in[0]);
    x = mpt_forward(part, mpt_forward(one, mpt_forward(part, x)));
    mpt_sum(mpt_gelu(mpt_forward(one, x)), MPT_ALL_DIMS, false); /* of which nothing comes */
    out[0] = mpt_forward(one, x);
    return MPT_OK;
}

static mpt_module shared(mpt_context *c) {
    static mpt_module_class cls = {"shared", shared_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(c, &cls, NULL), one = mpt_nn_linear(c, 16, 16);
    mpt_add_child(self, "one", one);
    mpt_add_child(self, "part",
                  mpt_sequential(c, mpt_nn_dropout(c, 0.5), one, mpt_nn_silu(c), MPT_END));
    return self;
}

TEST(shared_modules_and_hooks) {
    uint64_t hash[4];
    for (int which = 0; which < 4; which++) {
        mpt_context *c = make_context(NULL, 2);
        mpt_module net = shared(c), part = mpt_child(net, "part");
        seen s = {0, 0, 0};
        if (which & 1) mpt_recompute_module(net, 1);
        if (which & 2) mpt_recompute_module(part, 1);
        mpt_hook_forward(part, count_forward, &s);
        mpt_hook_backward(part, count_backward, &s);
        mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(12, 16)));
        mpt_step_begin(c);
        mpt_tensor y = mpt_forward(net, x);
        mpt_backward(square(y));
        hash[which] = mix_tensor(2, y);
        for (int i = 0; i < mpt_parameter_count(net); i++)
            hash[which] = mix_tensor(hash[which], mpt_grad(mpt_parameter_at(net, i, NULL, 0)));
        mpt_step_end(c);
        if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
        CHECK_EQ_INT(s.backwards, 2);
        CHECK_EQ_INT(s.forwards - s.repeats, 2);
        CHECK_EQ_INT(s.repeats, which == 3 ? 4 : which ? 2 : 0);
        mpt_destroy(c);
    }
    for (int which = 1; which < 4; which++) CHECK(hash[which] == hash[0]);
}

/* Two outputs; attention over something else, with a mask; layers in fp8, of states. */
static mpt_status rich_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                               mpt_tensor *out, int n_out) {
    mpt_tensor part[4], states[2];
    (void)user, (void)n_in, (void)n_out;
    mpt_forward_n(mpt_child(self, "rnn"), in, 1, states, 2);
    part[0] = states[0], part[1] = part[2] = in[1], part[3] = in[2];
    mpt_forward_n(mpt_child(self, "attention"), part, 4, out, 1);
    out[1] = mpt_forward(mpt_child(self, "wide"), mpt_glu(states[0], -1, MPT_GATE_SILU));
    return MPT_OK;
}

static mpt_module rich(mpt_context *c) {
    static mpt_module_class cls = {"rich", rich_forward, NULL, NULL, NULL, 3, 2};
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_recurrent_config rnn = mpt_recurrent_config_default();
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    rnn.layers = 2, rnn.dropout = 0.3, rnn.batch_first = true;
    heads.dropout = 0.2, heads.qk_norm = true;
    mpt_add_child(self, "rnn", mpt_nn_gru(c, 16, 16, &rnn));
    mpt_add_child(self, "attention", mpt_nn_multi_head_attention(c, 16, 2, &heads));
    mpt_module wide = mpt_nn_linear(c, 8, 8);
    mpt_add_child(self, "wide", wide);
    mpt_fp8(wide, NULL);
    return self;
}

TEST(layers_with_more_than_one_input) {
    uint64_t hash[3];
    for (int which = 0; which < 3; which++) {
        mpt_context *c = make_context(NULL, 2);
        mpt_module net = rich(c);
        if (which) mpt_recompute_module(net, 1);
        static const char *const names[] = {"rnn", "attention", "wide"};
        for (int i = 0; which == 2 && i < 3; i++)
            mpt_recompute_module(mpt_child(net, names[i]), 1);
        mpt_optimizer optimizer = mpt_adamw(net, NULL);
        mpt_tensor in[3], out[2];
        in[0] = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(3, 5, 16)));
        in[1] = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(3, 4, 16)));
        in[2] = mpt_keep(mpt_mul_scalar(mpt_randn(c, MPT_F32, MPT_SHAPE(5, 4)), 0.5));
        mpt_requires_grad(in[1], true);
        for (int step = 0; step < 4; step++) {
            mpt_step_begin(c);
            mpt_autocast_begin(c, MPT_BF16);
            mpt_forward_n(net, in, 3, out, 2);
            mpt_autocast_end(c);
            mpt_zero_grad(optimizer);
            mpt_backward(step % 2 ? square(mpt_cast(out[0], MPT_F32))
                                  : mpt_add(square(mpt_cast(out[0], MPT_F32)),
                                            square(mpt_cast(out[1], MPT_F32))));
            mpt_step(optimizer);
            mpt_step_end(c);
        }
        hash[which] = mix_tensor(mpt_module_hash(net), mpt_grad(in[1]));
        if (mpt_failed(c)) TEST_FAIL_("%d: %s", which, mpt_error(c));
        mpt_destroy(c);
    }
    CHECK(hash[1] == hash[0]);
    CHECK(hash[2] == hash[0]);
}

/* ==== Beside mpt_recompute_begin ==== */

TEST(cheap_ops_around_and_within) {
    uint64_t hash[2];
    for (int again = 0; again < 2; again++) {
        mpt_context *c = make_context(NULL, 1);
        mpt_module net = transformer(c);
        if (again) mpt_recompute_module(child(net, 1), 1);
        mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(2, 9, 16)));
        mpt_step_begin(c);
        mpt_recompute_begin(c);
        mpt_tensor y = mpt_forward(net, x);
        mpt_recompute_end(c);
        mpt_backward(square(y));
        hash[again] = mix_tensor(2, y);
        for (int i = 0; i < mpt_parameter_count(net); i++)
            hash[again] = mix_tensor(hash[again], mpt_grad(mpt_parameter_at(net, i, NULL, 0)));
        mpt_step_end(c);
        if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
        mpt_destroy(c);
    }
    CHECK(hash[0] == hash[1]);
}

/* ==== Memory ==== */

/* The peak of activations in a step of a deep net of equal layers. */
static int64_t peak_of(int parts, int each) {
    enum { LAYERS = 16 };
    mpt_context *c = make_context(NULL, 1);
    mpt_module layer[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        layer[i] = mpt_sequential(
            c, mpt_nn_linear(c, 64, 64), mpt_nn_gelu(c), mpt_nn_tanh(c), MPT_END);
        if (each) mpt_recompute_module(layer[i], 1);
    }
    mpt_module net = mpt_sequential_array(c, layer, LAYERS);
    mpt_recompute_module(net, parts);
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(256, 64)));
    mpt_step_begin(c);
    mpt_memory_reset_peak(c);
    const int64_t before = mpt_memory(c).current[MPT_MEMORY_ACTIVATION];
    mpt_backward(square(mpt_forward(net, x)));
    int64_t peak = mpt_memory(c).peak[MPT_MEMORY_ACTIVATION] - before;
    CHECK(!mpt_failed(c));
    mpt_step_end(c);
    CHECK_EQ_INT(mpt_memory(c).current[MPT_MEMORY_ACTIVATION], before);
    mpt_destroy(c);
    return peak / (256 * 64 * 4); /* in tensors */
}

TEST(memory_is_spared) {
    int64_t plain = peak_of(0, 0), four = peak_of(4, 0), both = peak_of(4, 1), each = peak_of(0, 1);
    if (plain < 32 || four > 3 + 8 + 3 || both > 3 + 3 + 2 + 3 || each > 15 + 2 + 3)
        TEST_FAIL_("plain %lld, four parts %lld, nested %lld, each %lld", (long long)plain,
                   (long long)four, (long long)both, (long long)each);
}

TEST(without_memory_for_it_the_step_can_be_repeated) {
    arena a;
    if (mpt_device_count(MPT_DEVICE_CUDA) > 0) SKIP("memory that comes from the allocator");
    mpt_context *c = make_context(&a, 1);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 24, 24), mpt_nn_gelu(c),
                                    mpt_sequential(c, mpt_nn_linear(c, 24, 24), mpt_nn_silu(c),
                                                   mpt_nn_linear(c, 24, 24), MPT_END),
                                    mpt_nn_tanh(c), MPT_END);
    mpt_recompute_module(net, 1);
    mpt_recompute_module(child(net, 2), 1);
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(8, 24)));
    uint64_t hash[2] = {0, 1};
    int refused = 0;
    for (int at = 1; at < 60 && !mpt_failed(c); at++) {
        mpt_step_begin(c);
        mpt_tensor loss = square(mpt_forward(net, x));
        mpt_memory_trim(c);
        a.fail_at = a.calls + at, a.failures = 1000000;
        mpt_status status = mpt_backward(loss);
        a.fail_at = 0;
        if (status != MPT_OK) {
            CHECK_EQ_INT(status, MPT_ERROR_MEMORY);
            refused++;
            mpt_clear_error(c);
        } else {
            hash[1] = mix_tensor(1, mpt_grad(mpt_parameter_at(net, 0, NULL, 0)));
            if (!hash[0]) hash[0] = hash[1];
            CHECK(hash[0] == hash[1]);
            for (int i = 0; i < mpt_parameter_count(net); i++)
                mpt_clear_grad(mpt_parameter_at(net, i, NULL, 0));
        }
        mpt_step_end(c);
    }
    CHECK(refused > 0);
    if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* ==== What may not be run again ==== */

static mpt_status f_writes(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    mpt_no_grad_begin(c);
    mpt_add_scalar_(*(mpt_tensor *)user, 1);
    mpt_no_grad_end(c);
    out[0] = mpt_gelu(in[0]);
    return MPT_OK;
}

static mpt_status f_varies(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    int *kind = (int *)user;
    (void)n_in, (void)n_out;
    mpt_tensor y = mpt_gelu(in[0]);
    if (mpt_is_recomputing(c)) {
        if (*kind == 0) y = mpt_tanh(y);
        if (*kind == 1) y = mpt_silu(y), mpt_silu(y);
        if (*kind == 2) return out[0] = y, MPT_OK;
        if (*kind == 3) return MPT_ERROR_IO;
    }
    out[0] = mpt_silu(y);
    return MPT_OK;
}

static mpt_status f_reads(
    mpt_context *c, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)c, (void)n_in, (void)n_out;
    out[0] = mpt_gelu(mpt_add(in[0], *(mpt_tensor *)user));
    return MPT_OK;
}

TEST(errors_are_named) {
    mpt_context *c = make_context(NULL, 1);
    mpt_tensor x = leaf(c, MPT_SHAPE(3, 4)), other = mpt_keep(mpt_ones(c, MPT_F32, MPT_SHAPE(4)));
    mpt_tensor y;
    CHECK_EQ_INT(mpt_recompute_call(c, f_writes, &other, &x, 1, &y, 1), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "from outside twice");
    mpt_clear_error(c);
    mpt_no_grad_begin(c); /* where it runs once */
    CHECK_EQ_INT(mpt_recompute_call(c, f_writes, &other, &x, 1, &y, 1), MPT_OK);
    mpt_no_grad_end(c);
    static const char *const says[] = {"tanh came where silu was", "silu came where its end was",
                                       "its end came where silu was", "MPT_ERROR_IO"};
    for (int kind = 0; kind < 4; kind++) {
        mpt_step_begin(c);
        mpt_recompute_call(c, f_varies, &kind, &x, 1, &y, 1);
        CHECK(mpt_backward(square(y)) != MPT_OK);
        if (kind < 3) CHECK_CONTAINS(mpt_error(c), says[kind]);
        CHECK_CONTAINS(mpt_error(c), "backward ran a forward again");
        mpt_clear_error(c);
        mpt_step_end(c);
    }
    for (int which = 0; which < 3; which++) { /* what it reads changes, its input, or ends */
        mpt_step_begin(c);
        mpt_tensor z = mpt_mul_scalar(x, 2), extra = mpt_mul_scalar(other, 0.5);
        mpt_recompute_call(c, f_reads, &extra, &z, 1, &y, 1);
        mpt_no_grad_begin(c);
        if (which < 2) mpt_add_scalar_(which ? z : extra, 1);
        if (which == 2) mpt_release(extra);
        mpt_no_grad_end(c);
        CHECK(mpt_backward(square(y)) != MPT_OK);
        CHECK_CONTAINS(mpt_error(c), which < 2 ? "has changed since" : "tensor made in step");
        mpt_clear_error(c);
        mpt_step_end(c);
    }
    mpt_module net = mlp(c);
    mpt_recompute_module(net, 1);
    mpt_tensor out = mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(2, 24)));
    mpt_module_destroy(net);
    CHECK(mpt_backward(square(out)) != MPT_OK);
    CHECK_CONTAINS(mpt_error(c), "module was destroyed");
    mpt_clear_error(c);
    mpt_destroy(c);
}

TEST_TABLE = {
    T(nets_learn_the_same_bits),
    T(narrow_regions_learn_the_same_bits), T(pure_half_learns_the_same_bits),
    T(gradients_add_up_to_the_same_bits),
    T(functions_draw_the_same_numbers),
    T(two_losses_over_one_forward),
    T(gradients_from_beside_a_part),
    T(forwards_that_look_at_values),
    T(without_history_nothing_changes),
    T(shared_modules_and_hooks),
    T(layers_with_more_than_one_input),
    T(cheap_ops_around_and_within),
    T(memory_is_spared),
    T(without_memory_for_it_the_step_can_be_repeated),
    T(errors_are_named),
};

#else

TEST(told_to_be_absent) {
    mpt_context *c = mpt_create(NULL);
    CHECK_EQ_INT(mpt_recompute_module(mpt_nn_relu(c), 1), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(mpt_error(c), "MPTRAIN_NO_FRUGAL");
    mpt_clear_error(c);
    CHECK_EQ_INT(mpt_recompute_call(c, NULL, NULL, NULL, 0, NULL, 0), MPT_ERROR_UNSUPPORTED);
    CHECK(!mpt_is_recomputing(c));
    mpt_destroy(c);
}

TEST_TABLE = {T(told_to_be_absent)};
#endif

TEST_MAIN
