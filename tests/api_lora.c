/* api_lora.c: low-rank adapters: an adapted net gives at first what it gave, to the bit; values and
   gradients are those of plain loops; training changes the adapters alone, and costs their memory
   alone; they are saved and loaded by themselves, merged, taken off; what is refused changes
   nothing, and neither do failing allocations. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "training.h"
#include "files.h"

enum { ROWS = 6, IN = 12, HIDDEN = 16, OUT = 5, RANK = 3, MOST = 8192 };

static mpt_context *context_of(arena *a, int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = 5;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

#ifdef MPTRAIN_NO_FRUGAL

TEST(left_out) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = mpt_nn_linear(c, IN, OUT);
    CHECK_EQ_INT(mpt_lora(net, "*", RANK, 1), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(mpt_error(c), "built without what saves memory (MPTRAIN_NO_FRUGAL)");
    mpt_destroy(c);
}

TEST_TABLE = {T(left_out)};
TEST_MAIN

#else

static mpt_module net_of(mpt_context *c) {
    mpt_module parts[5];
    parts[0] = mpt_nn_linear(c, IN, HIDDEN), parts[1] = mpt_nn_relu(c);
    parts[2] = mpt_nn_linear(c, HIDDEN, HIDDEN), parts[3] = mpt_nn_relu(c);
    parts[4] = mpt_nn_linear(c, HIDDEN, OUT);
    return mpt_sequential_array(c, parts, 5);
}

static mpt_tensor some(mpt_context *c, mpt_shape shape, int number) {
    static float values[MOST];
    int64_t numel = 1;
    for (int d = 0; d < shape.rank; d++) numel *= shape.dim[d];
    for (int64_t i = 0; i < numel && i < MOST; i++)
        values[i] = (float)((i * 37 + number * 13 + 11) % 101 - 50) / 40.0f;
    return mpt_from(c, MPT_F32, shape, values);
}

static void fill(mpt_module net, const char *path, int number) {
    static float values[MOST];
    mpt_tensor to = mpt_parameter(net, path);
    mpt_tensor from = some(net.context, mpt_get_shape(to), number);
    CHECK_EQ_INT(mpt_read_f32(from, values, mpt_numel(from)), MPT_OK);
    CHECK_EQ_INT(mpt_write(to, values, (size_t)mpt_numel(to) * sizeof *values), MPT_OK);
}

static int64_t values_of(mpt_tensor x, float *values) {
    CHECK(mpt_numel(x) > 0 && mpt_numel(x) <= MOST);
    CHECK_EQ_INT(mpt_read_f32(x, values, mpt_numel(x)), MPT_OK);
    return mpt_numel(x);
}

/* ==== Forward ==== */

static int64_t gives(mpt_module net, mpt_tensor x, mpt_dtype precision, bool recorded, float *out) {
    mpt_context *c = net.context;
    mpt_step_begin(c);
    if (!recorded) mpt_inference_begin(c);
    if (precision != MPT_F32) mpt_autocast_begin(c, precision);
    mpt_tensor y = mpt_forward(net, x);
    if (precision != MPT_F32) mpt_autocast_end(c);
    int64_t n = values_of(y, out);
    if (!recorded) mpt_inference_end(c);
    mpt_step_end(c);
    CHECK_EQ_STR(mpt_error(c), "");
    return n;
}

TEST(at_first_nothing_changes) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    static float before[MOST], after[MOST];
    for (int i = 0; i < 12; i++) {
        mpt_context *c = context_of(NULL, 1 + i % 2);
        mpt_module net = net_of(c);
        const bool half = i >= 6 && i / 2 % 3 > 0; /* parameters, not a region */
        const mpt_dtype precision = half ? MPT_F32 : precisions[i / 2 % 3];
        if (half) CHECK_EQ_INT(mpt_half(net, precisions[i / 2 % 3]), MPT_OK);
        mpt_tensor x = mpt_keep(some(c, MPT_SHAPE(ROWS, IN), 1));
        if (half) x = mpt_keep(mpt_cast(x, precisions[i / 2 % 3]));
        int64_t n = gives(net, x, precision, i % 2 == 0, before);
        CHECK_EQ_INT(mpt_lora(net, "*", RANK, 8), MPT_OK);
        CHECK_EQ_INT(gives(net, x, precision, i % 2 == 0, after), n);
        CHECK_EQ_BITS(after, before, (size_t)n * sizeof *after);
        CHECK_EQ_INT(mpt_parameter_count(net), 12);
        mpt_destroy(c);
    }
}

/* y[r][o] = sum of w[o][k] x[r][k]. */
static void product(const float *x, const float *w, int rows, int in, int out, double *y) {
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < out; o++) {
            double sum = 0;
            for (int k = 0; k < in; k++) sum += (double)w[o * in + k] * (double)x[r * in + k];
            y[r * out + o] = sum;
        }
}

/* What a layer adds to x W^T + bias, and gradients of the sum of y times dy, by loops. */
typedef struct loops {
    float w[OUT * IN], bias[OUT], a[RANK * IN], b[OUT * RANK], x[ROWS * IN], dy[ROWS * OUT];
    double y[ROWS * OUT], da[RANK * IN], db[OUT * RANK], dx[ROWS * IN];
} loops;

static void loop(loops *l, double scale) {
    static double base[ROWS * OUT], h[ROWS * RANK], low[ROWS * RANK];
    product(l->x, l->w, ROWS, IN, OUT, base);
    product(l->x, l->a, ROWS, IN, RANK, h);
    memset(low, 0, sizeof low);
    memset(l->da, 0, sizeof l->da), memset(l->db, 0, sizeof l->db), memset(l->dx, 0, sizeof l->dx);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUT; o++) {
            double sum = base[r * OUT + o] + (double)l->bias[o], dy = (double)l->dy[r * OUT + o];
            for (int k = 0; k < RANK; k++) {
                sum += scale * (double)l->b[o * RANK + k] * h[r * RANK + k];
                l->db[o * RANK + k] += scale * dy * h[r * RANK + k];
                low[r * RANK + k] += scale * dy * (double)l->b[o * RANK + k];
            }
            for (int i = 0; i < IN; i++) l->dx[r * IN + i] += dy * (double)l->w[o * IN + i];
            l->y[r * OUT + o] = sum;
        }
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < RANK; k++)
            for (int i = 0; i < IN; i++) {
                l->da[k * IN + i] += low[r * RANK + k] * (double)l->x[r * IN + i];
                l->dx[r * IN + i] += low[r * RANK + k] * (double)l->a[k * IN + i];
            }
}

