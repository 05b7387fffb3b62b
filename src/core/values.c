/* ----
 * core/values.c: tensors made from values, values out of tensors, tensors as text.
 * ---- */
#ifndef MPT__CORE_VALUES_INCLUDED
#define MPT__CORE_VALUES_INCLUDED

#include "core/inspect.c"

/* The error of a call that a build left out. */
static MPT__COLD MPT__UNUSED mpt_status mpt__absent(
    mpt_context *ctx, const char *call, const char *what) {
    if (mpt__enter(ctx, call)) mpt__error(ctx, UNSUPPORTED, "built without %s", what);
    return mpt__status_of(ctx);
}

#ifdef MPTRAIN_NO_FRUGAL
static mpt_status mpt__frugal_missing(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, MPT__NOT_FRUGAL);
}
#endif

/* ==== Scopes and steps ==== */

mpt_status mpt_scope_begin(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_scope_begin")) return mpt__status_of(ctx);
    return mpt__scope_open(ctx);
}

/* Ends the innermost scope but for its first `kept` tensors: they go to the one outside, or to no
   scope at all. */
static mpt_status mpt__scope_close(mpt_context *ctx, int64_t kept) {
    if (ctx->step_depth == ctx->scope_depth) { /* or both are 0 */
        if (ctx->dropped_scopes > 0) return ctx->dropped_scopes--, MPT_OK;
        return mpt__error(ctx, STATE, "%s",
            ctx->step_depth ? "the innermost scope is the step; mpt_step_end ends it"
                            : "no scope is open; mpt_scope_begin opens one");
    }
    mpt__scope_drop(ctx, ctx->scope_start[--ctx->scope_depth] + kept);
    if (ctx->scope_depth == 0) ctx->scoped_count = 0;
    return MPT_OK;
}

mpt_status mpt_scope_end(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_scope_end")) return mpt__status_of(ctx);
    return mpt__scope_close(ctx, 0);
}

mpt_status mpt_scope_return(mpt_context *ctx, const mpt_tensor *results, int count) {
    if (!mpt__enter(ctx, "mpt_scope_return")) return mpt__status_of(ctx);
    if (count < 0 || (count > 0 && !results))
        return mpt__error(
            ctx, ARGUMENT, "%d results: expected 0 or more, and the handles of them", count);
    int64_t kept = ctx->scope_depth ? ctx->scope_start[ctx->scope_depth - 1] : 0;
    int64_t start = kept;
    for (int i = 0; i < count; i++) {
        const mpt__tensor *result = mpt__at(ctx, results[i], "result");
        if (!result) return ctx->base.status;
        mpt__scope_keep(ctx, result, &kept);
    }
    return mpt__scope_close(ctx, kept - start);
}

mpt_status mpt_step_begin(mpt_context *ctx) {
    if (!mpt__enter_checked(ctx, "mpt_step_begin") || !mpt__no_slice(ctx))
        return mpt__status_of(ctx);
    if (ctx->step_depth)
        return mpt__error(
            ctx, STATE, "step %lld is still open; end it with mpt_step_end", ctx->now.step);
    mpt_status status = mpt__scope_open(ctx);
    if (status != MPT_OK) return status;
    ctx->step_depth = ctx->scope_depth;
    ctx->dropped_step = false;
    ctx->now.step++;
    ctx->base.step = ctx->now.step;
    ctx->now.module_calls = 0;
    mpt__tell(ctx, MPT__STEP_BEGAN, NULL);
    return ctx->base.status;
}

