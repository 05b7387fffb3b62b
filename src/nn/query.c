/* ----
 * nn/query.c: what can be asked of a module and done to it besides forward.
 * ---- */
#ifndef MPT__NN_QUERY_INCLUDED
#define MPT__NN_QUERY_INCLUDED

#include "nn/module.c"

/* Begins a public call on a module and freezes its tree; NULL with an error recorded. */
static mpt__module *mpt__module_frozen(mpt_module module, const char *call) {
    mpt__module *found = mpt__module_enter(module, call);
    return found && mpt__freeze(module.context, found) == MPT_OK ? found : NULL;
}

/* ==== Finding ==== */

/* The module at a path of names that ends at `end`; NULL: none. */
static mpt__module *mpt__module_find(
    mpt_context *ctx, mpt__module *module, const char *path, const char *end) {
    while (module && path < end) {
        const char *dot = (const char *)memchr(path, '.', (size_t)(end - path));
        size_t length = (size_t)((dot ? dot : end) - path);
        mpt__module *next = NULL;
        for (int64_t i = 0; i < module->child_count && !next; i++) {
            const char *name = module->children[i].name;
            if (strncmp(name, path, length) == 0 && name[length] == '\0')
                next = mpt__module_slot(ctx, module->children[i].slot);
        }
        module = next;
        path += length + (dot ? 1 : 0);
    }
    return module;
}

/* Number of the parameter at `path` in its module, *holder; -1 with an error recorded. */
static int64_t mpt__find_parameter(
    mpt_context *ctx, mpt__module *module, const char *path, mpt__module **holder) {
    const char *dot = path ? strrchr(path, '.') : NULL, *name = dot ? dot + 1 : path;
    *holder = dot ? mpt__module_find(ctx, module, path, dot) : module;
    for (int64_t i = 0; name && *holder && i < (*holder)->parameter_count; i++) {
        const mpt__module_parameter *row = &(*holder)->parameters[i];
        if (strcmp(row->name, name) != 0) continue;
        if (!row->owner) return i;
        *holder = mpt__module_slot(ctx, row->owner);
        return row->owner_row;
    }
    mpt__error(ctx, ARGUMENT, "%s has no parameter \"%s\"; mpt_summary lists them",
        module->cls.name, path ? path : "(null)");
    return -1;
}

mpt_tensor mpt_parameter(mpt_module module, const char *path) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_parameter"), *holder;
    if (!found) return mpt__null(ctx);
    int64_t i = mpt__find_parameter(ctx, found, path, &holder);
    return i < 0 ? mpt__null(ctx) : mpt__parameter_handle(ctx, holder, i);
}

mpt_tensor mpt_buffer(mpt_module module, const char *path) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_buffer");
    if (!found) return mpt__null(ctx);
    const char *dot = path ? strrchr(path, '.') : NULL, *name = dot ? dot + 1 : path;
    const mpt__module *holder = dot ? mpt__module_find(ctx, found, path, dot) : found;
    for (int i = 0; name && holder && holder->running && i < MPT__BUFFERS; i++)
        if (holder->running->buffer[i] && strcmp(mpt__buffer_names[i], name) == 0)
            return mpt__handle(ctx, holder->running->buffer[i]);
    return mpt__refuse(ctx, ARGUMENT, "%s has no buffer \"%s\"; mpt_summary lists them",
        found->cls.name, path ? path : "(null)");
}

mpt_module mpt_child(mpt_module module, const char *path) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_enter(module, "mpt_child");
    if (!found) return mpt__module_handle(ctx, NULL);
    const mpt__module *child =
        path && *path ? mpt__module_find(ctx, found, path, path + strlen(path)) : NULL;
    if (!child)
        mpt__error(ctx, ARGUMENT, "%s has no child \"%s\"; mpt_summary lists them", found->cls.name,
            path ? path : "(null)");
    return mpt__module_handle(ctx, child);
}

/* ==== Listing ==== */

