/* api_recurrent.c: recurrent layers and their cells: against PyTorch, steps against sequences, and
   what they promise about states, lengths, memory and bits. */
#include "golden.h"

#include "checks.h"

#ifndef MPTRAIN_NO_RECURRENT

#define MAX_IN 48

static mpt_context *context;

static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}

static bool begin(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = 5;
    config.debug = true;
    context = mpt_create(&config);
    if (!context) TEST_FAIL_("%s", mpt_error(NULL));
    return context != NULL;
}

/* ==== Goldens ==== */

enum { LAYERS, DIRECTIONS, BIAS, BATCH_FIRST, RELU, PROJECTION, STATES, HIDDEN, CELL };

static mpt_module layer_of(const golden_case *c, int64_t in) {
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.layers = (int)c->ints[LAYERS];
    config.bidirectional = c->ints[DIRECTIONS] != 0;
    config.bias = c->ints[BIAS] != 0;
    config.batch_first = c->ints[BATCH_FIRST] != 0;
    config.relu = c->ints[RELU] != 0;
    config.projection = c->ints[PROJECTION];
    int64_t hidden = c->ints[HIDDEN];
    if (c->ints[CELL]) {
        if (strcmp(c->op, "lstm") == 0) return mpt_nn_lstm_cell(context, in, hidden, &config);
        if (strcmp(c->op, "gru") == 0) return mpt_nn_gru_cell(context, in, hidden, &config);
        return mpt_nn_rnn_cell(context, in, hidden, &config);
    }
    if (strcmp(c->op, "lstm") == 0) return mpt_nn_lstm(context, in, hidden, &config);
    if (strcmp(c->op, "gru") == 0) return mpt_nn_gru(context, in, hidden, &config);
    return mpt_nn_rnn(context, in, hidden, &config);
}

/* The sum of all outputs times their upstreams: its gradients are those of the case. */
static mpt_tensor weighed(const golden_case *c, const mpt_tensor *out, int n) {
    static const char *const names[2][3] = {{"upstream out", "upstream h", "upstream c"},
                                            {"upstream h", "upstream c", ""}};
    mpt_tensor sum = none();
    for (int i = 0; i < n; i++) {
        const golden_tensor *up = golden_find(c, names[c->ints[CELL] != 0][i]);
        mpt_tensor part = mpt_from(context, up->dtype, up->shape, up->data);
        part = mpt_sum(mpt_mul(mpt_cast(out[i], MPT_F32), mpt_cast(part, MPT_F32)), MPT_ALL_DIMS,
                       false);
        sum = i ? mpt_add(sum, part) : part;
    }
    return sum;
}

static void run_case(const golden_case *c) {
    mpt_tensor in[MAX_IN], given[4], out[3] = {none(), none(), none()}, lengths = none();
    static const char *const names[2][3] = {{"out", "h", "c"}, {"h", "c", ""}};
    int n = 0, inputs = 1 + (int)c->ints[STATES], first = 0, lstm = strcmp(c->op, "lstm") == 0;
    int outputs = (c->ints[CELL] ? 1 : 2) + lstm;
    mpt_scope_begin(context);
    if (c->tensors[0].role == GOLDEN_CONSTANT)
        lengths = mpt_from(context, MPT_I64, c->tensors[0].shape, c->tensors[0].data), first = 1;
    const golden_tensor *leaf = &c->tensors[first];
    mpt_module layer = layer_of(c, leaf->shape.dim[leaf->shape.rank - 1]);
    if (leaf->dtype != MPT_F32) mpt_half(layer, leaf->dtype);
    for (; leaf[n].role == GOLDEN_LEAF; n++) {
        const golden_tensor *t = &leaf[n];
        in[n] = mpt_from(context, t->dtype, t->shape, t->data);
        if (n < inputs) {
            mpt_requires_grad(in[n], true);
            given[n] = in[n];
            continue;
        }
        in[n] = mpt_parameter(layer, t->name);
        CHECK_EQ_INT(mpt_write(in[n], t->data, (size_t)t->count * mpt_dtype_size(t->dtype)),
                     MPT_OK);
    }
    CHECK_EQ_INT(mpt_parameter_count(layer), n - inputs);
    if (first) given[inputs] = lengths;
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_begin(context, c->region);
    mpt_forward_n(layer, given, inputs + first, out, outputs);
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_end(context);
    for (int i = 0; i < outputs; i++) {
        const golden_tensor *want = golden_find(c, names[c->ints[CELL] != 0][i]);
        CHECK_EQ_INT(mpt_get_dtype(out[i]), want->dtype);
        golden_compare_tensor(context, c, want, out[i]);
    }
    mpt_backward(weighed(c, out, outputs));
    golden_compare_gradients(context, c, in);
    check_ok(context);
    mpt_scope_end(context);
    mpt_module_destroy(layer);
}

