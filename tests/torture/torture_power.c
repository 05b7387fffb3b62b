/* torture_power.c: the power goes. What a training's saves ask of the system is recorded; then, as
   often as wanted, a moment is drawn and what a disk may hold after it: every write behind the last
   fsync of its file may have come there or not, in any order, sector by sector; every name in a
   folder may be what it was at the last fsync of the folder or anything it has been since. Behind a
   save that has returned its file must be there, whole; during one, that or the one before. Saving
   without an fsync before or behind the rename, and saving in place, must be caught. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#include "trainings.h"

#if defined(__linux__) && defined(__LP64__) && defined(__GLIBC__)
#define HAVE_RECORDING 1
#endif

#ifndef HAVE_RECORDING
int main(void) {
    printf("power: skipped: it stands in front of the C library of 64-bit Linux\n");
    return 0;
}
#else

#include <sys/syscall.h>

/* ==== What was asked of the system ==== */

enum { CREATES, TRUNCATES, WRITES, SYNCS, RENAMES, UNLINKS, SYNCS_FOLDER, RETURNS };

/* One thing done. Names are those of the one folder. */
typedef struct record {
    int what, file, name, other; /* which file; the name that changes, and that renamed to it */
    size_t at, bytes;
    uint8_t *data;
} record;

enum { MOST_RECORDS = 4096, MOST_FILES = 64, MOST_NAMES = 64, MOST_OPEN = 256, MOST_SAVES = 16 };

static struct {
    record records[MOST_RECORDS];
    int count, files, names, recording;
    char name[MOST_NAMES][200];
    int bound[MOST_NAMES];    /* which file a name leads to now; -1: none */
    int open_file[MOST_OPEN]; /* of a descriptor: the file + 1; -1: the folder */
    size_t position[MOST_OPEN];
    uint8_t *saved[MOST_SAVES]; /* what the file was when a save had returned */
    size_t saved_bytes[MOST_SAVES];
    int saves;
} disk_log;

static record *note(int what, int file, int name) {
    record *r = &disk_log.records[disk_log.count];
    if (disk_log.count + 1 >= MOST_RECORDS) abort();
    disk_log.count++;
    memset(r, 0, sizeof *r);
    r->what = what, r->file = file, r->name = name;
    return r;
}

/* The number of a name in the folder; -1: it lies elsewhere. */
static int name_number(const char *path) {
    const size_t n = strlen(torture_folder);
    if (strncmp(path, torture_folder, n) != 0 || path[n] != '/' || path[n + 1] == 0) return -1;
    for (int i = 0; i < disk_log.names; i++)
        if (strcmp(disk_log.name[i], path + n + 1) == 0) return i;
    if (disk_log.names == MOST_NAMES) abort();
    snprintf(disk_log.name[disk_log.names], sizeof disk_log.name[0], "%s", path + n + 1);
    disk_log.bound[disk_log.names] = -1;
    return disk_log.names++;
}

static bool is_folder(const char *path) {
    const size_t n = strlen(torture_folder);
    return strncmp(path, torture_folder, n) == 0 && (path[n] == 0 || strcmp(path + n, "/") == 0);
}

static void note_open(int descriptor, const char *path, int flags) {
    const int name = is_folder(path) ? -1 : name_number(path);
    disk_log.open_file[descriptor] = is_folder(path) ? -1 : 0;
    disk_log.position[descriptor] = 0;
    if (name < 0) return;
    if (disk_log.bound[name] < 0 && (flags & O_CREAT)) {
        if (disk_log.files == MOST_FILES) abort();
        disk_log.bound[name] = disk_log.files++;
        note(CREATES, disk_log.bound[name], name);
    } else if (flags & O_TRUNC) {
        note(TRUNCATES, disk_log.bound[name], name);
    }
    disk_log.open_file[descriptor] = disk_log.bound[name] + 1;
}

/* ==== Calls of the C library, on their way to the system ==== */

