/* ------------------------
 * data/table_file.c: what a table has learned of its data, as a file: a CSV itself, which people
 * can read.
 *
 *     what,name,for,mean,deviation
 *     table,1,float32,named,filled
 *     number,rooms,input,5.5,1.25
 *     one-hot,town,input,,
 *     category,Ulm,,,
 *     number,price,target,,
 *
 * Categories stand in the order of their numbers. A file is data: nothing it claims is believed
 * before it is checked.
 * ---------------------- */
#ifndef MPT__DATA_TABLE_FILE_INCLUDED
#define MPT__DATA_TABLE_FILE_INCLUDED

#include "data/table.c"
#include "data/writer.c"

static const char mpt__table_head[] = "what,name,for,mean,deviation";

/* By mpt_column_use; a target's number is a number. */
static const char *const mpt__use_names[MPT_COLUMN_IGNORE + 1] = {"", "number", "one-hot", "code",
                                                                  "", "class",  "ignored"};

/* ==== Save ==== */

static void mpt__table_quote(mpt__text *out, const char *text) {
    mpt__text_char(out, '"');
    for (; *text; text++) {
        if (*text == '"') mpt__text_char(out, '"');
        mpt__text_char(out, *text);
    }
    mpt__text_char(out, '"');
}

/* The file, counted at least: what does not fit is not written. Doubles have 17 digits, which tell
   each from all others. */
static void mpt__table_text_of(const mpt__table *table, mpt__text *out) {
    mpt__write_text(out, "%s\ntable,1,%s,%s,%s\n", mpt__table_head,
                    mpt__dtype_info[table->dtype].name, table->named ? "named" : "",
                    table->filled ? "filled" : "");
    for (int64_t c = 0; c < table->count; c++) {
        const mpt__table_column *column = &table->columns[c];
        mpt__write_text(out, "%s,", mpt__use_names[column->use]);
        mpt__table_quote(out, table->text + column->name);
        mpt__write_text(out, ",%s,", column->is_target ? "target" : "input");
        if (column->use == MPT_COLUMN_NUMBER && !column->is_target && table->filled)
            mpt__write_text(out, "%.17g,%.17g\n", column->mean, column->deviation);
        else
            mpt__write_text(out, ",\n");
        for (int64_t i = 0; i < column->categories; i++) {
            mpt__write_text(out, "category,");
            mpt__table_quote(out, table->categories[column->first + i]);
            mpt__write_text(out, ",,,\n");
        }
    }
}

static bool mpt__table_content(mpt__writer *writer, const void *of) {
    const mpt__text *text = (const mpt__text *)of;
    return mpt__write_bytes(writer, text->out, text->length);
}

mpt_status mpt_table_save(mpt_dataset handle, const char *path) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = handle.context;
    const mpt__dataset *found = mpt__dataset_enter(handle, "mpt_table_save");
    const mpt__table *table = found ? mpt__table_at(ctx, found) : NULL;
    mpt__text text = {NULL, 0, 0};
    if (!table) return mpt__status_of(ctx);
    if (!path || !*path) return mpt__error(ctx, ARGUMENT, "path is empty");
    mpt__table_text_of(table, &text);
    text.size = text.length + 1, text.length = 0;
    text.out = (char *)mpt__host_new(ctx, text.size);
    if (text.out) {
        mpt__table_text_of(table, &text);
        mpt__write_file(ctx, path, mpt__table_content, &text);
    }
    mpt__host_free(ctx, text.out, text.size);
    return ctx->base.status;
}

/* ==== Load ==== */

/* A field of a record, with a 0 behind it. */
typedef struct {
    char *text;
    size_t length;
} mpt__table_word;

static bool mpt__table_odd(const mpt__csv *csv, int64_t k, const mpt__table_word *word) {
    return mpt__csv_fault(csv, k, NULL, "is not what mpt_table_save writes there", word->text,
                          word->length);
}

