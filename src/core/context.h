/* ----
 * core/context.h: what a context holds, and the contract between the wings above it.
 *
 * Read this room first: every struct that more than one room touches stands here.
 * ---- */
#ifndef MPT__CORE_CONTEXT_INCLUDED
#define MPT__CORE_CONTEXT_INCLUDED

#include "ground/elements.c"
#include "ground/math.c"
#include "ground/parallel.c"
#include "waist/launch.h"

/* ==== Storages ==== */

/* Memory that tensors view. Ids are what launches name; id 0 is none, id 1 the device scalars. */
typedef enum {
    MPT__FROM_POOL,   /* goes back to the pool */
    MPT__FROM_DEVICE, /* own allocation: parameter blocks, optimizer states */
    MPT__BORROWED,    /* the caller's memory: mpt_wrap */
    MPT__LENT,        /* what was MPT__FROM_DEVICE, and other contexts may have, too */
    MPT__OTHERS       /* of another context: read only */
} mpt__storage_source;

typedef struct {
    int64_t bytes; /* asked for */
    int64_t held;  /* taken: rounded up to the size class */
    int32_t references;
    int32_t recordings; /* of the references, those of recordings */
    uint32_t version;   /* counts in-place changes; derived forms and saved tensors compare it */
    uint32_t next_free;
    uint16_t size_class;
    uint8_t source; /* mpt__storage_source */
    uint8_t kind;   /* mpt_memory_kind */
    uint8_t live;   /* 2: parameters that were here have moved away */
#ifndef MPTRAIN_NO_FRUGAL
    uint32_t made; /* ctx->region_count at that time */
#endif
} mpt__storage;

#ifndef MPTRAIN_NO_FRUGAL
/* A part of the pool's large memory, its neighbours beside it. */
typedef struct {
    char *data;
    int64_t bytes;
    bool idle;
    bool first; /* of its allocation */
} mpt__extent;
#endif

/* Memory that several contexts have (core/share.c), and the storage that it is in one. */
typedef struct mpt__shared mpt__shared;
typedef struct {
    uint32_t storage;
    mpt__shared *memory;
} mpt__share_entry;

/* ==== Tensors ==== */

enum {
    MPT__REQUIRES_GRAD = 1, /* a leaf that collects a gradient, or a result that leads to one */
    MPT__LEAF = 2,          /* asked for by mpt_requires_grad, or a parameter */
    MPT__KEPT = 4,          /* outlives scopes */
    MPT__INFERENCE = 8,     /* made in inference mode: cannot be saved for backward */
    MPT__GRADIENT = 16,     /* of a leaf or of the backward pass: mpt_release cannot end it */
    MPT__ROUNDED = 32       /* fp32 that a linear layer saved, and reads as halves */
};

/* A slot lives while a handle, a saved reference or a node of the tape needs it; its storage
   while a handle or a saved reference does. The three counts stand apart: compilers would test two
   neighbours in one load, which stalls behind the store that just changed one of them. */
typedef struct mpt__tensor {
    uint32_t generation;
    uint32_t slot;
    uint32_t storage;
    int32_t handle;               /* 1 while a handle may name it */
    uint32_t parameter;           /* index in ctx->parameters + 1; 0 = none */
    int32_t saves;                /* references that need the storage */
    uint8_t dtype, flags, output; /* output: index among its record's outputs */
    int32_t nodes;                /* references by records, as graph node */
    struct mpt__record *record;   /* producer in the tape; NULL = none */
    struct mpt__tensor *gradient; /* of a leaf (a parameter's: a view); NULL = none */
    struct mpt__tensor *next_free;
    int64_t born, born_before; /* step numbers of this and the last occupant, for messages */
    int64_t offset;            /* elements */
    mpt_shape shape;
    int64_t stride[MPT_MAX_RANK];
} mpt__tensor;

/* ==== Parameters ==== */

