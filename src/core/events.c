/* ----
 * core/events.c: who hears what.
 *
 * Nobody below knows who is above: a feature that has to hear of a step's end, say, listens to that
 * event from when it starts until it ends. What nobody listens to costs the test of a bit.
 * ---- */
#ifndef MPT__CORE_EVENTS_INCLUDED
#define MPT__CORE_EVENTS_INCLUDED

#include "core/context.h"

/* From now on `hear` is called at each such event, once however often this was asked. Listeners of
   an event hear it in the order in which they came, as long as none has left. */
static mpt_status mpt__listen(mpt_context *ctx, mpt__event event, mpt__hear hear, void *user) {
    mpt__listener *place = NULL;
    for (int i = MPT__MAX_LISTENERS - 1; i >= 0; i--) {
        mpt__listener *listener = &ctx->listeners[i];
        if (listener->hear == hear && listener->event == event) place = listener, i = 0;
        else if (!listener->hear) place = listener;
    }
    if (!place)
        return mpt__error(ctx, STATE,
            "%d features listen already (printers, tracers, recordings, anomaly mode); end one",
            (int)MPT__MAX_LISTENERS);
    place->hear = hear, place->user = user, place->event = event;
    ctx->heard |= 1u << event;
    return MPT_OK;
}

/* Also from within an event. */
static void mpt__listen_no_more(mpt_context *ctx, mpt__event event, mpt__hear hear) {
    bool others = false;
    for (int i = 0; i < MPT__MAX_LISTENERS; i++) {
        mpt__listener *listener = &ctx->listeners[i];
        if (!listener->hear || listener->event != event) continue;
        if (listener->hear == hear) listener->hear = NULL;
        others = others || listener->hear;
    }
    if (!others) ctx->heard &= ~(1u << event);
}

static MPT__NOINLINE void mpt__tell_listeners(
    mpt_context *ctx, mpt__event event, const void *what) {
    for (int i = 0; i < MPT__MAX_LISTENERS; i++) {
        const mpt__listener *listener = &ctx->listeners[i];
        if (listener->hear && listener->event == event) listener->hear(ctx, listener->user, what);
    }
}

static MPT__FORCE_INLINE void mpt__tell(mpt_context *ctx, mpt__event event, const void *what) {
    if (MPT__UNLIKELY(ctx->heard >> event & 1)) mpt__tell_listeners(ctx, event, what);
}

/* The same for what only rooms of watch/ hear. */
#ifdef MPTRAIN_NO_WATCH
#define mpt__tell_watchers(ctx, event, what) ((void)0)
#else
#define mpt__tell_watchers mpt__tell
#endif

#endif
