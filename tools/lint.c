/* lint.c - the rules of the house that a compiler does not check.

       lint src/mptrain.h FILE...

   The first file is the spine. Files below its folder are rooms of the library and are held to all
   rules; other files to those about layout and left-over markers. Which wing may use which, and
   that a room needs nothing else, the compiler says: see the Makefile. Prints one line per finding
   and ends with status 1 when there is any. The rules are the tables below. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "read_file.h"
#include "source_text.h"

enum { MAX_COLUMNS = 100, MAX_ROOM_LINES = 1200, MAX_EXAMPLE_LINES = 149 };

/* Where a word may stand: BASE is the rooms that know the system; SIMD those with code per
   instruction set. A place that ends in '/' is a folder. */
enum { NOWHERE, BASE, SIMD, BASE_AND_SIMD };
static const char *const base_rooms[] = {"ground/base.c", "ground/files.c", "ground/platform.h",
    "files.c", "records.c"}; /* of src/tools/ */
static const char *const simd_rooms[] = {"cpu/"};

/* The words that kernels are written in; cpu/vocabulary_end.h takes their names back. */
static const char vocabulary_room[] = "cpu/vocabulary.h", vocabulary_prefix[] = "v_";

/* How a word is matched: a whole identifier; one that is called, other than through a pointer in a
   struct; the start of an identifier. */
enum { WORD, CALL, PREFIX };

typedef struct {
    const char *words; /* separated by spaces */
    int match, where;
    const char *message;
} rule;

static const rule rules[] = {
    {"printf fprintf sprintf snprintf vprintf vfprintf vsprintf vsnprintf dprintf puts fputs "
     "putchar putc fputc perror scanf sscanf fscanf",
     CALL, NOWHERE, "the library does not print or scan with the C library"},
    {"exit _exit _Exit quick_exit abort assert atexit raise", CALL, NOWHERE,
     "the library never ends the process"},
    {"setlocale signal sigaction strtod strtof strtold atof qsort bsearch rand srand", CALL,
     NOWHERE, "depends on the locale, on the process or on the platform"},
    {"malloc calloc realloc free aligned_alloc posix_memalign strdup fopen fread fwrite fclose "
     "fseek ftell remove rename getenv clock_gettime pthread_create pthread_join",
     CALL, BASE, "the system is reached through ground/base.c; by tools through files.c"},
    {"exp expf exp2 exp2f expm1 expm1f log logf log2 log2f log10 log10f log1p log1pf tanh tanhf "
     "sinh cosh sin sinf cos cosf tan tanf asin acos atan atan2 pow powf erf erff erfc cbrt hypot "
     "fma fmaf tgamma lgamma",
     CALL, NOWHERE, "its bits differ between platforms: use the library's own"},
    {"isnan isinf isfinite isnormal fpclassify", CALL, NOWHERE,
     "broken by -ffast-math: test the bits"},
    {"_Pragma __pragma", WORD, BASE, "pragmas live in ground/base.c"},
    {"asm __asm __asm__", WORD, SIMD, "asm lives in the SIMD rooms"},
    {"target __target__ MPT__TARGET", CALL, BASE_AND_SIMD,
     "target attributes live in the SIMD rooms"},
    {"_mm _tile_ __m128 __m256 __m512 __cpuid _xgetbv vld1 vst1 vcvt_ vfma float32x4 float16x",
     PREFIX, SIMD, "intrinsics live in the SIMD rooms"},
    {"__atomic_ __sync_ Interlocked _Interlocked atomic_ _Atomic", PREFIX, BASE,
     "atomics live in ground/base.c"},
    {"restrict", WORD, NOWHERE, "not C++: write MPT__RESTRICT"},
};

static const char *const api_headers[] = {"stdbool.h", "stddef.h", "stdint.h"};

