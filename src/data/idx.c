/* ----
 * data/idx.c: the header of idx files, the format of MNIST.
 *
 * Two zero bytes, the element type, the rank, a big-endian 32-bit size per dimension, then the
 * elements, the last dimension running fastest. Pure functions on bytes: what a file claims is
 * checked before anyone acts on it.
 * ---- */
#ifndef MPT__DATA_IDX_INCLUDED
#define MPT__DATA_IDX_INCLUDED

#include "ground/base.c"

#define MPT__IDX_MAX_RANK 4
#define MPT__IDX_MAX_HEADER (4 + 4 * MPT__IDX_MAX_RANK)

typedef struct {
    int rank;                         /* 1 to MPT__IDX_MAX_RANK */
    int64_t shape[MPT__IDX_MAX_RANK]; /* all >= 1; 1 beyond rank */
    int64_t header_bytes;             /* where the elements begin */
    int64_t data_bytes;

    const char *error;     /* static text, NULL when the header is good */
    int64_t expected, got; /* the numbers that go with the error */
} mpt__idx;

/* The element types there are, from code 8 on. */
static const char *const mpt__idx_types[] = {
    NULL, /* uint8, the one that is read */
    "the idx elements are int8, only uint8 is read (type code)",
    "an unknown idx element type (type code)",
    "the idx elements are int16, only uint8 is read (type code)",
    "the idx elements are int32, only uint8 is read (type code)",
    "the idx elements are float32, only uint8 is read (type code)",
    "the idx elements are float64, only uint8 is read (type code)",
    "an unknown idx element type (type code)",
};

static bool mpt__idx_fail(mpt__idx *idx, const char *error, int64_t expected, int64_t got) {
    idx->error = error;
    idx->expected = expected;
    idx->got = got;
    return false;
}

/* Parses a header from the first n bytes of a file; MPT__IDX_MAX_HEADER are always enough.
   file_bytes: of the whole file, unpacked, or -1: then the caller checks that exactly header_bytes
   + data_bytes come. On false, error, expected and got are set. */
static bool mpt__idx_header(mpt__idx *idx, const uint8_t *p, size_t n, int64_t file_bytes) {
    const char *cut = "the file ends inside its idx header (bytes)";
    mpt__zero(*idx);
    if (n < 4) return mpt__idx_fail(idx, cut, 4, (int64_t)n);
    if (p[0] != 0 || p[1] != 0)
        return mpt__idx_fail(
            idx, "this is not an idx file (its first two bytes)", 0, p[0] << 8 | p[1]);
    const char *type = mpt__idx_types[p[2] >= 8 && p[2] < 16 ? p[2] - 8 : 7];
    if (type) return mpt__idx_fail(idx, type, 8, p[2]);
    if (p[3] < 1) return mpt__idx_fail(idx, "an idx file without dimensions (least rank)", 1, p[3]);
    if (p[3] > MPT__IDX_MAX_RANK)
        return mpt__idx_fail(
            idx, "an idx file of too many dimensions (greatest rank)", MPT__IDX_MAX_RANK, p[3]);
    idx->rank = p[3];
    idx->header_bytes = 4 + 4 * idx->rank;
    if (n < (size_t)idx->header_bytes)
        return mpt__idx_fail(idx, cut, idx->header_bytes, (int64_t)n);

    idx->data_bytes = 1;
    for (int i = 0; i < MPT__IDX_MAX_RANK; i++) {
        int64_t most = (INT64_MAX - idx->header_bytes) / idx->data_bytes;
        const uint8_t *d = p + 4 + 4 * i;
        idx->shape[i] = 1;
        if (i < idx->rank)
            idx->shape[i] = (int64_t)d[0] << 24 | (int64_t)d[1] << 16 | (int64_t)d[2] << 8 | d[3];
        if (idx->shape[i] == 0)
            return mpt__idx_fail(idx, "an idx dimension is empty (least size)", 1, 0);
        if (idx->shape[i] > most)
            return mpt__idx_fail(idx, "the idx dimensions multiply to too much (this one at most)",
                most, idx->shape[i]);
        idx->data_bytes *= idx->shape[i];
    }
    int64_t whole = idx->header_bytes + idx->data_bytes;
    if (file_bytes < 0 || file_bytes == whole) return true;
    return mpt__idx_fail(idx,
        file_bytes < whole ? "the idx file is shorter than its dimensions say (bytes)"
                           : "the idx file is longer than its dimensions say (bytes)",
        whole, file_bytes);
}

#endif
