/* ----
 * parallel/data.c: data parallel: a backward pass whose gradients are those of all ranks.
 * ---- */
#ifndef MPT__PARALLEL_DATA_INCLUDED
#define MPT__PARALLEL_DATA_INCLUDED

#include "parallel/norms.c"

enum { MPT__MOST_BATCHES = 1 << 20 };

/* ==== A pass ==== */

/* Whether the net is as it was when mpt_data_parallel looked, else an error. */
static bool mpt__net_stands(mpt_context *ctx, const mpt__net *n) {
    for (int64_t i = 0; i < n->count; i++) {
        const mpt__parameter *parameter = &ctx->parameters[n->slices[i].parameter];
        if (!parameter->live || parameter->numel != n->slices[i].numel)
            return mpt__reject(ctx, STATE,
                "the net of mpt_data_parallel was destroyed or changed; call it again, for what "
                "is trained now");
    }
    return true;
}

static bool mpt__net_has_gradients(const mpt_context *ctx, const mpt__net *n) {
    for (int64_t i = 0; i < n->count; i++)
        if (ctx->parameters[n->slices[i].parameter].has_grad) return true;
    return false;
}

/* What is to become of this pass: whether it ends in a reduction. */
static mpt_status mpt__pass_kind(mpt_context *ctx, mpt__net *n) {
    const int64_t most = n->config.micro_batches;
    const bool left = mpt__net_has_gradients(ctx, n);
    n->collecting = n->config.deterministic && most > 1;
    if (!left) n->micro = 0; /* mpt_zero_grad or mpt_clear_error: from the beginning */
    if (n->no_sync > 0 && most > 1)
        return mpt__error(ctx, STATE,
            "mpt_no_sync_begin is for micro_batches = 1: more of them keep count themselves");
    if (left && n->micro == 0 && most > 1)
        return mpt__error(ctx, STATE,
            "there are gradients before the first of %lld micro-batches; call mpt_zero_grad behind "
            "each optimizer step",
            most);
    n->reducing = n->no_sync == 0 && n->micro == most - 1;
    if (n->micro == 0) {
        n->nodes.count = 0;
        n->nonfinite = -1;
        memset(n->used, 0, (size_t)n->count);
    }
    for (int64_t i = 0; i < n->count && n->collecting; i++) /* they have been taken along */
        ctx->parameters[n->slices[i].parameter].has_grad = false;
    return MPT_OK;
}

/* Where the gradient of a parameter of the net goes; NULL: it is none. */
static mpt__gradient_slice *mpt__slice_of(const mpt__net *n, const mpt__tensor *tensor) {
    if (!tensor || !tensor->parameter || (int64_t)tensor->parameter > n->known) return NULL;
    const int32_t at = n->slice_of[tensor->parameter - 1];
    return at ? &n->slices[at - 1] : NULL;
}

/* Notes behind which record each gradient is ready, and for how many each bucket waits. */
static void mpt__pass_look(mpt__net *n, const mpt__record *order) {
    for (int64_t i = 0; i < n->count; i++) n->slices[i].last = 0, n->slices[i].ready = INT32_MAX;
    for (int64_t b = 0; b < n->bucket_count; b++) n->buckets[b].waits = 0;
    for (const mpt__record *record = order; record; record = record->next)
        for (int i = 0; i < record->n_in; i++) {
            mpt__gradient_slice *slice = mpt__slice_of(n, record->in[i]);
            if (slice) slice->last = record->number;
        }
    for (int64_t i = 0; i < n->count; i++)
        if (n->slices[i].last) n->buckets[n->slices[i].bucket].waits++;
    n->next = n->spread = n->done = 0;
    n->became_ready = 0;
}

/* Records the pass's leaf in the tree; its sums are done bucket by bucket. */
static void mpt__pass_leaf(const mpt__world *w, mpt__net *n) {
    mpt__nodes after = n->nodes;
    const mpt__node leaf = {w->rank * n->config.micro_batches + n->micro, 0};
    n->joins = n->collecting ? mpt__nodes_push(&after, leaf) : 0;
}

static mpt_status mpt__pass_begin(
    mpt_context *ctx, mpt__world *w, mpt__net *n, const mpt__record *order) {
    if (!mpt__ok(ctx) || !mpt__net_stands(ctx, n)) return ctx->base.status;
    if (mpt__pass_kind(ctx, n) != MPT_OK) return ctx->base.status;
    mpt__pass_look(n, order);
    mpt__pass_leaf(w, n);
    return MPT_OK;
}

