/* ---------------------------------------------------------------------------------------------
 * 60_nn.c: modules: trees of layers, their parameters, the forward call.
 *
 * A tree is built freely and frozen when its root is first used: then every parameter gets its
 * path, its place in a block and its first values. Values depend on (seed, root, path) alone, so
 * the order in which a compiler evaluates the arguments of mpt_sequential does not matter.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__60_NN_INCLUDED
#define MPT__60_NN_INCLUDED

#include "55_ops_api.c"

#define MPT__MAX_DEPTH 200 /* of nested modules: walks recurse */

typedef struct mpt__module_child {
    char *name;
    uint32_t slot;
} mpt__module_child;

typedef struct mpt__module_parameter {
    char *name;
    mpt_shape shape;
    mpt_init init;
    int64_t fan_in;     /* what MPT_INIT_DEFAULT draws by */
    uint32_t parameter; /* index in context->parameters + 1; 0 before the tree is frozen */
} mpt__module_parameter;

typedef enum mpt__layer {
    MPT__LAYER_USER,
    MPT__LAYER_LINEAR,
    MPT__LAYER_ACTIVATION,
    MPT__LAYER_DROPOUT,
    MPT__LAYER_SOFTMAX,
    MPT__LAYER_FLATTEN,
    MPT__LAYER_SEQUENTIAL,
    MPT__LAYER_LIST
} mpt__layer;

typedef struct mpt__module {
    mpt_module_class cls;
    void *user;
    mpt__layer layer;
    mpt_activation activation;
    double p;       /* dropout */
    int dim;        /* softmax */
    bool logarithm; /* log_softmax */
    uint32_t slot, generation;
    uint32_t parent; /* the first one, 0 = root */
    int parents, height;
    int64_t creation;
    mpt__module_child *children;
    int64_t child_count, child_capacity;
    mpt__module_parameter *parameters;
    int64_t parameter_count, parameter_capacity;
    bool training, frozen;
    bool watched;         /* once frozen: a user's forward runs somewhere in the tree */
    uint8_t policy; /* mpt_set_dtype_policy; MPT_DTYPE_NONE = none */
    uint32_t path;  /* index in context->paths, once frozen */
    uint64_t path_hash;
    int64_t draw_step; /* dropout calls are counted per step */
    uint64_t draws;
    uint32_t mark;
    char *label;
} mpt__module;

/* 65_init.c */
static bool mpt__check_init(mpt_context *context, mpt_init init);
static mpt_status mpt__draw_parameter(mpt_context *context, const mpt__module *module, int64_t i);

/* ==== Handles ==== */

static mpt_module mpt__module_null(mpt_context *context) {
    mpt_module module;
    module.context = context, module.slot = 0, module.generation = 0;
    return module;
}

static mpt__module *mpt__module_slot(mpt_context *context, uint32_t slot) {
    return (mpt__module *)mpt__object_slot(context, MPT__MODULE, slot);
}

static mpt__module *mpt__module_at(mpt_context *context, mpt_module module) {
    return (mpt__module *)mpt__object_at(context, MPT__MODULE, module.context, module.slot,
                                         module.generation);
}

static mpt_module mpt__module_handle(mpt_context *context, const mpt__module *module) {
    mpt_module handle;
    handle.context = context, handle.slot = module->slot, handle.generation = module->generation;
    return handle;
}

static mpt__module *mpt__module_root(mpt_context *context, mpt__module *module) {
    while (module->parent) module = mpt__module_slot(context, module->parent);
    return module;
}

/* ==== Making and destroying ==== */

static mpt__module *mpt__module_new(mpt_context *context, const char *name, mpt__layer layer) {
    mpt__module *module = (mpt__module *)mpt__host_new(context, sizeof *module);
    if (!module) return NULL;
    module->layer = layer;
    module->cls.name = name;
    module->cls.n_inputs = module->cls.n_outputs = 1;
    module->training = true;
    module->creation = (int64_t)++context->module_creations;
    module->slot = mpt__object_new(context, MPT__MODULE, module, &module->generation);
    if (module->slot) return module;
    mpt__host_free(context, module, sizeof *module);
    return NULL;
}

/* Everything a parameter holds, once no module names it any more. */
static void mpt__parameter_drop(mpt_context *context, uint32_t index) {
    mpt__parameter *parameter = &context->parameters[index];
    mpt__block *block = &context->blocks[parameter->block];
    mpt__tensor *tensor = mpt__slot(context, parameter->tensor);
    mpt__host_text_free(context, parameter->path);
    parameter->path = NULL;
    parameter->live = false;
    mpt__tensor_drop(context, tensor);
    if (--block->parameters > 0) return;
    mpt__storage_release(context, block->values);
    if (block->gradients) mpt__storage_release(context, block->gradients);
    for (int i = 0; i < 2; i++)
        if (block->form[i]) mpt__storage_release(context, block->form[i]);
    memset(block, 0, sizeof *block);
}

