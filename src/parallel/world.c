/* ----
 * parallel/world.c: the processes of a training: how they find each other, wait for each other, and
 * notice that one is gone.
 *
 * Nothing here blocks: every MPI call is a non-blocking one that is polled, together with a talk
 * beside it. Who has waited too long asks all others whether they are there, names those who do not
 * answer, and tells the verdict to all others, who would each find the same by themselves later.
 * ---- */
#ifndef MPT__PARALLEL_WORLD_INCLUDED
#define MPT__PARALLEL_WORLD_INCLUDED

#include "train/scaler.c"
#include "train/state.c"
#include "parallel/face.h"

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
    MPT__TALK_RANK = 8,        /* of them, before a verdict: the rank that is lost, or -1 */
    MPT__GATHER_BYTES = 512,   /* of a rank, at most */
    MPT__POLLS_AWAKE = 2000,   /* before a wait begins to sleep: about as long as a message takes */
    MPT__POLLS_DEAF = 32       /* between two looks at the talk */
};
static const int64_t mpt__mpi_bytes = INT64_C(1) << 30; /* of one call: MPI counts in int */

typedef struct mpt__world {
    uint32_t storage; /* in which this lies, and the arrays behind it */
    int rank, world;
    mpt_parallel_config config;
    MPI_Comm comm[MPT__MPI_COMMS];
    bool met;  /* the communicators are there */
    bool lost; /* a rank is, or has failed: nothing more can be asked of the others */
    int lost_rank;
    char said[MPT__TALK_KINDS][MPT__TALK_BYTES]; /* being sent, by kind */
    char verdict[MPT__TALK_BYTES];               /* of another rank; "" for none */
    uint8_t *answered, *parted;                  /* by rank */
    unsigned char *gathered;                     /* by rank, MPT__GATHER_BYTES of each at most */
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
    else if (!w->lost) /* what MPI still has of it is left to it */
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
    if (whole) mpt__storage_release(ctx, w->storage); /* else messages may still be in it */
    if (whole && mpt__mpi_ours && mpt__mpi_contexts == 0) MPI_Finalize();
    return ctx->base.status;
}

#endif
