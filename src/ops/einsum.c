/* ----
 * ops/einsum.c: sums of products by labels, made of products of matrices.
 * ---- */
#ifndef MPT__OPS_EINSUM_INCLUDED
#define MPT__OPS_EINSUM_INCLUDED

#include "ops/inplace.c"

/* Labels are numbers: letters by their codes, then the dimensions of "...", the last one
   highest. */
enum { MPT__LETTERS = 52, MPT__LABELS = MPT__LETTERS + MPT_MAX_RANK };

/* A factor to be multiplied, or the product of those done. */
typedef struct {
    mpt_tensor tensor;
    bool own; /* made here, not the caller's */
    int rank;
    int label[MPT_MAX_RANK];
} mpt__factor;

typedef struct {
    mpt_context *context;
    const char *equation;
    mpt__factor factor[MPT_MAX_RANK];
    int count, ellipsis; /* factors; dimensions of the widest "..." */
    int64_t size[MPT__LABELS];
    int uses[MPT__LABELS]; /* factors to come and the output that have it */
} mpt__einsum;

static int mpt__label_of(char c) {
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : -1;
}

static bool mpt__einsum_syntax(const mpt__einsum *e, const char *at, const char *why) {
    return mpt__reject(e->context, ARGUMENT, "\"%s\", character %d: %s", e->equation,
        (int)(at - e->equation) + 1, why);
}

/* Reads labels up to a comma, an arrow or the end. `rank`: the tensor's, or -1 for the output,
   where "..." means all there is. Gives what stands behind, NULL after an error. */
static const char *mpt__einsum_labels(mpt__einsum *e, const char *at, int rank, mpt__factor *f) {
    int dots = -1, letters = 0;
    f->rank = 0;
    for (const char *p = at; *p != 0 && *p != ',' && *p != '-'; p++)
        letters += mpt__label_of(*p) >= 0;
    for (; *at != 0 && *at != ',' && *at != '-'; at++) {
        const int label = mpt__label_of(*at);
        int wide = label >= 0 ? 1 : 0;
        if (*at == ' ') continue;
        if (label < 0 && (strncmp(at, "...", 3) != 0 || dots >= 0)) {
            mpt__einsum_syntax(e, at, "expected a letter, \"...\" once, ',' or \"->\"");
            return NULL;
        }
        if (label < 0) {
            dots = rank < 0 ? e->ellipsis : rank - letters;
            if (dots > e->ellipsis) e->ellipsis = dots;
            wide = dots, at += 2;
        }
        if (wide < 0 || f->rank + wide > MPT_MAX_RANK) {
            mpt__einsum_syntax(e, at, "more labels than dimensions");
            return NULL;
        }
        for (int i = 0; i < wide; i++)
            f->label[f->rank++] = label >= 0 ? label : MPT__LABELS - wide + i;
    }
    return at;
}

/* Takes the sizes of a factor's labels; 1 gives way to any other. */
static bool mpt__einsum_sizes(
    mpt__einsum *e, const mpt__factor *f, const mpt_shape *shape, int number) {
    for (int i = 0; i < f->rank; i++) {
        const int label = f->label[i];
        const int64_t size = shape->dim[i], known = e->size[label];
        const char name = (char)(label < 26 ? 'A' + label : 'a' + label - 26);
        if (known > 1 && size > 1 && known != size)
            return mpt__reject(e->context, SHAPE,
                "\"%s\": '%c' is %lld in operand %d %S, but %lld before", e->equation,
                label < MPT__LETTERS ? name : '.', size, number, shape, known);
        if (known < 0 || known == 1) e->size[label] = size;
    }
    return true;
}

static bool mpt__einsum_inputs(
    mpt__einsum *e, const mpt_tensor *tensors, int count, const char **rest) {
    const char *at = e->equation;
    for (int i = 0; i < count; i++) {
        mpt__factor *f = &e->factor[i];
        const mpt__tensor *tensor = mpt__at(e->context, tensors[i], "an operand");
        if (!tensor) return false;
        at = mpt__einsum_labels(e, at, tensor->shape.rank, f);
        if (!at) return false;
        if (f->rank != tensor->shape.rank)
            return mpt__reject(e->context, SHAPE,
                "\"%s\": operand %d %S has %d dimensions, but %d labels", e->equation, i + 1,
                &tensor->shape, tensor->shape.rank, f->rank);
        f->tensor = tensors[i], f->own = false;
        if (!mpt__einsum_sizes(e, f, &tensor->shape, i + 1)) return false;
        if (i + 1 < count && *at++ != ',')
            return mpt__einsum_syntax(e, at - 1, "fewer operands than tensors");
    }
    e->count = count;
    *rest = at;
    return *at != ',' || mpt__einsum_syntax(e, at, "more operands than tensors");
}

