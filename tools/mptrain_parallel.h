/* generated from src/ by tools/amalgamate.c: edit there */
/* ----
 * mptrain_parallel.h: training by several processes, on one machine or many, over MPI.
 *
 * It belongs to mptrain.h of the same version, which includes it by name. Put it where the compiler
 * finds it, define MPTRAIN_USE_MPI where MPTRAIN_IMPLEMENTATION is, and build with mpicc:
 *
 *		#define MPTRAIN_USE_MPI
 *		#define MPTRAIN_IMPLEMENTATION
 *		#include "mptrain.h"
 *
 * Other files of a program include it behind mptrain.h, for the declarations, which need no mpi.h.
 * ---- */
#ifndef MPTRAIN_VERSION
#error "include mptrain.h before mptrain_parallel.h"
#endif
/* ==== Training by several processes ===========================================================

	mpt_context *ctx = mpt_create(NULL);
	mpt_parallel_begin(ctx, NULL);				<- joins the processes that mpirun has started
	mpt_module net = ...;
	mpt_data_parallel(net, NULL);				<- the weights of rank 0 for all
	mpt_optimizer opt = mpt_adamw(net, NULL);
	lc.rank = mpt_parallel_rank(ctx), lc.world = mpt_parallel_world(ctx);		(of the loader)
	... the loop of one process, as it is ...
	mpt_parallel_end(ctx);
	mpt_destroy(ctx);

Each process, a rank, trains on its own share of the data. mpt_backward gives every rank the mean
of all ranks' gradients; from equal weights and equal gradients the same optimizer makes equal
weights. Gradients travel in buckets, each as soon as the last op that adds to it has run, while
backward goes on with the layers below. Build with mpicc (Open MPI and MPICH are tested) and start
with

	mpirun -n 4 ./train

Two ranks on one machine share its cores: set `threads` of mpt_config to the cores of one of them.

Gradients of several batches. With micro_batches = A the first A - 1 of every A calls of
mpt_backward keep their gradients, and the last one averages over all A times world of them: losses
are those of the batches as they are, not divided by A. mpt_zero_grad comes before the first, the
optimizer's step after the last. Who would rather keep count of it leaves A at 1 and calls all but
the last backward between mpt_no_sync_begin and mpt_no_sync_end, as PyTorch's no_sync; there
gradients are summed, and losses divided by the program; the tree is then one over ranks.

The same bits on any number of ranks. Gradients are summed in one fixed tree over the world * A
batches of a step: batch number i belongs to rank i / A, as its call i % A. So 1 rank of 4
micro-batches, 2 of 2 and 4 of 1 make the same weights, bit for bit, whatever arrives when. As many
bytes travel as in MPI's own order, and steps take as long (within 2 % where gradients hide behind
backward, 8 % where they are most of the step); with A = 1 it takes one more array of the size of
the gradients, with A a power of two log2 A + 1 more, else up to twice as many. `deterministic` =
false saves that: sums in MPI's order, which depends on the number of ranks. In fp32 the loss is
then the same within 1e-5 after 100 steps; in halves a sum that differs in its last bit rounds some
weight or activation the other way, of which training makes more, up to 1e-2 after 100 steps: no
worse, but another one. Dropout draws by the number of the batch, so that its masks are the same
too, if one step (mpt_step_begin) holds all A.

Batch norms use the statistics of their rank's batch, and rank 0's running ones are for all. With
sync_batch_norm they are those of the batches of all ranks, forward and backward, so that a net
trains as one process with the whole batch does, but for rounding (fp32: gradients within 1e-5,
halves: within their own); they are the same on all ranks, bit for bit. It holds for all batch norms
of the context that train, of at most 8192 channels. All ranks have to run the same ones in the same
order, each with a batch of at least two values per channel; batches may be of other sizes. Each
costs a message forward and one backward for which backward waits. Source: PyTorch's SyncBatchNorm.

Loss scaling. A gradient that is not finite on one rank is not finite in the mean, on all: all
ranks skip the step, and their scales stay equal, as do norms that clip. mpt_parallel_statistics
names the rank and the parameter; without a scaler the log warns.

What goes wrong. When nets, settings, versions or instruction sets of the ranks differ,
mpt_data_parallel says which. No call waits longer than `deadline` seconds: then ranks ask each
other, and who does not answer is named: "rank 2 of 4 did not answer". From there on the context
has an error; mpt_clear_error ends it, and the weights, which are those after the last step, can be
saved: before mpt_parallel_end, for whose end the launcher may end the others. Nothing else can be
asked of the other ranks any more: end the process. A rank that fails in mpt_backward, or calls
mpt_parallel_end with an error, tells the others, who fail with its message.

A rank that is stopped (SIGSTOP) is found out so with both MPIs, one whose network is cut with Open
MPI. Of one that is killed their launchers hear, too, and end all others at once: then the last
checkpoint is what is left, and the run goes on from it, on fewer ranks if need be. With MPICH a
shell in between, which lasts longer than the deadline, keeps that from its launcher: the others
live, find out and save.

	UCX_TLS=posix,self mpirun -n 4 sh -c './train || sleep 320'

UCX, by which Debian's MPICH 4.0 sends, else ends whoever was copying from the memory of the one
that was killed. Over TCP that MPICH now and then waits for ever in MPI_Finalize, behind a training
that is done: across machines Open MPI is what was tried.

Limits: CPU contexts; one net per context (put several below one module); no captured steps, no
mpt_update_in_backward. Weights that are frozen when mpt_data_parallel is called are left out: call
it again after mpt_freeze. */
#ifndef MPT__PARALLEL_FACE_INCLUDED
#define MPT__PARALLEL_FACE_INCLUDED

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mpt_parallel_config {
	double deadline;	/* 300: seconds that a call may wait for other ranks; 0: without end */
	double grace;		/* 5: seconds that a rank then has to answer that it is there */
} mpt_parallel_config;
MPTRAIN_API mpt_parallel_config mpt_parallel_config_default(void);

/* Joins all processes that mpirun has started, and waits for them; one that it has not started is a
   world of its own. Starts MPI if the program has not (MPI_THREAD_FUNNELED: calls come from one
   thread). NULL: defaults. Errors: no CPU context, called before, MPI is over, a rank does not
   come. */
MPTRAIN_API mpt_status mpt_parallel_begin(mpt_context *context, const mpt_parallel_config *config);
/* The number of this process, from 0, and of how many; 0 and 1 before mpt_parallel_begin. */
MPTRAIN_API int mpt_parallel_rank(mpt_context *context);
MPTRAIN_API int mpt_parallel_world(mpt_context *context);
/* Leaves the others; call it before mpt_destroy, on all ranks. If the context has an error, it
   tells them. The last context of a process that leaves ends MPI, if mpt_parallel_begin started it,
   unless a rank is lost: then that would wait for ever. */
MPTRAIN_API mpt_status mpt_parallel_end(mpt_context *context);

/* All ranks call these in the same order, with tensors of the same shape and dtype. */

/* Returns once all ranks have called it. */
MPTRAIN_API mpt_status mpt_barrier(mpt_context *context);
/* The values of rank `root` for all, in place. Any dtype. */
MPTRAIN_API mpt_status mpt_broadcast(mpt_tensor tensor, int root);
typedef enum mpt_parallel_op {
	MPT_PARALLEL_SUM,
	MPT_PARALLEL_MEAN,	/* of floats */
	MPT_PARALLEL_MAX,
	MPT_PARALLEL_MIN
} mpt_parallel_op;
/* Combines the values of all ranks, element by element, in place. Floats, 32 and 64 bit integers;
   halves are summed in fp32. */
MPTRAIN_API mpt_status mpt_all_reduce(mpt_tensor tensor, mpt_parallel_op op);
/* The tensors of all ranks, [world, shape..], in their order: a new tensor. Any dtype. */
MPTRAIN_API mpt_tensor mpt_all_gather(mpt_tensor tensor);
/* Weights and running statistics of rank `root` for all. */
MPTRAIN_API mpt_status mpt_broadcast_module(mpt_module module, int root);
/* An error that names the rank whose weights or running statistics are not those of rank 0, bit for
   bit. */
MPTRAIN_API mpt_status mpt_compare_ranks(mpt_module module);

typedef struct mpt_data_parallel_config {
	int64_t micro_batches;	/* 1: calls of mpt_backward whose gradients are averaged, per rank */
	bool deterministic;		/* true: sums in one order for any number of ranks; false: MPI's */
	bool keep_buffers;		/* false: running statistics of rank 0 for all behind each step that
							  had a reduction (mpt_step_end); true: each rank keeps its own */
	int64_t bucket_bytes;	/* 4 MB: gradients that travel together */
	bool sync_batch_norm;	/* false; true: batch norms use the batches of all ranks */
} mpt_data_parallel_config;
MPTRAIN_API mpt_data_parallel_config mpt_data_parallel_config_default(void);
/* From now on mpt_backward averages the gradients of the net over all ranks. The net gets the
   weights and running statistics of rank 0. Call it on all ranks, before the first step; again for
   another net or config. A parameter without a gradient on some ranks counts as zeros there;
   without one on all it stays without. The first reduction finds out in which order gradients
   become ready, by which buckets are then made. NULL: defaults. Source: PyTorch's
   DistributedDataParallel. */
MPTRAIN_API mpt_status mpt_data_parallel(mpt_module net, const mpt_data_parallel_config *config);
/* ZeRO-1: from now on each rank holds its part of the optimizer's moments, also of 8 bits, and of
   its masters. It updates the weights of that part and gets the others: the same bits as without.
   `on` = false brings all parts together on each rank. That comes before what is about whole
   states, which is an error till then: checkpoints and other files of them, their hash,
   mpt_optimizer_add. What rank 0 saves then loads on any number of ranks. To be called on all
   ranks, behind mpt_data_parallel. Errors: L-BFGS, Muon and optimizers of your own, updates in
   backward, stochastic rounding, more than 2^27 weights in one piece.
   Source: Rajbhandari et al. 2019. */
MPTRAIN_API mpt_status mpt_shard_states(mpt_optimizer optimizer, bool on);
/* Between them mpt_backward adds to this rank's own gradients alone; nested ones count. */
MPTRAIN_API mpt_status mpt_no_sync_begin(mpt_context *context);
MPTRAIN_API mpt_status mpt_no_sync_end(mpt_context *context);

typedef struct mpt_parallel_stats {
	int64_t reductions;			/* backward passes that ended in one, so far */
	int64_t buckets, bytes;		/* of one reduction, with what fills buckets up */
	double seconds_waited;		/* at the end of mpt_backward: what backward did not hide */
	int64_t memory;				/* bytes that buckets take, in all */
	int64_t nonfinite;			/* reductions to which some rank gave what is not finite */
	int nonfinite_rank;			/* the first such rank of the last such reduction; -1: none yet */
	char nonfinite_parameter[128];
	int lost_rank;				/* the first one that did not answer; -1: none */
} mpt_parallel_stats;
MPTRAIN_API mpt_parallel_stats mpt_parallel_statistics(mpt_context *context);

#ifdef __cplusplus
}
#endif

#endif

#if defined(MPT__IMPLEMENTED) && defined(MPTRAIN_USE_MPI)
#ifndef MPT__MPTRAIN_PARALLEL_INCLUDED
#define MPT__MPTRAIN_PARALLEL_INCLUDED
#if MPTRAIN_VERSION != 1000
#error "mptrain.h and mptrain_parallel.h are of different versions; copy both from one release"
#elif defined(MPTRAIN_NO_FRUGAL) || defined(MPTRAIN_NO_WATCH)
#error "MPTRAIN_USE_MPI does not go with MPTRAIN_NO_FRUGAL or MPTRAIN_NO_WATCH"
#endif
/* ----
 * parallel/world.c: the processes of a training: how they find each other, wait for each other, and
 * notice that one is gone.
 *
 * Nothing here blocks: every MPI call is a non-blocking one that is polled, together with a talk
 * beside it. Who has waited too long asks all others whether they are there, names those who do not
 * answer, and tells the verdict to all others, who would each find the same by themselves later.
 * ---- */

/* The classes of C++ that MPIs once had are of no use here. */
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#ifndef _WIN32
#include <poll.h>
#endif

/* Collectives have to be called in the same order on all ranks. What is started as it becomes ready
   has a communicator for each kind, on which its order is that of the buckets. */
enum { MPT__MPI_SUMS, MPT__MPI_RESULTS, MPT__MPI_CALLS, MPT__MPI_TALK, MPT__MPI_COMMS };

/* What ranks say to each other besides, by tag. */
enum { MPT__TALK_ASK = 1, MPT__TALK_HERE, MPT__TALK_VERDICT, MPT__TALK_BYE, MPT__TALK_KINDS };

enum {
	MPT__TALK_BYTES = 400,
	MPT__TALK_RANK = 8,			/* of them, before a verdict: the rank that is lost, or -1 */
	MPT__GATHER_BYTES = 512,	/* of a rank, at most */
	MPT__POLLS_AWAKE = 2000,	/* before a wait begins to sleep: about as long as a message takes */
	MPT__POLLS_DEAF = 32		/* between two looks at the talk */
};
static const int64_t mpt__mpi_bytes = INT64_C(1) << 30;	/* of one call: MPI counts in int */

typedef struct mpt__world {
	uint32_t storage;	/* in which this lies, and the arrays behind it */
	int rank, world;
	mpt_parallel_config config;
	MPI_Comm comm[MPT__MPI_COMMS];
	bool met;	/* the communicators are there */
	bool lost;	/* a rank is, or has failed: nothing more can be asked of the others */
	int lost_rank;
	char said[MPT__TALK_KINDS][MPT__TALK_BYTES];	/* being sent, by kind */
	char verdict[MPT__TALK_BYTES];					/* of another rank; "" for none */
	uint8_t *answered, *parted;						/* by rank */
	unsigned char *gathered;						/* by rank, MPT__GATHER_BYTES of each at most */
	/* What gradients are reduced by, parallel/buckets.c, and how it ends; NULL: none. */
	void *net;
	void (*net_end)(mpt_context *ctx, struct mpt__world *w);
	mpt_parallel_stats stats;
} mpt__world;

/* Contexts of this process that take part, and whether it was us who started MPI. */
static int mpt__mpi_contexts;
static bool mpt__mpi_ours;

/* ==== Finding it ==== */

/* Where a context's world hangs: on a listener, as contexts know nothing of this room. */
static void mpt__world_hangs(mpt_context *ctx, void *user, const void *what) {
	(void)ctx, (void)user, (void)what;
}

static mpt__world *mpt__world_of(const mpt_context *ctx) {
	for (int i = 0; ctx && i < MPT__MAX_LISTENERS; i++)
		if (ctx->listeners[i].hear == mpt__world_hangs)
			return (mpt__world *)ctx->listeners[i].user;
	return NULL;
}

/* Begins a public call that needs the others; NULL with an error recorded if it cannot go on. */
static mpt__world *mpt__world_enter(mpt_context *ctx, const char *call) {
	if (!mpt__enter(ctx, call)) return NULL;
	mpt__world *w = mpt__world_of(ctx);
	if (!w) {
		mpt__error(ctx, STATE, "the context takes part in no world; call mpt_parallel_begin first");
	} else if (w->lost) {
		mpt__error(ctx, IO, "the other ranks are gone for this process since an error; save what "
			"is to be saved, and end it");
		return NULL;
	}
	return w;
}

/* ==== Waiting ==== */

/* Lets others run: for long waits in sleep, as they may be on this core. */
static void mpt__world_pause(int64_t polls) {
#ifndef _WIN32
	if (polls > MPT__POLLS_AWAKE) {
		poll(NULL, 0, 1);
		return;
	}
#endif
	mpt__yield();
}

/* Sends what stands in said[kind] to a rank, or with -1 to all others. It is short: it does not
   wait for who is gone. */