/* A record has run: what was waiting for it is ready. */
static mpt_status mpt__pass_record(
    mpt_context *ctx, mpt__world *w, mpt__net *n, const mpt__record *record) {
    for (int i = 0; i < record->n_in; i++) {
        mpt__gradient_slice *slice = mpt__slice_of(n, record->in[i]);
        if (!slice || slice->last != record->number || slice->ready != INT32_MAX) continue;
        slice->ready = n->became_ready++;
        n->buckets[slice->bucket].waits--;
    }
    int code = mpt__buckets_advance(ctx, w, n, false);
    return code == MPI_SUCCESS ? MPT_OK : mpt__mpi_failed(ctx, w, code);
}

/* ==== Its end ==== */

static uint64_t mpt__used_hash(const mpt__net *n) {
    return mpt__hash_bytes(0, n->used, (size_t)n->count);
}

/* Waits until all buckets are there and all ranks have reported. */
static mpt_status mpt__pass_drain(mpt_context *ctx, mpt__world *w, mpt__net *n, bool failed) {
    mpt__report mine;
    MPI_Request request = MPI_REQUEST_NULL;
    const double start = MPI_Wtime();
    mpt__patience patience = mpt__patience_begin();
    int reported = 0, code = mpt__buckets_advance(ctx, w, n, true);
    mpt__zero(mine);
    mine.reduction = n->reductions, mine.used = mpt__used_hash(n), mine.sums = n->sums;
    mine.failed = failed, mine.nonfinite = n->nonfinite;
    if (code == MPI_SUCCESS)
        code = MPI_Iallgather(&mine, (int)sizeof mine, MPI_BYTE, n->reports, (int)sizeof mine,
            MPI_BYTE, w->comm[MPT__MPI_CALLS], &request);
    for (;;) {
        if (code == MPI_SUCCESS) code = mpt__mpi_test(1, &request, &reported);
        if (code == MPI_SUCCESS) code = mpt__buckets_poll(w, n);
        if (code != MPI_SUCCESS) return mpt__mpi_failed(ctx, w, code);
        if (reported && n->done == n->bucket_count) break;
        if (mpt__patience_lasts(ctx, w, &patience) != MPT_OK) return ctx->base.status;
    }
    w->stats.seconds_waited += MPI_Wtime() - start;
    return MPT_OK;
}

/* A rank has failed in this pass: it says how. */
static MPT__COLD mpt_status mpt__pass_failed(mpt_context *ctx, mpt__world *w, int rank) {
    char text[MPT__TALK_BYTES];
    memset(text, 0, sizeof text);
    mpt__format_text(text, sizeof text, "%.300s", ctx->base.message);
    mpt__world_spread(ctx, w, text, (int64_t)sizeof text, rank);
    return mpt__error(ctx, STATE, "rank %d failed: %s", rank, text);
}

/* Says once which rank gave what is not finite; a scaler expects that now and then. */
static void mpt__pass_nonfinite(mpt_context *ctx, mpt__world *w, mpt__net *n) {
    for (int r = 0; r < w->world; r++) {
        const int32_t index = n->reports[r].nonfinite;
        if (index < 0) continue;
        const char *path = "?";
        if (index < ctx->parameter_count) path = ctx->parameters[index].path;
        w->stats.nonfinite++;
        w->stats.nonfinite_rank = r;
        mpt__format_text(w->stats.nonfinite_parameter, sizeof w->stats.nonfinite_parameter, "%s",
            path);
        mpt__log(&ctx->base, ctx->loss_scaler == MPT__PLAIN ? MPT_LOG_WARNING : MPT_LOG_DEBUG,
            "mpt_backward: the gradient of %s on rank %d is not finite, and so is its mean on all "
            "ranks",
            path, r);
        return;
    }
}

