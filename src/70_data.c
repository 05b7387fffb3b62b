/* ---------------------------------------------------------------------------------------------
 * 70_data.c: datasets: memory, idx files, user callbacks, subsets and splits.
 *
 * A dataset hands out one sample at a time, from any thread, without allocating and without
 * touching the context: that is what loader workers (72_loader.c) rely on. Resident data keeps its
 * stored dtype (u8 stays u8) and is converted and normalised on the way into a batch.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__70_DATA_INCLUDED
#define MPT__70_DATA_INCLUDED

#include "11_parallel.c"
#include "12_random.c"
#include "13_dtype.c"
#include "17_inflate.c"
#include "18_idx.c"
#include "40_tensor.c"

/* ==== Contract ==== */

typedef struct mpt__dataset mpt__dataset;

/* What a kind of dataset does. Both functions are called by several threads at once. */
typedef struct mpt__dataset_class {
    const char *name;
    /* Writes a sample's input (NULL: not wanted) and target (NULL: not wanted, or there is none).
       On false, `error` holds a sentence. */
    bool (*sample)(const mpt__dataset *dataset, int64_t index, uint64_t seed, void *input,
                   void *target, char *error, size_t error_size);
    /* Where the input of a sample lies in memory. NULL function: only `sample` can make it. */
    const void *(*resident)(const mpt__dataset *dataset, int64_t index);
} mpt__dataset_class;

struct mpt__dataset {
    const mpt__dataset_class *cls;
    int32_t references; /* the handle, subsets and loaders: the last one to go frees the data */
    int32_t loaders;    /* while there are any, the delivered values cannot change */
    int64_t count;
    mpt_dtype dtype, target_dtype; /* target: MPT_DTYPE_NONE if there is none */
    mpt_shape shape, target_shape;
    int64_t numel, target_numel;       /* elements of one sample */
    size_t input_bytes, target_bytes;  /* of one sample; what `sample` writes */
    bool normalised;
    float mean, deviation;

    const uint8_t *inputs, *targets; /* memory */
    size_t owned_inputs, owned_targets; /* bytes from the allocator; 0: the caller's memory */
    bool byte_targets; /* class numbers are stored as u8 and delivered as i64 */

    bool (*user_sample)(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size);
    void *user;

    mpt__dataset *parent; /* subset: never itself a subset */
    int64_t first;        /* sample i is the parent's first + i, or indices[i] */
    int64_t *indices;
};

/* How the inputs of a dataset become the elements of a batch. Integer inputs other than u8 (token
   ids) arrive as they are; all else arrives in `to`. */
typedef struct mpt__delivery {
    mpt_dtype from, to;
    bool copies; /* same dtype, nothing to compute */
    bool normalised;
    float mean, deviation;
    float table_f32[256]; /* u8: the result of every value */
    uint16_t table_half[256];
    const mpt__convert_table *convert;
} mpt__delivery;

static void mpt__data_init(mpt_context *context);
/* The dataset of a handle, or NULL with an error recorded. */
static mpt__dataset *mpt__dataset_at(mpt_context *context, mpt_dataset handle);
static void mpt__dataset_release(mpt_context *context, mpt__dataset *dataset);
static void mpt__delivery_begin(mpt_context *context, mpt__delivery *delivery,
                                const mpt__dataset *dataset, mpt_dtype to);
/* Bytes of scratch that mpt__dataset_fetch needs, per thread. */
static size_t mpt__fetch_scratch(const mpt__dataset *dataset, const mpt__delivery *delivery);
/* One sample, converted, into a batch. Safe on any thread; the floating-point state must be that of
   mpt__flush_denormals(false). */
static bool mpt__dataset_fetch(const mpt__dataset *dataset, const mpt__delivery *delivery,
                               int64_t index, uint64_t seed, void *scratch, void *input,
                               void *target, char *error, size_t error_size);

/* Elements of any dtype to fp32 and back. Any alignment. Conversion to integers is not offered. */
static void mpt__elements_to_f32(mpt_dtype dtype, const void *from, float *to, size_t n);
/* `to` is aligned for its dtype. */
static void mpt__elements_from_f32(const mpt__convert_table *convert, mpt_dtype dtype,
                                   const float *from, void *to, size_t n);

/* A file read from start to end. Every failure is recorded, with the path. */
typedef struct mpt__reader {
    mpt__base *base;
    void *handle;
    const char *path;
    int64_t size, position;
} mpt__reader;
static bool mpt__reader_open(mpt__reader *file, mpt__base *base, const char *path);
/* All of the bytes, or an error. */
static bool mpt__reader_read(mpt__reader *file, void *to, size_t bytes);
static bool mpt__reader_seek(mpt__reader *file, int64_t position);
static void mpt__reader_close(mpt__reader *file);

/* ==== Elements ==== */

#define MPT__ELEMENT_BLOCK 256 /* elements converted at a time through the stack */

/* Loads n elements of `type` from bytes of any alignment. */
#define MPT__LOAD_ELEMENTS(type, expression)                                                       \
    for (size_t i = 0; i < n; i++) {                                                               \
        type value;                                                                                \
        memcpy(&value, bytes + i * sizeof value, sizeof value);                                    \
        to[i] = (expression);                                                                      \
    }                                                                                              \
    break

static void mpt__elements_to_f32(mpt_dtype dtype, const void *from, float *to, size_t n) {
    const uint8_t *bytes = (const uint8_t *)from;
    switch (dtype) {
    case MPT_F32: memcpy(to, from, n * sizeof *to); break;
    case MPT_F16: MPT__LOAD_ELEMENTS(uint16_t, mpt__f16_to_f32(value));
    case MPT_BF16: MPT__LOAD_ELEMENTS(uint16_t, mpt__bf16_to_f32(value));
#ifndef MPTRAIN_NO_FP8
    case MPT_F8E4M3: MPT__LOAD_ELEMENTS(uint8_t, mpt__f8e4m3_to_f32(value));
    case MPT_F8E5M2: MPT__LOAD_ELEMENTS(uint8_t, mpt__f8e5m2_to_f32(value));
#endif
    case MPT_F64: MPT__LOAD_ELEMENTS(double, (float)value);
    case MPT_I64: MPT__LOAD_ELEMENTS(int64_t, (float)value);
    case MPT_I32: MPT__LOAD_ELEMENTS(int32_t, (float)value);
    case MPT_U8: MPT__LOAD_ELEMENTS(uint8_t, (float)value);
    case MPT_BOOL: MPT__LOAD_ELEMENTS(uint8_t, value ? 1.0f : 0.0f);
    default: memset(to, 0, n * sizeof *to); break;
    }
}
#undef MPT__LOAD_ELEMENTS

