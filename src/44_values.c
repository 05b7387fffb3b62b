/* ---------------------------------------------------------------------------------------------
 * 44_values.c: tensors made from values, values out of tensors, tensors as text.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__44_VALUES_INCLUDED
#define MPT__44_VALUES_INCLUDED

#include "43_inspect.c"

/* ==== Making ==== */

static mpt_tensor mpt__filled(mpt_context *context, const char *call, mpt_dtype dtype,
                              const mpt_shape *shape, double value) {
    if (!mpt__enter(context, call)) return mpt__null(context);
    mpt__tensor *tensor = mpt__tensor_new(context, dtype, shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(context);
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_FILL);
    launch->imm[0] = value;
    mpt__operand_of(launch, 0, tensor, MPT__WRITE);
    if (mpt__submit(context, launch) == MPT_OK) return mpt__handle(context, tensor);
    mpt__tensor_drop(context, tensor);
    return mpt__null(context);
}

MPTRAIN_API mpt_tensor mpt_zeros(mpt_context *context, mpt_dtype dtype, mpt_shape shape) {
    return mpt__filled(context, "mpt_zeros", dtype, &shape, 0.0);
}
MPTRAIN_API mpt_tensor mpt_ones(mpt_context *context, mpt_dtype dtype, mpt_shape shape) {
    return mpt__filled(context, "mpt_ones", dtype, &shape, 1.0);
}
MPTRAIN_API mpt_tensor mpt_full(mpt_context *context, mpt_dtype dtype, mpt_shape shape,
                                double value) {
    return mpt__filled(context, "mpt_full", dtype, &shape, value);
}

static mpt_tensor mpt__random(mpt_context *context, const char *call, mpt_dtype dtype,
                              const mpt_shape *shape, mpt__function function) {
    if (!mpt__enter(context, call)) return mpt__null(context);
    if (!mpt__dtype_info[MPT_DTYPE_NONE < dtype && dtype < MPT_DTYPE_COUNT ? dtype : 0].is_float) {
        mpt__error(context, MPT_ERROR_DTYPE, "dtype %s: expected a float dtype",
                   mpt_dtype_name(dtype));
        return mpt__null(context);
    }
    mpt__tensor *tensor = mpt__tensor_new(context, dtype, shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(context);
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_RANDOM);
    launch->function = (uint8_t)function;
    launch->imm[0] = 0.0;
    launch->imm[1] = 1.0;
    launch->rng.seed = context->config.seed;
    launch->rng.stream = 1; /* module paths hash elsewhere with all but certainty */
    launch->rng.call = context->now.draws++;
    mpt__operand_of(launch, 0, tensor, MPT__WRITE);
    if (mpt__submit(context, launch) == MPT_OK) return mpt__handle(context, tensor);
    mpt__tensor_drop(context, tensor);
    return mpt__null(context);
}

MPTRAIN_API mpt_tensor mpt_rand(mpt_context *context, mpt_dtype dtype, mpt_shape shape) {
    return mpt__random(context, "mpt_rand", dtype, &shape, MPT__FN_UNIFORM);
}
MPTRAIN_API mpt_tensor mpt_randn(mpt_context *context, mpt_dtype dtype, mpt_shape shape) {
    return mpt__random(context, "mpt_randn", dtype, &shape, MPT__FN_NORMAL);
}

MPTRAIN_API mpt_tensor mpt_from(mpt_context *context, mpt_dtype dtype, mpt_shape shape,
                                const void *data) {
    if (!mpt__enter(context, "mpt_from")) return mpt__null(context);
    int64_t bytes = mpt__checked_bytes(context, dtype, &shape);
    if (bytes < 0) return mpt__null(context);
    if (!data && bytes > 0) {
        mpt__error(context, MPT_ERROR_ARGUMENT,
                   "data is NULL, expected %lld bytes; mpt_zeros makes a "
                   "tensor without data",
                   (long long)bytes);
        return mpt__null(context);
    }
    mpt__tensor *tensor = mpt__tensor_new(context, dtype, &shape, MPT_MEMORY_ACTIVATION);
    if (!tensor) return mpt__null(context);
    if (mpt__upload(context, tensor->storage, 0, data, bytes) == MPT_OK)
        return mpt__handle(context, tensor);
    mpt__tensor_drop(context, tensor);
    return mpt__null(context);
}

