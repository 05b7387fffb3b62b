/* ---------------------------------------------------------------------------------------------
 * 38_cpu_resize.c: images of another size on the CPU.
 * ------------------------------------------------------------------------------------------- */
#ifndef MPT__38_CPU_RESIZE_INCLUDED
#define MPT__38_CPU_RESIZE_INCLUDED

#include "38_cpu_attention.c"

#ifndef MPTRAIN_NO_CONV

/* [N, C, H, W]. */
typedef struct mpt__ref_image {
    mpt__ref_view view;
    const mpt__operand *operand;
    int64_t rows, columns;
} mpt__ref_image;

typedef struct mpt__ref_resize_work {
    mpt__ref_image from, image; /* before, after */
    int way;
    mpt__real step[2];  /* rows and columns before per one after */
    mpt__real *scratch; /* `room` for each thread */
    int64_t room;
} mpt__ref_resize_work;

/* Which of `size` elements, at most two, element `at` of the result is made of. */
typedef struct mpt__ref_source {
    int64_t first, second;
    mpt__real weight; /* of the second */
} mpt__ref_source;

static mpt__ref_source mpt__ref_source_of(const mpt__ref_resize_work *w, int axis, int64_t at,
                                          int64_t size) {
    mpt__real half = (mpt__real)0.5, x = (mpt__real)at * w->step[axis];
    mpt__ref_source s;
    if (w->way == MPT__RESIZE_CENTERS) x = w->step[axis] * ((mpt__real)at + half) - half;
    if (!(x > 0)) x = 0;
    s.first = mpt__ref_min((int64_t)x, size - 1);
    s.second = w->way != MPT__RESIZE_NEAREST && s.first < size - 1 ? s.first + 1 : s.first;
    s.weight = s.second > s.first ? x - (mpt__real)s.first : 0;
    return s;
}

/* Where row `row` of a plane begins. */
static int64_t mpt__ref_image_row(const mpt__ref_image *image, int64_t plane, int64_t row) {
    const mpt__operand *o = image->operand;
    return plane / o->shape[1] * o->stride[0] + plane % o->shape[1] * o->stride[1] +
           row * o->stride[2];
}

static void mpt__ref_image_load(const mpt__ref_image *image, int64_t plane, int64_t row,
                                mpt__real *to) {
    mpt__ref_get(&image->view, mpt__ref_image_row(image, plane, row), image->operand->stride[3], to,
                 image->columns);
}

static void mpt__ref_image_put(const mpt__ref_image *image, int64_t plane, int64_t row,
                               const mpt__real *from) {
    int64_t begin = mpt__ref_image_row(image, plane, row), stride = image->operand->stride[3];
    for (int64_t at = 0; at < image->columns; at += MPT__BLOCK)
        mpt__ref_put(&image->view, begin + at * stride, stride, from + at,
                     mpt__ref_min(MPT__BLOCK, image->columns - at));
}

static void mpt__ref_resize_plane(void *work, int64_t plane, int thread) {
    const mpt__ref_resize_work *w = (const mpt__ref_resize_work *)work;
    mpt__real *upper = w->scratch + thread * w->room, *lower = upper + w->from.columns;
    mpt__real *out = lower + w->from.columns;
    for (int64_t y = 0; y < w->image.rows; y++) {
        mpt__ref_source row = mpt__ref_source_of(w, 0, y, w->from.rows);
        mpt__ref_image_load(&w->from, plane, row.first, upper);
        mpt__ref_image_load(&w->from, plane, row.second, lower);
        for (int64_t x = 0; x < w->image.columns; x++) {
            mpt__ref_source s = mpt__ref_source_of(w, 1, x, w->from.columns);
            mpt__real above = upper[s.first], below = lower[s.first];
            if (s.weight != 0) above = (1 - s.weight) * above + s.weight * upper[s.second];
            if (s.weight != 0) below = (1 - s.weight) * below + s.weight * lower[s.second];
            out[x] = row.weight != 0 ? (1 - row.weight) * above + row.weight * below : above;
        }
        mpt__ref_image_put(&w->image, plane, y, out);
    }
}

