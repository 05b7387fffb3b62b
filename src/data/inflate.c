/* ----
 * data/inflate.c: decompression of gzip data (RFC 1951 and 1952), bounds-checked.
 *
 * From memory to memory, all state in one struct of the caller's. Every length, distance and code
 * table is checked before use; CRC32 and size of each member at its end. Output is to be trusted
 * only once mpt__inflate_run has returned true.
 * ---- */
#ifndef MPT__DATA_INFLATE_INCLUDED
#define MPT__DATA_INFLATE_INCLUDED

#include "ground/base.c"

#define MPT__HUFFMAN_MAX_BITS 15
/* Codes up to this length take one look-up; 9 to 12 were equally fast on MNIST and text. */
#define MPT__HUFFMAN_FAST_BITS 10
#define MPT__HUFFMAN_SYMBOLS 288
#define MPT__CRC32_STRIDE 16 /* bytes per turn; 4 took 2.6 times as long on MNIST */

/* A canonical Huffman code. An entry is length << 9 | symbol; 0: no code that short. */
typedef struct {
    uint16_t fast[1 << MPT__HUFFMAN_FAST_BITS];
    uint16_t count[MPT__HUFFMAN_MAX_BITS + 1]; /* codes of each length */
    uint16_t symbol[MPT__HUFFMAN_SYMBOLS];     /* in order of their codes */
} mpt__huffman;

/* Unread input: the low `count` bits of `bits`, then next..end. Bits above `count` are zero or what
   follows at `next`. Past the end come zeros and a negative count. */
typedef struct {
    uint64_t bits;
    const uint8_t *next, *end;
    int count;
} mpt__bit_input;

typedef struct {
    const char *error;   /* static text, NULL while all is well; the first one stays */
    size_t error_offset; /* byte of the compressed data at which it was noticed */

    const uint8_t *start; /* of the compressed data */
    mpt__bit_input in;
    uint8_t *out;
    size_t size, written; /* of `out` */
    size_t member;        /* where in it the current member begins */

    uint32_t crc_table[MPT__CRC32_STRIDE][256];
    mpt__huffman literals, distances;
} mpt__inflate;

/* ---- CRC32 (reflected 0xEDB88320) ---- */

static void mpt__crc32_init(uint32_t table[MPT__CRC32_STRIDE][256]) {
    for (uint32_t i = 0; i < 256; i++) {
        table[0][i] = i;
        for (int k = 0; k < 8; k++)
            table[0][i] = (table[0][i] >> 1) ^ (0xEDB88320u & (0u - (table[0][i] & 1u)));
    }
    for (int k = 1; k < MPT__CRC32_STRIDE; k++)
        for (uint32_t i = 0; i < 256; i++)
            table[k][i] = (table[k - 1][i] >> 8) ^ table[0][table[k - 1][i] & 255u];
}

static MPT__INLINE uint32_t mpt__load_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* What four bytes, and as many behind them as `rows` is rows from the first, leave. */
static MPT__INLINE uint32_t mpt__crc32_word(uint32_t rows[][256], uint32_t word) {
    return rows[3][word & 255u] ^ rows[2][word >> 8 & 255u] ^ rows[1][word >> 16 & 255u] ^
        rows[0][word >> 24];
}

static uint32_t mpt__crc32(uint32_t table[][256], const uint8_t *p, size_t n) {
    uint32_t c = 0xFFFFFFFFu;
    for (; n >= MPT__CRC32_STRIDE; n -= MPT__CRC32_STRIDE, p += MPT__CRC32_STRIDE)
        c = mpt__crc32_word(table + 12, c ^ mpt__load_u32(p)) ^
            mpt__crc32_word(table + 8, mpt__load_u32(p + 4)) ^
            mpt__crc32_word(table + 4, mpt__load_u32(p + 8)) ^
            mpt__crc32_word(table, mpt__load_u32(p + 12));
    for (; n > 0; n--, p++) c = (c >> 8) ^ table[0][(c ^ *p) & 255u];
    return ~c;
}

/* ---- Input ---- */

