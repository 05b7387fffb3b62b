/* ----
 * nn/lora.c: low-rank adapters of linear layers and of what attention projects x by.
 *
 * An adapted layer has two children more, lora_A and lora_B, linear layers without a bias; what
 * their product is times stands in the attributes of the second, where a checkpoint compares it.
 * ---- */
#ifndef MPT__NN_LORA_INCLUDED
#define MPT__NN_LORA_INCLUDED

#include "ground/json.c"
#include "nn/share.c"

#ifdef MPTRAIN_NO_FRUGAL

/* One name serves for all, which is fewer bytes. */
MPT__BEGIN_ABSENT
mpt_status mpt_lora(mpt_module module, const char *pattern, int rank, double alpha) {
    return mpt__frugal_missing(module.context, "mpt_lora");
}
mpt_status mpt_lora_merge(mpt_module module) {
    return mpt__frugal_missing(module.context, "mpt_lora");
}
mpt_status mpt_lora_remove(mpt_module module) {
    return mpt__frugal_missing(module.context, "mpt_lora");
}
mpt_status mpt_lora_save(mpt_module module, const char *path) {
    return mpt__frugal_missing(module.context, "mpt_lora");
}
MPT__END_ABSENT

#define mpt__lora_added(ctx, module, x, y, part, parts) ((void)(module), (y))

#else

/* ==== Forward ==== */

static mpt__module *mpt__adapter(mpt_context *ctx, const mpt__module *module, int which) {
    return mpt__module_slot(ctx, module->children[module->child_count - 2 + which].slot);
}

/* y, which is given up, with what the adapters of a layer add to it, or to number `part` of `parts`
   equal ones of its outputs; y where there are none. Beside a half weight outside autocast they
   compute in its dtype, as x is of that. */
static mpt_tensor mpt__lora_added(mpt_context *ctx, const mpt__module *module, mpt_tensor x,
    mpt_tensor y, int part, int parts) {
    if (module->lora != MPT__LORA_ADAPTED || !mpt__ok(ctx)) return y;
    const mpt__module *a = mpt__adapter(ctx, module, 0), *b = mpt__adapter(ctx, module, 1);
    const mpt_dtype dtype = mpt_get_dtype(mpt__parameter_handle(ctx, module, 0));
    const int depth = ctx->autocast_depth;
    mpt__spares spares;
    spares.count = 0;
    if (mpt__autocast_dtype(ctx) == MPT_F32 && dtype != MPT_F32) mpt_autocast_begin(ctx, dtype);
    mpt_tensor z = mpt__spare(&spares, mpt_forward(mpt__module_handle(ctx, a), x));
    z = mpt__spare(&spares, mpt_mul_scalar(z, b->attributes.imm[0]));
    if (parts == 1) {
        z = mpt__spare(&spares, mpt_forward(mpt__module_handle(ctx, b), z));
    } else {
        const int64_t rows = b->parameters[0].shape.dim[0] / parts;
        mpt_tensor weight = mpt_slice(
            mpt__parameter_handle(ctx, b, 0), 0, part * rows, (part + 1) * rows, 1);
        weight = mpt__spare(&spares, weight);
        z = mpt__spare(&spares, mpt_linear(z, weight, mpt__null(NULL), MPT_ACTIVATION_NONE));
    }
    ctx->autocast_depth = depth;
    y = mpt_add_(y, z);
    if (mpt__hooks_of(a) || mpt__hooks_of(b)) spares.count = 0; /* which may put them by */
    return mpt__spares_end(&spares, y);
}

/* `run` of an adapted linear layer. */
static mpt_tensor mpt__lora_run(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu) {
    (void)residual, (void)relu;
    mpt__tensor *y = mpt__op_layer_forward(ctx, module, mpt__live(ctx, x), MPT_ACTIVATION_NONE);
    return y ? mpt__lora_added(ctx, module, x, mpt__handle(ctx, y), 0, 1) : mpt__null(ctx);
}

