/* ---------------------------------------------------------------------------------------------
 * 31_cpu_train.c: the reference kernels of training: losses, gradients, optimizers, loss scaler and
 * device scalars. Built of the loads, stores and sums of 30_cpu_ref.c.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__31_CPU_TRAIN_INCLUDED
#define MPT__31_CPU_TRAIN_INCLUDED

#include "30_cpu_ref.c"

/* ==== Losses ==== */

/* What NLL and CROSS_ENTROPY and their backward share. Absent operands have no data. */
typedef struct mpt__ref_loss_work {
    const mpt__cpu_call *call;
    mpt__ref_view x, target, weight, divisor, gradient, log_sum, out;
    const mpt__operand *x_operand, *out_operand;
    int64_t target_stride, weight_stride, gradient_stride;
    int64_t log_sum_row, log_sum_part; /* strides of [N, 2]: maximum, and the rest of it */
    int64_t rows, classes;
    mpt__real smoothing, weight_sum;
    mpt__real *row_loss, *row_weight; /* [rows] */
    bool from_logits;
} mpt__ref_loss_work;

/* The stride of a [N] or [1] operand; 0 if absent. */
static int64_t mpt__ref_vector_stride(const mpt__cpu_call *call, int operand) {
    const mpt__operand *o = &call->launch->operand[operand];
    return call->data[operand] != NULL && o->rank > 0 ? o->stride[0] : 0;
}

static void mpt__ref_log_sum_strides(mpt__ref_loss_work *w, const mpt__cpu_call *call) {
    const mpt__operand *o = &call->launch->operand[5];
    w->log_sum_row = call->data[5] != NULL ? o->stride[0] : 0;
    w->log_sum_part = call->data[5] != NULL ? o->stride[1] : 0;
}

/* The class of a sample, or -1 where it is ignored or bad. */
static int64_t mpt__ref_target(const mpt__ref_loss_work *w, int64_t row) {
    int64_t t = mpt__ref_get_integer(&w->target, row * w->target_stride);
    return t == w->call->launch->index[0] || t < 0 || t >= w->classes ? -1 : t;
}

static mpt__real mpt__ref_class_weight(const mpt__ref_loss_work *w, int64_t c) {
    return w->weight.data != NULL ? mpt__ref_get_one(&w->weight, c * w->weight_stride) : 1;
}

/* sum over classes of weight (log_sum - x), with log_sum given relative to `most`. */
static mpt__real mpt__ref_smooth_row(const mpt__ref_loss_work *w, int64_t row, mpt__real most,
                                     mpt__real log_sum) {
    const mpt__operand *o = w->x_operand;
    mpt__real x[MPT__BLOCK], weight[MPT__BLOCK];
    mpt__ref_sum sum;
    mpt__ref_sum_init(&sum);
    for (int64_t at = 0; at < w->classes; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->classes - at);
        mpt__ref_get(&w->x, row * o->stride[0] + at * o->stride[1], o->stride[1], x, n);
        for (int64_t i = 0; i < n; i++) x[i] = log_sum - (x[i] - most);
        if (w->weight.data != NULL) {
            mpt__ref_get(&w->weight, at * w->weight_stride, w->weight_stride, weight, n);
            for (int64_t i = 0; i < n; i++) x[i] *= weight[i];
        }
        mpt__ref_sum_add(&sum, x, n);
    }
    return mpt__ref_sum_total(&sum);
}

/* Loss and weight of one sample. From logits: (1 - e) w (lse - x[t]) + e / C sum_c w_c (lse - x_c),
   the maximum kept apart so that large logits lose no digits. */
static void mpt__ref_loss_row(const mpt__ref_loss_work *w, int64_t row) {
    const mpt__operand *o = w->x_operand;
    int64_t t = mpt__ref_target(w, row);
    mpt__real most = 0, log_sum = 0, weight = 0, loss = 0;
    if (w->from_logits) {
        mpt__ref_line_sum(&w->x, row * o->stride[0], o->stride[1], w->classes, &most, &log_sum);
        log_sum = mpt__real_log(log_sum);
        mpt__ref_put_one(&w->log_sum, row * w->log_sum_row, most);
        mpt__ref_put_one(&w->log_sum, row * w->log_sum_row + w->log_sum_part, log_sum);
    }
    if (t >= 0) {
        mpt__real x = mpt__ref_get_one(&w->x, row * o->stride[0] + t * o->stride[1]);
        weight = mpt__ref_class_weight(w, t);
        loss = weight * (log_sum - (x - most));
        if (w->smoothing != 0) {
            mpt__real all = mpt__ref_smooth_row(w, row, most, log_sum);
            loss = (1 - w->smoothing) * loss + w->smoothing / (mpt__real)w->classes * all;
        }
    }
    w->row_loss[row] = loss;
    w->row_weight[row] = weight;
}

