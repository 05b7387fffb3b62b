/* api_kernel.c: an op whose forward and backward launch CUDA kernels of the program's own
   (kernel.cu): a net learns by it what it learns by ops of the library, to the bit;
   what is refused. Run by suite.sh; without a GPU the tests say that they skip. */
#include MPTRAIN_HEADER_FILE
#include "../harness.h"

enum { ROWS = 8, IN = 6, HIDDEN = 40, KINDS = 3, STEPS = 6 };

#ifdef __cplusplus
extern "C" {
#endif
mpt_op squared_relu(mpt_context *ctx), wrong_launch(mpt_context *ctx);
mpt_status double_it(mpt_tensor x);
#ifdef __cplusplus
}
#endif

static mpt_context *gpu(bool debug) {
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CUDA;
    config.seed = 3, config.threads = 1, config.debug = debug;
    return mpt_create(&config);
}
#define NEEDS_A_GPU(c) \
    if (!(c)) SKIP("a GPU")

/* ==== The op, in a module ==== */

typedef struct way {
    mpt_op op; /* null: of the library's ops */
} way;

static mpt_status middle(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    const way *w = (const way *)user;
    (void)self, (void)n_in, (void)n_out;
    if (w->op.slot) return mpt_op_apply(w->op, in, 1, out, 1);
    mpt_tensor r = mpt_relu(mpt_cast(in[0], MPT_F32));
    out[0] = mpt_mul(r, r);
    return mpt_error_code(r.context);
}

static mpt_module net_of(mpt_context *c, way *w) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "middle", cls.forward = middle, cls.n_inputs = cls.n_outputs = 1;
    return mpt_sequential(c, mpt_nn_linear(c, IN, HIDDEN), mpt_module_create(c, &cls, w),
                          mpt_nn_linear(c, HIDDEN, KINDS), MPT_END);
}

static mpt_tensor some(mpt_context *c, int number) {
    float values[ROWS * IN];
    for (int i = 0; i < ROWS * IN; i++)
        values[i] = (float)((i * 37 + number * 11) % 101 - 50) / 40.0f;
    return mpt_from(c, MPT_F32, MPT_SHAPE(ROWS, IN), values);
}

static mpt_status train_step(mpt_context *c, mpt_module net, mpt_optimizer opt, mpt_dtype precision,
                             int number) {
    int64_t targets[ROWS];
    for (int i = 0; i < ROWS; i++) targets[i] = (i + number) % KINDS;
    mpt_step_begin(c);
    mpt_autocast_begin(c, precision);
    mpt_tensor y = mpt_forward(net, some(c, number));
    mpt_tensor loss = mpt_cross_entropy(y, mpt_from(c, MPT_I64, MPT_SHAPE(ROWS), targets), NULL);
    mpt_autocast_end(c);
    mpt_zero_grad(opt);
    mpt_backward(loss);
    mpt_step(opt);
    return mpt_step_end(c);
}

TEST(a_net_learns_the_same_bits) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_BF16};
    for (int p = 0; p < 4; p++) {
        uint64_t hash[2], start = 0;
        for (int own = 0; own < 2; own++) {
            mpt_context *c = gpu(p > 1);
            NEEDS_A_GPU(c);
            way w;
            memset(&w, 0, sizeof w);
            if (own) w.op = squared_relu(c);
            mpt_module net = net_of(c, &w);
            mpt_optimizer opt = mpt_adamw(net, NULL);
            start = mpt_module_hash(net);
            for (int i = 0; i < STEPS; i++) train_step(c, net, opt, precisions[p % 2], i);
            hash[own] = mpt_module_hash(net);
            CHECK_EQ_STR(mpt_error(c), "");
            mpt_destroy(c);
        }
        CHECK(hash[0] == hash[1] && hash[0] != start);
    }
}

