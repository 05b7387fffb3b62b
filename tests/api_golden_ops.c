/* api_golden_ops.c: every op against PyTorch: outputs, dtypes and gradients, in fp32, fp16 and bf16
 * and inside autocast regions, over contiguous and strided inputs. */
#include "golden.h"

#define MAX_INPUTS 8

static mpt_context *context;

/* ---- one function per kind of call; ops with the same signature share one ---- */

typedef mpt_tensor (*unary_fn)(mpt_tensor);
typedef mpt_tensor (*binary_fn)(mpt_tensor, mpt_tensor);
typedef mpt_tensor (*reduce_fn)(mpt_tensor, int, bool);
typedef mpt_tensor (*loss_fn)(mpt_tensor, mpt_tensor, const mpt_nll_config *);

typedef struct op_row {
    const char *name;
    mpt_tensor (*call)(const struct op_row *row, const golden_case *c, const mpt_tensor *in, int n);
    unary_fn unary;
    binary_fn binary;
    reduce_fn reduce;
    loss_fn loss;
} op_row;

static mpt_shape shape_of_ints(const golden_case *c) {
    mpt_shape shape = MPT_SCALAR;
    shape.rank = c->n_ints;
    for (int d = 0; d < c->n_ints; d++) shape.dim[d] = c->ints[d];
    return shape;
}

static int dim_of(int64_t dim) { return dim == INT32_MIN ? MPT_ALL_DIMS : (int)dim; }

/* GCC and clang warn about a parameter that a signature forces on a function. */
#define UNUSED(x) ((void)(x))

static mpt_tensor call_unary(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    UNUSED(c), UNUSED(n);
    return row->unary(in[0]);
}

static mpt_tensor call_binary(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    UNUSED(c), UNUSED(n);
    return row->binary(in[0], in[1]);
}

static mpt_tensor call_matmul(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    mpt_tensor a = in[0];
    UNUSED(row), UNUSED(n);
    if (c->n_ints) {
        mpt_shape shape = mpt_get_shape(a);
        shape.dim[shape.rank - 1] = c->ints[0];
        a = mpt_expand(a, shape);
    }
    return mpt_matmul(a, in[1]);
}

static mpt_tensor call_reduce(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    UNUSED(n);
    return row->reduce(in[0], dim_of(c->ints[0]), c->ints[1] != 0);
}

static mpt_tensor call_loss(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    mpt_nll_config config = mpt_nll_config_default();
    static const mpt_reduction reductions[] = {MPT_MEAN, MPT_SUM, MPT_NONE};
    config.reduction = reductions[c->ints[0]];
    config.ignore_index = c->ints[1];
    config.label_smoothing = c->reals[0];
    if (n > 2) config.weight = in[2];
    return row->loss(in[0], in[1], &config);
}

static mpt_tensor call_scalar(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    UNUSED(n);
    return strcmp(row->name, "add_scalar") == 0 ? mpt_add_scalar(in[0], c->reals[0])
                                                : mpt_mul_scalar(in[0], c->reals[0]);
}

