/* ----
 * tools/diagnose.c: what is wrong with a training.
 * ---- */
#ifndef MPT__DIAGNOSE_INCLUDED
#define MPT__DIAGNOSE_INCLUDED

#include "machine.c"

/* ==== Diagnosis: what is kept ==== */

enum { MPT__TOOLS_UNITS = 4096, MPT__TOOLS_PATH = 160, MPT__TOOLS_MOST_STEPS = 4096 };

/* A module without children, and what its outputs and their gradients were in fp32. */
typedef struct mpt__tools_layer_note {
    struct mpt__tools_doctor *doctor;
    mpt_module module;
    char path[MPT__TOOLS_PATH];
    const char *kind;
    mpt_forward_hook forward; /* the user's own, or NULL */
    mpt_backward_hook backward;
    void *forward_user, *backward_user;
    int64_t outputs, zeros, saturated;
    double largest, low, high; /* low, high: of what came in when it went wrong */
    int64_t gradients, gradient_zeros, binade[MPT_BINADES];
    double squares; /* of gradients */
    int64_t units;  /* of a relu that is looked at; 0: none */
    unsigned char alive[MPT__TOOLS_UNITS];
} mpt__tools_layer_note;

typedef struct mpt__tools_doctor {
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_loader loader;
    mpt_diagnosis_config config;
    mpt_scaler scaler;
    mpt_diagnosis *found;
    mpt__tools_layer_note *layers;
    int layer_count;
    bool plain;       /* this pass is the one in fp32 */
    bool watched;     /* hooks are to look */
    bool forward_bad; /* in this pass a layer's output was not finite */
    bool backward_bad;
    int plain_bad; /* layer whose output was not finite in the pass in fp32, or -1 */
    int64_t step;
    int64_t inputs, classes[2]; /* numbers seen; least and greatest class */
    double input_sum, input_squares, input_largest;
    float *values; /* of one tensor at a time */
    int64_t room;
    double losses[MPT__TOOLS_MOST_STEPS], scales[MPT__TOOLS_MOST_STEPS]; /* of each step */
} mpt__tools_doctor;

/* Adds a finding, unless there is one of its kind with as much to say. */
MPT__TOOLS_FORMAT(5)
static void mpt__tools_found(mpt__tools_doctor *d, mpt_fault fault, const char *place, double value,
    const char *format, ...) {
    mpt_diagnosis *all = d->found;
    int at = 0;
    while (at < all->count && all->finding[at].fault < fault) at++;
    const bool there = at < all->count && all->finding[at].fault == fault;
    if (there && !(value > all->finding[at].value)) return;
    if (!there) {
        if (all->count == MPT_MOST_FINDINGS) return;
        memmove(&all->finding[at + 1], &all->finding[at],
            (size_t)(all->count - at) * sizeof *all->finding);
        all->count++;
    }
    mpt_finding *finding = &all->finding[at];
    finding->fault = fault, finding->step = d->step, finding->value = value;
    mpt__tools_note at_place = mpt__tools_note_begin(finding->place, sizeof finding->place);
    mpt__tools_note text = mpt__tools_note_begin(finding->text, sizeof finding->text);
    mpt__tools_note_add(&at_place, "%s", place);
    va_list arguments;
    va_start(arguments, format);
    mpt__tools_note_list(&text, format, &arguments);
    va_end(arguments);
}

/* A tensor's numbers on the host, valid until the next call; NULL if it has none. */
static const float *mpt__tools_values(mpt__tools_doctor *d, mpt_tensor tensor, int64_t *count) {
    *count = mpt_numel(tensor);
    if (*count <= 0) return NULL;
    if (*count > d->room) {
        float *more = (float *)mpt__tools_allocate((size_t)*count * sizeof *more);
        if (!more) return NULL;
        mpt__tools_release(d->values);
        d->values = more, d->room = *count;
    }
    return mpt_read_f32(tensor, d->values, *count) == MPT_OK ? d->values : NULL;
}

static bool mpt__tools_is_float(mpt_tensor tensor) {
    const mpt_dtype dtype = mpt_get_dtype(tensor);
    return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16 || dtype == MPT_F64;
}

static double mpt__tools_greater(double a, double b) { return a > b ? a : b; }
static double mpt__tools_largest(const mpt_tensor_stats *s) {
    return s->count > s->nans + s->infinities ? mpt__tools_greater(fabs(s->min), fabs(s->max)) : 0;
}

/* ==== Diagnosis: hooks ==== */

