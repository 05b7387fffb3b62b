/* idx headers: good ones of every rank, and everything a broken file can claim. */
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

TEST_TABLE = {T(headers), T(fields), T(random_headers)};
TEST_MAIN
