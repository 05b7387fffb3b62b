/* ----
 * core/tensor.c: tensors and the records that made them, device scalars, objects, scopes.
 * ---- */
#ifndef MPT__CORE_TENSOR_INCLUDED
#define MPT__CORE_TENSOR_INCLUDED

#include "core/storage.c"

/* ==== Tensors ==== */

static MPT__FORCE_INLINE mpt__tensor *mpt__slot(mpt_context *ctx, uint32_t slot) {
    return ctx->tensors[slot];
}

static mpt_tensor mpt__handle(mpt_context *ctx, const mpt__tensor *tensor) {
    mpt_tensor handle = mpt__null(ctx);
    if (!tensor) return handle;
    handle.slot = tensor->slot;
    handle.generation = tensor->generation;
    return handle;
}

/* So many may be alive outside steps and scopes before the log hears of it: results of as many
   backward passes, of which a loop leaves at least its loss each time; all that mpt_keep did not
   make. Programs that hold so many on purpose are few, and can mpt_keep them. */
enum { MPT__LEFT_RESULTS = 500, MPT__LEFT_TENSORS = 16384 };

/* A loop without steps grows for ever, and nothing else would tell. Looks where there are no free
   slots, outside all scopes: then what lives is to stay. */
static MPT__COLD void mpt__notice_leftovers(mpt_context *ctx) {
    int64_t results = 0, all = 0;
    for (int64_t i = 1; i < ctx->tensor_count; i++) {
        const mpt__tensor *tensor = ctx->tensors[i];
        if (!tensor->handle || (tensor->flags & (MPT__KEPT | MPT__GRADIENT))) continue;
        results += tensor->record && tensor->record->done;
        all++;
    }
    bool loop = results >= MPT__LEFT_RESULTS && ctx->loose_passes >= MPT__LEFT_RESULTS;
    if (!loop && all < MPT__LEFT_TENSORS) return;
    ctx->warned_leftovers = true;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "%lld tensors made outside steps and scopes are alive: put what a loop does between "
        "mpt_step_begin and mpt_step_end, or in a scope (mpt_scope_begin); mpt_keep what stays",
        all);
}

/* Makes more slots. They never move, so pointers to tensors stay good. */
static MPT__COLD bool mpt__slots_grow(mpt_context *ctx) {
    int64_t first = ctx->tensor_count, need = first + MPT__TENSOR_CHUNK;
    if (ctx->scope_depth == 0 && !ctx->warned_leftovers) mpt__notice_leftovers(ctx);
    if (!mpt__room(ctx, ctx->tensors, ctx->tensor_capacity, need)) return false;
    mpt__tensor *chunk = (mpt__tensor *)mpt__host_new(ctx, MPT__TENSOR_CHUNK * sizeof(mpt__tensor));
    if (!chunk) return false;
    ctx->tensor_count += MPT__TENSOR_CHUNK;
    for (int i = MPT__TENSOR_CHUNK - 1; i >= 0; i--) {
        ctx->tensors[first + i] = &chunk[i];
        chunk[i].slot = (uint32_t)(first + i);
        chunk[i].generation = 1;
        chunk[i].next_free = ctx->free_tensor;
        if (chunk[i].slot) ctx->free_tensor = &chunk[i]; /* slot 0 means none */
    }
    return true;
}

/* Makes more records. They never move. */
static MPT__COLD bool mpt__records_grow(mpt_context *ctx) {
    int64_t first = ctx->record_count, need = first + MPT__RECORD_CHUNK;
    if (!mpt__room(ctx, ctx->records, ctx->record_capacity, need)) return false;
    mpt__record *chunk = (mpt__record *)mpt__host_new(ctx, MPT__RECORD_CHUNK * sizeof(mpt__record));
    if (!chunk) return false;
    ctx->record_count += MPT__RECORD_CHUNK;
    for (int i = MPT__RECORD_CHUNK - 1; i >= 0; i--) {
        ctx->records[first + i] = &chunk[i];
        chunk[i].number = (uint32_t)(first + i);
        chunk[i].next = ctx->free_record;
        if (chunk[i].number) ctx->free_record = &chunk[i]; /* number 0 means none */
    }
    return true;
}

