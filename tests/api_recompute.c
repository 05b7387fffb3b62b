/* api_recompute.c: results of norms and activations that backward computes again: same gradients,
   bit for bit, in less memory; what may not be had again is refused or kept; and scopes that return
   something. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

enum { ROWS = 32, WIDTH = 16 }; /* multiples of the pool's grain of 256 bytes, in halves, too */

static mpt_context *make_context(arena *a) {
    mpt_config config = mpt_config_default();
    config.seed = 11;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

static int64_t active(mpt_context *c) { return mpt_memory(c).current[MPT_MEMORY_ACTIVATION]; }

/* ==== A chain of linear, something, linear ==== */

typedef struct chain {
    mpt_context *c;
    mpt_tensor x, w1, w2, scale, shift;
    bool again; /* in the region */
    int64_t held, launches;
} chain;

static mpt_tensor leaf(mpt_context *c, mpt_shape shape) {
    mpt_tensor t = mpt_keep(mpt_mul_scalar(mpt_randn(c, MPT_F32, shape), 0.5));
    mpt_requires_grad(t, true);
    return t;
}

static void chain_make(chain *h, bool again) {
    memset(h, 0, sizeof *h);
    h->c = make_context(NULL);
    h->again = again;
    h->x = leaf(h->c, MPT_SHAPE(ROWS, WIDTH));
    h->w1 = leaf(h->c, MPT_SHAPE(WIDTH, WIDTH));
    h->w2 = leaf(h->c, MPT_SHAPE(WIDTH, WIDTH));
    h->scale = leaf(h->c, MPT_SHAPE(WIDTH));
    h->shift = leaf(h->c, MPT_SHAPE(WIDTH));
}

static mpt_tensor rows_of(mpt_tensor x, mpt_tensor w, mpt_activation activation) {
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    return mpt_linear(x, w, none, activation);
}

static mpt_tensor plain(mpt_tensor x, mpt_tensor w) {
    return rows_of(x, w, MPT_ACTIVATION_NONE);
}

typedef struct middle_kind {
    const char *name;
    int spared; /* tensors of [ROWS, WIDTH] that need not stay */
    mpt_tensor (*run)(const chain *h, mpt_tensor x);
} middle_kind;

static mpt_tensor m_gelu(const chain *h, mpt_tensor x) { return (void)h, mpt_gelu(x); }
static mpt_tensor m_tanh_gelu(const chain *h, mpt_tensor x) { return (void)h, mpt_gelu_tanh(x); }
static mpt_tensor m_silu(const chain *h, mpt_tensor x) { return (void)h, mpt_silu(x); }
static mpt_tensor m_elu(const chain *h, mpt_tensor x) { return (void)h, mpt_elu(x, 0.75); }
static mpt_tensor m_sin(const chain *h, mpt_tensor x) { return (void)h, mpt_sin(x); }
static mpt_tensor m_clamp(const chain *h, mpt_tensor x) { return (void)h, mpt_clamp(x, -0.5, 1); }
static mpt_tensor m_relu(const chain *h, mpt_tensor x) { return (void)h, mpt_relu(x); }
static mpt_tensor m_tanh(const chain *h, mpt_tensor x) { return (void)h, mpt_tanh(x); }
static mpt_tensor m_layer(const chain *h, mpt_tensor x) {
    return mpt_layer_norm(x, 1, h->scale, h->shift, 1e-5);
}
static mpt_tensor m_shift(const chain *h, mpt_tensor x) { /* a bias that nothing else keeps */
    return mpt_layer_norm(x, 1, h->scale, mpt_mul_scalar(h->shift, 0.5), 1e-5);
}
static mpt_tensor m_rms(const chain *h, mpt_tensor x) { return mpt_rms_norm(x, 1, h->scale, 1e-6); }
static mpt_tensor m_group(const chain *h, mpt_tensor x) {
    return mpt_group_norm(x, 4, h->scale, h->shift, 1e-5);
}
static mpt_tensor m_linear(const chain *h, mpt_tensor x) {
    return rows_of(x, h->w1, MPT_ACTIVATION_GELU);
}
static mpt_tensor m_norm_linear(const chain *h, mpt_tensor x) {
    return rows_of(m_layer(h, x), h->w1, MPT_ACTIVATION_GELU_TANH);
}
static mpt_tensor m_gelu_norm(const chain *h, mpt_tensor x) { return m_layer(h, mpt_gelu(x)); }
static mpt_tensor m_view(const chain *h, mpt_tensor x) {
    mpt_tensor y = mpt_reshape(mpt_silu(x), MPT_SHAPE(2, ROWS / 2, WIDTH));
    return (void)h, mpt_reshape(mpt_transpose(mpt_transpose(y, 0, 1), 0, 1),
                                MPT_SHAPE(ROWS, WIDTH));
}
static mpt_tensor m_thrice(const chain *h, mpt_tensor x) { /* three that need one result */
    mpt_tensor y = m_layer(h, x);
    return mpt_add(mpt_add(plain(y, h->w1), plain(y, h->w2)), plain(y, h->w1));
}
static mpt_tensor m_squared(const chain *h, mpt_tensor x) {
    mpt_tensor y = mpt_gelu(x);
    return (void)h, mpt_matmul(y, mpt_matmul(mpt_transpose(y, 0, 1), y));
}
static mpt_tensor m_changed(const chain *h, mpt_tensor x) { /* with history */
    return mpt_mul_(mpt_gelu(x), mpt_cast(h->scale, mpt_get_dtype(x)));
}
static mpt_tensor m_changed_quietly(const chain *h, mpt_tensor x) { /* and without */
    mpt_tensor y = mpt_gelu(x);
    mpt_no_grad_begin(h->c);
    mpt_mul_scalar_(y, 0.5);
    mpt_no_grad_end(h->c);
    return y;
}

static const middle_kind kinds[] = {
    {"gelu", 1, m_gelu},
    {"gelu_tanh", 1, m_tanh_gelu},
    {"silu", 1, m_silu},
    {"elu", 1, m_elu},
    {"sin", 1, m_sin},
    {"clamp", 1, m_clamp},
    {"relu", 0, m_relu}, /* backward needs its result */
    {"tanh", 0, m_tanh},
    {"layer_norm", 1, m_layer},
    {"layer_norm, computed bias", 1, m_shift},
    {"rms_norm", 1, m_rms},
    {"group_norm", 1, m_group},
    {"linear and gelu", 1, m_linear},
    {"norm, linear and gelu", 2, m_norm_linear},
    {"gelu, norm", 1, m_gelu_norm}, /* the norm needs what came again: only one of them */
    {"views", 1, m_view},
    {"three readers", 1, m_thrice},
    {"squared", 0, m_squared},
    {"changed", 0, m_changed},
    {"changed quietly", 0, m_changed_quietly},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static mpt_tensor chain_loss(const chain *h, const middle_kind *kind, mpt_dtype precision) {
    mpt_autocast_begin(h->c, precision);
    if (h->again) mpt_recompute_begin(h->c);
    mpt_scope_begin(h->c);
    mpt_tensor y = plain(kind->run(h, plain(h->x, h->w1)), h->w2);
    mpt_tensor loss = mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false);
    mpt_scope_return(h->c, &loss, 1);
    if (h->again) mpt_recompute_end(h->c);
    mpt_autocast_end(h->c);
    return loss;
}

/* A step with so many backward passes; its gradients as a hash, and then none are left. */
static uint64_t chain_run(chain *h, const middle_kind *kind, mpt_dtype precision, int passes) {
    mpt_tensor leaves[5], none;
    memset(&none, 0, sizeof none);
    leaves[0] = h->x, leaves[1] = h->w1, leaves[2] = h->w2;
    leaves[3] = h->scale, leaves[4] = h->shift;
    mpt_step_begin(h->c);
    const int64_t before = active(h->c);
    mpt_tensor loss = chain_loss(h, kind, precision);
    h->held = active(h->c) - before;
    h->launches = mpt_get_counters(h->c).launches;
    for (int i = 1; i <= passes; i++) mpt_backward_from(loss, none, i < passes);
    h->launches = mpt_get_counters(h->c).launches - h->launches;
    uint64_t hash = mix_tensor(5, loss);
    for (int i = 0; i < 5; i++) {
        if (mpt_has_grad(leaves[i])) hash = mix_tensor(hash, mpt_grad(leaves[i]));
        mpt_clear_grad(leaves[i]);
    }
    mpt_step_end(h->c);
    if (mpt_failed(h->c)) TEST_FAIL_("%s: %s", kind->name, mpt_error(h->c));
    if (active(h->c) != before) TEST_FAIL_("%s: memory stays", kind->name);
    return hash;
}

TEST(gradients_have_the_same_bits_in_less_memory) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < KINDS; i++) {
        for (int p = 0; p < 3; p++) {
            chain kept, again;
            chain_make(&kept, false);
            chain_make(&again, true);
            for (int passes = 1; passes <= 2; passes++) {
                uint64_t hash = chain_run(&kept, &kinds[i], precisions[p], passes);
                if (chain_run(&again, &kinds[i], precisions[p], passes) != hash)
                    TEST_FAIL_("%s: other gradients", kinds[i].name);
                int64_t bias = kinds[i].run == m_shift ? 256 : 0; /* kept in exchange */
                int64_t tensor = ROWS * WIDTH * (int64_t)mpt_dtype_size(precisions[p]);
                if (kept.held - again.held != kinds[i].spared * tensor - bias)
                    TEST_FAIL_("%s: %lld bytes spared", kinds[i].name,
                               (long long)(kept.held - again.held));
                if (again.launches - kept.launches != kinds[i].spared)
                    TEST_FAIL_("%s: %lld more launches", kinds[i].name,
                               (long long)(again.launches - kept.launches));
            }
            mpt_destroy(kept.c);
            mpt_destroy(again.c);
        }
    }
}

