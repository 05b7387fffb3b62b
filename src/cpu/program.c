/* ----
 * cpu/program.c: several elementwise launches as one, tile by tile.
 *
 * A program is made of members: launches that lie behind those of the recording, whose operands are
 * numbers of the program's own operands, or of tiles. Each runs by the body of its own kernel, on a
 * thousand elements at a time, so that what one member writes the next one finds in the nearest
 * cache; of tiles there is nothing else. The bits are those of one launch after the other.
 * ---- */
#ifndef MPT__CPU_PROGRAM_INCLUDED
#define MPT__CPU_PROGRAM_INCLUDED

#include "cpu/halves.c"

/* Elements at a time. A chain has but a tile or two; setting a member up takes as long as half a
   tile of a sum. */
#define MPT__PROGRAM_TILE MPT__BLOCK
/* And of a piece of work, for which a thread sets up its loops. */
#define MPT__PROGRAM_CHUNK (16 * MPT__PROGRAM_TILE)

/* Elements from which on what is read next is asked for ahead: more than a cache nearby holds. */
#define MPT__PROGRAM_FETCH (1 << 18)

typedef struct mpt__cpu_program_work {
    int members;
    mpt__cpu_call call[MPT__PROGRAM_MEMBERS];
    mpt__cpu_map map[MPT__PROGRAM_MEMBERS];
    uint8_t tile[MPT__PROGRAM_MEMBERS][3]; /* number of an operand's tile, from 1; 0: memory */
    bool fetches;
} mpt__cpu_program_work;

/* Asks for what the next tile reads, while this one is computed. */
static void mpt__cpu_program_fetch(
    const mpt__cpu_map *map, const uint8_t *tile, const mpt__cpu_cursor *at, int64_t n) {
    for (int k = 0; k < map->operands - 1; k++) {
        const mpt__cpu_walk *walk = &map->walk[k];
        const int64_t size = mpt__dtype_info[walk->view.dtype].bytes;
        const char *next = (const char *)walk->view.data + (at[k].offset + n) * size;
        if (tile[k] || walk->loop.rank != 1 || mpt__cpu_inner(&walk->loop) != 1) continue;
        for (int64_t i = 0; i < n * size; i += 64) MPT__PREFETCH(next + i);
    }
}

static void mpt__cpu_program_chunk(void *work, int64_t chunk, int thread) {
    MPT__TASK(mpt__cpu_program_work, w);
    mpt__real tiles[MPT__PROGRAM_MEMBERS][MPT__PROGRAM_TILE];
    mpt__cpu_map map[MPT__PROGRAM_MEMBERS];
    mpt__cpu_cursor at[MPT__PROGRAM_MEMBERS][3];
    const int64_t first = chunk * MPT__PROGRAM_CHUNK, count = w->map[0].walk[0].loop.count;
    const int64_t end = mpt__cpu_min(first + MPT__PROGRAM_CHUNK, count);
    memcpy(map, w->map, (size_t)w->members * sizeof *map);
    for (int m = 0; m < w->members; m++)
        for (int k = 0; k < map[m].operands; k++) {
            if (w->tile[m][k]) map[m].walk[k].view.data = tiles[w->tile[m][k] - 1];
            mpt__cpu_start(&at[m][k], &map[m].walk[k].loop, first);
        }
    for (int64_t i = first; i < end; i += MPT__PROGRAM_TILE)
        for (int m = 0; m < w->members; m++) {
            for (int k = 0; k < map[m].operands; k++)
                if (w->tile[m][k]) at[m][k].offset = 0;
            if (w->fetches && i + 2 * MPT__PROGRAM_TILE <= end)
                mpt__cpu_program_fetch(&map[m], w->tile[m], at[m], MPT__PROGRAM_TILE);
            map[m].body(&map[m], at[m], i, mpt__cpu_min(MPT__PROGRAM_TILE, end - i));
        }
}

