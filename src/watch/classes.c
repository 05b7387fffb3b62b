/* ----
 * watch/classes.c: classes drawn by weights, and how well classes are told.
 *
 * Both are the host's work: what it draws by is checked and named by row and value, sums are those
 * of doubles, and counts are integers.
 * ---- */
#ifndef MPT__WATCH_CLASSES_INCLUDED
#define MPT__WATCH_CLASSES_INCLUDED

#include "watch/check.c"

static mpt_scores mpt__no_scores(void) {
    mpt_scores scores;
    scores.samples = 0;
    scores.accuracy = scores.precision = scores.recall = scores.f1 = MPT__NAN_F64;
    return scores;
}

mpt_categorical_config mpt_categorical_config_default(void) {
    mpt_categorical_config config = {1, 0, 1};
    return config;
}

#ifdef MPTRAIN_NO_WATCH

MPT__BEGIN_ABSENT
mpt_status mpt_confusion(mpt_tensor outputs, mpt_tensor targets, int64_t *counts, int classes) {
    return mpt__watch_missing(outputs.context, "mpt_confusion");
}

mpt_scores mpt_class_scores(const int64_t *counts, int classes, int which) {
    return mpt__no_scores();
}

mpt_tensor mpt_multinomial(mpt_tensor weights, int64_t count, bool replacement) {
    mpt__watch_missing(weights.context, "mpt_multinomial");
    return mpt__null(weights.context);
}

mpt_tensor mpt_categorical(mpt_tensor logits, const mpt_categorical_config *config) {
    mpt__watch_missing(logits.context, "mpt_categorical");
    return mpt__null(logits.context);
}
MPT__END_ABSENT

#else

/* ==== Draws by weight ==== */

#define MPT__CLASS_STREAM 2 /* beside that of mpt_rand */

/* What mpt_multinomial and mpt_categorical draw by, and what they have drawn. */
typedef struct {
    double *weights; /* [rows, n] */
    double *sums; /* of one row: a tree whose node i has the sum of 2i and 2i + 1, leaves from n */
    int64_t *out; /* [rows, count] */
    int64_t rows, n, count;
    bool replacement;
    const mpt_categorical_config *logits; /* NULL: they are weights already */
} mpt__draw;

/* Of the weights of a row all become 0 but the largest, which are `most` of them, or as many as
   have that share of the sum together. */
static void mpt__draw_keep(const mpt__draw *draw, double *weights, int64_t most, double share) {
    double *best = draw->sums, sum = 0, kept = 0; /* a tree of maxima, leaves from n */
    const int64_t n = draw->n;
    for (int64_t i = 0; i < n; i++) sum += best[n + i] = weights[i];
    for (int64_t i = n - 1; i > 0; i--)
        best[i] = best[2 * i] < best[2 * i + 1] ? best[2 * i + 1] : best[2 * i];
    for (int64_t k = 0; k < most && kept < share * sum; k++) {
        int64_t node = 1;
        while (node < n) node = 2 * node + (best[2 * node] < best[2 * node + 1]);
        if (!(best[node] > 0)) break;
        kept += best[node];
        weights[node - n] = -best[node]; /* a mark */
        best[node] = 0;
        while ((node /= 2) > 0)
            best[node] =
                best[2 * node] < best[2 * node + 1] ? best[2 * node + 1] : best[2 * node];
    }
    for (int64_t i = 0; i < n; i++) weights[i] = weights[i] < 0 ? -weights[i] : 0;
}

/* Makes weights of a row of logits. */
static bool mpt__draw_logits(mpt_context *ctx, const mpt__draw *draw, int64_t row) {
    const mpt_categorical_config *c = draw->logits;
    double *weights = draw->weights + row * draw->n, most = -MPT__INF_F64;
    int64_t first = 0;
    for (int64_t i = 0; i < draw->n; i++) {
        if (!(weights[i] < MPT__INF_F64))
            return mpt__reject(ctx, ARGUMENT,
                "logit %lld of row %lld is %g: expected a finite one, or -infinity for what is "
                "never drawn",
                i, row, weights[i]);
        if (weights[i] > most) most = weights[i], first = i;
    }
    if (!(most > -MPT__INF_F64))
        return mpt__reject(
            ctx, ARGUMENT, "row %lld has no logit above -infinity, so nothing can be drawn", row);
    for (int64_t i = 0; i < draw->n; i++)
        weights[i] = c->temperature > 0 ? mpt__exp((weights[i] - most) / c->temperature)
                                        : i == first;
    if (c->top_k > 0 && c->top_k < draw->n)
        mpt__draw_keep(draw, weights, c->top_k, MPT__INF_F64);
    if (c->top_p < 1) mpt__draw_keep(draw, weights, draw->n, c->top_p);
    return true;
}

