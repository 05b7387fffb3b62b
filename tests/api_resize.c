/* api_resize.c: images of another size: wide ones against the formula, any number of threads, the
   layer, strides, gradients that add up. PyTorch's own results stand in golden/more.bin. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"

static mpt_context *context;

static bool begin(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = 2;
    context = mpt_create(&config);
    return context != NULL;
}

static void end(void) {
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* The two neighbours of a place before, and the share of the second. */
static void neighbours(int at, int from, int to, bool corners, int pair[2], double *share) {
    double step = corners ? (double)(from - 1) / (to - 1) : (double)from / to;
    double x = corners ? at * step : (at + 0.5) * step - 0.5;
    if (x < 0) x = 0;
    pair[0] = (int)x < from ? (int)x : from - 1;
    pair[1] = pair[0] < from - 1 ? pair[0] + 1 : pair[0];
    *share = pair[1] > pair[0] ? x - pair[0] : 0;
}

/* Rows longer than any block of a kernel. */
TEST(wide_images) {
    enum { ROWS = 3, WIDE = 700, TALL = 5, WIDER = 2600 };
    static float x[ROWS * WIDE], y[TALL * WIDER];
    REQUIRE(begin(1));
    for (int i = 0; i < ROWS * WIDE; i++) x[i] = (float)(i * 37 % 101) / 50 - 1;
    mpt_tensor in = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, ROWS, WIDE), x);
    for (int corners = 0; corners < 2; corners++) {
        double worst = 0;
        mpt_read_f32(mpt_interpolate(in, MPT_SHAPE(TALL, WIDER), 0, MPT_BILINEAR, corners != 0), y,
                     TALL * WIDER);
        for (int i = 0; i < TALL * WIDER; i++) {
            int row[2], column[2];
            double down, across;
            neighbours(i / WIDER, ROWS, TALL, corners != 0, row, &down);
            neighbours(i % WIDER, WIDE, WIDER, corners != 0, column, &across);
            double want = 0;
            for (int k = 0; k < 4; k++)
                want += (k & 2 ? down : 1 - down) * (k & 1 ? across : 1 - across) *
                        (double)x[row[k >> 1] * WIDE + column[k & 1]];
            if (fabs(want - (double)y[i]) > worst) worst = fabs(want - (double)y[i]);
        }
        CHECK(worst < 1e-3); /* places themselves are rounded to fp32 */
    }
    mpt_read_f32(mpt_interpolate(in, MPT_SHAPE(TALL, WIDER), 0, MPT_NEAREST, false), y,
                 TALL * WIDER);
    for (int i = 0; i < TALL * WIDER; i++) {
        int row = i / WIDER * ROWS / TALL, column = (int)((int64_t)(i % WIDER) * WIDE / WIDER);
        bool near_edge = (int64_t)(i % WIDER) * WIDE % WIDER == 0;
        if (!near_edge && y[i] != x[row * WIDE + column]) {
            TEST_FAIL_("element %d is %g", i, (double)y[i]);
            break;
        }
    }
    end();
}

/* Forward and backward, the same bits on any number of threads. */
TEST(threads) {
    static float first[2][24 * 40 * 40], got[24 * 40 * 40];
    for (int threads = 1; threads <= 5; threads += 2) {
        REQUIRE(begin(threads));
        mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(3, 8, 20, 20));
        mpt_requires_grad(x, true);
        mpt_tensor y = mpt_interpolate(x, MPT_SHAPE(40, 40), 0, MPT_BILINEAR, false);
        mpt_backward(mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false));
        for (int i = 0; i < 2; i++) {
            int64_t n = i ? 24 * 20 * 20 : 24 * 40 * 40;
            mpt_read_f32(i ? mpt_grad(x) : y, got, n);
            if (threads == 1) memcpy(first[i], got, (size_t)n * sizeof *got);
            CHECK_EQ_BITS(got, first[i], (size_t)n * sizeof *got);
        }
        end();
    }
}

/* A gradient that comes from two sides adds up; a permuted image has its own strides. */
TEST(strides_and_sums) {
    float once[12], twice[12];
    REQUIRE(begin(1));
    mpt_tensor last = mpt_randn(context, MPT_F32, MPT_SHAPE(1, 2, 3, 2)); /* channels last */
    mpt_requires_grad(last, true);
    for (int rounds = 1; rounds <= 2; rounds++) {
        mpt_tensor x = mpt_permute(last, MPT_SHAPE(0, 3, 1, 2)),
                   sum = mpt_zeros(context, MPT_F32, MPT_SCALAR);
        for (int i = 0; i < rounds; i++)
            sum = mpt_add(sum, mpt_sum(mpt_interpolate(x, MPT_SCALAR, 2.5, MPT_BILINEAR, true),
                                       MPT_ALL_DIMS, false));
        mpt_backward(sum);
        mpt_read_f32(mpt_grad(last), rounds == 1 ? once : twice, 12);
        mpt_clear_grad(last);
    }
    float total = 0;
    for (int i = 0; i < 12; i++) {
        CHECK_CLOSE(twice[i], 2 * once[i], 1e-6, 0);
        total += once[i];
    }
    CHECK_NEAR(total, 2 * 5 * 7, 1e-4); /* every result's shares are 1 */
    mpt_tensor nothing = mpt_interpolate(mpt_zeros(context, MPT_F16, MPT_SHAPE(0, 3, 2, 2)),
                                         MPT_SHAPE(4, 4), 0, MPT_NEAREST, false);
    CHECK_EQ_INT(mpt_get_dtype(nothing), MPT_F16);
    CHECK_EQ_INT(mpt_numel(nothing), 0);
    end();
}

TEST(the_layer) {
    REQUIRE(begin(1));
    mpt_module net =
        mpt_sequential(context, mpt_nn_upsample(context, MPT_SCALAR, 2, MPT_NEAREST, false),
                       mpt_nn_upsample(context, MPT_SHAPE(5, 6), 0, MPT_BILINEAR, true), MPT_END);
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(2, 3, 4, 4));
    mpt_tensor want = mpt_interpolate(mpt_interpolate(x, MPT_SCALAR, 2, MPT_NEAREST, false),
                                      MPT_SHAPE(5, 6), 0, MPT_BILINEAR, true);
    CHECK(mpt_allclose(mpt_forward(net, x), want, 0, 0));
    CHECK_EQ_INT(mpt_parameter_count(net), 0);
    end();
}

TEST_TABLE = {T(wide_images), T(threads), T(strides_and_sums), T(the_layer)};
TEST_MAIN
