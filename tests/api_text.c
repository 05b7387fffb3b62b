/* api_text.c: tokenizers and windows of tokens: round trips, GPT-2's own files, odd files, workers.
 */
#if !defined(_WIN32) /* for fseeko */
#define _FILE_OFFSET_BITS 64
#define _POSIX_C_SOURCE 200809L
#endif
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "memory.h"

static uint64_t hash_tokens(const int32_t *tokens, int64_t n) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)tokens[i]) * UINT64_C(1099511628211);
    return hash;
}

/* ==== Characters ==== */

TEST(characters) {
    static const char text[] = "b\xc3\xa9 a\xe4\xb8\xad\xf0\x9f\x99\x82 ab\n";
    mpt_context *context = make_context();
    int32_t tokens[32];
    char back[64];
    NEEDS_FILES
    mpt_tokenizer chars = mpt_char_tokenizer(context, put_text("chars", text));
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_vocabulary_size(chars), 7); /* \n, space, a, b, and three beyond ASCII */
    const int64_t n = mpt_encode(chars, text, strlen(text), tokens, 32);
    static const int32_t want[] = {3, 4, 1, 2, 5, 6, 1, 2, 3, 0};
    CHECK_EQ_INT(n, 10);
    CHECK_EQ_BITS(tokens, want, sizeof want);
    CHECK_EQ_INT(mpt_decode(chars, tokens, n, back, sizeof back), (int64_t)strlen(text));
    CHECK_EQ_BITS(back, text, strlen(text));
    CHECK_EQ_INT(mpt_token_of(chars, "\xe4\xb8\xad", 3), 5);
    CHECK_EQ_INT(mpt_token_of(chars, "ab", 2), -1);
    /* What does not fit is counted. */
    tokens[3] = -7;
    CHECK_EQ_INT(mpt_encode(chars, text, strlen(text), tokens, 3), 10);
    CHECK_EQ_INT(tokens[3], -7);
    CHECK_EQ_INT(mpt_encode(chars, text, strlen(text), NULL, 0), 10);
    memset(back, '#', sizeof back);
    CHECK_EQ_INT(mpt_decode(chars, want, 10, back, 2), (int64_t)strlen(text));
    CHECK(back[1] == text[1] && back[2] == '#');
    CHECK_EQ_INT(mpt_encode(chars, "abc", 3, tokens, 32), -1);
    EXPECT(MPT_ERROR_ARGUMENT, "byte 2 begins no character of the vocabulary");
    tokens[0] = 7;
    CHECK_EQ_INT(mpt_decode(chars, tokens, 1, back, 9), -1);
    EXPECT(MPT_ERROR_INDEX, "token 0 is 7; the vocabulary has 7");
    mpt_char_tokenizer(context, put_text("chars", "ab\xc3"));
    EXPECT(MPT_ERROR_FORMAT, "byte 2 begins no UTF-8 character");
    mpt_char_tokenizer(context, put_text("chars", "\xed\xa0\x80")); /* half of a pair */
    EXPECT(MPT_ERROR_FORMAT, "byte 0 begins no UTF-8");
    mpt_char_tokenizer(context, put_text("chars", "\xc0\x80")); /* longer than needed */
    EXPECT(MPT_ERROR_FORMAT, "byte 0 begins no UTF-8");
    mpt_char_tokenizer(context, put_text("chars", ""));
    EXPECT(MPT_ERROR_FORMAT, "0 bytes");
    CHECK_EQ_INT(mpt_tokenizer_destroy(chars), MPT_OK);
    CHECK_EQ_INT(mpt_vocabulary_size(chars), -1);
    EXPECT(MPT_ERROR_HANDLE, "tokenizer was destroyed");
    remove(test_tmp_path("chars"));
    mpt_destroy(context);
}

/* ==== Byte-level BPE ==== */

/* Appends one byte as the files of GPT-2 write it. */
static void put_byte(char *out, int byte) {
    int code = byte;
    if (!((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174))
        code = 256 + (byte < 33 ? byte : byte < 161 ? byte - 127 + 33 : 67);
    out += strlen(out);
    if (code == '"' || code == '\\') *out++ = '\\';
    if (code < 128) {
        *out++ = (char)code;
    } else {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 63));
    }
    *out = 0;
}

