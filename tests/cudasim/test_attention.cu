/* test_attention.cu: attention of the CUDA backend on tensor cores against its kernels for all
   cards, forward and backward, over lengths, head sizes, groups, masks, layouts and dtypes. Runs on
   a GPU as it is, and on the CPU with the sources rewritten (products.sh). */
#include <mptrain_cuda.cu>

#include <vector>

#include "../harness.h"
#ifdef CUDASIM_H
#include "control.h"
#endif

namespace {

/* ==== A device and arrays on it ==== */

enum part { Q, K, V, MASK, OUT, LSE, DOUT, DELTA, DQ, DK, DV, PARTS };
enum layout { BY_HEAD, BY_ROW, ODD }; /* [B, H, T, D]; [B, T, H, D]; the first, one element apart */

struct shape {
    int batch, heads, groups, queries, keys, depth, width;
    bool causal;
    int window, past;
    int mask; /* 0: none, 1: a length for each sample, 2: numbers added, 3: halves added */
    double dropout;
    layout lie;
    int stored; /* the dtype of q, k, v and dout; 0: that of the products */
};

mpt__backend backend;
mpt__cuda *cuda;
mpt__launch launch;
mpt__operand operand[PARTS];
std::vector<unsigned char> memory[PARTS]; /* on the host */
unsigned char *storage[PARTS];            /* on the device */
uint64_t random_state = 1;

double uniform() {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(random_state >> 40) / (1 << 23) - 1;
}

bool have_device() {
    if (cuda == NULL && mpt__cuda_backend_create(&backend, MPTRAIN_VERSION, 0, false) == MPT_OK)
        cuda = (mpt__cuda *)backend.self;
    return cuda != NULL;
}

double decode(const unsigned char *from, int dtype) {
    float f;
    unsigned short bits;
    memcpy(&f, from, dtype == MPT_F32 ? 4 : 0);
    memcpy(&bits, from, dtype == MPT_F16 || dtype == MPT_BF16 ? 2 : 0);
    if (dtype == MPT_F16) return (double)__half2float(__ushort_as_half(bits));
    if (dtype == MPT_BF16) return (double)__bfloat162float(__ushort_as_bfloat16(bits));
    return dtype == MPT_F32 ? (double)f : (double)*from;
}

void encode(unsigned char *to, int dtype, double x) {
    const float f = (float)x;
    const unsigned short bits = dtype == MPT_F16 ? __half_as_ushort(__float2half_rn(f))
                                                 : __bfloat16_as_ushort(__float2bfloat16_rn(f));
    if (dtype == MPT_F32)
        memcpy(to, &f, 4);
    else if (dtype == MPT_F16 || dtype == MPT_BF16)
        memcpy(to, &bits, 2);
    else
        *to = (unsigned char)x;
}

double rounded(double x, int dtype) {
    unsigned char element[4];
    encode(element, dtype, x);
    return decode(element, dtype);
}

size_t place(int i, int b, int h, int row, int column) {
    const int64_t *s = operand[i].stride;
    const int64_t at = operand[i].offset + b * s[0] + h * s[1] + row * s[2] + column * s[3];
    return (size_t)at * mpt__bytes_of(operand[i].dtype);
}

double value(int i, int b, int h, int row, int column) {
    return decode(&memory[i][place(i, b, h, row, column)], operand[i].dtype);
}

/* An operand [batch, heads, rows, columns], filled with numbers. */
void add(int i, int dtype, int access, int batch, int heads, int rows, int columns, layout lie) {
    mpt__operand &o = operand[i];
    const int64_t apart = lie == ODD ? 2 : 1, gap = lie == ODD ? 3 : 0;
    const int64_t shape[4] = {batch, heads, rows, columns};
    memset(&o, 0, sizeof o);
    o.storage = (uint32_t)i + 1;
    o.dtype = (uint8_t)dtype;
    o.access = (uint8_t)access;
    o.rank = 4;
    o.offset = lie == ODD ? 1 : 0;
    memcpy(o.shape, shape, sizeof shape);
    o.stride[3] = apart;
    o.stride[2] = lie == BY_ROW ? heads * columns : columns * apart + gap;
    o.stride[1] = lie == BY_ROW ? columns : rows * o.stride[2];
    o.stride[0] = (int64_t)heads * rows * (columns * apart + gap);
    memory[i].resize((size_t)(1 + batch * o.stride[0]) * mpt__bytes_of(dtype));
    for (size_t at = 0; at < memory[i].size(); at += mpt__bytes_of(dtype))
        encode(&memory[i][at], dtype, uniform());
    cudaFree(storage[i]);
    cudaMalloc(&storage[i], memory[i].size());
}

/* The mask of one sample for all its heads. */
void add_mask(const shape &s, int half) {
    if (s.mask == 0) {
        memset(&operand[MASK], 0, sizeof operand[MASK]);
        return;
    }
    const int dtype = s.mask == 1 ? MPT_BOOL : s.mask == 2 ? MPT_F32 : half;
    add(MASK, dtype, MPT__READ, s.batch, 1, s.queries, s.keys, BY_HEAD);
    operand[MASK].stride[1] = 0;
    for (int b = 0; b < s.batch; b++) {
        const int length = s.keys - (b * 5 + 3) % s.keys;
        for (int t = 0; t < s.queries; t++) {
            for (int k = 0; k < s.keys; k++) {
                unsigned char *at = &memory[MASK][place(MASK, b, 0, t, k)];
                if (s.mask == 1) *at = k < length;
                if (s.mask > 1 && (t * 7 + k) % 11 == 0) encode(at, dtype, (double)-INFINITY);
            }
        }
    }
}

mpt_status run(mpt_status (*kernel)(const mpt__cuda_call *), int kind, std::vector<int> parts) {
    mpt__cuda_call call;
    memset(&call, 0, sizeof call);
    launch.kernel = (uint8_t)kind;
    launch.n_operands = (uint8_t)parts.size();
    for (size_t i = 0; i < parts.size(); i++) {
        const int part = parts[i];
        memset(&launch.operand[i], 0, sizeof launch.operand[i]);
        if (part < 0) continue;
        launch.operand[i] = operand[part];
        if (operand[part].storage == 0) continue;
        call.data[i] =
            storage[part] + operand[part].offset * (int64_t)mpt__bytes_of(operand[part].dtype);
        cudaMemcpyAsync(storage[part], memory[part].data(), memory[part].size(),
                        cudaMemcpyHostToDevice, cuda->stream);
    }
    void *workspace = NULL;
    const int64_t bytes = mpt__cuda_workspace_bytes(cuda, &launch);
    if (bytes > 0) CHECK_EQ_INT(cudaMalloc(&workspace, (size_t)bytes), cudaSuccess);
    call.workspace = workspace;
    call.cuda = cuda;
    call.launch = &launch;
    call.stream = cuda->stream;
    const mpt_status status = kernel(&call);
    CHECK_EQ_INT(cudaGetLastError(), cudaSuccess);
    CHECK_EQ_INT(cudaStreamSynchronize(cuda->stream), cudaSuccess);
    cudaFree(workspace);
    for (int part : parts) {
        if (part < OUT || operand[part].access == MPT__READ) continue;
        cudaMemcpy(memory[part].data(), storage[part], memory[part].size(),
                   cudaMemcpyDeviceToHost);
    }
    return status;
}

void forward() {
    operand[OUT].access = operand[LSE].access = MPT__WRITE;
    CHECK_EQ_INT(run(mpt__cuda_attention, MPT__K_ATTENTION, {Q, K, V, MASK, OUT, LSE}), MPT_OK);
    operand[OUT].access = operand[LSE].access = MPT__READ;
}

void backward() {
    operand[DELTA].access = MPT__WRITE;
    CHECK_EQ_INT(run(mpt__cuda_attention_dq, MPT__K_ATTENTION_DQ,
                     {Q, K, V, MASK, LSE, DOUT, DELTA, DQ, OUT}),
                 MPT_OK);
    operand[DELTA].access = MPT__READ;
    CHECK_EQ_INT(run(mpt__cuda_attention_dkv, MPT__K_ATTENTION_DKV,
                     {Q, K, V, MASK, LSE, DOUT, DELTA, DK, DV}),
                 MPT_OK);
}

void prepare(const shape &s, int half) {
    const int stored = s.stored ? s.stored : half;
    const int grad = s.lie == BY_ROW ? MPT__ACCUMULATE : MPT__WRITE;
    memset(&launch, 0, sizeof launch);
    launch.compute_dtype = (uint8_t)(s.lie == BY_HEAD && !s.stored ? MPT_F32 : half);
    launch.imm[0] = 1 / sqrt((double)s.depth);
    launch.imm[1] = s.dropout;
    launch.index[0] = s.causal, launch.index[1] = s.window, launch.index[2] = s.past;
    launch.rng.seed = 7, launch.rng.stream = 3, launch.rng.call = 5;
    add(Q, stored, MPT__READ, s.batch, s.heads, s.queries, s.depth, s.lie);
    add(K, stored, MPT__READ, s.batch, s.groups, s.keys, s.depth, s.lie);
    add(V, stored, MPT__READ, s.batch, s.groups, s.keys, s.width, s.lie);
    add_mask(s, half);
    add(OUT, stored, MPT__WRITE, s.batch, s.heads, s.queries, s.width, s.lie);
    add(LSE, MPT_F32, MPT__WRITE, s.batch, s.heads, s.queries, 1, BY_HEAD);
    add(DOUT, stored, MPT__READ, s.batch, s.heads, s.queries, s.width, s.lie);
    add(DELTA, MPT_F32, MPT__WRITE, s.batch, s.heads, s.queries, 1, BY_HEAD);
    add(DQ, stored, grad, s.batch, s.heads, s.queries, s.depth, s.lie);
    add(DK, stored, grad, s.batch, s.groups, s.keys, s.depth, s.lie);
    add(DV, MPT_F32, grad, s.batch, s.groups, s.keys, s.width, s.lie);
}

/* ==== What may differ ==== */

/* Sums of the absolute terms of each result, by which the rounding of weights, slopes and dout to
   16 bits moves it: as doubles, in the order of the arrays. */
std::vector<double> terms[PARTS];

double *term(int i, int b, int h, int row, int column) {
    const int64_t *n = operand[i].shape;
    return &terms[i][(size_t)(((b * n[1] + h) * n[2] + row) * n[3] + column)];
}

bool sees(const shape &s, int b, int t, int k) {
    if (s.causal && k > t + s.past) return false;
    if (s.causal && s.window > 0 && k <= t + s.past - s.window) return false;
    if (s.mask == 1) return value(MASK, b, 0, t, k) != 0;
    return s.mask == 0 || !isinf(value(MASK, b, 0, t, k));
}

void sum_terms(const shape &s, int half) {
    const double kept = s.dropout > 0 ? 1 / (1 - s.dropout) : 1;
    for (int i : {(int)OUT, (int)DQ, (int)DK, (int)DV})
        terms[i].assign((size_t)mpt__numel(operand[i]), 0);
    for (int b = 0; b < s.batch; b++) {
        for (int h = 0; h < s.heads; h++) {
            const int g = h / (s.heads / s.groups);
            for (int t = 0; t < s.queries; t++) {
                const double lse = value(LSE, b, h, t, 0);
                for (int k = 0; k < s.keys; k++) {
                    if (!sees(s, b, t, k)) continue;
                    double score = 0, dp = 0, sizes = 0;
                    for (int c = 0; c < s.depth; c++)
                        score += rounded(value(Q, b, h, t, c), half) *
                                 rounded(value(K, b, g, k, c), half);
                    score *= launch.imm[0];
                    if (s.mask > 1) score += value(MASK, b, 0, t, k);
                    const double p = exp(score - lse) * kept;
                    for (int c = 0; c < s.width; c++) {
                        const double x = value(V, b, g, k, c), d = value(DOUT, b, h, t, c);
                        dp += x * d, sizes += fabs(x * d);
                        *term(OUT, b, h, t, c) += p * fabs(x);
                        *term(DV, b, g, k, c) += p * fabs(d);
                    }
                    /* Of a slope: dp and delta move too, where dout is rounded. */
                    const double slope = p * (fabs(dp) + fabs(value(DELTA, b, h, t, 0)) +
                                              (s.stored ? sizes : 0)) * launch.imm[0];
                    for (int c = 0; c < s.depth; c++) {
                        *term(DQ, b, h, t, c) += slope * fabs(value(K, b, g, k, c));
                        *term(DK, b, g, k, c) += slope * fabs(value(Q, b, h, t, c));
                    }
                }
            }
        }
    }
}

/* |a - b| <= u (terms + 2 |b|) + a little, where u is half an ulp of 16 bits, to which both are
   rounded. */
void compare(const char *what, int i, const std::vector<unsigned char> &other, int half) {
    const double u = half == MPT_F16 ? 0x1p-11 : 0x1p-8;
    const int64_t *n = operand[i].shape;
    long long differ = 0;
    for (int b = 0; b < n[0]; b++)
        for (int h = 0; h < n[1]; h++)
            for (int r = 0; r < n[2]; r++)
                for (int c = 0; c < n[3]; c++) {
                    const size_t at = place(i, b, h, r, c);
                    const double x = decode(&memory[i][at], operand[i].dtype);
                    const double y = decode(&other[at], operand[i].dtype);
                    const double terms_of = terms[i].empty() ? 0 : *term(i, b, h, r, c);
                    const double room = terms[i].empty()
                                            ? 2e-5 * (1 + fabs(y))
                                            : u * 1.02 * (terms_of + 2 * fabs(y)) + 2e-6;
                    if (fabs(x - y) <= room || x == y || (isnan(x) && isnan(y))) continue;
                    if (differ++ == 0)
                        TEST_FAIL_("%s [%d %d %d %d] is %.9g, by the other kernel %.9g, room %.3g",
                                   what, b, h, r, c, x, y, room);
                }
    if (differ > 0) TEST_FAIL_("%s: %lld differ", what, differ);
}

/* Forward and backward by both kernels, of the same numbers. */
void check(const shape &s, int half) {
    static const char *const names[PARTS] = {"q",    "k",     "v",  "mask", "out", "lse",
                                             "dout", "delta", "dq", "dk",   "dv"};
    std::vector<unsigned char> start[PARTS], plain[PARTS];
    prepare(s, half);
    for (int i = 0; i < PARTS; i++) start[i] = memory[i];
    cuda->matrix = false;
    forward();
    backward();
    for (int i = OUT; i < PARTS; i++) plain[i] = memory[i], memory[i] = start[i];
    cuda->matrix = true;
    forward();
    for (int i : {(int)OUT, (int)LSE}) memory[i].swap(plain[i]);
    backward();
    sum_terms(s, half);
    for (int i : {(int)OUT, (int)LSE}) memory[i].swap(plain[i]);
    for (int i : {(int)OUT, (int)LSE, (int)DELTA, (int)DQ, (int)DK, (int)DV}) {
        if (i == LSE || i == DELTA) terms[i].clear();
        compare(names[i], i, plain[i], half);
    }
}

/* ==== Tests ==== */

TEST(any_length) {
    static const int lengths[] = {1, 7, 64, 65, 129, 200};
    REQUIRE(have_device());
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    for (int i = 0; i < 6; i++) {
        for (int causal = 0; causal < 2; causal++) {
            const int n = lengths[i], half = (i + causal) % 2 ? MPT_F16 : MPT_BF16;
            const shape s = {1, 2, 2, n, n, 64, 64, causal != 0, 0, 0, 0, 0, BY_ROW, 0};
            const shape fewer = {1, 1, 1, n, lengths[5 - i], 32, 32, causal != 0, 0,
                                 lengths[5 - i] > n ? lengths[5 - i] - n : 0, 0, 0, BY_HEAD, 0};
            check(s, half);
            check(fewer, half);
        }
    }
}

TEST(any_head) {
    static const int depths[] = {32, 64, 80, 96, 128, 1, 20, 40};
    REQUIRE(have_device());
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    for (int i = 0; i < 8; i++) {
        const int half = i % 2 ? MPT_BF16 : MPT_F16, other = i == 6 ? 36 : depths[i];
        const shape s = {1, 4, 2, 67, 67, depths[i], other, true, 0, 0, 0, 0, BY_ROW, 0};
        const shape odd = {2, 2, 1, 35, 50, depths[i], depths[i], false, 0, 0, 1, 0, ODD, 0};
        check(s, half);
        check(odd, half);
    }
}

TEST(any_mask) {
    REQUIRE(have_device());
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    for (int mask = 0; mask < 4; mask++) {
        for (int i = 0; i < 4; i++) {
            const int half = (i + mask) % 2 ? MPT_F16 : MPT_BF16;
            const shape s = {i ? 1 : 2, 2, 1, 70, 133, i % 2 ? 64 : 96, i % 2 ? 64 : 96, i > 1,
                             i == 3 ? 40 : 0, i > 1 ? 63 : 0, mask, i == 1 ? 0.25 : 0,
                             BY_ROW, i == 2 ? MPT_F32 : 0};
            check(s, half);
        }
    }
}

/* ==== What is hidden ==== */

/* Whether a query sees anything, and a row of queries or keys that is not finite. */
struct poison {
    int part, row;
    double x;
};

bool sees_any(const shape &s, int t) {
    for (int k = 0; k < s.keys; k++)
        if (sees(s, 0, t, k)) return true;
    return false;
}

/* Whether what a query gives depends on what is not finite: forward, or also backward. */
bool spoils(const shape &s, const poison &p, int h, int t, bool back) {
    if (p.part == Q || (p.part == DOUT && back)) return h == 0 && t == p.row && sees_any(s, t);
    return (p.part == K || p.part == V) && h / (s.heads / s.groups) == 0 && sees(s, 0, t, p.row);
}

bool depends(const shape &s, const poison &p, int result, int h, int row) {
    if (result == OUT || result == LSE || result == DQ) return spoils(s, p, h, row, result == DQ);
    for (int head = 0; head < s.heads; head++)
        for (int t = 0; t < s.queries; t++)
            if (head / (s.heads / s.groups) == h && sees(s, 0, t, row) &&
                spoils(s, p, head, t, true))
                return true;
    return false;
}

/* Rows that do not depend on what is not finite have the bits that they have without it; of the
   others the same elements are finite as by the other kernels, if those round the same. */
void check_hidden(const shape &s, int half, const poison &p) {
    std::vector<unsigned char> start[PARTS], clean[PARTS], plain[PARTS];
    prepare(s, half);
    if (s.mask == 2) /* a query that sees nothing */
        for (int k = 0; k < s.keys; k++)
            encode(&memory[MASK][place(MASK, 0, 0, 10, k)], MPT_F32, (double)-INFINITY);
    for (int i = 0; i < PARTS; i++) start[i] = memory[i];
    for (int way = 0; way < 3; way++) {
        cuda->matrix = way != 1;
        for (int i = OUT; i < PARTS; i++) memory[i] = start[i];
        if (way > 0)
            for (int c = 0; c < 2; c++)
                encode(&memory[p.part][place(p.part, 0, 0, p.row, 7 * c)], operand[p.part].dtype,
                       p.x);
        forward();
        backward();
        for (int i = OUT; i < PARTS && way < 2; i++) (way ? plain : clean)[i] = memory[i];
    }
    for (int i : {(int)OUT, (int)LSE, (int)DQ, (int)DK, (int)DV}) {
        const int64_t *n = operand[i].shape;
        const size_t size = mpt__bytes_of(operand[i].dtype);
        int moved = 0, other = 0;
        for (int h = 0; h < n[1]; h++)
            for (int r = 0; r < n[2]; r++) {
                const bool depend = depends(s, p, i, h, r);
                for (int c = 0; c < n[3]; c++) {
                    const size_t at = place(i, 0, h, r, c);
                    if (!depend) moved += memcmp(&memory[i][at], &clean[i][at], size) != 0;
                    if (depend && !isfinite(p.x))
                        other += isfinite(decode(&memory[i][at], operand[i].dtype)) !=
                                 isfinite(decode(&plain[i][at], operand[i].dtype));
                }
            }
        if (moved + other > 0)
            TEST_FAIL_("heads of %d, mask %d, array %d with %g in %d: %d moved, %d else finite",
                       s.depth, s.mask, i, p.x, p.part, moved, other);
    }
}

/* What is not seen may be NaN or infinite, or become so by rounding: it changes no bit of what is
   seen. */
TEST(what_is_hidden_does_not_leak) {
    static const shape shapes[] = {
        {1, 2, 1, 90, 90, 64, 64, true, 0, 0, 0, 0, BY_ROW, 0},
        {1, 2, 2, 41, 70, 32, 32, true, 17, 29, 0, 0, BY_HEAD, 0},
        {1, 1, 1, 70, 70, 96, 96, true, 0, 0, 0, 0, BY_ROW, 0},
        {1, 1, 1, 70, 70, 64, 64, false, 0, 0, 1, 0, BY_HEAD, 0},
        {1, 2, 1, 40, 50, 20, 36, false, 0, 0, 2, 0.25, ODD, 0},
        {1, 1, 1, 40, 40, 128, 128, true, 0, 0, 2, 0, BY_ROW, MPT_F32},
        {1, 1, 1, 40, 50, 64, 64, false, 0, 0, 2, 0, BY_HEAD, MPT_F32},
    };
    static const double values[] = {NAN, INFINITY, -INFINITY};
    REQUIRE(have_device());
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    for (int i = 0; i < 7; i++) {
        for (int part : {(int)V, (int)K, (int)Q, (int)DOUT}) {
            const shape &s = shapes[i];
            const bool key = part == K || part == V;
            const int half = i == 0 || i == 2 || i == 4 ? MPT_BF16 : MPT_F16;
            const poison p = {part, key ? s.keys - 1 - s.causal * 17 : 10, values[(i + part) % 3]};
            const poison large = {part, p.row, 1e6}; /* beyond fp16 */
            check_hidden(s, half, p);
            if (s.stored == MPT_F32) check_hidden(s, half, large);
        }
    }
}

TEST(the_same_bits_again) {
    REQUIRE(have_device());
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    const shape s = {2, 4, 2, 130, 130, 64, 64, true, 0, 0, 1, 0.1, BY_HEAD, 0};
    std::vector<unsigned char> start[PARTS], first[PARTS];
    prepare(s, MPT_F16);
    for (int i = 0; i < PARTS; i++) start[i] = memory[i];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = OUT; i < PARTS; i++) memory[i] = start[i];
        forward();
        backward();
        for (int i = OUT; i < PARTS; i++) {
            if (pass == 1) CHECK(memory[i] == first[i]);
            first[i] = memory[i];
        }
    }
}