static void mpt__module_free(mpt_context *context, void *object) {
    mpt__module *module = (mpt__module *)object;
    if (module->cls.destroy) module->cls.destroy(module->user);
    for (int64_t i = 0; i < module->child_count; i++)
        mpt__host_text_free(context, module->children[i].name);
    for (int64_t i = 0; i < module->parameter_count; i++) {
        mpt__host_text_free(context, module->parameters[i].name);
        if (module->parameters[i].parameter)
            mpt__parameter_drop(context, module->parameters[i].parameter - 1);
    }
    mpt__host_text_free(context, module->label);
    mpt__host_free(context, module->children,
                   (size_t)module->child_capacity * sizeof *module->children);
    mpt__host_free(context, module->parameters,
                   (size_t)module->parameter_capacity * sizeof *module->parameters);
    mpt__host_free(context, module, sizeof *module);
}

/* ==== Walks ==== */

/* Calls visit for a module and all below it, in the order of their children, each once: a shared
   module under its first path. `path` is a buffer of MPT__PATH_BYTES. */
#define MPT__PATH_BYTES 1024
typedef mpt_status (*mpt__visit_module)(mpt_context *context, mpt__module *module, const char *path,
                                        void *user);

static mpt_status mpt__walk_below(mpt_context *context, mpt__module *module, char *path,
                                  size_t length, mpt__visit_module visit, void *user) {
    if (module->mark == context->module_mark) return MPT_OK;
    module->mark = context->module_mark;
    mpt_status status = visit(context, module, path, user);
    for (int64_t i = 0; i < module->child_count && status == MPT_OK; i++) {
        size_t more = mpt__format_text(path + length, MPT__PATH_BYTES - length, "%s%s",
                                       length ? "." : "", module->children[i].name);
        if (length + more >= MPT__PATH_BYTES)
            return mpt__error(context, MPT_ERROR_ARGUMENT, "path %s is too long", path);
        mpt__module *child = mpt__module_slot(context, module->children[i].slot);
        status = mpt__walk_below(context, child, path, length + more, visit, user);
        path[length] = '\0';
    }
    return status;
}

static mpt_status mpt__walk_modules(mpt_context *context, mpt__module *module,
                                    mpt__visit_module visit, void *user) {
    char path[MPT__PATH_BYTES];
    path[0] = '\0';
    context->module_mark++;
    return mpt__walk_below(context, module, path, 0, visit, user);
}

/* ==== Building ==== */

static mpt_status mpt__check_other(mpt_context *context, mpt__module *module, const char *path,
                                   void *user) {
    (void)path;
    if (module != (const mpt__module *)user) return MPT_OK;
    return mpt__error(context, MPT_ERROR_ARGUMENT, "the child contains the module itself");
}

static mpt_status mpt__add_child(mpt_context *context, mpt__module *module, const char *name,
                                 mpt__module *child) {
    if (module->frozen)
        return mpt__error(
            context, MPT_ERROR_STATE,
            "the tree is in use (forward, optimizer, save or a value was read) and takes no "
            "more children; add all of them first");
    if (mpt__walk_modules(context, child, mpt__check_other, module) != MPT_OK)
        return context->base.status;
    if (child->frozen)
        return mpt__error(context, MPT_ERROR_STATE,
                          "child %s is already in use in a tree of its own", name);
    for (int64_t i = 0; i < module->child_count; i++) {
        if (strcmp(module->children[i].name, name) == 0)
            return mpt__error(context, MPT_ERROR_ARGUMENT, "the module already has a child %s",
                              name);
    }
    int height = child->height + 1, depth = 0;
    for (mpt__module *above = module; above->parent; depth++)
        above = mpt__module_slot(context, above->parent);
    if (depth + height > MPT__MAX_DEPTH)
        return mpt__error(context, MPT_ERROR_ARGUMENT, "modules nest deeper than %d",
                          MPT__MAX_DEPTH);
    char *copy = mpt__host_text(context, name);
    void *children = module->children;
    bool ok = copy && mpt__grow(&context->base, &children, &module->child_capacity,
                                module->child_count + 1, sizeof *module->children, MPT_MEMORY_HOST);
    module->children = (mpt__module_child *)children;
    if (!ok) {
        mpt__host_text_free(context, copy);
        return context->base.status;
    }
    module->children[module->child_count].name = copy;
    module->children[module->child_count++].slot = child->slot;
    if (!child->parent) child->parent = module->slot;
    child->parents++;
    for (mpt__module *above = module; above; height++) {
        if (above->height < height) above->height = height;
        above = above->parent ? mpt__module_slot(context, above->parent) : NULL;
    }
    return MPT_OK;
}

