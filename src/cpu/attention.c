/* ----
 * cpu/attention.c: embedding and attention on the CPU.
 *
 * Attention works on tiles of scores, a block of keys by a block of queries. The side that a piece
 * of work is about, its own, is turned once, so that all products run along rows: a tile holds a
 * row for each element of the other side.
 * ---- */
#ifndef MPT__CPU_ATTENTION_INCLUDED
#define MPT__CPU_ATTENTION_INCLUDED

#include "cpu/pool.c"

#ifndef MPTRAIN_NO_ATTENTION

/* ==== Embedding ==== */

#define MPT__EMBEDDING_ROWS 64    /* of a chunk, forward */
#define MPT__EMBEDDING_COLUMNS 64 /* of a chunk, backward, or a multiple: no result depends on it */

typedef struct {
    const mpt__cpu_call *call;
    mpt__cpu_view table, rows;
    int64_t columns, per_chunk;
    const int64_t *table_step, *row_step;
    mpt__rows each;
} mpt__cpu_embedding_work;

/* No cache foresees where rows lie: that of `ahead` elements later is fetched, of a table that fits
   into none. */
#define MPT__EMBEDDING_AHEAD 12288   /* bytes */
#define MPT__EMBEDDING_AHEAD_MOST 16 /* rows: more short ones than that would wait in turn */
#define MPT__EMBEDDING_LARGE (1 << 18)

static void mpt__cpu_embedding_each(
    const mpt__cpu_embedding_work *w, mpt__rows rows, int64_t begin, int64_t end) {
    rows.begin = begin, rows.end = end;
    if (w->call->routines->rows)
        w->call->routines->rows(&rows);
    else
        mpt__rows_each(&rows, rows.adds, mpt__ref_line);
}

static void mpt__cpu_embedding_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_embedding_work, w);
    const int64_t begin = chunk * w->per_chunk, *table = w->table_step, *row = w->row_step;
    const int64_t end = mpt__cpu_min(begin + w->per_chunk, w->each.n);
    const bool dense = table[1] == 1 && row[1] == 1;
    mpt__real block[MPT__BLOCK];
    if (dense) mpt__cpu_embedding_each(w, w->each, begin, end);
    for (int64_t j = begin; j < end && !dense; j++) {
        const int64_t id = w->each.ids[j * w->each.id_step];
        for (int64_t c = 0, m; c < w->columns; c += m) {
            m = mpt__cpu_min(MPT__BLOCK, w->columns - c);
            memset(block, 0, sizeof block);
            if (id >= 0 && id < w->each.size)
                mpt__cpu_get(&w->table, id * table[0] + c * table[1], table[1], block, m);
            mpt__cpu_put(&w->rows, j * row[0] + c * row[1], row[1], block, m);
        }
    }
}

/* Some columns of the whole table: an element adds up in the order of the ids. */
static void mpt__cpu_embedding_back_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_embedding_work, w);
    const int64_t c = chunk * w->per_chunk, m = mpt__cpu_min(w->per_chunk, w->columns - c);
    const int64_t size = mpt__dtype_info[w->table.dtype].bytes, *row = w->row_step;
    mpt__real block[MPT__BLOCK];
    mpt__cpu_view sums = w->table;
    mpt__rows rows = w->each;
    rows.table += c * size, rows.rows += c * size, rows.bytes = m * size;
    sums.accumulate = true;
    if (w->call->launch->operand[2].access == MPT__WRITE)
        for (int64_t id = 0; id < rows.size; id++)
            memset(rows.table + id * rows.table_step, 0, (size_t)rows.bytes);
    if (row[1] == 1 && mpt__cpu_is_real(w->rows.dtype) && mpt__cpu_is_real(sums.dtype)) {
        mpt__cpu_embedding_each(w, rows, 0, rows.n);
        return;
    }
    for (int64_t j = 0; j < rows.n; j++) {
        const int64_t id = rows.ids[j * rows.id_step];
        if (id < 0 || id >= rows.size || id == rows.padding) continue;
        const mpt__real *x = mpt__cpu_in(&w->rows, j * row[0] + c * row[1], row[1], block, m);
        mpt__cpu_put_block(&sums, id * w->table_step[0] + c, 1, x, m);
    }
}

static void mpt__cpu_embedding_run(
    const mpt__cpu_call *call, int table, int ids, int rows, mpt__chunk_fn fn) {
    const mpt__operand *o = call->launch->operand;
    const int64_t unit = MPT__EMBEDDING_COLUMNS, bytes = mpt__dtype_info[o[table].dtype].bytes;
    const bool by_rows = ids == 1;
    mpt__cpu_embedding_work w;
    w.call = call;
    w.table = mpt__cpu_view_of(call, table), w.table_step = o[table].stride;
    w.rows = mpt__cpu_view_of(call, rows), w.row_step = o[rows].stride;
    w.columns = o[table].shape[1];
    w.each.ids = (const int64_t *)call->data[ids], w.each.id_step = o[ids].stride[0];
    w.each.table = (char *)w.table.data, w.each.table_step = w.table_step[0] * bytes;
    w.each.rows = (char *)w.rows.data;
    w.each.row_step = w.row_step[0] * mpt__dtype_info[w.rows.dtype].bytes;
    w.each.n = o[ids].shape[0], w.each.size = o[table].shape[0];
    w.each.padding = by_rows ? -1 : call->launch->index[0], w.each.adds = !by_rows;
    w.each.bytes = w.columns * bytes;
    const bool fetched = mpt__cpu_times(w.each.size, w.columns) >= MPT__EMBEDDING_LARGE;
    w.each.ahead = fetched ? MPT__EMBEDDING_AHEAD / (4 * w.columns) + 1 : 0;
    w.each.ahead = mpt__cpu_min(w.each.ahead, MPT__EMBEDDING_AHEAD_MOST);
    w.per_chunk = MPT__EMBEDDING_ROWS;
    if (!by_rows) {
        int64_t share = w.columns / mpt__pool_threads(call->pool);
        w.per_chunk = mpt__cpu_min(MPT__BLOCK, (share / unit + 1) * unit);
    }
    mpt__cpu_check_indices(call, ids, w.each.size);
    int64_t work = mpt__cpu_times(w.each.n + (by_rows ? 0 : w.each.size), w.columns);
    mpt__cpu_for(
        call, mpt__cpu_chunks(by_rows ? w.each.n : w.columns, w.per_chunk), work, 1.0, fn, &w);
}

static void mpt__cpu_embedding(const mpt__cpu_call *call) {
    mpt__cpu_embedding_run(call, 0, 1, 2, mpt__cpu_embedding_chunk);
}
static void mpt__cpu_embedding_backward(const mpt__cpu_call *call) {
    mpt__cpu_embedding_run(call, 2, 0, 1, mpt__cpu_embedding_back_chunk);
}

/* ==== Rotary positions ==== */

#define MPT__ROPE_ROWS 8   /* positions of a chunk */
#define MPT__ROPE_PAIRS 64 /* whose sines are held at a time */

typedef struct {
    const mpt__cpu_call *call;
    mpt__cpu_view from, to;
} mpt__cpu_rope_work;