/* Which units of a relu have been other than zero, and how much of a tanh is at its ends. */
static void mpt__tools_note_units(mpt__tools_layer_note *layer, mpt_tensor out) {
    const bool relu = strcmp(layer->kind, "relu") == 0, tanh = strcmp(layer->kind, "tanh") == 0;
    const mpt_shape shape = mpt_get_shape(out);
    int64_t count, inner = 1;
    if (!relu && !tanh && strcmp(layer->kind, "sigmoid") != 0) return;
    const float *x = shape.rank > 1 ? mpt__tools_values(layer->doctor, out, &count) : NULL;
    if (!x) return;
    for (int d = 2; d < shape.rank; d++) inner *= shape.dim[d];
    if (relu)
        layer->units =
            shape.dim[1] < (int64_t)MPT__TOOLS_UNITS ? shape.dim[1] : (int64_t)MPT__TOOLS_UNITS;
    for (int64_t i = 0; i < count; i++) {
        const int64_t unit = i / inner % shape.dim[1];
        const float end = tanh ? fabsf(x[i]) : 2 * fabsf(x[i] - 0.5f);
        if (relu && x[i] != 0 && unit < layer->units) layer->alive[unit] = 1;
        if (!relu && end > 0.99f) layer->saturated++;
    }
}

static void mpt__tools_look_forward(
    mpt__tools_layer_note *layer, const mpt_tensor *in, mpt_tensor out) {
    mpt__tools_doctor *d = layer->doctor;
    if (!mpt__tools_is_float(out)) return;
    const mpt_tensor_stats s = mpt_statistics(out);
    if (d->plain) {
        layer->outputs += s.count, layer->zeros += s.zeros;
        layer->largest = mpt__tools_greater(layer->largest, mpt__tools_largest(&s));
        mpt__tools_note_units(layer, out);
    }
    if (s.nans + s.infinities == 0 || d->forward_bad) return;
    d->forward_bad = true;
    mpt_tensor_stats from;
    memset(&from, 0, sizeof from);
    if (mpt__tools_is_float(in[0])) from = mpt_statistics(in[0]);
    if (from.nans + from.infinities > 0) return; /* it is not the one to blame */
    if (d->plain) {
        d->plain_bad = (int)(layer - d->layers);
        mpt__tools_found(d, MPT_FAULT_FORWARD_NONFINITE, layer->path,
            (double)(s.nans + s.infinities),
            "layer \"%s\" (%s) gives %lld NaN and %lld infinities of inputs from %.3g to %.3g, in "
            "fp32, too: look at its weights, and at a division, root or logarithm in it",
            layer->path, layer->kind, (long long)s.nans, (long long)s.infinities, from.min,
            from.max);
    } else if (d->plain_bad < 0) {
        mpt__tools_found(d, MPT_FAULT_FORWARD_OVERFLOW, layer->path, layer->largest,
            "layer \"%s\" (%s) reaches %.4g in fp32, which %s does not hold: its output has %lld "
            "infinities and %lld NaN. Normalise before it, scale its weights down, use bf16, or "
            "mpt_set_dtype_policy(layer, MPT_F32)",
            layer->path, layer->kind, layer->largest, mpt_dtype_name(d->config.precision),
            (long long)s.infinities, (long long)s.nans);
    }
}

static mpt_status mpt__tools_doctor_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt__tools_layer_note *layer = (mpt__tools_layer_note *)user;
    mpt_status status = MPT_OK;
    if (layer->forward) status = layer->forward(self, layer->forward_user, in, n_in, out, n_out);
    if (status == MPT_OK && layer->doctor->watched && n_in > 0 && n_out > 0)
        mpt__tools_look_forward(layer, in, out[0]);
    return status;
}

static void mpt__tools_look_backward(mpt__tools_layer_note *layer, mpt_tensor gradient) {
    mpt__tools_doctor *d = layer->doctor;
    const mpt_tensor_stats s = mpt_statistics(gradient);
    if (d->plain && s.count > 0 && s.nans + s.infinities == 0) {
        layer->gradients += s.count, layer->gradient_zeros += s.zeros;
        layer->squares += (s.mean * s.mean + s.deviation * s.deviation) * (double)s.count;
        for (int i = 0; i < MPT_BINADES; i++) layer->binade[i] += s.binade[i];
    }
    if (!d->plain || s.nans + s.infinities == 0 || d->backward_bad || d->forward_bad) return;
    d->backward_bad = true;
    mpt__tools_found(d, MPT_FAULT_BACKWARD_NONFINITE, layer->path, (double)(s.nans + s.infinities),
        "the gradient that comes to layer \"%s\" (%s) has %lld NaN and %lld infinities, in fp32, "
        "too, while all outputs are finite: look at what is behind it for a root or logarithm at 0",
        layer->path, layer->kind, (long long)s.nans, (long long)s.infinities);
}

static mpt_status mpt__tools_doctor_backward(
    mpt_module self, void *user, int output, mpt_tensor *gradient) {
    mpt__tools_layer_note *layer = (mpt__tools_layer_note *)user;
    if (output == 0 && layer->doctor->watched) mpt__tools_look_backward(layer, *gradient);
    return layer->backward ? layer->backward(self, layer->backward_user, output, gradient) : MPT_OK;
}