TEST(as_pytorch) {
    REQUIRE(begin(0));
    golden_run(context, "recurrent.bin", run_case, 100);
    mpt_destroy(context);
}

/* ==== Bits ==== */

typedef mpt_module (*layer_new)(mpt_context *, int64_t, int64_t, const mpt_recurrent_config *);
static const layer_new layers[3] = {mpt_nn_rnn, mpt_nn_lstm, mpt_nn_gru};
static const layer_new cells[3] = {mpt_nn_rnn_cell, mpt_nn_lstm_cell, mpt_nn_gru_cell};

/* Of the gradients of a net of two layers and both directions. */
static uint64_t bits_of(int kind, int threads, mpt_dtype region) {
    static const int64_t steps[5] = {7, 9, 1, 0, 4};
    mpt_tensor in[2], out[3];
    uint64_t bits = 0;
    if (!begin(threads)) return 0;
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.layers = 2, config.bidirectional = true, config.dropout = 0.3;
    mpt_module net = layers[kind](context, 6, 21, &config);
    in[0] = mpt_randn(context, MPT_F32, MPT_SHAPE(9, 5, 6));
    in[1] = mpt_from(context, MPT_I64, MPT_SHAPE(5), steps);
    mpt_autocast_begin(context, region);
    mpt_forward_n(net, in, 2, out, 2);
    mpt_autocast_end(context);
    mpt_backward(mpt_mean(mpt_mul(out[0], out[0]), MPT_ALL_DIMS, false));
    for (int i = 0; i < (int)mpt_parameter_count(net); i++) {
        float values[4 * 21 * 42];
        mpt_tensor gradient = mpt_grad(mpt_parameter_at(net, i, NULL, 0));
        CHECK_EQ_INT(mpt_read_f32(gradient, values, mpt_numel(gradient)), MPT_OK);
        for (int64_t k = 0; k < mpt_numel(gradient); k++) {
            uint32_t word;
            memcpy(&word, &values[k], sizeof word);
            bits = (bits ^ word) * UINT64_C(0x100000001b3);
        }
    }
    check_ok(context);
    mpt_destroy(context);
    return bits;
}

TEST(the_same_bits_for_any_number_of_threads) {
    for (int kind = 0; kind < 3; kind++) {
        for (int half = 0; half < 2; half++) {
            const mpt_dtype region = half ? MPT_BF16 : MPT_F32;
            uint64_t one = bits_of(kind, 1, region);
            CHECK(one != 0 && bits_of(kind, 2, region) == one);
            CHECK(bits_of(kind, 5, region) == one);
        }
    }
}

/* ==== All steps at once ==== */

enum { MOST_VALUES = 24000 };

/* Outputs and all gradients, one behind the other, of a layer in both directions on so many
   sequences, which have states; how many numbers those are. */