/* All parameters of one dtype of one tree: values, gradients and forms at equal element offsets. */
typedef struct {
    uint8_t dtype, live;
    uint32_t values;          /* storage, MPT_MEMORY_PARAMETER */
    uint32_t gradients;       /* storage f32, made by the first backward; 0 before */
    int64_t numel;            /* gaps included */
    int64_t parameters;       /* how many live in it */
    uint32_t form[2];         /* casts of the whole block to F16 and BF16; 0 = none */
    uint32_t form_version[2]; /* version of `values` that the form was made of */
    bool form_read[2];        /* since the last update of `values` */
    uint32_t multiplier_slot; /* pending multiplier of the gradients; 0 = none */
    uint32_t moves;           /* the context's when it was made or a parameter left it */
    uint32_t updates[2]; /* changes of values' version that masters know of: replays; replays and
                            optimizers that share nothing */
} mpt__block;

/* What gradients are multiplied by, beside the slots of scalers. */
#define MPT__PLAIN 0u               /* nothing */
#define MPT__MIXED (UINT32_MAX - 1) /* a sum of such and of others */
#define MPT__UNKNOWN UINT32_MAX     /* the user has a hand in it: nothing is wrong */

typedef struct {
    char *path; /* "0.weight", owned by the tree */
    mpt__tensor *tensor;
    uint32_t block;        /* index in ctx->blocks */
    uint32_t module;       /* slot of the module that holds it */
    uint32_t optimizer;    /* slot of the optimizer that owns it, 0 = none */
    uint32_t scaler;       /* whose factor its gradient has, or one of those above */
    int64_t offset, numel; /* in the block */
    uint32_t steps;        /* of scalers' optimizers with the gradient since it was begun */
    bool has_grad;         /* None or not */
    bool cleared;          /* since ctx->found_gradients was reset */
    bool live;
    uint32_t since; /* updates that were completed when its gradient began */
#ifndef MPTRAIN_NO_FRUGAL
    bool inside;   /* the backward under way updates it and gives its gradient back */
    uint32_t last; /* number of the record after which that is done; UINT32_MAX: after all */
#endif
} mpt__parameter;

/* ==== Tape ==== */

/* Counters that mpt_clear_error takes back to the last completed optimizer step. */
typedef struct {
    int64_t step, updates; /* steps begun; optimizer steps completed */
    uint64_t draws;        /* mpt_rand, mpt_randn */
    uint64_t module_calls; /* mpt_dropout, in this step */
} mpt__counters_state;

#define MPT__USER_INPUTS 8 /* of user ops, and what they save */
#define MPT__MAX_OUTPUTS 4
#ifdef MPTRAIN_NO_RECURRENT
#define MPT__MAX_INPUTS MPT__USER_INPUTS
#define MPT__MAX_SAVED MPT__USER_INPUTS
#else
#define MPT__MAX_INPUTS 9
#define MPT__MAX_SAVED 16
#endif

/* What an op call was told besides tensors; index[0..rank) is a shape where the op takes one. */
typedef struct {
    double imm[2];
    int64_t index[MPT_MAX_RANK];
    uint8_t rank, activation, reduction;
    uint8_t required; /* inputs that cannot be left out */
} mpt__attributes;

/* How an op lays its results out; its shape rule says so. Where an op keeps the layout, gradients
   lie as their tensors do; other ops may take all that they write for contiguous. */
typedef enum {
    MPT__LAYOUT_CONTIGUOUS,
    MPT__LAYOUT_KEPT, /* channels last where an input is */
    MPT__LAYOUT_CHANNELS_LAST
} mpt__layout;

/* mpt_recompute_begin pays in transformers: builds without attention accept it, do nothing, and
   need not ask whether a call is in such a region. */
#ifdef MPTRAIN_NO_ATTENTION
enum { MPT__RECOMPUTES = 0 };
#else
enum { MPT__RECOMPUTES = 1 };
#endif
#define mpt__recomputes(ctx) (MPT__RECOMPUTES && (ctx)->recompute_depth > 0)

/* Whether a captured step is being recorded. */
#ifdef MPTRAIN_NO_GRAPH
#define mpt__is_capturing(ctx) false
#else
#define mpt__is_capturing(ctx) ((ctx)->capturing)
#endif

/* In a record's `again`: it was, for a backward that needs it no more, or one that retains it. */
enum { MPT__CAME_TO_STAY = 254, MPT__CAME_AGAIN };

/* Whether output 0 can be had again once nothing holds it. */
typedef enum {
    MPT__REPEATS_NOT,
    MPT__REPEATS,     /* from what is saved */
    MPT__REPEATS_VIEW /* as a view of in[0], which repeats */
} mpt__repeats;

