/* ==== Optimizers and scaler ==== */

/* The segments of a launch, cut into chunks of `size` elements that are numbered through. How many
   chunks there are stands in device memory; the host knows that they are not more than `most`. */
struct mpt__segments {
    const long long *rows;
    long long count, size, most;
};

/* The chunk that a block has under way. */
struct mpt__chunk {
    long long segment, before; /* chunks of earlier segments */
    long long first, count;    /* elements */
};

/* Operand `position` of a launch over the elements of operand 0. Large chunks make fewer partial
   sums, small ones spread a small net over the card. */
mpt__segments mpt__segments_of(const mpt__launch *launch, int position, const void *rows) {
    const long long elements = mpt__numel(launch->operand[0]);
    mpt__segments segments;
    segments.rows = (const long long *)rows;
    segments.count = launch->operand[position].shape[0];
    segments.size = elements > 4 << 20 ? 8192 : 2048;
    segments.most = elements / segments.size + segments.count;
    return segments;
}

unsigned int mpt__segment_blocks(const mpt__cuda_call *call, const mpt__segments &segments) {
    return mpt__blocks(call, segments.most * MPT__THREADS);
}

/* Moves on to chunk `number`, which does not lie before the last one; false behind the end. Every
   warp looks for itself, at 32 segments at a time. */
__device__ bool mpt__seek(const mpt__segments &segments, long long number, mpt__chunk &chunk) {
    const int lane = threadIdx.x % MPT__WARP;
    while (chunk.segment < segments.count) {
        const long long segment = chunk.segment + lane;
        const long long *row = segments.rows + segment * MPT__SEGMENT_FIELDS;
        const long long own = segment < segments.count
                                  ? (row[MPT__SEGMENT_COUNT] + segments.size - 1) / segments.size
                                  : 0;
        long long sum = own;
        for (int step = 1; step < MPT__WARP; step *= 2) {
            const long long earlier = __shfl_up_sync(MPT__ALL, sum, step);
            if (lane >= step) sum += earlier;
        }
        const unsigned int past = __ballot_sync(MPT__ALL, chunk.before + sum > number);
        const int here = past != 0 ? __ffs((int)past) - 1 : MPT__WARP - 1;
        chunk.before += __shfl_sync(MPT__ALL, past != 0 ? sum - own : sum, here);
        chunk.segment += past != 0 ? here : MPT__WARP;
        if (past != 0) {
            row = segments.rows + chunk.segment * MPT__SEGMENT_FIELDS;
            const long long begin = (number - chunk.before) * segments.size;
            chunk.first = row[MPT__SEGMENT_OFFSET] + begin;
            chunk.count = row[MPT__SEGMENT_COUNT] - begin;
            if (chunk.count > segments.size) chunk.count = segments.size;
            return true;
        }
    }
    return false;
}

/* The loop of a block over the pieces of a chunk. */
#define MPT__EACH_OF_BLOCK(i, count) for (long long i = threadIdx.x; i < (count); i += MPT__THREADS)

/* Pieces of eight in a chunk of arrays whose memory is aligned, or not. */
__device__ __forceinline__ long long mpt__chunk_eights(const mpt__chunk &chunk, bool aligned) {
    return aligned && chunk.first % 8 == 0 ? chunk.count / 8 : 0;
}

/* A device scalar used as a factor; slot 0: 1. */
__device__ __forceinline__ float mpt__factor(const mpt__scalar *scalars, int slot) {
    return slot != 0 ? (float)scalars[slot].f : 1.0f;
}

struct mpt__slots {
    unsigned short at[MPT__MAX_SLOTS];
};

mpt__slots mpt__slots_of(const mpt__launch *launch) {
    mpt__slots slots;
    memcpy(slots.at, launch->slot, sizeof slots.at);
    return slots;
}

/* ---- Gradients ---- */

/* Of one chunk. */
struct mpt__norm_part {
    double squares;
    long long nonfinite;
};

struct mpt__gradients {
    float *data;
    int aligned;
    int norm; /* mpt__norm */
    float limit;
    mpt__segments segments;
    mpt__slots slot;
    mpt__scalar *scalars;
    mpt__norm_part *part; /* [segments.most] */
    unsigned int *ticket;
};