/* A record that the caller fills in; NULL on error. */
static MPT__FORCE_INLINE mpt__record *mpt__record_take(mpt_context *ctx) {
    mpt__record *record = ctx->free_record;
    if (!record) {
        if (!mpt__records_grow(ctx)) return NULL;
        record = ctx->free_record;
    }
    ctx->free_record = record->next;
#ifndef MPTRAIN_NO_FRUGAL
    record->region = NULL;
#endif
    return record;
}

/* A tensor's end lets go of the record that made it, a record's end of its inputs. */
static void mpt__tensor_settle(mpt_context *ctx, mpt__tensor *tensor);
static MPT__INLINE void mpt__tensor_drop(mpt_context *ctx, mpt__tensor *tensor);

static MPT__FORCE_INLINE void mpt__record_spare(mpt_context *ctx, mpt__record *record) {
    record->next = ctx->free_record;
    ctx->free_record = record;
}

static MPT__FORCE_INLINE void mpt__record_unsave(mpt_context *ctx, mpt__record *record) {
    int n_saved = record->n_saved;
    record->n_saved = 0;
    for (int i = 0; i < n_saved; i++) {
        mpt__tensor *tensor = record->saved[i];
        if (tensor && --tensor->saves == 0) mpt__tensor_settle(ctx, tensor);
    }
}

#ifndef MPTRAIN_NO_FRUGAL
/* The calls of a region, and of those in it, are its no more; nor is it needed. */
static void mpt__region_free(mpt_context *ctx, mpt__region *region) {
    for (mpt__record *call = region->first, *after; call; call = after) {
        after = call->after;
        if (call->inner) mpt__region_free(ctx, call->inner);
        call->region = NULL;
        if (!call->live) mpt__record_spare(ctx, call);
    }
    region->next = ctx->free_region;
    ctx->free_region = region;
}

/* One thing less needs a region. Those within another stay with it, as their calls are repeated
   with its own. */
static void mpt__region_less(mpt_context *ctx, mpt__region *region) {
    while (region && --region->live == 0) {
        mpt__region *above = region->above;
        mpt__record *head = region->head;
        mpt__record_unsave(ctx, head);
        if (!above) {
            mpt__region_free(ctx, region);
            mpt__record_spare(ctx, head);
        }
        region = above;
    }
}

/* Backward will not come to a record of a region any more. */
static void mpt__region_leave(mpt_context *ctx, mpt__record *record) {
    if (!(record->asks & MPT__ASKS_OPEN)) return;
    record->asks &= (uint8_t) ~(MPT__ASKS_OPEN | MPT__ASKS_HOLES);
    mpt__region_less(ctx, record->region);
}

/* The calls that give what is read must not be left out when their region runs again. */
static void mpt__ask_always(mpt__tensor *const *in, int n_in) {
    for (int i = 0; i < n_in; i++)
        if (in[i] && in[i]->record) in[i]->record->asks |= MPT__ASKS_ALWAYS;
}
#endif

static MPT__FORCE_INLINE void mpt__record_ends(mpt_context *ctx, mpt__record *record) {
    if (record->n_saved > 0) mpt__record_unsave(ctx, record);
    for (int i = 0; i < record->n_in; i++) {
        mpt__tensor *input = record->in[i];
        if (input && --input->nodes == 0) mpt__tensor_settle(ctx, input);
    }
    record->live = 0;
}

#ifndef MPTRAIN_NO_FRUGAL
/* The same where something asks for the record: its region may need it beyond its end. */
static MPT__NOINLINE void mpt__record_ends_asking(mpt_context *ctx, mpt__record *record) {
    if (record->asks & MPT__ASKS_ALWAYS) mpt__ask_always(record->in, record->n_in);
    mpt__record *from = record->asks & MPT__ASKS_GATED ? record->in[0]->record : NULL;
    if (from && from->gaters) from->gaters--;
    mpt__record_ends(ctx, record);
    if (record->region)
        mpt__region_leave(ctx, record);
    else
        mpt__record_spare(ctx, record);
}
#endif

