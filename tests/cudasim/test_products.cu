/* test_products.cu: matrix products of the CUDA backend, by cuBLASLt and by the plain kernel, against
   sums in double; which way a launch goes; plans, benchmark mode and its text. Runs on a GPU as it
   is, and on the CPU with the sources rewritten (build.sh), where <mptrain_cuda.cu> must be found
   rewritten, too. */
#define MPT__SUM_BYTES 4096 /* so that small products are cut in pieces */
#include <mptrain_cuda.cu>

#include <vector>

#include "../harness.h"
#ifdef CUDASIM_H
#include "control.h"
#endif

namespace {

/* ==== A device and a launch ==== */

enum { OPERANDS = 4, GUARD = 32 };

mpt__backend backend;
mpt__cuda *cuda;
mpt__launch launch;
std::vector<unsigned char> memory[OPERANDS], before[OPERANDS]; /* on the host */
unsigned char *storage[OPERANDS];                              /* on the device */
uint64_t random_state = 1;

int below(int n) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((random_state >> 33) % (uint64_t)n);
}
double uniform() { return (double)below(1 << 20) / (1 << 18) - 2; }

bool have_device() {
    if (cuda == NULL && mpt__cuda_backend_create(&backend, MPTRAIN_VERSION, 0, false) == MPT_OK)
        cuda = (mpt__cuda *)backend.self;
    return cuda != NULL;
}

/* Forgets all plans. */
bool begin_anew() {
    mpt__cuda_products_destroy(cuda->products);
    cuda->products = mpt__cuda_products_create(cuda);
    return cuda->products != NULL;
}

double decode(const unsigned char *from, int dtype) {
    float f;
    double d;
    unsigned short bits;
    memcpy(&f, from, dtype == MPT_F32 ? 4 : 0);
    memcpy(&d, from, dtype == MPT_F64 ? 8 : 0);
    memcpy(&bits, from, dtype == MPT_F16 || dtype == MPT_BF16 ? 2 : 0);
    switch (dtype) {
    case MPT_F16:
        return (double)__half2float(__ushort_as_half(bits));
    case MPT_BF16:
        return (double)__bfloat162float(__ushort_as_bfloat16(bits));
    case MPT_F64:
        return d;
    case MPT_U8:
        return (double)*from;
    default:
        return (double)f;
    }
}

void encode(unsigned char *to, int dtype, double x) {
    const float f = (float)x;
    const unsigned short bits = dtype == MPT_F16 ? __half_as_ushort(__float2half_rn(f))
                                                 : __bfloat16_as_ushort(__float2bfloat16_rn(f));
    switch (dtype) {
    case MPT_F16:
    case MPT_BF16:
        memcpy(to, &bits, 2);
        break;
    case MPT_F64:
        memcpy(to, &x, 8);
        break;
    case MPT_U8:
        *to = (unsigned char)(x < 0 ? -x : x);
        break;
    default:
        memcpy(to, &f, 4);
        break;
    }
}

double rounded(double x, int dtype) {
    unsigned char element[8];
    encode(element, dtype, x);
    return decode(element, dtype);
}

bool advance(int64_t *index, const int64_t *shape, int rank) {
    for (int d = rank - 1; d >= 0; d--) {
        if (++index[d] < shape[d]) return true;
        index[d] = 0;
    }
    return false;
}

size_t position(int operand, const int64_t *index) {
    const mpt__operand &o = launch.operand[operand];
    int64_t at = GUARD + o.offset;
    for (int d = 0; d < o.rank; d++) at += index[d] * o.stride[d];
    return (size_t)at * mpt__bytes_of(o.dtype);
}

double value(int operand, const int64_t *index, const std::vector<unsigned char> *of = before) {
    return decode(&of[operand][position(operand, index)], launch.operand[operand].dtype);
}

void begin(int compute, double alpha) {
    memset(&launch, 0, sizeof launch);
    launch.kernel = MPT__K_GEMM;
    launch.compute_dtype = (uint8_t)compute;
    launch.imm[0] = alpha;
    for (int i = 0; i < OPERANDS; i++) {
        memory[i].clear();
        cudaFree(storage[i]);
        storage[i] = NULL;
    }
}

