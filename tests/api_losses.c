/* api_losses.c: the losses against PyTorch (values, dtypes, gradients, edge rules, trainings of 200
 * steps), and what PyTorch does not promise: sums of one tree, infinite logits, errors that name
 * the place. */
#include "golden.h"

enum { MAX_INPUTS = 8, STEPS = 200, ROWS = 32, WIDTH = 8, HIDDEN = 16, OUT = 12 };

static mpt_context *context;

/* ==== Calls ==== */

typedef struct loss_row {
    const char *name;
    mpt_tensor (*call)(const golden_case *c, const mpt_tensor *in, int n);
} loss_row;

static mpt_reduction reduction_of(const golden_case *c) {
    static const mpt_reduction reductions[] = {MPT_MEAN, MPT_SUM, MPT_NONE, MPT_BATCH_MEAN};
    return reductions[c->ints[0] & 3];
}

static mpt_tensor at(const mpt_tensor *in, int n, int k) {
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    return k < n ? in[k] : none;
}

static mpt_tensor classes(const golden_case *c, const mpt_tensor *in, int n) {
    mpt_nll_config config = mpt_nll_config_default();
    config.reduction = reduction_of(c);
    if (strcmp(c->op, "soft_targets") != 0) config.ignore_index = c->ints[1];
    config.label_smoothing = c->reals[0];
    config.weight = at(in, n, 2);
    return strcmp(c->op, "nll_loss") == 0 ? mpt_nll_loss(in[0], in[1], &config)
                                          : mpt_cross_entropy(in[0], in[1], &config);
}

#define CALL(name, expression) \
    static mpt_tensor name(const golden_case *c, const mpt_tensor *in, int n) { \
        (void)n; \
        return expression; \
    }
#define KIND reduction_of(c)
CALL(mse, mpt_mse_loss(in[0], in[1], KIND))
CALL(l1, mpt_l1_loss(in[0], in[1], KIND))
CALL(smooth_l1, mpt_smooth_l1_loss(in[0], in[1], c->reals[0], KIND))
CALL(huber, mpt_huber_loss(in[0], in[1], c->reals[0], KIND))
CALL(logits, mpt_binary_cross_entropy_with_logits(in[0], in[1], at(in, c->ints[1] & 1 ? n : 0, 2),
                                                  at(in, c->ints[1] & 2 ? n : 0, n - 1), KIND))
CALL(bce, mpt_binary_cross_entropy(in[0], in[1], at(in, n, 2), KIND))
CALL(kl, mpt_kl_div(in[0], in[1], c->ints[1] != 0, KIND))
CALL(gauss, mpt_gaussian_nll_loss(in[0], in[1], in[2], c->ints[1] != 0, c->reals[0], KIND))
CALL(soft_margin, mpt_soft_margin_loss(in[0], in[1], KIND))
CALL(hinge, mpt_hinge_embedding_loss(in[0], in[1], c->reals[0], KIND))
CALL(ranking, mpt_margin_ranking_loss(in[0], in[1], in[2], c->reals[0], KIND))
CALL(triplet,
     mpt_triplet_margin_loss(in[0], in[1], in[2], c->reals[0], c->reals[1], c->ints[1] != 0, KIND))
CALL(cosine, mpt_cosine_similarity(in[0], in[1], (int)c->ints[0], c->reals[0]))
CALL(cosine_embedding, mpt_cosine_embedding_loss(in[0], in[1], in[2], c->reals[0], KIND))

static const loss_row rows[] = {{"nll_loss", classes},
                                {"cross_entropy", classes},
                                {"soft_targets", classes},
                                {"mse_loss", mse},
                                {"l1_loss", l1},
                                {"smooth_l1_loss", smooth_l1},
                                {"huber_loss", huber},
                                {"binary_cross_entropy_with_logits", logits},
                                {"binary_cross_entropy", bce},
                                {"kl_div", kl},
                                {"gaussian_nll_loss", gauss},
                                {"soft_margin_loss", soft_margin},
                                {"hinge_embedding_loss", hinge},
                                {"margin_ranking_loss", ranking},
                                {"triplet_margin_loss", triplet},
                                {"cosine_similarity", cosine},
                                {"cosine_embedding_loss", cosine_embedding}};