static void mpt__talk_send(mpt__world *w, int kind, int to) {
	for (int r = 0; r < w->world; r++) {
		MPI_Request request = MPI_REQUEST_NULL;
		if (r == w->rank || (to >= 0 && to != r)) continue;
		if (MPI_Isend(w->said[kind], MPT__TALK_BYTES, MPI_CHAR, r, kind, w->comm[MPT__MPI_TALK],
				&request) == MPI_SUCCESS &&
			request != MPI_REQUEST_NULL)
			MPI_Request_free(&request);
	}
}

/* Notes what another rank has found, and about whom. */
static void mpt__talk_verdict(mpt__world *w, const char *text) {
	int rank = 0, i = 0;
	while (i < MPT__TALK_RANK && text[i] >= '0' && text[i] <= '9')
		rank = 10 * rank + text[i++] - '0';
	if (i > 0 && rank < w->world) w->lost_rank = w->stats.lost_rank = rank;
	mpt__format_text(w->verdict, sizeof w->verdict, "%s", text + MPT__TALK_RANK);
}

/* Tells all others; rank: that which is lost, or -1. */
static void mpt__talk_tell(mpt__world *w, int rank, const char *text) {
	char *said = w->said[MPT__TALK_VERDICT];
	memset(said, ' ', MPT__TALK_RANK);
	if (rank >= 0) {
		size_t length = mpt__format_text(said, MPT__TALK_RANK, "%d", rank);
		said[length] = ' ';
	}
	mpt__format_text(said + MPT__TALK_RANK, MPT__TALK_BYTES - MPT__TALK_RANK, "%s", text);
	mpt__talk_send(w, MPT__TALK_VERDICT, -1);
}

/* Hears all that others have said. */
static void mpt__talk_hear(mpt__world *w) {
	char text[MPT__TALK_BYTES];
	MPI_Status status;
	int there = 0;
	while (w->met &&
		MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, w->comm[MPT__MPI_TALK], &there, &status) ==
			MPI_SUCCESS &&
		there) {
		const int from = status.MPI_SOURCE, kind = status.MPI_TAG;
		if (MPI_Recv(text, MPT__TALK_BYTES, MPI_CHAR, from, kind, w->comm[MPT__MPI_TALK],
				MPI_STATUS_IGNORE) != MPI_SUCCESS ||
			from < 0 || from >= w->world)
			return;
		text[MPT__TALK_BYTES - 1] = '\0';
		if (kind == MPT__TALK_ASK) mpt__talk_send(w, MPT__TALK_HERE, from);
		if (kind == MPT__TALK_HERE || kind == MPT__TALK_BYE) w->answered[from] = 1;
		if (kind == MPT__TALK_BYE) w->parted[from] = 1;
		if (kind == MPT__TALK_VERDICT && !*w->verdict) mpt__talk_verdict(w, text);
	}
}

/* Another rank has said what is wrong. */
static MPT__COLD mpt_status mpt__world_told(mpt_context *ctx, mpt__world *w) {
	w->lost = true;
	return mpt__error(ctx, IO, "%s", w->verdict);
}

/* Lists the ranks that have not answered, the first one of which it returns; -1: all have. */
static int mpt__world_missing(const mpt__world *w, char *list, size_t size) {
	mpt__text text = mpt__text_make(list, size);
	int first = -1;
	for (int r = 0; r < w->world; r++) {
		if (r == w->rank || w->answered[r]) continue;
		mpt__write_text(&text, "%s%d", first < 0 ? "" : ", ", r);
		if (first < 0) first = r;
	}
	return first;
}

/* A wait has failed, or has lasted too long: finds out about whom, and tells the others. */
static MPT__COLD mpt_status mpt__world_ask(mpt_context *ctx, mpt__world *w, double seconds) {
	char list[120] = "", said[MPT__TALK_BYTES - MPT__TALK_RANK];
	w->lost = true;
	if (!w->met)
		return mpt__error(ctx, IO, "not all %d ranks came within %g seconds", w->world, seconds);
	memset(w->answered, 0, (size_t)w->world);
	mpt__talk_send(w, MPT__TALK_ASK, -1);
	const double start = MPI_Wtime();
	while (!*w->verdict && mpt__world_missing(w, list, sizeof list) >= 0 &&
		MPI_Wtime() - start < w->config.grace) {
		mpt__talk_hear(w);
		mpt__world_pause(INT64_MAX);
	}
	if (*w->verdict) return mpt__world_told(ctx, w);
	w->lost_rank = mpt__world_missing(w, list, sizeof list);
	w->stats.lost_rank = w->lost_rank;
	if (w->lost_rank >= 0)
		mpt__format_text(said, sizeof said,
			"rank %s of %d did not answer: it is dead, stopped or cut off, or computes without "
			"end; rank %d had waited %g seconds for it",
			list, w->world, w->rank, seconds);
	else
		mpt__format_text(said, sizeof said,
			"rank %d waited %g seconds in %s, while all %d ranks are there: they have to make the "
			"same calls in the same order, with as many batches each",
			w->rank, seconds, ctx->base.op ? ctx->base.op : "a call", w->world);
	mpt__talk_tell(w, w->lost_rank, said);
	return mpt__error(ctx, IO, "%s", said);
}

/* One wait: since when, and how often it has looked. */
typedef struct {
	double start;
	int64_t polls;
} mpt__patience;

static mpt__patience mpt__patience_begin(void) {
	mpt__patience patience = {MPI_Wtime(), 0};
	return patience;
}

/* Between two looks at what is waited for: an error once that will not come. */
static mpt_status mpt__patience_lasts(mpt_context *ctx, mpt__world *w, mpt__patience *patience) {
	if (patience->polls++ % MPT__POLLS_DEAF == MPT__POLLS_DEAF - 1 ||
		patience->polls > MPT__POLLS_AWAKE) {
		const double seconds = MPI_Wtime() - patience->start;
		mpt__talk_hear(w);
		if (*w->verdict) return mpt__world_told(ctx, w);
		if (w->config.deadline > 0 && seconds > w->config.deadline)
			return mpt__world_ask(ctx, w, seconds);
	}
	mpt__world_pause(patience->polls);
	return MPT_OK;
}

/* An MPI call has returned an error: of a rank that is gone, or of its own. */
static MPT__COLD mpt_status mpt__mpi_failed(mpt_context *ctx, mpt__world *w, int code) {
	char text[MPI_MAX_ERROR_STRING] = "";
	int length = 0;
	if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
	text[length < MPI_MAX_ERROR_STRING ? length : MPI_MAX_ERROR_STRING - 1] = '\0';
	mpt__log(&ctx->base, MPT_LOG_INFO, "MPI says: %s", text);
	if (w->met && w->world > 1) return mpt__world_ask(ctx, w, 0);
	w->lost = true;
	return mpt__error(ctx, IO, "MPI failed: %s", text);
}

/* MPI_Testall, whose declaration in MPICH has gcc warn of MPI_STATUSES_IGNORE. What is done stays
   so. */
static int mpt__mpi_test(int count, MPI_Request *requests, int *done) {
	int code = MPI_SUCCESS;
	*done = 1;
	for (int i = 0; i < count && code == MPI_SUCCESS && *done; i++)
		code = MPI_Test(&requests[i], done, MPI_STATUS_IGNORE);
	return code;
}

/* Waits for requests, which were started with the result `code`. */
static mpt_status mpt__world_wait(
	mpt_context *ctx, mpt__world *w, MPI_Request *requests, int count, int code) {
	mpt__patience patience = mpt__patience_begin();
	for (;;) {
		int done = 0;
		if (code == MPI_SUCCESS) code = mpt__mpi_test(count, requests, &done);
		if (code != MPI_SUCCESS) return mpt__mpi_failed(ctx, w, code);
		if (done) return MPT_OK;
		mpt_status status = mpt__patience_lasts(ctx, w, &patience);
		if (status != MPT_OK) return status;
	}
}

/* ==== What all later rooms call ==== */

/* Some bytes of each rank, one behind the other; NULL with an error recorded. */
static const unsigned char *mpt__world_gather(
	mpt_context *ctx, mpt__world *w, const void *mine, size_t bytes) {
	MPI_Request request = MPI_REQUEST_NULL;
	int code = MPI_Iallgather(mine, (int)bytes, MPI_BYTE, w->gathered, (int)bytes, MPI_BYTE,
		w->comm[MPT__MPI_CALLS], &request);
	return mpt__world_wait(ctx, w, &request, 1, code) == MPT_OK ? w->gathered : NULL;
}

/* The bytes of rank `root` for all. */
static mpt_status mpt__world_spread(
	mpt_context *ctx, mpt__world *w, void *data, int64_t bytes, int root) {
	mpt_status status = MPT_OK;
	for (int64_t at = 0; at < bytes && status == MPT_OK; at += mpt__mpi_bytes) {
		const int64_t some = bytes - at < mpt__mpi_bytes ? bytes - at : mpt__mpi_bytes;
		MPI_Request request = MPI_REQUEST_NULL;
		int code = MPI_Ibcast((char *)data + at, (int)some, MPI_BYTE, root, w->comm[MPT__MPI_CALLS],
			&request);
		status = mpt__world_wait(ctx, w, &request, 1, code);
	}
	return status;
}

/* ==== Beginning and ending ==== */

mpt_parallel_config mpt_parallel_config_default(void) {
	mpt_parallel_config config = {300.0, 5.0};
	return config;
}

static bool mpt__world_may_begin(mpt_context *ctx, const mpt_parallel_config *c) {
	int over = 0;
	if (mpt__world_of(ctx))
		return mpt__reject(ctx, STATE, "the context takes part already; call it once");
	if (ctx->config.device != MPT_DEVICE_CPU || !ctx->backend.synchronous ||
		mpt__is_dry(&ctx->base))
		return mpt__reject(ctx, UNSUPPORTED, "MPI needs a CPU context, and one that computes");
	if (!mpt__check_number(ctx, "deadline", c->deadline, 0, MPT__NO_LIMIT) ||
		!mpt__check_number(ctx, "grace", c->grace, 0, MPT__NO_LIMIT))
		return false;
	if (MPI_Finalized(&over) != MPI_SUCCESS || over)
		return mpt__reject(ctx, STATE,
			"MPI is over in this process, which cannot start it twice: end the last context when "
			"all is done");
	return true;
}

/* Starts MPI where nobody has. */
static bool mpt__mpi_start(mpt_context *ctx) {
	int started = 0, level = 0;
	if (MPI_Initialized(&started) == MPI_SUCCESS && started) return true;
	if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
		return mpt__reject(ctx, IO, "MPI_Init_thread failed; start the program with mpirun");
	mpt__mpi_ours = true;
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	return true;
}

/* Communicators of our own: other users of MPI in the program do not meet ours. */
static mpt_status mpt__world_meet(mpt_context *ctx, mpt__world *w) {
	MPI_Request request[MPT__MPI_COMMS];
	int code = MPI_SUCCESS;
	for (int i = 0; i < MPT__MPI_COMMS && code == MPI_SUCCESS; i++) {
		request[i] = MPI_REQUEST_NULL;
		code = MPI_Comm_idup(MPI_COMM_WORLD, &w->comm[i], &request[i]);
		if (code == MPI_SUCCESS && mpt__world_wait(ctx, w, &request[i], 1, code) != MPT_OK)
			return ctx->base.status;
	}
	if (code != MPI_SUCCESS) return mpt__mpi_failed(ctx, w, code);
	for (int i = 0; i < MPT__MPI_COMMS; i++)
		MPI_Comm_set_errhandler(w->comm[i], MPI_ERRORS_RETURN);
	w->met = true;
	return MPT_OK;
}

mpt_status mpt_parallel_begin(mpt_context *ctx, const mpt_parallel_config *config) {
	const mpt_parallel_config c = config ? *config : mpt_parallel_config_default();
	int rank = 0, world = 0;
	if (!mpt__enter_checked(ctx, "mpt_parallel_begin") || !mpt__world_may_begin(ctx, &c) ||
		!mpt__mpi_start(ctx))
		return mpt__status_of(ctx);
	if (MPI_Comm_rank(MPI_COMM_WORLD, &rank) != MPI_SUCCESS ||
		MPI_Comm_size(MPI_COMM_WORLD, &world) != MPI_SUCCESS)
		return mpt__error(ctx, IO, "MPI does not tell the number of this process");
	const size_t head = (sizeof(mpt__world) + 63) / 64 * 64;
	const int64_t bytes = (int64_t)head + world * (MPT__GATHER_BYTES + 2);
	uint32_t storage =
		mpt__storage_new(ctx, bytes, MPT_MEMORY_HOST, MPT__FROM_DEVICE, false);
	if (!storage) return ctx->base.status;
	mpt__world *w = (mpt__world *)ctx->data[storage];
	memset(w, 0, (size_t)bytes);
	w->storage = storage;
	w->rank = rank, w->world = world, w->config = c;
	w->lost_rank = w->stats.lost_rank = w->stats.nonfinite_rank = -1;
	w->gathered = (unsigned char *)w + head;
	w->answered = w->gathered + world * MPT__GATHER_BYTES, w->parted = w->answered + world;
	if (mpt__world_meet(ctx, w) == MPT_OK)
		mpt__listen(ctx, MPT__RECORDING_ASKED, mpt__world_hangs, w);
	if (mpt__ok(ctx))
		mpt__mpi_contexts++;
	else if (!w->lost)	/* what MPI still has of it is left to it */
		mpt__storage_release(ctx, storage);
	return ctx->base.status;
}

int mpt_parallel_rank(mpt_context *ctx) {
	const mpt__world *w = mpt__enter_anyway(ctx, "mpt_parallel_rank") ? mpt__world_of(ctx) : NULL;
	return w ? w->rank : 0;
}

int mpt_parallel_world(mpt_context *ctx) {
	const mpt__world *w = mpt__enter_anyway(ctx, "mpt_parallel_world") ? mpt__world_of(ctx) : NULL;
	return w ? w->world : 1;
}

/* How many ranks have not said that they leave, but for the one that is lost. */
static int mpt__world_left(const mpt__world *w) {
	int left = 0;
	for (int r = 0; r < w->world; r++) left += !w->parted[r] && r != w->rank && r != w->lost_rank;
	return left;
}

/* Tells the others of an error, and waits until all say that they leave: MPI_Finalize has no
   deadline, and where a rank ends without it the launcher ends the others, who may still save. */
static void mpt__world_part(mpt_context *ctx, mpt__world *w) {
	if (!mpt__ok(ctx) && !w->lost && !*w->verdict) {
		char text[MPT__TALK_BYTES - MPT__TALK_RANK];
		mpt__format_text(
			text, sizeof text, "rank %d left with an error: %.300s", w->rank, ctx->base.message);
		mpt__talk_tell(w, -1, text);
	}
	mpt__talk_send(w, MPT__TALK_BYE, -1);
	const bool whole = w->lost_rank < 0;
	const double start = MPI_Wtime(), most = whole ? w->config.deadline : w->config.grace;
	for (int64_t polls = 0; mpt__world_left(w) > 0; polls++) {
		if ((most > 0 || !whole) && MPI_Wtime() - start > most) break;
		mpt__talk_hear(w);
		mpt__world_pause(polls);
	}
	if (!whole || mpt__world_left(w) == 0) return;
	for (int r = w->world - 1; r >= 0; r--)
		if (!w->parted[r] && r != w->rank) w->lost_rank = w->stats.lost_rank = r;
	mpt__error(ctx, IO, "rank %d of %d did not come to its end within %g seconds", w->lost_rank,
		w->world, w->config.deadline);
}

