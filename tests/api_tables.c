/* api_tables.c: tables and arrays: numbers to the bit, categories, missing values, scaling, NumPy's
 * files against NumPy, raw files, odd ones; ranks and collate of loaders.
 * The implementation is in this file for the reading of doubles. */
#define MPTRAIN_NO_SIMD /* which files need not, and takes long to compile */
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
#include <float.h>
#include <math.h>

#include "golden.h"
#include "harness.h"
#include "memory.h"

static mpt_dataset csv(mpt_context *context, const char *text, const mpt_table_config *config) {
    return mpt_csv_memory(context, text, strlen(text), config);
}

static mpt_table_config plain(void) {
    mpt_table_config config = mpt_table_config_default();
    config.header = false;
    return config;
}

/* ==== Numbers ==== */

TEST(numbers_are_those_of_python) {
    golden_file file;
    golden_case c;
    REQUIRE(golden_open(&file, "tables.bin"));
    REQUIRE(golden_next(&file, &c));
    const golden_tensor *text = golden_find(&c, "text"), *bits = golden_find(&c, "bits");
    const char *at = (const char *)text->data, *const end = at + text->count;
    int64_t i = 0;
    for (; at < end; i++) {
        const char *stop = (const char *)memchr(at, '\n', (size_t)(end - at));
        double got = 0.0, want;
        char shown[64];
        REQUIRE(stop && i < bits->count);
        snprintf(shown, sizeof shown, "%.*s", (int)(stop - at), at);
        memcpy(&want, (const int64_t *)bits->data + i, sizeof want);
        CHECK(mpt__parse_double(at, (size_t)(stop - at), &got));
        if (memcmp(&got, &want, sizeof got) != 0)
            TEST_FAIL_("%s is %.17g, expected %.17g", shown, got, want);
        at = stop + 1;
    }
    CHECK_EQ_INT(i, bits->count);
    CHECK(i > 1000);
    golden_close(&file);
}

TEST(what_is_no_number) {
    static const char *const texts[] = {"",    "-",    ".",   "+.",       "e5",  "1e",      "1e+",
                                        "1e-", "0x1",  "1 2", "1,2",      "inf", "1.2.3",   "--1",
                                        "1f",  "1e5.", "nan", "\xd9\xa1", "1_0", "Infinity",
                                        "1e5x"};
    double value;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (mpt__parse_double(texts[i], strlen(texts[i]), &value))
            TEST_FAIL_("\"%s\" is read as %g", texts[i], value);
}

/* However many zeros an exponent takes back. */
TEST(zeros_without_end) {
    enum { ZEROS = 250000 };
    static char text[ZEROS + 16];
    double value = 0;
    memset(text, '0', sizeof text);
    text[0] = '.';
    memcpy(text + 1 + ZEROS, "125e250001", 10);
    CHECK(mpt__parse_double(text, ZEROS + 11, &value) && value == 1.25);
    memset(text, '0', sizeof text);
    text[0] = '7';
    memcpy(text + 1 + ZEROS, "e-250001", 8);
    CHECK(mpt__parse_double(text, ZEROS + 9, &value) && value == 0.7);
    CHECK(mpt__parse_double("1e9999999999", 12, &value) && value > 1e308);
    CHECK(mpt__parse_double("1e-9999999999", 13, &value) && value == 0);
}

/* A digit behind 800 others decides between two doubles that the number lies in the middle of. */
TEST(digits_behind_800_others) {
    static const char middle[] = "1.00000000000000011102230246251565404236316680908203125";
    char text[901];
    double value;
    memset(text, '0', sizeof text);
    memcpy(text, middle, sizeof middle - 1);
    CHECK(mpt__parse_double(text, 901, &value) && value == 1.0);
    text[900] = '1';
    CHECK(mpt__parse_double(text, 901, &value) && value == 1.0 + DBL_EPSILON);
    CHECK(mpt__parse_double(text, 900, &value) && value == 1.0);
}

TEST(what_lacks) {
    static const char *const missing[] = {"", "NA", "?", "None", "nan", "-NaN", "1.#IND", "-1.#ind",
                                          "1.#QNAN", "+1.#qnan"},
                      *const values[] = {"-", "na", "nano", "1.#in", "1.#ind0", "1.#INF", "0"};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++)
        if (!mpt__field_missing(missing[i], strlen(missing[i]))) TEST_FAIL_("%s", missing[i]);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (mpt__field_missing(values[i], strlen(values[i]))) TEST_FAIL_("%s", values[i]);
}

/* ==== Tables ==== */

TEST(columns_of_every_use) {
    golden_file file;
    golden_case c;
    mpt_context *context = make_context();
    const mpt_column columns[3] = {
        {"note", MPT_COLUMN_IGNORE}, {"code", MPT_COLUMN_CLASS}, {"price", MPT_COLUMN_IGNORE}};
    mpt_table_config config = mpt_table_config_default();
    float x[6];
    int64_t y;
    REQUIRE(golden_open(&file, "tables.bin"));
    REQUIRE(golden_next(&file, &c) && golden_next(&file, &c));
    const golden_tensor *text = golden_find(&c, "text");
    config.missing = true, config.columns = columns, config.column_count = 3;
    for (int part = 0; part < 2; part++) {
        for (int standardise = 0; standardise < 2; standardise++) {
            const char name[3] = {'x', (char)('0' + 2 * part + standardise), 0};
            const golden_tensor *want = golden_find(&c, name);
            mpt_dataset table =
                mpt_csv_memory(context, (const char *)text->data, (size_t)text->count, &config);
            REQUIRE(mpt_dataset_size(table) == 5);
            CHECK_EQ_INT(mpt_dataset_shape(table).rank, 1);
            CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], 6);
            mpt_sample(table, 1, x, NULL);
            CHECK(x[0] != x[0]); /* not yet filled in */
            mpt_table_fit(part ? mpt_subset(table, 1, 3) : table, standardise);
            for (int64_t i = 0; i < 5; i++) {
                static const int64_t codes[5] = {3, 2, 3, 1, 0}; /* of 9, 10, a, b */
                CHECK_EQ_INT(mpt_sample(table, i, x, &y), MPT_OK);
                CHECK_EQ_INT(y, codes[i]);
                for (int k = 0; k < 6; k++)
                    CHECK_CLOSE(x[k], golden_value(want, i * 6 + k), 2e-7, 0.0);
            }
            CHECK_EQ_STR(mpt_class_name(table, 0), "9");
            CHECK_EQ_STR(mpt_class_name(table, 1), "10");
            CHECK_EQ_STR(mpt_class_name(table, 3), "b");
            CHECK(mpt_class_name(table, 4) == NULL);
            CHECK_EQ_STR(mpt_column_name(table, 0), "width");
            CHECK_EQ_STR(mpt_column_name(table, 5), "height, m");
            CHECK(mpt_column_name(table, 6) == NULL && mpt_column_name(table, -1) == NULL);
            CHECK_EQ_STR(mpt_column_name(table, 4), "kind");
            CHECK_EQ_STR(mpt_category_name(table, 4, 0), "red");
            CHECK_EQ_STR(mpt_category_name(table, 3, 0), "gr\"een");
            CHECK(mpt_category_name(table, 0, 0) == NULL);
        }
    }
    CHECK_EQ_STR(mpt_error(context), "");
    golden_close(&file);
    mpt_destroy(context);
}

/* Codes, delimiters, line ends, a table like another one, batches. */
TEST(codes_and_tables_alike) {
    static const char text[] = "\xef\xbb\xbf"
                               "7; b ;\"x;\r\n1\"\r\n\r\n8;\ta;\"\"\"\"\r\n9;c;x";
    const mpt_column columns[1] = {{"-2", MPT_COLUMN_CODE}};
    mpt_context *context = make_context();
    mpt_table_config config = plain();
    mpt_loader_config loading = mpt_loader_config_default();
    mpt_batch batch;
    int64_t codes[6], classes[3];
    config.delimiter = ';', config.dtype = MPT_I64;
    config.columns = columns, config.column_count = 1;
    mpt_dataset table = csv(context, text, &config);
    REQUIRE(mpt_loader_next(mpt_loader_create(context, table, &loading), &batch));
    CHECK_EQ_INT(mpt_get_dtype(batch.x), MPT_I64);
    mpt_read(batch.x, codes, sizeof codes);
    mpt_read(batch.y, classes, sizeof classes);
    static const int64_t want_codes[6] = {7, 1, 8, 0, 9, 2}, want_classes[3] = {2, 0, 1};
    CHECK_EQ_BITS(codes, want_codes, sizeof codes);
    CHECK_EQ_BITS(classes, want_classes, sizeof classes);
    CHECK_EQ_STR(mpt_category_name(table, 1, 2), "c");
    CHECK_EQ_STR(mpt_class_name(table, 2), "x;\r\n1");
    CHECK_EQ_STR(mpt_column_name(table, 1), "1");
    config.like = table;
    mpt_dataset other = csv(context, "1;c;x\n2;b;\"\"\"\"", &config);
    CHECK_EQ_INT(mpt_sample_into(other, 0, NULL, 0, classes, sizeof classes, NULL), MPT_OK);
    CHECK_EQ_INT(classes[0], 1);
    CHECK_EQ_STR(mpt_class_name(other, 2), "x;\r\n1");
    CHECK_EQ_STR(mpt_error(context), "");
    csv(context, "1;d;x", &config);
    EXPECT(MPT_ERROR_FORMAT, "text: line 1, column 2: \"d\" is not in the table");
    csv(context, "1;c", &config);
    EXPECT(MPT_ERROR_FORMAT, "its columns are not those of the table that it is like");
    mpt_destroy(context);
}

