/* ----
 * mptrain_parallel.h: training by several processes, on one machine or many, over MPI.
 *
 * It belongs to mptrain.h of the same version, which includes it by name. Put it where the compiler
 * finds it, define MPTRAIN_USE_MPI where MPTRAIN_IMPLEMENTATION is, and build with mpicc:
 *
 *     #define MPTRAIN_USE_MPI
 *     #define MPTRAIN_IMPLEMENTATION
 *     #include "mptrain.h"
 *
 * Other files of a program include it behind mptrain.h, for the declarations, which need no mpi.h.
 * ---- */
#ifndef MPTRAIN_VERSION
#error "include mptrain.h before mptrain_parallel.h"
#endif
#include "parallel/face.h"

#if defined(MPT__IMPLEMENTED) && defined(MPTRAIN_USE_MPI)
#ifndef MPT__MPTRAIN_PARALLEL_INCLUDED
#define MPT__MPTRAIN_PARALLEL_INCLUDED
#if MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_parallel.h are of different versions; copy both from one release"
#elif defined(MPTRAIN_NO_FRUGAL) || defined(MPTRAIN_NO_WATCH)
#error "MPTRAIN_USE_MPI does not go with MPTRAIN_NO_FRUGAL or MPTRAIN_NO_WATCH"
#endif
#include "parallel/world.c"
#include "parallel/tensors.c"
#include "parallel/buckets.c"
#include "parallel/norms.c"
#include "parallel/data.c"
#include "parallel/shards.c"
#endif
#endif
