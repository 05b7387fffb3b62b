/* ----
 * parallel/shards.c: states of an optimizer of which each rank holds a part (ZeRO-1).
 *
 * Each state, which mirrors a flat piece of weights, is cut into as many parts as there are ranks.
 * A rank updates the weights of its own part, with the kernel and the numbers of the whole state,
 * and gets the others from theirs. Step counts, norms and scales are kept whole: they are small,
 * and all ranks have the same gradients. Moments of bytes are cut between blocks of codes.
 * ---- */
#ifndef MPT__PARALLEL_SHARDS_INCLUDED
#define MPT__PARALLEL_SHARDS_INCLUDED

#include "parallel/data.c"

enum { MPT__SHARD_GRAIN = 16 }; /* elements; parts begin at multiples */

typedef struct {
    int64_t begin, end, bytes; /* elements of the state; bytes of moments with codes */
    uint32_t mirror[MPT__MIRRORS];
} mpt__shard;

/* What hangs on an optimizer whose states are in parts. */
typedef struct {
    mpt__own own;
    int world, rank;
    int64_t state_count;
    uint32_t segments;
    uint64_t patterns; /* of which the rows are; 0: none yet */
    int64_t *bounds;   /* world + 1 for each state */
    int64_t *place;    /* by item, as in its row, among the moments of this part */
    int64_t *rows;     /* behind them the group of each */
    mpt__shard *of;    /* by state */
    int *count, *at;   /* bytes by rank, of one message */
} mpt__shards;

/* ==== Cutting ==== */

/* Elements [*lo, *hi) of an item that lie in a part; an item's first element in its state. */
static int64_t mpt__shard_piece(const mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__optim_item *item, int64_t begin, int64_t end, int64_t *lo, int64_t *hi) {
    const mpt__parameter *parameter = &ctx->parameters[item->parameter];
    const int64_t first = parameter->offset - optimizer->states[item->state].first;
    *lo = begin > first ? begin - first : 0;
    *hi = end < first + parameter->numel ? end - first : parameter->numel;
    if (*lo > parameter->numel) *lo = parameter->numel;
    if (*hi < *lo) *hi = *lo;
    return first;
}

/* Bytes of moments and masters before an element of state s. */
static int64_t mpt__shard_before(
    const mpt_context *ctx, const mpt__optimizer *optimizer, int64_t s, int64_t at) {
    const mpt__optim_state *state = &optimizer->states[s];
    int64_t moments = 0, bytes = 0;
    for (int k = 0; k < MPT__MASTER; k++) moments += state->mirror[k] != 0;
    for (int64_t i = 0; i < optimizer->item_count && mpt__coded(optimizer); i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        int64_t lo, hi;
        if (item->state != (uint32_t)s) continue;
        mpt__shard_piece(ctx, optimizer, item, 0, at, &lo, &hi);
        bytes += item->place < 0 ? hi + 4 * mpt__code_blocks(hi) : 4 * hi;
    }
    if (!mpt__coded(optimizer)) bytes = 4 * at;
    return bytes * moments + (state->mirror[MPT__MASTER] ? 4 * at : 0);
}

/* Where the part of rank r begins in state s: parts are of as many bytes. */
static int64_t mpt__shard_bound(
    const mpt_context *ctx, const mpt__optimizer *optimizer, int64_t s, int r, int world) {
    const mpt__optim_state *state = &optimizer->states[s];
    const int64_t all = mpt__shard_before(ctx, optimizer, s, state->count);
    const int64_t wanted = (int64_t)((double)all / world * r);
    int64_t at = 0, end = state->count;
    if (r == world) return state->count;
    while (at < end) {
        const int64_t middle = at + (end - at) / 2;
        if (mpt__shard_before(ctx, optimizer, s, middle) < wanted)
            at = middle + 1;
        else
            end = middle;
    }
    at = at / MPT__SHARD_GRAIN * MPT__SHARD_GRAIN;
    for (int64_t i = 0; i < optimizer->item_count && mpt__coded(optimizer); i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        int64_t lo, hi;
        if (item->state != (uint32_t)s || item->place >= 0) continue;
        const int64_t first =
            mpt__shard_piece(ctx, optimizer, item, at, state->count, &lo, &hi);
        if (lo > 0 && hi > lo) return first + lo / MPT__CODE_BLOCK * MPT__CODE_BLOCK;
    }
    return at;
}