/* Records the first error and its place in the input; false. */
static bool mpt__inflate_fail(mpt__inflate *z, const char *error) {
    int ahead = z->in.count > 0 ? z->in.count / 8 : 0;
    if (!z->error) z->error_offset = (size_t)(z->in.next - z->start) - (size_t)ahead;
    if (!z->error) z->error = error;
    return false;
}

/* The same at the end of the input, whatever bits are left over. */
static bool mpt__inflate_ends_early(mpt__inflate *z) {
    z->in.next = z->in.end;
    z->in.count = 0;
    return mpt__inflate_fail(z, "the compressed data ends early");
}

/* Makes at least 56 bits available, or all there are. */
static MPT__INLINE void mpt__inflate_fill(mpt__bit_input *in) {
    if (in->end - in->next >= 8) {
        in->bits |= (mpt__load_u32(in->next) | (uint64_t)mpt__load_u32(in->next + 4) << 32)
            << in->count;
        in->next += (63 - in->count) >> 3;
        in->count |= 56;
    }
    for (; in->count < 56 && in->next < in->end; in->count += 8)
        in->bits |= (uint64_t)*in->next++ << in->count;
}

static MPT__INLINE uint32_t mpt__inflate_drop(mpt__bit_input *in, unsigned n) {
    uint32_t value = (uint32_t)in->bits & ((1u << n) - 1u);
    in->bits >>= n;
    in->count -= (int)n;
    return value;
}

/* Takes n <= 16 bits, least significant first. At the end of the input: fails, 0. */
static uint32_t mpt__inflate_bits(mpt__inflate *z, unsigned n) {
    mpt__inflate_fill(&z->in);
    uint32_t value = mpt__inflate_drop(&z->in, n);
    if (z->in.count >= 0) return value;
    mpt__inflate_ends_early(z);
    return 0;
}

/* The next n whole bytes, without the rest of a byte begun; NULL after an error. */
static const uint8_t *mpt__inflate_bytes(mpt__inflate *z, size_t n) {
    const uint8_t *bytes = z->in.next -= z->in.count / 8;
    z->in.bits = 0;
    z->in.count = 0;
    if ((size_t)(z->in.end - bytes) >= n)
        z->in.next += n;
    else
        bytes = NULL, mpt__inflate_ends_early(z);
    return bytes;
}

/* ---- Huffman codes ---- */

/* Builds the code whose symbol i has lengths[i] bits, 0 for none. False when there are more or
   fewer codes than the lengths allow; on request a lone code of one bit, or none, is let by, as
   zlib does. */
static bool mpt__huffman_build(mpt__huffman *h, const uint8_t *lengths, int n, bool allow_lone) {
    unsigned index[MPT__HUFFMAN_MAX_BITS + 2] = {0}, code[MPT__HUFFMAN_MAX_BITS + 2] = {0};
    int left = 1;
    mpt__zero(*h);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    int used = n - h->count[0];
    h->count[0] = 0;
    for (int len = 1; len <= MPT__HUFFMAN_MAX_BITS; len++) {
        left = 2 * left - h->count[len];
        if (left < 0) return false;
        index[len + 1] = index[len] + h->count[len];
        code[len + 1] = (code[len] + h->count[len]) << 1;
    }
    if (left > 0 && !(allow_lone && used == h->count[1])) return false;
    for (int i = 0; i < n; i++) {
        int len = lengths[i];
        if (len == 0) continue;
        h->symbol[index[len]++] = (uint16_t)i;
        unsigned c = code[len]++, reversed = 0;
        if (len > MPT__HUFFMAN_FAST_BITS) continue;
        for (int k = 0; k < len; k++) reversed |= (c >> k & 1u) << (len - 1 - k);
        for (; reversed < 1u << MPT__HUFFMAN_FAST_BITS; reversed += 1u << len)
            h->fast[reversed] = (uint16_t)(len << 9 | i);
    }
    return true;
}

