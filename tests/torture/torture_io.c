/* torture_io.c: every call for a file fails, by errno or by moving half, once or from there on:
   those of config.io and, under the functions that are built in, those of the system. Saving leaves
   the old file or the new one, whole, and nothing beside it; loading leaves the training as it was;
   an error has the code, the file and the reason. What can be done again ends as if nothing had
   been. Built with sanitizers. */
#include "../faulty_system.h"

#include "torture.h"

#include MPTRAIN_HEADER_FILE

#ifndef HAVE_FAULTY_SYSTEM
int main(void) {
    printf("io: skipped: it stands in front of the C library of 64-bit Linux\n");
    return 0;
}
#else

#include "packed.h"
#include "trainings.h"

enum { CASES, ERRORS, UNHARMED, SCENARIOS_RUN };

/* ==== Files by callbacks ==== */

static int number_of(void *file) { return (int)((intptr_t)file - 1); }

static void *user_open(void *user, const char *path, char mode) {
    (void)user;
    if (system_fails(IO_OPEN)) return NULL;
    const int file = open(path, mode == 'w' ? O_WRONLY | O_CREAT | O_TRUNC : O_RDONLY, 0666);
    return file < 0 ? NULL : (void *)((intptr_t)file + 1);
}

/* A read or write that fails moves half, or nothing where there is a reason. */
static size_t moved(int call, size_t bytes) {
    return !system_fails(call) ? bytes : system_fault.code ? 0 : bytes / 2;
}

static size_t user_read(void *user, void *file, void *to, size_t bytes) {
    (void)user;
    const size_t wanted = moved(IO_READ, bytes);
    const int code = errno;
    size_t n = 0;
    for (ssize_t part; n < wanted; n += (size_t)part)
        if ((part = read(number_of(file), (char *)to + n, wanted - n)) <= 0) break;
    errno = code;
    return n;
}

static size_t user_write(void *user, void *file, const void *from, size_t bytes) {
    (void)user;
    const size_t wanted = moved(IO_WRITE, bytes);
    const int code = errno;
    const ssize_t n = write(number_of(file), from, wanted);
    errno = code;
    return n < 0 ? 0 : (size_t)n;
}

static bool user_seek(void *user, void *file, int64_t position) {
    (void)user;
    return !system_fails(IO_SEEK) && lseek(number_of(file), position, SEEK_SET) == position;
}

static int64_t user_size(void *user, void *file) {
    struct stat found;
    (void)user;
    if (system_fails(IO_SIZE)) return -1;
    return fstat(number_of(file), &found) == 0 ? (int64_t)found.st_size : -1;
}

static bool user_flush(void *user, void *file) {
    (void)user;
    return !system_fails(IO_FLUSH) && fsync(number_of(file)) == 0;
}

static bool user_close(void *user, void *file) {
    (void)user;
    const bool fails = system_fails(IO_CLOSE);
    const int code = errno;
    const bool closed = close(number_of(file)) == 0;
    errno = code;
    return closed && !fails;
}

static bool user_commit(void *user, const char *temporary, const char *path) {
    (void)user;
    return !system_fails(IO_COMMIT) && rename(temporary, path) == 0;
}

static bool user_remove(void *user, const char *path) {
    (void)user;
    return !system_fails(IO_REMOVE) && unlink(path) == 0;
}

static bool user_list(void *user, const char *path, mpt_list_entry entry, void *to) {
    (void)user;
    DIR *const directory = system_fails(IO_LIST) ? NULL : opendir(path);
    if (!directory) return false;
    for (const struct dirent *item; (item = readdir(directory)) != NULL;)
        if (item->d_name[0] != '.') entry(to, item->d_name, strchr(item->d_name, '.') == NULL);
    closedir(directory);
    return true;
}

static mpt_config config_with(bool callbacks) {
    mpt_config config = mpt_config_default();
    config.threads = 1, config.device = MPT_DEVICE_CPU, config.seed = 3;
    if (!callbacks) return config;
    config.io.open = user_open, config.io.read = user_read, config.io.write = user_write;
    config.io.seek = user_seek, config.io.size = user_size, config.io.flush = user_flush;
    config.io.close = user_close, config.io.commit = user_commit, config.io.list = user_list;
    config.io.remove = user_remove;
    return config;
}

