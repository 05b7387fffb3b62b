/* ----
 * train/muon.c: Muon: matrices move by orthogonalised momentum, other parameters by AdamW.
 *
 * A step is launches alone. Momentum is K_SGD's, whose decay of 1 makes it an interpolation: what
 * overflowed, or fails, never gets there. The mirror that AdamW has for second moments holds a
 * matrix that is being orthogonalised.
 * ---- */
#ifndef MPT__TRAIN_MUON_INCLUDED
#define MPT__TRAIN_MUON_INCLUDED

#include "train/lbfgs.c"

#ifdef MPTRAIN_NO_WATCH

MPT__DEFAULTS(mpt_muon_config, )

mpt_optimizer mpt_muon(mpt_module module, const mpt_muon_config *config) {
    (void)config;
    mpt__watch_missing(module.context, "mpt_muon");
    return mpt__optimizer_handle(module.context, NULL);
}

#else

MPT__DEFAULTS(mpt_muon_config, {
    config.lr = 1e-3, config.weight_decay = 0.1;
    config.momentum = 0.95, config.nesterov = true;
    config.ns_steps = 5, config.eps = 1e-7;
    config.adamw = mpt_adamw_config_default();
})

/* Of a group: 1 - momentum on the device, and the momentum it was made of. No slot: AdamW's. */
typedef struct {
    uint16_t slot;
    double momentum;
} mpt__muon_group;

typedef struct {
    mpt__own own;
    mpt_muon_config config;
    mpt__muon_group *groups;
    int64_t group_capacity;
} mpt__muon;

/* ==== Orthogonalising ==== */

enum { MPT__NS_STEPS = 20 }; /* more than that would leave fp32 */
/* a x + b x^3 + c x^5 of https://kellerjordan.github.io/posts/muon: its slope at 0 is the largest
   that keeps singular values between some 0.7 and 1.2. */
static const double mpt__ns_a = 3.4445, mpt__ns_b = -4.7750, mpt__ns_c = 2.0315;

static mpt__tensor mpt__muon_matrix(uint32_t storage, int64_t offset, int64_t rows, int64_t n) {
    mpt__tensor view;
    mpt__zero(view);
    view.storage = storage, view.dtype = MPT_F32, view.offset = offset;
    view.shape = MPT_SHAPE(rows, n);
    view.stride[0] = n, view.stride[1] = 1;
    return view;
}

/* out = factor a b + bias?. */
static void mpt__muon_product(mpt_context *ctx, bool bf16, const mpt__tensor *a,
    const mpt__tensor *b, const mpt__tensor *bias, const mpt__tensor *out, double factor) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_GEMM);
    launch->imm[0] = factor;
    launch->index[0] = ctx->tf32;
    if (bf16) launch->compute_dtype = MPT_BF16;
    mpt__reads(launch, 0, a);
    mpt__reads(launch, 1, b);
    if (bias) mpt__reads(launch, 2, bias);
    mpt__writes(launch, 3, out);
    mpt__submit(ctx, launch);
}

static void mpt__muon_each(mpt_context *ctx, unsigned function, const mpt__tensor *in, double c,
    const mpt__tensor *out) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_UNARY);
    launch->function = (uint8_t)function;
    launch->imm[0] = c, launch->imm[1] = (double)INFINITY;
    mpt__reads(launch, 0, in);
    mpt__writes(launch, 1, out);
    mpt__submit(ctx, launch);
}

/* x = u over its 2-norm, which is eps at least. */
static void mpt__muon_normalise(mpt_context *ctx, const mpt__tensor *u, const mpt__tensor *x,
    const mpt__tensor *norm, double eps) {
    mpt__launch_binary(ctx, MPT__FN_MUL, u, u, x, MPT__WRITE);
    mpt__launch_reduce(ctx, MPT__FN_SUM, x, norm, MPT__WRITE);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SQUARES);
    launch->imm[0] = 1, launch->index[0] = true;
    mpt__reads(launch, 0, u);
    mpt__operand_of(launch, 1, norm, MPT__READ_WRITE);
    mpt__submit(ctx, launch);
    mpt__muon_each(ctx, MPT__FN_CLAMP, norm, eps, norm);
    mpt__launch_binary(ctx, MPT__FN_DIV, u, norm, x, MPT__WRITE);
}

/* Elements of workspace: x, its Gram matrix, what is made of that, and a norm; each begins at a
   multiple of 256 bytes. */