/* The entry of a code longer than the fast table's, bit by bit; 0: none. */
static unsigned mpt__huffman_slow(const mpt__huffman *h, uint64_t bits) {
    int code = 0, first = 0, index = 0;
    for (int len = 1; len <= MPT__HUFFMAN_MAX_BITS; len++, bits >>= 1) {
        code |= (int)(bits & 1u);
        int count = h->count[len];
        if (code - first < count) return (unsigned)(len << 9) | h->symbol[index + code - first];
        index += count;
        first = (first + count) << 1;
        code <<= 1;
    }
    return 0;
}

/* Takes the next symbol's entry. Without one, the count turns negative or the entry is 0. */
static MPT__INLINE unsigned mpt__huffman_take(const mpt__huffman *h, mpt__bit_input *in) {
    unsigned entry = h->fast[in->bits & ((1u << MPT__HUFFMAN_FAST_BITS) - 1u)];
    if (MPT__UNLIKELY(!entry)) entry = mpt__huffman_slow(h, in->bits);
    in->bits >>= entry >> 9;
    in->count -= (int)(entry >> 9);
    return entry;
}

/* What to say without a good symbol: the input may be too short for any. */
static bool mpt__huffman_fail(mpt__inflate *z, unsigned entry, const char *error) {
    if (z->in.count < 0 || (!entry && z->in.count < MPT__HUFFMAN_MAX_BITS))
        return mpt__inflate_ends_early(z);
    return mpt__inflate_fail(z, error);
}

/* ---- Blocks ---- */

/* Reads a dynamic block's run-length coded code lengths (RFC 1951, 3.2.7). */
static bool mpt__inflate_code_lengths(mpt__inflate *z, uint8_t *lengths, int total) {
    static const uint8_t least[3] = {3, 3, 11}, extra[3] = {2, 3, 7};
    for (int i = 0, repeat; i < total; i += repeat) {
        mpt__inflate_fill(&z->in);
        unsigned symbol = mpt__huffman_take(&z->literals, &z->in) & 511u; /* none lacks */
        if (z->in.count < 0) return mpt__inflate_ends_early(z);
        if (symbol == 16 && i == 0)
            return mpt__inflate_fail(z, "a repeated code length with none before it");
        repeat =
            symbol < 16 ? 1 : (int)(least[symbol - 16] + mpt__inflate_bits(z, extra[symbol - 16]));
        if (z->error) return false;
        if (repeat > total - i) return mpt__inflate_fail(z, "more code lengths than announced");
        memset(lengths + i,
            symbol < 16        ? (int)symbol
                : symbol == 16 ? lengths[i - 1]
                               : 0,
            (size_t)repeat);
    }
    return true;
}

static bool mpt__inflate_dynamic_codes(mpt__inflate *z) {
    static const uint8_t order[19] = {
        16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};
    uint8_t lengths[320] = {0};
    int literals = 257 + (int)mpt__inflate_bits(z, 5);
    int distances = 1 + (int)mpt__inflate_bits(z, 5);
    int count = 4 + (int)mpt__inflate_bits(z, 4);
    for (int i = 0; i < count; i++) lengths[order[i]] = (uint8_t)mpt__inflate_bits(z, 3);
    if (z->error) return false;
    if (literals > 286 || distances > 30)
        return mpt__inflate_fail(z, "more literal or distance codes than there are");
    if (!mpt__huffman_build(&z->literals, lengths, 19, false))
        return mpt__inflate_fail(z, "an impossible set of code length codes");
    if (!mpt__inflate_code_lengths(z, lengths, literals + distances)) return false;
    if (lengths[256] == 0) return mpt__inflate_fail(z, "no code for the end of the block");
    if (!mpt__huffman_build(&z->literals, lengths, literals, true))
        return mpt__inflate_fail(z, "an impossible set of literal codes");
    if (!mpt__huffman_build(&z->distances, lengths + literals, distances, true))
        return mpt__inflate_fail(z, "an impossible set of distance codes");
    return true;
}

static void mpt__inflate_fixed_codes(mpt__inflate *z) {
    uint8_t lengths[MPT__HUFFMAN_SYMBOLS];
    for (int i = 0; i < MPT__HUFFMAN_SYMBOLS; i++)
        lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    mpt__huffman_build(&z->literals, lengths, MPT__HUFFMAN_SYMBOLS, false);
    memset(lengths, 5, 32);
    mpt__huffman_build(&z->distances, lengths, 32, false);
}