static void mpt__ref_loss_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_loss_work *w = (const mpt__ref_loss_work *)work;
    int64_t end = mpt__ref_min((chunk + 1) * MPT__CHUNK_ROWS, w->rows);
    (void)thread;
    for (int64_t row = chunk * MPT__CHUNK_ROWS; row < end; row++) mpt__ref_loss_row(w, row);
}

/* Notes the first bad target in the error word, unless an earlier error stands there. */
static void mpt__ref_check_targets(const mpt__ref_loss_work *w) {
    mpt__scalar *scalars = w->call->scalars;
    for (int64_t row = 0; row < w->rows && scalars[MPT__SLOT_ERROR].i == 0; row++) {
        int64_t t = mpt__ref_get_integer(&w->target, row * w->target_stride);
        if (t != w->call->launch->index[0] && (t < 0 || t >= w->classes)) {
            scalars[MPT__SLOT_ERROR].i = MPT_ERROR_INDEX;
            scalars[MPT__SLOT_ERROR_LAUNCH].i = w->call->launch->number;
            scalars[MPT__SLOT_ERROR_INDEX].i = row;
        }
    }
}

/* Operands as NLL has them; those of CROSS_ENTROPY begin alike. */
static void mpt__ref_loss(const mpt__cpu_call *call, bool from_logits) {
    const mpt__launch *launch = call->launch;
    mpt__ref_view out = mpt__ref_view_of(call, 3), divisor = mpt__ref_view_of(call, 4);
    mpt__ref_loss_work w;
    memset(&w, 0, sizeof w);
    w.call = call;
    w.x = mpt__ref_view_of(call, 0);
    w.target = mpt__ref_view_of(call, 1);
    w.weight = mpt__ref_view_of(call, 2);
    w.x_operand = &launch->operand[0];
    w.target_stride = mpt__ref_vector_stride(call, 1);
    w.weight_stride = mpt__ref_vector_stride(call, 2);
    w.rows = launch->operand[0].shape[0];
    w.classes = launch->operand[0].shape[1];
    w.row_loss = (mpt__real *)call->workspace;
    w.row_weight = w.rows > 0 ? w.row_loss + w.rows : NULL; /* no rows: no workspace */
    w.from_logits = from_logits;
    if (from_logits) {
        w.log_sum = mpt__ref_view_of(call, 5);
        mpt__ref_log_sum_strides(&w, call);
        w.smoothing = (mpt__real)launch->imm[0];
    }
    mpt__ref_check_targets(&w);
    mpt__parallel(call->pool, mpt__ref_chunks(w.rows, MPT__CHUNK_ROWS),
                  w.rows * (from_logits ? w.classes * 15 + 30 : 30), mpt__ref_loss_chunk, &w);

    if (launch->reduction == MPT_NONE) {
        int64_t stride = mpt__ref_vector_stride(call, 3);
        for (int64_t at = 0; at < w.rows; at += MPT__BLOCK) {
            mpt__ref_put(&out, at * stride, stride, w.row_loss + at,
                         mpt__ref_min(MPT__BLOCK, w.rows - at));
        }
        mpt__ref_put_one(&divisor, 0, 1);
        return;
    }
    mpt__ref_sum loss, weight;
    mpt__ref_sum_init(&loss);
    mpt__ref_sum_init(&weight);
    mpt__ref_sum_add(&loss, w.row_loss, w.rows);
    mpt__ref_sum_add(&weight, w.row_weight, w.rows);
    mpt__real by = launch->reduction == MPT_MEAN ? mpt__ref_sum_total(&weight) : 1;
    mpt__ref_put_one(&out, 0, mpt__ref_sum_total(&loss) / by);
    mpt__ref_put_one(&divisor, 0, by);
}

static int64_t mpt__ref_loss_workspace(const mpt__launch *launch, int threads) {
    (void)threads;
    return launch->operand[0].shape[0] * 2 * (int64_t)sizeof(mpt__real);
}

static void mpt__ref_nll(const mpt__cpu_call *call) { mpt__ref_loss(call, false); }
static void mpt__ref_cross_entropy(const mpt__cpu_call *call) { mpt__ref_loss(call, true); }