mpt__gradients mpt__gradients_of(const mpt__cuda_call *call) {
    mpt__gradients g;
    memset(&g, 0, sizeof g);
    g.data = (float *)call->data[0];
    g.aligned = (uintptr_t)g.data % 16 == 0;
    g.norm = (int)call->launch->index[1];
    g.limit = (float)call->launch->imm[0];
    g.segments = mpt__segments_of(call->launch, 1, call->data[1]);
    g.slot = mpt__slots_of(call->launch);
    g.scalars = call->scalars;
    g.part = (mpt__norm_part *)call->workspace;
    g.ticket = call->cuda->ticket;
    return g;
}

/* 1 / scale where a loss scale is given. */
__device__ __forceinline__ float mpt__norm_multiplier(const mpt__gradients &g) {
    if (g.slot.at[3] != 0) return (float)(1 / g.scalars[g.slot.at[3]].f);
    return mpt__factor(g.scalars, g.slot.at[0]);
}

template <int NORM, int N>
__device__ __forceinline__ void mpt__add_squares(const mpt__gradients &g, float multiplier,
                                                 long long at, mpt__norm_part &part) {
    float x[N];
    mpt__read<N>(g.data, MPT_F32, at, x);
    for (int i = 0; i < N; i++) {
        const float product = x[i] * multiplier; /* infinity times 0 is NaN */
        if (!mpt__is_finite(product)) part.nonfinite = 1;
        if (g.slot.at[2] == 0) continue;
        if (NORM == MPT__NORM_2)
            part.squares += (double)product * (double)product;
        else if (NORM == MPT__NORM_1)
            part.squares += (double)fabsf(product);
        else
            part.squares = (double)mpt__larger((float)part.squares, fabsf(product));
    }
}

/* The sum of all threads' squares, or their maximum, which is a float's. */
__device__ __forceinline__ double mpt__join_norms(const mpt__gradients &g, double x) {
    return g.norm == MPT__NORM_MAX ? (double)mpt__block_max((float)x) : mpt__block_sum(x);
}

/* Adds up the parts, and sets the slots. One block. */
__device__ void mpt__norm_finish(const mpt__gradients &g, bool joined) {
    mpt__norm_part all = {0, 0};
    for (long long i = threadIdx.x; i < g.segments.most; i += MPT__THREADS) {
        const double more = __ldcg(&g.part[i].squares);
        all.squares = g.norm == MPT__NORM_MAX
                          ? (double)mpt__larger((float)all.squares, (float)more)
                          : all.squares + more;
        all.nonfinite |= __ldcg(&g.part[i].nonfinite);
    }
    all.squares = mpt__join_norms(g, all.squares);
    all.nonfinite = __syncthreads_or(all.nonfinite != 0);
    if (threadIdx.x != 0) return;
    if (g.slot.at[3] != 0) g.scalars[g.slot.at[0]].f = (double)mpt__norm_multiplier(g);
    if (g.slot.at[1] != 0 && (g.slot.at[3] != 0 || all.nonfinite != 0))
        g.scalars[g.slot.at[1]].i = all.nonfinite;
    if (g.slot.at[2] != 0) {
        double *norm = &g.scalars[g.slot.at[2]].f, old = joined ? *norm : 0.0;
        *norm = g.norm == MPT__NORM_2   ? sqrt(old * old + all.squares)
                : g.norm == MPT__NORM_1 ? old + all.squares
                                        : (double)mpt__larger((float)old, (float)all.squares);
    }
}

/* The tree: a thread's elements of a chunk, the threads of a block, then the chunks likewise. */
template <int NORM>
__global__ void mpt__grad_norm_kernel(const mpt__gradients g, bool joined) {
    const float multiplier = mpt__norm_multiplier(g);
    mpt__chunk chunk = {0, 0, 0, 0};
    for (long long number = blockIdx.x; number < g.segments.most; number += gridDim.x) {
        mpt__norm_part part = {0, 0};
        if (mpt__seek(g.segments, number, chunk)) {
            const long long eights = mpt__chunk_eights(chunk, g.aligned);
            MPT__EACH_OF_BLOCK(i, eights) {
                mpt__add_squares<NORM, 8>(g, multiplier, chunk.first + 8 * i, part);
            }
            MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
                mpt__add_squares<NORM, 1>(g, multiplier, chunk.first + 8 * eights + i, part);
            }
        }
        part.squares = mpt__join_norms(g, part.squares);
        part.nonfinite = __syncthreads_or(part.nonfinite != 0);
        if (threadIdx.x == 0) g.part[number] = part;
    }
    if (mpt__last_block(g.ticket)) mpt__norm_finish(g, joined);
}

int64_t mpt__cuda_grad_norm_workspace(const mpt__launch *launch) {
    return mpt__segments_of(launch, 1, NULL).most * (int64_t)sizeof(mpt__norm_part);
}

