/* heap.h: an allocator that refuses its call number `refuse_at`, or that one and all behind it, and
   knows what is out and what was at most. Blocks have exactly the size asked for, so that a
   sanitizer sees a byte too far. After the library's header and torture.h. */
#ifndef TORTURE_HEAP_H
#define TORTURE_HEAP_H

typedef struct heap {
    int64_t live, peak, calls, largest;
    int64_t limit;              /* of one call, 0: none; what is above is refused */
    int64_t refuse_at, refused; /* 0: none */
    bool onwards;
} heap;

static void *heap_allocate(void *user, size_t bytes, size_t alignment) {
    heap *h = (heap *)user;
    void *block = NULL;
    h->calls++;
    if (h->largest < (int64_t)bytes) h->largest = (int64_t)bytes;
    if (h->limit > 0 && (int64_t)bytes > h->limit) return NULL;
    if (h->refuse_at > 0 && (h->calls == h->refuse_at || (h->onwards && h->calls > h->refuse_at))) {
        h->refused++;
        return NULL;
    }
    if (posix_memalign(&block, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes))
        return NULL;
    memset(block, 0xa5, bytes); /* nobody may count on zeros */
    h->live += (int64_t)bytes;
    if (h->peak < h->live) h->peak = h->live;
    return block;
}

static void heap_release(void *user, void *pointer, size_t bytes, size_t alignment) {
    (void)alignment;
    ((heap *)user)->live -= (int64_t)bytes;
    free(pointer);
}

static TORTURE_UNUSED mpt_config heap_config(heap *h) {
    mpt_config config = mpt_config_default();
    memset(h, 0, sizeof *h);
    config.threads = 1, config.device = MPT_DEVICE_CPU;
    config.allocator.allocate = heap_allocate, config.allocator.release = heap_release;
    config.allocator.user = h;
    return config;
}

#endif
