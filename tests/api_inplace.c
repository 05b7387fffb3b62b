/* api_inplace.c: ops in place: values, gradients with the bits of the ops out of place, views that
   see the change, saved values that were overwritten, and what cannot be done. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"

static mpt_context *context;

static bool begin(void) {
    mpt_config config = mpt_config_default();
    config.debug = true;
    config.seed = 4;
    context = mpt_create(&config);
    return context != NULL;
}

static void end(void) {
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static void expect_error(int line, mpt_status status, const char *text) {
    if (mpt_error_code(context) != status || !strstr(mpt_error(context), text))
        TEST_FAIL_("line %d: \"%s\"", line, mpt_error(context));
    mpt_clear_error(context);
}
#define EXPECT(status, text) expect_error(__LINE__, status, text)

static void check_values(int line, mpt_tensor x, const float *want, int n) {
    float got[16];
    if (mpt_read_f32(x, got, n) != MPT_OK) TEST_FAIL_("line %d: %s", line, mpt_error(context));
    for (int i = 0; i < n; i++)
        if (got[i] != want[i])
            TEST_FAIL_("line %d: element %d is %g, expected %g", line, i, (double)got[i],
                       (double)want[i]);
}
#define VALUES(x, ...) \
    do { \
        const float want_[] = {__VA_ARGS__}; \
        check_values(__LINE__, x, want_, (int)(sizeof want_ / sizeof *want_)); \
    } while (0)

static mpt_tensor three(float a, float b, float c) {
    float values[3];
    values[0] = a, values[1] = b, values[2] = c;
    return mpt_from(context, MPT_F32, MPT_SHAPE(3), values);
}

static mpt_tensor leaf(float a, float b, float c) {
    mpt_tensor x = three(a, b, c);
    mpt_requires_grad(x, true);
    return x;
}

TEST(values_and_handles) {
    REQUIRE(begin());
    mpt_tensor x = three(-1, 2, 3);
    mpt_tensor y = mpt_relu_(x);
    CHECK(y.slot == x.slot && y.generation == x.generation);
    VALUES(x, 0, 2, 3);
    mpt_add_(x, three(1, 2, 3));
    mpt_mul_scalar_(mpt_add_scalar_(x, 1), 2);
    VALUES(x, 4, 10, 14);
    mpt_mul_(x, mpt_full(context, MPT_F32, MPT_SCALAR, 0.5));
    VALUES(x, 2, 5, 7);
    mpt_mul_(x, x);
    mpt_add_(x, x);
    VALUES(x, 8, 50, 98);
    mpt_copy_(x, mpt_full(context, MPT_I64, MPT_SHAPE(1), 7));
    VALUES(x, 7, 7, 7);
    mpt_fill_(x, -2.5);
    VALUES(x, -2.5f, -2.5f, -2.5f);
    CHECK(mpt_relu_(x).slot == x.slot);
    mpt_tensor whole = mpt_zeros(context, MPT_I64, MPT_SHAPE(3));
    mpt_copy_(whole, three(1.7f, -2.2f, NAN));
    VALUES(whole, 1, -2, 0);
    VALUES(mpt_fill_(whole, 9), 9, 9, 9);
    end();
}

TEST(views_see_it) {
    REQUIRE(begin());
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(2, 3));
    mpt_tensor row = mpt_slice(x, 0, 1, 2, 1), column = mpt_slice(x, 1, 0, 3, 2);
    mpt_add_(row, three(1, 2, 3));
    mpt_add_scalar_(column, 10);
    VALUES(x, 10, 0, 10, 11, 2, 13);
    VALUES(mpt_transpose(x, 0, 1), 10, 11, 0, 2, 10, 13);
    mpt_copy_(mpt_slice(x, 0, 0, 1, 1), row); /* rows of one tensor, apart in memory */
    VALUES(x, 11, 2, 13, 11, 2, 13);
    mpt_copy_(mpt_slice(x, 1, 0, 2, 1), mpt_slice(x, 1, 1, 3, 1));
    EXPECT(MPT_ERROR_STATE, "mpt_copy_");
    x = mpt_ones(context, MPT_F32, MPT_SHAPE(2, 2));
    mpt_add_(x, mpt_transpose(x, 0, 1));
    EXPECT(MPT_ERROR_STATE, "shows part of the memory that is written; mpt_clone it");
    mpt_fill_(mpt_expand(three(1, 2, 3), MPT_SHAPE(2, 3)), 1);
    EXPECT(MPT_ERROR_STATE, "an expanded tensor shows one element in many places");
    end();
}

