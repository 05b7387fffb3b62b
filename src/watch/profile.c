/* ----
 * watch/profile.c: what time goes into: sums by op, module and kernel, and spans.
 *
 * All is told by launches: ops and modules are known by what a launch says that it comes from, so
 * that there is nothing in their calls that profiling would cost while it is off, and so that steps
 * that are repeated without their calls are told as well.
 * ---- */
#ifndef MPT__WATCH_PROFILE_INCLUDED
#define MPT__WATCH_PROFILE_INCLUDED

#include "watch/cost.c"
#include "graph/capture.c"

enum {
    MPT__PROFILE_PHASES = MPT__OTHER + 1,
    MPT__PROFILE_GRAPH = MPT__KERNEL_COUNT, /* the row of steps that ran as graphs */
    MPT__PROFILE_DEPTH = 34, /* of spans: a step, an op, and modules; deeper ones are left out */
    MPT__PROFILE_TEXT_ROWS = 24
};

/* What launches are added up to. */
typedef struct {
    int64_t calls, launches;
    double seconds, flop, read, written, least;
} mpt__profile_sum;

typedef struct {
    mpt__profile_sum sums[MPT__PROFILE_PHASES];
    uint32_t parent; /* index of a path; 0: none */
    bool known;      /* parent is */
} mpt__profile_module;

typedef struct {
    uint8_t kind, phase; /* mpt_span_kind, mpt__phase */
    int thread;
    uint32_t id; /* of an op, a kernel, a path */
    int64_t step;
    double start, end; /* end below start: it is under way */
    double flop, read, written;
    int64_t memory;
} mpt__profile_span;

/* Where launches come from: as long as this is the same it is one call. */
typedef struct {
    uint32_t path, op, record;
    uint8_t phase;
    bool replayed;
    int64_t call, step;
} mpt__profile_origin;

typedef struct mpt__profile {
    void (*free)(mpt_context *ctx); /* a pointer: programs that never ask are without it */
    mpt_profile_config config;
    bool on;
    double began, ended;
    int64_t first_step, last_step;

    double start; /* of the launch under way */
    double last;  /* end of the one before */
    bool goes_on; /* nothing but launches since then */
    mpt__profile_origin origin;

    mpt__profile_sum all, conversions, waits;
    mpt__profile_sum kernels[MPT__KERNEL_COUNT + 1];
    mpt__profile_sum ops[MPT__OP_COUNT][MPT__PROFILE_PHASES]; /* row 0: of no op */
    mpt__profile_module *modules;                             /* by path; row 0: outside of them */
    int64_t module_capacity;

    mpt__profile_span *spans; /* room for config.spans; NULL: none */
    int64_t span_count, left_out;
    mpt__profile_span *open[MPT__PROFILE_DEPTH]; /* each in the one before */
    int depth;
} mpt__profile;

static double mpt__profile_now(const mpt_context *ctx) {
    return ctx->base.clock.now(ctx->base.clock.user);
}

/* ==== Spans ==== */

/* A span; NULL once there is room for no more. */
static mpt__profile_span *mpt__profile_span_new(
    mpt_context *ctx, mpt_span_kind kind, uint32_t id, int phase, double start) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    if (profile->span_count == profile->config.spans) {
        profile->left_out += profile->config.spans > 0;
        return NULL;
    }
    mpt__profile_span *span = &profile->spans[profile->span_count++];
    mpt__zero(*span);
    span->kind = (uint8_t)kind, span->phase = (uint8_t)phase, span->id = id;
    span->step = ctx->now.step;
    span->start = start, span->end = start - 1;
    return span;
}

/* Where there is no room for what would be around others, none of them is kept. */
static void mpt__profile_open(
    mpt_context *ctx, mpt_span_kind kind, uint32_t id, int phase, double start) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    if (profile->depth == MPT__PROFILE_DEPTH) return;
    mpt__profile_span *span = mpt__profile_span_new(ctx, kind, id, phase, start);
    if (span) profile->open[profile->depth++] = span;
}

