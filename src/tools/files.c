/* ----
 * tools/files.c: memory, time and paths: what the tools ask of the system.
 *
 * Beside it only records.c does.
 * ---- */
#ifndef MPT__FILES_INCLUDED
#define MPT__FILES_INCLUDED

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <direct.h>
#include <sys/timeb.h>
#include <wchar.h>
#include <windows.h>
#else
#include <sys/stat.h>
#include <sys/types.h>
#endif

/* Bytes that grow at their end. */
typedef struct {
    unsigned char *data;
    size_t size, capacity;
    bool failed; /* without memory; what comes then is left out */
} mpt__tools_bytes;

static bool mpt__tools_bytes_reserve(mpt__tools_bytes *bytes, size_t more) {
    if (bytes->capacity - bytes->size >= more) return true;
    size_t wanted = bytes->capacity ? bytes->capacity : 256;
    while (wanted - bytes->size < more && wanted <= SIZE_MAX / 2) wanted *= 2;
    unsigned char *data =
        wanted - bytes->size < more ? NULL : (unsigned char *)realloc(bytes->data, wanted);
    if (!data) {
        bytes->failed = true;
        return false;
    }
    bytes->data = data, bytes->capacity = wanted;
    return true;
}

static void mpt__tools_bytes_put(mpt__tools_bytes *bytes, const void *data, size_t size) {
    if (size == 0 || !mpt__tools_bytes_reserve(bytes, size)) return;
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static void mpt__tools_bytes_put_text(mpt__tools_bytes *bytes, const char *text) {
    mpt__tools_bytes_put(bytes, text, strlen(text));
}

static void mpt__tools_bytes_free(mpt__tools_bytes *bytes) {
    free(bytes->data);
    memset(bytes, 0, sizeof *bytes);
}

static void *mpt__tools_allocate(size_t bytes) { return calloc(1, bytes ? bytes : 1); }
static void mpt__tools_release(void *memory) { free(memory); }

#ifdef _WIN32

/* The system's form of a path: UTF-16. NULL without memory or where the path is no UTF-8. */
static wchar_t *mpt__tools_wide_path(const char *path) {
    const size_t length = strlen(path);
    wchar_t *wide = (wchar_t *)malloc((length + 1) * sizeof *wide);
    size_t n = 0, i = 0;
    while (wide && i < length) {
        const unsigned char first = (unsigned char)path[i++];
        const int more = first < 0x80 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        uint32_t code = more == 0 ? first : first & (0x3Fu >> more);
        for (int k = 0; k < more && i < length; k++)
            code = code << 6 | ((unsigned char)path[i++] & 0x3Fu);
        if (code >= 0x10000) {
            code -= 0x10000;
            wide[n++] = (wchar_t)(0xD800 + (code >> 10));
            code = 0xDC00 + (code & 0x3FF);
        }
        wide[n++] = (wchar_t)code;
    }
    if (wide) wide[n] = 0;
    return wide;
}

static FILE *mpt__tools_file_open(const char *path, const char *mode) {
    wchar_t *wide = mpt__tools_wide_path(path), how[8];
    size_t n = 0;
    for (; mode[n] && n < 7; n++) how[n] = (wchar_t)mode[n];
    how[n] = 0;
    FILE *file = wide ? _wfopen(wide, how) : NULL;
    free(wide);
    return file;
}

static int mpt__tools_folder_make(const char *path) {
    wchar_t *wide = mpt__tools_wide_path(path);
    int result = wide ? _wmkdir(wide) : -1;
    free(wide);
    return result;
}

/* Windows moves no file to a name that is taken. */
static int mpt__tools_file_move(const char *from, const char *to) {
    wchar_t *a = mpt__tools_wide_path(from), *b = mpt__tools_wide_path(to);
    int result = -1;
    if (a && b) {
        _wremove(b);
        result = _wrename(a, b);
    }
    free(a), free(b);
    return result;
}

static void mpt__tools_file_remove(const char *path) {
    wchar_t *wide = mpt__tools_wide_path(path);
    if (wide) _wremove(wide);
    free(wide);
}

static double mpt__tools_system_now(void) {
    struct __timeb64 now;
    _ftime64(&now);
    return (double)now.time + 1e-3 * (double)now.millitm;
}

/* Seconds from some start, to measure with. */
static double mpt__tools_seconds(void) {
    LARGE_INTEGER now, unit;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&unit);
    return (double)now.QuadPart / (double)unit.QuadPart;
}

#else

static FILE *mpt__tools_file_open(const char *path, const char *mode) { return fopen(path, mode); }
static int mpt__tools_folder_make(const char *path) { return mkdir(path, 0777); }
static int mpt__tools_file_move(const char *from, const char *to) { return rename(from, to); }
static void mpt__tools_file_remove(const char *path) { remove(path); }

static double mpt__tools_system_now(void) {
    struct timespec now;
    if (timespec_get(&now, TIME_UTC) != TIME_UTC) return (double)time(NULL);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
static double mpt__tools_seconds(void) { return mpt__tools_system_now(); }

#endif

/* The first line of a file, without its end, cut to `size`; false where there is no such file. */
static bool mpt__tools_first_line(const char *path, char *line, size_t size) {
    FILE *file = mpt__tools_file_open(path, "rb");
    const size_t n = file ? fread(line, 1, size - 1, file) : 0;
    if (file) fclose(file);
    line[n] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    return n > 0;
}

static bool mpt__tools_file_put(FILE *file, const void *data, size_t bytes) {
    return bytes == 0 || fwrite(data, 1, bytes, file) == bytes;
}

/* False where what was written may not have arrived. */
static bool mpt__tools_file_close(FILE *file) { return fclose(file) == 0; }

/* Replaces a file as a whole: who reads it sees the old one or the new one. */
static mpt_status mpt__tools_file_replace(const char *path, const mpt__tools_bytes *bytes) {
    mpt__tools_bytes name = {NULL, 0, 0, false};
    mpt__tools_bytes_put_text(&name, path);
    mpt__tools_bytes_put(&name, ".new", 5);
    const char *beside = (const char *)name.data;
    FILE *file = name.failed || bytes->failed ? NULL : mpt__tools_file_open(beside, "wb");
    bool fine = file && fwrite(bytes->data, 1, bytes->size, file) == bytes->size;
    if (file && fclose(file) != 0) fine = false;
    fine = fine && mpt__tools_file_move(beside, path) == 0;
    if (file && !fine) mpt__tools_file_remove(beside);
    const mpt_status status = fine     ? MPT_OK
        : name.failed || bytes->failed ? MPT_ERROR_MEMORY
                                       : MPT_ERROR_IO;
    mpt__tools_bytes_free(&name);
    return status;
}

static bool mpt__tools_is_separator(char c) {
#ifdef _WIN32
    if (c == '\\') return true;
#endif
    return c == '/';
}

/* Makes a folder and those above it, as far as they are missing. Whether it is there in the end,
   opening a file in it tells. `path` is changed meanwhile. */
static void mpt__tools_folders_make(char *path) {
    for (size_t i = 1; path[i]; i++) {
        const char c = path[i];
        if (!mpt__tools_is_separator(c)) continue;
        path[i] = 0;
        mpt__tools_folder_make(path);
        path[i] = c;
    }
    mpt__tools_folder_make(path);
}

#endif
