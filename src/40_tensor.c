/* ---------------------------------------------------------------------------------------------
 * 40_tensor.c: storages, the pool, tensors, scopes, launches, device scalars, objects.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__40_TENSOR_INCLUDED
#define MPT__40_TENSOR_INCLUDED

#include "40_context.h"

/* ==== Calls ==== */

static bool mpt__enter(mpt_context *context, const char *op) {
    if (!context) return false;
    context->base.call++;
    if (context->base.status != MPT_OK) return false;
    context->base.op = op;
    return true;
}

/* The slow part of mpt__enter, for calls that begin something: a system call is too dear per op. */
static bool mpt__enter_checked(mpt_context *context, const char *op) {
    if (!mpt__enter(context, op)) return false;
    if (context->base.process == mpt__process_id()) return true;
    mpt__error(context, MPT_ERROR_THREAD,
               "this context was made before fork; make a new one in the child with mpt_create");
    return false;
}

static mpt_tensor mpt__null(mpt_context *context) {
    mpt_tensor null;
    null.context = context, null.slot = 0, null.generation = 0;
    return null;
}

static void *mpt__host_new(mpt_context *context, size_t bytes) {
    return mpt__allocate(&context->base, bytes, MPT_MEMORY_HOST);
}

/* An array that may be longer than memory can be: NULL with an error recorded. */
static void *mpt__host_array(mpt_context *context, int64_t count, size_t size) {
    if ((uint64_t)count <= (uint64_t)PTRDIFF_MAX / size)
        return mpt__host_new(context, (size_t)count * size);
    mpt__fail_memory(&context->base, (size_t)PTRDIFF_MAX, MPT_MEMORY_HOST);
    return NULL;
}

static void mpt__host_free(mpt_context *context, void *pointer, size_t bytes) {
    if (pointer) mpt__release(&context->base, pointer, bytes, MPT_MEMORY_HOST);
}