/* All bytes and a few merges: numbers 256 to 260. */
static const char small_merges[] = "#version: 0.2\nt h\nth e\n\xc4\xa0 the\r\na a\naa a\n";

static mpt_tokenizer small_bpe(mpt_context *context) {
    static char json[8192];
    static const char *const more[] = {"th", "the", "\\u0120the", "aa", "aaa"};
    char path[512];
    strcpy(json, "{\n");
    for (int i = 0; i < 256; i++) {
        strcat(json, "\"");
        put_byte(json, (i * 7 + 3) % 256); /* in another order than the numbers */
        sprintf(json + strlen(json), "\": %d,", (i * 7 + 3) % 256);
    }
    for (int i = 0; i < 5; i++)
        sprintf(json + strlen(json), "%s \"%s\" :%d", i ? "," : "", more[i], 256 + i);
    strcat(json, " }\n");
    snprintf(path, sizeof path, "%s", put_text("vocabulary", json));
    return mpt_bpe_tokenizer(context, path, put_text("merges", small_merges));
}

static void drop_files(void) {
    remove(test_tmp_path("vocabulary"));
    remove(test_tmp_path("merges"));
}

TEST(bpe_of_a_few_merges) {
    static const struct {
        const char *text;
        int n;
        int32_t tokens[8];
    } rows[] = {{"the", 1, {257}},
                {" the", 1, {258}},
                {"  the", 2, {' ', 258}},
                {"the the", 2, {257, 258}},
                {"aaaa", 2, {259, 259}}, /* the pair of the least rank first, from the left */
                {"aaaaa", 2, {259, 260}},
                {"th'th", 4, {256, '\'', 't', 'h'}}, /* 't is a piece by itself */
                {"t\nh", 3, {'t', '\n', 'h'}},
                {"", 0, {0}}};
    mpt_context *context = make_context();
    int32_t tokens[1024];
    char bytes[512], back[512];
    NEEDS_FILES
    mpt_tokenizer bpe = small_bpe(context);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_vocabulary_size(bpe), 261);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int64_t n = mpt_encode(bpe, rows[i].text, strlen(rows[i].text), tokens, 1024);
        CHECK_EQ_INT(n, rows[i].n);
        if (n == rows[i].n) CHECK_EQ_BITS(tokens, rows[i].tokens, (size_t)n * sizeof *tokens);
    }
    /* Any bytes at all go there and back. */
    for (int i = 0; i < 512; i++) bytes[i] = (char)(i < 256 ? i : i * i * 31 >> 3);
    const int64_t n = mpt_encode(bpe, bytes, 512, tokens, 1024);
    CHECK(n > 0 && n <= 512);
    CHECK_EQ_INT(mpt_decode(bpe, tokens, n, back, 512), 512);
    CHECK_EQ_BITS(back, bytes, 512);
    CHECK_EQ_STR(mpt_error(context), "");
    drop_files();
    mpt_destroy(context);
}

/* GPT-2's pattern: endings such as 's are pieces of their own only where no mark stands before
   them, and a piece is all letters, all numbers, all marks or all white space. Merges, as of '
   and s, act in one piece only. */
