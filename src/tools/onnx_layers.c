/* ----
 * tools/onnx_layers.c: how products, convolutions, pools, norms, attention, recurrent layers and
 * losses are written as ONNX, and the table of all ops.
 * ---- */
#ifndef MPT__ONNX_LAYERS_INCLUDED
#define MPT__ONNX_LAYERS_INCLUDED

#include "onnx_ops.c"

/* ==== Products ==== */

static void mpt__onnx_matmul(mpt__onnx *o, const char *form) {
    const mpt_dtype real = mpt__onnx_product(o);
    const int a = mpt__onnx_factor(o, 0, real), b = mpt__onnx_factor(o, 1, real);
    mpt__onnx_give(o, 0, mpt__onnx_two(o, form, a, b));
}

/* Of rows one Gemm; else a product of stacks of matrices, and a sum. */
static void mpt__onnx_linear(mpt__onnx *o, const char *form) {
    const mpt_dtype real = mpt__onnx_product(o);
    int in[] = {mpt__onnx_factor(o, 0, real), mpt__onnx_factor(o, 1, real),
        mpt__onnx_in_as(o, 2, real)};
    if (mpt__onnx_rank(o, 0) == 2) {
        mpt__onnx_int(o, "transB", 1);
        mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, real));
        return;
    }
    in[1] = mpt__onnx_transpose(o, in[1], MPT_SHAPE(1, 0));
    const int y = mpt__onnx_two(o, "MatMul", in[0], in[1]);
    mpt__onnx_give(o, 0, in[2] < 0 ? y : mpt__onnx_two(o, "Add", y, in[2]));
}

/* One of the two numbers, for lines and pixels, that an integer of a convolution holds. */
static int64_t mpt__onnx_half(int64_t pair, int d) {
    return pair >> (d ? 0 : 32) & 0x7fffffff;
}

/* index: groups, stride, padding, dilation, output padding, `same`. */
static void mpt__onnx_conv(mpt__onnx *o, const char *form) {
    const int64_t *index = o->node->index;
    const bool transposed = strcmp(o->node->name, "conv_transpose2d") == 0;
    const mpt_shape *weight = mpt__onnx_shape(o, 1, 0);
    const int dims = weight->rank - 2;
    const mpt_dtype real = mpt__onnx_product(o);
    int64_t kernel[2], stride[2], dilation[2], pads[4], more[2];
    const int in[] = {mpt__onnx_factor(o, 0, real), mpt__onnx_factor(o, 1, real),
        mpt__onnx_in_as(o, 2, real)};
    for (int i = 0; i < dims; i++) {
        const int d = i + 2 - dims;
        kernel[i] = weight->dim[2 + i];
        stride[i] = mpt__onnx_half(index[1], d);
        pads[i] = pads[dims + i] = mpt__onnx_half(index[2], d);
        dilation[i] = mpt__onnx_half(index[3], d);
        more[i] = mpt__onnx_half(index[4], d);
        if (index[5]) pads[dims + i] = dilation[i] * (kernel[i] - 1) - pads[i];
    }
    mpt__onnx_ints(o, "dilations", dilation, dims);
    mpt__onnx_int(o, "group", index[0]);
    mpt__onnx_ints(o, "kernel_shape", kernel, dims);
    if (transposed) mpt__onnx_ints(o, "output_padding", more, dims);
    mpt__onnx_ints(o, "pads", pads, 2 * dims);
    mpt__onnx_ints(o, "strides", stride, dims);
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, real));
}

/* ==== Pools ==== */

enum { MPT__ONNX_COUNTS_PADDING = 1, MPT__ONNX_ADAPTIVE = 2 };

/* Windows of sizes that differ: one by one, along H and then along W. A mean of means is one, as
   all of a window have as many elements. */
static int mpt__onnx_pool_uneven(mpt__onnx *o, int x, bool most) {
    const int64_t *in = mpt__onnx_shape(o, 0, 0)->dim;
    for (int64_t dim = 2; dim < 4; dim++) {
        const int64_t size = in[dim], count = o->node->index[dim - 2];
        int *parts = (int *)mpt__tools_allocate((size_t)count * sizeof *parts);
        if (!parts) return mpt__onnx_out_of_memory(o);
        for (int64_t i = 0; i < count; i++) {
            const int part = mpt__onnx_part(
                o, x, dim, i * size / count, ((i + 1) * size + count - 1) / count);
            parts[i] =
                mpt__onnx_reduce(o, most ? "ReduceMax" : "ReduceMean", part, &dim, 1, true);
        }
        x = mpt__onnx_concat(o, parts, (int)count, dim);
        mpt__tools_release(parts);
    }
    return x;
}

/* index: window, or sizes of the output where it is adaptive; steps; padding; how. Where sizes are
   rounded up, the last windows reach beyond the padding, into what is in no mean. */