static void mpt__tools_put_hooks_on(mpt__tools_doctor *d) {
    const int count = mpt_module_count(d->net);
    for (int i = 0; i < count; i++) {
        mpt__tools_layer_note *layer = &d->layers[d->layer_count];
        layer->module = mpt_module_at(d->net, i, layer->path, sizeof layer->path);
        if (mpt_module_count(layer->module) > 1) continue;
        layer->doctor = d, layer->kind = mpt_module_kind(layer->module);
        layer->forward = mpt_get_forward_hook(layer->module, &layer->forward_user);
        layer->backward = mpt_get_backward_hook(layer->module, &layer->backward_user);
        mpt_hook_forward(layer->module, mpt__tools_doctor_forward, layer);
        mpt_hook_backward(layer->module, mpt__tools_doctor_backward, layer);
        d->layer_count++;
    }
}

static void mpt__tools_take_hooks_off(mpt__tools_doctor *d) {
    for (int i = 0; i < d->layer_count; i++) {
        mpt__tools_layer_note *layer = &d->layers[i];
        mpt_hook_forward(layer->module, layer->forward, layer->forward_user);
        mpt_hook_backward(layer->module, layer->backward, layer->backward_user);
    }
}

/* ==== Diagnosis: data ==== */

/* The batch's first sample that has a number that is none. */
static void mpt__tools_look_for_sample(mpt__tools_doctor *d, const mpt_batch *b) {
    int64_t count;
    const float *x = mpt__tools_values(d, b->x, &count);
    for (int64_t i = 0; x && i < count; i++) {
        if (mpt__tools_is_finite((double)x[i])) continue;
        const long long sample = (long long)(i / (count / b->size));
        mpt__tools_found(d, MPT_FAULT_INPUT_NONFINITE, "", (double)sample,
            "sample %lld of batch %lld of its epoch has a %s among its inputs, at place %lld: look "
            "at the data, or leave it out",
            sample, (long long)b->index,
            mpt__tools_bits_of((double)x[i]) << 12 ? "NaN" : "infinity",
            (long long)(i % (count / b->size)));
        return;
    }
}

static void mpt__tools_look_at_batch(mpt__tools_doctor *d, const mpt_batch *b) {
    if (mpt__tools_is_float(b->x)) {
        const mpt_tensor_stats s = mpt_statistics(b->x);
        const double finite = (double)(s.count - s.nans - s.infinities);
        if (s.nans + s.infinities > 0) mpt__tools_look_for_sample(d, b);
        if (finite > 0) {
            d->inputs += (int64_t)finite, d->input_sum += s.mean * finite;
            d->input_squares += (s.mean * s.mean + s.deviation * s.deviation) * finite;
            d->input_largest = mpt__tools_greater(d->input_largest, mpt__tools_largest(&s));
        }
    }
    int64_t count = 0;
    const float *y = mpt_get_dtype(b->y) == MPT_I64 ? mpt__tools_values(d, b->y, &count) : NULL;
    for (int64_t i = 0; y && i < count; i++) {
        const int64_t class_number = (int64_t)y[i];
        if (class_number < 0) continue; /* left out of the loss */
        if (d->classes[0] > class_number) d->classes[0] = class_number;
        if (d->classes[1] < class_number) d->classes[1] = class_number;
    }
}

/* ==== Diagnosis: steps ==== */

static mpt_tensor mpt__tools_doctor_loss(
    mpt__tools_doctor *d, const mpt_batch *b, mpt_tensor *out) {
    *out = mpt_forward(d->net, b->x);
    if (d->config.loss) return d->config.loss(*out, b->y, d->config.user);
    return mpt_nll_loss(*out, b->y, NULL);
}

/* A loss that is not finite, of outputs that are. */
static void mpt__tools_look_at_loss(mpt__tools_doctor *d, double loss, mpt_tensor out) {
    if (mpt__tools_is_finite(loss) || d->forward_bad || !mpt__tools_is_float(out)) return;
    const mpt_tensor_stats s = mpt_statistics(out);
    if (s.nans + s.infinities > 0) return;
    mpt__tools_found(d, MPT_FAULT_LOSS_NONFINITE, "", loss,
        "the loss is %g, though all outputs of the net are finite, from %.3g to %.3g: a logarithm "
        "of 0, or a division by 0, is in the loss. Take a loss of logits (mpt_cross_entropy), or "
        "bound what it takes the logarithm of",
        loss, s.min, s.max);
}

