/* ----
 * data/table.c: tables (CSV) as datasets: numbers, categories, missing values, scaling by column.
 *
 * A table is held as one double per field, a number or that of its category, and a list of texts,
 * of which samples are made on demand: so what is allocated is a few times the file, however many
 * inputs a one-hot column has.
 * ---- */
#ifndef MPT__DATA_TABLE_INCLUDED
#define MPT__DATA_TABLE_INCLUDED

#include "face/data.h"
#include "data/dataset.c"
#include "data/numbers.c"

MPT__DEFAULTS(mpt_table_config, {
    config.delimiter = ',';
    config.header = true;
    config.dtype = MPT_F32;
})

#ifdef MPTRAIN_NO_TABLES

MPT__BEGIN_ABSENT
static mpt_status mpt__no_tables(mpt_context *ctx, const char *call) {
    return mpt__absent(ctx, call, "tables (MPTRAIN_NO_TABLES)");
}
static mpt_dataset mpt__no_table(mpt_context *ctx, const char *call) {
    mpt__no_tables(ctx, call);
    return mpt__dataset_handle(ctx, NULL);
}

mpt_dataset mpt_csv(mpt_context *ctx, const char *path, const mpt_table_config *config) {
    return mpt__no_table(ctx, "mpt_csv");
}

mpt_dataset mpt_csv_memory(
    mpt_context *ctx, const char *text, size_t bytes, const mpt_table_config *config) {
    return mpt__no_table(ctx, "mpt_csv_memory");
}

mpt_status mpt_table_fit(mpt_dataset part, bool standardise) {
    return mpt__no_tables(part.context, "mpt_table_fit");
}

const char *mpt_column_name(mpt_dataset table, int64_t input) {
    mpt__no_tables(table.context, "mpt_column_name");
    return NULL;
}

const char *mpt_category_name(mpt_dataset table, int64_t input, int64_t code) {
    mpt__no_tables(table.context, "mpt_category_name");
    return NULL;
}
MPT__END_ABSENT

#else

#define MPT__MAX_COLUMNS (INT64_C(1) << 20)
#define MPT__MAX_CATEGORIES (INT64_C(1) << 24) /* all have a number in fp32 */
#define MPT__MAX_ONE_HOT 1024                  /* inputs of one column */

/* ==== Fields ==== */

/* The text of a table, read from front to back. */
typedef struct {
    mpt_context *context;
    const char *path; /* for messages */
    char *text;
    size_t size, at;
    int64_t line, begun; /* of what is next; of the record under way; from 1 */
    char delimiter;
    bool write; /* quoted fields lose their quotes where they lie */
    char *field;
    size_t length; /* of the field */
    bool ends;     /* it is the last of its record */
} mpt__csv;

static bool mpt__csv_blank(const mpt__csv *csv, char c) {
    return (c == ' ' || c == '\t' || c == '\r') && c != csv->delimiter;
}

/* A fault of a field; lines and columns are told from 1 on. */
static void mpt__csv_tell(const mpt__csv *csv, int64_t column, const char *name, const char *fault,
    const char *text, size_t length) {
    char shown[48];
    size_t n = length < sizeof shown - 4 ? length : sizeof shown - 4;
    memcpy(shown, text, n);
    memcpy(shown + n, "...", 4);
    if (n == length) shown[n] = 0;
    mpt__error(csv->context, FORMAT, "%s: line %lld, column %lld%s%s%s: \"%s\" %s", csv->path,
        csv->begun, column + 1, name ? " (" : "", name ? name : "", name ? ")" : "", shown, fault);
}
#define mpt__csv_fault(...) (mpt__csv_tell(__VA_ARGS__), false)

/* The next field; false with an error recorded, which mpt__csv_count has where there is one. */
static bool mpt__csv_field(mpt__csv *csv, int64_t column) {
    char *const end = csv->text + csv->size, *p = csv->text + csv->at, *out;
    while (p < end && mpt__csv_blank(csv, *p)) p++;
    bool quoted = p < end && *p == '"';
    const char *read = p; /* up to where the characters are known to be UTF-8 */
    uint32_t code;
    csv->field = out = p += quoted;
    for (; p < end && (quoted || (*p != csv->delimiter && *p != '\n')); p++, out++) {
        if (quoted && *p == '"' && (p + 1 == end || p[1] != '"')) break;
        p += quoted && *p == '"';
        csv->line += *p == '\n';
        if ((uint8_t)*p >= 0x80 && p >= read && !csv->write) {
            size_t size = mpt__utf8_read((const uint8_t *)p, (size_t)(end - p), &code);
            if (size == 0)
                return mpt__csv_fault(csv, column, NULL,
                    "is followed by a byte that is not UTF-8 (Latin-1 or "
                    "Windows-1252?); convert the file to UTF-8",
                    csv->field, (size_t)(p - csv->field));
            read = p + size;
        }
        if (csv->write) *out = *p;
        if (*p == 0)
            return mpt__csv_fault(csv, column, NULL, "ends in a zero byte; tables are UTF-8 text",
                csv->field, (size_t)(out - csv->field));
    }
    csv->length = (size_t)(out - csv->field);
    if (quoted && p++ == end)
        return mpt__csv_fault(
            csv, column, NULL, "begins with a quote that never ends", csv->field, csv->length);
    while (quoted && p < end && mpt__csv_blank(csv, *p)) p++;
    if (p < end && *p != csv->delimiter && *p != '\n')
        return mpt__csv_fault(
            csv, column, NULL, "has text behind its closing quote", csv->field, csv->length);
    while (!quoted && csv->length > 0 && mpt__csv_blank(csv, csv->field[csv->length - 1]))
        csv->length--;
    csv->ends = p == end || *p == '\n';
    csv->line += p < end && *p == '\n';
    csv->at = (size_t)(p - csv->text) + (p < end);
    return true;
}