static void mpt__elements_from_f32(const mpt__convert_table *convert, mpt_dtype dtype,
                                   const float *from, void *to, size_t n) {
    if (dtype == MPT_F32) memcpy(to, from, n * sizeof *from);
    if (dtype == MPT_F16) convert->f32_to_f16(from, (uint16_t *)to, n);
    if (dtype == MPT_BF16) convert->f32_to_bf16(from, (uint16_t *)to, n);
}

/* ==== Delivery ==== */

/* Rounded to fp32 after each operation, also where C computes floats in double (s390x). */
static MPT__INLINE float mpt__normalised(const mpt__delivery *delivery, float value) {
    float centered = value - delivery->mean;
    float scaled = centered / delivery->deviation;
    return scaled;
}

static void mpt__delivery_begin(mpt_context *context, mpt__delivery *delivery,
                                const mpt__dataset *dataset, mpt_dtype to) {
    bool whole = dataset->dtype == MPT_I64 || dataset->dtype == MPT_I32;
    memset(delivery, 0, sizeof *delivery);
    delivery->convert = mpt__convert_table_for(context->config.isa);
    delivery->from = dataset->dtype;
    delivery->to = whole ? dataset->dtype : to;
    delivery->normalised = dataset->normalised;
    delivery->mean = dataset->mean;
    delivery->deviation = dataset->deviation;
    delivery->copies = delivery->from == delivery->to && !delivery->normalised;
    if (delivery->from != MPT_U8) return;
    /* In this order and in fp32, as torchvision's ToTensor and Normalize: the same bits. */
    for (int i = 0; i < 256; i++) {
        float value = (float)i / 255.0f;
        if (delivery->normalised) value = mpt__normalised(delivery, value);
        delivery->table_f32[i] = value;
        delivery->table_half[i] = to == MPT_F16 ? mpt__f32_to_f16(value) : mpt__f32_to_bf16(value);
    }
}

static void mpt__deliver(const mpt__delivery *delivery, const void *from, void *to, int64_t numel) {
    size_t n = (size_t)numel, size = mpt__dtype_info[delivery->from].bytes;
    size_t step = mpt__dtype_info[delivery->to].bytes;
    if (delivery->copies) {
        memcpy(to, from, n * size);
    } else if (delivery->from == MPT_U8 && delivery->to == MPT_F32) {
        const uint8_t *bytes = (const uint8_t *)from;
        float *out = (float *)to;
        for (size_t i = 0; i < n; i++) out[i] = delivery->table_f32[bytes[i]];
    } else if (delivery->from == MPT_U8) {
        const uint8_t *bytes = (const uint8_t *)from;
        uint16_t *out = (uint16_t *)to;
        for (size_t i = 0; i < n; i++) out[i] = delivery->table_half[bytes[i]];
    } else {
        float block[MPT__ELEMENT_BLOCK];
        for (size_t done = 0; done < n;) {
            size_t take = n - done < MPT__ELEMENT_BLOCK ? n - done : MPT__ELEMENT_BLOCK;
            mpt__elements_to_f32(delivery->from, (const uint8_t *)from + done * size, block, take);
            if (delivery->normalised) {
                for (size_t i = 0; i < take; i++) block[i] = mpt__normalised(delivery, block[i]);
            }
            mpt__elements_from_f32(delivery->convert, delivery->to, block,
                                   (uint8_t *)to + done * step, take);
            done += take;
        }
    }
}

static size_t mpt__fetch_scratch(const mpt__dataset *dataset, const mpt__delivery *delivery) {
    return dataset->cls->resident || delivery->copies ? 0 : dataset->input_bytes;
}

/* A subset passes on to what it is a subset of. */
static const mpt__dataset *mpt__dataset_root(const mpt__dataset *dataset, int64_t *index) {
    if (!dataset->parent) return dataset;
    *index = dataset->indices ? dataset->indices[*index] : dataset->first + *index;
    return dataset->parent;
}

static bool mpt__dataset_fetch(const mpt__dataset *dataset, const mpt__delivery *delivery,
                               int64_t index, uint64_t seed, void *scratch, void *input,
                               void *target, char *error, size_t error_size) {
    const mpt__dataset *root = mpt__dataset_root(dataset, &index);
    if (root->target_dtype == MPT_DTYPE_NONE) target = NULL;
    if (error_size) error[0] = 0;
    if (root->cls->resident) {
        if (input) mpt__deliver(delivery, root->cls->resident(root, index), input, root->numel);
        return !target || root->cls->sample(root, index, seed, NULL, target, error, error_size);
    }
    bool direct = !input || delivery->copies;
    if (!root->cls->sample(root, index, seed, direct ? input : scratch, target, error, error_size))
        return false;
    if (!direct) mpt__deliver(delivery, scratch, input, root->numel);
    return true;
}

/* ==== Datasets as objects ==== */

static mpt_dataset mpt__dataset_null(mpt_context *context) {
    mpt_dataset null;
    null.context = context, null.slot = 0, null.generation = 0;
    return null;
}

static mpt__dataset *mpt__dataset_at(mpt_context *context, mpt_dataset handle) {
    return (mpt__dataset *)mpt__object_at(context, MPT__DATASET, handle.context, handle.slot,
                                          handle.generation);
}

static void mpt__dataset_release(mpt_context *context, mpt__dataset *dataset) {
    mpt__base *base = &context->base;
    if (--dataset->references > 0) return;
    if (dataset->parent) mpt__dataset_release(context, dataset->parent);
    if (dataset->indices) {
        mpt__release(base, dataset->indices, (size_t)dataset->count * sizeof(int64_t),
                     MPT_MEMORY_DATA);
    }
    /* Owned memory came writable from the allocator: the cast gives back what const only guards. */
    if (dataset->owned_inputs) {
        mpt__release(base, (void *)(uintptr_t)dataset->inputs, dataset->owned_inputs,
                     MPT_MEMORY_DATA);
    }
    if (dataset->owned_targets) {
        mpt__release(base, (void *)(uintptr_t)dataset->targets, dataset->owned_targets,
                     MPT_MEMORY_DATA);
    }
    mpt__host_free(context, dataset, sizeof *dataset);
}

static void mpt__dataset_destroy(mpt_context *context, void *object) {
    mpt__dataset_release(context, (mpt__dataset *)object);
}

