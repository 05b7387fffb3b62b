/* torture_resumes.c: trainings of drawn settings are killed in the middle of an epoch or of an
   accumulation, some behind a micro-batch that overflowed, and gone on with by new processes that
   have other numbers of threads and workers. Each ends with the bits of one that was never
   stopped. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#include "trainings.h"

enum { STEPS = 32, MOST_WORKERS = 3, MOST_THREADS = 6 };
enum { RUNS, MID_EPOCH, MID_ACCUMULATION, OVERFLOWS, CAPTURED_STEPS, SKIPPED };

static const int thread_counts[MOST_THREADS] = {1, 2, 3, 4, 7, 16};
static const int worker_counts[MOST_WORKERS] = {0, 1, 4};

static plan how;
static int stop;
static const char *path;

static void tell(const char *what) {
    printf("%s: %s, %s, width %d, accumulate %d, %scaptured, overflow at %d, stopped at %d, "
           "%d threads, %d workers\n",
           what, precision_names[how.precision], optimizer_names[how.optimizer], how.width,
           how.accumulate, how.captured ? "" : "not ", how.overflow, stop, how.threads,
           how.workers);
}

/* Case n; the first ones go through all precisions, captured or not, with and without overflow. */
static void make_plan(long n) {
    static const int widths[3] = {16, 100, 1000};
    uint64_t state = case_seed(n);
    memset(&how, 0, sizeof how);
    how.precision = (int)(n % PRECISIONS), how.captured = n / PRECISIONS % 2 == 1;
    how.accumulate = n / (PRECISIONS * 2) % 2 ? 4 : 1;
    how.optimizer = (int)((n + draw_below(&state, 2)) % OPTIMIZERS);
    how.width = widths[draw_below(&state, 3)];
    how.averaged = draw_below(&state, 2) == 0, how.scheduled = draw_below(&state, 2) == 0;
    how.threads = thread_counts[draw_below(&state, MOST_THREADS)];
    how.workers = worker_counts[draw_below(&state, MOST_WORKERS)];
    how.seed = draw(&state);
    stop = 2 + (int)draw_below(&state, STEPS - 4);
    how.overflow = -1;
    if (how.accumulate == 4) { /* not between two updates, and behind the overflow */
        stop = stop / 4 * 4 + 1 + (int)draw_below(&state, 3);
        how.overflow = stop / 4 * 4 + (int)draw_below(&state, stop % 4);
    } else if (draw_below(&state, 2) == 0) {
        how.overflow = (int)draw_below(&state, STEPS - 4);
    }
}

/* Never stopped. */
static void run_whole(long n) {
    (void)n;
    training t = begin_training(&how);
    run_training(&t, 0, STEPS);
    counts->hashes[0] = mpt_state_hash(t.context);
    EXPECT_THAT(counts->hashes[0] != 0, "%s", mpt_error(t.context));
    const int64_t skipped = mpt_scaler_statistics(t.scaler).skipped;
    EXPECT_THAT(how.overflow < 0 || skipped > 0, "the overflow was no overflow");
    counts->figures[SKIPPED] += (long)skipped;
    end_training(&t);
}

/* Saves in the middle, and goes on until it is killed. */
static void run_part(long n) {
    (void)n;
    training t = begin_training(&how);
    run_training(&t, 0, stop);
    EXPECT_THAT(mpt_checkpoint_save(t.context, path) == MPT_OK, "%s", mpt_error(t.context));
    counts->hashes[1] = mpt_state_hash(t.context);
    counts->phase = 1;
    run_training(&t, stop, STEPS);
    counts->phase = 2;
    pause();
}

/* Goes on from the file, some of them with objects that have trained already. */
static void run_rest(long used) {
    training t = begin_training(&how);
    if (used) {
        const int overflow = t.how.overflow;
        t.how.overflow = -1;
        run_training(&t, 0, 4 * (1 + (int)used));
        t.how.overflow = overflow;
    }
    EXPECT_THAT(mpt_checkpoint_load(t.context, path) == MPT_OK, "%s", mpt_error(t.context));
    EXPECT_THAT(mpt_state_hash(t.context) == counts->hashes[1], "another state than was saved");
    run_training(&t, stop, STEPS);
    counts->hashes[2] = mpt_state_hash(t.context);
    if (how.captured) counts->figures[CAPTURED_STEPS] += (long)mpt_captured_count(t.captured);
    end_training(&t);
}

static bool ended_well(int status, const char *what) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
    counts->crashes++;
    tell(what);
    return false;
}

static void kill_in_the_middle(uint64_t *state) {
    struct timespec little = {0, 100000};
    int status = 0;
    counts->phase = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        run_part(0);
        _exit(0);
    }
    for (int i = 0; counts->phase == 0 && i < 600000; i++) {
        nanosleep(&little, NULL);
        if (waitpid(child, &status, WNOHANG) == child) break;
    }
    little.tv_nsec = draw_below(state, 3000000);
    nanosleep(&little, NULL);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (counts->phase == 0) {
        counts->crashes++;
        tell("never saved");
    }
}

static void one_resume(long n) {
    uint64_t state = case_seed(-1 - n);
    make_plan(n);
    unlink(path);
    if (!ended_well(torture_child(run_whole, 0, 120), "the whole run ended badly")) return;
    kill_in_the_middle(&state);
    for (int i = 0; i < MOST_THREADS; i++) {
        how.threads = thread_counts[i];
        how.workers = worker_counts[draw_below(&state, MOST_WORKERS)];
        counts->hashes[2] = 0;
        if (!ended_well(torture_child(run_rest, i % 3, 120), "the resumed run ended badly"))
            continue;
        counts->figures[RUNS]++;
        if (counts->hashes[2] == counts->hashes[0]) continue;
        torture_failed(__LINE__, "case %ld ends with other bits", n);
        tell("it is");
    }
    counts->figures[MID_EPOCH] += stop % ((SAMPLES + BATCH - 1) / BATCH) != 0;
    counts->figures[MID_ACCUMULATION] += how.accumulate > 1;
    counts->figures[OVERFLOWS] += how.overflow >= 0;
}

int main(int argc, char **argv) {
    torture_arguments(argc, argv, 60);
    torture_begin();
    folder_begin("resumes");
    path = in_folder("net");
    for (long n = 0; n < options.cases; n++) one_resume(n);
    folder_end();
#ifndef MPTRAIN_NO_GRAPH
    if (options.cases >= 10)
        EXPECT_THAT(counts->figures[CAPTURED_STEPS] > 0, "no step was captured");
#endif
    return torture_end("resumes", options.cases,
                       "%ld resumed runs of %d thread counts, %ld stopped mid-epoch, %ld "
                       "mid-accumulation, %ld with an overflow, %ld captured steps",
                       counts->figures[RUNS], MOST_THREADS, counts->figures[MID_EPOCH],
                       counts->figures[MID_ACCUMULATION], counts->figures[OVERFLOWS],
                       counts->figures[CAPTURED_STEPS]);
}