static int64_t mpt__module_parameters(
    mpt_context *ctx, mpt_module module, const char *name, uint32_t *list, int64_t capacity) {
    mpt__module *found = mpt__module_at(ctx, module), *holder;
    if (!found || mpt__freeze(ctx, found) != MPT_OK) return -1;
    if (name) {
        int64_t i = mpt__find_parameter(ctx, found, name, &holder);
        if (i >= 0 && list && capacity > 0) list[0] = holder->parameters[i].parameter - 1;
        return i < 0 ? -1 : 1;
    }
    int64_t count = 0;
    const mpt__module_parameter *row;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    for (; (row = mpt__walk_parameter(&walk)) != NULL; count++)
        if (list && count < capacity) list[count] = row->parameter - 1;
    return count;
}

/* How many of a list of all parameters of a module an optimizer takes: those that mpt_lora does not
   hold, which are put first. */
static int64_t mpt__trained_parameters(mpt_context *ctx, uint32_t *list, int64_t count) {
#ifndef MPTRAIN_NO_FRUGAL
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++)
        if (!mpt__module_slot(ctx, ctx->parameters[list[i]].module)->held) list[kept++] = list[i];
    count = kept;
#else
    (void)ctx, (void)list;
#endif
    return count;
}

/* Counts without freezing the tree: elements, or tensors; -1 on error. */
static int64_t mpt__count_parameters(mpt_module module, const char *call, bool elements) {
    mpt__module *found = mpt__module_enter(module, call);
    if (!found) return -1;
    int64_t count = 0;
    const mpt__module_parameter *row;
    mpt__walk walk;
    mpt__walk_begin(&walk, module.context, found);
    while ((row = mpt__walk_parameter(&walk)) != NULL)
        count += elements ? mpt__shape_numel(&row->shape) : 1;
    return mpt__ok(module.context) ? count : -1;
}

int mpt_parameter_count(mpt_module module) {
    return (int)mpt__count_parameters(module, "mpt_parameter_count", false);
}

int64_t mpt_parameter_numel(mpt_module module) {
    return mpt__count_parameters(module, "mpt_parameter_numel", true);
}

/* The next parameter of a tree that is in use; NULL at the end. */
static mpt__parameter *mpt__walk_values(mpt__walk *walk) {
    const mpt__module_parameter *row = mpt__walk_parameter(walk);
    return row ? &walk->context->parameters[row->parameter - 1] : NULL;
}

/* The next weight, parameters before other state: the one order in which files, checkpoints and
   hashes have them. False at the end. */
static bool mpt__walk_weight(mpt__walk *walk, mpt__buffer *weight) {
    const mpt__parameter *parameter = walk->buffers ? NULL : mpt__walk_values(walk);
    if (parameter) {
        weight->tensor = parameter->tensor, weight->path = parameter->path;
        return true;
    }
    if (!walk->buffers) {
        mpt__walk_begin(walk, walk->context, mpt__module_slot(walk->context, walk->level[0].slot));
        walk->buffers = true;
    }
    return mpt__walk_buffer(walk, weight);
}

/* The path of a parameter or buffer as seen from `module`, below which it is. */
static const char *mpt__relative_path(
    mpt_context *ctx, const mpt__module *module, const char *path) {
    if (!module->parent) return path;
    const char *prefix = mpt__path_text(ctx, module->path);
    size_t length = strlen(prefix);
    return strncmp(path, prefix, length) == 0 && path[length] == '.' ? path + length + 1 : path;
}

mpt_tensor mpt_parameter_at(mpt_module module, int index, char *path, size_t path_size) {
    mpt_context *ctx = module.context;
    mpt__text prose = mpt__text_make(path, path_size);
    mpt__module *found = mpt__module_frozen(module, "mpt_parameter_at");
    if (!found) return mpt__null(ctx);
    const mpt__parameter *parameter;
    int count = 0;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    for (; (parameter = mpt__walk_values(&walk)) != NULL; count++) {
        if (count != index) continue;
        mpt__write_text(&prose, "%s", mpt__relative_path(ctx, found, parameter->path));
        return mpt__handle(ctx, parameter->tensor);
    }
    return mpt__refuse(ctx, ARGUMENT, "parameter %d: the module has %d of them", index, count);
}

/* ==== Modes and policies ==== */