/* m pairs from `first` on of row [b, h, t]. */
static void mpt__cpu_rope_pairs(const mpt__cpu_rope_work *w, const int64_t row[3], int64_t first,
    int64_t m, const mpt__real *cosine, const mpt__real *sine) {
    const mpt__launch *launch = w->call->launch;
    const mpt__operand *x = &launch->operand[0], *y = &launch->operand[1];
    const bool neighbours = launch->index[1] != 0;
    const int64_t step = neighbours ? 2 : 1, second = neighbours ? 1 : x->shape[3] / 2;
    int64_t from = step * first * x->stride[3], to = step * first * y->stride[3];
    mpt__real block[2][MPT__ROPE_PAIRS], product[MPT__ROPE_PAIRS], sum[MPT__ROPE_PAIRS];
    for (int d = 0; d < 3; d++) from += row[d] * x->stride[d], to += row[d] * y->stride[d];
    const mpt__real *a = mpt__cpu_in(&w->from, from, step * x->stride[3], block[0], m);
    const mpt__real *b =
        mpt__cpu_in(&w->from, from + second * x->stride[3], step * x->stride[3], block[1], m);
    for (int i = 0; i < 2; i++) {
        const mpt__binary_fn times = w->call->routines->binary[MPT__BINARY_MUL];
        times(product, a, i ? sine : cosine, m, 0, 0);
        times(sum, b, i ? cosine : sine, m, 0, 0);
        w->call->routines->binary[i ? MPT__BINARY_ADD : MPT__BINARY_SUB](
            sum, product, sum, m, 0, 0);
        mpt__cpu_put(&w->to, to + i * second * y->stride[3], step * y->stride[3], sum, m);
    }
}

static void mpt__cpu_rope_chunk(MPT__CHUNK_TAKES) {
    MPT__TASK(mpt__cpu_rope_work, w);
    const mpt__launch *launch = w->call->launch;
    const int64_t *size = launch->operand[0].shape, half = size[3] / 2;
    const int64_t begin = chunk * MPT__ROPE_ROWS;
    const int64_t end = mpt__cpu_min(begin + MPT__ROPE_ROWS, size[2]);
    const double slope = -mpt__ln(launch->imm[0]) / (double)half;
    double frequency[MPT__ROPE_PAIRS], sine, cosine;
    mpt__real turn[2][MPT__ROPE_PAIRS];
    int64_t row[3];
    for (int64_t first = 0, m; first < half; first += m) {
        m = mpt__cpu_min(MPT__ROPE_PAIRS, half - first);
        for (int64_t i = 0; i < m; i++) frequency[i] = mpt__exp((double)(first + i) * slope);
        for (row[2] = begin; row[2] < end; row[2]++) {
            for (int64_t i = 0; i < m; i++) {
                mpt__sincos((double)(launch->index[0] + row[2]) * frequency[i], &sine, &cosine);
                turn[0][i] = (mpt__real)cosine, turn[1][i] = (mpt__real)(sine * launch->imm[1]);
            }
            for (row[0] = 0; row[0] < size[0]; row[0]++)
                for (row[1] = 0; row[1] < size[1]; row[1]++)
                    mpt__cpu_rope_pairs(w, row, first, m, turn[0], turn[1]);
        }
    }
}

static void mpt__cpu_rope(const mpt__cpu_call *call) {
    const int64_t *size = call->launch->operand[0].shape;
    mpt__cpu_rope_work w;
    w.call = call;
    w.from = mpt__cpu_view_of(call, 0), w.to = mpt__cpu_view_of(call, 1);
    const int64_t work = mpt__cpu_times(mpt__cpu_times(size[0], size[1]), size[2] * size[3]);
    mpt__cpu_for(
        call, mpt__cpu_chunks(size[2], MPT__ROPE_ROWS), work, 3.0, mpt__cpu_rope_chunk, &w);
}

/* ==== Hash grids ==== */

enum { MPT__GRID_CORNERS = 8, MPT__GRID_FEATURES = 8 };

typedef struct {
    const mpt__cpu_call *call;
    const mpt__operand *place, *table, *row; /* which are views 1, 0, 2; backward 0, 2, 1 */
    mpt__cpu_view places, tables, rows;
} mpt__cpu_grid;

/* Entries of a level and their weights around point n; how many. */
static int mpt__grid_corners(
    const mpt__cpu_grid *w, int64_t cells, int64_t n, int64_t *entry, mpt__real *weight) {
    static const uint32_t primes[3] = {1, 2654435761u, 805459861u};
    const int64_t entries = w->table->shape[1], *stride = w->place->stride;
    const int dims = (int)w->place->shape[1];
    int64_t low[3], step[4] = {1, 1, 1, 1};
    double part[3][2];
    for (int d = 0; d < dims; d++) {
        const double most = (double)cells;
        double at = most * (double)mpt__cpu_get_one(&w->places, n * stride[0] + d * stride[1]);
        if (at < 0) at = 0;
        if (at > most) at = most;
        low[d] = at < most ? (int64_t)at : cells - 1; /* of NaN, too, which stays what it is */
        part[d][1] = at - (double)low[d], part[d][0] = 1 - part[d][1];
        step[d + 1] = step[d] * (cells + 1);
    }
    for (int c = 0; c < 1 << dims; c++) {
        uint32_t hash = 0;
        int64_t place = 0;
        double product = 1;
        for (int d = 0; d < dims; d++) {
            const int64_t p = low[d] + (c >> d & 1);
            product *= part[d][c >> d & 1];
            hash ^= (uint32_t)p * primes[d], place += p * step[d];
        }
        entry[c] = step[dims] <= entries ? place : hash % entries;
        weight[c] = (mpt__real)product;
    }
    return 1 << dims;
}

static void mpt__cpu_grid_level(void *work, int64_t level, int thread) {
    MPT__TASK(mpt__cpu_grid, w);
    const mpt__launch *launch = w->call->launch;
    const bool back = launch->kernel == MPT__K_HASH_GRID_BACKWARD;
    const int64_t cells =
        (int64_t)((double)launch->index[0] * mpt__exp((double)level * launch->imm[0]) + 1e-6);
    const int64_t f = w->table->shape[2], *step = w->table->stride, *row_step = w->row->stride;
    const int64_t bytes = mpt__dtype_info[w->tables.dtype].bytes;
    char *sums = (char *)w->tables.data + level * step[0] * bytes; /* backward */
    const bool direct = mpt__cpu_is_real(w->tables.dtype); /* not fp32 where reals are doubles */
    mpt__cpu_view table = w->tables;
    mpt__real weight[MPT__GRID_CORNERS], block[MPT__GRID_FEATURES], sum[MPT__GRID_FEATURES];
    int64_t entry[MPT__GRID_CORNERS];
    if (back && !table.accumulate) memset(sums, 0, (size_t)(step[0] * bytes));
    table.accumulate = back;
    for (int64_t n = 0; n < w->place->shape[0]; n++) {
        const int64_t at = n * row_step[0] + level * f * row_step[1];
        const int corners = mpt__grid_corners(w, cells, n, entry, weight);
        const mpt__real *x = back ? mpt__cpu_in(&w->rows, at, row_step[1], block, f) : NULL;
        memset(sum, 0, sizeof sum);
        for (int c = 0; c < corners; c++) {
            const int64_t from = level * step[0] + entry[c] * step[1];
            mpt__real *to = back && direct ? (mpt__real *)table.data + from : sum;
            if (!back) x = mpt__cpu_in(&table, from, step[2], block, f);
            if (!direct && back) memset(sum, 0, sizeof sum);
            for (int64_t k = 0; k < f; k++) to[k] += weight[c] * x[k];
            if (!direct && back) mpt__cpu_put_block(&table, from, 1, sum, f);
        }
        if (!back) mpt__cpu_put(&w->rows, at, row_step[1], sum, f);
    }
}

