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
    const char *title; /* "Training" */
    double seconds;    /* 2; the file is written at most so often while a training runs */
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