mpt_status mpt_parallel_end(mpt_context *ctx) {
	if (!mpt__enter_anyway(ctx, "mpt_parallel_end")) return mpt__status_of(ctx);
	mpt__world *w = mpt__world_of(ctx);
	if (!w)
		return mpt__error(ctx, STATE, "the context takes part in no world; call it once, behind "
			"mpt_parallel_begin");
	mpt__world_part(ctx, w);
	if (w->net_end) w->net_end(ctx, w);
	mpt__listen_no_more(ctx, MPT__RECORDING_ASKED, mpt__world_hangs);
	const bool whole = w->lost_rank < 0;
	for (int i = 0; i < MPT__MPI_COMMS && whole && !w->lost; i++) MPI_Comm_free(&w->comm[i]);
	mpt__mpi_contexts--;
	if (whole) mpt__storage_release(ctx, w->storage);	/* else messages may still be in it */
	if (whole && mpt__mpi_ours && mpt__mpi_contexts == 0) MPI_Finalize();
	return ctx->base.status;
}

/* ----
 * parallel/tensors.c: what ranks do with tensors together.
 *
 * Each call first compares with the others what it is about: MPI would end the program, hang or
 * give nonsense where shapes differ.
 * ---- */

typedef struct {
	char call[24];
	int32_t option;	/* root or op */
	int32_t dtype, rank;
	int64_t dim[MPT_MAX_RANK];
} mpt__ticket;

static void mpt__ticket_text(const mpt__ticket *ticket, char *text, size_t size) {
	mpt_shape shape;
	mpt__zero(shape);
	shape.rank = ticket->rank >= 0 && ticket->rank <= MPT_MAX_RANK ? ticket->rank : 0;
	for (int i = 0; i < shape.rank; i++) shape.dim[i] = ticket->dim[i];
	mpt__format_text(text, size, "%.23s of %D %S, option %d", ticket->call,
		(mpt_dtype)ticket->dtype, &shape, ticket->option);
}

/* Whether all ranks are in the same call with the same kind of tensor, else an error. */
static bool mpt__tickets_agree(mpt_context *ctx, mpt__world *w, const char *call,
	const mpt__tensor *tensor, int option) {
	mpt__ticket mine;
	mpt__zero(mine);
	mpt__format_text(mine.call, sizeof mine.call, "%s", call);
	mine.option = option;
	mine.dtype = tensor ? (int32_t)tensor->dtype : (int32_t)MPT_DTYPE_NONE;
	mine.rank = tensor ? tensor->shape.rank : 0;
	for (int i = 0; i < mine.rank; i++) mine.dim[i] = tensor->shape.dim[i];
	const unsigned char *all = mpt__world_gather(ctx, w, &mine, sizeof mine);
	for (int r = 0; all && r < w->world; r++) {
		mpt__ticket other;
		char here[200], there[200];
		memcpy(&other, all + (size_t)r * sizeof other, sizeof other);
		if (memcmp(&other, &mine, sizeof mine) == 0) continue;
		mpt__ticket_text(&mine, here, sizeof here);
		mpt__ticket_text(&other, there, sizeof there);
		return mpt__reject(ctx, SHAPE, "ranks disagree: rank %d called %s, rank %d %s", w->rank,
			here, r, there);
	}
	return all != NULL;
}

/* Memory for a while, and what goes through it. */
static void *mpt__scratch(mpt_context *ctx, int64_t bytes, uint32_t *storage) {
	*storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_WORKSPACE, MPT__FROM_POOL, false);
	return *storage ? ctx->data[*storage] : NULL;
}

static void mpt__scratch_end(mpt_context *ctx, uint32_t storage) {
	if (storage) mpt__storage_release(ctx, storage);
}

/* Whether a rank's tensor may be written, else an error. */
static bool mpt__may_receive(mpt_context *ctx, const mpt__tensor *tensor) {
	return !mpt__is_expanded(ctx, tensor) && !mpt__writing_refused(ctx, tensor->storage);
}

/* The values of rank `root` into the tensors of all. */
static mpt_status mpt__spread_tensor(
	mpt_context *ctx, mpt__world *w, mpt__tensor *tensor, int root) {
	const int64_t bytes = mpt__tensor_bytes(tensor);
	const mpt_dtype dtype = (mpt_dtype)tensor->dtype;
	uint32_t storage;
	void *stage = mpt__scratch(ctx, bytes, &storage);
	if (stage && w->rank == root) mpt__read_as(ctx, tensor, dtype, stage);
	if (stage) mpt__world_spread(ctx, w, stage, bytes, root);
	if (mpt__ok(ctx) && w->rank != root) {
		mpt__touched(ctx, tensor->storage);
		mpt__write_as(ctx, tensor, dtype, stage);
	}
	if (!w->lost) mpt__scratch_end(ctx, storage);
	return ctx->base.status;
}

mpt_status mpt_barrier(mpt_context *ctx) {
	mpt__world *w = mpt__world_enter(ctx, "mpt_barrier");
	if (w) mpt__tickets_agree(ctx, w, "mpt_barrier", NULL, 0);
	return mpt__status_of(ctx);
}

static bool mpt__check_root(mpt_context *ctx, const mpt__world *w, int root) {
	if (root >= 0 && root < w->world) return true;
	return mpt__reject(ctx, ARGUMENT, "root %d: expected a rank from 0 to %d", root, w->world - 1);
}

mpt_status mpt_broadcast(mpt_tensor tensor, int root) {
	mpt_context *ctx = tensor.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_broadcast");
	mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
	if (!found || !mpt__check_root(ctx, w, root) || !mpt__may_receive(ctx, found) ||
		!mpt__tickets_agree(ctx, w, "mpt_broadcast", found, root))
		return mpt__status_of(ctx);
	return mpt__spread_tensor(ctx, w, found, root);
}

/* In what elements of a dtype are reduced; MPT_DTYPE_NONE: they cannot be. */
static mpt_dtype mpt__reduced_as(mpt_dtype dtype, MPI_Datatype *type) {
	switch (dtype) {
	case MPT_F16:
	case MPT_BF16:
	case MPT_F32: *type = MPI_FLOAT; return MPT_F32;
	case MPT_F64: *type = MPI_DOUBLE; return MPT_F64;
	case MPT_I32: *type = MPI_INT32_T; return MPT_I32;
	case MPT_I64: *type = MPI_INT64_T; return MPT_I64;
	default: return MPT_DTYPE_NONE;
	}
}

static void mpt__divide_staged(void *stage, mpt_dtype dtype, int64_t numel, int world) {
	for (int64_t i = 0; i < numel && dtype == MPT_F32; i++) ((float *)stage)[i] /= (float)world;
	for (int64_t i = 0; i < numel && dtype == MPT_F64; i++) ((double *)stage)[i] /= world;
}

/* Reduces elements in memory, in place. */
static mpt_status mpt__reduce_staged(mpt_context *ctx, mpt__world *w, char *stage, int64_t numel,
	mpt_dtype as, MPI_Datatype type, MPI_Op op) {
	const int64_t size = (int64_t)mpt_dtype_size(as), most = mpt__mpi_bytes / size;
	mpt_status status = MPT_OK;
	for (int64_t at = 0; at < numel && status == MPT_OK; at += most) {
		const int64_t some = numel - at < most ? numel - at : most;
		MPI_Request request = MPI_REQUEST_NULL;
		int code = MPI_Iallreduce(MPI_IN_PLACE, stage + at * size, (int)some, type, op,
			w->comm[MPT__MPI_CALLS], &request);
		status = mpt__world_wait(ctx, w, &request, 1, code);
	}
	return status;
}

mpt_status mpt_all_reduce(mpt_tensor tensor, mpt_parallel_op op) {
	MPT__PLAIN_FLOATS;
	mpt_context *ctx = tensor.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_all_reduce");
	mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
	MPI_Datatype type = MPI_FLOAT;
	if (!found || !mpt__may_receive(ctx, found)) return mpt__status_of(ctx);
	const mpt_dtype as = mpt__reduced_as((mpt_dtype)found->dtype, &type);
	if (as == MPT_DTYPE_NONE || (op == MPT_PARALLEL_MEAN && (as == MPT_I32 || as == MPT_I64)))
		return mpt__error(ctx, DTYPE, "a tensor of %D cannot be %s; mpt_cast it first",
			(mpt_dtype)found->dtype, op == MPT_PARALLEL_MEAN ? "averaged" : "reduced");
	if (op < MPT_PARALLEL_SUM || op > MPT_PARALLEL_MIN)
		return mpt__error(ctx, ARGUMENT, "op %d is none of mpt_parallel_op", (int)op);
	if (!mpt__tickets_agree(ctx, w, "mpt_all_reduce", found, (int)op)) return ctx->base.status;
	const int64_t numel = mpt__tensor_numel(found);
	uint32_t storage;
	char *stage = (char *)mpt__scratch(ctx, numel * (int64_t)mpt_dtype_size(as), &storage);
	if (stage) mpt__read_as(ctx, found, as, stage);
	if (mpt__ok(ctx))
		mpt__reduce_staged(ctx, w, stage, numel, as, type,
			op == MPT_PARALLEL_MAX ? MPI_MAX : op == MPT_PARALLEL_MIN ? MPI_MIN : MPI_SUM);
	if (mpt__ok(ctx)) {
		if (op == MPT_PARALLEL_MEAN) mpt__divide_staged(stage, as, numel, w->world);
		mpt__touched(ctx, found->storage);
		mpt__write_as(ctx, found, as, stage);
	}
	if (!w->lost) mpt__scratch_end(ctx, storage);
	return ctx->base.status;
}

mpt_tensor mpt_all_gather(mpt_tensor tensor) {
	mpt_context *ctx = tensor.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_all_gather");
	mpt__tensor *found = w ? mpt__at(ctx, tensor, "tensor") : NULL;
	if (!found) return mpt__null(ctx);
	mpt_shape shape;
	mpt__zero(shape);
	shape.rank = found->shape.rank + 1;
	if (shape.rank > MPT_MAX_RANK)
		return mpt__refuse(ctx, SHAPE, "the tensor has shape %S, and a dimension more is beyond %d",
			&found->shape, (int)MPT_MAX_RANK);
	shape.dim[0] = w->world;
	for (int i = 1; i < shape.rank; i++) shape.dim[i] = found->shape.dim[i - 1];
	const mpt_dtype dtype = (mpt_dtype)found->dtype;
	const int64_t bytes = mpt__tensor_bytes(found);
	if (bytes > mpt__mpi_bytes)
		return mpt__refuse(ctx, UNSUPPORTED, "%B of a rank: at most 1 GB can be gathered", bytes);
	if (!mpt__tickets_agree(ctx, w, "mpt_all_gather", found, 0)) return mpt__null(ctx);
	uint32_t storage;
	void *stage = mpt__scratch(ctx, bytes * (w->world + 1), &storage);
	char *all = stage ? (char *)stage + bytes : NULL;
	if (stage) mpt__read_as(ctx, found, dtype, stage);
	if (mpt__ok(ctx)) {
		MPI_Request request = MPI_REQUEST_NULL;
		int code = MPI_Iallgather(stage, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
			w->comm[MPT__MPI_CALLS], &request);
		mpt__world_wait(ctx, w, &request, 1, code);
	}
	mpt__tensor *out =
		mpt__ok(ctx) ? mpt__tensor_new(ctx, dtype, &shape, MPT_MEMORY_ACTIVATION) : NULL;
	if (out) mpt__write_as(ctx, out, dtype, all);
	if (!w->lost) mpt__scratch_end(ctx, storage);
	return out ? mpt__tensor_done(ctx, out, ctx->base.status) : mpt__null(ctx);
}

/* ==== Modules ==== */

/* Whether all ranks have the same number here, else the first whose is not rank 0's; -1: they do;
   -2: an error. */
static int mpt__odd_rank(mpt_context *ctx, mpt__world *w, uint64_t number) {
	const unsigned char *all = mpt__world_gather(ctx, w, &number, sizeof number);
	for (int r = 1; all && r < w->world; r++)
		if (memcmp(all, all + (size_t)r * sizeof number, sizeof number) != 0) return r;
	return all ? -1 : -2;
}

static mpt_status mpt__spread_module(
	mpt_context *ctx, mpt__world *w, mpt__module *module, int root) {
	mpt__walk walk;
	mpt__buffer weight;
	mpt__walk_begin(&walk, ctx, module);
	while (mpt__ok(ctx) && mpt__walk_weight(&walk, &weight))
		if (w->rank == root || mpt__may_receive(ctx, weight.tensor))
			mpt__spread_tensor(ctx, w, weight.tensor, root);
	return ctx->base.status;
}

/* The names, shapes and dtypes of all weights, or, with values, all of it. */
static uint64_t mpt__weights_hash(mpt_context *ctx, mpt__module *module, bool values) {
	uint64_t hash = 0;
	mpt__buffer weight;
	mpt__walk walk;
	mpt__walk_begin(&walk, ctx, module);
	while (mpt__walk_weight(&walk, &weight)) {
		const char *path = mpt__relative_path(ctx, module, weight.path);
		if (values) {
			hash = mpt__hash_tensor(ctx, hash, path, weight.tensor);
			continue;
		}
		hash = mpt__hash_u64(mpt__hash_bytes(hash, path, strlen(path)), weight.tensor->dtype);
		for (int d = 0; d < weight.tensor->shape.rank; d++)
			hash = mpt__hash_u64(hash, (uint64_t)weight.tensor->shape.dim[d]);
	}
	return hash;
}

/* Weight number `index` as text; "nothing" behind the last one. */
static void mpt__weight_text(
	mpt_context *ctx, mpt__module *module, int64_t index, char *text, size_t size) {
	mpt__walk walk;
	mpt__buffer weight;
	mpt__walk_begin(&walk, ctx, module);
	memset(text, 0, size);
	mpt__format_text(text, size, "nothing");
	while (mpt__walk_weight(&walk, &weight)) {
		if (index-- > 0) continue;
		mpt__format_text(text, size, "%.150s %D %S",
			mpt__relative_path(ctx, module, weight.path), (mpt_dtype)weight.tensor->dtype,
			&weight.tensor->shape);
		return;
	}
}

/* Whether the nets of all ranks have the same weights in kind, else an error that names the first
   one that differs. */
static bool mpt__nets_agree(mpt_context *ctx, mpt__world *w, mpt__module *module) {
	char text[256], other[256];
	int odd = mpt__odd_rank(ctx, w, mpt__weights_hash(ctx, module, false));
	for (int64_t i = 0; odd >= 0; i++) {
		mpt__weight_text(ctx, module, i, text, sizeof text);
		const unsigned char *all = mpt__world_gather(ctx, w, text, sizeof text);
		if (!all) return false;
		for (int r = 1; r < w->world; r++) {
			if (memcmp(all, all + (size_t)r * sizeof text, sizeof text) == 0) continue;
			memcpy(text, all, sizeof text);
			memcpy(other, all + (size_t)r * sizeof other, sizeof other);
			return mpt__reject(ctx, SHAPE,
				"the nets of the ranks differ: rank 0 has %s, rank %d has %s", text, r, other);
		}
		if (strcmp(text, "nothing") == 0) break;	/* what differs is not in the text */
	}
	return odd == -1 ||
		(odd >= 0 && mpt__reject(ctx, SHAPE, "the nets of ranks 0 and %d differ", odd));
}

static mpt_status mpt__compare_values(mpt_context *ctx, mpt__world *w, mpt__module *module) {
	int odd = mpt__odd_rank(ctx, w, mpt__weights_hash(ctx, module, true));
	if (odd < 0) return ctx->base.status;
	return mpt__error(ctx, STATE,
		"rank %d has other weights or running statistics than rank 0; mpt_broadcast_module makes "
		"them equal",
		odd);
}