mpt_status mpt__cuda_grad_norm(const mpt__cuda_call *call) {
    const mpt__gradients g = mpt__gradients_of(call);
    auto kernel = g.norm == MPT__NORM_2   ? mpt__grad_norm_kernel<MPT__NORM_2>
                  : g.norm == MPT__NORM_1 ? mpt__grad_norm_kernel<MPT__NORM_1>
                                          : mpt__grad_norm_kernel<MPT__NORM_MAX>;
    kernel<<<mpt__segment_blocks(call, g.segments), MPT__THREADS, 0, call->stream>>>(
        g, call->launch->index[0] != 0);
    return MPT_OK;
}

template <int N>
__device__ __forceinline__ void mpt__scale_at(const mpt__gradients &g, float multiplier,
                                              long long at) {
    float x[N];
    mpt__read<N>(g.data, MPT_F32, at, x);
    for (int i = 0; i < N; i++) {
        x[i] *= multiplier;
        if (g.limit > 0) x[i] = x[i] > g.limit ? g.limit : x[i] < -g.limit ? -g.limit : x[i];
    }
    mpt__write<N>(g.data, MPT_F32, at, x);
}

__global__ void mpt__grad_scale_kernel(const mpt__gradients g) {
    const float multiplier = mpt__factor(g.scalars, g.slot.at[0]);
    mpt__chunk chunk = {0, 0, 0, 0};
    for (long long number = blockIdx.x; mpt__seek(g.segments, number, chunk); number += gridDim.x) {
        const long long eights = mpt__chunk_eights(chunk, g.aligned);
        MPT__EACH_OF_BLOCK(i, eights) { mpt__scale_at<8>(g, multiplier, chunk.first + 8 * i); }
        MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
            mpt__scale_at<1>(g, multiplier, chunk.first + 8 * eights + i);
        }
    }
}

mpt_status mpt__cuda_grad_scale(const mpt__cuda_call *call) {
    const mpt__gradients g = mpt__gradients_of(call);
    if (g.segments.most == 0) return MPT_OK;
    mpt__grad_scale_kernel<<<mpt__segment_blocks(call, g.segments), MPT__THREADS, 0,
                             call->stream>>>(g);
    return MPT_OK;
}

/* ---- Updates ---- */

struct mpt__update {
    void *param; /* of `dtype`; with a master only written */
    int dtype;
    float *master, *first, *second, *third; /* NULL: absent */
    const int *books; /* not NULL: moments are bytes */
    const float *gradient;
    int aligned, maximize;
    mpt__law law;
    int stochastic; /* rounding of param, by this key */
    mpt__key key;
    long long before; /* words before that of the first element */
    mpt__segments segments;
    long long *steps;
    const double *rates; /* NULL: the rate is in slot[0] */
    long long rate_count;
    int cycles; /* a second row of rates has momentum or beta1 */
    long long commit; /* 0, 1: the segments' step counts, 2: and the applied steps */
    mpt__slots slot;
    mpt__scalar *scalars;
    unsigned int *ticket;
};

#include "../waist/updates.inl"

/* What depends on the step count of a segment. */
struct mpt__segment_pace {
    v_rates rates;
    unsigned long long sequence; /* of random words */
};

__device__ mpt__segment_pace mpt__segment_pace_of(const mpt__update &u, long long segment) {
    const long long step =
        u.steps[u.segments.rows[segment * MPT__SEGMENT_FIELDS + MPT__SEGMENT_STEP]];
    double lr = u.scalars[u.slot.at[0]].f, first = u.law.imm[0];
    if (u.rates != NULL) {
        const long long at = u.scalars[u.slot.at[3]].i - u.scalars[u.slot.at[4]].i;
        const double *rate = u.rates + (at < 0 ? 0 : at < u.rate_count ? at : u.rate_count - 1);
        lr = *rate;
        if (u.cycles) first = rate[u.rate_count];
    }
    const mpt__pace pace = mpt__pace_of(&u.law, lr, first, step);
    mpt__segment_pace own;
    own.rates = {(float)pace.lr,   (float)pace.decay, (float)pace.shrink, (float)pace.keep1,
                 (float)pace.add1, (float)pace.keep2, (float)pace.add2,   (float)pace.eps,
                 (float)pace.root, pace.fresh};
    own.sequence = mpt__hash_u64(mpt__hash_u64(u.key.stream, (uint64_t)step), u.key.call);
    return own;
}

/* To bf16 numbers, which the store then keeps: up where the random word carries. `element` is a
   multiple of N. */
