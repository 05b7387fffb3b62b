// test_cudasim.cu - the simulator itself: what correct CUDA code gets from it. Seeded bugs are in
// faults.cu.
#include "../harness.h"
#include "control.h"
#include <cuda_runtime.h>
#include <cublasLt.h>
#include <math.h>
#include <stdint.h>
#include <thread>
#include <vector>

#define OK(call) CHECK_EQ_INT((call), cudaSuccess)
#define GRID(n, threads) (unsigned)(((n) + (threads)-1) / (threads))

namespace {

// ---- Device memory that tests fill and read -----------------------------------------------------

template <class T> struct device_array {
    T *at = nullptr;
    size_t size;
    explicit device_array(size_t n) : size(n) { OK(cudaMalloc(&at, n * sizeof(T))); }
    explicit device_array(const std::vector<T> &values) : device_array(values.size()) {
        OK(cudaMemcpy(at, values.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    }
    device_array(const device_array &) = delete;
    ~device_array() { OK(cudaFree(at)); }
    std::vector<T> read() const {
        std::vector<T> values(size);
        OK(cudaMemcpy((void *)values.data(), at, size * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }
};

uint32_t random_state = 1;
float random_value() { // [-1, 1)
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / 8388608.0f - 1.0f;
}

template <class T> T rounded(float v);
template <> float rounded(float v) { return v; }
template <> __half rounded(float v) { return __float2half_rn(v); }
template <> __nv_bfloat16 rounded(float v) { return __float2bfloat16_rn(v); }
float widened(float v) { return v; }
float widened(__half v) { return __half2float(v); }
float widened(__nv_bfloat16 v) { return __bfloat162float(v); }

template <class T> std::vector<T> random_values(size_t n) {
    std::vector<T> values(n);
    for (T &v : values) v = rounded<T>(random_value());
    return values;
}

// ---- Kernels ------------------------------------------------------------------------------------

__device__ __forceinline__ float relu(float x) { return x > 0 ? x : 0; }

// Eight halves per thread through one 16-byte load; the last ones by themselves.
__global__ void __launch_bounds__(256)
    bias_relu(__half *__restrict__ y, const __half *__restrict__ x, float bias, size_t n) {
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 8;
    if (i >= n) return;
    if (i + 8 > n) {
        for (size_t k = i; k < n; k++) y[k] = __float2half_rn(relu(__half2float(x[k]) + bias));
        return;
    }
    uint4 packed = __ldg(reinterpret_cast<const uint4 *>(x + i));
    __half2 *pairs = reinterpret_cast<__half2 *>(&packed);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float2 v = __half22float2(pairs[k]);
        pairs[k] = __floats2half2_rn(relu(v.x + bias), relu(v.y + bias));
    }
    *reinterpret_cast<uint4 *>(y + i) = packed;
}

__device__ float warp_sum(float v) {
    for (int offset = 16; offset; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
    return v;
}

__device__ float block_sum(float v) {
    __shared__ float part[32];
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    v = warp_sum(v);
    __syncthreads(); // an earlier call may still read part
    if (lane == 0) part[warp] = v;
    __syncthreads();
    return warp_sum(lane < (blockDim.x + 31) / 32 ? part[lane] : 0.0f);
}

template <typename T> __global__ void normalize(T *y, const T *x, int columns) {
    extern __shared__ __align__(16) unsigned char raw[];
    float *row = reinterpret_cast<float *>(raw);
    x += (size_t)blockIdx.x * columns;
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x) sum += row[i] = (float)x[i];
    const float mean = block_sum(sum) / columns;
    float squares = 0;
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        squares += (row[i] - mean) * (row[i] - mean);
    const float scale = rsqrtf(block_sum(squares) / columns + 1e-5f);
    for (int i = threadIdx.x; i < columns; i += blockDim.x)
        y[(size_t)blockIdx.x * columns + i] = (T)((row[i] - mean) * scale);
}

__global__ void warp_functions(int *out) {
    const int i = (int)threadIdx.x, all = (int)blockDim.x;
    const unsigned mask = 0xffffffffu;
    out[0 * all + i] = __shfl_sync(mask, i, 5);
    out[1 * all + i] = __shfl_sync(mask, i, 1, 8);
    out[2 * all + i] = __shfl_down_sync(mask, i, 3);
    out[3 * all + i] = __shfl_up_sync(mask, i, 2, 16);
    out[4 * all + i] = __shfl_xor_sync(mask, i, 9);
    out[5 * all + i] = (int)__ballot_sync(mask, i % 3 == 0);
    out[6 * all + i] = __any_sync(mask, i == 40) * 2 + __all_sync(mask, i < 32);
    out[7 * all + i] = i;
    if ((i & 31) < 8)
        out[7 * all + i] = __shfl_xor_sync(0xff, i, 7);
    else
        __syncwarp(0xffffff00u);
}

__global__ void votes(int *out) {
    const int i = (int)threadIdx.x;
    const int count = __syncthreads_count(i % 5 == 0);
    const int both = __syncthreads_and(i < 1000) + 2 * __syncthreads_and(i < 10);
    const int any = __syncthreads_or(i == 7) + 2 * __syncthreads_or(i > 1000);
    if (i == 0) out[0] = count, out[1] = both, out[2] = any;
}

struct totals {
    int sum;
    unsigned largest, bits, taken;
    unsigned long long largest_double;
};

__global__ void count(totals *t, const int *values, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= n) return;
    atomicAdd(&t->sum, values[i]);
    atomicMax(&t->largest, (unsigned)values[i]);
    atomicOr(&t->bits, 1u << values[i] % 32);
    atomicMax(&t->largest_double, (unsigned long long)__double_as_longlong((double)values[i]));
    if (values[i] == 77) atomicCAS(&t->taken, 0u, (unsigned)i);
}

__global__ void numbers(double *out) {
    const float nan = __int_as_float(0x7fffffff);
    int i = 0;
    out[i++] = __umulhi(0xD2511F53u, 0xffffffffu);
    out[i++] = (double)(__umul64hi(1ull << 63, 6) + (unsigned long long)__mulhi(-4, 1 << 30));
    out[i++] = __float2int_rn(2.5f) * 10 + __float2int_rn(3.5f);
    out[i++] = __float2int_rz(3e9f);
    out[i++] = __float2int_rz(nan);
    out[i++] = __fmaf_rn(1 + 0x1p-12f, 1 + 0x1p-12f, -1.0f);
    out[i++] = __fadd_rn(1.0f, __fmul_rn(0x1p-12f, 0x1p-12f));
    out[i++] = __fdiv_rn(1.0f, 3.0f);
    out[i++] = __fsqrt_rn(2.0f);
    out[i++] = __popc(0xf0f0u) + 100 * __clz(1) + 10000 * __ffs(8);
    out[i++] = max(3, -2) + min(0.5f, nan);
    out[i++] = __hiloint2double(__double2hiint(-1.25), __double2loint(-1.25));
}

__global__ void fill_from(float *out, float value, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) out[i] = value;
}

__global__ void add_one(float *values, int n) {
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) values[i] += 1;
}

__global__ void multiply(float *values, float factor, int n) {
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) values[i] *= factor;
}

