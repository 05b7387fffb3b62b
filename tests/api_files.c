/* api_files.c: what is not there against what cannot be read; saving: rights, links, what killed
   processes left; every call of the system fails in turn. The implementation is in this file, so
   that it has stb_image where the machine does. */
#include "faulty_system.h"
#if defined(__has_include)
#if __has_include(<stb_image.h>) || __has_include(<stb/stb_image.h>)
#define MPTRAIN_STB_IMAGE
#define MPTRAIN_STB_IMAGE_IMPLEMENTATION
#endif
#endif
#define MPTRAIN_NO_SIMD /* which files need not, and takes long to compile */
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE

#include "harness.h"
#include "memory.h"

#if defined(__unix__) && !defined(MPT__NO_FILES)
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#define HAVE_UNIX 1
#endif

#ifdef HAVE_UNIX

/* ==== A folder for each test ==== */

static char root[400];

static const char *in_root(const char *name) {
    static char paths[4][512];
    static int next;
    char *path = paths[next++ & 3];
    snprintf(path, sizeof paths[0], "%s/%s", root, name);
    return path;
}

/* The names in a folder that contain `part`. */
static int names_in(const char *path, const char *part) {
    int n = 0;
    DIR *const directory = opendir(path);
    for (const struct dirent *item; directory && (item = readdir(directory)) != NULL;)
        n += item->d_name[0] != '.' || item->d_name[1] == 'm' ? strstr(item->d_name, part) != NULL
                                                              : 0;
    if (directory) closedir(directory);
    return n;
}

static void empty_folder(const char *path) {
    char child[1024];
    DIR *const directory = opendir(path);
    for (const struct dirent *item; directory && (item = readdir(directory)) != NULL;) {
        if (strcmp(item->d_name, ".") == 0 || strcmp(item->d_name, "..") == 0) continue;
        snprintf(child, sizeof child, "%s/%s", path, item->d_name);
        if (unlink(child) == 0) continue;
        chmod(child, 0700);
        empty_folder(child);
        rmdir(child);
    }
    if (directory) closedir(directory);
}

static bool begin(const char *name) {
    snprintf(root, sizeof root, "%s", test_tmp_path(name));
    empty_folder(root);
    umask(022);
    return mkdir(root, 0755) == 0 || errno == EEXIST;
}

static void end(mpt_context *context) {
    mpt_destroy(context);
    empty_folder(root);
    rmdir(root);
}

static int mode_of(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 ? (int)(found.st_mode & 07777) : -1;
}

static bool is_link(const char *path) {
    char target;
    return readlink(path, &target, 1) >= 0;
}

static mpt_module net_of(mpt_context *context, float value) {
    mpt_module net = mpt_nn_linear(context, 3, 2);
    mpt_no_grad_begin(context);
    mpt_fill_(mpt_parameter_at(net, 0, NULL, 0), value);
    mpt_no_grad_end(context);
    return net;
}

/* The value that all weights of a saved net have. */
static float saved_value(mpt_context *context, const char *path) {
    float values[6] = {0};
    mpt_module net = net_of(context, -1.0f);
    if (mpt_load(net, path, NULL, NULL) != MPT_OK) return -2.0f;
    mpt_read_f32(mpt_parameter_at(net, 0, NULL, 0), values, 6);
    mpt_module_destroy(net);
    return values[5];
}

#define CHECK_SAVED(path, value) CHECK(saved_value(context, path) == (value))

/* ==== Saving ==== */

TEST(saving_keeps_the_mode) {
    static const int modes[] = {0600, 0640, 0644, 0666, 0444, 0400, 0755, 0660, 0200};
    mpt_context *context = make_context();
    REQUIRE(begin("modes"));
    mpt_module net = net_of(context, 1.0f);
    const char *path = in_root("net");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        put_file_at(path, "old", 3);
        chmod(path, (mode_t)modes[i]);
        CHECK_EQ_INT(mpt_save(net, path), MPT_OK);
        CHECK_EQ_INT(mode_of(path), modes[i]);
        chmod(path, 0600);
        CHECK_SAVED(path, 1.0f);
        unlink(path);
    }
    umask(027);
    CHECK_EQ_INT(mpt_save(net, path), MPT_OK);
    CHECK_EQ_INT(mode_of(path), 0640);
    umask(022);
    CHECK_EQ_INT(names_in(root, ".mptrain-"), 0);
    CHECK_EQ_STR(mpt_error(context), "");
    end(context);
}