template <int N>
__device__ __forceinline__ void mpt__round_by_chance(const mpt__update &u, const mpt__segment_pace &pace,
                                                     long long element, float (&p)[N]) {
    unsigned int word[4] = {0, 0, 0, 0};
    for (int i = 0; i < N; i++) {
        if (i % 4 == 0) mpt__philox(u.key.seed, pace.sequence, (element + i) / 4, word);
        const int k = N == 1 ? (int)(element & 3) : i % 4;
        const unsigned int random =
            k == 0 ? word[0] : k == 1 ? word[1] : k == 2 ? word[2] : word[3];
        const unsigned int bits = __float_as_uint(p[i]);
        if (!isnan(p[i])) p[i] = __uint_as_float((bits + (random >> 16)) & 0xffff0000u);
    }
}

/* SGD and Adam apart from each other, and from all that v_updated knows: in one kernel they spill. */
enum { MPT__UPDATE_SGD, MPT__UPDATE_ADAM, MPT__UPDATE_MOMENTS };

template <int FORM>
__device__ __forceinline__ float mpt__updated(const mpt__update &u, const mpt__segment_pace &pace,
                                              float p, float g, float *m, float *v, float *w) {
    auto update = FORM == MPT__UPDATE_MOMENTS ? v_updated
                  : FORM == MPT__UPDATE_ADAM  ? v_adam
                                              : v_sgd;
    return update(&u.law, &pace.rates, p, g, m, v, w);
}

template <int N, int FORM>
__device__ __forceinline__ void mpt__update_at(const mpt__update &u, const mpt__segment_pace &pace,
                                               float multiplier, long long at) {
    float p[N], g[N], m[N] = {0}, v[N] = {0}, w[N] = {0};
    mpt__read<N>(u.gradient, MPT_F32, at, g);
    if (u.first != NULL) mpt__read<N>(u.first, MPT_F32, at, m);
    if (u.second != NULL) mpt__read<N>(u.second, MPT_F32, at, v);
    if (u.master != NULL) {
        mpt__read<N>(u.master, MPT_F32, at, p);
    } else {
        mpt__read<N>(u.param, u.dtype, at, p);
    }
    if (FORM == MPT__UPDATE_MOMENTS && u.third != NULL) mpt__read<N>(u.third, MPT_F32, at, w);
    for (int i = 0; i < N; i++)
        p[i] = mpt__updated<FORM>(u, pace, p[i], g[i] * multiplier, &m[i], &v[i], &w[i]);
    if (u.first != NULL) mpt__write<N>(u.first, MPT_F32, at, m);
    if (u.second != NULL) mpt__write<N>(u.second, MPT_F32, at, v);
    if (FORM == MPT__UPDATE_MOMENTS && u.third != NULL) mpt__write<N>(u.third, MPT_F32, at, w);
    if (u.master != NULL) mpt__write<N>(u.master, MPT_F32, at, p);
    if (u.stochastic) mpt__round_by_chance<N>(u, pace, u.before + at, p);
    mpt__write<N>(u.param, u.dtype, at, p);
}

/* ---- Moments that are bytes ---- */

/* Eight elements, or the first `count` of them. */
template <bool WHOLE>
__device__ __forceinline__ void mpt__read_some(const void *data, int dtype, long long at, int count,
                                               float (&x)[8]) {
    if (WHOLE)
        mpt__load8(data, dtype, at, x);
    else
        for (int i = 0; i < 8; i++) x[i] = i < count ? mpt__load(data, dtype, at + i) : 0;
}
template <bool WHOLE>
__device__ __forceinline__ void mpt__write_some(void *data, int dtype, long long at, int count,
                                                const float (&x)[8]) {
    if (WHOLE)
        mpt__store8(data, dtype, at, x);
    else
        for (int i = 0; i < count; i++) mpt__store(data, dtype, at + i, x[i]);
}

/* A segment's moment k of elements [at, at + count), up to eight for each thread of the warp that
   has a block of codes; and back. */
struct mpt__coded {
    unsigned char *bytes; /* of the segment; NULL: there is no such moment */
    float *peaks;         /* NULL: its bytes are floats */
    const int *book;
    int plain;
};

__device__ __forceinline__ mpt__coded mpt__coded_of(const mpt__update &u, const long long *row,
                                                    float *moment, int k) {
    const long long place = row[MPT__SEGMENT_PLACE];
    mpt__coded c = {(unsigned char *)moment, NULL, NULL, mpt__law_unsigned(&u.law, k)};
    if (moment == NULL) return c;
    c.bytes += place < 0 ? ~place : place;
    c.book = u.books + c.plain * MPT__CODE_BOOK;
    if (place < 0) c.peaks = (float *)(c.bytes + mpt__code_peaks(row[MPT__SEGMENT_COUNT]));
    return c;
}

