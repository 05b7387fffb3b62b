/* ---------------------------------------------------------------------------------------------
 * 61_module.c: what can be asked of a module and done to it besides forward.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__61_MODULE_INCLUDED
#define MPT__61_MODULE_INCLUDED

#include "60_nn.c"

/* Begins a public call on a module whose tree is frozen for it; NULL with an error recorded. */
static mpt__module *mpt__module_frozen(mpt_module module, const char *call) {
    mpt__module *found = mpt__module_call(module, call);
    return found && mpt__freeze(module.context, found) == MPT_OK ? found : NULL;
}

/* ==== Finding ==== */

/* The child at a path of names; NULL if there is none. *last (may be NULL) gets what follows the
   last dot instead of being followed itself. */
static mpt__module *mpt__module_find(mpt_context *context, mpt__module *module, const char *path,
                                     const char **last) {
    while (*path && module) {
        const char *dot = strchr(path, '.');
        size_t length = dot ? (size_t)(dot - path) : strlen(path);
        if (!dot && last) {
            *last = path;
            return module;
        }
        mpt__module *next = NULL;
        for (int64_t i = 0; i < module->child_count && !next; i++) {
            const char *name = module->children[i].name;
            if (strncmp(name, path, length) == 0 && name[length] == '\0')
                next = mpt__module_slot(context, module->children[i].slot);
        }
        module = next;
        path += length + (dot ? 1 : 0);
    }
    return module;
}

/* Number in its module of the parameter at `path`; *holder is that module. -1: an error
   recorded. */
static int64_t mpt__find_parameter(mpt_context *context, mpt__module *module, const char *path,
                                   mpt__module **holder) {
    const char *name = "";
    *holder = path ? mpt__module_find(context, module, path, &name) : NULL;
    for (int64_t i = 0; *holder && i < (*holder)->parameter_count; i++)
        if (strcmp((*holder)->parameters[i].name, name) == 0) return i;
    mpt__error(context, MPT_ERROR_ARGUMENT, "%s has no parameter \"%s\"; mpt_summary lists them",
               module->cls.name, path ? path : "(null)");
    return -1;
}

MPTRAIN_API mpt_tensor mpt_parameter(mpt_module module, const char *path) {
    mpt_context *context = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_parameter"), *holder;
    if (!found) return mpt__null(context);
    int64_t i = mpt__find_parameter(context, found, path, &holder);
    return i < 0 ? mpt__null(context) : mpt__parameter_handle(context, holder, i);
}

MPTRAIN_API mpt_module mpt_child(mpt_module module, const char *path) {
    mpt_context *context = module.context;
    mpt__module *found = mpt__module_call(module, "mpt_child");
    if (!found) return mpt__module_null(context);
    const mpt__module *child = path && *path ? mpt__module_find(context, found, path, NULL) : NULL;
    if (!child)
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s has no child \"%s\"; mpt_summary lists them",
                   found->cls.name, path ? path : "(null)");
    return mpt__module_handle(context, child);
}

/* ==== Listing ==== */

typedef struct mpt__listing {
    uint32_t *list; /* of parameters number `first` on, as far as there is room; may be NULL */
    int64_t first, room;
    int64_t count, numel; /* of all */
} mpt__listing;

static mpt_status mpt__list_module(mpt_context *context, mpt__module *module, const char *path,
                                   void *user) {
    mpt__listing *listing = (mpt__listing *)user;
    (void)context, (void)path;
    for (int64_t i = 0; i < module->parameter_count; i++) {
        int64_t at = listing->count++ - listing->first;
        if (at >= 0 && at < listing->room) listing->list[at] = module->parameters[i].parameter - 1;
        listing->numel += mpt__shape_numel(&module->parameters[i].shape);
    }
    return MPT_OK;
}

/* Goes through the parameters below a module; the count, -1 on error. */
static int64_t mpt__list_parameters(mpt_context *context, mpt__module *module, int64_t first,
                                    uint32_t *list, int64_t room, int64_t *numel) {
    mpt__listing listing;
    memset(&listing, 0, sizeof listing);
    listing.list = list, listing.first = first, listing.room = list ? room : 0;
    if (mpt__walk_modules(context, module, mpt__list_module, &listing) != MPT_OK) return -1;
    if (numel) *numel = listing.numel;
    return listing.count;
}

