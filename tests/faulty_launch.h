/* faulty_launch.h: a context whose launch number `bad_launch` fails, or copy number `bad_copy` from
   or to the device, for tests that hold the implementation. */
#ifndef FAULTY_LAUNCH_H
#define FAULTY_LAUNCH_H

static int64_t launches, bad_launch; /* so far; the one that fails, 0: none */
static int64_t copies, bad_copy;     /* likewise */
static mpt_context *broken_context;
static mpt_status (*real_launch)(void *self, const mpt__execution *execution,
                                 const mpt__launch *launch);
static mpt_status (*real_copy)(void *self, void *destination, const void *source, size_t bytes);

static mpt_status device_broke(void) {
    mpt__backend *backend = &broken_context->backend;
    snprintf(backend->error, sizeof backend->error, "the device broke");
    return MPT_ERROR_DEVICE;
}

static mpt_status faulty_launch(void *self, const mpt__execution *execution,
                                const mpt__launch *launch) {
    return ++launches == bad_launch ? device_broke() : real_launch(self, execution, launch);
}

static mpt_status faulty_copy(void *self, void *destination, const void *source, size_t bytes) {
    return ++copies == bad_copy ? device_broke() : real_copy(self, destination, source, bytes);
}

static void break_launches(mpt_context *broken) {
    broken_context = broken;
    real_launch = broken->backend.launch;
    broken->backend.launch = faulty_launch;
    real_copy = broken->backend.upload; /* on a CPU, the same both ways */
    broken->backend.upload = broken->backend.download = faulty_copy;
}

#endif