/* Ends all spans within the first `depth`. */
static void mpt__profile_close(mpt__profile *profile, int depth, double end) {
    while (profile->depth > depth) profile->open[--profile->depth]->end = end;
}

/* How many of the open spans are steps: 0 or 1. */
static int mpt__profile_steps_open(const mpt__profile *profile) {
    return profile->depth > 0 && profile->open[0]->kind == MPT_SPAN_STEP;
}

/* Ends ops and modules, after the last launch in them. */
static void mpt__profile_turn(mpt__profile *profile) {
    mpt__profile_close(profile, mpt__profile_steps_open(profile), profile->last);
    profile->goes_on = false;
}

/* A repeated step has no beginning of its own: it is from its first launch to its last. */
static void mpt__profile_repeated(mpt_context *ctx, const mpt__profile_origin *origin) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    if (ctx->step_depth) return;
    if (mpt__profile_steps_open(profile) &&
        (!origin->replayed || profile->open[0]->step != origin->step))
        mpt__profile_close(profile, 0, profile->last);
    if (!origin->replayed || mpt__profile_steps_open(profile)) return;
    mpt__profile_close(profile, 0, profile->last);
    mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, profile->start);
}

/* The row of a path, which knows the module above; NULL on error. */
static mpt__profile_module *mpt__profile_module_row(mpt_context *ctx, uint32_t path) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    if (!mpt__room(ctx, profile->modules, profile->module_capacity, (int64_t)path + 1)) return NULL;
    mpt__profile_module *row = &profile->modules[path];
    const mpt__object_table *table = &ctx->objects[MPT__MODULE];
    for (int64_t i = 1; !row->known && path && i < table->count; i++) {
        const mpt__module *module = (const mpt__module *)table->rows[i].object;
        if (!module || module->path != path) continue;
        if (module->parent) row->parent = mpt__module_slot(ctx, module->parent)->path;
        break;
    }
    row->known = true;
    return row;
}

/* The modules around a launch, from the root down; returns how many. */
static int mpt__profile_chain(mpt_context *ctx, uint32_t path, uint32_t *chain) {
    uint32_t upward[MPT__PROFILE_DEPTH];
    int n = 0;
    for (; path && n < MPT__PROFILE_DEPTH - 2; n++) {
        const mpt__profile_module *row = mpt__profile_module_row(ctx, path);
        upward[n] = path;
        path = row ? row->parent : 0;
    }
    for (int i = 0; i < n; i++) chain[i] = upward[n - 1 - i];
    return n;
}

/* Ends what a launch is not in, and begins what it is in. */
static void mpt__profile_enter(mpt_context *ctx, const mpt__profile_origin *origin) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    uint32_t chain[MPT__PROFILE_DEPTH];
    mpt__profile_repeated(ctx, origin);
    int n = mpt__profile_chain(ctx, origin->path, chain), same = 0;
    const int base = mpt__profile_steps_open(profile);
    while (same < n && base + same < profile->depth) {
        const mpt__profile_span *span = profile->open[base + same];
        if (span->kind != MPT_SPAN_MODULE || span->id != chain[same] ||
            span->phase != origin->phase)
            break;
        same++;
    }
    mpt__profile_close(profile, base + same, profile->last);
    for (; same < n; same++)
        mpt__profile_open(ctx, MPT_SPAN_MODULE, chain[same], origin->phase, profile->start);
    if (origin->op) mpt__profile_open(ctx, MPT_SPAN_OP, origin->op, origin->phase, profile->start);
}

static void mpt__profile_launch_span(
    mpt_context *ctx, uint32_t kernel, int phase, const mpt__profile_sum *one, double end) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    mpt__profile_span *span =
        mpt__profile_span_new(ctx, MPT_SPAN_LAUNCH, kernel, phase, profile->start);
    if (!span) return;
    span->end = end;
    span->flop = one->flop, span->read = one->read, span->written = one->written;
    span->memory = ctx->base.memory.total_current;
    for (int i = 0; i < profile->depth; i++) {
        mpt__profile_span *around = profile->open[i];
        around->flop += one->flop, around->read += one->read, around->written += one->written;
    }
}