/* What stands behind the arrow; without one, the dimensions of "..." and labels that occur once, in
   order. */
static bool mpt__einsum_output(mpt__einsum *e, const char *at, mpt__factor *out) {
    int found[MPT__LABELS] = {0};
    for (int i = 0; i < e->count; i++)
        for (int k = 0; k < e->factor[i].rank; k++) found[e->factor[i].label[k]]++;
    if (*at == 0) {
        out->rank = 0;
        for (int n = 0; n < MPT__LABELS; n++) { /* those of "..." first */
            const int label = n < MPT_MAX_RANK ? MPT__LETTERS + n : n - MPT_MAX_RANK;
            if (found[label] == 0 || (label < MPT__LETTERS && found[label] > 1)) continue;
            if (out->rank == MPT_MAX_RANK)
                return mpt__einsum_syntax(e, at, "more than 8 dimensions in the output");
            out->label[out->rank++] = label;
        }
        return true;
    }
    if (strncmp(at, "->", 2) != 0) return mpt__einsum_syntax(e, at, "expected \"->\"");
    const char *end = mpt__einsum_labels(e, at + 2, -1, out);
    if (!end) return false;
    if (*end != 0) return mpt__einsum_syntax(e, end, "something stands behind the output");
    for (int k = 0; k < out->rank; k++) {
        bool twice = false;
        for (int i = 0; i < k; i++) twice = twice || out->label[i] == out->label[k];
        if (twice || found[out->label[k]] == 0)
            return mpt__einsum_syntax(e, at + 2,
                twice ? "a label of the output stands there twice"
                      : "a label of the output is in no operand");
    }
    return true;
}

/* ==== Steps ==== */

/* Puts a tensor in the place of the factor's, of which it was made. */
static void mpt__factor_set(mpt__factor *f, mpt_tensor tensor) {
    if (tensor.slot == f->tensor.slot) return;
    if (f->own) mpt_release(f->tensor);
    f->tensor = tensor, f->own = true;
}

/* The dimensions in this order of labels. */
static void mpt__factor_order(mpt__factor *f, const int *label, int rank) {
    mpt_shape order;
    bool moved = false;
    order.rank = rank;
    for (int i = 0; i < rank; i++) {
        int at = 0;
        while (f->label[at] != label[i]) at++;
        order.dim[i] = at;
        moved = moved || at != i;
    }
    if (moved) mpt__factor_set(f, mpt_permute(f->tensor, order));
    for (int i = 0; i < rank; i++) f->label[i] = label[i];
}

static const mpt_shape *mpt__factor_shape(const mpt__factor *f) {
    return &mpt__live(f->tensor.context, f->tensor)->shape;
}

/* Leaves of dimensions i and k, of one label, the diagonal, in the last dimension. What is off it
   becomes 0, not multiplied by 0, so that infinity there does no harm. */
static bool mpt__factor_diagonal(const mpt__einsum *e, mpt__factor *f, int i, int k) {
    const mpt_shape *shape = mpt__factor_shape(f);
    const int label = f->label[i];
    mpt_shape order;
    order.rank = 0;
    if (shape->dim[i] != shape->dim[k])
        return mpt__reject(e->context, SHAPE,
            "\"%s\": a label stands twice at a tensor %S, for sizes %lld and %lld", e->equation,
            shape, shape->dim[i], shape->dim[k]);
    for (int d = 0, kept = 0; d < f->rank; d++) {
        if (d == i || d == k) continue;
        order.dim[order.rank++] = d, f->label[kept++] = f->label[d];
    }
    order.dim[order.rank++] = i, order.dim[order.rank++] = k;
    mpt__factor_set(f, mpt_permute(f->tensor, order));
    mpt__factor_set(f, mpt_tril(f->tensor, 0));
    mpt__factor_set(f, mpt_triu(f->tensor, 0));
    mpt__factor_set(f, mpt_sum(f->tensor, -1, false));
    f->label[--f->rank - 1] = label;
    return mpt__ok(e->context);
}

