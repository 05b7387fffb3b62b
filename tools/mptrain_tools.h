/* generated from src/ by tools/amalgamate.c: edit there */
/* The spine of the tools: what only looks at a training and writes files about it. It stands on the
   public API of mptrain.h alone. tools/amalgamate.c makes ../../tools/mptrain_tools.h from it. */
/* mptrain_tools.h - what looks at a training: logs for TensorBoard, spreadsheets and scripts; what
   is wrong with it, where, and what to do; what the machine does and how fast; nets as ONNX.

   One header beside mptrain.h, of which it needs the declarations alone. In one file of a program:

	   #define MPTRAIN_TOOLS_IMPLEMENTATION
	   #include "mptrain_tools.h"

   and in all others the include alone. C11 and C++17; nothing but libc. The licence is that of
   mptrain.h.

	   mpt_journal_config jc = mpt_journal_config_default();
	   jc.tensorboard = "runs/first";				// tensorboard --logdir runs
	   jc.csv = "first.csv";
	   mpt_journal *journal = mpt_journal_open(&jc);
	   mpt_fit_config config = mpt_fit_config_default();
	   config.progress = mpt_journal_fit;			// loss, rate, scale, norm, speed, memory
	   config.user = journal;
	   mpt_fit(net, optimizer, train, &config);
	   if (mpt_journal_close(journal) != MPT_OK) ...

   A loop of yours calls mpt_journal_scalar and its like by itself. Opened again, a journal goes on
   where it was: a record that a killed process left half written is cut off, and mpt_journal_rewind
   takes back what was logged behind the checkpoint that training goes on from, so that in the end
   the files are those of a training that was never interrupted, but for the times in them.
   mpt_journal_fit does that by itself.

   Where a net does not learn, look at some steps of it from inside:

	   char text[8192];
	   mpt_diagnose(net, optimizer, loader, NULL, text, sizeof text, NULL);
	   puts(text);

   names the layer whose outputs fp16 does not hold, gradients that vanish, a rate that is too
   large, inputs that are not normalised, and other faults, twenty-two kinds in all, and leaves the
   training as it was.
   mpt_compare_precisions trains it in five precisions side by side; mpt_machine_measure and
   mpt_machine_report tell what this machine does, which `make doctor` prints.

   mpt_trace_write makes a file for ui.perfetto.dev of what mpt_profile_begin has kept.

   mpt_trace of mptrain.h sees what a net computes; here that becomes a table with shapes and
   parameters (mpt_graph_summary), a picture (mpt_graph_svg, or mpt_graph_dot for Graphviz), and
   what TensorBoard draws (mpt_journal_graph). A report is a training as one page of HTML:

	   mpt_report *report = mpt_report_open("report.html", NULL);
	   config.progress = mpt_report_fit, config.user = report;
	   mpt_fit(net, optimizer, train, &config);
	   mpt_report_net(report, net, mpt_trace(net, &x, 1)); // drawn, weights, gradients, filters
	   mpt_report_close(report);

   which a browser shows while the training runs, too.

   mpt_onnx_export writes a net as a file that other runtimes run, for batches of any size, with the
   names of its weights:

	   char why[256];
	   mpt_tensor x = mpt_zeros(ctx, MPT_F32, MPT_SHAPE(1, 784)); // what the net takes
	   if (mpt_onnx_export(net, &x, 1, "net.onnx", NULL, why, sizeof why) != MPT_OK) puts(why);

   examples/onnx.c is a whole program that does so.

   mpt_zeroth_step fine-tunes a net by forwards alone, in the memory of inference; `loss` is yours:

	   mpt_eval(net);
	   for (int64_t step = 0; step < 10000; step++)
		   if (mpt_zeroth_step(net, loss, &batch, NULL, step).status != MPT_OK) break;

   MPTRAIN_TOOLS_STATIC keeps all functions to one file. */
/* ----
 * tools/face/journal.h: what a journal is, and how it is written.
 * ---- */
#ifndef MPTRAIN_TOOLS_H
#define MPTRAIN_TOOLS_H

#include "mptrain.h"

#ifndef MPTRAIN_TOOLS_API
#ifdef MPTRAIN_TOOLS_STATIC
#if defined(__GNUC__) || defined(__clang__)
#define MPTRAIN_TOOLS_API static __attribute__((unused))
#else
#define MPTRAIN_TOOLS_API static
#endif
#else
#define MPTRAIN_TOOLS_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Journals =============================================================================== */

typedef struct mpt_journal mpt_journal;

/* What a journal is told: one number, a text, a distribution of numbers, a picture,
   a net. */
typedef enum mpt_journal_kind {
	MPT_JOURNAL_SCALAR = 0,
	MPT_JOURNAL_TEXT,
	MPT_JOURNAL_HISTOGRAM,
	MPT_JOURNAL_IMAGE,
	MPT_JOURNAL_GRAPH
} mpt_journal_kind;

/* How numbers are spread: counts[i] of `bins` are between limits[i - 1], or min, and limits[i]. */
typedef struct mpt_journal_bins {
	int64_t count;	/* of the finite ones */
	double min, max, sum, squares;
	int bins;
	const double *limits, *counts;
} mpt_journal_bins;

typedef struct mpt_journal_entry {
	mpt_journal_kind kind;
	const char *tag;	/* "loss", "weights/0.weight" */
	int64_t step;
	double time;					/* seconds since 1970 began */
	double value;					/* of a scalar, else 0 */
	const char *text;				/* of a text, else NULL */
	const mpt_journal_bins *bins;	/* of a histogram, else NULL */
	const unsigned char *png;		/* of an image: a file of that format; else NULL */
	size_t png_bytes;				/* of that file */
	int width, height, channels;	/* of an image, else 0 */
	const unsigned char *graph;		/* of a net: a tensorflow.GraphDef, a message; else NULL */
	size_t graph_bytes;				/* of that message */
} mpt_journal_entry;

typedef struct mpt_journal_config {
	const char *tensorboard;	/* NULL; a folder for an event file, one for each training */
	const char *csv;			/* NULL; a file of rows "step,time,tag,value", scalars alone */
	const char *jsonl;			/* NULL; a file with one JSON object per line, images without pixels */
	/* NULL; called for each entry, which lives until it returns: other services hang here. */
	void (*entry)(void *user, const mpt_journal_entry *entry);
	void *user;
	double (*now)(void *user);	/* NULL: the system's time, in seconds since 1970 began */
	bool resume;				/* true: goes on with files that are there; else begins anew */
	double flush_seconds;		/* 2; what is older is in the files, of a killed process, too */
	int64_t every;				/* 1; of how many steps mpt_journal_fit logs one */
} mpt_journal_config;
MPTRAIN_TOOLS_API mpt_journal_config mpt_journal_config_default(void);

/* Opens files, and makes folders that are missing. NULL config: no files. Paths are UTF-8. Returns
   NULL only without memory; a journal that could not be opened says why by mpt_journal_error, does
   nothing in later calls and is to be closed as any other. One thread uses a journal at a time. */
MPTRAIN_TOOLS_API mpt_journal *mpt_journal_open(const mpt_journal_config *config);
/* Writes what is left and closes the files; NULL is allowed. Where something could not be written,
   the status is MPT_ERROR_IO, and that is lost with the journal. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_close(mpt_journal *journal);
/* Writes all so far to the files. What a full disk refuses stays in memory, is not written twice,
   and is tried again by this call and every later entry; the status is MPT_ERROR_IO until all is
   written. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_flush(mpt_journal *journal);
/* What is wrong, with the file and the system's words; empty if all is well. */
MPTRAIN_TOOLS_API const char *mpt_journal_error(const mpt_journal *journal);
/* Bytes that opening and rewinding cut off: what was torn, damaged or behind a checkpoint. */
MPTRAIN_TOOLS_API int64_t mpt_journal_dropped(const mpt_journal *journal);
/* Takes back all entries of steps after `step`, from which a training goes on; -1: all. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_rewind(mpt_journal *journal, int64_t step);

/* One entry each, under a tag of 1 to 255 bytes, at a step of 0 or more. Tags and texts are UTF-8;
   a '/' in a tag makes groups. A value that is not finite is logged as such. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_scalar(
	mpt_journal *journal, const char *tag, int64_t step, double value);
MPTRAIN_TOOLS_API mpt_status mpt_journal_text(
	mpt_journal *journal, const char *tag, int64_t step, const char *text);
/* The finite elements of a floating-point tensor in 64 equal parts of their range. Waits for the
   device. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_histogram(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor tensor);
/* The same for every parameter, as "weights/0.weight", or every gradient that there is, as
   "gradients/0.weight". */
MPTRAIN_TOOLS_API mpt_status mpt_journal_module(
	mpt_journal *journal, int64_t step, mpt_module module, bool gradients);
/* A tensor [H, W] or [C, H, W] of 1 (grey), 3 (RGB) or 4 channels (RGBA) as a picture: u8 as it is,
   floating point from 0 to 1, and what lies outside as the nearer of the two, NaN as 0. Waits for
   the device. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_image(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor image);
/* The same from bytes [height, width, channels]. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_pixels(mpt_journal *journal, const char *tag, int64_t step,
	const unsigned char *pixels, int width, int height, int channels);

/* The net that mpt_trace has seen, at step 0 under the tag "graph": TensorBoard draws it. Files get
   it once more where a journal that goes on is told again. */
MPTRAIN_TOOLS_API mpt_status mpt_journal_graph(mpt_journal *journal, mpt_graph graph);

/* For mpt_fit_config.progress, with the journal as `user`: logs loss, lr, scale, skipped, grad_norm
   (where there is one), steps_per_second, waiting (seconds) and memory (bytes) of each step, and
   epoch/loss, validation/loss and validation/accuracy behind each epoch. Its first call rewinds
   what is there to the step before; if that call is for the end of an epoch, the epoch's entries
   may be there twice. A second fit goes on counting steps. Returns true, so a training goes on
   where its log cannot be written; mpt_journal_close tells. */
MPTRAIN_TOOLS_API bool mpt_journal_fit(void *journal, const mpt_progress *progress);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/machine.h: what this machine computes with, and how fast.
 * ---- */
#ifndef MPT__FACE_MACHINE_INCLUDED
#define MPT__FACE_MACHINE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== The machine ====
 *
 * What this machine computes with, how fast it is, and what mixed precision gains here. `make
 * doctor` prints it. */

typedef struct mpt_machine {
	double product[3];	/* floating-point operations a second of products of square matrices, of
						  64 to 4,096 rows so that one takes a millisecond, in fp32, fp16, bf16 */
	double copy;		/* bytes a second, read and written, of copies of 64 MB in all */
	double step[3];		/* seconds of a training step with AdamW of a net of 784, 1,024, 1,024 and
						  10, 256 samples, in fp32 and under autocast to fp16 and bf16 */
} mpt_machine;

/* Measures for about so many seconds, with the context's threads and memory; 0 means 2. All zero on
   error. The numbers are medians: other programs that run meanwhile slow them down. */
MPTRAIN_TOOLS_API mpt_machine mpt_machine_measure(mpt_context *context, double seconds);

/* The machine in words, a fact a line: device, instruction sets, threads, memory, what was compiled
   in a way that hurts, and, unless `measured` is NULL, how fast it is and which precision to train
   in. Writes at most `capacity` bytes, the last one 0, and returns the length of the whole text; 0
   on error. */
MPTRAIN_TOOLS_API size_t mpt_machine_report(
	mpt_context *context, const mpt_machine *measured, char *text, size_t capacity);

/* Measures each matrix of parameters, named *.weight, in products with a batch of so many rows,
   against the same ones with sizes rounded up to multiples of 8, 16 and 64, in the dtype that
   products have under autocast to `precision`. Writes a line for each that is faster when it is
   padded, with the size to take and the measured factor, as mpt_machine_report writes; returns 0
   where there is none, too. Takes some 50 ms a matrix. */
MPTRAIN_TOOLS_API size_t mpt_machine_shapes(
	mpt_module module, int64_t rows, mpt_dtype precision, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/diagnose.h: what is wrong with a training.
 * ---- */
#ifndef MPT__FACE_DIAGNOSE_INCLUDED
#define MPT__FACE_DIAGNOSE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Diagnosis ====
 *
 * Some steps of a training, looked at from inside: what is wrong, where, and what to do. The
 * training is afterwards as it was before, to the bit: mpt_snapshot and mpt_restore see to that. */

typedef enum mpt_fault {			/* in the order in which findings are told */
	MPT_FAULT_INPUT_NONFINITE = 0,	/* value: the sample's number in its batch */
	MPT_FAULT_WEIGHTS_NONFINITE,	/* before the first step */
	MPT_FAULT_FORWARD_NONFINITE,	/* the first layer whose output is not finite, in fp32, too */
	MPT_FAULT_FORWARD_OVERFLOW,		/* the same, where fp32 is finite; value: what fp32 reaches */
	MPT_FAULT_LOSS_NONFINITE,		/* of outputs that are finite */
	MPT_FAULT_BACKWARD_NONFINITE,	/* the first layer from the loss on whose gradient is not */
	MPT_FAULT_SKIPS,				/* value: steps in a row that the scaler has skipped */
	MPT_FAULT_UNDERFLOW,			/* value: share of a layer's gradients that fp16 makes zero */
	MPT_FAULT_INPUT_RANGE,			/* value: the deviation of the inputs */
	MPT_FAULT_TARGETS_CONSTANT,		/* value: the one class that there is */
	MPT_FAULT_RATE_HIGH,			/* value: change of a weight matrix in a step, of its norm */
	MPT_FAULT_RATE_LOW,
	MPT_FAULT_WEIGHTS_LARGE,	/* value: the largest magnitude */
	MPT_FAULT_EXPLODING,		/* value: gradients of the first layer over those of the last one */
	MPT_FAULT_VANISHING,
	MPT_FAULT_DEAD_LAYER,	/* all outputs are zero */
	MPT_FAULT_DEAD_UNITS,	/* value: share of units that are zero for every sample */
	MPT_FAULT_SATURATED,	/* value: share of outputs of a tanh or sigmoid at its ends */
	MPT_FAULT_UNREACHED,	/* the loss does not depend on this parameter */
	MPT_FAULT_NO_OPTIMIZER,	/* has gradients, and no step changes it */
	MPT_FAULT_FROZEN,		/* value: how many parameters; may be meant */
	MPT_FAULT_LOSS_RISES,	/* value: the last losses over the first ones */
	MPT_FAULTS
} mpt_fault;

typedef struct mpt_finding {
	mpt_fault fault;
	int64_t step;		/* from 1; 0: before the first one */
	double value;		/* as above */
	char place[160];	/* a module's or parameter's path, or "" */
	char text[360];		/* what is wrong and what to do, in a sentence or two */
} mpt_finding;

typedef struct mpt_diagnosis_config {
	int64_t steps;			/* 20 */
	mpt_dtype precision;	/* MPT_F16: that of the training, as in mpt_fit_config */
	mpt_scaler scaler;		/* null handle: for MPT_F16 one with the usual settings */
	bool scaled;			/* true; false: fp16 without a scaler, to see what that loses */
	mpt_tensor (*loss)(mpt_tensor output, mpt_tensor target, void *user);	/* NULL: nll_loss */
	void *user;
} mpt_diagnosis_config;

enum { MPT_MOST_FINDINGS = 32 };
typedef struct mpt_diagnosis {
	mpt_status status;
	int64_t steps, skipped;
	double first_loss, last_loss, scale;
	double seconds[2];	/* of a step, median: in fp32, in the precision asked for */
	int count;			/* findings, one of a kind, the gravest first */
	mpt_finding finding[MPT_MOST_FINDINGS];
} mpt_diagnosis;

MPTRAIN_TOOLS_API mpt_diagnosis_config mpt_diagnosis_config_default(void);
/* Trains so many steps on batches of the loader, each of them also in fp32 to compare with. `text`
   gets a table of layers (largest output, zeros, gradients and what fp16 loses of them), the
   findings, and whether the precision pays here, as mpt_machine_report writes; *length (may be
   NULL) what it needs. Hooks of yours run meanwhile; no step may be open. It takes memory for the
   snapshot and for one layer's numbers. */
MPTRAIN_TOOLS_API mpt_diagnosis mpt_diagnose(mpt_module net, mpt_optimizer optimizer,
	mpt_loader loader, const mpt_diagnosis_config *config, char *text, size_t capacity,
	size_t *length);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/precisions.h: the same training in several precisions.
 * ---- */
#ifndef MPT__FACE_PRECISIONS_INCLUDED
#define MPT__FACE_PRECISIONS_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Precisions side by side ====
 *
 * The same training from the same seed in fp32, under autocast to fp16 and bf16, and with weights
 * of fp16 and bf16, each in a context of its own. */

typedef struct mpt_training {
	mpt_module (*net)(mpt_context *context, void *user);
	mpt_optimizer (*optimizer)(mpt_module net, void *user);
	mpt_loader (*loader)(mpt_context *context, void *user);
	mpt_tensor (*loss)(mpt_tensor output, mpt_tensor target, void *user);	/* NULL: nll_loss */
	void *user;
} mpt_training;

enum { MPT_PRECISION_RUNS = 5, MPT_PRECISION_POINTS = 5 };
typedef struct mpt_precision_run {
	const char *name;					/* "fp32", "fp16", "bf16", "half fp16", "half bf16" */
	mpt_status status;					/* of its context */
	double loss[MPT_PRECISION_POINTS];	/* means of the steps up to each fifth of them */
	double seconds;						/* of a step, median */
	int64_t peak;						/* bytes, as mpt_memory counts them */
	int64_t skipped;					/* steps, by the scaler, which fp16 has */
	double scale;						/* at the end; 1 without a scaler */
} mpt_precision_run;

/* Trains so many steps, at least 5, in each precision, with contexts of `config` (NULL: defaults).
   `runs` gets what became of each, and `text` the same as a table, as mpt_machine_report writes;
   returns the length it needs, 0 where nothing could be run. */
MPTRAIN_TOOLS_API size_t mpt_compare_precisions(const mpt_training *training,
	const mpt_config *config, int64_t steps, mpt_precision_run runs[MPT_PRECISION_RUNS], char *text,
	size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/zeroth.h: training by forwards alone.
 * ---- */
#ifndef MPT__FACE_ZEROTH_INCLUDED
#define MPT__FACE_ZEROTH_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Training by forwards alone ====
 *
 * Fine-tuning in the memory of inference: no gradient, no moment, nothing kept for backward. MeZO,
 * arXiv:2305.17333: the weights move a little along a random direction, to one side and the other;
 * the difference of the two losses says how far to go along it. The directions are drawn again from
 * their seeds, so besides the net there is only room for one more copy of its largest parameter. It
 * learns slowly: it is for large nets that have learned before, and small changes. */

typedef struct mpt_zeroth_config {
	double lr;			/* 1e-6; of a net as small as a lesson's far more */
	double epsilon;		/* 1e-3; how far the weights move to either side, times a normal number each */
	int directions;		/* 1; up to 64, whose mean is taken: two forwards for each */
	uint64_t seed;		/* 0; of the directions, beside the step's number */
} mpt_zeroth_config;
MPTRAIN_TOOLS_API mpt_zeroth_config mpt_zeroth_config_default(void);

/* One number, the loss; called in inference mode, twice for each direction, with the weights moved.
   What it draws by chance (mpt_train, dropout) makes the two differ: call mpt_eval before. */
typedef mpt_tensor (*mpt_zeroth_loss)(mpt_module net, void *user);

typedef struct mpt_zeroth {
	mpt_status status;	/* MPT_ERROR_NUMERIC: a loss was not finite */
	double loss;		/* mean of all that were computed */
	double slope;		/* of the loss along the last direction */
	char error[256];	/* what was wrong, if it was something of the context's */
} mpt_zeroth;

/* One step. Those parameters of the net change that collect gradients (mpt_freeze, mpt_lora); they
   are best fp32, as halves round small moves away. `step` is the number of the step, whose
   directions no other step has; the same step from the same weights gives the same bits. Unless
   status is MPT_OK the weights are put back, but for the rounding of the moves (1e-7 or so of a
   weight), and the context has no error. config NULL: defaults. */
MPTRAIN_TOOLS_API mpt_zeroth mpt_zeroth_step(mpt_module net, mpt_zeroth_loss loss, void *user,
	const mpt_zeroth_config *config, int64_t step);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/trace.h: profiles as files.
 * ---- */
#ifndef MPT__FACE_TRACE_INCLUDED
#define MPT__FACE_TRACE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Traces ====
 *
 * What mpt_profile_begin has kept, with a config that has room for spans, as a file that
 * ui.perfetto.dev and chrome://tracing show: steps, modules, ops and launches within each other,
 * waits for data, the workers of loaders in rows of their own, and a curve of the memory in use. */

/* Writes the file, in JSON, beside what is at `path` (UTF-8), which it replaces once it is whole: a
   full disk leaves what was there. MPT_ERROR_IO: it could not be written, and `why`, of `capacity`
   bytes or NULL, tells; MPT_ERROR_STATE, ARGUMENT: there is no profile, or no path; else the status
   of the context. */
MPTRAIN_TOOLS_API mpt_status mpt_trace_write(
	mpt_context *context, const char *path, char *why, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/graph.h: a net in a table and in pictures.
 * ---- */
#ifndef MPT__FACE_GRAPH_INCLUDED
#define MPT__FACE_GRAPH_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== The net seen ====
 *
 * What mpt_trace has seen of a net, for people. */

/* The modules of the net that was traced, nested ones indented, with what they gave and how many
   parameters they have; then totals: trainable, frozen, bytes, FLOP of a forward pass. Writes at
   most `capacity` bytes, the last one 0, and returns the length of the whole text; 0 on error. */
MPTRAIN_TOOLS_API size_t mpt_graph_summary(
	mpt_graph graph, mpt_module net, char *text, size_t capacity);
/* A file for Graphviz: `dot -Tpdf net.dot`. Boxes are ops, with shapes, dtypes and numbers of
   parameters, in frames of their modules. MPT_ERROR_IO where the file cannot be written. */
MPTRAIN_TOOLS_API mpt_status mpt_graph_dot(mpt_graph graph, const char *path);
/* The same as a picture that browsers show, light or dark as they are; without Graphviz. */
MPTRAIN_TOOLS_API mpt_status mpt_graph_svg(mpt_graph graph, const char *path);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/onnx.h: a net as an ONNX file.
 * ---- */
#ifndef MPT__FACE_ONNX_INCLUDED
#define MPT__FACE_ONNX_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== ONNX ====
 *
 * A net as a file that onnxruntime, TensorRT, OpenVINO and others run: opset 18 of onnx.ai. */

enum { MPT_ONNX_OPSET = 18 };

typedef struct mpt_onnx_config {
	const char *const *inputs;	/* NULL: "input", or of several "input1", "input2" .. */
	const char *const *outputs;	/* NULL: "output" .. */
	const char *batch;			/* "batch": what the size of a batch is called in shapes; NULL: the
								   sizes of the inputs given are the only ones */
	const int *batch_dims;		/* which dimension of each input that is, -1 none; NULL: 0 of all */
	int64_t beside;				/* 2^30; bytes of weights from which on they go to a second file,
								   whose name is the first one's with ".data" behind it */
} mpt_onnx_config;
MPTRAIN_TOOLS_API mpt_onnx_config mpt_onnx_config_default(void);

/* Writes what the net computes of such inputs in evaluation, in the autocast region that is open:
   it runs it, and where there is a batch once more with one of twice the size, which tells what
   goes with it (of 1, with 2 and 4). What the program decides by numbers it has read is in the
   file as it was decided. Weights have the names of mpt_parameter_at, and dtypes and layout as in
   the net; names of values between begin with their module. A product of fp16 is one in the file
   where its result is fp16, too; norms, softmax and attention are fp32, as in the net; bf16 is
   fp32 that is rounded, as runtimes have few kernels of it. The same net gives the same bytes.
   Needs MPTRAIN_WATCH.
   Files are written beside what is at `path` (UTF-8), which they replace once they are whole.
   Errors: MPT_ERROR_UNSUPPORTED: an op that ONNX has nothing for, or a size that does not go with
   the batch in a simple way; ARGUMENT, IO, MEMORY; else the context's. `why`, of `capacity` bytes
   or NULL, tells, with op and module. Nothing is written then. config NULL: defaults. */
MPTRAIN_TOOLS_API mpt_status mpt_onnx_export(mpt_module net, const mpt_tensor *inputs,
	int n_inputs, const char *path, const mpt_onnx_config *config, char *why, size_t capacity);
/* How an op of the table in mptrain.h ("linear") is written: what it becomes, as "Gemm", or, where
   it is made of several, "composed"; NULL: it has no form there, or is none of the table. */
MPTRAIN_TOOLS_API const char *mpt_onnx_form(const char *op);

#ifdef __cplusplus
}
#endif
#endif
/* ----
 * tools/face/report.h: a training as one page.
 * ---- */
#ifndef MPT__FACE_REPORT_INCLUDED
#define MPT__FACE_REPORT_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* ==== Reports ====
 *
 * One HTML file without references outside, light or dark as the reader's system is, that a phone
 * shows as well: how loss, accuracy, rate, scale, norms, speed and memory went, how weights and
 * gradients are spread, the first filters, confusions, the net drawn. What a line or a distribution
 * is under the pointer, or the finger, is told beside it. It is rewritten while the training runs,
 * and a browser that shows it loads it anew until it is closed. However long a training is, the
 * file stays below 1 MB. */

typedef struct mpt_report mpt_report;

typedef struct mpt_report_config {
	const char *title;	/* "Training" */
	double seconds;		/* 2; the file is written at most so often while a training runs */
} mpt_report_config;
MPTRAIN_TOOLS_API mpt_report_config mpt_report_config_default(void);

/* Begins a report, whose file is there at once; NULL config means defaults. NULL only without
   memory or path; where the file cannot be written, mpt_report_close says so. */
MPTRAIN_TOOLS_API mpt_report *mpt_report_open(const char *path, const mpt_report_config *config);
/* Writes the file for the last time, as one of a training that has ended, and ends the report; NULL
   is allowed. MPT_ERROR_IO where the file could not be written. */
MPTRAIN_TOOLS_API mpt_status mpt_report_close(mpt_report *report);
/* For mpt_fit_config.progress, with the report as `user`. Returns true. */
MPTRAIN_TOOLS_API bool mpt_report_fit(void *report, const mpt_progress *progress);
/* Draws the net (graph: of mpt_trace; the null handle leaves that out) and how its weights, and
   gradients where there are some, are spread now, its filters, and memory by kind. Waits for the
   device. Call it again to show later ones. */
MPTRAIN_TOOLS_API mpt_status mpt_report_net(mpt_report *report, mpt_module net, mpt_graph graph);
/* Of mpt_confusion: counts[true class * classes + guess], of 2 to 40 classes. */
MPTRAIN_TOOLS_API mpt_status mpt_report_confusion(
	mpt_report *report, const int64_t *counts, int classes);
/* Bars under a title, such as seconds by op of a profiler; the first 24, in up to 6 panels. The
   same title again replaces its panel. */
MPTRAIN_TOOLS_API mpt_status mpt_report_bars(mpt_report *report, const char *title,
	const char *const *names, const double *values, int count, const char *unit);
/* The time of a step by op, forward and backward apart, as mpt_profile_begin has found it in the
   context so far: a panel of bars. Of a profile with room for spans also the memory in use over its
   last whole step, launch by launch. */
MPTRAIN_TOOLS_API mpt_status mpt_report_profile(mpt_report *report, mpt_context *context);

#ifdef __cplusplus
}
#endif
#endif

#if defined(MPTRAIN_TOOLS_IMPLEMENTATION) && !defined(MPT__TOOLS_IMPLEMENTED)
#define MPT__TOOLS_IMPLEMENTED
/* ----
 * tools/files.c: memory, time and paths: what the tools ask of the system.
 *
 * Beside it only records.c does.
 * ---- */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <direct.h>
#include <sys/timeb.h>
#include <wchar.h>
#include <windows.h>
#else
#include <sys/stat.h>
#include <sys/types.h>
#endif

/* Bytes that grow at their end. */
typedef struct {
	unsigned char *data;
	size_t size, capacity;
	bool failed;	/* without memory; what comes then is left out */
} mpt__tools_bytes;

static bool mpt__tools_bytes_reserve(mpt__tools_bytes *bytes, size_t more) {
	if (bytes->capacity - bytes->size >= more) return true;
	size_t wanted = bytes->capacity ? bytes->capacity : 256;
	while (wanted - bytes->size < more && wanted <= SIZE_MAX / 2) wanted *= 2;
	unsigned char *data =
		wanted - bytes->size < more ? NULL : (unsigned char *)realloc(bytes->data, wanted);
	if (!data) {
		bytes->failed = true;
		return false;
	}
	bytes->data = data, bytes->capacity = wanted;
	return true;
}

static void mpt__tools_bytes_put(mpt__tools_bytes *bytes, const void *data, size_t size) {
	if (size == 0 || !mpt__tools_bytes_reserve(bytes, size)) return;
	memcpy(bytes->data + bytes->size, data, size);
	bytes->size += size;
}

static void mpt__tools_bytes_put_text(mpt__tools_bytes *bytes, const char *text) {
	mpt__tools_bytes_put(bytes, text, strlen(text));
}

static void mpt__tools_bytes_free(mpt__tools_bytes *bytes) {
	free(bytes->data);
	memset(bytes, 0, sizeof *bytes);
}

static void *mpt__tools_allocate(size_t bytes) { return calloc(1, bytes ? bytes : 1); }
static void mpt__tools_release(void *memory) { free(memory); }

#ifdef _WIN32

/* The system's form of a path: UTF-16. NULL without memory or where the path is no UTF-8. */
static wchar_t *mpt__tools_wide_path(const char *path) {
	const size_t length = strlen(path);
	wchar_t *wide = (wchar_t *)malloc((length + 1) * sizeof *wide);
	size_t n = 0, i = 0;
	while (wide && i < length) {
		const unsigned char first = (unsigned char)path[i++];
		const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
		uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
		for (int k = 0; k < more && i < length; k++)
			code = code << 6 | ((unsigned char)path[i++] & 0x3Fu);
		if (code >= 0x10000) {
			code -= 0x10000;
			wide[n++] = (wchar_t)(0xD800 + (code >> 10));
			code = 0xDC00 + (code & 0x3FF);
		}
		wide[n++] = (wchar_t)code;
	}
	if (wide) wide[n] = 0;
	return wide;
}

static FILE *mpt__tools_file_open(const char *path, const char *mode) {
	wchar_t *wide = mpt__tools_wide_path(path), how[8];
	size_t n = 0;
	for (; mode[n] && n < 7; n++) how[n] = (wchar_t)mode[n];
	how[n] = 0;
	FILE *file = wide ? _wfopen(wide, how) : NULL;
	free(wide);
	return file;
}

static int mpt__tools_folder_make(const char *path) {
	wchar_t *wide = mpt__tools_wide_path(path);
	int result = wide ? _wmkdir(wide) : -1;
	free(wide);
	return result;
}

/* Windows moves no file to a name that is taken. */
static int mpt__tools_file_move(const char *from, const char *to) {
	wchar_t *a = mpt__tools_wide_path(from), *b = mpt__tools_wide_path(to);
	int result = -1;
	if (a && b) {
		_wremove(b);
		result = _wrename(a, b);
	}
	free(a), free(b);
	return result;
}

static void mpt__tools_file_remove(const char *path) {
	wchar_t *wide = mpt__tools_wide_path(path);
	if (wide) _wremove(wide);
	free(wide);
}

static double mpt__tools_system_now(void) {
	struct __timeb64 now;
	_ftime64(&now);
	return (double)now.time + 1e-3 * (double)now.millitm;
}

/* Seconds from some start, to measure with. */
static double mpt__tools_seconds(void) {
	LARGE_INTEGER now, unit;
	QueryPerformanceCounter(&now);
	QueryPerformanceFrequency(&unit);
	return (double)now.QuadPart / (double)unit.QuadPart;
}

#else

static FILE *mpt__tools_file_open(const char *path, const char *mode) { return fopen(path, mode); }
static int mpt__tools_folder_make(const char *path) { return mkdir(path, 0777); }
static int mpt__tools_file_move(const char *from, const char *to) { return rename(from, to); }
static void mpt__tools_file_remove(const char *path) { remove(path); }

static double mpt__tools_system_now(void) {
	struct timespec now;
	if (timespec_get(&now, TIME_UTC) != TIME_UTC) return (double)time(NULL);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static double mpt__tools_seconds(void) { return mpt__tools_system_now(); }

#endif

/* The first line of a file, without its end, cut to `size`; false where there is no such file. */
static bool mpt__tools_first_line(const char *path, char *line, size_t size) {
	FILE *file = mpt__tools_file_open(path, "rb");
	const size_t n = file ? fread(line, 1, size - 1, file) : 0;
	if (file) fclose(file);
	line[n] = '\0';
	line[strcspn(line, "\r\n")] = '\0';
	return n > 0;
}

static bool mpt__tools_file_put(FILE *file, const void *data, size_t bytes) {
	return bytes == 0 || fwrite(data, 1, bytes, file) == bytes;
}

/* False where what was written may not have arrived. */
static bool mpt__tools_file_close(FILE *file) { return fclose(file) == 0; }

/* Replaces a file as a whole: who reads it sees the old one or the new one. */
static mpt_status mpt__tools_file_replace(const char *path, const mpt__tools_bytes *bytes) {
	mpt__tools_bytes name = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&name, path);
	mpt__tools_bytes_put(&name, ".new", 5);
	const char *beside = (const char *)name.data;
	FILE *file = name.failed || bytes->failed ? NULL : mpt__tools_file_open(beside, "wb");
	bool fine = file && fwrite(bytes->data, 1, bytes->size, file) == bytes->size;
	if (file && fclose(file) != 0) fine = false;
	fine = fine && mpt__tools_file_move(beside, path) == 0;
	if (file && !fine) mpt__tools_file_remove(beside);
	const mpt_status status = fine     ? MPT_OK
		: name.failed || bytes->failed ? MPT_ERROR_MEMORY
									   : MPT_ERROR_IO;
	mpt__tools_bytes_free(&name);
	return status;
}

static bool mpt__tools_is_separator(char c) {
#ifdef _WIN32
	if (c == '\\') return true;
#endif
	return c == '/';
}

/* Makes a folder and those above it, as far as they are missing. Whether it is there in the end,
   opening a file in it tells. `path` is changed meanwhile. */
static void mpt__tools_folders_make(char *path) {
	for (size_t i = 1; path[i]; i++) {
		const char c = path[i];
		if (!mpt__tools_is_separator(c)) continue;
		path[i] = 0;
		mpt__tools_folder_make(path);
		path[i] = c;
	}
	mpt__tools_folder_make(path);
}

/* ----
 * tools/numbers.c: numbers as text: the same digits on every platform and in every locale.
 * ---- */

/* A natural number below 2^1280, least word first: room for all that an fp64 is scaled to, which
   stays below 2^1140. */
enum { MPT__TOOLS_BIG_WORDS = 40 };
typedef struct {
	uint32_t word[MPT__TOOLS_BIG_WORDS];
} mpt__tools_big;

static void mpt__tools_big_shifted(mpt__tools_big *big, uint64_t value, int shift) {
	memset(big, 0, sizeof *big);
	const int at = shift / 32, bits = shift % 32;
	big->word[at] = (uint32_t)(value << bits);
	big->word[at + 1] = (uint32_t)(value >> 1 >> (31 - bits));
	big->word[at + 2] = (uint32_t)(value >> 33 >> (31 - bits));
}

static void mpt__tools_big_times_ten(mpt__tools_big *big) {
	uint64_t carry = 0;
	for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
		carry += (uint64_t)big->word[i] * 10;
		big->word[i] = (uint32_t)carry;
		carry >>= 32;
	}
}

static void mpt__tools_big_add(mpt__tools_big *big, const mpt__tools_big *other) {
	uint64_t carry = 0;
	for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
		carry += (uint64_t)big->word[i] + other->word[i];
		big->word[i] = (uint32_t)carry;
		carry >>= 32;
	}
}

static void mpt__tools_big_subtract(mpt__tools_big *big, const mpt__tools_big *other) {
	uint64_t borrow = 0;
	for (int i = 0; i < MPT__TOOLS_BIG_WORDS; i++) {
		const uint64_t difference = (uint64_t)big->word[i] - other->word[i] - borrow;
		big->word[i] = (uint32_t)difference;
		borrow = difference >> 63;
	}
}

/* -1, 0 or 1 as a is less than, equal to or greater than b. */
static int mpt__tools_big_compare(const mpt__tools_big *a, const mpt__tools_big *b) {
	for (int i = MPT__TOOLS_BIG_WORDS; i-- > 0;)
		if (a->word[i] != b->word[i]) return a->word[i] < b->word[i] ? -1 : 1;
	return 0;
}

/* -1, 0 or 1 as a + b is to c. */
static int mpt__tools_big_compare_sum(
	const mpt__tools_big *a, const mpt__tools_big *b, const mpt__tools_big *c) {
	mpt__tools_big sum = *a;
	mpt__tools_big_add(&sum, b);
	return mpt__tools_big_compare(&sum, c);
}

/* The fewest digits that are read back as the number with these bits, which is positive and finite;
   0.DIGITS times ten to the result. Steele and White 1990, with Burger and Dybvig's margins. */
static int mpt__tools_shortest_digits(uint64_t bits, char *digits, int *count) {
	const int field = (int)(bits >> 52 & 0x7FF);
	const uint64_t fraction = bits & 0xFFFFFFFFFFFFFull;
	const uint64_t mantissa = field ? fraction | 1ull << 52 : fraction;
	const int exponent = (field ? field : 1) - 1075, up = exponent > 0 ? exponent : 0;
	const int uneven = field > 1 && fraction == 0, even = (mantissa & 1) == 0;
	mpt__tools_big rest, scale, above, below;
	mpt__tools_big_shifted(&rest, mantissa, up + 1 + uneven);
	mpt__tools_big_shifted(&scale, 1, up - exponent + 1 + uneven);
	mpt__tools_big_shifted(&above, 1, up + uneven);
	mpt__tools_big_shifted(&below, 1, up);
	int power = 0;
	while (mpt__tools_big_compare_sum(&rest, &above, &scale) > -even) {
		mpt__tools_big_times_ten(&scale);
		power++;
	}
	for (;;) {
		mpt__tools_big_times_ten(&rest), mpt__tools_big_times_ten(&above),
			mpt__tools_big_times_ten(&below);
		if (mpt__tools_big_compare_sum(&rest, &above, &scale) > -even) break;
		power--;
	}
	for (*count = 0;;) {
		int digit = 0;
		while (mpt__tools_big_compare(&rest, &scale) >= 0)
			mpt__tools_big_subtract(&rest, &scale), digit++;
		const bool low = mpt__tools_big_compare(&rest, &below) < even;
		const bool high = mpt__tools_big_compare_sum(&rest, &above, &scale) > -even;
		if (high && (!low || mpt__tools_big_compare_sum(&rest, &rest, &scale) >= 0)) digit++;
		digits[(*count)++] = (char)('0' + digit);
		if (low || high) return power;
		mpt__tools_big_times_ten(&rest), mpt__tools_big_times_ten(&above),
			mpt__tools_big_times_ten(&below);
	}
}

static void mpt__tools_put_integer(mpt__tools_bytes *to, int64_t value) {
	char digits[24];
	int n = 24;
	uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
	do digits[--n] = (char)('0' + (int)(left % 10));
	while ((left /= 10) != 0);
	if (value < 0) digits[--n] = '-';
	mpt__tools_bytes_put(to, digits + n, (size_t)(24 - n));
}

static uint64_t mpt__tools_bits_of(double value) {
	uint64_t bits;
	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static bool mpt__tools_is_finite(double value) {
	return (mpt__tools_bits_of(value) >> 52 & 0x7FF) != 0x7FF;
}

/* As Python's repr writes it, but for whole numbers, which are without ".0": 0.1, 1e-07, 65536. */
static void mpt__tools_put_number(mpt__tools_bytes *to, double value) {
	const uint64_t bits = mpt__tools_bits_of(value);
	char digits[24];
	int count;
	if (!mpt__tools_is_finite(value)) {
		mpt__tools_bytes_put_text(to, bits << 12 ? "nan" : bits >> 63 ? "-inf" : "inf");
		return;
	}
	if (bits << 1 == 0) {
		mpt__tools_bytes_put_text(to, bits ? "-0.0" : "0");	/* a whole -0 is read as 0 */
		return;
	}
	if (bits >> 63) mpt__tools_bytes_put(to, "-", 1);
	const int point = mpt__tools_shortest_digits(bits & ~(1ull << 63), digits, &count);
	if (point > 16 || point < -3) {
		mpt__tools_bytes_put(to, digits, 1);
		if (count > 1) mpt__tools_bytes_put(to, ".", 1);
		mpt__tools_bytes_put(to, digits + 1, (size_t)count - 1);
		mpt__tools_bytes_put_text(to, point < 1 ? "e-" : "e+");
		const int power = point < 1 ? 1 - point : point - 1;
		if (power < 10) mpt__tools_bytes_put(to, "0", 1);
		mpt__tools_put_integer(to, power);
		return;
	}
	if (point <= 0) mpt__tools_bytes_put(to, "0.000", (size_t)(2 - point));
	for (int i = 0; i < count || i < point; i++) {
		if (i == point && i > 0) mpt__tools_bytes_put(to, ".", 1);
		mpt__tools_bytes_put(to, i < count ? &digits[i] : "0", 1);
	}
}

/* ----
 * tools/records.c: files that grow by records: opened again, mended, written, cut back.
 *
 * A record is a line of text, or, in an event file, a length, data and two checks (TensorFlow's
 * TFRecord): so a file that ends in the middle of one is known for what it is.
 * ---- */

/* A file of records. What is to be written waits in `pending`. */
typedef struct mpt__tools_stream {
	const struct mpt__tools_format *format;
	char *path;
	FILE *file;	/* at its end, without a buffer of its own, so that what is written is known */
	mpt__tools_bytes pending;
	int error;			/* the system's number; 0: all is well */
	const char *fault;	/* what could not be done: "opened" */
	int64_t dropped;	/* bytes */
	bool fresh;			/* nothing is in it yet */
} mpt__tools_stream;

/* What a record that was read is. */
typedef enum {
	MPT__TOOLS_RECORD_NONE,		/* the file ends */
	MPT__TOOLS_RECORD_WHOLE,	/* and its step is known */
	MPT__TOOLS_RECORD_HEAD,		/* it has no step and stays */
	MPT__TOOLS_RECORD_BAD,		/* it is damaged, what is behind it is not */
	MPT__TOOLS_RECORD_TORN,		/* it ends too early, or nobody knows where it ends */
	MPT__TOOLS_RECORD_FOREIGN,	/* nothing that a journal wrote */
	MPT__TOOLS_RECORD_FAILED	/* it could not be read, by errno */
} mpt__tools_record;

/* A kind of file: how the record that begins at the place of `file` is read, and what the first
   line is, if it is one of text. */
typedef struct mpt__tools_format {
	const char *name, *first;
	mpt__tools_record (*read)(FILE *file, mpt__tools_bytes *record, int64_t *step);
} mpt__tools_format;

/* Adds up to `size` bytes of the file to a record; returns how many. */
static size_t mpt__tools_record_add(FILE *file, mpt__tools_bytes *record, size_t size) {
	if (!mpt__tools_bytes_reserve(record, size)) return 0;
	const size_t got = fread(record->data + record->size, 1, size, file);
	record->size += got;
	return got;
}

/* ==== Lines ==== */

/* Whether a line begins as `head` does, as far as both go. */
static bool mpt__tools_begins(const mpt__tools_bytes *line, const char *head) {
	const size_t length = strlen(head);
	return memcmp(line->data, head, line->size < length ? line->size : length) == 0;
}

/* Reads a line with its end; RECORD_TORN where that is missing. */
static mpt__tools_record mpt__tools_line_read(FILE *file, mpt__tools_bytes *line) {
	int c = 0;
	line->size = 0;
	while (c != '\n' && (c = getc(file)) != EOF) {
		const unsigned char byte = (unsigned char)c;
		mpt__tools_bytes_put(line, &byte, 1);
	}
	if (ferror(file) || line->failed) return MPT__TOOLS_RECORD_FAILED;
	return c == '\n' ? MPT__TOOLS_RECORD_WHOLE
		: line->size ? MPT__TOOLS_RECORD_TORN
					 : MPT__TOOLS_RECORD_NONE;
}

/* The number that stands at text[at..size); false where there is none. */
static bool mpt__tools_number_at(const mpt__tools_bytes *text, size_t at, int64_t *number) {
	const size_t begin = at;
	*number = 0;
	for (; at < text->size && text->data[at] >= '0' && text->data[at] <= '9'; at++) {
		if (*number > (INT64_MAX - 9) / 10) return false;
		*number = *number * 10 + (text->data[at] - '0');
	}
	return at > begin;
}

#define MPT__TOOLS_CSV_HEAD "step,time,tag,value\n"
#define MPT__TOOLS_JSON_HEAD "{\"step\":"

static mpt__tools_record mpt__tools_csv_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
	const bool first = ftell(file) == 0;
	const mpt__tools_record found = mpt__tools_line_read(file, line);
	if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
	if (first &&
		(!mpt__tools_begins(line, MPT__TOOLS_CSV_HEAD) || line->size > strlen(MPT__TOOLS_CSV_HEAD)))
		return MPT__TOOLS_RECORD_FOREIGN;
	if (found == MPT__TOOLS_RECORD_TORN) return found;
	if (first) return MPT__TOOLS_RECORD_HEAD;
	return mpt__tools_number_at(line, 0, step) ? found : MPT__TOOLS_RECORD_BAD;
}

static mpt__tools_record mpt__tools_json_read(FILE *file, mpt__tools_bytes *line, int64_t *step) {
	const bool first = ftell(file) == 0;
	const mpt__tools_record found = mpt__tools_line_read(file, line);
	if (found != MPT__TOOLS_RECORD_WHOLE && found != MPT__TOOLS_RECORD_TORN) return found;
	if (first && !mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD)) return MPT__TOOLS_RECORD_FOREIGN;
	if (found == MPT__TOOLS_RECORD_TORN) return found;
	return mpt__tools_begins(line, MPT__TOOLS_JSON_HEAD) &&
			mpt__tools_number_at(line, strlen(MPT__TOOLS_JSON_HEAD), step)
		? found
		: MPT__TOOLS_RECORD_BAD;
}

/* ==== Files ==== */

static bool mpt__tools_stream_fails(mpt__tools_stream *stream, const char *fault) {
	stream->error = errno ? errno : EIO;
	stream->fault = fault;
	return false;
}

/* Reads all records from where `from` begins. Those of steps up to `last` go to `to`, where that is
   a file. *dropped becomes the bytes of the others. False: it failed. */
static bool mpt__tools_stream_sift(
	mpt__tools_stream *stream, FILE *from, FILE *to, int64_t last, int64_t *dropped) {
	mpt__tools_bytes record = {NULL, 0, 0, false};
	bool fine = true;
	*dropped = 0;
	while (fine) {
		int64_t step = 0;
		errno = 0;
		const mpt__tools_record found = stream->format->read(from, &record, &step);
		if (found == MPT__TOOLS_RECORD_NONE) break;
		if (found == MPT__TOOLS_RECORD_FOREIGN) {
			errno = 0;
			stream->fault = "gone on with, as no journal wrote it";
			fine = false;
		} else if (found == MPT__TOOLS_RECORD_FAILED) {
			fine = mpt__tools_stream_fails(stream, "read");
		} else if (found == MPT__TOOLS_RECORD_HEAD ||
			(found == MPT__TOOLS_RECORD_WHOLE && step <= last)) {
			if (to && fwrite(record.data, 1, record.size, to) != record.size)
				fine = mpt__tools_stream_fails(stream, "written anew");
		} else {
			*dropped += (int64_t)record.size;
		}
		if (found == MPT__TOOLS_RECORD_TORN) {
			while (getc(from) != EOF) ++*dropped;
			break;
		}
	}
	mpt__tools_bytes_free(&record);
	return fine;
}

/* Leaves in a closed file what is whole and of steps up to `last`. It is replaced as a whole, so
   that a kill leaves the old one or the new one. */
static bool mpt__tools_stream_mend(mpt__tools_stream *stream, int64_t last) {
	int64_t dropped;
	errno = 0;
	FILE *from = mpt__tools_file_open(stream->path, "rb");
	if (!from) return errno == ENOENT ? true : mpt__tools_stream_fails(stream, "opened");
	bool fine = mpt__tools_stream_sift(stream, from, NULL, last, &dropped);
	if (!fine || dropped == 0) {
		fclose(from);
		return fine;
	}
	mpt__tools_bytes name = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&name, stream->path);
	mpt__tools_bytes_put(&name, ".new", 5);
	const char *path = (const char *)name.data;
	errno = 0;
	FILE *to = name.failed ? NULL : mpt__tools_file_open(path, "wb");
	rewind(from);
	fine = to ? mpt__tools_stream_sift(stream, from, to, last, &dropped)
			  : mpt__tools_stream_fails(stream, "written anew");
	fclose(from);
	if (to && fclose(to) != 0 && fine) fine = mpt__tools_stream_fails(stream, "written anew");
	if (fine && mpt__tools_file_move(path, stream->path) != 0)
		fine = mpt__tools_stream_fails(stream, "replaced");
	if (!fine && to) mpt__tools_file_remove(path);
	if (fine) stream->dropped += dropped;
	mpt__tools_bytes_free(&name);
	return fine;
}

/* Opens the file for what is added to it. */
static bool mpt__tools_stream_open(mpt__tools_stream *stream, bool anew) {
	errno = 0;
	stream->file = mpt__tools_file_open(stream->path, anew ? "wb" : "ab");
	if (!stream->file) return mpt__tools_stream_fails(stream, "opened");
	setvbuf(stream->file, NULL, _IONBF, 0);
	if (fseek(stream->file, 0, SEEK_END) != 0) errno = 0;	/* a pipe or a device has no end */
	stream->fresh = ftell(stream->file) <= 0;
	if (stream->fresh && stream->format->first)
		mpt__tools_bytes_put_text(&stream->pending, stream->format->first);
	return true;
}

/* Writes what waits. What is written leaves `pending`, the rest stays. */
static bool mpt__tools_stream_flush(mpt__tools_stream *stream) {
	mpt__tools_bytes *pending = &stream->pending;
	if (!stream->file || pending->size == 0) return stream->error == 0;
	errno = 0;
	const size_t written = fwrite(pending->data, 1, pending->size, stream->file);
	if (written < pending->size)
		mpt__tools_stream_fails(stream, "written");
	else
		stream->error = 0;
	clearerr(stream->file);
	memmove(pending->data, pending->data + written, pending->size - written);
	pending->size -= written;
	return stream->error == 0;
}

/* False where the last bytes could not be written. */
static bool mpt__tools_stream_close(mpt__tools_stream *stream) {
	bool fine = mpt__tools_stream_flush(stream);
	errno = 0;
	if (stream->file && fclose(stream->file) != 0) fine = mpt__tools_stream_fails(stream, "closed");
	stream->file = NULL;
	return fine;
}

/* ----
 * tools/events.c: TensorBoard's event files, and pictures as PNG.
 *
 * An event file is a row of records: length, data, and a masked CRC-32C of each; the data is a
 * protocol buffer, tensorflow.Event. PNG is that of RFC 2083, of stored blocks (RFC 1951), which
 * need no compressor.
 * ---- */

/* ==== Checksums ==== */

/* The CRC of one kind: its polynomial with the lowest power in the highest bit. */
enum { MPT__TOOLS_CRC32_PNG, MPT__TOOLS_CRC32C };
static uint32_t mpt__tools_crc_update(
	int kind, uint32_t crc, const unsigned char *data, size_t size) {
	const uint32_t polynomial = kind == MPT__TOOLS_CRC32C ? 0x82F63B78u : 0xEDB88320u;
	uint32_t nibble[16];	/* what four bits add; small enough to be made each time */
	for (uint32_t i = 0; i < 16; i++) {
		nibble[i] = i;
		for (int bit = 0; bit < 4; bit++)
			nibble[i] = nibble[i] >> 1 ^ (nibble[i] & 1 ? polynomial : 0);
	}
	crc = ~crc;
	for (size_t i = 0; i < size; i++) {
		crc ^= data[i];
		crc = crc >> 4 ^ nibble[crc & 15];
		crc = crc >> 4 ^ nibble[crc & 15];
	}
	return ~crc;
}

/* TensorFlow's mask, so that a CRC of data with CRCs in it stays a good one. */
static uint32_t mpt__tools_crc_masked(const unsigned char *data, size_t size) {
	const uint32_t crc = mpt__tools_crc_update(MPT__TOOLS_CRC32C, 0, data, size);
	return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* ==== Protocol buffers ==== */

enum { MPT__TOOLS_WIRE_VARINT, MPT__TOOLS_WIRE_64, MPT__TOOLS_WIRE_BYTES, MPT__TOOLS_WIRE_32 = 5 };

static void mpt__tools_put_little(mpt__tools_bytes *to, uint64_t value, int bytes) {
	unsigned char data[8];
	for (int i = 0; i < bytes; i++) data[i] = (unsigned char)(value >> 8 * i);
	mpt__tools_bytes_put(to, data, (size_t)bytes);
}

static void mpt__tools_put_varint(mpt__tools_bytes *to, uint64_t value) {
	unsigned char data[10];
	size_t n = 0;
	for (; value >= 0x80; value >>= 7) data[n++] = (unsigned char)(value | 0x80);
	data[n++] = (unsigned char)value;
	mpt__tools_bytes_put(to, data, n);
}

static void mpt__tools_put_field(mpt__tools_bytes *to, int field, int wire) {
	mpt__tools_put_varint(to, (uint64_t)field << 3 | (uint64_t)wire);
}

static void mpt__tools_put_int_field(mpt__tools_bytes *to, int field, int64_t value) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_VARINT);
	mpt__tools_put_varint(to, (uint64_t)value);
}

static void mpt__tools_put_double_field(mpt__tools_bytes *to, int field, double value) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_64);
	mpt__tools_put_little(to, mpt__tools_bits_of(value), 8);
}

static void mpt__tools_put_bytes_field(
	mpt__tools_bytes *to, int field, const void *data, size_t size) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_put_varint(to, size);
	mpt__tools_bytes_put(to, data, size);
}

static void mpt__tools_put_text_field(mpt__tools_bytes *to, int field, const char *text) {
	mpt__tools_put_bytes_field(to, field, text, strlen(text));
}

static void mpt__tools_put_doubles_field(
	mpt__tools_bytes *to, int field, const double *values, int count) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_put_varint(to, (uint64_t)count * 8);
	for (int i = 0; i < count; i++) mpt__tools_put_little(to, mpt__tools_bits_of(values[i]), 8);
}

/* A message in a message: its length stands before it, in five bytes whatever it is, as it is known
   only behind it. */
enum { MPT__TOOLS_LENGTH_BYTES = 5 };
static size_t mpt__tools_message_begin(mpt__tools_bytes *to, int field) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_bytes_put(to, "\0\0\0\0", MPT__TOOLS_LENGTH_BYTES);
	return to->size;
}

static void mpt__tools_message_end(mpt__tools_bytes *to, size_t begin) {
	if (to->failed) return;
	const size_t length = to->size - begin;
	for (int i = 0; i < MPT__TOOLS_LENGTH_BYTES; i++)
		to->data[begin - MPT__TOOLS_LENGTH_BYTES + (size_t)i] =
			(unsigned char)((length >> 7 * i & 0x7F) |
				(i + 1 < MPT__TOOLS_LENGTH_BYTES ? 0x80 : 0));
}

/* ==== Events ==== */

/* The field numbers of tensorflow.Event and what is in it. */
enum {
	MPT__TOOLS_EVENT_TIME = 1,
	MPT__TOOLS_EVENT_STEP = 2,
	MPT__TOOLS_EVENT_VERSION = 3,
	MPT__TOOLS_EVENT_GRAPH = 4,
	MPT__TOOLS_EVENT_SUMMARY = 5,
	MPT__TOOLS_SUMMARY_VALUE = 1,
	MPT__TOOLS_VALUE_TAG = 1,
	MPT__TOOLS_VALUE_SIMPLE = 2,
	MPT__TOOLS_VALUE_IMAGE = 4,
	MPT__TOOLS_VALUE_HISTOGRAM = 5,
	MPT__TOOLS_VALUE_TENSOR = 8,
	MPT__TOOLS_VALUE_METADATA = 9,
	MPT__TOOLS_TENSOR_DTYPE = 1,
	MPT__TOOLS_TENSOR_SHAPE = 2,
	MPT__TOOLS_TENSOR_STRING = 8,
	MPT__TOOLS_DTYPE_STRING = 7
};

static void mpt__tools_put_histogram_value(mpt__tools_bytes *to, const mpt_journal_bins *bins) {
	const double numbers[] = {bins->min, bins->max, (double)bins->count, bins->sum, bins->squares};
	const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_HISTOGRAM);
	for (int i = 0; i < 5; i++) mpt__tools_put_double_field(to, i + 1, numbers[i]);
	mpt__tools_put_doubles_field(to, 6, bins->limits, bins->bins);
	mpt__tools_put_doubles_field(to, 7, bins->counts, bins->bins);
	mpt__tools_message_end(to, message);
}

static void mpt__tools_put_image_value(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_IMAGE);
	mpt__tools_put_int_field(to, 1, entry->height);
	mpt__tools_put_int_field(to, 2, entry->width);
	mpt__tools_put_int_field(to, 3, entry->channels);
	mpt__tools_put_bytes_field(to, 4, entry->png, entry->png_bytes);
	mpt__tools_message_end(to, message);
}

/* A text is a tensor of one string that belongs to the plugin "text". */
static void mpt__tools_put_text_value(mpt__tools_bytes *to, const char *text) {
	size_t message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_TENSOR);
	mpt__tools_put_int_field(to, MPT__TOOLS_TENSOR_DTYPE, MPT__TOOLS_DTYPE_STRING);
	mpt__tools_put_bytes_field(
		to, MPT__TOOLS_TENSOR_SHAPE, "\x12\x02\x08\x01", 4);	/* one dimension of 1 */
	mpt__tools_put_text_field(to, MPT__TOOLS_TENSOR_STRING, text);
	mpt__tools_message_end(to, message);
	message = mpt__tools_message_begin(to, MPT__TOOLS_VALUE_METADATA);
	const size_t plugin = mpt__tools_message_begin(to, 1);
	mpt__tools_put_text_field(to, 1, "text");
	mpt__tools_message_end(to, plugin);
	mpt__tools_message_end(to, message);
}

/* The event of an entry; of NULL the one that every file begins with. */
static void mpt__tools_put_event(
	mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
	mpt__tools_put_double_field(to, MPT__TOOLS_EVENT_TIME, time);
	if (!entry) {
		mpt__tools_put_text_field(to, MPT__TOOLS_EVENT_VERSION, "brain.Event:2");
		return;
	}
	mpt__tools_put_int_field(to, MPT__TOOLS_EVENT_STEP, entry->step);
	if (entry->kind == MPT_JOURNAL_GRAPH) {
		mpt__tools_put_bytes_field(to, MPT__TOOLS_EVENT_GRAPH, entry->graph, entry->graph_bytes);
		return;
	}
	const size_t summary = mpt__tools_message_begin(to, MPT__TOOLS_EVENT_SUMMARY);
	const size_t value = mpt__tools_message_begin(to, MPT__TOOLS_SUMMARY_VALUE);
	mpt__tools_put_text_field(to, MPT__TOOLS_VALUE_TAG, entry->tag);
	if (entry->kind == MPT_JOURNAL_SCALAR) {
		const float rounded = (float)entry->value;
		uint32_t bits;
		memcpy(&bits, &rounded, sizeof bits);
		mpt__tools_put_field(to, MPT__TOOLS_VALUE_SIMPLE, MPT__TOOLS_WIRE_32);
		mpt__tools_put_little(to, bits, 4);
	} else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
		mpt__tools_put_histogram_value(to, entry->bins);
	} else if (entry->kind == MPT_JOURNAL_IMAGE) {
		mpt__tools_put_image_value(to, entry);
	} else {
		mpt__tools_put_text_value(to, entry->text);
	}
	mpt__tools_message_end(to, value);
	mpt__tools_message_end(to, summary);
}

/* An event as a record. */
static void mpt__tools_put_event_record(
	mpt__tools_bytes *to, const mpt_journal_entry *entry, double time) {
	const size_t begin = to->size;
	mpt__tools_bytes_put(to, "\0\0\0\0\0\0\0\0\0\0\0", 12);
	mpt__tools_put_event(to, entry, time);
	if (to->failed) return;
	const size_t length = to->size - begin - 12;
	for (int i = 0; i < 8; i++)
		to->data[begin + (size_t)i] = (unsigned char)((uint64_t)length >> 8 * i);
	const uint32_t check = mpt__tools_crc_masked(to->data + begin, 8);
	for (int i = 0; i < 4; i++) to->data[begin + 8 + (size_t)i] = (unsigned char)(check >> 8 * i);
	mpt__tools_put_little(to, mpt__tools_crc_masked(to->data + begin + 12, length), 4);
}

/* ==== Reading them ==== */

static uint64_t mpt__tools_little(const unsigned char *data, int bytes) {
	uint64_t value = 0;
	for (int i = 0; i < bytes; i++) value |= (uint64_t)data[i] << 8 * i;
	return value;
}

/* Moves *at behind a varint; false where there is none. */
static bool mpt__tools_varint_at(
	const unsigned char *data, size_t size, size_t *at, uint64_t *value) {
	*value = 0;
	for (int shift = 0; shift < 64 && *at < size; shift += 7) {
		const unsigned char byte = data[(*at)++];
		*value |= (uint64_t)(byte & 0x7F) << shift;
		if (byte < 0x80) return true;
	}
	return false;
}

/* What an event is, and its step. */
static mpt__tools_record mpt__tools_event_look(
	const unsigned char *data, size_t size, int64_t *step) {
	mpt__tools_record found = MPT__TOOLS_RECORD_WHOLE;
	uint64_t key, value;
	size_t at = 0;
	while (at < size) {
		if (!mpt__tools_varint_at(data, size, &at, &key)) return MPT__TOOLS_RECORD_BAD;
		const int wire = (int)(key & 7);
		if (wire == MPT__TOOLS_WIRE_VARINT || wire == MPT__TOOLS_WIRE_BYTES) {
			if (!mpt__tools_varint_at(data, size, &at, &value)) return MPT__TOOLS_RECORD_BAD;
			if (key >> 3 == MPT__TOOLS_EVENT_STEP && wire == MPT__TOOLS_WIRE_VARINT)
				*step = (int64_t)value;
			if (key >> 3 == MPT__TOOLS_EVENT_VERSION) found = MPT__TOOLS_RECORD_HEAD;
			if (wire == MPT__TOOLS_WIRE_VARINT) value = 0;
		} else {
			value = wire == MPT__TOOLS_WIRE_64 ? 8 : wire == MPT__TOOLS_WIRE_32 ? 4 : UINT64_MAX;
		}
		if (value > size - at) return MPT__TOOLS_RECORD_BAD;
		at += (size_t)value;
	}
	return found;
}

/* Reads the record at the place of `file`. Memory grows by what is there, not by what it claims. */
static mpt__tools_record mpt__tools_event_read(
	FILE *file, mpt__tools_bytes *record, int64_t *step) {
	enum { HEAD = 12, CHECK = 4, PIECE = 65536 };
	uint64_t left = HEAD, length = 0;
	record->size = 0;
	while (left > 0) {
		const size_t piece = left < PIECE ? (size_t)left : (size_t)PIECE;
		const size_t got = mpt__tools_record_add(file, record, piece);
		if (ferror(file) || record->failed) return MPT__TOOLS_RECORD_FAILED;
		if (got < piece) return record->size ? MPT__TOOLS_RECORD_TORN : MPT__TOOLS_RECORD_NONE;
		left -= piece;
		if (record->size != HEAD || length > 0) continue;
		length = mpt__tools_little(record->data, 8);
		if (mpt__tools_little(record->data + 8, 4) != mpt__tools_crc_masked(record->data, 8) ||
			length > INT64_MAX || length == 0)
			return MPT__TOOLS_RECORD_TORN;
		left = length + CHECK;
	}
	const unsigned char *data = record->data + HEAD;
	if (mpt__tools_little(data + length, CHECK) != mpt__tools_crc_masked(data, (size_t)length))
		return MPT__TOOLS_RECORD_BAD;
	return mpt__tools_event_look(data, (size_t)length, step);
}

/* ==== PNG ==== */

static void mpt__tools_put_big(mpt__tools_bytes *to, uint32_t value) {
	for (int shift = 24; shift >= 0; shift -= 8) {
		const unsigned char byte = (unsigned char)(value >> shift);
		mpt__tools_bytes_put(to, &byte, 1);
	}
}

/* Ends the chunk whose length stands at `begin`: the length and the check. */
static void mpt__tools_png_end(mpt__tools_bytes *to, size_t begin) {
	if (to->failed) return;
	const size_t length = to->size - begin - 8;
	for (int i = 0; i < 4; i++)
		to->data[begin + (size_t)i] = (unsigned char)(length >> (24 - 8 * i));
	mpt__tools_put_big(
		to, mpt__tools_crc_update(MPT__TOOLS_CRC32_PNG, 0, to->data + begin + 4, length + 4));
}

static size_t mpt__tools_png_begin(mpt__tools_bytes *to, const char *type) {
	const size_t begin = to->size;
	mpt__tools_put_big(to, 0);
	mpt__tools_bytes_put(to, type, 4);
	return begin;
}

/* The pixels' rows, each behind a byte that says it is as it is, in blocks of at most 65,535. */
static void mpt__tools_put_stored(
	mpt__tools_bytes *to, const unsigned char *rows, size_t height, size_t width) {
	const size_t total = height * (width + 1);
	uint32_t a = 1, b = 0;	/* Adler-32 */
	for (size_t at = 0; at < total; at++) {
		if (at % 65535 == 0) {
			const size_t left = total - at, length = left < 65535 ? left : 65535;
			const unsigned char last = length == left;
			mpt__tools_bytes_put(to, &last, 1);
			mpt__tools_put_little(to, length, 2);
			mpt__tools_put_little(to, length ^ 0xFFFF, 2);
		}
		const size_t row = at / (width + 1), column = at % (width + 1);
		const unsigned char byte = column ? rows[row * width + column - 1] : 0;
		mpt__tools_bytes_put(to, &byte, 1);
		a = (a + byte) % 65521, b = (b + a) % 65521;
	}
	mpt__tools_put_big(to, b << 16 | a);
}

/* A PNG file of `channels` bytes per pixel: 1 grey, 3 RGB, 4 RGBA. */
static void mpt__tools_put_png(
	mpt__tools_bytes *to, const unsigned char *pixels, int width, int height, int channels) {
	const unsigned char format[5] = {8,
		(unsigned char)(channels == 1 ? 0
				: channels == 3       ? 2
									  : 6),
		0, 0, 0};
	mpt__tools_bytes_put(to, "\x89PNG\r\n\x1a\n", 8);
	size_t chunk = mpt__tools_png_begin(to, "IHDR");
	mpt__tools_put_big(to, (uint32_t)width);
	mpt__tools_put_big(to, (uint32_t)height);
	mpt__tools_bytes_put(to, format, sizeof format);
	mpt__tools_png_end(to, chunk);
	chunk = mpt__tools_png_begin(to, "IDAT");
	mpt__tools_bytes_put(to, "\x78\x01", 2);
	mpt__tools_put_stored(to, pixels, (size_t)height, (size_t)width * (size_t)channels);
	mpt__tools_png_end(to, chunk);
	chunk = mpt__tools_png_begin(to, "IEND");
	mpt__tools_png_end(to, chunk);
}

/* ----
 * tools/journal.c: the journal: entries, and the files that they go to.
 * ---- */

enum { MPT__TOOLS_EVENT_FILE, MPT__TOOLS_CSV_FILE, MPT__TOOLS_JSON_FILE, MPT__TOOLS_JOURNAL_FILES };
enum { MPT__TOOLS_TAG_BYTES = 255, MPT__TOOLS_BINS = 64, MPT__TOOLS_FLUSH_BYTES = 1 << 16 };

/* There is one event file in a folder, so that a training that goes on finds its own. */
#define MPT__TOOLS_EVENT_NAME "/events.out.tfevents.0000000000.mptrain"

static const mpt__tools_format mpt__tools_journal_formats[MPT__TOOLS_JOURNAL_FILES] = {
	{"event file", NULL, mpt__tools_event_read},
	{"CSV file", MPT__TOOLS_CSV_HEAD, mpt__tools_csv_read},
	{"JSON file", NULL, mpt__tools_json_read},
};

struct mpt_journal {
	mpt_journal_config config;
	mpt__tools_stream streams[MPT__TOOLS_JOURNAL_FILES];
	mpt__tools_bytes record;	/* that is being made */
	mpt_status status;			/* of opening it and of what is lost */
	double flushed;				/* when */
	int64_t fit_base, fit_last;	/* steps before this fit; the last one logged */
	bool fit_began;
	char error[768];
};

mpt_journal_config mpt_journal_config_default(void) {
	mpt_journal_config config;
	memset(&config, 0, sizeof config);
	config.resume = true;
	config.flush_seconds = 2;
	config.every = 1;
	return config;
}

/* ==== Errors ==== */

/* Puts texts side by side into the journal's error, up to a NULL, and cuts what does not fit. */
static void mpt__tools_journal_say(mpt_journal *journal, const char *const *texts) {
	size_t n = 0;
	for (; *texts; texts++)
		for (const char *c = *texts; *c && n + 1 < sizeof journal->error; c++)
			journal->error[n++] = *c;
	journal->error[n] = 0;
}

/* Says what is wrong with the first file of which something is. */
static mpt_status mpt__tools_journal_look(mpt_journal *journal) {
	if (journal->status != MPT_OK) return journal->status;
	journal->error[0] = 0;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		const mpt__tools_stream *stream = &journal->streams[i];
		mpt__tools_bytes number = {NULL, 0, 0, false};
		if (!stream->fault || (stream->file && stream->error == 0)) continue;
		mpt__tools_put_integer(&number, stream->error);
		mpt__tools_bytes_put(&number, "", 1);
		const char *const system[] = {stream->format->name, " ", stream->path, ": cannot be ",
			stream->fault, ": ", strerror(stream->error), " (errno ",
			number.failed ? "?" : (const char *)number.data, ")", NULL};
		const char *const plain[] = {
			stream->format->name, " ", stream->path, ": cannot be ", stream->fault, NULL};
		mpt__tools_journal_say(journal, stream->error ? system : plain);
		mpt__tools_bytes_free(&number);
		return stream->error ? MPT_ERROR_IO : MPT_ERROR_FORMAT;
	}
	return MPT_OK;
}

/* An error that stays. */
static mpt_status mpt__tools_journal_fail(
	mpt_journal *journal, mpt_status status, const char *what, const char *name) {
	const char *const texts[] = {what, name, NULL};
	mpt__tools_journal_say(journal, texts);
	return journal->status = status;
}

/* An error of one call, which the next one that is right takes back. */
static mpt_status mpt__tools_journal_refuse(mpt_journal *journal, const char *what) {
	const char *const texts[] = {what, NULL};
	mpt__tools_journal_say(journal, texts);
	return MPT_ERROR_ARGUMENT;
}

const char *mpt_journal_error(const mpt_journal *journal) {
	return journal ? journal->error : "there is no journal, or no memory for one";
}

/* ==== Opening and closing ==== */

static double mpt__tools_journal_now(const mpt_journal *journal) {
	return journal->config.now ? journal->config.now(journal->config.user)
							   : mpt__tools_system_now();
}

/* The path of a file, with the folders that it needs made; NULL without memory. */
static char *mpt__tools_journal_path(int file, const char *given) {
	mpt__tools_bytes path = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&path, given);
	const size_t before = path.size;
	if (file == MPT__TOOLS_EVENT_FILE) mpt__tools_bytes_put_text(&path, MPT__TOOLS_EVENT_NAME);
	mpt__tools_bytes_put(&path, "", 1);
	if (path.failed) {
		mpt__tools_bytes_free(&path);
		return NULL;
	}
	char *text = (char *)path.data;
	size_t folder = file == MPT__TOOLS_EVENT_FILE ? before : strlen(text);
	while (file != MPT__TOOLS_EVENT_FILE && folder > 0 && !mpt__tools_is_separator(text[folder]))
		folder--;
	const char at = text[folder];
	text[folder] = 0;
	if (folder > 0) mpt__tools_folders_make(text);
	text[folder] = at;
	return text;
}

static bool mpt__tools_journal_open_file(mpt_journal *journal, int file, const char *path) {
	mpt__tools_stream *stream = &journal->streams[file];
	const bool anew = !journal->config.resume;
	if (!path) return true;
	stream->format = &mpt__tools_journal_formats[file];
	stream->path = mpt__tools_journal_path(file, path);
	if (!stream->path) {
		mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the path ", path);
		return false;
	}
	if ((anew || mpt__tools_stream_mend(stream, INT64_MAX)) &&
		mpt__tools_stream_open(stream, anew)) {
		if (file == MPT__TOOLS_EVENT_FILE && stream->fresh)
			mpt__tools_put_event_record(&stream->pending, NULL, mpt__tools_journal_now(journal));
		return true;
	}
	journal->status = mpt__tools_journal_look(journal);
	return false;
}

mpt_journal *mpt_journal_open(const mpt_journal_config *config) {
	mpt_journal *journal = (mpt_journal *)mpt__tools_allocate(sizeof *journal);
	if (!journal) return NULL;
	journal->config = config ? *config : mpt_journal_config_default();
	const mpt_journal_config *c = &journal->config;
	const char *const paths[MPT__TOOLS_JOURNAL_FILES] = {c->tensorboard, c->csv, c->jsonl};
	bool fine = true;
	if (c->every < 1)
		mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "every is less than 1", "");
	else if (!(c->flush_seconds >= 0))
		mpt__tools_journal_fail(journal, MPT_ERROR_ARGUMENT, "flush_seconds is less than 0", "");
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES && fine && journal->status == MPT_OK; i++)
		fine = mpt__tools_journal_open_file(journal, i, paths[i]);
	journal->flushed = mpt__tools_journal_now(journal);
	return journal;
}

mpt_status mpt_journal_flush(mpt_journal *journal) {
	if (!journal) return MPT_ERROR_HANDLE;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++)
		mpt__tools_stream_flush(&journal->streams[i]);
	journal->flushed = mpt__tools_journal_now(journal);
	return mpt__tools_journal_look(journal);
}

mpt_status mpt_journal_close(mpt_journal *journal) {
	if (!journal) return MPT_OK;
	mpt_status status = journal->status;
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		if (!mpt__tools_stream_close(stream) && status == MPT_OK) status = MPT_ERROR_IO;
		mpt__tools_bytes_free(&stream->pending);
		mpt__tools_release(stream->path);
	}
	mpt__tools_bytes_free(&journal->record);
	mpt__tools_release(journal);
	return status;
}

int64_t mpt_journal_dropped(const mpt_journal *journal) {
	int64_t dropped = 0;
	for (int i = 0; journal && i < MPT__TOOLS_JOURNAL_FILES; i++)
		dropped += journal->streams[i].dropped;
	return dropped;
}

/* What waits is written first, so that it is taken back, too, where it is of later steps. */
mpt_status mpt_journal_rewind(mpt_journal *journal, int64_t step) {
	mpt_status status = mpt_journal_flush(journal);
	if (status != MPT_OK) return status;
	if (step < -1)
		return mpt__tools_journal_refuse(journal, "mpt_journal_rewind: step is less than -1");
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		if (!stream->path) continue;
		bool fine = mpt__tools_stream_close(stream) && mpt__tools_stream_mend(stream, step);
		if (!fine || !mpt__tools_stream_open(stream, false)) {
			status = mpt__tools_journal_look(journal);
			journal->status = status;
		}
	}
	return journal->status;
}

/* ==== Entries ==== */

/* A tag or a text as JSON: in quotes, with control characters by number. */
static void mpt__tools_put_json_text(mpt__tools_bytes *to, const char *text) {
	static const char digits[] = "0123456789abcdef";
	mpt__tools_bytes_put(to, "\"", 1);
	for (; *text; text++) {
		const unsigned char c = (unsigned char)*text;
		if (c < 0x20) {
			const char code[6] = {'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]};
			mpt__tools_bytes_put(to, code, 6);
			continue;
		}
		if (c == '"' || c == '\\') mpt__tools_bytes_put(to, "\\", 1);
		mpt__tools_bytes_put(to, text, 1);
	}
	mpt__tools_bytes_put(to, "\"", 1);
}

/* JSON has no number for what is not finite: a string, by the names that Python's float takes. */
static void mpt__tools_put_json_number(mpt__tools_bytes *to, double value) {
	const bool finite = mpt__tools_is_finite(value);
	if (!finite) mpt__tools_bytes_put(to, "\"", 1);
	mpt__tools_put_number(to, value);
	if (!finite) mpt__tools_bytes_put(to, "\"", 1);
}

static void mpt__tools_put_json_numbers(
	mpt__tools_bytes *to, const char *name, const double *values, int count) {
	mpt__tools_bytes_put_text(to, name);
	for (int i = 0; i < count; i++) {
		mpt__tools_bytes_put(to, i ? "," : "[", 1);
		mpt__tools_put_json_number(to, values[i]);
	}
	mpt__tools_bytes_put_text(to, count ? "]" : "[]");
}

static void mpt__tools_put_json(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	mpt__tools_bytes_put_text(to, MPT__TOOLS_JSON_HEAD);
	mpt__tools_put_integer(to, entry->step);
	mpt__tools_bytes_put_text(to, ",\"time\":");
	mpt__tools_put_json_number(to, entry->time);
	mpt__tools_bytes_put_text(to, ",\"tag\":");
	mpt__tools_put_json_text(to, entry->tag);
	if (entry->kind == MPT_JOURNAL_SCALAR) {
		mpt__tools_bytes_put_text(to, ",\"value\":");
		mpt__tools_put_json_number(to, entry->value);
	} else if (entry->kind == MPT_JOURNAL_TEXT) {
		mpt__tools_bytes_put_text(to, ",\"text\":");
		mpt__tools_put_json_text(to, entry->text);
	} else if (entry->kind == MPT_JOURNAL_HISTOGRAM) {
		const mpt_journal_bins *bins = entry->bins;
		static const char *const names[] = {",\"min\":", ",\"max\":", ",\"sum\":", ",\"squares\":"};
		const double numbers[] = {bins->min, bins->max, bins->sum, bins->squares};
		mpt__tools_bytes_put_text(to, ",\"count\":");
		mpt__tools_put_integer(to, bins->count);
		for (int i = 0; i < 4; i++) {
			mpt__tools_bytes_put_text(to, names[i]);
			mpt__tools_put_json_number(to, numbers[i]);
		}
		mpt__tools_put_json_numbers(to, ",\"limits\":", bins->limits, bins->bins);
		mpt__tools_put_json_numbers(to, ",\"counts\":", bins->counts, bins->bins);
	} else if (entry->kind == MPT_JOURNAL_GRAPH) {
		mpt__tools_bytes_put_text(to, ",\"graph_bytes\":");
		mpt__tools_put_integer(to, (int64_t)entry->graph_bytes);
	} else {
		static const char *const names[] = {",\"width\":", ",\"height\":", ",\"channels\":"};
		const int numbers[] = {entry->width, entry->height, entry->channels};
		for (int i = 0; i < 3; i++) {
			mpt__tools_bytes_put_text(to, names[i]);
			mpt__tools_put_integer(to, numbers[i]);
		}
	}
	mpt__tools_bytes_put_text(to, "}\n");
}

/* A row of the CSV file; a tag with a comma, a quote or a line's end stands in quotes (RFC 4180),
   the ends of lines in it as blanks, so that a row is a line. */
static void mpt__tools_put_csv(mpt__tools_bytes *to, const mpt_journal_entry *entry) {
	const char *quote = strpbrk(entry->tag, ",\"\r\n") ? "\"" : "";
	mpt__tools_put_integer(to, entry->step);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_put_number(to, entry->time);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_bytes_put_text(to, quote);
	for (const char *c = entry->tag; *c; c++) {
		if (*c == '"') mpt__tools_bytes_put(to, "\"", 1);
		mpt__tools_bytes_put(to, *c == '\n' || *c == '\r' ? " " : c, 1);
	}
	mpt__tools_bytes_put_text(to, quote);
	mpt__tools_bytes_put(to, ",", 1);
	mpt__tools_put_number(to, entry->value);
	mpt__tools_bytes_put(to, "\n", 1);
}

/* Hands an entry to all files and to who listens. A record goes as a whole or not at all. */
static mpt_status mpt__tools_journal_enter(mpt_journal *journal, mpt_journal_entry *entry) {
	bool full = false;
	entry->time = mpt__tools_journal_now(journal);
	for (int i = 0; i < MPT__TOOLS_JOURNAL_FILES; i++) {
		mpt__tools_stream *stream = &journal->streams[i];
		mpt__tools_bytes *record = &journal->record;
		if (!stream->file || (i == MPT__TOOLS_CSV_FILE && entry->kind != MPT_JOURNAL_SCALAR))
			continue;
		record->size = 0;
		if (i == MPT__TOOLS_EVENT_FILE) mpt__tools_put_event_record(record, entry, entry->time);
		if (i == MPT__TOOLS_CSV_FILE) mpt__tools_put_csv(record, entry);
		if (i == MPT__TOOLS_JSON_FILE) mpt__tools_put_json(record, entry);
		if (!record->failed) mpt__tools_bytes_put(&stream->pending, record->data, record->size);
		if (record->failed || stream->pending.failed) {
			record->failed = stream->pending.failed = false;
			return mpt__tools_journal_fail(
				journal, MPT_ERROR_MEMORY, "out of memory: an entry is lost: ", entry->tag);
		}
		full = full || stream->pending.size >= MPT__TOOLS_FLUSH_BYTES || stream->error != 0;
	}
	if (journal->config.entry) journal->config.entry(journal->config.user, entry);
	if (full || entry->time - journal->flushed >= journal->config.flush_seconds ||
		entry->time < journal->flushed)
		return mpt_journal_flush(journal);
	return mpt__tools_journal_look(journal);
}

/* An entry as far as all kinds have it; false where there is something wrong, and *status says
   what. */
static bool mpt__tools_journal_begin(mpt_journal *journal, mpt_journal_entry *entry,
	mpt_journal_kind kind, const char *tag, int64_t step, mpt_status *status) {
	memset(entry, 0, sizeof *entry);
	entry->kind = kind;
	entry->tag = tag;
	entry->step = step;
	*status = journal ? journal->status : MPT_ERROR_HANDLE;
	if (*status != MPT_OK) return false;
	if (!tag || !*tag || strlen(tag) > MPT__TOOLS_TAG_BYTES)
		*status = mpt__tools_journal_refuse(journal, "a tag has 1 to 255 bytes");
	else if (step < 0)
		*status = mpt__tools_journal_refuse(journal, "a step is 0 or more");
	return *status == MPT_OK;
}

mpt_status mpt_journal_scalar(mpt_journal *journal, const char *tag, int64_t step, double value) {
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_SCALAR, tag, step, &status))
		return status;
	entry.value = value;
	return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_text(mpt_journal *journal, const char *tag, int64_t step, const char *text) {
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_TEXT, tag, step, &status))
		return status;
	if (!text) return mpt__tools_journal_refuse(journal, "text is NULL");
	entry.text = text;
	return mpt__tools_journal_enter(journal, &entry);
}

/* ==== Tensors ==== */

/* The status of a call on a tensor that failed: the context has the words, if there is one. */
static mpt_status mpt__tools_journal_tensor_failed(mpt_journal *journal, mpt_context *ctx) {
	const char *const texts[] = {
		ctx ? mpt_error(ctx) : "a null handle in the place of a tensor or module", NULL};
	mpt__tools_journal_say(journal, texts);
	return ctx ? mpt_error_code(ctx) : MPT_ERROR_HANDLE;
}

mpt_status mpt_journal_histogram(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor tensor) {
	mpt_journal_entry entry;
	mpt_status status;
	int64_t found[MPT__TOOLS_BINS];
	double limits[MPT__TOOLS_BINS], counts[MPT__TOOLS_BINS];
	mpt_journal_bins bins;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, tag, step, &status))
		return status;
	if (!tensor.context || mpt_failed(tensor.context))
		return mpt__tools_journal_tensor_failed(journal, tensor.context);
	const mpt_tensor_stats s = mpt_statistics(tensor);
	memset(&bins, 0, sizeof bins);
	bins.count = s.count - s.nans - s.infinities;
	bins.limits = limits, bins.counts = counts;
	if (bins.count > 0 && !mpt_failed(tensor.context)) {
		const double n = (double)bins.count, part = (s.max - s.min) / (double)MPT__TOOLS_BINS;
		bins.min = s.min, bins.max = s.max, bins.sum = s.mean * n;
		bins.squares = (s.deviation * s.deviation + s.mean * s.mean) * n;
		bins.bins = s.min < s.max ? MPT__TOOLS_BINS : 1;
		found[0] = bins.count;
		if (s.min < s.max) mpt_histogram(tensor, s.min, s.max, found, MPT__TOOLS_BINS);
		for (int i = 0; i < bins.bins && !mpt_failed(tensor.context); i++) {
			limits[i] = i + 1 < bins.bins ? (double)(float)(s.min + (i + 1) * part) : s.max;
			counts[i] = (double)found[i];
		}
	}
	if (mpt_failed(tensor.context))
		return mpt__tools_journal_tensor_failed(journal, tensor.context);
	entry.bins = &bins;
	return mpt__tools_journal_enter(journal, &entry);
}

mpt_status mpt_journal_module(
	mpt_journal *journal, int64_t step, mpt_module module, bool gradients) {
	enum { HEAD = 16, PATH = 1280 };
	char tag[HEAD + PATH];
	mpt_journal_entry entry;
	mpt_status status;
	const char *head = gradients ? "gradients/" : "weights/";
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_HISTOGRAM, head, step, &status))
		return status;
	if (!module.context || mpt_failed(module.context))
		return mpt__tools_journal_tensor_failed(journal, module.context);
	const int count = mpt_parameter_count(module);
	const size_t length = strlen(head);
	memcpy(tag, head, length);
	for (int i = 0; i < count && status == MPT_OK; i++) {
		mpt_tensor tensor = mpt_parameter_at(module, i, tag + length, PATH);
		if (gradients && !mpt_has_grad(tensor)) continue;
		if (gradients) tensor = mpt_grad(tensor);
		tag[MPT__TOOLS_TAG_BYTES] = 0;
		status = mpt_journal_histogram(journal, tag, step, tensor);
	}
	if (mpt_failed(module.context))
		return mpt__tools_journal_tensor_failed(journal, module.context);
	return status;
}

/* ==== Pictures ==== */

mpt_status mpt_journal_pixels(mpt_journal *journal, const char *tag, int64_t step,
	const unsigned char *pixels, int width, int height, int channels) {
	enum { MOST = 1 << 28 };	/* bytes; a chunk of PNG ends at 2^31 */
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
		return status;
	if (!pixels) return mpt__tools_journal_refuse(journal, "pixels is NULL");
	if (width < 1 || height < 1 || width > MOST / 4 / height)
		return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
	if (channels != 1 && channels != 3 && channels != 4)
		return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
	mpt__tools_bytes png = {NULL, 0, 0, false};
	mpt__tools_put_png(&png, pixels, width, height, channels);
	if (png.failed) {
		mpt__tools_bytes_free(&png);
		return mpt__tools_journal_fail(
			journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
	}
	entry.png = png.data, entry.png_bytes = png.size;
	entry.width = width, entry.height = height, entry.channels = channels;
	status = mpt__tools_journal_enter(journal, &entry);
	mpt__tools_bytes_free(&png);
	return status;
}

/* A value from 0 to 1 as a byte, to nearest. */
static unsigned char mpt__tools_pixel_of(float value) {
	if (!(value > 0.0f)) return 0;
	return value < 1.0f ? (unsigned char)(value * 255.0f + 0.5f) : 255;
}

/* Rows of channels side by side from channels behind one another. */
static bool mpt__tools_image_read(
	mpt_tensor image, int channels, int64_t area, unsigned char *pixels) {
	const int64_t count = channels * area;
	const bool bytes = mpt_get_dtype(image) == MPT_U8;
	void *values = mpt__tools_allocate((size_t)count * (bytes ? 1 : sizeof(float)));
	bool fine = values != NULL;
	if (fine && bytes) fine = mpt_read(image, values, (size_t)count) == MPT_OK;
	if (fine && !bytes) fine = mpt_read_f32(image, (float *)values, count) == MPT_OK;
	for (int64_t i = 0; fine && i < count; i++)
		pixels[i % area * channels + i / area] =
			bytes ? ((unsigned char *)values)[i] : mpt__tools_pixel_of(((float *)values)[i]);
	mpt__tools_release(values);
	return fine;
}

mpt_status mpt_journal_image(
	mpt_journal *journal, const char *tag, int64_t step, mpt_tensor image) {
	enum { MOST = 1 << 26 };
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_IMAGE, tag, step, &status))
		return status;
	if (!image.context || mpt_failed(image.context))
		return mpt__tools_journal_tensor_failed(journal, image.context);
	const mpt_shape shape = mpt_get_shape(image);
	if (mpt_failed(image.context)) return mpt__tools_journal_tensor_failed(journal, image.context);
	const mpt_dtype dtype = mpt_get_dtype(image);
	if (dtype != MPT_U8 && dtype != MPT_F32 && dtype != MPT_F16 && dtype != MPT_BF16)
		return mpt__tools_journal_refuse(journal, "an image is of u8, fp32, fp16 or bf16");
	if (shape.rank != 2 && shape.rank != 3)
		return mpt__tools_journal_refuse(journal, "an image has the shape [H, W] or [C, H, W]");
	const int first = shape.rank - 2;
	const int64_t height = shape.dim[first], width = shape.dim[first + 1];
	const int64_t channels = first ? shape.dim[0] : 1;
	if (width < 1 || height < 1 || width > MOST / height)
		return mpt__tools_journal_refuse(journal, "an image has 1 to 2^26 pixels");
	if (channels != 1 && channels != 3 && channels != 4)
		return mpt__tools_journal_refuse(journal, "an image has 1, 3 or 4 channels");
	unsigned char *pixels =
		(unsigned char *)mpt__tools_allocate((size_t)(channels * width * height));
	if (pixels && mpt__tools_image_read(image, (int)channels, width * height, pixels))
		status =
			mpt_journal_pixels(journal, tag, step, pixels, (int)width, (int)height, (int)channels);
	else if (mpt_failed(image.context))
		status = mpt__tools_journal_tensor_failed(journal, image.context);
	else
		status =
			mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the image ", tag);
	mpt__tools_release(pixels);
	return status;
}

/* ==== Fit ==== */

/* What a fit says of an epoch: a value that is not there is left out. */
static void mpt__tools_journal_if_known(
	mpt_journal *journal, const char *tag, int64_t step, double value) {
	if (mpt__tools_bits_of(value) << 1 <= 0x7FFull << 53)
		mpt_journal_scalar(journal, tag, step, value);
}

bool mpt_journal_fit(void *user, const mpt_progress *p) {
	mpt_journal *journal = (mpt_journal *)user;
	if (!journal || !p) return true;
	if (!journal->fit_began) mpt_journal_rewind(journal, p->step ? p->step - 1 : 0);
	if (journal->fit_began && p->step < journal->fit_last)
		journal->fit_base += journal->fit_last;	/* another fit */
	journal->fit_began = true;
	journal->fit_last = p->step;
	const int64_t step = journal->fit_base + p->step;
	if (p->epoch_end) {
		mpt_journal_scalar(journal, "epoch/loss", step, p->loss);
		mpt__tools_journal_if_known(journal, "validation/loss", step, p->validation_loss);
		mpt__tools_journal_if_known(journal, "validation/accuracy", step, p->validation_accuracy);
		mpt_journal_flush(journal);
		return true;
	}
	if (p->step % journal->config.every != 0) return true;
	mpt_journal_scalar(journal, "loss", step, p->loss);
	mpt__tools_journal_if_known(journal, "lr", step, p->lr);
	mpt_journal_scalar(journal, "scale", step, p->scale);
	mpt_journal_scalar(journal, "skipped", step, (double)p->skipped_steps);
	mpt__tools_journal_if_known(journal, "grad_norm", step, p->grad_norm);
	mpt_journal_scalar(journal, "steps_per_second", step, p->steps_per_second);
	mpt_journal_scalar(journal, "waiting", step, p->seconds_waited);
	mpt_journal_scalar(journal, "memory", step, (double)p->memory);
	return true;
}

/* ----
 * tools/text.c: text for people, formatted alike on every platform and in every locale.
 * ---- */

#include <math.h>
#include <stdarg.h>

/* Text that grows until its room is full, and then only counts. */
typedef struct {
	char *text;
	size_t capacity, length;	/* length: of all that was written, whether it found room or not */
} mpt__tools_note;

static mpt__tools_note mpt__tools_note_begin(char *text, size_t capacity) {
	mpt__tools_note note;
	note.text = text, note.capacity = text ? capacity : 0, note.length = 0;
	if (note.capacity > 0) *text = '\0';
	return note;
}

static void mpt__tools_note_char(mpt__tools_note *note, char c) {
	if (note->length + 1 < note->capacity)
		note->text[note->length] = c, note->text[note->length + 1] = '\0';
	note->length++;
}

/* Digits of a number below 2^64, the last one at `end`; where they begin. */
static char *mpt__tools_digits(char *end, uint64_t value, int least) {
	*end = '\0';
	do *--end = (char)('0' + value % 10), least--;
	while ((value /= 10) > 0 || least > 0);
	return end;
}

/* With so many digits behind the point, of a magnitude below 2^63 times that. */
static void mpt__tools_put_fixed(mpt__tools_note *to, double value, int digits) {
	char text[32];
	uint64_t unit = 1;
	for (int i = 0; i < digits; i++) unit *= 10;
	const uint64_t all = (uint64_t)(value * (double)unit + 0.5);
	for (const char *c = mpt__tools_digits(text + 31, all / unit, 1); *c; c++)
		mpt__tools_note_char(to, *c);
	if (digits == 0) return;
	mpt__tools_note_char(to, '.');
	for (const char *c = mpt__tools_digits(text + 31, all % unit, digits); *c; c++)
		mpt__tools_note_char(to, *c);
}

/* With so many digits in all, without zeros at the end, as %g: 0.0025, 1500, 6.554e+04. */
static void mpt__tools_put_short(mpt__tools_note *to, double value, int digits) {
	char all[32], text[32];
	int exponent = 0, n = digits;
	uint64_t unit = 1;
	for (int i = 1; i < digits; i++) unit *= 10;
	for (; value >= 10; value /= 10) exponent++;
	for (; value > 0 && value < 1; value *= 10) exponent--;
	uint64_t number = (uint64_t)(value * (double)unit + 0.5);
	if (number >= 10 * unit) number /= 10, exponent++;	/* 9.9996 */
	const char *digit = mpt__tools_digits(all + 31, number, digits);
	while (n > 1 && digit[n - 1] == '0') n--;
	const bool plain = exponent >= -4 && exponent < digits;
	const int whole = !plain ? 1 : exponent < 0 ? 0 : exponent + 1;	/* digits before the point */
	if (whole == 0) mpt__tools_note_char(to, '0');
	for (int i = 0; i < whole; i++) mpt__tools_note_char(to, i < n ? digit[i] : '0');
	if (n > whole) mpt__tools_note_char(to, '.');
	for (int i = exponent + 1; plain && i < 0; i++) mpt__tools_note_char(to, '0');
	for (int i = whole; i < n; i++) mpt__tools_note_char(to, digit[i]);
	if (plain) return;
	mpt__tools_note_char(to, 'e');
	mpt__tools_note_char(to, exponent < 0 ? '-' : '+');
	const uint64_t size = (uint64_t)(exponent < 0 ? -exponent : exponent);
	for (const char *c = mpt__tools_digits(text + 31, size, 2); *c; c++)
		mpt__tools_note_char(to, *c);
}

static void mpt__tools_put_double(mpt__tools_note *to, char kind, double value, int digits) {
	if (!mpt__tools_is_finite(value)) {
		const uint64_t bits = mpt__tools_bits_of(value);
		const char *word = bits << 12 ? "nan" : bits >> 63 ? "-inf" : "inf";
		for (; *word; word++) mpt__tools_note_char(to, *word);
		return;
	}
	if (value < 0) mpt__tools_note_char(to, '-');
	const double size = value < 0 ? -value : value;
	if (kind == 'f' && size < 1e12)
		mpt__tools_put_fixed(to, size, digits);
	else
		mpt__tools_put_short(to, size, digits > 0 ? digits : 1);
}

/* Of printf: %s, %lld, %f, %g, with '-', width and precision, and %%. */
static void mpt__tools_note_list(mpt__tools_note *note, const char *format, va_list *arguments) {
	for (; *format; format++) {
		char field[640];
		mpt__tools_note one = mpt__tools_note_begin(field, sizeof field);
		int width = 0, digits = 6;
		if (*format != '%' || *++format == '%') {
			mpt__tools_note_char(note, *format);
			continue;
		}
		const bool left = *format == '-';
		for (format += left; *format >= '0' && *format <= '9'; format++)
			width = 10 * width + (*format - '0');
		if (*format == '.')
			for (digits = 0, format++; *format >= '0' && *format <= '9'; format++)
				digits = 10 * digits + (*format - '0');
		if (*format == 's') {
			for (const char *c = va_arg(*arguments, const char *); *c; c++)
				mpt__tools_note_char(&one, *c);
		} else if (*format == 'l') {	/* lld */
			const int64_t value = va_arg(*arguments, long long);
			char text[32];
			if (value < 0) mpt__tools_note_char(&one, '-');
			const uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
			for (const char *c = mpt__tools_digits(text + 31, size, 1); *c; c++)
				mpt__tools_note_char(&one, *c);
			format += 2;
		} else {
			mpt__tools_put_double(&one, *format, va_arg(*arguments, double), digits);
		}
		for (int64_t i = (int64_t)one.length; !left && i < width; i++)
			mpt__tools_note_char(note, ' ');
		for (size_t i = 0; i < one.length && i + 1 < sizeof field; i++)
			mpt__tools_note_char(note, field[i]);
		for (int64_t i = (int64_t)one.length; left && i < width; i++)
			mpt__tools_note_char(note, ' ');
	}
}

#if defined(__GNUC__) && !defined(_WIN32)
#define MPT__TOOLS_FORMAT(n) __attribute__((format(printf, n, n + 1)))
#else
#define MPT__TOOLS_FORMAT(n)
#endif

MPT__TOOLS_FORMAT(2)
static void mpt__tools_note_add(mpt__tools_note *note, const char *format, ...) {
	va_list arguments;
	va_start(arguments, format);
	mpt__tools_note_list(note, format, &arguments);
	va_end(arguments);
}

/* ----
 * tools/machine.c: what this machine computes with, and how fast.
 * ---- */

/* ==== The machine: measuring ==== */

enum { MPT__TOOLS_TRIALS = 15, MPT__TOOLS_PRECISIONS = 3 };

static const mpt_dtype mpt__tools_precisions[MPT__TOOLS_PRECISIONS] = {MPT_F32, MPT_F16, MPT_BF16};
static const char *const mpt__tools_precision_names[MPT__TOOLS_PRECISIONS] = {
	"fp32", "fp16", "bf16"};

/* What is measured: `run` does it once, with what else is here. */
typedef struct mpt__tools_probe {
	mpt_context *context;
	void (*run)(struct mpt__tools_probe *probe);
	mpt_tensor a, b;
	mpt_module net;
	mpt_optimizer optimizer;
	mpt_scaler scaler;
	mpt_dtype precision;
} mpt__tools_probe;

/* The median time of one run, within so many seconds; 0 on error. */
static double mpt__tools_probe_time(mpt__tools_probe *probe, double seconds) {
	double times[MPT__TOOLS_TRIALS];
	int n = 0, runs = 1;
	const double start = mpt__tools_seconds(), end = start + seconds;
	probe->run(probe);	/* the first one makes buffers and half copies */
	mpt_synchronize(probe->context);
	if (mpt__tools_seconds() > end)
		return mpt_failed(probe->context) ? 0 : mpt__tools_seconds() - start;
	while (n < MPT__TOOLS_TRIALS && (n < 3 || mpt__tools_seconds() < end) &&
		!mpt_failed(probe->context)) {
		const double begin = mpt__tools_seconds();
		for (int i = 0; i < runs; i++) probe->run(probe);
		mpt_synchronize(probe->context);
		const double time = mpt__tools_seconds() - begin;
		if (n == 0 && time < seconds / (int)MPT__TOOLS_TRIALS / 2 && runs < 1 << 20) {
			runs *= 2;	/* shorter than the clock tells well */
			continue;
		}
		int at = n++;
		for (; at > 0 && times[at - 1] > time / runs; at--) times[at] = times[at - 1];
		times[at] = time / runs;
	}
	return mpt_failed(probe->context) ? 0 : times[n / 2];
}

static void mpt__tools_probe_product(mpt__tools_probe *probe) {
	mpt_scope_begin(probe->context);
	mpt_linear(probe->a, probe->b, mpt_null_tensor(), MPT_ACTIVATION_NONE);
	mpt_scope_end(probe->context);
}

static void mpt__tools_probe_copy(mpt__tools_probe *probe) { mpt_copy_(probe->a, probe->b); }

static void mpt__tools_probe_step(mpt__tools_probe *probe) {
	mpt_context *ctx = probe->context;
	mpt_step_begin(ctx);
	mpt_autocast_begin(ctx, probe->precision);
	mpt_tensor loss = mpt_cross_entropy(mpt_forward(probe->net, probe->a), probe->b, NULL);
	mpt_autocast_end(ctx);
	mpt_zero_grad(probe->optimizer);
	mpt_backward(mpt_scale_loss(probe->scaler, loss));
	mpt_scaler_step(probe->scaler, probe->optimizer);
	mpt_scaler_update(probe->scaler);
	mpt_step_end(ctx);
}

/* The time of a product x w^T, x [rows, in], w [out, in]; 0 on error. */
static double mpt__tools_product_time(
	mpt_context *ctx, int64_t rows, int64_t out, int64_t in, mpt_dtype dtype, double seconds) {
	mpt__tools_probe probe;
	memset(&probe, 0, sizeof probe);
	probe.context = ctx, probe.run = mpt__tools_probe_product;
	mpt_scope_begin(ctx);
	mpt_inference_begin(ctx);
	probe.a = mpt_cast(mpt_randn(ctx, MPT_F32, MPT_SHAPE(rows, in)), dtype);
	probe.b = mpt_cast(mpt_randn(ctx, MPT_F32, MPT_SHAPE(out, in)), dtype);
	const double time = mpt__tools_probe_time(&probe, seconds);
	mpt_inference_end(ctx);
	mpt_scope_end(ctx);
	return time;
}

static double mpt__tools_copy_time(mpt_context *ctx, int64_t count, double seconds) {
	mpt__tools_probe probe;
	memset(&probe, 0, sizeof probe);
	probe.context = ctx, probe.run = mpt__tools_probe_copy;
	mpt_scope_begin(ctx);
	mpt_inference_begin(ctx);
	probe.a = mpt_ones(ctx, MPT_F32, MPT_SHAPE(count));
	probe.b = mpt_ones(ctx, MPT_F32, MPT_SHAPE(count));
	const double time = mpt__tools_probe_time(&probe, seconds);
	mpt_inference_end(ctx);
	mpt_scope_end(ctx);
	return time;
}

/* Times of a step in every precision, each with a net of its own. */
static void mpt__tools_step_times(mpt_context *ctx, double *times, double seconds) {
	for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++) {
		mpt__tools_probe probe;
		mpt_scaler_config scaling = mpt_scaler_config_default();
		memset(&probe, 0, sizeof probe);
		probe.context = ctx, probe.run = mpt__tools_probe_step,
		probe.precision = mpt__tools_precisions[i];
		mpt_scope_begin(ctx);
		probe.a = mpt_randn(ctx, MPT_F32, MPT_SHAPE(256, 784));
		probe.b = mpt_zeros(ctx, MPT_I64, MPT_SHAPE(256));
		probe.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 784, 1024), mpt_nn_relu(ctx),
			mpt_nn_linear(ctx, 1024, 1024), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 1024, 10),
			MPT_END);
		probe.optimizer = mpt_adamw(probe.net, NULL);
		scaling.enabled = probe.precision == MPT_F16;
		probe.scaler = mpt_grad_scaler(ctx, &scaling);
		times[i] = mpt__tools_probe_time(&probe, seconds);
		mpt_scope_end(ctx);
		mpt_scaler_destroy(probe.scaler);
		mpt_optimizer_destroy(probe.optimizer);
		mpt_module_destroy(probe.net);
	}
}

mpt_machine mpt_machine_measure(mpt_context *ctx, double seconds) {
	mpt_machine machine;
	memset(&machine, 0, sizeof machine);
	if (mpt_failed(ctx)) return machine;
	const int64_t copied = 8 << 20;	/* floats, of 4 bytes */
	const double share = (seconds > 0 ? seconds : 2) / 7;
	for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++) {
		int64_t side = 64;
		double time = 0;
		for (; side <= 4096 && time < 1e-3 && !mpt_failed(ctx); side *= 2)	/* which one is enough */
			time = mpt__tools_product_time(
				ctx, side, side, side, mpt__tools_precisions[i], share / 10);
		side /= 2,
			time = mpt__tools_product_time(ctx, side, side, side, mpt__tools_precisions[i], share);
		machine.product[i] = time > 0 ? 2.0 * (double)(side * side * side) / time : 0;
	}
	const double time = mpt__tools_copy_time(ctx, copied, share);
	machine.copy = time > 0 ? 8.0 * (double)copied / time : 0;
	mpt__tools_step_times(ctx, machine.step, share);
	if (mpt_failed(ctx)) memset(&machine, 0, sizeof machine);
	return machine;
}

/* ==== The machine: words ==== */

/* What was compiled in a way that is slow, or that changes what is promised. */
static void mpt__tools_note_build(mpt__tools_note *note) {
	(void)note;
#if defined(__GNUC__) && !defined(__OPTIMIZE__)
	mpt__tools_note_add(note, "build: not optimised, which is several times slower; add -O2\n");
#endif
#ifdef __FAST_MATH__
	mpt__tools_note_add(note,
		"build: -ffast-math gains nothing in mptrain.h, whose kernels keep their bits; "
		"what your own code does with NaN and infinity may break\n");
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	mpt__tools_note_add(note, "build: a sanitizer is on, which is several times slower\n");
#endif
#ifdef MPTRAIN_NO_SIMD
	mpt__tools_note_add(note, "build: MPTRAIN_NO_SIMD leaves the vector kernels out\n");
#endif
#ifdef MPTRAIN_NO_THREADS
	mpt__tools_note_add(note, "build: MPTRAIN_NO_THREADS leaves threads out\n");
#endif
}

/* The levels of the CPU that run here, by trying. */
static void mpt__tools_note_levels(mpt__tools_note *note) {
	mpt_config config = mpt_config_default();
	config.device = MPT_DEVICE_CPU, config.threads = 1, config.log.write = NULL;
	mpt__tools_note_add(note, "instruction sets that run here:");
	for (int isa = MPT_ISA_REF; isa < MPT_ISA_UNKNOWN; isa++) {
		config.isa = (mpt_isa)isa;
		mpt_context *ctx = mpt_create(&config);
		if (ctx) mpt__tools_note_add(note, " %s", mpt_isa_name((mpt_isa)isa));
		mpt_destroy(ctx);
	}
	mpt__tools_note_add(note, "\n");
}

/* The GPU in use, or why there is none. */
static void mpt__tools_note_gpus(mpt__tools_note *note, mpt_context *ctx) {
	const int count = mpt_device_count(MPT_DEVICE_CUDA);
	if (mpt_get_device(ctx) == MPT_DEVICE_CUDA) {
		const mpt_device_info info = mpt_get_device_info(ctx);
		mpt__tools_note_add(note,
			"GPU: %lld of %lld, compute capability %lld.%lld, %.1f GB, of which %.1f are free\n",
			(long long)info.index, (long long)count, (long long)info.major, (long long)info.minor,
			(double)info.memory / 1e9, (double)info.memory_free / 1e9);
	} else if (count > 0) {
		mpt__tools_note_add(
			note, "GPU: %lld are here, this context does not use them\n", (long long)count);
	} else {
		mpt_config config = mpt_config_default();
		config.device = MPT_DEVICE_CUDA, config.log.write = NULL;
		mpt_context *none = mpt_create(&config);
		const char *why = strstr(mpt_error(NULL), ": ");
		mpt__tools_note_add(note, "GPU: none%s\n", none || !why ? "" : why);
		mpt_destroy(none);
	}
	char line[160];
	if (mpt__tools_first_line("/proc/driver/nvidia/version", line, sizeof line))
		mpt__tools_note_add(note, "driver: %s\n", line);
}

static void mpt__tools_note_speeds(mpt__tools_note *note, const mpt_machine *m) {
	mpt__tools_note_add(note, "products:");
	for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++)
		mpt__tools_note_add(note, "%s %s %.1f GFLOP/s", i ? "," : "", mpt__tools_precision_names[i],
			m->product[i] / 1e9);
	mpt__tools_note_add(note, "\ncopies: %.1f GB/s\ntraining step:", m->copy / 1e9);
	for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++)
		mpt__tools_note_add(
			note, "%s %s %.2f ms", i ? "," : "", mpt__tools_precision_names[i], 1e3 * m->step[i]);
	mpt__tools_note_add(note, "\n");
}

/* What mpt_precision_auto says, and whether it is true here. */
static void mpt__tools_note_advice(mpt__tools_note *note, mpt_context *ctx, const mpt_machine *m) {
	const char *reason = "";
	const mpt_dtype advised = mpt_precision_auto(ctx, &reason);
	mpt__tools_note_add(note, "MPT_PRECISION_AUTO: %s (%s)\n", mpt_dtype_name(advised), reason);
	if (!m || !(m->step[0] > 0)) return;
	int best = 0;
	for (int i = 1; i < MPT__TOOLS_PRECISIONS; i++)
		if (m->step[i] < m->step[best]) best = i;
	if (best == 0 || m->step[0] / m->step[best] < 1.05)
		mpt__tools_note_add(note, "mixed precision: saves memory here, and no time\n");
	else
		mpt__tools_note_add(note,
			"mixed precision: %s makes a step of this size %.2f times as fast\n",
			mpt__tools_precision_names[best], m->step[0] / m->step[best]);
}

size_t mpt_machine_report(
	mpt_context *ctx, const mpt_machine *measured, char *text, size_t capacity) {
	mpt__tools_note note = mpt__tools_note_begin(text, capacity);
	if (mpt_failed(ctx)) return 0;
	const int version = mpt_version();
	mpt__tools_note_add(&note, "mptrain %lld.%lld.%lld on %s, level %s, threads: %lld\n",
		(long long)version / 1000000, (long long)version / 1000 % 1000, (long long)version % 1000,
		mpt_device_name(ctx), mpt_isa_name(mpt_get_isa(ctx)), (long long)mpt_get_threads(ctx));
	if (version != MPTRAIN_VERSION)
		mpt__tools_note_add(&note, "build: the declarations are those of another version, %lld\n",
			(long long)MPTRAIN_VERSION);
	mpt__tools_note_build(&note);
	mpt__tools_note_levels(&note);
	mpt__tools_note_gpus(&note, ctx);
	if (measured) mpt__tools_note_speeds(&note, measured);
	mpt__tools_note_advice(&note, ctx, measured);
	return note.length;
}

/* ==== The machine: shapes that miss the fast path ==== */

static int64_t mpt__tools_rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The fastest padding of a product, if any is faster by more than measuring errs: its time over
   that of the product as it is, and its sizes. */
static double mpt__tools_best_padding(
	mpt_context *ctx, const int64_t size[3], mpt_dtype dtype, int64_t padded[3]) {
	static const int64_t units[3] = {8, 16, 64};
	const double share = 0.01,
				 plain = mpt__tools_product_time(ctx, size[0], size[1], size[2], dtype, share);
	double best = 1;
	for (int u = 0; u < 3; u++) {
		const int64_t out = mpt__tools_rounded_up(size[1], units[u]),
					  in = mpt__tools_rounded_up(size[2], units[u]);
		if (out == size[1] && in == size[2]) continue;
		const double time = mpt__tools_product_time(ctx, size[0], out, in, dtype, share);
		if (!(plain > 0) || !(time > 0) || time / plain >= best) continue;
		best = time / plain, padded[1] = out, padded[2] = in;
	}
	return best;
}

size_t mpt_machine_shapes(
	mpt_module module, int64_t rows, mpt_dtype dtype, char *text, size_t capacity) {
	enum { NAME = 256 };
	mpt_context *ctx = module.context;
	mpt__tools_note note = mpt__tools_note_begin(text, capacity);
	char name[NAME];
	for (int i = 0; i < mpt_parameter_count(module) && !mpt_failed(ctx); i++) {
		const mpt_shape shape = mpt_get_shape(mpt_parameter_at(module, i, name, NAME));
		const size_t length = strlen(name);
		if (shape.rank != 2 || length < 6 || strcmp(name + length - 6, "weight") != 0) continue;
		const int64_t size[3] = {rows, shape.dim[0], shape.dim[1]};
		int64_t padded[3];
		const double ratio = mpt__tools_best_padding(ctx, size, dtype, padded);
		if (ratio > 0.9) continue;
		mpt__tools_note_add(&note,
			"%s [%lld, %lld]: as [%lld, %lld] its product takes %.2f of the time\n", name,
			(long long)size[1], (long long)size[2], (long long)padded[1], (long long)padded[2],
			ratio);
	}
	return mpt_failed(ctx) ? 0 : note.length;
}

/* ----
 * tools/diagnose.c: what is wrong with a training.
 * ---- */

/* ==== Diagnosis: what is kept ==== */

enum { MPT__TOOLS_UNITS = 4096, MPT__TOOLS_PATH = 160, MPT__TOOLS_MOST_STEPS = 4096 };

/* A module without children, and what its outputs and their gradients were in fp32. */
typedef struct mpt__tools_layer_note {
	struct mpt__tools_doctor *doctor;
	mpt_module module;
	char path[MPT__TOOLS_PATH];
	const char *kind;
	mpt_forward_hook forward;	/* the user's own, or NULL */
	mpt_backward_hook backward;
	void *forward_user, *backward_user;
	int64_t outputs, zeros, saturated;
	double largest, low, high;	/* low, high: of what came in when it went wrong */
	int64_t gradients, gradient_zeros, binade[MPT_BINADES];
	double squares;	/* of gradients */
	int64_t units;	/* of a relu that is looked at; 0: none */
	unsigned char alive[MPT__TOOLS_UNITS];
} mpt__tools_layer_note;

typedef struct mpt__tools_doctor {
	mpt_context *context;
	mpt_module net;
	mpt_optimizer optimizer;
	mpt_loader loader;
	mpt_diagnosis_config config;
	mpt_scaler scaler;
	mpt_diagnosis *found;
	mpt__tools_layer_note *layers;
	int layer_count;
	bool plain;			/* this pass is the one in fp32 */
	bool watched;		/* hooks are to look */
	bool forward_bad;	/* in this pass a layer's output was not finite */
	bool backward_bad;
	int plain_bad;	/* layer whose output was not finite in the pass in fp32, or -1 */
	int64_t step;
	int64_t inputs, classes[2];	/* numbers seen; least and greatest class */
	double input_sum, input_squares, input_largest;
	float *values;	/* of one tensor at a time */
	int64_t room;
	double losses[MPT__TOOLS_MOST_STEPS], scales[MPT__TOOLS_MOST_STEPS];	/* of each step */
} mpt__tools_doctor;

/* Adds a finding, unless there is one of its kind with as much to say. */
MPT__TOOLS_FORMAT(5)
static void mpt__tools_found(mpt__tools_doctor *d, mpt_fault fault, const char *place, double value,
	const char *format, ...) {
	mpt_diagnosis *all = d->found;
	int at = 0;
	while (at < all->count && all->finding[at].fault < fault) at++;
	const bool there = at < all->count && all->finding[at].fault == fault;
	if (there && !(value > all->finding[at].value)) return;
	if (!there) {
		if (all->count == MPT_MOST_FINDINGS) return;
		memmove(&all->finding[at + 1], &all->finding[at],
			(size_t)(all->count - at) * sizeof *all->finding);
		all->count++;
	}
	mpt_finding *finding = &all->finding[at];
	finding->fault = fault, finding->step = d->step, finding->value = value;
	mpt__tools_note at_place = mpt__tools_note_begin(finding->place, sizeof finding->place);
	mpt__tools_note text = mpt__tools_note_begin(finding->text, sizeof finding->text);
	mpt__tools_note_add(&at_place, "%s", place);
	va_list arguments;
	va_start(arguments, format);
	mpt__tools_note_list(&text, format, &arguments);
	va_end(arguments);
}

/* A tensor's numbers on the host, valid until the next call; NULL if it has none. */
static const float *mpt__tools_values(mpt__tools_doctor *d, mpt_tensor tensor, int64_t *count) {
	*count = mpt_numel(tensor);
	if (*count <= 0) return NULL;
	if (*count > d->room) {
		float *more = (float *)mpt__tools_allocate((size_t)*count * sizeof *more);
		if (!more) return NULL;
		mpt__tools_release(d->values);
		d->values = more, d->room = *count;
	}
	return mpt_read_f32(tensor, d->values, *count) == MPT_OK ? d->values : NULL;
}

static bool mpt__tools_is_float(mpt_tensor tensor) {
	const mpt_dtype dtype = mpt_get_dtype(tensor);
	return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16 || dtype == MPT_F64;
}

static double mpt__tools_greater(double a, double b) { return a > b ? a : b; }
static double mpt__tools_largest(const mpt_tensor_stats *s) {
	return s->count > s->nans + s->infinities ? mpt__tools_greater(fabs(s->min), fabs(s->max)) : 0;
}

/* ==== Diagnosis: hooks ==== */

/* Which units of a relu have been other than zero, and how much of a tanh is at its ends. */
static void mpt__tools_note_units(mpt__tools_layer_note *layer, mpt_tensor out) {
	const bool relu = strcmp(layer->kind, "relu") == 0, tanh = strcmp(layer->kind, "tanh") == 0;
	const mpt_shape shape = mpt_get_shape(out);
	int64_t count, inner = 1;
	if (!relu && !tanh && strcmp(layer->kind, "sigmoid") != 0) return;
	const float *x = shape.rank > 1 ? mpt__tools_values(layer->doctor, out, &count) : NULL;
	if (!x) return;
	for (int d = 2; d < shape.rank; d++) inner *= shape.dim[d];
	if (relu)
		layer->units =
			shape.dim[1] < (int64_t)MPT__TOOLS_UNITS ? shape.dim[1] : (int64_t)MPT__TOOLS_UNITS;
	for (int64_t i = 0; i < count; i++) {
		const int64_t unit = i / inner % shape.dim[1];
		const float end = tanh ? fabsf(x[i]) : 2 * fabsf(x[i] - 0.5f);
		if (relu && x[i] != 0 && unit < layer->units) layer->alive[unit] = 1;
		if (!relu && end > 0.99f) layer->saturated++;
	}
}

static void mpt__tools_look_forward(
	mpt__tools_layer_note *layer, const mpt_tensor *in, mpt_tensor out) {
	mpt__tools_doctor *d = layer->doctor;
	if (!mpt__tools_is_float(out)) return;
	const mpt_tensor_stats s = mpt_statistics(out);
	if (d->plain) {
		layer->outputs += s.count, layer->zeros += s.zeros;
		layer->largest = mpt__tools_greater(layer->largest, mpt__tools_largest(&s));
		mpt__tools_note_units(layer, out);
	}
	if (s.nans + s.infinities == 0 || d->forward_bad) return;
	d->forward_bad = true;
	mpt_tensor_stats from;
	memset(&from, 0, sizeof from);
	if (mpt__tools_is_float(in[0])) from = mpt_statistics(in[0]);
	if (from.nans + from.infinities > 0) return;	/* it is not the one to blame */
	if (d->plain) {
		d->plain_bad = (int)(layer - d->layers);
		mpt__tools_found(d, MPT_FAULT_FORWARD_NONFINITE, layer->path,
			(double)(s.nans + s.infinities),
			"layer \"%s\" (%s) gives %lld NaN and %lld infinities of inputs from %.3g to %.3g, in "
			"fp32, too: look at its weights, and at a division, root or logarithm in it",
			layer->path, layer->kind, (long long)s.nans, (long long)s.infinities, from.min,
			from.max);
	} else if (d->plain_bad < 0) {
		mpt__tools_found(d, MPT_FAULT_FORWARD_OVERFLOW, layer->path, layer->largest,
			"layer \"%s\" (%s) reaches %.4g in fp32, which %s does not hold: its output has %lld "
			"infinities and %lld NaN. Normalise before it, scale its weights down, use bf16, or "
			"mpt_set_dtype_policy(layer, MPT_F32)",
			layer->path, layer->kind, layer->largest, mpt_dtype_name(d->config.precision),
			(long long)s.infinities, (long long)s.nans);
	}
}

static mpt_status mpt__tools_doctor_forward(
	mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
	mpt__tools_layer_note *layer = (mpt__tools_layer_note *)user;
	mpt_status status = MPT_OK;
	if (layer->forward) status = layer->forward(self, layer->forward_user, in, n_in, out, n_out);
	if (status == MPT_OK && layer->doctor->watched && n_in > 0 && n_out > 0)
		mpt__tools_look_forward(layer, in, out[0]);
	return status;
}

static void mpt__tools_look_backward(mpt__tools_layer_note *layer, mpt_tensor gradient) {
	mpt__tools_doctor *d = layer->doctor;
	const mpt_tensor_stats s = mpt_statistics(gradient);
	if (d->plain && s.count > 0 && s.nans + s.infinities == 0) {
		layer->gradients += s.count, layer->gradient_zeros += s.zeros;
		layer->squares += (s.mean * s.mean + s.deviation * s.deviation) * (double)s.count;
		for (int i = 0; i < MPT_BINADES; i++) layer->binade[i] += s.binade[i];
	}
	if (!d->plain || s.nans + s.infinities == 0 || d->backward_bad || d->forward_bad) return;
	d->backward_bad = true;
	mpt__tools_found(d, MPT_FAULT_BACKWARD_NONFINITE, layer->path, (double)(s.nans + s.infinities),
		"the gradient that comes to layer \"%s\" (%s) has %lld NaN and %lld infinities, in fp32, "
		"too, while all outputs are finite: look at what is behind it for a root or logarithm at 0",
		layer->path, layer->kind, (long long)s.nans, (long long)s.infinities);
}

static mpt_status mpt__tools_doctor_backward(
	mpt_module self, void *user, int output, mpt_tensor *gradient) {
	mpt__tools_layer_note *layer = (mpt__tools_layer_note *)user;
	if (output == 0 && layer->doctor->watched) mpt__tools_look_backward(layer, *gradient);
	return layer->backward ? layer->backward(self, layer->backward_user, output, gradient) : MPT_OK;
}

static void mpt__tools_put_hooks_on(mpt__tools_doctor *d) {
	const int count = mpt_module_count(d->net);
	for (int i = 0; i < count; i++) {
		mpt__tools_layer_note *layer = &d->layers[d->layer_count];
		layer->module = mpt_module_at(d->net, i, layer->path, sizeof layer->path);
		if (mpt_module_count(layer->module) > 1) continue;
		layer->doctor = d, layer->kind = mpt_module_kind(layer->module);
		layer->forward = mpt_get_forward_hook(layer->module, &layer->forward_user);
		layer->backward = mpt_get_backward_hook(layer->module, &layer->backward_user);
		mpt_hook_forward(layer->module, mpt__tools_doctor_forward, layer);
		mpt_hook_backward(layer->module, mpt__tools_doctor_backward, layer);
		d->layer_count++;
	}
}

static void mpt__tools_take_hooks_off(mpt__tools_doctor *d) {
	for (int i = 0; i < d->layer_count; i++) {
		mpt__tools_layer_note *layer = &d->layers[i];
		mpt_hook_forward(layer->module, layer->forward, layer->forward_user);
		mpt_hook_backward(layer->module, layer->backward, layer->backward_user);
	}
}

/* ==== Diagnosis: data ==== */

/* The batch's first sample that has a number that is none. */
static void mpt__tools_look_for_sample(mpt__tools_doctor *d, const mpt_batch *b) {
	int64_t count;
	const float *x = mpt__tools_values(d, b->x, &count);
	for (int64_t i = 0; x && i < count; i++) {
		if (mpt__tools_is_finite((double)x[i])) continue;
		const long long sample = (long long)(i / (count / b->size));
		mpt__tools_found(d, MPT_FAULT_INPUT_NONFINITE, "", (double)sample,
			"sample %lld of batch %lld of its epoch has a %s among its inputs, at place %lld: look "
			"at the data, or leave it out",
			sample, (long long)b->index,
			mpt__tools_bits_of((double)x[i]) << 12 ? "NaN" : "infinity",
			(long long)(i % (count / b->size)));
		return;
	}
}

static void mpt__tools_look_at_batch(mpt__tools_doctor *d, const mpt_batch *b) {
	if (mpt__tools_is_float(b->x)) {
		const mpt_tensor_stats s = mpt_statistics(b->x);
		const double finite = (double)(s.count - s.nans - s.infinities);
		if (s.nans + s.infinities > 0) mpt__tools_look_for_sample(d, b);
		if (finite > 0) {
			d->inputs += (int64_t)finite, d->input_sum += s.mean * finite;
			d->input_squares += (s.mean * s.mean + s.deviation * s.deviation) * finite;
			d->input_largest = mpt__tools_greater(d->input_largest, mpt__tools_largest(&s));
		}
	}
	int64_t count = 0;
	const float *y = mpt_get_dtype(b->y) == MPT_I64 ? mpt__tools_values(d, b->y, &count) : NULL;
	for (int64_t i = 0; y && i < count; i++) {
		const int64_t class_number = (int64_t)y[i];
		if (class_number < 0) continue;	/* left out of the loss */
		if (d->classes[0] > class_number) d->classes[0] = class_number;
		if (d->classes[1] < class_number) d->classes[1] = class_number;
	}
}

/* ==== Diagnosis: steps ==== */

static mpt_tensor mpt__tools_doctor_loss(
	mpt__tools_doctor *d, const mpt_batch *b, mpt_tensor *out) {
	*out = mpt_forward(d->net, b->x);
	if (d->config.loss) return d->config.loss(*out, b->y, d->config.user);
	return mpt_nll_loss(*out, b->y, NULL);
}

/* A loss that is not finite, of outputs that are. */
static void mpt__tools_look_at_loss(mpt__tools_doctor *d, double loss, mpt_tensor out) {
	if (mpt__tools_is_finite(loss) || d->forward_bad || !mpt__tools_is_float(out)) return;
	const mpt_tensor_stats s = mpt_statistics(out);
	if (s.nans + s.infinities > 0) return;
	mpt__tools_found(d, MPT_FAULT_LOSS_NONFINITE, "", loss,
		"the loss is %g, though all outputs of the net are finite, from %.3g to %.3g: a logarithm "
		"of 0, or a division by 0, is in the loss. Take a loss of logits (mpt_cross_entropy), or "
		"bound what it takes the logarithm of",
		loss, s.min, s.max);
}

/* A weight before and behind a step. */
static void mpt__tools_look_at_change(mpt__tools_doctor *d, const char *path, const float *before,
	const float *after, int64_t count, double *low) {
	double change = 0, norm = 0;
	for (int64_t i = 0; i < count; i++) {
		const double dx = (double)after[i] - (double)before[i];
		change += dx * dx, norm += (double)before[i] * (double)before[i];
	}
	const double ratio = norm > 0 ? sqrt(change / norm) : 0;
	*low = mpt__tools_greater(*low, ratio);
	if (ratio > 0.5 && mpt__tools_is_finite(ratio))
		mpt__tools_found(d, MPT_FAULT_RATE_HIGH, path, ratio,
			"a step changes \"%s\" by %.3g of its norm; 0.001 to 0.05 is usual. The learning rate "
			"is about %.0f times too large",
			path, ratio, ratio / 0.01);
}

/* What the parameters' gradients say, in the pass in fp32. */
static void mpt__tools_look_at_gradients(mpt__tools_doctor *d) {
	char path[MPT__TOOLS_PATH];
	char first[MPT__TOOLS_PATH];
	int frozen = 0;
	for (int i = 0; i < mpt_parameter_count(d->net); i++) {
		const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
		if (!mpt_get_requires_grad(p)) {
			if (frozen++ == 0) memcpy(first, path, sizeof first);
		} else if (!mpt_has_grad(p)) {
			mpt__tools_found(d, MPT_FAULT_UNREACHED, path, 1,
				"the loss does not depend on \"%s\": its module is not used in the forward, or its "
				"output is detached or overwritten",
				path);
		}
	}
	if (frozen > 0)
		mpt__tools_found(d, MPT_FAULT_FROZEN, first, frozen,
			"%lld parameters are frozen, so that they do not learn, \"%s\" the first of them; "
			"mpt_freeze(module, false) ends that, if it is not meant",
			(long long)frozen, first);
}

/* One pass without an update, which shows what the numbers are in fp32. */
static void mpt__tools_plain_pass(mpt__tools_doctor *d, const mpt_batch *b) {
	mpt_tensor out;
	d->plain = true, d->forward_bad = d->backward_bad = false;
	mpt_step_begin(d->context);
	const mpt_tensor loss = mpt__tools_doctor_loss(d, b, &out);
	mpt__tools_look_at_loss(d, mpt_item(loss), out);
	mpt_zero_grad(d->optimizer);
	mpt_backward(loss);
	if (d->step == 1) mpt__tools_look_at_gradients(d);
	mpt_zero_grad(d->optimizer);
	mpt_step_end(d->context);
}

/* All weights, one behind the other, as a host's copy; NULL where there is no memory for it. */
static float *mpt__tools_all_weights(mpt__tools_doctor *d) {
	const int64_t count = mpt_parameter_numel(d->net);
	float *all = count > 0 ? (float *)mpt__tools_allocate((size_t)count * sizeof *all) : NULL;
	int64_t at = 0;
	for (int i = 0; all && i < mpt_parameter_count(d->net); i++) {
		const mpt_tensor p = mpt_parameter_at(d->net, i, NULL, 0);
		mpt_read_f32(p, all + at, mpt_numel(p));
		at += mpt_numel(p);
	}
	return all;
}

static bool mpt__tools_has_slope(mpt_tensor parameter) {
	if (!mpt_get_requires_grad(parameter) || !mpt_has_grad(parameter)) return false;
	const mpt_tensor_stats s = mpt_statistics(mpt_grad(parameter));
	return s.zeros < s.count;
}

static void mpt__tools_look_at_weights(
	mpt__tools_doctor *d, const float *before, const float *after, double *low) {
	char path[MPT__TOOLS_PATH];
	int64_t at = 0;
	for (int i = 0; i < mpt_parameter_count(d->net); i++) {
		const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
		const int64_t count = mpt_numel(p);
		const bool same = memcmp(before + at, after + at, (size_t)count * sizeof *after) == 0;
		double largest = 0;
		for (int64_t k = 0; k < count; k++)
			largest = mpt__tools_greater(largest, fabs((double)after[at + k]));
		if (largest > 100)
			mpt__tools_found(d, MPT_FAULT_WEIGHTS_LARGE, path, largest,
				"\"%s\" has weights up to %.4g, where 1 is much: lower the learning rate, clip "
				"gradients (mpt_clip_grad_norm), or start from smaller values",
				path, largest);
		if (mpt_get_shape(p).rank > 1)
			mpt__tools_look_at_change(d, path, before + at, after + at, count, low);
		if (same && mpt__tools_has_slope(p))
			mpt__tools_found(d, MPT_FAULT_NO_OPTIMIZER, path, 1,
				"\"%s\" has gradients, but the step leaves it as it is: give it to the optimizer, "
				"or look at its group's learning rate",
				path);
		at += count;
	}
}

/* One step of the training itself, whose weights are looked at unless `before` is NULL. */
static double mpt__tools_real_step(
	mpt__tools_doctor *d, const mpt_batch *b, const float *before, double *low) {
	mpt_tensor out;
	d->plain = false, d->forward_bad = d->backward_bad = false;
	mpt_step_begin(d->context);
	if (d->config.precision != MPT_F32) mpt_autocast_begin(d->context, d->config.precision);
	const mpt_tensor loss = mpt__tools_doctor_loss(d, b, &out);
	if (d->config.precision != MPT_F32) mpt_autocast_end(d->context);
	const double value = mpt_item(loss);
	mpt_zero_grad(d->optimizer);
	if (d->scaler.context) {
		mpt_backward(mpt_scale_loss(d->scaler, loss));
		mpt_scaler_step(d->scaler, d->optimizer);
		mpt_scaler_update(d->scaler);
	} else {
		mpt_backward(loss);
		mpt_step(d->optimizer);
	}
	float *after = before ? mpt__tools_all_weights(d) : NULL;
	const bool skipped = d->scaler.context && mpt_step_outcome(d->scaler) == MPT_OUTCOME_SKIPPED;
	if (after && !skipped && !mpt_failed(d->context))
		mpt__tools_look_at_weights(d, before, after, low);
	d->found->skipped += skipped;
	mpt__tools_release(after);
	mpt_step_end(d->context);
	return value;
}

/* The next batch, of a new epoch where one ends. */
static bool mpt__tools_doctor_batch(mpt__tools_doctor *d, mpt_batch *b) {
	return mpt_loader_next(d->loader, b) ||
		(!mpt_failed(d->context) && mpt_loader_next(d->loader, b));
}

static void mpt__tools_doctor_steps(mpt__tools_doctor *d) {
	mpt_batch b;
	double low = 0;
	int64_t in_a_row = 0;
	d->watched = true;
	for (d->step = 1; d->step <= d->config.steps && mpt__tools_doctor_batch(d, &b); d->step++) {
		const int64_t skipped = d->found->skipped;
		d->plain_bad = -1;
		d->scales[d->step - 1] = d->scaler.context ? mpt_get_scale(d->scaler) : 1;
		mpt__tools_look_at_batch(d, &b);
		mpt__tools_plain_pass(d, &b);
		float *before = mpt__tools_all_weights(d);
		d->losses[d->step - 1] = mpt__tools_real_step(d, &b, before, &low);
		mpt__tools_release(before);
		if (mpt_failed(d->context)) break;
		in_a_row = d->found->skipped > skipped ? in_a_row + 1 : 0;
		d->found->steps = d->step;
		if (in_a_row >= 5)
			mpt__tools_found(d, MPT_FAULT_SKIPS, "", (double)in_a_row,
				"the scaler has skipped %lld steps in a row, at a scale of %.4g: gradients are not "
				"finite at any scale, so look at what else is found here, or at the loss",
				(long long)in_a_row, mpt_get_scale(d->scaler));
	}
	if (d->found->steps > 0 && low > 0 && low < 1e-7)
		mpt__tools_found(d, MPT_FAULT_RATE_LOW, "", low,
			"no step changes a weight matrix by more than %.2g of its norm; 0.001 to 0.05 is "
			"usual. Nothing will be learned at this learning rate",
			low);
	d->watched = false, d->step = d->found->steps;
}

/* Median times of a step that nobody looks at: in fp32, then in the training's precision. */
static void mpt__tools_doctor_times(mpt__tools_doctor *d) {
	enum { TRIALS = 5 };
	const mpt_dtype asked = d->config.precision;
	const int64_t skipped = d->found->skipped;	/* before the steps that only measure */
	mpt_batch b;
	for (int which = 0; which < 2; which++) {
		double times[TRIALS];
		int n = 0;
		d->config.precision = which ? asked : MPT_F32;
		while (n < TRIALS && mpt__tools_doctor_batch(d, &b)) {
			const double begin = mpt__tools_seconds();
			mpt__tools_real_step(d, &b, NULL, NULL);
			mpt_synchronize(d->context);
			const double time = mpt__tools_seconds() - begin;
			int at = n++;
			for (; at > 0 && times[at - 1] > time; at--) times[at] = times[at - 1];
			times[at] = time;
		}
		if (n > 0) d->found->seconds[which] = times[n / 2];
	}
	d->config.precision = asked, d->found->skipped = skipped;
}

/* ==== Diagnosis: what all steps together say ==== */

/* The share of a layer's gradients, other than 0, that fp16 makes 0 at this scale. */
static double mpt__tools_lost(const mpt__tools_layer_note *layer, double scale) {
	double smallest = -25;	/* half of the smallest number, which rounds to it */
	int64_t lost = 0;
	for (; scale >= 2; scale /= 2) smallest--;
	for (int i = 0; i < MPT_BINADES; i++)
		if ((double)(MPT_BINADE_FIRST + i + 1) <= smallest) lost += layer->binade[i];
	const int64_t others = layer->gradients - layer->gradient_zeros;
	return others > 0 ? (double)lost / (double)others : 0;
}

static double mpt__tools_slope(const mpt__tools_layer_note *layer) {
	return layer->gradients > 0 ? sqrt(layer->squares / (double)layer->gradients) : 0;
}

static void mpt__tools_judge_layer(mpt__tools_doctor *d, const mpt__tools_layer_note *layer) {
	const char *path = layer->path, *kind = layer->kind;
	int64_t dead = 0;
	for (int64_t u = 0; u < layer->units; u++) dead += !layer->alive[u];
	const double lost = mpt__tools_lost(layer, d->found->scale);
	if (layer->outputs > 0 && layer->zeros == layer->outputs)
		mpt__tools_found(d, MPT_FAULT_DEAD_LAYER, path, 1,
			"layer \"%s\" (%s) gives zeros alone, whatever comes in: nothing before it learns. "
			"Look at its weights and biases and at the learning rate that has brought them there",
			path, kind);
	else if (layer->units > 0 && 2 * dead > layer->units)
		mpt__tools_found(d, MPT_FAULT_DEAD_UNITS, path, (double)dead / (double)layer->units,
			"%lld of %lld units behind \"%s\" (%s) are zero for every sample: lower the learning "
			"rate, start from smaller biases, or take mpt_nn_leaky_relu or mpt_nn_gelu",
			(long long)dead, (long long)layer->units, path, kind);
	if (layer->outputs > 0 && (double)layer->saturated > 0.8 * (double)layer->outputs)
		mpt__tools_found(d, MPT_FAULT_SATURATED, path,
			(double)layer->saturated / (double)layer->outputs,
			"%.0f %% of the outputs of \"%s\" (%s) are at its ends, where it has no slope: "
			"normalise what comes in, or start from smaller weights",
			100 * (double)layer->saturated / (double)layer->outputs, path, kind);
	if (d->config.precision == MPT_F16 && lost > 0.3)
		mpt__tools_found(d, MPT_FAULT_UNDERFLOW, path, lost,
			"fp16 makes %.0f %% of the gradients at \"%s\" (%s) zero at a loss scale of %.4g: "
			"train with mpt_grad_scaler, from a larger scale, or in bf16",
			100 * lost, path, kind, d->found->scale);
}

/* Gradients at the first layer over those at the last one. */
static void mpt__tools_judge_depth(mpt__tools_doctor *d) {
	const mpt__tools_layer_note *first = NULL, *last = NULL;
	for (int i = 0; i < d->layer_count; i++) {
		if (!(mpt__tools_slope(&d->layers[i]) > 0)) continue;
		if (!first) first = &d->layers[i];
		last = &d->layers[i];
	}
	if (!first || first == last) return;
	const double ratio = mpt__tools_slope(first) / mpt__tools_slope(last);
	const double numbers = (double)first->gradients / (double)last->gradients;
	if (ratio * sqrt(numbers) < 1e-4)
		mpt__tools_found(d, MPT_FAULT_VANISHING, first->path, 1 / ratio,
			"gradients at \"%s\" are %.2g times those at \"%s\": the first layers will not learn. "
			"Use relu or gelu, norms, residual connections, or larger first weights",
			first->path, ratio, last->path);
	if (ratio > 1e4)
		mpt__tools_found(d, MPT_FAULT_EXPLODING, first->path, ratio,
			"gradients at \"%s\" are %.2g times those at \"%s\": start from smaller weights, use "
			"norms, or clip (mpt_clip_grad_norm)",
			first->path, ratio, last->path);
}

static void mpt__tools_judge_data(mpt__tools_doctor *d) {
	if (d->inputs > 1) {
		const double n = (double)d->inputs, mean = d->input_sum / n;
		const double deviation = sqrt(mpt__tools_greater(d->input_squares / n - mean * mean, 0));
		if (deviation > 20 || deviation < 1e-3 || fabs(mean) > 10 * deviation)
			mpt__tools_found(d, MPT_FAULT_INPUT_RANGE, "", deviation,
				"inputs have a mean of %.4g and a deviation of %.4g, up to %.4g; 0 and 1 are "
				"usual. mpt_normalize(dataset, mean, deviation) before training",
				mean, deviation, d->input_largest);
	}
	if (d->classes[1] >= 0 && d->classes[0] == d->classes[1])
		mpt__tools_found(d, MPT_FAULT_TARGETS_CONSTANT, "", (double)d->classes[0],
			"all targets are class %lld: there is nothing to tell apart. Look at the labels, and "
			"at whether the data is shuffled",
			(long long)d->classes[0]);
}

static void mpt__tools_judge_losses(mpt__tools_doctor *d) {
	const int64_t n = d->found->steps, part = n / 3;
	double first = 0, last = 0;
	if (n > 0) d->found->first_loss = d->losses[0], d->found->last_loss = d->losses[n - 1];
	for (int64_t i = 0; i < part; i++) first += d->losses[i], last += d->losses[n - 1 - i];
	if (!mpt__tools_is_finite(last)) last = INFINITY;
	if (part > 0 && last > 2 * first && first > 0 && mpt__tools_is_finite(first))
		mpt__tools_found(d, MPT_FAULT_LOSS_RISES, "", last / first,
			"the loss rises, from %.4g to %.4g on average: lower the learning rate, or warm it up",
			first / (double)part, last / (double)part);
}

/* ==== Diagnosis: words ==== */

/* The powers of two between which 98 of 100 gradients are. */
static void mpt__tools_note_range(mpt__tools_note *note, const mpt__tools_layer_note *layer) {
	const int64_t others = layer->gradients - layer->gradient_zeros, tail = others / 100;
	int low = 0, high = MPT_BINADES - 1;
	int64_t below = 0, above = 0;
	if (others == 0) {
		mpt__tools_note_add(note, " %14s", "-");
		return;
	}
	while (low < MPT_BINADES - 1 && below + layer->binade[low] <= tail)
		below += layer->binade[low++];
	while (high > 0 && above + layer->binade[high] <= tail) above += layer->binade[high--];
	char text[32];
	mpt__tools_note range = mpt__tools_note_begin(text, sizeof text);
	mpt__tools_note_add(&range, "2^%lld..2^%lld", (long long)MPT_BINADE_FIRST + low,
		(long long)MPT_BINADE_FIRST + high + 1);
	mpt__tools_note_add(note, " %14s", text);
}

/* How many gradients there are by powers of two, four to a character, from few to many. */
static void mpt__tools_note_binades(mpt__tools_note *note, const mpt__tools_layer_note *layer) {
	enum { FOURS = MPT_BINADES / 4 };
	static const char ink[] = " .:-=+*#%@";
	int64_t sum[FOURS] = {0}, most = 1;
	char text[FOURS + 1] = "";
	for (int i = 0; i < MPT_BINADES; i++) {
		sum[i / 4] += layer->binade[i];
		if (most < sum[i / 4]) most = sum[i / 4];
	}
	for (int i = 0; i < FOURS; i++)
		text[i] = ink[sum[i] ? 1 + (int)(8 * (double)sum[i] / (double)most) : 0];
	mpt__tools_note_add(note, "  |%s|\n", text);
}

static void mpt__tools_note_layers(mpt__tools_note *note, const mpt__tools_doctor *d) {
	mpt__tools_note_add(note, "%-24s %-14s %10s %7s %14s %9s   %s\n", "layer", "kind", "largest",
		"zeros", "gradients", "lost", "2^-40 .. 2^23");
	for (int i = 0; i < d->layer_count; i++) {
		const mpt__tools_layer_note *layer = &d->layers[i];
		if (layer->outputs == 0) continue;
		mpt__tools_note_add(note, "%-24s %-14s %10.4g %5.1f %%", layer->path, layer->kind,
			layer->largest, 100 * (double)layer->zeros / (double)layer->outputs);
		mpt__tools_note_range(note, layer);
		mpt__tools_note_add(note, " %7.1f %%", 100 * mpt__tools_lost(layer, d->found->scale));
		mpt__tools_note_binades(note, layer);
	}
	mpt__tools_note_add(
		note, "lost: what fp16 makes zero at a loss scale of %.4g\n", d->found->scale);
}

/* What the loss scale was, and from which step on; the last of many changes are left out. */
static void mpt__tools_note_scales(mpt__tools_note *note, const mpt__tools_doctor *d) {
	enum { MOST = 12 };
	if (!d->scaler.context || d->found->steps == 0) return;
	mpt__tools_note_add(note, "loss scale: %.4g", d->scales[0]);
	for (int64_t i = 1, changes = 0; i < d->found->steps && changes <= MOST; i++) {
		if (mpt__tools_bits_of(d->scales[i]) == mpt__tools_bits_of(d->scales[i - 1])) continue;
		if (changes++ == MOST)
			mpt__tools_note_add(note, ", ..");
		else
			mpt__tools_note_add(
				note, ", %.4g from step %lld on", d->scales[i], (long long)i + 1);
	}
	mpt__tools_note_add(note, "; %.4g at the end\n", d->found->scale);
}

static void mpt__tools_note_findings(mpt__tools_note *note, const mpt_diagnosis *found) {
	mpt__tools_note_add(note, "\n%lld steps, loss %.4g to %.4g, %lld skipped\n",
		(long long)found->steps, found->first_loss, found->last_loss, (long long)found->skipped);
	for (int i = 0; i < found->count; i++)
		mpt__tools_note_add(note, "%lld. (step %lld) %s.\n", (long long)i + 1,
			(long long)found->finding[i].step, found->finding[i].text);
	if (found->count == 0) mpt__tools_note_add(note, "nothing is wrong\n");
}

static void mpt__tools_note_pays(mpt__tools_note *note, const mpt__tools_doctor *d) {
	const double *seconds = d->found->seconds;
	if (d->config.precision == MPT_F32 || !(seconds[1] > 0)) return;
	const char *name = mpt_dtype_name(d->config.precision);
	mpt__tools_note_add(note, "a step takes %.3g ms in fp32 and %.3g ms in %s: %s\n",
		1e3 * seconds[0], 1e3 * seconds[1], name,
		seconds[0] > 1.05 * seconds[1] ? "worth it here"
									   : "it saves memory, but no time for this net here");
}

/* ==== Diagnosis: the whole ==== */

mpt_diagnosis_config mpt_diagnosis_config_default(void) {
	mpt_diagnosis_config config;
	memset(&config, 0, sizeof config);
	config.steps = 20, config.precision = MPT_F16, config.scaled = true;
	return config;
}

/* Weights that are none before anything has been done. */
static void mpt__tools_judge_weights(mpt__tools_doctor *d) {
	char path[MPT__TOOLS_PATH];
	for (int i = 0; i < mpt_parameter_count(d->net); i++) {
		const mpt_tensor p = mpt_parameter_at(d->net, i, path, sizeof path);
		const mpt_tensor_stats s = mpt_statistics(p);
		if (s.nans + s.infinities > 0)
			mpt__tools_found(d, MPT_FAULT_WEIGHTS_NONFINITE, path, (double)(s.nans + s.infinities),
				"\"%s\" has %lld NaN and %lld infinities before the first step: load the weights "
				"again, from before the training broke",
				path, (long long)s.nans, (long long)s.infinities);
	}
}

static void mpt__tools_doctor_works(mpt__tools_doctor *d) {
	mpt_context *ctx = d->context;
	const mpt_scaler_config defaults = mpt_scaler_config_default();
	const bool own = !d->scaler.context && d->config.scaled && d->config.precision == MPT_F16;
	if (own) d->scaler = mpt_grad_scaler(ctx, &defaults);
	mpt__tools_put_hooks_on(d);
	mpt__tools_judge_weights(d);
	mpt__tools_doctor_steps(d);
	d->found->scale = d->scaler.context && !mpt_failed(ctx) ? mpt_get_scale(d->scaler) : 1;
	d->found->status = mpt_error_code(ctx);
	if (mpt_failed(ctx)) mpt_clear_error(ctx);
	mpt__tools_take_hooks_off(d);
	if (d->found->status == MPT_OK) mpt__tools_doctor_times(d);
	mpt_zero_grad(d->optimizer);
	if (own) mpt_scaler_destroy(d->scaler);
	for (int i = 0; i < d->layer_count; i++) mpt__tools_judge_layer(d, &d->layers[i]);
	mpt__tools_judge_depth(d), mpt__tools_judge_data(d), mpt__tools_judge_losses(d);
}

mpt_diagnosis mpt_diagnose(mpt_module net, mpt_optimizer optimizer, mpt_loader loader,
	const mpt_diagnosis_config *config, char *text, size_t capacity, size_t *length) {
	mpt_context *ctx = net.context;
	mpt_diagnosis found;
	mpt__tools_doctor *d = (mpt__tools_doctor *)mpt__tools_allocate(sizeof *d);
	mpt__tools_note note = mpt__tools_note_begin(text, capacity);
	memset(&found, 0, sizeof found);
	if (length) *length = 0;
	found.status = mpt_failed(ctx) ? mpt_error_code(ctx) : MPT_OK;
	const int64_t bytes = found.status == MPT_OK && d ? mpt_snapshot_bytes(ctx) : -1;
	void *before = bytes >= 0 ? mpt__tools_allocate((size_t)bytes + 1) : NULL;
	const int modules = before ? mpt_module_count(net) : -1;
	if (modules > 0)
		d->layers =
			(mpt__tools_layer_note *)mpt__tools_allocate((size_t)modules * sizeof *d->layers);
	if (modules > 0 && d->layers && mpt_snapshot(ctx, before, (size_t)bytes) == MPT_OK) {
		d->context = ctx, d->net = net, d->optimizer = optimizer, d->loader = loader;
		d->config = config ? *config : mpt_diagnosis_config_default();
		if (d->config.steps > MPT__TOOLS_MOST_STEPS) d->config.steps = MPT__TOOLS_MOST_STEPS;
		d->scaler = d->config.scaler, d->found = &found;
		d->classes[0] = INT64_MAX, d->classes[1] = -1;
		mpt__tools_doctor_works(d);
		mpt_restore(ctx, before, (size_t)bytes);
		mpt__tools_note_layers(&note, d), mpt__tools_note_scales(&note, d);
		mpt__tools_note_findings(&note, &found), mpt__tools_note_pays(&note, d);
		if (length) *length = note.length;
	} else if (found.status == MPT_OK) {
		found.status = mpt_failed(ctx) ? mpt_error_code(ctx) : MPT_ERROR_MEMORY;
	}
	if (d) mpt__tools_release(d->values), mpt__tools_release(d->layers);
	mpt__tools_release(before), mpt__tools_release(d);
	return found;
}

/* ----
 * tools/precisions.c: the same training in several precisions.
 * ---- */

/* ==== Precisions side by side ==== */

enum { MPT__TOOLS_STEP_TIMES = 512 };

typedef struct mpt__tools_way {
	const char *name;
	mpt_dtype autocast, weights;	/* MPT_F32: none, as they are */
	bool scaled;
} mpt__tools_way;

static const mpt__tools_way mpt__tools_ways[MPT_PRECISION_RUNS] = {
	{"fp32", MPT_F32, MPT_F32, false}, {"fp16", MPT_F16, MPT_F32, true},
	{"bf16", MPT_BF16, MPT_F32, false}, {"half fp16", MPT_F32, MPT_F16, true},
	{"half bf16", MPT_F32, MPT_BF16, false}};

static double mpt__tools_way_step(mpt_context *ctx, const mpt__tools_way *way,
	const mpt_training *training, mpt_module net, mpt_optimizer optimizer, mpt_scaler scaler,
	const mpt_batch *b) {
	mpt_step_begin(ctx);
	if (way->autocast != MPT_F32) mpt_autocast_begin(ctx, way->autocast);
	const bool floats = mpt_get_dtype(b->x) == MPT_F32 && way->weights != MPT_F32;
	const mpt_tensor out = mpt_forward(net, floats ? mpt_cast(b->x, way->weights) : b->x);
	const mpt_tensor loss =
		training->loss ? training->loss(out, b->y, training->user) : mpt_nll_loss(out, b->y, NULL);
	if (way->autocast != MPT_F32) mpt_autocast_end(ctx);
	mpt_zero_grad(optimizer);
	mpt_backward(mpt_scale_loss(scaler, loss));
	mpt_scaler_step(scaler, optimizer);
	mpt_scaler_update(scaler);
	const double value = mpt_item(loss);	/* waits for the step, which is timed */
	mpt_step_end(ctx);
	return value;
}

static void mpt__tools_way_run(mpt_context *ctx, const mpt__tools_way *way,
	const mpt_training *training, int64_t steps, mpt_precision_run *run) {
	double times[MPT__TOOLS_STEP_TIMES];
	int64_t counts[MPT_PRECISION_POINTS] = {0};
	mpt_scaler_config sc = mpt_scaler_config_default();
	mpt_batch b;
	int n = 0;
	sc.enabled = way->scaled;
	const mpt_module net = training->net(ctx, training->user);
	if (way->weights != MPT_F32) mpt_half(net, way->weights);
	const mpt_optimizer optimizer = training->optimizer(net, training->user);
	const mpt_loader loader = training->loader(ctx, training->user);
	const mpt_scaler scaler = mpt_grad_scaler(ctx, &sc);
	for (int64_t i = 0; i < steps && !mpt_failed(ctx); i++) {
		if (!mpt_loader_next(loader, &b) && !mpt_loader_next(loader, &b)) break;
		const double begin = mpt__tools_seconds();
		const double loss = mpt__tools_way_step(ctx, way, training, net, optimizer, scaler, &b);
		const double time = mpt__tools_seconds() - begin;
		const int64_t point = i * MPT_PRECISION_POINTS / steps;
		run->loss[point] += loss, counts[point]++;
		if (n == MPT__TOOLS_STEP_TIMES) continue;	/* enough for a median */
		int at = n++;
		for (; at > 0 && times[at - 1] > time; at--) times[at] = times[at - 1];
		times[at] = time;
	}
	for (int i = 0; i < MPT_PRECISION_POINTS; i++)
		run->loss[i] = counts[i] ? run->loss[i] / (double)counts[i] : (double)NAN;
	run->seconds = n ? times[n / 2] : 0, run->peak = mpt_memory(ctx).total_peak;
	run->skipped = mpt_scaler_statistics(scaler).skipped;
	run->scale = mpt_failed(ctx) ? 1 : mpt_get_scale(scaler);
	run->status = mpt_error_code(ctx);
}

size_t mpt_compare_precisions(const mpt_training *training, const mpt_config *config, int64_t steps,
	mpt_precision_run runs[MPT_PRECISION_RUNS], char *text, size_t capacity) {
	mpt__tools_note note = mpt__tools_note_begin(text, capacity);
	if (runs) memset(runs, 0, MPT_PRECISION_RUNS * sizeof *runs);
	if (!runs || !training || !training->net || !training->optimizer || !training->loader ||
		steps < 5)
		return 0;
	mpt__tools_note_add(&note, "%-10s %9s %9s %9s %9s %9s %9s %8s %8s %8s\n", "", "loss 20 %",
		"40 %", "60 %", "80 %", "100 %", "ms/step", "MB", "skipped", "scale");
	for (int i = 0; i < MPT_PRECISION_RUNS; i++) {
		mpt_context *ctx = mpt_create(config);
		mpt_precision_run *run = &runs[i];
		run->name = mpt__tools_ways[i].name, run->status = MPT_ERROR_ARGUMENT;
		if (ctx) mpt__tools_way_run(ctx, &mpt__tools_ways[i], training, steps, run);
		mpt__tools_note_add(&note, "%-10s", run->name);
		for (int k = 0; k < MPT_PRECISION_POINTS && run->status == MPT_OK; k++)
			mpt__tools_note_add(&note, " %9.4f", run->loss[k]);
		if (run->status == MPT_OK)
			mpt__tools_note_add(&note, " %9.3f %8.1f %8lld %8.4g\n", 1e3 * run->seconds,
				(double)run->peak / 1e6, (long long)run->skipped, run->scale);
		else
			mpt__tools_note_add(&note, " %s\n", ctx ? mpt_error(ctx) : mpt_error(NULL));
		mpt_destroy(ctx);
	}
	return note.length;
}

/* ----
 * tools/zeroth.c: training by forwards alone.
 * ---- */

enum { MPT__TOOLS_DIRECTIONS = 64 };

mpt_zeroth_config mpt_zeroth_config_default(void) {
	const mpt_zeroth_config config = {1e-6, 1e-3, 1, 0};
	return config;
}

/* A seed of its own for each number: the finaliser of SplitMix64. */
static uint64_t mpt__tools_zeroth_seed(uint64_t seed, uint64_t number) {
	uint64_t x = seed + (number + 1) * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Adds so much of a direction to all that is trained. */
static void mpt__tools_zeroth_move(mpt_module net, uint64_t direction, double factor) {
	mpt_context *ctx = net.context;
	const int count = mpt_parameter_count(net);
	mpt_no_grad_begin(ctx);
	for (int i = 0; i < count; i++) {
		mpt_scope_begin(ctx);
		const mpt_tensor p = mpt_parameter_at(net, i, NULL, 0);
		if (mpt_get_requires_grad(p)) {
			const uint64_t seed = mpt__tools_zeroth_seed(direction, (uint64_t)i);
			const mpt_tensor z =
				mpt_randn_seeded(ctx, mpt_get_dtype(p), mpt_get_shape(p), seed);
			mpt_add_(p, mpt_mul_scalar_(z, factor));
		}
		mpt_scope_end(ctx);
	}
	mpt_no_grad_end(ctx);
}

/* Notes and ends an error of the context. */
static bool mpt__tools_zeroth_fails(mpt_context *ctx, mpt_zeroth *result) {
	if (!mpt_failed(ctx)) return false;
	result->status = mpt_error_code(ctx);
	mpt__tools_note note = mpt__tools_note_begin(result->error, sizeof result->error);
	mpt__tools_note_add(&note, "%s", mpt_error(ctx));
	mpt_clear_error(ctx);
	return true;
}

static double mpt__tools_zeroth_loss(
	mpt_module net, mpt_zeroth_loss loss, void *user, mpt_zeroth *result) {
	mpt_context *ctx = net.context;
	mpt_scope_begin(ctx);
	mpt_inference_begin(ctx);
	const double value = mpt_item(loss(net, user));
	if (mpt__tools_zeroth_fails(ctx, result)) return 0;	/* which closed all that was open */
	mpt_inference_end(ctx);
	mpt_scope_end(ctx);
	if (!mpt__tools_is_finite(value)) result->status = MPT_ERROR_NUMERIC;
	result->loss += value;
	return value;
}

/* The loss's slope along a direction; the weights end where they were. */
static double mpt__tools_zeroth_slope(mpt_module net, mpt_zeroth_loss loss, void *user,
	uint64_t direction, double epsilon, mpt_zeroth *result) {
	mpt__tools_zeroth_move(net, direction, epsilon);
	const double above = mpt__tools_zeroth_loss(net, loss, user, result);
	if (result->status != MPT_OK) {
		mpt__tools_zeroth_move(net, direction, -epsilon);
		return 0;
	}
	mpt__tools_zeroth_move(net, direction, -2 * epsilon);
	const double below = mpt__tools_zeroth_loss(net, loss, user, result);
	mpt__tools_zeroth_move(net, direction, epsilon);
	return (above - below) / (2 * epsilon);
}

mpt_zeroth mpt_zeroth_step(mpt_module net, mpt_zeroth_loss loss, void *user,
	const mpt_zeroth_config *config, int64_t step) {
	const mpt_zeroth_config c = config ? *config : mpt_zeroth_config_default();
	double slope[MPT__TOOLS_DIRECTIONS];
	mpt_zeroth result;
	memset(&result, 0, sizeof result);
	const bool fine = c.lr >= 0 && mpt__tools_is_finite(c.lr) && c.epsilon > 0 &&
		mpt__tools_is_finite(c.epsilon) && c.directions >= 1 &&
		c.directions <= MPT__TOOLS_DIRECTIONS;
	if (!fine || !net.context || !loss || mpt_failed(net.context)) {
		result.status = fine && net.context && loss ? mpt_error_code(net.context)
													: MPT_ERROR_ARGUMENT;
		mpt__tools_note note = mpt__tools_note_begin(result.error, sizeof result.error);
		mpt__tools_note_add(&note,
			"mpt_zeroth_step: lr %.3g, epsilon %.3g, %lld directions: expected 0 or more, above "
			"0 and 1 to %lld, a net and a loss, and a context without an error",
			c.lr, c.epsilon, (long long)c.directions, (long long)MPT__TOOLS_DIRECTIONS);
		return result;
	}
	const uint64_t seed = mpt__tools_zeroth_seed(c.seed, (uint64_t)step);
	for (int d = 0; d < c.directions && result.status == MPT_OK; d++)
		slope[d] = mpt__tools_zeroth_slope(
			net, loss, user, mpt__tools_zeroth_seed(seed, (uint64_t)d), c.epsilon, &result);
	if (result.status == MPT_OK) {
		result.slope = slope[c.directions - 1], result.loss /= 2 * c.directions;
		for (int d = 0; d < c.directions; d++)
			mpt__tools_zeroth_move(
				net, mpt__tools_zeroth_seed(seed, (uint64_t)d), -c.lr * slope[d] / c.directions);
	}
	mpt__tools_zeroth_fails(net.context, &result);
	return result;
}

/* ----
 * tools/trace.c: profiles as files: the trace events that Chrome and Perfetto read.
 * ---- */

enum { MPT__TOOLS_TRACE_ROWS = 4096 };	/* of threads that get a name */

typedef struct {
	mpt__tools_stream stream;
	bool named[MPT__TOOLS_TRACE_ROWS];
	bool fine;
} mpt__tools_trace;

static void mpt__tools_trace_text(mpt__tools_trace *trace, const char *key, const char *text) {
	mpt__tools_bytes_put_text(&trace->stream.pending, key);
	mpt__tools_put_json_text(&trace->stream.pending, text);
}

static void mpt__tools_trace_integer(mpt__tools_trace *trace, const char *key, double value) {
	mpt__tools_bytes_put_text(&trace->stream.pending, key);
	mpt__tools_put_integer(&trace->stream.pending, (int64_t)value);
}

/* Microseconds, by whole nanoseconds: so that what lies within another does so when it is read. */
static void mpt__tools_trace_time(mpt__tools_trace *trace, const char *key, int64_t nanoseconds) {
	mpt__tools_bytes *to = &trace->stream.pending;
	const int64_t rest = nanoseconds % 1000;
	mpt__tools_bytes_put_text(to, key);
	mpt__tools_put_integer(to, nanoseconds / 1000);
	mpt__tools_bytes_put_text(to, rest < 10 ? ".00" : rest < 100 ? ".0" : ".");
	mpt__tools_put_integer(to, rest);
}

static int64_t mpt__tools_nanoseconds(double seconds) {
	return seconds > 0 ? (int64_t)(seconds * 1e9 + 0.5) : 0;
}

/* The name of a row, before the first event in it. */
static void mpt__tools_trace_row(mpt__tools_trace *trace, int thread) {
	mpt__tools_bytes *to = &trace->stream.pending;
	if (thread >= MPT__TOOLS_TRACE_ROWS || trace->named[thread]) return;
	trace->named[thread] = true;
	mpt__tools_trace_integer(
		trace, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":", thread);
	mpt__tools_bytes_put_text(to, ",\"args\":{\"name\":\"");
	if (thread > 0)
		mpt__tools_trace_integer(trace, "loader worker ", thread);
	else
		mpt__tools_bytes_put_text(to, "training");
	mpt__tools_bytes_put_text(to, "\"}},\n");
}

static void mpt__tools_trace_each(void *user, const mpt_profile_span *span) {
	static const char *const kinds[] = {"step", "module", "op", "launch", "wait", "batch"};
	mpt__tools_trace *trace = (mpt__tools_trace *)user;
	mpt__tools_bytes *to = &trace->stream.pending;
	const int64_t start = mpt__tools_nanoseconds(span->start),
				  end = mpt__tools_nanoseconds(span->start + span->seconds);
	if (!trace->fine) return;
	mpt__tools_trace_row(trace, span->thread);
	mpt__tools_trace_text(trace, "{\"name\":", span->name);
	mpt__tools_trace_text(trace, ",\"cat\":", kinds[span->kind]);
	mpt__tools_trace_time(trace, ",\"ph\":\"X\",\"ts\":", start);
	mpt__tools_trace_time(trace, ",\"dur\":", end > start ? end - start : 0);
	mpt__tools_trace_integer(trace, ",\"pid\":1,\"tid\":", span->thread);
	mpt__tools_trace_integer(trace, ",\"args\":{\"step\":", (double)span->step);
	if (*span->phase) mpt__tools_trace_text(trace, ",\"phase\":", span->phase);
	if (span->kind <= MPT_SPAN_LAUNCH) {
		mpt__tools_trace_integer(trace, ",\"flop\":", span->flop);
		mpt__tools_trace_integer(trace, ",\"bytes_read\":", span->bytes_read);
		mpt__tools_trace_integer(trace, ",\"bytes_written\":", span->bytes_written);
	}
	mpt__tools_bytes_put_text(to, "}},\n");
	if (span->kind == MPT_SPAN_LAUNCH) {	/* a row with a curve */
		mpt__tools_trace_time(
			trace, "{\"name\":\"memory\",\"ph\":\"C\",\"pid\":1,\"ts\":", end);
		mpt__tools_trace_integer(trace, ",\"args\":{\"bytes\":", (double)span->memory);
		mpt__tools_bytes_put_text(to, "}},\n");
	}
	if (to->size > 1 << 16) trace->fine = mpt__tools_stream_flush(&trace->stream);
}

static void mpt__tools_trace_events(mpt__tools_trace *trace, mpt_context *ctx) {
	mpt__tools_bytes *to = &trace->stream.pending;
	mpt__tools_bytes_put_text(to, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
	mpt_profile_spans(ctx, mpt__tools_trace_each, trace);
	mpt__tools_bytes_put_text(to, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,");
	mpt__tools_trace_text(trace, "\"args\":{\"name\":", mpt_device_name(ctx));
	mpt__tools_bytes_put_text(to, "}}\n]}\n");
	trace->fine = trace->fine && !to->failed && !mpt_failed(ctx);
}

/* The file is written under another name first. */
static bool mpt__tools_trace_file(mpt__tools_trace *trace, mpt_context *ctx, const char *path) {
	static const mpt__tools_format format = {"trace", NULL, NULL};
	mpt__tools_stream *stream = &trace->stream;
	stream->format = &format;
	if (!mpt__tools_stream_open(stream, true)) return false;
	mpt__tools_trace_events(trace, ctx);
	trace->fine = mpt__tools_stream_close(stream) && trace->fine;
	if (trace->fine) {
		errno = 0;
		trace->fine = mpt__tools_file_move(stream->path, path) == 0 ||
			mpt__tools_stream_fails(stream, "replaced");
	}
	if (!trace->fine) mpt__tools_file_remove(stream->path);
	return trace->fine;
}

mpt_status mpt_trace_write(mpt_context *ctx, const char *path, char *why, size_t capacity) {
	mpt__tools_note note = mpt__tools_note_begin(why, capacity);
	mpt__tools_bytes name = {NULL, 0, 0, false};
	if (!path || !*path) {
		mpt__tools_note_add(&note, "there is no path");
		return MPT_ERROR_ARGUMENT;
	}
	if (mpt_failed(ctx)) {
		mpt__tools_note_add(&note, "%s", mpt_error(ctx));
		return mpt_error_code(ctx);
	}
	mpt__tools_trace *trace = (mpt__tools_trace *)mpt__tools_allocate(sizeof *trace);
	mpt__tools_bytes_put_text(&name, path);
	mpt__tools_bytes_put(&name, ".new", 5);
	mpt_status status = MPT_ERROR_MEMORY;
	if (trace && !name.failed) {
		trace->fine = true;
		trace->stream.path = (char *)name.data;
		if (mpt__tools_trace_file(trace, ctx, path))
			status = MPT_OK;
		else if (mpt_failed(ctx))
			status = mpt_error_code(ctx);
		else if (!trace->stream.pending.failed)
			status = MPT_ERROR_IO;
		if (status == MPT_ERROR_IO)
			mpt__tools_note_add(&note, "%s cannot be %s: %s", path, trace->stream.fault,
				strerror(trace->stream.error));
		mpt__tools_bytes_free(&trace->stream.pending);
	}
	if (status != MPT_OK && status != MPT_ERROR_IO)
		mpt__tools_note_add(&note, "%s", mpt_failed(ctx) ? mpt_error(ctx) : "out of memory");
	mpt__tools_bytes_free(&name);
	mpt__tools_release(trace);
	return status;
}

/* ----
 * tools/graph.c: a traced net as a table and for Graphviz.
 * ---- */

/* ==== Text into bytes ==== */

/* As mpt__tools_note_add; one call makes at most 1,000 characters. */
MPT__TOOLS_FORMAT(2)
static void mpt__tools_put_format(mpt__tools_bytes *to, const char *format, ...) {
	char text[1001];
	mpt__tools_note note = mpt__tools_note_begin(text, sizeof text);
	va_list arguments;
	va_start(arguments, format);
	mpt__tools_note_list(&note, format, &arguments);
	va_end(arguments);
	mpt__tools_bytes_put_text(to, text);
}

/* A text as XML and HTML have it. What cannot stand there is left out. */
static void mpt__tools_put_escaped(mpt__tools_bytes *to, const char *text) {
	for (; *text; text++) {
		const char *word = *text == '&' ? "&amp;"
			: *text == '<'              ? "&lt;"
			: *text == '>'              ? "&gt;"
			: *text == '"'              ? "&quot;"
			: *text == '\''             ? "&#39;"
										: NULL;
		if (word)
			mpt__tools_bytes_put_text(to, word);
		else if ((unsigned char)*text >= 32)
			mpt__tools_bytes_put(to, text, 1);
	}
}

/* ==== Words ==== */

static int64_t mpt__tools_shape_numel(const mpt_shape *shape) {
	int64_t count = 1;
	for (int i = 0; i < shape->rank; i++) count *= shape->dim[i];
	return count;
}

static void mpt__tools_note_shape(mpt__tools_note *note, const mpt_shape *shape) {
	mpt__tools_note_char(note, '[');
	for (int i = 0; i < shape->rank; i++)
		mpt__tools_note_add(note, "%s%lld", i ? ", " : "", (long long)shape->dim[i]);
	mpt__tools_note_char(note, ']');
}

/* 1234567 as 1,234,567. */
static void mpt__tools_note_count(mpt__tools_note *note, int64_t count) {
	char text[32];
	mpt__tools_note digits = mpt__tools_note_begin(text, sizeof text);
	mpt__tools_note_add(&digits, "%lld", (long long)count);
	for (size_t i = 0; i < digits.length; i++) {
		if (i > 0 && (digits.length - i) % 3 == 0) mpt__tools_note_char(note, ',');
		mpt__tools_note_char(note, text[i]);
	}
}

/* Whether a node has a box: what modules hold is told in the boxes that read it. */
static bool mpt__tools_node_shown(const mpt_node *node) {
	return node->kind != MPT_NODE_PARAMETER && node->kind != MPT_NODE_BUFFER;
}

/* Elements of the parameters that a node reads. */
static int64_t mpt__tools_node_parameters(mpt_graph graph, const mpt_node *node) {
	int64_t count = 0;
	for (int i = 0; i < node->inputs; i++) {
		const mpt_node *from =
			node->input[i].node < 0 ? NULL : mpt_graph_node(graph, node->input[i].node);
		if (from && from->kind == MPT_NODE_PARAMETER)
			count += mpt__tools_shape_numel(&from->shape[0]);
	}
	return count;
}

/* "[32, 128] float32". */
static void mpt__tools_node_result(const mpt_node *node, char *text, size_t size) {
	mpt__tools_note note = mpt__tools_note_begin(text, size);
	for (int i = 0; i < node->outputs; i++) {
		if (i > 0) mpt__tools_note_add(&note, ", ");
		mpt__tools_note_shape(&note, &node->shape[i]);
		mpt__tools_note_add(&note, " %s", mpt_dtype_name(node->dtype[i]));
	}
}

/* "1,290 parameters", and in what a product computes where that is not its result's dtype. */
static void mpt__tools_node_more(mpt_graph graph, const mpt_node *node, char *text, size_t size) {
	mpt__tools_note note = mpt__tools_note_begin(text, size);
	const int64_t parameters = mpt__tools_node_parameters(graph, node);
	if (parameters > 0) {
		mpt__tools_note_count(&note, parameters);
		mpt__tools_note_add(&note, " parameters");
	}
	if (node->compute != MPT_DTYPE_NONE && node->compute != MPT_F32)
		mpt__tools_note_add(
			&note, "%sin %s", note.length ? ", " : "", mpt_dtype_name(node->compute));
}

/* Whether `path` is `above` or below it; "" is above all. */
static bool mpt__tools_path_within(const char *path, const char *above) {
	const size_t length = strlen(above);
	if (length == 0) return true;
	return strncmp(path, above, length) == 0 && (path[length] == '\0' || path[length] == '.');
}

/* ==== The table ==== */

typedef struct {
	int64_t trainable, frozen;
	double bytes, flop;
} mpt__tools_totals;

static mpt__tools_totals mpt__tools_graph_totals(mpt_graph graph, mpt_module net) {
	mpt__tools_totals totals = {0, 0, 0, 0};
	char path[1024];
	const int parameters = mpt_parameter_count(net), nodes = mpt_graph_count(graph);
	for (int i = 0; i < parameters; i++) {
		const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
		const mpt_shape shape = mpt_get_shape(tensor);
		const int64_t count = mpt__tools_shape_numel(&shape);
		*(mpt_get_requires_grad(tensor) ? &totals.trainable : &totals.frozen) += count;
		totals.bytes += (double)count * (double)mpt_dtype_size(mpt_get_dtype(tensor));
	}
	for (int i = 0; i < nodes; i++) totals.flop += mpt_graph_node(graph, i)->flop;
	return totals;
}

/* What a module gave last; "not called" where no op is in it. */
static void mpt__tools_module_result(mpt_graph graph, const char *path, char *text, size_t size) {
	mpt__tools_note note = mpt__tools_note_begin(text, size);
	for (int i = mpt_graph_count(graph); i-- > 0;) {
		const mpt_node *node = mpt_graph_node(graph, i);
		const bool op = node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP;
		if (!op || !mpt__tools_path_within(node->module, path)) continue;
		mpt__tools_note_shape(&note, &node->shape[0]);
		return;
	}
	mpt__tools_note_add(&note, "-");
}

static void mpt__tools_summary_line(
	mpt__tools_note *note, mpt_graph graph, mpt_module module, const char *path) {
	char name[200], result[200], count[40];
	mpt__tools_note line = mpt__tools_note_begin(name, sizeof name);
	const char *own = path;
	int depth = path[0] != '\0';
	for (const char *c = path; *c; c++)
		if (*c == '.') depth++, own = c + 1;
	for (int i = 0; i < depth && i < 20; i++) mpt__tools_note_add(&line, "  ");
	mpt__tools_note_add(&line, *own ? "%s (%s)" : "%s%s", own, mpt_module_kind(module));
	mpt__tools_module_result(graph, path, result, sizeof result);
	mpt__tools_note number = mpt__tools_note_begin(count, sizeof count);
	mpt__tools_note_count(&number, mpt_parameter_numel(module));
	mpt__tools_note_add(note, "%-40s  %-22s %14s\n", name, result, count);
}

size_t mpt_graph_summary(mpt_graph graph, mpt_module net, char *text, size_t capacity) {
	mpt__tools_note note = mpt__tools_note_begin(text, capacity);
	const int modules = mpt_graph_count(graph) < 0 ? -1 : mpt_module_count(net);
	if (modules < 0) return 0;
	mpt__tools_note_add(&note, "%-40s  %-22s %14s\n", "module (kind)", "output", "parameters");
	for (int i = 0; i < modules; i++) {
		char path[1024];
		const mpt_module module = mpt_module_at(net, i, path, sizeof path);
		mpt__tools_summary_line(&note, graph, module, path);
	}
	const mpt__tools_totals totals = mpt__tools_graph_totals(graph, net);
	mpt__tools_note_add(&note, "parameters: ");
	mpt__tools_note_count(&note, totals.trainable + totals.frozen);
	mpt__tools_note_add(&note, ", trainable ");
	mpt__tools_note_count(&note, totals.trainable);
	mpt__tools_note_add(&note, ", frozen ");
	mpt__tools_note_count(&note, totals.frozen);
	mpt__tools_note_add(&note, "; ");
	mpt__tools_note_count(&note, (int64_t)totals.bytes);
	mpt__tools_note_add(&note, " bytes\nforward pass: %.4g FLOP\n", totals.flop);
	return note.length;
}

/* ==== Graphviz ==== */

/* Within the quotes of a label or name. */
static void mpt__tools_put_quoted(mpt__tools_bytes *to, const char *text) {
	for (; *text; text++) {
		if (*text == '"' || *text == '\\') mpt__tools_bytes_put(to, "\\", 1);
		if ((unsigned char)*text >= 32) mpt__tools_bytes_put(to, text, 1);
	}
}

static void mpt__tools_dot_node(mpt__tools_bytes *to, mpt_graph graph, int index) {
	const mpt_node *node = mpt_graph_node(graph, index);
	char result[640], more[100];
	if (!mpt__tools_node_shown(node)) return;
	mpt__tools_node_result(node, result, sizeof result);
	mpt__tools_node_more(graph, node, more, sizeof more);
	mpt__tools_put_format(to, "n%lld [label=\"", (long long)index);
	mpt__tools_put_quoted(to, node->name);
	mpt__tools_put_format(to, "\\n%s", result);
	mpt__tools_put_format(to, "%s%s\"%s];\n", more[0] ? "\\n" : "", more,
		node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP ? "" : ", style=rounded");
}

/* The nodes of a module, and in a frame each those of the modules below it. */
static void mpt__tools_dot_group(
	mpt__tools_bytes *to, mpt_graph graph, const char *above, int depth) {
	const int count = mpt_graph_count(graph);
	for (int i = 0; i < count; i++) {
		const mpt_node *node = mpt_graph_node(graph, i);
		char group[1024];
		if (strcmp(node->module, above) == 0) mpt__tools_dot_node(to, graph, i);
		if (!mpt__tools_node_shown(node) || !mpt__tools_path_within(node->module, above) ||
			strcmp(node->module, above) == 0)
			continue;
		const size_t length = strlen(above) + (above[0] != '\0');
		const size_t whole = length + strcspn(node->module + length, ".");
		if (whole >= sizeof group || depth > 200) continue;
		memcpy(group, node->module, whole);
		group[whole] = '\0';
		int first = 0;
		while (!mpt__tools_node_shown(mpt_graph_node(graph, first)) ||
			!mpt__tools_path_within(mpt_graph_node(graph, first)->module, group))
			first++;
		if (first < i) continue;	/* its frame is drawn */
		mpt__tools_put_format(
			to, "subgraph cluster_%lld_%lld { label=\"", (long long)depth, (long long)i);
		mpt__tools_put_quoted(to, group + length);
		mpt__tools_put_format(to, "\";\n");
		mpt__tools_dot_group(to, graph, group, depth + 1);
		mpt__tools_put_format(to, "}\n");
	}
}

mpt_status mpt_graph_dot(mpt_graph graph, const char *path) {
	mpt__tools_bytes to = {NULL, 0, 0, false};
	const int count = mpt_graph_count(graph);
	if (count < 0) return MPT_ERROR_HANDLE;
	if (!path) return MPT_ERROR_ARGUMENT;
	mpt__tools_bytes_put_text(&to,
		"digraph net {\nnode [shape=box, fontname=\"sans-serif\", fontsize=11];\n"
		"edge [fontname=\"sans-serif\", fontsize=9];\n"
		"graph [fontname=\"sans-serif\", fontsize=10, labeljust=l, color=gray, style=rounded];\n");
	mpt__tools_dot_group(&to, graph, "", 0);
	for (int i = 0; i < count; i++) {
		const mpt_node *node = mpt_graph_node(graph, i);
		for (int k = 0; k < node->inputs; k++) {
			const int from = node->input[k].node;
			if (from < 0 || !mpt__tools_node_shown(mpt_graph_node(graph, from))) continue;
			mpt__tools_put_format(&to, "n%lld -> n%lld;\n", (long long)from, (long long)i);
		}
	}
	mpt__tools_bytes_put_text(&to, "}\n");
	const mpt_status status = mpt__tools_file_replace(path, &to);
	mpt__tools_bytes_free(&to);
	return status;
}

/* ----
 * tools/graph_event.c: a traced net as TensorBoard reads it, a message of the type
 * tensorflow.GraphDef.
 * ---- */

enum {
	MPT__TOOLS_GRAPH_NODE = 1,
	MPT__TOOLS_NODE_NAME = 1,
	MPT__TOOLS_NODE_OP = 2,
	MPT__TOOLS_NODE_INPUT = 3,
	MPT__TOOLS_NODE_ATTRIBUTE = 5,
	MPT__TOOLS_ATTRIBUTE_LIST = 1,
	MPT__TOOLS_ATTRIBUTE_TYPE = 6,
	MPT__TOOLS_LIST_SHAPE = 7,
	MPT__TOOLS_SHAPE_DIM = 2
};

/* tensorflow.DataType of ours; 0: none. */
static int mpt__tools_tensorflow_type(mpt_dtype dtype) {
	static const struct {
		mpt_dtype dtype;
		int type;
	} types[] = {{MPT_F32, 1}, {MPT_F64, 2}, {MPT_I32, 3}, {MPT_U8, 4}, {MPT_I64, 9},
		{MPT_BF16, 14}, {MPT_F16, 19}};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (types[i].dtype == dtype) return types[i].type;
	return 0;
}

/* A name of its own for each node, in which modules are folders: "0/first/conv2d_7". What cannot
   stand in such a name becomes '_'. */
static void mpt__tools_node_title(mpt_graph graph, int index, int output, char *text, size_t size) {
	const mpt_node *node = mpt_graph_node(graph, index);
	mpt__tools_note note = mpt__tools_note_begin(text, size);
	const char *own = strrchr(node->name, '.');
	for (const char *c = node->module; *c; c++) mpt__tools_note_char(&note, *c == '.' ? '/' : *c);
	if (node->module[0]) mpt__tools_note_char(&note, '/');
	mpt__tools_note_add(&note, "%s_%lld", own ? own + 1 : node->name, (long long)index);
	for (char *c = text; *c; c++)
		if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') &&
			*c != '/')
			*c = '_';
	if (output > 0) mpt__tools_note_add(&note, ":%lld", (long long)output);
}

/* An attribute's message begins: its key, then its value, which two calls of message_end close. */
static size_t mpt__tools_attribute_begin(mpt__tools_bytes *to, const char *key, size_t *value) {
	const size_t attribute = mpt__tools_message_begin(to, MPT__TOOLS_NODE_ATTRIBUTE);
	mpt__tools_put_text_field(to, 1, key);
	*value = mpt__tools_message_begin(to, 2);
	return attribute;
}

static void mpt__tools_put_node_shapes(mpt__tools_bytes *to, const mpt_node *node) {
	size_t value;
	const size_t attribute = mpt__tools_attribute_begin(to, "_output_shapes", &value);
	const size_t list = mpt__tools_message_begin(to, MPT__TOOLS_ATTRIBUTE_LIST);
	for (int i = 0; i < node->outputs; i++) {
		const size_t shape = mpt__tools_message_begin(to, MPT__TOOLS_LIST_SHAPE);
		for (int d = 0; d < node->shape[i].rank; d++) {
			const size_t dim = mpt__tools_message_begin(to, MPT__TOOLS_SHAPE_DIM);
			mpt__tools_put_int_field(to, 1, node->shape[i].dim[d]);
			mpt__tools_message_end(to, dim);
		}
		mpt__tools_message_end(to, shape);
	}
	mpt__tools_message_end(to, list);
	mpt__tools_message_end(to, value);
	mpt__tools_message_end(to, attribute);
}

static void mpt__tools_put_node(mpt__tools_bytes *to, mpt_graph graph, int index) {
	const mpt_node *node = mpt_graph_node(graph, index);
	const int type = node->outputs > 0 ? mpt__tools_tensorflow_type(node->dtype[0]) : 0;
	const char *const kinds[] = {"Placeholder", "Parameter", "Buffer", "Const", "", "", "Identity"};
	char name[1200];
	const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_GRAPH_NODE);
	mpt__tools_node_title(graph, index, 0, name, sizeof name);
	mpt__tools_put_text_field(to, MPT__TOOLS_NODE_NAME, name);
	mpt__tools_put_text_field(
		to, MPT__TOOLS_NODE_OP, kinds[node->kind][0] ? kinds[node->kind] : node->name);
	for (int i = 0; i < node->inputs; i++) {
		if (node->input[i].node < 0) continue;
		mpt__tools_node_title(graph, node->input[i].node, node->input[i].output, name, sizeof name);
		mpt__tools_put_text_field(to, MPT__TOOLS_NODE_INPUT, name);
	}
	mpt__tools_put_node_shapes(to, node);
	if (type > 0) {
		size_t value;
		const size_t attribute = mpt__tools_attribute_begin(to, "T", &value);
		mpt__tools_put_int_field(to, MPT__TOOLS_ATTRIBUTE_TYPE, type);
		mpt__tools_message_end(to, value);
		mpt__tools_message_end(to, attribute);
	}
	mpt__tools_message_end(to, message);
}

mpt_status mpt_journal_graph(mpt_journal *journal, mpt_graph graph) {
	mpt_journal_entry entry;
	mpt_status status;
	if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_GRAPH, "graph", 0, &status))
		return status;
	const int count = graph.context ? mpt_graph_count(graph) : -1;
	if (count < 0) return mpt__tools_journal_tensor_failed(journal, graph.context);
	mpt__tools_bytes bytes = {NULL, 0, 0, false};
	for (int i = 0; i < count; i++) mpt__tools_put_node(&bytes, graph, i);
	entry.graph = bytes.data, entry.graph_bytes = bytes.size;
	status = bytes.failed
		? mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the ", "graph")
		: mpt__tools_journal_enter(journal, &entry);
	mpt__tools_bytes_free(&bytes);
	return status;
}

/* ----
 * tools/drawing.c: a traced net as a picture.
 *
 * A node's row is the longest way to it from an input, so that edges go down; its column is that of
 * the first node that it reads, or the next free one. Of several that read the same, that one goes
 * straight on from which the way to the end is longest. An edge that passes rows by goes around, in
 * a lane of its own at the right of what it passes. Frames are drawn around what a module computes.
 * ---- */

enum {
	MPT__TOOLS_BOX_WIDTH = 220,
	MPT__TOOLS_BOX_HEIGHT = 50,
	MPT__TOOLS_COLUMN = 260,	/* from one to the next */
	MPT__TOOLS_ROW = 94,
	MPT__TOOLS_LANE = 16,
	MPT__TOOLS_EDGE_OF_PICTURE = 40
};

typedef struct {
	const mpt_node *node;
	int row, column;	/* row -1: without a box */
	int readers;		/* boxes that read it */
	int height;			/* the longest way to a box that none reads */
	int heir;			/* which box of the next row is below it, as it was read first; 0: none */
	int next;			/* the box that is next to the right in its row, plus one; 0: none */
} mpt__tools_box;

/* An edge that passes rows by. */
typedef struct {
	int from, to, lane, column;	/* column: the last one that it passes */
} mpt__tools_detour;

typedef struct {
	mpt_graph graph;
	int count, rows, columns, lanes, detours;
	mpt__tools_box *boxes;	/* by node */
	mpt__tools_detour *detour;
} mpt__tools_drawing;

/* ==== Places ==== */

/* The box that an input comes from; -1: none. */
static int mpt__tools_box_before(const mpt__tools_drawing *d, int i, int input) {
	const int from = d->boxes[i].node->input[input].node;
	return from >= 0 && d->boxes[from].row >= 0 ? from : -1;
}

static void mpt__tools_drawing_rows(mpt__tools_drawing *d) {
	for (int i = 0; i < d->count; i++) {
		mpt__tools_box *box = &d->boxes[i];
		box->node = mpt_graph_node(d->graph, i);
		box->row = mpt__tools_node_shown(box->node) ? 0 : -1;
		for (int k = 0; k < box->node->inputs && box->row >= 0; k++) {
			const int from = mpt__tools_box_before(d, i, k);
			if (from < 0) continue;
			d->boxes[from].readers++;
			if (d->boxes[from].row + 1 > box->row) box->row = d->boxes[from].row + 1;
		}
		if (box->row + 1 > d->rows) d->rows = box->row + 1;
	}
	for (int i = d->count; i-- > 0;) {	/* constants beside what reads them, not at the top */
		mpt__tools_box *box = &d->boxes[i];
		if (box->node->kind != MPT_NODE_CONSTANT) continue;
		for (int k = i + 1; k < d->count; k++)
			for (int n = 0; n < d->boxes[k].node->inputs; n++)
				if (d->boxes[k].node->input[n].node == i && d->boxes[k].row > 0) {
					box->row = d->boxes[k].row - 1;
					k = d->count - 1;
					break;
				}
	}
}

/* Which of the boxes that read one first is below it. Box 0, which reads none, is nobody's. */
static void mpt__tools_drawing_heirs(mpt__tools_drawing *d) {
	for (int i = d->count; i-- > 0;)
		for (int k = 0; k < d->boxes[i].node->inputs && d->boxes[i].row >= 0; k++) {
			const int from = mpt__tools_box_before(d, i, k);
			if (from >= 0 && d->boxes[from].height <= d->boxes[i].height)
				d->boxes[from].height = d->boxes[i].height + 1;
		}
	for (int i = 0; i < d->count; i++) {
		const mpt__tools_box *box = &d->boxes[i];
		const int from =
			box->row > 0 && box->node->inputs > 0 ? mpt__tools_box_before(d, i, 0) : -1;
		if (from < 0 || box->row != d->boxes[from].row + 1) continue;
		const int heir = d->boxes[from].heir;
		if (heir == 0 || d->boxes[heir].height < box->height) d->boxes[from].heir = i;
	}
}

/* `first` has a place for each row: its leftmost box, plus one. */
static void mpt__tools_drawing_columns(mpt__tools_drawing *d, int *first) {
	for (int i = 0; i < d->count; i++) {
		mpt__tools_box *box = &d->boxes[i];
		if (box->row < 0) continue;
		const int from = box->node->inputs > 0 ? mpt__tools_box_before(d, i, 0) : -1;
		if (from >= 0) {
			const int heir = d->boxes[from].heir;
			box->column = d->boxes[from].column +
				(heir && heir != i && d->boxes[heir].row == box->row);
		}
		int *link = &first[box->row];
		for (; *link && d->boxes[*link - 1].column <= box->column; link = &d->boxes[*link - 1].next)
			if (d->boxes[*link - 1].column == box->column) box->column++;
		box->next = *link;
		*link = i + 1;
		if (box->column + 1 > d->columns) d->columns = box->column + 1;
	}
}

/* The last column that has a box in these rows. */
static int mpt__tools_drawing_reach(const mpt__tools_drawing *d, int top, int bottom) {
	int reach = 0;
	for (int i = 0; i < d->count; i++)
		if (d->boxes[i].row >= top && d->boxes[i].row <= bottom && d->boxes[i].column > reach)
			reach = d->boxes[i].column;
	return reach;
}

/* Gives detours lanes, in which none meets another. */
static void mpt__tools_drawing_lanes(mpt__tools_drawing *d) {
	for (int i = 0; i < d->count; i++)
		for (int k = 0; k < d->boxes[i].node->inputs && d->boxes[i].row >= 0; k++) {
			const int from = mpt__tools_box_before(d, i, k);
			if (from < 0 || d->boxes[i].row - d->boxes[from].row < 2) continue;
			mpt__tools_detour detour = {from, i, 0,
				mpt__tools_drawing_reach(d, d->boxes[from].row, d->boxes[i].row)};
			for (int n = 0; n < d->detours; n++) {
				const mpt__tools_detour *other = &d->detour[n];
				if (other->lane != detour.lane || other->from == from ||
					d->boxes[other->to].row < d->boxes[from].row ||
					d->boxes[other->from].row > d->boxes[i].row)
					continue;
				detour.lane++;
				n = -1;	/* all of them once more */
			}
			if (detour.lane + 1 > d->lanes) d->lanes = detour.lane + 1;
			d->detour[d->detours++] = detour;
		}
}

static bool mpt__tools_drawing_make(mpt__tools_drawing *d, mpt_graph graph) {
	memset(d, 0, sizeof *d);
	d->graph = graph;
	d->count = mpt_graph_count(graph);
	if (d->count < 1) return false;
	d->boxes = (mpt__tools_box *)mpt__tools_allocate((size_t)d->count * sizeof *d->boxes);
	if (!d->boxes) return false;
	size_t inputs = 0;
	mpt__tools_drawing_rows(d);
	for (int i = 0; i < d->count; i++) inputs += (size_t)d->boxes[i].node->inputs;
	int *first = (int *)mpt__tools_allocate((size_t)d->rows * sizeof *first);
	d->detour = (mpt__tools_detour *)mpt__tools_allocate(inputs * sizeof *d->detour);
	mpt__tools_drawing_heirs(d);
	if (first) mpt__tools_drawing_columns(d, first);
	if (d->detour) mpt__tools_drawing_lanes(d);
	const bool fine = first && d->detour;
	mpt__tools_release(first);
	return fine;
}

static void mpt__tools_drawing_free(mpt__tools_drawing *d) {
	mpt__tools_release(d->boxes);
	mpt__tools_release(d->detour);
}

static int mpt__tools_box_x(const mpt__tools_box *box) {
	return MPT__TOOLS_EDGE_OF_PICTURE + box->column * MPT__TOOLS_COLUMN;
}
static int mpt__tools_box_y(const mpt__tools_box *box) {
	return MPT__TOOLS_EDGE_OF_PICTURE + box->row * MPT__TOOLS_ROW;
}

/* ==== Parts ==== */

/* At most `most` characters, of which the last three are dots where there were more. */
static void mpt__tools_put_cut(mpt__tools_bytes *to, const char *text, size_t most) {
	char cut[80];
	size_t length = strlen(text), n = length > most ? most - 3 : length;
	while (n > 0 && length > most && ((unsigned char)text[n] & 0xC0) == 0x80) n--;	/* UTF-8 */
	memcpy(cut, text, n);
	memcpy(cut + n, length > most ? "..." : "", length > most ? 4 : 1);
	mpt__tools_put_escaped(to, cut);
}

static void mpt__tools_svg_text(
	mpt__tools_bytes *to, int x, int y, const char *style, const char *text, size_t most) {
	if (!text[0]) return;
	mpt__tools_put_format(
		to, "<text x=\"%lld\" y=\"%lld\" class=\"%s\">", (long long)x, (long long)y, style);
	mpt__tools_put_cut(to, text, most);
	mpt__tools_put_format(to, "</text>\n");
}

static void mpt__tools_svg_box(mpt__tools_bytes *to, const mpt__tools_drawing *d, int i) {
	const mpt__tools_box *box = &d->boxes[i];
	const mpt_node *node = box->node;
	const bool op = node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP;
	const int x = mpt__tools_box_x(box), y = mpt__tools_box_y(box), middle = x + 110;
	char result[640], more[100], name[1024];
	mpt__tools_node_result(node, result, sizeof result);
	mpt__tools_node_more(d->graph, node, more, sizeof more);
	mpt__tools_note title = mpt__tools_note_begin(name, sizeof name);
	mpt__tools_note_add(
		&title, node->module[0] ? "%s  %s" : "%s%s", node->name, op ? node->module : "");
	mpt__tools_put_format(to, "<g><title>");
	mpt__tools_put_escaped(to, name);
	mpt__tools_put_format(to,
		": %s</title><rect x=\"%lld\" y=\"%lld\" width=\"220\" height=\"50\" rx=\"%lld\" "
		"class=\"%s\"/>\n",
		result, (long long)x, (long long)y, op ? 6ll : 25ll,
		node->kind == MPT_NODE_CONSTANT                            ? "mg-constant"
			: op && mpt__tools_node_parameters(d->graph, node) > 0 ? "mg-layer"
			: op                                                   ? "mg-op"
																   : "mg-end");
	mpt__tools_svg_text(to, middle, y + (more[0] ? 15 : 21),
		title.length > 27 ? "mg-name mg-long" : "mg-name", name, 32);
	mpt__tools_svg_text(to, middle, y + (more[0] ? 30 : 38), "mg-text", result, 38);
	mpt__tools_svg_text(to, middle, y + 44, "mg-text", more, 40);
	mpt__tools_put_format(to, "</g>\n");
}

static void mpt__tools_svg_edge(
	mpt__tools_bytes *to, const mpt__tools_drawing *d, int from, int i) {
	const mpt__tools_box *a = &d->boxes[from], *b = &d->boxes[i];
	const long long x = mpt__tools_box_x(a) + 110, y = mpt__tools_box_y(a) + 50;
	const long long u = mpt__tools_box_x(b) + 110, v = mpt__tools_box_y(b);
	mpt__tools_put_format(to,
		"<path class=\"mg-edge\" marker-end=\"url(#mg-tip)\" d=\"M%lld %lldC%lld %lld %lld %lld "
		"%lld %lld\"/>\n",
		x, y, x, y + 22, u, v - 22, u, v - 2);
}

/* Out below the box, along its lane, and in above the other. */
static void mpt__tools_svg_detour(
	mpt__tools_bytes *to, const mpt__tools_drawing *d, const mpt__tools_detour *detour) {
	const mpt__tools_box *a = &d->boxes[detour->from], *b = &d->boxes[detour->to];
	const long long x = mpt__tools_box_x(a) + 150, y = mpt__tools_box_y(a) + 50;
	const long long u = mpt__tools_box_x(b) + 150, v = mpt__tools_box_y(b);
	const long long lane = MPT__TOOLS_EDGE_OF_PICTURE + detour->column * MPT__TOOLS_COLUMN +
		MPT__TOOLS_BOX_WIDTH + 24 + detour->lane * MPT__TOOLS_LANE;
	char shape[200];
	mpt__tools_put_format(to,
		"<path class=\"mg-edge\" marker-end=\"url(#mg-tip)\" d=\"M%lld %lldv9q0 8 8 8H%lldq8 0 8 "
		"8V%lldq0 8 -8 8H%lldq-8 0 -8 8v16\"/>\n",
		x, y, lane - 8, v - 34, u + 8);
	mpt__tools_note note = mpt__tools_note_begin(shape, sizeof shape);
	mpt__tools_note_shape(&note, &a->node->shape[0]);
	mpt__tools_put_format(
		to, "<text x=\"%lld\" y=\"%lld\" class=\"mg-along\">%s</text>\n", x + 8, y + 11, shape);
}

/* A frame around the boxes of a module, if it has two or more and this is the first one. */
static void mpt__tools_svg_frame(
	mpt__tools_bytes *to, const mpt__tools_drawing *d, int first, size_t length, int depth) {
	char path[1024];
	int left = d->columns, right = 0, top = d->rows, bottom = 0, boxes = 0;
	if (length >= sizeof path) return;
	memcpy(path, d->boxes[first].node->module, length);
	path[length] = '\0';
	for (int i = 0; i < d->count; i++) {
		const mpt__tools_box *box = &d->boxes[i];
		if (box->row < 0 || !mpt__tools_path_within(box->node->module, path)) continue;
		if (i < first) return;	/* it is drawn */
		left = box->column < left ? box->column : left;
		right = box->column > right ? box->column : right;
		top = box->row < top ? box->row : top;
		bottom = box->row > bottom ? box->row : bottom;
		boxes++;
	}
	if (boxes < 2) return;
	const int out = depth < 5 ? 18 - 3 * depth : 3;
	const long long x = MPT__TOOLS_EDGE_OF_PICTURE + left * MPT__TOOLS_COLUMN - out;
	const long long y = MPT__TOOLS_EDGE_OF_PICTURE + top * MPT__TOOLS_ROW - out;
	mpt__tools_put_format(to,
		"<rect class=\"mg-frame\" x=\"%lld\" y=\"%lld\" width=\"%lld\" height=\"%lld\" "
		"rx=\"8\"/>\n",
		x, y, (long long)(right - left) * MPT__TOOLS_COLUMN + MPT__TOOLS_BOX_WIDTH + 2 * out,
		(long long)(bottom - top) * MPT__TOOLS_ROW + MPT__TOOLS_BOX_HEIGHT + 2 * out);
	/* Beside the names of frames around it, and the tips of edges. */
	const int beside = 4 + 60 * depth + (depth > 1 ? 52 : 0);
	mpt__tools_svg_text(to, (int)x + beside, (int)y - 3, "mg-module", path, 36);
}

static void mpt__tools_svg_frames(mpt__tools_bytes *to, const mpt__tools_drawing *d) {
	for (int i = 0; i < d->count; i++) {
		const char *path = d->boxes[i].node->module;
		if (d->boxes[i].row < 0 || !path[0]) continue;
		size_t length = 0;
		for (int depth = 0; depth < 200; depth++) {
			length += strcspn(path + length, ".");
			mpt__tools_svg_frame(to, d, i, length, depth);
			if (!path[length++]) break;
		}
	}
}

/* ==== The whole ==== */

static const char mpt__tools_svg_style[] =
	"<style>.mg{background:#fff;font-family:system-ui,sans-serif}.mg rect{stroke:#8a94a6;"
	"stroke-width:1}.mg-op{fill:#f4f6fa}.mg-layer{fill:#dbe9ff}.mg-end{fill:#dff3e4}"
	".mg-constant{fill:#fdf0d5}.mg .mg-frame{fill:none;stroke:#b9c0cc;stroke-dasharray:4 3}"
	".mg-edge{fill:none;stroke:#5b6676;stroke-width:1.3}#mg-tip path{fill:#5b6676}"
	".mg text{text-anchor:middle;fill:#1d2430;font-size:11px}.mg .mg-name{font-size:13px;"
	"font-weight:600}.mg .mg-long{font-size:11px}.mg .mg-module,.mg .mg-along{"
	"text-anchor:start;fill:#6b7686;font-size:10px;paint-order:stroke;stroke:#fff;stroke-width:4px}"
	"@media(prefers-color-scheme:dark){.mg{background:#14181f}.mg-op{fill:#232a35}"
	".mg-layer{fill:#1f3a63}.mg-end{fill:#1f4530}.mg-constant{fill:#4a3b1a}"
	".mg rect{stroke:#5f6b7d}.mg .mg-frame{stroke:#465062}.mg-edge{stroke:#97a3b6}"
	"#mg-tip path{fill:#97a3b6}.mg text{fill:#e6eaf0}.mg .mg-module,.mg .mg-along{fill:#97a3b6;"
	"stroke:#14181f}}"
	"</style>\n<defs><marker id=\"mg-tip\" viewBox=\"0 0 8 8\" refX=\"6\" refY=\"4\" "
	"markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\"/></marker>"
	"</defs>\n";

/* The svg element; false on error, without memory or of a graph that is none. */
static bool mpt__tools_put_svg(mpt__tools_bytes *to, mpt_graph graph) {
	mpt__tools_drawing d;
	const bool fine = mpt__tools_drawing_make(&d, graph);
	const long long width = 2 * MPT__TOOLS_EDGE_OF_PICTURE + (d.columns - 1) * MPT__TOOLS_COLUMN +
		MPT__TOOLS_BOX_WIDTH + d.lanes * MPT__TOOLS_LANE;
	const long long height =
		2 * MPT__TOOLS_EDGE_OF_PICTURE + (d.rows - 1) * MPT__TOOLS_ROW + MPT__TOOLS_BOX_HEIGHT;
	if (fine) {
		mpt__tools_put_format(to,
			"<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"mg\" width=\"%lld\" "
			"height=\"%lld\" viewBox=\"0 0 %lld %lld\">\n",
			width, height, width, height);
		mpt__tools_bytes_put_text(to, mpt__tools_svg_style);
		for (int i = 0; i < d.count; i++)
			for (int k = 0; k < d.boxes[i].node->inputs && d.boxes[i].row >= 0; k++) {
				const int from = mpt__tools_box_before(&d, i, k);
				if (from >= 0 && d.boxes[i].row - d.boxes[from].row == 1)
					mpt__tools_svg_edge(to, &d, from, i);
			}
		for (int i = 0; i < d.detours; i++) mpt__tools_svg_detour(to, &d, &d.detour[i]);
		mpt__tools_svg_frames(to, &d);	/* whose names are above the edges */
		for (int i = 0; i < d.count; i++)
			if (d.boxes[i].row >= 0) mpt__tools_svg_box(to, &d, i);
		mpt__tools_bytes_put_text(to, "</svg>\n");
	}
	mpt__tools_drawing_free(&d);
	return fine;
}

mpt_status mpt_graph_svg(mpt_graph graph, const char *path) {
	mpt__tools_bytes to = {NULL, 0, 0, false};
	if (mpt_graph_count(graph) < 0) return MPT_ERROR_HANDLE;
	if (!path) return MPT_ERROR_ARGUMENT;
	const bool fine = mpt__tools_put_svg(&to, graph);
	const mpt_status status = fine ? mpt__tools_file_replace(path, &to) : MPT_ERROR_MEMORY;
	mpt__tools_bytes_free(&to);
	return status;
}

/* ----
 * tools/onnx_model.c: an ONNX model in the making: values, nodes, weights, sizes that go with the
 * batch. Field numbers are those of onnx.proto3.
 * ---- */

/* A value of the model. */
typedef struct {
	char *name;
	mpt_dtype dtype;
	int cast[MPT_DTYPE_COUNT];	/* 1 + the value that is this one in another dtype; 0: none is */
} mpt__onnx_value;

/* A tensor that the file holds: of the net, or made here. */
typedef struct {
	int value;
	mpt_shape shape;
	mpt_tensor tensor;
	unsigned char *data;	/* NULL: that of the tensor */
	int64_t bytes, offset;	/* offset: in the file beside; -1: in the model */
} mpt__onnx_weight;

typedef struct {
	mpt_context *context;
	const mpt_onnx_config *config;
	const mpt_tensor *inputs;
	int n_inputs;
	mpt_graph graph, twin;	/* twin: of a batch twice as large, where sizes go with it */
	bool varies;
	int64_t batch[2];	/* sizes of both */
	int at;				/* the node under way, .. */
	const mpt_node *node, *other;	/* .. and the same in the twin, or in the graph itself */
	int made;						/* values that it has made */
	int *results;					/* by node and output */
	mpt__onnx_value *values;
	mpt__onnx_weight *weights;
	int value_count, value_room, weight_count, weight_room;
	int batch_value;					/* the batch's size as a value; -1: nobody has asked */
	mpt__tools_bytes nodes, attributes;	/* attributes: of the node to come */
	mpt_status status;
	mpt__tools_note why;
} mpt__onnx;

/* ==== Failing ==== */

/* -1, as a value that there is none of. */
static int mpt__onnx_out_of_memory(mpt__onnx *o) {
	if (o->status == MPT_OK) {
		o->status = MPT_ERROR_MEMORY;
		mpt__tools_note_add(&o->why, "out of memory");
	}
	return -1;
}

/* Where the op under way is: "linear of module 0.1". */
static void mpt__onnx_note_place(mpt__onnx *o) {
	mpt__tools_note_add(&o->why, "%s of module \"%s\"", o->node->name, o->node->module);
}

/* The op under way cannot be written. */
static int mpt__onnx_fail(mpt__onnx *o, const char *reason) {
	if (o->status != MPT_OK) return -1;
	o->status = MPT_ERROR_UNSUPPORTED;
	mpt__onnx_note_place(o);
	mpt__tools_note_add(&o->why, ": %s", reason);
	return -1;
}

/* ==== Values ==== */

static int mpt__onnx_value_new(mpt__onnx *o, const char *name, mpt_dtype dtype) {
	if (o->value_count == o->value_room) {
		const int room = o->value_room ? 2 * o->value_room : 256;
		mpt__onnx_value *values =
			(mpt__onnx_value *)mpt__tools_allocate((size_t)room * sizeof *values);
		if (!values) return mpt__onnx_out_of_memory(o);
		if (o->value_count) memcpy(values, o->values, (size_t)o->value_count * sizeof *values);
		mpt__tools_release(o->values);
		o->values = values, o->value_room = room;
	}
	mpt__onnx_value *value = &o->values[o->value_count];
	const size_t length = strlen(name);
	value->name = (char *)mpt__tools_allocate(length + 1);
	if (!value->name) return mpt__onnx_out_of_memory(o);
	memcpy(value->name, name, length + 1);
	value->dtype = dtype;
	return o->value_count++;
}

/* A value that the op under way makes: "encoder.0/linear_7", then "encoder.0/linear_7.1" .. */
static int mpt__onnx_made(mpt__onnx *o, mpt_dtype dtype) {
	char name[1200];
	mpt__tools_note note = mpt__tools_note_begin(name, sizeof name);
	mpt__tools_note_add(
		&note, "%s/%s_%lld", o->node->module, o->node->name, (long long)o->at);
	if (o->made++ > 0) mpt__tools_note_add(&note, ".%lld", (long long)(o->made - 1));
	return mpt__onnx_value_new(o, name, dtype);
}

static const char *mpt__onnx_name(const mpt__onnx *o, int value) {
	return value < 0 ? "" : o->values[value].name;
}

static mpt_dtype mpt__onnx_dtype(const mpt__onnx *o, int value) {
	return value < 0 ? MPT_F32 : o->values[value].dtype;
}

/* TensorProto.DataType; 0: none. */
static int mpt__onnx_type(mpt_dtype dtype) {
	static const unsigned char types[MPT_DTYPE_COUNT] = {0, 1, 10, 16, 17, 19, 11, 7, 6, 2, 9};
	return dtype > MPT_DTYPE_NONE && dtype < MPT_DTYPE_COUNT ? types[dtype] : 0;
}

static bool mpt__onnx_is_float(mpt_dtype dtype) {
	return dtype >= MPT_F32 && dtype <= MPT_F64;
}

/* ==== Nodes ==== */

enum {
	MPT__ONNX_NODE = 1,	/* of a graph .. */
	MPT__ONNX_GRAPH_NAME = 2,
	MPT__ONNX_INITIALIZER = 5,
	MPT__ONNX_INPUT = 11,
	MPT__ONNX_OUTPUT = 12,
	MPT__ONNX_VALUE_INFO = 13,
	MPT__ONNX_NODE_INPUT = 1,	/* of a node .. */
	MPT__ONNX_NODE_OUTPUT = 2,
	MPT__ONNX_NODE_NAME = 3,
	MPT__ONNX_NODE_TYPE = 4,
	MPT__ONNX_NODE_ATTRIBUTE = 5,
	MPT__ONNX_FLOAT = 1,	/* AttributeProto.AttributeType */
	MPT__ONNX_INT = 2,
	MPT__ONNX_STRING = 3,
	MPT__ONNX_GRAPH = 5,
	MPT__ONNX_INTS = 7,
	MPT__ONNX_STRINGS = 8
};

static size_t mpt__onnx_attribute_begin(mpt__onnx *o, const char *key) {
	const size_t message = mpt__tools_message_begin(&o->attributes, MPT__ONNX_NODE_ATTRIBUTE);
	mpt__tools_put_text_field(&o->attributes, 1, key);
	return message;
}

static void mpt__onnx_attribute_end(mpt__onnx *o, size_t message, int type) {
	mpt__tools_put_int_field(&o->attributes, 20, type);
	mpt__tools_message_end(&o->attributes, message);
}

/* Attributes of the node to come. */
static void mpt__onnx_int(mpt__onnx *o, const char *key, int64_t value) {
	const size_t message = mpt__onnx_attribute_begin(o, key);
	mpt__tools_put_int_field(&o->attributes, 3, value);
	mpt__onnx_attribute_end(o, message, MPT__ONNX_INT);
}
static void mpt__onnx_ints(mpt__onnx *o, const char *key, const int64_t *values, int count) {
	const size_t message = mpt__onnx_attribute_begin(o, key);
	for (int i = 0; i < count; i++) mpt__tools_put_int_field(&o->attributes, 8, values[i]);
	mpt__onnx_attribute_end(o, message, MPT__ONNX_INTS);
}
static void mpt__onnx_float(mpt__onnx *o, const char *key, double value) {
	const size_t message = mpt__onnx_attribute_begin(o, key);
	const float narrow = (float)value;
	uint32_t bits;
	memcpy(&bits, &narrow, sizeof bits);
	mpt__tools_put_field(&o->attributes, 2, MPT__TOOLS_WIRE_32);
	mpt__tools_put_little(&o->attributes, bits, 4);
	mpt__onnx_attribute_end(o, message, MPT__ONNX_FLOAT);
}
static void mpt__onnx_text(mpt__onnx *o, const char *key, const char *text) {
	const size_t message = mpt__onnx_attribute_begin(o, key);
	mpt__tools_put_text_field(&o->attributes, 4, text);
	mpt__onnx_attribute_end(o, message, MPT__ONNX_STRING);
}
static void mpt__onnx_texts(mpt__onnx *o, const char *key, const char *text) {
	const size_t message = mpt__onnx_attribute_begin(o, key);
	mpt__tools_put_text_field(&o->attributes, 9, text);
	mpt__onnx_attribute_end(o, message, MPT__ONNX_STRINGS);
}

/* A value of a graph within the graph, of any shape. */
static void mpt__onnx_put_typed(const mpt__onnx *o, mpt__tools_bytes *to, int field, int value) {
	const size_t info = mpt__tools_message_begin(to, field);
	mpt__tools_put_text_field(to, 1, mpt__onnx_name(o, value));
	const size_t type = mpt__tools_message_begin(to, 2);
	const size_t tensor = mpt__tools_message_begin(to, 1);
	mpt__tools_put_int_field(to, 1, mpt__onnx_type(mpt__onnx_dtype(o, value)));
	mpt__tools_message_end(to, tensor);
	mpt__tools_message_end(to, type);
	mpt__tools_message_end(to, info);
}

/* A node with the attributes that were set. An input of -1 is left out; so is an output. */
static void mpt__onnx_put_many(
	mpt__onnx *o, const char *type, const int *in, int n_in, const int *out, int n_out) {
	mpt__tools_bytes *to = &o->nodes;
	while (n_in > 0 && in[n_in - 1] < 0) n_in--;
	const size_t message = mpt__tools_message_begin(to, MPT__ONNX_NODE);
	for (int i = 0; i < n_in; i++)
		mpt__tools_put_text_field(to, MPT__ONNX_NODE_INPUT, mpt__onnx_name(o, in[i]));
	for (int i = 0; i < n_out; i++)
		mpt__tools_put_text_field(to, MPT__ONNX_NODE_OUTPUT, mpt__onnx_name(o, out[i]));
	const char *name = "";
	for (int i = n_out; i-- > 0;)
		if (out[i] >= 0) name = mpt__onnx_name(o, out[i]);
	mpt__tools_put_text_field(to, MPT__ONNX_NODE_NAME, name);
	mpt__tools_put_text_field(to, MPT__ONNX_NODE_TYPE, type);
	if (o->attributes.size) mpt__tools_bytes_put(to, o->attributes.data, o->attributes.size);
	mpt__tools_message_end(to, message);
	if (to->failed || o->attributes.failed) mpt__onnx_out_of_memory(o);
	o->attributes.size = 0;
}

static int mpt__onnx_put(
	mpt__onnx *o, const char *type, const int *in, int n_in, mpt_dtype dtype) {
	const int out = mpt__onnx_made(o, dtype);
	mpt__onnx_put_many(o, type, in, n_in, &out, 1);
	return out;
}

/* Of one input and two, whose dtype, that of the first, the result has. */
static int mpt__onnx_one(mpt__onnx *o, const char *type, int a) {
	return mpt__onnx_put(o, type, &a, 1, mpt__onnx_dtype(o, a));
}
static int mpt__onnx_two(mpt__onnx *o, const char *type, int a, int b) {
	const int in[] = {a, b};
	return mpt__onnx_put(o, type, in, 2, mpt__onnx_dtype(o, a));
}

static int mpt__onnx_cast(mpt__onnx *o, int value, mpt_dtype dtype) {
	if (value < 0 || o->values[value].dtype == dtype) return value;
	if (o->values[value].cast[dtype]) return o->values[value].cast[dtype] - 1;
	if (!mpt__onnx_type(dtype)) return mpt__onnx_fail(o, "a dtype that ONNX does not have");
	mpt__onnx_int(o, "to", mpt__onnx_type(dtype));
	const int out = mpt__onnx_put(o, "Cast", &value, 1, dtype);
	if (out >= 0) o->values[value].cast[dtype] = out + 1;
	return out;
}

/* ==== The op under way ==== */

/* What it reads as input i; -1: nothing. */
static int mpt__onnx_in(mpt__onnx *o, int i) {
	if (i >= o->node->inputs) return -1;
	const mpt_edge edge = o->node->input[i];
	return edge.node < 0 ? -1 : o->results[edge.node * MPT_NODE_OUTPUTS + edge.output];
}
static int mpt__onnx_in_as(mpt__onnx *o, int i, mpt_dtype dtype) {
	return mpt__onnx_cast(o, mpt__onnx_in(o, i), dtype);
}
static int mpt__onnx_wide(mpt__onnx *o, int i) { return mpt__onnx_in_as(o, i, MPT_F32); }

/* The shape of input i in the graph, or, second, in the twin. */
static const mpt_shape *mpt__onnx_shape(const mpt__onnx *o, int i, int second) {
	const mpt_edge edge = o->node->input[i];
	return &mpt_graph_node(second && o->varies ? o->twin : o->graph, edge.node)
				->shape[edge.output];
}
static int mpt__onnx_rank(const mpt__onnx *o, int i) { return mpt__onnx_shape(o, i, 0)->rank; }

/* The sizes of input i from dimension `from` on are written down as they are: they may not go with
   the batch. */
static void mpt__onnx_fixed(mpt__onnx *o, int i, int from) {
	if (i >= o->node->inputs || o->node->input[i].node < 0) return;
	const mpt_shape *shape = mpt__onnx_shape(o, i, 0), *other = mpt__onnx_shape(o, i, 1);
	for (int d = from < 0 ? 0 : from; d < shape->rank; d++)
		if (shape->dim[d] != other->dim[d])
			mpt__onnx_fail(o, "a size that goes with the batch where ONNX wants a number");
}

/* Output k of the op is this value, in the dtype that it has in the net. */
static void mpt__onnx_give(mpt__onnx *o, int k, int value) {
	if (k < o->node->outputs)
		o->results[o->at * MPT_NODE_OUTPUTS + k] = mpt__onnx_cast(o, value, o->node->dtype[k]);
}

/* The dtype in which elements are added and multiplied: fp16 where all is, else fp32. Runtimes have
   few kernels of bf16, and each is the same as one of fp32 whose result is rounded. */
static mpt_dtype mpt__onnx_real(const mpt__onnx *o) {
	return o->node->dtype[0] == MPT_F16 ? MPT_F16 : MPT_F32;
}

/* Input i as a factor of a product: rounded to what the op computes in. */
static int mpt__onnx_factor(mpt__onnx *o, int i, mpt_dtype real) {
	const mpt_dtype compute = o->node->compute;
	int value = mpt__onnx_in(o, i);
	if (compute == MPT_F8E4M3 || compute == MPT_F8E5M2)
		return mpt__onnx_fail(o, "products of fp8, whose scales the net keeps to itself");
	if (compute == MPT_F16 || compute == MPT_BF16) value = mpt__onnx_cast(o, value, compute);
	return mpt__onnx_cast(o, value, real);
}

static mpt_dtype mpt__onnx_product(const mpt__onnx *o) {
	return o->node->compute == MPT_F16 && o->node->dtype[0] == MPT_F16 ? MPT_F16 : MPT_F32;
}

/* ==== Tensors of the file ==== */

static mpt__onnx_weight *mpt__onnx_weight_new(mpt__onnx *o, int value, const mpt_shape *shape) {
	if (value < 0) return NULL;
	if (o->weight_count == o->weight_room) {
		const int room = o->weight_room ? 2 * o->weight_room : 128;
		mpt__onnx_weight *weights =
			(mpt__onnx_weight *)mpt__tools_allocate((size_t)room * sizeof *weights);
		if (!weights) {
			mpt__onnx_out_of_memory(o);
			return NULL;
		}
		if (o->weight_count) memcpy(weights, o->weights, (size_t)o->weight_count * sizeof *weights);
		mpt__tools_release(o->weights);
		o->weights = weights, o->weight_room = room;
	}
	mpt__onnx_weight *weight = &o->weights[o->weight_count++];
	weight->value = value;
	weight->shape = *shape;
	weight->offset = -1;
	weight->bytes = mpt__tools_shape_numel(shape) *
		(int64_t)mpt_dtype_size(o->values[value].dtype);
	return weight;
}

/* A constant made here, little-endian; the same one is there once. */
static int mpt__onnx_constant(
	mpt__onnx *o, mpt_dtype dtype, const mpt_shape *shape, const mpt__tools_bytes *data) {
	char name[40];
	int number = 0;
	if (data->failed) return mpt__onnx_out_of_memory(o);
	for (int i = 0; i < o->weight_count; i++) {
		const mpt__onnx_weight *w = &o->weights[i];
		if (!w->data) continue;
		number++;
		if (o->values[w->value].dtype == dtype && w->bytes == (int64_t)data->size &&
			w->shape.rank == shape->rank &&
			memcmp(w->shape.dim, shape->dim, (size_t)shape->rank * sizeof *shape->dim) == 0 &&
			memcmp(w->data, data->data, data->size) == 0)
			return w->value;
	}
	mpt__tools_note note = mpt__tools_note_begin(name, sizeof name);
	mpt__tools_note_add(&note, "constant/%lld", (long long)number);
	mpt__onnx_weight *weight =
		mpt__onnx_weight_new(o, mpt__onnx_value_new(o, name, dtype), shape);
	if (!weight) return -1;
	weight->data = (unsigned char *)mpt__tools_allocate(data->size);
	if (!weight->data) return mpt__onnx_out_of_memory(o);
	if (data->size) memcpy(weight->data, data->data, data->size);
	return weight->value;
}

/* fp32 numbers. */
static int mpt__onnx_floats(mpt__onnx *o, const double *values, mpt_shape shape) {
	mpt__tools_bytes data = {NULL, 0, 0, false};
	const int64_t count = mpt__tools_shape_numel(&shape);
	for (int64_t i = 0; i < count; i++) {
		const float narrow = (float)values[i];
		uint32_t bits;
		memcpy(&bits, &narrow, sizeof bits);
		mpt__tools_put_little(&data, bits, 4);
	}
	const int out = mpt__onnx_constant(o, MPT_F32, &shape, &data);
	mpt__tools_bytes_free(&data);
	return out;
}
static int mpt__onnx_number(mpt__onnx *o, double value) {
	return mpt__onnx_floats(o, &value, MPT_SCALAR);
}

/* The same number over and over. */
static int mpt__onnx_filled(mpt__onnx *o, double value, const mpt_shape *shape) {
	const int64_t count = mpt__tools_shape_numel(shape);
	double *values = (double *)mpt__tools_allocate((size_t)count * sizeof *values);
	if (!values) return mpt__onnx_out_of_memory(o);
	for (int64_t i = 0; i < count; i++) values[i] = value;
	const int out = mpt__onnx_floats(o, values, *shape);
	mpt__tools_release(values);
	return out;
}

static int mpt__onnx_integers(mpt__onnx *o, const int64_t *values, mpt_shape shape) {
	mpt__tools_bytes data = {NULL, 0, 0, false};
	const int64_t count = mpt__tools_shape_numel(&shape);
	for (int64_t i = 0; i < count; i++) mpt__tools_put_little(&data, (uint64_t)values[i], 8);
	const int out = mpt__onnx_constant(o, MPT_I64, &shape, &data);
	mpt__tools_bytes_free(&data);
	return out;
}
static int mpt__onnx_list(mpt__onnx *o, const int64_t *values, int count) {
	return mpt__onnx_integers(o, values, MPT_SHAPE(count));
}
static int mpt__onnx_integer(mpt__onnx *o, int64_t value) {
	return mpt__onnx_integers(o, &value, MPT_SHAPE(1));
}

/* ==== Sizes ==== */

/* The batch's size, [1]. */
static int mpt__onnx_batch(mpt__onnx *o) {
	for (int i = 0; o->batch_value < 0 && i < o->n_inputs; i++) {
		const int dim = o->config->batch_dims ? o->config->batch_dims[i] : 0;
		const mpt_node *input = mpt_graph_node(o->graph, i);
		if (dim < 0 || dim >= input->shape[0].rank) continue;
		mpt__onnx_int(o, "start", dim);
		mpt__onnx_int(o, "end", dim + 1);
		o->batch_value =
			mpt__onnx_put(o, "Shape", &o->results[i * MPT_NODE_OUTPUTS], 1, MPT_I64);
	}
	return o->batch_value;
}

/* A number of the graph that is `other` in the twin as times * batch + more. */
static bool mpt__onnx_goes_with(
	const mpt__onnx *o, int64_t number, int64_t other, int64_t *times, int64_t *more) {
	const int64_t step = o->batch[1] - o->batch[0];
	if (step <= 0 || (other - number) % step != 0) return false;
	*times = (other - number) / step;
	*more = number - *times * o->batch[0];
	return *times > 0 && *more >= 0;
}

/* Such a number as a value, [1]. */
static int mpt__onnx_size(mpt__onnx *o, int64_t number, int64_t other) {
	int64_t times, more;
	if (number == other) return mpt__onnx_integer(o, number);
	if (!mpt__onnx_goes_with(o, number, other, &times, &more))
		return mpt__onnx_fail(o, "a size that does not go with the batch; name no batch");
	int value = mpt__onnx_batch(o);
	if (times != 1) value = mpt__onnx_two(o, "Mul", value, mpt__onnx_integer(o, times));
	return more == 0 ? value : mpt__onnx_two(o, "Add", value, mpt__onnx_integer(o, more));
}

/* A shape as a value. */
static int mpt__onnx_dims(mpt__onnx *o, const mpt_shape *shape, const mpt_shape *other) {
	int parts[MPT_MAX_RANK], changed = 0;
	for (int i = 0; i < shape->rank; i++) changed += shape->dim[i] != other->dim[i];
	if (changed == 0) return mpt__onnx_list(o, shape->dim, shape->rank);
	for (int i = 0; i < shape->rank; i++)
		parts[i] = mpt__onnx_size(o, shape->dim[i], other->dim[i]);
	if (shape->rank == 1) return parts[0];
	mpt__onnx_int(o, "axis", 0);
	return mpt__onnx_put(o, "Concat", parts, shape->rank, MPT_I64);
}

/* A value in another shape. The one size that goes with the batch is left to the runtime. */
static int mpt__onnx_reshape(
	mpt__onnx *o, int value, const mpt_shape *shape, const mpt_shape *other) {
	mpt_shape open = *shape;
	int changed = 0, zeros = 0;
	for (int i = 0; i < shape->rank; i++) {
		if (shape->dim[i] != other->dim[i]) open.dim[i] = -1, changed++;
		zeros += shape->dim[i] == 0;
	}
	const int dims = changed == 1 && zeros == 0 ? mpt__onnx_list(o, open.dim, open.rank)
												: mpt__onnx_dims(o, shape, other);
	if (zeros) mpt__onnx_int(o, "allowzero", 1);
	return mpt__onnx_two(o, "Reshape", value, dims);
}

/* In sizes that the runtime fills in: 0 that of the value, -1 what is left. */
static int mpt__onnx_as(mpt__onnx *o, int value, mpt_shape shape) {
	return mpt__onnx_two(o, "Reshape", value, mpt__onnx_list(o, shape.dim, shape.rank));
}

/* In the shape of the op's output. */
static int mpt__onnx_shaped(mpt__onnx *o, int value) {
	return mpt__onnx_reshape(o, value, &o->node->shape[0], &o->other->shape[0]);
}

/* Stretched to that. Runtimes stretch no bf16. */
static int mpt__onnx_expanded(mpt__onnx *o, int value) {
	const int dims = mpt__onnx_dims(o, &o->node->shape[0], &o->other->shape[0]);
	if (mpt__onnx_dtype(o, value) == MPT_BF16) value = mpt__onnx_cast(o, value, MPT_F32);
	return mpt__onnx_cast(o, mpt__onnx_two(o, "Expand", value, dims), o->node->dtype[0]);
}

/* Dimension i of the result is dimension order[i] of the value. */
static int mpt__onnx_transpose(mpt__onnx *o, int value, mpt_shape order) {
	mpt__onnx_ints(o, "perm", order.dim, order.rank);
	return mpt__onnx_one(o, "Transpose", value);
}

/* Elements [start, stop) of a dimension. */
static int mpt__onnx_part(mpt__onnx *o, int value, int64_t dim, int64_t start, int64_t stop) {
	const int in[] = {value, mpt__onnx_integer(o, start), mpt__onnx_integer(o, stop),
		mpt__onnx_integer(o, dim)};
	return mpt__onnx_put(o, "Slice", in, 4, mpt__onnx_dtype(o, value));
}

static int mpt__onnx_concat(mpt__onnx *o, const int *parts, int count, int64_t dim) {
	if (count == 1) return parts[0];
	mpt__onnx_int(o, "axis", dim);
	return mpt__onnx_put(o, "Concat", parts, count, mpt__onnx_dtype(o, parts[0]));
}

/* A reduction over some dimensions. */
static int mpt__onnx_reduce(
	mpt__onnx *o, const char *type, int value, const int64_t *dims, int count, bool keep) {
	const int in[] = {value, mpt__onnx_list(o, dims, count)};
	mpt__onnx_int(o, "keepdims", keep);
	return mpt__onnx_put(o, type, in, 2, mpt__onnx_dtype(o, value));
}

/* value function number. */
static int mpt__onnx_with(mpt__onnx *o, const char *type, int value, double number) {
	return mpt__onnx_two(o, type, value,
		mpt__onnx_cast(o, mpt__onnx_number(o, number), mpt__onnx_dtype(o, value)));
}

static int mpt__onnx_where(mpt__onnx *o, int condition, int a, int b) {
	const int in[] = {condition, a, b};
	return mpt__onnx_put(o, "Where", in, 3, mpt__onnx_dtype(o, a));
}

/* A comparison. */
static int mpt__onnx_compare(mpt__onnx *o, const char *type, int a, int b) {
	const int in[] = {a, b};
	return mpt__onnx_put(o, type, in, 2, MPT_BOOL);
}

/* ----
 * tools/onnx_ops.c: how ops on elements, shapes, indices and along dimensions are written as ONNX.
 *
 * Each function writes the op under way. Its numbers are those of the op's row in src/ops/.
 * ---- */

/* A row of the table of ops: what it becomes, and who writes it. */
typedef struct mpt__onnx_row {
	const char *op, *form;	/* form: the node's type, or "composed" */
	void (*write)(mpt__onnx *o, const char *form);
} mpt__onnx_row;

/* ==== Elements ==== */

/* A function of each element, in fp32. */
static void mpt__onnx_unary(mpt__onnx *o, const char *form) {
	mpt__onnx_give(o, 0, mpt__onnx_one(o, form, mpt__onnx_wide(o, 0)));
}

/* One that gives a half of a half without rounding. */
static void mpt__onnx_plain(mpt__onnx *o, const char *form) {
	mpt__onnx_give(o, 0, mpt__onnx_one(o, form, mpt__onnx_in_as(o, 0, mpt__onnx_real(o))));
}

static void mpt__onnx_binary(mpt__onnx *o, const char *form) {
	const mpt_dtype real = mpt__onnx_real(o);
	const int a = mpt__onnx_in_as(o, 0, real), b = mpt__onnx_in_as(o, 1, real);
	mpt__onnx_give(o, 0, mpt__onnx_two(o, form, a, b));
}

static void mpt__onnx_wide_binary(mpt__onnx *o, const char *form) {
	mpt__onnx_give(o, 0, mpt__onnx_two(o, form, mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1)));
}

static void mpt__onnx_scalar(mpt__onnx *o, const char *form) {
	mpt__onnx_give(o, 0, mpt__onnx_with(o, form, mpt__onnx_wide(o, 0), o->node->number[0]));
}

static void mpt__onnx_pow_scalar(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	const double power = o->node->number[0];
	mpt__onnx_give(o, 0,
		power == 2.0 ? mpt__onnx_two(o, "Mul", x, x) : mpt__onnx_with(o, form, x, power));
}

/* Of one with `alpha`. */
static void mpt__onnx_alpha(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	mpt__onnx_float(o, "alpha", o->node->number[0]);
	mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

static void mpt__onnx_clamp(mpt__onnx *o, const char *form) {
	int in[3];
	in[0] = mpt__onnx_wide(o, 0);
	for (int i = 0; i < 2; i++)
		in[1 + i] = mpt__tools_is_finite(o->node->number[i])
			? mpt__onnx_number(o, o->node->number[i])
			: -1;
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

static void mpt__onnx_predicate(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, &x, 1, MPT_BOOL));
}

/* x (1 + erf(x / sqrt(2))) / 2 */
static void mpt__onnx_gelu(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	(void)form;
	int y = mpt__onnx_one(o, "Erf", mpt__onnx_with(o, "Div", x, 1.4142135623730951));
	y = mpt__onnx_two(o, "Mul", x, mpt__onnx_with(o, "Add", y, 1.0));
	mpt__onnx_give(o, 0, mpt__onnx_with(o, "Mul", y, 0.5));
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 */
static void mpt__onnx_gelu_tanh(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	(void)form;
	int y = mpt__onnx_two(o, "Mul", mpt__onnx_two(o, "Mul", x, x), x);
	y = mpt__onnx_two(o, "Add", x, mpt__onnx_with(o, "Mul", y, 0.044715));
	y = mpt__onnx_one(o, "Tanh", mpt__onnx_with(o, "Mul", y, 0.7978845608028654));
	y = mpt__onnx_two(o, "Mul", x, mpt__onnx_with(o, "Add", y, 1.0));
	mpt__onnx_give(o, 0, mpt__onnx_with(o, "Mul", y, 0.5));
}

static void mpt__onnx_silu(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	(void)form;
	mpt__onnx_give(o, 0, mpt__onnx_two(o, "Mul", x, mpt__onnx_one(o, "Sigmoid", x)));
}

static void mpt__onnx_softplus(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	const double beta = o->node->number[0], threshold = o->node->number[1];
	const int scaled = beta == 1.0 ? x : mpt__onnx_with(o, "Mul", x, beta);
	int y = mpt__onnx_one(o, form, scaled);
	if (beta != 1.0) y = mpt__onnx_with(o, "Div", y, beta);
	const int beyond = mpt__onnx_compare(o, "Greater", scaled, mpt__onnx_number(o, threshold));
	mpt__onnx_give(o, 0, mpt__onnx_where(o, beyond, x, y));
}

/* With u = 1 + x: x log(u) / (u - 1), and x where u is 1: what rounding u has lost goes away. */
static void mpt__onnx_log1p(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0), u = mpt__onnx_with(o, "Add", x, 1.0);
	(void)form;
	const int less = mpt__onnx_with(o, "Sub", u, 1.0);
	const int tiny = mpt__onnx_compare(o, "Equal", less, mpt__onnx_number(o, 0.0));
	int y = mpt__onnx_two(o, "Mul", x, mpt__onnx_one(o, "Log", u));
	y = mpt__onnx_two(o, "Div", y, mpt__onnx_where(o, tiny, mpt__onnx_number(o, 1.0), less));
	mpt__onnx_give(o, 0, mpt__onnx_where(o, tiny, x, y));
}

static void mpt__onnx_rsqrt(mpt__onnx *o, const char *form) {
	(void)form;
	const int root = mpt__onnx_one(o, "Sqrt", mpt__onnx_wide(o, 0));
	mpt__onnx_give(o, 0, mpt__onnx_one(o, "Reciprocal", root));
}

/* Numbers of equal dtypes that runtimes compare: fp32, or integers of 32 or 64 bits. */
static void mpt__onnx_comparison(mpt__onnx *o, const char *form) {
	const mpt_dtype a = mpt__onnx_dtype(o, mpt__onnx_in(o, 0));
	const mpt_dtype b = mpt__onnx_dtype(o, mpt__onnx_in(o, 1));
	const bool real = mpt__onnx_is_float(a) || mpt__onnx_is_float(b);
	const mpt_dtype dtype = real ? MPT_F32 : a == MPT_I64 || b == MPT_I64 ? MPT_I64 : MPT_I32;
	const bool differ = strcmp(form, "composed") == 0;
	int y = mpt__onnx_compare(o, differ ? "Equal" : form, mpt__onnx_in_as(o, 0, dtype),
		mpt__onnx_in_as(o, 1, dtype));
	mpt__onnx_give(o, 0, differ ? mpt__onnx_one(o, "Not", y) : y);
}

static void mpt__onnx_logical(mpt__onnx *o, const char *form) {
	int in[2];
	for (int i = 0; i < o->node->inputs && i < 2; i++) in[i] = mpt__onnx_in_as(o, i, MPT_BOOL);
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, o->node->inputs, MPT_BOOL));
}

static void mpt__onnx_choice(mpt__onnx *o, const char *form) {
	(void)form;
	mpt__onnx_give(o, 0,
		mpt__onnx_where(o, mpt__onnx_in(o, 0), mpt__onnx_wide(o, 1), mpt__onnx_wide(o, 2)));
}

/* ==== Shapes ==== */

/* Only the dtype may change, which mpt__onnx_give sees to. */
static void mpt__onnx_same(mpt__onnx *o, const char *form) {
	(void)form;
	mpt__onnx_give(o, 0, mpt__onnx_in(o, 0));
}

static void mpt__onnx_reshaped(mpt__onnx *o, const char *form) {
	const mpt_shape *from = mpt__onnx_shape(o, 0, 0), *to = &o->node->shape[0];
	bool same = from->rank == to->rank;
	(void)form;
	for (int i = 0; same && i < to->rank; i++) same = from->dim[i] == to->dim[i];
	const int x = mpt__onnx_in(o, 0);
	mpt__onnx_give(o, 0, same ? x : mpt__onnx_shaped(o, x));
}

static void mpt__onnx_permute(mpt__onnx *o, const char *form) {
	mpt_shape order;
	order.rank = o->node->rank;
	(void)form;
	memcpy(order.dim, o->node->index, sizeof order.dim);
	mpt__onnx_give(o, 0, mpt__onnx_transpose(o, mpt__onnx_in(o, 0), order));
}

static void mpt__onnx_slice(mpt__onnx *o, const char *form) {
	const mpt_node *node[2];
	int64_t start[2], stop[2], whole = 0;
	node[0] = o->node, node[1] = o->other;
	const int64_t dim = o->node->index[0], step = o->node->index[3];
	for (int i = 0; i < 2; i++) {
		const int64_t count = node[i]->shape[0].dim[dim];
		start[i] = node[i]->index[1];
		stop[i] = count > 0 ? start[i] + (count - 1) * step + 1 : start[i];
		whole += start[i] == 0 && count == mpt__onnx_shape(o, 0, i)->dim[dim];
	}
	const int x = mpt__onnx_in(o, 0);
	if (whole == 2) {
		mpt__onnx_give(o, 0, x);
		return;
	}
	const int in[] = {x, mpt__onnx_size(o, start[0], start[1]), mpt__onnx_size(o, stop[0], stop[1]),
		mpt__onnx_integer(o, dim), mpt__onnx_integer(o, step)};
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 5, mpt__onnx_dtype(o, x)));
}

static void mpt__onnx_expand(mpt__onnx *o, const char *form) {
	(void)form;
	mpt__onnx_give(o, 0, mpt__onnx_expanded(o, mpt__onnx_in(o, 0)));
}

static void mpt__onnx_cat(mpt__onnx *o, const char *form) {
	int parts[MPT_NODE_INPUTS];
	(void)form;
	for (int i = 0; i < o->node->inputs; i++)
		parts[i] = mpt__onnx_in_as(o, i, o->node->dtype[0]);
	mpt__onnx_give(o, 0, mpt__onnx_concat(o, parts, o->node->inputs, o->node->index[0]));
}

/* index: before and after the last dimension, then the one before it, and so on. */
static void mpt__onnx_pad(mpt__onnx *o, const char *form) {
	int64_t pads[2 * MPT_MAX_RANK];
	const int rank = mpt__onnx_rank(o, 0);
	memset(pads, 0, sizeof pads);
	for (int i = 0; i < o->node->rank; i++)
		pads[(i % 2) * rank + rank - 1 - i / 2] = o->node->index[i];
	const int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_list(o, pads, 2 * rank),
		mpt__onnx_number(o, o->node->number[0])};
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

static void mpt__onnx_flip(mpt__onnx *o, const char *form) {
	(void)form;
	const int x = mpt__onnx_in(o, 0);
	const int in[] = {x, mpt__onnx_integer(o, -1), mpt__onnx_integer(o, -INT64_MAX),
		mpt__onnx_integer(o, o->node->index[0]), mpt__onnx_integer(o, -1)};
	mpt__onnx_give(o, 0, mpt__onnx_rank(o, 0) == 0
			? x
			: mpt__onnx_put(o, "Slice", in, 5, mpt__onnx_dtype(o, x)));
}

static void mpt__onnx_triangle(mpt__onnx *o, const char *form) {
	const int in[] = {mpt__onnx_wide(o, 0),
		mpt__onnx_integers(o, &o->node->index[0], MPT_SCALAR)};
	mpt__onnx_int(o, "upper", o->node->name[2] == 'i' && o->node->name[3] == 'u');
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 2, MPT_F32));
}

/* index: height and width, or 0 where a scale counts, which is one through number; the way:
   nearest, pixels as areas, corners stay. */
static void mpt__onnx_resize(mpt__onnx *o, const char *form) {
	static const char *const ways[] = {"asymmetric", "half_pixel", "align_corners"};
	static const int64_t dims[] = {2, 3};
	const int64_t *index = o->node->index, way = index[2];
	int in[] = {mpt__onnx_wide(o, 0), -1, -1, -1};
	mpt__onnx_fixed(o, 0, 2);
	if (index[0] == 0 && way != 2) {
		double scale[2];
		for (int i = 0; i < 2; i++) scale[i] = 1.0 / o->node->number[i];
		in[2] = mpt__onnx_floats(o, scale, MPT_SHAPE(2));
	} else {
		in[3] = mpt__onnx_list(o, &o->node->shape[0].dim[2], 2);
	}
	mpt__onnx_ints(o, "axes", dims, 2);
	mpt__onnx_text(o, "mode", way == 0 ? "nearest" : "linear");
	mpt__onnx_text(o, "coordinate_transformation_mode", ways[way]);
	if (way == 0) mpt__onnx_text(o, "nearest_mode", "floor");
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 4, MPT_F32));
}

/* ==== Indices ==== */

/* Elements, or rows of a table, along a dimension. */
static void mpt__onnx_gather(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_in(o, 0);
	mpt__onnx_int(o, "axis", o->node->index[0]);
	mpt__onnx_give(o, 0, mpt__onnx_two(o, form, x, mpt__onnx_in(o, 1)));
}

static void mpt__onnx_embedding(mpt__onnx *o, const char *form) {
	mpt__onnx_int(o, "axis", 0);
	mpt__onnx_give(o, 0, mpt__onnx_two(o, form, mpt__onnx_in(o, 1), mpt__onnx_in(o, 0)));
}

static void mpt__onnx_scatter_add(mpt__onnx *o, const char *form) {
	const int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_in(o, 1), mpt__onnx_wide(o, 2)};
	mpt__onnx_int(o, "axis", o->node->index[0]);
	mpt__onnx_text(o, "reduction", "add");
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

/* 0, 1 and so on. */
static int mpt__onnx_counted(mpt__onnx *o, int64_t count) {
	int64_t *numbers = (int64_t *)mpt__tools_allocate((size_t)count * sizeof *numbers);
	if (!numbers) return mpt__onnx_out_of_memory(o);
	for (int64_t i = 0; i < count; i++) numbers[i] = i;
	const int out = mpt__onnx_integers(o, numbers, MPT_SHAPE(count));
	mpt__tools_release(numbers);
	return out;
}

/* Which of the classes each is. */
static void mpt__onnx_one_hot(mpt__onnx *o, const char *form) {
	(void)form;
	const int x = mpt__onnx_two(o, "Unsqueeze", mpt__onnx_in(o, 0), mpt__onnx_integer(o, -1));
	const int all = mpt__onnx_counted(o, o->node->index[1]);
	mpt__onnx_give(o, 0, mpt__onnx_compare(o, "Equal", x, all));
}

/* index: dimension, how many, the largest first. */
static void mpt__onnx_argsort(mpt__onnx *o, const char *form) {
	const int64_t dim = o->node->index[0];
	const int in[] = {mpt__onnx_wide(o, 0),
		mpt__onnx_size(o, o->node->shape[0].dim[dim], o->other->shape[0].dim[dim])};
	const int out[] = {mpt__onnx_made(o, MPT_F32), mpt__onnx_made(o, MPT_I64)};
	mpt__onnx_int(o, "axis", dim);
	mpt__onnx_int(o, "largest", o->node->index[2] != 0);
	mpt__onnx_put_many(o, form, in, 2, out, 2);
	mpt__onnx_give(o, 0, out[1]);
}

/* ==== Along dimensions ==== */

/* The dimensions that a reduction goes over; returns how many. */
static int mpt__onnx_dims_of(const mpt__onnx *o, int64_t *dims) {
	int count = 0;
	if (!o->node->index[2]) dims[count++] = o->node->index[0];
	for (int i = 0; i < mpt__onnx_rank(o, 0) && o->node->index[2]; i++) dims[count++] = i;
	return count;
}

static int mpt__onnx_over(mpt__onnx *o, const char *form, int value, bool keep) {
	int64_t dims[MPT_MAX_RANK];
	const int count = mpt__onnx_dims_of(o, dims);
	return mpt__onnx_reduce(o, form, value, dims, count, keep);
}

static void mpt__onnx_reduction(mpt__onnx *o, const char *form) {
	mpt__onnx_give(o, 0, mpt__onnx_over(o, form, mpt__onnx_wide(o, 0), o->node->index[1] != 0));
}

static void mpt__onnx_argmax(mpt__onnx *o, const char *form) {
	const bool all = o->node->index[2] != 0;
	int x = mpt__onnx_wide(o, 0);
	if (all) x = mpt__onnx_as(o, x, MPT_SHAPE(-1));
	mpt__onnx_int(o, "axis", all ? 0 : o->node->index[0]);
	mpt__onnx_int(o, "keepdims", all || o->node->index[1]);
	x = mpt__onnx_put(o, form, &x, 1, MPT_I64);
	mpt__onnx_give(o, 0, all ? mpt__onnx_shaped(o, x) : x);
}

/* number[0] is 1 / (n - correction). */
static void mpt__onnx_variance(mpt__onnx *o, const char *form) {
	const int64_t n = o->node->index[3], other = o->other->index[3];
	const double part = o->node->number[0];
	const int x = mpt__onnx_wide(o, 0);
	(void)form;
	int y = mpt__onnx_two(o, "Sub", x, mpt__onnx_over(o, "ReduceMean", x, true));
	y = mpt__onnx_over(o, "ReduceSum", mpt__onnx_two(o, "Mul", y, y), o->node->index[1] != 0);
	if (n == other) {
		y = mpt__onnx_with(o, "Mul", y, part);
	} else {
		const double correction = floor((double)n - 1.0 / part + 0.5);
		const int count = mpt__onnx_cast(o, mpt__onnx_size(o, n, other), MPT_F32);
		const int scalar = mpt__onnx_as(o, count, MPT_SCALAR);
		y = mpt__onnx_two(o, "Div", y, mpt__onnx_with(o, "Sub", scalar, correction));
	}
	mpt__onnx_give(o, 0, o->node->name[0] == 's' ? mpt__onnx_one(o, "Sqrt", y) : y);
}

static void mpt__onnx_norm(mpt__onnx *o, const char *form) {
	const double p = o->node->number[0];
	const int x = mpt__onnx_wide(o, 0);
	const bool largest = p != 1.0 && p != 2.0;
	(void)form;
	mpt__onnx_give(o, 0,
		mpt__onnx_over(o,
			largest        ? "ReduceMax"
				: p == 1.0 ? "ReduceL1"
						   : "ReduceL2",
			largest ? mpt__onnx_one(o, "Abs", x) : x, o->node->index[1] != 0));
}

static void mpt__onnx_cumsum(mpt__onnx *o, const char *form) {
	const int in[] = {mpt__onnx_wide(o, 0),
		mpt__onnx_integers(o, &o->node->index[0], MPT_SCALAR)};
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 2, MPT_F32));
}

static void mpt__onnx_softmax(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	mpt__onnx_int(o, "axis", o->node->index[0]);
	mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

/* a b / (max(|a|, eps) max(|b|, eps)) */
static void mpt__onnx_cosine(mpt__onnx *o, const char *form) {
	const int a = mpt__onnx_wide(o, 0), b = mpt__onnx_wide(o, 1);
	int size[2];
	(void)form;
	const int y = mpt__onnx_over(o, "ReduceSum", mpt__onnx_two(o, "Mul", a, b), false);
	for (int i = 0; i < 2; i++) {
		size[i] = mpt__onnx_over(o, "ReduceL2", i ? b : a, false);
		size[i] = mpt__onnx_with(o, "Max", size[i], o->node->number[0]);
	}
	mpt__onnx_give(
		o, 0, mpt__onnx_two(o, "Div", y, mpt__onnx_two(o, "Mul", size[0], size[1])));
}

/* ----
 * tools/onnx_layers.c: how products, convolutions, pools, norms, attention, recurrent layers and
 * losses are written as ONNX, and the table of all ops.
 * ---- */

/* ==== Products ==== */

static void mpt__onnx_matmul(mpt__onnx *o, const char *form) {
	const mpt_dtype real = mpt__onnx_product(o);
	const int a = mpt__onnx_factor(o, 0, real), b = mpt__onnx_factor(o, 1, real);
	mpt__onnx_give(o, 0, mpt__onnx_two(o, form, a, b));
}

/* Of rows one Gemm; else a product of stacks of matrices, and a sum. */
static void mpt__onnx_linear(mpt__onnx *o, const char *form) {
	const mpt_dtype real = mpt__onnx_product(o);
	int in[] = {mpt__onnx_factor(o, 0, real), mpt__onnx_factor(o, 1, real),
		mpt__onnx_in_as(o, 2, real)};
	if (mpt__onnx_rank(o, 0) == 2) {
		mpt__onnx_int(o, "transB", 1);
		mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, real));
		return;
	}
	in[1] = mpt__onnx_transpose(o, in[1], MPT_SHAPE(1, 0));
	const int y = mpt__onnx_two(o, "MatMul", in[0], in[1]);
	mpt__onnx_give(o, 0, in[2] < 0 ? y : mpt__onnx_two(o, "Add", y, in[2]));
}

/* One of the two numbers, for lines and pixels, that an integer of a convolution holds. */
static int64_t mpt__onnx_half(int64_t pair, int d) {
	return pair >> (d ? 0 : 32) & 0x7fffffff;
}

/* index: groups, stride, padding, dilation, output padding, `same`. */
static void mpt__onnx_conv(mpt__onnx *o, const char *form) {
	const int64_t *index = o->node->index;
	const bool transposed = strcmp(o->node->name, "conv_transpose2d") == 0;
	const mpt_shape *weight = mpt__onnx_shape(o, 1, 0);
	const int dims = weight->rank - 2;
	const mpt_dtype real = mpt__onnx_product(o);
	int64_t kernel[2], stride[2], dilation[2], pads[4], more[2];
	const int in[] = {mpt__onnx_factor(o, 0, real), mpt__onnx_factor(o, 1, real),
		mpt__onnx_in_as(o, 2, real)};
	for (int i = 0; i < dims; i++) {
		const int d = i + 2 - dims;
		kernel[i] = weight->dim[2 + i];
		stride[i] = mpt__onnx_half(index[1], d);
		pads[i] = pads[dims + i] = mpt__onnx_half(index[2], d);
		dilation[i] = mpt__onnx_half(index[3], d);
		more[i] = mpt__onnx_half(index[4], d);
		if (index[5]) pads[dims + i] = dilation[i] * (kernel[i] - 1) - pads[i];
	}
	mpt__onnx_ints(o, "dilations", dilation, dims);
	mpt__onnx_int(o, "group", index[0]);
	mpt__onnx_ints(o, "kernel_shape", kernel, dims);
	if (transposed) mpt__onnx_ints(o, "output_padding", more, dims);
	mpt__onnx_ints(o, "pads", pads, 2 * dims);
	mpt__onnx_ints(o, "strides", stride, dims);
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, real));
}

/* ==== Pools ==== */

enum { MPT__ONNX_COUNTS_PADDING = 1, MPT__ONNX_ADAPTIVE = 2 };

/* Windows of sizes that differ: one by one, along H and then along W. A mean of means is one, as
   all of a window have as many elements. */
static int mpt__onnx_pool_uneven(mpt__onnx *o, int x, bool most) {
	const int64_t *in = mpt__onnx_shape(o, 0, 0)->dim;
	for (int64_t dim = 2; dim < 4; dim++) {
		const int64_t size = in[dim], count = o->node->index[dim - 2];
		int *parts = (int *)mpt__tools_allocate((size_t)count * sizeof *parts);
		if (!parts) return mpt__onnx_out_of_memory(o);
		for (int64_t i = 0; i < count; i++) {
			const int part = mpt__onnx_part(
				o, x, dim, i * size / count, ((i + 1) * size + count - 1) / count);
			parts[i] =
				mpt__onnx_reduce(o, most ? "ReduceMax" : "ReduceMean", part, &dim, 1, true);
		}
		x = mpt__onnx_concat(o, parts, (int)count, dim);
		mpt__tools_release(parts);
	}
	return x;
}

/* index: window, or sizes of the output where it is adaptive; steps; padding; how. Where sizes are
   rounded up, the last windows reach beyond the padding, into what is in no mean. */
static void mpt__onnx_pool(mpt__onnx *o, const char *form) {
	const int64_t *index = o->node->index, *in = mpt__onnx_shape(o, 0, 0)->dim;
	const bool most = strcmp(form, "MaxPool") == 0;
	int64_t window[2], step[2], pads[4], beyond = 0;
	bool even = true;
	int x = mpt__onnx_wide(o, 0);
	mpt__onnx_fixed(o, 0, 2);
	for (int d = 0; d < 2; d++) {
		window[d] = index[d], step[d] = index[2 + d], pads[d] = index[4 + d];
		if (index[6] & MPT__ONNX_ADAPTIVE) {
			even = even && in[2 + d] % index[d] == 0;
			window[d] = step[d] = in[2 + d] / index[d];
			pads[d] = 0;
		}
		const int64_t last = (o->node->shape[0].dim[2 + d] - 1) * step[d];
		pads[2 + d] = last + window[d] - in[2 + d] - pads[d];
		if (pads[2 + d] > pads[d]) beyond = pads[2 + d] - pads[d];
		if (pads[2 + d] <= pads[d]) pads[2 + d] = pads[d];
	}
	if (!even) {
		mpt__onnx_give(o, 0, mpt__onnx_pool_uneven(o, x, most));
		return;
	}
	const bool counts = !most && (index[6] & MPT__ONNX_COUNTS_PADDING) != 0;
	if (counts && beyond > 0 && pads[0] + pads[1] > 0) {
		const int64_t own[] = {0, 0, pads[0], pads[1], 0, 0, pads[0], pads[1]};
		x = mpt__onnx_two(o, "Pad", x, mpt__onnx_list(o, own, 8));
		for (int d = 0; d < 2; d++) pads[2 + d] -= pads[d], pads[d] = 0;
	}
	if (!most) mpt__onnx_int(o, "count_include_pad", counts && beyond == 0);
	mpt__onnx_ints(o, "kernel_shape", window, 2);
	mpt__onnx_ints(o, "pads", pads, 4);
	mpt__onnx_ints(o, "strides", step, 2);
	mpt__onnx_give(o, 0, mpt__onnx_one(o, form, x));
}

/* ==== Norms ==== */

/* A weight or bias, or, left out, as many of `number`. */
static int mpt__onnx_or(mpt__onnx *o, int i, double number, const mpt_shape *shape) {
	const int value = mpt__onnx_wide(o, i);
	return value >= 0 ? value : mpt__onnx_filled(o, number, shape);
}

/* What is added before or behind. */
static int mpt__onnx_and(mpt__onnx *o, int value, int i) {
	const int more = mpt__onnx_wide(o, i);
	return more < 0 ? value : mpt__onnx_two(o, "Add", value, more);
}

/* x / root(mean of squares + eps) over some dimensions. */
static int mpt__onnx_by_squares(mpt__onnx *o, int x, const int64_t *dims, int count, double eps) {
	int y = mpt__onnx_two(o, "Mul", x, x);
	y = mpt__onnx_reduce(o, "ReduceMean", y, dims, count, true);
	y = mpt__onnx_one(o, "Sqrt", mpt__onnx_with(o, "Add", y, eps));
	return mpt__onnx_two(o, "Div", x, y);
}

/* index: dimensions of a row. in: x, weight, bias, and what is added to x, of which the sum is the
   second output. */
static void mpt__onnx_row_norm(mpt__onnx *o, const char *form) {
	const int rank = mpt__onnx_rank(o, 0), count = (int)o->node->index[0];
	const double eps = o->node->number[0];
	mpt_shape row;
	int64_t dims[MPT_MAX_RANK];
	mpt__onnx_fixed(o, 0, rank - count);
	row.rank = count;
	for (int i = 0; i < count; i++) {
		dims[i] = rank - count + i;
		row.dim[i] = mpt__onnx_shape(o, 0, 0)->dim[dims[i]];
	}
	int x = mpt__onnx_and(o, mpt__onnx_wide(o, 0), 3);
	if (o->node->outputs > 1) mpt__onnx_give(o, 1, x);
	if (strcmp(form, "composed") == 0) {
		x = mpt__onnx_by_squares(o, x, dims, count, eps);
		const int weight = mpt__onnx_wide(o, 1);
		if (weight >= 0) x = mpt__onnx_two(o, "Mul", x, weight);
		mpt__onnx_give(o, 0, mpt__onnx_and(o, x, 2));
		return;
	}
	const int in[] = {x, mpt__onnx_or(o, 1, 1.0, &row), mpt__onnx_wide(o, 2)};
	mpt__onnx_int(o, "axis", -count);
	mpt__onnx_float(o, "epsilon", eps);
	mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
}

/* [C] so that it goes with [N, C, ..]. */
static int mpt__onnx_by_channel(mpt__onnx *o, int value) {
	mpt_shape shape = MPT_SHAPE(-1);
	if (value < 0) return value;
	for (int i = 2; i < mpt__onnx_rank(o, 0); i++) shape.dim[shape.rank++] = 1;
	return mpt__onnx_as(o, value, shape);
}

static int mpt__onnx_scaled(mpt__onnx *o, int x) {
	const int weight = mpt__onnx_by_channel(o, mpt__onnx_wide(o, 1));
	const int bias = mpt__onnx_by_channel(o, mpt__onnx_wide(o, 2));
	if (weight >= 0) x = mpt__onnx_two(o, "Mul", x, weight);
	return bias >= 0 ? mpt__onnx_two(o, "Add", x, bias) : x;
}

/* in: x, weight, bias, mean, variance, and what is added to the result. Without a mean it is that
   of the batch. */
static void mpt__onnx_batch_norm(mpt__onnx *o, const char *form) {
	const mpt_shape channels = MPT_SHAPE(mpt__onnx_shape(o, 0, 0)->dim[1]);
	const double eps = o->node->number[0];
	int64_t dims[MPT_MAX_RANK];
	int x = mpt__onnx_wide(o, 0), count = 0;
	if (mpt__onnx_in(o, 3) >= 0) {
		const int in[] = {x, mpt__onnx_or(o, 1, 1.0, &channels),
			mpt__onnx_or(o, 2, 0.0, &channels), mpt__onnx_wide(o, 3), mpt__onnx_wide(o, 4)};
		mpt__onnx_float(o, "epsilon", eps);
		x = mpt__onnx_put(o, form, in, 5, MPT_F32);
	} else {
		for (int i = 0; i < mpt__onnx_rank(o, 0); i++)
			if (i != 1) dims[count++] = i;
		const int mean = mpt__onnx_reduce(o, "ReduceMean", x, dims, count, true);
		x = mpt__onnx_by_squares(o, mpt__onnx_two(o, "Sub", x, mean), dims, count, eps);
		x = mpt__onnx_scaled(o, x);
	}
	mpt__onnx_give(o, 0, mpt__onnx_and(o, x, 5));
}

/* Groups as the channels of an instance norm. index: groups. */
static void mpt__onnx_group_norm(mpt__onnx *o, const char *form) {
	const mpt_shape groups = MPT_SHAPE(o->node->index[0]);
	int in[3];
	(void)form;
	mpt__onnx_fixed(o, 0, 1);
	in[0] = mpt__onnx_as(o, mpt__onnx_wide(o, 0), MPT_SHAPE(0, o->node->index[0], -1));
	in[1] = mpt__onnx_filled(o, 1.0, &groups);
	in[2] = mpt__onnx_filled(o, 0.0, &groups);
	mpt__onnx_float(o, "epsilon", o->node->number[0]);
	const int x = mpt__onnx_put(o, "InstanceNormalization", in, 3, MPT_F32);
	mpt__onnx_give(o, 0, mpt__onnx_scaled(o, mpt__onnx_shaped(o, x)));
}

/* ==== Attention ==== */

/* [B, T, heads * D] as [B, heads, T, D], and back. */
static int mpt__onnx_heads(mpt__onnx *o, int x, int64_t heads, int64_t width) {
	x = mpt__onnx_as(o, x, MPT_SHAPE(0, 0, heads, width / heads));
	return mpt__onnx_transpose(o, x, MPT_SHAPE(0, 2, 1, 3));
}
static int mpt__onnx_heads_back(mpt__onnx *o, int x, int64_t width) {
	x = mpt__onnx_transpose(o, x, MPT_SHAPE(0, 2, 1, 3));
	return mpt__onnx_as(o, x, MPT_SHAPE(0, 0, width));
}

/* Heads of keys and values, [B, G, S, D], each as often as it serves. */
static int mpt__onnx_heads_shared(mpt__onnx *o, int x, const mpt_shape *shape, int64_t heads) {
	const int64_t groups = shape->dim[1], times[] = {1, 1, heads / groups, 1, 1};
	x = mpt__onnx_as(o, x, MPT_SHAPE(0, groups, 1, shape->dim[2], shape->dim[3]));
	x = mpt__onnx_two(o, "Expand", x, mpt__onnx_list(o, times, 5));
	return mpt__onnx_as(o, x, MPT_SHAPE(0, heads, shape->dim[2], shape->dim[3]));
}

/* q, k and v as [.., T, D], rounded as the op rounds them, and how many queries and keys there are
   and how wide a head is. */
static void mpt__onnx_attention_inputs(mpt__onnx *o, int in[3], int64_t size[3]) {
	const int64_t heads = o->node->rank;
	const bool packed = o->node->input[1].node < 0;
	const mpt_shape *q = mpt__onnx_shape(o, 0, 0);
	int64_t last = q->dim[q->rank - 1];
	for (int i = 0; i < 3; i++)
		mpt__onnx_fixed(o, i, heads || q->rank < 4 ? q->rank - 2 : 1);
	if (packed) last /= 3;
	size[0] = size[1] = q->dim[q->rank - 2];
	size[2] = heads ? last / heads : last;
	const int whole = mpt__onnx_factor(o, 0, MPT_F32);
	for (int i = 0; i < 3; i++) {
		const mpt_shape *shape = packed ? q : mpt__onnx_shape(o, i, 0);
		in[i] = packed ? mpt__onnx_part(o, whole, 2, i * last, (i + 1) * last)
					   : mpt__onnx_factor(o, i, MPT_F32);
		if (i == 1) size[1] = shape->dim[shape->rank - 2];
		if (heads)
			in[i] = mpt__onnx_heads(o, in[i], heads, packed ? last : shape->dim[shape->rank - 1]);
		else if (i > 0 && q->rank == 4 && shape->dim[1] != q->dim[1])
			in[i] = mpt__onnx_heads_shared(o, in[i], shape, q->dim[1]);
	}
}

/* Which keys a query of causal attention sees, [T, S]; *blind: one sees none. index: causal, .. ..,
   window, the first query's place. */
static int mpt__onnx_causal(mpt__onnx *o, const int64_t size[3], bool *blind) {
	const int64_t window = o->node->index[3], past = o->node->index[4];
	mpt__tools_bytes seen = {NULL, 0, 0, false};
	const mpt_shape shape = MPT_SHAPE(size[0], size[1]);
	for (int64_t t = 0; t < size[0]; t++) {
		bool any = false;
		for (int64_t s = 0; s < size[1]; s++) {
			const bool sees = s <= t + past && (window == 0 || s > t + past - window);
			any = any || sees;
			mpt__tools_bytes_put(&seen, sees ? "\1" : "\0", 1);
		}
		*blind = *blind || !any;
	}
	const int out = mpt__onnx_constant(o, MPT_BOOL, &shape, &seen);
	mpt__tools_bytes_free(&seen);
	return out;
}

/* softmax(q k^T scale + mask) v. A query that sees no key gives 0. */
static void mpt__onnx_attention(mpt__onnx *o, const char *form) {
	const double lowest = -3.4028234663852886e38;
	double scale = o->node->number[0];
	const bool heads = o->node->rank > 0;
	int in[3], mask = mpt__onnx_in(o, 3), seen = -1;
	bool blind = mask >= 0;
	int64_t size[3];
	(void)form;
	mpt__onnx_attention_inputs(o, in, size);
	if (scale == 0.0) scale = 1.0 / sqrt((double)size[2]);
	const int rank = heads ? 4 : mpt__onnx_rank(o, 0);
	mpt_shape order = rank == 4 ? MPT_SHAPE(0, 1, 3, 2)
		: rank == 3             ? MPT_SHAPE(0, 2, 1)
								: MPT_SHAPE(1, 0);
	int y = mpt__onnx_two(o, "MatMul", in[0], mpt__onnx_transpose(o, in[1], order));
	y = mpt__onnx_with(o, "Mul", y, scale);
	if (mask >= 0 && mpt__onnx_dtype(o, mask) == MPT_BOOL) seen = mask;
	if (mask >= 0 && seen < 0) {
		mask = mpt__onnx_wide(o, 3);
		y = mpt__onnx_two(o, "Add", y, mask);
		seen = mpt__onnx_compare(o, "GreaterOrEqual", mask, mpt__onnx_number(o, lowest));
	}
	if (o->node->index[0]) {
		const int causal = mpt__onnx_causal(o, size, &blind);
		seen = seen < 0 ? causal : mpt__onnx_compare(o, "And", seen, causal);
	}
	if (seen >= 0) y = mpt__onnx_where(o, seen, y, mpt__onnx_number(o, lowest));
	mpt__onnx_int(o, "axis", -1);
	y = mpt__onnx_one(o, "Softmax", y);
	if (blind) y = mpt__onnx_where(o, seen, y, mpt__onnx_number(o, 0.0));
	y = mpt__onnx_two(o, "MatMul", y, in[2]);
	const mpt_shape *out = &o->node->shape[0];
	mpt__onnx_give(o, 0, heads ? mpt__onnx_heads_back(o, y, out->dim[out->rank - 1]) : y);
}

/* Cosines, then sines, of (offset + t) base^(-2 i / D), [T, half]: what the op itself makes of ones
   and zeros. */
static void mpt__onnx_rope_tables(mpt__onnx *o, int64_t rows, int64_t half, int table[2]) {
	const int64_t count = rows * half;
	mpt_rope_config config = mpt_rope_config_default();
	float *turned = (float *)mpt__tools_allocate((size_t)(2 * count) * sizeof *turned);
	double *values = (double *)mpt__tools_allocate((size_t)count * sizeof *values);
	config.base = o->node->number[0], config.offset = o->node->index[0];
	for (int64_t i = 0; turned && i < 2 * count; i++) turned[i] = i % (2 * half) < half;
	if (turned && values && mpt_scope_begin(o->context) == MPT_OK) {
		mpt_tensor x = mpt_from(o->context, MPT_F32, MPT_SHAPE(rows, 2 * half), turned);
		mpt_read_f32(mpt_rope(x, &config), turned, 2 * count);
		mpt_scope_end(o->context);
	}
	for (int k = 0; k < 2 && turned && values; k++) {
		for (int64_t i = 0; i < count; i++)
			values[i] = (double)turned[i / half * 2 * half + k * half + i % half];
		table[k] = mpt__onnx_floats(o, values, MPT_SHAPE(rows, half));
	}
	if (!turned || !values) mpt__onnx_out_of_memory(o);
	mpt__tools_release(turned);
	mpt__tools_release(values);
}

/* index: the first position, whether neighbours are pairs. rank: heads. */
static void mpt__onnx_rope(mpt__onnx *o, const char *form) {
	const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
	const int64_t heads = o->node->rank, width = shape->dim[shape->rank - 1];
	const int64_t half = width / (heads ? 2 * heads : 2), rows = shape->dim[shape->rank - 2];
	const bool neighbours = o->node->index[1] != 0;
	const int rank = heads ? 4 : shape->rank;
	int table[2] = {-1, -1}, half_of[2], turned[2];
	int x = mpt__onnx_wide(o, 0);
	(void)form;
	mpt__onnx_fixed(o, 0, shape->rank - 2);
	mpt__onnx_rope_tables(o, rows, half, table);
	if (heads) x = mpt__onnx_heads(o, x, heads, width);
	mpt_shape split;
	split.rank = rank + 1;
	for (int i = 0; i < rank - 1; i++) split.dim[i] = 0;
	split.dim[rank - 1] = neighbours ? half : 2, split.dim[rank] = neighbours ? 2 : half;
	x = mpt__onnx_as(o, x, split);
	const int64_t dim = neighbours ? rank : rank - 1;
	for (int i = 0; i < 2; i++) {
		const int part = mpt__onnx_part(o, x, dim, i, i + 1);
		half_of[i] = mpt__onnx_two(o, "Squeeze", part, mpt__onnx_integer(o, dim));
	}
	for (int i = 0; i < 2; i++) {
		const int a = mpt__onnx_two(o, "Mul", half_of[0], table[i]);
		const int b = mpt__onnx_two(o, "Mul", half_of[1], table[1 - i]);
		turned[i] = mpt__onnx_two(o, "Unsqueeze", mpt__onnx_two(o, i ? "Add" : "Sub", a, b),
			mpt__onnx_integer(o, dim));
	}
	x = mpt__onnx_concat(o, turned, 2, dim);
	split.rank = rank, split.dim[rank - 1] = 2 * half;
	x = mpt__onnx_as(o, x, split);
	mpt__onnx_give(o, 0, heads ? mpt__onnx_heads_back(o, x, width) : x);
}

/* ==== Hash grids ==== */

/* Cells along a side of level `level`: equal ratios from index[0] to index[1], rounded down. The
   ratio is found by halving, as roots of the C library have other bits elsewhere. */
static int64_t mpt__onnx_cells(const mpt__onnx *o, int64_t level, int64_t levels) {
	const double first = (double)o->node->index[0], last = (double)o->node->index[1];
	double low = 1.0, high = last / first, cells = first;
	for (int i = 0; i < 200 && levels > 1; i++) {
		const double ratio = 0.5 * (low + high);
		double reached = first;
		for (int64_t k = 1; k < levels; k++) reached *= ratio;
		if (reached < last)
			low = ratio;
		else
			high = ratio;
	}
	for (int64_t k = 0; k < level; k++) cells *= high;
	return (int64_t)(cells + 1e-6);
}

/* The rows of a table of `entries` that corners at places [n, D] have. */
static int mpt__onnx_grid_entries(
	mpt__onnx *o, int places, int64_t dims, int64_t cells, int64_t entries) {
	static const int64_t primes[] = {1, 2654435761, 805459861}, last = 1;
	int64_t step[4] = {1, 1, 1, 1};
	for (int64_t d = 0; d < dims; d++) step[d + 1] = step[d] * (cells + 1);
	const bool whole = step[dims] <= entries;
	const int by = mpt__onnx_list(o, whole ? step : primes, (int)dims);
	int all = mpt__onnx_two(o, "Mul", places, by), hash = -1;
	if (whole) return mpt__onnx_reduce(o, "ReduceSum", all, &last, 1, false);
	all = mpt__onnx_two(o, "BitwiseAnd", all, mpt__onnx_integer(o, 0xFFFFFFFF));
	for (int64_t d = 0; d < dims; d++) {
		const int one = mpt__onnx_part(o, all, 1, d, d + 1);
		hash = d ? mpt__onnx_two(o, "BitwiseXor", hash, one) : one;
	}
	hash = mpt__onnx_two(o, "Mod", hash, mpt__onnx_integer(o, entries));
	return mpt__onnx_two(o, "Squeeze", hash, mpt__onnx_integer(o, 1));
}

/* What a level gives for x, doubles [n, D]: the sum over the corners of cells, each by how near it
   is. table: [T, F]. */
static int mpt__onnx_grid_level(
	mpt__onnx *o, int x, int table, int64_t dims, int64_t cells, int64_t entries) {
	const int64_t last = 1;
	int part[2], sum = -1;
	int at = mpt__onnx_with(o, "Mul", x, (double)cells);
	at = mpt__onnx_with(o, "Max", mpt__onnx_with(o, "Min", at, (double)cells), 0.0);
	int low = mpt__onnx_with(o, "Min", mpt__onnx_one(o, "Floor", at), (double)(cells - 1));
	part[1] = mpt__onnx_cast(o, mpt__onnx_two(o, "Sub", at, low), MPT_F32);
	part[0] = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", part[1]), 1.0);
	low = mpt__onnx_cast(o, low, MPT_I64);
	for (int64_t c = 0; c < (int64_t)1 << dims; c++) {
		int64_t step[3];
		for (int64_t d = 0; d < dims; d++) step[d] = c >> d & 1;
		const int corner = mpt__onnx_list(o, step, (int)dims);
		const int places = mpt__onnx_two(o, "Add", low, corner);
		const int entry = mpt__onnx_grid_entries(o, places, dims, cells, entries);
		int weight = mpt__onnx_where(o, mpt__onnx_cast(o, corner, MPT_BOOL), part[1], part[0]);
		weight = mpt__onnx_reduce(o, "ReduceProd", weight, &last, 1, true);
		mpt__onnx_int(o, "axis", 0);
		const int row = mpt__onnx_two(o, "Gather", table, entry);
		const int share = mpt__onnx_two(o, "Mul", row, weight);
		sum = c ? mpt__onnx_two(o, "Add", sum, share) : share;
	}
	return sum;
}

/* in: x [.., D], table [L, T, F]. index: cells of the first and the last level. */
static void mpt__onnx_hash_grid(mpt__onnx *o, const char *form) {
	const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
	const int64_t *size = mpt__onnx_shape(o, 1, 0)->dim, dims = shape->dim[shape->rank - 1];
	int *level = (int *)mpt__tools_allocate((size_t)size[0] * sizeof *level);
	(void)form;
	mpt__onnx_fixed(o, 0, shape->rank - 1);
	if (!level) {
		mpt__onnx_out_of_memory(o);
		return;
	}
	const int x = mpt__onnx_as(o, mpt__onnx_in_as(o, 0, MPT_F64), MPT_SHAPE(-1, dims));
	const int tables = mpt__onnx_wide(o, 1);
	for (int64_t i = 0; i < size[0]; i++) {
		int table = mpt__onnx_part(o, tables, 0, i, i + 1);
		table = mpt__onnx_two(o, "Squeeze", table, mpt__onnx_integer(o, 0));
		level[i] = mpt__onnx_grid_level(
			o, x, table, dims, mpt__onnx_cells(o, i, size[0]), size[1]);
	}
	mpt__onnx_give(o, 0, mpt__onnx_shaped(o, mpt__onnx_concat(o, level, (int)size[0], 1)));
	mpt__tools_release(level);
}

/* ==== Recurrent layers ==== */

enum { MPT__ONNX_CELL_GATES = 4 };

/* Rows of gates in the order that ONNX has them: of an LSTM i, o, f, c from i, f, g, o; of a GRU z,
   r, h from r, z, n. */
static int mpt__onnx_gates(mpt__onnx *o, int value, int gates, int64_t hidden) {
	static const int order[][MPT__ONNX_CELL_GATES] = {{0}, {1, 0, 2}, {0, 3, 1, 2}};
	int part[MPT__ONNX_CELL_GATES];
	if (gates == 1 || value < 0) return value;
	for (int i = 0; i < gates; i++) {
		const int64_t from = order[gates - 2][i] * hidden;
		part[i] = mpt__onnx_part(o, value, 0, from, from + hidden);
	}
	return mpt__onnx_concat(o, part, gates, 0);
}

/* With a dimension of 1 in front: that of directions. */
static int mpt__onnx_directed(mpt__onnx *o, int value) {
	return value < 0 ? value : mpt__onnx_two(o, "Unsqueeze", value, mpt__onnx_integer(o, 0));
}

static int mpt__onnx_biases(mpt__onnx *o, int gates, int64_t hidden) {
	const mpt_shape shape = MPT_SHAPE(gates * hidden);
	int part[2];
	if (mpt__onnx_in(o, 3) < 0 && mpt__onnx_in(o, 4) < 0) return -1;
	for (int i = 0; i < 2; i++)
		part[i] = mpt__onnx_gates(o, mpt__onnx_or(o, 3 + i, 0.0, &shape), gates, hidden);
	return mpt__onnx_directed(o, mpt__onnx_concat(o, part, 2, 0));
}

/* A state to begin with, or zeros of the shape of output k. */
static int mpt__onnx_state(mpt__onnx *o, int i, int k) {
	const int value = mpt__onnx_wide(o, i);
	if (value >= 0) return value;
	const int dims = mpt__onnx_dims(o, &o->node->shape[k], &o->other->shape[k]);
	return mpt__onnx_two(o, "Expand", mpt__onnx_number(o, 0.0), dims);
}

/* One step of an LSTM with a projection, in the graph of a Scan. of: weight_hh and weight_hr turned
   around, lengths [B, 1] or -1. in: h, c, what x gives to the gates, the step's number; out: h, c
   and what the step gives. */
static void mpt__onnx_projected_step(mpt__onnx *o, const int of[3], const int in[4], int out[3]) {
	static const char *const functions[] = {"Sigmoid", "Sigmoid", "Tanh", "Sigmoid"};
	const int64_t hidden = mpt__onnx_shape(o, 2, 0)->dim[0] / 4;
	const int all = mpt__onnx_two(o, "Add", in[2], mpt__onnx_two(o, "MatMul", in[0], of[0]));
	int gate[4];
	for (int i = 0; i < 4; i++) {
		gate[i] = mpt__onnx_part(o, all, 1, i * hidden, (i + 1) * hidden);
		gate[i] = mpt__onnx_one(o, functions[i], gate[i]);
	}
	out[1] = mpt__onnx_two(o, "Add", mpt__onnx_two(o, "Mul", gate[1], in[1]),
		mpt__onnx_two(o, "Mul", gate[0], gate[2]));
	out[0] = mpt__onnx_two(o, "Mul", gate[3], mpt__onnx_one(o, "Tanh", out[1]));
	out[0] = mpt__onnx_two(o, "MatMul", out[0], of[1]);
	if (of[2] < 0) {
		out[2] = mpt__onnx_one(o, "Identity", out[0]);
		return;
	}
	const int live = mpt__onnx_compare(o, "Less", in[3], of[2]);
	out[2] = mpt__onnx_where(o, live, out[0], mpt__onnx_number(o, 0.0));
	for (int i = 0; i < 2; i++) out[i] = mpt__onnx_where(o, live, out[i], in[i]);
}

/* The graph of such a step as an attribute of the node to come. */
static void mpt__onnx_projected_body(mpt__onnx *o, const int of[3]) {
	const mpt__tools_bytes outer = o->nodes, none = {NULL, 0, 0, false};
	mpt__tools_bytes *to = &o->attributes;
	int in[4], out[3];
	for (int i = 0; i < 4; i++) in[i] = mpt__onnx_made(o, i < 3 ? MPT_F32 : MPT_I64);
	o->nodes = none;
	mpt__onnx_projected_step(o, of, in, out);
	mpt__tools_bytes body = o->nodes;
	o->nodes = outer;
	const size_t attribute = mpt__onnx_attribute_begin(o, "body");
	const size_t graph = mpt__tools_message_begin(to, 6);
	mpt__tools_bytes_put(to, body.data, body.size);
	mpt__tools_put_text_field(to, MPT__ONNX_GRAPH_NAME, "step");
	const int inputs = of[2] < 0 ? 3 : 4;
	for (int i = 0; i < inputs; i++) mpt__onnx_put_typed(o, to, MPT__ONNX_INPUT, in[i]);
	for (int i = 0; i < 3; i++) mpt__onnx_put_typed(o, to, MPT__ONNX_OUTPUT, out[i]);
	mpt__tools_message_end(to, graph);
	mpt__onnx_attribute_end(o, attribute, MPT__ONNX_GRAPH);
	if (body.failed) mpt__onnx_out_of_memory(o);
	mpt__tools_bytes_free(&body);
}

/* An LSTM with a projection, which ONNX's has not, as a Scan over its steps. */
static void mpt__onnx_projected(mpt__onnx *o) {
	static const int64_t back[] = {1, 1};
	const bool batch_first = o->node->index[0] != 0, reverse = o->node->index[1] != 0;
	const mpt_shape turn = MPT_SHAPE(1, 0, 2), across = MPT_SHAPE(1, 0);
	const int64_t steps = mpt__onnx_shape(o, 0, 0)->dim[batch_first];
	int of[3], in[4], out[3];
	if (steps != mpt__onnx_shape(o, 0, 1)->dim[batch_first])
		mpt__onnx_fail(o, "as many steps as samples; set batch_dims");
	int x = mpt__onnx_factor(o, 0, MPT_F32);
	if (batch_first) x = mpt__onnx_transpose(o, x, turn);
	const int w = mpt__onnx_transpose(o, mpt__onnx_factor(o, 1, MPT_F32), across);
	of[0] = mpt__onnx_transpose(o, mpt__onnx_factor(o, 2, MPT_F32), across);
	of[1] = mpt__onnx_transpose(o, mpt__onnx_factor(o, 5, MPT_F32), across);
	of[2] = mpt__onnx_in(o, 8);
	if (of[2] >= 0) of[2] = mpt__onnx_two(o, "Unsqueeze", of[2], mpt__onnx_integer(o, 1));
	x = mpt__onnx_two(o, "MatMul", x, w);
	in[2] = mpt__onnx_and(o, mpt__onnx_and(o, x, 3), 4);
	in[0] = mpt__onnx_state(o, 6, 1), in[1] = mpt__onnx_state(o, 7, 2);
	in[3] = of[2] < 0 ? -1 : mpt__onnx_counted(o, steps);
	for (int i = 0; i < 3; i++) out[i] = mpt__onnx_made(o, MPT_F32);
	mpt__onnx_projected_body(o, of);
	mpt__onnx_int(o, "num_scan_inputs", of[2] < 0 ? 1 : 2);
	if (reverse) {
		mpt__onnx_ints(o, "scan_input_directions", back, of[2] < 0 ? 1 : 2);
		mpt__onnx_ints(o, "scan_output_directions", back, 1);
	}
	mpt__onnx_put_many(o, "Scan", in, 4, out, 3);
	mpt__onnx_give(o, 0, batch_first ? mpt__onnx_transpose(o, out[2], turn) : out[2]);
	mpt__onnx_give(o, 1, out[0]);
	mpt__onnx_give(o, 2, out[1]);
}

/* in: x, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr, h, c, lengths. index: batch first,
   backwards. out: each step's state, h, c. */
static void mpt__onnx_recurrent(mpt__onnx *o, const char *form) {
	const int gates = form[0] == 'L' ? 4 : form[0] == 'G' ? 3 : 1;
	const bool batch_first = o->node->index[0] != 0;
	const mpt_shape turn = MPT_SHAPE(1, 0, 2);
	int in[8], out[3] = {-1, -1, -1};
	const int64_t hidden = mpt__onnx_shape(o, 2, 0)->dim[0] / gates;
	if (mpt__onnx_in(o, 5) >= 0) {
		mpt__onnx_projected(o);
		return;
	}
	in[0] = mpt__onnx_factor(o, 0, MPT_F32);
	if (batch_first) in[0] = mpt__onnx_transpose(o, in[0], turn);
	for (int i = 1; i < 3; i++)
		in[i] = mpt__onnx_directed(
			o, mpt__onnx_gates(o, mpt__onnx_factor(o, i, MPT_F32), gates, hidden));
	in[3] = mpt__onnx_biases(o, gates, hidden);
	in[4] = mpt__onnx_in_as(o, 8, MPT_I32);
	in[5] = mpt__onnx_directed(o, mpt__onnx_wide(o, 6));
	in[6] = gates == 4 ? mpt__onnx_directed(o, mpt__onnx_wide(o, 7)) : -1;
	in[7] = -1;
	mpt__onnx_text(o, "direction", o->node->index[1] ? "reverse" : "forward");
	mpt__onnx_int(o, "hidden_size", hidden);
	if (gates == 3) mpt__onnx_int(o, "linear_before_reset", 1);
	if (gates == 1)
		mpt__onnx_texts(
			o, "activations", o->node->activation == MPT_ACTIVATION_RELU ? "Relu" : "Tanh");
	for (int i = 0; i < (gates == 4 ? 3 : 2); i++) out[i] = mpt__onnx_made(o, MPT_F32);
	mpt__onnx_put_many(o, form, in, 8, out, gates == 4 ? 3 : 2);
	int y = mpt__onnx_two(o, "Squeeze", out[0], mpt__onnx_integer(o, 1));
	mpt__onnx_give(o, 0, batch_first ? mpt__onnx_transpose(o, y, turn) : y);
	for (int i = 1; i < o->node->outputs && i < 3; i++)
		mpt__onnx_give(o, i, mpt__onnx_two(o, "Squeeze", out[i], mpt__onnx_integer(o, 0)));
}

/* ==== Losses ==== */

static int mpt__onnx_sum(mpt__onnx *o, int value) {
	const int64_t first = 0;
	return mpt__onnx_reduce(o, "ReduceSum", value, &first, 1, false);
}

/* What nodes of ONNX's do not do: of log-probabilities [n, C] and classes [n] each loss, smoothed,
   and their sum or mean over those that are not ignored. */
static int mpt__onnx_nll_of(mpt__onnx *o, int logs, int classes, int weights, int64_t count) {
	const double smoothing = o->node->number[0];
	const int ignored = mpt__onnx_integer(o, o->node->index[0]), one = mpt__onnx_integer(o, 1);
	const int kept = mpt__onnx_one(o, "Not", mpt__onnx_compare(o, "Equal", classes, ignored));
	const int safe = mpt__onnx_where(o, kept, classes, mpt__onnx_integer(o, 0));
	const int column = mpt__onnx_two(o, "Unsqueeze", safe, one), zero = mpt__onnx_number(o, 0.0);
	int by = mpt__onnx_cast(o, kept, MPT_F32), all = logs;
	mpt__onnx_int(o, "axis", 1);
	int each = mpt__onnx_two(o, "GatherElements", logs, column);
	each = mpt__onnx_two(o, "Squeeze", each, one);
	if (weights >= 0) {
		mpt__onnx_int(o, "axis", 0);
		by = mpt__onnx_two(o, "Mul", by, mpt__onnx_two(o, "Gather", weights, safe));
		all = mpt__onnx_two(o, "Mul", logs, weights);
	}
	each = mpt__onnx_with(o, "Mul", mpt__onnx_two(o, "Mul", each, by), smoothing - 1.0);
	if (smoothing != 0.0) {
		const int64_t last = 1;
		all = mpt__onnx_reduce(o, "ReduceSum", all, &last, 1, false);
		all = mpt__onnx_with(o, "Mul", all, smoothing / (double)count);
		each = mpt__onnx_two(o, "Sub", each, mpt__onnx_where(o, kept, all, zero));
	}
	if (o->node->reduction == MPT_NONE) return mpt__onnx_shaped(o, each);
	each = mpt__onnx_sum(o, each);
	if (o->node->reduction == MPT_SUM) return each;
	return mpt__onnx_two(o, "Div", each, mpt__onnx_sum(o, by));
}

/* in: log-probabilities or logits, classes, weights of classes. index[0]: the class that is
   ignored; number[0]: smoothing. */
static void mpt__onnx_nll(mpt__onnx *o, const char *form) {
	static const char *const reductions[] = {"mean", "sum", "none"};
	int in[] = {mpt__onnx_wide(o, 0), mpt__onnx_in(o, 1), mpt__onnx_wide(o, 2)};
	const mpt_shape *shape = mpt__onnx_shape(o, 0, 0);
	const int64_t count = shape->dim[shape->rank - 1];
	if (o->node->number[0] == 0.0 && shape->rank == 2) {
		mpt__onnx_int(o, "ignore_index", o->node->index[0]);
		mpt__onnx_text(o, "reduction", reductions[o->node->reduction]);
		mpt__onnx_give(o, 0, mpt__onnx_put(o, form, in, 3, MPT_F32));
		return;
	}
	in[0] = mpt__onnx_as(o, in[0], MPT_SHAPE(-1, count));
	in[1] = mpt__onnx_as(o, in[1], MPT_SHAPE(-1));
	if (form[0] == 'S') {	/* of logits */
		mpt__onnx_int(o, "axis", 1);
		in[0] = mpt__onnx_one(o, "LogSoftmax", in[0]);
	}
	mpt__onnx_give(o, 0, mpt__onnx_nll_of(o, in[0], in[1], in[2], count));
}

/* The same of x times a matrix. in: x, weight, classes, weights of classes. */
static void mpt__onnx_linear_nll(mpt__onnx *o, const char *form) {
	const mpt_shape *weight = mpt__onnx_shape(o, 1, 0);
	int x = mpt__onnx_factor(o, 0, MPT_F32), w = mpt__onnx_factor(o, 1, MPT_F32);
	(void)form;
	x = mpt__onnx_as(o, x, MPT_SHAPE(-1, weight->dim[1]));
	x = mpt__onnx_two(o, "MatMul", x, mpt__onnx_transpose(o, w, MPT_SHAPE(1, 0)));
	mpt__onnx_int(o, "axis", 1);
	x = mpt__onnx_one(o, "LogSoftmax", x);
	const int classes = mpt__onnx_as(o, mpt__onnx_in(o, 2), MPT_SHAPE(-1));
	mpt__onnx_give(
		o, 0, mpt__onnx_nll_of(o, x, classes, mpt__onnx_wide(o, 3), weight->dim[0]));
}

/* The loss of each element, put together as the call asks. */
static void mpt__onnx_loss(mpt__onnx *o, int each) {
	int64_t dims[MPT_MAX_RANK];
	const mpt_shape *shape = mpt__onnx_shape(o, 0, 0), *other = mpt__onnx_shape(o, 0, 1);
	for (int i = 0; i < shape->rank; i++) dims[i] = i;
	const mpt_reduction how = (mpt_reduction)o->node->reduction;
	if (how == MPT_MEAN)
		each = mpt__onnx_reduce(o, "ReduceMean", each, dims, shape->rank, false);
	if (how == MPT_SUM || how == MPT_BATCH_MEAN)
		each = mpt__onnx_reduce(o, "ReduceSum", each, dims, shape->rank, false);
	const bool soft = o->node->name[0] == 's';	/* one loss for all classes, the second dimension */
	if (how == MPT_BATCH_MEAN && !(soft && shape->rank == 1)) {
		int64_t times = 1;
		for (int i = 2; i < shape->rank && soft; i++) times *= shape->dim[i];
		int count = mpt__onnx_size(o, shape->dim[0] * times, other->dim[0] * times);
		count = mpt__onnx_as(o, mpt__onnx_cast(o, count, MPT_F32), MPT_SCALAR);
		each = mpt__onnx_two(o, "Div", each, count);
	}
	mpt__onnx_give(o, 0, each);
}

static int mpt__onnx_difference(mpt__onnx *o) {
	return mpt__onnx_two(o, "Sub", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1));
}

/* max(0, x) */
static int mpt__onnx_positive(mpt__onnx *o, int x) { return mpt__onnx_one(o, "Relu", x); }

static void mpt__onnx_mse(mpt__onnx *o, const char *form) {
	const int d = mpt__onnx_difference(o);
	(void)form;
	mpt__onnx_loss(o, mpt__onnx_two(o, "Mul", d, d));
}

/* index[0]: not 0 where smooth_l1_loss is l1_loss. number[0]: where the parabola ends, whose slope
   is 1 there, or that number. */
static void mpt__onnx_l1(mpt__onnx *o, const char *form) {
	const int d = mpt__onnx_one(o, "Abs", mpt__onnx_difference(o));
	const double end = o->node->number[0];
	const bool huber = o->node->name[0] == 'h';
	(void)form;
	if (o->node->name[0] == 'l' || o->node->index[0] != 0) {
		mpt__onnx_loss(o, d);
		return;
	}
	int curve = mpt__onnx_with(o, "Mul", mpt__onnx_two(o, "Mul", d, d), huber ? 0.5 : 0.5 / end);
	int line = mpt__onnx_with(o, "Sub", d, 0.5 * end);
	if (huber) line = mpt__onnx_with(o, "Mul", line, end);
	const int within = mpt__onnx_compare(o, "Less", d, mpt__onnx_number(o, end));
	mpt__onnx_loss(o, mpt__onnx_where(o, within, curve, line));
}

static int mpt__onnx_weighted(mpt__onnx *o, int each, int i) {
	const int weight = mpt__onnx_wide(o, i);
	return weight < 0 ? each : mpt__onnx_two(o, "Mul", each, weight);
}

/* (1 - y) x + (1 + (w - 1) y) softplus(-x) */
static void mpt__onnx_bce_logits(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1), by = mpt__onnx_wide(o, 3);
	(void)form;
	int soft = mpt__onnx_one(o, "Softplus", mpt__onnx_one(o, "Neg", x));
	const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), 1.0);
	if (by >= 0) {
		const int more = mpt__onnx_two(o, "Mul", y, mpt__onnx_with(o, "Sub", by, 1.0));
		soft = mpt__onnx_two(o, "Mul", soft, mpt__onnx_with(o, "Add", more, 1.0));
	}
	const int each = mpt__onnx_two(o, "Add", mpt__onnx_two(o, "Mul", rest, x), soft);
	mpt__onnx_loss(o, mpt__onnx_weighted(o, each, 2));
}

/* -(y log(x) + (1 - y) log(1 - x)), logarithms from -100 on */
static void mpt__onnx_bce(mpt__onnx *o, const char *form) {
	int part[2];
	(void)form;
	for (int i = 0; i < 2; i++) {
		int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
		if (i) x = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", x), 1.0);
		if (i) y = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), 1.0);
		x = mpt__onnx_with(o, "Max", mpt__onnx_one(o, "Log", x), -100.0);
		part[i] = mpt__onnx_two(o, "Mul", x, y);
	}
	const int each = mpt__onnx_one(o, "Neg", mpt__onnx_two(o, "Add", part[0], part[1]));
	mpt__onnx_loss(o, mpt__onnx_weighted(o, each, 2));
}

/* y (log(y) - x), 0 where y is; or, of logarithms, exp(y) (y - x). index[0]: which. */
static void mpt__onnx_kl_div(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
	(void)form;
	if (o->node->index[0] != 0) {
		const int d = mpt__onnx_two(o, "Sub", y, x);
		mpt__onnx_loss(o, mpt__onnx_two(o, "Mul", mpt__onnx_one(o, "Exp", y), d));
		return;
	}
	const int none = mpt__onnx_compare(o, "Equal", y, mpt__onnx_number(o, 0.0));
	int each = mpt__onnx_two(o, "Sub", mpt__onnx_one(o, "Log", y), x);
	each = mpt__onnx_two(o, "Mul", y, each);
	mpt__onnx_loss(o, mpt__onnx_where(o, none, mpt__onnx_number(o, 0.0), each));
}

/* softplus(-y x) */
static void mpt__onnx_soft_margin(mpt__onnx *o, const char *form) {
	const int y = mpt__onnx_two(o, "Mul", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 1));
	mpt__onnx_loss(o, mpt__onnx_one(o, form, mpt__onnx_one(o, "Neg", y)));
}

/* x where y is 1, else max(0, margin - x) */
static void mpt__onnx_hinge(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0);
	(void)form;
	const int one = mpt__onnx_compare(o, "Equal", mpt__onnx_wide(o, 1), mpt__onnx_number(o, 1.0));
	const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", x), o->node->number[0]);
	mpt__onnx_loss(o, mpt__onnx_where(o, one, x, mpt__onnx_positive(o, rest)));
}

/* max(0, margin - y (a - b)) */
static void mpt__onnx_ranking(mpt__onnx *o, const char *form) {
	const int y = mpt__onnx_two(o, "Mul", mpt__onnx_difference(o), mpt__onnx_wide(o, 2));
	(void)form;
	const int rest = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", y), o->node->number[0]);
	mpt__onnx_loss(o, mpt__onnx_positive(o, rest));
}

/* max(0, margin + a - b), or with a third input, another distance of negatives, the smaller of it
   and b. */
static void mpt__onnx_triplet(mpt__onnx *o, const char *form) {
	const int a = mpt__onnx_wide(o, 0), more = mpt__onnx_wide(o, 2);
	int b = mpt__onnx_wide(o, 1);
	(void)form;
	if (more >= 0) b = mpt__onnx_two(o, "Min", b, more);
	const int each = mpt__onnx_with(o, "Add", mpt__onnx_two(o, "Sub", a, b), o->node->number[0]);
	mpt__onnx_loss(o, mpt__onnx_positive(o, each));
}

/* exp(x) - y x, or x - y log(x + eps); number: eps, whether Stirling's term is added. */
static void mpt__onnx_poisson(mpt__onnx *o, const char *form) {
	const int x = mpt__onnx_wide(o, 0), y = mpt__onnx_wide(o, 1);
	const bool logs = o->node->index[0] != 0;
	(void)form;
	int by = x;
	if (!logs) by = mpt__onnx_one(o, "Log", mpt__onnx_with(o, "Add", x, o->node->number[0]));
	by = mpt__onnx_two(o, "Mul", y, by);
	int each = mpt__onnx_two(o, "Sub", logs ? mpt__onnx_one(o, "Exp", x) : x, by);
	if (o->node->number[1] != 0.0) {	/* y log(y) - y + (log(2 pi) + log(y)) / 2 where y > 1 */
		const int l = mpt__onnx_one(o, "Log", y);
		const int half = mpt__onnx_with(o, "Mul", mpt__onnx_with(o, "Add", l, 1.837877066), 0.5);
		int more = mpt__onnx_two(o, "Sub", mpt__onnx_two(o, "Mul", y, l), y);
		more = mpt__onnx_two(o, "Add", more, half);
		const int large = mpt__onnx_compare(o, "Greater", y, mpt__onnx_number(o, 1.0));
		more = mpt__onnx_where(o, large, more, mpt__onnx_number(o, 0.0));
		each = mpt__onnx_two(o, "Add", each, more);
	}
	mpt__onnx_loss(o, each);
}

/* ((x - y)^2 / v + log(v)) / 2 + r with v at least eps; number: eps, r */
static void mpt__onnx_gaussian(mpt__onnx *o, const char *form) {
	const int d = mpt__onnx_difference(o);
	(void)form;
	const int v = mpt__onnx_with(o, "Max", mpt__onnx_wide(o, 2), o->node->number[0]);
	int each = mpt__onnx_two(o, "Div", mpt__onnx_two(o, "Mul", d, d), v);
	each = mpt__onnx_two(o, "Add", each, mpt__onnx_one(o, "Log", v));
	each = mpt__onnx_with(o, "Mul", each, 0.5);
	mpt__onnx_loss(o, mpt__onnx_with(o, "Add", each, o->node->number[1]));
}

/* Of a b, |a|^2, |b|^2 and y: with e = sqrt((|a|^2 + r) (|b|^2 + r)) 1 - a b / e where y is 1, and
   max(0, a b / e - p) where it is -1. */
static void mpt__onnx_cosine_loss(mpt__onnx *o, const char *form) {
	const int y = mpt__onnx_wide(o, 3);
	int e = -1, ways[2];
	(void)form;
	for (int i = 0; i < 2; i++) {
		const int square = mpt__onnx_with(o, "Add", mpt__onnx_wide(o, 1 + i), o->node->number[1]);
		e = i ? mpt__onnx_two(o, "Mul", e, square) : square;
	}
	const int cosine = mpt__onnx_two(o, "Div", mpt__onnx_wide(o, 0), mpt__onnx_one(o, "Sqrt", e));
	ways[0] = mpt__onnx_with(o, "Add", mpt__onnx_one(o, "Neg", cosine), 1.0);
	ways[1] = mpt__onnx_positive(o, mpt__onnx_with(o, "Sub", cosine, o->node->number[0]));
	int each = mpt__onnx_number(o, 0.0);
	for (int i = 1; i >= 0; i--) {
		const int is = mpt__onnx_compare(o, "Equal", y, mpt__onnx_number(o, i ? -1.0 : 1.0));
		each = mpt__onnx_where(o, is, ways[i], each);
	}
	mpt__onnx_loss(o, each);
}

/* -(y (1 - p) + r) w x of log-probabilities, 0 where the factor is. */
static void mpt__onnx_soft_targets(mpt__onnx *o, const char *form) {
	(void)form;
	int by = mpt__onnx_with(o, "Mul", mpt__onnx_wide(o, 1), 1.0 - o->node->number[0]);
	by = mpt__onnx_weighted(o, mpt__onnx_with(o, "Add", by, o->node->number[1]), 2);
	const int none = mpt__onnx_compare(o, "Equal", by, mpt__onnx_number(o, 0.0));
	const int each = mpt__onnx_one(o, "Neg", mpt__onnx_two(o, "Mul", by, mpt__onnx_wide(o, 0)));
	mpt__onnx_loss(o, mpt__onnx_where(o, none, mpt__onnx_number(o, 0.0), each));
}

/* w max(0, p - t + x)^r, 0 where x is that of the target, t. in: x, which that is, t, w. */
static void mpt__onnx_multi_margin(mpt__onnx *o, const char *form) {
	const int own = mpt__onnx_in_as(o, 1, MPT_BOOL);
	int each = mpt__onnx_two(o, "Sub", mpt__onnx_wide(o, 0), mpt__onnx_wide(o, 2));
	(void)form;
	each = mpt__onnx_positive(o, mpt__onnx_with(o, "Add", each, o->node->number[0]));
	if (o->node->number[1] == 2.0) each = mpt__onnx_two(o, "Mul", each, each);
	each = mpt__onnx_weighted(o, each, 3);
	mpt__onnx_loss(o, mpt__onnx_where(o, own, mpt__onnx_number(o, 0.0), each));
}

/* ==== The table ==== */

/* All ops, in the order of the table in src/ops/op.c. Without a form are the scaling of a loss,
   which is a training's, and what is a program's own. */
static const mpt__onnx_row mpt__onnx_rows[] = {
	{"add", "Add", mpt__onnx_binary},
	{"sub", "Sub", mpt__onnx_binary},
	{"mul", "Mul", mpt__onnx_binary},
	{"div", "Div", mpt__onnx_binary},
	{"add_scalar", "Add", mpt__onnx_scalar},
	{"mul_scalar", "Mul", mpt__onnx_scalar},
	{"neg", "Neg", mpt__onnx_plain},
	{"exp", "Exp", mpt__onnx_unary},
	{"log", "Log", mpt__onnx_unary},
	{"sqrt", "Sqrt", mpt__onnx_unary},
	{"relu", "Relu", mpt__onnx_plain},
	{"gelu", "composed", mpt__onnx_gelu},
	{"gelu_tanh", "composed", mpt__onnx_gelu_tanh},
	{"tanh", "Tanh", mpt__onnx_unary},
	{"sigmoid", "Sigmoid", mpt__onnx_unary},
	{"isnan", "IsNaN", mpt__onnx_predicate},
	{"isinf", "IsInf", mpt__onnx_predicate},
	{"equal", "Equal", mpt__onnx_comparison},
	{"lt", "Less", mpt__onnx_comparison},
	{"le", "LessOrEqual", mpt__onnx_comparison},
	{"gt", "Greater", mpt__onnx_comparison},
	{"ge", "GreaterOrEqual", mpt__onnx_comparison},
	{"ne", "composed", mpt__onnx_comparison},
	{"logical_and", "And", mpt__onnx_logical},
	{"logical_or", "Or", mpt__onnx_logical},
	{"logical_not", "Not", mpt__onnx_logical},
	{"log1p", "composed", mpt__onnx_log1p},
	{"rsqrt", "composed", mpt__onnx_rsqrt},
	{"pow", "Pow", mpt__onnx_wide_binary},
	{"pow_scalar", "Pow", mpt__onnx_pow_scalar},
	{"abs", "Abs", mpt__onnx_plain},
	{"sign", "Sign", mpt__onnx_unary},
	{"sin", "Sin", mpt__onnx_unary},
	{"cos", "Cos", mpt__onnx_unary},
	{"clamp", "Clip", mpt__onnx_clamp},
	{"minimum", "Min", mpt__onnx_wide_binary},
	{"maximum", "Max", mpt__onnx_wide_binary},
	{"where", "Where", mpt__onnx_choice},
	{"leaky_relu", "LeakyRelu", mpt__onnx_alpha},
	{"elu", "Elu", mpt__onnx_alpha},
	{"silu", "composed", mpt__onnx_silu},
	{"softplus", "Softplus", mpt__onnx_softplus},
	{"hardtanh", "Clip", mpt__onnx_clamp},
	{"scale_loss", NULL, NULL},
	{"matmul", "MatMul", mpt__onnx_matmul},
	{"linear", "Gemm", mpt__onnx_linear},
	{"sum", "ReduceSum", mpt__onnx_reduction},
	{"mean", "ReduceMean", mpt__onnx_reduction},
	{"max", "ReduceMax", mpt__onnx_reduction},
	{"argmax", "ArgMax", mpt__onnx_argmax},
	{"min", "ReduceMin", mpt__onnx_reduction},
	{"argmin", "ArgMin", mpt__onnx_argmax},
	{"prod", "ReduceProd", mpt__onnx_reduction},
	{"var", "composed", mpt__onnx_variance},
	{"std", "composed", mpt__onnx_variance},
	{"norm", "composed", mpt__onnx_norm},
	{"logsumexp", "ReduceLogSumExp", mpt__onnx_reduction},
	{"cumsum", "CumSum", mpt__onnx_cumsum},
	{"softmax", "Softmax", mpt__onnx_softmax},
	{"log_softmax", "LogSoftmax", mpt__onnx_softmax},
	{"dropout", "Identity", mpt__onnx_same},
	{"reshape", "Reshape", mpt__onnx_reshaped},
	{"permute", "Transpose", mpt__onnx_permute},
	{"slice", "Slice", mpt__onnx_slice},
	{"expand", "Expand", mpt__onnx_expand},
	{"clone", "Identity", mpt__onnx_same},
	{"cast", "Cast", mpt__onnx_same},
	{"cat", "Concat", mpt__onnx_cat},
	{"gather", "GatherElements", mpt__onnx_gather},
	{"index_select", "Gather", mpt__onnx_gather},
	{"scatter_add", "ScatterElements", mpt__onnx_scatter_add},
	{"one_hot", "composed", mpt__onnx_one_hot},
	{"flip", "Slice", mpt__onnx_flip},
	{"tril", "Trilu", mpt__onnx_triangle},
	{"triu", "Trilu", mpt__onnx_triangle},
	{"pad", "Pad", mpt__onnx_pad},
	{"nll_loss", "NegativeLogLikelihoodLoss", mpt__onnx_nll},
	{"cross_entropy", "SoftmaxCrossEntropyLoss", mpt__onnx_nll},
	{"mse_loss", "composed", mpt__onnx_mse},
	{"user", NULL, NULL},
	{"l1_loss", "composed", mpt__onnx_l1},
	{"smooth_l1_loss", "composed", mpt__onnx_l1},
	{"huber_loss", "composed", mpt__onnx_l1},
	{"binary_cross_entropy_with_logits", "composed", mpt__onnx_bce_logits},
	{"binary_cross_entropy", "composed", mpt__onnx_bce},
	{"kl_div", "composed", mpt__onnx_kl_div},
	{"gaussian_nll_loss", "composed", mpt__onnx_gaussian},
	{"soft_margin_loss", "Softplus", mpt__onnx_soft_margin},
	{"hinge_embedding_loss", "composed", mpt__onnx_hinge},
	{"margin_ranking_loss", "composed", mpt__onnx_ranking},
	{"triplet_margin_loss", "composed", mpt__onnx_triplet},
	{"cosine_similarity", "composed", mpt__onnx_cosine},
	{"cosine_embedding_loss", "composed", mpt__onnx_cosine_loss},
	{"soft_targets", "composed", mpt__onnx_soft_targets},
	{"poisson_nll_loss", "composed", mpt__onnx_poisson},
	{"multi_margin_loss", "composed", mpt__onnx_multi_margin},
	{"interpolate", "Resize", mpt__onnx_resize},
	{"argsort", "TopK", mpt__onnx_argsort},
	{"conv2d", "Conv", mpt__onnx_conv},
	{"conv1d", "Conv", mpt__onnx_conv},
	{"conv_transpose2d", "ConvTranspose", mpt__onnx_conv},
	{"layer_norm", "LayerNormalization", mpt__onnx_row_norm},
	{"rms_norm", "composed", mpt__onnx_row_norm},
	{"batch_norm", "BatchNormalization", mpt__onnx_batch_norm},
	{"group_norm", "composed", mpt__onnx_group_norm},
	{"max_pool2d", "MaxPool", mpt__onnx_pool},
	{"avg_pool2d", "AveragePool", mpt__onnx_pool},
	{"embedding", "Gather", mpt__onnx_embedding},
	{"scaled_dot_product_attention", "composed", mpt__onnx_attention},
	{"rope", "composed", mpt__onnx_rope},
	{"hash_grid", "composed", mpt__onnx_hash_grid},
	{"linear_cross_entropy", "composed", mpt__onnx_linear_nll},
	{"rnn", "RNN", mpt__onnx_recurrent},
	{"lstm", "LSTM", mpt__onnx_recurrent},
	{"gru", "GRU", mpt__onnx_recurrent},
};

/* The row of an op; NULL: there is none. */
static const mpt__onnx_row *mpt__onnx_row_of(const char *op) {
	for (size_t i = 0; i < sizeof mpt__onnx_rows / sizeof *mpt__onnx_rows; i++)
		if (strcmp(mpt__onnx_rows[i].op, op) == 0) return &mpt__onnx_rows[i];
	return NULL;
}

const char *mpt_onnx_form(const char *op) {
	const mpt__onnx_row *row = op ? mpt__onnx_row_of(op) : NULL;
	return row ? row->form : NULL;
}

/* ----
 * tools/onnx.c: a net as an ONNX file: traced, written node by node, its weights behind them.
 * ---- */

enum {
	MPT__ONNX_IR_VERSION = 8,	/* what belongs to the opset */
	MPT__ONNX_SMALL = 1024,		/* bytes of a tensor that stays in the model */
	MPT__ONNX_PAGE = 4096,		/* where tensors in a file beside begin, so that it can be mapped */
	MPT__ONNX_RAW_DATA = 9,		/* of a tensor .. */
	MPT__ONNX_EXTERNAL_DATA = 13,
	MPT__ONNX_DATA_LOCATION = 14,
	MPT__ONNX_MODEL_GRAPH = 7,	/* of a model .. */
	MPT__ONNX_MODEL_OPSET = 8
};

mpt_onnx_config mpt_onnx_config_default(void) {
	mpt_onnx_config config;
	memset(&config, 0, sizeof config);
	config.batch = "batch";
	config.beside = (int64_t)1 << 30;
	return config;
}

/* ==== The net, seen twice ==== */

static bool mpt__onnx_refuse(mpt__onnx *o, mpt_status status, const char *why) {
	if (o->status != MPT_OK) return false;
	o->status = status;
	mpt__tools_note_add(&o->why, "%s", why);
	return false;
}

/* Whether the context is well, else what is wrong with it is what went wrong. */
static bool mpt__onnx_well(mpt__onnx *o) {
	if (!mpt_failed(o->context)) return true;
	return mpt__onnx_refuse(o, mpt_error_code(o->context), mpt_error(o->context));
}

/* All elements of a tensor; NULL on error. */
static unsigned char *mpt__onnx_read(mpt__onnx *o, mpt_tensor tensor, size_t *bytes) {
	*bytes = (size_t)mpt_numel(tensor) * mpt_dtype_size(mpt_get_dtype(tensor));
	if (!mpt__onnx_well(o)) return NULL;
	unsigned char *data = (unsigned char *)mpt__tools_allocate(*bytes);
	if (!data) mpt__onnx_out_of_memory(o);
	if (data && mpt_read(tensor, data, *bytes) == MPT_OK) return data;
	mpt__tools_release(data);
	mpt__onnx_well(o);
	return NULL;
}

/* Which dimension of an input is the batch's; -1: none. */
static int mpt__onnx_batch_dim(const mpt__onnx *o, int i) {
	const int dim = o->config->batch_dims ? o->config->batch_dims[i] : 0;
	return dim < mpt_get_shape(o->inputs[i]).rank ? dim : -1;
}

/* An input of twice as many samples: each block of them once more. */
static mpt_tensor mpt__onnx_doubled(mpt__onnx *o, mpt_tensor x, int dim) {
	mpt_shape shape = mpt_get_shape(x);
	const mpt_dtype dtype = mpt_get_dtype(x);
	mpt_tensor none = {o->context, 0, 0}, out = none;
	size_t bytes, blocks = 1;
	unsigned char *data = mpt__onnx_read(o, x, &bytes);
	unsigned char *twice = data ? (unsigned char *)mpt__tools_allocate(2 * bytes) : NULL;
	for (int i = 0; i < dim; i++) blocks *= (size_t)shape.dim[i];
	for (size_t i = 0; twice && i < blocks && bytes; i++) {
		const size_t size = bytes / blocks;
		for (size_t k = 0; k < 2; k++)
			memcpy(twice + (2 * i + k) * size, data + i * size, size);
	}
	shape.dim[dim] *= 2;
	if (twice) out = mpt_from(o->context, dtype, shape, twice);
	if (data && !twice) mpt__onnx_out_of_memory(o);
	mpt__tools_release(data);
	mpt__tools_release(twice);
	return mpt__onnx_well(o) ? out : none;
}

/* Finds the batch's size, the same in all inputs that have one. */
static bool mpt__onnx_find_batch(mpt__onnx *o) {
	for (int i = 0; i < o->n_inputs && o->config->batch && *o->config->batch; i++) {
		const int dim = mpt__onnx_batch_dim(o, i);
		const int64_t size = dim < 0 ? 0 : mpt_get_shape(o->inputs[i]).dim[dim];
		if (dim < 0) continue;
		if (size < 1 || (o->varies && size != o->batch[0]))
			return mpt__onnx_refuse(o, MPT_ERROR_ARGUMENT,
				"inputs have batches of different sizes, or of none; set batch_dims");
		o->batch[0] = size, o->batch[1] = 2 * size;
		o->varies = true;
	}
	return true;
}

static bool mpt__onnx_same_node(const mpt_node *a, const mpt_node *b) {
	bool same = a->kind == b->kind && strcmp(a->name, b->name) == 0 &&
		strcmp(a->module, b->module) == 0 && a->inputs == b->inputs && a->outputs == b->outputs &&
		a->rank == b->rank;
	for (int i = 0; same && i < a->inputs; i++)
		same = a->input[i].node == b->input[i].node && a->input[i].output == b->input[i].output;
	for (int i = 0; same && i < a->outputs; i++)
		same = a->dtype[i] == b->dtype[i] && a->shape[i].rank == b->shape[i].rank;
	return same;
}

/* Inputs with twice the batch of those given; NULL on error. */
static mpt_tensor *mpt__onnx_twice(mpt__onnx *o, const mpt_tensor *inputs) {
	mpt_tensor *twice = (mpt_tensor *)mpt__tools_allocate((size_t)o->n_inputs * sizeof *twice);
	for (int i = 0; twice && i < o->n_inputs; i++) {
		const int dim = mpt__onnx_batch_dim(o, i);
		twice[i] = dim < 0 ? inputs[i] : mpt__onnx_doubled(o, inputs[i], dim);
	}
	if (!twice) mpt__onnx_out_of_memory(o);
	return twice;
}

static void mpt__onnx_release(const mpt__onnx *o, mpt_tensor *twice) {
	for (int i = 0; twice && i < o->n_inputs; i++)
		if (mpt__onnx_batch_dim(o, i) >= 0 && twice[i].slot) mpt_release(twice[i]);
	mpt__tools_release(twice);
}

/* Traces the net, and once more with the batch twice as large. A batch of 1 is no example: sizes of
   1 are stretched, or left out. */
static bool mpt__onnx_trace(mpt__onnx *o, mpt_module net) {
	mpt_tensor *made[2] = {NULL, NULL};
	const mpt_tensor *inputs = o->inputs;
	if (!mpt__onnx_find_batch(o) || !mpt__onnx_well(o)) return false;
	if (o->varies && o->batch[0] == 1) {
		inputs = made[0] = mpt__onnx_twice(o, inputs);
		o->batch[0] = 2, o->batch[1] = 4;
	}
	if (o->status == MPT_OK) o->graph = mpt_trace(net, inputs, o->n_inputs);
	if (mpt__onnx_well(o) && o->status == MPT_OK && o->varies) {
		made[1] = mpt__onnx_twice(o, inputs);
		if (o->status == MPT_OK) o->twin = mpt_trace(net, made[1], o->n_inputs);
	}
	const bool fine = mpt__onnx_well(o) && o->status == MPT_OK;
	for (int i = 0; i < 2; i++) mpt__onnx_release(o, made[i]);
	if (!fine || !o->varies) return fine;
	const int count = mpt_graph_count(o->graph);
	bool same = mpt_graph_count(o->twin) == count;
	for (int i = 0; i < count && same; i++)
		same = mpt__onnx_same_node(mpt_graph_node(o->graph, i), mpt_graph_node(o->twin, i));
	return same ||
		mpt__onnx_refuse(o, MPT_ERROR_UNSUPPORTED,
			"the net does something else with a batch twice as large; name no batch");
}

/* ==== Nodes ==== */

static void mpt__onnx_held(mpt__onnx *o, int value, mpt_tensor tensor) {
	const mpt_shape shape = mpt_get_shape(tensor);
	mpt__onnx_weight *weight = mpt__onnx_weight_new(o, value, &shape);
	if (weight) weight->tensor = tensor;
}

/* One of each that `data` of shape `a` has along the dimensions in which `b` has others; false if
   they are not all the same. */
static bool mpt__onnx_uniform(
	unsigned char *data, size_t element, const mpt_shape *a, const mpt_shape *b, mpt_shape *one) {
	const size_t count = (size_t)mpt__tools_shape_numel(a);
	size_t kept = 0;
	*one = *a;
	for (int d = 0; d < a->rank; d++)
		if (a->dim[d] != b->dim[d]) one->dim[d] = 1;
	for (size_t i = 0; i < count; i++) {
		size_t rest = i, from = 0, step = 1;
		for (int d = a->rank; d-- > 0;) {
			const size_t at = rest % (size_t)a->dim[d];
			rest /= (size_t)a->dim[d];
			if (a->dim[d] == b->dim[d]) from += at * step;
			step *= (size_t)a->dim[d];
		}
		if (memcmp(data + i * element, data + from * element, element) != 0) return false;
		if (from == i) memcpy(data + kept++ * element, data + i * element, element);
	}
	return true;
}

/* The bytes of each number in the order of little-endian machines. */
static void mpt__onnx_little(unsigned char *data, size_t bytes, size_t element) {
	const uint16_t one = 1;
	unsigned char first;
	memcpy(&first, &one, 1);
	for (size_t i = 0; !first && i + element <= bytes; i += element)
		for (size_t k = 0; k < element / 2; k++) {
			const unsigned char byte = data[i + k];
			data[i + k] = data[i + element - 1 - k], data[i + element - 1 - k] = byte;
		}
}

/* A tensor that no op made, as a mask of positions: the same in both, or all the same along what
   goes with the batch. */
static void mpt__onnx_given(mpt__onnx *o) {
	const mpt_node *node = o->node;
	const mpt_shape *shape = &node->shape[0], *other = &o->other->shape[0];
	const size_t element = mpt_dtype_size(node->dtype[0]);
	bool same = true, fine = false;
	size_t bytes, others = 0;
	for (int d = 0; d < shape->rank; d++) same = same && shape->dim[d] == other->dim[d];
	unsigned char *data = mpt__onnx_read(o, node->value, &bytes);
	unsigned char *twin = data && o->varies ? mpt__onnx_read(o, o->other->value, &others) : NULL;
	mpt_shape one = *shape;
	if (data && !o->varies) fine = true;
	if (data && twin && same) fine = memcmp(data, twin, bytes) == 0;
	if (data && twin && !same)
		fine = mpt__onnx_uniform(data, element, shape, other, &one) &&
			mpt__onnx_uniform(twin, element, other, shape, &one) &&
			memcmp(data, twin, (size_t)mpt__tools_shape_numel(&one) * element) == 0;
	mpt__tools_release(twin);
	if (fine) {
		mpt__tools_bytes little = {data, (size_t)mpt__tools_shape_numel(&one) * element, 0, false};
		mpt__onnx_little(data, little.size, element);
		int value = mpt__onnx_constant(o, node->dtype[0], &one, &little);
		if (!same) value = mpt__onnx_expanded(o, value);
		o->results[o->at * MPT_NODE_OUTPUTS] = value;
	} else if (data) {
		mpt__onnx_fail(o, "a tensor made in forward whose numbers go with the batch");
	}
	mpt__tools_release(data);
}

static void mpt__onnx_op(mpt__onnx *o) {
	const mpt_node *node = o->node;
	const mpt__onnx_row *row =
		node->kind == MPT_NODE_OP ? mpt__onnx_row_of(node->name) : NULL;
	if (!row || !row->write) {
		mpt__onnx_fail(o, node->kind == MPT_NODE_USER_OP
				? "an op of the program's own, of which ONNX knows nothing"
				: "ONNX has nothing for it");
		return;
	}
	const bool sizes = row->write == mpt__onnx_slice || row->write == mpt__onnx_reshaped ||
		row->write == mpt__onnx_expand;
	for (int i = 0; i < MPT_MAX_RANK && !sizes; i++)
		if (i != 1 && i != 3 && node->index[i] != o->other->index[i])
			mpt__onnx_fail(o, "a number that goes with the batch; name no batch");
	row->write(o, row->form);
}

/* Writes node o->at. *inputs, *outputs: those of the net so far. */
static void mpt__onnx_node(mpt__onnx *o, int *inputs, int *outputs) {
	const mpt_node *node = o->node;
	int *result = &o->results[o->at * MPT_NODE_OUTPUTS], value;
	const char *const *names;
	if (node->changed) {
		mpt__onnx_fail(o, "memory that is changed in place by way of another tensor; mpt_clone it");
		return;
	}
	switch (node->kind) {
	case MPT_NODE_INPUT:
		names = o->config->inputs;
		*result = mpt__onnx_value_new(o, names ? names[*inputs] : node->name, node->dtype[0]);
		++*inputs;
		break;
	case MPT_NODE_PARAMETER:
	case MPT_NODE_BUFFER:
		*result = mpt__onnx_value_new(o, node->name, node->dtype[0]);
		mpt__onnx_held(o, *result, node->value);
		break;
	case MPT_NODE_CONSTANT: mpt__onnx_given(o); break;
	case MPT_NODE_OP:
	case MPT_NODE_USER_OP: mpt__onnx_op(o); break;
	case MPT_NODE_OUTPUT:
		names = o->config->outputs;
		value = mpt__onnx_in_as(o, 0, node->dtype[0]);
		*result = mpt__onnx_value_new(o, names ? names[*outputs] : node->name, node->dtype[0]);
		mpt__onnx_put_many(o, "Identity", &value, 1, result, 1);
		++*outputs;
		break;
	}
}

/* Values of one name would be one. */
static bool mpt__onnx_check_names(mpt__onnx *o, int count) {
	for (int i = 0; i < count; i++) {
		const mpt_node *node = mpt_graph_node(o->graph, i);
		if (node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP ||
			node->kind == MPT_NODE_CONSTANT)
			continue;
		const int own = o->results[i * MPT_NODE_OUTPUTS];
		for (int k = 0; k < o->value_count; k++) {
			if (k == own || strcmp(o->values[k].name, o->values[own].name) != 0) continue;
			mpt__tools_note_add(&o->why, "two values are called \"%s\"; ", o->values[own].name);
			return mpt__onnx_refuse(o, MPT_ERROR_ARGUMENT, "give inputs and outputs other names");
		}
	}
	return true;
}

static bool mpt__onnx_nodes(mpt__onnx *o) {
	const int count = mpt_graph_count(o->graph);
	int inputs = 0, outputs = 0;
	o->results = (int *)mpt__tools_allocate((size_t)count * MPT_NODE_OUTPUTS * sizeof *o->results);
	if (!o->results) return mpt__onnx_out_of_memory(o) >= 0;
	for (int i = 0; i < count * MPT_NODE_OUTPUTS; i++) o->results[i] = -1;
	for (int i = 0; i < count && o->status == MPT_OK; i++) {
		o->at = i, o->made = 0;
		o->node = mpt_graph_node(o->graph, i);
		o->other = o->varies ? mpt_graph_node(o->twin, i) : o->node;
		mpt__onnx_node(o, &inputs, &outputs);
	}
	return o->status == MPT_OK && mpt__onnx_check_names(o, count);
}

/* ==== Shapes of values ==== */

static void mpt__onnx_put_dim(
	const mpt__onnx *o, mpt__tools_bytes *to, int64_t number, int64_t other) {
	char text[160];
	int64_t times = 0, more = 0;
	const size_t dim = mpt__tools_message_begin(to, 1);
	if (number == other) {
		mpt__tools_put_int_field(to, 1, number);
	} else if (mpt__onnx_goes_with(o, number, other, &times, &more)) {
		mpt__tools_note note = mpt__tools_note_begin(text, sizeof text);
		if (times != 1) mpt__tools_note_add(&note, "%lld*", (long long)times);
		mpt__tools_note_add(&note, "%s", o->config->batch);
		if (more != 0) mpt__tools_note_add(&note, "+%lld", (long long)more);
		mpt__tools_put_text_field(to, 2, text);
	}
	mpt__tools_message_end(to, dim);
}

/* A ValueInfoProto: the value of output k of node i. */
static void mpt__onnx_put_info(
	const mpt__onnx *o, mpt__tools_bytes *to, int field, int i, int k) {
	const int value = o->results[i * MPT_NODE_OUTPUTS + k];
	const mpt_node *node = mpt_graph_node(o->graph, i);
	const mpt_node *other = o->varies ? mpt_graph_node(o->twin, i) : node;
	const size_t info = mpt__tools_message_begin(to, field);
	mpt__tools_put_text_field(to, 1, mpt__onnx_name(o, value));
	const size_t type = mpt__tools_message_begin(to, 2);
	const size_t tensor = mpt__tools_message_begin(to, 1);
	mpt__tools_put_int_field(to, 1, mpt__onnx_type(o->values[value].dtype));
	const size_t shape = mpt__tools_message_begin(to, 2);
	for (int d = 0; d < node->shape[k].rank; d++)
		mpt__onnx_put_dim(o, to, node->shape[k].dim[d], other->shape[k].dim[d]);
	mpt__tools_message_end(to, shape);
	mpt__tools_message_end(to, tensor);
	mpt__tools_message_end(to, type);
	mpt__tools_message_end(to, info);
}

/* What the model says of its inputs, its outputs and each value between, once. */
static void mpt__onnx_put_infos(mpt__onnx *o, mpt__tools_bytes *to) {
	static const struct {
		int field;
		mpt_node_kind kind;
	} parts[] = {{MPT__ONNX_INPUT, MPT_NODE_INPUT}, {MPT__ONNX_OUTPUT, MPT_NODE_OUTPUT},
		{MPT__ONNX_VALUE_INFO, MPT_NODE_OP}};
	const int count = mpt_graph_count(o->graph);
	bool *told = (bool *)mpt__tools_allocate((size_t)o->value_count * sizeof *told);
	if (!told) {
		mpt__onnx_out_of_memory(o);
		return;
	}
	for (int i = 0; i < o->weight_count; i++) told[o->weights[i].value] = true;
	for (int part = 0; part < 3; part++)
		for (int i = 0; i < count; i++)
			for (int k = 0; k < MPT_NODE_OUTPUTS; k++) {
				const int value = o->results[i * MPT_NODE_OUTPUTS + k];
				if (value < 0 || told[value] ||
					mpt_graph_node(o->graph, i)->kind != parts[part].kind)
					continue;
				told[value] = true;
				mpt__onnx_put_info(o, to, parts[part].field, i, k);
			}
	mpt__tools_release(told);
}

/* ==== Files ==== */

typedef struct {
	char *path, *beside;	/* where it shall be, and where it is written */
	FILE *file;
} mpt__onnx_file;

static bool mpt__onnx_io_error(mpt__onnx *o, const char *path, const char *what) {
	const int error = errno ? errno : EIO;
	if (o->status != MPT_OK) return false;
	o->status = MPT_ERROR_IO;
	mpt__tools_note_add(&o->why, "%s cannot be %s: %s", path, what, strerror(error));
	return false;
}

static char *mpt__onnx_joined(mpt__onnx *o, const char *a, const char *b) {
	const size_t n = strlen(a), m = strlen(b) + 1;
	char *text = (char *)mpt__tools_allocate(n + m);
	if (!text) {
		mpt__onnx_out_of_memory(o);
		return NULL;
	}
	memcpy(text, a, n);
	memcpy(text + n, b, m);
	return text;
}

static bool mpt__onnx_file_begin(
	mpt__onnx *o, mpt__onnx_file *file, const char *path, const char *more) {
	file->path = mpt__onnx_joined(o, path, more);
	file->beside = file->path ? mpt__onnx_joined(o, file->path, ".new") : NULL;
	if (!file->beside) return false;
	errno = 0;
	file->file = mpt__tools_file_open(file->beside, "wb");
	return file->file || mpt__onnx_io_error(o, file->path, "opened");
}

static bool mpt__onnx_file_put(
	mpt__onnx *o, mpt__onnx_file *file, const void *data, size_t bytes) {
	errno = 0;
	return mpt__tools_file_put(file->file, data, bytes) ||
		mpt__onnx_io_error(o, file->path, "written");
}

static bool mpt__onnx_file_close(mpt__onnx *o, mpt__onnx_file *file) {
	errno = 0;
	const bool fine = mpt__tools_file_close(file->file);
	file->file = NULL;
	return fine || mpt__onnx_io_error(o, file->path, "written");
}

static bool mpt__onnx_file_move(mpt__onnx *o, mpt__onnx_file *file) {
	errno = 0;
	if (mpt__tools_file_move(file->beside, file->path) != 0)
		return mpt__onnx_io_error(o, file->path, "replaced");
	mpt__tools_release(file->beside);
	file->beside = NULL;
	return true;
}

/* What was not moved goes away. */
static void mpt__onnx_file_end(mpt__onnx_file *file, bool opened) {
	if (file->file) mpt__tools_file_close(file->file);
	if (file->beside && opened) mpt__tools_file_remove(file->beside);
	mpt__tools_release(file->path);
	mpt__tools_release(file->beside);
}

/* ==== Weights ==== */

/* Gives large tensors places in the file beside, if all of them are too much for the model. */
static bool mpt__onnx_place(mpt__onnx *o) {
	int64_t all = 0, at = 0;
	for (int i = 0; i < o->weight_count; i++) all += o->weights[i].bytes;
	if (all < o->config->beside) return false;
	for (int i = 0; i < o->weight_count; i++) {
		if (o->weights[i].bytes < MPT__ONNX_SMALL) continue;
		o->weights[i].offset = at;
		at += (o->weights[i].bytes + MPT__ONNX_PAGE - 1) / MPT__ONNX_PAGE * MPT__ONNX_PAGE;
	}
	return at > 0;
}

static void mpt__onnx_put_entry(mpt__tools_bytes *to, const char *key, const char *text) {
	const size_t entry = mpt__tools_message_begin(to, MPT__ONNX_EXTERNAL_DATA);
	mpt__tools_put_text_field(to, 1, key);
	mpt__tools_put_text_field(to, 2, text);
	mpt__tools_message_end(to, entry);
}

/* A TensorProto up to its data. `path`: of the file beside. */
static void mpt__onnx_put_head(
	const mpt__onnx *o, mpt__tools_bytes *to, const mpt__onnx_weight *weight, const char *path) {
	char number[32];
	for (int d = 0; d < weight->shape.rank; d++)
		mpt__tools_put_int_field(to, 1, weight->shape.dim[d]);
	mpt__tools_put_int_field(to, 2, mpt__onnx_type(o->values[weight->value].dtype));
	mpt__tools_put_text_field(to, 8, mpt__onnx_name(o, weight->value));
	if (weight->offset < 0) {
		mpt__tools_put_field(to, MPT__ONNX_RAW_DATA, MPT__TOOLS_WIRE_BYTES);
		mpt__tools_put_varint(to, (uint64_t)weight->bytes);
		return;
	}
	const char *name = path;
	for (const char *c = path; *c; c++)
		if (mpt__tools_is_separator(*c)) name = c + 1;
	mpt__onnx_put_entry(to, "location", name);
	for (int i = 0; i < 2; i++) {
		mpt__tools_note note = mpt__tools_note_begin(number, sizeof number);
		mpt__tools_note_add(&note, "%lld", (long long)(i ? weight->bytes : weight->offset));
		mpt__onnx_put_entry(to, i ? "length" : "offset", number);
	}
	mpt__tools_put_int_field(to, MPT__ONNX_DATA_LOCATION, 1);
}

/* The numbers of a weight. */
static bool mpt__onnx_put_data(mpt__onnx *o, mpt__onnx_file *file, const mpt__onnx_weight *weight) {
	size_t bytes = (size_t)weight->bytes;
	if (weight->data) return mpt__onnx_file_put(o, file, weight->data, bytes);
	unsigned char *data = mpt__onnx_read(o, weight->tensor, &bytes);
	if (!data) return false;
	mpt__onnx_little(data, bytes, mpt_dtype_size(o->values[weight->value].dtype));
	const bool fine = mpt__onnx_file_put(o, file, data, bytes);
	mpt__tools_release(data);
	return fine;
}

/* The file of large tensors. */
static bool mpt__onnx_put_beside(mpt__onnx *o, mpt__onnx_file *file) {
	static const unsigned char zeros[MPT__ONNX_PAGE] = {0};
	int64_t at = 0;
	for (int i = 0; i < o->weight_count; i++) {
		const mpt__onnx_weight *weight = &o->weights[i];
		if (weight->offset < 0) continue;
		if (!mpt__onnx_file_put(o, file, zeros, (size_t)(weight->offset - at)) ||
			!mpt__onnx_put_data(o, file, weight))
			return false;
		at = weight->offset + weight->bytes;
	}
	return true;
}

/* ==== The model ==== */

/* A field whose value of so many bytes follows elsewhere. */
static void mpt__onnx_put_length(mpt__tools_bytes *to, int field, uint64_t bytes) {
	mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
	mpt__tools_put_varint(to, bytes);
}

/* Weights, each read when its turn comes; or, of no file, the bytes that they take. */
static bool mpt__onnx_put_weights(
	mpt__onnx *o, mpt__onnx_file *file, const char *beside, uint64_t *bytes) {
	mpt__tools_bytes head = {NULL, 0, 0, false}, tag = {NULL, 0, 0, false};
	bool fine = true;
	for (int i = 0; i < o->weight_count && fine; i++) {
		const mpt__onnx_weight *weight = &o->weights[i];
		const uint64_t own = weight->offset < 0 ? (uint64_t)weight->bytes : 0;
		head.size = tag.size = 0;
		mpt__onnx_put_head(o, &head, weight, beside);
		mpt__onnx_put_length(&tag, MPT__ONNX_INITIALIZER, head.size + own);
		fine = !head.failed && !tag.failed;
		if (!fine) mpt__onnx_out_of_memory(o);
		*bytes += tag.size + head.size + own;
		if (file && fine)
			fine = mpt__onnx_file_put(o, file, tag.data, tag.size) &&
				mpt__onnx_file_put(o, file, head.data, head.size) &&
				(weight->offset >= 0 || mpt__onnx_put_data(o, file, weight));
	}
	mpt__tools_bytes_free(&head);
	mpt__tools_bytes_free(&tag);
	return fine;
}

static bool mpt__onnx_put_model(mpt__onnx *o, mpt__onnx_file *file, const char *beside) {
	char version[32];
	mpt__tools_bytes head = {NULL, 0, 0, false}, infos = {NULL, 0, 0, false};
	uint64_t weights = 0;
	mpt__tools_note note = mpt__tools_note_begin(version, sizeof version);
	mpt__tools_note_add(&note, "%lld.%lld.%lld", (long long)MPTRAIN_VERSION_MAJOR,
		(long long)MPTRAIN_VERSION_MINOR, (long long)MPTRAIN_VERSION_PATCH);
	mpt__tools_put_text_field(&o->nodes, MPT__ONNX_GRAPH_NAME, "net");
	mpt__onnx_put_infos(o, &infos);
	bool fine = mpt__onnx_put_weights(o, NULL, beside, &weights);
	mpt__tools_put_int_field(&head, 1, MPT__ONNX_IR_VERSION);
	mpt__tools_put_text_field(&head, 2, "mptrain");
	mpt__tools_put_text_field(&head, 3, version);
	const size_t opset = mpt__tools_message_begin(&head, MPT__ONNX_MODEL_OPSET);
	mpt__tools_put_int_field(&head, 2, MPT_ONNX_OPSET);
	mpt__tools_message_end(&head, opset);
	mpt__onnx_put_length(&head, MPT__ONNX_MODEL_GRAPH, o->nodes.size + weights + infos.size);
	if (head.failed || infos.failed || o->nodes.failed) mpt__onnx_out_of_memory(o);
	fine = fine && o->status == MPT_OK && mpt__onnx_file_put(o, file, head.data, head.size) &&
		mpt__onnx_file_put(o, file, o->nodes.data, o->nodes.size) &&
		mpt__onnx_put_weights(o, file, beside, &weights) &&
		mpt__onnx_file_put(o, file, infos.data, infos.size);
	mpt__tools_bytes_free(&head);
	mpt__tools_bytes_free(&infos);
	return fine;
}

/* Both files are whole before either takes its place. */
static void mpt__onnx_write(mpt__onnx *o, const char *path) {
	mpt__onnx_file model = {NULL, NULL, NULL}, beside = {NULL, NULL, NULL};
	const bool two = mpt__onnx_place(o);
	bool opened = mpt__onnx_file_begin(o, &model, path, ""), opened_two = false, fine = opened;
	if (fine && two) fine = opened_two = mpt__onnx_file_begin(o, &beside, path, ".data");
	if (fine && two)
		fine = mpt__onnx_put_beside(o, &beside) && mpt__onnx_file_close(o, &beside);
	fine = fine && mpt__onnx_put_model(o, &model, two ? beside.path : "") &&
		mpt__onnx_file_close(o, &model);
	if (fine && two) fine = mpt__onnx_file_move(o, &beside);
	if (fine) mpt__onnx_file_move(o, &model);
	mpt__onnx_file_end(&model, opened);
	mpt__onnx_file_end(&beside, opened_two);
}

static void mpt__onnx_free(mpt__onnx *o) {
	if (o->graph.slot) mpt_graph_destroy(o->graph);
	if (o->twin.slot) mpt_graph_destroy(o->twin);
	for (int i = 0; i < o->value_count; i++) mpt__tools_release(o->values[i].name);
	for (int i = 0; i < o->weight_count; i++) mpt__tools_release(o->weights[i].data);
	mpt__tools_release(o->values);
	mpt__tools_release(o->weights);
	mpt__tools_release(o->results);
	mpt__tools_bytes_free(&o->nodes);
	mpt__tools_bytes_free(&o->attributes);
}

mpt_status mpt_onnx_export(mpt_module net, const mpt_tensor *inputs, int n_inputs,
	const char *path, const mpt_onnx_config *config, char *why, size_t capacity) {
	const mpt_onnx_config defaults = mpt_onnx_config_default();
	mpt__onnx o;
	memset(&o, 0, sizeof o);
	o.context = net.context;
	o.config = config ? config : &defaults;
	o.inputs = inputs, o.n_inputs = n_inputs;
	o.batch_value = -1;
	o.why = mpt__tools_note_begin(why, capacity);
	if (!path || !*path || !inputs || n_inputs < 1) {
		mpt__onnx_refuse(&o, MPT_ERROR_ARGUMENT, "expected a path and an array of inputs");
	} else if (!net.context) {
		mpt__onnx_refuse(&o, MPT_ERROR_HANDLE, "the net is a null handle");
	} else if (mpt__onnx_well(&o)) {
		if (mpt__onnx_trace(&o, net) && mpt__onnx_nodes(&o)) mpt__onnx_write(&o, path);
		mpt__onnx_well(&o);
	}
	mpt__onnx_free(&o);
	return o.status;
}

/* ----
 * tools/charts.c: pictures of numbers, as SVG in a page.
 * ---- */

/* ==== Series ==== */

/* Numbers by step. Where there are too many, two neighbours become one. */
enum { MPT__TOOLS_POINTS = 512 };
typedef struct {
	int count;
	int64_t each, open;	/* numbers in a point, and in the one under way */
	double sum;
	double step[MPT__TOOLS_POINTS], value[MPT__TOOLS_POINTS];
} mpt__tools_series;

static void mpt__tools_series_add(mpt__tools_series *s, double step, double value) {
	if (s->each == 0) s->each = 1;
	s->sum += value;	/* what is not finite makes its point so */
	if (++s->open < s->each) return;
	if (s->count == MPT__TOOLS_POINTS) {
		for (int i = 0; i < s->count / 2; i++) {
			s->step[i] = s->step[2 * i + 1];
			s->value[i] = (s->value[2 * i] + s->value[2 * i + 1]) / 2;
		}
		s->count /= 2;
		s->each *= 2;
		return;	/* this one opens a point of twice as many */
	}
	s->step[s->count] = step;
	s->value[s->count++] = s->sum / (double)s->open;
	s->sum = 0, s->open = 0;
}

/* ==== Lines ==== */

enum { MPT__TOOLS_LINES = 3 };
typedef struct {
	const char *id, *title;
	const char *name[MPT__TOOLS_LINES];
	const mpt__tools_series *series[MPT__TOOLS_LINES];
	const mpt__tools_series *marks;	/* NULL; steps of marks */
	const char *mark;				/* what they are */
	const char *axis;				/* what goes to the right */
} mpt__tools_chart;

typedef struct {
	double left, right, low, high;
	int finite, strange;	/* points */
} mpt__tools_range;

static mpt__tools_range mpt__tools_chart_range(const mpt__tools_chart *chart) {
	mpt__tools_range r = {0, 1, 0, 1, 0, 0};
	bool any = false;
	for (int k = 0; k < MPT__TOOLS_LINES; k++) {
		const mpt__tools_series *s = chart->series[k];
		for (int i = 0; s && i < s->count; i++) {
			if (!any || s->step[i] < r.left) r.left = s->step[i];
			if (!any || s->step[i] > r.right) r.right = s->step[i];
			any = true;
			if (!mpt__tools_is_finite(s->value[i])) {
				r.strange++;
				continue;
			}
			if (r.finite == 0 || s->value[i] < r.low) r.low = s->value[i];
			if (r.finite == 0 || s->value[i] > r.high) r.high = s->value[i];
			r.finite++;
		}
	}
	/* What only rounding makes differ is drawn as what is equal. */
	const double largest = fabs(r.low) > fabs(r.high) ? fabs(r.low) : fabs(r.high);
	if (r.high / 2 - r.low / 2 <= 1e-6 * largest) r.low = r.high;
	return r;
}

/* Where a number is in the picture, from `a` to `b`; in the middle where all are equal. */
static double mpt__tools_place(double value, double low, double high, double a, double b) {
	const double wide = high / 2 - low / 2;	/* which cannot overflow */
	return wide > 0 ? a + (b - a) * ((value / 2 - low / 2) / wide) : (a + b) / 2;
}

enum { MPT__TOOLS_X0 = 88, MPT__TOOLS_X1 = 448, MPT__TOOLS_Y0 = 168, MPT__TOOLS_Y1 = 12 };

/* What a pointer finds: the numbers of a line, where x is none that is finite. */
static void mpt__tools_put_points(mpt__tools_bytes *to, const mpt__tools_series *s) {
	mpt__tools_put_format(to, " data-x=\"");
	for (int i = 0; i < s->count; i++) mpt__tools_put_format(to, i ? " %.7g" : "%.7g", s->step[i]);
	mpt__tools_put_format(to, "\" data-y=\"");
	for (int i = 0; i < s->count; i++)
		mpt__tools_put_format(
			to, !mpt__tools_is_finite(s->value[i]) ? " x" : i ? " %.5g" : "%.5g", s->value[i]);
	mpt__tools_put_format(to, "\"");
}

static void mpt__tools_put_line(
	mpt__tools_bytes *to, const mpt__tools_series *s, const mpt__tools_range *r, int number) {
	bool drawn = false;
	mpt__tools_put_format(to, "<path class=\"line l%lld\"", (long long)number);
	mpt__tools_put_points(to, s);
	mpt__tools_put_format(to, " d=\"");
	for (int i = 0; i < s->count; i++) {
		if (!mpt__tools_is_finite(s->value[i])) {
			drawn = false;
			continue;
		}
		const double x =
			mpt__tools_place(s->step[i], r->left, r->right, MPT__TOOLS_X0, MPT__TOOLS_X1);
		mpt__tools_put_format(to, "%s%.1f %.1f", drawn ? "L" : "M", x,
			mpt__tools_place(s->value[i], r->low, r->high, MPT__TOOLS_Y0, MPT__TOOLS_Y1));
		drawn = true;
		const bool alone = (i == 0 || !mpt__tools_is_finite(s->value[i - 1])) &&
			(i + 1 == s->count || !mpt__tools_is_finite(s->value[i + 1]));
		if (alone) mpt__tools_put_format(to, "h.1");	/* round ends make it a dot */
	}
	mpt__tools_put_format(to, "\"/>\n");
	for (int i = 0; i < s->count; i++)
		if (!mpt__tools_is_finite(s->value[i]))
			mpt__tools_put_format(to, "<text class=\"bad\" x=\"%.1f\" y=\"%lld\">&#215;</text>\n",
				mpt__tools_place(s->step[i], r->left, r->right, MPT__TOOLS_X0, MPT__TOOLS_X1),
				(long long)MPT__TOOLS_Y1 + 4);
}

static void mpt__tools_put_axes(
	mpt__tools_bytes *to, const mpt__tools_range *r, const char *axis) {
	for (int i = 0; i < 3; i++) {
		const double value = i == 1 ? r->low / 2 + r->high / 2 : i ? r->high : r->low;
		const double low = (double)MPT__TOOLS_Y0, high = (double)MPT__TOOLS_Y1;
		const double y = low + i * (high - low) / 2;
		const bool told = i == 1 || r->high > r->low;	/* the middle one where all are equal */
		mpt__tools_put_format(to, "<path class=\"grid\" d=\"M%lld %.1fH%lld\"/>",
			(long long)MPT__TOOLS_X0, y, (long long)MPT__TOOLS_X1);
		if (told && r->finite > 0)
			mpt__tools_put_format(
				to, "<text class=\"axis end\" x=\"82\" y=\"%.1f\">%.4g</text>\n", y + 4, value);
	}
	mpt__tools_put_format(to,
		"<text class=\"axis\" x=\"%lld\" y=\"186\">%s %.7g</text><text class=\"axis end\" "
		"x=\"%lld\" y=\"186\">%.7g</text>\n",
		(long long)MPT__TOOLS_X0, axis, r->left, (long long)MPT__TOOLS_X1, r->right);
}

static void mpt__tools_put_chart(mpt__tools_bytes *to, const mpt__tools_chart *chart) {
	const mpt__tools_range r = mpt__tools_chart_range(chart);
	if (r.finite + r.strange == 0) return;
	mpt__tools_put_format(
		to, "<section id=\"%s\"><h2>%s</h2><p class=\"key\">", chart->id, chart->title);
	for (int k = 0; k < MPT__TOOLS_LINES; k++) {
		const mpt__tools_series *s = chart->series[k];
		if (s && s->count > 0)
			mpt__tools_put_format(to, "<span class=\"k%lld\">%s <b>%.5g</b></span> ", (long long)k,
				chart->name[k], s->value[s->count - 1]);
	}
	if (chart->marks && chart->marks->count > 0)
		mpt__tools_put_format(to, "<span class=\"km\">%s</span> ", chart->mark);
	if (r.strange > 0) mpt__tools_put_format(to, "<span class=\"kb\">not finite</span>");
	mpt__tools_put_format(to,
		"<span class=\"kx\">%s <b>%.7g</b></span></p><svg class=\"chart\" viewBox=\"0 0 460 192\" "
		"role=\"img\" data-range=\"%.17g %.17g %.17g %.17g\">\n",
		chart->axis, r.right, r.left, r.right, r.low, r.high);
	mpt__tools_put_axes(to, &r, chart->axis);
	for (int i = 0; chart->marks && i < chart->marks->count; i++)
		mpt__tools_put_format(to, "<path class=\"mark\" d=\"M%.1f %lldV%lld\"/>\n",
			mpt__tools_place(chart->marks->step[i], r.left, r.right, MPT__TOOLS_X0, MPT__TOOLS_X1),
			(long long)MPT__TOOLS_Y0, (long long)MPT__TOOLS_Y1);
	for (int k = 0; k < MPT__TOOLS_LINES; k++)
		if (chart->series[k] && chart->series[k]->count > 0)
			mpt__tools_put_line(to, chart->series[k], &r, k);
	mpt__tools_put_format(to, "</svg></section>\n");
}

/* ==== Bars ==== */

static void mpt__tools_put_bar(
	mpt__tools_bytes *to, const char *name, double value, double most, const char *unit) {
	const bool good = mpt__tools_is_finite(value) && value > 0 && most > 0;
	mpt__tools_put_format(to, "<tr><th>");
	mpt__tools_put_cut(to, name, 40);
	mpt__tools_put_format(to, "</th><td><i style=\"width:%.1f%%\"></i></td><td>%.4g ",
		good ? 100 * (value / most) : 0.0, value);
	mpt__tools_put_escaped(to, unit);
	mpt__tools_put_format(to, "</td></tr>\n");
}

/* A distribution, as columns. */
enum { MPT__TOOLS_COLUMNS = 40 };
static void mpt__tools_put_histogram(
	mpt__tools_bytes *to, const char *name, const int64_t *counts, double low, double high) {
	int64_t most = 1;
	for (int i = 0; i < MPT__TOOLS_COLUMNS; i++) most = counts[i] > most ? counts[i] : most;
	mpt__tools_put_format(to,
		"<figure><svg class=\"spread\" viewBox=\"0 0 160 50\" data-range=\"%.9g %.9g\" "
		"data-n=\"",
		low, high);
	for (int i = 0; i < MPT__TOOLS_COLUMNS; i++)
		mpt__tools_put_format(to, i ? " %lld" : "%lld", (long long)counts[i]);
	mpt__tools_put_format(to, "\"><path class=\"bins\" d=\"M0 50");
	for (int i = 0; i < MPT__TOOLS_COLUMNS; i++)
		mpt__tools_put_format(to, "V%.1fh4", 50 - 48 * (double)counts[i] / (double)most);
	mpt__tools_put_format(to, "V50z\"/></svg><figcaption><b>");
	mpt__tools_put_cut(to, name, 30);
	mpt__tools_put_format(
		to, "</b> <span>%.3g .. %.3g</span></figcaption></figure>\n", low, high);
}

/* What a line or a distribution is under the pointer. A line tells it of its point that is nearest
   to where the pointer is, if that is within the line or close to it, and marks it. */
static const char mpt__tools_page_script[] =
	"<script>\n"
	"for (const s of document.querySelectorAll('svg.chart')) {\n"
	" const card = s.parentNode, make = (kind, name) => {\n"
	"  const e = document.createElementNS(s.namespaceURI, kind);\n"
	"  e.setAttribute('class', name); return s.appendChild(e); };\n"
	" const set = (e, to) => { for (const k in to) e.setAttribute(k, to[k]); };\n"
	" const [left, right, low, high] = s.dataset.range.split(' ').map(Number);\n"
	" const at = x => right > left ? 88 + 360 * (x - left) / (right - left) : 268;\n"
	" const rule = make('path', 'rule'), axis = card.querySelector('.kx b');\n"
	" const lines = [...s.querySelectorAll('.line')].map(p => { const k = p.classList[1][1];\n"
	"  return {x: p.dataset.x.split(' ').map(Number), y: p.dataset.y.trim().split(' '),\n"
	"   tell: card.querySelector('.k' + k + ' b'), dot: make('circle', 'dot d' + k)}; });\n"
	" const was = [axis, ...lines.map(l => l.tell)].map(e => [e, e.textContent]);\n"
	" const near = (l, x) => { let a = 0, b = l.x.length - 1; while (b - a > 1) {\n"
	"  const m = a + b >> 1; if (l.x[m] > x) b = m; else a = m; }\n"
	"  return Math.abs(l.x[a] - x) > Math.abs(l.x[b] - x) ? b : a; };\n"
	" const show = e => { const m = s.getScreenCTM(), u = (e.clientX - m.e) / m.a;\n"
	"  const x = left + (u - 88) / 360 * (right - left); let best = NaN;\n"
	"  for (const l of lines) { const c = l.x[near(l, x)];\n"
	"   if (!(Math.abs(c - x) >= Math.abs(best - x))) best = c; }\n"
	"  axis.textContent = best;\n"
	"  set(rule, {d: 'M' + at(best) + ' 12V168', visibility: 'visible'});\n"
	"  for (const l of lines) { const i = near(l, best), y = Number(l.y[i]);\n"
	"   const here = best >= l.x[0] && l.x[l.x.length - 1] >= best ||\n"
	"    12 > Math.abs(at(l.x[i]) - at(best));\n"
	"   l.tell.textContent = !here ? '\\u2013' : l.y[i] == 'x' ? 'not finite' : l.y[i];\n"
	"   if (here && !isNaN(y)) set(l.dot, {r: 4, visibility: 'visible', cx: at(l.x[i]),\n"
	"    cy: high > low ? 168 - 156 * ((y / 2 - low / 2) / (high / 2 - low / 2)) : 90});\n"
	"   else set(l.dot, {visibility: 'hidden'}); } };\n"
	" s.onpointermove = s.onpointerdown = show;\n"
	" s.onpointerleave = e => { if (e.pointerType == 'touch') return;\n"
	"  for (const [b, text] of was) b.textContent = text;\n"
	"  for (const x of [rule, ...lines.map(l => l.dot)]) set(x, {visibility: 'hidden'}); };\n"
	"}\n"
	"for (const s of document.querySelectorAll('svg.spread')) {\n"
	" const tell = s.parentNode.querySelector('span'), was = tell.textContent;\n"
	" const [low, high] = s.dataset.range.split(' ').map(Number), n = s.dataset.n.split(' ');\n"
	" const short = x => String(Number(x.toPrecision(3)));\n"
	" s.onpointermove = s.onpointerdown = e => { const m = s.getScreenCTM();\n"
	"  const i = Math.max(0, Math.min(n.length - 1, Math.floor((e.clientX - m.e) / m.a / 4)));\n"
	"  const from = low + (high - low) * i / n.length;\n"
	"  tell.textContent = n[i] + ' in ' + short(from) + ' .. ' +\n"
	"   short(from + (high - low) / n.length); };\n"
	" s.onpointerleave = e => { if (e.pointerType != 'touch') tell.textContent = was; };\n"
	"}\n</script>\n";

/* ==== Pictures ==== */

static void mpt__tools_put_base64(mpt__tools_bytes *to, const mpt__tools_bytes *from) {
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (size_t i = 0; i < from->size; i += 3) {
		char four[4] = {'=', '=', '=', '='};
		uint32_t bits = 0;
		for (size_t k = 0; k < 3; k++)
			bits = bits << 8 | (i + k < from->size ? from->data[i + k] : 0u);
		for (size_t k = 0; k < 4 && i + k <= from->size; k++)
			four[k] = digits[bits >> (18 - 6 * k) & 63];
		mpt__tools_bytes_put(to, four, 4);
	}
}

/* ----
 * tools/report.c: a training as one page of HTML.
 *
 * What does not change with every step (the net, its distributions, confusions) is kept as text
 * that goes into the page as it is.
 * ---- */

enum {
	MPT__TOOLS_PANELS = 6,
	MPT__TOOLS_BARS = 24,
	MPT__TOOLS_TENSORS = 24,	/* with a distribution */
	MPT__TOOLS_CLASSES = 40,
	MPT__TOOLS_DRAWN = 300000	/* bytes of a drawing that a page takes */
};

typedef struct {
	char title[80];
	mpt__tools_bytes text;
} mpt__tools_panel;

struct mpt_report {
	char *path;
	char title[120];
	mpt_report_config config;
	double written;	/* when */
	mpt_status status;
	mpt__tools_series loss, lr, scale, norm, speed, memory, skips;
	mpt__tools_series epoch_loss, validation_loss, validation_accuracy;
	int64_t base, last, skipped;	/* steps of fits before, the last step, skipped so far */
	mpt_progress progress;
	bool began;
	mpt__tools_bytes net, spread, confusion, kinds, step;
	mpt__tools_panel panels[MPT__TOOLS_PANELS];
	int panel_count;
};

mpt_report_config mpt_report_config_default(void) {
	mpt_report_config config = {"Training", 2.0};
	return config;
}

/* ==== The page ==== */

static const char mpt__tools_page_style[] =
	"<style>:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--ink:#1d2430;--soft:#68738a;"
	"--rule:#e1e5ec;--a:#2563eb;--b:#d9480f;--c:#2b8a3e;--bad:#c92a2a}"
	"@media(prefers-color-scheme:dark){:root{--back:#0f1218;--card:#181d26;--ink:#e6eaf0;"
	"--soft:#98a3b7;--rule:#2b3341;--a:#74a9ff;--b:#ff9f6b;--c:#69d38a;--bad:#ff8787}}"
	"*{box-sizing:border-box}body{margin:0;padding:16px;background:var(--back);color:var(--ink);"
	"font:14px/1.45 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px;overflow-wrap:anywhere}"
	"h2{font-size:15px;margin:0 0 6px}main{display:grid;gap:14px;"
	"grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}"
	"section{background:var(--card);border:1px solid var(--rule);border-radius:10px;padding:12px;"
	"min-width:0}section svg{width:100%;height:auto;display:block}.wide{grid-column:1/-1}"
	".scroll{overflow:auto;max-height:80vh}.scroll svg{width:auto;max-width:none}"
	"p{margin:0 0 6px;color:var(--soft)}p b{color:var(--ink)}.line{fill:none;stroke:var(--a);"
	"stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}.l1{stroke:var(--b)}"
	".l2{stroke:var(--c)}.grid{stroke:var(--rule)}.axis{fill:var(--soft);font-size:13px}"
	".chart{touch-action:pan-y;cursor:crosshair}.spread{touch-action:pan-y}"
	".rule{stroke:var(--soft);pointer-events:none}.dot{fill:var(--a);stroke:var(--card);"
	"stroke-width:1.5;pointer-events:none}.d1{fill:var(--b)}.d2{fill:var(--c)}"
	".end{text-anchor:end}.mark{stroke:var(--bad);stroke-dasharray:2 3}"
	".bad{fill:var(--bad);text-anchor:middle;font-size:14px}.key span{margin-right:12px;"
	"display:inline-block}"
	".key span:before{content:'\\25cf ';color:var(--a)}.key .k1:before{color:var(--b)}"
	".key .k2:before{color:var(--c)}.key .kx:before{content:''}"
	".key .km:before{content:'\\2506 ';color:var(--bad)}"
	".key .kb:before{content:'\\d7 ';color:var(--bad)}table{width:100%;border-collapse:collapse}"
	"th{text-align:left;font-weight:400;padding:2px 8px 2px 0;overflow-wrap:anywhere}"
	".bars th{min-width:84px}.bars td:nth-child(2){width:45%}.bars "
	"td:last-child{text-align:right;white-space:nowrap}"
	"i{display:block;height:10px;border-radius:3px;background:var(--a)}"
	".tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:10px}"
	"figure{margin:0}figcaption{font-size:11px;color:var(--soft);overflow-wrap:anywhere}"
	".bins{fill:var(--a)}.matrix td,.matrix th{text-align:center;padding:2px 4px;font-size:12px;"
	"border:1px solid var(--rule)}img{image-rendering:pixelated;max-width:100%;width:480px}"
	"@media(max-width:520px){body{padding:8px}.axis{font-size:14px}}</style>\n";

static void mpt__tools_put_facts(mpt__tools_bytes *to, const mpt_report *r, bool over) {
	const mpt_progress *p = &r->progress;
	mpt__tools_put_format(to, "<p id=\"state\"><b>%s</b>", over ? "ended" : "running");
	if (r->began) {
		mpt__tools_put_format(to,
			" &#183; step <b>%lld</b> &#183; epoch <b>%lld</b> of %lld &#183; %.4g steps/s "
			"&#183; %.4g s &#183; %lld skipped",
			(long long)(r->base + p->step), (long long)p->epoch, (long long)p->epochs,
			p->steps_per_second, p->seconds, (long long)p->skipped_steps);
		if (p->seconds > 0)
			mpt__tools_put_format(
				to, " &#183; %.3g %% waiting for data", 100 * p->seconds_waited / p->seconds);
		if (!over && p->eta_seconds >= 0)
			mpt__tools_put_format(to, " &#183; %.4g s left", p->eta_seconds);
	}
	mpt__tools_put_format(to, "</p></header>\n<main>\n");
}

static void mpt__tools_put_charts(mpt__tools_bytes *to, const mpt_report *r) {
	const mpt__tools_chart charts[] = {
		{"loss", "Loss", {"training, mean of the epoch", "validation", "epoch"},
			{&r->loss, &r->validation_loss, &r->epoch_loss}, NULL, NULL, "step"},
		{"accuracy", "Accuracy", {"validation", NULL, NULL}, {&r->validation_accuracy, NULL, NULL},
			NULL, NULL, "step"},
		{"lr", "Learning rate", {"lr", NULL, NULL}, {&r->lr, NULL, NULL}, NULL, NULL, "step"},
		{"scale", "Loss scale", {"scale", NULL, NULL}, {&r->scale, NULL, NULL}, &r->skips,
			"skipped step", "step"},
		{"norm", "Gradient norm", {"before clipping", NULL, NULL}, {&r->norm, NULL, NULL}, NULL,
			NULL, "step"},
		{"speed", "Throughput", {"steps a second", NULL, NULL}, {&r->speed, NULL, NULL}, NULL,
			NULL, "step"},
		{"memory", "Memory", {"MiB in use behind a step", NULL, NULL}, {&r->memory, NULL, NULL},
			NULL, NULL, "step"}};
	for (size_t i = 0; i < sizeof charts / sizeof *charts; i++)
		mpt__tools_put_chart(to, &charts[i]);
}

static void mpt__tools_put_part(mpt__tools_bytes *to, const mpt__tools_bytes *part) {
	mpt__tools_bytes_put(to, part->data, part->size);
}

/* Writes the file. While the training runs the page says that it is to be loaded again. */
static void mpt__tools_report_write(mpt_report *r, bool over) {
	mpt__tools_bytes to = {NULL, 0, 0, false};
	mpt__tools_bytes_put_text(&to,
		"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
		"<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
		"<link rel=\"icon\" href=\"data:,\">\n");
	if (!over) mpt__tools_bytes_put_text(&to, "<meta http-equiv=\"refresh\" content=\"5\">\n");
	mpt__tools_bytes_put_text(&to, "<title>");
	mpt__tools_put_escaped(&to, r->title);
	mpt__tools_bytes_put_text(&to, "</title>\n");
	mpt__tools_bytes_put_text(&to, mpt__tools_page_style);
	mpt__tools_bytes_put_text(&to, "</head><body><header><h1>");
	mpt__tools_put_escaped(&to, r->title);
	mpt__tools_bytes_put_text(&to, "</h1>");
	mpt__tools_put_facts(&to, r, over);
	mpt__tools_put_charts(&to, r);
	mpt__tools_put_part(&to, &r->step);
	mpt__tools_put_part(&to, &r->kinds);
	for (int i = 0; i < r->panel_count; i++) mpt__tools_put_part(&to, &r->panels[i].text);
	mpt__tools_put_part(&to, &r->confusion);
	mpt__tools_put_part(&to, &r->spread);
	mpt__tools_put_part(&to, &r->net);
	mpt__tools_bytes_put_text(&to, "</main>\n");
	mpt__tools_bytes_put_text(&to, mpt__tools_page_script);
	mpt__tools_bytes_put_text(&to, "</body></html>\n");
	r->status = mpt__tools_file_replace(r->path, &to);
	r->written = mpt__tools_seconds();
	mpt__tools_bytes_free(&to);
}

/* ==== Beginning and ending ==== */

mpt_report *mpt_report_open(const char *path, const mpt_report_config *config) {
	mpt_report *r = path ? (mpt_report *)mpt__tools_allocate(sizeof *r) : NULL;
	if (!r) return NULL;
	r->config = config ? *config : mpt_report_config_default();
	r->path = (char *)mpt__tools_allocate(strlen(path) + 1);
	if (!r->path) {
		mpt__tools_release(r);
		return NULL;
	}
	memcpy(r->path, path, strlen(path) + 1);
	mpt__tools_note title = mpt__tools_note_begin(r->title, sizeof r->title);
	mpt__tools_note_add(&title, "%s", r->config.title ? r->config.title : "Training");
	mpt__tools_report_write(r, false);
	return r;
}

mpt_status mpt_report_close(mpt_report *r) {
	if (!r) return MPT_OK;
	mpt__tools_report_write(r, true);
	const mpt_status status = r->status;
	mpt__tools_bytes_free(&r->net);
	mpt__tools_bytes_free(&r->spread);
	mpt__tools_bytes_free(&r->confusion);
	mpt__tools_bytes_free(&r->kinds);
	mpt__tools_bytes_free(&r->step);
	for (int i = 0; i < r->panel_count; i++) mpt__tools_bytes_free(&r->panels[i].text);
	mpt__tools_release(r->path);
	mpt__tools_release(r);
	return status;
}

/* ==== What it is told ==== */

static bool mpt__tools_is_nan(double value) {
	return mpt__tools_bits_of(value) << 1 > 0x7FFull << 53;
}

bool mpt_report_fit(void *user, const mpt_progress *p) {
	mpt_report *r = (mpt_report *)user;
	if (!r || !p) return true;
	if (r->began && p->step < r->last) r->base += r->last, r->skipped = 0;	/* another fit */
	const double step = (double)(r->base + p->step);
	r->began = true;
	r->last = p->step;
	r->progress = *p;
	if (p->epoch_end) {
		mpt__tools_series_add(&r->epoch_loss, step, p->loss);
		if (!mpt__tools_is_nan(p->validation_accuracy) || !mpt__tools_is_nan(p->validation_loss)) {
			mpt__tools_series_add(&r->validation_loss, step, p->validation_loss);
			mpt__tools_series_add(&r->validation_accuracy, step, p->validation_accuracy);
		}
	} else {
		mpt__tools_series_add(&r->loss, step, p->loss);
		if (!mpt__tools_is_nan(p->lr)) mpt__tools_series_add(&r->lr, step, p->lr);
		if (!mpt__tools_is_nan(p->grad_norm)) mpt__tools_series_add(&r->norm, step, p->grad_norm);
		mpt__tools_series_add(&r->scale, step, p->scale);
		mpt__tools_series_add(&r->speed, step, p->steps_per_second);
		mpt__tools_series_add(&r->memory, step, (double)p->memory / 1048576);
		if (p->skipped_steps > r->skipped) mpt__tools_series_add(&r->skips, step, 1);
		r->skipped = p->skipped_steps;
	}
	if (mpt__tools_seconds() - r->written >= r->config.seconds) mpt__tools_report_write(r, false);
	return true;
}

mpt_status mpt_report_bars(mpt_report *r, const char *title, const char *const *names,
	const double *values, int count, const char *unit) {
	if (!r) return MPT_ERROR_HANDLE;
	if (!title || !names || !values || count < 1) return MPT_ERROR_ARGUMENT;
	char cut[80];
	int at = 0;
	double most = 0;
	mpt__tools_note note = mpt__tools_note_begin(cut, sizeof cut);
	mpt__tools_note_add(&note, "%s", title);
	while (at < r->panel_count && strcmp(r->panels[at].title, cut) != 0) at++;
	if (at == MPT__TOOLS_PANELS) return MPT_ERROR_ARGUMENT;
	if (at == r->panel_count) r->panel_count++;
	mpt__tools_panel *panel = &r->panels[at];
	memcpy(panel->title, cut, sizeof cut);
	if (count > MPT__TOOLS_BARS) count = MPT__TOOLS_BARS;
	for (int i = 0; i < count; i++)
		if (mpt__tools_is_finite(values[i]) && values[i] > most) most = values[i];
	mpt__tools_bytes *to = &panel->text;
	to->size = 0;
	mpt__tools_put_format(to, "<section class=\"panel\"><h2>");
	mpt__tools_put_escaped(to, cut);
	mpt__tools_put_format(to, "</h2><table class=\"bars\">\n");
	for (int i = 0; i < count; i++)
		mpt__tools_put_bar(to, names[i] ? names[i] : "", values[i], most, unit ? unit : "");
	mpt__tools_put_format(to, "</table></section>\n");
	return to->failed ? MPT_ERROR_MEMORY : MPT_OK;
}

/* ==== Memory over a step ==== */

enum { MPT__TOOLS_STEP_POINTS = 400 };

/* A step of a profile with its launches, of which so many neighbours make a point that there are
   points enough: a point has the most that was in use in them. */
typedef struct {
	double start, end;	/* seconds; where there is none, `end` is not behind `start` */
	int64_t launches;
} mpt__tools_stretch;
typedef struct {
	mpt__tools_stretch whole, last;	/* the one that is drawn; the last one, which may be cut off */
	int64_t each, in_point;
	double most;						/* of the point under way, MiB */
	int phase;							/* of the launch before */
	mpt__tools_series line[MPT__TOOLS_LINES];	/* forward, backward, update: MiB by microseconds */
} mpt__tools_step;

static bool mpt__tools_stretch_has(const mpt__tools_stretch *step, const mpt_profile_span *span) {
	return span->kind == MPT_SPAN_LAUNCH && span->start >= step->start && span->start < step->end;
}

static void mpt__tools_step_find(void *user, const mpt_profile_span *span) {
	mpt__tools_step *step = (mpt__tools_step *)user;
	if (span->kind == MPT_SPAN_STEP) {
		if (step->last.launches > 0) step->whole = step->last;
		step->last.start = span->start, step->last.end = span->start + span->seconds;
		step->last.launches = 0;
	} else if (mpt__tools_stretch_has(&step->last, span)) {
		step->last.launches++;
	}
}

static void mpt__tools_step_follow(void *user, const mpt_profile_span *span) {
	mpt__tools_step *step = (mpt__tools_step *)user;
	if (!mpt__tools_stretch_has(&step->whole, span)) return;
	const int phase = *span->phase == 'f' ? 0
		: *span->phase == 'b'             ? 1
		: *span->phase == 'u'             ? 2
										  : step->phase;
	const double used = (double)span->memory / 1048576;
	if (used > step->most) step->most = used;
	if (++step->in_point < step->each && phase == step->phase) return;
	mpt__tools_series *line = &step->line[phase];
	const mpt__tools_series *before = &step->line[step->phase];
	if (phase != step->phase && before->count > 0)	/* the lines meet */
		mpt__tools_series_add(
			line, before->step[before->count - 1], before->value[before->count - 1]);
	const double microseconds = 1e6 * (span->start + span->seconds - step->whole.start);
	mpt__tools_series_add(line, floor(microseconds + 0.5), step->most);
	step->in_point = 0, step->most = 0, step->phase = phase;
}

static void mpt__tools_put_step(mpt_report *r, mpt_context *ctx) {
	mpt__tools_step *step = (mpt__tools_step *)mpt__tools_allocate(sizeof *step);
	if (!step) return;
	mpt_profile_spans(ctx, mpt__tools_step_find, step);
	if (step->whole.launches == 0) step->whole = step->last;
	step->each = step->whole.launches / MPT__TOOLS_STEP_POINTS + 1;
	mpt_profile_spans(ctx, mpt__tools_step_follow, step);
	const mpt__tools_chart chart = {"step", "Memory over a step", {"forward", "backward", "update"},
		{&step->line[0], &step->line[1], &step->line[2]}, NULL, NULL, "us"};
	r->step.size = 0;
	mpt__tools_put_chart(&r->step, &chart);
	mpt__tools_release(step);
}

mpt_status mpt_report_profile(mpt_report *r, mpt_context *ctx) {
	if (!r) return MPT_ERROR_HANDLE;
	mpt_profile_row rows[MPT__TOOLS_BARS];
	char text[MPT__TOOLS_BARS][64];
	const char *names[MPT__TOOLS_BARS];
	double values[MPT__TOOLS_BARS];
	const int64_t found = mpt_profile_rows(ctx, MPT_PROFILE_OP, rows, MPT__TOOLS_BARS);
	const int count = found < (int64_t)MPT__TOOLS_BARS ? (int)found : (int)MPT__TOOLS_BARS;
	if (found < 0) return mpt_error_code(ctx);
	const int64_t steps = mpt_get_profile_total(ctx).steps;
	mpt__tools_put_step(r, ctx);
	for (int i = 0; i < count; i++) {
		mpt__tools_note name = mpt__tools_note_begin(text[i], sizeof text[i]);
		mpt__tools_note_add(&name, "%s %s", rows[i].name, rows[i].phase);
		names[i] = text[i];
		values[i] = 1e6 * rows[i].seconds / (double)(steps > 0 ? steps : 1);
	}
	return mpt_report_bars(r, "Time of a step, by op", names, values, count, "us");
}

mpt_status mpt_report_confusion(mpt_report *r, const int64_t *counts, int classes) {
	if (!r) return MPT_ERROR_HANDLE;
	if (!counts || classes < 2 || classes > MPT__TOOLS_CLASSES) return MPT_ERROR_ARGUMENT;
	mpt__tools_bytes *to = &r->confusion;
	to->size = 0;
	mpt__tools_put_format(to,
		"<section id=\"confusion\"><h2>Confusion</h2><p>rows: true class; columns: guess</p>"
		"<div class=\"scroll\"><table class=\"matrix\"><tr><th></th>");
	for (int i = 0; i < classes; i++) mpt__tools_put_format(to, "<th>%lld</th>", (long long)i);
	mpt__tools_put_format(to, "</tr>\n");
	for (int i = 0; i < classes; i++) {
		double all = 0;
		for (int k = 0; k < classes; k++) all += (double)counts[(int64_t)i * classes + k];
		mpt__tools_put_format(to, "<tr><th>%lld</th>", (long long)i);
		for (int k = 0; k < classes; k++) {
			const int64_t count = counts[(int64_t)i * classes + k];
			const double share = all > 0 ? (double)count / all : 0;
			mpt__tools_put_format(to, "<td title=\"%lld taken for %lld: %.3g %%\" "
									  "style=\"background:rgba(%s,%.2f)\">%lld</td>",
				(long long)i, (long long)k, 100 * share,
				i == k ? "43,138,62" : "201,42,42",
				i == k             ? 0.6 * share
					: share > 0.25 ? 0.8
								   : 3.2 * share,
				(long long)count);
		}
		mpt__tools_put_format(to, "</tr>\n");
	}
	mpt__tools_put_format(to, "</table></div></section>\n");
	return to->failed ? MPT_ERROR_MEMORY : MPT_OK;
}

/* ==== The net ==== */

/* The distribution of a tensor's finite numbers; nothing where it has none. */
static void mpt__tools_put_spread(mpt__tools_bytes *to, const char *name, mpt_tensor tensor) {
	int64_t counts[MPT__TOOLS_COLUMNS];
	const mpt_tensor_stats stats = mpt_statistics(tensor);
	if (mpt_failed(tensor.context) || !mpt__tools_is_finite(stats.min)) return;
	const double pad = stats.max > stats.min ? 0 : stats.min < 0 ? -stats.min : stats.min + 1e-6;
	const double low = stats.min - pad, high = stats.max + pad;
	if (mpt_histogram(tensor, low, high, counts, MPT__TOOLS_COLUMNS) == MPT_OK)
		mpt__tools_put_histogram(to, name, counts, stats.min, stats.max);
}

static void mpt__tools_put_spreads(mpt__tools_bytes *to, mpt_module net, bool gradients) {
	const int count = mpt_parameter_count(net);
	int drawn = 0;
	char path[1024];
	for (int i = 0; i < count && drawn < MPT__TOOLS_TENSORS; i++) {
		const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
		if (gradients && !mpt_has_grad(tensor)) continue;
		if (drawn++ == 0)
			mpt__tools_put_format(to,
				"<section id=\"%s\" class=\"wide\"><h2>%s</h2><div class=\"tiles\">\n",
				gradients ? "gradients" : "weights", gradients ? "Gradients" : "Weights");
		mpt__tools_put_spread(to, path, gradients ? mpt_grad(tensor) : tensor);
	}
	if (drawn > 0) mpt__tools_put_format(to, "</div></section>\n");
}

/* How the rows of a weight are pictures: their side, planes and how many; false where not. */
static bool mpt__tools_filters_are(const mpt_shape *shape, int64_t *height, int64_t *width) {
	if (shape->rank == 4 && shape->dim[2] > 1 && shape->dim[2] <= 64 && shape->dim[3] <= 64) {
		*height = shape->dim[2], *width = shape->dim[3];
		return true;
	}
	if (shape->rank != 2 || shape->dim[1] < 64 || shape->dim[1] > 4096) return false;
	for (*height = 8; *height * *height < shape->dim[1];) ++*height;
	*width = *height;
	return *height * *width == shape->dim[1];
}

/* Up to 32 filters, eight in a row, each from its least number to its largest. */
static void mpt__tools_put_filters(
	mpt__tools_bytes *to, const char *path, const float *values, const mpt_shape *shape) {
	int64_t height, width;
	if (!mpt__tools_filters_are(shape, &height, &width)) return;
	const int64_t each = mpt__tools_shape_numel(shape) / shape->dim[0];
	const int64_t count = shape->dim[0] < 32 ? shape->dim[0] : 32, across = count < 8 ? count : 8;
	const int64_t wide = across * (width + 1) - 1;
	const int64_t high = (count + across - 1) / across * (height + 1) - 1;
	unsigned char *pixels = (unsigned char *)mpt__tools_allocate((size_t)(wide * high));
	mpt__tools_bytes png = {NULL, 0, 0, false};
	for (int64_t f = 0; pixels && f < count; f++) {
		const float *filter = values + f * each;	/* its first plane */
		float low = filter[0], top = filter[0];
		for (int64_t i = 0; i < height * width; i++)
			low = filter[i] < low ? filter[i] : low, top = filter[i] > top ? filter[i] : top;
		for (int64_t i = 0; i < height * width; i++)
			pixels[(f / across * (height + 1) + i / width) * wide + f % across * (width + 1) +
				i % width] =
				mpt__tools_pixel_of(top > low ? (filter[i] - low) / (top - low) : 0.5f);
	}
	if (pixels) mpt__tools_put_png(&png, pixels, (int)wide, (int)high, 1);
	mpt__tools_put_format(to, "<section id=\"filters\"><h2>First filters</h2><p>");
	mpt__tools_put_cut(to, path, 60);
	mpt__tools_put_format(to, "</p><img alt=\"filters\" src=\"data:image/png;base64,");
	mpt__tools_put_base64(to, &png);
	mpt__tools_put_format(to, "\"></section>\n");
	mpt__tools_bytes_free(&png);
	mpt__tools_release(pixels);
}

static void mpt__tools_put_first_filters(mpt__tools_bytes *to, mpt_module net) {
	const int count = mpt_parameter_count(net);
	char path[1024];
	for (int i = 0; i < count; i++) {
		const mpt_tensor tensor = mpt_parameter_at(net, i, path, sizeof path);
		const mpt_shape shape = mpt_get_shape(tensor);
		int64_t height, width;
		if (!mpt__tools_filters_are(&shape, &height, &width)) continue;
		const int64_t numel = mpt__tools_shape_numel(&shape);
		float *values = (float *)mpt__tools_allocate((size_t)numel * sizeof *values);
		if (values && mpt_read_f32(tensor, values, numel) == MPT_OK)
			mpt__tools_put_filters(to, path, values, &shape);
		mpt__tools_release(values);
		return;
	}
}

static void mpt__tools_put_kinds(mpt__tools_bytes *to, mpt_context *ctx) {
	const mpt_memory_stats memory = mpt_memory(ctx);
	double most = 0;
	for (int i = 0; i < MPT_MEMORY_KINDS; i++)
		most = (double)memory.peak[i] > most ? (double)memory.peak[i] : most;
	mpt__tools_put_format(to,
		"<section id=\"kinds\"><h2>Memory by kind</h2><p>the most so far</p>"
		"<table class=\"bars\">\n");
	for (int i = 0; i < MPT_MEMORY_KINDS; i++)
		if (memory.peak[i] > 0)
			mpt__tools_put_bar(to, mpt_memory_kind_name((mpt_memory_kind)i),
				(double)memory.peak[i] / 1048576, most / 1048576, "MiB");
	mpt__tools_put_format(to, "</table></section>\n");
}

mpt_status mpt_report_net(mpt_report *r, mpt_module net, mpt_graph graph) {
	if (!r) return MPT_ERROR_HANDLE;
	if (mpt_parameter_count(net) < 0) return MPT_ERROR_HANDLE;
	r->spread.size = r->kinds.size = 0;
	mpt__tools_put_first_filters(&r->spread, net);
	mpt__tools_put_spreads(&r->spread, net, false);
	mpt__tools_put_spreads(&r->spread, net, true);
	mpt__tools_put_kinds(&r->kinds, net.context);
	if (graph.slot) {
		mpt__tools_bytes svg = {NULL, 0, 0, false};
		const bool fine = mpt__tools_put_svg(&svg, graph);
		r->net.size = 0;
		mpt__tools_put_format(
			&r->net, "<section id=\"net\" class=\"wide\"><h2>Net</h2><div class=\"scroll\">\n");
		if (fine && svg.size <= MPT__TOOLS_DRAWN)
			mpt__tools_put_part(&r->net, &svg);
		else
			mpt__tools_put_format(&r->net, "<p>too large to be drawn here; see mpt_graph_svg</p>");
		mpt__tools_put_format(&r->net, "</div></section>\n");
		mpt__tools_bytes_free(&svg);
	}
	if (mpt_failed(net.context)) return mpt_error_code(net.context);
	return r->spread.failed || r->net.failed || r->kinds.failed ? MPT_ERROR_MEMORY : MPT_OK;
}

#endif