static void close_to(mpt_tensor got, const double *want, double tolerance) {
    static float values[MOST];
    int64_t n = values_of(got, values);
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(want[i]) > most) most = fabs(want[i]);
    CHECK(most > 0);
    for (int64_t i = 0; i < n; i++) CHECK_CLOSE(values[i], want[i], 0, tolerance * most);
}

TEST(values_and_gradients_are_those_of_loops) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16, MPT_F16};
    static const double tolerance[] = {1e-5, 2e-2, 3e-3};
    static loops l;
    for (int i = 0; i < 3; i++) {
        mpt_context *c = context_of(NULL, 1);
        mpt_module net = mpt_nn_linear(c, IN, OUT);
        CHECK_EQ_INT(mpt_lora(net, "*", RANK, 2.0), MPT_OK); /* 2 / 3 */
        fill(net, "lora_A.weight", 3), fill(net, "lora_B.weight", 4);
        mpt_tensor x = mpt_keep(some(c, MPT_SHAPE(ROWS, IN), 1));
        mpt_tensor dy = mpt_keep(some(c, MPT_SHAPE(ROWS, OUT), 2));
        values_of(x, l.x), values_of(dy, l.dy);
        values_of(mpt_parameter(net, "weight"), l.w), values_of(mpt_parameter(net, "bias"), l.bias);
        values_of(mpt_parameter(net, "lora_A.weight"), l.a);
        values_of(mpt_parameter(net, "lora_B.weight"), l.b);
        loop(&l, 2.0 / 3.0);
        CHECK_EQ_INT(mpt_requires_grad(x, true), MPT_OK);
        mpt_autocast_begin(c, precisions[i]);
        mpt_tensor y = mpt_forward(net, x);
        mpt_autocast_end(c);
        CHECK_EQ_INT(mpt_get_dtype(y), precisions[i]);
        CHECK_EQ_INT(mpt_backward_from(y, mpt_cast(dy, precisions[i]), false), MPT_OK);
        close_to(y, l.y, tolerance[i]);
        close_to(mpt_grad(mpt_parameter(net, "lora_A.weight")), l.da, tolerance[i]);
        close_to(mpt_grad(mpt_parameter(net, "lora_B.weight")), l.db, tolerance[i]);
        close_to(mpt_grad(x), l.dx, tolerance[i]);
        CHECK(!mpt_has_grad(mpt_parameter(net, "weight")));
        CHECK(!mpt_has_grad(mpt_parameter(net, "bias")));
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

TEST(first_values) {
    static float a[MOST], b[MOST], plain[MOST];
    mpt_context *c = context_of(NULL, 1), *other = context_of(NULL, 1);
    mpt_module net = net_of(c);
    net_of(other);
    CHECK_EQ_INT(mpt_lora(net, "0", 4, 4), MPT_OK);
    int64_t n = values_of(mpt_parameter(net, "0.lora_A.weight"), a);
    CHECK_EQ_INT(n, 4 * IN);
    double bound = 1 / sqrt((double)IN), most = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs((double)a[i]) > most) most = fabs((double)a[i]);
    CHECK(most <= bound && most > 0.8 * bound);
    n = values_of(mpt_parameter(net, "0.lora_B.weight"), b);
    CHECK_EQ_INT(n, 4 * HIDDEN);
    for (int64_t i = 0; i < n; i++) CHECK(b[i] == 0);
    /* A net that is made later has the values that it would have had. */
    values_of(mpt_parameter(net_of(c), "2.weight"), a);
    n = values_of(mpt_parameter(net_of(other), "2.weight"), plain);
    CHECK_EQ_BITS(a, plain, (size_t)n * sizeof *a);
    mpt_destroy(c), mpt_destroy(other);
}