static bool mpt__factor_diagonals(const mpt__einsum *e, mpt__factor *f) {
    for (int i = 0; i < f->rank; i++)
        for (int k = i + 1; k < f->rank; k++) {
            if (f->label[i] != f->label[k]) continue;
            if (!mpt__factor_diagonal(e, f, i, k)) return false;
            i = -1;
            break;
        }
    return true;
}

static bool mpt__factor_has(const mpt__factor *f, int label) {
    for (int i = 0; i < f->rank; i++)
        if (f->label[i] == label) return true;
    return false;
}

/* Adds up dimensions that neither the output nor `other`, if any, nor a factor to come has. */
static bool mpt__factor_sums(const mpt__einsum *e, mpt__factor *f, const mpt__factor *other) {
    for (int i = f->rank - 1; i >= 0; i--) {
        const int label = f->label[i];
        const bool wanted = e->uses[label] > 0;
        if (wanted || (other && mpt__factor_has(other, label))) continue;
        mpt__factor_set(f, mpt_sum(f->tensor, i, false));
        if (!mpt__ok(e->context)) return false;
        for (int k = i; k + 1 < f->rank; k++) f->label[k] = f->label[k + 1];
        f->rank--;
    }
    return true;
}

/* Stretches what is 1 here to the size of its label. */
static void mpt__factor_stretch(const mpt__einsum *e, mpt__factor *f) {
    mpt_shape wide = *mpt__factor_shape(f);
    bool stretches = false;
    for (int i = 0; i < f->rank; i++) {
        stretches = stretches || wide.dim[i] != e->size[f->label[i]];
        wide.dim[i] = e->size[f->label[i]];
    }
    if (stretches) mpt__factor_set(f, mpt_expand(f->tensor, wide));
}

/* Labels of a product of two: those that both keep, those of a and of b alone, those summed. */
typedef struct {
    int label[4][MPT_MAX_RANK], count[4];
} mpt__label_groups;
enum { MPT__OF_BOTH, MPT__OF_A, MPT__OF_B, MPT__SUMMED };

static void mpt__factor_labels(
    const mpt__einsum *e, const mpt__factor *a, const mpt__factor *b, mpt__label_groups *g) {
    memset(g->count, 0, sizeof g->count);
    for (int i = 0; i < a->rank; i++) {
        const int label = a->label[i];
        int to = MPT__OF_A;
        if (mpt__factor_has(b, label)) to = e->uses[label] > 0 ? MPT__OF_BOTH : MPT__SUMMED;
        g->label[to][g->count[to]++] = label;
    }
    for (int i = 0; i < b->rank; i++)
        if (!mpt__factor_has(a, b->label[i]))
            g->label[MPT__OF_B][g->count[MPT__OF_B]++] = b->label[i];
}

/* Groups of labels in turn, each made one dimension where `merged`. */
static void mpt__factor_groups(const mpt__einsum *e, mpt__factor *f, const mpt__label_groups *g,
    const int *groups, int count, bool merged) {
    int label[MPT_MAX_RANK], rank = 0;
    mpt_shape shape;
    shape.rank = 0;
    for (int i = 0; i < count; i++) {
        const int n = g->count[groups[i]];
        int64_t product = 1;
        for (int k = 0; k < n; k++) {
            label[rank++] = g->label[groups[i]][k];
            product *= e->size[label[rank - 1]];
        }
        if (merged) shape.dim[shape.rank++] = product;
    }
    mpt__factor_stretch(e, f);
    mpt__factor_order(f, label, rank);
    if (merged) mpt__factor_set(f, mpt_reshape(f->tensor, shape));
}

