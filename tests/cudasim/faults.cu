// faults.cu - programs with one bug each, which the simulator must find: faults NAME runs one. It
// ends badly when the bug is found, with status 0 when it is not. run.sh knows what must be said.
#include <cuda_runtime.h>
#include <cublasLt.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace {

const int N = 64;

// ---- Bugs in kernels ----------------------------------------------------------------------------

__global__ void shift(float *out, int by) {
    __shared__ float tile[N];
    const int i = (int)threadIdx.x;
    tile[i] = (float)i;
    __syncthreads();
    out[i] = tile[(i + by) % N];
}

__global__ void beyond_static_shared(float *out, int by) {
    __shared__ float tile[N];
    tile[threadIdx.x] = 1;
    __syncthreads();
    const float *row = tile; // hides the bounds, which UBSan would know
    out[threadIdx.x] = row[(int)threadIdx.x + by];
}

__global__ void beyond_dynamic_shared(float *out, int by) {
    extern __shared__ float tile[];
    tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[(int)threadIdx.x + by];
}

__global__ void beyond_global(float *out, int by) { out[(int)threadIdx.x + by] = 1; }

__global__ void misaligned(float *out, int by) {
    *reinterpret_cast<float4 *>(out + by) = float4{0, 0, 0, 0};
}

__global__ void divergent_barrier(float *out) {
    if (threadIdx.x & 1) {
        out[threadIdx.x] = 1;
        __syncthreads();
    } else {
        __syncthreads();
    }
}

__global__ void missing_lanes(float *out) {
    float v = (float)threadIdx.x;
    if (threadIdx.x % 32 < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);
    __syncthreads();
    out[threadIdx.x] = v;
}

__global__ void copy_not_awaited(float *out, const float *in) {
    __shared__ float part[N];
    cudasim::copy_async(part + threadIdx.x, in + threadIdx.x, 4, 4);
    cudasim::commit_copies();
    cudasim::wait_copies(1); // all but the last group
    out[threadIdx.x] = part[threadIdx.x];
}

__global__ void half_a_warp_multiplies(float *out) {
    const uint32_t a[4] = {0, 0, 0, 0};
    float d[4] = {0, 0, 0, 0};
    if (threadIdx.x % 32 < 16) return;
    cudasim::multiply(d, a, a, false);
    out[threadIdx.x] = d[0];
}

__global__ void matrix_off_its_row(float *out) {
    __shared__ __align__(16) uint16_t rows[32 * 8 + 8];
    uint32_t x[4];
    rows[threadIdx.x] = 0;
    __syncthreads();
    cudasim::load_matrices(x, rows + 1 + threadIdx.x % 32 * 8, false);
    out[threadIdx.x] = (float)x[0];
}

__global__ void divergent_shuffle(float *out) {
    float v = (float)threadIdx.x;
    if (threadIdx.x & 1)
        v += __shfl_xor_sync(0xffffffffu, v, 1);
    else
        v += __shfl_xor_sync(0xffffffffu, v, 2);
    out[threadIdx.x] = v;
}

// Reads a lane that takes no part.
__global__ void absent_source(float *out) {
    float v = (float)threadIdx.x;
    if (threadIdx.x < 16) v = __shfl_down_sync(0xffffu, v, 8);
    out[threadIdx.x] = v;
}

__global__ void uninitialised_shared(float *out) {
    __shared__ float tile[N];
    if (threadIdx.x) tile[threadIdx.x] = 1;
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void add(float *out, const float *in) { out[threadIdx.x] += in[threadIdx.x]; }

__global__ void race_in_shared(float *out) {
    __shared__ float tile[N];
    tile[threadIdx.x] = (float)threadIdx.x;
    out[threadIdx.x] = tile[(threadIdx.x + 33) % N];
}

__global__ void race_in_global(float *out) { out[0] = (float)threadIdx.x; }

__global__ void race_between_blocks(float *out) {
    if (threadIdx.x == 0) out[0] += 1;
}

// Wants the blocks to run in order.
__global__ void chained_blocks(float *out) {
    if (threadIdx.x == 0) out[blockIdx.x + 1] = out[blockIdx.x] + 1;
}

struct operands {
    float *out;
    const float *in;
};
__global__ void add_operands(operands o) { o.out[threadIdx.x] += o.in[threadIdx.x]; }

__global__ void indirect(float *out, float **in) { out[threadIdx.x] = (*in)[threadIdx.x]; }

__global__ void fill(float *out, float value) { out[threadIdx.x] = value; }

// ---- What the faults work with ------------------------------------------------------------------

float *device(bool zero = true) {
    float *at;
    cudaMalloc(&at, N * sizeof(float));
    if (zero) cudaMemset(at, 0, N * sizeof(float));
    cudaDeviceSynchronize();
    return at;
}

// Ends badly when the array holds a NaN or, with `want`, anything else than that.
int check(const float *at, bool any = true, float want = 0) {
    float values[N];
    cudaMemcpy(values, at, sizeof values, cudaMemcpyDeviceToHost);
    for (int i = 0; i < N; i++) {
        if (!isnan(values[i]) && (any || values[i] == want)) continue;
        printf("wrong: element %d is %g\n", i, values[i]);
        return 3;
    }
    return 0;
}

cudaStream_t new_stream() {
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    return stream;
}

// A product of 8 x 8 matrices that need no padding.
int product(const float *a, float *d, void *workspace, size_t bytes) {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t how;
    const float one = 1, zero = 0;
    int found;
    cublasLtCreate(&handle);
    cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, 8, 8, 8);
    cublasLtMatmulPreferenceCreate(&wish);
    cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                         sizeof bytes);
    cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, wish, 1, &how,
                                   &found);
    return cublasLtMatmul(handle, op, &one, a, layout, a, layout, &zero, d, layout, d, layout,
                          &how.algo, workspace, bytes, nullptr);
}

