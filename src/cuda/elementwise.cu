/* ==== Elementwise: FILL, COPY, UNARY, BINARY, SCALE_LOSS, DROPOUT, RANDOM ==== */

/* Arrays of one shape, walked together: `eights` pieces of eight neighbours, then the elements that
   are left, one by one. */
struct mpt__walk {
    mpt__space space;
    mpt__array array[3];
    long long eights;
};

/* fp32 and halves: what mpt__load8 takes in 128-bit pieces. */
bool mpt__is_streamed(int dtype) {
    return dtype == MPT_F32 || dtype == MPT_F16 || dtype == MPT_BF16;
}

/* Whether neighbours in the innermost dimension lie together and aligned, or are one and the same
   element. */
bool mpt__has_eights(const mpt__space &space, const mpt__array &array) {
    const int inner = space.rank - 1;
    bool dense = array.stride[inner] == 1 && mpt__is_streamed(array.dtype) &&
                 (uintptr_t)array.data % 16 == 0;
    for (int d = 0; d < inner; d++) dense = dense && array.stride[d] % 8 == 0;
    return dense || array.stride[inner] == 0;
}

/* Over n arrays of one shape. */
mpt__walk mpt__walk_of(int n_dims, const int64_t *shape, const mpt__array *of, int n) {
    mpt__walk walk;
    mpt__array *arrays[3] = {&walk.array[0], &walk.array[1], &walk.array[2]};
    memset(&walk, 0, sizeof walk);
    memcpy(walk.array, of, (size_t)n * sizeof *of);
    walk.space = mpt__merge(n_dims, shape, arrays, n);
    const int rank = walk.space.rank;
    bool eights = rank == 1 || (rank > 1 && walk.space.shape[rank - 1] % 8 == 0);
    for (int i = 0; i < n && eights; i++) eights = mpt__has_eights(walk.space, walk.array[i]);
    walk.eights = eights ? walk.space.count / 8 : 0;
    return walk;
}

/* Over operands 0 .. n-1. */
mpt__walk mpt__walk_over(const mpt__cuda_call *call, int n) {
    const mpt__operand &operand = call->launch->operand[0];
    mpt__array arrays[3];
    for (int i = 0; i < n; i++) arrays[i] = mpt__array_of(call, i);
    return mpt__walk_of(operand.rank, operand.shape, arrays, n);
}

unsigned int mpt__walk_blocks(const mpt__cuda_call *call, const mpt__walk &walk) {
    const long long single = walk.space.count - 8 * walk.eights;
    return mpt__blocks(call, walk.eights > single ? walk.eights : single);
}

/* Where element `index` lies in each of the first N arrays. */
template <int N>
__device__ __forceinline__ void mpt__locate_in(const mpt__walk &walk, long long index,
                                               long long (&at)[N]) {
    for (int i = 0; i < N; i++) at[i] = 0;
    for (int d = walk.space.rank - 1; d >= 0; d--) {
        const long long coordinate = d > 0 ? index % walk.space.shape[d] : index;
        for (int i = 0; i < N; i++) at[i] += coordinate * walk.array[i].stride[d];
        if (d > 0) index /= walk.space.shape[d];
    }
}

/* N = 8 neighbours, or N = 1 element. */
template <int N>
__device__ __forceinline__ void mpt__read(const void *data, int dtype, long long at,
                                          float (&x)[N]) {
    if (N == 8) {
        mpt__load8(data, dtype, at, x);
    } else {
        x[0] = mpt__load(data, dtype, at);
    }
}

template <int N>
__device__ __forceinline__ void mpt__write(void *data, int dtype, long long at,
                                           const float (&x)[N]) {
    if (N == 8) {
        mpt__store8(data, dtype, at, x);
    } else {
        mpt__store(data, dtype, at, x[0]);
    }
}

/* The same of array k of a walk, which may be broadcast. */
template <int N>
__device__ __forceinline__ void mpt__take(const mpt__walk &walk, int k, long long at,
                                          float (&x)[N]) {
    const mpt__array &array = walk.array[k];
    if (N == 8 && array.stride[walk.space.rank - 1] == 0) {
        const float same = mpt__load(array.data, array.dtype, at);
        for (int i = 0; i < N; i++) x[i] = same;
    } else {
        mpt__read<N>(array.data, array.dtype, at, x);
    }
}