/* Goes to the next record that is not an empty line; false at the end. */
static bool mpt__csv_record(mpt__csv *csv) {
    for (size_t at = csv->at; at < csv->size; at++) {
        csv->begun = csv->line;
        if (csv->text[at] == '\n')
            csv->at = at + 1, csv->line++;
        else if (!mpt__csv_blank(csv, csv->text[at]))
            return true;
    }
    return false;
}

static void mpt__csv_rewind(mpt__csv *csv) {
    csv->at = mpt__mark_bytes(csv->text, csv->size);
    csv->line = csv->begun = 1;
}

/* Counts records, all as long as the first; false with an error recorded. */
static bool mpt__csv_count(mpt__csv *csv, int64_t *records, int64_t *columns) {
    *records = *columns = 0;
    for (mpt__csv_rewind(csv); mpt__csv_record(csv); ++*records) {
        int64_t n = 0;
        do
            if (!mpt__csv_field(csv, n++)) return false;
        while (!csv->ends && n <= MPT__MAX_COLUMNS);
        if (*records == 0) *columns = n <= MPT__MAX_COLUMNS ? n : MPT__MAX_COLUMNS;
        if (n != *columns)
            return mpt__reject(csv->context, FORMAT,
                "%s: line %lld has %lld fields, expected %lld; is '%c' the delimiter?", csv->path,
                csv->begun, n, *columns, csv->delimiter);
    }
    return true;
}

MPT__BEGIN_COLD
/* ==== Tables ==== */

typedef struct {
    mpt_column_use use; /* AUTO until a field says what it is, if it is ever said */
    bool is_target;
    char point;                /* of its numbers, '.' or ',' */
    int64_t name;              /* where in the text */
    int64_t first, categories; /* of its texts among all */
    double mean, deviation;    /* what numbers become */
} mpt__table_column;

/* The state of a table: owned[0], with its columns behind it; owned[1]: fields; owned[2]: texts of
   all categories in order; owned[3]: their characters. */
typedef struct {
    int64_t rows, count; /* of columns */
    const double *fields;
    const char *const *categories;
    const char *text;
    mpt_dtype dtype;
    bool named, filled; /* has a header; numbers without a value are means */
    mpt__table_column *columns;
} mpt__table;

static const char mpt__no_number[] =
    "is not a number as it is written here; write digits and a point, without separators and units "
    "(mpt_table_config.decimal = ',' reads decimal commas)";

/* A text of a column, while a table is read. */
typedef struct {
    int64_t column, text;
    size_t length;
    double number; /* NaN if it is none */
} mpt__category;

/* A column of the file. What is noted of its texts is for messages. */
typedef struct {
    int64_t to, name;    /* the column of the table, or -1; where the name is in the text */
    int64_t line, text;  /* of the first text that looks like a number; the text is a category */
    int64_t number_like; /* texts that do */
    bool first_like;     /* the first one does */
    bool guessed;        /* texts made it one of texts */
    uint8_t seen;        /* MPT__COMMA and others */
} mpt__file_column;

typedef struct {
    mpt__csv csv;
    mpt__table *table;
    double *fields;
    char *text;
    int64_t text_size, text_room;
    mpt__category *found;
    int64_t found_count, found_room;
    uint32_t *rows; /* open addressing by column and text: number + 1, 0 = empty */
    int64_t row_count;
    mpt__file_column *file; /* the columns as they stand in the file */
    int64_t file_count;
    size_t table_bytes, field_bytes;
    const mpt_table_config *config;
    bool fixed;      /* no category is added */
    int64_t unknown; /* fields whose text is none of the fixed ones */
} mpt__table_reader;

static bool mpt__column_texts(const mpt__table_column *column) {
    return column->use == MPT_COLUMN_ONE_HOT || column->use == MPT_COLUMN_CODE ||
        column->use == MPT_COLUMN_CLASS;
}

/* Adds characters and a 0; where they are, -1 with an error recorded. */
static int64_t mpt__table_text(mpt__table_reader *r, const char *from, size_t n) {
    int64_t at = r->text_size;
    if (!mpt__grow(&r->csv.context->base, &r->text, &r->text_room, at + (int64_t)n + 1, 1,
            MPT_MEMORY_DATA))
        return -1;
    memcpy(r->text + at, from, n);
    r->text[at + (int64_t)n] = 0;
    r->text_size = at + (int64_t)n + 1;
    return at;
}

/* The row of a category, or the empty one where it would be. */
static uint32_t *mpt__category_row(
    const mpt__table_reader *r, int64_t column, const char *text, size_t n) {
    size_t mask = (size_t)r->row_count - 1;
    size_t at = (size_t)mpt__hash_bytes((uint64_t)column, text, n) & mask;
    for (;; at = (at + 1) & mask) {
        const mpt__category *other = &r->found[r->rows[at] ? r->rows[at] - 1 : 0];
        if (r->rows[at] == 0 || (other->column == column && other->length == n &&
                                 memcmp(r->text + other->text, text, n) == 0))
            return &r->rows[at];
    }
}

/* Room for one more category. */
static bool mpt__category_room(mpt__table_reader *r) {
    mpt_context *ctx = r->csv.context;
    int64_t old = r->row_count;
    if (r->found_count >= MPT__MAX_CATEGORIES)
        return mpt__reject(ctx, FORMAT, "%s: more than 2^24 texts differ", r->csv.path);
    if (!mpt__room(ctx, r->found, r->found_room, r->found_count + 1)) return false;
    if (r->found_count < old / 2) return true;
    mpt__room_free(ctx, r->rows, old);
    r->row_count = old ? 2 * old : 64;
    r->rows = (uint32_t *)mpt__host_new(ctx, (size_t)r->row_count * sizeof *r->rows);
    for (int64_t i = 0; r->rows && i < r->found_count; i++) {
        const mpt__category *c = &r->found[i];
        *mpt__category_row(r, c->column, r->text + c->text, c->length) = (uint32_t)i + 1;
    }
    return r->rows != NULL;
}

