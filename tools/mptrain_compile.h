/* generated from src/ by tools/amalgamate.c: edit there */
/* ----
 * mptrain_compile.h: compiled steps: captured ones whose launches were rewritten, so that what is
 * computed element by element goes through memory once.
 *
 * It belongs to mptrain.h of the same version, which includes it by name. Put it where the compiler
 * finds it and define MPTRAIN_COMPILE where MPTRAIN_IMPLEMENTATION is (and, with the library in two
 * objects, MPTRAIN_CPU_IMPLEMENTATION):
 *
 *		#define MPTRAIN_COMPILE
 *		#define MPTRAIN_IMPLEMENTATION
 *		#include "mptrain.h"
 *
 * Other files of a program include it behind mptrain.h, for the declarations.
 * ---- */
#ifndef MPTRAIN_VERSION
#error "include mptrain.h before mptrain_compile.h"
#elif MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_compile.h are of different versions; copy both from one release"
#endif
/* ==== Compiled steps ==========================================================================

	mpt_captured step = mpt_compile(ctx, train_step, &my);		<- instead of mpt_capture
	...
	mpt_captured_step(step, batch.x, batch.y);

A compiled step is a captured one, made, called, sliced and destroyed as such, with the same rules
(see mpt_capture). When it is recorded, its launches are rewritten:

- What computes element by element on equally many elements (sums, products, activations and their
  slopes, casts) goes into one launch, "program", tile by tile in the nearest cache: a chain of five
  such ops reads and writes memory once, not five times.
  Ops on more than 2^18 halves, whose time goes into conversions, stay alone, but for casts.
- Tensors that only such a launch makes and reads are never in memory, and take none.
- Launches are left out whose results nobody reads.

The bits are those of the captured step, in all precisions: each tile is computed by the same
kernels, in the same order, and halves are rounded where they were. So the weights after a thousand
compiled steps are those after a thousand plain ones.

Only the CPU runs such launches; on a GPU a compiled step is a captured one. */
#ifndef MPT__GRAPH_FACE_INCLUDED
#define MPT__GRAPH_FACE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

/* A step that runs from a rewritten recording. Arguments, errors and ownership are mpt_capture's;
   the context frees it at its end. Source: torch.compile. */
MPTRAIN_API mpt_captured mpt_compile(mpt_context *context, mpt_step_fn fn, void *user);

typedef struct mpt_compile_stats {
	int64_t recordings;			/* so far: the first, and those of other shapes, modes, options */
	int64_t launches[2];		/* of the last one: as recorded, as rewritten */
	int64_t programs, fused;	/* launches that hold several; how many those hold */
	int64_t dropped;			/* whose results nobody read */
	int64_t bytes[2];			/* that operands have: as recorded, as rewritten */
	int64_t tensors, kept_out;	/* that programs have in the cache alone; their bytes */
	double seconds;				/* that rewriting took, by the context's clock */
} mpt_compile_stats;
/* Of a compiled step; all 0 before its second call. MPT_ERROR_ARGUMENT: mpt_capture made it. */
MPTRAIN_API mpt_status mpt_compile_statistics(mpt_captured step, mpt_compile_stats *stats);

#ifdef __cplusplus
}
#endif

#endif

#ifdef MPT__PROGRAMS_HERE
/* ----
 * cpu/program.c: several elementwise launches as one, tile by tile.
 *
 * A program is made of members: launches that lie behind those of the recording, whose operands are
 * numbers of the program's own operands, or of tiles. Each runs by the body of its own kernel, on a
 * thousand elements at a time, so that what one member writes the next one finds in the nearest
 * cache; of tiles there is nothing else. The bits are those of one launch after the other.
 * ---- */

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
	uint8_t tile[MPT__PROGRAM_MEMBERS][3];	/* number of an operand's tile, from 1; 0: memory */
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

