/* api_fp8.c: casts to fp8 and linear layers in fp8 against PyTorch; scales and their history as
 * state; what overflows, and what a GPU, files, errors and other threads have to leave the same. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "golden.h"
#include "training.h"

#include <math.h>

static mpt_context *new_context(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    return mpt_create(&config);
}

/* ---- casts ---- */

static bool is_nan_code(uint8_t code, mpt_dtype dtype) {
    return dtype == MPT_F8E4M3 ? (code & 0x7f) == 0x7f : (code & 0x7f) > 0x7c;
}

static bool same_code(uint8_t a, uint8_t b, mpt_dtype dtype) {
    return a == b || (is_nan_code(a, dtype) && is_nan_code(b, dtype));
}

/* PyTorch's cast saturates in E4M3, infinities too, and overflows in E5M2. The other way differs
   where a magnitude is above the tie beyond the largest number, 464, or at or above 61440. */
static void check_code(const char *label, float x, mpt_dtype dtype, uint8_t torch,
                       uint8_t overflows, uint8_t saturates) {
    const bool e4m3 = dtype == MPT_F8E4M3;
    const uint8_t sign = x < 0 ? 0x80 : 0;
    const bool lost = e4m3 ? fabsf(x) > 464 : fabsf(x) >= 61440;
    uint8_t other = torch;
    if (lost) other = (uint8_t)(sign | (e4m3 ? 0x7f : 0x7b));
    if (!same_code(saturates, e4m3 ? torch : other, dtype))
        TEST_FAIL_("%s: %g saturates to %02x, PyTorch's is %02x", label, (double)x, saturates,
                   torch);
    if (!same_code(overflows, e4m3 ? other : torch, dtype))
        TEST_FAIL_("%s: %g becomes %02x, PyTorch's is %02x", label, (double)x, overflows, torch);
}

static void check_cast(mpt_context *context, const golden_case *c) {
    const golden_tensor *x = golden_find(c, "x"), *codes = golden_find(c, "codes");
    const float *back = (const float *)golden_find(c, "back")->data;
    const mpt_dtype dtype = strstr(c->label, "e4m3") ? MPT_F8E4M3 : MPT_F8E5M2;
    const size_t count = (size_t)x->count;
    uint8_t *code[3];
    float *from = (float *)malloc(count * 4), *wide = (float *)malloc(count * 4);
    for (int k = 0; k < 3; k++) code[k] = (uint8_t *)malloc(count);
    mpt_scope_begin(context);
    mpt_tensor in = mpt_from(context, x->dtype, x->shape, x->data);
    mpt_tensor out[3];
    for (int k = 0; k < 2; k++) out[k] = mpt_cast_fp8(in, dtype, k);
    out[2] = mpt_cast(in, dtype);
    for (int k = 0; k < 3; k++) {
        CHECK_EQ_INT(mpt_get_dtype(out[k]), dtype);
        mpt_read(out[k], code[k], count);
    }
    mpt_read_f32(in, from, x->count);
    mpt_read_f32(mpt_cast(out[dtype == MPT_F8E4M3], MPT_F32), wide, x->count);
    for (size_t i = 0; i < count; i++) {
        check_code(c->label, from[i], dtype, ((const uint8_t *)codes->data)[i], code[0][i],
                   code[1][i]);
        CHECK(same_code(code[1][i], code[2][i], dtype));
        if (back[i] != back[i] ? wide[i] == wide[i] : wide[i] != back[i])
            TEST_FAIL_("%s: %02x is %g, PyTorch's %g", c->label, code[0][i], (double)wide[i],
                       (double)back[i]);
    }
    mpt_scope_end(context);
    for (int k = 0; k < 3; k++) free(code[k]);
    free(from), free(wide);
    check_ok(context);
}

/* ---- the trace ---- */

static void check_values(const char *what, mpt_tensor tensor, const golden_tensor *want) {
    float *got = (float *)malloc((size_t)want->count * 4);
    mpt_read_f32(tensor, got, want->count);
    for (int64_t i = 0; i < want->count; i++)
        test_close(__FILE__, __LINE__, what, (double)got[i], (double)((const float *)want->data)[i],
                   want->rtol, want->atol);
    free(got);
}

static mpt_module new_net(mpt_context *context, int64_t in, int64_t hidden, int64_t out,
                          int history, int margin) {
    mpt_module net =
        mpt_sequential(context, mpt_nn_linear(context, in, hidden), mpt_nn_relu(context),
                       mpt_nn_linear(context, hidden, out), MPT_END);
    mpt_fp8_config config = mpt_fp8_config_default();
    config.history = history, config.margin = margin;
    mpt_fp8(net, &config);
    return net;
}