/* What a sample's loss gets of the gradient: dloss, divided where the loss was a mean. */
static mpt__real mpt__ref_row_gradient(const mpt__ref_loss_work *w, int64_t row) {
    uint8_t reduction = w->call->launch->reduction;
    mpt__real g = mpt__ref_get_one(&w->gradient,
                                   reduction == MPT_NONE ? row * w->gradient_stride : 0);
    return reduction == MPT_MEAN ? g / mpt__ref_get_one(&w->divisor, 0) : g;
}

/* One row of the gradient. NLL: -g w at the target. From logits, with p = softmax(x):
   g ((1 - e) w_t (p - onehot) + e / C (p sum(w) - w)). Ignored samples get 0. */
static void mpt__ref_loss_backward_row(const mpt__ref_loss_work *w, int64_t row) {
    const mpt__operand *in = w->x_operand, *out = w->out_operand;
    int64_t t = mpt__ref_target(w, row);
    mpt__real g = t >= 0 ? mpt__ref_row_gradient(w, row) : 0, dx[MPT__BLOCK], p[MPT__BLOCK];
    mpt__real target = t >= 0 ? (1 - w->smoothing) * mpt__ref_class_weight(w, t) : 0;
    mpt__real smooth = w->smoothing / (mpt__real)w->classes, most = 0, log_sum = 0;
    if (w->log_sum.data != NULL) {
        most = mpt__ref_get_one(&w->log_sum, row * w->log_sum_row);
        log_sum = mpt__ref_get_one(&w->log_sum, row * w->log_sum_row + w->log_sum_part);
    }
    for (int64_t at = 0; at < w->classes; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, w->classes - at);
        for (int64_t i = 0; i < n; i++) dx[i] = t == at + i ? -target : 0;
        if (w->from_logits && t >= 0) {
            mpt__ref_get(&w->x, row * in->stride[0] + at * in->stride[1], in->stride[1], p, n);
            for (int64_t i = 0; i < n; i++) {
                p[i] = mpt__real_exp((p[i] - most) - log_sum);
                dx[i] += target * p[i];
                if (smooth != 0) {
                    dx[i] += smooth * (p[i] * w->weight_sum - mpt__ref_class_weight(w, at + i));
                }
            }
        }
        for (int64_t i = 0; i < n; i++) dx[i] = dx[i] != 0 ? g * dx[i] : 0;
        mpt__ref_put(&w->out, row * out->stride[0] + at * out->stride[1], out->stride[1], dx, n);
    }
}

static void mpt__ref_loss_backward_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_loss_work *w = (const mpt__ref_loss_work *)work;
    int64_t end = mpt__ref_min((chunk + 1) * MPT__CHUNK_ROWS, w->rows);
    (void)thread;
    for (int64_t row = chunk * MPT__CHUNK_ROWS; row < end; row++) {
        mpt__ref_loss_backward_row(w, row);
    }
}

/* `first` is the operand of the targets; weights, divisor and dloss follow it. */
static void mpt__ref_loss_backward(const mpt__cpu_call *call, mpt__ref_loss_work *w, int first,
                                   int out, double ns) {
    w->call = call;
    w->target = mpt__ref_view_of(call, first);
    w->weight = mpt__ref_view_of(call, first + 1);
    w->divisor = mpt__ref_view_of(call, first + 2);
    w->gradient = mpt__ref_view_of(call, first + 3);
    w->out = mpt__ref_view_of(call, out);
    w->out_operand = &call->launch->operand[out];
    w->target_stride = mpt__ref_vector_stride(call, first);
    w->weight_stride = mpt__ref_vector_stride(call, first + 1);
    w->gradient_stride = mpt__ref_vector_stride(call, first + 3);
    w->rows = w->out_operand->shape[0];
    w->classes = w->out_operand->shape[1];
    w->weight_sum = (mpt__real)w->classes;
    if (w->weight.data != NULL) {
        mpt__ref_sum sum;
        mpt__ref_sum_init(&sum);
        for (int64_t c = 0; c < w->classes; c++) {
            mpt__real weight = mpt__ref_class_weight(w, c);
            mpt__ref_sum_add(&sum, &weight, 1);
        }
        w->weight_sum = mpt__ref_sum_total(&sum);
    }
    mpt__parallel(call->pool, mpt__ref_chunks(w->rows, MPT__CHUNK_ROWS),
                  (int64_t)((double)w->rows * ((double)w->classes * ns + 30)),
                  mpt__ref_loss_backward_chunk, w);
}