mpt_status mpt_broadcast_module(mpt_module module, int root) {
	mpt_context *ctx = module.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_broadcast_module");
	mpt__module *found = w ? mpt__module_at(ctx, module) : NULL;
	if (!found || !mpt__check_root(ctx, w, root) || mpt__freeze(ctx, found) != MPT_OK ||
		!mpt__tickets_agree(ctx, w, "mpt_broadcast_module", NULL, root) ||
		!mpt__nets_agree(ctx, w, found))
		return mpt__status_of(ctx);
	return mpt__spread_module(ctx, w, found, root);
}

mpt_status mpt_compare_ranks(mpt_module module) {
	mpt_context *ctx = module.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_compare_ranks");
	mpt__module *found = w ? mpt__module_at(ctx, module) : NULL;
	if (!found || mpt__freeze(ctx, found) != MPT_OK ||
		!mpt__tickets_agree(ctx, w, "mpt_compare_ranks", NULL, 0) ||
		!mpt__nets_agree(ctx, w, found))
		return mpt__status_of(ctx);
	return mpt__compare_values(ctx, w, found);
}

/* ----
 * parallel/buckets.c: gradients on their way between ranks.
 *
 * All gradients of a net have a place in one flat array, in the order in which they become ready.
 * A piece of it, a bucket, travels once the last of its gradients is there; buckets start in their
 * order, which is the same on all ranks, whatever is ready first on one.
 *
 * Deterministic sums are those of a tree over the batches of a step, numbered 0 to n - 1: node k of
 * level l is the sum of batches k 2^l to (k + 1) 2^l - 1, as far as there are any, and that is its
 * left half plus its right half. A rank holds the largest nodes that its own batches make up; the
 * rest is made of those of all ranks. Each rank sums one part of each bucket: it gets that part of
 * everybody's nodes, and its sums go to all.
 * ---- */

/* ==== The tree ==== */

enum { MPT__NODES = 48 };	/* of a rank at a time; two for each level of at most 2^20 batches */

typedef struct {
	int64_t start;
	int level;
} mpt__node;

/* Nodes that stand beside each other and wait for what lies between them and the root. */
typedef struct {
	int64_t batches;	/* of the whole tree */
	int count;
	mpt__node node[MPT__NODES];
} mpt__nodes;

/* Adds a node behind those that are there. Returns how often the last one then is to be added to
   the one before it, which takes its place. */
static int mpt__nodes_push(mpt__nodes *nodes, mpt__node node) {
	int joins = 0;
	nodes->node[nodes->count++] = node;
	for (;;) {
		mpt__node *last = &nodes->node[nodes->count - 1], *before = last - 1;
		const int64_t width = INT64_C(1) << last->level;
		const bool left = (last->start >> last->level & 1) == 0;
		if (left && last->start + width >= nodes->batches && width < nodes->batches) {
			last->level++;	/* there is no right half */
		} else if (!left && nodes->count > 1 && before->level == last->level &&
			before->start + width == last->start) {
			before->level++;
			nodes->count--;
			joins++;
		} else {
			return joins;
		}
	}
}

/* The nodes that `count` batches from `first` on make up, and how many stood there at most. */
static int mpt__nodes_of(mpt__nodes *nodes, int64_t first, int64_t count, int64_t batches) {
	int most = 0;
	nodes->batches = batches;
	nodes->count = 0;
	for (int64_t i = 0; i < count; i++) {
		const mpt__node leaf = {first + i, 0};
		if (nodes->count + 1 > most) most = nodes->count + 1;
		mpt__nodes_push(nodes, leaf);
	}
	return most;
}

static void mpt__add_floats(float *to, const float *from, int64_t count) {
	for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

/* ==== What is kept ==== */

typedef struct {
	uint32_t parameter;	/* index in ctx->parameters */
	int32_t bucket;
	int64_t offset, numel;	/* in the flat array */
	uint32_t last;			/* number of the record of this pass behind which it is ready; 0: none */
	int32_t ready;			/* its place among those that became ready, in the pass that looked */
} mpt__gradient_slice;

typedef struct {
	int64_t first, slices;	/* among the slices */
	int64_t offset, count;	/* in the flat array; a multiple of the world */
	int64_t waits;			/* gradients that are still to come */
	int requests;
	MPI_Request request[MPT__NODES];
} mpt__bucket;

/* What ranks tell each other with each reduction. */
typedef struct {
	int64_t reduction;
	uint64_t used;	/* which parameters have a gradient */
	uint64_t sums;	/* what the reduction before has given */
	int32_t failed;
	int32_t nonfinite;	/* the last such parameter, where backward begins; -1: none */
} mpt__report;

typedef struct mpt__net {
	mpt_data_parallel_config config;
	mpt_module module;
	uint32_t storage, flat[MPT__NODES], received;	/* storages */
	int64_t count;		/* of slices */
	mpt__gradient_slice *slices;	/* in the order of buckets */
	int32_t *slice_of;	/* by parameter: 1 + the slice; 0: none */
	int64_t known;		/* parameters that it has places for */
	int32_t *order;		/* scratch: by slice */
	uint8_t *used;		/* by slice: it has a gradient, of some batch so far */
	mpt__report *reports;
	int64_t bucket_count, floats, bucket_floats;
	mpt__bucket *buckets;
	int levels;			/* flat arrays */
	int pieces;			/* nodes of the rank that has most at the end */
	mpt__nodes nodes;	/* of this rank, so far */
	int joins;			/* in this pass */
	float *level[MPT__NODES];
	float *incoming;
	int64_t micro;		/* batches that are in */
	int64_t reductions;	/* so far */
	int64_t no_sync;	/* nested */
	bool reducing, collecting;	/* in this pass; collecting: each pass is a leaf of the tree */
	bool ordered;				/* buckets follow the order in which gradients become ready */
	bool buffers;				/* the net has running statistics */
	bool due;					/* they are to be broadcast when the step ends */
	int32_t became_ready;
	int64_t next, spread, done;	/* buckets that have started, are summed, are there */
	uint64_t sums;
	int32_t nonfinite;
	struct mpt__norm_sync *sync;	/* of batch norms, parallel/norms.c; NULL: none */
} mpt__net;

static mpt__net *mpt__net_of(const mpt__world *w) { return w ? (mpt__net *)w->net : NULL; }

/* ==== Layout ==== */

/* Puts slices into buckets, in their order. */
static void mpt__net_lay_out(mpt__net *n, int world) {
	int64_t at = 0;
	mpt__bucket *bucket = NULL;
	n->bucket_count = 0;
	for (int64_t i = 0; i < n->count; i++) {
		mpt__gradient_slice *slice = &n->slices[i];
		if (!bucket || at - bucket->offset >= n->bucket_floats) {
			if (bucket) at = bucket->offset + bucket->count;
			bucket = &n->buckets[n->bucket_count++];
			mpt__zero(*bucket);
			bucket->first = i, bucket->offset = at;
		}
		slice->offset = at;
		slice->bucket = (int32_t)(n->bucket_count - 1);
		n->slice_of[slice->parameter] = (int32_t)i + 1;
		at += slice->numel;
		bucket->slices++;
		bucket->count = (at - bucket->offset + world - 1) / world * world;
	}
	n->floats = bucket ? bucket->offset + bucket->count : 0;
}

/* What fills buckets up travels, too. */
static void mpt__net_clear_gaps(mpt__net *n, int level) {
	for (int64_t b = 0; b < n->bucket_count; b++) {
		const mpt__bucket *bucket = &n->buckets[b];
		const mpt__gradient_slice *last = &n->slices[bucket->first + bucket->slices - 1];
		const int64_t end = last->offset + last->numel;
		memset(n->level[level] + end, 0,
			(size_t)(bucket->offset + bucket->count - end) * sizeof(float));
	}
}

/* ==== One bucket ==== */

/* Copies floats; whether one of them is not finite. */
static bool mpt__copy_looking(float *to, const float *from, int64_t count) {
	uint32_t bad = 0;
	for (int64_t i = 0; i < count; i++) {
		uint32_t bits;
		memcpy(&bits, &from[i], sizeof bits);
		memcpy(&to[i], &bits, sizeof bits);
		bad |= (uint32_t)((bits & 0x7f800000u) == 0x7f800000u);
	}
	return bad != 0;
}

/* Takes the gradients of a bucket along. */
static void mpt__bucket_pack(mpt_context *ctx, mpt__net *n, const mpt__bucket *bucket, float *to) {
	for (int64_t i = bucket->first; i < bucket->first + bucket->slices; i++) {
		const mpt__gradient_slice *slice = &n->slices[i];
		const mpt__parameter *parameter = &ctx->parameters[slice->parameter];
		const mpt__block *block = &ctx->blocks[parameter->block];
		if (!parameter->has_grad || !block->gradients) {
			memset(to + slice->offset, 0, (size_t)slice->numel * sizeof(float));
			continue;
		}
		n->used[i] = 1;
		const float *from = (const float *)ctx->data[block->gradients] + parameter->offset;
		if (mpt__copy_looking(to + slice->offset, from, slice->numel) &&
			(int32_t)slice->parameter > n->nonfinite)
			n->nonfinite = (int32_t)slice->parameter;
	}
}

/* Sends a bucket on its way. */
static int mpt__bucket_start(const mpt__world *w, mpt__net *n, mpt__bucket *bucket) {
	const int64_t part = bucket->count / w->world;
	bucket->requests = 0;
	if (w->world == 1) return MPI_SUCCESS;
	if (!n->config.deterministic) {
		bucket->requests = 1;
		return MPI_Iallreduce(MPI_IN_PLACE, n->level[0] + bucket->offset, (int)bucket->count,
			MPI_FLOAT, MPI_SUM, w->comm[MPT__MPI_SUMS], &bucket->request[0]);
	}
	float *to = n->incoming + bucket->offset * n->pieces;
	int code = MPI_SUCCESS;
	for (int i = 0; i < n->pieces && code == MPI_SUCCESS; i++, to += bucket->count)
		code = MPI_Ialltoall(n->level[i] + bucket->offset, (int)part, MPI_FLOAT, to, (int)part,
			MPI_FLOAT, w->comm[MPT__MPI_SUMS], &bucket->request[bucket->requests++]);
	return code;
}

/* Sums this rank's part of a bucket in the order of the tree, into its place in the flat array. */
static void mpt__bucket_sum(const mpt__world *w, mpt__net *n, const mpt__bucket *bucket) {
	const int64_t part = bucket->count / w->world, batches = n->config.micro_batches;
	float *from = n->incoming + bucket->offset * n->pieces, *sum[MPT__NODES];
	mpt__nodes tree, own;
	tree.batches = batches * w->world;
	tree.count = 0;
	for (int r = 0; r < w->world; r++) {
		mpt__nodes_of(&own, r * batches, batches, tree.batches);
		for (int i = 0; i < own.count; i++) {
			int top = tree.count;
			sum[top] = from + i * bucket->count + r * part;
			for (int j = mpt__nodes_push(&tree, own.node[i]); j > 0; j--, top--)
				mpt__add_floats(sum[top - 1], sum[top], part);
		}
	}
	memcpy(n->level[0] + bucket->offset + w->rank * part, sum[0], (size_t)part * sizeof(float));
}

static int mpt__bucket_spread(const mpt__world *w, mpt__net *n, mpt__bucket *bucket) {
	const int part = (int)(bucket->count / w->world);
	bucket->requests = 0;
	if (w->world == 1 || !n->config.deterministic) return MPI_SUCCESS;
	mpt__bucket_sum(w, n, bucket);
	bucket->requests = 1;
	return MPI_Iallgather(MPI_IN_PLACE, part, MPI_FLOAT, n->level[0] + bucket->offset, part,
		MPI_FLOAT, w->comm[MPT__MPI_RESULTS], &bucket->request[0]);
}

/* Moves all that can be moved on. */
static int mpt__buckets_poll(const mpt__world *w, mpt__net *n) {
	int code = MPI_SUCCESS, done = 1;
	while (n->spread < n->next && code == MPI_SUCCESS && done) {
		code = mpt__mpi_test(n->buckets[n->spread].requests, n->buckets[n->spread].request, &done);
		if (code == MPI_SUCCESS && done)
			code = mpt__bucket_spread(w, n, &n->buckets[n->spread++]);
	}
	for (done = 1; n->done < n->spread && code == MPI_SUCCESS && done;) {
		code = mpt__mpi_test(n->buckets[n->done].requests, n->buckets[n->done].request, &done);
		if (done && code == MPI_SUCCESS) n->done++;
	}
	return code;
}

/* Takes along what is ready, in order; `all`: what has not come by now never will. */
static int mpt__buckets_advance(mpt_context *ctx, const mpt__world *w, mpt__net *n, bool all) {
	int code = MPI_SUCCESS;
	while (n->next < n->bucket_count && code == MPI_SUCCESS &&
		(all || n->buckets[n->next].waits == 0)) {
		mpt__bucket *bucket = &n->buckets[n->next++];
		int top = n->collecting ? n->nodes.count : 0;
		mpt__bucket_pack(ctx, n, bucket, n->level[top]);
		for (int j = 0; j < n->joins; j++, top--)
			mpt__add_floats(n->level[top - 1] + bucket->offset, n->level[top] + bucket->offset,
				bucket->count);
		if (n->reducing) code = mpt__bucket_start(w, n, bucket);
	}
	return n->reducing && code == MPI_SUCCESS ? mpt__buckets_poll(w, n) : code;
}

/* ==== Back into gradients ==== */

/* Writes count floats times a factor; returns what tells them from others. */
static uint64_t mpt__scale_summing(float *to, const float *from, float factor, int64_t count) {
	uint64_t sum = 0;
	for (int64_t i = 0; i < count; i++) {
		uint32_t bits;
		to[i] = from[i] * factor;
		memcpy(&bits, &to[i], sizeof bits);
		sum += bits;
	}
	return sum;
}

static mpt_status mpt__bucket_unpack(
	mpt_context *ctx, mpt__net *n, const mpt__bucket *bucket, float factor) {
	for (int64_t i = bucket->first; i < bucket->first + bucket->slices; i++) {
		const mpt__gradient_slice *slice = &n->slices[i];
		mpt__parameter *parameter = &ctx->parameters[slice->parameter];
		if (!n->used[i]) continue;
		if (!mpt__parameter_gradient(ctx, parameter->tensor)) return ctx->base.status;
		if (!parameter->has_grad) mpt__note_scale(ctx, parameter, false);
		parameter->has_grad = true;
		const mpt__block *block = &ctx->blocks[parameter->block];
		const uint64_t sum =
			mpt__scale_summing((float *)ctx->data[block->gradients] + parameter->offset,
				n->level[0] + slice->offset, factor, slice->numel);
		n->sums = mpt__hash_u64(n->sums, sum);
	}
	return MPT_OK;
}

/* ----
 * parallel/norms.c: batch norms whose statistics are those of the batches of all ranks.
 *
 * The kernel of the norm stays as it is. Forward it is given a mean and variance, which are made
 * here before it runs. Backward it takes off the means of this rank's gradients, as it always does,
 * and what those of all ranks would take off besides is taken off here behind it: a small
 * correction, as batches are alike. Sums are in double, over ranks in their order.
 * ---- */

enum { MPT__SYNC_CHANNELS = 8192, MPT__SYNC_PIECE = 256 };

/* What is done with each element x of channel c, forward and backward; dy is behind relu. */
typedef enum {
	MPT__SYNC_MEAN,		/* a[c] += x */
	MPT__SYNC_SQUARES,	/* b[c] += (x - mean[c])^2 */
	MPT__SYNC_SLOPES,	/* a[c] += dy, b[c] += dy (x - mean[c]) */
	MPT__SYNC_CORRECT	/* dx += a[c] + b[c] (x - mean[c]) */
} mpt__sync_pass;

typedef struct mpt__norm_sync {
	uint32_t storage, variance;	/* in which this lies; what the kernel reads where nobody asks */
	double *mine, *all;			/* the number of elements, then two sums for each channel */
	double *mean, *a, *b;
	double total;				/* elements of each channel in the last forward, of all ranks */
	MPI_Request request;
	bool under_way;	/* sums of the backward that is running */
} mpt__norm_sync;

/* ==== Elements ==== */

/* An operand of the norm's, [N, 1, C, S], or one number for each channel. */
static bool mpt__norm_has(const mpt__launch *launch, int i) {
	return i < launch->n_operands && launch->operand[i].storage != 0;
}

static void mpt__channels_get(
	const mpt_context *ctx, const mpt__launch *launch, int i, int64_t channels, double *to) {
	const mpt__operand *o = &launch->operand[i];
	for (int64_t c = 0; c < channels && !mpt__norm_has(launch, i); c++) to[c] = 1.0;
	if (mpt__norm_has(launch, i))
		mpt__load_f64(to, ctx->data[o->storage], o->dtype, o->offset, 1, channels);
}

/* Where element `at` of a line lies; lines go along channels, or along what is in one. */
static int64_t mpt__line_place(
	const mpt__operand *o, int64_t n, int64_t line, int64_t at, bool along_channels) {
	return o->offset + n * o->stride[0] + line * o->stride[along_channels ? 3 : 2] +
		at * o->stride[along_channels ? 2 : 3];
}

static void mpt__line_get(const mpt_context *ctx, const mpt__operand *o, const int64_t where[3],
	bool along, int64_t count, double *to) {
	mpt__load_f64(to, ctx->data[o->storage], o->dtype,
		mpt__line_place(o, where[0], where[1], where[2], along), o->stride[along ? 2 : 3], count);
}

static void mpt__sync_piece(mpt_context *ctx, const mpt__launch *launch, const mpt__norm_sync *sync,
	mpt__sync_pass pass, const int64_t where[3], int64_t count, bool along) {
	double x[MPT__SYNC_PIECE], y[MPT__SYNC_PIECE], gate[MPT__SYNC_PIECE];
	static const int of[] = {0, 0, 1, 6};
	const mpt__operand *o = &launch->operand[0], *other = &launch->operand[of[pass]];
	const int by = along ? 1 : 0;
	const int64_t c = along ? where[2] : where[1];
	const double *mean = sync->mean + c;
	double *a = sync->a + c, *b = sync->b + c;
	mpt__line_get(ctx, o, where, along, count, x);
	if (pass >= MPT__SYNC_SLOPES) mpt__line_get(ctx, other, where, along, count, y);
	if (pass == MPT__SYNC_SLOPES && launch->index[2] && mpt__norm_has(launch, 5)) {
		mpt__line_get(ctx, &launch->operand[5], where, along, count, gate);
		for (int64_t i = 0; i < count; i++) y[i] = gate[i] > 0 ? y[i] : 0;
	}
	for (int64_t i = 0, k = 0; i < count; i++, k += by) {
		switch (pass) {
		case MPT__SYNC_MEAN: a[k] += x[i]; break;
		case MPT__SYNC_SQUARES: b[k] += (x[i] - mean[k]) * (x[i] - mean[k]); break;
		case MPT__SYNC_SLOPES: a[k] += y[i], b[k] += y[i] * (x[i] - mean[k]); break;
		case MPT__SYNC_CORRECT: y[i] += a[k] + b[k] * (x[i] - mean[k]); break;
		default: break;
		}
	}
	if (pass == MPT__SYNC_CORRECT)
		mpt__store_f64(ctx->data[other->storage], other->dtype,
			mpt__line_place(other, where[0], where[1], where[2], along),
			other->stride[along ? 2 : 3], y, count);
}

/* All elements, along memory where x lies so. */
static void mpt__sync_pass_over(
	mpt_context *ctx, const mpt__launch *launch, const mpt__norm_sync *sync, mpt__sync_pass pass) {
	const mpt__operand *x = &launch->operand[0];
	const bool along = x->shape[3] == 1 || (x->stride[2] == 1 && x->stride[3] != 1);
	const int64_t lines = x->shape[along ? 3 : 2], length = x->shape[along ? 2 : 3];
	for (int64_t n = 0; n < x->shape[0]; n++)
		for (int64_t line = 0; line < lines; line++)
			for (int64_t at = 0; at < length; at += MPT__SYNC_PIECE) {
				const int64_t where[3] = {n, line, at}, left = length - at, most = MPT__SYNC_PIECE;
				mpt__sync_piece(ctx, launch, sync, pass, where,
					left < most ? left : most, along);
			}
}

/* ==== Between ranks ==== */

static int mpt__sync_send(const mpt__world *w, mpt__norm_sync *sync, int64_t channels) {
	const int count = (int)(1 + 2 * channels);
	memcpy(sync->mine + 1, sync->a, (size_t)channels * sizeof(double));
	memcpy(sync->mine + 1 + channels, sync->b, (size_t)channels * sizeof(double));
	return MPI_Iallgather(sync->mine, count, MPI_DOUBLE, sync->all, count, MPI_DOUBLE,
		w->comm[MPT__MPI_CALLS], &sync->request);
}

/* Mean and variance of the whole batch for the kernel that is about to run. */
static void mpt__sync_forward(
	mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, mpt__launch *launch) {
	const int64_t channels = launch->operand[0].shape[2];
	const double own = (double)(launch->operand[0].shape[0] * launch->operand[0].shape[3]);
	const size_t bytes = (size_t)channels * sizeof(double);
	memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
	mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_MEAN);
	for (int64_t c = 0; c < channels; c++) sync->a[c] /= own;
	memcpy(sync->mean, sync->a, bytes);
	mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_SQUARES);
	sync->mine[0] = own;
	int code = mpt__sync_send(w, sync, channels);
	if (mpt__world_wait(ctx, w, &sync->request, 1, code) != MPT_OK) return;
	memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
	sync->total = 0;
	for (int r = 0; r < w->world; r++) {
		const double *from = sync->all + r * (1 + 2 * channels);
		sync->total += from[0];
		for (int64_t c = 0; c < channels; c++) sync->a[c] += from[0] * from[1 + c];
	}
	for (int64_t c = 0; c < channels; c++) sync->a[c] /= sync->total;
	for (int r = 0; r < w->world; r++) {
		const double *from = sync->all + r * (1 + 2 * channels);
		for (int64_t c = 0; c < channels; c++) {
			const double off = from[1 + c] - sync->a[c];
			sync->b[c] += from[1 + channels + c] + from[0] * off * off;
		}
	}
	for (int64_t c = 0; c < channels; c++) sync->b[c] /= sync->total;
	if (!mpt__norm_has(launch, 8)) {
		*mpt__operand_at(launch, 8) = launch->operand[7];
		launch->operand[8].storage = sync->variance, launch->operand[8].offset = 0;
	}
	for (int i = 6; i <= 8; i += 2) {
		mpt__operand *o = &launch->operand[i];
		o->access = MPT__READ;
		mpt__store_f64(ctx->data[o->storage], o->dtype, o->offset, 1,
			i == 6 ? sync->a : sync->b, channels);
	}
	launch->index[1] = 1;
}

