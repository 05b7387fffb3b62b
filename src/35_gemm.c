/* ---------------------------------------------------------------------------------------------
 * 35_gemm.c: matrix products, C = act(alpha A B + bias), in fp32 with FMA.
 *
 * Two roads. Packed: A and B are copied into panels (converted, rounded and transposed on the way)
 * that stay in cache, and a micro-kernel keeps a tile of C in registers. Direct: where a dimension
 * is so small that packing would cost more than it saves, kernels read fp32 operands in place.
 * The road, the K blocks and the order of every sum depend on the problem and the level alone.
 *
 * A level is a table of five functions, below; a new ISA adds a table.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__35_GEMM_INCLUDED
#define MPT__35_GEMM_INCLUDED

#include "34_cpu_neon.c"

#ifdef MPT__SIMD

/* ==== One product ==== */

/* A (outer = M) or B (outer = N), or the bias (outer = M, inner = N). Strides in elements; inner is
   the stride along K. Values are rounded to dtype `round` after loading unless it is 0. */
typedef struct mpt__gemm_side {
    const char *data;
    int dtype, round;
    int64_t outer, inner;
} mpt__gemm_side;

typedef struct mpt__gemm_level mpt__gemm_level;

typedef struct mpt__gemm {
    const mpt__gemm_level *level;
    int64_t m, n, k;
    mpt__gemm_side a, b, bias; /* bias.data NULL: none */
    char *c;
    int c_dtype, activation;
    bool accumulate;
    float alpha;
    int64_t c_row, c_column;
    /* Batch dimensions, the last one fastest; strides of a, b, bias, c. */
    int batch_rank;
    int64_t batch_count, batch_size[MPT_MAX_RANK], batch_stride[MPT_MAX_RANK][4];
} mpt__gemm;

struct mpt__gemm_level {
    int rows, columns; /* of the micro-kernel's tile */
    int direct_rows;   /* of the direct one's; its columns are the same */
    /* c[rows, columns] = or += the product of a panel of A and one of B, `depth` deep. */
    void (*tile)(int64_t depth, const float *a, const float *b, float *c, int64_t ldc, int rows,
                 int columns, bool add);
    /* The same from fp32 matrices where they lie, with b.outer = 1; rows <= direct_rows. */
    void (*direct)(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c,
                   int64_t ldc, int rows, int columns, bool add);
    /* The same with a.inner = b.inner = 1; any rows, columns <= 4. */
    void (*dot)(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b, float *c,
                int64_t ldc, int rows, int columns);
    /* panel[k][0..width) = elements outer .. outer+count-1 at k .. k+depth-1, zeros from count on.
       Writes up to 16 floats past the panel's end. depth > 0. */
    void (*pack)(float *panel, int width, const mpt__gemm_side *side, int64_t outer, int64_t count,
                 int64_t k, int64_t depth);
    /* to[0..n) = the n elements at `from`, `step` apart. */
    void (*load)(float *to, const char *from, int64_t step, int64_t n, int dtype, int round);
    /* C[i.., j..] = what the launch asks for, given the sums of products; sum may be C itself. */
    void (*finish)(const mpt__gemm *g, const float *sum, int64_t ld, int64_t i, int64_t j,
                   int64_t rows, int64_t columns);
};

#define MPT__GEMM_KC 384       /* the most K of one pass over a tile; measured */
#define MPT__GEMM_SLACK 16     /* floats that packing may write past a panel */
#define MPT__GEMM_MAX_TILE 512 /* floats of the largest tile, 14 x 32 */

static const char *mpt__gemm_at(const mpt__gemm_side *s, int64_t outer, int64_t inner) {
    return s->data + (outer * s->outer + inner * s->inner) * mpt__dtype_info[s->dtype].bytes;
}

/* ==== Micro-kernels, for any vector layer ====
 *
 * FN: target and storage class; N: prefix of the functions made; V: vocabulary; W: its lanes. Rows
 * are spelled out by the preprocessor, so that every compiler keeps the tile in registers. */

#define MPT__ROWS_2(X, V, W) X(0, V, W) X(1, V, W)
#define MPT__ROWS_4(X, V, W) MPT__ROWS_2(X, V, W) X(2, V, W) X(3, V, W)
#define MPT__ROWS_6(X, V, W) MPT__ROWS_4(X, V, W) X(4, V, W) X(5, V, W)
#define MPT__ROWS_8(X, V, W) MPT__ROWS_6(X, V, W) X(6, V, W) X(7, V, W)
#define MPT__ROWS_10(X, V, W) MPT__ROWS_8(X, V, W) X(8, V, W) X(9, V, W)
#define MPT__ROWS_12(X, V, W) MPT__ROWS_10(X, V, W) X(10, V, W) X(11, V, W)
#define MPT__ROWS_14(X, V, W) MPT__ROWS_12(X, V, W) X(12, V, W) X(13, V, W)

/* x: the first vector of a row, y: the second one. */
#define MPT__TILE_ZERO1(i, V, W) V##_f x##i = V##_zero();
#define MPT__TILE_ZERO2(i, V, W) MPT__TILE_ZERO1(i, V, W) V##_f y##i = V##_zero();
#define MPT__TILE_STEP1(i, V, W) x##i = V##_fma(V##_set(a[i]), b0, x##i);
#define MPT__TILE_STEP2(i, V, W)                                                                   \
    {                                                                                              \
        V##_f s = V##_set(a[i]);                                                                   \
        x##i = V##_fma(s, b0, x##i);                                                               \
        y##i = V##_fma(s, b1, y##i);                                                               \
    }
#define MPT__TILE_STORE1(i, V, W)                                                                  \
    if (i < rows) {                                                                                \
        float *p = c + i * ldc;                                                                    \
        if (add) x##i = V##_add(V##_load_as(p, columns, MPT_F32), x##i);                           \
        V##_store_as(p, x##i, columns, MPT_F32);                                                   \
    }
#define MPT__TILE_STORE2(i, V, W)                                                                  \
    if (i < rows) {                                                                                \
        float *p = c + i * ldc;                                                                    \
        if (add) x##i = V##_add(V##_load(p), x##i);                                                \
        if (add) y##i = V##_add(V##_load_as(p + W, columns - W, MPT_F32), y##i);                   \
        V##_store(p, x##i);                                                                        \
        V##_store_as(p + W, y##i, columns - W, MPT_F32);                                           \
    }
#define MPT__TILE_LOAD1(V, W) V##_f b0 = V##_load(b);
#define MPT__TILE_LOAD2(V, W) MPT__TILE_LOAD1(V, W) V##_f b1 = V##_load(b + W);

/* One tile of ROWS x (NV W), taken from panels MR and 2 W wide. */
#define MPT__GEMM_TILE(FN, N, V, W, MR, ROWS, NV)                                                  \
    FN void N##_tile##ROWS##x##NV(int64_t depth, const float *a, const float *b, float *c,         \
                                  int64_t ldc, int rows, int columns, bool add) {                  \
        MPT__ROWS_##ROWS(MPT__TILE_ZERO##NV, V, W);                                                \
        for (; depth > 0; depth--, a += MR, b += 2 * W) {                                          \
            MPT__TILE_LOAD##NV(V, W);                                                              \
            MPT__ROWS_##ROWS(MPT__TILE_STEP##NV, V, W);                                            \
        }                                                                                          \
        MPT__ROWS_##ROWS(MPT__TILE_STORE##NV, V, W);                                               \
    }

