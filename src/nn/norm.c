/* ----
 * nn/norm.c: layers that normalise and pool.
 * ---- */
#ifndef MPT__NN_NORM_INCLUDED
#define MPT__NN_NORM_INCLUDED

#include "nn/conv.c"

/* ==== Running statistics ==== */

static mpt__launch *mpt__running_launch(
    mpt_context *ctx, const uint32_t storage[4], int64_t channels) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_RUNNING_STATS);
    mpt_shape values = MPT_SHAPE(2, channels), counts = MPT_SHAPE(2);
    for (int i = 0; i < 4; i++) {
        mpt__tensor view =
            mpt__view_on(storage[i], i % 2 ? MPT_I64 : MPT_F32, i % 2 ? &counts : &values, 0);
        mpt__operand_of(launch, 2 + i, &view, i < 2 ? MPT__READ : MPT__WRITE);
    }
    return launch;
}

static int64_t mpt__running_channels(const mpt__running *running) {
    return running->buffer[0]->shape.dim[0];
}

/* What steps have left becomes the state of its modules, or is forgotten. What captured steps leave
   is not pending: without commit all is forgotten. */
static void mpt__running_settle(mpt_context *ctx, bool commit);

static void mpt__running_settles(MPT__HEARS) {
    (void)user, (void)what;
    mpt__running_settle(ctx, true);
}

/* The step has left something: its end settles it. */
static void mpt__running_wait(mpt_context *ctx, mpt__running *running) {
    if (!running->pending)
        running->pending =
            mpt__listen(ctx, MPT__STEP_SETTLES, mpt__running_settles, NULL) == MPT_OK;
}

/* Statistics of a batch on their way into those of a module. */
static void mpt__running_update(MPT__HEARS) {
    const mpt__batch_statistics *batch = (const mpt__batch_statistics *)what;
    mpt__running *running = mpt__module_slot(ctx, batch->module)->running;
    (void)user;
    const uint32_t storage[4] = {running->pending ? running->next_values : running->values,
        running->pending ? running->next_counts : running->counts, running->next_values,
        running->next_counts};
    mpt__launch *launch = mpt__running_launch(ctx, storage, mpt__running_channels(running));
    launch->imm[0] = running->momentum;
    launch->imm[1] = batch->unbiased;
    mpt__reads(launch, 0, batch->mean);
    mpt__reads(launch, 1, batch->variance);
    if (mpt__submit(ctx, launch) != MPT_OK) return;
    mpt__running_wait(ctx, running);
    if (!ctx->step_depth) mpt__running_settle(ctx, true);
}

static void mpt__statistics_settle(mpt_context *ctx, mpt__running *running, bool commit) {
    if (!commit) return;
    const uint32_t storage[4] = {
        running->next_values, running->next_counts, running->values, running->counts};
    mpt__submit(ctx, mpt__running_launch(ctx, storage, mpt__running_channels(running)));
    ctx->storages[running->values].version++;
    ctx->storages[running->counts].version++;
}

static void mpt__running_settle(mpt_context *ctx, bool commit) {
    mpt__listen_no_more(ctx, MPT__STEP_SETTLES, mpt__running_settles);
    MPT__EACH_OBJECT(const mpt__module, module, ctx, MPT__MODULE) {
        mpt__running *running = module->running;
        if (!running || (commit && !running->pending)) continue;
        running->pending = false;
        if (running->settle) running->settle(ctx, running, commit);
    }
}

int64_t mpt_refused_updates(mpt_module module) {
    mpt__module *found = mpt__module_enter(module, "mpt_refused_updates");
    int64_t count = 0, counts[2];
    mpt__walk walk;
    for (found = found ? mpt__walk_begin(&walk, module.context, found) : NULL; found;
         found = mpt__walk_next(&walk)) {
        if (!found->running || !found->running->counts) continue;
        if (mpt__download(module.context, counts, found->running->counts, 0, sizeof counts) ==
            MPT_OK)
            count += counts[1];
    }
    return mpt__status_of(module.context) == MPT_OK ? count : -1;
}

/* Means 0, variances 1, counts 0. */
static void mpt__running_new(
    mpt_context *ctx, mpt__module *module, int64_t channels, double momentum) {
    mpt_shape each = MPT_SHAPE(channels), none = MPT_SCALAR;
    mpt__running *running = (mpt__running *)mpt__host_new(ctx, sizeof *running);
    if (!running) return;
    mpt__zero(*running);
    module->running = running;
    running->momentum = momentum;
    if (mpt__listen(ctx, MPT__BATCH_MEASURED, mpt__running_update, NULL) != MPT_OK) return;
    uint32_t *const storages[] = {
        &running->values, &running->next_values, &running->counts, &running->next_counts};
    for (int i = 0; i < 4; i++) {
        *storages[i] = mpt__storage_new(
            ctx, i < 2 ? 8 * channels : 16, MPT_MEMORY_PARAMETER, MPT__FROM_DEVICE, true);
        if (!*storages[i]) return;
    }
    for (int i = 0; i < MPT__BUFFER_FP8; i++) {
        mpt__tensor view = i < 2 ? mpt__view_on(running->values, MPT_F32, &each, i * channels)
                                 : mpt__view_on(running->counts, MPT_I64, &none, 0);
        running->buffer[i] = mpt__tensor_outside(ctx, &view, MPT__KEPT | MPT__GRADIENT);
        if (!running->buffer[i]) return;
    }
    running->settle = mpt__statistics_settle;
    mpt__launch_fill(ctx, running->buffer[1], 1.0);
}

