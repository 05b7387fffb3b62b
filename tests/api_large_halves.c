/* api_large_halves.c: slow functions of large tensors of bf16, which the CPU looks up in a table of
   all numbers, have the bits that they have of small ones; gradients as well. */
#include MPTRAIN_HEADER_FILE

#include "harness.h"

#include "checks.h"

enum { ROWS = 513, COLUMNS = 1027, PARTS = 9, PART = ROWS / PARTS, NUMEL = ROWS * COLUMNS };

static mpt_context *context;

static mpt_tensor pow_of(mpt_tensor x) { return mpt_pow_scalar(x, 2.5); }
static mpt_tensor elu_of(mpt_tensor x) { return mpt_elu(x, 0.75); }
static mpt_tensor softplus_of(mpt_tensor x) { return mpt_softplus(x, 1.5, 20.0); }

typedef mpt_tensor (*function)(mpt_tensor x);
#define F(name) {#name, mpt_##name}
static const struct {
    const char *name;
    function call;
} functions[] = {F(gelu), F(gelu_tanh), F(silu), F(tanh), F(log1p), F(sin), F(cos), {"pow", pow_of},
                 {"elu", elu_of}, {"softplus", softplus_of}};

/* Every number, NaN and infinities too, in one order and another. */
static mpt_tensor numbers(unsigned step) {
    static uint16_t bits[NUMEL];
    for (unsigned i = 0; i < NUMEL; i++) bits[i] = (uint16_t)(i * step + i / 65536);
    return mpt_from(context, MPT_BF16, MPT_SHAPE(ROWS, COLUMNS), bits);
}

/* The values, then the gradient of x where dy is that of them. */
static void run(function call, mpt_tensor x, mpt_tensor dy, uint16_t *out, int64_t n) {
    mpt_scope_begin(context);
    mpt_requires_grad(x, true);
    mpt_tensor y = call(x);
    CHECK(mpt_get_dtype(y) == MPT_BF16);
    CHECK_EQ_INT(mpt_read(y, out, (size_t)n * 2), MPT_OK);
    mpt_backward(mpt_sum(mpt_mul(y, dy), MPT_ALL_DIMS, false));
    CHECK_EQ_INT(mpt_read(mpt_grad(x), out + n, (size_t)n * 2), MPT_OK);
    mpt_scope_end(context);
}

static bool is_nan(uint16_t bits) { return (bits & 0x7fff) > 0x7f80; }

static void compare(const char *name, const uint16_t *got, const uint16_t *want, int64_t n) {
    int64_t i = 0;
    while (i < n && (got[i] == want[i] || (is_nan(got[i]) && is_nan(want[i])))) i++;
    if (i < n)
        TEST_FAIL_("%s: element %lld is %04x, not %04x", name, (long long)i, got[i], want[i]);
}

/* `turned`: x is the transpose of what is in memory. */
static void check_all(int threads, bool turned) {
    static uint16_t whole[2 * NUMEL], part[2 * NUMEL / PARTS];
    const int64_t n = NUMEL / PARTS;
    mpt_config config = mpt_config_default();
    config.threads = threads, config.device = MPT_DEVICE_CPU;
    context = mpt_create(&config);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        mpt_scope_begin(context);
        mpt_tensor x = numbers(40503), dy = numbers(25717), leaf = x;
        if (turned) leaf = mpt_transpose(mpt_contiguous(mpt_transpose(x, 0, 1)), 0, 1);
        run(functions[f].call, mpt_detach(leaf), dy, whole, NUMEL);
        for (int p = 0; p < PARTS && !test_failures; p++) {
            run(functions[f].call, mpt_clone(mpt_slice(x, 0, p * PART, (p + 1) * PART, 1)),
                mpt_clone(mpt_slice(dy, 0, p * PART, (p + 1) * PART, 1)), part, n);
            compare(functions[f].name, whole + p * n, part, n);
            compare(functions[f].name, whole + NUMEL + p * n, part + n, n);
        }
        mpt_scope_end(context);
    }
#ifndef MPTRAIN_NO_SIMD
    CHECK(mpt_memory(context).peak[MPT_MEMORY_WORKSPACE] >= 65536 * 4); /* the table */
#endif
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

TEST(values_and_gradients) { check_all(1, false); }
TEST(of_a_transpose) { check_all(1, true); }
TEST(by_three_threads) { check_all(3, false); }

TEST_TABLE = {T(values_and_gradients), T(of_a_transpose), T(by_three_threads)};
TEST_MAIN
