/* ---------------------------------------------------------------------------------------------
 * 40_context.h: what a context holds, and the contract between the rooms of floors 4 to 8.
 *
 * Read this room first: every struct that more than one room touches stands here.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__40_CONTEXT_INCLUDED
#define MPT__40_CONTEXT_INCLUDED

#include "20_launch.h"
#include "36_cpu_table.c"

/* ==== Storages ==== */

/* Memory that tensors view. Ids are what launches name; id 0 is none, id 1 the device scalars. */
typedef enum mpt__storage_source {
    MPT__FROM_POOL,   /* goes back to the pool */
    MPT__FROM_DEVICE, /* own allocation: parameter blocks, optimizer states */
    MPT__BORROWED     /* the caller's memory: mpt_wrap */
} mpt__storage_source;

typedef struct mpt__storage {
    int64_t bytes; /* asked for */
    int64_t held;  /* taken: rounded up to the size class */
    int32_t references;
    uint32_t version; /* counts in-place changes; derived forms and saved tensors compare it */
    uint32_t next_free;
    uint16_t size_class;
    uint8_t source; /* mpt__storage_source */
    uint8_t kind;   /* mpt_memory_kind */
    uint8_t live;
} mpt__storage;

/* ==== Tensors ==== */

enum {
    MPT__REQUIRES_GRAD = 1, /* a leaf that collects a gradient, or a result that leads to one */
    MPT__LEAF = 2,          /* asked for by mpt_requires_grad, or a parameter */
    MPT__KEPT = 4,          /* outlives scopes */
    MPT__INFERENCE = 8,     /* made in inference mode: cannot be saved for backward */
    MPT__GRADIENT = 16      /* of a leaf or of the backward pass: mpt_release cannot end it */
};

/* A slot lives while a handle, a saved reference or a node of the tape needs it; its storage
   while a handle or a saved reference does. The three counts stand apart: compilers would test two
   neighbours in one load, which stalls behind the store that just changed one of them. */
typedef struct mpt__tensor {
    uint32_t generation;
    uint32_t slot;
    uint32_t storage;
    int32_t handle;           /* 1 while a handle may name it */
    uint32_t storage_version; /* at the time it was saved for backward */
    int32_t saves;            /* references that need the storage */
    uint32_t record;          /* producer in the tape + 1; 0 = none */
    int32_t nodes;            /* references by records, as graph node */
    uint32_t parameter;       /* index in context->parameters + 1; 0 = none */
    uint32_t gradient;        /* leaf that is no parameter: slot of its gradient, 0 = none */
    uint32_t next_free;
    uint8_t dtype, rank, flags, output; /* output: index among its record's outputs */
    int64_t born, born_before; /* step numbers of this and the last occupant, for messages */
    int64_t offset;            /* elements */
    int64_t shape[MPT_MAX_RANK];
    int64_t stride[MPT_MAX_RANK];
} mpt__tensor;

/* ==== Parameters ==== */

/* All parameters of one dtype of one tree: values, gradients and forms at equal element offsets. */
typedef struct mpt__block {
    uint8_t dtype, live;
    uint32_t values;          /* storage, MPT_MEMORY_PARAMETER */
    uint32_t gradients;       /* storage f32, made by the first backward; 0 before */
    int64_t numel;            /* gaps included */
    int64_t parameters;       /* how many live in it */
    uint32_t form[2];         /* casts of the whole block to F16 and BF16; 0 = none */
    uint32_t form_version[2]; /* version of `values` that the form was made of */
    uint32_t multiplier_slot; /* pending multiplier of the gradients; 0 = none */
    uint32_t updates[2]; /* changes of values' version that masters know of: replays; replays and
                            optimizers that share nothing */
} mpt__block;

typedef struct mpt__parameter {
    char *path;            /* "0.weight", owned by the tree */
    uint32_t tensor;       /* slot */
    uint32_t block;        /* index in context->blocks */
    uint32_t module;       /* slot of the module that holds it */
    uint32_t optimizer;    /* slot of the optimizer that owns it, 0 = none */
    int64_t offset, numel; /* in the block */
    bool has_grad;         /* None or not */
    bool live;
} mpt__parameter;

/* ==== Tape ==== */

#define MPT__MAX_INPUTS 8
#define MPT__MAX_OUTPUTS 4
#define MPT__MAX_SAVED 8

/* What an op call was told besides tensors. */
typedef struct mpt__attributes {
    double imm[4];
    int64_t index[4];
    mpt_shape shape;
    uint8_t function, activation, reduction;
    mpt__rng rng;
    void *user; /* user op: its mpt__user_op */
} mpt__attributes;