/* ==== Layers ==== */

mpt_norm_config mpt_norm_config_default(void) {
    mpt_norm_config config;
    mpt__zero(config);
    config.eps = 1e-5;
    config.weight = config.bias = config.track = true;
    config.momentum = 0.1;
    return config;
}

#ifdef MPTRAIN_NO_ATTENTION
#define MPT__ROW_NORMS "built without layer and RMS norm (MPTRAIN_NO_ATTENTION)"
#else
#define MPT__ROW_NORMS NULL
#endif
#ifdef MPTRAIN_NO_CONV
#define MPT__CHANNEL_NORMS "built without batch norm, group norm and pooling (MPTRAIN_NO_CONV)"
#else
#define MPT__CHANNEL_NORMS NULL
#endif

/* A norm with parameters of `shape`; `count` of groups or of dimensions; `missing` says why there
   is none in this build. */
static mpt__module *mpt__norm_new(mpt_context *ctx, const char *call, mpt__layer layer,
    mpt_shape shape, int64_t count, const mpt_norm_config *config, const char *missing) {
    MPT__PLAIN_FLOATS;
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    if (!module) return NULL;
    module->attributes = mpt__norm_attributes(count, config->eps);
    if (missing) mpt__error(ctx, UNSUPPORTED, "%s", missing);
    bool good = shape.rank > 0 && shape.rank <= MPT_MAX_RANK;
    for (int d = 0; good && d < shape.rank; d++) good = shape.dim[d] > 0;
    if (mpt__ok(ctx) && !good)
        mpt__error(ctx, SHAPE, "expected 1 to %d dimensions, or a number of features, of 1 or more",
            (int)MPT_MAX_RANK);
    if (mpt__ok(ctx) && !(config->eps >= 0.0 && mpt__f64_is_finite(config->eps)))
        mpt__error(ctx, ARGUMENT, "eps %g: expected 0 or more", config->eps);
    static const char *const names[] = {"weight", "bias"};
    for (int i = 0; i < 2 && mpt__ok(ctx); i++) {
        bool wanted = i == 0 ? config->weight : config->bias && layer != MPT__LAYER_rms_norm;
        mpt_init init = mpt_init_make(i == 0 ? MPT_INIT_ONES : MPT_INIT_ZEROS, 0, 0);
        if (wanted) mpt__add_parameter(ctx, module, names[i], &shape, init, 0);
    }
    return module;
}

static mpt_norm_config mpt__norm_config_of(const mpt_norm_config *config) {
    return config ? *config : mpt_norm_config_default();
}

#define MPT__DEFINE_ROW_NORM(name) \
    mpt_module mpt_nn_##name(mpt_context *ctx, mpt_shape shape, const mpt_norm_config *given) { \
        mpt_norm_config config = mpt__norm_config_of(given); \
        return mpt__layer_made(ctx, mpt__norm_new(ctx, "mpt_nn_" #name, MPT__LAYER_##name, shape, \
                                                  shape.rank, &config, MPT__ROW_NORMS)); \
    }
MPT__DEFINE_ROW_NORM(layer_norm)
MPT__DEFINE_ROW_NORM(rms_norm)
#undef MPT__DEFINE_ROW_NORM

mpt_module mpt_nn_group_norm(mpt_context *ctx, int64_t groups, int64_t channels,
                             const mpt_norm_config *given) {
    mpt_norm_config config = mpt__norm_config_of(given);
    mpt__module *module = mpt__norm_new(ctx, "mpt_nn_group_norm", MPT__LAYER_group_norm,
                                        MPT_SHAPE(channels), groups, &config, MPT__CHANNEL_NORMS);
    if (module && mpt__ok(ctx) && (groups < 1 || channels % groups != 0))
        mpt__error(ctx, ARGUMENT, "%lld groups do not divide %lld channels", groups, channels);
    return mpt__layer_made(ctx, module);
}