static int64_t mpt__muon_part(int64_t count) { return (count + 63) / 64 * 64; }
static int64_t mpt__muon_room(const mpt_shape *shape) {
    const int64_t m = shape->dim[0], n = shape->dim[1], least = m < n ? m : n;
    return mpt__muon_part(m * n) + 2 * mpt__muon_part(least * least) + 64;
}

/* u = factor times u orthogonalised. x and u here are x and u over the power of a by which the
   iterations so far would have multiplied them: each is then three products. */
static void mpt__muon_orthogonalise(mpt_context *ctx, const mpt_muon_config *c,
    const mpt__tensor *u, uint32_t workspace, double factor) {
    const int64_t m = u->shape.dim[0], n = u->shape.dim[1], least = m < n ? m : n;
    const int64_t square = mpt__muon_part(least * least);
    int64_t at = mpt__muon_part(m * n);
    const mpt__tensor x = mpt__muon_matrix(workspace, 0, m, n);
    const mpt__tensor gram = mpt__muon_matrix(workspace, at, least, least);
    const mpt__tensor sum = mpt__muon_matrix(workspace, at += square, least, least);
    const mpt__tensor norm = mpt__muon_matrix(workspace, at + square, 1, 1);
    const mpt__tensor *from = &x, *to = u;
    double scale = 1;
    mpt__muon_normalise(ctx, u, &x, &norm, c->eps);
    for (int i = 0; i < c->ns_steps; i++) {
        const mpt__tensor turned = mpt__transposed_view(from), *other = from;
        mpt__muon_product(ctx, c->bf16, m <= n ? from : &turned, m <= n ? &turned : from, NULL,
            &gram, scale * scale);
        mpt__muon_product(ctx, c->bf16, &gram, &gram, &gram, &sum, mpt__ns_c / mpt__ns_b);
        mpt__muon_product(ctx, c->bf16, m <= n ? &sum : from, m <= n ? from : &sum, from, to,
            mpt__ns_b / mpt__ns_a);
        scale *= mpt__ns_a;
        from = to, to = other;
    }
    mpt__muon_each(ctx, MPT__FN_MUL_SCALAR, from, scale * factor, u);
}

/* ==== A step ==== */

/* The rest of a launch of K_SGD over segments [row, row + rows). */
static void mpt__muon_sgd(mpt_context *ctx, mpt__launch *launch, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, int64_t row, int64_t rows, uint32_t gradient, int64_t offset) {
    mpt__operand_on(launch, 2, gradient, MPT_F32, offset, state->count, MPT__READ);
    mpt__segments_operand(launch, 4, optimizer, row, rows);
    mpt__operand_on(
        launch, 5, optimizer->counts, MPT_I64, 0, optimizer->item_count, MPT__READ_WRITE);
    mpt__submit(ctx, launch);
}

/* Mirror k, of matrices, += (1 - momentum) (gradient - it). */
static void mpt__muon_approach(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, int k, int64_t row, int64_t rows, uint16_t found_slot) {
    const mpt__muon *of = (const mpt__muon *)optimizer->own;
    const mpt__block *block = mpt__block_of(ctx, state);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SGD);
    launch->slot[0] = of->groups[mpt__row_groups(optimizer)[row]].slot;
    launch->slot[1] =
        block->multiplier_slot ? optimizer->slot[MPT__OPTIM_MULTIPLIER] : (uint16_t)MPT__SLOT_ONE;
    launch->slot[2] = found_slot;
    launch->imm[2] = 1;
    launch->index[2] = !optimizer->maximize;
    mpt__operand_on(
        launch, 0, state->mirror[k], MPT_F32, 0, state->count, MPT__READ_WRITE);
    mpt__muon_sgd(ctx, launch, optimizer, state, row, rows, block->gradients, state->first);
}

/* The values of these segments move by what stands in mirror 1. */
static void mpt__muon_move(mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_state *state, int form, int64_t row, int64_t rows, uint16_t found_slot) {
    const mpt__group *group = &optimizer->groups[mpt__row_groups(optimizer)[row]];
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SGD);
    mpt__values_operands(launch, mpt__block_of(ctx, state), state, form);
    if (state->mirror[MPT__MASTER])
        mpt__operand_on(launch, 1, state->mirror[MPT__MASTER], MPT_F32, 0, state->count,
            MPT__READ_WRITE);
    launch->slot[1] = MPT__SLOT_ONE;
    launch->slot[2] = found_slot;
    mpt__schedule_operand(launch, optimizer, group);
    launch->imm[2] = group->weight_decay;
    launch->index[1] = row + rows == optimizer->row_count ? 2 : 1;
    launch->index[3] = optimizer->stochastic;
    launch->rng.seed = ctx->config.seed;
    launch->rng.stream = state->stream;
    mpt__muon_sgd(ctx, launch, optimizer, state, row, rows, state->mirror[1], 0);
}