/* What a table was fitted with goes over to one like it; several targets. */
TEST(fitted_tables_alike) {
    const mpt_column columns[2] = {{"b", MPT_COLUMN_TARGET}, {"-1", MPT_COLUMN_TARGET}};
    mpt_context *context = make_context();
    mpt_table_config config = mpt_table_config_default();
    mpt_batch batch;
    float x[2], y[4];
    config.columns = columns, config.column_count = 2, config.missing = true;
    mpt_dataset train = csv(context, "a,b,c\n1,2,3\n5,4,5\n,7,8\n", &config);
    CHECK_EQ_INT(mpt_table_fit(train, true), MPT_OK);
    mpt_table_config test_config = mpt_table_config_default();
    test_config.like = train, test_config.missing = true;
    mpt_dataset test = csv(context, "a,b,c\n7,2,3\nNA,1,-1", &test_config);
    mpt_loader loader = mpt_loader_create(context, test, NULL);
    REQUIRE(mpt_loader_next(loader, &batch));
    mpt_read(batch.x, x, sizeof x);
    mpt_read(batch.y, y, sizeof y);
    static const float want_x[2] = {2.0f, 0.0f}, want_y[4] = {2, 3, 1, -1};
    CHECK_EQ_BITS(x, want_x, sizeof x);
    CHECK_EQ_BITS(y, want_y, sizeof y);
    CHECK_EQ_INT(mpt_table_fit(test, false), MPT_ERROR_STATE);
    EXPECT(MPT_ERROR_STATE, "before mpt_loader_create");
    mpt_loader_create(context, mpt_subset(train, 0, 2), NULL);
    CHECK_EQ_INT(mpt_table_fit(train, false), MPT_ERROR_STATE); /* its part is being read */
    EXPECT(MPT_ERROR_STATE, "before mpt_loader_create");
    mpt_loader_destroy(loader);
    CHECK_EQ_INT(mpt_table_fit(test, true), MPT_OK); /* one value: no deviation */
    mpt_sample(test, 0, x, NULL);
    CHECK_EQ_BITS(x, &want_x[1], sizeof *x);
    mpt_dataset empty = csv(context, "a,b,c\n,1,1\n,2,2", &config);
    CHECK_EQ_INT(mpt_table_fit(empty, true), MPT_OK);
    mpt_sample(empty, 1, x, NULL);
    CHECK_EQ_BITS(x, &want_x[1], sizeof *x); /* a column without values is 0 */
    mpt_destroy(context);
}

/* The target column as a row of ones and zeros, which losses of probabilities take. */
TEST(targets_that_are_one_hot) {
    static const char text[] = "a,b\n1,red\n2,blue\n3,green\n4,blue\n";
    static const mpt_column columns[1] = {{"b", MPT_COLUMN_ONE_HOT}};
    mpt_context *c = make_context();
    mpt_table_config config = mpt_table_config_default();
    config.columns = columns, config.column_count = 1, config.target = "b";
    mpt_dataset data = mpt_csv_memory(c, text, sizeof text - 1, &config);
    mpt_sample_sizes sizes;
    float input, target[4][3];
    int first = 0;
    for (int64_t row = 0; row < 4; row++)
        CHECK_EQ_INT(mpt_sample_into(data, row, &input, sizeof input, target[row],
                                     sizeof target[row], &sizes),
                     MPT_OK);
    CHECK(sizes.target_dtype == MPT_F32 && sizes.target_bytes == sizeof target[0]);
    CHECK(input == 4.0f);
    for (int k = 0; k < 3; k++) { /* red, blue and green differ; both blues are the same */
        CHECK(target[0][k] + target[1][k] + target[2][k] == 1.0f);
        CHECK(target[1][k] == target[3][k]);
        first += target[0][k] == 1.0f;
    }
    CHECK_EQ_INT(first, 1);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(odd_tables) {
    static const struct {
        const char *text, *fault;
    } odd[] = {
        {"a,b\n1,2\n3,x", "text: line 3, column 2 (b): \"x\" is not a number"},
        {"a,b\n1,2\n\n3", "text: line 4 has 1 fields, expected 2; is ',' the delimiter?"},
        {"a,b\n1,2,3", "text: line 2 has 3 fields, expected 2"},
        {"a,b\n,2", "text: line 2, column 1 (a): \"\" is no value; with"},
        {"a,b\n1,?", "text: line 2, column 2 (b): \"?\" is no value for a target"},
        {"a,b\n\"1\n2,3", "text: line 2, column 1: \"1?2,3\" begins with a quote that never ends"},
        {"a,b\n\"1\n2\"z,3", "text: line 2, column 1: \"1?2\" has text behind its closing quote"},
        {"a,b\n1e39,1", "text: line 2, column 1 (a): \"1e39\" is beyond what float32 holds"},
        {"a,b\n1,-1e39", "column 2 (b): \"-1e39\" is beyond"},
        {"a,b\n", "no samples: 1 lines with fields, of which 1 is the header"},
        {"\n\n \r\n", "no samples: 0 lines with fields"},
        {"a,b\n\"01234567890123456789012345678901234567890123456789\"x,1",
         "\"01234567890123456789012345678901234567890123...\" has text"},
    };
    mpt_context *context = make_context();
    char many[12000] = "a,b\n";
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        CHECK(csv(context, odd[i].text, NULL).slot == 0);
        EXPECT(MPT_ERROR_FORMAT, odd[i].fault);
    }
    csv(context, "a\n1", NULL);
    EXPECT(MPT_ERROR_ARGUMENT, "0 inputs, 1 targets");
    mpt_csv_memory(context, "a,b\n1,\0", 7, NULL);
    EXPECT(MPT_ERROR_FORMAT, "ends in a zero byte");
    char *commas = (char *)malloc(3 << 20);
    REQUIRE(commas != NULL);
    memset(commas, ',', 3 << 20);
    mpt_csv_memory(context, commas, 3 << 20, NULL);
    EXPECT(MPT_ERROR_FORMAT, "line 1 has 1048577 fields, expected 1048576");
    commas[1] = '\n';
    mpt_csv_memory(context, commas, 3 << 20, NULL);
    EXPECT(MPT_ERROR_FORMAT, "line 2 has 1048577 fields, expected 2");
    free(commas);
    for (int i = 0; i < 1025; i++) snprintf(many + strlen(many), 16, "t%d,1\n", i);
    csv(context, many, NULL);
    EXPECT(MPT_ERROR_FORMAT, "line 1026, column 1 (a): \"t1024\" is one text too many for one-hot");
    strcpy(strrchr(many, 't'), "");
    mpt_dataset widest = csv(context, many, NULL);
    CHECK_EQ_INT(mpt_dataset_shape(widest).dim[0], 1024);
    mpt_table_config config = mpt_table_config_default();
    config.dtype = MPT_I64;
    csv(context, "a,b\n1.5,x", &config);
    EXPECT(MPT_ERROR_FORMAT, "column 1 (a): \"1.5\" is not a whole number up to 2^53");
    config.missing = true;
    csv(context, "a,b\n,x", &config);
    EXPECT(MPT_ERROR_FORMAT, "whole numbers have no NaN");
    mpt_destroy(context);
}

static void keep_warning(void *user, mpt_log_level level, const char *message) {
    if (level == MPT_LOG_WARNING) snprintf((char *)user, 200, "%s", message);
}

TEST(a_header_of_numbers_is_noticed) {
    char said[200] = "";
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.log.write = keep_warning, config.log.user = said;
    mpt_context *context = mpt_create(&config);
    csv(context, "1,x\n2,3", NULL);
    CHECK_EQ_STR(said, "");
    csv(context, "1,2\n3,4", NULL);
    CHECK_CONTAINS(said, "header = false makes it a sample");
    mpt_destroy(context);
}

/* ==== Texts that look like numbers ==== */

typedef struct {
    char said[2000];
    int lines;
} log_kept;

static void keep_lines(void *user, mpt_log_level level, const char *message) {
    log_kept *kept = (log_kept *)user;
    const size_t n = strlen(kept->said);
    if (level != MPT_LOG_WARNING && level != MPT_LOG_INFO) return;
    snprintf(kept->said + n, sizeof kept->said - n, "%s\n", message);
    kept->lines++;
}

