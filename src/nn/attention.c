/* ----
 * nn/attention.c: layers of embedding and attention.
 * ---- */
#ifndef MPT__NN_ATTENTION_INCLUDED
#define MPT__NN_ATTENTION_INCLUDED

#include "nn/norm.c"

#ifndef MPTRAIN_NO_ATTENTION

/* ==== Embedding ==== */

mpt_module mpt_nn_embedding(mpt_context *ctx, int64_t count, int64_t width, int64_t padding_index) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_nn_embedding", MPT__LAYER_embedding);
    if (!module) return mpt__module_handle(ctx, NULL);
    module->attributes.index[0] = padding_index;
    mpt_shape shape = MPT_SHAPE(count, width);
    mpt_init normal = mpt_init_make(MPT_INIT_NORMAL, 0, 1);
    if (count < 1 || width < 1 || padding_index < -1 || padding_index >= count)
        mpt__error(ctx, ARGUMENT,
            "%lld rows of %lld, padding_index %lld: expected 1 or more, and a row or -1", count,
            width, padding_index);
    else if (mpt__ok(ctx))
        mpt__add_parameter(ctx, module, "weight", &shape, normal, 0);
    return mpt__layer_made(ctx, module);
}

/* ==== Attention ==== */

/* Heads side by side in [B, T, E]; k and v null: q holds all three. */
static mpt_tensor mpt__merged_attention(const mpt_tensor in[4], const mpt__attributes *attributes) {
    mpt__frame frame;
    mpt_context *ctx = in[0].context;
    if (!mpt__enter(ctx, "mpt_nn_multi_head_attention") ||
        !mpt__call_begin(&frame, ctx, MPT__OP_scaled_dot_product_attention, 4, 1, attributes))
        return mpt__null(ctx);
    if (mpt__find_inputs(ctx, in, 4, 1, frame.record->in))
        return mpt__handle(ctx, mpt__call_run(&frame));
    mpt__record_spare(ctx, frame.record);
    return mpt__null(ctx);
}

/* Part i of 3 of the fused projection of x by a layer. */
static mpt_tensor mpt__projected(mpt__spares *spares, const mpt__module *module, mpt_tensor x,
    mpt_tensor weight, mpt_tensor bias, int64_t width, int i) {
    mpt_tensor part = mpt__null(NULL);
    weight = mpt__spare(spares, mpt_slice(weight, 0, i * width, (i + 1) * width, 1));
    if (bias.slot) part = mpt__spare(spares, mpt_slice(bias, 0, i * width, (i + 1) * width, 1));
    part = mpt_linear(x, weight, part, MPT_ACTIVATION_NONE);
    return mpt__spare(spares, mpt__lora_added(x.context, module, x, part, i, 3));
}

/* The module's attributes: imm[0] base of rotary positions, 0: none; imm[1] dropout; index: causal,
   norms of queries and keys, offset of positions, interleaved, window; rank: heads. */
static bool mpt__places(const mpt__module *module) {
    return module->attributes.imm[0] > 0.0 || module->attributes.index[1];
}

static bool mpt__same_handle(mpt_tensor a, mpt_tensor b) {
    return a.slot == b.slot && a.generation == b.generation;
}

/* ---- Caches ---- */

/* What a layer, as its `user`, keeps of the places that it saw. */
typedef struct {
    mpt_context *context;
    mpt__tensor *kept[2]; /* keys and values [B, capacity, width]; NULL before the first forward */
    int64_t batch, capacity, length;
} mpt__cache;

static void mpt__cache_free(void *user) {
    mpt__cache *cache = (mpt__cache *)user;
    for (int i = 0; cache && i < 2; i++)
        if (cache->kept[i]) mpt__tensor_drop(cache->context, cache->kept[i]);
    if (cache) mpt__host_free(cache->context, cache, sizeof *cache);
}

/* Whether a forward of x may go on with what the layer keeps. */
static bool mpt__cache_takes(
    mpt_context *ctx, const mpt__cache *cache, const mpt__tensor *x, bool alone) {
    if (!ctx->inference_depth || mpt__is_capturing(ctx))
        return mpt__reject(ctx, STATE,
            "the layer has a cache, which is for mpt_inference_begin alone, and for "
            "no captured step; see mpt_cache_end");
    if (!x) return false;
    if (!alone || x->shape.rank != 3 || x->shape.dim[0] != cache->batch)
        return mpt__reject(ctx, SHAPE,
            "input %S: a layer with a cache takes x [%lld, T, width] alone, without "
            "a mask",
            &x->shape, cache->batch);
    if (x->shape.dim[1] <= cache->capacity - cache->length) return true;
    return mpt__reject(ctx, SHAPE, "%lld places more than the %lld that the cache has of %lld",
        x->shape.dim[1], cache->length, cache->capacity);
}

