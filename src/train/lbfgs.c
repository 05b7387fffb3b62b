/* ----
 * train/lbfgs.c: L-BFGS, which evaluates its loss several times in a step.
 *
 * As torch.optim.LBFGS: Nocedal & Wright, Numerical Optimization, algorithms 7.4, 3.5 and 3.6, with
 * the constants of minFunc. All parameters are one fp32 vector in host memory, as is what is
 * remembered; sums are double. Of the device it asks values and gradients alone.
 * ---- */
#ifndef MPT__TRAIN_LBFGS_INCLUDED
#define MPT__TRAIN_LBFGS_INCLUDED

#include "train/own.c"

mpt_lbfgs_config mpt_lbfgs_config_default(void) {
    mpt_lbfgs_config config = {1, 20, 0, 1e-7, 1e-9, 100, false, false};
    return config;
}

#ifdef MPTRAIN_NO_WATCH

MPT__BEGIN_ABSENT
mpt_optimizer mpt_lbfgs(mpt_module module, const mpt_lbfgs_config *config) {
    mpt__watch_missing(module.context, "mpt_lbfgs");
    return mpt__optimizer_handle(module.context, NULL);
}

double mpt_lbfgs_step(mpt_optimizer optimizer, mpt_closure closure, void *user) {
    mpt__watch_missing(optimizer.context, "mpt_lbfgs");
    return MPT__NAN_F64;
}
MPT__END_ABSENT

#else

/* The vectors, behind which stand differences of gradients, then steps, of the history. */
enum {
    MPT__LBFGS_FIRST, /* values when the step began */
    MPT__LBFGS_FROM,  /* when the iteration began */
    MPT__LBFGS_VALUES,
    MPT__LBFGS_GRADIENT,
    MPT__LBFGS_BEFORE, /* gradient when the iteration began */
    MPT__LBFGS_DIRECTION,
    MPT__LBFGS_PROBED, /* gradients in a line search */
    MPT__LBFGS_SPARE,
    MPT__LBFGS_VECTORS
};

enum { MPT__LBFGS_HISTORY = 10000, MPT__LBFGS_SEARCHES = 25 };

typedef struct {
    mpt__own own;
    mpt_lbfgs_config config;
    int64_t n; /* elements of a vector */
    int64_t iterations, evaluations;
    int64_t pairs;   /* taken into the history: pair p has place p % history_size */
    double t, scale; /* length of the last step; first guess of the inverse curvature */
    double *rho;     /* by place: 1 / (y s) */
    double *alpha;   /* of an iteration, likewise */
    float *vectors;
} mpt__lbfgs;

typedef struct {
    mpt_context *context;
    mpt__optimizer *optimizer;
    mpt__lbfgs *of;
    mpt_closure closure;
    void *user;
    int evaluations;
} mpt__lbfgs_run;

static float *mpt__lbfgs_vector(const mpt__lbfgs *of, int64_t i) { return of->vectors + i * of->n; }

/* A pair's difference of gradients (which 0) or step (1). */
static float *mpt__lbfgs_pair(const mpt__lbfgs *of, int64_t pair, int which) {
    int64_t size = of->config.history_size;
    return mpt__lbfgs_vector(of, MPT__LBFGS_VECTORS + which * size + pair % size);
}

/* ==== Vectors ==== */

enum { MPT__LBFGS_LANES = 8 }; /* partial sums, in a fixed order */

static double mpt__lbfgs_dot(const float *a, const float *b, int64_t n) {
    double sum[MPT__LBFGS_LANES] = {0}, all = 0;
    for (int64_t i = 0; i < n; i++) sum[i % MPT__LBFGS_LANES] += (double)a[i] * (double)b[i];
    for (int i = 0; i < MPT__LBFGS_LANES; i++) all += sum[i];
    return all;
}

/* to = x + factor y */
static void mpt__lbfgs_add(float *to, const float *x, double factor, const float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = (float)((double)x[i] + factor * (double)y[i]);
}