static mpt_context *make_listener(log_kept *kept) {
    mpt_config config = mpt_config_default();
    memset(kept, 0, sizeof *kept);
    config.threads = 1;
    config.log.write = keep_lines, config.log.user = kept;
    return mpt_create(&config);
}

/* The inputs of all samples of a table against those wanted. */
static void check_inputs(mpt_dataset table, const float *want, int64_t rows, int64_t inputs) {
    float x[16];
    CHECK_EQ_STR(mpt_error(table.context), "");
    REQUIRE(table.slot != 0 && inputs <= 16);
    CHECK_EQ_INT(mpt_dataset_size(table), rows);
    CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], inputs);
    for (int64_t i = 0; i < rows; i++) {
        CHECK_EQ_INT(mpt_sample_into(table, i, x, sizeof x, NULL, 0, NULL), MPT_OK);
        CHECK_EQ_BITS(x, want + i * inputs, (size_t)inputs * sizeof *x);
    }
}

TEST(decimal_commas) {
    static const char text[] = "a;b;price\n0,5;1,25;10,5\n0,25;2,5;20,5\n-1,5;2,5e0;30,5\n";
    static const float want[6] = {0.5f, 1.25f, 0.25f, 2.5f, -1.5f, 2.5f};
    static const float names[4] = {10.0f, 1.0f, 10.5f, 2.0f};
    log_kept log;
    mpt_context *context = make_listener(&log);
    mpt_table_config config = mpt_table_config_default();
    float x[2], y = 0.0f;
    config.delimiter = ';';
    mpt_dataset table = csv(context, text, &config);
    check_inputs(table, want, 3, 2);
    CHECK_EQ_INT(mpt_sample_into(table, 1, x, sizeof x, &y, sizeof y, NULL), MPT_OK);
    CHECK(y == 20.5f && mpt_class_name(table, 0) == NULL);
    CHECK_CONTAINS(log.said, "3 columns, first column 1 (a, line 2), have decimal commas;");
    /* Whole numbers and missing values before them do not count. */
    config.missing = true;
    check_inputs(csv(context, "a;n;t\n10;1;1\n10,5;2;2\n", &config), names, 2, 2);
    log.said[0] = 0, log.lines = 0;
    config.decimal = ',';
    check_inputs(csv(context, text, &config), want, 3, 2);
    config.delimiter = ',';
    check_inputs(csv(context, "a,b,t\n\"0,5\",\"1,25\",1", &config), want, 1, 2);
    CHECK_EQ_STR(log.said, "");
    csv(context, "a,t\n\"0,5\",1\n0.5,1", &config);
    EXPECT(MPT_ERROR_FORMAT, "line 3, column 1 (a): \"0.5\" is not a number as it is written here");
    config.delimiter = ';', config.decimal = 0, config.header = false;
    check_inputs(csv(context, text + 10, &config), want, 3, 2);
    CHECK_CONTAINS(log.said, "3 columns, first column 1 (without a name, line 1), have decimal");
    config.header = true, log.said[0] = 0, log.lines = 0;
    /* Told not to guess: categories, and each column is told. */
    config.delimiter = ';', config.decimal = '.';
    table = csv(context, text, &config);
    CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], 6);
    CHECK_EQ_INT(log.lines, 3);
    CHECK_CONTAINS(log.said, "column 1 (a): 3 of its 3 texts look like numbers, first \"0,5\" in "
                             "line 2, and all become categories");
    CHECK_CONTAINS(log.said, "column 2 (b): 3 of its 3 texts");
    CHECK_CONTAINS(log.said, "column 3 (price)");
    CHECK_CONTAINS(log.said, "decimal = ',' reads decimal commas");
    mpt_destroy(context);
}

/* What columns may be taken for columns of decimal commas. */
TEST(decimal_commas_or_others) {
    static const struct {
        const char *text;
        int64_t inputs;
        const char *said; /* of the log or the error */
    } rows[] = {
        {"a;t\n1,234;1\n5;2", 1, "have decimal commas, if these are none of thousands"},
        {"a;b;t\n1,234;0,5;1\n5;6;2", 2, "2 columns, first column 1 (a, line 2), have decimal"},
        {"a;b;t\n1,234;0.5;1\n5;6;2", 3, "column 1 (a): 2 of its 2 texts look like numbers"},
        {"a;t\n10,5;1\n7.5;2", 2, "2 of its 2 texts look like numbers, first \"10,5\" in line 2"},
        {"a;t\n7.5;1\n10,5;2", 0, "line 3, column 1 (a): \"10,5\" is not a number as it is"},
        {"a;t\n7,5;1\nx;2", 2, "1 of its 2 texts look like numbers, first \"7,5\" in line 2"},
        {"a;t\nx;1\n7,5;2\n8,5;3", 3,
         "2 of its 3 texts look like numbers, first \"7,5\" in line 3"},
        {"a;t\nx,y;1\nz;2", 2, ""},
        {"a;b;t\nx,y;1.5;1\nz;2;2", 3, ""}};
    log_kept log;
    mpt_context *context = make_listener(&log);
    mpt_table_config config = mpt_table_config_default();
    config.delimiter = ';';
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        log.said[0] = 0, log.lines = 0;
        mpt_dataset table = csv(context, rows[i].text, &config);
        if (rows[i].inputs == 0) {
            EXPECT(MPT_ERROR_FORMAT, rows[i].said);
        } else {
            CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], rows[i].inputs);
        }
        if (rows[i].inputs && rows[i].said[0]) CHECK_CONTAINS(log.said, rows[i].said);
        CHECK_EQ_INT(log.lines, rows[i].inputs && rows[i].said[0]);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* Whether it is the first field of its column or not, no number becomes a category in silence. */
TEST(numbers_written_otherwise) {
    static const struct {
        const char *text;
        char is; /* N a number, L like one, T a text, M missing, I infinite */
        float value;
    } rows[] = {{"1,234", 'L', 0},
                {"$5", 'L', 0},
                {"5 %", 'L', 0},
                {"1_000", 'L', 0},
                {"0x1F", 'L', 0},
                {"1 000", 'L', 0},
                {"EUR 5", 'L', 0},
                {"5 kg", 'L', 0},
                {"5\xe2\x82\xac", 'L', 0},
                {"12.345.678", 'L', 0},
                {"1.234,56", 'L', 0},
                {"(5)", 'L', 0},
                {"1'234.5", 'L', 0},
                {"5\xc2\xa0%", 'L', 0},
                {"1\xc2\xa0"
                 "234",
                 'L', 0},
                {"\xe2\x88\x92"
                 "5",
                 'N', -5},
                {"1e2", 'N', 100},
                {"+3", 'N', 3},
                {".5", 'N', 0.5f},
                {"5.", 'N', 5},
                {"2024-01-02", 'T', 0},
                {"1.2.3", 'T', 0},
                {"10-20", 'T', 0},
                {"12:30", 'T', 0},
                {"A4", 'T', 0},
                {"4th", 'T', 0},
                {"-", 'T', 0},
                {"na", 'T', 0},
                {"inf", 'I', 0},
                {"-Infinity", 'I', 0},
                {"+INF", 'I', 0},
                {"1.#INF", 'I', 0},
                {"\xe2\x88\x9e", 'I', 0},
                {"NaN", 'M', 0},
                {"nan", 'M', 0},
                {"NAN", 'M', 0},
                {"-nan", 'M', 0},
                {"n/a", 'M', 0},
                {"N/A", 'M', 0},
                {"NA", 'M', 0},
                {"#N/A", 'M', 0},
                {"<NA>", 'M', 0},
                {"null", 'M', 0},
                {"NULL", 'M', 0},
                {"None", 'M', 0},
                {"-1.#IND", 'M', 0},
                {"?", 'M', 0},
                {"", 'M', 0}};
    static const struct {
        char is;
        const char *fault;
    } faults[] = {{'L', "is not a number as it is written here"},
                  {'T', "is not a number, and its column is one of numbers"},
                  {'I', "is infinite"},
                  {'M', "is no value; with"}};
    log_kept log;
    mpt_context *context = make_listener(&log);
    for (size_t i = 0; i < 2 * (sizeof rows / sizeof *rows); i++) {
        const char is = rows[i / 2].is, *text = rows[i / 2].text;
        const int line = i % 2 ? 3 : 2;
        char table[128], place[64];
        log.said[0] = 0, log.lines = 0;
        snprintf(table, sizeof table, i % 2 ? "a,t\n2,1\n\"%s\",0\n3,1\n" : "a,t\n\"%s\",0\n2,1\n",
                 text);
        mpt_dataset data = csv(context, table, NULL);
        snprintf(place, sizeof place, "line %d, column 1 (a): \"%s\" ", line, text);
        if (is == 'N') {
            float x[1];
            CHECK_EQ_INT(mpt_sample_into(data, i % 2, x, sizeof x, NULL, 0, NULL), MPT_OK);
            CHECK(x[0] == rows[i / 2].value);
        } else if (line == 3 || is == 'I' || is == 'M') { /* told as an error of this field */
            CHECK_CONTAINS(mpt_error(context), place);
            for (size_t k = 0; k < 4; k++)
                if (faults[k].is == is) CHECK_CONTAINS(mpt_error(context), faults[k].fault);
            mpt_clear_error(context);
        } else { /* categories, which the log tells */
            snprintf(place, sizeof place, "first \"%s\" in line 2", text);
            CHECK_EQ_INT(mpt_dataset_shape(data).dim[0], 2);
            CHECK_EQ_INT(log.lines, is == 'L');
            if (is == 'L') CHECK_CONTAINS(log.said, place);
        }
        CHECK_EQ_STR(mpt_error(context), "");
    }
    /* Who says that a column is one of texts is not told. */
    static const mpt_column column = {"a", MPT_COLUMN_ONE_HOT};
    mpt_table_config config = mpt_table_config_default();
    config.columns = &column, config.column_count = 1;
    log.lines = 0;
    csv(context, "a,t\n\"1,234\",0\ninf,1\n", &config);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(log.lines, 0);
    mpt_destroy(context);
}

