/* ----
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
 * ---- */
#ifndef MPT__DATA_TABLE_FILE_INCLUDED
#define MPT__DATA_TABLE_FILE_INCLUDED

#include "data/table.c"
#include "data/writer.c"

#ifdef MPTRAIN_NO_TABLES

MPT__BEGIN_ABSENT
mpt_status mpt_table_save(mpt_dataset table, const char *path) {
    return mpt__no_tables(table.context, "mpt_table_save");
}

mpt_dataset mpt_table_load(mpt_context *ctx, const char *path) {
    return mpt__no_table(ctx, "mpt_table_load");
}

mpt_dataset mpt_table_load_memory(mpt_context *ctx, const char *text, size_t bytes) {
    return mpt__no_table(ctx, "mpt_table_load_memory");
}
MPT__END_ABSENT

#else

static const char mpt__table_head[] = "what,name,for,mean,deviation";

/* By mpt_column_use; a target's number is a number. */
static const char *const mpt__use_names[MPT_COLUMN_IGNORE + 1] = {
    "", "number", "one-hot", "code", "", "class", "ignored"};

/* ==== Save ==== */

static void mpt__table_quote(mpt__text *out, const char *text) {
    mpt__text_char(out, '"');
    for (; *text; text++) {
        if (*text == '"') mpt__text_char(out, '"');
        mpt__text_char(out, *text);
    }
    mpt__text_char(out, '"');
}

/* The file, counted at least: what does not fit is not written. 17 digits tell each double from all
   others. */
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
        mpt__write_file(&ctx->base, path, mpt__table_content, &text);
    }
    mpt__host_free(ctx, text.out, text.size);
    return ctx->base.status;
}

/* ==== Load ==== */

/* A file under way, with the five fields of its record, each with a 0. */
typedef struct {
    mpt__table_reader *reader;
    char *words[5];
    size_t lengths[5];
} mpt__table_record;

/* Refuses a field of the record. */
static bool mpt__table_odd(const mpt__table_record *record, int k) {
    return mpt__csv_fault(&record->reader->csv, k, NULL, "is not what mpt_table_save writes there",
        record->words[k], record->lengths[k]);
}

/* Reads the next record, overwriting what ends its fields. False at the end, and with an error
   recorded. */
static bool mpt__table_next(mpt__table_record *record) {
    mpt__csv *csv = &record->reader->csv;
    if (!mpt__csv_record(csv)) return false;
    for (int k = 0; k < 5; k++) {
        if (!mpt__csv_field(csv, k)) return false;
        record->words[k] = csv->field, record->lengths[k] = csv->length;
        csv->field[csv->length] = 0;
    }
    return true;
}

/* Which of two words field k is; -1 with an error recorded. */
static int mpt__table_word(
    const mpt__table_record *record, int k, const char *first, const char *second) {
    int found = strcmp(record->words[k], first) == 0 ? 0 : 1;
    return found == 0 || strcmp(record->words[k], second) == 0 ? found
                                                               : mpt__table_odd(record, k) - 1;
}

/* The record about the table as a whole. */
static bool mpt__table_whole(const mpt__table_record *record) {
    if (mpt__table_word(record, 0, "table", "table") < 0 ||
        mpt__table_word(record, 1, "1", "1") < 0)
        return false;
    int whole =
        mpt__table_word(record, 2, mpt__dtype_info[MPT_F32].name, mpt__dtype_info[MPT_I64].name);
    int named = mpt__table_word(record, 3, "", "named");
    /* Codes have no means. */
    int filled = mpt__table_word(record, 4, "", whole ? "" : "filled");
    mpt__table *table = record->reader->table;
    table->dtype = whole ? MPT_I64 : MPT_F32;
    table->named = named > 0, table->filled = filled > 0;
    return mpt__ok(record->reader->csv.context);
}

