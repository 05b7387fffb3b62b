/* api_odd_files.c: headers of safetensors, vocabularies, merges and NumPy arrays that are not quite
   what they should be: each is refused by name, with what is wrong, and the context goes on. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "checks.h"
#include "training.h"

static disk files;

static mpt_context *make_context(void) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    disk_use(&files, &config);
    return mpt_create(&config);
}

static void put(const char *path, const void *data, size_t bytes) {
    disk_file *file = (disk_file *)disk_open(&files, path, 'w');
    disk_write(&files, file, data, bytes);
    disk_close(&files, file);
}

/* Whether the build does not read such files at all. */
static bool unbuilt(mpt_context *c) { return strstr(mpt_error(c), "uilt without") != NULL; }

static void end(mpt_context *c) {
    mpt_destroy(c);
    CHECK_EQ_INT(files.open_now, 0);
    disk_free(&files);
}

static void refused(mpt_context *c, int row, const char *text) {
    int before = test_failures;
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_FORMAT);
    CHECK_CONTAINS(mpt_error(c), text);
    if (test_failures > before) printf("\n  row %d", row);
    mpt_clear_error(c);
}

/* ==== safetensors ==== */

#define WEIGHT(shape, offsets) \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

TEST(headers_of_weights) {
    static const struct {
        const char *header, *text;
    } rows[] = {
        {" " WEIGHT("[1]", "[0,4]"), "the header does not begin with '{'"},
        {"\n" WEIGHT("[1]", "[0,4]"), "the header does not begin with '{'"},
        {WEIGHT("[1e3]", "[0,4]"), "a whole number expected"},
        {WEIGHT("[1E3]", "[0,4]"), "a whole number expected"},
        {WEIGHT("[1.]", "[0,4]"), "a whole number expected"},
        {WEIGHT("[x]", "[0,4]"), "a whole number expected"},
        {WEIGHT("3", "[0,4]"), "a list of dimensions expected"},
        {WEIGHT("[1 1]", "[0,4]"), "',' or the closing bracket expected"},
        {WEIGHT("[1]", "0"), "two offsets expected"},
        {WEIGHT("[1]", "[x,4]"), "a whole number expected"},
        {WEIGHT("[1]", "[0 4]"), "two offsets expected"},
        {WEIGHT("[1]", "[0,x]"), "a whole number expected"},
        {"{\"\\ud800\\u0041\":{}}", "half of a surrogate pair"},
        {"{\"\\ud800\\ue000\":{}}", "half of a surrogate pair"},
        {"{\"\\ud800\\x\":{}}", "half of a surrogate pair"},
        {"{\"\\ud800xu\":{}}", "half of a surrogate pair"},
        {"{\"\\udc00\":{}}", "half of a surrogate pair"},
        {"{\"\\ud800", "half of a surrogate pair"},
        {"{\"\\ud800\\u00zz\":{}}", "four hexadecimal digits expected"},
        {"{\"\\u00`0\":{}}", "four hexadecimal digits expected"},
        {"{\"\\u00:0\":{}}", "four hexadecimal digits expected"},
        {"{\"\\u00E9\":1}", "an object expected"},
        {"{\"\\uffff\\/\\b\\f\\r\":1}", "an object expected"},
        {"{\"\\", "an unknown escape"},
        {"{\"\xed\xa0\x80\":{}}", "UTF-8"},
        {"{\"\xf5\x80\x80\x80\":{}}", "UTF-8"},
        {"{\"\xf0\x80\x80\x80\":{}}", "UTF-8"},
        {"{\"\xf8\x80\x80\x80\":{}}", "UTF-8"},
        {"{\"\x80\":{}}", "UTF-8"},
        {"{\"\xe2\x82\":{}}", "UTF-8"},
        {"{\"\xe2\x82", "UTF-8"},
        {"{\"\xe2\x82\xac\xf0\x9f\x98\x80\":1}", "an object expected"},
        {"{\"__metadata__\":1}", "an object expected"},
        {"{\"__metadata__\":{\"a\"}}", "':' expected"},
        {"{\"__metadata__\":{\"a\":\"b\" \"c\":\"d\"}}", "',' or the closing bracket expected"},
        {"{\r\n\t \"__metadata__\" : {\"a\" : \"b\"} , \"a\":1}", "an object expected"},
    };
    mpt_context *c = make_context();
    mpt_module net = mpt_nn_linear(c, 2, 1);
    uint8_t file[2048];
    uint64_t before = mpt_module_hash(net);
    for (size_t i = 0; i <= sizeof rows / sizeof *rows; i++) {
        char many[700] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1";
        const char *header = many, *text = "too many dimensions";
        for (size_t k = strlen(many); k + 20 < sizeof many; k += 2) memcpy(many + k, ",1", 3);
        if (i < sizeof rows / sizeof *rows) header = rows[i].header, text = rows[i].text;
        size_t n = strlen(header);
        memset(file, 0, 8);
        file[0] = (uint8_t)n, file[1] = (uint8_t)(n >> 8);
        memcpy(file + 8, header, n);
        memset(file + 8 + n, 0, 4);
        mpt_load_memory(net, file, 8 + n + 4, NULL, NULL);
        if (unbuilt(c)) break;
        refused(c, (int)i, text);
    }
    CHECK(mpt_module_hash(net) == before);
    end(c);
}