/* Operand i with these strides, filled. */
void add(int i, int dtype, int access, int rank, const int64_t *shape, const int64_t *stride,
         int64_t offset) {
    mpt__operand &o = launch.operand[i];
    int64_t index[MPT_MAX_RANK] = {0}, size = 2 * GUARD + offset + 1;
    o.storage = (uint32_t)i + 1;
    o.dtype = (uint8_t)dtype;
    o.access = (uint8_t)access;
    o.rank = (uint8_t)rank;
    o.offset = offset;
    bool empty = false;
    for (int d = 0; d < rank; d++) {
        o.shape[d] = shape[d];
        o.stride[d] = stride[d];
        empty = empty || shape[d] == 0;
        if (shape[d] > 0) size += (shape[d] - 1) * stride[d];
    }
    if (launch.n_operands < i + 1) launch.n_operands = (uint8_t)(i + 1);
    memory[i].assign((size_t)size * mpt__bytes_of(dtype), 0x11);
    do {
        if (!empty) encode(&memory[i][position(i, index)], dtype, uniform());
    } while (advance(index, shape, rank));
    cudaMalloc(&storage[i], memory[i].size());
}

/* The same, contiguous in this order of dimensions, outermost first. */
void add_in_order(int i, int dtype, int access, int rank, const int64_t *shape, const int *order) {
    int64_t stride[MPT_MAX_RANK], step = 1;
    for (int d = rank - 1; d >= 0; d--) {
        stride[order[d]] = step;
        step *= shape[order[d]];
    }
    add(i, dtype, access, rank, shape, stride, 0);
}

void add2(int i, int dtype, int64_t rows, int64_t columns, bool transposed = false,
          int access = MPT__READ) {
    const int64_t shape[] = {rows, columns};
    const int order[] = {transposed, !transposed};
    add_in_order(i, dtype, access, 2, shape, order);
}

mpt__cuda_call prepared() {
    mpt__cuda_call call;
    memset(&call, 0, sizeof call);
    call.cuda = cuda;
    call.launch = &launch;
    call.stream = cuda->stream;
    launch.workspace = mpt__cuda_gemm_workspace(&launch);
    if (launch.workspace > 0) cudaMalloc(&call.workspace, (size_t)launch.workspace);
    for (int i = 0; i < OPERANDS; i++) {
        const mpt__operand &o = launch.operand[i];
        if (o.storage == 0) continue;
        call.data[i] = storage[i] + (size_t)(GUARD + o.offset) * mpt__bytes_of(o.dtype);
    }
    return call;
}

/* Runs the launch from the state that `memory` holds, by way of cuBLASLt or not. */
mpt_status run(bool plain = false) {
    const mpt__cuda_call call = prepared();
    for (int i = 0; i < OPERANDS; i++) {
        before[i] = memory[i];
        if (storage[i] == NULL) continue;
        cudaMemcpyAsync(storage[i], memory[i].data(), memory[i].size(), cudaMemcpyHostToDevice,
                        cuda->stream);
    }
    const mpt_status status = plain ? mpt__product_plain(&call) : mpt__cuda_gemm(&call);
    CHECK_EQ_INT(cudaStreamSynchronize(cuda->stream), cudaSuccess);
    for (int i = 0; i < OPERANDS; i++) {
        if (storage[i] == NULL) continue;
        cudaMemcpy(memory[i].data(), storage[i], memory[i].size(), cudaMemcpyDeviceToHost);
    }
    cudaFree(call.workspace);
    return status;
}