static void mpt__ref_nll_backward(const mpt__cpu_call *call) {
    mpt__ref_loss_work w;
    memset(&w, 0, sizeof w);
    mpt__ref_loss_backward(call, &w, 0, 4, 2.0);
}

static void mpt__ref_cross_entropy_backward(const mpt__cpu_call *call) {
    mpt__ref_loss_work w;
    memset(&w, 0, sizeof w);
    w.from_logits = true;
    w.x = mpt__ref_view_of(call, 0);
    w.x_operand = &call->launch->operand[0];
    w.log_sum = mpt__ref_view_of(call, 5);
    mpt__ref_log_sum_strides(&w, call);
    w.smoothing = (mpt__real)call->launch->imm[0];
    mpt__ref_loss_backward(call, &w, 1, 6, 12.0);
}

/* ==== Gradients ==== */

/* Row `segment` of a segment operand. */
static const int64_t *mpt__ref_segment(const mpt__cpu_call *call, int operand, int64_t segment) {
    const int64_t *rows = (const int64_t *)call->data[operand];
    return rows + segment * MPT__SEGMENT_FIELDS;
}

/* A device scalar used as a factor; slot 0: 1. */
static mpt__real mpt__ref_factor(const mpt__cpu_call *call, int slot) {
    return slot != 0 ? (mpt__real)call->scalars[slot].f : 1;
}

/* Starts a norm: with slot[3], a loss scale, the multiplier becomes 1 / scale, found_inf 0. Gives
   the multiplier. */
static mpt__real mpt__ref_norm_begin(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    if (slot[3] != 0) {
        call->scalars[slot[0]].f = (double)(float)(1 / call->scalars[slot[3]].f);
        if (slot[1] != 0) call->scalars[slot[1]].i = 0;
    }
    return mpt__ref_factor(call, slot[0]);
}

/* Sums of squares are in double and have a tree of their own: each segment in chunks of MPT__CHUNK,
   eight lanes and their fold as in MPT__SUM_CHUNK, all chunks of all segments added up in pairs. */
typedef struct mpt__ref_norm_part {
    double squares;
    int64_t nonfinite;
} mpt__ref_norm_part;

typedef struct mpt__ref_norm_work {
    mpt__ref_view gradients;
    mpt__real multiplier;
    const int64_t *segment;
    mpt__ref_norm_part *part; /* of the segment's first chunk */
} mpt__ref_norm_work;

static void mpt__ref_norm_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_norm_work *w = (const mpt__ref_norm_work *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__ref_min(begin + MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT]);
    double lane[MPT__SUM_LANES] = {0, 0, 0, 0, 0, 0, 0, 0};
    mpt__real x[MPT__BLOCK];
    int64_t nonfinite = 0;
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, end - at);
        mpt__ref_get(&w->gradients, w->segment[MPT__SEGMENT_OFFSET] + at, 1, x, n);
        for (int64_t i = 0; i < n; i++) {
            /* The product shows every non-finite element too: infinity times 0 is NaN. */
            mpt__real product = x[i] * w->multiplier;
            if (!mpt__real_is_finite(product)) nonfinite = 1;
            lane[i % MPT__SUM_LANES] += (double)product * (double)product;
        }
    }
    w->part[chunk].squares = ((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                             ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    w->part[chunk].nonfinite = nonfinite;
}

static int64_t mpt__ref_grad_norm_workspace(const mpt__launch *launch, int threads) {
    int64_t chunks = mpt__ref_numel(&launch->operand[0]) / MPT__CHUNK + launch->operand[1].shape[0];
    (void)threads;
    return chunks * (int64_t)sizeof(mpt__ref_norm_part);
}

/* Adds up the parts and sets the slots of found_inf and norm. */
static void mpt__ref_norm_finish(const mpt__cpu_call *call, mpt__ref_norm_part *parts,
                                 int64_t chunks) {
    const mpt__launch *launch = call->launch;
    int64_t nonfinite = 0;
    for (int64_t i = 0; i < chunks; i++) nonfinite |= parts[i].nonfinite;
    for (int64_t step = 1; step < chunks; step *= 2) {
        for (int64_t i = 0; i + step < chunks; i += 2 * step) {
            parts[i].squares += parts[i + step].squares;
        }
    }
    if (launch->slot[1] != 0 && nonfinite != 0) call->scalars[launch->slot[1]].i = 1;
    if (launch->slot[2] != 0) {
        double *norm = &call->scalars[launch->slot[2]].f;
        double before = launch->index[0] != 0 ? *norm * *norm : 0;
        *norm = sqrt(before + (chunks > 0 ? parts[0].squares : 0));
    }
}

static void mpt__ref_grad_norm(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__ref_norm_part *parts = (mpt__ref_norm_part *)call->workspace;
    mpt__ref_norm_work w;
    int64_t chunks = 0;
    w.gradients = mpt__ref_view_of(call, 0);
    w.multiplier = mpt__ref_norm_begin(call);
    for (int64_t s = 0; s < launch->operand[1].shape[0]; s++) {
        w.segment = mpt__ref_segment(call, 1, s);
        w.part = parts + chunks;
        int64_t count = w.segment[MPT__SEGMENT_COUNT], n = mpt__ref_chunks(count, MPT__CHUNK);
        mpt__parallel(call->pool, n, count * 2, mpt__ref_norm_chunk, &w);
        chunks += n;
    }
    mpt__ref_norm_finish(call, parts, chunks);
}

typedef struct mpt__ref_scale_work {
    mpt__ref_view gradients;
    mpt__real multiplier, limit;
    const int64_t *segment;
} mpt__ref_scale_work;

static void mpt__ref_grad_scale_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_scale_work *w = (const mpt__ref_scale_work *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__ref_min(begin + MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT]);
    mpt__real x[MPT__BLOCK];
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, end - at), offset = w->segment[0] + at;
        mpt__ref_get(&w->gradients, offset, 1, x, n);
        for (int64_t i = 0; i < n; i++) {
            x[i] *= w->multiplier;
            if (w->limit > 0 && x[i] > w->limit) x[i] = w->limit;
            if (w->limit > 0 && x[i] < -w->limit) x[i] = -w->limit;
        }
        mpt__ref_put(&w->gradients, offset, 1, x, n);
    }
}

