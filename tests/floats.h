/* floats.h: how the calling thread rounds, whether it flushes denormals, which exceptions trap: the
   register itself, since <fenv.h> has neither flushing nor, everywhere, traps. */
#ifndef TEST_FLOATS_H
#define TEST_FLOATS_H

#include <stdint.h>

typedef struct floats_mode {
    const char *name;
    uint32_t bits;
} floats_mode;

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_FLOATS 1
static const floats_mode floats_modes[] = {
    {"to nearest", 0x1f80},    {"up", 0x5f80},       {"down", 0x3f80},
    {"to zero", 0x7f80},       {"flushing", 0x9fc0}, {"up, flushing", 0xdfc0},
    {"bad ones trap", 0x1900}, {"all trap", 0x0000},
};
static inline uint32_t floats_get(void) { return __builtin_ia32_stmxcsr() & ~0x3fu; }
static inline void floats_set(uint32_t bits) { __builtin_ia32_ldmxcsr(bits); }
#elif defined(__GNUC__) && defined(__aarch64__)
#define HAVE_FLOATS 1
static const floats_mode floats_modes[] = {
    {"to nearest", 0},     {"up", 1u << 22},       {"down", 2u << 22},
    {"to zero", 3u << 22}, {"flushing", 1u << 24}, {"up, flushing", 5u << 22},
};
static inline uint32_t floats_get(void) {
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits) : : "memory");
    return (uint32_t)bits;
}
static inline void floats_set(uint32_t bits) {
    const uint64_t wide = bits;
    __asm__ volatile("msr fpcr, %0" : : "r"(wide) : "memory");
}
#else
#define HAVE_FLOATS 0
static const floats_mode floats_modes[] = {{"to nearest", 0}};
static inline uint32_t floats_get(void) { return 0; }
static inline void floats_set(uint32_t bits) { (void)bits; }
#endif

enum { FLOATS_MODES = (int)(sizeof floats_modes / sizeof *floats_modes) };

/* Whether there is another mode to be in: emulators may have none. */
static inline int floats_change(void) {
    const uint32_t before = floats_get();
    int i, changed = 0;
    for (i = 0; i < FLOATS_MODES; i++) {
        floats_set(floats_modes[i].bits);
        changed += floats_get() == floats_modes[i].bits;
        floats_set(before);
    }
    return HAVE_FLOATS && changed == FLOATS_MODES;
}

#endif