/* Where each item's moments with codes lie in this rank's part, and how many bytes they take. */
static void mpt__shard_places(
    const mpt_context *ctx, const mpt__optimizer *optimizer, mpt__shards *shards) {
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        mpt__shard *shard = &shards->of[item->state];
        int64_t lo, hi;
        mpt__shard_piece(ctx, optimizer, item, shard->begin, shard->end, &lo, &hi);
        const int64_t n = hi - lo;
        const bool coded = mpt__coded(optimizer) && item->place < 0;
        shards->place[i] = coded ? ~shard->bytes : shard->bytes;
        const int64_t bytes = coded ? mpt__code_peaks(n) + 4 * mpt__code_blocks(n) : 4 * n;
        if (n > 0) shard->bytes += (bytes + 63) / 64 * 64;
    }
}

/* The rows of the optimizer's pattern, as far as they lie in this rank's part. All of them stay, if
   empty: steps are counted by row. */
static mpt_status mpt__shard_rows(
    mpt_context *ctx, const mpt__optimizer *optimizer, mpt__shards *shards) {
    if (shards->patterns == optimizer->patterns) return MPT_OK;
    const size_t groups = (size_t)optimizer->row_count * sizeof(int64_t);
    memcpy(shards->rows, optimizer->rows, groups * MPT__SEGMENT_FIELDS);
    memcpy(shards->rows + optimizer->item_capacity * MPT__SEGMENT_FIELDS,
        mpt__row_groups(optimizer), groups);
    for (int64_t s = 0; s < optimizer->state_count; s++) {
        const mpt__optim_state *state = &optimizer->states[s];
        const mpt__shard *shard = &shards->of[s];
        for (int64_t r = state->row; r < state->row + state->rows; r++) {
            int64_t *row = &shards->rows[r * MPT__SEGMENT_FIELDS];
            int64_t begin = row[MPT__SEGMENT_OFFSET], end = begin + row[MPT__SEGMENT_COUNT];
            begin = begin < shard->begin ? shard->begin : begin;
            end = end > shard->end ? shard->end : end;
            row[MPT__SEGMENT_OFFSET] = end > begin ? begin - shard->begin : 0;
            row[MPT__SEGMENT_COUNT] = end > begin ? end - begin : 0;
            if (mpt__coded(optimizer))
                row[MPT__SEGMENT_PLACE] = shards->place[row[MPT__SEGMENT_STEP]];
        }
    }
    mpt_status status = mpt__upload(
        ctx, shards->segments, 0, shards->rows, optimizer->row_count * MPT__ROW_BYTES);
    if (status == MPT_OK) shards->patterns = optimizer->patterns;
    return status;
}

/* ==== The update ==== */

/* The weights of all parts for all. */
static mpt_status mpt__shard_spread(mpt_context *ctx, mpt__world *w, mpt__shards *shards,
    const mpt__optimizer *optimizer, int64_t s) {
    const mpt__optim_state *state = &optimizer->states[s];
    const mpt__block *block = mpt__block_of(ctx, state);
    const int64_t size = (int64_t)mpt_dtype_size((mpt_dtype)block->dtype);
    const int64_t *bounds = shards->bounds + s * (shards->world + 1);
    for (int r = 0; r < shards->world; r++) {
        shards->at[r] = (int)(bounds[r] * size);
        shards->count[r] = (int)((bounds[r + 1] - bounds[r]) * size);
    }
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE,
        (char *)ctx->data[block->values] + state->first * size, shards->count, shards->at, MPI_BYTE,
        w->comm[MPT__MPI_CALLS], &request);
    return mpt__world_wait(ctx, w, &request, 1, code);
}

