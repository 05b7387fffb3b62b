/* api_kept.c: what backward keeps: the bytes of each op's record, and of whole nets, none more than
   there must be; and that what is kept small gives the bits of what is kept whole. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "bits.h"

enum { N = 8, C = 16, SIDE = 16, NUMEL = N * C * SIDE * SIDE, GRAIN = 256 };

static int64_t active(mpt_context *c) { return mpt_memory(c).current[MPT_MEMORY_ACTIVATION]; }

static mpt_context *make_context(uint64_t seed) {
    mpt_config config = mpt_config_default();
    config.seed = seed;
    return mpt_create(&config);
}

/* ==== One op ==== */

typedef struct place {
    mpt_context *c;
    mpt_tensor scale, shift, targets, none;
} place;

typedef mpt_tensor (*op_run)(const place *p, mpt_tensor x);

static mpt_tensor r_add(const place *p, mpt_tensor x) { return (void)p, mpt_add_scalar(x, 1); }
static mpt_tensor r_relu(const place *p, mpt_tensor x) { return (void)p, mpt_relu(x); }
static mpt_tensor r_tanh(const place *p, mpt_tensor x) { return (void)p, mpt_tanh(x); }
static mpt_tensor r_gelu(const place *p, mpt_tensor x) { return (void)p, mpt_gelu(x); }
/* The linear layer needs what the GELU gave, which comes again from what that keeps. */
static mpt_tensor r_gelu_linear(const place *p, mpt_tensor x) {
    mpt_tensor weight = mpt_select(mpt_select(x, 0, 0), 0, 0); /* of x, which is kept anyhow */
    return mpt_linear(mpt_gelu(x), weight, p->none, MPT_ACTIVATION_NONE);
}
static mpt_tensor r_silu(const place *p, mpt_tensor x) { return (void)p, mpt_silu(x); }
static mpt_tensor r_dropout(const place *p, mpt_tensor x) { return (void)p, mpt_dropout(x, 0.5); }
static mpt_tensor r_softmax(const place *p, mpt_tensor x) { return (void)p, mpt_softmax(x, -1); }
static mpt_tensor r_layer(const place *p, mpt_tensor x) {
    return mpt_layer_norm(x, 1, p->scale, p->shift, 1e-5);
}
static mpt_tensor r_rms(const place *p, mpt_tensor x) {
    return mpt_rms_norm(x, 1, p->scale, 1e-5);
}
static mpt_tensor r_batch(const place *p, mpt_tensor x) {
    return mpt_batch_norm(x, p->none, p->none, p->scale, p->shift, 1e-5);
}
static mpt_tensor r_batch_relu(const place *p, mpt_tensor x) {
    return mpt_batch_norm_relu(x, p->none, p->none, p->scale, p->shift, 1e-5, p->none);
}
static mpt_tensor r_group(const place *p, mpt_tensor x) {
    return mpt_group_norm(x, 4, p->scale, p->shift, 1e-5);
}
static mpt_tensor r_max_pool(const place *p, mpt_tensor x) {
    return (void)p, mpt_max_pool2d(x, NULL);
}
static mpt_tensor r_avg_pool(const place *p, mpt_tensor x) {
    return (void)p, mpt_avg_pool2d(x, NULL);
}
static mpt_tensor r_wide_pool(const place *p, mpt_tensor x) {
    mpt_pool_config config = mpt_pool_config_make(3, 2, 1);
    return (void)p, mpt_max_pool2d(x, &config);
}
static mpt_tensor r_large_pool(const place *p, mpt_tensor x) {
    return (void)p, mpt_adaptive_max_pool2d(x, 2, 2);
}
static mpt_tensor r_all_pool(const place *p, mpt_tensor x) {
    return (void)p, mpt_adaptive_max_pool2d(x, 1, 1);
}
static mpt_tensor r_relu_pool(const place *p, mpt_tensor x) {
    return (void)p, mpt_max_pool2d(mpt_relu(x), NULL);
}
static mpt_tensor r_relu_two(const place *p, mpt_tensor x) { /* of which one gates nothing */
    mpt_tensor y = mpt_relu(x);
    return (void)p, mpt_add(mpt_max_pool2d(y, NULL), mpt_avg_pool2d(y, NULL));
}
static mpt_tensor r_relu_dead(const place *p, mpt_tensor x) { /* the one that gated is no more */
    mpt_tensor y = mpt_relu(x);
    mpt_release(mpt_max_pool2d(y, NULL));
    return (void)p, mpt_avg_pool2d(y, NULL);
}
static mpt_tensor r_relu_square(const place *p, mpt_tensor x) { /* what relu gave is kept anyway */
    mpt_tensor y = mpt_relu(x);
    return (void)p, mpt_mul(y, y);
}
static mpt_tensor r_cross(const place *p, mpt_tensor x) {
    mpt_nll_config config = mpt_nll_config_default();
    config.reduction = MPT_NONE;
    return mpt_cross_entropy(mpt_reshape(x, MPT_SHAPE(NUMEL / 16, 16)), p->targets, &config);
}
static mpt_tensor r_nll(const place *p, mpt_tensor x) {
    mpt_tensor logits = mpt_reshape(x, MPT_SHAPE(NUMEL / 16, 16));
    return mpt_nll_loss(mpt_log_softmax(logits, -1), p->targets, NULL);
}
static mpt_tensor r_attention(const place *p, mpt_tensor x) { /* q, k and v in one */
    mpt_tensor q = mpt_reshape(x, MPT_SHAPE(N, C * 4, 64));
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = true;
    (void)p;
    return mpt_scaled_dot_product_attention(q, q, q, &config);
}