static void mpt__cpu_hash_grid(const mpt__cpu_call *call) {
    const int back = call->launch->kernel == MPT__K_HASH_GRID_BACKWARD;
    const mpt__operand *o = call->launch->operand;
    mpt__cpu_grid w;
    w.call = call;
    w.place = &o[1 - back], w.table = &o[2 * back], w.row = &o[2 - back];
    w.places = mpt__cpu_view_of(call, 1 - back);
    w.tables = mpt__cpu_view_of(call, 2 * back), w.rows = mpt__cpu_view_of(call, 2 - back);
    const int64_t levels = w.table->shape[0], work = mpt__cpu_times(w.place->shape[0], levels);
    mpt__cpu_for(call, levels, work, 40.0, mpt__cpu_grid_level, &w);
}

/* ==== Attention: what its three kernels share ==== */

#define MPT__ATTENTION_BLOCK 64 /* queries, and keys, of a tile */
#define MPT__ATTENTION_MOST 80  /* of the last one: a few left over would cost as a whole one */

/* Operands; from LSE on those of both gradient launches. */
enum { MPT__AT_Q, MPT__AT_K, MPT__AT_V, MPT__AT_MASK, MPT__AT_LSE, MPT__AT_DOUT, MPT__AT_DELTA };
enum { MPT__AT_DQ = 7, MPT__AT_OUT_SEEN = 8, MPT__AT_DK = 7, MPT__AT_DV = 8, MPT__AT_DQ_TOO = 9 };

typedef struct mpt__attention {
    const mpt__cpu_call *call;
    const mpt__routines *routines;
    const mpt__operand *o;
    mpt__cpu_view view[MPT__MAX_OPERANDS];
    int64_t heads, group, queries, keys, depth, width; /* group: query heads of a key head */
    int64_t blocks, memory; /* of the own side, in one head; bytes of a thread */
    mpt__real scale, kept;  /* kept: factor of what dropout keeps */
    uint32_t threshold;
    mpt__rng_key key;
    int64_t window, past;           /* of causal attention, as MPT__K_ATTENTION tells */
    bool causal, drops, pairs, dkv; /* pairs: q k and dout v by those of bf16; dkv: dk and dv too */
    int dq;                         /* the operand of that which this pass computes; 0: none */
#ifdef MPT__HAS_GEMM
    const mpt__gemm_level *level;
#endif
} mpt__attention;

/* Rows of an operand [B, H, rows, columns], as they lie or converted. */
typedef struct {
    const mpt__real *x;
    int64_t step;
} mpt__attention_rows;

/* A block of its own side, and the memory of its thread. */
typedef struct mpt__attention_item {
    const mpt__attention *w;
    int64_t batch, head, first, n;
    bool by_keys;
    /* columns by n, or panels of pairs; rows of the other side; n by columns; tiles */
    mpt__real *turned[2], *rows[2], *sum[2], *spare[2], *tile[2], *score, *slope;
    mpt__real *own, *dq; /* the own keys' rows; sums of queries */
} mpt__attention_item;

/* Whether dq comes with dk and dv, in one pass over a key head, with 5 products: apart they are 3
   and 4, but shared out better. The bits are the same. */
static bool mpt__attention_together(const mpt__launch *launch, int threads) {
    const mpt__operand *o = launch->operand;
    const int64_t *q = o[MPT__AT_Q].shape, *k = o[MPT__AT_K].shape;
    const double items = (double)k[0] * (double)k[1];
    const double sums = (double)q[1] * (double)q[2] * (double)q[3] / (double)k[1];
    return launch->kernel == MPT__K_ATTENTION_DKV && o[MPT__AT_DQ_TOO].storage != 0 && k[2] > 0 &&
        sums <= 4e6 && 5 * (items + threads - 1) <= 7 * items;
}

/* Size of the block of queries or keys that begins at `first`; number of all blocks. */
static int64_t mpt__attention_room(int64_t all, int64_t first) {
    return all - first > MPT__ATTENTION_MOST ? MPT__ATTENTION_BLOCK : all - first;
}
static int64_t mpt__attention_blocks(int64_t all) {
    const int64_t extra = MPT__ATTENTION_MOST - MPT__ATTENTION_BLOCK;
    return all > extra ? mpt__cpu_chunks(all - extra, MPT__ATTENTION_BLOCK) : all > 0;
}

/* The most that a block of rows, a tile or panels take. */
static int64_t mpt__attention_part(int64_t depth, int64_t width) {
    return ((depth > width ? depth : width) + MPT__ATTENTION_MOST) * MPT__ATTENTION_MOST;
}

/* 0 where there is nothing to do; more columns than memory holds are refused. */
static int64_t mpt__attention_workspace(const mpt__launch *launch, int threads) {
    const mpt__operand *o = launch->operand;
    const int64_t *own = o[launch->kernel == MPT__K_ATTENTION_DKV ? MPT__AT_K : MPT__AT_Q].shape;
    const int64_t depth = o[MPT__AT_K].shape[3], width = o[MPT__AT_V].shape[3];
    int64_t rows = MPT__ATTENTION_MOST; /* of dq */
    if (own[0] == 0 || own[1] == 0 || own[2] == 0) return 0;
    if ((double)depth + (double)width > 1e12) return INT64_MAX / 4;
    if (mpt__attention_together(launch, threads))
        rows = o[MPT__AT_Q].shape[1] / own[1] * o[MPT__AT_Q].shape[2];
    int64_t floats = 10 * mpt__attention_part(depth, width) + (rows + MPT__ATTENTION_MOST) * depth;
    return threads * floats * (int64_t)sizeof(mpt__real);
}

static int64_t mpt__attention_at(
    const mpt__attention *w, int operand, int64_t b, int64_t h, int64_t row) {
    const int64_t *stride = w->o[operand].stride;
    return b * stride[0] + h * stride[1] + row * stride[2];
}

/* Rounds to the compute dtype where the operand is wider. */
static void mpt__attention_round(const mpt__attention *w, int operand, mpt__real *x, int64_t n) {
    const uint8_t dtype = w->call->launch->compute_dtype;
    const mpt__convert_table *convert = w->routines->convert;
    uint16_t half[MPT__BLOCK];
    if (operand > MPT__AT_V || dtype == w->o[operand].dtype || !mpt__cpu_is_half(dtype)) return;
    for (int64_t m; n > 0; n -= m, x += m) {
        float *to = (float *)(void *)x;
        m = mpt__cpu_min(n, MPT__BLOCK);
        (dtype == MPT_F16 ? convert->f32_to_f16 : convert->f32_to_bf16)(to, half, (size_t)m);
        (dtype == MPT_F16 ? convert->f16_to_f32 : convert->bf16_to_f32)(half, to, (size_t)m);
    }
}

static mpt__attention_rows mpt__attention_load(const mpt__attention *w, int operand, int64_t b,
    int64_t h, int64_t first, int64_t n, mpt__real *to) {
    const mpt__operand *o = &w->o[operand];
    const int64_t columns = o->shape[3], from = mpt__attention_at(w, operand, b, h, first);
    const uint8_t dtype = w->call->launch->compute_dtype;
    bool rounds = operand <= MPT__AT_V && mpt__cpu_is_half(dtype);
    mpt__attention_rows rows;
    rows.x = to, rows.step = columns;
    if (mpt__cpu_is_real(o->dtype) && o->stride[3] == 1 && !rounds) {
        rows.x = (const mpt__real *)w->view[operand].data + from;
        rows.step = o->stride[2];
        return rows;
    }
    for (int64_t i = 0; i < n; i++)
        mpt__cpu_get(
            &w->view[operand], from + i * o->stride[2], o->stride[3], to + i * columns, columns);
    mpt__attention_round(w, operand, to, n * columns);
    return rows;
}