/* A record that begins a column. */
static bool mpt__table_begin(const mpt__table_record *record, mpt__table_column *column) {
    mpt__table_reader *r = record->reader;
    int use = MPT_COLUMN_IGNORE, target = mpt__table_word(record, 2, "input", "target");
    double *to[2] = {&column->mean, &column->deviation};
    while (use > 0 && strcmp(record->words[0], mpt__use_names[use]) != 0) use--;
    column->name = mpt__table_text(r, record->words[1], record->lengths[1]);
    if (target < 0 || column->name < 0) return false;
    if (!mpt__use_names[use][0] || (use == MPT_COLUMN_CLASS && !target))
        return mpt__table_odd(record, 0);
    column->use = (mpt_column_use)use;
    column->is_target = target > 0;
    column->point = '.';
    bool scaled = use == MPT_COLUMN_NUMBER && !target && r->table->filled;
    for (int k = 0; k < 2; k++) {
        const char *word = record->words[3 + k];
        if (scaled ? !mpt__parse_double(word, record->lengths[3 + k], to[k]) ||
                    !mpt__f64_is_finite(*to[k]) || column->deviation < 0.0
                   : *word)
            return mpt__table_odd(record, 3 + k);
    }
    return true;
}

/* All records behind the first. */
static bool mpt__table_records(mpt__table_reader *r) {
    mpt__table_record record;
    mpt__table_column *column = NULL;
    record.reader = r;
    if (!mpt__table_next(&record))
        return mpt__ok(r->csv.context) &&
            mpt__reject(r->csv.context, FORMAT, "%s: it ends after line 1", r->csv.path);
    if (!mpt__table_whole(&record)) return false;
    while (mpt__table_next(&record)) {
        int64_t before = r->found_count;
        if (strcmp(record.words[0], "category") != 0) {
            column = &r->table->columns[r->table->count++];
            if (!mpt__table_begin(&record, column)) return false;
        } else if (!column || !mpt__column_texts(column)) {
            return mpt__table_odd(&record, 0);
        } else if (mpt__category_of(r, r->table->count - 1, record.words[1], record.lengths[1]) <
            0) {
            return false;
        } else if (r->found_count == before) { /* it comes twice */
            return mpt__table_odd(&record, 1);
        }
    }
    return mpt__ok(r->csv.context);
}

/* Takes over `text`, which has room for a byte more. */
static mpt_dataset mpt__table_opened(mpt_context *ctx, const char *path, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    mpt__dataset *dataset = NULL;
    mpt__table_reader r;
    int64_t records, fields;
    size_t head = sizeof mpt__table_head - 1;
    mpt__zero(r);
    r.csv.context = ctx, r.csv.path = path, r.csv.text = text, r.csv.size = size;
    r.csv.delimiter = ',';
    if (text && mpt__ok(ctx) &&
        mpt__refuse_known(ctx, path, (const uint8_t *)text, size, MPT__KNOWN_ALL) &&
        mpt__csv_count(&r.csv, &records, &fields)) {
        mpt__csv_rewind(&r.csv);
        if (fields != 5 || size - r.csv.at < head ||
            memcmp(text + r.csv.at, mpt__table_head, head) != 0) {
            mpt__error(ctx, FORMAT, "%s: no file of mpt_table_save: line 1 is not %s", path,
                mpt__table_head);
        } else if (mpt__table_room(&r, 0, records, 0)) { /* no more columns than records */
            r.table->count = 0;
            r.csv.write = true;
            r.csv.at += head;
            r.fixed = mpt__table_records(&r);
            if (r.fixed) dataset = mpt__table_finish(&r);
        }
    }
    mpt__table_clear(&r);
    mpt__host_free(ctx, text, size + 1);
    return mpt__dataset_publish(ctx, dataset);
}

mpt_dataset mpt_table_load(mpt_context *ctx, const char *path) {
    mpt__reader file;
    char *text = NULL;
    if (!mpt__enter_files(ctx, "mpt_table_load")) return mpt__dataset_handle(ctx, NULL);
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
    if (!mpt__enter_files(ctx, "mpt_table_load_memory")) return mpt__dataset_handle(ctx, NULL);
    if (!text || bytes >= PTRDIFF_MAX)
        return mpt__refuse_dataset(
            ctx, ARGUMENT, "%lld bytes of text%s", (int64_t)bytes, text ? "" : " at NULL");
    char *copy = (char *)mpt__host_new(ctx, bytes + 1);
    if (copy) memcpy(copy, text, bytes);
    return mpt__table_opened(ctx, "text", copy, bytes);
}

#endif /* MPTRAIN_NO_TABLES */

#endif