static char *mpt__host_text(mpt_context *context, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = (char *)mpt__host_new(context, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

static void mpt__host_text_free(mpt_context *context, char *text) {
    if (text) mpt__host_free(context, text, strlen(text) + 1);
}

/* ==== The pool ====
 *
 * Size classes: multiples of 256 bytes up to 2 KB, then eight steps per doubling, so that rounding
 * wastes at most an eighth. Idle memory serves its own class and requests down to a quarter of its
 * size: batches of varying size then hold at most 1.17 times what lives at the peak of a step (1.38
 * where it is down to half). */

enum { MPT__POOL_GRAIN = 256, MPT__POOL_REACH = 16 };

static int mpt__size_class(int64_t bytes) {
    int64_t units = (bytes + MPT__POOL_GRAIN - 1) / MPT__POOL_GRAIN;
    if (units < 1) units = 1;
    if (units <= 8) return (int)units - 1;
    int log = 3;
    while (((units - 1) >> (log + 1)) != 0) log++;
    return 8 * (log - 2) + (int)((units - 1) >> (log - 3)) - 8;
}

static int64_t mpt__class_bytes(int size_class) {
    if (size_class < 8) return (int64_t)(size_class + 1) * MPT__POOL_GRAIN;
    int log = size_class / 8 + 2;
    return ((int64_t)(size_class % 8 + 9) << (log - 3)) * MPT__POOL_GRAIN;
}

static void mpt__pool_trim(mpt_context *context);

static void *mpt__device_try(mpt_context *context, int64_t bytes) {
    if ((uint64_t)bytes > (uint64_t)PTRDIFF_MAX) return NULL; /* of 32 bits */
    if (!context->backend.allocate) return mpt__allocate_raw(&context->base, (size_t)bytes);
    void *pointer = context->backend.allocate(context->backend.self, (size_t)bytes);
    if (pointer) {
        context->base.memory.held += bytes;
        context->base.memory.allocations++;
    }
    return pointer;
}

/* New memory; when there is none, idle memory goes back first. */
static void *mpt__device_new(mpt_context *context, int64_t bytes, mpt_memory_kind kind) {
    void *pointer = mpt__device_try(context, bytes);
    if (!pointer) {
        mpt__pool_trim(context);
        pointer = mpt__device_try(context, bytes);
    }
    if (!pointer) {
        bool fits = (uint64_t)bytes <= (uint64_t)PTRDIFF_MAX;
        mpt__fail_memory(&context->base, fits ? (size_t)bytes : (size_t)PTRDIFF_MAX, kind);
    }
    return pointer;
}

static void mpt__device_free(mpt_context *context, void *pointer, int64_t bytes) {
    if (!context->backend.release) {
        mpt__release_raw(&context->base, pointer, (size_t)bytes);
        return;
    }
    context->backend.release(context->backend.self, pointer, (size_t)bytes);
    context->base.memory.held -= bytes;
    context->base.memory.releases++;
}

static void mpt__workspace_free(mpt_context *context) {
    if (context->workspace)
        mpt__device_free(context, context->workspace, context->workspace_bytes);
    context->workspace = NULL;
    context->workspace_bytes = 0;
}

/* At least `bytes` of scratch memory; NULL with an error recorded. */
static void *mpt__workspace(mpt_context *context, int64_t bytes) {
    if (bytes <= context->workspace_bytes) return context->workspace;
    mpt__workspace_free(context);
    int64_t held = mpt__class_bytes(mpt__size_class(bytes));
    context->workspace = mpt__device_new(context, held, MPT_MEMORY_WORKSPACE);
    if (context->workspace) context->workspace_bytes = held;
    return context->workspace;
}

static void mpt__pool_trim(mpt_context *context) {
    mpt__workspace_free(context);
    for (int i = 0; i < MPT__SIZE_CLASSES; i++) {
        mpt__free_list *list = &context->pool[i];
        while (list->count > 0) {
            mpt__device_free(context, list->pointers[--list->count], mpt__class_bytes(i));
        }
    }
}

static void mpt__free_list_release(mpt_context *context, mpt__free_list *list) {
    if (!list->pointers) return;
    mpt__release(&context->base, list->pointers, (size_t)list->capacity * sizeof(void *),
                 MPT_MEMORY_HOST);
    list->pointers = NULL;
}

/* Memory for `bytes`: idle memory of this class or one little above, else new. */
static void *mpt__pool_take(mpt_context *context, int64_t bytes, mpt_memory_kind kind,
                            int *size_class) {
    int wanted = mpt__size_class(bytes);
    for (int i = wanted; i <= wanted + MPT__POOL_REACH && i < MPT__SIZE_CLASSES; i++) {
        mpt__free_list *list = &context->pool[i];
        if (list->count > 0) {
            *size_class = i;
            return list->pointers[--list->count];
        }
    }
    *size_class = wanted;
    return mpt__device_new(context, mpt__class_bytes(wanted), kind);
}

static void mpt__pool_give(mpt_context *context, void *pointer, int size_class) {
    mpt__free_list *list = &context->pool[size_class];
    if (list->count < list->capacity) {
        list->pointers[list->count++] = pointer;
        return;
    }
    int64_t capacity = list->capacity ? list->capacity * 2 : 16;
    size_t bytes = (size_t)capacity * sizeof(void *);
    void **pointers = (void **)mpt__allocate_raw(&context->base, bytes);
    if (!pointers) { /* no room to remember it, which is no error: it goes back */
        mpt__device_free(context, pointer, mpt__class_bytes(size_class));
        return;
    }
    mpt__account(&context->base, MPT_MEMORY_HOST, (int64_t)bytes);
    if (list->count > 0) memcpy(pointers, list->pointers, (size_t)list->count * sizeof(void *));
    mpt__free_list_release(context, list);
    list->pointers = pointers;
    list->capacity = capacity;
    list->pointers[list->count++] = pointer;
}

/* ==== Storages ==== */

static uint32_t mpt__storage_row(mpt_context *context) {
    if (context->free_storage) {
        uint32_t id = context->free_storage;
        context->free_storage = context->storages[id].next_free;
        return id;
    }
    void *rows = context->storages;
    bool ok = mpt__grow(&context->base, &rows, &context->storage_capacity,
                        context->storage_count + 1, sizeof(mpt__storage), MPT_MEMORY_HOST);
    context->storages = (mpt__storage *)rows;
    if (!ok) return 0;
    void *data = context->data;
    ok = mpt__grow(&context->base, &data, &context->data_capacity, context->storage_count + 1,
                   sizeof(void *), MPT_MEMORY_HOST);
    context->data = (void **)data;
    if (!ok) return 0;
    return (uint32_t)context->storage_count++;
}

static uint32_t mpt__storage_new(mpt_context *context, int64_t bytes, mpt_memory_kind kind,
                                 mpt__storage_source source, bool zero) {
    uint32_t id = mpt__storage_row(context);
    if (!id) return 0;
    int size_class = 0;
    int64_t held = bytes > 0 ? bytes : 1;
    void *data;
    if (source == MPT__FROM_POOL) {
        data = mpt__pool_take(context, held, kind, &size_class);
        held = mpt__class_bytes(size_class);
    } else {
        data = mpt__device_new(context, held, kind);
    }
    mpt__storage *storage = &context->storages[id];
    memset(storage, 0, sizeof *storage);
    if (!data) {
        storage->next_free = context->free_storage;
        context->free_storage = id;
        return 0;
    }
    context->data[id] = data;
    storage->bytes = bytes;
    storage->held = held;
    storage->references = 1;
    storage->source = (uint8_t)source;
    storage->kind = (uint8_t)kind;
    storage->size_class = (uint16_t)size_class;
    storage->live = 1;
    mpt__account(&context->base, kind, held);
    if (zero && bytes > 0) {
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_FILL);
        mpt__operand_on(launch, 0, id, MPT_U8, 0, bytes, MPT__WRITE);
        if (mpt__submit(context, launch) != MPT_OK) {
            mpt__storage_release(context, id);
            return 0;
        }
    }
    return id;
}

static uint32_t mpt__storage_wrap(mpt_context *context, void *data, int64_t bytes) {
    uint32_t id = mpt__storage_row(context);
    if (!id) return 0;
    mpt__storage *storage = &context->storages[id];
    memset(storage, 0, sizeof *storage);
    context->data[id] = data;
    storage->bytes = bytes;
    storage->references = 1;
    storage->source = MPT__BORROWED;
    storage->live = 1;
    return id;
}

static void mpt__storage_retain(mpt_context *context, uint32_t storage) {
    context->storages[storage].references++;
}

static void mpt__storage_release(mpt_context *context, uint32_t id) {
    mpt__storage *storage = &context->storages[id];
    if (--storage->references > 0) return;
    if (storage->source != MPT__BORROWED) {
        mpt__account(&context->base, (mpt_memory_kind)storage->kind, -storage->held);
        if (storage->source == MPT__FROM_POOL) {
            mpt__pool_give(context, context->data[id], storage->size_class);
        } else {
            mpt__device_free(context, context->data[id], storage->held);
        }
    }
    storage->live = 0;
    context->data[id] = NULL;
    if (context->recorder) { /* a recording names it: the id stays its own until the end */
        mpt__recorder_retire(context, id);
        return;
    }
    storage->next_free = context->free_storage;
    context->free_storage = id;
}

static mpt_status mpt__upload(mpt_context *context, uint32_t storage, int64_t byte_offset,
                              const void *source, int64_t bytes) {
    if (bytes == 0) return MPT_OK;
    mpt__backend *backend = &context->backend;
    mpt_status status = backend->upload(backend->self, (char *)context->data[storage] + byte_offset,
                                        source, (size_t)bytes);
    if (status != MPT_OK) return mpt__error(context, status, "%s", backend->error);
    context->storages[storage].version++;
    return MPT_OK;
}

static mpt_status mpt__download(mpt_context *context, void *destination, uint32_t storage,
                                int64_t byte_offset, int64_t bytes) {
    if (bytes == 0) return MPT_OK;
    mpt__backend *backend = &context->backend;
    mpt_status status = backend->download(
        backend->self, destination, (char *)context->data[storage] + byte_offset, (size_t)bytes);
    if (status != MPT_OK) return mpt__error(context, status, "%s", backend->error);
    return mpt__check_device(context);
}

/* ==== Tensors ==== */

static mpt__tensor *mpt__slot(mpt_context *context, uint32_t slot) {
    return &context->tensor_chunks[slot / MPT__TENSOR_CHUNK][slot % MPT__TENSOR_CHUNK];
}

static mpt_tensor mpt__handle(mpt_context *context, const mpt__tensor *tensor) {
    mpt_tensor handle = mpt__null(context);
    if (!tensor) return handle;
    handle.slot = tensor->slot;
    handle.generation = tensor->generation;
    return handle;
}

/* A free slot, not yet live. Slots never move, so pointers to tensors stay good. */
static mpt__tensor *mpt__slot_take(mpt_context *context) {
    if (context->free_tensor) {
        mpt__tensor *tensor = mpt__slot(context, context->free_tensor);
        context->free_tensor = tensor->next_free;
        return tensor;
    }
    if (context->tensor_count == context->tensor_chunk_count * MPT__TENSOR_CHUNK) {
        void *chunks = context->tensor_chunks;
        bool ok =
            mpt__grow(&context->base, &chunks, &context->tensor_chunk_capacity,
                      context->tensor_chunk_count + 1, sizeof(mpt__tensor *), MPT_MEMORY_HOST);
        context->tensor_chunks = (mpt__tensor **)chunks;
        if (!ok) return NULL;
        mpt__tensor *chunk =
            (mpt__tensor *)mpt__host_new(context, MPT__TENSOR_CHUNK * sizeof(mpt__tensor));
        if (!chunk) return NULL;
        context->tensor_chunks[context->tensor_chunk_count++] = chunk;
        if (context->tensor_count == 0) context->tensor_count = 1; /* slot 0 means none */
    }
    uint32_t slot = (uint32_t)context->tensor_count++;
    mpt__tensor *tensor = mpt__slot(context, slot);
    tensor->slot = slot;
    tensor->generation = 1;
    return tensor;
}

static void mpt__slot_give(mpt_context *context, mpt__tensor *tensor) {
    tensor->generation++;
    tensor->born_before = tensor->born;
    tensor->next_free = context->free_tensor;
    context->free_tensor = tensor->slot;
}

/* After a reference went: lets the producer's record, the storage and the slot go when nothing
   needs them. A record may have saved its own output; so what keeps it alive is handles on its
   outputs and records that consume them, not saves. */
static void mpt__tensor_settle(mpt_context *context, mpt__tensor *tensor) {
    if (!tensor->handle && !tensor->nodes && tensor->record) {
        uint32_t record = tensor->record - 1;
        tensor->record = 0;
        tensor->saves++;
        mpt__record_release(context, record);
        tensor->saves--;
    }
    if (tensor->handle || tensor->saves) return;
    if (tensor->storage) {
        uint32_t storage = tensor->storage;
        tensor->storage = 0;
        mpt__storage_release(context, storage);
    }
    if (tensor->gradient && !tensor->nodes) {
        mpt__tensor *gradient = mpt__slot(context, tensor->gradient);
        tensor->gradient = 0;
        mpt__tensor_drop(context, gradient);
    }
    if (!tensor->nodes) mpt__slot_give(context, tensor);
}

static void mpt__tensor_drop(mpt_context *context, mpt__tensor *tensor) {
    if (!tensor->handle) return;
    tensor->handle = 0;
    mpt__tensor_settle(context, tensor);
}

static void mpt__tensor_save(mpt__tensor *tensor) { tensor->saves++; }

static void mpt__tensor_unsave(mpt_context *context, mpt__tensor *tensor) {
    tensor->saves--;
    mpt__tensor_settle(context, tensor);
}

static void mpt__tensor_unnode(mpt_context *context, mpt__tensor *tensor) {
    tensor->nodes--;
    mpt__tensor_settle(context, tensor);
}

static bool mpt__scope_push(mpt_context *context, const mpt__tensor *tensor) {
    if (context->scope_depth == 0) return true;
    if (context->scoped_count == context->scoped_capacity) {
        void *scoped = context->scoped;
        bool ok = mpt__grow(&context->base, &scoped, &context->scoped_capacity,
                            context->scoped_count + 1, sizeof *context->scoped, MPT_MEMORY_HOST);
        context->scoped = (mpt__scoped *)scoped;
        if (!ok) return false;
    }
    context->scoped[context->scoped_count].slot = tensor->slot;
    context->scoped[context->scoped_count++].generation = tensor->generation;
    return true;
}

/* mpt__tensor_on, but the caller's reference to the storage becomes the tensor's; on error it is
   released. */
static mpt__tensor *mpt__tensor_over(mpt_context *context, uint32_t storage, mpt_dtype dtype,
                                     const mpt_shape *shape, const int64_t *stride,
                                     int64_t offset) {
    mpt__tensor *tensor = mpt__slot_take(context);
    if (!tensor) {
        mpt__storage_release(context, storage);
        return NULL;
    }
    tensor->storage = storage;
    tensor->storage_version = 0;
    tensor->record = tensor->parameter = tensor->gradient = 0;
    tensor->handle = 1;
    tensor->saves = tensor->nodes = 0;
    tensor->dtype = (uint8_t)dtype;
    tensor->rank = (uint8_t)shape->rank;
    tensor->flags = context->inference_depth ? MPT__INFERENCE : 0;
    tensor->output = 0;
    tensor->born = context->now.step;
    tensor->offset = offset;
    int64_t step = 1;
    for (int i = shape->rank - 1; i >= 0; i--) {
        tensor->shape[i] = shape->dim[i];
        tensor->stride[i] = stride ? stride[i] : step;
        step *= shape->dim[i] > 0 ? shape->dim[i] : 1;
    }
    if (!mpt__scope_push(context, tensor)) {
        mpt__tensor_drop(context, tensor);
        return NULL;
    }
    return tensor;
}

static mpt__tensor *mpt__tensor_on(mpt_context *context, uint32_t storage, mpt_dtype dtype,
                                   const mpt_shape *shape, const int64_t *stride, int64_t offset) {
    mpt__storage_retain(context, storage);
    return mpt__tensor_over(context, storage, dtype, shape, stride, offset);
}

/* -1 with an error recorded if the shape makes no sense or overflows. */
static int64_t mpt__checked_bytes(mpt_context *context, mpt_dtype dtype, const mpt_shape *shape) {
    if (dtype <= MPT_DTYPE_NONE || dtype >= MPT_DTYPE_COUNT) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "dtype %d is none of mpt_dtype", (int)dtype);
        return -1;
    }
    if (shape->rank < 0 || shape->rank > MPT_MAX_RANK) {
        mpt__error(context, MPT_ERROR_SHAPE, "rank %d is not in 0..%d", shape->rank, MPT_MAX_RANK);
        return -1;
    }
    int64_t numel = mpt__shape_numel(shape);
    if (numel < 0 || numel > INT64_MAX / 16) {
        mpt__error(context, MPT_ERROR_SHAPE,
                   "shape %S has a negative dimension or more than 2^59 elements", shape);
        return -1;
    }
    return numel * (int64_t)mpt__dtype_info[dtype].bytes;
}

