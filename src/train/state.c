/* ----
 * train/state.c: everything that a training consists of, each piece visited under its name.
 *
 * Weights and buffers, gradients that are accumulated, optimizers, scalers, averages, loaders,
 * metrics and the context's counters describe themselves here, once: what saves, loads, hashes or
 * compares a training is a visitor, and has no list of fields of its own. Names of weights are
 * those of mpt_save; all others begin with "mptrain.".
 * ---- */
#ifndef MPT__TRAIN_STATE_INCLUDED
#define MPT__TRAIN_STATE_INCLUDED

#include "train/scaler.c"
#include "train/schedule.c"
#include "data/loader.c"

#ifndef MPTRAIN_NO_RESUME

/* ==== Visitors ==== */

/* What a visitor does with the items it is shown. */
typedef enum {
    MPT__STATE_READS,  /* looks at them, or takes them along */
    MPT__STATE_CHECKS, /* has others, which it compares in kind: nothing changes */
    MPT__STATE_APPLIES /* puts others in their place */
} mpt__state_mode;

typedef struct mpt__state_walk {
    mpt_context *context;
    mpt__state_visitor visit;
    void *user;
    mpt__state_mode mode;
    /* Whether there is, or is to be, what may be missing; `now`: whether it is there. */
    bool (*present)(void *user, const char *name, bool now);
    const char *from; /* for messages: where others come from */
    char name[MPT__STATE_NAME + 128];
    size_t prefix; /* characters of it that all names share for now */
} mpt__state_walk;

static mpt_status mpt__state_show(mpt__state_walk *w, mpt__state_item *item) {
    item->name = w->name;
    if (w->mode == MPT__STATE_CHECKS && item->storage &&
        mpt__writing_refused(w->context, item->storage))
        return w->context->base.status;
    return w->visit(w->context, w->user, item);
}

/* The names that follow begin with this. */
static void mpt__state_prefix(mpt__state_walk *w, const char *kind, int64_t number) {
    w->prefix = mpt__format_text(w->name, sizeof w->name, "mptrain.%s.%lld.", kind, number);
}

static void mpt__state_named(mpt__state_walk *w, const char *name) {
    mpt__format_text(w->name + w->prefix, sizeof w->name - w->prefix, "%s", name);
}

/* How many trees are older than a module's: 0, or what tells equal paths of several nets apart. */
static int mpt__tree_number(mpt_context *ctx, mpt__module *module) {
    const mpt__module *root = mpt__module_root(ctx, module);
    int number = 0;
    MPT__EACH_OBJECT(const mpt__module, other, ctx, MPT__MODULE) {
        number += !other->parent && other->creation < root->creation;
    }
    return number;
}

/* The names that follow are about what stands at a path of a net. Its number is in all of them:
   without it a path of one net could read as the number of another and a path of that. */
static void mpt__state_of_net(mpt__state_walk *w, const char *kind, int number, const char *path) {
    w->prefix = mpt__format_text(
        w->name, sizeof w->name, "mptrain.%s.net.%d.%s%s", kind, number, path, *path ? "." : "");
}

/* A visitor of rooms that name their items themselves: puts the prefix before the name. */
static mpt_status mpt__state_forward(mpt_context *ctx, void *user, const mpt__state_item *item) {
    mpt__state_walk *w = (mpt__state_walk *)user;
    mpt__state_item own = *item;
    char name[MPT__STATE_NAME + 16];
    if (item->module)
        mpt__format_text(name, sizeof name, "net.%d.%s",
            mpt__tree_number(ctx, mpt__module_slot(ctx, item->module)), item->name);
    mpt__state_named(w, item->module ? name : item->name);
    return mpt__state_show(w, &own);
}

/* Numbers of the host, some narrower than what visitors see. A rate is finite, and 0 or more. */
typedef enum { MPT__OF_BOOL, MPT__OF_U32, MPT__OF_I64, MPT__OF_F64, MPT__OF_RATE } mpt__number_kind;
typedef struct {
    const char *name;
    mpt__number_kind kind;
    void *at;
    bool same;    /* as an item's */
    int64_t most; /* likewise; of a bool it is 1 */
} mpt__state_row;

