// cublaslt.cpp - matrix products with cuBLASLt's interface and rules: which types go together, what
// alignment and workspace an algorithm needs, what the layouts must agree on. Inputs are multiplied
// and summed in fp32 (TF32 inputs where asked), and rounded once to the output's type.
//
// The algorithms that the heuristic offers differ in the order of summation, so that a program
// which does not keep to one gets other bits, and in what they need. They scribble over their
// workspace.
#include "simulator.h"
#include <cublasLt.h>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

using namespace cudasim;

namespace {

// ---- What the opaque structs of the header hold -------------------------------------------------

struct operation {
    int32_t compute, scale, pointer_mode, transpose_a, transpose_b, bias_type;
    uint32_t epilogue;
    const void *bias;
    int64_t bias_stride;
};

struct layout {
    uint32_t type;
    int32_t order, batch;
    uint64_t rows, cols;
    int64_t ld, stride;
};

struct preference {
    uint64_t workspace;
    uint32_t search, reductions;
    uint32_t alignment[4]; // of A, B, C, D
};

const int SAME_AS_OUTPUT = -1;

struct attribute {
    int id;
    size_t offset, size;
};
#define FIELD(id, type, name) \
    { id, offsetof(type, name), sizeof(type::name) }

const attribute operation_attributes[] = {
    FIELD(CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, operation, compute),
    FIELD(CUBLASLT_MATMUL_DESC_SCALE_TYPE, operation, scale),
    FIELD(CUBLASLT_MATMUL_DESC_POINTER_MODE, operation, pointer_mode),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSA, operation, transpose_a),
    FIELD(CUBLASLT_MATMUL_DESC_TRANSB, operation, transpose_b),
    FIELD(CUBLASLT_MATMUL_DESC_EPILOGUE, operation, epilogue),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operation, bias),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, operation, bias_type),
    FIELD(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, operation, bias_stride),
};
const attribute layout_attributes[] = {
    FIELD(CUBLASLT_MATRIX_LAYOUT_TYPE, layout, type),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ORDER, layout, order),
    FIELD(CUBLASLT_MATRIX_LAYOUT_ROWS, layout, rows),
    FIELD(CUBLASLT_MATRIX_LAYOUT_COLS, layout, cols),
    FIELD(CUBLASLT_MATRIX_LAYOUT_LD, layout, ld),
    FIELD(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, layout, batch),
    FIELD(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, layout, stride),
};
const attribute preference_attributes[] = {
    FIELD(CUBLASLT_MATMUL_PREF_SEARCH_MODE, preference, search),
    FIELD(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, preference, workspace),
    FIELD(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, preference, reductions),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, preference, alignment[0]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, preference, alignment[1]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, preference, alignment[2]),
    FIELD(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, preference, alignment[3]),
};

template <size_t count>
cublasStatus_t set(void *object, const attribute (&known)[count], int id, const void *value,
                   size_t size) {
    for (const attribute &a : known) {
        if (a.id != id) continue;
        if (size != a.size) return CUBLAS_STATUS_INVALID_VALUE;
        memcpy((char *)object + a.offset, value, size);
        return CUBLAS_STATUS_SUCCESS;
    }
    die("cuBLASLt: attribute %d is not simulated", id);
}

// The header's structs are as large as ours, or larger; ours lies at their start.
template <class Mine, class Theirs> cublasStatus_t create(Theirs **object, const Mine &value) {
    static_assert(sizeof(Mine) <= sizeof(Theirs), "fits");
    *object = new Theirs{};
    memcpy((void *)*object, &value, sizeof value);
    return CUBLAS_STATUS_SUCCESS;
}
const operation &mine(cublasLtMatmulDesc_t d) { return *(const operation *)d; }
const layout &mine(cublasLtMatrixLayout_t d) { return *(const layout *)d; }
const preference &mine(cublasLtMatmulPreference_t d) { return *(const preference *)d; }

// ---- Algorithms ---------------------------------------------------------------------------------

struct algorithm {
    size_t workspace;
    uint32_t alignment; // of pointers, and of leading dimensions and batch strides in bytes
    uint64_t chunk;     // so many products are summed by themselves
};
const algorithm algorithms[] = {
    {1 << 20, 256, 64}, {64 << 10, 16, 128}, {0, 16, 32}, {0, 1, ~uint64_t{0}}};
const uint64_t ALGORITHM_MARK = 0x63756461736d0000;