/* Every place of every dimension of views that lie in memory in every way: the values of plain
   indexing, and a view, so that what is added to it is added to the whole. */
static void select_all(mpt_tensor whole, mpt_tensor view) {
    const mpt_shape shape = mpt_get_shape(view);
    const int64_t numel = mpt_numel(view);
    float all[60], part[60], before[60], after[60];
    for (int dim = 0; dim < 3; dim++) {
        const int64_t size = shape.dim[dim];
        int64_t inner = 1;
        for (int i = dim + 1; i < 3; i++) inner *= shape.dim[i];
        for (int64_t at = -size; at < size; at++) {
            const int64_t index = at < 0 ? at + size : at;
            mpt_tensor one = mpt_select(view, dim - 3 * (at < 0), at);
            const mpt_shape got = mpt_get_shape(one);
            CHECK(got.rank == 2 && got.dim[0] == shape.dim[dim == 0]);
            CHECK(got.dim[1] == shape.dim[dim == 2 ? 1 : 2] && mpt_numel(one) == numel / size);
            mpt_read_f32(view, all, numel);
            mpt_read_f32(one, part, numel / size);
            for (int64_t i = 0; i < numel / size; i++)
                CHECK(part[i] == all[(i / inner * size + index) * inner + i % inner]);
            mpt_read_f32(whole, before, 60);
            mpt_add_scalar_(one, 100);
            mpt_read_f32(whole, after, 60);
            for (int i = 0; i < 60; i++) {
                bool in = false;
                for (int64_t k = 0; k < numel / size; k++) in = in || part[k] == before[i];
                CHECK(after[i] == before[i] + (in ? 100 : 0));
            }
            mpt_add_scalar_(one, -100);
        }
    }
}