/* Rows past the last one repeat it, so that nothing outside A is read. */
#define MPT__DIRECT_ROW(i, V, W)                                                                   \
    const float *a##i = (const float *)(const void *)a->data + (i < rows ? i : rows - 1) * a->outer;
#define MPT__DIRECT_STEP1(i, V, W) x##i = V##_fma(V##_set(a##i[at]), b0, x##i);
#define MPT__DIRECT_STEP2(i, V, W)                                                                 \
    {                                                                                              \
        V##_f s = V##_set(a##i[at]);                                                               \
        x##i = V##_fma(s, b0, x##i);                                                               \
        y##i = V##_fma(s, b1, y##i);                                                               \
    }
#define MPT__DIRECT_LOAD1(V, W) V##_f b0 = V##_load_as(from, columns, MPT_F32);
#define MPT__DIRECT_LOAD2(V, W)                                                                    \
    V##_f b0 = V##_load(from), b1 = V##_load_as(from + W, columns - W, MPT_F32);

#define MPT__GEMM_DIRECT(FN, N, V, W, ROWS, NV)                                                    \
    FN void N##_direct##ROWS##x##NV(int64_t depth, const mpt__gemm_side *a,                        \
                                    const mpt__gemm_side *b, float *c, int64_t ldc, int rows,      \
                                    int columns, bool add) {                                       \
        const float *from = (const float *)(const void *)b->data;                                  \
        int64_t at = 0; /* in a; p counts, since a broadcast a stands still */                     \
        MPT__ROWS_##ROWS(MPT__DIRECT_ROW, V, W);                                                   \
        MPT__ROWS_##ROWS(MPT__TILE_ZERO##NV, V, W);                                                \
        for (int64_t p = 0; p < depth; p++, at += a->inner, from += b->inner) {                    \
            MPT__DIRECT_LOAD##NV(V, W);                                                            \
            MPT__ROWS_##ROWS(MPT__DIRECT_STEP##NV, V, W);                                          \
        }                                                                                          \
        MPT__ROWS_##ROWS(MPT__TILE_STORE##NV, V, W);                                               \
    }

#define MPT__GEMM_ACTIVATE(OP, V, F)                                                               \
    OP V##_f V##_activate(V##_f a, int activation) {                                               \
        switch (activation) {                                                                      \
        case MPT_ACTIVATION_RELU: return V##_relu(a);                                              \
        case MPT_ACTIVATION_GELU: return V##_gelu(a);                                              \
        case MPT_ACTIVATION_GELU_TANH: return V##_gelu_tanh(a);                                    \
        case MPT_ACTIVATION_TANH: return F(tanh)(a);                                               \
        case MPT_ACTIVATION_SIGMOID: return F(sigmoid)(a);                                         \
        default: return a;                                                                         \
        }                                                                                          \
    }