/* Looks at what all ranks have reported. */
static mpt_status mpt__pass_check(mpt_context *ctx, mpt__world *w, mpt__net *n) {
    const mpt__report *first = &n->reports[0];
    bool differ = false;
    for (int r = 0; r < w->world; r++)
        if (n->reports[r].failed) return mpt__pass_failed(ctx, w, r);
    for (int r = 1; r < w->world; r++) {
        const mpt__report *report = &n->reports[r];
        if (report->reduction != first->reduction)
            return mpt__error(ctx, STATE,
                "rank %d is in reduction %lld, rank 0 in %lld: the ranks have lost step", r,
                report->reduction, first->reduction);
        if (report->sums != first->sums)
            return mpt__error(ctx, NUMERIC,
                "in the reduction before, rank %d got other gradients than rank 0, so that their "
                "weights part; mpt_broadcast_module makes them equal",
                r);
        differ |= report->used != first->used;
    }
    mpt__pass_nonfinite(ctx, w, n);
    if (!differ) return MPT_OK;
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Iallreduce(MPI_IN_PLACE, n->used, (int)n->count, MPI_UNSIGNED_CHAR, MPI_MAX,
        w->comm[MPT__MPI_CALLS], &request);
    return mpt__world_wait(ctx, w, &request, 1, code);
}

/* Buckets in the order in which rank 0 had its gradients ready: once. */
static mpt_status mpt__net_reorder(mpt_context *ctx, mpt__world *w, mpt__net *n) {
    n->ordered = true;
    if (w->world == 1) return MPT_OK;
    for (int64_t i = 0; i < n->count; i++) n->order[i] = -1;
    for (int64_t i = 0; i < n->count; i++)
        if (n->slices[i].ready != INT32_MAX)
            n->order[n->slices[i].ready] = (int32_t)n->slices[i].parameter;
    int64_t kept = n->became_ready;
    for (int64_t i = 0; i < n->count; i++)
        if (n->slices[i].ready == INT32_MAX) n->order[kept++] = (int32_t)n->slices[i].parameter;
    if (mpt__world_spread(ctx, w, n->order, n->count * (int64_t)sizeof *n->order, 0) != MPT_OK)
        return ctx->base.status;
    for (int64_t i = 0; i < n->count; i++) {
        mpt__gradient_slice *slice = &n->slices[i];
        const uint32_t index = (uint32_t)n->order[i];
        if (index >= n->known || !n->slice_of[index])
            return mpt__error(ctx, STATE, "the nets of the ranks have other numbers of parameters "
                "before them; make the same nets in the same order");
        slice->parameter = index;
        slice->numel = ctx->parameters[index].numel;
    }
    mpt__net_lay_out(n, w->world);
    for (int i = 0; i < n->levels; i++) mpt__net_clear_gaps(n, i);
    w->stats.buckets = n->bucket_count;
    w->stats.bytes = n->floats * 4;
    return MPT_OK;
}

/* The mean of all becomes the gradient. */
static mpt_status mpt__pass_reduced(mpt_context *ctx, mpt__world *w, mpt__net *n) {
    const float factor = (float)(1.0 / ((double)n->config.micro_batches * w->world));
    mpt_status status = MPT_OK;
    n->sums = 0;
    for (int64_t b = 0; b < n->bucket_count && status == MPT_OK; b++)
        status = mpt__bucket_unpack(ctx, n, &n->buckets[b], factor);
    n->reductions++;
    w->stats.reductions++;
    n->due = n->buffers && !n->config.keep_buffers;
    if (status == MPT_OK && !n->ordered) status = mpt__net_reorder(ctx, w, n);
    return status;
}

/* Batches of a step draw dropout masks of their own, numbered over all ranks. */
static void mpt__draws_begin(mpt_context *ctx, const mpt__world *w, const mpt__net *n) {
    const uint64_t first = ((uint64_t)w->rank * (uint64_t)n->config.micro_batches +
                               (uint64_t)n->micro)
        << 32;
    const mpt__object_table *table = &ctx->objects[MPT__MODULE];
    ctx->now.module_calls = first;
    for (int64_t i = 1; i < table->count; i++) {
        mpt__module *module = (mpt__module *)table->rows[i].object;
        if (!module) continue;
        module->draws.step = ctx->now.step;
        module->draws.count = first;
    }
}

