/* ----
 * data/dataset.c: datasets: memory, idx files, user callbacks, subsets and splits.
 *
 * A dataset hands out one sample at a time, from any thread, without allocating and without
 * touching the context: loader workers (data/loader.c) rely on that. Data in memory keeps its
 * stored dtype and is converted and normalised on the way into a batch.
 * ---- */
#ifndef MPT__DATA_DATASET_INCLUDED
#define MPT__DATA_DATASET_INCLUDED

#include "ground/json.c"
#include "ground/parallel.c"
#include "ground/random.c"
#include "ground/dtype.c"
#include "data/inflate.c"
#include "data/idx.c"
#include "core/tensor.c"

/* What this build leaves out, as constants: true, with the error recorded, and nothing behind it is
   compiled. Weights in files go with MPTRAIN_NO_FILES, datasets and tokenizers with
   MPTRAIN_NO_STDIO, too. */
#ifdef MPT__NO_FILES
static void mpt__say_no_files(mpt_context *ctx) {
    mpt__error(ctx, UNSUPPORTED, "built without files (MPTRAIN_NO_FILES or MPTRAIN_NO_STDIO)");
}
#define mpt__no_data_files(ctx) (mpt__say_no_files(ctx), true)
#else
#define mpt__no_data_files(ctx) ((void)(ctx), false)
#endif
#ifdef MPTRAIN_NO_FILES
#define mpt__no_files(ctx) mpt__no_data_files(ctx)
#else
#define mpt__no_files(ctx) ((void)(ctx), false)
#endif
#define mpt__enter_files(ctx, call) (mpt__enter(ctx, call) && !mpt__no_data_files(ctx))

/* ==== Elements ====
 *
 * Conversions run with MPT__PLAIN_FLOATS. */

#define MPT__ELEMENT_BLOCK 256 /* elements converted at a time through the stack */

/* Whether elements of a dtype convert to fp32 in this build. */
static bool mpt__elements_known(int dtype) {
#ifdef MPTRAIN_NO_FP8
    if (dtype == MPT_F8E4M3 || dtype == MPT_F8E5M2) return false;
#endif
    return dtype < MPT_DTYPE_COUNT; /* or one that only files have */
}

/* At most a block of elements, of any alignment, to fp32. */
static void mpt__elements_to_f32(mpt_dtype dtype, const void *from, float *to, size_t n) {
    double aligned[MPT__ELEMENT_BLOCK], wide[MPT__ELEMENT_BLOCK];
    if (dtype == MPT_F32) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    memcpy(aligned, from, n * mpt__dtype_info[dtype].bytes);
    mpt__load_f64(wide, aligned, (uint8_t)dtype, 0, 1, (int64_t)n);
    for (size_t i = 0; i < n; i++) to[i] = (float)wide[i];
}

/* fp32 to F32, F16 or BF16; `to` is aligned for its dtype. */
static void mpt__elements_from_f32(
    const mpt__convert_table *convert, mpt_dtype dtype, const float *from, void *to, size_t n) {
    if (dtype == MPT_F32) memcpy(to, from, n * sizeof *from);
    if (dtype == MPT_F16) convert->f32_to_f16(from, (uint16_t *)to, n);
    if (dtype == MPT_BF16) convert->f32_to_bf16(from, (uint16_t *)to, n);
}

/* ==== Order ==== */

typedef bool (*mpt__before_fn)(const void *of, int64_t a, int64_t b);

/* Heap sort of what stands for things in `of`. */
static MPT__UNUSED void mpt__sort_by(
    int64_t *at, int64_t count, mpt__before_fn before, const void *of) {
    for (int64_t begin = count / 2, end = count; end > 1;) {
        if (begin > 0) {
            begin--;
        } else {
            int64_t top = at[0];
            at[0] = at[--end], at[end] = top;
        }
        for (int64_t i = begin, child; (child = 2 * i + 1) < end; i = child) {
            child += child + 1 < end && before(of, at[child], at[child + 1]);
            if (!before(of, at[i], at[child])) break;
            int64_t other = at[i];
            at[i] = at[child], at[child] = other;
        }
    }
}

/* ==== Datasets as objects ==== */

typedef struct mpt__dataset mpt__dataset;

/* Makes sample `at` of a dataset that reads files or computes. `work`: work_bytes, aligned;
   `target` may be NULL. Any thread. */
#define MPT__MAKE_TAKES \
    const mpt__dataset *dataset, int64_t at, uint64_t seed, uint8_t *work, void *input, \
        void *target, char *error
typedef bool (*mpt__make_fn)(MPT__MAKE_TAKES);

enum { MPT__OWNED = 4 };

struct mpt__dataset {
    mpt__id id;
    const mpt__base *base;
    int32_t references; /* the handle, subsets and loaders: the last to go frees the data */
    int32_t loaders;    /* while there are any, the delivered values cannot change */
    int32_t readers;    /* those of its subsets, too */
    int64_t count;
    mpt_dtype dtype, target_dtype; /* target: MPT_DTYPE_NONE if there is none */
    mpt_shape shape, target_shape;
    int64_t numel, target_numel;      /* elements of one sample */
    size_t input_bytes, target_bytes; /* of one sample */
    bool normalised;
    float mean, deviation;

    const uint8_t *inputs, *targets; /* samples in memory; NULL: `make` or a callback makes them */
    bool byte_targets;               /* class numbers are stored as u8 and delivered as i64 */
    void *owned[MPT__OWNED];         /* what of that came from the allocator */
    size_t owned_bytes[MPT__OWNED];
    bool (*sample)(void *user, int64_t index, uint64_t seed, void *input, void *target, char *error,
        size_t error_size);
    void *user;
    mpt__make_fn make;
    const void *state; /* of make, in owned[0] */
    size_t work_bytes;
    mpt__dataset *source; /* what make draws from, referenced unless there is a parent; or NULL */
    const char *const *classes; /* names in order, NULL if there are none */
    int64_t class_count;

    /* A subset is its parent (itself none) with other samples: first + i or indices[i]. */
    mpt__dataset *parent;
    int64_t first;
    int64_t *indices;
};

MPT__HANDLES(dataset, MPT__DATASET)
MPT__HANDLE_AT(dataset, MPT__DATASET)
#define mpt__refuse_dataset(ctx, STATUS, ...) \
    ((void)mpt__error(ctx, STATUS, __VA_ARGS__), mpt__dataset_handle(ctx, NULL))

static void mpt__dataset_release(mpt_context *ctx, void *object) {
    mpt__dataset *dataset = (mpt__dataset *)object;
    if (--dataset->references > 0) return;
    if (dataset->parent)
        mpt__dataset_release(ctx, dataset->parent);
    else if (dataset->source)
        mpt__dataset_release(ctx, dataset->source);
    mpt__release(
        &ctx->base, dataset->indices, (size_t)dataset->count * sizeof(int64_t), MPT_MEMORY_DATA);
    for (int i = 0; i < MPT__OWNED; i++)
        mpt__release(&ctx->base, dataset->owned[i], dataset->owned_bytes[i], MPT_MEMORY_DATA);
    mpt__host_free(ctx, dataset, sizeof *dataset);
}