static void mpt__onnx_pool(mpt__onnx *o, const char *form) {
    const int64_t *index = o->node->index, *in = mpt__onnx_shape(o, 0, 0)->dim;
    const bool most = strcmp(form, "MaxPool") == 0;
    int64_t window[2], step[2], pads[4], beyond = 0;
    bool even = true;
    int x = mpt__onnx_wide(o, 0);
    mpt__onnx_fixed(o, 0, 2);
    for (int d = 0; d < 2; d++) {
        window[d] = index[d], step[d] = index[2 + d], pads[d] = index[4 + d];
        if (index[6] & MPT__ONNX_ADAPTIVE) {
            even = even && in[2 + d] % index[d] == 0;
            window[d] = step[d] = in[2 + d] / index[d];
            pads[d] = 0;
        }
        const int64_t last = (o->node->shape[0].dim[2 + d] - 1) * step[d];
        pads[2 + d] = last + window[d] - in[2 + d] - pads[d];
        if (pads[2 + d] > pads[d]) beyond = pads[2 + d] - pads[d];
        if (pads[2 + d] <= pads[d]) pads[2 + d] = pads[d];
    }
    if (!even) {
        mpt__onnx_give(o, 0, mpt__onnx_pool_uneven(o, x, most));
        return;
    }
    const bool counts = !most && (index[6] & MPT__ONNX_COUNTS_PADDING) != 0;
    if (counts && beyond > 0 && pads[0] + pads[1] > 0) {
        const int64_t own[] = {0, 0, pads[0], pads[1], 0, 0, pads[0], pads[1]};
        x = mpt__onnx_two(o, "Pad", x, mpt__onnx_list(o, own, 8));
        for (int d = 0; d < 2; d++) pads[2 + d] -= pads[d], pads[d] = 0;
    }
    if (!most) mpt__onnx_int(o, "count_include_pad", counts && beyond == 0);
    mpt__onnx_ints(o, "kernel_shape", window, 2);
    mpt__onnx_ints(o, "pads", pads, 4);
    mpt__onnx_ints(o, "strides", step, 2);
    mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

/* ==== Norms ==== */

/* A weight or bias, or, left out, as many of `number`. */
static int mpt__onnx_or(mpt__onnx *o, int i, double number, const mpt_shape *shape) {
    const int value = mpt__onnx_wide(o, i);
    return value >= 0 ? value : mpt__onnx_filled(o, number, shape);
}

/* What is added before or behind. */
static int mpt__onnx_and(mpt__onnx *o, int value, int i) {
    const int more = mpt__onnx_wide(o, i);
    return more < 0 ? value : mpt__onnx_two(o, "Add", value, more);
}

/* x / root(mean of squares + eps) over some dimensions. */
static int mpt__onnx_by_squares(mpt__onnx *o, int x, const int64_t *dims, int count, double eps) {
    int y = mpt__onnx_two(o, "Mul", x, x);
    y = mpt__onnx_reduce(o, "ReduceMean", y, dims, count, true);
    y = mpt__onnx_one(o, "Sqrt", mpt__onnx_with(o, "Add", y, eps));
    return mpt__onnx_two(o, "Div", x, y);
}

/* index: dimensions of a row. in: x, weight, bias, and what is added to x, of which the sum is the
   second output. */
static void mpt__onnx_row_norm(mpt__onnx *o, const char *form) {
    const int rank = mpt__onnx_rank(o, 0), count = (int)o->node->index[0];
    const double eps = o->node->number[0];
    mpt_shape row;
    int64_t dims[MPT_MAX_RANK];
    mpt__onnx_fixed(o, 0, rank - count);
    row.rank = count;
    for (int i = 0; i < count; i++) {
        dims[i] = rank - count + i;
        row.dim[i] = mpt__onnx_shape(o, 0, 0)->dim[dims[i]];
    }
    int x = mpt__onnx_and(o, mpt__onnx_wide(o, 0), 3);
    if (o->node->outputs > 1) mpt__onnx_give(o, 1, x);
    if (strcmp(form, "composed") == 0) {
        x = mpt__onnx_by_squares(o, x, dims, count, eps);
        const int weight = mpt__onnx_wide(o, 1);
        if (weight >= 0) x = mpt__onnx_two(o, "Mul", x, weight);
        mpt__onnx_give(o, 0, mpt__onnx_and(o, x, 2));
        return;
    }
    const int in[] = {x, mpt__onnx_or(o, 1, 1.0, &row), mpt__onnx_wide(o, 2)};
    mpt__onnx_int(o, "axis", -count);
    mpt__onnx_float(o, "epsilon", eps);
    mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

/* [C] so that it goes with [N, C, ..]. */
static int mpt__onnx_by_channel(mpt__onnx *o, int value) {
    mpt_shape shape = MPT_SHAPE(-1);
    if (value < 0) return value;
    for (int i = 2; i < mpt__onnx_rank(o, 0); i++) shape.dim[shape.rank++] = 1;
    return mpt__onnx_as(o, value, shape);
}

static int mpt__onnx_scaled(mpt__onnx *o, int x) {
    const int weight = mpt__onnx_by_channel(o, mpt__onnx_wide(o, 1));
    const int bias = mpt__onnx_by_channel(o, mpt__onnx_wide(o, 2));
    if (weight >= 0) x = mpt__onnx_two(o, "Mul", x, weight);
    return bias >= 0 ? mpt__onnx_two(o, "Add", x, bias) : x;
}

/* in: x, weight, bias, mean, variance, and what is added to the result. Without a mean it is that
   of the batch. */
static void mpt__onnx_batch_norm(mpt__onnx *o, const char *form) {
    const mpt_shape channels = MPT_SHAPE(mpt__onnx_shape(o, 0, 0)->dim[1]);
    const double eps = o->node->number[0];
    int64_t dims[MPT_MAX_RANK];
    int x = mpt__onnx_wide(o, 0), count = 0;
    if (mpt__onnx_in(o, 3) >= 0) {
        const int in[] = {x, mpt__onnx_or(o, 1, 1.0, &channels),
            mpt__onnx_or(o, 2, 0.0, &channels), mpt__onnx_wide(o, 3), mpt__onnx_wide(o, 4)};
        mpt__onnx_float(o, "epsilon", eps);
        x = mpt__onnx_put(o, form, in, 5, MPT_F32);
    } else {
        for (int i = 0; i < mpt__onnx_rank(o, 0); i++)
            if (i != 1) dims[count++] = i;
        const int mean = mpt__onnx_reduce(o, "ReduceMean", x, dims, count, true);
        x = mpt__onnx_by_squares(o, mpt__onnx_two(o, "Sub", x, mean), dims, count, eps);
        x = mpt__onnx_scaled(o, x);
    }
    mpt__onnx_give(o, 0, mpt__onnx_and(o, x, 5));
}

/* Groups as the channels of an instance norm. index: groups. */
static void mpt__onnx_group_norm(mpt__onnx *o, const char *form) {
    const mpt_shape groups = MPT_SHAPE(o->node->index[0]);
    int in[3];
    (void)form;
    mpt__onnx_fixed(o, 0, 1);
    in[0] = mpt__onnx_as(o, mpt__onnx_wide(o, 0), MPT_SHAPE(0, o->node->index[0], -1));
    in[1] = mpt__onnx_filled(o, 1.0, &groups);
    in[2] = mpt__onnx_filled(o, 0.0, &groups);
    mpt__onnx_float(o, "epsilon", o->node->number[0]);
    const int x = mpt__onnx_put(o, "InstanceNormalization", in, 3, MPT_F32);
    mpt__onnx_give(o, 0, mpt__onnx_scaled(o, mpt__onnx_shaped(o, x)));
}

/* ==== Attention ==== */

/* [B, T, heads * D] as [B, heads, T, D], and back. */
static int mpt__onnx_heads(mpt__onnx *o, int x, int64_t heads, int64_t width) {
    x = mpt__onnx_as(o, x, MPT_SHAPE(0, 0, heads, width / heads));
    return mpt__onnx_transpose(o, x, MPT_SHAPE(0, 2, 1, 3));
}
static int mpt__onnx_heads_back(mpt__onnx *o, int x, int64_t width) {
    x = mpt__onnx_transpose(o, x, MPT_SHAPE(0, 2, 1, 3));
    return mpt__onnx_as(o, x, MPT_SHAPE(0, 0, width));
}

/* Heads of keys and values, [B, G, S, D], each as often as it serves. */
static int mpt__onnx_heads_shared(mpt__onnx *o, int x, const mpt_shape *shape, int64_t heads) {
    const int64_t groups = shape->dim[1], times[] = {1, 1, heads / groups, 1, 1};
    x = mpt__onnx_as(o, x, MPT_SHAPE(0, groups, 1, shape->dim[2], shape->dim[3]));
    x = mpt__onnx_two(o, "Expand", x, mpt__onnx_list(o, times, 5));
    return mpt__onnx_as(o, x, MPT_SHAPE(0, heads, shape->dim[2], shape->dim[3]));
}

/* q, k and v as [.., T, D], rounded as the op rounds them, and how many queries and keys there are
   and how wide a head is. */
static void mpt__onnx_attention_inputs(mpt__onnx *o, int in[3], int64_t size[3]) {
    const int64_t heads = o->node->rank;
    const bool packed = o->node->input[1].node < 0;
    const mpt_shape *q = mpt__onnx_shape(o, 0, 0);
    int64_t last = q->dim[q->rank - 1];
    for (int i = 0; i < 3; i++)
        mpt__onnx_fixed(o, i, heads || q->rank < 4 ? q->rank - 2 : 1);
    if (packed) last /= 3;
    size[0] = size[1] = q->dim[q->rank - 2];
    size[2] = heads ? last / heads : last;
    const int whole = mpt__onnx_factor(o, 0, MPT_F32);
    for (int i = 0; i < 3; i++) {
        const mpt_shape *shape = packed ? q : mpt__onnx_shape(o, i, 0);
        in[i] = packed ? mpt__onnx_part(o, whole, 2, i * last, (i + 1) * last)
                       : mpt__onnx_factor(o, i, MPT_F32);
        if (i == 1) size[1] = shape->dim[shape->rank - 2];
        if (heads)
            in[i] = mpt__onnx_heads(o, in[i], heads, packed ? last : shape->dim[shape->rank - 1]);
        else if (i > 0 && q->rank == 4 && shape->dim[1] != q->dim[1])
            in[i] = mpt__onnx_heads_shared(o, in[i], shape, q->dim[1]);
    }
}

/* Which keys a query of causal attention sees, [T, S]; *blind: one sees none. index: causal, .. ..,
   window, the first query's place. */
static int mpt__onnx_causal(mpt__onnx *o, const int64_t size[3], bool *blind) {
    const int64_t window = o->node->index[3], past = o->node->index[4];
    mpt__tools_bytes seen = {NULL, 0, 0, false};
    const mpt_shape shape = MPT_SHAPE(size[0], size[1]);
    for (int64_t t = 0; t < size[0]; t++) {
        bool any = false;
        for (int64_t s = 0; s < size[1]; s++) {
            const bool sees = s <= t + past && (window == 0 || s > t + past - window);
            any = any || sees;
            mpt__tools_bytes_put(&seen, sees ? "\1" : "\0", 1);
        }
        *blind = *blind || !any;
    }
    const int out = mpt__onnx_constant(o, MPT_BOOL, &shape, &seen);
    mpt__tools_bytes_free(&seen);
    return out;
}

/* softmax(q k^T scale + mask) v. A query that sees no key gives 0. */
static void mpt__onnx_attention(mpt__onnx *o, const char *form) {
    const double lowest = -3.4028234663852886e38;
    double scale = o->node->number[0];
    const bool heads = o->node->rank > 0;
    int in[3], mask = mpt__onnx_in(o, 3), seen = -1;
    bool blind = mask >= 0;
    int64_t size[3];
    (void)form;
    mpt__onnx_attention_inputs(o, in, size);
    if (scale == 0.0) scale = 1.0 / sqrt((double)size[2]);
    const int rank = heads ? 4 : mpt__onnx_rank(o, 0);
    mpt_shape order = rank == 4 ? MPT_SHAPE(0, 1, 3, 2)
        : rank == 3             ? MPT_SHAPE(0, 2, 1)
                                : MPT_SHAPE(1, 0);
    int y = mpt__onnx_two(o, "MatMul", in[0], mpt__onnx_transpose(o, in[1], order));
    y = mpt__onnx_with(o, "Mul", y, scale);
    if (mask >= 0 && mpt__onnx_dtype(o, mask) == MPT_BOOL) seen = mask;
    if (mask >= 0 && seen < 0) {
        mask = mpt__onnx_wide(o, 3);
        y = mpt__onnx_two(o, "Add", y, mask);
        seen = mpt__onnx_compare(o, "GreaterOrEqual", mask, mpt__onnx_number(o, lowest));
    }
    if (o->node->index[0]) {
        const int causal = mpt__onnx_causal(o, size, &blind);
        seen = seen < 0 ? causal : mpt__onnx_compare(o, "And", seen, causal);
    }
    if (seen >= 0) y = mpt__onnx_where(o, seen, y, mpt__onnx_number(o, lowest));
    mpt__onnx_int(o, "axis", -1);
    y = mpt__onnx_one(o, "Softmax", y);
    if (blind) y = mpt__onnx_where(o, seen, y, mpt__onnx_number(o, 0.0));
    y = mpt__onnx_two(o, "MatMul", y, in[2]);
    const mpt_shape *out = &o->node->shape[0];
    mpt__onnx_give(o, 0, heads ? mpt__onnx_heads_back(o, y, out->dim[out->rank - 1]) : y);
}

/* Cosines, then sines, of (offset + t) base^(-2 i / D), [T, half]: what the op itself makes of ones
   and zeros. */
static void mpt__onnx_rope_tables(mpt__onnx *o, int64_t rows, int64_t half, int table[2]) {
    const int64_t count = rows * half;
    mpt_rope_config config = mpt_rope_config_default();
    float *turned = (float *)mpt__tools_allocate((size_t)(2 * count) * sizeof *turned);
    double *values = (double *)mpt__tools_allocate((size_t)count * sizeof *values);
    config.base = o->node->number[0], config.offset = o->node->index[0];
    for (int64_t i = 0; turned && i < 2 * count; i++) turned[i] = i % (2 * half) < half;
    if (turned && values && mpt_scope_begin(o->context) == MPT_OK) {
        mpt_tensor x = mpt_from(o->context, MPT_F32, MPT_SHAPE(rows, 2 * half), turned);
        mpt_read_f32(mpt_rope(x, &config), turned, 2 * count);
        mpt_scope_end(o->context);
    }
    for (int k = 0; k < 2 && turned && values; k++) {
        for (int64_t i = 0; i < count; i++)
            values[i] = (double)turned[i / half * 2 * half + k * half + i % half];
        table[k] = mpt__onnx_floats(o, values, MPT_SHAPE(rows, half));
    }
    if (!turned || !values) mpt__onnx_out_of_memory(o);
    mpt__tools_release(turned);
    mpt__tools_release(values);
}

/* index: the first position, whether neighbours are pairs. rank: heads. */
static void mpt__onnx_rope(mpt__onnx *o, const char *form) {
    const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
    const int64_t heads = o->node->rank, width = shape->dim[shape->rank - 1];
    const int64_t half = width / (heads ? 2 * heads : 2), rows = shape->dim[shape->rank - 2];
    const bool neighbours = o->node->index[1] != 0;
    const int rank = heads ? 4 : shape->rank;
    int table[2] = {-1, -1}, half_of[2], turned[2];
    int x = mpt__onnx_wide(o, 0);
    (void)form;
    mpt__onnx_fixed(o, 0, shape->rank - 2);
    mpt__onnx_rope_tables(o, rows, half, table);
    if (heads) x = mpt__onnx_heads(o, x, heads, width);
    mpt_shape split;
    split.rank = rank + 1;
    for (int i = 0; i < rank - 1; i++) split.dim[i] = 0;
    split.dim[rank - 1] = neighbours ? half : 2, split.dim[rank] = neighbours ? 2 : half;
    x = mpt__onnx_as(o, x, split);
    const int64_t dim = neighbours ? rank : rank - 1;
    for (int i = 0; i < 2; i++) {
        const int part = mpt__onnx_part(o, x, dim, i, i + 1);
        half_of[i] = mpt__onnx_two(o, "Squeeze", part, mpt__onnx_integer(o, dim));
    }
    for (int i = 0; i < 2; i++) {
        const int a = mpt__onnx_two(o, "Mul", half_of[0], table[i]);
        const int b = mpt__onnx_two(o, "Mul", half_of[1], table[1 - i]);
        turned[i] = mpt__onnx_two(o, "Unsqueeze", mpt__onnx_two(o, i ? "Add" : "Sub", a, b),
            mpt__onnx_integer(o, dim));
    }
    x = mpt__onnx_concat(o, turned, 2, dim);
    split.rank = rank, split.dim[rank - 1] = 2 * half;
    x = mpt__onnx_as(o, x, split);
    mpt__onnx_give(o, 0, heads ? mpt__onnx_heads_back(o, x, width) : x);
}

/* ==== Hash grids ==== */

/* Cells along a side of level `level`: equal ratios from index[0] to index[1], rounded down. The
   ratio is found by halving, as roots of the C library have other bits elsewhere. */
static int64_t mpt__onnx_cells(const mpt__onnx *o, int64_t level, int64_t levels) {
    const double first = (double)o->node->index[0], last = (double)o->node->index[1];
    double low = 1.0, high = last / first, cells = first;
    for (int i = 0; i < 200 && levels > 1; i++) {
        const double ratio = 0.5 * (low + high);
        double reached = first;
        for (int64_t k = 1; k < levels; k++) reached *= ratio;
        if (reached < last)
            low = ratio;
        else
            high = ratio;
    }
    for (int64_t k = 0; k < level; k++) cells *= high;
    return (int64_t)(cells + 1e-6);
}

/* The rows of a table of `entries` that corners at places [n, D] have. */
static int mpt__onnx_grid_entries(
    mpt__onnx *o, int places, int64_t dims, int64_t cells, int64_t entries) {
    static const int64_t primes[] = {1, 2654435761, 805459861}, last = 1;
    int64_t step[4] = {1, 1, 1, 1};
    for (int64_t d = 0; d < dims; d++) step[d + 1] = step[d] * (cells + 1);
    const bool whole = step[dims] <= entries;
    const int by = mpt__onnx_list(o, whole ? step : primes, (int)dims);
    int all = mpt__onnx_two(o, "Mul", places, by), hash = -1;
    if (whole) return mpt__onnx_reduce(o, "ReduceSum", all, &last, 1, false);
    all = mpt__onnx_two(o, "BitwiseAnd", all, mpt__onnx_integer(o, 0xFFFFFFFF));
    for (int64_t d = 0; d < dims; d++) {
        const int one = mpt__onnx_part(o, all, 1, d, d + 1);
        hash = d ? mpt__onnx_two(o, "BitwiseXor", hash, one) : one;
    }
    hash = mpt__onnx_two(o, "Mod", hash, mpt__onnx_integer(o, entries));
    return mpt__onnx_two(o, "Squeeze", hash, mpt__onnx_integer(o, 1));
}

/* What a level gives for x, doubles [n, D]: the sum over the corners of cells, each by how near it
   is. table: [T, F]. */
static int mpt__onnx_grid_level(
    mpt__onnx *o, int x, int table, int64_t dims, int64_t cells, int64_t entries) {
    const int64_t last = 1;
    int part[2], sum = -1;
    int at = mpt__onnx_with(o, "Mul", x, (double)cells);
    at = mpt__onnx_with(o, "Max", mpt__onnx_with(o, "Min", at, (double)cells), 0.0);
    int low = mpt__onnx_with(o, "Min", mpt__onnx_one(o, "Floor", at), (double)(cells - 1));
    part[1] = mpt__onnx_cast(o, mpt__onnx_two(o, "Sub", at, low), MPT_F32);
    part[0] = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", part[1]), 1.0);
    low = mpt__onnx_cast(o, low, MPT_I64);
    for (int64_t c = 0; c < (int64_t)1 << dims; c++) {
        int64_t step[3];
        for (int64_t d = 0; d < dims; d++) step[d] = c >> d & 1;
        const int corner = mpt__onnx_list(o, step, (int)dims);
        const int places = mpt__onnx_two(o, "Add", low, corner);
        const int entry = mpt__onnx_grid_entries(o, places, dims, cells, entries);
        int weight = mpt__onnx_where(o, mpt__onnx_cast(o, corner, MPT_BOOL), part[1], part[0]);
        weight = mpt__onnx_reduce(o, "ReduceProd", weight, &last, 1, true);
        mpt__onnx_int(o, "axis", 0);
        const int row = mpt__onnx_two(o, "Gather", table, entry);
        const int share = mpt__onnx_two(o, "Mul", row, weight);
        sum = c ? mpt__onnx_two(o, "Add", sum, share) : share;
    }
    return sum;
}

/* in: x [.., D], table [L, T, F]. index: cells of the first and the last level. */
static void mpt__onnx_hash_grid(mpt__onnx *o, const char *form) {
    const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
    const int64_t *size = mpt__onnx_shape(o, 1, 0)->dim, dims = shape->dim[shape->rank - 1];
    int *level = (int *)mpt__tools_allocate((size_t)size[0] * sizeof *level);
    (void)form;
    mpt__onnx_fixed(o, 0, shape->rank - 1);
    if (!level) {
        mpt__onnx_out_of_memory(o);
        return;
    }
    const int x = mpt__onnx_as(o, mpt__onnx_in_as(o, 0, MPT_F64), MPT_SHAPE(-1, dims));
    const int tables = mpt__onnx_wide(o, 1);
    for (int64_t i = 0; i < size[0]; i++) {
        int table = mpt__onnx_part(o, tables, 0, i, i + 1);
        table = mpt__onnx_two(o, "Squeeze", table, mpt__onnx_integer(o, 0));
        level[i] = mpt__onnx_grid_level(
            o, x, table, dims, mpt__onnx_cells(o, i, size[0]), size[1]);
    }
    mpt__onnx_give(o, 0, mpt__onnx_shaped(o, mpt__onnx_concat(o, level, (int)size[0], 1)));
    mpt__tools_release(level);
}

/* ==== Recurrent layers ==== */

enum { MPT__ONNX_CELL_GATES = 4 };

/* Rows of gates in the order that ONNX has them: of an LSTM i, o, f, c from i, f, g, o; of a GRU z,
   r, h from r, z, n. */
static int mpt__onnx_gates(mpt__onnx *o, int value, int gates, int64_t hidden) {
    static const int order[][MPT__ONNX_CELL_GATES] = {{0}, {1, 0, 2}, {0, 3, 1, 2}};
    int part[MPT__ONNX_CELL_GATES];
    if (gates == 1 || value < 0) return value;
    for (int i = 0; i < gates; i++) {
        const int64_t from = order[gates - 2][i] * hidden;
        part[i] = mpt__onnx_part(o, value, 0, from, from + hidden);
    }
    return mpt__onnx_concat(o, part, gates, 0);
}

/* With a dimension of 1 in front: that of directions. */
static int mpt__onnx_directed(mpt__onnx *o, int value) {
    return value < 0 ? value : mpt__onnx_two(o, "Unsqueeze", value, mpt__onnx_integer(o, 0));
}

static int mpt__onnx_biases(mpt__onnx *o, int gates, int64_t hidden) {
    const mpt_shape shape = MPT_SHAPE(gates * hidden);
    int part[2];
    if (mpt__onnx_in(o, 3) < 0 && mpt__onnx_in(o, 4) < 0) return -1;
    for (int i = 0; i < 2; i++)
        part[i] = mpt__onnx_gates(o, mpt__onnx_or(o, 3 + i, 0.0, &shape), gates, hidden);
    return mpt__onnx_directed(o, mpt__onnx_concat(o, part, 2, 0));
}

/* A state to begin with, or zeros of the shape of output k. */
static int mpt__onnx_state(mpt__onnx *o, int i, int k) {
    const int value = mpt__onnx_wide(o, i);
    if (value >= 0) return value;
    const int dims = mpt__onnx_dims(o, &o->node->shape[k], &o->other->shape[k]);
    return mpt__onnx_two(o, "Expand", mpt__onnx_number(o, 0.0), dims);
}

/* One step of an LSTM with a projection, in the graph of a Scan. of: weight_hh and weight_hr turned
   around, lengths [B, 1] or -1. in: h, c, what x gives to the gates, the step's number; out: h, c
   and what the step gives. */
static void mpt__onnx_projected_step(mpt__onnx *o, const int of[3], const int in[4], int out[3]) {
    static const char *const functions[] = {"Sigmoid", "Sigmoid", "Tanh", "Sigmoid"};
    const int64_t hidden = mpt__onnx_shape(o, 2, 0)->dim[0] / 4;
    const int all = mpt__onnx_two(o, "Add", in[2], mpt__onnx_two(o, "MatMul", in[0], of[0]));
    int gate[4];
    for (int i = 0; i < 4; i++) {
        gate[i] = mpt__onnx_part(o, all, 1, i * hidden, (i + 1) * hidden);
        gate[i] = mpt__onnx_one(o, functions[i], gate[i]);
    }
    out[1] = mpt__onnx_two(o, "Add", mpt__onnx_two(o, "Mul", gate[1], in[1]),
        mpt__onnx_two(o, "Mul", gate[0], gate[2]));
    out[0] = mpt__onnx_two(o, "Mul", gate[3], mpt__onnx_one(o, "Tanh", out[1]));
    out[0] = mpt__onnx_two(o, "MatMul", out[0], of[1]);
    if (of[2] < 0) {
        out[2] = mpt__onnx_one(o, "Identity", out[0]);
        return;
    }
    const int live = mpt__onnx_compare(o, "Less", in[3], of[2]);
    out[2] = mpt__onnx_where(o, live, out[0], mpt__onnx_number(o, 0.0));
    for (int i = 0; i < 2; i++) out[i] = mpt__onnx_where(o, live, out[i], in[i]);
}

/* The graph of such a step as an attribute of the node to come. */
static void mpt__onnx_projected_body(mpt__onnx *o, const int of[3]) {
    const mpt__tools_bytes outer = o->nodes, none = {NULL, 0, 0, false};
    mpt__tools_bytes *to = &o->attributes;
    int in[4], out[3];
    for (int i = 0; i < 4; i++) in[i] = mpt__onnx_made(o, i < 3 ? MPT_F32 : MPT_I64);
    o->nodes = none;
    mpt__onnx_projected_step(o, of, in, out);
    mpt__tools_bytes body = o->nodes;
    o->nodes = outer;
    const size_t attribute = mpt__onnx_attribute_begin(o, "body");
    const size_t graph = mpt__tools_message_begin(to, 6);
    mpt__tools_bytes_put(to, body.data, body.size);
    mpt__tools_put_text_field(to, MPT__ONNX_GRAPH_NAME, "step");
    const int inputs = of[2] < 0 ? 3 : 4;
    for (int i = 0; i < inputs; i++) mpt__onnx_put_typed(o, to, MPT__ONNX_INPUT, in[i]);
    for (int i = 0; i < 3; i++) mpt__onnx_put_typed(o, to, MPT__ONNX_OUTPUT, out[i]);
    mpt__tools_message_end(to, graph);
    mpt__onnx_attribute_end(o, attribute, MPT__ONNX_GRAPH);
    if (body.failed) mpt__onnx_out_of_memory(o);
    mpt__tools_bytes_free(&body);
}

/* An LSTM with a projection, which ONNX's has not, as a Scan over its steps. */
static void mpt__onnx_projected(mpt__onnx *o) {
    static const int64_t back[] = {1, 1};
    const bool batch_first = o->node->index[0] != 0, reverse = o->node->index[1] != 0;
    const mpt_shape turn = MPT_SHAPE(1, 0, 2), across = MPT_SHAPE(1, 0);
    const int64_t steps = mpt__onnx_shape(o, 0, 0)->dim[batch_first];
    int of[3], in[4], out[3];
    if (steps != mpt__onnx_shape(o, 0, 1)->dim[batch_first])
        mpt__onnx_fail(o, "as many steps as samples; set batch_dims");
    int x = mpt__onnx_factor(o, 0, MPT_F32);
    if (batch_first) x = mpt__onnx_transpose(o, x, turn);
    const int w = mpt__onnx_transpose(o, mpt__onnx_factor(o, 1, MPT_F32), across);
    of[0] = mpt__onnx_transpose(o, mpt__onnx_factor(o, 2, MPT_F32), across);
    of[1] = mpt__onnx_transpose(o, mpt__onnx_factor(o, 5, MPT_F32), across);
    of[2] = mpt__onnx_in(o, 8);
    if (of[2] >= 0) of[2] = mpt__onnx_two(o, "Unsqueeze", of[2], mpt__onnx_integer(o, 1));
    x = mpt__onnx_two(o, "MatMul", x, w);
    in[2] = mpt__onnx_and(o, mpt__onnx_and(o, x, 3), 4);
    in[0] = mpt__onnx_state(o, 6, 1), in[1] = mpt__onnx_state(o, 7, 2);
    in[3] = of[2] < 0 ? -1 : mpt__onnx_counted(o, steps);
    for (int i = 0; i < 3; i++) out[i] = mpt__onnx_made(o, MPT_F32);
    mpt__onnx_projected_body(o, of);
    mpt__onnx_int(o, "num_scan_inputs", of[2] < 0 ? 1 : 2);
    if (reverse) {
        mpt__onnx_ints(o, "scan_input_directions", back, of[2] < 0 ? 1 : 2);
        mpt__onnx_ints(o, "scan_output_directions", back, 1);
    }
    mpt__onnx_put_many(o, "Scan", in, 4, out, 3);
    mpt__onnx_give(o, 0, batch_first ? mpt__onnx_transpose(o, out[2], turn) : out[2]);
    mpt__onnx_give(o, 1, out[0]);
    mpt__onnx_give(o, 2, out[1]);
}

/* in: x, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, h, c, lengths. index: batch first,
   backwards. out: each step's state, h, c. */
static void mpt__onnx_recurrent(mpt__onnx *o, const char *form) {
    const int gates = form[0] == 'L' ? 4 : form[0] == 'G' ? 3 : 1;
    const bool batch_first = o->node->index[0] != 0;
    const mpt_shape turn = MPT_SHAPE(1, 0, 2);
    int in[8], out[3] = {-1, -1, -1};
    const int64_t hidden = mpt__onnx_shape(o, 2, 0)->dim[0] / gates;
    if (mpt__onnx_in(o, 5) >= 0) {
        mpt__onnx_projected(o);
        return;
    }
    in[0] = mpt__onnx_factor(o, 0, MPT_F32);
    if (batch_first) in[0] = mpt__onnx_transpose(o, in[0], turn);
    for (int i = 1; i < 3; i++)
        in[i] = mpt__onnx_directed(
            o, mpt__onnx_gates(o, mpt__onnx_factor(o, i, MPT_F32), gates, hidden));
    in[3] = mpt__onnx_biases(o, gates, hidden);
    in[4] = mpt__onnx_in_as(o, 8, MPT_I32);
    in[5] = mpt__onnx_directed(o, mpt__onnx_wide(o, 6));
    in[6] = gates == 4 ? mpt__onnx_directed(o, mpt__onnx_wide(o, 7)) : -1;
    in[7] = -1;
    mpt__onnx_text(o, "direction", o->node->index[1] ? "reverse" : "forward");
    mpt__onnx_int(o, "hidden_size", hidden);
    if (gates == 3) mpt__onnx_int(o, "linear_before_reset", 1);
    if (gates == 1)
        mpt__onnx_texts(
            o, "activations", o->node->activation == MPT_ACTIVATION_RELU ? "Relu" : "Tanh");
    for (int i = 0; i < (gates == 4 ? 3 : 2); i++) out[i] = mpt__onnx_made(o, MPT_F32);
    mpt__onnx_put_many(o, form, in, 8, out, gates == 4 ? 3 : 2);
    int y = mpt__onnx_two(o, "Squeeze", out[0], mpt__onnx_integer(o, 1));
    mpt__onnx_give(o, 0, batch_first ? mpt__onnx_transpose(o, y, turn) : y);
    for (int i = 1; i < o->node->outputs && i < 3; i++)
        mpt__onnx_give(o, i, mpt__onnx_two(o, "Squeeze", out[i], mpt__onnx_integer(o, 0)));
}

/* ==== Losses ==== */

static int mpt__onnx_sum(mpt__onnx *o, int value) {
    const int64_t first = 0;
    return mpt__onnx_reduce(o, "ReduceSum", value, &first, 1, false);
}

/* What nodes of ONNX's do not do: of log-probabilities [n, C] and classes [n] each loss, smoothed,
   and their sum or mean over those that are not ignored. */
static int mpt__onnx_nll_of(mpt__onnx *o, int logs, int classes, int weights, int64_t count) {
    const double smoothing = o->node->number[0];
    const int ignored = mpt__onnx_integer(o, o->node->index[0]), one = mpt__onnx_integer(o, 1);
    const int kept = mpt__onnx_one(o, "Not", mpt__onnx_compare(o, "Equal", classes, ignored));
    const int safe = mpt__onnx_where(o, kept, classes, mpt__onnx_integer(o, 0));
    const int column = mpt__onnx_two(o, "Unsqueeze", safe, one), zero = mpt__onnx_number(o, 0.0);
    int by = mpt__onnx_cast(o, kept, MPT_F32), all = logs;
    mpt__onnx_int(o, "axis", 1);
    int each = mpt__onnx_two(o, "GatherElements", logs, column);
    each = mpt__onnx_two(o, "Squeeze", each, one);
    if (weights >= 0) {
        mpt__onnx_int(o, "axis", 0);
        by = mpt__onnx_two(o, "Mul", by, mpt__onnx_two(o, "Gather", weights, safe));
        all = mpt__onnx_two(o, "Mul", logs, weights);
    }
    each = mpt__onnx_with(o, "Mul", mpt__onnx_two(o, "Mul", each, by), smoothing - 1.0);
    if (smoothing != 0.0) {
        const int64_t last = 1;
        all = mpt__onnx_reduce(o, "ReduceSum", all, &last, 1, false);
        all = mpt__onnx_with(o, "Mul", all, smoothing / (double)count);
        each = mpt__onnx_two(o, "Sub", each, mpt__onnx_where(o, kept, all, zero));
    }
    if (o->node->reduction == MPT_NONE) return mpt__onnx_shaped(o, each);
    each = mpt__onnx_sum(o, each);
    if (o->node->reduction == MPT_SUM) return each;
    return mpt__onnx_two(o, "Div", each, mpt__onnx_sum(o, by));
}

/* in: log-probabilities or logits, classes, weights of classes. index[0]: the class that is
   ignored; number[0]: smoothing. */
static void mpt__onnx_nll(mpt__onnx *o, const char *form) {
    static const char *const reductions[] = {"mean", "sum", "none"};
    int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_in(o, 1), mpt__onnx_wide(o, 2)};
    const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
    const int64_t count = shape->dim[shape->rank - 1];
    if (o->node->number[0] == 0.0 && shape->rank == 2) {
        mpt__onnx_int(o, "ignore_index", o->node->index[0]);
        mpt__onnx_text(o, "reduction", reductions[o->node->reduction]);
        mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
        return;
    }
    in[0] = mpt__onnx_as(o, in[0], MPT_SHAPE(-1, count));
    in[1] = mpt__onnx_as(o, in[1], MPT_SHAPE(-1));
    if (form[0] == 'S') { /* of logits */
        mpt__onnx_int(o, "axis", 1);
        in[0] = mpt__onnx_one(o, "LogSoftmax", in[0]);
    }
    mpt__onnx_give(o, 0, mpt__onnx_nll_of(o, in[0], in[1], in[2], count));
}

/* The same of x times a matrix. in: x, weight, classes, weights of classes. */
static void mpt__onnx_linear_nll(mpt__onnx *o, const char *form) {
    const mpt_shape *weight = mpt__onnx_shape(o, 1, 0);
    int x = mpt__onnx_factor(o, 0, MPT_F32), w = mpt__onnx_factor(o, 1, MPT_F32);
    (void)form;
    x = mpt__onnx_as(o, x, MPT_SHAPE(-1, weight->dim[1]));
    x = mpt__onnx_two(o, "MatMul", x, mpt__onnx_transpose(o, w, MPT_SHAPE(1, 0)));
    mpt__onnx_int(o, "axis", 1);
    x = mpt__onnx_one(o, "LogSoftmax", x);
    const int classes = mpt__onnx_as(o, mpt__onnx_in(o, 2), MPT_SHAPE(-1));
    mpt__onnx_give(
        o, 0, mpt__onnx_nll_of(o, x, classes, mpt__onnx_wide(o, 3), weight->dim[0]));
}

/* The loss of each element, put together as the call asks. */
static void mpt__onnx_loss(mpt__onnx *o, int each) {
    int64_t dims[MPT_MAX_RANK];
    const mpt_shape *shape = mpt__onnx_shape(o, 0, 0), *other = mpt__onnx_shape(o, 0, 1);
    for (int i = 0; i < shape->rank; i++) dims[i] = i;
    const mpt_reduction how = (mpt_reduction)o->node->reduction;
    if (how == MPT_MEAN)
        each = mpt__onnx_reduce(o, "ReduceMean", each, dims, shape->rank, false);
    if (how == MPT_SUM || how == MPT_BATCH_MEAN)
        each = mpt__onnx_reduce(o, "ReduceSum", each, dims, shape->rank, false);
    const bool soft = o->node->name[0] == 's'; /* one loss for all classes, the second dimension */
    if (how == MPT_BATCH_MEAN && !(soft && shape->rank == 1)) {
        int64_t times = 1;
        for (int i = 2; i < shape->rank && soft; i++) times *= shape->dim[i];
        int count = mpt__onnx_size(o, shape->dim[0] * times, other->dim[0] * times);
        count = mpt__onnx_as(o, mpt__onnx_cast(o, count, MPT_F32), MPT_SCALAR);
        each = mpt__onnx_two(o, "Div", each, count);
    }
    mpt__onnx_give(o, 0, each);
}

static int mpt__onnx_difference(mpt__onnx *o) {
    return mpt__onnx_two(o, "Sub", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1));
}

