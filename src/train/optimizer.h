/* ----
 * train/optimizer.h: what an optimizer is, and how the rooms of training see its state.
 * ---- */
#ifndef MPT__TRAIN_OPTIMIZER_INCLUDED
#define MPT__TRAIN_OPTIMIZER_INCLUDED

#include "nn/query.c"

/* ==== Contract ==== */

enum { MPT__MOMENTS = MPT_MAX_STATES, MPT__MASTER = MPT__MOMENTS, MPT__MIRRORS, MPT__SETTINGS = 3 };

/* When an optimizer has a moment. */
typedef enum { MPT__ALWAYS, MPT__IF_FIRST, MPT__IF_VARIANT } mpt__need;

/* What one kind of optimizer is. Settings are checked to lie in [low, below) and go to imm[0..] of
   the kernel, weight decay behind them; the variant goes to index[0]. */
typedef struct {
    mpt__kernel kernel;
    mpt__function function;
    bool cycles; /* the first setting is what one cycle moves */
    struct {
        const char *name; /* in state; NULL = none */
        mpt__need need;   /* always, where the first setting is not 0, in the variant */
    } moment[MPT__MOMENTS];
    struct {
        const char *name;
        double low, below;
    } setting[MPT__SETTINGS]; /* the last ones may be missing */
} mpt__rule;

typedef struct {
    double lr; /* without a schedule the rate itself, else the rate that the schedule starts from */
    double weight_decay, setting[MPT__SETTINGS];
    uint16_t lr_slot; /* what the kernels read where there is no table */
    uint32_t table;   /* storage of a per-step schedule's window; 0 = none */
} mpt__group;

/* What mirrors elements [first, first + count) of a block. */
typedef struct {
    uint32_t block;
    uint32_t mirror[MPT__MIRRORS]; /* storages f32: moments, master; 0 = none */
    uint32_t agreed;               /* mpt__foreign_writes when the master was loaded */
    uint64_t stream;               /* of the random words that round its elements */
    int64_t first, count;
    int64_t held;      /* parameters of the block that are in the optimizer */
    int64_t row, rows; /* its segments; rows 0: no gradient in this pattern */
#ifndef MPTRAIN_NO_FRUGAL
    int64_t bytes, used, wanted; /* of moments with codes; wanted: by what is being taken */
#endif
} mpt__optim_state;

/* One parameter; its step count has the same index. */
typedef struct {
    uint32_t parameter; /* index in ctx->parameters */
    uint32_t group, state;
    uint32_t block;   /* the state's: where the parameter was when it came */
    bool had_grad;    /* in the pattern that the segments were built of */
    uint64_t history; /* hash of the patterns in which it had one: equal where step counts are */
#ifndef MPTRAIN_NO_FRUGAL
    int64_t place;    /* of moments with codes, as in segments */
#endif
} mpt__optim_item;

/* The device scalars of an optimizer. */
enum {
    MPT__OPTIM_APPLIED,    /* i: steps */
    MPT__OPTIM_FOUND,      /* i: found_inf of the last unscale */
    MPT__OPTIM_NORM,       /* f */
    MPT__OPTIM_MULTIPLIER, /* f: means something while it is pending on blocks */
    MPT__OPTIM_SLOTS
};

/* How far an optimizer is in the current update of its scaler. */
typedef enum { MPT__READY, MPT__UNSCALED, MPT__STEPPED, MPT__SKIPPED } mpt__stage;

struct mpt__schedule; /* train/rates.c */
struct mpt__own;      /* train/own.c */

typedef struct {
    mpt__id id;
    const mpt__rule *rule;
    double setting[MPT__SETTINGS];
    double initial; /* value of the first moment of what is new */
    bool variant, maximize, shared, warned_no_grad, warned_unscaled;
    bool refuses_nonfinite; /* norms that clip */
    bool stochastic;        /* bf16 values are rounded by chance and have no masters */
    bool pattern_valid, norm_valid;
#ifndef MPTRAIN_NO_FRUGAL
    bool inside; /* updates in backward: then each item is a segment of its own, in items' order */
    bool done;   /* has done so; mpt_step is still to come */
#endif
    mpt__group *groups;
    int64_t group_count, group_capacity;
    mpt__optim_state *states;
    int64_t state_count, state_capacity;
    mpt__optim_item *items;
    int64_t item_count, item_capacity;
    int64_t row_count;
    int64_t *rows;             /* host copy of the segments, behind it the group of each */
    uint32_t segments, counts; /* storages */
    int64_t with_grad;         /* parameters with a gradient in the pattern */
    uint32_t stepped;          /* the context's updates after its last step */
    int uncleared;             /* steps in a row that found the gradients of the one before */
    uint64_t patterns;         /* so far; other groups and options count, too */
    uint16_t slot[MPT__OPTIM_SLOTS];
    uint32_t scaler; /* slot of the scaler in whose current update it takes part; 0 = none */
    mpt__stage stage;
    bool checked;                   /* its gradients were looked at: found_inf means something */
    struct mpt__schedule *schedule; /* NULL = none */
    struct mpt__own *own;           /* NULL: the kernel of its rule updates */
#ifndef MPTRAIN_NO_FRUGAL
    uint32_t codes;                 /* the table of codes, as a storage; 0: moments are fp32 */
#endif
} mpt__optimizer;