static void mpt__data_init(mpt_context *context) {
    context->objects[MPT__DATASET].destroy = mpt__dataset_destroy;
}

/* Elements and bytes of one sample; false with an error recorded if `shape` makes no sense or if
   `count` samples overflow. */
static bool mpt__sample_size(mpt_context *context, const char *what, mpt_dtype dtype,
                             const mpt_shape *shape, int64_t count, int64_t *numel, size_t *bytes) {
    int64_t size = mpt__dtype_info[dtype].bytes;
    if (shape->rank < 0 || shape->rank >= MPT_MAX_RANK) {
        mpt__error(context, MPT_ERROR_SHAPE,
                   "%s shape of rank %d: samples have rank 0 to %d, a batch has one more", what,
                   shape->rank, MPT_MAX_RANK - 1);
        return false;
    }
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] >= 1) continue;
        mpt__error(context, MPT_ERROR_SHAPE, "%s shape %S: every dimension must be at least 1",
                   what, shape);
        return false;
    }
    *numel = mpt__shape_numel(shape);
    if (*numel < 0 || *numel > PTRDIFF_MAX / size / count) {
        mpt__error(context, MPT_ERROR_SHAPE,
                   "%s: %lld samples of shape %S are more than memory holds",
                   what, count, shape);
        return false;
    }
    *bytes = (size_t)(*numel * size);
    return true;
}

/* A checked dataset with one reference, or NULL with an error recorded. */
static mpt__dataset *mpt__dataset_new(mpt_context *context, const mpt__dataset_class *cls,
                                      int64_t count, mpt_dtype dtype, const mpt_shape *shape,
                                      mpt_dtype target_dtype, const mpt_shape *target_shape) {
    mpt__dataset made;
    memset(&made, 0, sizeof made);
    if (count < 1) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "count is %lld; a dataset has at least one sample",
                   count);
        return NULL;
    }
    if (dtype <= MPT_DTYPE_NONE || dtype >= MPT_DTYPE_COUNT || dtype == MPT_F8E4M3 ||
        dtype == MPT_F8E5M2) {
        mpt__error(context, MPT_ERROR_DTYPE,
                   "input dtype %s: inputs are u8, bool, i32, i64, f16, bf16, f32 or f64",
                   mpt_dtype_name(dtype));
        return NULL;
    }
    if (target_dtype != MPT_DTYPE_NONE && target_dtype != MPT_I64 && target_dtype != MPT_F32 &&
        target_dtype != MPT_F16 && target_dtype != MPT_BF16) {
        mpt__error(context, MPT_ERROR_DTYPE,
                   "target dtype %s: targets are i64 class numbers, or f32, f16, bf16",
                   mpt_dtype_name(target_dtype));
        return NULL;
    }
    if (!mpt__sample_size(context, "input", dtype, shape, count, &made.numel, &made.input_bytes))
        return NULL;
    if (target_dtype != MPT_DTYPE_NONE) {
        if (!mpt__sample_size(context, "target", target_dtype, target_shape, count,
                              &made.target_numel, &made.target_bytes))
            return NULL;
        made.target_shape = *target_shape;
    }
    made.cls = cls;
    made.references = 1;
    made.count = count;
    made.dtype = dtype;
    made.target_dtype = target_dtype;
    made.shape = *shape;
    mpt__dataset *dataset = (mpt__dataset *)mpt__host_new(context, sizeof *dataset);
    if (dataset) *dataset = made;
    return dataset;
}

/* Gives a finished dataset (NULL: the error null) to the table; on failure it is gone. */
static mpt_dataset mpt__dataset_publish(mpt_context *context, mpt__dataset *dataset) {
    mpt_dataset handle = mpt__dataset_null(context);
    if (!dataset) return handle;
    handle.slot = mpt__object_new(context, MPT__DATASET, dataset, &handle.generation);
    if (handle.slot == 0) mpt__dataset_release(context, dataset);
    return handle;
}

/* ==== Memory ==== */

static const void *mpt__memory_resident(const mpt__dataset *dataset, int64_t index) {
    return dataset->inputs + (size_t)index * dataset->input_bytes;
}

static bool mpt__memory_sample(const mpt__dataset *dataset, int64_t index, uint64_t seed,
                               void *input, void *target, char *error, size_t error_size) {
    size_t at = (size_t)index;
    (void)seed, (void)error, (void)error_size;
    if (input) memcpy(input, dataset->inputs + at * dataset->input_bytes, dataset->input_bytes);
    if (target && dataset->byte_targets) {
        const uint8_t *bytes = dataset->targets + at * (size_t)dataset->target_numel;
        int64_t *out = (int64_t *)target;
        for (int64_t i = 0; i < dataset->target_numel; i++) out[i] = bytes[i];
    } else if (target) {
        memcpy(target, dataset->targets + at * dataset->target_bytes, dataset->target_bytes);
    }
    return true;
}

static const mpt__dataset_class mpt__memory_class = {"memory", mpt__memory_sample,
                                                     mpt__memory_resident};

MPTRAIN_API mpt_memory_dataset_config mpt_memory_dataset_config_default(void) {
    mpt_memory_dataset_config config;
    memset(&config, 0, sizeof config);
    config.dtype = MPT_F32;
    config.target_dtype = MPT_I64;
    config.shape = MPT_SCALAR;
    config.target_shape = MPT_SCALAR;
    config.copy = true;
    return config;
}

/* A copy accounted as data; NULL with an error recorded. */
static const uint8_t *mpt__data_copy(mpt_context *context, const void *from, size_t bytes) {
    void *copy = mpt__allocate(&context->base, bytes, MPT_MEMORY_DATA);
    if (copy) memcpy(copy, from, bytes);
    return (const uint8_t *)copy;
}

static bool mpt__memory_fill(mpt_context *context, mpt__dataset *dataset,
                             const mpt_memory_dataset_config *config) {
    size_t inputs = (size_t)dataset->count * dataset->input_bytes;
    size_t targets = (size_t)dataset->count * dataset->target_bytes;
    if (!config->copy) {
        dataset->inputs = (const uint8_t *)config->inputs;
        dataset->targets = (const uint8_t *)config->targets;
        return true;
    }
    dataset->inputs = mpt__data_copy(context, config->inputs, inputs);
    if (!dataset->inputs) return false;
    dataset->owned_inputs = inputs;
    if (!config->targets) return true;
    dataset->targets = mpt__data_copy(context, config->targets, targets);
    if (!dataset->targets) return false;
    dataset->owned_targets = targets;
    return true;
}