/* The number of a category, which is added; -1 if that cannot be. */
static int64_t mpt__category_of(mpt__table_reader *r, int64_t column, const char *text, size_t n) {
    if (!mpt__category_room(r)) return -1;
    uint32_t *row = mpt__category_row(r, column, text, n);
    if (*row) return (int64_t)*row - 1;
    int64_t at = r->fixed ? -1 : mpt__table_text(r, text, n);
    if (at < 0) return -1;
    mpt__category *c = &r->found[r->found_count++];
    c->column = column, c->text = at, c->length = n;
    if (!mpt__parse_number(text, n, r->table->columns[column].point, &c->number))
        c->number = MPT__NAN_F64;
    r->table->columns[column].categories++;
    *row = (uint32_t)r->found_count;
    return r->found_count - 1;
}

/* Numbers by value, before texts by their bytes. */
static bool mpt__category_before(const void *of, int64_t a, int64_t b) {
    const mpt__table_reader *r = (const mpt__table_reader *)of;
    const mpt__category *x = &r->found[a], *y = &r->found[b];
    if (x->column != y->column) return x->column < y->column;
    bool first = mpt__f64_is_finite(x->number), second = mpt__f64_is_finite(y->number);
    if (first != second) return first;
    if (first && (x->number < y->number || x->number > y->number)) return x->number < y->number;
    return strcmp(r->text + x->text, r->text + y->text) < 0;
}

/* For what the log tells; without a header columns have none. */
static const char *mpt__told_name(const mpt__table_reader *r, int64_t f) {
    return r->table->named ? r->text + r->file[f].name : "without a name";
}

/* The category of a field of a table like another; NaN where that lacks its text, which then counts
   as missing, -1 where it lacks that, too. False with an error recorded. */
static bool mpt__category_unknown(mpt__table_reader *r, int64_t f, const char *name, double *out) {
    const mpt__csv *csv = &r->csv;
    const mpt__table_column *column = &r->table->columns[r->file[f].to];
    int64_t category = mpt__category_of(r, r->file[f].to, "", 0);
    *out = (double)category;
    bool hidden = column->use == MPT_COLUMN_ONE_HOT;
    if (r->config->strict || column->is_target || (category < 0 && !hidden))
        return mpt__csv_fault(csv, f, name,
            "is not in the table that this one is like; for inputs unknown = true "
            "there keeps a category",
            csv->field, csv->length);
    if (r->unknown++ == 0)
        mpt__log(&csv->context->base, MPT_LOG_WARNING,
            "%s: line %lld, column %lld (%s): a text that the table this one is like lacks, "
            "here %s; strict = true refuses such",
            csv->path, csv->begun, f + 1, mpt__told_name(r, f),
            category < 0 ? "all zeros" : "taken for a missing value");
    return true;
}

/* Stores the text of a field as its category. */
static bool mpt__table_category(mpt__table_reader *r, int64_t f, const char *name, double *out) {
    const mpt__csv *csv = &r->csv;
    mpt__file_column *of = &r->file[f];
    const mpt__table_column *column = &r->table->columns[of->to];
    int64_t before = column->categories;
    int64_t category = mpt__category_of(r, of->to, csv->field, csv->length);
    *out = (double)category;
    if (category < 0) return mpt__ok(csv->context) && mpt__category_unknown(r, f, name, out);
    if (column->categories == before) return true;
    bool like_number = of->guessed && mpt__number_like(csv->field, csv->length);
    of->first_like |= like_number && before == 0;
    if (like_number && of->number_like++ == 0)
        of->line = csv->begun, of->text = r->found[category].text;
    return column->use != MPT_COLUMN_ONE_HOT || column->categories <= MPT__MAX_ONE_HOT ||
        mpt__csv_fault(csv, f, name,
            like_number ? mpt__no_number
                        : "is one text too many for one-hot inputs, which are at "
                          "most 1024: MPT_COLUMN_CODE or MPT_COLUMN_IGNORE",
            csv->field, csv->length);
}

/* Stores a field of the file's column f, whose kind is known then. */
static bool mpt__table_field(mpt__table_reader *r, int64_t f, double *out) {
    const mpt__csv *csv = &r->csv;
    mpt__file_column *of = &r->file[f];
    mpt__table_column *column = &r->table->columns[of->to];
    const char *name = r->table->named ? r->text + of->name : NULL, *fault;
    bool whole = r->table->dtype == MPT_I64 && !column->is_target;
    double value = MPT__NAN_F64;
    if (column->use == MPT_COLUMN_IGNORE) return true;
    if (mpt__field_missing(csv->field, csv->length)) {
        *out = value;
        if (r->config->missing && !column->is_target && !whole) return true;
        fault = column->is_target ? "is no value for a target; leave such lines out"
            : whole               ? "is no value, and whole numbers have no NaN"
                    : "is no value; with mpt_table_config.missing = true it may lack, and "
                      "mpt_table_fit fills it in";
        return mpt__csv_fault(csv, f, name, fault, csv->field, csv->length);
    }
    bool number = mpt__parse_number(csv->field, csv->length, column->point, &value);
    bool infinite = !number && mpt__word_infinite(csv->field, csv->length);
    number = number || infinite;
    of->guessed |= column->use == MPT_COLUMN_AUTO && !number;
    if (column->use == MPT_COLUMN_AUTO)
        column->use = number    ? MPT_COLUMN_NUMBER
            : column->is_target ? MPT_COLUMN_CLASS
            : whole             ? MPT_COLUMN_CODE
                                : MPT_COLUMN_ONE_HOT;
    if (mpt__column_texts(column)) return mpt__table_category(r, f, name, out);
    *out = value;
    fault = infinite  ? "is infinite; a number here is finite, or lacks as NA does"
            : !number ? mpt__number_like(csv->field, csv->length)
                            ? mpt__no_number
                            : "is not a number, and its column is one of numbers"
            : whole && !(value >= -9007199254740992.0 && value <= 9007199254740992.0 &&
                         (double)(int64_t)value == value)
                ? "is not a whole number up to 2^53, as dtype MPT_I64 needs"
            : !mpt__f32_is_finite((float)value) ? "is beyond what float32 holds"
                                                : NULL;
    return !fault || mpt__csv_fault(csv, f, name, fault, csv->field, csv->length);
}