/* One op call. References: outputs hold the record, the record holds its inputs. */
typedef struct mpt__record {
    uint16_t op; /* mpt__op_id */
    uint8_t n_in, n_out, n_saved;
    uint8_t live, done;       /* done: backward has used it up */
    uint8_t layout;           /* mpt__layout; as decided in forward */
    uint8_t compute_dtype;    /* what the policy decided in forward */
    uint8_t again;            /* 1 + position in saved of in[0], which is to be computed again */
    uint8_t repeats;          /* mpt__repeats */
#ifndef MPTRAIN_NO_FRUGAL
    uint8_t asks;             /* of mpt__asks */
    uint8_t gate;             /* 1 + position in saved of a relu's result, of which .. */
    uint8_t gates;            /* .. only bits are left, at 1 + this position */
    uint8_t gaters;           /* records that read it and do what the relu's backward would */
#endif
    uint32_t number;          /* index in ctx->records */
    uint32_t references;      /* outputs alive */
    struct mpt__record *next; /* in a list of free or dying ones, or of a walk */
    uint32_t mark;            /* of the last walk that saw it */
    uint8_t cursor;           /* next input of that walk */
    uint32_t path;            /* index of the module path in ctx->paths */
    int64_t step;
    mpt__tensor *in[MPT__MAX_INPUTS]; /* NULL = absent */
    /* With a save reference; behind what a user op saved stand the shapes of its outputs. */
    mpt__tensor *saved[MPT__MAX_SAVED + MPT__MAX_OUTPUTS];
    uint32_t saved_version[MPT__MAX_SAVED + MPT__MAX_OUTPUTS];
    mpt__tensor *grad[MPT__MAX_OUTPUTS]; /* during backward */
    mpt__attributes attributes;
#ifndef MPTRAIN_NO_FRUGAL
    struct mpt__region *region, *inner;  /* whose call it is; which one it stands for; or NULL */
    struct mpt__record *before, *after;  /* in the order of that region's calls */
    uint8_t from[MPT__MAX_SAVED + MPT__MAX_OUTPUTS]; /* of saved: number of the input, or .. */
#endif
} mpt__record;

#ifdef MPTRAIN_NO_FRUGAL
#define MPT__NOT_FRUGAL "what saves memory (MPTRAIN_NO_FRUGAL)"
#define mpt__in_region(ctx) false
#define mpt__was_region(record) false
#define mpt__runs_again(ctx) false
#else
enum { MPT__FROM_CALL = 254, MPT__FROM_OUTSIDE = 255 }; /* .. made by the call; held all along */

typedef enum {
    MPT__ASKS_GRADIENT = 1, /* the call left a record */
    MPT__ASKS_OPEN = 2,     /* which backward may still need */
    MPT__ASKS_HOLES = 4,    /* what it saved is not held */
    MPT__ASKS_OWN = 8,      /* and cannot be had without the call */
    MPT__ASKS_ALWAYS = 16,  /* no call may be left out: something else reads the result */
    MPT__ASKS_NOW = 32,     /* nor in the run to come */
    MPT__ASKS_GATED = 64,   /* it is one of the `gaters` of in[0]'s record */
    MPT__ASKS_OPENED = 128  /* its gates are to be opened for backward */
} mpt__asks;

/* A part of a forward that backward runs again, as its calls keep nothing: core/region.c. */
typedef struct mpt__region mpt__region;
typedef mpt_status (*mpt__region_fn)(
    mpt_context *ctx, mpt__region *region, const mpt_tensor *in, mpt_tensor *out);
