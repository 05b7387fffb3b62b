/* generated from src/ by tools/amalgamate.c: edit there */
/* ----
 * mptrain_watch.h: what looks at a training closely: the profiler (mpt_profile_begin), flight logs
 * (mpt_flight_begin), the net as a graph (mpt_trace), with what each launch costs, and gradients
 * against small changes (mpt_gradcheck).
 *
 * It belongs to mptrain.h of the same version, which declares all of it and includes it by name.
 * Put it where the compiler finds it and define MPTRAIN_WATCH where MPTRAIN_IMPLEMENTATION is:
 *
 *		#define MPTRAIN_WATCH
 *		#define MPTRAIN_IMPLEMENTATION
 *		#include "mptrain.h"
 * ---- */
#ifndef MPT__MPTRAIN_WATCH_INCLUDED
#define MPT__MPTRAIN_WATCH_INCLUDED

#ifndef MPT__IMPLEMENTED
#error "mptrain.h includes this file, where MPTRAIN_WATCH and MPTRAIN_IMPLEMENTATION are defined"
#elif MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_watch.h are of different versions; copy both from one release"
#endif
/* ----
 * watch/cost.c: what a launch computes and moves, from its record alone.
 *
 * FLOP are counted as the field counts them: 2 M N K of a product, of a convolution the same with
 * its padding, of attention the pairs of query and key that see each other; what is computed by
 * element counts one for each word of its formula, an exponential like an addition. Bytes are those
 * of the elements that the kernel's contract reads and writes, each of them once: what a cache does
 * is not counted, nor is a workspace.
 * ---- */

typedef struct mpt__cost {
	double flop, read, written;	/* the latter two in bytes */
} mpt__cost;

/* ==== Elements ==== */

static double mpt__operand_numel(const mpt__operand *o) {
	double count = o->storage != 0;
	for (int d = 0; d < o->rank; d++) count *= (double)o->shape[d];
	return count;
}

/* Those that lie in memory: a dimension without a stride has one. */
static double mpt__operand_distinct(const mpt__operand *o) {
	double count = o->storage != 0;
	for (int d = 0; d < o->rank; d++)
		if (o->stride[d] != 0 || o->shape[d] == 0) count *= (double)o->shape[d];
	return count;
}

/* How many elements the segments of a launch have, where the host can see them; else what lies
   between the first one and the last. */
static double mpt__segments_numel(
	const mpt_context *ctx, const mpt__launch *launch, const mpt__operand *segments) {
	const int64_t *rows = ctx->backend.synchronous && !mpt__is_dry(&ctx->base) && segments->storage
		? (const int64_t *)ctx->data[segments->storage]
		: NULL;
	double count = 0;
	if (!rows) return mpt__operand_numel(&launch->operand[0]);
	rows += segments->offset;
	for (int64_t i = 0; i < segments->shape[0]; i++, rows += MPT__SEGMENT_FIELDS)
		count += (double)rows[MPT__SEGMENT_COUNT];
	return count;
}

/* ==== By element ==== */

/* Words that choose, compare or are constants count nothing. */
static bool mpt__word_counts(const char *word) {
	static const char *const none[] = {
		"v_set", "v_zero", "v_select", "v_is_", "v_equal", "v_greater", "v_at_least"};
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		if (strncmp(word, none[i], strlen(none[i])) == 0) return false;
	return true;
}

/* How many of a function's formula count, by its text. */
static int mpt__function_words(int function) {
	static const char *const formulas[] = {"",
#define MPT__ROW(id, ns, value) #value,
		MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW) MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
	};
	const int functions = (int)(sizeof formulas / sizeof *formulas);
	const char *at = formulas[function < functions ? function : 0];
	int words = 0;
	while ((at = strstr(at, "v_")) != NULL) words += mpt__word_counts(at), at += 2;
	return words;
}

/* What each element of a rule's operand takes. */
typedef double (*mpt__each_fn)(const mpt__launch *launch);

static double mpt__each_none(const mpt__launch *l) { return (void)l, 0; }
static double mpt__each_1(const mpt__launch *l) { return (void)l, 1; }
static double mpt__each_2(const mpt__launch *l) { return (void)l, 2; }
static double mpt__each_3(const mpt__launch *l) { return (void)l, 3; }
static double mpt__each_4(const mpt__launch *l) { return (void)l, 4; }
static double mpt__each_5(const mpt__launch *l) { return (void)l, 5; }
static double mpt__each_function(const mpt__launch *l) { return mpt__function_words(l->function); }
static double mpt__each_square(const mpt__launch *l) { return l->operand[2].storage ? 3 : 2; }
static double mpt__each_scaled(const mpt__launch *l) { return l->imm[0] > 0 ? 3 : 1; }
static double mpt__each_resized(const mpt__launch *l) {
	return l->index[0] == MPT__RESIZE_NEAREST ? 0 : 7;	/* four products, three sums */
}
/* The multiplier and the step; weight decay; momentum; Nesterov's look ahead. */
static double mpt__each_sgd(const mpt__launch *l) {
	return 3 + 2 * (l->imm[2] != 0) + (l->operand[3].storage ? 3 + 2 * (l->index[0] != 0) : 0);
}
/* The multiplier, decay, 3 for m, 4 for v, 6 for the step. */
static double mpt__each_adam(const mpt__launch *l) { return 14 + 2 * (l->imm[3] != 0); }
static double mpt__each_moments(const mpt__launch *l) {
	static const uint8_t words[] = {15, 9, 7, 13, 9};	/* in the order of MPT__UPDATES */
	const int row = l->function - MPT__FN_NO_UPDATE - 1;
	return words[row] + 2.0 * (l->operand[6].storage != 0) + 2.0 * (l->operand[8].storage != 0);
}
/* Mean and variance, unless they are given; difference, deviation, weight, bias, residual, relu. */
static double mpt__each_norm(const mpt__launch *l) {
	const mpt__operand *o = l->operand;
	return (l->index[1] == 1 ? 0 : 4) + 2 + (o[1].storage != 0) + (o[2].storage != 0) +
		(o[3].storage != 0) + (l->index[2] == 1);
}
/* What is normalised again; the two sums; the slope by s. */
static double mpt__each_norm_slope(const mpt__launch *l) {
	return 2 + 3 + (l->operand[6].storage ? 5 : 0) + (l->index[2] == 1);
}
/* Elements of a window; on average, where windows share out what there is. */
static double mpt__window(const mpt__launch *l, const mpt__operand *x, const mpt__operand *y) {
	double elements[2];
	for (int d = 0; d < 2; d++) {
		const int64_t in = x->shape[2 + d], out = y->shape[2 + d];
		int64_t all = 0;
		for (int64_t i = 0; i < out; i++) all += ((i + 1) * in + out - 1) / out - i * in / out;
		elements[d] = l->index[3] != 2 ? (double)MPT__TWO_AT(l->index[0], d)
			: out > 0                  ? (double)all / (double)out
									   : 0;
	}
	return elements[0] * elements[1];
}
static double mpt__each_window(const mpt__launch *l) {
	return mpt__window(l, &l->operand[0], &l->operand[1]);
}
static double mpt__each_window_slope(const mpt__launch *l) {
	return l->function == MPT__FN_MAX ? 1 : mpt__window(l, &l->operand[2], &l->operand[0]);
}
static double mpt__each_cell(const mpt__launch *l) {
	static const uint8_t forward[] = {3, 3, 17, 14, 0}, backward[] = {4, 3, 24, 21, 1};
	return (l->kernel == MPT__K_RECURRENT ? forward : backward)[l->index[0]];
}

/* ==== Products ==== */

static double mpt__flop_gemm(const mpt__launch *l) {
	const mpt__operand *a = &l->operand[0], *out = &l->operand[3];
	const double extra =
		(l->operand[2].storage != 0) + (l->activation != MPT_ACTIVATION_NONE) + (l->imm[0] != 1);
	return mpt__operand_numel(out) * (2 * (double)a->shape[a->rank - 1] + extra);
}

static double mpt__flop_conv(const mpt__launch *l) {
	const mpt__operand *x = &l->operand[0], *w = &l->operand[1], *y = &l->operand[2];
	const double taps = w->shape[0] > 0 ? mpt__operand_numel(w) / (double)w->shape[0] : 0;
	const bool weight = l->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
	const mpt__operand *out = l->kernel == MPT__K_CONV ? y : x;
	double extra = (l->operand[3].storage != 0) + (l->activation != MPT_ACTIVATION_NONE);
	if (weight) out = y, extra = l->operand[3].storage != 0;
	extra += !weight && l->operand[4].storage != 0;
	return 2 * mpt__operand_numel(y) * taps + extra * mpt__operand_numel(out);
}

/* How many pairs of a query and a key see each other, in each head. */
static double mpt__attention_pairs(const mpt__launch *l) {
	const int64_t queries = l->operand[0].shape[2], keys = l->operand[1].shape[2];
	double pairs = 0;
	if (l->index[0] != 1) return (double)queries * (double)keys;
	for (int64_t t = 0; t < queries; t++) {
		int64_t end = t + l->index[2] + 1, first = l->index[1] ? end - l->index[1] : 0;
		end = end < keys ? end : keys, first = first > 0 ? first : 0;
		pairs += end > first ? (double)(end - first) : 0;
	}
	return pairs;
}

/* Products of length D and Dv for each pair, and what is done with its score: scale, largest,
   difference, exponential, sum; backwards the exponential again and its slope. */
static double mpt__flop_attention(const mpt__launch *l) {
	const mpt__operand *q = &l->operand[0];
	const double d = (double)q->shape[3], dv = (double)l->operand[2].shape[3];
	const double heads = (double)(q->shape[0] * q->shape[1]);
	const bool dq = l->operand[l->kernel == MPT__K_ATTENTION_DQ ? 7 : 9].storage != 0;
	double pair = 2 * (d + dv) + 5 + (l->operand[3].storage != 0);
	if (l->kernel == MPT__K_ATTENTION_DKV) pair += 2 * (d + dv);
	if (l->kernel != MPT__K_ATTENTION && dq) pair += 2 * d;
	if (l->kernel != MPT__K_ATTENTION_DQ) return heads * mpt__attention_pairs(l) * pair;
	return heads * (dq ? mpt__attention_pairs(l) * pair : 0) +
		2 * mpt__operand_numel(&l->operand[5]);
}

static double mpt__flop_hash_grid(const mpt__launch *l) {
	const bool back = l->kernel == MPT__K_HASH_GRID_BACKWARD;
	const mpt__operand *x = &l->operand[back ? 0 : 1], *y = &l->operand[back ? 1 : 2];
	const mpt__operand *table = &l->operand[back ? 2 : 0];
	const double corners = x->shape[1] == 2 ? 4 : 8, levels = (double)table->shape[0];
	return corners * (2 * mpt__operand_numel(y) + levels * mpt__operand_numel(x));
}

/* Gates by element, and, where all steps are one launch, the product with the state of each. */
static double mpt__flop_recurrent(const mpt__launch *l) {
	const bool back = l->kernel == MPT__K_RECURRENT_BACKWARD;
	static const uint8_t gates[] = {1, 1, 4, 3, 1};
	const mpt__operand *all = &l->operand[l->index[0] == MPT__CELL_CARRY ? 1 : 0];
	const double n = mpt__operand_numel(all), hidden = n / gates[l->index[0]];
	const mpt__operand *weight = &l->operand[back ? 9 : 1];
	const double product = l->index[2] > 0 ? 2 * n * (double)weight->shape[1] : 0;
	return product + hidden * mpt__each_cell(l);
}

/* ==== What is not read or written whole ==== */

/* How many elements of an operand are touched where a kernel picks among them; of no other. */
static double mpt__cost_picked(const mpt__launch *l, int operand) {
	const mpt__operand *o = l->operand;
	switch (l->kernel * 16 + operand) {
		case MPT__K_GATHER * 16: return mpt__operand_numel(&o[2]);
		case MPT__K_SCATTER_ADD * 16 + 2: return mpt__operand_numel(&o[1]);
		case MPT__K_NLL * 16: return mpt__operand_numel(&o[1]);
		case MPT__K_EMBEDDING * 16: return mpt__operand_numel(&o[2]);
		case MPT__K_EMBEDDING_BACKWARD * 16 + 2: return mpt__operand_numel(&o[1]);
		case MPT__K_HASH_GRID * 16:
			return mpt__operand_numel(&o[2]) * (o[1].shape[1] == 2 ? 4 : 8);
		case MPT__K_HASH_GRID_BACKWARD * 16 + 2:
			return mpt__operand_numel(&o[1]) * (o[0].shape[1] == 2 ? 4 : 8);
		case MPT__K_SGD * 16 + 7:
		case MPT__K_ADAM * 16 + 7:
		case MPT__K_MOMENTS * 16 + 7: return 1;	/* this step's rate */
		default: return -1;
	}
}

/* Of TRIANGLE, what stays. */
static double mpt__cost_triangle(const mpt__launch *l) {
	const mpt__operand *o = &l->operand[0];
	const int64_t rows = o->shape[o->rank - 2], columns = o->shape[o->rank - 1];
	double kept = 0;
	for (int64_t row = 0; row < rows; row++) {
		int64_t end = row + l->index[0] + (l->index[1] == 1 ? 0 : 1);
		end = end < 0 ? 0 : end < columns ? end : columns;
		kept += (double)(l->index[1] == 1 ? columns - end : end);
	}
	return rows * columns > 0
		? mpt__operand_numel(o) / (double)(rows * columns) * kept
		: 0;
}