#if !defined(MPTRAIN_NO_FIT) || !defined(MPTRAIN_NO_CONV) || defined(MPTRAIN_WATCH)
/* Another mode for a while, and within that others, as validation in a fit is. */
static void mpt__mode_put_by(mpt__module *module, bool training) {
    module->before = module->before << 1 | (uint32_t)module->training;
    module->training = training;
}

static void mpt__mode_back(mpt__module *module) {
    module->training = module->before & 1;
    module->before >>= 1;
}
#endif

#if !defined(MPTRAIN_NO_FIT) || defined(MPTRAIN_WATCH)
/* The same for a module and all below it, also after an error. */
static void mpt__modes_begin(mpt_context *ctx, mpt__module *module, bool training) {
    mpt__walk walk;
    MPT__EACH_MODULE(module, &walk, ctx, module) { mpt__mode_put_by(module, training); }
}

static void mpt__modes_end(mpt_context *ctx, mpt__module *module) {
    mpt__walk walk;
    MPT__EACH_MODULE(module, &walk, ctx, module) { mpt__mode_back(module); }
}
#endif

#ifndef MPTRAIN_NO_FIT
/* Whether mpt_train was asked of the module or of any below it. */
static bool mpt__any_in_training(mpt_context *ctx, mpt__module *module) {
    mpt__walk walk;
    module = mpt__walk_begin(&walk, ctx, module);
    while (module && !mpt__in_training(module)) module = mpt__walk_next(&walk);
    return module != NULL;
}
#endif

#ifdef MPTRAIN_NO_WATCH
#define mpt__may_train(ctx, module) true
#else
/* Whether a module has values of its own, else an error. */
static bool mpt__may_train(mpt_context *ctx, const mpt__module *module) {
    if (!module->borrows) return true;
    return mpt__reject(ctx, STATE,
        "%s \"%s\" borrows its values from another context (mpt_share_module), so "
        "it is frozen",
        module->cls.name, mpt__path_text(ctx, module->path));
}
#endif

static mpt_status mpt__train(mpt_module module, const char *call, bool on) {
    mpt__module *found = mpt__module_enter(module, call);
    if (!found) return mpt__status_of(module.context);
    mpt__walk walk;
    MPT__EACH_MODULE(found, &walk, module.context, found) {
        if (!on || mpt__may_train(module.context, found)) found->training = on;
    }
    return module.context->base.status;
}

mpt_status mpt_train(mpt_module module) { return mpt__train(module, "mpt_train", true); }
mpt_status mpt_eval(mpt_module module) { return mpt__train(module, "mpt_eval", false); }

bool mpt_is_training(mpt_module module) {
    const mpt__module *found = mpt__module_enter(module, "mpt_is_training");
    return found && mpt__in_training(found);
}

mpt_status mpt_freeze(mpt_module module, bool on) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_enter(module, "mpt_freeze");
    if (!found) return mpt__status_of(ctx);
    mpt__walk walk;
    MPT__EACH_MODULE(found, &walk, ctx, found) {
        if (!on && !mpt__may_train(ctx, found)) return ctx->base.status;
        found->fixed = on;
#ifndef MPTRAIN_NO_FRUGAL
        if (!on) found->held = false;
#endif
        if (found->frozen) mpt__parameters_collect(ctx, found, !on);
    }
    return ctx->base.status;
}

mpt_status mpt_set_label(mpt_module root, const char *label) {
    mpt__module *found = mpt__module_enter(root, "mpt_set_label");
    if (!found) return mpt__status_of(root.context);
    if (!label) return mpt__error(root.context, ARGUMENT, "label is NULL");
    if (found->parent || found->frozen)
        return mpt__error(root.context, STATE,
            "a label belongs to the root of a tree, before the tree is first used");
    found->label = mpt__hash_bytes(1, label, strlen(label));
    return MPT_OK;
}

mpt_status mpt_set_dtype_policy(mpt_module module, mpt_dtype dtype) {
    mpt__module *found = mpt__module_enter(module, "mpt_set_dtype_policy");
    if (!found) return mpt__status_of(module.context);
    if (dtype != MPT_F32 && dtype != MPT_F16 && dtype != MPT_BF16 && dtype != MPT_DTYPE_NONE)
        return mpt__error(module.context, DTYPE,
            "expected MPT_F16, MPT_BF16, MPT_F32 (casting off) or MPT_DTYPE_NONE, got %D", dtype);
    found->policy = (uint8_t)dtype;
    return MPT_OK;
}