/* For products: halves that are multiplied by pairs stay as they lie. */
static mpt__attention_rows mpt__attention_take(const mpt__attention *w, int operand, int64_t b,
    int64_t h, int64_t first, int64_t n, mpt__real *to) {
    if (!w->pairs) return mpt__attention_load(w, operand, b, h, first, n, to);
    const char *at = (const char *)w->view[operand].data;
    const mpt__attention_rows rows = {
        (const mpt__real *)(const void *)(at + 2 * mpt__attention_at(w, operand, b, h, first)),
        w->o[operand].stride[2]};
    return rows;
}

/* The own block of an operand into turned[i]; the first, or its products, are scaled. */
static void mpt__attention_turn(const mpt__attention_item *t, int operand, int i) {
    const mpt__attention *w = t->w;
    const int64_t columns = w->o[operand].shape[3];
    mpt__real *to = t->turned[i];
#ifdef MPT__HAS_BF16X2
    const mpt__operand *o = &w->o[operand];
    const int64_t from = mpt__attention_at(w, operand, t->batch, t->head, t->first);
    const mpt__gemm_side side = {
        (const char *)w->view[operand].data + 2 * from, MPT_BF16, 0, o->stride[2], 1};
    for (int64_t j = 0; w->pairs && j < t->n; j += MPT__BF16X2_WIDTH)
        mpt__bf16x2_pack(to + j * (columns / 2), true, &side, j,
            mpt__cpu_min(MPT__BF16X2_WIDTH, t->n - j), 0, columns);
    if (w->pairs) return;
#endif
    mpt__attention_rows rows =
        mpt__attention_load(w, operand, t->batch, t->head, t->first, t->n, t->rows[0]);
    w->routines->transpose(to, t->n, rows.x, rows.step, t->n, columns, false);
    if (i == 0) w->routines->unary[MPT__UNARY_MUL_SCALAR](to, to, columns * t->n, w->scale, 0);
}

/* Puts n rows of a sum, times `factor`, where the operand has the own block. */
static void mpt__attention_put(
    const mpt__attention_item *t, int operand, mpt__real *sum, mpt__real factor) {
    const mpt__attention *w = t->w;
    const mpt__operand *o = &w->o[operand];
    const int64_t columns = o->shape[3],
                  to = mpt__attention_at(w, operand, t->batch, t->head, t->first);
    w->routines->unary[MPT__UNARY_MUL_SCALAR](sum, sum, t->n * columns, factor, 0);
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t c = 0; c < columns; c += MPT__BLOCK)
            mpt__cpu_put(&w->view[operand], to + i * o->stride[2] + c * o->stride[3], o->stride[3],
                sum + i * columns + c, mpt__cpu_min(MPT__BLOCK, columns - c));
}

/* c[m, n] = or (add) += a[m, depth] b[depth, n] with the strides of a. */
static void mpt__attention_product(const mpt__attention *w, const mpt__real *a, int64_t outer,
    int64_t inner, mpt__attention_rows b, mpt__real *c, int64_t m, int64_t n, int64_t depth,
    bool add) {
#ifdef MPT__HAS_GEMM
    if (w->level) {
        const int64_t down = w->level->direct_rows, wide = w->level->columns;
        mpt__gemm_side left = {NULL, MPT_F32, 0, outer, inner};
        mpt__gemm_side right = {NULL, MPT_F32, 0, 1, b.step};
        for (int64_t i = 0; i < m; i += down) {
            left.data = (const char *)(a + i * outer);
            for (int64_t j = 0; j < n; j += wide) {
                const int64_t columns = mpt__cpu_min(wide, n - j);
                const bool whole = w->level->lines && m - i >= down && columns % (wide / 2) == 0;
                right.data = (const char *)(b.x + j);
                (whole ? w->level->lines : w->level->direct)(depth, &left, &right,
                    (float *)(void *)(c + i * n + j), n, (int)mpt__cpu_min(down, m - i),
                    (int)columns, add ? MPT__GEMM_ADD : 0);
            }
        }
        return;
    }
#endif
    (void)w;
    for (int64_t i = 0; i < m; i++, c += n) {
        if (!add) memset(c, 0, (size_t)n * sizeof *c);
        for (int64_t p = 0; p < depth; p++) {
            const mpt__real factor = a[i * outer + p * inner];
            for (int64_t j = 0; j < n; j++) c[j] += factor * b.x[p * b.step + j];
        }
    }
}

#ifdef MPT__HAS_BF16X2
/* c += a b by pairs of bf16: a is rounded, b are rows of an operand as they lie. */
static void mpt__attention_add_bf16x2(const mpt__attention_item *t, const mpt__real *a,
    int64_t outer, int64_t inner, mpt__attention_rows b, mpt__real *c, int64_t m, int64_t n,
    int64_t depth) {
    const int64_t wide = MPT__BF16X2_WIDTH, down = MPT__BF16X2_ROWS, even = (depth + 1) / 2 * 2;
    const mpt__gemm_side tile = {(const char *)a, MPT_F32, 0, outer, inner};
    const mpt__gemm_side rows = {(const char *)b.x, MPT_BF16, 0, 1, b.step};
    /* Vectors reach past the last pair of a panel. */
    float panel[MPT__BF16X2_ROWS * MPT__ATTENTION_MOST / 2 + 16], *panels = (float *)t->rows[0];
    for (int64_t j = 0; j < n; j += wide)
        mpt__bf16x2_pack(
            panels + j * (even / 2), true, &rows, j, mpt__cpu_min(wide, n - j), 0, depth);
    for (int64_t i = 0; i < m; i += down) {
        const mpt__gemm_side left[2] = {
            {(const char *)panel, MPT_F32, 0, 1, down}, {(const char *)panels, MPT_F32, 0, 1, 0}};
        mpt__bf16x2_pack(panel, false, &tile, i, mpt__cpu_min(down, m - i), 0, depth);
        for (int64_t j = 0; j < n; j += wide) {
            const mpt__gemm_side right[2] = {
                {(const char *)(panels + j * (even / 2)), MPT_F32, 0, 1, wide},
                {(const char *)panels, MPT_F32, 0, 1, 0}};
            mpt__bf16x2_tile(even, left, right, c + i * n + j, n, (int)mpt__cpu_min(down, m - i),
                (int)mpt__cpu_min(wide, n - j), MPT__GEMM_ADD);
        }
    }
}
#endif

/* c += a b. Rows of pairs are an operand's halves, `step` apart. */
static void mpt__attention_add(const mpt__attention_item *t, const mpt__real *a, int64_t outer,
    int64_t inner, mpt__attention_rows b, mpt__real *c, int64_t m, int64_t n, int64_t depth) {
#ifdef MPT__HAS_BF16X2
    if (t->w->pairs) {
        mpt__attention_add_bf16x2(t, a, outer, inner, b, c, m, n, depth);
        return;
    }
#endif
    mpt__attention_product(t->w, a, outer, inner, b, c, m, n, depth, true);
}

/* Whether a tile is one line, the scores of a single query. */
static bool mpt__attention_is_line(const mpt__attention_item *t) {
    return !t->by_keys && t->n == 1;
}

/* Where the key and the query of a tile's first element stand. */
typedef struct mpt__attention_tile {
    int64_t head, query, key, m; /* m: rows */
} mpt__attention_tile;

