/* api_check.c - statistics of tensors and nets, gradients against small changes, the report of what
   could differ. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

#include <math.h>

static mpt_context *make_context(arena *a, mpt_isa isa) {
    mpt_config config = mpt_config_default();
    config.isa = isa;
    config.threads = 1;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

/* ==== Statistics ==== */

TEST(statistics_of_known_numbers) {
    const float inf = (float)INFINITY;
    const float values[] = {0, -0.0f, 1, -3, 2.5f, (float)NAN, inf, -inf, 1e-30f, 1e30f};
    mpt_context *c = make_context(NULL, MPT_ISA_AUTO);
    mpt_tensor_stats s = mpt_statistics(mpt_from(c, MPT_F32, MPT_SHAPE(2, 5), values));
    CHECK_EQ_INT(s.count, 10);
    CHECK_EQ_INT(s.zeros, 2);
    CHECK_EQ_INT(s.nans, 1);
    CHECK_EQ_INT(s.infinities, 2);
    CHECK_EQ_INT(s.binade[-MPT_BINADE_FIRST], 1);     /* 1 */
    CHECK_EQ_INT(s.binade[-MPT_BINADE_FIRST + 1], 2); /* -3 and 2.5 */
    CHECK_EQ_INT(s.binade[0], 1);                     /* 1e-30 */
    CHECK_EQ_INT(s.binade[MPT_BINADES - 1], 1);       /* 1e30 */
    CHECK_CLOSE(s.max, 1e30, 1e-6, 0);
    CHECK_NEAR(s.min, -3, 0);

    s = mpt_statistics(mpt_from(c, MPT_F32, MPT_SHAPE(3), values + 2));
    CHECK_NEAR(s.mean, 0.5 / 3, 1e-12);
    CHECK_NEAR(s.deviation, sqrt((1 + 9 + 6.25) / 3 - 0.25 / 9), 1e-12);
    const int64_t whole[] = {4, 4, 8, 0};
    s = mpt_statistics(mpt_from(c, MPT_I64, MPT_SHAPE(4), whole));
    CHECK_NEAR(s.mean, 4, 0);
    CHECK_NEAR(s.deviation, sqrt(8), 1e-12);
    s = mpt_statistics(mpt_zeros(c, MPT_F16, MPT_SHAPE(0)));
    CHECK_EQ_INT(s.count, 0);
    CHECK(s.min != s.min && s.mean != s.mean && s.deviation != s.deviation);
    s = mpt_statistics(mpt_full(c, MPT_F32, MPT_SHAPE(2), NAN));
    CHECK_EQ_INT(s.nans, 2);
    CHECK(s.max != s.max && s.mean != s.mean);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(histogram_counts_what_lies_inside) {
    const float values[] = {-1,    0, 0.24f, 0.25f,      0.5f,
                            0.99f, 1, 1.01f, (float)NAN, (float)INFINITY};
    int64_t counts[4];
    mpt_context *c = make_context(NULL, MPT_ISA_AUTO);
    mpt_tensor x = mpt_from(c, MPT_F32, MPT_SHAPE(10), values);
    CHECK_EQ_INT(mpt_histogram(x, 0, 1, counts, 4), MPT_OK);
    CHECK_EQ_INT(counts[0], 2);
    CHECK_EQ_INT(counts[1], 1);
    CHECK_EQ_INT(counts[2], 1);
    CHECK_EQ_INT(counts[3], 2); /* the upper end counts */
    mpt_destroy(c);
}

TEST(histograms_of_a_net_and_its_gradients) {
    static char text[4096];
    arena a;
    mpt_context *c = make_context(&a, MPT_ISA_AUTO);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 3, 4), mpt_nn_linear(c, 4, 2), MPT_END);
    mpt_set_init(net, "0.weight", mpt_init_make(MPT_INIT_CONSTANT, 1e-9, 0));
    mpt_set_init(net, "0.bias", mpt_init_make(MPT_INIT_ZEROS, 0, 0));
    const size_t length = mpt_histograms(net, false, text, sizeof text);
    CHECK_EQ_INT(length, strlen(text));
    CHECK_CONTAINS(text, "\n0.weight                 1e-09      1e-09      1e-09      ");
    CHECK_CONTAINS(text, " 0          100        |");
    /* the bias: zeros, no ink */
    CHECK_CONTAINS(text, " 100        0          |                |\n");
    CHECK_EQ_INT(mpt_histograms(net, false, NULL, 0), length);
    mpt_histograms(net, true, text, sizeof text);
    CHECK_CONTAINS(text, "\n1.bias none\n");
    mpt_backward(
        mpt_sum(mpt_forward(net, mpt_ones(c, MPT_F32, MPT_SHAPE(5, 3))), MPT_ALL_DIMS, false));
    mpt_histograms(mpt_child(net, "1"), true, text, sizeof text);
    CHECK_CONTAINS(text, "\nbias                     5          5          5          0");
    mpt_histograms(net, true, text, 20);
    CHECK_EQ_INT(strlen(text), 19);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* ==== Gradients ==== */