#elif defined(MPTRAIN_IMPLEMENTATION) && defined(MPTRAIN_COMPILE) && defined(MPT__IMPLEMENTED)
#ifndef MPT__MPTRAIN_COMPILE_INCLUDED
#define MPT__MPTRAIN_COMPILE_INCLUDED
/* ----
 * graph/compile.c: compiled steps: the launches of a recording, rewritten before they are kept.
 *
 * A compiled step is a captured one whose function is wrapped: when the step has been recorded, and
 * before memory is planned for it, the wrapper goes over the recorder's list. So all that captured
 * steps have (slices, watchers, faults, memory by liveness, comparison in debug mode) they have.
 * ---- */

#ifdef MPTRAIN_NO_GRAPH

MPT__BEGIN_ABSENT
mpt_captured mpt_compile(mpt_context *ctx, mpt_step_fn fn, void *user) {
	mpt_captured none;
	mpt__capture_missing(ctx, "mpt_compile");
	mpt__zero(none);
	none.context = ctx;
	return none;
}

mpt_status mpt_compile_statistics(mpt_captured step, mpt_compile_stats *stats) {
	if (stats) mpt__zero(*stats);
	return mpt__capture_missing(step.context, "mpt_compile_statistics");
}
MPT__END_ABSENT

#else

typedef struct {
	mpt__captured captured;	/* first: it is one */
	mpt_step_fn fn;
	void *user;
	mpt_compile_stats stats;
} mpt__compiled;

/* How far behind a program's last member the next one may stand. */
#define MPT__COMPILE_REACH 12

typedef struct {
	mpt_context *ctx;
	mpt__recording *recorder;
	mpt_compile_stats *stats;
	uint32_t *uses;	/* by storage: operands of launches that name it */
	uint8_t *gone;	/* by storage: made and ended within the recording */
	uint8_t *taken;	/* by launch: dropped, or in a program */
	mpt__launch *out;	/* the launches as rewritten; from the end of that array on, members */
	int64_t count, first_member;
	int64_t tiles, tile_bytes;	/* of the program under way */
} mpt__compiler;

/* ==== Operands ==== */

static int64_t mpt__operand_elements(const mpt__operand *o) {
	int64_t numel = 1;
	for (int d = 0; d < o->rank; d++) numel *= o->shape[d];
	return numel;
}

/* Whether elements follow each other in logical order. */
static bool mpt__operand_dense(const mpt__operand *o) {
	int64_t step = 1;
	for (int d = o->rank - 1; d >= 0; step *= o->shape[d--])
		if (o->shape[d] != 1 && o->stride[d] != step) return false;
	return true;
}

static bool mpt__same_view(const mpt__operand *a, const mpt__operand *b) {
	return a->storage == b->storage && a->dtype == b->dtype && a->offset == b->offset &&
		a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0 &&
		memcmp(a->stride, b->stride, a->rank * sizeof *a->stride) == 0;
}

/* Whether element i of one is element i of the other. */
static bool mpt__same_elements(const mpt__operand *a, const mpt__operand *b) {
	return mpt__same_view(a, b) ||
		(a->storage == b->storage && a->dtype == b->dtype && a->offset == b->offset &&
			mpt__operand_dense(a) && mpt__operand_dense(b) &&
			mpt__operand_elements(a) == mpt__operand_elements(b));
}

static bool mpt__either_writes(const mpt__operand *a, const mpt__operand *b) {
	return a->access != MPT__READ || b->access != MPT__READ;
}

/* Whether one of two launches writes what the other has. */
static bool mpt__launches_meet(const mpt__launch *a, const mpt__launch *b) {
	for (int i = 0; i < a->n_operands; i++)
		for (int k = 0; k < b->n_operands; k++)
			if (a->operand[i].storage && a->operand[i].storage == b->operand[k].storage &&
				mpt__either_writes(&a->operand[i], &b->operand[k]))
				return true;
	return false;
}

/* ==== What may be a member ==== */

static bool mpt__is_elementwise(const mpt__launch *launch) {
	return launch->kernel == MPT__K_UNARY || launch->kernel == MPT__K_BINARY ||
		launch->kernel == MPT__K_COPY;
}

