/* fuzz_numbers.c: numbers as tables have them beside strtod, and numbers as texts beside printf, in
   the C locale. The first byte says which mark stands for the point and what else is done, eight
   more are the seed of a batch of numbers made here; what is behind is a text of its own.

   A text is a number here where it is one for strtod, and then the same double, to the bit; a table
   makes of that what C makes of it as a float. What differs on purpose:
   - hexadecimal numbers are none; inf and nan are words of their own, nan(..) is none of them;
   - blanks before a number are for who reads the fields;
   - U+2212, the minus sign of typesetters, is one;
   - the mark can be a comma;
   - a float is rounded twice, to double and then to float, as mpt_csv tells, where strtof rounds
     once;
   - a NaN is written without its sign. */
#define MPTRAIN_NO_CONV /* nothing here needs these, which take long to compile */
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_NO_FP8
#define MPTRAIN_NO_FIT
#define MPTRAIN_NO_GRAPH
#define MPTRAIN_NO_RESUME
#define MPTRAIN_NO_WATCH
#include "fuzz.h"

#include <float.h>
#include <math.h>

enum { MAX_SIZE = 4096, BATCH = 256, COMMA = 1, TABLE = 2, LONGEST = 2400 };

typedef struct number_text {
    char text[LONGEST + 1];
    size_t size;
} number_text;

static uint32_t drawn(uint64_t *state, uint32_t below) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % below;
}

static uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* ==== The two beside each other ==== */

/* What strtod says of a text as we take it. */
static bool their_number(const char *text, size_t size, char mark, double *value) {
    static char copy[MAX_SIZE + 1];
    char *end;
    if (size >= 3 && memcmp(text, "\xe2\x88\x92", 3) == 0) {
        copy[0] = '-';
        memcpy(copy + 1, text + 3, size -= 3);
        size++;
    } else {
        memcpy(copy, text, size);
    }
    copy[size] = 0;
    for (size_t i = 0; i < size; i++) {
        if (copy[i] == '.' && mark != '.') return false;
        if (copy[i] == mark) copy[i] = '.';
        if (!copy[i] || !strchr("0123456789.eE+-", copy[i])) return false;
    }
    *value = strtod(copy, &end);
    return size > 0 && end == copy + size;
}

static void compare_number(const char *text, size_t size, char mark) {
    double expected = 0, got = 0;
    const bool is_one = their_number(text, size, mark, &expected);
    char *exact = (char *)malloc(size ? size : 1);
    PROMISE(exact != NULL);
    if (size) memcpy(exact, text, size);
    const bool ours = mpt__parse_number(exact, size, mark, &got);
    if (ours != is_one || (ours && bits_of(got) != bits_of(expected)))
        fprintf(stderr, "%.*s: %d %a, strtod: %d %a\n", (int)size, text, ours, got, is_one,
                expected);
    PROMISE(ours == is_one);
    PROMISE(!ours || bits_of(got) == bits_of(expected));
    if (!is_one) mpt__number_like(exact, size);
    free(exact);
}

/* Words that strtod reads: they are infinite, or no value. */
static void compare_word(const char *text, size_t size) {
    char copy[12], *end;
    if (size == 0 || size >= sizeof copy || strpbrk(text, "( \t\n\v\f\r")) return;
    memcpy(copy, text, size);
    copy[size] = 0;
    const double value = strtod(copy, &end);
    if (end != copy + size || strlen(copy) != size) return;
    PROMISE((value != value) == mpt__field_missing(text, size));
    if (strpbrk(copy, "nN")) PROMISE((value == value) == mpt__word_infinite(text, size));
}

static void compare_written(double value, int digits) {
    char ours[64], theirs[64], format[8];
    snprintf(format, sizeof format, "%%.%dg", digits);
    mpt__format_text(ours, sizeof ours, format, value);
    snprintf(theirs, sizeof theirs, "%.*g", digits, value);
    const char *from = value != value && theirs[0] == '-' ? theirs + 1 : theirs;
    if (strcmp(ours, from) != 0) fprintf(stderr, "%s, printf: %s\n", ours, from);
    PROMISE(strcmp(ours, from) == 0);
}

/* ==== Numbers ==== */

static void add_char(number_text *t, char c) {
    if (t->size < LONGEST) t->text[t->size++] = c;
    t->text[t->size] = 0;
}

static void add_digits(number_text *t, uint64_t *state, uint32_t n, bool zeros) {
    while (n-- > 0) add_char(t, (char)('0' + (zeros ? 0 : drawn(state, 10))));
}

static void add_exponent(number_text *t, uint64_t *state, int32_t most) {
    char exponent[16];
    if (drawn(state, 4) == 0) return;
    snprintf(exponent, sizeof exponent, drawn(state, 3) ? "e%d" : "E%+03d",
             (int)drawn(state, 2 * (uint32_t)most) - most);
    for (const char *p = exponent; *p; p++) add_char(t, *p);
}

