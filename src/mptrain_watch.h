/* ----
 * mptrain_watch.h: what looks at a training closely: the profiler (mpt_profile_begin), flight logs
 * (mpt_flight_begin), the net as a graph (mpt_trace), with what each launch costs, and gradients
 * against small changes (mpt_gradcheck).
 *
 * It belongs to mptrain.h of the same version, which declares all of it and includes it by name.
 * Put it where the compiler finds it and define MPTRAIN_WATCH where MPTRAIN_IMPLEMENTATION is:
 *
 *     #define MPTRAIN_WATCH
 *     #define MPTRAIN_IMPLEMENTATION
 *     #include "mptrain.h"
 * ---- */
#ifndef MPT__MPTRAIN_WATCH_INCLUDED
#define MPT__MPTRAIN_WATCH_INCLUDED

#ifndef MPT__IMPLEMENTED
#error "mptrain.h includes this file, where MPTRAIN_WATCH and MPTRAIN_IMPLEMENTATION are defined"
#elif MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_watch.h are of different versions; copy both from one release"
#endif
#include "watch/cost.c"
#include "watch/profile.c"
#include "watch/flight.c"
#include "watch/trace.c"
#include "watch/gradcheck.c"

#endif