/* ==== The table ==== */

typedef struct mpt__cost_rule {
	mpt__each_fn each;	/* for each element of the operand; NULL: `whole` */
	double (*whole)(const mpt__launch *launch);
	int8_t operand, segments;	/* segments: the operand that has them; -1: none */
} mpt__cost_rule;

/* One for each kernel, by its name: what has none does not compile. */
#define MPT__EACH(words, operand) {mpt__each_##words, NULL, operand, -1}
#define MPT__WHOLE(name) {NULL, mpt__flop_##name, 0, -1}
#define MPT__BY_SEGMENT(words, segments) {mpt__each_##words, NULL, 0, segments}
#define MPT__COST_fill MPT__EACH(none, 0)
#define MPT__COST_copy MPT__EACH(none, 1)
#define MPT__COST_unary MPT__EACH(function, 1)
#define MPT__COST_binary MPT__EACH(function, 2)
#define MPT__COST_reduce MPT__EACH(1, 0)
#define MPT__COST_squares MPT__EACH(square, 0)
#define MPT__COST_argmax MPT__EACH(1, 0)
#define MPT__COST_scatter_axis MPT__EACH(none, 2)
#define MPT__COST_gemm MPT__WHOLE(gemm)
#define MPT__COST_softmax MPT__EACH(5, 0)	/* largest, difference, exponential, sum, quotient */
#define MPT__COST_softmax_backward MPT__EACH(4, 0)
#define MPT__COST_dropout MPT__EACH(1, 0)
#define MPT__COST_random MPT__EACH(2, 0)
#define MPT__COST_nll MPT__EACH(2, 1)
#define MPT__COST_nll_backward MPT__EACH(1, 0)
#define MPT__COST_cross_entropy MPT__EACH(4, 0)
#define MPT__COST_cross_entropy_backward MPT__EACH(3, 0)
#define MPT__COST_grad_norm MPT__BY_SEGMENT(3, 1)
#define MPT__COST_grad_scale MPT__BY_SEGMENT(scaled, 1)
#define MPT__COST_sgd MPT__BY_SEGMENT(sgd, 4)
#define MPT__COST_adam MPT__BY_SEGMENT(adam, 4)
#define MPT__COST_moments MPT__BY_SEGMENT(moments, 4)
#define MPT__COST_clip MPT__EACH(none, 0)
#define MPT__COST_scalar_set MPT__EACH(none, 0)
#define MPT__COST_scalar_or MPT__EACH(none, 0)
#define MPT__COST_scale_loss MPT__EACH(1, 0)
#define MPT__COST_scaler_update MPT__EACH(none, 0)
#define MPT__COST_metric_add MPT__EACH(1, 0)
#define MPT__COST_find_nonfinite MPT__EACH(none, 0)
#define MPT__COST_average MPT__EACH(3, 0)
#define MPT__COST_pair_loss MPT__EACH(4, 0)
#define MPT__COST_pair_loss_backward MPT__EACH(5, 0)
#define MPT__COST_cumsum MPT__EACH(1, 0)
#define MPT__COST_gather MPT__EACH(none, 2)
#define MPT__COST_scatter_add MPT__EACH(1, 1)
#define MPT__COST_triangle MPT__EACH(none, 0)
#define MPT__COST_argsort MPT__EACH(none, 0)
#define MPT__COST_interpolate MPT__EACH(resized, 1)
#define MPT__COST_interpolate_backward MPT__EACH(resized, 0)
#define MPT__COST_conv MPT__WHOLE(conv)
#define MPT__COST_conv_backward_input MPT__WHOLE(conv)
#define MPT__COST_conv_backward_weight MPT__WHOLE(conv)
#define MPT__COST_norm MPT__EACH(norm, 0)
#define MPT__COST_norm_backward MPT__EACH(norm_slope, 0)
#define MPT__COST_running_stats MPT__EACH(3, 2)
#define MPT__COST_pool MPT__EACH(window, 1)
#define MPT__COST_pool_backward MPT__EACH(window_slope, 0)
#define MPT__COST_embedding MPT__EACH(none, 2)
#define MPT__COST_embedding_backward MPT__EACH(1, 1)
#define MPT__COST_attention MPT__WHOLE(attention)
#define MPT__COST_attention_dq MPT__WHOLE(attention)
#define MPT__COST_attention_dkv MPT__WHOLE(attention)
#define MPT__COST_rope MPT__EACH(3, 0)	/* of a pair, four products and two sums */
#define MPT__COST_hash_grid MPT__WHOLE(hash_grid)
#define MPT__COST_hash_grid_backward MPT__WHOLE(hash_grid)
#define MPT__COST_fp8_scale MPT__EACH(1, 0)
#define MPT__COST_fp8_update MPT__EACH(none, 0)
#define MPT__COST_gate_bits MPT__EACH(1, 0)
#define MPT__COST_gate_open MPT__EACH(none, 1)
#define MPT__COST_program MPT__EACH(1, 0)
#define MPT__COST_recurrent MPT__WHOLE(recurrent)
#define MPT__COST_recurrent_backward MPT__WHOLE(recurrent)
static const mpt__cost_rule mpt__cost_rules[] = {
#define MPT__ROW(id, name, effect) MPT__COST_##name,
	MPT__KERNELS(MPT__ROW)
#undef MPT__ROW
};

/* Bytes of all operands. Those that lie in the block that the segments are of count by these. */
static void mpt__cost_bytes(
	const mpt__launch *launch, const mpt__cost_rule *rule, double in_segments, mpt__cost *cost) {
	for (int i = 0; i < launch->n_operands; i++) {
		const mpt__operand *o = &launch->operand[i];
		if (!o->storage) continue;
		double count = mpt__operand_distinct(o);
		const double picked = mpt__cost_picked(launch, i);
		if (picked >= 0 && picked < count) count = picked;
		if (launch->kernel == MPT__K_TRIANGLE && i == 0) count = mpt__cost_triangle(launch);
		if (rule->segments > 0 && o->dtype != MPT_I64 && o->dtype != MPT_F64) count = in_segments;
		const double bytes = count * (double)mpt_dtype_size((mpt_dtype)o->dtype);
		const bool form = rule->segments == 4 && i == 0 && launch->operand[1].storage;
		if (o->access != MPT__WRITE && !form) cost->read += bytes;	/* a form is only written */
		if (o->access != MPT__READ) cost->written += bytes;
	}
}

static mpt__cost mpt__launch_cost(const mpt_context *ctx, const mpt__launch *launch) {
	const mpt__cost_rule *rule = &mpt__cost_rules[launch->kernel];
	mpt__cost cost = {0, 0, 0};
	mpt__launch l = *launch;	/* in which what is left out at the end is absent */
	for (int i = l.n_operands; i < MPT__MAX_OPERANDS; i++) l.operand[i].storage = 0;
	const double count = rule->segments > 0
		? mpt__segments_numel(ctx, &l, &l.operand[rule->segments])
		: mpt__operand_numel(&l.operand[rule->operand]);
	cost.flop = rule->each ? count * rule->each(&l) : rule->whole(&l);
	mpt__cost_bytes(&l, rule, count, &cost);
	return cost;
}

/* ----
 * watch/profile.c: what time goes into: sums by op, module and kernel, and spans.
 *
 * All is told by launches: ops and modules are known by what a launch says that it comes from, so
 * that there is nothing in their calls that profiling would cost while it is off, and so that steps
 * that are repeated without their calls are told as well.
 * ---- */

enum {
	MPT__PROFILE_PHASES = MPT__OTHER + 1,
	MPT__PROFILE_GRAPH = MPT__KERNEL_COUNT,	/* the row of steps that ran as graphs */
	MPT__PROFILE_DEPTH = 34,	/* of spans: a step, an op, and modules; deeper ones are left out */
	MPT__PROFILE_TEXT_ROWS = 24
};

/* What launches are added up to. */
typedef struct {
	int64_t calls, launches;
	double seconds, flop, read, written, least;
} mpt__profile_sum;

typedef struct {
	mpt__profile_sum sums[MPT__PROFILE_PHASES];
	uint32_t parent;	/* index of a path; 0: none */
	bool known;			/* parent is */
} mpt__profile_module;

typedef struct {
	uint8_t kind, phase;	/* mpt_span_kind, mpt__phase */
	int thread;
	uint32_t id;	/* of an op, a kernel, a path */
	int64_t step;
	double start, end;	/* end below start: it is under way */
	double flop, read, written;
	int64_t memory;
} mpt__profile_span;

/* Where launches come from: as long as this is the same it is one call. */
typedef struct {
	uint32_t path, op, record;
	uint8_t phase;
	bool replayed;
	int64_t call, step;
} mpt__profile_origin;

typedef struct mpt__profile {
	void (*free)(mpt_context *ctx);	/* a pointer: programs that never ask are without it */
	mpt_profile_config config;
	bool on;
	double began, ended;
	int64_t first_step, last_step;

	double start;	/* of the launch under way */
	double last;	/* end of the one before */
	bool goes_on;	/* nothing but launches since then */
	mpt__profile_origin origin;

	mpt__profile_sum all, conversions, waits;
	mpt__profile_sum kernels[MPT__KERNEL_COUNT + 1];
	mpt__profile_sum ops[MPT__OP_COUNT][MPT__PROFILE_PHASES];	/* row 0: of no op */
	mpt__profile_module *modules;								/* by path; row 0: outside of them */
	int64_t module_capacity;

	mpt__profile_span *spans;	/* room for config.spans; NULL: none */
	int64_t span_count, left_out;
	mpt__profile_span *open[MPT__PROFILE_DEPTH];	/* each in the one before */
	int depth;
} mpt__profile;

static double mpt__profile_now(const mpt_context *ctx) {
	return ctx->base.clock.now(ctx->base.clock.user);
}

/* ==== Spans ==== */

/* A span; NULL once there is room for no more. */
static mpt__profile_span *mpt__profile_span_new(
	mpt_context *ctx, mpt_span_kind kind, uint32_t id, int phase, double start) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	if (profile->span_count == profile->config.spans) {
		profile->left_out += profile->config.spans > 0;
		return NULL;
	}
	mpt__profile_span *span = &profile->spans[profile->span_count++];
	mpt__zero(*span);
	span->kind = (uint8_t)kind, span->phase = (uint8_t)phase, span->id = id;
	span->step = ctx->now.step;
	span->start = start, span->end = start - 1;
	return span;
}

/* Where there is no room for what would be around others, none of them is kept. */
static void mpt__profile_open(
	mpt_context *ctx, mpt_span_kind kind, uint32_t id, int phase, double start) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	if (profile->depth == MPT__PROFILE_DEPTH) return;
	mpt__profile_span *span = mpt__profile_span_new(ctx, kind, id, phase, start);
	if (span) profile->open[profile->depth++] = span;
}

/* Ends all spans within the first `depth`. */
static void mpt__profile_close(mpt__profile *profile, int depth, double end) {
	while (profile->depth > depth) profile->open[--profile->depth]->end = end;
}

/* How many of the open spans are steps: 0 or 1. */
static int mpt__profile_steps_open(const mpt__profile *profile) {
	return profile->depth > 0 && profile->open[0]->kind == MPT_SPAN_STEP;
}

/* Ends ops and modules, after the last launch in them. */
static void mpt__profile_turn(mpt__profile *profile) {
	mpt__profile_close(profile, mpt__profile_steps_open(profile), profile->last);
	profile->goes_on = false;
}

/* A repeated step has no beginning of its own: it is from its first launch to its last. */
static void mpt__profile_repeated(mpt_context *ctx, const mpt__profile_origin *origin) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	if (ctx->step_depth) return;
	if (mpt__profile_steps_open(profile) &&
		(!origin->replayed || profile->open[0]->step != origin->step))
		mpt__profile_close(profile, 0, profile->last);
	if (!origin->replayed || mpt__profile_steps_open(profile)) return;
	mpt__profile_close(profile, 0, profile->last);
	mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, profile->start);
}

/* The row of a path, which knows the module above; NULL on error. */
static mpt__profile_module *mpt__profile_module_row(mpt_context *ctx, uint32_t path) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	if (!mpt__room(ctx, profile->modules, profile->module_capacity, (int64_t)path + 1)) return NULL;
	mpt__profile_module *row = &profile->modules[path];
	const mpt__object_table *table = &ctx->objects[MPT__MODULE];
	for (int64_t i = 1; !row->known && path && i < table->count; i++) {
		const mpt__module *module = (const mpt__module *)table->rows[i].object;
		if (!module || module->path != path) continue;
		if (module->parent) row->parent = mpt__module_slot(ctx, module->parent)->path;
		break;
	}
	row->known = true;
	return row;
}

/* The modules around a launch, from the root down; returns how many. */
static int mpt__profile_chain(mpt_context *ctx, uint32_t path, uint32_t *chain) {
	uint32_t upward[MPT__PROFILE_DEPTH];
	int n = 0;
	for (; path && n < MPT__PROFILE_DEPTH - 2; n++) {
		const mpt__profile_module *row = mpt__profile_module_row(ctx, path);
		upward[n] = path;
		path = row ? row->parent : 0;
	}
	for (int i = 0; i < n; i++) chain[i] = upward[n - 1 - i];
	return n;
}