/* Puts keys (i 0) or values behind those before; gives all of them. */
static mpt_tensor mpt__cache_put(mpt__spares *spares, mpt__cache *cache, int i, mpt_tensor part) {
    mpt_context *ctx = cache->context;
    const mpt__tensor *from = mpt__ok(ctx) ? mpt__at(ctx, part, "input") : NULL;
    if (!from) return mpt__null(ctx);
    const mpt_shape all = MPT_SHAPE(cache->batch, cache->capacity, from->shape.dim[2]);
    if (!cache->kept[i]) {
        mpt__tensor *made =
            mpt__tensor_made(ctx, (mpt_dtype)from->dtype, &all, MPT_MEMORY_WORKSPACE, false);
        if (!made) return mpt__null(ctx);
        made->flags |= MPT__KEPT | MPT__INFERENCE;
        cache->kept[i] = made;
    }
    mpt__tensor place = *cache->kept[i];
    place.offset += cache->length * place.stride[1];
    place.shape.dim[1] = from->shape.dim[1];
    mpt__touched(ctx, place.storage);
    if (mpt__launch_copy(ctx, from, &place, MPT__WRITE) != MPT_OK) return mpt__null(ctx);
    return mpt__spare(spares,
        mpt_slice(mpt__handle(ctx, cache->kept[i]), 1, 0, cache->length + from->shape.dim[1], 1));
}

/* Queries or keys [B, T, width], each head's normed and turned as the config says. */
static mpt_tensor mpt__placed(mpt__spares *spares, mpt_module self, const mpt__module *module,
    mpt_tensor x, const char *norm) {
    const mpt__attributes *a = &module->attributes;
    const mpt_shape shape = mpt_get_shape(x);
    mpt_rope_config rope = mpt_rope_config_default();
    const mpt__cache *cache = (const mpt__cache *)module->user;
    rope.base = a->imm[0], rope.offset = a->index[2], rope.interleaved = a->index[3] != 0;
    if (cache) rope.offset += cache->length;
    rope.heads = a->rank;
    if (shape.rank == 3 && a->index[1] && mpt__ok(self.context)) {
        x = mpt__spare(spares, mpt_reshape(x, MPT_SHAPE(shape.dim[0], shape.dim[1], a->rank, -1)));
        x = mpt__spare(spares, mpt_forward(mpt_child(self, norm), x));
        x = mpt__spare(spares, mpt_reshape(x, shape));
    }
    return rope.base > 0.0 ? mpt__spare(spares, mpt_rope(x, &rope)) : x;
}

