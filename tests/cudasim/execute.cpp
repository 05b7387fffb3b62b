// execute.cpp - runs the threads of a kernel as fibers on one CPU thread, block after block.
//
// A thread runs until it waits at a barrier or in a warp function; then the next one goes on. The
// order of threads and blocks is ascending, descending or shuffled (CUDASIM_ORDER). Threads that
// can never go on are reported with the place where each waits.
//
// Under TSan each CUDA thread is a TSan fiber, and only barriers, __syncwarp, the start and the end
// of a block order their accesses: a missing barrier in shared memory is a data race. With
// CUDASIM_TSAN_GRID=1 blocks are not ordered either, and shared memory is left out instead.
#include "simulator.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>
#ifdef SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SIM_TSAN
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateBenignRaceSized(const char *file, int line, const volatile void *at,
                                        size_t size, const char *what);
#endif
#ifndef __x86_64__
#error "the simulator switches fibers with x86-64 code"
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudasim {
namespace {

// ---- Fibers -------------------------------------------------------------------------------------

struct fiber {
    void *stack_pointer;
    char *stack;
    void *fake_stack; // ASan's
    void *tsan;
};

#ifdef SIM_ASAN
const size_t STACK = 512 << 10;
#else
const size_t STACK = 128 << 10;
#endif
const size_t PAGE = 4096;
const unsigned MAX_THREADS = 1024, MAX_WARPS = MAX_THREADS / 32;

extern "C" void cudasim_switch(void **save, void *to);
asm(".text\n"
    ".globl cudasim_switch\n"
    ".type cudasim_switch,@function\n"
    "cudasim_switch:\n"
    " pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
    " movq %rsp,(%rdi)\n movq %rsi,%rsp\n"
    " popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
    " ret\n"
    ".size cudasim_switch,.-cudasim_switch\n");

fiber host;              // the thread that drives the kernel
const void *host_bottom; // its stack, for ASan
size_t host_size;

void fiber_main();

fiber *new_fiber() {
    static fiber fibers[2 * MAX_THREADS];
    static unsigned used;
    fiber *f = &fibers[used++];
    char *map = (char *)mmap(nullptr, PAGE + STACK, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) die("no memory for the stack of a thread");
    mprotect(map, PAGE, PROT_NONE);
    f->stack = map + PAGE;
    void **top = (void **)(f->stack + STACK);
    *--top = nullptr; // fiber_main never returns; this keeps its stack aligned
    *--top = (void *)fiber_main;
    for (int saved = 0; saved < 6; saved++) *--top = nullptr;
    f->stack_pointer = top;
#ifdef SIM_TSAN
    f->tsan = __tsan_create_fiber(0);
#endif
    return f;
}

void arrive(fiber *self) {
    (void)self;
#ifdef SIM_ASAN
    __sanitizer_finish_switch_fiber(self->fake_stack, nullptr, nullptr);
#endif
}

void switch_to(fiber *from, fiber *to) {
    if (from == to) return;
#ifdef SIM_ASAN
    __sanitizer_start_switch_fiber(&from->fake_stack, to == &host ? host_bottom : to->stack,
                                   to == &host ? host_size : STACK);
#endif
#ifdef SIM_TSAN
    __tsan_switch_to_fiber(to->tsan, 1); // 1: the switch itself orders nothing
#endif
    cudasim_switch(&from->stack_pointer, to->stack_pointer);
    arrive(from);
}

void find_host_stack() {
#ifdef SIM_TSAN
    host.tsan = __tsan_get_current_fiber();
#endif
#ifdef SIM_ASAN
    pthread_attr_t attributes;
    void *bottom;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &host_size);
    pthread_attr_destroy(&attributes);
    host_bottom = bottom;
#endif
}

// ---- The running block --------------------------------------------------------------------------

enum class state : unsigned char { fresh, ready, running, at_barrier, in_warp, done };

struct cuda_thread {
    fiber *runner;
    state now;
    site where;
};

// What a lane brings into a warp function, and takes from it.
struct lane {
    warp_op op;
    unsigned mask;
    int argument, width;
    site where;
    uint64_t value;
};

struct warp_state {
    unsigned alive, waiting; // sets of lanes
    unsigned completed;      // warp functions so far, for TSan
};

// One kernel runs at a time, so that its state is global.
struct {
    const char *name;
    const std::function<void()> *thread;
    char *dynamic;
    bool running;
    unsigned long switches;

    unsigned size, live, current;
    cuda_thread threads[MAX_THREADS];
    lane lanes[MAX_THREADS];
    warp_state warps[MAX_WARPS];
    unsigned order[MAX_THREADS], cursor; // who is asked next whether it can go on

    bool open; // somebody waits at a barrier:
    unsigned arrived, agreeing;
    vote voting;
    site where;
    int result;

    unsigned number, barriers; // of all blocks so far, for TSan
} block;

const int order_option = environment("CUDASIM_ORDER", 0);
enum { ASCENDING = 0, DESCENDING = 1 }; // anything above is the seed of a shuffled order
std::minstd_rand generator;

#ifdef SIM_TSAN
const bool grid_option = environment("CUDASIM_TSAN_GRID", 0) != 0;
// What TSan orders accesses by. A thread that is late to take a barrier's tag must not meet the
// next barrier's under the same name.
const unsigned TAGS = 4096;
char launch_tag, end_tag, barrier_tags[TAGS], warp_tags[TAGS][MAX_WARPS];
// One per CUDA thread, in two sets: with CUDASIM_TSAN_GRID neighbouring blocks have different ones.
fiber *runners[2 * MAX_THREADS];
unsigned parity() { return grid_option && (block.number & 1) ? MAX_THREADS : 0; }
#else
fiber *idle[MAX_THREADS];
unsigned idle_count;
#endif

// The copies of a thread that are under way; `group` of those begun last is not closed yet.
struct async_copies {
    struct entry {
        copy what;
        unsigned group;
    };
    std::vector<entry> waiting;
    size_t taken;
    unsigned group;
} async_copies[MAX_THREADS];

} // namespace