/* What is launched for one state. */
static void mpt__shard_launch(mpt_context *ctx, const mpt__optimizer *shadow,
    const mpt__shard *shard, mpt__optim_state *state, uint16_t found_slot) {
    const int64_t *group = mpt__row_groups(shadow);
    mpt__block *block = mpt__block_of(ctx, state);
    mpt__optim_state part = *state;
    part.first += shard->begin, part.count = shard->end - shard->begin;
    memcpy(part.mirror, shard->mirror, sizeof part.mirror);
    part.bytes = shard->bytes;
    mpt__master_refresh(ctx, shadow, &part);
    const uint16_t pending = shadow->slot[MPT__OPTIM_MULTIPLIER];
    if (block->multiplier_slot != pending) mpt__materialise_gradients(ctx, block);
    const mpt__update_place place = {block->gradients, part.first, part.count, part.first,
        block->multiplier_slot ? pending : (uint16_t)MPT__SLOT_ONE};
    int64_t row = state->row, end = row + state->rows, rows;
    for (; row < end; row += rows) {
        for (rows = 1; row + rows < end && group[row + rows] == group[row];) rows++;
        mpt__submit(
            ctx, mpt__update_launch(ctx, shadow, &part, -1, row, rows, found_slot, &place));
    }
}

static mpt_status mpt__shard_update(
    mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
    mpt__shards *shards = (mpt__shards *)(void *)optimizer->own;
    mpt__world *w = mpt__world_of(ctx);
    if (!w || w->lost)
        return mpt__error(ctx, STATE,
            "the states of the optimizer lie on %d ranks, and the others are gone", shards->world);
    if (mpt__shard_rows(ctx, optimizer, shards) != MPT_OK) return ctx->base.status;
    mpt__optimizer shadow = *optimizer;
    shadow.rows = shards->rows, shadow.segments = shards->segments;
    for (int64_t s = 0; s < optimizer->state_count && mpt__ok(ctx); s++) {
        mpt__optim_state *state = &optimizer->states[s];
        if (!state->rows) continue;
        mpt__shard_launch(ctx, &shadow, &shards->of[s], state, found_slot);
        if (mpt__ok(ctx)) mpt__shard_spread(ctx, w, shards, optimizer, s);
        mpt__values_updated(ctx, optimizer, state, -1);
    }
    return ctx->base.status;
}

/* ==== There and back ==== */

static bool mpt__shard_of_bytes(const mpt__optimizer *optimizer, int k) {
    return mpt__coded(optimizer) && k < MPT__MASTER;
}

/* Moves this rank's part of mirror k between where all of it lies and where the part does. */
static void mpt__shard_move(const mpt_context *ctx, const mpt__optimizer *optimizer,
    const mpt__shards *shards, int64_t s, int k, uint32_t whole, bool back) {
    const mpt__shard *shard = &shards->of[s];
    char *all = (char *)ctx->data[whole], *part = (char *)ctx->data[shard->mirror[k]];
    const size_t plain = (size_t)(shard->end - shard->begin) * 4;
    if (!mpt__shard_of_bytes(optimizer, k)) {
        char *here = all + shard->begin * 4;
        memcpy(back ? here : part, back ? part : here, plain);
        return;
    }
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        const mpt__optim_item *item = &optimizer->items[i];
        const int64_t numel = ctx->parameters[item->parameter].numel, to = shards->place[i];
        int64_t lo, hi;
        if (item->state != (uint32_t)s) continue;
        mpt__shard_piece(ctx, optimizer, item, shard->begin, shard->end, &lo, &hi);
        const bool coded = item->place < 0;
        const int64_t n = hi - lo;
        if (n <= 0) continue;
        char *here = all + (coded ? ~item->place + lo : item->place + 4 * lo);
        char *there = part + (coded ? ~to : to);
        memcpy(back ? here : there, back ? there : here, (size_t)(coded ? n : 4 * n));
        if (!coded) continue;
        here = all + ~item->place + mpt__code_peaks(numel) + lo / MPT__CODE_BLOCK * 4;
        there += mpt__code_peaks(n);
        memcpy(back ? here : there, back ? there : here, (size_t)mpt__code_blocks(n) * 4);
    }
}

