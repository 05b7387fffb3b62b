/* ------------------------
 * watch/classes.c: classes drawn by weights, and how well classes are told.
 *
 * Both are the host's work: what it draws by is checked and named by row and value, sums are those
 * of doubles, and counts are integers.
 * ---------------------- */
#ifndef MPT__WATCH_CLASSES_INCLUDED
#define MPT__WATCH_CLASSES_INCLUDED

#include "watch/check.c"

#ifdef MPTRAIN_NO_WATCH

mpt_tensor mpt_multinomial(mpt_tensor weights, int64_t count, bool replacement) {
    (void)count, (void)replacement;
    mpt__watch_missing(weights.context, "mpt_multinomial");
    return mpt__null(weights.context);
}

#else

/* ==== Draws by weight ==== */

#define MPT__CLASS_STREAM 2 /* beside that of mpt_rand */

/* What mpt_multinomial draws by, and what it has drawn. */
typedef struct {
    double *weights; /* [rows, n] */
    double *sums; /* of one row: a tree whose node i has the sum of 2i and 2i + 1, leaves from n */
    int64_t *out; /* [rows, count] */
    int64_t rows, n, count;
    bool replacement;
} mpt__draw;

/* Whether a row can be drawn from, else an error that names it. Fills the tree. */
static bool mpt__draw_row(mpt_context *ctx, const mpt__draw *draw, int64_t row) {
    const double *weights = draw->weights + row * draw->n;
    int64_t n = draw->n, some = 0, need = draw->replacement ? 1 : draw->count;
    for (int64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0) || !mpt__f64_is_finite(weights[i]))
            return mpt__reject(ctx, ARGUMENT,
                               "weight %lld of row %lld is %g: expected finite ones, 0 or more", i,
                               row, weights[i]);
        some += weights[i] > 0;
        draw->sums[n + i] = weights[i];
    }
    for (int64_t i = n - 1; i > 0; i--) draw->sums[i] = draw->sums[2 * i] + draw->sums[2 * i + 1];
    if (some < need)
        return mpt__reject(ctx, ARGUMENT,
                           "row %lld has %lld weights above 0: expected %lld or more", row, some,
                           need);
    return mpt__f64_is_finite(draw->sums[1]) ||
           mpt__reject(ctx, ARGUMENT, "the weights of row %lld add up to %g", row, draw->sums[1]);
}

/* The leaf that lies at a part of the sum. Never one of weight 0: a side that sums up to nothing is
   not taken, wherever rounding has put the part. */
static int64_t mpt__draw_leaf(const double *sums, int64_t n, double at) {
    int64_t node = 1;
    while (node < n) {
        node *= 2;
        if (at < sums[node] || !(sums[node + 1] > 0)) continue;
        at -= sums[node++];
    }
    return node;
}

/* One draw after the other: what is drawn without replacement weighs nothing from then on, and sums
   are formed anew, so that what is left has its shares however small they are. */
static void mpt__draw_all(const mpt__draw *draw, mpt__rng_key key, int64_t row) {
    for (int64_t i = row * draw->count; i < (row + 1) * draw->count; i++) {
        uint64_t word = mpt__random_below(key, (uint64_t)i, UINT64_C(1) << 53);
        double part = (double)word * (1.0 / 9007199254740992.0);
        int64_t leaf = mpt__draw_leaf(draw->sums, draw->n, part * draw->sums[1]);
        draw->out[i] = leaf - draw->n;
        if (draw->replacement) continue;
        draw->sums[leaf] = 0.0;
        while ((leaf /= 2) > 0) draw->sums[leaf] = draw->sums[2 * leaf] + draw->sums[2 * leaf + 1];
    }
}

/* Reads the weights and draws; the call is counted where all rows are good. */
static bool mpt__draw_rows(mpt_context *ctx, const mpt__tensor *weights, const mpt__draw *draw) {
    mpt__rng_key key = {ctx->config.seed, MPT__CLASS_STREAM, ctx->now.draws};
    if (mpt__read_as(ctx, weights, MPT_F64, draw->weights) != MPT_OK) return false;
    for (int64_t row = 0; row < draw->rows; row++) {
        if (!mpt__draw_row(ctx, draw, row)) return false;
        mpt__draw_all(draw, key, row);
    }
    ctx->now.draws++;
    return true;
}

/* Whether weights and count can be those of a draw, else an error; what it comes to. */
static bool mpt__draw_check(mpt_context *ctx, const mpt__tensor *weights, int64_t count,
                            mpt__draw *draw, mpt_shape *shape) {
    *shape = weights->shape;
    if (!mpt__dtype_info[weights->dtype].is_float)
        return mpt__reject(ctx, DTYPE, "dtype %D: expected a float dtype", weights->dtype);
    if (shape->rank < 1 || count < 1)
        return mpt__reject(ctx, ARGUMENT,
                           "%lld draws by weights %S: expected 1 or more, by [.., n]", count,
                           shape);
    draw->n = shape->dim[shape->rank - 1], draw->count = count;
    shape->dim[shape->rank - 1] = 1;
    draw->rows = mpt__shape_numel(shape);
    shape->dim[shape->rank - 1] = count;
    return mpt__checked_bytes(ctx, MPT_I64, shape) >= 0;
}

mpt_tensor mpt_multinomial(mpt_tensor weights, int64_t count, bool replacement) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = weights.context;
    const mpt__tensor *found = mpt__enter_at(weights, "mpt_multinomial", "weights");
    mpt_shape shape;
    mpt__draw draw;
    mpt_tensor out = mpt__null(ctx);
    mpt__zero(draw);
    if (!found || !mpt__draw_check(ctx, found, count, &draw, &shape)) return out;
    draw.replacement = replacement;
    /* One element more than nothing, for rows or weights that there are none of. */
    int64_t sizes[] = {draw.rows * draw.n + 1, 2 * draw.n + 2, draw.rows * count + 1};
    draw.weights = (double *)mpt__host_array(ctx, sizes[0], sizeof(double));
    if (draw.weights) draw.sums = (double *)mpt__host_array(ctx, sizes[1], sizeof(double));
    if (draw.sums) draw.out = (int64_t *)mpt__host_array(ctx, sizes[2], sizeof(int64_t));
    if (draw.out && mpt__draw_rows(ctx, found, &draw)) {
        mpt__tensor *made = mpt__tensor_new(ctx, MPT_I64, &shape, MPT_MEMORY_ACTIVATION);
        int64_t bytes = (sizes[2] - 1) * (int64_t)sizeof(int64_t);
        if (made)
            out = mpt__tensor_done(ctx, made, mpt__upload(ctx, made->storage, 0, draw.out, bytes));
    }
    mpt__host_free(ctx, draw.weights, (size_t)sizes[0] * sizeof(double));
    mpt__host_free(ctx, draw.sums, (size_t)sizes[1] * sizeof(double));
    mpt__host_free(ctx, draw.out, (size_t)sizes[2] * sizeof(int64_t));
    return out;
}

#endif /* MPTRAIN_NO_WATCH */

#endif