#ifdef __cplusplus
#define TORTURE_NOTHROW __THROW
extern "C" {
#else
#define TORTURE_NOTHROW
#endif

int open(const char *path, int flags, ...) {
    mode_t mode = 0;
    if (flags & O_CREAT) {
        __builtin_va_list rest;
        __builtin_va_start(rest, flags);
        mode = (mode_t) __builtin_va_arg(rest, int);
        __builtin_va_end(rest);
    }
    const int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (disk_log.recording && descriptor >= 0 && descriptor < MOST_OPEN)
        note_open(descriptor, path, flags);
    return descriptor;
}

ssize_t write(int descriptor, const void *from, size_t bytes) {
    const ssize_t moved = syscall(SYS_write, descriptor, from, bytes);
    if (disk_log.recording && descriptor < MOST_OPEN && disk_log.open_file[descriptor] > 0 &&
        moved > 0) {
        record *r = note(WRITES, disk_log.open_file[descriptor] - 1, -1);
        r->at = disk_log.position[descriptor], r->bytes = (size_t)moved;
        r->data = (uint8_t *)malloc(r->bytes);
        memcpy(r->data, from, r->bytes);
        disk_log.position[descriptor] += r->bytes;
    }
    return moved;
}

/* The disk of this test is a record: nothing needs to reach a real one. */
int fsync(int descriptor) {
    const int file = descriptor >= 0 && descriptor < MOST_OPEN ? disk_log.open_file[descriptor] : 0;
    if (disk_log.recording && file != 0) note(file > 0 ? SYNCS : SYNCS_FOLDER, file - 1, -1);
    return 0;
}

int rename(const char *from, const char *to) TORTURE_NOTHROW {
    const int result = renameat(AT_FDCWD, from, AT_FDCWD, to);
    if (disk_log.recording && result == 0) {
        const int old_name = name_number(from), name = name_number(to);
        if (old_name < 0 || name < 0) abort();
        note(RENAMES, disk_log.bound[old_name], name)->other = old_name;
        disk_log.bound[name] = disk_log.bound[old_name], disk_log.bound[old_name] = -1;
    }
    return result;
}

int unlink(const char *path) TORTURE_NOTHROW {
    const int result = unlinkat(AT_FDCWD, path, 0);
    if (disk_log.recording && result == 0) {
        const int name = name_number(path);
        if (name < 0) abort();
        note(UNLINKS, disk_log.bound[name], name);
        disk_log.bound[name] = -1;
    }
    return result;
}

#ifdef __cplusplus
}
#endif

/* ==== Ways to save ==== */

static void *user_open(void *user, const char *path, char mode) {
    const char *const *in_place = (const char *const *)user;
    if (mode == 'w' && *in_place) path = *in_place;
    const int file = open(path, mode == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666);
    return file < 0 ? NULL : (void *)((intptr_t)file + 1);
}

static int number_of(void *file) { return (int)((intptr_t)file - 1); }

static size_t user_write(void *user, void *file, const void *from, size_t bytes) {
    (void)user;
    const ssize_t n = write(number_of(file), from, bytes);
    return n < 0 ? 0 : (size_t)n;
}

static bool user_sync(void *user, void *file) {
    (void)user;
    return fsync(number_of(file)) == 0;
}

static bool user_no_sync(void *user, void *file) {
    (void)user, (void)file;
    return true;
}

static bool user_close(void *user, void *file) {
    (void)user;
    return close(number_of(file)) == 0;
}

static bool sync_folder(void) {
    const int folder = open(torture_folder, O_RDONLY);
    const bool synced = folder >= 0 && fsync(folder) == 0;
    if (folder >= 0) close(folder);
    return synced;
}

static bool commit_and_sync(void *user, const char *temporary, const char *path) {
    (void)user;
    return rename(temporary, path) == 0 && sync_folder();
}

static bool commit_alone(void *user, const char *temporary, const char *path) {
    (void)user;
    return rename(temporary, path) == 0;
}

static bool commit_in_place(void *user, const char *temporary, const char *path) {
    (void)user, (void)temporary, (void)path;
    return sync_folder();
}

static bool user_remove(void *user, const char *path) {
    (void)user;
    return unlink(path) == 0;
}

static const struct {
    const char *name;
    bool (*flush)(void *user, void *file);
    bool (*commit)(void *user, const char *temporary, const char *path);
    bool in_place, good;
} ways[] = {{"built in", NULL, NULL, false, true},
            {"callbacks in the right order", user_sync, commit_and_sync, false, true},
            {"no fsync before the rename", user_no_sync, commit_and_sync, false, false},
            {"no fsync of the folder", user_sync, commit_alone, false, false},
            {"writing in place", user_sync, commit_in_place, true, false}};
