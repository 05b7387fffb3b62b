/* ==== Losses: NLL, NLL_BACKWARD, CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, METRIC_ADD ==== */

/* What the losses and their backward share. Absent operands have no data. */
struct mpt__loss {
    mpt__array x, target, weight, divisor, gradient, log_sum, out;
    long long rows, classes, ignore, number; /* number: of the launch */
    long long sample_rows;                   /* of a sample that has more than one, else 0 */
    float smoothing;
    int reduction; /* mpt_reduction */
    int from_logits;
    float *row_loss, *row_weight; /* [rows] */
    mpt__scalar *scalars;
};

enum { MPT__IGNORED = -1, MPT__BAD = -2 };

/* The class of a sample, or one of the above. */
__device__ __forceinline__ long long mpt__class_of(const mpt__loss &loss, long long row) {
    const long long t = ((const long long *)loss.target.data)[row * loss.target.stride[0]];
    if (t == loss.ignore) return MPT__IGNORED;
    return t < 0 || t >= loss.classes ? (long long)MPT__BAD : t;
}

__device__ __forceinline__ float mpt__class_weight(const mpt__loss &loss, long long c) {
    if (loss.weight.data == NULL) return 1.0f;
    return mpt__load(loss.weight.data, loss.weight.dtype, c * loss.weight.stride[0]);
}

__device__ __forceinline__ float mpt__logit(const mpt__loss &loss, long long row, long long c) {
    return mpt__load(loss.x.data, loss.x.dtype, row * loss.x.stride[0] + c * loss.x.stride[1]);
}

/* Loss and weight of one sample, by one group. From logits: (1 - e) w (lse - x[t]) + e / C
   sum_c w_c (lse - x_c), the maximum kept apart so that large logits lose no digits. */
template <int GROUP, int V>
__device__ __forceinline__ void mpt__loss_row(const mpt__loss &loss, long long row) {
    const long long t = mpt__class_of(loss, row);
    float most = 0.0f, log_sum = 0.0f, all = 0.0f, weight = 0.0f, result = 0.0f;
    if (loss.from_logits) {
        const long long base = row * loss.x.stride[0];
        log_sum =
            logf(mpt__line_sum<GROUP, V>(loss.x, base, loss.x.stride[1], loss.classes, &most));
    }
    if (t >= 0 && loss.smoothing != 0.0f) {
        for (long long c = threadIdx.x % GROUP; c < loss.classes; c += GROUP)
            all += mpt__class_weight(loss, c) * (log_sum - (mpt__logit(loss, row, c) - most));
        all = mpt__group_sum<GROUP>(all);
    }
    if (threadIdx.x % GROUP != 0) return;
    if (t >= 0) {
        weight = mpt__class_weight(loss, t);
        result = weight * (log_sum - (mpt__logit(loss, row, t) - most));
        if (loss.smoothing != 0.0f)
            result = (1.0f - loss.smoothing) * result + loss.smoothing / (float)loss.classes * all;
    }
    if (loss.from_logits) {
        mpt__put(loss.log_sum, row * loss.log_sum.stride[0], most);
        mpt__put(loss.log_sum, row * loss.log_sum.stride[0] + loss.log_sum.stride[1], log_sum);
    }
    if (loss.reduction == MPT_NONE) mpt__put(loss.out, row * loss.out.stride[0], result);
    loss.row_loss[row] = result;
    loss.row_weight[row] = weight;
}

/* By one block, after all rows: the sums over the samples, and the first bad target, which is among
   the samples of weight 0. */