/* This rank's sums of gradients leave while the kernel runs. */
static void mpt__sync_backward(
	mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, const mpt__launch *launch) {
	const int64_t channels = launch->operand[0].shape[2];
	const size_t bytes = (size_t)channels * sizeof(double);
	memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
	mpt__channels_get(ctx, launch, 3, channels, sync->mean);
	mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_SLOPES);
	sync->mine[0] = (double)(launch->operand[0].shape[0] * launch->operand[0].shape[3]);
	const int code = mpt__sync_send(w, sync, channels);
	sync->under_way = code == MPI_SUCCESS;
	if (code != MPI_SUCCESS) mpt__mpi_failed(ctx, w, code);
}

static void mpt__sync_behind(
	mpt_context *ctx, mpt__world *w, mpt__norm_sync *sync, const mpt__launch *launch) {
	const int64_t channels = launch->operand[0].shape[2];
	const size_t bytes = (size_t)channels * sizeof(double);
	double total = 0;
	sync->under_way = false;
	if (mpt__world_wait(ctx, w, &sync->request, 1, MPI_SUCCESS) != MPT_OK ||
		!mpt__norm_has(launch, 6))
		return;
	memset(sync->a, 0, bytes), memset(sync->b, 0, bytes);
	for (int r = 0; r < w->world; r++) {
		const double *from = sync->all + r * (1 + 2 * channels);
		total += from[0];
		for (int64_t c = 0; c < channels; c++)
			sync->a[c] += from[1 + c], sync->b[c] += from[1 + channels + c];
	}
	double *weight = sync->all, *rstd = sync->all + channels;	/* what was in them has been added */
	mpt__channels_get(ctx, launch, 2, channels, weight);
	mpt__channels_get(ctx, launch, 4, channels, rstd);
	for (int64_t c = 0; c < channels; c++) {
		const double scale = weight[c] * rstd[c], own = sync->mine[0];
		sync->a[c] = scale * (sync->mine[1 + c] / own - sync->a[c] / total);
		sync->b[c] = scale * rstd[c] * rstd[c] *
			(sync->mine[1 + channels + c] / own - sync->b[c] / total);
	}
	mpt__sync_pass_over(ctx, launch, sync, MPT__SYNC_CORRECT);
}

/* ==== What is heard ==== */

static bool mpt__sync_concerns(mpt_context *ctx, const mpt__world *w, const mpt__launch *launch) {
	const bool norm = launch->kernel == MPT__K_NORM || launch->kernel == MPT__K_NORM_BACKWARD;
	if (!norm || !launch->index[0] || launch->index[1] || w->lost || !mpt__ok(ctx)) return false;
	if (launch->operand[0].shape[2] <= MPT__SYNC_CHANNELS) return true;
	return mpt__reject(ctx, UNSUPPORTED, "sync_batch_norm: %lld channels; at most %d",
		launch->operand[0].shape[2], (int)MPT__SYNC_CHANNELS);
}

static void mpt__sync_launches(mpt_context *ctx, void *user, const void *what) {
	MPT__PLAIN_FLOATS;
	mpt__launch *launch = (mpt__launch *)(uintptr_t)what;
	mpt__world *w = (mpt__world *)user;
	mpt__norm_sync *sync = mpt__net_of(w)->sync;
	if (launch->kernel == MPT__K_RUNNING_STATS && mpt__norm_has(launch, 0) && sync->total > 1)
		launch->imm[1] = sync->total / (sync->total - 1);
	if (!mpt__sync_concerns(ctx, w, launch)) return;
	if (launch->kernel == MPT__K_NORM)
		mpt__sync_forward(ctx, w, sync, launch);
	else
		mpt__sync_backward(ctx, w, sync, launch);
}

static void mpt__sync_launched(mpt_context *ctx, void *user, const void *what) {
	MPT__PLAIN_FLOATS;
	const mpt__launch *launch = (const mpt__launch *)what;
	mpt__world *w = (mpt__world *)user;
	mpt__norm_sync *sync = mpt__net_of(w)->sync;
	if (launch->kernel == MPT__K_NORM_BACKWARD && sync->under_way)
		mpt__sync_behind(ctx, w, sync, launch);
}

/* ==== Making ==== */

static void mpt__sync_end(mpt_context *ctx, const mpt__world *w, mpt__norm_sync *sync) {
	mpt__listen_no_more(ctx, MPT__LAUNCHES, mpt__sync_launches);
	mpt__listen_no_more(ctx, MPT__LAUNCHED, mpt__sync_launched);
	if (!sync || w->lost) return;
	mpt__scratch_end(ctx, sync->variance);
	mpt__storage_release(ctx, sync->storage);
}

