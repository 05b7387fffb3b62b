/* ----
 * parallel/tensors.c: what ranks do with tensors together.
 *
 * Each call first compares with the others what it is about: MPI would end the program, hang or
 * give nonsense where shapes differ.
 * ---- */
#ifndef MPT__PARALLEL_TENSORS_INCLUDED
#define MPT__PARALLEL_TENSORS_INCLUDED

#include "parallel/world.c"

typedef struct {
    char call[24];
    int32_t option; /* root or op */
    int32_t dtype, rank;
    int64_t dim[MPT_MAX_RANK];
} mpt__ticket;

static void mpt__ticket_text(const mpt__ticket *ticket, char *text, size_t size) {
    mpt_shape shape;
    mpt__zero(shape);
    shape.rank = ticket->rank >= 0 && ticket->rank <= MPT_MAX_RANK ? ticket->rank : 0;
    for (int i = 0; i < shape.rank; i++) shape.dim[i] = ticket->dim[i];
    mpt__format_text(text, size, "%.23s of %D %S, option %d", ticket->call,
        (mpt_dtype)ticket->dtype, &shape, ticket->option);
}

/* Whether all ranks are in the same call with the same kind of tensor, else an error. */
static bool mpt__tickets_agree(mpt_context *ctx, mpt__world *w, const char *call,
    const mpt__tensor *tensor, int option) {
    mpt__ticket mine;
    mpt__zero(mine);
    mpt__format_text(mine.call, sizeof mine.call, "%s", call);
    mine.option = option;
    mine.dtype = tensor ? (int32_t)tensor->dtype : (int32_t)MPT_DTYPE_NONE;
    mine.rank = tensor ? tensor->shape.rank : 0;
    for (int i = 0; i < mine.rank; i++) mine.dim[i] = tensor->shape.dim[i];
    const unsigned char *all = mpt__world_gather(ctx, w, &mine, sizeof mine);
    for (int r = 0; all && r < w->world; r++) {
        mpt__ticket other;
        char here[200], there[200];
        memcpy(&other, all + (size_t)r * sizeof other, sizeof other);
        if (memcmp(&other, &mine, sizeof mine) == 0) continue;
        mpt__ticket_text(&mine, here, sizeof here);
        mpt__ticket_text(&other, there, sizeof there);
        return mpt__reject(ctx, SHAPE, "ranks disagree: rank %d called %s, rank %d %s", w->rank,
            here, r, there);
    }
    return all != NULL;
}

/* Memory for a while, and what goes through it. */
static void *mpt__scratch(mpt_context *ctx, int64_t bytes, uint32_t *storage) {
    *storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_WORKSPACE, MPT__FROM_POOL, false);
    return *storage ? ctx->data[*storage] : NULL;
}

static void mpt__scratch_end(mpt_context *ctx, uint32_t storage) {
    if (storage) mpt__storage_release(ctx, storage);
}

/* Whether a rank's tensor may be written, else an error. */
static bool mpt__may_receive(mpt_context *ctx, const mpt__tensor *tensor) {
    return !mpt__is_expanded(ctx, tensor) && !mpt__writing_refused(ctx, tensor->storage);
}

/* The values of rank `root` into the tensors of all. */
static mpt_status mpt__spread_tensor(
    mpt_context *ctx, mpt__world *w, mpt__tensor *tensor, int root) {
    const int64_t bytes = mpt__tensor_bytes(tensor);
    const mpt_dtype dtype = (mpt_dtype)tensor->dtype;
    uint32_t storage;
    void *stage = mpt__scratch(ctx, bytes, &storage);
    if (stage && w->rank == root) mpt__read_as(ctx, tensor, dtype, stage);
    if (stage) mpt__world_spread(ctx, w, stage, bytes, root);
    if (mpt__ok(ctx) && w->rank != root) {
        mpt__touched(ctx, tensor->storage);
        mpt__write_as(ctx, tensor, dtype, stage);
    }
    if (!w->lost) mpt__scratch_end(ctx, storage);
    return ctx->base.status;
}

