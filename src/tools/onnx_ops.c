/* ----
 * tools/onnx_ops.c: how ops on elements, shapes, indices and along dimensions are written as ONNX.
 *
 * Each function writes the op under way. Its numbers are those of the op's row in src/ops/.
 * ---- */
#ifndef MPT__ONNX_OPS_INCLUDED
#define MPT__ONNX_OPS_INCLUDED

#include "onnx_model.c"

/* A row of the table of ops: what it becomes, and who writes it. */
typedef struct mpt__onnx_row {
    const char *op, *form; /* form: the node's type, or "composed" */
    void (*write)(mpt__onnx *o, const char *form);
} mpt__onnx_row;

/* ==== Elements ==== */

/* A function of each element, in fp32. */
static void mpt__onnx_unary(mpt__onnx *o, const char *form) {
    mpt__onnx_give(o, 0, mpt__onnx_one(o, form, mpt__onnx_wide(o, 0)));
}

/* One that gives a half of a half without rounding. */
static void mpt__onnx_plain(mpt__onnx *o, const char *form) {
    mpt__onnx_give(o, 0, mpt__onnx_one(o, form, mpt__onnx_in_as(o, 0, mpt__onnx_real(o))));
}

static void mpt__onnx_binary(mpt__onnx *o, const char *form) {
    const mpt_dtype real = mpt__onnx_real(o);
    const int a = mpt__onnx_in_as(o, 0, real), b = mpt__onnx_in_as(o, 1, real);
    mpt__onnx_give(o, 0, mpt__onnx_two(o, form, a, b));
}

static void mpt__onnx_wide_binary(mpt__onnx *o, const char *form) {
    mpt__onnx_give(o, 0, mpt__onnx_two(o, form, mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1)));
}

static void mpt__onnx_scalar(mpt__onnx *o, const char *form) {
    mpt__onnx_give(o, 0, mpt__onnx_with(o, form, mpt__onnx_wide(o, 0), o->node->number[0]));
}

static void mpt__onnx_pow_scalar(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    const double power = o->node->number[0];
    mpt__onnx_give(o, 0,
        power == 2.0 ? mpt__onnx_two(o, "Mul", x, x) : mpt__onnx_with(o, form, x, power));
}

/* Of one with `alpha`. */
static void mpt__onnx_alpha(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    mpt__onnx_float(o, "alpha", o->node->number[0]);
    mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

static void mpt__onnx_clamp(mpt__onnx *o, const char *form) {
    int in[3];
    in[0] = mpt__onnx_wide(o, 0);
    for (int i = 0; i < 2; i++)
        in[1 + i] = mpt__tools_is_finite(o->node->number[i])
            ? mpt__onnx_number(o, o->node->number[i])
            : -1;
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

static void mpt__onnx_predicate(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, &x, 1, MPT_BOOL));
}