/* ==== What may not be had again ==== */

/* In the region: an activation of linear(x), read by linear; all but the three of them ends. */
typedef struct parts {
    mpt_tensor before, y, out;
} parts;

static parts parts_make(const chain *h) {
    parts p;
    mpt_recompute_begin(h->c);
    p.before = plain(h->x, h->w1);
    p.y = mpt_silu(p.before);
    p.out = plain(p.y, h->w2);
    mpt_recompute_end(h->c);
    return p;
}

static mpt_tensor loss_of(mpt_tensor out) {
    return mpt_sum(mpt_mul(out, out), MPT_ALL_DIMS, false);
}

static void change(mpt_tensor x) {
    mpt_no_grad_begin(x.context);
    mpt_add_scalar_(x, 1);
    mpt_no_grad_end(x.context);
}

TEST(changed_inputs_are_named) {
    for (int which = 0; which < 3; which++) {
        chain h;
        chain_make(&h, true);
        mpt_step_begin(h.c);
        parts p = parts_make(&h);
        mpt_tensor loss = loss_of(p.out);
        if (which < 2) change(which ? p.y : p.before);
        if (which != 1) mpt_release(p.y);
        if (which == 2) change(p.before);
        CHECK_EQ_INT(mpt_backward(loss), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(h.c), which == 1 ? "linear saved" : "silu saved");
        CHECK_CONTAINS(mpt_error(h.c), "changed in place");
        mpt_clear_error(h.c);
        chain_run(&h, &kinds[0], MPT_F32, 1); /* goes on */
        mpt_destroy(h.c);
    }
}

