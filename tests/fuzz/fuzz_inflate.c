/* fuzz_inflate.c: our inflate beside zlib's. The first byte says what the rest is: the blocks of a
   raw stream, or a gzip file of one member or many. The mutator has zlib pack texts by all its
   levels, strategies, windows and ways to flush, or writes blocks that no packer makes, of drawn
   codes; then it damages what came of it and cuts it.

   What zlib unpacks, we do, to the same bytes; what zlib refuses, we refuse, with as much before it
   and nothing else. Two differences: of a stored block that is cut zlib gives the bytes that are
   there and we none; zeros behind a member are padding, as for gzip and not for zlib's inflate. */
#include "fuzz.h"

#include <zlib.h>

enum { MAX_SIZE = 1 << 16, ROOM = 1 << 18, RAW = 1, TIGHT = 2, TEXT_SIZE = 12000 };

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static uint8_t theirs[ROOM];

/* ==== The two beside each other ==== */

typedef enum { WHOLE, REFUSED, FULL } outcome; /* FULL: there is more than room for it */

/* Whether what is left is gzip's padding. */
static bool only_zeros(const uint8_t *data, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (data[i]) return false;
    return true;
}

/* What zlib makes of a stream, in theirs[]: members one after the other, as gzip has it. */
static outcome their_inflate(const uint8_t *data, size_t size, bool raw, size_t room,
                             size_t *written) {
    z_stream z;
    int code;
    uint8_t none;
    memset(&z, 0, sizeof z);
    PROMISE(inflateInit2(&z, raw ? -15 : 31) == Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data, z.avail_in = (uInt)size;
    z.next_out = room ? theirs : &none, z.avail_out = (uInt)room;
    do {
        code = inflate(&z, Z_FINISH);
        if (code == Z_STREAM_END && (raw || only_zeros(z.next_in, z.avail_in))) break;
    } while (code == Z_STREAM_END && inflateReset(&z) == Z_OK);
    *written = room - z.avail_out;
    const bool full = code == Z_BUF_ERROR && z.avail_out == 0;
    inflateEnd(&z);
    return code == Z_STREAM_END ? WHOLE : full ? FULL : REFUSED;
}

/* Both in rooms of exactly these sizes, so that a sanitizer sees a byte too far. */
static void compare(const uint8_t *data, size_t size, bool raw, size_t room) {
    static mpt__inflate z;
    size_t written;
    const outcome expected = their_inflate(data, size, raw, room, &written);
    /* Blocks alone come with their size; it is asked for where zlib could tell it. */
    const size_t ask = raw && expected == WHOLE ? written : room;
    uint8_t *ours = (uint8_t *)malloc(ask ? ask : 1);
    PROMISE(ours != NULL);
    const bool good = raw ? mpt__inflate_blocks(&z, data, size, ours, ask)
                          : mpt__inflate_run(&z, data, size, ours, ask);
    PROMISE(z.written <= ask && z.written <= written);
    PROMISE(z.written == 0 || memcmp(ours, theirs, z.written) == 0);
    PROMISE(good == (expected == WHOLE));
    PROMISE(!good || (z.error == NULL && z.written == written));
    if (expected == REFUSED) {
        PROMISE(z.error != NULL && z.error_offset <= size);
        PROMISE(z.written == written || strstr(z.error, "ends early"));
    }
    /* At the last byte of the room zlib asks for more of it where we still see an error. */
    if (expected == FULL) PROMISE(z.error != NULL || z.written == room);
    free(ours);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 || size > MAX_SIZE) return 0;
    const int flags = data[0];
    uint8_t *exact = (uint8_t *)malloc(size);
    PROMISE(exact != NULL);
    memcpy(exact, data + 1, size - 1);
    compare(exact, size - 1, (flags & RAW) != 0, flags & TIGHT ? (size_t)(flags >> 2) * 64 : ROOM);
    free(exact);
    return 0;
}

/* ==== Streams ==== */