__device__ void mpt__loss_finish(const mpt__loss &loss) {
    __shared__ unsigned long long first_bad;
    float sum = 0.0f, weight = 0.0f;
    if (threadIdx.x == 0) first_bad = ~0ull;
    __syncthreads();
    for (long long row = threadIdx.x; row < loss.rows; row += blockDim.x) {
        sum += loss.row_loss[row];
        weight += loss.row_weight[row];
        if (loss.row_weight[row] == 0.0f && mpt__class_of(loss, row) == MPT__BAD)
            atomicMin(&first_bad, (unsigned long long)row);
    }
    sum = mpt__block_sum(sum);
    weight = mpt__block_sum(weight); /* and a barrier, after which first_bad stands */
    if (threadIdx.x != 0) return;
    const float by = loss.reduction == MPT_MEAN ? weight : 1.0f;
    if (loss.reduction != MPT_NONE) mpt__put(loss.out, 0, sum / by);
    mpt__put(loss.divisor, 0, by);
    if (first_bad == ~0ull) return;
    const long long bad = (long long)first_bad, rows = loss.sample_rows;
    mpt__scalar value;
    value.i = ((const long long *)loss.target.data)[bad * loss.target.stride[0]];
    mpt__raise(loss.scalars, MPT_ERROR_INDEX, loss.number, rows > 0 ? bad / rows : bad,
               rows > 0 ? bad % rows : -1, value, loss.classes);
}

/* Few samples fit in one block, which then finishes the loss by itself. */
#define MPT__LOSS_THREADS 512
#define MPT__LOSS_ROWS 128

template <int GROUP, int V>
__global__ void __launch_bounds__(MPT__LOSS_THREADS, 2) mpt__loss_kernel(mpt__loss loss) {
    MPT__EACH_LINE(row, GROUP, loss.rows) mpt__loss_row<GROUP, V>(loss, row);
    if (blockDim.x != MPT__LOSS_THREADS) return;
    __syncthreads();
    mpt__loss_finish(loss);
}

__global__ void __launch_bounds__(MPT__LOSS_THREADS, 2) mpt__loss_finish_kernel(mpt__loss loss) {
    mpt__loss_finish(loss);
}

mpt__loss mpt__loss_of(const mpt__cuda_call *call, int shape_of, bool from_logits) {
    const mpt__launch *launch = call->launch;
    mpt__loss loss;
    memset(&loss, 0, sizeof loss);
    loss.rows = launch->operand[shape_of].shape[0];
    loss.classes = launch->operand[shape_of].shape[1];
    loss.ignore = launch->index[0];
    loss.sample_rows = launch->index[1];
    loss.number = launch->number;
    loss.smoothing = from_logits ? (float)launch->imm[0] : 0.0f;
    loss.reduction = launch->reduction;
    loss.from_logits = from_logits;
    loss.scalars = call->scalars;
    return loss;
}

bool mpt__rows_in_eights(const mpt__array &array, long long classes) {
    return mpt__strides_in_eights(array, &array.stride[1], 1, classes, array.stride, 1);
}

int64_t mpt__cuda_nll_workspace(const mpt__launch *launch) {
    return launch->operand[0].shape[0] * 2 * (int64_t)sizeof(float);
}
int64_t mpt__cuda_cross_entropy_workspace(const mpt__launch *launch) {
    return mpt__cuda_nll_workspace(launch);
}