void fail(site s, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    die("%s:%d: kernel %s, block (%u, %u, %u), thread (%u, %u, %u): %s", s.file, s.line,
        block.name ? block.name : "?", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
        threadIdx.z, text);
}

namespace {

void shuffle_threads() {
    if (order_option > DESCENDING) std::shuffle(block.order, block.order + block.size, generator);
    block.cursor = 0;
}

void set_current(unsigned thread) {
    block.current = thread;
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / (blockDim.x * blockDim.y);
}

// The next thread in the order that can go on, or -1; with `fresh` only if it has not begun yet.
int next_thread(bool fresh) {
    while (block.cursor < block.size) {
        const unsigned thread = block.order[block.cursor];
        const state now = block.threads[thread].now;
        if (now == state::ready && fresh) return -1;
        block.cursor++;
        if (now == state::fresh || now == state::ready) return (int)thread;
    }
    return -1;
}

bool complete_warp(unsigned w);
bool open_barrier();

// The thread that goes on now. When none can, those that wait for each other are released.
unsigned pick() {
    for (;;) {
        for (int attempt = 0; attempt < 2; attempt++) {
            const int thread = next_thread(false);
            if (thread >= 0) return (unsigned)thread;
            block.cursor = 0;
        }
        bool released = false;
        for (unsigned w = 0; w * 32 < block.size; w++) released |= complete_warp(w);
        if (released || open_barrier()) continue;
        for (unsigned i = 0; i < block.size; i++) {
            const cuda_thread &t = block.threads[i];
            if (t.now == state::in_warp || t.now == state::at_barrier)
                fprintf(stderr, "%s:%d: thread %u of the block waits here, %s\n", t.where.file,
                        t.where.line, i,
                        t.now == state::in_warp ? "for lanes of its warp" : "at a barrier");
        }
        fail(site{"", 0}, "deadlock: none of the block's threads can go on");
    }
}

fiber *enter(unsigned thread) {
    cuda_thread &t = block.threads[thread];
#ifdef SIM_TSAN
    t.runner = runners[thread + parity()];
#else
    if (t.now == state::fresh) t.runner = idle_count ? idle[--idle_count] : new_fiber();
#endif
    t.now = state::running;
    set_current(thread);
    block.switches++;
    return t.runner;
}

// The running thread waits: another one goes on.
void wait(state now, site where) {
    cuda_thread &me = block.threads[block.current];
    me.now = now;
    me.where = where;
    switch_to(me.runner, enter(pick()));
}

void run_thread() {
    (*block.thread)();
    block.threads[block.current].now = state::done;
    block.live--;
    block.warps[block.current / 32].alive &= ~(1u << block.current % 32);
}

void fiber_main() {
    fiber *const self = block.threads[block.current].runner;
    arrive(self);
    for (;;) {
#ifdef SIM_TSAN
        __tsan_acquire(&launch_tag);
        run_thread();
        __tsan_release(&end_tag);
#else
        run_thread();
        // Threads that never wait need no switch.
        for (int next = next_thread(true); next >= 0; next = next_thread(true)) {
            block.threads[next].runner = self;
            block.threads[next].now = state::running;
            set_current((unsigned)next);
            run_thread();
        }
        idle[idle_count++] = self;
#endif
        switch_to(self, block.live ? enter(pick()) : &host);
    }
}

// ---- Barriers -----------------------------------------------------------------------------------

// Lets everybody through when all threads that still live have arrived.
bool open_barrier() {
    if (!block.open || block.arrived < block.live) return false;
    block.result = block.voting == vote::count ? (int)block.agreeing
                   : block.voting == vote::all ? block.agreeing == block.arrived
                                               : block.agreeing > 0;
    for (unsigned i = 0; i < block.size; i++)
        if (block.threads[i].now == state::at_barrier) block.threads[i].now = state::ready;
    block.open = false;
    block.barriers++;
    shuffle_threads();
    return true;
}

// ---- Warp functions -----------------------------------------------------------------------------

// The lanes that `first` waits for, itself included, or 0 when they have not all arrived.
unsigned ready_group(unsigned w, unsigned first) {
    const lane *lanes = block.lanes + w * 32, &a = lanes[first];
    const unsigned group = a.mask & block.warps[w].alive;
    if (group & ~block.warps[w].waiting) return 0;
    for (unsigned k = 0; k < 32; k++) {
        const lane &b = lanes[k];
        if (!(group >> k & 1)) continue;
        if (b.mask != a.mask) return 0;
        if (b.op != a.op || b.where.line != a.where.line)
            fail(a.where, "divergent warp function: lane %u is here, lane %u at line %d", first, k,
                 b.where.line);
    }
    return group;
}

unsigned source_lane(const lane &a, unsigned k) {
    const int base = (int)k & ~(a.width - 1), end = base + a.width;
    int from = (int)k;
    switch (a.op) {
    case warp_op::shuffle:
        from = base + (a.argument & (a.width - 1));
        break;
    case warp_op::exchange:
        from ^= a.argument;
        break;
    case warp_op::down:
        from += a.argument;
        break;
    case warp_op::up:
        from -= a.argument;
        break;
    default:
        break;
    }
    const bool outside = from >= end || (a.op == warp_op::up && from < base);
    return outside ? k : (unsigned)from & 31;
}

// Sixteen bits as the number that they are.
float widened(uint32_t bits, bool bfloat) {
    if (bfloat) return bit_cast<float>(bits << 16);
    const uint32_t exponent = bits >> 10 & 31, fraction = bits & 1023;
    const uint32_t sign = (bits & 0x8000) << 16;
    if (exponent == 0)
        return bit_cast<float>(sign | bit_cast<uint32_t>((float)fraction * 0x1p-24f));
    return bit_cast<float>(sign | (exponent == 31 ? 255 : exponent + 112) << 23 | fraction << 13);
}

// d += a b, of 16 x 16 and 16 x 8: the fragments of PTX's "Matrix Fragments for mma.m16n8k16".
void multiply_matrices(const lane *lanes) {
    float a[16][16], b[16][8];
    for (unsigned k = 0; k < 32; k++) {
        const mma_lane &l = *(const mma_lane *)(uintptr_t)lanes[k].value;
        const unsigned row = k / 4, pair = k % 4 * 2;
        for (unsigned i = 0; i < 8; i++)
            a[row + i / 2 % 2 * 8][pair + i / 4 * 8 + i % 2] =
                widened(l.a[i / 2] >> i % 2 * 16 & 0xffff, l.bfloat);
        for (unsigned i = 0; i < 4; i++)
            b[pair + i / 2 * 8 + i % 2][row] = widened(l.b[i / 2] >> i % 2 * 16 & 0xffff, l.bfloat);
    }
    for (unsigned k = 0; k < 32; k++) {
        const mma_lane &l = *(const mma_lane *)(uintptr_t)lanes[k].value;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned row = k / 4 + i / 2 * 8, column = k % 4 * 2 + i % 2;
            float sum = l.d[i];
            for (unsigned j = 0; j < 16; j++) sum += a[row][j] * b[j][column];
            l.d[i] = sum;
        }
    }
}