enum { LOSSES = sizeof rows / sizeof *rows };

static const loss_row *row_of(const golden_case *c) {
    for (int i = 0; i < LOSSES; i++)
        if (strcmp(rows[i].name, c->op) == 0) return &rows[i];
    TEST_FAIL_("%s: no row for %s", c->label, c->op);
    return NULL;
}

/* ==== Cases ==== */

/* The leaf that holds a case's values: of twice the last dimension, or with the last two swapped,
   where the case asks for strides; *view has the values in their order. */
static mpt_tensor leaf_of(const golden_tensor *t, mpt_tensor *view) {
    mpt_tensor leaf = mpt_from(context, t->dtype, t->shape, t->data);
    int last = t->shape.rank - 1;
    if (t->layout == GOLDEN_TRANSPOSED) {
        leaf = mpt_clone(mpt_transpose(leaf, last, last - 1));
        leaf = mpt_detach(leaf);
    } else if (t->layout == GOLDEN_SLICED) {
        mpt_shape wide = t->shape, pairs = t->shape;
        wide.dim[last] *= 2;
        pairs.dim[pairs.rank++] = 1;
        mpt_tensor two[2];
        two[0] = mpt_mul_scalar(mpt_reshape(leaf, pairs), NAN);
        two[1] = mpt_reshape(leaf, pairs);
        leaf = mpt_detach(mpt_reshape(mpt_cat(two, 2, -1), wide));
    }
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(leaf, true);
    *view = t->layout == GOLDEN_SLICED       ? mpt_slice(leaf, last, 1, t->shape.dim[last] * 2, 2)
            : t->layout == GOLDEN_TRANSPOSED ? mpt_transpose(leaf, last, last - 1)
                                             : leaf;
    return leaf;
}

/* The gradient of a leaf, in the order of its case's values. */
static mpt_tensor gradient_of(const golden_tensor *t, mpt_tensor leaf) {
    mpt_tensor gradient = mpt_grad(leaf);
    int last = t->shape.rank - 1;
    if (t->layout == GOLDEN_TRANSPOSED) return mpt_transpose(gradient, last, last - 1);
    if (t->layout == GOLDEN_SLICED) return mpt_slice(gradient, last, 1, t->shape.dim[last] * 2, 2);
    return gradient;
}

