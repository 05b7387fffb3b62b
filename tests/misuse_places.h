/* misuse_places.h: where the cases of test_misuse.c run: by themselves, inside inference mode, a
   recording, or the function of a captured step. A case that ends in an error must do so in each
   place, if by another one, and nothing may be left behind. */

enum { BY_ITSELF, IN_INFERENCE, IN_RECORDING, IN_CAPTURE, PLACES };
static const char *const place_names[PLACES] = {"by itself", "in inference mode", "in a recording",
                                                "in a captured step"};
static int case_place;

#if defined(HAVE_FORK)
#include <pthread.h>

/* The captured step waits on a thread of its own, amid its function, while the case runs on the
   test's: one of the two runs at a time. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls; /* of the function; the second one is captured */
    bool inside, leave, made;
    mpt_captured step;
} capture;

static void capture_say(bool *what) {
    pthread_mutex_lock(&capture.lock);
    *what = true;
    pthread_cond_signal(&capture.changed);
    pthread_mutex_unlock(&capture.lock);
}

static void capture_wait(const bool *what) {
    pthread_mutex_lock(&capture.lock);
    while (!*what) pthread_cond_wait(&capture.changed, &capture.lock);
    pthread_mutex_unlock(&capture.lock);
}

static mpt_status captured_case(mpt_context *context, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)x, (void)y;
    mpt_step_begin(context);
    if (++capture.calls == 2) {
        capture_say(&capture.inside);
        capture_wait(&capture.leave);
    }
    return mpt_step_end(context);
}

static void *capture_main(void *unused) {
    for (int i = 0; i < 2; i++) mpt_captured_step(capture.step, f.nil, f.nil);
    if (!capture.inside) capture_say(&capture.inside); /* and there is no case in it */
    return unused;
}

static void capture_begin(void) {
    capture.calls = 0, capture.inside = capture.leave = false;
    capture.step = mpt_capture(f.context, captured_case, NULL);
    capture.made = pthread_create(&capture.thread, NULL, capture_main, NULL) == 0;
    if (capture.made) capture_wait(&capture.inside);
    if (capture.calls != 2) TEST_FAIL_("the case is not in a captured step");
}

static void capture_end(void) {
    capture_say(&capture.leave);
    if (capture.made) pthread_join(capture.thread, NULL);
}

static void capture_make(void) {
    pthread_mutex_init(&capture.lock, NULL);
    pthread_cond_init(&capture.changed, NULL);
}
static void capture_destroy(void) { mpt_captured_destroy(capture.step); }
enum { PLACES_HERE = PLACES };
#else
static void capture_begin(void) {}
static void capture_end(void) {}
static void capture_make(void) {}
static void capture_destroy(void) {}
enum { PLACES_HERE = IN_CAPTURE };
#endif

/* What is no misuse there, by the function and what the error says elsewhere. */
static bool place_allows(const char *text) {
    static const struct {
        int place;
        const char *function, *text;
    } rows[] = {{IN_INFERENCE, "", "a leaf that collects a gradient"}, /* in place */
                {IN_INFERENCE, "mpt_inference_end", "no open region"},
                {IN_RECORDING, "mpt_record_end", "no recording is under way"},
                {IN_CAPTURE, "mpt_step_end", "mpt_step_begin opens one"},
                {IN_CAPTURE, "mpt_step_is_open", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (case_place == rows[i].place && strcmp(text, rows[i].text) == 0 &&
            (!*rows[i].function || strcmp(case_function, rows[i].function) == 0))
            return true;
    return false;
}

static void place_enter(void) {
    if (case_place == IN_INFERENCE) mpt_inference_begin(f.context);
    if (case_place == IN_RECORDING) mpt_record_begin(f.context);
    if (case_place == IN_CAPTURE) capture_begin();
}

/* Ends what the case has left open, by an error if it left none: counters are as before it. */
static void place_leave(void) {
    if (case_place == IN_CAPTURE) capture_end();
    mpt_clear_error(f.context);
    mpt_neg(f.none);
    mpt_clear_error(f.context);
    mpt_clear_error(f.other);
    if (case_place == IN_CAPTURE) capture_destroy();
}