/* ==== Deployment ==== */

static const char houses[] =
    "rooms,town,kind,price\n1,Ulm,flat,10\n2,\"Bad \"\"X\"\"\",\"a,b\",20\n"
    "NA,Ulm,flat,30\n4.1,Ulm,\"two\nlines\",30\n";

static mpt_dataset fitted_houses(mpt_context *context, mpt_table_config *config) {
    static const mpt_column kind = {"kind", MPT_COLUMN_CODE};
    *config = mpt_table_config_default();
    config->missing = true, config->target = "price";
    config->columns = &kind, config->column_count = 1;
    mpt_dataset table = csv(context, houses, config);
    CHECK_EQ_INT(mpt_table_fit(table, true), MPT_OK);
    config->columns = NULL, config->column_count = 0;
    config->like = table;
    return table;
}

/* Lines as they come when nobody knows the target: fewer columns, in another order. */
TEST(lines_without_targets) {
    mpt_table_config config;
    mpt_context *context = make_context();
    float want[16];
    mpt_dataset table = fitted_houses(context, &config);
    for (int64_t i = 0; i < 4; i++) mpt_sample_into(table, i, want + 4 * i, 16, NULL, 0, NULL);
    config.target = "";
    check_inputs(csv(context, "rooms,town,kind\n1,Ulm,flat\n2,\"Bad \"\"X\"\"\",\"a,b\"", &config),
                 want, 2, 4);
    check_inputs(csv(context, "kind,rooms,town\nflat,1,Ulm\n", &config), want, 1, 4);
    check_inputs(csv(context, "price,kind,rooms,town\n?,flat,1,Ulm\n", &config), want, 1, 4);
    config.header = false;
    check_inputs(csv(context, "1,Ulm,flat\n", &config), want, 1, 4);
    check_inputs(csv(context, "1,Ulm,flat,\n", &config), want, 1, 4);
    csv(context, "1,Ulm\n", &config);
    EXPECT(MPT_ERROR_FORMAT,
           "its columns are not those of the table that it is like: 2, expected 4");
    config.header = true;
    csv(context, "rooms,town,sort\n1,Ulm,flat", &config);
    EXPECT(MPT_ERROR_FORMAT, "not those of the table that it is like: there is no kind");
    csv(context, "rooms,town,kind,sort\n1,Ulm,flat,2", &config);
    EXPECT(MPT_ERROR_FORMAT, "not those of the table that it is like: that has no sort");
    csv(context, "rooms,town,kind,kind\n1,Ulm,flat,2", &config);
    EXPECT(MPT_ERROR_FORMAT, "not those of the table that it is like: that has no kind");
    config.target = NULL;
    csv(context, "rooms,town,kind\n1,Ulm,flat", &config);
    EXPECT(MPT_ERROR_FORMAT, "there is no price; target = \"\" reads lines without targets");
    float x[4], y;
    table = csv(context, "price,kind,rooms,town\n7,flat,1,Ulm\n", &config);
    CHECK_EQ_INT(mpt_sample_into(table, 0, x, sizeof x, &y, sizeof y, NULL), MPT_OK);
    CHECK(y == 7.0f);
    CHECK_EQ_BITS(x, want, sizeof x);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

TEST(texts_that_training_never_saw) {
    static const char text[] = "a,town,code,t\n1,X,p,u\n2,Y,q,v\n";
    static const char later[] = "a,town,code,t\n1,Y,p,u\n2,Z,q,v\n3,\"W\",p,u\n";
    static const mpt_column column = {"code", MPT_COLUMN_CODE};
    /* a; town: X, Y; code. Then with categories "" in front. */
    static const float zeros[12] = {1, 0, 1, 0, 2, 0, 0, 1, 3, 0, 0, 0};
    static const float own[15] = {1, 0, 0, 1, 1, 2, 1, 0, 0, 2, 3, 1, 0, 0, 1};
    static const float codes[5] = {1, 0, 1, 0, 0};
    log_kept log;
    mpt_context *context = make_listener(&log);
    mpt_table_config config = mpt_table_config_default(), like = mpt_table_config_default();
    config.columns = &column, config.column_count = 1;
    like.like = csv(context, text, &config);
    check_inputs(csv(context, later, &like), zeros, 3, 4);
    CHECK_EQ_INT(log.lines, 1);
    CHECK_CONTAINS(log.said, "line 3, column 2 (town): a text that the table this one is like");
    CHECK_CONTAINS(log.said, "here all zeros");
    csv(context, "a,town,code,t\n1,Y,r,u\n", &like);
    EXPECT(MPT_ERROR_FORMAT,
           "line 2, column 3 (code): \"r\" is not in the table that this one is "
           "like; for inputs unknown = true there keeps a category");
    csv(context, "a,town,code,t\n1,Y,p,w\n", &like);
    EXPECT(MPT_ERROR_FORMAT,
           "line 2, column 4 (t): \"w\" is not in the table that this one is like");
    csv(context, "a,town,code,t\n1,,p,u\n", &like);
    EXPECT(MPT_ERROR_FORMAT, "line 2, column 2 (town): \"\" is no value; with");
    like.missing = true;
    check_inputs(csv(context, "a,town,code,t\n2,,q,u\n", &like), zeros + 4, 1, 4);
    csv(context, "a,town,code,t\n1,X,,u\n", &like);
    EXPECT(MPT_ERROR_FORMAT, "column code lacks a value, which it never does in the table that");
    like.missing = false, like.strict = true;
    csv(context, later, &like);
    EXPECT(MPT_ERROR_FORMAT, "line 3, column 2 (town): \"Z\" is not in the table that this one is");
    like.strict = false;

    /* With a category for what is to come. */
    log.said[0] = 0, log.lines = 0;
    config.unknown = true;
    like.like = csv(context, text, &config);
    CHECK_EQ_STR(mpt_category_name(like.like, 1, 0), "");
    CHECK_EQ_STR(mpt_class_name(like.like, 0), "u"); /* targets have none */
    check_inputs(csv(context, later, &like), own, 3, 5);
    CHECK_CONTAINS(log.said, "line 3, column 2 (town): a text that the table this one is like");
    CHECK_CONTAINS(log.said, "here taken for a missing value");
    check_inputs(csv(context, "a,town,code,t\n1,X,r,u\n", &like), codes, 1, 5);
    like.strict = true;
    csv(context, "a,town,code,t\n1,X,r,u\n", &like);
    EXPECT(MPT_ERROR_FORMAT, "column 3 (code): \"r\" is not in the table");
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

static char *read_text(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, 4096);
    *n = file && text ? fread(text, 1, 4095, file) : 0;
    if (file) fclose(file);
    return text;
}

/* Trained and saved here, loaded in a context that never saw the data: the same bits. */
TEST(tables_saved_and_loaded) {
    static const char row[] =
        "town,rooms,kind\nUlm,NA,\"two\nlines\"\n\"Bad \"\"X\"\"\",3.25,flat\n";
    mpt_context *context = make_context();
    mpt_table_config config;
    float x[8];
    char names[4][32];
    NEEDS_FILES
    mpt_dataset table = fitted_houses(context, &config);
    config.target = "";
    mpt_dataset rows = csv(context, row, &config);
    for (int i = 0; i < 2; i++)
        CHECK_EQ_INT(mpt_sample_into(rows, i, x + 4 * i, 16, NULL, 0, NULL), MPT_OK);
    for (int i = 0; i < 4; i++) snprintf(names[i], 32, "%s", mpt_column_name(table, i));
    char path[512];
    snprintf(path, sizeof path, "%s", test_tmp_path("houses.table"));
    CHECK_EQ_INT(mpt_table_save(mpt_subset(table, 1, 2), path), MPT_OK); /* a part is of it */
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);

    context = make_context();
    config.like = mpt_table_load(context, path);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(config.like), 0);
    CHECK_EQ_INT(mpt_dataset_shape(config.like).dim[0], 4);
    for (int i = 0; i < 4; i++) CHECK_EQ_STR(mpt_column_name(config.like, i), names[i]);
    CHECK_EQ_STR(mpt_category_name(config.like, 1, 0), "Bad \"X\"");
    CHECK_EQ_STR(mpt_category_name(config.like, 3, 2), "two\nlines");
    check_inputs(csv(context, row, &config), x, 2, 4);
    /* What has no samples is for no loader, no statistics, no fit. */
    CHECK(mpt_loader_create(context, config.like, NULL).slot == 0);
    EXPECT(MPT_ERROR_STATE, "has no samples");
    CHECK_EQ_INT(mpt_dataset_statistics(config.like, NULL, NULL), MPT_ERROR_STATE);
    EXPECT(MPT_ERROR_STATE, "has no samples");
    CHECK_EQ_INT(mpt_table_fit(config.like, true), MPT_ERROR_STATE);
    EXPECT(MPT_ERROR_STATE, "has no samples");
    CHECK_EQ_INT(mpt_sample(config.like, 0, x, NULL), MPT_ERROR_INDEX);
    EXPECT(MPT_ERROR_INDEX, "of a dataset of 0");
    mpt_subset(config.like, 0, 1);
    EXPECT(MPT_ERROR_INDEX, "not in a dataset of 0");
    static const double halves[2] = {0.5, 0.5};
    mpt_dataset parts[2];
    mpt_random_split(config.like, halves, 2, 1, parts);
    EXPECT(MPT_ERROR_ARGUMENT, "is empty");
    /* Saved again it is the same file. */
    size_t n, m;
    char again[512];
    snprintf(again, sizeof again, "%s", test_tmp_path("again.table"));
    CHECK_EQ_INT(mpt_table_save(config.like, again), MPT_OK);
    char *first = read_text(path, &n), *second = read_text(again, &m);
    REQUIRE(first && second && n == m);
    CHECK_EQ_BITS(first, second, n);
    CHECK_CONTAINS(first, "what,name,for,mean,deviation\ntable,1,float32,named,filled\n"
                          "number,\"rooms\",input,2.3666");
    free(first), free(second);
    remove(path), remove(again);
    mpt_destroy(context);
}

