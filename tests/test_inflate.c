/* Inflate: streams of zlib, streams written bit by bit here, and every way to damage them. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER
#include "harness.h"

typedef struct gzip_vector {
    const char *name;
    char kind;           /* which rule of plain_data */
    size_t size, period; /* the first `period` bytes repeat up to `size` */
    const unsigned char *stream;
    size_t stream_size;
} gzip_vector;

#include "inflate_vectors.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])
#define BIG (1 << 18)

static mpt__inflate inflater;
static uint8_t plain[BIG], decoded[BIG], stream[BIG];

/* Decodes a stream into `decoded`, of which `room` bytes may be touched, from a block of its exact
 * size, so that sanitizers see a byte too far. Returns the size; -1 with inflater.error set, -2
 * when there is no error but more data than room. */
static long long inflate_into(const uint8_t *data, size_t size, size_t room) {
    uint8_t *exact = (uint8_t *)malloc(size ? size : 1);
    if (!exact) return -3;
    if (size) memcpy(exact, data, size);
    memset(decoded, 0xAA, room + 16 < BIG ? room + 16 : BIG);
    bool whole = mpt__inflate_run(&inflater, exact, size, decoded, room);
    free(exact);
    CHECK(inflater.written <= room);
    for (size_t i = room; i < room + 16 && i < BIG; i++) CHECK_EQ_INT(decoded[i], 0xAA);
    return whole ? (long long)inflater.written : inflater.error ? -1 : -2;
}

static long long inflate_all(const uint8_t *data, size_t size) {
    return inflate_into(data, size, BIG);
}

/* The data of tools/inflate_vectors.py. */
static void make_plain(char kind, size_t size, size_t period) {
    static const char words[] = "mixed precision trains small nets fast ";
    uint32_t state = 1;
    size_t n = 0;
    while (n < period) {
        state = (state * 1103515245u + 12345u) & 0x7FFFFFFFu;
        uint32_t value = state >> 16;
        if (kind == 't') {
            memcpy(plain + n, words + value % 30, 4 + value / 30 % 6);
            n += 4 + value / 30 % 6;
        } else if (kind == 'z' && value % 50 != 0) {
            memset(plain + n, 0, 3);
            n += 3;
        } else {
            plain[n++] = (uint8_t)value;
        }
    }
    for (n = period; n < size; n++) plain[n] = plain[n - period];
}

TEST(zlib_streams) {
    for (size_t i = 0; i < COUNT(gzip_vectors); i++) {
        const gzip_vector *v = &gzip_vectors[i];
        make_plain(v->kind, v->size, v->period);
        for (size_t more = 0; more <= 20; more += 20) {
            long long n = inflate_into(v->stream, v->stream_size, v->size + more);
            if (n != (long long)v->size)
                printf("\n  %s: %s", v->name, inflater.error ? inflater.error : "wrong size");
            CHECK_EQ_INT(n, v->size);
            CHECK_EQ_BITS(decoded, plain, v->size);
        }
    }
}

/* With less room than there is data, the front of it comes, without an error. */
TEST(prefixes) {
    for (size_t i = 0; i < COUNT(gzip_vectors); i++) {
        const gzip_vector *v = &gzip_vectors[i];
        make_plain(v->kind, v->size, v->period);
        for (size_t room = 0; room < v->size; room += 1 + room / 8) {
            CHECK_EQ_INT(inflate_into(v->stream, v->stream_size, room), -2);
            CHECK_EQ_INT(inflater.written, room);
            CHECK_EQ_BITS(decoded, plain, room);
        }
    }
}

/* Every cut of a stream must fail and say where; one after a whole member is no cut. */
TEST(truncations) {
    for (size_t i = 0; i < COUNT(gzip_vectors); i++) {
        const gzip_vector *v = &gzip_vectors[i];
        if (strcmp(v->name, "three members") == 0) continue;
        for (size_t cut = 0; cut < v->stream_size; cut++) {
            CHECK_EQ_INT(inflate_all(v->stream, cut), -1);
            CHECK_EQ_STR(inflater.error, "the compressed data ends early");
            CHECK_EQ_INT(inflater.error_offset, cut);
        }
    }
}

