/* house.c - the house in figures: wings, arrows between rooms, what should be nowhere.

       house [--check] src/mptrain.h

   An arrow goes from a room to each that it includes or of which it uses a name: a function is
   defined where its body stands, so a call of a public function is an arrow to its room, not to the
   declaration in face/. An arrow to a room that the spine lists later goes upward. Names that are
   pasted together go unseen; of those that are static the compiler says so (see make lint). With
   --check it prints only what has to be 0 and is not, and then ends with status 1. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"
#include "source_text.h"

enum { MAX_ROOMS = 256, MAX_WINGS = 24 };
enum { MAX_FUNCTION_LINES = 70, MAX_MACRO_LINES = 8, MAX_AVX2 = 4 };
enum { BODY, OTHER }; /* what a definition is: of a function, or of anything else */
enum { DEEPEST = 40 }; /* macros in macros */

typedef struct {
    char name[64];
    int wing;
    char *text; /* without comments and literals */
    size_t bytes;
    int lines, names_avx2, names_rmsprop;
} room;

typedef struct {
    const char *name;
    size_t length;
    int room, kind;
    const char *body, *end; /* of a macro; else NULL */
    int expanded;           /* the last room that did */
} definition;

static room rooms[MAX_ROOMS];
static char wings[MAX_WINGS][16];
static int n_rooms, n_wings;
static definition *definitions;
static size_t n_definitions, capacity;
static char uses[MAX_ROOMS][MAX_ROOMS];
static char house[256]; /* the folder of the spine, with the '/' */
static int cuda; /* a wing that is compiled apart from the others, on face and waist */
static int check, findings, long_functions, macro_lines;

static void find(const char *where, int line, const char *what, const char *name, size_t length) {
    findings++;
    if (check) printf("%s%s:%d: %s%.*s\n", house, where, line, what, (int)length, name);
}

/* ==== Reading ==== */

static int wing_of(const char *name) {
    size_t length = strcspn(name, "/");
    int w;
    for (w = 0; w < n_wings; w++) {
        if (strlen(wings[w]) == length && memcmp(wings[w], name, length) == 0) return w;
    }
    if (n_wings == MAX_WINGS || length >= sizeof wings[0]) exit(2);
    memcpy(wings[n_wings], name, length);
    return n_wings++;
}

static char *read_room(const char *name, size_t *bytes) {
    char path[400], *text;
    snprintf(path, sizeof path, "%s%s", house, name);
    text = read_file(path, bytes);
    if (text) return text;
    fprintf(stderr, "house: cannot read %s\n", path);
    exit(2);
}

/* Whether code or literals hold this word, in capitals or not. */
static int names(const char *text, const char *word) {
    size_t n = strlen(word), i;
    for (; *text; text++) {
        for (i = 0; i < n && tolower((unsigned char)text[i]) == word[i];) i++;
        if (i == n) return 1;
    }
    return 0;
}

static void add_room(const char *name, size_t length) {
    room *r = &rooms[n_rooms];
    const char *p;
    if (n_rooms == MAX_ROOMS || length >= sizeof r->name) exit(2);
    memcpy(r->name, name, length);
    r->wing = wing_of(r->name);
    r->text = read_room(r->name, &r->bytes);
    for (p = r->text; *p; p++) r->lines += *p == '\n';
    blank(r->text, 0);
    r->names_avx2 = strcmp(r->name, "face/manual.h") != 0 && names(r->text, "avx2");
    r->names_rmsprop = strcmp(r->name, "face/manual.h") != 0 && names(r->text, "rmsprop");
    blank_comments_and_literals(r->text);
    n_rooms++;
}

/* What rooms include for each instruction set stands in none of the spine's lines. In the house it
   comes behind the last room that includes it, where all is known that it uses. */
static int is_template(const char *name) {
    return strstr(name, "/template/") || strstr(name, ".inl");
}

static const char *next_include(const char *p, char name[64]) {
    size_t length;
    p = strstr(p, "#include \"");
    if (!p) return NULL;
    p += 10;
    while (strncmp(p, "../", 3) == 0) p += 3;
    length = strcspn(p, "\"\n");
    snprintf(name, 64, "%.*s", (int)length, p);
    return p + length;
}

static int room_named(const char *name) {
    int r;
    for (r = 0; r < n_rooms && strcmp(rooms[r].name, name) != 0;) r++;
    return r < n_rooms ? r : -1;
}

static void add_templates(int r) {
    const char *p = rooms[r].text;
    char name[64];
    while ((p = next_include(p, name)) != NULL) {
        if (!is_template(name) || room_named(name) >= 0) continue;
        add_room(name, strlen(name));
        add_templates(n_rooms - 1);
    }
}