static void compare(const golden_case *c, const golden_tensor *want, mpt_tensor got) {
    float *values = (float *)calloc((size_t)want->count + 1, sizeof *values);
    if (mpt_get_dtype(got) != want->dtype || mpt_get_shape(got).rank != want->shape.rank ||
        mpt_read_f32(got, values, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s: another dtype or shape; %s", c->label, want->name, mpt_error(context));
    else
        golden_compare(c->label, want, 0, values, want->count);
    free(values);
}

static void run_case(const golden_case *c) {
    mpt_tensor leaf[MAX_INPUTS], in[MAX_INPUTS];
    const golden_tensor *upstream = NULL;
    const loss_row *row = row_of(c);
    int n = 0;
    if (!row) return;
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors; i++) {
        if (c->tensors[i].role == GOLDEN_UPSTREAM) upstream = &c->tensors[i];
        if (c->tensors[i].role > GOLDEN_LEAF || n == MAX_INPUTS) continue;
        leaf[n] = leaf_of(&c->tensors[i], &in[n]);
        n++;
    }
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_begin(context, c->region);
    mpt_tensor out = row->call(c, in, n);
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_end(context);
    compare(c, golden_find(c, "out"), out);
    if (upstream)
        mpt_backward_from(out, mpt_from(context, upstream->dtype, upstream->shape, upstream->data),
                          false);
    for (int i = 0; upstream && i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role == GOLDEN_GRADIENT) compare(c, t, gradient_of(t, leaf[t->input]));
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_clear_error(context);
    mpt_scope_end(context);
    mpt_clear_error(context);
}

static bool is_trace(const golden_case *c) { return strncmp(c->label, "trace", 5) == 0; }

static int run_cases(bool traces, void run(const golden_case *c), int seen[LOSSES]) {
    golden_file file;
    static golden_case c;
    int count = 0;
    if (!golden_open(&file, "losses.bin")) return 0;
    context = mpt_create(NULL);
    while (context && golden_next(&file, &c)) {
        if (is_trace(&c) != traces) continue;
        run(&c);
        count++;
        for (int i = 0; i < LOSSES; i++) seen[i] |= strcmp(rows[i].name, c.op) == 0;
    }
    golden_close(&file);
    mpt_destroy(context);
    return count;
}

TEST(every_loss_is_pytorchs) {
    int seen[LOSSES] = {0};
    CHECK(run_cases(false, run_case, seen) > 400);
    for (int i = 0; i < LOSSES; i++)
        if (!seen[i]) TEST_FAIL_("no case for %s", rows[i].name);
}

/* ==== Trainings: 8-16-12 with tanh, 32 samples at a time, SGD with momentum, 200 steps ==== */

enum { AS_IT_IS, LOG_SOFTMAX, SIGMOID, POSITIONS };

/* `uniform` of tools/golden.py for a label: a stream by its CRC-32. */
static void noise(const char *label, float scale, float *values, int count) {
    uint32_t crc = 0xffffffffu;
    for (const char *p = label; *p; p++) {
        crc ^= (unsigned char)*p;
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    for (int i = 0; i < count; i++) values[i] = golden_uniform(~crc, (uint32_t)i) * scale;
}

static mpt_module make_net(void) {
    mpt_module net =
        mpt_sequential(context, mpt_nn_linear(context, WIDTH, HIDDEN), mpt_nn_tanh(context),
                       mpt_nn_linear(context, HIDDEN, OUT), MPT_END);
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    float values[HIDDEN * OUT];
    char label[32];
    for (int k = 0; k < 4; k++) {
        mpt_tensor p = mpt_parameter(net, names[k]);
        int count = (int)mpt_numel(p);
        snprintf(label, sizeof label, "trace w%d", k);
        noise(label, 0.5f, values, count);
        mpt_write(p, values, (size_t)count * sizeof *values);
    }
    return net;
}

static void run_trace(const golden_case *c) {
    const loss_row *row = row_of(c);
    int inputs = (int)c->ints[c->n_ints - 2], how = (int)c->ints[c->n_ints - 1];
    float x[ROWS * WIDTH], losses[STEPS];
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.05;
    config.momentum = 0.9;
    mpt_module net = make_net();
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    for (int step = 0; row && step < STEPS; step++) {
        mpt_tensor in[MAX_INPUTS];
        char label[32];
        int n = 0;
        mpt_step_begin(context);
        for (; n < inputs; n++) {
            snprintf(label, sizeof label, "trace x%d", n);
            noise(label, 1, x, ROWS * WIDTH);
            in[n] = mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, WIDTH), x));
        }
        if (how == LOG_SOFTMAX) in[0] = mpt_log_softmax(in[0], 1);
        if (how == SIGMOID) in[0] = mpt_sigmoid(in[0]);
        if (how == POSITIONS) in[0] = mpt_reshape(in[0], MPT_SHAPE(ROWS, 3, 4));
        for (int i = 0; i + 1 < c->n_tensors; i++) leaf_of(&c->tensors[i], &in[n++]);
        mpt_tensor loss = row->call(c, in, n);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        losses[step] = (float)mpt_item(loss);
        mpt_step_end(context);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    golden_compare(c->label, golden_find(c, "loss"), 0, losses, STEPS);
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
}