/* A weight before and behind a step. */
static void mpt__tools_look_at_change(mpt__tools_doctor *d, const char *path, const float *before,
    const float *after, int64_t count, double *low) {
    double change = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        const double dx = (double)after[i] - (double)before[i];
        change += dx * dx, norm += (double)before[i] * (double)before[i];
    }
    const double ratio = norm > 0 ? sqrt(change / norm) : 0;
    *low = mpt__tools_greater(*low, ratio);
    if (ratio > 0.5 && mpt__tools_is_finite(ratio))
        mpt__tools_found(d, MPT_FAULT_RATE_HIGH, path, ratio,
            "a step changes \"%s\" by %.3g of its norm; 0.001 to 0.05 is usual. The learning rate "
            "is about %.0f times too large",
            path, ratio, ratio / 0.01);
}

/* What the parameters' gradients say, in the pass in fp32. */
static void mpt__tools_look_at_gradients(mpt__tools_doctor *d) {
    char path[MPT__TOOLS_PATH];
    char first[MPT__TOOLS_PATH];
    int frozen = 0;
    for (int i = 0; i < mpt_parameter_count(d->net); i++) {
        const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
        if (!mpt_get_requires_grad(p)) {
            if (frozen++ == 0) memcpy(first, path, sizeof first);
        } else if (!mpt_has_grad(p)) {
            mpt__tools_found(d, MPT_FAULT_UNREACHED, path, 1,
                "the loss does not depend on \"%s\": its module is not used in the forward, or its "
                "output is detached or overwritten",
                path);
        }
    }
    if (frozen > 0)
        mpt__tools_found(d, MPT_FAULT_FROZEN, first, frozen,
            "%lld parameters are frozen, so that they do not learn, \"%s\" the first of them; "
            "mpt_freeze(module, false) ends that, if it is not meant",
            (long long)frozen, first);
}

/* One pass without an update, which shows what the numbers are in fp32. */
static void mpt__tools_plain_pass(mpt__tools_doctor *d, const mpt_batch *b) {
    mpt_tensor out;
    d->plain = true, d->forward_bad = d->backward_bad = false;
    mpt_step_begin(d->context);
    const mpt_tensor loss = mpt__tools_doctor_loss(d, b, &out);
    mpt__tools_look_at_loss(d, mpt_item(loss), out);
    mpt_zero_grad(d->optimizer);
    mpt_backward(loss);
    if (d->step == 1) mpt__tools_look_at_gradients(d);
    mpt_zero_grad(d->optimizer);
    mpt_step_end(d->context);
}

/* All weights, one behind the other, as a host's copy; NULL where there is no memory for it. */
static float *mpt__tools_all_weights(mpt__tools_doctor *d) {
    const int64_t count = mpt_parameter_numel(d->net);
    float *all = count > 0 ? (float *)mpt__tools_allocate((size_t)count * sizeof *all) : NULL;
    int64_t at = 0;
    for (int i = 0; all && i < mpt_parameter_count(d->net); i++) {
        const mpt_tensor p = mpt_parameter_at(d->net, i, NULL, 0);
        mpt_read_f32(p, all + at, mpt_numel(p));
        at += mpt_numel(p);
    }
    return all;
}

static bool mpt__tools_has_slope(mpt_tensor parameter) {
    if (!mpt_get_requires_grad(parameter) || !mpt_has_grad(parameter)) return false;
    const mpt_tensor_stats s = mpt_statistics(mpt_grad(parameter));
    return s.zeros < s.count;
}

static void mpt__tools_look_at_weights(
    mpt__tools_doctor *d, const float *before, const float *after, double *low) {
    char path[MPT__TOOLS_PATH];
    int64_t at = 0;
    for (int i = 0; i < mpt_parameter_count(d->net); i++) {
        const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
        const int64_t count = mpt_numel(p);
        const bool same = memcmp(before + at, after + at, (size_t)count * sizeof *after) == 0;
        double largest = 0;
        for (int64_t k = 0; k < count; k++)
            largest = mpt__tools_greater(largest, fabs((double)after[at + k]));
        if (largest > 100)
            mpt__tools_found(d, MPT_FAULT_WEIGHTS_LARGE, path, largest,
                "\"%s\" has weights up to %.4g, where 1 is much: lower the learning rate, clip "
                "gradients (mpt_clip_grad_norm), or start from smaller values",
                path, largest);
        if (mpt_get_shape(p).rank > 1)
            mpt__tools_look_at_change(d, path, before + at, after + at, count, low);
        if (same && mpt__tools_has_slope(p))
            mpt__tools_found(d, MPT_FAULT_NO_OPTIMIZER, path, 1,
                "\"%s\" has gradients, but the step leaves it as it is: give it to the optimizer, "
                "or look at its group's learning rate",
                path);
        at += count;
    }
}