static mpt_tensor call_numbers(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    double a = c->reals[0], b = c->n_reals > 1 ? c->reals[1] : 0;
    UNUSED(n);
#define OP(id, expression) \
    if (strcmp(row->name, #id) == 0) return expression
    OP(pow_scalar, mpt_pow_scalar(in[0], a));
    OP(leaky_relu, mpt_leaky_relu(in[0], a));
    OP(elu, mpt_elu(in[0], a));
    OP(softplus, mpt_softplus(in[0], a, b));
    OP(hardtanh, mpt_hardtanh(in[0], a, b));
#undef OP
    return mpt_clamp(in[0], a, b);
}

static mpt_tensor call_statistic(const op_row *row, const golden_case *c, const mpt_tensor *in,
                                 int n) {
    int dim = dim_of(c->ints[0]);
    bool keep = c->n_ints > 1 && c->ints[1] != 0;
    UNUSED(n);
    if (strcmp(row->name, "cumsum") == 0) return mpt_cumsum(in[0], dim);
    if (strcmp(row->name, "norm") == 0) return mpt_norm(in[0], c->reals[0], dim, keep);
    if (strcmp(row->name, "std") == 0) return mpt_std(in[0], dim, keep, c->reals[0]);
    return mpt_var(in[0], dim, keep, c->reals[0]);
}

static mpt_tensor call_index(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    int dim = dim_of(c->ints[0]), other = c->n_ints > 1 ? dim_of(c->ints[1]) : 0;
    mpt_tensor parts[8];
#define OP(id, expression) \
    if (strcmp(row->name, #id) == 0) return expression
    OP(gather, mpt_gather(in[0], dim, in[1]));
    OP(index_select, mpt_index_select(in[0], dim, in[1]));
    OP(scatter_add, mpt_scatter_add(in[0], dim, in[1], in[2]));
    OP(one_hot, mpt_one_hot(in[0], dim));
    OP(stack, mpt_stack(in, n, dim));
    OP(flip, mpt_flip(in[0], dim));
    OP(roll, mpt_roll(in[0], dim, other));
    OP(repeat, mpt_repeat(in[0], shape_of_ints(c)));
    OP(pad, mpt_pad(in[0], shape_of_ints(c), c->reals[0]));
    OP(tril, mpt_tril(in[0], dim));
    OP(triu, mpt_triu(in[0], dim));
#undef OP
    if (strcmp(row->name, "split") == 0) {
        CHECK(mpt_split_tensor(in[0], dim, other, parts, 8) > 1);
    } else {
        CHECK(mpt_chunk(in[0], dim, other, parts, 8) > 1);
    }
    return parts[c->ints[2]];
}

static mpt_tensor call_order(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    int64_t a = c->ints[0];
    int b = (int)c->ints[1];
    mpt_tensor indices;
    UNUSED(n);
#define OP(id, expression) \
    if (strcmp(row->name, #id) == 0) return expression
    OP(sort, mpt_sort(in[0], (int)a, b != 0, NULL));
    OP(argsort, mpt_argsort(in[0], (int)a, b != 0));
    OP(topk, mpt_topk(in[0], a, b, c->ints[2] != 0, NULL));
#undef OP
    mpt_release(mpt_topk(in[0], a, b, c->ints[2] != 0, &indices));
    return indices;
}

/* With a number; in place on a copy of their own. */
static mpt_tensor call_number(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    double value = c->reals[0];
    UNUSED(n);
#define OP(id, expression) \
    if (strcmp(row->name, #id) == 0) return expression
    OP(lt_scalar, mpt_lt_scalar(in[0], value));
    OP(le_scalar, mpt_le_scalar(in[0], value));
    OP(gt_scalar, mpt_gt_scalar(in[0], value));
    OP(ge_scalar, mpt_ge_scalar(in[0], value));
    OP(eq_scalar, mpt_eq_scalar(in[0], value));
    OP(ne_scalar, mpt_ne_scalar(in[0], value));
    OP(relu_, mpt_relu_(mpt_clone(in[0])));
    OP(add_scalar_, mpt_add_scalar_(mpt_clone(in[0]), value));
    OP(mul_scalar_, mpt_mul_scalar_(mpt_clone(in[0]), value));
    OP(add_, mpt_add_(mpt_clone(in[0]), in[1]));
    OP(mul_, mpt_mul_(mpt_clone(in[0]), in[1]));
#undef OP
    return mpt_copy_(mpt_clone(in[0]), in[1]);
}

static mpt_tensor call_class_loss(const op_row *row, const golden_case *c, const mpt_tensor *in,
                                  int n) {
    static const mpt_reduction reductions[] = {MPT_MEAN, MPT_SUM, MPT_NONE};
    mpt_reduction kind = reductions[c->ints[0]];
    mpt_tensor weight;
    memset(&weight, 0, sizeof weight);
    if (n > 2) weight = in[2];
    if (strcmp(row->name, "poisson_nll_loss") == 0)
        return mpt_poisson_nll_loss(in[0], in[1], c->ints[1] != 0, c->ints[2] != 0, c->reals[0],
                                    kind);
    if (strcmp(row->name, "multi_margin_loss") == 0)
        return mpt_multi_margin_loss(in[0], in[1], (int)c->ints[1], c->reals[0], weight, kind);
    return mpt_multilabel_soft_margin_loss(in[0], in[1], weight, kind);
}

static mpt_tensor call_interpolate(const op_row *row, const golden_case *c, const mpt_tensor *in,
                                   int n) {
    mpt_shape size = c->ints[0] ? MPT_SHAPE(c->ints[0], c->ints[1]) : MPT_SCALAR;
    UNUSED(row), UNUSED(n);
    return mpt_interpolate(in[0], size, c->reals[0], c->ints[2] ? MPT_BILINEAR : MPT_NEAREST,
                           c->ints[3] != 0);
}

static mpt_tensor call_dropout(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    UNUSED(row), UNUSED(n);
    return mpt_dropout(in[0], c->reals[0]);
}

static mpt_tensor call_scaled(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.init_scale = c->reals[0];
    UNUSED(row), UNUSED(n);
    return mpt_scale_loss(mpt_grad_scaler(context, &config), in[0]);
}

/* An op of a user's own: a * b. */
static mpt_status product_forward(mpt_op_call *call, void *user) {
    UNUSED(user);
    for (int i = 0; i < 2; i++) mpt_op_save(call, i, mpt_op_input(call, i));
    return mpt_op_set_output(call, 0, mpt_mul(mpt_op_input(call, 0), mpt_op_input(call, 1)));
}

static mpt_status product_backward(mpt_op_call *call, void *user) {
    mpt_tensor dy = mpt_op_output_grad(call, 0);
    UNUSED(user);
    mpt_op_set_input_grad(call, 0, mpt_mul(dy, mpt_op_saved(call, 1)));
    return mpt_op_set_input_grad(call, 1, mpt_mul(dy, mpt_op_saved(call, 0)));
}

static mpt_tensor call_user(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    const mpt_op_class product = {
        "product", MPT_AUTOCAST_INPUT, product_forward, product_backward, 2, 1};
    mpt_tensor out;
    UNUSED(row), UNUSED(c);
    mpt_op_apply(mpt_op_register(context, &product, NULL), in, n, &out, 1);
    return out;
}

static mpt_tensor call_where(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    UNUSED(row), UNUSED(c), UNUSED(n);
    return mpt_where(in[0], in[1], in[2]);
}

static mpt_tensor call_softmax(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    UNUSED(n);
    return strcmp(row->name, "softmax") == 0 ? mpt_softmax(in[0], (int)c->ints[0])
                                             : mpt_log_softmax(in[0], (int)c->ints[0]);
}

static mpt_tensor call_linear(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    static const mpt_activation activations[] = {MPT_ACTIVATION_NONE, MPT_ACTIVATION_RELU,
                                                 MPT_ACTIVATION_GELU, MPT_ACTIVATION_GELU_TANH,
                                                 MPT_ACTIVATION_TANH, MPT_ACTIVATION_SIGMOID};
    mpt_tensor none;
    UNUSED(row);
    memset(&none, 0, sizeof none);
    return mpt_linear(in[0], in[1], n > 2 ? in[2] : none, activations[c->ints[0]]);
}

static mpt_tensor call_mse(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    static const mpt_reduction reductions[] = {MPT_MEAN, MPT_SUM, MPT_NONE};
    UNUSED(row), UNUSED(n);
    return mpt_mse_loss(in[0], in[1], reductions[c->ints[0]]);
}

static mpt_tensor call_cat(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    UNUSED(row);
    return mpt_cat(in, n, (int)c->ints[0]);
}

static mpt_tensor call_slice(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    UNUSED(row), UNUSED(n);
    return mpt_slice(in[0], (int)c->ints[0], c->ints[1], c->ints[2], c->ints[3]);
}

static mpt_tensor call_permute(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    UNUSED(row), UNUSED(n);
    return mpt_permute(in[0], shape_of_ints(c));
}

static mpt_tensor call_transpose(const op_row *row, const golden_case *c, const mpt_tensor *in,
                                 int n) {
    UNUSED(row), UNUSED(n);
    return mpt_transpose(in[0], (int)c->ints[0], (int)c->ints[1]);
}

static mpt_tensor call_expand(const op_row *row, const golden_case *c, const mpt_tensor *in,
                              int n) {
    UNUSED(row), UNUSED(n);
    return mpt_expand(in[0], shape_of_ints(c));
}

static mpt_tensor call_reshape(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    UNUSED(row), UNUSED(n);
    return mpt_reshape(in[0], shape_of_ints(c));
}

static mpt_tensor call_flatten(const op_row *row, const golden_case *c, const mpt_tensor *in,
                               int n) {
    UNUSED(row), UNUSED(n);
    return mpt_flatten(in[0], (int)c->ints[0], (int)c->ints[1]);
}

static mpt_tensor call_cast(const op_row *row, const golden_case *c, const mpt_tensor *in, int n) {
    static const mpt_dtype dtypes[] = {MPT_DTYPE_NONE, MPT_F32, MPT_F16, MPT_BF16,
                                       MPT_F64,        MPT_I64, MPT_U8,  MPT_BOOL};
    UNUSED(row), UNUSED(n);
    return mpt_cast(in[0], dtypes[c->ints[0]]);
}

#define UNARY(name) \
    { #name, call_unary, mpt_##name, NULL, NULL, NULL }
#define BINARY(name) \
    { #name, call_binary, NULL, mpt_##name, NULL, NULL }
#define REDUCE(name) \
    { #name, call_reduce, NULL, NULL, mpt_##name, NULL }
#define LOSS(name) \
    { #name, call_loss, NULL, NULL, NULL, mpt_##name }
#define OTHER(name, call) \
    { #name, call, NULL, NULL, NULL, NULL }

static const op_row op_rows[] = {
    BINARY(add),
    BINARY(sub),
    BINARY(mul),
    BINARY(div),
    BINARY(equal),
    OTHER(matmul, call_matmul),
    UNARY(neg),
    UNARY(exp),
    UNARY(log),
    UNARY(sqrt),
    UNARY(relu),
    UNARY(gelu),
    UNARY(gelu_tanh),
    UNARY(tanh),
    UNARY(sigmoid),
    UNARY(isnan),
    UNARY(isinf),
    UNARY(contiguous),
    UNARY(clone),
    REDUCE(sum),
    REDUCE(mean),
    REDUCE(max),
    REDUCE(argmax),
    LOSS(nll_loss),
    LOSS(cross_entropy),
    OTHER(add_scalar, call_scalar),
    OTHER(mul_scalar, call_scalar),
    OTHER(softmax, call_softmax),
    OTHER(log_softmax, call_softmax),
    OTHER(linear, call_linear),
    OTHER(mse_loss, call_mse),
    OTHER(cat, call_cat),
    OTHER(slice, call_slice),
    OTHER(permute, call_permute),
    OTHER(transpose, call_transpose),
    OTHER(expand, call_expand),
    OTHER(reshape, call_reshape),
    OTHER(flatten, call_flatten),
    OTHER(cast, call_cast),
    BINARY(lt),
    BINARY(le),
    BINARY(gt),
    BINARY(ge),
    BINARY(ne),
    BINARY(logical_and),
    BINARY(logical_or),
    BINARY(pow),
    BINARY(minimum),
    BINARY(maximum),
    UNARY(logical_not),
    UNARY(log1p),
    UNARY(rsqrt),
    UNARY(abs),
    UNARY(sign),
    UNARY(sin),
    UNARY(cos),
    UNARY(silu),
    OTHER(pow_scalar, call_numbers),
    OTHER(leaky_relu, call_numbers),
    OTHER(elu, call_numbers),
    OTHER(softplus, call_numbers),
    OTHER(hardtanh, call_numbers),
    OTHER(clamp, call_numbers),
    OTHER(where, call_where),
    OTHER(gather, call_index),
    OTHER(index_select, call_index),
    OTHER(scatter_add, call_index),
    OTHER(one_hot, call_index),
    OTHER(stack, call_index),
    OTHER(flip, call_index),
    OTHER(roll, call_index),
    OTHER(repeat, call_index),
    OTHER(pad, call_index),
    OTHER(tril, call_index),
    OTHER(triu, call_index),
    OTHER(split, call_index),
    OTHER(chunk, call_index),
    REDUCE(min),
    REDUCE(argmin),
    REDUCE(prod),
    REDUCE(logsumexp),
    OTHER(var, call_statistic),
    OTHER(std, call_statistic),
    OTHER(norm, call_statistic),
    OTHER(cumsum, call_statistic),
    OTHER(sort, call_order),
    OTHER(argsort, call_order),
    OTHER(topk, call_order),
    OTHER(topk_indices, call_order),
    OTHER(lt_scalar, call_number),
    OTHER(le_scalar, call_number),
    OTHER(gt_scalar, call_number),
    OTHER(ge_scalar, call_number),
    OTHER(eq_scalar, call_number),
    OTHER(ne_scalar, call_number),
    OTHER(relu_, call_number),
    OTHER(add_scalar_, call_number),
    OTHER(mul_scalar_, call_number),
    OTHER(add_, call_number),
    OTHER(mul_, call_number),
    OTHER(copy_, call_number),
    OTHER(poisson_nll_loss, call_class_loss),
    OTHER(multi_margin_loss, call_class_loss),
    OTHER(multilabel_soft_margin_loss, call_class_loss),
    OTHER(interpolate, call_interpolate),
    OTHER(dropout, call_dropout),
    OTHER(scale_loss, call_scaled),
    OTHER(user, call_user),
};
#define OP_ROWS (sizeof op_rows / sizeof *op_rows)

/* ---- inputs in the layout that the case asks for ---- */

typedef struct input {
    mpt_tensor base; /* the dense leaf that holds the elements */
    mpt_tensor view; /* what the op gets: the case's values in logical order */
    int64_t count;   /* elements of base */
} input;

/* Where element i, counted in logical order, lies in the base. */
static int64_t base_index(const golden_tensor *t, int64_t i) {
    int rank = t->shape.rank;
    if (t->layout == GOLDEN_TRANSPOSED) {
        int64_t columns = t->shape.dim[rank - 1], rows = t->shape.dim[rank - 2];
        int64_t matrix = i / (rows * columns), row = i / columns % rows, column = i % columns;
        return matrix * rows * columns + column * rows + row;
    }
    return t->layout == GOLDEN_SLICED ? 2 * i + 1 : i;
}

/* Sliced bases hold NaN between the values: whoever reads them by mistake cannot miss it. */
static void fill_between(const golden_tensor *t, unsigned char *data, int64_t count) {
    static const float nan_single = NAN;
    static const uint16_t nan_half = 0x7FFF;
    size_t size = mpt_dtype_size(t->dtype);
    memset(data, 0, (size_t)count * size);
    for (int64_t i = 0; t->layout == GOLDEN_SLICED && i < count; i += 2) {
        if (t->dtype == MPT_F32)
            memcpy(data + (size_t)i * size, &nan_single, size);
        else if (size == 2)
            memcpy(data + (size_t)i * size, &nan_half, size);
    }
}

static input make_input(const golden_tensor *t) {
    input in;
    mpt_shape shape = t->shape;
    size_t size = mpt_dtype_size(t->dtype);
    int last = shape.rank - 1;
    in.count = t->count;
    if (t->layout == GOLDEN_SLICED && last >= 0) {
        shape.dim[last] *= 2;
        in.count *= 2;
    } else if (t->layout == GOLDEN_TRANSPOSED) {
        shape.dim[last] = t->shape.dim[last - 1];
        shape.dim[last - 1] = t->shape.dim[last];
    }
    unsigned char *data = (unsigned char *)malloc((size_t)in.count * size + 1);
    fill_between(t, data, in.count);
    for (int64_t i = 0; i < t->count; i++)
        memcpy(data + (size_t)base_index(t, i) * size,
               (const unsigned char *)t->data + (size_t)i * size, size);
    in.base = mpt_from(context, t->dtype, shape, data);
    free(data);
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(in.base, true);
    in.view = t->layout == GOLDEN_SLICED       ? mpt_slice(in.base, last, 1, shape.dim[last], 2)
              : t->layout == GOLDEN_TRANSPOSED ? mpt_transpose(in.base, last, last - 1)
                                               : in.base;
    return in;
}

/* ---- checks ---- */

static int same_shape(mpt_shape a, mpt_shape b) {
    if (a.rank != b.rank) return 0;
    for (int d = 0; d < a.rank; d++)
        if (a.dim[d] != b.dim[d]) return 0;
    return 1;
}

/* Which elements dropout keeps is not PyTorch's choice: the golden says what they become, and what
   is zero is not compared. As many have to be as p says, within four standard deviations, and their
   gradients are zero, too. */
static void skip_dropped(const golden_case *c, const golden_tensor *want, float *got) {
    static unsigned char dropped[256];
    const double p = c->reals[0], n = (double)want->count;
    int64_t zeros = 0;
    if (strcmp(c->op, "dropout") != 0) return;
    for (int64_t i = 0; i < want->count; i++) {
        if (want->role == GOLDEN_OUTPUT) dropped[i] = got[i] == 0;
        zeros += dropped[i];
        CHECK((got[i] == 0) == dropped[i]);
        if (dropped[i]) got[i] = (float)golden_value(want, i);
    }
    if (fabs((double)zeros - p * n) > 4 * sqrt(n * p * (1 - p)))
        TEST_FAIL_("%s: %d of %d are dropped", c->label, (int)zeros, (int)want->count);
}

/* Integers and bools come through fp32, which holds all that the cases use. */
static int check_output(const golden_case *c, mpt_tensor out) {
    const golden_tensor *want = golden_find(c, "out");
    float *got;
    if (mpt_failed(context)) {
        TEST_FAIL_("%s: %s", c->label, mpt_error(context));
        return 0;
    }
    if (mpt_get_dtype(out) != want->dtype) {
        TEST_FAIL_("%s: output is %s, expected %s", c->label, mpt_dtype_name(mpt_get_dtype(out)),
                   mpt_dtype_name(want->dtype));
        return 0;
    }
    if (!same_shape(mpt_get_shape(out), want->shape)) {
        TEST_FAIL_("%s: the output's shape is not PyTorch's", c->label);
        return 0;
    }
    got = (float *)calloc((size_t)want->count + 1, sizeof *got);
    if (mpt_read_f32(out, got, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s", c->label, mpt_error(context));
    else {
        skip_dropped(c, want, got);
        golden_compare(c->label, want, 0, got, want->count);
    }
    free(got);
    return 1;
}

static void check_gradient(const golden_case *c, const golden_tensor *want, const input *in) {
    float *base = (float *)calloc((size_t)in->count + 1, sizeof *base);
    float *got = (float *)calloc((size_t)want->count + 1, sizeof *got);
    int64_t between = 0;
    if (mpt_read_f32(mpt_grad(in->base), base, in->count) != MPT_OK) {
        TEST_FAIL_("%s: %s: %s", c->label, want->name, mpt_error(context));
    } else {
        for (int64_t i = 0; i < want->count; i++) got[i] = base[base_index(want, i)];
        skip_dropped(c, want, got);
        golden_compare(c->label, want, 0, got, want->count);
        for (int64_t i = 0; want->layout == GOLDEN_SLICED && i < in->count; i += 2)
            between += base[i] != 0;
        if (between)
            TEST_FAIL_("%s: %s: gradient flows into elements that were sliced away", c->label,
                       want->name);
    }
    free(base);
    free(got);
}

static void run_case(const golden_case *c) {
    input in[MAX_INPUTS];
    mpt_tensor views[MAX_INPUTS], out;
    const golden_tensor *upstream = NULL;
    const op_row *row = NULL;
    int n = 0;
    for (size_t i = 0; i < OP_ROWS; i++)
        if (strcmp(op_rows[i].name, c->op) == 0) row = &op_rows[i];
    if (!row) {
        TEST_FAIL_("%s: no row for op %s", c->label, c->op);
        return;
    }
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role == GOLDEN_UPSTREAM) upstream = t;
        if (t->role > GOLDEN_LEAF || n == MAX_INPUTS) continue;
        in[n] = make_input(t);
        views[n] = in[n].view;
        n++;
    }
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_begin(context, c->region);
    out = row->call(row, c, views, n);
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_end(context);
    if (check_output(c, out) && upstream) {
        mpt_tensor entering = mpt_from(context, upstream->dtype, upstream->shape, upstream->data);
        if (mpt_backward_from(out, entering, false) != MPT_OK)
            TEST_FAIL_("%s: backward: %s", c->label, mpt_error(context));
        else
            for (int i = 0; i < c->n_tensors; i++)
                if (c->tensors[i].role == GOLDEN_GRADIENT)
                    check_gradient(c, &c->tensors[i], &in[c->tensors[i].input]);
    }
    if (mpt_failed(context))
        mpt_clear_error(context); /* ends the scope too */
    else
        mpt_scope_end(context);
}

/* ---- the tests: the cases of one dtype, or of all autocast regions ---- */

static int belongs(const golden_case *c, mpt_dtype dtype) {
    if (dtype == MPT_DTYPE_NONE || c->region != MPT_DTYPE_NONE)
        return c->region != MPT_DTYPE_NONE && dtype == MPT_DTYPE_NONE;
    mpt_dtype own = golden_case_dtype(c); /* a case without floats is fp32's */
    return (own == MPT_DTYPE_NONE ? MPT_F32 : own) == dtype;
}

static const char *const files[] = {"ops.bin", "more.bin"};
enum { FILES = sizeof files / sizeof *files };

static void run_cases(mpt_dtype dtype, int at_least) {
    golden_file file;
    static golden_case c;
    int run = 0, failed = 0;
    context = mpt_create(NULL);
    if (!context) TEST_FAIL_("%s", mpt_error(NULL));
    for (int i = 0; i < FILES; i++) {
        REQUIRE(golden_open(&file, files[i]));
        while (context && golden_next(&file, &c)) {
            int before = test_failures;
            if (!belongs(&c, dtype)) continue;
            run_case(&c);
            run++;
            failed += test_failures != before;
        }
        if (failed) printf("\n  %d of %d cases differ from torch %s", failed, run, file.version);
        golden_close(&file);
    }
    CHECK(run >= at_least);
    mpt_destroy(context);
}

TEST(fp32) { run_cases(MPT_F32, 450); }

TEST(fp16) { run_cases(MPT_F16, 450); }

TEST(bf16) { run_cases(MPT_BF16, 450); }

TEST(autocast) { run_cases(MPT_DTYPE_NONE, 150); }

/* No row above is without cases. That no row of the op table is, test_gradcheck.c says. */
TEST(every_row_has_cases) {
    golden_file file;
    static golden_case c;
    int seen[OP_ROWS] = {0};
    for (int f = 0; f < FILES; f++) {
        REQUIRE(golden_open(&file, files[f]));
        while (golden_next(&file, &c))
            for (size_t i = 0; i < OP_ROWS; i++) seen[i] |= strcmp(op_rows[i].name, c.op) == 0;
        golden_close(&file);
    }
    for (size_t i = 0; i < OP_ROWS; i++)
        if (!seen[i]) TEST_FAIL_("no case for op %s", op_rows[i].name);
}

TEST_TABLE = {T(fp32), T(fp16), T(bf16), T(autocast), T(every_row_has_cases)};
TEST_MAIN