/* Macros of the platform that ground/base.c may set. All others begin with MPT. */
static const char *const platform_macros[] = {"_POSIX_C_SOURCE", "_DEFAULT_SOURCE",
    "_DARWIN_C_SOURCE", "_GNU_SOURCE", "_FILE_OFFSET_BITS", "WIN32_LEAN_AND_MEAN", "NOMINMAX",
    "_CRT_SECURE_NO_WARNINGS", "_WIN32_WINNT", "STB_IMAGE_IMPLEMENTATION",
    "STBI_ASSERT", "STBI_MALLOC", "STBI_REALLOC_SIZED", "STBI_FREE"};

/* Those of MPI, for the room that includes it. */
static const char *const mpi_macros[] = {"OMPI_SKIP_MPICXX", "MPICH_SKIP_MPICXX"};

/* Written in halves so that this file does not find itself. */
static const char *const markers[] = {"TO" "DO", "FIX" "ME", "XX" "X", "HA" "CK"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static int findings;
static int broken[sizeof rules / sizeof rules[0]]; /* by the file: each rule is reported once */
static const char *path; /* of the file under examination */
static char house[256];  /* the folder of the spine, with the '/' */
static int line_number;

static void report(const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%s:%d: ", path, line_number);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    findings++;
}

static char *read_text(const char *name) {
    char *text = read_file(name, NULL);
    if (text) return text;
    fprintf(stderr, "lint: cannot read %s\n", name);
    exit(2);
}

/* What a room is called in includes and in the tables above, "wing/name.c"; NULL for other files.
   */
static const char *room_of(const char *name) {
    size_t n = strlen(house);
    return n > 0 && strncmp(name, house, n) == 0 ? name + n : NULL;
}

static int stands_in(const char *const *places, size_t count, const char *room) {
    size_t i;
    for (i = 0; i < count; i++) {
        size_t n = strlen(places[i]);
        if (places[i][n - 1] == '/' ? strncmp(room, places[i], n) == 0
                                    : strcmp(room, places[i]) == 0)
            return 1;
    }
    return 0;
}

static int allowed(int where, const char *room) {
    int base = where != SIMD && stands_in(base_rooms, COUNT(base_rooms), room);
    int simd = where != BASE && stands_in(simd_rooms, COUNT(simd_rooms), room);
    return where != NOWHERE && (base || simd);
}

/* Whether the list of words holds the identifier, or a start of it when `prefix` is set. */
static int listed(const char *words, const char *name, size_t length, int prefix) {
    while (*words) {
        size_t n = strcspn(words, " ");
        if ((prefix ? n <= length : n == length) && memcmp(words, name, n) == 0) return 1;
        words += n;
        words += strspn(words, " ");
    }
    return 0;
}

/* Examines the identifier at code[0..length), which stands in `line`. */
static void check_identifier(const char *line, const char *name, size_t length, const char *room) {
    const char *after = name + length, *before = name;
    int called, member;
    size_t i;
    while (*after == ' ') after++;
    while (before > line && before[-1] == ' ') before--;
    called = *after == '(';
    member = before > line && (before[-1] == '.' || (before - line >= 2 && before[-1] == '>' &&
                                                     before[-2] == '-'));
    for (i = 0; i < COUNT(rules); i++) {
        const rule *r = &rules[i];
        if (allowed(r->where, room) || (r->match == CALL && (!called || member))) continue;
        if (!broken[i] && listed(r->words, name, length, r->match == PREFIX)) {
            broken[i] = 1;
            report("%.*s: %s", (int)length, name, r->message);
        }
    }
    if (before > line && before[-1] == '.' && name == before) {
        const char *p = before - 1;
        while (p > line && p[-1] == ' ') p--;
        if (p > line && (p[-1] == '{' || p[-1] == ',')) report("designated initialiser: not C++17");
    }
}

static void check_code_line(const char *line, const char *room) {
    const char *p = line;
    while (*p) {
        size_t length = 0;
        while (is_name(p[length])) length++;
        if (length == 0) {
            p++;
            continue;
        }
        if (!isdigit((unsigned char)*p)) check_identifier(line, p, length, room);
        p += length;
    }
}

static int in_list(const char *const *list, size_t count, const char *name, size_t length) {
    size_t i;
    for (i = 0; i < count; i++) {
        if (strlen(list[i]) == length && memcmp(list[i], name, length) == 0) return 1;
    }
    return 0;
}

static void check_include(const char *rest, const char *room) {
    const char *name = rest + 1;
    size_t length = strcspn(name, "\">\n");
    if (*rest == '<') {
        int face = strncmp(room, "face/", 5) == 0;
        if (face && !in_list(api_headers, COUNT(api_headers), name, length))
            report("the API includes only stddef, stdint and stdbool");
        if (length == 11 && memcmp(name, "stdatomic.h", 11) == 0)
            report("stdatomic.h does not exist in C++17");
        if ((length == 11 && memcmp(name, "immintrin.h", 11) == 0) ||
            (length == 10 && memcmp(name, "arm_neon.h", 10) == 0)) {
            if (!allowed(SIMD, room)) report("intrinsics live in the SIMD rooms");
        }
        return;
    }
}

static void check_directive(const char *line, const char *room) {
    const char *p = line + strspn(line, " \t");
    size_t length;
    if (*p++ != '#') return;
    p += strspn(p, " \t");
    if (strncmp(p, "pragma", 6) == 0 && !allowed(BASE, room)) {
        report("pragmas live in ground/base.c");
    } else if (strncmp(p, "include", 7) == 0) {
        p += 7;
        check_include(p + strspn(p, " \t"), room);
    } else if (strncmp(p, "define", 6) == 0) {
        p += 6;
        p += strspn(p, " \t");
        for (length = 0; is_name(p[length]);) length++;
        int is_word = strcmp(room, vocabulary_room) == 0 &&
                      strncmp(p, vocabulary_prefix, sizeof vocabulary_prefix - 1) == 0;
        if (!is_word && strncmp(p, "MPT", 3) != 0 && strncmp(p, "mpt__", 5) != 0 &&
            !(allowed(BASE, room) && in_list(platform_macros, COUNT(platform_macros), p, length)) &&
            !(strcmp(room, "parallel/world.c") == 0 &&
              in_list(mpi_macros, COUNT(mpi_macros), p, length)))
            report("macro %.*s lacks the prefix MPT", (int)length, p);
    }
}

/* Layout and left-over markers: rules for every file. `line` has no '\n'. */
static void check_layout(const char *line, int is_room) {
    size_t length = strlen(line), columns = 0, i;
    for (i = 0; i < length; i++) {
        unsigned char c = (unsigned char)line[i];
        if ((c & 0xC0) != 0x80) columns++;
        if (c == '\t') report("tab");
        if (c == '\r') report("carriage return");
        if (is_room && c >= 0x80) {
            report("not ASCII");
            break;
        }
    }
    if (columns > MAX_COLUMNS) report("%d columns, at most %d", (int)columns, (int)MAX_COLUMNS);
    if (length > 0 && line[length - 1] == ' ') report("space at the end of the line");
    for (i = 0; i < COUNT(markers); i++) {
        const char *at = strstr(line, markers[i]);
        size_t n = strlen(markers[i]);
        if (at && (at == line || !is_name(at[-1])) && !is_name(at[n])) report("left-over marker");
    }
}

/* What is included for each instruction set. */
static int is_template(const char *room) {
    return strstr(room, "/template/") != NULL || strstr(room, ".inl") != NULL;
}

/* Rooms but the manual, the declarations, the changelog and templates are guarded by
   MPT__WING_NAME_INCLUDED. */
static void check_guard(const char *text, const char *room) {
    char guard[128];
    size_t n = 0;
    if (strncmp(room, "face/", 5) == 0 || is_template(room)) return;
    n += (size_t)snprintf(guard, sizeof guard, "#ifndef MPT__");
    for (; *room && *room != '.' && n < sizeof guard - 16; room++)
        guard[n++] = *room == '/' ? '_' : (char)toupper((unsigned char)*room);
    snprintf(guard + n, sizeof guard - n, "_INCLUDED\n");
    line_number = 1;
    if (!strstr(text, guard)) report("no guard %.*s", (int)strlen(guard) - 9, guard + 8);
}

static void check_length(int lines, const char *room) {
    int is_example = strncmp(path, "examples/", 9) == 0 && strstr(path, ".c") != NULL;
    if (room && lines > MAX_ROOM_LINES)
        report("a room of %d lines, at most %d", lines, (int)MAX_ROOM_LINES);
    if (is_example && lines > MAX_EXAMPLE_LINES)
        report("an example of %d lines, at most %d", lines, (int)MAX_EXAMPLE_LINES);
}

/* Calls the checks for each line; blanked is NULL for files that are no rooms. */
static void check_lines(char *text, char *blanked, const char *room) {
    size_t total = strlen(text);
    char *line = text;
    if (total > 0 && text[total - 1] != '\n') report("no newline at the end of the file");
    for (line_number = 1; *line; line_number++) {
        size_t length = strcspn(line, "\n");
        char *next = line + length + (line[length] == '\n');
        line[length] = '\0';
        check_layout(line, room != NULL);
        if (blanked) {
            char *code = blanked + (line - text);
            code[length] = '\0';
            check_directive(code, room);
            check_code_line(code, room);
        }
        line = next;
    }
    line_number--;
}

static void check_file(const char *name) {
    char *text = read_text(name), *blanked = NULL;
    const char *room = room_of(name);
    path = name;
    line_number = 1;
    memset(broken, 0, sizeof broken);
    if (room) {
        check_guard(text, room);
        blanked = read_text(name);
        blank_comments_and_literals(blanked);
    }
    check_lines(text, blanked, room);
    check_length(line_number, room);
    free(blanked);
    free(text);
}

/* The spine, and behind it those of the rooms that are files of their own. */
static char *read_spines(const char *name) {
    static const char *const others[] = {
        "mptrain_watch.h", "mptrain_compile.h", "mptrain_parallel.h"};
    char *text = read_text(name);
    size_t i;
    for (i = 0; i < COUNT(others); i++) {
        char beside[300], line[64], *other, *both;
        snprintf(line, sizeof line, "#include \"%s\"", others[i]);
        if (!strstr(text, line)) continue;
        snprintf(beside, sizeof beside, "%s%s", house, others[i]);
        other = read_text(beside);
        both = (char *)malloc(strlen(text) + strlen(other) + 1);
        if (!both) exit(2);
        strcat(strcpy(both, text), other);
        free(text), free(other);
        text = both;
    }
    return text;
}

/* Every file of the house but templates is listed in a spine, once. That a room includes only
   what is listed before it, the amalgamator checks. */
static void check_spine(const char *name, int n_files, char **files) {
    char *text = read_spines(name);
    int i;
    path = name;
    line_number = 1;
    blank_comments_and_literals(text);
    for (i = 0; i < n_files; i++) {
        const char *room = room_of(files[i]);
        char include[160], *first;
        if (!room || is_template(room)) continue;
        snprintf(include, sizeof include, "#include \"%.100s\"\n", room);
        first = strstr(text, include);
        if (!first) report("does not list %s", room);
        else if (strchr(room, '/') && strstr(first + 1, include))
            report("lists %s twice", room); /* spines may have rooms in two places */
    }
    free(text);
}

int main(int argc, char **argv) {
    const char *slash = argc > 1 ? strrchr(argv[1], '/') : NULL;
    int i;
    if (!slash || (size_t)(slash - argv[1]) + 2 > sizeof house) {
        fprintf(stderr, "usage: lint FOLDER/SPINE FILE...\n");
        return 2;
    }
    memcpy(house, argv[1], (size_t)(slash - argv[1]) + 1);
    check_spine(argv[1], argc - 2, argv + 2);
    for (i = 2; i < argc; i++) check_file(argv[i]);
    if (findings) printf("lint: %d findings\n", findings);
    return findings != 0;
}