/* One step of the training itself, whose weights are looked at unless `before` is NULL. */
static double mpt__tools_real_step(
    mpt__tools_doctor *d, const mpt_batch *b, const float *before, double *low) {
    mpt_tensor out;
    d->plain = false, d->forward_bad = d->backward_bad = false;
    mpt_step_begin(d->context);
    if (d->config.precision != MPT_F32) mpt_autocast_begin(d->context, d->config.precision);
    const mpt_tensor loss = mpt__tools_doctor_loss(d, b, &out);
    if (d->config.precision != MPT_F32) mpt_autocast_end(d->context);
    const double value = mpt_item(loss);
    mpt_zero_grad(d->optimizer);
    if (d->scaler.context) {
        mpt_backward(mpt_scale_loss(d->scaler, loss));
        mpt_scaler_step(d->scaler, d->optimizer);
        mpt_scaler_update(d->scaler);
    } else {
        mpt_backward(loss);
        mpt_step(d->optimizer);
    }
    float *after = before ? mpt__tools_all_weights(d) : NULL;
    const bool skipped = d->scaler.context && mpt_step_outcome(d->scaler) == MPT_OUTCOME_SKIPPED;
    if (after && !skipped && !mpt_failed(d->context))
        mpt__tools_look_at_weights(d, before, after, low);
    d->found->skipped += skipped;
    mpt__tools_release(after);
    mpt_step_end(d->context);
    return value;
}

/* The next batch, of a new epoch where one ends. */
static bool mpt__tools_doctor_batch(mpt__tools_doctor *d, mpt_batch *b) {
    return mpt_loader_next(d->loader, b) ||
        (!mpt_failed(d->context) && mpt_loader_next(d->loader, b));
}

static void mpt__tools_doctor_steps(mpt__tools_doctor *d) {
    mpt_batch b;
    double low = 0;
    int64_t in_a_row = 0;
    d->watched = true;
    for (d->step = 1; d->step <= d->config.steps && mpt__tools_doctor_batch(d, &b); d->step++) {
        const int64_t skipped = d->found->skipped;
        d->plain_bad = -1;
        d->scales[d->step - 1] = d->scaler.context ? mpt_get_scale(d->scaler) : 1;
        mpt__tools_look_at_batch(d, &b);
        mpt__tools_plain_pass(d, &b);
        float *before = mpt__tools_all_weights(d);
        d->losses[d->step - 1] = mpt__tools_real_step(d, &b, before, &low);
        mpt__tools_release(before);
        if (mpt_failed(d->context)) break;
        in_a_row = d->found->skipped > skipped ? in_a_row + 1 : 0;
        d->found->steps = d->step;
        if (in_a_row >= 5)
            mpt__tools_found(d, MPT_FAULT_SKIPS, "", (double)in_a_row,
                "the scaler has skipped %lld steps in a row, at a scale of %.4g: gradients are not "
                "finite at any scale, so look at what else is found here, or at the loss",
                (long long)in_a_row, mpt_get_scale(d->scaler));
    }
    if (d->found->steps > 0 && low > 0 && low < 1e-7)
        mpt__tools_found(d, MPT_FAULT_RATE_LOW, "", low,
            "no step changes a weight matrix by more than %.2g of its norm; 0.001 to 0.05 is "
            "usual. Nothing will be learned at this learning rate",
            low);
    d->watched = false, d->step = d->found->steps;
}

/* Median times of a step that nobody looks at: in fp32, then in the training's precision. */
static void mpt__tools_doctor_times(mpt__tools_doctor *d) {
    enum { TRIALS = 5 };
    const mpt_dtype asked = d->config.precision;
    const int64_t skipped = d->found->skipped; /* before the steps that only measure */
    mpt_batch b;
    for (int which = 0; which < 2; which++) {
        double times[TRIALS];
        int n = 0;
        d->config.precision = which ? asked : MPT_F32;
        while (n < TRIALS && mpt__tools_doctor_batch(d, &b)) {
            const double begin = mpt__tools_seconds();
            mpt__tools_real_step(d, &b, NULL, NULL);
            mpt_synchronize(d->context);
            const double time = mpt__tools_seconds() - begin;
            int at = n++;
            for (; at > 0 && times[at - 1] > time; at--) times[at] = times[at - 1];
            times[at] = time;
        }
        if (n > 0) d->found->seconds[which] = times[n / 2];
    }
    d->config.precision = asked, d->found->skipped = skipped;
}

/* ==== Diagnosis: what all steps together say ==== */

/* The share of a layer's gradients, other than 0, that fp16 makes 0 at this scale. */
static double mpt__tools_lost(const mpt__tools_layer_note *layer, double scale) {
    double smallest = -25; /* half of the smallest number, which rounds to it */
    int64_t lost = 0;
    for (; scale >= 2; scale /= 2) smallest--;
    for (int i = 0; i < MPT_BINADES; i++)
        if ((double)(MPT_BINADE_FIRST + i + 1) <= smallest) lost += layer->binade[i];
    const int64_t others = layer->gradients - layer->gradient_zeros;
    return others > 0 ? (double)lost / (double)others : 0;
}

static double mpt__tools_slope(const mpt__tools_layer_note *layer) {
    return layer->gradients > 0 ? sqrt(layer->squares / (double)layer->gradients) : 0;
}

