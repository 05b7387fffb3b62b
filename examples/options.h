/* options.h - command lines of the examples: a table of options in, a filled struct out.
 *
 * Nothing here ends the process or prints: what is wrong comes back as one line of text. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
    OPTION_FLAG,   /* bool */
    OPTION_INT,    /* int64_t from `low` to `high` */
    OPTION_NUMBER, /* double, above 0 */
    OPTION_TEXT,   /* const char * */
    OPTION_CHOICE  /* int64_t: the number of the word in `words`, which separates them by | */
} option_kind;

typedef struct option_row {
    const char *name;
    option_kind kind;
    size_t offset; /* of the field in the caller's struct */
    const char *words;
    int64_t low, high;
    const char *help;
} option_row;

/* What every example understands, too; the last three where it defines EXAMPLE_GOES_ON. */
typedef struct common_options {
    const char *json;     /* file for the results */
    int64_t memory_limit; /* MiB, 0 = none */
    const char *checkpoint;
    int64_t resume, save_every; /* 0: auto, 1: no; steps, 0: the library's default */
} common_options;

static common_options common;

static const option_row common_rows[] = {
    {"--json", OPTION_TEXT, offsetof(common_options, json), NULL, 0, 0, "file for the results"},
    {"--memory-limit", OPTION_INT, offsetof(common_options, memory_limit), NULL, 1, 1 << 30,
     "MiB, more is an error"},
#ifdef EXAMPLE_GOES_ON
    {"--checkpoint", OPTION_TEXT, offsetof(common_options, checkpoint), NULL, 0, 0,
     "folder to go on from and to save to; Ctrl-C saves"},
    {"--resume", OPTION_CHOICE, offsetof(common_options, resume), "auto|no", 0, 0,
     "default auto: from the newest file there"},
    {"--save-every", OPTION_INT, offsetof(common_options, save_every), NULL, 1, INT64_MAX,
     "steps, default 1000"},
#endif
};
enum { COMMON_ROWS = sizeof common_rows / sizeof *common_rows };

/* The row of that name, or NULL. */
static inline const option_row *option_find(const option_row *rows, int count, const char *name,
                                            size_t length) {
    for (int r = 0; r < count; r++)
        if (strlen(rows[r].name) == length && memcmp(rows[r].name, name, length) == 0)
            return &rows[r];
    return NULL;
}

/* The number of `word` among "a|b|c", -1 if it is not there. */
static inline int64_t option_choice(const char *words, const char *word) {
    size_t length = strlen(word);
    for (int64_t number = 0; *words; number++) {
        const char *end = strchr(words, '|');
        size_t n = end ? (size_t)(end - words) : strlen(words);
        if (n == length && memcmp(words, word, n) == 0) return number;
        words += end ? n + 1 : n;
    }
    return -1;
}

/* Word `number` of "a|b|c". */
static inline void option_word(const char *words, int64_t number, char *text, size_t size) {
    for (; number > 0 && strchr(words, '|'); number--) words = strchr(words, '|') + 1;
    snprintf(text, size, "%.*s", (int)strcspn(words, "|"), words);
}

static inline bool option_set(const option_row *row, const char *value, void *fields, char *error,
                              size_t error_size) {
    char *field = (char *)fields + row->offset, *end = NULL;
    int64_t number = 0;
    double real = 0.0;
    errno = 0;
    switch (row->kind) {
    case OPTION_FLAG:
        *(bool *)(void *)field = true;
        return true;
    case OPTION_TEXT:
        memcpy(field, &value, sizeof value);
        return true;
    case OPTION_CHOICE:
        number = option_choice(row->words, value);
        memcpy(field, &number, sizeof number);
        if (number >= 0) return true;
        snprintf(error, error_size, "%s: expected %s, got \"%.40s\"", row->name, row->words, value);
        return false;
    case OPTION_INT:
        number = strtoll(value, &end, 10);
        memcpy(field, &number, sizeof number);
        if (end != value && !*end && !errno && number >= row->low && number <= row->high)
            return true;
        snprintf(error, error_size, "%s: expected a whole number from %lld to %lld, got \"%.40s\"",
                 row->name, (long long)row->low, (long long)row->high, value);
        return false;
    case OPTION_NUMBER:
        real = strtod(value, &end);
        memcpy(field, &real, sizeof real);
        if (end != value && !*end && real > 0.0 && real < 1e30) return true;
        snprintf(error, error_size, "%s: expected a number above 0, got \"%.40s\"", row->name,
                 value);
        return false;
    }
    return false;
}

/* Reads `--name value`, `--name=value` and flags into `fields`, or into `common`. False: `error`
 * holds one line that says what is wrong. */
static inline bool options_parse(const option_row *rows, int row_count, int argc, char **argv,
                                 void *fields, char *error, size_t error_size) {
    for (int i = 1; i < argc; i++) {
        const char *value = strchr(argv[i], '=');
        size_t length = value ? (size_t)(value - argv[i]) : strlen(argv[i]);
        const option_row *own = option_find(rows, row_count, argv[i], length);
        const option_row *row = own ? own : option_find(common_rows, COMMON_ROWS, argv[i], length);
        if (!row) {
            snprintf(error, error_size, "unknown option \"%.40s\"; --help lists them", argv[i]);
            return false;
        }
        if (row->kind == OPTION_FLAG && value) {
            snprintf(error, error_size, "%s takes no value", row->name);
            return false;
        }
        if (row->kind != OPTION_FLAG) {
            value = value ? value + 1 : ++i < argc ? argv[i] : "";
            if (!*value) {
                snprintf(error, error_size, "%s needs a value", row->name);
                return false;
            }
        }
        if (!option_set(row, value, own ? fields : &common, error, error_size)) return false;
    }
    return true;
}

static inline void options_help(const char *program, const option_row *rows, int row_count,
                                FILE *out) {
    static const char *const values[] = {"", " N", " X", " NAME", " "};
    fprintf(out, "usage: %s [options]\n", program);
    for (int r = 0; r < row_count + COMMON_ROWS; r++) {
        const option_row *row = r < row_count ? &rows[r] : &common_rows[r - row_count];
        char left[80];
        if (r >= row_count && option_find(rows, row_count, row->name, strlen(row->name))) continue;
        snprintf(left, sizeof left, "%s%s%s", row->name, values[row->kind],
                 row->kind == OPTION_CHOICE ? row->words : "");
        fprintf(out, "  %-32s %s\n", left, row->help);
    }
}

#endif
