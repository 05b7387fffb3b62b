/* ----
 * cpu/template/functions.c: exp and its kin, which are words on bits, for one float (a width of 1)
 * and each vector; the words that are made of others, for vectors and the reference (a width of 0,
 * of mpt__real).
 * ---- */
#if defined(MPT__V) && MPT__WIDTH > 0
#include "cpu/template/math.c"
#endif
#if defined(MPT__V) && MPT__WIDTH != 1
#include "waist/functions.inl"
#endif