/* What is kept of x and of numbers, in elements of x and in bytes. */
typedef struct op_kind {
    const char *name;
    op_run run;
    int elements; /* NUMEL of them */
    int64_t bytes;
} op_kind;

static const op_kind kinds[] = {
    {"add_scalar", r_add, 0, 0},
    {"relu", r_relu, 0, NUMEL / 8},
    {"tanh", r_tanh, 1, 0},
    {"gelu", r_gelu, 1, 0},
    {"gelu, linear", r_gelu_linear, 1, 0},
    {"silu", r_silu, 1, 0},
    {"dropout", r_dropout, 0, 0},
    {"softmax", r_softmax, 1, 0},
    {"layer_norm", r_layer, 1, 2 * (NUMEL / 16) * 4},
    {"rms_norm", r_rms, 1, (NUMEL / 16) * 4},
    {"batch_norm", r_batch, 1, 2 * GRAIN},
    {"batch_norm_relu", r_batch_relu, 1, 2 * GRAIN + NUMEL / 8},
    {"group_norm", r_group, 1, 2 * GRAIN},
    {"max_pool2d", r_max_pool, 0, NUMEL / 4},
    {"max_pool2d 3x3", r_wide_pool, 0, NUMEL / 4},
    {"max_pool2d, large", r_large_pool, 0, N * C * 4},
    {"max_pool2d, all", r_all_pool, 0, N * C * 4},
    {"avg_pool2d", r_avg_pool, 0, 0},
    {"relu, max_pool2d", r_relu_pool, 0, 2 * NUMEL / 4}, /* the pool may give twice as much */
    {"relu, two readers", r_relu_two, 0, 2 * (NUMEL / 8 + NUMEL / 4)},
    {"relu, dead reader", r_relu_dead, 0, 2 * NUMEL / 8},
    {"relu, square", r_relu_square, 1, 0},
    {"cross_entropy", r_cross, 1, (NUMEL / 16) * 8 + GRAIN},
    {"log_softmax, nll", r_nll, 0, NUMEL * 4 + GRAIN},
    {"attention", r_attention, 2, N * C * 4 * 4},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct outcome {
    int64_t held;
    uint64_t hash;
} outcome;

/* What an op keeps once nothing else holds what goes in and comes out, and its gradient, of so many
   passes. whole: handles hold it all. */
static outcome run_op(const op_kind *kind, mpt_dtype dtype, bool whole, int passes) {
    outcome o;
    place p;
    memset(&p, 0, sizeof p);
    p.c = make_context(5);
    int64_t labels[NUMEL / 16];
    for (int i = 0; i < NUMEL / 16; i++) labels[i] = i % 16;
    p.scale = mpt_keep(mpt_add_scalar(mpt_randn(p.c, MPT_F32, MPT_SHAPE(16)), 1));
    p.shift = mpt_keep(mpt_randn(p.c, MPT_F32, MPT_SHAPE(16)));
    p.targets = mpt_keep(mpt_from(p.c, MPT_I64, MPT_SHAPE(NUMEL / 16), labels));
    mpt_tensor leaf = mpt_randn(p.c, MPT_F32, MPT_SHAPE(N, C, SIDE, SIDE));
    leaf = mpt_keep(mpt_cast(leaf, dtype));
    mpt_requires_grad(leaf, true);
    mpt_step_begin(p.c);
    const int64_t before = active(p.c);
    if (!whole) mpt_scope_begin(p.c);
    mpt_tensor y = kind->run(&p, mpt_mul_scalar(leaf, 0.5));
    mpt_tensor loss = mpt_sum(y, MPT_ALL_DIMS, false);
    if (!whole) mpt_scope_return(p.c, &loss, 1);
    o.held = active(p.c) - before - GRAIN;
    for (int i = 1; i <= passes; i++) mpt_backward_from(loss, p.none, i < passes);
    CHECK(whole || active(p.c) - before == GRAIN);
    static float grad[NUMEL];
    mpt_tensor g = mpt_cast(mpt_grad(leaf), MPT_F32);
    CHECK_EQ_INT(mpt_read(g, grad, sizeof grad), MPT_OK);
    o.hash = mix_tensor(3, loss);
    for (int i = 0; i < NUMEL; i++) {
        uint32_t bits;
        memcpy(&bits, &grad[i], 4);
        o.hash = mix_hash(o.hash, bits);
    }
    mpt_step_end(p.c);
    if (mpt_failed(p.c)) TEST_FAIL_("%s: %s", kind->name, mpt_error(p.c));
    mpt_destroy(p.c);
    return o;
}

TEST(ops_keep_no_more_than_they_must) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    printf("\n  %-18s %10s %10s   of %d elements", "bytes kept", "f32", "bf16", NUMEL);
    for (int i = 0; i < KINDS; i++) {
        printf("\n  %-18s", kinds[i].name);
        for (int d = 0; d < 3; d++) {
            outcome o = run_op(&kinds[i], dtypes[d], false, 1);
            int64_t must = kinds[i].bytes +
                           kinds[i].elements * NUMEL * (int64_t)mpt_dtype_size(dtypes[d]);
            if (d < 2) printf(" %10lld", (long long)o.held);
            if (getenv("MPTRAIN_KEPT_HASH")) printf(" %016llx", (unsigned long long)o.hash);
            if (o.held > must)
                TEST_FAIL_("%s: %lld bytes are kept, expected %lld", kinds[i].name,
                           (long long)o.held, (long long)must);
            for (int passes = 1; passes <= 2; passes++) {
                uint64_t whole = run_op(&kinds[i], dtypes[d], true, passes).hash;
                if (passes == 2) o = run_op(&kinds[i], dtypes[d], false, passes);
                if (o.hash != whole)
                    TEST_FAIL_("%s: other bits, in %d passes", kinds[i].name, passes);
            }
        }
    }
}