static mpt_status mpt__pass_end(mpt_context *ctx, mpt__world *w, mpt__net *n, mpt_status status) {
    if (n->reducing) { /* also after an error: the others wait for it */
        const mpt_status ours = status;
        status = w->lost ? ctx->base.status : mpt__pass_drain(ctx, w, n, ours != MPT_OK);
        if (status == MPT_OK) status = mpt__pass_check(ctx, w, n);
        if (status == MPT_OK) status = ours;
        if (status == MPT_OK) status = mpt__pass_reduced(ctx, w, n);
    } else if (status == MPT_OK && n->collecting) {
        mpt__buckets_advance(ctx, w, n, true);
    }
    if (status != MPT_OK) {
        n->micro = 0;
        return status;
    }
    if (n->collecting) {
        const mpt__node leaf = {w->rank * n->config.micro_batches + n->micro, 0};
        mpt__nodes_push(&n->nodes, leaf);
    }
    if (n->no_sync == 0) n->micro = (n->micro + 1) % n->config.micro_batches;
    if (n->micro > 0) mpt__draws_begin(ctx, w, n);
    return MPT_OK;
}

/* Backward's way through records. */
static mpt_status mpt__parallel_walk(mpt_context *ctx, mpt__record *order, bool retain) {
    mpt__world *w = mpt__world_of(ctx);
    mpt__net *n = mpt__net_of(w);
    if (!n) return mpt__error(ctx, STATE, "mpt_data_parallel has ended");
    mpt_status status = mpt__pass_begin(ctx, w, n, order);
    if (status != MPT_OK) return status;
    for (mpt__record *record = order; record && status == MPT_OK; record = record->next) {
        status = mpt__backward_record(ctx, record, retain);
        if (status == MPT_OK && n->reducing) status = mpt__pass_record(ctx, w, n, record);
    }
    return mpt__pass_end(ctx, w, n, status);
}

/* ==== What is heard ==== */

/* Another feature may have taken the way through records since. */
static void mpt__parallel_loss(mpt_context *ctx, void *user, const void *what) {
    const mpt__world *w = (const mpt__world *)user;
    (void)what;
    if (w->lost)
        mpt__error(ctx, IO, "ranks were lost: no gradients can be reduced any more");
    else if (ctx->capturing || ctx->recorder)
        mpt__error(ctx, UNSUPPORTED,
            "captured and recorded steps repeat launches alone, which reduces no gradients");
    else if (ctx->walk && ctx->walk != mpt__parallel_walk)
        mpt__error(ctx, UNSUPPORTED,
            "mpt_update_in_backward uses gradients before they are reduced; do without it");
    ctx->walk = ctx->walk ? ctx->walk : mpt__parallel_walk;
}

static void mpt__parallel_repeat(mpt_context *ctx, void *user, const void *what) {
    (void)user, (void)what;
    mpt__error(ctx, UNSUPPORTED,
        "captured steps repeat launches alone, which reduces no gradients; call their function");
}

static void mpt__parallel_step_began(mpt_context *ctx, void *user, const void *what) {
    const mpt__world *w = (const mpt__world *)user;
    (void)what;
    mpt__draws_begin(ctx, w, mpt__net_of(w));
}

/* Running statistics settle when a step ends: then those of rank 0 are for all. */
static void mpt__parallel_step_ended(mpt_context *ctx, void *user, const void *what) {
    mpt__world *w = (mpt__world *)user;
    mpt__net *n = mpt__net_of(w);
    mpt__walk walk;
    mpt__buffer buffer;
    (void)what;
    if (!n->due || w->lost || !mpt__ok(ctx)) return;
    n->due = false;
    mpt__module *module = mpt__module_at(ctx, n->module);
    if (!module) return;
    mpt__walk_begin(&walk, ctx, module);
    walk.buffers = true;
    while (mpt__ok(ctx) && mpt__walk_buffer(&walk, &buffer))
        mpt__spread_tensor(ctx, w, buffer.tensor, 0);
}

static const struct {
    mpt__event event;
    mpt__hear hear;
} mpt__parallel_hears[] = {{MPT__LOSS_KNOWN, mpt__parallel_loss},
    {MPT__REPEAT_BEGAN, mpt__parallel_repeat}, {MPT__STEP_BEGAN, mpt__parallel_step_began},
    {MPT__STEP_ENDED, mpt__parallel_step_ended}};

enum { MPT__PARALLEL_HEARS = sizeof mpt__parallel_hears / sizeof mpt__parallel_hears[0] };

/* ==== Making ==== */

mpt_data_parallel_config mpt_data_parallel_config_default(void) {
    mpt_data_parallel_config config = {1, true, false, INT64_C(4) << 20, false};
    return config;
}