static int64_t mpt__module_parameters(mpt_context *context, mpt_module module, const char *name,
                                      uint32_t *list, int64_t capacity) {
    mpt__module *found = mpt__module_at(context, module), *holder;
    if (!found || mpt__freeze(context, found) != MPT_OK) return -1;
    if (!name) return mpt__list_parameters(context, found, 0, list, capacity, NULL);
    int64_t i = mpt__find_parameter(context, found, name, &holder);
    if (i < 0) return -1;
    if (list && capacity > 0) list[0] = holder->parameters[i].parameter - 1;
    return 1;
}

/* These two count without freezing the tree. */
MPTRAIN_API int mpt_parameter_count(mpt_module module) {
    mpt__module *found = mpt__module_call(module, "mpt_parameter_count");
    return found ? (int)mpt__list_parameters(module.context, found, 0, NULL, 0, NULL) : -1;
}

MPTRAIN_API int64_t mpt_parameter_numel(mpt_module module) {
    mpt__module *found = mpt__module_call(module, "mpt_parameter_numel");
    int64_t numel = -1;
    if (found) mpt__list_parameters(module.context, found, 0, NULL, 0, &numel);
    return numel;
}

/* All parameters below a module, in memory that mpt__parameter_list_free takes back. */
typedef struct mpt__parameter_list {
    uint32_t *index;
    int64_t count;
} mpt__parameter_list;

static bool mpt__parameter_list_make(mpt_context *context, mpt__module *module,
                                     mpt__parameter_list *list) {
    list->index = NULL;
    list->count = mpt__list_parameters(context, module, 0, NULL, 0, NULL);
    if (list->count <= 0) return list->count == 0;
    list->index = (uint32_t *)mpt__host_new(context, (size_t)list->count * sizeof(uint32_t));
    if (!list->index) return false;
    mpt__list_parameters(context, module, 0, list->index, list->count, NULL);
    return true;
}

static void mpt__parameter_list_free(mpt_context *context, mpt__parameter_list *list) {
    mpt__host_free(context, list->index, (size_t)list->count * sizeof(uint32_t));
}

/* The path of a parameter as seen from `module`, whose own path is a prefix of it. */
static const char *mpt__relative_path(mpt_context *context, const mpt__module *module,
                                      const mpt__parameter *parameter) {
    const char *path = parameter->path;
    if (!module->parent) return path;
    const char *prefix = mpt__path_text(context, module->path);
    size_t length = strlen(prefix);
    return strncmp(path, prefix, length) == 0 && path[length] == '.' ? path + length + 1 : path;
}

MPTRAIN_API mpt_tensor mpt_parameter_at(mpt_module module, int index, char *path,
                                        size_t path_size) {
    mpt_context *context = module.context;
    mpt__prose prose = mpt__prose_make(path, path_size);
    mpt__module *found = mpt__module_frozen(module, "mpt_parameter_at");
    uint32_t number = 0;
    int64_t count = found ? mpt__list_parameters(context, found, index, &number, 1, NULL) : -1;
    if (count < 0) return mpt__null(context);
    if (index < 0 || index >= count) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "parameter %d: the module has %lld of them", index,
                   (long long)count);
        return mpt__null(context);
    }
    const mpt__parameter *parameter = &context->parameters[number];
    mpt__write_text(&prose, "%s", mpt__relative_path(context, found, parameter));
    return mpt__handle(context, mpt__slot(context, parameter->tensor));
}

/* ==== Modes and policies ==== */

static mpt_status mpt__set_training(mpt_context *context, mpt__module *module, const char *path,
                                    void *user) {
    (void)context, (void)path;
    module->training = *(const bool *)user;
    return MPT_OK;
}

static mpt_status mpt__train(mpt_module module, const char *call, bool on) {
    mpt__module *found = mpt__module_call(module, call);
    if (found) mpt__walk_modules(module.context, found, mpt__set_training, &on);
    return mpt__status_of(module.context);
}

MPTRAIN_API mpt_status mpt_train(mpt_module module) {
    return mpt__train(module, "mpt_train", true);
}
MPTRAIN_API mpt_status mpt_eval(mpt_module module) { return mpt__train(module, "mpt_eval", false); }

MPTRAIN_API bool mpt_is_training(mpt_module module) {
    const mpt__module *found = mpt__module_call(module, "mpt_is_training");
    return found && found->training;
}

