/* ----
 * nn/hooks.c: functions of the user's behind a module's forward, and in backward before its own.
 *
 * A hooked layer runs by mpt__hooked_run, and so leaves the paths of those that nobody looks at. A
 * backward hook is an op that hands its input on as it is, behind the module.
 * ---- */
#ifndef MPT__NN_HOOKS_INCLUDED
#define MPT__NN_HOOKS_INCLUDED

#include "nn/query.c"

#ifdef MPTRAIN_NO_WATCH

MPT__BEGIN_ABSENT
mpt_status mpt_hook_forward(mpt_module module, mpt_forward_hook fn, void *user) {
    return mpt__watch_missing(module.context, "mpt_hook_forward");
}
mpt_status mpt_hook_backward(mpt_module module, mpt_backward_hook fn, void *user) {
    return mpt__watch_missing(module.context, "mpt_hook_backward");
}
mpt_forward_hook mpt_get_forward_hook(mpt_module module, void **user) {
    if (user) *user = NULL;
    return NULL; /* no module has one */
}
mpt_backward_hook mpt_get_backward_hook(mpt_module module, void **user) {
    if (user) *user = NULL;
    return NULL;
}
int mpt_module_count(mpt_module module) {
    mpt__watch_missing(module.context, "mpt_module_count");
    return -1;
}
mpt_module mpt_module_at(mpt_module module, int index, char *path, size_t path_size) {
    mpt__watch_missing(module.context, "mpt_module_at");
    return mpt__module_handle(module.context, NULL);
}
const char *mpt_module_kind(mpt_module module) {
    mpt__watch_missing(module.context, "mpt_module_kind");
    return "";
}
MPT__END_ABSENT

#else

/* Whether a hook may run: nothing calls it when a recording is repeated. */
static bool mpt__hook_runs(mpt_context *ctx, const mpt__module *module) {
    ctx->base.op = ctx->in_backward ? "mpt_backward" : "mpt_forward";
    if (!mpt__is_capturing(ctx) && (!ctx->recorder || ctx->recorder->own)) return true;
    return mpt__reject(ctx, UNSUPPORTED,
        "%s has a hook, which runs on the host: neither captured steps nor "
        "recordings can repeat it; take it off before",
        module->cls.name);
}

/* What a hook gave back, once it has returned. */
static mpt_status mpt__hook_status(
    mpt_context *ctx, const mpt__module *module, const char *kind, mpt_status status) {
    if (!mpt__ok(ctx) || status == MPT_OK) return ctx->base.status;
    return mpt__error_of(
        ctx, status, "%s hook of %s reported: %s", kind, module->cls.name, mpt_status_name(status));
}

/* ==== Backward ==== */

static mpt_status mpt__hook_op_forward(mpt_op_call *call, void *user) {
    (void)user;
    return mpt_op_set_output(call, 0, mpt_op_input(call, 0));
}

/* Which module it is of stands in the record: slot, generation, number of the output. */
enum { MPT__HOOK_SLOT = 1, MPT__HOOK_GENERATION, MPT__HOOK_OUTPUT };

static mpt_status mpt__hook_op_backward(mpt_op_call *call, void *user) {
    mpt_context *ctx = call->frame->context;
    const int64_t *at = call->frame->attributes->index;
    const mpt__object *row = &ctx->objects[MPT__MODULE].rows[at[MPT__HOOK_SLOT]];
    const mpt__module *module = (const mpt__module *)row->object;
    mpt_tensor gradient = mpt_op_output_grad(call, 0);
    const mpt__tensor *given = mpt__live(ctx, gradient);
    (void)user;
    if (!given) return ctx->base.status;
    if (!module || row->generation != (uint32_t)at[MPT__HOOK_GENERATION] || !module->hooks ||
        !module->hooks->backward)
        return mpt_op_set_input_grad(call, 0, gradient);
    if (!mpt__hook_runs(ctx, module)) return ctx->base.status;
    uint32_t storage = given->storage, version = ctx->storages[storage].version;
    mpt_status status = module->hooks->backward(mpt__module_handle(ctx, module),
        module->hooks->backward_user, (int)at[MPT__HOOK_OUTPUT], &gradient);
    ctx->base.op = "mpt_backward";
    if (mpt__hook_status(ctx, module, "backward", status) != MPT_OK) return ctx->base.status;
    if (ctx->storages[storage].version != version)
        return mpt__error(ctx, STATE,
            "the backward hook of %s changed in place the gradient that it got, "
            "which others may read; put another tensor into *gradient",
            module->cls.name);
    return mpt_op_set_input_grad(call, 0, gradient);
}

