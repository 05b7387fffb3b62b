/* api_norm.c: norms and pooling: against PyTorch, forward and every gradient, in fp32, fp16 and bf16;
 * larger ones against sums in double; batch norm's running statistics. */
#include "golden.h"

#define MAX_INPUTS 5
enum { CHANNELS_LAST = 3 };

static mpt_context *context;

static mpt_tensor nothing(void) {
    mpt_tensor null;
    memset(&null, 0, sizeof null);
    return null;
}

/* ==== Goldens ==== */

static mpt_tensor call(const golden_case *c, const mpt_tensor *in, mpt_tensor *sum) {
    const double eps = c->n_reals > 0 ? c->reals[0] : 0;
    const int n = c->n_ints > 0 ? (int)c->ints[0] : 0;
    *sum = nothing();
#define OP(id, expression) \
    if (strcmp(c->op, #id) == 0) return expression
    OP(layer_norm, mpt_layer_norm(in[0], n, in[1], in[2], eps));
    OP(rms_norm, mpt_rms_norm(in[0], n, in[1], eps));
    OP(add_layer_norm, mpt_add_layer_norm(in[0], in[1], n, in[2], in[3], eps, sum));
    OP(add_rms_norm, mpt_add_rms_norm(in[0], in[1], n, in[2], eps, sum));
    OP(batch_norm, mpt_batch_norm(in[0], in[3], in[4], in[1], in[2], eps));
    OP(group_norm, mpt_group_norm(in[0], n, in[1], in[2], eps));
#undef OP
    TEST_FAIL_("%s: no such op here", c->label);
    return nothing();
}

/* The order that turns the layout of the base into the logical one. */
static int layout_order(int layout, int rank, mpt_shape *order) {
    *order = rank == 4 ? MPT_SHAPE(0, 1, 2, 3) : MPT_SHAPE(0, 1);
    if (layout == GOLDEN_TRANSPOSED) *order = MPT_SHAPE(1, 0);
    if (layout == CHANNELS_LAST) *order = MPT_SHAPE(0, 3, 1, 2);
    return layout == GOLDEN_TRANSPOSED || layout == CHANNELS_LAST;
}

/* A leaf, laid out as the case asks, and in `view` what the op gets. */
static mpt_tensor make_leaf(const golden_tensor *t, mpt_tensor *view) {
    mpt_tensor dense = mpt_from(context, t->dtype, t->shape, t->data), base = dense;
    mpt_shape order, back = MPT_SHAPE(0, 2, 3, 1);
    if (layout_order(t->layout, t->shape.rank, &order))
        base = mpt_clone(mpt_permute(dense, t->layout == CHANNELS_LAST ? back : order));
    else if (t->layout == GOLDEN_SLICED)
        base = mpt_stack(&dense, 1, 1);
    base = mpt_detach(mpt_contiguous(base));
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(base, true);
    *view = layout_order(t->layout, t->shape.rank, &order) ? mpt_permute(base, order) : base;
    if (t->layout == GOLDEN_SLICED) *view = mpt_reshape(base, t->shape);
    return base;
}

static void compare(const golden_case *c, const golden_tensor *want, mpt_tensor got) {
    float *values = (float *)calloc((size_t)want->count + 1, sizeof *values);
    if (mpt_failed(context) || mpt_read_f32(got, values, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s: %s", c->label, want->name, mpt_error(context));
    else
        golden_compare(c->label, want, 0, values, want->count);
    free(values);
}

static void run_case(const golden_case *c) {
    mpt_tensor leaf[MAX_INPUTS], view[MAX_INPUTS], sum, up[2];
    int n_up = 0;
    for (int i = 0; i < MAX_INPUTS; i++) view[i] = leaf[i] = nothing();
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role <= GOLDEN_LEAF) leaf[t->input] = make_leaf(t, &view[t->input]);
        if (t->role == GOLDEN_UPSTREAM)
            up[n_up++] = mpt_from(context, t->dtype, t->shape, t->data);
    }
    mpt_tensor out = call(c, view, &sum);
    const golden_tensor *want = golden_find(c, "out");
    CHECK_EQ_INT(mpt_get_dtype(out), want->dtype);
    compare(c, want, out);
    if (c->tensors[0].layout == CHANNELS_LAST) /* the output lies as the input does */
        CHECK(mpt_is_contiguous(mpt_permute(out, MPT_SHAPE(0, 2, 3, 1))));
    if (sum.slot) {
        compare(c, golden_find(c, "sum"), sum);
        mpt_backward_from(sum, up[1], true);
        for (int i = 0; i < c->n_tensors; i++) /* of that alone: as it came */
            if (c->tensors[i].role == GOLDEN_GRADIENT && c->tensors[i].input < 2)
                CHECK(mpt_allclose(mpt_grad(leaf[c->tensors[i].input]), up[1], 0, 0));
        for (int i = 0; i < MAX_INPUTS; i++)
            if (leaf[i].slot) mpt_clear_grad(leaf[i]);
        mpt_tensor both[2] = {out, sum}, flat[2];
        for (int i = 0; i < 2; i++) {
            flat[i] = mpt_mul(mpt_cast(both[i], MPT_F32), mpt_cast(up[i], MPT_F32));
            flat[i] = mpt_sum(flat[i], MPT_ALL_DIMS, false);
        }
        mpt_backward(mpt_add(flat[0], flat[1]));
    } else {
        mpt_backward_from(out, up[0], false);
    }
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        mpt_shape order;
        if (t->role != GOLDEN_GRADIENT) continue;
        mpt_tensor gradient = mpt_grad(leaf[t->input]);
        if (layout_order(t->layout, t->shape.rank, &order)) gradient = mpt_permute(gradient, order);
        compare(c, t, gradient);
    }
    if (mpt_failed(context))
        mpt_clear_error(context); /* ends the scope too */
    else
        mpt_scope_end(context);
}

TEST(goldens) {
    golden_file file;
    static golden_case c;
    mpt_config config = mpt_config_default();
    config.debug = true;
    int run = 0;
    REQUIRE(golden_open(&file, "norm.bin"));
    context = mpt_create(&config);
    REQUIRE(context != NULL);
    for (; golden_next(&file, &c); run++) run_case(&c);
    CHECK(run >= 120);
    golden_close(&file);
    mpt_destroy(context);
}

TEST_TABLE = {T(goldens)};
TEST_MAIN