/* ==== What is done under faults: a hash, or 0 with an error in the context ==== */

static uint8_t bytes_after[1 << 16];
static training the_training;

static uint64_t hash_of(const void *bytes, size_t n) {
    uint64_t hash = n;
    for (size_t i = 0; i < n; i++) hash = mixed(hash ^ ((const uint8_t *)bytes)[i]);
    return hash | 1;
}

/* After a save over an old file: what lies there now. */
static uint64_t after_save(mpt_context *c, const char *name) {
    static const char old[] = "the old file";
    const bool armed = system_fault.armed;
    system_fault.armed = 0;
    const size_t n = read_whole(in_folder(name), bytes_after, sizeof bytes_after);
    const bool is_old = n == sizeof old && memcmp(bytes_after, old, n) == 0;
    const int call = system_fault.call;
    /* What is behind the rename may be done although its fsync was an error. */
    if (mpt_failed(c) && !is_old)
        EXPECT_THAT(call == CALL_OPEN || call == CALL_FSYNC || call == CALL_CLOSE,
                    "the old file is gone");
    EXPECT_THAT(mpt_failed(c) || !is_old, "nothing was saved");
    if (call != CALL_UNLINK && call != IO_REMOVE)
        EXPECT_THAT(files_named(".mptrain-") == 0, "there are files left");
    const uint64_t hash = is_old ? 0 : hash_of(bytes_after, n);
    for (int i = 0; files_named(".mptrain-") > 0 && i < 20; i++) {
        DIR *const directory = opendir(torture_folder);
        for (const struct dirent *item; directory && (item = readdir(directory)) != NULL;)
            if (strncmp(item->d_name, ".mptrain-", 9) == 0) unlink(in_folder(item->d_name));
        if (directory) closedir(directory);
    }
    write_whole(in_folder(name), old, sizeof old);
    system_fault.armed = armed;
    return hash;
}

static uint64_t save_checkpoint(mpt_context *c) {
    mpt_checkpoint_save(c, in_folder("saved"));
    return after_save(c, "saved");
}

static uint64_t save_weights(mpt_context *c) {
    mpt_save(the_training.net, in_folder("saved"));
    return after_save(c, "saved");
}

static mpt_dataset the_table;
static uint64_t save_table(mpt_context *c) {
    mpt_table_save(the_table, in_folder("saved"));
    return after_save(c, "saved");
}

static uint64_t load_checkpoint(mpt_context *c) {
    if (mpt_checkpoint_load(c, in_folder("checkpoint")) != MPT_OK) return 0;
    const uint64_t hash = mpt_state_hash(c);
    run_training(&the_training, 3, 4); /* the next one has something to bring back */
    mpt_zero_grad(the_training.optimizer);
    return hash;
}

static uint64_t load_weights(mpt_context *c) {
    (void)c;
    const bool good = mpt_load(the_training.net, in_folder("weights"), NULL, NULL) == MPT_OK;
    return good ? mpt_module_hash(the_training.net) : 0;
}

static uint64_t of_dataset(mpt_dataset data) {
    static float room[1 << 14];
    mpt_sample_sizes sizes;
    uint64_t hash = 1;
    if (!data.slot) return 0;
    memset(&sizes, 0, sizeof sizes);
    memset(room, 0, sizeof room);
    mpt_sample_into(data, 0, NULL, 0, NULL, 0, &sizes);
    const size_t behind = (sizes.bytes + 15) / 16 * 16;
    for (int64_t i = 0; i < mpt_dataset_size(data); i++) {
        mpt_sample_into(data, i, room, sizes.bytes, room + behind / 4, sizes.target_bytes, NULL);
        hash = mixed(hash ^ hash_of(room, behind + sizes.target_bytes));
    }
    const bool failed = mpt_failed(data.context);
    if (!failed) mpt_dataset_destroy(data);
    return failed ? 0 : hash | 1;
}

static uint64_t read_idx(mpt_context *c) {
    return of_dataset(mpt_idx(c, in_folder("images.gz"), in_folder("labels")));
}

static uint64_t read_npz(mpt_context *c) {
    return of_dataset(mpt_npz(c, in_folder("arrays.npz"), "x", "y"));
}