static mpt_status mpt__add_parameter(mpt_context *context, mpt__module *module, const char *name,
                                     const mpt_shape *shape, mpt_init init, int64_t fan_in) {
    if (module->frozen)
        return mpt__error(context, MPT_ERROR_STATE,
                          "the tree is in use and takes no more parameters; add all of them first");
    if (mpt__checked_bytes(context, MPT_F32, shape) < 0) return context->base.status;
    for (int64_t i = 0; i < module->parameter_count; i++) {
        if (strcmp(module->parameters[i].name, name) == 0)
            return mpt__error(context, MPT_ERROR_ARGUMENT, "the module already has a parameter %s",
                              name);
    }
    char *copy = mpt__host_text(context, name);
    void *rows = module->parameters;
    bool ok =
        copy && mpt__grow(&context->base, &rows, &module->parameter_capacity,
                          module->parameter_count + 1, sizeof *module->parameters, MPT_MEMORY_HOST);
    module->parameters = (mpt__module_parameter *)rows;
    if (!ok) {
        mpt__host_text_free(context, copy);
        return context->base.status;
    }
    mpt__module_parameter *row = &module->parameters[module->parameter_count++];
    memset(row, 0, sizeof *row);
    row->name = copy;
    row->shape = *shape;
    row->init = init;
    row->fan_in = fan_in;
    return MPT_OK;
}

/* ==== Layers ==== */

static mpt_module mpt__layer_new(mpt_context *context, const char *call, const char *name,
                                 mpt__layer layer, mpt__module **made) {
    *made = NULL;
    if (!mpt__enter(context, call)) return mpt__module_null(context);
    *made = mpt__module_new(context, name, layer);
    return *made ? mpt__module_handle(context, *made) : mpt__module_null(context);
}

static mpt_module mpt__linear_new(mpt_context *context, const char *call, int64_t in, int64_t out,
                                  bool bias) {
    mpt__module *module;
    mpt_module handle = mpt__layer_new(context, call, "linear", MPT__LAYER_LINEAR, &module);
    if (!module) return handle;
    mpt_init init = mpt_init_make(MPT_INIT_DEFAULT, 0, 0);
    mpt_shape weight = MPT_SHAPE(out, in), vector = MPT_SHAPE(out);
    if (in < 1 || out < 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%lld -> %lld features: expected 1 or more",
                   (long long)in, (long long)out);
        mpt__object_free(context, MPT__MODULE, module->slot);
        return mpt__module_null(context);
    }
    mpt_status status = mpt__add_parameter(context, module, "weight", &weight, init, in);
    if (status == MPT_OK && bias)
        status = mpt__add_parameter(context, module, "bias", &vector, init, in);
    if (status == MPT_OK) return handle;
    mpt__object_free(context, MPT__MODULE, module->slot);
    return mpt__module_null(context);
}

MPTRAIN_API mpt_module mpt_nn_linear(mpt_context *context, int64_t in_features,
                                     int64_t out_features) {
    return mpt__linear_new(context, "mpt_nn_linear", in_features, out_features, true);
}

MPTRAIN_API mpt_module mpt_nn_linear_no_bias(mpt_context *context, int64_t in_features,
                                             int64_t out_features) {
    return mpt__linear_new(context, "mpt_nn_linear_no_bias", in_features, out_features, false);
}

static mpt_module mpt__activation_new(mpt_context *context, const char *call, const char *name,
                                      mpt_activation activation) {
    mpt__module *module;
    mpt_module handle = mpt__layer_new(context, call, name, MPT__LAYER_ACTIVATION, &module);
    if (module) module->activation = activation;
    return handle;
}

MPTRAIN_API mpt_module mpt_nn_relu(mpt_context *context) {
    return mpt__activation_new(context, "mpt_nn_relu", "relu", MPT_ACTIVATION_RELU);
}
MPTRAIN_API mpt_module mpt_nn_gelu(mpt_context *context) {
    return mpt__activation_new(context, "mpt_nn_gelu", "gelu", MPT_ACTIVATION_GELU);
}
MPTRAIN_API mpt_module mpt_nn_tanh(mpt_context *context) {
    return mpt__activation_new(context, "mpt_nn_tanh", "tanh", MPT_ACTIVATION_TANH);
}
MPTRAIN_API mpt_module mpt_nn_sigmoid(mpt_context *context) {
    return mpt__activation_new(context, "mpt_nn_sigmoid", "sigmoid", MPT_ACTIVATION_SIGMOID);
}