static void mpt__state_number(mpt__state_item *item, mpt__number_kind kind, int64_t most) {
    mpt__zero(*item);
    item->dtype = kind < MPT__OF_F64 ? MPT_I64 : MPT_F64;
    item->count = 1;
    item->shape = MPT_SCALAR;
    item->rate = kind == MPT__OF_RATE;
    item->most = kind == MPT__OF_BOOL ? 1 : most;
}

static mpt_status mpt__state_rows(mpt__state_walk *w, const mpt__state_row *rows, size_t count) {
    mpt_status status = w->context->base.status;
    for (size_t i = 0; i < count && status == MPT_OK; i++) {
        const mpt__state_row *row = &rows[i];
        mpt__state_item item;
        int64_t wide = 0;
        mpt__state_number(&item, row->kind, row->most);
        if (row->kind == MPT__OF_BOOL) wide = *(const bool *)row->at;
        if (row->kind == MPT__OF_U32) wide = *(const uint32_t *)row->at;
        item.host = row->kind < MPT__OF_I64 ? &wide : row->at;
        item.same = row->same;
        mpt__state_named(w, row->name);
        status = mpt__state_show(w, &item);
        if (w->mode != MPT__STATE_APPLIES) continue;
        if (row->kind == MPT__OF_BOOL) *(bool *)row->at = wide != 0;
        if (row->kind == MPT__OF_U32) *(uint32_t *)row->at = (uint32_t)wide;
    }
    return status;
}
#define MPT__STATE_ROWS(w, rows) mpt__state_rows(w, rows, sizeof(rows) / sizeof *(rows))

/* A hash of what is not kept itself; `same`: another one is an error, and no warning alone. */
static mpt_status mpt__state_identity(
    mpt__state_walk *w, const char *name, uint64_t hash, const char *of, bool same) {
    mpt__state_item item;
    mpt__state_number(&item, MPT__OF_I64, 0);
    item.host = &hash;
    item.same = same;
    item.identity = of;
    mpt__state_named(w, name);
    return mpt__state_show(w, &item);
}

/* A number on the device: what is an MPT_I64 counts something. */
static mpt_status mpt__state_slot(
    mpt__state_walk *w, const char *name, mpt__number_kind kind, uint16_t slot) {
    mpt__state_item item;
    mpt__state_number(&item, kind, kind == MPT__OF_I64 ? MPT__MOST_COUNTED : 0);
    item.slot = slot;
    mpt__state_named(w, name);
    return mpt__state_show(w, &item);
}

/* ==== Nets ==== */

/* A gradient that waits for more, and what is known of it. */
static mpt_status mpt__state_gradient(mpt__state_walk *w, mpt__parameter *parameter, int number) {
    mpt_context *ctx = w->context;
    mpt__state_item item;
    mpt__state_of_net(w, "gradient", number, parameter->path);
    mpt__state_named(w, "value");
    bool there = w->present(w->user, w->name, parameter->has_grad);
    if (w->mode == MPT__STATE_APPLIES && !there) mpt__clear_grad(parameter);
    if (!there ||
        (w->mode == MPT__STATE_APPLIES && !mpt__parameter_gradient(ctx, parameter->tensor)))
        return ctx->base.status;
    mpt__zero(item);
    item.storage = ctx->blocks[parameter->block].gradients;
    if (!item.storage) item.storage = parameter->tensor->storage; /* only its kind is looked at */
    item.dtype = MPT_F32;
    item.offset = parameter->offset, item.count = parameter->numel;
    item.shape = parameter->tensor->shape;
    mpt_status status = mpt__state_show(w, &item);
    if (w->mode == MPT__STATE_APPLIES) parameter->has_grad = true;
    const mpt__state_row rows[] = {{"scaler", MPT__OF_U32, &parameter->scaler, false, UINT32_MAX}};
    if (w->mode == MPT__STATE_APPLIES) { /* what messages count begins anew */
        parameter->since = (uint32_t)ctx->now.updates;
        parameter->steps = 0;
    }
    return status == MPT_OK ? MPT__STATE_ROWS(w, rows) : status;
}