/* Ends what there is. */
static void mpt__net_end(mpt_context *ctx, mpt__world *w) {
    mpt__net *n = mpt__net_of(w);
    if (!n) return;
    for (int i = 0; i < MPT__PARALLEL_HEARS; i++)
        mpt__listen_no_more(ctx, mpt__parallel_hears[i].event, mpt__parallel_hears[i].hear);
    if (ctx->walk == mpt__parallel_walk) ctx->walk = NULL;
    mpt__sync_end(ctx, w, n->sync);
    w->net = NULL, w->net_end = NULL;
    if (w->lost) return; /* messages may still be on their way into its memory */
    for (int i = 0; i < n->levels; i++) mpt__scratch_end(ctx, n->flat[i]);
    mpt__scratch_end(ctx, n->received);
    mpt__storage_release(ctx, n->storage);
}

static bool mpt__check_data_parallel(mpt_context *ctx, const mpt_data_parallel_config *c) {
    if (!mpt__check_count(ctx, "micro_batches", c->micro_batches, 1) ||
        !mpt__check_count(ctx, "bucket_bytes", c->bucket_bytes, 4))
        return false;
    if (c->micro_batches > MPT__MOST_BATCHES || c->bucket_bytes > mpt__mpi_bytes)
        return mpt__reject(ctx, ARGUMENT,
            "micro_batches %lld, bucket_bytes %lld: at most 2^20, and 1 GB", c->micro_batches,
            c->bucket_bytes);
    return true;
}

/* What has to be the same on all ranks besides the net. */
typedef struct {
    mpt_data_parallel_config config;
    int64_t version;
    char isa[32];
} mpt__terms;

static bool mpt__terms_agree(mpt_context *ctx, mpt__world *w, const mpt_data_parallel_config *c) {
    mpt__terms mine, other;
    mpt__zero(mine);
    mine.config.micro_batches = c->micro_batches, mine.config.bucket_bytes = c->bucket_bytes;
    mine.config.deterministic = c->deterministic, mine.config.keep_buffers = c->keep_buffers;
    mine.config.sync_batch_norm = c->sync_batch_norm;
    mine.version = MPTRAIN_VERSION;
    mpt__format_text(mine.isa, sizeof mine.isa, "%s", ctx->isa_name ? ctx->isa_name : "?");
    const unsigned char *all = mpt__world_gather(ctx, w, &mine, sizeof mine);
    for (int r = 0; all && r < w->world; r++) {
        memcpy(&other, all + (size_t)r * sizeof other, sizeof other);
        if (memcmp(&other, &mine, sizeof mine) == 0) continue;
        if (other.version != mine.version)
            return mpt__reject(ctx, STATE, "rank %d has version %lld of mptrain, rank %d %lld",
                w->rank, mine.version, r, other.version);
        if (strcmp(other.isa, mine.isa) != 0)
            return mpt__reject(ctx, STATE,
                "rank %d computes with %s, rank %d with %.31s, whose results differ in bits; set "
                "MPTRAIN_ISA or config.isa to one that all have",
                w->rank, mine.isa, r, other.isa);
        return mpt__reject(ctx, ARGUMENT,
            "the configs of ranks %d and %d differ: micro_batches %lld and %lld, deterministic %d "
            "and %d, keep_buffers %d and %d, bucket_bytes %lld and %lld, sync_batch_norm %d and %d",
            w->rank, r, mine.config.micro_batches, other.config.micro_batches,
            mine.config.deterministic, other.config.deterministic, mine.config.keep_buffers,
            other.config.keep_buffers, mine.config.bucket_bytes, other.config.bucket_bytes,
            mine.config.sync_batch_norm, other.config.sync_batch_norm);
    }
    return all != NULL;
}

/* The weights that are trained, the last ones first, as backward is likely to have them. */
static int64_t mpt__net_list(
    mpt_context *ctx, mpt__module *module, mpt__gradient_slice *slices, int64_t *total) {
    int64_t count = 0;
    mpt__walk walk;
    const mpt__parameter *parameter;
    mpt__walk_begin(&walk, ctx, module);
    *total = 0;
    while ((parameter = mpt__walk_values(&walk)) != NULL) {
        if (!(parameter->tensor->flags & MPT__REQUIRES_GRAD)) continue;
        *total += parameter->numel;
        if (slices) {
            mpt__zero(slices[count]);
            slices[count].parameter = (uint32_t)(parameter - ctx->parameters);
            slices[count].numel = parameter->numel;
        }
        count++;
    }
    for (int64_t i = 0; slices && i < count / 2; i++) {
        const mpt__gradient_slice slice = slices[i];
        slices[i] = slices[count - 1 - i], slices[count - 1 - i] = slice;
    }
    return count;
}

