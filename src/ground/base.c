/* ----
 * ground/base.c: allocator, errors, log, clock, saving, threads: the machine underneath.
 *
 * Everything above speaks to the system through an mpt__base, the first member of a context.
 * ---- */
#ifndef MPT__GROUND_BASE_INCLUDED
#define MPT__GROUND_BASE_INCLUDED

#include "ground/files.c"

#define mpt__zero(object) memset(&(object), 0, sizeof(object))
/* The function that gives a config of zeros but for what the statements set. */
#define MPT__DEFAULTS(type, ...) \
    type type##_default(void) { \
        type config; \
        mpt__zero(config); \
        __VA_ARGS__ \
        return config; \
    }

/* Whether nothing is to be computed, drawn, decoded or written: core/plan.c. */
#ifdef MPTRAIN_NO_FRUGAL
#define mpt__is_dry(base) false
#else
#define mpt__is_dry(base) ((base)->dry)
#endif

/* One block of accounting per memory kind; `held` counts what the allocator gave, with pools. */
typedef struct mpt__base mpt__base;
struct mpt__base {
    mpt_allocator allocator;
    mpt_logger log;
    mpt_clock clock;
    mpt_io io;
    mpt_threads thread;
    mpt_memory_stats memory;
    int64_t memory_limit; /* of memory.held; 0 = none */
#ifndef MPTRAIN_NO_FRUGAL
    bool dry;
#endif

    /* The sticky error. `call` counts public calls: a report can name the one that failed. */
    mpt_status status;
    bool in_log; /* the user's log is being called */
    char message[1024];
    int64_t call;
    const char *op; /* the public function under way, for messages */
    /* Where in a net it is, "" elsewhere; NULL: there are no nets. */
    const char *(*module)(const mpt__base *base);
    int64_t step;    /* the current or last step */
    int64_t process; /* id of the process that made the context: fork is an error */
};

/* Cores that this process may run on, at least 1. */
static int mpt__core_count(void);
/* One load, except after a fork. */
static int64_t mpt__process_id(void);
/* Whether this is a child of the process that made the context: false where threads are left out,
   since mpt__process_id is a system call there. What fork did not make, as by a bare clone, goes
   unseen. The fast half, for every public call, is false or has to be asked again. */
static bool mpt__forked_fast(const mpt__base *base);
static bool mpt__forked(const mpt__base *base);

/* ==== Errors and log ==== */

/* The built-in log: the library never prints. */
static void mpt__log_nowhere(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)level, (void)message;
}

#ifdef MPT__HAS_STDERR
void mpt_log_stderr(void *user, mpt_log_level level, const char *message) {
    static const char *const names[] = {"debug", "info", "warning", "error"};
    char line[1100];
    size_t length, room = sizeof line - 1;
    (void)user;
    length = mpt__format_text(
        line, room, "mptrain: %s: %s", (unsigned)level < 4 ? names[level] : "?", message);
    if (length > room - 1) length = room - 1;
    line[length] = '\n';
    fwrite(line, 1, length + 1, stderr); /* in one, so that lines of threads stay whole */
}
#endif

/* Calls the user's log, from which mpt_clear_error does nothing: who called it has not returned. */
static void mpt__log_write(mpt__base *base, mpt_log_level level, const char *message) {
    bool inside = base->in_log;
    base->in_log = true;
    base->log.write(base->log.user, level, message);
    base->in_log = inside;
}

static void mpt__log(mpt__base *base, mpt_log_level level, const char *format, ...) {
    char message[1024];
    va_list arguments;
    if (base->log.write == mpt__log_nowhere) return;
    va_start(arguments, format);
    mpt__format_text_v(message, sizeof message, format, arguments);
    va_end(arguments);
    mpt__log_write(base, level, message);
}

#ifndef MPTRAIN_CPU_IMPLEMENTATION
static const char *const mpt__status_names[] = {"ok", "bad argument", "shapes do not fit",
    "dtypes do not fit", "bad handle", "wrong state", "out of memory", "input or output failed",
    "bad format", "index out of range", "numeric", "unsupported", "device failed", "thread"};

const char *mpt_status_name(mpt_status status) {
    return status >= MPT_OK && status <= MPT_ERROR_THREAD ? mpt__status_names[status] : "unknown";
}
#endif

/* Records an error unless there is one already: "linear (call 812, step 41, module 0.conv1):
   <message>". Returns `status`, also when an earlier error stays. The log hears the first one. */
static MPT__COLD mpt_status mpt__fail(mpt__base *base, mpt_status status, const char *format, ...) {
    size_t size = sizeof base->message;
    size_t length = 0;
    va_list arguments;
    if (base->status != MPT_OK) return status;
    base->status = status;
    if (base->op) {
        const char *module = base->module ? base->module(base) : "";
        mpt__text start = mpt__text_make(base->message, size / 2); /* a path may be long */
        mpt__write_text(&start, "%s (call %lld", base->op, base->call);
        if (base->step > 0) mpt__write_text(&start, ", step %lld", base->step);
        mpt__write_text(&start, "%s%s): ", *module ? ", module " : "", module);
        length = start.length < size / 2 ? start.length : size / 2 - 1;
    }
    va_start(arguments, format);
    mpt__format_text_v(base->message + length, size - length, format, arguments);
    va_end(arguments);
    for (char *at = base->message; *at; at++)
        if (*at == '\n' || *at == '\r') *at = '?'; /* of a path: an error is one line */
    mpt__log_write(base, MPT_LOG_ERROR, base->message);
    return status;
}