MPT__BEGIN_COLD
/* ==== What may change ==== */

/* The module of such a call, where nothing is under way that has seen its layers; else NULL. */
static mpt__module *mpt__lora_enter(mpt_module module, const char *call) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_enter(module, call);
    if (!found) return NULL;
    if (!ctx->recorder && !ctx->sliced && !ctx->forward_depth && !ctx->module && !ctx->in_backward)
        return mpt__freeze(ctx, found) == MPT_OK ? found : NULL;
    mpt__error(ctx, STATE,
        "a forward, a backward, a recording or a step in slices is under way; change layers "
        "between steps");
    return NULL;
}

/* Whether no parameter of the module is an optimizer's: of its adapters, or all but those. */
static bool mpt__lora_free(
    mpt_context *ctx, mpt__module *found, bool adapters, const char *advice) {
    const mpt__module_parameter *row;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    while ((row = mpt__walk_parameter(&walk)) != NULL) {
        const mpt__parameter *parameter = &ctx->parameters[row->parameter - 1];
        if (!parameter->optimizer || (walk.module->lora == MPT__LORA_ADAPTER) != adapters) continue;
        return mpt__reject(
            ctx, STATE, "parameter %s belongs to an optimizer; %s", parameter->path, advice);
    }
    return mpt__ok(ctx);
}

/* Whether the layer's weight is tied to another place, or another one to it. */
static bool mpt__weight_tied(const mpt_context *ctx, const mpt__module *module) {
    if (module->parameters[0].owner) return true;
    MPT__EACH_OBJECT(const mpt__module, other, ctx, MPT__MODULE) {
        for (int64_t k = 0; k < other->parameter_count; k++)
            if (other->parameters[k].owner == module->id.slot && !other->parameters[k].owner_row)
                return true;
    }
    return false;
}

/* The next layer of a walk, from `module` on, that can have adapters and whose path fits the
   pattern; NULL at the end. */
static mpt__module *mpt__lora_next(mpt__walk *walk, mpt__module *module, const char *pattern) {
    mpt__span star;
    for (; module; module = mpt__walk_next(walk)) {
        bool fits = module->layer == MPT__LAYER_linear && module->lora != MPT__LORA_ADAPTER;
#ifndef MPTRAIN_NO_ATTENTION
        fits |= module->layer == MPT__LAYER_multi_head_attention;
#endif
        if (fits && mpt__pattern_fits(pattern, mpt__span_of(walk->path), &star)) break;
    }
    return module;
}

/* Whether all layers that fit can be adapted, and there are any; else an error. */
static bool mpt__lora_check(mpt_context *ctx, mpt__module *found, const char *pattern) {
    mpt__walk walk;
    int64_t count = 0;
    mpt__module *m = mpt__lora_next(&walk, mpt__walk_begin(&walk, ctx, found), pattern);
    for (; m; m = mpt__lora_next(&walk, mpt__walk_next(&walk), pattern), count++) {
        const char *why = m->lora ? "has adapters; mpt_lora_merge or mpt_lora_remove them first"
            : m->running          ? "computes in fp8 (mpt_fp8)"
            : m->borrows          ? "borrows its values from another context (mpt_share_module)"
            : mpt__weight_tied(ctx, m) ? "shares its weight with another layer (mpt_tie)"
                                       : NULL;
        if (why)
            return mpt__reject(
                ctx, STATE, "layer \"%s\" %s", *walk.path ? walk.path : m->cls.name, why);
    }
    if (count > 0 || !mpt__ok(ctx)) return mpt__ok(ctx);
    return mpt__reject(ctx, ARGUMENT,
        "no linear or attention layer of %s has a path that fits \"%s\"; mpt_summary lists them",
        found->cls.name, pattern);
}

/* ==== Putting on, taking off ==== */