TEST(pieces_by_class) {
    static const struct {
        const char *text;
        int tokens;
    } rows[] = {{"'s", 1},
                {"\xef\xa3\xbf's", 3 + 2},     /* U+F8FF, private use: one piece with ' */
                {"\xc3\xa9's", 2 + 1},         /* a letter */
                {"\xcd\xb8's", 2 + 2},         /* U+0378, not assigned */
                {"\xf0\xb3\x91\xb9's", 4 + 1}, /* U+33479, a letter since Unicode 17 */
                {"\xf0\xb3\x91\xba's", 4 + 2}, /* the one after it, not assigned */
                {"\xf0\x90\x90\x80's", 4 + 1}, /* U+10400, a letter */
                {"\xe2\x85\xab's", 3 + 1},     /* a Roman twelve */
                {"\xd9\xa3's", 2 + 1},         /* an Arabic three */
                {"\xcc\x81's", 2 + 2},         /* an accent to be combined */
                {"\xf3\xa0\x84\x80's", 4 + 2}, /* U+E0100, a variation selector */
                {"\xc2\x85's", 2 + 1},         /* U+0085, U+00A0, U+2028, U+3000: white space */
                {"\xc2\xa0's", 2 + 1},
                {"\xe2\x80\xa8's", 3 + 1},
                {"\xe3\x80\x80's", 3 + 1},
                {"\xe2\x80\x8b's", 3 + 2}, /* U+200B, which is none */
                {"\x1c's", 1 + 2},         /* nor are separators of information */
                {"!!\xc3\xa9!!", 1 + 2 + 1},
                {"'s!!", 1 + 1},
                {"11's", 1 + 1},
                {" 's", 1 + 2}, /* a space goes with the mark */
                {"\n's", 1 + 1}};
    static char json[8192];
    mpt_context *context = make_context();
    char path[512];
    NEEDS_FILES
    strcpy(json, "{");
    for (int i = 0; i < 256; i++) {
        strcat(json, "\"");
        put_byte(json, i);
        sprintf(json + strlen(json), "\": %d,", i);
    }
    strcat(json, "\"'s\": 256, \"!!\": 257, \"11\": 258}");
    snprintf(path, sizeof path, "%s", put_text("vocabulary", json));
    mpt_tokenizer bpe = mpt_bpe_tokenizer(context, path, put_text("merges", "' s\n! !\n1 1\n"));
    CHECK_EQ_STR(mpt_error(context), "");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (mpt_encode(bpe, rows[i].text, strlen(rows[i].text), NULL, 0) != rows[i].tokens)
            TEST_FAIL_("row %d, %s: %d tokens expected", (int)i, rows[i].text, rows[i].tokens);
    CHECK_EQ_STR(mpt_error(context), "");
    drop_files();
    mpt_destroy(context);
}

/* A word of 200,000 letters takes no square of that. */
TEST(bpe_of_a_long_word) {
    enum { LONG = 200000 };
    mpt_context *context = make_context();
    NEEDS_FILES
    char *word = (char *)malloc(LONG);
    memset(word, 'a', LONG);
    mpt_tokenizer bpe = small_bpe(context);
    CHECK_EQ_INT(mpt_encode(bpe, word, LONG, NULL, 0), LONG / 2);
    free(word);
    drop_files();
    mpt_destroy(context);
}

TEST(bpe_files_damaged) {
    static const struct {
        const char *vocabulary, *merges, *text;
    } rows[] = {
        {"[]", "", "byte 0: an object expected"},
        {"{", "", "byte 1: a string expected"},
        {"{}", "", "byte 1: a string expected"},
        {"{\"a\":0", "", "byte 6: ',' or the closing bracket expected"},
        {"{\"a\" 0}", "", "byte 5: ':' expected"},
        {"{\"a\":-1}", "", "byte 5: a whole number expected"},
        {"{\"a\":1}", "", "numbers are not 0 to the number of tokens - 1"},
        {"{\"a\":99999999999999999999}", "", "the number is too large"},
        {"{\"a\":00}", "", "byte 6: a number begins with 0"},
        {"{\"a\":0.0}", "", "byte 6: a whole number expected"},
        {"{\"\\ud83d\":0}", "", "half of a surrogate pair"},
        {"{\"a\":0,\"b\":0}", "", "a number given twice"},
        {"{\"a\":0,\"a\":1}", "", "token 1 is spelled as an earlier one"},
        {"{\"a\":0}x", "", "byte 7: text after the closing bracket"},
        {"{\"a", "", "byte 3: a string without end"},
        {"{\"\":0}", "", "an empty token"},
        {"{\"a b\":0}", "", "byte 4: a character that stands for no byte"},
        {"{\"\\q\":0}", "", "an unknown escape"},
        {"{\"\\u12G4\":0}", "", "four hexadecimal digits expected"},
        {"{\"\\u0041\":0,\"\xff\":1}", "", "byte 13: a string is not valid UTF-8"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "a b\na b\n", "line 2 repeats an earlier one"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "#version: 1\n\nab\n", "line 3 is not two tokens"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "a b c\n", "line 1 has a character that stands for no byte"},
        {"{\"a\":0,\"b\":1,\"ab\":2}", "b a\n", "line 1 makes, or is made of, what is not in"},
    };
    mpt_context *context = make_context();
    NEEDS_FILES
    const int64_t held = mpt_memory(context).current[MPT_MEMORY_HOST];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s", put_text("vocabulary", rows[i].vocabulary));
        mpt_bpe_tokenizer(context, path, put_text("merges", rows[i].merges));
        CHECK_CONTAINS(mpt_error(context), rows[i].merges[0] ? "merges" : path);
        EXPECT(MPT_ERROR_FORMAT, rows[i].text);
        CHECK(mpt_memory(context).current[MPT_MEMORY_HOST] < held + 1000);
    }
    mpt_tokenizer two = mpt_bpe_tokenizer(context, put_text("vocabulary", "{\"a\":0,\"b\":1}"),
                                          put_text("merges", "#version: 0.2\n"));
    CHECK_EQ_INT(mpt_encode(two, "abc", 3, NULL, 0), -1);
    EXPECT(MPT_ERROR_ARGUMENT, "byte 2, which is 99, has no token");
    drop_files();
    mpt_destroy(context);
}