static int64_t values_of(mpt_isa isa, int kind, int64_t batch, int how, mpt_dtype region,
                         float *values) {
    enum { T = 6, I = 5, H = 19 };
    mpt_config create = mpt_config_default();
    create.isa = isa, create.threads = 3, create.seed = 5, create.debug = true;
    if (isa == MPT_ISA_REF) create.device = MPT_DEVICE_CPU;
    context = mpt_create(&create);
    if (!context) return TEST_FAIL_("%s", mpt_error(NULL)), 0;
    mpt_recurrent_config config = mpt_recurrent_config_default();
    const bool first = how & 1, lengths = (how & 2) != 0;
    const int states = how & 4 ? kind == 1 ? 2 : 1 : 0;
    int64_t steps[64], n = 0;
    mpt_tensor in[4], out[3], sum = none();
    config.bidirectional = true, config.batch_first = first, config.relu = kind == 0 && first;
    mpt_module layer = layers[kind](context, I, H, &config);
    in[0] = mpt_randn(context, MPT_F32, first ? MPT_SHAPE(batch, T, I) : MPT_SHAPE(T, batch, I));
    for (int i = 0; i < states; i++)
        in[1 + i] = mpt_randn(context, MPT_F32, MPT_SHAPE(2, batch, H));
    for (int i = 0; i < 1 + states; i++) mpt_requires_grad(in[i], true);
    for (int64_t i = 0; i < batch; i++) steps[i] = (i * 5 + 3) % (T + 1);
    if (lengths) in[1 + states] = mpt_from(context, MPT_I64, MPT_SHAPE(batch), steps);
    mpt_autocast_begin(context, region);
    const int outputs = kind == 1 ? 3 : 2;
    mpt_forward_n(layer, in, 1 + states + lengths, out, outputs);
    mpt_autocast_end(context);
    for (int i = 0; i < outputs; i++) {
        mpt_tensor part = mpt_cast(out[i], MPT_F32), weight = mpt_cos(mpt_mul(part, part));
        mpt_read_f32(part, values + n, mpt_numel(part)), n += mpt_numel(part);
        part = mpt_sum(mpt_mul(part, weight), MPT_ALL_DIMS, false);
        sum = i ? mpt_add(sum, part) : part;
    }
    mpt_backward(sum);
    const int count = (int)mpt_parameter_count(layer);
    for (int i = 0; i < 1 + states + count; i++) {
        mpt_tensor of = i <= states ? in[i] : mpt_parameter_at(layer, i - 1 - states, NULL, 0);
        mpt_read_f32(mpt_grad(of), values + n, mpt_numel(of)), n += mpt_numel(of);
    }
    check_ok(context);
    mpt_destroy(context);
    return n;
}

/* The reference goes step by step, where a level of this machine has one kernel for all steps. */
TEST(all_steps_at_once_are_the_reference) {
    static float values[2][MOST_VALUES];
    static const int64_t batches[] = {4, 5, 37};
    static const mpt_dtype regions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < 3 * 3 * 8; i++) {
        const int kind = i % 3, how = i / 9;
        const mpt_dtype region = regions[(kind + how + i / 3) % 3];
        const int64_t batch = batches[i / 3 % 3];
        int64_t n = values_of(MPT_ISA_REF, kind, batch, how, region, values[0]);
        CHECK_EQ_INT(values_of(MPT_ISA_AUTO, kind, batch, how, region, values[1]), n);
        double most = 0, worst = 0;
        for (int64_t k = 0; k < n; k++) {
            const double a = fabs(values[0][k]), d = fabs(values[0][k] - values[1][k]);
            most = a > most ? a : most, worst = d > worst || d != d ? d : worst;
        }
        if (!(most > 0.1 && worst <= (region == MPT_F32 ? 1e-5 : 2e-2) * most))
            TEST_FAIL_("kind %d, batch %lld, how %d, %s: %g of %g", kind, (long long)batch, how,
                       mpt_dtype_name(region), worst, most);
    }
}

/* ==== States ==== */

static void copy_parameters(mpt_module to, mpt_module from) {
    for (int i = 0; i < (int)mpt_parameter_count(from); i++) {
        float values[4 * 8 * 8];
        mpt_tensor parameter = mpt_parameter_at(from, i, NULL, 0);
        mpt_read_f32(parameter, values, mpt_numel(parameter));
        mpt_write(mpt_parameter_at(to, i, NULL, 0), values,
                  (size_t)mpt_numel(parameter) * sizeof *values);
    }
}