MPTRAIN_API mpt_status mpt_set_label(mpt_module root, const char *label) {
    mpt_context *context = root.context;
    mpt__module *found = mpt__module_call(root, "mpt_set_label");
    if (!found) return mpt__status_of(context);
    if (!label) return mpt__error(context, MPT_ERROR_ARGUMENT, "label is NULL");
    if (found->parent || found->frozen)
        return mpt__error(context, MPT_ERROR_STATE,
                          "a label belongs to the root of a tree, before the tree is first used");
    char *copy = mpt__host_text(context, label);
    if (!copy) return context->base.status;
    mpt__host_text_free(context, found->label);
    found->label = copy;
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_set_dtype_policy(mpt_module module, mpt_dtype dtype) {
    mpt__module *found = mpt__module_call(module, "mpt_set_dtype_policy");
    if (!found) return mpt__status_of(module.context);
    if (dtype != MPT_F32 && dtype != MPT_F16 && dtype != MPT_BF16 && dtype != MPT_DTYPE_NONE)
        return mpt__error(
            module.context, MPT_ERROR_DTYPE,
            "expected MPT_F16, MPT_BF16, MPT_F32 (casting off) or MPT_DTYPE_NONE, got %s",
            mpt_dtype_name(dtype));
    found->policy = (uint8_t)dtype;
    return MPT_OK;
}

/* ==== Pure half ==== */

static mpt_status mpt__check_half(mpt_context *context, const mpt__parameter *parameter,
                                  mpt_dtype dtype, float *values) {
    const mpt__tensor *tensor = mpt__slot(context, parameter->tensor);
    if (parameter->optimizer)
        return mpt__error(
            context, MPT_ERROR_STATE,
            "parameter %s already belongs to an optimizer; call mpt_half before it is made",
            parameter->path);
    if (mpt__read_as(context, tensor, MPT_F32, values) != MPT_OK) return context->base.status;
    float limit = (float)mpt__dtype_info[dtype].max_finite;
    for (int64_t i = 0; i < parameter->numel; i++) {
        if (mpt__f32_is_finite(values[i]) && (values[i] > limit || values[i] < -limit))
            return mpt__error(
                context, MPT_ERROR_NUMERIC,
                "parameter %s: element %lld is %g, beyond the largest %s, %g; scale the "
                "weights down, use MPT_BF16, or train with autocast instead",
                parameter->path, (long long)i, (double)values[i], mpt_dtype_name(dtype),
                (double)limit);
    }
    return MPT_OK;
}

/* Moves the listed parameters into a new block of `dtype`. */
static mpt_status mpt__move_parameters(mpt_context *context, const mpt__parameter_list *list,
                                       mpt_dtype dtype) {
    int64_t numel = 0, offset = 0, grain = mpt__block_grain(dtype);
    for (int64_t i = 0; i < list->count; i++)
        numel = mpt__aligned_up(numel + context->parameters[list->index[i]].numel, grain);
    uint32_t index = mpt__block_new(context, dtype);
    if (index == UINT32_MAX) return context->base.status;
    uint32_t values = mpt__storage_new(context, numel * mpt__dtype_info[dtype].bytes,
                                       MPT_MEMORY_PARAMETER, MPT__FROM_DEVICE, true);
    mpt__block *block = &context->blocks[index];
    block->values = values;
    block->numel = numel;
    if (!values) {
        mpt__block_free(context, block);
        return context->base.status;
    }
    for (int64_t i = 0; i < list->count; i++) {
        mpt__parameter *parameter = &context->parameters[list->index[i]];
        mpt__tensor *tensor = mpt__slot(context, parameter->tensor), moved = *tensor;
        mpt__block *old = &context->blocks[parameter->block];
        moved.storage = values;
        moved.dtype = (uint8_t)dtype;
        moved.offset = offset;
        mpt__launch_copy(context, tensor, &moved, MPT__WRITE);
        mpt__storage_retain(context, values);
        mpt__storage_release(context, tensor->storage);
        *tensor = moved;
        parameter->block = index;
        parameter->offset = offset;
        parameter->has_grad = false;
        block->parameters++;
        offset = mpt__aligned_up(offset + parameter->numel, grain);
        if (--old->parameters == 0) mpt__block_free(context, old);
    }
    return context->base.status;
}

MPTRAIN_API mpt_status mpt_half(mpt_module module, mpt_dtype dtype) {
    mpt_context *context = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_half");
    if (!found) return mpt__status_of(context);
    if (dtype != MPT_F16 && dtype != MPT_BF16 && dtype != MPT_F32)
        return mpt__error(context, MPT_ERROR_DTYPE, "expected MPT_F16, MPT_BF16 or MPT_F32, got %s",
                          mpt_dtype_name(dtype));
    mpt__parameter_list list;
    if (!mpt__parameter_list_make(context, found, &list)) return context->base.status;
    int64_t largest = 0;
    for (int64_t i = 0; i < list.count; i++) {
        int64_t numel = context->parameters[list.index[i]].numel;
        if (numel > largest) largest = numel;
    }
    size_t bytes = (size_t)largest * sizeof(float);
    float *values = largest > 0 ? (float *)mpt__host_new(context, bytes) : NULL;
    for (int64_t i = 0; i < list.count && values && context->base.status == MPT_OK; i++)
        mpt__check_half(context, &context->parameters[list.index[i]], dtype, values);
    mpt__host_free(context, values, bytes);
    if (context->base.status == MPT_OK && list.count > 0)
        mpt__move_parameters(context, &list, dtype);
    mpt__parameter_list_free(context, &list);
    return context->base.status;
}

/* ==== Summary ==== */

typedef struct mpt__summary {
    mpt__prose out;
    int64_t parameters, bytes;
} mpt__summary;

/* One line: columns begin at 0, 27, 45 and 65, or one blank after a longer one. */
static void mpt__summary_line(mpt__prose *out, const char *const column[4]) {
    static const size_t starts[] = {0, 27, 45, 65};
    size_t line = out->length;
    for (int i = 0; i < 4 && *column[i]; i++) {
        if (i > 0) mpt__write_text(out, " ");
        while (out->length - line < starts[i]) mpt__write_text(out, " ");
        mpt__write_text(out, "%s", column[i]);
    }
    mpt__write_text(out, "\n");
}

static mpt_status mpt__summary_module(mpt_context *context, mpt__module *module, const char *path,
                                      void *user) {
    mpt__summary *summary = (mpt__summary *)user;
    const char *head[4] = {*path ? path : "(root)", module->cls.name, "", ""};
    mpt__summary_line(&summary->out, head);
    for (int64_t i = 0; i < module->parameter_count; i++) {
        const mpt__module_parameter *row = &module->parameters[i];
        char name[256], shape[192], number[24];
        mpt_dtype dtype = MPT_F32;
        if (row->parameter) {
            const mpt__parameter *parameter = &context->parameters[row->parameter - 1];
            dtype = (mpt_dtype)context->blocks[parameter->block].dtype;
        }
        int64_t numel = mpt__shape_numel(&row->shape);
        mpt__format_text(name, sizeof name, "  %s", row->name);
        mpt__format_text(shape, sizeof shape, "%S", &row->shape);
        mpt__format_text(number, sizeof number, "%lld", (long long)numel);
        const char *columns[4] = {name, mpt_dtype_name(dtype), shape, number};
        mpt__summary_line(&summary->out, columns);
        summary->parameters += numel;
        summary->bytes += numel * mpt__dtype_info[dtype].bytes;
    }
    return MPT_OK;
}

MPTRAIN_API size_t mpt_summary(mpt_module module, char *text, size_t size) {
    mpt__summary summary;
    memset(&summary, 0, sizeof summary);
    summary.out = mpt__prose_make(text, size);
    mpt__module *found = mpt__module_call(module, "mpt_summary");
    if (!found) return 0;
    mpt__walk_modules(module.context, found, mpt__summary_module, &summary);
    mpt__write_text(&summary.out, "total: %lld parameters, %lld bytes\n",
                    (long long)summary.parameters, (long long)summary.bytes);
    return summary.out.length;
}

/* ==== Copying, hashing, destroying ==== */

/* Values of one parameter into another of the same shape, through host memory. */
static mpt_status mpt__copy_parameter(mpt_context *to, uint32_t to_index, mpt_context *from,
                                      uint32_t from_index) {
    mpt__parameter *target = &to->parameters[to_index], *source = &from->parameters[from_index];
    mpt__tensor *a = mpt__slot(to, target->tensor), *b = mpt__slot(from, source->tensor);
    if (!mpt__same_shape(a, b)) {
        mpt_shape sa = mpt__shape_of(a), sb = mpt__shape_of(b);
        return mpt__error(to, MPT_ERROR_SHAPE, "parameter %s is %S here and %S in the source (%s)",
                          target->path, &sa, &sb, source->path);
    }
    size_t bytes = (size_t)target->numel * sizeof(float);
    if (bytes == 0) return MPT_OK;
    float *values = (float *)mpt__host_new(to, bytes);
    if (!values) return to->base.status;
    if (mpt__read_as(from, b, MPT_F32, values) == MPT_OK)
        mpt__write_f32(to, a, values);
    else
        mpt__error(to, MPT_ERROR_STATE, "the source's context failed: %s", mpt_error(from));
    mpt__host_free(to, values, bytes);
    return to->base.status;
}

MPTRAIN_API mpt_status mpt_copy_module(mpt_module destination, mpt_module source) {
    mpt_context *to = destination.context, *from = source.context;
    mpt__module *target = mpt__module_frozen(destination, "mpt_copy_module");
    if (!target) return mpt__status_of(to);
    if (!from) return mpt__error(to, MPT_ERROR_HANDLE, "the source is a null handle");
    mpt__module *origin = mpt__module_frozen(source, "mpt_copy_module");
    if (!origin) {
        if (from == to) return to->base.status;
        return mpt__error(to, MPT_ERROR_STATE, "the source's context failed: %s", mpt_error(from));
    }
    mpt__parameter_list a, b;
    if (!mpt__parameter_list_make(to, target, &a)) return to->base.status;
    if (!mpt__parameter_list_make(from, origin, &b))
        mpt__error(to, MPT_ERROR_STATE, "the source's context failed: %s", mpt_error(from));
    else if (a.count != b.count)
        mpt__error(to, MPT_ERROR_SHAPE, "the source has %lld parameters, the destination %lld",
                   (long long)b.count, (long long)a.count);
    for (int64_t i = 0; i < a.count && to->base.status == MPT_OK; i++)
        mpt__copy_parameter(to, a.index[i], from, b.index[i]);
    mpt__parameter_list_free(to, &a);
    mpt__parameter_list_free(from, &b);
    return to->base.status;
}

/* Hash over the elements of a storage range. */
static uint64_t mpt__hash_storage(mpt_context *context, uint64_t hash, uint32_t storage,
                                  int64_t byte_offset, int64_t bytes) {
    unsigned char piece[4096]; /* a fixed size: pieces are hashed one by one */
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof piece) {
        int64_t now = bytes - at < (int64_t)sizeof piece ? bytes - at : (int64_t)sizeof piece;
        if (mpt__download(context, piece, storage, byte_offset + at, now) != MPT_OK) return 0;
        hash = mpt__hash_bytes(hash, piece, (size_t)now);
    }
    return hash;
}