enum { WAYS = sizeof ways / sizeof *ways, SAVES = 6 };

static const char *target, *link_to_target, *replaced;

static mpt_io io_of(int way) {
    mpt_io io;
    memset(&io, 0, sizeof io);
    if (!ways[way].commit) return io;
    io.open = user_open, io.write = user_write, io.flush = ways[way].flush, io.close = user_close;
    io.commit = ways[way].commit, io.remove = user_remove, io.user = (void *)&replaced;
    replaced = ways[way].in_place ? target : NULL;
    return io;
}

/* What a save has left can be read, and is what was saved. */
static void check_saved(const training *t, bool weights) {
    const mpt_io io = training_io;
    memset(&training_io, 0, sizeof training_io);
    training u = begin_training(&t->how);
    if (weights) {
        EXPECT_THAT(mpt_load(u.net, target, NULL, NULL) == MPT_OK, "%s", mpt_error(u.context));
        EXPECT_THAT(mpt_module_hash(u.net) == mpt_module_hash(t->net), "other weights");
    } else {
        EXPECT_THAT(mpt_checkpoint_load(u.context, target) == MPT_OK, "%s", mpt_error(u.context));
        EXPECT_THAT(mpt_state_hash(u.context) == mpt_state_hash(t->context), "another state");
    }
    end_training(&u);
    training_io = io;
}

/* Saves six times, checkpoints and weights, by the path and by way of a link, and records it. */
static void record_saves(int way, uint64_t *state) {
    plan how;
    memset(&how, 0, sizeof how);
    how.precision = (int)draw_below(state, PRECISIONS), how.optimizer = 2, how.width = 40;
    how.threads = how.accumulate = 1, how.overflow = -1, how.seed = options.seed;
    disk_log.recording = 0;
    empty_folder(torture_folder);
    for (int i = 0; i < disk_log.count; i++) free(disk_log.records[i].data);
    for (int i = 0; i < disk_log.saves; i++) free(disk_log.saved[i]);
    memset(&disk_log, 0, sizeof disk_log);
    EXPECT_THAT(symlink("net", link_to_target) == 0, "no link");
    training_io = io_of(way);
    training t = begin_training(&how);
    for (int i = 0; i < SAVES; i++) {
        static uint8_t bytes[1 << 20];
        const char *path = i % 3 == 2 && way == 0 ? link_to_target : target;
        run_training(&t, i, i + 1);
        disk_log.recording = 1;
        const mpt_status status =
            i % 4 == 3 ? mpt_save(t.net, path) : mpt_checkpoint_save(t.context, path);
        disk_log.recording = 0;
        EXPECT_THAT(status == MPT_OK, "%s", mpt_error(t.context));
        note(RETURNS, -1, -1);
        check_saved(&t, i % 4 == 3);
        const size_t n = read_whole(target, bytes, sizeof bytes);
        disk_log.saved_bytes[i] = n;
        disk_log.saved[i] = (uint8_t *)malloc(n + 1);
        memcpy(disk_log.saved[i], bytes, n);
        disk_log.saves++;
    }
    end_training(&t);
}

/* ==== What may be on the disk afterwards ==== */

enum { SECTOR = 512, MOST_BYTES = 1 << 20 };

/* Which file a name leads to after the power went at `end`. Names change at once or not at all;
   what is behind the last fsync of the folder may have come there, in order (as in a journal) or
   each by itself. */
static int name_after(int end, int name, uint64_t *state) {
    int first = 0, bound = -1;
    const bool journal = draw_below(state, 2) == 0;
    for (int i = 0; i < end; i++)
        if (disk_log.records[i].what == SYNCS_FOLDER) first = i + 1;
    const int last = first + (int)draw_below(state, end - first + 1);
    for (int i = 0; i < end; i++) {
        const record *r = &disk_log.records[i];
        const bool there = i < first || (journal ? i < last : draw_below(state, 2) == 0);
        if (!there) continue;
        if ((r->what == CREATES || r->what == RENAMES) && r->name == name) bound = r->file;
        if (r->what == UNLINKS && r->name == name) bound = -1;
        if (r->what == RENAMES && r->other == name) bound = -1;
    }
    return bound;
}