/* The column of a name, else of a number; -1 with an error recorded. */
static int64_t mpt__column_find(const mpt__table_reader *r, const char *name) {
    double number;
    for (int64_t c = 0; name && c < r->table->count; c++)
        if (strcmp(r->text + r->table->columns[c].name, name) == 0) return c;
    if (name && mpt__parse_double(name, strlen(name), &number)) {
        if (number < 0) number += (double)r->table->count;
        for (int64_t c = 0; c < r->table->count; c++)
            if ((double)c == number) return c;
    }
    mpt__error(r->csv.context, ARGUMENT, "%s: no column is named %s, and it has %lld", r->csv.path,
        name ? name : "NULL", r->table->count);
    return -1;
}

/* Names, from the first record or else numbers. */
static bool mpt__table_names(mpt__table_reader *r, bool header) {
    char number[24];
    bool numbers = header;
    double value;
    for (int64_t f = 0; f < r->file_count; f++) {
        const char *name = number;
        size_t n = header ? 0 : mpt__format_text(number, sizeof number, "%lld", f);
        if (header) {
            mpt__csv_field(&r->csv, f);
            name = r->csv.field, n = r->csv.length;
            numbers = numbers && mpt__parse_double(name, n, &value);
        }
        r->file[f].to = -1;
        r->file[f].name = mpt__table_text(r, name, n);
        if (r->file[f].name < 0) return false;
    }
    if (numbers)
        mpt__log(&r->csv.context->base, MPT_LOG_WARNING,
            "%s: the first line, taken for names, is numbers; header = false makes it a sample",
            r->csv.path);
    return true;
}

/* ==== Decimal commas ==== */

/* What a column has been seen to hold besides whole numbers and missing values. */
enum {
    MPT__COMMA = 1,     /* a number with a decimal comma */
    MPT__SURE = 2,      /* one that cannot have a comma of thousands: not 1,234 */
    MPT__NO_COMMAS = 4, /* a number with a point, or a text */
    MPT__POINT = 8,     /* the former */
};

static uint8_t mpt__decimal_kind(const char *p, size_t n) {
    double value;
    if (mpt__field_missing(p, n) || mpt__word_infinite(p, n)) return 0;
    if (mpt__parse_double(p, n, &value)) return memchr(p, '.', n) ? MPT__POINT | MPT__NO_COMMAS : 0;
    if (!mpt__parse_number(p, n, ',', &value)) return MPT__NO_COMMAS;
    if (*p == '-' || *p == '+') p++, n--;
    bool thousands = n >= 5 && n <= 7 && p[n - 4] == ',' && *p != '0';
    return thousands ? MPT__COMMA : MPT__COMMA | MPT__SURE;
}

/* Which columns have decimal commas, by all of their texts. Where some may be commas of thousands
   and other columns have points, they are. */
static void mpt__decimals_told(mpt__table_reader *r) {
    mpt__base *base = &r->csv.context->base;
    int64_t first = -1, count = 0;
    bool sure = false, points = false;
    for (int64_t f = r->file_count - 1; f >= 0; f--) {
        points = points || (r->file[f].seen & MPT__POINT);
        if (!(r->file[f].seen & MPT__COMMA) || (r->file[f].seen & MPT__NO_COMMAS)) continue;
        sure = sure || (r->file[f].seen & MPT__SURE);
        first = f, count++;
    }
    for (int64_t f = 0; points && !sure && f < r->file_count; f++)
        r->file[f].seen |= MPT__NO_COMMAS;
    if (first < 0 || (points && !sure)) return;
    mpt__log(base, sure ? MPT_LOG_INFO : MPT_LOG_WARNING,
        "%s: the numbers of %lld columns, first column %lld (%s, line %lld), have decimal "
        "commas%s; decimal = ',' or '.' says so or not",
        r->csv.path, count, first + 1, mpt__told_name(r, first), r->file[first].line,
        sure ? "" : ", if these are none of thousands");
}

/* Finds decimal commas where the config does not say: columns all of whose texts can be numbers
   with some. Leaves the reader where it was. */
static void mpt__table_decimals(mpt__table_reader *r) {
    mpt__csv kept = r->csv;
    if (r->config->decimal || kept.delimiter == ',' || !memchr(kept.text, ',', kept.size)) return;
    r->csv.write = false;
    for (int64_t i = 0; i < r->table->rows; i++) {
        mpt__csv_record(&r->csv);
        for (int64_t f = 0; f < r->file_count; f++) {
            mpt__csv_field(&r->csv, f);
            uint8_t kind = mpt__decimal_kind(r->csv.field, r->csv.length);
            if ((kind & MPT__COMMA) && !(r->file[f].seen & MPT__COMMA))
                r->file[f].line = r->csv.begun;
            r->file[f].seen |= kind;
        }
    }
    r->csv = kept;
    mpt__decimals_told(r);
}

static char mpt__decimal_point(const mpt__table_reader *r, int64_t f) {
    if (r->config->decimal) return r->config->decimal;
    return (r->file[f].seen & MPT__COMMA) && !(r->file[f].seen & MPT__NO_COMMAS) ? ',' : '.';
}

/* ==== What columns are for ==== */

