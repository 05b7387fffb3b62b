/* ----
 * data/decode.c: files of pictures, walked through before stb_image sees them.
 *
 * stb_image trusts much of what a file says: tables never defined, counts larger than its arrays,
 * palettes shorter than their indices. So each file is read twice: its structure here, and only
 * what passes by the decoder, through callbacks that notice when it asks for bytes past the end. On
 * that second way the file may take detours, where the decoder would use memory that it never wrote
 * or bits that are not there. It passes the checksums of PNG chunks and, with a manifest, SHA-256.
 * ---- */
#ifndef MPT__DATA_DECODE_INCLUDED
#define MPT__DATA_DECODE_INCLUDED

#include "data/transform.c"

#ifdef MPTRAIN_STB_IMAGE

MPT__FOREIGN_CODE_BEGIN
#if defined(__has_include)
#if __has_include(<stb_image.h>)
#include <stb_image.h>
#else
#include <stb/stb_image.h>
#endif
#else
#include <stb_image.h>
#endif
MPT__FOREIGN_CODE_END

#ifdef STBI_MAX_DIMENSIONS
#define MPT__STB_SIDE (STBI_MAX_DIMENSIONS)
#else
#define MPT__STB_SIDE (1 << 24)
#endif

/* No version of stb_image says which it is. From 2.29 on its state of inflate has one more member
   before this, seen where it is implemented here. */
#if defined(STB_IMAGE_IMPLEMENTATION) && !defined(STBI_NO_ZLIB)
enum {
    MPT__STB_OLD = offsetof(stbi__zbuf, zout) - offsetof(stbi__zbuf, num_bits) <= 2 * sizeof(int)
};
#else
enum { MPT__STB_OLD = 0 };
#endif

static void mpt__decoder_warn(mpt_context *ctx) {
    if (!MPT__STB_OLD || ctx->warned_decoder) return;
    ctx->warned_decoder = true;
    mpt__log(&ctx->base, MPT_LOG_WARNING,
        "stb_image.h is older than 2.29, which does not check all that a file says; what is "
        "known of that is checked before it, but take 2.30 for files of unknown origin");
}

/* ==== SHA-256 (FIPS 180-4) ==== */

typedef struct {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} mpt__sha256;

static void mpt__sha256_begin(mpt__sha256 *sha) {
    static const uint32_t start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
        0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memcpy(sha->state, start, sizeof start);
    sha->bytes = 0;
}