/* Codes alone, classes in the order that training gave them, columns without names, no fit. */
TEST(tables_of_codes_saved) {
    static const mpt_column columns[2] = {{"0", MPT_COLUMN_CODE}, {"2", MPT_COLUMN_CLASS}};
    static const float want[2] = {1, 7};
    mpt_context *context = make_context();
    mpt_table_config config = plain();
    int64_t x[2], y;
    NEEDS_FILES
    config.delimiter = ';', config.decimal = ',', config.dtype = MPT_I64;
    config.columns = columns, config.column_count = 2;
    mpt_dataset table = csv(context, "b;7;10,5\n\"a;\";8;9,5\n", &config);
    CHECK_EQ_STR(mpt_class_name(table, 0), "9,5"); /* by value */
    CHECK_EQ_INT(mpt_table_save(table, test_tmp_path("codes")), MPT_OK);
    config.columns = NULL, config.column_count = 0, config.decimal = 0;
    config.like = mpt_table_load(context, test_tmp_path("codes"));
    CHECK_EQ_STR(mpt_class_name(config.like, 1), "10,5");
    table = csv(context, "b;7;10,5\n", &config);
    CHECK_EQ_INT(mpt_sample_into(table, 0, x, sizeof x, &y, sizeof y, NULL), MPT_OK);
    CHECK(x[0] == (int64_t)want[0] && x[1] == (int64_t)want[1] && y == 1);
    CHECK_EQ_STR(mpt_error(context), "");
    remove(test_tmp_path("codes"));
    mpt_destroy(context);
}

TEST(odd_files_of_tables) {
#define HEAD "what,name,for,mean,deviation\n"
#define WHOLE HEAD "table,1,float32,named,filled\n"
    static const struct {
        const char *text, *fault;
    } odd[] = {
        {"a,b\n1,2\n", "no file of mpt_table_save: line 1 is not what,name,for,mean,deviation"},
        {HEAD, "it ends after line 1"},
        {HEAD "table,2,float32,,\n", "line 2, column 2: \"2\" is not what mpt_table_save writes"},
        {HEAD "table,1,float16,,\n", "line 2, column 3: \"float16\" is not what"},
        {HEAD "table,1,int64,,filled\n", "line 2, column 5: \"filled\" is not what"},
        {HEAD "number,a,input,,\n", "line 2, column 1: \"number\" is not what"},
        {HEAD "table,1,float32,no,\n", "line 2, column 4: \"no\" is not what"},
        {WHOLE, "0 inputs, 0 targets"},
        {WHOLE "number,a,input,1\n", "line 3 has 4 fields, expected 5"},
        {WHOLE "number,a,inputs,1,2\n", "line 3, column 3: \"inputs\" is not what"},
        {WHOLE "number,a,input,1,-2\n", "line 3, column 5: \"-2\" is not what"},
        {WHOLE "number,a,input,1,\n", "line 3, column 5: \"\" is not what"},
        {WHOLE "number,a,input,nan,1\n", "line 3, column 4: \"nan\" is not what"},
        {WHOLE "number,a,input,1e999,1\n", "line 3, column 4: \"1e999\" is not what"},
        {WHOLE "number,a,target,1,1\n", "line 3, column 4: \"1\" is not what"},
        {WHOLE "code,a,input,1,1\n", "line 3, column 4: \"1\" is not what"},
        {WHOLE "class,a,input,,\n", "line 3, column 1: \"class\" is not what"},
        {WHOLE "texts,a,input,,\n", "line 3, column 1: \"texts\" is not what"},
        {WHOLE ",a,input,,\n", "line 3, column 1: \"\" is not what"},
        {WHOLE "category,a,,,\n", "line 3, column 1: \"category\" is not what"},
        {WHOLE "number,a,input,1,1\ncategory,a,,,\n", "line 4, column 1: \"category\" is not"},
        {WHOLE "code,a,input,,\ncategory,b,,,\ncategory,b,,,\n", "line 5, column 2: \"b\" is not"},
        {WHOLE "number,a,target,,\n", "0 inputs, 1 targets"},
        {HEAD "table,1,int64,,\none-hot,a,input,,\n", "column a is one-hot, which dtype MPT_I64"},
        {WHOLE "number,\"a", "begins with a quote that never ends"},
        {"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "this is a Git LFS pointer"},
    };
    mpt_context *context = make_context();
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        CHECK(mpt_table_load_memory(context, odd[i].text, strlen(odd[i].text)).slot == 0);
        CHECK_CONTAINS(mpt_error(context), odd[i].fault);
        CHECK(mpt_failed(context));
        mpt_clear_error(context);
    }
    /* A byte-order mark and the line ends of Windows are none of that. */
    static const char good[] = "\xef\xbb\xbf" HEAD "table,1,float32,named,\r\n\r\n"
                               "number,a,input,,\r\nclass,b,target,,\r\ncategory,x,,,\r\n";
    mpt_dataset table = mpt_table_load_memory(context, good, sizeof good - 1);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_STR(mpt_class_name(table, 0), "x");
    /* Torn at every place: an error, or a table of what is there. */
    for (size_t n = 0; n + 1 < sizeof good; n++) {
        mpt_dataset torn = mpt_table_load_memory(context, good, n);
        CHECK(mpt_failed(context) == (torn.slot == 0));
        mpt_clear_error(context);
    }
    mpt_destroy(context);
#undef WHOLE
#undef HEAD
}

/* The real ones: sizes, classes, missing values, as their papers say. */
TEST(real_tables) {
    static const struct {
        const char *name;
        bool header, missing, classes;
        const char *target;
        int64_t rows, inputs, count;
    } tables[] = {{"iris.csv", false, false, false, NULL, 150, 4, 3},
                  {"abalone.csv", false, false, false, NULL, 4177, 10, 0},
                  {"california_housing.csv", true, true, false, "median_house_value", 20640, 13, 0},
                  {"penguins.csv", true, true, false, "species", 344, 10, 3},
                  {"pima-indians-diabetes.csv", false, false, true, NULL, 768, 8, 2},
                  {"sonar.csv", false, false, false, NULL, 208, 60, 2},
                  {"wine.csv", false, false, true, NULL, 178, 13, 3},
                  {"winequality-red.csv", false, false, true, NULL, 1599, 11, 6}};
    mpt_context *context = make_context();
    FILE *there = fopen(test_data_path("tabular/iris.csv"), "rb");
    if (!there) {
        mpt_destroy(context);
        SKIP("tabular in MPTRAIN_DATA");
    }
    fclose(there);
    NEEDS_FILES
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char path[64];
        const mpt_column last = {"-1", MPT_COLUMN_CLASS};
        mpt_table_config config = mpt_table_config_default();
        config.header = tables[i].header, config.missing = tables[i].missing;
        config.target = tables[i].target;
        if (tables[i].classes) config.columns = &last, config.column_count = 1;
        snprintf(path, sizeof path, "tabular/%s", tables[i].name);
        mpt_dataset table = mpt_csv(context, test_data_path(path), &config);
        CHECK_EQ_STR(mpt_error(context), "");
        CHECK_EQ_INT(mpt_dataset_size(table), tables[i].rows);
        CHECK_EQ_INT(mpt_dataset_shape(table).dim[0], tables[i].inputs);
        int64_t classes = 0;
        while (mpt_class_name(table, classes)) classes++;
        CHECK_EQ_INT(classes, tables[i].count);
        mpt_table_fit(table, true);
        double mean, deviation;
        CHECK_EQ_INT(mpt_dataset_statistics(table, &mean, &deviation), MPT_OK);
        CHECK(mean == mean && deviation < 2.0); /* nothing is missing any more */
    }
    mpt_destroy(context);
}

