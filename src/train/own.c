/* ----
 * train/own.c: optimizers that a user writes, as an update of one parameter made of ops.
 *
 * An update works on copies, in fp32 and from the pool, of the value or its master, the gradient
 * and the states. They go back once all parameters are done: a step is applied as a whole or not at
 * all. Groups, schedules, masters and checkpoints are those of every optimizer.
 * ---- */
#ifndef MPT__TRAIN_OWN_INCLUDED
#define MPT__TRAIN_OWN_INCLUDED

#include "train/update.c"

MPT__DEFAULTS(mpt_user_optimizer_config, config.lr = 1e-3;)

#ifdef MPTRAIN_NO_WATCH /* which small targets define */

mpt_optimizer mpt_user_optimizer(mpt_module module, const mpt_user_optimizer_config *config) {
    (void)config;
    mpt__watch_missing(module.context, "mpt_user_optimizer");
    return mpt__optimizer_handle(module.context, NULL);
}

#else

enum { MPT__OWN_NAME = 32, MPT__OWN_COPIES = 1 + MPT__MOMENTS };

/* The copies of a parameter: of its value, then of its states. */
typedef struct {
    mpt_tensor of[MPT__OWN_COPIES];
} mpt__own_copies;

typedef struct {
    mpt__own own;
    mpt_user_optimizer_config config;
    char names[MPT__MOMENTS][MPT__OWN_NAME];
    mpt__own_copies *copies; /* by item, while a step runs */
    int64_t copies_capacity;
    int64_t *steps; /* by item */
    int64_t steps_capacity;
} mpt__user_updates;

/* ==== An update ==== */

/* Where a value (k = 0) or a state of an item lies. */
typedef struct {
    uint32_t storage;
    mpt_dtype dtype;
    int64_t offset;
} mpt__own_place;

static mpt__own_place mpt__own_place_of(
    mpt_context *ctx, const mpt__optimizer *optimizer, const mpt__optim_item *item, int k) {
    const mpt__optim_state *state = &optimizer->states[item->state];
    int64_t offset = ctx->parameters[item->parameter].offset;
    uint32_t mirror = state->mirror[k == 0 ? (int)MPT__MASTER : k - 1];
    const mpt__own_place in_mirror = {mirror, MPT_F32, offset - state->first};
    const mpt__own_place value = {mpt__block_of(ctx, state)->values, MPT_F32, offset};
    return k == 0 && !mirror ? value : in_mirror;
}

/* The value of an item from its master, if it has one. */
static void mpt__own_round(
    mpt_context *ctx, const mpt__optimizer *optimizer, const mpt__optim_item *item) {
    const mpt__optim_state *state = &optimizer->states[item->state];
    const mpt__parameter *parameter = &ctx->parameters[item->parameter];
    const mpt__block *block = mpt__block_of(ctx, state);
    if (!state->mirror[MPT__MASTER]) return;
    mpt__copy_elements(ctx, state->mirror[MPT__MASTER], MPT_F32, parameter->offset - state->first,
        block->values, (mpt_dtype)block->dtype, parameter->offset, parameter->numel);
}

/* A copy of a parameter's elements at a place, in the open scope. */
static mpt_tensor mpt__own_copy(
    mpt_context *ctx, const mpt__parameter *parameter, const mpt__own_place *from) {
    mpt__tensor *copy =
        mpt__tensor_new(ctx, MPT_F32, &parameter->tensor->shape, MPT_MEMORY_WORKSPACE);
    if (!copy) return mpt__null(ctx);
    return mpt__tensor_done(ctx, copy,
        mpt__copy_elements(ctx, from->storage, from->dtype, from->offset, copy->storage, MPT_F32,
            copy->offset, parameter->numel));
}

/* What a user's update must leave as it found it. */
typedef struct {
    int scopes, no_grad, inference, autocast;
    int64_t kept; /* tensors of the scopes */
    uint8_t region;
    bool narrow, in_backward;
} mpt__own_frame;