/* max(0, x) */
static int mpt__onnx_positive(mpt__onnx *o, int x) { return mpt__onnx_one(o, "Relu", x); }

static void mpt__onnx_mse(mpt__onnx *o, const char *form) {
    const int d = mpt__onnx_difference(o);
    (void)form;
    mpt__onnx_loss(o, mpt__onnx_two(o, "Mul", d, d));
}

/* index[0]: not 0 where smooth_l1_loss is l1_loss. number[0]: where the parabola ends, whose slope
   is 1 there, or that number. */
static void mpt__onnx_l1(mpt__onnx *o, const char *form) {
    const int d = mpt__onnx_one(o, "Abs", mpt__onnx_difference(o));
    const double end = o->node->number[0];
    const bool huber = o->node->name[0] == 'h';
    (void)form;
    if (o->node->name[0] == 'l' || o->node->index[0] != 0) {
        mpt__onnx_loss(o, d);
        return;
    }
    int curve = mpt__onnx_with(o, "Mul", mpt__onnx_two(o, "Mul", d, d), huber ? 0.5 : 0.5 / end);
    int line = mpt__onnx_with(o, "Sub", d, 0.5 * end);
    if (huber) line = mpt__onnx_with(o, "Mul", line, end);
    const int within = mpt__onnx_compare(o, "Less", d, mpt__onnx_number(o, end));
    mpt__onnx_loss(o, mpt__onnx_where(o, within, curve, line));
}