/* c = rows of the other side (Q or K; i: dout) times turned[i]. Returns those rows. */
static mpt__attention_rows mpt__attention_meet(
    const mpt__attention_item *t, const mpt__attention_tile *at, int i, mpt__real *c) {
    const mpt__attention *w = t->w;
    const int operand = !t->by_keys ? MPT__AT_K : i == 0 ? MPT__AT_Q : MPT__AT_DOUT;
    const int64_t head = t->by_keys ? at->head : at->head / w->group;
    const int64_t first = t->by_keys ? at->query : at->key, depth = w->o[operand].shape[3];
    const mpt__attention_rows own = {t->turned[i], t->n};
    const mpt__attention_rows rows =
        mpt__attention_take(w, operand, t->batch, head, first, at->m, t->rows[i]);
#ifdef MPT__HAS_BF16X2
    const int64_t step = rows.step / 2, wide = MPT__BF16X2_WIDTH;
    for (int64_t r = 0, each; w->pairs && r < at->m; r += each) {
        each = at->m - r < 8 ? 1 : 8; /* the last ones one by one: nothing behind them is read */
        for (int64_t j = 0; j < t->n; j += wide)
            mpt__bf16x2_attend(depth / 2, (const float *)rows.x + r * step, each > 1 ? step : 0,
                own.x + j * (depth / 2), c + r * t->n + j, t->n, each, t->n - j,
                i == 0 ? (float)w->scale : 1.0f);
    }
    if (w->pairs) return rows;
#endif
#ifdef MPT__HAS_GEMM
    if (w->level && mpt__attention_is_line(t)) {
        const mpt__gemm_side a = {(const char *)own.x, MPT_F32, 0, depth, 1};
        const mpt__gemm_side b = {(const char *)rows.x, MPT_F32, 0, rows.step, 1};
        w->level->dot(depth, &a, &b, (float *)(void *)c, at->m, 1, (int)at->m, 0);
        return rows;
    }
#endif
    mpt__attention_product(w, rows.x, rows.step, 1, own, c, at->m, t->n, depth, false);
    return rows;
}

/* A tile made by rows of keys, with one row for each query. */
static const mpt__real *mpt__attention_by_queries(const mpt__attention_item *t,
    const mpt__attention_tile *at,
    void (*row)(const mpt__attention *w, const mpt__attention_tile *at, int64_t b, int64_t query,
        int64_t n, mpt__real *to)) {
    const int64_t rows = t->by_keys ? at->m : t->n, n = t->by_keys ? t->n : at->m;
    for (int64_t i = 0; i < rows; i++)
        row(t->w, at, t->batch, at->query + i, n, t->spare[0] + i * n);
    if (t->by_keys) return t->spare[0];
    t->w->routines->transpose(t->spare[1], rows, t->spare[0], n, rows, n, false);
    return t->spare[1];
}

/* What a mask adds: its floats, or 0 for true and -infinity for false. */
static void mpt__attention_mask_row(const mpt__attention *w, const mpt__attention_tile *at,
    int64_t b, int64_t query, int64_t n, mpt__real *to) {
    const mpt__operand *o = &w->o[MPT__AT_MASK];
    mpt__cpu_get(&w->view[MPT__AT_MASK],
        mpt__attention_at(w, MPT__AT_MASK, b, at->head, query) + at->key * o->stride[3],
        o->stride[3], to, n);
    for (int64_t i = 0; o->dtype == MPT_BOOL && i < n; i++)
        to[i] = to[i] != 0 ? 0 : -mpt__real_infinity();
}

/* ---- What is masked out ----
 *
 * A weight of 0 times NaN is NaN. Where something is not finite, a tile is computed with care: what
 * a query does not see has no part in it. */

static bool mpt__attention_hides(
    const mpt__attention *w, const mpt__attention_tile *at, int64_t b, int64_t query, int64_t key) {
    const mpt__operand *o = &w->o[MPT__AT_MASK];
    if (w->causal && (key > query + w->past || key <= query + w->past - w->window)) return true;
    if (!w->view[MPT__AT_MASK].data) return false;
    const mpt__real mask = mpt__cpu_get_one(&w->view[MPT__AT_MASK],
        mpt__attention_at(w, MPT__AT_MASK, b, at->head, query) + key * o->stride[3]);
    return mask == (o->dtype == MPT_BOOL ? 0 : -mpt__real_infinity());
}

static void mpt__attention_hide(
    const mpt__attention_item *t, const mpt__attention_tile *at, mpt__real *tile, mpt__real value) {
    for (int64_t r = 0; r < at->m; r++)
        for (int64_t i = 0; i < t->n; i++)
            if (mpt__attention_hides(t->w, at, t->batch, at->query + (t->by_keys ? r : i),
                    at->key + (t->by_keys ? i : r)))
                tile[r * t->n + i] = value;
}

/* Reals, or halves of rows of pairs. Doubles, of tests, always get the care. */
static bool mpt__attention_finite(
    const mpt__attention *w, const mpt__real *x, bool pairs, int64_t n) {
    const mpt__convert_table *convert = w->routines->convert;
    if (pairs) return convert->all_finite_bf16((const uint16_t *)(const void *)x, (size_t)n);
    return sizeof *x == sizeof(float) &&
        convert->all_finite_f32((const float *)(const void *)x, (size_t)n);
}

/* Whether what is masked out may be in sums. */
static bool mpt__attention_leaks(const mpt__attention *w, const mpt__real *sums, int64_t n) {
    return (w->causal || w->view[MPT__AT_MASK].data) && !mpt__attention_finite(w, sums, false, n);
}

static const mpt__real *mpt__attention_row_at(
    const mpt__attention *w, mpt__attention_rows rows, int64_t i) {
    const int64_t size = w->pairs ? 2 : (int64_t)sizeof(mpt__real);
    return (const mpt__real *)(const void *)((const char *)rows.x + i * rows.step * size);
}

/* mpt__attention_add; with care, rows of b that are not finite meet one by one those that see them
   or are seen. */
static void mpt__attention_sum(const mpt__attention_item *t, const mpt__attention_tile *at,
    bool careful, const mpt__real *a, int64_t outer, int64_t inner, mpt__attention_rows b,
    bool keys, mpt__real *c, int64_t m, int64_t n, int64_t depth) {
    const mpt__attention *w = t->w;
    if (!careful) {
        mpt__attention_add(t, a, outer, inner, b, c, m, n, depth);
        return;
    }
    mpt__attention_rows copy = {t->spare[1], n};
    const size_t bytes = (size_t)n * (w->pairs ? 2 : sizeof(mpt__real));
    for (int64_t p = 0; p < depth; p++) {
        const mpt__real *row = mpt__attention_row_at(w, b, p);
        char *to = (char *)t->spare[1] + (size_t)p * bytes;
        memcpy(to, row, bytes);
        if (mpt__attention_finite(w, row, w->pairs, n)) continue;
        memset(to, 0, bytes);
        const uint16_t *half = (const uint16_t *)(const void *)row;
        for (int64_t i = 0; i < m; i++) {
            if (mpt__attention_hides(
                    w, at, t->batch, at->query + (keys ? i : p), at->key + (keys ? p : i)))
                continue;
            const mpt__real factor = a[i * outer + p * inner];
            for (int64_t j = 0; j < n; j++)
                c[i * n + j] += factor * (w->pairs ? (mpt__real)mpt__bf16_to_f32(half[j]) : row[j]);
        }
    }
    mpt__attention_add(t, a, outer, inner, copy, c, m, n, depth);
}

/* The factors of dropout. Rows of random words begin at multiples of 4. */
static void mpt__attention_drop_row(const mpt__attention *w, const mpt__attention_tile *at,
    int64_t b, int64_t query, int64_t n, mpt__real *to) {
    const int64_t row = (b * w->heads + at->head) * w->queries + query;
    const uint64_t first = (uint64_t)row * (uint64_t)((w->keys + 3) / 4 * 4) + (uint64_t)at->key;
    for (int64_t i = 0; i < n; i++) to[i] = w->kept != 0 ? 1 : 0;
    if (w->kept != 0) w->routines->dropout(to, to, n, w->key, first, w->threshold, w->kept);
}