static mpt__own_frame mpt__own_begin(mpt_context *ctx) {
    mpt__own_frame frame = {ctx->scope_depth, ctx->no_grad_depth, ctx->inference_depth,
        ctx->autocast_depth, ctx->scoped_count, ctx->autocast[1], ctx->narrow[1],
        ctx->in_backward};
    ctx->no_grad_depth++;
    ctx->autocast_depth = 0;
    ctx->forward_depth++;
    ctx->in_backward = ctx->in_update = true;
    return frame;
}

/* Closes what an update, or its failure, has left open. */
static void mpt__own_end(mpt_context *ctx, const mpt__own_frame *frame) {
    if (ctx->scope_depth > frame->scopes) {
        mpt__scope_drop(ctx, frame->kept);
        ctx->scope_depth = frame->scopes;
    }
    ctx->no_grad_depth = frame->no_grad, ctx->inference_depth = frame->inference;
    ctx->autocast_depth = frame->autocast;
    ctx->autocast[1] = frame->region, ctx->narrow[1] = frame->narrow;
    ctx->forward_depth--;
    ctx->in_backward = frame->in_backward, ctx->in_update = false;
}

/* Calls the user's update on the copies of an item. */
static mpt_status mpt__own_call(mpt_context *ctx, const mpt__user_updates *updates,
    const mpt__optimizer *optimizer, int64_t i, double lr) {
    const mpt__optim_item *item = &optimizer->items[i];
    const mpt__parameter *parameter = &ctx->parameters[item->parameter];
    const mpt__optim_state *state = &optimizer->states[item->state];
    const char *call = ctx->base.op, *path = parameter->path;
    const struct mpt__recording *recorder = ctx->recorder;
    const int depth = ctx->scope_depth, no_grad = ctx->no_grad_depth;
    const int inference = ctx->inference_depth;
    const mpt__own_place gradient = {
        mpt__block_of(ctx, state)->gradients, MPT_F32, parameter->offset};
    mpt_user_update update;
    mpt__zero(update);
    if (mpt__scope_open(ctx) != MPT_OK) return ctx->base.status;
    update.value = updates->copies[i].of[0];
    for (int k = 0; k < MPT__MOMENTS; k++)
        update.state[k] =
            k < updates->config.states ? updates->copies[i].of[1 + k] : mpt__null(ctx);
    update.gradient = mpt__own_copy(ctx, parameter, &gradient);
    update.step = updates->steps[i] + 1;
    update.lr = lr, update.weight_decay = optimizer->groups[item->group].weight_decay;
    update.group = (int)item->group;
    update.path = path;
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt_status status = updates->config.update(ctx, &update, updates->config.user);
    ctx->base.op = call; /* not the last one that the user's function made */
    ctx->no_grad_depth = no_grad, ctx->inference_depth = inference, ctx->autocast_depth = 0;
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (status != MPT_OK)
        return mpt__error_of(
            ctx, status, "the update of %s reported: %s", path, mpt_status_name(status));
    if (ctx->scope_depth != depth + 1 || ctx->recorder != recorder)
        return mpt__error(ctx, STATE,
            "the update of %s began or ended a scope, a step or a recording and left "
            "it so",
            path);
    for (int k = 0; k <= updates->config.states; k++)
        if (!mpt__live(ctx, updates->copies[i].of[k]))
            return mpt__error(
                ctx, STATE, "the update of %s released a tensor that it was given", path);
    return mpt__scope_close(ctx, 0);
}