static mpt__tensor *mpt__tensor_new(mpt_context *context, mpt_dtype dtype, const mpt_shape *shape,
                                    mpt_memory_kind kind) {
    int64_t bytes = mpt__checked_bytes(context, dtype, shape);
    if (bytes < 0) return NULL;
    uint32_t storage = mpt__storage_new(context, bytes, kind, MPT__FROM_POOL, false);
    return storage ? mpt__tensor_over(context, storage, dtype, shape, NULL, 0) : NULL;
}

/* Outlives the scopes that are open. */
static void mpt__tensor_keep(mpt__tensor *tensor) { tensor->flags |= MPT__KEPT; }

/* Why a handle is not good, for the message. */
static void mpt__stale(mpt_context *context, mpt_tensor handle, const char *argument) {
    if (handle.slot == 0) {
        mpt__error(context, MPT_ERROR_HANDLE, "%s is a null handle", argument);
        return;
    }
    if (handle.context != context) {
        mpt__error(context, MPT_ERROR_HANDLE,
                   "%s belongs to another context; mpt_read it there and mpt_from it here",
                   argument);
        return;
    }
    int64_t made = -1;
    if (handle.slot < (uint64_t)context->tensor_count) {
        const mpt__tensor *tensor = mpt__slot(context, handle.slot);
        if (tensor->generation == handle.generation) made = tensor->born;
        if (tensor->generation == handle.generation + 1) made = tensor->born_before;
    }
    if (made >= 0) {
        mpt__error(context, MPT_ERROR_HANDLE,
                   "%s: tensor made in step %lld used in step %lld; it ended with its step, scope, "
                   "mpt_release or backward: mpt_keep makes a handle that stays",
                   argument, (long long)made, (long long)context->now.step);
        return;
    }
    mpt__error(context, MPT_ERROR_HANDLE, "%s: stale handle of a tensor that is gone; see mpt_keep",
               argument);
}

