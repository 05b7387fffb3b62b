// runtime.cpp - the part of the CUDA runtime that the tests need: device memory, streams, events,
// graphs, errors.
//
// Device memory is filled with 0xff (NaN, index -1) and closed to the host: it opens only while
// device work runs. With CUDASIM_ASYNC=1 work waits in its stream until somebody waits for it, and
// streams go on only as far as they must: a missing synchronisation reads stale values.
#include "simulator.h"
#include "control.h"
#include <sys/mman.h>
#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace cudasim {
int environment(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value && *value ? atoi(value) : otherwise;
}

void die(const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fputs("cudasim: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}

namespace {

enum { OPEN, BY_KEY, BY_PAGES }; // how device memory is closed to the host

const int MOST_DEVICES = 8;
int device_count = environment("CUDASIM_DEVICES", 1);
int capability = environment("CUDASIM_CAPABILITY", 90);
bool deferred = environment("CUDASIM_ASYNC", 0) != 0;
thread_local int current; // the device that this thread has chosen
const int protect = environment("CUDASIM_PROTECT", BY_KEY);
const int order = environment("CUDASIM_ORDER", 0);
size_t memory_limit = (size_t)environment("CUDASIM_MEMORY", 4096) << 20;

// ---- Device memory ------------------------------------------------------------------------------

// Addresses are never used twice, so that what was freed stays recognisable.
const size_t ARENA = size_t{64} << 30, PAGE = 4096;
const size_t ALIGNMENT = 512, RED_ZONE = 256;
const size_t LARGE = 1 << 20; // from here on freed memory goes back to the system

char *arena, *arena_top;
int openings;
size_t bytes_in_use[MOST_DEVICES];
struct memory {
    size_t size;
    int device;
};
std::map<const char *, memory> device_blocks, pinned_blocks;

// Opens and closes device memory: by a protection key, which is quick and touches this thread
// alone, or, where the CPU has none, by the rights of its pages. That takes as long as there are
// pages, so unless it was asked for they are closed the less often the more there are: the host
// still meets them, and a step of training costs a tenth of it at most.
const size_t CLOSED_AT_ONCE = 32; // pages for each opening that lies between
int protection_key = -1;
char *open_to; // pages from the arena's first to here are open

void set_protection(bool open) {
    if (!arena || protect == OPEN) return;
    if (protection_key >= 0) {
        pkey_set(protection_key, open ? 0 : PKEY_DISABLE_ACCESS);
        return;
    }
    static size_t closings;
    if (open) {
        const size_t size = (size_t)(arena_top - open_to + (long)PAGE - 1) & ~(PAGE - 1);
        mprotect(open_to, size, PROT_READ | PROT_WRITE);
        open_to += size;
    } else if (protect == BY_PAGES ||
               ++closings % (1 + (size_t)(open_to - arena) / (CLOSED_AT_ONCE * PAGE)) == 0) {
        mprotect(arena, (size_t)(open_to - arena), PROT_NONE);
        open_to = arena;
    }
}

// The block that these bytes lie in.
const memory *find(const std::map<const char *, memory> &blocks, const void *at, size_t size) {
    auto block = blocks.upper_bound((const char *)at);
    if (block == blocks.begin()) return nullptr;
    --block;
    const bool inside = (const char *)at + size <= block->first + block->second.size;
    return inside ? &block->second : nullptr;
}

// What belongs to one device is not for another. CUDA gives an error, or what is wrong.
void require_same(const char *who, const char *what, int device, const char *other, int wanted) {
    if (device != wanted)
        die("%s: %s is of device %d, %s is %d", who, what, device, other, wanted);
}
void require_memory_of(const char *who, const void *at, int device) {
    const memory *m = find(device_blocks, at, 0);
    if (m) require_same(who, "memory", m->device, "the stream's device", device);
}

bool in_arena(const void *at) { return arena && (const char *)at >= arena && at < arena + ARENA; }

#if !defined(SIM_ASAN) && !defined(SIM_TSAN)
// Sanitizers report with a stack; otherwise this line says at least what kind of fault it was.
void report_fault(int number, siginfo_t *info, void *) {
    if (in_arena(info->si_addr))
        fprintf(stderr, "cudasim: the host touched device memory at %p\n", info->si_addr);
    signal(number, SIG_DFL);
}

void watch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = report_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
}
#else
void watch_faults() {}
#endif

void create_arena() {
    if (arena) return;
    arena = (char *)mmap(nullptr, ARENA, protect == OPEN ? PROT_READ | PROT_WRITE : PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena == MAP_FAILED) die("no addresses for device memory");
    if (protect == BY_KEY) protection_key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (protection_key >= 0 &&
        pkey_mprotect(arena, ARENA, PROT_READ | PROT_WRITE, protection_key) != 0)
        die("no protection for device memory");
    arena_top = open_to = arena;
    watch_faults();
}

void *allocate(size_t size) {
    create_arena();
    const size_t room = (size + RED_ZONE + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
    size_t &in_use = bytes_in_use[current];
    if (size > memory_limit - std::min(memory_limit, in_use)) return nullptr;
    if (room > (size_t)(arena + ARENA - arena_top)) die("all device addresses are used up");
    char *at = arena_top;
    arena_top += room;
    if (openings) set_protection(true);
    device_access access;
    fill(at, size);
    ASAN_POISON_MEMORY_REGION(at + size, room - size);
    device_blocks[at] = memory{size, current};
    in_use += size;
    return at;
}

bool release(void *at) {
    const auto block = device_blocks.find((char *)at);
    if (block == device_blocks.end()) return false;
    const size_t size = block->second.size;
    bytes_in_use[block->second.device] -= size;
    device_blocks.erase(block);
    device_access access;
    fill(at, size);
    ASAN_POISON_MEMORY_REGION(at, size);
    const uintptr_t first = ((uintptr_t)at + PAGE - 1) & ~(PAGE - 1);
    if (size >= LARGE)
        madvise((void *)first, ((uintptr_t)at + size - first) & ~(PAGE - 1), MADV_DONTNEED);
    return true;
}

// ---- Errors and faults on demand ----------------------------------------------------------------

cudaError_t last_error, sticky_error;
std::recursive_mutex one_caller;

struct {
    std::string function;
    int after;
    cudaError_t error;
    bool sticky;
} planned;

cudaError_t result(cudaError_t error) {
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

bool capturing();
bool breaks_capture();

// The error that this call gives by the plan of a test. One of a capture makes the graph invalid.
cudaError_t planned_error(const char *function) {
    if (planned.function != function && (planned.function != "captured" || !capturing()))
        return cudaSuccess;
    if (planned.after-- > 0) return cudaSuccess;
    planned.function.clear();
    if (planned.sticky) sticky_error = planned.error;
    if (planned.error >= cudaErrorStreamCaptureUnsupported &&
        planned.error <= cudaErrorStreamCaptureWrongThread)
        breaks_capture();
    return planned.error;
}

// What every call begins with: one caller at a time, and the error that a test has planned.
struct call {
    std::lock_guard<std::recursive_mutex> hold{one_caller};
    cudaError_t error = cudaSuccess;
    explicit call(const char *function) {
        if (device_count < 1)
            error = cudaErrorNoDevice;
        else if (sticky_error)
            error = sticky_error;
        else
            error = planned_error(function);
        result(error);
    }
};

} // namespace
} // namespace cudasim
using namespace cudasim;

// ---- Streams, events, graphs --------------------------------------------------------------------

// One recording of an event.
struct moment {
    bool done = false;
    double seconds = 0;
    CUgraph_st *graph = nullptr; // where it was captured, after these nodes
    std::vector<size_t> nodes;
};

struct CUevent_st {
    std::shared_ptr<moment> last;
    bool timed = true;
    int device = 0;
};

struct graph_node {
    std::function<void()> work;
    std::vector<size_t> after;
};

struct CUgraph_st {
    std::vector<graph_node> nodes;
    CUstream_st *origin = nullptr;
    int device = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    std::thread::id by; // which began it
    bool invalid = false;
};

struct CUgraphExec_st {
    std::shared_ptr<const std::vector<graph_node>> nodes;
    int device;
};

struct queued {
    std::function<void()> work;
    std::shared_ptr<const moment> until;
};

struct CUstream_st {
    std::deque<queued> queue;
    bool nonblocking = false;
    int device = 0;
    CUgraph_st *graph = nullptr; // being captured
    std::vector<size_t> tail;    // the nodes that the next one follows
};

namespace cudasim {
namespace {

CUstream_st null_stream;
std::vector<CUstream_st *> streams{&null_stream};

CUstream_st *stream_of(cudaStream_t s) {
    return s && s != cudaStreamLegacy && s != cudaStreamPerThread ? s : &null_stream;
}

int device_of(const CUstream_st *s) { return s == &null_stream ? current : s->device; }

// Launches go to a stream of the device that the thread has chosen.
CUstream_st *own_stream(const char *who, cudaStream_t stream) {
    CUstream_st *s = stream_of(stream);
    require_same(who, "the stream", device_of(s), "the current device", current);
    return s;
}

bool step(CUstream_st *s) {
    if (s->queue.empty()) return false;
    if (s->queue.front().until && !s->queue.front().until->done) return false;
    const queued next = std::move(s->queue.front());
    s->queue.pop_front();
    if (!next.work) return true;
    std::fenv_t host; // how the host rounds and traps is nothing to a device
    std::feholdexcept(&host);
    std::fesetenv(FE_DFL_ENV);
    next.work();
    std::fesetenv(&host);
    return true;
}

// One piece of work of any stream; which one the order decides as that of threads.
bool step_any() {
    static std::minstd_rand generator((unsigned)order);
    const size_t count = streams.size(), first = order > 1 ? generator() % count : 0;
    for (size_t i = 0; i < count; i++)
        if (step(streams[order == 1 ? count - 1 - i : (first + i) % count])) return true;
    return false;
}

// Other streams go on only where this one waits for them.
void drain(CUstream_st *s) {
    while (!s->queue.empty()) {
        if (step(s)) continue;
        if (!step_any()) die("streams wait for each other");
    }
}

void drain_all() {
    for (CUstream_st *s : streams) drain(s);
}

bool capturing() {
    return std::any_of(streams.begin(), streams.end(), [](CUstream_st *s) { return s->graph; });
}

// The capture that forbids calls which are unsafe inside one, of this thread or of any; it becomes
// invalid.
bool breaks_capture() {
    bool any = false;
    for (CUstream_st *s : streams) {
        if (!s->graph || s->graph->mode == cudaStreamCaptureModeRelaxed) continue;
        if (s->graph->mode == cudaStreamCaptureModeThreadLocal &&
            s->graph->by != std::this_thread::get_id())
            continue;
        any = s->graph->invalid = true;
    }
    return any;
}

cudaError_t submit(cudaStream_t stream, std::function<void()> work) {
    CUstream_st *s = stream_of(stream);
    if (s->graph) {
        s->graph->nodes.push_back(graph_node{std::move(work), s->tail});
        s->tail.assign(1, s->graph->nodes.size() - 1);
        return cudaSuccess;
    }
    for (CUstream_st *t : streams) { // the legacy default stream and blocking streams wait
        if (t == s || s->nonblocking || t->nonblocking) continue;
        if (s != &null_stream && t != &null_stream) continue;
        if (t->graph) {
            t->graph->invalid = true;
            return cudaErrorStreamCaptureImplicit;
        }
        drain(t);
    }
    s->queue.push_back(queued{std::move(work), nullptr});
    if (!deferred) drain(s);
    return cudaSuccess;
}

double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

// Runs the nodes in the order of capture, or, for other orders than 0, in any that their
// dependencies allow.
void run_graph(const std::vector<graph_node> &nodes) {
    static std::minstd_rand generator((unsigned)order);
    std::vector<bool> done(nodes.size(), false);
    for (size_t count = 0; count < nodes.size(); count++) {
        std::vector<size_t> ready;
        for (size_t i = 0; i < nodes.size() && (order || ready.empty()); i++) {
            const auto &after = nodes[i].after;
            if (!done[i] &&
                std::all_of(after.begin(), after.end(), [&](size_t k) { return done[k]; }))
                ready.push_back(i);
        }
        const size_t next = order == 0   ? ready.front()
                            : order == 1 ? ready.back()
                                         : ready[generator() % ready.size()];
        nodes[next].work();
        done[next] = true;
    }
}

// Whether all that was captured in other streams is waited for by the stream that began.
bool all_joined(const CUgraph_st *graph) {
    std::vector<bool> reached(graph->nodes.size(), false);
    std::vector<size_t> left = graph->origin->tail;
    while (!left.empty()) {
        const size_t node = left.back();
        left.pop_back();
        if (reached[node]) continue;
        reached[node] = true;
        left.insert(left.end(), graph->nodes[node].after.begin(), graph->nodes[node].after.end());
    }
    return std::find(reached.begin(), reached.end(), false) == reached.end();
}

// ---- Kernels ------------------------------------------------------------------------------------

std::map<const void *, size_t> shared_limits;
std::map<std::string, unsigned long long> launched; // by the kernel's name

bool valid_launch(const config &c, const void *kernel) {
    const size_t threads = (size_t)c.block.x * c.block.y * c.block.z;
    const bool shape = threads > 0 && threads <= 1024 && c.block.z <= 64 && c.grid.x > 0 &&
                       c.grid.y > 0 && c.grid.z > 0 && c.grid.x <= 0x7fffffff &&
                       c.grid.y <= 65535 && c.grid.z <= 65535;
    const auto limit = shared_limits.find(kernel);
    return shape && c.shared <= (limit == shared_limits.end() ? DEFAULT_SHARED : limit->second);
}

bool is_mapped(uintptr_t at) {
    unsigned char resident;
    return mincore((void *)(at & ~(uintptr_t)(PAGE - 1)), 1, &resident) == 0 || errno != ENOMEM;
}

// Kernels take device and pinned pointers only, by themselves or in structs.
void check_parameter(const char *name, size_t index, const parameter &p, int device) {
    // Programs, heaps and stacks lie here. Below there are only sizes, pairs of small numbers, and
    // the shadow of the sanitizers.
    const uintptr_t LOWEST = 0x500000000000, HIGHEST = 0x800000000000;
    for (size_t offset = 0; offset + 8 <= p.size; offset += 8) {
        uintptr_t word;
        memcpy(&word, (const char *)p.at + offset, sizeof word);
        if (word < LOWEST || word >= HIGHEST) continue;
        // A small int before padding that nobody set looks like this; few pointers do. (A bool there
        // would not: its seven neighbours may be those of an old pointer. So structs have ints.)
        if ((uint32_t)(word + 4096) < 8192) continue;
        const void *at = (const void *)word;
        require_memory_of(name, at, device);
        if (find(device_blocks, at, 0) || find(pinned_blocks, at, 0)) continue;
        if (in_arena(at))
            die("%s: parameter %zu holds a pointer to freed device memory, %p", name, index, at);
        if (is_mapped(word))
            die("%s: parameter %zu holds a pointer to host memory, %p, at byte %zu", name, index,
                at, offset);
    }
}

} // namespace

int planned_failure(const char *function) {
    const int execution_failed = 13; // of cublasStatus_t, for plans that name no function of it
    const bool named = planned.function == function;
    if (sticky_error) return sticky_error;
    const cudaError_t error = planned_error(function);
    return error && !named ? execution_failed : error;
}

int current_device() { return current; }
int current_capability() { return capability; }

void require_device_of(const char *who, cudaStream_t stream, int device) {
    CUstream_st *s = own_stream(who, stream);
    require_same(who, "the handle", device, "the stream's device", device_of(s));
}

device_access::device_access() {
    if (openings++ == 0) set_protection(true);
}
device_access::~device_access() {
    if (--openings == 0) set_protection(false);
}

bool is_device(const void *at, size_t size) { return find(device_blocks, at, size) != nullptr; }
bool is_pinned(const void *at, size_t size) { return find(pinned_blocks, at, size) != nullptr; }

void require_device(const char *who, const char *what, const void *at, size_t size) {
    if (!is_device(at, size))
        die("%s: the %zu bytes of %s at %p are not device memory", who, size, what, at);
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
    const std::lock_guard<std::recursive_mutex> hold(one_caller);
    result(submit(stream, std::move(work)));
}

void enqueue_kernel(const config &c, const char *name, const void *kernel,
                    const parameter *parameters, size_t count, std::function<void()> thread) {
    const call entry("launch");
    if (entry.error) return;
    if (!valid_launch(c, kernel)) {
        result(cudaErrorInvalidConfiguration);
        return;
    }
    launched[name]++;
    const int device = device_of(own_stream(name, c.stream));
    for (size_t i = 0; i < count; i++) check_parameter(name, i, parameters[i], device);
    enqueue(c.stream, [c, name, thread] {
        device_access access;
        run_grid(c, name, thread);
    });
}

} // namespace cudasim

// ---- Control by tests ---------------------------------------------------------------------------

void cudasim_fail(const char *function, int after, int error, int sticky) {
    planned.function = function;
    planned.after = after;
    planned.error = (cudaError_t)error;
    planned.sticky = sticky != 0;
    sticky_error = cudaSuccess;
    last_error = cudaSuccess;
}

int cudasim_failed(void) { return planned.function.empty(); }

void cudasim_set_memory(size_t bytes) { memory_limit = bytes; }

void cudasim_set_devices(int count) { device_count = std::min(count, MOST_DEVICES); }

void cudasim_set_capability(int number) { capability = number; }

void cudasim_set_deferred(int late) {
    deferred = late != 0;
    if (!deferred) drain_all();
}

unsigned long long cudasim_launched(const char *part) {
    unsigned long long sum = 0;
    for (const auto &kernel : launched)
        if (kernel.first.find(part) != std::string::npos) sum += kernel.second;
    return sum;
}

unsigned long long cudasim_switches(void) { return switches(); }

size_t cudasim_locked(void) {
    size_t sum = 0;
    for (const auto &block : pinned_blocks) sum += block.second.size;
    return sum;
}

// ---- The API ------------------------------------------------------------------------------------

#define BEGIN \
    const call entry(__func__); \
    if (entry.error) return entry.error
// For calls that must not come while a stream is captured.
#define BEGIN_UNCAPTURED \
    BEGIN; \
    if (breaks_capture()) return result(cudaErrorStreamCaptureUnsupported)

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    BEGIN; // without a device *count stays as it is, like the real one
    *count = device_count;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    BEGIN;
    if (device < 0 || device >= device_count) return result(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    BEGIN;
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = device_count > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    BEGIN;
    if (device < 0 || device >= device_count) return result(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "cudasim");
    p->major = capability / 10;
    p->minor = capability % 10;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = DEFAULT_SHARED;
    p->sharedMemPerBlockOptin = MAX_SHARED;
    p->totalGlobalMem = memory_limit;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    BEGIN;
    const struct {
        cudaDeviceAttr attribute;
        int value;
    } known[] = {
        {cudaDevAttrComputeCapabilityMajor, capability / 10},
        {cudaDevAttrComputeCapabilityMinor, capability % 10},
        {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxSharedMemoryPerBlock, (int)DEFAULT_SHARED},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)MAX_SHARED},
        {cudaDevAttrL2CacheSize, 1 << 20},
    };
    if (device < 0 || device >= device_count) return result(cudaErrorInvalidDevice);
    for (const auto &k : known) {
        if (k.attribute != attribute) continue;
        *value = k.value;
        return cudaSuccess;
    }
    die("cudaDeviceGetAttribute: attribute %d is not simulated", (int)attribute);
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value) {
    BEGIN;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > MAX_SHARED) return result(cudaErrorInvalidValue);
    shared_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    BEGIN;
    *attributes = cudaFuncAttributes{};
    attributes->maxThreadsPerBlock = 1024;
    attributes->ptxVersion = attributes->binaryVersion = capability;
    return cudaSuccess;
}

