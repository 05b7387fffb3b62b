/* reference.c - writes the reference page from the manual and the declarations in mptrain.h.

       reference mptrain.h examples.c reference.md
       reference --check mptrain.h examples.c tools.h README.md...

   The page is Markdown: the chapters of the manual, then the groups of declarations, each with its
   examples and with every declaration under the comment that stands above it, then an index. Both
   fail where a group has no example or an example no group. --check also fails where a function has
   no comment, and where a text (the manual is one) names something that neither the header nor
   tools.h declares.

   An example begins with a line that names its group, "==== Group: what it shows" in a comment, and
   ends with the test behind it. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"

enum { MAX_NAMES = 4096, MAX_NAME = 64, MAX_BLOCK = 1 << 16, MAX_EXAMPLES = 256 };

/* Where the declarations end and the implementation begins. */
static const char end_of_api[] = "#if defined(MPTRAIN_BACKEND_API)";

typedef struct {
    const char *group, *shows, *code, *body, *end; /* the code is what is before the test's body */
    size_t group_length, shows_length;
    int shown;
} example;

typedef struct {
    FILE *out;                    /* NULL: only checks */
    char comment[MAX_BLOCK];      /* the last one, as text */
    char declarations[MAX_BLOCK]; /* under it */
    char functions[MAX_NAMES][MAX_NAME];
    int n_functions, first; /* of the block under way */
    example examples[MAX_EXAMPLES];
    int n_examples;
    int findings;
} page;

static void fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "reference: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

/* The file with spaces up to the next column of four for each tab, as src/ has it. */
static char *read_text(const char *path) {
    size_t size, i, length = 0, line = 0;
    char *text = read_file(path, &size), *wide = text ? (char *)malloc(4 * size + 1) : NULL;
    if (!wide) fail("cannot read %s", path);
    for (i = 0; i < size; i++) {
        wide[length++] = text[i] == '\t' ? ' ' : text[i];
        while (text[i] == '\t' && (length - line) % 4 != 0) wide[length++] = ' ';
        if (text[i] == '\n') line = length;
    }
    wide[length] = '\0';
    free(text);
    return wide;
}

static void put(const page *p, const char *format, ...) {
    va_list args;
    if (!p->out) return;
    va_start(args, format);
    vfprintf(p->out, format, args);
    va_end(args);
}