/* A cell, step by step, gives what the layer gives; and so does the layer on parts of the sequence,
   whose gradients end where a state is cut off. */
TEST(steps_and_parts_are_the_sequence) {
    enum { T = 6, B = 3, I = 4, H = 8 };
    for (int kind = 0; kind < 3; kind++) {
        mpt_tensor in[3], out[3], whole[3], step[2];
        const int states = kind == 1 ? 2 : 1;
        REQUIRE(begin(0));
        mpt_module layer = layers[kind](context, I, H, NULL);
        mpt_module cell = cells[kind](context, I, H, NULL);
        mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(T, B, I));
        mpt_requires_grad(x, true);
        copy_parameters(cell, layer);
        mpt_forward_n(layer, &x, 1, whole, 1 + states);
        for (int t = 0; t < T; t++) {
            in[0] = mpt_reshape(mpt_slice(x, 0, t, t + 1, 1), MPT_SHAPE(B, I));
            for (int i = 0; i < states && t; i++) in[1 + i] = step[i];
            mpt_forward_n(cell, in, t ? 1 + states : 1, step, states);
            mpt_tensor want = mpt_reshape(mpt_slice(whole[0], 0, t, t + 1, 1), MPT_SHAPE(B, H));
            CHECK(mpt_allclose(step[0], want, 1e-5, 1e-6));
        }
        for (int t = 0; t < T; t += 2) {
            in[0] = mpt_slice(x, 0, t, t + 2, 1);
            for (int i = 0; i < states && t; i++) in[1 + i] = mpt_detach(out[1 + i]);
            mpt_forward_n(layer, in, t ? 1 + states : 1, out, 1 + states);
            CHECK(mpt_allclose(out[0], mpt_slice(whole[0], 0, t, t + 2, 1), 1e-5, 1e-6));
        }
        for (int i = 1; i <= states; i++) CHECK(mpt_allclose(out[i], whole[i], 1e-5, 1e-6));
        mpt_backward(mpt_sum(out[0], MPT_ALL_DIMS, false));
        mpt_tensor dx = mpt_grad(x);
        CHECK(mpt_item(mpt_norm(mpt_slice(dx, 0, 0, 4, 1), 2, MPT_ALL_DIMS, false)) == 0.0);
        CHECK(mpt_item(mpt_norm(mpt_slice(dx, 0, 4, 6, 1), 2, MPT_ALL_DIMS, false)) > 0.0);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* What a sequence has behind its length changes nothing, be it infinite: no output, and no
   gradient. */
static void check_behind(int kind, bool batch_first, mpt_dtype region) {
    static const int64_t steps[3] = {2, 4, 0};
    mpt_tensor in[2], out[2][3], y[2];
    float values[5 * 3 * 2], dx[5 * 3 * 2], gradients[2][2][4 * 7 * 7];
    memset(gradients, 0, sizeof gradients);
    if (!begin(0)) return;
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.bidirectional = true, config.batch_first = batch_first;
    mpt_module layer = layers[kind](context, 2, 7, &config);
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; i < 30; i++) {
            const int t = batch_first ? i / 2 % 5 : i / 6, b = batch_first ? i / 10 : i / 2 % 3;
            values[i] = t < steps[b] || !odd ? 0.1f * (float)(i % 7) - 0.2f
                        : i % 4              ? INFINITY
                                             : NAN;
        }
        in[0] = mpt_from(context, MPT_F32, batch_first ? MPT_SHAPE(3, 5, 2) : MPT_SHAPE(5, 3, 2),
                         values);
        in[1] = mpt_from(context, MPT_I64, MPT_SHAPE(3), steps);
        mpt_requires_grad(in[0], true);
        mpt_autocast_begin(context, region);
        mpt_forward_n(layer, in, 2, out[odd], 2);
        mpt_autocast_end(context);
        y[odd] = out[odd][0];
        mpt_backward(mpt_sum(y[odd], MPT_ALL_DIMS, false));
        for (int hh = 0; hh < 2; hh++) {
            mpt_tensor weight = mpt_parameter(layer, hh ? "weight_hh_l0" : "weight_ih_l0_reverse");
            mpt_read_f32(mpt_grad(weight), gradients[odd][hh], mpt_numel(weight));
            CHECK(gradients[odd][hh][0] != 0.0f);
        }
        for (int i = 0; i < (int)mpt_parameter_count(layer); i++)
            mpt_clear_grad(mpt_parameter_at(layer, i, NULL, 0));
    }
    CHECK(memcmp(gradients[0], gradients[1], sizeof gradients[0]) == 0);
    CHECK(mpt_allclose(y[0], y[1], 0, 0) && mpt_allclose(out[0][1], out[1][1], 0, 0));
    const int time = batch_first ? 1 : 0;
    CHECK(mpt_item(mpt_norm(mpt_slice(y[1], time, 4, 5, 1), 2, MPT_ALL_DIMS, false)) == 0.0);
    CHECK(mpt_item(mpt_norm(mpt_slice(out[1][1], 1, 2, 3, 1), 2, MPT_ALL_DIMS, false)) == 0.0);
    mpt_read_f32(mpt_grad(in[0]), dx, 30);
    for (int i = 0; i < 30; i++) {
        const int t = batch_first ? i / 2 % 5 : i / 6, b = batch_first ? i / 10 : i / 2 % 3;
        CHECK((dx[i] != 0.0f) == (t < steps[b]));
    }
    check_ok(context);
    mpt_destroy(context);
}

