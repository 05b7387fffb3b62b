/* ----
 * face/tensors.h: the public API: contexts, tensors, operations, autograd.
 *
 * Shapes stand in brackets, [N, C]; dtypes are those of mpt_dtype; bytes are bytes, elements are
 * elements. A function that can fail records the first error in its context (mpt_error) and
 * returns a status, or an error null that later calls pass on in silence: a loop checks once.
 * ---- */
#ifndef MPTRAIN_H
#define MPTRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MPTRAIN_VERSION_MAJOR 0
#define MPTRAIN_VERSION_MINOR 1
#define MPTRAIN_VERSION_PATCH 0
/* One number that grows with every release: 1000000 * major + 1000 * minor + patch. */
#define MPTRAIN_VERSION \
    (MPTRAIN_VERSION_MAJOR * 1000000 + MPTRAIN_VERSION_MINOR * 1000 + MPTRAIN_VERSION_PATCH)

#ifdef MPTRAIN_NO_WATCH /* leaves out more */
#undef MPTRAIN_WATCH
#endif

#ifndef MPTRAIN_API
#ifdef MPTRAIN_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define MPTRAIN_API static __attribute__((unused))
#else
#define MPTRAIN_API static
#endif
#else
#define MPTRAIN_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Basic types ============================================================================ */

typedef struct mpt_context mpt_context;

/* Handles are values. A stale one (its object is gone) or a foreign one (another context's) is an
   error in every build. So is a null one ({0}, as a field that was never set), also where no
   context made it: an error of the context of another argument, else of that which this thread made
   last, if it lives; mpt_failed tells. Only mpt_release takes it for nothing. Two misuses cannot be
   caught: a handle that was never initialised, and one used after mpt_destroy of its context. */
#define MPT__HANDLE(name) \
    typedef struct name { \
        mpt_context *context; \
        uint32_t slot, generation; \
    } name
MPT__HANDLE(mpt_tensor);
MPT__HANDLE(mpt_module);
MPT__HANDLE(mpt_optimizer);
MPT__HANDLE(mpt_scaler);
MPT__HANDLE(mpt_schedule);
MPT__HANDLE(mpt_ema);
MPT__HANDLE(mpt_dataset);
MPT__HANDLE(mpt_loader);
MPT__HANDLE(mpt_tokenizer);
MPT__HANDLE(mpt_recording);
MPT__HANDLE(mpt_captured);
MPT__HANDLE(mpt_op);
MPT__HANDLE(mpt_graph);

typedef enum mpt_status {
    MPT_OK = 0,
    MPT_ERROR_ARGUMENT,    /* a value out of its range, a null pointer, an unknown name */
    MPT_ERROR_SHAPE,       /* shapes that do not fit together */
    MPT_ERROR_DTYPE,       /* dtypes that do not fit together or cannot be computed in */
    MPT_ERROR_HANDLE,      /* null, stale or foreign handle */
    MPT_ERROR_STATE,       /* calls in an order that has no meaning */
    MPT_ERROR_MEMORY,      /* the allocator or the limit said no */
    MPT_ERROR_IO,          /* a file could not be opened, read or written */
    MPT_ERROR_FORMAT,      /* a file's content is not what it claims to be */
    MPT_ERROR_INDEX,       /* a target or an index out of range */
    MPT_ERROR_NUMERIC,     /* training cannot go on: the loss scaler gave up, weights overflow */
    MPT_ERROR_UNSUPPORTED, /* not in this build, or out of scope */
    MPT_ERROR_DEVICE,      /* the device failed or does not exist */
    MPT_ERROR_THREAD       /* a thread could not be made; a context used after fork */
} mpt_status;

typedef enum mpt_dtype {
    MPT_DTYPE_NONE = 0,
    MPT_F32,
    MPT_F16,
    MPT_BF16,
    MPT_F8E4M3,
    MPT_F8E5M2,
    MPT_F64, /* storage only: read, write, cast */
    MPT_I64,
    MPT_I32,
    MPT_U8,
    MPT_BOOL,
    MPT_DTYPE_COUNT,
    MPT_PRECISION_AUTO /* no dtype: see mpt_precision_auto */
} mpt_dtype;

#define MPT_MAX_RANK 8

/* A shape by value; rank 0 has one element. Dimensions past `rank` are ignored. */
typedef struct mpt_shape {
    int rank;
    int64_t dim[MPT_MAX_RANK];
} mpt_shape;

static inline mpt_shape mpt_shape_make(int rank, int64_t a, int64_t b, int64_t c, int64_t d,
    int64_t e, int64_t f, int64_t g, int64_t h) {
    mpt_shape shape;
    shape.rank = rank;
    shape.dim[0] = a, shape.dim[1] = b, shape.dim[2] = c, shape.dim[3] = d;
    shape.dim[4] = e, shape.dim[5] = f, shape.dim[6] = g, shape.dim[7] = h;
    return shape;
}
#define MPT__SHAPE_PICK(a, b, c, d, e, f, g, h, n, ...) mpt_shape_make(n, a, b, c, d, e, f, g, h)
/* MPT_SHAPE(64, 784): one to eight dimensions. MPT_SCALAR: the shape of a 0-d tensor. */
#define MPT_SHAPE(...) MPT__SHAPE_PICK(__VA_ARGS__, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define MPT_SCALAR mpt_shape_make(0, 0, 0, 0, 0, 0, 0, 0, 0)

/* ==== Context ================================================================================ */

typedef enum mpt_device { MPT_DEVICE_AUTO = 0, MPT_DEVICE_CPU, MPT_DEVICE_CUDA } mpt_device;

/* Instruction set levels of the CPU backend. AUTO takes the best that this CPU has; asking for one
   that it lacks is an error of mpt_create. NULL executes nothing: it measures what calls cost. */
typedef enum mpt_isa {
    MPT_ISA_AUTO = 0,
    MPT_ISA_NULL,
    MPT_ISA_REF,
    MPT_ISA_AVX2,
    MPT_ISA_AVX512,
    MPT_ISA_AVX512_BF16,
    MPT_ISA_AMX,
    MPT_ISA_NEON,
    MPT_ISA_NEON_BF16,
    MPT_ISA_PORTABLE, /* the bits of MPT_ISA_REF, the same on every machine, by what vectors the
                         CPU has: for programs that train in lockstep on different machines.
                         Convolutions and products in attention are no faster than REF's */
    MPT_ISA_UNKNOWN   /* of a name in MPTRAIN_ISA that is none: mpt_create refuses it */
} mpt_isa;

