/* ---------------------------------------------------------------------------------------------
 * 17_inflate.c: decompression of gzip files (RFC 1951 and 1952), streaming and bounds-checked.
 *
 * Pure functions: all state, the 32 KiB window included, is in one struct of the caller's, nothing
 * is allocated, and input comes through a callback. Every length, distance and code table is
 * checked before use; CRC32 and size of each member are checked at its end. Data handed out before
 * the end was not yet covered by a checksum: trust it once mpt__inflate_finish has said so.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__17_INFLATE_INCLUDED
#define MPT__17_INFLATE_INCLUDED

#include "10_base.c"

#define MPT__INFLATE_WINDOW 32768u
#define MPT__INFLATE_INPUT 8192u
#define MPT__INFLATE_MAX_MATCH 258u
#define MPT__HUFFMAN_MAX_BITS 15
/* Codes up to this length are found by one look-up; 9 to 12 were equally fast on MNIST and text. */
#define MPT__HUFFMAN_FAST_BITS 10
#define MPT__HUFFMAN_SYMBOLS 288

/* ---- CRC32 (reflected 0xEDB88320), four bytes per turn ---- */

typedef struct mpt__crc32_table {
    uint32_t row[4][256];
} mpt__crc32_table;

static void mpt__crc32_init(mpt__crc32_table *t) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1u)));
        t->row[0][i] = c;
    }
    for (int k = 1; k < 4; k++)
        for (uint32_t i = 0; i < 256; i++)
            t->row[k][i] = (t->row[k - 1][i] >> 8) ^ t->row[0][t->row[k - 1][i] & 255u];
}

/* Continues `crc` (0 at the start) over n bytes. */
static uint32_t mpt__crc32(const mpt__crc32_table *t, uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t c = ~crc;
    for (; n >= 4; n -= 4, p += 4) {
        c ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        c = t->row[3][c & 255u] ^ t->row[2][c >> 8 & 255u] ^ t->row[1][c >> 16 & 255u] ^
            t->row[0][c >> 24];
    }
    for (; n > 0; n--, p++) c = (c >> 8) ^ t->row[0][(c ^ *p) & 255u];
    return ~c;
}

/* ---- state ---- */

/* Reads up to n bytes into buf and returns how many: 0 at the end, MPT__INFLATE_READ_FAILED when
 * the source is broken. A short count is not the end. */
typedef size_t (*mpt__inflate_read_fn)(void *user, void *buf, size_t n);
#define MPT__INFLATE_READ_FAILED ((size_t)-1)

/* A canonical Huffman code. An entry is length << 9 | symbol; 0 means no code that short. */
typedef struct mpt__huffman {
    uint16_t fast[1 << MPT__HUFFMAN_FAST_BITS];
    uint16_t count[MPT__HUFFMAN_MAX_BITS + 1]; /* codes of each length */
    uint16_t symbol[MPT__HUFFMAN_SYMBOLS];     /* in order of their codes */
} mpt__huffman;

/* Unread input: the low `count` bits of `bits` first, then next..end. Bits above `count` are either
 * zero or already equal to what follows at `next`. A negative count means more was taken than there
 * was. */
typedef struct mpt__bit_input {
    uint64_t bits;
    const uint8_t *next, *end;
    int count;
} mpt__bit_input;

typedef enum mpt__inflate_state {
    MPT__INFLATE_MEMBER, /* a gzip header comes next, or for a later member the end of the input */
    MPT__INFLATE_BLOCK,
    MPT__INFLATE_STORED,
    MPT__INFLATE_CODES,
    MPT__INFLATE_TRAILER,
    MPT__INFLATE_DONE
} mpt__inflate_state;

typedef struct mpt__inflate {
    const char *error;     /* static text, NULL while all is well; the first one stays */
    uint64_t error_offset; /* byte of the compressed input at which it was noticed */

    mpt__inflate_read_fn read;
    void *user;
    mpt__bit_input in;
    uint64_t loaded; /* bytes read from the source so far */

    mpt__inflate_state state;
    bool last_block, source_ended;
    bool later_member;    /* the first gzip header has been read */
    uint32_t stored_left; /* bytes left of a stored block */
    uint32_t crc;         /* of the member's bytes up to `summed` */

    /* Positions in the whole output: handed out, checksummed, decoded, start of this member. */
    uint64_t taken, summed, out, member_start;

    mpt__crc32_table crc_table;
    mpt__huffman literals, distances;
    uint8_t input[MPT__INFLATE_INPUT];
    uint8_t window[MPT__INFLATE_WINDOW]; /* output byte i lies at i % MPT__INFLATE_WINDOW */
} mpt__inflate;