TEST(two_hundred_steps) {
    int seen[LOSSES] = {0};
    CHECK_EQ_INT(run_cases(true, run_trace, seen), 16);
}

/* ==== Beyond PyTorch ==== */

/* On the CPU the sum in the loss's own pass has the tree of mpt_mean: the same bits, for any number
   of threads. */
TEST(one_pass_has_the_tree_of_the_mean) {
    for (int threads = 1; threads <= 3; threads += 2) {
        mpt_config config = mpt_config_default();
        config.threads = threads;
        config.device = MPT_DEVICE_CPU;
        context = mpt_create(&config);
        REQUIRE(context);
        for (int64_t n = 1; n < 300000; n = n * 5 + 3) {
            mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(n));
            mpt_tensor y = mpt_randn(context, MPT_F32, MPT_SHAPE(n));
            mpt_tensor each = mpt_huber_loss(x, y, 0.7, MPT_NONE);
            CHECK(mpt_item(mpt_huber_loss(x, y, 0.7, MPT_SUM)) ==
                  mpt_item(mpt_sum(each, MPT_ALL_DIMS, false)));
            CHECK(mpt_item(mpt_huber_loss(x, y, 0.7, MPT_MEAN)) ==
                  mpt_item(mpt_mean(each, MPT_ALL_DIMS, false)));
        }
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
    }
}

/* Neither inf 0 nor inf - inf: a logit that agrees with its target costs nothing. */
TEST(infinite_logits_and_empty_targets) {
    static const float x[6] = {INFINITY, INFINITY, INFINITY, -INFINITY, -INFINITY, -INFINITY};
    static const float y[6] = {0, 0.5f, 1, 0, 0.5f, 1};
    static const float want[6] = {INFINITY, INFINITY, 0, 0, INFINITY, INFINITY};
    static const float slope[6] = {1, 0.5f, 0, 0, -0.5f, -1};
    static const float log_p[2] = {-INFINITY, 0}, p[2] = {0, 1};
    mpt_tensor none;
    float got[6];
    memset(&none, 0, sizeof none);
    context = mpt_create(NULL);
    REQUIRE(context);
    mpt_tensor in = mpt_from(context, MPT_F32, MPT_SHAPE(6), x);
    mpt_requires_grad(in, true);
    mpt_tensor target = mpt_from(context, MPT_F32, MPT_SHAPE(6), y);
    mpt_tensor loss = mpt_binary_cross_entropy_with_logits(in, target, none, none, MPT_NONE);
    mpt_read_f32(loss, got, 6);
    for (int i = 0; i < 6; i++) CHECK(got[i] == want[i]);
    mpt_backward_from(loss, mpt_ones(context, MPT_F32, MPT_SHAPE(6)), false);
    mpt_read_f32(mpt_grad(in), got, 6);
    for (int i = 0; i < 6; i++) CHECK(got[i] == slope[i]);

    in = mpt_from(context, MPT_F32, MPT_SHAPE(1, 2), log_p);
    target = mpt_from(context, MPT_F32, MPT_SHAPE(1, 2), p);
    CHECK(mpt_item(mpt_kl_div(in, target, false, MPT_BATCH_MEAN)) == 0);
    CHECK(mpt_item(mpt_kl_div(in, in, true, MPT_BATCH_MEAN)) == 0);
    CHECK(mpt_item(mpt_cross_entropy(in, target, NULL)) == 0);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* log(1 + exp(100)) overflows in PyTorch's soft margin. */
TEST(soft_margin_does_not_overflow) {
    static const float far[2] = {-100, 1000};
    context = mpt_create(NULL);
    REQUIRE(context);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(2), far);
    mpt_requires_grad(x, true);
    mpt_tensor loss = mpt_soft_margin_loss(x, mpt_ones(context, MPT_F32, MPT_SHAPE(2)), MPT_SUM);
    float slope[2];
    CHECK(mpt_item(loss) == 100);
    mpt_backward(loss);
    mpt_read_f32(mpt_grad(x), slope, 2);
    CHECK(slope[0] == -1 && slope[1] == 0);
    mpt_destroy(context);
}