/* ==== Memory ==== */

#define MPT__ALIGNMENT 64u /* a cache line, and the widest vector */

/* Large blocks begin at different places of their pages: those of one size would else lie so that
   what is read side by side meets in the same lines of the nearest cache (measured on Zen 4: Adam
   is 1.8 times as fast). Where they fill huge pages they ask for them, for no more than they hold:
   norms are 1.2 times as fast. */
#define MPT__LARGE ((size_t)1 << 20)
#define MPT__LARGE_PLACES 8
#define MPT__LARGE_STEP 5184 /* a page and a few lines */

/* From libc, by asking for more and keeping its pointer in front: aligned allocation has a
   different name on every system. */
static void *mpt__libc_allocate(void *user, size_t bytes, size_t alignment) {
    void *block;
    uintptr_t at;
    size_t before = sizeof block;
    (void)user;
#ifndef MPTRAIN_NO_SIMD
    static int32_t count;
    if (bytes >= MPT__LARGE)
        before += ((uint32_t)mpt__atomic_add32(&count, 1) % MPT__LARGE_PLACES) * MPT__LARGE_STEP;
#endif
    if (bytes > PTRDIFF_MAX - alignment - before) return NULL;
    block = malloc(bytes + alignment - 1 + before);
    if (!block) return NULL;
    at = ((uintptr_t)block + before + alignment - 1) & ~(uintptr_t)(alignment - 1);
    memcpy((char *)at - sizeof block, &block, sizeof block);
#ifdef MPT__HUGE_PAGE
    if (bytes >= 2 * MPT__HUGE_PAGE) {
        const uintptr_t begin = (at + MPT__HUGE_PAGE - 1) & ~(MPT__HUGE_PAGE - 1);
        madvise((void *)begin, (at + bytes - begin) & ~(MPT__HUGE_PAGE - 1), MPT__HUGE_ADVICE);
    }
#endif
    return (void *)at;
}

static void mpt__libc_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    void *block;
    (void)user, (void)bytes, (void)alignment;
    memcpy(&block, (char *)pointer - sizeof block, sizeof block);
    free(block);
}

#ifdef MPT__STB_ZEROED
static void *mpt__stb_resize(void *old, size_t before, size_t bytes) {
    uint8_t *block = (uint8_t *)realloc(old, bytes);
    if (block && bytes > before) memset(block + before, 0, bytes - before);
    return block;
}
#endif

static const char *const mpt__memory_kinds[MPT_MEMORY_KINDS] = {"parameter", "master", "form",
    "gradient", "moment", "activation", "data", "batch", "workspace", "host"};

/* "parameter", "master", ...: the words of every report. */
#ifndef MPTRAIN_CPU_IMPLEMENTATION
const char *mpt_memory_kind_name(mpt_memory_kind kind) {
    return (unsigned)kind < MPT_MEMORY_KINDS ? mpt__memory_kinds[kind] : "unknown";
}
#endif

/* Names the three kinds that hold most, with what is left to do about it. */
static mpt_status mpt__fail_memory_of(
    mpt__base *base, const char *who, size_t bytes, mpt_memory_kind kind) {
    const mpt_memory_stats *memory = &base->memory;
    int64_t wanted = bytes > PTRDIFF_MAX ? (int64_t)PTRDIFF_MAX : (int64_t)bytes;
    bool limited = base->memory_limit > 0 && wanted > base->memory_limit - memory->held;
    bool named[MPT_MEMORY_KINDS] = {false};
    char use[256];
    size_t length = 0;
    if (base->status != MPT_OK) return MPT_ERROR_MEMORY;
    use[0] = 0;
    for (int i = 0; i < 3; i++) {
        int most = -1;
        for (int k = 0; k < MPT_MEMORY_KINDS; k++)
            if (!named[k] && memory->current[k] > 0 &&
                (most < 0 || memory->current[k] > memory->current[most]))
                most = k;
        if (most < 0) break;
        named[most] = true;
        length += mpt__format_text(use + length, sizeof use - length, "%s%s %B", i ? ", " : ": ",
            mpt__memory_kinds[most], memory->current[most]);
    }
    if (limited)
        return mpt__fail(base, MPT_ERROR_MEMORY,
            "out of memory: asked for %B for %s beyond the memory_limit of %B; %B "
            "held, %B in use%s; try a smaller batch, "
            "mpt_memory_trim or a higher memory_limit",
            wanted, mpt_memory_kind_name(kind), base->memory_limit, memory->held,
            memory->total_current, use);
    return mpt__fail(base, MPT_ERROR_MEMORY,
        "out of memory: %s refused %B for %s; %B held, %B in use%s; try a smaller "
        "batch or mpt_memory_trim",
        who, wanted, mpt_memory_kind_name(kind), memory->held, memory->total_current, use);
}

static mpt_status mpt__fail_memory(mpt__base *base, size_t bytes, mpt_memory_kind kind) {
    return mpt__fail_memory_of(base, "the allocator", bytes, kind);
}

/* For pools, which take raw memory (not zeroed) and account for its use themselves. raw touches
   only `held` and the call counters, and fails in silence, so that a pool can trim and try again;
   what then is left to say mpt__fail_memory says. account adds (or, negative, takes) live bytes. */