static uint64_t read_csv(mpt_context *c) {
    return of_dataset(mpt_csv(c, in_folder("table.csv"), NULL));
}

static uint64_t read_tokens(mpt_context *c) {
    mpt_window_config config = mpt_window_config_default();
    config.block = 4;
    return of_dataset(mpt_token_file(c, in_folder("labels"), 2, &config));
}

static uint64_t read_raw(mpt_context *c) {
    mpt_raw_config config = mpt_raw_config_default();
    config.inputs = in_folder("labels"), config.offset = 2;
    return of_dataset(mpt_raw_files(c, &config));
}

static uint64_t read_characters(mpt_context *c) {
    mpt_tokenizer made = mpt_char_tokenizer(c, in_folder("table.csv"));
    const uint64_t size = made.slot ? (uint64_t)mpt_vocabulary_size(made) : 0;
    if (made.slot) mpt_tokenizer_destroy(made);
    return size;
}

#ifdef MPTRAIN_STB_IMAGE
static uint64_t read_pictures(mpt_context *c) {
    return of_dataset(mpt_image_folder(c, in_folder("pictures"), NULL));
}
#endif

static const struct {
    const char *name;
    uint64_t (*run)(mpt_context *c);
} scenarios[] = {
    {"checkpoint saved", save_checkpoint},
    {"weights saved", save_weights},
    {"table saved", save_table},
    {"checkpoint loaded", load_checkpoint},
    {"weights loaded", load_weights},
    {"idx", read_idx},
    {"npz", read_npz},
    {"csv", read_csv},
    {"tokens", read_tokens},
    {"raw", read_raw},
    {"characters", read_characters},
#ifdef MPTRAIN_STB_IMAGE
    {"pictures", read_pictures},
#endif
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* ==== Faults ==== */

static const struct {
    int code;
    const char *name, *text;
} codes[] = {{EIO, "EIO", "input or output error"},
             {ENOSPC, "ENOSPC", "no space left on the device"},
             {EINTR, "EINTR", "interrupted by a signal"},
             {EMFILE, "EMFILE", "too many open files"},
             {0, "half", ""}};
enum { CODES = sizeof codes / sizeof *codes };

/* One fault. State of a training is what it was, where it was not loaded. */
static void one_fault(int scenario, mpt_context *c, bool callbacks, int call, int at, int k,
                      uint64_t right) {
    const bool onwards = k % 2 == 1;
    const int code = codes[k / 2].code;
    const long before = counts->failures;
    const uint64_t state = mpt_state_hash(c);
    system_arm(call, at, code, onwards);
    const uint64_t got = scenarios[scenario].run(c);
    system_disarm();
    char said[700];
    snprintf(said, sizeof said, "%s", mpt_error(c));
    counts->figures[CASES]++;
    EXPECT_THAT(system_fault.failed > 0, "the call was not reached");
    if (mpt_failed(c)) {
        counts->figures[ERRORS]++;
        EXPECT_THAT(mpt_error_code(c) == MPT_ERROR_IO, "the code is not MPT_ERROR_IO");
        EXPECT_THAT(strstr(said, codes[k / 2].text) != NULL, "the reason is not told");
        EXPECT_THAT(strstr(said, torture_folder) || strstr(said, ".bmp"), "no file is named");
        mpt_clear_error(c);
        EXPECT_THAT(mpt_state_hash(c) == state, "the training has changed");
    } else {
        counts->figures[UNHARMED]++;
        EXPECT_THAT(got == right, "neither an error nor the right result");
    }
    if (counts->failures > before && before < 20)
        printf("%s, %s: %s number %d, %s%s: %s\n", scenarios[scenario].name,
               callbacks ? "callbacks" : "built in", system_call_names[call], at, codes[k / 2].name,
               onwards ? " and onwards" : "", said);
}

/* All faults of one scenario, over callbacks for odd n. */
static void one_scenario(long n) {
    const int scenario = (int)(n / 2);
    const bool callbacks = n % 2 == 1;
    const mpt_config config = config_with(callbacks);
    mpt_context *c = mpt_create(&config);
    plan how;
    memset(&how, 0, sizeof how);
    how.precision = FP16, how.optimizer = 2, how.threads = how.accumulate = 1, how.width = 4;
    how.overflow = -1, how.averaged = true;
    the_training = training_in(c, &how);
    run_training(&the_training, 0, 3);
    mpt_zero_grad(the_training.optimizer); /* mpt_clear_error drops them */
    the_table = mpt_csv(c, in_folder("table.csv"), NULL);
    system_arm(0, 0, 0, 0);
    const uint64_t right = scenarios[scenario].run(c);
    system_disarm();
    EXPECT_THAT(right != 0 && !mpt_failed(c), "%s: %s", scenarios[scenario].name, mpt_error(c));
    int calls[SYSTEM_CALLS];
    memcpy(calls, system_fault.calls, sizeof calls);
    for (int call = callbacks ? IO_OPEN : 0; call < (callbacks ? SYSTEM_CALLS : IO_OPEN); call++)
        for (int at = 1; at <= calls[call] && at <= options.cases; at++)
            for (int k = 0; k < 2 * CODES; k++) {
                const int code = codes[k / 2].code;
                const bool moves =
                    call == CALL_READ || call == CALL_WRITE || call == IO_READ || call == IO_WRITE;
                if (code == 0 && !moves) continue;
                if (code == EINTR && k % 2 == 1 && !callbacks) continue; /* it is tried for ever */
                one_fault(scenario, c, callbacks, call, at, k, right);
            }
    counts->figures[SCENARIOS_RUN]++;
    mpt_destroy(c);
}

static void make_files(void) {
    static const char csv[] = "size,colour,class\n1.5,red,yes\n2e3,green,no\n-7,red,yes\n";
    uint8_t labels[8 + 6] = {0, 0, 8, 1, 0, 0, 0, 6, 0, 1, 2, 0, 1, 2};
    write_whole(in_folder("images.gz"), idx_gz, sizeof idx_gz);
    write_whole(in_folder("labels"), labels, sizeof labels);
    write_whole(in_folder("arrays.npz"), npz, sizeof npz);
    write_whole(in_folder("table.csv"), csv, sizeof csv - 1);
    write_whole(in_folder("saved"), "the old file", sizeof "the old file");
#ifdef MPTRAIN_STB_IMAGE
    uint8_t bmp[58] = {'B', 'M', 58, 0, 0, 0, 0, 0, 0, 0, 54, 0, 0, 0,  40,
                       0,   0,   0,  1, 0, 0, 0, 1, 0, 0, 0,  1, 0, 24, 0};
    mkdir(in_folder("pictures"), 0755);
    mkdir(in_folder("pictures/a"), 0755), mkdir(in_folder("pictures/b"), 0755);
    write_whole(in_folder("pictures/a/x.bmp"), bmp, sizeof bmp);
    bmp[54] = 200;
    write_whole(in_folder("pictures/b/y.bmp"), bmp, sizeof bmp);
#endif
}

/* What is loaded later. */
static void make_saves(long n) {
    (void)n;
    const mpt_config config = config_with(false);
    plan how;
    memset(&how, 0, sizeof how);
    how.precision = FP16, how.optimizer = 2, how.threads = how.accumulate = 1, how.width = 4;
    how.overflow = -1, how.averaged = true;
    training t = training_in(mpt_create(&config), &how);
    run_training(&t, 0, 3);
    mpt_zero_grad(t.optimizer);
    mpt_checkpoint_save(t.context, in_folder("checkpoint"));
    mpt_save(t.net, in_folder("weights"));
    EXPECT_THAT(!mpt_failed(t.context), "%s", mpt_error(t.context));
    mpt_destroy(t.context);
}

int main(int argc, char **argv) {
    torture_arguments(argc, argv, 1000000); /* calls of one kind in one scenario, at most */
    torture_begin();
    folder_begin("io");
    make_files();
    counts->crashes += torture_child(make_saves, 0, 60) != 0;
    torture_cases(2 * SCENARIOS, 1, one_scenario);
#ifndef MPTRAIN_STB_IMAGE
    printf("skipped: pictures, which need stb_image.h\n");
#endif
    folder_end();
    return torture_end("io", counts->figures[CASES],
                       "%ld scenarios, %ld errors with code, file and reason, %ld without harm",
                       counts->figures[SCENARIOS_RUN], counts->figures[ERRORS],
                       counts->figures[UNHARMED]);
}
#endif
