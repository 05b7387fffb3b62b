/* settings.h - the options of mnist.c. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include "options.h"
#include "precisions.h"

typedef struct settings {
    int64_t precision, optimizer, epochs, batch, seed, threads, device, subset;
    double lr;
    const char *data, *json, *report, *tensorboard;
    bool overfit, compare, quiet, help;
} settings;

#define SETTING(name) offsetof(settings, name)
static const option_row settings_rows[] = {
    {"--precision", OPTION_CHOICE, SETTING(precision), "fp32|fp16|bf16|half", 0, 0, "default fp16"},
    {"--optimizer", OPTION_CHOICE, SETTING(optimizer), "sgd|adamw", 0, 0, "default adamw"},
    {"--epochs", OPTION_INT, SETTING(epochs), NULL, 1, 10000, "default 5"},
    {"--batch", OPTION_INT, SETTING(batch), NULL, 1, 60000, "default 64"},
    {"--lr", OPTION_NUMBER, SETTING(lr), NULL, 0, 0, "default 0.001 for adamw, 0.01 for sgd"},
    {"--seed", OPTION_INT, SETTING(seed), NULL, 0, INT64_MAX, "default 0"},
    {"--threads", OPTION_INT, SETTING(threads), NULL, 0, 256, "default 0: one per core"},
    {"--device", OPTION_CHOICE, SETTING(device), "auto|cpu|cuda", 0, 0, "default auto"},
    {"--data", OPTION_TEXT, SETTING(data), NULL, 0, 0,
     "folder with MNIST's idx files, plain or .gz"},
    {"--subset", OPTION_INT, SETTING(subset), NULL, 1, 60000, "train on the first N digits only"},
    {"--overfit-one-batch", OPTION_FLAG, SETTING(overfit), NULL, 0, 0,
     "can it learn one by heart?"},
    {"--compare", OPTION_FLAG, SETTING(compare), NULL, 0, 0, "every precision, side by side"},
    {"--quiet", OPTION_FLAG, SETTING(quiet), NULL, 0, 0, "the result only"},
    {"--report", OPTION_TEXT, SETTING(report), NULL, 0, 0,
     "HTML file that shows the training, while it runs, too"},
    {"--tensorboard", OPTION_TEXT, SETTING(tensorboard), NULL, 0, 0,
     "folder of logs for TensorBoard"},
    {"--json", OPTION_TEXT, SETTING(json), NULL, 0, 0, "file for the results"},
    {"--help", OPTION_FLAG, SETTING(help), NULL, 0, 0, "this list"}};
enum { SETTINGS_ROWS = sizeof settings_rows / sizeof settings_rows[0] };

static inline settings settings_default(void) {
    settings s;
    memset(&s, 0, sizeof s);
    s.precision = 1; /* fp16 */
    s.optimizer = 1; /* adamw */
    s.epochs = 5;
    s.batch = 64;
    return s;
}

/* False: `error` holds one line that says what is wrong. */
static inline bool settings_parse(settings *s, int argc, char **argv, char *error, size_t size) {
    if (!options_parse(settings_rows, SETTINGS_ROWS, argc, argv, s, error, size)) return false;
    if (!s->compare || (!s->overfit && !common.checkpoint)) return true;
    snprintf(error, size, "--compare and %s exclude each other",
             s->overfit ? "--overfit-one-batch" : "--checkpoint");
    return false;
}

#endif