TEST(patterns) {
    static const struct {
        const char *pattern;
        int layers;
    } rows[] = {{"*", 3}, {"0", 1}, {"*2", 1}, {"4*", 1}, {"2", 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_context *c = context_of(NULL, 1);
        mpt_module net = net_of(c);
        CHECK_EQ_INT(mpt_lora(net, rows[i].pattern, 2, 2), MPT_OK);
        CHECK_EQ_INT(mpt_parameter_count(net), 6 + 2 * rows[i].layers);
        CHECK_EQ_INT(mpt_lora_remove(net), MPT_OK);
        CHECK_EQ_INT(mpt_parameter_count(net), 6);
        mpt_destroy(c);
    }
}

/* ==== Attention ==== */

#ifndef MPTRAIN_NO_ATTENTION
enum { BATCH = 2, PLACES = 3, WIDTH = 8 };

static mpt_module attention_of(mpt_context *c, bool turns) {
    mpt_multi_head_config config = mpt_multi_head_config_default();
    if (turns) config.rope.base = 10000, config.qk_norm = true;
    return mpt_nn_multi_head_attention(c, WIDTH, 2, &config);
}

/* Of x alone, or of query, key and value. */
static int64_t attends(mpt_module net, const mpt_tensor in[3], int n_in, float *out) {
    mpt_tensor y;
    mpt_step_begin(net.context);
    CHECK_EQ_INT(mpt_forward_n(net, in, n_in, &y, 1), MPT_OK);
    int64_t n = values_of(y, out);
    mpt_step_end(net.context);
    return n;
}

TEST(attention_is_adapted) {
    static float before[MOST], now[MOST], merged[MOST];
    for (int i = 0; i < 4; i++) {
        const bool alone = i % 2 == 0;
        mpt_context *c = context_of(NULL, 1);
        mpt_module net = attention_of(c, i >= 2);
        mpt_tensor in[3];
        for (int k = 0; k < 3; k++) in[k] = mpt_keep(some(c, MPT_SHAPE(BATCH, PLACES, WIDTH), k));
        int64_t n = attends(net, in, alone ? 1 : 3, before);
        CHECK_EQ_INT(mpt_lora(net, "*", 2, 1), MPT_OK);
        CHECK_EQ_INT(attends(net, in, alone ? 1 : 3, now), n);
        CHECK_EQ_BITS(now, before, (size_t)n * sizeof *now);
        fill(net, "lora_B.weight", 2), fill(net, "out_proj.lora_B.weight", 3);
        attends(net, in, alone ? 1 : 3, now);
        CHECK(memcmp(now, before, (size_t)n * sizeof *now) != 0);
        mpt_step_begin(c);
        mpt_tensor y;
        mpt_forward_n(net, in, alone ? 1 : 3, &y, 1);
        CHECK_EQ_INT(mpt_backward(mpt_sum(mpt_mul(y, y), MPT_ALL_DIMS, false)), MPT_OK);
        CHECK(mpt_has_grad(mpt_parameter(net, "lora_A.weight")));
        CHECK(mpt_has_grad(mpt_parameter(net, "lora_B.weight")));
        CHECK(!mpt_has_grad(mpt_parameter(net, "in_proj_weight")));
        mpt_step_end(c);
        CHECK_EQ_INT(mpt_lora_merge(net), MPT_OK);
        attends(net, in, alone ? 1 : 3, merged);
        for (int64_t k = 0; k < n; k++) CHECK_NEAR(merged[k], now[k], 2e-5);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

#ifndef MPTRAIN_NO_WATCH
/* Of x, or, where there are three, of query, key and value; behind them stand adapters. */
static mpt_tensor squared(mpt_context *c, void *user, const mpt_tensor *in, int n) {
    mpt_module net = *(mpt_module *)user;
    mpt_tensor y;
    (void)c;
    mpt_forward_n(net, in, n == 7 ? 3 : 1, &y, 1);
    return mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false);
}

TEST(attention_by_differences) {
    static const char *const paths[] = {"lora_A.weight", "lora_B.weight", "out_proj.lora_A.weight",
                                        "out_proj.lora_B.weight"};
    for (int n_in = 1; n_in <= 3; n_in += 2) {
        mpt_context *c = context_of(NULL, 1);
        mpt_module net = attention_of(c, n_in == 1);
        mpt_tensor in[7];
        CHECK_EQ_INT(mpt_lora(net, "*", 2, 1), MPT_OK);
        for (int k = 0; k < n_in; k++)
            in[k] = mpt_keep(some(c, MPT_SHAPE(BATCH, PLACES, WIDTH), k));
        for (int k = 0; k < 4; k++) {
            fill(net, paths[k], k);
            in[n_in + k] = mpt_parameter(net, paths[k]);
        }
        CHECK_EQ_INT(mpt_gradcheck(c, squared, &net, in, n_in + 4, NULL), MPT_OK);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}
#endif
#endif

/* ==== Training ==== */

typedef struct trainer {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype precision;
    int calls;
} trainer;

static mpt_status one_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    trainer *t = (trainer *)user;
    t->calls++;
    mpt_step_begin(c);
    mpt_autocast_begin(c, t->precision);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, x), y, NULL);
    mpt_autocast_end(c);
    mpt_zero_grad(t->optimizer);
    mpt_backward(t->scaler.slot ? mpt_scale_loss(t->scaler, loss) : loss);
    if (t->scaler.slot) {
        mpt_scaler_step(t->scaler, t->optimizer);
        mpt_scaler_update(t->scaler);
    } else {
        mpt_step(t->optimizer);
    }
    return mpt_step_end(c);
}

static void batch_of(mpt_context *c, int number, mpt_tensor *x, mpt_tensor *y) {
    int64_t labels[ROWS];
    for (int r = 0; r < ROWS; r++) labels[r] = (r * 3 + number) % OUT;
    *x = some(c, MPT_SHAPE(ROWS, IN), number);
    *y = mpt_from(c, MPT_I64, MPT_SHAPE(ROWS), labels);
}

static void train(trainer *t, int steps) {
    for (int i = 0; i < steps; i++) {
        mpt_tensor x, y;
        batch_of(t->context, i, &x, &y);
        CHECK_EQ_INT(one_step(t->context, t, x, y), MPT_OK);
        mpt_release(x), mpt_release(y);
    }
    CHECK_EQ_STR(mpt_error(t->context), "");
}

static trainer trainer_of(int threads, mpt_dtype precision, const char *pattern) {
    trainer t;
    memset(&t, 0, sizeof t);
    t.context = context_of(NULL, threads);
    t.net = net_of(t.context);
    t.precision = precision;
    if (pattern) CHECK_EQ_INT(mpt_lora(t.net, pattern, RANK, 6), MPT_OK);
    t.optimizer = mpt_adamw(t.net, NULL);
    if (precision == MPT_F16) t.scaler = mpt_grad_scaler(t.context, NULL);
    return t;
}

TEST(only_adapters_are_trained) {
    static const char *const names[] = {"weight", "bias"};
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    static float before[6][MOST], now[MOST], adapters[2][MOST];
    for (int i = 0; i < 6; i++) {
        trainer t = trainer_of(1 + i % 2, precisions[i / 2], "*");
        char path[64];
        for (int k = 0; k < 6; k++) {
            snprintf(path, sizeof path, "%d.%s", k / 2 * 2, names[k % 2]);
            values_of(mpt_parameter(t.net, path), before[k]);
        }
        train(&t, 12);
        for (int k = 0; k < 6; k++) {
            snprintf(path, sizeof path, "%d.%s", k / 2 * 2, names[k % 2]);
            mpt_tensor weight = mpt_parameter(t.net, path);
            int64_t n = values_of(weight, now);
            CHECK_EQ_BITS(now, before[k], (size_t)n * sizeof *now);
            CHECK(!mpt_get_requires_grad(weight) && !mpt_has_grad(weight));
        }
        int64_t n = values_of(mpt_parameter(t.net, "2.lora_B.weight"), adapters[i % 2]);
        double sum = 0;
        for (int64_t k = 0; k < n; k++) sum += fabs((double)adapters[i % 2][k]);
        CHECK(sum > 0.01);
        if (i % 2) CHECK_EQ_BITS(adapters[1], adapters[0], (size_t)n * sizeof *now);
        mpt_destroy(t.context);
    }
}

