/* 13_resume.c - lesson 13: stop, go on, go back.
 *
 * A training is more than its weights: moments and step counts of the optimizer, the schedule, the
 * place in the epoch, and where random draws are. A checkpoint has all of it, so that a program
 * which was stopped ends with the bits of one that was not.
 * test arguments: */
#include "lesson.h"

enum { STEPS = 40, EVERY = 10 };

/* What is trained: made by the same calls each time. That is all that going on asks for. */
typedef struct training {
    mpt_context *ctx;
    mpt_module net;
    mpt_optimizer optimizer;
} training;

static training make_training(mpt_context *ctx) {
    training t;
    t.ctx = ctx;
    t.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 16), mpt_nn_relu(ctx),
                           mpt_nn_dropout(ctx, 0.1), mpt_nn_linear(ctx, 16, 2), MPT_END);
    t.optimizer = mpt_adamw(t.net, NULL);
    mpt_cosine_annealing(t.optimizer, STEPS, 0.0, MPT_PER_STEP);
    return t;
}

/* One step: is the first of two drawn numbers the larger one? */
static void step(training *t, bool wrongly) {
    mpt_step_begin(t->ctx);
    mpt_tensor x = mpt_randn(t->ctx, MPT_F32, MPT_SHAPE(32, 2));
    mpt_tensor y = wrongly ? mpt_argmin(x, 1, false) : mpt_argmax(x, 1, false);
    mpt_zero_grad(t->optimizer);
    mpt_backward(mpt_cross_entropy(mpt_forward(t->net, x), y, NULL));
    mpt_step(t->optimizer);
    mpt_step_end(t->ctx);
}

/* Trains up to a step with checkpoints in a folder; returns the step that it went on from. */
static int64_t train_to(training *t, const char *folder, int64_t last) {
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    config.every = EVERY;
    mpt_checkpoint_open(t->ctx, folder, &config);
    const int64_t from = mpt_step_number(t->ctx);
    while (mpt_step_number(t->ctx) < last && !mpt_failed(t->ctx)) {
        step(t, false);
        mpt_checkpoint_step(t->ctx); /* writes one behind each tenth step */
    }
    return from;
}

static void remove_folder(const char *folder) {
    char path[80];
    for (int64_t number = 0; number <= STEPS; number++) {
        snprintf(path, sizeof path, "%s/step-%012lld.safetensors", folder, (long long)number);
        remove(path);
    }
    snprintf(path, sizeof path, "%s/mptrain.lock", folder);
    remove(path), remove(folder);
}

int main(void) {
    static const char whole[] = "lesson13.whole", parts[] = "lesson13.parts";
    remove_folder(whole), remove_folder(parts);
    mpt_context *ctx = lesson_begin("13_resume", "Lesson 13: stop, go on, go back");
    if (!ctx) return EXIT_BAD_INPUT;

    heading("A training that nothing disturbs");
    training t = make_training(ctx);
    train_to(&t, whole, STEPS);
    mpt_checkpoint_close(ctx);
    const uint64_t hash = mpt_state_hash(ctx);
    printf("%d steps; weights, moments and all else: %016llx\n", STEPS, (unsigned long long)hash);

    heading("One that is killed behind step 23, and started again");
    mpt_config config = default_config("13_resume");
    for (int process = 0; process < 2; process++) { /* a context each, as if it were a process */
        mpt_context *own = mpt_create(&config);
        training part = make_training(own);
        const int64_t to = process == 0 ? 23 : STEPS, from = train_to(&part, parts, to);
        printf("from step %lld to %lld: %016llx\n", (long long)from, (long long)to,
               (unsigned long long)mpt_state_hash(own));
        if (process == 1 && (from != 20 || mpt_state_hash(own) != hash)) {
            fail("13_resume", 1, "it is not the same training");
            mpt_destroy(own);
            return mpt_destroy(ctx), 1;
        }
        mpt_destroy(own); /* without mpt_checkpoint_close: nobody had the time */
    }

    heading("A try that is taken back: 5 steps with wrong answers");
    const int64_t bytes = mpt_snapshot_bytes(ctx);
    void *before = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!before) return mpt_destroy(ctx), fail("13_resume", 1, "out of memory");
    mpt_snapshot(ctx, before, (size_t)bytes);
    for (int i = 0; i < 5; i++) step(&t, true);
    printf("behind the try     %016llx\n", (unsigned long long)mpt_state_hash(ctx));
    const bool changed = mpt_state_hash(ctx) != hash;
    mpt_restore(ctx, before, (size_t)bytes);
    printf("and back           %016llx, out of %lld bytes\n",
           (unsigned long long)mpt_state_hash(ctx), (long long)bytes);
    free(before);

    heading("Another training does not take the file");
    mpt_optimizer another = mpt_sgd(mpt_nn_linear(ctx, 2, 2), NULL);
    mpt_checkpoint_load(ctx, "lesson13.whole/step-000000000040.safetensors");
    printf("%s\n", mpt_error(ctx));
    const bool refused = mpt_failed(ctx);
    mpt_clear_error(ctx);
    mpt_optimizer_destroy(another);
    remove_folder(whole), remove_folder(parts);
    return lesson_end(ctx, changed && refused && mpt_state_hash(ctx) != 0);
}