mpt_status mpt_barrier(mpt_context *ctx) {
    mpt__world *w = mpt__world_enter(ctx, "mpt_barrier");
    if (w) mpt__tickets_agree(ctx, w, "mpt_barrier", NULL, 0);
    return mpt__status_of(ctx);
}

static bool mpt__check_root(mpt_context *ctx, const mpt__world *w, int root) {
    if (root >= 0 && root < w->world) return true;
    return mpt__reject(ctx, ARGUMENT, "root %d: expected a rank from 0 to %d", root, w->world - 1);
}

mpt_status mpt_broadcast(mpt_tensor tensor, int root) {
    mpt_context *ctx = tensor.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_broadcast");
    mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
    if (!found || !mpt__check_root(ctx, w, root) || !mpt__may_receive(ctx, found) ||
        !mpt__tickets_agree(ctx, w, "mpt_broadcast", found, root))
        return mpt__status_of(ctx);
    return mpt__spread_tensor(ctx, w, found, root);
}

/* In what elements of a dtype are reduced; MPT_DTYPE_NONE: they cannot be. */
static mpt_dtype mpt__reduced_as(mpt_dtype dtype, MPI_Datatype *type) {
    switch (dtype) {
    case MPT_F16:
    case MPT_BF16:
    case MPT_F32: *type = MPI_FLOAT; return MPT_F32;
    case MPT_F64: *type = MPI_DOUBLE; return MPT_F64;
    case MPT_I32: *type = MPI_INT32_T; return MPT_I32;
    case MPT_I64: *type = MPI_INT64_T; return MPT_I64;
    default: return MPT_DTYPE_NONE;
    }
}

static void mpt__divide_staged(void *stage, mpt_dtype dtype, int64_t numel, int world) {
    for (int64_t i = 0; i < numel && dtype == MPT_F32; i++) ((float *)stage)[i] /= (float)world;
    for (int64_t i = 0; i < numel && dtype == MPT_F64; i++) ((double *)stage)[i] /= world;
}

/* Reduces elements in memory, in place. */
static mpt_status mpt__reduce_staged(mpt_context *ctx, mpt__world *w, char *stage, int64_t numel,
    mpt_dtype as, MPI_Datatype type, MPI_Op op) {
    const int64_t size = (int64_t)mpt_dtype_size(as), most = mpt__mpi_bytes / size;
    mpt_status status = MPT_OK;
    for (int64_t at = 0; at < numel && status == MPT_OK; at += most) {
        const int64_t some = numel - at < most ? numel - at : most;
        MPI_Request request = MPI_REQUEST_NULL;
        int code = MPI_Iallreduce(MPI_IN_PLACE, stage + at * size, (int)some, type, op,
            w->comm[MPT__MPI_CALLS], &request);
        status = mpt__world_wait(ctx, w, &request, 1, code);
    }
    return status;
}

mpt_status mpt_all_reduce(mpt_tensor tensor, mpt_parallel_op op) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = tensor.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_all_reduce");
    mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
    MPI_Datatype type = MPI_FLOAT;
    if (!found || !mpt__may_receive(ctx, found)) return mpt__status_of(ctx);
    const mpt_dtype as = mpt__reduced_as((mpt_dtype)found->dtype, &type);
    if (as == MPT_DTYPE_NONE || (op == MPT_PARALLEL_MEAN && (as == MPT_I32 || as == MPT_I64)))
        return mpt__error(ctx, DTYPE, "a tensor of %D cannot be %s; mpt_cast it first",
            (mpt_dtype)found->dtype, op == MPT_PARALLEL_MEAN ? "averaged" : "reduced");
    if (op < MPT_PARALLEL_SUM || op > MPT_PARALLEL_MIN)
        return mpt__error(ctx, ARGUMENT, "op %d is none of mpt_parallel_op", (int)op);
    if (!mpt__tickets_agree(ctx, w, "mpt_all_reduce", found, (int)op)) return ctx->base.status;
    const int64_t numel = mpt__tensor_numel(found);
    uint32_t storage;
    char *stage = (char *)mpt__scratch(ctx, numel * (int64_t)mpt_dtype_size(as), &storage);
    if (stage) mpt__read_as(ctx, found, as, stage);
    if (mpt__ok(ctx))
        mpt__reduce_staged(ctx, w, stage, numel, as, type,
            op == MPT_PARALLEL_MAX ? MPI_MAX : op == MPT_PARALLEL_MIN ? MPI_MIN : MPI_SUM);
    if (mpt__ok(ctx)) {
        if (op == MPT_PARALLEL_MEAN) mpt__divide_staged(stage, as, numel, w->world);
        mpt__touched(ctx, found->storage);
        mpt__write_as(ctx, found, as, stage);
    }
    if (!w->lost) mpt__scratch_end(ctx, storage);
    return ctx->base.status;
}