/* Of wide layers, with the batch of one step: bytes by kind at their peaks. */
static mpt_memory_stats costs_of(const char *pattern, bool freezes) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module parts[3];
    for (int i = 0; i < 3; i++) parts[i] = mpt_nn_linear(c, 256, 256);
    mpt_module net = mpt_sequential_array(c, parts, 3);
    if (pattern) CHECK_EQ_INT(mpt_lora(net, pattern, 4, 4), MPT_OK);
    if (freezes) CHECK_EQ_INT(mpt_freeze(mpt_child(net, "1"), true), MPT_OK);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_tensor x = mpt_keep(mpt_randn(c, MPT_F32, MPT_SHAPE(512, 256)));
    for (int i = 0; i < 2; i++) {
        mpt_memory_reset_peak(c);
        mpt_step_begin(c);
        mpt_tensor y = mpt_forward(net, x);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_sum(mpt_mul(y, y), MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_step_end(c);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_memory_stats stats = mpt_memory(c);
    mpt_destroy(c);
    return stats;
}

TEST(memory) {
    const int64_t weights = 3 * (256 * 256 + 256) * 4, adapters = 2 * 256 * 4 * 4;
    const int64_t result = 512 * 256 * 4, low = 2 * 512 * 4 * 4;
    mpt_memory_stats full = costs_of(NULL, false), one = costs_of("2", false);
    mpt_memory_stats all = costs_of("*", false), fixed = costs_of(NULL, true);
    CHECK(full.current[MPT_MEMORY_MOMENT] >= 2 * weights);
    CHECK(full.current[MPT_MEMORY_GRADIENT] >= weights);
    CHECK(one.current[MPT_MEMORY_PARAMETER] < full.current[MPT_MEMORY_PARAMETER] + 2 * adapters);
    CHECK(one.current[MPT_MEMORY_MOMENT] < 2 * adapters + 1024);
    CHECK(one.current[MPT_MEMORY_GRADIENT] < adapters + 1024);
    CHECK(all.current[MPT_MEMORY_MOMENT] < 3 * (2 * adapters + 1024));
    CHECK(all.total_peak < full.total_peak - 2 * weights);
    /* The layers before the adapted one leave nothing behind, nor does a frozen one its input. */
    CHECK(one.peak[MPT_MEMORY_ACTIVATION] <= full.peak[MPT_MEMORY_ACTIVATION] - result + low);
    CHECK(fixed.peak[MPT_MEMORY_ACTIVATION] <= full.peak[MPT_MEMORY_ACTIVATION] - result);
}

TEST(a_part_can_be_trained_in_full) {
    static float before[MOST], now[MOST];
    trainer t = trainer_of(1, MPT_F32, NULL);
    CHECK_EQ_INT(mpt_optimizer_destroy(t.optimizer), MPT_OK);
    CHECK_EQ_INT(mpt_lora(t.net, "2", RANK, 6), MPT_OK);
    CHECK_EQ_INT(mpt_freeze(mpt_child(t.net, "4"), false), MPT_OK);
    t.optimizer = mpt_adamw(t.net, NULL);
    int64_t n = values_of(mpt_parameter(t.net, "4.weight"), before);
    train(&t, 3);
    values_of(mpt_parameter(t.net, "4.weight"), now);
    CHECK(memcmp(now, before, (size_t)n * sizeof *now) != 0);
    CHECK(mpt_has_grad(mpt_parameter(t.net, "4.weight")));
    CHECK(!mpt_has_grad(mpt_parameter(t.net, "0.weight")));
    mpt_destroy(t.context);
}

#ifndef MPTRAIN_NO_WATCH
/* A net as a graph has the adapters as nodes of their own, each fed by the one before. */
TEST(traced) {
    static const char *const names[] = {"linear", "linear", "mul_scalar", "linear", "add"};
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = mpt_nn_linear(c, IN, OUT);
    CHECK_EQ_INT(mpt_lora(net, "*", RANK, 6), MPT_OK);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, IN), 1);
    mpt_graph graph = mpt_trace(net, &x, 1);
    int ops = 0, made[5];
    for (int i = 0; i < mpt_graph_count(graph); i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        if (node->kind == MPT_NODE_PARAMETER)
            CHECK(node->trainable == (strstr(node->name, "lora_") != NULL));
        if (node->kind == MPT_NODE_OUTPUT) CHECK_EQ_INT(node->input[0].node, made[4]);
        if (node->kind != MPT_NODE_OP || ops == 5) continue;
        CHECK_EQ_STR(node->name, names[ops]);
        if (ops > 1) CHECK_EQ_INT(node->input[ops == 4].node, made[ops - 1]);
        if (ops == 4) CHECK_EQ_INT(node->input[0].node, made[0]);
        made[ops++] = i;
    }
    CHECK_EQ_INT(ops, 5);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}
#endif

/* What a frozen layer did not keep is not asked for when it is unfrozen before backward. */
TEST(unfrozen_between_forward_and_backward) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c);
    CHECK_EQ_INT(mpt_freeze(mpt_child(net, "2"), true), MPT_OK);
    mpt_tensor y = mpt_forward(net, some(c, MPT_SHAPE(ROWS, IN), 1));
    CHECK_EQ_INT(mpt_freeze(net, false), MPT_OK);
    CHECK_EQ_INT(mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false)), MPT_OK);
    CHECK(mpt_has_grad(mpt_parameter(net, "0.weight")));
    CHECK(!mpt_has_grad(mpt_parameter(net, "2.weight")));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

