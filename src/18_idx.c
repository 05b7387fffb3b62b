/* ---------------------------------------------------------------------------------------------
 * 18_idx.c: the header of idx files, the format of MNIST.
 *
 * Two zero bytes, the element type, the rank, one big-endian 32-bit size per dimension, then the
 * elements with the last dimension running fastest. Pure functions on bytes: nothing is read or
 * allocated here, and what a file claims is checked before anyone acts on it.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__18_IDX_INCLUDED
#define MPT__18_IDX_INCLUDED

#include "10_base.c"

#define MPT__IDX_MAX_RANK 4
#define MPT__IDX_MAX_HEADER (4 + 4 * MPT__IDX_MAX_RANK)

typedef struct mpt__idx {
    int rank;                         /* 1 to MPT__IDX_MAX_RANK */
    int64_t shape[MPT__IDX_MAX_RANK]; /* all >= 1; 1 beyond rank */
    int64_t header_bytes;             /* where the elements begin */
    int64_t data_bytes;
    int64_t sample_bytes; /* data_bytes / shape[0] */

    const char *error;     /* static text, NULL when the header is good */
    int64_t expected, got; /* the numbers that go with the error */
} mpt__idx;

/* What to say of each element type; NULL: taken. */
static const struct {
    uint8_t code;
    const char *error;
} mpt__idx_types[] = {
    {0x08, NULL},
    {0x09, "the idx elements are int8, only uint8 is read (type code)"},
    {0x0B, "the idx elements are int16, only uint8 is read (type code)"},
    {0x0C, "the idx elements are int32, only uint8 is read (type code)"},
    {0x0D, "the idx elements are float32, only uint8 is read (type code)"},
    {0x0E, "the idx elements are float64, only uint8 is read (type code)"},
};

static bool mpt__idx_fail(mpt__idx *idx, const char *error, int64_t expected, int64_t got) {
    idx->error = error;
    idx->expected = expected;
    idx->got = got;
    return false;
}

/* Checks the four bytes before the dimensions and takes the rank from them. */
static bool mpt__idx_magic(mpt__idx *idx, const uint8_t *bytes) {
    const char *error = "an unknown idx element type (type code)";
    if (bytes[0] != 0 || bytes[1] != 0)
        return mpt__idx_fail(idx, "this is not an idx file (its first two bytes)", 0,
                             bytes[0] << 8 | bytes[1]);
    for (size_t i = 0; i < sizeof mpt__idx_types / sizeof mpt__idx_types[0]; i++)
        if (mpt__idx_types[i].code == bytes[2]) error = mpt__idx_types[i].error;
    if (error) return mpt__idx_fail(idx, error, mpt__idx_types[0].code, bytes[2]);
    if (bytes[3] < 1)
        return mpt__idx_fail(idx, "an idx file without dimensions (least rank)", 1, bytes[3]);
    if (bytes[3] > MPT__IDX_MAX_RANK)
        return mpt__idx_fail(idx, "an idx file of too many dimensions (greatest rank)",
                             MPT__IDX_MAX_RANK, bytes[3]);
    idx->rank = bytes[3];
    return true;
}

/* Parses a header from the first n bytes of a file; MPT__IDX_MAX_HEADER bytes are always enough.
 * file_bytes is the size of the whole file, unpacked, or -1 when it is not known; then the caller
 * checks that exactly header_bytes + data_bytes come. On false, error, expected and got are set. */
static bool mpt__idx_header(mpt__idx *idx, const void *bytes, size_t n, int64_t file_bytes) {
    const uint8_t *p = (const uint8_t *)bytes;
    const char *cut = "the file ends inside its idx header (bytes)";
    memset(idx, 0, sizeof *idx);
    if (n < 4) return mpt__idx_fail(idx, cut, 4, (int64_t)n);
    if (!mpt__idx_magic(idx, p)) return false;
    idx->header_bytes = 4 + 4 * idx->rank;
    if (n < (size_t)idx->header_bytes)
        return mpt__idx_fail(idx, cut, idx->header_bytes, (int64_t)n);

    const int64_t limit = INT64_MAX - idx->header_bytes;
    idx->data_bytes = 1;
    for (int i = 0; i < MPT__IDX_MAX_RANK; i++) {
        const uint8_t *d = p + 4 + 4 * i;
        idx->shape[i] = 1;
        if (i < idx->rank)
            idx->shape[i] = (int64_t)d[0] << 24 | (int64_t)d[1] << 16 | (int64_t)d[2] << 8 | d[3];
        if (idx->shape[i] == 0)
            return mpt__idx_fail(idx, "an idx dimension is empty (least size)", 1, 0);
        if (idx->shape[i] > limit / idx->data_bytes)
            return mpt__idx_fail(idx, "the idx dimensions multiply to too much (this one at most)",
                                 limit / idx->data_bytes, idx->shape[i]);
        idx->data_bytes *= idx->shape[i];
    }
    idx->sample_bytes = idx->data_bytes / idx->shape[0];
    int64_t whole = idx->header_bytes + idx->data_bytes;
    if (file_bytes >= 0 && file_bytes < whole)
        return mpt__idx_fail(idx, "the idx file is shorter than its dimensions say (bytes)", whole,
                             file_bytes);
    if (file_bytes > whole)
        return mpt__idx_fail(idx, "the idx file is longer than its dimensions say (bytes)", whole,
                             file_bytes);
    return true;
}

#endif