static mpt_tensor smooth(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    (void)c, (void)user, (void)n_in;
    return mpt_tanh(mpt_matmul(mpt_exp(in[0]), mpt_sin(in[1])));
}

static mpt_tensor selected(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    (void)c, (void)user, (void)n_in;
    return mpt_mul(mpt_index_select(in[0], 0, in[1]), mpt_index_select(in[0], 0, in[1]));
}

static mpt_status square(mpt_op_call *call, void *user) {
    (void)user;
    mpt_tensor x = mpt_op_input(call, 0);
    mpt_op_save(call, 0, x);
    return mpt_op_set_output(call, 0, mpt_mul(x, x));
}
static mpt_status square_backward(mpt_op_call *call, void *user) {
    const double factor = *(const double *)user;
    mpt_tensor slope = mpt_mul_scalar(mpt_op_saved(call, 0), factor);
    return mpt_op_set_input_grad(call, 0, mpt_mul(slope, mpt_op_output_grad(call, 0)));
}
static mpt_tensor by_op(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    mpt_tensor out;
    (void)c;
    mpt_op_apply(*(mpt_op *)user, in, n_in, &out, 1);
    return out;
}
static mpt_tensor nothing(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    (void)user, (void)n_in;
    mpt_matmul(in[0], mpt_zeros(c, MPT_F32, MPT_SHAPE(77, 2)));
    return in[0];
}

TEST(gradients_that_are_right) {
    const int64_t rows[] = {2, 0, 2};
    arena a;
    mpt_context *c = make_context(&a, MPT_ISA_AUTO);
    mpt_tensor in[2];
    in[0] = mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3)), in[1] = mpt_randn(c, MPT_F32, MPT_SHAPE(3, 4));
    CHECK_EQ_INT(mpt_gradcheck(c, smooth, NULL, in, 2, NULL), MPT_OK);
    in[1] = mpt_from(c, MPT_I64, MPT_SHAPE(3), rows);
    in[0] = mpt_transpose(mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3)), 0, 1);
    CHECK_EQ_INT(mpt_gradcheck(c, selected, NULL, in, 2, NULL), MPT_OK);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

TEST(an_op_with_a_wrong_backward_is_found) {
    double factor = 2.0;
    mpt_op_class cls = {"square", MPT_AUTOCAST_INPUT, square, square_backward, 1, 1};
    mpt_context *c = make_context(NULL, MPT_ISA_AUTO);
    mpt_op op = mpt_op_register(c, &cls, &factor);
    mpt_tensor x = mpt_full(c, MPT_F32, MPT_SHAPE(2, 2), 3.0);
    CHECK_EQ_INT(mpt_gradcheck(c, by_op, &op, &x, 1, NULL), MPT_OK);
    factor = 2.2;
    CHECK_EQ_INT(mpt_gradcheck(c, by_op, &op, &x, 1, NULL), MPT_ERROR_NUMERIC);
    CHECK_CONTAINS(mpt_error(c), "mpt_gradcheck (call ");
    CHECK_CONTAINS(mpt_error(c), "input 0, element 0: backward gives ");
    mpt_clear_error(c);
    mpt_gradcheck_config loose = mpt_gradcheck_config_default();
    loose.rtol = 0.2;
    x = mpt_full(c, MPT_F32, MPT_SHAPE(2, 2), 3.0);
    CHECK_EQ_INT(mpt_gradcheck(c, by_op, &op, &x, 1, &loose), MPT_OK);
    CHECK_EQ_INT(mpt_gradcheck(c, nothing, NULL, &x, 1, NULL),
                 MPT_ERROR_SHAPE); /* fn's own error */
    mpt_destroy(c);
}

/* ==== What could differ ==== */

TEST(determinism_is_told) {
    char text[1024];
    mpt_context *c = make_context(NULL, MPT_ISA_REF);
    const size_t length = mpt_determinism(c, text, sizeof text);
    CHECK_EQ_INT(length, strlen(text));
    CHECK_CONTAINS(text, "seed 0; every op gives the same bits in every run");
    if (mpt_get_device(c) == MPT_DEVICE_CPU) CHECK(strstr(text, "kernels") == NULL);
    mpt_destroy(c);
    c = make_context(NULL, MPT_ISA_AUTO);
    mpt_determinism(c, text, sizeof text);
    if (mpt_get_isa(c) > MPT_ISA_REF) CHECK_CONTAINS(text, mpt_isa_name(mpt_get_isa(c)));
    mpt_benchmark(c, true, true);
    mpt_determinism(c, text, sizeof text);
    if (mpt_get_device(c) == MPT_DEVICE_CUDA) CHECK_CONTAINS(text, "chose by timing");
    if (mpt_get_device(c) == MPT_DEVICE_CUDA) CHECK_CONTAINS(text, "TF32");
    mpt_destroy(c);
}

TEST_TABLE = {T(statistics_of_known_numbers),           T(histogram_counts_what_lies_inside),
              T(histograms_of_a_net_and_its_gradients), T(gradients_that_are_right),
              T(an_op_with_a_wrong_backward_is_found),  T(determinism_is_told)};
TEST_MAIN