// ---- Memory

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    BEGIN;
    *total = memory_limit;
    *free = memory_limit - std::min(memory_limit, bytes_in_use[current]);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **at, size_t size) {
    BEGIN_UNCAPTURED;
    *at = size ? allocate(size) : nullptr;
    return result(size && !*at ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void *at) {
    BEGIN_UNCAPTURED;
    drain_all();
    return result(!at || release(at) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void **at, size_t size, unsigned) {
    BEGIN_UNCAPTURED;
    if (posix_memalign(at, PAGE, size ? size : 1)) return result(cudaErrorMemoryAllocation);
    fill(*at, size);
    pinned_blocks[(char *)*at] = memory{size, current};
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **at, size_t size) { return cudaHostAlloc(at, size, 0); }

cudaError_t cudaFreeHost(void *at) {
    BEGIN_UNCAPTURED;
    if (!at) return cudaSuccess;
    drain_all();
    if (!pinned_blocks.erase((char *)at)) return result(cudaErrorInvalidValue);
    free(at);
    return cudaSuccess;
}

static void check_copy(const void *to, const void *from, size_t size, cudaMemcpyKind kind,
                       int device) {
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    require_memory_of("cudaMemcpy", to, device);
    require_memory_of("cudaMemcpy", from, device);
    if (kind == cudaMemcpyDefault) return;
    if (is_device(to, size) != to_device || is_device(from, size) != from_device)
        die("cudaMemcpy, kind %d, of %zu bytes: %p is not %s memory, or %p not %s memory", kind,
            size, to, to_device ? "device" : "host", from, from_device ? "device" : "host");
}

// Page-locked memory that a copy is on its way to holds nothing that the host could read, and what it
// writes there is lost. How many copies are under way to each place, and have been since there was
// none. Where one that is under way has yet to read, all that can be done is to let it.
static std::map<void *, std::pair<int, int>> landings;
static std::multimap<const char *, size_t> takeoffs;

static bool may_land(void *to, size_t size) {
    for (const auto &t : takeoffs)
        if (t.first < (char *)to + size && (char *)to < t.first + t.second) return false;
    return is_pinned(to, size);
}

static void begin_landing(void *to, size_t size) {
    landings[to].first++, landings[to].second++;
    fill(to, size);
}

static void end_landing(void *to, size_t size) {
    for (size_t i = 0; i < size && landings[to].second == 1; i++)
        if (((unsigned char *)to)[i] != 0xff)
            die("the host wrote to %p, byte %zu, while a copy was on its way there", to, i);
    if (--landings[to].first == 0) landings.erase(to);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    BEGIN;
    if (size == 0) return cudaSuccess;
    check_copy(to, from, size, kind, device_of(stream_of(stream)));
    const bool pageable_from = !is_device(from, size) && !is_pinned(from, size);
    const bool pageable_to = !is_device(to, size) && !is_pinned(to, size);
    if ((pageable_from || pageable_to) && stream_of(stream)->graph) {
        stream_of(stream)->graph->invalid = true;
        return result(cudaErrorStreamCaptureUnsupported);
    }
    std::shared_ptr<std::vector<char>> staged; // a pageable source is read during the call
    if (pageable_from)
        staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + size);
    const bool direct = !stream_of(stream)->graph, lands = direct && may_land(to, size);
    const bool takes_off = direct && is_pinned(from, size);
    if (lands) begin_landing(to, size);
    if (takes_off) takeoffs.emplace((const char *)from, size);
    const cudaError_t error = submit(stream, [=] {
        device_access access;
        if (lands) end_landing(to, size);
        memcpy(to, staged ? staged->data() : from, size);
        if (takes_off) takeoffs.erase(takeoffs.find((const char *)from));
    });
    if (pageable_to) drain(stream_of(stream)); // and a pageable target written during it
    return result(error);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    BEGIN_UNCAPTURED;
    const cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr);
    drain(&null_stream);
    return error;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream) {
    BEGIN;
    if (size == 0) return cudaSuccess;
    require_device("cudaMemsetAsync", "the target", at, size);
    require_memory_of("cudaMemsetAsync", at, device_of(stream_of(stream)));
    return result(submit(stream, [=] {
        device_access access;
        memset(at, value, size);
    }));
}