static void mpt__state_item_of(mpt__state_item *item, const mpt__tensor *tensor) {
    mpt__zero(*item);
    item->storage = tensor->storage, item->dtype = (mpt_dtype)tensor->dtype;
    item->offset = tensor->offset, item->count = mpt__tensor_numel(tensor);
    item->shape = tensor->shape;
}

/* Of the oldest net by its path alone, as mpt_save names it. */
static mpt_status mpt__state_tensor(
    mpt__state_walk *w, const mpt__tensor *tensor, int number, const char *path) {
    mpt__state_item item;
    mpt__state_item_of(&item, tensor);
    w->prefix = 0;
    if (number) mpt__state_of_net(w, "values", number, "");
    mpt__state_named(w, path);
    return mpt__state_show(w, &item);
}

/* What is kept of a tensor to go back to; in a file always under its net's number. */
static MPT__UNUSED mpt_status mpt__state_kept(
    mpt__state_walk *w, const mpt__tensor *kept, int number, const char *path) {
    mpt__state_item item;
    mpt__state_item_of(&item, kept);
    mpt__state_of_net(w, "fit.kept", number, "");
    mpt__state_named(w, path);
    return mpt__state_show(w, &item);
}

/* How often a module has drawn in a loop without steps. With steps the count begins anew in each,
   and what is left of it between them differs where a captured step ran from its recording. */
static mpt_status mpt__state_draws(
    mpt__state_walk *w, mpt__module *module, int number, const char *path) {
    mpt_context *ctx = w->context;
    const mpt__state_row rows[] = {
        {"count", MPT__OF_I64, &module->draws.count, false, MPT__MOST_COUNTED}};
    const bool now = module->draws.count > 0 && ctx->now.step == 0;
    mpt__state_of_net(w, "draws", number, path);
    mpt__state_named(w, "count");
    const bool there = w->present(w->user, w->name, now);
    if (w->mode == MPT__STATE_APPLIES) {
        module->draws.step = ctx->now.step;
        module->draws.count = 0;
    }
    if (there) MPT__STATE_ROWS(w, rows);
    if (w->mode != MPT__STATE_APPLIES) return ctx->base.status;
    module->updates = ctx->now.updates;
    module->committed = module->draws;
    return ctx->base.status;
}

/* The same on machines of either order of bytes. */
static uint64_t mpt__hash_elements(uint64_t hash, const void *elements, size_t bytes, size_t size) {
    uint8_t some[256];
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < sizeof some ? bytes - at : sizeof some;
        memcpy(some, (const uint8_t *)elements + at, n);
        mpt__file_order(some, n, size);
        hash = mpt__hash_bytes(hash, some, n);
    }
    return hash;
}

/* What a net's layers are, and their settings: those of layers that have no weights, too. */
static uint64_t mpt__config_hash(mpt_context *ctx, mpt__module *root) {
    uint64_t hash = 0;
    mpt__walk walk;
    for (mpt__module *m = mpt__walk_begin(&walk, ctx, root); m; m = mpt__walk_next(&walk)) {
        const mpt__attributes *a = &m->attributes;
        hash = mpt__hash_bytes(hash, walk.path, strlen(walk.path));
        hash = mpt__hash_bytes(hash, m->cls.name, strlen(m->cls.name));
        hash = mpt__hash_elements(hash, a->imm, sizeof a->imm, sizeof *a->imm);
        hash = mpt__hash_elements(hash, a->index, sizeof a->index, sizeof *a->index);
        hash = mpt__hash_u64(
            hash, (uint64_t)a->rank << 16 | (uint64_t)a->activation << 8 | a->reduction);
    }
    return hash;
}

