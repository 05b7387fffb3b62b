/* mutate.c - breaks a source file in one small place, to see whether a test notices.

       mutate SEED NUMBER OUTPUT FILE...

   Mutant NUMBER of SEED is always the same edit of the same files: an operator becomes its
   neighbour, a number another, a condition is turned round, or a call that stands alone goes. The
   kind is drawn first, then the place among all of that kind, so that the few conditions and calls
   of a file count as much as its many operators. The changed file is written to OUTPUT; what was
   done is printed on one line, "FILE:LINE: kind: the line as it was -> as it is". */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"
#include "source_text.h"

enum { OPERATOR, NUMBER, CONDITION, CALL, KINDS };
static const char *const kind_names[KINDS] = {"operator", "number", "condition", "call"};

/* Binary operators stand between spaces in this house; a pointer's star never does. */
static const char *const operators[][2] = {
    {"<", "<="}, {"<=", "<"},  {">", ">="},   {">=", ">"},   {"==", "!="}, {"!=", "=="},
    {"+", "-"},  {"-", "+"},   {"*", "+"},    {"/", "*"},    {"%", "/"},   {"&&", "||"},
    {"&", "|"},  {"|", "&"},   {"||", "&&"},  {"<<", ">>"},  {">>", "<<"}, {"+=", "-="},
    {"-=", "+="}, {"|=", "&="}, {"&=", "|="}, {"^", "|"},
};

/* A piece of a file that is replaced: text[at .. at + length). */
typedef struct {
    int file, line, kind;
    size_t at, length;
    char put[192];
} edit;

typedef struct {
    edit *list;
    size_t count, capacity, of_kind[KINDS];
} edits;

static void add(edits *e, edit place) {
    if (e->count == e->capacity) {
        e->capacity = 2 * e->capacity + 1024;
        e->list = (edit *)realloc(e->list, e->capacity * sizeof *e->list);
        if (!e->list) exit(2);
    }
    e->of_kind[place.kind]++;
    e->list[e->count++] = place;
}

static void find_operators(edits *e, edit place, const char *line, size_t length) {
    for (size_t i = 1; i + 2 < length; i++) {
        size_t n = strcspn(line + i, " \n");
        if (line[i - 1] != ' ' || n == 0 || n > 2 || line[i + n] != ' ') continue;
        for (size_t k = 0; k < sizeof operators / sizeof operators[0]; k++) {
            if (strlen(operators[k][0]) != n || memcmp(operators[k][0], line + i, n) != 0) continue;
            edit found = place;
            found.kind = OPERATOR, found.at += i, found.length = n;
            strcpy(found.put, operators[k][1]);
            add(e, found);
        }
    }
}

/* 0 becomes 1 and n becomes n + 1; of a float only what stands before the point. */
static void find_numbers(edits *e, edit place, const char *line, size_t length) {
    for (size_t i = 1; i < length; i++) {
        char before = line[i - 1];
        if (!isdigit((unsigned char)line[i]) || is_name(before) || before == '.') continue;
        size_t n = 0;
        while (isdigit((unsigned char)line[i + n])) n++;
        if (n > 9 || line[i + n] == 'x' || line[i + n] == 'X') continue;
        edit found = place;
        found.kind = NUMBER, found.at += i, found.length = n;
        snprintf(found.put, sizeof found.put, "%ld", atol(line + i) + 1);
        add(e, found);
    }
}

/* Where the parenthesis that opens at `at` closes on this line; 0 when it does not. */
static size_t closing(const char *line, size_t at, size_t length) {
    for (int depth = 0; at < length; at++) {
        if (line[at] == '(') depth++;
        if (line[at] == ')' && --depth == 0) return at;
    }
    return 0;
}

static void find_conditions(edits *e, edit place, const char *line, size_t length) {
    static const char *const words[] = {"if (", "while ("};
    for (size_t k = 0; k < 2; k++) {
        size_t n = strlen(words[k]);
        for (size_t i = 1; i + n < length; i++) {
            if (memcmp(line + i, words[k], n) != 0 || is_name(line[i - 1]) || line[i - 1] == '#')
                continue;
            size_t end = closing(line, i + n - 1, length);
            if (end == 0 || end - (i + n) + 4 > sizeof place.put) continue;
            edit found = place;
            found.kind = CONDITION, found.at += i + n, found.length = end - (i + n);
            snprintf(found.put, sizeof found.put, "!(%.*s)", (int)found.length, line + i + n);
            add(e, found);
        }
    }
}