/* The chain of records behind a dead tensor is released in a loop, not by recursion: it may be as
   long as a program ran without a scope. */
static MPT__NOINLINE void mpt__record_release(mpt_context *ctx, mpt__record *record) {
    if (--record->references > 0) return;
    record->next = ctx->dying_record;
    ctx->dying_record = record;
    if (ctx->releasing_records) return;
    ctx->releasing_records = true;
    while ((record = ctx->dying_record) != NULL) {
        ctx->dying_record = record->next;
#ifndef MPTRAIN_NO_FRUGAL
        if (MPT__UNLIKELY(record->asks != 0)) {
            mpt__record_ends_asking(ctx, record);
            continue;
        }
#endif
        mpt__record_ends(ctx, record);
        mpt__record_spare(ctx, record);
    }
    ctx->releasing_records = false;
}

/* After a reference went: lets the producer's record, the storage and the slot go when nothing
   needs them. A record may have saved its own output; so what keeps it alive is handles on its
   outputs and records that consume them, not saves. */
static void mpt__tensor_settle(mpt_context *ctx, mpt__tensor *tensor) {
    if (tensor->handle) return;
    if (!tensor->nodes && tensor->record) {
        mpt__record *record = tensor->record;
        tensor->record = NULL;
        tensor->saves++;
        mpt__record_release(ctx, record);
        tensor->saves--;
    }
    if (tensor->saves) return;
    if (tensor->storage) {
        mpt__storage_release(ctx, tensor->storage);
        tensor->storage = 0;
    }
    if (tensor->nodes) return;
    if (tensor->gradient) {
        mpt__tensor *gradient = tensor->gradient;
        tensor->gradient = NULL;
        mpt__tensor_drop(ctx, gradient);
    }
    tensor->generation++;
    tensor->born_before = tensor->born;
    tensor->next_free = ctx->free_tensor;
    ctx->free_tensor = tensor;
}

/* Ends the handle. */
static MPT__INLINE void mpt__tensor_drop(mpt_context *ctx, mpt__tensor *tensor) {
    if (!tensor->handle) return;
    bool needed = tensor->saves && tensor->nodes; /* by storage and slot */
    tensor->handle = 0;
    if (!needed) mpt__tensor_settle(ctx, tensor);
#ifndef MPTRAIN_NO_FRUGAL
    else if (tensor->flags & MPT__ROUNDED ||
        (tensor->saves == 1 && tensor->record && tensor->record->gate))
        ctx->shrink(ctx, tensor);
#endif
}

/* Makes a new tensor end with the innermost scope; on error it ends now. */
static MPT__FORCE_INLINE mpt__tensor *mpt__scoped_tensor(mpt_context *ctx, mpt__tensor *tensor) {
    if (ctx->scope_depth == 0) return tensor;
    if (ctx->scoped_count == ctx->scoped_capacity &&
        !mpt__room(ctx, ctx->scoped, ctx->scoped_capacity, ctx->scoped_count + 1)) {
        mpt__tensor_drop(ctx, tensor);
        return NULL;
    }
    mpt__scoped *entry = &ctx->scoped[ctx->scoped_count++];
    entry->tensor = tensor;
    entry->generation = tensor->generation;
    return tensor;
}

/* A new tensor's handle; where what was to fill it failed, the error null. */
static mpt_tensor mpt__tensor_done(mpt_context *ctx, mpt__tensor *tensor, mpt_status status) {
    if (status == MPT_OK) return mpt__handle(ctx, tensor);
    mpt__tensor_drop(ctx, tensor);
    return mpt__null(ctx);
}

/* mpt__shape_strides where a dimension is 0 or negative, or numbers are large. */
static MPT__NOINLINE int64_t mpt__odd_strides(const mpt_shape *shape, int64_t *stride) {
    int64_t step = 1;
    bool empty = false;
    for (int i = shape->rank - 1; i >= 0; i--) {
        int64_t dim = shape->dim[i];
        stride[i] = step;
        if (dim < 0) return -1;
        if (dim == 0) empty = true;
        if (dim > 0 && step > INT64_MAX / dim) return -1;
        if (dim > 0) step *= dim;
    }
    return empty ? 0 : step;
}

