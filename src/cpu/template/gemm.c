/* ----
 * cpu/template/gemm.c: micro-kernels of matrix products in fp32 with FMA (mpt__gemm_level).
 *
 * A level gives, besides its words: MPT__TILE_ROWS of its tile, and MPT__TILE_FEW and
 * MPT__TILE_MIDDLE of two smaller ones, all by 2 MPT__WIDTH columns; MPT__DIRECT_ROWS, at most 8;
 * MPT__IN_PLACE; MPT__CHUNK_ROWS, a multiple of the tile's, of which a chunk of A fits into the
 * second cache; and MPT__RATE, products of numbers per nanosecond.
 * ---- */
#ifdef MPT__V
#if (MPT__TILE_ROWS > MPT__WIDTH && MPT__TILE_ROWS % MPT__WIDTH != 0) || \
    MPT__CHUNK_ROWS % MPT__TILE_ROWS != 0 || MPT__DIRECT_ROWS > 8
#error "mptrain: panels of A are at most MPT__WIDTH or a multiple of it wide; see above"
#endif

/* ==== Edges, activations ==== */

/* c[rows, columns] = or (add) += a tile summed beside it. */
MPT__FN MPT__NOINLINE void v_put_tile(
    const float *from, int64_t ld, float *c, int64_t ldc, int rows, int columns, bool add) {
    for (; rows > 0; rows--, from += ld, c += ldc)
        for (int j = 0; j < columns; j += MPT__WIDTH) {
            v_f v = v_load(from + j);
            if (add) v = v_add(v_load_as(c + j, columns - j, MPT_F32), v);
            v_store_as(c + j, v, columns - j, MPT_F32);
        }
}

MPT__FN MPT__NOINLINE v_f v_activate(v_f a, int activation) {
    switch (activation) {
    case MPT_ACTIVATION_GELU: return v_gelu(a);
    case MPT_ACTIVATION_GELU_TANH: return v_gelu_tanh(a);
    case MPT_ACTIVATION_TANH: return v_tanh(a);
    case MPT_ACTIVATION_SIGMOID: return v_sigmoid(a);
    default: return a;
    }
}

/* ==== Tiles ==== */

/* The products of one k: of a row, and what comes before the first of them. */
#ifndef MPT__ROW_STEP
#define MPT__ROW_START
#define MPT__ROW_STEP(i, b, sum) v_fma(v_set(MPT__LINES_A##i), b, sum)
#endif
#define MPT__TILE_STEP(i) \
    if (i < height) x##i = MPT__ROW_STEP(i, b0, x##i); \
    if (i < height && wide) y##i = MPT__ROW_STEP(i, b1, y##i);
#define MPT__TILE_APART(i) \
    if (i < height) x##i = v_add(x##i, v_mul(v_set(MPT__LINES_A##i), b0)); \
    if (i < height && wide) y##i = v_add(y##i, v_mul(v_set(MPT__LINES_A##i), b1));
#define MPT__CHAIN_LOAD(i) \
    if (i < height) x##i = v_load(to + i * ld); \
    if (i < height && wide) y##i = v_load(to + i * ld + MPT__WIDTH);
#define MPT__TILE_ADD(i) \
    if (i < height) x##i = v_add(v_load(to + i * ld), x##i); \
    if (i < height && wide) y##i = v_add(v_load(to + i * ld + MPT__WIDTH), y##i);