static void mpt__shards_free(mpt_context *ctx, mpt__own *own) {
    mpt__shards *shards = (mpt__shards *)(void *)own;
    for (int64_t s = 0; s < shards->state_count; s++)
        for (int k = 0; k < MPT__MIRRORS; k++) mpt__storage_forget(ctx, &shards->of[s].mirror[k]);
    mpt__storage_forget(ctx, &shards->segments);
}

/* There is nothing to show: a file or hash of a part is no use to anybody. */
static mpt_status mpt__shards_visit(mpt_context *ctx, mpt__own *own, mpt__state_item *item,
    mpt__state_visitor visit, void *user) {
    (void)own, (void)item, (void)visit, (void)user;
    return mpt__error(ctx, STATE,
        "each rank has a part of the optimizer's states; call mpt_shard_states with false on all "
        "ranks before they are saved, loaded or hashed");
}

static mpt_status mpt__shards_admit(mpt_context *ctx, mpt__optimizer *optimizer, mpt_module module,
    const char *path, int64_t group) {
    (void)optimizer, (void)module, (void)path, (void)group;
    return mpt__error(ctx, STATE,
        "each rank has a part of the optimizer's states; call mpt_shard_states with false on all "
        "ranks before parameters are added");
}

/* The parts and where they lie, without memory for them yet. */
static mpt__shards *mpt__shards_new(
    mpt_context *ctx, mpt__optimizer *optimizer, int world, int rank) {
    const int64_t states = optimizer->state_count, items = optimizer->item_capacity;
    const int64_t bytes[] = {(int64_t)sizeof(mpt__shards), states * (world + 1) * 8, items * 8,
        items * (MPT__SEGMENT_FIELDS + 1) * 8, states * (int64_t)sizeof(mpt__shard),
        2 * world * (int64_t)sizeof(int)};
    int64_t all = 64;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) all += (bytes[i] + 63) / 64 * 64;
    char *at = (char *)mpt__host_new(ctx, (size_t)all);
    if (!at) return NULL;
    memset(at, 0, (size_t)all);
    mpt__shards *shards = (mpt__shards *)mpt__carve(&at, bytes[0]);
    shards->bounds = (int64_t *)mpt__carve(&at, bytes[1]);
    shards->place = (int64_t *)mpt__carve(&at, bytes[2]);
    shards->rows = (int64_t *)mpt__carve(&at, bytes[3]);
    shards->of = (mpt__shard *)mpt__carve(&at, bytes[4]);
    shards->count = (int *)mpt__carve(&at, bytes[5]), shards->at = shards->count + world;
    shards->own.bytes = (size_t)all;
    shards->own.update = mpt__shard_update, shards->own.end = mpt__shards_free;
    shards->own.visit = mpt__shards_visit, shards->own.admit = mpt__shards_admit;
    shards->world = world, shards->rank = rank, shards->state_count = states;
    for (int64_t s = 0; s < states; s++) {
        int64_t *bounds = shards->bounds + s * (world + 1);
        for (int r = 0; r <= world; r++)
            bounds[r] = mpt__shard_bound(ctx, optimizer, s, r, world);
        shards->of[s].begin = bounds[rank], shards->of[s].end = bounds[rank + 1];
    }
    mpt__shard_places(ctx, optimizer, shards);
    shards->segments = mpt__storage_new(ctx, (items + 1) * MPT__ROW_BYTES, MPT_MEMORY_WORKSPACE,
        MPT__FROM_DEVICE, false);
    return shards;
}