static void mpt__tools_judge_layer(mpt__tools_doctor *d, const mpt__tools_layer_note *layer) {
    const char *path = layer->path, *kind = layer->kind;
    int64_t dead = 0;
    for (int64_t u = 0; u < layer->units; u++) dead += !layer->alive[u];
    const double lost = mpt__tools_lost(layer, d->found->scale);
    if (layer->outputs > 0 && layer->zeros == layer->outputs)
        mpt__tools_found(d, MPT_FAULT_DEAD_LAYER, path, 1,
            "layer \"%s\" (%s) gives zeros alone, whatever comes in: nothing before it learns. "
            "Look at its weights and biases and at the learning rate that has brought them there",
            path, kind);
    else if (layer->units > 0 && 2 * dead > layer->units)
        mpt__tools_found(d, MPT_FAULT_DEAD_UNITS, path, (double)dead / (double)layer->units,
            "%lld of %lld units behind \"%s\" (%s) are zero for every sample: lower the learning "
            "rate, start from smaller biases, or take mpt_nn_leaky_relu or mpt_nn_gelu",
            (long long)dead, (long long)layer->units, path, kind);
    if (layer->outputs > 0 && (double)layer->saturated > 0.8 * (double)layer->outputs)
        mpt__tools_found(d, MPT_FAULT_SATURATED, path,
            (double)layer->saturated / (double)layer->outputs,
            "%.0f %% of the outputs of \"%s\" (%s) are at its ends, where it has no slope: "
            "normalise what comes in, or start from smaller weights",
            100 * (double)layer->saturated / (double)layer->outputs, path, kind);
    if (d->config.precision == MPT_F16 && lost > 0.3)
        mpt__tools_found(d, MPT_FAULT_UNDERFLOW, path, lost,
            "fp16 makes %.0f %% of the gradients at \"%s\" (%s) zero at a loss scale of %.4g: "
            "train with mpt_grad_scaler, from a larger scale, or in bf16",
            100 * lost, path, kind, d->found->scale);
}

/* Gradients at the first layer over those at the last one. */
static void mpt__tools_judge_depth(mpt__tools_doctor *d) {
    const mpt__tools_layer_note *first = NULL, *last = NULL;
    for (int i = 0; i < d->layer_count; i++) {
        if (!(mpt__tools_slope(&d->layers[i]) > 0)) continue;
        if (!first) first = &d->layers[i];
        last = &d->layers[i];
    }
    if (!first || first == last) return;
    const double ratio = mpt__tools_slope(first) / mpt__tools_slope(last);
    const double numbers = (double)first->gradients / (double)last->gradients;
    if (ratio * sqrt(numbers) < 1e-4)
        mpt__tools_found(d, MPT_FAULT_VANISHING, first->path, 1 / ratio,
            "gradients at \"%s\" are %.2g times those at \"%s\": the first layers will not learn. "
            "Use relu or gelu, norms, residual connections, or larger first weights",
            first->path, ratio, last->path);
    if (ratio > 1e4)
        mpt__tools_found(d, MPT_FAULT_EXPLODING, first->path, ratio,
            "gradients at \"%s\" are %.2g times those at \"%s\": start from smaller weights, use "
            "norms, or clip (mpt_clip_grad_norm)",
            first->path, ratio, last->path);
}

static void mpt__tools_judge_data(mpt__tools_doctor *d) {
    if (d->inputs > 1) {
        const double n = (double)d->inputs, mean = d->input_sum / n;
        const double deviation = sqrt(mpt__tools_greater(d->input_squares / n - mean * mean, 0));
        if (deviation > 20 || deviation < 1e-3 || fabs(mean) > 10 * deviation)
            mpt__tools_found(d, MPT_FAULT_INPUT_RANGE, "", deviation,
                "inputs have a mean of %.4g and a deviation of %.4g, up to %.4g; 0 and 1 are "
                "usual. mpt_normalize(dataset, mean, deviation) before training",
                mean, deviation, d->input_largest);
    }
    if (d->classes[1] >= 0 && d->classes[0] == d->classes[1])
        mpt__tools_found(d, MPT_FAULT_TARGETS_CONSTANT, "", (double)d->classes[0],
            "all targets are class %lld: there is nothing to tell apart. Look at the labels, and "
            "at whether the data is shuffled",
            (long long)d->classes[0]);
}

static void mpt__tools_judge_losses(mpt__tools_doctor *d) {
    const int64_t n = d->found->steps, part = n / 3;
    double first = 0, last = 0;
    if (n > 0) d->found->first_loss = d->losses[0], d->found->last_loss = d->losses[n - 1];
    for (int64_t i = 0; i < part; i++) first += d->losses[i], last += d->losses[n - 1 - i];
    if (!mpt__tools_is_finite(last)) last = INFINITY;
    if (part > 0 && last > 2 * first && first > 0 && mpt__tools_is_finite(first))
        mpt__tools_found(d, MPT_FAULT_LOSS_RISES, "", last / first,
            "the loss rises, from %.4g to %.4g on average: lower the learning rate, or warm it up",
            first / (double)part, last / (double)part);
}