/* The elements of a shape, and its contiguous strides; -1 if it has a negative dimension or
   overflows. Dimensions of size 0 count as 1 in strides, which must not overflow either. */
static MPT__FORCE_INLINE int64_t mpt__shape_strides(const mpt_shape *shape, int64_t *stride) {
    uint64_t step = 1, bits = 0; /* of all factors: below 2^31 nothing can go wrong */
    for (int i = shape->rank - 1; i >= 0; i--) {
        uint64_t dim = (uint64_t)shape->dim[i];
        stride[i] = (int64_t)step;
        bits |= (dim - 1) | step;
        step *= dim;
    }
    return (bits >> 31) == 0 ? (int64_t)step : mpt__odd_strides(shape, stride);
}

static int64_t mpt__shape_numel(const mpt_shape *shape) {
    int64_t stride[MPT_MAX_RANK];
    return mpt__shape_strides(shape, stride);
}

/* The free slot that mpt__tensor_over takes; NULL on error. */
static MPT__FORCE_INLINE mpt__tensor *mpt__tensor_next(mpt_context *ctx) {
    return ctx->free_tensor || mpt__slots_grow(ctx) ? ctx->free_tensor : NULL;
}

/* Makes that slot a tensor over a storage, outside all scopes; its strides are the caller's to set.
   The caller's reference to the storage becomes the tensor's. Nothing refers to a free slot, nor it
   to anything: that need not be set. */
static MPT__FORCE_INLINE mpt__tensor *mpt__tensor_over(mpt_context *ctx, mpt__tensor *tensor,
    uint32_t storage, mpt_dtype dtype, const mpt_shape *shape, int64_t offset) {
    ctx->free_tensor = tensor->next_free;
    tensor->storage = storage;
    tensor->handle = 1;
    tensor->dtype = (uint8_t)dtype;
    tensor->flags = ctx->inference_depth ? MPT__INFERENCE : 0;
    tensor->born = ctx->now.step;
    tensor->offset = offset;
    mpt__shape_copy(&tensor->shape, shape);
    return tensor;
}

/* A view, in no table, of elements of a storage in a row. */
static mpt__tensor mpt__view_on(
    uint32_t storage, mpt_dtype dtype, const mpt_shape *shape, int64_t offset) {
    mpt__tensor view;
    view.storage = storage;
    view.dtype = (uint8_t)dtype;
    view.offset = offset;
    view.shape = *shape;
    mpt__shape_strides(shape, view.stride);
    return view;
}

/* A new tensor that shows what `view` does, which may be in no table; outside all scopes. */
static mpt__tensor *mpt__tensor_outside(mpt_context *ctx, const mpt__tensor *view, int flags) {
    mpt__tensor *tensor = mpt__tensor_next(ctx);
    if (!tensor) return NULL;
    mpt__storage_retain(ctx, view->storage);
    mpt__tensor_over(
        ctx, tensor, view->storage, (mpt_dtype)view->dtype, &view->shape, view->offset);
    mpt__copy_dims(tensor->stride, view->stride, view->shape.rank);
    tensor->flags = (uint8_t)flags;
    return tensor;
}

/* The same, in the current scope and mode. */
static mpt__tensor *mpt__tensor_alias(mpt_context *ctx, const mpt__tensor *view) {
    int flags = ctx->inference_depth ? MPT__INFERENCE : 0;
    mpt__tensor *tensor = mpt__tensor_outside(ctx, view, flags);
    return tensor ? mpt__scoped_tensor(ctx, tensor) : NULL;
}

/* Bytes and contiguous strides of a new tensor; -1 with an error recorded if the shape makes no
   sense or overflows. */