/* Calls it on all that have a gradient, each in a scope within that of the copies. */
static mpt_status mpt__own_calls(
    mpt_context *ctx, const mpt__user_updates *updates, mpt__optimizer *optimizer) {
    MPT__PLAIN_FLOATS;
    double lr = 0;
    uint32_t group = UINT32_MAX;
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        if (!item->had_grad) continue;
        for (int k = 0; k <= updates->config.states; k++) {
            const mpt__own_place place = mpt__own_place_of(ctx, optimizer, item, k);
            updates->copies[i].of[k] =
                mpt__own_copy(ctx, &ctx->parameters[item->parameter], &place);
        }
        if (item->group != group)
            lr = mpt__schedule_lr(ctx, optimizer, &optimizer->groups[group = item->group]);
        if (!mpt__ok(ctx) || mpt__own_call(ctx, updates, optimizer, i, lr) != MPT_OK) break;
    }
    mpt__wait(ctx); /* bad indices of ops show now, before anything is changed */
    return ctx->base.status;
}

/* Puts the copies back and counts the step. */
static mpt_status mpt__own_apply(
    mpt_context *ctx, mpt__user_updates *updates, mpt__optimizer *optimizer, int64_t applied) {
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        if (!item->had_grad) continue;
        const mpt__parameter *parameter = &ctx->parameters[item->parameter];
        for (int k = 0; k <= updates->config.states; k++) {
            const mpt__own_place place = mpt__own_place_of(ctx, optimizer, item, k);
            const mpt__tensor *copy = mpt__live(ctx, updates->copies[i].of[k]);
            mpt__copy_elements(ctx, copy->storage, MPT_F32, copy->offset, place.storage,
                place.dtype, place.offset, parameter->numel);
        }
        mpt__own_round(ctx, optimizer, item);
        updates->steps[i]++;
    }
    mpt__upload(ctx, optimizer->counts, 0, updates->steps, optimizer->item_count * 8);
    mpt__scalar_set_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED], applied + 1);
    MPT__EACH_STATE(state, optimizer) { mpt__values_updated(ctx, optimizer, state, -1); }
    return ctx->base.status;
}

/* A step. Waits for the device, which alone knows of overflown gradients and bad targets or
   indices. */
static mpt_status mpt__own_update(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    mpt__user_updates *updates = (mpt__user_updates *)optimizer->own;
    if (mpt__is_capturing(ctx) || (ctx->recorder && !ctx->recorder->own))
        return mpt__error(ctx, UNSUPPORTED,
            "an optimizer of mpt_user_optimizer runs on the host: neither captured "
            "steps nor recordings can repeat it");
    int64_t applied = mpt__scalar_get_i(ctx, optimizer->slot[MPT__OPTIM_APPLIED]);
    if (!mpt__ok(ctx) || (found_slot && ctx->scalars[found_slot].i)) return ctx->base.status;
    int64_t count = optimizer->item_count;
    if (!mpt__room(ctx, updates->copies, updates->copies_capacity, count) ||
        !mpt__room(ctx, updates->steps, updates->steps_capacity, count))
        return ctx->base.status;
    mpt__download(ctx, updates->steps, optimizer->counts, 0, count * 8);
    mpt__materialise(ctx, optimizer);
    MPT__EACH_STATE(state, optimizer) { mpt__master_refresh(ctx, optimizer, state); }
    updates->own.running = true;
    const mpt__own_frame frame = mpt__own_begin(ctx);
    if (mpt__ok(ctx) && mpt__scope_open(ctx) == MPT_OK &&
        mpt__own_calls(ctx, updates, optimizer) == MPT_OK)
        mpt__own_apply(ctx, updates, optimizer, applied);
    mpt__own_end(ctx, &frame);
    updates->own.running = false;
    return ctx->base.status;
}

/* ==== Making ==== */

static void mpt__own_free(mpt_context *ctx, mpt__own *own) {
    mpt__user_updates *updates = (mpt__user_updates *)own;
    mpt__room_free(ctx, updates->copies, updates->copies_capacity);
    mpt__room_free(ctx, updates->steps, updates->steps_capacity);
}

/* A name of a state is a part of a name in checkpoints. */
static bool mpt__own_name_good(const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < length; i++)
        if (!((name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                (name[i] >= '0' && name[i] <= '9') || name[i] == '_'))
            return false;
    return length > 0 && length < MPT__OWN_NAME && strcmp(name, "master") != 0 &&
        strcmp(name, "step") != 0;
}