template <int N>
__device__ __forceinline__ void mpt__give(const mpt__walk &walk, int k, long long at,
                                          float (&x)[N]) {
    if (N == 8) {
        mpt__put8(walk.array[k], at, x);
    } else {
        mpt__put(walk.array[k], at, x[0]);
    }
}

/* Elements as double and as int64, for what fp32 would not keep. */
__device__ __forceinline__ double mpt__load_f64(const void *data, int dtype, long long at) {
    switch (dtype) {
    case MPT_F64: return ((const double *)data)[at];
    case MPT_I64: return (double)((const long long *)data)[at];
    case MPT_I32: return (double)((const int *)data)[at];
    default: return (double)mpt__load(data, dtype, at);
    }
}

__device__ __forceinline__ void mpt__store_f64(void *data, int dtype, long long at, double x) {
    switch (dtype) {
    case MPT_F64: ((double *)data)[at] = x; break;
    case MPT_I64: ((long long *)data)[at] = x == x ? __double2ll_rz(x) : 0; break;
    case MPT_I32: ((int *)data)[at] = x == x ? __double2int_rz(x) : 0; break;
    case MPT_BOOL: ((unsigned char *)data)[at] = x != 0; break;
    default: mpt__store(data, dtype, at, (float)x); break;
    }
}

__device__ __forceinline__ long long mpt__load_i64(const void *data, int dtype, long long at) {
    switch (dtype) {
    case MPT_I64: return ((const long long *)data)[at];
    case MPT_I32: return ((const int *)data)[at];
    case MPT_BOOL: return ((const unsigned char *)data)[at] != 0;
    default: return ((const unsigned char *)data)[at];
    }
}

/* A narrower integer keeps the low bits. */
__device__ __forceinline__ void mpt__store_i64(void *data, int dtype, long long at, long long x) {
    switch (dtype) {
    case MPT_I64: ((long long *)data)[at] = x; break;
    case MPT_I32: ((int *)data)[at] = (int)(unsigned int)x; break;
    case MPT_BOOL: ((unsigned char *)data)[at] = x != 0; break;
    default: ((unsigned char *)data)[at] = (unsigned char)x; break;
    }
}

__global__ void mpt__fill_kernel(const mpt__walk walk, double value) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) {
        long long at[1];
        float x[8];
        for (int k = 0; k < 8; k++) x[k] = (float)value;
        mpt__locate_in<1>(walk, 8 * i, at);
        mpt__give<8>(walk, 0, at[0], x);
    }
    MPT__EACH(i, walk.space.count - done) {
        long long at[1];
        mpt__locate_in<1>(walk, done + i, at);
        mpt__store_f64(walk.array[0].data, walk.array[0].dtype, at[0], value);
    }
}

mpt_status mpt__cuda_fill(const mpt__cuda_call *call) {
    const mpt__walk walk = mpt__walk_over(call, 1);
    if (walk.space.count == 0) return MPT_OK;
    mpt__fill_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(
        walk, call->launch->imm[0]);
    return MPT_OK;
}

/* ---- Copies ---- */