/* What is written has no more rights than what it replaces, from the start. */
TEST(temporary_files_are_private) {
    struct stat found;
    mpt__new_file t;
    mpt_context *context = make_context();
    REQUIRE(begin("private"));
    const char *path = in_root("net");
    for (int there = 0; there < 2; there++) {
        if (there) put_file_at(path, "old", 3);
        REQUIRE(mpt__new_file_begin(&context->base, path, &t));
        CHECK_EQ_STR(t.target, path);
        CHECK(stat(t.path, &found) == 0 && found.st_size == 0);
        CHECK_EQ_INT(mode_of(t.path), there ? 0600 : 0644);
        mpt__new_file_end(&t, false);
        CHECK_EQ_INT(mode_of(t.path), -1);
    }
    end(context);
}

TEST(saving_follows_links) {
    mpt_context *context = make_context();
    REQUIRE(begin("links"));
    mpt_module net = net_of(context, 2.0f);
    char absolute[1024], here[512];
    REQUIRE(getcwd(here, sizeof here) != NULL);
    mkdir(in_root("far"), 0755);
    put_file_at(in_root("far/net"), "old", 3);
    chmod(in_root("far/net"), 0640);
    snprintf(absolute, sizeof absolute, "%s/%s", root[0] == '/' ? "" : here, in_root("b"));
    REQUIRE(symlink("far/net", in_root("b")) == 0 && symlink(absolute, in_root("a")) == 0);
    REQUIRE(symlink("../new", in_root("far/dangling")) == 0);
    REQUIRE(symlink("y", in_root("x")) == 0 && symlink("x", in_root("y")) == 0);
    REQUIRE(symlink("far", in_root("folder")) == 0);

    CHECK_EQ_INT(mpt_save(net, in_root("a")), MPT_OK);
    CHECK(is_link(in_root("a")) && is_link(in_root("b")) && !is_link(in_root("far/net")));
    CHECK_EQ_INT(mode_of(in_root("far/net")), 0640);
    CHECK_SAVED(in_root("far/net"), 2.0f);

    CHECK_EQ_INT(mpt_save(net, in_root("far/dangling")), MPT_OK);
    CHECK(is_link(in_root("far/dangling")) && !is_link(in_root("new")));
    CHECK_SAVED(in_root("new"), 2.0f);
    CHECK_EQ_INT(mode_of(in_root("new")), 0644);

    CHECK_EQ_INT(mpt_save(net, in_root("x")), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "links/x: its symbolic links go round in a circle");
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_save(net, in_root("folder")), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "is a directory");
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_save(net, "/dev/null"), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "is no ordinary file");
    mpt_clear_error(context);
    CHECK_EQ_INT(names_in(root, ".mptrain-") + names_in(in_root("far"), ".mptrain-"), 0);
    end(context);
}

/* Where a backslash is a letter like others. */
TEST(names_with_backslashes) {
    mpt_context *context = make_context();
    REQUIRE(begin("letters"));
    mpt_module net = net_of(context, 3.0f);
    for (int i = 0; i < 2; i++) CHECK_EQ_INT(mpt_save(net, in_root("a\\b")), MPT_OK);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_SAVED(in_root("a\\b"), 3.0f);
    CHECK_EQ_INT(names_in(root, "mptrain-"), 0);
    CHECK_EQ_INT(names_in(root, "b"), 1);
    end(context);
}

static void ignore_entry(void *to, const char *name, bool folder) {
    (void)name, (void)folder;
    ++*(int *)to;
}