MPTRAIN_API mpt_dataset mpt_memory_dataset(mpt_context *context,
                                           const mpt_memory_dataset_config *config) {
    if (!mpt__enter(context, "mpt_memory_dataset")) return mpt__dataset_null(context);
    if (!config || !config->inputs) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s is NULL; a dataset needs its inputs",
                   config ? "config->inputs" : "config");
        return mpt__dataset_null(context);
    }
    mpt_dtype target_dtype = config->targets ? config->target_dtype : MPT_DTYPE_NONE;
    if (config->targets && target_dtype == MPT_DTYPE_NONE) {
        mpt__error(context, MPT_ERROR_DTYPE, "config->targets is given without a target_dtype");
        return mpt__dataset_null(context);
    }
    mpt__dataset *dataset = mpt__dataset_new(context, &mpt__memory_class, config->count,
                                             config->dtype,
                                             &config->shape, target_dtype, &config->target_shape);
    if (dataset && !mpt__memory_fill(context, dataset, config)) {
        mpt__dataset_release(context, dataset);
        dataset = NULL;
    }
    return mpt__dataset_publish(context, dataset);
}

/* ==== User ==== */

static bool mpt__user_sample(const mpt__dataset *dataset, int64_t index, uint64_t seed, void *input,
                             void *target, char *error, size_t error_size) {
    return dataset->user_sample(dataset->user, index, seed, input, target, error, error_size);
}

static const mpt__dataset_class mpt__user_class = {"user", mpt__user_sample, NULL};

MPTRAIN_API mpt_dataset mpt_user_dataset(mpt_context *context,
                                         const mpt_user_dataset_config *config) {
    if (!mpt__enter(context, "mpt_user_dataset")) return mpt__dataset_null(context);
    if (!config || !config->sample) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "%s is NULL", config ? "config->sample" : "config");
        return mpt__dataset_null(context);
    }
    mpt__dataset *dataset =
        mpt__dataset_new(context, &mpt__user_class, config->count, config->dtype, &config->shape,
                         config->target_dtype, &config->target_shape);
    if (dataset) {
        dataset->user_sample = config->sample;
        dataset->user = config->user;
    }
    return mpt__dataset_publish(context, dataset);
}

/* ==== Subsets ==== */

static bool mpt__subset_sample(const mpt__dataset *dataset, int64_t index, uint64_t seed,
                               void *input, void *target, char *error, size_t error_size) {
    const mpt__dataset *root = mpt__dataset_root(dataset, &index);
    return root->cls->sample(root, index, seed, input, target, error, error_size);
}

static const void *mpt__subset_resident(const mpt__dataset *dataset, int64_t index) {
    const mpt__dataset *root = mpt__dataset_root(dataset, &index);
    return root->cls->resident(root, index);
}

/* Two rows, so that a subset has no `resident` where what it is a subset of has none. */
static const mpt__dataset_class mpt__subset_classes[2] = {
    {"subset", mpt__subset_sample, NULL}, {"subset", mpt__subset_sample, mpt__subset_resident}};

/* Samples first .. first+count-1, or those of `order` (count indices into `dataset`), of a dataset;
   a subset of a subset refers to what both stem from. NULL with an error recorded. */
static mpt__dataset *mpt__subset_new(mpt_context *context, mpt__dataset *dataset, int64_t first,
                                     const int64_t *order, int64_t count) {
    mpt__dataset *root = dataset->parent ? dataset->parent : dataset;
    mpt__dataset *subset = (mpt__dataset *)mpt__host_new(context, sizeof *subset);
    if (!subset) return NULL;
    *subset = *dataset;
    subset->cls = &mpt__subset_classes[root->cls->resident ? 1 : 0];
    subset->references = 1;
    subset->loaders = 0;
    subset->count = count;
    subset->owned_inputs = subset->owned_targets = 0;
    subset->parent = root;
    subset->first = dataset->first + first;
    subset->indices = NULL;
    root->references++;
    if (order || dataset->indices) {
        subset->indices = (int64_t *)mpt__allocate(&context->base, (size_t)count * sizeof(int64_t),
                                                   MPT_MEMORY_DATA);
        if (!subset->indices) {
            mpt__dataset_release(context, subset);
            return NULL;
        }
        for (int64_t i = 0; i < count; i++) {
            int64_t index = order ? order[i] : first + i;
            mpt__dataset_root(dataset, &index);
            subset->indices[i] = index;
        }
    }
    return subset;
}

MPTRAIN_API mpt_dataset mpt_subset(mpt_dataset dataset, int64_t first, int64_t count) {
    mpt_context *context = dataset.context;
    if (!mpt__enter(context, "mpt_subset")) return mpt__dataset_null(context);
    mpt__dataset *whole = mpt__dataset_at(context, dataset);
    if (!whole) return mpt__dataset_null(context);
    if (first < 0 || count < 1 || first > whole->count || count > whole->count - first) {
        mpt__error(context, MPT_ERROR_INDEX,
                   "%lld samples from %lld on are not in a dataset of %lld; a subset is not empty",
                   count, first, whole->count);
        return mpt__dataset_null(context);
    }
    return mpt__dataset_publish(context, mpt__subset_new(context, whole, first, NULL, count));
}

/* The sizes of the parts: n * fraction rounded down, what is left over dealt out from the first
   part on, as PyTorch does. False with an error recorded. */
static bool mpt__split_sizes(mpt_context *context, int64_t total, const double *fractions, int n,
                             int64_t *sizes) {
    double sum = 0.0;
    int64_t left = total;
    for (int i = 0; i < n; i++) {
        if (!(fractions[i] > 0.0 && fractions[i] <= 1.0)) {
            mpt__error(context, MPT_ERROR_ARGUMENT, "fraction %d is %g; fractions lie in (0, 1]", i,
                       fractions[i]);
            return false;
        }
        sum += fractions[i];
        sizes[i] = (int64_t)((double)total * fractions[i]);
        if (sizes[i] > left) sizes[i] = left;
        left -= sizes[i];
    }
    if (!(sum > 1.0 - 1e-6 && sum < 1.0 + 1e-6)) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "the fractions sum to %g instead of 1", sum);
        return false;
    }
    for (int i = 0; left > 0; i = (i + 1) % n, left--) sizes[i]++;
    for (int i = 0; i < n; i++) {
        if (sizes[i] > 0) continue;
        mpt__error(context, MPT_ERROR_ARGUMENT, "part %d (fraction %g) of %lld samples is empty", i,
                   fractions[i], total);
        return false;
    }
    return true;
}