/* What the columns are for, by config. */
static bool mpt__table_uses(mpt__table_reader *r, const mpt_table_config *config) {
    mpt__table *table = r->table;
    bool targets = config->target != NULL;
    for (int64_t c = 0; c < table->count; c++) {
        r->file[c].to = c;
        table->columns[c].name = r->file[c].name;
        table->columns[c].point = mpt__decimal_point(r, c);
    }
    for (int i = 0; i < config->column_count; i++) {
        mpt_column_use use = config->columns[i].use;
        int64_t c = mpt__column_find(r, config->columns[i].name);
        if (c < 0) return false;
        if ((unsigned)use > MPT_COLUMN_IGNORE)
            return mpt__reject(r->csv.context, ARGUMENT, "columns[%d].use is %d", i, (int)use);
        bool is_target = use == MPT_COLUMN_TARGET || use == MPT_COLUMN_CLASS;
        table->columns[c].use = use == MPT_COLUMN_TARGET ? MPT_COLUMN_NUMBER : use;
        table->columns[c].is_target = is_target;
        targets = targets || is_target;
    }
    if (targets && !(config->target && config->target[0])) return true;
    int64_t c = config->target ? mpt__column_find(r, config->target) : table->count - 1;
    if (c >= 0) table->columns[c].is_target = true;
    return c >= 0;
}

/* The file's column that is column c of the table that this is like: by name where both have names,
   else by its place among `targets` or without them. -1: none. */
static int64_t mpt__like_find(
    const mpt__table_reader *r, const mpt__table *like, int64_t c, int64_t place) {
    const char *name = like->text + like->columns[c].name;
    if (!r->table->named || !like->named) return place;
    /* Mostly it stands where it stood there. */
    for (int64_t i = 0; i < r->file_count; i++) {
        int64_t f = (place + i) % r->file_count;
        if (r->file[f].to < 0 && strcmp(r->text + r->file[f].name, name) == 0) return f;
    }
    return -1;
}

static bool mpt__table_unlike(const mpt__table_reader *r, const char *what, const char *name) {
    return mpt__reject(r->csv.context, FORMAT,
        "%s: its columns are not those of the table that it is like: %s %s; target = "
        "\"\" reads lines without targets",
        r->csv.path, what, name);
}

/* Gives each column of the table its column of the file. */
static bool mpt__like_columns(mpt__table_reader *r, const mpt__table *like, bool targets) {
    bool names = r->table->named && like->named;
    int64_t place = 0, least = 0;
    for (int64_t c = 0; c < like->count; c++) least += !like->columns[c].is_target;
    bool short_rows = !targets && r->file_count == least;
    if (!names && r->file_count != like->count && !short_rows)
        return mpt__reject(r->csv.context, FORMAT,
            "%s: its columns are not those of the table that it is like: %lld, expected %lld",
            r->csv.path, r->file_count, like->count);
    for (int64_t c = 0; c < like->count; c++) {
        mpt__table_column *column = &r->table->columns[c];
        const char *name = like->text + like->columns[c].name;
        bool skip = !targets && column->is_target;
        int64_t f = skip && !names && short_rows ? -1 : mpt__like_find(r, like, c, place);
        if (f < 0 && !skip && column->use != MPT_COLUMN_IGNORE)
            return mpt__table_unlike(r, "there is no", name);
        if (skip) column->use = MPT_COLUMN_IGNORE, column->is_target = false;
        column->point = f < 0 ? '.' : mpt__decimal_point(r, f);
        column->name = f < 0 ? mpt__table_text(r, name, strlen(name)) : r->file[f].name;
        if (column->name < 0) return false;
        if (f >= 0) r->file[f].to = c, place = (f + 1) % r->file_count;
    }
    for (int64_t f = 0; f < r->file_count; f++)
        if (r->file[f].to < 0)
            return mpt__table_unlike(r, "that has no", r->text + r->file[f].name);
    return true;
}

/* What the columns are for, by another table. */
static bool mpt__table_like(mpt__table_reader *r, const mpt__table *like) {
    mpt__table *table = r->table;
    const char *target = r->config->target;
    for (int64_t c = 0; c < table->count; c++)
        table->columns[c] = like->columns[c], table->columns[c].categories = 0;
    if (!mpt__like_columns(r, like, !target || *target)) return false;
    for (int64_t c = 0; c < table->count; c++)
        for (int64_t i = 0;
             mpt__column_texts(&table->columns[c]) && i < like->columns[c].categories; i++) {
            const char *text = like->categories[like->columns[c].first + i];
            if (mpt__category_of(r, c, text, strlen(text)) < 0) return false;
        }
    table->filled = like->filled;
    r->fixed = true;
    return true;
}

/* Numbers categories in order, that of the table that this is like, in the fields too; their list
   is owned[2]. */
static bool mpt__table_number(mpt__table_reader *r, mpt__dataset *dataset) {
    mpt_context *ctx = r->csv.context;
    mpt__table *table = r->table;
    int64_t n = r->found_count;
    if (n == 0) return true;
    int64_t *order = (int64_t *)mpt__host_array(ctx, 2 * n, sizeof *order);
    int64_t *codes = order ? order + n : NULL;
    const char **texts =
        (const char **)mpt__dataset_room(ctx, dataset, 2, (size_t)n * sizeof *texts);
    for (int64_t i = 0; order && i < n; i++) order[i] = i;
    if (order && !r->fixed) mpt__sort_by(order, n, mpt__category_before, r);
    for (int64_t i = n; order && texts && i-- > 0;) {
        const mpt__category *c = &r->found[order[i]];
        codes[order[i]] = table->columns[c->column].first = i;
        texts[i] = r->text + c->text;
    }
    for (int64_t c = 0; order && c < table->count; c++)
        for (int64_t i = 0; mpt__column_texts(&table->columns[c]) && i < table->rows; i++) {
            double *field = &r->fields[i * table->count + c];
            if (*field >= 0.0) *field = (double)(codes[(int64_t)*field] - table->columns[c].first);
        }
    mpt__host_free(ctx, order, 2 * (size_t)n * sizeof *order);
    table->categories = texts;
    return mpt__ok(ctx);
}