/* Names of states as the user gives them, else by their number. */
static bool mpt__own_names(mpt_context *ctx, mpt__user_updates *updates) {
    const mpt_user_optimizer_config *c = &updates->config;
    for (int k = 0; k < c->states; k++) {
        char *name = updates->names[k];
        const char *given = c->state_names[k];
        if (given && !mpt__own_name_good(given))
            return mpt__reject(ctx, ARGUMENT,
                "state_names[%d] = \"%s\"; expected 1 to %d letters, digits or "
                "underscores, and neither \"master\" nor \"step\"",
                k, given, (int)MPT__OWN_NAME - 1);
        if (given)
            mpt__format_text(name, MPT__OWN_NAME, "%s", given);
        else
            mpt__format_text(name, MPT__OWN_NAME, "state%d", k);
        for (int other = 0; other < k; other++)
            if (strcmp(updates->names[other], name) == 0)
                return mpt__reject(ctx, ARGUMENT, "two states are named \"%s\"", name);
        updates->own.rule.moment[k].name = name;
    }
    return true;
}

#define MPT__OWN_NONE \
    { NULL, MPT__ALWAYS }
#define MPT__OWN_STATE \
    { "state", MPT__ALWAYS }
#define MPT__OWN_RULE(a, b, c) \
    { \
        (mpt__kernel)0, MPT__FN_NONE, false, {a, b, c}, { \
            {NULL, 0, 0}, {NULL, 0, 0}, { NULL, 0, 0 } \
        } \
    }
static const mpt__rule mpt__own_rules[1 + MPT__MOMENTS] = {
    MPT__OWN_RULE(MPT__OWN_NONE, MPT__OWN_NONE, MPT__OWN_NONE),
    MPT__OWN_RULE(MPT__OWN_STATE, MPT__OWN_NONE, MPT__OWN_NONE),
    MPT__OWN_RULE(MPT__OWN_STATE, MPT__OWN_STATE, MPT__OWN_NONE),
    MPT__OWN_RULE(MPT__OWN_STATE, MPT__OWN_STATE, MPT__OWN_STATE)};

mpt_optimizer mpt_user_optimizer(mpt_module module, const mpt_user_optimizer_config *config) {
    static const char call[] = "mpt_user_optimizer";
    mpt_context *ctx = module.context;
    const mpt_user_optimizer_config c = config ? *config : mpt_user_optimizer_config_default();
    const mpt__plan plan = {
        c.lr, c.weight_decay, {0, 0, 0}, false, false, c.allow_shared, false, 0, 0};
    if (!c.update || c.states < 0 || c.states > MPT__MOMENTS) {
        mpt__misuse(ctx, call, ARGUMENT,
            "expected a config with an update and 0..%d states, got %s%d", (int)MPT__MOMENTS,
            c.update ? "" : "none and ", c.states);
        return mpt__optimizer_handle(ctx, NULL);
    }
    const mpt_optimizer made = mpt__optimizer_new(call, module, &mpt__own_rules[c.states], &plan);
    if (!made.slot) return made;
    mpt__optimizer *optimizer = mpt__optimizer_at(ctx, made);
    mpt__user_updates *updates = (mpt__user_updates *)mpt__host_new(ctx, sizeof *updates);
    if (updates) {
        optimizer->own = &updates->own;
        updates->own.bytes = sizeof *updates;
        updates->own.rule = *optimizer->rule;
        updates->own.update = mpt__own_update, updates->own.end = mpt__own_free;
        updates->config = c;
        if (mpt__own_names(ctx, updates)) {
            optimizer->rule = &updates->own.rule;
            return made;
        }
    }
    mpt__object_free(ctx, MPT__OPTIMIZER, made.slot);
    return mpt__optimizer_handle(ctx, NULL);
}

#endif /* MPTRAIN_NO_WATCH */

#endif
