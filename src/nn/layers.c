/* ----
 * nn/layers.c: what a module is, and the table of layers.
 * ---- */
#ifndef MPT__NN_LAYERS_INCLUDED
#define MPT__NN_LAYERS_INCLUDED

#include "ops/table.c"

typedef struct {
    char *name;
    uint32_t slot;
} mpt__module_child;

typedef struct {
    char *name;
    mpt_shape shape;
    mpt_init init;
    int64_t fan_in;     /* what MPT_INIT_DEFAULT draws by */
    uint32_t parameter; /* index in ctx->parameters + 1; 0 before the tree is frozen */
    uint32_t owner; /* slot of the module whose parameter it is where it is tied to one; else 0 */
    int64_t owner_row;
} mpt__module_parameter;

/* The built-in layers, L(name, op, inputs, activation): one that is a single op says which, and
   gets x, then the module's parameters, then absent ones as that many inputs. `activation`: what a
   linear layer before it takes into its own call. A new layer is a row here and a constructor. */
#define MPT__LAYERS(L) \
    L(user, none, 0, NONE) \
    L(sequential, none, 0, NONE) \
    L(list, none, 0, NONE) \
    L(linear, linear, 3, NONE) \
    L(relu, relu, 1, RELU) \
    L(gelu, gelu, 1, GELU) \
    L(tanh, tanh, 1, TANH) \
    L(sigmoid, sigmoid, 1, SIGMOID) \
    L(softmax, softmax, 1, NONE) \
    L(log_softmax, log_softmax, 1, NONE) \
    L(dropout, none, 0, NONE) \
    L(flatten, none, 0, NONE) \
    L(gelu_tanh, gelu_tanh, 1, GELU_TANH) \
    L(silu, silu, 1, NONE) \
    L(leaky_relu, leaky_relu, 1, NONE) \
    L(elu, elu, 1, NONE) \
    L(softplus, softplus, 1, NONE) \
    L(hardtanh, hardtanh, 1, NONE) \
    L(upsample, interpolate, 1, NONE) \
    MPT__CONV_LAYERS(L) MPT__NORM_LAYERS(L) MPT__ATTENTION_LAYERS(L) MPT__RECURRENT_LAYERS(L)
#ifdef MPTRAIN_NO_RECURRENT
#define MPT__RECURRENT_LAYERS(L)
#else
#define MPT__RECURRENT_LAYERS(L) \
    L(rnn, none, 0, NONE) \
    L(lstm, none, 0, NONE) \
    L(gru, none, 0, NONE) \
    L(rnn_cell, none, 0, NONE) \
    L(lstm_cell, none, 0, NONE) \
    L(gru_cell, none, 0, NONE)
#endif
#define MPT__CONV_LAYERS(L) \
    L(conv2d, conv2d, 3, NONE) \
    L(conv1d, conv1d, 3, NONE) \
    L(conv_transpose2d, conv_transpose2d, 3, NONE)
#define MPT__NORM_LAYERS(L) \
    L(layer_norm, layer_norm, 3, NONE) \
    L(rms_norm, rms_norm, 3, NONE) \
    L(batch_norm1d, none, 0, NONE) \
    L(batch_norm2d, none, 0, NONE) \
    L(group_norm, group_norm, 3, NONE) \
    L(max_pool2d, max_pool2d, 1, NONE) \
    L(avg_pool2d, avg_pool2d, 1, NONE)
#ifdef MPTRAIN_NO_ATTENTION
#define MPT__ATTENTION_LAYERS(L)
#else
#define MPT__ATTENTION_LAYERS(L) \
    L(embedding, embedding, 2, NONE) \
    L(multi_head_attention, none, 0, NONE) \
    L(glu, none, 0, NONE) \
    L(hash_grid, hash_grid, 2, NONE)
#endif

typedef enum {
#define MPT__ROW(name, op, inputs, activation) MPT__LAYER_##name,
    MPT__LAYERS(MPT__ROW)
#undef MPT__ROW
} mpt__layer;