#define MPT__GEMM_COMMON(FN, N, V, W)                                                              \
    /* Columns past the end repeat the last one, and so does a row. */                             \
    FN void N##_gemm_dot(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b,          \
                         float *c, int64_t ldc, int rows, int columns) {                           \
        const float *a0 = (const float *)(const void *)a->data;                                    \
        const float *b0 = (const float *)(const void *)b->data;                                    \
        const float *b1 = b0 + (columns > 1 ? b->outer : 0);                                       \
        const float *b2 = b1 + (columns > 2 ? b->outer : 0);                                       \
        const float *b3 = b2 + (columns > 3 ? b->outer : 0);                                       \
        const int64_t whole = depth / W * W;                                                       \
        const int64_t rest = depth - whole;                                                        \
        for (int i = 0; i < rows; i += 2, a0 += 2 * a->outer, c += 2 * ldc) {                      \
            const float *a1 = a0 + (i + 1 < rows ? a->outer : 0);                                  \
            V##_f s00 = V##_zero(), s01 = s00, s02 = s00, s03 = s00;                               \
            V##_f s10 = s00, s11 = s00, s12 = s00, s13 = s00;                                      \
            float sums[8];                                                                         \
            for (int64_t k = 0; k < whole; k += W) {                                               \
                V##_f u = V##_load(a0 + k), v = V##_load(a1 + k), w = V##_load(b0 + k);            \
                V##_f x = V##_load(b1 + k), y = V##_load(b2 + k), z = V##_load(b3 + k);            \
                s00 = V##_fma(u, w, s00), s10 = V##_fma(v, w, s10);                                \
                s01 = V##_fma(u, x, s01), s11 = V##_fma(v, x, s11);                                \
                s02 = V##_fma(u, y, s02), s12 = V##_fma(v, y, s12);                                \
                s03 = V##_fma(u, z, s03), s13 = V##_fma(v, z, s13);                                \
            }                                                                                      \
            if (whole < depth) {                                                                   \
                V##_f u = V##_load_as(a0 + whole, rest, MPT_F32);                                  \
                V##_f v = V##_load_as(a1 + whole, rest, MPT_F32);                                  \
                V##_f w = V##_load_as(b0 + whole, rest, MPT_F32);                                  \
                V##_f x = V##_load_as(b1 + whole, rest, MPT_F32);                                  \
                V##_f y = V##_load_as(b2 + whole, rest, MPT_F32);                                  \
                V##_f z = V##_load_as(b3 + whole, rest, MPT_F32);                                  \
                s00 = V##_fma(u, w, s00), s10 = V##_fma(v, w, s10);                                \
                s01 = V##_fma(u, x, s01), s11 = V##_fma(v, x, s11);                                \
                s02 = V##_fma(u, y, s02), s12 = V##_fma(v, y, s12);                                \
                s03 = V##_fma(u, z, s03), s13 = V##_fma(v, z, s13);                                \
            }                                                                                      \
            V##_store_sums(sums, s00, s01, s02, s03, s10, s11, s12, s13);                          \
            for (int r = 0; r < 2 && i + r < rows; r++) {                                          \
                for (int j = 0; j < columns; j++) c[r * ldc + j] = sums[4 * r + j];                \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* A panel whose outer elements are contiguous. A vector that reaches past the width is        \
       overwritten by the next k. */                                                               \
    FN void N##_pack_outer(float *to, int width, const mpt__gemm_side *side, int64_t outer,        \
                           int64_t count, int64_t k, int64_t depth) {                              \
        const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2;      \
        const char *from = mpt__gemm_at(side, outer, k);                                           \
        const int64_t step = side->inner * bytes;                                                  \
        for (; depth > 0; depth--, to += width, from += step) {                                    \
            for (int64_t r = 0; r < width; r += W) {                                               \
                V##_f v = V##_zero();                                                              \
                if (r + W <= count) {                                                              \
                    v = V##_load_full(from + r * bytes, dtype);                                    \
                } else if (r < count) {                                                            \
                    v = V##_load_as(from + r * bytes, count - r, dtype);                           \
                }                                                                                  \
                V##_store(to + r, V##_round(v, round));                                            \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* A panel whose k are contiguous: blocks of 4 outer elements by W k are transposed. The last  \
       rows go first, as they may reach into the first rows of the next k. */                      \
    FN void N##_pack_inner(float *to, int width, const mpt__gemm_side *side, int64_t outer,        \
                           int64_t count, int64_t k, int64_t depth) {                              \
        const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2;      \
        const char *from = mpt__gemm_at(side, outer, k);                                           \
        const int64_t row = side->outer * bytes;                                                   \
        for (int64_t at = 0; at < depth; at += W, from += W * bytes, to += W * width) {            \
            const int64_t left = depth - at;                                                       \
            for (int64_t r = (width - 1) / 4 * 4; r >= 0; r -= 4) {                                \
                const char *p = from + r * row;                                                    \
                V##_f v0 = V##_zero(), v1 = v0, v2 = v0, v3 = v0;                                  \
                if (left >= W && r + 3 < count) {                                                  \
                    v0 = V##_load_full(p, dtype), v1 = V##_load_full(p + row, dtype);              \
                    v2 = V##_load_full(p + 2 * row, dtype);                                        \
                    v3 = V##_load_full(p + 3 * row, dtype);                                        \
                } else {                                                                           \
                    if (r < count) v0 = V##_load_as(p, left, dtype);                               \
                    if (r + 1 < count) v1 = V##_load_as(p + row, left, dtype);                     \
                    if (r + 2 < count) v2 = V##_load_as(p + 2 * row, left, dtype);                 \
                    if (r + 3 < count) v3 = V##_load_as(p + 3 * row, left, dtype);                 \
                }                                                                                  \
                if (round != 0) {                                                                  \
                    v0 = V##_round(v0, round), v1 = V##_round(v1, round);                          \
                    v2 = V##_round(v2, round), v3 = V##_round(v3, round);                          \
                }                                                                                  \
                V##_transpose4(&v0, &v1, &v2, &v3);                                                \
                if (left >= W) {                                                                   \
                    V##_store_quads(to + r, 4 * width, v0);                                        \
                    V##_store_quads(to + width + r, 4 * width, v1);                                \
                    V##_store_quads(to + 2 * width + r, 4 * width, v2);                            \
                    V##_store_quads(to + 3 * width + r, 4 * width, v3);                            \
                } else {                                                                           \
                    float rest[4 * W];                                                             \
                    V##_store_quads(rest, 16, v0), V##_store_quads(rest + 4, 16, v1);              \
                    V##_store_quads(rest + 8, 16, v2), V##_store_quads(rest + 12, 16, v3);         \
                    for (int64_t i = 0; i < left; i++) {                                           \
                        memcpy(to + i * width + r, rest + 4 * i, 4 * sizeof(float));               \
                    }                                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    FN void N##_gemm_load(float *to, const char *from, int64_t step, int64_t n, int dtype,         \
                          int round) {                                                             \
        const int bytes = dtype == MPT_F32 ? 4 : 2;                                                \
        for (int64_t i = 0; i < n; i += W) {                                                       \
            V##_f v;                                                                               \
            if (step == 1) {                                                                       \
                v = V##_load_as(from + i * bytes, n - i, dtype);                                   \
            } else {                                                                               \
                uint32_t lanes[W] = {0};                                                           \
                for (int64_t x = 0; x < W && i + x < n; x++) {                                     \
                    memcpy((char *)lanes + x * bytes, from + (i + x) * step * bytes,               \
                           (size_t)bytes);                                                         \
                }                                                                                  \
                v = V##_load_as(lanes, W, dtype);                                                  \
            }                                                                                      \
            V##_store_as(to + i, V##_round(v, round), n - i, MPT_F32);                             \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    FN void N##_gemm_pack(float *panel, int width, const mpt__gemm_side *side, int64_t outer,      \
                          int64_t count, int64_t k, int64_t depth) {                               \
        if (side->inner == 1 && side->outer != 1) {                                                \
            N##_pack_inner(panel, width, side, outer, count, k, depth);                            \
        } else if (side->outer == 1) {                                                             \
            N##_pack_outer(panel, width, side, outer, count, k, depth);                            \
        } else {                                                                                   \
            for (int64_t i = 0; i < depth; i++, panel += width) {                                  \
                memset(panel, 0, (size_t)width * sizeof(float));                                   \
                N##_gemm_load(panel, mpt__gemm_at(side, outer, k + i), side->outer, count,         \
                              side->dtype, side->round);                                           \
            }                                                                                      \
        }                                                                                          \
    }                                                                                              \
                                                                                                   \
    /* n of W elements, from 1 on, `step` apart. */                                                \
    FN V##_f N##_gemm_load_any(const char *from, int64_t step, int64_t n, int dtype, int round) {  \
        float lanes[W];                                                                            \
        N##_gemm_load(lanes, from, step, n < W ? n : W, dtype, round);                             \
        return V##_load_as(lanes, n, MPT_F32);                                                     \
    }                                                                                              \
                                                                                                   \
    FN void N##_gemm_finish(const mpt__gemm *g, const float *sum, int64_t ld, int64_t i,           \
                            int64_t j, int64_t rows, int64_t columns) {                            \
        const int bytes = mpt__dtype_info[g->c_dtype].bytes, dtype = g->c_dtype;                   \
        const bool scaled = g->alpha != 1.0f, biased = g->bias.data != NULL;                       \
        const bool dense = g->c_column == 1, dense_bias = g->bias.inner == 1;                      \
        const V##_f alpha = V##_set(g->alpha);                                                     \
        if (!scaled && !biased && !g->activation && !g->accumulate && dense && bytes == 2) {       \
            for (int64_t r = 0; r < rows; r++, sum += ld) {                                        \
                char *c = g->c + ((i + r) * g->c_row + j) * bytes;                                 \
                for (int64_t x = 0; x < columns; x += W) {                                         \
                    V##_f v = V##_load_as(sum + x, columns - x, MPT_F32);                          \
                    V##_store_as(c + x * bytes, v, columns - x, dtype);                            \
                }                                                                                  \
            }                                                                                      \
            return;                                                                                \
        }                                                                                          \
        for (int64_t r = 0; r < rows; r++, sum += ld) {                                            \
            char *c = g->c + ((i + r) * g->c_row + j * g->c_column) * bytes;                       \
            const char *bias = biased ? mpt__gemm_at(&g->bias, i + r, j) : NULL;                   \
            const int64_t bias_step = g->bias.inner * mpt__dtype_info[g->bias.dtype].bytes;        \
            for (int64_t x = 0; x < columns; x += W, c += W * g->c_column * bytes) {               \
                const int64_t n = columns - x;                                                     \
                V##_f v = V##_load_as(sum + x, n, MPT_F32);                                        \
                if (scaled) v = V##_mul(v, alpha);                                                 \
                if (biased && dense_bias) {                                                        \
                    v = V##_add(v, V##_round(V##_load_as(bias + x * bias_step, n, g->bias.dtype),  \
                                             g->bias.round));                                      \
                } else if (biased) {                                                               \
                    v = V##_add(v, N##_gemm_load_any(bias + x * bias_step, g->bias.inner, n,       \
                                                     g->bias.dtype, g->bias.round));               \
                }                                                                                  \
                if (g->activation != MPT_ACTIVATION_NONE) v = V##_activate(v, g->activation);      \
                if (g->accumulate && dense) v = V##_add(V##_load_as(c, n, dtype), v);              \
                if (dense) {                                                                       \
                    V##_store_as(c, v, n, dtype);                                                  \
                    continue;                                                                      \
                }                                                                                  \
                float lanes[W];                                                                    \
                if (g->accumulate) {                                                               \
                    v = V##_add(N##_gemm_load_any(c, g->c_column, n, dtype, 0), v);                \
                }                                                                                  \
                V##_store_as(lanes, v, W, dtype);                                                  \
                for (int64_t e = 0; e < W && e < n; e++) {                                         \
                    memcpy(c + e * g->c_column * bytes, (char *)lanes + e * bytes, (size_t)bytes); \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

/* ==== Levels ==== */

#define MPT__TILE_CALL(N, ROWS)                                                                    \
    (columns > lanes ? N##_tile##ROWS##x2 : N##_tile##ROWS##x1)(depth, a, b, c, ldc, rows,         \
                                                                        columns, add)
#define MPT__DIRECT_CALL(N, ROWS)                                                                  \
    (columns > lanes ? N##_direct##ROWS##x2 : N##_direct##ROWS##x1)(depth, a, b, c, ldc, rows,     \
                                                                    columns, add)

#ifdef MPT__SIMD_X86
/* Sums of 8 vectors over their lanes. */
MPT__AVX2_OP void mpt__v8_store_sums(float *to, mpt__v8_f s0, mpt__v8_f s1, mpt__v8_f s2,
                                     mpt__v8_f s3, mpt__v8_f s4, mpt__v8_f s5, mpt__v8_f s6,
                                     mpt__v8_f s7) {
    _mm256_storeu_ps(to, mpt__v8_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__AVX512_OP void mpt__v16_store_sums(float *to, mpt__v16_f s0, mpt__v16_f s1, mpt__v16_f s2,
                                        mpt__v16_f s3, mpt__v16_f s4, mpt__v16_f s5, mpt__v16_f s6,
                                        mpt__v16_f s7) {
    _mm256_storeu_ps(to, mpt__v16_sum8(s0, s1, s2, s3, s4, s5, s6, s7));
}
MPT__GEMM_ACTIVATE(MPT__AVX2_OP, mpt__v8, MPT__NAME_AVX2)
MPT__GEMM_COMMON(MPT__AVX2, mpt__avx2, mpt__v8, 8)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 2, 1)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 2, 2)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 4, 1)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 4, 2)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 6, 1)
MPT__GEMM_TILE(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 6, 2)
MPT__GEMM_DIRECT(MPT__AVX2, mpt__avx2, mpt__v8, 8, 2, 1)
MPT__GEMM_DIRECT(MPT__AVX2, mpt__avx2, mpt__v8, 8, 2, 2)
MPT__GEMM_DIRECT(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 1)
MPT__GEMM_DIRECT(MPT__AVX2, mpt__avx2, mpt__v8, 8, 6, 2)

static void mpt__avx2_gemm_tile(int64_t depth, const float *a, const float *b, float *c,
                                int64_t ldc, int rows, int columns, bool add) {
    const int lanes = 8;
    if (rows > 4) {
        MPT__TILE_CALL(mpt__avx2, 6);
    } else if (rows > 2) {
        MPT__TILE_CALL(mpt__avx2, 4);
    } else {
        MPT__TILE_CALL(mpt__avx2, 2);
    }
}

static void mpt__avx2_gemm_direct(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b,
                                  float *c, int64_t ldc, int rows, int columns, bool add) {
    const int lanes = 8;
    if (rows > 2) {
        MPT__DIRECT_CALL(mpt__avx2, 6);
    } else {
        MPT__DIRECT_CALL(mpt__avx2, 2);
    }
}

static const mpt__gemm_level mpt__avx2_gemm_level = {
    6, 16, 6, mpt__avx2_gemm_tile, mpt__avx2_gemm_direct, mpt__avx2_gemm_dot,
    mpt__avx2_gemm_pack, mpt__avx2_gemm_load, mpt__avx2_gemm_finish};

MPT__GEMM_ACTIVATE(MPT__AVX512_OP, mpt__v16, MPT__NAME_AVX512)
MPT__GEMM_COMMON(MPT__AVX512, mpt__avx512, mpt__v16, 16)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 4, 1)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 4, 2)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 8, 1)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 8, 2)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 12, 1)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 12, 2)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 14, 1)
MPT__GEMM_TILE(MPT__AVX512, mpt__avx512, mpt__v16, 16, 14, 14, 2)
MPT__GEMM_DIRECT(MPT__AVX512, mpt__avx512, mpt__v16, 16, 2, 1)
MPT__GEMM_DIRECT(MPT__AVX512, mpt__avx512, mpt__v16, 16, 2, 2)
MPT__GEMM_DIRECT(MPT__AVX512, mpt__avx512, mpt__v16, 16, 8, 1)
MPT__GEMM_DIRECT(MPT__AVX512, mpt__avx512, mpt__v16, 16, 8, 2)