template <bool WHOLE>
__device__ __forceinline__ void mpt__decode(const mpt__coded &c, long long at, int count,
                                            float (&x)[8]) {
    if (c.bytes == NULL) return;
    if (c.peaks == NULL) {
        mpt__read_some<WHOLE>(c.bytes, MPT_F32, at, count, x);
        return;
    }
    const float peak = c.peaks[at / MPT__CODE_BLOCK];
    uint2 eight = {0, 0};
    if (WHOLE) eight = *(const uint2 *)(c.bytes + at);
    for (int i = 0; i < 8; i++) {
        int code = (int)((i < 4 ? eight.x : eight.y) >> i % 4 * 8 & 255);
        if (!WHOLE) code = i < count ? c.bytes[at + i] : MPT__CODE_ZERO;
        x[i] = __int_as_float(c.book[code]) * peak;
    }
}

template <bool WHOLE>
__device__ __forceinline__ void mpt__encode(const mpt__coded &c, long long at, int count,
                                            const float (&x)[8]) {
    if (c.bytes == NULL) return;
    if (c.peaks == NULL) {
        mpt__write_some<WHOLE>(c.bytes, MPT_F32, at, count, x);
        return;
    }
    unsigned int most = 0;
    for (int i = 0; i < 8; i++) {
        const unsigned int size = __float_as_uint(x[i]) & 0x7fffffff;
        if ((WHOLE || i < count) && size > most) most = size;
    }
    for (int step = MPT__WARP / 2; step > 0; step /= 2) {
        const unsigned int other = __shfl_xor_sync(MPT__ALL, most, step);
        if (other > most) most = other;
    }
    most = mpt__code_most(most);
    const float peak = __uint_as_float(most);
    if (threadIdx.x % MPT__WARP == 0) c.peaks[at / MPT__CODE_BLOCK] = peak;
    uint2 eight = {0, 0};
    for (int i = 0; i < 8; i++) {
        unsigned int code = c.plain ? 0 : MPT__CODE_ZERO;
        if (mpt__code_is_number(most))
            code = mpt__code_of(c.book, __float_as_uint(x[i]),
                                __float_as_uint(x[i] / peak) & 0x7fffffff, c.plain);
        if (i < 4)
            eight.x |= code << i * 8;
        else
            eight.y |= code << (i - 4) * 8;
        if (!WHOLE && i < count) c.bytes[at + i] = (unsigned char)code;
    }
    if (WHOLE) *(uint2 *)(c.bytes + at) = eight;
}

/* A thread's share of a block: `at` counts from the segment's begin, which lies at `first`. */
template <bool WHOLE, int FORM>
__device__ __forceinline__ void mpt__coded_at(const mpt__update &u, const mpt__segment_pace &pace,
                                              const mpt__coded (&of)[3], float multiplier,
                                              long long first, long long at, int count) {
    float p[8], g[8], m[8] = {0}, v[8] = {0}, w[8] = {0};
    const long long place = first + at;
    void *value = u.master != NULL ? (void *)u.master : u.param;
    mpt__read_some<WHOLE>(u.gradient, MPT_F32, place, count, g);
    mpt__read_some<WHOLE>(value, u.master != NULL ? (int)MPT_F32 : u.dtype, place, count, p);
    mpt__decode<WHOLE>(of[0], at, count, m);
    mpt__decode<WHOLE>(of[1], at, count, v);
    if (FORM == MPT__UPDATE_MOMENTS) mpt__decode<WHOLE>(of[2], at, count, w);
    for (int i = 0; i < 8; i++)
        p[i] = mpt__updated<FORM>(u, pace, p[i], g[i] * multiplier, &m[i], &v[i], &w[i]);
    mpt__encode<WHOLE>(of[0], at, count, m);
    mpt__encode<WHOLE>(of[1], at, count, v);
    if (FORM == MPT__UPDATE_MOMENTS) mpt__encode<WHOLE>(of[2], at, count, w);
    if (u.master != NULL) mpt__write_some<WHOLE>(u.master, MPT_F32, place, count, p);
    if (u.stochastic && WHOLE) mpt__round_by_chance<8>(u, pace, u.before + place, p);
    for (int i = 0; i < 8 && u.stochastic && !WHOLE; i++) {
        float one[1] = {p[i]};
        mpt__round_by_chance<1>(u, pace, u.before + place + i, one);
        p[i] = one[0];
    }
    mpt__write_some<WHOLE>(u.param, u.dtype, place, count, p);
}