#ifndef MPTRAIN_NO_GRAPH
TEST(captured) {
    static float eager[MOST], repeated[MOST];
    int64_t n = 0;
    for (int way = 0; way < 2; way++) {
        trainer t = trainer_of(1, MPT_BF16, "*");
        mpt_captured step = mpt_capture(t.context, one_step, &t);
        for (int i = 0; i < 10; i++) {
            mpt_tensor x, y;
            batch_of(t.context, i, &x, &y);
            CHECK_EQ_INT(way ? mpt_captured_step(step, x, y) : one_step(t.context, &t, x, y),
                         MPT_OK);
            mpt_release(x), mpt_release(y);
        }
        if (way) CHECK(mpt_captured_count(step) >= 7);
        n = values_of(mpt_parameter(t.net, "2.lora_B.weight"), way ? repeated : eager);
        CHECK_EQ_STR(mpt_error(t.context), "");
        mpt_destroy(t.context);
    }
    CHECK_EQ_BITS(repeated, eager, (size_t)n * sizeof *eager);
}

/* A step that was captured before the layers changed is recorded anew. */
static mpt_status forward_step(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    trainer *t = (trainer *)user;
    (void)y;
    t->calls++;
    mpt_step_begin(c);
    mpt_metric_push(c, "sum", mpt_sum(mpt_forward(t->net, x), MPT_ALL_DIMS, false));
    return mpt_step_end(c);
}

TEST(captured_before) {
    trainer t;
    memset(&t, 0, sizeof t);
    t.context = context_of(NULL, 1);
    t.net = net_of(t.context);
    mpt_captured step = mpt_capture(t.context, forward_step, &t);
    mpt_tensor x = mpt_keep(some(t.context, MPT_SHAPE(ROWS, IN), 2)), none;
    memset(&none, 0, sizeof none);
    double sums[3];
    for (int part = 0; part < 3; part++) {
        if (part == 1) {
            CHECK_EQ_INT(mpt_lora(t.net, "*", RANK, 6), MPT_OK);
            fill(t.net, "4.lora_B.weight", 3);
        }
        if (part == 2) CHECK_EQ_INT(mpt_lora_remove(t.net), MPT_OK);
        for (int i = 0; i < 4; i++) CHECK_EQ_INT(mpt_captured_step(step, x, none), MPT_OK);
        mpt_metric_reset(t.context, "sum");
        for (int i = 0; i < 2; i++) CHECK_EQ_INT(mpt_captured_step(step, x, none), MPT_OK);
        sums[part] = mpt_metric_mean(t.context, "sum", true);
    }
    CHECK(sums[0] == sums[2] && sums[0] != sums[1]);
    CHECK(t.calls < 12);
    CHECK_EQ_STR(mpt_error(t.context), "");
    mpt_destroy(t.context);
}
#endif

/* ==== Merging, taking off ==== */

TEST(merged) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    static const double tolerance[] = {1e-5, 5e-3, 4e-2};
    static float now[MOST], after[MOST], w[MOST], a[MOST], b[MOST], merged[MOST];
    for (int i = 0; i < 3; i++) {
        mpt_context *c = context_of(NULL, 1);
        mpt_module net = net_of(c);
        if (i) CHECK_EQ_INT(mpt_half(net, dtypes[i]), MPT_OK);
        CHECK_EQ_INT(mpt_lora(net, "*", RANK, 1.5), MPT_OK);
        for (int k = 0; k < 3; k++) {
            char path[64];
            snprintf(path, sizeof path, "%d.lora_B.weight", 2 * k);
            fill(net, path, k);
        }
        mpt_tensor x = mpt_keep(mpt_cast(some(c, MPT_SHAPE(ROWS, IN), 1), dtypes[i]));
        int64_t n = gives(net, x, MPT_F32, false, now);
        int64_t numel = values_of(mpt_parameter(net, "2.weight"), w);
        values_of(mpt_parameter(net, "2.lora_A.weight"), a);
        values_of(mpt_parameter(net, "2.lora_B.weight"), b);
        CHECK_EQ_INT(mpt_lora_merge(net), MPT_OK);
        CHECK_EQ_INT(mpt_get_dtype(mpt_parameter(net, "2.weight")), dtypes[i]);
        values_of(mpt_parameter(net, "2.weight"), merged);
        for (int64_t k = 0; k < numel; k++) {
            double want = (double)w[k];
            for (int r = 0; r < RANK; r++)
                want += 0.5 * (double)b[k / HIDDEN * RANK + r] * (double)a[r * HIDDEN + k % HIDDEN];
            CHECK_CLOSE(merged[k], want, i == 0 ? 0 : i == 1 ? 4.9e-4 : 3.91e-3, 1e-6);
        }
        gives(net, x, MPT_F32, false, after);
        double most = 0;
        for (int64_t k = 0; k < n; k++)
            if (fabs((double)now[k]) > most) most = fabs((double)now[k]);
        for (int64_t k = 0; k < n; k++) CHECK_NEAR(after[k], now[k], tolerance[i] * most);
        CHECK_EQ_INT(mpt_parameter_count(net), 6);
        CHECK(mpt_get_requires_grad(mpt_parameter(net, "0.weight")));
        mpt_optimizer optimizer = mpt_adamw(net, NULL); /* an ordinary net again */
        mpt_backward(mpt_sum(mpt_forward(net, x), MPT_ALL_DIMS, false));
        CHECK(mpt_has_grad(mpt_parameter(net, "0.weight")));
        CHECK_EQ_INT(mpt_step(optimizer), MPT_OK);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

/* A product that a weight cannot hold is refused before any weight changes. */
TEST(merged_beyond_the_range) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c);
    CHECK_EQ_INT(mpt_half(net, MPT_F16), MPT_OK);
    CHECK_EQ_INT(mpt_lora(net, "*", RANK, 1e7), MPT_OK);
    fill(net, "4.lora_B.weight", 3);
    uint64_t hash = mpt_module_hash(net);
    CHECK_EQ_INT(mpt_lora_merge(net), MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(c), "parameter 4.weight: element");
    CHECK_CONTAINS(mpt_error(c), "beyond float16");
    mpt_clear_error(c);
    CHECK(mpt_module_hash(net) == hash);
    CHECK_EQ_INT(mpt_lora_remove(net), MPT_OK);
    mpt_destroy(c);
}