static mpt__tensor *mpt__at(mpt_context *context, mpt_tensor handle, const char *argument) {
    if (handle.context == context && handle.slot != 0 &&
        handle.slot < (uint64_t)context->tensor_count) {
        mpt__tensor *tensor = mpt__slot(context, handle.slot);
        if (tensor->generation == handle.generation && tensor->handle && tensor->storage)
            return tensor;
    }
    mpt__stale(context, handle, argument);
    return NULL;
}

/* Copies at least `rank` of the MPT_MAX_RANK dimensions that both have room for. */
static void mpt__copy_dims(int64_t *to, const int64_t *from, int rank) {
    if (rank <= 2) {
        memcpy(to, from, 2 * sizeof *to);
    } else {
        memcpy(to, from, MPT_MAX_RANK * sizeof *to);
    }
}

static mpt_shape mpt__shape_of(const mpt__tensor *tensor) {
    mpt_shape shape;
    shape.rank = tensor->rank;
    for (int i = 0; i < tensor->rank; i++) shape.dim[i] = tensor->shape[i];
    return shape;
}

/* The same, written in place. */
static void mpt__shape_copy(mpt_shape *shape, const mpt__tensor *tensor) {
    shape->rank = tensor->rank;
    mpt__copy_dims(shape->dim, tensor->shape, tensor->rank);
}

