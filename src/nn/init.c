/* ----
 * nn/init.c: first values of parameters.
 *
 * Element i of a parameter depends on (seed, root, path, i) alone and is computed by portable code:
 * the same bits on every compiler, instruction set and device.
 * ---- */
#ifndef MPT__NN_INIT_INCLUDED
#define MPT__NN_INIT_INCLUDED

#include "nn/layers.c"

mpt_init mpt_init_make(mpt_init_kind kind, double a, double b) {
    mpt_init init;
    init.kind = kind, init.a = a, init.b = b;
    return init;
}

static bool mpt__check_init(mpt_context *ctx, mpt_init init) {
    if (init.kind < MPT_INIT_DEFAULT || init.kind > MPT_INIT_KAIMING_NORMAL)
        return mpt__reject(ctx, ARGUMENT, "init kind %d is none of mpt_init_kind", (int)init.kind);
    if (!mpt__f64_is_finite(init.a) || !mpt__f64_is_finite(init.b))
        return mpt__reject(
            ctx, ARGUMENT, "init parameters %g and %g must be finite", init.a, init.b);
    return true;
}

/* What is really drawn: uniform in [*a, *b), normal of mean *a and deviation *b, or (FN_NONE) the
   constant *a. Fans as torch.nn.init counts them: dimension 0 is out, 1 is in, the rest a receptive
   field. */
static mpt__function mpt__resolve_init(const mpt__module_parameter *row, double *a, double *b) {
    mpt_init init = row->init;
    const mpt_shape *shape = &row->shape;
    double field = 1.0, deviation = 0.0;
    for (int i = 2; i < shape->rank; i++) field *= (double)shape->dim[i];
    double fan_in = shape->rank > 1 ? (double)shape->dim[1] * field : 1.0;
    double fan_out = shape->rank > 0 ? (double)shape->dim[0] * field : 1.0;
    double layer = row->fan_in > 0 ? (double)row->fan_in : shape->rank > 1 ? fan_in : 0.0;
    bool xavier = init.kind == MPT_INIT_XAVIER_UNIFORM || init.kind == MPT_INIT_XAVIER_NORMAL;
    *a = init.a, *b = init.b;
    switch (init.kind) {
    case MPT_INIT_ZEROS:
    case MPT_INIT_ONES:
        *a = init.kind == MPT_INIT_ONES;
        return MPT__FN_NONE;
    case MPT_INIT_CONSTANT:
        return MPT__FN_NONE;
    case MPT_INIT_UNIFORM:
        return MPT__FN_UNIFORM;
    case MPT_INIT_NORMAL:
        return MPT__FN_NORMAL;
    case MPT_INIT_DEFAULT:
        *b = layer > 0 ? 1.0 / sqrt(layer) : 0.0; /* kaiming_uniform with a = sqrt(5) */
        break;
    default:
        if (xavier && fan_in + fan_out > 0) deviation = init.a * sqrt(2.0 / (fan_in + fan_out));
        if (!xavier && fan_in > 0) deviation = init.a / sqrt(fan_in);
        *a = 0.0, *b = deviation;
        if (init.kind == MPT_INIT_XAVIER_NORMAL || init.kind == MPT_INIT_KAIMING_NORMAL)
            return MPT__FN_NORMAL;
        *b = deviation * sqrt(3.0);
        break;
    }
    *a = -*b;
    return MPT__FN_UNIFORM;
}

/* Of [low, high) what the parameter's dtype would round out of it becomes its number next to the
   bound within; where it has none there, that below `high`. */
static void mpt__draw_uniform(
    mpt__rng_key key, uint8_t dtype, size_t n, float low, float high, float *values) {
    mpt__random_uniform(key, 0, n, low, high, values);
    if (dtype == MPT_F32 || !(low < high)) return;
    const float most = mpt__number_below(dtype, high, false);
    const float least = -mpt__number_below(dtype, -low, true);
    for (size_t i = 0; i < n; i++) {
        if (values[i] < least) values[i] = least;
        if (values[i] > most) values[i] = most;
    }
}

/* A parameter's first values, for storage of `dtype`. */
static void mpt__drawn_values(
    mpt_context *ctx, const mpt__module *module, int64_t i, uint8_t dtype, float *values) {
    const mpt__module_parameter *row = &module->parameters[i];
    const size_t count = (size_t)ctx->parameters[row->parameter - 1].numel;
    double a, b;
    mpt__function function = mpt__resolve_init(row, &a, &b);
    mpt__rng_key key;
    key.seed = ctx->config.seed;
    key.stream = mpt__hash_bytes(module->path_hash, row->name, strlen(row->name));
    key.call = 0;
    if (function == MPT__FN_UNIFORM)
        mpt__draw_uniform(key, dtype, count, (float)a, (float)b, values);
    else if (function == MPT__FN_NORMAL)
        mpt__random_normal(key, 0, count, (float)a, (float)b, values);
    else
        for (size_t k = 0; k < count; k++) values[k] = (float)a;
#ifndef MPTRAIN_NO_ATTENTION
    if (module->layer == MPT__LAYER_embedding && module->attributes.index[0] >= 0) {
        int64_t width = row->shape.dim[1];
        memset(values + module->attributes.index[0] * width, 0, (size_t)width * sizeof(float));
    }
#endif
}

/* Whether a parameter holds what was drawn for it, which `values` has, and nothing since. */
static bool mpt__is_as_drawn(
    mpt_context *ctx, mpt__tensor *tensor, const float *values, float *room, size_t count) {
    if (mpt__read_as(ctx, tensor, MPT_F32, room) != MPT_OK) return false;
    for (size_t k = 0; k < count; k++)
        if ((mpt__real)room[k] != mpt__as_stored(tensor->dtype, (mpt__real)values[k])) return false;
    return true;
}

/* First values for a parameter. One that moves to another dtype, MPT_DTYPE_NONE for none, gets what
   stays within its range there, if it still holds its first ones. */
static mpt_status mpt__draw_parameter(
    mpt_context *ctx, const mpt__module *module, int64_t i, uint8_t dtype) {
    MPT__PLAIN_FLOATS;
    const mpt__module_parameter *row = &module->parameters[i];
    const mpt__parameter *parameter = &ctx->parameters[row->parameter - 1];
    const bool moves = dtype != MPT_DTYPE_NONE; /* room for what it holds, too */
    const size_t count = (size_t)parameter->numel, bytes = (moves + 1u) * count * sizeof(float);
    mpt__tensor *tensor = parameter->tensor;
    double a, b;
    if (count == 0 || (moves && mpt__resolve_init(row, &a, &b) != MPT__FN_UNIFORM)) return MPT_OK;
    if (mpt__is_dry(&ctx->base)) { /* what it would take for a moment */
        mpt__account(&ctx->base, MPT_MEMORY_HOST, (int64_t)bytes);
        mpt__account_less(&ctx->base, MPT_MEMORY_HOST, (int64_t)bytes);
        ctx->base.memory.allocations++, ctx->base.memory.releases++;
        return MPT_OK;
    }
    float *values = (float *)mpt__host_new(ctx, bytes);
    if (!values) return ctx->base.status;
    mpt__drawn_values(ctx, module, i, tensor->dtype, values);
    if (!moves || mpt__is_as_drawn(ctx, tensor, values, values + count, count)) {
        if (moves) mpt__drawn_values(ctx, module, i, dtype, values);
        mpt__write_f32(ctx, tensor, values);
    }
    mpt__host_free(ctx, values, bytes);
    return ctx->base.status;
}

#endif