/* Whether a row can be drawn from, else an error that names it. Fills the tree. */
static bool mpt__draw_row(mpt_context *ctx, const mpt__draw *draw, int64_t row) {
    const double *weights = draw->weights + row * draw->n;
    int64_t n = draw->n, some = 0, need = draw->replacement ? 1 : draw->count;
    for (int64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0) || !mpt__f64_is_finite(weights[i]))
            return mpt__reject(ctx, ARGUMENT,
                "weight %lld of row %lld is %g: expected finite ones, 0 or more", i, row,
                weights[i]);
        some += weights[i] > 0;
        draw->sums[n + i] = weights[i];
    }
    for (int64_t i = n - 1; i > 0; i--) draw->sums[i] = draw->sums[2 * i] + draw->sums[2 * i + 1];
    if (some < need)
        return mpt__reject(ctx, ARGUMENT,
            "row %lld has %lld weights above 0: expected %lld or more", row, some, need);
    return mpt__f64_is_finite(draw->sums[1]) ||
        mpt__reject(ctx, ARGUMENT, "the weights of row %lld add up to %g: expected a finite sum",
            row, draw->sums[1]);
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
        if (draw->logits && !mpt__draw_logits(ctx, draw, row)) return false;
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
            "%lld draws by weights %S: expected 1 or more, by [.., n]", count, shape);
    draw->n = shape->dim[shape->rank - 1], draw->count = count;
    shape->dim[shape->rank - 1] = 1;
    draw->rows = mpt__shape_numel(shape);
    shape->dim[shape->rank - 1] = count;
    return mpt__checked_bytes(ctx, MPT_I64, shape) >= 0;
}