/* All memory of the library comes from here. Alignment is a power of two <= 4096. `release` gets
   the size and alignment that were asked for. Called only by the thread that owns the context. */
typedef struct mpt_allocator {
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *pointer, size_t bytes, size_t alignment);
    void *user;
} mpt_allocator;

typedef enum mpt_log_level {
    MPT_LOG_DEBUG,
    MPT_LOG_INFO,
    MPT_LOG_WARNING,
    MPT_LOG_ERROR
} mpt_log_level;

typedef struct mpt_logger {
    void (*write)(void *user, mpt_log_level level, const char *message);
    void *user;
} mpt_logger;
#ifndef MPTRAIN_NO_STDIO
/* A ready-made `write`: a line to stderr, "mptrain: warning: ..", for every message. */
MPTRAIN_API void mpt_log_stderr(void *user, mpt_log_level level, const char *message);
#endif

/* Seconds from any fixed start, monotonic. */
typedef struct mpt_clock {
    double (*now)(void *user);
    void *user;
} mpt_clock;

/* Files. `open` returns NULL on failure; mode is 'r' (read) or 'w' (create or truncate). `read` and
   `write` return the bytes moved, fewer only at the end or on error. `size` is -1 if unknown.
   `commit` makes the file durable and moves it from `temporary` to `path` in one step. `list` hands
   the names in a folder, in any order and without "." and "..", to `entry`; is_folder is true of
   folders and of what may be one, as a folder that cannot be opened now: left out, it would be a
   class less. False from `list`: not all could be told. Paths are UTF-8 everywhere. May be called
   from loader workers (read side only).
   What fails may say why by errno, which is 0 before each call: messages then name that, and an
   `open` that fails with another errno than ENOENT is an error even where the library looks for
   files of several names.
   The built-in functions save to a file beside the target, or beside what a link leads to, created
   with no more rights than the target has; the target's owner, group and mode are kept as far as
   the system allows (access lists are not). Next to it, files that killed processes of this
   machine left from saving are removed. */
typedef void (*mpt_list_entry)(void *to, const char *name, bool is_folder);
typedef struct mpt_io {
    void *(*open)(void *user, const char *path, char mode);
    size_t (*read)(void *user, void *file, void *buffer, size_t bytes);
    size_t (*write)(void *user, void *file, const void *buffer, size_t bytes);
    bool (*seek)(void *user, void *file, int64_t position);
    int64_t (*size)(void *user, void *file);
    bool (*flush)(void *user, void *file); /* to the medium */
    bool (*close)(void *user, void *file);
    bool (*commit)(void *user, const char *temporary, const char *path);
    bool (*remove)(void *user, const char *path);
    bool (*list)(void *user, const char *path, mpt_list_entry entry, void *to);
    void *user;
} mpt_io;

/* Threads. All return 0 on success. Objects are opaque to the library and made by its owner
   thread. `create` runs entry(argument) on a new thread. */
typedef struct mpt_threads {
    int (*create)(void *user, void **thread, void (*entry)(void *argument), void *argument);
    int (*join)(void *user, void *thread);
    int (*mutex_create)(void *user, void **mutex);
    void (*mutex_destroy)(void *user, void *mutex);
    void (*mutex_lock)(void *user, void *mutex);
    void (*mutex_unlock)(void *user, void *mutex);
    int (*condition_create)(void *user, void **condition);
    void (*condition_destroy)(void *user, void *condition);
    void (*condition_wait)(void *user, void *condition, void *mutex);
    void (*condition_broadcast)(void *user, void *condition);
    void *user;
} mpt_threads;

typedef struct mpt_config {
    mpt_device device;    /* AUTO: CUDA if built in (MPTRAIN_CUDA) and present, else CPU */
    int device_index;     /* 0; which GPU */
    uint64_t seed;        /* 0; every random draw of the context derives from it */
    int threads;          /* 0 = one per core; 1 = the calling thread only */
    mpt_isa isa;          /* AUTO, or what the environment variable MPTRAIN_ISA names */
    bool amx;             /* true: ask the system for AMX tiles where the CPU has them */
    bool debug;           /* false, or MPTRAIN_DEBUG is set: checks the bounds of launches */
    bool dry;             /* false; true: takes no memory and computes nothing; see mpt_plan */
    int64_t memory_limit; /* bytes; 0 = none */
    /* All-null groups mean the built-in ones. Allocator and threads are replaced as a whole; a
       function of io that is missing fails when it is needed. */
    mpt_allocator allocator;
    mpt_logger log;
    mpt_clock clock;
    mpt_io io;
    mpt_threads thread;
} mpt_config;

MPTRAIN_API mpt_config mpt_config_default(void); /* as above; the environment is read here */

/* Makes a context; NULL config means defaults. Returns NULL on failure; mpt_error(NULL) says why.
   One thread uses a context at a time; several contexts run side by side. */
MPTRAIN_API mpt_context *mpt_create(const mpt_config *config);
/* Frees everything that the context ever made. NULL is allowed. Does nothing in a child after
   fork. */
MPTRAIN_API void mpt_destroy(mpt_context *context);

MPTRAIN_API int mpt_version(void);                     /* MPTRAIN_VERSION of the implementation */
MPTRAIN_API mpt_isa mpt_get_isa(mpt_context *context); /* the level in use; AUTO on a GPU */
MPTRAIN_API const char *mpt_isa_name(mpt_isa isa);     /* "avx2" */
MPTRAIN_API int mpt_get_threads(mpt_context *context); /* that compute, the caller included */
MPTRAIN_API mpt_device mpt_get_device(mpt_context *context);   /* the one in use, never AUTO */
MPTRAIN_API const char *mpt_device_name(mpt_context *context); /* "CPU", "NVIDIA H200" */
typedef struct mpt_device_info {
    mpt_device device;
    char name[128];
    int index;           /* among devices of its kind */
    int64_t memory;      /* bytes it has; 0 for the CPU: not known */
    int64_t memory_free; /* of them that no program uses now */
    int major, minor;    /* compute capability of a GPU */
    bool fast_half;      /* bf16 or fp16 is faster than fp32: Tensor Cores, AMX, AVX512_BF16 or
                            AArch64's BFMMLA (bf16); else they save memory */
} mpt_device_info;
MPTRAIN_API mpt_device_info mpt_get_device_info(mpt_context *context);
/* The precision to train in on this device, for mpt_autocast_begin: MPT_BF16 where bf16 is faster
   than fp32, MPT_F16, which wants a scaler, where only fp16 is, else MPT_F32. It depends on the
   device and the instruction set alone. *reason (may be NULL) gets a sentence, valid for ever. */