/* The sum of magnitudes, or the largest; NaN if there is one. */
static double mpt__lbfgs_size(const float *x, int64_t n, bool sum) {
    double size = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = x[i] < 0 ? -(double)x[i] : (double)x[i];
        size = sum ? size + a : a > size || a != a ? a : size;
    }
    return size;
}

/* ==== Values and gradients ==== */

/* Values of all parameters, or their masters, into a vector or out of it. */
static mpt_status mpt__lbfgs_move(const mpt__lbfgs_run *run, float *vector, bool out) {
    mpt_context *ctx = run->context;
    mpt__optimizer *optimizer = run->optimizer;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        const mpt__parameter *parameter = &ctx->parameters[item->parameter];
        const mpt__own_place at = mpt__own_place_of(ctx, optimizer, item, 0);
        int64_t bytes = parameter->numel * 4;
        if (out) {
            mpt__upload(ctx, at.storage, at.offset * 4, vector, bytes);
            mpt__own_round(ctx, optimizer, item);
        } else {
            mpt__download(ctx, vector, at.storage, at.offset * 4, bytes);
        }
        vector += parameter->numel;
    }
    for (int64_t i = 0; out && i < optimizer->state_count; i++)
        mpt__values_updated(ctx, optimizer, &optimizer->states[i], -1);
    return ctx->base.status;
}

/* The loss that the closure gives, in a scope of its own. */
static double mpt__lbfgs_loss(const mpt__lbfgs_run *run) {
    mpt_context *ctx = run->context;
    const struct mpt__recording *recorder = ctx->recorder;
    const char *call = ctx->base.op;
    const int depth = ctx->scope_depth;
    double value = MPT__NAN_F64;
    if (mpt__scope_open(ctx) != MPT_OK) return value;
    mpt_tensor loss = run->closure(ctx, run->user);
    ctx->base.op = call;
    if (!mpt__ok(ctx)) return value;
    if (ctx->scope_depth != depth + 1 || ctx->recorder != recorder) {
        mpt__error(ctx, STATE,
            "the closure began or ended a scope, a step or a recording and left it so, or "
            "cleared an error");
        return value;
    }
    const mpt__tensor *found = mpt__at(ctx, loss, "loss of the closure");
    if (found && mpt__tensor_numel(found) != 1)
        mpt__error(
            ctx, SHAPE, "the closure gave a loss of shape %S, expected one element", &found->shape);
    else if (found)
        mpt__read_as(ctx, found, MPT_F64, &value);
    mpt__scope_close(ctx, 0);
    return value;
}

static void mpt__lbfgs_clear(mpt_context *ctx, const mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->item_count; i++)
        mpt__clear_grad(&ctx->parameters[optimizer->items[i].parameter]);
}

/* Loss and gradient at the values that the parameters have; NaN on error. */
static double mpt__lbfgs_evaluate(mpt__lbfgs_run *run, float *gradient) {
    mpt_context *ctx = run->context;
    mpt__optimizer *optimizer = run->optimizer;
    mpt__lbfgs_clear(ctx, optimizer);
    const double loss = mpt__lbfgs_loss(run);
    run->evaluations++;
    if (!mpt__ok(ctx) || mpt__pattern(ctx, optimizer, MPT__PLAIN) != MPT_OK) return MPT__NAN_F64;
    if (optimizer->with_grad == 0) {
        mpt__error(
            ctx, STATE, "no parameter has a gradient after the closure; call mpt_backward in it");
        return MPT__NAN_F64;
    }
    mpt__materialise(ctx, optimizer);
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        const mpt__parameter *parameter = &ctx->parameters[item->parameter];
        const size_t bytes = (size_t)parameter->numel * 4;
        if (item->had_grad)
            mpt__download(ctx, gradient, ctx->blocks[item->block].gradients, parameter->offset * 4,
                (int64_t)bytes);
        else
            memset(gradient, 0, bytes);
        gradient += parameter->numel;
    }
    return mpt__ok(ctx) ? loss : MPT__NAN_F64;
}

