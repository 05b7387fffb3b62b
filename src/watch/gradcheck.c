/* ----
 * watch/gradcheck.c: whether backward agrees with small changes of the inputs.
 * ---- */
#ifndef MPT__WATCH_GRADCHECK_INCLUDED
#define MPT__WATCH_GRADCHECK_INCLUDED

#include "watch/absent.c"

enum { MPT__CHECK_INPUTS = 8 };

typedef struct {
    mpt_context *context;
    mpt_check_fn fn;
    void *user;
    mpt_gradcheck_config config;
    mpt_tensor in[MPT__CHECK_INPUTS];
    int n_in;
} mpt__gradcheck;

/* Weights in [-1, 1) for the outputs, so that one number depends on all of them. */
static float mpt__check_weight(int64_t i) {
    return (float)((i * 7919 + 104729) % 2003) / 1001.5f - 1.0f;
}

/* The weighted sum of fn's output; NaN on error. */
static double mpt__check_value(mpt__gradcheck *check) {
    mpt_context *ctx = check->context;
    size_t bytes;
    double sum = 0.0;
    mpt_scope_begin(ctx);
    mpt_no_grad_begin(ctx);
    mpt_tensor out = check->fn(ctx, check->user, check->in, check->n_in);
    const mpt__tensor *found = mpt__enter_at(out, "mpt_gradcheck", "the function's result");
    float *values = found ? mpt__host_values(ctx, found, &bytes) : NULL;
    for (int64_t i = 0; values && i < mpt__tensor_numel(found); i++)
        sum += (double)values[i] * (double)mpt__check_weight(i);
    if (values) mpt__host_free(ctx, values, bytes);
    mpt_no_grad_end(ctx);
    mpt_scope_end(ctx);
    return mpt__ok(ctx) ? sum : MPT__NAN_F64;
}

/* Leaves of the inputs' values, and one backward pass from the function of them. */
static mpt_status mpt__check_backward(mpt__gradcheck *check) {
    mpt_context *ctx = check->context;
    size_t bytes;
    for (int i = 0; i < check->n_in; i++)
        if (mpt__dtype_computes(mpt_get_dtype(check->in[i]))) mpt_requires_grad(check->in[i], true);
    mpt_tensor out = check->fn(ctx, check->user, check->in, check->n_in);
    const mpt__tensor *found = mpt__enter_at(out, "mpt_gradcheck", "the function's result");
    float *weights = found ? mpt__host_values(ctx, found, &bytes) : NULL;
    if (!weights) return ctx->base.status;
    mpt_shape shape = found->shape;
    mpt_dtype dtype = (mpt_dtype)found->dtype;
    for (int64_t i = 0; i < mpt__shape_numel(&shape); i++) weights[i] = mpt__check_weight(i);
    mpt_tensor upstream = mpt_from(ctx, MPT_F32, shape, weights);
    mpt__host_free(ctx, weights, bytes);
    return mpt_backward_from(out, dtype == MPT_F32 ? upstream : mpt_cast(upstream, dtype), false);
}

/* Every slope by elements of input `i`. */
static mpt_status mpt__check_input(mpt__gradcheck *check, int i) {
    mpt_context *ctx = check->context;
    size_t bytes = 0, slope_bytes = 0;
    mpt_tensor leaf = check->in[i];
    const mpt__tensor *found = mpt__enter_at(leaf, "mpt_gradcheck", "an input");
    if (!found) return ctx->base.status;
    mpt_shape shape = found->shape;
    float *values = mpt__host_values(ctx, found, &bytes), *slopes = NULL;
    if (values && mpt_has_grad(leaf))
        slopes = mpt__host_values(ctx, mpt__live(ctx, mpt_grad(leaf)), &slope_bytes);
    for (int64_t k = 0; values && k < mpt__shape_numel(&shape); k++) {
        float value = values[k];
        double side[2], at[2];
        for (int s = 0; s < 2; s++) {
            values[k] = (float)((double)value +
                (s ? 1.0 : -1.0) * check->config.step *
                    (value > 1 || value < -1 ? (double)value : 1.0));
            at[s] = (double)values[k];
            check->in[i] = mpt_from(ctx, MPT_F32, shape, values);
            side[s] = mpt__check_value(check);
            mpt_release(check->in[i]);
        }
        values[k] = value;
        double expected = (side[1] - side[0]) / (at[1] - at[0]);
        double got = slopes ? (double)slopes[k] : 0.0;
        double off = got > expected ? got - expected : expected - got;
        double size = expected < 0 ? -expected : expected;
        if (!mpt__ok(ctx)) break;
        if (off <= check->config.atol + check->config.rtol * size) continue;
        mpt__enter(ctx, "mpt_gradcheck");
        mpt__error(ctx, NUMERIC,
            "input %d, element %lld: backward gives %g, small changes of the input give %g", i, k,
            got, expected);
        break;
    }
    check->in[i] = leaf;
    mpt__host_free(ctx, slopes, slope_bytes);
    mpt__host_free(ctx, values, bytes);
    return ctx->base.status;
}

mpt_status mpt_gradcheck(mpt_context *ctx, mpt_check_fn fn, void *user, const mpt_tensor *in,
    int n_in, const mpt_gradcheck_config *config) {
    MPT__PLAIN_FLOATS;
    mpt__gradcheck check;
    if (!mpt__enter(ctx, "mpt_gradcheck")) return mpt__status_of(ctx);
    check.context = ctx, check.fn = fn, check.user = user, check.n_in = n_in;
    check.config = config ? *config : mpt_gradcheck_config_default();
    if (!fn || !in || n_in < 1 || n_in > MPT__CHECK_INPUTS || !(check.config.step > 0.0))
        return mpt__error(ctx, ARGUMENT,
            "expected a function, 1..%d inputs (got %d) and a step > 0 (got %g)",
            (int)MPT__CHECK_INPUTS, in ? n_in : 0, check.config.step);
    mpt_scope_begin(ctx);
    for (int i = 0; i < n_in; i++) {
        mpt__enter(ctx, "mpt_gradcheck"); /* errors have its name, not that of what it calls */
        const mpt__tensor *input = mpt__at(ctx, in[i], "an input");
        if (!input) break;
        if (input->dtype == MPT_F16 || input->dtype == MPT_BF16)
            mpt__error(ctx, DTYPE,
                "input %d is %D: small changes need fp32; mpt_cast it inside the function", i,
                input->dtype);
        check.in[i] = mpt_clone(mpt_detach(in[i]));
    }
    mpt_status status = ctx->base.status;
    if (status == MPT_OK) status = mpt__check_backward(&check);
    for (int i = 0; i < n_in && status == MPT_OK; i++)
        if (mpt_get_dtype(check.in[i]) == MPT_F32) status = mpt__check_input(&check, i);
    mpt_scope_end(ctx);
    return status;
}

#endif