/* ==== Pure half ==== */

/* A parameter's values as fp32, which the caller frees; NULL on error. *bytes > 0. */
static float *mpt__parameter_values(
    mpt_context *ctx, const mpt__parameter *parameter, size_t *bytes) {
    *bytes = ((size_t)parameter->numel + 1) * sizeof(float);
    float *values = (float *)mpt__host_new(ctx, *bytes);
    if (values && mpt__read_as(ctx, parameter->tensor, MPT_F32, values) == MPT_OK) return values;
    mpt__host_free(ctx, values, *bytes);
    return NULL;
}

static mpt_status mpt__check_half(
    mpt_context *ctx, const mpt__parameter *parameter, mpt_dtype dtype) {
    if (mpt__writing_refused(ctx, parameter->tensor->storage)) return ctx->base.status;
    if (parameter->optimizer)
        return mpt__error(ctx, STATE,
            "parameter %s already belongs to an optimizer; call mpt_half before it is made",
            parameter->path);
    size_t bytes;
    float *values = mpt__parameter_values(ctx, parameter, &bytes);
    float limit = (float)mpt__dtype_info[dtype].max_finite;
    for (int64_t i = 0; values && i < parameter->numel; i++) {
        if (!mpt__f32_is_finite(values[i]) || (values[i] <= limit && values[i] >= -limit)) continue;
        mpt__error(ctx, NUMERIC,
            "parameter %s: element %lld is %g, beyond the largest %D, %g; scale the weights "
            "down, use MPT_BF16, or train with autocast instead",
            parameter->path, i, (double)values[i], dtype, (double)limit);
        break;
    }
    mpt__host_free(ctx, values, bytes);
    return ctx->base.status;
}

/* Gives a parameter its place in another block, with its values converted or those that are
   there. */
static void mpt__move_parameter(
    mpt_context *ctx, mpt__parameter *parameter, uint32_t index, int64_t offset, bool converts) {
    mpt__block *block = &ctx->blocks[index], *old = &ctx->blocks[parameter->block];
    mpt__tensor *tensor = parameter->tensor;
    mpt__gradient_drop(ctx, &tensor->gradient); /* a view of the old block's */
    mpt__tensor moved = *tensor;
    moved.storage = block->values;
    moved.dtype = block->dtype;
    moved.offset = offset;
    if (converts) mpt__launch_copy(ctx, tensor, &moved, MPT__WRITE);
    mpt__storage_retain(ctx, block->values);
    ctx->storages[tensor->storage].live = 2;
    ctx->storages[block->values].version += ctx->storages[tensor->storage].version + 1;
    mpt__storage_release(ctx, tensor->storage);
    *tensor = moved;
    parameter->block = index;
    parameter->offset = offset;
    parameter->has_grad = false;
    old->moves = ++ctx->moves;
    block->parameters++;
    if (--old->parameters == 0) mpt__block_free(ctx, old);
}

mpt_status mpt_half(mpt_module module, mpt_dtype dtype) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_half");
    if (!found) return mpt__status_of(ctx);
    if (dtype != MPT_F16 && dtype != MPT_BF16 && dtype != MPT_F32)
        return mpt__error(ctx, DTYPE, "expected MPT_F16, MPT_BF16 or MPT_F32, got %D", dtype);
    int64_t numel = 0, offset = 0, grain = mpt__block_grain(dtype);
    mpt__parameter *parameter;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    while ((parameter = mpt__walk_values(&walk)) != NULL) {
        numel = mpt__aligned_up(numel + parameter->numel, grain);
        if (mpt__check_half(ctx, parameter, dtype) != MPT_OK) return ctx->base.status;
    }
    mpt__walk_begin(&walk, ctx, found);
    while (dtype != MPT_F32 && (parameter = mpt__walk_values(&walk)) != NULL)
        mpt__draw_parameter(ctx, walk.module, walk.row - 1, (uint8_t)dtype);
    uint32_t block = numel > 0 && mpt__ok(ctx) ? mpt__block_new(ctx, dtype) : UINT32_MAX;
    if (block == UINT32_MAX) return ctx->base.status;
    uint32_t values = mpt__storage_new(
        ctx, numel * mpt__dtype_info[dtype].bytes, MPT_MEMORY_PARAMETER, MPT__FROM_DEVICE, true);
    ctx->blocks[block].values = values;
    ctx->blocks[block].numel = numel;
    if (!values) mpt__block_free(ctx, &ctx->blocks[block]);
    mpt__walk_begin(&walk, ctx, found);
    while (values && (parameter = mpt__walk_values(&walk)) != NULL) {
        mpt__move_parameter(ctx, parameter, block, offset, true);
        offset = mpt__aligned_up(offset + parameter->numel, grain);
    }
    return ctx->base.status;
}