static uint32_t drawn(uint64_t *state, uint32_t below) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33) % below;
}

/* Texts of every kind: noise, words that come again from near and far, runs, few letters. */
static size_t make_text(uint64_t *state, uint8_t *text) {
    const size_t n = drawn(state, 4) ? drawn(state, 400) : drawn(state, TEXT_SIZE);
    const uint32_t letters = 1 + drawn(state, drawn(state, 2) ? 256 : 6);
    const uint32_t again = drawn(state, 30), far_back = drawn(state, 2);
    for (size_t i = 0, run; i < n; i += run) {
        run = 1;
        text[i] = (uint8_t)drawn(state, letters);
        if (i == 0 || drawn(state, 30) >= again) continue;
        const size_t back = 1 + drawn(state, far_back ? (uint32_t)i : i < 20 ? (uint32_t)i : 20);
        run = 3 + drawn(state, drawn(state, 8) ? 9 : 300);
        if (run > n - i) run = n - i;
        for (size_t k = 0; k < run; k++) text[i + k] = text[i + k - back];
    }
    return n;
}

/* One member, or blocks alone, by drawn settings; returns its size, 0 where there is no room. */
static size_t pack(uint64_t *state, bool raw, uint8_t *to, size_t room) {
    static uint8_t text[TEXT_SIZE];
    static const int strategies[] = {Z_DEFAULT_STRATEGY, Z_FILTERED, Z_HUFFMAN_ONLY, Z_RLE,
                                     Z_FIXED};
    static const int flushes[] = {Z_NO_FLUSH, Z_PARTIAL_FLUSH, Z_SYNC_FLUSH, Z_FULL_FLUSH, Z_BLOCK};
    Bytef name[] = "name", comment[] = "a comment", extra[] = "extra";
    gz_header head;
    z_stream z;
    memset(&z, 0, sizeof z);
    memset(&head, 0, sizeof head);
    const int window = 9 + (int)drawn(state, 7), level = (int)drawn(state, 10);
    PROMISE(deflateInit2(&z, level, Z_DEFLATED, raw ? -window : 16 + window,
                         1 + (int)drawn(state, 9), strategies[drawn(state, 5)]) == Z_OK);
    if (drawn(state, 2)) head.name = name;
    if (drawn(state, 2)) head.comment = comment;
    if (drawn(state, 2)) head.extra = extra, head.extra_len = drawn(state, sizeof extra);
    head.hcrc = (int)drawn(state, 2), head.text = (int)drawn(state, 2);
    if (!raw && drawn(state, 2)) PROMISE(deflateSetHeader(&z, &head) == Z_OK);
    const size_t n = make_text(state, text);
    z.next_in = text, z.next_out = to, z.avail_out = (uInt)room;
    const uint32_t most = 1 + drawn(state, TEXT_SIZE);
    int code = Z_OK;
    for (size_t at = 0, take; at < n && code == Z_OK && z.avail_out; at += take) {
        take = n - at < most ? n - at : most;
        z.avail_in += (uInt)take;
        code = deflate(&z, flushes[drawn(state, 5)]);
        if (drawn(state, 8) == 0)
            deflateParams(&z, (int)drawn(state, 10), strategies[drawn(state, 5)]);
    }
    code = deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return code == Z_STREAM_END ? room - z.avail_out : 0;
}

/* ==== Blocks that no packer makes ==== */

typedef struct bits {
    uint8_t *to;
    size_t room, count; /* in bits */
} bits;

/* Least significant first. */
static void put_bits(bits *b, uint32_t value, int n) {
    for (int i = 0; i < n && b->count < b->room; i++, b->count++) {
        if (b->count % 8 == 0) b->to[b->count / 8] = 0;
        b->to[b->count / 8] |= (uint8_t)((value >> i & 1) << b->count % 8);
    }
}