static int64_t mpt__shape_numel(const mpt_shape *shape) {
    int64_t numel = 1; /* without dimensions of size 0: the strides must not overflow either */
    bool empty = false;
    for (int i = 0; i < shape->rank; i++) {
        int64_t dim = shape->dim[i];
        if (dim < 0) return -1;
        bool narrow = ((numel | dim) >> 31) == 0; /* spares the division */
        if (!narrow && dim > 0 && numel > INT64_MAX / dim) return -1;
        if (dim > 0) numel *= dim;
        empty |= dim == 0;
    }
    return empty ? 0 : numel;
}

static int64_t mpt__tensor_numel(const mpt__tensor *tensor) {
    int64_t numel = 1;
    for (int i = 0; i < tensor->rank; i++) numel *= tensor->shape[i];
    return numel;
}

static bool mpt__tensor_contiguous(const mpt__tensor *tensor) {
    int64_t step = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] == 0) return true;
        if (tensor->shape[i] != 1 && tensor->stride[i] != step) return false;
        step *= tensor->shape[i];
    }
    return true;
}

static int mpt__dimension(mpt_context *context, int dim, int rank) {
    int counted = dim < 0 ? dim + rank : dim;
    if (counted >= 0 && counted < rank) return counted;
    mpt__error(context, MPT_ERROR_ARGUMENT, "dimension %d is out of range for a tensor of rank %d",
               dim, rank);
    return -1;
}