__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, float &x) {
    x = mpt__load(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, double &x) {
    x = mpt__load_f64(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__fetch(const mpt__array &array, long long at, long long &x) {
    x = mpt__load_i64(array.data, array.dtype, at);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, float x) {
    mpt__put(array, at, x);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, double x) {
    if (array.accumulate) x = mpt__load_f64(array.data, array.dtype, at) + x;
    mpt__store_f64(array.data, array.dtype, at, x);
}
__device__ __forceinline__ void mpt__add_into(const mpt__array &array, long long at, long long x) {
    unsigned long long sum = (unsigned long long)x; /* modulo 2^64 */
    if (array.accumulate) sum += (unsigned long long)mpt__load_i64(array.data, array.dtype, at);
    mpt__store_i64(array.data, array.dtype, at, (long long)sum);
}

/* Through T: double where one side is F64, int64 between integers, fp32 otherwise. */
template <typename T> __global__ void mpt__copy_kernel(const mpt__walk walk) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) { /* none but where T is float */
        long long at[2];
        float x[8];
        mpt__locate_in<2>(walk, 8 * i, at);
        mpt__take<8>(walk, 0, at[0], x);
        mpt__give<8>(walk, 1, at[1], x);
    }
    MPT__EACH(i, walk.space.count - done) {
        long long at[2];
        T x;
        mpt__locate_in<2>(walk, done + i, at);
        mpt__fetch(walk.array[0], at[0], x);
        mpt__add_into(walk.array[1], at[1], x);
    }
}

#define MPT__COPY_TILE 64 /* elements of a side; a row of halves is 128 bytes */

/* A copy between arrays that are dense in different dimensions: `from` in one of `columns`
   elements, `to` in one of `rows`. */
struct mpt__transposition {
    mpt__space rest; /* the other dimensions */
    mpt__array from, to;
    long long columns, rows, from_step, to_step; /* of from along rows, of to along columns */
};

__global__ void mpt__transpose_kernel(const mpt__transposition w) {
    __shared__ float tile[MPT__COPY_TILE][MPT__COPY_TILE + 1];
    const long long across = (w.columns + MPT__COPY_TILE - 1) / MPT__COPY_TILE;
    const long long down = (w.rows + MPT__COPY_TILE - 1) / MPT__COPY_TILE;
    const int x = threadIdx.x % MPT__COPY_TILE, y = threadIdx.x / MPT__COPY_TILE;
    for (long long t = blockIdx.x; t < w.rest.count * across * down; t += gridDim.x) {
        const long long column = t % across * MPT__COPY_TILE;
        const long long row = t / across % down * MPT__COPY_TILE;
        const long long from = mpt__locate(w.rest, w.from.stride, t / across / down) + column;
        const long long to = mpt__locate(w.rest, w.to.stride, t / across / down) + row;
        for (int j = y; j < MPT__COPY_TILE; j += MPT__THREADS / MPT__COPY_TILE) {
            if (column + x < w.columns && row + j < w.rows)
                tile[j][x] =
                    mpt__load(w.from.data, w.from.dtype, from + x + (row + j) * w.from_step);
        }
        __syncthreads();
        for (int j = y; j < MPT__COPY_TILE; j += MPT__THREADS / MPT__COPY_TILE) {
            if (column + j < w.columns && row + x < w.rows)
                mpt__put(w.to, to + x + (column + j) * w.to_step, tile[x][j]);
        }
        __syncthreads();
    }
}

/* False where the copy is not of this kind. */
bool mpt__transpose(const mpt__cuda_call *call, const mpt__walk &walk) {
    const int least = 16; /* below, most of a tile would be empty */
    int dense[2] = {-1, -1};
    mpt__transposition w;
    memset(&w, 0, sizeof w);
    w.from = walk.array[0];
    w.to = walk.array[1];
    for (int d = 0; d < walk.space.rank; d++) {
        if (walk.space.shape[d] < least) continue;
        if (w.from.stride[d] == 1) dense[0] = d;
        if (w.to.stride[d] == 1) dense[1] = d;
    }
    if (dense[0] < 0 || dense[1] < 0 || dense[0] == dense[1]) return false;
    w.columns = walk.space.shape[dense[0]];
    w.rows = walk.space.shape[dense[1]];
    w.from_step = w.from.stride[dense[1]];
    w.to_step = w.to.stride[dense[0]];
    w.rest.count = walk.space.count / (w.columns * w.rows);
    for (int d = 0; d < walk.space.rank; d++) {
        if (d == dense[0] || d == dense[1]) continue;
        const int rank = w.rest.rank++;
        w.rest.shape[rank] = walk.space.shape[d];
        w.from.stride[rank] = w.from.stride[d];
        w.to.stride[rank] = w.to.stride[d];
    }
    mpt__transpose_kernel<<<mpt__blocks(call, walk.space.count / 16), MPT__THREADS, 0,
                            call->stream>>>(w);
    return true;
}

bool mpt__is_integer(int dtype) {
    return dtype == MPT_I64 || dtype == MPT_I32 || dtype == MPT_U8 || dtype == MPT_BOOL;
}

size_t mpt__bytes_of(int dtype) {
    switch (dtype) {
    case MPT_F64:
    case MPT_I64: return 8;
    case MPT_F32:
    case MPT_I32: return 4;
    case MPT_F16:
    case MPT_BF16: return 2;
    default: return 1;
    }
}

mpt_status mpt__cuda_copy(const mpt__cuda_call *call) {
    mpt__walk walk = mpt__walk_over(call, 2);
    const mpt__array &from = walk.array[0], &to = walk.array[1];
    const mpt__space &space = walk.space;
    const bool flat =
        space.rank == 0 || (space.rank == 1 && from.stride[0] == 1 && to.stride[0] == 1);
    const bool wide = from.dtype == MPT_F64 || to.dtype == MPT_F64;
    const bool integers = mpt__is_integer(from.dtype) && mpt__is_integer(to.dtype);
    if (space.count == 0) return MPT_OK;
    if (wide) walk.eights = 0; /* those go through fp32 */
    const unsigned int blocks = mpt__walk_blocks(call, walk);
    if (flat && from.dtype == to.dtype && !to.accumulate) {
        cudaMemcpyAsync(to.data, from.data, (size_t)space.count * mpt__bytes_of(to.dtype),
                        cudaMemcpyDeviceToDevice, call->stream);
    } else if (wide) {
        mpt__copy_kernel<double><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    } else if (integers) {
        mpt__copy_kernel<long long><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    } else if (!mpt__transpose(call, walk)) {
        mpt__copy_kernel<float><<<blocks, MPT__THREADS, 0, call->stream>>>(walk);
    }
    return MPT_OK;
}

/* ---- Functions ---- */

#define MPT__SQRT_HALF 0.70710678118654752f    /* 1 / sqrt(2) */
#define MPT__SQRT_2_BY_PI 0.79788456080286536f /* sqrt(2 / pi) */
#define MPT__NORMAL_PEAK 0.39894228040143268f  /* 1 / sqrt(2 pi) */
#define MPT__GELU_CUBE 0.044715f

/* The words that waist/functions.h is written in, for one float. */
#define MPT__OP __device__ __forceinline__
typedef float v_f;
MPT__OP float v_zero() { return 0.0f; }
MPT__OP float v_set(float a) { return a; }
MPT__OP float v_add(float a, float b) { return a + b; }
MPT__OP float v_sub(float a, float b) { return a - b; }
MPT__OP float v_mul(float a, float b) { return a * b; }
MPT__OP float v_div(float a, float b) { return a / b; }
MPT__OP float v_negate(float a) { return -a; }
MPT__OP float v_abs(float a) { return fabsf(a); }
MPT__OP float v_sign(float a) { return (float)((a > 0) - (a < 0)); }
MPT__OP float v_larger(float a, float b) { return a > b ? a : b; }
MPT__OP float v_smaller(float a, float b) { return a < b ? a : b; }
MPT__OP float v_select(bool m, float a, float b) { return m ? a : b; }
MPT__OP bool v_greater(float a, float b) { return a > b; }
MPT__OP bool v_equal(float a, float b) { return a == b; }
MPT__OP bool v_is_nan(float a) { return a != a; }
MPT__OP bool v_is_inf(float a) { return fabsf(a) == INFINITY; }
MPT__OP float v_sqrt(float a) { return sqrtf(a); }
MPT__OP float v_exp(float a) { return expf(a); }
MPT__OP float v_log(float a) { return logf(a); }
MPT__OP float v_normal(float a) { return 0.5f * erfcf(-MPT__SQRT_HALF * a); }
MPT__OP float v_tanh(float a) { return tanhf(a); }
MPT__OP float v_log1p(float a) { return log1pf(a); }
MPT__OP float v_expm1(float a) { return expm1f(a); }
MPT__OP float v_sigmoid(float a) { /* without loss on either side */
    const float e = expf(-fabsf(a));
    return (a < 0 ? e : 1.0f) / (e + 1.0f);
}
MPT__OP float v_softplus(float a, float beta, float threshold) {
    return a * beta > threshold ? a : log1pf(expf(a * beta)) / beta;
}
/* Long ones are not worth a copy for each of eight elements. */
__device__ __noinline__ float v_sin(float a) { return sinf(a); }
__device__ __noinline__ float v_cos(float a) { return cosf(a); }
__device__ __noinline__ float v_pow(float a, float b) { return powf(a, b); }
MPT__OP float v_pow_slope(float a, float b) {
    if (b == 2.0f) return a + a;
    return b == 0 ? 0.0f : b * v_pow(a, b - 1.0f);
}
MPT__OP float v_pow_exponent(float a, float b) {
    return a == 0 && b >= 0 ? 0.0f : v_pow(a, b) * logf(a);
}
#define MPT__V(word) v_##word
#include "../waist/functions.inl"

template <int N>
__device__ __forceinline__ void mpt__unary_of(int function, float (&x)[N], float c, float d) {
    switch (function) {
#define MPT__ROW(id, ns, value) \
    case MPT__FN_##id: \
        for (int i = 0; i < N; i++) { \
            const float a = x[i]; \
            x[i] = value; \
        } \
        break;
        MPT__UNARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
    default: break;
    }
}

template <int N>
__device__ __forceinline__ void mpt__binary_of(int function, float (&x)[N], const float (&y)[N],
                                               float c, float d) {
    switch (function) {
#define MPT__ROW(id, ns, value) \
    case MPT__FN_##id: \
        for (int i = 0; i < N; i++) { \
            const float a = x[i], b = y[i]; \
            x[i] = value; \
        } \
        break;
        MPT__BINARY_FUNCTIONS(MPT__ROW, MPT__ROW)
#undef MPT__ROW
    default: break;
    }
}

__device__ __forceinline__ bool mpt__is_finite(float x) { return fabsf(x) < INFINITY; }

struct mpt__unary {
    int function;
    float c, d;
    const mpt__scalar *slot; /* NULL: c stands there */
    mpt__scalar *nonfinite;  /* NULL, or set to 1 where an operand is not finite */
    mpt__scalar *seed;       /* NULL, or gets c in its first bytes */
};

template <int N>
__device__ __forceinline__ void mpt__unary_at(const mpt__walk &walk, const mpt__unary &unary,
                                              float c, long long index) {
    long long at[2];
    float x[N];
    mpt__locate_in<2>(walk, index, at);
    mpt__take<N>(walk, 0, at[0], x);
    if (unary.nonfinite != NULL) {
        for (int i = 0; i < N; i++) {
            if (!mpt__is_finite(x[i])) atomicExch((unsigned long long *)&unary.nonfinite->i, 1ull);
        }
    }
    mpt__unary_of<N>(unary.function, x, c, unary.d);
    mpt__give<N>(walk, 1, at[1], x);
}

__global__ void mpt__unary_kernel(const mpt__walk walk, const mpt__unary unary) {
    const long long done = 8 * walk.eights;
    const float c = unary.slot != NULL ? (float)unary.slot->f : unary.c;
    if (unary.seed != NULL && blockIdx.x == 0 && threadIdx.x == 0) *(float *)unary.seed = c;
    MPT__EACH(i, walk.eights) mpt__unary_at<8>(walk, unary, c, 8 * i);
    MPT__EACH(i, walk.space.count - done) mpt__unary_at<1>(walk, unary, c, done + i);
}

mpt_status mpt__run_unary(const mpt__cuda_call *call, mpt__scalar *nonfinite, mpt__scalar *seed) {
    const mpt__launch *launch = call->launch;
    const mpt__walk walk = mpt__walk_over(call, 2);
    mpt__unary unary;
    if (walk.space.count == 0) return MPT_OK;
    memset(&unary, 0, sizeof unary);
    unary.function = launch->function;
    unary.c = (float)launch->imm[0];
    unary.d = (float)launch->imm[1];
    unary.slot = launch->function == MPT__FN_MUL_SLOT ? &call->scalars[launch->slot[0]] : NULL;
    unary.nonfinite = nonfinite;
    unary.seed = seed;
    mpt__unary_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, unary);
    return MPT_OK;
}

