/* ----
 * nn/module.c: modules: trees of layers, their parameters, the forward call.
 *
 * A tree is built freely and frozen when its root is first used: then parameters get their path,
 * place in a block and first values. These depend on (seed, root, path) alone, so the order in
 * which a compiler evaluates the arguments of mpt_sequential does not matter.
 * ---- */
#ifndef MPT__NN_MODULE_INCLUDED
#define MPT__NN_MODULE_INCLUDED

#include "nn/init.c"

MPT__BEGIN_COLD
/* ==== Destroying ==== */

static void mpt__block_free(mpt_context *ctx, mpt__block *block) {
    if (block->values) mpt__storage_release(ctx, block->values);
    if (block->gradients) mpt__storage_release(ctx, block->gradients);
    for (int i = 0; i < 2; i++)
        if (block->form[i]) mpt__storage_release(ctx, block->form[i]);
    mpt__zero(*block);
}

/* Everything a parameter holds, once no module names it any more. */
static void mpt__parameter_drop(mpt_context *ctx, mpt__module_parameter *row) {
    if (!row->parameter || row->owner) return;
    mpt__parameter *parameter = &ctx->parameters[row->parameter - 1];
    mpt__block *block = &ctx->blocks[parameter->block];
    row->parameter = 0;
    if (parameter->tensor) {
        parameter->tensor->parameter = 0; /* a backward to come finds nothing to collect in */
        parameter->tensor->flags = MPT__KEPT;
        mpt__tensor_drop(ctx, parameter->tensor);
    }
    mpt__host_text_free(ctx, parameter->path);
    mpt__zero(*parameter);
    while (ctx->parameter_count > 0 && !ctx->parameters[ctx->parameter_count - 1].live)
        ctx->parameter_count--;
    if (--block->parameters == 0) mpt__block_free(ctx, block);
}

/* A tied row of a module that lives on takes over what a module that ends owns. */
static void mpt__tied_bequeath(mpt_context *ctx, const mpt__module *module) {
    MPT__EACH_OBJECT(const mpt__module, other, ctx, MPT__MODULE) {
        for (int64_t k = 0; k < other->parameter_count; k++) {
            mpt__module_parameter *row = &other->parameters[k];
            if (row->owner != module->id.slot) continue;
            mpt__module_parameter *from = &module->parameters[row->owner_row];
            row->owner = from->owner, row->owner_row = from->owner_row;
            if (from->owner) continue;
            from->owner = other->id.slot, from->owner_row = k;
        }
    }
}

static void mpt__running_free(mpt_context *ctx, mpt__running *running) {
    if (!running) return;
    const uint32_t storages[] = {
        running->values, running->counts, running->next_values, running->next_counts};
    for (int i = 0; i < MPT__BUFFERS; i++) {
        if (running->buffer[i]) {
            running->buffer[i]->flags = MPT__KEPT;
            mpt__tensor_drop(ctx, running->buffer[i]);
        }
        mpt__host_text_free(ctx, running->path[i]);
    }
    for (int i = 0; i < 4; i++)
        if (storages[i]) mpt__storage_release(ctx, storages[i]);
    mpt__host_free(ctx, running, sizeof *running);
}

static void mpt__module_free(mpt_context *ctx, void *object) {
    mpt__module *module = (mpt__module *)object;
    mpt__tied_bequeath(ctx, module);
    if (module->cls.destroy) module->cls.destroy(module->user);
    for (int64_t i = 0; i < module->child_count; i++)
        mpt__host_text_free(ctx, module->children[i].name);
    for (int64_t i = 0; i < module->parameter_count; i++) {
        mpt__host_text_free(ctx, module->parameters[i].name);
        mpt__parameter_drop(ctx, &module->parameters[i]);
    }
    mpt__room_free(ctx, module->children, module->child_capacity);
    mpt__room_free(ctx, module->parameters, module->parameter_capacity);
    mpt__running_free(ctx, module->running);
    if (mpt__hooks_of(module)) mpt__host_free(ctx, module->hooks, sizeof *module->hooks);
}

/* Slot of another module that holds `child`; 0 if there is none. */
static uint32_t mpt__other_parent(
    mpt_context *ctx, const mpt__module *parent, const mpt__module *child) {
    MPT__EACH_OBJECT(const mpt__module, other, ctx, MPT__MODULE) {
        for (int64_t k = 0; other != parent && k < other->child_count; k++)
            if (other->children[k].slot == child->id.slot) return other->id.slot;
    }
    return 0;
}

/* Frees a module; `below`: and all below it that no other module holds. */
static void mpt__module_end(mpt_context *ctx, mpt__module *module, bool below) {
    for (int64_t i = 0; i < module->child_count; i++) {
        mpt__module *child = mpt__module_slot(ctx, module->children[i].slot);
        if (--child->parents == 0 && below)
            mpt__module_end(ctx, child, true);
        else if (child->parent == module->id.slot)
            child->parent = mpt__other_parent(ctx, module, child);
    }
    mpt__object_free(ctx, MPT__MODULE, module->id.slot);
}

/* ==== Walks ==== */

#define MPT__PATH_BYTES 1024

typedef struct {
    uint32_t slot, length; /* a module on the way down, the length of its path */
    uint32_t next;         /* its next child */
} mpt__level;

/* A module and all below it, in the order of their children: a shared one once, under its first
   path. Ends early with an error recorded if the tree is too deep. */
typedef struct mpt__walk {
    mpt_context *context;
    mpt__module *module; /* the current one */
    int64_t row;         /* its next parameter */
    uint32_t mark;
    int depth;
    bool buffers; /* of mpt__walk_weight: the parameters are behind it */
    mpt__level level[MPT__MAX_DEPTH];
    char path[MPT__PATH_BYTES]; /* of the current one */
} mpt__walk;

static mpt__module *mpt__walk_to(mpt__walk *walk, mpt__module *module, uint32_t length) {
    mpt__level *level = &walk->level[walk->depth++];
    level->slot = module->id.slot, level->length = length, level->next = 0;
    module->mark = walk->mark;
    walk->module = module;
    walk->row = 0;
    return module;
}

/* Gives the root; mpt__walk_next the others, NULL at the end. */
static mpt__module *mpt__walk_begin(mpt__walk *walk, mpt_context *ctx, mpt__module *root) {
    walk->context = ctx;
    walk->mark = ++ctx->module_mark;
    walk->depth = 0;
    walk->buffers = false;
    walk->path[0] = '\0';
    return mpt__walk_to(walk, root, 0);
}

