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
#ifndef MPT__PARALLEL_BUCKETS_INCLUDED
#define MPT__PARALLEL_BUCKETS_INCLUDED

#include "parallel/tensors.c"

/* ==== The tree ==== */

enum { MPT__NODES = 48 }; /* of a rank at a time; two for each level of at most 2^20 batches */

typedef struct {
    int64_t start;
    int level;
} mpt__node;

/* Nodes that stand beside each other and wait for what lies between them and the root. */
typedef struct {
    int64_t batches; /* of the whole tree */
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
            last->level++; /* there is no right half */
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
    uint32_t parameter; /* index in ctx->parameters */
    int32_t bucket;
    int64_t offset, numel; /* in the flat array */
    uint32_t last;         /* number of the record of this pass behind which it is ready; 0: none */
    int32_t ready;         /* its place among those that became ready, in the pass that looked */
} mpt__gradient_slice;

typedef struct {
    int64_t first, slices; /* among the slices */
    int64_t offset, count; /* in the flat array; a multiple of the world */
    int64_t waits;         /* gradients that are still to come */
    int requests;
    MPI_Request request[MPT__NODES];
} mpt__bucket;

/* What ranks tell each other with each reduction. */
typedef struct {
    int64_t reduction;
    uint64_t used; /* which parameters have a gradient */
    uint64_t sums; /* what the reduction before has given */
    int32_t failed;
    int32_t nonfinite; /* the last such parameter, where backward begins; -1: none */
} mpt__report;

typedef struct mpt__net {
    mpt_data_parallel_config config;
    mpt_module module;
    uint32_t storage, flat[MPT__NODES], received; /* storages */
    int64_t count;      /* of slices */
    mpt__gradient_slice *slices; /* in the order of buckets */
    int32_t *slice_of;  /* by parameter: 1 + the slice; 0: none */
    int64_t known;      /* parameters that it has places for */
    int32_t *order;     /* scratch: by slice */
    uint8_t *used;      /* by slice: it has a gradient, of some batch so far */
    mpt__report *reports;
    int64_t bucket_count, floats, bucket_floats;
    mpt__bucket *buckets;
    int levels;       /* flat arrays */
    int pieces;       /* nodes of the rank that has most at the end */
    mpt__nodes nodes; /* of this rank, so far */
    int joins;        /* in this pass */
    float *level[MPT__NODES];
    float *incoming;
    int64_t micro;      /* batches that are in */
    int64_t reductions; /* so far */
    int64_t no_sync;    /* nested */
    bool reducing, collecting; /* in this pass; collecting: each pass is a leaf of the tree */
    bool ordered;              /* buckets follow the order in which gradients become ready */
    bool buffers;              /* the net has running statistics */
    bool due;                  /* they are to be broadcast when the step ends */
    int32_t became_ready;
    int64_t next, spread, done; /* buckets that have started, are summed, are there */
    uint64_t sums;
    int32_t nonfinite;
    struct mpt__norm_sync *sync; /* of batch norms, parallel/norms.c; NULL: none */
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

#endif