MPTRAIN_API uint64_t mpt_module_hash(mpt_module module) {
    mpt_context *context = module.context;
    mpt__module *found = mpt__module_frozen(module, "mpt_module_hash");
    mpt__parameter_list list;
    if (!found || !mpt__parameter_list_make(context, found, &list)) return 0;
    uint64_t hash = 0;
    for (int64_t i = 0; i < list.count; i++) {
        const mpt__parameter *parameter = &context->parameters[list.index[i]];
        const mpt__tensor *tensor = mpt__slot(context, parameter->tensor);
        const char *path = mpt__relative_path(context, found, parameter);
        int64_t width = mpt__dtype_info[tensor->dtype].bytes;
        hash = mpt__hash_bytes(hash, path, strlen(path));
        for (int d = 0; d < tensor->rank; d++)
            hash = mpt__hash_u64(hash, (uint64_t)tensor->shape[d]);
        hash = mpt__hash_u64(hash, tensor->dtype);
        hash = mpt__hash_storage(context, hash, tensor->storage, tensor->offset * width,
                                 parameter->numel * width);
    }
    mpt__parameter_list_free(context, &list);
    return hash;
}

static mpt_status mpt__check_unowned(mpt_context *context, mpt__module *module, const char *path,
                                     void *user) {
    (void)path, (void)user;
    for (int64_t i = 0; i < module->parameter_count; i++) {
        if (!module->parameters[i].parameter) continue;
        const mpt__parameter *parameter = &context->parameters[module->parameters[i].parameter - 1];
        if (parameter->optimizer)
            return mpt__error(
                context, MPT_ERROR_STATE,
                "parameter %s belongs to an optimizer; mpt_optimizer_destroy it first",
                parameter->path);
    }
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_module_destroy(mpt_module root) {
    mpt_context *context = root.context;
    mpt__module *found = mpt__module_call(root, "mpt_module_destroy");
    if (!found) return mpt__status_of(context);
    if (found->parent)
        return mpt__error(context, MPT_ERROR_STATE,
                          "the module is part of another one; destroy the root");
    if (context->module)
        return mpt__error(context, MPT_ERROR_STATE,
                          "a forward is under way; destroy modules after it");
    if (mpt__walk_modules(context, found, mpt__check_unowned, NULL) == MPT_OK)
        mpt__module_end(context, found, true);
    return context->base.status;
}

#endif