/* ==== Summary ==== */

typedef struct {
    mpt__text out;
    int64_t parameters, bytes, buffer_bytes;
} mpt__summary;

/* One line: columns begin at 0, 27, 45 and 65, or one blank after a longer one. */
static void mpt__summary_line(
    mpt__text *out, const char *name, const char *kind, const char *shape, const char *numel) {
    static const size_t starts[] = {0, 27, 45, 65};
    const char *column[] = {name, kind, shape, numel};
    size_t line = out->length;
    for (int i = 0; i < 4 && *column[i]; i++) {
        if (i > 0) mpt__write_text(out, " ");
        while (out->length - line < starts[i]) mpt__write_text(out, " ");
        mpt__write_text(out, "%s", column[i]);
    }
    mpt__write_text(out, "\n");
}

static void mpt__summary_tensor(
    mpt__summary *summary, const char *text, mpt_dtype dtype, const mpt_shape *dims, bool buffer) {
    char name[256], shape[192], number[24];
    int64_t numel = mpt__shape_numel(dims), bytes = numel * mpt__dtype_info[dtype].bytes;
    mpt__format_text(name, sizeof name, "  %s", text);
    mpt__format_text(shape, sizeof shape, "%S", dims);
    mpt__format_text(number, sizeof number, "%lld", numel);
    mpt__summary_line(&summary->out, name, mpt_dtype_name(dtype), shape, buffer ? "" : number);
    summary->parameters += buffer ? 0 : numel;
    *(buffer ? &summary->buffer_bytes : &summary->bytes) += bytes;
}

static void mpt__summary_module(
    mpt_context *ctx, mpt__summary *summary, const mpt__module *module) {
    for (int64_t i = 0; i < module->parameter_count; i++) {
        const mpt__module_parameter *row = &module->parameters[i];
        mpt_dtype dtype = MPT_F32;
        if (row->owner) continue; /* tied: it stands in another module */
        if (row->parameter)
            dtype = (mpt_dtype)ctx->blocks[ctx->parameters[row->parameter - 1].block].dtype;
        mpt__summary_tensor(summary, row->name, dtype, &row->shape, false);
    }
    for (int i = 0; module->running && i < MPT__BUFFERS; i++) {
        const mpt__tensor *tensor = module->running->buffer[i];
        if (tensor)
            mpt__summary_tensor(
                summary, mpt__buffer_names[i], (mpt_dtype)tensor->dtype, &tensor->shape, true);
    }
}

size_t mpt_summary(mpt_module module, char *text, size_t size) {
    mpt__summary summary;
    mpt__zero(summary);
    summary.out = mpt__text_make(text, size);
    mpt__module *found = mpt__module_enter(module, "mpt_summary");
    if (!found) return 0;
    mpt__walk walk;
    MPT__EACH_MODULE(found, &walk, module.context, found) {
        mpt__summary_line(&summary.out, *walk.path ? walk.path : "(root)", found->cls.name, "", "");
        mpt__summary_module(module.context, &summary, found);
    }
    mpt__write_text(
        &summary.out, "total: %lld parameters, %lld bytes", summary.parameters, summary.bytes);
    if (summary.buffer_bytes > 0)
        mpt__write_text(&summary.out, "; buffers: %lld bytes", summary.buffer_bytes);
    mpt__write_text(&summary.out, "\n");
    return summary.out.length;
}