static int64_t mpt__attention_within(int64_t at, int64_t n) {
    return at < 0 ? 0 : mpt__cpu_min(at, n);
}

/* Where the block begins that holds the first key that `query` sees, and the end of what the query
   before `end` sees. */
static int64_t mpt__attention_first_key(const mpt__attention *w, int64_t query) {
    const int64_t key = mpt__attention_within(query + w->past + 1 - w->window, w->keys);
    return w->causal ? key / MPT__ATTENTION_BLOCK * MPT__ATTENTION_BLOCK : 0;
}
static int64_t mpt__attention_end_key(const mpt__attention *w, int64_t end) {
    return w->causal ? mpt__cpu_min(w->keys, end + w->past) : w->keys;
}

/* The scores of a tile into t->score; returns the other side's rows. */
static mpt__attention_rows mpt__attention_scores(
    const mpt__attention_item *t, const mpt__attention_tile *at) {
    const mpt__attention *w = t->w;
    const mpt__attention_rows rows = mpt__attention_meet(t, at, 0, t->score);
    if (w->view[MPT__AT_MASK].data) {
        const mpt__real *mask = mpt__attention_by_queries(t, at, mpt__attention_mask_row);
        w->routines->binary[MPT__BINARY_ADD](t->score, t->score, mask, at->m * t->n, 0, 0);
    }
    mpt__real unseen[MPT__ATTENTION_MOST];
    const bool line = mpt__attention_is_line(t), by_keys = t->by_keys || line;
    const int64_t n = line ? at->m : t->n, rows_of_tile = line ? 1 : at->m;
    for (int64_t i = 0; w->causal && i < n; i++) unseen[i] = -mpt__real_infinity();
    for (int64_t r = 0; w->causal && r < rows_of_tile; r++) {
        const int64_t far_end = at->query + r + w->past + 1 - at->key;
        const int64_t first = at->key + r - w->past - at->query;
        const int64_t begin = mpt__attention_within(by_keys ? far_end - w->window : first, n);
        const int64_t end = mpt__attention_within(by_keys ? far_end : first + w->window, n);
        mpt__real *row = t->score + r * n;
        memcpy(row, unseen, (size_t)begin * sizeof *unseen);
        memcpy(row + end, unseen, (size_t)(n - end) * sizeof *unseen);
    }
    return rows;
}

/* Tile *= the factors of dropout, which it returns. NULL: they are yet to be drawn. */
static const mpt__real *mpt__attention_drop(const mpt__attention_item *t,
    const mpt__attention_tile *at, mpt__real *tile, const mpt__real *factors) {
    if (!t->w->drops) return NULL;
    if (!factors) factors = mpt__attention_by_queries(t, at, mpt__attention_drop_row);
    t->w->routines->binary[MPT__BINARY_MUL](tile, tile, factors, at->m * t->n, 0, 0);
    return factors;
}

/* The item of a chunk: blocks of a head follow each other. */
static mpt__attention_item mpt__attention_begin(
    const mpt__attention *w, int64_t chunk, int thread, bool by_keys) {
    const int64_t part = mpt__attention_part(w->depth, w->width);
    const int64_t heads = by_keys ? w->heads / w->group : w->heads;
    mpt__attention_item t;
    mpt__real *at = (mpt__real *)(void *)((char *)w->call->workspace + thread * w->memory);
    t.w = w;
    t.by_keys = by_keys;
    t.first = chunk % w->blocks * MPT__ATTENTION_BLOCK;
    t.n = mpt__attention_room(by_keys ? w->keys : w->queries, t.first);
    t.head = chunk / w->blocks % heads;
    t.batch = chunk / w->blocks / heads;
    mpt__real **parts[5] = {t.turned, t.rows, t.sum, t.spare, t.tile};
    for (int i = 0; i < 5; i++) {
        parts[i][0] = at;
        parts[i][1] = at + part;
        at += 2 * part;
    }
    t.score = t.tile[0], t.slope = t.tile[1];
    t.own = at, t.dq = at + w->depth * MPT__ATTENTION_MOST;
    return t;
}

/* ==== Forward ==== */

enum { MPT__AT_OUT = 4, MPT__AT_LSE_OUT = 5 };

/* x = exp(x - most); gives the sum. */
static mpt__real mpt__attention_exp_line(
    const mpt__routines *routines, mpt__real *x, int64_t n, mpt__real most) {
    mpt__real lane[MPT__SUM_LANES] = {0}, shift[MPT__ATTENTION_MOST];
    for (int64_t i = 0; i < n; i++) shift[i] = most;
    routines->binary[MPT__BINARY_EXP_DIFFERENCE](x, x, shift, n, 0, 0);
    routines->add_lanes(lane, 0, x, n);
    return mpt__cpu_fold_lanes(lane);
}

/* Raises the running maxima by a tile, and shrinks the sums by as much. */
static void mpt__attention_add_tile(const mpt__attention_item *t, const mpt__attention_tile *at,
    mpt__real *most, mpt__real *total) {
    const mpt__attention *w = t->w;
    const mpt__routines *routines = w->routines;
    mpt__real next[MPT__ATTENTION_MOST], shrink[MPT__ATTENTION_MOST];
    const bool line = mpt__attention_is_line(t);
    memcpy(next, most, (size_t)t->n * sizeof *next);
    if (line) next[0] = mpt__cpu_maximum(routines, t->score, at->m, most[0]);
    for (int64_t r = 0; !line && r < at->m; r++)
        routines->binary[MPT__BINARY_MAXIMUM](next, next, t->score + r * t->n, t->n, 0, 0);
    memcpy(shrink, most, (size_t)t->n * sizeof *shrink);
    memcpy(most, next, (size_t)t->n * sizeof *most);
    routines->unary[MPT__UNARY_FINITE](next, next, t->n, 0, 0);
    routines->binary[MPT__BINARY_EXP_DIFFERENCE](shrink, shrink, next, t->n, 0, 0);
    routines->binary[MPT__BINARY_MUL](total, total, shrink, t->n, 0, 0);
    if (line) total[0] += mpt__attention_exp_line(routines, t->score, at->m, next[0]);
    for (int64_t r = 0; !line && r < at->m; r++) {
        mpt__real *row = t->score + r * t->n;
        routines->binary[MPT__BINARY_EXP_DIFFERENCE](row, row, next, t->n, 0, 0);
        routines->binary[MPT__BINARY_ADD](total, total, row, t->n, 0, 0);
    }
    mpt__attention_drop(t, at, t->score, NULL);
    for (int64_t i = 0; i < t->n; i++) {
        mpt__real *sum = t->sum[1] + i * w->width;
        if (shrink[i] != 1)
            routines->unary[MPT__UNARY_MUL_SCALAR](sum, sum, w->width, shrink[i], 0);
    }
}

/* Over all keys that are seen, with or without care. */
static void mpt__attention_forward_sum(
    const mpt__attention_item *t, mpt__real *most, mpt__real *total, bool careful) {
    const mpt__attention *w = t->w;
    const int64_t seen = mpt__attention_end_key(w, t->first + t->n);
    for (int64_t i = 0; i < t->n; i++) most[i] = -mpt__real_infinity(), total[i] = 0;
    memset(t->sum[1], 0, (size_t)(t->n * w->width) * sizeof *t->sum[1]);
    for (int64_t key = mpt__attention_first_key(w, t->first), m; key < seen; key += m) {
        m = mpt__attention_room(seen, key);
        mpt__attention_tile at = {t->head, t->first, key, m};
        mpt__attention_scores(t, &at);
        if (careful) mpt__attention_hide(t, &at, t->score, -mpt__real_infinity());
        mpt__attention_add_tile(t, &at, most, total);
        const mpt__attention_rows v =
            mpt__attention_take(w, MPT__AT_V, t->batch, t->head / w->group, key, m, t->rows[1]);
        mpt__attention_sum(
            t, &at, careful, t->score, 1, t->n, v, true, t->sum[1], t->n, w->width, m);
    }
}