/* x (1 + erf(x / sqrt(2))) / 2 */
static void mpt__onnx_gelu(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    (void)form;
    int y = mpt__onnx_one(o, "Erf", mpt__onnx_with(o, "Div", x, 1.4142135623730951));
    y = mpt__onnx_two(o, "Mul", x, mpt__onnx_with(o, "Add", y, 1.0));
    mpt__onnx_give(o, 0, mpt__onnx_with(o, "Mul", y, 0.5));
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
static void mpt__onnx_gelu_tanh(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    (void)form;
    int y = mpt__onnx_two(o, "Mul", mpt__onnx_two(o, "Mul", x, x), x);
    y = mpt__onnx_two(o, "Add", x, mpt__onnx_with(o, "Mul", y, 0.044715));
    y = mpt__onnx_one(o, "Tanh", mpt__onnx_with(o, "Mul", y, 0.7978845608028654));
    y = mpt__onnx_two(o, "Mul", x, mpt__onnx_with(o, "Add", y, 1.0));
    mpt__onnx_give(o, 0, mpt__onnx_with(o, "Mul", y, 0.5));
}

static void mpt__onnx_silu(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    (void)form;
    mpt__onnx_give(o, 0, mpt__onnx_two(o, "Mul", x, mpt__onnx_one(o, "Sigmoid", x)));
}

static void mpt__onnx_softplus(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    const double beta = o->node->number[0], threshold = o->node->number[1];
    const int scaled = beta == 1.0 ? x : mpt__onnx_with(o, "Mul", x, beta);
    int y = mpt__onnx_one(o, form, scaled);
    if (beta != 1.0) y = mpt__onnx_with(o, "Div", y, beta);
    const int beyond = mpt__onnx_compare(o, "Greater", scaled, mpt__onnx_number(o, threshold));
    mpt__onnx_give(o, 0, mpt__onnx_where(o, beyond, x, y));
}

/* With u = 1 + x: x log(u) / (u - 1), and x where u is 1: what rounding u has lost goes away. */
static void mpt__onnx_log1p(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0), u = mpt__onnx_with(o, "Add", x, 1.0);
    (void)form;
    const int less = mpt__onnx_with(o, "Sub", u, 1.0);
    const int tiny = mpt__onnx_compare(o, "Equal", less, mpt__onnx_number(o, 0.0));
    int y = mpt__onnx_two(o, "Mul", x, mpt__onnx_one(o, "Log", u));
    y = mpt__onnx_two(o, "Div", y, mpt__onnx_where(o, tiny, mpt__onnx_number(o, 1.0), less));
    mpt__onnx_give(o, 0, mpt__onnx_where(o, tiny, x, y));
}

static void mpt__onnx_rsqrt(mpt__onnx *o, const char *form) {
    (void)form;
    const int root = mpt__onnx_one(o, "Sqrt", mpt__onnx_wide(o, 0));
    mpt__onnx_give(o, 0, mpt__onnx_one(o, "Reciprocal", root));
}

/* Numbers of equal dtypes that runtimes compare: fp32, or integers of 32 or 64 bits. */
static void mpt__onnx_comparison(mpt__onnx *o, const char *form) {
    const mpt_dtype a = mpt__onnx_dtype(o, mpt__onnx_in(o, 0));
    const mpt_dtype b = mpt__onnx_dtype(o, mpt__onnx_in(o, 1));
    const bool real = mpt__onnx_is_float(a) || mpt__onnx_is_float(b);
    const mpt_dtype dtype = real ? MPT_F32 : a == MPT_I64 || b == MPT_I64 ? MPT_I64 : MPT_I32;
    const bool differ = strcmp(form, "composed") == 0;
    int y = mpt__onnx_compare(o, differ ? "Equal" : form, mpt__onnx_in_as(o, 0, dtype),
        mpt__onnx_in_as(o, 1, dtype));
    mpt__onnx_give(o, 0, differ ? mpt__onnx_one(o, "Not", y) : y);
}

static void mpt__onnx_logical(mpt__onnx *o, const char *form) {
    int in[2];
    for (int i = 0; i < o->node->inputs && i < 2; i++) in[i] = mpt__onnx_in_as(o, i, MPT_BOOL);
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, o->node->inputs, MPT_BOOL));
}

static void mpt__onnx_choice(mpt__onnx *o, const char *form) {
    (void)form;
    mpt__onnx_give(o, 0,
        mpt__onnx_where(o, mpt__onnx_in(o, 0), mpt__onnx_wide(o, 1), mpt__onnx_wide(o, 2)));
}

/* ==== Shapes ==== */

/* Only the dtype may change, which mpt__onnx_give sees to. */
static void mpt__onnx_same(mpt__onnx *o, const char *form) {
    (void)form;
    mpt__onnx_give(o, 0, mpt__onnx_in(o, 0));
}

static void mpt__onnx_reshaped(mpt__onnx *o, const char *form) {
    const mpt_shape *from = mpt__onnx_shape(o, 0, 0), *to = &o->node->shape[0];
    bool same = from->rank == to->rank;
    (void)form;
    for (int i = 0; same && i < to->rank; i++) same = from->dim[i] == to->dim[i];
    const int x = mpt__onnx_in(o, 0);
    mpt__onnx_give(o, 0, same ? x : mpt__onnx_shaped(o, x));
}