__global__ void much_shared(float *out) {
    extern __shared__ float big[];
    big[threadIdx.x] = 1;
    out[threadIdx.x] = big[threadIdx.x];
}
__global__ void much_shared_too(float *out) {
    extern __shared__ float big[];
    out[threadIdx.x] = big[threadIdx.x] = 2;
}

template <typename A, int N> struct several { A values[N]; };
template <typename T, int N> __global__ void spread(T *out, several<T, N> from) {
    if (threadIdx.x < N) out[threadIdx.x] = from.values[threadIdx.x];
}

// ---- Tests of kernels ---------------------------------------------------------------------------

TEST(elementwise_with_wide_loads) {
    for (const size_t n : {size_t{1}, size_t{8}, size_t{4093}}) {
        const std::vector<__half> x = random_values<__half>(n);
        device_array<__half> dx(x), dy(n);
        bias_relu<<<GRID(n, 2048), 256>>>(dy.at, dx.at, 0.25f, n);
        OK(cudaGetLastError());
        const std::vector<__half> y = dy.read();
        for (size_t i = 0; i < n; i++) {
            const float v = __half2float(x[i]) + 0.25f;
            CHECK_EQ_INT(__half_as_ushort(y[i]), __half_as_ushort(__float2half_rn(v > 0 ? v : 0)));
        }
    }
}

TEST(block_reductions) {
    for (const int columns : {1, 100, 700}) {
        const int rows = 3;
        const std::vector<float> x = random_values<float>((size_t)(rows * columns));
        device_array<float> dx(x), dy(x.size());
        normalize<float><<<rows, 96, (size_t)columns * sizeof(float)>>>(dy.at, dx.at, columns);
        const std::vector<float> y = dy.read();
        for (int r = 0; r < rows; r++) {
            const float *row = &x[(size_t)(r * columns)];
            double mean = 0, variance = 0;
            for (int i = 0; i < columns; i++) mean += row[i] / (double)columns;
            for (int i = 0; i < columns; i++)
                variance += (row[i] - mean) * (row[i] - mean) / columns;
            for (int i = 0; i < columns; i++)
                CHECK_NEAR(y[(size_t)(r * columns + i)], (row[i] - mean) / sqrt(variance + 1e-5),
                           1e-5);
        }
    }
}

TEST(warp_functions_as_documented) {
    const int n = 64;
    device_array<int> out(8 * n);
    warp_functions<<<1, n>>>(out.at);
    const std::vector<int> got = out.read();
    for (int i = 0; i < n; i++) {
        const int lane = i & 31, warp = i & ~31;
        const int want[] = {warp + 5,
                            (i & ~7) + 1,
                            lane + 3 < 32 ? i + 3 : i,
                            (lane & 15) >= 2 ? i - 2 : i,
                            i ^ 9,
                            0,
                            (warp == 32) * 2 + (warp == 0),
                            lane < 8 ? i ^ 7 : i};
        for (int k = 0; k < 8; k++) {
            if (k != 5) CHECK_EQ_INT(got[(size_t)(k * n + i)], want[k]);
        }
        unsigned ballot = 0;
        for (int k = 0; k < 32; k++) ballot |= (unsigned)((warp + k) % 3 == 0) << k;
        CHECK_EQ_INT((unsigned)got[(size_t)(5 * n + i)], ballot);
    }
}