/* ==== What is heard ==== */

static void mpt__profile_add(mpt__profile_sum *sum, const mpt__profile_sum *one, bool call) {
    sum->calls += call;
    sum->launches += one->launches;
    sum->seconds += one->seconds;
    sum->flop += one->flop, sum->read += one->read, sum->written += one->written;
    sum->least += one->least;
}

/* The seconds that a launch takes at the ceilings. */
static double mpt__profile_least(
    const mpt_profile_config *config, const mpt__launch *launch, const mpt__cost *cost) {
    const uint8_t dtype = launch->compute_dtype;
    const double ceiling = config->product[dtype == MPT_F16 ? 1 : dtype == MPT_BF16 ? 2 : 0];
    const double product = ceiling > 0 ? cost->flop / ceiling : 0;
    const double copy = config->copy > 0 ? (cost->read + cost->written) / config->copy : 0;
    return product > copy ? product : copy;
}

/* Whether a launch only puts values into another dtype or layout. */
static bool mpt__profile_converts(const mpt_context *ctx, const mpt__launch *launch) {
    const mpt__operand *from = &launch->operand[0], *to = &launch->operand[1];
    if (launch->kernel != MPT__K_COPY) return false;
    return from->dtype != to->dtype || ctx->storages[to->storage].kind == MPT_MEMORY_FORM;
}

static mpt__profile_origin mpt__profile_origin_of(
    const mpt_context *ctx, const mpt__launch *launch) {
    mpt__profile_origin origin;
    mpt__zero(origin);
    origin.path = mpt__launch_path(ctx, launch);
    origin.op = launch->op;
    origin.record = launch->op_record;
    origin.phase = launch->phase;
    origin.replayed = launch != &ctx->launch;
    origin.call = ctx->base.call;
    origin.step = ctx->now.step;
    return origin;
}

static bool mpt__profile_same_module(const mpt__profile_origin *a, const mpt__profile_origin *b) {
    return a->path == b->path && a->phase == b->phase && a->step == b->step;
}

static bool mpt__profile_same_call(const mpt__profile_origin *a, const mpt__profile_origin *b) {
    return mpt__profile_same_module(a, b) && a->op == b->op && a->record == b->record &&
        a->call == b->call && a->replayed == b->replayed;
}

/* Seconds of the device since the call before; below 0 where the host's clock is to tell. */
static double mpt__profile_lap(mpt_context *ctx) {
    if (ctx->backend.lap) return ctx->backend.lap(ctx->backend.self);
    if (!ctx->backend.synchronous) ctx->backend.synchronize(ctx->backend.self);
    return -1;
}

/* What has gone by since `start`, of which `end` is the end. */
static double mpt__profile_taken(mpt_context *ctx, const mpt__profile *profile, double *end) {
    const double lap = mpt__profile_lap(ctx);
    *end = mpt__profile_now(ctx);
    if (lap < 0) return *end - profile->start;
    if (profile->start + lap < *end) *end = profile->start + lap;
    return lap;
}

static void mpt__profile_launches(MPT__HEARS) {
    MPT__PLAIN_FLOATS;
    (void)what;
    if (!ctx->backend.synchronous) mpt__profile_lap(ctx);
    ((mpt__profile *)user)->start = mpt__profile_now(ctx);
}

