/* torture_kills.c: processes that train and save in a loop are killed at random moments, most of
   them while they save. The file is always whole, nothing is left beside it after the next save,
   and who goes on from it ends with the bits of a training that was never stopped. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#include "trainings.h"

enum { STEPS = 40, SAVES = 0, DURING, EARLY, RESUMED, LEFT, SAVE_NS, START };

static plan how;
static const char *path;

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The plan of a kill; the folder's file is of a training of this kind. */
static void make_plan(uint64_t *state) {
    static const int widths[3] = {16, 200, 3000};
    memset(&how, 0, sizeof how);
    how.precision = (int)draw_below(state, PRECISIONS);
    how.optimizer = (int)draw_below(state, OPTIMIZERS);
    how.width = widths[draw_below(state, 3)];
    how.accumulate = draw_below(state, 2) ? 1 : 4;
    how.threads = 1, how.overflow = -1, how.averaged = draw_below(state, 2) == 0;
    how.seed = options.seed;
}

/* Trains from the file, where there is one, and saves after each step, until it is killed. */
static void train_and_save(long n) {
    (void)n;
    training t = begin_training(&how);
    int done = 0;
    if (access(path, F_OK) == 0) {
        EXPECT_THAT(mpt_checkpoint_load(t.context, path) == MPT_OK, "%s", mpt_error(t.context));
        done = (int)mpt_step_number(t.context);
    }
    for (; done < STEPS; done++) {
        run_training(&t, done, done + 1);
        const double start = seconds_now();
        counts->phase = 1;
        EXPECT_THAT(mpt_checkpoint_save(t.context, path) == MPT_OK, "%s", mpt_error(t.context));
        counts->phase = 0;
        counts->figures[SAVE_NS] = (long)(1e9 * (seconds_now() - start));
        counts->figures[SAVES]++;
        counts->place++;
    }
    counts->phase = 2;
    pause(); /* for the signal, which comes in any case */
}

/* Waits until the child is in a save of the number wanted, then a part of a save's time. */
static void wait_for_save(uint64_t *state) {
    const int wanted = (int)draw_below(state, 6);
    const double patience = seconds_now() + 20;
    struct timespec little = {0, 20000};
    if (draw_below(state, 8) == 0) { /* anywhere, also before the first save */
        little.tv_nsec = (long)draw_below(state, 20000000);
        nanosleep(&little, NULL);
        return;
    }
    while (counts->phase != 2 && !(counts->place >= wanted && counts->phase == 1) &&
           seconds_now() < patience)
        nanosleep(&little, NULL);
    const long save = counts->figures[SAVE_NS] > 0 ? counts->figures[SAVE_NS] : 2000000;
    const double until = seconds_now() + 1e-9 * (double)draw_below(state, save + save / 4);
    while (seconds_now() < until) continue;
}

/* What the killed process left: goes on from it to the end, in this process, which is a new one. */
static void check_what_is_left(long n) {
    training whole = begin_training(&how), t = begin_training(&how);
    run_training(&whole, 0, STEPS);
    if (access(path, F_OK) != 0) {
        EXPECT_THAT(counts->place == 0 && n == 0, "%d saves were whole and there is no file",
                    counts->place);
        counts->figures[EARLY]++;
    } else if (mpt_checkpoint_load(t.context, path) != MPT_OK) {
        torture_failed(__LINE__, "the file is not whole: %s", mpt_error(t.context));
    } else {
        counts->figures[RESUMED]++;
    }
    const int done = (int)mpt_step_number(t.context);
    const int saved = (int)counts->figures[START] + counts->place;
    EXPECT_THAT(done == saved || done == saved + 1, "step %d is in the file, %d was saved", done,
                saved);
    counts->figures[START] = done;
    EXPECT_THAT(mpt_checkpoint_save(t.context, path) == MPT_OK, "%s", mpt_error(t.context));
    EXPECT_THAT(files_named("") == 1, "%d files after the next save", files_named(""));
    run_training(&t, done, STEPS);
    EXPECT_THAT(mpt_state_hash(t.context) == mpt_state_hash(whole.context),
                "%s, %s: other bits from step %d", precision_names[how.precision],
                optimizer_names[how.optimizer], done);
    end_training(&t);
    end_training(&whole);
}

/* One process is killed and another one goes on, and is killed in turn. */
static void one_kill(long n, uint64_t *state, bool resumes) {
    int status = 0;
    counts->phase = counts->place = 0;
    counts->figures[SAVE_NS] = 0;
    if (!resumes) counts->figures[START] = 0;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        train_and_save(n);
        _exit(0);
    }
    wait_for_save(state);
    if (counts->phase == 1) counts->figures[DURING]++;
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) counts->crashes++;
    counts->figures[LEFT] += files_named(".mptrain-") > 0;
    status = torture_child(check_what_is_left, resumes, 120);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) counts->crashes++;
}

int main(int argc, char **argv) {
    torture_arguments(argc, argv, 200);
    torture_begin();
    folder_begin("kills");
    path = in_folder("net");
    uint64_t state = case_seed(0);
    for (long n = 0; n < options.cases; n++) {
        if (n % 5 == 0) {
            unlink(path);
            make_plan(&state);
        }
        one_kill(n, &state, n % 5 != 0);
    }
    folder_end();
    EXPECT_THAT(counts->figures[DURING] * 2 > options.cases, "too few kills during a save");
    return torture_end("kills", options.cases,
                       "%ld while saving, %ld left a temporary file, %ld resumed, %ld before the "
                       "first save, %ld whole saves",
                       counts->figures[DURING], counts->figures[LEFT], counts->figures[RESUMED],
                       counts->figures[EARLY], counts->figures[SAVES]);
}