static void check_trace(mpt_context *context, const golden_case *c) {
    static const char *const paths[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    static const char *const names[] = {"w0", "b0", "w1", "b1"};
    const golden_tensor *x = golden_find(c, "x"), *y = golden_find(c, "y");
    const golden_tensor *losses = golden_find(c, "losses"), *states = golden_find(c, "states");
    int64_t steps = x->shape.dim[0], batch = x->shape.dim[1], in = x->shape.dim[2];
    int64_t out = y->shape.dim[2], width = 2 + c->ints[0], hidden = golden_find(c, "b0")->count;
    mpt_module net = new_net(context, in, hidden, out, (int)c->ints[0], (int)c->ints[1]);
    for (int i = 0; i < 4; i++) {
        const golden_tensor *value = golden_find(c, names[i]);
        mpt_write(mpt_parameter(net, paths[i]), value->data, (size_t)value->count * 4);
    }
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.05;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    for (int64_t s = 0; s < steps; s++) {
        mpt_step_begin(context);
        const float *xs = (const float *)x->data + s * batch * in;
        const float *ys = (const float *)y->data + s * batch * out;
        mpt_tensor given = mpt_from(context, MPT_F32, MPT_SHAPE(batch, in), xs);
        mpt_tensor target = mpt_from(context, MPT_F32, MPT_SHAPE(batch, out), ys);
        mpt_tensor loss = mpt_mse_loss(mpt_forward(net, given), target, MPT_MEAN);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        CHECK_CLOSE(mpt_item(loss), ((const float *)losses->data)[s], losses->rtol, losses->atol);
        mpt_step_end(context);
        for (int layer = 0; layer < 2; layer++) {
            float got[3 * 18];
            const float *want = (const float *)states->data + (s * 2 + layer) * 3 * width;
            mpt_read_f32(mpt_buffer(net, layer ? "2.fp8_state" : "0.fp8_state"), got, 3 * width);
            for (int k = 0; k < 3 * width; k++) {
                if (k % width == 0 && got[k] != want[k])
                    TEST_FAIL_("%s, step %d: scale %d of layer %d is %g, expected %g", c->label,
                               (int)s, k / (int)width, layer, (double)got[k], (double)want[k]);
                CHECK_CLOSE(got[k], want[k], states->rtol, states->atol);
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        char name[16];
        snprintf(name, sizeof name, "%s after", names[i]);
        check_values(name, mpt_parameter(net, paths[i]), golden_find(c, name));
    }
    check_ok(context);
}

TEST(as_pytorch) {
    golden_file file;
    golden_case c;
    int casts = 0, traces = 0;
    REQUIRE(golden_open(&file, "fp8.bin"));
    while (golden_next(&file, &c)) {
        mpt_context *context = new_context(2);
        if (strcmp(c.op, "cast") == 0)
            check_cast(context, &c), casts++;
        else
            check_trace(context, &c), traces++;
        mpt_destroy(context);
    }
    golden_close(&file);
    CHECK_EQ_INT(casts, 6);
    CHECK_EQ_INT(traces, 3);
}

/* ---- one layer ---- */

enum { K = 4, N = 3, ROWS = 2 };

/* A layer whose weights are all `weight`, without bias. */
static mpt_module new_layer(mpt_context *context, double weight) {
    mpt_module layer = mpt_nn_linear_no_bias(context, K, N);
    mpt_set_init(layer, NULL, mpt_init_make(MPT_INIT_CONSTANT, weight, 0));
    mpt_fp8(layer, NULL);
    return layer;
}

static mpt_tensor rows_of(mpt_context *context, float a, float rest) {
    float x[ROWS * K];
    for (int i = 0; i < ROWS * K; i++) x[i] = i == 0 ? a : rest;
    return mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, K), x);
}

static void read_state(mpt_module layer, float state[3 * 18]) {
    mpt_read_f32(mpt_buffer(layer, "fp8_state"), state, 3 * 18);
}

/* Finite values saturate at the scale of before; NaN and infinities stay what they are and do not
   count as magnitudes, forward and backward. */
TEST(overflow_and_nan) {
    static const float given[] = {1000, INFINITY, NAN};
    for (int k = 0; k < 3; k++) {
        mpt_context *context = new_context(1);
        mpt_module layer = new_layer(context, 1);
        float state[3 * 18], y[ROWS * N], dx[ROWS * K];
        mpt_step_begin(context);
        mpt_tensor x = rows_of(context, given[k], 2);
        mpt_requires_grad(x, true);
        mpt_tensor out = mpt_forward(layer, x);
        mpt_read_f32(out, y, ROWS * N);
        for (int i = 0; i < N; i++) CHECK(k == 0 ? y[i] == 454 : y[i] != y[i]);
        for (int i = N; i < ROWS * N; i++) CHECK(y[i] == 8);
        float up[ROWS * N] = {1, 1, 1, 1, 1, given[k] * 100};
        mpt_tensor dy = mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, N), up);
        mpt_backward_from(out, dy, false);
        mpt_read_f32(mpt_grad(x), dx, ROWS * K);
        for (int i = 0; i < K; i++) CHECK(dx[i] == 3);
        for (int i = K; i < ROWS * K; i++)
            CHECK(k == 0 ? dx[i] == 57346 : k == 1 ? isinf(dx[i]) : dx[i] != dx[i]);
        mpt_step_end(context);
        read_state(layer, state);
        CHECK(state[1] == 0 && state[2] == (k == 0 ? 1000.0f : 2.0f));
        CHECK(state[0] == (k == 0 ? 0.25f : 128.0f)); /* 448 / 1000 and 448 / 2, rounded down */
        CHECK(state[36 + 2] == (k == 0 ? 100000.0f : 1.0f));
        CHECK(state[36] == (k == 0 ? 0.5f : 32768.0f));
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Evaluation uses the scales and changes none; a step without the layer leaves them, too. */
TEST(evaluation_leaves_the_state) {
    mpt_context *context = new_context(1);
    mpt_module layer = new_layer(context, 1);
    for (int i = 0; i < 3; i++) {
        uint64_t before = mpt_module_hash(layer);
        mpt_step_begin(context);
        if (i == 1) mpt_eval(layer);
        if (i < 2) mpt_forward(layer, rows_of(context, 3, (float)i));
        mpt_step_end(context);
        CHECK((before == mpt_module_hash(layer)) == (i > 0));
    }
    mpt_train(layer);
    mpt_inference_begin(context);
    uint64_t before = mpt_module_hash(layer);
    mpt_step_begin(context);
    mpt_forward(layer, rows_of(context, 5, 5));
    mpt_step_end(context);
    mpt_inference_end(context);
    CHECK(before == mpt_module_hash(layer));
    check_ok(context);
    mpt_destroy(context);
}

/* What backward needs of an activation is a byte per element instead of four; the net's result,
   which nothing needs, lives until the step's end either way. */
TEST(activations_take_a_byte) {
    enum { WIDE = 256, BATCH = 4096 };
    int64_t held[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        mpt_context *context = new_context(1);
        mpt_module net = mpt_sequential(context, mpt_nn_linear(context, WIDE, WIDE),
                                        mpt_nn_linear(context, WIDE, WIDE),
                                        mpt_nn_linear(context, WIDE, WIDE), MPT_END);
        if (fp8) mpt_fp8(net, NULL);
        mpt_step_begin(context);
        mpt_tensor x = mpt_full(context, MPT_F32, MPT_SHAPE(BATCH, WIDE), 1);
        mpt_tensor loss = mpt_mean(mpt_forward(net, x), MPT_ALL_DIMS, false);
        mpt_release(x);
        held[fp8] = mpt_memory(context).current[MPT_MEMORY_ACTIVATION] - 4 * BATCH * WIDE;
        mpt_backward(loss);
        mpt_step_end(context);
        check_ok(context);
        mpt_destroy(context);
    }
    printf("\n  activations held for backward: fp32 %lld KiB, fp8 %lld KiB ",
           (long long)held[0] / 1024, (long long)held[1] / 1024);
    CHECK(held[1] <= held[0] / 4 + 3 * WIDE * WIDE + 1024); /* the weights' codes, the loss */
}

/* ---- backward ---- */

typedef struct linear_case {
    mpt_dtype dtype; /* of x */
    mpt_shape shape;
    bool bias, scaled; /* by what a step before has left */
} linear_case;

/* The sum of y times `up`, exactly. */
static double weighted_sum(mpt_module layer, const linear_case *c, const float *x,
                           const float *up) {
    float y[8 * N];
    double sum = 0;
    mpt_context *context = layer.context;
    int rows = (int)(c->shape.dim[0] * (c->shape.rank == 3 ? c->shape.dim[1] : 1));
    mpt_scope_begin(context);
    mpt_tensor in = mpt_cast(mpt_from(context, MPT_F32, c->shape, x), c->dtype);
    mpt_read_f32(mpt_forward(layer, in), y, rows * N);
    mpt_scope_end(context);
    for (int i = 0; i < rows * N; i++) sum += (double)y[i] * (double)up[i];
    return sum;
}

/* By differences of 1 in one of the values. */
static void check_slopes(mpt_module layer, const linear_case *c, float *x, const float *up,
                         mpt_tensor parameter, mpt_tensor gradient, const char *what) {
    float values[8 * K], got[8 * K];
    const int n = (int)mpt_numel(gradient);
    mpt_read_f32(gradient, got, n);
    if (parameter.slot) mpt_read_f32(parameter, values, n);
    for (int i = 0; i < n; i++) {
        double side[2];
        for (int s = 0; s < 2; s++) {
            float *value = parameter.slot ? &values[i] : &x[i], kept = *value;
            *value += s ? -1.0f : 1.0f;
            if (parameter.slot) mpt_write(parameter, values, (size_t)n * 4);
            side[s] = weighted_sum(layer, c, x, up);
            *value = kept;
        }
        if ((double)got[i] != (side[0] - side[1]) / 2)
            TEST_FAIL_("%s, %s %d: %g, by differences %g", mpt_dtype_name(c->dtype), what, i,
                       (double)got[i], (side[0] - side[1]) / 2);
    }
    if (parameter.slot) mpt_write(parameter, values, (size_t)n * 4);
}

/* Of numbers that fp8 has, the layer's function is linear, and differences are its gradients to the
   last bit. */
TEST(gradients_are_finite_differences) {
    const linear_case cases[] = {{MPT_F32, MPT_SHAPE(5, K), true, false},
                                 {MPT_F16, MPT_SHAPE(3, K), true, true},
                                 {MPT_BF16, MPT_SHAPE(2, K), false, false},
                                 {MPT_F32, MPT_SHAPE(2, 3, K), true, true},
                                 {MPT_F32, MPT_SHAPE(1, K), false, true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const linear_case *c = &cases[k];
        mpt_context *context = new_context(1);
        mpt_module layer = c->bias ? mpt_nn_linear(context, K, N)
                                   : mpt_nn_linear_no_bias(context, K, N);
        mpt_fp8(layer, NULL);
        float x[8 * K], w[N * K], b[N], up[8 * N], state[3 * 18];
        for (int i = 0; i < 8 * K; i++) x[i] = (float)((i * 7 + (int)k) % 9 - 4);
        for (int i = 0; i < N * K; i++) w[i] = (float)((i * 5 + (int)k) % 8 - 4);
        for (int i = 0; i < N; i++) b[i] = (float)(10 * i - 3);
        for (int i = 0; i < 8 * N; i++) up[i] = (float)((i * 3 + (int)k) % 7 - 3);
        mpt_write(mpt_parameter(layer, "weight"), w, sizeof w);
        if (c->bias) mpt_write(mpt_parameter(layer, "bias"), b, sizeof b);
        for (int step = !c->scaled; step < 2; step++) {
            mpt_shape made = c->shape;
            made.dim[made.rank - 1] = N;
            mpt_step_begin(context);
            mpt_clear_grad(mpt_parameter(layer, "weight"));
            if (c->bias) mpt_clear_grad(mpt_parameter(layer, "bias"));
            mpt_tensor in = mpt_cast(mpt_from(context, MPT_F32, c->shape, x), c->dtype);
            mpt_requires_grad(in, true);
            mpt_tensor dy = mpt_cast(mpt_from(context, MPT_F32, made, up), c->dtype);
            mpt_backward_from(mpt_forward(layer, in), dy, false);
            CHECK_EQ_INT(mpt_get_dtype(mpt_grad(in)), c->dtype);
            mpt_tensor weight = mpt_parameter(layer, "weight"), nothing = {context, 0, 0};
            check_slopes(layer, c, x, up, nothing, mpt_grad(in), "input");
            check_slopes(layer, c, x, up, weight, mpt_grad(weight), "weight");
            if (c->bias)
                check_slopes(layer, c, x, up, mpt_parameter(layer, "bias"),
                             mpt_grad(mpt_parameter(layer, "bias")), "bias");
            mpt_step_end(context);
        }
        read_state(layer, state);
        CHECK(state[0] == 64 && state[18] == 64);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Two batches through one layer in a step: magnitudes are those of both, gradients the sum, and
   what the first call saved is still its own. All numbers are such that fp8 has them. */
TEST(a_layer_may_run_twice_in_a_step) {
    float x[2][ROWS * K], dx[2][2][ROWS * K], dw[2][N * K], state[3 * 18];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        mpt_context *context = new_context(1);
        mpt_module layer = mpt_nn_linear_no_bias(context, K, N);
        mpt_set_init(layer, NULL, mpt_init_make(MPT_INIT_CONSTANT, 0.5, 0));
        if (fp8) mpt_fp8(layer, NULL);
        mpt_tensor in[2], out[2];
        mpt_step_begin(context);
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < ROWS * K; i++) x[k][i] = (float)(k ? i - 3 : 14 - 2 * i);
            in[k] = mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, K), x[k]);
            mpt_requires_grad(in[k], true);
            out[k] = mpt_forward(layer, in[k]);
        }
        mpt_tensor loss = mpt_add(mpt_mul_scalar(mpt_sum(out[0], MPT_ALL_DIMS, false), 4),
                                  mpt_sum(out[1], MPT_ALL_DIMS, false));
        mpt_backward(loss);
        for (int k = 0; k < 2; k++) mpt_read_f32(mpt_grad(in[k]), dx[fp8][k], ROWS * K);
        mpt_read_f32(mpt_grad(mpt_parameter(layer, "weight")), dw[fp8], N * K);
        mpt_step_end(context);
        if (fp8) read_state(layer, state);
        check_ok(context);
        mpt_destroy(context);
    }
    CHECK_EQ_BITS(dx[1], dx[0], sizeof dx[0]);
    CHECK_EQ_BITS(dw[1], dw[0], sizeof dw[0]);
    CHECK(state[2] == 14 && state[18 + 2] == 0.5f && state[36 + 2] == 4);
}