struct mpt__region {
    mpt__region_fn run;
    int n_in, n_out;
    uint32_t slot, generation; /* of the module whose forward it is, or .. */
    mpt_recompute_fn fn;       /* .. the user's function */
    void *user;
    mpt_activation activation;
    int64_t child, end;  /* of a sequential, behind the last one of which a run has come; 0: all */
    mpt__region *above;  /* the one that it is a part of */
    mpt__region *next;   /* of free ones */
    mpt__region *older;  /* of all */
    mpt__record *head;   /* has saved its inputs, and stands for it among the calls of `above` */
    mpt__record *first, *last, *at; /* its calls; the one to come in a run under way */
    int64_t live;        /* open records and regions in it, and its own forward */
    bool whole;          /* what it makes is read, or changed, by others than its calls */
    bool fills;          /* in the run under way its calls shall save again */
    uint32_t number;     /* storages made in it have this one or a later one */
    uint64_t seen[2];    /* what its calls found, in forward and now */
    uint8_t autocast;
    bool narrow;
    bool training;
    uint32_t path, module;
    uint64_t path_hash;
    mpt__counters_state now;
};
#define mpt__in_region(ctx) MPT__UNLIKELY((ctx)->region != NULL)
#define mpt__was_region(record) ((record)->region != NULL)
#define mpt__runs_again(ctx) ((ctx)->runs_again)
#endif

/* ==== Op calls ==== */

typedef enum {
    MPT__POLICY_ANY,   /* any dtype; the op decides */
    MPT__POLICY_INPUT, /* float; the dtype of its inputs */
    MPT__POLICY_LOW,   /* matmul-like: the region's low dtype */
    MPT__POLICY_FP32,  /* fp32 inside a region */
    MPT__POLICY_LOSS   /* fp32 always */
} mpt__policy;

/* One call of an op, forward or backward, with everything that its functions work on. */
typedef struct {
    mpt_context *context;
    const struct mpt__op_row *row;
    int op, n_in, n_out;
    unsigned dtypes;                    /* bit d: an input is of mpt_dtype d */
    mpt__tensor *const *in;             /* NULL: absent */
    mpt__tensor *out[MPT__MAX_OUTPUTS]; /* forward: made by the engine after the shape rule */
    mpt_shape out_shape[MPT__MAX_OUTPUTS];
    mpt_dtype out_dtype[MPT__MAX_OUTPUTS]; /* preset by the policy */
    mpt_dtype compute;                     /* GEMM: dtype to round inputs to */
    mpt__attributes *attributes;
    bool records;   /* forward: backward will follow */
    bool is_view;   /* shape rule: output 0 views input 0 */
    uint8_t layout; /* mpt__layout; shape rule: of outputs */
    int64_t view_stride[MPT_MAX_RANK], view_offset;
    mpt__tensor *temporary[MPT__MAX_SAVED]; /* given back when the call ends */
    int n_temporary;
    mpt__record *record; /* forward: what it will leave */
#ifndef MPTRAIN_NO_FRUGAL
    mpt__record *twin; /* of the call that this one repeats */
    bool skips;        /* nobody asks for its result */
#endif
    /* backward */
    mpt__tensor *const *dy;    /* NULL: no gradient came */
    mpt__tensor *const *saved; /* NULL: absent */
    mpt__tensor *dx;           /* see mpt__dx_into */
    mpt__access access;        /* to dx */
} mpt__frame;

typedef mpt_status (*mpt__op_fn)(mpt__frame *frame);

/* A row of the op table, which ctx->ops points at. */
typedef struct mpt__op_row {
    const char *name;
    const char *onnx;                    /* "" if there is no single equal */
    mpt__op_fn shape, forward, backward; /* backward NULL: no gradient flows */
    uint8_t policy;                      /* mpt__policy */
    uint8_t function, backward_function; /* mpt__function */
} mpt__op_row;

/* ==== Objects behind handles ==== */

typedef enum {
    MPT__MODULE,
    MPT__OPTIMIZER,
    MPT__SCALER,
    MPT__SCHEDULE,
    MPT__DATASET,
    MPT__LOADER,
    MPT__TOKENIZER,
    MPT__RECORDING,
    MPT__CAPTURED,
    MPT__USER_OP,
    MPT__EMA,
    MPT__GRAPH,
    MPT__OBJECT_KINDS
} mpt__object_kind;

typedef struct {
    void *object; /* NULL: free */
    size_t bytes; /* what goes back to the allocator with the row */
    uint32_t generation;
    uint32_t next_free;
} mpt__object;

typedef struct {
    mpt__object *rows; /* row 0 is never used */
    int64_t count, capacity;
    uint32_t first_free;
    void (*destroy)(mpt_context *ctx, void *object); /* set by the room of that kind */
} mpt__object_table;

/* A convolution that is to be one launch with the batch norm after it, see nn/conv.c: it waits, and
   runs by itself once anything else is launched, read or written. */