// c [16, 8] = a [16, 16] b, where b is given as it is, [16, 8], or transposed, [8, 16]: by a warp.
template <bool TRANSPOSED>
__global__ void product_of_a_warp(float *c, const uint16_t *a, const uint16_t *b, bool bfloat) {
    __shared__ __align__(16) uint16_t left[16][16], right[16 * 16];
    const unsigned lane = threadIdx.x, row = lane % 16, half = lane / 16;
    const unsigned pitch = TRANSPOSED ? 16 : 8;
    cudasim::copy_async(&left[row][half * 8], a + row * 16 + half * 8, 16, 16);
    cudasim::copy_async(right + lane * 8, b + lane % 16 * 8, 16, lane < 16 ? 16 : 0);
    cudasim::commit_copies();
    cudasim::wait_copies(0);
    __syncwarp();
    uint32_t x[4], y[4];
    float d[4] = {1, 1, 1, 1};
    cudasim::load_matrices(x, &left[row][half * 8], false);
    // Of the right one only two matrices are of interest: k 0 to 7, and 8 to 15.
    const unsigned two = lane / 8 % 2;
    cudasim::load_matrices(y, TRANSPOSED ? right + lane % 8 * pitch + two * 8 : right + row * pitch,
                           !TRANSPOSED);
    cudasim::multiply(d, x, y, bfloat);
    for (unsigned i = 0; i < 4; i++)
        c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
    if (lane == 0 && right[16 * 8] != 0) c[0] = -1; // of nothing come zeros
}

template <class T> void check_product_of_a_warp(bool bfloat) {
    const std::vector<T> a = random_values<T>(256), b = random_values<T>(128);
    std::vector<T> across(128);
    for (size_t k = 0; k < 16; k++)
        for (size_t n = 0; n < 8; n++) across[n * 16 + k] = b[k * 8 + n];
    device_array<T> left(a), right(b), turned(across);
    for (int way = 0; way < 2; way++) {
        device_array<float> out(128);
        if (way)
            product_of_a_warp<true><<<1, 32>>>(out.at, (const uint16_t *)left.at,
                                               (const uint16_t *)turned.at, bfloat);
        else
            product_of_a_warp<false><<<1, 32>>>(out.at, (const uint16_t *)left.at,
                                                (const uint16_t *)right.at, bfloat);
        const std::vector<float> got = out.read();
        for (size_t m = 0; m < 16; m++)
            for (size_t n = 0; n < 8; n++) {
                double want = 1;
                for (size_t k = 0; k < 16; k++)
                    want += (double)widened(a[m * 16 + k]) * (double)widened(b[k * 8 + n]);
                CHECK(fabs(got[m * 8 + n] - want) < 1e-5);
            }
    }
}

TEST(tensor_cores_multiply_fragments) {
    check_product_of_a_warp<__half>(false);
    check_product_of_a_warp<__nv_bfloat16>(true);
}

TEST(votes_of_a_block) {
    device_array<int> out(3);
    votes<<<1, 50>>>(out.at);
    const std::vector<int> got = out.read();
    CHECK_EQ_INT(got[0], 10);
    CHECK_EQ_INT(got[1], 1);
    CHECK_EQ_INT(got[2], 1);
}

TEST(atomics) {
    const int n = 1000;
    std::vector<int> values((size_t)n);
    totals want = {0, 0, 0, 0, 0};
    for (int i = 0; i < n; i++) {
        const int v = values[(size_t)i] = i * 7 % 1009;
        want.sum += v;
        want.largest = (unsigned)v > want.largest ? (unsigned)v : want.largest;
        if (v == 77) want.taken = (unsigned)i;
    }
    device_array<int> input(values);
    device_array<totals> result(std::vector<totals>(1, totals{0, 0, 0, 0, 0}));
    count<<<GRID(n, 64), 64>>>(result.at, input.at, n);
    const totals got = result.read()[0];
    CHECK_EQ_INT(got.sum, want.sum);
    CHECK_EQ_INT(got.largest, want.largest);
    CHECK_EQ_INT(got.taken, want.taken);
    CHECK_EQ_INT(got.bits, 0xffffffffu);
    double largest;
    memcpy(&largest, &got.largest_double, sizeof largest);
    CHECK_EQ_INT(largest, want.largest);
}

TEST(intrinsics) {
    const double want[] = {
        0xD2511F52u,      3 - 1.0,          24,  2147483647.0, 0, 0x1p-11 + 0x1p-24, 1, 1.0f / 3.0f,
        (double)sqrtf(2), 8 + 3100 + 40000, 3.5, -1.25};
    const size_t n = sizeof want / sizeof *want;
    device_array<double> out(n);
    numbers<<<1, 1>>>(out.at);
    const std::vector<double> got = out.read();
    for (size_t i = 0; i < n; i++) CHECK_NEAR(got[i], want[i], 0);
}

// ---- Launches -----------------------------------------------------------------------------------

int calls;
int side_effect() { return ++calls; }

#define TRY(statement) \
    do { statement; } while (0)

// What <<<1, 1>>> in comments, "<<<" in literals and odd layouts do to a launch: nothing.
TEST(launches_of_every_form) {
    device_array<int> out(32);
    const several<int, 4> four = {{1, 2, 3, 4}};
    const char *text = "spread<<<1, 2>>>(x)", *raw = R"(spread<<<1>>>(")"; /* k<<<1>>>() */
    const int line = __LINE__;
    // clang-format off
    spread<int, 4> // over several
        <<<1,
           32, 0, /* a comment, */ nullptr>>>
        // lines
        (out.at,
         four);
    // clang-format on
    CHECK_EQ_INT(__LINE__, line + 9);
    CHECK_EQ_INT(out.read()[3], 4);
    TRY((spread<int, (3 > 2 ? 2 : 1)><<<dim3(1, 1), dim3(8)>>>(out.at, several<int, 2>{{9, 8}})));
    CHECK_EQ_INT(out.read()[1], 8);
    void (*pointer)(float *, float, int) = fill_from;
    device_array<float> floats(4);
    for (int i = 0; i < 2; i++)
        if (i)
            pointer<<<1, 4>>>(floats.at, 1, side_effect());
        else
            fill_from<<<1, 4>>>(floats.at, 5, 4);
    CHECK_EQ_INT(calls, 1);
    CHECK_NEAR(floats.read()[0], 1, 0);
    CHECK_NEAR(floats.read()[1], 5, 0);
    CHECK_EQ_INT(strlen(text), 19);
    CHECK_EQ_INT(strlen(raw), 15);
}