/* Copies a match, which may overlap itself; up to 15 bytes of the `room` behind it may change. */
static MPT__INLINE void mpt__inflate_copy(
    uint8_t *to, size_t distance, size_t length, size_t room) {
    const uint8_t *from = to - distance;
    if (distance == 1) {
        memset(to, *from, length);
    } else if (distance >= 16 && room >= length + 15) {
        for (size_t i = 0; i < length; i += 16) memcpy(to + i, from + i, 16);
    } else {
        for (size_t i = 0; i < length; i++) to[i] = from[i];
    }
}

/* How far above the least a length (step 4) or distance (step 2) lies, its extra bits taken: each
   `step` codes have a bit more than those before (RFC 1951, 3.2.5). */
static MPT__INLINE size_t mpt__inflate_number(mpt__bit_input *in, unsigned code, unsigned step) {
    if (code < step) return code;
    unsigned extra = code / step - 1;
    return ((step + code % step) << extra) + mpt__inflate_drop(in, extra);
}

/* Decodes to the block's end. False on error and, without one, when the output is full. */
static bool mpt__inflate_codes(mpt__inflate *z) {
    uint8_t *const begin = z->out + z->member, *const end = z->out + z->size;
    uint8_t *out = z->out + z->written;
    mpt__bit_input in = z->in; /* in registers: stores to the output could alias *z */
    const char *error = NULL;
    unsigned entry, symbol;

    for (;;) {
        mpt__inflate_fill(&in);
        entry = mpt__huffman_take(&z->literals, &in), symbol = entry & 511u;
        if (symbol < 256 && entry && in.count >= 0) {
            if (out == end) break;
            *out++ = (uint8_t)symbol;
            continue;
        }
        if (!entry || symbol > 285 || in.count < 0) error = "a literal code that does not exist";
        if (error || symbol == 256) break;
        size_t length = symbol == 285 ? 258 : 3 + mpt__inflate_number(&in, symbol - 257, 4);
        entry = mpt__huffman_take(&z->distances, &in), symbol = entry & 511u;
        if (!entry || symbol > 29) error = "a distance code that does not exist";
        if (error) break;
        size_t distance = 1 + mpt__inflate_number(&in, symbol, 2);
        if (in.count < 0 || distance > (size_t)(out - begin))
            error = "a match that reaches back before the start of the data";
        if (error) break;
        size_t room = (size_t)(end - out);
        mpt__inflate_copy(out, distance, length < room ? length : room, room);
        out += length < room ? length : room;
        if (length > room) break;
    }
    z->in = in;
    z->written = (size_t)(out - z->out);
    return error ? mpt__huffman_fail(z, entry, error) : symbol == 256;
}

static bool mpt__inflate_stored(mpt__inflate *z) {
    const uint8_t *lengths = mpt__inflate_bytes(z, 4);
    if (!lengths) return false;
    uint32_t word = mpt__load_u32(lengths);
    size_t length = word & 0xFFFFu, room = z->size - z->written;
    if (((word ^ word >> 16) & 0xFFFFu) != 0xFFFFu)
        return mpt__inflate_fail(z, "a stored block whose two lengths disagree");
    size_t n = length < room ? length : room;
    const uint8_t *bytes = mpt__inflate_bytes(z, n);
    if (!bytes) return false;
    if (n) memcpy(z->out + z->written, bytes, n);
    z->written += n;
    return n == length;
}

static bool mpt__inflate_block(mpt__inflate *z, bool *last) {
    *last = mpt__inflate_bits(z, 1) != 0;
    uint32_t type = mpt__inflate_bits(z, 2);
    if (z->error) return false;
    if (type == 3) return mpt__inflate_fail(z, "a block of unknown type");
    if (type == 0) return mpt__inflate_stored(z);
    if (type == 1) mpt__inflate_fixed_codes(z);
    return (type == 1 || mpt__inflate_dynamic_codes(z)) && mpt__inflate_codes(z);
}