static void mpt__profile_launched(MPT__HEARS) {
    MPT__PLAIN_FLOATS;
    const mpt__launch *launch = (const mpt__launch *)what;
    mpt__profile *profile = (mpt__profile *)user;
    double end;
    const double seconds = mpt__profile_taken(ctx, profile, &end);
    const mpt__cost cost = mpt__launch_cost(ctx, launch);
    const mpt__profile_sum one = {1, 1, seconds, cost.flop, cost.read, cost.written,
        mpt__profile_least(&profile->config, launch, &cost)};
    const mpt__profile_origin origin = mpt__profile_origin_of(ctx, launch);
    const bool stays = profile->goes_on && mpt__profile_same_module(&origin, &profile->origin);
    const bool same = profile->goes_on && mpt__profile_same_call(&origin, &profile->origin);
    mpt__profile_add(&profile->all, &one, true);
    mpt__profile_add(&profile->kernels[launch->kernel], &one, true);
    mpt__profile_add(&profile->ops[origin.op][origin.phase], &one, !same);
    mpt__profile_module *module = mpt__profile_module_row(ctx, origin.path);
    if (module) mpt__profile_add(&module->sums[origin.phase], &one, !stays);
    if (mpt__profile_converts(ctx, launch)) mpt__profile_add(&profile->conversions, &one, true);
    if (profile->spans) {
        if (!same) mpt__profile_enter(ctx, &origin);
        mpt__profile_launch_span(ctx, launch->kernel, launch->phase, &one, end);
    }
    profile->origin = origin;
    profile->goes_on = true;
    profile->last = end;
}

#ifndef MPTRAIN_NO_GRAPH
/* A repeated step that a graph runs has no launches that could be told: it is one as a whole. */
static void mpt__profile_repeat_began(MPT__HEARS) {
    const mpt__captured *captured = (const mpt__captured *)what;
    if (captured->graph) mpt__profile_launches(ctx, user, what);
}

static void mpt__profile_repeat_ended(MPT__HEARS) {
    MPT__PLAIN_FLOATS;
    const mpt__captured *captured = (const mpt__captured *)what;
    mpt__profile *profile = (mpt__profile *)user;
    if (!captured->graph) return;
    mpt__profile_sum one;
    mpt__zero(one);
    double end;
    one.calls = one.launches = 1;
    one.seconds = mpt__profile_taken(ctx, profile, &end);
    for (int64_t i = 0; i < captured->recording->count; i++) {
        const mpt__launch *launch = &captured->recording->launches[i];
        const mpt__cost cost = mpt__launch_cost(ctx, launch);
        one.flop += cost.flop, one.read += cost.read, one.written += cost.written;
        one.least += mpt__profile_least(&profile->config, launch, &cost);
    }
    mpt__profile_turn(profile);
    mpt__profile_add(&profile->all, &one, true);
    mpt__profile_add(&profile->kernels[MPT__PROFILE_GRAPH], &one, true);
    mpt__profile_add(&profile->ops[0][MPT__OTHER], &one, true);
    mpt__profile_module *module = mpt__profile_module_row(ctx, 0);
    if (module) mpt__profile_add(&module->sums[MPT__OTHER], &one, true);
    profile->last = end;
    if (!profile->spans) return;
    mpt__profile_close(profile, 0, profile->start);
    mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, profile->start);
    mpt__profile_launch_span(ctx, MPT__PROFILE_GRAPH, MPT__OTHER, &one, end);
    mpt__profile_close(profile, 0, end);
}
#endif

static void mpt__profile_step_began(MPT__HEARS) {
    MPT__PLAIN_FLOATS;
    mpt__profile *profile = (mpt__profile *)user;
    (void)what;
    mpt__profile_turn(profile);
    if (!profile->spans) return;
    mpt__profile_close(profile, 0, profile->last);
    mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, mpt__profile_now(ctx));
}

static void mpt__profile_step_ended(MPT__HEARS) {
    MPT__PLAIN_FLOATS;
    mpt__profile *profile = (mpt__profile *)user;
    (void)what;
    mpt__profile_turn(profile);
    if (profile->depth > 0) mpt__profile_close(profile, 0, mpt__profile_now(ctx));
}