static void mpt__avx512_gemm_tile(int64_t depth, const float *a, const float *b, float *c,
                                  int64_t ldc, int rows, int columns, bool add) {
    const int lanes = 16;
    if (rows > 12) {
        MPT__TILE_CALL(mpt__avx512, 14);
    } else if (rows > 8) {
        MPT__TILE_CALL(mpt__avx512, 12);
    } else if (rows > 4) {
        MPT__TILE_CALL(mpt__avx512, 8);
    } else {
        MPT__TILE_CALL(mpt__avx512, 4);
    }
}

static void mpt__avx512_gemm_direct(int64_t depth, const mpt__gemm_side *a,
                                    const mpt__gemm_side *b, float *c, int64_t ldc, int rows,
                                    int columns, bool add) {
    const int lanes = 16;
    if (rows > 2) {
        MPT__DIRECT_CALL(mpt__avx512, 8);
    } else {
        MPT__DIRECT_CALL(mpt__avx512, 2);
    }
}

static const mpt__gemm_level mpt__avx512_gemm_level = {
    14, 32, 8, mpt__avx512_gemm_tile, mpt__avx512_gemm_direct, mpt__avx512_gemm_dot,
    mpt__avx512_gemm_pack, mpt__avx512_gemm_load, mpt__avx512_gemm_finish};
#endif

#ifdef MPT__HAS_NEON
MPT__GEMM_ACTIVATE(MPT__NEON_OP, mpt__v4, MPT__NAME_NEON)
MPT__GEMM_COMMON(MPT__NEON, mpt__neon, mpt__v4, 4)
MPT__GEMM_TILE(MPT__NEON, mpt__neon, mpt__v4, 4, 10, 4, 1)
MPT__GEMM_TILE(MPT__NEON, mpt__neon, mpt__v4, 4, 10, 4, 2)
MPT__GEMM_TILE(MPT__NEON, mpt__neon, mpt__v4, 4, 10, 10, 1)
MPT__GEMM_TILE(MPT__NEON, mpt__neon, mpt__v4, 4, 10, 10, 2)
MPT__GEMM_DIRECT(MPT__NEON, mpt__neon, mpt__v4, 4, 2, 1)
MPT__GEMM_DIRECT(MPT__NEON, mpt__neon, mpt__v4, 4, 2, 2)
MPT__GEMM_DIRECT(MPT__NEON, mpt__neon, mpt__v4, 4, 8, 1)
MPT__GEMM_DIRECT(MPT__NEON, mpt__neon, mpt__v4, 4, 8, 2)

static void mpt__neon_gemm_tile(int64_t depth, const float *a, const float *b, float *c,
                                int64_t ldc, int rows, int columns, bool add) {
    const int lanes = 4;
    if (rows > 4) {
        MPT__TILE_CALL(mpt__neon, 10);
    } else {
        MPT__TILE_CALL(mpt__neon, 4);
    }
}

static void mpt__neon_gemm_direct(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b,
                                  float *c, int64_t ldc, int rows, int columns, bool add) {
    const int lanes = 4;
    if (rows > 2) {
        MPT__DIRECT_CALL(mpt__neon, 8);
    } else {
        MPT__DIRECT_CALL(mpt__neon, 2);
    }
}

