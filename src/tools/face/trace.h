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