static void mpt__profile_batch_came(MPT__HEARS) {
    const mpt__batch_wait *wait = (const mpt__batch_wait *)what;
    mpt__profile *profile = (mpt__profile *)user;
    profile->waits.calls++;
    profile->waits.seconds += wait->end - wait->start;
    mpt__profile_turn(profile);
    if (!ctx->step_depth) mpt__profile_close(profile, 0, profile->last);
    if (!profile->spans) return;
    mpt__profile_span *span = mpt__profile_span_new(ctx, MPT_SPAN_WAIT, 0, MPT__OTHER, wait->start);
    if (span) span->end = wait->end;
    if (!wait->worker || wait->began < profile->began) return;
    span = mpt__profile_span_new(ctx, MPT_SPAN_BATCH, 0, MPT__OTHER, wait->began);
    if (span) span->end = wait->ended, span->thread = wait->worker;
}

/* ==== Beginning and ending ==== */

static const struct {
    mpt__event event;
    mpt__hear hear;
} mpt__profile_hears[] = {{MPT__LAUNCHES, mpt__profile_launches},
    {MPT__LAUNCHED, mpt__profile_launched}, {MPT__STEP_BEGAN, mpt__profile_step_began},
#ifndef MPTRAIN_NO_GRAPH
    {MPT__REPEAT_BEGAN, mpt__profile_repeat_began}, {MPT__REPEAT_ENDED, mpt__profile_repeat_ended},
#endif
    {MPT__STEP_ENDED, mpt__profile_step_ended}, {MPT__BATCH_CAME, mpt__profile_batch_came}};
#define MPT__PROFILE_HEARS (int)(sizeof mpt__profile_hears / sizeof mpt__profile_hears[0])

static void mpt__profile_stop(mpt_context *ctx) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    if (!profile->on) return;
    for (int i = 0; i < MPT__PROFILE_HEARS; i++)
        mpt__listen_no_more(ctx, mpt__profile_hears[i].event, mpt__profile_hears[i].hear);
    mpt__profile_turn(profile);
    profile->ended = mpt__profile_now(ctx);
    mpt__profile_close(profile, 0, profile->ended);
    profile->last_step = ctx->now.step;
    profile->on = false;
}

static void mpt__profile_drop(mpt_context *ctx) {
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    mpt__profile_stop(ctx);
    mpt__room_free(ctx, profile->modules, profile->module_capacity);
    mpt__room_free(ctx, profile->spans, profile->spans ? profile->config.spans : 0);
    mpt__host_free(ctx, profile, sizeof *profile);
    ctx->profile = NULL;
}

static void mpt__profile_free(mpt_context *ctx) {
    if (ctx->profile) ((mpt__profile *)ctx->profile)->free(ctx);
}

static bool mpt__profile_check(mpt_context *ctx, const mpt_profile_config *config) {
    const double ceilings[] = {
        config->product[0], config->product[1], config->product[2], config->copy};
    if (config->spans < 0)
        return mpt__reject(ctx, ARGUMENT, "spans = %lld: expected 0 or more", config->spans);
    for (int i = 0; i < 4; i++)
        if (!(ceilings[i] >= 0.0 && mpt__f64_is_finite(ceilings[i])))
            return mpt__reject(ctx, ARGUMENT, "%s = %g: expected a finite number, 0 for unknown",
                i < 3 ? "product" : "copy", ceilings[i]);
    return true;
}

/* All memory of a profile, with rows for the modules that there are; false with an error. */
static bool mpt__profile_make(mpt_context *ctx, const mpt_profile_config *config) {
    mpt__profile *profile = (mpt__profile *)mpt__host_new(ctx, sizeof *profile);
    if (!profile) return false;
    ctx->profile = profile;
    profile->free = mpt__profile_drop;
    if (config->spans > 0)
        profile->spans = (mpt__profile_span *)mpt__host_array(
            ctx, config->spans, sizeof *profile->spans);
    profile->config = *config;
    if (mpt__ok(ctx) &&
        mpt__room(ctx, profile->modules, profile->module_capacity, ctx->path_count + 1))
        return true;
    mpt__profile_drop(ctx);
    return false;
}