// The instructions of whole warps, whose lanes bring pointers.
void complete_aligned(unsigned w, unsigned group) {
    lane *lanes = block.lanes + w * 32;
    if (group != ~0u) fail(lanes[__builtin_ctz(group)].where, "not all lanes of the warp are here");
    if (lanes[0].op == warp_op::mma) multiply_matrices(lanes);
    const void *rows[32];
    for (unsigned k = 0; k < 32; k++)
        rows[k] =
            lanes[0].op == warp_op::rows ? *(const void **)(uintptr_t)lanes[k].value : nullptr;
    for (unsigned k = 0; k < 32; k++) {
        if (lanes[k].op == warp_op::rows)
            memcpy((void *)(uintptr_t)lanes[k].value, rows, sizeof rows);
        block.threads[w * 32 + k].now = state::ready;
    }
    block.warps[w].waiting = 0;
}

void exchange(unsigned w, unsigned group) {
    lane *lanes = block.lanes + w * 32;
    const warp_op op = lanes[__builtin_ctz(group)].op;
    if (op == warp_op::mma || op == warp_op::rows) {
        complete_aligned(w, group);
        return;
    }
    uint64_t values[32], ballot = 0;
    for (unsigned k = 0; k < 32; k++) {
        values[k] = group >> k & 1 ? lanes[k].value : ~uint64_t{0}; // an absent lane gives garbage
        if (group >> k & 1) ballot |= (lanes[k].value & 1) << k;
    }
    for (unsigned k = 0; k < 32; k++) {
        if (!(group >> k & 1)) continue;
        lanes[k].value = lanes[k].op == warp_op::ballot ? ballot : values[source_lane(lanes[k], k)];
        block.threads[w * 32 + k].now = state::ready;
    }
    block.warps[w].waiting &= ~group;
}

