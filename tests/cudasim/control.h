/* control.h - what a test can do to the simulated device. C11 and C++17. */
#ifndef CUDASIM_CONTROL_H
#define CUDASIM_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The function of this name ("launch" for kernels) gives the error (a cudaError_t or, for cuBLASLt,
   a cublasStatus_t) when it has been called `after` more times; sticky: all calls give it from then
   on. An earlier plan is forgotten and the device sound again; the name "" plans nothing,
   "captured" is any call while a stream is captured, where cuBLASLt fails to execute. */
void cudasim_fail(const char *function, int after, int error, int sticky);

/* Whether what was planned has happened. */
int cudasim_failed(void);

/* As the environment's CUDASIM_DEVICES, CUDASIM_CAPABILITY and CUDASIM_ASYNC, from now on. */
void cudasim_set_devices(int count);
void cudasim_set_capability(int capability);
void cudasim_set_deferred(int late);

/* The size of each device's memory. */
void cudasim_set_memory(size_t bytes);

/* How often threads of kernels began or went on behind a barrier: a measure of work. */
unsigned long long cudasim_switches(void);

/* How often kernels were launched that have this in their names, as the .cu writes them. */
unsigned long long cudasim_launched(const char *part);

/* How much of the host's memory is page-locked. */
size_t cudasim_locked(void);

#ifdef __cplusplus
}
#endif

#endif