TEST(what_is_held_anyway_is_not_computed) {
    chain again;
    chain_make(&again, true);
    mpt_step_begin(again.c);
    parts p = parts_make(&again); /* their handles live */
    mpt_tensor loss = loss_of(p.out);
    int64_t before = mpt_get_counters(again.c).launches;
    mpt_backward(loss);
    int64_t launches = mpt_get_counters(again.c).launches - before;
    mpt_step_end(again.c);
    mpt_step_begin(again.c);
    p = parts_make(&again);
    loss = loss_of(p.out);
    mpt_release(p.y);
    before = mpt_get_counters(again.c).launches;
    mpt_backward(loss);
    CHECK_EQ_INT(mpt_get_counters(again.c).launches - before, launches + 1);
    mpt_step_end(again.c);
    mpt_destroy(again.c);
}

/* A result that changes, with history, after it was read: without the region an error, for the
   reader saved it; here it is computed as the reader saw it. */
TEST(a_reader_before_a_change_has_its_value) {
    uint64_t hash[2];
    for (int inplace = 0; inplace < 2; inplace++) {
        chain h;
        chain_make(&h, true);
        mpt_step_begin(h.c);
        mpt_scope_begin(h.c);
        parts p = parts_make(&h);
        mpt_tensor y = inplace ? mpt_add_(p.y, p.out) : mpt_add(p.y, p.out), loss = loss_of(y);
        mpt_scope_return(h.c, &loss, 1);
        CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
        hash[inplace] = mix_tensor(mix_tensor(3, mpt_grad(h.x)), mpt_grad(h.w2));
        mpt_destroy(h.c);
    }
    CHECK(hash[0] == hash[1]);
}