static MPT__FORCE_INLINE int64_t mpt__checked_strides(
    mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape, int64_t *stride) {
    if (dtype <= MPT_DTYPE_NONE || dtype >= MPT_DTYPE_COUNT) {
        mpt__error(ctx, ARGUMENT, "dtype %d is none of mpt_dtype", (int)dtype);
        return -1;
    }
    if (shape->rank < 0 || shape->rank > MPT_MAX_RANK) {
        mpt__error(ctx, SHAPE, "rank %d is not in 0..%d", shape->rank, MPT_MAX_RANK);
        return -1;
    }
    int64_t numel = mpt__shape_strides(shape, stride);
    if (numel < 0 || numel > INT64_MAX / 16) {
        mpt__error(
            ctx, SHAPE, "shape %S has a negative dimension or more than 2^59 elements", shape);
        return -1;
    }
    return numel * (int64_t)mpt__dtype_info[dtype].bytes;
}

static int64_t mpt__checked_bytes(mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape) {
    int64_t stride[MPT_MAX_RANK];
    return mpt__checked_strides(ctx, dtype, shape, stride);
}

/* A new contiguous tensor with its own storage, in the current scope or outside all of them. NULL
   on error. In line for the outputs of ops alone. */
static MPT__FORCE_INLINE mpt__tensor *mpt__tensor_make(
    mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape, mpt_memory_kind kind, bool scoped) {
    mpt__tensor *tensor = mpt__tensor_next(ctx);
    int64_t bytes = tensor ? mpt__checked_strides(ctx, dtype, shape, tensor->stride) : -1;
    uint32_t storage = bytes < 0 ? 0 : mpt__idle_take(ctx, bytes, kind);
    if (!storage) return NULL;
    mpt__storage_start(ctx, storage, bytes, kind, MPT__FROM_POOL);
    mpt__tensor_over(ctx, tensor, storage, dtype, shape, 0);
    return scoped ? mpt__scoped_tensor(ctx, tensor) : tensor;
}

static MPT__NOINLINE mpt__tensor *mpt__tensor_made(
    mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape, mpt_memory_kind kind, bool scoped) {
    return mpt__tensor_make(ctx, dtype, shape, kind, scoped);
}

static mpt__tensor *mpt__tensor_new(
    mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape, mpt_memory_kind kind) {
    return mpt__tensor_made(ctx, dtype, shape, kind, true);
}

static mpt__tensor *mpt__tensor_unscoped(
    mpt_context *ctx, mpt_dtype dtype, const mpt_shape *shape, mpt_memory_kind kind) {
    return mpt__tensor_made(ctx, dtype, shape, kind, false);
}

/* Why a handle is not good, for the message. */
static MPT__COLD void mpt__stale(mpt_context *ctx, mpt_tensor handle, const char *argument) {
    if (handle.slot == 0) {
        mpt__error(ctx, HANDLE, "%s is a null handle", argument);
        return;
    }
    if (handle.context != ctx) {
        mpt__error(ctx, HANDLE,
            "%s belongs to another context; mpt_read it there and mpt_from it here", argument);
        return;
    }
    int64_t made = -1;
    if (handle.slot < (uint64_t)ctx->tensor_count) {
        const mpt__tensor *tensor = mpt__slot(ctx, handle.slot);
        if (tensor->generation == handle.generation) made = tensor->born;
        if (tensor->generation == handle.generation + 1) made = tensor->born_before;
    }
    if (made >= 0) {
        mpt__error(ctx, HANDLE,
            "%s: tensor made in step %lld used in step %lld; it ended with its step, scope, "
            "mpt_release or backward: mpt_keep makes a handle that stays",
            argument, made, ctx->now.step);
        return;
    }
    mpt__error(ctx, HANDLE, "%s: stale handle of a tensor that is gone; see mpt_keep", argument);
}

/* The live tensor of a handle, else NULL. */
static MPT__FORCE_INLINE mpt__tensor *mpt__live(mpt_context *ctx, mpt_tensor handle) {
    if (handle.context != ctx || handle.slot >= (uint64_t)ctx->tensor_count) return NULL;
    mpt__tensor *tensor = mpt__slot(ctx, handle.slot); /* slot 0 has no handle */
    return tensor->generation == handle.generation && tensor->handle ? tensor : NULL;
}