/* A net that is in use. Another one has no state: what it will be follows from the seed. */
static mpt_status mpt__state_net(mpt__state_walk *w, mpt__module *root, int number) {
    mpt_context *ctx = w->context;
    mpt__walk walk;
    mpt__parameter *parameter;
    mpt__buffer weight;
    bool used = root->frozen;
    const mpt__state_row rows[] = {{"used", MPT__OF_BOOL, &used, false, 0}};
    mpt__state_prefix(w, "net", number);
    mpt__state_named(w, "used");
    const bool there = w->present(w->user, w->name, used);
    if (!there && used)
        return mpt__error(ctx, FORMAT, "net %d is in use here, and not in %s", number, w->from);
    if (!there || (!used && mpt__freeze(ctx, root) != MPT_OK)) return ctx->base.status;
    mpt_status status = MPT__STATE_ROWS(w, rows);
    if (status == MPT_OK)
        status = mpt__state_identity(
            w, "config", mpt__config_hash(ctx, root), "the net's layers and their settings", true);
    mpt__walk_begin(&walk, ctx, root);
    while (status == MPT_OK && mpt__walk_weight(&walk, &weight))
        status = mpt__state_tensor(w, weight.tensor, number, weight.path);
    if (status == MPT_OK) mpt__walk_begin(&walk, ctx, root);
    while (status == MPT_OK && (parameter = mpt__walk_values(&walk)) != NULL)
        status = mpt__state_gradient(w, parameter, number);
    mpt__module *module = status == MPT_OK ? mpt__walk_begin(&walk, ctx, root) : NULL;
    for (; module && status == MPT_OK; module = mpt__walk_next(&walk))
        status = mpt__state_draws(w, module, number, walk.path);
    return status;
}

/* The trees of a context, the older one first. */
static mpt_status mpt__state_nets(mpt__state_walk *w) {
    int64_t before = 0;
    for (int number = 0; w->context->base.status == MPT_OK; number++) {
        mpt__module *next = NULL;
        MPT__EACH_OBJECT(mpt__module, module, w->context, MPT__MODULE) {
            if (!module->parent && module->creation > before &&
                (!next || module->creation < next->creation))
                next = module;
        }
        if (!next) break;
        before = next->creation;
        mpt__state_net(w, next, number);
    }
    return w->context->base.status;
}

/* ==== Optimizers ==== */

/* Which steps were counted together is told by the counts. What follows from them is made anew, and
   masters, which were loaded, hold on to what they are. */
static void mpt__state_settle(mpt_context *ctx, mpt__optimizer *optimizer) {
    for (int64_t i = 0; i < optimizer->item_count; i++) {
        int64_t steps = 0;
        mpt__download(ctx, &steps, optimizer->counts, i * 8, 8);
        optimizer->items[i].history = mpt__hash_u64(0, (uint64_t)steps);
        optimizer->items[i].had_grad = false;
    }
    for (int64_t i = 0; i < optimizer->state_count; i++)
        optimizer->states[i].agreed = mpt__foreign_writes(ctx, optimizer, &optimizer->states[i]);
    optimizer->pattern_valid = optimizer->norm_valid = optimizer->checked = false;
    optimizer->uncleared = 0;
    mpt__schedule_rebase(ctx, optimizer);
}

static mpt_status mpt__state_optimizer(mpt__state_walk *w, mpt__optimizer *optimizer) {
    const mpt__rule *rule = optimizer->rule;
    mpt_status status = mpt__optimizer_visit(w->context, optimizer, mpt__state_forward, w);
    for (int64_t i = 0; i < optimizer->group_count && status == MPT_OK; i++) {
        mpt__group *group = &optimizer->groups[i];
        char names[1 + MPT__SETTINGS][64];
        mpt__state_row rows[1 + MPT__SETTINGS];
        size_t count = 1;
        while (count <= MPT__SETTINGS && rule->setting[count - 1].name) count++;
        for (size_t k = 0; k < count; k++) {
            mpt__format_text(names[k], sizeof names[k], "group.%lld.%s", i,
                k == 0 ? "weight_decay" : rule->setting[k - 1].name);
            rows[k].name = names[k], rows[k].kind = MPT__OF_F64, rows[k].same = true;
            rows[k].most = 0;
            rows[k].at = k == 0 ? &group->weight_decay : &group->setting[k - 1];
        }
        status = mpt__state_rows(w, rows, count);
    }
    return status;
}