/* What is there and cannot be what is asked for, or what a path is too long for. */
TEST(folders_and_long_paths) {
    char longest[6000];
    int entries = 0;
    mpt_context *context = make_context();
    REQUIRE(begin("long"));
    mpt_module net = net_of(context, 3.0f);
    CHECK_EQ_INT(mpt_load(net, root, NULL, NULL), MPT_ERROR_IO);
    CHECK_CONTAINS(mpt_error(context), "is a directory");
    mpt_clear_error(context);
    CHECK(mpt__may_be_folder(root) && !mpt__may_be_folder(in_root("nothing")));
    put_file_at(in_root("a-file-of-a-name"), "x", 1);
    snprintf(longest, sizeof longest, "%s", root);
    while (strlen(longest) < 4085) strcat(longest, "/.");
    CHECK(!mpt__file_list(NULL, longest, ignore_entry, &entries));
    CHECK_EQ_INT(mpt__io_error, ENAMETOOLONG);
    CHECK(entries == 0 && mpt__file_list(NULL, root, ignore_entry, &entries) && entries == 1);
    while (strlen(longest) < 5000) strcat(longest, "/.");
    mpt__io_error = 0;
    CHECK(!mpt__sync_directory(longest));
    CHECK_EQ_INT(mpt__io_error, ENAMETOOLONG);
    end(context);
}

/* A child that begins to save and is killed while it does, or waits until it is. */
static pid_t saving_child(const char *path, bool killed) {
    int ready[2];
    char c;
    if (pipe(ready) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) {
        mpt_context *context = make_context();
        mpt__new_file t;
        const bool begun = context && mpt__new_file_begin(&context->base, path, &t);
        if (write(ready[1], begun ? "y" : "n", 1) != 1 || killed) raise(SIGKILL);
        for (;;) pause();
    }
    close(ready[1]);
    if (read(ready[0], &c, 1) != 1 || c != 'y') printf("\n  the child could not begin");
    close(ready[0]);
    if (killed) waitpid(child, NULL, 0);
    return child;
}

TEST(leftovers_of_killed_processes_go) {
    static const char *const not_ours[] = {".mptrain-1-2-3.tmp",
                                           ".mptrain-0-1-2-3.tmp",
                                           ".mptrain-.tmp",
                                           ".mptrain-%s1-2-3.tmp.gz",
                                           ".mptrain-%s1-2-.tmp",
                                           ".mptrain-%s1-2.tmp",
                                           ".mptrain-%s1-2-3-4.tmp",
                                           "x.mptrain-%s1-2-3.tmp",
                                           ".mptrain-%s1-2-3x.tmp",
                                           ".mptrain-%s1-2-3a.tmp",
                                           ".mptrain-%sG-2-3.tmp",
                                           "net.tmp",
                                           ".mptrain-%s12345678901234567-2-3.tmp"};
    enum { OTHERS = sizeof not_ours / sizeof *not_ours };
    char mark[MPT__MARK_SIZE], name[128];
    mpt_context *context = make_context();
    REQUIRE(begin("killed"));
    mpt_module net = net_of(context, 3.0f);
    mpt__machine_mark(mark);
    for (int i = 0; i < OTHERS; i++) {
        snprintf(name, sizeof name, not_ours[i], mark);
        put_file_at(in_root(name), "keep", 4);
    }
    snprintf(name, sizeof name, ".mptrain-%s1-5-6.tmp", mark); /* not even a file */
    mkdir(in_root(name), 0755);
    snprintf(name, sizeof name, ".mptrain-%s1-5-7.tmp", mark);
    put_file_at(in_root("precious"), "keep", 4);
    REQUIRE(symlink("precious", in_root(name)) == 0);
    const int kept = names_in(root, "");

    for (int i = 0; i < 3; i++) saving_child(in_root("net"), true);
    CHECK(names_in(root, "") > kept);
    const pid_t live = saving_child(in_root("net"), false);
    CHECK_EQ_INT(names_in(root, ""), kept + 1);
    CHECK_EQ_INT(mpt_save(net, in_root("net")), MPT_OK);
    CHECK_EQ_INT(names_in(root, ""), kept + 2); /* the live one's and net */
    kill(live, SIGKILL);
    waitpid(live, NULL, 0);
    CHECK_EQ_INT(mpt_save(net, in_root("net")), MPT_OK);
    CHECK_EQ_INT(names_in(root, ""), kept + 1);
    CHECK_SAVED(in_root("net"), 3.0f);

    /* Those of this process: of a save under way it stays, too. */
    mpt__new_file t;
    REQUIRE(mpt__new_file_begin(&context->base, in_root("net"), &t));
    CHECK_EQ_INT(mpt_save(net, in_root("net")), MPT_OK);
    CHECK_EQ_INT(mode_of(t.path), 0600);
    mpt__new_file_end(&t, true);
    CHECK_EQ_INT(mpt_save(net, in_root("net")), MPT_OK);
    CHECK_EQ_INT(mode_of(t.path), -1);
    end(context);
}