static void mpt__attention_forward_chunk(MPT__CHUNK_TAKES) {
    const mpt__attention *w = (const mpt__attention *)work;
    mpt__attention_item t = mpt__attention_begin(w, chunk, thread, false);
    mpt__real most[MPT__ATTENTION_MOST], total[MPT__ATTENTION_MOST], log[MPT__ATTENTION_MOST];
    mpt__attention_turn(&t, MPT__AT_Q, 0);
    mpt__attention_forward_sum(&t, most, total, false);
    if (mpt__attention_leaks(w, t.sum[1], t.n * w->width))
        mpt__attention_forward_sum(&t, most, total, true);
    w->routines->unary[MPT__UNARY_FINITE](most, most, t.n, 0, 0);
    w->routines->unary[MPT__UNARY_LOG](log, total, t.n, 0, 0);
    for (int64_t i = 0; i < t.n; i++) {
        mpt__real *sum = t.sum[1] + i * w->width;
        if (total[i] == 0) { /* nothing is seen: 0, and exp(score - infinity) = 0 in backward */
            memset(sum, 0, (size_t)w->width * sizeof *sum);
            most[i] = mpt__real_infinity();
        } else {
            w->routines->unary[MPT__UNARY_MUL_SCALAR](sum, sum, w->width, 1 / total[i], 0);
            most[i] += log[i];
        }
    }
    mpt__attention_put(&t, MPT__AT_OUT, t.sum[1], 1);
    if (w->view[MPT__AT_LSE_OUT].data)
        mpt__cpu_put(&w->view[MPT__AT_LSE_OUT],
            mpt__attention_at(w, MPT__AT_LSE_OUT, t.batch, t.head, t.first), 1, most, t.n);
}

/* ==== Backward ====
 *
 * With p = exp(score - lse), g = dout v^T by dropout's factors and delta = dout out, the slope of a
 * score is p (g - delta). */

/* delta = dout out of the own queries. */
static void mpt__attention_delta_chunk(MPT__CHUNK_TAKES) {
    const mpt__attention *w = (const mpt__attention *)work;
    const mpt__attention_item t = mpt__attention_begin(w, chunk, thread, false);
    mpt__real delta[MPT__ATTENTION_MOST], *product = t.turned[1];
    mpt__attention_rows dout =
        mpt__attention_load(w, MPT__AT_DOUT, t.batch, t.head, t.first, t.n, t.sum[1]);
    mpt__attention_rows out =
        mpt__attention_load(w, MPT__AT_OUT_SEEN, t.batch, t.head, t.first, t.n, t.rows[1]);
    for (int64_t i = 0; i < t.n; i++) {
        mpt__real lane[MPT__SUM_LANES] = {0};
        w->routines->binary[MPT__BINARY_MUL](
            product, dout.x + i * dout.step, out.x + i * out.step, w->width, 0, 0);
        w->routines->add_lanes(lane, 0, product, w->width);
        delta[i] = mpt__cpu_fold_lanes(lane);
    }
    mpt__cpu_put(&w->view[MPT__AT_DELTA],
        mpt__attention_at(w, MPT__AT_DELTA, t.batch, t.head, t.first), 1, delta, t.n);
}

/* Which sums of the own keys a pass takes, and with care or not. */
typedef struct {
    bool dkv, dq, careful;
} mpt__attention_pass;

/* Sums of a tile's products: weights in t->score, slopes in t->slope. */
static void mpt__attention_back_sums(const mpt__attention_item *t, const mpt__attention_tile *at,
    mpt__attention_pass pass, mpt__attention_rows q, mpt__attention_rows own,
    mpt__attention_rows dout, mpt__real *dq) {
    const mpt__attention *w = t->w;
    const int64_t n = t->n, m = at->m;
    const bool care = pass.careful;
    if (pass.dkv && w->view[MPT__AT_DV].data)
        mpt__attention_sum(t, at, care, t->score, 1, n, dout, false, t->sum[1], n, w->width, m);
    if (pass.dkv && w->view[MPT__AT_DK].data)
        mpt__attention_sum(t, at, care, t->slope, 1, n, q, false, t->sum[0], n, w->depth, m);
    if (pass.dq) mpt__attention_sum(t, at, care, t->slope, n, 1, own, true, dq, m, w->depth, n);
}

/* The queries of one head from `query` on over the own keys, whose rows these are; dq: sums. */
static void mpt__attention_back_tile(const mpt__attention_item *t, mpt__attention_pass pass,
    int64_t head, int64_t query, mpt__attention_rows own, mpt__real *dq) {
    const mpt__attention *w = t->w;
    const mpt__routines *routines = w->routines;
    mpt__attention_tile at = {head, query, t->first, mpt__attention_room(w->queries, query)};
    mpt__real block[2][MPT__ATTENTION_MOST];
    const mpt__real *number[2];
    for (int i = 0; i < 2; i++) {
        const int operand = i == 0 ? MPT__AT_LSE : MPT__AT_DELTA;
        const int64_t from = mpt__attention_at(w, operand, t->batch, head, query);
        number[i] = mpt__cpu_in(&w->view[operand], from, 1, block[i], at.m);
    }
    const mpt__attention_rows q = mpt__attention_scores(t, &at);
    const mpt__attention_rows dout = mpt__attention_meet(t, &at, 1, t->slope);
    const mpt__real *factors = mpt__attention_drop(t, &at, t->slope, NULL);
    for (int64_t r = 0; r < at.m; r++) {
        mpt__real *p = t->score + r * t->n, *slope = t->slope + r * t->n;
        routines->unary[MPT__UNARY_ADD_SCALAR](p, p, t->n, -number[0][r], 0);
        routines->unary[MPT__UNARY_ADD_SCALAR](slope, slope, t->n, -number[1][r], 0);
    }
    routines->unary[MPT__UNARY_EXP](t->score, t->score, at.m * t->n, 0, 0);
    routines->binary[MPT__BINARY_MUL](t->slope, t->slope, t->score, at.m * t->n, 0, 0);
    mpt__attention_drop(t, &at, t->score, factors);
    if (pass.careful) {
        mpt__attention_hide(t, &at, t->score, 0);
        mpt__attention_hide(t, &at, t->slope, 0);
    }
    mpt__attention_back_sums(t, &at, pass, q, own, dout, dq);
}

/* The own block of keys from `key` on, for the queries of some heads from `head` on. */
static void mpt__attention_back_block(mpt__attention_item *t, mpt__attention_pass pass, int64_t key,
    int64_t head, int64_t heads, int64_t query, int64_t queries) {
    const mpt__attention *w = t->w;
    t->head = head / w->group, t->first = key, t->n = mpt__attention_room(w->keys, key);
    mpt__attention_turn(t, MPT__AT_K, 0);
    mpt__attention_turn(t, MPT__AT_V, 1);
    const mpt__attention_rows own =
        mpt__attention_take(w, MPT__AT_K, t->batch, t->head, key, t->n, t->own);
    memset(t->sum[0], 0, (size_t)(t->n * w->depth) * sizeof *t->sum[0]);
    memset(t->sum[1], 0, (size_t)(t->n * w->width) * sizeof *t->sum[1]);
    int64_t begin = 0, end = queries; /* from the block of the first that sees a key to the last */
    if (w->causal) {
        begin = mpt__attention_within(key - w->past - query, queries);
        begin = begin / MPT__ATTENTION_BLOCK * MPT__ATTENTION_BLOCK;
        end = mpt__attention_within(key + t->n - 1 + w->window - w->past - query, queries);
    }
    for (int64_t h = 0; h < heads; h++)
        for (int64_t q = begin; q < end; q += mpt__attention_room(w->queries, query + q))
            mpt__attention_back_tile(
                t, pass, head + h, query + q, own, t->dq + (h * queries + q) * w->depth);
}