/* ==== Byte-level BPE ==== */

#define MERGED "{\"a\": 0, \"b\": 1, \"ab\": 2}"

TEST(vocabularies_and_merges) {
    static const struct {
        const char *words, *merges, *text;
    } rows[] = {
        {MERGED, "#version: 0.2\na b\r\n\n", NULL},
        {"\xef\xbb\xbf" MERGED, "\xef\xbb\xbf#version: 0.2\na b\r\n\n", NULL},
        {"\t{\r\n\"\\u0061\":0, \"b\":1,\"\\u00E9\" : 2 , \"\\u0120\":3,\"\\u0143\":4}\n", "\n",
         NULL},
        {"[", "\n", "byte 0: an object expected"},
        {"\xef\xbb\xbf[", "\n", "byte 3: an object expected"},
        {"{", "\n", "a string expected"},
        {"{\"a\"}", "\n", "':' expected"},
        {"{\"a\":-1}", "\n", "a whole number expected"},
        {"{\"a\":x}", "\n", "a whole number expected"},
        {"{\"a\":", "\n", "a whole number expected"},
        {"{\"a\":99999999999}", "\n", "numbers are not 0 to the number of tokens - 1"},
        {"{\"a\":0", "\n", "',' or the closing bracket expected"},
        {"{\"a\":0 \"b\":1}", "\n", "',' or the closing bracket expected"},
        {"{\"a\":0,}", "\n", "a string expected"},
        {"{\"a\":0}x", "\n", "text after the closing bracket"},
        {"{\"a\":5}", "\n", "numbers are not 0 to the number of tokens - 1"},
        {"{\"a\":0,\"b\":0}", "\n", "a number given twice"},
        {"{\"\":0}", "\n", "an empty token"},
        {"{\"a", "\n", "a string without end"},
        {"{\"a\\", "\n", "an unknown escape"},
        {"{\"\\x\":0}", "\n", "an unknown escape"},
        {"{\"\\u12", "\n", "four hexadecimal digits expected"},
        {"{\"\\u00/0\":0}", "\n", "four hexadecimal digits expected"},
        {"{\"\\u00g0\":0}", "\n", "four hexadecimal digits expected"},
        {"{\"\\u00:0\":0}", "\n", "four hexadecimal digits expected"},
        {"{\"a\x01\":0}", "\n", "a control character"},
        {"{\"\xff\":0}", "\n", "not valid UTF-8"},
        {"{\"\xc3", "\n", "not valid UTF-8"},
        {"{\"\xc3(\":0}", "\n", "not valid UTF-8"},
        {"{\"\xf4\x90\x80\x80\":0}", "\n", "not valid UTF-8"},
        {"{\"\xe0\x80\x80\":0}", "\n", "not valid UTF-8"},
        {"{\"\xed\xa0\x80\":0}", "\n", "not valid UTF-8"},
        {"{\"\\u0300\":0}", "\n", "stands for no byte"},
        {"{\"\\u0144\":0}", "\n", "stands for no byte"},
        {"{\" \":0}", "\n", "stands for no byte"},
        {"{\"\xc2\xad\":0}", "\n", "stands for no byte"},
        {MERGED, "ab", "is not two tokens with a space between them"},
        {MERGED, " b", "stands for no byte"},
        {MERGED, "a ", "is not two tokens"},
        {MERGED, "a q", "what is not in the vocabulary"},
        {MERGED, "q a", "what is not in the vocabulary"},
        {MERGED, "b a", "what is not in the vocabulary"},
        {MERGED, "a \xff", "stands for no byte"},
    };
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("words", rows[i].words, strlen(rows[i].words));
        put("merges", rows[i].merges, strlen(rows[i].merges));
        mpt_tokenizer made = mpt_bpe_tokenizer(c, "words", "merges");
        if (unbuilt(c)) break;
        if (!rows[i].text) {
            check_ok(c);
            CHECK(mpt_vocabulary_size(made) == (i < 2 ? 3 : 5));
            CHECK_EQ_INT(mpt_token_of(made, i < 2 ? "ab" : " ", i < 2 ? 2 : 1), i < 2 ? 2 : 3);
            mpt_tokenizer_destroy(made);
            continue;
        }
        CHECK_EQ_INT(made.slot, 0);
        refused(c, (int)i, rows[i].text);
    }
    end(c);
}