// Completes the warp functions that have all their lanes.
bool complete_warp(unsigned w) {
    bool any = false;
    for (unsigned k = 0; k < 32; k++) {
        if (!(block.warps[w].waiting >> k & 1)) continue;
        const unsigned group = ready_group(w, k);
        if (!group) continue;
        exchange(w, group);
        any = true;
    }
    if (!any) return false;
    block.warps[w].completed++;
    if (order_option == ASCENDING)
        block.cursor = std::min(block.cursor, w * 32);
    else
        block.cursor = 0;
    if (order_option > DESCENDING && generator() % 8 == 0) shuffle_threads();
    return true;
}

// ---- Static shared memory -----------------------------------------------------------------------

// The section of all __shared__ variables. Its name is no C identifier: clang's ASan puts no red
// zones into sections that are; so that the linker gives no symbols for its bounds.
struct {
    char *at;
    size_t size;
} static_shared;

int first_object(dl_phdr_info *info, size_t, void *offset) {
    *(char **)offset = (char *)info->dlpi_addr;
    return 1;
}

void find_static_shared() {
    struct stat status;
    char *offset = nullptr;
    const int file = open("/proc/self/exe", O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) die("cannot read /proc/self/exe");
    const size_t size = (size_t)status.st_size;
    char *const image = (char *)mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (image == MAP_FAILED) die("cannot read /proc/self/exe");
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + header->e_shoff);
    const char *names = image + sections[header->e_shstrndx].sh_offset;
    dl_iterate_phdr(first_object, &offset); // the program is the first one
    for (unsigned i = 0; i < header->e_shnum; i++) {
        if (strcmp(names + sections[i].sh_name, CUDASIM_SHARED_SECTION) != 0) continue;
        static_shared.at = offset + sections[i].sh_addr;
        static_shared.size = sections[i].sh_size;
    }
    munmap(image, size);
    close(file);
}