TEST(a_second_pass_needs_retain) {
    chain h;
    chain_make(&h, true);
    mpt_step_begin(h.c);
    parts p = parts_make(&h);
    mpt_tensor one = loss_of(p.out), other;
    mpt_recompute_begin(h.c);
    other = loss_of(plain(p.y, h.w1));
    mpt_recompute_end(h.c);
    mpt_release(p.y);
    CHECK_EQ_INT(mpt_backward(one), MPT_OK);
    CHECK_EQ_INT(mpt_backward(other), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(h.c), "silu for the second time");
    CHECK_CONTAINS(mpt_error(h.c), "retain");
    mpt_destroy(h.c);
}

TEST(without_memory_for_it_the_step_can_be_repeated) {
    arena a;
    if (mpt_device_count(MPT_DEVICE_CUDA) > 0) SKIP("memory that comes from the allocator");
    mpt_context *c = make_context(&a);
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(128, 96))), loss;
    mpt_requires_grad(x, true);
    uint64_t hash[2];
    int64_t calls = 0;
    for (int run = 0; run < 2; run++) {
        for (int fails = run; fails >= 0; fails--) {
            mpt_step_begin(c);
            mpt_recompute_begin(c);
            mpt_scope_begin(c);
            loss = mpt_sum(mpt_matmul(mpt_gelu(x), mpt_ones(c, MPT_F32, MPT_SHAPE(96, 1))),
                           MPT_ALL_DIMS, false);
            mpt_scope_return(c, &loss, 1);
            mpt_recompute_end(c);
            mpt_memory_trim(c);
            calls = a.calls;
            if (fails) a.fail_at = calls + 1, a.failures = 1000000;
            CHECK_EQ_INT(mpt_backward(loss), fails ? MPT_ERROR_MEMORY : MPT_OK);
            a.fail_at = 0;
            if (!fails) break;
            CHECK(a.refused > 0);
            mpt_clear_error(c);
        }
        hash[run] = mix_tensor(1, mpt_grad(x));
        mpt_clear_grad(x);
        mpt_step_end(c);
        CHECK(!mpt_failed(c));
    }
    CHECK(hash[0] == hash[1]);
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* ==== Whole nets ==== */

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in;
    mpt_scope_begin(self.context);
    mpt_tensor x = mpt_forward(mpt_child(self, "norm"), in[0]);
    x = mpt_add(in[0], mpt_forward(mpt_child(self, "attention"), x));
    out[0] = mpt_add(x, mpt_forward(mpt_child(self, "mlp"), x));
    return mpt_scope_return(self.context, out, n_out);
}

static mpt_module block(mpt_context *c) {
    static mpt_module_class cls = {"block", block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_norm_config norm = mpt_norm_config_default();
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    mpt_add_child(self, "norm", mpt_nn_layer_norm(c, MPT_SHAPE(16), &norm));
    mpt_add_child(self, "attention", mpt_nn_multi_head_attention(c, 16, 2, &heads));
    mpt_add_child(self, "mlp",
                  mpt_sequential(c, mpt_nn_rms_norm(c, MPT_SHAPE(16), &norm),
                                 mpt_nn_linear(c, 16, 64), mpt_nn_gelu(c), mpt_nn_dropout(c, 0.0),
                                 mpt_nn_linear(c, 64, 16), mpt_nn_dropout(c, 0.1), MPT_END));
    return self;
}

typedef struct run {
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype precision;
    bool again;
} run;

static mpt_status run_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const run *r = (const run *)user;
    mpt_step_begin(c);
    mpt_autocast_begin(c, r->precision);
    if (r->again) mpt_recompute_begin(c);
    mpt_tensor loss = mpt_mse_loss(mpt_forward(r->net, x), y, MPT_MEAN);
    if (r->again) mpt_recompute_end(c);
    mpt_autocast_end(c);
    mpt_zero_grad(r->optimizer);
    mpt_backward(mpt_scale_loss(r->scaler, loss));
    mpt_scaler_step(r->scaler, r->optimizer);
    mpt_scaler_update(r->scaler);
    return mpt_step_end(c);
}