#define MPT__SPLIT_STREAM UINT64_C(0x73706c6974) /* "split": apart from the orders of loaders */

static mpt_status mpt__split(mpt_context *context, mpt__dataset *whole, const int64_t *sizes, int n,
                             uint64_t seed, int64_t *order, mpt_dataset *parts) {
    mpt__rng_key key;
    key.seed = seed, key.stream = MPT__SPLIT_STREAM, key.call = 0;
    mpt__random_permutation(key, whole->count, order);
    for (int i = 0; i < n; order += sizes[i], i++) {
        parts[i] = mpt__dataset_publish(
            context, mpt__subset_new(context, whole, 0, order, sizes[i]));
        if (parts[i].slot != 0) continue;
        while (i-- > 0) {
            mpt__object_free(context, MPT__DATASET, parts[i].slot);
            parts[i] = mpt__dataset_null(context);
        }
        return context->base.status;
    }
    return MPT_OK;
}

#define MPT__SPLIT_PARTS 64

MPTRAIN_API mpt_status mpt_random_split(mpt_dataset dataset, const double *fractions, int n,
                                        uint64_t seed, mpt_dataset *parts) {
    mpt_context *context = dataset.context;
    int64_t sizes[MPT__SPLIT_PARTS];
    int clear = parts == NULL ? 0 : n < MPT__SPLIT_PARTS ? n : MPT__SPLIT_PARTS;
    for (int i = 0; i < clear; i++) parts[i] = mpt__dataset_null(context);
    if (!mpt__enter(context, "mpt_random_split"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__dataset *whole = mpt__dataset_at(context, dataset);
    if (!whole) return context->base.status;
    if (!fractions || !parts || n < 1 || n > MPT__SPLIT_PARTS) {
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "a split needs fractions, parts and n from 1 to %d; n is %d",
                          MPT__SPLIT_PARTS, n);
    }
    if (!mpt__split_sizes(context, whole->count, fractions, n, sizes)) return context->base.status;
    size_t bytes = (size_t)whole->count * sizeof(int64_t);
    int64_t *order = (int64_t *)mpt__host_new(context, bytes);
    if (!order) return context->base.status;
    mpt_status status = mpt__split(context, whole, sizes, n, seed, order, parts);
    mpt__host_free(context, order, bytes);
    return status;
}

/* ==== Questions ==== */

MPTRAIN_API int64_t mpt_dataset_size(mpt_dataset dataset) {
    mpt_context *context = dataset.context;
    if (!mpt__enter(context, "mpt_dataset_size")) return -1;
    const mpt__dataset *found = mpt__dataset_at(context, dataset);
    return found ? found->count : -1;
}

MPTRAIN_API mpt_status mpt_normalize(mpt_dataset dataset, double mean, double deviation) {
    mpt_context *context = dataset.context;
    if (!mpt__enter(context, "mpt_normalize"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    mpt__dataset *found = mpt__dataset_at(context, dataset);
    if (!found) return context->base.status;
    if (!mpt__f64_is_finite(mean) || !mpt__f64_is_finite(deviation) || !((float)deviation > 0.0f)) {
        return mpt__error(context, MPT_ERROR_ARGUMENT,
                          "mean %g, deviation %g: both must be finite and the deviation positive",
                          mean, deviation);
    }
    if (found->dtype == MPT_I64 || found->dtype == MPT_I32) {
        return mpt__error(context, MPT_ERROR_DTYPE,
                          "%s inputs are delivered as they are and cannot be normalised",
                          mpt_dtype_name(found->dtype));
    }
    if (found->loaders > 0) {
        return mpt__error(context, MPT_ERROR_STATE,
                          "a loader already delivers from this dataset; call mpt_normalize before "
                          "mpt_loader_create");
    }
    found->normalised = true;
    found->mean = (float)mean;
    found->deviation = (float)deviation;
    return MPT_OK;
}

/* What one pass over a dataset adds up. */
typedef struct mpt__tally {
    int64_t histogram[256]; /* u8 */
    double center, sum, squares; /* other dtypes: of value - center */
} mpt__tally;

static void mpt__tally_add(mpt__tally *tally, mpt_dtype dtype, const void *values, int64_t numel) {
    const uint8_t *bytes = (const uint8_t *)values;
    size_t n = (size_t)numel, size = mpt__dtype_info[dtype].bytes;
    if (dtype == MPT_U8) {
        for (size_t i = 0; i < n; i++) tally->histogram[bytes[i]]++;
        return;
    }
    for (size_t done = 0; done < n;) {
        float block[MPT__ELEMENT_BLOCK];
        size_t take = n - done < MPT__ELEMENT_BLOCK ? n - done : MPT__ELEMENT_BLOCK;
        mpt__elements_to_f32(dtype, bytes + done * size, block, take);
        for (size_t i = 0; i < take; i++) {
            double value = (double)block[i] - tally->center;
            tally->sum += value;
            tally->squares += value * value;
        }
        done += take;
    }
}

/* Where in the scratch of mpt__sample_scratch a target goes: aligned for any dtype. */
static size_t mpt__scratch_target(const mpt__dataset *dataset) {
    return (dataset->input_bytes + 63) / 64 * 64;
}

/* Scratch in which `sample` finds room for one input and one target; its size in *bytes. NULL with
   nothing recorded if none is needed. */
static uint8_t *mpt__sample_scratch(mpt_context *context, const mpt__dataset *dataset,
                                    size_t *bytes) {
    *bytes = dataset->cls->resident ? 0 : mpt__scratch_target(dataset) + dataset->target_bytes;
    return (uint8_t *)mpt__host_new(context, *bytes);
}

/* One pass over all samples; false with an error recorded. */
static bool mpt__tally_pass(mpt_context *context, const mpt__dataset *dataset, uint8_t *scratch,
                            mpt__tally *tally) {
    uint8_t *target = NULL;
    char error[256];
    if (scratch && dataset->target_bytes) target = scratch + mpt__scratch_target(dataset);
    for (int64_t i = 0; i < dataset->count; i++) {
        const void *values = scratch;
        error[0] = 0;
        if (dataset->cls->resident) {
            values = dataset->cls->resident(dataset, i);
        } else if (!dataset->cls->sample(dataset, i, 0, scratch, target, error, sizeof error)) {
            error[sizeof error - 1] = 0;
            mpt__error(context, MPT_ERROR_IO, "sample %lld: %s", i, error);
            return false;
        }
        mpt__tally_add(tally, dataset->dtype, values, dataset->numel);
    }
    return true;
}

/* Mean and variance from a histogram of u8 values, exact up to the last roundings. */
static void mpt__tally_bytes(const mpt__tally *tally, double n, double *mean, double *variance) {
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < 256; i++) sum += (double)tally->histogram[i] * i;
    *mean = sum / n;
    for (int i = 0; i < 256; i++)
        squares += (double)tally->histogram[i] * (i - *mean) * (i - *mean);
    *mean /= 255.0;
    *variance = squares / n / (255.0 * 255.0);
}

static void mpt__statistics(mpt_context *context, const mpt__dataset *dataset, uint8_t *scratch,
                            double *mean, double *variance) {
    double n = (double)dataset->count * (double)dataset->numel;
    mpt__tally tally;
    memset(&tally, 0, sizeof tally);
    if (!mpt__tally_pass(context, dataset, scratch, &tally)) return;
    if (dataset->dtype == MPT_U8) {
        mpt__tally_bytes(&tally, n, mean, variance);
        return;
    }
    tally.center = tally.sum / n;
    tally.sum = tally.squares = 0.0;
    if (!mpt__tally_pass(context, dataset, scratch, &tally)) return;
    *mean = tally.center + tally.sum / n;
    *variance = tally.squares / n;
}

MPTRAIN_API mpt_status mpt_dataset_statistics(mpt_dataset dataset, double *mean,
                                              double *deviation) {
    mpt_context *context = dataset.context;
    double found_mean = 0.0, variance = 0.0;
    size_t bytes;
    if (!mpt__enter(context, "mpt_dataset_statistics"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    const mpt__dataset *found = mpt__dataset_at(context, dataset);
    if (!found) return context->base.status;
    uint8_t *scratch = mpt__sample_scratch(context, found, &bytes);
    if (context->base.status != MPT_OK) return context->base.status;
    uint32_t state = mpt__flush_denormals(false);
    mpt__statistics(context, found, scratch, &found_mean, &variance);
    mpt__restore_denormals(state);
    mpt__host_free(context, scratch, bytes);
    if (context->base.status != MPT_OK) return context->base.status;
    if (mean) *mean = found_mean;
    if (deviation) *deviation = sqrt(variance);
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_sample(mpt_dataset dataset, int64_t index, float *input,
                                  int64_t *target) {
    mpt_context *context = dataset.context;
    char error[256];
    size_t bytes;
    if (!mpt__enter(context, "mpt_sample"))
        return context ? context->base.status : MPT_ERROR_HANDLE;
    const mpt__dataset *found = mpt__dataset_at(context, dataset);
    if (!found) return context->base.status;
    if (index < 0 || index >= found->count) {
        return mpt__error(context, MPT_ERROR_INDEX, "sample %lld of a dataset of %lld", index,
                          found->count);
    }
    if (target && found->target_dtype != MPT_I64) {
        return mpt__error(context, MPT_ERROR_DTYPE,
                          "the targets are %s, not class numbers; pass NULL for target",
                          mpt_dtype_name(found->target_dtype));
    }
    mpt__delivery delivery;
    mpt__delivery_begin(context, &delivery, found, MPT_F32);
    delivery.to = MPT_F32; /* integers too */
    delivery.copies = delivery.copies && found->dtype == MPT_F32;
    uint8_t *scratch = mpt__sample_scratch(context, found, &bytes);
    if (context->base.status != MPT_OK) return context->base.status;
    void *in = input, *to = target;
    if (!in && scratch) { /* callbacks get room for both parts whatever is wanted */
        in = scratch;
        delivery.copies = true;
    }
    if (!to && scratch && found->target_bytes) to = scratch + mpt__scratch_target(found);
    uint32_t state = mpt__flush_denormals(false);
    bool ok = mpt__dataset_fetch(found, &delivery, index, 0, scratch, in, to, error, sizeof error);
    mpt__restore_denormals(state);
    mpt__host_free(context, scratch, bytes);
    error[sizeof error - 1] = 0;
    if (!ok) return mpt__error(context, MPT_ERROR_IO, "sample %lld: %s", index, error);
    return MPT_OK;
}

MPTRAIN_API mpt_status mpt_dataset_destroy(mpt_dataset dataset) {
    mpt_context *context = dataset.context;
    if (!context) return MPT_ERROR_HANDLE;
    mpt__enter(context, "mpt_dataset_destroy");
    if (!mpt__dataset_at(context, dataset)) return context->base.status;
    mpt__object_free(context, MPT__DATASET, dataset.slot);
    return MPT_OK;
}

/* ==== Files ==== */

static bool mpt__reader_open(mpt__reader *file, mpt__base *base, const char *path) {
    memset(file, 0, sizeof *file);
    file->base = base;
    file->path = path;
    file->handle = base->io.open(base->io.user, path, 'r');
    if (!file->handle) {
        mpt__fail(base, MPT_ERROR_IO, "cannot open %s: %s", path, mpt__io_reason(base));
        return false;
    }
    file->size = base->io.size(base->io.user, file->handle);
    if (file->size < 0) {
        mpt__fail(base, MPT_ERROR_IO,
                  "the size of %s is not known, so nothing can be allocated for it",
                  path);
        mpt__reader_close(file);
        return false;
    }
    return true;
}

static bool mpt__reader_read(mpt__reader *file, void *to, size_t bytes) {
    mpt__base *base = file->base;
    size_t got = base->io.read(base->io.user, file->handle, to, bytes);
    if (got == bytes) {
        file->position += (int64_t)bytes;
        return true;
    }
    mpt__fail(base, MPT_ERROR_IO, "%s: reading %lld bytes at byte %lld gave %lld: %s", file->path,
              (int64_t)bytes, file->position, (int64_t)got, mpt__io_reason(base));
    return false;
}

static bool mpt__reader_seek(mpt__reader *file, int64_t position) {
    mpt__base *base = file->base;
    if (base->io.seek(base->io.user, file->handle, position)) {
        file->position = position;
        return true;
    }
    mpt__fail(base, MPT_ERROR_IO, "%s: cannot go to byte %lld: %s", file->path, position,
              mpt__io_reason(base));
    return false;
}

static void mpt__reader_close(mpt__reader *file) {
    if (file->handle) file->base->io.close(file->base->io.user, file->handle);
    file->handle = NULL;
}

/* ==== idx files ==== */

/* Deflate cannot expand more than this: 258 bytes from two bits. */
#define MPT__DEFLATE_RATIO 1032

/* The elements of one idx file, u8, accounted as data. */
typedef struct mpt__idx_data {
    mpt__idx idx;
    uint8_t *bytes;
} mpt__idx_data;

/* The source of inflate: short reads at the end of the file are its end. */
static size_t mpt__idx_source(void *user, void *buffer, size_t bytes) {
    mpt__reader *file = (mpt__reader *)user;
    int64_t left = file->size - file->position;
    if ((int64_t)bytes > left) bytes = (size_t)left;
    if (bytes == 0) return 0;
    return mpt__reader_read(file, buffer, bytes) ? bytes : MPT__INFLATE_READ_FAILED;
}

static bool mpt__idx_refuse(const mpt__reader *file, const mpt__idx *idx) {
    mpt__fail(file->base, MPT_ERROR_FORMAT,
              "%s: %s: expected %lld, got %lld (header, bytes 0 to %d)",
              file->path, idx->error, idx->expected, idx->got, MPT__IDX_MAX_HEADER - 1);
    return false;
}

static bool mpt__inflate_refuse(const mpt__reader *file, const mpt__inflate *z) {
    mpt__fail(file->base, MPT_ERROR_FORMAT, "%s: %s (compressed byte %llu)", file->path,
              z->error ? z->error : "the data ends early", z->error ? z->error_offset : z->loaded);
    return false;
}

/* Before anything is allocated for a compressed file: its header must agree with the size that the
   file ends with, and with what its compressed bytes can hold. */
static bool mpt__idx_check_packed(const mpt__reader *file, const mpt__idx *idx,
                                  uint32_t announced) {
    int64_t whole = idx->header_bytes + idx->data_bytes;
    if ((uint32_t)((uint64_t)whole & 0xffffffffu) != announced) {
        mpt__fail(file->base, MPT_ERROR_FORMAT,
                  "%s: its idx header stands for %lld bytes, its gzip trailer (byte %lld) for %lld",
                  file->path, whole, file->size - 4, (int64_t)announced);
        return false;
    }
    if (whole / MPT__DEFLATE_RATIO > file->size) {
        mpt__fail(file->base, MPT_ERROR_FORMAT,
                  "%s: its idx header stands for %lld bytes, more than %lld compressed ones hold",
                  file->path, whole, file->size);
        return false;
    }
    return true;
}

/* Decompresses straight into the memory that stays. */
static bool mpt__idx_read_packed(mpt__reader *file, mpt__inflate *z, mpt__idx_data *out) {
    mpt__idx *idx = &out->idx;
    uint8_t header[MPT__IDX_MAX_HEADER], trailer[4];
    if (file->size < 18) { /* the least gzip header and trailer */
        mpt__fail(file->base, MPT_ERROR_FORMAT,
                  "%s: a gzip file of %lld bytes, at least 18 expected",
                  file->path, file->size);
        return false;
    }
    if (!mpt__reader_seek(file, file->size - 4) || !mpt__reader_read(file, trailer, 4) ||
        !mpt__reader_seek(file, 0))
        return false;
    mpt__inflate_begin(z, mpt__idx_source, file);
    size_t got = mpt__inflate_read(z, header, sizeof header);
    if (z->error) return mpt__inflate_refuse(file, z);
    if (!mpt__idx_header(idx, header, got, got < sizeof header ? (int64_t)got : -1))
        return mpt__idx_refuse(file, idx);
    if (!mpt__idx_check_packed(file, idx, (uint32_t)trailer[0] | (uint32_t)trailer[1] << 8 |
                                              (uint32_t)trailer[2] << 16 |
                                              (uint32_t)trailer[3] << 24))
        return false;
    size_t total = (size_t)idx->data_bytes, early = got - (size_t)idx->header_bytes;
    if (early > total) early = total;
    out->bytes = (uint8_t *)mpt__allocate(file->base, total, MPT_MEMORY_DATA);
    if (!out->bytes) return false;
    memcpy(out->bytes, header + idx->header_bytes, early);
    if (mpt__inflate_read(z, out->bytes + early, total - early) != total - early ||
        !mpt__inflate_finish(z))
        return mpt__inflate_refuse(file, z);
    return true;
}

static bool mpt__idx_read_plain(mpt__reader *file, mpt__idx_data *out) {
    mpt__idx *idx = &out->idx;
    uint8_t header[MPT__IDX_MAX_HEADER];
    size_t n = file->size < (int64_t)sizeof header ? (size_t)file->size : sizeof header;
    if (!mpt__reader_seek(file, 0) || !mpt__reader_read(file, header, n)) return false;
    if (!mpt__idx_header(idx, header, n, file->size)) return mpt__idx_refuse(file, idx);
    out->bytes = (uint8_t *)mpt__allocate(file->base, (size_t)idx->data_bytes, MPT_MEMORY_DATA);
    return out->bytes && mpt__reader_seek(file, idx->header_bytes) &&
           mpt__reader_read(file, out->bytes, (size_t)idx->data_bytes);
}

static void mpt__idx_drop(mpt__base *base, mpt__idx_data *data) {
    mpt__release(base, data->bytes, (size_t)data->idx.data_bytes, MPT_MEMORY_DATA);
    data->bytes = NULL;
}

/* Reads an idx file, plain or gzip by its first two bytes. False with an error recorded. */
static bool mpt__idx_read(mpt_context *context, const char *path, mpt__idx_data *out) {
    mpt__base *base = &context->base;
    mpt__reader file;
    uint8_t magic[2] = {0, 0};
    bool ok;
    memset(out, 0, sizeof *out);
    if (!mpt__reader_open(&file, base, path)) return false;
    if (file.size >= 2 && !mpt__reader_read(&file, magic, sizeof magic)) {
        ok = false;
    } else if (magic[0] == 0x1f && magic[1] == 0x8b) {
        mpt__inflate *z = (mpt__inflate *)mpt__host_new(context, sizeof *z);
        ok = z && mpt__idx_read_packed(&file, z, out);
        mpt__host_free(context, z, sizeof *z);
    } else {
        ok = mpt__idx_read_plain(&file, out);
    }
    mpt__reader_close(&file);
    if (!ok) mpt__idx_drop(base, out);
    return ok;
}

/* What is left of an idx shape without its first dimension, with `lead` in front if it is > 0. */
static mpt_shape mpt__idx_sample_shape(const mpt__idx *idx, int64_t lead) {
    mpt_shape shape = MPT_SCALAR;
    if (lead > 0) shape.dim[shape.rank++] = lead;
    for (int i = 1; i < idx->rank; i++) shape.dim[shape.rank++] = idx->shape[i];
    return shape;
}

/* A dataset that owns both files' bytes (targets may have none); they are its own or gone. */
static mpt__dataset *mpt__idx_dataset(mpt_context *context, mpt__idx_data *inputs,
                                      mpt__idx_data *targets, int64_t lead) {
    mpt_shape shape = mpt__idx_sample_shape(&inputs->idx, lead);
    mpt_shape target_shape = MPT_SCALAR;
    mpt_dtype target_dtype = MPT_DTYPE_NONE;
    if (targets->bytes) {
        target_dtype = MPT_I64;
        target_shape = mpt__idx_sample_shape(&targets->idx, 0);
    }
    mpt__dataset *dataset = mpt__dataset_new(context, &mpt__memory_class, inputs->idx.shape[0],
                                             MPT_U8, &shape, target_dtype, &target_shape);
    if (!dataset) {
        mpt__idx_drop(&context->base, inputs);
        mpt__idx_drop(&context->base, targets);
        return NULL;
    }
    dataset->inputs = inputs->bytes;
    dataset->owned_inputs = (size_t)inputs->idx.data_bytes;
    dataset->targets = targets->bytes;
    dataset->owned_targets = targets->bytes ? (size_t)targets->idx.data_bytes : 0;
    dataset->byte_targets = true;
    return dataset;
}

/* Reads both files and checks that they belong together. `image` > 0: inputs must be [N, image,
   image] and targets [N]; samples then get a channel dimension. */
static mpt__dataset *mpt__idx_load(mpt_context *context, const char *inputs_path,
                                   const char *targets_path, int64_t image) {
    mpt__idx_data inputs, targets;
    mpt__base *base = &context->base;
    memset(&targets, 0, sizeof targets);
    if (!mpt__idx_read(context, inputs_path, &inputs)) return NULL;
    const mpt__idx *idx = &inputs.idx;
    if (image > 0 && (idx->rank != 3 || idx->shape[1] != image || idx->shape[2] != image)) {
        mpt_shape got = mpt__idx_sample_shape(idx, idx->shape[0]);
        mpt__error(context, MPT_ERROR_FORMAT, "%s: expected images [N, %lld, %lld], got %S",
                   inputs_path, image, image, &got);
    } else if (targets_path && mpt__idx_read(context, targets_path, &targets)) {
        if (targets.idx.shape[0] != idx->shape[0] || (image > 0 && targets.idx.rank != 1)) {
            mpt_shape got = mpt__idx_sample_shape(&targets.idx, targets.idx.shape[0]);
            mpt__error(context, MPT_ERROR_FORMAT, "%s: expected %lld targets as in %s, got %S",
                       targets_path, idx->shape[0], inputs_path, &got);
        }
    }
    if (base->status != MPT_OK) {
        mpt__idx_drop(base, &inputs);
        mpt__idx_drop(base, &targets);
        return NULL;
    }
    return mpt__idx_dataset(context, &inputs, &targets, image > 0 ? 1 : 0);
}

/* True if this build has no files; the error is recorded. */
static bool mpt__no_files(mpt_context *context) {
#ifdef MPTRAIN_NO_FILES
    mpt__error(context, MPT_ERROR_UNSUPPORTED, "built without files (MPTRAIN_NO_FILES)");
    return true;
#else
    (void)context;
    return false;
#endif
}

MPTRAIN_API mpt_dataset mpt_idx(mpt_context *context, const char *inputs_path,
                                const char *targets_path) {
    if (!mpt__enter(context, "mpt_idx") || mpt__no_files(context))
        return mpt__dataset_null(context);
    if (!inputs_path) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "inputs_path is NULL");
        return mpt__dataset_null(context);
    }
    return mpt__dataset_publish(context, mpt__idx_load(context, inputs_path, targets_path, 0));
}

/* ==== MNIST ==== */

#define MPT__MNIST_SIDE 28
#define MPT__PATH_SIZE 1024

/* The names in use: as published, and as some mirrors spell them. */
static const char *const mpt__mnist_names[2][2][2] = {
    {{"train-images-idx3-ubyte", "train-images.idx3-ubyte"},
     {"train-labels-idx1-ubyte", "train-labels.idx1-ubyte"}},
    {{"t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte"},
     {"t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte"}}};

/* The first of the names, plain or .gz, that can be opened. False with an error recorded. */
static bool mpt__mnist_find(mpt_context *context, const char *directory, const char *const names[2],
                            char path[MPT__PATH_SIZE]) {
    static const char *const endings[2] = {"", ".gz"};
    mpt__base *base = &context->base;
    for (int i = 0; i < 4; i++) {
        size_t length = mpt__format_text(path, MPT__PATH_SIZE, "%s/%s%s", directory, names[i / 2],
                                         endings[i % 2]);
        if (length >= MPT__PATH_SIZE) {
            mpt__error(context, MPT_ERROR_ARGUMENT, "the path of the directory is too long");
            return false;
        }
        void *handle = base->io.open(base->io.user, path, 'r');
        if (!handle) continue;
        base->io.close(base->io.user, handle);
        return true;
    }
    mpt__error(context, MPT_ERROR_IO, "%s has none of %s, %s.gz, %s, %s.gz that can be opened: %s",
               directory, names[0], names[0], names[1], names[1], mpt__io_reason(base));
    return false;
}

MPTRAIN_API mpt_dataset mpt_mnist(mpt_context *context, const char *directory, mpt_split split) {
    char images[MPT__PATH_SIZE], labels[MPT__PATH_SIZE];
    if (!mpt__enter(context, "mpt_mnist") || mpt__no_files(context))
        return mpt__dataset_null(context);
    if (!directory) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "directory is NULL");
        return mpt__dataset_null(context);
    }
    if (split != MPT_TRAIN && split != MPT_TEST) {
        mpt__error(context, MPT_ERROR_ARGUMENT, "split %d is neither MPT_TRAIN nor MPT_TEST",
                   (int)split);
        return mpt__dataset_null(context);
    }
    const char *const(*names)[2] = mpt__mnist_names[split == MPT_TEST ? 1 : 0];
    if (!mpt__mnist_find(context, directory, names[0], images) ||
        !mpt__mnist_find(context, directory, names[1], labels))
        return mpt__dataset_null(context);
    return mpt__dataset_publish(context, mpt__idx_load(context, images, labels, MPT__MNIST_SIDE));
}

#endif