/* Ends what a launch is not in, and begins what it is in. */
static void mpt__profile_enter(mpt_context *ctx, const mpt__profile_origin *origin) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	uint32_t chain[MPT__PROFILE_DEPTH];
	mpt__profile_repeated(ctx, origin);
	int n = mpt__profile_chain(ctx, origin->path, chain), same = 0;
	const int base = mpt__profile_steps_open(profile);
	while (same < n && base + same < profile->depth) {
		const mpt__profile_span *span = profile->open[base + same];
		if (span->kind != MPT_SPAN_MODULE || span->id != chain[same] ||
			span->phase != origin->phase)
			break;
		same++;
	}
	mpt__profile_close(profile, base + same, profile->last);
	for (; same < n; same++)
		mpt__profile_open(ctx, MPT_SPAN_MODULE, chain[same], origin->phase, profile->start);
	if (origin->op) mpt__profile_open(ctx, MPT_SPAN_OP, origin->op, origin->phase, profile->start);
}

static void mpt__profile_launch_span(
	mpt_context *ctx, uint32_t kernel, int phase, const mpt__profile_sum *one, double end) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	mpt__profile_span *span =
		mpt__profile_span_new(ctx, MPT_SPAN_LAUNCH, kernel, phase, profile->start);
	if (!span) return;
	span->end = end;
	span->flop = one->flop, span->read = one->read, span->written = one->written;
	span->memory = ctx->base.memory.total_current;
	for (int i = 0; i < profile->depth; i++) {
		mpt__profile_span *around = profile->open[i];
		around->flop += one->flop, around->read += one->read, around->written += one->written;
	}
}

/* ==== What is heard ==== */

static void mpt__profile_add(mpt__profile_sum *sum, const mpt__profile_sum *one, bool call) {
	sum->calls += call;
	sum->launches += one->launches;
	sum->seconds += one->seconds;
	sum->flop += one->flop, sum->read += one->read, sum->written += one->written;
	sum->least += one->least;
}

/* The seconds that a launch takes at the ceilings. */
static double mpt__profile_least(
	const mpt_profile_config *config, const mpt__launch *launch, const mpt__cost *cost) {
	const uint8_t dtype = launch->compute_dtype;
	const double ceiling = config->product[dtype == MPT_F16 ? 1 : dtype == MPT_BF16 ? 2 : 0];
	const double product = ceiling > 0 ? cost->flop / ceiling : 0;
	const double copy = config->copy > 0 ? (cost->read + cost->written) / config->copy : 0;
	return product > copy ? product : copy;
}

/* Whether a launch only puts values into another dtype or layout. */
static bool mpt__profile_converts(const mpt_context *ctx, const mpt__launch *launch) {
	const mpt__operand *from = &launch->operand[0], *to = &launch->operand[1];
	if (launch->kernel != MPT__K_COPY) return false;
	return from->dtype != to->dtype || ctx->storages[to->storage].kind == MPT_MEMORY_FORM;
}

static mpt__profile_origin mpt__profile_origin_of(
	const mpt_context *ctx, const mpt__launch *launch) {
	mpt__profile_origin origin;
	mpt__zero(origin);
	origin.path = mpt__launch_path(ctx, launch);
	origin.op = launch->op;
	origin.record = launch->op_record;
	origin.phase = launch->phase;
	origin.replayed = launch != &ctx->launch;
	origin.call = ctx->base.call;
	origin.step = ctx->now.step;
	return origin;
}

static bool mpt__profile_same_module(const mpt__profile_origin *a, const mpt__profile_origin *b) {
	return a->path == b->path && a->phase == b->phase && a->step == b->step;
}

static bool mpt__profile_same_call(const mpt__profile_origin *a, const mpt__profile_origin *b) {
	return mpt__profile_same_module(a, b) && a->op == b->op && a->record == b->record &&
		a->call == b->call && a->replayed == b->replayed;
}

/* Seconds of the device since the call before; below 0 where the host's clock is to tell. */
static double mpt__profile_lap(mpt_context *ctx) {
	if (ctx->backend.lap) return ctx->backend.lap(ctx->backend.self);
	if (!ctx->backend.synchronous) ctx->backend.synchronize(ctx->backend.self);
	return -1;
}

/* What has gone by since `start`, of which `end` is the end. */
static double mpt__profile_taken(mpt_context *ctx, const mpt__profile *profile, double *end) {
	const double lap = mpt__profile_lap(ctx);
	*end = mpt__profile_now(ctx);
	if (lap < 0) return *end - profile->start;
	if (profile->start + lap < *end) *end = profile->start + lap;
	return lap;
}

static void mpt__profile_launches(MPT__HEARS) {
	MPT__PLAIN_FLOATS;
	(void)what;
	if (!ctx->backend.synchronous) mpt__profile_lap(ctx);
	((mpt__profile *)user)->start = mpt__profile_now(ctx);
}

static void mpt__profile_launched(MPT__HEARS) {
	MPT__PLAIN_FLOATS;
	const mpt__launch *launch = (const mpt__launch *)what;
	mpt__profile *profile = (mpt__profile *)user;
	double end;
	const double seconds = mpt__profile_taken(ctx, profile, &end);
	const mpt__cost cost = mpt__launch_cost(ctx, launch);
	const mpt__profile_sum one = {1, 1, seconds, cost.flop, cost.read, cost.written,
		mpt__profile_least(&profile->config, launch, &cost)};
	const mpt__profile_origin origin = mpt__profile_origin_of(ctx, launch);
	const bool stays = profile->goes_on && mpt__profile_same_module(&origin, &profile->origin);
	const bool same = profile->goes_on && mpt__profile_same_call(&origin, &profile->origin);
	mpt__profile_add(&profile->all, &one, true);
	mpt__profile_add(&profile->kernels[launch->kernel], &one, true);
	mpt__profile_add(&profile->ops[origin.op][origin.phase], &one, !same);
	mpt__profile_module *module = mpt__profile_module_row(ctx, origin.path);
	if (module) mpt__profile_add(&module->sums[origin.phase], &one, !stays);
	if (mpt__profile_converts(ctx, launch)) mpt__profile_add(&profile->conversions, &one, true);
	if (profile->spans) {
		if (!same) mpt__profile_enter(ctx, &origin);
		mpt__profile_launch_span(ctx, launch->kernel, launch->phase, &one, end);
	}
	profile->origin = origin;
	profile->goes_on = true;
	profile->last = end;
}

#ifndef MPTRAIN_NO_GRAPH
/* A repeated step that a graph runs has no launches that could be told: it is one as a whole. */
static void mpt__profile_repeat_began(MPT__HEARS) {
	const mpt__captured *captured = (const mpt__captured *)what;
	if (captured->graph) mpt__profile_launches(ctx, user, what);
}

static void mpt__profile_repeat_ended(MPT__HEARS) {
	MPT__PLAIN_FLOATS;
	const mpt__captured *captured = (const mpt__captured *)what;
	mpt__profile *profile = (mpt__profile *)user;
	if (!captured->graph) return;
	mpt__profile_sum one;
	mpt__zero(one);
	double end;
	one.calls = one.launches = 1;
	one.seconds = mpt__profile_taken(ctx, profile, &end);
	for (int64_t i = 0; i < captured->recording->count; i++) {
		const mpt__launch *launch = &captured->recording->launches[i];
		const mpt__cost cost = mpt__launch_cost(ctx, launch);
		one.flop += cost.flop, one.read += cost.read, one.written += cost.written;
		one.least += mpt__profile_least(&profile->config, launch, &cost);
	}
	mpt__profile_turn(profile);
	mpt__profile_add(&profile->all, &one, true);
	mpt__profile_add(&profile->kernels[MPT__PROFILE_GRAPH], &one, true);
	mpt__profile_add(&profile->ops[0][MPT__OTHER], &one, true);
	mpt__profile_module *module = mpt__profile_module_row(ctx, 0);
	if (module) mpt__profile_add(&module->sums[MPT__OTHER], &one, true);
	profile->last = end;
	if (!profile->spans) return;
	mpt__profile_close(profile, 0, profile->start);
	mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, profile->start);
	mpt__profile_launch_span(ctx, MPT__PROFILE_GRAPH, MPT__OTHER, &one, end);
	mpt__profile_close(profile, 0, end);
}
#endif

static void mpt__profile_step_began(MPT__HEARS) {
	MPT__PLAIN_FLOATS;
	mpt__profile *profile = (mpt__profile *)user;
	(void)what;
	mpt__profile_turn(profile);
	if (!profile->spans) return;
	mpt__profile_close(profile, 0, profile->last);
	mpt__profile_open(ctx, MPT_SPAN_STEP, 0, MPT__OTHER, mpt__profile_now(ctx));
}

static void mpt__profile_step_ended(MPT__HEARS) {
	MPT__PLAIN_FLOATS;
	mpt__profile *profile = (mpt__profile *)user;
	(void)what;
	mpt__profile_turn(profile);
	if (profile->depth > 0) mpt__profile_close(profile, 0, mpt__profile_now(ctx));
}

static void mpt__profile_batch_came(MPT__HEARS) {
	const mpt__batch_wait *wait = (const mpt__batch_wait *)what;
	mpt__profile *profile = (mpt__profile *)user;
	profile->waits.calls++;
	profile->waits.seconds += wait->end - wait->start;
	mpt__profile_turn(profile);
	if (!ctx->step_depth) mpt__profile_close(profile, 0, profile->last);
	if (!profile->spans) return;
	mpt__profile_span *span = mpt__profile_span_new(ctx, MPT_SPAN_WAIT, 0, MPT__OTHER, wait->start);
	if (span) span->end = wait->end;
	if (!wait->worker || wait->began < profile->began) return;
	span = mpt__profile_span_new(ctx, MPT_SPAN_BATCH, 0, MPT__OTHER, wait->began);
	if (span) span->end = wait->ended, span->thread = wait->worker;
}

/* ==== Beginning and ending ==== */

static const struct {
	mpt__event event;
	mpt__hear hear;
} mpt__profile_hears[] = {{MPT__LAUNCHES, mpt__profile_launches},
	{MPT__LAUNCHED, mpt__profile_launched}, {MPT__STEP_BEGAN, mpt__profile_step_began},
#ifndef MPTRAIN_NO_GRAPH
	{MPT__REPEAT_BEGAN, mpt__profile_repeat_began}, {MPT__REPEAT_ENDED, mpt__profile_repeat_ended},
#endif
	{MPT__STEP_ENDED, mpt__profile_step_ended}, {MPT__BATCH_CAME, mpt__profile_batch_came}};
#define MPT__PROFILE_HEARS (int)(sizeof mpt__profile_hears / sizeof mpt__profile_hears[0])

static void mpt__profile_stop(mpt_context *ctx) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	if (!profile->on) return;
	for (int i = 0; i < MPT__PROFILE_HEARS; i++)
		mpt__listen_no_more(ctx, mpt__profile_hears[i].event, mpt__profile_hears[i].hear);
	mpt__profile_turn(profile);
	profile->ended = mpt__profile_now(ctx);
	mpt__profile_close(profile, 0, profile->ended);
	profile->last_step = ctx->now.step;
	profile->on = false;
}

static void mpt__profile_drop(mpt_context *ctx) {
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	mpt__profile_stop(ctx);
	mpt__room_free(ctx, profile->modules, profile->module_capacity);
	mpt__room_free(ctx, profile->spans, profile->spans ? profile->config.spans : 0);
	mpt__host_free(ctx, profile, sizeof *profile);
	ctx->profile = NULL;
}

static void mpt__profile_free(mpt_context *ctx) {
	if (ctx->profile) ((mpt__profile *)ctx->profile)->free(ctx);
}

static bool mpt__profile_check(mpt_context *ctx, const mpt_profile_config *config) {
	const double ceilings[] = {
		config->product[0], config->product[1], config->product[2], config->copy};
	if (config->spans < 0)
		return mpt__reject(ctx, ARGUMENT, "spans = %lld: expected 0 or more", config->spans);
	for (int i = 0; i < 4; i++)
		if (!(ceilings[i] >= 0.0 && mpt__f64_is_finite(ceilings[i])))
			return mpt__reject(ctx, ARGUMENT, "%s = %g: expected a finite number, 0 for unknown",
				i < 3 ? "product" : "copy", ceilings[i]);
	return true;
}

/* All memory of a profile, with rows for the modules that there are; false with an error. */
static bool mpt__profile_make(mpt_context *ctx, const mpt_profile_config *config) {
	mpt__profile *profile = (mpt__profile *)mpt__host_new(ctx, sizeof *profile);
	if (!profile) return false;
	ctx->profile = profile;
	profile->free = mpt__profile_drop;
	if (config->spans > 0)
		profile->spans = (mpt__profile_span *)mpt__host_array(
			ctx, config->spans, sizeof *profile->spans);
	profile->config = *config;
	if (mpt__ok(ctx) &&
		mpt__room(ctx, profile->modules, profile->module_capacity, ctx->path_count + 1))
		return true;
	mpt__profile_drop(ctx);
	return false;
}