/* in: x, or query, key, value, and maybe a mask. */
static mpt_status mpt__multi_head_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt_context *ctx = self.context;
    mpt__module *module = mpt__module_at(ctx, self);
    mpt_tensor part[4], none = mpt__null(NULL);
    mpt__cache *cache = (mpt__cache *)user;
    if (!module) return ctx->base.status;
    if (n_out != 1 || (n_in != 1 && n_in != 3 && n_in != 4))
        return mpt__error(ctx, ARGUMENT,
            "%d inputs, %d outputs: expected x, or query, key, value and maybe a "
            "mask, and one output",
            n_in, n_out);
    bool training = ctx->module_training && !ctx->inference_depth, own = n_in == 1;
    double p = training ? module->attributes.imm[1] : 0.0;
    mpt__attributes attributes =
        mpt__attention_attributes(module->attributes.rank, module->attributes.index[0] != 0, p, 0.0,
            module->path_hash, p > 0.0 ? mpt__dropout_count(ctx, module) : 0);
    attributes.index[3] = module->attributes.index[4];
    int64_t width = module->parameters[0].shape.dim[1];
    mpt_tensor weight = mpt__parameter_handle(ctx, module, 0);
    mpt_tensor bias = module->parameter_count > 1 ? mpt__parameter_handle(ctx, module, 1) : none;
    mpt__spares spares;
    spares.count = 0;
    if (n_in > 1) own = mpt__same_handle(in[0], in[1]) && mpt__same_handle(in[0], in[2]);
    part[1] = part[2] = none;
    part[3] = n_in == 4 ? in[3] : none;
    if (cache && !mpt__cache_takes(ctx, cache, mpt__at(ctx, in[0], "input"), n_in == 1))
        return ctx->base.status;
    if (own) {
        part[0] = mpt_linear(in[0], weight, bias, MPT_ACTIVATION_NONE);
        part[0] = mpt__spare(&spares, mpt__lora_added(ctx, module, in[0], part[0], 0, 1));
    }
    for (int i = 0; i < 3 && !own; i++)
        part[i] = mpt__projected(&spares, module, in[i], weight, bias, width, i);
    if (cache || mpt__places(module)) {
        const mpt_tensor all = part[0];
        for (int i = 0; i < 3 && own; i++)
            part[i] = mpt__spare(&spares, mpt_slice(all, -1, i * width, (i + 1) * width, 1));
        part[0] = mpt__placed(&spares, self, module, part[0], "q_norm");
        part[1] = mpt__placed(&spares, self, module, part[1], "k_norm");
    }
    for (int i = 0; cache && i < 2; i++)
        part[1 + i] = mpt__cache_put(&spares, cache, i, part[1 + i]);
    if (cache) attributes.index[4] = cache->length;
    mpt_module project = mpt_child(self, "out_proj");
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt_tensor heads = mpt__spare(&spares, mpt__merged_attention(part, &attributes));
    if (cache && mpt__ok(ctx)) cache->length += mpt_get_shape(heads).dim[1];
    if (mpt__hooks_of(mpt__module_at(ctx, project))) spares.count--; /* which may put it by */
    out[0] = mpt__spares_end(&spares, mpt_forward(project, heads));
    return ctx->base.status;
}

#endif

mpt_hash_grid_config mpt_hash_grid_config_default(void) {
    mpt_hash_grid_config config;
    config.levels = 16, config.features = 2, config.entries = 1 << 14;
    config.coarsest = 16, config.finest = 512;
    return config;
}

MPT__DEFAULTS(mpt_multi_head_config, config.bias = true;)

#ifndef MPTRAIN_NO_ATTENTION
/* Parameters and children of a layer; children: the last projection, norms of queries and keys. */
static void mpt__multi_head_fill(mpt_context *ctx, mpt__module *module, int64_t width, int heads,
    const mpt_multi_head_config *config, const mpt_module children[3]) {
    static const char *const names[] = {"out_proj", "q_norm", "k_norm"};
    const mpt_shape weight = MPT_SHAPE(3 * width, width), bias = MPT_SHAPE(3 * width);
    mpt__attributes *a = &module->attributes;
    module->cls.forward = mpt__multi_head_forward;
    module->cls.n_inputs = 0;
    module->cls.destroy = mpt__cache_free;
    a->rank = (uint8_t)heads;
    a->imm[0] = config->rope.base, a->imm[1] = config->dropout;
    a->index[0] = config->causal, a->index[1] = config->qk_norm;
    a->index[2] = config->rope.offset, a->index[3] = config->rope.interleaved;
    a->index[4] = config->window;
    mpt__add_parameter(
        ctx, module, "in_proj_weight", &weight, mpt_init_make(MPT_INIT_XAVIER_UNIFORM, 1, 0), 0);
    if (config->bias) {
        mpt__add_parameter(
            ctx, module, "in_proj_bias", &bias, mpt_init_make(MPT_INIT_ZEROS, 0, 0), 0);
        mpt__module_at(ctx, children[0])->parameters[1].init = mpt_init_make(MPT_INIT_ZEROS, 0, 0);
    }
    for (int i = 0; i < (config->qk_norm ? 3 : 1); i++)
        mpt__add_child(ctx, module, names[i], mpt__module_at(ctx, children[i]));
}

