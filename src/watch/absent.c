/* ----
 * watch/absent.c: what stands for mptrain_watch.h where it is not: calls that say so.
 *
 * mptrain_watch.h holds the profiler, flight logs, gradient checks and traces of nets. Few programs
 * use them, and with them the library takes a tenth longer to compile: who wants them defines
 * MPTRAIN_WATCH.
 * ---- */
#ifndef MPT__WATCH_ABSENT_INCLUDED
#define MPT__WATCH_ABSENT_INCLUDED

#include "watch/classes.c"

/* ==== Settings, with it and without ==== */

mpt_profile_config mpt_profile_config_default(void) {
    mpt_profile_config config;
    mpt__zero(config);
    return config;
}

mpt_gradcheck_config mpt_gradcheck_config_default(void) {
    mpt_gradcheck_config config;
    config.step = 1e-2;
    config.rtol = 1e-2;
    config.atol = 1e-3;
    return config;
}

mpt_flight_config mpt_flight_config_default(void) {
    mpt_flight_config config;
    config.level = MPT_FLIGHT_OPS;
    config.block = 256;
    return config;
}

#ifndef MPTRAIN_WATCH

#ifdef MPTRAIN_NO_WATCH
#define mpt__unwatched mpt__watch_missing
#else
static mpt_status mpt__unwatched(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "mptrain_watch.h (MPTRAIN_WATCH)");
}
#endif

/* What begins tells; what there is to read after it is nothing. */
MPT__BEGIN_ABSENT

/* ==== Profiles ==== */

static void mpt__profile_free(mpt_context *ctx) {}

mpt_status mpt_profile_begin(mpt_context *ctx, const mpt_profile_config *config) {
    return mpt__unwatched(ctx, "mpt_profile_begin");
}

mpt_status mpt_profile_end(mpt_context *ctx) { return mpt__status_of(ctx); }

int64_t mpt_profile_rows(
    mpt_context *ctx, mpt_profile_by by, mpt_profile_row *rows, int64_t room) {
    return -1;
}

mpt_profile_total mpt_get_profile_total(mpt_context *ctx) {
    mpt_profile_total total;
    mpt__zero(total);
    total.all.name = total.all.phase = "";
    return total;
}

size_t mpt_profile_text(mpt_context *ctx, char *text, size_t size) {
    mpt__text_make(text, size);
    return 0;
}

int64_t mpt_profile_spans(
    mpt_context *ctx, void (*each)(void *user, const mpt_profile_span *span), void *user) {
    return -1;
}

/* ==== Flights: one name serves for all ==== */

static void mpt__flight_free(mpt_context *ctx) {}

mpt_status mpt_flight_begin(
    mpt_context *ctx, const char *path, const mpt_flight_config *config) {
    return mpt__unwatched(ctx, "mpt_flight_begin");
}

mpt_status mpt_flight_replay(mpt_context *ctx, const char *path) {
    return mpt__unwatched(ctx, "mpt_flight_begin");
}

mpt_status mpt_flight_end(mpt_context *ctx, mpt_flight_report *report) {
    if (report) mpt__zero(*report);
    return mpt__unwatched(ctx, "mpt_flight_begin");
}

/* ==== Gradient checks, traces ==== */

mpt_status mpt_gradcheck(mpt_context *ctx, mpt_check_fn fn, void *user, const mpt_tensor *in,
    int n_in, const mpt_gradcheck_config *config) {
    return mpt__unwatched(ctx, "mpt_gradcheck");
}

static void mpt__graph_end(mpt_context *ctx, void *object) {}

mpt_graph mpt_trace(mpt_module net, const mpt_tensor *inputs, int n_inputs) {
    mpt_graph none;
    mpt__unwatched(net.context, "mpt_trace");
    mpt__zero(none);
    none.context = net.context;
    return none;
}
int mpt_graph_count(mpt_graph graph) { return -1; }
const mpt_node *mpt_graph_node(mpt_graph graph, int index) { return NULL; }
mpt_status mpt_graph_destroy(mpt_graph graph) { return mpt__status_of(graph.context); }

MPT__END_ABSENT

#endif /* MPTRAIN_WATCH */

#endif
