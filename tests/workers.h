/* workers.h: threads that a test itself starts, beside those of the library. */
#ifndef TEST_WORKERS_H
#define TEST_WORKERS_H

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <pthread.h>
#endif
#include <stdlib.h>

typedef struct worker {
    void (*run)(void *argument);
    void *argument;
#ifdef _WIN32
    HANDLE thread;
#else
    pthread_t thread;
#endif
} worker;

#ifdef _WIN32
static DWORD WINAPI worker_main(void *w) {
    ((worker *)w)->run(((worker *)w)->argument);
    return 0;
}
#else
static void *worker_main(void *w) {
    ((worker *)w)->run(((worker *)w)->argument);
    return NULL;
}
#endif

/* Runs run(argument) on a thread; *w stays where it is until worker_end. */
static void worker_begin(worker *w, void (*run)(void *argument), void *argument) {
    w->run = run, w->argument = argument;
#ifdef _WIN32
    w->thread = CreateThread(NULL, 0, worker_main, w, 0, NULL);
    if (!w->thread) abort();
#else
    if (pthread_create(&w->thread, NULL, worker_main, w) != 0) abort();
#endif
}

static void worker_end(worker *w) {
#ifdef _WIN32
    WaitForSingleObject(w->thread, INFINITE);
    CloseHandle(w->thread);
#else
    pthread_join(w->thread, NULL);
#endif
}

#endif