MPTRAIN_API mpt_tensor mpt_arange(mpt_context *context, mpt_dtype dtype, int64_t count) {
    if (!mpt__enter(context, "mpt_arange")) return mpt__null(context);
    if (count < 0 || count > INT64_MAX / 16) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "count %lld is negative or beyond 2^59",
                   (long long)count);
        return mpt__null(context);
    }
    mpt_shape shape = MPT_SHAPE(count);
    size_t bytes = (size_t)count * sizeof(int64_t);
    int64_t *values =
        count ? (int64_t *)mpt__host_array(context, count, sizeof(int64_t)) : NULL;
    if (!values && count) return mpt__null(context);
    for (int64_t i = 0; i < count; i++) values[i] = i;
    mpt_tensor counted =
        count ? mpt_from(context, MPT_I64, shape, values) : mpt_zeros(context, MPT_I64, shape);
    mpt__host_free(context, values, bytes);
    if (dtype == MPT_I64) return counted;
    mpt_tensor cast = mpt_cast(counted, dtype);
    mpt_release(counted);
    return cast;
}

MPTRAIN_API mpt_tensor mpt_wrap(mpt_context *context, mpt_dtype dtype, mpt_shape shape,
                                void *data) {
    if (!mpt__enter(context, "mpt_wrap")) return mpt__null(context);
    int64_t bytes = mpt__checked_bytes(context, dtype, &shape);
    if (bytes < 0) return mpt__null(context);
    if (!context->backend.synchronous) {
        mpt__error(context, MPT_ERROR_UNSUPPORTED,
                   "only CPU contexts can borrow memory; use mpt_from");
        return mpt__null(context);
    }
    size_t width = mpt__dtype_info[dtype].bytes;
    if ((!data && bytes > 0) || ((uintptr_t)data % width) != 0) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "data must be %lld bytes aligned to %lld",
                   (long long)bytes, (long long)width);
        return mpt__null(context);
    }
    uint32_t storage = mpt__storage_wrap(context, data, bytes);
    if (!storage) return mpt__null(context);
    mpt__tensor *tensor = mpt__tensor_on(context, storage, dtype, &shape, NULL, 0);
    mpt__storage_release(context, storage);
    return mpt__handle(context, tensor);
}

/* ==== Asking ==== */

MPTRAIN_API mpt_shape mpt_get_shape(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    mpt_shape none = MPT_SCALAR;
    none.rank = -1;
    if (!mpt__enter(context, "mpt_get_shape")) return none;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    return found ? mpt__shape_of(found) : none;
}

MPTRAIN_API mpt_dtype mpt_get_dtype(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_get_dtype")) return MPT_DTYPE_NONE;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    return found ? (mpt_dtype)found->dtype : MPT_DTYPE_NONE;
}

MPTRAIN_API int64_t mpt_numel(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_numel")) return -1;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    return found ? mpt__tensor_numel(found) : -1;
}

MPTRAIN_API bool mpt_is_contiguous(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_is_contiguous")) return false;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    return found && mpt__tensor_contiguous(found);
}

MPTRAIN_API bool mpt_valid(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!context || tensor.slot == 0 || tensor.slot >= (uint64_t)context->tensor_count)
        return false;
    const mpt__tensor *found = mpt__slot(context, tensor.slot);
    return found->generation == tensor.generation && found->handle && found->storage;
}

MPTRAIN_API mpt_status mpt_expect_shape(mpt_tensor tensor, mpt_shape shape, const char *what) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_expect_shape"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    const char *name = what ? what : "tensor";
    const mpt__tensor *found = mpt__at(context, tensor, name);
    if (!found) return context->base.status;
    bool fits = shape.rank == found->rank;
    for (int i = 0; fits && i < shape.rank; i++)
        fits = shape.dim[i] == -1 || shape.dim[i] == found->shape[i];
    if (fits) return MPT_OK;
    mpt_shape got = mpt__shape_of(found);
    if (shape.rank < 0 || shape.rank > MPT_MAX_RANK)
        return mpt__error(context, MPT_ERROR_SHAPE, "%s: rank %d is not in 0..%d", name, shape.rank,
                          MPT_MAX_RANK);
    return mpt__error(context, MPT_ERROR_SHAPE, "%s has shape %S, expected %S (-1 fits any size)",
                      name, &got, &shape);
}