double expected(const int64_t *out) {
    int64_t a[MPT_MAX_RANK], b[MPT_MAX_RANK];
    const int rank = launch.operand[3].rank, compute = launch.compute_dtype;
    double sum = 0;
    memcpy(a, out, sizeof a);
    memcpy(b, out, sizeof b);
    for (int64_t k = 0; k < launch.operand[0].shape[rank - 1]; k++) {
        a[rank - 1] = b[rank - 2] = k;
        sum += rounded(value(0, a), compute) * rounded(value(1, b), compute);
    }
    sum *= launch.imm[0];
    if (launch.operand[2].storage != 0) sum += rounded(value(2, out), compute);
    const double gelu = sqrt(2 / acos(-1.0)) * (sum + 0.044715 * sum * sum * sum);
    switch (launch.activation) {
    case MPT_ACTIVATION_RELU:
        sum = sum > 0 ? sum : 0;
        break;
    case MPT_ACTIVATION_GELU:
        sum = 0.5 * sum * (1 + erf(sum / sqrt(2.0)));
        break;
    case MPT_ACTIVATION_GELU_TANH:
        sum = 0.5 * sum * (1 + tanh(gelu));
        break;
    case MPT_ACTIVATION_TANH:
        sum = tanh(sum);
        break;
    case MPT_ACTIVATION_SIGMOID:
        sum = 1 / (1 + exp(-sum));
        break;
    default:
        break;
    }
    return launch.operand[3].access == MPT__ACCUMULATE ? sum + value(3, out) : sum;
}

/* The output is right, and nothing else has changed. Restores the state before the launch. */
void check(const char *way) {
    const mpt__operand &o = launch.operand[3];
    const double half = o.dtype == MPT_F16 ? 0.51 / 1024 : o.dtype == MPT_BF16 ? 0.51 / 128 : 0;
    const double depth = 2 * sqrt((double)launch.operand[0].shape[o.rank - 1]) + 1;
    std::vector<unsigned char> rest = memory[3];
    int64_t index[MPT_MAX_RANK] = {0};
    for (bool more = mpt__numel(o) > 0; more; more = advance(index, o.shape, o.rank)) {
        const double want = expected(index), got = value(3, index, memory);
        const double allowed = half * fabs(want) + 3e-6 * (fabs(want) + depth);
        encode(&rest[position(3, index)], o.dtype, value(3, index));
        if (fabs(got - want) <= allowed) continue;
        TEST_FAIL_("%s: element [.. %d %d] of %d is %.9g, expected %.9g", way,
                   (int)index[o.rank - 2], (int)index[o.rank - 1], (int)mpt__numel(o), got, want);
        break;
    }
    memory[3] = before[3];
    for (int i = 0; i < OPERANDS; i++) {
        const std::vector<unsigned char> &now = i == 3 ? rest : memory[i];
        CHECK(now == before[i]);
    }
}

/* ==== Results ==== */

enum layout { PACKED, PERMUTED, GAPS, BROADCAST, LAYOUTS };

void add_random(int i, int dtype, int access, int rank, const int64_t *shape, int kind) {
    int order[MPT_MAX_RANK];
    int64_t stride[MPT_MAX_RANK], step = kind == GAPS ? 1 + below(2) : 1;
    for (int d = 0; d < rank; d++) order[d] = d;
    if (kind == PERMUTED || below(3) == 0) {
        const int x = below(rank), y = below(rank), keep = order[x];
        order[x] = order[y];
        order[y] = keep;
    }
    for (int d = rank - 1; d >= 0; d--) {
        const bool broadcast = kind == BROADCAST && below(2) == 0;
        stride[order[d]] = broadcast ? 0 : step;
        if (!broadcast) step *= shape[order[d]] > 0 ? shape[order[d]] : 1;
        if (kind == GAPS) step += below(9);
    }
    add(i, dtype, access, rank, shape, stride, below(3) == 0 ? below(9) : 0);
}

int random_dtype() {
    static const int dtypes[] = {MPT_F32, MPT_F16, MPT_BF16, MPT_F32, MPT_F16, MPT_BF16, MPT_F64};
    return dtypes[below(7)];
}