// ---- Blocks -------------------------------------------------------------------------------------

void begin_block() {
    const unsigned size = blockDim.x * blockDim.y * blockDim.z;
    block.size = block.live = size;
    block.arrived = 0;
    block.open = false;
    block.number++;
    for (unsigned i = 0; i < size; i++) {
        block.threads[i] = cuda_thread{nullptr, state::fresh, {nullptr, 0}};
        block.order[i] = order_option == DESCENDING ? size - 1 - i : i;
        async_copies[i].waiting.clear();
        async_copies[i].taken = async_copies[i].group = 0;
#ifdef SIM_TSAN
        fiber *&runner = runners[i + parity()];
        if (!runner) runner = new_fiber(); // here, so that what the host did is ordered before it
#endif
    }
    for (unsigned w = 0; w * 32 < size; w++) {
        block.warps[w].alive = size - w * 32 < 32 ? (1u << (size - w * 32)) - 1 : ~0u;
        block.warps[w].waiting = 0;
    }
    shuffle_threads();
}

char *dynamic_memory() {
    static char *memory;
    if (!memory) {
        memory = (char *)mmap(nullptr, MAX_SHARED + PAGE, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) die("no memory for dynamic shared memory");
        generator.seed((unsigned)order_option);
        find_static_shared();
#ifdef SIM_TSAN
        if (grid_option) { // all blocks share this memory in truth: it must not be reported
            AnnotateBenignRaceSized(__FILE__, __LINE__, memory, MAX_SHARED, "shared");
            AnnotateBenignRaceSized(__FILE__, __LINE__, static_shared.at, static_shared.size,
                                    "shared");
        }
#endif
    }
    return memory;
}

void run_block(bool first, bool last) {
    begin_block();
#ifdef SIM_TSAN
    if (!grid_option || first) __tsan_release(&launch_tag);
#endif
    switch_to(&host, enter(pick()));
#ifdef SIM_TSAN
    if (!grid_option || last) __tsan_acquire(&end_tag);
#endif
    (void)first;
    (void)last;
}

} // namespace

static unsigned long long all_switches;