/* Nodes of the rank that has most: while batches come in, and behind the last one. */
static void mpt__net_depth(mpt__net *n, int world) {
    const int64_t batches = n->config.micro_batches;
    n->levels = n->pieces = 1;
    for (int r = 0; r < world && n->config.deterministic; r++) {
        mpt__nodes nodes;
        const int most = mpt__nodes_of(&nodes, r * batches, batches, batches * world);
        if (most > n->levels) n->levels = most;
        if (nodes.count > n->pieces) n->pieces = nodes.count;
    }
}

/* Flat arrays, with room for what fills buckets up however slices are ordered. */
static bool mpt__net_memory(mpt_context *ctx, mpt__world *w, mpt__net *n, int64_t total) {
    const int64_t buckets = total / n->bucket_floats + 1;
    const int64_t bytes = (total + buckets * w->world) * 4;
    for (int i = 0; i < n->levels; i++) {
        n->flat[i] = mpt__storage_new(ctx, bytes, MPT_MEMORY_GRADIENT, MPT__FROM_DEVICE, true);
        if (!n->flat[i]) return false;
        n->level[i] = (float *)ctx->data[n->flat[i]];
        w->stats.memory += bytes;
    }
    if (!n->config.deterministic || w->world == 1) return true;
    n->received = mpt__storage_new(
        ctx, bytes * n->pieces, MPT_MEMORY_GRADIENT, MPT__FROM_DEVICE, true);
    n->incoming = n->received ? (float *)ctx->data[n->received] : NULL;
    w->stats.memory += bytes * n->pieces;
    return n->received != 0;
}

static void *mpt__carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

/* All that a net needs, in one piece but for the flat arrays. */
static mpt__net *mpt__net_new(mpt_context *ctx, mpt__world *w, mpt__module *module,
    const mpt_data_parallel_config *c) {
    int64_t total, count = mpt__net_list(ctx, module, NULL, &total), known = ctx->parameter_count;
    if (count == 0)
        return mpt__error(ctx, STATE, "the net has no weights that are trained"), (mpt__net *)NULL;
    const int64_t bucket_floats = c->bucket_bytes / 4, buckets = total / bucket_floats + 1;
    const int64_t bytes[] = {(int64_t)sizeof(mpt__net),
        count * (int64_t)sizeof(mpt__gradient_slice), known * 4, count * 4, count,
        w->world * (int64_t)sizeof(mpt__report), buckets * (int64_t)sizeof(mpt__bucket)};
    int64_t all = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) all += (bytes[i] + 63) / 64 * 64;
    uint32_t storage = mpt__storage_new(ctx, all, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
    if (!storage) return NULL;
    char *at = (char *)ctx->data[storage];
    mpt__net *n = (mpt__net *)mpt__carve(&at, bytes[0]);
    n->storage = storage;
    n->config = *c;
    n->slices = (mpt__gradient_slice *)mpt__carve(&at, bytes[1]);
    n->slice_of = (int32_t *)mpt__carve(&at, bytes[2]);
    n->order = (int32_t *)mpt__carve(&at, bytes[3]);
    n->used = (uint8_t *)mpt__carve(&at, bytes[4]);
    n->reports = (mpt__report *)mpt__carve(&at, bytes[5]);
    n->buckets = (mpt__bucket *)mpt__carve(&at, bytes[6]);
    n->count = mpt__net_list(ctx, module, n->slices, &total);
    n->known = known, n->bucket_floats = bucket_floats;
    n->nodes.batches = c->micro_batches * w->world;
    for (int64_t i = 0; i < count; i++)
        if (n->slices[i].numel > INT32_MAX / 2)
            mpt__error(ctx, UNSUPPORTED, "%s has %lld elements: at most 2^30 can travel together",
                ctx->parameters[n->slices[i].parameter].path, n->slices[i].numel);
    mpt__net_depth(n, w->world);
    w->stats.memory = 0;
    w->net = n, w->net_end = mpt__net_end;
    if (!mpt__ok(ctx) || !mpt__net_memory(ctx, w, n, total)) return NULL;
    mpt__net_lay_out(n, w->world);
    return n;
}