/* A line that is nothing but a call: `name(...);`. */
static void find_calls(edits *e, edit place, const char *line, size_t length) {
    size_t start = strspn(line, " "), i = start;
    while (i < length && (is_name(line[i]) || (line[i] == '-' && line[i + 1] == '>') ||
                          line[i] == '.' || (line[i] == '>' && line[i - 1] == '-')))
        i++;
    if (start < 4 || i == start || line[i] != '(') return;
    size_t end = closing(line, i, length);
    if (end == 0 || line[end + 1] != ';') return;
    edit found = place;
    found.kind = CALL, found.at += start, found.length = end + 1 - start;
    add(e, found);
}

/* `blanked` has comments and literals blanked, so that they are never edited. Lines of the
   preprocessor are left alone, but not the bodies of macros behind them. */
static void find_edits(edits *e, int file, const char *blanked) {
    edit place;
    memset(&place, 0, sizeof place);
    place.file = file;
    for (const char *line = blanked; *line;) {
        size_t length = strcspn(line, "\n");
        place.line++;
        place.at = (size_t)(line - blanked);
        if (line[strspn(line, " ")] != '#' && length > 0) {
            find_operators(e, place, line, length);
            find_numbers(e, place, line, length);
            find_conditions(e, place, line, length);
            find_calls(e, place, line, length);
        }
        line += length + (line[length] == '\n');
    }
}

/* splitmix64: any seed and number give an independent draw. */
static uint64_t mix(uint64_t x) {
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static const edit *draw(const edits *e, uint64_t seed, uint64_t number) {
    uint64_t random = mix(mix(seed) + number);
    int kind = (int)(random % KINDS);
    if (e->of_kind[kind] == 0) return NULL;
    size_t left = (size_t)(mix(random) % e->of_kind[kind]);
    for (size_t i = 0; i < e->count; i++) {
        if (e->list[i].kind == kind && left-- == 0) return &e->list[i];
    }
    return NULL;
}

/* The line around `at`, without what it is indented by. */
static void print_line(const char *text, size_t at) {
    while (at > 0 && text[at - 1] != '\n') at--;
    at += strspn(text + at, " ");
    printf("%.*s", (int)strcspn(text + at, "\n"), text + at);
}

int main(int argc, char **argv) {
    edits e;
    memset(&e, 0, sizeof e);
    if (argc < 5) {
        fprintf(stderr, "usage: mutate SEED NUMBER OUTPUT FILE...\n");
        return 2;
    }
    for (int i = 4; i < argc; i++) {
        char *text = read_file(argv[i], NULL);
        if (!text) {
            fprintf(stderr, "mutate: cannot read %s\n", argv[i]);
            return 2;
        }
        blank_comments_and_literals(text);
        find_edits(&e, i, text);
        free(text);
    }
    const edit *chosen = draw(&e, strtoull(argv[1], NULL, 10), strtoull(argv[2], NULL, 10));
    if (!chosen) {
        fprintf(stderr, "mutate: there is nothing to change\n");
        return 2;
    }
    char *text = read_file(argv[chosen->file], NULL);
    FILE *out = fopen(argv[3], "wb");
    if (!text || !out) {
        fprintf(stderr, "mutate: cannot write %s\n", argv[3]);
        return 2;
    }
    size_t size = strlen(text), tail = chosen->at + chosen->length;
    char *changed = (char *)malloc(size + sizeof chosen->put);
    if (!changed) return 2;
    sprintf(changed, "%.*s%s%s", (int)chosen->at, text, chosen->put, text + tail);
    fputs(changed, out);
    printf("%s:%d: %s: ", argv[chosen->file], chosen->line, kind_names[chosen->kind]);
    print_line(text, chosen->at);
    printf(" -> ");
    print_line(changed, chosen->at);
    printf("\n");
    free(changed);
    free(text);
    free(e.list);
    return fclose(out) == 0 ? 0 : 2;
}