/* One op call. References: outputs' slots hold the record, the record holds its inputs' slots. */
typedef struct mpt__record {
    uint16_t op; /* mpt__op_id */
    uint8_t n_in, n_out, n_saved;
    uint8_t live, done;    /* done: backward has used it up */
    uint8_t compute_dtype; /* what the policy decided in forward */
    uint32_t references;   /* outputs alive */
    uint32_t next_free;
    uint32_t mark;                  /* of the last walk that saw it */
    uint8_t cursor;                 /* next input of that walk */
    uint32_t path;                  /* index of the module path in context->paths */
    uint32_t in[MPT__MAX_INPUTS];   /* tensor slots; 0 = absent */
    uint32_t out[MPT__MAX_OUTPUTS]; /* tensor slots; 0 once it is gone */
    uint32_t saved[MPT__MAX_SAVED]; /* tensor slots with a save reference */
    uint32_t saved_version[MPT__MAX_SAVED];
    uint32_t grad[MPT__MAX_OUTPUTS]; /* tensor slots, during backward */
    int64_t step;
    mpt__attributes attributes;
} mpt__record;

/* ==== Objects behind handles ==== */

typedef enum mpt__object_kind {
    MPT__MODULE,
    MPT__OPTIMIZER,
    MPT__SCALER,
    MPT__SCHEDULE,
    MPT__DATASET,
    MPT__LOADER,
    MPT__RECORDING,
    MPT__USER_OP,
    MPT__OBJECT_KINDS
} mpt__object_kind;

typedef struct mpt__object {
    void *object; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
} mpt__object;

typedef struct mpt__object_table {
    mpt__object *rows; /* row 0 is never used */
    int64_t count, capacity;
    uint32_t first_free;
    void (*destroy)(mpt_context *context, void *object); /* set by the room of that kind */
} mpt__object_table;

/* ==== Context ==== */

#define MPT__SIZE_CLASSES 288
#define MPT__TENSOR_CHUNK 256
#define MPT__MAX_REGIONS 64 /* nesting of autocast, no_grad, scopes */
#define MPT__MAX_HOOKS 4

typedef struct mpt__free_list { /* idle memory of one size class */
    void **pointers;
    int64_t count, capacity;
} mpt__free_list;

typedef struct mpt__scoped {
    uint32_t slot, generation;
} mpt__scoped;

/* A wrapper of the launch entry: sees every launch after it ran (`after`). */
typedef struct mpt__hook {
    void (*after)(mpt_context *context, void *user, const mpt__launch *launch);
    void *user;
} mpt__hook;

typedef struct mpt__metric {
    char name[48];
    uint16_t sum_slot, count_slot;
} mpt__metric;

/* Counters that mpt_clear_error takes back to the last completed optimizer step. */
typedef struct mpt__counters_state {
    int64_t step;
    uint64_t draws; /* mpt_rand, mpt_randn, functional dropout outside modules */
} mpt__counters_state;

struct mpt_context {
    mpt__base base; /* first: rooms below know only this */
    mpt_config config;
    mpt__backend backend;

    void **data; /* by storage id */
    mpt__storage *storages;
    int64_t storage_count, storage_capacity, data_capacity;
    uint32_t free_storage, recorded_free_storage;
    mpt__free_list pool[MPT__SIZE_CLASSES];
    void *workspace; /* scratch of launches, one at a time; grows */
    int64_t workspace_bytes;
    uint32_t scalar_storage;
    mpt__scalar *scalars; /* host view; valid after synchronize on asynchronous backends */
    uint8_t slot_used[MPT__SLOT_COUNT];

    mpt__tensor **tensor_chunks;
    int64_t tensor_chunk_count, tensor_chunk_capacity;
    int64_t tensor_count;
    uint32_t free_tensor;

    mpt__parameter *parameters;
    int64_t parameter_count, parameter_capacity;
    mpt__block *blocks;
    int64_t block_count, block_capacity;

    mpt__record *records; /* index 0 is never used */
    int64_t record_count, record_capacity;
    uint32_t free_record, dying_record;
    bool releasing_records;
    uint32_t walk_mark;
    uint32_t *walk; /* scratch of backward */
    int64_t walk_capacity;

    mpt__scoped *scoped; /* tensors made in open scopes, in order */
    int64_t scoped_count, scoped_capacity;
    int64_t scope_start[MPT__MAX_REGIONS];
    int scope_depth;
    int step_depth; /* value of scope_depth inside the open step, 0 = none */

    int no_grad_depth, inference_depth;
    bool in_backward;
    uint8_t autocast[MPT__MAX_REGIONS]; /* mpt_dtype; F32 = off */
    int autocast_depth;

    mpt__counters_state now, committed;