const algorithm *algorithm_of(const cublasLtMatmulAlgo_t *algo) {
    const size_t count = sizeof algorithms / sizeof *algorithms;
    if (!algo) return &algorithms[count - 1];
    const uint64_t index = algo->data[0] - ALGORITHM_MARK;
    return index < count ? &algorithms[index] : nullptr;
}

size_t type_size(uint32_t type) {
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16F || type == CUDA_R_16BF ? 2 : 0;
}

bool fits(const algorithm &a, const layout &l) {
    const int64_t size = (int64_t)type_size(l.type);
    const int64_t stride = l.batch > 1 ? l.stride : 0;
    if (a.alignment == 1) return true;
    return l.ld * size % 16 == 0 && stride * size % 16 == 0;
}

// ---- Rules --------------------------------------------------------------------------------------

struct problem {
    operation op;
    layout a, b, c, d;
    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.cols; }
    uint64_t k() const { return op.transpose_a ? a.rows : a.cols; }
};

bool types_agree(const problem &p) {
    const bool computed = p.op.compute == CUBLAS_COMPUTE_32F ||
                          p.op.compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                          p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const bool half = p.a.type == CUDA_R_16F || p.a.type == CUDA_R_16BF;
    const bool output = p.d.type == CUDA_R_32F || (half && p.d.type == p.a.type);
    const bool bias = p.op.bias_type == SAME_AS_OUTPUT || (uint32_t)p.op.bias_type == p.d.type;
    return computed && (half || p.a.type == CUDA_R_32F) && p.b.type == p.a.type && output &&
           p.c.type == p.d.type && bias && p.op.scale == CUDA_R_32F &&
           p.op.pointer_mode == CUBLASLT_POINTER_MODE_HOST;
}

bool valid(const layout &l) {
    const bool by_row = l.order == CUBLASLT_ORDER_ROW;
    return (by_row || l.order == CUBLASLT_ORDER_COL) && l.rows > 0 && l.cols > 0 && l.batch > 0 &&
           l.stride >= 0 && (uint64_t)l.ld >= (by_row ? l.cols : l.rows);
}

cublasStatus_t check(const problem &p) {
    const uint64_t m = p.op.transpose_a ? p.a.cols : p.a.rows;
    const uint64_t n = p.op.transpose_b ? p.b.rows : p.b.cols;
    const uint64_t k = p.op.transpose_b ? p.b.cols : p.b.rows;
    for (const layout *l : {&p.a, &p.b, &p.c, &p.d})
        if (!valid(*l) || l->batch != p.d.batch) return CUBLAS_STATUS_INVALID_VALUE;
    if (m != p.m() || n != p.n() || k != p.k() || p.c.rows != m || p.c.cols != n)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (p.d.batch > 1 && p.d.stride == 0) return CUBLAS_STATUS_INVALID_VALUE;
    const uint32_t known =
        CUBLASLT_EPILOGUE_DEFAULT | CUBLASLT_EPILOGUE_RELU_BIAS | CUBLASLT_EPILOGUE_GELU;
    // The bias belongs to the rows of D; whether it may lie across its storage is not documented.
    const bool by_row_with_bias =
        (p.op.epilogue & CUBLASLT_EPILOGUE_BIAS) && p.d.order == CUBLASLT_ORDER_ROW;
    if (current_capability() < 80 && p.a.type == CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (!types_agree(p) || (p.op.epilogue & ~known) || by_row_with_bias)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

// ---- Arithmetic ---------------------------------------------------------------------------------

float load(const void *at, uint32_t type, size_t i) {
    return type == CUDA_R_32F   ? ((const float *)at)[i]
           : type == CUDA_R_16F ? __half2float(((const __half *)at)[i])
                                : __bfloat162float(((const __nv_bfloat16 *)at)[i]);
}

void store(void *at, uint32_t type, size_t i, float value) {
    if (type == CUDA_R_32F)
        ((float *)at)[i] = value;
    else if (type == CUDA_R_16F)
        ((__half *)at)[i] = __float2half_rn(value);
    else
        ((__nv_bfloat16 *)at)[i] = __float2bfloat16_rn(value);
}

size_t index_of(const layout &l, uint64_t row, uint64_t col, int z) {
    const uint64_t ld = (uint64_t)l.ld;
    return (size_t)z * (size_t)l.stride +
           (l.order == CUBLASLT_ORDER_ROW ? row * ld + col : col * ld + row);
}

size_t extent(const layout &l) {
    return (index_of(l, l.rows - 1, l.cols - 1, l.batch - 1) + 1) * type_size(l.type);
}

float round_to_tf32(float value) {
    uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7f800000) == 0x7f800000) return value;
    bits += 0xfff + (bits >> 13 & 1);
    return __uint_as_float(bits & ~uint32_t{0x1fff});
}