// Two ints in a struct may look like an address.
TEST(numbers_are_not_taken_for_pointers) {
    device_array<int> out(4);
    const several<int, 4> numbers = {{0x3f800000, 0x100, 7, 0x2000}};
    spread<int, 4><<<1, 32>>>(out.at, numbers);
    CHECK_EQ_INT(out.read()[3], 0x2000);
}

TEST(bad_launches_are_errors) {
    device_array<float> out(32);
    fill_from<<<1, 1025>>>(out.at, 1, 32);
    CHECK_EQ_INT(cudaPeekAtLastError(), cudaErrorInvalidConfiguration);
    CHECK_EQ_STR(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidConfiguration");
    OK(cudaGetLastError());
    fill_from<<<0, 32>>>(out.at, 1, 32);
    CHECK(cudaGetLastError() != cudaSuccess);
    fill_from<<<dim3(1, 65536), 32>>>(out.at, 1, 32);
    CHECK(cudaGetLastError() != cudaSuccess);
    for (const float v : out.read()) CHECK(isnan(v));
}

TEST(dynamic_shared_memory_needs_a_permit_per_kernel) {
    device_array<float> out(32);
    const size_t bytes = 100 << 10;
    OK(cudaFuncSetAttribute(much_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    much_shared<<<1, 32, bytes>>>(out.at);
    OK(cudaGetLastError());
    much_shared_too<<<1, 32, bytes>>>(out.at);
    CHECK(cudaGetLastError() != cudaSuccess);
    much_shared<<<1, 32, bytes + 4>>>(out.at);
    CHECK(cudaGetLastError() != cudaSuccess);
    CHECK_NEAR(out.read()[31], 1, 0);
    CHECK_EQ_INT(
        cudaFuncSetAttribute(much_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
        cudaErrorInvalidValue);
    CHECK(cudaGetLastError() != cudaSuccess);
}

// ---- Memory, device, errors ---------------------------------------------------------------------

TEST(device_queries) {
    int devices = 0, value = 0;
    cudaDeviceProp properties;
    OK(cudaGetDeviceCount(&devices));
    CHECK_EQ_INT(devices, 1);
    OK(cudaSetDevice(0));
    CHECK_EQ_INT(cudaSetDevice(1), cudaErrorInvalidDevice);
    OK(cudaGetDeviceProperties(&properties, 0));
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    CHECK_EQ_INT(value, properties.major);
    CHECK_EQ_STR(properties.name, "cudasim");
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST(memory_is_counted_and_limited) {
    size_t before, after, total;
    OK(cudaMemGetInfo(&before, &total));
    {
        device_array<char> some(1000);
        OK(cudaMemGetInfo(&after, &total));
        CHECK_EQ_INT(before - after, 1000);
        cudasim_set_memory(total - before + 1100);
        void *more;
        CHECK_EQ_INT(cudaMalloc(&more, 200), cudaErrorMemoryAllocation);
        CHECK_EQ_INT(cudaGetLastError(), cudaErrorMemoryAllocation);
        OK(cudaMalloc(&more, 100));
        OK(cudaFree(more));
        cudasim_set_memory(total);
    }
    OK(cudaMemGetInfo(&after, &total));
    CHECK_EQ_INT(after, before);
    int local;
    CHECK_EQ_INT(cudaFree(&local), cudaErrorInvalidValue);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST(fresh_memory_holds_nan) {
    device_array<float> fresh(1000);
    for (const float v : fresh.read()) CHECK(isnan(v));
    float *pinned;
    OK(cudaMallocHost(&pinned, 16));
    CHECK(isnan(pinned[3]));
    OK(cudaFreeHost(pinned));
}

TEST(failures_on_demand) {
    void *at;
    cudasim_fail("cudaMalloc", 1, cudaErrorMemoryAllocation, 0);
    OK(cudaMalloc(&at, 16));
    void *none;
    CHECK_EQ_INT(cudaMalloc(&none, 16), cudaErrorMemoryAllocation);
    OK(cudaMalloc(&none, 16));
    OK(cudaFree(none));
    OK(cudaFree(at));
    cudasim_fail("launch", 0, cudaErrorIllegalAddress, 1);
    device_array<float> *out = nullptr;
    fill_from<<<1, 1>>>(nullptr, 1, 0);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_EQ_INT(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    CHECK_EQ_INT(cudaMalloc(&none, 16), cudaErrorIllegalAddress);
    CHECK_EQ_STR(cudaGetErrorString(cudaGetLastError()),
                 "an illegal memory access was encountered");
    cudasim_fail("", 0, 0, 0);
    out = new device_array<float>(1);
    delete out;
    OK(cudaGetLastError());
}

TEST(any_call_of_a_capture_fails) {
    device_array<float> out(1);
    for (int after = 0; after < 4; after++) {
        cudaStream_t stream;
        cudaGraph_t graph = nullptr;
        OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        cudasim_fail("captured", after, cudaErrorStreamCaptureUnsupported, 0);
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        fill_from<<<1, 1, 0, stream>>>(out.at, 1, 0);
        const cudaError_t launched = cudaGetLastError();
        CHECK_EQ_INT(launched, after == 0 ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        CHECK_EQ_INT(cudaSetDevice(0),
                     after == 1 ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
        const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
        CHECK_EQ_INT(ended, after < 2    ? cudaErrorStreamCaptureInvalidated
                            : after == 2 ? cudaErrorStreamCaptureUnsupported
                                         : cudaSuccess);
        CHECK_EQ_INT(cudasim_failed(), after < 3);
        cudasim_fail("", 0, 0, 0);
        if (graph) OK(cudaGraphDestroy(graph));
        OK(cudaStreamDestroy(stream));
    }
}

TEST(devices_have_their_own_memory) {
    size_t before[2], after[2], total;
    void *at;
    int device;
    cudasim_set_devices(2);
    for (int i = 0; i < 2; i++) OK(cudaSetDevice(i)), OK(cudaMemGetInfo(&before[i], &total));
    OK(cudaMalloc(&at, 1 << 20));
    for (int i = 0; i < 2; i++) OK(cudaSetDevice(i)), OK(cudaMemGetInfo(&after[i], &total));
    CHECK_EQ_INT(after[0], before[0]);
    CHECK_EQ_INT(after[1], before[1] - (1 << 20));
    CHECK_EQ_INT(cudaSetDevice(2), cudaErrorInvalidDevice);
    OK(cudaGetDevice(&device));
    CHECK_EQ_INT(device, 1);
    OK(cudaSetDevice(0));
    OK(cudaFree(at)); /* from whatever device */
    OK(cudaSetDevice(1)), OK(cudaMemGetInfo(&after[1], &total)), OK(cudaSetDevice(0));
    CHECK_EQ_INT(after[1], before[1]);
    cudaGetLastError();
    cudasim_set_devices(1);
}

// ---- Streams and graphs -------------------------------------------------------------------------

struct two_streams {
    cudaStream_t a, b;
    cudaEvent_t ready, done;
    two_streams() {
        OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
        OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
        OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
        OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    }
    ~two_streams() {
        OK(cudaStreamDestroy(a));
        OK(cudaStreamDestroy(b));
        OK(cudaEventDestroy(ready));
        OK(cudaEventDestroy(done));
    }
    // b goes on after what a has so far.
    void fork() {
        OK(cudaEventRecord(ready, a));
        OK(cudaStreamWaitEvent(b, ready, 0));
    }
    void join() {
        OK(cudaEventRecord(done, b));
        OK(cudaStreamWaitEvent(a, done, 0));
    }
};

TEST(streams_wait_for_events) {
    const int n = 100;
    two_streams s;
    device_array<float> values((size_t)n);
    float *pinned;
    OK(cudaMallocHost(&pinned, sizeof(float) * n));
    for (int i = 0; i < n; i++) pinned[i] = (float)i;
    OK(cudaMemcpyAsync(values.at, pinned, sizeof(float) * n, cudaMemcpyHostToDevice, s.a));
    s.fork();
    add_one<<<1, 32, 0, s.b>>>(values.at, n);
    s.join();
    multiply<<<1, 32, 0, s.a>>>(values.at, 2, n);
    OK(cudaMemcpyAsync(pinned, values.at, sizeof(float) * n, cudaMemcpyDeviceToHost, s.a));
    OK(cudaStreamSynchronize(s.a));
    for (int i = 0; i < n; i++) CHECK_NEAR(pinned[i], 2 * (i + 1), 0);
    OK(cudaFreeHost(pinned));
}

TEST(events_are_timed_and_queried) {
    cudaEvent_t start, end;
    two_streams s;
    float ms = -1;
    device_array<float> values(10);
    OK(cudaEventCreateWithFlags(&start, cudaEventDefault));
    OK(cudaEventCreateWithFlags(&end, cudaEventDefault));
    OK(cudaEventRecord(start, s.a));
    OK(cudaMemsetAsync(values.at, 0, 40, s.a));
    OK(cudaEventRecord(end, s.a));
    int queries = 0;
    while (cudaEventQuery(end) == cudaErrorNotReady && queries < 10) queries++;
    CHECK(queries < 10);
    OK(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    CHECK_EQ_INT(cudaEventElapsedTime(&ms, start, s.ready), cudaErrorInvalidResourceHandle);
    CHECK_EQ_INT(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
}

TEST(pageable_copies_are_taken_at_the_call) {
    two_streams s;
    device_array<int> values(2);
    int host[2] = {1, 2};
    OK(cudaMemcpyAsync(values.at, host, sizeof host, cudaMemcpyHostToDevice, s.a));
    host[0] = host[1] = 0;
    OK(cudaMemcpyAsync(host, values.at, sizeof host, cudaMemcpyDeviceToHost, s.a));
    CHECK_EQ_INT(host[0] + host[1], 3);
}

TEST(graphs_replay_what_was_captured) {
    const int n = 10;
    two_streams s;
    device_array<float> values((size_t)n), other((size_t)n);
    cudaStreamCaptureStatus status;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0;
    OK(cudaMemset(other.at, 0, n * sizeof(float)));
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(values.at, 0, n * sizeof(float), s.a));
    float factor = 3; // captured by value
    add_one<<<1, 32, 0, s.a>>>(values.at, n);
    s.fork();
    add_one<<<1, 32, 0, s.b>>>(other.at, n);
    multiply<<<1, 32, 0, s.a>>>(values.at, factor, n);
    s.join();
    factor = 100;
    OK(cudaMemcpyAsync(values.at, other.at, sizeof(float), cudaMemcpyDeviceToDevice, s.a));
    OK(cudaStreamIsCapturing(s.b, &status));
    CHECK_EQ_INT(status, cudaStreamCaptureStatusActive);
    OK(cudaStreamEndCapture(s.a, &graph));
    OK(cudaStreamIsCapturing(s.b, &status));
    CHECK_EQ_INT(status, cudaStreamCaptureStatusNone);
    CHECK_NEAR(other.read()[0], 0, 0); // nothing has run
    OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK_EQ_INT(nodes, 5);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 0; i < 4; i++) OK(cudaGraphLaunch(exec, s.a));
    OK(cudaStreamSynchronize(s.a));
    CHECK_NEAR(values.read()[0], 4, 0);
    CHECK_NEAR(values.read()[1], 3, 0);
    OK(cudaGraphExecDestroy(exec));
}

TEST(captures_reject_what_they_cannot_hold) {
    two_streams s;
    cudaGraph_t graph;
    void *at;
    float *pinned;
    device_array<float> values(4);
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    CHECK_EQ_INT(cudaMalloc(&at, 4), cudaErrorStreamCaptureUnsupported);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(graph == nullptr);

    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    cudaError_t elsewhere = cudaErrorUnknown;
    std::thread([&] { elsewhere = cudaMalloc(&at, 4); }).join();
    CHECK_EQ_INT(elsewhere, cudaSuccess); // other threads may
    OK(cudaStreamEndCapture(s.a, &graph));
    OK(cudaGraphDestroy(graph));
    OK(cudaFree(at));
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeGlobal));
    std::thread([&] { elsewhere = cudaMalloc(&at, 4); }).join();
    CHECK_EQ_INT(elsewhere, cudaErrorStreamCaptureUnsupported);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    CHECK_EQ_INT(cudaStreamSynchronize(s.a), cudaErrorStreamCaptureUnsupported);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    s.fork();
    add_one<<<1, 32, 0, s.b>>>(values.at, 4); // never joined
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureUnjoined);

    OK(cudaEventRecord(s.ready, s.b)); // outside
    OK(cudaStreamBeginCapture(s.a, cudaStreamCaptureModeThreadLocal));
    CHECK_EQ_INT(cudaStreamWaitEvent(s.a, s.ready, 0), cudaErrorStreamCaptureIsolation);
    CHECK_EQ_INT(cudaStreamEndCapture(s.a, &graph), cudaErrorStreamCaptureInvalidated);

    OK(cudaMallocHost(&pinned, 16));
    OK(cudaFreeHost(pinned));
    CHECK(cudaGetLastError() != cudaSuccess);
    OK(cudaGetLastError());
}

// ---- cuBLASLt -----------------------------------------------------------------------------------

struct shape {
    int m, n, k, batch;
    bool transpose_a, transpose_b, by_row;
    int pad; // of the leading dimensions
};

// A product of random matrices with everything that describes it.
template <class In, class Out> struct gemm {
    shape s;
    cudaDataType in, out;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t layouts[3];
    cublasLtMatmulPreference_t wish;
    std::vector<In> a, b;
    std::vector<Out> c, bias;
    device_array<In> da, db;
    device_array<Out> dc, dd, dbias;
    device_array<char> workspace;
    int rows[3], columns[3], ld[3];

    static size_t room(int rows, int columns, const shape &s) {
        return (size_t)((rows + s.pad) * (columns + s.pad) * s.batch);
    }
    gemm(shape s_, cublasComputeType_t compute, cublasLtEpilogue_t epilogue)
        : s(s_), a(random_values<In>(room(s.m, s.k, s))), b(random_values<In>(room(s.k, s.n, s))),
          c(random_values<Out>(room(s.m, s.n, s))), bias(random_values<Out>((size_t)s.m)), da(a),
          db(b), dc(c), dd(c.size()), dbias(bias), workspace(1 << 20) {
        in = type_of(In());
        out = type_of(Out());
        const cublasOperation_t n = CUBLAS_OP_N, t = CUBLAS_OP_T;
        CHECK_EQ_INT(cublasLtCreate(&handle), 0);
        CHECK_EQ_INT(cublasLtMatmulDescCreate(&op, compute, CUDA_R_32F), 0);
        set(CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_a ? t : n);
        set(CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_b ? t : n);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)dbias.at);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out);
        const int first[] = {s.m, s.k, s.m}, second[] = {s.k, s.n, s.n};
        const bool swap[] = {s.transpose_a, s.transpose_b, false};
        for (int i = 0; i < 3; i++) {
            rows[i] = swap[i] ? second[i] : first[i];
            columns[i] = swap[i] ? first[i] : second[i];
            ld[i] = (s.by_row ? columns[i] : rows[i]) + s.pad;
            layouts[i] = make(i);
        }
        CHECK_EQ_INT(cublasLtMatmulPreferenceCreate(&wish), 0);
        const size_t most = workspace.size;
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &most,
                                             sizeof most);
    }
    ~gemm() {
        cublasLtDestroy(handle);
        cublasLtMatmulDescDestroy(op);
        for (auto l : layouts) cublasLtMatrixLayoutDestroy(l);
        cublasLtMatmulPreferenceDestroy(wish);
    }
    static cudaDataType type_of(float) { return CUDA_R_32F; }
    static cudaDataType type_of(__half) { return CUDA_R_16F; }
    static cudaDataType type_of(__nv_bfloat16) { return CUDA_R_16BF; }
    template <class V> void set(cublasLtMatmulDescAttributes_t id, V value) {
        CHECK_EQ_INT(cublasLtMatmulDescSetAttribute(op, id, &value, sizeof value), 0);
    }
    int64_t stride(int i) const { return (int64_t)ld[i] * (s.by_row ? rows[i] : columns[i]); }
    cublasLtMatrixLayout_t make(int i) {
        cublasLtMatrixLayout_t l;
        const cublasLtOrder_t order = CUBLASLT_ORDER_ROW;
        const int64_t step = stride(i);
        CHECK_EQ_INT(cublasLtMatrixLayoutCreate(&l, i < 2 ? in : out, (uint64_t)rows[i],
                                                (uint64_t)columns[i], ld[i]),
                     0);
        if (s.by_row)
            cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order);
        cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &s.batch,
                                         sizeof s.batch);
        cublasLtMatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                         sizeof step);
        return l;
    }
    cublasStatus_t candidates(std::vector<cublasLtMatmulHeuristicResult_t> &found, int most = 8) {
        int count = 0;
        found.resize((size_t)most);
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(handle, op, layouts[0], layouts[1], layouts[2],
                                           layouts[2], wish, most, found.data(), &count);
        found.resize((size_t)count);
        return status;
    }
    cublasStatus_t run(const cublasLtMatmulAlgo_t *algo, size_t bytes, float alpha, float beta) {
        return cublasLtMatmul(handle, op, &alpha, da.at, layouts[0], db.at, layouts[1], &beta,
                              dc.at, layouts[2], dd.at, layouts[2], algo, workspace.at, bytes,
                              nullptr);
    }
    size_t index(int i, int row, int column, int z) const {
        return (size_t)(z * stride(i) + (s.by_row ? row * ld[i] + column : column * ld[i] + row));
    }
    // The largest deviation from the product in double.
    double error(float alpha, float beta, bool with_bias, bool with_relu) {
        const std::vector<Out> d = dd.read();
        double worst = 0;
        for (int z = 0; z < s.batch; z++)
            for (int i = 0; i < s.m; i++)
                for (int j = 0; j < s.n; j++) {
                    double sum = 0;
                    for (int l = 0; l < s.k; l++)
                        sum += (double)widened(
                                   a[s.transpose_a ? index(0, l, i, z) : index(0, i, l, z)]) *
                               widened(b[s.transpose_b ? index(1, j, l, z) : index(1, l, j, z)]);
                    const size_t at = index(2, i, j, z);
                    double want = alpha * sum + beta * widened(c[at]);
                    if (with_bias) want += widened(bias[(size_t)i]);
                    if (with_relu && want < 0) want = 0;
                    const double off = fabs(want - widened(d[at]));
                    worst = off <= worst ? worst : off;
                }
        return worst;
    }
};