/* ---- gzip members ---- */

/* The next byte of a header, -1 after an error. */
static int mpt__inflate_byte(mpt__inflate *z) {
    const uint8_t *byte = mpt__inflate_bytes(z, 1);
    return byte ? *byte : -1;
}

static bool mpt__inflate_header(mpt__inflate *z) {
    enum { HEADER_CRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16, RESERVED = 0xE0 };
    const uint8_t *begin = z->in.next, *p;
    if (mpt__inflate_byte(z) != 0x1F || mpt__inflate_byte(z) != 0x8B)
        return mpt__inflate_fail(z, begin > z->start ? "something that is not gzip follows the data"
                                                     : "this is not a gzip file");
    p = mpt__inflate_bytes(z, 8); /* method, flags, time, extra flags, operating system */
    if (!p) return false;
    int flags = p[1];
    if (p[0] != 8 || (flags & RESERVED) != 0)
        return mpt__inflate_fail(z, "a gzip header of an unknown kind");
    if ((flags & EXTRA) && (p = mpt__inflate_bytes(z, 2)) != NULL)
        mpt__inflate_bytes(z, (size_t)p[0] | (size_t)p[1] << 8);
    for (int flag = NAME; flag <= COMMENT; flag *= 2)
        while ((flags & flag) && mpt__inflate_byte(z) > 0) {}
    uint32_t crc = mpt__crc32(z->crc_table, begin, (size_t)(z->in.next - begin));
    if ((flags & HEADER_CRC) && (p = mpt__inflate_bytes(z, 2)) != NULL &&
        ((crc ^ p[0]) & 255u || (crc >> 8 ^ p[1]) & 255u))
        return mpt__inflate_fail(z, "the checksum of the gzip header is wrong");
    return !z->error;
}

/* A header, blocks, then the CRC32 and the size (modulo 2^32) of what they gave. */
static bool mpt__inflate_member(mpt__inflate *z) {
    bool last = false;
    z->member = z->written;
    if (!mpt__inflate_header(z)) return false;
    while (!last)
        if (!mpt__inflate_block(z, &last)) return false;
    const uint8_t *trailer = mpt__inflate_bytes(z, 8);
    size_t size = z->written - z->member;
    if (!trailer) return false;
    if (mpt__load_u32(trailer) != mpt__crc32(z->crc_table, z->out + z->member, size))
        return mpt__inflate_fail(z, "the data does not match its checksum");
    if (mpt__load_u32(trailer + 4) != (uint32_t)size)
        return mpt__inflate_fail(z, "the data does not match its announced size");
    return true;
}

static void mpt__inflate_begin(
    mpt__inflate *z, const void *data, size_t n, void *out, size_t size) {
    mpt__zero(*z);
    mpt__crc32_init(z->crc_table);
    z->start = z->in.next = (const uint8_t *)data;
    z->in.end = z->start + n;
    z->out = (uint8_t *)out;
    z->size = size;
}

/* Whether only zeros are left, with which files are padded to whole blocks. */
static bool mpt__inflate_ended(const mpt__inflate *z) {
    const uint8_t *next = z->in.next;
    while (next < z->in.end && *next == 0) next++;
    return next == z->in.end;
}

/* Decodes a gzip file of n bytes, of one member or many, into out[size]; z->written bytes came.
   False when z->error says what is wrong, and with that NULL when there is more than `size`. */
static bool mpt__inflate_run(mpt__inflate *z, const void *data, size_t n, void *out, size_t size) {
    mpt__inflate_begin(z, data, n, out, size);
    do
        if (!mpt__inflate_member(z)) return false;
    while (!mpt__inflate_ended(z));
    return true;
}

/* The same for blocks alone, as in zip files; the caller knows size and checksum. */
static bool mpt__inflate_blocks(
    mpt__inflate *z, const void *data, size_t n, void *out, size_t size) {
    bool last = false;
    mpt__inflate_begin(z, data, n, out, size);
    while (!last)
        if (!mpt__inflate_block(z, &last)) return false;
    return z->written == size;
}

#endif
