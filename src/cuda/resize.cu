/* ==== Images of another size: INTERPOLATE, INTERPOLATE_BACKWARD ==== */

struct mpt__resize {
    mpt__array from, to;
    long long count, channels, from_size[2], to_size[2]; /* count: of elements written */
    float step[2];
    int way, last; /* threads go along channels */
};

struct mpt__pixels {
    long long first, second;
    float weight; /* of the second */
};

/* Which of `size` elements, at most two, element `at` of the result is made of. */
__device__ __forceinline__ mpt__pixels mpt__pixels_of(const mpt__resize &w, int axis,
                                                      long long at, long long size) {
    float x = (float)at * w.step[axis];
    if (w.way == MPT__RESIZE_CENTERS) x = w.step[axis] * ((float)at + 0.5f) - 0.5f;
    if (!(x > 0)) x = 0;
    mpt__pixels p;
    p.first = (long long)x < size - 1 ? (long long)x : size - 1;
    p.second = w.way != MPT__RESIZE_NEAREST && p.first < size - 1 ? p.first + 1 : p.first;
    p.weight = p.second > p.first ? x - (float)p.first : 0.0f;
    return p;
}

/* Where element i of [N, C, rows, columns], or of [N, rows, columns, C], is: its row and column, and
   its plane in an array. */
struct mpt__pixel {
    long long row, column, sample, channel;
};

__device__ __forceinline__ mpt__pixel mpt__pixel_of(const mpt__resize &w, const long long *size,
                                                    long long i) {
    mpt__pixel p;
    if (w.last) p.channel = i % w.channels, i /= w.channels;
    p.column = i % size[1], i /= size[1];
    p.row = i % size[0], i /= size[0];
    if (!w.last) p.channel = i % w.channels, i /= w.channels;
    p.sample = i;
    return p;
}

__device__ __forceinline__ long long mpt__pixel_at(const mpt__array &array, const mpt__pixel &p,
                                                   long long row, long long column) {
    return p.sample * array.stride[0] + p.channel * array.stride[1] + row * array.stride[2] +
           column * array.stride[3];
}

__global__ void mpt__interpolate_kernel(const mpt__resize w) {
    MPT__EACH(i, w.count) {
        const mpt__pixel p = mpt__pixel_of(w, w.to_size, i);
        const mpt__pixels y = mpt__pixels_of(w, 0, p.row, w.from_size[0]);
        const mpt__pixels x = mpt__pixels_of(w, 1, p.column, w.from_size[1]);
        float line[2];
        for (int k = 0; k < 2; k++) {
            const long long row = k == 0 ? y.first : y.second;
            line[k] = mpt__load(w.from.data, w.from.dtype, mpt__pixel_at(w.from, p, row, x.first));
            if (x.weight != 0)
                line[k] = (1 - x.weight) * line[k] +
                          x.weight * mpt__load(w.from.data, w.from.dtype,
                                               mpt__pixel_at(w.from, p, row, x.second));
        }
        const float z = y.weight != 0 ? (1 - y.weight) * line[0] + y.weight * line[1] : line[0];
        mpt__put(w.to, mpt__pixel_at(w.to, p, p.row, p.column), z);
    }
}

/* The first of `count` results that element `at`, or one after it, has a share in. */
__device__ long long mpt__first_share(const mpt__resize &w, int axis, long long at, long long size,
                                      long long count) {
    long long low = 0, high = count;
    while (low < high) {
        const long long half = low + (high - low) / 2;
        if (mpt__pixels_of(w, axis, half, size).second < at)
            low = half + 1;
        else
            high = half;
    }
    return low;
}

__device__ __forceinline__ float mpt__share(const mpt__pixels &p, long long at) {
    return (p.first == at ? 1 - p.weight : 0.0f) +
           (p.second == at && p.second > p.first ? p.weight : 0.0f);
}

/* A thread for an element before, which sums its shares in the order of the results. */
__global__ void mpt__interpolate_backward_kernel(const mpt__resize w) {
    MPT__EACH(i, w.count) {
        const mpt__pixel p = mpt__pixel_of(w, w.to_size, i);
        const long long rows = w.from_size[0], columns = w.from_size[1];
        const long long left = mpt__first_share(w, 1, p.column, w.to_size[1], columns);
        float sum = 0;
        for (long long y = mpt__first_share(w, 0, p.row, w.to_size[0], rows); y < rows; y++) {
            const mpt__pixels row = mpt__pixels_of(w, 0, y, w.to_size[0]);
            if (row.first > p.row) break;
            const float share = mpt__share(row, p.row);
            for (long long x = left; x < columns; x++) {
                const mpt__pixels column = mpt__pixels_of(w, 1, x, w.to_size[1]);
                if (column.first > p.column) break;
                sum += mpt__share(column, p.column) *
                       (share * mpt__load(w.from.data, w.from.dtype, mpt__pixel_at(w.from, p, y, x)));
            }
        }
        mpt__put(w.to, mpt__pixel_at(w.to, p, p.row, p.column), sum);
    }
}

mpt_status mpt__cuda_interpolate(const mpt__cuda_call *call) {
    const mpt__operand *o = call->launch->operand;
    mpt__resize w;
    memset(&w, 0, sizeof w);
    w.from = mpt__array_of(call, 0);
    w.to = mpt__array_of(call, 1);
    w.channels = o[0].shape[1];
    w.count = 1;
    for (int d = 0; d < 4; d++) w.count *= o[1].shape[d];
    for (int i = 0; i < 2; i++) {
        w.from_size[i] = o[0].shape[2 + i];
        w.to_size[i] = o[1].shape[2 + i];
        w.step[i] = (float)call->launch->imm[i];
    }
    w.way = (int)call->launch->index[0];
    w.last = w.to.stride[1] == 1;
    if (w.count == 0) return MPT_OK;
    if (call->launch->kernel == MPT__K_INTERPOLATE) {
        mpt__interpolate_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0, call->stream>>>(w);
    } else {
        mpt__interpolate_backward_kernel<<<mpt__blocks(call, w.count), MPT__THREADS, 0,
                                           call->stream>>>(w);
    }
    return MPT_OK;
}