/* A bad target or probability names its place, and a step with one leaves the weights alone. */
TEST(errors_name_the_place) {
    static const int64_t targets[6] = {0, 2, 1, 1, 3, 0};
    static const float p[4] = {0.5f, 1, 1.5f, -1};
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    context = mpt_create(NULL);
    REQUIRE(context);
    for (int folded = 0; folded < 2; folded++) {
        mpt_shape shape = folded ? MPT_SHAPE(2, 3, 3) : MPT_SHAPE(6, 3);
        mpt_tensor t = mpt_from(context, MPT_I64, folded ? MPT_SHAPE(2, 3) : MPT_SHAPE(6), targets);
        mpt_cross_entropy(mpt_ones(context, MPT_F32, shape), t, NULL);
        CHECK_EQ_INT(mpt_synchronize(context), MPT_ERROR_INDEX);
        CHECK_CONTAINS(mpt_error(context), folded ? "sample 1, position 1 is" : "sample 4 is");
        mpt_clear_error(context);
    }
    static const int64_t first[2][2] = {{-7, 0}, {5, 1}};
    for (int i = 0; i < 4; i++) { /* sample 0, below and above, from logits and not */
        mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(2, 3));
        mpt_tensor t = mpt_from(context, MPT_I64, MPT_SHAPE(2), first[i & 1]);
        if (i & 2)
            mpt_nll_loss(x, t, NULL);
        else
            mpt_cross_entropy(x, t, NULL);
        CHECK_EQ_INT(mpt_synchronize(context), MPT_ERROR_INDEX);
        CHECK_CONTAINS(mpt_error(context), i & 1 ? "target of sample 0 is 5"
                                                 : "target of sample 0 is -7");
        CHECK_CONTAINS(mpt_error(context), ": expected a class number of 0 to 2");
        mpt_clear_error(context);
    }
    for (mpt_reduction kind = MPT_MEAN; kind <= MPT_NONE; kind = (mpt_reduction)(kind + 1)) {
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(4), p);
        mpt_binary_cross_entropy(x, x, none, kind);
        CHECK_EQ_INT(mpt_synchronize(context), MPT_ERROR_NUMERIC);
        CHECK_CONTAINS(mpt_error(context), "element 2 of the input is not in [0, 1] but 1.5");
        mpt_clear_error(context);
    }
    mpt_destroy(context);
}

/* What a composition makes on its way is given back at its end, not at that of the program. */
TEST(compositions_leave_nothing) {
    context = mpt_create(NULL);
    REQUIRE(context);
    mpt_tensor x = mpt_randn(context, MPT_F16, MPT_SHAPE(64, 3, 50));
    mpt_tensor y = mpt_randn(context, MPT_F16, MPT_SHAPE(64, 3, 50));
    mpt_tensor t = mpt_zeros(context, MPT_I64, MPT_SHAPE(64, 50));
    int64_t before = mpt_memory(context).current[MPT_MEMORY_ACTIVATION], after = 0;
    for (int i = 0; i < 3; i++) {
        mpt_release(mpt_triplet_margin_loss(x, y, x, 1, 1e-6, true, MPT_MEAN));
        mpt_release(mpt_cosine_similarity(x, y, 1, 1e-8));
        mpt_release(mpt_cross_entropy(x, y, NULL));
        mpt_release(mpt_cross_entropy(x, t, NULL));
        after = mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
    }
    CHECK_EQ_INT(after, before);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

TEST_TABLE = {T(every_loss_is_pytorchs),
              T(two_hundred_steps),
              T(one_pass_has_the_tree_of_the_mean),
              T(infinite_logits_and_empty_targets),
              T(soft_margin_does_not_overflow),
              T(errors_name_the_place),
              T(compositions_leave_nothing)};
TEST_MAIN