/* ==== Every call of the system fails ==== */

#ifdef HAVE_FAULTY_SYSTEM

static const struct {
    int code;
    const char *text;
} codes[] = {{ENOENT, "no such file or directory"},
             {EIO, "input or output error"},
             {EMFILE, "too many open files"},
             {ENOMEM, "out of memory"},
             {ESTALE, "stale file handle"},
             {EACCES, "permission denied"},
             {EINTR, "interrupted by a signal"},
             {121, "the system refused (error 121)"},
             {0, "the file ends there"}};
enum { CODES = sizeof codes / sizeof *codes };

/* The built-in functions as those of a user, which say by errno why they fail, or do not. */
static void *user_open(void *user, const char *path, char mode) {
    return system_fails(IO_OPEN) ? NULL : mpt__file_open(user, path, mode);
}

static size_t user_read(void *user, void *file, void *to, size_t bytes) {
    return system_fails(IO_READ) ? 0 : mpt__file_read(user, file, to, bytes);
}

static size_t user_write(void *user, void *file, const void *from, size_t bytes) {
    return system_fails(IO_WRITE) ? bytes / 2 : mpt__file_write(user, file, from, bytes);
}

static bool user_seek(void *user, void *file, int64_t position) {
    return !system_fails(IO_SEEK) && mpt__file_seek(user, file, position);
}

static int64_t user_size(void *user, void *file) {
    return system_fails(IO_SIZE) ? -1 : mpt__file_size(user, file);
}

static bool user_flush(void *user, void *file) {
    return !system_fails(IO_FLUSH) && mpt__file_flush(user, file);
}

static bool user_close(void *user, void *file) {
    const bool fails = system_fails(IO_CLOSE);
    const int code = errno;
    const bool closed = mpt__file_close(user, file);
    errno = code;
    return closed && !fails;
}

static bool user_commit(void *user, const char *temporary, const char *path) {
    return !system_fails(IO_COMMIT) && mpt__file_commit(user, temporary, path);
}

static bool user_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    return !system_fails(IO_LIST) && mpt__file_list(user, path, entry, to);
}

static mpt_context *context_with(bool callbacks) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    if (callbacks) {
        config.io.open = user_open, config.io.read = user_read, config.io.write = user_write;
        config.io.seek = user_seek, config.io.size = user_size, config.io.flush = user_flush;
        config.io.close = user_close, config.io.commit = user_commit, config.io.list = user_list;
        config.io.remove = mpt__file_remove;
    }
    return mpt_create(&config);
}

/* What a scenario gives, 0 for an error, which it leaves in the context. */
typedef uint64_t (*scenario)(mpt_context *context);

/* Each call of each kind fails with each errno: then there is an error that says so, or all is as
   if nothing had been. Returns how many calls were errors. */