/* ==== Arrays ==== */

TEST(npy_files_of_numpy) {
    golden_file file;
    golden_case c;
    mpt_context *context = make_context();
    int cases = 0;
    NEEDS_FILES
    REQUIRE(golden_open(&file, "tables.bin"));
    while (golden_next(&file, &c)) {
        if (strcmp(c.op, "npy") != 0) continue;
        const golden_tensor *bytes = golden_find(&c, "file"), *x = golden_find(&c, "x");
        const char *path = put_file("array.npy", bytes->data, (size_t)bytes->count);
        mpt_tensor got = mpt_numpy_tensor(context, path, NULL);
        mpt_shape shape = mpt_get_shape(got);
        double values[32];
        CHECK_EQ_STR(mpt_error(context), "");
        CHECK_EQ_INT(shape.rank, x->shape.rank);
        for (int k = 0; k < shape.rank; k++) CHECK_EQ_INT(shape.dim[k], x->shape.dim[k]);
        mpt_read(mpt_cast(got, MPT_F64), values, (size_t)x->count * sizeof *values);
        CHECK_EQ_BITS(values, x->data, (size_t)x->count * sizeof *values);
        if (x->shape.rank == 3) {
            float sample[12];
            mpt_dataset data = mpt_npy(context, path, path);
            if (mpt_get_dtype(got) == MPT_U8) mpt_normalize(data, 0.0, 1.0 / 255.0);
            CHECK_EQ_INT(mpt_sample(data, 1, sample, NULL), MPT_OK);
            for (int k = 0; k < 12; k++) CHECK_CLOSE(sample[k], golden_value(x, 12 + k), 1e-6, 0.0);
        }
        mpt_clear_error(context);
        cases++;
    }
    CHECK_EQ_INT(cases, 50);
    golden_close(&file);
    mpt_destroy(context);
}

TEST(npz_files_of_numpy) {
    golden_file file;
    golden_case c;
    mpt_context *context = make_context();
    int cases = 0;
    NEEDS_FILES
    REQUIRE(golden_open(&file, "tables.bin"));
    while (golden_next(&file, &c)) {
        if (strcmp(c.op, "npz") != 0) continue;
        const golden_tensor *bytes = golden_find(&c, "file");
        const golden_tensor *x = golden_find(&c, "x"), *y = golden_find(&c, "y");
        uint8_t *torn = (uint8_t *)malloc((size_t)bytes->count);
        const size_t n = (size_t)bytes->count;
        const char *path = put_file("arrays.npz", bytes->data, n);
        mpt_dataset data = mpt_npz(context, path, "x_train", "y_train");
        mpt_batch batch;
        float values[36];
        int64_t targets[6];
        CHECK_EQ_STR(mpt_error(context), "");
        REQUIRE(torn && mpt_loader_next(mpt_loader_create(context, data, NULL), &batch));
        mpt_read(batch.x, values, sizeof values);
        mpt_read(batch.y, targets, sizeof targets);
        CHECK_EQ_BITS(values, x->data, sizeof values);
        CHECK_EQ_BITS(targets, y->data, sizeof targets);
        data = mpt_npz(context, path, "x_train", "target"); /* float64 targets come as float32 */
        REQUIRE(mpt_loader_next(mpt_loader_create(context, data, NULL), &batch));
        mpt_read(batch.y, values, 6 * sizeof *values);
        for (int i = 0; i < 6; i++) CHECK_NEAR(values[i], 0.5 * i, 0.0);
        mpt_numpy_tensor(context, path, "x");
        EXPECT(MPT_ERROR_FORMAT, "arrays.npz, x: the .npz has no array of this name");
        mpt_numpy_tensor(context, path, NULL);
        EXPECT(MPT_ERROR_FORMAT, "arrays.npz: this is a zip archive");
        /* Every byte once, torn at every place once: an error or, in what is not read, the same. */
        for (size_t i = 0; i < 2 * n; i += 7) {
            memcpy(torn, bytes->data, n);
            if (i < n) torn[i] ^= 0x10;
            put_file("torn.npz", torn, i < n ? n : i - n);
            mpt_tensor got = mpt_numpy_tensor(context, test_tmp_path("torn.npz"), "x_train");
            if (!mpt_failed(context)) {
                CHECK_EQ_INT(mpt_read(got, values, sizeof values), MPT_OK);
                CHECK_EQ_BITS(values, x->data, sizeof values);
            }
            mpt_clear_error(context);
        }
        free(torn);
        cases++;
    }
    CHECK_EQ_INT(cases, 2);
    golden_close(&file);
    mpt_destroy(context);
}

/* Nothing, deflated: there is no memory to unpack it to. */
TEST(npz_member_without_bytes) {
    static const char zip[] =
        "PK\3\4\24\0\0\0\10\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5\0\0\0x.npy\3\0"
        "PK\1\2\24\3\24\0\0\0\10\0\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0\0\0"
        "\0\0\0\0\0\0\0\0x.npyPK\5\6\0\0\0\0\1\0\1\0\63\0\0\0\45\0\0\0\0";
    mpt_context *context = make_context();
    NEEDS_FILES
    mpt_numpy_tensor(context, put_file("nothing.npz", zip, sizeof zip), "x");
    EXPECT(MPT_ERROR_FORMAT, "nothing.npz, x: its size in the .npz is not possible");
    mpt_destroy(context);
}

static size_t put_npy(uint8_t *out, const char *header, size_t bytes) {
    const size_t n = strlen(header);
    memcpy(out, "\x93NUMPY\x01\x00", 8);
    out[8] = (uint8_t)n, out[9] = (uint8_t)(n >> 8);
    memcpy(out + 10, header, n);
    memset(out + 10 + n, 255, bytes);
    return 10 + n + bytes;
}

TEST(odd_arrays) {
    static const struct {
        const char *header;
        size_t bytes;
        const char *fault;
    } odd[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 7, "2 elements of 4 bytes"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 12, "12 bytes follow it"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", 0, "it holds nothing"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999,9999999999)}", 8, "2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", 8, "2^63"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,2)}", 8, "8 dimens"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (1,)}", 8, "no float, integer or bool"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8, "plain numbers"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 8, "plain numbers"},
        {"{'descr': '<f4', 'shape': (2,)}", 8, "plain numbers"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2", 8, "plain numbers"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,,)}", 8, "plain numbers"},
        {"{'descr': '<u8', 'fortran_order': False, 'shape': (1,)}", 8, "int64 does not hold"},
    };
    mpt_context *context = make_context();
    uint8_t bytes[256];
    NEEDS_FILES
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const size_t n = put_npy(bytes, odd[i].header, odd[i].bytes);
        const char *path = put_file("odd.npy", bytes, n);
        CHECK(mpt_npy(context, path, NULL).slot == 0);
        EXPECT(MPT_ERROR_FORMAT, odd[i].fault);
        for (size_t cut = 0; cut < 10 + strlen(odd[i].header); cut += 3) {
            put_file("odd.npy", bytes, cut);
            CHECK(mpt_npy(context, path, NULL).slot == 0);
            CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_FORMAT);
            mpt_clear_error(context);
        }
    }
    size_t n = put_npy(bytes, "{'descr': '<i2', 'fortran_order': False, 'shape': ()}", 2);
    put_file("0.npy", bytes, n);
    CHECK(mpt_npy(context, test_tmp_path("0.npy"), NULL).slot == 0);
    EXPECT(MPT_ERROR_FORMAT, "its shape is []; the first dimension counts samples");
    n = put_npy(bytes, "{'descr': '<i2', 'fortran_order': False, 'shape': (3,)}", 6);
    put_file("3.npy", bytes, n);
    n = put_npy(bytes, "{'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", 2);
    put_file("2.npy", bytes, n);
    mpt_npy(context, test_tmp_path("3.npy"), test_tmp_path("2.npy"));
    EXPECT(MPT_ERROR_FORMAT,
           "2.npy: its shape is [2]; the first dimension counts samples, as many");
    mpt_destroy(context);
}

