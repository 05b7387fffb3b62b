/* ==== Training by several processes ===========================================================

    mpt_context *ctx = mpt_create(NULL);
    mpt_parallel_begin(ctx, NULL);              <- joins the processes that mpirun has started
    mpt_module net = ...;
    mpt_data_parallel(net, NULL);               <- the weights of rank 0 for all
    mpt_optimizer opt = mpt_adamw(net, NULL);
    lc.rank = mpt_parallel_rank(ctx), lc.world = mpt_parallel_world(ctx);     (of the loader)
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

#include "face/training.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mpt_parallel_config {
    double deadline; /* 300: seconds that a call may wait for other ranks; 0: without end */
    double grace;    /* 5: seconds that a rank then has to answer that it is there */
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
    MPT_PARALLEL_MEAN, /* of floats */
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
    int64_t micro_batches; /* 1: calls of mpt_backward whose gradients are averaged, per rank */
    bool deterministic;    /* true: sums in one order for any number of ranks; false: MPI's */
    bool keep_buffers;     /* false: running statistics of rank 0 for all behind each step that
                              had a reduction (mpt_step_end); true: each rank keeps its own */
    int64_t bucket_bytes;  /* 4 MB: gradients that travel together */
    bool sync_batch_norm;  /* false; true: batch norms use the batches of all ranks */
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
    int64_t reductions;         /* backward passes that ended in one, so far */
    int64_t buckets, bytes;     /* of one reduction, with what fills buckets up */
    double seconds_waited;      /* at the end of mpt_backward: what backward did not hide */
    int64_t memory;             /* bytes that buckets take, in all */
    int64_t nonfinite;          /* reductions to which some rank gave what is not finite */
    int nonfinite_rank;         /* the first such rank of the last such reduction; -1: none yet */
    char nonfinite_parameter[128];
    int lost_rank;              /* the first one that did not answer; -1: none */
} mpt_parallel_stats;
MPTRAIN_API mpt_parallel_stats mpt_parallel_statistics(mpt_context *context);

#ifdef __cplusplus
}
#endif

#endif