static void mpt__onnx_permute(mpt__onnx *o, const char *form) {
    mpt_shape order;
    order.rank = o->node->rank;
    (void)form;
    memcpy(order.dim, o->node->index, sizeof order.dim);
    mpt__onnx_give(o, 0, mpt__onnx_transpose(o, mpt__onnx_in(o, 0), order));
}

static void mpt__onnx_slice(mpt__onnx *o, const char *form) {
    const mpt_node *node[2];
    int64_t start[2], stop[2], whole = 0;
    node[0] = o->node, node[1] = o->other;
    const int64_t dim = o->node->index[0], step = o->node->index[3];
    for (int i = 0; i < 2; i++) {
        const int64_t count = node[i]->shape[0].dim[dim];
        start[i] = node[i]->index[1];
        stop[i] = count > 0 ? start[i] + (count - 1) * step + 1 : start[i];
        whole += start[i] == 0 && count == mpt__onnx_shape(o, 0, i)->dim[dim];
    }
    const int x = mpt__onnx_in(o, 0);
    if (whole == 2) {
        mpt__onnx_give(o, 0, x);
        return;
    }
    const int in[] = {x, mpt__onnx_size(o, start[0], start[1]), mpt__onnx_size(o, stop[0], stop[1]),
        mpt__onnx_integer(o, dim), mpt__onnx_integer(o, step)};
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 5, mpt__onnx_dtype(o, x)));
}

static void mpt__onnx_expand(mpt__onnx *o, const char *form) {
    (void)form;
    mpt__onnx_give(o, 0, mpt__onnx_expanded(o, mpt__onnx_in(o, 0)));
}

static void mpt__onnx_cat(mpt__onnx *o, const char *form) {
    int parts[MPT_NODE_INPUTS];
    (void)form;
    for (int i = 0; i < o->node->inputs; i++)
        parts[i] = mpt__onnx_in_as(o, i, o->node->dtype[0]);
    mpt__onnx_give(o, 0, mpt__onnx_concat(o, parts, o->node->inputs, o->node->index[0]));
}

/* index: before and after the last dimension, then the one before it, and so on. */
static void mpt__onnx_pad(mpt__onnx *o, const char *form) {
    int64_t pads[2 * MPT_MAX_RANK];
    const int rank = mpt__onnx_rank(o, 0);
    memset(pads, 0, sizeof pads);
    for (int i = 0; i < o->node->rank; i++)
        pads[(i % 2) * rank + rank - 1 - i / 2] = o->node->index[i];
    const int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_list(o, pads, 2 * rank),
        mpt__onnx_number(o, o->node->number[0])};
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

static void mpt__onnx_flip(mpt__onnx *o, const char *form) {
    (void)form;
    const int x = mpt__onnx_in(o, 0);
    const int in[] = {x, mpt__onnx_integer(o, -1), mpt__onnx_integer(o, -INT64_MAX),
        mpt__onnx_integer(o, o->node->index[0]), mpt__onnx_integer(o, -1)};
    mpt__onnx_give(o, 0, mpt__onnx_rank(o, 0) == 0
            ? x
            : mpt__onnx_put(o, "Slice", in, 5, mpt__onnx_dtype(o, x)));
}

static void mpt__onnx_triangle(mpt__onnx *o, const char *form) {
    const int in[] = {mpt__onnx_wide(o, 0),
        mpt__onnx_integers(o, &o->node->index[0], MPT_SCALAR)};
    mpt__onnx_int(o, "upper", o->node->name[2] == 'i' && o->node->name[3] == 'u');
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 2, MPT_F32));
}

/* index: height and width, or 0 where a scale counts, which is one through number; the way:
   nearest, pixels as areas, corners stay. */
