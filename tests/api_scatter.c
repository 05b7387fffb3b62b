/* api_scatter.c: what adds up where indices say so, gradients of tables and scatter_add, against a
   loop in the order that the contract names, to the bit: few and many indices, all different, all
   one, out of range, none. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"

static mpt_context *context;

static bool begin(void) {
    mpt_config config = mpt_config_default();
    config.threads = 2;
    context = mpt_create(&config);
    return context != NULL;
}

static void end(void) {
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static uint32_t state = 5;
static int below(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 8) % (uint32_t)n);
}

/* Sums of these depend on their order. */
static float some_value(void) { return (float)(below(20001) - 10000) / 7.0f; }

typedef enum pattern { RANDOM, DIFFERENT, ONE, FEW, PATTERNS } pattern;

static int64_t index_of(pattern p, int64_t i, int64_t size) {
    return p == RANDOM      ? below((int)size)
           : p == DIFFERENT ? i * 7919 % size
           : p == ONE       ? size / 2
           : below(8)       ? below(3) * (size - 1) / 2
                            : below((int)size);
}

/* Rows of [n, width] added to rows of [size, width], in order; `padding` and bad ids add none. */
static void add_rows(float *sum, int64_t size, int64_t width, const int64_t *ids, int64_t n,
                     const float *rows, int64_t padding) {
    for (int64_t j = 0; j < n; j++) {
        if (ids[j] < 0 || ids[j] >= size || ids[j] == padding) continue;
        for (int64_t c = 0; c < width; c++) sum[ids[j] * width + c] += rows[j * width + c];
    }
}

static void check_bits(mpt_tensor got, const float *want, int64_t count, const char *what) {
    float *values = (float *)malloc((size_t)count * 4 + 4);
    CHECK_EQ_INT(mpt_read(got, values, (size_t)count * 4), MPT_OK);
    for (int64_t i = 0; i < count; i++) {
        if (values[i] == want[i]) continue;
        TEST_FAIL_("%s: element %ld is %.9g, expected %.9g", what, (long)i, (double)values[i],
                   (double)want[i]);
        break;
    }
    free(values);
}

typedef struct scatter_case {
    int64_t n, size, width;
    bool padded;
} scatter_case;

static const scatter_case cases[] = {
    {1, 3, 2, false},      {40, 7, 33, true},     {1024, 300, 5, false}, {1025, 300, 5, true},
    {3000, 41, 64, false}, {2500, 9001, 3, true}, {2100, 17, 300, false}};

/* Gradients of a table, twice: the second adds to the first. */
static void embedding_of(const scatter_case *c, pattern p) {
    const int64_t count = c->size * c->width, padding = c->padded ? c->size / 2 : -1;
    int64_t *ids = (int64_t *)malloc((size_t)c->n * 8);
    float *rows = (float *)malloc((size_t)(c->n * c->width) * 4);
    float *want = (float *)calloc((size_t)count, 4);
    mpt_scope_begin(context);
    mpt_tensor table = mpt_randn(context, MPT_F32, MPT_SHAPE(c->size, c->width));
    mpt_requires_grad(table, true);
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < c->n; i++) ids[i] = index_of(p, i, c->size);
        for (int64_t i = 0; i < c->n * c->width; i++) rows[i] = some_value();
        mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(c->n), ids);
        mpt_tensor weight = mpt_from(context, MPT_F32, MPT_SHAPE(c->n, c->width), rows);
        mpt_tensor out = mpt_mul(mpt_embedding(index, table, padding), weight);
        mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
        add_rows(want, c->size, c->width, ids, c->n, rows, padding);
        check_bits(mpt_grad(table), want, count, "gradient of a table");
    }
    mpt_scope_end(context);
    free(ids), free(rows), free(want);
}

TEST(gradients_of_tables) {
    REQUIRE(begin());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int p = 0; p < PATTERNS; p++) embedding_of(&cases[i], (pattern)p);
    end();
}

/* The gradient of index_select, whose lines share their indices, and lines that have their own. */
static void lines_of(int64_t lines, int64_t n, int64_t size, pattern p) {
    const size_t values = (size_t)(lines * n), sums = (size_t)(lines * size);
    int64_t *ids = (int64_t *)malloc(values * 8);
    float *from = (float *)malloc(values * 4), *want = (float *)malloc(sums * 4);
    for (size_t i = 0; i < values; i++) ids[i] = index_of(p, (int64_t)i, size);
    for (size_t i = 0; i < values; i++) from[i] = some_value();
    for (size_t i = 0; i < sums; i++) want[i] = some_value();
    mpt_scope_begin(context);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(lines, size), want);
    mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(lines, n), ids);
    mpt_tensor source = mpt_from(context, MPT_F32, MPT_SHAPE(lines, n), from);
    mpt_tensor sum = mpt_scatter_add(x, 1, index, source);
    for (int64_t l = 0; l < lines; l++)
        add_rows(want + l * size, size, 1, ids + l * n, n, from + l * n, -1);
    check_bits(sum, want, lines * size, "scatter_add");
    /* Small whole numbers, in fp16. */
    for (size_t i = 0; i < values; i++) from[i] = (float)(i % 5 == 0);
    for (size_t i = 0; i < sums; i++) want[i] = 1;
    x = mpt_ones(context, MPT_F16, MPT_SHAPE(lines, size));
    source = mpt_cast(mpt_from(context, MPT_F32, MPT_SHAPE(lines, n), from), MPT_F16);
    sum = mpt_cast(mpt_scatter_add(x, 1, index, source), MPT_F32);
    for (int64_t l = 0; l < lines; l++)
        add_rows(want + l * size, size, 1, ids + l * n, n, from + l * n, -1);
    check_bits(sum, want, lines * size, "scatter_add of fp16");
    mpt_scope_end(context);
    free(ids), free(from), free(want);
}

TEST(lines_with_indices_of_their_own) {
    REQUIRE(begin());
    for (int p = 0; p < PATTERNS; p++) {
        lines_of(1, 5000, 700, (pattern)p);
        lines_of(3, 2000, 60, (pattern)p);
        lines_of(33, 1500, 40, (pattern)p);
        lines_of(5, 300, 90, (pattern)p);
    }
    end();
}

/* The first bad id is named, wherever it stands; none is no work. */
TEST(bad_ids_and_none) {
    static int64_t ids[3000];
    REQUIRE(begin());
    mpt_scope_begin(context);
    mpt_tensor table = mpt_ones(context, MPT_F32, MPT_SHAPE(50, 4));
    mpt_requires_grad(table, true);
    mpt_tensor nothing = mpt_zeros(context, MPT_I64, MPT_SHAPE(0));
    mpt_backward(mpt_sum(mpt_embedding(nothing, table, -1), MPT_ALL_DIMS, false));
    CHECK(mpt_item(mpt_sum(mpt_grad(table), MPT_ALL_DIMS, false)) == 0);
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(50));
    mpt_tensor source = mpt_ones(context, MPT_F32, MPT_SHAPE(3000));
    for (int i = 0; i < 3000; i++) ids[i] = i == 2345 ? 50 : i == 2500 ? -1 : i % 50;
    mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(3000), ids);
    mpt_item(mpt_sum(mpt_scatter_add(x, 0, index, source), MPT_ALL_DIMS, false));
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_INDEX);
    CHECK_CONTAINS(mpt_error(context), "element 2345 of the indices");
    mpt_clear_error(context);
    end();
}

TEST_TABLE = {T(gradients_of_tables), T(lines_with_indices_of_their_own), T(bad_ids_and_none)};
TEST_MAIN