/* The same, or an error recorded ("argument 1: tensor made in step 41 used in step 43 .."). */
static mpt__tensor *mpt__at(mpt_context *ctx, mpt_tensor handle, const char *argument) {
    mpt__tensor *tensor = mpt__live(ctx, handle);
    if (!tensor) mpt__stale(ctx, handle, argument);
    return tensor;
}

/* Begins a public call on one tensor; NULL: it ends here. */
static mpt__tensor *mpt__enter_at(mpt_tensor handle, const char *op, const char *argument) {
    return mpt__enter(handle.context, op) ? mpt__at(handle.context, handle, argument) : NULL;
}

static int64_t mpt__tensor_numel(const mpt__tensor *tensor) {
    int64_t numel = 1;
    for (int i = 0; i < tensor->shape.rank; i++) numel *= tensor->shape.dim[i];
    return numel;
}

static bool mpt__tensor_contiguous(const mpt__tensor *tensor) {
    int64_t step = 1;
    for (int i = tensor->shape.rank - 1; i >= 0; i--) {
        if (tensor->shape.dim[i] == 0) return true;
        if (tensor->shape.dim[i] != 1 && tensor->stride[i] != step) return false;
        step *= tensor->shape.dim[i];
    }
    return true;
}

/* Whether [N, C, H, W] has the strides of a dense [N, H, W, C], or of a part of one: what comes of
   it shall lie so. One element for each N lies either way and counts as contiguous. */
static MPT__NOINLINE bool mpt__channels_last(const mpt__tensor *tensor) {
    const int64_t *step = tensor->stride, *size = tensor->shape.dim;
    return step[1] == 1 && step[3] >= size[1] && step[2] >= step[3] * size[3] &&
        step[0] >= step[2] * size[2] && step[0] > 1;
}

static void mpt__channels_last_strides(mpt__tensor *tensor) {
    int64_t step = tensor->shape.dim[1];
    tensor->stride[1] = 1;
    for (int i = tensor->shape.rank - 1; i > 1; step *= tensor->shape.dim[i--])
        tensor->stride[i] = step;
    tensor->stride[0] = step;
}

static bool mpt__same_shape(const mpt__tensor *a, const mpt__tensor *b) {
    if (a->shape.rank != b->shape.rank) return false;
    for (int i = 0; i < a->shape.rank; i++)
        if (a->shape.dim[i] != b->shape.dim[i]) return false;
    return true;
}

/* Negative numbers count from the end; -1 with an error recorded if out of range. */
static int mpt__dimension(mpt_context *ctx, int dim, int rank) {
    int counted = dim < 0 ? dim + rank : dim;
    if (counted >= 0 && counted < rank) return counted;
    mpt__error(ctx, ARGUMENT, "dimension %d is out of range for a tensor of rank %d", dim, rank);
    return -1;
}

/* ==== Device scalars ==== */

/* A slot; 0 with an error recorded when none is left. */
static uint16_t mpt__scalar_take(mpt_context *ctx) {
    for (int i = MPT__SLOT_FIRST_FREE; i < MPT__SLOT_COUNT; i++) {
        if (!ctx->slot_used[i]) {
            ctx->slot_used[i] = 1;
            return (uint16_t)i;
        }
    }
    mpt__error(ctx, MEMORY,
        "all %d device scalars are in use; destroy optimizers or scalers",
        (int)MPT__SLOT_COUNT);
    return 0;
}

static void mpt__scalar_free(mpt_context *ctx, uint16_t slot) {
    if (slot) ctx->slot_used[slot] = 0;
}

static void mpt__scalar_set(
    mpt_context *ctx, uint16_t slot, bool integer, double real, int64_t count) {
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_SCALAR_SET);
    launch->slot[0] = slot;
    launch->imm[0] = real;
    launch->index[0] = integer;
    launch->index[1] = count;
    if (mpt__submit(ctx, launch) != MPT_OK || ctx->backend.synchronous) return;
    mpt__scalar *seen = &ctx->scalars[slot]; /* until the next look at the device */
    seen[3 * MPT__SLOT_COUNT].i = ctx->snapshots;
    if (integer)
        seen->i = count;
    else
        seen->f = real;
}

static void mpt__scalar_set_f(mpt_context *ctx, uint16_t slot, double value) {
    mpt__scalar_set(ctx, slot, false, value, 0);
}