mpt_status mpt_profile_begin(mpt_context *ctx, const mpt_profile_config *config) {
	MPT__PLAIN_FLOATS;
	const mpt_profile_config defaults = mpt_profile_config_default();
	if (!mpt__enter(ctx, "mpt_profile_begin")) return mpt__status_of(ctx);
	if (!config) config = &defaults;
	if (!mpt__profile_check(ctx, config)) return ctx->base.status;
	mpt__profile_free(ctx);
	if (!mpt__profile_make(ctx, config)) return ctx->base.status;
	mpt__profile *profile = (mpt__profile *)ctx->profile;
	mpt__wait(ctx);	/* for what was launched before */
	profile->on = true;
	for (int i = 0; i < MPT__PROFILE_HEARS && mpt__ok(ctx); i++)
		mpt__listen(ctx, mpt__profile_hears[i].event, mpt__profile_hears[i].hear, profile);
	profile->first_step = ctx->now.step;
	profile->began = profile->last = mpt__profile_now(ctx);
	if (!mpt__ok(ctx)) mpt__profile_drop(ctx);
	return ctx->base.status;
}

mpt_status mpt_profile_end(mpt_context *ctx) {
	MPT__PLAIN_FLOATS;
	if (mpt__enter(ctx, "mpt_profile_end") && ctx->profile) mpt__profile_stop(ctx);
	return mpt__status_of(ctx);
}

/* ==== What was found ==== */

/* Begins a call that reads a profile; NULL on error. */
static mpt__profile *mpt__profile_read(mpt_context *ctx, const char *call) {
	if (!mpt__enter(ctx, call)) return NULL;
	if (!ctx->profile)
		mpt__error(ctx, STATE, "there is no profile; mpt_profile_begin begins one");
	return (mpt__profile *)ctx->profile;
}

static mpt_profile_row mpt__profile_row_of(
	const mpt__profile_sum *sum, const char *name, const char *phase) {
	mpt_profile_row row;
	row.name = name, row.phase = phase;
	row.calls = sum->calls, row.launches = sum->launches;
	row.seconds = sum->seconds;
	row.flop = sum->flop, row.bytes_read = sum->read, row.bytes_written = sum->written;
	row.least = sum->least;
	return row;
}

static int64_t mpt__profile_places(const mpt__profile *profile, mpt_profile_by by) {
	if (by == MPT_PROFILE_KERNEL) return MPT__KERNEL_COUNT + 1;
	return MPT__PROFILE_PHASES *
		(by == MPT_PROFILE_OP ? (int64_t)MPT__OP_COUNT : profile->module_capacity);
}

static const char *mpt__profile_kernel(int64_t i) {
	return i < MPT__PROFILE_GRAPH ? mpt__kernel_names[i] : "graph";
}

/* Row i of all that there may be. */
static mpt_profile_row mpt__profile_row(const mpt_context *ctx, mpt_profile_by by, int64_t i) {
	const mpt__profile *profile = (const mpt__profile *)ctx->profile;
	const int64_t id = i / MPT__PROFILE_PHASES;
	const int phase = (int)(i % MPT__PROFILE_PHASES);
	const char *name = "-";
	if (by == MPT_PROFILE_KERNEL)
		return mpt__profile_row_of(&profile->kernels[i], mpt__profile_kernel(i), "");
	if (by == MPT_PROFILE_OP) {
		if (id > 0) name = ctx->ops[id].name;
		return mpt__profile_row_of(&profile->ops[id][phase], name, mpt__phase_names[phase]);
	}
	if (id > 0 && id < ctx->path_count) name = ctx->paths[id];
	return mpt__profile_row_of(&profile->modules[id].sums[phase], name, mpt__phase_names[phase]);
}

/* The rows of most time, in that order; returns how many there are. */
static int64_t mpt__profile_sorted(
	const mpt_context *ctx, mpt_profile_by by, mpt_profile_row *rows, int64_t room) {
	const int64_t places = mpt__profile_places((const mpt__profile *)ctx->profile, by);
	int64_t count = 0;
	for (int64_t i = 0; i < places; i++) {
		const mpt_profile_row row = mpt__profile_row(ctx, by, i);
		if (row.launches == 0) continue;
		int64_t at = count < room ? count : room;
		count++;
		for (; at > 0 && rows[at - 1].seconds < row.seconds; at--)
			if (at < room) rows[at] = rows[at - 1];
		if (at < room) rows[at] = row;
	}
	return count;
}

int64_t mpt_profile_rows(
	mpt_context *ctx, mpt_profile_by by, mpt_profile_row *rows, int64_t room) {
	MPT__PLAIN_FLOATS;
	if (!mpt__profile_read(ctx, "mpt_profile_rows")) return -1;
	if ((int)by < MPT_PROFILE_OP || by > MPT_PROFILE_KERNEL || room < 0 || (room > 0 && !rows)) {
		mpt__error(ctx, ARGUMENT,
			"by = %d, room for %lld rows%s: expected 0 to %d, and an array of 0 rows or more",
			(int)by, room, rows ? "" : " at NULL", (int)MPT_PROFILE_KERNEL);
		return -1;
	}
	return mpt__profile_sorted(ctx, by, rows, room);
}

static mpt_profile_total mpt__profile_total_of(const mpt_context *ctx) {
	const mpt__profile *profile = (const mpt__profile *)ctx->profile;
	mpt_profile_total total;
	total.seconds = (profile->on ? mpt__profile_now(ctx) : profile->ended) - profile->began;
	total.steps = (profile->on ? ctx->now.step : profile->last_step) - profile->first_step;
	total.batches = profile->waits.calls;
	total.waiting = profile->waits.seconds;
	total.conversions = profile->conversions.seconds;
	total.all = mpt__profile_row_of(&profile->all, "-", "");
	total.spans = profile->span_count;
	total.left_out = profile->left_out;
	return total;
}

mpt_profile_total mpt_get_profile_total(mpt_context *ctx) {
	MPT__PLAIN_FLOATS;
	mpt_profile_total total;
	mpt__zero(total);
	total.all.name = "-", total.all.phase = "";
	if (mpt__profile_read(ctx, "mpt_get_profile_total")) total = mpt__profile_total_of(ctx);
	return total;
}

static const char *mpt__profile_span_name(const mpt_context *ctx, const mpt__profile_span *span) {
	static const char *const names[] = {"step", NULL, NULL, NULL, "wait", "batch"};
	return span->kind == MPT_SPAN_MODULE ? mpt__path_text(ctx, span->id)
		: span->kind == MPT_SPAN_OP      ? ctx->ops[span->id].name
		: span->kind == MPT_SPAN_LAUNCH  ? mpt__profile_kernel(span->id)
										 : names[span->kind];
}

int64_t mpt_profile_spans(
	mpt_context *ctx, void (*each)(void *user, const mpt_profile_span *span), void *user) {
	MPT__PLAIN_FLOATS;
	const mpt__profile *profile = mpt__profile_read(ctx, "mpt_profile_spans");
	if (!profile) return -1;
	if (!each) return mpt__error(ctx, ARGUMENT, "each is NULL"), -1;
	for (int64_t i = 0; i < profile->span_count; i++) {
		const mpt__profile_span *from = &profile->spans[i];
		const double now = profile->last > from->start ? profile->last : from->start;
		mpt_profile_span span;
		span.kind = (mpt_span_kind)from->kind;
		span.name = mpt__profile_span_name(ctx, from);
		span.phase = from->kind == MPT_SPAN_STEP || from->kind > MPT_SPAN_LAUNCH
			? ""
			: mpt__phase_names[from->phase];
		span.thread = from->thread;
		span.step = from->step;
		span.start = from->start - profile->began;
		span.seconds = (from->end < from->start ? now : from->end) - from->start;
		span.flop = from->flop;
		span.bytes_read = from->read, span.bytes_written = from->written;
		span.memory = from->memory;
		each(user, &span);
	}
	return profile->span_count;
}

/* ==== As text ==== */

/* A number at the right of so many columns. */
static void mpt__profile_cell(mpt__text *out, int width, double value) {
	char cell[32];
	for (int n = (int)mpt__format_text(cell, sizeof cell, "%.4g", value); n < width; n++)
		mpt__write_text(out, " ");
	mpt__write_text(out, "%s", cell);
}

static void mpt__profile_words(mpt__text *out, int width, const char *text) {
	mpt__write_text(out, "%s", text);
	for (int n = (int)strlen(text); n < width; n++) mpt__write_text(out, " ");
}

/* A quotient that may be of nothing. */
static double mpt__profile_rate(double amount, double of) { return of > 0 ? amount / of : 0; }

static void mpt__profile_table(
	const mpt_context *ctx, mpt__text *out, mpt_profile_by by, const char *title) {
	static const int widths[] = {8, 9, 10, 8, 10, 10, 10, 10, 13};
	mpt_profile_row rows[MPT__PROFILE_TEXT_ROWS];
	const int64_t count = mpt__profile_sorted(ctx, by, rows, MPT__PROFILE_TEXT_ROWS);
	const mpt__profile *profile = (const mpt__profile *)ctx->profile;
	const double all = profile->all.seconds;
	const bool ceilings = profile->all.least > 0;
	mpt__write_text(out, "\n");
	mpt__profile_words(out, 36, title);
	mpt__write_text(out, "   calls launches        ms       %%     GFLOP   GFLOP/s        MB");
	mpt__write_text(out, "      GB/s%s\n", ceilings ? " % of ceiling" : "");
	for (int64_t i = 0; i < count && i < MPT__PROFILE_TEXT_ROWS; i++) {
		const mpt_profile_row *row = &rows[i];
		const double bytes = row->bytes_read + row->bytes_written;
		mpt__profile_words(out, 26, row->name);
		mpt__write_text(out, " ");
		mpt__profile_words(out, 9, row->phase);
		const double cells[] = {(double)row->calls, (double)row->launches, 1e3 * row->seconds,
			mpt__profile_rate(100 * row->seconds, all), 1e-9 * row->flop,
			mpt__profile_rate(1e-9 * row->flop, row->seconds), 1e-6 * bytes,
			mpt__profile_rate(1e-9 * bytes, row->seconds),
			mpt__profile_rate(100 * row->least, row->seconds)};
		for (int k = 0; k < 8 + ceilings; k++) mpt__profile_cell(out, widths[k], cells[k]);
		mpt__write_text(out, "\n");
	}
	if (count > MPT__PROFILE_TEXT_ROWS)
		mpt__write_text(out, "and %lld more\n", count - MPT__PROFILE_TEXT_ROWS);
}

size_t mpt_profile_text(mpt_context *ctx, char *text, size_t size) {
	MPT__PLAIN_FLOATS;
	mpt__text out = mpt__text_make(text, size);
	if (!mpt__profile_read(ctx, "mpt_profile_text")) return 0;
	const mpt_profile_total total = mpt__profile_total_of(ctx);
	const double percent = mpt__profile_rate(100, total.seconds);
	mpt__write_text(&out,
		"%lld steps in %.4g s: %.3g %% in launches (%.3g %% casts and derived forms), %.3g %% "
		"waiting for %lld batches, %.3g %% between them\n",
		total.steps, total.seconds, percent * total.all.seconds, percent * total.conversions,
		percent * total.waiting, total.batches,
		percent * (total.seconds - total.all.seconds - total.waiting));
	mpt__profile_table(ctx, &out, MPT_PROFILE_OP, "op");
	mpt__profile_table(ctx, &out, MPT_PROFILE_MODULE, "module");
	mpt__profile_table(ctx, &out, MPT_PROFILE_KERNEL, "kernel");
	return out.length;
}

/* ----
 * watch/flight.c: the flight recorder: a log of what every step of a training was, small enough to
 * be kept always, and the comparison of a training with such a log.
 *
 * A log is a row of pieces: a mark, the size of what follows, that, and a hash of all of it;
 * numbers are little-endian. The first piece says how the training was made, each other one holds
 * some steps. A step is a sum of what its updates wrote, one of what came from outside, and, at the
 * level of ops, two bytes for each operand that a launch wrote. A file is data: what it claims is
 * checked before it is believed, and a tail that is cut or damaged ends it.
 * ---- */

enum {
	MPT__FLIGHT_FORMAT = 1,
	MPT__FLIGHT_HEADER = 0x4654504d,	/* "MPTF" */
	MPT__FLIGHT_BLOCK = 0x4254504d,		/* "MPTB" */
	MPT__FLIGHT_STATED = 24,			/* bytes before the level's name */
	MPT__FLIGHT_BEFORE = 36,			/* bytes of a block's numbers, before its steps */
	MPT__FLIGHT_STEP = 8,				/* bytes of a step, before its sums */
	MPT__FLIGHT_SUMS = 65535
};

/* Where a step lies in a log. */
typedef struct {
	int64_t step, at;
} mpt__flight_place;

typedef struct mpt__flight {
	mpt_flight_level level;
	int64_t most;	/* steps of a block */
	bool open, repeats, replays, failed;
	/* the step under way */
	int64_t step, count, sums_capacity;
	uint64_t state, batch;
	uint16_t *sums;
	int64_t *seen;	/* by storage: the step that wrote it, or has read it */
	int64_t seen_capacity;
	/* the file being written, and its block under way */
	void *file;
	int64_t position, length, capacity, first, steps;
	uint8_t *block;
	/* the log that is compared with */
	uint8_t *log;
	size_t log_bytes;
	mpt__flight_place *places;
	int64_t place_count, place_capacity;
	const uint8_t *expected;	/* of the step; NULL: the log has none */
	char isa[24];
	uint64_t seed;
	mpt_flight_report report;
	char path[MPT__PATH_SIZE];
} mpt__flight;