TEST(raw_files) {
    mpt_context *context = make_context();
    mpt_raw_config config = mpt_raw_config_default();
    mpt_loader_config loading = mpt_loader_config_default();
    uint8_t records[5 + 6 * 13];
    mpt_batch batch;
    float x[3];
    int64_t y, seen = 0;
    NEEDS_FILES
    /* Five bytes, then records of an i64 and five bytes of a picture: one row too many of them. */
    for (size_t i = 0; i < sizeof records; i++) records[i] = (uint8_t)(i * 11);
    for (int64_t i = 0; i < 6; i++) memcpy(records + 5 + i * 13, &i, sizeof i);
    char path[512];
    snprintf(path, sizeof path, "%s", put_file("records", records, sizeof records));
    config.inputs = config.targets = path;
    config.dtype = MPT_U8, config.shape = MPT_SHAPE(3);
    config.offset = 15, config.target_offset = 5;
    config.stride = config.target_stride = 13;
    mpt_dataset data = mpt_raw_files(context, &config);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(data), 6);
    loading.batch = 1, loading.shuffle = true;
    mpt_loader loader = mpt_loader_create(context, data, &loading);
    while (mpt_loader_next(loader, &batch)) {
        mpt_read(batch.x, x, sizeof x);
        mpt_read(batch.y, &y, sizeof y);
        REQUIRE(y >= 0 && y < 6);
        for (int k = 0; k < 3; k++) CHECK_NEAR(x[k] * 255.0f, records[15 + 13 * y + k], 1e-4);
        seen |= INT64_C(1) << y;
    }
    CHECK_EQ_INT(seen, 63);
    put_file("records", records, sizeof records - 20); /* it shrinks while it is in use */
    CHECK_EQ_INT(mpt_sample(data, 5, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "cannot read 3 bytes at byte 80");
    mpt_raw_files(context, &config);
    CHECK_EQ_STR(mpt_error(context), ""); /* has four */
    config.count = 5;
    mpt_raw_files(context, &config);
    EXPECT(MPT_ERROR_FORMAT, "records: 4 samples, expected 5");
    config.count = 0, config.offset = 61;
    mpt_raw_files(context, &config);
    EXPECT(MPT_ERROR_FORMAT, "no sample of 3 bytes, 13 apart, from byte 61 on in 63 bytes");
    config.offset = -1;
    mpt_raw_files(context, &config);
    EXPECT(MPT_ERROR_FORMAT, "from byte -1 on");
    mpt_destroy(context);
}

/* Whatever allocation fails, nothing leaks, and the same calls succeed afterwards. */
static int make_all(mpt_context *context, const char *npz) {
    mpt_table_config config = mpt_table_config_default();
    mpt_dataset table = csv(context, "a,b,c\n1,x,u\n2,y,\"v\"\n3,x,u\n", &config);
    config.like = table;
    csv(context, "a,b,c\n1,x,v", &config);
    mpt_npz(context, npz, "x_train", "y_train");
    mpt_numpy_tensor(context, npz, "x_train");
    mpt_raw_config raw = mpt_raw_config_default();
    raw.inputs = npz;
    mpt_raw_files(context, &raw);
    return mpt_failed(context);
}

TEST(no_allocation_that_fails_leaks) {
    golden_file file;
    golden_case c;
    counted memory;
    mpt_config config = mpt_config_default();
    mpt_context *context = make_context();
    int64_t fails = 1;
    int failed = 1;
    NEEDS_FILES
    mpt_destroy(context);
    REQUIRE(golden_open(&file, "tables.bin"));
    while (golden_next(&file, &c) && strcmp(c.op, "npz") != 0) {}
    while (golden_next(&file, &c) && strcmp(c.label, "savez_compressed") != 0) {}
    const golden_tensor *bytes = golden_find(&c, "file");
    char path[512];
    snprintf(path, sizeof path, "%s", put_file("all.npz", bytes->data, (size_t)bytes->count));
    count_memory(&config, &memory);
    for (; failed && fails < 200; fails++) {
        memory.calls = memory.fails = 0;
        context = mpt_create(&config);
        REQUIRE(context);
        memory.fails = memory.calls + fails;
        failed = make_all(context, path);
        if (failed) CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
        memory.fails = 0;
        mpt_clear_error(context);
        CHECK(!make_all(context, path));
        mpt_destroy(context);
        CHECK_EQ_INT(memory.live, 0);
    }
    CHECK(fails > 20 && fails < 200);
    golden_close(&file);
}

/* ==== Ranks, collate ==== */

enum { ROWS = 23 };

static mpt_dataset numbered(mpt_context *context, int64_t count) {
    static float x[64];
    static int64_t y[64];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int i = 0; i < 64; i++) x[i] = (float)i, y[i] = i;
    config.count = count, config.shape = MPT_SHAPE(1), config.inputs = x, config.targets = y;
    return mpt_memory_dataset(context, &config);
}

TEST(each_sample_in_one_rank) {
    for (int setting = 0; setting < 8; setting++) {
        const bool shuffle = setting & 1, drop = setting & 2;
        const int world = setting & 4 ? 3 : 30; /* more ranks than samples, too */
        for (int epoch = 0; epoch < 2; epoch++) {
            mpt_context *context = make_context();
            int64_t order[64], times[ROWS] = {0}, whole = 0, all = 0;
            mpt_loader_config config = mpt_loader_config_default();
            mpt_batch batch;
            config.batch = 4, config.shuffle = shuffle, config.seed = 9;
            mpt_loader one = mpt_loader_create(context, numbered(context, ROWS), &config);
            mpt_loader_seek(one, epoch, 0);
            while (mpt_loader_next(one, &batch)) {
                mpt_read(batch.y, order + whole, (size_t)batch.size * sizeof *order);
                whole += batch.size;
            }
            CHECK_EQ_INT(whole, ROWS);
            config.world = world, config.drop_last = drop, config.batch = drop ? 1 : 4;
            const int64_t share = drop ? ROWS / world : (ROWS + world - 1) / world;
            if (share == 0) {
                CHECK(mpt_loader_create(context, numbered(context, ROWS), &config).slot == 0);
                EXPECT(MPT_ERROR_ARGUMENT, "drop_last leaves nothing: batch 1 of 0 samples");
            }
            for (int rank = 0; rank < world && share > 0; rank++) {
                int64_t y[4], got = 0;
                config.rank = rank;
                mpt_loader part = mpt_loader_create(context, numbered(context, ROWS), &config);
                mpt_loader_seek(part, epoch, 0);
                while (mpt_loader_next(part, &batch)) {
                    mpt_read(batch.y, y, (size_t)batch.size * sizeof *y);
                    for (int64_t i = 0; i < batch.size; i++, got++) {
                        CHECK_EQ_INT(y[i], order[(got * world + rank) % ROWS]);
                        times[y[i]]++;
                    }
                }
                CHECK_EQ_INT(got, share);
                all += got;
            }
            int64_t twice = 0, never = 0;
            for (int i = 0; i < ROWS; i++) {
                CHECK(times[i] <= 2);
                twice += times[i] == 2, never += times[i] == 0;
            }
            if (share > 0) CHECK_EQ_INT(twice, all > ROWS ? all - ROWS : 0);
            if (share > 0) CHECK_EQ_INT(never, all < ROWS ? ROWS - all : 0);
            CHECK_EQ_STR(mpt_error(context), "");
            mpt_destroy(context);
        }
    }
}

/* Targets become probabilities of two samples mixed; batch 2 fails. */
static bool mix(void *user, const mpt_collation *batch, char *error, size_t error_size) {
    float *x = (float *)batch->x, *out = (float *)batch->out;
    const int64_t *y = (const int64_t *)batch->y;
    const float share = (float)(batch->seed % 8) / 8.0f, first = x[0];
    for (int64_t i = 0; i < batch->size; i++) {
        const int64_t other = (i + 1) % batch->size;
        x[i] = (1.0f - share) * x[i] + share * (other ? x[other] : first);
        for (int64_t c = 0; c < ROWS; c++)
            out[i * ROWS + c] = (y[i] == c ? 1.0f - share : 0.0f) + (y[other] == c ? share : 0.0f);
    }
    if (batch->index == 2 && user) snprintf(error, error_size, "%s", (const char *)user);
    return batch->index != 2 || !user;
}