    uint32_t path;         /* of the module whose forward runs; 0 = none */
    uint32_t module;       /* its slot */
    uint64_t path_hash;    /* key part of dropout */
    uint64_t module_calls; /* dropout calls in this step by modules without a path */
    bool module_training;  /* of the module whose forward runs; true outside */
    char **paths;
    int64_t path_count, path_capacity;

    mpt__object_table objects[MPT__OBJECT_KINDS];

    mpt__launch launch; /* the one being filled */
    int launch_phase;
    uint32_t launch_record;
    int launch_op;
    mpt__hook hooks[MPT__MAX_HOOKS];
    int hook_count;
    struct mpt__recorder *recorder; /* 43_inspect.c */
    struct mpt__tracer *tracer;
    struct mpt__printer *printer;
    mpt_counters counters;
    mpt__metric metrics[16];
    int metric_count;
    uint64_t module_creations;
    uint32_t module_mark; /* of the last walk over modules */
};

/* ==== Contract of floor 4 (40_tensor.c) ==== */

/* Begins a public call: counts it, notes its name, and says whether it may go on (no sticky
   error, no fork). NULL context: false. */
static bool mpt__enter(mpt_context *context, const char *op);
#define mpt__error(context, ...) mpt__fail(&(context)->base, __VA_ARGS__)

/* Storages. New ones have one reference and unset values (zero: set to 0). 0 on error. */
static uint32_t mpt__storage_new(mpt_context *context, int64_t bytes, mpt_memory_kind kind,
                                 mpt__storage_source source, bool zero);
static uint32_t mpt__storage_wrap(mpt_context *context, void *data, int64_t bytes);
static void mpt__storage_retain(mpt_context *context, uint32_t storage);
static void mpt__storage_release(mpt_context *context, uint32_t storage);
/* Bytes of host memory into / out of a storage, in order with launches; downloads wait. */
static mpt_status mpt__upload(mpt_context *context, uint32_t storage, int64_t byte_offset,
                              const void *source, int64_t bytes);
static mpt_status mpt__download(mpt_context *context, void *destination, uint32_t storage,
                                int64_t byte_offset, int64_t bytes);

/* Tensors. `at` gives the live tensor of a handle or records an error ("argument x of relu: tensor
   made in step 41 used in step 43 ..") and gives NULL; an error null gives NULL in silence. */
static mpt__tensor *mpt__at(mpt_context *context, mpt_tensor tensor, const char *argument);
static mpt__tensor *mpt__slot(mpt_context *context, uint32_t slot); /* trusted */
static mpt_tensor mpt__handle(mpt_context *context, const mpt__tensor *tensor);
static mpt_tensor mpt__null(mpt_context *context); /* the error null */
/* A new contiguous tensor with its own storage, in the current scope. NULL on error. */
static mpt__tensor *mpt__tensor_new(mpt_context *context, mpt_dtype dtype, const mpt_shape *shape,
                                    mpt_memory_kind kind);
/* A new tensor on a storage (retained): contiguous strides unless `stride` is given. */
static mpt__tensor *mpt__tensor_on(mpt_context *context, uint32_t storage, mpt_dtype dtype,
                                   const mpt_shape *shape, const int64_t *stride, int64_t offset);
static void mpt__tensor_keep(mpt__tensor *tensor);                       /* outlives scopes */
static void mpt__tensor_drop(mpt_context *context, mpt__tensor *tensor); /* ends the handle */
static mpt_shape mpt__shape_of(const mpt__tensor *tensor);
static int64_t mpt__shape_numel(const mpt_shape *shape); /* -1 on overflow */
static int64_t mpt__tensor_numel(const mpt__tensor *tensor);
static bool mpt__tensor_contiguous(const mpt__tensor *tensor);
/* Negative numbers count from the end; -1 with an error recorded if out of range. */
static int mpt__dimension(mpt_context *context, int dim, int rank);

/* Launches. begin gives the context's launch, cleared; operands are set by position; submit runs
   it. `mpt__operand_of` describes a tensor; change shape and strides of the operand as needed.
   Slots 0. */
static mpt__launch *mpt__launch_begin(mpt_context *context, mpt__kernel kernel);
static mpt__operand *mpt__operand_of(mpt__launch *launch, int position, const mpt__tensor *tensor,
                                     mpt__access access);
/* A 1-d operand over `count` elements of a storage. */
static mpt__operand *mpt__operand_on(mpt__launch *launch, int position, uint32_t storage,
                                     mpt_dtype dtype, int64_t offset, int64_t count,
                                     mpt__access access);
static mpt_status mpt__submit(mpt_context *context, mpt__launch *launch);
/* Turns the device error word, once it can be read, into the sticky error; gives the status. */
static mpt_status mpt__check_device(mpt_context *context);