mpt_status mpt_step_end(mpt_context *ctx) {
    if (!mpt__enter(ctx, "mpt_step_end")) return mpt__status_of(ctx);
    if (!ctx->step_depth) {
        if (ctx->dropped_step) return ctx->dropped_step = false, MPT_OK;
        return mpt__error(ctx, STATE, "no step is open; mpt_step_begin opens one");
    }
    if (ctx->scope_depth > ctx->step_depth)
        return mpt__error(ctx, STATE, "%d scopes inside the step are still open",
            ctx->scope_depth - ctx->step_depth);
    mpt__tell(ctx, MPT__GRADIENTS_DONE, NULL);
    mpt__tell(ctx, MPT__STEP_SETTLES, NULL);
    mpt__scope_drop(ctx, ctx->scope_start[--ctx->scope_depth]);
    ctx->step_depth = 0;
    mpt__tell(ctx, MPT__STEP_ENDED, NULL);
    if (!ctx->backend.synchronous && mpt__ok(ctx)) {
        mpt__scalars_ask(ctx);
        mpt__check_device(ctx); /* what an earlier step left */
    }
    return ctx->base.status;
}

bool mpt_step_is_open(mpt_context *ctx) { return ctx && ctx->step_depth > 0; }

/* ==== Making ==== */

