/* ----
 * nn/placement.c: which modules of a net backward runs again, for a training to fit into a budget.
 * ---- */
#ifndef MPT__NN_PLACEMENT_INCLUDED
#define MPT__NN_PLACEMENT_INCLUDED

#include "ground/json.c"
#include "nn/module.c"

#ifndef MPTRAIN_NO_FRUGAL

/* Marks the first `count` of the modules below `root` whose path fits, none of which lies in
   another; returns how many there are. */
static int64_t mpt__recompute_first(
    mpt_context *ctx, mpt__module *root, const char *pattern, int64_t count) {
    mpt__walk walk;
    mpt__span star;
    int64_t found = 0;
    mpt__walk_begin(&walk, ctx, root);
    for (mpt__module *m = mpt__walk_next(&walk); m; m = mpt__walk_next(&walk)) {
        if (m->layer == MPT__LAYER_list) continue;
        if (!mpt__pattern_fits(pattern, mpt__span_of(walk.path), &star)) continue;
        walk.level[walk.depth - 1].next = (uint32_t)m->child_count;
        if (found++ < count && m->recompute == 0) m->recompute = 1;
    }
    return found;
}

/* In a dry run: marks a net that is about to be trained. */
static void mpt__placement_try(mpt_context *ctx, mpt_module net) {
    mpt__module *root = (mpt__module *)mpt__object_at(
        ctx, MPT__MODULE, net.context, net.slot, net.generation);
    if (!ctx->placement.pattern || !root) return;
    ctx->placement.found +=
        mpt__recompute_first(ctx, root, ctx->placement.pattern, ctx->placement.count);
}

#endif
#endif