/* The layer computes in fp32 whatever region backward is called in, and whatever fp16 could not
   have summed. */
TEST(regions_around_backward_change_nothing) {
    enum { MANY = 4096 };
    float dw[2][N * K], db[2][N];
    for (int inside = 0; inside < 2; inside++) {
        mpt_context *context = new_context(1);
        mpt_module layer = mpt_nn_linear(context, K, N);
        mpt_fp8(layer, NULL);
        mpt_step_begin(context);
        mpt_autocast_begin(context, MPT_F16);
        mpt_tensor x = mpt_full(context, MPT_F32, MPT_SHAPE(MANY, K), 3);
        mpt_tensor y = mpt_forward(layer, x);
        CHECK_EQ_INT(mpt_get_dtype(y), MPT_F16);
        if (!inside) mpt_autocast_end(context);
        mpt_tensor dy = mpt_cast(mpt_full(context, MPT_F32, MPT_SHAPE(MANY, N), 48), MPT_F16);
        mpt_backward_from(y, dy, false);
        if (inside) mpt_autocast_end(context);
        mpt_read_f32(mpt_grad(mpt_parameter(layer, "weight")), dw[inside], N * K);
        mpt_read_f32(mpt_grad(mpt_parameter(layer, "bias")), db[inside], N);
        mpt_step_end(context);
        for (int i = 0; i < N; i++) CHECK(db[inside][i] == 48.0f * MANY);
        for (int i = 0; i < N * K; i++)
            CHECK_NEAR(dw[inside][i], 3 * 48.0f * MANY, 0);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Nor does the region around forward: with the scales of the second step, these products are 4,
   of factors that fp16 does not have. */
TEST(factors_may_leave_the_range_of_fp16) {
    mpt_context *context = new_context(1);
    mpt_module layer = new_layer(context, 1.0 / 1048576);
    float y[ROWS * N];
    for (int i = 0; i < 2; i++) {
        mpt_step_begin(context);
        mpt_autocast_begin(context, MPT_F16);
        mpt_tensor out = mpt_forward(layer, rows_of(context, 1048576, 1048576));
        mpt_autocast_end(context);
        mpt_read_f32(out, y, ROWS * N);
        mpt_step_end(context);
    }
    for (int i = 0; i < ROWS * N; i++) CHECK(y[i] == K);
    check_ok(context);
    mpt_destroy(context);
}

/* The largest magnitude is found wherever it is; scales are within 2^-100 and 2^100, and stay where
   all is zero. */
TEST(scales_of_what_is_extreme) {
    enum { MANY = 5000 };
    static float x[MANY * K];
    static const float most[] = {48, 1e-36f, 1e38f, 0};
    const float scales[] = {8, ldexpf(1, 100), ldexpf(1, -100), 1};
    for (int k = 0; k < 4; k++) {
        mpt_context *context = new_context(2);
        mpt_module layer = new_layer(context, 1);
        float state[3 * 18];
        for (int i = 0; i < MANY * K; i++) x[i] = most[k] / 4;
        x[100] = -most[k];
        mpt_step_begin(context);
        mpt_forward(layer, mpt_from(context, MPT_F32, MPT_SHAPE(MANY, K), x));
        mpt_step_end(context);
        read_state(layer, state);
        CHECK(state[0] == scales[k] && state[1] == 0 && state[2] == most[k]);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Copies of views are gone when the cast is done. */
TEST(casts_of_views_leave_nothing) {
    mpt_context *context = new_context(1);
    mpt_tensor x = mpt_ones(context, MPT_F32, MPT_SHAPE(64, 32)), y = mpt_transpose(x, 0, 1);
    int64_t held = mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
    mpt_tensor codes = mpt_cast_fp8(y, MPT_F8E4M3, true);
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_ACTIVATION], held + 64 * 32);
    mpt_release(codes);
    CHECK_EQ_INT(mpt_memory(context).current[MPT_MEMORY_ACTIVATION], held);
    check_ok(context);
    mpt_destroy(context);
}

/* A destroyed layer takes all that it had along; backward through what it computed still works, and
   notes no magnitudes: not with a layer that has come to its place, either. */
TEST(layers_go_without_a_trace) {
    int64_t grown[2];
    mpt_context *context = NULL;
    for (int fp8 = 0; fp8 < 2; fp8++) {
        mpt_destroy(context);
        context = new_context(1);
        for (int i = 0; i < 40; i++) {
            mpt_module layer = mpt_nn_linear_no_bias(context, K, N);
            if (fp8) mpt_fp8(layer, NULL);
            mpt_step_begin(context);
            mpt_backward(mpt_sum(mpt_forward(layer, rows_of(context, 1, 2)), MPT_ALL_DIMS, false));
            mpt_step_end(context);
            CHECK_EQ_INT(mpt_module_destroy(layer), MPT_OK);
            int64_t held = mpt_memory(context).current[MPT_MEMORY_HOST];
            grown[fp8] = i == 8 ? -held : i == 39 ? grown[fp8] + held : grown[fp8];
        }
    }
    CHECK_EQ_INT(grown[1], grown[0]); /* names of modules stay */
    for (int replaced = 0; replaced < 2; replaced++) {
        float dx[ROWS * K], state[3 * 18];
        mpt_module layer = new_layer(context, 2), next = layer;
        mpt_step_begin(context);
        mpt_tensor x = rows_of(context, 1, 2);
        mpt_requires_grad(x, true);
        mpt_tensor loss = mpt_sum(mpt_forward(layer, x), MPT_ALL_DIMS, false);
        CHECK_EQ_INT(mpt_module_destroy(layer), MPT_OK);
        if (replaced) {
            next = new_layer(context, 1);
            CHECK_EQ_INT(next.slot, layer.slot);
            mpt_tensor own = mpt_buffer(next, "fp8_state");
            for (int i = 0; i < 3 * 18; i++) state[i] = (float)i;
            CHECK_EQ_INT(mpt_write(own, state, sizeof state), MPT_OK);
        }
        CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
        mpt_read_f32(mpt_grad(x), dx, ROWS * K);
        for (int i = 0; i < ROWS * K; i++) CHECK(dx[i] == 2 * N);
        mpt_step_end(context);
        if (replaced) {
            read_state(next, state);
            for (int i = 0; i < 3 * 18; i++) CHECK(state[i] == (float)i);
            mpt_module_destroy(next);
        }
    }
    check_ok(context);
    mpt_destroy(context);
}

/* ---- training ---- */

enum { IN = 24, HIDDEN = 300, OUT = 3, BATCH = 16 };

typedef struct fp8_run {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
} fp8_run;

static fp8_run training_on(mpt_context *context) {
    fp8_run t;
    t.context = context;
    t.net = new_net(t.context, IN, HIDDEN, OUT, 4, 0);
    t.optimizer = mpt_adamw(t.net, NULL);
    t.scaler = mpt_grad_scaler(t.context, NULL);
    return t;
}

static fp8_run new_training(int threads) { return training_on(new_context(threads)); }

static mpt_tensor loss_of(const fp8_run *t, int step, float factor) {
    float x[BATCH * IN];
    int64_t y[BATCH];
    for (int i = 0; i < BATCH; i++) {
        y[i] = (i + step) % OUT;
        for (int k = 0; k < IN; k++)
            x[i * IN + k] = factor * ((k % OUT == y[i] ? 1.0f : 0.0f) +
                                      (float)((i * 31 + k * 17) % 8) / 16);
    }
    mpt_autocast_begin(t->context, MPT_F16);
    mpt_tensor in = mpt_from(t->context, MPT_F32, MPT_SHAPE(BATCH, IN), x);
    mpt_tensor target = mpt_from(t->context, MPT_I64, MPT_SHAPE(BATCH), y);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(t->net, in), target, NULL);
    mpt_autocast_end(t->context);
    return loss;
}

static double run_step(const fp8_run *t, int step, float factor) {
    mpt_step_begin(t->context);
    mpt_zero_grad(t->optimizer);
    mpt_tensor loss = loss_of(t, step, factor);
    double value = mpt_item(loss);
    mpt_backward(mpt_scale_loss(t->scaler, loss));
    mpt_scaler_step(t->scaler, t->optimizer);
    mpt_scaler_update(t->scaler);
    mpt_step_end(t->context);
    return value;
}

static uint64_t hash_of(const fp8_run *t) {
    return mpt_module_hash(t->net) ^ mpt_optimizer_hash(t->optimizer);
}

TEST(trains_with_autocast_and_scaler) {
    fp8_run t = new_training(1);
    double first = run_step(&t, 0, 1), last = 0;
    int64_t allocations = 0;
    for (int i = 1; i < 60; i++) {
        if (i == 10) allocations = mpt_memory(t.context).allocations;
        last = run_step(&t, i, 1);
    }
    printf("\n  loss %.4f, after 60 steps %.4f ", first, last);
    CHECK(last < 0.1 * first);
    CHECK_EQ_INT(mpt_memory(t.context).allocations, allocations); /* the steady state has none */
    check_ok(t.context);
    mpt_destroy(t.context);
}

TEST(threads_make_no_difference) {
    uint64_t hash[2];
    for (int i = 0; i < 2; i++) {
        fp8_run t = new_training(1 + 2 * i);
        for (int k = 0; k < 4; k++) run_step(&t, k, 1);
        hash[i] = hash_of(&t);
        check_ok(t.context);
        mpt_destroy(t.context);
    }
    CHECK(hash[0] == hash[1]);
}

/* An error in a step takes its magnitudes along: after mpt_clear_error all goes on as without
   it. What a queued device finds is known after the step's end, with its magnitudes in. */
TEST(errors_leave_no_trace) {
    const int ways = mpt_device_count(MPT_DEVICE_CUDA) > 0 ? 2 : 3;
    uint64_t hash[3];
    for (int fails = 0; fails < ways; fails++) {
        fp8_run t = new_training(1);
        for (int k = 0; k < 4; k++) {
            if (fails == 2 && k == 2) { /* a target out of range */
                int64_t bad[1] = {OUT};
                mpt_step_begin(t.context);
                mpt_tensor x = mpt_full(t.context, MPT_F32, MPT_SHAPE(1, IN), 1000);
                mpt_tensor target = mpt_from(t.context, MPT_I64, MPT_SHAPE(1), bad);
                mpt_backward(mpt_cross_entropy(mpt_forward(t.net, x), target, NULL));
                mpt_step_end(t.context);
                mpt_synchronize(t.context);
                CHECK(mpt_failed(t.context));
                mpt_clear_error(t.context);
            }
            if (fails == 1 && k == 2) {
                mpt_step_begin(t.context);
                mpt_backward(loss_of(&t, 7, 100));
                mpt_reshape(mpt_parameter(t.net, "0.bias"), MPT_SHAPE(7));
                CHECK_EQ_INT(mpt_error_code(t.context), MPT_ERROR_SHAPE);
                mpt_clear_error(t.context);
            }
            run_step(&t, k, 1);
        }
        hash[fails] = hash_of(&t);
        check_ok(t.context);
        mpt_destroy(t.context);
    }
    CHECK(hash[0] == hash[1] && hash[0] == hash[ways - 1]);
}

/* An allocation that fails, wherever it is, leaves nothing open, held or counted. */
TEST(memory_may_run_out) {
    NEEDS_PROMPT_DEVICE; /* whose memory is the arena's */
    arena memory;
    uint64_t hash[2];
    for (int fails = 0; fails < 2; fails++) {
        mpt_config c = mpt_config_default();
        c.threads = 1;
        arena_use(&memory, &c);
        fp8_run t = training_on(mpt_create(&c));
        int64_t failed = 0;
        run_step(&t, 0, 1);
        for (int k = 1; k < 80 && fails; k++) {
            mpt_memory_trim(t.context);
            memory.fail_at = memory.calls + k, memory.failures = INT64_MAX / 2;
            mpt_step_begin(t.context);
            mpt_backward(loss_of(&t, 7, 100));
            memory.fail_at = 0;
            if (!mpt_failed(t.context)) break;
            failed++;
            mpt_clear_error(t.context);
            CHECK_EQ_INT(mpt_memory(t.context).current[MPT_MEMORY_ACTIVATION], 0);
        }
        if (fails) {
            CHECK(failed > 20 && failed < 79);
            mpt_step_begin(t.context); /* one is open: an error, which takes its magnitudes along */
            mpt_clear_error(t.context);
        }
        for (int k = 1; k < 4; k++) run_step(&t, k, 1);
        hash[fails] = hash_of(&t);
        check_ok(t.context);
        mpt_destroy(t.context);
        CHECK_EQ_INT(memory.live, 0);
        CHECK_EQ_INT(memory.torn, 0);
    }
    CHECK(hash[0] == hash[1]);
}

static mpt_status plain_step(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    const fp8_run *t = (const fp8_run *)user;
    mpt_step_begin(context);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_cross_entropy(mpt_forward(t->net, x), y, NULL));
    mpt_step(t->optimizer);
    return mpt_step_end(context);
}