static void mpt__scalar_set_i(mpt_context *ctx, uint16_t slot, int64_t value) {
    mpt__scalar_set(ctx, slot, true, 0, value);
}

static uint16_t mpt__scalar_new_f(mpt_context *ctx, double value) {
    uint16_t slot = mpt__scalar_take(ctx);
    if (slot) mpt__scalar_set_f(ctx, slot, value);
    return slot;
}

static uint16_t mpt__scalar_new_i(mpt_context *ctx, int64_t value) {
    uint16_t slot = mpt__scalar_take(ctx);
    if (slot) mpt__scalar_set_i(ctx, slot, value);
    return slot;
}

static double mpt__scalar_get_f(mpt_context *ctx, uint16_t slot) {
    mpt__wait(ctx);
    return ctx->scalars[slot].f;
}

static int64_t mpt__scalar_get_i(mpt_context *ctx, uint16_t slot) {
    mpt__wait(ctx);
    return ctx->scalars[slot].i;
}

/* ==== Objects ==== */

static const char *const mpt__object_names[MPT__OBJECT_KINDS] = {"module", "optimizer", "scaler",
    "schedule", "dataset", "loader", "tokenizer", "recording", "captured step", "op", "average",
    "graph"};

/* A new row for `object`, owned by the table from here on; 0 on error. */
static uint32_t mpt__object_new(
    mpt_context *ctx, mpt__object_kind kind, void *object, uint32_t *generation) {
    mpt__object_table *table = &ctx->objects[kind];
    uint32_t slot = table->first_free;
    if (slot) {
        table->first_free = table->rows[slot].next_free;
    } else {
        if (table->count == 0) table->count = 1; /* row 0 means none */
        if (!mpt__room(ctx, table->rows, table->capacity, table->count + 1)) return 0;
        slot = (uint32_t)table->count++;
        table->rows[slot].generation = 1;
    }
    table->rows[slot].object = object;
    table->rows[slot].bytes = 0;
    *generation = table->rows[slot].generation;
    return slot;
}

static void *mpt__object_slot(mpt_context *ctx, mpt__object_kind kind, uint32_t slot) {
    return ctx->objects[kind].rows[slot].object;
}

/* The object behind row *i; NULL: that was the last one. */
static MPT__UNUSED void *mpt__object_next(
    const mpt_context *ctx, mpt__object_kind kind, int64_t *i) {
    const mpt__object_table *table = &ctx->objects[kind];
    while (++*i < table->count)
        if (table->rows[*i].object) return table->rows[*i].object;
    return NULL;
}