TEST(selected_places_are_views) {
    static const int64_t sizes[4][3] = {{3, 4, 5}, {1, 12, 5}, {3, 1, 20}, {60, 1, 1}};
    static const int64_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                         {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    REQUIRE(begin());
    for (int k = 0; k < 24 * 2 && test_failures == 0; k++) {
        const int64_t *s = sizes[k % 4], *o = orders[k / 4 % 6];
        mpt_scope_begin(context);
        mpt_tensor whole =
            mpt_reshape(mpt_arange(context, MPT_F32, 60), MPT_SHAPE(s[0], s[1], s[2]));
        mpt_tensor view = mpt_permute(whole, MPT_SHAPE(o[0], o[1], o[2]));
        if (k >= 24) view = mpt_slice(view, k % 3, 0, 60, 2);
        select_all(whole, view);
        mpt_scope_end(context);
    }
    mpt_tensor x = leaf(1, 2, 3);
    mpt_tensor y = mpt_mul(mpt_select(x, 0, -1), mpt_select(x, 0, 0));
    CHECK_EQ_INT(mpt_get_shape(y).rank, 0);
    mpt_backward(y);
    VALUES(mpt_grad(x), 3, 0, 1);
    const float wide[6] = {1, 2, 3, 4, 5, 6};
    x = mpt_from(context, MPT_F32, MPT_SHAPE(2, 3), wide);
    mpt_requires_grad(x, true);
    y = mpt_mul(mpt_select(mpt_transpose(x, 0, 1), 0, 1), mpt_select(x, 1, 2));
    VALUES(y, 6, 30);
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
    VALUES(mpt_grad(x), 0, 3, 2, 0, 6, 5);
    end();
}

/* ==== Gradients ==== */

/* A small net whose middle is in place or not; both must agree in every bit. */
static void run(bool inplace, mpt_dtype region, float *out, float gradient[3][12]) {
    float values[12];
    for (int i = 0; i < 12; i++) values[i] = (float)(i * 7 % 12) / 4 - 1.5f;
    mpt_tensor a = mpt_from(context, MPT_F32, MPT_SHAPE(3, 4), values);
    mpt_tensor b = mpt_from(context, MPT_F32, MPT_SHAPE(4), values + 3);
    mpt_tensor w = mpt_from(context, MPT_F32, MPT_SHAPE(3, 4), values);
    mpt_tensor none;
    memset(&none, 0, sizeof none);
    mpt_requires_grad(a, true);
    mpt_requires_grad(b, true);
    mpt_requires_grad(w, true);
    if (region != MPT_F32) mpt_autocast_begin(context, region);
    mpt_tensor h = mpt_linear(a, w, none, MPT_ACTIVATION_NONE);
    if (region != MPT_F32) mpt_autocast_end(context);
    h = mpt_matmul(mpt_cast(h, MPT_F32), w);
    if (inplace) {
        mpt_add_(h, b);
        mpt_mul_scalar_(h, 0.75);
        mpt_add_scalar_(h, 0.25);
        mpt_mul_(h, b);
        mpt_mul_(h, h);
        mpt_add_(h, h);
        mpt_relu_(mpt_add_scalar_(h, -0.5));
    } else {
        h = mpt_mul_scalar(mpt_add(h, b), 0.75);
        h = mpt_mul(mpt_add_scalar(h, 0.25), b);
        h = mpt_mul(h, h);
        h = mpt_relu(mpt_add_scalar(mpt_add(h, h), -0.5));
    }
    mpt_read_f32(h, out, 12);
    mpt_backward(mpt_mean(h, MPT_ALL_DIMS, false));
    mpt_read_f32(mpt_grad(a), gradient[0], 12);
    mpt_read_f32(mpt_grad(b), gradient[1], 4);
    mpt_read_f32(mpt_grad(w), gradient[2], 12);
}

TEST(gradients_have_the_same_bits) {
    static const mpt_dtype regions[] = {MPT_F32, MPT_F16, MPT_BF16};
    REQUIRE(begin());
    for (int r = 0; r < 3; r++) {
        float out[2][12], gradient[2][3][12];
        memset(gradient, 0, sizeof gradient);
        mpt_scope_begin(context);
        for (int i = 0; i < 2; i++) run(i == 1, regions[r], out[i], gradient[i]);
        mpt_scope_end(context);
        CHECK_EQ_BITS(out[1], out[0], sizeof out[0]);
        CHECK_EQ_BITS(gradient[1], gradient[0], sizeof gradient[0]);
        CHECK(gradient[0][0][1] != 0 || gradient[0][0][2] != 0);
    }
    end();
}

/* Who read the value before reads the old node's gradient; both ways add up. */
TEST(readers_of_before_and_after) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3);
    mpt_tensor x = mpt_mul_scalar(a, 2);
    mpt_tensor before = mpt_sum(x, 0, false); /* saves nothing */
    mpt_mul_scalar_(x, 10);
    mpt_tensor after = mpt_sum(x, 0, false);
    mpt_backward(mpt_add(before, after));
    VALUES(mpt_grad(a), 22, 22, 22);
    end();
}

TEST(a_constant_gets_history) {
    REQUIRE(begin());
    mpt_tensor b = leaf(1, 2, 3), x = three(5, 5, 5), y = three(4, 5, 6), z = three(1, 1, 1);
    mpt_add_(x, b);
    mpt_mul_(y, b);
    mpt_copy_(z, b);
    mpt_backward(mpt_sum(mpt_add(mpt_add(x, y), z), 0, false));
    VALUES(mpt_grad(b), 6, 7, 8);
    end();
}