/* ---- input ---- */

/* Records the first error and where the input stood. Always returns false. */
static bool mpt__inflate_fail(mpt__inflate *z, const char *error) {
    if (!z->error) {
        uint64_t unread = (uint64_t)(z->in.end - z->in.next);
        unread += z->in.count > 0 ? (uint64_t)z->in.count / 8u : 0u;
        z->error = error;
        z->error_offset = z->loaded - unread;
    }
    return false;
}

/* The same at the end of the input, whatever bits are left over. */
static bool mpt__inflate_fail_at_end(mpt__inflate *z, const char *error) {
    z->in.next = z->in.end;
    z->in.count = 0;
    return mpt__inflate_fail(z, error);
}

static bool mpt__inflate_ends_early(mpt__inflate *z) {
    return mpt__inflate_fail_at_end(z, "the compressed data ends early");
}

/* Reads the next piece of input once all of the last one is in z->in.bits. False at the end. */
static bool mpt__inflate_load(mpt__inflate *z) {
    if (z->source_ended) return false;
    size_t n = z->read(z->user, z->input, sizeof z->input);
    z->source_ended = n == 0 || n > sizeof z->input;
    if (z->source_ended)
        return n == 0 ? false : mpt__inflate_fail_at_end(z, "reading the file failed");
    z->loaded += n;
    z->in.next = z->input;
    z->in.end = z->input + n;
    return true;
}

/* Makes at least 56 bits available, or all there are. */
static void mpt__inflate_fill(mpt__inflate *z) {
    while (z->in.count < 56) {
        if (z->in.next == z->in.end && !mpt__inflate_load(z)) return;
        z->in.bits |= (uint64_t)*z->in.next++ << z->in.count;
        z->in.count += 8;
    }
}

/* Takes n <= 32 bits, least significant first. At the end of the input: fails and gives 0. */
static uint32_t mpt__inflate_bits(mpt__inflate *z, int n) {
    mpt__inflate_fill(z);
    if (z->in.count < n) {
        mpt__inflate_ends_early(z);
        return 0;
    }
    uint32_t value = (uint32_t)(z->in.bits & (((uint64_t)1 << n) - 1u));
    z->in.bits >>= n;
    z->in.count -= n;
    return value;
}

/* ---- Huffman codes ---- */

/* Builds the code whose symbol i has lengths[i] bits, 0 for none. False when there are more or
 * fewer codes than the lengths allow; on request a lone code of one bit, or none at all, is let by,
 * as zlib does. */