/* A plane's elements get their shares in the order of the results. */
static void mpt__ref_resize_plane_backward(void *work, int64_t plane, int thread) {
    const mpt__ref_resize_work *w = (const mpt__ref_resize_work *)work;
    mpt__real *sum = w->scratch + thread * w->room, *dy = sum + w->from.rows * w->from.columns;
    memset(sum, 0, (size_t)(w->from.rows * w->from.columns) * sizeof *sum);
    for (int64_t y = 0; y < w->image.rows; y++) {
        mpt__ref_source row = mpt__ref_source_of(w, 0, y, w->from.rows);
        mpt__real *upper = sum + row.first * w->from.columns;
        mpt__real *lower = sum + row.second * w->from.columns;
        mpt__ref_image_load(&w->image, plane, y, dy);
        for (int64_t x = 0; x < w->image.columns; x++) {
            mpt__ref_source s = mpt__ref_source_of(w, 1, x, w->from.columns);
            mpt__real above = (1 - row.weight) * dy[x], below = row.weight * dy[x];
            upper[s.first] += (1 - s.weight) * above;
            if (s.weight != 0) upper[s.second] += s.weight * above;
            if (row.weight == 0) continue;
            lower[s.first] += (1 - s.weight) * below;
            if (s.weight != 0) lower[s.second] += s.weight * below;
        }
    }
    for (int64_t y = 0; y < w->from.rows; y++)
        mpt__ref_image_put(&w->from, plane, y, sum + y * w->from.columns);
}

static int64_t mpt__ref_resize_room(const mpt__launch *launch) {
    bool backward = launch->kernel == MPT__K_INTERPOLATE_BACKWARD;
    const int64_t *from = launch->operand[backward].shape;
    const int64_t *image = launch->operand[!backward].shape;
    return (backward ? from[2] : 2) * from[3] + image[3];
}

static int64_t mpt__ref_resize_workspace(const mpt__launch *launch, int threads) {
    const int64_t *shape = launch->operand[0].shape;
    return (shape[0] * shape[1] > 1 ? threads : 1) * mpt__ref_resize_room(launch) *
           (int64_t)sizeof(mpt__real);
}

static mpt__ref_image mpt__ref_image_of(const mpt__cpu_call *call, int operand) {
    mpt__ref_image image;
    image.view = mpt__ref_view_of(call, operand);
    image.operand = &call->launch->operand[operand];
    image.rows = image.operand->shape[2];
    image.columns = image.operand->shape[3];
    return image;
}

static void mpt__ref_resize(const mpt__cpu_call *call) {
    const mpt__launch *launch = call->launch;
    bool backward = launch->kernel == MPT__K_INTERPOLATE_BACKWARD;
    mpt__ref_resize_work w;
    w.from = mpt__ref_image_of(call, backward);
    w.image = mpt__ref_image_of(call, !backward);
    w.way = (int)launch->index[0];
    for (int i = 0; i < 2; i++) w.step[i] = (mpt__real)launch->imm[i];
    w.scratch = (mpt__real *)call->workspace;
    w.room = mpt__ref_resize_room(launch);
    int64_t planes = launch->operand[0].shape[0] * launch->operand[0].shape[1];
    mpt__parallel(call->pool, planes,
                  mpt__ref_cost(call, planes * w.image.rows * w.image.columns, 12.0),
                  backward ? mpt__ref_resize_plane_backward : mpt__ref_resize_plane, &w);
}

static void mpt__cpu_add_resize(mpt__cpu *cpu) {
    mpt__cpu_add(cpu, MPT__K_INTERPOLATE, mpt__ref_resize, mpt__ref_resize_workspace);
    mpt__cpu_add(cpu, MPT__K_INTERPOLATE_BACKWARD, mpt__ref_resize, mpt__ref_resize_workspace);
}

#else
static void mpt__cpu_add_resize(mpt__cpu *cpu) { (void)cpu; }
#endif /* MPTRAIN_NO_CONV */

#endif