static void mpt__dataset_own(mpt__dataset *dataset, int part, void *data, size_t bytes) {
    dataset->owned[part] = data, dataset->owned_bytes[part] = bytes;
}

/* Memory of its own; NULL with an error recorded. */
static void *mpt__dataset_room(mpt_context *ctx, mpt__dataset *dataset, int part, size_t bytes) {
    dataset->owned_bytes[part] = bytes;
    return dataset->owned[part] = mpt__allocate(&ctx->base, bytes, MPT_MEMORY_DATA);
}

/* Gives a finished dataset (NULL: the error null) to the table, or frees it. */
static mpt_dataset mpt__dataset_publish(mpt_context *ctx, mpt__dataset *dataset) {
    if (dataset) {
        if (dataset->input_bytes / 64 + dataset->target_bytes / 64 + dataset->work_bytes / 64 >
            PTRDIFF_MAX / 64 - 4)
            mpt__error(
                ctx, SHAPE, "one sample, and what it takes to make it, are more than memory holds");
        else
            dataset->id.slot = mpt__object_new(ctx, MPT__DATASET, dataset, &dataset->id.generation);
        if (dataset->id.slot) return mpt__dataset_handle(ctx, dataset);
        mpt__dataset_release(ctx, dataset);
    }
    return mpt__dataset_handle(ctx, NULL);
}

/* Elements and bytes of a sample; false with an error recorded if `shape` makes no sense or `count`
   samples overflow. */
static bool mpt__sample_size(mpt_context *ctx, const char *what, mpt_dtype dtype,
    const mpt_shape *shape, int64_t count, int64_t *numel, size_t *bytes) {
    int64_t size = mpt__dtype_info[dtype].bytes;
    if (shape->rank < 0 || shape->rank >= MPT_MAX_RANK)
        return mpt__reject(ctx, SHAPE,
            "%s shape of rank %d: samples have rank 0 to %d, a batch has one more", what,
            shape->rank, MPT_MAX_RANK - 1);
    for (int i = 0; i < shape->rank; i++)
        if (shape->dim[i] < 1)
            return mpt__reject(
                ctx, SHAPE, "%s shape %S: every dimension must be at least 1", what, shape);
    *numel = mpt__shape_numel(shape);
    if (*numel < 0 || *numel > PTRDIFF_MAX / size / count)
        return mpt__reject(ctx, SHAPE, "%s: %lld samples of shape %S are more than memory holds",
            what, count, shape);
    *bytes = (size_t)(*numel * size);
    return true;
}