TEST(collate_mixes_the_same_with_workers) {
    float want[ROWS * ROWS], got[ROWS * ROWS], x[ROWS];
    for (int workers = 0; workers < 4; workers++) {
        mpt_context *context = make_context();
        mpt_loader_config config = mpt_loader_config_default();
        mpt_batch batch;
        int64_t done = 0;
        config.batch = 5, config.shuffle = true, config.workers = workers, config.seed = 4;
        config.collate = mix;
        config.target_dtype = MPT_F32, config.target_shape = MPT_SHAPE(ROWS);
        mpt_loader loader = mpt_loader_create(context, numbered(context, ROWS), &config);
        if (mpt_error_code(context) == MPT_ERROR_UNSUPPORTED) {
            mpt_destroy(context);
            SKIP("threads");
        }
        while (mpt_loader_next(loader, &batch)) {
            CHECK_EQ_INT(mpt_get_shape(batch.y).rank, 2);
            CHECK_EQ_INT(mpt_get_shape(batch.y).dim[1], ROWS);
            mpt_read(batch.x, x, (size_t)batch.size * sizeof *x);
            mpt_read(batch.y, got + done * ROWS, (size_t)(batch.size * ROWS) * sizeof *got);
            for (int64_t i = 0; i < batch.size; i++, done++) {
                float mean = 0.0f, sum = 0.0f;
                for (int c = 0; c < ROWS; c++)
                    sum += got[done * ROWS + c], mean += got[done * ROWS + c] * (float)c;
                CHECK_NEAR(sum, 1.0, 1e-6);
                CHECK_NEAR(mean, x[i], 1e-5);
            }
        }
        CHECK_EQ_INT(done, ROWS);
        if (workers == 0) memcpy(want, got, sizeof got);
        CHECK_EQ_BITS(got, want, sizeof got);
        char why[] = "no paint", none[] = "";
        config.collate_user = why;
        loader = mpt_loader_create(context, numbered(context, ROWS), &config);
        for (done = 0; mpt_loader_next(loader, &batch);) done++;
        CHECK_EQ_INT(done, 2);
        EXPECT(MPT_ERROR_IO, "collate of batch 2 of epoch 0: no paint; after mpt_clear_error");
        CHECK(mpt_loader_next(loader, &batch));
        CHECK_EQ_INT(batch.index, 3);
        config.collate_user = none;
        loader = mpt_loader_create(context, numbered(context, ROWS), &config);
        while (mpt_loader_next(loader, &batch)) {}
        EXPECT(MPT_ERROR_IO, "collate of batch 2 of epoch 0: it gave no message");
        mpt_destroy(context);
    }
}

static bool any_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                       char *error, size_t error_size) {
    (void)user, (void)index, (void)seed, (void)target, (void)error, (void)error_size;
    memset(input, 0, 1);
    return true;
}

/* Counts whose products pass 2^32: what is asked for does not wrap to little. */
TEST(sizes_do_not_wrap) {
    mpt_config limited = mpt_config_default();
    limited.threads = 1, limited.memory_limit = 1 << 20;
    mpt_context *context = mpt_create(&limited);
    mpt_user_dataset_config config;
    mpt_loader_config loading = mpt_loader_config_default();
    const double halves[2] = {0.5, 0.5};
    mpt_dataset parts[2];
    memset(&config, 0, sizeof config);
    config.dtype = MPT_U8, config.sample = any_sample;
    config.count = (INT64_C(1) << 30) + 16;
    mpt_dataset data = mpt_user_dataset(context, &config);
    CHECK_EQ_STR(mpt_error(context), "");
    loading.batch = config.count;
    CHECK(mpt_loader_create(context, data, &loading).slot == 0);
    CHECK(mpt_failed(context));
    mpt_clear_error(context);
    loading.batch = 1, loading.shuffle = true;
    CHECK(mpt_loader_create(context, data, &loading).slot == 0);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_random_split(data, halves, 2, 1, parts), MPT_ERROR_MEMORY);
    mpt_clear_error(context);
    config.count = 1, config.shape = MPT_SHAPE((1 << 26) + 1);
    data = mpt_user_dataset(context, &config);
    memset(&loading, 0, sizeof loading);
    loading = mpt_loader_config_default();
    loading.workers = 64, loading.batch = 1;
    CHECK(mpt_loader_create(context, data, &loading).slot == 0);
    CHECK(mpt_failed(context));
    mpt_destroy(context);
}

/* Configs that are just outside, and questions that have no answer. */
TEST(values_just_outside) {
    static const char csv[] = "a,b,t\n1,x,0\n2,y,1\n3,x,0\n4,y,1\n";
    static const char odd[] = {'"', '\n', 0};
    const double halves[2] = {0.5, 0.5};
    mpt_context *context = make_context();
    NEEDS_FILES
    mpt_table_config config;
    mpt_dataset parts[2];
    mpt_column wrong[1];
    for (int k = 0; k < 3; k++) {
        config = mpt_table_config_default();
        config.delimiter = odd[k];
        mpt_csv_memory(context, csv, sizeof csv - 1, &config);
        EXPECT(MPT_ERROR_ARGUMENT, "delimiter is byte ");
    }
    config = mpt_table_config_default();
    config.column_count = -1;
    mpt_csv_memory(context, csv, sizeof csv - 1, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "-1 columns at NULL");
    config.column_count = 1;
    mpt_csv_memory(context, csv, sizeof csv - 1, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "1 columns at NULL");
    memset(wrong, 0, sizeof wrong);
    config.columns = wrong, config.column_count = -1;
    mpt_csv_memory(context, csv, sizeof csv - 1, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "-1 columns");
    config.column_count = 1; /* without a name */
    mpt_csv_memory(context, csv, sizeof csv - 1, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "no column is named NULL, and it has 3");
    mpt_csv(context, put_text("nothing.csv", ""), NULL);
    EXPECT(MPT_ERROR_FORMAT, "nothing.csv: the file is empty");
    mpt_dataset table = mpt_csv_memory(context, csv, sizeof csv - 1, NULL);
    CHECK_EQ_STR(mpt_category_name(table, 1, 0), "x");
    CHECK(mpt_category_name(table, 0, 0) == NULL && mpt_category_name(table, -1, 0) == NULL);
    CHECK(mpt_category_name(table, 99, 0) == NULL && mpt_column_name(table, 99) == NULL);
    CHECK_EQ_INT(mpt_table_save(table, NULL), MPT_ERROR_ARGUMENT);
    EXPECT(MPT_ERROR_ARGUMENT, "path is empty");
    CHECK_EQ_INT(mpt_table_save(table, ""), MPT_ERROR_ARGUMENT);
    EXPECT(MPT_ERROR_ARGUMENT, "path is empty");
    CHECK_EQ_INT(mpt_random_split(table, halves, 2, 0, parts), MPT_OK);
    CHECK_EQ_INT(mpt_table_fit(parts[0], true), MPT_OK); /* of two lines that were dealt out */
    mpt_table_load_memory(context, csv, SIZE_MAX);
    EXPECT(MPT_ERROR_ARGUMENT, " bytes of text");
    config = mpt_table_config_default();
    config.dtype = MPT_I64;
    mpt_table_fit(mpt_csv_memory(context, "a,t\n1,0\n2,1\n", 12, &config), true);
    EXPECT(MPT_ERROR_DTYPE, "the inputs are int64, which have no mean");
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* What people read as a number, and what they do not. */
TEST(texts_like_numbers) {
    static const char *const numbers[] = {"inf", "-inf", "+Infinity", "EUR 5", "5 kg", "0x1F",
                                          "1,234", "1.234,5", "1'234", "1_000", "12 345", "$ 5",
                                          "(7)", "1_00_000", "1,23,456"},
                      *const words[] = {"EuR 5x", "eur5x", "5 kilos x", "0xZZ", "1,,2", "1,2345,6",
                                        "'123", "1'23", "a b", "1 2", "abc 12", "A1( 12", "5 {",
                                        "0x1.8", "0x1:"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!mpt__number_like(numbers[i], strlen(numbers[i]))) TEST_FAIL_("%s", numbers[i]);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (mpt__number_like(words[i], strlen(words[i]))) TEST_FAIL_("%s", words[i]);
}

TEST_TABLE = {T(values_just_outside), T(texts_like_numbers),
    T(numbers_are_those_of_python),
    T(what_is_no_number),
    T(zeros_without_end),
    T(digits_behind_800_others),
    T(what_lacks),
    T(columns_of_every_use),
    T(codes_and_tables_alike),
    T(fitted_tables_alike),
    T(targets_that_are_one_hot),
    T(odd_tables),
    T(a_header_of_numbers_is_noticed),
    T(decimal_commas),
    T(decimal_commas_or_others),
    T(numbers_written_otherwise),
    T(lines_without_targets),
    T(texts_that_training_never_saw),
    T(tables_saved_and_loaded),
    T(tables_of_codes_saved),
    T(odd_files_of_tables),
    T(real_tables),
    T(npy_files_of_numpy),
    T(npz_files_of_numpy),
    T(npz_member_without_bytes),
    T(odd_arrays),
    T(raw_files),
    T(no_allocation_that_fails_leaks),
    T(each_sample_in_one_rank),
    T(collate_mixes_the_same_with_workers),
    T(sizes_do_not_wrap),
};
TEST_MAIN