TEST(taken_off) {
    static float before[MOST], after[MOST];
    trainer t = trainer_of(1, MPT_F32, NULL);
    mpt_optimizer_destroy(t.optimizer);
    mpt_tensor x = mpt_keep(some(t.context, MPT_SHAPE(ROWS, IN), 1));
    const uint64_t hash = mpt_module_hash(t.net);
    int64_t n = gives(t.net, x, MPT_F32, true, before);
    for (int round = 0; round < 3; round++) {
        CHECK_EQ_INT(mpt_lora(t.net, round ? "*" : "2", RANK, 6), MPT_OK);
        t.optimizer = mpt_adamw(t.net, NULL);
        train(&t, 3);
        gives(t.net, x, MPT_F32, true, after);
        CHECK(memcmp(after, before, (size_t)n * sizeof *after) != 0);
        CHECK_EQ_INT(mpt_lora_remove(t.net), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(t.context), "lora_A.weight belongs to an optimizer");
        mpt_clear_error(t.context);
        mpt_optimizer_destroy(t.optimizer);
        CHECK_EQ_INT(mpt_lora_remove(t.net), MPT_OK);
        gives(t.net, x, MPT_F32, true, after);
        CHECK_EQ_BITS(after, before, (size_t)n * sizeof *after);
        CHECK(mpt_module_hash(t.net) == hash);
        CHECK_EQ_INT(mpt_lora_remove(t.net), MPT_ERROR_STATE);
        CHECK_CONTAINS(mpt_error(t.context), "the module has no adapters");
        mpt_clear_error(t.context);
    }
    mpt_destroy(t.context);
}

/* Two parts, each with adapters of its own, and one of them merged. */
TEST(part_by_part) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c), first = mpt_child(net, "0");
    CHECK_EQ_INT(mpt_lora(first, "*", 2, 2), MPT_OK);
    CHECK(mpt_get_requires_grad(mpt_parameter(net, "2.weight")));
    CHECK_EQ_INT(mpt_lora(net, "4", 1, 2), MPT_OK);
    CHECK(!mpt_get_requires_grad(mpt_parameter(net, "2.weight")));
    CHECK(mpt_get_requires_grad(mpt_parameter(net, "0.lora_A.weight")));
    CHECK_EQ_INT(mpt_parameter_count(net), 10);
    CHECK_EQ_INT(mpt_lora_merge(first), MPT_OK);
    CHECK_EQ_INT(mpt_parameter_count(net), 8);
    CHECK(mpt_get_requires_grad(mpt_parameter(net, "0.weight")));
    CHECK(!mpt_get_requires_grad(mpt_parameter(net, "4.weight")));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* A mode that a user set stays, and so does what mpt_freeze fixed. */
TEST(modes_stay) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, IN, IN), mpt_nn_dropout(c, 0.5),
                                    mpt_nn_linear(c, IN, OUT), MPT_END);
    mpt_freeze(mpt_child(net, "0"), true);
    CHECK_EQ_INT(mpt_lora(net, "2", RANK, 6), MPT_OK);
    CHECK(mpt_is_training(mpt_child(net, "1")) && !mpt_is_training(mpt_child(net, "0")));
    CHECK_EQ_INT(mpt_lora_merge(net), MPT_OK);
    CHECK(!mpt_get_requires_grad(mpt_parameter(net, "0.weight")));
    CHECK(mpt_get_requires_grad(mpt_parameter(net, "2.weight")));
    mpt_destroy(c);
}

/* ==== Files ==== */

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST(saved_and_loaded_alone) {
    static float want[MOST], got[MOST];
    const char *file = test_tmp_path("adapters.safetensors");
    trainer t = trainer_of(1, MPT_F32, "*");
    train(&t, 5);
    mpt_tensor x = mpt_keep(some(t.context, MPT_SHAPE(ROWS, IN), 1));
    int64_t n = gives(t.net, x, MPT_F32, false, want);
    CHECK_EQ_INT(mpt_lora_save(t.net, file), MPT_OK);
    static uint8_t text[1 << 14];
    const size_t bytes = file_bytes(file, text, sizeof text);
    const size_t numbers = RANK * (IN + 3 * HIDDEN + HIDDEN + OUT) * sizeof(float);
    CHECK(bytes > numbers && bytes < numbers + 800);
    mpt_destroy(t.context);

    trainer fresh = trainer_of(1, MPT_F32, "*");
    mpt_load_config config = mpt_load_config_default();
    int loaded = 0;
    config.strict = false;
    CHECK_EQ_INT(mpt_load(fresh.net, file, &config, &loaded), MPT_OK);
    CHECK_EQ_INT(loaded, 6);
    x = mpt_keep(some(fresh.context, MPT_SHAPE(ROWS, IN), 1));
    CHECK_EQ_INT(gives(fresh.net, x, MPT_F32, false, got), n);
    CHECK_EQ_BITS(got, want, (size_t)n * sizeof *got);
    mpt_destroy(fresh.context);

    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c);
    CHECK_EQ_INT(mpt_lora_save(net, file), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "the module has no adapters");
    mpt_destroy(c);
}

/* The whole of a net, adapters too, goes to a net that has them, and is refused by one without. */
TEST(saved_whole) {
    const char *file = test_tmp_path("whole.safetensors");
    trainer t = trainer_of(1, MPT_F32, "*"), other = trainer_of(1, MPT_F32, "*");
    train(&t, 2);
    CHECK_EQ_INT(mpt_save(t.net, file), MPT_OK);
    CHECK_EQ_INT(mpt_load(other.net, file, NULL, NULL), MPT_OK);
    CHECK(mpt_module_hash(other.net) == mpt_module_hash(t.net));
    mpt_module plain = net_of(other.context);
    CHECK_EQ_INT(mpt_load(plain, file, NULL, NULL), MPT_ERROR_FORMAT);
    mpt_clear_error(other.context);
    CHECK_EQ_INT(mpt_copy_module(other.net, t.net), MPT_OK);
    mpt_destroy(t.context), mpt_destroy(other.context);
}
#endif

