/* api_einsum.c: mpt_einsum against plain loops over all labels, its gradients, its errors. */
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"

enum { LABELS = 5, OPERANDS = 3, MOST = 256 };

static uint32_t state = 1;
static int draw(int n) {
    state = state * 1664525u + 1013904223u;
    return (int)((state >> 16) % (uint32_t)n);
}

typedef struct operand {
    char label[4];
    int rank, size[4];
    float value[MOST];
} operand;

/* The value at what each label is, with sizes of 1 stretched. */
static double at_labels(const operand *x, const int *index) {
    int at = 0;
    for (int i = 0; i < x->rank; i++)
        at = at * x->size[i] + (x->size[i] == 1 ? 0 : index[x->label[i] - 'a']);
    return x->value[at];
}

/* The sum of products where the labels of the output are `index`. */
static double by_loops(const operand *x, int count, int *index, const int *size,
                       const bool *summed, int label) {
    double sum = 0;
    if (label == LABELS) {
        double product = 1;
        for (int i = 0; i < count; i++) product *= at_labels(&x[i], index);
        return product;
    }
    if (!summed[label]) return by_loops(x, count, index, size, summed, label + 1);
    for (int k = 0; k < size[label]; k++) {
        index[label] = k;
        sum += by_loops(x, count, index, size, summed, label + 1);
    }
    return sum;
}

static void draw_operand(operand *x, const int *size) {
    int elements = 1;
    bool once[LABELS] = {0};
    x->rank = draw(4);
    for (int i = 0; i < x->rank; i++) {
        const int label = draw(LABELS);
        x->label[i] = (char)('a' + label);
        x->size[i] = once[label] || draw(6) > 0 ? size[label] : 1;
        for (int k = 0; k < i; k++) /* a diagonal has equal sizes */
            if (x->label[k] == x->label[i]) x->size[i] = x->size[k];
        once[label] = true;
        elements *= x->size[i];
    }
    for (int i = 0; i < elements; i++) x->value[i] = (float)(draw(9) - 4);
}

static int write_equation(char *text, const operand *x, int count, bool *summed, bool *used) {
    int n = 0, rank = 0;
    for (int i = 0; i < count; i++) {
        if (i > 0) text[n++] = ',';
        for (int k = 0; k < x[i].rank; k++) {
            text[n++] = x[i].label[k];
            used[x[i].label[k] - 'a'] = true;
        }
    }
    text[n++] = '-', text[n++] = '>';
    for (int k = 0, first = draw(LABELS); k < LABELS; k++) {
        const int label = (first + k * 2) % LABELS; /* in some order */
        summed[label] = !used[label] || draw(2) == 0;
        if (!summed[label]) text[n++] = (char)('a' + label), rank++;
    }
    text[n] = 0;
    return rank;
}

TEST(sums_what_plain_loops_sum) {
    mpt_context *context = mpt_create(NULL);
    for (int round = 0; round < 400; round++) {
        operand x[OPERANDS];
        mpt_tensor in[OPERANDS];
        char text[64];
        int size[LABELS], wide[LABELS], count = 1 + draw(OPERANDS);
        bool summed[LABELS], used[LABELS] = {0};
        for (int i = 0; i < LABELS; i++) size[i] = 1 + draw(3), wide[i] = 1;
        mpt_scope_begin(context);
        for (int i = 0; i < count; i++) {
            mpt_shape shape;
            draw_operand(&x[i], size);
            shape.rank = x[i].rank;
            for (int k = 0; k < shape.rank; k++) {
                shape.dim[k] = x[i].size[k];
                if (x[i].size[k] > 1) wide[x[i].label[k] - 'a'] = x[i].size[k];
            }
            in[i] = mpt_from(context, MPT_F32, shape, x[i].value);
        }
        const int rank = write_equation(text, x, count, summed, used);
        mpt_tensor out = mpt_einsum(text, in, count);
        CHECK_EQ_INT(mpt_get_shape(out).rank, rank);
        float got[MOST];
        CHECK_EQ_INT(mpt_read(out, got, (size_t)mpt_numel(out) * sizeof got[0]), MPT_OK);
        const char *label = strchr(text, '>') + 1;
        for (int64_t i = 0; i < mpt_numel(out); i++) {
            int index[LABELS] = {0};
            int64_t rest = i;
            for (int k = rank - 1; k >= 0; k--) {
                index[label[k] - 'a'] = (int)(rest % wide[label[k] - 'a']);
                rest /= wide[label[k] - 'a'];
            }
            const double right = by_loops(x, count, index, wide, summed, 0);
            if (fabs(right - (double)got[i]) > 1e-3)
                TEST_FAIL_("%s, element %d: %g, expected %g", text, (int)i, (double)got[i], right);
        }
        mpt_scope_end(context);
        if (mpt_failed(context)) {
            TEST_FAIL_("%s: %s", text, mpt_error(context));
            break;
        }
    }
    mpt_destroy(context);
}

static mpt_tensor ramp(mpt_context *context, mpt_shape shape) {
    int64_t n = 1;
    for (int i = 0; i < shape.rank; i++) n *= shape.dim[i];
    return mpt_mul_scalar(mpt_reshape(mpt_arange(context, MPT_F32, n), shape), 0.1);
}