/* `count` draws of each row; of logits one, in a shape without the last dimension. */
static mpt_tensor mpt__draw_new(mpt_context *ctx, const mpt__tensor *found, int64_t count,
    bool replacement, const mpt_categorical_config *logits) {
    MPT__PLAIN_FLOATS;
    mpt_shape shape;
    mpt__draw draw;
    mpt_tensor out = mpt__null(ctx);
    mpt__zero(draw);
    if (!found || !mpt__draw_check(ctx, found, count, &draw, &shape)) return out;
    draw.replacement = replacement, draw.logits = logits;
    if (logits) shape.rank--;
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

mpt_tensor mpt_multinomial(mpt_tensor weights, int64_t count, bool replacement) {
    const mpt__tensor *found = mpt__enter_at(weights, "mpt_multinomial", "weights");
    return mpt__draw_new(weights.context, found, count, replacement, NULL);
}

mpt_tensor mpt_categorical(mpt_tensor logits, const mpt_categorical_config *config) {
    mpt_context *ctx = logits.context;
    const mpt__tensor *found = mpt__enter_at(logits, "mpt_categorical", "logits");
    const mpt_categorical_config c = config ? *config : mpt_categorical_config_default();
    if (!found) return mpt__null(ctx);
    if (!(c.temperature >= 0) || !mpt__f64_is_finite(c.temperature) || c.top_k < 0)
        return mpt__refuse(ctx, ARGUMENT,
            "temperature = %g, top_k = %lld; expected finite ones, 0 or more", c.temperature,
            c.top_k);
    if (!(c.top_p > 0 && c.top_p <= 1))
        return mpt__refuse(ctx, ARGUMENT, "top_p = %g; expected a share above 0, up to 1", c.top_p);
    return mpt__draw_new(ctx, found, 1, true, &c);
}

/* ==== Confusion ==== */

/* Whether outputs are i64 classes as the targets are, or have a float for each class. */
static bool mpt__confusion_shapes(
    const mpt__tensor *outputs, const mpt__tensor *targets, int classes) {
    int rank = targets->shape.rank;
    if (targets->dtype != MPT_I64) return false;
    if (outputs->dtype == MPT_I64) return mpt__same_shape(outputs, targets);
    return mpt__dtype_info[outputs->dtype].is_float && outputs->shape.rank == rank + 1 &&
        outputs->shape.dim[rank] == classes &&
        memcmp(outputs->shape.dim, targets->shape.dim, (size_t)rank * sizeof(int64_t)) == 0;
}

/* Adds n pairs of output and target, of which none is counted if one is no class. */
static mpt_status mpt__confusion_add(
    mpt_context *ctx, const int64_t *pairs, int64_t n, int64_t *counts, int classes) {
    static const char *const whose[] = {"output", "target"};
    const int64_t *side[] = {pairs, pairs + n};
    int64_t ignored = mpt_nll_config_default().ignore_index;
    for (int64_t i = 0; i < n; i++)
        for (int k = 0; k < 2 && side[1][i] != ignored; k++)
            if (side[k][i] < 0 || side[k][i] >= classes)
                return mpt__error(ctx, ARGUMENT, "%s %lld is %lld: expected 0 to %d", whose[k], i,
                    side[k][i], classes - 1);
    for (int64_t i = 0; i < n; i++)
        if (side[1][i] != ignored) counts[side[1][i] * classes + side[0][i]]++;
    return MPT_OK;
}

mpt_status mpt_confusion(mpt_tensor outputs, mpt_tensor targets, int64_t *counts, int classes) {
    mpt_context *ctx = outputs.context;
    const mpt__tensor *guesses = mpt__enter_at(outputs, "mpt_confusion", "outputs");
    const mpt__tensor *labels = guesses ? mpt__at(ctx, targets, "targets") : NULL;
    if (!labels) return mpt__status_of(ctx);
    if (!counts || classes < 1)
        return mpt__error(ctx, ARGUMENT, "%d classes: expected 1 or more, and counts of them",
            counts ? classes : 0);
    if (!mpt__confusion_shapes(guesses, labels, classes))
        return mpt__error(ctx, SHAPE,
            "outputs %D %S, targets %D %S: expected i64 targets, and outputs like "
            "them or of floats with a last dimension of %d more",
            guesses->dtype, &guesses->shape, labels->dtype, &labels->shape, classes);
    int64_t n = mpt__tensor_numel(labels);
    mpt_tensor likeliest = mpt__null(ctx);
    if (guesses->dtype != MPT_I64) {
        likeliest = mpt_argmax(outputs, -1, false);
        bool good = mpt__enter(ctx, "mpt_confusion"); /* whose name errors have again */
        guesses = good ? mpt__live(ctx, likeliest) : NULL;
    }
    int64_t *pairs =
        guesses ? (int64_t *)mpt__host_array(ctx, 2 * n + 1, sizeof *pairs) : (int64_t *)NULL;
    if (pairs && mpt__read_as(ctx, guesses, MPT_I64, pairs) == MPT_OK &&
        mpt__read_as(ctx, labels, MPT_I64, pairs + n) == MPT_OK)
        mpt__confusion_add(ctx, pairs, n, counts, classes);
    mpt__host_free(ctx, pairs, (size_t)(2 * n + 1) * sizeof *pairs);
    mpt_release(likeliest);
    return ctx->base.status;
}

/* a of b; of nothing it is 0. */
static double mpt__share(double a, double b) { return b > 0 ? a / b : 0.0; }

mpt_scores mpt_class_scores(const int64_t *counts, int classes, int which) {
    MPT__PLAIN_FLOATS;
    mpt_scores scores = mpt__no_scores();
    double samples = 0, right = 0, weights = 0, precision = 0, recall = 0, f1 = 0;
    if (!counts || which < MPT_WEIGHTED || which >= classes) return scores;
    for (int c = 0; c < classes; c++) {
        double is = 0, taken = 0, both = (double)counts[(int64_t)c * classes + c];
        for (int i = 0; i < classes; i++) {
            is += (double)counts[(int64_t)c * classes + i];
            taken += (double)counts[(int64_t)i * classes + c];
        }
        double weight = which == MPT_MACRO ? (double)(is + taken > 0)
            : which == MPT_WEIGHTED        ? is
                                           : (double)(which == c);
        samples += is, right += both, weights += weight;
        precision += weight * mpt__share(both, taken);
        recall += weight * mpt__share(both, is);
        f1 += weight * mpt__share(2 * both, is + taken);
        if (which == c) scores.samples = (int64_t)is;
    }
    if (which < 0) scores.samples = (int64_t)samples;
    if (which == MPT_MICRO) precision = recall = f1 = right, weights = samples;
    scores.accuracy = mpt__share(right, samples);
    scores.precision = mpt__share(precision, weights);
    scores.recall = mpt__share(recall, weights);
    scores.f1 = mpt__share(f1, weights);
    return scores;
}

#endif /* MPTRAIN_NO_WATCH */

#endif