TEST(behind_its_length_nothing_counts) {
    static const mpt_dtype regions[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < 18; i++) check_behind(i % 3, i % 2 == 0, regions[i / 6]);
}

/* ==== Parameters ==== */

TEST(names_and_first_values) {
    static const char *const names[] = {"weight_ih_l0", "weight_hh_l0", "bias_ih_l0",
                                        "bias_hh_l0",   "weight_hr_l0", "weight_ih_l0_reverse"};
    REQUIRE(begin(0));
    mpt_recurrent_config config = mpt_recurrent_config_default();
    config.layers = 2, config.bidirectional = true, config.projection = 3;
    mpt_module net = mpt_nn_lstm(context, 5, 16, &config);
    CHECK_EQ_INT(mpt_parameter_count(net), 20);
    for (int i = 0; i < 6; i++) {
        char path[64];
        mpt_parameter_at(net, i, path, sizeof path);
        CHECK_EQ_STR(path, names[i]);
    }
    CHECK_EQ_INT(mpt_get_shape(mpt_parameter(net, "weight_ih_l1_reverse")).dim[1], 6);
    mpt_tensor bias = mpt_parameter(net, "bias_hh_l1");
    double most = mpt_item(mpt_norm(bias, (double)INFINITY, MPT_ALL_DIMS, false));
    CHECK(most <= 0.25 && most > 0.2);
    check_ok(context);
    mpt_destroy(context);
}

/* ==== Memory ==== */

static void train(mpt_module net, mpt_optimizer optimizer, mpt_tensor x, mpt_tensor y) {
    mpt_tensor out = mpt_slice(mpt_forward(net, x), 0, -1, 99, 1);
    mpt_tensor loss = mpt_mse_loss(out, y, MPT_MEAN);
    mpt_zero_grad(optimizer);
    mpt_backward(loss);
    mpt_step(optimizer);
}