static int mpt__onnx_weighted(mpt__onnx *o, int each, int i) {
    const int weight = mpt__onnx_wide(o, i);
    return weight < 0 ? each : mpt__onnx_two(o, "Mul", each, weight);
}

/* (1 - y) x + (1 + (w - 1) y) softplus(-x) */
static void mpt__onnx_bce_logits(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1), by = mpt__onnx_wide(o, 3);
    (void)form;
    int soft = mpt__onnx_one(o, "Softplus", mpt__onnx_one(o, "Neg", x));
    const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), 1.0);
    if (by >= 0) {
        const int more = mpt__onnx_two(o, "Mul", y, mpt__onnx_with(o, "Sub", by, 1.0));
        soft = mpt__onnx_two(o, "Mul", soft, mpt__onnx_with(o, "Add", more, 1.0));
    }
    const int each = mpt__onnx_two(o, "Add", mpt__onnx_two(o, "Mul", rest, x), soft);
    mpt__onnx_loss(o, mpt__onnx_weighted(o, each, 2));
}

/* -(y log(x) + (1 - y) log(1 - x)), logarithms from -100 on */
static void mpt__onnx_bce(mpt__onnx *o, const char *form) {
    int part[2];
    (void)form;
    for (int i = 0; i < 2; i++) {
        int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
        if (i) x = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", x), 1.0);
        if (i) y = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), 1.0);
        x = mpt__onnx_with(o, "Max", mpt__onnx_one(o, "Log", x), -100.0);
        part[i] = mpt__onnx_two(o, "Mul", x, y);
    }
    const int each = mpt__onnx_one(o, "Neg", mpt__onnx_two(o, "Add", part[0], part[1]));
    mpt__onnx_loss(o, mpt__onnx_weighted(o, each, 2));
}

