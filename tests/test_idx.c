/* idx headers: good ones of every rank, and everything a broken file can claim; the classes of all
 * characters, by which GPT-2's splitter cuts. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER
#include "harness.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

typedef struct idx_case {
    uint8_t bytes[20];
    int n;
    int64_t file_bytes;
    const char *error; /* a part of it; NULL: good */
    int64_t expected, got;
} idx_case;

static const idx_case cases[] = {
    {{0, 0, 8, 1, 0, 0, 0x27, 0x10}, 8, 10008, NULL, 0, 0},
    {{0, 0, 8, 3, 0, 0, 0xEA, 0x60, 0, 0, 0, 28, 0, 0, 0, 28}, 16, 47040016, NULL, 0, 0},
    {{0, 0, 8, 3, 0, 0, 0xEA, 0x60, 0, 0, 0, 28, 0, 0, 0, 28}, 20, -1, NULL, 0, 0},
    {{0, 0, 8, 2, 0, 0, 0, 3, 0, 0, 0, 5}, 20, 27, NULL, 0, 0},
    {{0, 0, 8, 4, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5}, 20, 140, NULL, 0, 0},
    {{0}, 0, 0, "ends inside its idx header", 4, 0},
    {{0, 0, 8}, 3, 3, "ends inside its idx header", 4, 3},
    {{0, 0, 8, 1, 0, 0, 0}, 7, 7, "ends inside its idx header", 8, 7},
    {{0, 0, 8, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, 19, 19, "ends inside", 20, 19},
    {{0x1F, 0x8B, 8, 0}, 20, -1, "not an idx file", 0, 0x1F8B},
    {{0, 1, 8, 1, 0, 0, 0, 1}, 20, -1, "not an idx file", 0, 1},
    {{0, 0, 9, 1, 0, 0, 0, 1}, 20, 9, "elements are int8", 8, 9},
    {{0, 0, 11, 1, 0, 0, 0, 1}, 20, 10, "elements are int16", 8, 11},
    {{0, 0, 12, 1, 0, 0, 0, 1}, 20, 12, "elements are int32", 8, 12},
    {{0, 0, 13, 1, 0, 0, 0, 1}, 20, 12, "elements are float32", 8, 13},
    {{0, 0, 14, 1, 0, 0, 0, 1}, 20, 16, "elements are float64", 8, 14},
    {{0, 0, 0, 1, 0, 0, 0, 1}, 20, 9, "unknown idx element type", 8, 0},
    {{0, 0, 10, 1, 0, 0, 0, 1}, 20, 9, "unknown idx element type", 8, 10},
    {{0, 0, 255, 1, 0, 0, 0, 1}, 20, 9, "unknown idx element type", 8, 255},
    {{0, 0, 8, 0}, 20, 4, "without dimensions", 1, 0},
    {{0, 0, 8, 5}, 20, 24, "too many dimensions", 4, 5},
    {{0, 0, 8, 255}, 20, 24, "too many dimensions", 4, 255},
    {{0, 0, 8, 1, 0, 0, 0, 0}, 20, 8, "dimension is empty", 1, 0},
    {{0, 0, 8, 2, 0, 0, 0, 7, 0, 0, 0, 0}, 20, 12, "dimension is empty", 1, 0},
    {{0, 0, 8, 1, 0, 0, 0, 5}, 20, 12, "shorter than its dimensions say", 13, 12},
    {{0, 0, 8, 1, 0, 0, 0, 5}, 20, 14, "longer than its dimensions say", 13, 14},
    {{0, 0, 8, 1, 0xFF, 0xFF, 0xFF, 0xFF}, 20, 100, "shorter than", 4294967303, 100},
    {{0, 0, 8, 2, 0xFF, 0xFF, 0xFF, 0xFF, 0x80, 0, 0, 0},
     20,
     20,
     "shorter than",
     9223372034707292172,
     20},
    {{0, 0, 8, 2, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF},
     20,
     20,
     "multiply to too much",
     2147483648,
     4294967295},
    {{0, 0, 8, 3, 0x80, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 2}, 20, -1, "multiply to too much", 1, 2},
    {{0, 0, 8, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0},
     20,
     -1,
     "multiply to too much",
     32767,
     65536},
};

TEST(headers) {
    for (size_t i = 0; i < COUNT(cases); i++) {
        const idx_case *c = &cases[i];
        mpt__idx idx;
        bool good = mpt__idx_header(&idx, c->bytes, (size_t)c->n, c->file_bytes);
        CHECK_EQ_INT(good, c->error == NULL);
        if (c->error)
            CHECK_CONTAINS(idx.error, c->error);
        else
            CHECK_EQ_STR(idx.error, NULL);
        CHECK_EQ_INT(idx.expected, c->expected);
        CHECK_EQ_INT(idx.got, c->got);
    }
}

TEST(fields) {
    mpt__idx idx;
    REQUIRE(mpt__idx_header(&idx, cases[1].bytes, 16, 47040016));
    CHECK_EQ_INT(idx.rank, 3);
    CHECK_EQ_INT(idx.shape[0], 60000);
    CHECK_EQ_INT(idx.shape[1], 28);
    CHECK_EQ_INT(idx.shape[2], 28);
    CHECK_EQ_INT(idx.shape[3], 1);
    CHECK_EQ_INT(idx.header_bytes, 16);
    CHECK_EQ_INT(idx.data_bytes, 47040000);
    REQUIRE(mpt__idx_header(&idx, cases[0].bytes, 8, 10008));
    CHECK_EQ_INT(idx.rank, 1);
}

/* Whatever the bytes, a header is refused with a reason or its numbers agree with each other. */
TEST(random_headers) {
    uint32_t random = 1;
    int good = 0;
    for (int i = 0; i < 200000; i++) {
        uint8_t bytes[20] = {0, 0, 8, (uint8_t)(i % 6)};
        for (int k = 4; k < 20; k++) {
            random = random * 1664525u + 1013904223u;
            bytes[k] = random >> 30 == 0 ? (uint8_t)(random >> 16) : 0;
        }
        if (i % 7 == 0) bytes[random >> 28 & 3] = (uint8_t)(random >> 8);
        mpt__idx idx;
        if (!mpt__idx_header(&idx, bytes, random >> 9 & 1u ? 20 : (random >> 10) % 21, -1)) {
            CHECK(idx.error != NULL);
            continue;
        }
        good++;
        int64_t product = 1;
        for (int k = 0; k < idx.rank; k++) {
            CHECK(idx.shape[k] >= 1 && idx.shape[k] <= INT64_MAX / product);
            product *= idx.shape[k];
        }
        CHECK(idx.error == NULL && product == idx.data_bytes);
        CHECK(idx.data_bytes <= INT64_MAX - idx.header_bytes);
        CHECK_EQ_INT(idx.header_bytes, 4 + 4 * idx.rank);
    }
    CHECK(good > 1000);
}

static int class_of(const mpt__tokenizer *tokenizer, uint32_t code) {
    uint8_t bytes[4];
    size_t size, n = mpt__utf8_write(code, bytes);
    return mpt__class_of(tokenizer, bytes, n, &size);
}

/* All 1,114,112 of them: the hash is that of Python's package unicodedata2 17.0.1, whose letters,
   numbers and white space are those of \p{L}, \p{N} and \s in the package regex 2025.11.3. */
TEST(classes_of_all_characters) {
    static const struct {
        uint32_t first, last;
        int kind;
    } known[] = {{'A', 'Z', MPT__LETTER},
                 {0xaa, 0xaa, MPT__LETTER},
                 {0x3400, 0x4dbf, MPT__LETTER},
                 {0x4e00, 0xa48c, MPT__LETTER},
                 {0xac00, 0xd7a3, MPT__LETTER},
                 {0x20000, 0x2a6df, MPT__LETTER},
                 {0x16ea0, 0x16eb8, MPT__LETTER},
                 {0x2b73a, 0x2b73f, MPT__LETTER}, /* new in Unicode 17 */
                 {0x323b0, 0x33479, MPT__LETTER},
                 {'0', '9', MPT__NUMBER},
                 {0xb2, 0xb3, MPT__NUMBER},
                 {0x2160, 0x2182, MPT__NUMBER}, /* Roman ones */
                 {0x660, 0x669, MPT__NUMBER},
                 {0x966, 0x96f, MPT__NUMBER},
                 {0x3007, 0x3007, MPT__NUMBER},
                 {0x1d7ce, 0x1d7ff, MPT__NUMBER},
                 {9, 13, MPT__SPACE},
                 {' ', ' ', MPT__SPACE},
                 {0x85, 0x85, MPT__SPACE},
                 {0xa0, 0xa0, MPT__SPACE},
                 {0x2000, 0x200a, MPT__SPACE},
                 {0x2028, 0x2029, MPT__SPACE},
                 {0x202f, 0x202f, MPT__SPACE},
                 {0x3000, 0x3000, MPT__SPACE},
                 {0x1c, 0x1f, MPT__MARK},
                 {0x300, 0x36f, MPT__MARK}, /* accents to be combined */
                 {0x378, 0x379, MPT__MARK},
                 {0x200b, 0x200f, MPT__MARK}, /* not assigned; no width */
                 {0xd7fc, 0xd7ff, MPT__MARK},
                 {0xe000, 0xf8ff, MPT__MARK}, /* private use */
                 {0x3347a, 0x3ffff, MPT__MARK},
                 {0xe0100, 0x10ffff, MPT__MARK}};
    static mpt__tokenizer tokenizer;
    uint64_t hash = UINT64_C(14695981039346656037);
    int64_t counts[4] = {0};
    mpt__classes_read(tokenizer.runs);
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        const int kind = class_of(&tokenizer, code);
        hash = (hash ^ (uint64_t)kind) * UINT64_C(1099511628211);
        counts[kind]++;
    }
    CHECK_EQ_INT(counts[MPT__LETTER], 145672);
    CHECK_EQ_INT(counts[MPT__NUMBER], 1924);
    CHECK_EQ_INT(counts[MPT__SPACE], 25);
    CHECK(hash == UINT64_C(0x8e2a00405ef14546));
    for (size_t i = 0; i < COUNT(known); i++)
        for (uint32_t code = known[i].first; code <= known[i].last; code++)
            if (class_of(&tokenizer, code) != known[i].kind)
                TEST_FAIL_("U+%x is of class %d, expected %d", (unsigned)code,
                           class_of(&tokenizer, code), known[i].kind);
}

TEST_TABLE = {T(headers), T(fields), T(random_headers), T(classes_of_all_characters)};
TEST_MAIN