static int starts(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static void append(char *text, const char *from, size_t length) {
    const size_t n = strlen(text);
    if (n + length + 2 > MAX_BLOCK) fail("a block of more than %d bytes", (int)MAX_BLOCK);
    memcpy(text + n, from, length);
    text[n + length] = '\n';
    text[n + length + 1] = '\0';
}

/* A line without its end; *next is the one behind it. */
static size_t line_of(const char *text, const char **next) {
    const size_t length = strcspn(text, "\n");
    *next = text + length + (text[length] == '\n');
    return length;
}

/* The title in a line of '='s, "==== Title ====": without them and their spaces. */
static size_t title_of(const char *line, size_t length, const char **title) {
    while (length > 0 && (*line == '=' || *line == ' ' || *line == '/' || *line == '*'))
        line++, length--;
    while (length > 0 && strchr("= */", line[length - 1])) length--;
    *title = line;
    return length;
}

/* ---- The manual ---- */

/* Prose as it is, what is indented by four as code; returns what follows the comment. */
static const char *write_manual(page *p, const char *text) {
    const char *next;
    int in_code = 0, empty = 0, begun = 0;
    for (; *text && !starts(text, "*/"); text = next) {
        const char *title;
        const size_t length = line_of(text, &next);
        const int code = starts(text, "    ");
        if (length == 0) {
            empty += empty == 0;
            continue;
        }
        if (starts(text, "====")) {
            const size_t n = title_of(text, length, &title);
            put(p, "%s\n## %.*s\n\n", in_code ? "```\n" : "", (int)n - 7, title + 7); /* MANUAL */
            in_code = 0, empty = -1, begun = 1; /* an empty line is there already */
            continue;
        }
        if (!begun) continue; /* the banner and the contents */
        if (in_code != code)
            put(p, code ? "%s```\n" : "```\n%s", empty > 0 ? "\n" : "");
        else if (empty > 0)
            put(p, "\n");
        in_code = code, empty = 0;
        put(p, "%.*s\n", (int)length - 4 * code, text + 4 * code);
    }
    if (in_code) put(p, "```\n");
    return *text ? text + 2 : text;
}

/* ---- Examples ---- */

/* The example under a line that names its group; returns what is behind it. */
static const char *read_example(page *p, const char *line) {
    const char *next, *title;
    const size_t length = title_of(line, line_of(line, &next), &title);
    const char *colon = (const char *)memchr(title, ':', length);
    example *e = &p->examples[p->n_examples++];
    if (p->n_examples == MAX_EXAMPLES) fail("%d examples are too many", (int)MAX_EXAMPLES);
    if (!colon) fail("what does the example \"%.*s\" show?", (int)length, title);
    e->group = title, e->group_length = (size_t)(colon - title);
    e->shows = colon + 1 + strspn(colon + 1, " ");
    e->shows_length = length - (size_t)(e->shows - title);
    e->code = next;
    e->body = strstr(next, "\nTEST(");
    if (starts(next, "TEST(")) e->body = next - 1;
    e->end = e->body ? strstr(e->body, "\n}\n") : NULL;
    next = strstr(next, "\n/* ====");
    if (!e->end || (next && next < e->end)) fail("no test after \"%.*s\"", (int)length, title);
    return e->end;
}

static void read_examples(page *p, const char *text) {
    while ((text = strstr(text, "\n/* ==== ")) != NULL) text = read_example(p, text + 1);
}

/* A line without `indent` and in words that need no harness: assert for CHECK, a name for a path
   in the folder of tests. */
static void write_code(const page *p, const char *line, size_t length, size_t indent) {
    static const char check[] = "CHECK(", path[] = "test_tmp_path(";
    int in_path = 0;
    size_t i = strspn(line, " ") < indent ? strspn(line, " ") : indent;
    while (i < length) {
        if (starts(line + i, check)) {
            put(p, "assert(");
            i += sizeof check - 1;
        } else if (starts(line + i, path)) {
            in_path = 1;
            i += sizeof path - 1;
        } else {
            if (!in_path || line[i] != ')') put(p, "%c", line[i]);
            in_path = in_path && line[i] != ')';
            i++;
        }
    }
    put(p, "\n");
}

static void write_example(page *p, const example *e) {
    const char *line, *next;
    put(p, "Example: %.*s.\n\n```c\n", (int)e->shows_length, e->shows);
    for (line = e->code; line <= e->body; line = next) {
        const size_t length = line_of(line, &next);
        write_code(p, line, length, 0);
    }
    line_of(line, &next); /* TEST(..) { */
    for (line = next; line <= e->end; line = next) {
        const size_t length = line_of(line, &next);
        write_code(p, line, length, 4);
    }
    put(p, "```\n\n");
}

static void write_examples_of(page *p, const char *group, size_t length) {
    int i, found = 0;
    for (i = 0; i < p->n_examples; i++) {
        example *e = &p->examples[i];
        if (e->group_length != length || memcmp(e->group, group, length) != 0) continue;
        write_example(p, e);
        e->shown = found = 1;
    }
    if (found) return;
    printf("the group \"%.*s\" has no example\n", (int)length, group);
    p->findings++;
}

static void check_examples(page *p) {
    int i;
    for (i = 0; i < p->n_examples; i++) {
        const example *e = &p->examples[i];
        if (e->shown) continue;
        printf("there is no group \"%.*s\", which an example names\n", (int)e->group_length,
               e->group);
        p->findings++;
    }
}

/* ---- Declarations ---- */

/* The names of functions in a line of declarations: mpt_x before the first '(' of a line that
   declares something. */
static void find_functions(page *p, const char *line, size_t length) {
    const char *open = (const char *)memchr(line, '(', length), *name = open;
    if (!starts(line, "MPTRAIN_API ") || !open) return;
    while (name > line && (isalnum((unsigned char)name[-1]) || name[-1] == '_')) name--;
    if (!starts(name, "mpt_") || open - name >= MAX_NAME) return;
    if (p->n_functions == MAX_NAMES) fail("more than %d functions", (int)MAX_NAMES);
    snprintf(p->functions[p->n_functions++], MAX_NAME, "%.*s", (int)(open - name), name);
}

static void end_block(page *p) {
    int i;
    for (i = p->first; i < p->n_functions; i++) {
        put(p, "<a id=\"%s\"></a>", p->functions[i]);
        if (p->out || *p->comment || strstr(p->declarations, "/*")) continue;
        printf("%s has no comment\n", p->functions[i]);
        p->findings++;
    }
    if (p->first < p->n_functions) put(p, "\n\n");
    if (*p->comment) put(p, "%s\n", p->comment);
    if (*p->declarations) put(p, "```c\n%s```\n\n", p->declarations);
    p->first = p->n_functions;
    *p->comment = *p->declarations = '\0';
}

/* What only compilers read. */
static int is_scaffolding(const char *line) {
    return (*line == '#' && !starts(line, "#define MPT_")) || starts(line, "extern \"C\"");
}

/* The text of a comment that begins at `line`; returns the line behind it. */
static const char *read_comment(page *p, const char *line) {
    const char *next = line;
    for (;;) {
        size_t length = line_of(line, &next), skip = strspn(line, "/* ");
        const char *end = NULL;
        if (skip > 3) skip = 3;
        if (length >= 2 && starts(line + length - 2, "*/")) end = line + length - 2;
        if (skip > length) skip = length;
        if (end) length = (size_t)(end - line);
        while (length > skip && line[length - 1] == ' ') length--;
        append(p->comment, line + skip, length > skip ? length - skip : 0);
        if (end || !*next) return next;
        line = next;
    }
}

static void write_declarations(page *p, const char *text) {
    const char *next;
    int depth = 0, continued = 0; /* braces; a directive that goes on */
    for (; *text && !starts(text, end_of_api); text = next) {
        const char *title, *c;
        size_t length = line_of(text, &next);
        if (continued || (is_scaffolding(text) && depth == 0)) {
            continued = length > 0 && text[length - 1] == '\\';
            continue;
        }
        if (depth == 0 && starts(text, "/* ----")) { /* the banner of a room */
            while (!starts(text, " * ----") && *next) text = next, length = line_of(text, &next);
            continue;
        }
        if (depth == 0 && starts(text, "/* ====")) {
            end_block(p);
            length = title_of(text, length, &title);
            put(p, "\n## %.*s\n\n", (int)length, title);
            write_examples_of(p, title, length);
            continue;
        }
        if (depth == 0 && (length == 0 || starts(text, "/*"))) {
            end_block(p);
            if (length > 0) next = read_comment(p, text);
            continue;
        }
        if (starts(text, "}") && depth == 0) continue; /* of extern "C" */
        find_functions(p, text, length);
        for (c = text; c < text + length; c++) depth += (*c == '{') - (*c == '}');
        if (starts(text, "MPTRAIN_API "))
            append(p->declarations, text + 12, length - 12);
        else
            append(p->declarations, text, length);
    }
    end_block(p);
}

static int by_name(const void *a, const void *b) {
    return strcmp((const char *)a, (const char *)b);
}

static void write_index(page *p) {
    int i;
    qsort(p->functions, (size_t)p->n_functions, MAX_NAME, by_name);
    put(p, "\n## Index\n\n");
    for (i = 0; i < p->n_functions; i++)
        put(p, "[`%s`](#%s)%s\n", p->functions[i], p->functions[i],
            i + 1 < p->n_functions ? "," : "");
}

/* ---- Checks ---- */

static int is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Whether the API, which ends at `end`, has this word outside of its comments' beginning, the
   manual. */
static int declares(const char *api, const char *end, const char *word, size_t length) {
    const char *at = api;
    char name[MAX_NAME + 1];
    if (length > MAX_NAME) return 0;
    memcpy(name, word, length);
    name[length] = '\0';
    while ((at = strstr(at, name)) != NULL && at < end) {
        if (!is_word(at[-1]) && !is_word(at[length])) return 1;
        at += length;
    }
    return 0;
}

/* Every mpt_ and MPT_ word of a text must be declared; mpt_x_ stands for names that begin so. What
   an #ifndef asks for need not be there. */
static int check_text(const char *path, const char *text, const char *text_end, const char *api,
                      const char *end, const char *tools) {
    int line = 1, findings = 0;
    const char *at;
    for (at = text; at < text_end; at++) {
        size_t length = 0;
        line += *at == '\n';
        if (!(starts(at, "mpt_") || starts(at, "MPT_")) || (at > text && is_word(at[-1]))) continue;
        if (at - text >= 8 && starts(at - 8, "#ifndef ")) continue;
        while (is_word(at[length])) length++;
        if (length > 4 && !declares(api, end, at, length) &&
            !declares(tools + 1, tools + strlen(tools), at, length)) {
            printf("%s:%d: the header does not declare %.*s\n", path, line, (int)length, at);
            findings++;
        }
        at += length - 1;
    }
    return findings;
}

int main(int argc, char **argv) {
    static page p;
    char *header, *examples, *tools;
    const char *api, *end;
    const int check = argc > 1 && strcmp(argv[1], "--check") == 0;
    int i;
    if (check ? argc < 5 : argc != 4)
        fail("usage: reference HEADER EXAMPLES OUTPUT, or\n"
             "       reference --check HEADER EXAMPLES TOOLS TEXT...");
    header = read_text(argv[1 + check]);
    examples = read_text(argv[2 + check]);
    api = strstr(header, "\n*/\n");
    end = strstr(header, end_of_api);
    if (!api || !end || !strstr(header, "==== MANUAL 1")) fail("this is not mptrain.h");
    if (!check) {
        p.out = fopen(argv[3], "wb");
        if (!p.out) fail("cannot write %s", argv[3]);
    }
    put(&p, "# mptrain: manual and reference\n\nMade from `mptrain.h`; [index](#index).\n");
    write_manual(&p, header);
    read_examples(&p, examples);
    write_declarations(&p, api + 4);
    write_index(&p);
    check_examples(&p);
    if (check) {
        tools = read_text(argv[4]);
        p.findings += check_text(argv[2], header, api, api, end, tools);
        for (i = 5; i < argc; i++) {
            char *text = read_text(argv[i]);
            p.findings += check_text(argv[i], text, text + strlen(text), api, end, tools);
            free(text);
        }
        free(tools);
        printf("%d functions, each with a comment%s\n", p.n_functions,
               p.findings ? " but for those above" : "");
    } else if (ferror(p.out) | fclose(p.out)) {
        fail("cannot write %s", argv[3]);
    }
    free(header);
    free(examples);
    return p.findings > 0;
}