TEST(random_products) {
    static const int64_t sizes[] = {1, 2, 7, 31, 33, 64, 65, 130, 0, 8, 16, 5};
    REQUIRE(have_device());
    long long calls = 0, finished = 0, looped = 0;
    for (int round = 0; round < 150; round++) {
        const int batches = round < 60 ? 0 : below(4), rank = batches + 2, alike = random_dtype();
        int64_t m = sizes[below(12)], n = sizes[below(12)], k = sizes[below(12)];
        int64_t a[MPT_MAX_RANK], b[MPT_MAX_RANK], out[MPT_MAX_RANK];
        if (batches > 1) m = m > 9 ? 9 : m, n = n > 9 ? 9 : n;
        for (int d = 0; d < batches; d++) a[d] = b[d] = out[d] = 1 + below(3);
        a[rank - 2] = out[rank - 2] = m;
        a[rank - 1] = b[rank - 2] = k;
        b[rank - 1] = out[rank - 1] = n;
        const bool mixed = below(3) == 0;
        const int access = below(2) ? MPT__WRITE : MPT__ACCUMULATE;
        begin(MPT_F32 + below(3), below(2) ? 1 : 0.5);
        add_random(0, mixed ? random_dtype() : alike, MPT__READ, rank, a, below(LAYOUTS));
        add_random(1, mixed ? random_dtype() : alike, MPT__READ, rank, b, below(LAYOUTS));
        if (below(2)) add_random(2, random_dtype(), MPT__READ, rank, out, below(LAYOUTS));
        add_random(3,
                   mixed      ? random_dtype()
                   : below(2) ? alike
                              : MPT_F32,
                   access, rank, out, below(BROADCAST));
        if (access == MPT__WRITE) launch.activation = (uint8_t)(below(2) ? below(2) : below(6));
        CHECK_EQ_INT(run(), MPT_OK);
        check("cuBLASLt");
        if (mpt__numel(launch.operand[3]) == 0) continue;
        CHECK_EQ_INT(run(true), MPT_OK);
        check("plain kernel");
        if (k == 0) continue;
        const mpt__product product = mpt__product_of(&launch);
        calls++;
        finished += product.finish;
        looped += product.loop.count > 1;
    }
    CHECK(calls > 70 && finished > 15 && finished < calls - 15 && looped > 2);
    long long plans = 0;
    for (long long i = 0; i < cuda->products->capacity; i++) {
        const mpt__plan *plan = &cuda->products->plans[i];
        if (!plan->taken) continue;
        plans++;
        CHECK(plan->usable);
        CHECK(mpt__plan_enter(cuda->products, plan->field) == plan);
    }
    CHECK_EQ_INT(cuda->products->count, plans);
}

TEST(non_finite_values_pass_through_relu) {
    REQUIRE(have_device());
    for (int dtype = MPT_F32; dtype <= MPT_BF16; dtype++) {
        begin(dtype, 1);
        add2(0, dtype, 64, 64);
        add2(1, dtype, 64, 64, true);
        add2(3, dtype, 64, 64, false, MPT__WRITE);
        launch.activation = MPT_ACTIVATION_RELU;
        const int64_t at[] = {5, 9}, row[] = {5, 11}, other[] = {6, 11};
        encode(&memory[0][position(0, at)], dtype, (double)NAN);
        for (int plain = 0; plain < 2; plain++) {
            CHECK_EQ_INT(run(plain != 0), MPT_OK);
            CHECK(isnan(value(3, row, memory)));
            CHECK(!isnan(value(3, other, memory)));
        }
    }
}

TEST(tf32_is_opt_in) {
    REQUIRE(have_device());
    double error[2] = {0, 0};
    for (int tf32 = 0; tf32 < 2; tf32++) {
        begin(MPT_F32, 1);
        add2(0, MPT_F32, 64, 128);
        add2(1, MPT_F32, 128, 64, true);
        add2(3, MPT_F32, 64, 64, false, MPT__WRITE);
        backend.benchmark(backend.self, false, tf32 != 0);
        CHECK_EQ_INT(run(), MPT_OK);
        int64_t index[MPT_MAX_RANK] = {0};
        do {
            error[tf32] = fmax(error[tf32], fabs(value(3, index, memory) - expected(index)));
        } while (advance(index, launch.operand[3].shape, 2));
    }
    backend.benchmark(backend.self, false, false);
    CHECK(error[0] < 1e-4);
    CHECK(error[1] > 10 * error[0] && error[1] < 0.1);
}