mpt_status mpt__cuda_unary(const mpt__cuda_call *call) { return mpt__run_unary(call, NULL, NULL); }

/* A finite loss may overflow by the scale: what counts is the loss. */
mpt_status mpt__cuda_scale_loss(const mpt__cuda_call *call) {
    const uint16_t *slot = call->launch->slot;
    return mpt__run_unary(call, &call->scalars[slot[1]],
                          slot[2] ? &call->scalars[slot[2]] : NULL);
}

struct mpt__binary {
    int function;
    float c, d;
};

template <int N>
__device__ __forceinline__ void mpt__binary_at(const mpt__walk &walk, const mpt__binary &binary,
                                               long long index) {
    long long at[3];
    float x[N], y[N];
    mpt__locate_in<3>(walk, index, at);
    mpt__take<N>(walk, 0, at[0], x);
    mpt__take<N>(walk, 1, at[1], y);
    mpt__binary_of<N>(binary.function, x, y, binary.c, binary.d);
    mpt__give<N>(walk, 2, at[2], x);
}

__global__ void mpt__binary_kernel(const mpt__walk walk, const mpt__binary binary) {
    const long long done = 8 * walk.eights;
    MPT__EACH(i, walk.eights) mpt__binary_at<8>(walk, binary, 8 * i);
    MPT__EACH(i, walk.space.count - done) mpt__binary_at<1>(walk, binary, done + i);
}