/* By how much more a matrix moves than by the rate times the orthogonal. */
static double mpt__muon_ratio(const mpt_muon_config *c, const mpt_shape *shape) {
    const double m = (double)shape->dim[0], n = (double)shape->dim[1];
    if (c->adjust == MPT_MUON_MATCH_RMS_ADAMW) return 0.2 * sqrt(m > n ? m : n);
    return m > n ? sqrt(m / n) : 1;
}

/* The matrices of one group. */
static void mpt__muon_rows(mpt_context *ctx, mpt__optimizer *optimizer, mpt__optim_state *state,
    int form, int64_t row, int64_t rows, uint16_t found_slot) {
    mpt__muon *of = (mpt__muon *)optimizer->own;
    const int64_t number = mpt__row_groups(optimizer)[row];
    const double momentum = optimizer->groups[number].setting[0];
    mpt__block *block = mpt__block_of(ctx, state);
    int64_t room = 0;
    if (block->multiplier_slot != optimizer->slot[MPT__OPTIM_MULTIPLIER])
        mpt__materialise_gradients(ctx, block);
    if (momentum != of->groups[number].momentum)
        mpt__scalar_set_f(ctx, of->groups[number].slot, 1 - momentum);
    of->groups[number].momentum = momentum;
    mpt__muon_approach(ctx, optimizer, state, 0, row, rows, found_slot);
    for (int64_t r = row; r < row + rows; r++) {
        const int64_t *segment = &optimizer->rows[r * MPT__SEGMENT_FIELDS];
        mpt__copy_elements(ctx, state->mirror[0], MPT_F32, segment[MPT__SEGMENT_OFFSET],
            state->mirror[1], MPT_F32, segment[MPT__SEGMENT_OFFSET], segment[MPT__SEGMENT_COUNT]);
    }
    if (of->config.nesterov)
        mpt__muon_approach(ctx, optimizer, state, 1, row, rows, found_slot);
    for (int pass = 0; pass < 2 && mpt__ok(ctx); pass++) {
        const uint32_t workspace = pass == 0 ? 0
            : mpt__storage_new(ctx, room * 4, MPT_MEMORY_WORKSPACE, MPT__FROM_POOL, false);
        for (int64_t i = 0; i < optimizer->item_count && mpt__ok(ctx); i++) {
            const mpt__optim_item *item = &optimizer->items[i];
            const mpt__parameter *parameter = &ctx->parameters[item->parameter];
            const mpt_shape *shape = &parameter->tensor->shape;
            if (!item->had_grad || item->group != number ||
                state != &optimizer->states[item->state])
                continue;
            if (pass == 0 && room < mpt__muon_room(shape)) room = mpt__muon_room(shape);
            if (pass == 0) continue;
            const mpt__tensor u = mpt__muon_matrix(state->mirror[1],
                parameter->offset - state->first, shape->dim[0], shape->dim[1]);
            mpt__muon_orthogonalise(
                ctx, &of->config, &u, workspace, mpt__muon_ratio(&of->config, shape));
        }
        if (workspace) mpt__storage_release(ctx, workspace);
    }
    mpt__muon_move(ctx, optimizer, state, form, row, rows, found_slot);
}

static mpt_status mpt__muon_update(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    MPT__PLAIN_FLOATS;
    const mpt__muon *of = (const mpt__muon *)optimizer->own;
    const int64_t *group = mpt__row_groups(optimizer);
    MPT__EACH_STATE(state, optimizer) {
        int64_t row = state->row, end = row + state->rows, rows;
        int form = mpt__form_in_use(ctx, mpt__block_of(ctx, state));
        mpt__master_refresh(ctx, optimizer, state);
        for (; row < end; row += rows) {
            for (rows = 1; row + rows < end && group[row + rows] == group[row];) rows++;
            if (of->groups[group[row]].slot)
                mpt__muon_rows(ctx, optimizer, state, form, row, rows, found_slot);
            else
                mpt__launch_update(ctx, optimizer, state, form, row, rows, found_slot);
        }
        mpt__values_updated(ctx, optimizer, state, form);
    }
    return ctx->base.status;
}