/* y (log(y) - x), 0 where y is; or, of logarithms, exp(y) (y - x). index[0]: which. */
static void mpt__onnx_kl_div(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
    (void)form;
    if (o->node->index[0] != 0) {
        const int d = mpt__onnx_two(o, "Sub", y, x);
        mpt__onnx_loss(o, mpt__onnx_two(o, "Mul", mpt__onnx_one(o, "Exp", y), d));
        return;
    }
    const int none = mpt__onnx_compare(o, "Equal", y, mpt__onnx_number(o, 0.0));
    int each = mpt__onnx_two(o, "Sub", mpt__onnx_one(o, "Log", y), x);
    each = mpt__onnx_two(o, "Mul", y, each);
    mpt__onnx_loss(o, mpt__onnx_where(o, none, mpt__onnx_number(o, 0.0), each));
}

/* softplus(-y x) */
static void mpt__onnx_soft_margin(mpt__onnx *o, const char *form) {
    const int y = mpt__onnx_two(o, "Mul", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1));
    mpt__onnx_loss(o, mpt__onnx_one(o, form, mpt__onnx_one(o, "Neg", y)));
}

/* x where y is 1, else max(0, margin - x) */
static void mpt__onnx_hinge(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0);
    (void)form;
    const int one = mpt__onnx_compare(o, "Equal", mpt__onnx_wide(o, 1), mpt__onnx_number(o, 1.0));
    const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", x), o->node->number[0]);
    mpt__onnx_loss(o, mpt__onnx_where(o, one, x, mpt__onnx_positive(o, rest)));
}