/* A layer as it was without its adapters. */
static void mpt__lora_drop(mpt_context *ctx, mpt__module *module) {
    while (module->child_count > 0) {
        const mpt__module_child *last = &module->children[module->child_count - 1];
        if (mpt__module_slot(ctx, last->slot)->lora != MPT__LORA_ADAPTER) break;
        mpt__host_text_free(ctx, last->name);
        mpt__object_free(ctx, MPT__MODULE, last->slot);
        module->child_count--;
    }
    module->lora = MPT__LORA_NONE;
    if (module->layer == MPT__LAYER_linear) *mpt__run_place(module) = NULL;
}

/* Children of a layer that still are to get places and values. */
static void mpt__lora_make(mpt_context *ctx, mpt__module *module, int rank, double scale) {
    static const char *const names[] = {"lora_A", "lora_B"};
    const int64_t *dim = module->parameters[0].shape.dim;
    module->frozen = false;
    for (int i = 0; i < 2 && mpt__ok(ctx); i++) {
        mpt__module *child = mpt__layer_new(ctx, "mpt_lora", MPT__LAYER_linear);
        if (!child) break;
        const mpt_shape shape = i ? MPT_SHAPE(dim[0], rank) : MPT_SHAPE(rank, dim[1]);
        mpt_init init = mpt_init_make(i ? MPT_INIT_ZEROS : MPT_INIT_DEFAULT, 0, 0);
        mpt__add_parameter(ctx, child, "weight", &shape, init, dim[1]);
        child->lora = MPT__LORA_ADAPTER;
        child->training = module->training;
        child->attributes.imm[0] = i ? scale : 0.0;
        if (!mpt__ok(ctx) || mpt__add_child(ctx, module, names[i], child) != MPT_OK)
            mpt__object_free(ctx, MPT__MODULE, child->id.slot);
    }
    module->frozen = true;
    module->lora = MPT__LORA_ADAPTED;
    if (module->layer == MPT__LAYER_linear) *mpt__run_place(module) = mpt__lora_run;
    if (!mpt__ok(ctx)) mpt__lora_drop(ctx, module); /* one of them may be there */
}

/* Whether the weights of a module and all below it, adapters apart, are held as they are. */
static void mpt__lora_hold(mpt_context *ctx, mpt__module *module, bool on) {
    mpt__walk walk;
    for (module = mpt__walk_begin(&walk, ctx, module); module; module = mpt__walk_next(&walk)) {
        if (module->lora == MPT__LORA_ADAPTER) continue;
        module->held = on;
        mpt__parameters_collect(ctx, module, !on && !module->fixed);
    }
}

/* Takes the adapters off all layers of a module: those alone that are not in use yet, or all. */
static void mpt__lora_drop_all(mpt_context *ctx, mpt__module *module, bool used) {
    mpt__walk walk;
    ctx->moves++; /* captured steps record anew */
    for (module = mpt__walk_begin(&walk, ctx, module); module; module = mpt__walk_next(&walk))
        if (module->lora == MPT__LORA_ADAPTED && (used || !mpt__adapter(ctx, module, 1)->frozen))
            mpt__lora_drop(ctx, module);
}

mpt_status mpt_lora(mpt_module module, const char *pattern, int rank, double alpha) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__lora_enter(module, "mpt_lora"), *m;
    mpt__walk walk;
    if (!found) return mpt__status_of(ctx);
    if (!mpt__pattern_good(pattern))
        return mpt__error(ctx, ARGUMENT, "pattern: expected a path with one '*' at most");
    if (rank < 1 || !(alpha > 0.0) || !mpt__f64_is_finite(alpha))
        return mpt__error(
            ctx, ARGUMENT, "rank %d, alpha %g: expected 1 or more, and above 0", rank, alpha);
    if (!mpt__lora_check(ctx, found, pattern) ||
        !mpt__lora_free(ctx, found, false, "call mpt_lora before it is made"))
        return ctx->base.status;
    const uint64_t creations = ctx->module_creations; /* later nets have the values that they had */
    m = mpt__lora_next(&walk, mpt__walk_begin(&walk, ctx, found), pattern);
    for (; m && mpt__ok(ctx); m = mpt__lora_next(&walk, mpt__walk_next(&walk), pattern))
        mpt__lora_make(ctx, m, rank, alpha / rank);
    ctx->module_creations = creations;
    ctx->moves++;
    if (mpt__ok(ctx)) mpt__freeze_new(ctx, &walk, mpt__module_root(ctx, found));
    if (mpt__ok(ctx))
        mpt__lora_hold(ctx, found, true);
    else
        mpt__lora_drop_all(ctx, found, false);
    return ctx->base.status;
}