/* A flipped bit gives an error, or the right data where it hit a field that carries none. */
TEST(bit_flips) {
    long long errors = 0, harmless = 0;
    for (size_t i = 0; i < COUNT(gzip_vectors); i++) {
        const gzip_vector *v = &gzip_vectors[i];
        make_plain(v->kind, v->size, v->period);
        memcpy(stream, v->stream, v->stream_size);
        for (size_t bit = 0; bit < 8 * v->stream_size; bit++) {
            stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
            long long n = inflate_all(stream, v->stream_size);
            stream[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (n < 0) {
                CHECK(inflater.error && inflater.error_offset <= v->stream_size);
                errors++;
            } else {
                CHECK_EQ_INT(n, v->size);
                CHECK_EQ_BITS(decoded, plain, v->size);
                harmless++;
            }
        }
    }
    CHECK(errors > harmless && harmless > 0);
}

/* ---- streams written here ---- */

typedef struct bit_writer {
    size_t bits; /* written to `stream`, which is zero after them */
} bit_writer;

static void put(bit_writer *w, unsigned value, int count) {
    for (int i = 0; i < count; i++, w->bits++)
        stream[w->bits / 8] |= (uint8_t)((value >> i & 1u) << w->bits % 8);
}

static void put_header(bit_writer *w) {
    static const uint8_t header[10] = {0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 255};
    w->bits = (w->bits + 7) / 8 * 8;
    for (int i = 0; i < 10; i++) put(w, header[i], 8);
}

static bit_writer begin_stream(void) {
    bit_writer w = {0};
    memset(stream, 0, sizeof stream);
    put_header(&w);
    return w;
}

static void put_stored(bit_writer *w, const uint8_t *data, unsigned size, unsigned last) {
    put(w, last, 3);
    w->bits = (w->bits + 7) / 8 * 8;
    put(w, size, 16);
    put(w, ~size & 0xFFFFu, 16);
    for (unsigned i = 0; i < size; i++) put(w, data[i], 8);
}

/* The trailer for `size` bytes of `plain`, from a bitwise CRC32 of its own. */
static void put_trailer(bit_writer *w, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < size; i++) {
        crc ^= plain[i];
        for (int k = 0; k < 8; k++) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    crc = ~crc;
    w->bits = (w->bits + 7) / 8 * 8;
    for (int i = 0; i < 32; i += 8) put(w, crc >> i & 255u, 8);
    for (int i = 0; i < 32; i += 8) put(w, (unsigned)size >> i & 255u, 8);
}

/* A deflate block as words: "v:n" puts n bits of value v, "xN" repeats the one before N times in
 * all. After it the stream has more zeros than any trailer needs. */
typedef struct block_case {
    const char *error; /* NULL: the block is good and empty */
    const char *bits;
} block_case;

static unsigned parse_number(const char **text) {
    unsigned n = 0;
    for (; **text >= '0' && **text <= '9'; ++*text) n = 10 * n + (unsigned)(**text - '0');
    return n;
}

static void put_words(bit_writer *w, const char *text) {
    unsigned value = 0, count = 0;
    while (*text) {
        if (*text == ' ') {
            text++;
        } else if (*text == 'x') {
            text++;
            for (unsigned n = parse_number(&text); n > 1; n--) put(w, value, (int)count);
        } else {
            value = parse_number(&text);
            text++; /* the colon */
            count = parse_number(&text);
            put(w, value, (int)count);
        }
    }
}

/* A dynamic block: how many literal, distance and code length codes, less 257, 1 and 4. */
#define DYNAMIC(literals, distances, lengths) \
    "1:1 2:2 " literals ":5 " distances ":5 " lengths ":4 "
/* Code length codes: 16 is 0 and 18 is 1; 1 is 0 and 18 is 1; 2 is 0 and 18 is 1; and with all
 * three, 18 is 0, 1 is 10 and 2 is 11. */
#define CODES_16_18 "1:3 0:3 1:3 0:3 "
#define CODES_1_18 "0:3 0:3 1:3 0:3 x14 1:3 "
#define CODES_2_18 "0:3 0:3 1:3 0:3 x12 1:3 "
#define CODES_1_2_18 "0:3 0:3 1:3 0:3 x12 2:3 0:3 2:3 "

static const block_case blocks[] = {
    {"a block of unknown type", "1:1 3:2"},
    {"a stored block whose two lengths disagree", "1:1 0:2 0:5 5:16 5:16"},
    {"more literal or distance codes than there are", DYNAMIC("30", "0", "0") "0:3 x4"},
    {"more literal or distance codes than there are", DYNAMIC("0", "30", "0") "0:3 x4"},
    {"an impossible set of code length codes", DYNAMIC("0", "0", "0") "1:3 x4"},
    {"an impossible set of code length codes", DYNAMIC("0", "0", "0") "0:3 0:3 1:3 0:3"},
    {"an impossible set of code length codes", DYNAMIC("0", "0", "0") "0:3 x4"},
    {"a repeated code length with none before it", DYNAMIC("0", "0", "0") CODES_16_18 "0:1"},
    {"more code lengths than announced", DYNAMIC("0", "0", "0") CODES_16_18 "1:1 127:7 1:1 127:7"},
    {"more code lengths than announced", DYNAMIC("0", "0", "0") CODES_16_18 "1:1 127:7 1:1 110:7"},
    {"no code for the end of the block", DYNAMIC("0", "0", "0") CODES_16_18 "1:1 127:7 1:1 109:7"},
    {NULL, DYNAMIC("0", "0", "14") CODES_1_18 "1:1 127:7 1:1 107:7 0:1 0:1 0:1"},
    {NULL, DYNAMIC("0", "10", "14") CODES_1_18 "1:1 127:7 1:1 107:7 0:1 1:1 0:7 0:1"},
    {"a distance code that does not exist", /* the other bit of a lone code */
     DYNAMIC("1", "0", "14") CODES_1_18 "1:1 127:7 1:1 107:7 0:1 x3 1:1 1:1"},
    {"a distance code that does not exist", /* in a block that has none */
     DYNAMIC("1", "10", "14") CODES_1_18 "1:1 127:7 1:1 107:7 0:1 x2 1:1 0:7 1:1 0:1"},
    {"a literal code that does not exist",
     DYNAMIC("0", "0", "14") CODES_1_18 "1:1 127:7 1:1 107:7 0:1 0:1 1:1"},
    {"an impossible set of literal codes", /* three codes of one bit */
     DYNAMIC("0", "0", "14") CODES_1_18 "0:1 x2 1:1 127:7 1:1 105:7 0:1 0:1"},
    {"an impossible set of literal codes", /* one code of two bits */
     DYNAMIC("0", "0", "12") CODES_2_18 "1:1 127:7 1:1 107:7 0:1 0:1"},
    {"an impossible set of distance codes", /* three codes of one bit */
     DYNAMIC("0", "2", "14") CODES_1_18 "0:1 1:1 127:7 1:1 106:7 0:1 0:1 x3"},
    {"an impossible set of distance codes", /* one code of two bits */
     DYNAMIC("0", "0", "14") CODES_1_2_18 "1:2 0:1 127:7 0:1 106:7 1:2 3:2"},
    {"a literal code that does not exist", "1:1 1:2 99:8"}, /* fixed code 286 */
    {"a distance code that does not exist", "1:1 1:2 64:7 15:5"},
    {"a match that reaches back before the start of the data", "1:1 1:2 137:8 64:7 16:5"},
    {"a match that reaches back before the start of the data", "1:1 1:2 64:7 0:5"},
};

TEST(block_faults) {
    for (size_t i = 0; i < COUNT(blocks); i++) {
        bit_writer w = begin_stream();
        put_words(&w, blocks[i].bits);
        size_t used = (w.bits + 7) / 8;
        /* A good block needs eight zero bytes: checksum and size of nothing. */
        long long n = inflate_all(stream, used + (blocks[i].error ? 40 : 8));
        CHECK_EQ_INT(n, blocks[i].error ? -1 : 0);
        CHECK_EQ_STR(inflater.error, blocks[i].error);
        if (blocks[i].error) CHECK(inflater.error_offset > 10 && inflater.error_offset <= used + 1);
        if (!blocks[i].error || !strstr(blocks[i].error, "code that does not exist")) continue;
        /* Where nothing follows bits that begin no code, the rest of one may have been cut off; a
           fixed code is there, and stands for nothing. */
        bool fixed = strncmp(blocks[i].bits, "1:1 1:2", 7) == 0;
        CHECK_EQ_INT(inflate_all(stream, used), -1);
        CHECK_EQ_STR(inflater.error, fixed ? blocks[i].error : "the compressed data ends early");
    }
}

TEST(member_faults) {
    static const struct {
        size_t at;
        uint8_t value;
        const char *error;
    } cases[] = {
        {0, 0x1E, "this is not a gzip file"},
        {1, 0x8C, "this is not a gzip file"},
        {2, 7, "a gzip header of an unknown kind"},
        {3, 0x20, "a gzip header of an unknown kind"},
        {3, 0x80, "a gzip header of an unknown kind"},
        {3, 2, "the checksum of the gzip header is wrong"},
        {18, 1, "the data does not match its checksum"},
        {22, 4, "the data does not match its announced size"},
        {25, 1, "the data does not match its announced size"},
    };
    memcpy(plain, "abc", 3);
    for (size_t i = 0; i < COUNT(cases); i++) {
        bit_writer w = begin_stream();
        put_stored(&w, plain, 3, 1);
        put_trailer(&w, 3);
        CHECK_EQ_INT(inflate_all(stream, w.bits / 8), 3);
        stream[cases[i].at] = cases[i].value;
        CHECK_EQ_INT(inflate_all(stream, w.bits / 8), -1);
        CHECK_EQ_STR(inflater.error, cases[i].error);
    }
}

TEST(what_follows_a_member) {
    memcpy(plain, "abc", 3);
    bit_writer w = begin_stream();
    put_stored(&w, plain, 3, 1);
    put_trailer(&w, 3);
    size_t size = w.bits / 8;
    for (size_t extra = 1; extra < 30; extra++) { /* zeros, as tapes pad with, and what is none */
        CHECK_EQ_INT(inflate_all(stream, size + extra), 3);
        stream[size + extra - 1] = 'x';
        CHECK_EQ_INT(inflate_all(stream, size + extra), -1);
        CHECK_EQ_STR(inflater.error, "something that is not gzip follows the data");
        CHECK_EQ_INT(inflater.error_offset, size + 1);
        stream[size + extra - 1] = 0;
    }
    put_header(&w); /* a match may not reach into the member before */
    put_words(&w, "1:1 1:2 64:7 0:5");
    CHECK_EQ_INT(inflate_all(stream, size + 40), -1);
    CHECK_CONTAINS(inflater.error, "before the start of the data");
}

/* The longest stored block, and one that begins where bits were read ahead. */
TEST(stored_blocks) {
    for (size_t letters = 1; letters <= 16; letters++) {
        size_t size = 65535 + letters + 40000;
        make_plain('r', size, size);
        memset(plain + 65535, 'a', letters);
        bit_writer w = begin_stream();
        put_stored(&w, plain, 65535, 0);
        put_words(&w, "0:1 1:2"); /* a block with fixed codes for some 'a' */
        for (size_t i = 0; i < letters; i++) put_words(&w, "137:8");
        put_words(&w, "0:7");
        put_stored(&w, plain + 65535 + letters, 40000, 1);
        put_trailer(&w, size);
        CHECK_EQ_INT(inflate_into(stream, w.bits / 8, size), size);
        CHECK_EQ_BITS(decoded, plain, size);
    }
}

/* Matches of every distance, against a plain array. */
TEST(matches) {
    static const unsigned base[30] = {
        1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
        193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    make_plain('r', 32768, 32768);
    bit_writer w = begin_stream();
    put_stored(&w, plain, 32768, 0);
    put_words(&w, "1:1 1:2");
    size_t n = 32768;
    uint32_t random = 1;
    for (int i = 0; i < 2000; i++) {
        random = random * 1664525u + 1013904223u;
        unsigned symbol = i % 3 == 0 ? 29 : (random >> 8) % 30;
        unsigned extra = symbol < 2 ? 0 : symbol / 2 - 1;
        unsigned low = i % 3 == 0 ? 8191 : (random >> 13) & ((1u << extra) - 1u);
        unsigned distance = base[symbol] + low, length = i % 2 ? 258 : 3 + (random >> 28) % 8;
        unsigned code = length == 258 ? 0xC5u : length - 2; /* 285 and 257..264, as fixed codes */
        for (int k = length == 258 ? 7 : 6; k >= 0; k--) put(&w, code >> k & 1u, 1);
        for (int k = 4; k >= 0; k--) put(&w, symbol >> k & 1u, 1);
        put(&w, low, (int)extra);
        for (unsigned k = 0; k < length && n < BIG; k++, n++) plain[n] = plain[n - distance];
        if (n > BIG - 600) break;
    }
    put(&w, 0, 7);
    put_trailer(&w, n);
    CHECK(n > 200000);
    CHECK_EQ_INT(inflate_into(stream, w.bits / 8, n), n);
    CHECK_EQ_BITS(decoded, plain, n);
    for (size_t less = 1; less < 600; less++) { /* cut anywhere in a match */
        CHECK_EQ_INT(inflate_into(stream, w.bits / 8, n - less), -2);
        CHECK_EQ_BITS(decoded, plain, n - less);
    }
}

TEST(mnist_files) {
    static const struct {
        const char *name;
        long long size;
    } files[] = {{"mnist/train-images-idx3-ubyte.gz", 47040016},
                 {"mnist/train-labels-idx1-ubyte.gz", 60008},
                 {"mnist/t10k-images-idx3-ubyte.gz", 7840016},
                 {"mnist/t10k-labels-idx1-ubyte.gz", 10008}};
    for (size_t i = 0; i < COUNT(files); i++) {
        FILE *file = fopen(test_data_path(files[i].name), "rb");
        if (!file) SKIP("MNIST (set MPTRAIN_DATA, or run tools/get_mnist.sh)");
        uint8_t *packed = (uint8_t *)malloc(10 << 20), *out = (uint8_t *)malloc(48 << 20);
        size_t n = packed ? fread(packed, 1, 10 << 20, file) : 0;
        CHECK(out && mpt__inflate_run(&inflater, packed, n, out, 48 << 20));
        CHECK_EQ_STR(inflater.error, NULL);
        CHECK_EQ_INT(inflater.written, files[i].size);
        free(packed);
        free(out);
        fclose(file);
    }
}

TEST_TABLE = {T(zlib_streams), T(prefixes),      T(truncations),           T(bit_flips),
              T(block_faults), T(member_faults), T(what_follows_a_member), T(stored_blocks),
              T(matches),      T(mnist_files)};
TEST_MAIN