/* A block of keys, or of queries for dq alone, or all of both for a key head. */
static void mpt__attention_back_chunk(MPT__CHUNK_TAKES) {
    const mpt__attention *w = (const mpt__attention *)work;
    const int64_t heads = w->dkv ? w->group : 1;
    mpt__attention_item t = mpt__attention_begin(w, chunk, thread, w->dkv);
    const int64_t head = t.head * heads;
    const int64_t query = w->dkv ? 0 : t.first, queries = w->dkv ? w->queries : t.n;
    const int64_t sums = heads * queries * w->depth;
    int64_t begin = w->dq ? 0 : t.first, end = w->dq ? w->keys : begin + t.n;
    mpt__attention_pass pass = {w->dkv, w->dq != 0, false};
    if (!w->dkv) begin = mpt__attention_first_key(w, query);
    if (!w->dkv) end = mpt__attention_end_key(w, query + t.n);
    if (w->dq) memset(t.dq, 0, (size_t)sums * sizeof *t.dq);
    t.by_keys = true;
    for (int64_t key = begin; key < end; key += t.n) {
        mpt__attention_back_block(&t, pass, key, head, heads, query, queries);
        if (!w->dkv) continue;
        if (mpt__attention_leaks(w, t.sum[0], t.n * w->depth) ||
            mpt__attention_leaks(w, t.sum[1], t.n * w->width)) {
            const mpt__attention_pass again = {true, false, true};
            mpt__attention_back_block(&t, again, key, head, heads, query, queries);
        }
        if (w->view[MPT__AT_DK].data) mpt__attention_put(&t, MPT__AT_DK, t.sum[0], w->scale);
        if (w->view[MPT__AT_DV].data) mpt__attention_put(&t, MPT__AT_DV, t.sum[1], 1);
    }
    if (w->dq && mpt__attention_leaks(w, t.dq, sums)) {
        pass.dkv = false, pass.careful = true;
        memset(t.dq, 0, (size_t)sums * sizeof *t.dq);
        for (int64_t key = begin; key < end; key += t.n)
            mpt__attention_back_block(&t, pass, key, head, heads, query, queries);
    }
    t.first = query, t.n = queries;
    for (int64_t h = 0; w->dq && h < heads; h++) {
        t.head = head + h;
        mpt__attention_put(&t, w->dq, t.dq + h * queries * w->depth, w->scale);
    }
}

/* ==== Launches ==== */

/* Whether q, k, v and dout are rows of pairs. */
static bool mpt__attention_paired(const mpt__launch *launch) {
    static const int operands[4] = {MPT__AT_Q, MPT__AT_K, MPT__AT_V, MPT__AT_DOUT};
    bool paired = true;
    for (int i = 0; i < (launch->kernel == MPT__K_ATTENTION ? 3 : 4); i++) {
        const mpt__operand *o = &launch->operand[operands[i]];
        const int64_t all = o->shape[3] | o->offset | o->stride[0] | o->stride[1] | o->stride[2];
        paired &= o->dtype == MPT_BF16 && o->stride[3] == 1 && all % 2 == 0;
    }
    return paired;
}

/* products: of those of the forward pass, what fn computes. */
static void mpt__attention_run(mpt__attention *w, mpt__chunk_fn fn, double products) {
    const int64_t heads = w->dkv ? w->heads / w->group : w->heads;
    const int64_t batches = w->o[MPT__AT_Q].shape[0];
    w->blocks = mpt__attention_blocks(w->dkv ? w->keys : w->queries);
    if (w->dkv && w->dq) w->blocks = 1;
    int64_t items = mpt__cpu_times(batches, mpt__cpu_times(heads, w->blocks));
    const double keys = (double)mpt__cpu_min(w->keys, w->window + MPT__ATTENTION_BLOCK);
    const double scores = (double)w->queries * keys * (double)w->heads * (double)batches;
    const double columns = (double)w->depth + (double)w->width;
    const double cost = scores * columns * products * 0.3 * w->routines->slowness;
    mpt__parallel(w->call->pool, items, cost < 9e18 ? (int64_t)cost : INT64_MAX, fn, w);
}

static void mpt__attention_launch_of(const mpt__cpu_call *call, bool pairs) {
    const mpt__launch *launch = call->launch;
    const mpt__operand *o = launch->operand;
    const int64_t *q = o[MPT__AT_Q].shape, *k = o[MPT__AT_K].shape;
    const double p = launch->imm[1], lowest = p * 4294967296.0;
    const int threads = mpt__pool_threads(call->pool);
    const int kernel = launch->kernel;
    const int dq = kernel == MPT__K_ATTENTION_DQ ? MPT__AT_DQ : MPT__AT_DQ_TOO;
    mpt__attention w;
    w.call = call;
    w.routines = call->routines;
    w.o = o;
    for (int i = 0; i < MPT__MAX_OPERANDS; i++) w.view[i] = mpt__cpu_view_of(call, i);
    w.heads = q[1], w.queries = q[2], w.depth = q[3];
    w.keys = k[2], w.width = o[MPT__AT_V].shape[3];
    w.group = k[1] > 0 ? w.heads / k[1] : 1;
    w.scale = (mpt__real)launch->imm[0];
    w.causal = launch->index[0] != 0;
    w.window = launch->index[1] > 0 ? launch->index[1] : INT64_MAX / 4;
    w.past = launch->index[2];
    w.drops = p > 0;
    w.key = mpt__cpu_rng_key(call);
    w.kept = lowest <= 4294967295.0 ? (mpt__real)(1 / (1 - p)) : 0;
    w.threshold = lowest <= 4294967295.0 ? (uint32_t)lowest : 0;
    if ((double)w.threshold < lowest) w.threshold++;
    w.pairs = pairs && mpt__attention_paired(launch);
    w.memory = mpt__attention_workspace(launch, threads) / threads;
#ifdef MPT__HAS_GEMM
    w.level = call->routines->gemm;
#endif
    mpt__kernel_flushes(w.routines->flushes);
    w.dkv = false, w.dq = 0;
    if (kernel == MPT__K_ATTENTION) mpt__attention_run(&w, mpt__attention_forward_chunk, 1.0);
    if (kernel == MPT__K_ATTENTION_DQ) mpt__attention_run(&w, mpt__attention_delta_chunk, 0.01);
    if (kernel != MPT__K_ATTENTION && w.view[dq].data) w.dq = dq;
    if (w.dq && !mpt__attention_together(launch, threads)) {
        mpt__attention_run(&w, mpt__attention_back_chunk, 1.5);
        w.dq = 0;
    }
    w.dkv = kernel == MPT__K_ATTENTION_DKV;
    if (w.dkv) mpt__attention_run(&w, mpt__attention_back_chunk, w.dq ? 2.5 : 2.0);
    mpt__kernel_flushed(w.routines->flushes);
}
static void mpt__cpu_attention(const mpt__cpu_call *call) { mpt__attention_launch_of(call, false); }
#ifdef MPT__HAS_BF16X2
static void mpt__bf16x2_attention(const mpt__cpu_call *call) {
    mpt__attention_launch_of(call, true);
}
#endif

#endif
#endif