/* One op for all modules, since ops live as long as the context. */
static mpt_op mpt__hook_op(mpt_context *ctx) {
    static const mpt_op_class cls = {
        "hook", MPT_AUTOCAST_INPUT, mpt__hook_op_forward, mpt__hook_op_backward, 1, 1};
    for (int64_t i = 1; i < ctx->objects[MPT__USER_OP].count; i++) {
        const mpt__op *op = (const mpt__op *)mpt__object_slot(ctx, MPT__USER_OP, (uint32_t)i);
        if (op && op->cls.forward == cls.forward) return mpt__op_handle(ctx, op);
    }
    return mpt_op_register(ctx, &cls, NULL);
}

/* An output with the hook's op behind it, where backward will come. */
static mpt_status mpt__hook_output(
    mpt_context *ctx, const mpt__module *module, mpt_tensor *out, int i) {
    const mpt__tensor *made = mpt__live(ctx, out[i]);
    if (!made || !(made->flags & MPT__REQUIRES_GRAD) || ctx->no_grad_depth || ctx->inference_depth)
        return MPT_OK;
    mpt_tensor seen = mpt__null(ctx);
    mpt_status status = mpt_op_apply(mpt__hook_op(ctx), &out[i], 1, &seen, 1);
    ctx->base.op = "mpt_forward";
    if (status != MPT_OK) return status;
    out[i] = seen;
    mpt__record *record = mpt__live(ctx, seen)->record;
    if (!record) return MPT_OK; /* in backward, which runs its forward again */
    record->attributes.index[MPT__HOOK_SLOT] = module->id.slot;
    record->attributes.index[MPT__HOOK_GENERATION] = module->id.generation;
    record->attributes.index[MPT__HOOK_OUTPUT] = i;
    return MPT_OK;
}

/* ==== Forward ==== */

static mpt_status mpt__hook_call(mpt_context *ctx, mpt__module *module, const mpt_tensor *in,
    int n_in, mpt_tensor *out, int n_out) {
    MPT__PLAIN_FLOATS;
    const mpt__hooks *hooks = module->hooks;
    mpt__wait_no_more(ctx); /* a convolution that is to be fused, whose result would be gone */
    if (!mpt__hook_runs(ctx, module) || !mpt__user_forward_begin(ctx, module->cls.name))
        return ctx->base.status;
    mpt_status status =
        hooks->forward(mpt__module_handle(ctx, module), hooks->forward_user, in, n_in, out, n_out);
    ctx->forward_depth--;
    ctx->base.op = "mpt_forward";
    if (mpt__hook_status(ctx, module, "forward", status) != MPT_OK) return ctx->base.status;
    for (int i = 0; i < n_out; i++)
        if ((i == 0 || out[i].slot) && !mpt__at(ctx, out[i], "output behind a forward hook"))
            return ctx->base.status;
    return MPT_OK;
}

/* All behind a forward. A hook may take off itself, or the other one. */
static mpt_status mpt__hooks_call(mpt_context *ctx, mpt__module *module, const mpt_tensor *in,
    int n_in, mpt_tensor *out, int n_out) {
    mpt__module_begin(ctx, module); /* children have run since */
    if (module->hooks->forward && mpt__hook_call(ctx, module, in, n_in, out, n_out) != MPT_OK)
        return ctx->base.status;
    for (int i = 0; i < n_out && mpt__ok(ctx) && module->hooks && module->hooks->backward; i++)
        mpt__hook_output(ctx, module, out, i);
    return ctx->base.status;
}

/* `run` of a hooked layer that is not the user's. */
static mpt_tensor mpt__hooked_run(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu) {
    mpt__layer_run run = module->hooks->run;
    mpt__tensor *made = NULL;
    mpt_tensor in[2], out = mpt__null(ctx);
    in[0] = x, in[1] = residual;
    if (module->hooks->forward) mpt__wait_no_more(ctx); /* x, which a norm would take in its own */
    if (run)
        out = run(ctx, module, x, residual, relu);
    else if (mpt__layer_rows[module->layer].op)
        made = mpt__op_layer_forward(ctx, module, mpt__live(ctx, x), MPT_ACTIVATION_NONE);
    else if (module->layer == MPT__LAYER_sequential)
        made = mpt__sequential_forward(ctx, module, mpt__live(ctx, x));
    else
        out = mpt__layer_plain(ctx, module, x);
    if (made) out = mpt__handle(ctx, made);
    if (out.slot && module->hooks) mpt__hooks_call(ctx, module, in, residual.slot ? 2 : 1, &out, 1);
    return mpt__ok(ctx) ? out : mpt__null(ctx);
}

/* ==== Putting on, taking off ==== */