mpt_tensor mpt_all_gather(mpt_tensor tensor) {
    mpt_context *ctx = tensor.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_all_gather");
    mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
    if (!found) return mpt__null(ctx);
    mpt_shape shape;
    mpt__zero(shape);
    shape.rank = found->shape.rank + 1;
    if (shape.rank > MPT_MAX_RANK)
        return mpt__refuse(ctx, SHAPE, "the tensor has shape %S, and a dimension more is beyond %d",
            &found->shape, (int)MPT_MAX_RANK);
    shape.dim[0] = w->world;
    for (int i = 1; i < shape.rank; i++) shape.dim[i] = found->shape.dim[i - 1];
    const mpt_dtype dtype = (mpt_dtype)found->dtype;
    const int64_t bytes = mpt__tensor_bytes(found);
    if (bytes > mpt__mpi_bytes)
        return mpt__refuse(ctx, UNSUPPORTED, "%B of a rank: at most 1 GB can be gathered", bytes);
    if (!mpt__tickets_agree(ctx, w, "mpt_all_gather", found, 0)) return mpt__null(ctx);
    uint32_t storage;
    void *stage = mpt__scratch(ctx, bytes * (w->world + 1), &storage);
    char *all = stage ? (char *)stage + bytes : NULL;
    if (stage) mpt__read_as(ctx, found, dtype, stage);
    if (mpt__ok(ctx)) {
        MPI_Request request = MPI_REQUEST_NULL;
        int code = MPI_Iallgather(stage, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
            w->comm[MPT__MPI_CALLS], &request);
        mpt__world_wait(ctx, w, &request, 1, code);
    }
    mpt__tensor *out =
        mpt__ok(ctx) ? mpt__tensor_new(ctx, dtype, &shape, MPT_MEMORY_ACTIVATION) : NULL;
    if (out) mpt__write_as(ctx, out, dtype, all);
    if (!w->lost) mpt__scratch_end(ctx, storage);
    return out ? mpt__tensor_done(ctx, out, ctx->base.status) : mpt__null(ctx);
}

/* ==== Modules ==== */

/* Whether all ranks have the same number here, else the first whose is not rank 0's; -1: they do;
   -2: an error. */
static int mpt__odd_rank(mpt_context *ctx, mpt__world *w, uint64_t number) {
    const unsigned char *all = mpt__world_gather(ctx, w, &number, sizeof number);
    for (int r = 1; all && r < w->world; r++)
        if (memcmp(all, all + (size_t)r * sizeof number, sizeof number) != 0) return r;
    return all ? -1 : -2;
}

static mpt_status mpt__spread_module(
    mpt_context *ctx, mpt__world *w, mpt__module *module, int root) {
    mpt__walk walk;
    mpt__buffer weight;
    mpt__walk_begin(&walk, ctx, module);
    while (mpt__ok(ctx) && mpt__walk_weight(&walk, &weight))
        if (w->rank == root || mpt__may_receive(ctx, weight.tensor))
            mpt__spread_tensor(ctx, w, weight.tensor, root);
    return ctx->base.status;
}