TEST(trains_without_allocations) {
    for (int kind = 0; kind < 3; kind++) {
        REQUIRE(begin(2));
        int64_t calls = 0;
        mpt_recurrent_config config = mpt_recurrent_config_default();
        config.layers = 2, config.dropout = 0.1;
        mpt_module net = layers[kind](context, 3, 9, &config);
        mpt_optimizer optimizer = mpt_adam(net, NULL);
        for (int step = 0; step < 12; step++) {
            if (step == 4) calls = mpt_memory(context).allocations;
            mpt_step_begin(context);
            train(net, optimizer, mpt_randn(context, MPT_F32, MPT_SHAPE(6, 4, 3)),
                  mpt_zeros(context, MPT_F32, MPT_SHAPE(1, 4, 9)));
            mpt_step_end(context);
        }
        CHECK_EQ_INT(mpt_memory(context).allocations, calls);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* In inference nothing is left but what was asked for. */
TEST(inference_keeps_nothing) {
    enum { T = 50, B = 8, H = 32 };
    for (int kind = 0; kind < 3; kind++) {
        REQUIRE(begin(0));
        mpt_module net = layers[kind](context, 3, H, NULL);
        mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(T, B, 3));
        mpt_forward(net, x);
        for (int kept = 1; kept >= 0; kept--) {
            const int64_t before = mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
            if (!kept) mpt_inference_begin(context);
            mpt_forward(net, x);
            if (!kept) mpt_inference_end(context);
            const int64_t made = mpt_memory(context).current[MPT_MEMORY_ACTIVATION] - before;
            const int64_t result = T * B * H * 4;
            CHECK(kept ? made > 2 * result : made >= result && made <= result + result / 4);
        }
        check_ok(context);
        mpt_destroy(context);
    }
}

/* ==== Steps that are repeated, and go on ==== */

#if !defined(MPTRAIN_NO_GRAPH) && !defined(MPTRAIN_NO_RESUME)
enum { KEPT_T = 5, KEPT_B = 6, KEPT_I = 4, KEPT_H = 8 };

/* A net whose state is kept in parameters that do not train, so that it is part of a checkpoint. */
typedef struct keeper {
    mpt_module net, state;
    mpt_optimizer optimizer;
    int states, by_hand;
} keeper;

static mpt_tensor kept(const keeper *k, int i) { return mpt_parameter(k->state, i ? "c" : "h"); }

static mpt_status state_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = in[0];
    return mpt_error_code(self.context);
}

static bool keeper_begin(keeper *k, int kind, int threads) {
    static const mpt_module_class none = {"state", state_forward, NULL, NULL, NULL, 1, 1};
    mpt_recurrent_config config = mpt_recurrent_config_default();
    if (!begin(threads)) return false;
    config.layers = 2, config.dropout = 0.2;
    k->states = kind == 1 ? 2 : 1, k->by_hand = 0;
    k->net = layers[kind](context, KEPT_I, KEPT_H, &config);
    k->state = mpt_module_create(context, &none, NULL);
    for (int i = 0; i < k->states; i++)
        mpt_add_parameter(k->state, i ? "c" : "h", MPT_SHAPE(2, KEPT_B, KEPT_H),
                          mpt_init_make(MPT_INIT_CONSTANT, 0, 0));
    mpt_freeze(k->state, true);
    k->optimizer = mpt_adam(k->net, NULL);
    return true;
}

/* On x and the lengths of its sequences. */
static mpt_status keeper_step(mpt_context *ctx, void *user, mpt_tensor x, mpt_tensor lengths) {
    keeper *k = (keeper *)user;
    mpt_tensor in[4], out[3];
    k->by_hand++;
    mpt_step_begin(ctx);
    in[0] = x, in[1 + k->states] = lengths;
    for (int i = 0; i < k->states; i++) in[1 + i] = kept(k, i);
    mpt_forward_n(k->net, in, 2 + k->states, out, 1 + k->states);
    mpt_zero_grad(k->optimizer);
    mpt_backward(mpt_mean(mpt_mul(out[0], out[0]), MPT_ALL_DIMS, false));
    mpt_step(k->optimizer);
    for (int i = 0; i < k->states; i++) mpt_copy_(kept(k, i), mpt_detach(out[1 + i]));
    return mpt_step_end(ctx);
}