typedef struct {
    uint32_t module;    /* slot of the layer under way; 0: none that may wait */
    uint32_t conv;      /* that of the one that waits */
    mpt__tensor *in[3]; /* as an op's; in[0] and out are held */
    mpt__tensor *out;   /* NULL: none waits */
    mpt__attributes attributes;
    uint16_t op;
    uint8_t compute;
    void (*run)(mpt_context *ctx);
} mpt__waiting;

/* ==== Context ==== */

/* 1528 or 424 hold all that an int64_t counts; MPT__POOL_REACH behind them. */
#define MPT__SIZE_CLASSES (sizeof(void *) > 4 ? 1544 : 440)
#define MPT__TENSOR_CHUNK 256
#define MPT__RECORD_CHUNK 14
#define MPT__MAX_REGIONS 64 /* nesting of autocast, no_grad, scopes */
#define MPT__MAX_DEPTH 200  /* of modules, and of users' forwards within each other */
#define MPT__MAX_LISTENERS 24

typedef struct {
    mpt__tensor *tensor;
    uint32_t generation;
} mpt__scoped;

/* What rooms above hear of, each with what it is about. */
typedef enum {
    MPT__LAUNCHES,        /* a launch (mpt__launch) is about to run */
    MPT__LAUNCHED,        /* it has run */
    MPT__STEP_BEGAN,      /* nothing */
    MPT__GRADIENTS_DONE,  /* nothing; an update is about to read them, or the step ends */
    MPT__STEP_SETTLES,    /* nothing; what is kept back until a step was good may be made to last */
    MPT__STEP_ENDED,      /* nothing; its tensors are gone */
    MPT__LOSS_KNOWN,      /* backward is about to run from a tensor (mpt__tensor) */
    MPT__RECORDING_ASKED, /* nothing; the user begins, ends, replays or destroys a recording */
    MPT__BATCH_MEASURED,  /* a norm has statistics of a batch (mpt__batch_statistics) */
    MPT__BATCH_CAME,      /* a loader has waited for a batch, or made it (mpt__batch_wait) */
    MPT__REPEAT_BEGAN,    /* a captured step is about to run from its recording (not NULL) */
    MPT__REPEAT_ENDED,    /* likewise; it has */
    MPT__OP_CALLED,       /* an op's forward has run (mpt__frame); not without watch/ */
    MPT__USER_OP_BEGAN    /* a user's op is about to run (mpt__frame); the same */
} mpt__event;

#define MPT__HEARS mpt_context *ctx, void *user, const void *what
typedef void (*mpt__hear)(MPT__HEARS);
typedef struct {
    mpt__hear hear; /* NULL: free */
    void *user;
    mpt__event event;
} mpt__listener;

/* Of MPT__BATCH_MEASURED: statistics on their way into the running ones of a module. */
typedef struct {
    uint32_t module; /* its slot */
    const mpt__tensor *mean, *variance;
    double unbiased; /* what makes the variance that of the population */
} mpt__batch_statistics;

/* Of MPT__BATCH_CAME: from when to when, and, where a worker has made it and the clock is the
   system's, who and when. */
typedef struct {
    double start, end;
    int worker; /* a number of its own in the context; 0: none */
    double began, ended;
} mpt__batch_wait;

typedef struct {
    void (*write)(void *user, const char *line);
    void *user;
} mpt__printer;

typedef struct {
    bool found;
    bool on; /* asked for by the user, else by a scaler for one step */
    char report[512];
} mpt__tracer;

typedef struct {
    char name[48];
    uint16_t sum_slot, count_slot;
} mpt__metric;

struct mpt_context {
    mpt__base base; /* first: rooms below know only this */
    mpt_config config;
    mpt__backend backend;
    const mpt__convert_table *convert; /* the fastest of this CPU that the context may use */
    mpt__pool *pool; /* of a CPU backend; NULL where the host has no threads of its own */