static void mpt__onnx_resize(mpt__onnx *o, const char *form) {
    static const char *const ways[] = {"asymmetric", "half_pixel", "align_corners"};
    static const int64_t dims[] = {2, 3};
    const int64_t *index = o->node->index, way = index[2];
    int in[] = {mpt__onnx_wide(o, 0), -1, -1, -1};
    mpt__onnx_fixed(o, 0, 2);
    if (index[0] == 0 && way != 2) {
        double scale[2];
        for (int i = 0; i < 2; i++) scale[i] = 1.0 / o->node->number[i];
        in[2] = mpt__onnx_floats(o, scale, MPT_SHAPE(2));
    } else {
        in[3] = mpt__onnx_list(o, &o->node->shape[0].dim[2], 2);
    }
    mpt__onnx_ints(o, "axes", dims, 2);
    mpt__onnx_text(o, "mode", way == 0 ? "nearest" : "linear");
    mpt__onnx_text(o, "coordinate_transformation_mode", ways[way]);
    if (way == 0) mpt__onnx_text(o, "nearest_mode", "floor");
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 4, MPT_F32));
}

/* ==== Indices ==== */

/* Elements, or rows of a table, along a dimension. */
static void mpt__onnx_gather(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_in(o, 0);
    mpt__onnx_int(o, "axis", o->node->index[0]);
    mpt__onnx_give(o, 0, mpt__onnx_two(o, form, x, mpt__onnx_in(o, 1)));
}

static void mpt__onnx_embedding(mpt__onnx *o, const char *form) {
    mpt__onnx_int(o, "axis", 0);
    mpt__onnx_give(o, 0, mpt__onnx_two(o, form, mpt__onnx_in(o, 1), mpt__onnx_in(o, 0)));
}

static void mpt__onnx_scatter_add(mpt__onnx *o, const char *form) {
    const int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_in(o, 1), mpt__onnx_wide(o, 2)};
    mpt__onnx_int(o, "axis", o->node->index[0]);
    mpt__onnx_text(o, "reduction", "add");
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

/* 0, 1 and so on. */
static int mpt__onnx_counted(mpt__onnx *o, int64_t count) {
    int64_t *numbers = (int64_t *)mpt__tools_allocate((size_t)count * sizeof *numbers);
    if (!numbers) return mpt__onnx_out_of_memory(o);
    for (int64_t i = 0; i < count; i++) numbers[i] = i;
    const int out = mpt__onnx_integers(o, numbers, MPT_SHAPE(count));
    mpt__tools_release(numbers);
    return out;
}

/* Which of the classes each is. */
static void mpt__onnx_one_hot(mpt__onnx *o, const char *form) {
    (void)form;
    const int x = mpt__onnx_two(o, "Unsqueeze", mpt__onnx_in(o, 0), mpt__onnx_integer(o, -1));
    const int all = mpt__onnx_counted(o, o->node->index[1]);
    mpt__onnx_give(o, 0, mpt__onnx_compare(o, "Equal", x, all));
}

/* index: dimension, how many, the largest first. */
static void mpt__onnx_argsort(mpt__onnx *o, const char *form) {
    const int64_t dim = o->node->index[0];
    const int in[] = {mpt__onnx_wide(o, 0),
        mpt__onnx_size(o, o->node->shape[0].dim[dim], o->other->shape[0].dim[dim])};
    const int out[] = {mpt__onnx_made(o, MPT_F32), mpt__onnx_made(o, MPT_I64)};
    mpt__onnx_int(o, "axis", dim);
    mpt__onnx_int(o, "largest", o->node->index[2] != 0);
    mpt__onnx_put_many(o, form, in, 2, out, 2);
    mpt__onnx_give(o, 0, out[1]);
}

/* ==== Along dimensions ==== */

/* The dimensions that a reduction goes over; returns how many. */
static int mpt__onnx_dims_of(const mpt__onnx *o, int64_t *dims) {
    int count = 0;
    if (!o->node->index[2]) dims[count++] = o->node->index[0];
    for (int i = 0; i < mpt__onnx_rank(o, 0) && o->node->index[2]; i++) dims[count++] = i;
    return count;
}