static mpt_tensor mpt__filled(
    mpt_context *ctx, const char *call, mpt_dtype dtype, const mpt_shape *shape, double value) {
    if (!mpt__enter(ctx, call)) return mpt__null(ctx);
    mpt__tensor *tensor = mpt__tensor_new(ctx, dtype, shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(ctx);
    return mpt__tensor_done(ctx, tensor, mpt__launch_fill(ctx, tensor, value));
}

mpt_tensor mpt_zeros(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape) {
    return mpt__filled(ctx, "mpt_zeros", dtype, &shape, 0.0);
}
mpt_tensor mpt_ones(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape) {
    return mpt__filled(ctx, "mpt_ones", dtype, &shape, 1.0);
}
mpt_tensor mpt_full(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape, double value) {
    return mpt__filled(ctx, "mpt_full", dtype, &shape, value);
}

/* seed: NULL, or of this call alone. */
static mpt_tensor mpt__random(mpt_context *ctx, const char *call, mpt_dtype dtype,
    const mpt_shape *shape, mpt__function function, const uint64_t *seed) {
    if (!mpt__enter(ctx, call)) return mpt__null(ctx);
    if (!mpt__dtype_info[MPT_DTYPE_NONE < dtype && dtype < MPT_DTYPE_COUNT ? dtype : 0].is_float)
        return mpt__refuse(ctx, DTYPE, "dtype %D: expected a float dtype", dtype);
    mpt__tensor *tensor = mpt__tensor_new(ctx, dtype, shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(ctx);
    mpt__launch *launch = mpt__launch_begin(ctx, MPT__K_RANDOM);
    launch->function = (uint8_t)function;
    launch->imm[1] = 1.0; /* from 0 to 1; mean 0, deviation 1 */
    launch->imm[2] = 1.0 - mpt__dtype_info[dtype].epsilon / 2;
    launch->rng.seed = seed ? *seed : ctx->config.seed;
    launch->rng.stream = 1; /* module paths hash elsewhere with all but certainty */
    launch->rng.call = seed ? UINT32_MAX : ctx->now.draws++;
    if (!seed && mpt__is_capturing(ctx)) { /* each repetition draws on from where it begins */
        launch->rng.call -= ctx->draws_before;
        launch->slot[1] = MPT__SLOT_DRAWS;
    }
    mpt__writes(launch, 0, tensor);
    return mpt__tensor_done(ctx, tensor, mpt__submit(ctx, launch));
}

mpt_tensor mpt_rand(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape) {
    return mpt__random(ctx, "mpt_rand", dtype, &shape, MPT__FN_UNIFORM, NULL);
}
mpt_tensor mpt_randn(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape) {
    return mpt__random(ctx, "mpt_randn", dtype, &shape, MPT__FN_NORMAL, NULL);
}
mpt_tensor mpt_randn_seeded(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape, uint64_t seed) {
    return mpt__random(ctx, "mpt_randn_seeded", dtype, &shape, MPT__FN_NORMAL, &seed);
}

static mpt_tensor mpt__random_like(mpt_tensor x, const char *call, mpt__function function) {
    const mpt__tensor *like = mpt__enter_at(x, call, "argument 1");
    if (!like) return mpt__null(x.context);
    mpt_shape shape = like->shape;
    return mpt__random(x.context, call, (mpt_dtype)like->dtype, &shape, function, NULL);
}

mpt_tensor mpt_rand_like(mpt_tensor x) {
    return mpt__random_like(x, "mpt_rand_like", MPT__FN_UNIFORM);
}
mpt_tensor mpt_randn_like(mpt_tensor x) {
    return mpt__random_like(x, "mpt_randn_like", MPT__FN_NORMAL);
}

mpt_tensor mpt_from(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape, const void *data) {
    if (!mpt__enter(ctx, "mpt_from")) return mpt__null(ctx);
    int64_t bytes = mpt__checked_bytes(ctx, dtype, &shape);
    if (bytes < 0) return mpt__null(ctx);
    if (!data && bytes > 0)
        return mpt__refuse(ctx, ARGUMENT,
            "data is NULL, expected %lld bytes; mpt_zeros makes a tensor without data", bytes);
    mpt__tensor *tensor = mpt__tensor_new(ctx, dtype, &shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(ctx);
    return mpt__tensor_done(ctx, tensor, mpt__upload(ctx, tensor->storage, 0, data, bytes));
}

mpt_tensor mpt_wrap(mpt_context *ctx, mpt_dtype dtype, mpt_shape shape, void *data) {
    if (!mpt__enter(ctx, "mpt_wrap")) return mpt__null(ctx);
    int64_t bytes = mpt__checked_bytes(ctx, dtype, &shape);
    if (bytes < 0) return mpt__null(ctx);
    if (!ctx->backend.synchronous)
        return mpt__refuse(ctx, UNSUPPORTED, "only CPU contexts can borrow memory; use mpt_from");
    int64_t width = mpt__dtype_info[dtype].bytes;
    if ((!data && bytes > 0) || ((uintptr_t)data % (uintptr_t)width) != 0)
        return mpt__refuse(ctx, ARGUMENT, "data must be %lld bytes aligned to %lld", bytes, width);
    uint32_t storage = mpt__storage_wrap(ctx, data, bytes);
    if (!storage) return mpt__null(ctx);
    mpt__tensor view = mpt__view_on(storage, dtype, &shape, 0);
    mpt__tensor *tensor = mpt__tensor_alias(ctx, &view);
    mpt__storage_release(ctx, storage);
    return mpt__handle(ctx, tensor);
}

/* ==== Asking ==== */

mpt_shape mpt_get_shape(mpt_tensor tensor) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_get_shape", "tensor");
    mpt_shape none = MPT_SCALAR;
    none.rank = -1;
    return found ? found->shape : none;
}

mpt_dtype mpt_get_dtype(mpt_tensor tensor) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_get_dtype", "tensor");
    return found ? (mpt_dtype)found->dtype : MPT_DTYPE_NONE;
}

int64_t mpt_numel(mpt_tensor tensor) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_numel", "tensor");
    return found ? mpt__tensor_numel(found) : -1;
}

bool mpt_is_contiguous(mpt_tensor tensor) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_is_contiguous", "tensor");
    return found && mpt__tensor_contiguous(found);
}

bool mpt_valid(mpt_tensor tensor) {
    const mpt__tensor *found = tensor.context ? mpt__live(tensor.context, tensor) : NULL;
    return found && found->storage;
}

