/* journal.c - a training that leaves files about itself: TensorBoard, a spreadsheet, JSON lines.
 *
 *   tensorboard --logdir journal          loss, rates, scale, norms; weights; filters; a note
 *
 * mpt_fit tells the journal of each step; what it does not know, the callback here adds: how the
 * weights are spread, and what the first layer looks for, as pictures. Trains twice, and the second
 * time goes on where the first one stopped.
 * test arguments: */
#define MPTRAIN_TOOLS_IMPLEMENTATION
#define MPTRAIN_TOOLS_STATIC
#include "common.h"
#include "data.h"
#include "tools/mptrain_tools.h"

enum { SIDE = 28, HIDDEN = 32, SAMPLES = 1280 };

typedef struct watcher {
    mpt_journal *journal;
    mpt_module net;
    int64_t entries; /* what a service of yours would be sent */
} watcher;

static void count_entry(void *user, const mpt_journal_entry *entry) {
    (void)entry;
    ((watcher *)user)->entries++;
}

/* What each of the first units looks for: its weights, from dark to bright. */
static void log_filters(const watcher *w, int64_t step) {
    mpt_tensor weights = mpt_parameter(w->net, "1.weight"); /* [HIDDEN, SIDE * SIDE] */
    for (int i = 0; i < 4; i++) {
        char tag[32];
        snprintf(tag, sizeof tag, "filters/%d", i);
        mpt_tensor one = mpt_reshape(mpt_select(weights, 0, i), MPT_SHAPE(SIDE, SIDE));
        mpt_tensor grey = mpt_add_scalar(mpt_mul_scalar(one, 5.0), 0.5);
        mpt_journal_image(w->journal, tag, step, grey);
    }
}

static bool watch(void *user, const mpt_progress *p) {
    watcher *w = (watcher *)user;
    mpt_journal_fit(w->journal, p);
    if (p->epoch_end) {
        printf("%s\n", p->text);
        mpt_inference_begin(w->net.context);
        mpt_journal_module(w->journal, p->step, w->net, false);
        log_filters(w, p->step);
        mpt_inference_end(w->net.context);
    }
    return true;
}

/* Trains up to an epoch; the folder of checkpoints and the journal know where it was. */
static int train(int epochs, bool first, int64_t *entries) {
    mpt_config config = default_config("journal");
    mpt_context *ctx = mpt_create(&config);
    if (!ctx) return fail_with_error("journal", ctx);
    mpt_loader_config lc = mpt_loader_config_default();
    data_sets data = data_open(ctx, NULL);
    lc.batch = 64, lc.dtype = MPT_F32, lc.shuffle = true;
    mpt_loader loader = mpt_loader_create(ctx, mpt_subset(data.train, 0, SAMPLES), &lc);
    mpt_loader tests = mpt_loader_create(ctx, mpt_subset(data.test, 0, SAMPLES / 4), &lc);
    mpt_module net =
        mpt_sequential(ctx, mpt_nn_flatten(ctx), mpt_nn_linear(ctx, SIDE * SIDE, HIDDEN),
            mpt_nn_relu(ctx), mpt_nn_linear(ctx, HIDDEN, 10), mpt_nn_log_softmax(ctx, -1), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);

    watcher w = {NULL, net, 0};
    mpt_journal_config jc = mpt_journal_config_default();
    jc.tensorboard = "journal/run", jc.csv = "journal/run.csv", jc.jsonl = "journal/run.jsonl";
    jc.entry = count_entry, jc.user = &w;
    w.journal = mpt_journal_open(&jc);
    if (first) mpt_journal_text(w.journal, "about", 0, "Digits, 784-32-10, *AdamW*, fp16.");

    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = epochs, fit.precision = MPT_F16, fit.validation = tests;
    fit.grad_norm = true; /* measured, not clipped */
    fit.checkpoints = "journal/checkpoints";
    fit.progress = watch, fit.user = &w;
    mpt_fit(net, optimizer, loader, &fit);

    *entries = w.entries;
    int status = mpt_failed(ctx) ? fail_with_error("journal", ctx) : 0;
    if (strlen(mpt_journal_error(w.journal)) > 0)
        status = fail("journal", 1, "%s", mpt_journal_error(w.journal));
    if (mpt_journal_close(w.journal) != MPT_OK && status == 0)
        status = fail("journal", 1, "the files are not complete");
    mpt_destroy(ctx);
    return status;
}

/* How many rows of the table are about a tag. */
static int rows_about(const char *tag) {
    char line[256], part[64];
    int rows = 0;
    FILE *file = fopen("journal/run.csv", "r");
    snprintf(part, sizeof part, ",%s,", tag);
    while (file && fgets(line, sizeof line, file)) rows += strstr(line, part) != NULL;
    if (file) fclose(file);
    return rows;
}

int main(void) {
    int64_t first = 0, second = 0;
    int status = train(2, rows_about("loss") == 0, &first);
    if (status == 0) status = train(3, false, &second);
    if (status != 0) return status;
    const int steps = rows_about("loss"), epochs = rows_about("validation/accuracy");
    printf("%lld + %lld entries; %d steps and %d epochs in journal/run.csv\n", (long long)first,
        (long long)second, steps, epochs);
    return steps == 3 * SAMPLES / 64 && epochs == 3 ? 0 : fail("journal", 1, "rows are missing");
}