/* A spine with those that it includes in their places. */
static char *read_spines(const char *name) {
    static const char *const others[] = {
        "mptrain_watch.h", "mptrain_compile.h", "mptrain_parallel.h"};
    size_t bytes, inner_bytes, i;
    char *spine = read_room(name, &bytes);
    for (i = 0; i < sizeof others / sizeof *others; i++) {
        char line[64], *at, *next, *inner, *all;
        sprintf(line, "#include \"%s\"", others[i]);
        if ((at = strstr(spine, line)) == NULL) continue;
        for (next = at; (next = strstr(next + 1, line)) != NULL; at = next) /* the last place */
            memset(at, ' ', strlen(line));
        inner = read_room(others[i], &inner_bytes);
        all = (char *)malloc(bytes + inner_bytes + 1);
        if (!all) exit(2);
        sprintf(all, "%.*s%s%s", (int)(at - spine), spine, inner, at + strlen(line));
        free(spine), free(inner);
        spine = all, bytes += inner_bytes;
    }
    return spine;
}

static void read_spine(const char *spine_name, const char *folder) {
    const int first = n_rooms;
    char *spine = read_spines(spine_name), name[64], path[80];
    const char *p;
    int last = -1, pass, r;
    blank(spine, 0);
    for (pass = 0; pass < 2; pass++) { /* the first finds the last room that includes templates */
        n_rooms = first;
        for (p = spine; (p = next_include(p, name)) != NULL;) {
            snprintf(path, sizeof path, "%s%s", folder, name);
            if (strcmp(path, "cuda/mptrain.h") == 0) continue;
            add_room(path, strlen(path));
            if (pass == 1 && n_rooms - 1 == last) add_templates(last);
        }
        for (r = first; pass == 0 && r < n_rooms; r++) {
            for (p = rooms[r].text; (p = next_include(p, name)) != NULL;) {
                if (is_template(name)) last = r;
            }
            free(rooms[r].text);
        }
        if (pass == 0) memset(&rooms[first], 0, (size_t)(n_rooms - first) * sizeof *rooms);
    }
    free(spine);
}

/* ==== What a room defines ==== */

static void define(int r, const char *name, size_t length, int kind) {
    definition d;
    if (length < 4 || (strncmp(name, "mpt_", 4) != 0 && strncmp(name, "MPT", 3) != 0)) return;
    if (n_definitions == capacity) {
        capacity = 2 * capacity + 4096;
        definitions = (definition *)realloc(definitions, capacity * sizeof d);
        if (!definitions) exit(2);
    }
    d.name = name, d.length = length, d.room = r, d.kind = kind;
    d.body = d.end = NULL, d.expanded = -1;
    definitions[n_definitions++] = d;
}

static size_t name_length(const char *p) {
    size_t n = 0;
    while (is_name(p[n])) n++;
    return n;
}

/* The name that ends before `end`, spaces aside; its length is 0 where there is none. */
static const char *name_before(const char *start, const char *end, size_t *length) {
    const char *p;
    while (end > start && isspace((unsigned char)end[-1])) end--;
    for (p = end; p > start && is_name(p[-1]);) p--;
    *length = (size_t)(end - p);
    return p;
}

/* The parenthesis that the one at `close` closes. */
static const char *opening(const char *start, const char *close) {
    int depth = 0;
    for (; close >= start; close--) {
        depth += (*close == ')') - (*close == '(');
        if (depth == 0) return close;
    }
    return start;
}

/* A declaration at file scope that ends in ';' or '=' defines what it names. The name of a
   prototype is blanked: it is neither defined nor used there. */
static void define_declared(int r, const char *start, const char *end) {
    size_t length;
    const char *name, *before, *p;
    while (end > start && isspace((unsigned char)end[-1])) end--;
    while (end > start && end[-1] == ']') {
        while (end > start && *--end != '[') {}
        while (end > start && isspace((unsigned char)end[-1])) end--;
    }
    if (end > start && end[-1] == ')') { /* a prototype, or a type or pointer: (*name)(..) */
        p = opening(start, end - 1);
        name = name_before(start, p, &length);
        for (before = name; before > start && isspace((unsigned char)before[-1]);) before--;
        if (length > 0 && before > start && (is_name(before[-1]) || before[-1] == '*'))
            memset(rooms[r].text + (name - rooms[r].text), ' ', length);
        while (p > start && isspace((unsigned char)p[-1])) p--;
        if (p == start || p[-1] != ')') return;
        end = p - 1;
    }
    name = name_before(start, end, &length);
    define(r, name, length, OTHER);
}

