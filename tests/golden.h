/* golden.h: reads the reference data that tools/golden.py wrote from PyTorch.
 *
 *     golden_file file;
 *     golden_case c;
 *     if (golden_open(&file, "ops.bin"))
 *         while (golden_next(&file, &c)) { ... golden_find(&c, "out") ... }
 *     golden_close(&file);
 *
 * The format is described in tools/golden.py. Files lie in tests/golden/, or in the folder that
 * MPTRAIN_GOLDEN names. What golden_next hands out lives until its next call. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include "harness.h"
#include <math.h>
#include <stdint.h>

#include MPTRAIN_HEADER_FILE

#define GOLDEN_MAX_VALUES 16
#define GOLDEN_MAX_TENSORS 64

enum golden_role { GOLDEN_CONSTANT, GOLDEN_LEAF, GOLDEN_UPSTREAM, GOLDEN_OUTPUT, GOLDEN_GRADIENT };
enum golden_layout { GOLDEN_DENSE, GOLDEN_TRANSPOSED, GOLDEN_SLICED };

typedef struct golden_tensor {
    char name[256];
    int role, layout;
    int input; /* for an input or a gradient: the number of the op's argument */
    mpt_dtype dtype;
    mpt_shape shape;
    int64_t count;
    double rtol, atol;
    void *data; /* row-major elements in host byte order */
} golden_tensor;

typedef struct golden_case {
    char op[256], label[256];
    mpt_dtype region; /* of the autocast region the op runs in, or MPT_DTYPE_NONE */
    int n_ints, n_reals, n_tensors;
    int64_t ints[GOLDEN_MAX_VALUES];
    double reals[GOLDEN_MAX_VALUES];
    golden_tensor tensors[GOLDEN_MAX_TENSORS];
} golden_case;

typedef struct golden_file {
    unsigned char *bytes;
    size_t size, at;
    uint32_t cases;
    char version[256]; /* of the torch that made it */
    const char *name;
    void *data[GOLDEN_MAX_TENSORS];
    int n_data;
    int broken; /* read past the end: the file is not what it should be */
} golden_file;

/* For each op, outputs and gradients of its cases without a region that are PyTorch's: [out or
   gradient][fp32, fp16, bf16, of no floats]. */
typedef struct golden_count {
    char op[64];
    int equal[2][4];
} golden_count;
enum { GOLDEN_MAX_OPS = 192 };
static golden_count golden_counts[GOLDEN_MAX_OPS];
static const golden_case *golden_now;

/* Of the first input of floats. */
static inline mpt_dtype golden_case_dtype(const golden_case *c) {
    for (int i = 0; i < c->n_tensors && c->tensors[i].role <= GOLDEN_LEAF; i++)
        if (c->tensors[i].dtype <= MPT_BF16) return c->tensors[i].dtype;
    return MPT_DTYPE_NONE;
}

static inline void golden_note(const golden_tensor *want) {
    const mpt_dtype dtypes[4] = {MPT_F32, MPT_F16, MPT_BF16, MPT_DTYPE_NONE};
    if (!golden_now || golden_now->region != MPT_DTYPE_NONE || strlen(golden_now->op) > 63) return;
    if (want->role != GOLDEN_OUTPUT && want->role != GOLDEN_GRADIENT) return;
    golden_count *count = golden_counts;
    while (*count->op && strcmp(count->op, golden_now->op) != 0) count++;
    if (count == golden_counts + GOLDEN_MAX_OPS - 1) return; /* the last one stays empty */
    memcpy(count->op, golden_now->op, sizeof count->op);
    for (int k = 0; k < 4; k++)
        count->equal[want->role == GOLDEN_GRADIENT][k] +=
            golden_case_dtype(golden_now) == dtypes[k];
}