static char *read_text(const char *path, size_t *n) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)malloc(2 << 20);
    *n = file && text ? fread(text, 1, 2 << 20, file) : 0;
    if (file) fclose(file);
    if (*n) return text;
    free(text);
    return NULL;
}

/* What the encoder that OpenAI published makes of these texts. */
TEST(gpt2) {
    static const struct {
        const char *text;
        int n;
        int32_t tokens[32];
    } rows[] = {
        {"Hello world", 2, {15496, 995}},
        {"This is some text", 4, {1212, 318, 617, 2420}},
        {"I'll say: don't we've 'tis  3.14159   na\xc3\xafve caf\xc3\xa9\n\n\t x\xc2\xb2",
         23,
         {40, 1183, 910,   25,  836, 470,   356,   1053, 705, 48010, 220,  513,
          13, 1415, 19707, 220, 220, 41492, 40304, 628,  197, 2124,  31185}},
        {"\xe4\xb8\xad\xe6\x96\x87\xe5\xad\x97 \xd9\xa3\xd9\xa4 \xce\xa9mega "
         "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4 \xf0\x9f\x99\x82!! a\xcc\x81\xc2\xa0"
         "b ",
         29,
         {40792, 23877, 229, 27764, 245, 18923, 96,    149,  97,  7377, 102, 13731, 220, 47991, 250,
          166,   113,   255, 168,   244, 112,   32485, 3228, 257, 136,  223, 1849,  65,  220}},
        {"   leading", 3, {220, 220, 3756}},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         9,
         {24794, 24794, 24794, 24794, 24794, 24794, 24794, 24794, 64}}};
    mpt_context *context = make_context();
    char path[512];
    int32_t tokens[64];
    NEEDS_FILES
    snprintf(path, sizeof path, "%s", test_data_path("gpt2-bpe/encoder.json"));
    mpt_tokenizer bpe = mpt_bpe_tokenizer(context, path, test_data_path("gpt2-bpe/vocab.bpe"));
    if (mpt_error_code(context) == MPT_ERROR_IO) {
        mpt_destroy(context);
        SKIP("gpt2-bpe in MPTRAIN_DATA");
    }
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_vocabulary_size(bpe), 50257);
    CHECK_EQ_INT(mpt_token_of(bpe, "<|endoftext|>", 13), 50256);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t n = strlen(rows[i].text);
        CHECK_EQ_INT(mpt_encode(bpe, rows[i].text, n, tokens, 64), rows[i].n);
        CHECK_EQ_BITS(tokens, rows[i].tokens, (size_t)rows[i].n * sizeof *tokens);
    }
    size_t n;
    char *text = read_text(test_data_path("tinyshakespeare/input.txt"), &n);
    if (text) {
        const int64_t count = mpt_encode(bpe, text, n, NULL, 0);
        CHECK_EQ_INT(count, 338025);
        int32_t *all = (int32_t *)malloc((size_t)count * sizeof *all);
        char *back = (char *)malloc(n);
        mpt_encode(bpe, text, n, all, count);
        CHECK(hash_tokens(all, count) == UINT64_C(0xb547ad363c19676e));
        CHECK_EQ_INT(mpt_decode(bpe, all, count, back, (int64_t)n), (int64_t)n);
        CHECK_EQ_BITS(back, text, n);
        free(all), free(back), free(text);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* ==== Windows ==== */

static mpt_window_config windows(int64_t block) {
    mpt_window_config config = mpt_window_config_default();
    config.block = block;
    return config;
}

TEST(windows_in_order) {
    int32_t row[12];
    float x[4];
    mpt_context *context = make_context();
    mpt_window_config config = windows(4);
    mpt_batch batch;
    for (int i = 0; i < 12; i++) row[i] = 10 * i;
    mpt_dataset data = mpt_token_memory(context, row, 12, &config);
    CHECK_EQ_INT(mpt_dataset_size(data), 2); /* from 0 and 4; from 8 on the last has no target */
    mpt_loader loader = mpt_loader_create(context, data, NULL);
    REQUIRE(mpt_loader_next(loader, &batch));
    static const int64_t want_x[8] = {0, 10, 20, 30, 40, 50, 60, 70};
    static const int64_t want_y[8] = {10, 20, 30, 40, 50, 60, 70, 80};
    int64_t got[8];
    CHECK_EQ_INT(mpt_get_dtype(batch.x), MPT_I64);
    CHECK_EQ_INT(mpt_read(batch.x, got, sizeof got), MPT_OK);
    CHECK_EQ_BITS(got, want_x, sizeof got);
    CHECK_EQ_INT(mpt_read(batch.y, got, sizeof got), MPT_OK);
    CHECK_EQ_BITS(got, want_y, sizeof got);
    config.stride = 1;
    data = mpt_token_memory(context, row, 12, &config);
    CHECK_EQ_INT(mpt_dataset_size(data), 8);
    CHECK_EQ_INT(mpt_sample(data, 7, x, NULL), MPT_OK);
    CHECK(x[0] == 70.0f && x[3] == 100.0f);
    config.vocabulary = 101;
    data = mpt_token_memory(context, row, 12, &config);
    CHECK_EQ_INT(mpt_sample(data, 6, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(data, 7, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "token 11 of the row is 110; the vocabulary has 101");
    config.block = 12;
    mpt_token_memory(context, row, 12, &config);
    EXPECT(MPT_ERROR_ARGUMENT, "12 tokens; windows of 12 and the token after them need 13");
    mpt_destroy(context);
}

/* Writes some bytes far behind the end of a file; false where that cannot be done at no cost. */
static bool put_far(FILE *file, int64_t at, const uint8_t *bytes, size_t n) {
#if defined(_WIN32)
    return (void)file, (void)at, (void)bytes, (void)n, false;
#else
    return fseeko(file, (off_t)at, SEEK_SET) == 0 && fwrite(bytes, 1, n, file) == n &&
           fflush(file) == 0;
#endif
}

/* More tokens than 32 bits count, most of them in a hole of the file; a loader goes to its end. */
TEST(files_beyond_4_gib) {
    const int64_t tokens = ((int64_t)5 << 30) + 8, places[] = {(int64_t)1 << 31, (int64_t)1 << 32};
    static const uint8_t row[16] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 7, 8};
    char path[512];
    int64_t seen[2][16];
    mpt_batch b;
    mpt_context *context = make_context();
    NEEDS_FILES
    snprintf(path, sizeof path, "%s", test_tmp_path("far"));
    FILE *file = fopen(path, "wb");
    REQUIRE(file);
    bool sparse = put_far(file, tokens - 16, row, 16);
    for (int i = 0; i < 2; i++) sparse = sparse && put_far(file, places[i] - 8, row, 16);
    fclose(file);
    if (!sparse) {
        remove(path);
        mpt_destroy(context);
        SKIP("a file system with sparse files");
    }
    mpt_window_config window = windows(15);
    window.stride = 1;
    mpt_dataset data = mpt_token_file(context, path, 1, &window);
    CHECK_EQ_INT(mpt_dataset_size(data), tokens - 15);
    mpt_loader_config lc = mpt_loader_config_default();
    lc.batch = 1;
    mpt_loader loader = mpt_loader_create(context, data, &lc);
    const int64_t at[3] = {places[0] - 8, places[1] - 8, tokens - 16};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ_INT(mpt_loader_seek(loader, 0, at[i]), MPT_OK);
        CHECK(mpt_loader_next(loader, &b));
        CHECK_EQ_INT(mpt_read(b.x, seen[0], 15 * sizeof(int64_t)), MPT_OK);
        CHECK_EQ_INT(mpt_read(b.y, seen[1], 15 * sizeof(int64_t)), MPT_OK);
        for (int k = 0; k < 15; k++) CHECK(seen[0][k] == row[k] && seen[1][k] == row[k + 1]);
    }
    CHECK(!mpt_loader_next(loader, &b)); /* that was the last one */
    mpt_raw_config raw = mpt_raw_config_default();
    uint8_t piece[8];
    raw.inputs = path, raw.dtype = MPT_U8, raw.shape = MPT_SHAPE(8);
    data = mpt_raw_files(context, &raw);
    CHECK_EQ_INT(mpt_dataset_size(data), tokens / 8);
    raw.count = tokens / 8;
    data = mpt_raw_files(context, &raw);
    CHECK_EQ_INT(mpt_dataset_size(data), tokens / 8);
    loader = mpt_loader_create(context, data, &lc);
    CHECK_EQ_INT(mpt_loader_seek(loader, 0, tokens / 8 - 1), MPT_OK);
    CHECK(mpt_loader_next(loader, &b));
    float values[8];
    CHECK_EQ_INT(mpt_read_f32(b.x, values, 8), MPT_OK);
    for (int k = 0; k < 8; k++) piece[k] = (uint8_t)(values[k] * 255 + 0.5f);
    CHECK_EQ_BITS(piece, row + 8, 8);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
    remove(path);
}

/* Bits of an epoch of windows. */
static uint64_t epoch_hash(mpt_loader loader) {
    static int64_t values[64 * 16];
    uint64_t hash = 1;
    mpt_batch batch;
    while (mpt_loader_next(loader, &batch)) {
        const int64_t n = mpt_numel(batch.x);
        mpt_read(batch.x, values, (size_t)n * sizeof *values);
        for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)values[i]) * 0x100000001b3u;
        mpt_read(batch.y, values, (size_t)n * sizeof *values);
        for (int64_t i = 0; i < n; i++) hash = (hash ^ (uint64_t)values[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Files of 1, 2 and 4 bytes per token and memory hold the same row: the same windows in order, and
   at random places for 0, 1 and 4 workers. */
TEST(token_files) {
    static uint8_t bytes[4 * 500];
    int32_t row[500];
    mpt_context *context = make_context();
    NEEDS_FILES
    mpt_window_config order = windows(16), random = windows(16);
    random.random = true, random.samples = 40;
    uint64_t want[3] = {0, 0, 0};
    for (int i = 0; i < 500; i++) row[i] = i * 37 % 251;
    for (int source = 0; source < 4; source++) {
        const int width = source == 3 ? 4 : 1 << source;
        char path[512];
        for (int i = 0; i < 500; i++)
            for (int k = 0; k < width; k++)
                bytes[i * width + k] = (uint8_t)((uint32_t)row[i] >> 8 * k);
        snprintf(path, sizeof path, "%s", put_file("tokens", bytes, (size_t)(500 * width)));
        for (int workers = 0; workers <= 4; workers += workers ? 3 : 1) {
            mpt_loader_config lc = mpt_loader_config_default();
            lc.batch = 7, lc.shuffle = true, lc.workers = workers;
            mpt_dataset data[2];
            for (int r = 0; r < 2; r++)
                data[r] = source == 3 ? mpt_token_memory(context, row, 500, r ? &random : &order)
                                      : mpt_token_file(context, path, width, r ? &random : &order);
            CHECK_EQ_INT(mpt_dataset_size(data[0]), 31);
            CHECK_EQ_INT(mpt_dataset_size(data[1]), 40);
            mpt_loader a = mpt_loader_create(context, data[0], &lc);
            if (mpt_error_code(context) == MPT_ERROR_UNSUPPORTED) { /* without threads */
                mpt_clear_error(context);
                continue;
            }
            lc.shuffle = false;
            mpt_loader b = mpt_loader_create(context, data[1], &lc);
            const uint64_t got[3] = {epoch_hash(a), epoch_hash(b), epoch_hash(b)};
            for (int i = 0; i < 3; i++) {
                if (source == 0 && workers == 0) want[i] = got[i];
                CHECK(got[i] == want[i]);
            }
            CHECK(got[1] != got[2]);
            mpt_loader_destroy(a), mpt_loader_destroy(b);
        }
        CHECK_EQ_STR(mpt_error(context), "");
    }
    mpt_dataset data = mpt_token_file(context, put_file("tokens", bytes, 999), 2, &order);
    EXPECT(MPT_ERROR_FORMAT, "999 bytes are not tokens of 2");
    data = mpt_token_file(context, put_file("tokens", bytes, 1000), 2, &order);
    put_file("tokens", bytes, 500); /* it shrinks */
    float x[16];
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_OK);
    CHECK_EQ_INT(mpt_sample(data, 20, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "cannot read 34 bytes at byte 640");
    remove(test_tmp_path("tokens"));
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_ERROR_IO);
    EXPECT(MPT_ERROR_IO, "cannot open");
    mpt_destroy(context);
}

TEST(text_files) {
    mpt_context *context = make_context();
    NEEDS_FILES
    char path[512];
    snprintf(path, sizeof path, "%s", test_data_path("tinyshakespeare/input.txt"));
    mpt_tokenizer chars = mpt_char_tokenizer(context, path);
    if (mpt_failed(context)) {
        mpt_destroy(context);
        SKIP("tinyshakespeare in MPTRAIN_DATA");
    }
    CHECK_EQ_INT(mpt_vocabulary_size(chars), 65);
    mpt_window_config config = windows(64);
    mpt_dataset data = mpt_text_file(chars, path, &config);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_EQ_INT(mpt_dataset_size(data), (1115394 - 65) / 64 + 1);
    CHECK(mpt_memory(context).current[MPT_MEMORY_DATA] < 1115394 + 4096); /* a byte per character */
    mpt_tokenizer_destroy(chars); /* the dataset does not need it */
    float x[64];
    CHECK_EQ_INT(mpt_sample(data, 0, x, NULL), MPT_OK);
    static const float first[15] = {18, 47, 56, 57, 58, 1, 15, 47, 58, 47, 64, 43, 52, 10, 0};
    CHECK_EQ_BITS(x, first, sizeof first); /* "First Citizen:\n" */
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* What cannot be made of a file names it; what comes from memory has no name. */
TEST(files_are_named) {
    mpt_context *context = make_context();
    const mpt_window_config window = windows(4);
    char path[512];
    NEEDS_FILES
    mpt_tokenizer chars = mpt_char_tokenizer(context, put_text("chars", "abcdefgh"));
    snprintf(path, sizeof path, "%s", put_text("other", "abcdxfgh"));
    mpt_text_file(chars, path, &window);
    EXPECT(MPT_ERROR_ARGUMENT, "other: byte 4 begins no character of the vocabulary");
    mpt_text_file(chars, put_text("other", "abcd"), &window);
    EXPECT(MPT_ERROR_ARGUMENT, "other: 4 tokens; windows of 4 and the token after them need 5");
    mpt_token_file(context, put_text("other", "abcd"), 2, &window);
    EXPECT(MPT_ERROR_ARGUMENT, "other: 2 tokens; windows of 4 and the token after them need 5");
    CHECK_EQ_INT(mpt_encode(chars, "x", 1, NULL, 0), -1);
    EXPECT(MPT_ERROR_ARGUMENT, "): byte 0 begins no character of the vocabulary");
    remove(test_tmp_path("other"));
    mpt_destroy(context);
}

/* Whatever allocation fails, nothing leaks, and the same calls succeed afterwards. */
TEST(out_of_memory) {
    bool failed = true;
    int64_t fails = 1;
    for (; failed && fails < 200; fails++) {
        mpt_config config = mpt_config_default();
        counted c;
        count_memory(&config, &c);
        mpt_context *context = mpt_create(&config);
        REQUIRE(context);
        NEEDS_FILES
        mpt_window_config window = windows(4);
        c.fails = c.calls + fails;
        for (int again = 0; again < 2; again++) {
            char path[512];
            float x[4];
            mpt_tokenizer bpe = small_bpe(context);
            snprintf(path, sizeof path, "%s", put_text("chars", "a rose is a rose"));
            mpt_tokenizer chars = mpt_char_tokenizer(context, path);
            mpt_sample(mpt_text_file(chars, path, &window), 1, x, NULL);
            mpt_sample(mpt_text_file(bpe, path, &window), 1, x, NULL);
            mpt_sample(mpt_token_file(context, path, 1, &window), 1, x, NULL);
            if (again) break;
            failed = mpt_failed(context);
            if (failed) CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_MEMORY);
            mpt_clear_error(context);
            c.fails = 0;
        }
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
        CHECK_EQ_INT(c.live, 0);
    }
    CHECK(fails > 15 && fails < 200);
    remove(test_tmp_path("chars"));
    drop_files();
}

/* What the others have not: counts and rooms that are just outside. */
TEST(values_just_outside) {
    mpt_context *c = make_context();
    if (!have_files(c)) {
        mpt_destroy(c);
        SKIP("files");
    }
    const int32_t tokens[4] = {0, 1, -1, 99};
    int32_t room[4] = {0, 1, 2, 0};
    char text[8], longer[6000];
    mpt_window_config window = mpt_window_config_default();
    mpt_tokenizer chars = mpt_char_tokenizer(c, put_text("few", "abca"));
    memset(longer, 'x', sizeof longer);
    longer[sizeof longer - 1] = 0;
#define OUTSIDE(call, says) \
    do { \
        call; \
        CHECK_CONTAINS(mpt_error(c), says); \
        mpt_clear_error(c); \
    } while (0)
    OUTSIDE(mpt_encode(chars, NULL, 3, room, 4), " at NULL");
    OUTSIDE(mpt_encode(chars, "a", 1, NULL, 4), " at NULL");
    OUTSIDE(mpt_encode(chars, "a", 1, room, -1), "room for -1");
    OUTSIDE(mpt_decode(chars, NULL, 3, text, 8), "3 tokens at NULL");
    OUTSIDE(mpt_decode(chars, tokens, -1, text, 8), "-1 tokens");
    OUTSIDE(mpt_decode(chars, tokens, 2, NULL, 8), "room for 8 bytes at NULL");
    OUTSIDE(mpt_decode(chars, tokens, 2, text, -1), "room for -1 bytes");
    OUTSIDE(mpt_decode(chars, tokens, 3, text, 8), "token 2 is -1; the vocabulary has 3");
    OUTSIDE(mpt_decode(chars, tokens + 3, 1, text, 8), "token 0 is 99; the vocabulary has 3");
    const struct { int64_t block, stride, samples, vocabulary; } rows[] = {
        {INT64_C(1) << 32, 0, 0, 0}, {2, -1, 0, 0}, {2, 0, -1, 0}, {2, 0, 0, -1}, {0, 0, 0, 0}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        window.block = rows[k].block, window.stride = rows[k].stride;
        window.samples = rows[k].samples, window.vocabulary = rows[k].vocabulary;
        OUTSIDE(mpt_token_memory(c, tokens, 4, &window), "block is at least 1, the others at");
    }
    window.block = 2, window.stride = 0, window.samples = 0, window.vocabulary = 0;
    OUTSIDE(mpt_token_memory(c, NULL, 4, &window), "4 tokens at NULL");
    OUTSIDE(mpt_token_memory(c, tokens, 0, &window), "0 tokens");
    OUTSIDE(mpt_token_memory(c, tokens, INT64_MAX, &window), "9223372036854775807 tokens");
    OUTSIDE(mpt_token_file(c, NULL, 1, &window), "path is NULL");
    OUTSIDE(mpt_token_file(c, longer, 1, &window), "path is too long");
    window.random = true, window.samples = 0; /* as many as lie side by side */
    CHECK_EQ_INT(mpt_dataset_size(mpt_token_memory(c, room, 4, &window)), 1);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST_TABLE = {T(values_just_outside),
              T(characters),         T(bpe_of_a_few_merges), T(pieces_by_class),
              T(bpe_of_a_long_word), T(bpe_files_damaged),   T(gpt2),
              T(windows_in_order),   T(token_files),         T(text_files),
              T(files_beyond_4_gib), T(files_are_named),     T(out_of_memory)};
TEST_MAIN