/* Puts the values t along the direction. */
static bool mpt__lbfgs_go(const mpt__lbfgs_run *run, double t) {
    const mpt__lbfgs *of = run->of;
    float *values = mpt__lbfgs_vector(of, MPT__LBFGS_VALUES);
    mpt__lbfgs_add(values, mpt__lbfgs_vector(of, MPT__LBFGS_FROM), t,
        mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION), of->n);
    return mpt__lbfgs_move(run, values, true) == MPT_OK;
}

/* ==== The line search ==== */

typedef struct {
    double t, loss, slope; /* along the direction */
    float *gradient;
} mpt__lbfgs_point;

/* Fills in a point at t. A non-finite loss or slope counts as infinitely bad. */
static bool mpt__lbfgs_probe(mpt__lbfgs_run *run, mpt__lbfgs_point *point, double t) {
    const mpt__lbfgs *of = run->of;
    if (!mpt__lbfgs_go(run, t)) return false;
    point->t = t;
    point->loss = mpt__lbfgs_evaluate(run, point->gradient);
    point->slope =
        mpt__lbfgs_dot(point->gradient, mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION), of->n);
    if (!mpt__f64_is_finite(point->loss) || !mpt__f64_is_finite(point->slope))
        point->loss = MPT__INF_F64;
    return mpt__ok(run->context);
}

/* Where the cubic through two points, by their slopes, is lowest in [low, high]. */
static double mpt__lbfgs_lowest(
    const mpt__lbfgs_point *a, const mpt__lbfgs_point *b, double low, double high) {
    if (a->t > b->t) {
        const mpt__lbfgs_point *other = a;
        a = b, b = other;
    }
    if (a->loss >= MPT__INF_F64) return b->t - (b->t - a->t) / 8; /* half would be too timid */
    if (b->loss >= MPT__INF_F64) return a->t + (b->t - a->t) / 8;
    const double d1 = a->slope + b->slope - 3 * (a->loss - b->loss) / (a->t - b->t);
    const double square = d1 * d1 - a->slope * b->slope;
    if (!(square >= 0) || !mpt__f64_is_finite(square)) return (low + high) / 2;
    const double d2 = sqrt(square);
    const double t = b->t - (b->t - a->t) * ((b->slope + d2 - d1) / (b->slope - a->slope + 2 * d2));
    if (t != t) return (low + high) / 2;
    return t < low ? low : t > high ? high : t;
}

static double mpt__lbfgs_abs(double x) { return x < 0 ? -x : x; }

/* A search: where it began, two points, one for the next, and how often it looked. */
typedef struct {
    mpt__lbfgs_point start, a, b, next;
    double slope_most; /* of a point that is good enough */
    int looks;
    bool done; /* b is good enough */
} mpt__lbfgs_search;

static bool mpt__lbfgs_too_high(const mpt__lbfgs_search *s, const mpt__lbfgs_point *point) {
    return point->loss > s->start.loss + 1e-4 * point->t * s->start.slope;
}

/* Goes on until a and b have a good point between them, or b is one. */
static bool mpt__lbfgs_bracket(mpt__lbfgs_run *run, mpt__lbfgs_search *s, double t) {
    if (!mpt__lbfgs_probe(run, &s->b, t)) return false;
    for (; s->looks < MPT__LBFGS_SEARCHES; s->looks++) {
        if (mpt__lbfgs_too_high(s, &s->b) || (s->looks > 1 && s->b.loss >= s->a.loss)) return true;
        s->done = mpt__lbfgs_abs(s->b.slope) <= s->slope_most;
        if (s->done || s->b.slope >= 0) return true;
        t = mpt__lbfgs_lowest(&s->a, &s->b, s->b.t + 0.01 * (s->b.t - s->a.t), 10 * s->b.t);
        float *gradient = s->a.gradient;
        s->a = s->b;
        s->b.gradient = gradient;
        if (!mpt__lbfgs_probe(run, &s->b, t)) return false;
    }
    memcpy(s->a.gradient, s->start.gradient, (size_t)run->of->n * sizeof(float));
    s->start.gradient = s->a.gradient;
    s->a = s->start;
    return true;
}