TEST(its_gradient_is_right) {
    mpt_context *c = gpu(false);
    NEEDS_A_GPU(c);
    mpt_op op = squared_relu(c);
    const float values[6] = {-2, -0.5f, 0, 0.5f, 1, 3};
    const float want[6] = {0, 0, 0, 0.25f, 1, 9}, slope[6] = {0, 0, 0, 2, 8, 36};
    float got[6];
    mpt_tensor x = mpt_keep(mpt_from(c, MPT_F32, MPT_SHAPE(3, 2), values)), y;
    mpt_requires_grad(x, true);
    mpt_tensor turned = mpt_transpose(x, 0, 1); /* whose elements are not in order */
    CHECK_EQ_INT(mpt_op_apply(op, &turned, 1, &y, 1), MPT_OK);
    mpt_read_f32(mpt_contiguous(mpt_transpose(y, 0, 1)), got, 6);
    CHECK_EQ_BITS(got, want, sizeof want);
    const float weights[6] = {1, 1, 4, 1, 2, 6}; /* as y lies */
    mpt_backward(
        mpt_sum(mpt_mul(y, mpt_from(c, MPT_F32, MPT_SHAPE(2, 3), weights)), MPT_ALL_DIMS, false));
    mpt_read_f32(mpt_grad(x), got, 6);
    CHECK_EQ_BITS(got, slope, sizeof slope);
    CHECK_EQ_INT(double_it(mpt_detach(x)), MPT_OK); /* and what comes later sees it */
    mpt_read_f32(mpt_mul_scalar(x, 1), got, 6);
    for (int i = 0; i < 6; i++) CHECK(got[i] == 2 * values[i]);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== What is refused ==== */

TEST(a_saved_value_that_a_kernel_changed) {
    mpt_context *c = gpu(false);
    NEEDS_A_GPU(c);
    mpt_tensor x = some(c, 1), w = mpt_ones(c, MPT_F32, MPT_SHAPE(ROWS, IN));
    mpt_requires_grad(w, true);
    mpt_tensor y = mpt_mul(x, w);
    double_it(x);
    CHECK(mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false)) != MPT_OK);
    CHECK_CONTAINS(mpt_error(c), "changed in place");
    mpt_destroy(c);
}

static mpt_status captured(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)y;
    mpt_step_begin(c);
    double_it(mpt_mul_scalar(x, 1));
    return mpt_step_end(c);
}

TEST(where_there_is_no_place) {
    mpt_context *c = gpu(false);
    NEEDS_A_GPU(c);
    mpt_tensor x = mpt_keep(some(c, 1));
    CHECK(mpt_device_data(mpt_transpose(x, 0, 1), false) == NULL);
    CHECK_CONTAINS(mpt_error(c), "mpt_contiguous gives them so");
    mpt_clear_error(c);
    CHECK(mpt_device_data(mpt_slice(x, 1, 0, 2, 1), true) == NULL);
    CHECK_CONTAINS(mpt_error(c), "mpt_copy_ writes one back");
    mpt_clear_error(c);
    const char *whole = (const char *)mpt_device_data(x, false);
    const char *row = (const char *)mpt_device_data(mpt_slice(x, 0, 2, 4, 1), false);
    CHECK(row - whole == 2 * IN * (int)sizeof(float));
    mpt_record_begin(c);
    CHECK(mpt_device_stream(c) == NULL);
    CHECK_CONTAINS(mpt_error(c), "neither captured steps nor recordings can repeat it");
    mpt_clear_error(c);
    mpt_captured step = mpt_capture(c, captured, NULL);
    CHECK_EQ_INT(mpt_captured_step(step, x, mpt_null_tensor()), MPT_OK); /* by hand */
    CHECK_EQ_INT(mpt_captured_step(step, x, mpt_null_tensor()), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(mpt_error(c), "neither captured steps nor recordings can repeat it");
    mpt_clear_error(c);
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CPU;
    mpt_context *cpu = mpt_create(&config);
    CHECK(mpt_device_stream(cpu) == NULL);
    CHECK_CONTAINS(mpt_error(cpu), "this context computes on the CPU");
    mpt_clear_error(cpu);
    CHECK(mpt_device_data(mpt_ones(cpu, MPT_F32, MPT_SCALAR), false) == NULL);
    CHECK_EQ_INT(mpt_error_code(cpu), MPT_ERROR_UNSUPPORTED);
    mpt_destroy(cpu);
    CHECK(mpt_device_stream(c) != NULL);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(a_launch_that_goes_wrong) {
    mpt_context *c = gpu(false);
    NEEDS_A_GPU(c);
    mpt_op op = wrong_launch(c);
    mpt_tensor x = mpt_keep(some(c, 1)), y;
    CHECK_EQ_INT(mpt_op_apply(op, &x, 1, &y, 1), MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(c), "op too_large: ");
    mpt_clear_error(c);
    way w = {squared_relu(c)}; /* what is left works */
    mpt_module net = net_of(c, &w);
    CHECK_EQ_INT(train_step(c, net, mpt_sgd(net, NULL), MPT_F32, 1), MPT_OK);
    mpt_destroy(c);
}

TEST(anomaly_mode_passes_over_it) {
    mpt_context *c = gpu(false);
    NEEDS_A_GPU(c);
    way w = {squared_relu(c)};
    mpt_module net = net_of(c, &w);
    mpt_optimizer opt = mpt_sgd(net, NULL);
    mpt_error_if_nonfinite(opt, false);
    mpt_fill_(mpt_detach(mpt_parameter(net, "2.weight")), 3e38);
    mpt_anomaly_mode(c, true);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(train_step(c, net, opt, MPT_F32, i), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST_TABLE = {T(a_net_learns_the_same_bits),
              T(its_gradient_is_right),
              T(a_saved_value_that_a_kernel_changed),
              T(where_there_is_no_place),
              T(a_launch_that_goes_wrong),
              T(anomaly_mode_passes_over_it)};
TEST_MAIN