/* a = a b, a product of matrices where something is summed, else of elements. */
static bool mpt__factor_multiply(const mpt__einsum *e, mpt__factor *a, mpt__factor *b) {
    static const int of_a[] = {MPT__OF_BOTH, MPT__OF_A, MPT__SUMMED};
    static const int of_b[] = {MPT__OF_BOTH, MPT__SUMMED, MPT__OF_B};
    mpt__label_groups g;
    mpt_shape shape;
    mpt__factor_labels(e, a, b, &g);
    const bool matrices = g.count[MPT__SUMMED] > 0;
    shape.rank = 0;
    for (int to = MPT__OF_BOTH; to <= MPT__OF_B; to++)
        for (int k = 0; k < g.count[to]; k++) {
            if (shape.rank == MPT_MAX_RANK)
                return mpt__reject(e->context, SHAPE,
                    "\"%s\": a product on the way has more than 8 dimensions", e->equation);
            shape.dim[shape.rank++] = e->size[g.label[to][k]];
        }
    mpt__factor_groups(e, a, &g, of_a, matrices ? 3 : 2, matrices);
    mpt__factor_groups(e, b, &g, of_b, 3, matrices);
    if (!matrices && g.count[MPT__OF_A] + g.count[MPT__OF_B] > 0) {
        mpt_shape apart = shape; /* b beside a */
        for (int k = 0; k < g.count[MPT__OF_B]; k++)
            apart.dim[g.count[MPT__OF_BOTH] + g.count[MPT__OF_A] + k] = 1;
        mpt__factor_set(a, mpt_reshape(a->tensor, apart));
        apart = shape;
        for (int k = 0; k < g.count[MPT__OF_A]; k++) apart.dim[g.count[MPT__OF_BOTH] + k] = 1;
        mpt__factor_set(b, mpt_reshape(b->tensor, apart));
    }
    mpt__factor_set(a, matrices ? mpt_matmul(a->tensor, b->tensor) : mpt_mul(a->tensor, b->tensor));
    if (matrices) mpt__factor_set(a, mpt_reshape(a->tensor, shape));
    if (b->own) mpt_release(b->tensor);
    a->rank = 0;
    for (int to = MPT__OF_BOTH; to <= MPT__OF_B; to++)
        for (int k = 0; k < g.count[to]; k++) a->label[a->rank++] = g.label[to][k];
    return mpt__ok(e->context);
}

static void mpt__einsum_use(mpt__einsum *e, const mpt__factor *f, int by) {
    for (int i = 0; i < f->rank; i++) e->uses[f->label[i]] += by;
}

static bool mpt__einsum_run(mpt__einsum *e, const mpt__factor *out) {
    mpt__factor *a = &e->factor[0];
    mpt__einsum_use(e, out, 1);
    for (int i = 0; i < e->count; i++) {
        if (!mpt__factor_diagonals(e, &e->factor[i])) return false;
        mpt__einsum_use(e, &e->factor[i], 1);
    }
    mpt__einsum_use(e, a, -1);
    for (int i = 1; i < e->count; i++) {
        mpt__factor *b = &e->factor[i];
        mpt__einsum_use(e, b, -1);
        if (!mpt__factor_sums(e, a, b) || !mpt__factor_sums(e, b, a) ||
            !mpt__factor_multiply(e, a, b))
            return false;
    }
    if (!mpt__factor_sums(e, a, NULL)) return false;
    mpt__factor_stretch(e, a);
    mpt__factor_order(a, out->label, out->rank);
    if (!a->own) a->tensor = mpt_clone(a->tensor); /* the result is never the caller's handle */
    return mpt__ok(e->context);
}

mpt_tensor mpt_einsum(const char *equation, const mpt_tensor *tensors, int count) {
    mpt__einsum e;
    mpt__factor out;
    const char *rest = NULL;
    mpt_context *ctx = tensors && count > 0 ? mpt__context_of(tensors, count) : NULL;
    memset(&e, 0, sizeof e);
    for (int i = 0; i < MPT__LABELS; i++) e.size[i] = -1;
    e.context = ctx, e.equation = equation;
    if (!mpt__enter(ctx, "mpt_einsum")) return mpt__null(ctx);
    if (!equation || count < 1 || count > MPT_MAX_RANK)
        return mpt__refuse(ctx, ARGUMENT, "expected an equation and 1 to 8 tensors, got %d", count);
    if (!mpt__einsum_inputs(&e, tensors, count, &rest) || !mpt__einsum_output(&e, rest, &out))
        return mpt__null(ctx);
    if (mpt__einsum_run(&e, &out)) return e.factor[0].tensor;
    return mpt__null(ctx);
}

#endif