/* The next t between a and b: not too near one of them twice in a row. */
static double mpt__lbfgs_between(const mpt__lbfgs_search *s, bool *stuck) {
    const double left = s->a.t < s->b.t ? s->a.t : s->b.t,
                 right = s->a.t < s->b.t ? s->b.t : s->a.t;
    const double t = mpt__lbfgs_lowest(&s->a, &s->b, left, right), edge = 0.1 * (right - left);
    const bool near_edge = right - t < edge || t - left < edge;
    const bool moves = near_edge && (*stuck || t >= right || t <= left);
    *stuck = near_edge && !moves;
    if (!moves) return t;
    return right - t < t - left ? right - edge : left + edge;
}

/* Narrows the bracket. Gives the point to take, NULL on error. */
static mpt__lbfgs_point *mpt__lbfgs_zoom(mpt__lbfgs_run *run, mpt__lbfgs_search *s) {
    mpt__lbfgs_point *low = &s->a, *high = &s->b;
    const double reach =
        mpt__lbfgs_size(mpt__lbfgs_vector(run->of, MPT__LBFGS_DIRECTION), run->of->n, false);
    bool stuck = false;
    if (s->done) return &s->b;
    if (s->b.loss < s->a.loss) low = &s->b, high = &s->a;
    while (!s->done && s->looks < MPT__LBFGS_SEARCHES &&
        mpt__lbfgs_abs(s->b.t - s->a.t) * reach >= 1e-9) {
        if (!mpt__lbfgs_probe(run, &s->next, mpt__lbfgs_between(s, &stuck))) return NULL;
        s->looks++;
        mpt__lbfgs_point now = s->next;
        s->next.gradient = high->gradient;
        if (mpt__lbfgs_too_high(s, &now) || now.loss >= low->loss) {
            *high = now;
            if (high->loss < low->loss || (high->loss == low->loss && high == &s->a)) {
                mpt__lbfgs_point *other = low;
                low = high, high = other;
            }
            continue;
        }
        s->done = mpt__lbfgs_abs(now.slope) <= s->slope_most;
        if (!s->done && now.slope * (high->t - low->t) >= 0)
            *high = *low;
        else
            s->next.gradient = low->gradient;
        *low = now;
    }
    return low;
}

/* Strong Wolfe: finds t, and has values, loss and gradient there. */
static bool mpt__lbfgs_wolfe(mpt__lbfgs_run *run, double *t, double *loss, double slope) {
    const mpt__lbfgs *of = run->of;
    float *gradient = mpt__lbfgs_vector(of, MPT__LBFGS_GRADIENT);
    mpt__lbfgs_search s;
    mpt__zero(s);
    s.start.loss = *loss, s.start.slope = slope;
    s.a = s.start;
    s.start.gradient = mpt__lbfgs_vector(of, MPT__LBFGS_BEFORE);
    s.a.gradient = gradient;
    s.b.gradient = mpt__lbfgs_vector(of, MPT__LBFGS_PROBED);
    s.next.gradient = mpt__lbfgs_vector(of, MPT__LBFGS_SPARE);
    s.slope_most = -0.9 * slope;
    if (!mpt__lbfgs_bracket(run, &s, *t)) return false;
    const mpt__lbfgs_point *taken = mpt__lbfgs_zoom(run, &s);
    if (!taken) return false;
    *t = taken->t, *loss = taken->loss;
    if (taken->gradient != gradient)
        memcpy(gradient, taken->gradient, (size_t)of->n * sizeof *gradient);
    return mpt__lbfgs_go(run, *t);
}

/* ==== Iterations ==== */