/* ==== Copying, hashing, destroying ==== */

/* Values of a parameter, as fp32, or of a buffer into those of another module, through host
   memory. */
static mpt_status mpt__copy_weight(mpt_context *to, const mpt__buffer *target, mpt_context *from,
    const mpt__buffer *source, bool buffer) {
    const mpt__tensor *a = target->tensor, *b = source->tensor;
    mpt_dtype dtype = buffer ? (mpt_dtype)a->dtype : MPT_F32;
    if ((buffer && a->dtype != b->dtype) || !mpt__same_shape(a, b))
        return mpt__error(to, SHAPE, "%s %s is %S here and %S in the source (%s)",
            buffer ? "buffer" : "parameter", target->path, &a->shape, &b->shape, source->path);
    size_t bytes = buffer ? (size_t)mpt__tensor_bytes(a)
                          : ((size_t)mpt__tensor_numel(a) + 1) * sizeof(float);
    void *values = mpt__host_new(from, bytes);
    if (values && mpt__read_as(from, b, dtype, values) == MPT_OK)
        mpt__write_as(to, target->tensor, dtype, values);
    else
        mpt__error(to, STATE, "the source's context failed: %s", mpt_error(from));
    mpt__host_free(from, values, bytes);
    return to->base.status;
}

mpt_status mpt_copy_module(mpt_module destination, mpt_module source) {
    mpt__lend(destination, source.context);
    mpt_context *to = destination.context, *from = source.context;
    mpt__module *target = mpt__module_frozen(destination, "mpt_copy_module");
    if (!target) return mpt__status_of(to);
    if (!from) return mpt__error(to, HANDLE, "the source is a null handle");
    mpt__module *origin = mpt__module_frozen(source, "mpt_copy_module");
    if (!origin) {
        mpt__error(to, STATE, "the source's context failed: %s", mpt_error(from));
        return to->base.status;
    }
    int64_t here = mpt__module_parameters(to, destination, NULL, NULL, 0);
    int64_t there = mpt__module_parameters(from, source, NULL, NULL, 0);
    if (here != there)
        return mpt__error(
            to, SHAPE, "the source has %lld parameters, the destination %lld", there, here);
    mpt__buffer here_now, there_now;
    mpt__walk walk_a, walk_b;
    mpt__walk_begin(&walk_a, to, target);
    mpt__walk_begin(&walk_b, from, origin);
    while (to->base.status == MPT_OK && mpt__walk_weight(&walk_a, &here_now)) {
        if (!mpt__walk_weight(&walk_b, &there_now))
            return mpt__error(to, SHAPE, "the source has no buffer for %s", here_now.path);
        mpt__copy_weight(to, &here_now, from, &there_now, walk_a.buffers);
    }
    return to->base.status;
}

/* Hash over the elements of a storage range. */
static uint64_t mpt__hash_storage(
    mpt_context *ctx, uint64_t hash, uint32_t storage, int64_t byte_offset, int64_t bytes) {
    unsigned char piece[4096]; /* a fixed size: pieces are hashed one by one */
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof piece) {
        int64_t now = bytes - at < (int64_t)sizeof piece ? bytes - at : (int64_t)sizeof piece;
        if (mpt__download(ctx, piece, storage, byte_offset + at, now) != MPT_OK) return 0;
        hash = mpt__hash_bytes(hash, piece, (size_t)now);
    }
    return hash;
}

static uint64_t mpt__hash_tensor(
    mpt_context *ctx, uint64_t hash, const char *path, const mpt__tensor *tensor) {
    int64_t width = mpt__dtype_info[tensor->dtype].bytes;
    hash = mpt__hash_bytes(hash, path, strlen(path));
    for (int d = 0; d < tensor->shape.rank; d++)
        hash = mpt__hash_u64(hash, (uint64_t)tensor->shape.dim[d]);
    hash = mpt__hash_u64(hash, tensor->dtype);
    return mpt__hash_storage(
        ctx, hash, tensor->storage, tensor->offset * width, mpt__tensor_bytes(tensor));
}