/* Steps from..to-1, of other numbers and other lengths each. */
static void keeper_run(keeper *k, mpt_captured captured, int from, int to) {
    for (int step = from; step < to; step++) {
        float values[KEPT_T * KEPT_B * KEPT_I];
        int64_t lengths[KEPT_B];
        const int n = sizeof values / sizeof *values;
        for (int i = 0; i < n; i++) values[i] = sinf((float)(i * (step + 2)));
        for (int i = 0; i < KEPT_B; i++) lengths[i] = (i * 5 + step * 3) % (KEPT_T + 1);
        mpt_scope_begin(context);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(KEPT_T, KEPT_B, KEPT_I), values);
        mpt_tensor of = mpt_from(context, MPT_I64, MPT_SHAPE(KEPT_B), lengths);
        if (captured.slot)
            mpt_captured_step(captured, x, of);
        else
            keeper_step(context, k, x, of);
        mpt_scope_end(context);
    }
}

TEST(captured_steps_leave_the_same_bits) {
    for (int kind = 0; kind < 3; kind++) {
        uint64_t hash[2];
        for (int capture = 0; capture < 2; capture++) {
            keeper k;
            mpt_captured captured;
            memset(&captured, 0, sizeof captured);
            REQUIRE(keeper_begin(&k, kind, 2));
            if (capture) captured = mpt_capture(context, keeper_step, &k);
            keeper_run(&k, captured, 0, 10);
            CHECK_EQ_INT(k.by_hand, capture ? 2 : 10);
            hash[capture] = mpt_state_hash(context);
            check_ok(context);
            mpt_destroy(context);
        }
        CHECK(hash[0] != 0 && hash[0] == hash[1]);
    }
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
TEST(a_kept_state_goes_on_from_a_checkpoint) {
    const char *path = test_tmp_path("recurrent.safetensors");
    mpt_captured none;
    memset(&none, 0, sizeof none);
    for (int kind = 0; kind < 3; kind++) {
        keeper k;
        REQUIRE(keeper_begin(&k, kind, 1));
        keeper_run(&k, none, 0, 4);
        CHECK_EQ_INT(mpt_checkpoint_save(context, path), MPT_OK);
        const uint64_t stopped = mpt_state_hash(context);
        keeper_run(&k, none, 4, 8);
        const uint64_t hash = mpt_state_hash(context);
        check_ok(context);
        mpt_destroy(context);
        REQUIRE(keeper_begin(&k, kind, 2));
        CHECK_EQ_INT(mpt_checkpoint_load(context, path), MPT_OK);
        CHECK(hash != 0 && mpt_state_hash(context) == stopped && stopped != hash);
        CHECK(mpt_item(mpt_norm(kept(&k, 0), 2, MPT_ALL_DIMS, false)) > 0);
        keeper_run(&k, none, 4, 8);
        CHECK(mpt_state_hash(context) == hash);
        check_ok(context);
        mpt_destroy(context);
    }
}
#define GOES_ON T(a_kept_state_goes_on_from_a_checkpoint),
#endif
#define REPEATED T(captured_steps_leave_the_same_bits),
#endif
#ifndef REPEATED
#define REPEATED
#endif
#ifndef GOES_ON
#define GOES_ON
#endif

TEST_TABLE = {T(as_pytorch),
              T(the_same_bits_for_any_number_of_threads),
              T(all_steps_at_once_are_the_reference),
              T(steps_and_parts_are_the_sequence),
              T(behind_its_length_nothing_counts),
              T(names_and_first_values),
              T(trains_without_allocations),
              REPEATED GOES_ON T(inference_keeps_nothing)};
#else
TEST(left_out) {
    mpt_context *c = mpt_create(NULL);
    CHECK(mpt_nn_lstm(c, 2, 3, NULL).slot == 0);
    CHECK_CONTAINS(mpt_error(c), "built without recurrent layers (MPTRAIN_NO_RECURRENT)");
    mpt_destroy(c);
}
TEST_TABLE = {T(left_out)};
#endif
TEST_MAIN