static int every_call_fails_with(scenario run, bool callbacks) {
    mpt_context *context = context_with(callbacks);
    int errors = 0;
    system_arm(0, 0, 0, 0);
    const uint64_t right = run(context);
    system_disarm();
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK(right != 0);
    int calls[SYSTEM_CALLS];
    memcpy(calls, system_fault.calls, sizeof calls);
    const int first = callbacks ? IO_OPEN : 0, end_of = callbacks ? SYSTEM_CALLS : IO_OPEN;
    for (int call = first; call < end_of && test_failures == 0; call++)
        for (int at = 1; at <= calls[call]; at++)
            for (int k = 0; k < 2 * CODES; k++) {
                const int before = test_failures, code = codes[k / 2].code, onwards = k % 2;
                const char *text = codes[k / 2].text;
                if (callbacks && (code == 0 || code == 121)) text = "a callback of config.io";
                if (!callbacks && code == 0 && call != CALL_READ && call != CALL_WRITE) continue;
                if (!callbacks && code == EINTR && onwards) continue; /* tried for ever */
                if (code == ENOENT && call == CALL_READDIR) continue;
                system_arm(call, at, code, onwards);
                const uint64_t got = run(context);
                system_disarm();
                if (got == 0 && system_fault.failed > 0) {
                    errors++;
                    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_IO);
                    CHECK_CONTAINS(mpt_error(context), text);
                    /* pictures are named from their class on */
                    CHECK(strstr(mpt_error(context), root) || strstr(mpt_error(context), ".bmp"));
                } else {
                    CHECK(got == right);
                    CHECK_EQ_STR(mpt_error(context), "");
                }
                mpt_clear_error(context);
                if (test_failures > before)
                    printf("\n  %s number %d, errno %d%s: %llx: %s", system_call_names[call], at,
                           code, onwards ? " and onwards" : "", (unsigned long long)got,
                           mpt_error(context));
            }
    mpt_destroy(context);
    return errors;
}

static int every_call_fails(scenario run) {
    const int of_system = every_call_fails_with(run, false);
    return of_system + (test_failures ? 0 : every_call_fails_with(run, true));
}

static uint64_t hash_dataset(mpt_dataset data) {
    const bool classes = mpt_class_name(data, 0) != NULL;
    float x[64];
    int64_t y = 0;
    uint64_t hash = 1;
    for (int64_t i = 0; i < mpt_dataset_size(data); i++) {
        if (mpt_sample(data, i, x, classes ? &y : NULL) != MPT_OK) return 0;
        hash = mpt__hash_bytes(hash, x, 4) ^ (uint64_t)y << 40;
        const char *name = mpt_class_name(data, y);
        if (name) hash = mpt__hash_bytes(hash, name, strlen(name));
    }
    return mpt_failed(data.context) ? 0 : hash;
}

static uint64_t hash_and_end(mpt_dataset data) {
    const uint64_t hash = data.slot ? hash_dataset(data) : 0;
    if (data.slot && hash) mpt_dataset_destroy(data);
    return hash;
}

/* Both names of each: taking the other one gives other samples. */
static void put_idx(const char *name, int rank, int value) {
    uint8_t bytes[16 + 784] = {0, 0, 8, (uint8_t)rank, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28};
    const size_t n = rank == 1 ? 9 : sizeof bytes;
    memset(bytes + (rank == 1 ? 8 : 16), value, rank == 1 ? 1 : 784);
    put_file_at(in_root(name), bytes, n);
}

static uint64_t read_mnist(mpt_context *context) {
    static float x[784];
    int64_t y = -1;
    mpt_dataset data = mpt_mnist(context, root, MPT_TRAIN);
    if (!data.slot || mpt_sample(data, 0, x, &y) != MPT_OK) return 0;
    mpt_dataset_destroy(data);
    return 1 + (uint64_t)(x[5] * 255.0f + 0.5f) * 16 + (uint64_t)y;
}

TEST(other_names_are_for_files_that_are_not_there) {
    REQUIRE(begin("mnist"));
    put_idx("train-images-idx3-ubyte", 3, 7), put_idx("train-images.idx3-ubyte", 3, 9);
    put_idx("train-labels-idx1-ubyte", 1, 1), put_idx("train-labels.idx1-ubyte", 1, 2);
    /* ENOENT of an open is absence: the test of that is another name's being found. */
    mpt_context *context = make_context();
    CHECK_EQ_INT(read_mnist(context), 1 + 7 * 16 + 1);
    system_arm(CALL_OPEN, 1, ENOENT, 0);
    CHECK_EQ_INT(read_mnist(context), 1 + 9 * 16 + 1);
    for (int k = 1; k < 6; k++) {
        for (int at = 1; at <= 4; at++) {
            system_arm(CALL_OPEN, at, codes[k].code, 0);
            CHECK_EQ_INT(read_mnist(context), 0);
            CHECK_CONTAINS(mpt_error(context), codes[k].text);
            mpt_clear_error(context);
        }
    }
    system_arm(CALL_OPEN, 1, EINTR, 0);
    CHECK_EQ_INT(read_mnist(context), 1 + 7 * 16 + 1);
    system_disarm();
    end(context);
}

