/* ----
 * face/inspection.h: the public API of what looks at a training: metrics, counters, the profiler,
 * NaN and anomalies, flights, graphs, statistics, recordings.
 * ---- */
#ifndef MPT__FACE_INSPECTION_INCLUDED
#define MPT__FACE_INSPECTION_INCLUDED

#include "face/training.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Metrics, inspection ==================================================================== */

/* Adds a 0-d tensor to a running mean without waiting for the device. Names are compared by text;
   at most 16 of them, of which mpt_fit takes one. */
MPTRAIN_API mpt_status mpt_metric_push(mpt_context *context, const char *name, mpt_tensor value);
/* Mean since the last reset, of what has arrived; waits if `wait`. NaN if nothing. */
MPTRAIN_API double mpt_metric_mean(mpt_context *context, const char *name, bool wait);
MPTRAIN_API mpt_status mpt_metric_reset(mpt_context *context, const char *name);

typedef struct mpt_counters {
    int64_t calls;                  /* public calls */
    int64_t launches;               /* kernels executed */
    int64_t op_records;             /* ops recorded for backward */
    int64_t form_hits, form_misses; /* derived forms of weights: reused, made */
    int64_t parallel_runs;          /* kernels that used more than one thread */
    int64_t by_thread[64];          /* chunks of work done by each pool thread, 0 = the caller */
} mpt_counters;
MPTRAIN_API mpt_counters mpt_get_counters(mpt_context *context);

/* The profiler (MPTRAIN_WATCH): what time goes into, with the FLOP and bytes of every launch, until
   mpt_profile_end. Time is that of the config's clock, on a GPU of CUDA's events; there each launch
   is waited for, so that its time is its own, while a step as a whole takes longer. All numbers are
   those of a training without it. Steps do not allocate, but for the first one after a module's
   first use. A captured step is told as the launches that it repeats, in which calls of the same op
   next to each other count as one; one that runs as a CUDA graph is told as one, "graph". */
typedef struct mpt_profile_config {
    int64_t spans;     /* 0; how many spans, of 72 bytes, are kept for mpt_profile_spans; 0: none */
    double product[3]; /* 0: not known; the most FLOP a second in fp32, fp16 and bf16 .. */
    double copy;       /* .. and bytes a second: what mpt_machine_measure, of the tools, finds */
} mpt_profile_config;
MPTRAIN_API mpt_profile_config mpt_profile_config_default(void);
/* Begins; NULL: the defaults. What an earlier one has found is dropped. */
MPTRAIN_API mpt_status mpt_profile_begin(mpt_context *context, const mpt_profile_config *config);
/* Ends, if it has begun. What was found stays until mpt_destroy. */
MPTRAIN_API mpt_status mpt_profile_end(mpt_context *context);

/* What launches go by: the op that they belong to, forward and backward apart; the module whose
   forward called it, the same; the kernel. All three add up to the same. */
typedef enum mpt_profile_by {
    MPT_PROFILE_OP = 0,
    MPT_PROFILE_MODULE,
    MPT_PROFILE_KERNEL
} mpt_profile_by;
typedef struct mpt_profile_row {
    const char *name;  /* "linear", "0.conv1", "gemm"; "-": none; lives as long as the context */
    const char *phase; /* "forward", "backward", "update", "other"; of kernels "" */
    int64_t calls;     /* that launch anything; of a module, how often it was its turn */
    int64_t launches;
    double seconds;
    double flop, bytes_read, bytes_written; /* as the field counts them; each element once */
    double least; /* seconds at the config's ceilings, the larger of products and bytes; 0: none */
} mpt_profile_row;
/* Writes the `room` rows of most time, that first, and returns how many rows there are; -1 on
   error. Also while it goes on. */
MPTRAIN_API int64_t mpt_profile_rows(
    mpt_context *context, mpt_profile_by by, mpt_profile_row *rows, int64_t room);
