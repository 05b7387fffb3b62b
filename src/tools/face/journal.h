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
    int64_t count; /* of the finite ones */
    double min, max, sum, squares;
    int bins;
    const double *limits, *counts;
} mpt_journal_bins;

typedef struct mpt_journal_entry {
    mpt_journal_kind kind;
    const char *tag; /* "loss", "weights/0.weight" */
    int64_t step;
    double time;                  /* seconds since 1970 began */
    double value;                 /* of a scalar, else 0 */
    const char *text;             /* of a text, else NULL */
    const mpt_journal_bins *bins; /* of a histogram, else NULL */
    const unsigned char *png;     /* of an image: a file of that format; else NULL */
    size_t png_bytes;             /* of that file */
    int width, height, channels;  /* of an image, else 0 */
    const unsigned char *graph;   /* of a net: a tensorflow.GraphDef, a message; else NULL */
    size_t graph_bytes;           /* of that message */
} mpt_journal_entry;

typedef struct mpt_journal_config {
    const char *tensorboard; /* NULL; a folder for an event file, one for each training */
    const char *csv;         /* NULL; a file of rows "step,time,tag,value", scalars alone */
    const char *jsonl;       /* NULL; a file with one JSON object per line, images without pixels */
    /* NULL; called for each entry, which lives until it returns: other services hang here. */
    void (*entry)(void *user, const mpt_journal_entry *entry);
    void *user;
    double (*now)(void *user); /* NULL: the system's time, in seconds since 1970 began */
    bool resume;               /* true: goes on with files that are there; else begins anew */
    double flush_seconds;      /* 2; what is older is in the files, of a killed process, too */
    int64_t every;             /* 1; of how many steps mpt_journal_fit logs one */
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