MPTRAIN_API mpt_dtype mpt_precision_auto(mpt_context *context, const char **reason);
/* How many of them this program can use; 0 for CUDA in a build without it or without a driver. */
MPTRAIN_API int mpt_device_count(mpt_device device);
MPTRAIN_API const char *mpt_dtype_name(mpt_dtype dtype); /* "float16"; "none" if it is none */
MPTRAIN_API size_t mpt_dtype_size(mpt_dtype dtype);      /* bytes per element; 0 if it is none */
/* `benchmark`, on a GPU: of each new kind of matrix product the fastest way is found by timing and
   kept, as cudnn.benchmark does; else the first choice, so that every run gives the same bits.
   `tf32`, as torch.set_float32_matmul_precision("high"): a GPU rounds operands of fp32 products to
   TF32; with AMX tiles they are made of three of bf16, off by less than 3.1e-5 of the sum of |a b|
   (TF32: 1e-3), unless a value reaches 2^62. Both are off at first, and do nothing elsewhere. */
MPTRAIN_API mpt_status mpt_benchmark(mpt_context *context, bool benchmark, bool tf32);
/* The choices so far as text, to print or to keep in a file: writes at most `capacity` bytes, the
   last one 0. Returns the length of the whole text; 0 where there is nothing to choose. */
MPTRAIN_API size_t mpt_benchmark_text(mpt_context *context, char *text, size_t capacity);
/* Takes such a text over. One of another card or other libraries is left alone, with a notice. */
MPTRAIN_API mpt_status mpt_benchmark_read(mpt_context *context, const char *text);
/* Waits until the device has done all that was asked of it. */
MPTRAIN_API mpt_status mpt_synchronize(mpt_context *context);

/* ==== Errors ================================================================================= */

MPTRAIN_API bool mpt_failed(mpt_context *context); /* true for NULL, too */
/* The first error since the last mpt_clear_error, in one line: what, where, expected, got, and the
   call that would fix it. Empty if there is none. Valid until the next call on the context. */
MPTRAIN_API const char *mpt_error(mpt_context *context);
MPTRAIN_API mpt_status mpt_error_code(mpt_context *context); /* MPT_OK if there is none */
/* Ends the error, if there is one: discards tape, open step, scopes and regions, gradients and a
   recording under way; step and random counters, dropout's too, go back to the last completed
   optimizer step. The ends of what it closed may still be called, as by cleanup code; a step's
   until the next one begins. Weights are never touched by an error. During backward and from a log
   it does nothing. */
MPTRAIN_API void mpt_clear_error(mpt_context *context);
MPTRAIN_API const char *mpt_status_name(mpt_status status); /* "out of memory" */

/* ==== Memory ================================================================================= */

typedef enum mpt_memory_kind {
    MPT_MEMORY_PARAMETER = 0,
    MPT_MEMORY_MASTER, /* fp32 copies of half parameters */
    MPT_MEMORY_FORM,   /* casts and packed forms of weights */
    MPT_MEMORY_GRADIENT,
    MPT_MEMORY_MOMENT,     /* optimizer state */
    MPT_MEMORY_ACTIVATION, /* every other tensor */
    MPT_MEMORY_DATA,       /* resident datasets */
    MPT_MEMORY_BATCH,      /* loader slots */
    MPT_MEMORY_WORKSPACE,  /* scratch of kernels */
    MPT_MEMORY_HOST,       /* tables, records, names */
    MPT_MEMORY_KINDS
} mpt_memory_kind;

typedef struct mpt_memory_stats {
    int64_t current[MPT_MEMORY_KINDS]; /* bytes in live use */
    int64_t peak[MPT_MEMORY_KINDS];    /* the highest that current[kind] has been */
    int64_t total_current, total_peak; /* of the sums */
    int64_t held;                      /* bytes taken from the allocator, idle pool included */
    int64_t allocations, releases;     /* calls of the allocator so far */
} mpt_memory_stats;

MPTRAIN_API mpt_memory_stats mpt_memory(mpt_context *context); /* zeros for NULL */
MPTRAIN_API void mpt_memory_reset_peak(mpt_context *context);  /* peaks to what is in use now */
MPTRAIN_API const char *mpt_memory_kind_name(mpt_memory_kind kind); /* "activation" */
/* Gives the allocator back what is idle as a whole. */
MPTRAIN_API void mpt_memory_trim(mpt_context *context);

/* What a training will take, before it takes it: `train` is your own code, called in a dry context
   of this configuration (NULL: defaults) on the CPU, which does all that the real one would do but
   take memory, draw, decode samples and compute: every value is 0, and saving writes no file. It
   builds the net and runs at least two steps, since what the first one makes, as moments, lies
   beside the activations of the second. *stats (may be NULL) gets mpt_memory at its end: peaks by
   kind, `held` with the pool. An error is returned, and told by mpt_error(NULL). A context of your
   own is dry with mpt_config.dry. */
typedef mpt_status (*mpt_plan_fn)(mpt_context *context, int64_t batch, void *user);
MPTRAIN_API mpt_status mpt_plan(const mpt_config *config, mpt_plan_fn train, int64_t batch,
    void *user, mpt_memory_stats *stats);
/* The largest batch up to `most` for which `train` takes at most `budget` bytes from the allocator,
   found by dry runs: 0 if not even 1 does, -1 on an error, told by mpt_error(NULL). */
MPTRAIN_API int64_t mpt_largest_batch(const mpt_config *config, mpt_plan_fn train, void *user,
    int64_t budget, int64_t most);

/* ==== Lifetime =============================================================================== */

/* Every tensor made between begin and end dies at end, except gradients of parameters and what
   mpt_keep returned. Steps do not nest; scopes do, also inside steps. */
MPTRAIN_API mpt_status mpt_step_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_step_end(mpt_context *context);
MPTRAIN_API mpt_status mpt_scope_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_scope_end(mpt_context *context);
/* mpt_scope_end but for `count` tensors, which belong to the scope outside from now on: what a
   module's forward gives back while everything else that it made ends.
       mpt_scope_begin(context);
       ..
       return mpt_scope_return(context, out, 1); */
