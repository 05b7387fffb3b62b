/* api_tables.c: tables and arrays: numbers to the bit, categories, missing values, scaling, NumPy's
 * files against NumPy, raw files, odd ones; ranks and collate of loaders.
 * The implementation is in this file for the reading of doubles. */
#define MPTRAIN_NO_SIMD /* which files need not, and takes long to compile */
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
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
                                        "1f",  "1e5.", "nan", "\xd9\xa1", "1_0", "Infinity"};
    double value;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (mpt__parse_double(texts[i], strlen(texts[i]), &value))
            TEST_FAIL_("\"%s\" is read as %g", texts[i], value);
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
    EXPECT(MPT_ERROR_FORMAT, "text: line 1, column 1: \"d\" is not in the table");
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
                                     sizeof target[row], &sizes), MPT_OK);
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
        {"a,b\n1,2\n3,x", "text: line 3, column 1 (b): \"x\" is not a number"},
        {"a,b\n1,2\n\n3", "text: line 4 has 1 fields, expected 2; is ',' the delimiter?"},
        {"a,b\n1,2,3", "text: line 2 has 3 fields, expected 2"},
        {"a,b\n,2", "text: line 2, column 0 (a): \"\" is no value; with"},
        {"a,b\n1,?", "text: line 2, column 1 (b): \"?\" is no value for a target"},
        {"a,b\n\"1\n2,3", "text: line 2, column 0: \"1?2,3\" begins with a quote that never ends"},
        {"a,b\n\"1\n2\"z,3", "text: line 2, column 0: \"1?2\" has text behind its closing quote"},
        {"a,b\n1e39,1", "text: line 2, column 0 (a): \"1e39\" is beyond what float32 holds"},
        {"a,b\n1,-1e39", "column 1 (b): \"-1e39\" is beyond"},
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
    EXPECT(MPT_ERROR_FORMAT, "line 1026, column 0 (a): \"t1024\" is one text too many for one-hot");
    strcpy(strrchr(many, 't'), "");
    mpt_dataset widest = csv(context, many, NULL);
    CHECK_EQ_INT(mpt_dataset_shape(widest).dim[0], 1024);
    mpt_table_config config = mpt_table_config_default();
    config.dtype = MPT_I64;
    csv(context, "a,b\n1.5,x", &config);
    EXPECT(MPT_ERROR_FORMAT, "column 0 (a): \"1.5\" is not a whole number up to 2^53");
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

TEST_TABLE = {
    T(numbers_are_those_of_python),
    T(what_is_no_number),
    T(columns_of_every_use),
    T(codes_and_tables_alike),
    T(fitted_tables_alike),
    T(targets_that_are_one_hot),
    T(odd_tables),
    T(a_header_of_numbers_is_noticed),
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