/* The bytes of a file; returns how many. What is behind its last fsync may have come there or not,
   sector by sector, or its length alone; what was never written there reads as zeros. */
static size_t file_after(int end, int file, uint8_t *bytes, uint64_t *state) {
    int synced = 0;
    size_t size = 0;
    const long kind = draw_below(state, 4); /* lost, all of it, mixed, mixed */
    for (int i = 0; i < end; i++)
        if (disk_log.records[i].what == SYNCS && disk_log.records[i].file == file) synced = i;
    for (int i = 0; i < end; i++) {
        const record *r = &disk_log.records[i];
        if (r->file != file) continue;
        const bool safe = i < synced;
        if (r->what == TRUNCATES && (safe || kind == 1 || (kind > 1 && draw_below(state, 2))))
            size = 0;
        if (r->what != WRITES || (!safe && kind == 0)) continue;
        for (size_t k = 0; k < r->bytes;) {
            const size_t place = r->at + k, room = SECTOR - place % SECTOR;
            const size_t n = r->bytes - k < room ? r->bytes - k : room;
            const long luck = safe || kind == 1 ? 0 : draw_below(state, 4);
            if (luck < 3 && place + n > size) { /* at least the length has come there */
                memset(bytes + size, 0, place + n - size);
                size = place + n;
            }
            if (luck < 2) memcpy(bytes + place, r->data + k, n);
            k += n;
        }
    }
    return size;
}

static bool is_saved(int number, const uint8_t *bytes, size_t n) {
    return number >= 0 && number < disk_log.saves && disk_log.saved_bytes[number] == n &&
           memcmp(disk_log.saved[number], bytes, n) == 0;
}

/* One loss of power. True if the file is the one of the last save that returned, or of the next. */
static bool one_loss(uint64_t *state) {
    static uint8_t bytes[MOST_BYTES];
    const int end = (int)draw_below(state, disk_log.count + 1);
    int saves = 0, name = -1;
    for (int i = 0; i < end; i++) saves += disk_log.records[i].what == RETURNS;
    for (int i = 0; i < disk_log.names; i++)
        if (strcmp(disk_log.name[i], "net") == 0) name = i;
    if (name < 0) abort();
    const int file = name_after(end, name, state);
    if (file < 0) {
        counts->figures[3]++;
        return saves == 0;
    }
    const size_t n = file_after(end, file, bytes, state);
    if (is_saved(saves - 1, bytes, n)) counts->figures[1]++;
    if (is_saved(saves, bytes, n)) counts->figures[2]++;
    return is_saved(saves - 1, bytes, n) || is_saved(saves, bytes, n);
}

static void check_way(int way, long states) {
    long bad = 0;
    uint64_t state = case_seed(way);
    for (long n = 0; n < states; n++) {
        if (n % 5000 == 0) record_saves(way, &state);
        if (one_loss(&state)) continue;
        if (++bad == 1 && ways[way].good)
            torture_failed(__LINE__, "%s: after loss %ld the file is not whole", ways[way].name, n);
    }
    printf("%s: %ld of %ld losses of power took the file%s\n", ways[way].name, bad, states,
           ways[way].good ? "" : ", as they have to");
    if (ways[way].good)
        counts->failures += bad;
    else
        EXPECT_THAT(bad > 0, "%s was not caught", ways[way].name);
}

int main(int argc, char **argv) {
    char paths[2][700];
    torture_arguments(argc, argv, 200000);
    torture_begin();
    folder_begin("power");
    snprintf(paths[0], sizeof paths[0], "%s", in_folder("net"));
    snprintf(paths[1], sizeof paths[1], "%s", in_folder("link"));
    target = paths[0], link_to_target = paths[1];
    check_way(0, options.cases);
    check_way(1, options.cases / 10);
    const long old = counts->figures[1], fresh = counts->figures[2], none = counts->figures[3];
    EXPECT_THAT(old > 0 && fresh > 0 && none > 0, "%ld old, %ld new, %ld none", old, fresh, none);
    for (int way = 2; way < WAYS; way++) check_way(way, options.cases / 20);
    folder_end();
    return torture_end("power", options.cases,
                       "%ld times the file of the last save, %ld times that of one under way, %ld "
                       "times none yet, %d planted bugs caught",
                       old, fresh, none, WAYS - 2);
}
#endif