/* A result that was changed since is no longer what backward needs, whoever holds it. */
TEST(changed_results_are_named) {
    for (int way = 0; way < 2; way++) {
        mpt_context *c = make_context(5);
        mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(N, C, SIDE, SIDE));
        mpt_requires_grad(x, true);
        mpt_tensor y = mpt_relu(x);
        mpt_tensor loss = mpt_sum(way ? mpt_max_pool2d(y, NULL) : mpt_avg_pool2d(y, NULL),
                                  MPT_ALL_DIMS, false);
        mpt_no_grad_begin(c);
        mpt_add_scalar_(y, 1);
        mpt_no_grad_end(c);
        mpt_release(y);
        CHECK_EQ_INT(mpt_backward(loss), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(c), "relu saved for backward was changed in place");
        mpt_destroy(c);
    }
}

/* ==== Halves in the place of fp32 ==== */

enum { TOKENS = 4096, WIDTH = 64 };

/* What a norm gives to readers in a region; the readers: 1 a linear layer, 2 another one, 4 a
   product with itself, 8 a linear layer outside the region. */
static outcome run_readers(mpt_dtype low, int readers, bool whole, bool retain) {
    outcome o;
    mpt_context *c = make_context(7);
    const mpt_tensor none = mpt_null_tensor();
    mpt_tensor leaf[3] = {mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(TOKENS, WIDTH))),
                          mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(8, WIDTH))),
                          mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(8, WIDTH)))};
    for (int i = 0; i < 3; i++) mpt_requires_grad(leaf[i], true);
    mpt_step_begin(c);
    const int64_t before = active(c);
    mpt_tensor loss = mpt_zeros(c, MPT_F32, MPT_SHAPE(1));
    if (!whole) mpt_scope_begin(c);
    mpt_autocast_begin(c, low);
    mpt_tensor x = mpt_layer_norm(leaf[0], 1, none, none, 1e-5);
    for (int i = 0; i < 2; i++)
        if (readers >> i & 1) {
            mpt_tensor y = mpt_linear(x, leaf[1 + i], none, MPT_ACTIVATION_NONE);
            loss = mpt_add(loss, mpt_sum(mpt_tanh(y), MPT_ALL_DIMS, false));
        }
    if (readers & 4) loss = mpt_add(loss, mpt_sum(mpt_mul(x, x), MPT_ALL_DIMS, false));
    mpt_autocast_end(c);
    if (readers & 8) {
        mpt_tensor y = mpt_linear(x, leaf[1], none, MPT_ACTIVATION_NONE);
        loss = mpt_add(loss, mpt_sum(y, MPT_ALL_DIMS, false));
    }
    if (!whole) mpt_scope_return(c, &loss, 1);
    o.held = active(c) - before;
    if (retain) mpt_backward_from(loss, none, true);
    mpt_backward(loss);
    o.hash = mix_tensor(1, loss);
    for (int i = 0; i < 3; i++)
        if (mpt_has_grad(leaf[i])) o.hash = mix_tensor(o.hash, mpt_grad(leaf[i]));
    mpt_step_end(c);
    if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
    mpt_destroy(c);
    return o;
}