#ifndef MPTRAIN_NO_SIMD
/* A function whose result lies beyond the caches, written past them: of floats in a row. */
static void mpt__cpu_program_stream(
    const mpt__cpu_map *map, mpt__cpu_cursor *at, int64_t first, int64_t n) {
    const int last = map->operands - 1;
    mpt__real *place[3];
    (void)first;
    for (int k = 0; k <= last; k++)
        place[k] = (mpt__real *)map->walk[k].view.data + at[k].offset;
    const mpt__cpu_call *call = map->call;
    call->routines->stream(
        call->launch->function, place[last], place[0], place[1], n, map->c);
    mpt__cpu_advance_all(map, at, n);
}

/* Whether that may be done: see mpt__cpu_stream. */
static bool mpt__cpu_program_streams(const mpt__cpu_map *map, const uint8_t *tile) {
    const mpt__cpu_call *call = map->call;
    const int last = map->operands - 1;
    mpt__real *out = (mpt__real *)call->data[last];
    if (map->walk[last].loop.count < MPT__BEYOND_CACHE || tile[last] || !call->routines->stream ||
        call->launch->kernel == MPT__K_COPY || (uintptr_t)out % 64 != 0 ||
        call->launch->operand[last].access != MPT__WRITE ||
        !call->routines->stream(call->launch->function, out, out, out, 0, 0))
        return false;
    for (int k = 0; k <= last; k++)
        if (!mpt__cpu_is_real(map->walk[k].view.dtype) || map->walk[k].loop.rank != 1 ||
            mpt__cpu_inner(&map->walk[k].loop) != 1 || (k < last && call->data[k] == out))
            return false;
    return true;
}
#endif

/* Sets a member up; returns the nanoseconds of an element on the reference level. */
static double mpt__cpu_program_member(
    const mpt__cpu_call *call, mpt__cpu_program_work *w, int m, const mpt__launch *member) {
    const int n = member->kernel == MPT__K_BINARY ? 3 : 2;
    mpt__cpu_call *own = &w->call[m];
    *own = *call;
    own->launch = member;
    for (int k = 0; k < n; k++) {
        const uint32_t number = member->operand[k].storage;
        w->tile[m][k] = number > MPT__MAX_OPERANDS ? (uint8_t)(number - MPT__MAX_OPERANDS) : 0;
        own->data[k] = w->tile[m][k] ? NULL : call->data[number - 1];
    }
    mpt__cpu_map *map = &w->map[m];
    double ns = 1.0;
    if (member->kernel == MPT__K_UNARY) {
        *map = mpt__cpu_unary_map(own);
        ns = mpt__cpu_unary_ns[MPT__UNARY_AT(member->function)];
    } else if (member->kernel == MPT__K_BINARY) {
        *map = mpt__cpu_binary_map(own);
        ns = mpt__cpu_binary_ns[MPT__BINARY_AT(member->function)];
    } else {
        const mpt__operand *o = member->operand;
        const bool bytes = o[0].dtype == o[1].dtype && o[1].access != MPT__ACCUMULATE;
        map->body = bytes ? mpt__cpu_copy_bytes_body : mpt__cpu_copy_body;
        map->other_body = mpt__cpu_copy_body;
    }
    map->call = own;
    map->operands = n;
    for (int k = 0; k < n; k++) {
        map->walk[k].view = mpt__cpu_view_of(own, k);
        mpt__cpu_loop_over(&map->walk[k].loop, &member->operand[k]);
    }
#ifndef MPTRAIN_NO_SIMD
    if (member->kernel == MPT__K_BINARY && mpt__cpu_gates(own)) map->body = mpt__cpu_gate_body;
    if (mpt__cpu_program_streams(map, w->tile[m])) map->body = mpt__cpu_program_stream;
#endif
    return ns;
}

static void mpt__cpu_program(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__cpu_program_work w;
    double ns = 0;
    w.members = (int)launch->index[1];
    for (int m = 0; m < w.members; m++)
        ns += mpt__cpu_program_member(call, &w, m, launch + launch->index[0] + m);
    const int64_t count = w.map[0].walk[0].loop.count;
    w.fetches = count >= MPT__PROGRAM_FETCH;
    mpt__parallel(call->pool, mpt__cpu_chunks(count, MPT__PROGRAM_CHUNK),
        mpt__cpu_cost(call, count, ns), mpt__cpu_program_chunk, &w);
}

#endif