mpt_module mpt_nn_multi_head_attention(
    mpt_context *ctx, int64_t width, int heads, const mpt_multi_head_config *config) {
    static const char name[] = "mpt_nn_multi_head_attention";
    mpt_multi_head_config defaults = mpt_multi_head_config_default();
    if (!config) config = &defaults;
    const bool turns = config->rope.base != 0.0;
    bool good = width >= 1 && width <= INT32_MAX && heads >= 1 && heads <= 255 &&
        width % heads == 0 && config->dropout >= 0.0 && config->dropout <= 1.0;
    const bool placed =
        good && (!turns || (mpt__good_rope(&config->rope) && width / heads % 2 == 0));
    mpt_module child[3];
    for (int i = 0; i < 3; i++) child[i] = mpt__module_handle(ctx, NULL);
    if (placed) child[0] = mpt__linear_new(ctx, name, width, width, config->bias);
    for (int i = 1; i < 3 && child[0].slot && config->qk_norm; i++)
        child[i] = mpt_nn_rms_norm(ctx, MPT_SHAPE(width / heads), NULL);
    const bool whole = child[0].slot && (!config->qk_norm || (child[1].slot && child[2].slot));
    mpt__module *module =
        whole || !placed ? mpt__layer_new(ctx, name, MPT__LAYER_multi_head_attention) : NULL;
    if (module && !good)
        mpt__error(ctx, ARGUMENT,
            "width %lld, %d heads, dropout %g: expected a multiple of 1 to 255 heads, and a "
            "probability",
            width, heads, config->dropout);
    else if (module && (config->window < 0 || (config->window && !config->causal)))
        mpt__error(ctx, ARGUMENT, "window %lld: expected 0 or more, of causal attention alone",
            config->window);
    else if (module && !placed)
        mpt__error(ctx, ARGUMENT,
            "rope of base %g, offset %lld, heads of %lld: expected more than 0, 0 to 2^40, "
            "and an even width",
            config->rope.base, config->rope.offset, width / heads);
    if (module && mpt__ok(ctx)) mpt__multi_head_fill(ctx, module, width, heads, config, child);
    mpt_module made = mpt__layer_made(ctx, module);
    if (ctx && !made.slot) mpt__number_back(ctx, child, child[2].slot ? 3 : child[1].slot ? 2 : 1);
    return made;
}

/* ==== Caches of a net ==== */

/* The next causal attention layer of a walk, from `module` on; NULL: none. */
static mpt__module *mpt__cache_layer(mpt__walk *walk, mpt__module *module) {
    while (module &&
        !(module->layer == MPT__LAYER_multi_head_attention && module->attributes.index[0]))
        module = mpt__walk_next(walk);
    return module;
}

mpt_status mpt_cache_begin(mpt_module net, int64_t batch, int64_t capacity) {
    mpt_context *ctx = net.context;
    mpt__module *found = mpt__module_enter(net, "mpt_cache_begin");
    mpt__walk walk;
    if (!found) return mpt__status_of(ctx);
    if (batch < 1 || capacity < 1 || capacity > (int64_t)1 << 40)
        return mpt__error(
            ctx, ARGUMENT, "batch %lld, capacity %lld: expected 1 or more", batch, capacity);
    mpt__module *m = mpt__cache_layer(&walk, mpt__walk_begin(&walk, ctx, found));
    if (!m && mpt__ok(ctx))
        return mpt__error(
            ctx, ARGUMENT, "the module has no layer of mpt_nn_multi_head_attention that is causal");
    for (; m && mpt__ok(ctx); m = mpt__cache_layer(&walk, mpt__walk_next(&walk))) {
        mpt__cache *cache = (mpt__cache *)mpt__host_new(ctx, sizeof *cache);
        if (!cache) break;
        memset(cache, 0, sizeof *cache);
        cache->context = ctx, cache->batch = batch, cache->capacity = capacity;
        mpt__cache_free(m->user);
        m->user = cache;
    }
    return ctx->base.status;
}

int64_t mpt_cache_length(mpt_module net) {
    mpt__module *found = mpt__module_enter(net, "mpt_cache_length");
    mpt__walk walk;
    if (!found) return -1;
    const mpt__module *m = mpt__cache_layer(&walk, mpt__walk_begin(&walk, net.context, found));
    return m && m->user ? ((const mpt__cache *)m->user)->length : 0;
}

mpt_status mpt_cache_rewind(mpt_module net, int64_t length) {
    mpt_context *ctx = net.context;
    mpt__module *found = mpt__module_enter(net, "mpt_cache_rewind");
    mpt__walk walk;
    if (!found) return mpt__status_of(ctx);
    mpt__module *m = mpt__cache_layer(&walk, mpt__walk_begin(&walk, ctx, found));
    for (; m; m = mpt__cache_layer(&walk, mpt__walk_next(&walk))) {
        mpt__cache *cache = (mpt__cache *)m->user;
        if (!cache || length < 0 || length > cache->length)
            return mpt__error(ctx, ARGUMENT, "length %lld: expected 0 to the cache's %lld", length,
                cache ? cache->length : (int64_t)0);
        cache->length = length;
    }
    return ctx->base.status;
}