typedef struct mpt_profile_total {
    double seconds; /* since it began, or until it ended */
    int64_t steps, batches;
    double waiting;          /* seconds in mpt_loader_next, for batches */
    double conversions;      /* of the launches' seconds: casts, and derived forms of weights */
    mpt_profile_row all;     /* launches; "-" */
    int64_t spans, left_out; /* kept, and more than there is room for */
} mpt_profile_total;
MPTRAIN_API mpt_profile_total mpt_get_profile_total(mpt_context *context);
/* The same as text, with tables of ops, modules and kernels, by time, at most 24 rows each. Returns
   the length it needs; 0 on error. */
MPTRAIN_API size_t mpt_profile_text(mpt_context *context, char *text, size_t size);

/* A stretch of time. Those of thread 0 lie within each other: step, modules by their tree, op,
   launch; waits within a step or beside it. */
typedef enum mpt_span_kind {
    MPT_SPAN_STEP = 0,
    MPT_SPAN_MODULE, /* from the first launch in it to the last, as long as no other's turn came */
    MPT_SPAN_OP,     /* the same */
    MPT_SPAN_LAUNCH,
    MPT_SPAN_WAIT, /* mpt_loader_next waits for a batch */
    MPT_SPAN_BATCH /* a worker makes one, by the system's clock; left out with one of yours */
} mpt_span_kind;
typedef struct mpt_profile_span {
    mpt_span_kind kind;
    const char *name, *phase; /* as in a row; "step", "wait", "batch" */
    int thread;               /* 0: the calling one; from 1 on: workers of loaders */
    int64_t step;
    double start, seconds;                  /* since the profile began */
    double flop, bytes_read, bytes_written; /* of the launches within */
    int64_t memory; /* of a launch: all bytes in use behind it */
} mpt_profile_span;
/* Hands all spans to `each`, those around others before these, and returns how many; -1 on error.
   `each` does not call mptrain. */
MPTRAIN_API int64_t mpt_profile_spans(mpt_context *context,
    void (*each)(void *user, const mpt_profile_span *span), void *user);

/* Every launch as one line of text to `write`; NULL ends it. */
MPTRAIN_API mpt_status mpt_print_launches(
    mpt_context *context, void (*write)(void *user, const char *line), void *user);
/* Checks every output for non-finite values and remembers the first: op, tensor, module, step. Also
   switched on by the scaler for one step after an overflow. Waits at every launch. */
MPTRAIN_API mpt_status mpt_trace_nan(mpt_context *context, bool on);
/* Text about the first non-finite value found, and whether its op had read one, as from the data or
   weights; empty if none. */
MPTRAIN_API const char *mpt_nan_report(mpt_context *context);

/* Anomaly mode, switched between steps: where loss or gradients of a step are not finite, before an
   update or at the step's end, the step is run again in fp32, in memory of its own, and the first
   op is named whose result is not finite but would be in fp32. Every launch waits, and a step keeps
   all its memory until its end. Steps that are recorded, replayed or captured are not looked at.
   What a step changes in place outside its own tensors is replayed with the values it has then. */
typedef enum mpt_anomaly_kind {
    MPT_ANOMALY_NONE = 0,
    MPT_ANOMALY_PRECISION, /* an op that fp32 would have kept finite */
    MPT_ANOMALY_VALUES,    /* fp32 gives NaN or infinity, too */
    MPT_ANOMALY_UNKNOWN    /* the step could not be run again */
} mpt_anomaly_kind;
MPTRAIN_API mpt_status mpt_anomaly_mode(mpt_context *context, bool on);
/* What the last failed step of the mode was, and the same in words: step, op, module, element, both
   values; empty if none has failed. The log gets that as a warning. */
MPTRAIN_API mpt_anomaly_kind mpt_anomaly(mpt_context *context);
MPTRAIN_API const char *mpt_anomaly_text(mpt_context *context);