/* Lines of an op, outputs, gradients. */
static inline void golden_write_counts(const char *name) {
    const char *folder = getenv("MPTRAIN_TEST_TMP");
    FILE *out = folder && *folder ? fopen(test_path_(folder, "equal.", name), "w") : NULL;
    for (const golden_count *c = golden_counts; out && *c->op; c++)
        fprintf(out, "%s %d %d %d %d %d %d %d %d\n", c->op, c->equal[0][0], c->equal[0][1],
                c->equal[0][2], c->equal[0][3], c->equal[1][0], c->equal[1][1], c->equal[1][2],
                c->equal[1][3]);
    if (out) fclose(out);
}

static inline uint64_t golden_number(golden_file *f, size_t bytes) {
    uint64_t value = 0;
    if (f->size - f->at < bytes) {
        f->broken = 1;
        return 0;
    }
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)f->bytes[f->at + i] << 8 * i;
    f->at += bytes;
    return value;
}

static inline int golden_byte(golden_file *f) { return (int)golden_number(f, 1); }

static inline double golden_real(golden_file *f) {
    uint64_t bits = golden_number(f, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline void golden_text(golden_file *f, char text[256]) {
    int n = golden_byte(f);
    for (int i = 0; i < n; i++) text[i] = (char)golden_byte(f);
    text[n] = 0;
}

static inline mpt_dtype golden_dtype(golden_file *f) {
    static const mpt_dtype dtypes[] = {MPT_DTYPE_NONE, MPT_F32, MPT_F16, MPT_BF16,
                                       MPT_F64,        MPT_I64, MPT_U8,  MPT_BOOL};
    int code = golden_byte(f);
    if (code < 0 || code >= (int)(sizeof dtypes / sizeof *dtypes)) {
        f->broken = 1;
        return MPT_DTYPE_NONE;
    }
    return dtypes[code];
}

static inline void golden_elements(golden_file *f, golden_tensor *t) {
    size_t size = mpt_dtype_size(t->dtype);
    unsigned char *out = (unsigned char *)malloc((size_t)t->count * size + 1);
    t->data = f->data[f->n_data++] = out;
    if (!out || (f->size - f->at) / (size ? size : 1) < (size_t)t->count) {
        f->broken = 1;
        return;
    }
    for (int64_t i = 0; i < t->count; i++, out += size) {
        uint64_t bits = golden_number(f, size);
        uint32_t half = (uint32_t)bits;
        uint16_t quarter = (uint16_t)bits;
        uint8_t byte = (uint8_t)bits;
        const void *from = size == 8   ? (const void *)&bits
                           : size == 4 ? (const void *)&half
                           : size == 2 ? (const void *)&quarter
                                       : (const void *)&byte;
        memcpy(out, from, size);
    }
}

static inline void golden_read_tensor(golden_file *f, golden_tensor *t) {
    golden_text(f, t->name);
    t->role = golden_byte(f);
    t->input = golden_byte(f);
    t->dtype = golden_dtype(f);
    t->layout = golden_byte(f);
    t->rtol = golden_real(f);
    t->atol = golden_real(f);
    t->shape = MPT_SCALAR;
    t->shape.rank = golden_byte(f);
    t->count = 1;
    if (t->shape.rank > MPT_MAX_RANK) {
        f->broken = 1;
        return;
    }
    for (int d = 0; d < t->shape.rank; d++) {
        t->shape.dim[d] = (int64_t)golden_number(f, 4);
        t->count *= t->shape.dim[d];
    }
    golden_elements(f, t);
}

static inline void golden_drop_data(golden_file *f) {
    while (f->n_data > 0) free(f->data[--f->n_data]);
}

/* False at the end, and on a broken file, which fails the running test. */
static inline int golden_next(golden_file *f, golden_case *c) {
    golden_drop_data(f);
    golden_now = c;
    if (f->cases == 0) return 0;
    f->cases--;
    golden_text(f, c->op);
    golden_text(f, c->label);
    c->region = golden_dtype(f);
    c->n_ints = golden_byte(f);
    for (int i = 0; i < c->n_ints && i < GOLDEN_MAX_VALUES; i++)
        c->ints[i] = (int64_t)golden_number(f, 8);
    c->n_reals = golden_byte(f);
    for (int i = 0; i < c->n_reals && i < GOLDEN_MAX_VALUES; i++) c->reals[i] = golden_real(f);
    c->n_tensors = golden_byte(f);
    f->broken |= c->n_ints > GOLDEN_MAX_VALUES || c->n_reals > GOLDEN_MAX_VALUES ||
                 c->n_tensors > GOLDEN_MAX_TENSORS;
    for (int i = 0; i < c->n_tensors && !f->broken; i++) golden_read_tensor(f, &c->tensors[i]);
    CHECK(!f->broken);
    return !f->broken;
}

static inline void golden_close(golden_file *f) {
    golden_drop_data(f);
    free(f->bytes);
    f->bytes = NULL;
    if (golden_now) golden_write_counts(f->name);
    golden_now = NULL;
}

/* False if the file is missing or another one, which fails the running test. */
static inline int golden_open(golden_file *f, const char *name) {
    const char *folder = getenv("MPTRAIN_GOLDEN");
    const char *path = test_path_(folder && *folder ? folder : "tests/golden", "", name);
    FILE *in = fopen(path, "rb");
    size_t room = 1 << 16, got;
    memset(f, 0, sizeof *f);
    f->name = name;
    if (!in) {
        TEST_FAIL_("cannot open %s; MPTRAIN_GOLDEN names the folder", path);
        return 0;
    }
    f->bytes = (unsigned char *)malloc(room);
    while (f->bytes && (got = fread(f->bytes + f->size, 1, room - f->size, in)) > 0) {
        f->size += got;
        if (f->size == room) {
            unsigned char *more = (unsigned char *)realloc(f->bytes, room *= 2);
            if (!more) free(f->bytes);
            f->bytes = more;
        }
    }
    fclose(in);
    f->at = 8;
    if (!f->bytes || f->size < 16 || memcmp(f->bytes, "MPTGOLD1", 8) != 0) {
        TEST_FAIL_("%s is no golden file", path);
        golden_close(f);
        return 0;
    }
    golden_text(f, f->version);
    f->cases = (uint32_t)golden_number(f, 4);
    return 1;
}

/* The tensor of that name; a missing one fails the test and is an empty tensor. */
static inline const golden_tensor *golden_find(const golden_case *c, const char *name) {
    static const golden_tensor empty = {"", 0, 0, 0, MPT_F32, {0, {0}}, 0, 0, 0, NULL};
    for (int i = 0; i < c->n_tensors; i++)
        if (strcmp(c->tensors[i].name, name) == 0) return &c->tensors[i];
    TEST_FAIL_("%s has no tensor %s", c->label, name);
    return &empty;
}

/* Element i of a tensor of any dtype, exactly. */
static inline double golden_value(const golden_tensor *t, int64_t i) {
    const unsigned char *at = (const unsigned char *)t->data + (size_t)i * mpt_dtype_size(t->dtype);
    uint16_t half;
    float single;
    double real;
    int64_t integer;
    switch (mpt_dtype_size(t->dtype)) {
    case 8:
        memcpy(&real, at, 8);
        memcpy(&integer, at, 8);
        return t->dtype == MPT_I64 ? (double)integer : real;
    case 4:
        memcpy(&single, at, 4);
        return single;
    case 2:
        memcpy(&half, at, 2);
        break;
    default:
        return *at;
    }
    int exponent_bits = t->dtype == MPT_F16 ? 5 : 8, fraction_bits = 15 - exponent_bits;
    int exponent = half >> fraction_bits & ((1 << exponent_bits) - 1);
    int fraction = half & ((1 << fraction_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    real = exponent == (1 << exponent_bits) - 1 ? (fraction ? NAN : INFINITY)
           : exponent ? ldexp(fraction | 1 << fraction_bits, exponent - bias - fraction_bits)
                      : ldexp(fraction, 1 - bias - fraction_bits);
    return half & 0x8000 ? -real : real;
}

/* Compares got[0..count) with elements of `want` from `first` on. NaN equals NaN, an infinity only
   itself. Prints the first difference and their number. Returns the number. */
static inline int64_t golden_compare(const char *label, const golden_tensor *want, int64_t first,
                                     const float *got, int64_t count) {
    int64_t wrong = 0, at = -1;
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double w = golden_value(want, first + i), g = got[i];
        double off = fabs(g - w);
        if (g == w || (isnan(g) && isnan(w))) continue;
        if (!isinf(w) && off <= want->atol + want->rtol * fabs(w)) continue;
        wrong++;
        if (at < 0 || !(off <= worst)) {
            worst = off;
            at = i;
        }
    }
    if (wrong)
        TEST_FAIL_("%s: %s: %ld of %ld differ; at %ld %.9g, expected %.9g (rtol %.2g, atol %.2g)",
                   label, want->name, (long)wrong, (long)count, (long)at, (double)got[at],
                   golden_value(want, first + at), want->rtol, want->atol);
    else if (first == 0 && count == want->count)
        golden_note(want);
    return wrong;
}

/* A float in [-1, 1), exact, from a hash of (stream, index): `uniform` in tools/golden.py. */
static inline float golden_uniform(uint32_t stream, uint32_t index) {
    uint32_t x = index * 0x9E3779B9u + stream * 0x85EBCA6Bu;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    x ^= x >> 16;
    return (float)((double)(x >> 8) / 8388608.0 - 1.0);
}

/* PyTorch's mean test accuracy in percent over seeds 0 to 4 on MNIST, in fp32; optimizer "adamw" or
   "sgd", inputs "half", "none" or "statistics" (how they were normalised: mnist_reference.txt says
   it). 0 if the file does not tell, which fails the running test. */
static inline double golden_mnist_mean(const char *optimizer, const char *inputs) {
    const char *folder = getenv("MPTRAIN_GOLDEN");
    const char *path =
        test_path_(folder && *folder ? folder : "tests/golden", "", "mnist_reference.txt");
    char line[256], want[64];
    double mean = 0;
    FILE *in = fopen(path, "r");
    snprintf(want, sizeof want, "%s %s mean ", optimizer, inputs);
    while (in && fgets(line, sizeof line, in))
        if (strncmp(line, want, strlen(want)) == 0) mean = strtod(line + strlen(want), NULL);
    if (in) fclose(in);
    if (mean == 0) TEST_FAIL_("%s has no mean of %s %s", path, optimizer, inputs);
    return mean;
}

/* ==== Cases that a test runs one after another in its context ==== */

static inline void golden_compare_tensor(mpt_context *context, const golden_case *c,
                                         const golden_tensor *want, mpt_tensor tensor) {
    float *got = (float *)calloc((size_t)want->count + 1, sizeof *got);
    if (mpt_failed(context) || mpt_read_f32(tensor, got, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s", c->label, mpt_error(context));
    else
        golden_compare(c->label, want, 0, got, want->count);
    free(got);
}

/* The gradients of a case's leaves, of which in[i] is the one at place i. */
static inline void golden_compare_gradients(mpt_context *context, const golden_case *c,
                                            const mpt_tensor *in) {
    for (int i = 0; i < c->n_tensors; i++)
        if (c->tensors[i].role == GOLDEN_GRADIENT)
            golden_compare_tensor(context, c, &c->tensors[i], mpt_grad(in[c->tensors[i].input]));
}

/* Runs all cases of a file, which are more than `least`, and counts those that differ. */
static inline void golden_run(mpt_context *context, const char *name,
                              void (*run)(const golden_case *c), int least) {
    golden_file file;
    static golden_case c;
    int count = 0, failed = 0;
    REQUIRE(golden_open(&file, name));
    while (golden_next(&file, &c)) {
        int before = test_failures;
        run(&c);
        count++;
        failed += test_failures != before;
        mpt_clear_error(context);
    }
    if (failed) printf("\n  %d of %d cases differ from torch %s", failed, count, file.version);
    CHECK(count > least);
    golden_close(&file);
}

#endif