/* Takes what the last step showed of the curvature into the history. */
static void mpt__lbfgs_learn(mpt__lbfgs *of) {
    float *y = mpt__lbfgs_vector(of, MPT__LBFGS_PROBED),
          *s = mpt__lbfgs_vector(of, MPT__LBFGS_SPARE);
    const float *direction = mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION);
    mpt__lbfgs_add(y, mpt__lbfgs_vector(of, MPT__LBFGS_GRADIENT), -1,
        mpt__lbfgs_vector(of, MPT__LBFGS_BEFORE), of->n);
    for (int64_t i = 0; i < of->n; i++) s[i] = (float)((double)direction[i] * of->t);
    const double ys = mpt__lbfgs_dot(y, s, of->n);
    if (!(ys > 1e-10)) return;
    const size_t bytes = (size_t)of->n * sizeof *y;
    memcpy(mpt__lbfgs_pair(of, of->pairs, 0), y, bytes);
    memcpy(mpt__lbfgs_pair(of, of->pairs, 1), s, bytes);
    of->rho[of->pairs++ % of->config.history_size] = 1 / ys;
    of->scale = ys / mpt__lbfgs_dot(y, y, of->n);
}

/* The direction: the gradient times what the history says of the inverse Hessian, negated. */
static void mpt__lbfgs_aim(mpt__lbfgs *of) {
    const int64_t n = of->n, size = of->config.history_size;
    const float *gradient = mpt__lbfgs_vector(of, MPT__LBFGS_GRADIENT);
    float *d = mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION);
    for (int64_t i = 0; i < n; i++) d[i] = -gradient[i];
    const int64_t first = of->pairs > size ? of->pairs - size : 0;
    for (int64_t p = of->pairs - 1; p >= first; p--) {
        const double alpha = mpt__lbfgs_dot(mpt__lbfgs_pair(of, p, 1), d, n) * of->rho[p % size];
        of->alpha[p % size] = alpha;
        mpt__lbfgs_add(d, d, -alpha, mpt__lbfgs_pair(of, p, 0), n);
    }
    for (int64_t i = 0; i < n; i++) d[i] = (float)((double)d[i] * of->scale);
    for (int64_t p = first; p < of->pairs; p++) {
        const double beta = mpt__lbfgs_dot(mpt__lbfgs_pair(of, p, 0), d, n) * of->rho[p % size];
        mpt__lbfgs_add(d, d, of->alpha[p % size] - beta, mpt__lbfgs_pair(of, p, 1), n);
    }
}

/* An iteration, the last of a step or not. Gives whether another may follow. */
static bool mpt__lbfgs_iterate(mpt__lbfgs_run *run, double lr, double *loss, bool last) {
    mpt__lbfgs *of = run->of;
    const mpt_lbfgs_config *c = &of->config;
    const size_t bytes = (size_t)of->n * sizeof(float);
    float *gradient = mpt__lbfgs_vector(of, MPT__LBFGS_GRADIENT);
    const float *direction = mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION);
    const double before = *loss;
    if (of->iterations++ > 0) mpt__lbfgs_learn(of);
    mpt__lbfgs_aim(of);
    memcpy(mpt__lbfgs_vector(of, MPT__LBFGS_BEFORE), gradient, bytes);
    of->t = lr;
    if (of->iterations == 1) {
        const double sum = mpt__lbfgs_size(gradient, of->n, true);
        if (sum > 1) of->t = lr / sum;
    }
    const double slope = mpt__lbfgs_dot(gradient, direction, of->n);
    if (!(slope <= -c->tolerance_change)) return false;
    mpt__lbfgs_move(run, mpt__lbfgs_vector(of, MPT__LBFGS_FROM), false);
    if (c->strong_wolfe) {
        if (!mpt__lbfgs_wolfe(run, &of->t, loss, slope)) return false;
    } else {
        if (!mpt__lbfgs_go(run, of->t) || last) return false;
        *loss = mpt__lbfgs_evaluate(run, gradient);
        if (mpt__ok(run->context) && !mpt__f64_is_finite(*loss))
            mpt__error(run->context, NUMERIC,
                "the loss is %g after %d evaluations; a smaller lr may help, or "
                "strong_wolfe, which steps back from what is not finite",
                *loss, run->evaluations);
        if (!mpt__ok(run->context)) return false;
    }
    const double moved = mpt__lbfgs_abs(of->t) * mpt__lbfgs_size(direction, of->n, false);
    return !last && run->evaluations < (c->max_eval ? c->max_eval : (int64_t)c->max_iter * 5 / 4) &&
        mpt__lbfgs_size(gradient, of->n, false) > c->tolerance_grad &&
        moved > c->tolerance_change && mpt__lbfgs_abs(*loss - before) >= c->tolerance_change;
}