/* ==== Sums ==== */

static void mpt__flight_put(uint8_t *to, uint64_t value, size_t bytes) {
	for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(value >> (8 * i));
}

/* Each step of a lane is one to one, so that no change of a single word is ever lost in it. */
static uint64_t mpt__flight_words(uint64_t hash, const uint8_t *p, size_t n) {
	const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
	uint64_t a = hash, b = hash + 1, c = hash + 2, d = hash + 3, w[4];
	for (; n >= sizeof w; n -= sizeof w, p += sizeof w) {
		memcpy(w, p, sizeof w);
		a = (a + w[0]) * odd, b = (b + w[1]) * odd;
		c = (c + w[2]) * odd, d = (d + w[3]) * odd;
	}
	hash = mpt__hash_u64(mpt__hash_u64(mpt__hash_u64(a, b), c), d);
	return n > 0 ? mpt__hash_bytes(hash, p, n) : hash;
}

/* Little-endian elements of which all NaN become one: their sign and rest differ by machine. */
static void mpt__flight_one_nan(uint8_t *p, size_t n, size_t size, int dtype) {
	const uint64_t infinity = dtype == MPT_F32 ? 0x7f800000u
		: dtype == MPT_F16                     ? 0x7c00u
		: dtype == MPT_BF16                    ? 0x7f80u
											   : UINT64_C(0x7ff0000000000000);
	const uint64_t sign = UINT64_C(1) << (8 * size - 1);
	if (dtype != MPT_F32 && dtype != MPT_F64 && !mpt__is_low(dtype)) return;
	for (; n >= size; n -= size, p += size)
		if ((mpt__load_little_endian(p, size) & ~sign) > infinity)
			mpt__flight_put(p, infinity + 1, size);
}

/* The same of what is first put into the order of a file, with one NaN. */
static uint64_t mpt__flight_words_plain(
	uint64_t hash, const uint8_t *p, size_t n, size_t size, int dtype) {
	const uint64_t odd = UINT64_C(0x9e3779b97f4a7c15);
	uint64_t lane[4] = {hash, hash + 1, hash + 2, hash + 3};
	uint8_t some[32];
	for (; n >= sizeof some; n -= sizeof some, p += sizeof some) {
		memcpy(some, p, sizeof some);
		mpt__file_order(some, sizeof some, size);
		mpt__flight_one_nan(some, sizeof some, size, dtype);
		for (int k = 0; k < 4; k++)
			lane[k] = (lane[k] + mpt__load_little_endian(some + 8 * k, 8)) * odd;
	}
	hash = mpt__hash_u64(mpt__hash_u64(mpt__hash_u64(lane[0], lane[1]), lane[2]), lane[3]);
	memcpy(some, p, n);
	mpt__file_order(some, n, size);
	mpt__flight_one_nan(some, n, size, dtype);
	return n > 0 ? mpt__hash_bytes(hash, some, n) : hash;
}

/* Levels whose bits are the same everywhere. */
static bool mpt__flight_portable(const char *isa) {
	return strcmp(isa, "portable") == 0 || strcmp(isa, "ref") == 0;
}

/* Dimensions that move, by the way that they go through memory, the widest first; the innermost
   ones that lie without gaps become one. Returns how many there are. */
static int mpt__flight_dims(const mpt__operand *o, int64_t *shape, int64_t *stride) {
	int rank = 0;
	for (int d = 0; d < o->rank; d++) {
		int to = rank;
		if (o->shape[d] == 1 || o->stride[d] == 0) continue;
		for (; to > 0 && stride[to - 1] < o->stride[d]; to--)
			shape[to] = shape[to - 1], stride[to] = stride[to - 1];
		shape[to] = o->shape[d], stride[to] = o->stride[d];
		rank++;
	}
	while (rank > 1 && stride[rank - 2] == shape[rank - 1] * stride[rank - 1]) {
		shape[rank - 2] *= shape[rank - 1];
		stride[rank - 2] = stride[rank - 1];
		rank--;
	}
	return rank;
}

/* A sum of the elements that an operand has, in the order of memory. */
static uint64_t mpt__flight_sum(mpt_context *ctx, const mpt__operand *o) {
	const size_t size = mpt_dtype_size((mpt_dtype)o->dtype);
	const uint8_t *data = (const uint8_t *)ctx->data[o->storage];
	int64_t shape[MPT_MAX_RANK], stride[MPT_MAX_RANK], at[MPT_MAX_RANK] = {0};
	uint64_t hash = size;
	for (int d = 0; d < o->rank; d++)
		if (o->shape[d] == 0) return hash;
	int outer = mpt__flight_dims(o, shape, stride);
	int64_t run = outer > 0 && stride[outer - 1] == 1 ? shape[--outer] : 1, offset = o->offset;
	const bool plain = mpt__big_endian() || mpt__flight_portable(ctx->isa_name);
	while (data) {
		const uint8_t *from = data + offset * (int64_t)size;
		int d = outer - 1;
		hash = plain ? mpt__flight_words_plain(hash, from, (size_t)run * size, size, o->dtype)
					 : mpt__flight_words(hash, from, (size_t)run * size);
		for (; d >= 0; d--) {
			offset += stride[d];
			if (++at[d] < shape[d]) break;
			offset -= shape[d] * stride[d];
			at[d] = 0;
		}
		if (d < 0) break;
	}
	return hash;
}

/* ==== Numbers of a log ==== */

#define mpt__flight_get(from, bytes) mpt__load_little_endian(from, bytes)

/* ==== Writing ==== */

/* What failed is said once, and by mpt_flight_end; a training does not fail for its log. */
static void mpt__flight_write(mpt_context *ctx, mpt__flight *flight, uint32_t mark, size_t n) {
	const mpt_io *io = mpt__io(&ctx->base);
	uint8_t *piece = flight->block;
	if (flight->failed || !flight->file) return;
	mpt__flight_put(piece, mark, 4);
	mpt__flight_put(piece + 4, n, 4);
	mpt__flight_put(piece + 8 + n, mpt__hash_bytes(0, piece, 8 + n), 8);
	flight->failed = !io->write || io->write(io->user, flight->file, piece, n + 16) != n + 16 ||
		!io->flush || !io->flush(io->user, flight->file);
	flight->position += (int64_t)n + 16;
	if (flight->failed)
		mpt__log(&ctx->base, MPT_LOG_WARNING, "the flight log %s ends before step %lld: %s",
			flight->path, flight->first, mpt__io_reason(&ctx->base));
}

/* The block under way: its first step, how many, the loss scale, updates skipped so far. */
static void mpt__flight_flush(mpt_context *ctx, mpt__flight *flight) {
	const mpt__object_table *table = &ctx->objects[MPT__SCALER];
	double scale = 1;
	int64_t skipped = 0;
	uint64_t bits;
	if (flight->steps == 0) return;
	for (int64_t i = table->count - 1; i > 0; i--) {
		const mpt__scaler *scaler = (const mpt__scaler *)table->rows[i].object;
		if (scaler) scale = scaler->seen.scale, skipped = scaler->seen.skipped;
	}
	memcpy(&bits, &scale, 8);
	mpt__flight_put(flight->block + 8, (uint64_t)flight->first, 8);
	mpt__flight_put(flight->block + 16, (uint64_t)flight->steps, 4);
	mpt__flight_put(flight->block + 20, bits, 8);
	mpt__flight_put(flight->block + 28, (uint64_t)skipped, 8);
	mpt__flight_write(ctx, flight, MPT__FLIGHT_BLOCK, (size_t)flight->length - 8);
	flight->length = MPT__FLIGHT_BEFORE;
	flight->steps = 0;
}

/* Room for a step of `count` sums behind the block's, at *to; false with an error recorded. */
static bool mpt__flight_room(
	mpt_context *ctx, mpt__flight *flight, int64_t step, int64_t count, uint8_t **to) {
	const int64_t n = MPT__FLIGHT_STEP + 2 * count;
	if (flight->steps == flight->most || step != flight->first + flight->steps)
		mpt__flight_flush(ctx, flight);
	if (flight->steps == 0) flight->first = step;
	if (!mpt__room(ctx, flight->block, flight->capacity, flight->length + n + 8)) return false;
	*to = flight->block + flight->length;
	flight->length += n;
	flight->steps++;
	return true;
}

static void mpt__flight_keep(mpt_context *ctx, mpt__flight *flight) {
	uint8_t *to;
	if (!mpt__flight_room(ctx, flight, flight->step, flight->count, &to)) return;
	mpt__flight_put(to, flight->state, 4);
	mpt__flight_put(to + 4, flight->batch, 2);
	mpt__flight_put(to + 6, (uint64_t)flight->count, 2);
	for (int64_t i = 0; i < flight->count; i++)
		mpt__flight_put(to + MPT__FLIGHT_STEP + 2 * i, flight->sums[i], 2);
	if (flight->steps == flight->most) mpt__flight_flush(ctx, flight);
}

/* ==== Reading ==== */

/* The payload of the piece at *at, of *n bytes; NULL where the log ends or is damaged. */
static const uint8_t *mpt__flight_piece(
	const mpt__flight *flight, size_t *at, uint32_t mark, size_t *n) {
	const uint8_t *piece = flight->log + *at;
	const size_t left = flight->log_bytes - *at;
	if (left < 16 || mpt__flight_get(piece, 4) != mark) return NULL;
	*n = (size_t)mpt__flight_get(piece + 4, 4);
	if (*n > left - 16 || mpt__flight_get(piece + 8 + *n, 8) != mpt__hash_bytes(0, piece, 8 + *n))
		return NULL;
	*at += *n + 16;
	return piece + 8;
}

/* The places of a block's steps; those of a step that was done again count, and none behind it. */
static bool mpt__flight_steps(
	mpt_context *ctx, mpt__flight *flight, const uint8_t *block, size_t n) {
	if (n < MPT__FLIGHT_BEFORE - 8) return false;
	const int64_t first = (int64_t)mpt__flight_get(block, 8);
	const int64_t steps = (int64_t)mpt__flight_get(block + 8, 4);
	if (first < 1 || first > MPT__MOST_COUNTED) return false;
	while (flight->place_count > 0 && flight->places[flight->place_count - 1].step >= first)
		flight->place_count--;
	size_t at = MPT__FLIGHT_BEFORE - 8;
	for (int64_t i = 0; i < steps; i++) {
		if (n - at < MPT__FLIGHT_STEP) return false;
		const size_t bytes = MPT__FLIGHT_STEP + 2 * (size_t)mpt__flight_get(block + at + 6, 2);
		if (n - at < bytes ||
			!mpt__room(ctx, flight->places, flight->place_capacity, flight->place_count + 1))
			return false;
		mpt__flight_place *place = &flight->places[flight->place_count++];
		place->step = first + i;
		place->at = block + at - flight->log;
		at += bytes;
	}
	return true;
}

/* Reads a log of a training of this seed; its bytes stay. False with an error recorded. */
static bool mpt__flight_read(mpt_context *ctx, mpt__flight *flight, mpt__reader *file) {
	static const uint8_t none[1] = {0};
	size_t at = 0, n = 0;
	if (file->size >= 16) {
		flight->log = mpt__reader_rest(file, none, 0, MPT_MEMORY_DATA);
		if (!flight->log) return false;
		flight->log_bytes = (size_t)file->size;
	}
	const uint8_t *piece =
		flight->log ? mpt__flight_piece(flight, &at, MPT__FLIGHT_HEADER, &n) : NULL;
	if (!piece || n < MPT__FLIGHT_STATED || mpt__flight_get(piece, 4) != MPT__FLIGHT_FORMAT ||
		n - MPT__FLIGHT_STATED >= sizeof flight->isa)
		return mpt__reject(ctx, FORMAT, "%s: it is no flight log", flight->path);
	flight->level = mpt__flight_get(piece + 4, 4) ? MPT_FLIGHT_OPS : MPT_FLIGHT_STEPS;
	flight->seed = mpt__flight_get(piece + 8, 8);
	memcpy(flight->isa, piece + MPT__FLIGHT_STATED, n - MPT__FLIGHT_STATED);
	if (flight->seed != ctx->config.seed)
		return mpt__reject(ctx, FORMAT, "%s: its training has seed %lld, this one %lld",
			flight->path, (int64_t)flight->seed, (int64_t)ctx->config.seed);
	while ((piece = mpt__flight_piece(flight, &at, MPT__FLIGHT_BLOCK, &n)) != NULL)
		if (!mpt__flight_steps(ctx, flight, piece, n)) break;
	return mpt__ok(ctx);
}

static const uint8_t *mpt__flight_find(const mpt__flight *flight, int64_t step) {
	int64_t low = 0, high = flight->place_count;
	while (low < high) {
		const int64_t middle = low + (high - low) / 2;
		if (flight->places[middle].step < step)
			low = middle + 1;
		else
			high = middle;
	}
	return low < flight->place_count && flight->places[low].step == step
		? flight->log + flight->places[low].at
		: NULL;
}

/* ==== Comparing ==== */