/* An fp32 result that linear layers alone keep for backward, and read as halves, is kept as halves:
   half the bytes, and the bits of keeping it whole. Whoever needs more of it keeps all. */
TEST(what_is_read_as_halves_is_kept_as_halves) {
    static const int readers[] = {1, 3, 5, 7, 9};
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 5; i++)
            for (int retain = 0; retain < 2; retain++) {
                const mpt_dtype low = d ? MPT_F16 : MPT_BF16;
                const outcome small = run_readers(low, readers[i], false, retain);
                const outcome large = run_readers(low, readers[i], true, retain);
                const int64_t bytes = TOKENS * WIDTH * (readers[i] < 4 ? 2 : 4);
                CHECK(small.hash == large.hash);
                CHECK(small.held >= bytes && small.held < bytes + TOKENS * WIDTH * 2);
            }
}

typedef struct normed {
    mpt_module net;
    mpt_optimizer optimizer;
    int64_t held; /* behind forward */
} normed;

static mpt_status normed_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    normed *n = (normed *)user;
    mpt_step_begin(c);
    const int64_t before = active(c);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_tensor out = mpt_forward(n->net, x);
    mpt_autocast_end(c);
    n->held = active(c) - before;
    mpt_zero_grad(n->optimizer);
    mpt_backward(mpt_cross_entropy(out, y, NULL));
    mpt_step(n->optimizer);
    return mpt_step_end(c);
}

