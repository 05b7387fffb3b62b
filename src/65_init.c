/* ---------------------------------------------------------------------------------------------
 * 65_init.c: first values of parameters.
 *
 * Element i of a parameter depends on (seed, root, path, i) alone and is computed by portable code:
 * the same bits on every compiler, instruction set and device.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__65_INIT_INCLUDED
#define MPT__65_INIT_INCLUDED

#include "61_module.c"

MPTRAIN_API mpt_init mpt_init_make(mpt_init_kind kind, double a, double b) {
    mpt_init init;
    init.kind = kind, init.a = a, init.b = b;
    return init;
}

static bool mpt__check_init(mpt_context *context, mpt_init init) {
    if (init.kind < MPT_INIT_DEFAULT || init.kind > MPT_INIT_KAIMING_NORMAL) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "init kind %d is none of mpt_init_kind",
                   (int)init.kind);
        return false;
    }
    if (!mpt__f64_is_finite(init.a) || !mpt__f64_is_finite(init.b)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "init parameters %g and %g must be finite", init.a,
                   init.b);
        return false;
    }
    return true;
}

/* What is really drawn: uniform in [a, b), normal of mean a and deviation b, or the constant a. */
typedef struct mpt__draw {
    mpt__function function; /* NONE: constant */
    double a, b;
} mpt__draw;

static mpt__draw mpt__draw_make(mpt__function function, double a, double b) {
    mpt__draw draw;
    draw.function = function, draw.a = a, draw.b = b;
    return draw;
}

/* Fans as torch.nn.init counts them: dimension 0 is out, 1 is in, the rest a receptive field. */
static mpt__draw mpt__resolve_init(const mpt__module_parameter *row) {
    mpt_init init = row->init;
    const mpt_shape *shape = &row->shape;
    double field = 1.0;
    for (int i = 2; i < shape->rank; i++) field *= (double)shape->dim[i];
    double fan_in = shape->rank > 1 ? (double)shape->dim[1] * field : 1.0;
    double fan_out = shape->rank > 0 ? (double)shape->dim[0] * field : 1.0;
    double layer = row->fan_in > 0 ? (double)row->fan_in : shape->rank > 1 ? fan_in : 0.0;
    double bound = layer > 0 ? 1.0 / sqrt(layer) : 0.0; /* kaiming_uniform with a = sqrt(5) */
    double xavier = fan_in + fan_out > 0 ? init.a * sqrt(2.0 / (fan_in + fan_out)) : 0.0;
    double kaiming = fan_in > 0 ? init.a / sqrt(fan_in) : 0.0;
    double root3 = sqrt(3.0);
    switch (init.kind) {
    case MPT_INIT_DEFAULT:
        return mpt__draw_make(MPT__FN_UNIFORM, -bound, bound);
    case MPT_INIT_ONES:
        return mpt__draw_make(MPT__FN_NONE, 1.0, 0.0);
    case MPT_INIT_CONSTANT:
        return mpt__draw_make(MPT__FN_NONE, init.a, 0.0);
    case MPT_INIT_UNIFORM:
        return mpt__draw_make(MPT__FN_UNIFORM, init.a, init.b);
    case MPT_INIT_NORMAL:
        return mpt__draw_make(MPT__FN_NORMAL, init.a, init.b);
    case MPT_INIT_XAVIER_UNIFORM:
        return mpt__draw_make(MPT__FN_UNIFORM, -xavier * root3, xavier * root3);
    case MPT_INIT_XAVIER_NORMAL:
        return mpt__draw_make(MPT__FN_NORMAL, 0.0, xavier);
    case MPT_INIT_KAIMING_UNIFORM:
        return mpt__draw_make(MPT__FN_UNIFORM, -kaiming * root3, kaiming * root3);
    case MPT_INIT_KAIMING_NORMAL:
        return mpt__draw_make(MPT__FN_NORMAL, 0.0, kaiming);
    case MPT_INIT_ZEROS:
        break;
    }
    return mpt__draw_make(MPT__FN_NONE, 0.0, 0.0);
}

static void mpt__draw_values(mpt__rng_key key, const mpt__draw *draw, float *values,
                             int64_t count) {
    float a = (float)draw->a, b = (float)draw->b;
    switch (draw->function) {
    case MPT__FN_UNIFORM:
        mpt__random_uniform(key, 0, (size_t)count, a, b, values);
        break;
    case MPT__FN_NORMAL:
        mpt__random_normal(key, 0, (size_t)count, a, b, values);
        break;
    default:
        for (int64_t i = 0; i < count; i++) values[i] = a;
        break;
    }
}

static mpt_status mpt__draw_parameter(mpt_context *context, const mpt__module *module, int64_t i) {
    const mpt__module_parameter *row = &module->parameters[i];
    const mpt__parameter *parameter = &context->parameters[row->parameter - 1];
    if (parameter->numel == 0) return MPT_OK;
    size_t bytes = (size_t)parameter->numel * sizeof(float);
    float *values = (float *)mpt__host_new(context, bytes);
    if (!values) return context->base.status;
    mpt__rng_key key;
    key.seed = context->config.seed;
    key.stream = mpt__hash_bytes(module->path_hash, row->name, strlen(row->name));
    key.call = 0;
    mpt__draw draw = mpt__resolve_init(row);
    mpt__draw_values(key, &draw, values, parameter->numel);
    mpt_status status = mpt__write_f32(context, mpt__slot(context, parameter->tensor), values);
    mpt__host_free(context, values, bytes);
    return status;
}

/* Sets the recipe of one parameter, and draws again if the tree is in use. */
static mpt_status mpt__apply_init(mpt_context *context, mpt__module *module, int64_t i,
                                  mpt_init init) {
    module->parameters[i].init = init;
    return module->frozen ? mpt__draw_parameter(context, module, i) : MPT_OK;
}

MPTRAIN_API mpt_status mpt_set_init(mpt_module module, const char *name, mpt_init init) {
    mpt_context *context = module.context;
    if (!mpt__enter(context, "mpt_set_init")) return mpt__status_of(context);
    mpt__module *found = mpt__module_at(context, module), *holder;
    if (!found || !mpt__check_init(context, init)) return context->base.status;
    if (!name) {
        const mpt__module_parameter *row;
        mpt__walk walk;
        mpt__walk_begin(&walk, context, found);
        while ((row = mpt__walk_parameter(&walk)) != NULL && context->base.status == MPT_OK)
            if (row->shape.rank >= 2) mpt__apply_init(context, walk.module, walk.row - 1, init);
        return context->base.status;
    }
    int64_t i = mpt__find_parameter(context, found, name, &holder);
    return i < 0 ? context->base.status : mpt__apply_init(context, holder, i, init);
}

#endif