mpt_status mpt_expect_shape(mpt_tensor tensor, mpt_shape shape, const char *what) {
    mpt_context *ctx = tensor.context;
    if (!mpt__enter(ctx, "mpt_expect_shape")) return mpt__status_of(ctx);
    const char *name = what ? what : "tensor";
    const mpt__tensor *found = mpt__at(ctx, tensor, name);
    if (!found) return ctx->base.status;
    bool fits = shape.rank == found->shape.rank;
    for (int i = 0; fits && i < shape.rank; i++)
        fits = shape.dim[i] == -1 || shape.dim[i] == found->shape.dim[i];
    if (fits) return MPT_OK;
    if (shape.rank < 0 || shape.rank > MPT_MAX_RANK)
        return mpt__error(
            ctx, SHAPE, "%s: rank %d is not in 0..%d", name, shape.rank, MPT_MAX_RANK);
    return mpt__error(
        ctx, SHAPE, "%s has shape %S, expected %S (-1 fits any size)", name, &found->shape, &shape);
}

/* ==== Lifetime of single tensors ==== */

mpt_tensor mpt_keep(mpt_tensor tensor) {
    mpt_context *ctx = tensor.context;
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_keep", "tensor");
    if (!found) return mpt__null(ctx);
    mpt__region_read(ctx);
    int flags = MPT__KEPT | (ctx->inference_depth ? MPT__INFERENCE : 0);
    return mpt__handle(ctx, mpt__tensor_outside(ctx, found, flags));
}

void mpt_release(mpt_tensor tensor) {
    mpt_context *ctx = tensor.context;
    mpt__tensor *found = ctx ? mpt__live(ctx, tensor) : NULL;
    if (!found || !found->storage) return;
    if (mpt__forked(&ctx->base)) {
        mpt__enter(ctx, "mpt_release");
        return;
    }
    if (found->parameter || (found->flags & MPT__GRADIENT)) {
        if (mpt__enter(ctx, "mpt_release"))
            mpt__error(ctx, STATE, "%s",
                found->parameter ? "parameters live as long as their module; see mpt_module_destroy"
                                 : "a gradient lives as long as its leaf; mpt_clear_grad ends it");
        return;
    }
    mpt__tensor_drop(ctx, found);
}

/* ==== Reading and writing ==== */

/* All elements in row-major order as `dtype`, into host memory. */
static mpt_status mpt__read_as(
    mpt_context *ctx, const mpt__tensor *tensor, mpt_dtype dtype, void *destination) {
    int64_t width = mpt__dtype_info[dtype].bytes, numel = mpt__tensor_numel(tensor);
    if ((mpt_dtype)tensor->dtype == dtype && mpt__tensor_contiguous(tensor))
        return mpt__download(
            ctx, destination, tensor->storage, tensor->offset * width, numel * width);
    mpt__tensor *copy = mpt__tensor_new(ctx, dtype, &tensor->shape, MPT_MEMORY_WORKSPACE);
    if (!copy) return ctx->base.status;
    mpt_status status = mpt__launch_copy(ctx, tensor, copy, MPT__WRITE);
    if (status == MPT_OK) status = mpt__download(ctx, destination, copy->storage, 0, numel * width);
    mpt__tensor_drop(ctx, copy);
    return status;
}

/* Whether the caller's room (NULL: none) is what the tensor needs, else an error. */
static bool mpt__check_room(mpt_context *ctx, int64_t need, const void *room, uint64_t got,
    const char *unit, const char *verb) {
    if ((room || need == 0) && (uint64_t)need == got) return true;
    return mpt__reject(ctx, ARGUMENT, "the tensor has %lld %s, got %s%llu", need, unit, verb,
        (unsigned long long)(room ? got : 0));
}

static int64_t mpt__tensor_bytes(const mpt__tensor *tensor) {
    return mpt__tensor_numel(tensor) * mpt__dtype_info[tensor->dtype].bytes;
}

mpt_status mpt_read(mpt_tensor tensor, void *destination, size_t bytes) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_read", "tensor");
    if (!found || !mpt__check_room(tensor.context, mpt__tensor_bytes(found), destination, bytes,
                                   "bytes", "room for "))
        return mpt__status_of(tensor.context);
    return mpt__read_as(tensor.context, found, (mpt_dtype)found->dtype, destination);
}