static const mpt__gemm_level mpt__neon_gemm_level = {
    10, 8, 8, mpt__neon_gemm_tile, mpt__neon_gemm_direct, mpt__neon_gemm_dot,
    mpt__neon_gemm_pack, mpt__neon_gemm_load, mpt__neon_gemm_finish};
#endif

/* ==== The packed road ==== */

static int64_t mpt__round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static int64_t mpt__smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

#define MPT__GEMM_BLOCK_M 2016 /* rows of C under way at a time: multiples of 14 and 6 */
#define MPT__GEMM_BLOCK_N 2048
#define MPT__GEMM_PACKED (1 << 20) /* floats of both packed operands, about: they stay in cache */
#define MPT__GEMM_CHUNK_M 168
#define MPT__GEMM_CHUNK_MACS (1 << 20)

/* Where the sums of products live until all of K has been seen. */
typedef enum mpt__gemm_home {
    MPT__GEMM_IN_C,    /* C is fp32, contiguous along N, and takes the plain sums */
    MPT__GEMM_FINISH,  /* the same, but each tile is finished in place after the last K block */
    MPT__GEMM_ON_STACK, /* one K block: in a tile that is finished at once */
    MPT__GEMM_IN_PARTIAL
} mpt__gemm_home;

typedef struct mpt__gemm_layout {
    int64_t m, n;         /* of a block of C */
    int64_t depth;        /* of a K block */
    int64_t pass;         /* K packed at a time: some K blocks */
    int64_t a, b, partial; /* floats of workspace */
    mpt__gemm_home home;
} mpt__gemm_layout;

static int64_t mpt__gemm_panel_floats(int64_t depth, int64_t width) {
    return mpt__round_up(depth * width, 16) + MPT__GEMM_SLACK;
}

static bool mpt__gemm_is_plain(const mpt__gemm *g) {
    return g->alpha == 1.0f && g->bias.data == NULL && g->activation == MPT_ACTIVATION_NONE;
}

static mpt__gemm_layout mpt__gemm_lay_out(const mpt__gemm *g) {
    mpt__gemm_layout lay;
    int64_t blocks = (g->k + MPT__GEMM_KC - 1) / MPT__GEMM_KC;
    lay.m = mpt__smaller_of(g->m, MPT__GEMM_BLOCK_M);
    lay.n = mpt__smaller_of(g->n, MPT__GEMM_BLOCK_N);
    lay.depth = mpt__smaller_of(mpt__round_up((g->k + blocks - 1) / blocks, 16), g->k);
    int64_t outer = mpt__round_up(lay.m, g->level->rows) + mpt__round_up(lay.n, g->level->columns);
    int64_t at_once = MPT__GEMM_PACKED / outer / lay.depth;
    lay.pass = mpt__smaller_of((at_once > 1 ? at_once : 1) * lay.depth, g->k);
    int64_t k_blocks = (lay.pass + lay.depth - 1) / lay.depth;
    lay.a = (lay.m + g->level->rows - 1) / g->level->rows * k_blocks;
    lay.a *= mpt__gemm_panel_floats(lay.depth, g->level->rows);
    lay.b = (lay.n + g->level->columns - 1) / g->level->columns * k_blocks;
    lay.b *= mpt__gemm_panel_floats(lay.depth, g->level->columns);
    bool as_floats = g->c_dtype == MPT_F32 && g->c_column == 1;
    if (as_floats && mpt__gemm_is_plain(g)) {
        lay.home = MPT__GEMM_IN_C;
    } else if (blocks == 1) {
        lay.home = MPT__GEMM_ON_STACK;
    } else {
        lay.home = as_floats && !g->accumulate ? MPT__GEMM_FINISH : MPT__GEMM_IN_PARTIAL;
    }
    lay.partial = lay.home == MPT__GEMM_IN_PARTIAL ? lay.m * lay.n : 0;
    return lay;
}

/* One pass over a block of C. */
typedef struct mpt__gemm_pass {
    const mpt__gemm *g;
    mpt__gemm_layout lay;
    int64_t i, j, k, m, n, depth; /* the block, and the K of this pass */
    int64_t a_panels, b_panels, k_blocks;
    int64_t chunk_m, chunk_n;
    float *a, *b, *partial;
} mpt__gemm_pass;

/* Where panel `panel` of K block `block` begins: all panels of one K block, then of the next. */
static float *mpt__gemm_panel(const mpt__gemm_pass *p, float *packed, int64_t panels, int width,
                              int64_t block, int64_t panel) {
    int64_t depth = mpt__smaller_of(p->lay.depth, p->depth - block * p->lay.depth);
    return packed + block * panels * mpt__gemm_panel_floats(p->lay.depth, width) +
           panel * mpt__gemm_panel_floats(depth, width);
}

/* A chunk packs one panel of A or B over one K block. */
static void mpt__gemm_pack_chunk(void *work, int64_t chunk, int thread) {
    const mpt__gemm_pass *p = (const mpt__gemm_pass *)work;
    const mpt__gemm_level *level = p->g->level;
    int64_t panels = p->a_panels + p->b_panels, block = chunk / panels, panel = chunk % panels;
    int64_t k = block * p->lay.depth, depth = mpt__smaller_of(p->lay.depth, p->depth - k);
    bool is_a = panel < p->a_panels;
    int width = is_a ? level->rows : level->columns;
    if (!is_a) panel -= p->a_panels;
    int64_t begin = panel * width, count = mpt__smaller_of(width, (is_a ? p->m : p->n) - begin);
    (void)thread;
    level->pack(mpt__gemm_panel(p, is_a ? p->a : p->b, is_a ? p->a_panels : p->b_panels, width,
                                block, panel),
                width, is_a ? &p->g->a : &p->g->b, (is_a ? p->i : p->j) + begin, count, p->k + k,
                depth);
}

static void mpt__gemm_run_tile(const mpt__gemm_pass *p, int64_t block, int64_t i, int64_t j) {
    const mpt__gemm *g = p->g;
    const mpt__gemm_level *level = g->level;
    int64_t k = block * p->lay.depth, depth = mpt__smaller_of(p->lay.depth, p->depth - k);
    int rows = (int)mpt__smaller_of(level->rows, p->m - i);
    int columns = (int)mpt__smaller_of(level->columns, p->n - j);
    const float *a = mpt__gemm_panel(p, p->a, p->a_panels, level->rows, block, i / level->rows);
    const float *b = mpt__gemm_panel(p, p->b, p->b_panels, level->columns, block,
                                     j / level->columns);
    bool add = p->k + k > 0, last = p->k + k + depth == g->k;
    float tile[MPT__GEMM_MAX_TILE];
    float *sum = (float *)(void *)g->c + (p->i + i) * g->c_row + p->j + j;
    int64_t ld = g->c_row;
    if (p->lay.home == MPT__GEMM_ON_STACK) {
        sum = tile;
        ld = level->columns;
    } else if (p->lay.home == MPT__GEMM_IN_PARTIAL) {
        sum = p->partial + i * p->n + j;
        ld = p->n;
    }
    if (p->lay.home == MPT__GEMM_IN_C) {
        level->tile(depth, a, b, sum, ld, rows, columns, add || g->accumulate);
        return;
    }
    level->tile(depth, a, b, sum, ld, rows, columns, add);
    if (last) level->finish(g, sum, ld, p->i + i, p->j + j, rows, columns);
}