/* Operands as NLL has them; those of CROSS_ENTROPY begin alike. */
mpt_status mpt__loss_run(const mpt__cuda_call *call, bool from_logits) {
    mpt__loss loss = mpt__loss_of(call, 0, from_logits);
    mpt__array *array[6] = {&loss.x,   &loss.target,  &loss.weight,
                            &loss.out, &loss.divisor, &loss.log_sum};
    for (int i = 0; i < (from_logits ? 6 : 5); i++) *array[i] = mpt__array_of(call, i);
    loss.row_loss = (float *)call->workspace;
    loss.row_weight = loss.row_loss + loss.rows;

    const bool eights = mpt__rows_in_eights(loss.x, loss.classes);
    const bool by_blocks = from_logits && loss.classes > MPT__LINE;
    const bool alone = loss.rows <= MPT__LOSS_ROWS && !by_blocks;
    const int group = !from_logits ? 1 : by_blocks ? MPT__THREADS : MPT__WARP;
    const unsigned int threads = alone ? MPT__LOSS_THREADS : MPT__THREADS;
    const unsigned int blocks = alone ? 1 : mpt__blocks(call, loss.rows * group);
    if (!from_logits) {
        mpt__loss_kernel<1, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks && eights) {
        mpt__loss_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks) {
        mpt__loss_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (eights) {
        mpt__loss_kernel<MPT__WARP, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else {
        mpt__loss_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(loss);
    }
    if (!alone) mpt__loss_finish_kernel<<<1, MPT__LOSS_THREADS, 0, call->stream>>>(loss);
    return MPT_OK;
}

mpt_status mpt__cuda_nll(const mpt__cuda_call *call) { return mpt__loss_run(call, false); }
mpt_status mpt__cuda_cross_entropy(const mpt__cuda_call *call) { return mpt__loss_run(call, true); }

/* What a sample's loss gets of the gradient: dloss, divided where the loss was a mean. */
__device__ __forceinline__ float mpt__row_gradient(const mpt__loss &loss, long long row) {
    const long long at = loss.reduction == MPT_NONE ? row * loss.gradient.stride[0] : 0;
    const float g = mpt__load(loss.gradient.data, loss.gradient.dtype, at);
    if (loss.reduction != MPT_MEAN) return g;
    return g / mpt__load(loss.divisor.data, loss.divisor.dtype, 0);
}

/* The gradient of a sample, by a group. NLL: -g w at the target. From logits, with p = softmax(x):
   g ((1 - e) w_t (p - onehot) + e / C (p sum(w) - w)). Ignored samples get 0; and an infinite g
   leaves those classes 0 whose factor is 0. */
template <int GROUP, int V> __global__ void mpt__loss_backward_kernel(mpt__loss loss) {
    const long long first = threadIdx.x % GROUP * V;
    const float smooth = loss.smoothing / (float)loss.classes;
    float weight_sum = (float)loss.classes;
    if (smooth != 0.0f && loss.weight.data != NULL) {
        weight_sum = 0.0f;
        for (long long c = threadIdx.x % GROUP; c < loss.classes; c += GROUP)
            weight_sum += mpt__class_weight(loss, c);
        weight_sum = mpt__group_sum<GROUP>(weight_sum);
    }
    MPT__EACH_LINE(row, GROUP, loss.rows) {
        const long long t = mpt__class_of(loss, row), sums = row * loss.log_sum.stride[0];
        float scale = 0.0f, g = 0.0f, most = 0.0f, log_sum = 0.0f, x[V];
        if (t >= 0) {
            scale = (1.0f - loss.smoothing) * mpt__class_weight(loss, t);
            g = mpt__row_gradient(loss, row);
        }
        if (loss.log_sum.data != NULL) {
            most = mpt__load(loss.log_sum.data, loss.log_sum.dtype, sums);
            log_sum =
                mpt__load(loss.log_sum.data, loss.log_sum.dtype, sums + loss.log_sum.stride[1]);
        }
        for (long long c = first; c < loss.classes; c += GROUP * V) {
            const bool slopes = loss.from_logits && t >= 0;
            if (slopes)
                mpt__load_some<V>(loss.x, row * loss.x.stride[0] + c * loss.x.stride[1], x);
            for (int k = 0; k < V; k++) {
                const float p = slopes ? expf(x[k] - most - log_sum) : 0.0f;
                float dx = scale * p;
                if (slopes && smooth != 0.0f)
                    dx += smooth * (p * weight_sum - mpt__class_weight(loss, c + k));
                if (c + k == t) dx -= scale;
                x[k] = t < 0 || dx == 0.0f ? 0.0f : g * dx;
            }
            mpt__put_some<V>(loss.out, row * loss.out.stride[0] + c * loss.out.stride[1], x);
        }
    }
}

/* `first` is the operand of the targets; weights, divisor and dloss follow it. */
mpt_status mpt__loss_backward(const mpt__cuda_call *call, bool from_logits) {
    const int first = from_logits ? 1 : 0, out = from_logits ? 6 : 4;
    mpt__loss loss = mpt__loss_of(call, out, from_logits);
    mpt__array *array[4] = {&loss.target, &loss.weight, &loss.divisor, &loss.gradient};
    for (int i = 0; i < 4; i++) *array[i] = mpt__array_of(call, first + i);
    loss.out = mpt__array_of(call, out);
    if (from_logits) {
        loss.x = mpt__array_of(call, 0);
        loss.log_sum = mpt__array_of(call, 5);
    }
    if (loss.rows == 0 || loss.classes == 0) return MPT_OK;

    const bool eights = mpt__rows_in_eights(loss.out, loss.classes) &&
                        (!from_logits || mpt__rows_in_eights(loss.x, loss.classes));
    const bool by_blocks = loss.classes > MPT__LINE;
    const unsigned int threads = MPT__THREADS;
    const unsigned int blocks =
        mpt__blocks(call, loss.rows * (by_blocks ? MPT__THREADS : MPT__WARP));
    if (by_blocks && eights) {
        mpt__loss_backward_kernel<MPT__THREADS, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (by_blocks) {
        mpt__loss_backward_kernel<MPT__THREADS, 1><<<blocks, threads, 0, call->stream>>>(loss);
    } else if (eights) {
        mpt__loss_backward_kernel<MPT__WARP, 8><<<blocks, threads, 0, call->stream>>>(loss);
    } else {
        mpt__loss_backward_kernel<MPT__WARP, 1><<<blocks, threads, 0, call->stream>>>(loss);
    }
    return MPT_OK;
}

mpt_status mpt__cuda_nll_backward(const mpt__cuda_call *call) {
    return mpt__loss_backward(call, false);
}
mpt_status mpt__cuda_cross_entropy_backward(const mpt__cuda_call *call) {
    return mpt__loss_backward(call, true);
}

/* ---- Pair losses ---- */

/* Operands 0 to 3, of which absent ones are 1; of the loss or its gradient, 4; of dx, 5. Strides
   are over `space`. */
struct mpt__pair {
    mpt__space space;
    mpt__array array[6];
    int function, by, sums; /* by: the operand of the slope, -1: the loss; sums: of all elements */
    float p, r, divisor;
    float *partial;                /* sums of the blocks */
    unsigned long long *first_bad; /* of probabilities, else NULL */
    mpt__scalar *scalars;
    long long number; /* of the launch */
};

#define MPT__PAIR_EXP(x) expf(x)
#define MPT__PAIR_LOG(x) logf(x)
#define MPT__PAIR_SQRT(x) sqrtf(x)
#define MPT__PAIR_NONE(x) 0.0f

__device__ __forceinline__ float mpt__pair_of(const mpt__pair &w, float a, float b, float c,
                                              float d) {
    const float s = a - b, p = w.p, r = w.r;
    switch (w.function) {
#define MPT__ROW(id, word1, of1, word2, of2, value, da, db, dc) \
    case MPT__FN_##id: { \
        const float e = MPT__PAIR_##word1((float)(of1)); \
        const float l = MPT__PAIR_##word2((float)(of2)); \
        (void)e, (void)l; \
        if (w.by < 0) return (float)(value); \
        if (w.by == 0) return (float)(da); \
        return (float)(w.by == 1 ? (db) : (dc)); \
    }
        MPT__PAIRS(MPT__ROW)
#undef MPT__ROW
    default: return 0.0f;
    }
}

__device__ __forceinline__ float mpt__pair_in(const mpt__pair &w, int k, long long index) {
    const mpt__array &array = w.array[k];
    if (array.data == NULL) return 1.0f;
    return mpt__load(array.data, array.dtype, mpt__locate(w.space, array.stride, index));
}

__global__ void mpt__pair_kernel(const mpt__pair w) {
    const int out = w.by < 0 ? 4 : 5;
    float sum = 0.0f;
    MPT__EACH(i, w.space.count) {
        const float a = mpt__pair_in(w, 0, i), b = mpt__pair_in(w, 1, i);
        float x = mpt__pair_of(w, a, b, mpt__pair_in(w, 2, i), mpt__pair_in(w, 3, i));
        if (w.first_bad != NULL && (a < 0.0f || a > 1.0f)) 
            atomicMin(w.first_bad, (unsigned long long)i);
        if (w.by >= 0) x *= mpt__pair_in(w, 4, i) / w.divisor;
        sum += x;
        if (!w.sums) mpt__put(w.array[out], mpt__locate(w.space, w.array[out].stride, i), x);
    }
    if (!w.sums) return;
    sum = mpt__block_sum(sum);
    if (threadIdx.x == 0) w.partial[blockIdx.x] = sum;
}

/* By one block: the sum of the blocks, and the first element that is no probability. */
__global__ void mpt__pair_finish_kernel(const mpt__pair w, int blocks) {
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < blocks; i += (int)blockDim.x) sum += w.partial[i];
    sum = mpt__block_sum(sum);
    if (threadIdx.x != 0) return;
    if (w.sums) mpt__put(w.array[4], 0, sum / w.divisor);
    if (w.first_bad == NULL || *w.first_bad == ~0ull) return;
    const long long bad = (long long)*w.first_bad;
    mpt__scalar value;
    value.f = (double)mpt__pair_in(w, 0, bad);
    mpt__raise(w.scalars, MPT_ERROR_NUMERIC, w.number, bad, -1, value, 0);
}

/* Of a sum: the tree of additions must not depend on the card. */
unsigned int mpt__pair_blocks(long long count) {
    const long long blocks = (count + 8 * MPT__THREADS - 1) / (8 * MPT__THREADS);
    return (unsigned int)(blocks < 1 ? 1 : blocks < 1024 ? blocks : 1024);
}

/* The first bad element, then the blocks' sums. */
int64_t mpt__cuda_pair_loss_workspace(const mpt__launch *launch) {
    const bool sums = launch->reduction != MPT_NONE;
    return 8 + (sums ? mpt__pair_blocks(mpt__numel(launch->operand[0])) : 0) *
                   (int64_t)sizeof(float);
}

mpt_status mpt__cuda_pair_loss(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    const bool backward = launch->kernel == MPT__K_PAIR_LOSS_BACKWARD;
    mpt__array *arrays[6];
    mpt__pair w;
    memset(&w, 0, sizeof w);
    w.function = launch->function;
    w.by = backward ? (int)launch->index[0] : -1;
    w.sums = !backward && launch->reduction != MPT_NONE;
    w.p = (float)launch->imm[0];
    w.r = (float)launch->imm[1];
    w.divisor = launch->reduction != MPT_NONE ? (float)launch->imm[2] : 1.0f;
    w.scalars = call->scalars;
    w.number = launch->number;
    for (int k = 0; k < 6; k++) {
        arrays[k] = &w.array[k];
        if (k < launch->n_operands) w.array[k] = mpt__array_of(call, k);
    }
    w.space = mpt__space_of(call, 0, arrays, 6);
    if (!backward) {
        w.partial = (float *)call->workspace + 2;
        if (w.function == MPT__FN_BCE) w.first_bad = (unsigned long long *)call->workspace;
    }
    if (w.first_bad) cudaMemsetAsync(w.first_bad, 0xff, sizeof *w.first_bad, call->stream);
    if (w.space.count == 0 && !w.sums) return MPT_OK;
    const unsigned int blocks =
        w.sums ? mpt__pair_blocks(w.space.count) : mpt__blocks(call, w.space.count);
    mpt__pair_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(w);
    if (w.sums || w.first_bad) {
        const int sums = w.sums ? (int)blocks : 0;
        mpt__pair_finish_kernel<<<1, MPT__THREADS, 0, call->stream>>>(w, sums);
    }
    return MPT_OK;
}

__global__ void mpt__metric_add_kernel(mpt__array value, mpt__scalar *sum, mpt__scalar *count) {
    sum->f += value.dtype == MPT_F64 ? *(const double *)value.data
                                     : (double)mpt__load(value.data, value.dtype, 0);
    count->i++;
}

mpt_status mpt__cuda_metric_add(const mpt__cuda_call *call) {
    const uint16_t *slot = call->launch->slot;
    mpt__metric_add_kernel<<<1, 1, 0, call->stream>>>(mpt__array_of(call, 0),
                                                      call->scalars + slot[0],
                                                      call->scalars + slot[1]);
    return MPT_OK;
}