/* Whether the ranks list the same weights under the same numbers, as reports name them; n NULL:
   this one has failed, which the others learn here. */
static bool mpt__lists_agree(mpt_context *ctx, mpt__world *w, const mpt__net *n) {
    uint64_t hash = n ? (uint64_t)n->count : 0;
    for (int64_t i = 0; n && i < n->count; i++)
        hash = mpt__hash_u64(hash, (uint64_t)n->slices[i].parameter);
    const int odd = mpt__odd_rank(ctx, w, hash);
    if (odd == -1) return n != NULL;
    return odd >= 0 &&
        mpt__reject(ctx, STATE,
            "ranks 0 and %d do not train the same weights of the net, made other nets before it, "
            "or one of them failed; freeze the same ones, and make the same nets in the same order",
            odd);
}

mpt_status mpt_data_parallel(mpt_module net, const mpt_data_parallel_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = net.context;
    const mpt_data_parallel_config c = config ? *config : mpt_data_parallel_config_default();
    mpt__world *w = mpt__world_enter(ctx, "mpt_data_parallel");
    mpt__module *found = w ? mpt__module_at(ctx, net) : NULL;
    if (!found || !mpt__check_data_parallel(ctx, &c) || mpt__freeze(ctx, found) != MPT_OK)
        return mpt__status_of(ctx);
    if (ctx->in_backward) return mpt__error(ctx, STATE, "a backward pass is under way");
    if (!mpt__tickets_agree(ctx, w, "mpt_data_parallel", NULL, 0) ||
        !mpt__terms_agree(ctx, w, &c) || !mpt__nets_agree(ctx, w, found))
        return ctx->base.status;
    mpt__net_end(ctx, w);
    mpt__net *n = mpt__net_new(ctx, w, found, &c);
    if (mpt__lists_agree(ctx, w, n) && mpt__spread_module(ctx, w, found, 0) == MPT_OK)
        mpt__compare_values(ctx, w, found);
    if (n && mpt__ok(ctx) && c.sync_batch_norm) n->sync = mpt__sync_begin(ctx, w);
    for (int i = 0; n && mpt__ok(ctx) && i < MPT__PARALLEL_HEARS; i++)
        mpt__listen(ctx, mpt__parallel_hears[i].event, mpt__parallel_hears[i].hear, w);
    if (!n || !mpt__ok(ctx)) {
        mpt__net_end(ctx, w);
        return ctx->base.status;
    }
    mpt__walk walk;
    mpt__buffer buffer;
    mpt__walk_begin(&walk, ctx, found);
    n->buffers = mpt__walk_buffer(&walk, &buffer);
    n->module = net;
    w->stats.buckets = n->bucket_count, w->stats.bytes = n->floats * 4;
    mpt__draws_begin(ctx, w, n);
    return MPT_OK;
}

static mpt_status mpt__no_sync(mpt_context *ctx, const char *call, int by) {
    mpt__world *w = mpt__world_enter(ctx, call);
    mpt__net *n = mpt__net_of(w);
    if (!w) return mpt__status_of(ctx);
    if (!n) return mpt__error(ctx, STATE, "there is no net; call mpt_data_parallel first");
    if (n->no_sync + by < 0)
        return mpt__error(ctx, STATE, "there is no open region that this could end");
    n->no_sync += by;
    return MPT_OK;
}

mpt_status mpt_no_sync_begin(mpt_context *ctx) { return mpt__no_sync(ctx, "mpt_no_sync_begin", 1); }
mpt_status mpt_no_sync_end(mpt_context *ctx) { return mpt__no_sync(ctx, "mpt_no_sync_end", -1); }

mpt_parallel_stats mpt_parallel_statistics(mpt_context *ctx) {
    const mpt__world *w =
        mpt__enter_anyway(ctx, "mpt_parallel_statistics") ? mpt__world_of(ctx) : NULL;
    mpt_parallel_stats stats;
    mpt__zero(stats);
    stats.nonfinite_rank = stats.lost_rank = -1;
    return w ? w->stats : stats;
}

#endif
