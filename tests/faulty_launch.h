/* faulty_launch.h: a context whose launch number `bad_launch` fails, for tests that hold the
   implementation. */
#ifndef FAULTY_LAUNCH_H
#define FAULTY_LAUNCH_H

static int64_t launches, bad_launch; /* so far; the one that fails, 0: none */
static mpt_context *broken_context;
static mpt_status (*real_launch)(void *self, const mpt__execution *execution,
                                 const mpt__launch *launch);

static mpt_status faulty_launch(void *self, const mpt__execution *execution,
                                const mpt__launch *launch) {
    mpt__backend *backend = &broken_context->backend;
    if (++launches != bad_launch) return real_launch(self, execution, launch);
    snprintf(backend->error, sizeof backend->error, "the device broke");
    return MPT_ERROR_DEVICE;
}

static void break_launches(mpt_context *broken) {
    broken_context = broken;
    real_launch = broken->backend.launch;
    broken->backend.launch = faulty_launch;
}

#endif