/* All iterations of a step. Gives the loss where it began. */
static double mpt__lbfgs_iterations(mpt__lbfgs_run *run) {
    mpt__lbfgs *of = run->of;
    float *gradient = mpt__lbfgs_vector(of, MPT__LBFGS_GRADIENT);
    mpt__optimizer *optimizer = run->optimizer;
    const double lr = mpt__schedule_lr(run->context, optimizer, &optimizer->groups[0]);
    const double first = mpt__lbfgs_evaluate(run, gradient);
    double loss = first;
    if (!mpt__ok(run->context)) return MPT__NAN_F64;
    const double size = mpt__lbfgs_size(gradient, of->n, false);
    if (!mpt__f64_is_finite(first) || !mpt__f64_is_finite(size)) {
        mpt__error(run->context, NUMERIC,
            "the loss is %g and its largest gradient %g: both have to be finite", first, size);
        return MPT__NAN_F64;
    }
    bool more = size > of->config.tolerance_grad;
    for (int i = 1; more; i++) more = mpt__lbfgs_iterate(run, lr, &loss, i == of->config.max_iter);
    if (!mpt__ok(run->context)) return MPT__NAN_F64;
    of->evaluations += run->evaluations;
    return first;
}

/* After an error: the values of before, and a new history. */
static void mpt__lbfgs_go_back(const mpt__lbfgs_run *run) {
    mpt_context *ctx = run->context;
    const mpt_status status = ctx->base.status;
    ctx->base.status = MPT_OK; /* so that halves can be written */
    mpt__lbfgs_move(run, mpt__lbfgs_vector(run->of, MPT__LBFGS_FIRST), true);
    ctx->base.status = status;
    run->of->iterations = run->of->pairs = 0;
    run->of->t = run->of->scale = 1;
}

/* Whether a step may begin. */
static bool mpt__lbfgs_ready(mpt_context *ctx, const mpt__optimizer *optimizer) {
    if (optimizer->own->running)
        return mpt__reject(
            ctx, STATE, "a step of this optimizer is under way; its closure calls it");
    if (!mpt__no_slice(ctx) || !mpt__not_updating(ctx, optimizer)) return false;
    if (mpt__is_capturing(ctx) || (ctx->recorder && !ctx->recorder->own))
        return mpt__reject(ctx, UNSUPPORTED,
            "L-BFGS runs on the host: neither captured steps nor recordings can "
            "repeat it");
    for (int64_t i = 0; i < optimizer->state_count; i++)
        if (mpt__averages_applied(ctx, optimizer->states[i].block))
            return mpt__reject(
                ctx, STATE, "the module's values are averages; call mpt_ema_restore first");
    return true;
}

static mpt_status mpt__lbfgs_update(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    (void)optimizer, (void)found_slot;
    return mpt__error(ctx, STATE,
        "L-BFGS evaluates the loss several times in a step; call mpt_lbfgs_step, with "
        "a function that does so");
}