cudaError_t cudaMemset(void *at, int value, size_t size) {
    return cudaMemsetAsync(at, value, size, nullptr);
}

// ---- Streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    BEGIN;
    *stream = new CUstream_st;
    (*stream)->nonblocking = flags & cudaStreamNonBlocking;
    (*stream)->device = current;
    streams.push_back(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    BEGIN;
    drain(stream);
    streams.erase(std::remove(streams.begin(), streams.end(), stream), streams.end());
    delete stream;
    return cudaSuccess;
}

static cudaError_t reject_capture(const CUstream_st *s) {
    if (!s->graph) return cudaSuccess;
    s->graph->invalid = true;
    return result(cudaErrorStreamCaptureUnsupported);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    BEGIN;
    if (const cudaError_t error = reject_capture(stream_of(stream))) return error;
    drain(stream_of(stream));
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    BEGIN;
    if (const cudaError_t error = reject_capture(stream_of(stream))) return error;
    if (!step(stream_of(stream))) step_any();
    return stream_of(stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize(void) {
    BEGIN_UNCAPTURED;
    drain_all();
    return cudaSuccess;
}

// ---- Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    BEGIN;
    *event = new CUevent_st;
    (*event)->timed = !(flags & cudaEventDisableTiming);
    (*event)->device = current;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    BEGIN;
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    BEGIN;
    const auto at = std::make_shared<moment>();
    event->last = at;
    CUstream_st *s = stream_of(stream);
    require_same("cudaEventRecord", "the event", event->device, "the stream's device",
                 device_of(s));
    if (s->graph) {
        at->graph = s->graph;
        at->nodes = s->tail;
        return cudaSuccess;
    }
    return result(submit(stream, [at] {
        at->seconds = now();
        at->done = true;
    }));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    BEGIN;
    CUstream_st *s = stream_of(stream);
    const std::shared_ptr<const moment> until = event->last;
    if (!until) return cudaSuccess;
    if (until->graph) { // joins that capture, or makes an edge in it
        if (s->graph && s->graph != until->graph) return result(cudaErrorStreamCaptureMerge);
        s->graph = until->graph;
        for (const size_t node : until->nodes)
            if (std::find(s->tail.begin(), s->tail.end(), node) == s->tail.end())
                s->tail.push_back(node);
        return cudaSuccess;
    }
    if (s->graph) {
        s->graph->invalid = true;
        return result(cudaErrorStreamCaptureIsolation);
    }
    if (!until->done) s->queue.push_back(queued{nullptr, until});
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    BEGIN_UNCAPTURED;
    if (event->last && event->last->graph) return result(cudaErrorCapturedEvent);
    while (event->last && !event->last->done)
        if (!step_any()) die("streams wait for each other");
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    BEGIN_UNCAPTURED;
    if (event->last && event->last->graph) return result(cudaErrorCapturedEvent);
    if (!event->last || event->last->done) return cudaSuccess;
    step_any(); // so that a loop of queries comes to an end
    return cudaErrorNotReady;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    BEGIN;
    if (!start->timed || !end->timed || !start->last || !end->last)
        return result(cudaErrorInvalidResourceHandle);
    if (!start->last->done || !end->last->done) return cudaErrorNotReady;
    *milliseconds = (float)(1e3 * (end->last->seconds - start->last->seconds));
    return cudaSuccess;
}

// ---- Graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    BEGIN;
    CUstream_st *s = stream_of(stream);
    if (s == &null_stream) return result(cudaErrorStreamCaptureUnsupported);
    if (s->graph) return result(cudaErrorIllegalState);
    s->graph = new CUgraph_st;
    s->graph->origin = s;
    s->graph->device = device_of(s);
    s->graph->mode = mode;
    s->graph->by = std::this_thread::get_id();
    s->tail.clear();
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    const call entry(__func__);
    CUgraph_st *captured = device_count > 0 ? stream_of(stream)->graph : nullptr;
    *graph = nullptr;
    if (!captured) return entry.error ? entry.error : result(cudaErrorIllegalState);
    if (captured->origin != stream) return result(cudaErrorStreamCaptureUnmatched);
    const cudaError_t error = entry.error             ? entry.error // ends the capture, too
                              : captured->invalid     ? cudaErrorStreamCaptureInvalidated
                              : !all_joined(captured) ? cudaErrorStreamCaptureUnjoined
                                                      : cudaSuccess;
    for (CUstream_st *s : streams) {
        if (s->graph != captured) continue;
        s->graph = nullptr;
        s->tail.clear();
    }
    if (error)
        delete captured;
    else
        *graph = captured;
    return result(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    BEGIN;
    const CUgraph_st *graph = stream_of(stream)->graph;
    *status = !graph           ? cudaStreamCaptureStatusNone
              : graph->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long) {
    BEGIN;
    *exec = new CUgraphExec_st{std::make_shared<std::vector<graph_node>>(graph->nodes),
                               graph->device};
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    BEGIN;
    if (nodes) die("cudaGraphGetNodes: only the number of nodes is simulated");
    *count = graph->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
    BEGIN;
    const auto nodes = exec->nodes;
    require_same("cudaGraphLaunch", "the graph", exec->device, "the stream's device",
                 device_of(stream_of(stream)));
    return result(submit(stream, [nodes] { run_graph(*nodes); }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    BEGIN;
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    BEGIN;
    delete exec;
    return cudaSuccess;
}

// ---- Errors

cudaError_t cudaPeekAtLastError(void) { return sticky_error ? sticky_error : last_error; }

cudaError_t cudaGetLastError(void) {
    const cudaError_t error = cudaPeekAtLastError();
    last_error = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
};

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &e : error_texts)
        if (e.error == error) return e.name;
    return "cudaErrorOther";
}

const char *cudaGetErrorString(cudaError_t error) {
    for (const auto &e : error_texts)
        if (e.error == error) return e.text;
    return "another error of the simulator";
}

} // extern "C"