/* Tells of columns of categories that look like numbers. */
static void mpt__numbers_told(mpt__table_reader *r) {
    int told = 0;
    for (int64_t f = 0; f < r->file_count && told < 8; f++) {
        const mpt__file_column *of = &r->file[f];
        int64_t categories = r->table->columns[of->to].categories;
        if (2 * of->number_like <= categories && !of->first_like) continue;
        told++;
        mpt__log(&r->csv.context->base, MPT_LOG_WARNING,
            "%s: column %lld (%s): %lld of its %lld texts look like numbers, first \"%s\" in "
            "line %lld, and all become categories; decimal = ',' reads decimal commas, else "
            "write digits and a point, or give the column a use",
            r->csv.path, f + 1, mpt__told_name(r, f), of->number_like, categories,
            r->text + of->text, of->line);
    }
}

/* Makes texts without a value the category "". */
static bool mpt__table_fill_texts(mpt__table_reader *r, int64_t c) {
    mpt__table_column *column = &r->table->columns[c];
    if (!mpt__column_texts(column)) return true;
    if (r->config->unknown && !column->is_target) mpt__category_of(r, c, "", 0);
    for (int64_t i = 0; mpt__ok(r->csv.context) && i < r->table->rows; i++) {
        double *field = &r->fields[i * r->table->count + c];
        if (*field >= 0.0 || *field < 0.0) continue;
        int64_t category = mpt__category_of(r, c, "", 0);
        if (category < 0 && mpt__ok(r->csv.context) &&
            (column->use != MPT_COLUMN_ONE_HOT || r->config->strict))
            return mpt__reject(r->csv.context, FORMAT,
                "%s: column %s lacks a value, which it never does in the table that "
                "this one is like",
                r->csv.path, r->text + column->name);
        *field = (double)category;
    }
    return mpt__ok(r->csv.context);
}

/* Reads all records into the fields; categories are numbered as they come. */
static bool mpt__table_fill(mpt__table_reader *r) {
    mpt__table *table = r->table;
    for (int64_t i = 0; i < table->rows; i++) {
        mpt__csv_record(&r->csv);
        for (int64_t f = 0; f < r->file_count; f++) {
            mpt__csv_field(&r->csv, f);
            if (!mpt__table_field(r, f, &r->fields[i * table->count + r->file[f].to])) return false;
        }
    }
    for (int64_t c = 0; c < table->count; c++) {
        mpt__table_column *column = &table->columns[c];
        if (column->use == MPT_COLUMN_AUTO) column->use = MPT_COLUMN_NUMBER; /* without values */
        if (!mpt__table_fill_texts(r, c)) return false;
    }
    mpt__numbers_told(r);
    return true;
}

MPT__END_REGION

/* ==== Samples ==== */

/* A number as it is delivered. */
static double mpt__column_value(
    const mpt__table *table, const mpt__table_column *column, double value) {
    if (column->is_target) return value;
    if (table->filled && !mpt__f64_is_finite(value)) value = column->mean;
    return column->deviation > 0.0 ? (value - column->mean) / column->deviation : value;
}

static bool mpt__table_make(MPT__MAKE_TAKES) {
    const mpt__table *table = (const mpt__table *)dataset->state;
    const double *row = table->fields + at * table->count;
    int64_t done[2] = {0, 0};
    (void)seed, (void)work, (void)error;
    for (int64_t c = 0; c < table->count; c++) {
        const mpt__table_column *column = &table->columns[c];
        int part = column->is_target;
        void *to = part ? target : input;
        int64_t n = column->use == MPT_COLUMN_ONE_HOT ? column->categories : 1;
        if (column->use == MPT_COLUMN_IGNORE) continue;
        for (int64_t i = 0; i < n; i++, done[part]++) {
            double value = column->use == MPT_COLUMN_ONE_HOT ? (int64_t)row[c] == i
                : column->use == MPT_COLUMN_NUMBER ? mpt__column_value(table, column, row[c])
                                                   : row[c];
            if ((part ? dataset->target_dtype : dataset->dtype) == MPT_I64)
                ((int64_t *)to)[done[part]] = (int64_t)value;
            else
                ((float *)to)[done[part]] = (float)value;
        }
    }
    return true;
}

/* Counts inputs and targets; false with an error recorded if they do not go together. */
static bool mpt__table_shape(const mpt__table_reader *r, mpt_user_dataset_config *samples) {
    int64_t inputs = 0, targets = 0, classes = 0;
    for (int64_t c = 0; c < r->table->count; c++) {
        const mpt__table_column *column = &r->table->columns[c];
        if (column->use == MPT_COLUMN_IGNORE) continue;
        int64_t n = column->use == MPT_COLUMN_ONE_HOT ? column->categories : 1;
        *(column->is_target ? &targets : &inputs) += n;
        classes += column->is_target && column->use == MPT_COLUMN_CLASS;
        if (column->is_target) continue;
        if (r->table->dtype == MPT_I64 && column->use == MPT_COLUMN_ONE_HOT)
            return mpt__reject(r->csv.context, DTYPE,
                "%s: column %s is one-hot, which dtype MPT_I64 is not for", r->csv.path,
                r->text + column->name);
    }
    if (inputs == 0 || (classes > 0 && classes < targets))
        return mpt__reject(r->csv.context, ARGUMENT,
            "%s: %lld inputs, %lld targets, %lld of them classes: there is an input, "
            "and targets are all classes or all numbers",
            r->csv.path, inputs, targets, classes);
    samples->count = r->table->rows > 0 ? r->table->rows : 1; /* none: see mpt_table_load */
    samples->dtype = r->table->dtype;
    samples->shape = MPT_SHAPE(inputs);
    samples->target_dtype = targets == 0 ? MPT_DTYPE_NONE : classes ? MPT_I64 : MPT_F32;
    samples->target_shape = classes == 1 ? MPT_SCALAR : MPT_SHAPE(targets ? targets : 1);
    return true;
}