/* A view that is in no table: where the elements of `tensor` are, the other fields unset. */
static void mpt__view_copy(mpt__tensor *view, const mpt__tensor *tensor) {
    view->storage = tensor->storage;
    view->parameter = tensor->parameter;
    view->dtype = tensor->dtype;
    view->rank = tensor->rank;
    view->offset = tensor->offset;
    mpt__copy_dims(view->shape, tensor->shape, tensor->rank);
    mpt__copy_dims(view->stride, tensor->stride, tensor->rank);
}

/* ==== Launches ==== */

static mpt__launch *mpt__launch_begin(mpt_context *context, mpt__kernel kernel) {
    mpt__launch *launch = &context->launch; /* field by field: a memset of it all costs more */
    launch->kernel = (uint16_t)kernel;
    launch->n_operands = launch->queue = launch->function = 0;
    launch->compute_dtype = MPT_F32;
    launch->activation = launch->reduction = launch->unused = 0;
    launch->wait_event = launch->signal_event = 0;
    launch->op_record = context->launch_record;
    launch->op = (uint16_t)context->launch_op;
    launch->phase = (uint8_t)context->launch_phase;
    launch->number = launch->workspace = 0;
    memset(launch->slot, 0, sizeof launch->slot);
    memset(launch->imm, 0, sizeof launch->imm);
    memset(launch->index, 0, sizeof launch->index);
    memset(&launch->rng, 0, sizeof launch->rng);
    return launch;
}

static mpt__operand *mpt__operand_begin(mpt__launch *launch, int position, uint32_t storage,
                                        mpt_dtype dtype, mpt__access access) {
    mpt__operand *operand = &launch->operand[position];
    while (launch->n_operands <= position) launch->operand[launch->n_operands++].storage = 0;
    operand->storage = storage;
    operand->dtype = (uint8_t)dtype;
    operand->access = (uint8_t)access;
    operand->unused = 0;
    operand->unused_too = 0;
    operand->scale_slot = operand->amax_slot = -1;
    return operand;
}

static mpt__operand *mpt__operand_of(mpt__launch *launch, int position, const mpt__tensor *tensor,
                                     mpt__access access) {
    mpt__operand *operand =
        mpt__operand_begin(launch, position, tensor->storage, (mpt_dtype)tensor->dtype, access);
    operand->rank = tensor->rank;
    operand->offset = tensor->offset;
    mpt__copy_dims(operand->shape, tensor->shape, tensor->rank);
    mpt__copy_dims(operand->stride, tensor->stride, tensor->rank);
    return operand;
}

static mpt__operand *mpt__operand_on(mpt__launch *launch, int position, uint32_t storage,
                                     mpt_dtype dtype, int64_t offset, int64_t count,
                                     mpt__access access) {
    mpt__operand *operand = mpt__operand_begin(launch, position, storage, dtype, access);
    operand->rank = 1;
    operand->offset = offset;
    operand->shape[0] = count;
    operand->stride[0] = 1;
    return operand;
}

/* Turns the device error word into the sticky error. */
static mpt_status mpt__device_error(mpt_context *context) {
    mpt_status status = (mpt_status)context->scalars[MPT__SLOT_ERROR].i;
    int64_t index = context->scalars[MPT__SLOT_ERROR_INDEX].i;
    int64_t launch = context->scalars[MPT__SLOT_ERROR_LAUNCH].i;
    return mpt__error(context, status,
                      "target of sample %lld is not a class number of the input's [N, C] (launch "
                      "%lld); check the labels, or name them with ignore_index",
                      (long long)index, (long long)launch);
}

static mpt_status mpt__check_device(mpt_context *context) {
    if (!context->scalars || context->scalars[MPT__SLOT_ERROR].i == 0) return context->base.status;
    return mpt__device_error(context);
}

/* For config.debug: every element that an operand names lies in its storage. */
static mpt_status mpt__check_operands(mpt_context *context, const mpt__launch *launch) {
    for (int i = 0; i < launch->n_operands; i++) {
        const mpt__operand *operand = &launch->operand[i];
        if (!operand->storage) continue;
        const mpt__storage *storage = &context->storages[operand->storage];
        int64_t last = operand->offset;
        bool empty = false;
        for (int d = 0; d < operand->rank; d++) {
            if (operand->shape[d] > 0) last += (operand->shape[d] - 1) * operand->stride[d];
            empty |= operand->shape[d] == 0;
        }
        if (empty) continue;
        int64_t width = mpt__dtype_info[operand->dtype].bytes;
        bool inside = operand->offset >= 0 && (last + 1) * width <= storage->bytes;
        if (storage->live && inside) continue;
        return mpt__error(context, MPT_ERROR_DEVICE,
                          "launch %lld (kernel %d): operand %d reaches element %lld of a storage "
                          "of %lld bytes; this is a defect of mptrain",
                          (long long)launch->number, (int)launch->kernel, i, (long long)last,
                          (long long)storage->bytes);
    }
    return MPT_OK;
}