#ifdef MPTRAIN_NO_CONV
#define mpt__notice_bias(ctx, module, x) ((void)0)
#else
/* A bias that a batch's mean takes away again costs memory and time; once for each module. */
static void mpt__notice_bias(mpt_context *ctx, mpt__module *module, const mpt__tensor *x) {
    const mpt__record *record = x->record;
    if (module->noticed || !record) return;
    module->noticed = true;
    bool conv = record->op == MPT__OP_conv2d || record->op == MPT__OP_conv1d ||
                record->op == MPT__OP_conv_transpose2d;
    conv = conv && record->attributes.activation == MPT_ACTIVATION_NONE;
    if (conv && record->n_in > 2 && record->in[2])
        mpt__log(&ctx->base, MPT_LOG_INFO,
                 "convolution \"%s\" has a bias, which batch norm \"%s\" takes away again: make it "
                 "without one (config.bias = false)",
                 mpt__path_text(ctx, record->path), mpt__path_text(ctx, module->path));
}
#endif

/* Of the batch while it trains, and where there is nothing else. */
static mpt_tensor mpt__batch_norm_forward(mpt_context *ctx, mpt__module *module, mpt_tensor x,
                                          mpt_tensor residual, bool relu) {
    const mpt__running *running = module->running;
    bool training = mpt__in_training(module) && !ctx->inference_depth;
    const mpt__tensor *tensor = mpt__live(ctx, x);
    mpt_tensor in[6];
    bool flat = module->layer == MPT__LAYER_batch_norm1d;
    int rank = tensor->shape.rank;
    if (flat ? rank != 2 && rank != 3 : rank != 4)
        return mpt__refuse(ctx, SHAPE, "%s of input %S: expected %s", module->cls.name,
                           &tensor->shape, flat ? "[N, C] or [N, C, L]" : "[N, C, H, W]");
    if (training) mpt__notice_bias(ctx, module, tensor);
    in[0] = x, in[5] = residual;
    for (int i = 0; i < 2; i++) {
        in[1 + i] = in[3 + i] = mpt__null(NULL);
        if (running && !training) in[3 + i] = mpt__handle(ctx, running->buffer[i]);
        for (int64_t k = 0; k < module->parameter_count; k++)
            if (strcmp(module->parameters[k].name, i ? "bias" : "weight") == 0)
                in[1 + i] = mpt__parameter_handle(ctx, module, k);
    }
    relu = relu || module->attributes.index[2];
    mpt__tensor *fused = mpt__fused_norm(ctx, module, in, relu);
    if (fused) return mpt__handle(ctx, fused);
    return mpt__apply_batch_norm(in, module->attributes.imm[0],
                                 running && training ? module->id.slot : 0, relu);
}

static mpt_module mpt__batch_norm_layer(mpt_context *ctx, const char *call, mpt__layer layer,
                                        int64_t features, const mpt_norm_config *given) {
    mpt_norm_config config = mpt__norm_config_of(given);
    mpt__module *module =
        mpt__norm_new(ctx, call, layer, MPT_SHAPE(features), 0, &config, MPT__CHANNEL_NORMS);
    if (module && mpt__ok(ctx) && !(config.momentum <= 1.0))
        mpt__error(ctx, ARGUMENT, "momentum %g: expected at most 1 (negative: the mean of all)",
                   config.momentum);
    if (module) module->attributes.index[2] = config.relu, module->run = mpt__batch_norm_forward;
    if (module && mpt__ok(ctx) && config.track)
        mpt__running_new(ctx, module, features, config.momentum);
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_batch_norm1d(mpt_context *ctx, int64_t features, const mpt_norm_config *config) {
    return mpt__batch_norm_layer(ctx, "mpt_nn_batch_norm1d", MPT__LAYER_batch_norm1d, features,
                                 config);
}
mpt_module mpt_nn_batch_norm2d(mpt_context *ctx, int64_t features, const mpt_norm_config *config) {
    return mpt__batch_norm_layer(ctx, "mpt_nn_batch_norm2d", MPT__LAYER_batch_norm2d, features,
                                 config);
}

/* ==== Pooling ==== */

#define MPT__DEFINE_POOL(kind) \
    mpt_module mpt_nn_##kind##_pool2d(mpt_context *ctx, const mpt_pool_config *config) { \
        return mpt__pooling_layer(ctx, "mpt_nn_" #kind "_pool2d", MPT__LAYER_##kind##_pool2d, \
                                  mpt__pooling_attributes(config)); \
    }

static mpt_module mpt__pooling_layer(mpt_context *ctx, const char *call, mpt__layer layer,
                                     mpt__attributes attributes) {
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    const char *missing = MPT__CHANNEL_NORMS;
    if (module) module->attributes = attributes;
    if (module && missing) mpt__error(ctx, UNSUPPORTED, "%s", missing);
    return mpt__layer_made(ctx, module);
}

MPT__DEFINE_POOL(max)
MPT__DEFINE_POOL(avg)
#undef MPT__DEFINE_POOL

mpt_module mpt_nn_adaptive_avg_pool2d(mpt_context *ctx, int64_t height, int64_t width) {
    return mpt__pooling_layer(ctx, "mpt_nn_adaptive_avg_pool2d", MPT__LAYER_avg_pool2d,
                              mpt__adaptive_attributes(height, width));
}

#endif