static uint64_t read_npy(mpt_context *context) {
    return hash_and_end(mpt_npy(context, in_root("x.npy"), in_root("x.npy")));
}

static uint64_t read_csv(mpt_context *context) {
    return hash_and_end(mpt_csv(context, in_root("x.csv"), NULL));
}

static uint64_t read_tokens(mpt_context *context) {
    mpt_window_config config = mpt_window_config_default();
    config.block = 2;
    mpt_dataset data = mpt_token_file(context, in_root("x.csv"), 2, &config);
    int64_t x[2], y[2];
    if (!data.slot || mpt_sample_into(data, 0, x, sizeof x, y, sizeof y, NULL) != MPT_OK) return 0;
    mpt_dataset_destroy(data);
    return (uint64_t)y[0] + 1;
}

static uint64_t read_raw(mpt_context *context) {
    mpt_raw_config config = mpt_raw_config_default();
    const char *path = in_root("x.npy");
    config.inputs = path;
    return hash_and_end(mpt_raw_files(context, &config));
}

static uint64_t read_text(mpt_context *context) {
    mpt_tokenizer made = mpt_char_tokenizer(context, in_root("x.csv"));
    const uint64_t size = made.slot ? (uint64_t)mpt_vocabulary_size(made) : 0;
    if (made.slot) mpt_tokenizer_destroy(made);
    return size;
}

static uint64_t read_weights(mpt_context *context) {
    mpt_module net = mpt_nn_linear(context, 3, 2);
    uint64_t hash = mpt_load(net, in_root("net"), NULL, NULL) == MPT_OK ? mpt_module_hash(net) : 0;
    if (hash) mpt_module_destroy(net);
    return hash;
}

TEST(reading_tells_why_not) {
    static const scenario rows[] = {read_npy, read_csv,  read_tokens,
                                    read_raw, read_text, read_weights};
    static const char npy[] = "\x93NUMPY\x01\x00\x40\x00{'descr': '<f4', 'fortran_order': False, "
                              "'shape': (2,), }      \n\0\0\x80?\0\0\0@";
    REQUIRE(begin("reading"));
    mpt_context *context = make_context();
    put_file_at(in_root("x.npy"), npy, sizeof npy - 1);
    put_file_at(in_root("x.csv"), "a,b\n1,2\n3,4\n", 12);
    CHECK_EQ_INT(mpt_save(net_of(context, 1.0f), in_root("net")), MPT_OK);
    for (size_t i = 0; i < sizeof rows / sizeof *rows && test_failures == 0; i++)
        CHECK(every_call_fails(rows[i]) > 20);
    end(context);
}

/* Old or new, whole, of its mode, and nothing beside it. */
static uint64_t save_over(mpt_context *context) {
    mpt_context *other = make_context();
    const bool armed = system_fault.armed;
    system_fault.armed = 0;
    const char *path = in_root("net");
    mpt_module old = net_of(other, 1.0f), fresh = net_of(context, 2.0f);
    unlink(path);
    CHECK_EQ_INT(mpt_save(old, path), MPT_OK);
    chmod(path, 0640);
    system_fault.armed = armed;
    const mpt_status status = mpt_save(fresh, path);
    system_fault.armed = 0;
    const float value = saved_value(other, path);
    CHECK(value == 2.0f || (value == 1.0f && status != MPT_OK));
    const int call = system_fault.call; /* where the mode cannot be known or set it is private */
    const bool absent = call == CALL_STAT && system_fault.code == ENOENT;
    CHECK(mode_of(path) == 0640 || absent ||
          (mode_of(path) == 0600 && (call == CALL_FCHMOD || call == CALL_FSTAT)));
    if (system_fault.call != CALL_UNLINK) CHECK_EQ_INT(names_in(root, ".mptrain-"), 0);
    CHECK_EQ_STR(mpt_error(other), "");
    mpt_destroy(other);
    return status == MPT_OK;
}