/* Runs a launch that needs scratch memory. */
static mpt_status mpt__launch_with_workspace(mpt_context *context, mpt__execution *execution,
                                             mpt__launch *launch) {
    mpt__backend *backend = &context->backend;
    execution->workspace = mpt__workspace(context, launch->workspace);
    if (!execution->workspace) return context->base.status;
    mpt__account(&context->base, MPT_MEMORY_WORKSPACE, launch->workspace);
    mpt_status status = backend->launch(backend->self, execution, launch);
    mpt__account(&context->base, MPT_MEMORY_WORKSPACE, -launch->workspace);
    return status;
}

static mpt_status mpt__submit(mpt_context *context, mpt__launch *launch) {
    if (context->base.status != MPT_OK) return context->base.status;
    mpt__backend *backend = &context->backend;
    launch->number = ++context->counters.launches;
    if (context->config.debug && mpt__check_operands(context, launch) != MPT_OK)
        return context->base.status;
    mpt__execution execution;
    execution.data = context->data;
    execution.scalars = context->scalars;
    execution.workspace = NULL;
    if (backend->workspace) launch->workspace = backend->workspace(backend->self, launch);
    mpt_status status = launch->workspace > 0
                            ? mpt__launch_with_workspace(context, &execution, launch)
                            : backend->launch(backend->self, &execution, launch);
    if (context->base.status != MPT_OK) return context->base.status;
    if (status != MPT_OK) return mpt__error(context, status, "%s", backend->error);
    for (int i = 0; i < context->hook_count; i++)
        context->hooks[i].after(context, context->hooks[i].user, launch);
    return backend->synchronous ? mpt__check_device(context) : MPT_OK;
}

/* ==== Device scalars ==== */

static uint16_t mpt__scalar_take(mpt_context *context) {
    for (int i = MPT__SLOT_FIRST_FREE; i < MPT__SLOT_COUNT; i++) {
        if (!context->slot_used[i]) {
            context->slot_used[i] = 1;
            return (uint16_t)i;
        }
    }
    mpt__error(context, MPT_ERROR_MEMORY,
               "all %d device scalars are in use; destroy optimizers or "
               "scalers that are no longer needed",
               (int)MPT__SLOT_COUNT);
    return 0;
}

static uint16_t mpt__scalar_new_f(mpt_context *context, double value) {
    uint16_t slot = mpt__scalar_take(context);
    if (slot) mpt__scalar_set_f(context, slot, value);
    return slot;
}

static uint16_t mpt__scalar_new_i(mpt_context *context, int64_t value) {
    uint16_t slot = mpt__scalar_take(context);
    if (slot) mpt__scalar_set_i(context, slot, value);
    return slot;
}

static void mpt__scalar_free(mpt_context *context, uint16_t slot) {
    if (slot) context->slot_used[slot] = 0;
}

static void mpt__scalar_set_f(mpt_context *context, uint16_t slot, double value) {
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_SCALAR_SET);
    launch->slot[0] = slot;
    launch->imm[0] = value;
    mpt__submit(context, launch);
}

static void mpt__scalar_set_i(mpt_context *context, uint16_t slot, int64_t value) {
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_SCALAR_SET);
    launch->slot[0] = slot;
    launch->index[0] = 1;
    launch->index[1] = value;
    mpt__submit(context, launch);
}

static void mpt__wait(mpt_context *context) {
    mpt__backend *backend = &context->backend;
    if (backend->synchronous) return;
    if (backend->synchronize(backend->self) != MPT_OK)
        mpt__error(context, MPT_ERROR_DEVICE, "%s", backend->error);
    mpt__check_device(context);
}

static double mpt__scalar_get_f(mpt_context *context, uint16_t slot) {
    mpt__wait(context);
    return context->scalars[slot].f;
}

static int64_t mpt__scalar_get_i(mpt_context *context, uint16_t slot) {
    mpt__wait(context);
    return context->scalars[slot].i;
}

/* ==== Objects ==== */

static const char *const mpt__object_names[MPT__OBJECT_KINDS] = {
    "module", "optimizer", "scaler", "schedule", "dataset", "loader", "recording", "op"};