#define MPT__TILE_STORE(i) \
    if (i < height) v_store(to + i * ld, x##i); \
    if (i < height && wide) v_store(to + i * ld + MPT__WIDTH, y##i);

/* A tile of `height` rows and one vector or two (wide), from panels, or rows of A where they
   lie. */
MPT__OP void MPT__LEVEL(tile)(MPT__TILE_TAKES, int height, bool wide) {
    const int width = wide ? 2 * MPT__WIDTH : MPT__WIDTH;
    const bool whole = (how & MPT__GEMM_ROOM) || (rows == height && columns == width);
    const bool add = (how & MPT__GEMM_ADD) != 0;
    MPT__ALIGN(64) float beside[MPT__TILE_ROWS * 2 * MPT__WIDTH];
    const int64_t b_step = b->inner;
    const float *from = mpt__gemm_floats_of(b);
    MPT__TILE_LINES(a, MPT__IN_PLACE, MPT__TILE_ROWS)
    MPT__ROWS_14(MPT__TILE_ZERO)
    for (; depth > 0; depth--, from += b_step) {
        const v_f b0 = v_load(from), b1 = wide ? v_load(from + MPT__WIDTH) : b0;
        MPT__ROW_START
        MPT__ROWS_14(MPT__TILE_STEP)
        MPT__TILE_NEXT(MPT__IN_PLACE);
    }
    float *to = whole ? c : beside;
    const int64_t ld = whole ? ldc : width;
    if (add && whole) { MPT__ROWS_14(MPT__TILE_ADD) }
    MPT__ROWS_14(MPT__TILE_STORE)
    if (!whole) v_put_tile(beside, ld, c, ldc, rows, columns, add);
}
#define MPT__TILE_OF(name, height) \
    MPT__FN void MPT__LEVEL(name##_narrow)(MPT__TILE_TAKES) { \
        MPT__LEVEL(tile)(MPT__TILE_GIVES, height, false); \
    } \
    MPT__FN void MPT__LEVEL(name##_wide)(MPT__TILE_TAKES) { \
        MPT__LEVEL(tile)(MPT__TILE_GIVES, height, true); \
    }
MPT__TILE_OF(tile_few, MPT__TILE_FEW)
MPT__TILE_OF(tile_middle, MPT__TILE_MIDDLE)
MPT__TILE_OF(tile_most, MPT__TILE_ROWS)

/* Of the two functions of a name that which has as many columns. */
#define MPT__BY_WIDTH(name) \
    (columns > MPT__WIDTH ? MPT__LEVEL(name##_wide) : MPT__LEVEL(name##_narrow))
static void MPT__LEVEL(gemm_tile)(MPT__TILE_TAKES) {
    mpt__gemm_tile *tile = rows > MPT__TILE_MIDDLE ? MPT__BY_WIDTH(tile_most)
        : rows > MPT__TILE_FEW                     ? MPT__BY_WIDTH(tile_middle)
                                                   : MPT__BY_WIDTH(tile_few);
    tile(MPT__TILE_GIVES);
}

#ifndef MPTRAIN_NO_RESUME
/* The same in the order of the reference: each element is one chain of rounded products and sums,
   with which a later block of K goes on. With adders of their own, as on Zen 4, that takes 4 to 8 %
   longer (an MLP of 784-128-64-10, measured); with FMA units alone it is half as fast. */
MPT__OP void MPT__LEVEL(chain)(MPT__TILE_TAKES, int height, bool wide) {
    const int width = wide ? 2 * MPT__WIDTH : MPT__WIDTH;
    const bool whole = (how & MPT__GEMM_ROOM) || (rows == height && columns == width);
    MPT__ALIGN(64) float beside[MPT__TILE_ROWS * 2 * MPT__WIDTH];
    const int64_t b_step = b->inner;
    const float *from = mpt__gemm_floats_of(b);
    float *to = whole ? c : beside;
    const int64_t ld = whole ? ldc : width;
    MPT__TILE_LINES(a, MPT__IN_PLACE, MPT__TILE_ROWS)
    MPT__ROWS_14(MPT__TILE_ZERO)
    if (how & MPT__GEMM_ADD) {
        if (!whole) memset(beside, 0, sizeof beside);
        for (int i = 0; i < rows && !whole; i++)
            memcpy(beside + i * ld, c + i * ldc, (size_t)columns * sizeof *c);
        MPT__ROWS_14(MPT__CHAIN_LOAD)
    }
    for (; depth > 0; depth--, from += b_step) {
        const v_f b0 = v_load(from), b1 = wide ? v_load(from + MPT__WIDTH) : b0;
        MPT__ROWS_14(MPT__TILE_APART)
        MPT__TILE_NEXT(MPT__IN_PLACE);
    }
    MPT__ROWS_14(MPT__TILE_STORE)
    if (!whole) v_put_tile(beside, ld, c, ldc, rows, columns, false);
}
#define MPT__CHAIN_OF(name, height) \
    MPT__FN void MPT__LEVEL(name##_narrow)(MPT__TILE_TAKES) { \
        MPT__LEVEL(chain)(MPT__TILE_GIVES, height, false); \
    } \
    MPT__FN void MPT__LEVEL(name##_wide)(MPT__TILE_TAKES) { \
        MPT__LEVEL(chain)(MPT__TILE_GIVES, height, true); \
    }
MPT__CHAIN_OF(chain_few, MPT__TILE_FEW)
MPT__CHAIN_OF(chain_middle, MPT__TILE_MIDDLE)
MPT__CHAIN_OF(chain_most, MPT__TILE_ROWS)
static void MPT__LEVEL(gemm_chain)(MPT__TILE_TAKES) {
    mpt__gemm_tile *tile = rows > MPT__TILE_MIDDLE ? MPT__BY_WIDTH(chain_most)
        : rows > MPT__TILE_FEW                     ? MPT__BY_WIDTH(chain_middle)
                                                   : MPT__BY_WIDTH(chain_few);
    tile(MPT__TILE_GIVES);
}
#endif

/* ==== B where it lies ==== */

/* The last rows and columns are done twice where they fill no tile, unless columns fill no
   vector. */
#define MPT__DIRECT_STEP(i) \
    if (i < height) x##i = v_fma(v_set(MPT__LINES_A##i), b0, x##i); \
    if (i < height && wide) y##i = v_fma(v_set(MPT__LINES_A##i), b1, y##i);
#define MPT__DIRECT_ADD(i) \
    if (i < height && wide) x##i = v_add(v_load(MPT__LINES_C##i), x##i); \
    if (i < height && wide) y##i = v_add(v_load(MPT__LINES_C##i + past), y##i); \
    if (i < height && !wide) x##i = v_add(v_load_as(MPT__LINES_C##i, columns, MPT_F32), x##i);
#define MPT__DIRECT_STORE(i) \
    if (i < height && wide) v_store(MPT__LINES_C##i, x##i), v_store(MPT__LINES_C##i + past, y##i); \
    if (i < height && !wide) v_store_as(MPT__LINES_C##i, x##i, columns, MPT_F32);
MPT__OP void MPT__LEVEL(direct)(MPT__TILE_TAKES, int height, bool wide, bool halves) {
    const int dtype = !halves ? MPT_F32 : b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16;
    const int bytes = halves ? 2 : 4;
    const int64_t o = rows > 1 ? a->outer : 0, a_step = a->inner, b_step = b->inner * bytes;
    const int64_t third = rows < 6 ? rows - 3 : 3, sixth = rows < 8 ? rows - 2 : 6;
    const int64_t past = columns - MPT__WIDTH;
    const v_m lanes = v_first(columns);
    MPT__ROWS_8(MPT__TILE_ZERO)
    for (int left = how; left >= 0; left -= MPT__GEMM_MORE, a++, b++) {
        const char *from = b->data;
        const float *a0 = mpt__gemm_floats_of(a), *a3 = a0 + third * o, *a6 = a0 + sixth * o;
        for (int64_t p = 0; p < depth; p++) {
            const v_f b0 = wide ? v_load_full(from, dtype)
                : halves        ? v_load_as(from, columns, dtype)
                                : v_load_first(from, lanes);
            const v_f b1 = wide ? v_load_full(from + past * bytes, dtype) : b0;
            MPT__ROWS_8(MPT__DIRECT_STEP)
            a0 += a_step, a3 += a_step, a6 += a_step, from += b_step;
        }
    }
    ldc = rows > 1 ? ldc : 0;
    float *c3 = c + third * ldc, *c6 = c + sixth * ldc;
    if ((how & MPT__GEMM_ADD) != 0) { MPT__ROWS_8(MPT__DIRECT_ADD) }
    MPT__ROWS_8(MPT__DIRECT_STORE)
}
#define MPT__DIRECT_OF(name, height, halves) \
    MPT__FN void MPT__LEVEL(name##_narrow)(MPT__TILE_TAKES) { \
        MPT__LEVEL(direct)(MPT__TILE_GIVES, height, false, halves); \
    } \
    MPT__FN void MPT__LEVEL(name##_wide)(MPT__TILE_TAKES) { \
        MPT__LEVEL(direct)(MPT__TILE_GIVES, height, true, halves); \
    }
MPT__DIRECT_OF(direct_two, 2, false)
MPT__DIRECT_OF(direct_most, MPT__DIRECT_ROWS, false)
MPT__DIRECT_OF(direct_two_halves, 2, true)
MPT__DIRECT_OF(direct_halves, MPT__DIRECT_ROWS, true)
static void MPT__LEVEL(gemm_direct)(MPT__TILE_TAKES) {
    mpt__gemm_tile *tile = rows > 2 ? MPT__BY_WIDTH(direct_most) : MPT__BY_WIDTH(direct_two);
    if (b->dtype != MPT_F32)
        tile = rows > 2 ? MPT__BY_WIDTH(direct_halves) : MPT__BY_WIDTH(direct_two_halves);
    tile(MPT__TILE_GIVES);
}

/* ==== Lines of pixels ==== */

#ifdef MPT__HAS_NORMS
#define MPT__LINE_STEP(i) \
    if (i < height) x##i = step(x##i, &MPT__LINES_A##i, b0); \
    if (i < height && wide) y##i = step(y##i, &MPT__LINES_A##i, b1);
#define MPT__LINE_STORE(i) \
    if (i < height && i < rows) { \
        float *p = c + i * ldc; \
        const int64_t n = wide ? MPT__WIDTH : columns; \
        v_store_as(p, add ? v_add(v_load_as(p, n, MPT_F32), x##i) : x##i, n, MPT_F32); \
        if (wide) MPT__LEVEL(line_end)(p + MPT__WIDTH, y##i, columns - MPT__WIDTH, add); \
    }
MPT__OP void MPT__LEVEL(line_end)(float *p, v_f y, int64_t n, bool add) {
    v_store_as(p, add ? v_add(v_load_as(p, n, MPT_F32), y) : y, n, MPT_F32);
}
/* step(sum, a, b) adds to a sum what the word at a makes with b. */
MPT__OP void MPT__LEVEL(gemm_lines_of)(
    MPT__TILE_TAKES, int height, bool wide, v_f step(v_f, const float *, v_f)) {
    const bool add = (how & MPT__GEMM_ADD) != 0;
    const int64_t o = a->outer, a_step = a->inner, b_step = b->inner;
    MPT__ROWS_8(MPT__TILE_ZERO)
    for (; how >= 0; how -= MPT__GEMM_MORE, a++, b++) {
        const float *from = mpt__gemm_floats_of(b), *a0 = mpt__gemm_floats_of(a);
        const float *a3 = a0 + 3 * o, *a6 = a0 + 6 * o;
        for (int64_t p = 0; p < depth; p++) {
            const v_f b0 = v_load(from), b1 = wide ? v_load(from + MPT__WIDTH) : b0;
            MPT__ROWS_8(MPT__LINE_STEP)
            a0 += a_step, a3 += a_step, a6 += a_step, from += b_step;
        }
    }
    MPT__ROWS_8(MPT__LINE_STORE)
}
#endif

/* ==== Sweeps and dots ==== */

MPT__OP void MPT__LEVEL(sweep)(int lines, const float *a, int64_t a_step, const char *b,
    int64_t b_step, float *c, int64_t n, int dtype) {
    const int bytes = dtype == MPT_F32 ? 4 : 2;
    const int64_t two = lines > 1 ? 2 * b_step : 0, a_two = lines > 1 ? 2 * a_step : 0;
    const v_f a0 = v_set(a[0]), a1 = v_set(a[a_two / 2]), a2 = v_set(a[a_two]);
    const v_f a3 = v_set(a[a_two / 2 * 3]);
    const char *b2 = b + two;
    for (; n > 0;
         n -= MPT__WIDTH, b += MPT__WIDTH * bytes, b2 += MPT__WIDTH * bytes, c += MPT__WIDTH) {
        v_f sum = v_fma(a0, v_load_as(b, n, dtype), v_load_as(c, n, MPT_F32));
        if (lines > 1) {
            sum = v_fma(a1, v_load_as(b + b_step, n, dtype), sum);
            sum = v_fma(a2, v_load_as(b2, n, dtype), sum);
            sum = v_fma(a3, v_load_as(b2 + b_step, n, dtype), sum);
        }
        v_store_as(c, sum, n, MPT_F32);
    }
}
MPT__OP void MPT__LEVEL(sweep_all)(int64_t depth, const mpt__gemm_side *a, const mpt__gemm_side *b,
    float *c, int64_t ldc, int rows, int64_t columns, int dtype) {
    const int64_t b_step = b->inner * (dtype == MPT_F32 ? 4 : 2);
    const float *of = mpt__gemm_floats_of(a);
    const char *line = b->data;
    for (; depth > 0; depth -= 4, of += 4 * a->inner, line += 4 * b_step)
        for (int i = 0; i < rows; i++) {
            const float *at = of + i * a->outer;
            if (depth >= 4) {
                MPT__LEVEL(sweep)(4, at, a->inner, line, b_step, c + i * ldc, columns, dtype);
                continue;
            }
            for (int64_t k = 0; k < depth; k++, at += a->inner)
                MPT__LEVEL(sweep)(1, at, 0, line + k * b_step, 0, c + i * ldc, columns, dtype);
        }
}
MPT__FN void MPT__LEVEL(gemm_sweep)(MPT__TILE_TAKES) {
    (void)how;
    if (b->dtype == MPT_F32) {
        MPT__LEVEL(sweep_all)(depth, a, b, c, ldc, rows, columns, MPT_F32);
    } else {
        const int half = b->dtype == MPT_F16 ? MPT_F16 : MPT_BF16;
        MPT__LEVEL(sweep_all)(depth, a, b, c, ldc, rows, columns, half);
    }
}
/* Columns past the end repeat the last one, and so does a row. */
MPT__OP void MPT__LEVEL(gemm_dot_of)(int64_t depth, const mpt__gemm_side *a,
    const mpt__gemm_side *b, float *c, int64_t ldc, int rows, int columns, int u_dtype,
    int w_dtype) {
    const int u_bytes = u_dtype == MPT_F32 ? 4 : 2, w_bytes = w_dtype == MPT_F32 ? 4 : 2;
    const int64_t a_row = a->outer * u_bytes, b_column = b->outer * w_bytes;
    const char *a0 = a->data, *b0 = b->data, *b1 = b0 + (columns > 1 ? b_column : 0);
    const char *b2 = b1 + (columns > 2 ? b_column : 0);
    const char *b3 = b2 + (columns > 3 ? b_column : 0);
    for (int i = 0; i < rows; i += 2, a0 += 2 * a_row, c += 2 * ldc) {
        const char *a1 = a0 + (i + 1 < rows ? a_row : 0);
        v_f s00 = v_zero(), s01 = s00, s02 = s00, s03 = s00;
        v_f s10 = s00, s11 = s00, s12 = s00, s13 = s00;
        for (int64_t k = 0; k < depth; k += MPT__WIDTH) {
            const int64_t n = depth - k, ka = k * u_bytes, kb = k * w_bytes;
            v_f u = v_load_as(a0 + ka, n, u_dtype), v = v_load_as(a1 + ka, n, u_dtype);
            v_f w = v_load_as(b0 + kb, n, w_dtype), x = v_load_as(b1 + kb, n, w_dtype);
            v_f y = v_load_as(b2 + kb, n, w_dtype), z = v_load_as(b3 + kb, n, w_dtype);
            s00 = v_fma(u, w, s00), s10 = v_fma(v, w, s10);
            s01 = v_fma(u, x, s01), s11 = v_fma(v, x, s11);
            s02 = v_fma(u, y, s02), s12 = v_fma(v, y, s12);
            s03 = v_fma(u, z, s03), s13 = v_fma(v, z, s13);
        }
        float sums[8];
        v_store_sums(sums, s00, s01, s02, s03, s10, s11, s12, s13);
        for (int r = 0; r < 2 && i + r < rows; r++) {
            if (columns == 4) {
                memcpy(c + r * ldc, sums + 4 * r, 4 * sizeof *c);
            } else {
                for (int j = 0; j < columns; j++) c[r * ldc + j] = sums[4 * r + j];
            }
        }
    }
}
/* A line of p by `count` ones of q, 8 at a time; the last are done twice, but for 2. */
MPT__OP void MPT__LEVEL(dots_of)(int64_t depth, const char *p, const mpt__gemm_side *q,
    int64_t count, float *c, int64_t step, int p_dtype, int q_dtype) {
    const int p_bytes = p_dtype == MPT_F32 ? 4 : 2, q_bytes = q_dtype == MPT_F32 ? 4 : 2;
    const char *line = q->data;
    for (int64_t n; count > 0; count -= n, c += n * step, line += n * q->outer * q_bytes) {
        n = count > 8 ? 8 : count > 2 ? count : 1;
        const int64_t third = n < 6 ? n - 3 : 3, sixth = n < 8 ? n - 2 : 6;
        const int64_t o = n > 1 ? q->outer * q_bytes : 0;
        const char *q0 = line, *q3 = line + third * o, *q6 = line + sixth * o;
        v_f s0 = v_zero(), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;
        for (int64_t k = 0; k < depth; k += MPT__WIDTH) {
            const int64_t left = depth - k;
            v_f u = v_load_as(p + k * p_bytes, left, p_dtype);
            s0 = v_fma(u, v_load_as(q0, left, q_dtype), s0);
            s1 = v_fma(u, v_load_as(q0 + o, left, q_dtype), s1);
            s2 = v_fma(u, v_load_as(q0 + 2 * o, left, q_dtype), s2);
            s3 = v_fma(u, v_load_as(q3, left, q_dtype), s3);
            s4 = v_fma(u, v_load_as(q3 + o, left, q_dtype), s4);
            s5 = v_fma(u, v_load_as(q3 + 2 * o, left, q_dtype), s5);
            s6 = v_fma(u, v_load_as(q6, left, q_dtype), s6);
            s7 = v_fma(u, v_load_as(q6 + o, left, q_dtype), s7);
            q0 += MPT__WIDTH * q_bytes, q3 += MPT__WIDTH * q_bytes, q6 += MPT__WIDTH * q_bytes;
        }
        float sums[8];
        v_store_sums(sums, s0, s1, s2, s3, s4, s5, s6, s7);
        for (int64_t i = 0; i < n; i++) {
            c[i * step] = sums[i < 3 ? i : i < third + 3 ? i - third + 3 : i - sixth + 6];
        }
    }
}
MPT__FN void MPT__LEVEL(dots)(int64_t depth, const mpt__gemm_side *p, const mpt__gemm_side *q,
    int64_t count, float *c, int64_t step) {
    if (p->dtype == MPT_F32 && q->dtype == MPT_F32)
        MPT__LEVEL(dots_of)(depth, p->data, q, count, c, step, MPT_F32, MPT_F32);
    else
        MPT__LEVEL(dots_of)(depth, p->data, q, count, c, step, p->dtype, q->dtype);
}
MPT__FN void MPT__LEVEL(gemm_dot)(MPT__TILE_TAKES) {
    (void)how; /* all of K comes at once */
    if (rows == 1 || columns == 1) {
        const mpt__gemm_side *many = rows == 1 ? b : a;
        const int64_t count = rows == 1 ? columns : rows, step = rows == 1 ? 1 : ldc;
        MPT__LEVEL(dots)(depth, rows == 1 ? a : b, many, count, c, step);
    } else if (columns == 2) {
        mpt__gemm_side second = *b;
        second.data = mpt__gemm_at(b, 1, 0);
        MPT__LEVEL(dots)(depth, b, a, rows, c, ldc);
        MPT__LEVEL(dots)(depth, &second, a, rows, c + 1, ldc);
    } else if (a->dtype == MPT_F32 && b->dtype == MPT_F32) {
        MPT__LEVEL(gemm_dot_of)(depth, a, b, c, ldc, rows, columns, MPT_F32, MPT_F32);
    } else if (a->dtype == MPT_F32 && b->dtype == MPT_BF16) {
        MPT__LEVEL(gemm_dot_of)(depth, a, b, c, ldc, rows, columns, MPT_F32, MPT_BF16);
    } else {
        MPT__LEVEL(gemm_dot_of)(depth, a, b, c, ldc, rows, columns, a->dtype, b->dtype);
    }
}

/* ==== Panels ==== */

/* A panel of contiguous outer elements. What a vector has past the width is overwritten by the next
   k. */
MPT__FN void MPT__LEVEL(pack_outer)(float *to, int width, MPT__PACK_TAKES) {
    const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2;
    const char *from = mpt__gemm_at(side, outer, k);
    const int64_t step = side->inner * bytes;
    const int half = dtype == MPT_F16 ? MPT_F16 : MPT_BF16;
    const bool quick = dtype != MPT_F32 && round == 0;
    if (dtype == MPT_F32 && round == 0 && width <= MPT__WIDTH) {
        const v_m lanes = v_first(count);
        for (; depth > 0; depth--, to += width, from += step)
            v_store(to, v_load_first(from, lanes));
    }
    if (quick && width == 2 * MPT__WIDTH && count == width)
        for (; depth > 0; depth--, to += 2 * MPT__WIDTH, from += step) {
            v_store(to, v_load_full(from, half));
            v_store(to + MPT__WIDTH, v_load_full(from + 2 * MPT__WIDTH, half));
        }
    /* What is read past the width is written over. */
    if (quick && width <= MPT__WIDTH && count == width && count + side->inner >= MPT__WIDTH)
        for (; depth > 1; depth--, to += width, from += step) v_store(to, v_load_full(from, half));
    for (; depth > 0; depth--, to += width, from += step)
        for (int64_t r = 0; r < width; r += MPT__WIDTH) {
            v_f v = r < count ? v_load_as(from + r * bytes, count - r, dtype) : v_zero();
            v_store(to + r, v_round(v, round));
        }
}

/* Contiguous elements of DTYPE, as far as whole vectors go. */
#define MPT__LOAD_WHOLE(DTYPE) \
    if (step == 1 && round == 0 && dtype == DTYPE) { \
        for (; i + MPT__WIDTH <= n; i += MPT__WIDTH) \
            v_store(to + i, v_load_full(from + 2 * i, DTYPE)); \
    }

MPT__FN void MPT__LEVEL(gemm_load)(
    float *to, const char *from, int64_t step, int64_t n, int dtype, int round) {
    const int bytes = dtype == MPT_F32 ? 4 : 2;
    int64_t i = 0;
    MPT__LOAD_WHOLE(MPT_BF16)
    MPT__LOAD_WHOLE(MPT_F16)
    for (; i < n; i += MPT__WIDTH) {
        v_f v;
        if (step == 1) {
            v = v_load_as(from + i * bytes, n - i, dtype);
        } else {
            uint32_t lanes[MPT__WIDTH] = {0};
            for (int64_t x = 0; x < MPT__WIDTH && i + x < n; x++) {
                memcpy((char *)lanes + x * bytes, from + (i + x) * step * bytes, (size_t)bytes);
            }
            v = v_load_as(lanes, MPT__WIDTH, dtype);
        }
        v_store_as(to + i, v_round(v, round), n - i, MPT_F32);
    }
}

/* K k at a time while the condition holds, with what is known spelled out. */
#define MPT__PACK_RUN(CONDITION, K, PACK) \
    if (CONDITION) { \
        for (; left >= K; left -= K, p += K * bytes, at += K * width) PACK; \
    }

/* Four lines of k of MPT__WIDTH outer elements, the first `left` of which count, transposed. */
MPT__OP void MPT__LEVEL(put_quads)(
    float *to, int width, v_f v0, v_f v1, v_f v2, v_f v3, int64_t left) {
    v_transpose4(&v0, &v1, &v2, &v3);
    v_store(to, v0);
    if (left > 1) v_store(to + width, v1);
    if (left > 2) v_store(to + 2 * width, v2);
    if (left > 3) v_store(to + 3 * width, v3);
}
MPT__OP void MPT__LEVEL(pack_quads)(
    float *to, int width, const char *p, int64_t row, int64_t lines, int round, int64_t left) {
    const v_f v0 = v_round(v_gemm_quads(p, row, lines), round);
    const v_f v1 = v_round(v_gemm_quads(p + row, row, lines - 1), round);
    const v_f v2 = v_round(v_gemm_quads(p + 2 * row, row, lines - 2), round);
    const v_f v3 = v_round(v_gemm_quads(p + 3 * row, row, lines - 3), round);
    MPT__LEVEL(put_quads)(to, width, v0, v1, v2, v3, left);
}
MPT__OP void MPT__LEVEL(pack_octs)(
    float *to, int width, const char *p, int64_t row, int64_t lines, int dtype) {
    v_f a0, a1, a2, a3, b0, b1, b2, b3;
    v_gemm_octs(p, row, lines, dtype, &a0, &b0);
    v_gemm_octs(p + row, row, lines - 1, dtype, &a1, &b1);
    v_gemm_octs(p + 2 * row, row, lines - 2, dtype, &a2, &b2);
    v_gemm_octs(p + 3 * row, row, lines - 3, dtype, &a3, &b3);
    MPT__LEVEL(put_quads)(to, width, a0, a1, a2, a3, 4);
    MPT__LEVEL(put_quads)(to + 4 * width, width, b0, b1, b2, b3, 4);
}
MPT__FN MPT__NOINLINE void MPT__LEVEL(pack_some)(float *to, int width, const char *p, int64_t row,
    int64_t lines, int dtype, int round, int64_t left) {
    if (dtype != MPT_F32)
        MPT__LEVEL(pack_octs)(to, width, p, row, lines, dtype);
    else
        MPT__LEVEL(pack_quads)(to, width, p, row, lines, round, left);
}
/* A panel of contiguous k, at most MPT__WIDTH or a multiple of it wide; the last k, if no 4, by way
   of the stack. */
MPT__FN void MPT__LEVEL(pack_inner)(float *to, int width, MPT__PACK_TAKES) {
    const int dtype = side->dtype, round = side->round, bytes = dtype == MPT_F32 ? 4 : 2;
    const bool floats = dtype == MPT_F32 && round == 0, quick = dtype != MPT_F32 && round == 0;
    const int half = dtype == MPT_F16 ? MPT_F16 : MPT_BF16;
    const int64_t row = side->outer * bytes;
    const char *from = mpt__gemm_at(side, outer, k);
    for (int64_t r = 0; r < width; r += MPT__WIDTH, to += MPT__WIDTH, from += MPT__WIDTH * row) {
        const char *p = from;
        const int64_t lines = count - r;
        float *at = to, staged[4 * MPT__WIDTH];
        int64_t left = depth;
        MPT__PACK_RUN(floats && lines >= MPT__WIDTH, 4,
            MPT__LEVEL(pack_quads)(at, width, p, row, MPT__WIDTH, 0, 4))
        MPT__PACK_RUN(floats && lines == MPT__TILE_ROWS, 4,
            MPT__LEVEL(pack_quads)(at, width, p, row, MPT__TILE_ROWS, 0, 4))
        MPT__PACK_RUN(quick && lines >= MPT__WIDTH, 8,
            MPT__LEVEL(pack_octs)(at, width, p, row, MPT__WIDTH, half))
        MPT__PACK_RUN(quick && lines == MPT__TILE_ROWS, 8,
            MPT__LEVEL(pack_octs)(at, width, p, row, MPT__TILE_ROWS, half))
        for (int64_t n; left > 0; left -= n, p += n * bytes, at += n * width) {
            n = quick && left >= 8 ? 8 : 4;
            if (n == 8 || (dtype == MPT_F32 && left >= 4)) {
                MPT__LEVEL(pack_some)(at, width, p, row, lines, dtype, round, n);
                continue;
            }
            memset(staged, 0, sizeof staged);
            n = left < 4 ? left : 4;
            for (int64_t i = 0; i < MPT__WIDTH && i < lines; i++)
                MPT__LEVEL(gemm_load)(staged + 4 * i, p + i * row, 1, n, dtype, 0);
            n = 4;
            MPT__LEVEL(pack_some)
            (at, width, (const char *)staged, 16, MPT__WIDTH, MPT_F32, round, left);
        }
    }
}

MPT__FN bool MPT__LEVEL(gemm_pack)(void *to, bool b, MPT__PACK_TAKES) {
    const int width = b ? 2 * MPT__WIDTH : MPT__TILE_ROWS;
    float *panel = (float *)to;
    if (side->inner == 1 && side->outer != 1) {
        MPT__LEVEL(pack_inner)(panel, width, MPT__PACK_GIVES);
    } else if (side->outer == 1) {
        MPT__LEVEL(pack_outer)(panel, width, MPT__PACK_GIVES);
    } else {
        for (int64_t i = 0; i < depth; i++, panel += width) {
            memset(panel, 0, (size_t)width * sizeof(float));
            const char *from = mpt__gemm_at(side, outer, k + i);
            MPT__LEVEL(gemm_load)(panel, from, side->outer, count, side->dtype, side->round);
        }
    }
    return true;
}

/* ==== Results ==== */

/* Rows one behind the other are one. A bias that rows share is loaded once. store and both put one
   vector, or two of a tile's width, as elements of dtype. */
MPT__OP void MPT__LEVEL(gemm_finish_as)(MPT__FINISH_TAKES, int dtype,
    void store(void *, v_f, int64_t, int), void both(void *, v_f, v_f, int)) {
    const int bytes = dtype == MPT_F32 ? 4 : 2, activation = g->activation;
    const bool scaled = g->alpha != 1.0f, biased = g->bias.data != NULL;
    const bool accumulate = g->accumulate, relu = activation == MPT_ACTIVATION_RELU;
    const bool other = activation != MPT_ACTIVATION_NONE && !relu;
    const v_f alpha = v_set(g->alpha);
    float shared[64];
    char *c = g->c + (i * g->c_row + j) * bytes;
    int64_t c_row = g->c_row, last = columns;
    mpt__gemm_side bias = g->bias;
    if (biased) bias.data = mpt__gemm_at(&bias, i, j);
    if (!biased && ld == columns && c_row == columns) {
        columns = last = columns * rows;
        rows = 1;
    }
    if (!biased || (bias.outer == 0 && columns <= 64)) {
        if (biased && (bias.dtype != MPT_F32 || bias.round != 0)) {
            g->level->load(shared, bias.data, 1, columns, bias.dtype, bias.round);
            bias.data = (const char *)shared;
        }
        bias.dtype = MPT_F32, bias.round = 0;
    }
    if (biased && bias.outer == 0 && rows > 1 && columns <= 32 && ld == columns &&
        c_row == columns) {
        bias.data = mpt__gemm_repeat(shared, &bias, &rows, &columns, &last);
        ld = c_row = columns;
    }
    const bool simple =
        !scaled && !accumulate && !other && bias.dtype == MPT_F32 && bias.round == 0;
    if (simple && columns == 2 * MPT__WIDTH && last == columns && /* a tile's width */
        (!biased || bias.outer == 0)) {
        const float *more = biased ? mpt__gemm_floats_of(&bias) : sum;
        const v_f b0 = v_load(more), b1 = v_load(more + MPT__WIDTH);
        for (; rows > 0; rows--, sum += ld, c += c_row * bytes) {
            v_f v0 = v_load(sum), v1 = v_load(sum + MPT__WIDTH);
            if (biased) v0 = v_add(v0, b0), v1 = v_add(v1, b1);
            if (relu) v0 = v_relu(v0), v1 = v_relu(v1);
            both(c, v0, v1, dtype);
        }
        return;
    }
    for (int64_t r = 1; r <= rows; r++, sum += ld, c += c_row * bytes) {
        const int64_t width = r < rows ? columns : last;
        int64_t x = 0;
        for (; simple && x + MPT__WIDTH <= width; x += MPT__WIDTH) {
            v_f v = v_load(sum + x);
            if (biased) v = v_add(v, v_load(mpt__gemm_floats_of(&bias) + x));
            if (relu) v = v_relu(v);
            store(c + x * bytes, v, MPT__WIDTH, dtype);
        }
        for (; x < width; x += MPT__WIDTH) {
            const int64_t n = width - x;
            v_f v = v_load_as(sum + x, n, MPT_F32);
            if (scaled) v = v_mul(v, alpha);
            if (biased) {
                v_f more = v_load_as(mpt__gemm_at(&bias, 0, x), n, bias.dtype);
                v = v_add(v, v_round(more, bias.round));
            }
            if (accumulate) v = v_add(v_load_as(c + g->onto + x * bytes, n, dtype), v);
            if (relu) v = v_relu(v);
            if (other) v = v_activate(v, activation);
            store(c + x * bytes, v, n, dtype);
        }
        if (biased) bias.data = mpt__gemm_at(&bias, 1, 0);
    }
}

MPT__FN void MPT__LEVEL(gemm_finish)(MPT__FINISH_TAKES) {
    MPT__LEVEL(gemm_finish_as)
    (MPT__FINISH_GIVES, g->c_dtype, v_store_as, v_store_both);
}

/* ==== The level ==== */

static const mpt__gemm_level MPT__LEVEL(gemm_level) = {MPT__TILE_ROWS, 2 * MPT__WIDTH,
    MPT__DIRECT_ROWS, 4, 1, 384, MPT__CHUNK_ROWS, MPT__RATE, MPT__LEVEL(gemm_tile),
    MPT__LEVEL(gemm_direct), MPT__GEMM_CONV_OF(MPT__LEVEL(gemm_direct)), MPT__DIRECT_ROWS,
    MPT__LEVEL(gemm_sweep), MPT__LEVEL(gemm_dot), MPT__LEVEL(gemm_pack), MPT__LEVEL(gemm_load),
    MPT__LEVEL(gemm_finish), NULL, NULL, false, MPT__IN_PLACE, MPT__TILE_MIDDLE};
#ifndef MPTRAIN_NO_RESUME
static const mpt__gemm_level MPT__LEVEL(chain_level) = {MPT__TILE_ROWS, 2 * MPT__WIDTH,
    MPT__DIRECT_ROWS, 4, 1, 384, MPT__CHUNK_ROWS, MPT__RATE, MPT__LEVEL(gemm_chain), NULL, NULL, 0,
    NULL, NULL, MPT__LEVEL(gemm_pack), MPT__LEVEL(gemm_load), MPT__LEVEL(gemm_finish), NULL, NULL,
    false, MPT__IN_PLACE, MPT__TILE_MIDDLE};
#endif

#endif