static uint64_t train_normed(bool capture, int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    mpt_context *c = mpt_create(&config);
    normed n;
    n.net = mpt_sequential(c, mpt_nn_layer_norm(c, MPT_SHAPE(WIDTH), NULL),
                           mpt_nn_linear(c, WIDTH, 8), MPT_END);
    n.optimizer = mpt_adamw(n.net, NULL);
    static int64_t labels[TOKENS];
    for (int i = 0; i < TOKENS; i++) labels[i] = i % 8;
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(TOKENS, WIDTH)));
    mpt_tensor y = mpt_keep(mpt_from(c, MPT_I64, MPT_SHAPE(TOKENS), labels));
    mpt_captured captured = mpt_capture(c, normed_step, &n);
    for (int i = 0; i < 6; i++) {
        if (capture)
            mpt_captured_step(captured, x, y);
        else
            normed_step(c, &n, x, y);
    }
    CHECK(n.held >= TOKENS * WIDTH * 2 && n.held < TOKENS * WIDTH * 3);
    const uint64_t hash = mpt_module_hash(n.net);
    if (mpt_failed(c)) TEST_FAIL_("%s", mpt_error(c));
    mpt_destroy(c);
    return hash;
}

TEST(captured_steps_keep_halves_too) {
    const uint64_t hash = train_normed(false, 1);
    for (int threads = 1; threads <= 2; threads++) CHECK(train_normed(true, threads) == hash);
}

/* ==== Nets ==== */

static mpt_module make_mlp(mpt_context *c) {
    return mpt_sequential(c, mpt_nn_linear(c, 784, 128), mpt_nn_relu(c), mpt_nn_linear(c, 128, 64),
                          mpt_nn_relu(c), mpt_nn_linear(c, 64, 10), MPT_END);
}
static mpt_module make_lenet(mpt_context *c) {
    mpt_conv_config padded = mpt_conv_config_default();
    padded.padding[0] = padded.padding[1] = 2;
    return mpt_sequential(c, mpt_nn_conv2d(c, 1, 6, 5, 5, &padded), mpt_nn_relu(c),
                          mpt_nn_max_pool2d(c, NULL), mpt_nn_conv2d(c, 6, 16, 5, 5, NULL),
                          mpt_nn_relu(c), mpt_nn_max_pool2d(c, NULL), mpt_nn_flatten(c),
                          mpt_nn_linear(c, 400, 120), mpt_nn_relu(c), mpt_nn_dropout(c, 0.25),
                          mpt_nn_linear(c, 120, 84), mpt_nn_relu(c), mpt_nn_linear(c, 84, 10),
                          MPT_END);
}

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in;
    mpt_scope_begin(self.context);
    mpt_tensor a = mpt_forward(mpt_child(self, "attention"),
                               mpt_forward(mpt_child(self, "norm1"), in[0]));
    mpt_tensor x = mpt_add(in[0], a);
    out[0] = mpt_add(x, mpt_forward(mpt_child(self, "mlp"),
                                    mpt_forward(mpt_child(self, "norm2"), x)));
    return mpt_scope_return(self.context, out, n_out);
}
static mpt_module make_block(mpt_context *c) {
    static mpt_module_class cls = {"block", block_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(c, &cls, NULL);
    mpt_multi_head_config attention = mpt_multi_head_config_default();
    attention.causal = true, attention.dropout = 0.1;
    mpt_add_child(self, "norm1", mpt_nn_layer_norm(c, MPT_SHAPE(128), NULL));
    mpt_add_child(self, "attention", mpt_nn_multi_head_attention(c, 128, 4, &attention));
    mpt_add_child(self, "norm2", mpt_nn_layer_norm(c, MPT_SHAPE(128), NULL));
    mpt_add_child(self, "mlp",
                  mpt_sequential(c, mpt_nn_linear(c, 128, 512), mpt_nn_gelu(c),
                                 mpt_nn_linear(c, 512, 128), mpt_nn_dropout(c, 0.1), MPT_END));
    return mpt_sequential(c, self, mpt_nn_linear(c, 128, 96), MPT_END);
}

typedef struct net_kind {
    const char *name;
    mpt_module (*make)(mpt_context *c);
    mpt_shape in;
    int64_t rows, classes;
    int64_t held[2]; /* behind forward, at most: fp32, bf16 */
} net_kind;

static uint64_t run_net(const net_kind *kind, mpt_dtype precision, bool inside, int64_t *held,
                        mpt_memory_stats *stats) {
    mpt_context *c = make_context(9);
    mpt_module net = kind->make(c);
    mpt_adamw_config ac = mpt_adamw_config_default();
    ac.lr = 0.01f;
    mpt_optimizer optimizer = mpt_adamw(net, &ac);
    int64_t *labels = (int64_t *)malloc((size_t)kind->rows * sizeof *labels);
    for (int64_t i = 0; i < kind->rows; i++) labels[i] = i % kind->classes;
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, kind->in));
    mpt_tensor t = mpt_keep(mpt_from(c, MPT_I64, MPT_SHAPE(kind->rows), labels));
    uint64_t hash = 1;
    CHECK_EQ_INT(mpt_update_in_backward(optimizer, inside), MPT_OK);
    for (int step = 0; step < 3; step++) {
        mpt_step_begin(c);
        const int64_t before = active(c);
        mpt_autocast_begin(c, precision);
        mpt_scope_begin(c);
        mpt_tensor logits = mpt_forward(net, x);
        logits = mpt_reshape(logits, MPT_SHAPE(kind->rows, kind->classes));
        mpt_tensor loss = mpt_cross_entropy(logits, t, NULL);
        mpt_scope_return(c, &loss, 1);
        mpt_autocast_end(c);
        *held = active(c) - before;
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        hash = mix_tensor(hash, loss);
        mpt_step_end(c);
    }
    hash = mix_hash(hash, mpt_module_hash(net));
    *stats = mpt_memory(c);
    if (mpt_failed(c)) TEST_FAIL_("%s: %s", kind->name, mpt_error(c));
    free(labels);
    mpt_destroy(c);
    return hash;
}