// ---- The faults ---------------------------------------------------------------------------------

int none() {
    float *out = device();
    shift<<<1, N>>>(out, 33);
    return check(out);
}
int static_shared() {
    float *out = device();
    beyond_static_shared<<<1, N>>>(out, 1);
    return check(out);
}
int dynamic_shared() {
    float *out = device();
    beyond_dynamic_shared<<<1, N, N * sizeof(float)>>>(out, 1);
    return check(out);
}
int global_memory() {
    float *out = device();
    beyond_global<<<1, N>>>(out, 1);
    return check(out);
}
int misaligned_store() {
    float *out = device();
    misaligned<<<1, 1>>>(out, 1);
    return check(out);
}
int barrier() {
    float *out = device();
    divergent_barrier<<<1, N>>>(out);
    return check(out);
}
int lanes() {
    float *out = device();
    missing_lanes<<<1, N>>>(out);
    return check(out);
}
int copies() {
    float *out = device(), *in = device();
    cudaMemset(in, 0, N * sizeof *in);
    copy_not_awaited<<<1, N>>>(out, in);
    return check(out);
}
int lanes_of_a_product() {
    float *out = device();
    half_a_warp_multiplies<<<1, N>>>(out);
    return check(out);
}
int rows_of_a_matrix() {
    float *out = device();
    matrix_off_its_row<<<1, N>>>(out);
    return check(out);
}
int shuffles() {
    float *out = device();
    divergent_shuffle<<<1, N>>>(out);
    return check(out);
}
int source() {
    float *out = device();
    absent_source<<<1, N>>>(out);
    return check(out);
}
int uninitialised() {
    float *out = device();
    add<<<1, N>>>(out, device(false));
    return check(out);
}
int uninitialised_in_shared() {
    float *out = device();
    uninitialised_shared<<<1, N>>>(out);
    return check(out);
}
int host_read() {
    float *out = device();
    return out[3] != 0;
}
int host_write() {
    float *out = device();
    memset(out, 0, 4);
    return 0;
}
int host_pointer() {
    float in[N] = {0}, *out = device();
    add<<<1, N>>>(out, in);
    return check(out);
}
int host_pointer_in_struct() {
    static float in[N];
    float *out = device();
    add_operands<<<1, N>>>(operands{out, in});
    return check(out);
}
int freed_pointer() {
    float *out = device(), *in = device();
    cudaFree(in);
    add<<<1, N>>>(out, in);
    return check(out);
}
int freed_memory() {
    float *out = device(), *in = device();
    float **table; // a pointer that no parameter shows
    cudaMallocHost(&table, sizeof *table);
    *table = in;
    cudaFree(in);
    indirect<<<1, N>>>(out, table);
    return check(out);
}
int copy_direction() {
    float host[N], *out = device();
    return (int)cudaMemcpy(out, host, sizeof host, cudaMemcpyDeviceToHost);
}
int copy_too_long() {
    float host[N + 1], *out = device();
    return (int)cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
}
int host_sync() { // reads a pinned result without waiting
    float *out = device(), *pinned;
    cudaStream_t stream = new_stream();
    cudaMallocHost(&pinned, N * sizeof(float));
    cudaMemcpyAsync(pinned, out, N * sizeof(float), cudaMemcpyDeviceToHost, stream);
    const bool stale = isnan(pinned[0]);
    if (stale) printf("wrong: the result is not there yet\n");
    return stale ? 3 : 0;
}
int host_overwrite() { // reuses a pinned buffer that is still being read
    float *out = device(), *pinned;
    cudaStream_t stream = new_stream();
    cudaMallocHost(&pinned, N * sizeof(float));
    memset(pinned, 0, N * sizeof(float));
    cudaMemcpyAsync(out, pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream);
    pinned[0] = 1;
    cudaStreamSynchronize(stream);
    return check(out, false, 0);
}
int host_write_in_flight() { // writes where a copy is on its way to
    float *out = device(), *pinned;
    cudaStream_t stream = new_stream();
    cudaMallocHost(&pinned, N * sizeof(float));
    cudaMemcpyAsync(pinned, out, N * sizeof(float), cudaMemcpyDeviceToHost, stream);
    pinned[3] = 1;
    return (int)cudaStreamSynchronize(stream);
}