/* The code of a symbol, canonical, most significant bit first. */
static void put_symbol(bits *b, const uint8_t *lengths, int n, int symbol) {
    uint32_t code = 0;
    for (int length = 1; length <= lengths[symbol]; length++) {
        code <<= 1;
        for (int i = 0; i < n; i++)
            code += lengths[i] == length && (length < lengths[symbol] || i < symbol);
    }
    for (int k = lengths[symbol]; k > 0; k--) put_bits(b, code >> (k - 1) & 1, 1);
}

/* Gives those of the symbols a code that are `wanted`: a complete one, of at most `most` bits, or
   rarely one that is wrong by a length. */
static void draw_code(uint64_t *state, uint8_t *lengths, const bool *wanted, int n, int most) {
    uint8_t leaf[320] = {0};
    int symbols = 0, leaves = 1;
    for (int i = 0; i < n; i++) symbols += wanted[i];
    while (leaves < symbols) {
        const uint32_t k = drawn(state, (uint32_t)leaves);
        if (leaf[k] < most) leaf[leaves++] = ++leaf[k];
    }
    if (symbols == 1) leaf[0] = 1;
    for (int i = 0; i < n; i++) {
        const uint32_t k = leaves > 0 ? drawn(state, (uint32_t)leaves) : 0;
        lengths[i] = wanted[i] ? leaf[k] : 0;
        if (wanted[i]) leaf[k] = leaf[--leaves];
    }
    if (drawn(state, 12) == 0)
        lengths[drawn(state, (uint32_t)n)] = (uint8_t)drawn(state, (uint32_t)most + 1);
}

/* The head of a dynamic block: lengths of codes by a code of their own. */
static void put_lengths(uint64_t *state, bits *b, const uint8_t *lengths, int total) {
    static const uint8_t order[19] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                      11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t symbols[330], own[19];
    int more[330], count = 0, last = 19;
    bool used[19] = {false};
    for (int i = 0, run; i < total; i += run) {
        int same = 1;
        while (i + same < total && lengths[i + same] == lengths[i]) same++;
        const bool repeats = i > 0 && lengths[i] == lengths[i - 1] && lengths[i] > 0;
        run = same < 3 || drawn(state, 4) == 0 || (lengths[i] > 0 && !repeats) ? 1 : same;
        if (run > 1 && repeats) run = run < 6 ? run : 6;
        if (run > 138) run = 138;
        symbols[count] = (uint8_t)(run == 1 ? lengths[i] : repeats ? 16 : run < 11 ? 17 : 18);
        more[count] = run < 11 || symbols[count] == 16 ? run - 3 : run - 11;
        if (drawn(state, 400) == 0) symbols[count] = (uint8_t)drawn(state, 19);
        used[symbols[count++]] = true;
    }
    draw_code(state, own, used, 19, 7);
    while (last > 4 && own[order[last - 1]] == 0) last--;
    put_bits(b, (uint32_t)last - 4, 4);
    for (int i = 0; i < last; i++) put_bits(b, own[order[i]], 3);
    for (int i = 0; i < count; i++) {
        put_symbol(b, own, 19, symbols[i]);
        if (symbols[i] > 15)
            put_bits(b, (uint32_t)more[i], symbols[i] == 16 ? 2 : symbols[i] == 17 ? 3 : 7);
    }
}

/* Symbols at random, matches that mostly reach back to where something is, and the end. */
static void put_body(uint64_t *state, bits *b, const uint8_t *literals, int n,
                     const uint8_t *distances, int n_distances) {
    size_t out = 0;
    const uint32_t matches = drawn(state, 4);
    for (uint32_t left = drawn(state, drawn(state, 20) ? 60 : 900); left > 0; left--) {
        const int from = matches && n > 257 && drawn(state, 4) < matches ? 257 : 0;
        const int symbol = from + (int)drawn(state, (uint32_t)(from ? n - 257 : n < 256 ? n : 256));
        int distance = (int)drawn(state, (uint32_t)n_distances);
        if (!literals[symbol]) continue;
        if (symbol > 256 && drawn(state, 60) && distance > 3 && (size_t)3 << (distance / 2) > out)
            continue;
        if (symbol > 256 && !distances[distance]) continue;
        put_symbol(b, literals, n, symbol);
        out += symbol < 256 ? 1 : 3;
        if (symbol < 257) continue;
        if (symbol > 264 && symbol < 285) put_bits(b, drawn(state, 32), (symbol - 261) / 4);
        put_symbol(b, distances, n_distances, distance);
        if (distance > 3) put_bits(b, drawn(state, 1 << 13), distance / 2 - 1);
        if (symbol > 264) out += symbol == 285 ? 255 : 7;
    }
    if (drawn(state, 20)) put_symbol(b, literals, n, 256);
}