/* copy_ and fill_ replace what was there; others that read it keep their way. */
TEST(history_ends_where_the_value_does) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3), b = leaf(1, 1, 1);
    mpt_tensor x = mpt_mul_scalar(a, 2), old = mpt_sum(x, 0, false);
    mpt_copy_(x, b);
    mpt_backward(mpt_add(old, mpt_sum(mpt_mul_scalar(x, 5), 0, false)));
    VALUES(mpt_grad(a), 2, 2, 2);
    VALUES(mpt_grad(b), 5, 5, 5);
    x = mpt_mul_scalar(a, 2);
    mpt_fill_(x, 1);
    mpt_backward(mpt_sum(x, 0, false));
    EXPECT(MPT_ERROR_STATE, "backward from a tensor without history");
    a = leaf(1, 2, 3);
    x = mpt_mul_scalar(a, 2);
    mpt_copy_(x, three(1, 1, 1));
    mpt_backward(mpt_sum(x, 0, false));
    EXPECT(MPT_ERROR_STATE, "backward from a tensor without history");
    end();
}

/* Without history, what was there keeps its own: as in PyTorch. */
TEST(under_no_grad) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3), x = mpt_mul_scalar(a, 2);
    mpt_no_grad_begin(context);
    mpt_mul_scalar_(a, 10);
    mpt_add_scalar_(x, 1);
    mpt_no_grad_end(context);
    VALUES(a, 10, 20, 30);
    VALUES(x, 3, 5, 7);
    mpt_backward(mpt_sum(x, 0, false));
    VALUES(mpt_grad(a), 2, 2, 2);
    mpt_no_grad_begin(context);
    mpt_mul_scalar_(mpt_grad(a), 0.5);
    mpt_no_grad_end(context);
    VALUES(mpt_grad(a), 1, 1, 1);
    end();
}

/* ==== What is refused ==== */

TEST(leaves_are_refused) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3);
    mpt_relu_(a);
    EXPECT(MPT_ERROR_STATE, "mpt_relu_");
    a = leaf(1, 2, 3);
    mpt_mul_(a, a);
    EXPECT(MPT_ERROR_STATE, "a leaf that collects a gradient cannot be changed in place");
    a = leaf(1, 2, 3);
    mpt_fill_(a, 0);
    EXPECT(MPT_ERROR_STATE, "mpt_no_grad_begin");
    mpt_module net = mpt_nn_linear(context, 3, 2);
    mpt_tensor weight = mpt_parameter(net, "weight");
    mpt_add_scalar_(weight, 1);
    EXPECT(MPT_ERROR_STATE, "a leaf that collects a gradient");
    mpt_no_grad_begin(context);
    mpt_fill_(weight, 2);
    mpt_no_grad_end(context);
    VALUES(weight, 2, 2, 2, 2, 2, 2);
    end();
}

TEST(views_with_history_are_refused) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3), x = mpt_mul_scalar(a, 2);
    mpt_relu_(mpt_slice(x, 0, 0, 2, 1));
    EXPECT(MPT_ERROR_STATE, "shares its memory with others");
    a = leaf(1, 2, 3), x = mpt_mul_scalar(a, 2);
    mpt_tensor view = mpt_reshape(x, MPT_SHAPE(3, 1));
    mpt_relu_(x);
    EXPECT(MPT_ERROR_STATE, "it is a view, or has views");
    a = leaf(1, 2, 3), x = mpt_mul_scalar(a, 2);
    view = mpt_reshape(x, MPT_SHAPE(3, 1));
    mpt_release(x); /* the view alone: its record still leads to x */
    mpt_relu_(view);
    mpt_backward(mpt_sum(view, MPT_ALL_DIMS, false));
    VALUES(mpt_grad(a), 2, 2, 2);
    end();
}