MPTRAIN_API mpt_module mpt_nn_dropout(mpt_context *context, double p) {
    mpt__module *module;
    mpt_module handle =
        mpt__layer_new(context, "mpt_nn_dropout", "dropout", MPT__LAYER_DROPOUT, &module);
    if (!module) return handle;
    module->p = p;
    if (p >= 0.0 && p <= 1.0) return handle;
    mpt__error(context, MPT_ERROR_ARGUMENT, "p = %g is not in [0, 1]", p);
    mpt__object_free(context, MPT__MODULE, module->slot);
    return mpt__module_null(context);
}

static mpt_module mpt__softmax_new(mpt_context *context, const char *call, const char *name,
                                   int dim, bool logarithm) {
    mpt__module *module;
    mpt_module handle = mpt__layer_new(context, call, name, MPT__LAYER_SOFTMAX, &module);
    if (!module) return handle;
    module->dim = dim;
    module->logarithm = logarithm;
    return handle;
}

MPTRAIN_API mpt_module mpt_nn_softmax(mpt_context *context, int dim) {
    return mpt__softmax_new(context, "mpt_nn_softmax", "softmax", dim, false);
}
MPTRAIN_API mpt_module mpt_nn_log_softmax(mpt_context *context, int dim) {
    return mpt__softmax_new(context, "mpt_nn_log_softmax", "log_softmax", dim, true);
}

MPTRAIN_API mpt_module mpt_nn_flatten(mpt_context *context) {
    mpt__module *module;
    return mpt__layer_new(context, "mpt_nn_flatten", "flatten", MPT__LAYER_FLATTEN, &module);
}

static mpt_module mpt__container_new(mpt_context *context, const char *call, const char *name,
                                     mpt__layer layer, const mpt_module *modules, int count) {
    mpt__module *container;
    mpt_module handle = mpt__layer_new(context, call, name, layer, &container);
    if (!container) return handle;
    if (count < 0 || (count > 0 && !modules))
        mpt__error(context, MPT_ERROR_ARGUMENT, "expected an array of modules and its length");
    for (int i = 0; i < count && context->base.status == MPT_OK; i++) {
        char text[16];
        mpt__format_text(text, sizeof text, "%d", i);
        mpt__module *child = mpt__module_at(context, modules[i]);
        if (child) mpt__add_child(context, container, text, child);
    }
    return context->base.status == MPT_OK ? handle : mpt__module_null(context);
}

MPTRAIN_API mpt_module mpt_sequential_array(mpt_context *context, const mpt_module *modules,
                                            int count) {
    return mpt__container_new(context, "mpt_sequential", "sequential", MPT__LAYER_SEQUENTIAL,
                              modules, count);
}

MPTRAIN_API mpt_module mpt_nn_list_array(mpt_context *context, const mpt_module *modules,
                                         int count) {
    return mpt__container_new(context, "mpt_nn_list", "list", MPT__LAYER_LIST, modules, count);
}

#define MPT__MAX_LISTED 1024

/* Modules up to MPT_END; -1 if there are too many, which a missing MPT_END looks like as well. */
static int mpt__gather(mpt_module *modules, va_list arguments) {
    for (int count = 0; count <= MPT__MAX_LISTED; count++) {
        mpt_module module = va_arg(arguments, mpt_module);
        if (!module.context && module.slot == UINT32_MAX) return count;
        if (count < MPT__MAX_LISTED) modules[count] = module;
    }
    return -1;
}

static mpt_module mpt__gathered_new(mpt_context *context, mpt__layer layer, va_list arguments) {
    bool list = layer == MPT__LAYER_LIST;
    size_t bytes = MPT__MAX_LISTED * sizeof(mpt_module);
    mpt_module *modules = context ? (mpt_module *)mpt__host_new(context, bytes) : NULL;
    if (!modules) return mpt__module_null(context);
    int count = mpt__gather(modules, arguments);
    mpt_module made = mpt__module_null(context);
    if (count >= 0) {
        made = list ? mpt_nn_list_array(context, modules, count)
                    : mpt_sequential_array(context, modules, count);
    } else if (mpt__enter(context, list ? "mpt_nn_list" : "mpt_sequential")) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "more than %d modules; is MPT_END missing?",
                   MPT__MAX_LISTED);
    }
    mpt__host_free(context, modules, bytes);
    return made;
}

MPTRAIN_API mpt_module mpt_sequential(mpt_context *context, ...) {
    va_list arguments;
    va_start(arguments, context);
    mpt_module made = mpt__gathered_new(context, MPT__LAYER_SEQUENTIAL, arguments);
    va_end(arguments);
    return made;
}