/* Each object of a kind: `one`, of type T, in row one##_at. */
#define MPT__EACH_OBJECT(T, one, ctx, kind) \
    T *one; \
    for (int64_t one##_at = 0; (one = (T *)mpt__object_next(ctx, kind, &one##_at)) != NULL;)

static MPT__COLD void *mpt__object_missing(
    mpt_context *ctx, mpt__object_kind kind, const mpt_context *owner, uint32_t slot) {
    mpt__error(ctx, HANDLE, "the %s %s", mpt__object_names[kind],
        owner && owner != ctx ? "belongs to another context"
            : slot == 0       ? "is a null handle"
                              : "was destroyed or never made");
    return NULL;
}

/* The object of a handle; NULL with an error recorded if there is none. */
static MPT__FORCE_INLINE void *mpt__object_at(mpt_context *ctx, mpt__object_kind kind,
    const mpt_context *owner, uint32_t slot, uint32_t generation) {
    const mpt__object_table *table = &ctx->objects[kind];
    if (owner == ctx && slot > 0 && (int64_t)slot < table->count &&
        table->rows[slot].generation == generation && table->rows[slot].object)
        return table->rows[slot].object;
    return mpt__object_missing(ctx, kind, owner, slot);
}

static void mpt__object_free(mpt_context *ctx, mpt__object_kind kind, uint32_t slot) {
    mpt__object_table *table = &ctx->objects[kind];
    mpt__object *row = &table->rows[slot];
    void *object = row->object;
    size_t bytes = row->bytes;
    row->object = NULL;
    row->generation++;
    row->next_free = table->first_free;
    table->first_free = slot;
    if (object && table->destroy) table->destroy(ctx, object);
    if (bytes) mpt__host_free(ctx, object, bytes);
}

/* Where an object stands in the table of its kind: its first member. */
typedef struct {
    uint32_t slot, generation;
} mpt__id;

/* A zeroed object with a row in the table of its kind, which frees it. NULL on error. */
static void *mpt__object_make(mpt_context *ctx, mpt__object_kind kind, size_t bytes) {
    mpt__id *id = (mpt__id *)mpt__host_new(ctx, bytes);
    if (!id) return NULL;
    id->slot = mpt__object_new(ctx, kind, id, &id->generation);
    if (!id->slot) {
        mpt__host_free(ctx, id, bytes);
        return NULL;
    }
    ctx->objects[kind].rows[id->slot].bytes = bytes;
    return id;
}

/* Of an object, or of NULL: of the error null. */
static mpt__id mpt__id_of(const void *object) {
    mpt__id none = {0, 0};
    return object ? *(const mpt__id *)object : none;
}

static MPT__FORCE_INLINE void *mpt__object_enter(
    mpt_context *ctx, mpt__object_kind kind, uint32_t slot, uint32_t generation, const char *name) {
    if (!mpt__enter(ctx, name)) return NULL;
    return mpt__object_at(ctx, kind, ctx, slot, generation);
}

/* For a kind of object: _handle gives the handle of an object, the error null for NULL; _enter
   begins a public call on an object, which ends where it gives NULL. */
#define MPT__HANDLES(kind, KIND) \
    static mpt_##kind mpt__##kind##_handle(mpt_context *ctx, const mpt__##kind *object) { \
        mpt_##kind handle = {ctx, mpt__id_of(object).slot, mpt__id_of(object).generation}; \
        return handle; \
    } \
    static MPT__INLINE mpt__##kind *mpt__##kind##_enter(mpt_##kind h, const char *name) { \
        return (mpt__##kind *)mpt__object_enter(h.context, KIND, h.slot, h.generation, name); \
    }
/* The object of a handle that is not what a call is on; NULL with an error recorded if there is
   none. */
#define MPT__HANDLE_AT(kind, KIND) \
    static mpt__##kind *mpt__##kind##_at(mpt_context *ctx, mpt_##kind h) { \
        return (mpt__##kind *)mpt__object_at(ctx, KIND, h.context, h.slot, h.generation); \
    }

/* ==== Scopes and steps ==== */

/* Ends the handles of tensors pushed since `start`, the youngest first. */
static void mpt__scope_drop(mpt_context *ctx, int64_t start) {
    while (ctx->scoped_count > start) {
        mpt__scoped entry = ctx->scoped[--ctx->scoped_count];
        if (entry.tensor->generation == entry.generation && !(entry.tensor->flags & MPT__KEPT))
            mpt__tensor_drop(ctx, entry.tensor);
    }
}

static MPT__FORCE_INLINE mpt_status mpt__scope_open(mpt_context *ctx) {
    if (ctx->scope_depth == MPT__MAX_REGIONS)
        return mpt__error(
            ctx, STATE, "%d scopes are open; close some with mpt_scope_end", (int)MPT__MAX_REGIONS);
    ctx->scope_start[ctx->scope_depth++] = ctx->scoped_count;
    return MPT_OK;
}

/* Puts a tensor of the innermost scope, if it is, behind what that has so far of those it keeps. */
static void mpt__scope_keep(mpt_context *ctx, const mpt__tensor *tensor, int64_t *kept) {
    for (int64_t at = *kept; at < ctx->scoped_count; at++) {
        mpt__scoped entry = ctx->scoped[at];
        if (entry.tensor != tensor || entry.generation != tensor->generation) continue;
        ctx->scoped[at] = ctx->scoped[*kept];
        ctx->scoped[(*kept)++] = entry;
        break;
    }
}

int64_t mpt_step_number(mpt_context *ctx) { return ctx ? ctx->now.step : 0; }

#endif
