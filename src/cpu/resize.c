/* ----
 * cpu/resize.c: images of another size on the CPU.
 * ---- */
#ifndef MPT__CPU_RESIZE_INCLUDED
#define MPT__CPU_RESIZE_INCLUDED

#include "cpu/attention.c"

#ifndef MPTRAIN_NO_CONV

/* [N, C, H, W], by rows of pixels: of one channel or, dense with channels last, of all, `run`. */
typedef struct {
    mpt__cpu_view view;
    const mpt__operand *operand;
    int64_t rows, columns;
} mpt__cpu_image;

/* Which elements of `size`, two at most, element `at` of the result is made of. */
typedef struct {
    int64_t first, second;
    mpt__real weight; /* of the second */
} mpt__cpu_source;

typedef struct {
    mpt__cpu_image from, image; /* before, after */
    int way;
    mpt__real step[2];         /* rows and columns before per one after */
    mpt__real *scratch;        /* `room` for each thread */
    int64_t room, run, chunks; /* of rows, for each plane */
    const mpt__cpu_source *column;
} mpt__cpu_resize_work;

static mpt__cpu_source mpt__cpu_source_of(
    const mpt__cpu_resize_work *w, int axis, int64_t at, int64_t size) {
    mpt__real half = (mpt__real)0.5, x = (mpt__real)at * w->step[axis];
    mpt__cpu_source s;
    if (w->way == MPT__RESIZE_CENTERS) x = w->step[axis] * ((mpt__real)at + half) - half;
    if (!(x > 0)) x = 0;
    s.first = mpt__cpu_min((int64_t)x, size - 1);
    s.second = w->way != MPT__RESIZE_NEAREST && s.first < size - 1 ? s.first + 1 : s.first;
    s.weight = s.second > s.first ? x - (mpt__real)s.first : 0;
    return s;
}

/* Rows that go together, as neighbours share the other side's. */
#define MPT__RESIZE_ROWS 8
#define MPT__RESIZE_MANY 16 /* channels, from which on routines are worth their calls: measured */

/* Where row `row` of a plane begins, and its step. */
static int64_t mpt__cpu_image_row(const mpt__cpu_resize_work *w, const mpt__cpu_image *image,
    int64_t plane, int64_t row, int64_t *step) {
    const mpt__operand *o = image->operand;
    const int64_t planes = w->run > 1 ? 1 : o->shape[1];
    *step = w->run > 1 ? 1 : o->stride[3];
    return plane / planes * o->stride[0] + plane % planes * o->stride[1] + row * o->stride[2];
}

static void mpt__cpu_image_load(const mpt__cpu_resize_work *w, const mpt__cpu_image *image,
    int64_t plane, int64_t row, mpt__real *to) {
    int64_t step, begin = mpt__cpu_image_row(w, image, plane, row, &step);
    mpt__cpu_get(&image->view, begin, step, to, image->columns * w->run);
}

/* out = (1 - share) x + share y */
static void mpt__cpu_blend(const mpt__routines *routines, mpt__real *out, const mpt__real *x,
    const mpt__real *y, mpt__real share, int64_t n) {
    mpt__real block[MPT__BLOCK];
    for (int64_t at = 0, some; at < n; at += some) {
        some = mpt__cpu_min(n - at, MPT__BLOCK);
        routines->unary[MPT__UNARY_MUL_SCALAR](block, y + at, some, share, 0);
        routines->unary[MPT__UNARY_MUL_SCALAR](out + at, x + at, some, 1 - share, 0);
        routines->binary[MPT__BINARY_ADD](out + at, out + at, block, some, 0, 0);
    }
}

/* Row `row` before, at the columns after. */
static void mpt__cpu_resize_line(
    const mpt__cpu_resize_work *w, int64_t plane, int64_t row, mpt__real *source, mpt__real *line) {
    const int64_t run = w->run;
    mpt__cpu_image_load(w, &w->from, plane, row, source);
    for (int64_t x = 0; x < w->image.columns; x++) {
        const mpt__cpu_source s = w->column[x];
        const mpt__real *first = source + s.first * run, *second = source + s.second * run;
        mpt__real *to = line + x * run;
        if (run < MPT__RESIZE_MANY)
            for (int64_t c = 0; c < run; c++)
                to[c] = s.weight != 0 ? (1 - s.weight) * first[c] + s.weight * second[c] : first[c];
        else if (s.weight != 0)
            mpt__cpu_blend(w->from.view.routines, to, first, second, s.weight, run);
        else
            memcpy(to, first, (size_t)run * sizeof *to);
    }
}