MPTRAIN_API mpt_status mpt_scope_return(mpt_context *context, const mpt_tensor *results, int count);
MPTRAIN_API bool mpt_step_is_open(mpt_context *context);
/* The number of the current or last step, from 1; 0 before the first. */
MPTRAIN_API int64_t mpt_step_number(mpt_context *context);
/* A detached handle on the same values, no copy, that outlives steps and scopes until
   mpt_release. */
MPTRAIN_API mpt_tensor mpt_keep(mpt_tensor tensor);
/* Ends a tensor early; a dead handle is fine, a parameter or a gradient an error. The memory
   returns when no view and no pending backward needs it. */
MPTRAIN_API void mpt_release(mpt_tensor tensor);
/* Whether the handle is live; never records an error. */
MPTRAIN_API bool mpt_valid(mpt_tensor tensor);
/* For an argument that may be left out, such as the bias of mpt_linear, and for one to come. */
static inline mpt_tensor mpt_null_tensor(void) {
    mpt_tensor null;
    null.context = NULL, null.slot = 0, null.generation = 0;
    return null;
}

/* ==== Tensors ================================================================================ */

/* New contiguous tensors of any dtype, of 0, 1 or `value`; arange: [count], 0 to count - 1. */
MPTRAIN_API mpt_tensor mpt_zeros(mpt_context *context, mpt_dtype dtype, mpt_shape shape);
MPTRAIN_API mpt_tensor mpt_ones(mpt_context *context, mpt_dtype dtype, mpt_shape shape);
MPTRAIN_API mpt_tensor mpt_full(
    mpt_context *context, mpt_dtype dtype, mpt_shape shape, double value);
MPTRAIN_API mpt_tensor mpt_arange(mpt_context *context, mpt_dtype dtype, int64_t count);
/* Uniform in [0, 1), never 1 in any dtype, and standard normal, of a float dtype, from the seed of
   the context and a count of such calls. */
MPTRAIN_API mpt_tensor mpt_rand(mpt_context *context, mpt_dtype dtype, mpt_shape shape);
MPTRAIN_API mpt_tensor mpt_randn(mpt_context *context, mpt_dtype dtype, mpt_shape shape);
/* Standard normal numbers that are those of this seed, whatever was drawn before. */
MPTRAIN_API mpt_tensor mpt_randn_seeded(
    mpt_context *context, mpt_dtype dtype, mpt_shape shape, uint64_t seed);