/* ==== The way a launch goes ==== */

/* A linear layer: x [rows, in], weight [out, in], bias [out]. */
void linear(int compute, int x, int weight, int bias, int out, int activation) {
    const int64_t shape[] = {24, 16}, stride[] = {0, 1};
    begin(compute, 1);
    add2(0, x, 24, 40);
    add2(1, weight, 40, 16, true);
    if (bias != 0) add(2, bias, MPT__READ, 2, shape, stride, 0);
    add2(3, out, 24, 16, false, MPT__WRITE);
    launch.activation = (uint8_t)activation;
    CHECK_EQ_INT(run(), MPT_OK);
    check("linear");
}

TEST(epilogues_serve_where_they_can) {
    REQUIRE(have_device());
    static const struct {
        int compute, x, weight, bias, out, activation;
        bool finish, a_packed, bias_packed;
    } cases[] = {
        {MPT_F32, MPT_F32, MPT_F32, MPT_F32, MPT_F32, MPT_ACTIVATION_RELU, false, false, false},
        {MPT_F16, MPT_F32, MPT_F16, MPT_F32, MPT_F16, MPT_ACTIVATION_RELU, false, true, true},
        {MPT_BF16, MPT_BF16, MPT_BF16, MPT_F32, MPT_F32, MPT_ACTIVATION_NONE, false, false, true},
        {MPT_BF16, MPT_BF16, MPT_BF16, MPT_BF16, MPT_BF16, MPT_ACTIVATION_RELU, false, false,
         false},
        {MPT_F16, MPT_BF16, MPT_F16, 0, MPT_F16, MPT_ACTIVATION_NONE, false, true, false},
        {MPT_F32, MPT_F16, MPT_F16, MPT_F32, MPT_F16, MPT_ACTIVATION_NONE, true, false, false},
        {MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_TANH, true, false, false},
        {MPT_F16, MPT_F16, MPT_F16, 0, MPT_BF16, MPT_ACTIVATION_NONE, true, false, false},
        {MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_GELU_TANH, false, false,
         false},
        {MPT_BF16, MPT_BF16, MPT_BF16, 0, MPT_BF16, MPT_ACTIVATION_GELU_TANH, false, false, false},
        {MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_GELU, true, false, false},
        {MPT_F32, MPT_F32, MPT_F32, MPT_F32, MPT_F32, MPT_ACTIVATION_GELU_TANH, true, false, false},
    };
    for (const auto &c : cases) {
        linear(c.compute, c.x, c.weight, c.bias, c.out, c.activation);
        const mpt__product product = mpt__product_of(&launch);
        CHECK_EQ_INT(product.finish, c.finish);
        CHECK_EQ_INT(product.bias, c.bias != 0 && !c.finish);
        CHECK_EQ_INT(product.side[MPT__SIDE_A].at >= 0, c.a_packed);
        CHECK_EQ_INT(product.side[MPT__SIDE_B].at >= 0, false);
        CHECK_EQ_INT(product.bias_at >= 0, c.bias_packed);
        CHECK_EQ_INT(launch.workspace > 0, c.finish || c.a_packed || c.bias_packed);
    }
}

TEST(a_bias_with_gaps_is_packed) {
    REQUIRE(have_device());
    for (int64_t offset = 0; offset < 2; offset++) {
        for (int64_t step = 1; step < 4; step++) {
            const int64_t shape[] = {24, 16}, stride[] = {0, step};
            begin(MPT_F16, 1);
            add2(0, MPT_F16, 24, 40);
            add2(1, MPT_F16, 40, 16, true);
            add(2, MPT_F16, MPT__READ, 2, shape, stride, offset);
            add2(3, MPT_F16, 24, 16, false, MPT__WRITE);
            CHECK_EQ_INT(run(), MPT_OK);
            check("bias");
            CHECK_EQ_INT(mpt__product_of(&launch).bias_at >= 0, step > 1 || offset > 0);
        }
    }
}