TEST(saving_is_whole_or_an_error) {
    REQUIRE(begin("saving"));
    CHECK(every_call_fails(save_over) > 50);
    end(NULL);
}

/* Whom a file cannot be given to gets no rights by it. */
TEST(rights_are_not_lent) {
    static const struct {
        int mode, owner_fails, group_fails, want;
    } rows[] = {{06755, 0, 0, 06755}, {06755, 1, 0, 0755}, {0664, 1, 0, 0664},  {0640, 1, 1, 0600},
                {0664, 1, 1, 0644},   {0604, 1, 1, 0600},  {02770, 1, 1, 0700}, {0666, 1, 1, 0666},
                {0664, 0, 1, 0644},   {02770, 0, 1, 0700}};
    struct stat old, now;
    REQUIRE(begin("rights"));
    const char *path = in_root("net");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unlink(path);
        put_file_at(path, "x", 1);
        REQUIRE(stat(path, &old) == 0);
        chmod(path, 0600);
        const int file = open(path, O_RDWR);
        old.st_mode = S_IFREG | (mode_t)rows[i].mode;
        if (rows[i].owner_fails) old.st_uid++;
        if (rows[i].group_fails) old.st_gid++;
        system_arm(CALL_FCHOWN, 1, EPERM, rows[i].group_fails);
        mpt__copy_rights(file, &old);
        system_disarm();
        close(file);
        CHECK_EQ_INT(mode_of(path), rows[i].want);
    }
    /* Root can give a file away: with its rights, or without those of an owner that stays. */
    for (int fails = 0; fails < 2 && geteuid() == 0; fails++) {
        const int file = open(path, O_RDWR);
        old.st_mode = S_IFREG | 06755, old.st_gid = 4321;
        old.st_uid = geteuid() + (uid_t)fails;
        system_arm(CALL_FCHOWN, fails, EPERM, 0);
        mpt__copy_rights(file, &old);
        system_disarm();
        CHECK(fstat(file, &now) == 0 && now.st_gid == 4321);
        CHECK_EQ_INT(mode_of(path), fails ? 0755 : 06755);
        CHECK_EQ_INT(fchown(file, geteuid(), getegid()), 0);
        close(file);
    }
    end(NULL);
}

/* Failures that are none: of a folder that cannot be synced, and of a stat of 32 bits, which knows
   that there is a large file. */
TEST(saving_goes_on) {
    static const struct {
        int call, at, code;
    } rows[] = {{CALL_FSYNC, 3, EINVAL}, {CALL_STAT, 1, EOVERFLOW}};
    mpt_context *context = make_context();
    REQUIRE(begin("goes_on"));
    const char *path = in_root("net");
    for (int i = 0; i < 4; i++) {
        mpt_module net = net_of(context, (float)i);
        system_arm(rows[i % 2].call, rows[i % 2].at, rows[i % 2].code, i % 2);
        CHECK_EQ_INT(mpt_save(net, path), MPT_OK);
        CHECK(system_fault.failed > 0);
        system_disarm();
        CHECK_SAVED(path, (float)i);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    end(context);
}

#ifdef MPTRAIN_STB_IMAGE
static uint64_t read_folder(mpt_context *context) {
    return hash_and_end(mpt_image_folder(context, in_root("pictures"), NULL));
}

static void put_picture(const char *name, int value) {
    uint8_t bmp[58] = {'B', 'M', 58, 0, 0, 0, 0, 0, 0, 0, 54, 0, 0, 0,  40,
                       0,   0,   0,  1, 0, 0, 0, 1, 0, 0, 0,  1, 0, 24, 0};
    memset(bmp + 54, value, 3);
    put_file_at(in_root(name), bmp, sizeof bmp);
}

TEST(classes_do_not_vanish) {
    REQUIRE(begin("folder"));
    mpt_context *context = make_context();
    mkdir(in_root("pictures"), 0755);
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "pictures/%c", 'a' + i);
        mkdir(in_root(name), 0755);
        snprintf(name, sizeof name, "pictures/%c/x.bmp", 'a' + i);
        put_picture(name, 50 * i + 20);
    }
    put_picture("pictures/c/y.bmp", 200);
    put_file_at(in_root("pictures/notes.txt"), "no class", 8);
    mkdir(in_root("pictures/.hidden"), 0);
    CHECK(every_call_fails(read_folder) > 100);

    /* What is there and leads nowhere is named, among classes and among pictures. */
    REQUIRE(symlink("unmounted", in_root("pictures/b2")) == 0);
    CHECK_EQ_INT(mpt_image_folder(context, in_root("pictures"), NULL).slot, 0);
    CHECK_CONTAINS(mpt_error(context), "pictures/b2: no such file or directory");
    mpt_clear_error(context);
    unlink(in_root("pictures/b2"));
    REQUIRE(symlink("gone.bmp", in_root("pictures/b/y.bmp")) == 0);
    mpt_dataset data = mpt_image_folder(context, in_root("pictures"), NULL);
    CHECK_EQ_INT(mpt_dataset_size(data), 5);
    CHECK_EQ_INT(hash_dataset(data), 0);
    CHECK_CONTAINS(mpt_error(context), "pictures/b/y.bmp: no such file or directory");
    mpt_clear_error(context);
    end(context);
}
#endif
#endif
#endif