static void mpt__ref_grad_scale(const mpt__cpu_call *call) {
    mpt__ref_scale_work w;
    w.gradients = mpt__ref_view_of(call, 0);
    w.multiplier = mpt__ref_factor(call, call->launch->slot[0]);
    w.limit = (mpt__real)call->launch->imm[0];
    for (int64_t s = 0; s < call->launch->operand[1].shape[0]; s++) {
        w.segment = mpt__ref_segment(call, 1, s);
        int64_t count = w.segment[MPT__SEGMENT_COUNT];
        mpt__parallel(call->pool, mpt__ref_chunks(count, MPT__CHUNK), count * 2,
                      mpt__ref_grad_scale_chunk, &w);
    }
}

/* ==== Optimizers ==== */

/* One segment of one update. What depends on the step count alone is computed once, in double. */
typedef struct mpt__ref_update mpt__ref_update;
struct mpt__ref_update {
    mpt__ref_view param, master, gradient, first, second; /* moments; absent where there are none */
    const int64_t *segment;
    int64_t step; /* updates before this one */
    mpt__real multiplier, lr, decay;
    mpt__real momentum, keep; /* SGD: momentum, 1 - dampening */
    bool nesterov, decoupled;
    mpt__real beta1, rest1, beta2, rest2, eps; /* Adam; rest = 1 - beta */
    mpt__real step_size, root_correction, shrink; /* lr / c1, sqrt(c2), lr decay */
    /* p, g, m, v of n <= MPT__BLOCK elements: updates p, m, v */
    void (*update)(const mpt__ref_update *w, mpt__real *p, mpt__real *g, mpt__real *m,
                   mpt__real *v, int64_t n);
};

/* g += decay p; m = momentum m + (1 - dampening) g, at first g; p -= lr m, or, with Nesterov,
   p -= lr (g + momentum m). */
static void mpt__ref_sgd_block(const mpt__ref_update *w, mpt__real *p, mpt__real *g, mpt__real *m,
                               mpt__real *v, int64_t n) {
    (void)v;
    for (int64_t i = 0; i < n; i++) {
        mpt__real direction = g[i] * w->multiplier;
        if (w->decay != 0) direction += w->decay * p[i];
        if (w->first.data != NULL) {
            m[i] = w->step == 0 ? direction : w->momentum * m[i] + w->keep * direction;
            direction = w->nesterov ? direction + w->momentum * m[i] : m[i];
        }
        p[i] -= w->lr * direction;
    }
}