/* max(0, margin - y (a - b)) */
static void mpt__onnx_ranking(mpt__onnx *o, const char *form) {
    const int y = mpt__onnx_two(o, "Mul", mpt__onnx_difference(o), mpt__onnx_wide(o, 2));
    (void)form;
    const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), o->node->number[0]);
    mpt__onnx_loss(o, mpt__onnx_positive(o, rest));
}

/* max(0, margin + a - b), or with a third input, another distance of negatives, the smaller of it
   and b. */
static void mpt__onnx_triplet(mpt__onnx *o, const char *form) {
    const int a = mpt__onnx_wide(o, 0), more = mpt__onnx_wide(o, 2);
    int b = mpt__onnx_wide(o, 1);
    (void)form;
    if (more >= 0) b = mpt__onnx_two(o, "Min", b, more);
    const int each = mpt__onnx_with(o, "Add", mpt__onnx_two(o, "Sub", a, b), o->node->number[0]);
    mpt__onnx_loss(o, mpt__onnx_positive(o, each));
}

/* exp(x) - y x, or x - y log(x + eps); number: eps, whether Stirling's term is added. */
static void mpt__onnx_poisson(mpt__onnx *o, const char *form) {
    const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
    const bool logs = o->node->index[0] != 0;
    (void)form;
    int by = x;
    if (!logs) by = mpt__onnx_one(o, "Log", mpt__onnx_with(o, "Add", x, o->node->number[0]));
    by = mpt__onnx_two(o, "Mul", y, by);
    int each = mpt__onnx_two(o, "Sub", logs ? mpt__onnx_one(o, "Exp", x) : x, by);
    if (o->node->number[1] != 0.0) { /* y log(y) - y + (log(2 pi) + log(y)) / 2 where y > 1 */
        const int l = mpt__onnx_one(o, "Log", y);
        const int half = mpt__onnx_with(o, "Mul", mpt__onnx_with(o, "Add", l, 1.837877066), 0.5);
        int more = mpt__onnx_two(o, "Sub", mpt__onnx_two(o, "Mul", y, l), y);
        more = mpt__onnx_two(o, "Add", more, half);
        const int large = mpt__onnx_compare(o, "Greater", y, mpt__onnx_number(o, 1.0));
        more = mpt__onnx_where(o, large, more, mpt__onnx_number(o, 0.0));
        each = mpt__onnx_two(o, "Add", each, more);
    }
    mpt__onnx_loss(o, each);
}