/* ==== Lifetime of single tensors ==== */

MPTRAIN_API mpt_tensor mpt_keep(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_keep")) return mpt__null(context);
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    if (!found) return mpt__null(context);
    mpt_shape shape = mpt__shape_of(found);
    int depth = context->scope_depth;
    context->scope_depth = 0;
    mpt__tensor *kept = mpt__tensor_on(context, found->storage, (mpt_dtype)found->dtype, &shape,
                                       found->stride, found->offset);
    context->scope_depth = depth;
    if (kept) kept->flags |= MPT__KEPT;
    return mpt__handle(context, kept);
}

MPTRAIN_API void mpt_release(mpt_tensor tensor) {
    mpt_context *context = tensor.context;
    if (!context || !mpt_valid(tensor)) return;
    mpt__tensor *found = mpt__slot(context, tensor.slot);
    if (found->parameter || (found->flags & MPT__GRADIENT)) {
        if (mpt__enter(context, "mpt_release"))
            mpt__error(context, MPT_ERROR_STATE, "%s",
                       found->parameter
                           ? "parameters live as long as their module; see mpt_module_destroy"
                           : "a gradient lives as long as its leaf; mpt_clear_grad ends it");
        return;
    }
    mpt__tensor_drop(context, found);
}

/* ==== Reading and writing ==== */

/* All elements in row-major order as `dtype`, into host memory. */
static mpt_status mpt__read_as(mpt_context *context, const mpt__tensor *tensor, mpt_dtype dtype,
                               void *destination) {
    int64_t width = mpt__dtype_info[dtype].bytes, numel = mpt__tensor_numel(tensor);
    if ((mpt_dtype)tensor->dtype == dtype && mpt__tensor_contiguous(tensor))
        return mpt__download(context, destination, tensor->storage, tensor->offset * width,
                             numel * width);
    mpt_shape shape = mpt__shape_of(tensor);
    mpt__tensor *copy = mpt__tensor_new(context, dtype, &shape, MPT_MEMORY_WORKSPACE);
    if (!copy) return context->base.status;
    mpt__launch *launch = mpt__launch_begin(context, MPT__K_COPY);
    mpt__operand_of(launch, 0, tensor, MPT__READ);
    mpt__operand_of(launch, 1, copy, MPT__WRITE);
    mpt_status status = mpt__submit(context, launch);
    if (status == MPT_OK)
        status = mpt__download(context, destination, copy->storage, 0, numel * width);
    mpt__tensor_drop(context, copy);
    return status;
}

MPTRAIN_API mpt_status mpt_read(mpt_tensor tensor, void *destination, size_t bytes) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_read")) return context ? context->base.status : MPT_ERROR_HANDLE;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    if (!found) return context->base.status;
    int64_t need = mpt__tensor_numel(found) * mpt__dtype_info[found->dtype].bytes;
    if ((!destination && need > 0) || (uint64_t)need != bytes)
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "the tensor has %lld bytes, got room for %llu", (long long)need,
                          (unsigned long long)(destination ? bytes : 0));
    return mpt__read_as(context, found, (mpt_dtype)found->dtype, destination);
}

MPTRAIN_API mpt_status mpt_read_f32(mpt_tensor tensor, float *destination, int64_t count) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_read_f32"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    if (!found) return context->base.status;
    int64_t need = mpt__tensor_numel(found);
    if ((!destination && need > 0) || need != count)
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "the tensor has %lld elements, got room for %lld", (long long)need,
                          (long long)(destination ? count : 0));
    return mpt__read_as(context, found, MPT_F32, destination);
}

