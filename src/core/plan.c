/* ----
 * core/plan.c: what a training will take, from a run that takes no memory and computes nothing.
 *
 * A dry context is one of the CPU whose backend has been robbed of its hands: it says what scratch
 * memory a launch needs, but runs none, and what it hands out as memory is the address of a byte
 * that nobody reads or writes. All else, from the pool to the moments, is the real thing, so that
 * the bytes are those of the real run.
 * ---- */
#ifndef MPT__CORE_PLAN_INCLUDED
#define MPT__CORE_PLAN_INCLUDED

#include "core/values.c"

#ifndef MPTRAIN_NO_FRUGAL
static void *mpt__dry_allocate(void *self, size_t bytes) {
    static const char nothing[1] = {0};
    (void)self, (void)bytes;
    return (void *)(intptr_t)nothing;
}

static void mpt__dry_release(void *self, void *pointer, size_t bytes) {
    (void)self, (void)pointer, (void)bytes;
}

static mpt_status mpt__dry_upload(void *self, void *to, const void *from, size_t bytes) {
    (void)self, (void)to, (void)from, (void)bytes;
    return MPT_OK;
}

/* Every value is 0, also those of borrowed memory. */
static mpt_status mpt__dry_download(void *self, void *to, const void *from, size_t bytes) {
    (void)self, (void)from;
    memset(to, 0, bytes);
    return MPT_OK;
}

static mpt_status mpt__dry_launch(
    void *self, const mpt__execution *execution, const mpt__launch *launch) {
    (void)self, (void)execution, (void)launch;
    return MPT_OK;
}

/* Takes the hands from the backend that the context has. */
static void mpt__dry_begin(mpt_context *ctx) {
    mpt__backend *backend = &ctx->backend;
    backend->allocate = mpt__dry_allocate;
    backend->release = mpt__dry_release;
    backend->upload = mpt__dry_upload;
    backend->download = mpt__dry_download;
    backend->launch = mpt__dry_launch;
}
#endif

#endif