static bool mpt__huffman_build(mpt__huffman *h, const uint8_t *lengths, int n, bool allow_lone) {
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    int used = n - h->count[0], left = 1;
    h->count[0] = 0;
    for (int len = 1; len <= MPT__HUFFMAN_MAX_BITS; len++) {
        left = 2 * left - h->count[len];
        if (left < 0) return false;
    }
    if (left > 0 && !(allow_lone && used == h->count[1])) return false;

    unsigned index[MPT__HUFFMAN_MAX_BITS + 2] = {0}, code[MPT__HUFFMAN_MAX_BITS + 2] = {0};
    for (int len = 1; len <= MPT__HUFFMAN_MAX_BITS; len++) {
        index[len + 1] = index[len] + h->count[len];
        code[len + 1] = (code[len] + h->count[len]) << 1;
    }
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

/* The entry of a code longer than the fast table's, bit by bit; 0 when there is none. */
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

static inline unsigned mpt__huffman_find(const mpt__huffman *h, uint64_t bits) {
    unsigned entry = h->fast[bits & ((1u << MPT__HUFFMAN_FAST_BITS) - 1u)];
    return entry ? entry : mpt__huffman_slow(h, bits);
}

/* Takes one symbol outside the hot loop; -1 on failure. */
static int mpt__inflate_symbol(mpt__inflate *z, const mpt__huffman *h) {
    mpt__inflate_fill(z);
    unsigned entry = mpt__huffman_find(h, z->in.bits);
    int length = (int)(entry >> 9);
    if (length > z->in.count || (!entry && z->in.count < MPT__HUFFMAN_MAX_BITS))
        return mpt__inflate_ends_early(z), -1;
    if (!entry) return mpt__inflate_fail(z, "a Huffman code that does not exist"), -1;
    z->in.bits >>= length;
    z->in.count -= length;
    return (int)(entry & 511u);
}

static bool mpt__inflate_fixed_codes(mpt__inflate *z) {
    uint8_t lengths[MPT__HUFFMAN_SYMBOLS];
    for (int i = 0; i < MPT__HUFFMAN_SYMBOLS; i++)
        lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    mpt__huffman_build(&z->literals, lengths, MPT__HUFFMAN_SYMBOLS, false);
    memset(lengths, 5, 32);
    return mpt__huffman_build(&z->distances, lengths, 32, false);
}

/* Reads the run-length coded code lengths of a dynamic block (RFC 1951, 3.2.7). */
static bool mpt__inflate_code_lengths(mpt__inflate *z, uint8_t *lengths, int total) {
    for (int i = 0; i < total;) {
        int symbol = mpt__inflate_symbol(z, &z->literals), repeat = 1;
        uint8_t value = 0;
        if (symbol < 0) return false;
        if (symbol < 16) {
            value = (uint8_t)symbol;
        } else if (symbol == 16) {
            if (i == 0) return mpt__inflate_fail(z, "a repeated code length with none before it");
            value = lengths[i - 1];
            repeat = 3 + (int)mpt__inflate_bits(z, 2);
        } else {
            repeat =
                symbol == 17 ? 3 + (int)mpt__inflate_bits(z, 3) : 11 + (int)mpt__inflate_bits(z, 7);
        }
        if (z->error) return false;
        if (repeat > total - i) return mpt__inflate_fail(z, "more code lengths than announced");
        memset(lengths + i, value, (size_t)repeat);
        i += repeat;
    }
    return true;
}

static bool mpt__inflate_dynamic_codes(mpt__inflate *z) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
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

/* ---- blocks ---- */

/* Copies a match of `length` bytes from `distance` back to position `out`. */
static inline void mpt__inflate_copy(uint8_t *window, uint64_t out, unsigned distance,
                                     unsigned length) {
    const unsigned mask = MPT__INFLATE_WINDOW - 1u;
    unsigned to = (unsigned)out & mask, from = (to - distance) & mask;
    unsigned end = (to > from ? to : from) + length;
    if (end > MPT__INFLATE_WINDOW) {
        for (unsigned i = 0; i < length; i++) window[(to + i) & mask] = window[(from + i) & mask];
    } else if (to >= from + length || from >= to + length) {
        memcpy(window + to, window + from, length);
    } else if (distance == 1) {
        memset(window + to, window[from], length);
    } else {
        for (unsigned i = 0; i < length; i++) window[to + i] = window[from + i];
    }
}

/* Decodes until the block ends or the window holds as much unread output as it can. */
static bool mpt__inflate_codes(mpt__inflate *z) {
    static const uint16_t length_base[29] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                             15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                             67, 83, 99, 115, 131, 163, 195, 227, 258};
    static const uint8_t length_extra[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                             2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    static const uint16_t distance_base[30] = {
        1,   2,   3,   4,   5,   7,    9,    13,   17,   25,   33,   49,   65,    97,    129,
        193, 257, 385, 513, 769, 1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
    const uint64_t limit = z->taken + MPT__INFLATE_WINDOW - MPT__INFLATE_MAX_MATCH;
    mpt__bit_input in = z->in; /* in registers: stores to the window could alias *z */
    uint64_t out = z->out;
    const char *error = NULL;
    unsigned entry = 0;

    while (out <= limit) {
        if (in.end - in.next >= 8) {
            const uint8_t *p = in.next;
            uint64_t low =
                (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
            uint64_t high =
                (uint64_t)p[4] | (uint64_t)p[5] << 8 | (uint64_t)p[6] << 16 | (uint64_t)p[7] << 24;
            in.bits |= (low | high << 32) << in.count;
            in.next += (63 - in.count) >> 3;
            in.count |= 56;
        } else {
            z->in = in;
            mpt__inflate_fill(z);
            in = z->in;
        }
        entry = mpt__huffman_find(&z->literals, in.bits);
        unsigned symbol = entry & 511u;
        in.bits >>= entry >> 9;
        in.count -= (int)(entry >> 9);
        if (!entry || symbol > 285 || in.count < 0) {
            error = "a literal code that does not exist";
            break;
        }
        if (symbol < 256) {
            z->window[out++ & (MPT__INFLATE_WINDOW - 1u)] = (uint8_t)symbol;
            continue;
        }
        if (symbol == 256) {
            z->state = z->last_block ? MPT__INFLATE_TRAILER : MPT__INFLATE_BLOCK;
            break;
        }
        unsigned extra = length_extra[symbol - 257];
        unsigned length = length_base[symbol - 257] + (unsigned)(in.bits & ((1u << extra) - 1u));
        in.bits >>= extra;
        in.count -= (int)extra;
        entry = mpt__huffman_find(&z->distances, in.bits);
        symbol = entry & 511u;
        if (!entry || symbol > 29) {
            error = "a distance code that does not exist";
            break;
        }
        in.bits >>= entry >> 9;
        extra = symbol < 2 ? 0 : symbol / 2 - 1;
        unsigned distance = distance_base[symbol] + (unsigned)(in.bits & ((1u << extra) - 1u));
        in.bits >>= extra;
        in.count -= (int)((entry >> 9) + extra);
        if (in.count < 0 || distance > out - z->member_start) {
            error = "a match that reaches back before the start of the data";
            break;
        }
        mpt__inflate_copy(z->window, out, distance, length);
        out += length;
    }
    z->in = in;
    z->out = out;
    if (error && (in.count < 0 || (!entry && in.count < MPT__HUFFMAN_MAX_BITS)))
        return mpt__inflate_ends_early(z);
    return error ? mpt__inflate_fail(z, error) : true;
}

/* Copies as much of a stored block as the window can take. */
static bool mpt__inflate_stored(mpt__inflate *z) {
    while (z->stored_left > 0 && z->out - z->taken < MPT__INFLATE_WINDOW) {
        if (z->in.count > 0) { /* whole bytes left over from reading bits */
            z->window[z->out++ % MPT__INFLATE_WINDOW] = (uint8_t)z->in.bits;
            z->in.bits >>= 8;
            z->in.count -= 8;
            z->stored_left--;
            continue;
        }
        z->in.bits = 0; /* what was read ahead lies at next, too */
        if (z->in.next == z->in.end && !mpt__inflate_load(z)) return mpt__inflate_ends_early(z);
        size_t at = (size_t)(z->out % MPT__INFLATE_WINDOW), n = MPT__INFLATE_WINDOW - at;
        size_t room = MPT__INFLATE_WINDOW - (size_t)(z->out - z->taken);
        size_t have = (size_t)(z->in.end - z->in.next);
        n = n < room ? n : room;
        n = n < have ? n : have;
        n = n < z->stored_left ? n : z->stored_left;
        memcpy(z->window + at, z->in.next, n);
        z->in.next += n;
        z->out += n;
        z->stored_left -= (uint32_t)n;
    }
    if (z->stored_left == 0) z->state = z->last_block ? MPT__INFLATE_TRAILER : MPT__INFLATE_BLOCK;
    return true;
}

/* Drops the bits up to the next byte boundary. */
static void mpt__inflate_align(mpt__inflate *z) {
    z->in.bits >>= z->in.count & 7;
    z->in.count &= ~7;
}

static bool mpt__inflate_block_header(mpt__inflate *z) {
    z->last_block = mpt__inflate_bits(z, 1) != 0;
    uint32_t type = mpt__inflate_bits(z, 2);
    if (z->error) return false;
    if (type == 3) return mpt__inflate_fail(z, "a block of unknown type");
    if (type != 0) {
        z->state = MPT__INFLATE_CODES;
        return type == 1 ? mpt__inflate_fixed_codes(z) : mpt__inflate_dynamic_codes(z);
    }
    mpt__inflate_align(z);
    z->stored_left = mpt__inflate_bits(z, 16);
    uint32_t complement = mpt__inflate_bits(z, 16);
    z->state = MPT__INFLATE_STORED;
    if (!z->error && (z->stored_left ^ complement) != 0xFFFFu)
        return mpt__inflate_fail(z, "a stored block whose two lengths disagree");
    return !z->error;
}

/* ---- gzip members ---- */

/* One byte of a gzip header, summed for the header's own checksum; 0 after an error. */
static uint8_t mpt__inflate_header_byte(mpt__inflate *z) {
    uint8_t byte = (uint8_t)mpt__inflate_bits(z, 8);
    z->crc = mpt__crc32(&z->crc_table, z->crc, &byte, 1);
    return byte;
}

/* Reads a gzip header, or finds that the input ended well after at least one member. */
static bool mpt__inflate_member(mpt__inflate *z) {
    enum { HEADER_CRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16, RESERVED = 0xE0 };
    mpt__inflate_fill(z);
    if (z->later_member && z->in.count == 0 && !z->error) {
        z->state = MPT__INFLATE_DONE;
        return true;
    }
    z->crc = 0;
    if (mpt__inflate_header_byte(z) != 0x1F || mpt__inflate_header_byte(z) != 0x8B)
        return mpt__inflate_fail(z, z->later_member ? "something that is not gzip follows the data"
                                                    : "this is not a gzip file");
    uint8_t method = mpt__inflate_header_byte(z), flags = mpt__inflate_header_byte(z);
    for (int i = 0; i < 6; i++) /* time, extra flags, operating system */
        mpt__inflate_header_byte(z);
    if (!z->error && (method != 8 || (flags & RESERVED) != 0))
        return mpt__inflate_fail(z, "a gzip header of an unknown kind");
    if (flags & EXTRA) {
        unsigned n = mpt__inflate_header_byte(z);
        n |= (unsigned)mpt__inflate_header_byte(z) << 8;
        while (n-- > 0 && !z->error) mpt__inflate_header_byte(z);
    }
    for (int flag = NAME; flag <= COMMENT; flag *= 2)
        while ((flags & flag) && mpt__inflate_header_byte(z) != 0) {}
    uint32_t crc = z->crc & 0xFFFFu;
    if ((flags & HEADER_CRC) && mpt__inflate_bits(z, 16) != crc)
        mpt__inflate_fail(z, "the checksum of the gzip header is wrong");
    z->crc = 0;
    z->later_member = true;
    z->member_start = z->out;
    z->state = MPT__INFLATE_BLOCK;
    return !z->error;
}

/* Checks the CRC32 and the size (modulo 2^32) that end a member. */
static bool mpt__inflate_trailer(mpt__inflate *z) {
    mpt__inflate_align(z);
    uint32_t crc = mpt__inflate_bits(z, 32), size = mpt__inflate_bits(z, 32);
    if (!z->error && crc != z->crc)
        return mpt__inflate_fail(z, "the data does not match its checksum");
    if (!z->error && size != (uint32_t)(z->out - z->member_start))
        return mpt__inflate_fail(z, "the data does not match its announced size");
    z->state = MPT__INFLATE_MEMBER;
    return !z->error;
}

/* ---- interface ---- */

/* Begins a stream. The struct may hold anything before; it owns nothing, so nothing ends it. */
static void mpt__inflate_begin(mpt__inflate *z, mpt__inflate_read_fn read, void *user) {
    memset(z, 0, sizeof *z);
    z->read = read;
    z->user = user;
    z->in.next = z->in.end = z->input;
    mpt__crc32_init(&z->crc_table);
}

/* One step of decoding, then the checksum of what it gave. False on error. */
static bool mpt__inflate_step(mpt__inflate *z) {
    static bool (*const steps[])(mpt__inflate *) = {mpt__inflate_member, mpt__inflate_block_header,
                                                    mpt__inflate_stored, mpt__inflate_codes,
                                                    mpt__inflate_trailer};
    bool ok = steps[z->state](z);
    while (z->summed < z->out) {
        size_t at = (size_t)(z->summed % MPT__INFLATE_WINDOW), n = MPT__INFLATE_WINDOW - at;
        n = n < z->out - z->summed ? n : (size_t)(z->out - z->summed);
        z->crc = mpt__crc32(&z->crc_table, z->crc, z->window + at, n);
        z->summed += n;
    }
    return ok;
}

/* Decodes up to n bytes into dst and returns how many. Fewer than n means the end of the data or,
 * when z->error is set, a fault; what came before a fault is not to be used. */
static size_t mpt__inflate_read(mpt__inflate *z, void *dst, size_t n) {
    size_t done = 0;
    while (done < n && !z->error) {
        size_t at = (size_t)(z->taken % MPT__INFLATE_WINDOW), part = MPT__INFLATE_WINDOW - at;
        part = part < z->out - z->taken ? part : (size_t)(z->out - z->taken);
        part = part < n - done ? part : n - done;
        if (part == 0) {
            if (z->state == MPT__INFLATE_DONE || !mpt__inflate_step(z)) break;
            continue;
        }
        memcpy((uint8_t *)dst + done, z->window + at, part);
        z->taken += part;
        done += part;
    }
    return done;
}

/* True when the stream ends exactly here and every checksum was right; sets z->error otherwise. */
static bool mpt__inflate_finish(mpt__inflate *z) {
    uint8_t extra;
    if (mpt__inflate_read(z, &extra, 1) != 0)
        return mpt__inflate_fail(z, "more data than expected");
    return !z->error;
}

#endif
