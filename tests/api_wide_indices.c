/* api_wide_indices.c: elements whose numbers take more than 32 bits. A table of 2^31 elements and
   some, of which only a few pages are ever touched, and its rows that lie 2^28 rows apart, give
   what a small copy of those rows gives; and a sum over more elements than 2^31, one in memory. */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include MPTRAIN_HEADER_FILE

#include "harness.h"

#include "checks.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { WIDTH = 4, PICKED = 3 };
static const int64_t apart = INT64_C(1) << 28, rows = (INT64_C(1) << 29) + 16;

static mpt_context *context;

static bool begin(void) {
    mpt_config config = mpt_config_default();
    config.threads = 2;
    context = mpt_create(&config);
    return context != NULL;
}

/* The memory of the table, zeros; NULL where there is no such thing. */
static float *map_table(void) {
#if defined(__linux__)
    if (sizeof(void *) < 8) return NULL;
    void *table = mmap(NULL, (size_t)rows * WIDTH * sizeof(float), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return table == MAP_FAILED ? NULL : (float *)table;
#else
    return NULL;
#endif
}

static void unmap_table(float *table) {
#if defined(__linux__)
    munmap(table, (size_t)rows * WIDTH * sizeof(float));
#else
    (void)table;
#endif
}

/* The rows that hold something: 15, and those that follow it `apart` and twice as many behind. The
   last one's elements are number 2^31 + 60 and on. */
static int64_t row_at(int i) { return 15 + i * apart; }

static mpt_tensor small_ids(void) {
    static const int64_t ids[PICKED] = {2, 0, 1};
    return mpt_from(context, MPT_I64, MPT_SHAPE(PICKED), ids);
}
static mpt_tensor matrix(int64_t n, int64_t m) {
    return mpt_reshape(mpt_sin(mpt_arange(context, MPT_F32, n * m)), MPT_SHAPE(n, m));
}
static mpt_tensor targets(void) {
    static const int64_t ids[PICKED] = {3, 1, 0};
    return mpt_from(context, MPT_I64, MPT_SHAPE(PICKED), ids);
}
static mpt_tensor none(void) {
    mpt_tensor null = {NULL, 0, 0};
    return null;
}
static mpt_tensor joined(mpt_tensor a, mpt_tensor b, int dim) {
    const mpt_tensor in[2] = {a, b};
    return mpt_cat(in, 2, dim);
}
static mpt_tensor attended(mpt_tensor x) { /* [1, 1, rows, WIDTH] */
    const mpt_tensor in = mpt_reshape(x, MPT_SHAPE(1, 1, PICKED, WIDTH));
    return mpt_scaled_dot_product_attention(in, in, in, NULL);
}
static mpt_tensor pooled(mpt_tensor x) { /* [1, 1, rows, WIDTH] */
    const mpt_pool_config config = mpt_pool_config_make(2, 1, 0);
    return mpt_max_pool2d(mpt_reshape(x, MPT_SHAPE(1, 1, PICKED, WIDTH)), &config);
}

/* x: the rows, far apart or a copy of them. */
#define ROWS(R) \
    R(clone, mpt_clone(x)) \
    R(sum, mpt_sum(x, 0, false)) \
    R(max, mpt_max(x, 0, false)) \
    R(argmax, mpt_cast(mpt_argmax(x, 0, false), MPT_F32)) \
    R(softmax, mpt_softmax(x, 0)) \
    R(log_softmax, mpt_log_softmax(x, 1)) \
    R(cumsum, mpt_cumsum(x, 0)) \
    R(flip, mpt_flip(x, 0)) \
    R(sort, mpt_sort(x, 0, true, NULL)) \
    R(cat, joined(x, mpt_exp(x), 0)) \
    R(mul, mpt_mul(x, mpt_transpose(matrix(WIDTH, PICKED), 0, 1))) \
    R(matmul, mpt_matmul(x, matrix(WIDTH, 5))) \
    R(matmul_from_left, mpt_matmul(matrix(5, PICKED), x)) \
    R(matmul_by_itself, mpt_matmul(x, mpt_transpose(x, 0, 1))) \
    R(cross_entropy, mpt_cross_entropy(x, targets(), NULL)) \
    R(nll_loss, mpt_nll_loss(x, targets(), NULL)) \
    R(mse_loss, mpt_mse_loss(x, mpt_cos(x), MPT_SUM)) \
    R(index_select, mpt_index_select(x, 0, small_ids())) \
    R(where, mpt_where(mpt_gt_scalar(x, 0.3), x, mpt_neg(x))) \
    R(pad, mpt_pad(x, MPT_SHAPE(1, 0, 0, 2), 1)) \
    R(tril, mpt_tril(x, 1)) \
    R(dropout, mpt_mul_scalar(mpt_dropout(x, 0), 2)) \
    R(var, mpt_var(x, 0, false, 1)) \
    R(layer_norm, mpt_layer_norm(x, 1, none(), none(), 1e-5)) \
    R(batch_norm, mpt_batch_norm(x, none(), none(), none(), none(), 1)) \
    R(max_pool2d, pooled(x)) \
    R(attention, attended(x)) \
    R(embedding, mpt_embedding(small_ids(), x, -1)) \
    R(linear, mpt_linear(matrix(2, WIDTH), x, none(), MPT_ACTIVATION_GELU)) \
    R(linear_cross_entropy, mpt_linear_cross_entropy(matrix(PICKED, WIDTH), x, small_ids(), NULL))
#define CALL(name, expression) \
    static mpt_tensor call_##name(mpt_tensor x) { return expression; }
ROWS(CALL)

typedef struct op_case {
    const char *name;
    mpt_tensor (*call)(mpt_tensor x);
} op_case;
#define ROW(name, expression) {#name, call_##name},
static const op_case cases[] = {ROWS(ROW)};

static void compare(const char *name, mpt_tensor far_apart, mpt_tensor copied) {
    if (!mpt_allclose(far_apart, copied, 1e-6, 1e-6)) TEST_FAIL_("%s differs", name);
    if (!mpt_failed(context)) return;
    if (!strstr(mpt_error(context), "built without")) TEST_FAIL_("%s", mpt_error(context));
    mpt_clear_error(context);
}

/* What comes out, and the gradient of the rows. */
static void check_case(const op_case *c, mpt_tensor far_apart) {
    mpt_tensor x[2], y[2];
    mpt_scope_begin(context);
    x[0] = mpt_detach(far_apart);
    x[1] = mpt_detach(mpt_clone(far_apart));
    for (int i = 0; i < 2; i++) {
        mpt_requires_grad(x[i], true);
        y[i] = c->call(x[i]);
    }
    compare(c->name, y[0], y[1]);
    if (strcmp(c->name, "argmax") != 0) {
        for (int i = 0; i < 2; i++) mpt_backward(mpt_sum(mpt_mul(y[i], y[i]), MPT_ALL_DIMS, false));
        compare(c->name, mpt_grad(x[0]), mpt_grad(x[1]));
    }
    mpt_scope_end(context);
}

TEST(rows_far_apart) {
    float want[PICKED][WIDTH], got[PICKED * WIDTH];
    static const int order[PICKED] = {2, 0, 1};
    REQUIRE(begin());
    float *memory = mpt_device_count(MPT_DEVICE_CUDA) > 0 ? NULL : map_table();
    if (!memory) {
        mpt_destroy(context);
        SKIP("8 GiB of addresses, on a CPU");
    }
    for (int i = 0; i < PICKED; i++)
        for (int c = 0; c < WIDTH; c++)
            want[i][c] = memory[row_at(i) * WIDTH + c] = (float)((i * 5 + c * 3) % 7) / 4 - 0.7f;
    mpt_tensor table = mpt_wrap(context, MPT_F32, MPT_SHAPE(rows, WIDTH), memory);
    for (int way = 0; way < 3; way++) { /* three that take indices */
        const int64_t ids[PICKED] = {row_at(2), row_at(0), row_at(1)};
        mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(PICKED), ids), some;
        if (way == 0) some = mpt_index_select(table, 0, index);
        if (way == 1)
            some = mpt_gather(
                table, 0,
                mpt_expand(mpt_reshape(index, MPT_SHAPE(PICKED, 1)), MPT_SHAPE(PICKED, WIDTH)));
        if (way == 2) some = mpt_embedding(index, table, -1);
        mpt_read_f32(some, got, PICKED * WIDTH);
        if (strstr(mpt_error(context), "built without"))
            mpt_clear_error(context);
        else
            for (int i = 0; i < PICKED; i++)
                CHECK_EQ_BITS(got + i * WIDTH, want[order[i]], sizeof want[0]);
    }
    mpt_tensor far_apart = mpt_slice(table, 0, row_at(0), rows, apart);
    CHECK_EQ_INT(mpt_get_shape(far_apart).dim[0], PICKED);
    mpt_read_f32(far_apart, got, PICKED * WIDTH);
    CHECK_EQ_BITS(got, want, sizeof want);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i], far_apart);
    mpt_tensor last = mpt_slice(table, 0, -1, rows, 1); /* written where it lies */
    mpt_mul_scalar_(last, -2);
    for (int c = 0; c < WIDTH; c++) CHECK(memory[row_at(2) * WIDTH + c] == -2 * want[2][c]);
    check_ok(context);
    mpt_destroy(context);
    unmap_table(memory);
}

/* A sanitizer, or another processor, which may be an emulated one, would take its time. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SLOW
#endif
#endif
#if !defined(__x86_64__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SLOW
#endif

/* 2^31 + 256 ones, which are one. */
TEST(sums_of_more_than_32_bits_count) {
    const int64_t n = (INT64_C(1) << 31) + 256;
#ifdef SLOW
    SKIP("x86-64, without sanitizers");
#endif
    REQUIRE(begin());
    if (mpt_device_count(MPT_DEVICE_CUDA) > 0 || mpt_get_isa(context) == MPT_ISA_REF) {
        mpt_destroy(context);
        SKIP("a CPU with vectors");
    }
    mpt_tensor many = mpt_expand(mpt_ones(context, MPT_F32, MPT_SHAPE(1)), MPT_SHAPE(n));
    CHECK_EQ_INT(mpt_numel(many), n);
    CHECK(mpt_item(mpt_sum(many, 0, false)) == (double)n);
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(rows_far_apart), T(sums_of_more_than_32_bits_count)};
TEST_MAIN