template <class In, class Out> void check_products(double tolerance) {
    const shape shapes[] = {{33, 17, 65, 1, false, false, false, 0},
                            {16, 24, 40, 3, true, false, false, 0},
                            {8, 5, 130, 2, false, true, false, 3},
                            {5, 8, 16, 2, true, true, true, 8}};
    for (const shape &s : shapes) {
        for (const bool bias : {false, true}) {
            for (const bool relu : {false, true}) {
                if (bias && s.by_row) continue;
                gemm<In, Out> g(s, CUBLAS_COMPUTE_32F,
                                (cublasLtEpilogue_t)(CUBLASLT_EPILOGUE_DEFAULT |
                                                     (bias ? CUBLASLT_EPILOGUE_BIAS : 0) |
                                                     (relu ? CUBLASLT_EPILOGUE_RELU : 0)));
                std::vector<cublasLtMatmulHeuristicResult_t> found;
                CHECK_EQ_INT(g.candidates(found), CUBLAS_STATUS_SUCCESS);
                for (const auto &how : found) {
                    CHECK_EQ_INT(g.run(&how.algo, how.workspaceSize, 0.5f, bias ? 0.0f : 2.0f), 0);
                    CHECK_NEAR(g.error(0.5f, bias ? 0.0f : 2.0f, bias, relu), 0, tolerance);
                }
            }
        }
    }
}