/* ==== Scalers ==== */

static mpt_status mpt__state_scaler(mpt__state_walk *w, mpt__scaler *scaler) {
    static const char *const names[MPT__SCALER_SEED] = {"scale", "growth_tracker", "found_inf",
        "updates", "skipped", "skipped_in_a_row", "last_skipped_step", "outcome", "loss_found_inf"};
    const mpt__state_row rows[] = {
        {"growth_factor", MPT__OF_RATE, &scaler->config.growth_factor, false, 0},
        {"backoff_factor", MPT__OF_RATE, &scaler->config.backoff_factor, false, 0},
        {"growth_interval", MPT__OF_I64, &scaler->config.growth_interval, false, INT64_MAX},
        {"scaled", MPT__OF_BOOL, &scaler->scaled, false, 0},
        {"stepped", MPT__OF_BOOL, &scaler->stepped, false, 0},
        {"lost_losses", MPT__OF_I64, &scaler->lost_losses, false, MPT__MOST_COUNTED},
        {"window_steps", MPT__OF_I64, &scaler->window_steps, false, MPT__MOST_COUNTED},
        {"window_skipped", MPT__OF_I64, &scaler->window_skipped, false, MPT__MOST_COUNTED},
        {"skipped_before", MPT__OF_I64, &scaler->skipped_before, false, 0}};
    const mpt_scaler_config before = scaler->config;
    mpt_status status = w->context->base.status;
    for (int i = 0; i < MPT__SCALER_SEED && status == MPT_OK; i++) /* the seed is a step's own */
        status = mpt__state_slot(
            w, names[i], i == MPT__SCALER_SCALE ? MPT__OF_RATE : MPT__OF_I64, scaler->slots[i]);
    if (status == MPT_OK) status = MPT__STATE_ROWS(w, rows);
    if (w->mode != MPT__STATE_APPLIES || status != MPT_OK) return status;
    if (before.growth_factor != scaler->config.growth_factor ||
        before.backoff_factor != scaler->config.backoff_factor ||
        before.growth_interval != scaler->config.growth_interval)
        scaler->changes++; /* captured steps have them in them */
    scaler->unseen = 0;
    mpt__scaler_read(w->context, scaler, &scaler->seen);
    return w->context->base.status;
}

/* ==== Loaders ==== */

/* What a dataset holds: its kinds and counts, names of classes, and of what lies in memory some
   samples. What a callback makes is not asked for. */
static uint64_t mpt__dataset_hash(const mpt__dataset *dataset) {
    const int64_t most = 64;
    const mpt_shape *shapes[2] = {&dataset->shape, &dataset->target_shape};
    const int64_t n = dataset->count < most ? dataset->count : most;
    uint64_t hash = mpt__hash_u64((uint64_t)dataset->count, (uint64_t)dataset->dtype);
    hash = mpt__hash_u64(hash, (uint64_t)dataset->target_dtype);
    for (int k = 0; k < 2; k++)
        for (int d = 0; d < shapes[k]->rank; d++)
            hash = mpt__hash_u64(hash, (uint64_t)shapes[k]->dim[d]);
    for (int64_t i = 0; i < dataset->class_count; i++)
        hash = mpt__hash_bytes(hash, dataset->classes[i], strlen(dataset->classes[i]));
    if (dataset->make && dataset->source)
        hash = mpt__hash_u64(hash, mpt__dataset_hash(dataset->source));
    for (int64_t i = 0; i < n && dataset->inputs; i++) {
        const int64_t at = i * (dataset->count / n);
        const size_t own = (size_t)(dataset->indices ? dataset->indices[at] : dataset->first + at);
        const size_t bytes =
            dataset->byte_targets ? (size_t)dataset->target_numel : dataset->target_bytes;
        hash = mpt__hash_elements(hash, dataset->inputs + own * dataset->input_bytes,
            dataset->input_bytes, mpt_dtype_size(dataset->dtype));
        if (dataset->targets)
            hash = mpt__hash_elements(hash, dataset->targets + own * bytes, bytes,
                dataset->byte_targets ? 1 : mpt_dtype_size(dataset->target_dtype));
    }
    return hash ? hash : 1;
}