#if !defined(MPTRAIN_NO_RESUME) && !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST(goes_on_from_a_checkpoint) {
    static float want[MOST], got[MOST];
    const char *file = test_tmp_path("lora-run.safetensors");
    trainer t = trainer_of(1, MPT_F16, "*");
    train(&t, 4);
    CHECK_EQ_INT(mpt_checkpoint_save(t.context, file), MPT_OK);
    train(&t, 4);
    int64_t n = values_of(mpt_parameter(t.net, "0.lora_A.weight"), want);
    mpt_destroy(t.context);
    t = trainer_of(1, MPT_F16, "*");
    CHECK_EQ_INT(mpt_checkpoint_load(t.context, file), MPT_OK);
    train(&t, 4);
    values_of(mpt_parameter(t.net, "0.lora_A.weight"), got);
    CHECK_EQ_BITS(got, want, (size_t)n * sizeof *got);
    /* Another alpha is another training. */
    mpt_optimizer_destroy(t.optimizer);
    CHECK_EQ_INT(mpt_lora_remove(t.net), MPT_OK);
    CHECK_EQ_INT(mpt_lora(t.net, "*", RANK, 5), MPT_OK);
    t.optimizer = mpt_adamw(t.net, NULL);
    CHECK(mpt_checkpoint_load(t.context, file) != MPT_OK);
    CHECK_CONTAINS(mpt_error(t.context), "layers and their settings");
    mpt_destroy(t.context);
}
#endif

/* ==== Hooks, gradient checks ==== */

#ifndef MPTRAIN_NO_WATCH
static mpt_status count_calls(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    (void)self, (void)in, (void)n_in, (void)out, (void)n_out;
    ++*(int *)user;
    return MPT_OK;
}

TEST(hooked) {
    static const char *const paths[] = {"2", "2.lora_A", "2.lora_B"};
    static float before[MOST], after[MOST];
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c);
    int calls[3] = {0, 0, 0};
    mpt_hook_forward(mpt_child(net, "2"), count_calls, &calls[0]); /* before and behind mpt_lora */
    CHECK_EQ_INT(mpt_lora(net, "*", RANK, 6), MPT_OK);
    fill(net, "2.lora_B.weight", 3);
    mpt_tensor x = mpt_keep(some(c, MPT_SHAPE(ROWS, IN), 1));
    int64_t n = gives(net, x, MPT_F32, true, before);
    for (int i = 1; i < 3; i++)
        CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, paths[i]), count_calls, &calls[i]), MPT_OK);
    gives(net, x, MPT_F32, true, after);
    CHECK_EQ_BITS(after, before, (size_t)n * sizeof *after);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(calls[i], i ? 1 : 2);
        CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, paths[i]), NULL, NULL), MPT_OK);
    }
    gives(net, x, MPT_F32, true, after);
    CHECK_EQ_BITS(after, before, (size_t)n * sizeof *after);
    CHECK_EQ_INT(mpt_lora_remove(net), MPT_OK);
    gives(net, x, MPT_F32, true, after);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}
#endif

/* ==== What is refused ==== */

static void refused(mpt_module net, const char *pattern, int rank, double alpha, mpt_status status,
                    const char *why) {
    const int count = mpt_parameter_count(net);
    CHECK_EQ_INT(mpt_lora(net, pattern, rank, alpha), status);
    CHECK_CONTAINS(mpt_error(net.context), "mpt_lora (");
    CHECK_CONTAINS(mpt_error(net.context), why);
    mpt_clear_error(net.context);
    CHECK_EQ_INT(mpt_parameter_count(net), count);
    CHECK(mpt_get_requires_grad(mpt_parameter(net, "4.weight")));
}

static mpt_status adapts_inside(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)in, (void)n_in, (void)out, (void)n_out;
    return mpt_lora(self, "*", RANK, 1);
}

TEST(refusals) {
    mpt_context *c = context_of(NULL, 1);
    mpt_module net = net_of(c);
    refused(net, NULL, RANK, 1, MPT_ERROR_ARGUMENT, "a path with one '*' at most");
    refused(net, "", RANK, 1, MPT_ERROR_ARGUMENT, "a path with one '*' at most");
    refused(net, "*2*", RANK, 1, MPT_ERROR_ARGUMENT, "a path with one '*' at most");
    refused(net, "*", 0, 1, MPT_ERROR_ARGUMENT, "rank 0, alpha 1");
    refused(net, "*", -1, 1, MPT_ERROR_ARGUMENT, "rank -1, alpha 1");
    refused(net, "*", 2, 0, MPT_ERROR_ARGUMENT, "alpha 0: expected");
    refused(net, "*", 2, -1, MPT_ERROR_ARGUMENT, "and above 0");
    refused(net, "*", 2, (double)NAN, MPT_ERROR_ARGUMENT, "and above 0");
    refused(net, "*", 2, (double)INFINITY, MPT_ERROR_ARGUMENT, "and above 0");
    refused(net, "1", 2, 1, MPT_ERROR_ARGUMENT, "no linear or attention layer of sequential has");
    refused(net, "block.*", 2, 1, MPT_ERROR_ARGUMENT, "a path that fits \"block.*\"");
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    refused(net, "*", 2, 1, MPT_ERROR_STATE, "0.weight belongs to an optimizer; call mpt_lora");
    mpt_optimizer_destroy(optimizer);
    CHECK_EQ_INT(mpt_lora(net, "2", 2, 1), MPT_OK);
    mpt_freeze(net, false);
    refused(net, "*", 2, 1, MPT_ERROR_STATE, "layer \"2\" has adapters; mpt_lora_merge or");
    refused(net, "2.lora_A", 2, 1, MPT_ERROR_ARGUMENT, "no linear or attention layer");

    mpt_module tied = net_of(c);
    CHECK_EQ_INT(mpt_tie(tied, "0.bias", "2.bias"), MPT_OK);
    CHECK_EQ_INT(mpt_lora(tied, "*", 2, 1), MPT_OK); /* biases stay as they are */
    tied = mpt_sequential(c, mpt_nn_linear(c, OUT, OUT), mpt_nn_relu(c), mpt_nn_linear(c, OUT, OUT),
                          mpt_nn_relu(c), mpt_nn_linear(c, OUT, OUT), MPT_END);
    CHECK_EQ_INT(mpt_tie(tied, "2.weight", "0.weight"), MPT_OK);
    refused(tied, "*", 2, 1, MPT_ERROR_STATE, "layer \"0\" shares its weight with another layer");
    refused(tied, "2", 2, 1, MPT_ERROR_STATE, "layer \"2\" shares its weight with another layer");
    CHECK_EQ_INT(mpt_lora(tied, "4", 2, 1), MPT_OK);
#ifndef MPTRAIN_NO_FP8
    mpt_module eight = net_of(c);
    CHECK_EQ_INT(mpt_fp8(mpt_child(eight, "2"), NULL), MPT_OK);
    refused(eight, "*", 2, 1, MPT_ERROR_STATE, "layer \"2\" computes in fp8 (mpt_fp8)");
#endif
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "adapts", cls.forward = adapts_inside, cls.n_inputs = cls.n_outputs = 1;
    mpt_forward(mpt_module_create(c, &cls, NULL), some(c, MPT_SHAPE(ROWS, IN), 1));
    CHECK_CONTAINS(mpt_error(c), "a forward, a backward, a recording");
    mpt_destroy(c);
}