/* A warp takes a block of codes: a chunk is so many whole ones, but for the last of a segment. */
template <int FORM>
__device__ void mpt__coded_chunk(const mpt__update &u, const mpt__segment_pace &pace,
                                 float multiplier, const mpt__chunk &chunk) {
    const long long *row = u.segments.rows + chunk.segment * MPT__SEGMENT_FIELDS;
    const long long first = row[MPT__SEGMENT_OFFSET], begin = chunk.first - first;
    const mpt__coded of[3] = {mpt__coded_of(u, row, u.first, 0),
                              mpt__coded_of(u, row, u.second, 1),
                              mpt__coded_of(u, row, u.third, 2)};
    const int warp = threadIdx.x / MPT__WARP, own = threadIdx.x % MPT__WARP * 8;
    for (long long at = warp * MPT__CODE_BLOCK; at < chunk.count;
         at += MPT__THREADS / MPT__WARP * MPT__CODE_BLOCK) {
        const long long left = chunk.count - at;
        if (u.aligned && first % 8 == 0 && left >= MPT__CODE_BLOCK) {
            mpt__coded_at<true, FORM>(u, pace, of, multiplier, first, begin + at + own, 8);
        } else {
            const int count = left - own < 0 ? 0 : left - own > 8 ? 8 : (int)(left - own);
            mpt__coded_at<false, FORM>(u, pace, of, multiplier, first, begin + at + own, count);
        }
    }
}

/* The end of an update: its steps are counted. One block. */
__device__ void mpt__commit(const mpt__update &u) {
    MPT__EACH_OF_BLOCK(segment, u.segments.count) {
        const long long *row = u.segments.rows + segment * MPT__SEGMENT_FIELDS;
        for (long long i = 0; i < row[MPT__SEGMENT_STEPS]; i++)
            u.steps[row[MPT__SEGMENT_STEP] + i]++;
    }
    if (u.commit == 2 && threadIdx.x == 0) u.scalars[u.slot.at[3]].i++;
}

template <int FORM, bool CODED>
__device__ __forceinline__ void mpt__update_chunks(const mpt__update &u) {
    __shared__ mpt__segment_pace shared;
    mpt__segment_pace pace;
    const float multiplier = mpt__factor(u.scalars, u.slot.at[1]) * (u.maximize ? -1.0f : 1.0f);
    mpt__chunk chunk = {0, 0, 0, 0};
    long long segment = -1;
    if (!mpt__gate_open(u.scalars, u.slot.at[2])) return;
    for (long long number = blockIdx.x; mpt__seek(u.segments, number, chunk); number += gridDim.x) {
        if (chunk.segment != segment) {
            segment = chunk.segment;
            __syncthreads(); /* all have read that of an earlier segment */
            if (threadIdx.x == 0) shared = mpt__segment_pace_of(u, segment);
            __syncthreads();
            pace = shared;
        }
        if (CODED) {
            mpt__coded_chunk<FORM>(u, pace, multiplier, chunk);
            continue;
        }
        const long long eights = mpt__chunk_eights(chunk, u.aligned);
        MPT__EACH_OF_BLOCK(i, eights) {
            mpt__update_at<8, FORM>(u, pace, multiplier, chunk.first + 8 * i);
        }
        MPT__EACH_OF_BLOCK(i, chunk.count - 8 * eights) {
            mpt__update_at<1, FORM>(u, pace, multiplier, chunk.first + 8 * eights + i);
        }
    }
    if (u.commit != 0 && mpt__last_block(u.ticket)) mpt__commit(u);
}

template <int FORM>
__global__ void mpt__update_kernel(const mpt__update u) {
    mpt__update_chunks<FORM, false>(u);
}
template <int FORM>
__global__ void mpt__coded_update_kernel(const mpt__update u) {
    mpt__update_chunks<FORM, true>(u);
}