/* a and b as [batch, heads, ..], in these orders in memory. */
void heads(const int *order_a, const int *order_b, int64_t n_batch, int64_t n_heads) {
    const int64_t a[] = {n_batch, n_heads, 6, 8}, b[] = {n_batch, n_heads, 8, 6};
    const int64_t out[] = {n_batch, n_heads, 6, 6};
    static const int plain[] = {0, 1, 2, 3};
    begin(MPT_F16, 0.25);
    add_in_order(0, MPT_F16, MPT__READ, 4, a, order_a);
    add_in_order(1, MPT_F16, MPT__READ, 4, b, order_b);
    add_in_order(3, MPT_F16, MPT__WRITE, 4, out, plain);
    CHECK_EQ_INT(run(), MPT_OK);
    check("heads");
}

TEST(batches_go_in_few_calls) {
    REQUIRE(have_device());
    static const int plain[] = {0, 1, 2, 3}, of_rows[] = {0, 2, 1, 3}, of_keys[] = {0, 3, 1, 2};
    heads(plain, plain, 3, 4);
    mpt__product product = mpt__product_of(&launch);
    CHECK_EQ_INT(product.batch, 12);
    CHECK_EQ_INT(product.loop.count, 1);
    heads(of_rows, of_keys, 3, 5); /* [batch, time, heads, width], as attention has them */
    product = mpt__product_of(&launch);
    CHECK_EQ_INT(product.batch, 5);
    CHECK_EQ_INT(product.loop.count, 3);
    CHECK_EQ_INT(launch.workspace, 0);
    heads(of_rows, of_keys, 65, 66); /* too many calls: packed, then one */
    product = mpt__product_of(&launch);
    CHECK_EQ_INT(product.batch, 65 * 66);
    CHECK_EQ_INT(product.loop.count, 1);
}

TEST(batches_that_share_b_are_rows) {
    REQUIRE(have_device());
    const int64_t a[] = {3, 5, 8}, b[] = {3, 8, 16}, shared[] = {0, 16, 1}, out[] = {3, 5, 16};
    static const int plain[] = {0, 1, 2};
    begin(MPT_F32, 1);
    add_in_order(0, MPT_F32, MPT__READ, 3, a, plain);
    add(1, MPT_F32, MPT__READ, 3, b, shared, 0);
    add_in_order(3, MPT_F32, MPT__WRITE, 3, out, plain);
    CHECK_EQ_INT(run(), MPT_OK);
    check("shared");
    const mpt__product product = mpt__product_of(&launch);
    CHECK_EQ_INT(product.batch, 1);
    CHECK_EQ_INT(product.side[MPT__SIDE_OUT].size[0], 15);
}

TEST(vectors_with_gaps_that_share_b_are_batches) {
    REQUIRE(have_device());
    const int64_t a[] = {3, 1, 8}, gaps[] = {100, 1, 3}, b[] = {3, 8, 16}, shared[] = {0, 16, 1};
    const int64_t out[] = {3, 1, 16};
    static const int plain[] = {0, 1, 2};
    begin(MPT_F32, 1);
    add(0, MPT_F32, MPT__READ, 3, a, gaps, 0);
    add(1, MPT_F32, MPT__READ, 3, b, shared, 0);
    add_in_order(3, MPT_F32, MPT__WRITE, 3, out, plain);
    CHECK_EQ_INT(run(), MPT_OK);
    check("vectors");
    CHECK_EQ_INT(mpt__product_of(&launch).batch, 3);
}

TEST(columns_are_written_in_place_and_transposes_are_not) {
    REQUIRE(have_device());
    for (int64_t n = 1; n < 9; n += 7) {
        begin(MPT_F16, 1);
        add2(0, MPT_F16, 24, 40);
        add2(1, MPT_F16, 40, n, true);
        add2(3, MPT_F32, 24, n, true, MPT__ACCUMULATE);
        CHECK_EQ_INT(run(), MPT_OK);
        check("transposed");
        CHECK_EQ_INT(mpt__product_of(&launch).finish, n > 1);
    }
}