/* ==== NumPy ==== */

/* An array file of such a version and header, with `bytes` bytes of elements. */
static size_t put_npy(int version, const char *header, size_t bytes) {
    uint8_t file[600];
    size_t n = strlen(header), lead = version > 1 ? 12 : 10;
    memset(file, 0, sizeof file);
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (uint8_t)version, file[8] = (uint8_t)n, file[9] = (uint8_t)(n >> 8);
    memcpy(file + lead, header, n);
    for (size_t i = 0; i < bytes; i++) file[lead + n + i] = (uint8_t)(i % 4 == 3 ? 0x40 : 0);
    put("array", file, lead + n + bytes);
    return lead + n + bytes;
}

#define ARRAY(descr, order, shape) \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }"

TEST(headers_of_arrays) {
    static const char *const header = "its header is not one of plain numbers";
    const struct {
        int version;
        const char *header;
        size_t bytes;
        const char *text;
    } rows[] = {
        {1, ARRAY("<f4", "False", "(2,)"), 8, NULL},
        {2, ARRAY("=f4", "True", "(1L, 2L)"), 8, NULL},
        {3, ARRAY("|u1", "False", "(2)") "  \n", 2, NULL},
        {1, ARRAY(">f2", "False", "()"), 2, NULL},
        {0, ARRAY("<f4", "False", "(2,)"), 8, "no .npy data of version 1 to 3"},
        {4, ARRAY("<f4", "False", "(2,)"), 8, "no .npy data of version 1 to 3"},
        {1, "", 0, header},
        {1, "{", 0, header},
        {1, "{'descr': '", 0, header},
        {1, "{'descr': '<f", 0, header},
        {1, "{'descr': '<f4", 0, header},
        {1, ARRAY("?f4", "False", "(2,)"), 8, header},
        {1, ARRAY("<f42", "False", "(2,)"), 8, header},
        {1, ARRAY("<f4", "Maybe", "(2,)"), 8, header},
        {1, ARRAY("<f4", "False", "2"), 8, header},
        {1, ARRAY("<f4", "False", "(2"), 8, header},
        {1, ARRAY("<f4", "False", "(2, x)"), 8, header},
        {1, ARRAY("<f4", "False", "(1,1,1,1,1,1,1,1,2)"), 8, "more than 8 dimensions"},
        {1, ARRAY("<f4", "False", "(99999999999999999999,)"), 8, "a product of 2^63 or more"},
        {1, ARRAY("<f4", "False", "(9223372036854775807,)"), 8, "9223372036854775807 elements"},
        {1, ARRAY("<f4", "False", "(9223372036854775808,)"), 8, "a product of 2^63 or more"},
        {1, ARRAY("<f4", "False", "(2,)") " x", 8, header},
        {1, ARRAY("<f4", "False", "(2,)") "}", 8, header},
        {1, "{'descr': '<f4', 'fortran_order': False, }", 8, header},
        {1, "{'shape': (2,), 'fortran_order': False, }", 8, header},
        {1, "{'descr': '<f4', 'shape': (2,)}", 8, header},
        {1, ARRAY("<c8", "False", "(2,)"), 16, "no float, integer or bool"},
        {1, ARRAY("<f3", "False", "(2,)"), 6, "no float, integer or bool"},
        {1, ARRAY("<f:", "False", "(2,)"), 6, "no float, integer or bool"},
        {1, ARRAY("<f4", "False", "(0,)"), 0, "it holds nothing"},
        {1, ARRAY("<f4", "False", "(4611686018427387904, 8)"), 8, "a product of 2^63 or more"},
        {1, ARRAY("<f4", "False", "(3,)"), 8, "3 elements of 4 bytes by its header, 8 bytes"},
        {1, ARRAY("<f4", "False", "(2,)"), 9, "2 elements of 4 bytes by its header, 9"}};
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_npy(rows[i].version, rows[i].header, rows[i].bytes);
        mpt_tensor x = mpt_numpy_tensor(c, "array", NULL);
        if (unbuilt(c)) break;
        if (!rows[i].text) {
            check_ok(c);
            CHECK_EQ_INT(mpt_numel(x), i == 3 ? 1 : 2);
            CHECK_EQ_INT(mpt_get_shape(x).rank, i == 1 ? 2 : i == 3 ? 0 : 1);
            mpt_release(x);
            continue;
        }
        CHECK_EQ_INT(x.slot, 0);
        CHECK_CONTAINS(mpt_error(c), "array");
        refused(c, (int)i, rows[i].text);
    }
    mpt_clear_error(c);
    size_t whole = put_npy(2, ARRAY("<f4", "False", "(2,)"), 8);
    disk_file *file = disk_find(&files, "array", 0);
    for (size_t n = 1; n < whole; n++) { /* every cut */
        file->bytes = n;
        CHECK_EQ_INT(mpt_numpy_tensor(c, "array", NULL).slot, 0);
        CHECK(mpt_failed(c));
        mpt_clear_error(c);
    }
    end(c);
}