// op(matrix), with its first index running fastest.
std::vector<float> gather(const void *at, const layout &l, bool transpose, bool tf32, int z) {
    const uint64_t rows = transpose ? l.cols : l.rows, cols = transpose ? l.rows : l.cols;
    std::vector<float> out(rows * cols);
    for (uint64_t j = 0; j < cols; j++) {
        for (uint64_t i = 0; i < rows; i++) {
            const float v =
                load(at, l.type, transpose ? index_of(l, j, i, z) : index_of(l, i, j, z));
            out[j * rows + i] = tf32 ? round_to_tf32(v) : v;
        }
    }
    return out;
}

struct product {
    problem p;
    const void *a, *b, *c;
    void *d, *workspace;
    float alpha, beta;
    algorithm how;
};

// One column of op(A) op(B), in chunks.
void multiply(const float *a, const float *b, uint64_t m, uint64_t k, uint64_t chunk,
              std::vector<float> &sum) {
    std::vector<float> part(m);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (uint64_t from = 0; from < k; from += std::min(chunk, k - from)) {
        const uint64_t end = from + std::min(chunk, k - from);
        std::fill(part.begin(), part.end(), 0.0f);
        for (uint64_t l = from; l < end; l++) {
            const float *column = a + l * m;
            const float factor = b[l];
            float *to = part.data();
            for (uint64_t i = 0; i < m; i++) to[i] += column[i] * factor;
        }
        for (uint64_t i = 0; i < m; i++) sum[i] += part[i];
    }
}

// By tanh, as PyTorch's approximate="tanh".
float gelu(float v) {
    const float inner = 0.7978845608f * (v + 0.044715f * v * v * v);
    return 0.5f * v * (1.0f + tanhf(inner));
}

void run(const product &g) {
    const problem &p = g.p;
    const uint64_t m = p.m(), n = p.n(), k = p.k();
    const bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && p.a.type == CUDA_R_32F;
    const bool bias = p.op.epilogue & CUBLASLT_EPILOGUE_BIAS;
    std::vector<float> sum(m);
    fill(g.workspace, g.workspace ? g.how.workspace : 0);
    for (int z = 0; z < p.d.batch; z++) {
        const std::vector<float> a = gather(g.a, p.a, p.op.transpose_a != 0, tf32, z);
        const std::vector<float> b = gather(g.b, p.b, p.op.transpose_b != 0, tf32, z);
        for (uint64_t j = 0; j < n; j++) {
            multiply(a.data(), &b[j * k], m, k, g.how.chunk, sum);
            for (uint64_t i = 0; i < m; i++) {
                float v = g.alpha * sum[i];
                if (g.beta != 0) v += g.beta * load(g.c, p.c.type, index_of(p.c, i, j, z));
                if (bias) v += load(p.op.bias, p.d.type, (size_t)z * (size_t)p.op.bias_stride + i);
                if (p.op.epilogue & CUBLASLT_EPILOGUE_RELU) v = v < 0 ? 0 : v; // NaN stays
                if (p.op.epilogue & CUBLASLT_EPILOGUE_GELU) v = gelu(v);
                store(g.d, p.d.type, index_of(p.d, i, j, z), v);
            }
        }
    }
}

bool aligned(const void *at, size_t alignment) { return (uintptr_t)at % alignment == 0; }