/* The path of the parameter that a launch reads, or "". */
static const char *mpt__flight_parameter(mpt_context *ctx, const mpt__launch *launch) {
	for (int i = 0; i < launch->n_operands; i++) {
		const mpt__operand *o = &launch->operand[i];
		if (!o->storage || o->access != MPT__READ) continue;
		for (int64_t k = 0; k < ctx->parameter_count; k++) {
			const mpt__parameter *parameter = &ctx->parameters[k];
			if (!parameter->live || parameter->offset != o->offset) continue;
			const mpt__block *block = &ctx->blocks[parameter->block];
			if (o->storage == block->values || o->storage == block->form[0] ||
				o->storage == block->form[1])
				return parameter->path ? parameter->path : "";
		}
	}
	return "";
}

/* The first launch that wrote something else than the log says. */
static void mpt__flight_differs(
	mpt_context *ctx, mpt__flight *flight, const mpt__launch *launch, int operand) {
	mpt_flight_report *report = &flight->report;
	const mpt__operand *o = &launch->operand[operand];
	const uint32_t record = flight->repeats ? 0 : launch->op_record;
	const char *path = mpt__path_text(ctx, record ? ctx->records[record]->path : ctx->path);
	const char *parameter = mpt__flight_parameter(ctx, launch);
	const char *op = launch->op ? ctx->ops[launch->op].name : mpt__kernel_names[launch->kernel];
	const mpt_shape shape = mpt__operand_shape(o);
	const bool updates = mpt__kernel_effects[launch->kernel] != 0;
	report->kind = MPT_FLIGHT_OP;
	report->step = flight->step;
	report->launch = flight->count;
	mpt__format_text(report->op, sizeof report->op, "%s", op);
	mpt__format_text(report->module, sizeof report->module, "%s", flight->repeats ? "" : path);
	mpt__format_text(report->parameter, sizeof report->parameter, "%s", parameter);
	mpt__text text = mpt__text_make(report->text, sizeof report->text);
	mpt__write_text(
		&text, "step %lld: %s of %s", flight->step, mpt__phase_names[launch->phase], op);
	if (*report->module) mpt__write_text(&text, ", module %s", path);
	mpt__write_text(&text,
		" (kernel %s): what it wrote, operand %d, a %D tensor %S, is another than in %s",
		mpt__kernel_names[launch->kernel], operand, o->dtype, &shape, flight->path);
	if (updates)
		mpt__write_text(&text, "; gradients, or what the optimizer keeps, may have been others");
	else if (*parameter)
		mpt__write_text(&text, "; it reads %s, which may have been another", parameter);
}

/* What a whole step was, where no op of it was named. */
static void mpt__flight_compare(mpt_context *ctx, mpt__flight *flight) {
	const uint8_t *log = flight->expected;
	mpt_flight_report *report = &flight->report;
	if (!log || (report->kind && report->step != flight->step)) return;
	const bool batch = mpt__flight_get(log + 4, 2) != (flight->batch & 0xffff);
	const bool state = mpt__flight_get(log, 4) != (flight->state & 0xffffffff);
	if (batch) {
		report->kind = MPT_FLIGHT_BATCH;
		report->step = flight->step;
		mpt__format_text(report->text, sizeof report->text,
			"step %lld: its batch, or what else came from outside, is another than in %s",
			flight->step, flight->path);
	} else if (state && !report->kind) {
		report->kind = MPT_FLIGHT_STATE;
		report->step = flight->step;
		mpt__format_text(report->text, sizeof report->text,
			"step %lld: what its updates wrote is another than in %s%s", flight->step, flight->path,
			flight->level == MPT_FLIGHT_OPS ? "" : ", which names no ops (MPT_FLIGHT_STEPS)");
	}
	if (report->kind)
		mpt__log(&ctx->base, MPT_LOG_WARNING, "%s", report->text);
	else
		report->steps++;
}

/* ==== While steps run ==== */

/* Casts of weights are made when they are wanted, which a recording of a step changes. */
static bool mpt__flight_passes(const mpt_context *ctx, const mpt__launch *launch) {
	if (launch->kernel != MPT__K_COPY) return false;
	for (int64_t i = 0; i < ctx->block_count; i++)
		for (int k = 0; k < 2 && ctx->blocks[i].live; k++)
			if (ctx->blocks[i].form[k] && ctx->blocks[i].form[k] == launch->operand[1].storage)
				return true;
	return false;
}

/* Whether the step has not met a storage yet; it has now. */
static bool mpt__flight_meets(mpt_context *ctx, mpt__flight *flight, uint32_t id) {
	const int64_t before = flight->seen_capacity;
	if ((int64_t)id >= before) {
		if (!mpt__room(ctx, flight->seen, flight->seen_capacity, (int64_t)id + 1)) return false;
		memset(flight->seen + before, 0,
			(size_t)(flight->seen_capacity - before) * sizeof *flight->seen);
	}
	const bool first = flight->seen[id] != flight->step;
	flight->seen[id] = flight->step;
	return first;
}

static void mpt__flight_wrote(
	mpt_context *ctx, mpt__flight *flight, const mpt__launch *launch, int operand, bool effect) {
	const uint64_t sum = mpt__flight_sum(ctx, &launch->operand[operand]);
	const uint16_t kept = (uint16_t)(sum >> 48);
	const uint8_t *log = flight->expected;
	if (effect) flight->state = mpt__hash_u64(flight->state, sum);
	if (flight->level != MPT_FLIGHT_OPS || flight->count == MPT__FLIGHT_SUMS) return;
	if (log && !flight->report.kind && flight->count < (int64_t)mpt__flight_get(log + 6, 2) &&
		mpt__flight_get(log + MPT__FLIGHT_STEP + 2 * flight->count, 2) != kept)
		mpt__flight_differs(ctx, flight, launch, operand);
	if (!mpt__room(ctx, flight->sums, flight->sums_capacity, flight->count + 1)) return;
	flight->sums[flight->count++] = kept;
}

static void mpt__flight_launch(MPT__HEARS) {
	mpt__flight *flight = (mpt__flight *)user;
	const mpt__launch *launch = (const mpt__launch *)what;
	const bool effect = mpt__kernel_effects[launch->kernel] != 0;
	if (!flight->open || mpt__flight_passes(ctx, launch)) return;
	for (int i = 0; i < launch->n_operands; i++) {
		const mpt__operand *o = &launch->operand[i];
		if (!o->storage || o->access != MPT__READ || launch->phase != MPT__FORWARD ||
			ctx->storages[o->storage].kind != MPT_MEMORY_ACTIVATION)
			continue;
		if (mpt__flight_meets(ctx, flight, o->storage))
			flight->batch += mpt__flight_sum(ctx, o) >> 48;
	}
	for (int i = 0; i < launch->n_operands; i++) {
		const mpt__operand *o = &launch->operand[i];
		if (!o->storage || o->access == MPT__READ) continue;
		mpt__flight_meets(ctx, flight, o->storage);
		if (effect || flight->level == MPT_FLIGHT_OPS)
			mpt__flight_wrote(ctx, flight, launch, i, effect);
	}
}

static void mpt__flight_open(MPT__HEARS) {
	mpt__flight *flight = (mpt__flight *)user;
	flight->open = true;
	flight->repeats = what != NULL;
	flight->step = ctx->now.step;
	flight->count = 0;
	flight->state = flight->batch = 0;
	flight->expected = flight->replays ? mpt__flight_find(flight, flight->step) : NULL;
}

static void mpt__flight_close(MPT__HEARS) {
	mpt__flight *flight = (mpt__flight *)user;
	(void)what;
	if (!flight->open) return;
	flight->open = false;
	if (flight->replays)
		mpt__flight_compare(ctx, flight);
	else
		mpt__flight_keep(ctx, flight);
}

static const struct {
	mpt__event event;
	mpt__hear hear;
} mpt__flight_hears[] = {{MPT__LAUNCHED, mpt__flight_launch}, {MPT__STEP_BEGAN, mpt__flight_open},
	{MPT__STEP_ENDED, mpt__flight_close}, {MPT__REPEAT_BEGAN, mpt__flight_open},
	{MPT__REPEAT_ENDED, mpt__flight_close}};
#define MPT__FLIGHT_HEARS (int)(sizeof mpt__flight_hears / sizeof mpt__flight_hears[0])

/* ==== API ==== */

static void mpt__flight_drop_log(mpt_context *ctx, mpt__flight *flight) {
	if (flight->log) mpt__release(&ctx->base, flight->log, flight->log_bytes, MPT_MEMORY_DATA);
	mpt__room_free(ctx, flight->places, flight->place_capacity);
	flight->log = NULL, flight->places = NULL;
	flight->place_count = flight->place_capacity = 0;
}

/* Ends it, with what it has still to write; false if not all of it was written. */
static bool mpt__flight_done(mpt_context *ctx) {
	mpt__flight *flight = (mpt__flight *)ctx->flight;
	const mpt_io *io = mpt__io(&ctx->base);
	for (int i = 0; i < MPT__FLIGHT_HEARS; i++)
		mpt__listen_no_more(ctx, mpt__flight_hears[i].event, mpt__flight_hears[i].hear);
	if (flight->file) {
		mpt__flight_flush(ctx, flight);
		if (!io->close || !io->close(io->user, flight->file)) flight->failed = true;
	}
	const bool good = !flight->failed;
	mpt__flight_drop_log(ctx, flight);
	mpt__room_free(ctx, flight->sums, flight->sums_capacity);
	mpt__room_free(ctx, flight->seen, flight->seen_capacity);
	mpt__room_free(ctx, flight->block, flight->capacity);
	mpt__host_free(ctx, flight, sizeof *flight);
	ctx->flight = NULL;
	ctx->flight_end = NULL;
	return good;
}

static void mpt__flight_free(mpt_context *ctx) {
	if (ctx->flight_end) ctx->flight_end(ctx);
}

/* A recorder of this path, if there can be one now. */
static mpt__flight *mpt__flight_make(mpt_context *ctx, const char *path) {
	mpt__flight *flight = (mpt__flight *)ctx->flight;
	if (mpt__no_files(ctx)) return NULL;
	if (!path || !*path || strlen(path) >= MPT__PATH_SIZE)
		return mpt__error(ctx, ARGUMENT, "path is %s", path && *path ? "too long" : "empty"),
			   (mpt__flight *)NULL;
	if (ctx->step_depth)
		return mpt__error(ctx, STATE, "step %lld is open; call it between steps", ctx->now.step),
			   (mpt__flight *)NULL;
	if (flight)
		return mpt__error(ctx, STATE, "%s is under way; mpt_flight_end ends it", flight->path),
			   (mpt__flight *)NULL;
	if (!ctx->backend.synchronous || mpt__is_dry(&ctx->base))
		return mpt__error(ctx, UNSUPPORTED,
				   "flights are recorded and compared on the CPU alone, and not in dry contexts"),
			   (mpt__flight *)NULL;
	flight = (mpt__flight *)mpt__host_new(ctx, sizeof *flight);
	if (!flight) return NULL;
	mpt__format_text(flight->path, sizeof flight->path, "%s", path);
	flight->length = MPT__FLIGHT_BEFORE;
	ctx->flight = flight;
	ctx->flight_end = mpt__flight_done;
	return flight;
}

static mpt_status mpt__flight_listen(mpt_context *ctx, mpt__flight *flight) {
	for (int i = 0; i < MPT__FLIGHT_HEARS && mpt__ok(ctx); i++)
		mpt__listen(ctx, mpt__flight_hears[i].event, mpt__flight_hears[i].hear, flight);
	if (!mpt__ok(ctx)) mpt__flight_done(ctx);
	return ctx->base.status;
}

/* The first piece. */
static void mpt__flight_state_training(mpt_context *ctx, mpt__flight *flight) {
	const char *isa = ctx->isa_name;
	const size_t n = strlen(isa);
	uint8_t *to = flight->block + 8;
	mpt__flight_put(to, MPT__FLIGHT_FORMAT, 4);
	mpt__flight_put(to + 4, flight->level == MPT_FLIGHT_OPS, 4);
	mpt__flight_put(to + 8, ctx->config.seed, 8);
	mpt__flight_put(to + 16, MPTRAIN_VERSION, 4);
	mpt__flight_put(to + 20, (uint64_t)ctx->config.threads, 4);
	memcpy(to + MPT__FLIGHT_STATED, isa, n);
	mpt__flight_write(ctx, flight, MPT__FLIGHT_HEADER, MPT__FLIGHT_STATED + n);
}

/* Writes what stays of the log that was there: the steps up to now. */
static void mpt__flight_go_on(mpt_context *ctx, mpt__flight *flight) {
	for (int64_t i = 0; i < flight->place_count && mpt__ok(ctx); i++) {
		const uint8_t *from = flight->log + flight->places[i].at;
		const int64_t count = (int64_t)mpt__flight_get(from + 6, 2);
		uint8_t *to;
		if (flight->places[i].step > ctx->now.step ||
			!mpt__flight_room(ctx, flight, flight->places[i].step, count, &to))
			break;
		memcpy(to, from, (size_t)(MPT__FLIGHT_STEP + 2 * count));
	}
	mpt__flight_flush(ctx, flight);
	mpt__flight_drop_log(ctx, flight);
}