// ---- Two devices: what is of one is used with the other

int stream_of_other() {
    cudaStream_t stream = new_stream();
    cudaSetDevice(1);
    fill<<<1, N, 0, stream>>>(device(), 1);
    return (int)cudaStreamSynchronize(stream);
}
int memory_of_other() {
    float *out = device();
    cudaSetDevice(1);
    fill<<<1, N, 0, new_stream()>>>(out, 1);
    return (int)cudaDeviceSynchronize();
}
int event_of_other() {
    cudaEvent_t event;
    cudaEventCreate(&event);
    cudaSetDevice(1);
    return (int)cudaEventRecord(event, new_stream());
}
int copy_of_other() {
    float host[N], *out = device();
    cudaSetDevice(1);
    return (int)cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, new_stream());
}
int handle_of_other() {
    cublasLtHandle_t handle;
    cublasLtCreate(&handle);
    cudaSetDevice(1);
    return (int)cublasLtMatmulAlgoCheck(handle, nullptr, nullptr, nullptr, nullptr, nullptr,
                                        nullptr, nullptr);
}

int stream_sync() { // the second stream does not wait for the first
    float *out = device(false);
    cudaStream_t a = new_stream(), b = new_stream();
    fill<<<1, N, 0, a>>>(out, 1);
    add<<<1, N, 0, b>>>(out, out);
    cudaStreamSynchronize(b);
    return check(out, false, 2);
}
int graph_edge() { // neither does the branch of a graph
    float *out = device(), *in = device(false);
    cudaStream_t a = new_stream(), b = new_stream();
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(fork, a);
    fill<<<1, N, 0, a>>>(in, 1); // after the fork: it should be before
    cudaStreamWaitEvent(b, fork, 0);
    add<<<1, N, 0, b>>>(out, in);
    cudaEventRecord(join, b);
    cudaStreamWaitEvent(a, join, 0);
    cudaStreamEndCapture(a, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    cudaGraphLaunch(exec, a);
    cudaStreamSynchronize(a);
    return check(out, false, 1);
}
int block_order() {
    float *out = device();
    chained_blocks<<<N - 1, 1>>>(out);
    float last;
    cudaMemcpy(&last, out + N - 1, sizeof last, cudaMemcpyDeviceToHost);
    if (last != N - 1) printf("wrong: the last block saw %g\n", last);
    return last == N - 1 ? 0 : 3;
}
int shared_race() {
    float *out = device();
    race_in_shared<<<1, N>>>(out);
    return 0;
}
int global_race() {
    float *out = device();
    race_in_global<<<1, N>>>(out);
    return 0;
}
int block_race() {
    float *out = device();
    race_between_blocks<<<4, N>>>(out);
    return 0;
}
int product_of_host_memory() {
    float a[N] = {0};
    return product(a, device(), nullptr, 0);
}
int product_beyond_memory() { return product(device() + 8, device(), nullptr, 0); }
int workspace_in_use() { // live data in the workspace
    float *a = device(), *work;
    const size_t bytes = 64 << 10;
    cudaMalloc(&work, bytes);
    cudaMemset(work, 0, bytes);
    const int status = product(a, device(), work, bytes);
    return status ? status : check(work);
}

const struct {
    const char *name;
    int (*run)();
} faults[] = {
#define F(name) \
    { #name, name }
    F(none),
    F(static_shared),
    F(dynamic_shared),
    F(global_memory),
    F(misaligned_store),
    F(barrier),
    F(lanes),
    F(copies),
    F(lanes_of_a_product),
    F(rows_of_a_matrix),
    F(shuffles),
    F(source),
    F(uninitialised),
    F(uninitialised_in_shared),
    F(host_read),
    F(host_write),
    F(host_pointer),
    F(host_pointer_in_struct),
    F(freed_pointer),
    F(freed_memory),
    F(copy_direction),
    F(copy_too_long),
    F(host_sync),
    F(host_overwrite),
    F(host_write_in_flight),
    F(stream_of_other),
    F(memory_of_other),
    F(event_of_other),
    F(copy_of_other),
    F(handle_of_other),
    F(stream_sync),
    F(graph_edge),
    F(block_order),
    F(shared_race),
    F(global_race),
    F(block_race),
    F(product_of_host_memory),
    F(product_beyond_memory),
    F(workspace_in_use),
};

} // namespace

int main(int count, char **arguments) {
    for (const auto &fault : faults) {
        if (count > 1 && strcmp(arguments[1], fault.name) == 0) return fault.run();
        if (count == 1) puts(fault.name);
    }
    return count > 1 ? 2 : 0;
}