/* A flight recorder (MPTRAIN_WATCH), on the CPU: between begin and end, each step (mpt_step_begin
   to mpt_step_end, or a captured one) leaves sums of what it was in a log: 8 bytes of what its
   updates wrote and of its batch, and at the level of ops 2 more for each tensor that an op wrote.
   Seed, level of instructions, version and threads stand before them, loss scale and skipped
   updates with each block of steps. Sums are of the bits, and the same for any number of threads.
   Which step and op went wrong is found by training again, from the start or a checkpoint, in a
   program that calls mpt_flight_replay with that log instead: the first op that writes other bits
   than the log says is in the report of mpt_flight_end, and in the log as a warning. Bits are the
   same on machines of one level, and on all at MPT_ISA_PORTABLE or MPT_ISA_REF; every NaN counts as
   the same there, as machines differ in its sign. */
typedef enum mpt_flight_level {
    MPT_FLIGHT_STEPS, /* the step that differs is named */
    MPT_FLIGHT_OPS    /* the op, too; all that a step writes is read once more for it */
} mpt_flight_level;

typedef struct mpt_flight_config {
    mpt_flight_level level; /* MPT_FLIGHT_OPS */
    int64_t block;          /* steps that are written at once, at most lost by a kill: 256 */
} mpt_flight_config;
MPTRAIN_API mpt_flight_config mpt_flight_config_default(void);

typedef enum mpt_flight_kind {
    MPT_FLIGHT_SAME = 0, /* all steps that the log has, and that were done, are those of the log */
    MPT_FLIGHT_BATCH,    /* what came from outside differs */
    MPT_FLIGHT_OP,       /* what an op wrote differs; all that was written before it is the same */
    MPT_FLIGHT_STATE     /* what the updates of a step wrote differs; the log names no op */
} mpt_flight_kind;

typedef struct mpt_flight_report {
    mpt_flight_kind kind;
    int64_t step;        /* the first that differs */
    int64_t launch;      /* of MPT_FLIGHT_OP: how many tensors the step had written before */
    int64_t steps;       /* that were compared and are the same */
    char op[48];         /* "linear"; of an update its kernel */
    char module[128];    /* its path; "" where there is none, and of a captured step */
    char parameter[128]; /* the path of a parameter that the op reads; "" if it reads none */
    char text[640];      /* all of it in words */
} mpt_flight_report;

/* Errors: a step is open, a flight is under way, a GPU (MPT_ERROR_UNSUPPORTED). A log of the same
   training (by its seed) that is there goes on behind its steps up to the one of now, as after
   mpt_checkpoint_load; another file is an error, and not touched. What cannot be written later is a
   warning, and an error of mpt_flight_end. mpt_destroy ends a flight, too. config may be NULL. */
MPTRAIN_API mpt_status mpt_flight_begin(
    mpt_context *context, const char *path, const mpt_flight_config *config);
MPTRAIN_API mpt_status mpt_flight_replay(mpt_context *context, const char *path);
/* report may be NULL; of a flight that was recorded it is MPT_FLIGHT_SAME. */
MPTRAIN_API mpt_status mpt_flight_end(mpt_context *context, mpt_flight_report *report);

/* What a tensor's numbers are; minimum, maximum, mean and deviation are of the finite ones, NaN
   where there is none. binade[i] counts magnitudes from 2^(MPT_BINADE_FIRST + i) to below the next
   power of two, the first and the last one what lies beyond, too. Waits for the device. */
enum { MPT_BINADE_FIRST = -40, MPT_BINADES = 64 };
typedef struct mpt_tensor_stats {
    int64_t count, zeros, nans, infinities;
    double min, max, mean, deviation;
    int64_t binade[MPT_BINADES];
} mpt_tensor_stats;
MPTRAIN_API mpt_tensor_stats mpt_statistics(mpt_tensor tensor);
/* Counts the elements in `bins` equal parts of [low, high], whose edges are fp32 as numpy has them;
   the last one has both its edges; what lies outside is not counted. */
