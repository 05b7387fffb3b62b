/* costs.h: what a launch costs, against loops that count, for test_gradcheck.c: every launch of
   every op's cases; and against counts by hand for a step of three models. */
#ifndef TEST_COSTS_H
#define TEST_COSTS_H

/* ==== Loops ==== */

enum { MARKS = 1 << 16 };
static unsigned char marks[MARKS];
static int64_t costs_seen[MPT__KERNEL_COUNT];

/* Calls `visit` for each element of a view, at its place. */
static double elements_of(const mpt__operand *o) {
    int64_t at[MPT_MAX_RANK] = {0}, numel = 1, found = 0;
    for (int d = 0; d < o->rank; d++) numel *= o->shape[d];
    memset(marks, 0, sizeof marks);
    for (int64_t i = 0; i < numel; i++) {
        int64_t place = 0;
        for (int d = 0; d < o->rank; d++) place += at[d] * o->stride[d];
        if (place >= MARKS) return -1;
        found += !marks[place];
        marks[place] = 1;
        for (int d = o->rank - 1; d >= 0 && ++at[d] == o->shape[d]; d--) at[d] = 0;
    }
    return (double)found;
}

static bool takes_some(int kernel) { /* some rows of an operand */
    static const int rows[] = {MPT__K_GATHER, MPT__K_SCATTER_ADD, MPT__K_NLL, MPT__K_EMBEDDING,
        MPT__K_EMBEDDING_BACKWARD, MPT__K_HASH_GRID, MPT__K_HASH_GRID_BACKWARD, MPT__K_TRIANGLE,
        MPT__K_SGD, MPT__K_ADAM, MPT__K_MOMENTS, MPT__K_GRAD_NORM, MPT__K_GRAD_SCALE};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i] == kernel) return true;
    return false;
}

static void loop_bytes(const mpt__launch *l, mpt__cost *cost) {
    for (int i = 0; i < l->n_operands; i++) {
        const mpt__operand *o = &l->operand[i];
        if (!o->storage) continue;
        const double bytes = elements_of(o) * (double)mpt_dtype_size((mpt_dtype)o->dtype);
        if (o->access != MPT__WRITE) cost->read += bytes;
        if (o->access != MPT__READ) cost->written += bytes;
    }
}

static double loop_gemm(const mpt__launch *l) {
    const mpt__operand *a = &l->operand[0], *out = &l->operand[3];
    double flop = 0;
    int64_t batch = 1;
    for (int d = 0; d < out->rank - 2; d++) batch *= out->shape[d];
    for (int64_t i = 0; i < batch * out->shape[out->rank - 2]; i++)
        for (int64_t j = 0; j < out->shape[out->rank - 1]; j++) {
            for (int64_t k = 0; k < a->shape[a->rank - 1]; k++) flop += 2;
            flop += l->imm[0] != 1;
            flop += l->operand[2].storage != 0;
            flop += l->activation != MPT_ACTIVATION_NONE;
        }
    return flop;
}

/* Of the product alone; by y's pixels and channels and the kernel's taps. */
static double loop_conv(const mpt__launch *l) {
    const mpt__operand *w = &l->operand[1], *y = &l->operand[2];
    double flop = 0;
    for (int64_t p = 0; p < y->shape[0] * y->shape[1] * y->shape[2]; p++)
        for (int64_t o = 0; o < y->shape[3]; o++)
            for (int64_t t = 0; t < w->shape[1] * w->shape[2] * w->shape[3]; t++) flop += 2;
    return flop;
}

static double loop_pairs(const mpt__launch *l) {
    double pairs = 0;
    for (int64_t t = 0; t < l->operand[0].shape[2]; t++)
        for (int64_t s = 0; s < l->operand[1].shape[2]; s++)
            pairs += l->index[0] != 1 ||
                (s <= t + l->index[2] && (l->index[1] == 0 || s > t + l->index[2] - l->index[1]));
    return pairs;
}

static double loop_windows(const mpt__launch *l, int from, int to) {
    const mpt__operand *x = &l->operand[from], *y = &l->operand[to];
    double counts[2] = {0, 0};
    for (int d = 0; d < 2; d++)
        for (int64_t i = 0; i < y->shape[2 + d]; i++) {
            int64_t begin = i * x->shape[2 + d] / y->shape[2 + d];
            int64_t end = begin;
            while (end * y->shape[2 + d] < (i + 1) * x->shape[2 + d]) end++;
            counts[d] += (double)(l->index[3] == 2 ? end - begin : MPT__TWO_AT(l->index[0], d));
        }
    return (double)(y->shape[0] * y->shape[1]) * counts[0] * counts[1];
}