/* Tags and the constants of an enum, from `start` to the brace that ends it. */
static void define_inside(int r, const char *start, const char *brace, const char *end) {
    const char *p = start, *word = NULL;
    int constant = 0;
    for (; p < brace; p += name_length(p) + !is_name(*p)) {
        if (word && is_name(*p)) define(r, p, name_length(p), OTHER), word = NULL;
        if (strncmp(p, "struct ", 7) == 0 || strncmp(p, "union ", 6) == 0) word = p;
        if (strncmp(p, "enum ", 5) == 0) word = p, constant = 1;
    }
    for (; constant && p < end; p++) {
        while (p < end && !is_name(*p)) p++;
        define(r, p, name_length(p), OTHER);
        while (p < end && *p != ',') p++;
    }
}

/* Where the directive at `start` ends, with its continuation lines. */
static const char *directive_end(const char *start) {
    const char *p = start;
    while (*p && (*p != '\n' || p[-1] == '\\')) p++;
    return p;
}

/* What directives define, wherever they stand. */
static void read_directives(int r) {
    const char *p = rooms[r].text, *end, *q;
    size_t before;
    for (; *p; p = *end ? end + 1 : end) {
        int lines = 1, statements = 0;
        p += strspn(p, " \t");
        end = *p == '#' ? directive_end(p) : p + strcspn(p, "\n");
        if (*p++ != '#') continue;
        p += strspn(p, " \t");
        if (strncmp(p, "define ", 7) != 0) continue;
        p += 7 + strspn(p + 7, " \t");
        before = n_definitions;
        define(r, p, name_length(p), OTHER);
        if (n_definitions > before)
            definitions[before].body = p + name_length(p), definitions[before].end = end;
        for (q = p; q < end; q++) {
            lines += *q == '\n';
            statements |= *q == ';';
        }
        if (lines > MAX_MACRO_LINES && statements && rooms[r].wing != cuda) macro_lines += lines;
    }
}

/* Where what begins at `brace` ends: functions, types and tables of this house end with a brace
   that begins its line, or on the line on which they begin. */
static const char *closing(const char *brace, int *line) {
    const char *p = brace;
    int depth = 0;
    for (; *p && *p != '\n'; p++) {
        depth += (*p == '{') - (*p == '}');
        if (depth == 0 && *p == '}') return p;
    }
    for (depth = 0; *p; p++) {
        if (*p == '\n') ++*line;
        if (*p == '\n' && p[1] == '}') return p + 1;
        if (*p == '}' && (p[1] == ';' || p[1] == ',') && (p[2] == '\n' || p[2] == ' ') &&
            brace[-1] != ')' && brace[-2] != ')') { /* a table may end in its last line */
            const char *q;
            for (depth = 0, q = brace; q <= p; q++) depth += (*q == '{') - (*q == '}');
            if (depth == 0) return p;
        }
    }
    return p;
}

static void read_definitions(int r) {
    const char *text = rooms[r].text, *p = text, *start = text, *name, *end;
    int line = 1, first = 1, is_function;
    size_t length;
    for (; *p; p++) {
        if (*p == '\n') line++;
        if (*p == '#' && (p == text || p[-1] == '\n')) {
            for (end = directive_end(p); p < end; p++) line += *p == '\n';
            if (!*p) return;
            line++;
            start = p;
        } else if (*p == ';' || *p == '=') {
            define_inside(r, start, p, p);
            define_declared(r, start, p);
            while (*p && *p != ';' && *p != '{') line += *p++ == '\n';
            if (*p == '{') p = closing(p, &line);
            while (*p && *p != ';') line += *p++ == '\n';
            if (!*p) return;
            start = p + 1;
        } else if (*p == '{') {
            const char *before = p;
            while (before > start && isspace((unsigned char)before[-1])) before--;
            if (before > start && before[-1] == '"') { /* extern "C" { */
                start = p + 1;
                continue;
            }
            is_function = before > start && before[-1] == ')';
            first = line;
            end = closing(p, &line);
            if (is_function) {
                name = name_before(start, opening(start, before - 1), &length);
                define(r, name, length, BODY);
                if (line - first + 1 > MAX_FUNCTION_LINES) {
                    find(rooms[r].name, first, "a function above 70 lines: ", name, length);
                    long_functions++;
                }
            } else {
                define_inside(r, start, p, end);
            }
            p = end;
            if (!*p) return;
            start = p + 1;
        } else if (*p == '}') {
            start = p + 1;
        }
    }
}

