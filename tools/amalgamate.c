/* amalgamate.c - writes the one-file mptrain.h from the rooms in src/.

       amalgamate src/mptrain.h mptrain.h [OTHER..]

   The spine (the first argument) lists the rooms in order. Each quoted include of a file that
   lies beside the spine is replaced by that file, once; later includes of it are left out. A room
   may include only what the spine listed before it, so the order of the output is the order of
   the spine. What a room includes from a folder template/ is read once per instruction set: it is
   written once, behind everything else, and the file includes itself by name instead, which
   MPTRAIN_FILE is. The include guards of .c rooms go, since nothing includes those again, and so
   does the second of two empty lines. Everything else is copied as it is, with line ends turned to
   '\n': the output depends on nothing but the input, so it can be committed and compared. OTHER is
   a spine of rooms that are written to a file of their own, which a user's compiler finds by name:
   they are left out, and the line that includes it stays. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"

enum { MAX_ROOMS = 192, MAX_PATH_LENGTH = 512 };

typedef struct {
    char folder[MAX_PATH_LENGTH]; /* of the spine, with the '/' */
    char seen[MAX_ROOMS][64];     /* names of the rooms already written */
    int n_seen;
    char other[3][64];   /* spines that are left alone; "" for none */
    char entries[4][64]; /* templates that rooms include; the others are included by these */
    int n_entries;
    int in_template;
    int after_empty_line;
    FILE *out;
} amalgamation;

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "amalgamate: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* The whole file as a string without '\r' and ending in '\n'; NULL when it cannot be read. */
static char *read_text(const char *path) {
    size_t size, kept = 0, i;
    char *text = read_file(path, &size);
    if (!text) return NULL;
    for (i = 0; i < size; i++) {
        if (text[i] != '\r') text[kept++] = text[i];
    }
    if (kept == size && kept > 0 && text[kept - 1] != '\n') {
        text = (char *)realloc(text, size + 2);
        if (!text) fail("out of memory reading %s", path);
    }
    if (kept > 0 && text[kept - 1] != '\n') text[kept++] = '\n';
    text[kept] = '\0';
    return text;
}

/* Whether the end of this line lies in a block comment, given whether its start does. */
static int ends_in_comment(const char *line, size_t length, int in_comment) {
    size_t i;
    char quote = 0;
    for (i = 0; i < length; i++) {
        char c = line[i], next = i + 1 < length ? line[i + 1] : '\0';
        if (in_comment) {
            if (c == '*' && next == '/') { in_comment = 0; i++; }
        } else if (quote) {
            if (c == '\\') i++;
            else if (c == quote) quote = 0;
        } else if (c == '/' && next == '/') {
            return 0;
        } else if (c == '/' && next == '*') {
            in_comment = 1;
            i++;
        } else if (c == '"' || c == '\'') {
            quote = c;
        }
    }
    return in_comment;
}

/* Copies the name out of a line `#include "name"`; returns 0 for any other line. */
static int parse_include(const char *line, size_t length, char *name, size_t capacity) {
    static const char word[] = "include";
    const char *end = line + length, *close;
    size_t n;
    while (line < end && (*line == ' ' || *line == '\t')) line++;
    if (line == end || *line++ != '#') return 0;
    while (line < end && (*line == ' ' || *line == '\t')) line++;
    if ((size_t)(end - line) < sizeof word || memcmp(line, word, sizeof word - 1) != 0) return 0;
    line += sizeof word - 1;
    while (line < end && (*line == ' ' || *line == '\t')) line++;
    if (line == end || *line++ != '"') return 0;
    close = (const char *)memchr(line, '"', (size_t)(end - line));
    if (!close) return 0;
    n = (size_t)(close - line);
    if (n == 0 || n >= capacity) return 0;
    memcpy(name, line, n);
    name[n] = '\0';
    return 1;
}

static void see(amalgamation *a, const char *name) {
    if (a->n_seen == MAX_ROOMS) fail("more than %d rooms", (int)MAX_ROOMS);
    strcpy(a->seen[a->n_seen++], name);
}

static int was_seen(const amalgamation *a, const char *name) {
    int i;
    for (i = 0; i < a->n_seen; i++) {
        if (strcmp(a->seen[i], name) == 0) return 1;
    }
    return 0;
}

static char *read_beside(const amalgamation *a, const char *name) {
    char path[MAX_PATH_LENGTH + 64];
    snprintf(path, sizeof path, "%s%s", a->folder, name);
    return read_text(path);
}

/* Whether this line of a .c room belongs to its include guard, from `#ifndef X_INCLUDED` to the
   #endif that ends the file. */
static int is_guard(const char *name, const char *line, size_t length) {
    static const char ending[] = "_INCLUDED\n";
    const size_t n = sizeof ending - 1;
    const char *dot = strrchr(name, '.');
    if (strstr(name, "/template/")) return 0; /* it has none */
    if (!dot || strcmp(dot, ".c") != 0 || *line != '#') return 0;
    if (strcmp(line, "#endif\n") == 0) return 1; /* the last line */
    return length > n && memcmp(line + length - n, ending, n) == 0;
}

/* Whether a comment begins here that ends with the line, or behind it. */
static int comment_to_end(const char *at, const char *line_end) {
    const char *close;
    if (strncmp(at, "/*", 2) != 0) return 0;
    close = strstr(at + 2, "*/");
    return !close || close + 3 >= line_end;
}