mpt_status mpt_profile_begin(mpt_context *ctx, const mpt_profile_config *config) {
    MPT__PLAIN_FLOATS;
    const mpt_profile_config defaults = mpt_profile_config_default();
    if (!mpt__enter(ctx, "mpt_profile_begin")) return mpt__status_of(ctx);
    if (!config) config = &defaults;
    if (!mpt__profile_check(ctx, config)) return ctx->base.status;
    mpt__profile_free(ctx);
    if (!mpt__profile_make(ctx, config)) return ctx->base.status;
    mpt__profile *profile = (mpt__profile *)ctx->profile;
    mpt__wait(ctx); /* for what was launched before */
    profile->on = true;
    for (int i = 0; i < MPT__PROFILE_HEARS && mpt__ok(ctx); i++)
        mpt__listen(ctx, mpt__profile_hears[i].event, mpt__profile_hears[i].hear, profile);
    profile->first_step = ctx->now.step;
    profile->began = profile->last = mpt__profile_now(ctx);
    if (!mpt__ok(ctx)) mpt__profile_drop(ctx);
    return ctx->base.status;
}

mpt_status mpt_profile_end(mpt_context *ctx) {
    MPT__PLAIN_FLOATS;
    if (mpt__enter(ctx, "mpt_profile_end") && ctx->profile) mpt__profile_stop(ctx);
    return mpt__status_of(ctx);
}

/* ==== What was found ==== */

/* Begins a call that reads a profile; NULL on error. */
static mpt__profile *mpt__profile_read(mpt_context *ctx, const char *call) {
    if (!mpt__enter(ctx, call)) return NULL;
    if (!ctx->profile)
        mpt__error(ctx, STATE, "there is no profile; mpt_profile_begin begins one");
    return (mpt__profile *)ctx->profile;
}

static mpt_profile_row mpt__profile_row_of(
    const mpt__profile_sum *sum, const char *name, const char *phase) {
    mpt_profile_row row;
    row.name = name, row.phase = phase;
    row.calls = sum->calls, row.launches = sum->launches;
    row.seconds = sum->seconds;
    row.flop = sum->flop, row.bytes_read = sum->read, row.bytes_written = sum->written;
    row.least = sum->least;
    return row;
}

static int64_t mpt__profile_places(const mpt__profile *profile, mpt_profile_by by) {
    if (by == MPT_PROFILE_KERNEL) return MPT__KERNEL_COUNT + 1;
    return MPT__PROFILE_PHASES *
        (by == MPT_PROFILE_OP ? (int64_t)MPT__OP_COUNT : profile->module_capacity);
}

static const char *mpt__profile_kernel(int64_t i) {
    return i < MPT__PROFILE_GRAPH ? mpt__kernel_names[i] : "graph";
}

/* Row i of all that there may be. */
static mpt_profile_row mpt__profile_row(const mpt_context *ctx, mpt_profile_by by, int64_t i) {
    const mpt__profile *profile = (const mpt__profile *)ctx->profile;
    const int64_t id = i / MPT__PROFILE_PHASES;
    const int phase = (int)(i % MPT__PROFILE_PHASES);
    const char *name = "-";
    if (by == MPT_PROFILE_KERNEL)
        return mpt__profile_row_of(&profile->kernels[i], mpt__profile_kernel(i), "");
    if (by == MPT_PROFILE_OP) {
        if (id > 0) name = ctx->ops[id].name;
        return mpt__profile_row_of(&profile->ops[id][phase], name, mpt__phase_names[phase]);
    }
    if (id > 0 && id < ctx->path_count) name = ctx->paths[id];
    return mpt__profile_row_of(&profile->modules[id].sums[phase], name, mpt__phase_names[phase]);
}