static void *mpt__allocate_raw(mpt__base *base, size_t bytes) {
    void *pointer;
    if (bytes == 0 || bytes > (size_t)(PTRDIFF_MAX - base->memory.held)) return NULL;
    if (base->memory_limit > 0 && (int64_t)bytes > base->memory_limit - base->memory.held)
        return NULL;
    base->memory.allocations++;
    pointer = base->allocator.allocate(base->allocator.user, bytes, MPT__ALIGNMENT);
    if (pointer) base->memory.held += (int64_t)bytes;
    return pointer;
}

static void mpt__release_raw(mpt__base *base, void *pointer, size_t bytes) {
    if (!pointer) return;
    base->memory.releases++;
    base->memory.held -= (int64_t)bytes;
    base->allocator.release(base->allocator.user, pointer, bytes, MPT__ALIGNMENT);
}

static void mpt__account(mpt__base *base, mpt_memory_kind kind, int64_t bytes) {
    mpt_memory_stats *memory = &base->memory;
    memory->current[kind] += bytes;
    memory->total_current += bytes;
    if (memory->peak[kind] < memory->current[kind]) memory->peak[kind] = memory->current[kind];
    if (memory->total_peak < memory->total_current) memory->total_peak = memory->total_current;
}

static void mpt__account_less(mpt__base *base, mpt_memory_kind kind, int64_t bytes) {
    base->memory.current[kind] -= bytes;
    base->memory.total_current -= bytes;
}

/* Memory. Returns zeroed memory aligned to 64 bytes, accounted under `kind`, or NULL with an error
   recorded ("out of memory: asked for .., in use by kind .., try .."). Zero bytes give NULL without
   an error. Release takes the same size and kind. */
static void *mpt__allocate(mpt__base *base, size_t bytes, mpt_memory_kind kind) {
    void *pointer;
    if (bytes == 0) return NULL;
    pointer = mpt__allocate_raw(base, bytes);
    if (!pointer) {
        mpt__fail_memory(base, bytes, kind);
        return NULL;
    }
    memset(pointer, 0, bytes);
    mpt__account(base, kind, (int64_t)bytes);
    return pointer;
}

static void mpt__release(mpt__base *base, void *pointer, size_t bytes, mpt_memory_kind kind) {
    if (!pointer) return;
    mpt__release_raw(base, pointer, bytes);
    mpt__account_less(base, kind, (int64_t)bytes);
}

/* A growing array, a pointer at `array`: makes room for `need` elements of `size` bytes; *capacity
   counts elements. False with an error recorded when memory is out: the old array still stands. */
static bool mpt__grow(mpt__base *base, void *array, int64_t *capacity, int64_t need, size_t size,
    mpt_memory_kind kind) {
    int64_t most = (int64_t)((size_t)PTRDIFF_MAX / size);
    int64_t room = *capacity < 8 ? 8 : *capacity;
    void *rows, *larger;
    if (need <= *capacity) return true;
    if (need > most) {
        mpt__fail_memory(base, PTRDIFF_MAX, kind);
        return false;
    }
    while (room < need) room = room <= most / 2 ? room * 2 : most;
    larger = mpt__allocate(base, (size_t)room * size, kind);
    if (!larger) return false;
    memcpy(&rows, array, sizeof rows);
    if (rows) memcpy(larger, rows, (size_t)*capacity * size);
    mpt__release(base, rows, (size_t)*capacity * size, kind);
    memcpy(array, &larger, sizeof larger);
    *capacity = room;
    return true;
}

/* ==== The system: process, cores, environment ==== */

/* An environment variable, NULL if unset; empty counts as unset. */
static const char *mpt__environment(const char *name) {
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

#if defined(_WIN32)

static int64_t mpt__process_id(void) { return (int64_t)GetCurrentProcessId(); }
static bool mpt__forked_fast(const mpt__base *base) { return (void)base, false; }

static int mpt__core_count(void) {
    SYSTEM_INFO system;
    GetSystemInfo(&system);
    return system.dwNumberOfProcessors > 0 ? (int)system.dwNumberOfProcessors : 1;
}

#elif defined(MPTRAIN_NO_THREADS)

static int64_t mpt__process_id(void) { return (int64_t)getpid(); }
static bool mpt__forked_fast(const mpt__base *base) { return (void)base, false; }

static int mpt__core_count(void) { return 1; }

#else

/* The system call would cost more than an op may: a child starts by correcting the number. */
#ifdef MPT__CPU_HERE
MPT__SHARED int64_t mpt__known_process;
#else
int64_t mpt__known_process;
#endif

static void mpt__after_fork(void) { mpt__atomic_store64(&mpt__known_process, (int64_t)getpid()); }

static int64_t mpt__process_id(void) {
    int64_t known = mpt__atomic_load64(&mpt__known_process);
    if (known) return known;
    if (mpt__atomic_cas64(&mpt__known_process, 0, (int64_t)getpid()) &&
        pthread_atfork(NULL, NULL, mpt__after_fork) != 0)
        mpt__atomic_store64(&mpt__known_process, 0);
    return (int64_t)getpid();
}

static MPT__FORCE_INLINE bool mpt__forked_fast(const mpt__base *base) {
    return base->process != mpt__atomic_load64(&mpt__known_process);
}

#if defined(_SC_NPROCESSORS_ONLN)
#define MPT__CORES_ONLINE _SC_NPROCESSORS_ONLN
#else
#define MPT__CORES_ONLINE 58 /* of Apple's systems; -D_POSIX_C_SOURCE hides the name */
#endif
#if defined(__linux__) && !defined(CPU_SETSIZE)
extern int sched_getaffinity(pid_t process, size_t size, void *mask); /* hidden by -std=c11 */
#endif

static int mpt__core_count(void) {
    long online;
#if defined(__linux__)
    uint64_t mask[128]; /* 8192 cores; the call fails when the kernel has more */
    int allowed = 0;
    memset(mask, 0, sizeof mask);
#if defined(CPU_SETSIZE)
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)(void *)mask) >= 0)
#else
    if (sched_getaffinity(0, sizeof mask, mask) >= 0)