mpt__update mpt__update_of(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__update u;
    memset(&u, 0, sizeof u);
    u.param = call->data[0];
    u.dtype = launch->operand[0].dtype;
    u.master = (float *)call->data[1];
    u.gradient = (const float *)call->data[2];
    u.law = mpt__law_of(launch);
    u.first = u.law.moment[0] ? (float *)call->data[3] : NULL;
    u.second = u.law.moment[1] ? (float *)call->data[6] : NULL;
    u.third = u.law.moment[2] ? (float *)call->data[8] : NULL;
    u.maximize = launch->index[2] != 0;
    u.segments = mpt__segments_of(launch, 4, call->data[4]);
    u.steps = (long long *)call->data[5];
    u.rates = launch->n_operands > 7 ? (const double *)call->data[7] : NULL;
    if (u.rates != NULL) {
        const mpt__operand &rates = launch->operand[7];
        u.rate_count = rates.shape[rates.rank - 1];
        u.cycles = rates.rank == 2;
    }
    u.books = launch->n_operands > 9 ? (const int *)call->data[9] : NULL;
    u.stochastic = launch->index[3] != 0;
    u.key = mpt__key_of(call);
    u.before = launch->operand[0].offset;
    u.commit = launch->index[1];
    u.slot = mpt__slots_of(launch);
    u.scalars = call->scalars;
    u.ticket = call->cuda->ticket;
    return u;
}

mpt_status mpt__run_update(const mpt__cuda_call *call) {
    mpt__update u = mpt__update_of(call);
    const void *arrays[6] = {u.param, u.master, u.gradient, u.first, u.second, u.third};
    const unsigned int blocks = mpt__segment_blocks(call, u.segments);
    u.aligned = mpt__is_streamed(u.dtype) && u.before % 8 == 0;
    for (int i = 0; i < 6; i++) u.aligned = u.aligned && (uintptr_t)arrays[i] % 16 == 0;
#define MPT__UPDATE_KERNEL(form) \
    (u.books ? mpt__coded_update_kernel<form> : mpt__update_kernel<form>)
    auto kernel = u.law.function != MPT__FN_NONE ? MPT__UPDATE_KERNEL(MPT__UPDATE_MOMENTS)
                  : u.law.corrects              ? MPT__UPDATE_KERNEL(MPT__UPDATE_ADAM)
                                                : MPT__UPDATE_KERNEL(MPT__UPDATE_SGD);
    kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(u);
    return MPT_OK;
}

mpt_status mpt__cuda_sgd(const mpt__cuda_call *call) { return mpt__run_update(call); }
mpt_status mpt__cuda_adam(const mpt__cuda_call *call) { return mpt__run_update(call); }
mpt_status mpt__cuda_moments(const mpt__cuda_call *call) { return mpt__run_update(call); }

/* ---- Averages ---- */

struct mpt__average {
    float *average;
    const void *value; /* of `dtype` */
    int dtype;
    long long count, eights;
    double decay;
    long long form;
    int commits;
    mpt__slots slot; /* applied steps, those seen, updates */
    mpt__scalar *scalars;
    unsigned int *ticket;
};

template <int N>
__device__ __forceinline__ void mpt__average_at(const mpt__average &a, float weight, long long at) {
    float average[N], value[N];
    mpt__read<N>(a.average, MPT_F32, at, average);
    mpt__read<N>(a.value, a.dtype, at, value);
    for (int i = 0; i < N; i++)
        average[i] = weight == 1 ? value[i] : average[i] + weight * (value[i] - average[i]);
    mpt__write<N>(a.average, MPT_F32, at, average);
}

__global__ void mpt__average_kernel(const mpt__average a) {
    mpt__scalar *applied = &a.scalars[a.slot.at[0]], *seen = &a.scalars[a.slot.at[1]];
    mpt__scalar *updates = &a.scalars[a.slot.at[2]];
    if (!mpt__gate_open(a.scalars, 0) || applied->i == seen->i) return;
    const float weight = (float)mpt__average_weight(a.form, a.decay, (double)updates->i);
    MPT__EACH(i, a.eights) { mpt__average_at<8>(a, weight, 8 * i); }
    MPT__EACH(i, a.count - 8 * a.eights) { mpt__average_at<1>(a, weight, 8 * a.eights + i); }
    if (a.commits && mpt__last_block(a.ticket) && threadIdx.x == 0) {
        seen->i = applied->i;
        updates->i++;
    }
}

mpt_status mpt__cuda_average(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__average a;
    memset(&a, 0, sizeof a);
    a.average = (float *)call->data[0];
    a.value = call->data[1];
    a.dtype = launch->operand[1].dtype;
    a.count = launch->operand[0].shape[0];
    const bool aligned = mpt__is_streamed(a.dtype) && (uintptr_t)a.average % 16 == 0 &&
                         (uintptr_t)a.value % 16 == 0;
    a.eights = aligned ? a.count / 8 : 0;
    a.decay = launch->imm[0];
    a.form = launch->index[0];
    a.commits = launch->index[1] != 0;
    a.slot = mpt__slots_of(launch);
    a.scalars = call->scalars;
    a.ticket = call->cuda->ticket;
    const unsigned int blocks = mpt__blocks(call, a.eights > 0 ? a.eights : a.count);
    mpt__average_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(a);
    return MPT_OK;
}