/* ==== Making ==== */

static const mpt__rule mpt__muon_rule = {MPT__K_SGD, MPT__FN_NONE, false,
    {{"momentum_buffer", MPT__ALWAYS}, {NULL, MPT__ALWAYS}, {NULL, MPT__ALWAYS}},
    {{"momentum", 0, 1}, {NULL, 0, 0}, {NULL, 0, 0}}};

static const mpt__rule *mpt__muon_rule_of(const mpt__own *own, int64_t group) {
    return ((const mpt__muon *)own)->groups[group].slot ? &mpt__muon_rule : &own->rule;
}

static void mpt__muon_free(mpt_context *ctx, mpt__own *own) {
    mpt__muon *of = (mpt__muon *)own;
    for (int64_t i = 0; i < of->group_capacity; i++) mpt__scalar_free(ctx, of->groups[i].slot);
    mpt__room_free(ctx, of->groups, of->group_capacity);
}

/* Makes a group one of matrices, or one for AdamW. */
static mpt_status mpt__muon_group_set(
    mpt_context *ctx, mpt__optimizer *optimizer, int64_t group, bool matrices) {
    mpt__muon *of = (mpt__muon *)optimizer->own;
    if (!mpt__room(ctx, of->groups, of->group_capacity, group + 1)) return ctx->base.status;
    mpt__scalar_free(ctx, of->groups[group].slot);
    of->groups[group].slot = 0;
    if (!matrices) return MPT_OK;
    of->groups[group].momentum = of->config.momentum;
    of->groups[group].slot = mpt__scalar_new_f(ctx, 1 - of->config.momentum);
    memset(optimizer->groups[group].setting, 0, sizeof optimizer->groups[group].setting);
    optimizer->groups[group].setting[0] = of->config.momentum;
    return ctx->base.status;
}

/* Whether Muon takes a parameter that nothing names. A table of an embedding has few rows in a
   step: its gradient is no map of one space to another. */
static bool mpt__muon_takes(mpt_context *ctx, const mpt__parameter *parameter) {
#ifndef MPTRAIN_NO_ATTENTION
    if (mpt__module_slot(ctx, parameter->module)->layer == MPT__LAYER_embedding) return false;
#else
    (void)ctx;
#endif
    return parameter->tensor->shape.rank == 2;
}

/* What mpt_optimizer_add moves stays with whom it was; a group is of one kind. */
static mpt_status mpt__muon_admit(mpt_context *ctx, mpt__optimizer *optimizer, mpt_module module,
    const char *path, int64_t group) {
    const mpt__muon *of = (const mpt__muon *)optimizer->own;
    const char *first[2] = {NULL, NULL};
    const int64_t all = mpt__module_parameters(ctx, module, path, NULL, 0);
    if (all <= 0) return ctx->base.status;
    uint32_t *list = (uint32_t *)mpt__host_new(ctx, (size_t)all * sizeof *list);
    if (!list) return ctx->base.status;
    mpt__module_parameters(ctx, module, path, list, all);
    const int64_t count = path ? all : mpt__trained_parameters(ctx, list, all);
    for (int64_t i = 0; i < count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[list[i]];
        const mpt__optim_item *item = mpt__item_of(optimizer, list[i]);
        const bool takes =
            item ? of->groups[item->group].slot != 0 : mpt__muon_takes(ctx, parameter);
        if (!first[takes]) first[takes] = parameter->path;
    }
    mpt__host_free(ctx, list, (size_t)all * sizeof *list);
    if (first[0] && first[1])
        return mpt__error(ctx, ARGUMENT,
            "Muon updates %s, but AdamW %s; give each kind a group of its own: name the parameters",
            first[1], first[0]);
    return mpt__muon_group_set(ctx, optimizer, group, first[1] != NULL);
}

/* Whether the name of length n is a parameter's, or that of a module above it. */
static bool mpt__muon_named(const char *path, const char *name, size_t n) {
    return strncmp(path, name, n) == 0 && (path[n] == '.' || path[n] == 0);
}