    void **data; /* by storage id */
    mpt__storage *storages;
    int64_t storage_count, storage_capacity, data_capacity;
    uint32_t free_storage, recorded_free_storage;
    uint32_t idle[MPT__SIZE_CLASSES]; /* the first storage that has only memory, by size class */
    int pool_reach; /* classes above its own from which a storage may come */
#ifndef MPTRAIN_NO_FRUGAL
    mpt__extent *extents; /* in the order of allocation */
    int64_t extent_count, extent_capacity;
    int64_t extents_peak, extents_moved; /* the moves at that peak */
    int64_t dry_end; /* of the memory of a dry context */
#endif
    void *workspace; /* scratch of launches, one at a time; grows */
    int64_t workspace_bytes;
    uint32_t scalar_storage;
    /* Host view; valid after synchronize on asynchronous backends. There two places for snapshots
       lie behind it, then for each slot the number of the last snapshot asked for before the host
       set it. */
    mpt__scalar *scalars;
    int64_t snapshots, landing[2]; /* asked for; the number of that under way to a place, or 0 */
    uint8_t slot_used[MPT__SLOT_COUNT];

    mpt__tensor **tensors; /* by slot; every MPT__TENSOR_CHUNK of them are one allocation */
    int64_t tensor_count, tensor_capacity;
    mpt__tensor *free_tensor;

    mpt__parameter *parameters;
    int64_t parameter_count, parameter_capacity;
    uint32_t moves; /* of parameters to other blocks, by mpt_half */
    mpt__block *blocks;
    int64_t block_count, block_capacity;

    mpt__record **records; /* as tensors: every MPT__RECORD_CHUNK of them are one allocation */
    int64_t record_count, record_capacity;
    mpt__record *free_record, *dying_record;
    bool releasing_records;
    uint32_t walk_mark;
#ifndef MPTRAIN_NO_FRUGAL
    mpt__region *region, *free_region, *regions; /* under way; free ones; all that were made */
    uint32_t region_count;                       /* begun so far */
    mpt__op_row silent; /* of a call that is left out: its op's, without a forward */
    bool runs_again;
#endif

    mpt__scoped *scoped; /* tensors made in open scopes, in order */
    int64_t scoped_count, scoped_capacity;
    int64_t scope_start[MPT__MAX_REGIONS];
    int scope_depth;
    int step_depth; /* value of scope_depth inside the open step, 0 = none */

    int no_grad_depth, inference_depth, recompute_depth;
    /* Ends that are still to come, from cleanup code, of what mpt_clear_error has closed. */
    int dropped_no_grad, dropped_inference, dropped_recompute, dropped_autocast, dropped_scopes;
    bool dropped_step;
    bool in_backward;
#ifndef MPTRAIN_NO_FRUGAL
    struct {
        const char *pattern;  /* NULL: no dry run of mpt_recompute_to_fit */
        int64_t count, found; /* modules that run again in it, and that could */
    } placement;
#endif
    bool in_update;       /* a user's update of a parameter runs: in_backward is set, too */
    uint32_t loss_scaler; /* of the backward pass: as that of a parameter */
    uint8_t autocast[MPT__MAX_REGIONS + 1]; /* mpt_dtype by depth; F32 = off, as at depth 0 */
    bool narrow[MPT__MAX_REGIONS + 1];      /* floats that differ meet in that */
    int autocast_depth;

    mpt__counters_state now, committed;
    uint64_t draws_before; /* now.draws when the step that is being captured began */
    int64_t device_step; /* what the scalar of the step number holds, set where dropout needs it */

    uint32_t path;        /* of the module whose forward runs; 0 = none */
    uint32_t module;      /* its slot */
    uint64_t path_hash;   /* key part of dropout */
    bool module_training; /* of the module whose forward runs; true outside */
    int forward_depth;    /* users' forwards that run, each called by the one before */
    char **paths;
    int64_t path_count, path_capacity;

    mpt__object_table objects[MPT__OBJECT_KINDS];
    const mpt__op_row *ops; /* by mpt__op_id */
    /* Whether output 0 of a call can be computed again from what forward saved; does so. */
    bool (*can_repeat)(const mpt__frame *frame);
    mpt__op_fn repeat;
#ifndef MPTRAIN_NO_FRUGAL
    /* Nothing but the record of the op that made a tensor needs it any more. */
    void (*shrink)(mpt_context *ctx, mpt__tensor *tensor);
    /* Backward's way through records, where an optimizer updates meanwhile; else NULL. */
    mpt_status (*walk)(mpt_context *ctx, mpt__record *order, bool retain);
#endif