/* ==== Files of other kinds ==== */

static int64_t open_as(mpt_context *c, int reader) {
    mpt_window_config windows = mpt_window_config_default();
    mpt_raw_config raw = mpt_raw_config_default();
    mpt_module net;
    windows.block = 2;
    raw.inputs = "file";
    switch (reader) {
    case 0:
        return mpt_csv(c, "file", NULL).slot;
    case 1:
        return mpt_numpy_tensor(c, "file", NULL).slot;
    case 2:
        return mpt_npz(c, "file", "x", NULL).slot;
    case 3:
        return mpt_idx(c, "file", NULL).slot;
    case 4:
        return mpt_bpe_tokenizer(c, "file", "file").slot;
    case 5:
        return mpt_token_file(c, "file", 2, &windows).slot;
    case 6:
        return mpt_raw_files(c, &raw).slot;
    case 7:
        return mpt_char_tokenizer(c, "file").slot;
    case 8:
        return mpt_token_file(c, "file", 1, &windows).slot;
    default:
        net = mpt_nn_linear(c, 2, 1);
        return mpt_load(net, "file", NULL, NULL) == MPT_OK;
    }
}

/* Each reader, by its letter, names what it was given instead. */
TEST(files_of_other_kinds) {
    static const char readers[] = "cnzibtrokw"; /* csv, npy, npz, idx, bpe, 2-byte tokens, raw,
                                                   characters, 1-byte tokens, weights */
    static const struct {
        const char *bytes;
        size_t n;
        const char *by, *text;
    } rows[] = {{"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n", 66,
                 readers, "file: this is a Git LFS pointer"},
                {"<!DOCTYPE html>\n<html><head></head><body>404</body></html>\n", 60, "cnzibtrw",
                 "file: this is a web page"},
                {"\xef\xbb\xbf\n <HTML><head></head><body>404, 404, 404</body></HTML>", 57,
                 "cnzibtr", "file: this is a web page"},
                {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", 60, "cnzibtrw",
                 "file: this is an XML document"},
                {"\xff\xfe"
                 "a\0,\0b\0\n\0"
                 "1\0,\0"
                 "2\0\n\0",
                 18, "cnzibow", "text in UTF-16"},
                {"\xfe\xff\0a\0,\0b\0\n\0"
                 "1\0,\0"
                 "2\0\n",
                 18, "cnzibow", "text in UTF-16"},
                {"v\0a\0l\0u\0e\0,\0b\0\n\0"
                 "1\0",
                 18, "cnzibow", "text in UTF-16"},
                {"\0v\0a\0l\0u\0e\0,\0b\0\n\0"
                 "1",
                 18, "cnzibow", "text in UTF-16"},
                {"\n\n\n<head><title>Sign in</title></head>", 37, "cnzibtrw", "a web page (HTML)"},
                {"\r\n  <!DocType HTML PUBLIC \"-//IETF//DTD HTML 2.0//EN\">", 55, "cnzibtrw",
                 "a web page (HTML), as a download gives"},
                {"\x1f\x8b\x08\0\1\2\3\4\0\3zip, zip", 18, "cnzbow", "compressed by gzip"},
                {"PK\3\4\x14\0\0\0\x08\0archive/data.pkl", 24, "cniw", "a zip archive"},
                {"PK", 2, "z", "this is no .npz: it has no directory"},
                {"PK\5\6\0\0\0\0\1\0\1\0\0\0\0\0\x16\0\0\0\x0a\0" /* an entry that is cut */
                 "PK\1\2\0\0\0\0\0\0",
                 32, "z", "the directory of the .npz is damaged"},
                {"\x93NUMPY\1\0\x46\0{'descr': '<f4'", 24, "cziw", "a NumPy array"},
                {"\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 16, "cniw", "a Python pickle"},
                {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16, "cniw", "a GGUF file"}};
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put("file", rows[i].bytes, rows[i].n);
        for (int k = 0; k < 10; k++) {
            if (!strchr(rows[i].by, readers[k])) continue;
            CHECK_EQ_INT(open_as(c, k), 0);
            if (unbuilt(c)) goto done;
            const int before = test_failures;
            refused(c, (int)i, rows[i].text);
            if (test_failures > before) printf(", reader %c", readers[k]);
        }
    }
    put("file", "<?xml?><html>bytes as tokens</html>", 35); /* what a model may well be made of */
    CHECK(open_as(c, 8) != 0);
    CHECK(open_as(c, 7) != 0);
    check_ok(c);
done:
    mpt_clear_error(c);
    end(c);
}