/* Where a loader is; its order follows from its seed and the epoch. */
static mpt_status mpt__state_loader(mpt__state_walk *w, mpt__loader *loader) {
    int64_t epoch = loader->epoch, next = loader->next;
    bool open = loader->open;
    const mpt__state_row rows[] = {{"samples", MPT__OF_I64, &loader->total, true, 0},
        {"batch", MPT__OF_I64, &loader->config.batch, true, 0},
        {"seed", MPT__OF_I64, &loader->config.seed, true, 0},
        {"delivered", MPT__OF_I64, &loader->delivered, false, MPT__MOST_COUNTED},
        {"delivered_samples", MPT__OF_I64, &loader->delivered_samples, false, MPT__MOST_COUNTED},
        {"skipped", MPT__OF_I64, &loader->skipped, false, MPT__MOST_COUNTED},
        {"epoch", MPT__OF_I64, &epoch, false, MPT__LAST_EPOCH},
        {"next", MPT__OF_I64, &next, false, loader->batches},
        {"open", MPT__OF_BOOL, &open, false, 0}};
    mpt_status status = MPT__STATE_ROWS(w, rows);
    if (!loader->data_hash) loader->data_hash = mpt__dataset_hash(loader->dataset);
    if (status == MPT_OK)
        status = mpt__state_identity(w, "data", loader->data_hash, "the loader's dataset", false);
    if (w->mode != MPT__STATE_APPLIES || status != MPT_OK) return status;
    mpt__loader_take_back(w->context, loader);
    if (loader->open) mpt__loader_close_epoch(loader);
    loader->epoch = epoch, loader->next = 0;
    if (open) mpt__loader_open_epoch(loader, next);
    return MPT_OK;
}

/* ==== All of it ==== */

/* What trains by a loop of the library's, as mpt_fit does, and has numbers of its own to go on. */
typedef struct mpt__run {
    mpt_status (*visit)(mpt__state_walk *w, struct mpt__run *run);
} mpt__run;

static mpt_status mpt__state_object(mpt__state_walk *w, mpt__object_kind kind, void *object) {
    switch (kind) {
    case MPT__OPTIMIZER:
        return mpt__state_optimizer(w, (mpt__optimizer *)object);
    case MPT__SCALER:
        return mpt__state_scaler(w, (mpt__scaler *)object);
    case MPT__LOADER:
        return mpt__state_loader(w, (mpt__loader *)object);
    default:
        return mpt__ema_visit(w->context, (mpt__ema *)object, mpt__state_forward, w);
    }
}

/* Shows the objects of four kinds, by the order in which they stand in their tables. */
static mpt_status mpt__state_objects(mpt__state_walk *w) {
    static const struct {
        const char *name;
        mpt__object_kind kind;
    } kinds[] = {{"optimizer", MPT__OPTIMIZER}, {"scaler", MPT__SCALER}, {"average", MPT__EMA},
        {"loader", MPT__LOADER}};
    mpt_status status = w->context->base.status;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int64_t number = 0;
        MPT__EACH_OBJECT(void, object, w->context, kinds[k].kind) {
            if (status != MPT_OK) break;
            mpt__state_prefix(w, kinds[k].name, number++);
            status = mpt__state_object(w, kinds[k].kind, object);
        }
    }
    return status;
}