    mpt__launch launch; /* the one being filled; between calls, the origin of the next ones */
    mpt__listener listeners[MPT__MAX_LISTENERS];
    uint32_t heard; /* bit e: somebody listens to event e */
    /* Where an answer is wanted there is one owner at most. The recorder's: keeps the id of a
       storage that was given back from being used again. */
    void (*retire)(mpt_context *ctx, uint32_t storage);
    struct mpt__recording *recorder; /* core/recorder.c */
    bool found_gradients;         /* has_grad of before has mattered; graph/capture.c resets it */
    struct mpt__anomaly *anomaly; /* core/anomaly.c; NULL: off */
    const char *isa_name;   /* of the level, for watch/ */
    void *profile, *flight; /* of watch/; NULL: there was none; off */
    bool (*flight_end)(mpt_context *ctx); /* a pointer, as anomaly mode has one */
    bool timed_products, tf32;    /* mpt_benchmark */
    bool capturing;               /* what is recorded is to run without the host .. */
    bool unrecorded;              /* .. but for this, which the host does each time */
    int64_t host_writes;          /* uploads so far */
    uint32_t sliced; /* slot of the captured step that stands between two launches; 0 = none */
    mpt__tracer tracer;
    mpt__printer printer;
    mpt_counters counters;
    mpt__metric metrics[16];
    int metric_count;
    uint64_t module_creations;
    uint32_t module_mark; /* of the last walk over modules */
    mpt__waiting waiting;
    bool warned_decoder;      /* that stb_image is an old one */
    int64_t loose_passes;     /* of backward, outside scopes */
    bool warned_leftovers;    /* that tensors outside steps and scopes become many */
    bool warned_scores;       /* that a loss takes them for what they are not */
    void *series;             /* of checkpoints, train/series.c */
    void *run;                /* that has state of its own beside the objects, train/state.c */
    double best;              /* the least value that mpt_checkpoint_best saw, or infinity */
    int32_t stop;             /* mpt_request_stop */
    bool warned_clipped;      /* that a step took gradients clipped by a norm that is not finite */
    bool queues;              /* the program may have, since ctx->backend.stream was last called */
    bool checks;              /* launches are looked at before: config.debug, or there are shares */
    mpt__share_entry *shares; /* of storages that are lent or borrowed */
    int64_t share_count, share_capacity;
};

/* ==== Errors, and what waits ==== */

#define mpt__error_of(ctx, status, ...) mpt__fail(&(ctx)->base, status, __VA_ARGS__)
#define mpt__backend_error(ctx, status) mpt__error_of(ctx, status, "%s", (ctx)->backend.error)
/* The same for a status that is named without its MPT_ERROR_. */
#define mpt__error(ctx, STATUS, ...) mpt__error_of(ctx, MPT_ERROR_##STATUS, __VA_ARGS__)
/* For what returns a bool: false; for what returns a tensor: the error null. */
#define mpt__reject(ctx, STATUS, ...) \
    ((void)mpt__error_of(ctx, MPT_ERROR_##STATUS, __VA_ARGS__), false)
#define mpt__refuse(ctx, STATUS, ...) \
    ((void)mpt__error_of(ctx, MPT_ERROR_##STATUS, __VA_ARGS__), mpt__null(ctx))
/* For what is wrong before an op is applied: they begin the public call that is refused. misused
   gives the error null. */
#define mpt__misuse(ctx, call, STATUS, ...) \
    ((void)(mpt__enter(ctx, call) && mpt__error_of(ctx, MPT_ERROR_##STATUS, __VA_ARGS__)))
#define mpt__misused(ctx, call, STATUS, ...) \
    ((void)(mpt__enter(ctx, call) && mpt__error_of(ctx, MPT_ERROR_##STATUS, __VA_ARGS__)), \
        mpt__null(ctx))
#define mpt__ok(ctx) ((ctx)->base.status == MPT_OK)
/* The status of an op's call. */
#define mpt__outcome(frame) ((frame)->context->base.status)

#ifdef MPTRAIN_NO_CONV
#define mpt__wait_no_more(ctx) ((void)0)
#else
/* Runs what waits. */
#define mpt__wait_no_more(ctx) ((ctx)->waiting.out ? (ctx)->waiting.run(ctx) : (void)0)
#endif

#endif