/* Six steps; weights as a hash. The last two may not allocate. */
static uint64_t run_net(mpt_dtype precision, bool again, bool capture, int64_t *peak) {
    arena a;
    run r;
    mpt_context *c = make_context(&a);
    r.net = mpt_sequential(c, block(c), block(c), block(c), MPT_END);
    r.optimizer = mpt_adamw(r.net, NULL);
    r.scaler = mpt_grad_scaler(c, NULL);
    r.precision = precision, r.again = again;
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(2, 12, 16)));
    mpt_tensor y = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(2, 12, 16)));
    mpt_captured captured = mpt_capture(c, run_step, &r);
    int64_t calls = 0;
    for (int i = 0; i < 6; i++) {
        if (i == 4) calls = a.calls, mpt_memory_reset_peak(c);
        if (capture)
            mpt_captured_step(captured, x, y);
        else
            run_step(c, &r, x, y);
    }
    CHECK_EQ_INT(a.calls, calls);
    if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
    *peak = mpt_memory(c).peak[MPT_MEMORY_ACTIVATION];
    uint64_t hash = mix_net(9, r.net);
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
    return hash;
}

TEST(nets_learn_the_same_bits_in_less_memory) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int p = 0; p < 3; p++) {
        int64_t kept, again, captured;
        uint64_t hash = run_net(precisions[p], false, false, &kept);
        CHECK(run_net(precisions[p], true, false, &again) == hash);
        CHECK(run_net(precisions[p], true, true, &captured) == hash);
        /* Of each block two norms, in fp32, and what GELU gives; those of the last one are there
           when backward begins. */
        int64_t block = 24 * (2 * 16 * 4 + 64 * (int64_t)mpt_dtype_size(precisions[p]));
        if (kept - again < 2 * block)
            TEST_FAIL_("%lld of %lld bytes", (long long)again, (long long)kept);
    }
}

/* ==== Scopes that return something ==== */

TEST(scopes_return_tensors) {
    mpt_context *c = make_context(NULL);
    mpt_tensor outside = mpt_ones(c, MPT_F32, MPT_SHAPE(3)), out[4];
    for (int step = 0; step < 2; step++) {
        if (step) mpt_step_begin(c);
        mpt_scope_begin(c);
        mpt_tensor outer = mpt_ones(c, MPT_F32, MPT_SHAPE(3));
        mpt_scope_begin(c);
        mpt_tensor gone = mpt_add(outer, outside), more = mpt_add(gone, gone);
        out[0] = mpt_add(more, gone), out[1] = mpt_add(more, more), out[2] = out[0];
        out[3] = outer;
        mpt_tensor late = mpt_add(gone, more);
        CHECK_EQ_INT(mpt_scope_return(c, out, 4), MPT_OK);
        CHECK(mpt_valid(outside) && mpt_valid(outer) && mpt_valid(out[0]) && mpt_valid(out[1]));
        CHECK(!mpt_valid(gone) && !mpt_valid(more) && !mpt_valid(late));
        CHECK_EQ_INT(mpt_scope_return(c, &out[1], 1), MPT_OK);
        CHECK(!mpt_valid(out[0]) && !mpt_valid(outer) && mpt_valid(out[1]));
        float values[3];
        mpt_read_f32(out[1], values, 3);
        CHECK_NEAR(values[2], 8, 0);
        if (step) mpt_step_end(c);
        CHECK(mpt_valid(out[1]) == (step == 0)); /* without a step until mpt_release */
        mpt_release(out[1]);
    }
    mpt_release(outside);
    CHECK_EQ_INT(active(c), 0);
    mpt_scope_begin(c);
    CHECK_EQ_INT(mpt_scope_return(c, NULL, 0), MPT_OK);
    CHECK(!mpt_failed(c));
    mpt_destroy(c);
}

TEST_TABLE = {
    T(gradients_have_the_same_bits_in_less_memory),
    T(changed_inputs_are_named),
    T(what_is_held_anyway_is_not_computed),
    T(a_reader_before_a_change_has_its_value),
    T(a_second_pass_needs_retain),
    T(without_memory_for_it_the_step_can_be_repeated),
    T(nets_learn_the_same_bits_in_less_memory),
    T(scopes_return_tensors),
};

TEST_MAIN