mpt_status mpt_cache_end(mpt_module net) {
    mpt_context *ctx = net.context;
    mpt__module *found = mpt__module_enter(net, "mpt_cache_end");
    mpt__walk walk;
    if (!found) return mpt__status_of(ctx);
    mpt__module *m = mpt__cache_layer(&walk, mpt__walk_begin(&walk, ctx, found));
    for (; m; m = mpt__cache_layer(&walk, mpt__walk_next(&walk))) {
        mpt__cache_free(m->user);
        m->user = NULL;
    }
    return ctx->base.status;
}

/* ==== Gated units ==== */

static mpt_tensor mpt__glu_run(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu) {
    (void)ctx, (void)residual, (void)relu;
    return mpt_glu(x, -1, (mpt_gate)module->attributes.index[0]);
}

mpt_module mpt_nn_glu(mpt_context *ctx, mpt_gate gate) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_nn_glu", MPT__LAYER_glu);
    if (!module) return mpt__module_handle(ctx, NULL);
    module->attributes.index[0] = gate, module->run = mpt__glu_run;
    mpt__check_gate(ctx, gate);
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_hash_grid(mpt_context *ctx, const mpt_hash_grid_config *config) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_nn_hash_grid", MPT__LAYER_hash_grid);
    const mpt_hash_grid_config defaults = mpt_hash_grid_config_default();
    if (!module) return mpt__module_handle(ctx, NULL);
    if (!config) config = &defaults;
    const mpt_shape table = MPT_SHAPE(config->levels, config->entries, config->features);
    int64_t *cells = module->attributes.index;
    cells[0] = config->coarsest, cells[1] = config->finest;
    if (!mpt__good_grid(table.dim, cells))
        mpt__error(ctx, ARGUMENT,
            "table %S, cells from %lld to %lld: expected 8 features at most, and 1 to 2^20, "
            "rising",
            &table, cells[0], cells[1]);
    else if (mpt__ok(ctx))
        mpt__add_parameter(
            ctx, module, "table", &table, mpt_init_make(MPT_INIT_UNIFORM, -1e-4, 1e-4), 0);
    return mpt__layer_made(ctx, module);
}

#else

MPT__BEGIN_ABSENT
static mpt_status mpt__no_attention_in(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "attention and embedding (MPTRAIN_NO_ATTENTION)");
}
static mpt_module mpt__no_attention_layer(mpt_context *ctx, const char *call) {
    mpt__no_attention_in(ctx, call);
    return mpt__module_handle(ctx, NULL);
}
mpt_status mpt_cache_begin(mpt_module net, int64_t batch, int64_t capacity) {
    return mpt__no_attention_in(net.context, "mpt_cache_begin");
}
mpt_status mpt_cache_rewind(mpt_module net, int64_t length) {
    return mpt__no_attention_in(net.context, "mpt_cache_rewind");
}
mpt_status mpt_cache_end(mpt_module net) {
    return mpt__no_attention_in(net.context, "mpt_cache_end");
}
int64_t mpt_cache_length(mpt_module net) {
    mpt__no_attention_in(net.context, "mpt_cache_length");
    return -1;
}
mpt_module mpt_nn_embedding(mpt_context *ctx, int64_t count, int64_t width, int64_t padding_index) {
    return mpt__no_attention_layer(ctx, "mpt_nn_embedding");
}
mpt_module mpt_nn_multi_head_attention(
    mpt_context *ctx, int64_t width, int heads, const mpt_multi_head_config *config) {
    return mpt__no_attention_layer(ctx, "mpt_nn_multi_head_attention");
}
mpt_module mpt_nn_glu(mpt_context *ctx, mpt_gate gate) {
    return mpt__no_attention_layer(ctx, "mpt_nn_glu");
}
mpt_module mpt_nn_hash_grid(mpt_context *ctx, const mpt_hash_grid_config *config) {
    return mpt__no_attention_layer(ctx, "mpt_nn_hash_grid");
}
MPT__END_ABSENT

#endif

#endif