/* ((x - y)^2 / v + log(v)) / 2 + r with v at least eps; number: eps, r */
static void mpt__onnx_gaussian(mpt__onnx *o, const char *form) {
    const int d = mpt__onnx_difference(o);
    (void)form;
    const int v = mpt__onnx_with(o, "Max", mpt__onnx_wide(o, 2), o->node->number[0]);
    int each = mpt__onnx_two(o, "Div", mpt__onnx_two(o, "Mul", d, d), v);
    each = mpt__onnx_two(o, "Add", each, mpt__onnx_one(o, "Log", v));
    each = mpt__onnx_with(o, "Mul", each, 0.5);
    mpt__onnx_loss(o, mpt__onnx_with(o, "Add", each, o->node->number[1]));
}

/* Of a b, |a|^2, |b|^2 and y: with e = sqrt((|a|^2 + r) (|b|^2 + r)) 1 - a b / e where y is 1, and
   max(0, a b / e - p) where it is -1. */
static void mpt__onnx_cosine_loss(mpt__onnx *o, const char *form) {
    const int y = mpt__onnx_wide(o, 3);
    int e = -1, ways[2];
    (void)form;
    for (int i = 0; i < 2; i++) {
        const int square = mpt__onnx_with(o, "Add", mpt__onnx_wide(o, 1 + i), o->node->number[1]);
        e = i ? mpt__onnx_two(o, "Mul", e, square) : square;
    }
    const int cosine = mpt__onnx_two(o, "Div", mpt__onnx_wide(o, 0), mpt__onnx_one(o, "Sqrt", e));
    ways[0] = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", cosine), 1.0);
    ways[1] = mpt__onnx_positive(o, mpt__onnx_with(o, "Sub", cosine, o->node->number[0]));
    int each = mpt__onnx_number(o, 0.0);
    for (int i = 1; i >= 0; i--) {
        const int is = mpt__onnx_compare(o, "Equal", y, mpt__onnx_number(o, i ? -1.0 : 1.0));
        each = mpt__onnx_where(o, is, ways[i], each);
    }
    mpt__onnx_loss(o, each);
}

/* -(y (1 - p) + r) w x of log-probabilities, 0 where the factor is. */
static void mpt__onnx_soft_targets(mpt__onnx *o, const char *form) {
    (void)form;
    int by = mpt__onnx_with(o, "Mul", mpt__onnx_wide(o, 1), 1.0 - o->node->number[0]);
    by = mpt__onnx_weighted(o, mpt__onnx_with(o, "Add", by, o->node->number[1]), 2);
    const int none = mpt__onnx_compare(o, "Equal", by, mpt__onnx_number(o, 0.0));
    const int each = mpt__onnx_one(o, "Neg", mpt__onnx_two(o, "Mul", by, mpt__onnx_wide(o, 0)));
    mpt__onnx_loss(o, mpt__onnx_where(o, none, mpt__onnx_number(o, 0.0), each));
}

/* w max(0, p - t + x)^r, 0 where x is that of the target, t. in: x, which that is, t, w. */
static void mpt__onnx_multi_margin(mpt__onnx *o, const char *form) {
    const int own = mpt__onnx_in_as(o, 1, MPT_BOOL);
    int each = mpt__onnx_two(o, "Sub", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 2));
    (void)form;
    each = mpt__onnx_positive(o, mpt__onnx_with(o, "Add", each, o->node->number[0]));
    if (o->node->number[1] == 2.0) each = mpt__onnx_two(o, "Mul", each, each);
    each = mpt__onnx_weighted(o, each, 3);
    mpt__onnx_loss(o, mpt__onnx_where(o, own, mpt__onnx_number(o, 0.0), each));
}

/* ==== The table ==== */

/* All ops, in the order of the table in src/ops/op.c. Without a form are the scaling of a loss,
   which is a training's, and what is a program's own. */