static double loop_triangle(const mpt__launch *l) {
    const mpt__operand *o = &l->operand[0];
    double kept = 0;
    int64_t batch = 1;
    for (int d = 0; d < o->rank - 2; d++) batch *= o->shape[d];
    for (int64_t r = 0; r < o->shape[o->rank - 2]; r++)
        for (int64_t c = 0; c < o->shape[o->rank - 1]; c++)
            kept += l->index[1] == 1 ? c - r >= l->index[0] : c - r <= l->index[0];
    return (double)batch * kept;
}

static void hear_cost(mpt_context *ctx, void *user, const void *what) {
    const mpt__launch *l = (const mpt__launch *)what;
    const mpt__cost cost = mpt__launch_cost(ctx, l);
    const mpt__operand *o = l->operand;
    mpt__cost loops = {0, 0, 0};
    (void)user;
    costs_seen[l->kernel]++;
    loop_bytes(l, &loops);
    const char *name = mpt__kernel_names[l->kernel];
    const bool less = takes_some(l->kernel), all = cost.read == loops.read;
    if (cost.read > loops.read || cost.written > loops.written || cost.flop < 0 ||
        (!less && (!all || cost.written != loops.written)))
        TEST_FAIL_("%s reads %g and writes %g bytes, not %g and %g", name, cost.read, cost.written,
                   loops.read, loops.written);
    double flop = cost.flop, wanted = cost.flop;
    const double rows = o[0].rank > 1 ? (double)(o[0].shape[0] * o[0].shape[1]) : 0;
    if (l->kernel == MPT__K_GEMM) wanted = loop_gemm(l);
    if (l->kernel == MPT__K_ATTENTION)
        wanted = rows * loop_pairs(l) *
            (2.0 * (double)(o[0].shape[3] + o[2].shape[3]) + 5 + (o[3].storage != 0));
    if (l->kernel == MPT__K_CONV && o[3].storage == 0 && l->activation == 0) wanted = loop_conv(l);
    if (l->kernel == MPT__K_POOL) wanted = loop_windows(l, 0, 1);
    if (l->kernel == MPT__K_POOL_BACKWARD && l->function == MPT__FN_MEAN)
        wanted = loop_windows(l, 2, 0);
    if (l->kernel == MPT__K_TRIANGLE)
        flop = cost.read, wanted = loop_triangle(l) * (double)mpt_dtype_size((mpt_dtype)o->dtype);
    if (l->kernel == MPT__K_COPY || l->kernel == MPT__K_FILL) wanted = 0;
    if (flop != wanted) TEST_FAIL_("%s: %g, counted %g", name, flop, wanted);
}

TEST(launches_cost_what_loops_count) {
    int kinds = 0;
    memset(costs_seen, 0, sizeof costs_seen);
    REQUIRE(begin());
    CHECK_EQ_INT(mpt__listen(context, MPT__LAUNCHED, hear_cost, NULL), MPT_OK);
    for (int c = 0; c < case_count; c++) {
        const op_case *row = &cases[c];
        for (int v = 0; v < VARIANTS; v++) {
            mpt_scope_begin(context);
            for (int i = 0; i < row->n_in; i++) {
                leaf[i] = mpt_full(context, MPT_F64, row->shape[v][i], (row->low + row->high) / 2);
                mpt_requires_grad(leaf[i], true);
            }
            mpt_tensor out = row->call(leaf, v);
            mpt_tensor dy = mpt_ones(context, mpt_get_dtype(out), mpt_get_shape(out));
            mpt_backward_from(out, dy, false);
            mpt_scope_end(context);
            mpt_clear_error(context);
        }
    }
    for (int k = 0; k < MPT__KERNEL_COUNT; k++) kinds += costs_seen[k] > 0;
    CHECK(kinds > 35);
    mpt_destroy(context);
}

/* Words of formulas, by hand. */
TEST(functions_count_their_words) {
    CHECK_EQ_INT(mpt__function_words(MPT__FN_ADD), 1);
    CHECK_EQ_INT(mpt__function_words(MPT__FN_SILU), 2);             /* a sigmoid(a) */
    CHECK_EQ_INT(mpt__function_words(MPT__FN_SIGMOID_BACKWARD), 3); /* b a (1 - a) */
    CHECK_EQ_INT(mpt__function_words(MPT__FN_EQUAL), 0);
    CHECK_EQ_INT(mpt__function_words(MPT__FN_RSQRT), 2);
    CHECK_EQ_INT(mpt__function_words(MPT__FN_SQUARED_DIFFERENCE), 3);
}

