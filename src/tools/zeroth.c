/* ----
 * tools/zeroth.c: training by forwards alone.
 * ---- */
#ifndef MPT__ZEROTH_INCLUDED
#define MPT__ZEROTH_INCLUDED

#include "face/zeroth.h"
#include "text.c"

enum { MPT__TOOLS_DIRECTIONS = 64 };

mpt_zeroth_config mpt_zeroth_config_default(void) {
    const mpt_zeroth_config config = {1e-6, 1e-3, 1, 0};
    return config;
}

/* A seed of its own for each number: the finaliser of SplitMix64. */
static uint64_t mpt__tools_zeroth_seed(uint64_t seed, uint64_t number) {
    uint64_t x = seed + (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* Adds so much of a direction to all that is trained. */
static void mpt__tools_zeroth_move(mpt_module net, uint64_t direction, double factor) {
    mpt_context *ctx = net.context;
    const int count = mpt_parameter_count(net);
    mpt_no_grad_begin(ctx);
    for (int i = 0; i < count; i++) {
        mpt_scope_begin(ctx);
        const mpt_tensor p = mpt_parameter_at(net, i, NULL, 0);
        if (mpt_get_requires_grad(p)) {
            const uint64_t seed = mpt__tools_zeroth_seed(direction, (uint64_t)i);
            const mpt_tensor z =
                mpt_randn_seeded(ctx, mpt_get_dtype(p), mpt_get_shape(p), seed);
            mpt_add_(p, mpt_mul_scalar_(z, factor));
        }
        mpt_scope_end(ctx);
    }
    mpt_no_grad_end(ctx);
}

/* Notes and ends an error of the context. */
static bool mpt__tools_zeroth_fails(mpt_context *ctx, mpt_zeroth *result) {
    if (!mpt_failed(ctx)) return false;
    result->status = mpt_error_code(ctx);
    mpt__tools_note note = mpt__tools_note_begin(result->error, sizeof result->error);
    mpt__tools_note_add(&note, "%s", mpt_error(ctx));
    mpt_clear_error(ctx);
    return true;
}

static double mpt__tools_zeroth_loss(
    mpt_module net, mpt_zeroth_loss loss, void *user, mpt_zeroth *result) {
    mpt_context *ctx = net.context;
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    const double value = mpt_item(loss(net, user));
    if (mpt__tools_zeroth_fails(ctx, result)) return 0; /* which closed all that was open */
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    if (!mpt__tools_is_finite(value)) result->status = MPT_ERROR_NUMERIC;
    result->loss += value;
    return value;
}

/* The loss's slope along a direction; the weights end where they were. */
static double mpt__tools_zeroth_slope(mpt_module net, mpt_zeroth_loss loss, void *user,
    uint64_t direction, double epsilon, mpt_zeroth *result) {
    mpt__tools_zeroth_move(net, direction, epsilon);
    const double above = mpt__tools_zeroth_loss(net, loss, user, result);
    if (result->status != MPT_OK) {
        mpt__tools_zeroth_move(net, direction, -epsilon);
        return 0;
    }
    mpt__tools_zeroth_move(net, direction, -2 * epsilon);
    const double below = mpt__tools_zeroth_loss(net, loss, user, result);
    mpt__tools_zeroth_move(net, direction, epsilon);
    return (above - below) / (2 * epsilon);
}

mpt_zeroth mpt_zeroth_step(mpt_module net, mpt_zeroth_loss loss, void *user,
    const mpt_zeroth_config *config, int64_t step) {
    const mpt_zeroth_config c = config ? *config : mpt_zeroth_config_default();
    double slope[MPT__TOOLS_DIRECTIONS];
    mpt_zeroth result;
    memset(&result, 0, sizeof result);
    const bool fine = c.lr >= 0 && mpt__tools_is_finite(c.lr) && c.epsilon > 0 &&
        mpt__tools_is_finite(c.epsilon) && c.directions >= 1 &&
        c.directions <= MPT__TOOLS_DIRECTIONS;
    if (!fine || !net.context || !loss || mpt_failed(net.context)) {
        result.status = fine && net.context && loss ? mpt_error_code(net.context)
                                                    : MPT_ERROR_ARGUMENT;
        mpt__tools_note note = mpt__tools_note_begin(result.error, sizeof result.error);
        mpt__tools_note_add(&note,
            "mpt_zeroth_step: lr %.3g, epsilon %.3g, %lld directions: expected 0 or more, above "
            "0 and 1 to %lld, a net and a loss, and a context without an error",
            c.lr, c.epsilon, (long long)c.directions, (long long)MPT__TOOLS_DIRECTIONS);
        return result;
    }
    const uint64_t seed = mpt__tools_zeroth_seed(c.seed, (uint64_t)step);
    for (int d = 0; d < c.directions && result.status == MPT_OK; d++)
        slope[d] = mpt__tools_zeroth_slope(
            net, loss, user, mpt__tools_zeroth_seed(seed, (uint64_t)d), c.epsilon, &result);
    if (result.status == MPT_OK) {
        result.slope = slope[c.directions - 1], result.loss /= 2 * c.directions;
        for (int d = 0; d < c.directions; d++)
            mpt__tools_zeroth_move(
                net, mpt__tools_zeroth_seed(seed, (uint64_t)d), -c.lr * slope[d] / c.directions);
    }
    mpt__tools_zeroth_fails(net.context, &result);
    return result;
}

#endif