MPTRAIN_API mpt_module mpt_nn_list(mpt_context *context, ...) {
    va_list arguments;
    va_start(arguments, context);
    mpt_module made = mpt__gathered_new(context, MPT__LAYER_LIST, arguments);
    va_end(arguments);
    return made;
}

MPTRAIN_API mpt_module mpt_module_create(mpt_context *context, const mpt_module_class *cls,
                                         void *user) {
    mpt__module *module;
    if (context && (!cls || !cls->name || !cls->forward)) {
        if (mpt__enter(context, "mpt_module_create"))
            mpt__error(context, MPT_ERROR_ARGUMENT, "expected a class with a name and a forward");
        return mpt__module_null(context);
    }
    mpt_module handle = mpt__layer_new(context, "mpt_module_create", cls ? cls->name : "",
                                       MPT__LAYER_USER, &module);
    if (!module) return handle;
    module->cls = *cls;
    module->user = user;
    return handle;
}

/* A name that paths can be made of. */
static bool mpt__check_name(mpt_context *context, const char *name) {
    if (name && *name && !strchr(name, '.') && strlen(name) < 200) return true;
    mpt__error(context, MPT_ERROR_ARGUMENT, "expected a name of 1 to 199 characters without a dot");
    return false;
}

MPTRAIN_API mpt_status mpt_add_child(mpt_module module, const char *name, mpt_module child) {
    mpt_context *context = module.context;
    if (!mpt__enter(context, "mpt_add_child"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__module *above = mpt__module_at(context, module);
    mpt__module *below = above ? mpt__module_at(context, child) : NULL;
    if (!below || !mpt__check_name(context, name)) return context->base.status;
    return mpt__add_child(context, above, name, below);
}

MPTRAIN_API mpt_status mpt_add_parameter(mpt_module module, const char *name, mpt_shape shape,
                                         mpt_init init) {
    mpt_context *context = module.context;
    if (!mpt__enter(context, "mpt_add_parameter"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__module *found = mpt__module_at(context, module);
    if (!found || !mpt__check_name(context, name) || !mpt__check_init(context, init))
        return context->base.status;
    return mpt__add_parameter(context, found, name, &shape, init, 0);
}

/* ==== Freezing ==== */

/* Elements between the starts of tensors: 256 bytes of the block's dtype. */
static int64_t mpt__block_grain(mpt_dtype dtype) {
    return 256 / (int64_t)mpt__dtype_info[dtype].bytes;
}

static int64_t mpt__aligned_up(int64_t value, int64_t grain) {
    return (value + grain - 1) / grain * grain;
}

/* A path kept for the life of the context; 0 on error. */
static uint32_t mpt__path_new(mpt_context *context, const char *text) {
    if (context->path_count == 0) context->path_count = 1; /* 0 means none */
    void *paths = context->paths;
    bool ok = mpt__grow(&context->base, &paths, &context->path_capacity, context->path_count + 1,
                        sizeof(char *), MPT_MEMORY_HOST);
    context->paths = (char **)paths;
    char *copy = ok ? mpt__host_text(context, text) : NULL;
    if (!copy) return 0;
    context->paths[context->path_count] = copy;
    return (uint32_t)context->path_count++;
}

typedef struct mpt__freezing {
    uint64_t key;   /* of the root, in the key of the initial values */
    uint32_t first; /* parameter made first */
    int64_t numel;  /* of the block so far */
    uint32_t block;
    bool watched;   /* a user-defined module is in the tree */
} mpt__freezing;

static mpt_status mpt__freeze_module(mpt_context *context, mpt__module *module, const char *path,
                                     void *user) {
    mpt__freezing *freezing = (mpt__freezing *)user;
    freezing->watched |= module->layer == MPT__LAYER_USER;
    module->path = mpt__path_new(context, *path ? path : module->cls.name);
    if (!module->path) return context->base.status;
    module->path_hash = mpt__hash_bytes(freezing->key, path, strlen(path));
    for (int64_t i = 0; i < module->parameter_count; i++) {
        void *rows = context->parameters;
        bool ok = mpt__grow(&context->base, &rows, &context->parameter_capacity,
                            context->parameter_count + 1, sizeof(mpt__parameter), MPT_MEMORY_HOST);
        context->parameters = (mpt__parameter *)rows;
        if (!ok) return context->base.status;
        char text[MPT__PATH_BYTES + 256];
        mpt__format_text(text, sizeof text, "%s%s%s", path, *path ? "." : "",
                         module->parameters[i].name);
        mpt__parameter *parameter = &context->parameters[context->parameter_count];
        memset(parameter, 0, sizeof *parameter);
        parameter->path = mpt__host_text(context, text);
        if (!parameter->path) return context->base.status;
        parameter->live = true;
        parameter->block = freezing->block;
        parameter->module = module->slot;
        parameter->offset = freezing->numel;
        parameter->numel = mpt__shape_numel(&module->parameters[i].shape);
        freezing->numel =
            mpt__aligned_up(freezing->numel + parameter->numel, mpt__block_grain(MPT_F32));
        module->parameters[i].parameter = (uint32_t)++context->parameter_count;
        context->blocks[freezing->block].parameters++;
    }
    return MPT_OK;
}

/* The persistent tensor of a parameter, in its block. */
static mpt_status mpt__parameter_tensor(mpt_context *context, uint32_t index,
                                        const mpt_shape *shape) {
    mpt__parameter *parameter = &context->parameters[index];
    mpt__block *block = &context->blocks[parameter->block];
    int depth = context->scope_depth, inference = context->inference_depth;
    context->scope_depth = context->inference_depth = 0;
    mpt__tensor *tensor = mpt__tensor_on(context, block->values, (mpt_dtype)block->dtype, shape,
                                         NULL, parameter->offset);
    context->scope_depth = depth;
    context->inference_depth = inference;
    if (!tensor) return context->base.status;
    tensor->flags = MPT__KEPT | MPT__REQUIRES_GRAD | MPT__LEAF;
    tensor->parameter = index + 1;
    parameter->tensor = tensor->slot;
    return MPT_OK;
}

static mpt_status mpt__freeze_values(mpt_context *context, mpt__module *module, const char *path,
                                     void *user) {
    (void)path;
    mpt_status status = MPT_OK;
    for (int64_t i = 0; i < module->parameter_count && status == MPT_OK; i++) {
        uint32_t index = module->parameters[i].parameter - 1;
        status = mpt__parameter_tensor(context, index, &module->parameters[i].shape);
        if (status == MPT_OK) status = mpt__draw_parameter(context, module, i);
    }
    module->frozen = status == MPT_OK;
    module->watched = ((const mpt__freezing *)user)->watched;
    return status;
}

static mpt_status mpt__unfreeze_module(mpt_context *context, mpt__module *module, const char *path,
                                       void *user) {
    (void)path, (void)user;
    module->frozen = false;
    for (int64_t i = 0; i < module->parameter_count; i++) {
        uint32_t index = module->parameters[i].parameter;
        module->parameters[i].parameter = 0;
        if (!index) continue;
        mpt__parameter *parameter = &context->parameters[index - 1];
        if (parameter->tensor) mpt__tensor_drop(context, mpt__slot(context, parameter->tensor));
        mpt__host_text_free(context, parameter->path);
        memset(parameter, 0, sizeof *parameter);
    }
    return MPT_OK;
}

static uint32_t mpt__block_new(mpt_context *context, mpt_dtype dtype) {
    uint32_t index = 0;
    while ((int64_t)index < context->block_count && context->blocks[index].live) index++;
    void *rows = context->blocks;
    bool ok = mpt__grow(&context->base, &rows, &context->block_capacity, (int64_t)index + 1,
                        sizeof(mpt__block), MPT_MEMORY_HOST);
    context->blocks = (mpt__block *)rows;
    if (!ok) return UINT32_MAX;
    if ((int64_t)index == context->block_count) context->block_count++;
    memset(&context->blocks[index], 0, sizeof(mpt__block));
    context->blocks[index].live = 1;
    context->blocks[index].dtype = (uint8_t)dtype;
    return index;
}

/* A module that another tree uses has its parameters there. */
static mpt_status mpt__check_fresh(mpt_context *context, mpt__module *module, const char *path,
                                   void *user) {
    (void)user;
    if (!module->frozen) return MPT_OK;
    return mpt__error(context, MPT_ERROR_STATE,
                      "module %s is already in use in another tree; only one tree can share it",
                      path);
}

/* Gives a tree's parameters their places and values; all or nothing. */
static mpt_status mpt__freeze(mpt_context *context, mpt__module *module) {
    mpt__module *root = mpt__module_root(context, module);
    if (root->frozen) return MPT_OK;
    mpt__freezing freezing;
    freezing.key = root->label ? mpt__hash_bytes(1, root->label, strlen(root->label))
                               : mpt__hash_u64(2, (uint64_t)root->creation);
    freezing.numel = 0;
    freezing.watched = false;
    if (mpt__walk_modules(context, root, mpt__check_fresh, NULL) != MPT_OK)
        return context->base.status;
    freezing.block = mpt__block_new(context, MPT_F32);
    if (freezing.block == UINT32_MAX) return context->base.status;
    mpt_status status = mpt__walk_modules(context, root, mpt__freeze_module, &freezing);
    mpt__block *block = &context->blocks[freezing.block];
    if (status == MPT_OK && freezing.numel > 0) {
        block->numel = freezing.numel;
        uint32_t values = mpt__storage_new(context, freezing.numel * 4, MPT_MEMORY_PARAMETER,
                                           MPT__FROM_DEVICE, true);
        block = &context->blocks[freezing.block];
        block->values = values;
        if (!values) status = context->base.status;
    }
    if (status == MPT_OK) status = mpt__walk_modules(context, root, mpt__freeze_values, &freezing);
    if (status == MPT_OK && freezing.numel > 0) return MPT_OK;
    if (status != MPT_OK) mpt__walk_modules(context, root, mpt__unfreeze_module, NULL);
    if (block->values) mpt__storage_release(context, block->values);
    memset(block, 0, sizeof *block);
    return status;
}

/* ==== Forward ==== */

typedef struct mpt__module_state {
    uint32_t path, module;
    uint64_t path_hash;
    bool training;
    int autocast_depth;
} mpt__module_state;

static mpt__module_state mpt__module_enter(mpt_context *context, const mpt__module *module) {
    mpt__module_state before;
    before.path = context->path;
    before.module = context->module;
    before.path_hash = context->path_hash;
    before.training = context->module_training;
    before.autocast_depth = context->autocast_depth;
    context->path = module->path;
    context->module = module->slot;
    context->path_hash = module->path_hash;
    context->module_training = module->training;
    if (module->policy && mpt__autocast_dtype(context) != MPT_F32)
        mpt_autocast_begin(context, (mpt_dtype)module->policy);
    return before;
}

static void mpt__module_leave(mpt_context *context, const mpt__module_state *before) {
    context->path = before->path;
    context->module = before->module;
    context->path_hash = before->path_hash;
    context->module_training = before->training;
    context->autocast_depth = before->autocast_depth;
}

static mpt_tensor mpt__parameter_handle(mpt_context *context, const mpt__module *module,
                                        int64_t i) {
    if (i >= module->parameter_count) {
        mpt_tensor none;
        none.context = NULL, none.slot = 0, none.generation = 0;
        return none;
    }
    uint32_t index = module->parameters[i].parameter - 1;
    return mpt__handle(context, mpt__slot(context, context->parameters[index].tensor));
}

static mpt_tensor mpt__linear_call(mpt_context *context, const mpt__module *module, mpt_tensor x,
                                   mpt_activation activation) {
    return mpt_linear(x, mpt__parameter_handle(context, module, 0),
                      mpt__parameter_handle(context, module, 1), activation);
}

static mpt_tensor mpt__dropout_module(mpt_context *context, mpt__module *module, mpt_tensor x) {
    if (module->draw_step != context->now.step) {
        module->draw_step = context->now.step;
        module->draws = 0;
    }
    return mpt__dropout_call(x, module->p, module->path_hash, module->draws++);
}

/* Dropout calls of a step that was given up do not count: part of mpt_clear_error. */
static void mpt__draws_forget(mpt_context *context) {
    const mpt__object_table *table = &context->objects[MPT__MODULE];
    for (int64_t i = 1; i < table->count; i++) {
        mpt__module *module = (mpt__module *)table->rows[i].object;
        if (module && module->draw_step > context->committed.step) module->draw_step = -1;
    }
}

static mpt_tensor mpt__activation_call(mpt_tensor x, mpt_activation activation) {
    static mpt_tensor (*const functions[])(mpt_tensor) = {mpt_clone,     mpt_relu, mpt_gelu,
                                                          mpt_gelu_tanh, mpt_tanh, mpt_sigmoid};
    return functions[activation](x);
}

static mpt_tensor mpt__sequential_call(mpt_context *context, mpt__module *module, mpt_tensor x);

/* A built-in layer of one input and one output. */
static mpt_tensor mpt__layer_call(mpt_context *context, mpt__module *module, mpt_tensor x) {
    switch (module->layer) {
    case MPT__LAYER_LINEAR:
        return mpt__linear_call(context, module, x, MPT_ACTIVATION_NONE);
    case MPT__LAYER_ACTIVATION:
        return mpt__activation_call(x, module->activation);
    case MPT__LAYER_DROPOUT:
        return mpt__dropout_module(context, module, x);
    case MPT__LAYER_SOFTMAX:
        return module->logarithm ? mpt_log_softmax(x, module->dim) : mpt_softmax(x, module->dim);
    case MPT__LAYER_FLATTEN:
        return mpt_flatten(x, 1, -1);
    case MPT__LAYER_SEQUENTIAL:
        return mpt__sequential_call(context, module, x);
    case MPT__LAYER_LIST:
        mpt__error(context, MPT_ERROR_UNSUPPORTED,
                   "a list has no forward of its own; call its children, see mpt_child");
        break;
    case MPT__LAYER_USER:
        break;
    }
    return mpt__null(context);
}

static mpt_status mpt__user_module_call(mpt_context *context, mpt__module *module,
                                        const mpt_tensor *in, int n_in, mpt_tensor *out,
                                        int n_out) {
    if ((module->cls.n_inputs && n_in != module->cls.n_inputs) ||
        (module->cls.n_outputs && n_out != module->cls.n_outputs))
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "%s takes %d inputs and %d outputs, got %d and %d", module->cls.name,
                          module->cls.n_inputs, module->cls.n_outputs, n_in, n_out);
    mpt_status status = module->cls.forward(mpt__module_handle(context, module), module->user, in,
                                            n_in, out, n_out);
    context->base.op = "mpt_forward"; /* not the last call that the user's function made */
    if (context->base.status != MPT_OK) return context->base.status;
    if (status != MPT_OK)
        return mpt__error(context, status, "forward of %s reported: %s", module->cls.name,
                          mpt_status_name(status));
    if (out[0].slot == 0)
        return mpt__error(context, MPT_ERROR_STATE, "forward of %s did not set output 0",
                          module->cls.name);
    return MPT_OK;
}

static mpt_status mpt__module_call(mpt_context *context, mpt__module *module, const mpt_tensor *in,
                                   int n_in, mpt_tensor *out, int n_out) {
    mpt__module_state before = mpt__module_enter(context, module);
    if (module->layer == MPT__LAYER_USER) {
        mpt__user_module_call(context, module, in, n_in, out, n_out);
    } else if (n_in != 1 || n_out != 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s takes one input and one output, got %d and %d",
                   module->cls.name, n_in, n_out);
    } else {
        out[0] = mpt__layer_call(context, module, in[0]);
    }
    mpt__module_leave(context, &before);
    return context->base.status;
}

static bool mpt__same_handle(mpt_tensor a, mpt_tensor b) {
    return a.slot == b.slot && a.generation == b.generation;
}

/* Children in order. A linear layer takes an activation that follows it into its own call. What
   passes between children is given up as soon as the next one has it, unless a user's forward in
   the tree may have put a handle of it by. */
static mpt_tensor mpt__sequential_call(mpt_context *context, mpt__module *module, mpt_tensor x) {
    mpt_tensor now = x;
    for (int64_t i = 0; i < module->child_count && context->base.status == MPT_OK; i++) {
        mpt__module *child = mpt__module_slot(context, module->children[i].slot);
        mpt__module *next = i + 1 < module->child_count
                                ? mpt__module_slot(context, module->children[i + 1].slot)
                                : NULL;
        mpt_tensor out = mpt__null(context);
        if (child->layer == MPT__LAYER_LINEAR && next && next->layer == MPT__LAYER_ACTIVATION &&
            next->policy == child->policy) {
            mpt__module_state before = mpt__module_enter(context, child);
            out = mpt__linear_call(context, child, now, next->activation);
            mpt__module_leave(context, &before);
            i++;
        } else {
            mpt__module_call(context, child, &now, 1, &out, 1);
        }
        if (!module->watched && !mpt__same_handle(now, x) && !mpt__same_handle(now, out))
            mpt_release(now);
        now = out;
    }
    return now;
}

MPTRAIN_API mpt_status mpt_forward_n(mpt_module module, const mpt_tensor *in, int n_in,
                                     mpt_tensor *out, int n_out) {
    mpt_context *context = module.context;
    for (int i = 0; out && i < n_out; i++) out[i] = mpt__null(context);
    if (!mpt__enter(context, "mpt_forward"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__module *found = mpt__module_at(context, module);
    if (!found) return context->base.status;
    if (!in || !out || n_in < 1 || n_out < 1)
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "expected at least one input and one output");
    for (int i = 0; i < n_in; i++)
        if (!mpt__at(context, in[i], "input")) return context->base.status;
    if (mpt__freeze(context, found) != MPT_OK) return context->base.status;
    return mpt__module_call(context, found, in, n_in, out, n_out);
}

MPTRAIN_API mpt_tensor mpt_forward(mpt_module module, mpt_tensor x) {
    mpt_tensor out = mpt__null(module.context);
    mpt_forward_n(module, &x, 1, &out, 1);
    return out;
}

#endif