static mpt__norm_sync *mpt__sync_begin(mpt_context *ctx, mpt__world *w) {
	const int64_t each = (1 + 2 * MPT__SYNC_CHANNELS) * (int64_t)sizeof(double);
	const int64_t head = ((int64_t)sizeof(mpt__norm_sync) + 63) / 64 * 64;
	const int64_t bytes =
		head + each * (w->world + 1) + 3 * MPT__SYNC_CHANNELS * (int64_t)sizeof(double);
	uint32_t storage = mpt__storage_new(ctx, bytes, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
	if (!storage) return NULL;
	mpt__norm_sync *sync = (mpt__norm_sync *)ctx->data[storage];
	sync->storage = storage;
	sync->mine = (double *)(void *)((char *)sync + head);
	sync->all = sync->mine + 1 + 2 * MPT__SYNC_CHANNELS;
	sync->mean = sync->all + w->world * (1 + 2 * MPT__SYNC_CHANNELS);
	sync->a = sync->mean + MPT__SYNC_CHANNELS, sync->b = sync->a + MPT__SYNC_CHANNELS;
	sync->variance = mpt__storage_new(
		ctx, MPT__SYNC_CHANNELS * 8, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
	if (sync->variance && w->world > 1) {
		mpt__listen(ctx, MPT__LAUNCHES, mpt__sync_launches, w);
		mpt__listen(ctx, MPT__LAUNCHED, mpt__sync_launched, w);
	}
	return sync;
}

/* ----
 * parallel/data.c: data parallel: a backward pass whose gradients are those of all ranks.
 * ---- */

enum { MPT__MOST_BATCHES = 1 << 20 };

/* ==== A pass ==== */

/* Whether the net is as it was when mpt_data_parallel looked, else an error. */
static bool mpt__net_stands(mpt_context *ctx, const mpt__net *n) {
	for (int64_t i = 0; i < n->count; i++) {
		const mpt__parameter *parameter = &ctx->parameters[n->slices[i].parameter];
		if (!parameter->live || parameter->numel != n->slices[i].numel)
			return mpt__reject(ctx, STATE,
				"the net of mpt_data_parallel was destroyed or changed; call it again, for what "
				"is trained now");
	}
	return true;
}

static bool mpt__net_has_gradients(const mpt_context *ctx, const mpt__net *n) {
	for (int64_t i = 0; i < n->count; i++)
		if (ctx->parameters[n->slices[i].parameter].has_grad) return true;
	return false;
}

/* What is to become of this pass: whether it ends in a reduction. */
static mpt_status mpt__pass_kind(mpt_context *ctx, mpt__net *n) {
	const int64_t most = n->config.micro_batches;
	const bool left = mpt__net_has_gradients(ctx, n);
	n->collecting = n->config.deterministic && most > 1;
	if (!left) n->micro = 0;	/* mpt_zero_grad or mpt_clear_error: from the beginning */
	if (n->no_sync > 0 && most > 1)
		return mpt__error(ctx, STATE,
			"mpt_no_sync_begin is for micro_batches = 1: more of them keep count themselves");
	if (left && n->micro == 0 && most > 1)
		return mpt__error(ctx, STATE,
			"there are gradients before the first of %lld micro-batches; call mpt_zero_grad behind "
			"each optimizer step",
			most);
	n->reducing = n->no_sync == 0 && n->micro == most - 1;
	if (n->micro == 0) {
		n->nodes.count = 0;
		n->nonfinite = -1;
		memset(n->used, 0, (size_t)n->count);
	}
	for (int64_t i = 0; i < n->count && n->collecting; i++)	/* they have been taken along */
		ctx->parameters[n->slices[i].parameter].has_grad = false;
	return MPT_OK;
}

/* Where the gradient of a parameter of the net goes; NULL: it is none. */
static mpt__gradient_slice *mpt__slice_of(const mpt__net *n, const mpt__tensor *tensor) {
	if (!tensor || !tensor->parameter || (int64_t)tensor->parameter > n->known) return NULL;
	const int32_t at = n->slice_of[tensor->parameter - 1];
	return at ? &n->slices[at - 1] : NULL;
}

/* Notes behind which record each gradient is ready, and for how many each bucket waits. */
static void mpt__pass_look(mpt__net *n, const mpt__record *order) {
	for (int64_t i = 0; i < n->count; i++) n->slices[i].last = 0, n->slices[i].ready = INT32_MAX;
	for (int64_t b = 0; b < n->bucket_count; b++) n->buckets[b].waits = 0;
	for (const mpt__record *record = order; record; record = record->next)
		for (int i = 0; i < record->n_in; i++) {
			mpt__gradient_slice *slice = mpt__slice_of(n, record->in[i]);
			if (slice) slice->last = record->number;
		}
	for (int64_t i = 0; i < n->count; i++)
		if (n->slices[i].last) n->buckets[n->slices[i].bucket].waits++;
	n->next = n->spread = n->done = 0;
	n->became_ready = 0;
}

/* Records the pass's leaf in the tree; its sums are done bucket by bucket. */
static void mpt__pass_leaf(const mpt__world *w, mpt__net *n) {
	mpt__nodes after = n->nodes;
	const mpt__node leaf = {w->rank * n->config.micro_batches + n->micro, 0};
	n->joins = n->collecting ? mpt__nodes_push(&after, leaf) : 0;
}

static mpt_status mpt__pass_begin(
	mpt_context *ctx, mpt__world *w, mpt__net *n, const mpt__record *order) {
	if (!mpt__ok(ctx) || !mpt__net_stands(ctx, n)) return ctx->base.status;
	if (mpt__pass_kind(ctx, n) != MPT_OK) return ctx->base.status;
	mpt__pass_look(n, order);
	mpt__pass_leaf(w, n);
	return MPT_OK;
}

/* A record has run: what was waiting for it is ready. */
static mpt_status mpt__pass_record(
	mpt_context *ctx, mpt__world *w, mpt__net *n, const mpt__record *record) {
	for (int i = 0; i < record->n_in; i++) {
		mpt__gradient_slice *slice = mpt__slice_of(n, record->in[i]);
		if (!slice || slice->last != record->number || slice->ready != INT32_MAX) continue;
		slice->ready = n->became_ready++;
		n->buckets[slice->bucket].waits--;
	}
	int code = mpt__buckets_advance(ctx, w, n, false);
	return code == MPI_SUCCESS ? MPT_OK : mpt__mpi_failed(ctx, w, code);
}

/* ==== Its end ==== */

static uint64_t mpt__used_hash(const mpt__net *n) {
	return mpt__hash_bytes(0, n->used, (size_t)n->count);
}

/* Waits until all buckets are there and all ranks have reported. */
static mpt_status mpt__pass_drain(mpt_context *ctx, mpt__world *w, mpt__net *n, bool failed) {
	mpt__report mine;
	MPI_Request request = MPI_REQUEST_NULL;
	const double start = MPI_Wtime();
	mpt__patience patience = mpt__patience_begin();
	int reported = 0, code = mpt__buckets_advance(ctx, w, n, true);
	mpt__zero(mine);
	mine.reduction = n->reductions, mine.used = mpt__used_hash(n), mine.sums = n->sums;
	mine.failed = failed, mine.nonfinite = n->nonfinite;
	if (code == MPI_SUCCESS)
		code = MPI_Iallgather(&mine, (int)sizeof mine, MPI_BYTE, n->reports, (int)sizeof mine,
			MPI_BYTE, w->comm[MPT__MPI_CALLS], &request);
	for (;;) {
		if (code == MPI_SUCCESS) code = mpt__mpi_test(1, &request, &reported);
		if (code == MPI_SUCCESS) code = mpt__buckets_poll(w, n);
		if (code != MPI_SUCCESS) return mpt__mpi_failed(ctx, w, code);
		if (reported && n->done == n->bucket_count) break;
		if (mpt__patience_lasts(ctx, w, &patience) != MPT_OK) return ctx->base.status;
	}
	w->stats.seconds_waited += MPI_Wtime() - start;
	return MPT_OK;
}

/* A rank has failed in this pass: it says how. */
static MPT__COLD mpt_status mpt__pass_failed(mpt_context *ctx, mpt__world *w, int rank) {
	char text[MPT__TALK_BYTES];
	memset(text, 0, sizeof text);
	mpt__format_text(text, sizeof text, "%.300s", ctx->base.message);
	mpt__world_spread(ctx, w, text, (int64_t)sizeof text, rank);
	return mpt__error(ctx, STATE, "rank %d failed: %s", rank, text);
}

/* Says once which rank gave what is not finite; a scaler expects that now and then. */
static void mpt__pass_nonfinite(mpt_context *ctx, mpt__world *w, mpt__net *n) {
	for (int r = 0; r < w->world; r++) {
		const int32_t index = n->reports[r].nonfinite;
		if (index < 0) continue;
		const char *path = "?";
		if (index < ctx->parameter_count) path = ctx->parameters[index].path;
		w->stats.nonfinite++;
		w->stats.nonfinite_rank = r;
		mpt__format_text(w->stats.nonfinite_parameter, sizeof w->stats.nonfinite_parameter, "%s",
			path);
		mpt__log(&ctx->base, ctx->loss_scaler == MPT__PLAIN ? MPT_LOG_WARNING : MPT_LOG_DEBUG,
			"mpt_backward: the gradient of %s on rank %d is not finite, and so is its mean on all "
			"ranks",
			path, r);
		return;
	}
}

/* Looks at what all ranks have reported. */
static mpt_status mpt__pass_check(mpt_context *ctx, mpt__world *w, mpt__net *n) {
	const mpt__report *first = &n->reports[0];
	bool differ = false;
	for (int r = 0; r < w->world; r++)
		if (n->reports[r].failed) return mpt__pass_failed(ctx, w, r);
	for (int r = 1; r < w->world; r++) {
		const mpt__report *report = &n->reports[r];
		if (report->reduction != first->reduction)
			return mpt__error(ctx, STATE,
				"rank %d is in reduction %lld, rank 0 in %lld: the ranks have lost step", r,
				report->reduction, first->reduction);
		if (report->sums != first->sums)
			return mpt__error(ctx, NUMERIC,
				"in the reduction before, rank %d got other gradients than rank 0, so that their "
				"weights part; mpt_broadcast_module makes them equal",
				r);
		differ |= report->used != first->used;
	}
	mpt__pass_nonfinite(ctx, w, n);
	if (!differ) return MPT_OK;
	MPI_Request request = MPI_REQUEST_NULL;
	int code = MPI_Iallreduce(MPI_IN_PLACE, n->used, (int)n->count, MPI_UNSIGNED_CHAR, MPI_MAX,
		w->comm[MPT__MPI_CALLS], &request);
	return mpt__world_wait(ctx, w, &request, 1, code);
}

/* Buckets in the order in which rank 0 had its gradients ready: once. */
static mpt_status mpt__net_reorder(mpt_context *ctx, mpt__world *w, mpt__net *n) {
	n->ordered = true;
	if (w->world == 1) return MPT_OK;
	for (int64_t i = 0; i < n->count; i++) n->order[i] = -1;
	for (int64_t i = 0; i < n->count; i++)
		if (n->slices[i].ready != INT32_MAX)
			n->order[n->slices[i].ready] = (int32_t)n->slices[i].parameter;
	int64_t kept = n->became_ready;
	for (int64_t i = 0; i < n->count; i++)
		if (n->slices[i].ready == INT32_MAX) n->order[kept++] = (int32_t)n->slices[i].parameter;
	if (mpt__world_spread(ctx, w, n->order, n->count * (int64_t)sizeof *n->order, 0) != MPT_OK)
		return ctx->base.status;
	for (int64_t i = 0; i < n->count; i++) {
		mpt__gradient_slice *slice = &n->slices[i];
		const uint32_t index = (uint32_t)n->order[i];
		if (index >= n->known || !n->slice_of[index])
			return mpt__error(ctx, STATE, "the nets of the ranks have other numbers of parameters "
				"before them; make the same nets in the same order");
		slice->parameter = index;
		slice->numel = ctx->parameters[index].numel;
	}
	mpt__net_lay_out(n, w->world);
	for (int i = 0; i < n->levels; i++) mpt__net_clear_gaps(n, i);
	w->stats.buckets = n->bucket_count;
	w->stats.bytes = n->floats * 4;
	return MPT_OK;
}

/* The mean of all becomes the gradient. */
static mpt_status mpt__pass_reduced(mpt_context *ctx, mpt__world *w, mpt__net *n) {
	const float factor = (float)(1.0 / ((double)n->config.micro_batches * w->world));
	mpt_status status = MPT_OK;
	n->sums = 0;
	for (int64_t b = 0; b < n->bucket_count && status == MPT_OK; b++)
		status = mpt__bucket_unpack(ctx, n, &n->buckets[b], factor);
	n->reductions++;
	w->stats.reductions++;
	n->due = n->buffers && !n->config.keep_buffers;
	if (status == MPT_OK && !n->ordered) status = mpt__net_reorder(ctx, w, n);
	return status;
}

/* Batches of a step draw dropout masks of their own, numbered over all ranks. */
static void mpt__draws_begin(mpt_context *ctx, const mpt__world *w, const mpt__net *n) {
	const uint64_t first = ((uint64_t)w->rank * (uint64_t)n->config.micro_batches +
							   (uint64_t)n->micro)
		<< 32;
	const mpt__object_table *table = &ctx->objects[MPT__MODULE];
	ctx->now.module_calls = first;
	for (int64_t i = 1; i < table->count; i++) {
		mpt__module *module = (mpt__module *)table->rows[i].object;
		if (!module) continue;
		module->draws.step = ctx->now.step;
		module->draws.count = first;
	}
}

static mpt_status mpt__pass_end(mpt_context *ctx, mpt__world *w, mpt__net *n, mpt_status status) {
	if (n->reducing) {	/* also after an error: the others wait for it */
		const mpt_status ours = status;
		status = w->lost ? ctx->base.status : mpt__pass_drain(ctx, w, n, ours != MPT_OK);
		if (status == MPT_OK) status = mpt__pass_check(ctx, w, n);
		if (status == MPT_OK) status = ours;
		if (status == MPT_OK) status = mpt__pass_reduced(ctx, w, n);
	} else if (status == MPT_OK && n->collecting) {
		mpt__buckets_advance(ctx, w, n, true);
	}
	if (status != MPT_OK) {
		n->micro = 0;
		return status;
	}
	if (n->collecting) {
		const mpt__node leaf = {w->rank * n->config.micro_batches + n->micro, 0};
		mpt__nodes_push(&n->nodes, leaf);
	}
	if (n->no_sync == 0) n->micro = (n->micro + 1) % n->config.micro_batches;
	if (n->micro > 0) mpt__draws_begin(ctx, w, n);
	return MPT_OK;
}

/* Backward's way through records. */
static mpt_status mpt__parallel_walk(mpt_context *ctx, mpt__record *order, bool retain) {
	mpt__world *w = mpt__world_of(ctx);
	mpt__net *n = mpt__net_of(w);
	if (!n) return mpt__error(ctx, STATE, "mpt_data_parallel has ended");
	mpt_status status = mpt__pass_begin(ctx, w, n, order);
	if (status != MPT_OK) return status;
	for (mpt__record *record = order; record && status == MPT_OK; record = record->next) {
		status = mpt__backward_record(ctx, record, retain);
		if (status == MPT_OK && n->reducing) status = mpt__pass_record(ctx, w, n, record);
	}
	return mpt__pass_end(ctx, w, n, status);
}

/* ==== What is heard ==== */

/* Another feature may have taken the way through records since. */
static void mpt__parallel_loss(mpt_context *ctx, void *user, const void *what) {
	const mpt__world *w = (const mpt__world *)user;
	(void)what;
	if (w->lost)
		mpt__error(ctx, IO, "ranks were lost: no gradients can be reduced any more");
	else if (ctx->capturing || ctx->recorder)
		mpt__error(ctx, UNSUPPORTED,
			"captured and recorded steps repeat launches alone, which reduces no gradients");
	else if (ctx->walk && ctx->walk != mpt__parallel_walk)
		mpt__error(ctx, UNSUPPORTED,
			"mpt_update_in_backward uses gradients before they are reduced; do without it");
	ctx->walk = ctx->walk ? ctx->walk : mpt__parallel_walk;
}

static void mpt__parallel_repeat(mpt_context *ctx, void *user, const void *what) {
	(void)user, (void)what;
	mpt__error(ctx, UNSUPPORTED,
		"captured steps repeat launches alone, which reduces no gradients; call their function");
}

static void mpt__parallel_step_began(mpt_context *ctx, void *user, const void *what) {
	const mpt__world *w = (const mpt__world *)user;
	(void)what;
	mpt__draws_begin(ctx, w, mpt__net_of(w));
}

/* Running statistics settle when a step ends: then those of rank 0 are for all. */
static void mpt__parallel_step_ended(mpt_context *ctx, void *user, const void *what) {
	mpt__world *w = (mpt__world *)user;
	mpt__net *n = mpt__net_of(w);
	mpt__walk walk;
	mpt__buffer buffer;
	(void)what;
	if (!n->due || w->lost || !mpt__ok(ctx)) return;
	n->due = false;
	mpt__module *module = mpt__module_at(ctx, n->module);
	if (!module) return;
	mpt__walk_begin(&walk, ctx, module);
	walk.buffers = true;
	while (mpt__ok(ctx) && mpt__walk_buffer(&walk, &buffer))
		mpt__spread_tensor(ctx, w, buffer.tensor, 0);
}

static const struct {
	mpt__event event;
	mpt__hear hear;
} mpt__parallel_hears[] = {{MPT__LOSS_KNOWN, mpt__parallel_loss},
	{MPT__REPEAT_BEGAN, mpt__parallel_repeat}, {MPT__STEP_BEGAN, mpt__parallel_step_began},
	{MPT__STEP_ENDED, mpt__parallel_step_ended}};

enum { MPT__PARALLEL_HEARS = sizeof mpt__parallel_hears / sizeof mpt__parallel_hears[0] };

/* ==== Making ==== */

mpt_data_parallel_config mpt_data_parallel_config_default(void) {
	mpt_data_parallel_config config = {1, true, false, INT64_C(4) << 20, false};
	return config;
}

/* Ends what there is. */
static void mpt__net_end(mpt_context *ctx, mpt__world *w) {
	mpt__net *n = mpt__net_of(w);
	if (!n) return;
	for (int i = 0; i < MPT__PARALLEL_HEARS; i++)
		mpt__listen_no_more(ctx, mpt__parallel_hears[i].event, mpt__parallel_hears[i].hear);
	if (ctx->walk == mpt__parallel_walk) ctx->walk = NULL;
	mpt__sync_end(ctx, w, n->sync);
	w->net = NULL, w->net_end = NULL;
	if (w->lost) return;	/* messages may still be on their way into its memory */
	for (int i = 0; i < n->levels; i++) mpt__scratch_end(ctx, n->flat[i]);
	mpt__scratch_end(ctx, n->received);
	mpt__storage_release(ctx, n->storage);
}

static bool mpt__check_data_parallel(mpt_context *ctx, const mpt_data_parallel_config *c) {
	if (!mpt__check_count(ctx, "micro_batches", c->micro_batches, 1) ||
		!mpt__check_count(ctx, "bucket_bytes", c->bucket_bytes, 4))
		return false;
	if (c->micro_batches > MPT__MOST_BATCHES || c->bucket_bytes > mpt__mpi_bytes)
		return mpt__reject(ctx, ARGUMENT,
			"micro_batches %lld, bucket_bytes %lld: at most 2^20, and 1 GB", c->micro_batches,
			c->bucket_bytes);
	return true;
}

/* What has to be the same on all ranks besides the net. */
typedef struct {
	mpt_data_parallel_config config;
	int64_t version;
	char isa[32];
} mpt__terms;

static bool mpt__terms_agree(mpt_context *ctx, mpt__world *w, const mpt_data_parallel_config *c) {
	mpt__terms mine, other;
	mpt__zero(mine);
	mine.config.micro_batches = c->micro_batches, mine.config.bucket_bytes = c->bucket_bytes;
	mine.config.deterministic = c->deterministic, mine.config.keep_buffers = c->keep_buffers;
	mine.config.sync_batch_norm = c->sync_batch_norm;
	mine.version = MPTRAIN_VERSION;
	mpt__format_text(mine.isa, sizeof mine.isa, "%s", ctx->isa_name ? ctx->isa_name : "?");
	const unsigned char *all = mpt__world_gather(ctx, w, &mine, sizeof mine);
	for (int r = 0; all && r < w->world; r++) {
		memcpy(&other, all + (size_t)r * sizeof other, sizeof other);
		if (memcmp(&other, &mine, sizeof mine) == 0) continue;
		if (other.version != mine.version)
			return mpt__reject(ctx, STATE, "rank %d has version %lld of mptrain, rank %d %lld",
				w->rank, mine.version, r, other.version);
		if (strcmp(other.isa, mine.isa) != 0)
			return mpt__reject(ctx, STATE,
				"rank %d computes with %s, rank %d with %.31s, whose results differ in bits; set "
				"MPTRAIN_ISA or config.isa to one that all have",
				w->rank, mine.isa, r, other.isa);
		return mpt__reject(ctx, ARGUMENT,
			"the configs of ranks %d and %d differ: micro_batches %lld and %lld, deterministic %d "
			"and %d, keep_buffers %d and %d, bucket_bytes %lld and %lld, sync_batch_norm %d and %d",
			w->rank, r, mine.config.micro_batches, other.config.micro_batches,
			mine.config.deterministic, other.config.deterministic, mine.config.keep_buffers,
			other.config.keep_buffers, mine.config.bucket_bytes, other.config.bucket_bytes,
			mine.config.sync_batch_norm, other.config.sync_batch_norm);
	}
	return all != NULL;
}

/* The weights that are trained, the last ones first, as backward is likely to have them. */
static int64_t mpt__net_list(
	mpt_context *ctx, mpt__module *module, mpt__gradient_slice *slices, int64_t *total) {
	int64_t count = 0;
	mpt__walk walk;
	const mpt__parameter *parameter;
	mpt__walk_begin(&walk, ctx, module);
	*total = 0;
	while ((parameter = mpt__walk_values(&walk)) != NULL) {
		if (!(parameter->tensor->flags & MPT__REQUIRES_GRAD)) continue;
		*total += parameter->numel;
		if (slices) {
			mpt__zero(slices[count]);
			slices[count].parameter = (uint32_t)(parameter - ctx->parameters);
			slices[count].numel = parameter->numel;
		}
		count++;
	}
	for (int64_t i = 0; slices && i < count / 2; i++) {
		const mpt__gradient_slice slice = slices[i];
		slices[i] = slices[count - 1 - i], slices[count - 1 - i] = slice;
	}
	return count;
}

/* Nodes of the rank that has most: while batches come in, and behind the last one. */
static void mpt__net_depth(mpt__net *n, int world) {
	const int64_t batches = n->config.micro_batches;
	n->levels = n->pieces = 1;
	for (int r = 0; r < world && n->config.deterministic; r++) {
		mpt__nodes nodes;
		const int most = mpt__nodes_of(&nodes, r * batches, batches, batches * world);
		if (most > n->levels) n->levels = most;
		if (nodes.count > n->pieces) n->pieces = nodes.count;
	}
}

/* Flat arrays, with room for what fills buckets up however slices are ordered. */
static bool mpt__net_memory(mpt_context *ctx, mpt__world *w, mpt__net *n, int64_t total) {
	const int64_t buckets = total / n->bucket_floats + 1;
	const int64_t bytes = (total + buckets * w->world) * 4;
	for (int i = 0; i < n->levels; i++) {
		n->flat[i] = mpt__storage_new(ctx, bytes, MPT_MEMORY_GRADIENT, MPT__FROM_DEVICE, true);
		if (!n->flat[i]) return false;
		n->level[i] = (float *)ctx->data[n->flat[i]];
		w->stats.memory += bytes;
	}
	if (!n->config.deterministic || w->world == 1) return true;
	n->received = mpt__storage_new(
		ctx, bytes * n->pieces, MPT_MEMORY_GRADIENT, MPT__FROM_DEVICE, true);
	n->incoming = n->received ? (float *)ctx->data[n->received] : NULL;
	w->stats.memory += bytes * n->pieces;
	return n->received != 0;
}

static void *mpt__carve(char **at, int64_t bytes) {
	void *here = *at;
	*at += (bytes + 63) / 64 * 64;
	return here;
}

/* All that a net needs, in one piece but for the flat arrays. */
static mpt__net *mpt__net_new(mpt_context *ctx, mpt__world *w, mpt__module *module,
	const mpt_data_parallel_config *c) {
	int64_t total, count = mpt__net_list(ctx, module, NULL, &total), known = ctx->parameter_count;
	if (count == 0)
		return mpt__error(ctx, STATE, "the net has no weights that are trained"), (mpt__net *)NULL;
	const int64_t bucket_floats = c->bucket_bytes / 4, buckets = total / bucket_floats + 1;
	const int64_t bytes[] = {(int64_t)sizeof(mpt__net),
		count * (int64_t)sizeof(mpt__gradient_slice), known * 4, count * 4, count,
		w->world * (int64_t)sizeof(mpt__report), buckets * (int64_t)sizeof(mpt__bucket)};
	int64_t all = 0;
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) all += (bytes[i] + 63) / 64 * 64;
	uint32_t storage = mpt__storage_new(ctx, all, MPT_MEMORY_HOST, MPT__FROM_DEVICE, true);
	if (!storage) return NULL;
	char *at = (char *)ctx->data[storage];
	mpt__net *n = (mpt__net *)mpt__carve(&at, bytes[0]);
	n->storage = storage;
	n->config = *c;
	n->slices = (mpt__gradient_slice *)mpt__carve(&at, bytes[1]);
	n->slice_of = (int32_t *)mpt__carve(&at, bytes[2]);
	n->order = (int32_t *)mpt__carve(&at, bytes[3]);
	n->used = (uint8_t *)mpt__carve(&at, bytes[4]);
	n->reports = (mpt__report *)mpt__carve(&at, bytes[5]);
	n->buckets = (mpt__bucket *)mpt__carve(&at, bytes[6]);
	n->count = mpt__net_list(ctx, module, n->slices, &total);
	n->known = known, n->bucket_floats = bucket_floats;
	n->nodes.batches = c->micro_batches * w->world;
	for (int64_t i = 0; i < count; i++)
		if (n->slices[i].numel > INT32_MAX / 2)
			mpt__error(ctx, UNSUPPORTED, "%s has %lld elements: at most 2^30 can travel together",
				ctx->parameters[n->slices[i].parameter].path, n->slices[i].numel);
	mpt__net_depth(n, w->world);
	w->stats.memory = 0;
	w->net = n, w->net_end = mpt__net_end;
	if (!mpt__ok(ctx) || !mpt__net_memory(ctx, w, n, total)) return NULL;
	mpt__net_lay_out(n, w->world);
	return n;
}

/* Whether the ranks list the same weights under the same numbers, as reports name them; n NULL:
   this one has failed, which the others learn here. */
static bool mpt__lists_agree(mpt_context *ctx, mpt__world *w, const mpt__net *n) {
	uint64_t hash = n ? (uint64_t)n->count : 0;
	for (int64_t i = 0; n && i < n->count; i++)
		hash = mpt__hash_u64(hash, (uint64_t)n->slices[i].parameter);
	const int odd = mpt__odd_rank(ctx, w, hash);
	if (odd == -1) return n != NULL;
	return odd >= 0 &&
		mpt__reject(ctx, STATE,
			"ranks 0 and %d do not train the same weights of the net, made other nets before it, "
			"or one of them failed; freeze the same ones, and make the same nets in the same order",
			odd);
}

mpt_status mpt_data_parallel(mpt_module net, const mpt_data_parallel_config *config) {
	MPT__PLAIN_FLOATS;
	mpt_context *ctx = net.context;
	const mpt_data_parallel_config c = config ? *config : mpt_data_parallel_config_default();
	mpt__world *w = mpt__world_enter(ctx, "mpt_data_parallel");
	mpt__module *found = w ? mpt__module_at(ctx, net) : NULL;
	if (!found || !mpt__check_data_parallel(ctx, &c) || mpt__freeze(ctx, found) != MPT_OK)
		return mpt__status_of(ctx);
	if (ctx->in_backward) return mpt__error(ctx, STATE, "a backward pass is under way");
	if (!mpt__tickets_agree(ctx, w, "mpt_data_parallel", NULL, 0) ||
		!mpt__terms_agree(ctx, w, &c) || !mpt__nets_agree(ctx, w, found))
		return ctx->base.status;
	mpt__net_end(ctx, w);
	mpt__net *n = mpt__net_new(ctx, w, found, &c);
	if (mpt__lists_agree(ctx, w, n) && mpt__spread_module(ctx, w, found, 0) == MPT_OK)
		mpt__compare_values(ctx, w, found);
	if (n && mpt__ok(ctx) && c.sync_batch_norm) n->sync = mpt__sync_begin(ctx, w);
	for (int i = 0; n && mpt__ok(ctx) && i < MPT__PARALLEL_HEARS; i++)
		mpt__listen(ctx, mpt__parallel_hears[i].event, mpt__parallel_hears[i].hear, w);
	if (!n || !mpt__ok(ctx)) {
		mpt__net_end(ctx, w);
		return ctx->base.status;
	}
	mpt__walk walk;
	mpt__buffer buffer;
	mpt__walk_begin(&walk, ctx, found);
	n->buffers = mpt__walk_buffer(&walk, &buffer);
	n->module = net;
	w->stats.buckets = n->bucket_count, w->stats.bytes = n->floats * 4;
	mpt__draws_begin(ctx, w, n);
	return MPT_OK;
}

static mpt_status mpt__no_sync(mpt_context *ctx, const char *call, int by) {
	mpt__world *w = mpt__world_enter(ctx, call);
	mpt__net *n = mpt__net_of(w);
	if (!w) return mpt__status_of(ctx);
	if (!n) return mpt__error(ctx, STATE, "there is no net; call mpt_data_parallel first");
	if (n->no_sync + by < 0)
		return mpt__error(ctx, STATE, "there is no open region that this could end");
	n->no_sync += by;
	return MPT_OK;
}

mpt_status mpt_no_sync_begin(mpt_context *ctx) { return mpt__no_sync(ctx, "mpt_no_sync_begin", 1); }
mpt_status mpt_no_sync_end(mpt_context *ctx) { return mpt__no_sync(ctx, "mpt_no_sync_end", -1); }

mpt_parallel_stats mpt_parallel_statistics(mpt_context *ctx) {
	const mpt__world *w =
		mpt__enter_anyway(ctx, "mpt_parallel_statistics") ? mpt__world_of(ctx) : NULL;
	mpt_parallel_stats stats;
	mpt__zero(stats);
	stats.nonfinite_rank = stats.lost_rank = -1;
	return w ? w->stats : stats;
}

/* ----
 * parallel/shards.c: states of an optimizer of which each rank holds a part (ZeRO-1).
 *
 * Each state, which mirrors a flat piece of weights, is cut into as many parts as there are ranks.
 * A rank updates the weights of its own part, with the kernel and the numbers of the whole state,
 * and gets the others from theirs. Step counts, norms and scales are kept whole: they are small,
 * and all ranks have the same gradients. Moments of bytes are cut between blocks of codes.
 * ---- */

enum { MPT__SHARD_GRAIN = 16 };	/* elements; parts begin at multiples */

typedef struct {
	int64_t begin, end, bytes;	/* elements of the state; bytes of moments with codes */
	uint32_t mirror[MPT__MIRRORS];
} mpt__shard;

/* What hangs on an optimizer whose states are in parts. */
typedef struct {
	mpt__own own;
	int world, rank;
	int64_t state_count;
	uint32_t segments;
	uint64_t patterns;	/* of which the rows are; 0: none yet */
	int64_t *bounds;	/* world + 1 for each state */
	int64_t *place;		/* by item, as in its row, among the moments of this part */
	int64_t *rows;		/* behind them the group of each */
	mpt__shard *of;		/* by state */
	int *count, *at;	/* bytes by rank, of one message */
} mpt__shards;

/* ==== Cutting ==== */

/* Elements [*lo, *hi) of an item that lie in a part; an item's first element in its state. */
static int64_t mpt__shard_piece(const mpt_context *ctx, const mpt__optimizer *optimizer,
	const mpt__optim_item *item, int64_t begin, int64_t end, int64_t *lo, int64_t *hi) {
	const mpt__parameter *parameter = &ctx->parameters[item->parameter];
	const int64_t first = parameter->offset - optimizer->states[item->state].first;
	*lo = begin > first ? begin - first : 0;
	*hi = end < first + parameter->numel ? end - first : parameter->numel;
	if (*lo > parameter->numel) *lo = parameter->numel;
	if (*hi < *lo) *hi = *lo;
	return first;
}

/* Bytes of moments and masters before an element of state s. */
static int64_t mpt__shard_before(
	const mpt_context *ctx, const mpt__optimizer *optimizer, int64_t s, int64_t at) {
	const mpt__optim_state *state = &optimizer->states[s];
	int64_t moments = 0, bytes = 0;
	for (int k = 0; k < MPT__MASTER; k++) moments += state->mirror[k] != 0;
	for (int64_t i = 0; i < optimizer->item_count && mpt__coded(optimizer); i++) {
		const mpt__optim_item *item = &optimizer->items[i];
		int64_t lo, hi;
		if (item->state != (uint32_t)s) continue;
		mpt__shard_piece(ctx, optimizer, item, 0, at, &lo, &hi);
		bytes += item->place < 0 ? hi + 4 * mpt__code_blocks(hi) : 4 * hi;
	}
	if (!mpt__coded(optimizer)) bytes = 4 * at;
	return bytes * moments + (state->mirror[MPT__MASTER] ? 4 * at : 0);
}

/* Where the part of rank r begins in state s: parts are of as many bytes. */
static int64_t mpt__shard_bound(
	const mpt_context *ctx, const mpt__optimizer *optimizer, int64_t s, int r, int world) {
	const mpt__optim_state *state = &optimizer->states[s];
	const int64_t all = mpt__shard_before(ctx, optimizer, s, state->count);
	const int64_t wanted = (int64_t)((double)all / world * r);
	int64_t at = 0, end = state->count;
	if (r == world) return state->count;
	while (at < end) {
		const int64_t middle = at + (end - at) / 2;
		if (mpt__shard_before(ctx, optimizer, s, middle) < wanted)
			at = middle + 1;
		else
			end = middle;
	}
	at = at / MPT__SHARD_GRAIN * MPT__SHARD_GRAIN;
	for (int64_t i = 0; i < optimizer->item_count && mpt__coded(optimizer); i++) {
		const mpt__optim_item *item = &optimizer->items[i];
		int64_t lo, hi;
		if (item->state != (uint32_t)s || item->place >= 0) continue;
		const int64_t first =
			mpt__shard_piece(ctx, optimizer, item, at, state->count, &lo, &hi);
		if (lo > 0 && hi > lo) return first + lo / MPT__CODE_BLOCK * MPT__CODE_BLOCK;
	}
	return at;
}

/* Where each item's moments with codes lie in this rank's part, and how many bytes they take. */
static void mpt__shard_places(
	const mpt_context *ctx, const mpt__optimizer *optimizer, mpt__shards *shards) {
	for (int64_t i = 0; i < optimizer->item_count; i++) {
		const mpt__optim_item *item = &optimizer->items[i];
		mpt__shard *shard = &shards->of[item->state];
		int64_t lo, hi;
		mpt__shard_piece(ctx, optimizer, item, shard->begin, shard->end, &lo, &hi);
		const int64_t n = hi - lo;
		const bool coded = mpt__coded(optimizer) && item->place < 0;
		shards->place[i] = coded ? ~shard->bytes : shard->bytes;
		const int64_t bytes = coded ? mpt__code_peaks(n) + 4 * mpt__code_blocks(n) : 4 * n;
		if (n > 0) shard->bytes += (bytes + 63) / 64 * 64;
	}
}

/* The rows of the optimizer's pattern, as far as they lie in this rank's part. All of them stay, if
   empty: steps are counted by row. */
static mpt_status mpt__shard_rows(
	mpt_context *ctx, const mpt__optimizer *optimizer, mpt__shards *shards) {
	if (shards->patterns == optimizer->patterns) return MPT_OK;
	const size_t groups = (size_t)optimizer->row_count * sizeof(int64_t);
	memcpy(shards->rows, optimizer->rows, groups * MPT__SEGMENT_FIELDS);
	memcpy(shards->rows + optimizer->item_capacity * MPT__SEGMENT_FIELDS,
		mpt__row_groups(optimizer), groups);
	for (int64_t s = 0; s < optimizer->state_count; s++) {
		const mpt__optim_state *state = &optimizer->states[s];
		const mpt__shard *shard = &shards->of[s];
		for (int64_t r = state->row; r < state->row + state->rows; r++) {
			int64_t *row = &shards->rows[r * MPT__SEGMENT_FIELDS];
			int64_t begin = row[MPT__SEGMENT_OFFSET], end = begin + row[MPT__SEGMENT_COUNT];
			begin = begin < shard->begin ? shard->begin : begin;
			end = end > shard->end ? shard->end : end;
			row[MPT__SEGMENT_OFFSET] = end > begin ? begin - shard->begin : 0;
			row[MPT__SEGMENT_COUNT] = end > begin ? end - begin : 0;
			if (mpt__coded(optimizer))
				row[MPT__SEGMENT_PLACE] = shards->place[row[MPT__SEGMENT_STEP]];
		}
	}
	mpt_status status = mpt__upload(
		ctx, shards->segments, 0, shards->rows, optimizer->row_count * MPT__ROW_BYTES);
	if (status == MPT_OK) shards->patterns = optimizer->patterns;
	return status;
}

/* ==== The update ==== */

/* The weights of all parts for all. */
static mpt_status mpt__shard_spread(mpt_context *ctx, mpt__world *w, mpt__shards *shards,
	const mpt__optimizer *optimizer, int64_t s) {
	const mpt__optim_state *state = &optimizer->states[s];
	const mpt__block *block = mpt__block_of(ctx, state);
	const int64_t size = (int64_t)mpt_dtype_size((mpt_dtype)block->dtype);
	const int64_t *bounds = shards->bounds + s * (shards->world + 1);
	for (int r = 0; r < shards->world; r++) {
		shards->at[r] = (int)(bounds[r] * size);
		shards->count[r] = (int)((bounds[r + 1] - bounds[r]) * size);
	}
	MPI_Request request = MPI_REQUEST_NULL;
	int code = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE,
		(char *)ctx->data[block->values] + state->first * size, shards->count, shards->at, MPI_BYTE,
		w->comm[MPT__MPI_CALLS], &request);
	return mpt__world_wait(ctx, w, &request, 1, code);
}