static int mpt__onnx_over(mpt__onnx *o, const char *form, int value, bool keep) {
    int64_t dims[MPT_MAX_RANK];
    const int count = mpt__onnx_dims_of(o, dims);
    return mpt__onnx_reduce(o, form, value, dims, count, keep);
}

static void mpt__onnx_reduction(mpt__onnx *o, const char *form) {
    mpt__onnx_give(o, 0, mpt__onnx_over(o, form, mpt__onnx_wide(o, 0), o->node->index[1] != 0));
}

static void mpt__onnx_argmax(mpt__onnx *o, const char *form) {
    const bool all = o->node->index[2] != 0;
    int x = mpt__onnx_wide(o, 0);
    if (all) x = mpt__onnx_as(o, x, MPT_SHAPE(-1));
    mpt__onnx_int(o, "axis", all ? 0 : o->node->index[0]);
    mpt__onnx_int(o, "keepdims", all || o->node->index[1]);
    x = mpt__onnx_put(o, form, &x, 1, MPT_I64);
    mpt__onnx_give(o, 0, all ? mpt__onnx_shaped(o, x) : x);
}

/* number[0] is 1 / (n - correction). */
static void mpt__onnx_variance(mpt__onnx *o, const char *form) {
    const int64_t n = o->node->index[3], other = o->other->index[3];
    const double part = o->node->number[0];
    const int x = mpt__onnx_wide(o, 0);
    (void)form;
    int y = mpt__onnx_two(o, "Sub", x, mpt__onnx_over(o, "ReduceMean", x, true));
    y = mpt__onnx_over(o, "ReduceSum", mpt__onnx_two(o, "Mul", y, y), o->node->index[1] != 0);
    if (n == other) {
        y = mpt__onnx_with(o, "Mul", y, part);
    } else {
        const double correction = floor((double)n - 1.0 / part + 0.5);
        const int count = mpt__onnx_cast(o, mpt__onnx_size(o, n, other), MPT_F32);
        const int scalar = mpt__onnx_as(o, count, MPT_SCALAR);
        y = mpt__onnx_two(o, "Div", y, mpt__onnx_with(o, "Sub", scalar, correction));
    }
    mpt__onnx_give(o, 0, o->node->name[0] == 's' ? mpt__onnx_one(o, "Sqrt", y) : y);
}

static void mpt__onnx_norm(mpt__onnx *o, const char *form) {
    const double p = o->node->number[0];
    const int x = mpt__onnx_wide(o, 0);
    const bool largest = p != 1.0 && p != 2.0;
    (void)form;
    mpt__onnx_give(o, 0,
        mpt__onnx_over(o,
            largest        ? "ReduceMax"
                : p == 1.0 ? "ReduceL1"
                           : "ReduceL2",
            largest ? mpt__onnx_one(o, "Abs", x) : x, o->node->index[1] != 0));
}

static void mpt__onnx_cumsum(mpt__onnx *o, const char *form) {
    const int in[] = {mpt__onnx_wide(o, 0),
        mpt__onnx_integers(o, &o->node->index[0], MPT_SCALAR)};
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 2, MPT_F32));
}

static void mpt__onnx_softmax(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    mpt__onnx_int(o, "axis", o->node->index[0]);
    mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

/* a b / (max(|a|, eps) max(|b|, eps)) */
static void mpt__onnx_cosine(mpt__onnx *o, const char *form) {
    const int a = mpt__onnx_wide(o, 0), b = mpt__onnx_wide(o, 1);
    int size[2];
    (void)form;
    const int y = mpt__onnx_over(o, "ReduceSum", mpt__onnx_two(o, "Mul", a, b), false);
    for (int i = 0; i < 2; i++) {
        size[i] = mpt__onnx_over(o, "ReduceL2", i ? b : a, false);
        size[i] = mpt__onnx_with(o, "Max", size[i], o->node->number[0]);
    }
    mpt__onnx_give(
        o, 0, mpt__onnx_two(o, "Div", y, mpt__onnx_two(o, "Mul", size[0], size[1])));
}

#endif