/* ==== Models ==== */

/* Of the last step, by kernel. */
static mpt__cost costs[MPT__KERNEL_COUNT];
static void add_cost(mpt_context *ctx, void *user, const void *what) {
    const mpt__launch *l = (const mpt__launch *)what;
    const mpt__cost cost = mpt__launch_cost(ctx, l);
    mpt__cost *sum = &costs[l->kernel];
    (void)user;
    sum->flop += cost.flop, sum->read += cost.read, sum->written += cost.written;
}

static mpt_context *cost_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.isa = MPT_ISA_REF, config.device = MPT_DEVICE_CPU;
    mpt_context *c = mpt_create(&config);
    mpt__listen(c, MPT__LAUNCHED, add_cost, NULL);
    return c;
}

/* The second of two steps, as the first makes what stays. */
static void cost_step(mpt_module net, mpt_tensor forward(mpt_module, mpt_tensor), mpt_tensor x) {
    mpt_optimizer sgd = mpt_sgd(net, NULL);
    for (int i = 0; i < 2; i++) {
        memset(costs, 0, sizeof costs);
        mpt_step_begin(net.context);
        mpt_tensor loss = forward(net, x);
        mpt_zero_grad(sgd);
        mpt_backward(loss);
        mpt_step(sgd);
        mpt_step_end(net.context);
    }
    CHECK_EQ_STR(mpt_error(net.context), "");
}

static double all_flop(void) {
    double sum = 0;
    for (int k = 0; k < MPT__KERNEL_COUNT; k++) sum += costs[k].flop;
    return sum;
}

enum { MLP_BATCH = 64 };
static mpt_tensor mlp_loss(mpt_module net, mpt_tensor x) {
    return mpt_nll_loss(mpt_forward(net, x), mpt_zeros(net.context, MPT_I64, MPT_SHAPE(MLP_BATCH)),
                        NULL);
}

/* Forward, gradient of w and, not of the first layer, of x: 2 B in out each. */
TEST(a_step_of_the_mlp_by_hand) {
    const double B = MLP_BATCH, in[] = {784, 128, 64}, out[] = {128, 64, 10};
    double products = 0, epilogues = 0, rest = 0, weights = 0, read = 0, written = 0;
    mpt_context *c = cost_context();
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 784, 128), mpt_nn_relu(c),
        mpt_nn_linear(c, 128, 64), mpt_nn_relu(c), mpt_nn_linear(c, 64, 10),
        mpt_nn_log_softmax(c, -1), MPT_END);
    cost_step(net, mlp_loss, mpt_zeros(c, MPT_F32, MPT_SHAPE(MLP_BATCH, 784)));
    for (int k = 0; k < 3; k++) {
        const double w = in[k] * out[k], x = B * in[k], y = B * out[k];
        products += (k ? 3 : 2) * 2 * B * w;
        epilogues += (k < 2 ? 2 : 1) * y; /* bias; relu */
        rest += y + (k < 2 ? y : 0);      /* the bias's gradient; relu's slope */
        weights += w + out[k];
        read += 4 * (x + w + out[k] + (k ? y + w : 0) + x + y); /* y, dx, dw */
        written += 4 * (y + (k ? x : 0) + w);
    }
    CHECK_EQ_INT(costs[MPT__K_GEMM].flop, products + epilogues);
    CHECK_EQ_INT(costs[MPT__K_GEMM].read, read);
    CHECK_EQ_INT(costs[MPT__K_GEMM].written, written);
    CHECK_EQ_INT(costs[MPT__K_SOFTMAX].flop, 5 * B * 10);
    CHECK_EQ_INT(costs[MPT__K_SGD].flop, 3 * weights);
    CHECK_EQ_INT(costs[MPT__K_SGD].written, 4 * weights + 6 * 8); /* six counts of steps */
    rest += 5 * B * 10 + 2 * B + 3 * B * 10 + 3 * weights; /* log_softmax, nll, back, sgd */
    CHECK_EQ_INT(all_flop(), products + epilogues + rest);
    mpt_destroy(c);
}