__device__ __forceinline__ bool mpt__compare(int function, long long a, long long b) {
    switch (function) {
    case MPT__FN_EQUAL: return a == b;
    case MPT__FN_NOT_EQUAL: return a != b;
    case MPT__FN_LESS: return a < b;
    case MPT__FN_LESS_EQUAL: return a <= b;
    case MPT__FN_GREATER: return a > b;
    default: return a >= b;
    }
}

__global__ void mpt__compare_integers_kernel(const mpt__walk walk, int function) {
    MPT__EACH(i, walk.space.count) {
        long long at[3], x, y;
        mpt__locate_in<3>(walk, i, at);
        mpt__fetch(walk.array[0], at[0], x);
        mpt__fetch(walk.array[1], at[1], y);
        mpt__put(walk.array[2], at[2], mpt__compare(function, x, y) ? 1.0f : 0.0f);
    }
}

mpt_status mpt__cuda_binary(const mpt__cuda_call *call) {
    const int function = call->launch->function;
    const mpt__binary binary = {function, (float)call->launch->imm[0],
                                (float)call->launch->imm[1]};
    const mpt__walk walk = mpt__walk_over(call, 3);
    const unsigned int blocks = mpt__walk_blocks(call, walk);
    if (walk.space.count == 0) return MPT_OK;
    if (function >= MPT__FN_EQUAL && function <= MPT__FN_GREATER_EQUAL &&
        mpt__is_integer(walk.array[0].dtype) &&
        mpt__is_integer(walk.array[1].dtype)) {
        mpt__compare_integers_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk, function);
    } else {
        mpt__binary_kernel<<<blocks, MPT__THREADS, 0, call->stream>>>(walk, binary);
    }
    return MPT_OK;
}