/* A backward that needs a value that is gone says so; never a wrong gradient. */
TEST(saved_values_are_watched) {
    REQUIRE(begin());
    mpt_tensor a = leaf(1, 2, 3);
    mpt_tensor x = mpt_exp(a), y = mpt_sum(x, 0, false);
    mpt_mul_scalar_(x, 2); /* exp saved its result */
    mpt_backward(mpt_add(y, mpt_sum(x, 0, false)));
    EXPECT(MPT_ERROR_STATE, "a tensor that exp saved for backward was changed in place since");
    a = leaf(1, 2, 3);
    x = mpt_mul_scalar(a, 2), y = mpt_mul(x, x);
    mpt_add_scalar_(x, 1);
    mpt_backward(mpt_sum(y, 0, false));
    EXPECT(MPT_ERROR_STATE, "a tensor that mul saved for backward");
    a = leaf(1, 2, 3);
    x = mpt_relu_(mpt_mul_scalar(a, 2)); /* relu_ saves what it wrote .. */
    mpt_relu_(x);                        /* .. which the next one changes */
    mpt_backward(mpt_sum(x, 0, false));
    EXPECT(MPT_ERROR_STATE, "a tensor that relu saved");
    mpt_tensor c = three(4, 5, 6); /* a factor that needs no gradient may change its partner */
    a = leaf(1, 2, 3);
    x = mpt_mul_scalar(a, 2), y = mpt_mul(x, c);
    mpt_fill_(x, 0);
    mpt_backward(mpt_sum(y, 0, false));
    VALUES(mpt_grad(a), 8, 10, 12);
    end();
}

TEST(other_dtypes) {
    REQUIRE(begin());
    mpt_tensor x = mpt_cast(three(1, 2, 3), MPT_F16);
    mpt_add_(x, three(1, 1, 1));
    EXPECT(MPT_ERROR_DTYPE, "argument 1 is float16, argument 2 is float32");
    x = mpt_cast(three(1, 2, 3), MPT_F16);
    mpt_autocast_begin(context, MPT_F16);
    mpt_add_(x, three(1, 1, 1)); /* in fp32, rounded to what x is */
    mpt_autocast_end(context);
    CHECK_EQ_INT(mpt_get_dtype(x), MPT_F16);
    VALUES(x, 2, 3, 4);
    mpt_relu_(mpt_zeros(context, MPT_I64, MPT_SHAPE(3)));
    EXPECT(MPT_ERROR_DTYPE, "mpt_cast it to f32");
    x = three(1, 2, 3);
    mpt_add_(x, mpt_zeros(context, MPT_F32, MPT_SHAPE(2, 3)));
    EXPECT(MPT_ERROR_SHAPE, "the result has shape [2, 3], which does not fit the tensor's [3]");
    end();
}

/* A step in place takes no more memory from the allocator than the first ones did. */
TEST(steady_steps_allocate_nothing) {
    int64_t before = 0;
    REQUIRE(begin());
    mpt_tensor a = mpt_keep(mpt_randn(context, MPT_F32, MPT_SHAPE(8, 8)));
    mpt_requires_grad(a, true);
    for (int i = 0; i < 20; i++) {
        mpt_step_begin(context);
        mpt_tensor x = mpt_matmul(a, a), readers = mpt_sum(x, MPT_ALL_DIMS, false);
        mpt_relu_(mpt_mul_(mpt_add_(x, a), a));
        mpt_backward(mpt_add(readers, mpt_mean(x, MPT_ALL_DIMS, false)));
        mpt_clear_grad(a);
        mpt_step_end(context);
        if (i == 4) before = mpt_memory(context).allocations;
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, before);
    end();
}

TEST_TABLE = {T(values_and_handles),
              T(views_see_it),
              T(selected_places_are_views),
              T(gradients_have_the_same_bits),
              T(readers_of_before_and_after),
              T(a_constant_gets_history),
              T(history_ends_where_the_value_does),
              T(under_no_grad),
              T(leaves_are_refused),
              T(views_with_history_are_refused),
              T(saved_values_are_watched),
              T(other_dtypes),
              T(steady_steps_allocate_nothing)};
TEST_MAIN