TEST(large_sums_are_made_in_pieces) {
    REQUIRE(have_device());
    begin(MPT_F16, 1);
    add2(0, MPT_F16, 300, 8);
    add2(1, MPT_F16, 8, 24);
    add2(3, MPT_F16, 300, 24, false, MPT__ACCUMULATE);
    launch.operand[3].access = MPT__WRITE;
    launch.activation = MPT_ACTIVATION_SIGMOID;
    CHECK(mpt__cuda_gemm_workspace(&launch) <= MPT__SUM_BYTES);
    CHECK_EQ_INT(run(), MPT_OK);
    check("pieces");
}

/* ==== Plans ==== */

TEST(plans_are_made_once) {
    REQUIRE(have_device() && begin_anew());
    linear(MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_RELU);
    CHECK_EQ_INT(cuda->products->count, 1);
    linear(MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_RELU);
    CHECK_EQ_INT(cuda->products->count, 1);
    linear(MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_NONE);
    CHECK_EQ_INT(cuda->products->count, 2);
}

#ifdef CUDASIM_H
TEST(a_refused_product_is_done_plainly) {
    static const char *const functions[] = {"cublasLtMatmul", "cublasLtMatmulAlgoGetHeuristic",
                                            "cublasLtMatrixLayoutCreate",
                                            "cublasLtMatmulDescCreate"};
    REQUIRE(have_device());
    for (int i = 0; i < 4; i++) {
        REQUIRE(begin_anew());
        cudasim_fail(functions[i], 0, CUBLAS_STATUS_NOT_SUPPORTED, 0);
        linear(MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_F16, MPT_ACTIVATION_TANH);
        cudasim_fail("", 0, 0, 0);
        char text[4096];
        backend.benchmark_text(backend.self, text, sizeof text);
        CHECK_CONTAINS(text, "plain kernel\n");
    }
}

TEST(without_cublaslt_there_is_a_reason) {
    REQUIRE(have_device());
    cudasim_fail("cublasLtCreate", 0, CUBLAS_STATUS_NOT_INITIALIZED, 0);
    CHECK(mpt__cuda_products_create(cuda) == NULL);
    CHECK_CONTAINS(backend.error, "cuBLASLt");
    cudasim_fail("cudaMalloc", 0, cudaErrorMemoryAllocation, 0);
    CHECK(mpt__cuda_products_create(cuda) == NULL);
    cudasim_fail("", 0, 0, 0);
}
#endif

/* ==== Benchmark mode ==== */

const mpt__plan *only_plan() {
    const mpt__plan *found = NULL;
    for (long long i = 0; i < cuda->products->capacity; i++) {
        if (cuda->products->plans[i].taken) found = &cuda->products->plans[i];
    }
    return cuda->products->count == 1 ? found : NULL;
}

void accumulate_once() {
    begin(MPT_BF16, 1);
    add2(0, MPT_BF16, 64, 128);
    add2(1, MPT_BF16, 128, 32, true);
    add2(3, MPT_F32, 64, 32, false, MPT__ACCUMULATE);
    CHECK_EQ_INT(run(), MPT_OK);
    check("benchmark");
}