TEST(products_in_every_type) {
    check_products<float, float>(1e-5);
    check_products<__half, __half>(8e-3);
    check_products<__half, float>(1e-5);
    check_products<__nv_bfloat16, __nv_bfloat16>(7e-2);
    check_products<__nv_bfloat16, float>(1e-5);
}

TEST(tf32_rounds_the_inputs) {
    gemm<float, float> g({32, 32, 64, 1, false, false, false, 0}, CUBLAS_COMPUTE_32F_FAST_TF32,
                         CUBLASLT_EPILOGUE_DEFAULT);
    CHECK_EQ_INT(g.run(nullptr, 0, 1, 0), 0);
    const double error = g.error(1, 0, false, false);
    CHECK(error > 1e-5 && error < 1e-2);
}

TEST(algorithms_keep_their_bits_and_differ) {
    gemm<float, float> g({64, 64, 512, 1, false, false, false, 0}, CUBLAS_COMPUTE_32F,
                         CUBLASLT_EPILOGUE_DEFAULT);
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    CHECK_EQ_INT(g.candidates(found), 0);
    CHECK(found.size() >= 3);
    CHECK_EQ_INT(g.run(&found[0].algo, g.workspace.size, 1, 0), 0);
    const std::vector<float> first = g.dd.read();
    CHECK_EQ_INT(g.run(&found[0].algo, g.workspace.size, 1, 0), 0);
    CHECK(memcmp(first.data(), g.dd.read().data(), first.size() * sizeof(float)) == 0);
    CHECK_EQ_INT(g.run(&found[1].algo, g.workspace.size, 1, 0), 0);
    CHECK(memcmp(first.data(), g.dd.read().data(), first.size() * sizeof(float)) != 0);
    cublasLtMatmulHeuristicResult_t checked;
    cublasLtMatmulAlgo_t saved = found[0].algo;
    CHECK_EQ_INT(cublasLtMatmulAlgoCheck(g.handle, g.op, g.layouts[0], g.layouts[1], g.layouts[2],
                                         g.layouts[2], &saved, &checked),
                 0);
    CHECK_EQ_INT(checked.workspaceSize, found[0].workspaceSize);
    saved.data[0] ^= 0xff;
    CHECK(cublasLtMatmulAlgoCheck(g.handle, g.op, g.layouts[0], g.layouts[1], g.layouts[2],
                                  g.layouts[2], &saved, &checked) != 0);
}

