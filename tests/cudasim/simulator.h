/* simulator.h - what the parts of the simulator share: memory and streams (runtime.cpp), kernels
   (execute.cpp), matrix products (cublaslt.cpp). They are built without sanitizers, with SIM_ASAN
   or SIM_TSAN defined where the .cu has them, and linked before it. */
#ifndef CUDASIM_SIMULATOR_H
#define CUDASIM_SIMULATOR_H

#include <cuda_runtime.h>
#include <functional>

#ifdef SIM_ASAN
#include <sanitizer/asan_interface.h>
#undef ASAN_POISON_MEMORY_REGION
#undef ASAN_UNPOISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(at, size) __asan_poison_memory_region(at, size)
#define ASAN_UNPOISON_MEMORY_REGION(at, size) __asan_unpoison_memory_region(at, size)
#else
#define ASAN_POISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

namespace cudasim {

const size_t DEFAULT_SHARED = 48 << 10; // dynamic shared memory without opt-in
const size_t MAX_SHARED = 227 << 10;    // and with it, as on sm_90

int environment(const char *name, int otherwise);

// Says what is wrong with the program under test and ends it.
[[noreturn]] void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

// What the function must fail with, by the plan of a test (control.h); 0: nothing.
int planned_failure(const char *function);

// Fills with 0xff. Not memset: sanitizers watch it, and this goes over ASan's red zones too.
void fill(void *at, size_t size);

// Device memory can be reached while one of these lives.
struct device_access {
    device_access();
    ~device_access();
    device_access(const device_access &) = delete;
    device_access &operator=(const device_access &) = delete;
};

bool is_device(const void *at, size_t size);
bool is_pinned(const void *at, size_t size);
void require_device(const char *who, const char *what, const void *at, size_t size);

// The device that this thread has chosen, and what it can do. The handle of a library is for the
// device that it was made on.
int current_device();
int current_capability();
void require_device_of(const char *who, cudaStream_t stream, int device);

// Runs `work` when the stream comes to it.
void enqueue(cudaStream_t stream, std::function<void()> work);

// How often a thread of a kernel began or went on, so far.
unsigned long long switches();

// Runs all blocks of a kernel. Called with device_access.
void run_grid(const config &c, const char *name, const std::function<void()> &thread);

} // namespace cudasim

#endif