static bool mpt__target_dtype(mpt_dtype dtype) {
    return dtype == MPT_I64 || dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* A checked dataset with one reference; NULL with an error recorded. `held`: all samples at
   once. */
static mpt__dataset *mpt__dataset_new(
    mpt_context *ctx, const mpt_user_dataset_config *config, bool held) {
    mpt_dtype dtype = config->dtype, target = config->target_dtype;
    int64_t count = held ? config->count : 1;
    mpt__dataset made;
    mpt__zero(made);
    if (config->count < 1)
        mpt__error(
            ctx, ARGUMENT, "count is %lld; a dataset has at least one sample", config->count);
    else if (dtype <= MPT_DTYPE_NONE || dtype >= MPT_DTYPE_COUNT || dtype == MPT_F8E4M3 ||
        dtype == MPT_F8E5M2)
        mpt__error(ctx, DTYPE,
            "input dtype %D: inputs are u8, bool, i32, i64, f16, bf16, f32 or f64", dtype);
    else if (target != MPT_DTYPE_NONE && !mpt__target_dtype(target))
        mpt__error(ctx, DTYPE, "target dtype %D: targets are i64 class numbers, or f32, f16, bf16",
            target);
    if (!mpt__ok(ctx) ||
        !mpt__sample_size(
            ctx, "input", dtype, &config->shape, count, &made.numel, &made.input_bytes) ||
        (target != MPT_DTYPE_NONE &&
            !mpt__sample_size(ctx, "target", target, &config->target_shape, count,
                &made.target_numel, &made.target_bytes)))
        return NULL;
    made.base = &ctx->base;
    made.references = 1;
    made.count = config->count;
    made.dtype = dtype, made.target_dtype = target;
    made.shape = config->shape;
    if (target != MPT_DTYPE_NONE) made.target_shape = config->target_shape;
    made.sample = config->sample, made.user = config->user;
    mpt__dataset *dataset = (mpt__dataset *)mpt__host_new(ctx, sizeof *dataset);
    if (dataset) *dataset = made;
    return dataset;
}

/* ==== Samples ==== */

#define MPT__SAMPLE_ERROR 512 /* bytes of message that a callback may write */

/* Scratch for a sample, parts aligned for any dtype: input, target, what `make` needs. */
static size_t mpt__scratch_target(const mpt__dataset *dataset) {
    return (dataset->input_bytes + 63) / 64 * 64;
}

static size_t mpt__scratch_work(const mpt__dataset *dataset) {
    return mpt__scratch_target(dataset) + (dataset->target_bytes + 63) / 64 * 64;
}

static size_t mpt__scratch_bytes(const mpt__dataset *dataset) {
    return dataset->inputs ? 0 : mpt__scratch_work(dataset) + dataset->work_bytes;
}

/* The stored input of a sample: where it lies, or in `input`, which a callback fills, as it does a
   target. NULL with a sentence in `error` if it fails. `scratch`: mpt__scratch_bytes. Any
   thread. */
static const void *mpt__sample_read(const mpt__dataset *dataset, int64_t index, uint64_t seed,
    uint8_t *scratch, void *input, void *target, char error[MPT__SAMPLE_ERROR]) {
    int64_t own = dataset->indices ? dataset->indices[index] : dataset->first + index;
    size_t at = (size_t)own; /* of what is held: makers may count beyond 32 bits */
    error[0] = 0;
    if (dataset->target_dtype == MPT_DTYPE_NONE)
        target = NULL;
    else if (!target && scratch)
        target = scratch + mpt__scratch_target(dataset);
    if (dataset->make)
        return dataset->make(
                   dataset, own, seed, scratch + mpt__scratch_work(dataset), input, target, error)
            ? input
            : NULL;
    if (!dataset->inputs) {
        bool good =
            dataset->sample(dataset->user, own, seed, input, target, error, MPT__SAMPLE_ERROR);
        error[MPT__SAMPLE_ERROR - 1] = 0;
        return good ? input : NULL;
    }
    if (target && dataset->byte_targets) {
        const uint8_t *bytes = dataset->targets + at * (size_t)dataset->target_numel;
        int64_t *out = (int64_t *)target;
        for (int64_t i = 0; i < dataset->target_numel; i++) out[i] = bytes[i];
    } else if (target) {
        memcpy(target, dataset->targets + at * dataset->target_bytes, dataset->target_bytes);
    }
    return dataset->inputs + at * dataset->input_bytes;
}

/* Has the beginning of a sample in memory fetched. Inlined: gcc leaves out calls of what only
   fetches. */
static MPT__FORCE_INLINE void mpt__sample_expect(const mpt__dataset *dataset, int64_t index) {
    size_t most = 4096; /* bytes; from there on the CPU does so by itself */
    int64_t own = dataset->indices ? dataset->indices[index] : dataset->first + index;
    if (!dataset->inputs) return;
    const uint8_t *from = dataset->inputs + (size_t)own * dataset->input_bytes;
    const uint8_t *end = from + (dataset->input_bytes < most ? dataset->input_bytes : most);
    for (; from < end; from += 64) MPT__PREFETCH(from);
}

/* How the inputs of a dataset become the elements of a batch. */
typedef struct {
    mpt_dtype from, to;
    bool copies; /* same dtype, nothing to compute */
    bool normalised;
    float mean, deviation;
    float table_f32[256]; /* u8: the result of every value */
    uint16_t table_half[256];
    const mpt__convert_table *convert;
} mpt__delivery;

/* Rounded to fp32 after each operation, also where C computes floats in double (s390x). */
static MPT__INLINE float mpt__normalised(const mpt__delivery *delivery, float value) {
    float centered = value - delivery->mean;
    float scaled = centered / delivery->deviation;
    return scaled;
}

static void mpt__delivery_begin(
    mpt_context *ctx, mpt__delivery *delivery, const mpt__dataset *dataset, mpt_dtype to) {
    mpt__zero(*delivery);
    delivery->convert = ctx->convert;
    delivery->from = dataset->dtype;
    delivery->to = to;
    delivery->normalised = dataset->normalised;
    delivery->mean = dataset->mean;
    delivery->deviation = dataset->deviation;
    delivery->copies = delivery->from == to && !delivery->normalised;
    if (delivery->from != MPT_U8) return;
    /* As torchvision's ToTensor and Normalize, in this order and in fp32: the same bits. */
    for (int i = 0; i < 256; i++) {
        float value = (float)i / 255.0f;
        if (delivery->normalised) value = mpt__normalised(delivery, value);
        delivery->table_f32[i] = value;
        delivery->table_half[i] = to == MPT_F16 ? mpt__f32_to_f16(value) : mpt__f32_to_bf16(value);
    }
}

static void mpt__deliver(const mpt__delivery *delivery, const void *from, void *to, size_t n) {
    size_t size = mpt__dtype_info[delivery->from].bytes;
    size_t step = mpt__dtype_info[delivery->to].bytes;
    const uint8_t *bytes = (const uint8_t *)from;
    float block[MPT__ELEMENT_BLOCK];
    if (delivery->copies) {
        memcpy(to, from, n * size);
    } else if (delivery->from == MPT_U8 && delivery->to == MPT_F32) {
        mpt__portable_u8_to_f32(bytes, (float *)to, n, delivery->table_f32);
    } else if (delivery->from == MPT_U8) {
        delivery->convert->u8_to_half(bytes, (uint16_t *)to, n, delivery->table_half);
    } else {
        for (size_t done = 0, take; done < n; done += take) {
            take = n - done < MPT__ELEMENT_BLOCK ? n - done : MPT__ELEMENT_BLOCK;
            mpt__elements_to_f32(delivery->from, bytes + done * size, block, take);
            for (size_t i = 0; delivery->normalised && i < take; i++)
                block[i] = mpt__normalised(delivery, block[i]);
            mpt__elements_from_f32(
                delivery->convert, delivery->to, block, (uint8_t *)to + done * step, take);
        }
    }
}

/* A sample, converted, into a batch; input and target may be NULL. Any thread in the state of
   MPT__PLAIN_FLOATS. */
static bool mpt__dataset_fetch(const mpt__dataset *dataset, const mpt__delivery *delivery,
    int64_t index, uint64_t seed, uint8_t *scratch, void *input, void *target,
    char error[MPT__SAMPLE_ERROR]) {
    void *room = input && delivery->copies ? input : scratch;
    const void *values = mpt__sample_read(dataset, index, seed, scratch, room, target, error);
    if (input && values && values != input)
        mpt__deliver(delivery, values, input, (size_t)dataset->numel);
    return values != NULL;
}

/* ==== Memory, user ==== */

MPT__DEFAULTS(mpt_memory_dataset_config, {
    config.dtype = MPT_F32;
    config.target_dtype = MPT_I64;
    config.shape = MPT_SCALAR;
    config.target_shape = MPT_SCALAR;
    config.copy = true;
})

/* The caller's memory, or a copy of it in owned[part]; NULL with an error recorded. */
static const uint8_t *mpt__data_take(mpt_context *ctx, mpt__dataset *dataset, int part,
    const void *from, size_t sample_bytes, bool copy) {
    size_t bytes = (size_t)dataset->count * sample_bytes;
    if (!copy || !from) return (const uint8_t *)from;
    mpt__dataset_room(ctx, dataset, part, bytes);
    if (dataset->owned[part]) memcpy(dataset->owned[part], from, bytes);
    return (const uint8_t *)dataset->owned[part];
}

static mpt__dataset *mpt__memory_new(mpt_context *ctx, const mpt_memory_dataset_config *config) {
    mpt_user_dataset_config samples;
    mpt__zero(samples);
    samples.count = config->count;
    samples.dtype = config->dtype;
    samples.shape = config->shape;
    samples.target_dtype = config->targets ? config->target_dtype : MPT_DTYPE_NONE;
    samples.target_shape = config->target_shape;
    mpt__dataset *dataset = mpt__dataset_new(ctx, &samples, true);
    if (!dataset) return NULL;
    dataset->inputs =
        mpt__data_take(ctx, dataset, 0, config->inputs, dataset->input_bytes, config->copy);
    dataset->targets =
        mpt__data_take(ctx, dataset, 1, config->targets, dataset->target_bytes, config->copy);
    if (mpt__ok(ctx)) return dataset;
    mpt__dataset_release(ctx, dataset);
    return NULL;
}

mpt_dataset mpt_memory_dataset(mpt_context *ctx, const mpt_memory_dataset_config *config) {
    mpt__dataset *dataset = NULL;
    if (!mpt__enter(ctx, "mpt_memory_dataset")) return mpt__dataset_handle(ctx, NULL);
    if (!config || !config->inputs) {
        mpt__error(ctx, ARGUMENT, "%s is NULL; a dataset needs its inputs",
            config ? "config->inputs" : "config");
    } else if (config->targets && config->target_dtype == MPT_DTYPE_NONE) {
        mpt__error(ctx, DTYPE, "config->targets is given without a target_dtype");
    } else {
        dataset = mpt__memory_new(ctx, config);
    }
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_user_dataset(mpt_context *ctx, const mpt_user_dataset_config *config) {
    if (!mpt__enter(ctx, "mpt_user_dataset")) return mpt__dataset_handle(ctx, NULL);
    if (config && config->sample)
        return mpt__dataset_publish(ctx, mpt__dataset_new(ctx, config, false));
    return mpt__refuse_dataset(
        ctx, ARGUMENT, "%s is NULL", config ? "config->sample" : "config");
}

/* ==== Subsets ==== */

/* Samples first .. first+count-1, or those of `order` (count indices), of a dataset; a subset of a
   subset refers to what both stem from. NULL with an error recorded. */
static mpt__dataset *mpt__subset_new(
    mpt_context *ctx, mpt__dataset *dataset, int64_t first, const int64_t *order, int64_t count) {
    size_t bytes = (size_t)count * sizeof(int64_t);
    mpt__dataset *subset = (mpt__dataset *)mpt__host_new(ctx, sizeof *subset);
    if (!subset) return NULL;
    *subset = *dataset;
    subset->references = 1;
    subset->loaders = subset->readers = 0;
    subset->count = count;
    memset(subset->owned, 0, sizeof subset->owned);
    subset->parent = dataset->parent ? dataset->parent : dataset;
    subset->parent->references++;
    subset->first += first;
    subset->indices = NULL;
    if (!order && !dataset->indices) return subset;
    subset->indices = (int64_t *)mpt__allocate(&ctx->base, bytes, MPT_MEMORY_DATA);
    if (!subset->indices) {
        mpt__dataset_release(ctx, subset);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t index = order ? order[i] : first + i;
        subset->indices[i] = dataset->indices ? dataset->indices[index] : dataset->first + index;
    }
    return subset;
}

mpt_dataset mpt_subset(mpt_dataset dataset, int64_t first, int64_t count) {
    mpt_context *ctx = dataset.context;
    mpt__dataset *whole = mpt__dataset_enter(dataset, "mpt_subset"), *subset = NULL;
    if (!whole) return mpt__dataset_handle(ctx, NULL);
    if (first < 0 || count < 1 || first > whole->count || count > whole->count - first) {
        mpt__error(ctx, INDEX,
            "%lld samples from %lld on are not in a dataset of %lld; a subset is not empty", count,
            first, whole->count);
    } else {
        subset = mpt__subset_new(ctx, whole, first, NULL, count);
    }
    return mpt__dataset_publish(ctx, subset);
}

/* Sizes of parts: n * fraction rounded down, the rest dealt out from the first part on, as PyTorch
   does. False with an error recorded. */
static bool mpt__split_sizes(
    mpt_context *ctx, int64_t total, const double *fractions, int n, int64_t *sizes) {
    double sum = 0.0;
    int64_t left = total;
    for (int i = 0; i < n; i++) {
        if (!(fractions[i] > 0.0 && fractions[i] <= 1.0))
            return mpt__reject(
                ctx, ARGUMENT, "fraction %d is %g; fractions lie in (0, 1]", i, fractions[i]);
        sum += fractions[i];
        sizes[i] = (int64_t)((double)total * fractions[i]);
        if (sizes[i] > left) sizes[i] = left;
        left -= sizes[i];
    }
    if (!(sum > 1.0 - 1e-6 && sum < 1.0 + 1e-6))
        return mpt__reject(ctx, ARGUMENT, "the fractions sum to %g instead of 1", sum);
    for (int i = 0; left > 0; i = (i + 1) % n, left--) sizes[i]++;
    for (int i = 0; i < n; i++)
        if (sizes[i] == 0)
            return mpt__reject(ctx, ARGUMENT, "part %d (fraction %g) of %lld samples is empty", i,
                fractions[i], total);
    return true;
}

#define MPT__SPLIT_PARTS 64
#define MPT__SPLIT_STREAM UINT64_C(0x73706c6974) /* "split": apart from the orders of loaders */

mpt_status mpt_random_split(
    mpt_dataset dataset, const double *fractions, int n, uint64_t seed, mpt_dataset *parts) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = dataset.context;
    mpt__rng_key key = {seed, MPT__SPLIT_STREAM, 0};
    int64_t sizes[MPT__SPLIT_PARTS], at = 0;
    for (int i = 0; parts && i < n && i < MPT__SPLIT_PARTS; i++)
        parts[i] = mpt__dataset_handle(ctx, NULL);
    mpt__dataset *whole = mpt__dataset_enter(dataset, "mpt_random_split");
    if (!whole) return mpt__status_of(ctx);
    if (!fractions || !parts || n < 1 || n > MPT__SPLIT_PARTS)
        return mpt__error(ctx, ARGUMENT,
            "a split needs fractions, parts and n from 1 to %d; n is %d", MPT__SPLIT_PARTS, n);
    if (!mpt__split_sizes(ctx, whole->count, fractions, n, sizes)) return ctx->base.status;
    size_t bytes = (size_t)whole->count * sizeof(int64_t);
    int64_t *order = (int64_t *)mpt__host_array(ctx, whole->count, sizeof *order);
    if (order) mpt__random_permutation(key, whole->count, order);
    for (int i = 0; i < n && mpt__ok(ctx); at += sizes[i++])
        parts[i] = mpt__dataset_publish(ctx, mpt__subset_new(ctx, whole, 0, order + at, sizes[i]));
    mpt__host_free(ctx, order, bytes);
    for (int i = 0; i < n && !mpt__ok(ctx); i++) {
        if (parts[i].slot != 0) mpt__object_free(ctx, MPT__DATASET, parts[i].slot);
        parts[i] = mpt__dataset_handle(ctx, NULL);
    }
    return ctx->base.status;
}

/* ==== Questions ==== */

/* False with an error recorded for what mpt_table_load gives. */
static bool mpt__dataset_filled(mpt_context *ctx, const mpt__dataset *dataset) {
    return dataset->count > 0 ||
        mpt__reject(
            ctx, STATE, "a table of mpt_table_load has no samples: it tells what others are like");
}

int64_t mpt_dataset_size(mpt_dataset dataset) {
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_dataset_size");
    return found ? found->count : -1;
}

mpt_shape mpt_dataset_shape(mpt_dataset dataset) {
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_dataset_shape");
    mpt_shape none = MPT_SCALAR;
    none.rank = -1;
    return found ? found->shape : none;
}

/* Inputs that no loader converts: token ids and the like. */
static bool mpt__dataset_whole(const mpt__dataset *dataset) {
    return dataset->dtype == MPT_I64 || dataset->dtype == MPT_I32;
}

const char *mpt_class_name(mpt_dataset dataset, int64_t index) {
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_class_name");
    return found && index >= 0 && index < found->class_count ? found->classes[index] : NULL;
}

mpt_status mpt_normalize(mpt_dataset dataset, double mean, double deviation) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = dataset.context;
    mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_normalize");
    if (!found) return mpt__status_of(ctx);
    if (!mpt__f64_is_finite(mean) || !mpt__f64_is_finite(deviation) || !((float)deviation > 0.0f))
        return mpt__error(ctx, ARGUMENT,
            "mean %g, deviation %g: both must be finite and the deviation positive", mean,
            deviation);
    if (mpt__dataset_whole(found))
        return mpt__error(ctx, DTYPE,
            "%D inputs are delivered as they are and cannot be normalised", found->dtype);
    if (found->loaders > 0)
        return mpt__error(ctx, STATE,
            "a loader delivers from this dataset; call mpt_normalize before "
            "mpt_loader_create");
    found->normalised = true;
    found->mean = (float)mean;
    found->deviation = (float)deviation;
    return MPT_OK;
}