/* Scales are on the device: a captured step goes on moving them. */
TEST(captured_steps_scale) {
    uint64_t hash[2];
    for (int captures = 0; captures < 2; captures++) {
        fp8_run t = new_training(1);
        mpt_captured captured = mpt_capture(t.context, plain_step, &t);
        for (int k = 0; k < 6; k++) {
            mpt_tensor x = mpt_full(t.context, MPT_F32, MPT_SHAPE(BATCH, IN), 1 << k);
            mpt_tensor y = mpt_zeros(t.context, MPT_I64, MPT_SHAPE(BATCH));
            if (captures)
                mpt_captured_step(captured, x, y);
            else
                plain_step(t.context, &t, x, y);
            mpt_release(x), mpt_release(y);
        }
        hash[captures] = hash_of(&t);
        check_ok(t.context);
        mpt_destroy(t.context);
    }
    CHECK(hash[0] == hash[1]);
}

/* ---- state ---- */

TEST(files_and_copies_have_the_state) {
    fp8_run t = new_training(1);
    const char *path = test_tmp_path("net.safetensors");
    for (int k = 0; k < 3; k++) run_step(&t, k, 1);
    CHECK_EQ_INT(mpt_save(t.net, path), MPT_OK);
    mpt_module copy = new_net(t.context, IN, HIDDEN, OUT, 4, 0);
    mpt_module loaded = new_net(t.context, IN, HIDDEN, OUT, 4, 0);
    CHECK_EQ_INT(mpt_copy_module(copy, t.net), MPT_OK);
    CHECK_EQ_INT(mpt_load(loaded, path, NULL, NULL), MPT_OK);
    CHECK(mpt_module_hash(copy) == mpt_module_hash(t.net));
    CHECK(mpt_module_hash(loaded) == mpt_module_hash(t.net));
    char text[4096];
    mpt_summary(t.net, text, sizeof text);
    CHECK_CONTAINS(text, "fp8_state");
    CHECK_EQ_INT(mpt_refused_updates(t.net), 0);
    mpt_module plain =
        mpt_sequential(t.context, mpt_nn_linear(t.context, IN, HIDDEN), mpt_nn_relu(t.context),
                       mpt_nn_linear(t.context, HIDDEN, OUT), MPT_END);
    mpt_load_config loose = mpt_load_config_default();
    loose.strict = false;
    CHECK_EQ_INT(mpt_load(plain, path, &loose, NULL), MPT_OK); /* fp8 off: the same names */
    check_ok(t.context);
    mpt_destroy(t.context);
    remove(path);
}