static mpt_tensor attend(mpt_context *context, void *user, const mpt_tensor *in, int n_in) {
    (void)context;
    return mpt_sum(mpt_sin(mpt_einsum((const char *)user, in, n_in)), MPT_ALL_DIMS, false);
}

TEST(has_gradients) {
    static const struct {
        const char *equation;
        int count;
    } cases[] = {{"bqd,bkd->bqk", 2}, {"bij->bi", 1}, {"...a,...a", 2}, {"ijj->j", 1},
                 {"bqd,bkd,bqk->d", 3}};
    for (int i = 0; i < 5; i++) {
        mpt_context *context = mpt_create(NULL);
        mpt_tensor in[3];
        char equation[32];
        strcpy(equation, cases[i].equation);
        in[0] = ramp(context, MPT_SHAPE(2, 3, 3));
        in[1] = ramp(context, MPT_SHAPE(2, 3, 3)), in[2] = ramp(context, MPT_SHAPE(2, 3, 3));
        if (mpt_gradcheck(context, attend, equation, in, cases[i].count, NULL) != MPT_OK)
            TEST_FAIL_("%s: %s", equation, mpt_error(context));
        mpt_destroy(context);
    }
}

TEST(reads_what_others_write) {
    mpt_context *context = mpt_create(NULL);
    mpt_tensor a = ramp(context, MPT_SHAPE(2, 3)), b = ramp(context, MPT_SHAPE(3, 4));
    mpt_tensor ab[2], cube = ramp(context, MPT_SHAPE(2, 2, 3));
    ab[0] = a, ab[1] = b;
    mpt_tensor product = mpt_matmul(a, b);
    CHECK(mpt_allclose(mpt_einsum("ij,jk", ab, 2), product, 1e-6, 1e-6));
    CHECK(mpt_allclose(mpt_einsum(" i j , j k -> i k ", ab, 2), product, 1e-6, 1e-6));
    CHECK(mpt_allclose(mpt_einsum("...j,jk", ab, 2), product, 1e-6, 1e-6));
    CHECK(mpt_allclose(mpt_einsum("ba", &a, 1), mpt_transpose(a, 0, 1), 0, 0));
    CHECK(mpt_allclose(mpt_einsum("aB", &a, 1), mpt_transpose(a, 0, 1), 0, 0)); /* capitals first */
    CHECK(mpt_allclose(mpt_einsum("...c->c...", &cube, 1), mpt_permute(cube, MPT_SHAPE(2, 0, 1)), 0,
                       0));
    CHECK(mpt_einsum("ij->ij", &a, 1).slot != a.slot); /* a handle of its own */
    float off[4] = {1, INFINITY, NAN, 2};
    mpt_tensor odd = mpt_from(context, MPT_F32, MPT_SHAPE(2, 2), off);
    CHECK_NEAR(mpt_item(mpt_einsum("ii", &odd, 1)), 3.0, 0);
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

TEST(leaves_its_result_alone) {
    mpt_context *context = mpt_create(NULL);
    mpt_tensor in[3];
    for (int i = 0; i < 3; i++) in[i] = ramp(context, MPT_SHAPE(2, 3, 3));
    for (int64_t i = 0, first = 0; i < 3; i++) {
        mpt_release(mpt_einsum("bqd,bkd,bqk->dq", in, 3));
        mpt_release(mpt_einsum("bii,cjj->", in, 2));
        if (i == 0) first = mpt_memory(context).total_current; /* the pool has what it takes */
        CHECK_EQ_INT(mpt_memory(context).total_current, first);
    }
    mpt_destroy(context);
}

TEST(says_what_is_wrong) {
    static const struct {
        const char *equation;
        int count;
        const char *words;
    } wrong[] = {{"ij,jk->il", 2, "in no operand"},
                 {"ij,jk->ii", 2, "stands there twice"},
                 {"ij,kk->il", 2, "'k' is 4 in operand 2 [3, 4], but 3 before"},
                 {"ij", 2, "character 3: fewer operands than tensors"},
                 {"ij,jk", 1, "character 3: more operands than tensors"},
                 {"ij-jk", 1, "character 3: expected \"->\""},
                 {"i1", 1, "character 2: expected a letter"},
                 {"ij->i->j", 1, "behind the output"},
                 {"ijk", 1, "has 2 dimensions, but 3 labels"},
                 {"...ijk", 1, "more labels than dimensions"},
                 {"ij......", 1, "once"},
                 {"ii", 1, "'i' is 3 in operand 1 [2, 3], but 2 before"},
                 {NULL, 1, "an equation"},
                 {"ij", 0, "1 to 8 tensors"},
                 {"ij", 9, "1 to 8 tensors"}};
    mpt_context *context = mpt_create(NULL);
    mpt_tensor in[9];
    for (int i = 0; i < 9; i++)
        in[i] = i == 0 ? ramp(context, MPT_SHAPE(2, 3)) : ramp(context, MPT_SHAPE(3, 4));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mpt_tensor out = mpt_einsum(wrong[i].equation, in, wrong[i].count);
        if (wrong[i].count > 0) {
            CHECK(out.slot == 0);
            CHECK_CONTAINS(mpt_error(context), wrong[i].words);
        }
        mpt_clear_error(context);
    }
    mpt_destroy(context);
}

TEST_TABLE = {T(sums_what_plain_loops_sum), T(has_gradients), T(reads_what_others_write),
              T(leaves_its_result_alone), T(says_what_is_wrong)};
TEST_MAIN