/* Adds value - center and its square over a sample; bytes in integers, exactly. */
typedef struct {
    double center, sum, squares;
} mpt__tally;

static void mpt__tally_add(mpt__tally *tally, mpt_dtype dtype, const void *values, size_t n) {
    const uint8_t *bytes = (const uint8_t *)values;
    size_t size = mpt__dtype_info[dtype].bytes;
    float block[MPT__ELEMENT_BLOCK];
    for (size_t done = 0, take; done < n; done += take) {
        uint32_t sum = 0, squares = 0;
        take = n - done < MPT__ELEMENT_BLOCK ? n - done : MPT__ELEMENT_BLOCK;
        if (dtype == MPT_U8) {
            for (size_t i = done; i < done + take; i++)
                sum += bytes[i], squares += (uint32_t)bytes[i] * bytes[i];
            tally->sum += sum, tally->squares += squares;
            continue;
        }
        mpt__elements_to_f32(dtype, bytes + done * size, block, take);
        for (size_t i = 0; i < take; i++) {
            double value = (double)block[i] - tally->center;
            tally->sum += value;
            tally->squares += value * value;
        }
    }
}

/* One pass over all samples; false with an error recorded. */
static bool mpt__tally_pass(
    mpt_context *ctx, const mpt__dataset *dataset, uint8_t *scratch, mpt__tally *tally) {
    char error[MPT__SAMPLE_ERROR];
    tally->sum = tally->squares = 0.0;
    for (int64_t i = 0; i < dataset->count; i++) {
        const void *values = mpt__sample_read(dataset, i, 0, scratch, scratch, NULL, error);
        if (!values) return mpt__reject(ctx, IO, "sample %lld: %s", i, error);
        mpt__tally_add(tally, dataset->dtype, values, (size_t)dataset->numel);
    }
    return true;
}