/* ==== Callbacks that look for one of several names ==== */

/* Fails, with the errno that `user` points to unless it is 0. */
static void *failing_open(void *user, const char *path, char mode) {
    (void)path, (void)mode;
    if (*(int *)user) errno = *(int *)user;
    return NULL;
}

TEST(callbacks_may_set_errno) {
    static const struct {
        int code;
        const char *text;
    } rows[] = {{0, "d has no train-images-idx3-ubyte.gz"},
                {ENOENT, "d has no train-images-idx3-ubyte.gz"},
                {EIO, "cannot open d/train-images-idx3-ubyte: "},
                {ENOMEM, "cannot open d/train-images-idx3-ubyte: "}};
    int code = 0;
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.io.open = failing_open, config.io.user = &code;
    mpt_context *context = mpt_create(&config);
    NEEDS_FILES;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        code = rows[i].code;
        CHECK_EQ_INT(mpt_mnist(context, "d", MPT_TRAIN).slot, 0);
        EXPECT(MPT_ERROR_IO, rows[i].text);
    }
    mpt_destroy(context);
}

/* The ready-made log: whole lines, the level in front, however long. The last test, since stderr
   stays where it is. */
TEST(log_on_stderr) {
    const char *path = test_tmp_path("log.txt");
    char text[4096] = "", large[3000];
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    CHECK(freopen(path, "wb", stderr) != NULL);
    mpt_config config = mpt_config_default();
    config.log.write = mpt_log_stderr;
    mpt_context *c = mpt_create(&config);
    mpt_ones(c, MPT_F32, MPT_SHAPE(-1));
    config.log.write(NULL, MPT_LOG_WARNING, "careful");
    config.log.write(NULL, MPT_LOG_INFO, large);
    fflush(stderr);
    FILE *file = fopen(path, "rb");
    if (file) text[fread(text, 1, sizeof text - 1, file)] = '\0';
    CHECK_CONTAINS(text, "mptrain: error: mpt_ones (call ");
    CHECK_CONTAINS(text, "\nmptrain: warning: careful\nmptrain: info: xxx");
    CHECK(strlen(text) > 1100 && strlen(text) < 1400 && text[strlen(text) - 1] == '\n');
    if (file) fclose(file);
    mpt_destroy(c);
}

TEST_TABLE = {
#ifdef HAVE_UNIX
    T(saving_keeps_the_mode),
    T(temporary_files_are_private),
    T(saving_follows_links),
    T(names_with_backslashes),
    T(folders_and_long_paths),
    T(leftovers_of_killed_processes_go),
#ifdef HAVE_FAULTY_SYSTEM
    T(other_names_are_for_files_that_are_not_there),
    T(reading_tells_why_not),
    T(saving_is_whole_or_an_error),
    T(rights_are_not_lent),
    T(saving_goes_on),
#ifdef MPTRAIN_STB_IMAGE
    T(classes_do_not_vanish),
#endif
#endif
#endif
    T(callbacks_may_set_errno),
    T(log_on_stderr)};
TEST_MAIN