/* A byte that is not UTF-8 is named with its place; what is none may stand before. */
TEST(tables_are_utf8) {
    static const struct {
        const char *text, *fault;
    } rows[] = {{"name,y\n\xc3\xa9t\xc3\xa9,1\nM\xfcnchen,2\n",
                 "line 3, column 1: \"M\" is followed by a byte that is not UTF-8 (Latin-1 or"},
                {"name,gr\xf6\xdf"
                 "e\nx,1\n",
                 "line 1, column 2: \"gr\" is followed by"},
                {"name,y\n\"a \xe9\",1\n", "line 2, column 1: \"a \" is followed by"},
                {"name,y\nab\xc3", "line 2, column 1: \"ab\" is followed by"},
                {"name,y\n\xed\xa0\x80,1\n", "line 2, column 1: \"\" is followed by"},
                {"name,y\n\xc0\xaf,1\n", "line 2, column 1: \"\" is followed by"},
                {"name,y\ra,1\rb,2\r", "its lines end with CR alone"},
                {"name,y\n\xc3\xa9,1\n\xf0\x9f\x98\x80,2\n\"\xe2\x82\xac\",3\n", NULL}};
    mpt_context *c = make_context();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mpt_dataset made = mpt_csv_memory(c, rows[i].text, strlen(rows[i].text), NULL);
        if (unbuilt(c)) break;
        if (rows[i].fault) {
            refused(c, (int)i, rows[i].fault);
            continue;
        }
        check_ok(c);
        CHECK_EQ_STR(mpt_category_name(made, 1, 0), "\xe2\x82\xac");
    }
    mpt_clear_error(c);
    end(c);
}

TEST_TABLE = {T(headers_of_weights), T(vocabularies_and_merges), T(headers_of_arrays),
              T(files_of_other_kinds), T(tables_are_utf8)};
TEST_MAIN