/* Any double, often one at an end of the range. */
static double draw_double(uint64_t *state) {
    static const uint32_t rare[] = {0, 0, 1, 2, 1023, 1022, 1075, 1076, 2045, 2046, 897, 1150, 874};
    uint64_t bits = (uint64_t)drawn(state, 1u << 31) << 33 | (uint64_t)drawn(state, 1u << 31) << 2;
    if (drawn(state, 3) == 0)
        bits = (bits & ~(UINT64_C(0x7ff) << 52)) | (uint64_t)rare[drawn(state, 13)] << 52;
    if (drawn(state, 6) == 0) bits &= ~(UINT64_C(0xfffffffffffff) >> drawn(state, 53));
    if (drawn(state, 6) == 0) bits |= UINT64_C(0xfffffffffffff) >> drawn(state, 53);
    if ((bits >> 52 & 0x7ff) == 0x7ff) bits ^= UINT64_C(1) << 62;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* One near 1. */
static double draw_common(uint64_t *state) {
    const double value = (double)drawn(state, 1u << 31) * (drawn(state, 2) ? 1 : 0x1.5p-22);
    return drawn(state, 2) ? value : value * drawn(state, 1u << 31);
}

/* Exactly between a double and the next one, or a hair beside. */
static void make_halfway(number_text *t, uint64_t *state) {
    const double value = fabs(draw_double(state)), next = nextafter(value, HUGE_VAL);
    long double middle = ((long double)value + (long double)next) / 2;
    if (next > DBL_MAX) middle = value + ((long double)value - nextafter(value, 0)) / 2;
    if (drawn(state, 3) == 0 && value < FLT_MAX) /* of floats, which is a double */
        middle = ((long double)(float)value + nextafterf((float)value, 0)) / 2;
    const int size =
        snprintf(t->text, sizeof t->text, "%.*Le", (int)drawn(state, 5) ? 780 : 40, middle);
    t->size = (size_t)size;
    char *const e = strchr(t->text, 'e'), *last = e;
    char exponent[16];
    snprintf(exponent, sizeof exponent, "%s", e);
    while (last[-1] == '0' && last > t->text + 3) last--;
    t->size = (size_t)(last - t->text);
    switch (drawn(state, 5)) {
    case 0: /* above */
        add_digits(t, state, drawn(state, 200), true);
        add_char(t, '1');
        break;
    case 1: /* far above */
        add_digits(t, state, 700 + drawn(state, 800), true);
        add_char(t, (char)('1' + drawn(state, 9)));
        break;
    case 2: /* below */
        if (t->text[t->size - 1] > '0') t->text[t->size - 1]--;
        add_digits(t, state, drawn(state, 900), false);
        break;
    case 3:
        add_digits(t, state, drawn(state, 900), true);
        break;
    default:
        break;
    }
    for (const char *p = exponent; *p; p++) add_char(t, *p);
}

/* What may be a number, or was one. */
static void make_odd(number_text *t, uint64_t *state) {
    static const char *const words[] = {"nan",
                                        "NaN",
                                        "inf",
                                        "Infinity",
                                        "-inf",
                                        "nan(1)",
                                        "0x1p3",
                                        "0X10",
                                        "1e",
                                        "1e+",
                                        ".",
                                        "-.",
                                        "e5",
                                        "1e5e5",
                                        "+-1",
                                        "--1",
                                        "1.2.3",
                                        "1_000",
                                        "1,000",
                                        "0x",
                                        "",
                                        "-",
                                        " 1",
                                        "1 ",
                                        "+.5",
                                        "5.",
                                        "-0",
                                        "+0e999",
                                        "1d5",
                                        "1f",
                                        "\xe2\x88\x92"
                                        "5",
                                        "-\xe2\x88\x92"
                                        "5",
                                        "\xe2\x88",
                                        "1e-99999999999999999999",
                                        "1e99999999999999999999",
                                        "0e99999999999999999999",
                                        "1.#INF",
                                        "1.#QNAN",
                                        "infinit"};
    static const char alphabet[] = "0123456789.,eE+-xXnaNif_ ()\xe2\x88\x92";
    const char *word = words[drawn(state, sizeof words / sizeof *words)];
    for (; *word; word++) add_char(t, *word);
    for (uint32_t changes = drawn(state, 4); changes > 0 && t->size > 0; changes--)
        t->text[drawn(state, (uint32_t)t->size)] = alphabet[drawn(state, sizeof alphabet)];
}

static void make_number(number_text *t, uint64_t *state) {
    const uint32_t kind = drawn(state, 100); /* some take a hundred times as long as most do */
    t->size = 0, t->text[0] = 0;
    if (kind < 3) {
        make_halfway(t, state);
        return;
    }
    if (kind < 10) {
        make_odd(t, state);
        return;
    }
    if (kind < 14) { /* a double, in as many digits as there are, or fewer */
        t->size = (size_t)snprintf(t->text, sizeof t->text, "%.*e",
                                   (int)(drawn(state, 3) ? drawn(state, 20) : drawn(state, 800)),
                                   draw_double(state));
        return;
    }
    if (drawn(state, 4) == 0) add_char(t, "+-"[drawn(state, 2)]);
    const bool long_one = kind == 14, zeros = kind == 15;
    const uint32_t n = long_one ? drawn(state, 1100) : drawn(state, 24);
    if (zeros) { /* that an exponent takes back */
        const uint32_t many = drawn(state, 1000);
        const bool small = drawn(state, 2) != 0;
        if (!small) add_digits(t, state, 1 + n, false);
        if (small) add_char(t, '.');
        add_digits(t, state, many, true);
        if (small) add_digits(t, state, 1 + n, false);
        char exponent[16];
        snprintf(exponent, sizeof exponent, "e%d",
                 (small ? 1 : -1) * (int)many + (int)drawn(state, 660) - 330);
        for (const char *p = exponent; *p; p++) add_char(t, *p);
        return;
    }
    add_digits(t, state, n, false);
    if (drawn(state, 2)) add_char(t, '.');
    add_digits(t, state, long_one ? drawn(state, 1100) : drawn(state, 24), drawn(state, 6) == 0);
    add_exponent(t, state, long_one && drawn(state, 2) ? 1500 : kind < 20 ? 345 : 26);
}

/* ==== Tables ==== */

/* A column of the batch's numbers that a float holds. */
static void compare_table(uint64_t seed, char mark) {
    static char text[BATCH * (LONGEST + 3)];
    static number_text t;
    float expected[BATCH], got;
    size_t size = 0;
    int64_t count = 0;
    heap h;
    for (int i = 0; i < BATCH; i++) {
        double value;
        make_number(&t, &seed);
        if (!their_number(t.text, t.size, '.', &value) || fabsf((float)value) > FLT_MAX) continue;
        for (size_t k = 0; k < t.size; k++) text[size++] = t.text[k] == '.' ? mark : t.text[k];
        text[size++] = '\n';
        expected[count++] = (float)value;
    }
    if (count == 0) return;
    mpt_config config = fuzz_config(&h);
    const mpt_column column = {"0", MPT_COLUMN_NUMBER};
    mpt_table_config table = mpt_table_config_default();
    table.header = false, table.delimiter = ';', table.decimal = mark;
    table.columns = &column, table.column_count = 1, table.target = "";
    mpt_context *context = mpt_create(&config);
    mpt_dataset data = mpt_csv_memory(context, text, size, &table);
    if (mpt_failed(context)) fprintf(stderr, "%s\n", mpt_error(context));
    PROMISE(!mpt_failed(context) && mpt_dataset_size(data) == count);
    for (int64_t i = 0; i < count; i++) {
        PROMISE(mpt_sample(data, i, &got, NULL) == MPT_OK);
        PROMISE(memcmp(&got, &expected[i], sizeof got) == 0);
    }
    mpt_destroy(context);
    PROMISE(h.live == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static number_text t;
    uint64_t seed;
    if (size < 1 + sizeof seed || size > MAX_SIZE) return 0;
    const char mark = data[0] & COMMA ? ',' : '.';
    memcpy(&seed, data + 1, sizeof seed);
    const uint64_t begin = seed;
    for (int i = 0; i < BATCH; i++) {
        make_number(&t, &seed);
        for (size_t k = 0; k < t.size && mark == ','; k++)
            if (t.text[k] == '.') t.text[k] = ',';
        compare_number(t.text, t.size, mark);
        compare_word(t.text, t.size);
        compare_written(i % 32 ? draw_common(&seed) : draw_double(&seed), 1 + i % 17);
    }
    if ((data[0] & 0x1e) == TABLE) compare_table(begin, mark);
    compare_number((const char *)data + 9, size - 9, mark);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *folder = corpus_folder(*argc, *argv);
    if (!folder) return 0;
    for (int i = 0; i < 8; i++) {
        uint8_t seed[9 + 24] = {0};
        char name[20];
        seed[0] = (uint8_t)i, seed[1] = (uint8_t)(7 * i);
        snprintf((char *)seed + 9, 24, i % 2 ? "-12.5e%d" : ".00%d", i);
        snprintf(name, sizeof name, "number-%d", i);
        write_seed(folder, name, seed, 9 + strlen((char *)seed + 9));
    }
    return 0;
}