mpt_status mpt_read_f32(mpt_tensor tensor, float *destination, int64_t count) {
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_read_f32", "tensor");
    if (!found || !mpt__check_room(tensor.context, mpt__tensor_numel(found), destination,
                                   (uint64_t)count, "elements", "room for "))
        return mpt__status_of(tensor.context);
    return mpt__read_as(tensor.context, found, MPT_F32, destination);
}

double mpt_item(mpt_tensor tensor) {
    MPT__PLAIN_FLOATS;
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_item", "tensor");
    if (!found) return MPT__NAN_F64;
    if (mpt__tensor_numel(found) != 1) {
        mpt__error(
            tensor.context, SHAPE, "expected one element, the tensor has shape %S", &found->shape);
        return MPT__NAN_F64;
    }
    double value = 0.0;
    return mpt__read_as(tensor.context, found, MPT_F64, &value) == MPT_OK ? value : MPT__NAN_F64;
}

/* Elements in row-major order over a tensor, which may be strided; converts from `dtype`. */
static mpt_status mpt__write_as(
    mpt_context *ctx, mpt__tensor *tensor, mpt_dtype dtype, const void *source) {
    int64_t width = mpt__dtype_info[dtype].bytes, numel = mpt__tensor_numel(tensor);
    if ((mpt_dtype)tensor->dtype == dtype && mpt__tensor_contiguous(tensor))
        return mpt__upload(ctx, tensor->storage, tensor->offset * width, source, numel * width);
    mpt__tensor *copy = mpt__tensor_new(ctx, dtype, &tensor->shape, MPT_MEMORY_WORKSPACE);
    if (!copy) return ctx->base.status;
    mpt_status status = mpt__upload(ctx, copy->storage, 0, source, numel * width);
    if (status == MPT_OK) {
        status = mpt__launch_copy(ctx, copy, tensor, MPT__WRITE);
        ctx->storages[tensor->storage].version++;
    }
    mpt__tensor_drop(ctx, copy);
    return status;
}

static mpt_status mpt__write_f32(mpt_context *ctx, mpt__tensor *tensor, const float *values) {
    return mpt__write_as(ctx, tensor, MPT_F32, values);
}

/* Whether a tensor cannot be written, being expanded: an error. */
static bool mpt__is_expanded(mpt_context *ctx, const mpt__tensor *tensor) {
    for (int i = 0; i < tensor->shape.rank; i++) {
        if (tensor->stride[i] != 0 || tensor->shape.dim[i] <= 1) continue;
        mpt__error(
            ctx, STATE, "an expanded tensor shows one element in many places; mpt_clone it first");
        return true;
    }
    return false;
}

mpt_status mpt_write(mpt_tensor tensor, const void *source, size_t bytes) {
    mpt_context *ctx = tensor.context;
    mpt__tensor *found = mpt__enter_at(tensor, "mpt_write", "tensor");
    if (!found || !mpt__check_room(ctx, mpt__tensor_bytes(found), source, bytes, "bytes", ""))
        return mpt__status_of(ctx);
    if (mpt__is_expanded(ctx, found)) return ctx->base.status;
    mpt__touched(ctx, found->storage);
    return mpt__write_as(ctx, found, (mpt_dtype)found->dtype, source);
}