mpt_status mpt_flight_begin(mpt_context *ctx, const char *path, const mpt_flight_config *config) {
	const mpt_flight_config used = config ? *config : mpt_flight_config_default();
	mpt__reader file;
	if (!mpt__enter(ctx, "mpt_flight_begin")) return mpt__status_of(ctx);
	if (used.block < 1 || used.block > 65536 || (unsigned)used.level > MPT_FLIGHT_OPS)
		return mpt__error(ctx, ARGUMENT, "level %d, block %lld: expected a level and 1 to 65536",
			(int)used.level, used.block);
	mpt__flight *flight = mpt__flight_make(ctx, path);
	if (!flight) return ctx->base.status;
	const mpt_io *io = mpt__io(&ctx->base);
	void *there = io->open ? io->open(io->user, path, 'r') : NULL;
	if (there) {
		if (io->close) io->close(io->user, there);
		if (mpt__reader_open(&file, ctx, path)) {
			mpt__flight_read(ctx, flight, &file);
			mpt__reader_close(&file);
			if (mpt__ok(ctx) && flight->level != used.level)
				mpt__error(ctx, ARGUMENT, "%s: it was recorded at the other level", path);
		}
	}
	flight->level = used.level;
	flight->most = used.block;
	if (mpt__ok(ctx) && mpt__room(ctx, flight->block, flight->capacity, 256)) {
		flight->file = mpt__io(&ctx->base)->open(io->user, path, 'w');
		if (!flight->file)
			mpt__error(ctx, IO, "cannot write %s: %s", path, mpt__io_reason(&ctx->base));
	}
	if (mpt__ok(ctx)) {
		mpt__flight_state_training(ctx, flight);
		mpt__flight_go_on(ctx, flight);
	}
	return mpt__flight_listen(ctx, flight);
}

mpt_status mpt_flight_replay(mpt_context *ctx, const char *path) {
	mpt__reader file;
	if (!mpt__enter(ctx, "mpt_flight_replay")) return mpt__status_of(ctx);
	mpt__flight *flight = mpt__flight_make(ctx, path);
	if (!flight) return ctx->base.status;
	flight->replays = true;
	if (mpt__reader_open(&file, ctx, path)) {
		mpt__flight_read(ctx, flight, &file);
		mpt__reader_close(&file);
	}
	const char *isa = ctx->isa_name;
	if (mpt__ok(ctx) && strcmp(isa, flight->isa) != 0 &&
		!(mpt__flight_portable(isa) && mpt__flight_portable(flight->isa)))
		mpt__log(&ctx->base, MPT_LOG_WARNING,
			"%s was recorded at level %s, this is %s: bits differ without a fault; they are the "
			"same everywhere with MPT_ISA_PORTABLE",
			path, flight->isa, isa);
	return mpt__flight_listen(ctx, flight);
}

mpt_status mpt_flight_end(mpt_context *ctx, mpt_flight_report *report) {
	if (report) mpt__zero(*report);
	if (!mpt__enter(ctx, "mpt_flight_end")) return mpt__status_of(ctx);
	const mpt__flight *flight = (const mpt__flight *)ctx->flight;
	if (!flight)
		return mpt__error(ctx, STATE,
			"no flight is under way; mpt_flight_begin or mpt_flight_replay begins one");
	if (ctx->step_depth)
		return mpt__error(ctx, STATE, "step %lld is open; call it between steps", ctx->now.step);
	if (report) *report = flight->report;
	char path[MPT__PATH_SIZE];
	mpt__format_text(path, sizeof path, "%s", flight->path);
	if (!mpt__flight_done(ctx)) mpt__error(ctx, IO, "%s: not all of it could be written", path);
	return ctx->base.status;
}

/* ----
 * watch/trace.c: the net seen: which ops a forward pass calls, on what, as a graph.
 *
 * A trace listens to op calls while the net runs once. Values are known by their tensors; storages
 * are held meanwhile, so that none is taken for a younger one. What a call of a user's op does
 * inside is that op's own.
 * ---- */

typedef struct {
	mpt__id id;
	mpt_node *nodes;
	int64_t count, capacity;
} mpt__graph;

MPT__HANDLES(graph, MPT__GRAPH)

/* A tensor that a node has made. */
typedef struct {
	const mpt__tensor *tensor;
	uint32_t generation, storage, version;	/* version: of the storage */
	int64_t offset;
	mpt_edge edge;
} mpt__traced;

typedef struct {
	mpt_context *context;
	const mpt__module *net;
	mpt__graph *graph;
	mpt__traced *values;
	int64_t count, capacity;
	double flop;	/* of launches since the last op */
	int user_ops;	/* that run, each within the one before */
	uint32_t written;	/* the storage that the op under way has written in place */
	bool changed;		/* an input of it is not what its node made */
} mpt__tracing;

/* ==== Nodes ==== */

static void mpt__graph_end(mpt_context *ctx, void *object) {
	mpt__graph *graph = (mpt__graph *)object;
	for (int64_t i = 0; i < graph->count; i++) {
		mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].name);
		mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].module);
		mpt__host_text_free(ctx, (char *)(uintptr_t)graph->nodes[i].layer);
		if (graph->nodes[i].kind == MPT_NODE_CONSTANT) mpt_release(graph->nodes[i].value);
	}
	mpt__room_free(ctx, graph->nodes, graph->capacity);
}

/* A node without inputs and outputs; NULL with an error recorded. */
static mpt_node *mpt__tracing_node(mpt__tracing *trace, mpt_node_kind kind, const char *name,
	const char *module, const char *layer) {
	mpt_context *ctx = trace->context;
	mpt__graph *graph = trace->graph;
	if (!mpt__room(ctx, graph->nodes, graph->capacity, graph->count + 1)) return NULL;
	mpt_node *node = &graph->nodes[graph->count++];
	mpt__zero(*node);
	node->kind = kind;
	node->compute = MPT_DTYPE_NONE;
	node->name = mpt__host_text(ctx, name);
	node->module = mpt__host_text(ctx, module);
	node->layer = mpt__host_text(ctx, layer);
	return node->name && node->module && node->layer ? node : NULL;
}

/* Gives the last node an output. */
static void mpt__tracing_output(mpt__tracing *trace, const mpt__tensor *tensor) {
	mpt_context *ctx = trace->context;
	mpt_node *node = &trace->graph->nodes[trace->graph->count - 1];
	if (!mpt__room(ctx, trace->values, trace->capacity, trace->count + 1)) return;
	mpt__traced *value = &trace->values[trace->count++];
	value->tensor = tensor, value->generation = tensor->generation;
	value->storage = tensor->storage, value->offset = tensor->offset;
	value->version = tensor->storage ? ctx->storages[tensor->storage].version : 0;
	value->edge.node = (int)trace->graph->count - 1, value->edge.output = node->outputs;
	if (tensor->storage) ctx->storages[tensor->storage].references++;
	node->dtype[node->outputs] = (mpt_dtype)tensor->dtype;
	node->shape[node->outputs++] = tensor->shape;
}

/* A module's path below the net's. */
static const char *mpt__tracing_path(const mpt__tracing *trace, const mpt__module *module) {
	if (!module || module == trace->net) return "";
	return mpt__relative_path(
		trace->context, trace->net, mpt__path_text(trace->context, module->path));
}

/* The path of a buffer of the net; NULL if a tensor is none. */
static const char *mpt__tracing_buffer(mpt__tracing *trace, const mpt__tensor *tensor) {
	mpt__walk walk;
	mpt__buffer buffer;
	mpt__walk_begin(&walk, trace->context, mpt__module_slot(trace->context, trace->net->id.slot));
	while (mpt__walk_buffer(&walk, &buffer))
		if (buffer.tensor == tensor) return buffer.path;
	return NULL;
}

/* A parameter, a buffer, or a tensor that nothing traced has made. */
static mpt_edge mpt__tracing_source(mpt__tracing *trace, const mpt__tensor *tensor) {
	mpt_context *ctx = trace->context;
	const char *path = tensor->parameter ? ctx->parameters[tensor->parameter - 1].path
										 : mpt__tracing_buffer(trace, tensor);
	const mpt_node_kind kind = tensor->parameter ? MPT_NODE_PARAMETER
		: path                                   ? MPT_NODE_BUFFER
												 : MPT_NODE_CONSTANT;
	const char *name = path ? mpt__relative_path(ctx, trace->net, path) : "constant";
	const char *dot = strrchr(name, '.');
	char holder[MPT__PATH_BYTES];
	mpt__format_text(holder, sizeof holder, "%s", name);
	holder[dot ? dot - name : 0] = '\0';
	mpt_edge edge = {(int)trace->graph->count, 0};
	mpt_node *node = mpt__tracing_node(trace, kind, name, holder, "");
	if (!node) return edge;
	node->trainable = tensor->parameter && (tensor->flags & MPT__REQUIRES_GRAD);
	node->value = mpt__handle(ctx,
		kind == MPT_NODE_CONSTANT ? mpt__tensor_outside(ctx, tensor, MPT__KEPT | MPT__INFERENCE)
								  : tensor);
	mpt__tracing_output(trace, tensor);
	return edge;
}

/* Whether a tensor's memory was written since, by what is no op on that tensor. */
static bool mpt__tracing_stale(const mpt__tracing *trace, const mpt__traced *value) {
	const uint32_t now = value->storage ? trace->context->storages[value->storage].version : 0;
	return value->storage && now != value->version + (value->storage == trace->written);
}

/* Where a tensor comes from. What was detached has its storage from there. */
static mpt_edge mpt__tracing_find(mpt__tracing *trace, const mpt__tensor *tensor) {
	mpt_edge none = {-1, 0};
	if (!tensor) return none;
	for (int64_t i = trace->count; i-- > 0;) {
		const mpt__traced *value = &trace->values[i];
		if (value->tensor != tensor || value->generation != tensor->generation) continue;
		trace->changed = trace->changed || mpt__tracing_stale(trace, value);
		return value->edge;
	}
	for (int64_t i = trace->count; i-- > 0 && !tensor->parameter && tensor->storage;) {
		const mpt__traced *value = &trace->values[i];
		if (value->storage != tensor->storage || value->offset != tensor->offset) continue;
		trace->changed = trace->changed || mpt__tracing_stale(trace, value);
		return value->edge;
	}
	return mpt__tracing_source(trace, tensor);
}

/* ==== Listening ==== */

static void mpt__tracing_launch(MPT__HEARS) {
	mpt__tracing *trace = (mpt__tracing *)user;
	trace->flop += mpt__launch_cost(ctx, (const mpt__launch *)what).flop;
}

static void mpt__tracing_user_op(MPT__HEARS) {
	(void)ctx, (void)what;
	((mpt__tracing *)user)->user_ops++;
}

/* The module whose activation a layer has taken into its own call: the next one beside it. */
static const mpt__module *mpt__tracing_activation(
	mpt_context *ctx, const mpt__module *module, int activation) {
	const mpt__module *above =
		module && module->parent ? mpt__module_slot(ctx, module->parent) : NULL;
	for (int64_t i = 0; above && i + 1 < above->child_count; i++) {
		const mpt__module *next = mpt__module_slot(ctx, above->children[i + 1].slot);
		if (above->children[i].slot == module->id.slot &&
			mpt__layer_rows[next->layer].activation == activation)
			return next;
	}
	return module;
}

/* The last node's results, through an activation that was part of its call, as a node behind it. */
static void mpt__tracing_activate(
	mpt__tracing *trace, const mpt__frame *frame, const mpt__module *module, int activation) {
	static const char *const names[] = {"none", "relu", "gelu", "gelu_tanh", "tanh", "sigmoid"};
	mpt_context *ctx = trace->context;
	const mpt__module *layer = mpt__tracing_activation(ctx, module, activation);
	mpt_node *node = mpt__tracing_node(trace, MPT_NODE_OP, names[activation],
		mpt__tracing_path(trace, layer), layer ? layer->cls.name : "");
	if (!node) return;
	node->inputs = 1;
	node->input[0].node = (int)trace->graph->count - 2;
	mpt__tracing_output(trace, frame->out[0]);
}

static void mpt__tracing_op(MPT__HEARS) {
	mpt__tracing *trace = (mpt__tracing *)user;
	const mpt__frame *frame = (const mpt__frame *)what;
	const bool own = frame->op == MPT__OP_user;
	mpt_edge input[MPT__MAX_INPUTS];
	if (own) trace->user_ops--;
	if (trace->user_ops > 0) return;
	mpt__wait_no_more(ctx);	/* a convolution, which a norm would take in its own launch */
	const mpt__tensor *out = frame->out[0];
	trace->changed = false, trace->written = 0;
	for (int i = 0; i < frame->n_in && out; i++)
		if (frame->in[i] && !frame->is_view && frame->in[i]->storage == out->storage)
			trace->written = out->storage;
	for (int i = 0; i < frame->n_in; i++) input[i] = mpt__tracing_find(trace, frame->in[i]);
	const mpt__op *op = own ? (const mpt__op *)mpt__object_slot(
								  ctx, MPT__USER_OP, (uint32_t)frame->attributes->index[0])
							: NULL;
	const mpt__attributes *told = frame->attributes;
	const int activation = own            ? MPT_ACTIVATION_NONE
		: frame->op == MPT__OP_batch_norm ? told->index[2] != 0	/* relu */
		: frame->n_in > 3                 ? (int)MPT_ACTIVATION_NONE	/* a cell's own, each step */
										  : told->activation;
	const mpt__module *module = ctx->module ? mpt__module_slot(ctx, ctx->module) : NULL;
	mpt_node *node = mpt__tracing_node(trace, own ? MPT_NODE_USER_OP : MPT_NODE_OP,
		op ? op->cls.name : frame->row->name, mpt__tracing_path(trace, module),
		module ? module->cls.name : "");
	if (!node) return;
	node->compute = frame->compute;
	node->changed = trace->changed;
	mpt__copy_dims(node->index, told->index, MPT_MAX_RANK);
	for (int i = 0; i < 2; i++) node->number[i] = told->imm[i];
	node->rank = told->rank, node->activation = told->activation;
	node->reduction = told->reduction;
	node->flop = trace->flop;
	trace->flop = 0;
	node->inputs = frame->n_in;
	for (int i = 0; i < frame->n_in; i++) node->input[i] = input[i];
	for (int i = 0; i < frame->n_out; i++)
		if (frame->out[i]) mpt__tracing_output(trace, frame->out[i]);
	if (activation && frame->out[0]) mpt__tracing_activate(trace, frame, module, activation);
}

