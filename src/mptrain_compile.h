/* ----
 * mptrain_compile.h: compiled steps: captured ones whose launches were rewritten, so that what is
 * computed element by element goes through memory once.
 *
 * It belongs to mptrain.h of the same version, which includes it by name. Put it where the compiler
 * finds it and define MPTRAIN_COMPILE where MPTRAIN_IMPLEMENTATION is (and, with the library in two
 * objects, MPTRAIN_CPU_IMPLEMENTATION):
 *
 *     #define MPTRAIN_COMPILE
 *     #define MPTRAIN_IMPLEMENTATION
 *     #include "mptrain.h"
 *
 * Other files of a program include it behind mptrain.h, for the declarations.
 * ---- */
#ifndef MPTRAIN_VERSION
#error "include mptrain.h before mptrain_compile.h"
#elif MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_compile.h are of different versions; copy both from one release"
#endif
#include "graph/face.h"

#ifdef MPT__PROGRAMS_HERE
#include "cpu/program.c"
#elif defined(MPTRAIN_IMPLEMENTATION) && defined(MPTRAIN_COMPILE) && defined(MPT__IMPLEMENTED)
#ifndef MPT__MPTRAIN_COMPILE_INCLUDED
#define MPT__MPTRAIN_COMPILE_INCLUDED
#include "graph/compile.c"
#endif
#endif