double mpt_lbfgs_step(mpt_optimizer handle, mpt_closure closure, void *user) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    mpt__optimizer *optimizer = mpt__optimizer_enter(handle, "mpt_lbfgs_step");
    if (!optimizer) return MPT__NAN_F64;
    if (!closure || !optimizer->own || optimizer->own->update != mpt__lbfgs_update) {
        mpt__error(ctx, ARGUMENT,
            closure ? "the optimizer is not of mpt_lbfgs; call mpt_step" : "closure is NULL");
        return MPT__NAN_F64;
    }
    if (!mpt__lbfgs_ready(ctx, optimizer) || mpt__update_refused(ctx, optimizer))
        return MPT__NAN_F64;
    mpt__lbfgs *of = (mpt__lbfgs *)optimizer->own;
    mpt__lbfgs_run run = {ctx, optimizer, of, closure, user, 0};
    mpt__lbfgs_clear(ctx, optimizer);
    if (mpt__pattern(ctx, optimizer, MPT__PLAIN) != MPT_OK) return MPT__NAN_F64;
    mpt__tell(ctx, MPT__GRADIENTS_DONE, NULL);
    const int scopes = ctx->scope_depth;
    const int64_t kept = ctx->scoped_count;
    for (int64_t i = 0; i < optimizer->state_count; i++)
        mpt__master_refresh(ctx, optimizer, &optimizer->states[i]);
    if (mpt__lbfgs_move(&run, mpt__lbfgs_vector(of, MPT__LBFGS_FIRST), false) != MPT_OK)
        return MPT__NAN_F64;
    of->own.running = true;
    ctx->forward_depth++;
    const double loss = mpt__lbfgs_iterations(&run);
    ctx->forward_depth--;
    of->own.running = false;
    if (!mpt__ok(ctx)) {
        if (ctx->scope_depth > scopes) {
            mpt__scope_drop(ctx, kept);
            ctx->scope_depth = scopes;
        }
        mpt__lbfgs_go_back(&run);
        return MPT__NAN_F64;
    }
    mpt__scalar_set_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED],
        mpt__scalar_get_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED]) + 1);
    ctx->committed = ctx->now;
    ctx->committed.updates = ++ctx->now.updates;
    return loss;
}

/* ==== Making ==== */

static void mpt__lbfgs_free(mpt_context *ctx, mpt__own *own) {
    mpt__lbfgs *of = (mpt__lbfgs *)own;
    const size_t size = (size_t)of->config.history_size;
    mpt__host_free(ctx, of->rho, 2 * size * sizeof *of->rho);
    mpt__host_free(
        ctx, of->vectors, (MPT__LBFGS_VECTORS + 2 * size) * (size_t)of->n * sizeof *of->vectors);
}

/* What checkpoints have besides what every optimizer shows. */
static mpt_status mpt__lbfgs_visit(
    mpt_context *ctx, mpt__own *own, mpt__state_item *item, mpt__state_visitor visit, void *user) {
    mpt__lbfgs *of = (mpt__lbfgs *)own;
    const int64_t size = of->config.history_size;
    const struct {
        const char *name;
        void *at;
        mpt_dtype dtype;
        int64_t rows, columns; /* of an array; rows 0: of a vector; columns 0: a number */
    } rows[] = {{"lbfgs.iterations", &of->iterations, MPT_I64, 0, 0},
        {"lbfgs.evaluations", &of->evaluations, MPT_I64, 0, 0},
        {"lbfgs.pairs", &of->pairs, MPT_I64, 0, 0}, {"lbfgs.step_size", &of->t, MPT_F64, 0, 0},
        {"lbfgs.scale", &of->scale, MPT_F64, 0, 0}, {"lbfgs.rho", of->rho, MPT_F64, 0, size},
        {"lbfgs.gradient", mpt__lbfgs_vector(of, MPT__LBFGS_BEFORE), MPT_F32, 0, of->n},
        {"lbfgs.direction", mpt__lbfgs_vector(of, MPT__LBFGS_DIRECTION), MPT_F32, 0, of->n},
        {"lbfgs.changes", mpt__lbfgs_pair(of, 0, 0), MPT_F32, size, of->n},
        {"lbfgs.steps", mpt__lbfgs_pair(of, 0, 1), MPT_F32, size, of->n}};
    mpt_status status = MPT_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && status == MPT_OK; i++) {
        mpt__zero(*item);
        item->name = rows[i].name, item->dtype = rows[i].dtype;
        item->shape = MPT_SCALAR, item->count = 1;
        if (rows[i].columns) {
            item->array = rows[i].at;
            item->shape = rows[i].rows ? MPT_SHAPE(rows[i].rows, rows[i].columns)
                                       : MPT_SHAPE(rows[i].columns);
            item->count = (rows[i].rows ? rows[i].rows : 1) * rows[i].columns;
        } else {
            item->host = rows[i].at;
            item->most = rows[i].dtype == MPT_I64 ? MPT__MOST_COUNTED : 0;
        }
        status = visit(ctx, user, item);
    }
    return status;
}