/* ---- Scalars ---- */

/* What CLIP does beside clipping. */
struct mpt__clip_note {
    mpt__scalar *scalars;
    int found_slot, applied_slot; /* 0: none */
    long long raises, number;
};

__device__ void mpt__clip_noted(const mpt__clip_note &n, float norm) {
    mpt__scalar *noted = &n.scalars[MPT__SLOT_CLIPPED], *at = &n.scalars[MPT__SLOT_CLIPPED_AT];
    const long long applied = n.scalars[n.applied_slot].i;
    mpt__scalar value;
    value.f = (double)norm;
    if (!isfinite(norm) && (n.found_slot == 0 || n.scalars[n.found_slot].i == 0)) {
        if (n.raises) mpt__raise(n.scalars, MPT_ERROR_NUMERIC, n.number, -1, -1, value, 0);
        if (n.raises || noted->i != 0) return;
        noted->i = n.applied_slot;
        at->i = applied;
    } else if (noted->i == n.applied_slot && at->i == applied) {
        noted->i = 0;
    }
}

/* A NaN norm makes the multiplier NaN, as in PyTorch. */
__global__ void mpt__clip_kernel(mpt__scalar *multiplier, const mpt__scalar *norm, float most,
                                 mpt__array out, const mpt__clip_note note) {
    const float size = (float)norm->f;
    float factor = most / (size + 1e-6f);
    if (factor > 1) factor = 1;
    if (multiplier != NULL) multiplier->f = (double)((float)multiplier->f * factor);
    if (out.data != NULL) mpt__put(out, 0, size);
    if (note.applied_slot != 0) mpt__clip_noted(note, size);
}

mpt_status mpt__cuda_clip(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    const mpt__clip_note note = {call->scalars, launch->slot[2], launch->slot[3],
                                 launch->index[0] != 0, launch->number};
    mpt__scalar *multiplier = launch->slot[0] != 0 ? &call->scalars[launch->slot[0]] : NULL;
    mpt__clip_kernel<<<1, 1, 0, call->stream>>>(multiplier, &call->scalars[launch->slot[1]],
                                                (float)launch->imm[0], mpt__array_of(call, 0), note);
    return MPT_OK;
}

__global__ void mpt__scalar_set_kernel(mpt__scalar *to, mpt__scalar value) { *to = value; }

mpt_status mpt__cuda_scalar_set(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scalar value;
    if (launch->index[0] == 0) {
        value.f = launch->imm[0];
    } else {
        value.i = launch->index[1];
    }
    mpt__scalar_set_kernel<<<1, 1, 0, call->stream>>>(&call->scalars[launch->slot[0]], value);
    return MPT_OK;
}

__global__ void mpt__scalar_or_kernel(mpt__scalar *to, const mpt__scalar *a, const mpt__scalar *b) {
    to->i = (a->i | b->i) != 0;
}

mpt_status mpt__cuda_scalar_or(const mpt__cuda_call *call) {
    const uint16_t *slot = call->launch->slot;
    mpt__scalar *scalars = call->scalars;
    mpt__scalar_or_kernel<<<1, 1, 0, call->stream>>>(&scalars[slot[0]], &scalars[slot[1]],
                                                     &scalars[slot[2]]);
    return MPT_OK;
}

struct mpt__scaler_settings {
    double imm[4];
    long long interval;
    int fixed;
    mpt__slots slot;
};

__global__ void mpt__scaler_update_kernel(const mpt__scaler_settings w, mpt__scalar *scalars) {
    if (!mpt__gate_open(scalars, 0)) return;
    mpt__scaler_ends_update(scalars, w.slot.at, w.imm, w.interval, w.fixed != 0);
}

mpt_status mpt__cuda_scaler_update(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__scaler_settings w;
    memset(&w, 0, sizeof w);
    memcpy(w.imm, launch->imm, sizeof w.imm);
    w.interval = launch->index[0];
    w.fixed = launch->index[1] != 0;
    w.slot = mpt__slots_of(launch);
    mpt__scaler_update_kernel<<<1, 1, 0, call->stream>>>(w, call->scalars);
    return MPT_OK;
}