/* PyTorch's fused form: m and v as written, p -= lr / c1 * m / (sqrt(v) / sqrt(c2) + eps). */
static void mpt__ref_adam_block(const mpt__ref_update *w, mpt__real *p, mpt__real *g, mpt__real *m,
                                mpt__real *v, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        mpt__real gradient = g[i] * w->multiplier;
        if (w->decoupled) {
            p[i] -= w->shrink * p[i];
        } else if (w->decay != 0) {
            gradient += w->decay * p[i];
        }
        m[i] = w->beta1 * m[i] + w->rest1 * gradient;
        v[i] = w->beta2 * v[i] + w->rest2 * gradient * gradient;
        p[i] -= w->step_size * m[i] / (mpt__real_sqrt(v[i]) / w->root_correction + w->eps);
    }
}

static void mpt__ref_update_chunk(void *work, int64_t chunk, int thread) {
    const mpt__ref_update *w = (const mpt__ref_update *)work;
    int64_t begin = chunk * MPT__CHUNK;
    int64_t end = mpt__ref_min(begin + MPT__CHUNK, w->segment[MPT__SEGMENT_COUNT]);
    const mpt__ref_view *weights = w->master.data != NULL ? &w->master : &w->param;
    mpt__real p[MPT__BLOCK], g[MPT__BLOCK], m[MPT__BLOCK], v[MPT__BLOCK];
    (void)thread;
    for (int64_t at = begin; at < end; at += MPT__BLOCK) {
        int64_t n = mpt__ref_min(MPT__BLOCK, end - at);
        int64_t offset = w->segment[MPT__SEGMENT_OFFSET] + at;
        mpt__ref_get(weights, offset, 1, p, n);
        mpt__ref_get(&w->gradient, offset, 1, g, n);
        if (w->first.data != NULL) mpt__ref_get(&w->first, offset, 1, m, n);
        if (w->second.data != NULL) mpt__ref_get(&w->second, offset, 1, v, n);
        w->update(w, p, g, m, v, n);
        if (w->master.data != NULL) mpt__ref_put(&w->master, offset, 1, p, n);
        mpt__ref_put(&w->param, offset, 1, p, n);
        if (w->first.data != NULL) mpt__ref_put(&w->first, offset, 1, m, n);
        if (w->second.data != NULL) mpt__ref_put(&w->second, offset, 1, v, n);
    }
}

/* The rate of an update: slot[0], or what a table of rates has for the steps applied. */
static double mpt__ref_rate(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    if (launch->n_operands < 8 || call->data[7] == NULL) return call->scalars[launch->slot[0]].f;
    int64_t n = launch->operand[7].shape[0];
    int64_t at = call->scalars[launch->slot[3]].i - call->scalars[launch->slot[4]].i;
    return ((const double *)call->data[7])[at < 0 ? 0 : at < n ? at : n - 1];
}

/* The end of an update: its steps are counted. */
static void mpt__ref_commit(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    int64_t *steps = (int64_t *)call->data[5];
    if (launch->index[1] == 0) return;
    for (int64_t s = 0; s < launch->operand[4].shape[0]; s++) {
        const int64_t *segment = mpt__ref_segment(call, 4, s);
        for (int64_t i = 0; i < segment[MPT__SEGMENT_STEPS]; i++)
            steps[segment[MPT__SEGMENT_STEP] + i]++;
    }
    if (launch->index[1] == 2) call->scalars[launch->slot[3]].i++;
}

/* Fills what both optimizers have and goes through the segments; `prepare` (or NULL) computes what
   depends on the step count. */
static void mpt__ref_update_run(const mpt__cpu_call *call, mpt__ref_update *w,
                                void (*prepare)(const mpt__launch *launch, mpt__ref_update *w,
                                                double lr),
                                double ns) {
    const mpt__launch *launch = call->launch;
    const int64_t *steps = (const int64_t *)call->data[5];
    double lr = mpt__ref_rate(call);
    w->param = mpt__ref_view_of(call, 0);
    w->master = mpt__ref_view_of(call, 1);
    w->gradient = mpt__ref_view_of(call, 2);
    w->first = mpt__ref_view_of(call, 3);
    w->lr = (mpt__real)lr;
    w->multiplier = mpt__ref_factor(call, launch->slot[1]);
    for (int64_t s = 0; s < launch->operand[4].shape[0]; s++) {
        w->segment = mpt__ref_segment(call, 4, s);
        w->step = steps[w->segment[MPT__SEGMENT_STEP]];
        if (prepare != NULL) prepare(launch, w, lr);
        int64_t count = w->segment[MPT__SEGMENT_COUNT];
        mpt__parallel(call->pool, mpt__ref_chunks(count, MPT__CHUNK),
                      (int64_t)((double)count * ns), mpt__ref_update_chunk, w);
    }
    mpt__ref_commit(call);
}