static bool mpt__lbfgs_check(mpt_context *ctx, const mpt_lbfgs_config *c) {
    if (c->history_size > MPT__LBFGS_HISTORY)
        return mpt__reject(ctx, ARGUMENT, "history_size = %d; expected 1 to %d", c->history_size,
            (int)MPT__LBFGS_HISTORY);
    return mpt__check_count(ctx, "history_size", c->history_size, 1) &&
        mpt__check_count(ctx, "max_iter", c->max_iter, 1) &&
        mpt__check_count(ctx, "max_eval", c->max_eval, 0) &&
        mpt__check_number(ctx, "tolerance_grad", c->tolerance_grad, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "tolerance_change", c->tolerance_change, 0, MPT__NO_LIMIT);
}

/* The memory of an optimizer that has its parameters. */
static bool mpt__lbfgs_make(
    mpt_context *ctx, mpt__optimizer *optimizer, const mpt_lbfgs_config *c) {
    mpt__lbfgs *of = (mpt__lbfgs *)mpt__host_new(ctx, sizeof *of);
    const int64_t rows = MPT__LBFGS_VECTORS + 2 * (int64_t)c->history_size;
    if (!of) return false;
    optimizer->own = &of->own;
    of->own.bytes = sizeof *of;
    of->own.rule = *optimizer->rule;
    of->own.whole = true;
    of->own.update = mpt__lbfgs_update, of->own.end = mpt__lbfgs_free;
    of->own.visit = mpt__lbfgs_visit;
    of->config = *c;
    of->t = of->scale = 1;
    for (int64_t i = 0; i < optimizer->item_count; i++)
        of->n += ctx->parameters[optimizer->items[i].parameter].numel;
    of->rho = (double *)mpt__host_array(ctx, 2 * (int64_t)c->history_size, sizeof *of->rho);
    if (!of->rho) return false;
    of->alpha = of->rho + c->history_size;
    of->vectors = (float *)mpt__host_array(
        ctx, of->n > INT64_MAX / rows ? INT64_MAX : of->n * rows, sizeof *of->vectors);
    return of->vectors != NULL;
}

mpt_optimizer mpt_lbfgs(mpt_module module, const mpt_lbfgs_config *config) {
    mpt_context *ctx = module.context;
    const mpt_lbfgs_config c = config ? *config : mpt_lbfgs_config_default();
    const mpt__plan plan = {c.lr, 0, {0, 0, 0}, false, false, c.allow_shared, false, 0, 0};
    const mpt_optimizer made = mpt__optimizer_new("mpt_lbfgs", module, &mpt__own_rules[0], &plan);
    if (!made.slot) return made;
    if (mpt__lbfgs_check(ctx, &c) && mpt__lbfgs_make(ctx, mpt__optimizer_at(ctx, made), &c))
        return made;
    mpt__object_free(ctx, MPT__OPTIMIZER, made.slot);
    return mpt__optimizer_handle(ctx, NULL);
}

#endif /* MPTRAIN_NO_WATCH */

#endif