mpt_status mpt_dataset_statistics(mpt_dataset dataset, double *mean, double *deviation) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = dataset.context;
    mpt__tally tally = {0.0, 0.0, 0.0};
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_dataset_statistics");
    if (!found) return mpt__status_of(ctx);
    if (!mpt__dataset_filled(ctx, found)) return ctx->base.status;
    bool bytes = found->dtype == MPT_U8;
    double n = (double)found->count * (double)found->numel, unit = bytes ? 255.0 : 1.0;
    uint8_t *scratch = (uint8_t *)mpt__host_new(ctx, mpt__scratch_bytes(found));
    if (!mpt__ok(ctx)) return ctx->base.status;
    if (mpt__tally_pass(ctx, found, scratch, &tally) && !bytes) {
        tally.center = tally.sum / n;
        mpt__tally_pass(ctx, found, scratch, &tally);
    }
    mpt__host_free(ctx, scratch, mpt__scratch_bytes(found));
    if (!mpt__ok(ctx)) return ctx->base.status;
    double shift = tally.sum / n, variance = tally.squares / n - shift * shift;
    if (mean) *mean = (tally.center + shift) / unit;
    if (deviation) *deviation = sqrt(variance < 0.0 ? 0.0 : variance) / unit;
    return MPT_OK;
}

/* Sample `index`, its input as `to`, into what is not NULL. */
static mpt_status mpt__sample_out(mpt_context *ctx, const mpt__dataset *found, int64_t index,
    mpt_dtype to, void *input, void *target) {
    MPT__PLAIN_FLOATS;
    mpt__delivery delivery;
    char error[MPT__SAMPLE_ERROR];
    if (index < 0 || index >= found->count)
        return mpt__error(ctx, INDEX, "sample %lld of a dataset of %lld", index, found->count);
    uint8_t *scratch = (uint8_t *)mpt__host_new(ctx, mpt__scratch_bytes(found));
    if (!mpt__ok(ctx)) return ctx->base.status;
    mpt__delivery_begin(ctx, &delivery, found, to);
    bool good = mpt__dataset_fetch(found, &delivery, index, 0, scratch, input, target, error);
    mpt__host_free(ctx, scratch, mpt__scratch_bytes(found));
    return good ? MPT_OK : mpt__error(ctx, IO, "sample %lld: %s", index, error);
}

mpt_status mpt_sample(mpt_dataset dataset, int64_t index, float *input, int64_t *target) {
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_sample");
    if (!found) return mpt__status_of(dataset.context);
    if (target && (found->target_dtype != MPT_I64 || found->target_numel != 1))
        return mpt__error_of(dataset.context,
            found->target_dtype == MPT_I64 ? MPT_ERROR_SHAPE : MPT_ERROR_DTYPE,
            "%lld targets (%D %S), room for one class number; mpt_sample_into "
            "gives them, NULL for target none",
            found->target_numel, found->target_dtype, &found->target_shape);
    return mpt__sample_out(dataset.context, found, index, MPT_F32, input, target);
}

mpt_status mpt_sample_into(mpt_dataset dataset, int64_t index, void *input, size_t input_bytes,
    void *target, size_t target_bytes, mpt_sample_sizes *sizes) {
    mpt_sample_sizes need;
    if (!sizes) sizes = &need;
    mpt__zero(*sizes);
    const mpt__dataset *found = mpt__dataset_enter(dataset, "mpt_sample_into");
    if (!found) return mpt__status_of(dataset.context);
    sizes->dtype = mpt__dataset_whole(found) ? found->dtype : MPT_F32;
    sizes->target_dtype = found->target_dtype;
    sizes->shape = found->shape, sizes->target_shape = found->target_shape;
    int64_t width = mpt__dtype_info[sizes->dtype].bytes;
    sizes->bytes = found->numel > PTRDIFF_MAX / width ? SIZE_MAX : (size_t)(found->numel * width);
    sizes->target_bytes = found->target_bytes;
    if ((input && input_bytes < sizes->bytes) || (target && target_bytes < sizes->target_bytes))
        return mpt__error(dataset.context, ARGUMENT,
            "room for %llu bytes of input, %llu of targets; they take %llu and %llu",
            (uint64_t)input_bytes, (uint64_t)target_bytes, (uint64_t)sizes->bytes,
            (uint64_t)sizes->target_bytes);
    if (!input && !target) return MPT_OK;
    return mpt__sample_out(dataset.context, found, index, sizes->dtype, input, target);
}