static bool mpt__is_plain_dtype(int dtype) {
	return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* Elements from which on ops on halves go alone. Their time goes into conversions, which a program
   does as often, while its memory waits for them: five ops on 1 M bf16 take as long either way, on
   16 M 1.14 times as long in one launch (Zen 5). */
#define MPT__COMPILE_HALVES (1 << 18)

static bool mpt__converts_much(const mpt__launch *launch) {
	bool halves = false;
	for (int i = 0; i < launch->n_operands; i++)
		halves = halves || launch->operand[i].dtype != MPT_F32;
	return halves && launch->kernel != MPT__K_COPY &&
		mpt__operand_elements(&launch->operand[0]) > MPT__COMPILE_HALVES;
}

/* Not to another layout, for which COPY has kernels of its own; nor to a form of weights, which is
   made only where it is stale. */
static bool mpt__copies_plainly(const mpt__compiler *c, const mpt__launch *launch) {
	const mpt__operand *from = &launch->operand[0], *to = &launch->operand[1];
	const bool alike = from->rank == to->rank &&
		memcmp(from->stride, to->stride, to->rank * sizeof *to->stride) == 0;
	return (alike || (mpt__operand_dense(from) && mpt__operand_dense(to))) &&
		c->ctx->storages[to->storage].kind != MPT_MEMORY_FORM;
}

/* What computes elements by themselves, and not by a table or by other means of its own. */
static bool mpt__may_be_member(const mpt__compiler *c, const mpt__launch *launch) {
	const mpt__backend *backend = &c->ctx->backend;
	const int n = launch->n_operands;
	if (!mpt__is_elementwise(launch)) return false;
	for (int i = 0; i < n; i++)
		if (!launch->operand[i].storage || !mpt__is_plain_dtype(launch->operand[i].dtype))
			return false;
	if (launch->kernel == MPT__K_COPY && !mpt__copies_plainly(c, launch)) return false;
	if (mpt__converts_much(launch)) return false;
	if (launch->slot[0] != MPT__SLOT_NONE) return false;	/* which a launch between may change */
	return mpt__operand_elements(&launch->operand[n - 1]) > 0 &&
		(!backend->workspace || backend->workspace(backend->self, launch) == 0);
}

/* ==== Programs ==== */

typedef struct {
	int64_t at[MPT__PROGRAM_MEMBERS];	/* launches, in order */
	int count;
} mpt__gathered;

/* Whether a launch computes as many elements as a group's, and each of them from the same ones. */
static bool mpt__gathered_fits(
	const mpt__compiler *c, const mpt__gathered *group, const mpt__launch *launch, bool *shares) {
	const mpt__launch *all = c->recorder->launches, *first = &all[group->at[0]];
	if (mpt__operand_elements(&first->operand[0]) != mpt__operand_elements(&launch->operand[0]))
		return false;
	for (int m = 0; m < group->count; m++) {
		const mpt__launch *member = &all[group->at[m]];
		for (int i = 0; i < member->n_operands; i++)
			for (int k = 0; k < launch->n_operands; k++) {
				const mpt__operand *a = &member->operand[i], *b = &launch->operand[k];
				if (a->storage != b->storage) continue;
				*shares = true;
				if (mpt__either_writes(a, b) && !mpt__same_elements(a, b)) return false;
			}
	}
	return true;
}

/* Whether nothing between a group and a launch keeps that from going first. */
static bool mpt__may_go_first(const mpt__compiler *c, const mpt__gathered *group, int64_t launch) {
	const mpt__launch *all = c->recorder->launches;
	int m = group->count - 1;
	for (int64_t i = launch - 1; i > group->at[0]; i--) {
		while (m > 0 && group->at[m] > i) m--;
		if (group->at[m] != i && mpt__launches_meet(&all[i], &all[launch])) return false;
	}
	return true;
}

/* Whether all that names a storage is in the group, which is the first to write it, densely. */
static bool mpt__is_tile(mpt__compiler *c, const mpt__gathered *group, uint32_t storage) {
	uint32_t uses = 0;
	if (!c->gone[storage]) return false;
	for (int m = 0; m < group->count; m++) {
		const mpt__launch *launch = &c->recorder->launches[group->at[m]];
		for (int i = launch->n_operands - 1; i >= 0; i--) {
			const mpt__operand *o = &launch->operand[i];
			if (o->storage != storage) continue;
			if (!mpt__operand_dense(o) || o->offset != 0 || (!uses && o->access != MPT__WRITE))
				return false;
			uses++;
		}
	}
	return uses == c->uses[storage];
}

typedef struct {
	uint32_t storage;	/* that it holds */
	int last;			/* the member that is the last to name it */
	uint8_t dtype;
} mpt__tile;

/* The number of a storage's tile at a member, made where it is the first; 0: it lies in memory. A
   tile is taken over once nobody reads it any more, also by what the last reader makes of it. */
static uint32_t mpt__tile_number(
	mpt__compiler *c, const mpt__gathered *group, mpt__tile *tiles, int member, int operand) {
	const mpt__launch *all = c->recorder->launches, *launch = &all[group->at[member]];
	const mpt__operand *o = &launch->operand[operand];
	int t = 0;
	for (; t < MPT__PROGRAM_MEMBERS; t++)
		if (tiles[t].storage == o->storage) return (uint32_t)t + 1;
	if (!mpt__is_tile(c, group, o->storage)) return 0;
	for (t = 0; tiles[t].storage; t++)
		if (tiles[t].last < member || (tiles[t].last == member && tiles[t].dtype == o->dtype))
			break;
	tiles[t].storage = o->storage;
	tiles[t].dtype = o->dtype;
	for (int m = 0; m < group->count; m++)
		for (int i = 0; i < all[group->at[m]].n_operands; i++)
			if (all[group->at[m]].operand[i].storage == o->storage) tiles[t].last = m;
	c->tiles++;
	c->tile_bytes += c->ctx->storages[o->storage].bytes;
	return (uint32_t)t + 1;
}

/* Puts an operand among a program's; its number from 1 on, or 0 where there is no room. */
static uint32_t mpt__program_operand(mpt__launch *program, const mpt__operand *o) {
	for (uint32_t i = 0; i < program->n_operands; i++) {
		mpt__operand *there = &program->operand[i];
		if (!mpt__same_view(there, o)) continue;
		if (there->access != o->access)
			there->access = there->access == MPT__WRITE ? MPT__WRITE : MPT__READ_WRITE;
		return i + 1;
	}
	if (program->n_operands == MPT__MAX_OPERANDS) return 0;
	program->operand[program->n_operands] = *o;
	return ++program->n_operands;
}

/* What tells one member from another, for the comparison of recordings. */
static uint64_t mpt__member_hash(uint64_t hash, const mpt__launch *member, int n) {
	uint64_t constant[4];
	memcpy(constant, member->imm, sizeof constant);
	hash = mpt__hash_u64(hash, (uint64_t)member->kernel << 8 | member->function);
	for (int i = 0; i < 4; i++) hash = mpt__hash_u64(hash, constant[i]);
	for (int i = 0; i < n; i++)
		hash = mpt__hash_u64(hash,
			(uint64_t)member->operand[i].storage << 16 | (uint64_t)member->operand[i].dtype << 8 |
				member->operand[i].access);
	return hash;
}

/* Makes a program of a group; false where it has too many operands. Members go to `members`. */
static bool mpt__program_make(
	mpt__compiler *c, const mpt__gathered *group, mpt__launch *program, mpt__launch *members) {
	mpt__tile tiles[MPT__PROGRAM_MEMBERS + 1];
	const mpt__launch *all = c->recorder->launches;
	memset(tiles, 0, sizeof tiles);
	c->tiles = c->tile_bytes = 0;
	*program = all[group->at[group->count - 1]];
	program->kernel = MPT__K_PROGRAM;
	program->function = MPT__FN_NONE;
	program->n_operands = 0;
	mpt__zero(program->slot);
	mpt__zero(program->imm);
	mpt__zero(program->index);
	mpt__zero(program->rng);
	for (int m = 0; m < group->count; m++) {
		members[m] = all[group->at[m]];
		for (int i = 0; i < members[m].n_operands; i++) {
			mpt__operand *o = &members[m].operand[i];
			uint32_t number = mpt__tile_number(c, group, tiles, m, i);
			if (number)
				number += MPT__MAX_OPERANDS;
			else
				number = mpt__program_operand(program, o);
			if (!number) return false;
			o->storage = number;
		}
		program->rng.seed =
			mpt__member_hash(program->rng.seed, &members[m], members[m].n_operands);
		members[m].n_operands = 0;	/* nobody but the program's kernel looks at them */
	}
	program->index[1] = group->count;
	c->stats->tensors += c->tiles;
	c->stats->kept_out += c->tile_bytes;
	return true;
}

/* The group of a launch and those behind it that go with it. */
static void mpt__members_gather(const mpt__compiler *c, int64_t first, mpt__gathered *group) {
	const mpt__launch *all = c->recorder->launches;
	group->at[0] = first;
	group->count = 1;
	for (int64_t i = first + 1; i < c->recorder->count; i++) {
		const int64_t last = group->at[group->count - 1];
		bool shares = i == last + 1;
		if (group->count == MPT__PROGRAM_MEMBERS || i > last + MPT__COMPILE_REACH) break;
		if (c->taken[i] || !mpt__may_be_member(c, &all[i]) ||
			!mpt__gathered_fits(c, group, &all[i], &shares) || !shares ||
			!mpt__may_go_first(c, group, i))
			continue;
		group->at[group->count++] = i;
	}
}

static double mpt__launch_bytes(const mpt__launch *launch) {
	double bytes = 0;
	for (int i = 0; i < launch->n_operands; i++)
		if (launch->operand[i].storage)
			bytes += (double)mpt__operand_elements(&launch->operand[i]) *
				(double)mpt_dtype_size((mpt_dtype)launch->operand[i].dtype);
	return bytes;
}

/* One launch of the new list: a program where more than one goes, with fewer members where they
   have too many operands. */
static void mpt__compile_launch(mpt__compiler *c, int64_t first) {
	mpt__launch *out = &c->out[c->count++];
	mpt__gathered group;
	group.count = 0;
	if (mpt__may_be_member(c, &c->recorder->launches[first])) mpt__members_gather(c, first, &group);
	for (; group.count > 1; group.count--) {
		mpt__launch *members = &c->out[c->first_member - group.count];
		if (!mpt__program_make(c, &group, out, members)) continue;
		c->first_member -= group.count;
		out->index[0] = c->first_member;	/* for now: in the array */
		c->stats->programs++;
		c->stats->fused += group.count;
		for (int m = 0; m < group.count; m++) c->taken[group.at[m]] = 1;
		return;
	}
	*out = c->recorder->launches[first];
}

/* ==== What nobody reads ==== */

static void mpt__uses_count(mpt__compiler *c, const mpt__launch *launch, int by) {
	for (int i = 0; i < launch->n_operands; i++)
		c->uses[launch->operand[i].storage] += (uint32_t)by;
}

/* Drops what only writes what ends with the step, unread: from the end, so that what only that
   would have read goes, too. Launches that may find fault with their operands stay. */
static void mpt__compile_drop(mpt__compiler *c) {
	for (int64_t i = c->recorder->count - 1; i >= 0; i--) {
		const mpt__launch *launch = &c->recorder->launches[i];
		const bool simple = mpt__is_elementwise(launch) || launch->kernel == MPT__K_FILL;
		const uint32_t written =
			simple ? launch->operand[launch->n_operands - 1].storage : 0;
		uint32_t own = 0;
		for (int k = 0; k < launch->n_operands; k++)
			own += launch->operand[k].storage == written;
		if (!written || !c->gone[written] || c->uses[written] != own) continue;
		mpt__uses_count(c, launch, -1);
		c->taken[i] = 1;
		c->stats->dropped++;
	}
}

/* ==== Copies of what nobody else reads ==== */

/* The launch before `copy` that makes what that reads, where it could write to the copy's place
   instead: elementwise, all that is read, and nobody in between has that place. -1: none. */
static int64_t mpt__compile_source(const mpt__compiler *c, int64_t copy) {
	const mpt__launch *all = c->recorder->launches;
	const mpt__operand *from = &all[copy].operand[0], *to = &all[copy].operand[1];
	for (int64_t i = copy - 1; i >= 0 && i >= copy - MPT__COMPILE_REACH; i--) {
		const mpt__operand *made = &all[i].operand[all[i].n_operands - 1];
		bool in_the_way = false;
		if (made->storage == from->storage)
			return !c->taken[i] && mpt__is_elementwise(&all[i]) && made->access == MPT__WRITE &&
					mpt__same_elements(made, from) &&
					(mpt__same_view(made, from) || mpt__operand_dense(to))
				? i
				: -1;
		for (int k = 0; k < all[i].n_operands; k++)
			in_the_way = in_the_way || all[i].operand[k].storage == to->storage;
		if (in_the_way) return -1;
	}
	return -1;
}

/* Lets results be written where they are copied to. */
static void mpt__compile_copies(mpt__compiler *c) {
	for (int64_t i = 0; i < c->recorder->count; i++) {
		mpt__launch *launch = &c->recorder->launches[i];
		const mpt__operand *from = &launch->operand[0], *to = &launch->operand[1];
		if (launch->kernel != MPT__K_COPY || c->taken[i] || from->dtype != to->dtype ||
			to->access != MPT__WRITE || from->storage == to->storage || !c->gone[from->storage] ||
			c->uses[from->storage] != 2)
			continue;
		const int64_t source = mpt__compile_source(c, i);
		if (source < 0) continue;
		mpt__launch *maker = &c->recorder->launches[source];
		bool reads = false;	/* in place, but with other elements */
		for (int k = 0; k < maker->n_operands - 1; k++)
			reads = reads || (maker->operand[k].storage == to->storage &&
								 !mpt__same_elements(&maker->operand[k], to));
		if (reads) continue;
		mpt__uses_count(c, launch, -1);
		c->uses[from->storage]--;
		c->uses[to->storage]++;
		maker->operand[maker->n_operands - 1] = *to;
		c->taken[i] = 1;
		c->stats->dropped++;
	}
}

/* ==== A recording ==== */

static void mpt__compile_list(mpt__compiler *c) {
	mpt__recording *recorder = c->recorder;
	mpt_compile_stats *stats = c->stats;
	double bytes[2] = {0, 0};
	for (int64_t i = 0; i < recorder->count; i++) {
		mpt__uses_count(c, &recorder->launches[i], 1);
		bytes[0] += mpt__launch_bytes(&recorder->launches[i]);
	}
	for (int64_t i = 0; i < recorder->retired.count; i++)
		c->gone[recorder->retired.id[i]] =
			(int64_t)recorder->retired.id[i] >= recorder->storages_before;
	mpt__compile_copies(c);
	mpt__compile_drop(c);
	c->first_member = 2 * recorder->count;
	for (int64_t i = 0; i < recorder->count; i++)
		if (!c->taken[i]) mpt__compile_launch(c, i);
	stats->launches[0] = recorder->count;
	stats->launches[1] = c->count;
	for (int64_t i = 0; i < c->count; i++) bytes[1] += mpt__launch_bytes(&c->out[i]);
	for (int i = 0; i < 2; i++) stats->bytes[i] = (int64_t)bytes[i];
}

/* Takes the new list over: members behind the launches, where no loop over these comes. */
static bool mpt__compile_adopt(mpt__compiler *c) {
	mpt__recording *recorder = c->recorder;
	const int64_t members = 2 * recorder->count - c->first_member;
	if (!mpt__room(c->ctx, recorder->launches, recorder->capacity, c->count + members))
		return false;
	for (int64_t i = 0; i < c->count; i++)
		if (c->out[i].kernel == MPT__K_PROGRAM)
			c->out[i].index[0] += c->count - c->first_member - i;
	memcpy(recorder->launches, c->out, (size_t)c->count * sizeof *c->out);
	memcpy(recorder->launches + c->count, c->out + c->first_member,
		(size_t)members * sizeof *c->out);
	recorder->count = c->count;
	return true;
}

/* Rewrites the recording under way. Without memory for that the call fails, as a recording without
   memory does: the step has run, and a later one is recorded. */
static void mpt__compile_recording(mpt_context *ctx, mpt__compiled *compiled) {
	const mpt_clock *clock = &ctx->base.clock;
	const double start = clock->now(clock->user);
	mpt__compiler c;
	mpt__zero(c);
	c.ctx = ctx, c.recorder = ctx->recorder, c.stats = &compiled->stats;
	const int64_t n = c.recorder->count, ids = ctx->storage_count;
	mpt_compile_stats stats = compiled->stats;
	mpt__zero(compiled->stats);
	c.uses = (uint32_t *)mpt__host_array(ctx, ids, sizeof *c.uses);
	c.gone = (uint8_t *)mpt__host_array(ctx, ids, 1);
	c.taken = (uint8_t *)mpt__host_array(ctx, n, 1);
	c.out = (mpt__launch *)mpt__host_array(ctx, 2 * n, sizeof *c.out);
	if (c.uses && c.gone && c.taken && c.out) {
		mpt__compile_list(&c);
		mpt__compile_adopt(&c);
	}
	mpt__host_free(ctx, c.uses, (size_t)ids * sizeof *c.uses);
	mpt__host_free(ctx, c.gone, (size_t)ids);
	mpt__host_free(ctx, c.taken, (size_t)n);
	mpt__host_free(ctx, c.out, (size_t)(2 * n) * sizeof *c.out);
	compiled->stats.recordings = stats.recordings + 1;
	compiled->stats.seconds = clock->now(clock->user) - start;
}

static mpt_status mpt__compiled_step(
	mpt_context *ctx, void *user, mpt_tensor x, mpt_tensor y) {
	mpt__compiled *compiled = (mpt__compiled *)user;
	mpt_status status = compiled->fn(ctx, compiled->user, x, y);
	if (ctx->capturing && ctx->recorder && ctx->backend.synchronous && mpt__ok(ctx) &&
		!ctx->recorder->failed && ctx->recorder->count > 0)
		mpt__compile_recording(ctx, compiled);
	return status;
}

/* ==== Public ==== */

mpt_captured mpt_compile(mpt_context *ctx, mpt_step_fn fn, void *user) {
	mpt__compiled *compiled = NULL;
	if (!mpt__enter(ctx, "mpt_compile")) return mpt__captured_handle(ctx, NULL);
	if (!fn)
		mpt__error(ctx, ARGUMENT, "there is no step function");
	else
		compiled = (mpt__compiled *)mpt__object_make(ctx, MPT__CAPTURED, sizeof *compiled);
	if (!compiled) return mpt__captured_handle(ctx, NULL);
	compiled->fn = fn, compiled->user = user;
	compiled->captured.fn = mpt__compiled_step, compiled->captured.user = compiled;
	return mpt__captured_handle(ctx, &compiled->captured);
}

mpt_status mpt_compile_statistics(mpt_captured step, mpt_compile_stats *stats) {
	const mpt__captured *captured = mpt__captured_enter(step, "mpt_compile_statistics");
	if (stats) mpt__zero(*stats);
	if (!captured) return mpt__status_of(step.context);
	if (!stats) return mpt__error(step.context, ARGUMENT, "stats is NULL");
	if (captured->fn != mpt__compiled_step)
		return mpt__error(step.context, ARGUMENT, "the step is of mpt_capture, not of mpt_compile");
	*stats = ((const mpt__compiled *)captured)->stats;
	return MPT_OK;
}

#endif	/* MPTRAIN_NO_GRAPH */

#endif
#endif