static void mpt__ref_sgd(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__ref_update w;
    if (!mpt__gate_open(call, launch->slot[2])) return;
    memset(&w, 0, sizeof w);
    w.update = mpt__ref_sgd_block;
    w.momentum = (mpt__real)launch->imm[0];
    w.keep = (mpt__real)(1 - launch->imm[1]);
    w.decay = (mpt__real)launch->imm[2];
    w.nesterov = launch->index[0] != 0;
    mpt__ref_update_run(call, &w, NULL, 4.0);
}

static void mpt__ref_adam_prepare(const mpt__launch *launch, mpt__ref_update *w, double lr) {
    double c1 = 1 - mpt__power(launch->imm[0], w->step + 1);
    double c2 = 1 - mpt__power(launch->imm[1], w->step + 1);
    w->step_size = (mpt__real)(lr / c1);
    w->root_correction = (mpt__real)sqrt(c2);
    w->shrink = (mpt__real)(lr * launch->imm[3]);
}

static void mpt__ref_adam(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__ref_update w;
    if (!mpt__gate_open(call, launch->slot[2])) return;
    memset(&w, 0, sizeof w);
    w.update = mpt__ref_adam_block;
    w.second = mpt__ref_view_of(call, 6);
    w.beta1 = (mpt__real)launch->imm[0];
    w.rest1 = (mpt__real)(1 - launch->imm[0]);
    w.beta2 = (mpt__real)launch->imm[1];
    w.rest2 = (mpt__real)(1 - launch->imm[1]);
    w.eps = (mpt__real)launch->imm[2];
    w.decay = (mpt__real)launch->imm[3];
    w.decoupled = launch->index[0] == 1;
    mpt__ref_update_run(call, &w, mpt__ref_adam_prepare, 12.0);
}

/* A NaN norm makes the multiplier NaN, as in PyTorch. */
static void mpt__ref_clip(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__ref_view out = mpt__ref_view_of(call, 0);
    mpt__real norm = (mpt__real)call->scalars[launch->slot[1]].f;
    mpt__real factor = (mpt__real)launch->imm[0] / (norm + (mpt__real)1e-6);
    if (factor > 1) factor = 1;
    mpt__scalar *multiplier = &call->scalars[launch->slot[0]];
    multiplier->f = (double)((mpt__real)multiplier->f * factor);
    if (out.data != NULL) mpt__ref_put_one(&out, 0, norm);
}

/* ==== Device scalars ==== */

static void mpt__ref_scalar_set(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scalar *to = &call->scalars[launch->slot[0]];
    if (launch->index[0] == 0) {
        to->f = launch->imm[0];
    } else {
        to->i = launch->index[1];
    }
}

static void mpt__ref_scalar_or(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    call->scalars[slot[0]].i = (call->scalars[slot[1]].i | call->scalars[slot[2]].i) != 0;
}

/* The scale after an overflow. The floor stops the way down; it never lifts a scale that a user has
   set below it. */
static double mpt__ref_backed_off(double scale, double backoff, double floor_scale) {
    double next = (double)(float)(scale * backoff);
    if (next < floor_scale) next = floor_scale < scale ? floor_scale : scale;
    return next;
}

/* The scale after an interval of clean steps; likewise with the ceiling. */
static double mpt__ref_grown(double scale, double growth, double ceiling) {
    double next = (double)(float)(scale * growth);
    if (!mpt__f64_is_finite(next)) return scale;
    if (ceiling > 0 && next > ceiling) next = ceiling > scale ? ceiling : scale;
    return next;
}

static void mpt__ref_scaler_update(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    const uint16_t *slot = launch->slot;
    mpt__scalar *s = call->scalars;
    bool fixed = launch->index[1] != 0;
    if (!mpt__gate_open(call, 0)) return;
    s[slot[3]].i++;
    if (s[slot[2]].i != 0) {
        if (!fixed) {
            s[slot[0]].f = mpt__ref_backed_off(s[slot[0]].f, launch->imm[1], launch->imm[2]);
        }
        s[slot[1]].i = 0;
        s[slot[4]].i++;
        s[slot[5]].i++;
        s[slot[6]].i = s[slot[3]].i;
        s[slot[7]].i = MPT_OUTCOME_SKIPPED;
        return;
    }
    s[slot[1]].i++;
    if (!fixed && s[slot[1]].i >= launch->index[0]) {
        s[slot[0]].f = mpt__ref_grown(s[slot[0]].f, launch->imm[0], launch->imm[3]);
        s[slot[1]].i = 0;
    }
    s[slot[5]].i = 0;
    s[slot[7]].i = MPT_OUTCOME_APPLIED;
}