/* The public function that ends an object. */
#define MPT__DESTROYS(name, TYPE) \
    mpt_status mpt_##name##_destroy(mpt_##name handle) { \
        mpt_context *ctx = handle.context; \
        if (!mpt__enter_anyway(ctx, "mpt_" #name "_destroy") || !mpt__##name##_at(ctx, handle)) \
            return mpt__status_of(ctx); \
        mpt__object_free(ctx, TYPE, handle.slot); \
        return MPT_OK; \
    }
MPT__DESTROYS(dataset, MPT__DATASET)

/* ==== Files ==== */

/* A file read from start to end. Failures are recorded, with the path. */
typedef struct {
    mpt_context *context;
    void *handle;
    const char *path;
    int64_t size, position;
} mpt__reader;

static void mpt__reader_close(mpt__reader *file) {
    const mpt_io *io = &file->context->base.io;
    if (io->close) io->close(io->user, file->handle);
}

/* A file of `most` bytes or less. */
static bool mpt__reader_open_up_to(
    mpt__reader *file, mpt_context *ctx, const char *path, int64_t most) {
    const mpt_io *io = mpt__io(&ctx->base);
    file->context = ctx;
    file->path = path;
    file->position = 0;
    file->handle = io->open ? io->open(io->user, path, 'r') : NULL;
    if (!file->handle)
        return mpt__reject(ctx, IO, "cannot open %s: %s", path, mpt__io_reason(&ctx->base));
    file->size = mpt__io(&ctx->base)->size ? io->size(io->user, file->handle) : -1;
    if ((uint64_t)file->size <= (uint64_t)most) return true;
    mpt__error(ctx, IO, "%s: its size is %s, so nothing can be allocated for it%s%s", path,
        file->size < 0 ? "not known" : "more than memory holds", file->size < 0 ? ": " : "",
        file->size < 0 ? mpt__io_reason(&ctx->base) : "");
    mpt__reader_close(file);
    return false;
}

/* One that may be read as a whole. */
static bool mpt__reader_open(mpt__reader *file, mpt_context *ctx, const char *path) {
    return mpt__reader_open_up_to(file, ctx, path, PTRDIFF_MAX);
}

/* All of the bytes, or an error. */
static bool mpt__reader_read(mpt__reader *file, void *to, size_t bytes) {
    const mpt_io *io = mpt__io(&file->context->base);
    size_t got = io->read ? io->read(io->user, file->handle, to, bytes) : 0;
    int64_t at = file->position;
    file->position += (int64_t)got;
    if (got == bytes) return true;
    return mpt__reject(file->context, IO, "%s: reading %lld bytes at byte %lld gave %lld: %s",
        file->path, (int64_t)bytes, at, (int64_t)got, mpt__io_reason(&file->context->base));
}

/* The whole file, whose first n bytes are in `head`; NULL with an error. */
static uint8_t *mpt__reader_rest(
    mpt__reader *file, const uint8_t *head, size_t n, mpt_memory_kind kind) {
    size_t size = (size_t)file->size;
    uint8_t *bytes = (uint8_t *)mpt__allocate(&file->context->base, size, kind);
    if (!bytes) return NULL;
    memcpy(bytes, head, n);
    if (mpt__reader_read(file, bytes + n, size - n)) return bytes;
    mpt__release(&file->context->base, bytes, size, kind);
    return NULL;
}

/* A whole file, to be freed with *size; NULL with an error recorded. */
static MPT__UNUSED uint8_t *mpt__reader_whole(mpt_context *ctx, const char *path, size_t *size) {
    mpt__reader file;
    uint8_t *bytes = NULL;
    *size = 0;
    if (!path) {
        mpt__error(ctx, ARGUMENT, "path is NULL");
    } else if (mpt__reader_open(&file, ctx, path)) {
        *size = (size_t)file.size;
        if (file.size == 0) mpt__error(ctx, FORMAT, "%s: the file is empty", path);
        bytes = mpt__reader_rest(&file, (const uint8_t *)"", 0, MPT_MEMORY_HOST);
        mpt__reader_close(&file);
    }
    return bytes;
}

/* Part of a file; false with a sentence in `error`. Any thread. */
static bool mpt__file_part(const mpt__base *base, const char *path, int64_t position, size_t bytes,
    void *to, char *error) {
    const mpt_io *io = mpt__io(base);
    /* Whoever made the dataset has opened and read the file. */
    void *file = io->seek ? io->open(io->user, path, 'r') : NULL;
    if (!file) {
        mpt__format_text(
            error, MPT__SAMPLE_ERROR, "cannot open %s: %s", path, mpt__io_reason(base));
        return false;
    }
    bool good = mpt__io(base)->seek(io->user, file, position) &&
        io->read(io->user, file, to, bytes) == bytes;
    if (!good)
        mpt__format_text(error, MPT__SAMPLE_ERROR, "%s: cannot read %lld bytes at byte %lld: %s",
            path, (int64_t)bytes, position, mpt__io_reason(base));
    if (io->close) io->close(io->user, file);
    return good;
}

/* ==== What a file is instead ==== */

/* The bytes of a byte-order mark that a text begins with: 3 or 0. */
static MPT__UNUSED size_t mpt__mark_bytes(const void *text, size_t n) {
    return n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* How files of other kinds begin. Text comes first: no numbers look so by chance. */
enum { MPT__KNOWN_TEXT = 6, MPT__KNOWN_ALL = 18 };

#if defined(MPT__NO_FILES)
#define mpt__refuse_known(ctx, path, bytes, n, rows) ((void)(bytes), (void)(n), true)
#define mpt__reader_plain(file, rows) true
#define mpt__what_is_wide(bytes, n) ((void)(bytes), (void)(n), (const char *)NULL)
#else
static const struct {
    uint8_t bytes;
    const char *begin, *what;
} mpt__known_files[MPT__KNOWN_ALL] = {
    {23, "version https://git-lfs", "a Git LFS pointer; git lfs pull gets the file it stands for"},
    {9, "<!doctype", "a web page (HTML), as a download gives that was refused"},
    {5, "<html", "a web page (HTML), as a download gives that was refused"},
    {5, "<head", "a web page (HTML), as a download gives that was refused"},
    {5, "<body", "a web page (HTML), as a download gives that was refused"},
    {5, "<?xml", "an XML document, as a download gives that was refused"},
    {2, "\xff\xfe", "text in UTF-16; convert it to UTF-8"},
    {2, "\xfe\xff", "text in UTF-16; convert it to UTF-8"},
    {2, "\x1f\x8b", "compressed by gzip; unpack it first"},
    {4, "PK\x03\x04", "a zip archive, as .zip, .npz, .xlsx and PyTorch's .pt are"},
    {6, "\x93NUMPY", "a NumPy array (.npy)"},
    {4, "\x28\xb5\x2f\xfd", "compressed by zstd; unpack it first"},
    {5, "\xfd\x37zXZ", "compressed by xz; unpack it first"},
    {3, "BZh", "compressed by bzip2; unpack it first"}, {4, "\x89HDF", "an HDF5 file"},
    {4, "PAR1", "a Parquet file"}, {4, "GGUF", "a GGUF file"},
    {2, "\x80\x02", "a Python pickle, as older .pt files are"}};

/* Whether n bytes begin with eight characters of ASCII in UTF-16 without a mark. */
static const char *mpt__what_is_wide(const uint8_t *p, size_t n) {
    for (size_t low = 0; low < 2 && n >= 16; low++) {
        size_t i = 0;
        while (i < 16 &&
            (i % 2 == low ? p[i] < 127 && (p[i] >= 32 || (p[i] >= 9 && p[i] <= 13)) : p[i] == 0))
            i++;
        if (i == 16) return "text in UTF-16; convert it to UTF-8";
    }
    return NULL;
}

/* What n bytes are the beginning of, by the first `rows` rows; NULL if of none. Eight bytes of a
   longer beginning are enough. */
static const char *mpt__what_this_is(const uint8_t *p, size_t n, int rows) {
    size_t mark = mpt__mark_bytes(p, n);
    if (n == 0) return NULL; /* and p may be NULL */
    p += mark, n -= mark;
    for (int row = 0; row < rows; row++) {
        const char *begin = mpt__known_files[row].begin;
        size_t length = mpt__known_files[row].bytes;
        size_t i = 0, at = 0;
        while (row < MPT__KNOWN_TEXT && at < n && (p[at] == ' ' || (p[at] >= 9 && p[at] <= 13)))
            at++;
        for (; i < length && at < n; i++, at++) {
            uint8_t c = p[at] >= 'A' && p[at] <= 'Z' && row < MPT__KNOWN_TEXT
                ? (uint8_t)(p[at] + 32)
                : p[at];
            if (c != (uint8_t)begin[i]) break;
        }
        if (i == length || (i >= 8 && at == n)) return mpt__known_files[row].what;
    }
    return rows == MPT__KNOWN_ALL ? mpt__what_is_wide(p, n) : NULL;
}

/* False with an error recorded if n bytes, the first of a file, say that it is something else; for
   a format's own refusals, which then need not guess. */
static bool mpt__refuse_known(
    mpt_context *ctx, const char *path, const uint8_t *p, size_t n, int rows) {
    const char *what = mpt__what_this_is(p, n, rows);
    return !what || mpt__reject(ctx, FORMAT, "%s: this is %s", path, what);
}

/* The same for a file just opened, of a format without a beginning of its own. */
static bool mpt__reader_plain(mpt__reader *file, int rows) {
    uint8_t head[32];
    size_t n = file->size < (int64_t)sizeof head ? (size_t)file->size : sizeof head;
    return mpt__reader_read(file, head, n) &&
        mpt__refuse_known(file->context, file->path, head, n, rows);
}
#endif

/* ==== idx files ==== */

#define MPT__GZIP_LEAST 18 /* bytes of a header and a trailer */
/* Deflate cannot expand more than this: 258 bytes from two bits. */
#define MPT__DEFLATE_RATIO 1032

/* An idx file in memory, header included, accounted as data. */
typedef struct {
    mpt__idx idx;
    uint8_t *bytes;
    size_t size;
} mpt__idx_file;

static bool mpt__idx_refuse(
    const mpt__reader *file, const mpt__idx *idx, const uint8_t *head, size_t n) {
    return mpt__refuse_known(file->context, file->path, head, n, MPT__KNOWN_ALL) &&
        mpt__reject(file->context, FORMAT,
            "%s: %s: expected %lld, got %lld (header, bytes 0 to %d)", file->path, idx->error,
            idx->expected, idx->got, MPT__IDX_MAX_HEADER - 1);
}

static bool mpt__inflate_refuse(const mpt__reader *file, const mpt__inflate *z) {
    return mpt__reject(file->context, FORMAT, "%s: %s (compressed byte %lld)", file->path, z->error,
        (int64_t)z->error_offset);
}

/* Decompresses a file whose header must agree with what its compressed bytes can hold before
   anything is allocated. The size at the end is no help: it is that of the last of perhaps many
   members. */
static bool mpt__idx_unpack(
    const mpt__reader *file, const uint8_t *packed, mpt__inflate *z, mpt__idx_file *out) {
    uint8_t head[MPT__IDX_MAX_HEADER];
    size_t n = (size_t)file->size;
    bool whole = mpt__inflate_run(z, packed, n, head, sizeof head);
    if (z->error) return mpt__inflate_refuse(file, z);
    if (!mpt__idx_header(&out->idx, head, z->written, whole ? (int64_t)z->written : -1))
        return mpt__idx_refuse(file, &out->idx, head, z->written);
    int64_t size = out->idx.header_bytes + out->idx.data_bytes;
    if (size / MPT__DEFLATE_RATIO > file->size)
        return mpt__reject(file->context, FORMAT,
            "%s: its idx header stands for %lld bytes, more than %lld compressed ones hold",
            file->path, size, file->size);
    out->size = (size_t)size;
    out->bytes = (uint8_t *)mpt__allocate(&file->context->base, out->size, MPT_MEMORY_DATA);
    if (!out->bytes) return false;
    whole = mpt__inflate_run(z, packed, n, out->bytes, out->size);
    if (z->error) return mpt__inflate_refuse(file, z);
    return (whole && z->written == out->size) ||
        mpt__reject(file->context, FORMAT,
            "%s: it unpacks to %s%lld bytes, its idx header stands for %lld", file->path,
            whole ? "" : "more than ", (int64_t)z->written, size);
}

/* Reads the rest of an open file, plain or gzip by its first two bytes. */
static bool mpt__idx_read(mpt__reader *file, mpt__idx_file *out) {
    uint8_t head[MPT__IDX_MAX_HEADER] = {0};
    size_t n = file->size < (int64_t)sizeof head ? (size_t)file->size : sizeof head;
    if (!mpt__reader_read(file, head, n)) return false;
    if (head[0] != 0x1f || head[1] != 0x8b) {
        if (!mpt__idx_header(&out->idx, head, n, file->size))
            return mpt__idx_refuse(file, &out->idx, head, n);
        out->size = (size_t)file->size;
        out->bytes = mpt__reader_rest(file, head, n, MPT_MEMORY_DATA);
        return out->bytes != NULL;
    }
    if (file->size < MPT__GZIP_LEAST)
        return mpt__reject(file->context, FORMAT,
            "%s: a gzip file of %lld bytes, at least %d expected", file->path, file->size,
            MPT__GZIP_LEAST);
    mpt__inflate *z = (mpt__inflate *)mpt__host_new(file->context, sizeof *z);
    uint8_t *packed = z ? mpt__reader_rest(file, head, n, MPT_MEMORY_HOST) : NULL;
    bool good = packed && mpt__idx_unpack(file, packed, z, out);
    mpt__host_free(file->context, packed, (size_t)file->size);
    mpt__host_free(file->context, z, sizeof *z);
    return good;
}

/* False with an error recorded; what was read may still be there. */
static bool mpt__idx_open(mpt_context *ctx, const char *path, mpt__idx_file *out) {
    mpt__reader file;
    if (!mpt__reader_open(&file, ctx, path)) return false;
    bool good = mpt__idx_read(&file, out);
    mpt__reader_close(&file);
    return good;
}

/* An idx shape without its first dimension, behind `lead` if that is > 0. */
static mpt_shape mpt__idx_shape(const mpt__idx *idx, int64_t lead) {
    mpt_shape shape = MPT_SCALAR;
    if (lead > 0) shape.dim[shape.rank++] = lead;
    for (int i = 1; i < idx->rank; i++) shape.dim[shape.rank++] = idx->shape[i];
    return shape;
}

/* Reads both files (files[1] if it has a path), which must belong together. `image`, unless 0:
   inputs must be [N, image, image] and targets [N]. */
static bool mpt__idx_read_pair(
    mpt_context *ctx, const char *const paths[2], int64_t image, mpt__idx_file files[2]) {
    const mpt__idx *inputs = &files[0].idx, *targets = &files[1].idx;
    if (!mpt__idx_open(ctx, paths[0], &files[0])) return false;
    mpt_shape got = mpt__idx_shape(inputs, inputs->shape[0]);
    if (image > 0 && (got.rank != 3 || got.dim[1] != image || got.dim[2] != image))
        return mpt__reject(ctx, FORMAT, "%s: expected images [N, %lld, %lld], got %S", paths[0],
            image, image, &got);
    if (!paths[1]) return true;
    if (!mpt__idx_open(ctx, paths[1], &files[1])) return false;
    got = mpt__idx_shape(targets, targets->shape[0]);
    if (got.dim[0] == inputs->shape[0] && (image == 0 || got.rank == 1)) return true;
    return mpt__reject(ctx, FORMAT, "%s: expected %lld targets as in %s, got %S", paths[1],
        inputs->shape[0], paths[0], &got);
}

/* A dataset that owns what is in both files. Images get a channel dimension. */
static mpt_dataset mpt__idx_dataset(mpt_context *ctx, const char *const paths[2], int64_t image) {
    mpt_user_dataset_config samples;
    mpt__idx_file files[2];
    mpt__dataset *dataset = NULL;
    memset(files, 0, sizeof files);
    mpt__zero(samples);
    if (mpt__idx_read_pair(ctx, paths, image, files)) {
        samples.count = files[0].idx.shape[0];
        samples.dtype = MPT_U8;
        samples.shape = mpt__idx_shape(&files[0].idx, image > 0 ? 1 : 0);
        samples.target_dtype = paths[1] ? MPT_I64 : MPT_DTYPE_NONE;
        samples.target_shape = mpt__idx_shape(&files[1].idx, 0);
        dataset = mpt__dataset_new(ctx, &samples, true);
    }
    for (int i = 0; i < 2; i++) {
        if (!dataset)
            mpt__release(&ctx->base, files[i].bytes, files[i].size, MPT_MEMORY_DATA);
        else
            mpt__dataset_own(dataset, i, files[i].bytes, files[i].size);
    }
    if (dataset) {
        dataset->inputs = files[0].bytes + files[0].idx.header_bytes;
        if (paths[1]) dataset->targets = files[1].bytes + files[1].idx.header_bytes;
        dataset->byte_targets = true;
    }
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_idx(mpt_context *ctx, const char *inputs_path, const char *targets_path) {
    const char *const paths[2] = {inputs_path, targets_path};
    if (!mpt__enter_files(ctx, "mpt_idx")) return mpt__dataset_handle(ctx, NULL);
    if (inputs_path) return mpt__idx_dataset(ctx, paths, 0);
    return mpt__refuse_dataset(ctx, ARGUMENT, "inputs_path is NULL");
}

/* ==== MNIST ==== */

#define MPT__MNIST_SIDE 28

static bool mpt__split_good(mpt_context *ctx, const char *directory, mpt_split split) {
    if (!directory) return mpt__reject(ctx, ARGUMENT, "directory is NULL");
    return split == MPT_TRAIN || split == MPT_TEST ||
        mpt__reject(ctx, ARGUMENT, "split %d is neither MPT_TRAIN nor MPT_TEST", (int)split);
}

/* The first of the names in use, plain or .gz: as published, and with a dot, as some mirrors spell
   them. One that cannot be opened is an error, no reason to take another. False with an error
   recorded. */
static bool mpt__mnist_find(mpt_context *ctx, const char *directory, mpt_split split, bool labels,
    char path[MPT__PATH_SIZE]) {
    const char *set = split == MPT_TEST ? "t10k" : "train", *part = labels ? "labels" : "images";
    int rank = labels ? 1 : 3;
    const mpt_io *io = &ctx->base.io;
    for (int i = 0; i < 4 && io->open; i++) {
        if (mpt__format_text(path, MPT__PATH_SIZE, "%s/%s-%s%cidx%d-ubyte%s", directory, set, part,
                i < 2 ? '-' : '.', rank, i % 2 ? ".gz" : "") >= MPT__PATH_SIZE)
            return mpt__reject(ctx, ARGUMENT, "the path of the directory is too long");
        errno = 0;
        void *handle = io->open(io->user, path, 'r');
        if (handle && io->close) io->close(io->user, handle);
        if (handle) return true;
        if (!mpt__io_absent(&ctx->base))
            return mpt__reject(ctx, IO, "cannot open %s: %s", path, mpt__io_reason(&ctx->base));
    }
    return mpt__reject(ctx, IO,
        "%s has no %s-%s-idx%d-ubyte.gz or %s-%s.idx%d-ubyte.gz, nor one of them "
        "unpacked, that can be opened: %s",
        directory, set, part, rank, set, part, rank, mpt__io_reason(&ctx->base));
}

mpt_dataset mpt_mnist(mpt_context *ctx, const char *directory, mpt_split split) {
    char images[MPT__PATH_SIZE], labels[MPT__PATH_SIZE];
    const char *const paths[2] = {images, labels};
    if (!mpt__enter_files(ctx, "mpt_mnist")) return mpt__dataset_handle(ctx, NULL);
    if (mpt__split_good(ctx, directory, split) &&
        mpt__mnist_find(ctx, directory, split, false, images) &&
        mpt__mnist_find(ctx, directory, split, true, labels))
        return mpt__idx_dataset(ctx, paths, MPT__MNIST_SIDE);
    return mpt__dataset_handle(ctx, NULL);
}

#endif
