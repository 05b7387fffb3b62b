/* ----
 * ground/files.c: the built-in functions of mpt_config.io: files of POSIX systems and of Windows,
 * and why a call of them failed. What asks for the callbacks of a context is in ground/base.c.
 * ---- */
#ifndef MPT__GROUND_FILES_INCLUDED
#define MPT__GROUND_FILES_INCLUDED

#include "ground/platform.h"

#define MPT__PATH_SIZE 1024

#if defined(_WIN32)
#define mpt__is_slash(c) ((c) == '/' || (c) == '\\')
#else
#define mpt__is_slash(c) ((c) == '/')
#endif

/* How much of a path is its directory, with the slash. */
static size_t mpt__directory_length(const char *path) {
    size_t length = strlen(path);
    while (length > 0 && !mpt__is_slash(path[length - 1])) length--;
    return length;
}

#if !defined(MPT__NO_FILES)

#define MPT__IO_CHUNK ((size_t)1 << 30) /* no system takes more than 2 GiB in one call */

/* What the last failing built-in call of this thread met: an errno or a Windows error; 0: it met
   the end of a file. */
static MPT__THREAD_LOCAL int mpt__io_error;

static const struct {
    int code;
    const char *text;
} mpt__io_errors[] = {
    {0, "the file ends there"},
#if defined(_WIN32)
    {ERROR_FILE_NOT_FOUND, "no such file"},
    {ERROR_PATH_NOT_FOUND, "no such directory"},
    {ERROR_ACCESS_DENIED, "access denied, or a directory"},
    {ERROR_SHARING_VIOLATION, "another program uses the file"},
    {ERROR_DISK_FULL, "the disk is full"},
    {ERROR_HANDLE_DISK_FULL, "the disk is full"},
    {ERROR_INVALID_NAME, "not a valid file name"},
    {ERROR_NO_UNICODE_TRANSLATION, "the path is not UTF-8"},
    {ERROR_FILENAME_EXCED_RANGE, "the path is too long"},
    {ERROR_TOO_MANY_OPEN_FILES, "too many open files"},
    {ERROR_NOT_ENOUGH_MEMORY, "out of memory"},
    {ERROR_WRITE_PROTECT, "the medium is read-only"},
    {ERROR_IO_DEVICE, "input or output error"},
    {ERROR_CRC, "input or output error"},
#else
    {ENOENT, "no such file or directory"},
    {EACCES, "permission denied"},
    {EPERM, "operation not permitted"},
    {EISDIR, "is a directory"},
    {ENXIO, "is no ordinary file"},
    {ENOTDIR, "a part of the path is not a directory"},
    {ENOSPC, "no space left on the device"},
    {EDQUOT, "the disk quota is used up"},
    {EROFS, "the file system is read-only"},
    {ENAMETOOLONG, "the name is too long"},
    {EMFILE, "too many open files"},
    {ENFILE, "too many open files in the whole system"},
    {EFBIG, "the file would get too large"},
    {EIO, "input or output error"},
    {ENOMEM, "out of memory"},
    {ESTALE, "its server no longer knows it (stale file handle)"},
    {ELOOP, "its symbolic links go round in a circle"},
    {EINTR, "interrupted by a signal"},
    {EBUSY, "it is in use"},
    {EBADF, "no open file"},
    {EINVAL, "not possible with it"},
    {ESPIPE, "a pipe or terminal, not a file"},
    {ETIMEDOUT, "the server does not answer"},
#endif
};

/* The first row that a callback of the user may name by errno. */
#if defined(_WIN32)
enum { MPT__IO_ERRNO = sizeof mpt__io_errors / sizeof mpt__io_errors[0] };
#else
enum { MPT__IO_ERRNO = 1 };
#endif

#if defined(_WIN32)

/* The path as UTF-16, with the prefix that lifts the old limit of 260 where it is needed. */
enum { MPT__WIDE_PATH = 4096 };