/* Four spaces at the beginning are a tab there. What stands before a comment behind code, and two
   or more spaces in one, are tabs up to a column that four divides, which lines have in common as
   they had another. All that makes the file smaller by 6 %. */
static void write_line(amalgamation *a, const char *line, size_t length, int in_comment) {
    size_t i = strspn(line, " "), column;
    char quote = 0;
    if (length == 1 && a->after_empty_line) return;
    a->after_empty_line = length == 1;
    for (column = 4; column <= i; column += 4) fputc('\t', a->out);
    fprintf(a->out, "%.*s", (int)(i % 4), "   ");
    while (i < length) {
        size_t run = strspn(line + i, " ");
        char c = line[i];
        if ((run > 1 && in_comment) ||
            (run > 0 && !in_comment && !quote && comment_to_end(line + i + run, line + length))) {
            for (column = i; column < i + run; column = column / 4 * 4 + 4) fputc('\t', a->out);
            i += run;
            continue;
        }
        if (in_comment && i > 0 && c == '/' && line[i - 1] == '*')
            in_comment = 0;
        else if (!in_comment && !quote && c == '/' && line[i + 1] == '*')
            in_comment = 1;
        else if (!in_comment && quote && c == '\\')
            fputc(line[i++], a->out), c = line[i];
        else if (!in_comment && (c == quote || (!quote && (c == '"' || c == '\''))))
            quote = (char)(quote ? 0 : c);
        fputc(c, a->out);
        i++;
    }
}

/* Whether this line of a room includes a template; the file then includes itself. */
static int includes_template(amalgamation *a, const char *included) {
    int i = 0;
    if (a->in_template || !strstr(included, "/template/")) return 0;
    while (i < a->n_entries && strcmp(a->entries[i], included) != 0) i++;
    if (i == a->n_entries) {
        if (i == sizeof a->entries / sizeof *a->entries) fail("more than %d templates", i);
        strcpy(a->entries[a->n_entries++], included);
    }
    fprintf(a->out, "#define MPT__TEMPLATE %d /* at the end of this file: %s */\n"
                    "#include MPTRAIN_FILE\n"
                    "#undef MPT__TEMPLATE\n",
            i + 1, included);
    a->after_empty_line = 0;
    return 1;
}

/* Writes `text`, the file `name`; depth 0 is the spine, 1 a room. */
static void expand(amalgamation *a, const char *name, const char *text, int depth) {
    int in_comment = 0, line_number = 0;
    while (*text) {
        size_t length = strcspn(text, "\n") + 1;
        char included[64];
        char *inner = NULL;
        line_number++;
        if (!in_comment && parse_include(text, length, included, sizeof included) &&
            strcmp(included, a->other[0]) != 0 && strcmp(included, a->other[1]) != 0 &&
            strcmp(included, a->other[2]) != 0) {
            if (was_seen(a, included) || includes_template(a, included)) {
                text += length;
                continue;
            }
            inner = read_beside(a, included);
        }
        if (inner) {
            if (depth > 0 && !a->in_template && !strstr(included, ".inl"))
                fail("%s:%d includes %s, which the spine does not list before it", name,
                     line_number, included);
            see(a, included);
            expand(a, included, inner, depth + 1);
            free(inner);
        } else if (in_comment || !is_guard(name, text, length)) {
            write_line(a, text, length, in_comment);
            in_comment = ends_in_comment(text, length, in_comment);
        }
        text += length;
    }
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* What another spine lists counts as seen. */
static void leave_to(amalgamation *a, int which, const char *path) {
    char *spine = read_text(path), *line, included[64];
    if (!spine) fail("cannot read %s", path);
    snprintf(a->other[which], sizeof a->other[which], "%s", name_of(path));
    for (line = spine; *line; line += strcspn(line, "\n") + 1) {
        if (parse_include(line, strcspn(line, "\n") + 1, included, sizeof included))
            see(a, included);
    }
    free(spine);
}

int main(int argc, char **argv) {
    static amalgamation a;
    const char *spine_name;
    char *spine;
    int i;
    if (argc < 3 || argc > 6) fail("usage: amalgamate SPINE OUTPUT [OTHER..]");
    spine_name = name_of(argv[1]);
    if (strlen(argv[1]) >= MAX_PATH_LENGTH || strlen(spine_name) >= 64) fail("path too long");
    memcpy(a.folder, argv[1], (size_t)(spine_name - argv[1]));
    see(&a, spine_name);
    for (i = 3; i < argc; i++) leave_to(&a, i - 3, argv[i]);
    spine = read_text(argv[1]);
    if (!spine) fail("cannot read %s", argv[1]);
    a.out = fopen(argv[2], "wb");
    if (!a.out) fail("cannot write %s", argv[2]);
    fprintf(a.out, "/* generated from src/ by tools/amalgamate.c: edit there */\n");
    if (strstr(spine, "/template/")) fprintf(a.out, "#ifndef MPT__TEMPLATE\n");
    expand(&a, spine_name, spine, 0);
    free(spine);
    a.in_template = 1;
    for (i = 0; i < a.n_entries; i++) {
        fprintf(a.out, "#elif MPT__TEMPLATE == %d\n", i + 1);
        spine = read_beside(&a, a.entries[i]);
        if (!spine) fail("cannot read %s", a.entries[i]);
        expand(&a, a.entries[i], spine, 1);
        free(spine);
    }
    if (a.n_entries > 0) fprintf(a.out, "#endif\n");
    if (ferror(a.out) | fclose(a.out)) fail("cannot write %s", argv[2]);
    return 0;
}
