/* ----
 * cpu/planes.c: convolutions of images that lie channel by channel: what a level's routine takes at
 * a time (cpu/template/planes.c).
 * ---- */
#ifndef MPT__CPU_PLANES_INCLUDED
#define MPT__CPU_PLANES_INCLUDED

#include "cpu/conv.c"

#if !defined(MPTRAIN_NO_CONV) && defined(MPT__HAS_GEMM)

#define MPT__PLANES_TILE 64    /* pixels of a strip that the widest level takes at a time */
#define MPT__PLANES_IMAGES 16  /* the most images of a strip */
#define MPT__PLANES_ROOM 49152 /* floats of the strips of a task, about: the second cache's */
#define MPT__PLANES_SLICES 16  /* sums of their own that a gradient of weights has, at most */

typedef struct {
    const mpt__cpu_call *call;
    mpt__conv conv;
    mpt__planes all;                     /* of the first task */
    int64_t lines, images, bands, tasks; /* of a task; of an image; of a group of channels */
    int64_t numel, slices, each;         /* elements of the weights; tasks of a slice */
    int64_t shared, own;                 /* floats: of all threads, of each */
    float *memory;
} mpt__planes_work;

static bool mpt__planes_takes(const mpt__launch *launch) { return launch->imm[1] != 0; }

static void mpt__planes_side(mpt__plane_side *s, const mpt__conv *c, int operand) {
    const mpt__operand *o = &c->launch->operand[operand];
    const int compute = c->launch->compute_dtype;
    s->data = s->gate = NULL;
    s->image = o->shape[1] * o->shape[2] * o->shape[3];
    for (int d = 0; d < 2; d++) s->size[d] = o->shape[1 + d];
    s->dtype = o->dtype;
    s->round = compute == MPT_F32 || compute == o->dtype ? 0 : compute;
}

/* As many images as leave the least of the tiles unused. */
static int64_t mpt__planes_images(const mpt__planes *p, int64_t n) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t m = 1; m <= n && m <= MPT__PLANES_IMAGES; m++) {
        const int64_t tiles = mpt__cpu_chunks(n, m) *
            mpt__cpu_chunks((m - 1) * p->step + p->y.size[1], MPT__PLANES_TILE);
        if (tiles < least) best = m, least = tiles;
    }
    return best;
}

static void mpt__planes_plan(mpt__planes_work *w, const mpt__launch *launch) {
    const mpt__conv *c = &w->conv;
    mpt__planes *p = &w->all;
    mpt__conv_read(&w->conv, launch);
    memset(p, 0, sizeof *p);
    const bool back = launch->kernel == MPT__K_CONV_BACKWARD_INPUT;
    p->slopes = launch->kernel == MPT__K_CONV_BACKWARD_WEIGHT;
    p->in = back ? c->out : c->in, p->out = back ? c->in : c->out;
    mpt__planes_side(&p->x, c, back ? 2 : 0);
    mpt__planes_side(&p->y, c, back ? 0 : 2);
    for (int d = 0; d < 2; d++) {
        p->kernel[d] = c->kernel[d];
        p->padding[d] = back ? c->kernel[d] - 1 - c->padding[d] : c->padding[d];
    }
    p->step = p->x.size[1] + p->padding[1];
    if (p->step < p->y.size[1] + p->kernel[1] - 1 - p->padding[1]) p->step++;
    p->relu = launch->activation == MPT_ACTIVATION_RELU;
    p->adds = mpt__conv_output(launch)->access == MPT__ACCUMULATE;
    w->images = mpt__planes_images(p, c->n);
    p->wide = (w->images - 1) * p->step + p->y.size[1];
    p->row = p->wide > MPT__PLANES_TILE ? p->wide : MPT__PLANES_TILE;
    p->row = (p->row + p->kernel[1] + 47) / 16 * 16;
    const int64_t channels = p->in + (p->slopes ? p->out : 0), height = p->y.size[0];
    w->lines = (MPT__PLANES_ROOM / p->row - p->in * (p->kernel[0] - 1)) / channels;
    w->lines = w->lines < 1 ? 1 : mpt__cpu_min(w->lines, height);
    w->bands = mpt__cpu_chunks(height, w->lines);
    w->lines = mpt__cpu_chunks(height, w->bands);
    w->tasks = mpt__cpu_chunks(c->n, w->images) * w->bands;
    w->numel = c->y[2] * c->in * c->kernel[0] * c->kernel[1];
    w->each = mpt__cpu_chunks(w->tasks, MPT__PLANES_SLICES);
    w->slices = w->tasks > 0 ? mpt__cpu_chunks(w->tasks, w->each) : 1;
    w->shared = p->slopes ? w->slices * (w->numel + c->y[2]) : 2 * w->numel + p->out * c->groups;
    w->shared = (w->shared + 15) / 16 * 16;
    w->own = p->in * (w->lines + p->kernel[0] - 1) + (p->slopes ? p->out * w->lines : 4);
    w->own = w->own * p->row + 16;
}

static int64_t mpt__planes_workspace(const mpt__launch *launch, int threads) {
    mpt__planes_work w;
    mpt__planes_plan(&w, launch);
    return (w.shared + threads * w.own) * (int64_t)sizeof(float);
}