/* That tensor cores are taken is seen by what they round, and in the simulator by name. */
TEST(tensor_cores_are_taken_where_they_can_be) {
    REQUIRE(have_device());
#ifdef CUDASIM_H
    CHECK(cuda->matrix); /* of a card that has them */
#endif
    if (!cuda->matrix) SKIP("a GPU of compute capability 8.0");
    static const struct {
        shape s;
        int half;
        bool taken;
    } cases[] = {{{1, 1, 1, 70, 70, 64, 64, true, 0, 0, 0, 0, BY_ROW, 0}, MPT_F16, true},
                 {{1, 1, 1, 70, 70, 64, 64, true, 0, 0, 0, 0, BY_ROW, 0}, MPT_BF16, true},
                 {{1, 1, 1, 70, 70, 128, 96, false, 0, 0, 0, 0, ODD, MPT_F32}, MPT_BF16, true},
                 {{1, 1, 1, 9, 9, 136, 136, false, 0, 0, 0, 0, BY_ROW, 0}, MPT_BF16, false},
                 {{1, 1, 1, 70, 70, 64, 64, true, 0, 0, 0, 0, BY_ROW, MPT_F32}, MPT_F32, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        std::vector<unsigned char> start[PARTS], plain[PARTS];
        prepare(cases[i].s, cases[i].half);
        for (int j = 0; j < PARTS; j++) start[j] = memory[j];
        cuda->matrix = false;
        forward();
        backward();
        for (int j = OUT; j < PARTS; j++) plain[j] = memory[j], memory[j] = start[j];
        cuda->matrix = true;
#ifdef CUDASIM_H
        const unsigned long long before = cudasim_launched("mpt__attention_matrix_kernel");
        const unsigned long long back = cudasim_launched("mpt__attention_matrix_back_kernel");
#endif
        forward();
        backward();
        CHECK_EQ_INT(memory[OUT] != plain[OUT], cases[i].taken);
        for (int j : {(int)DQ, (int)DK, (int)DV})
            CHECK_EQ_INT(memory[j] != plain[j], cases[i].taken);
#ifdef CUDASIM_H
        CHECK_EQ_INT(cudasim_launched("mpt__attention_matrix_kernel") > before, cases[i].taken);
        CHECK_EQ_INT(cudasim_launched("mpt__attention_matrix_back_kernel") > back + 1,
                     cases[i].taken);
#endif
    }
#ifdef CUDASIM_H
    for (int capability = 75; capability <= 80; capability += 5) {
        mpt__backend other;
        cudasim_set_capability(capability);
        REQUIRE(mpt__cuda_backend_create(&other, MPTRAIN_VERSION, 0, false) == MPT_OK);
        CHECK_EQ_INT(((mpt__cuda *)other.self)->matrix, capability >= 80);
        other.destroy(other.self);
    }
    cudasim_set_capability(90);
#endif
}

} // namespace

TEST_TABLE = {
    T(any_length),
    T(any_head),
    T(any_mask),
    T(what_is_hidden_does_not_leak),
    T(the_same_bits_again),
    T(tensor_cores_are_taken_where_they_can_be),
};
TEST_MAIN