uint64_t mpt_module_hash(mpt_module module) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_module_hash");
    if (!found) return 0;
    uint64_t hash = 0;
    mpt__buffer weight;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    while (mpt__walk_weight(&walk, &weight))
        hash =
            mpt__hash_tensor(ctx, hash, mpt__relative_path(ctx, found, weight.path), weight.tensor);
    return hash;
}

mpt_status mpt_module_destroy(mpt_module root) {
    mpt_context *ctx = root.context;
    mpt__module *found = mpt__module_enter(root, "mpt_module_destroy");
    if (!found) return mpt__status_of(ctx);
    if (found->parent)
        return mpt__error(ctx, STATE, "the module is part of another one; destroy the root");
    if (ctx->module || ctx->forward_depth || ctx->in_backward)
        return mpt__error(ctx, STATE, "a forward is under way; destroy modules after it");
    const mpt__module_parameter *row;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    while ((row = mpt__walk_parameter(&walk)) != NULL)
        if (row->parameter && ctx->parameters[row->parameter - 1].optimizer)
            return mpt__error(ctx, STATE,
                "parameter %s belongs to an optimizer; mpt_optimizer_destroy it first",
                ctx->parameters[row->parameter - 1].path);
    if (mpt__ok(ctx)) mpt__module_end(ctx, found, true);
    return ctx->base.status;
}

/* ==== First values ==== */

/* Sets a parameter's recipe, and draws again if the tree is in use. */
static mpt_status mpt__apply_init(mpt_context *ctx, mpt__module *module, int64_t i, mpt_init init) {
    module->parameters[i].init = init;
    return module->frozen ? mpt__draw_parameter(ctx, module, i, MPT_DTYPE_NONE) : MPT_OK;
}

mpt_status mpt_set_init(mpt_module module, const char *name, mpt_init init) {
    mpt_context *ctx = module.context;
    if (!mpt__enter(ctx, "mpt_set_init")) return mpt__status_of(ctx);
    mpt__module *found = mpt__module_at(ctx, module), *holder;
    if (!found || !mpt__check_init(ctx, init)) return ctx->base.status;
    if (!name) {
        const mpt__module_parameter *row;
        mpt__walk walk;
        mpt__walk_begin(&walk, ctx, found);
        while ((row = mpt__walk_parameter(&walk)) != NULL && mpt__ok(ctx))
            if (row->shape.rank >= 2) mpt__apply_init(ctx, walk.module, walk.row - 1, init);
        return ctx->base.status;
    }
    int64_t i = mpt__find_parameter(ctx, found, name, &holder);
    return i < 0 ? ctx->base.status : mpt__apply_init(ctx, holder, i, init);
}

/* ==== Tied weights ==== */

mpt_status mpt_tie(mpt_module module, const char *path, const char *source) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_enter(module, "mpt_tie"), *holder, *owner;
    if (!found || !mpt__check_open(ctx, found, "ties")) return mpt__status_of(ctx);
    int64_t i = mpt__find_parameter(ctx, found, path, &holder);
    int64_t k = i >= 0 ? mpt__find_parameter(ctx, found, source, &owner) : -1;
    if (k < 0) return ctx->base.status;
    const mpt__module_parameter *from = &owner->parameters[k];
    mpt__module_parameter *row = &holder->parameters[i];
    if (row == from)
        return mpt__error(ctx, ARGUMENT, "%s and %s are one parameter already", path, source);
    bool same = row->shape.rank == from->shape.rank;
    for (int d = 0; same && d < row->shape.rank; d++)
        same = row->shape.dim[d] == from->shape.dim[d];
    if (!same)
        return mpt__error(ctx, SHAPE, "%s is %S, %s is %S: expected equal shapes", path,
            &row->shape, source, &from->shape);
    MPT__EACH_OBJECT(const mpt__module, other, ctx, MPT__MODULE) { /* what was tied to it follows */
        for (int64_t r = 0; r < other->parameter_count; r++) {
            mpt__module_parameter *tied = &other->parameters[r];
            if (tied->owner != holder->id.slot || tied->owner_row != i) continue;
            tied->owner = owner->id.slot, tied->owner_row = k;
        }
    }
    row->owner = owner->id.slot, row->owner_row = k;
    return MPT_OK;
}

#endif
