/* faulty_system.h: calls of the operating system that fail when a test wants them to. First of all
   in a test program: it stands in front of the C library of 64-bit Linux. Elsewhere nothing is
   intercepted and HAVE_FAULTY_SYSTEM is not defined. */
#ifndef TEST_FAULTY_SYSTEM_H
#define TEST_FAULTY_SYSTEM_H

#undef _FORTIFY_SOURCE
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum system_call {
    CALL_OPEN,
    CALL_READ,
    CALL_WRITE,
    CALL_LSEEK,
    CALL_CLOSE,
    CALL_FSYNC,
    CALL_RENAME,
    CALL_UNLINK,
    CALL_READLINK,
    CALL_STAT,
    CALL_FSTAT,
    CALL_FCHMOD,
    CALL_FCHOWN,
    CALL_FLOCK,
    CALL_OPENDIR,
    CALL_READDIR,
    IO_OPEN, /* from here on: callbacks of a test, which ask system_fails themselves */
    IO_READ,
    IO_WRITE,
    IO_SEEK,
    IO_SIZE,
    IO_FLUSH,
    IO_CLOSE,
    IO_COMMIT,
    IO_LIST,
    IO_REMOVE,
    SYSTEM_CALLS
};
#if defined(__linux__) && defined(__LP64__)
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
#if defined(__GLIBC__)
#define HAVE_FAULTY_SYSTEM 1
#endif
#endif

#ifdef HAVE_FAULTY_SYSTEM

static const char *const system_call_names[SYSTEM_CALLS] = {
    "open",     "read",     "write",     "lseek",   "close",    "fsync",   "rename",
    "unlink",   "readlink", "stat",      "fstat",   "fchmod",   "fchown",  "flock",
    "opendir",  "readdir",  "io.open",   "io.read", "io.write", "io.seek", "io.size",
    "io.flush", "io.close", "io.commit", "io.list", "io.remove"};

/* Call number `at` (from 1) of one kind fails with `code`; so does every later one, if `onwards`.
   Code 0: it moves half of the bytes, or none. */
static struct {
    int call, at, code, onwards;
    int calls[SYSTEM_CALLS];
    int armed, failed;
} system_fault;

static inline int system_fails(int call) {
    if (!system_fault.armed) return 0;
    const int n = ++system_fault.calls[call];
    if (call != system_fault.call || system_fault.at == 0) return 0;
    if (n != system_fault.at && !(system_fault.onwards && n > system_fault.at)) return 0;
    system_fault.failed++;
    errno = system_fault.code;
    return 1;
}

static inline void system_arm(int call, int at, int code, int onwards) {
    for (int i = 0; i < SYSTEM_CALLS; i++) system_fault.calls[i] = 0;
    system_fault.call = call, system_fault.at = at, system_fault.code = code;
    system_fault.onwards = onwards;
    system_fault.failed = 0, system_fault.armed = 1;
}

static inline void system_disarm(void) { system_fault.armed = 0; }

#ifdef __cplusplus
#define SYSTEM_NOTHROW __THROW
extern "C" {
#else
#define SYSTEM_NOTHROW
#endif

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) {
        __builtin_va_list rest;
        __builtin_va_start(rest, flags);
        mode = (mode_t) __builtin_va_arg(rest, int);
        __builtin_va_end(rest);
    }
    if (system_fails(CALL_OPEN)) return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t read(int file, void *to, size_t bytes) {
    if (system_fails(CALL_READ)) {
        if (system_fault.code) return -1;
        bytes /= 2;
    }
    return syscall(SYS_read, file, to, bytes);
}

ssize_t write(int file, const void *from, size_t bytes) {
    if (system_fails(CALL_WRITE)) {
        if (system_fault.code) return -1;
        bytes /= 2;
    }
    return syscall(SYS_write, file, from, bytes);
}

off_t lseek(int file, off_t to, int whence) SYSTEM_NOTHROW {
    if (system_fails(CALL_LSEEK)) return -1;
    return syscall(SYS_lseek, file, to, whence);
}

/* Linux has closed the file, whatever it says. */
int close(int file) {
    const int fails = system_fails(CALL_CLOSE), code = errno;
    const int result = (int)syscall(SYS_close, file);
    if (!fails) return result;
    errno = code;
    return -1;
}

/* Nothing of a test needs to outlive the power. */
int fsync(int file) { return system_fails(CALL_FSYNC) || fcntl(file, F_GETFD) < 0 ? -1 : 0; }

int rename(const char *from, const char *to) SYSTEM_NOTHROW {
    return system_fails(CALL_RENAME) ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int unlink(const char *path) SYSTEM_NOTHROW {
    return system_fails(CALL_UNLINK) ? -1 : unlinkat(AT_FDCWD, path, 0);
}

ssize_t readlink(const char *path, char *to, size_t bytes) SYSTEM_NOTHROW {
    return system_fails(CALL_READLINK) ? -1 : readlinkat(AT_FDCWD, path, to, bytes);
}

int stat(const char *path, struct stat *found) SYSTEM_NOTHROW {
    return system_fails(CALL_STAT) ? -1 : fstatat(AT_FDCWD, path, found, 0);
}

int fstat(int file, struct stat *found) SYSTEM_NOTHROW {
    return system_fails(CALL_FSTAT) ? -1 : fstatat(file, "", found, AT_EMPTY_PATH);
}

int fchmod(int file, mode_t mode) SYSTEM_NOTHROW {
    return system_fails(CALL_FCHMOD) ? -1 : (int)syscall(SYS_fchmod, file, mode);
}

int fchown(int file, uid_t owner, gid_t group) SYSTEM_NOTHROW {
    return system_fails(CALL_FCHOWN) ? -1 : (int)syscall(SYS_fchown, file, owner, group);
}

int flock(int file, int operation) SYSTEM_NOTHROW {
    return system_fails(CALL_FLOCK) ? -1 : (int)syscall(SYS_flock, file, operation);
}

DIR *opendir(const char *path) {
    if (system_fails(CALL_OPENDIR)) return NULL;
    const int file = (int)syscall(SYS_openat, AT_FDCWD, path,
                                  O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK, 0);
    return file < 0 ? NULL : fdopendir(file);
}

struct dirent *readdir(DIR *directory) {
    if (system_fails(CALL_READDIR)) return NULL;
    return (struct dirent *)(void *)readdir64(directory);
}

#ifdef __cplusplus
}
#endif
#endif
#endif