#endif
        for (int i = 0; i < 128; i++)
            for (uint64_t bits = mask[i]; bits; bits &= bits - 1) allowed++;
    if (allowed > 0) return allowed;
#endif
    online = sysconf(MPT__CORES_ONLINE);
    return online > 0 ? (int)online : 1;
}

#endif

static bool mpt__forked(const mpt__base *base) {
    return mpt__forked_fast(base) && base->process != mpt__process_id();
}

/* ==== Clock ==== */

#if defined(_WIN32)

static double mpt__system_now(void *user) {
    LARGE_INTEGER count, rate;
    (void)user;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&rate);
    return (double)count.QuadPart / (double)rate.QuadPart;
}

#else

#if defined(CLOCK_MONOTONIC)
#define MPT__CLOCK CLOCK_MONOTONIC
#else
#define MPT__CLOCK 1 /* of Linux; -std=c11 hides the name and the function */
extern int clock_gettime(int clock, struct timespec *time);
#endif

static double mpt__system_now(void *user) {
    struct timespec time;
    (void)user;
    if (clock_gettime(MPT__CLOCK, &time) != 0) return 0.0;
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

#endif

/* ==== Files ==== */

/* The functions of io, for a call that is about to be made: of an earlier one no errno is left. */
static const mpt_io *mpt__io(const mpt__base *base) {
#if !defined(MPT__NO_FILES) /* nor is it asked for there, but for what is absent */
    errno = 0;
#endif
    return &base->io;
}

#if !defined(MPT__NO_FILES)
static bool mpt__io_built_in(const mpt__base *base) { return base->io.open == mpt__file_open; }
#endif

/* What the last call of io that failed met. */
static int mpt__io_code(const mpt__base *base) {
#if !defined(MPT__NO_FILES)
    if (mpt__io_built_in(base)) return mpt__io_error;
#endif
    (void)base;
    return errno;
}

/* Whether io.open failed because there is no such file, as far as it said: then others may be tried
   in its place. Both kinds of codes have 2 for that; where a folder is not there Windows says 3. */
static bool mpt__io_absent(const mpt__base *base) {
    int code = mpt__io_code(base);
#if defined(_WIN32) && !defined(MPT__NO_FILES)
    if (code == ERROR_PATH_NOT_FOUND && mpt__io_built_in(base)) return true;
#endif
    return code == ENOENT || code == 0;
}

/* Why the last call of io that failed did ("no such file"), or words that say that a callback of
   the user failed. For messages: "cannot open %s: %s". */
static const char *mpt__io_reason(const mpt__base *base) {
#if defined(MPT__NO_FILES)
    if (!base->io.open)
        return "this build has no files: set config.io";
#else
    static MPT__THREAD_LOCAL char other[48];
    size_t rows = sizeof mpt__io_errors / sizeof mpt__io_errors[0];
    bool built_in = mpt__io_built_in(base);
    int code = mpt__io_code(base);
    for (size_t i = built_in ? 0 : MPT__IO_ERRNO; i < rows; i++)
        if (mpt__io_errors[i].code == code) return mpt__io_errors[i].text;
    if (built_in) {
        mpt__format_text(other, sizeof other, "the system refused (error %d)", code);
        return other;
    }
#endif
    return "a callback of config.io failed";
}

/* A name for a new file in the directory of `path`, for io.commit, unlike any other of this or
   another process. `mark` says who may remove it. False if it does not fit. */
static bool mpt__temporary_path(
    const mpt__base *base, const char *path, const char *mark, char *out, size_t size) {
    static int32_t counter;
    int32_t number = mpt__atomic_add32(&counter, 1);
    double now = base->clock.now(base->clock.user);
    uint64_t time;
    size_t directory = mpt__directory_length(path);
    if (directory >= size) return false;
    memcpy(out, path, directory);
    memcpy(&time, &now, sizeof time);
    return mpt__format_text(out + directory, size - directory, ".mptrain-%s%llx-%llx-%d.tmp", mark,
               mpt__process_id(), time, number) < size - directory;
}

/* A file that is being written, to be put in the place of another when it is whole. */
typedef struct {
    char path[MPT__PATH_SIZE];
    const char *target; /* the file to replace, no link */
#if !defined(MPT__NO_FILES)
    char resolved[MPT__PATH_SIZE];
    int guard; /* a descriptor that holds the lock, or -1 */
#endif
} mpt__new_file;

#if !defined(MPT__NO_FILES)

/* Temporaries of built-in files have the machine's name (hashed) in theirs, as other machines may
   share the folder, and stand under a lock of flock from before they are written until they are
   renamed: the system ends it with the process, however that ends, and tells it from another with
   the same number, in a container or after a restart. What has such a name, is of this machine and
   can be locked was left by a process that was killed. Where there are no such locks none is
   removed. Windows refuses to delete an open file; there the process must be gone, too. */
enum { MPT__MARK_SIZE = 24 };

static void mpt__machine_mark(char mark[MPT__MARK_SIZE]) {
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
#if defined(_WIN32)
    char name[MAX_COMPUTERNAME_LENGTH + 1] = "";
    DWORD size = sizeof name;
    GetComputerNameA(name, &size);
    const char *at = name;
#else
    struct utsname system;
    const char *at = uname(&system) >= 0 ? system.nodename : "";
#endif
    while (*at) hash = (hash ^ (uint8_t)*at++) * 0x100000001b3u;
    mpt__format_text(mark, MPT__MARK_SIZE, "%llx-", hash);
}

/* Whether a file has the name of a temporary of this machine, and of which process. */
static bool mpt__temporary_name(const char *name, const char *mark, uint64_t *process) {
    char begin[MPT__MARK_SIZE + 16];
    size_t n = mpt__format_text(begin, sizeof begin, ".mptrain-%s", mark);
    if (strncmp(name, begin, n) != 0) return false;
    name += n;
    *process = 0;
    for (int field = 0; field < 3; field++) {
        size_t digits = strspn(name, field < 2 ? "0123456789abcdef" : "0123456789");
        for (size_t i = 0; i < digits && field == 0; i++)
            *process = *process << 4 | (uint64_t)(name[i] <= '9' ? name[i] - '0' : name[i] - 'W');
        if (digits == 0 || digits > 16) return false;
        name += digits;
        if (field < 2 && *name++ != '-') return false;
    }
    return strcmp(name, ".tmp") == 0;
}

#if defined(_WIN32)

static bool mpt__process_gone(uint64_t process) {
    const HANDLE found = OpenProcess(PROCESS_QUERY_INFORMATION, FALSE, (DWORD)process);
    DWORD code = 0;
    if (!found) return GetLastError() == ERROR_INVALID_PARAMETER;
    bool ended = GetExitCodeProcess(found, &code) && code != STILL_ACTIVE;
    CloseHandle(found);
    return ended;
}

/* Removes what killed processes left beside `path`; what cannot be removed stays. */
static void mpt__temporaries_sweep(const char *path, const char *mark) {
    wchar_t wide[MPT__WIDE_PATH];
    char other[MPT__PATH_SIZE], name[4 * MAX_PATH];
    WIN32_FIND_DATAW found;
    uint64_t process;
    size_t n = mpt__directory_length(path);
    if (mpt__format_text(other, sizeof other, "%s", path) >= sizeof other ||
        mpt__format_text(other + n, sizeof other - n, ".mptrain-*.tmp") >= sizeof other - n ||
        !mpt__wide_path(other, wide))
        return;
    const HANDLE search = FindFirstFileW(wide, &found);
    if (search == INVALID_HANDLE_VALUE) return;
    do {
        if (WideCharToMultiByte(
                CP_UTF8, 0, found.cFileName, -1, name, (int)sizeof name, NULL, NULL) > 0 &&
            mpt__temporary_name(name, mark, &process) && mpt__process_gone(process) &&
            mpt__format_text(other + n, sizeof other - n, "%s", name) < sizeof other - n &&
            mpt__wide_path(other, wide))
            DeleteFileW(wide);
    } while (FindNextFileW(search, &found));
    FindClose(search);
}

/* Where a path leads, past a link to a file that is there. */
static bool mpt__link_target(const char *path, char target[MPT__PATH_SIZE]) {
    wchar_t wide[MPT__WIDE_PATH];
    if (!mpt__wide_path(path, wide)) return false;
    const DWORD attributes = GetFileAttributesW(wide);
    mpt__format_text(target, MPT__PATH_SIZE, "%s", path);
    if (attributes == INVALID_FILE_ATTRIBUTES || !(attributes & FILE_ATTRIBUTE_REPARSE_POINT))
        return true;
    const HANDLE file = CreateFileW(wide, 0, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
        NULL, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (!mpt__file_result(file != INVALID_HANDLE_VALUE)) return false;
    const DWORD n = GetFinalPathNameByHandleW(file, wide, MPT__WIDE_PATH, 0);
    bool good = mpt__file_result(n > 0 && n < MPT__WIDE_PATH &&
        WideCharToMultiByte(CP_UTF8, 0, wide, -1, target, MPT__PATH_SIZE, NULL, NULL) > 0);
    CloseHandle(file);
    return good;
}

#ifndef MPTRAIN_NO_RESUME
static bool mpt__folder_lock_file(const char *folder, intptr_t *lock, bool *taken) {
    wchar_t wide[MPT__WIDE_PATH];
    char path[MPT__PATH_SIZE];
    mpt__format_text(path, sizeof path, "%s\\mptrain.lock", folder);
    if (!mpt__wide_path(folder, wide)) return false;
    if (!CreateDirectoryW(wide, NULL) && GetLastError() != ERROR_ALREADY_EXISTS)
        return mpt__file_result(FALSE);
    if (!mpt__wide_path(path, wide)) return false;
    const HANDLE file = CreateFileW(wide, GENERIC_WRITE, 0, NULL, OPEN_ALWAYS,
        FILE_ATTRIBUTE_NORMAL | FILE_FLAG_DELETE_ON_CLOSE, NULL);
    *taken = file == INVALID_HANDLE_VALUE && GetLastError() == ERROR_SHARING_VIOLATION;
    if (!mpt__file_result(file != INVALID_HANDLE_VALUE)) return false;
    *lock = (intptr_t)file;
    return true;
}
#endif

static bool mpt__new_file_make(const mpt__base *base, const char *mark, mpt__new_file *t) {
    if (mpt__temporary_path(base, t->target, mark, t->path, sizeof t->path)) return true;
    mpt__io_error = ERROR_FILENAME_EXCED_RANGE;
    return false;
}

#else

#if defined(LOCK_EX)
/* False if another holds it. */
static bool mpt__lock(int descriptor, bool *locked) {
    *locked = flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    return *locked || (errno != EWOULDBLOCK && errno != EAGAIN);
}
#else
static bool mpt__lock(int descriptor, bool *locked) {
    (void)descriptor;
    *locked = false;
    return true;
}
#endif

/* Removes what killed processes left beside `path`; what cannot be removed stays. */
static void mpt__temporaries_sweep(const char *path, const char *mark) {
    char other[MPT__PATH_SIZE], link;
    size_t n = mpt__directory_length(path);
    struct stat found;
    uint64_t process;
    MPT__DIRENT *item;
    bool locked;
    mpt__format_text(other, sizeof other, "%s", path);
    other[n] = 0;
    DIR *const directory = opendir(n > 0 ? other : ".");
    while (directory && (item = MPT__READDIR(directory)) != NULL) {
        if (!mpt__temporary_name(item->d_name, mark, &process) ||
            mpt__format_text(other + n, sizeof other - n, "%s", item->d_name) >= sizeof other - n ||
            readlink(other, &link, 1) >= 0)
            continue;
        int descriptor = mpt__open_descriptor(other, O_RDWR | O_NONBLOCK, 0);
        if (descriptor < 0) descriptor = mpt__open_descriptor(other, O_RDONLY | O_NONBLOCK, 0);
        if (descriptor < 0) continue;
        if (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
            mpt__lock(descriptor, &locked) && locked)
            unlink(other);
        close(descriptor);
    }
    if (directory) closedir(directory);
}

/* Where a path leads, past links, also to what is not there yet. */
static bool mpt__link_target(const char *path, char target[MPT__PATH_SIZE]) {
    enum { LINKS = 40 }; /* as many as Linux follows */
    char link[MPT__PATH_SIZE];
    mpt__format_text(target, MPT__PATH_SIZE, "%s", path);
    for (int i = 0; i <= LINKS; i++) {
        const ssize_t n = readlink(target, link, sizeof link);
        if (n < 0) return mpt__file_result(errno == EINVAL || errno == ENOENT);
        size_t kept = link[0] == '/' ? 0 : mpt__directory_length(target);
        if (kept + (size_t)n >= MPT__PATH_SIZE) {
            mpt__io_error = ENAMETOOLONG;
            return false;
        }
        memcpy(target + kept, link, (size_t)n);
        target[kept + (size_t)n] = 0;
    }
    mpt__io_error = ELOOP;
    return false;
}

#ifndef MPTRAIN_NO_RESUME
static bool mpt__folder_lock_file(const char *folder, intptr_t *lock, bool *taken) {
    char path[MPT__PATH_SIZE];
    bool locked;
    mpt__format_text(path, sizeof path, "%s/mptrain.lock", folder);
    if (!mpt__file_result(mkdir(folder, 0777) == 0 || errno == EEXIST)) return false;
    const int descriptor = mpt__open_descriptor(path, O_RDWR | O_CREAT, 0666);
    if (descriptor < 0) return false;
    *taken = !mpt__lock(descriptor, &locked);
    if (*taken)
        close(descriptor);
    else
        *lock = (intptr_t)descriptor + 1;
    return !*taken;
}
#endif

/* Creates the file, locked. One that replaces another is its owner's alone until it has the rights
   of that. Who sweeps may have locked or removed it before it was locked here: then there is
   another name. */
static bool mpt__new_file_make(const mpt__base *base, const char *mark, mpt__new_file *t) {
    struct stat found;
    bool locked;
    if (!mpt__replaceable(t->target, &found)) return false;
    int rights = found.st_nlink ? 0600 : 0666;
    for (int tries = 0; tries < 100; tries++) {
        mpt__io_error = ENAMETOOLONG;
        if (!mpt__temporary_path(base, t->target, mark, t->path, sizeof t->path)) return false;
        t->guard = mpt__open_descriptor(t->path, O_RDWR | O_CREAT | O_EXCL, rights);
        if (t->guard < 0 && mpt__io_error == EEXIST) continue;
        if (t->guard < 0) return false;
        if (mpt__lock(t->guard, &locked) && (fstat(t->guard, &found) != 0 || found.st_nlink > 0))
            return true;
        close(t->guard);
    }
    mpt__io_error = EBUSY;
    return false;
}

#endif
#endif

/* Begins to write a file that shall replace the one at `path`, or the one that a link there leads
   to; io.open(t->path, 'w') comes next, mpt__new_file_end last. False with a reason of io. */
static bool mpt__new_file_begin(const mpt__base *base, const char *path, mpt__new_file *t) {
    t->target = path;
#if !defined(MPT__NO_FILES)
    t->guard = -1;
    if (mpt__io_built_in(base)) {
        char mark[MPT__MARK_SIZE];
        mpt__machine_mark(mark);
        t->target = t->resolved;
        if (!mpt__link_target(path, t->resolved)) return false;
        mpt__temporaries_sweep(t->target, mark);
        return mpt__new_file_make(base, mark, t);
    }
#endif
    return mpt__temporary_path(base, path, "", t->path, sizeof t->path);
}

/* Lets it go, after io.commit or io.remove; returns `good`. */
static bool mpt__new_file_end(const mpt__new_file *t, bool good) {
#if !defined(MPT__NO_FILES) && !defined(_WIN32)
    if (t->guard >= 0 && !good) unlink(t->path);
    if (t->guard >= 0) close(t->guard);
#else
    (void)t;
#endif
    return good;
}

#ifndef MPTRAIN_NO_RESUME
/* Makes a folder if it is not there and locks it, for as long as the process lives or until
   mpt__folder_unlock; *taken: another has it. Nothing is done where io is the user's. */
static bool mpt__folder_lock(
    const mpt__base *base, const char *folder, intptr_t *lock, bool *taken) {
    *lock = 0, *taken = false;
#if !defined(MPT__NO_FILES)
    if (mpt__io_built_in(base)) return mpt__folder_lock_file(folder, lock, taken);
#endif
    (void)base, (void)folder;
    return true;
}

static void mpt__folder_unlock(intptr_t lock) {
#if defined(MPT__NO_FILES)
    (void)lock;
#elif defined(_WIN32)
    if (lock) CloseHandle((HANDLE)lock);
#else
    if (lock) close((int)lock - 1);
#endif
}
#endif

/* ==== Threads ==== */

#if defined(MPTRAIN_NO_THREADS)

/* Pools have one thread and loaders no workers: nothing is called. */
static void mpt__threads_init(mpt_threads *thread) { (void)thread; }

#else

#if defined(_WIN32)
typedef HANDLE mpt__thread_id;
typedef SRWLOCK mpt__mutex;
typedef CONDITION_VARIABLE mpt__condition;
#define MPT__THREAD_RESULT unsigned __stdcall
#define MPT__THREAD_RUN(id, object) \
    ((id = (HANDLE)_beginthreadex(NULL, 0, mpt__thread_main, object, 0, NULL)) != NULL)
#define MPT__THREAD_END(id) (WaitForSingleObject(id, INFINITE) == WAIT_OBJECT_0 && CloseHandle(id))
#define MPT__MUTEX_INIT(mutex) (InitializeSRWLock(mutex), true)
#define MPT__MUTEX_END(mutex) (void)(mutex)
#define MPT__MUTEX_LOCK(mutex) AcquireSRWLockExclusive(mutex)
#define MPT__MUTEX_UNLOCK(mutex) ReleaseSRWLockExclusive(mutex)
#define MPT__CONDITION_INIT(condition) (InitializeConditionVariable(condition), true)
#define MPT__CONDITION_END(condition) (void)(condition)
#define MPT__CONDITION_WAIT(condition, mutex) \
    SleepConditionVariableSRW(condition, mutex, INFINITE, 0)
#define MPT__CONDITION_WAKE(condition) WakeAllConditionVariable(condition)
#else
typedef pthread_t mpt__thread_id;
typedef pthread_mutex_t mpt__mutex;
typedef pthread_cond_t mpt__condition;
#define MPT__THREAD_RESULT void *
#define MPT__THREAD_RUN(id, object) (pthread_create(&(id), NULL, mpt__thread_main, object) == 0)
#define MPT__THREAD_END(id) (pthread_join(id, NULL) == 0)
#define MPT__MUTEX_INIT(mutex) (pthread_mutex_init(mutex, NULL) == 0)
#define MPT__MUTEX_END(mutex) pthread_mutex_destroy(mutex)
#define MPT__MUTEX_LOCK(mutex) pthread_mutex_lock(mutex)
#define MPT__MUTEX_UNLOCK(mutex) pthread_mutex_unlock(mutex)
#define MPT__CONDITION_INIT(condition) (pthread_cond_init(condition, NULL) == 0)
#define MPT__CONDITION_END(condition) pthread_cond_destroy(condition)
#define MPT__CONDITION_WAIT(condition, mutex) pthread_cond_wait(condition, mutex)
#define MPT__CONDITION_WAKE(condition) pthread_cond_broadcast(condition)
#endif

/* What the callbacks hand out. From the context's allocator: user is its base. */
typedef struct {
    union {
        mpt__thread_id thread;
        mpt__mutex mutex;
        mpt__condition condition;
    } is;
    void (*entry)(void *argument);
    void *argument;
} mpt__sync_object;

static mpt__sync_object *mpt__sync(void *object) { return (mpt__sync_object *)object; }

static mpt__sync_object *mpt__sync_new(void *user) {
    mpt__base *base = (mpt__base *)user;
    return mpt__sync(mpt__allocate(base, sizeof(mpt__sync_object), MPT_MEMORY_HOST));
}

static void mpt__sync_free(void *user, void *object) {
    mpt__release((mpt__base *)user, object, sizeof(mpt__sync_object), MPT_MEMORY_HOST);
}

/* Hands out an object that could be started; returns what the callback shall. */
static int mpt__sync_made(void *user, mpt__sync_object *object, bool started, void **out) {
    if (started) *out = object;
    if (!started) mpt__sync_free(user, object);
    return started ? 0 : -1;
}

static MPT__THREAD_RESULT mpt__thread_main(void *object) {
    mpt__sync(object)->entry(mpt__sync(object)->argument);
    return 0;
}

static int mpt__thread_create(void *user, void **thread, void (*entry)(void *), void *argument) {
    mpt__sync_object *made = mpt__sync_new(user);
    if (made) made->entry = entry, made->argument = argument;
    return mpt__sync_made(user, made, made && MPT__THREAD_RUN(made->is.thread, made), thread);
}

static int mpt__thread_join(void *user, void *thread) {
    if (!MPT__THREAD_END(mpt__sync(thread)->is.thread)) return -1;
    mpt__sync_free(user, thread);
    return 0;
}

static int mpt__mutex_create(void *user, void **out) {
    mpt__sync_object *made = mpt__sync_new(user);
    return mpt__sync_made(user, made, made && MPT__MUTEX_INIT(&made->is.mutex), out);
}

static void mpt__mutex_destroy(void *user, void *mutex) {
    MPT__MUTEX_END(&mpt__sync(mutex)->is.mutex);
    mpt__sync_free(user, mutex);
}

static void mpt__mutex_lock(void *user, void *mutex) {
    (void)user;
    MPT__MUTEX_LOCK(&mpt__sync(mutex)->is.mutex);
}

static void mpt__mutex_unlock(void *user, void *mutex) {
    (void)user;
    MPT__MUTEX_UNLOCK(&mpt__sync(mutex)->is.mutex);
}

static int mpt__condition_create(void *user, void **out) {
    mpt__sync_object *made = mpt__sync_new(user);
    return mpt__sync_made(user, made, made && MPT__CONDITION_INIT(&made->is.condition), out);
}

static void mpt__condition_destroy(void *user, void *condition) {
    MPT__CONDITION_END(&mpt__sync(condition)->is.condition);
    mpt__sync_free(user, condition);
}

static void mpt__condition_broadcast(void *user, void *condition) {
    (void)user;
    MPT__CONDITION_WAKE(&mpt__sync(condition)->is.condition);
}

static void mpt__condition_wait(void *user, void *condition, void *mutex) {
    (void)user;
    MPT__CONDITION_WAIT(&mpt__sync(condition)->is.condition, &mpt__sync(mutex)->is.mutex);
}

static void mpt__threads_init(mpt_threads *thread) {
    thread->create = mpt__thread_create, thread->join = mpt__thread_join;
    thread->mutex_create = mpt__mutex_create, thread->mutex_destroy = mpt__mutex_destroy;
    thread->mutex_lock = mpt__mutex_lock, thread->mutex_unlock = mpt__mutex_unlock;
    thread->condition_create = mpt__condition_create;
    thread->condition_destroy = mpt__condition_destroy;
    thread->condition_wait = mpt__condition_wait;
    thread->condition_broadcast = mpt__condition_broadcast;
}

#endif

/* ==== Start ==== */

/* How many of a group's functions the user has set. */
static int mpt__count_threads(const mpt_threads *t) {
    return !!t->create + !!t->join + !!t->mutex_create + !!t->mutex_destroy + !!t->mutex_lock +
        !!t->mutex_unlock + !!t->condition_create + !!t->condition_destroy + !!t->condition_wait +
        !!t->condition_broadcast;
}

/* Fills what `config` leaves null with the built-in callbacks. A group is replaced as a whole: of
   allocator and thread, some functions without the others are an error (in base->status); those
   of io may be NULL: what needs them fails. The base must stay where it is. */
static void mpt__base_init(mpt__base *base, const mpt_config *config) {
    int threads = 0, allocator = 0;
    mpt__zero(*base);
    if (config) {
        base->allocator = config->allocator;
        base->log = config->log;
        base->clock = config->clock;
        base->io = config->io;
        base->thread = config->thread;
        base->memory_limit = config->memory_limit;
#ifndef MPTRAIN_NO_FRUGAL
        base->dry = config->dry;
#endif
        allocator = !!config->allocator.allocate + !!config->allocator.release;
        threads = mpt__count_threads(&config->thread);
    }
    base->process = mpt__process_id();
    if (!base->log.write) base->log.write = mpt__log_nowhere;
    if (!base->clock.now) base->clock.now = mpt__system_now;
    mpt__io_init(&base->io);
    if (allocator != 2) {
        base->allocator.allocate = mpt__libc_allocate;
        base->allocator.release = mpt__libc_release;
    }
    if (threads != 10) {
        mpt__threads_init(&base->thread);
        base->thread.user = base;
    }
    if (allocator == 1)
        mpt__fail(base, MPT_ERROR_ARGUMENT,
            "config.allocator has one of allocate and release: set both, or neither");
    if (threads != 0 && threads != 10)
        mpt__fail(base, MPT_ERROR_ARGUMENT,
            "config.thread has %d of its 10 functions: set all, "
            "or none for the built-in threads",
            threads);
}

#endif