/* From whole states to parts. */
static mpt_status mpt__shards_begin(
    mpt_context *ctx, mpt__optimizer *optimizer, mpt__shards *shards) {
    for (int64_t s = 0; s < shards->state_count; s++)
        for (int k = 0; k < MPT__MIRRORS && mpt__ok(ctx); k++) {
            mpt__shard *shard = &shards->of[s];
            uint32_t *whole = &optimizer->states[s].mirror[k];
            const int64_t bytes =
                mpt__shard_of_bytes(optimizer, k) ? shard->bytes : (shard->end - shard->begin) * 4;
            if (!*whole) continue;
            shard->mirror[k] = mpt__storage_new(ctx, bytes + 64,
                k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
            if (!shard->mirror[k]) break;
            mpt__shard_move(ctx, optimizer, shards, s, k, *whole, false);
            mpt__storage_forget(ctx, whole);
        }
    return ctx->base.status;
}

/* From parts to whole states: each rank has zeros where it has no part, and the bits of all
   together are the state's. */
static mpt_status mpt__shards_end(mpt_context *ctx, mpt__world *w, mpt__optimizer *optimizer) {
    mpt__shards *shards = (mpt__shards *)(void *)optimizer->own;
    for (int64_t s = 0; s < shards->state_count; s++)
        for (int k = 0; k < MPT__MIRRORS && mpt__ok(ctx); k++) {
            mpt__optim_state *state = &optimizer->states[s];
            const int64_t bytes =
                mpt__shard_of_bytes(optimizer, k) ? state->bytes : state->count * 4;
            if (!shards->of[s].mirror[k]) continue;
            uint32_t whole = mpt__storage_new(ctx, bytes,
                k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
            if (!whole) break;
            mpt__shard_move(ctx, optimizer, shards, s, k, whole, true);
            mpt__reduce_staged(ctx, w, (char *)ctx->data[whole], bytes / 4, MPT_I32, MPI_INT32_T,
                MPI_BOR);
            if (w->lost) break; /* MPI may still write there */
            state->mirror[k] = whole;
            mpt__storage_forget(ctx, &shards->of[s].mirror[k]);
        }
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__shards_free(ctx, optimizer->own);
    optimizer->own = NULL;
    mpt__host_free(ctx, shards, shards->own.bytes);
    return MPT_OK;
}

static bool mpt__shards_may_begin(mpt_context *ctx, const mpt__world *w, const mpt__optimizer *o) {
    if (o->own || o->inside || o->stochastic)
        return mpt__reject(ctx, UNSUPPORTED,
            "states of L-BFGS, Muon, optimizers of your own, with mpt_update_in_backward or "
            "stochastic rounding cannot be sharded");
    const mpt__net *n = mpt__net_of(w);
    bool reduced = false; /* some of the gradients: weights that are frozen have none */
    for (int64_t i = 0; n && i < o->item_count; i++)
        reduced = reduced ||
            (o->items[i].parameter < n->known && n->slice_of[o->items[i].parameter] != 0);
    if (!reduced)
        return mpt__reject(ctx, STATE,
            "call mpt_data_parallel first, with the net of the optimizer: ranks need equal "
            "gradients");
    for (int64_t s = 0; s < o->state_count; s++)
        if (o->states[s].count > mpt__mpi_bytes / 8)
            return mpt__reject(ctx, UNSUPPORTED, "%lld weights in one piece: at most 2^27",
                o->states[s].count);
    return true;
}

mpt_status mpt_shard_states(mpt_optimizer handle, bool on) {
    mpt_context *ctx = handle.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_shard_states");
    mpt__optimizer *optimizer = w ? mpt__optimizer_at(ctx, handle) : NULL;
    if (!optimizer || !mpt__not_updating(ctx, optimizer)) return mpt__status_of(ctx);
    const bool sharded = optimizer->own && optimizer->own->update == mpt__shard_update;
    if (sharded == on) return MPT_OK;
    if (on && !mpt__shards_may_begin(ctx, w, optimizer)) return ctx->base.status;
    if (!mpt__tickets_agree(ctx, w, "mpt_shard_states", NULL, on)) return ctx->base.status;
    if (!on) return mpt__shards_end(ctx, w, optimizer);
    mpt__shards *shards = mpt__shards_new(ctx, optimizer, w->world, w->rank);
    if (!shards) return ctx->base.status;
    optimizer->own = &shards->own;
    return mpt__shards_begin(ctx, optimizer, shards);
}

#endif