static bool mpt__wide_path(const char *path, wchar_t wide[MPT__WIDE_PATH]) {
    int room = MPT__WIDE_PATH;
    int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, room);
    if (length <= 0) {
        mpt__io_error = (int)GetLastError();
        if (mpt__io_error == ERROR_INSUFFICIENT_BUFFER) mpt__io_error = ERROR_FILENAME_EXCED_RANGE;
        return false;
    }
    if (length > 240 && !(wide[0] == L'\\' && wide[1] == L'\\')) {
        wchar_t full[MPT__WIDE_PATH];
        const DWORD n = GetFullPathNameW(wide, (DWORD)room, full, NULL);
        if (n > 0 && n < (DWORD)room - 5 && full[0] != L'\\') {
            memcpy(wide, L"\\\\?\\", 4 * sizeof(wchar_t));
            memcpy(wide + 4, full, ((size_t)n + 1) * sizeof(wchar_t));
        }
    }
    return true;
}

static bool mpt__file_result(BOOL ok) {
    if (!ok) mpt__io_error = (int)GetLastError();
    return ok != 0;
}

static void *mpt__file_open(void *user, const char *path, char mode) {
    wchar_t wide[MPT__WIDE_PATH];
    HANDLE file;
    (void)user;
    if (!mpt__wide_path(path, wide)) return NULL;
    file = CreateFileW(wide, mode == 'w' ? GENERIC_WRITE : GENERIC_READ,
        mode == 'w' ? 0 : FILE_SHARE_READ | FILE_SHARE_DELETE, NULL,
        mode == 'w' ? CREATE_ALWAYS : OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    return mpt__file_result(file != INVALID_HANDLE_VALUE) ? file : NULL;
}

/* Reads to, or writes from, the buffer: as much as can be moved. */
static size_t mpt__file_move(void *file, char *buffer, size_t bytes, bool writing) {
    size_t done = 0;
    while (done < bytes) {
        size_t left = bytes - done;
        const DWORD wanted = (DWORD)(left < MPT__IO_CHUNK ? left : MPT__IO_CHUNK);
        DWORD moved = 0;
        const BOOL ok = writing ? WriteFile((HANDLE)file, buffer + done, wanted, &moved, NULL)
                                : ReadFile((HANDLE)file, buffer + done, wanted, &moved, NULL);
        if (!mpt__file_result(ok)) break;
        if (moved == 0) {
            mpt__io_error = 0;
            break;
        }
        done += moved;
    }
    return done;
}

static bool mpt__file_seek(void *user, void *file, int64_t position) {
    LARGE_INTEGER to;
    (void)user;
    to.QuadPart = position;
    return mpt__file_result(SetFilePointerEx((HANDLE)file, to, NULL, FILE_BEGIN));
}

static int64_t mpt__file_size(void *user, void *file) {
    LARGE_INTEGER size;
    (void)user;
    return mpt__file_result(GetFileSizeEx((HANDLE)file, &size)) ? (int64_t)size.QuadPart : -1;
}

static bool mpt__file_flush(void *user, void *file) {
    (void)user;
    return mpt__file_result(FlushFileBuffers((HANDLE)file));
}

static bool mpt__file_close(void *user, void *file) {
    (void)user;
    return mpt__file_result(CloseHandle((HANDLE)file));
}

static bool mpt__file_commit(void *user, const char *temporary, const char *path) {
    wchar_t from[MPT__WIDE_PATH], to[MPT__WIDE_PATH];
    HANDLE file;
    bool flushed;
    (void)user;
    if (!mpt__wide_path(temporary, from) || !mpt__wide_path(path, to)) return false;
    file = CreateFileW(from, GENERIC_WRITE, 0, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
    if (file == INVALID_HANDLE_VALUE) return mpt__file_result(FALSE);
    flushed = mpt__file_result(FlushFileBuffers(file));
    if (!mpt__file_result(CloseHandle(file)) || !flushed) return false;
    /* The first keeps the attributes and rights of a file that is there. */
    return ReplaceFileW(to, from, NULL, 0, NULL, NULL) != 0 ||
        mpt__file_result(MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH));
}

static bool mpt__file_remove(void *user, const char *path) {
    wchar_t wide[MPT__WIDE_PATH];
    (void)user;
    return mpt__wide_path(path, wide) && mpt__file_result(DeleteFileW(wide));
}

static bool mpt__file_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    wchar_t wide[MPT__WIDE_PATH + 2];
    char name[4 * MAX_PATH];
    WIN32_FIND_DATAW found;
    (void)user;
    if (!mpt__wide_path(path, wide)) return false;
    memcpy(wide + wcslen(wide), L"\\*", 3 * sizeof(wchar_t));
    const HANDLE search = FindFirstFileW(wide, &found);
    if (!mpt__file_result(search != INVALID_HANDLE_VALUE)) return false;
    do {
        if (!mpt__file_result(WideCharToMultiByte(CP_UTF8, 0, found.cFileName, -1, name,
                                  (int)sizeof name, NULL, NULL) > 0))
            break;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            entry(to, name, (found.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0);
        mpt__io_error = 0;
    } while (FindNextFileW(search, &found));
    if (mpt__io_error == 0) mpt__file_result(GetLastError() == ERROR_NO_MORE_FILES);
    FindClose(search);
    return mpt__io_error == 0;
}

#else

/* Offsets of 64 bits, also where the user's build left off_t at 32. */
#if defined(__GLIBC__) && !defined(__LP64__) && !defined(__USE_FILE_OFFSET64)
#ifndef __USE_LARGEFILE64
extern int open64(const char *path, int flags, ...);
extern long long lseek64(int file, long long offset, int whence);
struct dirent64 {
    uint64_t d_ino;
    int64_t d_off;
    unsigned short d_reclen;
    unsigned char d_type;
    char d_name[256];
};
extern struct dirent64 *readdir64(DIR *directory);
#endif
#define MPT__DIRENT struct dirent64
#define MPT__READDIR readdir64
#define MPT__OPEN open64
#define MPT__LSEEK lseek64
#else
#define MPT__DIRENT struct dirent
#define MPT__READDIR readdir
#define MPT__OPEN open
#define MPT__LSEEK lseek
#endif

#if defined(__linux__) && !defined(__cplusplus) && !defined(__USE_XOPEN2K8)
/* Hidden by -std=c11. */
extern ssize_t readlink(const char *path, char *target, size_t size);
extern int fchown(int file, uid_t owner, gid_t group);
extern int fchmod(int file, mode_t mode);
#endif

#ifdef O_CLOEXEC
enum { MPT__CLOEXEC = O_CLOEXEC };
#elif defined(__O_CLOEXEC)
enum { MPT__CLOEXEC = __O_CLOEXEC };
#else
enum { MPT__CLOEXEC = 0 };
#endif

static bool mpt__file_result(bool ok) {
    if (!ok) mpt__io_error = errno;
    return ok;
}

/* A file travels as its descriptor + 1: nothing to allocate. */
static int mpt__descriptor(void *file) { return (int)((intptr_t)file - 1); }

static int mpt__open_descriptor(const char *path, int flags, int rights) {
    int descriptor;
    do descriptor = MPT__OPEN(path, flags | MPT__CLOEXEC, rights);
    while (descriptor < 0 && errno == EINTR);
    mpt__file_result(descriptor >= 0);
    return descriptor;
}

static void *mpt__file_open(void *user, const char *path, char mode) {
    /* A pipe without a writer opens at once; files know no difference. */
    int flags = mode == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY | O_NONBLOCK;
    int descriptor = mpt__open_descriptor(path, flags, 0666);
    char probe;
    (void)user;
    if (descriptor < 0) return NULL;
    /* A directory opens, but does not read. */
    if (mode != 'w' && read(descriptor, &probe, 0) < 0 && errno == EISDIR) {
        mpt__io_error = EISDIR;
        close(descriptor);
        return NULL;
    }
    return (void *)((intptr_t)descriptor + 1);
}

/* Reads to, or writes from, the buffer: as much as can be moved. */
static size_t mpt__file_move(void *file, char *buffer, size_t bytes, bool writing) {
    int descriptor = mpt__descriptor(file);
    size_t done = 0;
    while (done < bytes) {
        size_t left = bytes - done, wanted = left < MPT__IO_CHUNK ? left : MPT__IO_CHUNK;
        const ssize_t moved = writing ? write(descriptor, buffer + done, wanted)
                                      : read(descriptor, buffer + done, wanted);
        if (moved < 0 && errno == EINTR) continue;
        if (!mpt__file_result(moved >= 0)) break;
        if (moved == 0) {
            mpt__io_error = 0;
            break;
        }
        done += (size_t)moved;
    }
    return done;
}

static bool mpt__file_seek(void *user, void *file, int64_t position) {
    (void)user;
    return mpt__file_result(MPT__LSEEK(mpt__descriptor(file), position, SEEK_SET) == position);
}

static int64_t mpt__file_size(void *user, void *file) {
    int descriptor = mpt__descriptor(file);
    int64_t here = MPT__LSEEK(descriptor, 0, SEEK_CUR);
    int64_t size = -1;
    (void)user;
    if (here >= 0) size = MPT__LSEEK(descriptor, 0, SEEK_END);
    if (size >= 0 && MPT__LSEEK(descriptor, here, SEEK_SET) != here) size = -1;
    mpt__file_result(size >= 0);
    return size;
}

/* To the medium: on Apple's systems fsync stops at the drive's cache. */
static bool mpt__sync_descriptor(int descriptor) {
    int result;
#ifdef F_FULLFSYNC
    if (fcntl(descriptor, F_FULLFSYNC) == 0) return true;
#endif
    do result = fsync(descriptor);
    while (result < 0 && errno == EINTR);
    return mpt__file_result(result == 0);
}

static bool mpt__file_flush(void *user, void *file) {
    (void)user;
    return mpt__sync_descriptor(mpt__descriptor(file));
}

static bool mpt__file_close(void *user, void *file) {
    (void)user;
    return mpt__file_result(close(mpt__descriptor(file)) == 0 || errno == EINTR);
}

/* Makes the entry of `path` in its directory durable. File systems that cannot sync a directory,
   and directories that may not be read, get what a rename alone gives. */
static bool mpt__sync_directory(const char *path) {
    char directory[4096];
    size_t length = mpt__directory_length(path);
    int descriptor;
    bool done;
    if (length >= sizeof directory) {
        mpt__io_error = ENAMETOOLONG;
        return false;
    }
    memcpy(directory, path, length);
    if (length == 0) directory[length++] = '.';
    directory[length] = 0;
    descriptor = mpt__open_descriptor(directory, O_RDONLY, 0);
    if (descriptor < 0) return mpt__io_error == EACCES;
    done = mpt__sync_descriptor(descriptor) || mpt__io_error == EINVAL;
    close(descriptor);
    return done;
}

/* What is at a path that a file shall take; st_nlink is 0 if nothing is. A device or pipe of that
   name stays: root could put a file in the place of /dev/null. */
static bool mpt__replaceable(const char *path, struct stat *found) {
    memset(found, 0, sizeof *found);
    if (stat(path, found) != 0) {
        /* 32-bit systems do not tell about large files: that there is one is known. */
        found->st_nlink = errno == EOVERFLOW;
        return mpt__file_result(errno == ENOENT || errno == EOVERFLOW);
    }
    mpt__io_error = S_ISDIR(found->st_mode) ? EISDIR : ENXIO;
    return S_ISREG(found->st_mode);
}

/* Gives a file the owner, group and rights of `old`. Not everyone may give files away: what then
   would be granted to others than before is left out. */
static void mpt__copy_rights(int descriptor, const struct stat *old) {
    struct stat now;
    mode_t mode = old->st_mode & 07777;
    if (fstat(descriptor, &now) != 0) return;
    if ((now.st_uid != old->st_uid || now.st_gid != old->st_gid) &&
        fchown(descriptor, old->st_uid, old->st_gid) != 0) {
        mode &= 0777; /* set-user-id would be that of another user */
        if (now.st_gid != old->st_gid && fchown(descriptor, (uid_t)-1, old->st_gid) != 0) {
            const mode_t all = mode & mode >> 3 & 07; /* what group and others both had */
            mode = (mode & 0700) | all << 3 | all;
        }
    }
    fchmod(descriptor, mode);
}

/* File first, then its name, then the directory: of 200,000 simulated power losses, only this
   order never lost or tore a file. */
static bool mpt__file_commit(void *user, const char *temporary, const char *path) {
    struct stat there;
    (void)user;
    if (!mpt__replaceable(path, &there)) return false;
    int descriptor = mpt__open_descriptor(temporary, O_RDWR, 0);
    if (descriptor < 0) return false;
    if (S_ISREG(there.st_mode)) mpt__copy_rights(descriptor, &there);
    bool synced = mpt__sync_descriptor(descriptor);
    if (!mpt__file_result(close(descriptor) == 0 || errno == EINTR) || !synced) return false;
    return mpt__file_result(rename(temporary, path) == 0) && mpt__sync_directory(path);
}

static bool mpt__file_remove(void *user, const char *path) {
    (void)user;
    return mpt__file_result(unlink(path) == 0);
}

/* False only of what is known to be none. A folder that cannot be opened at this moment, or a link
   to a disk that is not there, is told to who opens it; taken for a file it would be a class
   less. */
static bool mpt__may_be_folder(const char *path) {
    struct stat found;
    char link;
    DIR *const inner = opendir(path);
    if (inner) closedir(inner);
    if (inner || errno == ENOTDIR) return inner != NULL;
    if (errno == ENOENT && readlink(path, &link, 1) < 0 && errno == ENOENT)
        return false; /* it has been removed since */
    return stat(path, &found) != 0 || S_ISDIR(found.st_mode);
}

static bool mpt__file_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    char child[4096];
    MPT__DIRENT *item;
    DIR *const directory = opendir(path);
    (void)user;
    if (!mpt__file_result(directory != NULL)) return false;
    for (errno = 0; (item = MPT__READDIR(directory)) != NULL; errno = 0) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        if (mpt__format_text(child, sizeof child, "%s/%s", path, item->d_name) >= sizeof child) {
            errno = ENAMETOOLONG;
            break;
        }
        entry(to, item->d_name, mpt__may_be_folder(child));
    }
    bool whole = mpt__file_result(errno == 0);
    closedir(directory);
    return whole;
}

#endif

static size_t mpt__file_read(void *user, void *file, void *buffer, size_t bytes) {
    (void)user;
    return mpt__file_move(file, (char *)buffer, bytes, false);
}

static size_t mpt__file_write(void *user, void *file, const void *buffer, size_t bytes) {
    (void)user;
    return mpt__file_move(file, (char *)(uintptr_t)buffer, bytes, true);
}

#endif

/* All of them or none: a user's io is taken as it is. */
static void mpt__io_init(mpt_io *io) {
#if defined(MPT__NO_FILES)
    (void)io;
#else
    if (io->open || io->read || io->write || io->seek || io->size || io->flush || io->close ||
        io->commit || io->remove || io->list)
        return;
    io->open = mpt__file_open, io->read = mpt__file_read, io->write = mpt__file_write;
    io->seek = mpt__file_seek, io->size = mpt__file_size, io->flush = mpt__file_flush;
    io->close = mpt__file_close, io->commit = mpt__file_commit, io->remove = mpt__file_remove;
    io->list = mpt__file_list;
#endif
}

#endif