/* ---- Random numbers: the bits of ground/random.c and ground/math.c ---- */

struct mpt__key {
    unsigned long long seed, stream, call;
    const mpt__scalar *step; /* NULL, or mixed into the stream */
};

mpt__key mpt__key_of(const mpt__cuda_call *call) {
    const mpt__launch *launch = call->launch;
    mpt__key key;
    key.seed = launch->rng.seed;
    key.stream = launch->rng.stream;
    key.call = launch->rng.call;
    key.step = launch->slot[0] != 0 ? &call->scalars[launch->slot[0]] : NULL;
    return key;
}

#define MPT__COMMON static inline __host__ __device__
#include "../waist/arithmetic.inl"

__device__ __forceinline__ unsigned long long mpt__sequence_of(const mpt__key &key) {
    unsigned long long stream = key.stream;
    if (key.step != NULL) stream = mpt__hash_u64(stream, (unsigned long long)key.step->i);
    return mpt__hash_u64(stream, key.call);
}

struct mpt__dropout {
    mpt__key key;
    unsigned int threshold; /* words from here on keep */
    float factor;
    int any;
};

__device__ __forceinline__ float mpt__kept(const mpt__dropout &dropout, unsigned int word,
                                           float x) {
    return dropout.any && word >= dropout.threshold ? __fmul_rn(x, dropout.factor) : 0.0f;
}

/* Where there are no eights, in fours: what one block of random words is for. */
__global__ void mpt__dropout_kernel(const mpt__walk walk, const mpt__dropout dropout) {
    const unsigned long long sequence = mpt__sequence_of(dropout.key);
    const long long done = 8 * walk.eights, count = walk.space.count;
    MPT__EACH(i, walk.eights) {
        unsigned int word[8];
        long long at[2];
        float x[8];
        mpt__philox(dropout.key.seed, sequence, 2 * i, word);
        mpt__philox(dropout.key.seed, sequence, 2 * i + 1, word + 4);
        mpt__locate_in<2>(walk, 8 * i, at);
        mpt__take<8>(walk, 0, at[0], x);
        for (int k = 0; k < 8; k++) x[k] = mpt__kept(dropout, word[k], x[k]);
        mpt__give<8>(walk, 1, at[1], x);
    }
    MPT__EACH(i, (count - done + 3) / 4) {
        const long long first = done + 4 * i;
        unsigned int word[4];
        mpt__philox(dropout.key.seed, sequence, first / 4, word);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            long long at[2];
            float x;
            if (first + k >= count) continue;
            mpt__locate_in<2>(walk, first + k, at);
            mpt__fetch(walk.array[0], at[0], x);
            mpt__put(walk.array[1], at[1], mpt__kept(dropout, word[k], x));
        }
    }
}