/* Weights in bf16 and views as inputs are read as they are. */
TEST(halves_views_and_more_dimensions) {
    mpt_context *context = new_context(1);
    mpt_module layer = new_layer(context, 0.5), half = new_layer(context, 0.5);
    mpt_half(half, MPT_BF16);
    float x[2 * K * 3], y[2][2 * 3 * N];
    for (int i = 0; i < 2 * K * 3; i++) x[i] = (float)(i % 7) - 3;
    mpt_step_begin(context);
    mpt_tensor base = mpt_from(context, MPT_F32, MPT_SHAPE(2, K, 3), x);
    mpt_tensor view = mpt_transpose(base, 1, 2); /* [2, 3, K] */
    mpt_tensor out = mpt_forward(layer, view);
    CHECK_EQ_INT(mpt_get_shape(out).rank, 3);
    mpt_read_f32(out, y[0], 2 * 3 * N);
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 3; k++) {
            float sum = 0;
            for (int j = 0; j < K; j++) sum += 0.5f * x[(i * K + j) * 3 + k];
            CHECK(y[0][(i * 3 + k) * N] == sum);
        }
    mpt_tensor low = mpt_forward(half, mpt_cast(view, MPT_BF16));
    CHECK_EQ_INT(mpt_get_dtype(low), MPT_BF16);
    mpt_read_f32(low, y[1], 2 * 3 * N);
    CHECK_EQ_BITS(y[1], y[0], sizeof y[0]);
    mpt_backward(mpt_sum(mpt_cast(low, MPT_F32), MPT_ALL_DIMS, false));
    CHECK(mpt_has_grad(mpt_parameter(half, "weight")));
    mpt_step_end(context);
    check_ok(context);
    mpt_destroy(context);
}