static void mpt__ref_metric_add(const mpt__cpu_call *call) {
    const uint16_t *slot = call->launch->slot;
    double value = 0;
    mpt__ref_load_f64(&value, call->data[0], call->launch->operand[0].dtype, 0, 1, 1);
    call->scalars[slot[0]].f += value;
    call->scalars[slot[1]].i++;
}

/* The index of the first non-finite element of operand 0, or -1. */
static int64_t mpt__ref_first_nonfinite(const mpt__cpu_call *call) {
    mpt__ref_loop loop = mpt__ref_loop_over(call->launch, 1);
    double x[MPT__BLOCK];
    mpt__ref_cursor run;
    mpt__ref_cursor_start(&run, &loop, 0, loop.count);
    while (mpt__ref_cursor_next(&run, &loop)) {
        mpt__ref_load_f64(x, call->data[0], call->launch->operand[0].dtype, run.offset[0],
                          loop.stride[0][loop.rank - 1], run.n);
        for (int64_t i = 0; i < run.n; i++) {
            if (!mpt__f64_is_finite(x[i])) return run.at + i;
        }
    }
    return -1;
}

static void mpt__ref_find_nonfinite(const mpt__cpu_call *call) {
    call->scalars[call->launch->slot[0]].i = mpt__ref_first_nonfinite(call);
}

/* A finite loss may overflow by the scale: what counts is the loss. */
static void mpt__ref_scale_loss(const mpt__cpu_call *call) {
    mpt__ref_unary(call);
    if (mpt__ref_first_nonfinite(call) >= 0) call->scalars[call->launch->slot[1]].i = 1;
}

/* ==== The table ==== */

/* R(ID, function, workspace): every kernel of MPT__KERNELS. */
#define MPT__REF_KERNELS(R)                                                                        \
    R(FILL, fill, NULL)                                                                            \
    R(COPY, copy, NULL)                                                                            \
    R(UNARY, unary, NULL)                                                                          \
    R(BINARY, binary, NULL)                                                                        \
    R(REDUCE, reduce, mpt__ref_reduce_workspace)                                                   \
    R(ARGMAX, argmax, NULL)                                                                        \
    R(SCATTER_AXIS, scatter_axis, NULL)                                                            \
    R(GEMM, gemm, NULL)                                                                            \
    R(SOFTMAX, softmax, NULL)                                                                      \
    R(SOFTMAX_BACKWARD, softmax_backward, NULL)                                                    \
    R(DROPOUT, dropout, NULL)                                                                      \
    R(RANDOM, random, NULL)                                                                        \
    R(NLL, nll, mpt__ref_loss_workspace)                                                           \
    R(NLL_BACKWARD, nll_backward, NULL)                                                            \
    R(CROSS_ENTROPY, cross_entropy, mpt__ref_loss_workspace)                                       \
    R(CROSS_ENTROPY_BACKWARD, cross_entropy_backward, NULL)                                        \
    R(GRAD_NORM, grad_norm, mpt__ref_grad_norm_workspace)                                          \
    R(GRAD_SCALE, grad_scale, NULL)                                                                \
    R(SGD, sgd, NULL)                                                                              \
    R(ADAM, adam, NULL)                                                                            \
    R(CLIP, clip, NULL)                                                                            \
    R(SCALAR_SET, scalar_set, NULL)                                                                \
    R(SCALAR_OR, scalar_or, NULL)                                                                  \
    R(SCALE_LOSS, scale_loss, NULL)                                                                \
    R(SCALER_UPDATE, scaler_update, NULL)                                                          \
    R(METRIC_ADD, metric_add, NULL)                                                                \
    R(FIND_NONFINITE, find_nonfinite, NULL)

static void mpt__cpu_add_ref(mpt__cpu *cpu) {
#define MPT__ROW(id, function, workspace)                                                          \
    mpt__cpu_add(cpu, MPT__K_##id, mpt__ref_##function, workspace);
    MPT__REF_KERNELS(MPT__ROW)
#undef MPT__ROW
}

#endif