/* An element is kept when its word is p 2^32 or more; where no word is, as for a p of NaN, none. */
mpt_status mpt__cuda_dropout(const mpt__cuda_call *call) {
    const double p = call->launch->imm[0], lowest = p * 4294967296.0;
    const mpt__walk walk = mpt__walk_over(call, 2);
    mpt__dropout dropout;
    if (walk.space.count == 0) return MPT_OK;
    memset(&dropout, 0, sizeof dropout);
    dropout.key = mpt__key_of(call);
    dropout.any = lowest <= 4294967295.0;
    dropout.factor = dropout.any ? (float)(1 / (1 - p)) : 0.0f;
    dropout.threshold = dropout.any && lowest > 0 ? (unsigned int)ceil(lowest) : 0;
    mpt__dropout_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk,
                                                                                         dropout);
    return MPT_OK;
}

#ifndef MPTRAIN_NO_FRUGAL
/* ---- Gates: a thread for each word ---- */

__device__ __forceinline__ long long mpt__gate_first(long long word) {
    return word / MPT__GATE_WORDS * MPT__GATE_GROUP + word % MPT__GATE_WORDS;
}

__global__ void mpt__gates_kernel(const void *x, int dtype, long long n, long long count,
                                  unsigned int *words) {
    MPT__EACH(i, count) {
        const long long first = mpt__gate_first(i);
        unsigned int word = 0;
        for (int k = 0; k < 32 && first + MPT__GATE_WORDS * k < n; k++)
            if (mpt__load(x, dtype, first + MPT__GATE_WORDS * k) != 0.0f) word |= 1u << k;
        words[i] = word;
    }
}

__global__ void mpt__gates_open_kernel(const mpt__array y, long long n, long long count,
                                       const unsigned int *words) {
    MPT__EACH(i, count) {
        const long long first = mpt__gate_first(i);
        const unsigned int word = words[i];
        for (int k = 0; k < 32 && first + MPT__GATE_WORDS * k < n; k++)
            mpt__put(y, first + MPT__GATE_WORDS * k, (float)(word >> k & 1));
    }
}

mpt_status mpt__cuda_gate_bits(const mpt__cuda_call *call) {
    const bool open = call->launch->kernel == MPT__K_GATE_OPEN;
    const int x = open ? 1 : 0;
    const long long n = call->launch->operand[x].shape[0];
    const long long count = call->launch->operand[1 - x].shape[0];
    unsigned int *const words = (unsigned int *)call->data[1 - x];
    const mpt__array array = mpt__array_of(call, x);
    if (open)
        mpt__gates_open_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(
            array, n, count, words);
    else
        mpt__gates_kernel<<<mpt__blocks(call, count), MPT__THREADS, 0, call->stream>>>(
            array.data, array.dtype, n, count, words);
    return MPT_OK;
}
#endif

/* The natural logarithm of a number in [2^-32, 1]. Here and below all products are __dmul_rn, so
   that none is contracted with a sum. */
__device__ double mpt__ln(double x) {
    const unsigned long long bits = (unsigned long long)__double_as_longlong(x);
    const unsigned long long offset = 0x3ff0000000000000ull - 0x3fe6a09e667f3bcdull;
    const long long k = (long long)((bits + offset) >> 52) - 1023;
    const double m = __longlong_as_double((long long)(bits - ((unsigned long long)k << 52)));
    const double f = m - 1.0, s = f / (2.0 + f), z = __dmul_rn(s, s), e = (double)k;
    double sum = 1.0 / 23;
    for (int i = 21; i >= 3; i -= 2) sum = __dmul_rn(sum, z) + 1.0 / i;
    sum = __dmul_rn(__dmul_rn(__dmul_rn(2.0, s), z), sum);
    sum = __dmul_rn(2.0, s) + (sum + __dmul_rn(e, 0x1.cf79abc9e3b3ap-40));
    return __dmul_rn(e, 0x1.62e42fefap-1) + sum;
}