// The pointers of a product: on the device, with room for the matrices, aligned.
cublasStatus_t check_pointers(const product &g, size_t workspace_size) {
    const problem &p = g.p;
    const struct {
        const char *name;
        const void *at;
        const layout *l;
    } matrices[] = {
        {"A", g.a, &p.a}, {"B", g.b, &p.b}, {"C", g.beta != 0 ? g.c : g.d, &p.c}, {"D", g.d, &p.d}};
    for (const auto &x : matrices) {
        require_device("cublasLtMatmul", x.name, x.at, extent(*x.l));
        if (!aligned(x.at, type_size(x.l->type)))
            die("cublasLtMatmul: %s at %p is not aligned to its elements", x.name, x.at);
        if (!aligned(x.at, g.how.alignment)) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (p.op.epilogue & CUBLASLT_EPILOGUE_BIAS) {
        const size_t room = (size_t)(p.d.batch - 1) * (size_t)p.op.bias_stride + p.m();
        require_device("cublasLtMatmul", "the bias", p.op.bias, room * type_size(p.d.type));
        if (!aligned(p.op.bias, type_size(p.d.type))) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (g.beta != 0 && g.c == g.d && (p.c.ld != p.d.ld || p.c.order != p.d.order))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_size < g.how.workspace) return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_size) {
        require_device("cublasLtMatmul", "the workspace", g.workspace, workspace_size);
        if (!aligned(g.workspace, 16)) return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

// ---- The API ------------------------------------------------------------------------------------

#define BEGIN \
    if (const int error = planned_failure(__func__)) return (cublasStatus_t)error

struct cublasLtContext {
    int device;
};

static void require_own(const char *who, cublasLtHandle_t handle) {
    if (handle->device != current_device())
        die("%s: the handle is of device %d, the current device is %d", who, handle->device,
            current_device());
}

extern "C" {

size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

const char *cublasLtGetStatusName(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                   : "CUBLAS_STATUS_OTHER";
}

const char *cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    BEGIN;
    *handle = new cublasLtContext{current_device()};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    BEGIN;
    return create(d, operation{compute, scale, CUBLASLT_POINTER_MODE_HOST, 0, 0, SAME_AS_OUTPUT,
                               CUBLASLT_EPILOGUE_DEFAULT, nullptr, 0});
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t id, const void *value,
                                              size_t size) {
    BEGIN;
    return set(d, operation_attributes, id, value, size);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *d, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    BEGIN;
    return create(d, layout{type, CUBLASLT_ORDER_COL, 1, rows, cols, ld, 0});
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t d,
                                                cublasLtMatrixLayoutAttribute_t id,
                                                const void *value, size_t size) {
    BEGIN;
    return set(d, layout_attributes, id, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *d) {
    BEGIN;
    return create(
        d, preference{
               0, CUBLASLT_SEARCH_BEST_FIT, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}});
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t d) {
    delete d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t d,
                                                    cublasLtMatmulPreferenceAttributes_t id,
                                                    const void *value, size_t size) {
    BEGIN;
    return set(d, preference_attributes, id, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int *found) {
    BEGIN;
    require_own(__func__, handle);
    const problem p{mine(op), mine(a), mine(b), mine(c), mine(d)};
    const preference &w = mine(wish);
    *found = 0;
    if (const cublasStatus_t status = check(p)) return status;
    const uint32_t alignment = *std::min_element(w.alignment, w.alignment + 4);
    for (const algorithm &how : algorithms) {
        if (*found == wanted || how.workspace > w.workspace || how.alignment > alignment ||
            !fits(how, p.a) || !fits(how, p.b) || !fits(how, p.c) || !fits(how, p.d))
            continue;
        cublasLtMatmulHeuristicResult_t &r = results[(*found)++];
        memset(&r, 0, sizeof r);
        r.algo.data[0] = ALGORITHM_MARK + (uint64_t)(&how - algorithms);
        r.workspaceSize = how.workspace;
        r.wavesCount = 1;
    }
    return *found ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    BEGIN;
    require_own(__func__, handle);
    const problem p{mine(op), mine(a), mine(b), mine(c), mine(d)};
    const algorithm *how = algorithm_of(algo);
    if (!algo || !how) return CUBLAS_STATUS_INVALID_VALUE;
    if (const cublasStatus_t status = check(p)) return status;
    if (!fits(*how, p.a) || !fits(*how, p.b) || !fits(*how, p.c) || !fits(*how, p.d))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    result->algo = *algo;
    result->workspaceSize = how->workspace;
    result->state = CUBLAS_STATUS_SUCCESS;
    result->wavesCount = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t a, const void *B,
                              cublasLtMatrixLayout_t b, const void *beta, const void *C,
                              cublasLtMatrixLayout_t c, void *D, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_size, cudaStream_t stream) {
    BEGIN;
    const algorithm *how = algorithm_of(algo);
    if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!how) return CUBLAS_STATUS_INVALID_VALUE;
    require_device_of(__func__, stream, handle->device);
    product g{};
    g.p = problem{mine(op), mine(a), mine(b), mine(c), mine(d)};
    if (const cublasStatus_t status = check(g.p)) return status;
    g.a = A;
    g.b = B;
    g.c = C;
    g.d = D;
    g.workspace = workspace_size ? workspace : nullptr;
    g.alpha = *(const float *)alpha;
    g.beta = *(const float *)beta;
    g.how = *how;
    if (const cublasStatus_t status = check_pointers(g, workspace_size)) return status;
    enqueue(stream, [g] {
        device_access access;
        run(g);
    });
    return CUBLAS_STATUS_SUCCESS;
}

} // extern "C"