MPTRAIN_API mpt_status mpt_histogram(
    mpt_tensor tensor, double low, double high, int64_t *counts, int bins);
/* The same as text, a line for each parameter or, if asked for, its gradient: statistics, how much
   is zero and how much fp16 would lose, to 0 or infinity, and a picture of the magnitudes. Returns
   the length it needs. */
MPTRAIN_API size_t mpt_histograms(mpt_module module, bool gradients, char *text, size_t size);

/* The confusion matrix of a classification: adds 1 to counts[target * classes + output] for each
   sample, so that batches add up in an array [classes][classes] that begins as zeros. outputs are
   i64 classes of the targets' shape, or logits or the like [.., classes], of which the largest
   counts. Targets of -100 are left out; any other that is no class is an error, and then nothing is
   counted. Waits for the device. */
MPTRAIN_API mpt_status mpt_confusion(
    mpt_tensor outputs, mpt_tensor targets, int64_t *counts, int classes);
/* What such a matrix says of one class, from 0, or as a mean with scikit-learn's names: of all
   classes that occur as target or output, of all samples, or of classes by how many samples they
   have. A quotient of nothing is 0; NaN is what there is of no matrix and no class.
       mpt_class_scores(counts, 10, MPT_MACRO).f1 */
enum { MPT_MACRO = -1, MPT_MICRO = -2, MPT_WEIGHTED = -3 };
typedef struct mpt_scores {
    int64_t samples; /* whose target is the class, or all */
    double accuracy; /* of all samples */
    double precision, recall, f1;
} mpt_scores;
MPTRAIN_API mpt_scores mpt_class_scores(const int64_t *counts, int classes, int which);

/* With MPTRAIN_WATCH: whether backward agrees with small changes of each element of each fp32
   input, as for an op or a module of yours. `fn` computes any tensor from the inputs, the same in
   each call: no dropout. Values near a kink (relu at 0) disagree rightly. MPT_ERROR_NUMERIC names
   the first element. */
typedef mpt_tensor (*mpt_check_fn)(
    mpt_context *context, void *user, const mpt_tensor *in, int n_in);
typedef struct mpt_gradcheck_config {
    double step;       /* 1e-2; times the value where that exceeds 1 */
    double rtol, atol; /* 1e-2, 1e-3: what fp32 and this step allow */
} mpt_gradcheck_config;
MPTRAIN_API mpt_gradcheck_config mpt_gradcheck_config_default(void);
/* Up to 8 inputs. */
MPTRAIN_API mpt_status mpt_gradcheck(mpt_context *context, mpt_check_fn fn, void *user,
    const mpt_tensor *in, int n_in, const mpt_gradcheck_config *config);
/* What in this context could give other bits elsewhere, or in another run, as text, a line each;
   returns the length it needs. */
MPTRAIN_API size_t mpt_determinism(mpt_context *context, char *text, size_t size);

/* Records the launches from here to mpt_record_end; mpt_replay executes them again on the current
   values of parameters, states and inputs. What the host puts in between (mpt_from, mpt_write,
   mpt_wrap, a loader's batch) is no launch: make inputs before. Random numbers, step numbers and
   which gradients there are stay as recorded; mpt_capture is for whole steps. An error once
   mpt_half has moved a parameter. Recordings do not nest. */
MPTRAIN_API mpt_status mpt_record_begin(mpt_context *context);
MPTRAIN_API mpt_recording mpt_record_end(mpt_context *context);
MPTRAIN_API mpt_status mpt_replay(mpt_recording recording);
MPTRAIN_API int64_t mpt_recording_launches(mpt_recording recording);
MPTRAIN_API mpt_status mpt_recording_destroy(mpt_recording recording);

#ifdef __cplusplus
}
#endif
#endif /* MPT__FACE_INSPECTION_INCLUDED */