static mpt__module *mpt__walk_down(mpt__walk *walk, mpt__module *child, const char *name) {
    uint32_t length = walk->level[walk->depth - 1].length, room = MPT__PATH_BYTES - length;
    length +=
        (uint32_t)mpt__format_text(&walk->path[length], room, "%s%s", length ? "." : "", name);
    if (length >= MPT__PATH_BYTES)
        mpt__error(walk->context, ARGUMENT, "a path is too long: %s", walk->path);
    else if (walk->depth == MPT__MAX_DEPTH)
        mpt__error(walk->context, ARGUMENT, "modules nest deeper than %d", MPT__MAX_DEPTH);
    else
        return mpt__walk_to(walk, child, length);
    return NULL;
}

static mpt__module *mpt__walk_next(mpt__walk *walk) {
    while (walk->depth > 0) {
        mpt__level *level = &walk->level[walk->depth - 1];
        const mpt__module *above = mpt__module_slot(walk->context, level->slot);
        walk->path[level->length] = '\0';
        if (level->next == above->child_count) {
            walk->depth--;
            continue;
        }
        const mpt__module_child *row = &above->children[level->next++];
        mpt__module *child = mpt__module_slot(walk->context, row->slot);
        if (child->mark != walk->mark) return mpt__walk_down(walk, child, row->name);
    }
    return NULL;
}

/* Loops over the modules of a tree, the root first. */
#define MPT__EACH_MODULE(module, walk, ctx, root) \
    for (module = mpt__walk_begin(walk, ctx, root); module; module = mpt__walk_next(walk))

/* A tensor of a module's state, and its path in the tree. */
typedef struct {
    mpt__tensor *tensor;
    const char *path;
} mpt__buffer;

/* The next tensor of state, after the manner of mpt__walk_parameter; false at the end. */
static bool mpt__walk_buffer(mpt__walk *walk, mpt__buffer *buffer) {
    for (;;) {
        const mpt__running *has = walk->module->running;
        while (has && walk->row < MPT__BUFFERS && !has->buffer[walk->row]) walk->row++;
        if (has && walk->row < MPT__BUFFERS) break;
        if (!mpt__walk_next(walk)) return false;
    }
    const mpt__running *running = walk->module->running;
    buffer->tensor = running->buffer[walk->row];
    buffer->path = running->path[walk->row++];
    return true;
}

/* The next parameter, of the current module or a later one; NULL at the end. Tied ones are passed
   over. */
static mpt__module_parameter *mpt__walk_parameter(mpt__walk *walk) {
    mpt__module_parameter *row;
    do {
        while (walk->row == walk->module->parameter_count)
            if (!mpt__walk_next(walk)) return NULL;
        row = &walk->module->parameters[walk->row++];
    } while (row->owner);
    return row;
}

/* ==== Numbers ====
 *
 * The number of a tree's root is in the key of its initial values. A failed creation gives the
 * numbers of what it was to be made of back if they are the last ones, so that a second try draws
 * the same values. What is used after all gets the next ones. */

static bool mpt__number_is_free(const mpt__module *module) {
    return module && module->creation && !module->parent && !module->frozen;
}

static void mpt__number_back(mpt_context *ctx, const mpt_module *modules, int count) {
    int64_t first = INT64_MAX, numbers = 0;
    for (int i = 0; i < count; i++) {
        const mpt__module *module = mpt__module_at(ctx, modules[i]);
        if (!mpt__number_is_free(module)) continue;
        numbers += module->numbers;
        if (module->first < first) first = module->first;
    }
    if (first + numbers != (int64_t)ctx->module_creations + 1) return;
    ctx->module_creations = (uint64_t)(first - 1);
    for (int i = 0; i < count; i++) {
        mpt__module *module = mpt__module_at(ctx, modules[i]);
        if (mpt__number_is_free(module)) module->creation = 0;
    }
}

/* The next numbers for a tree without any, the last of them the root's. */
static void mpt__number(mpt_context *ctx, mpt__module *root) {
    if (root->creation) return;
    root->first = (int64_t)ctx->module_creations + 1;
    ctx->module_creations += (uint64_t)root->numbers;
    root->creation = (int64_t)ctx->module_creations;
}

/* ==== Building ==== */

static bool mpt__check_open(mpt_context *ctx, const mpt__module *module, const char *what) {
    if (module->frozen)
        mpt__error(ctx, STATE,
            "the tree is in use (forward, optimizer, save or a value was read) and takes no "
            "more %s; add all of them first",
            what);
    return !module->frozen;
}

static mpt_status mpt__add_child(
    mpt_context *ctx, mpt__module *module, const char *name, mpt__module *child) {
    if (!mpt__check_open(ctx, module, "children")) return ctx->base.status;
    int depth = 1, most = 0;
    for (const mpt__module *above = module; above->parent; depth++)
        above = mpt__module_slot(ctx, above->parent);
    mpt__walk walk;
    const mpt__module *below;
    MPT__EACH_MODULE(below, &walk, ctx, child) {
        if (below == module)
            return mpt__error(ctx, ARGUMENT, "the child contains the module itself");
        if (walk.depth > most) most = walk.depth;
    }
    if (depth + most > MPT__MAX_DEPTH)
        return mpt__error(ctx, ARGUMENT, "modules nest deeper than %d", MPT__MAX_DEPTH);
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (child->frozen)
        return mpt__error(
            ctx, STATE, "child %s is in use; build the whole tree, then load and use it", name);
    for (int64_t i = 0; i < module->child_count; i++)
        if (strcmp(module->children[i].name, name) == 0)
            return mpt__error(ctx, ARGUMENT, "the module already has a child %s", name);
    if (!mpt__room(ctx, module->children, module->child_capacity, module->child_count + 1))
        return ctx->base.status;
    mpt__module_child *rows = module->children + module->child_count;
    rows->name = mpt__host_text(ctx, name);
    rows->slot = child->id.slot;
    if (!rows->name) return ctx->base.status;
    module->child_count++;
    if (!child->parent) child->parent = module->id.slot;
    child->parents++;
    mpt__number(ctx, child);
    for (mpt__module *above = module;;) {
        above->numbers += child->numbers;
        if (above->first > child->first) above->first = child->first;
        if (!above->parent) return MPT_OK;
        above = mpt__module_slot(ctx, above->parent);
    }
}