/* Reads the five fields of a record; their places are overwritten where they end. */
static bool mpt__table_words(mpt__csv *csv, mpt__table_word words[5]) {
    for (int k = 0; k < 5; k++) {
        if (!mpt__csv_field(csv, k)) return false;
        words[k].text = csv->field, words[k].length = csv->length;
        if (csv->write) csv->field[csv->length] = 0;
    }
    return true;
}

/* Mean and deviation of a column that has them, else nothing. */
static bool mpt__table_scale(mpt__table_reader *r, mpt__table_column *column,
                             const mpt__table_word words[5]) {
    double *to[2] = {&column->mean, &column->deviation};
    bool has = column->use == MPT_COLUMN_NUMBER && !column->is_target && r->table->filled;
    for (int k = 0; k < 2; k++) {
        const mpt__table_word *word = &words[3 + k];
        bool good =
            has ? mpt__parse_double(word->text, word->length, to[k]) && mpt__f64_is_finite(*to[k])
                : word->length == 0;
        if (!good || column->deviation < 0.0) return mpt__table_odd(&r->csv, 3 + k, word);
    }
    return true;
}

/* A record that begins a column. */
static bool mpt__table_begin(mpt__table_reader *r, mpt__table_column *column,
                             const mpt__table_word words[5]) {
    int use = MPT_COLUMN_IGNORE;
    while (use > 0 && strcmp(words[0].text, mpt__use_names[use]) != 0) use--;
    if (!mpt__use_names[use][0]) return mpt__table_odd(&r->csv, 0, &words[0]);
    column->use = (mpt_column_use)use;
    column->point = '.';
    column->is_target = strcmp(words[2].text, "target") == 0;
    column->name = mpt__table_text(r, words[1].text, words[1].length);
    if ((!column->is_target && strcmp(words[2].text, "input") != 0) ||
        (use == MPT_COLUMN_CLASS && !column->is_target))
        return mpt__table_odd(&r->csv, 2, &words[2]);
    return column->name >= 0 && mpt__table_scale(r, column, words);
}

/* The second record, about the table as a whole. */
static bool mpt__table_whole(mpt__table_reader *r, const mpt__table_word words[5]) {
    mpt__table *table = r->table;
    const char *const wanted[5] = {"table", "1", mpt__dtype_info[table->dtype].name, "named",
                                   "filled"};
    table->named = words[3].length > 0, table->filled = words[4].length > 0;
    for (int k = 0; k < 5; k++)
        if ((k < 3 || words[k].length > 0) && strcmp(words[k].text, wanted[k]) != 0)
            return mpt__table_odd(&r->csv, k, &words[k]);
    return !(table->filled && table->dtype == MPT_I64) || mpt__table_odd(&r->csv, 4, &words[4]);
}

/* All records behind the head, of which `columns` begin a column. */
static bool mpt__table_records(mpt__table_reader *r) {
    mpt__table_column *column = NULL;
    mpt__table_word words[5];
    int64_t line = 0, begun = 0;
    for (; mpt__csv_record(&r->csv); line++) {
        int64_t before = r->found_count;
        if (!mpt__table_words(&r->csv, words)) return false;
        if (line == 0) {
            if (strcmp(words[2].text, mpt__dtype_info[MPT_I64].name) == 0)
                r->table->dtype = MPT_I64;
            if (!mpt__table_whole(r, words)) return false;
        } else if (strcmp(words[0].text, "category") != 0) {
            column = &r->table->columns[begun++];
            if (!mpt__table_begin(r, column, words)) return false;
        } else if (!column || !mpt__column_texts(column)) {
            return mpt__table_odd(&r->csv, 0, &words[0]);
        } else if (mpt__category_of(r, begun - 1, words[1].text, words[1].length) < 0) {
            return false;
        } else if (r->found_count == before) {
            return mpt__table_odd(&r->csv, 1, &words[1]);
        }
    }
    return line > 0 || mpt__reject(r->csv.context, FORMAT, "%s: it ends after line 1", r->csv.path);
}