static void mpt__gemm_compute_chunk(void *work, int64_t chunk, int thread) {
    const mpt__gemm_pass *p = (const mpt__gemm_pass *)work;
    int64_t across = (p->n + p->chunk_n - 1) / p->chunk_n;
    int64_t i0 = chunk / across * p->chunk_m, j0 = chunk % across * p->chunk_n;
    int64_t i1 = mpt__smaller_of(i0 + p->chunk_m, p->m);
    int64_t j1 = mpt__smaller_of(j0 + p->chunk_n, p->n);
    (void)thread;
    for (int64_t block = 0; block < p->k_blocks; block++) {
        for (int64_t j = j0; j < j1; j += p->g->level->columns) {
            for (int64_t i = i0; i < i1; i += p->g->level->rows) mpt__gemm_run_tile(p, block, i, j);
        }
    }
}

/* mpt__parallel, or a plain loop where there is no pool. */
static void mpt__gemm_for(mpt__pool *pool, int64_t count, int64_t cost, mpt__chunk_fn fn,
                          void *work) {
    if (pool != NULL) {
        mpt__parallel(pool, count, cost, fn, work);
    } else {
        for (int64_t i = 0; i < count; i++) fn(work, i, 0);
    }
}

static void mpt__gemm_packed(const mpt__gemm *g, mpt__pool *pool, float *workspace) {
    mpt__gemm_pass p;
    p.g = g;
    p.lay = mpt__gemm_lay_out(g);
    p.a = workspace;
    p.b = workspace + p.lay.a;
    p.partial = workspace + p.lay.a + p.lay.b;
    for (p.i = 0; p.i < g->m; p.i += p.lay.m) {
        p.m = mpt__smaller_of(p.lay.m, g->m - p.i);
        p.a_panels = (p.m + g->level->rows - 1) / g->level->rows;
        p.chunk_m = mpt__smaller_of(mpt__round_up(MPT__GEMM_CHUNK_M, g->level->rows), p.m);
        for (p.j = 0; p.j < g->n; p.j += p.lay.n) {
            p.n = mpt__smaller_of(p.lay.n, g->n - p.j);
            p.b_panels = (p.n + g->level->columns - 1) / g->level->columns;
            for (p.k = 0; p.k < g->k; p.k += p.lay.pass) {
                p.depth = mpt__smaller_of(p.lay.pass, g->k - p.k);
                p.k_blocks = (p.depth + p.lay.depth - 1) / p.lay.depth;
                p.chunk_n = mpt__round_up(MPT__GEMM_CHUNK_MACS / (p.chunk_m * p.depth) + 1,
                                          g->level->columns);
                int64_t chunks = (p.m + p.chunk_m - 1) / p.chunk_m;
                chunks *= (p.n + p.chunk_n - 1) / p.chunk_n;
                mpt__gemm_for(pool, (p.a_panels + p.b_panels) * p.k_blocks,
                              (p.m + p.n) * p.depth / 4, mpt__gemm_pack_chunk, &p);
                mpt__gemm_for(pool, chunks, p.m * p.n / 32 * p.depth, mpt__gemm_compute_chunk, &p);
            }
        }
    }
}

/* ==== The direct road ==== */

#define MPT__GEMM_DIRECT_DEPTH 4096 /* the most K of one pass */
#define MPT__GEMM_DIRECT_FLOATS 32768 /* of a converted chunk, which stays in L2 */

typedef struct mpt__gemm_direct {
    const mpt__gemm *g;
    bool dots, by_rows;        /* which kernel; which side is chunked: A by rows or B by columns */
    int64_t chunk;             /* rows or columns of a chunk */
    mpt__gemm_side a, b;       /* the side that is not chunked, converted where that is needed */
    float *copies;             /* one chunk per thread */
    int64_t copy_floats;
} mpt__gemm_direct;

static bool mpt__gemm_needs_copy(const mpt__gemm_side *s) {
    return s->dtype != MPT_F32 || s->round != 0;
}

/* Whether the direct road is open and pays; measured. */
static bool mpt__gemm_goes_direct(const mpt__gemm *g, bool *dots) {
    *dots = g->a.inner == 1 && g->b.inner == 1 && g->b.outer != 1;
    if (g->k > MPT__GEMM_DIRECT_DEPTH) return false;
    if (*dots) return g->m <= 16 || (g->n <= 16 && g->m <= 256);
    if (g->b.outer != 1) return false;
    return g->m <= 16 || g->n <= 16 || g->k <= 32;
}

/* Makes `side` an fp32 matrix of `count` outer elements from `outer` on: in place, or copied to
   `to` with the contiguous direction kept. */
static mpt__gemm_side mpt__gemm_as_floats(const mpt__gemm *g, const mpt__gemm_side *side,
                                          int64_t outer, int64_t count, float *to) {
    mpt__gemm_side out = *side;
    out.data = mpt__gemm_at(side, outer, 0);
    if (!mpt__gemm_needs_copy(side)) return out;
    bool along_k = side->outer != 1;
    int64_t lines = along_k ? count : g->k, length = along_k ? g->k : count;
    int64_t step = along_k ? side->inner : side->outer;
    if (step == 1 && (along_k ? side->outer : side->inner) == length) { /* all in one piece */
        length *= lines;
        lines = 1;
    }
    for (int64_t i = 0; i < lines; i++) {
        const char *from = mpt__gemm_at(side, along_k ? outer + i : outer, along_k ? 0 : i);
        g->level->load(to + i * length, from, step, length, side->dtype, side->round);
    }
    out.data = (const char *)to;
    out.dtype = MPT_F32;
    out.round = 0;
    out.outer = along_k ? g->k : 1;
    out.inner = along_k ? 1 : count;
    return out;
}

/* One or two rows of C: K in short blocks over wide tiles, so that B is read along its rows. */
static void mpt__gemm_direct_wide(const mpt__gemm *g, const mpt__gemm_side *a,
                                  const mpt__gemm_side *b, int64_t i0, int64_t j0, int64_t m,
                                  int64_t n) {
    const mpt__gemm_level *level = g->level;
    enum { WIDE = MPT__GEMM_MAX_TILE / 2, DEPTH = 16 };
    float tile[MPT__GEMM_MAX_TILE];
    for (int64_t wide = 0; wide < n; wide += WIDE) {
        int64_t width = mpt__smaller_of(WIDE, n - wide);
        for (int64_t k = 0; k < g->k; k += DEPTH) {
            mpt__gemm_side a_tile = *a, b_tile = *b;
            a_tile.data = mpt__gemm_at(a, 0, k);
            for (int64_t j = 0; j < width; j += level->columns) {
                b_tile.data = mpt__gemm_at(b, wide + j, k);
                level->direct(mpt__smaller_of(DEPTH, g->k - k), &a_tile, &b_tile, tile + j, WIDE,
                              (int)m, (int)mpt__smaller_of(level->columns, width - j), k > 0);
            }
        }
        level->finish(g, tile, WIDE, i0, j0 + wide, m, width);
    }
}