static MPT__INLINE uint32_t mpt__rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void mpt__sha256_block(uint32_t state[8], const uint8_t *p) {
    static const uint32_t k[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b,
        0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3,
        0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6,
        0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d,
        0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
        0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585,
        0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
        0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
        0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[64], s[8];
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
            (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + w[i - 7] +
            (mpt__rotate(w[i - 15], 7) ^ mpt__rotate(w[i - 15], 18) ^ w[i - 15] >> 3) +
            (mpt__rotate(w[i - 2], 17) ^ mpt__rotate(w[i - 2], 19) ^ w[i - 2] >> 10);
    for (int i = 0; i < 64; i++) {
        uint32_t e = s[4], a = s[0];
        uint32_t first = s[7] + (mpt__rotate(e, 6) ^ mpt__rotate(e, 11) ^ mpt__rotate(e, 25)) +
            ((e & s[5]) ^ (~e & s[6])) + k[i] + w[i];
        uint32_t second = (mpt__rotate(a, 2) ^ mpt__rotate(a, 13) ^ mpt__rotate(a, 22)) +
            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof *s);
        s[4] += first, s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

static void mpt__sha256_add(mpt__sha256 *sha, const uint8_t *p, size_t n) {
    while (n > 0) {
        size_t held = (size_t)(sha->bytes % 64), take = 64 - held < n ? 64 - held : n;
        memcpy(sha->block + held, p, take);
        sha->bytes += take, p += take, n -= take;
        if (held + take == 64) mpt__sha256_block(sha->state, sha->block);
    }
}

static void mpt__sha256_end(mpt__sha256 *sha, uint8_t digest[32]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = sha->bytes * 8;
    uint8_t tail[8];
    mpt__sha256_add(sha, padding, (size_t)((119 - sha->bytes % 64) % 64 + 1));
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    mpt__sha256_add(sha, tail, 8);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(sha->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ==== Reading ==== */

enum { MPT__NO_IMAGE, MPT__PNG, MPT__JPEG, MPT__BMP };

/* Before byte `at` the decoder gets zeros, then what comes from `to` on. */
typedef struct {
    int64_t at, to;
    int zeros; /* MPT__ZEROS: until it asks whether the file ends */
} mpt__detour;

enum {
    MPT__ZEROS = -1,
    MPT__SCANS = 128, /* libjpeg's script for colour has 10; each costs a pass over all pixels */
    MPT__DETOURS = 2 * MPT__SCANS
};

/* A file on its way to the decoder. */
typedef struct {
    const mpt__base *base;
    void *handle;
    const char *path;       /* for messages */
    char *error;            /* [MPT__SAMPLE_ERROR] */
    int64_t size, position; /* position: of what comes after the buffer */
    bool starved;           /* it was asked for bytes past its end */
    bool torn;              /* it gave fewer bytes than it has */
    const char *why;        /* of that: a reason of io */
    bool hashed;
    int format;
    int width, height, values; /* as the walk found them; values: of a decoded pixel */
    /* PNG: what the next chunk still has; `fault` names the first with a wrong checksum. */
    int64_t chunk_left, chunk_size, chunk_at;
    uint32_t chunk_crc;
    uint8_t chunk[8]; /* length and type, then the checksum */
    int chunk_filled;
    bool chunk_body, chunks_end;
    int64_t fault;
    /* What the decoder reads for 4 bytes at patch_at; 0: nothing. */
    int64_t patch_at;
    uint8_t patch[4];
    int detour_count, detour; /* all, and the next one */
    int64_t jump;             /* bytes still to be left out */
    int zeros;                /* still to be given */
    bool scan_over;           /* the decoder left a scan before its end */
    mpt__detour detours[MPT__DETOURS];
    mpt__sha256 sha;
    size_t begin, end; /* of what is left in the buffer */
    uint8_t buffer[8192];
} mpt__image_file;

/* Says what is wrong with the file. */
static void mpt__picture_error(mpt__image_file *file, const char *format, ...) {
    size_t n = mpt__format_text(file->error, MPT__SAMPLE_ERROR, "%s: ", file->path);
    va_list arguments;
    if (n >= MPT__SAMPLE_ERROR) return;
    va_start(arguments, format);
    mpt__format_text_v(file->error + n, MPT__SAMPLE_ERROR - n, format, arguments);
    va_end(arguments);
}
#define mpt__fault(file, ...) (mpt__picture_error(file, __VA_ARGS__), false)

static bool mpt__picture_short(mpt__image_file *file) {
    return mpt__fault(file,
        "the file ends too early: it has %lld bytes, which is not all of the picture", file->size);
}

static bool mpt__picture_unread(mpt__image_file *file) {
    return mpt__fault(file, "not all of it could be read: %s", file->why);
}

static uint32_t mpt__png_crc(uint32_t crc, const uint8_t *p, size_t n) {
    static const uint32_t nibble[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190,
        0x6b6b51f4, 0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
        0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    for (size_t i = 0; i < n; i++) {
        crc = crc >> 4 ^ nibble[(crc ^ p[i]) & 15];
        crc = crc >> 4 ^ nibble[(crc ^ (uint32_t)p[i] >> 4) & 15];
    }
    return crc;
}

/* Follows the chunks of a PNG file, without its signature. */
static void mpt__png_chunks(mpt__image_file *file, const uint8_t *p, size_t n) {
    while (n > 0 && !file->chunks_end && file->fault < 0) {
        if (file->chunk_body && file->chunk_left > 0) {
            size_t take = file->chunk_left < (int64_t)n ? (size_t)file->chunk_left : n;
            file->chunk_crc = mpt__png_crc(file->chunk_crc, p, take);
            file->chunk_left -= (int64_t)take, p += take, n -= take;
            continue;
        }
        file->chunk[file->chunk_filled++] = *p++, n--;
        const uint8_t *c = file->chunk;
        uint32_t word = (uint32_t)c[0] << 24 | (uint32_t)c[1] << 16 | (uint32_t)c[2] << 8 | c[3];
        if (file->chunk_body && file->chunk_filled == 4) {
            if (word != (file->chunk_crc ^ 0xffffffffu)) file->fault = file->chunk_at;
            file->chunk_body = false, file->chunk_filled = 0;
            file->chunk_at += 12 + file->chunk_size;
        } else if (!file->chunk_body && file->chunk_filled == 8) {
            file->chunk_left = file->chunk_size = word;
            file->chunks_end = memcmp(c + 4, "IEND", 4) == 0; /* its own checksum means nothing */
            file->chunk_crc = mpt__png_crc(0xffffffffu, c + 4, 4);
            file->chunk_body = true, file->chunk_filled = 0;
        }
    }
}

/* Fills the buffer; false at the end. */
static bool mpt__image_refill(mpt__image_file *file) {
    int64_t left = file->size - file->position;
    size_t wanted = left < (int64_t)sizeof file->buffer ? (size_t)left : sizeof file->buffer;
    size_t signature = file->position == 0 ? 8 : 0;
    file->begin = 0;
    const mpt_io *io = mpt__io(file->base);
    file->end = wanted && !file->torn ? io->read(io->user, file->handle, file->buffer, wanted) : 0;
    if (file->end < wanted && !file->torn) file->why = mpt__io_reason(file->base);
    if (file->end < wanted) file->torn = true;
    file->position += (int64_t)file->end;
    if (file->hashed) mpt__sha256_add(&file->sha, file->buffer, file->end);
    if (file->format == MPT__PNG && file->end > signature)
        mpt__png_chunks(file, file->buffer + signature, file->end - signature);
    for (int i = 0; i < 4 && file->patch_at; i++) {
        int64_t at = file->patch_at + i - (file->position - (int64_t)file->end);
        if (at >= 0 && at < (int64_t)file->end) file->buffer[at] = file->patch[i];
    }
    return file->end > 0;
}

/* Where in the file the next byte comes from. */
static int64_t mpt__image_place(const mpt__image_file *file) {
    return file->position - (int64_t)(file->end - file->begin);
}

/* Begins the next detour if its place has come: 1. -1 if the decoder has to ask again: what it was
   given ends where a JPEG scan begins, so that its question for the end (mpt__image_end) tells on
   which side of that it is. */
static int mpt__image_detour(mpt__image_file *file, size_t given) {
    const mpt__detour *next = &file->detours[file->detour];
    if (file->detour == file->detour_count || next->at != mpt__image_place(file)) return 0;
    if (given > 0 && next->zeros == 0 && next->to == next->at) return -1;
    file->jump = next->to - next->at;
    file->zeros = next->zeros == MPT__ZEROS && file->scan_over ? 0 : next->zeros;
    file->scan_over = false;
    file->detour++;
    return 1;
}

static int mpt__image_read(void *user, char *data, int size) {
    mpt__image_file *file = (mpt__image_file *)user;
    size_t done = 0;
    while (size > 0 && done < (size_t)size) {
        size_t left = (size_t)size - done;
        int turn = file->zeros || file->jump ? 0 : mpt__image_detour(file, done);
        if (turn < 0) break;
        if (turn > 0) continue;
        if (file->zeros) {
            size_t n = file->zeros < 0 || (size_t)file->zeros > left ? left : (size_t)file->zeros;
            if (data) memset(data + done, 0, n);
            if (file->zeros > 0) file->zeros -= (int)n;
            done += n;
            continue;
        }
        if (file->begin == file->end && !mpt__image_refill(file)) break;
        size_t take = file->end - file->begin;
        if (file->jump) {
            if ((int64_t)take > file->jump) take = (size_t)file->jump;
            file->begin += take, file->jump -= (int64_t)take;
            continue;
        }
        if (take > left) take = left;
        if (file->detour < file->detour_count) {
            int64_t ahead = file->detours[file->detour].at - mpt__image_place(file);
            if (ahead > 0 && (int64_t)take > ahead) take = (size_t)ahead;
        }
        if (data) memcpy(data + done, file->buffer + file->begin, take);
        file->begin += take, done += take;
    }
    if (size > 0 && done == 0) file->starved = true;
    return (int)done;
}

static void mpt__image_skip(void *user, int n) {
    mpt__image_file *file = (mpt__image_file *)user;
    if (n > 0 && mpt__image_read(user, NULL, n) < n) file->starved = true;
}

/* stb_image asks this behind the pixels of a JPEG scan, before the next marker. */
static int mpt__image_end(void *user) {
    mpt__image_file *file = (mpt__image_file *)user;
    if (file->zeros < 0)
        file->zeros = 0;
    else if (file->detour < file->detour_count && file->detours[file->detour].zeros == MPT__ZEROS)
        file->scan_over = true;
    return file->begin == file->end && (file->torn || file->position >= file->size);
}

/* Back to the first byte; from here on all bytes are watched. */
static bool mpt__image_rewind(mpt__image_file *file, int format, bool hashed) {
    file->position = 0;
    file->begin = file->end = 0;
    file->starved = file->torn = file->scan_over = false;
    file->detour = file->zeros = 0, file->jump = 0;
    file->format = format, file->hashed = hashed;
    file->fault = -1;
    mpt__sha256_begin(&file->sha);
    const mpt_io *io = mpt__io(file->base);
    return io->seek && io->seek(io->user, file->handle, 0);
}

/* The next byte; past the end 0, and the file is starved. */
static uint32_t mpt__walk_byte(mpt__image_file *file) {
    if (file->begin == file->end && !mpt__image_refill(file)) file->starved = true;
    return file->begin < file->end ? file->buffer[file->begin++] : 0;
}

static uint32_t mpt__walk_big(mpt__image_file *file, int bytes) {
    uint32_t value = 0;
    while (bytes-- > 0) value = value << 8 | mpt__walk_byte(file);
    return value;
}

static uint32_t mpt__walk_little(mpt__image_file *file, int bytes) {
    uint32_t value = 0;
    for (int i = 0; i < bytes; i++) value |= mpt__walk_byte(file) << 8 * i;
    return value;
}

static void mpt__walk_skip(mpt__image_file *file, int64_t n) {
    int64_t held = (int64_t)(file->end - file->begin);
    if (n <= held) {
        file->begin += (size_t)n;
        return;
    }
    file->begin = file->end = 0;
    file->position += n - held;
    const mpt_io *io = mpt__io(file->base);
    if (file->position > file->size) {
        file->starved = true, file->position = file->size;
    } else if (!io->seek(io->user, file->handle, file->position)) {
        file->starved = file->torn = true, file->why = mpt__io_reason(file->base);
        file->position = file->size;
    }
}

static bool mpt__add_detour(mpt__image_file *file, int64_t at, int64_t to, int zeros) {
    mpt__detour detour = {at, to, zeros};
    if (file->detour_count == MPT__DETOURS) return false;
    file->detours[file->detour_count++] = detour;
    return true;
}

/* ==== JPEG (ITU T.81) ==== */

typedef struct {
    int components;
    bool progressive;
    struct {
        uint32_t id, table; /* table: of its quantisation */
        int across, down;   /* sampling factors */
        bool seen, drawn;   /* in any scan; in one that writes all its pixels */
    } part[4];
    int across, down; /* the largest factors */
    int scans, restart;
    uint32_t quantisation, huffman[2]; /* bits: tables that were defined; huffman: DC, AC */
    int pending;                       /* the marker behind a scan; -1: none */
} mpt__jpeg;

/* What is left of a segment, or of a chunk below. */
#define MPT__JPEG_TAKES mpt__image_file *file, mpt__jpeg *jpeg, int left

/* Reads a marker as the decoder does: -1 where there is none. */
static int mpt__jpeg_marker(mpt__image_file *file) {
    uint32_t c = mpt__walk_byte(file);
    if (c != 0xff) return -1;
    while (c == 0xff && !file->starved) c = mpt__walk_byte(file);
    return (int)c;
}

static bool mpt__jpeg_quantisation(MPT__JPEG_TAKES) {
    while (left > 0) {
        uint32_t head = mpt__walk_byte(file);
        int bytes = head >> 4 ? 128 : 64;
        if (head > 0x1f || (head & 15) > 3 || left <= bytes)
            return mpt__fault(
                file, "a bad quantisation table (DQT) before byte %lld", mpt__image_place(file));
        mpt__walk_skip(file, bytes);
        jpeg->quantisation |= 1u << (head & 15);
        left -= 1 + bytes;
    }
    return true;
}

static bool mpt__jpeg_huffman(MPT__JPEG_TAKES) {
    while (left > 0) {
        const char *wrong = NULL;
        uint32_t head = mpt__walk_byte(file);
        int symbols = 0, code = 0;
        for (int bits = 1; bits <= 16; bits++) {
            int count = (int)mpt__walk_byte(file);
            symbols += count, code = 2 * code + count;
            if (code > 1 << bits) wrong = "has more codes than fit their lengths", code = 0;
            /* 255 stands for longer codes in the decoder's table of short ones, up to 9 bits. */
            if (symbols > (bits <= 9 ? 255 : 256)) wrong = "has too many codes";
        }
        left -= 17 + symbols;
        if (head > 0x1f || (head & 15) > 3) wrong = "has a class or number that there is not";
        if (left < 0 && !wrong) wrong = "is longer than its segment";
        for (int i = 0; i < symbols && !wrong; i++)
            if (mpt__walk_byte(file) > (head >> 4 ? 255 : 15)) wrong = "has a bad symbol";
        if (wrong)
            return mpt__fault(
                file, "a Huffman table (DHT) before byte %lld %s", mpt__image_place(file), wrong);
        jpeg->huffman[head >> 4] |= 1u << (head & 15);
    }
    return true;
}

static bool mpt__jpeg_restart(MPT__JPEG_TAKES) {
    if (left != 2) return mpt__fault(file, "a restart interval (DRI) of %d bytes, not 2", left);
    jpeg->restart = (int)mpt__walk_big(file, 2);
    return true;
}

static bool mpt__jpeg_frame(MPT__JPEG_TAKES) {
    uint32_t bits = mpt__walk_byte(file);
    if (jpeg->components) return mpt__fault(file, "a second frame header (SOF)");
    file->height = (int)mpt__walk_big(file, 2), file->width = (int)mpt__walk_big(file, 2);
    int n = (int)mpt__walk_byte(file);
    if (bits != 8) return mpt__fault(file, "a JPEG of %lld bits; stb_image reads 8", (int64_t)bits);
    if (!file->height)
        return mpt__fault(
            file, "its height comes behind its pixels (DNL), where stb_image does not look");
    if ((n != 1 && n != 3 && n != 4) || left != 6 + 3 * n)
        return mpt__fault(file, "a frame header (SOF) of %d components in %d bytes", n, left);
    for (int i = 0; i < n; i++) {
        jpeg->part[i].id = mpt__walk_byte(file);
        uint32_t factors = mpt__walk_byte(file);
        jpeg->part[i].table = mpt__walk_byte(file);
        int across = jpeg->part[i].across = (int)(factors >> 4);
        int down = jpeg->part[i].down = (int)(factors & 15);
        if (across < 1 || across > 4 || down < 1 || down > 4 || jpeg->part[i].table > 3)
            return mpt__fault(file, "component %d has sampling %d x %d and table %lld", i, across,
                down, (int64_t)jpeg->part[i].table);
        if (jpeg->across < across) jpeg->across = across;
        if (jpeg->down < down) jpeg->down = down;
    }
    for (int i = 0; i < n; i++)
        if (jpeg->across % jpeg->part[i].across || jpeg->down % jpeg->part[i].down)
            return mpt__fault(file,
                "sampling %d x %d beside %d x %d, which stb_image does not read",
                jpeg->part[i].across, jpeg->part[i].down, jpeg->across, jpeg->down);
    jpeg->components = n, file->values = n;
    return true;
}

/* Goes to the marker that ends the scan; returns the restart markers before it. */
static int64_t mpt__jpeg_entropy(mpt__image_file *file, mpt__jpeg *jpeg, int64_t *end) {
    int64_t restarts = 0;
    while (!file->starved) {
        if (file->begin == file->end && !mpt__image_refill(file)) break;
        const uint8_t *next = file->buffer + file->begin;
        const uint8_t *found = (const uint8_t *)memchr(next, 0xff, file->end - file->begin);
        file->begin = found ? (size_t)(found - file->buffer) : file->end;
        if (!found) continue;
        *end = mpt__image_place(file);
        int marker = mpt__jpeg_marker(file);
        if (marker >= 0xd0 && marker <= 0xd7)
            restarts++;
        else if (marker != 0) {
            jpeg->pending = marker;
            return restarts;
        }
    }
    file->starved = true;
    return restarts;
}

/* The scan's components by number in part[4]; false if they are not its. */
static bool mpt__jpeg_scan_parts(
    mpt__image_file *file, mpt__jpeg *jpeg, int n, int part[4], uint32_t tables[4]) {
    for (int i = 0; i < n; i++) {
        uint32_t id = mpt__walk_byte(file);
        tables[i] = mpt__walk_byte(file);
        for (part[i] = 0; part[i] < jpeg->components && jpeg->part[part[i]].id != id;) part[i]++;
        for (int k = 0; k < i; k++)
            if (part[k] == part[i]) part[i] = jpeg->components;
        if (part[i] == jpeg->components)
            return mpt__fault(file,
                "a scan (SOS) of component %lld, which is not in the frame or twice in the scan",
                (int64_t)id);
    }
    return true;
}

/* Blocks or groups of blocks of a scan, which a restart interval counts. */
static int64_t mpt__jpeg_units(
    const mpt__image_file *file, const mpt__jpeg *jpeg, int n, int part) {
    int64_t units = 1;
    for (int i = 0; i < 2; i++) {
        int64_t size = i ? file->height : file->width, most = i ? jpeg->down : jpeg->across;
        int64_t own = i ? jpeg->part[part].down : jpeg->part[part].across;
        int64_t side = n == 1 ? (size * own + most - 1) / most : size;
        int64_t block = n == 1 ? 8 : 8 * most;
        units *= (side + block - 1) / block;
    }
    return units;
}

/* One scan: its header refers to what was defined, its data has all intervals. */
static bool mpt__jpeg_scan(MPT__JPEG_TAKES) {
    int64_t at = mpt__image_place(file);
    int n = (int)mpt__walk_byte(file);
    uint32_t tables[4];
    int part[4];
    if (n < 1 || n > jpeg->components || left != 4 + 2 * n)
        return mpt__fault(
            file, "a scan (SOS) of %d components in %d bytes at byte %lld", n, left, at);
    if (!mpt__jpeg_scan_parts(file, jpeg, n, part, tables)) return false;
    uint32_t first = mpt__walk_byte(file), last = mpt__walk_byte(file);
    uint32_t bits = mpt__walk_byte(file), high = bits >> 4, low = bits & 15;
    if (jpeg->progressive ? first > last || last > 63 || high > 13 || low > 13 ||
                (first == 0 ? last != 0 : n != 1)
                          : first != 0 || bits != 0)
        return mpt__fault(file,
            "a scan (SOS) of coefficients %lld to %lld, bits %llx, at byte %lld", (int64_t)first,
            (int64_t)last, (uint64_t)bits, at);
    for (int i = 0; i < n; i++) {
        bool dc = first == 0 && high == 0, ac = first > 0 || !jpeg->progressive;
        const uint32_t *known = jpeg->huffman, has_dc = tables[i] >> 4, has_ac = tables[i] & 15;
        if (has_dc > 3 || has_ac > 3 || (dc && !(known[0] >> has_dc & 1)) ||
            (ac && !(known[1] >> has_ac & 1)))
            return mpt__fault(file,
                "the scan at byte %lld needs Huffman tables DC %lld and AC %lld, "
                "which are not defined before it",
                at, (int64_t)has_dc, (int64_t)has_ac);
        if (!(jpeg->quantisation >> jpeg->part[part[i]].table & 1))
            return mpt__fault(file,
                "the scan at byte %lld needs quantisation table %lld, "
                "which is not defined before it",
                at, (int64_t)jpeg->part[part[i]].table);
        jpeg->part[part[i]].seen = true;
        if (dc) jpeg->part[part[i]].drawn = true;
#ifndef MPT__STB_ZEROED
        if (!jpeg->part[part[i]].drawn)
            return mpt__fault(
                file, "the scan at byte %lld refines what no scan before it has drawn", at);
#endif
    }
    int64_t start = mpt__image_place(file);
    int64_t end = start;
    int64_t restarts = mpt__jpeg_entropy(file, jpeg, &end);
    if (++jpeg->scans > MPT__SCANS) return mpt__fault(file, "more than %d scans", (int)MPT__SCANS);
    /* Within a scan the decoder gets zeros where its bits end too early; stb_image up to 2.27 would
       go on with fewer than none. It does not ask for its end where fill bytes follow. */
    mpt__add_detour(file, start, start, 0);
    mpt__add_detour(file, end, mpt__image_place(file) - 2, MPT__ZEROS);
    int64_t units = mpt__jpeg_units(file, jpeg, n, part[0]);
    int64_t needed = jpeg->restart ? (units - 1) / jpeg->restart : 0;
    if (restarts < needed && !file->starved)
        return mpt__fault(
            file, "the scan at byte %lld has %lld restart markers of %lld", at, restarts, needed);
    return true;
}

static bool mpt__jpeg_height(MPT__JPEG_TAKES) {
    int height = (int)mpt__walk_big(file, 2);
    (void)jpeg;
    if (left == 2 && height == file->height) return true;
    return mpt__fault(file, "a second height, %d (DNL), beside %d", height, file->height);
}

static bool mpt__jpeg_other(MPT__JPEG_TAKES) {
    (void)jpeg;
    mpt__walk_skip(file, left);
    return true;
}

/* The segments that stb_image reads. */
typedef struct {
    int first, last; /* markers */
    int frame;       /* 1: only behind a frame header */
    bool (*read)(MPT__JPEG_TAKES);
} mpt__jpeg_segment;

static const mpt__jpeg_segment mpt__jpeg_segments[] = {{0xc0, 0xc2, 0, mpt__jpeg_frame},
    {0xc4, 0xc4, 0, mpt__jpeg_huffman}, {0xda, 0xda, 1, mpt__jpeg_scan},
    {0xdb, 0xdb, 0, mpt__jpeg_quantisation}, {0xdc, 0xdc, 1, mpt__jpeg_height},
    {0xdd, 0xdd, 0, mpt__jpeg_restart}, {0xe0, 0xef, 0, mpt__jpeg_other},
    {0xfe, 0xfe, 0, mpt__jpeg_other}};

/* NULL: stb_image does not know the marker. */
static const mpt__jpeg_segment *mpt__jpeg_segment_of(int marker) {
    for (size_t i = 0; i < sizeof mpt__jpeg_segments / sizeof *mpt__jpeg_segments; i++)
        if (marker >= mpt__jpeg_segments[i].first && marker <= mpt__jpeg_segments[i].last)
            return &mpt__jpeg_segments[i];
    return NULL;
}

/* Reads the segment behind a marker. */
static bool mpt__jpeg_segment_read(mpt__image_file *file, mpt__jpeg *jpeg, int marker) {
    int64_t at = mpt__image_place(file) - 2;
    const mpt__jpeg_segment *row = mpt__jpeg_segment_of(marker);
    if (!row && marker > 0xc2 && marker < 0xd0 && marker != 0xc8 && marker != 0xcc)
        return mpt__fault(file, "a %s JPEG (SOF%d), which stb_image does not read",
            marker > 0xc8        ? "arithmetic coded"
                : marker == 0xc3 ? "lossless"
                                 : "hierarchical",
            marker - 0xc0);
    if (!row || (row->frame && !jpeg->components))
        return mpt__fault(file, "%s %llx at byte %lld",
            !row ? "no segment of a JPEG begins with marker"
                 : "no frame header (SOF) before marker",
            (uint64_t)marker, at);
    if (marker <= 0xc2) jpeg->progressive = marker == 0xc2;
    int length = (int)mpt__walk_big(file, 2);
    if (file->starved) return false;
    if (length < 2)
        return mpt__fault(file, "the segment at byte %lld has a length of %d", at, length);
    return row->read(file, jpeg, length - 2);
}

static bool mpt__walk_jpeg(mpt__image_file *file) {
    mpt__jpeg jpeg;
    mpt__zero(jpeg);
    jpeg.pending = -1;
    mpt__walk_skip(file, 2);
    for (;;) {
        int64_t at = mpt__image_place(file);
        int marker = jpeg.pending >= 0 ? jpeg.pending : mpt__jpeg_marker(file);
        jpeg.pending = -1;
        if (file->starved) return false;
        if (marker == 0xd9 && jpeg.components) break;
        if (marker < 0 && !jpeg.components) continue; /* padding, which the decoder reads over */
        /* Here stb_image stops: up to 2.27 it refuses the picture, later it is done. */
        if (jpeg.scans && !mpt__jpeg_segment_of(marker)) break;
        if (marker < 0) return mpt__fault(file, "no marker at byte %lld", at);
        if (!mpt__jpeg_segment_read(file, &jpeg, marker) || file->starved) return false;
    }
    for (int i = 0; i < jpeg.components; i++)
        if (!jpeg.part[i].seen)
            return mpt__fault(file, "component %d of %d is in no scan", i, jpeg.components);
    return true;
}

/* ==== PNG (ISO 15948) ==== */

typedef struct {
    int depth, color, palette; /* palette: entries */
    int chunks, images;        /* images: IDAT chunks */
    bool over;                 /* another chunk came behind IDAT, or IEND */
    int64_t bytes;             /* of all IDAT */
} mpt__png;
#define MPT__PNG_TAKES mpt__image_file *file, mpt__png *png, int64_t length

static bool mpt__png_header(MPT__PNG_TAKES) {
    static const uint8_t depths[7] = {
        1 | 2 | 4 | 8 | 16, 0, 8 | 16, 1 | 2 | 4 | 8, 8 | 16, 0, 8 | 16};
    static const uint8_t values[7] = {1, 0, 3, 4, 2, 0, 4};
    uint32_t width = mpt__walk_big(file, 4), height = mpt__walk_big(file, 4);
    png->depth = (int)mpt__walk_byte(file), png->color = (int)mpt__walk_byte(file);
    uint32_t methods = mpt__walk_big(file, 3);
    if (length != 13 || png->color > 6 || !png->depth || !(depths[png->color] & png->depth) ||
        (png->depth & (png->depth - 1)) || (methods | 1) != 1)
        return mpt__fault(file, "a PNG header (IHDR) of depth %d, colour %d, methods %llx",
            png->depth, png->color, (uint64_t)methods);
    file->width = width > INT32_MAX ? -1 : (int)width;
    file->height = height > INT32_MAX ? -1 : (int)height;
    file->values = values[png->color];
    return true;
}

/* The palette; read as if black where it is short of what indices can name. */
static bool mpt__png_palette(MPT__PNG_TAKES) {
    int64_t at = mpt__image_place(file);
    if (length % 3 || length > 768 || length == 0 || png->palette || png->images)
        return mpt__fault(file, "a palette (PLTE) of %lld bytes that is %s", length,
            png->palette      ? "the second"
                : png->images ? "behind the pixels"
                              : "not of 1 to 256 colours");
    png->palette = (int)length / 3;
    int most = 1 << png->depth;
    if (png->color != 3 || png->palette >= most) return true;
    file->patch_at = at - 8;
    file->patch[2] = (uint8_t)(3 * most >> 8), file->patch[3] = (uint8_t)(3 * most);
    mpt__add_detour(file, at + length, at + length, 3 * (most - png->palette));
    return true;
}

static bool mpt__png_transparency(MPT__PNG_TAKES) {
    bool fits = png->color == 3 ? png->palette && length <= png->palette
        : png->color == 0       ? length == 2
                                : png->color == 2 && length == 6;
    if (fits && !png->images) return true;
    return mpt__fault(file, "transparency (tRNS) of %lld bytes for colour %d, %d in the palette%s",
        length, png->color, png->palette, png->images ? ", behind the pixels" : "");
}

/* stb_image expects something in the first of these chunks: empty ones before it go. */
static bool mpt__png_image(MPT__PNG_TAKES) {
    int64_t at = mpt__image_place(file) - 8;
    if (png->color == 3 && !png->palette)
        return mpt__fault(file, "pixels without a palette (PLTE) before them");
    if (png->over)
        return mpt__fault(file, "IDAT chunks that do not follow each other (byte %lld)", at);
    mpt__detour *last = &file->detours[file->detour_count - (file->detour_count > 0)];
    if (png->bytes == 0 && length == 0 && png->images && last->to == at)
        last->to = at + 12;
    else if (png->bytes == 0 && length == 0)
        mpt__add_detour(file, at, at + 12, 0);
    png->images = 1;
    png->bytes += length;
    return true;
}

typedef struct {
    const char *type;
    bool (*read)(MPT__PNG_TAKES);
} mpt__png_chunk;

static const mpt__png_chunk mpt__png_kinds[] = {{"IHDR", mpt__png_header},
    {"PLTE", mpt__png_palette}, {"tRNS", mpt__png_transparency}, {"IDAT", mpt__png_image}};

/* One chunk, whose type and length have been read. */
static bool mpt__png_chunk_read(
    mpt__image_file *file, mpt__png *png, const char type[5], int64_t length) {
    int64_t at = mpt__image_place(file);
    const mpt__png_chunk *row = mpt__png_kinds, *end = row + 4;
    for (int i = 0; i < 4; i++)
        if ((type[i] | 32) < 'a' || (type[i] | 32) > 'z')
            return mpt__fault(file, "no PNG chunk begins at byte %lld", at - 8);
    if (strcmp(type, "CgBI") == 0)
        return mpt__fault(file, "an Apple CgBI file, which only looks like a PNG (as Xcode packs "
                                "them for iOS); convert it back to PNG");
    if (length > file->size - at - 4)
        return mpt__fault(file,
            "the file ends too early: its chunk %s at byte %lld has %lld bytes, of "
            "which %lld are there",
            type, at - 8, length, file->size - at);
    while (row < end && strcmp(row->type, type) != 0) row++;
    if ((png->chunks++ == 0) != (row == mpt__png_kinds))
        return mpt__fault(file, "its header (IHDR) is not the first chunk, or there are two");
    if (png->images && row < end && row->read != mpt__png_image)
        return mpt__fault(file, "chunk %s behind the pixels", type);
    if (png->images && (row == end || row->read != mpt__png_image)) png->over = true;
    if (row == end && !(type[0] & 32) && strcmp(type, "IEND") != 0)
        return mpt__fault(file, "an unknown chunk %s, which says that it must be understood", type);
    if (row < end && !row->read(file, png, length)) return false;
    mpt__walk_skip(file, at + length + 4 - mpt__image_place(file));
    return true;
}

static bool mpt__walk_png(mpt__image_file *file) {
    mpt__png png;
    char type[5] = "";
    mpt__zero(png);
    mpt__walk_skip(file, 8);
    while (strcmp(type, "IEND") != 0) {
        int64_t length = mpt__walk_big(file, 4);
        for (int i = 0; i < 4; i++) type[i] = (char)mpt__walk_byte(file);
        if (file->starved || !mpt__png_chunk_read(file, &png, type, length) || file->starved)
            return false;
    }
    if (!png.bytes) return mpt__fault(file, "no pixels (IDAT)");
    /* The decoder unpacks all there is, up to 1,032 times as much: a row more for each, for files
       that an encoder ended late, is enough. */
    int64_t row = ((int64_t)file->width * file->values * png.depth + 7) / 8 + 8;
    if (png.bytes / 2 > row * file->height + 65536)
        return mpt__fault(
            file, "%lld bytes of packed pixels for %d x %d", png.bytes, file->height, file->width);
    return true;
}

/* ==== BMP ==== */

typedef struct {
    int64_t offset, header; /* of the pixels; bytes of the header */
    int64_t packing;
    int bits;
} mpt__bmp;

/* Where the decoder does not look for the pixels, and a palette that is too short. */
static bool mpt__bmp_detours(mpt__image_file *file, const mpt__bmp *bmp) {
    bool core = bmp->header == 12;
    int64_t entry = core ? 3 : 4;
    int64_t told = bmp->offset, masks = bmp->packing == 3 && bmp->header <= 56 ? 12 : 0;
    int64_t behind = 14 + bmp->header + masks;
    if (bmp->bits < 16) {
        int64_t colors = (bmp->offset - behind) / entry, most = INT64_C(1) << bmp->bits;
        if (bmp->offset < behind || colors > 256)
            return mpt__fault(file, "a palette of %lld colours", colors);
        if (colors < most) told += (most - colors) * entry;
        if (core) told += 12; /* stb_image reads four entries too few from it */
        if (told != bmp->offset)
            mpt__add_detour(file, bmp->offset, bmp->offset, (int)(told - bmp->offset));
    } else if (bmp->offset > behind) {
        told = behind;
        mpt__add_detour(file, behind, bmp->offset, 0);
    } else if (bmp->offset < behind) {
        return mpt__fault(
            file, "pixels at byte %lld, within a header of %lld bytes", bmp->offset, behind);
    }
    file->patch_at = told == bmp->offset ? 0 : 10;
    for (int i = 0; i < 4; i++) file->patch[i] = (uint8_t)(told >> 8 * i);
    return true;
}

static bool mpt__walk_bmp(mpt__image_file *file) {
    static const char *const packings[] = {"", "RLE", "RLE", "", "JPEG", "PNG"};
    mpt__bmp bmp;
    mpt__zero(bmp);
    mpt__walk_skip(file, 10);
    bmp.offset = mpt__walk_little(file, 4), bmp.header = mpt__walk_little(file, 4);
    bool core = bmp.header == 12;
    if (!core && bmp.header != 40 && bmp.header != 56 && bmp.header != 108 && bmp.header != 124)
        return mpt__fault(file,
            "a BMP header of %lld bytes; stb_image reads 12, 40, 56, "
            "108 and 124",
            bmp.header);
    int bytes = core ? 2 : 4;
    uint32_t width = mpt__walk_little(file, bytes), height = mpt__walk_little(file, bytes);
    uint32_t planes = mpt__walk_little(file, 2);
    bmp.bits = (int)mpt__walk_little(file, 2);
    bmp.packing = core ? 0 : (int64_t)mpt__walk_little(file, 4);
    if (file->starved) return false;
    if (bmp.packing > 0 && bmp.packing < 6 && bmp.packing != 3)
        return mpt__fault(
            file, "a BMP of %s inside, which stb_image does not read", packings[bmp.packing]);
    if (bmp.bits == 2 || bmp.bits == 0 || bmp.bits > 32 ||
        (bmp.bits & (bmp.bits - 1) && bmp.bits != 24) ||
        (core && bmp.bits >= 16 && bmp.bits != 24) || planes != 1 || bmp.packing > 3 ||
        (bmp.packing == 3 && bmp.bits != 16 && bmp.bits != 32))
        return mpt__fault(file,
            "a BMP of %d bits, %lld planes, packing %lld, which stb_image does not read", bmp.bits,
            (int64_t)planes, bmp.packing);
    if (bmp.packing == 3 && bmp.header == 56)
        return mpt__fault(
            file, "a BMP with bit masks in a header of 56 bytes, where stb_image does not look");
    file->width = width > INT32_MAX ? -1 : (int)width;
    file->height = height <= INT32_MAX ? (int)height : (int)(0u - height); /* from the top */
    file->values = bmp.bits == 32 || bmp.bits == 16 ? 4 : 3;
    if (file->width < 1 || file->height < 1) return true;
    int64_t rows = ((int64_t)file->width * bmp.bits + 31) / 32 * 4 * file->height;
    if (file->size < bmp.offset + rows)
        return mpt__fault(file, "the file ends too early: %lld bytes of the %lld of a %d x %d BMP",
            file->size, bmp.offset + rows, file->height, file->width);
    return mpt__bmp_detours(file, &bmp);
}

/* ==== What a file is ==== */

/* First bytes, a dot for any; no walk: what it is instead of a picture. */
typedef struct {
    const char *begins;
    int length, at;
    const char *is;
    int format;
    bool (*walk)(mpt__image_file *file);
} mpt__picture_kind;

static const mpt__picture_kind mpt__picture_kinds[] = {
    {"\x89PNG\r\n\x1a\n", 8, 0, NULL, MPT__PNG, mpt__walk_png},
    {"\xff\xd8\xff", 3, 0, NULL, MPT__JPEG, mpt__walk_jpeg},
    {"BM", 2, 0, NULL, MPT__BMP, mpt__walk_bmp},
    {"\x89PNG", 4, 0, "a PNG whose line ends were changed, as by a transfer as text", 0, NULL},
    {"PNG", 3, 1, "a PNG whose first bytes were changed, as by a transfer as text", 0, NULL},
    {"GIF8", 4, 0, "a GIF, which is not read", 0, NULL},
    {"WEBP", 4, 8, "a WebP, which is not read", 0, NULL},
    {"II*\0", 4, 0, "a TIFF, which is not read", 0, NULL},
    {"MM\0*", 4, 0, "a TIFF, which is not read", 0, NULL},
    {"ftyphe", 6, 4, "a HEIC, which is not read", 0, NULL},
    {"ftypmif", 7, 4, "a HEIC, which is not read", 0, NULL},
    {"ftypavif", 8, 4, "an AVIF, which is not read", 0, NULL},
    {"\0\0\0\x0cjP", 6, 0, "a JPEG 2000, which is not read", 0, NULL},
    {"\0\0\0\x0cJXL", 7, 0, "a JPEG XL, which is not read", 0, NULL},
    {"\xff\x0a", 2, 0, "a JPEG XL, which is not read", 0, NULL},
    {"8BPS", 4, 0, "a PSD, which is not read", 0, NULL},
    {"%PDF", 4, 0, "a PDF, which is not read", 0, NULL}};

/* Why a file of no known kind is no picture. */
static bool mpt__picture_unknown(mpt__image_file *file) {
    const uint8_t *p = file->buffer;
    size_t blank = 0, n = 0;
    char text[41];
    if (file->end == 0) return mpt__fault(file, "an empty file");
    const char *what = mpt__what_this_is(p, file->end, MPT__KNOWN_ALL);
    if (what) return mpt__fault(file, "this is %s", what);
    blank = mpt__mark_bytes(p, file->end);
    while (blank < file->end && (p[blank] == ' ' || (p[blank] >= 9 && p[blank] <= 13))) blank++;
    while (blank + n < file->end && n < 40 && p[blank + n] >= ' ' && p[blank + n] < 127)
        text[n] = (char)p[blank + n], n++;
    text[n] = 0;
    bool ends = blank + n == file->end || n == 40 || p[blank + n] == '\n' || p[blank + n] == '\r';
    if (n > 7 && ends) return mpt__fault(file, "a text, no picture; it begins: %s", text);
    return mpt__fault(file, "neither PNG nor JPEG nor BMP (first bytes %llx %llx)", (uint64_t)p[0],
        (uint64_t)(file->end > 1 ? p[1] : 0));
}

/* Finds out what a file is, what the decoder must not see, and the picture's size. */
static bool mpt__picture_walk(mpt__image_file *file) {
    size_t kinds = sizeof mpt__picture_kinds / sizeof *mpt__picture_kinds;
    if (!file->base->io.seek) return mpt__fault(file, "cannot be read twice: no `seek`");
    if (!mpt__image_refill(file) && file->torn) return mpt__picture_unread(file);
    for (size_t i = 0; i < kinds; i++) {
        const mpt__picture_kind *kind = &mpt__picture_kinds[i];
        size_t at = (size_t)kind->at, n = (size_t)kind->length;
        if (file->end < at + n || memcmp(file->buffer + at, kind->begins, n) != 0) continue;
        if (!kind->walk) return mpt__fault(file, "%s", kind->is);
        bool good = kind->walk(file);
        if (file->torn) return mpt__picture_unread(file);
        if (file->starved) return mpt__picture_short(file);
        file->format = kind->format;
        return good;
    }
    return mpt__picture_unknown(file);
}

#endif

#endif