void run_grid(const config &c, const char *name, const std::function<void()> &thread) {
    if (block.running) die("a kernel was launched from inside kernel %s", block.name);
    find_host_stack();
    block.running = true;
    block.name = name;
    block.thread = &thread;
    block.dynamic = dynamic_memory();
    block.switches = 0;
    blockDim = c.block;
    gridDim = c.grid;
    ASAN_UNPOISON_MEMORY_REGION(block.dynamic, c.shared);
    ASAN_POISON_MEMORY_REGION(block.dynamic + c.shared, MAX_SHARED + PAGE - c.shared);
    const size_t count = (size_t)c.grid.x * c.grid.y * c.grid.z;
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = order_option == DESCENDING ? count - 1 - i : i;
    if (order_option > DESCENDING) std::shuffle(order.begin(), order.end(), generator);
    for (size_t i = 0; i < count; i++) {
        blockIdx.x = (unsigned)(order[i] % c.grid.x);
        blockIdx.y = (unsigned)(order[i] / c.grid.x % c.grid.y);
        blockIdx.z = (unsigned)(order[i] / c.grid.x / c.grid.y);
        fill(static_shared.at, static_shared.size);
        fill(block.dynamic, c.shared);
        run_block(i == 0, i + 1 == count);
    }
    all_switches += block.switches;
    static const bool log = environment("CUDASIM_LOG", 0) != 0;
    if (log)
        fprintf(stderr, "cudasim: %s: %zu blocks of %u threads, %lu switches\n", name, count,
                block.size, block.switches);
    block.running = false;
}

unsigned long long switches() { return all_switches; }

void fill(void *at, size_t size) {
    asm volatile("rep stosb" : "+D"(at), "+c"(size) : "a"(0xff) : "memory");
}

void *dynamic_shared() { return block.dynamic; }

void trap(site s) { fail(s, "__trap"); }

void copy_later(const copy &c) {
    struct async_copies &own = async_copies[block.current];
    own.waiting.push_back({c, own.group});
}

void commit_copies() { async_copies[block.current].group++; }

bool next_copy(unsigned groups, copy *c) {
    struct async_copies &own = async_copies[block.current];
    if (own.taken == own.waiting.size()) {
        own.waiting.clear();
        own.taken = 0;
        return false;
    }
    if (own.waiting[own.taken].group + groups >= own.group) return false;
    *c = own.waiting[own.taken++].what;
    return true;
}

int barrier(site s, vote v, bool predicate) {
    if (!block.running) fail(s, "a barrier outside a kernel");
    if (block.open && (block.where.line != s.line || block.voting != v))
        fail(s, "divergent barrier: other threads of the block wait at %s:%d", block.where.file,
             block.where.line);
    if (!block.open) {
        block.open = true;
        block.where = s;
        block.voting = v;
        block.arrived = block.agreeing = 0;
    }
    block.arrived++;
    block.agreeing += predicate;
#ifdef SIM_TSAN
    char *tag = &barrier_tags[block.barriers % TAGS];
    __tsan_release(tag);
#endif
    wait(state::at_barrier, s);
#ifdef SIM_TSAN
    __tsan_acquire(tag);
#endif
    return block.result;
}

uint64_t warp(site s, warp_op op, unsigned mask, uint64_t value, int argument, int width) {
    const unsigned me = block.current, w = me / 32, k = me % 32;
    if (!(mask >> k & 1)) fail(s, "lane %u is not in its own mask 0x%08x", k, mask);
    lane &a = block.lanes[me];
    a = lane{op, mask, argument, width, s, value};
    block.warps[w].waiting |= 1u << k;
#ifdef SIM_TSAN
    // Shuffles and votes order no memory; __syncwarp does.
    char *tag = &warp_tags[block.warps[w].completed % TAGS][w];
    if (op == warp_op::sync) __tsan_release(tag);
#endif
    // The last lane to arrive completes the group and goes on without a switch.
    cuda_thread &t = block.threads[me];
    t.now = state::in_warp;
    if (!(mask & block.warps[w].alive & ~block.warps[w].waiting)) complete_warp(w);
    if (t.now == state::ready)
        t.now = state::running;
    else
        wait(state::in_warp, s);
#ifdef SIM_TSAN
    if (op == warp_op::sync) __tsan_acquire(tag);
#endif
    return a.value;
}

} // namespace cudasim