static mpt_status mpt__add_parameter(mpt_context *ctx, mpt__module *module, const char *name,
    const mpt_shape *shape, mpt_init init, int64_t fan_in) {
    if (!mpt__check_open(ctx, module, "parameters") || mpt__checked_bytes(ctx, MPT_F32, shape) < 0)
        return ctx->base.status;
    for (int64_t i = 0; i < module->parameter_count; i++)
        if (strcmp(module->parameters[i].name, name) == 0)
            return mpt__error(ctx, ARGUMENT, "the module already has a parameter %s", name);
    if (!mpt__room(
            ctx, module->parameters, module->parameter_capacity, module->parameter_count + 1))
        return ctx->base.status;
    mpt__module_parameter *rows = module->parameters + module->parameter_count;
    mpt__zero(*rows);
    rows->name = mpt__host_text(ctx, name);
    rows->shape = *shape;
    rows->init = init;
    rows->fan_in = fan_in;
    if (rows->name) module->parameter_count++;
    return ctx->base.status;
}

/* ==== Layers ==== */

/* A module without a number: mpt__layer_made follows. NULL with an error recorded. */
static mpt__module *mpt__layer_new(mpt_context *ctx, const char *call, mpt__layer layer) {
    if (!mpt__enter(ctx, call)) return NULL;
    mpt__module *module = (mpt__module *)mpt__object_make(ctx, MPT__MODULE, sizeof *module);
    if (!module) return NULL;
    module->attributes = mpt__no_attributes;
    module->layer = layer;
    module->cls.name = mpt__layer_rows[layer].name;
    module->cls.n_inputs = module->cls.n_outputs = 1;
    module->training = true;
    module->first = INT64_MAX;
    module->numbers = 1;
    return module;
}

/* Ends a constructor: the handle and the number; on error, neither. */
static mpt_module mpt__layer_made(mpt_context *ctx, mpt__module *module) {
    if (!module) return mpt__module_handle(ctx, NULL);
    if (!mpt__ok(ctx)) {
        mpt__module_end(ctx, module, false);
        return mpt__module_handle(ctx, NULL);
    }
    module->creation = (int64_t)++ctx->module_creations;
    if (module->first > module->creation) module->first = module->creation;
    return mpt__module_handle(ctx, module);
}

/* A parameter of PyTorch's default values by `fan_in`. */
static void mpt__layer_parameter(
    mpt_context *ctx, mpt__module *module, const char *name, mpt_shape shape, int64_t fan_in) {
    mpt_init init = mpt_init_make(MPT_INIT_DEFAULT, 0, 0);
    if (mpt__ok(ctx)) mpt__add_parameter(ctx, module, name, &shape, init, fan_in);
}