TEST(products_that_the_library_rejects) {
    const shape plain = {32, 32, 32, 1, false, false, false, 0};
    std::vector<cublasLtMatmulHeuristicResult_t> found;
    {
        gemm<__half, __half> g(plain, CUBLAS_COMPUTE_32F, CUBLASLT_EPILOGUE_BIAS);
        g.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
        CHECK_EQ_INT(g.candidates(found), CUBLAS_STATUS_NOT_SUPPORTED);
        g.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16F);
        CHECK_EQ_INT(g.candidates(found), 0);
        g.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T); // still fits: the matrices are square
        CHECK_EQ_INT(g.candidates(found), 0);
        // Too little workspace, an unaligned one.
        CHECK(found[0].workspaceSize > 0);
        CHECK_EQ_INT(g.run(&found[0].algo, found[0].workspaceSize - 1, 1, 0),
                     CUBLAS_STATUS_INVALID_VALUE);
        g.workspace.at += 4;
        CHECK_EQ_INT(g.run(&found[1].algo, g.workspace.size - 4, 1, 0),
                     CUBLAS_STATUS_INVALID_VALUE);
        g.workspace.at -= 4;
    }
    gemm<float, float> g({32, 16, 8, 1, false, false, false, 0}, CUBLAS_COMPUTE_32F,
                         CUBLASLT_EPILOGUE_DEFAULT);
    g.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T); // 8 x 32 and 16 x 8 do not agree
    CHECK_EQ_INT(g.candidates(found), CUBLAS_STATUS_INVALID_VALUE);
    g.set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    uint64_t inner = 7; // B has a row less than A has columns
    cublasLtMatrixLayoutSetAttribute(g.layouts[1], CUBLASLT_MATRIX_LAYOUT_ROWS, &inner, 8);
    CHECK_EQ_INT(g.candidates(found), CUBLAS_STATUS_INVALID_VALUE);
    inner = 8;
    cublasLtMatrixLayoutSetAttribute(g.layouts[1], CUBLASLT_MATRIX_LAYOUT_ROWS, &inner, 8);
    const uint32_t alignment = 8;
    CHECK_EQ_INT(g.candidates(found), 0);
    const size_t all = found.size();
    cublasLtMatmulPreferenceSetAttribute(g.wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                         &alignment, sizeof alignment);
    CHECK_EQ_INT(g.candidates(found), 0);
    CHECK(found.size() < all);
    cudasim_fail("cublasLtMatmul", 0, CUBLAS_STATUS_EXECUTION_FAILED, 0);
    CHECK_EQ_INT(g.run(nullptr, 0, 1, 0), CUBLAS_STATUS_EXECUTION_FAILED);
    CHECK_EQ_INT(g.run(nullptr, 0, 1, 0), CUBLAS_STATUS_SUCCESS);
}

} // namespace

TEST_TABLE = {T(elementwise_with_wide_loads),
              T(block_reductions),
              T(warp_functions_as_documented),
              T(tensor_cores_multiply_fragments),
              T(votes_of_a_block),
              T(atomics),
              T(intrinsics),
              T(launches_of_every_form),
              T(numbers_are_not_taken_for_pointers),
              T(bad_launches_are_errors),
              T(dynamic_shared_memory_needs_a_permit_per_kernel),
              T(device_queries),
              T(memory_is_counted_and_limited),
              T(fresh_memory_holds_nan),
              T(failures_on_demand),
              T(any_call_of_a_capture_fails),
              T(devices_have_their_own_memory),
              T(streams_wait_for_events),
              T(events_are_timed_and_queried),
              T(pageable_copies_are_taken_at_the_call),
              T(graphs_replay_what_was_captured),
              T(captures_reject_what_they_cannot_hold),
              T(products_in_every_type),
              T(tf32_rounds_the_inputs),
              T(algorithms_keep_their_bits_and_differ),
              T(products_that_the_library_rejects)};
TEST_MAIN