/* ==== Tracing ==== */

static bool mpt__tracing_inputs(mpt__tracing *trace, const mpt_tensor *inputs, int n_inputs) {
	for (int i = 0; i < n_inputs; i++) {
		char name[32];
		mpt__format_text(name, sizeof name, n_inputs > 1 ? "input%d" : "input", i + 1);
		const mpt__tensor *tensor = mpt__at(trace->context, inputs[i], "input");
		if (!tensor || !mpt__tracing_node(trace, MPT_NODE_INPUT, name, "", "")) return false;
		mpt__tracing_output(trace, tensor);
	}
	return mpt__ok(trace->context);
}

/* Runs the net; its results become nodes. */
static void mpt__tracing_run(mpt__tracing *trace, mpt_module net, const mpt_tensor *inputs, int n) {
	mpt_context *ctx = trace->context;
	mpt_tensor out[MPT__MAX_OUTPUTS];
	const int n_out = trace->net->cls.n_outputs > 1 ? trace->net->cls.n_outputs : 1;
	if (n_out > MPT__MAX_OUTPUTS) {
		mpt__error(ctx, UNSUPPORTED, "a net of %d outputs; expected at most %d", n_out,
			(int)MPT__MAX_OUTPUTS);
		return;
	}
	if (mpt__listen(ctx, MPT__OP_CALLED, mpt__tracing_op, trace) != MPT_OK ||
		mpt__listen(ctx, MPT__USER_OP_BEGAN, mpt__tracing_user_op, trace) != MPT_OK ||
		mpt__listen(ctx, MPT__LAUNCHED, mpt__tracing_launch, trace) != MPT_OK ||
		mpt_forward_n(net, inputs, n, out, n_out) != MPT_OK)
		return;
	trace->written = 0;
	for (int i = 0; i < n_out; i++) {
		const mpt__tensor *result = mpt__live(ctx, out[i]);
		trace->changed = false;
		const mpt_edge edge = mpt__tracing_find(trace, result);
		char name[32];
		mpt__format_text(name, sizeof name, n_out > 1 ? "output%d" : "output", i + 1);
		mpt_node *node = result ? mpt__tracing_node(trace, MPT_NODE_OUTPUT, name, "", "") : NULL;
		if (!node) continue;
		node->inputs = 1, node->input[0] = edge;
		node->changed = trace->changed;
		mpt__tracing_output(trace, result);
	}
	for (int64_t i = 0; i < trace->count; i++) {
		mpt_node *node = &trace->graph->nodes[trace->values[i].edge.node];
		if (node->kind == MPT_NODE_CONSTANT)
			node->changed = mpt__tracing_stale(trace, &trace->values[i]);
	}
}

/* In inference, with what a forward pass counts as it was. */
static void mpt__tracing_quietly(mpt__tracing *trace, mpt_module net, const mpt_tensor *in, int n) {
	mpt_context *ctx = trace->context;
	const mpt__counters_state now = ctx->now;
	const mpt__module *found = trace->net;
	mpt_scope_begin(ctx);
	mpt_inference_begin(ctx);
	mpt__modes_begin(ctx, mpt__module_slot(ctx, found->id.slot), false);
	if (mpt__tracing_inputs(trace, in, n)) mpt__tracing_run(trace, net, in, n);
	mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__tracing_launch);
	mpt__listen_no_more(ctx, MPT__USER_OP_BEGAN, mpt__tracing_user_op);
	mpt__listen_no_more(ctx, MPT__OP_CALLED, mpt__tracing_op);
	mpt__modes_end(ctx, mpt__module_slot(ctx, found->id.slot));
	mpt_inference_end(ctx);
	mpt_scope_end(ctx);
	ctx->now = now;
	for (int64_t i = 0; i < trace->count; i++)
		if (trace->values[i].storage) mpt__storage_release(ctx, trace->values[i].storage);
	mpt__room_free(ctx, trace->values, trace->capacity);
}

mpt_graph mpt_trace(mpt_module net, const mpt_tensor *inputs, int n_inputs) {
	MPT__PLAIN_FLOATS;
	mpt_context *ctx = net.context;
	mpt__tracing trace;
	mpt__zero(trace);
	trace.context = ctx;
	trace.net = mpt__module_frozen(net, "mpt_trace");
	if (!trace.net) return mpt__graph_handle(ctx, NULL);
	if (!inputs || n_inputs < 1)
		mpt__error(
			ctx, ARGUMENT, "expected an array of 1 input or more, got %d", inputs ? n_inputs : 0);
	else if (ctx->recorder || ctx->in_backward || ctx->sliced || mpt__is_capturing(ctx))
		mpt__error(ctx, STATE,
			"a recording, a captured step or a backward pass is under way; trace before it");
	for (int i = 0; i < n_inputs && mpt__ok(ctx); i++) mpt__at(ctx, inputs[i], "input");
	if (mpt__ok(ctx))
		trace.graph = (mpt__graph *)mpt__object_make(ctx, MPT__GRAPH, sizeof *trace.graph);
	if (!trace.graph) return mpt__graph_handle(ctx, NULL);
	mpt__tracing_quietly(&trace, net, inputs, n_inputs);
	if (mpt__ok(ctx)) return mpt__graph_handle(ctx, trace.graph);
	mpt__object_free(ctx, MPT__GRAPH, trace.graph->id.slot);
	return mpt__graph_handle(ctx, NULL);
}

int mpt_graph_count(mpt_graph graph) {
	const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_count");
	return found ? (int)found->count : -1;
}

const mpt_node *mpt_graph_node(mpt_graph graph, int index) {
	const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_node");
	if (!found) return NULL;
	if (index >= 0 && index < found->count) return &found->nodes[index];
	mpt__error(graph.context, ARGUMENT, "node %d: the graph has %lld of them", index, found->count);
	return NULL;
}

mpt_status mpt_graph_destroy(mpt_graph graph) {
	const mpt__graph *found = mpt__graph_enter(graph, "mpt_graph_destroy");
	if (found) mpt__object_free(graph.context, MPT__GRAPH, found->id.slot);
	return mpt__status_of(graph.context);
}

/* ----
 * watch/gradcheck.c: whether backward agrees with small changes of the inputs.
 * ---- */

enum { MPT__CHECK_INPUTS = 8 };

typedef struct {
	mpt_context *context;
	mpt_check_fn fn;
	void *user;
	mpt_gradcheck_config config;
	mpt_tensor in[MPT__CHECK_INPUTS];
	int n_in;
} mpt__gradcheck;

/* Weights in [-1, 1) for the outputs, so that one number depends on all of them. */
static float mpt__check_weight(int64_t i) {
	return (float)((i * 7919 + 104729) % 2003) / 1001.5f - 1.0f;
}

/* The weighted sum of fn's output; NaN on error. */
static double mpt__check_value(mpt__gradcheck *check) {
	mpt_context *ctx = check->context;
	size_t bytes;
	double sum = 0.0;
	mpt_scope_begin(ctx);
	mpt_no_grad_begin(ctx);
	mpt_tensor out = check->fn(ctx, check->user, check->in, check->n_in);
	const mpt__tensor *found = mpt__enter_at(out, "mpt_gradcheck", "the function's result");
	float *values = found ? mpt__host_values(ctx, found, &bytes) : NULL;
	for (int64_t i = 0; values && i < mpt__tensor_numel(found); i++)
		sum += (double)values[i] * (double)mpt__check_weight(i);
	if (values) mpt__host_free(ctx, values, bytes);
	mpt_no_grad_end(ctx);
	mpt_scope_end(ctx);
	return mpt__ok(ctx) ? sum : MPT__NAN_F64;
}

/* Leaves of the inputs' values, and one backward pass from the function of them. */
static mpt_status mpt__check_backward(mpt__gradcheck *check) {
	mpt_context *ctx = check->context;
	size_t bytes;
	for (int i = 0; i < check->n_in; i++)
		if (mpt__dtype_computes(mpt_get_dtype(check->in[i]))) mpt_requires_grad(check->in[i], true);
	mpt_tensor out = check->fn(ctx, check->user, check->in, check->n_in);
	const mpt__tensor *found = mpt__enter_at(out, "mpt_gradcheck", "the function's result");
	float *weights = found ? mpt__host_values(ctx, found, &bytes) : NULL;
	if (!weights) return ctx->base.status;
	mpt_shape shape = found->shape;
	mpt_dtype dtype = (mpt_dtype)found->dtype;
	for (int64_t i = 0; i < mpt__shape_numel(&shape); i++) weights[i] = mpt__check_weight(i);
	mpt_tensor upstream = mpt_from(ctx, MPT_F32, shape, weights);
	mpt__host_free(ctx, weights, bytes);
	return mpt_backward_from(out, dtype == MPT_F32 ? upstream : mpt_cast(upstream, dtype), false);
}

/* Every slope by elements of input `i`. */
static mpt_status mpt__check_input(mpt__gradcheck *check, int i) {
	mpt_context *ctx = check->context;
	size_t bytes = 0, slope_bytes = 0;
	mpt_tensor leaf = check->in[i];
	const mpt__tensor *found = mpt__enter_at(leaf, "mpt_gradcheck", "an input");
	if (!found) return ctx->base.status;
	mpt_shape shape = found->shape;
	float *values = mpt__host_values(ctx, found, &bytes), *slopes = NULL;
	if (values && mpt_has_grad(leaf))
		slopes = mpt__host_values(ctx, mpt__live(ctx, mpt_grad(leaf)), &slope_bytes);
	for (int64_t k = 0; values && k < mpt__shape_numel(&shape); k++) {
		float value = values[k];
		double side[2], at[2];
		for (int s = 0; s < 2; s++) {
			values[k] = (float)((double)value +
				(s ? 1.0 : -1.0) * check->config.step *
					(value > 1 || value < -1 ? (double)value : 1.0));
			at[s] = (double)values[k];
			check->in[i] = mpt_from(ctx, MPT_F32, shape, values);
			side[s] = mpt__check_value(check);
			mpt_release(check->in[i]);
		}
		values[k] = value;
		double expected = (side[1] - side[0]) / (at[1] - at[0]);
		double got = slopes ? (double)slopes[k] : 0.0;
		double off = got > expected ? got - expected : expected - got;
		double size = expected < 0 ? -expected : expected;
		if (!mpt__ok(ctx)) break;
		if (off <= check->config.atol + check->config.rtol * size) continue;
		mpt__enter(ctx, "mpt_gradcheck");
		mpt__error(ctx, NUMERIC,
			"input %d, element %lld: backward gives %g, small changes of the input give %g", i, k,
			got, expected);
		break;
	}
	check->in[i] = leaf;
	mpt__host_free(ctx, slopes, slope_bytes);
	mpt__host_free(ctx, values, bytes);
	return ctx->base.status;
}

mpt_status mpt_gradcheck(mpt_context *ctx, mpt_check_fn fn, void *user, const mpt_tensor *in,
	int n_in, const mpt_gradcheck_config *config) {
	MPT__PLAIN_FLOATS;
	mpt__gradcheck check;
	if (!mpt__enter(ctx, "mpt_gradcheck")) return mpt__status_of(ctx);
	check.context = ctx, check.fn = fn, check.user = user, check.n_in = n_in;
	check.config = config ? *config : mpt_gradcheck_config_default();
	if (!fn || !in || n_in < 1 || n_in > MPT__CHECK_INPUTS || !(check.config.step > 0.0))
		return mpt__error(ctx, ARGUMENT,
			"expected a function, 1..%d inputs (got %d) and a step > 0 (got %g)",
			(int)MPT__CHECK_INPUTS, in ? n_in : 0, check.config.step);
	mpt_scope_begin(ctx);
	for (int i = 0; i < n_in; i++) {
		mpt__enter(ctx, "mpt_gradcheck");	/* errors have its name, not that of what it calls */
		const mpt__tensor *input = mpt__at(ctx, in[i], "an input");
		if (!input) break;
		if (input->dtype == MPT_F16 || input->dtype == MPT_BF16)
			mpt__error(ctx, DTYPE,
				"input %d is %D: small changes need fp32; mpt_cast it inside the function", i,
				input->dtype);
		check.in[i] = mpt_clone(mpt_detach(in[i]));
	}
	mpt_status status = ctx->base.status;
	if (status == MPT_OK) status = mpt__check_backward(&check);
	for (int i = 0; i < n_in && status == MPT_OK; i++)
		if (mpt_get_dtype(check.in[i]) == MPT_F32) status = mpt__check_input(&check, i);
	mpt_scope_end(ctx);
	return status;
}

#endif