/* What is launched for one state. */
static void mpt__shard_launch(mpt_context *ctx, const mpt__optimizer *shadow,
	const mpt__shard *shard, mpt__optim_state *state, uint16_t found_slot) {
	const int64_t *group = mpt__row_groups(shadow);
	mpt__block *block = mpt__block_of(ctx, state);
	mpt__optim_state part = *state;
	part.first += shard->begin, part.count = shard->end - shard->begin;
	memcpy(part.mirror, shard->mirror, sizeof part.mirror);
	part.bytes = shard->bytes;
	mpt__master_refresh(ctx, shadow, &part);
	const uint16_t pending = shadow->slot[MPT__OPTIM_MULTIPLIER];
	if (block->multiplier_slot != pending) mpt__materialise_gradients(ctx, block);
	const mpt__update_place place = {block->gradients, part.first, part.count, part.first,
		block->multiplier_slot ? pending : (uint16_t)MPT__SLOT_ONE};
	int64_t row = state->row, end = row + state->rows, rows;
	for (; row < end; row += rows) {
		for (rows = 1; row + rows < end && group[row + rows] == group[row];) rows++;
		mpt__submit(
			ctx, mpt__update_launch(ctx, shadow, &part, -1, row, rows, found_slot, &place));
	}
}

static mpt_status mpt__shard_update(
	mpt_context *ctx, mpt__optimizer *optimizer, uint16_t found_slot) {
	mpt__shards *shards = (mpt__shards *)(void *)optimizer->own;
	mpt__world *w = mpt__world_of(ctx);
	if (!w || w->lost)
		return mpt__error(ctx, STATE,
			"the states of the optimizer lie on %d ranks, and the others are gone", shards->world);
	if (mpt__shard_rows(ctx, optimizer, shards) != MPT_OK) return ctx->base.status;
	mpt__optimizer shadow = *optimizer;
	shadow.rows = shards->rows, shadow.segments = shards->segments;
	for (int64_t s = 0; s < optimizer->state_count && mpt__ok(ctx); s++) {
		mpt__optim_state *state = &optimizer->states[s];
		if (!state->rows) continue;
		mpt__shard_launch(ctx, &shadow, &shards->of[s], state, found_slot);
		if (mpt__ok(ctx)) mpt__shard_spread(ctx, w, shards, optimizer, s);
		mpt__values_updated(ctx, optimizer, state, -1);
	}
	return ctx->base.status;
}