static void mpt__cpu_resize_rows(MPT__CHUNK_TAKES) {
    const mpt__cpu_resize_work *w = (const mpt__cpu_resize_work *)work;
    const int64_t n = w->image.columns * w->run, plane = chunk / w->chunks;
    mpt__real *source = w->scratch + thread * w->room, *line[2], block[MPT__BLOCK];
    int64_t held[2] = {-1, -1}, y = chunk % w->chunks * MPT__RESIZE_ROWS, step;
    const int64_t end = mpt__cpu_min(y + MPT__RESIZE_ROWS, w->image.rows);
    for (int i = 0; i < 2; i++) line[i] = source + w->from.columns * w->run + i * n;
    for (; y < end; y++) {
        const mpt__cpu_source row = mpt__cpu_source_of(w, 0, y, w->from.rows);
        for (int64_t r = row.first; r <= row.second; r++) { /* two neighbours, or one */
            if (held[r & 1] != r) mpt__cpu_resize_line(w, plane, r, source, line[r & 1]);
            held[r & 1] = r;
        }
        const mpt__real *above = line[row.first & 1], *below = line[row.second & 1];
        const int64_t begin = mpt__cpu_image_row(w, &w->image, plane, y, &step);
        for (int64_t at = 0; at < n; at += MPT__BLOCK) {
            const int64_t some = mpt__cpu_min(MPT__BLOCK, n - at), to = begin + at * step;
            mpt__real *out = mpt__cpu_out(&w->image.view, to, step, block);
            if (row.weight != 0)
                mpt__cpu_blend(
                    w->image.view.routines, out, above + at, below + at, row.weight, some);
            else
                memcpy(out, above + at, (size_t)some * sizeof *out);
            mpt__cpu_put(&w->image.view, to, step, out, some);
        }
    }
}

/* Adds the shares of a row's pixels. */
static void mpt__cpu_resize_add(
    const mpt__cpu_resize_work *w, const mpt__real *dy, mpt__real *sum, mpt__real *scaled) {
    const mpt__routines *routines = w->from.view.routines;
    const int64_t run = w->run;
    for (int64_t x = 0; x < w->image.columns; x++) {
        const mpt__cpu_source s = w->column[x];
        if (run == 1) {
            sum[s.first] += (1 - s.weight) * dy[x];
            if (s.weight != 0) sum[s.second] += s.weight * dy[x];
            continue;
        }
        for (int i = 0; i < (s.weight != 0 ? 2 : 1); i++) {
            const mpt__real part = i ? s.weight : 1 - s.weight, *from = dy + x * run;
            mpt__real *to = sum + (i ? s.second : s.first) * run;
            if (run >= MPT__RESIZE_MANY) {
                routines->unary[MPT__UNARY_MUL_SCALAR](scaled, from, run, part, 0);
                routines->binary[MPT__BINARY_ADD](to, to, scaled, run, 0, 0);
            } else {
                for (int64_t c = 0; c < run; c++) to[c] += part * from[c];
            }
        }
    }
}