static const mpt__onnx_row mpt__onnx_rows[] = {
    {"add", "Add", mpt__onnx_binary},
    {"sub", "Sub", mpt__onnx_binary},
    {"mul", "Mul", mpt__onnx_binary},
    {"div", "Div", mpt__onnx_binary},
    {"add_scalar", "Add", mpt__onnx_scalar},
    {"mul_scalar", "Mul", mpt__onnx_scalar},
    {"neg", "Neg", mpt__onnx_plain},
    {"exp", "Exp", mpt__onnx_unary},
    {"log", "Log", mpt__onnx_unary},
    {"sqrt", "Sqrt", mpt__onnx_unary},
    {"relu", "Relu", mpt__onnx_plain},
    {"gelu", "composed", mpt__onnx_gelu},
    {"gelu_tanh", "composed", mpt__onnx_gelu_tanh},
    {"tanh", "Tanh", mpt__onnx_unary},
    {"sigmoid", "Sigmoid", mpt__onnx_unary},
    {"isnan", "IsNaN", mpt__onnx_predicate},
    {"isinf", "IsInf", mpt__onnx_predicate},
    {"equal", "Equal", mpt__onnx_comparison},
    {"lt", "Less", mpt__onnx_comparison},
    {"le", "LessOrEqual", mpt__onnx_comparison},
    {"gt", "Greater", mpt__onnx_comparison},
    {"ge", "GreaterOrEqual", mpt__onnx_comparison},
    {"ne", "composed", mpt__onnx_comparison},
    {"logical_and", "And", mpt__onnx_logical},
    {"logical_or", "Or", mpt__onnx_logical},
    {"logical_not", "Not", mpt__onnx_logical},
    {"log1p", "composed", mpt__onnx_log1p},
    {"rsqrt", "composed", mpt__onnx_rsqrt},
    {"pow", "Pow", mpt__onnx_wide_binary},
    {"pow_scalar", "Pow", mpt__onnx_pow_scalar},
    {"abs", "Abs", mpt__onnx_plain},
    {"sign", "Sign", mpt__onnx_unary},
    {"sin", "Sin", mpt__onnx_unary},
    {"cos", "Cos", mpt__onnx_unary},
    {"clamp", "Clip", mpt__onnx_clamp},
    {"minimum", "Min", mpt__onnx_wide_binary},
    {"maximum", "Max", mpt__onnx_wide_binary},
    {"where", "Where", mpt__onnx_choice},
    {"leaky_relu", "LeakyRelu", mpt__onnx_alpha},
    {"elu", "Elu", mpt__onnx_alpha},
    {"silu", "composed", mpt__onnx_silu},
    {"softplus", "Softplus", mpt__onnx_softplus},
    {"hardtanh", "Clip", mpt__onnx_clamp},
    {"scale_loss", NULL, NULL},
    {"matmul", "MatMul", mpt__onnx_matmul},
    {"linear", "Gemm", mpt__onnx_linear},
    {"sum", "ReduceSum", mpt__onnx_reduction},
    {"mean", "ReduceMean", mpt__onnx_reduction},
    {"max", "ReduceMax", mpt__onnx_reduction},
    {"argmax", "ArgMax", mpt__onnx_argmax},
    {"min", "ReduceMin", mpt__onnx_reduction},
    {"argmin", "ArgMin", mpt__onnx_argmax},
    {"prod", "ReduceProd", mpt__onnx_reduction},
    {"var", "composed", mpt__onnx_variance},
    {"std", "composed", mpt__onnx_variance},
    {"norm", "composed", mpt__onnx_norm},
    {"logsumexp", "ReduceLogSumExp", mpt__onnx_reduction},
    {"cumsum", "CumSum", mpt__onnx_cumsum},
    {"softmax", "Softmax", mpt__onnx_softmax},
    {"log_softmax", "LogSoftmax", mpt__onnx_softmax},
    {"dropout", "Identity", mpt__onnx_same},
    {"reshape", "Reshape", mpt__onnx_reshaped},
    {"permute", "Transpose", mpt__onnx_permute},
    {"slice", "Slice", mpt__onnx_slice},
    {"expand", "Expand", mpt__onnx_expand},
    {"clone", "Identity", mpt__onnx_same},
    {"cast", "Cast", mpt__onnx_same},
    {"cat", "Concat", mpt__onnx_cat},
    {"gather", "GatherElements", mpt__onnx_gather},
    {"index_select", "Gather", mpt__onnx_gather},
    {"scatter_add", "ScatterElements", mpt__onnx_scatter_add},
    {"one_hot", "composed", mpt__onnx_one_hot},
    {"flip", "Slice", mpt__onnx_flip},
    {"tril", "Trilu", mpt__onnx_triangle},
    {"triu", "Trilu", mpt__onnx_triangle},
    {"pad", "Pad", mpt__onnx_pad},
    {"nll_loss", "NegativeLogLikelihoodLoss", mpt__onnx_nll},
    {"cross_entropy", "SoftmaxCrossEntropyLoss", mpt__onnx_nll},
    {"mse_loss", "composed", mpt__onnx_mse},
    {"user", NULL, NULL},
    {"l1_loss", "composed", mpt__onnx_l1},
    {"smooth_l1_loss", "composed", mpt__onnx_l1},
    {"huber_loss", "composed", mpt__onnx_l1},
    {"binary_cross_entropy_with_logits", "composed", mpt__onnx_bce_logits},
    {"binary_cross_entropy", "composed", mpt__onnx_bce},
    {"kl_div", "composed", mpt__onnx_kl_div},
    {"gaussian_nll_loss", "composed", mpt__onnx_gaussian},
    {"soft_margin_loss", "Softplus", mpt__onnx_soft_margin},
    {"hinge_embedding_loss", "composed", mpt__onnx_hinge},
    {"margin_ranking_loss", "composed", mpt__onnx_ranking},
    {"triplet_margin_loss", "composed", mpt__onnx_triplet},
    {"cosine_similarity", "composed", mpt__onnx_cosine},
    {"cosine_embedding_loss", "composed", mpt__onnx_cosine_loss},
    {"soft_targets", "composed", mpt__onnx_soft_targets},
    {"poisson_nll_loss", "composed", mpt__onnx_poisson},
    {"multi_margin_loss", "composed", mpt__onnx_multi_margin},
    {"interpolate", "Resize", mpt__onnx_resize},
    {"argsort", "TopK", mpt__onnx_argsort},
    {"conv2d", "Conv", mpt__onnx_conv},
    {"conv1d", "Conv", mpt__onnx_conv},
    {"conv_transpose2d", "ConvTranspose", mpt__onnx_conv},
    {"layer_norm", "LayerNormalization", mpt__onnx_row_norm},
    {"rms_norm", "composed", mpt__onnx_row_norm},
    {"batch_norm", "BatchNormalization", mpt__onnx_batch_norm},
    {"group_norm", "composed", mpt__onnx_group_norm},
    {"max_pool2d", "MaxPool", mpt__onnx_pool},
    {"avg_pool2d", "AveragePool", mpt__onnx_pool},
    {"embedding", "Gather", mpt__onnx_embedding},
    {"scaled_dot_product_attention", "composed", mpt__onnx_attention},
    {"rope", "composed", mpt__onnx_rope},
    {"hash_grid", "composed", mpt__onnx_hash_grid},
    {"linear_cross_entropy", "composed", mpt__onnx_linear_nll},
    {"rnn", "RNN", mpt__onnx_recurrent},
    {"lstm", "LSTM", mpt__onnx_recurrent},
    {"gru", "GRU", mpt__onnx_recurrent},
};

/* The row of an op; NULL: there is none. */
static const mpt__onnx_row *mpt__onnx_row_of(const char *op) {
    for (size_t i = 0; i < sizeof mpt__onnx_rows / sizeof *mpt__onnx_rows; i++)
        if (strcmp(mpt__onnx_rows[i].op, op) == 0) return &mpt__onnx_rows[i];
    return NULL;
}

const char *mpt_onnx_form(const char *op) {
    const mpt__onnx_row *row = op ? mpt__onnx_row_of(op) : NULL;
    return row ? row->form : NULL;
}

#endif