bool mpt_allclose(mpt_tensor a, mpt_tensor b, double rtol, double atol) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = a.context ? a.context : b.context;
    if (!mpt__enter(ctx, "mpt_allclose")) return false;
    const mpt__tensor *ta = mpt__at(ctx, a, "argument 1");
    const mpt__tensor *tb = ta ? mpt__at(ctx, b, "argument 2") : NULL;
    if (!tb) return false;
    if (!mpt__same_shape(ta, tb))
        return mpt__reject(ctx, SHAPE, "shapes %S and %S differ", &ta->shape, &tb->shape);
    int64_t numel = mpt__tensor_numel(ta);
    size_t bytes = (size_t)numel * sizeof(double);
    if (numel == 0) return true;
    double *va = (double *)mpt__host_array(ctx, numel, sizeof(double));
    double *vb = va ? (double *)mpt__host_array(ctx, numel, sizeof(double)) : NULL;
    bool close = va && vb && mpt__read_as(ctx, ta, MPT_F64, va) == MPT_OK &&
        mpt__read_as(ctx, tb, MPT_F64, vb) == MPT_OK;
    for (int64_t i = 0; close && i < numel; i++) {
        double distance = va[i] > vb[i] ? va[i] - vb[i] : vb[i] - va[i];
        double size = vb[i] < 0 ? -vb[i] : vb[i];
        bool equal = va[i] == vb[i]; /* infinities, whose distance is NaN */
        close = equal || (mpt__f64_is_finite(distance) && distance <= atol + rtol * size);
    }
    mpt__host_free(ctx, va, bytes);
    mpt__host_free(ctx, vb, bytes);
    return close;
}

/* ==== Text ==== */

mpt_print_config mpt_print_config_default(void) {
    mpt_print_config config;
    config.digits = 4;
    config.edge = 3;
    return config;
}

typedef struct {
    mpt_context *context;
    const mpt__tensor *tensor;
    mpt_print_config config;
    mpt__text out;
} mpt__printing;

static void mpt__print_value(mpt__printing *printing, int64_t offset) {
    mpt__tensor element = *printing->tensor;
    element.shape.rank = 0;
    element.offset = offset;
    if (mpt__dtype_info[element.dtype].is_float) {
        double value = 0;
        char format[8];
        mpt__format_text(format, sizeof format, "%%.%dg", printing->config.digits);
        if (mpt__read_as(printing->context, &element, MPT_F64, &value) != MPT_OK) return;
        mpt__write_text(&printing->out, format, value);
    } else {
        int64_t value = 0;
        if (mpt__read_as(printing->context, &element, MPT_I64, &value) != MPT_OK) return;
        mpt__write_text(&printing->out, "%lld", value);
    }
}

static void mpt__print_dimension(mpt__printing *printing, int dim, int64_t offset) {
    const mpt__tensor *tensor = printing->tensor;
    if (dim == tensor->shape.rank) {
        mpt__print_value(printing, offset);
        return;
    }
    int64_t size = tensor->shape.dim[dim], edge = printing->config.edge;
    mpt__write_text(&printing->out, "[");
    for (int64_t i = 0; i < size && mpt__ok(printing->context); i++) {
        if (i > 0) {
            mpt__write_text(&printing->out, dim + 1 == tensor->shape.rank ? ", " : ",\n");
            for (int d = 0; d <= dim && dim + 1 < tensor->shape.rank; d++)
                mpt__write_text(&printing->out, " ");
        }
        if (i == edge && size > 2 * edge) {
            mpt__write_text(&printing->out, "...");
            i = size - edge - 1;
            continue;
        }
        mpt__print_dimension(printing, dim + 1, offset + i * tensor->stride[dim]);
    }
    mpt__write_text(&printing->out, "]");
}

size_t mpt_format(mpt_tensor tensor, const mpt_print_config *config, char *text, size_t size) {
    mpt__printing printing;
    printing.context = tensor.context;
    printing.config = config ? *config : mpt_print_config_default();
    printing.out = mpt__text_make(text, size);
    printing.tensor = mpt__enter_at(tensor, "mpt_format", "tensor");
    if (!printing.tensor) return 0;
    if (printing.config.digits < 1 || printing.config.digits > 17 || printing.config.edge < 1) {
        mpt__error(tensor.context, ARGUMENT, "digits %d, edge %d: expected 1..17 and 1 or more",
            printing.config.digits, printing.config.edge);
        return 0;
    }
    mpt__print_dimension(&printing, 0, printing.tensor->offset);
    mpt__write_text(&printing.out, " %D %S", printing.tensor->dtype, &printing.tensor->shape);
    return printing.out.length;
}

#endif