static mpt_status mpt__state_metrics(mpt__state_walk *w) {
    mpt_context *ctx = w->context;
    mpt_status status = ctx->base.status;
    for (int i = 0; i < ctx->metric_count && status == MPT_OK; i++) {
        w->prefix =
            mpt__format_text(w->name, sizeof w->name, "mptrain.metric.%s.", ctx->metrics[i].name);
        status = mpt__state_slot(w, "sum", MPT__OF_F64, ctx->metrics[i].sum_slot);
        if (status == MPT_OK)
            status = mpt__state_slot(w, "count", MPT__OF_I64, ctx->metrics[i].count_slot);
    }
    return status;
}

#define MPT__STATE_FORMAT 1 /* changes where an older reader would go wrong */

/* Shows a whole training to a visitor. */
static mpt_status mpt__visit_state(mpt__state_walk *w) {
    mpt_context *ctx = w->context;
    int64_t format = MPT__STATE_FORMAT;
    const mpt__state_row rows[] = {{"format", MPT__OF_I64, &format, true, 0},
        {"seed", MPT__OF_I64, &ctx->config.seed, true, 0},
        {"step", MPT__OF_I64, &ctx->now.step, false, MPT__MOST_COUNTED},
        {"updates", MPT__OF_I64, &ctx->now.updates, false, MPT__MOST_COUNTED},
        {"draws", MPT__OF_I64, &ctx->now.draws, false, 0},
        {"calls", MPT__OF_I64, &ctx->now.module_calls, false, MPT__MOST_COUNTED},
        {"best", MPT__OF_F64, &ctx->best, false, 0}};
    w->prefix = mpt__format_text(w->name, sizeof w->name, "mptrain.");
    mpt_status status = MPT__STATE_ROWS(w, rows);
    if (status == MPT_OK) status = mpt__state_nets(w);
    if (status == MPT_OK) status = mpt__state_objects(w);
    if (status == MPT_OK) status = mpt__state_metrics(w);
    mpt__run *const run = (mpt__run *)ctx->run;
    if (status == MPT_OK && run) status = run->visit(w, run);
    if (w->mode != MPT__STATE_APPLIES || status != MPT_OK) return status;
    MPT__EACH_OBJECT(mpt__optimizer, optimizer, ctx, MPT__OPTIMIZER) {
        mpt__state_settle(ctx, optimizer);
    }
    ctx->base.step = ctx->now.step;
    ctx->device_step = -1; /* dropout sets it again */
    ctx->committed = ctx->now;
    return ctx->base.status;
}

/* Whether a training stands still, so that its state is all there is; false with an error. What is
   still to be multiplied into gradients is. */
static bool mpt__state_stands(mpt_context *ctx) {
    if (!mpt__no_slice(ctx)) return false;
    if (ctx->step_depth > 0 || mpt__is_capturing(ctx) || ctx->forward_depth > 0)
        return mpt__reject(ctx, STATE, "a step is under way; call it behind mpt_step_end");
    MPT__EACH_OBJECT(const mpt__optimizer, optimizer, ctx, MPT__OPTIMIZER) {
        if (optimizer->scaler)
            return mpt__reject(
                ctx, STATE, "an update of a scaler is under way; call mpt_scaler_update before");
    }
    MPT__EACH_OBJECT(const mpt__ema, ema, ctx, MPT__EMA) {
        if (ema->applied)
            return mpt__reject(
                ctx, STATE, "the values of a net are its averages; call mpt_ema_restore before");
    }
    MPT__EACH_OBJECT(mpt__scaler, scaler, ctx, MPT__SCALER) {
        if (scaler->unseen == 0) continue;
        mpt__wait(ctx); /* what the host makes of the counters must not depend on when it looks */
        if (mpt__scaler_look(ctx, scaler) != MPT_OK) return false;
    }
    for (int64_t i = 0; i < ctx->block_count; i++)
        if (ctx->blocks[i].live) mpt__materialise_gradients(ctx, &ctx->blocks[i]);
    return mpt__ok(ctx);
}

#endif /* MPTRAIN_NO_RESUME */

#endif