/* relu(bn(conv(relu(bn(conv(x))))) + x) of 4 images of 6 x 6, 8 channels, kernels of 3 x 3. */
static mpt_tensor residual_loss(mpt_module net, mpt_tensor x) {
    mpt_tensor y = mpt_relu(mpt_add(mpt_forward(net, x), x));
    return mpt_mean(y, MPT_ALL_DIMS, false);
}

TEST(a_step_of_a_residual_block_by_hand) {
    const double y = 4 * 8 * 6 * 6, one = 2 * y * 8 * 9, w = 8 * 8 * 9;
    mpt_context *c = cost_context();
    mpt_conv_config cc = mpt_conv_config_default();
    cc.padding[0] = cc.padding[1] = 1, cc.bias = false;
    mpt_module net = mpt_sequential(c, mpt_nn_conv2d(c, 8, 8, 3, 3, &cc),
        mpt_nn_batch_norm2d(c, 8, NULL), mpt_nn_relu(c), mpt_nn_conv2d(c, 8, 8, 3, 3, &cc),
        mpt_nn_batch_norm2d(c, 8, NULL), MPT_END);
    cost_step(net, residual_loss, mpt_zeros(c, MPT_F32, MPT_SHAPE(4, 8, 6, 6)));
    CHECK_EQ_INT(costs[MPT__K_CONV].flop, 2 * one);
    CHECK_EQ_INT(costs[MPT__K_CONV_BACKWARD_INPUT].flop, one); /* x is data */
    CHECK_EQ_INT(costs[MPT__K_CONV_BACKWARD_WEIGHT].flop, 2 * one);
    CHECK_EQ_INT(costs[MPT__K_CONV].read, 4 * 2 * (y + w));
    CHECK_EQ_INT(costs[MPT__K_CONV_BACKWARD_WEIGHT].written, 4 * 2 * w);
    /* statistics 4, difference and deviation, weight and bias; relu in the first one */
    CHECK_EQ_INT(costs[MPT__K_NORM].flop, 2 * 8 * y + y);
    CHECK_EQ_INT(costs[MPT__K_NORM_BACKWARD].flop, 2 * 10 * y + y);
    CHECK_EQ_INT(costs[MPT__K_SGD].flop, 3 * (2 * w + 4 * 8));
    mpt_destroy(c);
}

/* 2 texts of 8 tokens, width 16, 2 heads: x + attention(norm(x)), then x + mlp(norm(x)). */
static mpt_tensor gpt_loss(mpt_module net, mpt_tensor x) {
    x = mpt_add(x, mpt_forward(mpt_child(net, "1"), mpt_forward(mpt_child(net, "0"), x)));
    return mpt_mean(mpt_add(x, mpt_forward(mpt_child(net, "2"), x)), MPT_ALL_DIMS, false);
}

TEST(a_step_of_a_gpt_block_by_hand) {
    const double tokens = 2 * 8, d = 16, pairs = 2 * 2 * (8 * 9 / 2), head = 8;
    const double weights = 3 * d * d + d * d + 2 * d * 4 * d, x = tokens * d;
    mpt_context *c = cost_context();
    mpt_multi_head_config mc = mpt_multi_head_config_default();
    mc.causal = true;
    mpt_module net = mpt_nn_list(c, mpt_nn_layer_norm(c, MPT_SHAPE(16), NULL),
        mpt_nn_multi_head_attention(c, 16, 2, &mc),
        mpt_sequential(c, mpt_nn_layer_norm(c, MPT_SHAPE(16), NULL), mpt_nn_linear(c, 16, 64),
                       mpt_nn_gelu(c), mpt_nn_linear(c, 64, 16), MPT_END), MPT_END);
    cost_step(net, gpt_loss, mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 8, 16)));
    /* forward, by w, by x; biases of 48, 16, 64 and 16 columns */
    CHECK_EQ_INT(costs[MPT__K_GEMM].flop,
                 3 * 2 * tokens * weights + tokens * (48 + 16 + 64 + 16));
    CHECK_EQ_INT(costs[MPT__K_ATTENTION].flop, pairs * (2 * (head + head) + 5));
    CHECK_EQ_INT(costs[MPT__K_ATTENTION_DQ].flop, 2 * x); /* sums of dout out */
    CHECK_EQ_INT(costs[MPT__K_ATTENTION_DKV].flop, pairs * (10 * head + 5));
    CHECK_EQ_INT(costs[MPT__K_NORM].flop, 2 * 8 * x);
    CHECK_EQ_INT(costs[MPT__K_NORM_BACKWARD].flop, 2 * 10 * x - 5 * x); /* x is data */
    mpt_destroy(c);
}

#endif