/* Elements get their shares in the order of the results. */
static void mpt__cpu_resize_rows_backward(MPT__CHUNK_TAKES) {
    const mpt__cpu_resize_work *w = (const mpt__cpu_resize_work *)work;
    const int64_t n = w->from.columns * w->run, n_after = w->image.columns * w->run;
    const int64_t plane = chunk / w->chunks, begin = chunk % w->chunks * MPT__RESIZE_ROWS;
    const int64_t rows = mpt__cpu_min(MPT__RESIZE_ROWS, w->from.rows - begin);
    mpt__real *sum = w->scratch + thread * w->room, *dy = sum + MPT__RESIZE_ROWS * n;
    mpt__real *share = dy + n_after, *scaled = share + n_after;
    int64_t y = 0, after = w->image.rows, step;
    memset(sum, 0, (size_t)(rows * n) * sizeof *sum);
    while (y < after) { /* to the first that has a share */
        const int64_t half = y + (after - y) / 2;
        if (mpt__cpu_source_of(w, 0, half, w->from.rows).second < begin)
            y = half + 1;
        else
            after = half;
    }
    for (; y < w->image.rows; y++) {
        const mpt__cpu_source row = mpt__cpu_source_of(w, 0, y, w->from.rows);
        if (row.first >= begin + rows) break;
        mpt__cpu_image_load(w, &w->image, plane, y, dy);
        for (int i = 0; i < (row.weight != 0 ? 2 : 1); i++) {
            const int64_t r = (i ? row.second : row.first) - begin;
            if (r < 0 || r >= rows) continue;
            w->from.view.routines->unary[MPT__UNARY_MUL_SCALAR](
                share, dy, n_after, i ? row.weight : 1 - row.weight, 0);
            mpt__cpu_resize_add(w, share, sum + r * n, scaled);
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        const int64_t to = mpt__cpu_image_row(w, &w->from, plane, begin + r, &step);
        for (int64_t at = 0; at < n; at += MPT__BLOCK)
            mpt__cpu_put(&w->from.view, to + at * step, step, sum + r * n + at,
                mpt__cpu_min(MPT__BLOCK, n - at));
    }
}

static int64_t mpt__cpu_resize_run(const mpt__launch *launch) {
    int64_t run = launch->operand[0].shape[1];
    for (int k = 0; k < 2; k++) {
        const mpt__operand *o = &launch->operand[k];
        if (o->stride[1] != 1 || o->stride[3] != run) return 1;
    }
    return run > 1 ? run : 1;
}

static int64_t mpt__cpu_resize_room(const mpt__launch *launch) {
    bool backward = launch->kernel == MPT__K_INTERPOLATE_BACKWARD;
    int64_t from = launch->operand[backward].shape[3], image = launch->operand[!backward].shape[3];
    return (backward ? MPT__RESIZE_ROWS * from + 2 * image + 1 : from + 2 * image) *
        mpt__cpu_resize_run(launch);
}

static int64_t mpt__cpu_resize_columns(const mpt__launch *launch) {
    bool backward = launch->kernel == MPT__K_INTERPOLATE_BACKWARD;
    return launch->operand[!backward].shape[3] * (int64_t)sizeof(mpt__cpu_source);
}

static int64_t mpt__cpu_resize_workspace(const mpt__launch *launch, int threads) {
    return mpt__cpu_resize_columns(launch) +
        threads * mpt__cpu_resize_room(launch) * (int64_t)sizeof(mpt__real);
}

static mpt__cpu_image mpt__cpu_image_of(const mpt__cpu_call *call, int operand) {
    mpt__cpu_image image;
    image.view = mpt__cpu_view_of(call, operand);
    image.operand = &call->launch->operand[operand];
    image.rows = image.operand->shape[2];
    image.columns = image.operand->shape[3];
    return image;
}

static void mpt__cpu_resize(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    bool backward = launch->kernel == MPT__K_INTERPOLATE_BACKWARD;
    mpt__cpu_resize_work w;
    w.from = mpt__cpu_image_of(call, backward);
    w.image = mpt__cpu_image_of(call, !backward);
    w.way = (int)launch->index[0];
    for (int i = 0; i < 2; i++) w.step[i] = (mpt__real)launch->imm[i];
    mpt__cpu_source *column = (mpt__cpu_source *)call->workspace;
    for (int64_t x = 0; x < w.image.columns; x++)
        column[x] = mpt__cpu_source_of(&w, 1, x, w.from.columns);
    w.column = column;
    w.scratch = (mpt__real *)(void *)((char *)call->workspace + mpt__cpu_resize_columns(launch));
    w.room = mpt__cpu_resize_room(launch);
    w.run = mpt__cpu_resize_run(launch);
    w.chunks = mpt__cpu_chunks(backward ? w.from.rows : w.image.rows, MPT__RESIZE_ROWS);
    int64_t planes = launch->operand[0].shape[0] * launch->operand[0].shape[1];
    mpt__cpu_for(call, planes / w.run * w.chunks, planes * w.image.rows * w.image.columns, 12.0,
        backward ? mpt__cpu_resize_rows_backward : mpt__cpu_resize_rows, &w);
}
#endif

#endif