/* c[m, n] = the plain sums of products; m is any number, n too. */
static void mpt__gemm_direct_sums(const mpt__gemm_direct *d, const mpt__gemm_side *a,
                                  const mpt__gemm_side *b, float *c, int64_t ldc, int64_t m,
                                  int64_t n) {
    const mpt__gemm_level *level = d->g->level;
    int64_t across = d->dots ? 4 : level->columns, down = d->dots ? 64 : level->direct_rows;
    for (int64_t j = 0; j < n; j += across) {
        int columns = (int)mpt__smaller_of(across, n - j);
        mpt__gemm_side b_tile = *b;
        b_tile.data = mpt__gemm_at(b, j, 0);
        for (int64_t i = 0; i < m; i += down) {
            int rows = (int)mpt__smaller_of(down, m - i);
            mpt__gemm_side a_tile = *a;
            a_tile.data = mpt__gemm_at(a, i, 0);
            if (d->dots) {
                level->dot(d->g->k, &a_tile, &b_tile, c + i * ldc + j, ldc, rows, columns);
            } else {
                level->direct(d->g->k, &a_tile, &b_tile, c + i * ldc + j, ldc, rows, columns,
                              false);
            }
        }
    }
}

static void mpt__gemm_direct_chunk(void *work, int64_t chunk, int thread) {
    const mpt__gemm_direct *d = (const mpt__gemm_direct *)work;
    const mpt__gemm *g = d->g;
    float *copy = d->copies + thread * d->copy_floats, tile[MPT__GEMM_MAX_TILE];
    int64_t begin = chunk * d->chunk, size = d->by_rows ? g->m : g->n;
    int64_t count = mpt__smaller_of(d->chunk, size - begin);
    int64_t i0 = d->by_rows ? begin : 0, j0 = d->by_rows ? 0 : begin;
    int64_t m = d->by_rows ? count : g->m, n = d->by_rows ? g->n : count;
    mpt__gemm_side a = d->a, b = d->b;
    if (d->by_rows) {
        a = mpt__gemm_as_floats(g, &g->a, begin, count, copy);
    } else {
        b = mpt__gemm_as_floats(g, &g->b, begin, count, copy);
    }
    if (!d->dots && m <= 2 && g->k > 32) {
        mpt__gemm_direct_wide(g, &a, &b, i0, j0, m, n);
        return;
    }
    if (g->c_dtype == MPT_F32 && g->c_column == 1 && !g->accumulate && mpt__gemm_is_plain(g)) {
        float *c = (float *)(void *)g->c + i0 * g->c_row + j0;
        mpt__gemm_direct_sums(d, &a, &b, c, g->c_row, m, n);
        return;
    }
    /* Tiles as wide as they may be, so that they are finished in whole vectors. */
    int64_t across = mpt__smaller_of(n, 64), down = MPT__GEMM_MAX_TILE / across / 2 * 2;
    for (int64_t j = 0; j < n; j += across) {
        mpt__gemm_side b_tile = b;
        b_tile.data = mpt__gemm_at(&b, j, 0);
        for (int64_t i = 0; i < m; i += down) {
            int64_t rows = mpt__smaller_of(down, m - i), columns = mpt__smaller_of(across, n - j);
            mpt__gemm_side a_tile = a;
            a_tile.data = mpt__gemm_at(&a, i, 0);
            mpt__gemm_direct_sums(d, &a_tile, &b_tile, tile, across, rows, columns);
            g->level->finish(g, tile, across, i0 + i, j0 + j, rows, columns);
        }
    }
}

/* Fills all but the pointers; returns the floats of workspace. */
static int64_t mpt__gemm_direct_plan(const mpt__gemm *g, bool dots, int threads,
                                     mpt__gemm_direct *d) {
    d->g = g;
    d->dots = dots;
    d->by_rows = g->m >= g->n;
    int64_t other = d->by_rows ? g->n : g->m, k = g->k > 0 ? g->k : 1;
    int64_t macs = MPT__GEMM_CHUNK_MACS / 4 / (other * k) + 1;
    int64_t floats = MPT__GEMM_DIRECT_FLOATS / k + 1;
    d->chunk = mpt__round_up(mpt__smaller_of(macs, floats), d->by_rows ? 8 : g->level->columns);
    d->copy_floats = 0;
    if (mpt__gemm_needs_copy(d->by_rows ? &g->a : &g->b)) {
        d->copy_floats = mpt__round_up(d->chunk * g->k, 16);
    }
    bool shared = mpt__gemm_needs_copy(d->by_rows ? &g->b : &g->a);
    return threads * d->copy_floats + (shared ? mpt__round_up(other * g->k, 16) : 0);
}

static void mpt__gemm_run_direct(const mpt__gemm *g, bool dots, mpt__pool *pool, float *workspace) {
    mpt__gemm_direct d;
    int64_t all = mpt__gemm_direct_plan(g, dots, pool ? mpt__pool_threads(pool) : 1, &d);
    int64_t per_thread = d.copy_floats * (pool ? mpt__pool_threads(pool) : 1);
    int64_t size = d.by_rows ? g->m : g->n;
    d.copies = workspace;
    d.a = g->a;
    d.b = g->b;
    if (all > per_thread && d.by_rows) {
        d.b = mpt__gemm_as_floats(g, &g->b, 0, g->n, workspace + per_thread);
    } else if (all > per_thread) {
        d.a = mpt__gemm_as_floats(g, &g->a, 0, g->m, workspace + per_thread);
    }
    mpt__gemm_for(pool, (size + d.chunk - 1) / d.chunk, g->m * g->n / 16 * g->k,
                  mpt__gemm_direct_chunk, &d);
}

/* ==== The kernel ==== */

static mpt__gemm_side mpt__gemm_read_side(const mpt__operand *o, const void *data, int compute,
                                          int outer, int inner) {
    mpt__gemm_side side;
    side.data = (const char *)data;
    side.dtype = o->dtype;
    side.round = compute == MPT_F32 || compute == o->dtype ? 0 : compute;
    side.outer = o->stride[outer];
    side.inner = o->stride[inner];
    return side;
}

/* Batch dimensions that A and C run through as if they were rows of one matrix are made so. */
static void mpt__gemm_fold_batch(mpt__gemm *g) {
    while (g->batch_rank > 0) {
        int last = g->batch_rank - 1;
        const int64_t *s = g->batch_stride[last];
        if (g->batch_size[last] != 1 &&
            (s[1] != 0 || s[0] != g->m * g->a.outer || s[3] != g->m * g->c_row ||
             (g->bias.data != NULL && s[2] != g->m * g->bias.outer))) {
            return;
        }
        g->m *= g->batch_size[last];
        g->batch_count /= g->batch_size[last];
        g->batch_rank--;
    }
}