static mpt_module mpt__linear_new(
    mpt_context *ctx, const char *call, int64_t in, int64_t out, bool bias) {
    mpt__module *module = mpt__layer_new(ctx, call, MPT__LAYER_linear);
    if (!module) return mpt__module_handle(ctx, NULL);
    if (in < 1 || out < 1)
        mpt__error(ctx, ARGUMENT, "%lld -> %lld features: expected 1 or more", in, out);
    mpt__layer_parameter(ctx, module, "weight", MPT_SHAPE(out, in), in);
    if (bias) mpt__layer_parameter(ctx, module, "bias", MPT_SHAPE(out), in);
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_linear(mpt_context *ctx, int64_t in, int64_t out) {
    return mpt__linear_new(ctx, "mpt_nn_linear", in, out, true);
}
mpt_module mpt_nn_linear_no_bias(mpt_context *ctx, int64_t in, int64_t out) {
    return mpt__linear_new(ctx, "mpt_nn_linear_no_bias", in, out, false);
}

/* Layers that nothing need be told. */
#define MPT__DEFINE_LAYER(name) \
    mpt_module mpt_nn_##name(mpt_context *ctx) { \
        return mpt__layer_made(ctx, mpt__layer_new(ctx, "mpt_nn_" #name, MPT__LAYER_##name)); \
    }
MPT__DEFINE_LAYER(relu)
MPT__DEFINE_LAYER(gelu)
MPT__DEFINE_LAYER(tanh)
MPT__DEFINE_LAYER(sigmoid)
MPT__DEFINE_LAYER(flatten)
MPT__DEFINE_LAYER(gelu_tanh)
MPT__DEFINE_LAYER(silu)
#undef MPT__DEFINE_LAYER

mpt_module mpt_nn_dropout(mpt_context *ctx, double p) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_nn_dropout", MPT__LAYER_dropout);
    if (module) module->attributes.imm[0] = p;
    if (module && !(p >= 0.0 && p <= 1.0)) mpt__error(ctx, ARGUMENT, "p = %g is not in [0, 1]", p);
    return mpt__layer_made(ctx, module);
}

static mpt_module mpt__number_layer(
    mpt_context *ctx, const char *call, mpt__layer layer, double a, double b) {
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    const char *why = mpt__bad_numbers(mpt__layer_rows[layer].op, a, b);
    if (module) module->attributes.imm[0] = a, module->attributes.imm[1] = b;
    if (module && why) mpt__error(ctx, ARGUMENT, why, a, b);
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_leaky_relu(mpt_context *ctx, double slope) {
    return mpt__number_layer(ctx, "mpt_nn_leaky_relu", MPT__LAYER_leaky_relu, slope, 0.0);
}
mpt_module mpt_nn_elu(mpt_context *ctx, double alpha) {
    return mpt__number_layer(ctx, "mpt_nn_elu", MPT__LAYER_elu, alpha, 0.0);
}
mpt_module mpt_nn_softplus(mpt_context *ctx, double beta, double threshold) {
    return mpt__number_layer(ctx, "mpt_nn_softplus", MPT__LAYER_softplus, beta, threshold);
}
mpt_module mpt_nn_hardtanh(mpt_context *ctx, double min, double max) {
    return mpt__number_layer(ctx, "mpt_nn_hardtanh", MPT__LAYER_hardtanh, min, max);
}

static mpt_module mpt__dim_layer(mpt_context *ctx, const char *call, mpt__layer layer, int dim) {
    mpt__module *module = mpt__layer_new(ctx, call, layer);
    if (module) module->attributes.index[0] = dim;
    return mpt__layer_made(ctx, module);
}

mpt_module mpt_nn_softmax(mpt_context *ctx, int dim) {
    return mpt__dim_layer(ctx, "mpt_nn_softmax", MPT__LAYER_softmax, dim);
}
mpt_module mpt_nn_log_softmax(mpt_context *ctx, int dim) {
    return mpt__dim_layer(ctx, "mpt_nn_log_softmax", MPT__LAYER_log_softmax, dim);
}

static mpt_module mpt__container_new(
    mpt_context *ctx, const char *call, mpt__layer layer, const mpt_module *modules, int count) {
    mpt__module *container = mpt__layer_new(ctx, call, layer);
    bool given = count == 0 || (count > 0 && modules);
    if (container && !given)
        mpt__error(ctx, ARGUMENT, "expected an array of modules and its length");
    for (int i = 0; i < count && container && mpt__ok(ctx); i++) {
        char text[16];
        mpt__format_text(text, sizeof text, "%d", i);
        mpt__module *child = mpt__module_at(ctx, modules[i]);
        if (child) mpt__add_child(ctx, container, text, child);
    }
    mpt_module made = mpt__layer_made(ctx, container);
    if (ctx && !made.slot && given) mpt__number_back(ctx, modules, count);
    return made;
}

/* A container of the arguments up to MPT_END; too many look as if it were missing. */
static mpt_module mpt__gathered_new(
    mpt_context *ctx, const char *call, mpt__layer layer, va_list arguments) {
    enum { MOST = 255 }; /* compilers need not take more arguments */
    mpt_module modules[MOST];
    for (int count = 0; count <= MOST; count++) {
        mpt_module module = va_arg(arguments, mpt_module);
        if (!module.context && module.slot == UINT32_MAX)
            return mpt__container_new(ctx, call, layer, modules, count);
        if (count < MOST) modules[count] = module;
    }
    mpt__misuse(ctx, call, ARGUMENT,
        "more than %d modules; is MPT_END missing? else use the form with an array", (int)MOST);
    return mpt__module_handle(ctx, NULL);
}

mpt_module mpt_sequential_array(mpt_context *ctx, const mpt_module *modules, int count) {
    return mpt__container_new(ctx, "mpt_sequential", MPT__LAYER_sequential, modules, count);
}
mpt_module mpt_nn_list_array(mpt_context *ctx, const mpt_module *modules, int count) {
    return mpt__container_new(ctx, "mpt_nn_list", MPT__LAYER_list, modules, count);
}
#define MPT__DEFINE_CONTAINER(name, layer) \
    mpt_module name(mpt_context *ctx, ...) { \
        va_list arguments; \
        va_start(arguments, ctx); \
        mpt_module made = mpt__gathered_new(ctx, #name, layer, arguments); \
        va_end(arguments); \
        return made; \
    }
MPT__DEFINE_CONTAINER(mpt_sequential, MPT__LAYER_sequential)
MPT__DEFINE_CONTAINER(mpt_nn_list, MPT__LAYER_list)
#undef MPT__DEFINE_CONTAINER

mpt_module mpt_module_create(mpt_context *ctx, const mpt_module_class *cls, void *user) {
    mpt__module *module = mpt__layer_new(ctx, "mpt_module_create", MPT__LAYER_user);
    if (!module) return mpt__module_handle(ctx, NULL);
    if (cls && cls->name && cls->forward) {
        module->cls = *cls;
        module->user = user;
    } else {
        mpt__error(ctx, ARGUMENT, "expected a class with a name and a forward");
    }
    return mpt__layer_made(ctx, module);
}

/* A name that paths can be made of. */
static bool mpt__check_name(mpt_context *ctx, const char *name) {
    if (name && *name && !strchr(name, '.') && strlen(name) < 200) return true;
    return mpt__reject(ctx, ARGUMENT, "expected a name of 1 to 199 characters without a dot");
}

mpt_status mpt_add_child(mpt_module module, const char *name, mpt_module child) {
    mpt__lend(module, child.context);
    mpt_context *ctx = module.context;
    mpt__module *above = mpt__module_enter(module, "mpt_add_child");
    mpt__module *below = above ? mpt__module_at(ctx, child) : NULL;
    if (below && mpt__check_name(ctx, name)) mpt__add_child(ctx, above, name, below);
    return mpt__status_of(ctx);
}

mpt_status mpt_add_parameter(mpt_module module, const char *name, mpt_shape shape, mpt_init init) {
    mpt_context *ctx = module.context;
    mpt__module *found = mpt__module_enter(module, "mpt_add_parameter");
    if (!found || !mpt__check_name(ctx, name) || !mpt__check_init(ctx, init))
        return mpt__status_of(ctx);
    return mpt__add_parameter(ctx, found, name, &shape, init, 0);
}

/* ==== Freezing ==== */

#define MPT__MOST_ELEMENTS (INT64_MAX / 16) /* of a tree: their bytes can still be counted */

/* Elements between the starts of tensors: 256 bytes of the block's dtype. */
static int64_t mpt__block_grain(mpt_dtype dtype) {
    return 256 / (int64_t)mpt__dtype_info[dtype].bytes;
}

static int64_t mpt__aligned_up(int64_t value, int64_t grain) {
    return (value + grain - 1) / grain * grain;
}

/* A path for the life of the context, by which mpt_fuse tells modules apart; 0 on error. */
static uint32_t mpt__path_new(mpt_context *ctx, const char *text) {
    if (ctx->path_count == 0) ctx->path_count = 1; /* 0 means none */
    if (!mpt__room(ctx, ctx->paths, ctx->path_capacity, ctx->path_count + 1)) return 0;
    ctx->paths[ctx->path_count] = mpt__host_text(ctx, text);
    return ctx->paths[ctx->path_count] ? (uint32_t)ctx->path_count++ : 0;
}

/* A place in the block for a parameter of a walk's current module. */
static mpt_status mpt__parameter_new(mpt__walk *walk, mpt__module_parameter *row, uint32_t block) {
    mpt_context *ctx = walk->context;
    if (!mpt__room(ctx, ctx->parameters, ctx->parameter_capacity, ctx->parameter_count + 1))
        return ctx->base.status;
    char text[MPT__PATH_BYTES + 256];
    mpt__format_text(text, sizeof text, "%s%s%s", walk->path, *walk->path ? "." : "", row->name);
    mpt__parameter *parameter = &ctx->parameters[ctx->parameter_count];
    mpt__zero(*parameter);
    parameter->path = mpt__host_text(ctx, text);
    if (!parameter->path) return ctx->base.status;
    parameter->live = true;
    parameter->block = block;
    parameter->module = walk->module->id.slot;
    parameter->offset = ctx->blocks[block].numel;
    parameter->numel = mpt__shape_numel(&row->shape);
    if (parameter->numel > MPT__MOST_ELEMENTS - parameter->offset) {
        mpt__host_text_free(ctx, parameter->path);
        return mpt__error(ctx, SHAPE, "the tree has more than 2^59 elements");
    }
    row->parameter = (uint32_t)++ctx->parameter_count;
    ctx->blocks[block].parameters++;
    ctx->blocks[block].numel =
        mpt__aligned_up(parameter->offset + parameter->numel, mpt__block_grain(MPT_F32));
    return MPT_OK;
}

/* The persistent tensor of a parameter, in its block. */
static mpt_status mpt__parameter_tensor(mpt_context *ctx, uint32_t index, const mpt_shape *shape) {
    mpt__parameter *parameter = &ctx->parameters[index];
    const mpt__block *block = &ctx->blocks[parameter->block];
    mpt__tensor view =
        mpt__view_on(block->values, (mpt_dtype)block->dtype, shape, parameter->offset);
    mpt__tensor *tensor =
        mpt__tensor_outside(ctx, &view, MPT__KEPT | MPT__REQUIRES_GRAD | MPT__LEAF);
    if (!tensor) return ctx->base.status;
    tensor->parameter = index + 1;
    parameter->tensor = tensor;
    return MPT_OK;
}

static uint32_t mpt__block_new(mpt_context *ctx, mpt_dtype dtype) {
    uint32_t index = 0;
    while ((int64_t)index < ctx->block_count && ctx->blocks[index].live) index++;
    if (!mpt__room(ctx, ctx->blocks, ctx->block_capacity, (int64_t)index + 1)) return UINT32_MAX;
    if ((int64_t)index == ctx->block_count) ctx->block_count++;
    memset(&ctx->blocks[index], 0, sizeof *ctx->blocks);
    ctx->blocks[index].live = 1;
    ctx->blocks[index].dtype = (uint8_t)dtype;
    ctx->blocks[index].moves = ctx->moves;
    return index;
}

/* Gives tied parameters their owners' places, which the walk before this saw. */
static mpt_status mpt__freeze_ties(mpt__walk *walk, mpt__module *root) {
    uint32_t mark = walk->mark;
    mpt__module *module;
    MPT__EACH_MODULE(module, walk, walk->context, root) {
        for (int64_t i = 0; i < module->parameter_count; i++) {
            mpt__module_parameter *row = &module->parameters[i];
            if (!row->owner) continue;
            const mpt__module *owner = mpt__module_slot(walk->context, row->owner);
            if (owner->mark != mark && owner->mark != walk->mark)
                return mpt__error(walk->context, STATE,
                    "parameter %s of module %s is tied to one outside the tree", row->name,
                    walk->path);
            row->parameter = owner->parameters[row->owner_row].parameter;
        }
    }
    return walk->context->base.status;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__placed_before(module) false
#else
#define mpt__placed_before(module) ((module)->frozen)
#endif

/* Paths and places for all modules and parameters of a tree that have none. */
static mpt_status mpt__freeze_places(mpt__walk *walk, mpt__module *root, uint32_t block) {
    mpt_context *ctx = walk->context;
    uint64_t key = root->label ? root->label : mpt__hash_u64(2, (uint64_t)root->creation);
    mpt__module *module = mpt__walk_begin(walk, ctx, root);
    for (; module; module = mpt__walk_next(walk)) {
        if (mpt__placed_before(module)) continue;
        root->watched |= mpt__looked_at(module);
        module->path = mpt__path_new(ctx, *walk->path ? walk->path : module->cls.name);
        if (!module->path) return ctx->base.status;
        module->path_hash = mpt__hash_bytes(key, walk->path, strlen(walk->path));
        for (int64_t i = 0; i < module->parameter_count; i++)
            if (!module->parameters[i].owner &&
                mpt__parameter_new(walk, &module->parameters[i], block) != MPT_OK)
                return ctx->base.status;
        for (int i = 0; module->running && i < MPT__BUFFERS; i++) {
            char text[MPT__PATH_BYTES + 256];
            if (!module->running->buffer[i]) continue;
            mpt__format_text(text, sizeof text, "%s%s%s", walk->path, *walk->path ? "." : "",
                mpt__buffer_names[i]);
            mpt__host_text_free(ctx, module->running->path[i]);
            module->running->path[i] = mpt__host_text(ctx, text);
            if (!module->running->path[i]) return ctx->base.status;
        }
    }
    return mpt__freeze_ties(walk, root);
}

/* Gives or takes the gradients of all parameters, tied ones too, of a module in use. */
static void mpt__parameters_collect(mpt_context *ctx, const mpt__module *module, bool on) {
    for (int64_t i = 0; i < module->parameter_count; i++) {
        mpt__parameter *parameter = &ctx->parameters[module->parameters[i].parameter - 1];
        const uint8_t flags = MPT__REQUIRES_GRAD | MPT__LEAF;
        mpt__tensor *tensor = parameter->tensor;
        tensor->flags = (uint8_t)(on ? tensor->flags | flags : tensor->flags & ~flags);
        if (!on) mpt__clear_grad(parameter); /* an update would use what is left */
    }
}

/* Memory and first values for parameters that have their places. */
static mpt_status mpt__freeze_values(mpt__walk *walk, mpt__module *root, uint32_t block) {
    mpt_context *ctx = walk->context;
    if (ctx->blocks[block].parameters > 0) {
        uint32_t values = mpt__storage_new(
            ctx, ctx->blocks[block].numel * 4, MPT_MEMORY_PARAMETER, MPT__FROM_DEVICE, true);
        ctx->blocks[block].values = values;
    }
    mpt__module_parameter *row;
    mpt__walk_begin(walk, ctx, root);
    while (mpt__ok(ctx) && (row = mpt__walk_parameter(walk)) != NULL)
        if (!mpt__placed_before(walk->module) &&
            mpt__parameter_tensor(ctx, row->parameter - 1, &row->shape) == MPT_OK)
            mpt__draw_parameter(ctx, walk->module, walk->row - 1, MPT_DTYPE_NONE);
    const mpt__module *module = mpt__ok(ctx) ? mpt__walk_begin(walk, ctx, root) : NULL;
    for (; module; module = mpt__walk_next(walk))
        if (module->fixed) mpt__parameters_collect(ctx, module, false);
    return ctx->base.status;
}

/* Gives parameters of a tree that have none their places and values; all or nothing. */
static mpt_status mpt__freeze_new(mpt_context *ctx, mpt__walk *walk, mpt__module *root) {
    uint32_t block = mpt__block_new(ctx, MPT_F32);
    if (block == UINT32_MAX) return ctx->base.status;
    bool good = mpt__freeze_places(walk, root, block) == MPT_OK &&
        mpt__freeze_values(walk, root, block) == MPT_OK;
    mpt__module *module = mpt__walk_begin(walk, ctx, root);
    for (; module; module = mpt__walk_next(walk)) {
        if (mpt__placed_before(module)) continue;
        module->frozen = good;
        for (int64_t i = 0; i < module->parameter_count && !good; i++)
            mpt__parameter_drop(ctx, &module->parameters[i]);
    }
    if (ctx->blocks[block].parameters == 0) mpt__block_free(ctx, &ctx->blocks[block]);
    return ctx->base.status;
}

/* The same for a tree that is not in use yet. */
static mpt_status mpt__freeze(mpt_context *ctx, mpt__module *module) {
    mpt__module *root = mpt__module_root(ctx, module);
    if (root->frozen) return MPT_OK;
    mpt__walk walk;
    MPT__EACH_MODULE(module, &walk, ctx, root) {
        if (module->frozen) /* its parameters are there */
            return mpt__error(ctx, STATE,
                "module %s is already in use in another tree; only one tree can share it",
                walk.path);
    }
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__number(ctx, root);
    return mpt__freeze_new(ctx, &walk, root);
}

MPT__END_REGION
/* ==== Forward ==== */

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__dropout_again(ctx, module) 0
#else
/* The number that a dropout call of the module had which backward makes again, by its twin: the
   next one with the module's stream. */
static uint64_t mpt__dropout_again(const mpt_context *ctx, const mpt__module *module) {
    for (const mpt__record *twin = ctx->region->at; twin; twin = twin->after)
        for (int at = 0; at < 2 && !twin->inner; at++) /* of dropout; of attention */
            if ((uint64_t)twin->attributes.index[at] == module->path_hash)
                return (uint64_t)twin->attributes.index[at + 1];
    return 0;
}
#endif

/* Number of a dropout call of the module in this step. What the count was at the last completed
   optimizer step is remembered for mpt_clear_error. */
static uint64_t mpt__dropout_count(mpt_context *ctx, mpt__module *module) {
    if (mpt__runs_again(ctx)) return mpt__dropout_again(ctx, module);
    if (module->updates != ctx->now.updates) {
        module->updates = ctx->now.updates;
        module->committed = module->draws;
    }
    if (module->draws.step != ctx->now.step) {
        module->draws.step = ctx->now.step;
        module->draws.count = 0;
    }
    return module->draws.count++;
}

/* For mpt_clear_error: takes back dropout calls since the last completed optimizer step. */
static void mpt__draws_forget(mpt_context *ctx) {
    MPT__EACH_OBJECT(mpt__module, module, ctx, MPT__MODULE) {
        if (module->updates == ctx->committed.updates) module->draws = module->committed;
    }
}

static mpt_tensor mpt__parameter_handle(mpt_context *ctx, const mpt__module *module, int64_t i) {
    return mpt__handle(ctx, ctx->parameters[module->parameters[i].parameter - 1].tensor);
}

/* A layer that is one op; NULL on error, as all that follow. */
static MPT__NOINLINE mpt__tensor *mpt__op_layer_forward(
    mpt_context *ctx, const mpt__module *module, mpt__tensor *x, mpt_activation activation) {
    mpt__frame frame;
    int op = mpt__layer_rows[module->layer].op, n_in = mpt__layer_rows[module->layer].inputs;
    if (!mpt__enter(ctx, mpt__layer_rows[module->layer].call) ||
        !mpt__call_begin(&frame, ctx, op, n_in, 1, &module->attributes))
        return NULL;
    frame.attributes->activation = (uint8_t)activation;
    mpt__tensor **in = frame.record->in;
    in[0] = x;
    const mpt__module_parameter *row = module->parameters;
    int i = 1;
    for (; i < n_in && i <= module->parameter_count; i++, row++)
        in[i] = ctx->parameters[row->parameter - 1].tensor;
    for (; i < n_in; i++) in[i] = NULL;
    return mpt__call_run(&frame);
}

static mpt_status mpt__user_forward_call(mpt_context *ctx, mpt__module *module,
    const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    MPT__PLAIN_FLOATS;
    const mpt_module_class *cls = &module->cls;
    if ((cls->n_inputs && n_in != cls->n_inputs) || (cls->n_outputs && n_out != cls->n_outputs))
        return mpt__error(ctx, ARGUMENT, "%s takes %d inputs and %d outputs, got %d and %d",
            cls->name, cls->n_inputs ? cls->n_inputs : n_in,
            cls->n_outputs ? cls->n_outputs : n_out, n_in, n_out);
    if (!mpt__user_forward_begin(ctx, cls->name)) return ctx->base.status;
    mpt_status status =
        cls->forward(mpt__module_handle(ctx, module), module->user, in, n_in, out, n_out);
    ctx->forward_depth--;
    ctx->base.op = "mpt_forward"; /* not the last call that the user's function made */
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (status != MPT_OK)
        return mpt__error_of(
            ctx, status, "forward of %s reported: %s", cls->name, mpt_status_name(status));
    if (out[0].slot == 0)
        return mpt__error(ctx, STATE, "forward of %s did not set output 0", cls->name);
    return mpt__hooks_of(module) ? module->hooks->call(ctx, module, in, n_in, out, n_out) : MPT_OK;
}

static bool mpt__is_batch_norm(const mpt__module *module) {
    return module->layer == MPT__LAYER_batch_norm1d || module->layer == MPT__LAYER_batch_norm2d;
}

/* A layer that is neither an op nor the user's, and has no `run`. */
static mpt_tensor mpt__layer_plain(mpt_context *ctx, mpt__module *module, mpt_tensor x) {
    switch (module->layer) {
    case MPT__LAYER_dropout:
        return mpt__dropout_call(
            x, module->attributes.imm[0], module->path_hash, mpt__dropout_count(ctx, module));
    case MPT__LAYER_flatten:
        return mpt_flatten(x, 1, -1);
    default:
        return mpt__refuse(
            ctx, UNSUPPORTED, "a list has no forward of its own; call its children, see mpt_child");
    }
}

/* A layer of one input and output that is more than an op, or has a hook. */
static MPT__NOINLINE mpt_tensor mpt__layer_forward(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_activation activation) {
    mpt_tensor out = mpt__null(ctx);
    if (module->run)
        return module->run(ctx, module, x, mpt__null(NULL), activation == MPT_ACTIVATION_RELU);
    if (!module->cls.forward) return mpt__layer_plain(ctx, module, x);
    mpt__user_forward_call(ctx, module, &x, 1, &out, 1);
    return out;
}

static mpt__tensor *mpt__sequential_forward(mpt_context *ctx, mpt__module *module, mpt__tensor *x);

/* Puts a module's path, mode and policy in force; the first two stay so. */
static MPT__FORCE_INLINE void mpt__module_begin(mpt_context *ctx, const mpt__module *module) {
    ctx->path = module->path;
    ctx->module = module->id.slot;
    ctx->path_hash = module->path_hash;
    ctx->module_training = mpt__in_training(module);
    if (module->policy && mpt__autocast_dtype(ctx) != MPT_F32)
        mpt_autocast_begin(ctx, (mpt_dtype)module->policy);
}

/* Runs a module of one input and output; `activation` follows a linear layer, relu also a batch
   norm. */
static MPT__FORCE_INLINE mpt__tensor *mpt__module_plainly(
    mpt_context *ctx, mpt__module *module, mpt__tensor *x, mpt_activation activation) {
    int autocast_depth = ctx->autocast_depth;
    mpt__module_begin(ctx, module);
    mpt__tensor *out = NULL;
    if (mpt__layer_rows[module->layer].op && !module->run) {
        out = mpt__op_layer_forward(ctx, module, x, activation);
    } else if (module->layer == MPT__LAYER_sequential && !mpt__hooks_of(module)) {
        out = mpt__sequential_forward(ctx, module, x);
    } else {
        mpt_tensor made = mpt__layer_forward(ctx, module, mpt__handle(ctx, x), activation);
        if (made.slot) out = mpt__at(ctx, made, "output");
    }
    ctx->autocast_depth = autocast_depth;
    return out;
}

#ifdef MPTRAIN_NO_FRUGAL
#define mpt__module_run mpt__module_plainly
#define mpt__recomputed(ctx, module) false
#else

#define mpt__recomputed(ctx, module) \
    (MPT__UNLIKELY((module)->recompute != 0) && mpt__regions(ctx))

static mpt_status mpt__recompute_run(
    mpt_context *ctx, mpt__region *region, const mpt_tensor *in, mpt_tensor *out);

/* All of a module, or its children from `child` to `end`. */
static mpt__region mpt__recompute_of(const mpt__module *module) {
    mpt__region what;
    mpt__zero(what);
    what.run = mpt__recompute_run;
    what.slot = module->id.slot, what.generation = module->id.generation;
    return what;
}

static mpt__tensor *mpt__recompute_one(mpt_context *ctx, mpt__region *what, mpt__tensor *x) {
    mpt_tensor in = mpt__handle(ctx, x), out = mpt__null(ctx);
    return mpt__region_run(ctx, what, &in, 1, &out, 1) == MPT_OK ? mpt__live(ctx, out) : NULL;
}

static MPT__FORCE_INLINE mpt__tensor *mpt__module_run(
    mpt_context *ctx, mpt__module *module, mpt__tensor *x, mpt_activation activation) {
    if (!mpt__recomputed(ctx, module) || module->recompute > 1)
        return mpt__module_plainly(ctx, module, x, activation);
    mpt__region what = mpt__recompute_of(module);
    what.activation = activation;
    return mpt__recompute_one(ctx, &what, x);
}
#endif

static MPT__NOINLINE bool mpt__unseen_between(
    mpt_context *ctx, const mpt__module *module, int64_t i) {
    for (int64_t k = i - 1; k <= i; k++) {
        const mpt__module *child = mpt__module_slot(ctx, module->children[k].slot);
        if (child->child_count > 0 || mpt__looked_at(child)) return false;
    }
    return true;
}

/* Children in order. A linear layer takes an activation that follows it into its own call, a batch
   norm and a convolution a relu, unless one of the two has a hook. What passes between children is
   given up as soon as the next one has it, unless a user's forward or hook in one of the two may
   have put a handle of it by. From child *at on to about `end`; *at is then the next one. */
static MPT__FORCE_INLINE mpt__tensor *mpt__sequential_part(
    mpt_context *ctx, mpt__module *module, mpt__tensor *x, int64_t *at, int64_t end) {
    mpt__tensor *now = x;
    bool watched = mpt__module_root(ctx, module)->watched;
    int64_t i = *at;
    for (; i < end && now; i++) {
        mpt__module *child = mpt__module_slot(ctx, module->children[i].slot);
        mpt_activation activation = MPT_ACTIVATION_NONE;
        bool linear = child->layer == MPT__LAYER_linear;
        bool takes = linear ||
            (child->layer >= MPT__LAYER_conv2d && child->layer <= MPT__LAYER_conv_transpose2d);
        if (((takes && !child->run) || (mpt__is_batch_norm(child) && !mpt__hooks_of(child))) &&
            i + 1 < module->child_count) {
            const mpt__module *next = mpt__module_slot(ctx, module->children[i + 1].slot);
            if (next->policy == child->policy && !mpt__hooks_of(next) &&
                (linear || next->layer == MPT__LAYER_relu))
                activation = (mpt_activation)mpt__layer_rows[next->layer].activation;
        }
        mpt__tensor *out = mpt__module_run(ctx, child, now, activation);
        if (now != x && now != out && (!watched || mpt__unseen_between(ctx, module, i)))
            mpt__tensor_drop(ctx, now);
        if (activation != MPT_ACTIVATION_NONE) i++;
        now = out;
    }
    *at = i;
    return now;
}

#ifndef MPTRAIN_NO_FRUGAL
/* Children in as many parts as asked for, each of them recomputed. */
static mpt__tensor *mpt__sequential_parts(mpt_context *ctx, mpt__module *module, mpt__tensor *x) {
    const int64_t count = module->child_count, parts = module->recompute;
    mpt__tensor *now = x;
    bool watched = mpt__module_root(ctx, module)->watched;
    for (int64_t at = 0; at < count && now;) {
        mpt__region what = mpt__recompute_of(module);
        what.child = at;
        what.end = ((at * parts / count + 1) * count + parts - 1) / parts;
        mpt__tensor *out = mpt__recompute_one(ctx, &what, now);
        if (!watched && now != x && now != out) mpt__tensor_drop(ctx, now);
        now = out;
        at = what.end;
    }
    return now;
}
#endif

static MPT__NOINLINE mpt__tensor *mpt__sequential_forward(
    mpt_context *ctx, mpt__module *module, mpt__tensor *x) {
    int64_t at = 0;
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__recomputed(ctx, module) && module->recompute > 1)
        return mpt__sequential_parts(ctx, module, x);
#endif
    return mpt__sequential_part(ctx, module, x, &at, module->child_count);
}

/* A module's forward, its state put in force but not taken back. What is made by layers alone comes
   as *made, not in out. */
static MPT__FORCE_INLINE void mpt__forward_plainly(mpt_context *ctx, mpt__module *found,
    const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out, mpt__tensor **made) {
    if (found->cls.forward) {
        mpt__module_begin(ctx, found);
        mpt__user_forward_call(ctx, found, in, n_in, out, n_out);
    } else if (mpt__is_batch_norm(found) && n_in == 2 && n_out == 1) {
        mpt__module_begin(ctx, found);
        out[0] = found->run(ctx, found, in[0], in[1], false);
    } else if (n_in != 1 || n_out != 1) {
        mpt__error(ctx, ARGUMENT, "%s takes one input and one output, got %d and %d",
            found->cls.name, n_in, n_out);
    } else {
        mpt__tensor *x = mpt__slot(ctx, in[0].slot);
        *made = mpt__module_plainly(ctx, found, x, MPT_ACTIVATION_NONE);
    }
}

/* What both calls below do. */
static mpt_status mpt__forward(mpt_module module, const mpt_tensor *in, int n_in, mpt_tensor *out,
    int n_out, mpt__tensor **made) {
    if (in) mpt__lend(module, mpt__context_of(in, n_in));
    mpt_context *ctx = module.context;
    if (out) mpt__outputs_null(ctx, out, n_out);
    mpt__module *found = mpt__module_enter(module, "mpt_forward");
    if (!found) return mpt__status_of(ctx);
    if (!in || !out || n_in < 1 || n_out < 1)
        return mpt__error(ctx, ARGUMENT, "expected at least one input and one output");
    for (int i = 0; i < n_in; i++)
        if (!mpt__at(ctx, in[i], "input")) return ctx->base.status;
    if (!found->frozen && mpt__freeze(ctx, found) != MPT_OK) return ctx->base.status;
    uint32_t path = ctx->path, above = ctx->module;
    uint64_t path_hash = ctx->path_hash;
    bool training = ctx->module_training;
    int autocast_depth = ctx->autocast_depth;
#ifndef MPTRAIN_NO_FRUGAL
    if (mpt__recomputed(ctx, found) && found->recompute == 1) {
        mpt__region what = mpt__recompute_of(found);
        mpt__region_run(ctx, &what, in, n_in, out, n_out);
    } else
#endif
        mpt__forward_plainly(ctx, found, in, n_in, out, n_out, made);
    if (!above) mpt__wait_no_more(ctx);
    ctx->autocast_depth = autocast_depth;
    ctx->path = path;
    ctx->module = above;
    ctx->path_hash = path_hash;
    ctx->module_training = training;
    return ctx->base.status;
}

#ifdef MPTRAIN_NO_FRUGAL

MPT__BEGIN_ABSENT
mpt_status mpt_recompute_module(mpt_module module, int parts) {
    return mpt__frugal_missing(module.context, "mpt_recompute");
}
mpt_status mpt_recompute_call(mpt_context *ctx, mpt_recompute_fn fn, void *user,
    const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    return mpt__frugal_missing(ctx, "mpt_recompute");
}
bool mpt_is_recomputing(mpt_context *ctx) { return false; }
MPT__END_ABSENT

#else

/* What a region runs, the first time and again. */
static mpt_status mpt__recompute_run(
    mpt_context *ctx, mpt__region *region, const mpt_tensor *in, mpt_tensor *out) {
    mpt__tensor *made = NULL;
    int64_t at = region->child;
    if (region->fn) {
        MPT__PLAIN_FLOATS;
        mpt_status status = region->fn(ctx, region->user, in, region->n_in, out, region->n_out);
        ctx->base.op = "mpt_recompute_call";
        if (mpt__ok(ctx) && status != MPT_OK)
            mpt__error_of(ctx, status, "the function reported: %s", mpt_status_name(status));
        for (int i = 0; i < region->n_out && mpt__ok(ctx); i++) mpt__at(ctx, out[i], "output");
        return ctx->base.status;
    }
    mpt__module *module = (mpt__module *)mpt__object_at(
        ctx, MPT__MODULE, ctx, region->slot, region->generation);
    if (!module) return ctx->base.status;
    if (region->end)
        made = mpt__sequential_part(ctx, module, mpt__live(ctx, in[0]), &at, region->end);
    else if (region->activation)
        made = mpt__module_plainly(ctx, module, mpt__live(ctx, in[0]), region->activation);
    else
        mpt__forward_plainly(ctx, module, in, region->n_in, out, region->n_out, &made);
    if (region->end) region->end = at; /* one more, where that is part of the last one's call */
    if (made) out[0] = mpt__handle(ctx, made);
    return ctx->base.status;
}

mpt_status mpt_recompute_module(mpt_module module, int parts) {
    mpt__module *found = mpt__module_enter(module, "mpt_recompute_module");
    if (!found) return mpt__status_of(module.context);
    bool parted = found->layer == MPT__LAYER_sequential;
    if (parts < 0 || found->layer == MPT__LAYER_list || (parts > 1 && !parted))
        return mpt__error(module.context, ARGUMENT,
            "%d parts of a %s: expected 0 or 1, of mpt_sequential more, too; a list has no "
            "forward of its own",
            parts, found->cls.name);
    found->recompute = parts;
    return MPT_OK;
}

mpt_status mpt_recompute_call(mpt_context *ctx, mpt_recompute_fn fn, void *user,
    const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    if (out) mpt__outputs_null(ctx, out, n_out);
    if (!mpt__enter(ctx, "mpt_recompute_call")) return mpt__status_of(ctx);
    const int most = MPT__USER_INPUTS;
    if (!fn || !in || !out || n_in < 1 || n_out < 1 || n_in > most || n_out > most)
        return mpt__error(
            ctx, ARGUMENT, "expected a function, and 1 to %d inputs and outputs", most);
    for (int i = 0; i < n_in; i++)
        if (!mpt__at(ctx, in[i], "input")) return ctx->base.status;
    mpt__region what;
    mpt__zero(what);
    what.run = mpt__recompute_run, what.fn = fn, what.user = user;
    what.n_in = n_in, what.n_out = n_out;
    return mpt__regions(ctx) ? mpt__region_run(ctx, &what, in, n_in, out, n_out)
                             : mpt__recompute_run(ctx, &what, in, out);
}

bool mpt_is_recomputing(mpt_context *ctx) { return ctx && ctx->runs_again; }

#endif

mpt_status mpt_forward_n(
    mpt_module module, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    mpt__tensor *made = NULL;
    mpt_status status = mpt__forward(module, in, n_in, out, n_out, &made);
    if (made) out[0] = mpt__handle(module.context, made);
    return status;
}

mpt_tensor mpt_forward(mpt_module module, mpt_tensor x) {
    mpt_tensor out = mpt__null(module.context);
    mpt__tensor *made = NULL;
    mpt__forward(module, &x, 1, &out, 1, &made);
    return made ? mpt__handle(module.context, made) : out;
}

#endif