/* Sine and cosine of quadrant * pi/2 + r, |r| <= pi/4. */
__device__ void mpt__sincos_quadrant(unsigned int quadrant, double r, double *sine,
                                     double *cosine) {
    const double odd[8] = {-1.0 / 6,
                           1.0 / 120,
                           -1.0 / 5040,
                           1.0 / 362880,
                           -1.0 / 39916800,
                           1.0 / 6227020800.0,
                           -1.0 / 1307674368000.0,
                           1.0 / 355687428096000.0};
    const double even[7] = {
        1.0 / 24,        -1.0 / 720,           1.0 / 40320,           -1.0 / 3628800,
        1.0 / 479001600, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
    const double z = __dmul_rn(r, r), half = __dmul_rn(0.5, z), base = 1.0 - half;
    double s = odd[7], c = even[6];
    for (int i = 6; i >= 0; i--) s = __dmul_rn(s, z) + odd[i];
    for (int i = 5; i >= 0; i--) c = __dmul_rn(c, z) + even[i];
    s = r + __dmul_rn(__dmul_rn(r, z), s);
    c = base + (((1.0 - base) - half) + __dmul_rn(__dmul_rn(z, z), c));
    *sine = quadrant & 1 ? c : s;
    *cosine = quadrant & 1 ? s : c;
    if (quadrant & 2) *sine = -*sine;
    if ((quadrant + 1) & 2) *cosine = -*cosine;
}

struct mpt__distribution {
    mpt__key key;
    const mpt__scalar *draws; /* NULL, or to be added to the call */
    int normal;
    float a, b; /* lowest and beyond the highest; or mean and deviation */
    float most; /* of the dtype, below b */
};

/* Box and Muller: two words to two elements. */
__device__ __forceinline__ void mpt__normal_pair(const mpt__distribution &d,
                                                 unsigned int radius_bits, unsigned int angle_bits,
                                                 float *x) {
    const double radius =
        sqrt(__dmul_rn(-2.0, mpt__ln(((double)radius_bits + 1.0) / 4294967296.0)));
    const unsigned int quadrant = (angle_bits + 0x20000000u) >> 30;
    const double rest = (double)(int)(angle_bits - (quadrant << 30));
    double sine, cosine;
    mpt__sincos_quadrant(quadrant, __dmul_rn(rest, 1.5707963267948966 / 1073741824.0), &sine,
                         &cosine);
    x[0] = (float)((double)d.a + __dmul_rn((double)d.b, __dmul_rn(cosine, radius)));
    x[1] = (float)((double)d.a + __dmul_rn((double)d.b, __dmul_rn(sine, radius)));
}

/* Elements 4 block .. 4 block + 3. */
__device__ __forceinline__ void mpt__draw(const mpt__distribution &d, unsigned long long sequence,
                                          long long block, float *x) {
    const float range = d.b - d.a;
    unsigned int word[4];
    mpt__philox(d.key.seed, sequence, block, word);
    if (d.normal) {
        mpt__normal_pair(d, word[0], word[1], x);
        mpt__normal_pair(d, word[2], word[3], x + 2);
        return;
    }
    for (int k = 0; k < 4; k++) {
        const float u = (float)(word[k] >> 8) * (1.0f / 16777216.0f);
        const float value = __fadd_rn(d.a, __fmul_rn(range, u));
        x[k] = value < d.b ? fminf(value, d.most) : d.a; /* the sum may round up to b */
    }
}

__global__ void mpt__random_kernel(const mpt__walk walk, const mpt__distribution d) {
    mpt__key key = d.key;
    if (d.draws != NULL) key.call += (unsigned long long)d.draws->i;
    const unsigned long long sequence = mpt__sequence_of(key);
    const long long done = 8 * walk.eights, count = walk.space.count;
    MPT__EACH(i, walk.eights) {
        long long at[1];
        float x[8];
        mpt__draw(d, sequence, 2 * i, x);
        mpt__draw(d, sequence, 2 * i + 1, x + 4);
        mpt__locate_in<1>(walk, 8 * i, at);
        mpt__give<8>(walk, 0, at[0], x);
    }
    MPT__EACH(i, (count - done + 3) / 4) {
        const long long first = done + 4 * i;
        float x[4];
        mpt__draw(d, sequence, first / 4, x);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            long long at[1];
            if (first + k >= count) continue;
            mpt__locate_in<1>(walk, first + k, at);
            mpt__put(walk.array[0], at[0], x[k]);
        }
    }
}

mpt_status mpt__cuda_random(const mpt__cuda_call *call) {
    const mpt__walk walk = mpt__walk_over(call, 1);
    mpt__distribution d;
    if (walk.space.count == 0) return MPT_OK;
    memset(&d, 0, sizeof d);
    d.key = mpt__key_of(call);
    if (call->launch->slot[1] != 0) d.draws = &call->scalars[call->launch->slot[1]];
    d.normal = call->launch->function == MPT__FN_NORMAL;
    d.a = (float)call->launch->imm[0];
    d.b = (float)call->launch->imm[1];
    d.most = (float)call->launch->imm[2];
    mpt__random_kernel<<<mpt__walk_blocks(call, walk), MPT__THREADS, 0, call->stream>>>(walk, d);
    return MPT_OK;
}