/* ==== Arrows ==== */

static int compare(const void *a, const void *b) {
    const definition *x = (const definition *)a, *y = (const definition *)b;
    size_t n = x->length < y->length ? x->length : y->length;
    int order = memcmp(x->name, y->name, n);
    if (order != 0) return order;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return x->room - y->room;
}

static int sees(int wing, int other) {
    if (wing != cuda) return other != cuda;
    return other == cuda || strcmp(wings[other], "face") == 0 || strcmp(wings[other], "waist") == 0;
}

static size_t first_of(const char *name, size_t length) {
    definition key;
    size_t low = 0, high = n_definitions;
    key.name = name, key.length = length, key.room = -1;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (compare(&definitions[middle], &key) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int is_of(size_t i, const char *name, size_t length) {
    return i < n_definitions && definitions[i].length == length &&
           memcmp(definitions[i].name, name, length) == 0;
}

/* What a name means in room r: of several definitions its own, or the last before it; where a
   function has a body, declarations do not count. NULL: nothing that is known here. */
static definition *meaning(int r, const char *name, size_t length) {
    definition *best = NULL;
    size_t i;
    for (i = first_of(name, length); is_of(i, name, length); i++) {
        definition *d = &definitions[i];
        if (!sees(rooms[r].wing, rooms[d->room].wing)) continue;
        if (d->room == r) return d;
        if (!best || d->kind < best->kind || (d->kind == best->kind && d->room < r)) best = d;
    }
    return best;
}

static void add_arrow(int from, int to, const char *name, size_t length, int line) {
    if (to == from || uses[from][to]) return;
    uses[from][to] = 1;
    if (to > from) find(rooms[from].name, line, "upward: ", name, length);
}

/* Whether room r includes room t, or what does is a template that r includes. */
static int is_read_in(int t, int r) {
    int i;
    if (uses[r][t]) return 1;
    for (i = 0; i < n_rooms; i++) {
        if (uses[r][i] && uses[i][t] && is_template(rooms[i].name)) return 1;
    }
    return 0;
}

/* Whether a room that reads template r gives it this name, as a level gives its words. */
static int is_readers(int r, const char *name, size_t length) {
    size_t i;
    for (i = first_of(name, length); is_of(i, name, length); i++)
        if (is_read_in(r, definitions[i].room)) return 1;
    return 0;
}

/* A pointer to a struct of the own wing, of which nothing need be known. */
static int is_opaque(int r, const definition *d, const char *p, size_t length) {
    const char *after = p + length + strspn(p + length, " ");
    return *after == '*' && p - rooms[r].text > 7 && strncmp(p - 7, "struct ", 7) == 0 &&
           rooms[d->room].wing == rooms[r].wing;
}

static void read_names(int r, const char *p, const char *end, int line, int depth);

/* A macro uses nothing where it stands, but where it is expanded. */
static void use_name(int r, const char *p, size_t length, int line, int depth) {
    definition *d = meaning(r, p, length);
    if (!d || (depth == 0 && is_opaque(r, d, p, length))) return;
    if (is_template(rooms[r].name) && is_readers(r, p, length)) return;
    add_arrow(r, d->room, p, length, line);
    if (!d->body || d->expanded == r || depth == DEEPEST) return;
    d->expanded = r;
    read_names(r, d->body, d->end, line, depth + 1);
}

static void read_names(int r, const char *p, const char *end, int line, int depth) {
    int lines = depth == 0;
    while (p < end) {
        size_t length = name_length(p);
        if (length > 0) {
            use_name(r, p, length, line, depth);
            p += length;
        } else if (lines && *p == '#' && strncmp(p + 1 + strspn(p + 1, " \t"), "define", 6) == 0) {
            for (; p < end && (*p != '\n' || p[-1] == '\\'); p++) line += *p == '\n';
        } else {
            line += lines && *p == '\n';
            p++;
        }
    }
}

static void read_includes(int r) {
    const char *p = rooms[r].text, *end;
    char name[64];
    int line = 1, to;
    for (; (end = next_include(p, name)) != NULL; p = end) {
        for (; p < end; p++) line += *p == '\n';
        to = room_named(name);
        if (to >= 0 && is_template(name)) uses[r][to] = 1; /* it is read there: not upward */
        else if (to >= 0) add_arrow(r, to, name, strlen(name), line);
    }
}

/* Groups of more than one of `count` that reach each other; `reaches` is completed. */
static int circles(int count, char reaches[MAX_ROOMS][MAX_ROOMS]) {
    int i, j, k, found = 0;
    for (k = 0; k < count; k++)
        for (i = 0; i < count; i++)
            for (j = 0; j < count && reaches[i][k]; j++) reaches[i][j] |= reaches[k][j];
    for (i = 0; i < count; i++) {
        int first = 1, circle = 0;
        for (j = 0; j < count; j++) {
            if (j == i || !reaches[i][j] || !reaches[j][i]) continue;
            circle = 1;
            if (j < i) first = 0;
        }
        found += first && circle;
    }
    return found;
}

/* ==== Printing ==== */

static void print_wing(int w, int arrows[MAX_WINGS][MAX_WINGS]) {
    int r, count = 0, lines = 0, to;
    size_t bytes = 0;
    for (r = 0; r < n_rooms; r++) {
        if (rooms[r].wing != w) continue;
        count++, lines += rooms[r].lines, bytes += rooms[r].bytes;
    }
    printf("%-10s %5d %6d %8lu  ", wings[w], count, lines, (unsigned long)bytes);
    for (to = 0; to < n_wings; to++) {
        if (arrows[w][to]) printf(" %s %d", to == w ? "itself" : wings[to], arrows[w][to]);
    }
    printf("\n");
}

static void print_house(void) {
    static int arrows[MAX_WINGS][MAX_WINGS];
    static char reaches[MAX_ROOMS][MAX_ROOMS], wing_uses[MAX_ROOMS][MAX_ROOMS];
    int from, to, w, all = 0, upward = 0, avx2 = 0, rmsprop = 0, of_rooms, of_wings;
    for (from = 0; from < n_rooms; from++) {
        avx2 += rooms[from].names_avx2, rmsprop += rooms[from].names_rmsprop;
        for (to = 0; to < n_rooms; to++) {
            if (!uses[from][to]) continue;
            all++, upward += to > from && !is_template(rooms[to].name);
            arrows[rooms[from].wing][rooms[to].wing]++;
            wing_uses[rooms[from].wing][rooms[to].wing] = 1;
        }
    }
    memcpy(reaches, uses, sizeof uses);
    of_rooms = circles(n_rooms, reaches), of_wings = circles(n_wings, wing_uses);
    if (of_wings + of_rooms > 0) {
        findings++;
        if (check) printf("%d circles of rooms, %d of wings\n", of_rooms, of_wings);
    }
    if (macro_lines > 0) {
        findings++;
        if (check) printf("%d lines of statements in macro bodies: write functions\n", macro_lines);
    }
    if (avx2 > MAX_AVX2) {
        findings++;
        if (check) printf("%d rooms name avx2, at most %d\n", avx2, (int)MAX_AVX2);
    }
    if (check) return;
    printf("%-10s %5s %6s %8s   arrows to\n", "wing", "rooms", "lines", "bytes");
    for (w = 0; w < n_wings; w++) print_wing(w, arrows);
    printf("arrows: %d, upward: %d, circles of rooms: %d, of wings: %d\n", all, upward, of_rooms,
           of_wings);
    printf("lines in macro bodies over %d lines that hold statements, cuda aside: %d\n",
           (int)MAX_MACRO_LINES, macro_lines);
    printf("functions above %d lines: %d\n", (int)MAX_FUNCTION_LINES, long_functions);
    printf("rooms whose code names avx2: %d, rmsprop: %d (manual aside)\n", avx2, rmsprop);
}

int main(int argc, char **argv) {
    const char *slash;
    int r;
    check = argc == 3 && strcmp(argv[1], "--check") == 0;
    slash = argc == 2 + check ? strrchr(argv[argc - 1], '/') : NULL;
    if (!slash || (size_t)(slash - argv[argc - 1]) + 2 > sizeof house) {
        fprintf(stderr, "usage: house [--check] FOLDER/SPINE\n");
        return 2;
    }
    memcpy(house, argv[argc - 1], (size_t)(slash - argv[argc - 1]) + 1);
    read_spine(slash + 1, "");
    cuda = n_wings;
    read_spine("cuda/mptrain_cuda.cu", "cuda/");
    for (r = 0; r < n_rooms; r++) read_directives(r), read_definitions(r);
    if (n_definitions) qsort(definitions, n_definitions, sizeof *definitions, compare);
    for (r = 0; r < n_rooms; r++) read_includes(r);
    for (r = 0; r < n_rooms; r++) { /* the lines of an .inl belong to who includes it */
        const char *text = rooms[r].text;
        if (!strstr(rooms[r].name, ".inl")) read_names(r, text, text + strlen(text), 1, 0);
    }
    print_house();
    return check && findings != 0;
}