/* The names, shapes and dtypes of all weights, or, with values, all of it. */
static uint64_t mpt__weights_hash(mpt_context *ctx, mpt__module *module, bool values) {
    uint64_t hash = 0;
    mpt__buffer weight;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, module);
    while (mpt__walk_weight(&walk, &weight)) {
        const char *path = mpt__relative_path(ctx, module, weight.path);
        if (values) {
            hash = mpt__hash_tensor(ctx, hash, path, weight.tensor);
            continue;
        }
        hash = mpt__hash_u64(mpt__hash_bytes(hash, path, strlen(path)), weight.tensor->dtype);
        for (int d = 0; d < weight.tensor->shape.rank; d++)
            hash = mpt__hash_u64(hash, (uint64_t)weight.tensor->shape.dim[d]);
    }
    return hash;
}

/* Weight number `index` as text; "nothing" behind the last one. */
static void mpt__weight_text(
    mpt_context *ctx, mpt__module *module, int64_t index, char *text, size_t size) {
    mpt__walk walk;
    mpt__buffer weight;
    mpt__walk_begin(&walk, ctx, module);
    memset(text, 0, size);
    mpt__format_text(text, size, "nothing");
    while (mpt__walk_weight(&walk, &weight)) {
        if (index-- > 0) continue;
        mpt__format_text(text, size, "%.150s %D %S",
            mpt__relative_path(ctx, module, weight.path), (mpt_dtype)weight.tensor->dtype,
            &weight.tensor->shape);
        return;
    }
}

/* Whether the nets of all ranks have the same weights in kind, else an error that names the first
   one that differs. */
static bool mpt__nets_agree(mpt_context *ctx, mpt__world *w, mpt__module *module) {
    char text[256], other[256];
    int odd = mpt__odd_rank(ctx, w, mpt__weights_hash(ctx, module, false));
    for (int64_t i = 0; odd >= 0; i++) {
        mpt__weight_text(ctx, module, i, text, sizeof text);
        const unsigned char *all = mpt__world_gather(ctx, w, text, sizeof text);
        if (!all) return false;
        for (int r = 1; r < w->world; r++) {
            if (memcmp(all, all + (size_t)r * sizeof text, sizeof text) == 0) continue;
            memcpy(text, all, sizeof text);
            memcpy(other, all + (size_t)r * sizeof other, sizeof other);
            return mpt__reject(ctx, SHAPE,
                "the nets of the ranks differ: rank 0 has %s, rank %d has %s", text, r, other);
        }
        if (strcmp(text, "nothing") == 0) break; /* what differs is not in the text */
    }
    return odd == -1 ||
        (odd >= 0 && mpt__reject(ctx, SHAPE, "the nets of ranks 0 and %d differ", odd));
}

static mpt_status mpt__compare_values(mpt_context *ctx, mpt__world *w, mpt__module *module) {
    int odd = mpt__odd_rank(ctx, w, mpt__weights_hash(ctx, module, true));
    if (odd < 0) return ctx->base.status;
    return mpt__error(ctx, STATE,
        "rank %d has other weights or running statistics than rank 0; mpt_broadcast_module makes "
        "them equal",
        odd);
}

mpt_status mpt_broadcast_module(mpt_module module, int root) {
    mpt_context *ctx = module.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_broadcast_module");
    mpt__module *found = w ? mpt__module_at(ctx, module) : NULL;
    if (!found || !mpt__check_root(ctx, w, root) || mpt__freeze(ctx, found) != MPT_OK ||
        !mpt__tickets_agree(ctx, w, "mpt_broadcast_module", NULL, root) ||
        !mpt__nets_agree(ctx, w, found))
        return mpt__status_of(ctx);
    return mpt__spread_module(ctx, w, found, root);
}

mpt_status mpt_compare_ranks(mpt_module module) {
    mpt_context *ctx = module.context;
    mpt__world *w = mpt__world_enter(ctx, "mpt_compare_ranks");
    mpt__module *found = w ? mpt__module_at(ctx, module) : NULL;
    if (!found || mpt__freeze(ctx, found) != MPT_OK ||
        !mpt__tickets_agree(ctx, w, "mpt_compare_ranks", NULL, 0) ||
        !mpt__nets_agree(ctx, w, found))
        return mpt__status_of(ctx);
    return mpt__compare_values(ctx, w, found);
}

#endif