/* ==== There and back ==== */

static bool mpt__shard_of_bytes(const mpt__optimizer *optimizer, int k) {
	return mpt__coded(optimizer) && k < MPT__MASTER;
}

/* Moves this rank's part of mirror k between where all of it lies and where the part does. */
static void mpt__shard_move(const mpt_context *ctx, const mpt__optimizer *optimizer,
	const mpt__shards *shards, int64_t s, int k, uint32_t whole, bool back) {
	const mpt__shard *shard = &shards->of[s];
	char *all = (char *)ctx->data[whole], *part = (char *)ctx->data[shard->mirror[k]];
	const size_t plain = (size_t)(shard->end - shard->begin) * 4;
	if (!mpt__shard_of_bytes(optimizer, k)) {
		char *here = all + shard->begin * 4;
		memcpy(back ? here : part, back ? part : here, plain);
		return;
	}
	for (int64_t i = 0; i < optimizer->item_count; i++) {
		const mpt__optim_item *item = &optimizer->items[i];
		const int64_t numel = ctx->parameters[item->parameter].numel, to = shards->place[i];
		int64_t lo, hi;
		if (item->state != (uint32_t)s) continue;
		mpt__shard_piece(ctx, optimizer, item, shard->begin, shard->end, &lo, &hi);
		const bool coded = item->place < 0;
		const int64_t n = hi - lo;
		if (n <= 0) continue;
		char *here = all + (coded ? ~item->place + lo : item->place + 4 * lo);
		char *there = part + (coded ? ~to : to);
		memcpy(back ? here : there, back ? there : here, (size_t)(coded ? n : 4 * n));
		if (!coded) continue;
		here = all + ~item->place + mpt__code_peaks(numel) + lo / MPT__CODE_BLOCK * 4;
		there += mpt__code_peaks(n);
		memcpy(back ? here : there, back ? there : here, (size_t)mpt__code_blocks(n) * 4);
	}
}

static void mpt__shards_free(mpt_context *ctx, mpt__own *own) {
	mpt__shards *shards = (mpt__shards *)(void *)own;
	for (int64_t s = 0; s < shards->state_count; s++)
		for (int k = 0; k < MPT__MIRRORS; k++) mpt__storage_forget(ctx, &shards->of[s].mirror[k]);
	mpt__storage_forget(ctx, &shards->segments);
}

/* There is nothing to show: a file or hash of a part is no use to anybody. */
static mpt_status mpt__shards_visit(mpt_context *ctx, mpt__own *own, mpt__state_item *item,
	mpt__state_visitor visit, void *user) {
	(void)own, (void)item, (void)visit, (void)user;
	return mpt__error(ctx, STATE,
		"each rank has a part of the optimizer's states; call mpt_shard_states with false on all "
		"ranks before they are saved, loaded or hashed");
}

static mpt_status mpt__shards_admit(mpt_context *ctx, mpt__optimizer *optimizer, mpt_module module,
	const char *path, int64_t group) {
	(void)optimizer, (void)module, (void)path, (void)group;
	return mpt__error(ctx, STATE,
		"each rank has a part of the optimizer's states; call mpt_shard_states with false on all "
		"ranks before parameters are added");
}

/* The parts and where they lie, without memory for them yet. */
static mpt__shards *mpt__shards_new(
	mpt_context *ctx, mpt__optimizer *optimizer, int world, int rank) {
	const int64_t states = optimizer->state_count, items = optimizer->item_capacity;
	const int64_t bytes[] = {(int64_t)sizeof(mpt__shards), states * (world + 1) * 8, items * 8,
		items * (MPT__SEGMENT_FIELDS + 1) * 8, states * (int64_t)sizeof(mpt__shard),
		2 * world * (int64_t)sizeof(int)};
	int64_t all = 64;
	for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) all += (bytes[i] + 63) / 64 * 64;
	char *at = (char *)mpt__host_new(ctx, (size_t)all);
	if (!at) return NULL;
	memset(at, 0, (size_t)all);
	mpt__shards *shards = (mpt__shards *)mpt__carve(&at, bytes[0]);
	shards->bounds = (int64_t *)mpt__carve(&at, bytes[1]);
	shards->place = (int64_t *)mpt__carve(&at, bytes[2]);
	shards->rows = (int64_t *)mpt__carve(&at, bytes[3]);
	shards->of = (mpt__shard *)mpt__carve(&at, bytes[4]);
	shards->count = (int *)mpt__carve(&at, bytes[5]), shards->at = shards->count + world;
	shards->own.bytes = (size_t)all;
	shards->own.update = mpt__shard_update, shards->own.end = mpt__shards_free;
	shards->own.visit = mpt__shards_visit, shards->own.admit = mpt__shards_admit;
	shards->world = world, shards->rank = rank, shards->state_count = states;
	for (int64_t s = 0; s < states; s++) {
		int64_t *bounds = shards->bounds + s * (world + 1);
		for (int r = 0; r <= world; r++)
			bounds[r] = mpt__shard_bound(ctx, optimizer, s, r, world);
		shards->of[s].begin = bounds[rank], shards->of[s].end = bounds[rank + 1];
	}
	mpt__shard_places(ctx, optimizer, shards);
	shards->segments = mpt__storage_new(ctx, (items + 1) * MPT__ROW_BYTES, MPT_MEMORY_WORKSPACE,
		MPT__FROM_DEVICE, false);
	return shards;
}

/* From whole states to parts. */
static mpt_status mpt__shards_begin(
	mpt_context *ctx, mpt__optimizer *optimizer, mpt__shards *shards) {
	for (int64_t s = 0; s < shards->state_count; s++)
		for (int k = 0; k < MPT__MIRRORS && mpt__ok(ctx); k++) {
			mpt__shard *shard = &shards->of[s];
			uint32_t *whole = &optimizer->states[s].mirror[k];
			const int64_t bytes =
				mpt__shard_of_bytes(optimizer, k) ? shard->bytes : (shard->end - shard->begin) * 4;
			if (!*whole) continue;
			shard->mirror[k] = mpt__storage_new(ctx, bytes + 64,
				k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
			if (!shard->mirror[k]) break;
			mpt__shard_move(ctx, optimizer, shards, s, k, *whole, false);
			mpt__storage_forget(ctx, whole);
		}
	return ctx->base.status;
}

/* From parts to whole states: each rank has zeros where it has no part, and the bits of all
   together are the state's. */
static mpt_status mpt__shards_end(mpt_context *ctx, mpt__world *w, mpt__optimizer *optimizer) {
	mpt__shards *shards = (mpt__shards *)(void *)optimizer->own;
	for (int64_t s = 0; s < shards->state_count; s++)
		for (int k = 0; k < MPT__MIRRORS && mpt__ok(ctx); k++) {
			mpt__optim_state *state = &optimizer->states[s];
			const int64_t bytes =
				mpt__shard_of_bytes(optimizer, k) ? state->bytes : state->count * 4;
			if (!shards->of[s].mirror[k]) continue;
			uint32_t whole = mpt__storage_new(ctx, bytes,
				k == MPT__MASTER ? MPT_MEMORY_MASTER : MPT_MEMORY_MOMENT, MPT__FROM_DEVICE, true);
			if (!whole) break;
			mpt__shard_move(ctx, optimizer, shards, s, k, whole, true);
			mpt__reduce_staged(ctx, w, (char *)ctx->data[whole], bytes / 4, MPT_I32, MPI_INT32_T,
				MPI_BOR);
			if (w->lost) break;	/* MPI may still write there */
			state->mirror[k] = whole;
			mpt__storage_forget(ctx, &shards->of[s].mirror[k]);
		}
	if (!mpt__ok(ctx)) return ctx->base.status;
	mpt__shards_free(ctx, optimizer->own);
	optimizer->own = NULL;
	mpt__host_free(ctx, shards, shards->own.bytes);
	return MPT_OK;
}

static bool mpt__shards_may_begin(mpt_context *ctx, const mpt__world *w, const mpt__optimizer *o) {
	if (o->own || o->inside || o->stochastic)
		return mpt__reject(ctx, UNSUPPORTED,
			"states of L-BFGS, Muon, optimizers of your own, with mpt_update_in_backward or "
			"stochastic rounding cannot be sharded");
	const mpt__net *n = mpt__net_of(w);
	bool reduced = false;	/* some of the gradients: weights that are frozen have none */
	for (int64_t i = 0; n && i < o->item_count; i++)
		reduced = reduced ||
			(o->items[i].parameter < n->known && n->slice_of[o->items[i].parameter] != 0);
	if (!reduced)
		return mpt__reject(ctx, STATE,
			"call mpt_data_parallel first, with the net of the optimizer: ranks need equal "
			"gradients");
	for (int64_t s = 0; s < o->state_count; s++)
		if (o->states[s].count > mpt__mpi_bytes / 8)
			return mpt__reject(ctx, UNSUPPORTED, "%lld weights in one piece: at most 2^27",
				o->states[s].count);
	return true;
}

mpt_status mpt_shard_states(mpt_optimizer handle, bool on) {
	mpt_context *ctx = handle.context;
	mpt__world *w = mpt__world_enter(ctx, "mpt_shard_states");
	mpt__optimizer *optimizer = w ? mpt__optimizer_at(ctx, handle) : NULL;
	if (!optimizer || !mpt__not_updating(ctx, optimizer)) return mpt__status_of(ctx);
	const bool sharded = optimizer->own && optimizer->own->update == mpt__shard_update;
	if (sharded == on) return MPT_OK;
	if (on && !mpt__shards_may_begin(ctx, w, optimizer)) return ctx->base.status;
	if (!mpt__tickets_agree(ctx, w, "mpt_shard_states", NULL, on)) return ctx->base.status;
	if (!on) return mpt__shards_end(ctx, w, optimizer);
	mpt__shards *shards = mpt__shards_new(ctx, optimizer, w->world, w->rank);
	if (!shards) return ctx->base.status;
	optimizer->own = &shards->own;
	return mpt__shards_begin(ctx, optimizer, shards);
}

#endif
#endif