/* The weights as tiles take them, group behind group; biases. */
static void mpt__planes_weights(const mpt__planes_work *w) {
    const mpt__conv *c = &w->conv;
    const mpt__planes *p = &w->all;
    const int64_t taps = c->kernel[0] * c->kernel[1];
    const bool back = c->launch->kernel == MPT__K_CONV_BACKWARD_INPUT;
    const mpt__gemm_side weights = mpt__conv_side(c, w->call->data, 1, 0, 0, 1);
    const mpt__gemm_side bias = mpt__conv_side(c, w->call->data, 3, 0, 0, 1);
    float *to = w->memory, *from = to + w->numel, *biases = from + w->numel;
    mpt__conv_floats(w->call->routines, &weights, 0, from, w->numel);
    memset(biases, 0, (size_t)(p->out * c->groups) * sizeof *biases);
    if (bias.data) mpt__conv_floats(w->call->routines, &bias, 0, biases, p->out * c->groups);
    for (int64_t g = 0; g < c->groups; g++, from += p->out * p->in * taps)
        for (int64_t o = 0, n; o < p->out; o += n) {
            n = mpt__plane_rows(p->out - o);
            for (int64_t i = 0; i < p->in * taps * n; i++) {
                const int64_t r = o + i % n, t = i / n % taps, k = i / n / taps;
                *to++ = back ? from[(k * p->out + r + 1) * taps - 1 - t]
                             : from[(r * p->in + k) * taps + t];
            }
        }
}

/* Where a task's lines are: of a band, some images and a group. */
static mpt__planes mpt__planes_task(
    const mpt__planes_work *w, int64_t task, int64_t group, int thread) {
    mpt__planes p = w->all;
    const int64_t image = task / w->bands * w->images;
    p.first = task % w->bands * w->lines;
    p.lines = mpt__cpu_min(w->lines, p.y.size[0] - p.first);
    p.images = mpt__cpu_min(w->images, w->conv.n - image);
    p.wide = (p.images - 1) * p.step + p.y.size[1];
    mpt__plane_side *const side[] = {&p.x, &p.y};
    for (int s = 0; s < 2; s++) {
        const int64_t channels = s == 0 ? p.in : p.out;
        const int64_t at =
            (image * side[s]->image + group * channels * side[s]->size[0] * side[s]->size[1]) *
            mpt__dtype_info[side[s]->dtype].bytes;
        side[s]->data += at;
        if (side[s]->gate) side[s]->gate += at;
        if (s == 1) p.to += at;
    }
    p.room = w->memory + w->shared + thread * w->own;
    return p;
}

static void mpt__planes_chunk(MPT__CHUNK_TAKES) {
    const mpt__planes_work *w = (const mpt__planes_work *)work;
    const int64_t groups = w->conv.groups, group = chunk % groups;
    mpt__planes p = mpt__planes_task(w, chunk / groups, group, thread);
    p.weights = w->memory + group * (w->numel / groups);
    p.bias = w->memory + 2 * w->numel + group * p.out;
    w->call->routines->planes(&p);
}

static void mpt__planes_slice(void *work, int64_t slice, int thread) {
    const mpt__planes_work *w = (const mpt__planes_work *)work;
    const int64_t groups = w->conv.groups, all = w->numel + w->conv.y[2];
    const int64_t end = mpt__cpu_min((slice + 1) * w->each, w->tasks);
    float *sums = w->memory + slice * all;
    memset(sums, 0, (size_t)all * sizeof *sums);
    for (int64_t task = slice * w->each; task < end; task++)
        for (int64_t group = 0; group < groups; group++) {
            mpt__planes p = mpt__planes_task(w, task, group, thread);
            p.sums = sums + group * (w->numel / groups);
            p.biases = sums + w->numel + group * p.out;
            w->call->routines->planes(&p);
        }
}

static void mpt__planes_put(const mpt__planes_work *w, int operand, const float *sums, int64_t n) {
    const mpt__cpu_view view = mpt__cpu_view_of(w->call, operand);
    for (int64_t i = 0; i < n; i += MPT__BLOCK)
        mpt__cpu_put(&view, i, 1, sums + i, mpt__cpu_min(MPT__BLOCK, n - i));
}

static void mpt__planes_run(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__planes_work w;
    mpt__planes_plan(&w, launch);
    const mpt__conv *c = &w.conv;
    const bool back = launch->kernel == MPT__K_CONV_BACKWARD_INPUT;
    const int64_t all = w.numel + c->y[2];
    const int64_t cost = mpt__cpu_cost(call, c->n * c->y[0] * c->y[1] * w.numel, 0.1);
    w.call = call;
    w.memory = (float *)call->workspace;
    w.all.x.data = (const char *)call->data[back ? 2 : 0];
    w.all.y.data = w.all.to = (char *)call->data[back ? 0 : 2];
    if (launch->n_operands > 5) (back ? &w.all.x : &w.all.y)->gate = (const char *)call->data[5];
    if (!w.all.slopes) {
        mpt__planes_weights(&w);
        mpt__parallel(call->pool, w.tasks * c->groups, cost, mpt__planes_chunk, &w);
        return;
    }
    mpt__parallel(call->pool, w.slices, cost, mpt__planes_slice, &w);
    for (int64_t s = 1; s < w.slices; s++)
        call->routines->binary[MPT__BINARY_ADD](w.memory, w.memory, w.memory + s * all, all, 0, 0);
    mpt__planes_put(&w, 1, w.memory, w.numel);
    if (launch->n_operands > 3 && launch->operand[3].storage != 0)
        mpt__planes_put(&w, 3, w.memory + w.numel, c->y[2]);
}

#endif
#endif