/* Some blocks; returns their bytes. */
static size_t make_blocks(uint64_t *state, uint8_t *to, size_t room) {
    bits b = {to, 8 * room, 0};
    for (uint32_t left = 1 + drawn(state, 3); left > 0; left--) {
        uint8_t lengths[320];
        bool wanted[320] = {false};
        const bool dynamic = drawn(state, 4) > 0;
        const int n = dynamic ? 257 + (int)drawn(state, drawn(state, 9) ? 30 : 32) : 288;
        const int m = dynamic ? 1 + (int)drawn(state, drawn(state, 9) ? 30 : 32) : 32;
        const uint32_t some = drawn(state, 9);
        put_bits(&b, (uint32_t)(left == 1) | (dynamic ? 4 : 2), 3);
        for (int i = 0; i < n + m; i++) wanted[i] = drawn(state, 8) < some;
        wanted[256] = drawn(state, 40) != 0;
        for (int i = 0; i < n && !dynamic; i++)
            lengths[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
        if (dynamic) {
            draw_code(state, lengths, wanted, n, 15);
            draw_code(state, lengths + n, wanted + n, m, 15);
            put_bits(&b, (uint32_t)n - 257, 5);
            put_bits(&b, (uint32_t)m - 1, 5);
            put_lengths(state, &b, lengths, n + m);
        } else {
            memset(lengths + n, 5, 32);
        }
        put_body(state, &b, lengths, n, lengths + n, m);
    }
    return (b.count + 7) / 8;
}

/* An input as LLVMFuzzerTestOneInput has it, mostly of whole streams. */
static size_t make_input(uint64_t *state, uint8_t *data, size_t room) {
    size_t n = 1;
    const uint32_t kind = drawn(state, 3);
    const bool raw = kind > 0;
    data[0] = (uint8_t)((raw ? RAW : 0) | (drawn(state, 8) ? 0 : TIGHT) | drawn(state, 64) << 2);
    if (kind == 2) return n + make_blocks(state, data + n, room - n);
    for (uint32_t left = raw ? 1 : 1 + drawn(state, 3); left > 0 && n < room; left--)
        n += pack(state, raw, data + n, room - n);
    for (uint32_t zeros = drawn(state, 6) ? 0 : drawn(state, 600); zeros > 0 && n < room; zeros--)
        data[n++] = 0;
    return n;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed) {
    uint64_t state = seed;
    if (drawn(&state, 3) == 0) size = make_input(&state, data, max_size);
    for (uint32_t flips = drawn(&state, 4); flips > 0 && size > 1; flips--)
        data[1 + drawn(&state, (uint32_t)size - 1)] ^= (uint8_t)(1u << drawn(&state, 8));
    if (drawn(&state, 6) == 0 && size > 1) size = 1 + drawn(&state, (uint32_t)size);
    return drawn(&state, 2) ? LLVMFuzzerMutate(data, size, max_size) : size;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static uint8_t seed[MAX_SIZE];
    const char *folder = corpus_folder(*argc, *argv);
    if (!folder) return 0;
    for (uint64_t i = 0; i < 40; i++) {
        char name[20];
        uint64_t state = i;
        snprintf(name, sizeof name, "packed-%d", (int)i);
        write_seed(folder, name, seed, make_input(&state, seed, sizeof seed));
    }
    return 0;
}