/* ---- misuse ---- */

TEST(misuse_is_named) {
    mpt_context *context = new_context(1);
    mpt_fp8_config config = mpt_fp8_config_default();
    mpt_module layer = mpt_nn_linear(context, K, N), plain = mpt_nn_relu(context);
    config.history = 0;
    mpt_fp8(layer, &config);
    check_error(context, MPT_ERROR_ARGUMENT, "history = 0");
    config = mpt_fp8_config_default(), config.margin = -1;
    mpt_fp8(layer, &config);
    check_error(context, MPT_ERROR_ARGUMENT, "margin = -1");
    mpt_fp8(plain, NULL);
    check_error(context, MPT_ERROR_ARGUMENT, "no linear layer");
    mpt_fp8(layer, NULL);
    config = mpt_fp8_config_default(), config.history = 4;
    CHECK_EQ_INT(mpt_fp8(layer, &config), MPT_OK); /* again: nothing new */
    CHECK_EQ_INT(mpt_get_shape(mpt_buffer(layer, "fp8_state")).dim[1], 18);
    mpt_forward(layer, mpt_zeros(context, MPT_F32, MPT_SHAPE(K, N)));
    check_error(context, MPT_ERROR_SHAPE, "input [4, 3] does not fit weight [3, 4]");
    mpt_forward(layer, mpt_zeros(context, MPT_I64, MPT_SHAPE(N, K)));
    check_error(context, MPT_ERROR_DTYPE, "the input is int64");
    mpt_fp8(layer, NULL);
    check_error(context, MPT_ERROR_STATE, "the tree is in use");
    mpt_cast_fp8(mpt_zeros(context, MPT_F32, MPT_SHAPE(2)), MPT_F16, true);
    check_error(context, MPT_ERROR_DTYPE, "expected MPT_F8E4M3");
    mpt_cast_fp8(mpt_zeros(context, MPT_I64, MPT_SHAPE(2)), MPT_F8E4M3, true);
    check_error(context, MPT_ERROR_DTYPE, "argument 1 is int64");
    CHECK_EQ_INT(mpt_forward(layer, mpt_zeros(context, MPT_F32, MPT_SHAPE(0, K))).slot != 0, 1);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(as_pytorch),
              T(overflow_and_nan),
              T(evaluation_leaves_the_state),
              T(activations_take_a_byte),
              T(gradients_are_finite_differences),
              T(a_layer_may_run_twice_in_a_step),
              T(regions_around_backward_change_nothing),
              T(factors_may_leave_the_range_of_fp16),
              T(scales_of_what_is_extreme),
              T(casts_of_views_leave_nothing),
              T(layers_go_without_a_trace),
              T(trains_with_autocast_and_scaler),
              T(threads_make_no_difference),
              T(errors_leave_no_trace),
              T(memory_may_run_out),
              T(captured_steps_scale),
              T(files_and_copies_have_the_state),
              T(halves_views_and_more_dimensions),
              T(misuse_is_named)};
TEST_MAIN