/* Gives group 1 what Muon does not take, and what the config names. */
static bool mpt__muon_divide(mpt_context *ctx, mpt__optimizer *optimizer, const char *names) {
    const int64_t count = optimizer->item_count;
    int64_t others = 0;
    for (int64_t i = 0; i < count; i++) {
        mpt__optim_item *item = &optimizer->items[i];
        item->group = !mpt__muon_takes(ctx, &ctx->parameters[item->parameter]);
    }
    while (names && *names) {
        names += strspn(names, ", ");
        const size_t n = strcspn(names, ", ");
        bool found = n == 0;
        for (int64_t i = 0; i < count && n > 0; i++) {
            mpt__optim_item *item = &optimizer->items[i];
            if (!mpt__muon_named(ctx->parameters[item->parameter].path, names, n)) continue;
            item->group = 1;
            found = true;
        }
        if (!found)
            return mpt__reject(ctx, ARGUMENT,
                "adamw_names: \"%s\" begins with no parameter and no module that has some; "
                "names are paths, \"0.weight\" or \"0\", with commas between",
                names);
        names += n;
    }
    for (int64_t i = 0; i < count; i++) others += optimizer->items[i].group;
    if (others < count) return true;
    return mpt__reject(ctx, ARGUMENT,
        "none of the %lld parameters is a matrix for Muon; call mpt_adamw instead", count);
}

static bool mpt__muon_check(mpt_context *ctx, const mpt_muon_config *c) {
    if (c->ns_steps < 1 || c->ns_steps > MPT__NS_STEPS)
        return mpt__reject(ctx, ARGUMENT, "ns_steps = %d; expected 1 to %d", c->ns_steps,
            (int)MPT__NS_STEPS);
    if (c->adjust != MPT_MUON_ORIGINAL && c->adjust != MPT_MUON_MATCH_RMS_ADAMW)
        return mpt__reject(ctx, ARGUMENT, "adjust = %d; expected one of mpt_muon_adjust",
            (int)c->adjust);
    const mpt_adamw_config *o = &c->adamw;
    if (o->amsgrad || o->maximize || o->allow_shared || o->stochastic_rounding)
        return mpt__reject(ctx, ARGUMENT, "adamw.%s is set; %s",
            o->amsgrad ? "amsgrad" : o->maximize ? "maximize"
                : o->allow_shared ? "allow_shared" : "stochastic_rounding",
            o->amsgrad ? "the AdamW of Muon has none" : "set that of mpt_muon_config");
    return mpt__check_number(ctx, "momentum", c->momentum, 0, 1) &&
        mpt__check_number(ctx, "eps", c->eps, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "adamw.lr", o->lr, 0, MPT__NO_LIMIT) &&
        mpt__check_number(ctx, "adamw.weight_decay", o->weight_decay, 0, MPT__NO_LIMIT);
}

mpt_optimizer mpt_muon(mpt_module module, const mpt_muon_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = module.context;
    const mpt_muon_config c = config ? *config : mpt_muon_config_default();
    const mpt__plan plan = {c.lr, c.weight_decay, {c.adamw.beta1, c.adamw.beta2, c.adamw.eps},
        true, c.maximize, c.allow_shared, c.stochastic_rounding, 0, 0};
    const mpt_optimizer made = mpt__optimizer_new("mpt_muon", module, &mpt__adam_rule, &plan);
    if (!made.slot) return made;
    mpt__optimizer *optimizer = mpt__optimizer_at(ctx, made);
    mpt__muon *of =
        mpt__muon_check(ctx, &c) ? (mpt__muon *)mpt__host_new(ctx, sizeof *of) : NULL;
    if (of) {
        optimizer->own = &of->own;
        of->own.bytes = sizeof *of;
        of->own.rule = mpt__adam_rule, of->own.rule.cycles = false;
        optimizer->rule = &of->own.rule;
        of->own.update = mpt__muon_update, of->own.end = mpt__muon_free;
        of->own.rule_of = mpt__muon_rule_of, of->own.admit = mpt__muon_admit;
        of->config = c;
        of->config.adamw_names = NULL; /* the caller's */
        if (mpt__muon_divide(ctx, optimizer, c.adamw_names) &&
            mpt__group_new(ctx, optimizer, c.adamw.lr, c.adamw.weight_decay) == 1 &&
            mpt__muon_group_set(ctx, optimizer, 1, false) == MPT_OK &&
            mpt__muon_group_set(ctx, optimizer, 0, true) == MPT_OK)
            return made;
    }
    mpt__object_free(ctx, MPT__OPTIMIZER, made.slot);
    return mpt__optimizer_handle(ctx, NULL);
}

#endif /* MPTRAIN_NO_WATCH */

#endif