/* By a counter: none gets there, and sums of some do not overflow. */
#define MPT__MOST_COUNTED (INT64_C(1) << 53)
#define MPT__STATE_NAME (MPT__PATH_BYTES + 64) /* room for a path and what stands behind it */

/* One piece of an object's state, for hash, save, load and comparison: elements of a storage, or,
   where storage is 0, an array on the host, or a number of 8 bytes there, or, where both are NULL,
   a device scalar. */
typedef struct {
    const char *name;
    uint32_t storage;
    mpt_dtype dtype; /* MPT_F64 or MPT_I64 for numbers */
    int64_t offset, count;
    void *host;
    void *array; /* `count` elements on the host; NULL: a number, or in a storage */
    uint16_t slot;
    mpt_shape shape; /* of the elements; of numbers the scalar's */
    uint32_t module; /* slot of that whose parameter this is about; 0 = of none */
    /* What a number may be: with `same`, which says how things are set up, no other; with `most`
       above 0 (of MPT_I64, also of one in a storage) from 0 to that, below 0 from that to as much
       above; with `rate` (of MPT_F64) finite and 0 or more. */
    bool same, rate;
    int64_t most;
    /* NULL, or what a number is a hash of: no state, but what tells a training from another. */
    const char *identity;
} mpt__state_item;
typedef mpt_status (*mpt__state_visitor)(mpt_context *ctx, void *user, const mpt__state_item *item);

/* What an optimizer that updates on the host has of its own: the first member of more. */
typedef struct mpt__own {
    size_t bytes; /* of all of it */
    mpt__rule rule;
    bool whole;   /* takes all parameters together: no groups, no options */
    bool running; /* amid a step, in a function of the user's */
    /* In the place of launches, with what those get: see mpt__optimizer_update. */
    mpt_status (*update)(mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot);
    void (*end)(mpt_context *ctx, struct mpt__own *own); /* before the bytes are given back */
    /* Shows what it keeps besides; NULL: nothing. */
    mpt_status (*visit)(mpt_context *ctx, struct mpt__own *own, mpt__state_item *item,
        mpt__state_visitor visit, void *user);
    /* Of Muon, else NULL: the rule of a group; a look at what mpt_optimizer_add gives one. */
    const mpt__rule *(*rule_of)(const struct mpt__own *own, int64_t group);
    mpt_status (*admit)(mpt_context *ctx, mpt__optimizer *optimizer, mpt_module module,
        const char *path, int64_t group);
} mpt__own;

#ifdef MPTRAIN_NO_WATCH
#define mpt__rule_of(optimizer, group) ((void)(group), (optimizer)->rule)
#else
static const mpt__rule *mpt__rule_of(const mpt__optimizer *optimizer, int64_t group) {
    const mpt__own *own = optimizer->own;
    return own && own->rule_of ? own->rule_of(own, group) : optimizer->rule;
}
#endif

/* Adds name and bits of a state item to the hash at `user`. */
static mpt_status mpt__hash_item(mpt_context *ctx, void *user, const mpt__state_item *item) {
    uint64_t *hash = (uint64_t *)user;
    if (item->identity) return ctx->base.status;
    *hash = mpt__hash_bytes(*hash, item->name, strlen(item->name));
    if (item->storage) {
        int64_t size = (int64_t)mpt_dtype_size(item->dtype);
        *hash =
            mpt__hash_storage(ctx, *hash, item->storage, item->offset * size, item->count * size);
    } else if (item->host || item->array) {
        size_t size = item->array ? (size_t)item->count * mpt_dtype_size(item->dtype) : 8;
        *hash = mpt__hash_bytes(*hash, item->array ? item->array : item->host, size);
    } else {
        *hash = mpt__hash_u64(*hash, (uint64_t)mpt__scalar_get_i(ctx, item->slot));
    }
    return ctx->base.status;
}

/* ==== Settings ==== */

#define MPT__NO_LIMIT 3.4e38 /* what no setting reaches: NaN and infinities of fp32 are refused */

/* False with an error recorded unless low <= value < below. */
static bool mpt__check_number(
    mpt_context *ctx, const char *name, double value, double low, double below) {
    if (value >= low && value < below) return true;
    if (below < MPT__NO_LIMIT) {
        mpt__error(ctx, ARGUMENT, "%s = %g is not in [%g, %g)", name, value, low, below);
    } else {
        mpt__error(ctx, ARGUMENT, "%s = %g; expected a finite number >= %g", name, value, low);
    }
    return false;
}

/* ==== Handles ==== */

MPT__HANDLES(optimizer, MPT__OPTIMIZER)
MPT__HANDLE_AT(optimizer, MPT__OPTIMIZER)

static mpt__block *mpt__block_of(const mpt_context *ctx, const mpt__optim_state *state) {
    return &ctx->blocks[state->block];
}

#endif
