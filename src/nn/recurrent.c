/* ----
 * nn/recurrent.c: recurrent layers and their cells.
 * ---- */
#ifndef MPT__NN_RECURRENT_INCLUDED
#define MPT__NN_RECURRENT_INCLUDED

#include "nn/attention.c"

MPT__DEFAULTS(mpt_recurrent_config, {
    config.layers = 1;
    config.bias = true;
})

#ifdef MPTRAIN_NO_RECURRENT

static mpt_module mpt__recurrent_none(mpt_context *ctx, const char *call) {
    mpt__absent(ctx, call, "recurrent layers (MPTRAIN_NO_RECURRENT)");
    return mpt__module_handle(ctx, NULL);
}
#define MPT__DEFINE_RECURRENT(name) \
    mpt_module mpt_nn_##name( \
        mpt_context *ctx, int64_t in, int64_t hidden, const mpt_recurrent_config *config) { \
        (void)in, (void)hidden, (void)config; \
        return mpt__recurrent_none(ctx, "mpt_nn_" #name); \
    }

#else

/* ==== Forward ==== */

#define MPT__RNN_LAYERS 64 /* at most, in each direction */

/* Attributes of a module: activation; imm[0]: dropout; index: */
enum {
    MPT__RNN_BATCH_FIRST,
    MPT__RNN_DIRECTIONS,
    MPT__RNN_LAYER_COUNT,
    MPT__RNN_BIAS,
    MPT__RNN_HIDDEN,
    MPT__RNN_PROJECTION
};

static bool mpt__is_lstm(const mpt__module *module) {
    return module->layer == MPT__LAYER_lstm || module->layer == MPT__LAYER_lstm_cell;
}

/* What a call is given and gives. state: h and c, of all layers; null: zeros. */
typedef struct {
    mpt_tensor x, lengths, state[2];
    mpt_tensor made[2][2 * MPT__RNN_LAYERS]; /* states at the end, by layer and direction */
    int states;                              /* 2 of an LSTM */
    bool batched;
} mpt__recurrent;

/* Takes the inputs apart: x, then h and maybe c or none, then lengths or none. */
static bool mpt__recurrent_inputs(mpt_context *ctx, const mpt__module *module, const mpt_tensor *in,
    int n_in, int n_out, mpt__recurrent *r) {
    const mpt_tensor none = mpt__null(NULL);
    r->states = mpt__is_lstm(module) ? 2 : 1;
    r->x = in[0];
    r->lengths = r->state[0] = r->state[1] = none;
    bool cell = module->layer >= MPT__LAYER_rnn_cell;
    int n = n_in;
    if (n > 1 && !cell && mpt_get_dtype(in[n - 1]) == MPT_I64) r->lengths = in[--n];
    ctx->base.op = "mpt_forward"; /* not the last call */
    if ((n != 1 && n != 1 + r->states) || n_out > r->states + !cell)
        return mpt__reject(ctx, ARGUMENT,
            "%d inputs, %d outputs: expected x, then %s or nothing%s, and at most "
            "%d outputs",
            n_in, n_out, r->states > 1 ? "h and c" : "h",
            cell ? "" : ", then i64 lengths or nothing", r->states + !cell);
    for (int i = 1; i < n; i++) r->state[i - 1] = in[i];
    return true;
}

/* x with a dimension `batch`, which it may lack. */
static mpt_tensor mpt__recurrent_batched(mpt_tensor x, int rank, int batch) {
    mpt_shape shape = mpt_get_shape(x);
    if (shape.rank != rank - 1) return mpt_reshape(x, shape);
    for (int i = shape.rank++; i > batch; i--) shape.dim[i] = shape.dim[i - 1];
    shape.dim[batch] = 1;
    return mpt_reshape(x, shape);
}

/* The same backwards: gives x up. */
static mpt_tensor mpt__recurrent_given(mpt_tensor x, bool batched, int batch) {
    if (batched || !x.slot) return x;
    mpt_shape shape = mpt_get_shape(x);
    for (int i = batch; i + 1 < shape.rank; i++) shape.dim[i] = shape.dim[i + 1];
    shape.rank--;
    mpt_tensor flat = mpt_reshape(x, shape);
    mpt_release(x);
    return flat;
}

/* Weights of layer and direction number k. */
static mpt_cell_config mpt__recurrent_weights_of(
    mpt_context *ctx, const mpt__module *module, int64_t k) {
    mpt_cell_config how = mpt_cell_config_default();
    const mpt__attributes *a = &module->attributes;
    bool bias = a->index[MPT__RNN_BIAS] != 0, wide = a->index[MPT__RNN_PROJECTION] != 0;
    int64_t at = k * (2 + 2 * bias + wide);
    how.weight_ih = mpt__parameter_handle(ctx, module, at++);
    how.weight_hh = mpt__parameter_handle(ctx, module, at++);
    if (bias) how.bias_ih = mpt__parameter_handle(ctx, module, at++);
    if (bias) how.bias_hh = mpt__parameter_handle(ctx, module, at++);
    if (wide) how.weight_hr = mpt__parameter_handle(ctx, module, at);
    how.batch_first = a->index[MPT__RNN_BATCH_FIRST] != 0;
    how.reverse = k % a->index[MPT__RNN_DIRECTIONS] != 0;
    how.relu = a->activation == MPT_ACTIVATION_RELU;
    return how;
}

static mpt_tensor mpt__recurrent_apply(const mpt__module *module, mpt_tensor x,
    const mpt_cell_config *how, mpt_tensor *h, mpt_tensor *c) {
    if (mpt__is_lstm(module)) return mpt_lstm(x, how, h, c);
    bool gru = module->layer == MPT__LAYER_gru || module->layer == MPT__LAYER_gru_cell;
    return gru ? mpt_gru(x, how, h) : mpt_rnn(x, how, h);
}

/* State number k of all of one kind, [layers, B, n], as [B, n]. */
static mpt_tensor mpt__recurrent_state(mpt_tensor all, int64_t k) {
    mpt_shape shape = mpt_get_shape(all), one = MPT_SHAPE(shape.dim[1], shape.dim[2]);
    if (shape.dim[0] == 1) return mpt_reshape(all, one);
    mpt_tensor part = mpt_slice(all, 0, k, k + 1, 1), state = mpt_reshape(part, one);
    mpt_release(part);
    return state;
}

/* One layer in all directions. */
static mpt_tensor mpt__recurrent_layer(
    mpt_context *ctx, mpt__module *module, mpt__recurrent *r, mpt_tensor x, int64_t layer) {
    const int directions = (int)module->attributes.index[MPT__RNN_DIRECTIONS];
    mpt_tensor out[2], state[2];
    for (int d = 0; d < directions && mpt__ok(ctx); d++) {
        const int64_t k = layer * directions + d;
        mpt_cell_config how = mpt__recurrent_weights_of(ctx, module, k);
        how.lengths = r->lengths;
        for (int i = 0; i < 2; i++) {
            state[i] = r->state[i].slot ? mpt__recurrent_state(r->state[i], k) : mpt__null(NULL);
            r->made[i][k] = state[i];
        }
        out[d] = mpt__recurrent_apply(module, x, &how, &r->made[0][k], &r->made[1][k]);
        for (int i = 0; i < 2; i++)
            if (state[i].slot) mpt_release(state[i]);
    }
    if (!mpt__ok(ctx)) return mpt__null(ctx);
    if (directions == 1) return out[0];
    mpt_tensor both = mpt_cat(out, 2, 2);
    for (int d = 0; d < 2; d++) mpt_release(out[d]);
    return both;
}

/* The states of all layers as one tensor; gives them up. */
static mpt_tensor mpt__recurrent_gathered(mpt__recurrent *r, int i, int count) {
    for (int k = 0; k < count; k++) {
        mpt_shape shape = mpt_get_shape(r->made[i][k]);
        mpt_tensor state = r->made[i][k];
        r->made[i][k] = mpt_reshape(state, MPT_SHAPE(1, shape.dim[0], shape.dim[1]));
        mpt_release(state);
    }
    if (count == 1) return mpt__recurrent_given(r->made[i][0], r->batched, 1);
    mpt_tensor all = mpt_cat(r->made[i], count, 0);
    for (int k = 0; k < count; k++) mpt_release(r->made[i][k]);
    return mpt__recurrent_given(all, r->batched, 1);
}

/* States have to be of all layers, and of as many sequences as x. */
static bool mpt__recurrent_check(
    mpt_context *ctx, const mpt__module *module, const mpt__recurrent *r) {
    const mpt__attributes *a = &module->attributes;
    mpt_shape x = mpt_get_shape(r->x);
    int64_t count = a->index[MPT__RNN_LAYER_COUNT] * a->index[MPT__RNN_DIRECTIONS];
    ctx->base.op = "mpt_forward";
    if (x.rank != 3)
        return mpt__reject(ctx, SHAPE,
            "input %S: expected [T, B, features], [B, T, features] with "
            "batch_first, or [T, features]",
            &x);
    for (int i = 0; i < 2; i++) {
        int64_t width = i == 0 && a->index[MPT__RNN_PROJECTION] ? a->index[MPT__RNN_PROJECTION]
                                                                : a->index[MPT__RNN_HIDDEN];
        mpt_shape expected = MPT_SHAPE(count, x.dim[!a->index[MPT__RNN_BATCH_FIRST]], width);
        if (!r->state[i].slot) continue;
        mpt_shape got = mpt_get_shape(r->state[i]);
        ctx->base.op = "mpt_forward";
        if (got.rank != 3 || memcmp(got.dim, expected.dim, 3 * sizeof *got.dim) != 0)
            return mpt__reject(
                ctx, SHAPE, "state %s %S: expected %S", i ? "c" : "h", &got, &expected);
    }
    return true;
}

static mpt_status mpt__recurrent_layers(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt_context *ctx = self.context;
    mpt__module *module = mpt__module_at(ctx, self);
    mpt__recurrent r;
    mpt__spares spares;
    (void)user;
    spares.count = 0;
    if (!module || !mpt__recurrent_inputs(ctx, module, in, n_in, n_out, &r))
        return ctx->base.status;
    const int64_t *how = module->attributes.index;
    const int batch = how[MPT__RNN_BATCH_FIRST] ? 0 : 1, layers = (int)how[MPT__RNN_LAYER_COUNT];
    const double p = ctx->module_training ? module->attributes.imm[0] : 0.0;
    r.batched = mpt_get_shape(r.x).rank != 2;
    r.x = mpt__spare(&spares, mpt__recurrent_batched(r.x, 3, batch));
    for (int i = 0; i < 2; i++)
        if (r.state[i].slot)
            r.state[i] = mpt__spare(&spares, mpt__recurrent_batched(r.state[i], 3, 1));
    if (!mpt__ok(ctx) || !mpt__recurrent_check(ctx, module, &r)) return ctx->base.status;
    mpt_tensor x = r.x;
    for (int layer = 0; layer < layers && mpt__ok(ctx); layer++) {
        mpt_tensor y = mpt__recurrent_layer(ctx, module, &r, x, layer), dropped = y;
        if (layer + 1 < layers && p > 0.0)
            dropped = mpt__dropout_call(y, p, module->path_hash, mpt__dropout_count(ctx, module));
        if (layer > 0) mpt_release(x);
        if (p > 0.0 && layer + 1 < layers) mpt_release(y);
        x = dropped;
    }
    if (!mpt__ok(ctx)) return ctx->base.status;
    const int count = layers * (int)how[MPT__RNN_DIRECTIONS];
    out[0] = mpt__recurrent_given(x, r.batched, batch);
    for (int i = 0; i < r.states; i++) {
        if (i + 1 < n_out) out[i + 1] = mpt__recurrent_gathered(&r, i, count);
        for (int k = 0; k < count && i + 1 >= n_out; k++) mpt_release(r.made[i][k]);
    }
    mpt__spares_end(&spares, out[0]);
    return ctx->base.status;
}

static mpt_status mpt__recurrent_cell(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt_context *ctx = self.context;
    mpt__module *module = mpt__module_at(ctx, self);
    mpt__recurrent r;
    mpt__spares spares;
    mpt_tensor state[2];
    (void)user;
    spares.count = 0;
    if (!module || !mpt__recurrent_inputs(ctx, module, in, n_in, n_out, &r))
        return ctx->base.status;
    mpt_shape shape = mpt_get_shape(r.x);
    ctx->base.op = "mpt_forward";
    if (shape.rank != 1 && shape.rank != 2)
        return mpt__error(ctx, SHAPE, "input %S: expected [B, features], or [features]", &shape);
    r.batched = shape.rank == 2;
    r.x = mpt__spare(&spares,
        mpt_reshape(r.x, MPT_SHAPE(1, r.batched ? shape.dim[0] : 1, shape.dim[shape.rank - 1])));
    for (int i = 0; i < 2; i++) {
        state[i] = r.state[i];
        if (state[i].slot) state[i] = mpt__spare(&spares, mpt__recurrent_batched(state[i], 2, 0));
    }
    mpt_cell_config how = mpt__recurrent_weights_of(ctx, module, 0);
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__spare(&spares, mpt__recurrent_apply(module, r.x, &how, &state[0], &state[1]));
    if (!mpt__ok(ctx)) return ctx->base.status;
    for (int i = 0; i < r.states; i++) {
        if (i < n_out)
            out[i] = mpt__recurrent_given(state[i], r.batched, 0);
        else
            mpt_release(state[i]);
    }
    mpt__spares_end(&spares, out[0]);
    return ctx->base.status;
}

/* ==== Constructors ==== */

static void mpt__recurrent_parameters(
    mpt_context *ctx, mpt__module *module, int64_t in, const char *suffix) {
    const int64_t *how = module->attributes.index;
    const int64_t hidden = how[MPT__RNN_HIDDEN], projection = how[MPT__RNN_PROJECTION];
    const int64_t rows = hidden *
        (mpt__is_lstm(module)                                                             ? 4
                : module->layer == MPT__LAYER_gru || module->layer == MPT__LAYER_gru_cell ? 3
                                                                                          : 1);
    static const char *const names[] = {
        "weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"};
    const mpt_shape shapes[] = {MPT_SHAPE(rows, in),
        MPT_SHAPE(rows, projection ? projection : hidden), MPT_SHAPE(rows), MPT_SHAPE(rows),
        MPT_SHAPE(projection, hidden)};
    for (int i = 0; i < 5; i++) {
        char name[40];
        if ((i == 2 || i == 3) && !how[MPT__RNN_BIAS]) continue;
        if (i == 4 && !projection) continue;
        mpt__format_text(name, sizeof name, "%s%s", names[i], suffix);
        mpt__layer_parameter(ctx, module, name, shapes[i], hidden);
    }
}

static void mpt__recurrent_build(mpt_context *ctx, mpt__module *module, int64_t in, int64_t hidden,
    const mpt_recurrent_config *config) {
    int64_t *how = module->attributes.index;
    const int directions = config->bidirectional ? 2 : 1;
    const int64_t width = config->projection ? config->projection : hidden;
    module->attributes.imm[0] = config->dropout;
    module->attributes.activation =
        (uint8_t)(config->relu ? MPT_ACTIVATION_RELU : MPT_ACTIVATION_TANH);
    how[MPT__RNN_BATCH_FIRST] = config->batch_first;
    how[MPT__RNN_DIRECTIONS] = directions;
    how[MPT__RNN_LAYER_COUNT] = config->layers;
    how[MPT__RNN_BIAS] = config->bias;
    how[MPT__RNN_HIDDEN] = hidden;
    how[MPT__RNN_PROJECTION] = config->projection;
    module->cls.n_inputs = module->cls.n_outputs = 0;
    if (module->layer >= MPT__LAYER_rnn_cell) {
        module->cls.forward = mpt__recurrent_cell;
        mpt__recurrent_parameters(ctx, module, in, "");
        return;
    }
    module->cls.forward = mpt__recurrent_layers;
    for (int layer = 0; layer < config->layers; layer++)
        for (int d = 0; d < directions; d++) {
            char suffix[24];
            mpt__format_text(suffix, sizeof suffix, "_l%d%s", layer, d ? "_reverse" : "");
            mpt__recurrent_parameters(ctx, module, layer ? width * directions : in, suffix);
        }
}

static mpt_module mpt__recurrent_new(mpt_context *ctx, const char *call, mpt__layer layer,
    int64_t in, int64_t hidden, const mpt_recurrent_config *given) {
    mpt_recurrent_config config = given ? *given : mpt_recurrent_config_default();
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    bool lstm = layer == MPT__LAYER_lstm, cell = layer >= MPT__LAYER_rnn_cell;
    bool rnn = layer == MPT__LAYER_rnn || layer == MPT__LAYER_rnn_cell;
    if (!module) return mpt__module_handle(ctx, NULL);
    if (in < 1 || hidden < 1 || hidden > INT32_MAX)
        mpt__error(ctx, ARGUMENT, "%lld -> %lld features: expected 1 or more", in, hidden);
    else if (config.layers < 1 || config.layers > MPT__RNN_LAYERS ||
        !(config.dropout >= 0.0 && config.dropout <= 1.0))
        mpt__error(ctx, ARGUMENT, "%d layers, dropout %g: expected 1 to %d, and a probability",
            config.layers, config.dropout, (int)MPT__RNN_LAYERS);
    else if (config.projection < 0 || config.projection >= hidden || (config.projection && !lstm))
        mpt__error(ctx, ARGUMENT,
            "projection %lld: expected less than %lld, of an LSTM; 0 for none", config.projection,
            hidden);
    else if (config.relu && !rnn)
        mpt__error(ctx, ARGUMENT, "relu is for an RNN; the gates of others are fixed");
    else if (cell && (config.layers > 1 || config.bidirectional || config.dropout > 0.0))
        mpt__error(ctx, ARGUMENT, "a cell is one step of one layer in one direction");
    else
        mpt__recurrent_build(ctx, module, in, hidden, &config);
    return mpt__layer_made(ctx, module);
}

#define MPT__DEFINE_RECURRENT(name) \
    mpt_module mpt_nn_##name( \
        mpt_context *ctx, int64_t in, int64_t hidden, const mpt_recurrent_config *config) { \
        return mpt__recurrent_new(ctx, "mpt_nn_" #name, MPT__LAYER_##name, in, hidden, config); \
    }

#endif

MPT__DEFINE_RECURRENT(rnn)
MPT__DEFINE_RECURRENT(lstm)
MPT__DEFINE_RECURRENT(gru)
MPT__DEFINE_RECURRENT(rnn_cell)
MPT__DEFINE_RECURRENT(lstm_cell)
MPT__DEFINE_RECURRENT(gru_cell)
#undef MPT__DEFINE_RECURRENT

#endif