/* False where the launch is not for this room. data may be NULL: then only sizes count. */
static bool mpt__gemm_read(mpt__gemm *g, const mpt__gemm_level *level, const mpt__launch *launch,
                           void *const *data) {
    const mpt__operand *o = launch->operand;
    const int rank = o[3].rank, row = rank - 2, column = rank - 1;
    const bool biased = o[2].storage != 0;
    for (int i = 0; i < 4; i++) {
        if (i == 2 && !biased) continue;
        if (o[i].dtype != MPT_F32 && o[i].dtype != MPT_F16 && o[i].dtype != MPT_BF16) return false;
    }
    const void *none = launch;
    g->level = level;
    g->m = o[3].shape[row];
    g->n = o[3].shape[column];
    g->k = o[0].shape[column];
    g->a = mpt__gemm_read_side(&o[0], data ? data[0] : none, launch->compute_dtype, row, column);
    g->b = mpt__gemm_read_side(&o[1], data ? data[1] : none, launch->compute_dtype, column, row);
    g->bias = mpt__gemm_read_side(&o[2], !biased ? NULL : data ? data[2] : none,
                                  launch->compute_dtype, row, column);
    g->c = data ? (char *)data[3] : NULL;
    g->c_dtype = o[3].dtype;
    g->c_row = o[3].stride[row];
    g->c_column = o[3].stride[column];
    g->activation = launch->activation;
    g->accumulate = o[3].access == MPT__ACCUMULATE;
    g->alpha = (float)launch->imm[0];
    g->batch_rank = rank - 2;
    g->batch_count = 1;
    for (int i = 0; i < g->batch_rank; i++) {
        g->batch_size[i] = o[3].shape[i];
        g->batch_count *= o[3].shape[i];
        for (int j = 0; j < 4; j++) {
            g->batch_stride[i][j] = j == 2 && !biased ? 0 : o[j].stride[i];
        }
    }
    if (g->m == 0 || g->n == 0 || g->batch_count == 0) {
        g->batch_count = 0;
        return true;
    }
    mpt__gemm_fold_batch(g);
    if (g->c_column != 1 && g->c_row == 1) { /* C^T = B^T A^T */
        mpt__gemm_side side = g->a;
        int64_t size = g->m, stride = g->bias.outer;
        g->a = g->b, g->b = side;
        g->m = g->n, g->n = size;
        g->bias.outer = g->bias.inner, g->bias.inner = stride;
        g->c_row = g->c_column, g->c_column = 1;
        for (int i = 0; i < g->batch_rank; i++) {
            stride = g->batch_stride[i][0];
            g->batch_stride[i][0] = g->batch_stride[i][1], g->batch_stride[i][1] = stride;
        }
    }
    return true;
}

static void mpt__gemm_run_one(const mpt__gemm *g, mpt__pool *pool, float *workspace) {
    bool dots;
    if (g->k == 0) {
        float zeros[64] = {0};
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j += 64) {
                g->level->finish(g, zeros, 0, i, j, 1, mpt__smaller_of(64, g->n - j));
            }
        }
    } else if (mpt__gemm_goes_direct(g, &dots)) {
        mpt__gemm_run_direct(g, dots, pool, workspace);
    } else {
        mpt__gemm_packed(g, pool, workspace);
    }
}

/* Floats of workspace for one product with this many threads. */
static int64_t mpt__gemm_floats(const mpt__gemm *g, int threads) {
    bool dots;
    mpt__gemm_direct d;
    if (g->k == 0) return 0;
    if (mpt__gemm_goes_direct(g, &dots)) return mpt__gemm_direct_plan(g, dots, threads, &d);
    mpt__gemm_layout lay = mpt__gemm_lay_out(g);
    return lay.a + lay.b + mpt__round_up(lay.partial, 16);
}

/* Whether the products of a batch go to threads whole, rather than each one in pieces. */
static bool mpt__gemm_splits_batch(const mpt__gemm *g) {
    return g->batch_count > 1 && g->m * g->n * g->k <= 4 * MPT__GEMM_CHUNK_MACS;
}

typedef struct mpt__gemm_batch {
    const mpt__gemm *g;
    mpt__pool *pool;
    float *workspace;
    int64_t floats; /* of workspace per thread */
} mpt__gemm_batch;

static void mpt__gemm_batch_chunk(void *work, int64_t chunk, int thread) {
    const mpt__gemm_batch *batch = (const mpt__gemm_batch *)work;
    mpt__gemm g = *batch->g;
    for (int i = g.batch_rank - 1; i >= 0; i--) {
        int64_t at = chunk % g.batch_size[i];
        chunk /= g.batch_size[i];
        g.a.data += at * g.batch_stride[i][0] * mpt__dtype_info[g.a.dtype].bytes;
        g.b.data += at * g.batch_stride[i][1] * mpt__dtype_info[g.b.dtype].bytes;
        if (g.bias.data != NULL) {
            g.bias.data += at * g.batch_stride[i][2] * mpt__dtype_info[g.bias.dtype].bytes;
        }
        g.c += at * g.batch_stride[i][3] * mpt__dtype_info[g.c_dtype].bytes;
    }
    mpt__gemm_run_one(&g, batch->pool, batch->workspace + thread * batch->floats);
}

static void mpt__gemm_run(const mpt__gemm_level *level, const mpt__cpu_call *call) {
    mpt__gemm g;
    mpt__gemm_batch batch;
    if (!mpt__gemm_read(&g, level, call->launch, call->data)) {
        mpt__cpu_fall_back(call);
        return;
    }
    uint32_t state = mpt__flush_denormals(true);
    batch.g = &g;
    float nothing[1] = {0}; /* where products need none: offsets of 0 count from somewhere */
    batch.workspace = call->workspace ? (float *)call->workspace : nothing;
    if (mpt__gemm_splits_batch(&g)) {
        batch.pool = NULL;
        batch.floats = mpt__gemm_floats(&g, 1);
        mpt__parallel(call->pool, g.batch_count, g.batch_count * (g.m * g.n / 16 * g.k + 1),
                      mpt__gemm_batch_chunk, &batch);
    } else {
        batch.pool = call->pool;
        batch.floats = 0;
        for (int64_t i = 0; i < g.batch_count; i++) mpt__gemm_batch_chunk(&batch, i, 0);
    }
    mpt__restore_denormals(state);
}

static int64_t mpt__gemm_workspace(const mpt__gemm_level *level, const mpt__launch *launch,
                                   int threads) {
    mpt__gemm g;
    if (!mpt__gemm_read(&g, level, launch, NULL) || g.batch_count == 0) return 0;
    int64_t floats = mpt__gemm_splits_batch(&g) ? threads * mpt__gemm_floats(&g, 1)
                                                : mpt__gemm_floats(&g, threads);
    return floats * (int64_t)sizeof(float);
}

#ifdef MPT__SIMD_X86
static void mpt__avx2_gemm(const mpt__cpu_call *call) {
    mpt__gemm_run(&mpt__avx2_gemm_level, call);
}
static void mpt__avx512_gemm(const mpt__cpu_call *call) {
    mpt__gemm_run(&mpt__avx512_gemm_level, call);
}
static int64_t mpt__avx2_gemm_workspace(const mpt__launch *launch, int threads) {
    return mpt__gemm_workspace(&mpt__avx2_gemm_level, launch, threads);
}
static int64_t mpt__avx512_gemm_workspace(const mpt__launch *launch, int threads) {
    return mpt__gemm_workspace(&mpt__avx512_gemm_level, launch, threads);
}

/* ==== The tables ==== */

static void mpt__cpu_add_avx2(mpt__cpu *cpu) {
    cpu->words = &mpt__avx2_words;
    mpt__cpu_add(cpu, MPT__K_GEMM, mpt__avx2_gemm, mpt__avx2_gemm_workspace);
}

static void mpt__cpu_add_avx512(mpt__cpu *cpu) {
    cpu->words = &mpt__avx512_words;
    mpt__cpu_add(cpu, MPT__K_GEMM, mpt__avx512_gemm, mpt__avx512_gemm_workspace);
}
#endif

#ifdef MPT__HAS_NEON
static void mpt__neon_gemm(const mpt__cpu_call *call) {
    mpt__gemm_run(&mpt__neon_gemm_level, call);
}
static int64_t mpt__neon_gemm_workspace(const mpt__launch *launch, int threads) {
    return mpt__gemm_workspace(&mpt__neon_gemm_level, launch, threads);
}
static void mpt__cpu_add_neon(mpt__cpu *cpu) {
    cpu->words = &mpt__neon_words;
    mpt__cpu_add(cpu, MPT__K_GEMM, mpt__neon_gemm, mpt__neon_gemm_workspace);
}
#endif

#endif
#endif