/* ==== Merging ==== */

/* A layer's weight with the product of its adapters added, in fp32, rounded once on its way back;
   `writes` false: only whether it can hold the result. */
static void mpt__lora_fold(mpt_context *ctx, const mpt__module *module, bool writes) {
    const mpt__module *b = mpt__adapter(ctx, module, 1);
    const mpt__parameter *of = &ctx->parameters[module->parameters[0].parameter - 1];
    const float limit = (float)mpt__dtype_info[of->tensor->dtype].max_finite;
    const size_t bytes = (size_t)of->numel * sizeof(float);
    if (mpt__writing_refused(ctx, of->tensor->storage)) return;
    mpt__tensor *sum =
        mpt__tensor_unscoped(ctx, MPT_F32, &of->tensor->shape, MPT_MEMORY_WORKSPACE);
    if (!sum) return;
    mpt__launch_copy(ctx, of->tensor, sum, MPT__WRITE);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_GEMM);
    launch->imm[0] = b->attributes.imm[0];
    for (int i = 0; i < 2; i++) {
        const mpt__module *adapter = mpt__adapter(ctx, module, 1 - i);
        mpt__reads(launch, i, ctx->parameters[adapter->parameters[0].parameter - 1].tensor);
    }
    mpt__operand_of(launch, 3, sum, MPT__ACCUMULATE);
    mpt__submit(ctx, launch);
    float *values = (float *)mpt__host_new(ctx, bytes);
    const bool known = values && mpt__read_as(ctx, sum, MPT_F32, values) == MPT_OK;
    for (int64_t i = 0; known && i < of->numel && mpt__ok(ctx); i++)
        if (!(values[i] <= limit && values[i] >= -limit))
            mpt__error(ctx, NUMERIC, "parameter %s: element %lld would become %g, beyond %D",
                of->path, i, (double)values[i], of->tensor->dtype);
    if (known && mpt__ok(ctx) && writes) mpt__write_f32(ctx, of->tensor, values);
    mpt__host_free(ctx, values, bytes);
    mpt__tensor_drop(ctx, sum);
}

/* Both calls that end adapters. */
static mpt_status mpt__lora_end(mpt_module module, const char *call, bool merges) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__lora_enter(module, call), *m;
    mpt__walk walk;
    bool any = false;
    if (!found || !mpt__lora_free(ctx, found, true, "mpt_optimizer_destroy it first"))
        return mpt__status_of(ctx);
    for (int writes = 0; writes < 2; writes++)
        for (m = mpt__walk_begin(&walk, ctx, found); m; m = mpt__walk_next(&walk)) {
            if (m->lora != MPT__LORA_ADAPTED || !mpt__ok(ctx)) continue;
            any = true;
            if (merges) mpt__lora_fold(ctx, m, writes);
        }
    if (!any && mpt__ok(ctx))
        mpt__error(ctx, STATE, "the module has no adapters; mpt_lora makes them");
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__lora_drop_all(ctx, found, true);
    mpt__lora_hold(ctx, found, false);
    return ctx->base.status;
}

mpt_status mpt_lora_merge(mpt_module module) {
    return mpt__lora_end(module, "mpt_lora_merge", true);
}
mpt_status mpt_lora_remove(mpt_module module) {
    return mpt__lora_end(module, "mpt_lora_remove", false);
}
MPT__END_REGION

#endif

#endif