#ifndef MPTRAIN_NO_WATCH
TEST(borrowed) {
    static float want[MOST], got[MOST];
    mpt_context *c = context_of(NULL, 1), *other = context_of(NULL, 1);
    mpt_module lender = net_of(c), net = net_of(other), plain = net_of(other);
    CHECK_EQ_INT(mpt_share_module(plain, lender), MPT_OK);
    CHECK_EQ_INT(mpt_lora(plain, "*", 2, 1), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(other), "layer \"0\" borrows its values from another context");
    mpt_clear_error(other);
    mpt_module_destroy(plain);
    /* One that is adapted on both sides is borrowed with its adapters. */
    CHECK_EQ_INT(mpt_lora(lender, "*", RANK, 6), MPT_OK);
    CHECK_EQ_INT(mpt_lora(net, "*", RANK, 6), MPT_OK);
    fill(lender, "2.lora_B.weight", 3);
    CHECK_EQ_INT(mpt_share_module(net, lender), MPT_OK);
    int64_t n = gives(lender, mpt_keep(some(c, MPT_SHAPE(ROWS, IN), 1)), MPT_F32, false, want);
    gives(net, mpt_keep(some(other, MPT_SHAPE(ROWS, IN), 1)), MPT_F32, false, got);
    CHECK_EQ_BITS(got, want, (size_t)n * sizeof *got);
    CHECK_EQ_INT(mpt_lora_merge(net), MPT_ERROR_STATE);
    mpt_clear_error(other);
    CHECK_EQ_INT(mpt_lora_merge(lender), MPT_ERROR_STATE);
    mpt_clear_error(c);
    mpt_destroy(other);
    CHECK_EQ_INT(mpt_lora_merge(lender), MPT_OK);
    mpt_destroy(c);
}
#endif

/* Wherever memory ends, nothing has changed, and a second try does all. */
TEST(out_of_memory) {
    for (int call = 0; call < 2; call++) {
        bool done = false;
        for (int64_t fail = 1; !done && fail < 200; fail++) {
            arena a;
            mpt_context *c = context_of(&a, 1);
            mpt_module net = net_of(c);
            uint64_t hash = mpt_module_hash(net);
            if (call) CHECK_EQ_INT(mpt_lora(net, "*", RANK, 6), MPT_OK);
            if (call) hash = mpt_module_hash(net);
            mpt_memory_trim(c);
            a.calls = 0, a.fail_at = fail, a.failures = 1 << 30;
            const mpt_status status = call ? mpt_lora_merge(net) : mpt_lora(net, "*", RANK, 6);
            done = a.refused == 0;
            a.fail_at = 0;
            if (!done) {
                CHECK_EQ_INT(status, MPT_ERROR_MEMORY);
                mpt_clear_error(c);
                CHECK(mpt_module_hash(net) == hash);
                CHECK_EQ_INT(mpt_parameter_count(net), call ? 12 : 6);
                CHECK(mpt_get_requires_grad(mpt_parameter(net, "0.weight")) == !call);
            }
            CHECK_EQ_INT(call || done ? MPT_OK : mpt_lora(net, "*", RANK, 6), MPT_OK);
            mpt_forward(net, some(c, MPT_SHAPE(ROWS, IN), 1));
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_destroy(c);
            CHECK_EQ_INT(a.live, 0);
            CHECK_EQ_INT(a.torn, 0);
        }
        CHECK(done);
    }
}

TEST(no_allocation_in_a_steady_step) {
    trainer t = trainer_of(1, MPT_BF16, "*");
    mpt_tensor x, y;
    batch_of(t.context, 1, &x, &y);
    x = mpt_keep(x), y = mpt_keep(y);
    for (int i = 0; i < 3; i++) one_step(t.context, &t, x, y);
    const int64_t before = mpt_memory(t.context).allocations;
    for (int i = 0; i < 5; i++) one_step(t.context, &t, x, y);
    CHECK_EQ_INT(mpt_memory(t.context).allocations, before);
    CHECK_EQ_STR(mpt_error(t.context), "");
    mpt_destroy(t.context);
}

TEST_TABLE = {T(at_first_nothing_changes),
              T(values_and_gradients_are_those_of_loops),
              T(first_values),
              T(patterns),
#ifndef MPTRAIN_NO_ATTENTION
              T(attention_is_adapted),
#ifndef MPTRAIN_NO_WATCH
              T(attention_by_differences),
#endif
#endif
              T(only_adapters_are_trained),
              T(memory),
              T(a_part_can_be_trained_in_full),
              T(unfrozen_between_forward_and_backward),
#ifndef MPTRAIN_NO_GRAPH
              T(captured),
              T(captured_before),
#endif
              T(merged),
              T(merged_beyond_the_range),
              T(taken_off),
              T(part_by_part),
              T(modes_stay),
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
              T(saved_and_loaded_alone),
              T(saved_whole),
#ifndef MPTRAIN_NO_RESUME
              T(goes_on_from_a_checkpoint),
#endif
#endif
#ifndef MPTRAIN_NO_WATCH
              T(traced),
              T(hooked),
              T(borrowed),
#endif
              T(refusals),
              T(out_of_memory),
              T(no_allocation_in_a_steady_step)};
TEST_MAIN

#endif