/* The module of such a call, with a place for hooks where one is to be put on; NULL on error. */
static mpt__module *mpt__hooks_begin(mpt_module handle, const char *call, bool on) {
    mpt_context *ctx = handle.context;
    mpt__module *module = mpt__module_enter(handle, call);
    if (!module || module->hooks || !on) return module;
    if (module->layer == MPT__LAYER_list) {
        mpt__error(ctx, ARGUMENT, "a list has no forward of its own; hook its children");
        return NULL;
    }
    mpt__hooks *hooks = (mpt__hooks *)mpt__host_new(ctx, sizeof *hooks);
    if (!hooks) return NULL;
    mpt__zero(*hooks);
    hooks->call = mpt__hooks_call;
    hooks->run = module->run;
    if (!module->cls.forward) module->run = mpt__hooked_run;
    module->hooks = hooks;
    return module;
}

/* Behind a change: no hook is left, or tensors that pass through the tree may be put by. */
static mpt_status mpt__hooks_end(mpt_context *ctx, mpt__module *module) {
    mpt__hooks *hooks = module->hooks;
    if (!hooks->forward && !hooks->backward) {
        module->run = hooks->run;
        module->hooks = NULL;
        mpt__host_free(ctx, hooks, sizeof *hooks);
    }
    mpt__module *root = mpt__module_root(ctx, module);
    if (!root->frozen) return MPT_OK;
    root->watched = false;
    mpt__walk walk;
    for (mpt__module *m = mpt__walk_begin(&walk, ctx, root); m; m = mpt__walk_next(&walk))
        root->watched |= mpt__looked_at(m);
    return ctx->base.status;
}

mpt_status mpt_hook_forward(mpt_module module, mpt_forward_hook fn, void *user) {
    mpt__module *found = mpt__hooks_begin(module, "mpt_hook_forward", fn != NULL);
    if (!found || !found->hooks) return mpt__status_of(module.context);
    found->hooks->forward = fn;
    found->hooks->forward_user = user;
    return mpt__hooks_end(module.context, found);
}

mpt_status mpt_hook_backward(mpt_module module, mpt_backward_hook fn, void *user) {
    mpt__module *found = mpt__hooks_begin(module, "mpt_hook_backward", fn != NULL);
    if (!found || !found->hooks) return mpt__status_of(module.context);
    found->hooks->backward = fn;
    found->hooks->backward_user = user;
    return mpt__hooks_end(module.context, found);
}

mpt_forward_hook mpt_get_forward_hook(mpt_module module, void **user) {
    const mpt__module *found = mpt__module_enter(module, "mpt_get_forward_hook");
    const mpt__hooks *hooks = found ? found->hooks : NULL;
    if (user) *user = hooks ? hooks->forward_user : NULL;
    return hooks ? hooks->forward : NULL;
}

mpt_backward_hook mpt_get_backward_hook(mpt_module module, void **user) {
    const mpt__module *found = mpt__module_enter(module, "mpt_get_backward_hook");
    const mpt__hooks *hooks = found ? found->hooks : NULL;
    if (user) *user = hooks ? hooks->backward_user : NULL;
    return hooks ? hooks->backward : NULL;
}

/* ==== Listing ==== */

int mpt_module_count(mpt_module module) {
    mpt__module *found = mpt__module_enter(module, "mpt_module_count");
    if (!found) return -1;
    int count = 0;
    mpt__walk walk;
    found = mpt__walk_begin(&walk, module.context, found);
    for (; found; found = mpt__walk_next(&walk)) count++;
    return mpt__ok(module.context) ? count : -1;
}

mpt_module mpt_module_at(mpt_module module, int index, char *path, size_t path_size) {
    mpt_context *ctx = module.context;
    mpt__text prose = mpt__text_make(path, path_size);
    mpt__module *found = mpt__module_enter(module, "mpt_module_at");
    if (!found) return mpt__module_handle(ctx, NULL);
    int count = 0;
    mpt__walk walk;
    found = mpt__walk_begin(&walk, ctx, found);
    for (; found; found = mpt__walk_next(&walk), count++) {
        if (count != index) continue;
        mpt__write_text(&prose, "%s", walk.path);
        return mpt__module_handle(ctx, found);
    }
    mpt__error(ctx, ARGUMENT, "module %d: the tree has %d of them", index, count);
    return mpt__module_handle(ctx, NULL);
}

const char *mpt_module_kind(mpt_module module) {
    const mpt__module *found = mpt__module_enter(module, "mpt_module_kind");
    return found ? found->cls.name : "";
}

#endif /* MPTRAIN_NO_WATCH */

#endif