/* Device scalars: a slot, initialised; 0 with an error recorded when none is left. */
static uint16_t mpt__scalar_new_f(mpt_context *context, double value);
static uint16_t mpt__scalar_new_i(mpt_context *context, int64_t value);
static void mpt__scalar_free(mpt_context *context, uint16_t slot);
static void mpt__scalar_set_f(mpt_context *context, uint16_t slot, double value); /* a launch */
static void mpt__scalar_set_i(mpt_context *context, uint16_t slot, int64_t value);
/* Reads wait for the device. */
static double mpt__scalar_get_f(mpt_context *context, uint16_t slot);
static int64_t mpt__scalar_get_i(mpt_context *context, uint16_t slot);

/* Objects: a new row for `object` (owned by the table from here on), 0 on error. `object_at` gives
   the object of a handle or records an error and gives NULL. */
static uint32_t mpt__object_new(mpt_context *context, mpt__object_kind kind, void *object,
                                uint32_t *generation);
static void *mpt__object_at(mpt_context *context, mpt__object_kind kind, mpt_context *owner,
                            uint32_t slot, uint32_t generation);
static void *mpt__object_slot(mpt_context *context, mpt__object_kind kind, uint32_t slot);
static void mpt__object_free(mpt_context *context, mpt__object_kind kind, uint32_t slot);

/* Host memory for tables and names, MPT_MEMORY_HOST. */
static void *mpt__host_new(mpt_context *context, size_t bytes);
static void mpt__host_free(mpt_context *context, void *pointer, size_t bytes);
static char *mpt__host_text(mpt_context *context, const char *text); /* copy; free strlen + 1 */

/* ==== Contract of 41_autograd.c ==== */

static bool mpt__grad_enabled(const mpt_context *context);
/* One output of a record is gone: without outputs it lets go of its inputs. */
static void mpt__record_release(mpt_context *context, uint32_t record);
/* Makes pending multipliers real: called before anything but an optimizer reads a gradient. */
static void mpt__materialise_gradients(mpt_context *context, mpt__block *block);
/* The gradient storage of a block, made on first use; 0 on error. */
static uint32_t mpt__block_gradients(mpt_context *context, mpt__block *block);
/* Lets go of what a record of a user op holds (56_ops_user.c). */
static void mpt__user_op_release(mpt_context *context, mpt__record *record);
/* Drops tape, scopes, open step and gradients: part of mpt_clear_error. */
static void mpt__discard_history(mpt_context *context);

/* ==== Contract of 43_inspect.c, 44_values.c ==== */

/* Row-major fp32 values over a tensor of any float dtype; counts as an in-place change. */
static mpt_status mpt__write_f32(mpt_context *context, mpt__tensor *tensor, const float *values);
/* Waits for the device and turns its error word into the sticky error. */
static void mpt__wait(mpt_context *context);

/* A storage that a recording names was given back: its id stays reserved until the recording
   ends. */
static void mpt__recorder_retire(mpt_context *context, uint32_t storage);

/* ==== Contract of 42_autocast.c ==== */

struct mpt__frame;
struct mpt__op_row;
/* fp32 for losses; fp64 in the double-precision test build. */
static mpt_dtype mpt__loss_dtype(const struct mpt__frame *frame);
static bool mpt__dtype_computes(mpt_dtype dtype);
/* Sets the compute and result dtypes of a call by the policy of its row, or records an error. */
static mpt_status mpt__decide_dtype(struct mpt__frame *frame, const struct mpt__op_row *row);

/* The low dtype of the region that is open, MPT_F32 if none or off. */
static mpt_dtype mpt__autocast_dtype(const mpt_context *context);
/* The cast form of a parameter as an operand source: storage of the whole block in `dtype`, made or
   refreshed if stale; offset and strides as in the block. 0 on error. */
static uint32_t mpt__parameter_form(mpt_context *context, mpt__block *block, mpt_dtype dtype);

/* ==== Contract of the floors above, called from below ==== */

/* The path of a module, "" for 0 (41_autograd.c). */
static const char *mpt__path_text(const mpt_context *context, uint32_t path);
/* 62_optim.c: a replay wrote a storage of version `before`; masters that agreed still do. */
static void mpt__values_replayed(mpt_context *context, uint32_t storage, uint32_t before);
/* 61_module.c: indices into context->parameters of what is below a module, in tree order (name
   NULL), or of the one at a path. Freezes the tree. The count, also for list NULL; -1 on error. */
static int64_t mpt__module_parameters(mpt_context *context, mpt_module module, const char *name,
                                      uint32_t *list, int64_t capacity);

#endif