TEST(benchmark_mode_pins_saves_and_loads) {
    REQUIRE(have_device());
    char text[8192], broken[8192], again[8192];
    REQUIRE(begin_anew());
    accumulate_once();
    REQUIRE(only_plan() != NULL);
    CHECK(!only_plan()->pinned);
    CHECK(backend.benchmark_text(backend.self, text, sizeof text) < sizeof text);
    CHECK_CONTAINS(text, "heuristic\n");
    backend.benchmark(backend.self, true, false);
    accumulate_once(); /* timed on an output of its own, or the sum would be wrong */
    REQUIRE(only_plan() != NULL);
    CHECK(only_plan()->pinned && only_plan()->nanoseconds > 0);
    CHECK(only_plan()->nanoseconds <= only_plan()->nanoseconds_first);
    backend.benchmark(backend.self, false, false);
    const cublasLtMatmulAlgo_t chosen = only_plan()->algorithm;
    const size_t length = backend.benchmark_text(backend.self, text, sizeof text);
    CHECK_EQ_INT(length, strlen(text));
    CHECK_EQ_INT(backend.benchmark_text(backend.self, broken, 100), length);
    CHECK_EQ_INT(strlen(broken), 99);
    CHECK(strncmp(broken, text, 99) == 0);
    CHECK_CONTAINS(text, " algorithm=");

    for (int made = 0; made < 2; made++) { /* read before the product is known, and after */
        REQUIRE(begin_anew());
        if (made) accumulate_once();
        CHECK_EQ_INT(backend.benchmark_read(backend.self, text), MPT_OK);
        accumulate_once();
        REQUIRE(only_plan() != NULL);
        CHECK(only_plan()->pinned);
        CHECK_EQ_BITS(&only_plan()->algorithm, &chosen, sizeof chosen);
        backend.benchmark_text(backend.self, again, sizeof again);
        CHECK_EQ_STR(again, text);
    }

    REQUIRE(begin_anew());
    strcpy(broken, text);
    broken[20]++;
    CHECK_EQ_INT(backend.benchmark_read(backend.self, broken), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(backend.error, "another card");
    CHECK_EQ_INT(backend.benchmark_read(backend.self, ""), MPT_ERROR_UNSUPPORTED);
    const size_t title = (size_t)(strchr(text, '\n') - text) + 1;
    for (size_t end = length - 1; end > title; end -= end - title < 7 ? end - title : 7) {
        strcpy(broken, text);
        broken[end] = 0;
        CHECK_EQ_INT(backend.benchmark_read(backend.self, broken), MPT_ERROR_FORMAT);
    }
    CHECK_EQ_INT(cuda->products->count, 0);

    strcpy(broken, text); /* an algorithm that does not exist is found out before it runs */
    memcpy(strstr(broken, "algorithm=") + 10, "7", 1);
    for (int made = 0; made < 2; made++) {
        REQUIRE(begin_anew());
        if (made) accumulate_once();
        CHECK_EQ_INT(backend.benchmark_read(backend.self, broken), MPT_OK);
        accumulate_once();
        REQUIRE(only_plan() != NULL);
        CHECK(only_plan()->usable && !only_plan()->pinned);
    }
}

TEST(nothing_is_timed_in_a_capture) {
    REQUIRE(have_device());
    accumulate_once();
    REQUIRE(begin_anew());
    const mpt__cuda_call call = prepared();
    void *graph = NULL;
    backend.benchmark(backend.self, true, false);
    CHECK_EQ_INT(backend.graph_begin(backend.self), MPT_OK);
    CHECK_EQ_INT(mpt__cuda_gemm(&call), MPT_OK);
    CHECK_EQ_INT(backend.graph_end(backend.self, &graph), MPT_OK);
    REQUIRE(only_plan() != NULL);
    CHECK(only_plan()->usable && !only_plan()->pinned);
    backend.graph_destroy(backend.self, graph);
    accumulate_once();
    REQUIRE(only_plan() != NULL);
    CHECK(only_plan()->pinned);
    backend.benchmark(backend.self, false, false);
}

} // namespace

TEST_TABLE = {
    T(random_products),
    T(non_finite_values_pass_through_relu),
    T(tf32_is_opt_in),
    T(epilogues_serve_where_they_can),
    T(a_bias_with_gaps_is_packed),
    T(batches_go_in_few_calls),
    T(batches_that_share_b_are_rows),
    T(vectors_with_gaps_that_share_b_are_batches),
    T(columns_are_written_in_place_and_transposes_are_not),
    T(large_sums_are_made_in_pieces),
    T(plans_are_made_once),
#ifdef CUDASIM_H
    T(a_refused_product_is_done_plainly),
    T(without_cublaslt_there_is_a_reason),
#endif
    T(benchmark_mode_pins_saves_and_loads),
    T(nothing_is_timed_in_a_capture),
};
TEST_MAIN