/* ==== Diagnosis: words ==== */

/* The powers of two between which 98 of 100 gradients are. */
static void mpt__tools_note_range(mpt__tools_note *note, const mpt__tools_layer_note *layer) {
    const int64_t others = layer->gradients - layer->gradient_zeros, tail = others / 100;
    int low = 0, high = MPT_BINADES - 1;
    int64_t below = 0, above = 0;
    if (others == 0) {
        mpt__tools_note_add(note, " %14s", "-");
        return;
    }
    while (low < MPT_BINADES - 1 && below + layer->binade[low] <= tail)
        below += layer->binade[low++];
    while (high > 0 && above + layer->binade[high] <= tail) above += layer->binade[high--];
    char text[32];
    mpt__tools_note range = mpt__tools_note_begin(text, sizeof text);
    mpt__tools_note_add(&range, "2^%lld..2^%lld", (long long)MPT_BINADE_FIRST + low,
        (long long)MPT_BINADE_FIRST + high + 1);
    mpt__tools_note_add(note, " %14s", text);
}

/* How many gradients there are by powers of two, four to a character, from few to many. */
static void mpt__tools_note_binades(mpt__tools_note *note, const mpt__tools_layer_note *layer) {
    enum { FOURS = MPT_BINADES / 4 };
    static const char ink[] = " .:-=+*#%@";
    int64_t sum[FOURS] = {0}, most = 1;
    char text[FOURS + 1] = "";
    for (int i = 0; i < MPT_BINADES; i++) {
        sum[i / 4] += layer->binade[i];
        if (most < sum[i / 4]) most = sum[i / 4];
    }
    for (int i = 0; i < FOURS; i++)
        text[i] = ink[sum[i] ? 1 + (int)(8 * (double)sum[i] / (double)most) : 0];
    mpt__tools_note_add(note, "  |%s|\n", text);
}

static void mpt__tools_note_layers(mpt__tools_note *note, const mpt__tools_doctor *d) {
    mpt__tools_note_add(note, "%-24s %-14s %10s %7s %14s %9s   %s\n", "layer", "kind", "largest",
        "zeros", "gradients", "lost", "2^-40 .. 2^23");
    for (int i = 0; i < d->layer_count; i++) {
        const mpt__tools_layer_note *layer = &d->layers[i];
        if (layer->outputs == 0) continue;
        mpt__tools_note_add(note, "%-24s %-14s %10.4g %5.1f %%", layer->path, layer->kind,
            layer->largest, 100 * (double)layer->zeros / (double)layer->outputs);
        mpt__tools_note_range(note, layer);
        mpt__tools_note_add(note, " %7.1f %%", 100 * mpt__tools_lost(layer, d->found->scale));
        mpt__tools_note_binades(note, layer);
    }
    mpt__tools_note_add(
        note, "lost: what fp16 makes zero at a loss scale of %.4g\n", d->found->scale);
}

/* What the loss scale was, and from which step on; the last of many changes are left out. */
static void mpt__tools_note_scales(mpt__tools_note *note, const mpt__tools_doctor *d) {
    enum { MOST = 12 };
    if (!d->scaler.context || d->found->steps == 0) return;
    mpt__tools_note_add(note, "loss scale: %.4g", d->scales[0]);
    for (int64_t i = 1, changes = 0; i < d->found->steps && changes <= MOST; i++) {
        if (mpt__tools_bits_of(d->scales[i]) == mpt__tools_bits_of(d->scales[i - 1])) continue;
        if (changes++ == MOST)
            mpt__tools_note_add(note, ", ..");
        else
            mpt__tools_note_add(
                note, ", %.4g from step %lld on", d->scales[i], (long long)i + 1);
    }
    mpt__tools_note_add(note, "; %.4g at the end\n", d->found->scale);
}

static void mpt__tools_note_findings(mpt__tools_note *note, const mpt_diagnosis *found) {
    mpt__tools_note_add(note, "\n%lld steps, loss %.4g to %.4g, %lld skipped\n",
        (long long)found->steps, found->first_loss, found->last_loss, (long long)found->skipped);
    for (int i = 0; i < found->count; i++)
        mpt__tools_note_add(note, "%lld. (step %lld) %s.\n", (long long)i + 1,
            (long long)found->finding[i].step, found->finding[i].text);
    if (found->count == 0) mpt__tools_note_add(note, "nothing is wrong\n");
}