/* The rows of most time, in that order; returns how many there are. */
static int64_t mpt__profile_sorted(
    const mpt_context *ctx, mpt_profile_by by, mpt_profile_row *rows, int64_t room) {
    const int64_t places = mpt__profile_places((const mpt__profile *)ctx->profile, by);
    int64_t count = 0;
    for (int64_t i = 0; i < places; i++) {
        const mpt_profile_row row = mpt__profile_row(ctx, by, i);
        if (row.launches == 0) continue;
        int64_t at = count < room ? count : room;
        count++;
        for (; at > 0 && rows[at - 1].seconds < row.seconds; at--)
            if (at < room) rows[at] = rows[at - 1];
        if (at < room) rows[at] = row;
    }
    return count;
}

int64_t mpt_profile_rows(
    mpt_context *ctx, mpt_profile_by by, mpt_profile_row *rows, int64_t room) {
    MPT__PLAIN_FLOATS;
    if (!mpt__profile_read(ctx, "mpt_profile_rows")) return -1;
    if ((int)by < MPT_PROFILE_OP || by > MPT_PROFILE_KERNEL || room < 0 || (room > 0 && !rows)) {
        mpt__error(ctx, ARGUMENT,
            "by = %d, room for %lld rows%s: expected 0 to %d, and an array of 0 rows or more",
            (int)by, room, rows ? "" : " at NULL", (int)MPT_PROFILE_KERNEL);
        return -1;
    }
    return mpt__profile_sorted(ctx, by, rows, room);
}

static mpt_profile_total mpt__profile_total_of(const mpt_context *ctx) {
    const mpt__profile *profile = (const mpt__profile *)ctx->profile;
    mpt_profile_total total;
    total.seconds = (profile->on ? mpt__profile_now(ctx) : profile->ended) - profile->began;
    total.steps = (profile->on ? ctx->now.step : profile->last_step) - profile->first_step;
    total.batches = profile->waits.calls;
    total.waiting = profile->waits.seconds;
    total.conversions = profile->conversions.seconds;
    total.all = mpt__profile_row_of(&profile->all, "-", "");
    total.spans = profile->span_count;
    total.left_out = profile->left_out;
    return total;
}

mpt_profile_total mpt_get_profile_total(mpt_context *ctx) {
    MPT__PLAIN_FLOATS;
    mpt_profile_total total;
    mpt__zero(total);
    total.all.name = "-", total.all.phase = "";
    if (mpt__profile_read(ctx, "mpt_get_profile_total")) total = mpt__profile_total_of(ctx);
    return total;
}

static const char *mpt__profile_span_name(const mpt_context *ctx, const mpt__profile_span *span) {
    static const char *const names[] = {"step", NULL, NULL, NULL, "wait", "batch"};
    return span->kind == MPT_SPAN_MODULE ? mpt__path_text(ctx, span->id)
        : span->kind == MPT_SPAN_OP      ? ctx->ops[span->id].name
        : span->kind == MPT_SPAN_LAUNCH  ? mpt__profile_kernel(span->id)
                                         : names[span->kind];
}

int64_t mpt_profile_spans(
    mpt_context *ctx, void (*each)(void *user, const mpt_profile_span *span), void *user) {
    MPT__PLAIN_FLOATS;
    const mpt__profile *profile = mpt__profile_read(ctx, "mpt_profile_spans");
    if (!profile) return -1;
    if (!each) return mpt__error(ctx, ARGUMENT, "each is NULL"), -1;
    for (int64_t i = 0; i < profile->span_count; i++) {
        const mpt__profile_span *from = &profile->spans[i];
        const double now = profile->last > from->start ? profile->last : from->start;
        mpt_profile_span span;
        span.kind = (mpt_span_kind)from->kind;
        span.name = mpt__profile_span_name(ctx, from);
        span.phase = from->kind == MPT_SPAN_STEP || from->kind > MPT_SPAN_LAUNCH
            ? ""
            : mpt__phase_names[from->phase];
        span.thread = from->thread;
        span.step = from->step;
        span.start = from->start - profile->began;
        span.seconds = (from->end < from->start ? now : from->end) - from->start;
        span.flop = from->flop;
        span.bytes_read = from->read, span.bytes_written = from->written;
        span.memory = from->memory;
        each(user, &span);
    }
    return profile->span_count;
}