MPTRAIN_API double mpt_item(mpt_tensor tensor) {
    double value = MPT__NAN_F64;
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_item")) return value;
    const mpt__tensor *found = mpt__at(context, tensor, "tensor");
    if (!found) return value;
    if (mpt__tensor_numel(found) != 1) {
        mpt_shape shape = mpt__shape_of(found);
        mpt__error(context, MPT_ERROR_SHAPE, "expected one element, the tensor has shape %S",
                   &shape);
        return value;
    }
    if (found->dtype == MPT_I64) {
        int64_t integer = 0;
        if (mpt__read_as(context, found, MPT_I64, &integer) == MPT_OK) value = (double)integer;
        return value;
    }
    double wide;
    return mpt__read_as(context, found, MPT_F64, &wide) == MPT_OK ? wide : value;
}

/* Elements in row-major order over a tensor, which may be strided; converts from `dtype`. */
static mpt_status mpt__write_as(mpt_context *context, mpt__tensor *tensor, mpt_dtype dtype,
                                const void *source) {
    int64_t width = mpt__dtype_info[dtype].bytes, numel = mpt__tensor_numel(tensor);
    if ((mpt_dtype)tensor->dtype == dtype && mpt__tensor_contiguous(tensor))
        return mpt__upload(context, tensor->storage, tensor->offset * width, source, numel * width);
    mpt_shape shape = mpt__shape_of(tensor);
    mpt__tensor *copy = mpt__tensor_new(context, dtype, &shape, MPT_MEMORY_WORKSPACE);
    if (!copy) return context->base.status;
    mpt_status status = mpt__upload(context, copy->storage, 0, source, numel * width);
    if (status == MPT_OK) {
        mpt__launch *launch = mpt__launch_begin(context, MPT__K_COPY);
        mpt__operand_of(launch, 0, copy, MPT__READ);
        mpt__operand_of(launch, 1, tensor, MPT__WRITE);
        status = mpt__submit(context, launch);
        context->storages[tensor->storage].version++;
    }
    mpt__tensor_drop(context, copy);
    return status;
}

static mpt_status mpt__write_f32(mpt_context *context, mpt__tensor *tensor, const float *values) {
    return mpt__write_as(context, tensor, MPT_F32, values);
}

MPTRAIN_API mpt_status mpt_write(mpt_tensor tensor, const void *source, size_t bytes) {
    mpt_context *context = tensor.context;
    if (!mpt__enter(context, "mpt_write")) return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__tensor *found = mpt__at(context, tensor, "tensor");
    if (!found) return context->base.status;
    int64_t need = mpt__tensor_numel(found) * mpt__dtype_info[found->dtype].bytes;
    if ((!source && need > 0) || (uint64_t)need != bytes)
        return mpt__error(context, MPT_ERROR_ARGUMENT, "the tensor has %lld bytes, got %llu",
                          (long long)need, (unsigned long long)(source ? bytes : 0));
    for (int i = 0; i < found->rank; i++) {
        if (found->stride[i] == 0 && found->shape[i] > 1)
            return mpt__error(
                context, MPT_ERROR_STATE,
                "an expanded tensor shows one element in many places; mpt_clone it first");
    }
    return mpt__write_as(context, found, (mpt_dtype)found->dtype, source);
}

MPTRAIN_API bool mpt_allclose(mpt_tensor a, mpt_tensor b, double rtol, double atol) {
    mpt_context *context = a.context ? a.context : b.context;
    if (!mpt__enter(context, "mpt_allclose")) return false;
    const mpt__tensor *ta = mpt__at(context, a, "argument 1");
    const mpt__tensor *tb = ta ? mpt__at(context, b, "argument 2") : NULL;
    if (!tb) return false;
    mpt_shape sa = mpt__shape_of(ta), sb = mpt__shape_of(tb);
    int64_t numel = mpt__tensor_numel(ta);
    bool same = ta->rank == tb->rank;
    for (int i = 0; same && i < ta->rank; i++) same = ta->shape[i] == tb->shape[i];
    if (!same) {
        mpt__error(context, MPT_ERROR_SHAPE, "shapes %S and %S differ", &sa, &sb);
        return false;
    }
    size_t bytes = (size_t)numel * sizeof(double);
    if (numel == 0) return true;
    double *va = (double *)mpt__host_array(context, numel, sizeof(double));
    double *vb = va ? (double *)mpt__host_array(context, numel, sizeof(double)) : NULL;
    bool close = va && vb && mpt__read_as(context, ta, MPT_F64, va) == MPT_OK &&
                 mpt__read_as(context, tb, MPT_F64, vb) == MPT_OK;
    for (int64_t i = 0; close && i < numel; i++) {
        double distance = va[i] > vb[i] ? va[i] - vb[i] : vb[i] - va[i];
        double size = vb[i] < 0 ? -vb[i] : vb[i];
        bool equal = va[i] == vb[i]; /* infinities, whose distance is NaN */
        close = equal || (mpt__f64_is_finite(distance) && distance <= atol + rtol * size);
    }
    mpt__host_free(context, va, bytes);
    mpt__host_free(context, vb, bytes);
    return close;
}