MPT__BEGIN_COLD
/* ==== Reading ==== */

/* A dataset of what was read; the caller releases what the reader still owns. */
static mpt__dataset *mpt__table_finish(mpt__table_reader *r) {
    mpt__table *table = r->table;
    mpt_user_dataset_config samples;
    mpt__zero(samples);
    mpt__dataset *dataset =
        mpt__table_shape(r, &samples) ? mpt__dataset_new(r->csv.context, &samples, true) : NULL;
    if (!dataset) return NULL;
    dataset->count = table->rows;
    if (!mpt__table_number(r, dataset)) {
        mpt__dataset_release(r->csv.context, dataset);
        return NULL;
    }
    table->fields = r->fields, table->text = r->text;
    mpt__dataset_own(dataset, 0, table, r->table_bytes);
    mpt__dataset_own(dataset, 1, r->fields, r->field_bytes);
    mpt__dataset_own(dataset, 3, r->text, (size_t)r->text_room);
    dataset->state = table;
    dataset->make = mpt__table_make;
    for (int64_t c = 0; c < table->count; c++) {
        const mpt__table_column *column = &table->columns[c];
        if (!column->is_target || column->use != MPT_COLUMN_CLASS) continue;
        if (table->categories) dataset->classes = table->categories + column->first;
        dataset->class_count = column->categories;
        break;
    }
    r->table = NULL, r->fields = NULL, r->text = NULL;
    return dataset;
}

/* Room for a table of so many rows and columns, of a file with so many. Every field has a byte in
   the file: these products cannot overflow where it fits. */
static bool mpt__table_room(
    mpt__table_reader *r, int64_t rows, int64_t columns, int64_t file_columns) {
    mpt__base *base = &r->csv.context->base;
    r->table_bytes = sizeof *r->table + (size_t)columns * sizeof *r->table->columns;
    size_t fields = (size_t)rows * (size_t)columns;
    if (rows > 0 && (fields / (size_t)rows != (size_t)columns ||
                     fields > (size_t)PTRDIFF_MAX / sizeof *r->fields)) {
        mpt__fail_memory(base, PTRDIFF_MAX, MPT_MEMORY_DATA);
        return false;
    }
    r->field_bytes = fields * sizeof *r->fields;
    r->table = (mpt__table *)mpt__allocate(base, r->table_bytes, MPT_MEMORY_DATA);
    r->fields = (double *)mpt__allocate(base, r->field_bytes, MPT_MEMORY_DATA);
    r->file = (mpt__file_column *)mpt__host_array(r->csv.context, file_columns, sizeof *r->file);
    if (r->file) r->file_count = file_columns;
    if (!mpt__ok(r->csv.context)) return false;
    r->table->rows = rows, r->table->count = columns;
    r->table->columns = (mpt__table_column *)(void *)(r->table + 1);
    return true;
}

/* What no dataset has taken over. */
static void mpt__table_clear(mpt__table_reader *r) {
    mpt_context *ctx = r->csv.context;
    mpt__base *base = &ctx->base;
    mpt__release(base, r->table, r->table_bytes, MPT_MEMORY_DATA);
    mpt__release(base, r->fields, r->field_bytes, MPT_MEMORY_DATA);
    mpt__release(base, r->text, (size_t)r->text_room, MPT_MEMORY_DATA);
    mpt__host_free(ctx, r->file, (size_t)r->file_count * sizeof *r->file);
    mpt__room_free(ctx, r->found, r->found_room);
    mpt__room_free(ctx, r->rows, r->row_count);
}

static mpt__dataset *mpt__table_read(mpt__table_reader *r, const mpt__table *like) {
    const mpt_table_config *config = r->config;
    mpt__dataset *dataset = NULL;
    int64_t rows, columns;
    if (!mpt__csv_count(&r->csv, &rows, &columns)) return NULL;
    rows -= config->header;
    if (rows < 1) {
        mpt__error(r->csv.context, FORMAT,
            "%s: no samples: %lld lines with fields, of which %d is the header%s", r->csv.path,
            rows + config->header, (int)config->header,
            memchr(r->csv.text, '\r', r->csv.size) && !memchr(r->csv.text, '\n', r->csv.size)
                ? "; its lines end with CR alone, not with LF"
                : "");
        return NULL;
    }
    if (mpt__table_room(r, rows, like ? like->count : columns, columns)) {
        r->table->dtype = like ? like->dtype : config->dtype;
        r->table->named = config->header;
        r->csv.write = true;
        mpt__csv_rewind(&r->csv);
        mpt__csv_record(&r->csv);
        if (mpt__table_names(r, config->header) &&
            (mpt__table_decimals(r),
                like ? mpt__table_like(r, like) : mpt__table_uses(r, config)) &&
            mpt__table_fill(r))
            dataset = mpt__table_finish(r);
    }
    mpt__table_clear(r);
    return dataset;
}

/* The table that a dataset is, or is part of; NULL with an error recorded. */
static mpt__table *mpt__table_at(mpt_context *ctx, const mpt__dataset *dataset) {
    const mpt__dataset *whole = dataset->parent ? dataset->parent : dataset;
    if (mpt__no_data_files(ctx)) return NULL;
    if (whole->make == mpt__table_make) return (mpt__table *)whole->owned[0];
    mpt__error(ctx, ARGUMENT, "this dataset is not a table of mpt_csv");
    return NULL;
}