/* ==== As text ==== */

/* A number at the right of so many columns. */
static void mpt__profile_cell(mpt__text *out, int width, double value) {
    char cell[32];
    for (int n = (int)mpt__format_text(cell, sizeof cell, "%.4g", value); n < width; n++)
        mpt__write_text(out, " ");
    mpt__write_text(out, "%s", cell);
}

static void mpt__profile_words(mpt__text *out, int width, const char *text) {
    mpt__write_text(out, "%s", text);
    for (int n = (int)strlen(text); n < width; n++) mpt__write_text(out, " ");
}

/* A quotient that may be of nothing. */
static double mpt__profile_rate(double amount, double of) { return of > 0 ? amount / of : 0; }

static void mpt__profile_table(
    const mpt_context *ctx, mpt__text *out, mpt_profile_by by, const char *title) {
    static const int widths[] = {8, 9, 10, 8, 10, 10, 10, 10, 13};
    mpt_profile_row rows[MPT__PROFILE_TEXT_ROWS];
    const int64_t count = mpt__profile_sorted(ctx, by, rows, MPT__PROFILE_TEXT_ROWS);
    const mpt__profile *profile = (const mpt__profile *)ctx->profile;
    const double all = profile->all.seconds;
    const bool ceilings = profile->all.least > 0;
    mpt__write_text(out, "\n");
    mpt__profile_words(out, 36, title);
    mpt__write_text(out, "   calls launches        ms       %%     GFLOP   GFLOP/s        MB");
    mpt__write_text(out, "      GB/s%s\n", ceilings ? " % of ceiling" : "");
    for (int64_t i = 0; i < count && i < MPT__PROFILE_TEXT_ROWS; i++) {
        const mpt_profile_row *row = &rows[i];
        const double bytes = row->bytes_read + row->bytes_written;
        mpt__profile_words(out, 26, row->name);
        mpt__write_text(out, " ");
        mpt__profile_words(out, 9, row->phase);
        const double cells[] = {(double)row->calls, (double)row->launches, 1e3 * row->seconds,
            mpt__profile_rate(100 * row->seconds, all), 1e-9 * row->flop,
            mpt__profile_rate(1e-9 * row->flop, row->seconds), 1e-6 * bytes,
            mpt__profile_rate(1e-9 * bytes, row->seconds),
            mpt__profile_rate(100 * row->least, row->seconds)};
        for (int k = 0; k < 8 + ceilings; k++) mpt__profile_cell(out, widths[k], cells[k]);
        mpt__write_text(out, "\n");
    }
    if (count > MPT__PROFILE_TEXT_ROWS)
        mpt__write_text(out, "and %lld more\n", count - MPT__PROFILE_TEXT_ROWS);
}

size_t mpt_profile_text(mpt_context *ctx, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt__text out = mpt__text_make(text, size);
    if (!mpt__profile_read(ctx, "mpt_profile_text")) return 0;
    const mpt_profile_total total = mpt__profile_total_of(ctx);
    const double percent = mpt__profile_rate(100, total.seconds);
    mpt__write_text(&out,
        "%lld steps in %.4g s: %.3g %% in launches (%.3g %% casts and derived forms), %.3g %% "
        "waiting for %lld batches, %.3g %% between them\n",
        total.steps, total.seconds, percent * total.all.seconds, percent * total.conversions,
        percent * total.waiting, total.batches,
        percent * (total.seconds - total.all.seconds - total.waiting));
    mpt__profile_table(ctx, &out, MPT_PROFILE_OP, "op");
    mpt__profile_table(ctx, &out, MPT_PROFILE_MODULE, "module");
    mpt__profile_table(ctx, &out, MPT_PROFILE_KERNEL, "kernel");
    return out.length;
}

#endif