TEST(nets_keep_no_more_than_they_must) {
    const net_kind nets[] = {
        {"mlp, batch 64", make_mlp, MPT_SHAPE(64, 784), 64, 10, {53000, 27000}},
        {"lenet, batch 64", make_lenet, MPT_SHAPE(64, 1, 28, 28), 64, 10, {830000, 470000}},
        {"gpt block, 8 x 128", make_block, MPT_SHAPE(8, 128, 128), 8 * 128, 96, {6860000, 4500000}},
    };
    printf("\n  %-20s %10s %10s %10s %10s", "bytes", "forward", "activation", "gradient", "all");
    for (int i = 0; i < 3; i++) {
        uint64_t hash[4];
        int64_t peak[4];
        for (int way = 0; way < 4; way++) { /* fp32, bf16; both with updates inside backward */
            int64_t held;
            mpt_memory_stats m;
            hash[way] = run_net(&nets[i], way % 2 ? MPT_BF16 : MPT_F32, way > 1, &held, &m);
            peak[way] = m.peak[MPT_MEMORY_GRADIENT];
            printf("\n  %-20s %10lld %10lld %10lld %10lld %s", nets[i].name, (long long)held,
                   (long long)m.peak[MPT_MEMORY_ACTIVATION], (long long)peak[way],
                   (long long)m.total_peak, way % 2 ? "bf16" : "fp32");
            printf("%s", way > 1 ? ", inside" : "");
            if (getenv("MPTRAIN_KEPT_HASH")) printf(" %016llx", (unsigned long long)hash[way]);
            CHECK(held <= nets[i].held[way % 2]);
            CHECK(way < 2 || (hash[way] == hash[way - 2] && peak[way] < peak[way - 2]));
        }
    }
}

TEST_TABLE = {T(ops_keep_no_more_than_they_must), T(changed_results_are_named),
              T(what_is_read_as_halves_is_kept_as_halves), T(captured_steps_keep_halves_too),
              T(nets_keep_no_more_than_they_must)};
TEST_MAIN
