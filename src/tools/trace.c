/* ----
 * tools/trace.c: profiles as files: the trace events that Chrome and Perfetto read.
 * ---- */
#ifndef MPT__TRACE_INCLUDED
#define MPT__TRACE_INCLUDED

#include "precisions.c"

enum { MPT__TOOLS_TRACE_ROWS = 4096 }; /* of threads that get a name */

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
    if (span->kind == MPT_SPAN_LAUNCH) { /* a row with a curve */
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

#endif