/* The same draws, of the dtype and shape of x. */
MPTRAIN_API mpt_tensor mpt_rand_like(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_randn_like(mpt_tensor x);
/* As torch.multinomial: `count` places of each row of weights [.., n], each by its share of the
   row's sum, which need not be 1, as i64 [.., count]; without replacement each place once. Weight 0
   is never drawn. A row with a weight that is negative or not finite, or with too few above 0, is
   an error that names it. Seeded and counted as mpt_rand. The host draws and waits for the device,
   an error in a captured step.
       next = mpt_multinomial(mpt_softmax(logits, -1), 1, false); */
MPTRAIN_API mpt_tensor mpt_multinomial(mpt_tensor weights, int64_t count, bool replacement);
/* A class of each row of logits [.., n], as i64 [..]: by its softmax at that temperature, of the
   top_k likeliest, and of those from the fewest that together have top_p. Logits of -infinity are
   never drawn; NaN, infinity or a row of nothing else is an error that names it. Else as
   mpt_multinomial. */
typedef struct mpt_categorical_config {
    double temperature; /* 1; 0: the largest logit */
    int64_t top_k;      /* 0: all */
    double top_p;       /* 1 */
} mpt_categorical_config;
MPTRAIN_API mpt_categorical_config mpt_categorical_config_default(void);
MPTRAIN_API mpt_tensor mpt_categorical(mpt_tensor logits, const mpt_categorical_config *config);
/* Copies `data`, row-major elements of `dtype`, in. */
MPTRAIN_API mpt_tensor mpt_from(
    mpt_context *context, mpt_dtype dtype, mpt_shape shape, const void *data);
/* Borrows `data`, CPU memory aligned to an element, which the caller keeps alive and unmoved while
   a tensor or a pending backward uses it. */
MPTRAIN_API mpt_tensor mpt_wrap(mpt_context *context, mpt_dtype dtype, mpt_shape shape, void *data);

MPTRAIN_API mpt_shape mpt_get_shape(mpt_tensor tensor); /* rank -1 on error */
MPTRAIN_API mpt_dtype mpt_get_dtype(mpt_tensor tensor); /* MPT_DTYPE_NONE on error */
MPTRAIN_API int64_t mpt_numel(mpt_tensor tensor);       /* -1 on error */
MPTRAIN_API bool mpt_is_contiguous(mpt_tensor tensor);
/* The value of a one-element tensor, as double; NaN on error. Waits for the device. */
MPTRAIN_API double mpt_item(mpt_tensor tensor);
/* Copies all elements out in row-major order, unconverted; `bytes` must be exactly their size. */
MPTRAIN_API mpt_status mpt_read(mpt_tensor tensor, void *destination, size_t bytes);
/* The same, converted to fp32; `count` must be the number of elements. */
MPTRAIN_API mpt_status mpt_read_f32(mpt_tensor tensor, float *destination, int64_t count);
/* Copies in over all values, row-major elements of the tensor's dtype; `bytes` must be exactly
   their size. Counts as an in-place change: a backward that saved the old values is an error. */
MPTRAIN_API mpt_status mpt_write(mpt_tensor tensor, const void *source, size_t bytes);
/* Text of a tensor into `text` (always terminated); returns the length it needs without the
   terminator. `digits` significant digits, at most `edge` entries at each end of a dimension. */
typedef struct mpt_print_config {
    int digits; /* 4 */
    int edge;   /* 3 */
} mpt_print_config;
MPTRAIN_API mpt_print_config mpt_print_config_default(void);
MPTRAIN_API size_t mpt_format(
    mpt_tensor tensor, const mpt_print_config *config, char *text, size_t size);
/* |a - b| <= atol + rtol |b| everywhere, NaN equal to nothing. Waits for the device. */
MPTRAIN_API bool mpt_allclose(mpt_tensor a, mpt_tensor b, double rtol, double atol);
/* An error that names `what` unless the shape fits; -1 fits any size. */
MPTRAIN_API mpt_status mpt_expect_shape(mpt_tensor tensor, mpt_shape shape, const char *what);

/* Views: share the storage, no copy; differentiable, of any dtype. Dimensions may be negative and
   then count from the end. reshape copies if strides forbid a view; one size may be -1 and is
   inferred. Dimension i of permute's result is dimension order.dim[i] of x. */
MPTRAIN_API mpt_tensor mpt_reshape(mpt_tensor x, mpt_shape shape);
MPTRAIN_API mpt_tensor mpt_permute(mpt_tensor x, mpt_shape order);
MPTRAIN_API mpt_tensor mpt_transpose(mpt_tensor x, int dim_a, int dim_b);
/* Elements [start, stop) of a dimension, every step-th, step >= 1; negative bounds count from the
   end, bounds beyond it are cut, as in Python. */
MPTRAIN_API mpt_tensor mpt_slice(mpt_tensor x, int dim, int64_t start, int64_t stop, int64_t step);
/* Element `index` of a dimension, without that dimension; negative ones count from the end. */
MPTRAIN_API mpt_tensor mpt_select(mpt_tensor x, int dim, int64_t index);
/* Stretches dimensions of size 1 and adds leading ones; -1 keeps a size. */
MPTRAIN_API mpt_tensor mpt_expand(mpt_tensor x, mpt_shape shape);
/* Merges dimensions first_dim to last_dim into one; a 0-d tensor becomes [1]. */
MPTRAIN_API mpt_tensor mpt_flatten(mpt_tensor x, int first_dim, int last_dim);

MPTRAIN_API mpt_tensor mpt_contiguous(mpt_tensor x); /* x itself if it already is */
MPTRAIN_API mpt_tensor mpt_clone(mpt_tensor x);      /* differentiable copy */
MPTRAIN_API mpt_tensor mpt_detach(mpt_tensor x);     /* a view without history */
/* A copy in any dtype: floats to nearest even, overflow to infinity; integers truncated, as near as
   the dtype has them, NaN to 0. */
MPTRAIN_API mpt_tensor mpt_cast(mpt_tensor x, mpt_dtype dtype);
/* Concatenates `count` >= 1 float tensors of one dtype that agree in all other dimensions. */
MPTRAIN_API mpt_tensor mpt_cat(const mpt_tensor *tensors, int count, int dim);
/* The same along a new dimension, of tensors of one shape. */
MPTRAIN_API mpt_tensor mpt_stack(const mpt_tensor *tensors, int count, int dim);
/* torch.split and torch.chunk: views of parts of `size`, the last one maybe shorter, or of at most
   `chunks` of one size; of nothing, `chunks` of nothing. Returns how many they are; -1 on error, as
   if `capacity` is too small. */
MPTRAIN_API int mpt_split_tensor(
    mpt_tensor x, int64_t size, int dim, mpt_tensor *parts, int capacity);
MPTRAIN_API int mpt_chunk(mpt_tensor x, int chunks, int dim, mpt_tensor *parts, int capacity);
/* Of float tensors. roll: what leaves at one end comes in at the other. repeat: times.dim[i] copies
   along dimension i; new ones lead. pad: MPT_SHAPE(before, after, ..), last dimension first. */
MPTRAIN_API mpt_tensor mpt_flip(mpt_tensor x, int dim);
MPTRAIN_API mpt_tensor mpt_roll(mpt_tensor x, int64_t shift, int dim);
MPTRAIN_API mpt_tensor mpt_repeat(mpt_tensor x, mpt_shape times);
MPTRAIN_API mpt_tensor mpt_pad(mpt_tensor x, mpt_shape padding, double value);
/* The lower or upper triangle of matrices [.., M, N], 0 elsewhere; diagonal > 0 is above the main
   one, < 0 below. */
MPTRAIN_API mpt_tensor mpt_tril(mpt_tensor x, int64_t diagonal);
MPTRAIN_API mpt_tensor mpt_triu(mpt_tensor x, int64_t diagonal);

/* Indices are i64, 0 to size - 1 of dimension `dim` of x. One out of range is an error that names
   its element and value, as with targets of a loss; weights stay untouched.
   gather: out[i][j] = x[i][index[i][j]] for dim = 1; index has the sizes of x in the others.
   index_select: the rows, for dim = 0, that index [n] names.
   scatter_add: x with source[i][j] added at [i][index[i][j]]; index and source have one shape. What
   meets in one element adds up in fp32, in order. Under autocast, x and source of two float dtypes
   give fp32. */
MPTRAIN_API mpt_tensor mpt_gather(mpt_tensor x, int dim, mpt_tensor index);
MPTRAIN_API mpt_tensor mpt_index_select(mpt_tensor x, int dim, mpt_tensor index);
MPTRAIN_API mpt_tensor mpt_scatter_add(mpt_tensor x, int dim, mpt_tensor index, mpt_tensor source);
/* Along a dimension of floats, as torch.sort(stable=True): NaN counts as the largest, equal ones
   keep their order. The values are differentiable; *indices gets where they stood, i64, unless it
   is NULL. topk: the k largest, or smallest, in order; among equal ones the first. */
MPTRAIN_API mpt_tensor mpt_sort(mpt_tensor x, int dim, bool descending, mpt_tensor *indices);
MPTRAIN_API mpt_tensor mpt_argsort(mpt_tensor x, int dim, bool descending); /* indices alone */
MPTRAIN_API mpt_tensor mpt_topk(
    mpt_tensor x, int64_t k, int dim, bool largest, mpt_tensor *indices);
/* i64 classes [..] -> i64 [.., count]: 1 at the class, else 0. */
MPTRAIN_API mpt_tensor mpt_one_hot(mpt_tensor classes, int64_t count);

/* ==== Operations ============================================================================= */

/* Elementwise with NumPy's broadcasting, on f32, f16 or bf16. Inputs of different dtypes meet in
   fp32 inside an autocast region and are an error outside. */
MPTRAIN_API mpt_tensor mpt_add(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_sub(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_mul(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_div(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_add_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_mul_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_neg(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_exp(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_log(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_sqrt(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_relu(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_gelu(mpt_tensor x);      /* exact: x/2 (1 + erf(x/sqrt 2)) */
MPTRAIN_API mpt_tensor mpt_gelu_tanh(mpt_tensor x); /* the tanh approximation */
MPTRAIN_API mpt_tensor mpt_tanh(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_sigmoid(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_isnan(mpt_tensor x);               /* bool */
MPTRAIN_API mpt_tensor mpt_isinf(mpt_tensor x);               /* bool */
MPTRAIN_API mpt_tensor mpt_equal(mpt_tensor a, mpt_tensor b); /* bool; any dtype */
/* As mpt_equal: a < b, a <= b, a > b, a >= b, a != b. With NaN only the last one is true. Both are
   of one dtype or, under autocast, floats. */
MPTRAIN_API mpt_tensor mpt_lt(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_le(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_gt(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_ge(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_ne(mpt_tensor a, mpt_tensor b);
/* The same with a number, of any dtype. */
MPTRAIN_API mpt_tensor mpt_lt_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_le_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_gt_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_ge_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_eq_scalar(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_ne_scalar(mpt_tensor x, double value);
/* bool; of any dtypes: what is not 0 is true. */
MPTRAIN_API mpt_tensor mpt_logical_and(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_logical_or(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_logical_not(mpt_tensor x);
/* condition ? a : b, all three broadcast; condition is bool. */
MPTRAIN_API mpt_tensor mpt_where(mpt_tensor condition, mpt_tensor a, mpt_tensor b);
/* fp32 inside autocast: log1p, rsqrt, pow and softplus. */
MPTRAIN_API mpt_tensor mpt_log1p(mpt_tensor x); /* log(1 + x), exact for small x */
MPTRAIN_API mpt_tensor mpt_rsqrt(mpt_tensor x); /* 1 / sqrt(x) */
MPTRAIN_API mpt_tensor mpt_pow(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_pow_scalar(mpt_tensor x, double exponent);
MPTRAIN_API mpt_tensor mpt_abs(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_sign(mpt_tensor x); /* -1, 0, 1; 0 for NaN; its gradient is 0 */
MPTRAIN_API mpt_tensor mpt_sin(mpt_tensor x);  /* radians */
MPTRAIN_API mpt_tensor mpt_cos(mpt_tensor x);
/* Into [min, max]; an infinite bound is none. NaN passes. There is no gradient at the bounds. */
MPTRAIN_API mpt_tensor mpt_clamp(mpt_tensor x, double min, double max);
/* The smaller and the larger one; NaN wins. Where both are equal, each gets half the gradient. */
MPTRAIN_API mpt_tensor mpt_minimum(mpt_tensor a, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_maximum(mpt_tensor a, mpt_tensor b);
/* Activations, as in torch.nn.functional, whose defaults the comments give. */
MPTRAIN_API mpt_tensor mpt_leaky_relu(mpt_tensor x, double slope); /* 0.01 */
MPTRAIN_API mpt_tensor mpt_elu(mpt_tensor x, double alpha);        /* 1 */
MPTRAIN_API mpt_tensor mpt_silu(mpt_tensor x);                     /* x sigmoid(x) */
/* log(1 + exp(beta x)) / beta; x itself where beta x > threshold. 1, 20 */
MPTRAIN_API mpt_tensor mpt_softplus(mpt_tensor x, double beta, double threshold);
/* As mpt_clamp. -1, 1 */
MPTRAIN_API mpt_tensor mpt_hardtanh(mpt_tensor x, double min, double max);

/* In place, as PyTorch's ops of these names: the result goes over the values of x, and x is
   returned. Views of the same memory see it; a backward that saved the old values is an error. b
   and source broadcast to x, whose dtype stays. With a gradient to come, x may be no leaf that
   collects one, and must not share its memory with live views (PyTorch: may); what copy_ and fill_
   replace has no history any more. */
MPTRAIN_API mpt_tensor mpt_relu_(mpt_tensor x);
MPTRAIN_API mpt_tensor mpt_add_(mpt_tensor x, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_mul_(mpt_tensor x, mpt_tensor b);
MPTRAIN_API mpt_tensor mpt_add_scalar_(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_mul_scalar_(mpt_tensor x, double value);
MPTRAIN_API mpt_tensor mpt_copy_(mpt_tensor x, mpt_tensor source); /* any dtypes */
MPTRAIN_API mpt_tensor mpt_fill_(mpt_tensor x, double value);      /* any dtype */

/* [.., M, K] x [.., K, N] -> [.., M, N]; leading dimensions broadcast; 1-d operands as in PyTorch.
   fp32 accumulation whatever the dtype. */
MPTRAIN_API mpt_tensor mpt_matmul(mpt_tensor a, mpt_tensor b);

/* Sums of products by labels, as torch.einsum: mpt_einsum("bqd,bkd->bqk", qk, 2). Each tensor has a
   group of letters, one for each dimension; "..." stands for any more. Letters that are not behind
   "->" are summed; without "->" those are that stand twice, and the rest is in the order of the
   alphabet, capitals first. A letter twice at one tensor takes the diagonal; sizes of 1 stretch.
   1 to 8 tensors, from left to right; nothing on the way may have more than 8 dimensions. */
MPTRAIN_API mpt_tensor mpt_einsum(const char *equation, const mpt_tensor *tensors, int count);

typedef enum mpt_activation {
    MPT_ACTIVATION_NONE = 0,
    MPT_ACTIVATION_RELU,
    MPT_ACTIVATION_GELU,
    MPT_ACTIVATION_GELU_TANH,
    MPT_ACTIVATION_TANH,
    MPT_ACTIVATION_SIGMOID
} mpt_activation;
/* y = activation(x w^T + bias): x [.., in], w [out, in], bias [out] or a null handle -> [.., out];
   as torch.nn.functional.linear. */
MPTRAIN_API mpt_tensor mpt_linear(
    mpt_tensor x, mpt_tensor weight, mpt_tensor bias, mpt_activation activation);

/* Reductions over one dimension (negative counts from the end), or over all with MPT_ALL_DIMS.
   Accumulated in fp32 by a fixed tree. sum and mean give fp32 inside autocast. */
#define MPT_ALL_DIMS INT32_MIN
MPTRAIN_API mpt_tensor mpt_sum(mpt_tensor x, int dim, bool keep_dim);
MPTRAIN_API mpt_tensor mpt_mean(mpt_tensor x, int dim, bool keep_dim);
MPTRAIN_API mpt_tensor mpt_max(mpt_tensor x, int dim, bool keep_dim); /* NaN wins; first of ties */
MPTRAIN_API mpt_tensor mpt_argmax(mpt_tensor x, int dim, bool keep_dim); /* i64, as mpt_max */
MPTRAIN_API mpt_tensor mpt_min(mpt_tensor x, int dim, bool keep_dim);
MPTRAIN_API mpt_tensor mpt_argmin(mpt_tensor x, int dim, bool keep_dim);
/* prod, norm, logsumexp and cumsum give fp32 inside autocast. */
MPTRAIN_API mpt_tensor mpt_prod(mpt_tensor x, int dim, bool keep_dim);
/* Mean squared difference from the mean, in two passes, of n elements as a sum / (n - correction),
   and its root. PyTorch's correction is 1. */
MPTRAIN_API mpt_tensor mpt_var(mpt_tensor x, int dim, bool keep_dim, double correction);
MPTRAIN_API mpt_tensor mpt_std(mpt_tensor x, int dim, bool keep_dim, double correction);
/* p = 1: sum of |x|; 2: root of the sum of squares; INFINITY: the largest |x|, whose gradient is
   shared among equals. */
MPTRAIN_API mpt_tensor mpt_norm(mpt_tensor x, double p, int dim, bool keep_dim);
MPTRAIN_API mpt_tensor mpt_logsumexp(mpt_tensor x, int dim, bool keep_dim);
/* Sums along a dimension up to each element. */
MPTRAIN_API mpt_tensor mpt_cumsum(mpt_tensor x, int dim);

/* Over one dimension, the largest value subtracted first; fp32 inside autocast. */
MPTRAIN_API mpt_tensor mpt_softmax(mpt_tensor x, int dim);
MPTRAIN_API mpt_tensor mpt_log_softmax(mpt_tensor x, int dim);
/* Zeroes with probability p in [0, 1] and scales the rest by 1/(1-p); identity in the forward of a
   module in eval mode, in inference mode, and for p = 0. Drawn from (seed, step, module path,
   number of the call in the step). */
MPTRAIN_API mpt_tensor mpt_dropout(mpt_tensor x, double p);

/* MPT_BATCH_MEAN, the sum over the first dimension's size, is for mpt_kl_div alone. */
typedef enum mpt_reduction { MPT_MEAN = 0, MPT_SUM, MPT_NONE, MPT_BATCH_MEAN } mpt_reduction;

typedef struct mpt_nll_config {
    mpt_reduction reduction; /* MPT_MEAN: over the kept samples, by weight */
    int64_t ignore_index;    /* -100 */
    mpt_tensor weight;       /* [C] or a null handle */
    double label_smoothing;  /* 0; cross_entropy only */
} mpt_nll_config;
MPTRAIN_API mpt_nll_config mpt_nll_config_default(void);
/* torch.nn.functional.nll_loss: log-probabilities [N, C, d1..] or [C], targets i64 [N, d1..] or 0-d
   -> fp32, 0-d, or like the targets with MPT_NONE. A target outside [0, C) that is not ignore_index
   is an error that names sample and position; weights stay untouched. The mean of nothing (no
   samples, all ignored) is NaN, its gradient 0. The log hears of inputs that come from a layer of
   weights or a softmax. */
MPTRAIN_API mpt_tensor mpt_nll_loss(
    mpt_tensor log_probabilities, mpt_tensor targets, const mpt_nll_config *config);
/* The same from logits, log-softmax fused in fp32. Targets may also be probabilities, floats of the
   logits' shape: then ignore_index has no meaning, the mean is over the samples (weights do not
   divide), and the probabilities get gradients too. */
MPTRAIN_API mpt_tensor mpt_cross_entropy(
    mpt_tensor logits, mpt_tensor targets, const mpt_nll_config *config);

/* The losses of torch.nn.functional, elementwise on floats of equal shapes: computed in fp32, fp32
   out, 0-d or, with MPT_NONE, of that shape. One pass without a tensor between. Targets get
   gradients too. */
MPTRAIN_API mpt_tensor mpt_mse_loss(mpt_tensor input, mpt_tensor target, mpt_reduction reduction);
MPTRAIN_API mpt_tensor mpt_l1_loss(mpt_tensor input, mpt_tensor target, mpt_reduction reduction);
/* beta >= 0 (0: l1), delta > 0: where the parabola ends. */
MPTRAIN_API mpt_tensor mpt_smooth_l1_loss(
    mpt_tensor input, mpt_tensor target, double beta, mpt_reduction reduction);
MPTRAIN_API mpt_tensor mpt_huber_loss(
    mpt_tensor input, mpt_tensor target, double delta, mpt_reduction reduction);
/* Of logits; weight and pos_weight broadcast to them, or are null handles, and get no gradients. An
   infinite logit costs 0 where the target agrees with it, else infinity (PyTorch: NaN). */
MPTRAIN_API mpt_tensor mpt_binary_cross_entropy_with_logits(mpt_tensor logits, mpt_tensor target,
    mpt_tensor weight, mpt_tensor pos_weight, mpt_reduction reduction);
/* Of probabilities; logarithms end at -100. One outside [0, 1] is an error that names the element.
   Gradients reach 1e12, which fp16 does not hold: prefer the form above. */
MPTRAIN_API mpt_tensor mpt_binary_cross_entropy(
    mpt_tensor probabilities, mpt_tensor target, mpt_tensor weight, mpt_reduction reduction);
/* target (log target - input) of a log-probability and a probability, or, with log_target, of its
   logarithm. A target of probability 0 costs 0 and passes 0, whatever the input; a negative one
   gives NaN. MPT_BATCH_MEAN is the divergence; MPT_MEAN divides it by the classes too. */
MPTRAIN_API mpt_tensor mpt_kl_div(
    mpt_tensor input, mpt_tensor target, bool log_target, mpt_reduction reduction);
/* variance: like the input, or with a last dimension of 1, or without it; below eps it counts as
   eps. full adds log(2 pi) / 2. */
MPTRAIN_API mpt_tensor mpt_gaussian_nll_loss(mpt_tensor input, mpt_tensor target,
    mpt_tensor variance, bool full, double eps, mpt_reduction reduction);
/* exp(input) - target input, or, without log_input, input - target log(input + eps). full adds
   log(target!) as Stirling has it, for targets above 1. */
MPTRAIN_API mpt_tensor mpt_poisson_nll_loss(mpt_tensor input, mpt_tensor target, bool log_input,
    bool full, double eps, mpt_reduction reduction);
/* [N, C] and classes i64 [N]: the mean over the C classes of weight[y] max(0, margin - x[y] +
   x[c])^p for c other than y, p 1 or 2; weight [C] or a null handle. */
MPTRAIN_API mpt_tensor mpt_multi_margin_loss(mpt_tensor input, mpt_tensor targets, int p,
    double margin, mpt_tensor weight, mpt_reduction reduction);
/* [.., C]: the mean over the C classes of binary_cross_entropy_with_logits. */
MPTRAIN_API mpt_tensor mpt_multilabel_soft_margin_loss(
    mpt_tensor input, mpt_tensor target, mpt_tensor weight, mpt_reduction reduction);
/* Targets of 1 and -1: log(1 + exp(-target input)); input or max(0, margin - input);
   max(0, margin - target (a - b)). */
MPTRAIN_API mpt_tensor mpt_soft_margin_loss(
    mpt_tensor input, mpt_tensor target, mpt_reduction reduction);
MPTRAIN_API mpt_tensor mpt_hinge_embedding_loss(
    mpt_tensor input, mpt_tensor target, double margin, mpt_reduction reduction);
MPTRAIN_API mpt_tensor mpt_margin_ranking_loss(
    mpt_tensor a, mpt_tensor b, mpt_tensor target, double margin, mpt_reduction reduction);
/* Of vectors [.., n] of equal shapes, one loss each: max(0, margin + |anchor - positive| -
   |anchor - negative|), distances with eps added to the difference; with swap the smaller one of
   negative to anchor and to positive. */
MPTRAIN_API mpt_tensor mpt_triplet_margin_loss(mpt_tensor anchor, mpt_tensor positive,
    mpt_tensor negative, double margin, double eps, bool swap, mpt_reduction reduction);
/* a b / (max(|a|, eps) max(|b|, eps)) along a dimension of tensors of equal shapes. */
MPTRAIN_API mpt_tensor mpt_cosine_similarity(mpt_tensor a, mpt_tensor b, int dim, double eps);
/* Of vectors [N, n] or [n] and targets [N] or 0-d: 1 - cosine for 1, max(0, cosine - margin) for
   -1. */
MPTRAIN_API mpt_tensor mpt_cosine_embedding_loss(
    mpt_tensor a, mpt_tensor b, mpt_tensor target, double margin, mpt_reduction reduction);

/* ==== Autograd =============================================================================== */

/* Leaves only: a floating tensor whose gradient mpt_backward shall leave in mpt_grad. */
MPTRAIN_API mpt_status mpt_requires_grad(mpt_tensor tensor, bool on);
MPTRAIN_API bool mpt_get_requires_grad(mpt_tensor tensor); /* of results: they have a history */
/* Backward from a one-element tensor; its history is used up. Gradients add up until zero_grad. */
MPTRAIN_API mpt_status mpt_backward(mpt_tensor loss);
/* From any tensor, with the gradient that enters it (null handle = ones for one element);
   `retain` keeps the saved tensors for another pass. */
MPTRAIN_API mpt_status mpt_backward_from(mpt_tensor tensor, mpt_tensor gradient, bool retain);
/* The gradient of a leaf: fp32 for parameters, else of the leaf's dtype; an error if it has none,
   see mpt_has_grad. */
MPTRAIN_API mpt_tensor mpt_grad(mpt_tensor tensor);
MPTRAIN_API bool mpt_has_grad(mpt_tensor tensor);
MPTRAIN_API mpt_status mpt_clear_grad(mpt_tensor tensor); /* to none */
/* No history inside; nestable. Inference mode keeps nothing at all: its tensors cannot take part
   in a later backward. */
MPTRAIN_API mpt_status mpt_no_grad_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_no_grad_end(mpt_context *context);
MPTRAIN_API mpt_status mpt_inference_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_inference_end(mpt_context *context);
/* Less memory for a little time: what layer, RMS and group norm, GELU, SiLU and other activations
   give inside is not kept for backward, but computed there again, to the same bits, from their
   inputs, which are kept anyway. It takes effect where their handles end before backward: in layers
   of mpt_sequential, else by mpt_scope_return or mpt_release. Nestable. Without effect in builds
   with MPTRAIN_NO_ATTENTION. */
MPTRAIN_API mpt_status mpt_recompute_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_recompute_end(mpt_context *context);

/* Least memory, for about a third more time: activation checkpointing (Chen et al. 2016,
   torch.utils.checkpoint). fn of `in`, 1 to 8 tensors, gives `out`, as many; of what it makes
   nothing is kept for backward, which calls it again. Results and gradients have the bits that they
   have without: random numbers and autocast are those of the first time; statistics of batches and
   metrics count once. What fn makes ends with it, but for its outputs. Nestable, also in captured
   steps; without effect where there is no history. `user`, and tensors beside `in` that fn reads,
   have to stay until backward. Errors: other calls the second time; tensors from outside that fn
   changes, or that have changed since. Layers: mpt_recompute_module. Builds with MPTRAIN_NO_FRUGAL
   have none of this: an error. */
typedef mpt_status (*mpt_recompute_fn)(mpt_context *context, void *user, const mpt_tensor *in,
    int n_in, mpt_tensor *out, int n_out);
MPTRAIN_API mpt_status mpt_recompute_call(mpt_context *context, mpt_recompute_fn fn, void *user,
    const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out);
/* Whether backward runs a forward again: what counts calls or shows values leaves that out then. */
MPTRAIN_API bool mpt_is_recomputing(mpt_context *context);

/* ==== Autocast =============================================================================== */

/* Until the matching end, ops run in the precision of the policy table: matmul-like ones in
   `dtype` (MPT_F16 or MPT_BF16), losses, softmax and sums in fp32, the rest in its input's dtype.
   MPT_F32 opens a region in which casting is off. Nestable. */
MPTRAIN_API mpt_status mpt_autocast_begin(mpt_context *context, mpt_dtype dtype);
/* The same, but inputs of different dtypes meet in `dtype`, not in fp32. What a net's shortcuts add
   up then stays half, and takes half the memory until backward. The price is a rounding of each
   sum. Prefer MPT_BF16: fp16 ends at 65504. */
MPTRAIN_API mpt_status mpt_autocast_begin_narrow(mpt_context *context, mpt_dtype dtype);
MPTRAIN_API mpt_status mpt_autocast_end(mpt_context *context);
/* The policy table as text, one op per line; returns the length it needs. */
MPTRAIN_API size_t mpt_autocast_policy(char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* MPTRAIN_H */