static void mpt__tools_note_pays(mpt__tools_note *note, const mpt__tools_doctor *d) {
    const double *seconds = d->found->seconds;
    if (d->config.precision == MPT_F32 || !(seconds[1] > 0)) return;
    const char *name = mpt_dtype_name(d->config.precision);
    mpt__tools_note_add(note, "a step takes %.3g ms in fp32 and %.3g ms in %s: %s\n",
        1e3 * seconds[0], 1e3 * seconds[1], name,
        seconds[0] > 1.05 * seconds[1] ? "worth it here"
                                       : "it saves memory, but no time for this net here");
}

/* ==== Diagnosis: the whole ==== */

mpt_diagnosis_config mpt_diagnosis_config_default(void) {
    mpt_diagnosis_config config;
    memset(&config, 0, sizeof config);
    config.steps = 20, config.precision = MPT_F16, config.scaled = true;
    return config;
}

/* Weights that are none before anything has been done. */
static void mpt__tools_judge_weights(mpt__tools_doctor *d) {
    char path[MPT__TOOLS_PATH];
    for (int i = 0; i < mpt_parameter_count(d->net); i++) {
        const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
        const mpt_tensor_stats s = mpt_statistics(p);
        if (s.nans + s.infinities > 0)
            mpt__tools_found(d, MPT_FAULT_WEIGHTS_NONFINITE, path, (double)(s.nans + s.infinities),
                "\"%s\" has %lld NaN and %lld infinities before the first step: load the weights "
                "again, from before the training broke",
                path, (long long)s.nans, (long long)s.infinities);
    }
}

static void mpt__tools_doctor_works(mpt__tools_doctor *d) {
    mpt_context *ctx = d->context;
    const mpt_scaler_config defaults = mpt_scaler_config_default();
    const bool own = !d->scaler.context && d->config.scaled && d->config.precision == MPT_F16;
    if (own) d->scaler = mpt_grad_scaler(ctx, &defaults);
    mpt__tools_put_hooks_on(d);
    mpt__tools_judge_weights(d);
    mpt__tools_doctor_steps(d);
    d->found->scale = d->scaler.context && !mpt_failed(ctx) ? mpt_get_scale(d->scaler) : 1;
    d->found->status = mpt_error_code(ctx);
    if (mpt_failed(ctx)) mpt_clear_error(ctx);
    mpt__tools_take_hooks_off(d);
    if (d->found->status == MPT_OK) mpt__tools_doctor_times(d);
    mpt_zero_grad(d->optimizer);
    if (own) mpt_scaler_destroy(d->scaler);
    for (int i = 0; i < d->layer_count; i++) mpt__tools_judge_layer(d, &d->layers[i]);
    mpt__tools_judge_depth(d), mpt__tools_judge_data(d), mpt__tools_judge_losses(d);
}

mpt_diagnosis mpt_diagnose(mpt_module net, mpt_optimizer optimizer, mpt_loader loader,
    const mpt_diagnosis_config *config, char *text, size_t capacity, size_t *length) {
    mpt_context *ctx = net.context;
    mpt_diagnosis found;
    mpt__tools_doctor *d = (mpt__tools_doctor *)mpt__tools_allocate(sizeof *d);
    mpt__tools_note note = mpt__tools_note_begin(text, capacity);
    memset(&found, 0, sizeof found);
    if (length) *length = 0;
    found.status = mpt_failed(ctx) ? mpt_error_code(ctx) : MPT_OK;
    const int64_t bytes = found.status == MPT_OK && d ? mpt_snapshot_bytes(ctx) : -1;
    void *before = bytes >= 0 ? mpt__tools_allocate((size_t)bytes + 1) : NULL;
    const int modules = before ? mpt_module_count(net) : -1;
    if (modules > 0)
        d->layers =
            (mpt__tools_layer_note *)mpt__tools_allocate((size_t)modules * sizeof *d->layers);
    if (modules > 0 && d->layers && mpt_snapshot(ctx, before, (size_t)bytes) == MPT_OK) {
        d->context = ctx, d->net = net, d->optimizer = optimizer, d->loader = loader;
        d->config = config ? *config : mpt_diagnosis_config_default();
        if (d->config.steps > MPT__TOOLS_MOST_STEPS) d->config.steps = MPT__TOOLS_MOST_STEPS;
        d->scaler = d->config.scaler, d->found = &found;
        d->classes[0] = INT64_MAX, d->classes[1] = -1;
        mpt__tools_doctor_works(d);
        mpt_restore(ctx, before, (size_t)bytes);
        mpt__tools_note_layers(&note, d), mpt__tools_note_scales(&note, d);
        mpt__tools_note_findings(&note, &found), mpt__tools_note_pays(&note, d);
        if (length) *length = note.length;
    } else if (found.status == MPT_OK) {
        found.status = mpt_failed(ctx) ? mpt_error_code(ctx) : MPT_ERROR_MEMORY;
    }
    if (d) mpt__tools_release(d->values), mpt__tools_release(d->layers);
    mpt__tools_release(before), mpt__tools_release(d);
    return found;
}

#endif