/* ==== Text ==== */

MPTRAIN_API mpt_print_config mpt_print_config_default(void) {
    mpt_print_config config;
    config.digits = 4;
    config.edge = 3;
    return config;
}

typedef struct mpt__printing {
    mpt_context *context;
    const mpt__tensor *tensor;
    mpt_print_config config;
    char *text;
    size_t size, need;
} mpt__printing;

static void mpt__print_text(mpt__printing *printing, const char *piece) {
    char *at = printing->need < printing->size ? printing->text + printing->need : NULL;
    printing->need += mpt__format_text(at, at ? printing->size - printing->need : 0, "%s", piece);
}

static void mpt__print_value(mpt__printing *printing, int64_t offset) {
    mpt__tensor element = *printing->tensor;
    element.rank = 0;
    element.offset = offset;
    char piece[48];
    if (mpt__dtype_info[element.dtype].is_float) {
        double value = 0;
        char format[8];
        mpt__format_text(format, sizeof format, "%%.%dg", printing->config.digits);
        if (mpt__read_as(printing->context, &element, MPT_F64, &value) != MPT_OK) return;
        mpt__format_text(piece, sizeof piece, format, value);
    } else {
        int64_t value = 0;
        if (mpt__read_as(printing->context, &element, MPT_I64, &value) != MPT_OK) return;
        mpt__format_text(piece, sizeof piece, "%lld", (long long)value);
    }
    mpt__print_text(printing, piece);
}

static void mpt__print_dimension(mpt__printing *printing, int dim, int64_t offset) {
    const mpt__tensor *tensor = printing->tensor;
    if (dim == tensor->rank) {
        mpt__print_value(printing, offset);
        return;
    }
    int64_t size = tensor->shape[dim], edge = printing->config.edge;
    mpt__print_text(printing, "[");
    for (int64_t i = 0; i < size && printing->context->base.status == MPT_OK; i++) {
        if (i > 0) {
            mpt__print_text(printing, dim + 1 == tensor->rank ? ", " : ",\n");
            for (int d = 0; d <= dim && dim + 1 < tensor->rank; d++) mpt__print_text(printing, " ");
        }
        if (i == edge && size > 2 * edge) {
            mpt__print_text(printing, "...");
            i = size - edge - 1;
            continue;
        }
        mpt__print_dimension(printing, dim + 1, offset + i * tensor->stride[dim]);
    }
    mpt__print_text(printing, "]");
}

MPTRAIN_API size_t mpt_format(mpt_tensor tensor, const mpt_print_config *config, char *text,
                              size_t size) {
    mpt_context *context = tensor.context;
    mpt__printing printing;
    printing.context = context;
    printing.config = config ? *config : mpt_print_config_default();
    printing.text = text;
    printing.size = text ? size : 0;
    printing.need = 0;
    if (printing.size) text[0] = '\0';
    if (!mpt__enter(context, "mpt_format")) return 0;
    printing.tensor = mpt__at(context, tensor, "tensor");
    if (!printing.tensor) return 0;
    if (printing.config.digits < 1 || printing.config.digits > 17 || printing.config.edge < 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "digits %d, edge %d: expected 1..17 and 1 or more",
                   printing.config.digits, printing.config.edge);
        return 0;
    }
    mpt__print_dimension(&printing, 0, printing.tensor->offset);
    mpt_shape shape = mpt__shape_of(printing.tensor);
    char piece[160];
    mpt__format_text(piece, sizeof piece, " %s %S",
                     mpt_dtype_name((mpt_dtype)printing.tensor->dtype), &shape);
    mpt__print_text(&printing, piece);
    return printing.need;
}

#endif