static uint32_t mpt__object_new(mpt_context *context, mpt__object_kind kind, void *object,
                                uint32_t *generation) {
    mpt__object_table *table = &context->objects[kind];
    uint32_t slot = table->first_free;
    if (slot) {
        table->first_free = table->rows[slot].next_free;
    } else {
        if (table->count == 0) table->count = 1; /* row 0 means none */
        void *rows = table->rows;
        bool ok = mpt__grow(&context->base, &rows, &table->capacity, table->count + 1,
                            sizeof(mpt__object), MPT_MEMORY_HOST);
        table->rows = (mpt__object *)rows;
        if (!ok) return 0;
        slot = (uint32_t)table->count++;
        table->rows[slot].generation = 1;
    }
    table->rows[slot].object = object;
    *generation = table->rows[slot].generation;
    return slot;
}

static void *mpt__object_slot(mpt_context *context, mpt__object_kind kind, uint32_t slot) {
    return context->objects[kind].rows[slot].object;
}

static void *mpt__object_at(mpt_context *context, mpt__object_kind kind, mpt_context *owner,
                            uint32_t slot, uint32_t generation) {
    mpt__object_table *table = &context->objects[kind];
    const char *name = mpt__object_names[kind];
    if (owner == context && slot > 0 && (int64_t)slot < table->count &&
        table->rows[slot].generation == generation && table->rows[slot].object)
        return table->rows[slot].object;
    if (owner && owner != context) {
        mpt__error(context, MPT_ERROR_HANDLE, "the %s belongs to another context", name);
    } else if (slot == 0) {
        mpt__error(context, MPT_ERROR_HANDLE, "the %s is a null handle", name);
    } else {
        mpt__error(context, MPT_ERROR_HANDLE, "the %s was destroyed or never made", name);
    }
    return NULL;
}

static void mpt__object_free(mpt_context *context, mpt__object_kind kind, uint32_t slot) {
    mpt__object_table *table = &context->objects[kind];
    mpt__object *row = &table->rows[slot];
    void *object = row->object;
    row->object = NULL;
    row->generation++;
    row->next_free = table->first_free;
    table->first_free = slot;
    if (object && table->destroy) table->destroy(context, object);
}

/* ==== Scopes and steps ==== */

/* Ends the handles of tensors pushed since `start`, the youngest first. */
static void mpt__scope_drop(mpt_context *context, int64_t start) {
    while (context->scoped_count > start) {
        mpt__scoped entry = context->scoped[--context->scoped_count];
        mpt__tensor *tensor = mpt__slot(context, entry.slot);
        if (tensor->generation != entry.generation || (tensor->flags & MPT__KEPT)) continue;
        mpt__tensor_drop(context, tensor);
    }
}

MPTRAIN_API mpt_status mpt_scope_begin(mpt_context *context) {
    if (!mpt__enter(context, "mpt_scope_begin"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    if (context->scope_depth == MPT__MAX_REGIONS) {
        return mpt__error(context, MPT_ERROR_STATE,
                          "%d scopes are open; close some with mpt_scope_end",
                          (int)MPT__MAX_REGIONS);
    }
    context->scope_start[context->scope_depth++] = context->scoped_count;
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_scope_end(mpt_context *context) {
    if (!mpt__enter(context, "mpt_scope_end"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    if (context->scope_depth == 0)
        return mpt__error(context, MPT_ERROR_STATE, "no scope is open; mpt_scope_begin opens one");
    if (context->step_depth == context->scope_depth)
        return mpt__error(context, MPT_ERROR_STATE,
                          "the innermost scope is the step; mpt_step_end ends it");
    mpt__scope_drop(context, context->scope_start[--context->scope_depth]);
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_step_begin(mpt_context *context) {
    if (!mpt__enter_checked(context, "mpt_step_begin"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    if (context->step_depth)
        return mpt__error(context, MPT_ERROR_STATE,
                          "step %lld is still open; end it with mpt_step_end",
                          (long long)context->now.step);
    mpt_status status = mpt_scope_begin(context);
    if (status != MPT_OK) return status;
    context->step_depth = context->scope_depth;
    context->now.step++;
    context->base.step = context->now.step;
    context->module_calls = 0;
    mpt__scalar_set_i(context, MPT__SLOT_STEP, context->now.step);
    return context->base.status;
}

MPTRAIN_API mpt_status mpt_step_end(mpt_context *context) {
    if (!mpt__enter(context, "mpt_step_end"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    if (!context->step_depth)
        return mpt__error(context, MPT_ERROR_STATE, "no step is open; mpt_step_begin opens one");
    if (context->scope_depth > context->step_depth)
        return mpt__error(context, MPT_ERROR_STATE, "%d scopes inside the step are still open",
                          context->scope_depth - context->step_depth);
    mpt__scope_drop(context, context->scope_start[--context->scope_depth]);
    context->step_depth = 0;
    return context->base.status;
}

MPTRAIN_API int64_t mpt_step_number(mpt_context *context) {
    return context ? context->now.step : 0;
}

#endif