/* How many records begin a column; -1 with an error recorded if it is no file of a table. */
static int64_t mpt__table_columns(mpt__csv *csv) {
    mpt__table_word words[5];
    int64_t records, fields, columns = -2; /* the first two records do not */
    if (!mpt__csv_count(csv, &records, &fields)) return -1;
    size_t n = sizeof mpt__table_head - 1;
    mpt__csv_rewind(csv);
    if (csv->size - csv->at < n || memcmp(csv->text + csv->at, mpt__table_head, n) != 0 ||
        fields != 5) {
        mpt__error(csv->context, FORMAT, "%s: no file of mpt_table_save: line 1 is not %s",
                   csv->path, mpt__table_head);
        return -1;
    }
    for (; mpt__csv_record(csv); columns++) {
        if (!mpt__table_words(csv, words)) return -1;
        columns -= words[0].length == 8 && memcmp(words[0].text, "category", 8) == 0;
    }
    return columns < 0 ? 0 : columns;
}

/* Takes over `text`, which has room for one byte more than its size. */
static mpt_dataset mpt__table_opened(mpt_context *ctx, const char *path, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt_table_config usual = mpt_table_config_default();
    mpt__table_reader r;
    mpt__dataset *dataset = NULL;
    mpt__table_word words[5];
    mpt__zero(r);
    r.csv.context = ctx, r.csv.path = path, r.csv.text = text, r.csv.size = size;
    r.csv.delimiter = ',';
    r.config = &usual;
    int64_t columns = -1;
    if (text && mpt__ok(ctx) &&
        mpt__refuse_known(ctx, path, (const uint8_t *)text, size, MPT__KNOWN_ALL))
        columns = mpt__table_columns(&r.csv);
    if (columns >= 0 && mpt__table_room(&r, 0, columns, 0)) {
        r.table->dtype = MPT_F32;
        r.csv.write = true;
        mpt__csv_rewind(&r.csv);
        mpt__csv_record(&r.csv);
        r.fixed = mpt__table_words(&r.csv, words) && mpt__table_records(&r);
        if (r.fixed) dataset = mpt__table_finish(&r);
    }
    mpt__table_clear(&r);
    mpt__host_free(ctx, text, size + 1);
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_table_load(mpt_context *ctx, const char *path) {
    mpt__reader file;
    char *text = NULL;
    if (!mpt__enter(ctx, "mpt_table_load") || mpt__no_data_files(ctx))
        return mpt__dataset_handle(ctx, NULL);
    file.size = 0;
    if (!path) {
        mpt__error(ctx, ARGUMENT, "path is NULL");
    } else if (mpt__reader_open_up_to(&file, ctx, path, PTRDIFF_MAX - 1)) {
        text = (char *)mpt__host_new(ctx, (size_t)file.size + 1);
        if (text) mpt__reader_read(&file, text, (size_t)file.size);
        mpt__reader_close(&file);
    }
    return mpt__table_opened(ctx, path, text, (size_t)file.size);
}

mpt_dataset mpt_table_load_memory(mpt_context *ctx, const char *text, size_t bytes) {
    if (!mpt__enter(ctx, "mpt_table_load_memory") || mpt__no_data_files(ctx))
        return mpt__dataset_handle(ctx, NULL);
    if (!text || bytes >= PTRDIFF_MAX) {
        mpt__error(ctx, ARGUMENT, "%lld bytes of text%s", (int64_t)bytes, text ? "" : " at NULL");
        return mpt__dataset_handle(ctx, NULL);
    }
    char *copy = (char *)mpt__host_new(ctx, bytes + 1);
    if (copy) memcpy(copy, text, bytes);
    return mpt__table_opened(ctx, "text", copy, bytes);
}

#endif