static mpt_dataset mpt__table_open(
    mpt_context *ctx, const char *path, char *text, size_t size, const mpt_table_config *config) {
    MPT__PLAIN_FLOATS;
    mpt_table_config usual = mpt_table_config_default();
    mpt__table_reader reader;
    mpt__dataset *dataset = NULL, *other = NULL;
    const mpt__table *like = NULL;
    mpt__zero(reader);
    if (!config) config = &usual;
    if (text && config->like.slot) other = mpt__dataset_at(ctx, config->like);
    if (other) like = mpt__table_at(ctx, other);
    reader.csv.context = ctx, reader.csv.path = path;
    reader.csv.text = text, reader.csv.size = size;
    reader.csv.delimiter = config->delimiter;
    reader.config = config;
    if (!text || !mpt__ok(ctx) ||
        !mpt__refuse_known(ctx, path, (const uint8_t *)text, size, MPT__KNOWN_ALL)) {
        /* recorded */
    } else if (config->delimiter == '"' || config->delimiter == '\n' || config->delimiter == 0) {
        mpt__error(ctx, ARGUMENT, "delimiter is byte %d", (int)config->delimiter);
    } else if (config->decimal && config->decimal != '.' && config->decimal != ',') {
        mpt__error(ctx, ARGUMENT, "decimal is byte %d; '.', ',' or 0", (int)config->decimal);
    } else if (config->dtype != MPT_F32 && config->dtype != MPT_I64) {
        mpt__error(ctx, DTYPE, "dtype %D: inputs are MPT_F32 or MPT_I64", config->dtype);
    } else if (config->column_count < 0 || (config->column_count > 0 && !config->columns)) {
        mpt__error(
            ctx, ARGUMENT, "%d columns%s", config->column_count, config->columns ? "" : " at NULL");
    } else {
        dataset = mpt__table_read(&reader, like);
    }
    mpt__host_free(ctx, text, size);
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_csv(mpt_context *ctx, const char *path, const mpt_table_config *config) {
    size_t size;
    if (!mpt__enter_files(ctx, "mpt_csv")) return mpt__dataset_handle(ctx, NULL);
    char *text = (char *)mpt__reader_whole(ctx, path, &size);
    return mpt__table_open(ctx, path, text, size, config);
}

mpt_dataset mpt_csv_memory(
    mpt_context *ctx, const char *text, size_t bytes, const mpt_table_config *config) {
    if (!mpt__enter_files(ctx, "mpt_csv_memory")) return mpt__dataset_handle(ctx, NULL);
    if (!text || bytes == 0 || bytes > PTRDIFF_MAX)
        return mpt__refuse_dataset(
            ctx, ARGUMENT, "%lld bytes of text%s", (int64_t)bytes, text ? "" : " at NULL");
    char *copy = (char *)mpt__host_new(ctx, bytes);
    if (copy) memcpy(copy, text, bytes);
    return mpt__table_open(ctx, "text", copy, bytes, config);
}

/* ==== Scaling, names ==== */

/* Mean and deviation of a column over a part's samples that have a value. */
static void mpt__column_fit(
    mpt__table *table, int64_t c, const mpt__dataset *part, bool standardise) {
    mpt__table_column *column = &table->columns[c];
    double center = 0.0, sum = 0.0, squares = 0.0;
    for (int pass = 0; pass < 2; pass++) {
        int64_t n = 0;
        sum = squares = 0.0;
        for (int64_t i = 0; i < part->count; i++) {
            int64_t row = part->indices ? part->indices[i] : part->first + i;
            double value = table->fields[row * table->count + c] - center;
            if (!mpt__f64_is_finite(value)) continue;
            sum += value, squares += value * value;
            n++;
        }
        if (n > 0) sum /= (double)n, squares /= (double)n;
        center += sum;
    }
    column->mean = center;
    squares -= sum * sum;
    column->deviation = !standardise ? 0.0 : squares > 0.0 ? sqrt(squares) : 1.0;
}

mpt_status mpt_table_fit(mpt_dataset handle, bool standardise) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    const mpt__dataset *part = mpt__dataset_enter(handle, "mpt_table_fit");
    mpt__table *table = part ? mpt__table_at(ctx, part) : NULL;
    if (!table) return mpt__status_of(ctx);
    if ((part->parent ? part->parent : part)->readers > 0)
        return mpt__error(ctx, STATE,
            "a loader already delivers from this table; call mpt_table_fit before "
            "mpt_loader_create");
    if (!mpt__dataset_filled(ctx, part)) return ctx->base.status;
    if (table->dtype == MPT_I64)
        return mpt__error(ctx, DTYPE, "the inputs are int64, which have no mean");
    for (int64_t c = 0; c < table->count; c++)
        if (table->columns[c].use == MPT_COLUMN_NUMBER && !table->columns[c].is_target)
            mpt__column_fit(table, c, part, standardise);
    table->filled = true;
    return MPT_OK;
}

/* The column of an input, and which of its inputs it is; NULL past the last. */
static const mpt__table_column *mpt__column_of(
    mpt_dataset handle, const char *name, int64_t *input, const mpt__table **table) {
    const mpt__dataset *dataset = mpt__dataset_enter(handle, name);
    *table = dataset ? mpt__table_at(handle.context, dataset) : NULL;
    for (int64_t c = 0; *table && *input >= 0 && c < (*table)->count; c++) {
        const mpt__table_column *column = &(*table)->columns[c];
        int64_t n = column->use == MPT_COLUMN_ONE_HOT ? column->categories : 1;
        if (column->use == MPT_COLUMN_IGNORE || column->is_target) continue;
        if (*input < n) return column;
        *input -= n;
    }
    return NULL;
}

const char *mpt_column_name(mpt_dataset table, int64_t input) {
    const mpt__table *found;
    const mpt__table_column *column = mpt__column_of(table, "mpt_column_name", &input, &found);
    return column ? found->text + column->name : NULL;
}

const char *mpt_category_name(mpt_dataset table, int64_t input, int64_t code) {
    const mpt__table *found;
    const mpt__table_column *column = mpt__column_of(table, "mpt_category_name", &input, &found);
    if (column && column->use == MPT_COLUMN_ONE_HOT) code = input;
    if (!column || !mpt__column_texts(column) || code < 0 || code >= column->categories)
        return NULL;
    return found->categories[column->first + code];
}
MPT__END_REGION

#endif /* MPTRAIN_NO_TABLES */

#endif