static const struct {
    const char *name, *call;
    uint8_t op, inputs, activation;
} mpt__layer_rows[] = {
#define MPT__ROW(name, op, inputs, activation) \
    {#name, "mpt_" #op, MPT__OP_##op, inputs, MPT_ACTIVATION_##activation},
    MPT__LAYERS(MPT__ROW)
#undef MPT__ROW
};

typedef struct {
    int64_t step;   /* dropout calls are counted per step */
    uint64_t count; /* in it */
} mpt__draws;

/* State of a module that no gradient changes: running statistics, or what fp8 scales are made of.
   `next` is what a step will have made of statistics, `pending` until that step ends. */
enum { MPT__BUFFER_FP8 = 3, MPT__BUFFERS };
typedef struct mpt__running {
    uint32_t values, counts, next_values, next_counts; /* storages: [2, C] f32, [2] i64 */
    mpt__tensor *buffer[MPT__BUFFERS];                 /* views of the first two; NULL: not made */
    char *path[MPT__BUFFERS];                          /* once the tree is frozen */
    double momentum;
    int margin;       /* of fp8 scales */
    uint32_t norm;    /* of a fused convolution, whose `values` are folded: slot of its norm .. */
    uint64_t made_of; /* .. and a hash of what they come from */
    uint32_t op_slot, op_generation;
    mpt_tensor spare[3]; /* handles that end with the fp8 call under way */
    bool pending;
    /* At a step's end: what the step left becomes the state, or (commit false) is forgotten. NULL:
       steps leave nothing. */
    void (*settle)(mpt_context *ctx, struct mpt__running *running, bool commit);
} mpt__running;

static const char *const mpt__buffer_names[MPT__BUFFERS] = {
    "running_mean", "running_var", "num_batches_tracked", "fp8_state"};

typedef struct mpt__module mpt__module;
/* What a layer does that is more than its op: of x, for a batch norm with what is added to the
   result and whether relu follows. */
typedef mpt_tensor (*mpt__layer_run)(
    mpt_context *ctx, mpt__module *module, mpt_tensor x, mpt_tensor residual, bool relu);

/* What a user looks at a module with; see nn/hooks.c, which fills it in. */
typedef struct {
    mpt_forward_hook forward; /* NULL: none of that kind */
    mpt_backward_hook backward;
    void *forward_user, *backward_user;
    mpt__layer_run run; /* what `run` of the module would be */
    /* Behind a forward. */
    mpt_status (*call)(mpt_context *ctx, mpt__module *module, const mpt_tensor *in, int n_in,
        mpt_tensor *out, int n_out);
} mpt__hooks;

#ifdef MPTRAIN_NO_WATCH
#define mpt__hooks_of(module) ((mpt__hooks *)NULL)
#else
#define mpt__hooks_of(module) ((module)->hooks)
#endif

/* Of adapters, see nn/lora.c. */
typedef enum { MPT__LORA_NONE, MPT__LORA_ADAPTED, MPT__LORA_ADAPTER } mpt__lora;

struct mpt__module {
    mpt__id id;
    mpt_module_class cls;
    void *user;
    mpt__layer layer;
    mpt__attributes attributes; /* of the layer's op */
    uint32_t parent;            /* the first one, 0 = root */
    int parents;
    int64_t creation;       /* number in its context; 0 = given back, see mpt__number_back */
    int64_t first, numbers; /* the least in the tree, how many it has */
    mpt__module_child *children;
    int64_t child_count, child_capacity;
    mpt__module_parameter *parameters;
    int64_t parameter_count, parameter_capacity;
    bool training, frozen; /* asked for, see mpt__in_training; `frozen`: the tree is in use */
    bool fixed;            /* mpt_freeze, mpt_share_module */
    bool borrows;          /* mpt_share_module */
    uint32_t before;       /* modes that come back, the last one in bit 0: see mpt__modes_begin */
    bool watched;          /* of a root, once frozen: a user's forward or hook runs in the tree */
    bool held;             /* mpt_lora: weights get no gradients, and optimizers leave them out */
    uint8_t lora;          /* mpt__lora */
    uint8_t policy;        /* mpt_set_dtype_policy; MPT_DTYPE_NONE = none */
    uint32_t path;         /* index in ctx->paths, once frozen */
    uint64_t path_hash;
    mpt__draws draws, committed; /* now; after `updates` completed optimizer steps */
    int64_t updates;
    uint32_t mark;
    uint64_t label;        /* hash of the label, which stands for `creation`; 0 = none */
    mpt__running *running; /* NULL: it keeps none */
    mpt__layer_run run;    /* NULL: its op is all */
    mpt__hooks *hooks;     /* NULL: nobody looks */
    bool noticed;          /* its first forward in training looked for a bias before it */
#ifndef MPTRAIN_NO_FRUGAL
    int recompute; /* mpt_recompute_module: in so many parts; 0: not */
#endif
};

/* ==== Handles ==== */

MPT__HANDLES(module, MPT__MODULE)
MPT__HANDLE_AT(module, MPT__MODULE)

static mpt__module *mpt__module_slot(mpt_context *ctx, uint32_t slot) {
    return (mpt__module *)mpt__object_slot(ctx, MPT__MODULE, slot);
}

/* Where what a layer does beside its op is set. */
static MPT__UNUSED mpt__layer_run *mpt__run_place(mpt__module *module) {
    return mpt__hooks_of(module) ? &mpt__hooks_of(module)->run : &module->run;
}

/* Whether somebody may have put a handle by of what passes through a module. */
static bool mpt__looked_at(const mpt__module *module) {
    return module->layer == MPT__LAYER_user || mpt__hooks_of(module);
}

static MPT__FORCE_INLINE bool mpt__in_training(const mpt__module *module) {
    return module->training && !module->fixed;
}

static mpt__module *mpt__module_root(mpt_context *ctx, mpt__module *module) {
    while (module->parent) module = mpt__module_slot(ctx, module->parent);
    return module;
}

#endif
