/* ----
 * data/transform.c: from a picture to a sample: crops, flips, bilinear resizing, erasing.
 *
 * Geometric steps only change a description of the picture (part, size, window, mirror); pixels are
 * computed once, into the sample itself where they can be. All sizes but those of decoded files are
 * known when a dataset is made, so that running allocates nothing.
 * ---- */
#ifndef MPT__DATA_TRANSFORM_INCLUDED
#define MPT__DATA_TRANSFORM_INCLUDED

#include "face/data.h"
#include "ground/math.c"
#include "data/dataset.c"

#define MPT__MAX_SIDE (INT64_C(1) << 24) /* pixels */
#define MPT__MAX_CHANNELS 4
#define MPT__MAX_STEPS 16
#define MPT__TRANSFORM_STREAM UINT64_C(0x617567) /* "aug" */

/* Steps with their sizes. */
typedef struct {
    int64_t channels, height, width; /* of the result */
    int64_t in_height, in_width;     /* of every picture; 0: any */
    int64_t most;                    /* elements of the largest picture between steps */
    int64_t columns;                 /* of the widest */
    int last_move;                   /* the last geometric step; -1: none */
    int count;
    mpt_transform steps[MPT__MAX_STEPS];
} mpt__pipeline;

/* A picture to be computed: a part of pixels somewhere, stretched to a size, of which a window is
   seen (zeros outside), mirrored or not. */
typedef struct {
    const uint8_t *bytes; /* or, if NULL, .. */
    const float *values;
    int64_t channels, channel_step, row_step, column_step; /* in elements */
    int64_t height, width;                                 /* of the part */
    int64_t to_height, to_width;                           /* what it is stretched to */
    int64_t top, left, rows, columns;                      /* of the window */
    bool mirrored, antialias;
} mpt__picture;

/* ==== Planning ==== */

mpt_transform mpt_transform_default(mpt_transform_kind kind, int64_t height, int64_t width) {
    mpt_transform step;
    bool erasing = kind == MPT_RANDOM_ERASING;
    mpt__zero(step);
    step.kind = kind;
    step.height = height, step.width = width;
    step.antialias = true;
    step.p = 0.5;
    step.scale[0] = erasing ? 0.02 : 0.08, step.scale[1] = erasing ? 0.33 : 1.0;
    step.ratio[0] = erasing ? 0.3 : 0.75, step.ratio[1] = erasing ? 3.3 : 4.0 / 3.0;
    for (int c = 0; c < MPT__MAX_CHANNELS; c++) step.deviation[c] = 1.0;
    return step;
}

static const char *const mpt__step_names[MPT_TRANSFORM_KINDS] = {"MPT_RESIZE", "MPT_CENTER_CROP",
    "MPT_RANDOM_CROP", "MPT_RANDOM_FLIP", "MPT_RESIZED_CROP", "MPT_RANDOM_ERASING", "MPT_NORMALIZE",
    "MPT_APPLY"};

static bool mpt__step_moves(const mpt_transform *step) { return step->kind <= MPT_RESIZED_CROP; }

static bool mpt__step_sizes(const mpt_transform *step) {
    return mpt__step_moves(step) && step->kind != MPT_RANDOM_FLIP;
}

/* Both finite, 0 < low <= high <= most. */
static bool mpt__range_good(const double range[2], double most) {
    return range[0] > 0.0 && range[0] <= range[1] && range[1] <= most;
}

/* What is wrong with a step by itself; NULL: nothing. */
static const char *mpt__step_fault(const mpt_transform *step, int64_t channels) {
    bool part = step->kind == MPT_RESIZED_CROP || step->kind == MPT_RANDOM_ERASING;
    if ((unsigned)step->kind >= MPT_TRANSFORM_KINDS) return "is of no known kind";
    if (mpt__step_sizes(step) &&
        (step->height < 1 || step->height > MPT__MAX_SIDE || step->width > MPT__MAX_SIDE ||
            step->width < (step->kind == MPT_RESIZE ? 0 : 1)))
        return "needs a height and a width from 1 to 2^24";
    if (step->padding < 0 || step->padding > MPT__MAX_SIDE) return "needs a padding of 0 to 2^24";
    if (!(step->p >= 0.0 && step->p <= 1.0)) return "has a p outside [0, 1]";
    if (part && !(mpt__range_good(step->scale, 1.0) && mpt__range_good(step->ratio, 1e6)))
        return "needs 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]";
    for (int64_t c = 0; c < channels && step->kind == MPT_NORMALIZE; c++)
        if (!mpt__f64_is_finite(step->mean[c]) || !mpt__f64_is_finite(step->deviation[c]) ||
            !((float)step->deviation[c] > 0.0f))
            return "needs finite means and positive deviations";
    if (step->kind == MPT_APPLY && !step->apply) return "has no function";
    return NULL;
}

/* The sides of a picture whose shorter one becomes `side`, rounded as by torchvision. */
static void mpt__shorter_side(int64_t side, int64_t *height, int64_t *width) {
    int64_t *shorter = *height <= *width ? height : width;
    int64_t *longer = shorter == height ? width : height;
    *longer = side * *longer / *shorter;
    *shorter = side;
}

/* Sizes from step to step; 0 while they depend on the file. */
static bool mpt__pipeline_size(mpt_context *ctx, mpt__pipeline *plan, int i, int64_t *height,
    int64_t *width, bool *stretched) {
    const mpt_transform *step = &plan->steps[i];
    const char *name = mpt__step_names[step->kind];
    bool known = *height > 0;
    if (!known && (!mpt__step_moves(step) ||
                   (*stretched && (step->kind == MPT_RESIZE || step->kind == MPT_RESIZED_CROP))))
        return mpt__reject(ctx, ARGUMENT,
            "step %d (%s) needs a picture of known size: put a crop, or a resize to "
            "[height, width], before it",
            i, name);
    if (mpt__step_moves(step)) plan->last_move = i;
    if (step->kind == MPT_RESIZE || step->kind == MPT_RESIZED_CROP) *stretched = true;
    if (!mpt__step_sizes(step)) return true;
    if (known && step->kind == MPT_RANDOM_CROP &&
        (*height + 2 * step->padding < step->height || *width + 2 * step->padding < step->width))
        return mpt__reject(ctx, SHAPE,
            "step %d (%s): a crop of %lld x %lld from %lld x %lld with %lld of "
            "padding; resize before it",
            i, name, step->height, step->width, *height, *width, step->padding);
    if (step->width == 0) {
        if (known) mpt__shorter_side(step->height, height, width);
    } else {
        *height = step->height, *width = step->width;
    }
    return true;
}

/* Fills a plan for pictures of a size (0: any); false with an error recorded. A result of height 0
   has the size of the first picture, not known yet. */
static bool mpt__pipeline_plan(mpt_context *ctx, const mpt_transform *steps, int count,
    int64_t channels, int64_t height, int64_t width, mpt__pipeline *plan) {
    bool stretched = false;
    mpt__zero(*plan);
    if (count < 0 || count > MPT__MAX_STEPS || (count > 0 && !steps))
        return mpt__reject(ctx, ARGUMENT, "%d steps%s; 0 to %d are possible", count,
            steps ? "" : " at NULL", MPT__MAX_STEPS);
    plan->channels = channels;
    plan->in_height = height, plan->in_width = width;
    plan->last_move = -1;
    plan->count = count;
    for (int i = 0; i < count; i++) {
        const char *fault = mpt__step_fault(&steps[i], channels);
        plan->steps[i] = steps[i];
        if (fault)
            return mpt__reject(ctx, ARGUMENT, "step %d%s%s %s", i,
                (unsigned)steps[i].kind < MPT_TRANSFORM_KINDS ? ", " : "",
                (unsigned)steps[i].kind < MPT_TRANSFORM_KINDS ? mpt__step_names[steps[i].kind] : "",
                fault);
        if (!mpt__pipeline_size(ctx, plan, i, &height, &width, &stretched)) return false;
        if (height > MPT__MAX_SIDE || width > MPT__MAX_SIDE)
            return mpt__reject(ctx, SHAPE, "step %d makes %lld x %lld pixels", i, height, width);
        if (plan->most < channels * height * width) plan->most = channels * height * width;
        if (plan->columns < width) plan->columns = width;
    }
    plan->height = height, plan->width = width;
    if (plan->most > PTRDIFF_MAX / 16)
        return mpt__reject(
            ctx, SHAPE, "%lld elements between two steps are more than memory holds", plan->most);
    return true;
}

/* ==== Bilinear resampling ==== */

/* The inputs that an output is the weighted mean of. */
typedef struct {
    int64_t first, end;
    double center, sharpness, total;
} mpt__taps;

/* The triangle around the center, as PIL and PyTorch compute it (align_corners = false). */
static MPT__INLINE double mpt__tap(const mpt__taps *taps, int64_t i) {
    double distance = ((double)i + 0.5 - taps->center) * taps->sharpness;
    if (distance < 0.0) distance = -distance;
    return distance < 1.0 ? 1.0 - distance : 0.0;
}

/* Of output `at` when `size` inputs become `to`; none if it lies outside. */
static mpt__taps mpt__taps_of(int64_t at, int64_t size, int64_t to, bool antialias) {
    mpt__taps taps = {0, 0, 0.0, 1.0, 0.0};
    if (at < 0 || at >= to) return taps;
    double ratio = (double)size / (double)to;
    double reach = antialias && ratio > 1.0 ? ratio : 1.0;
    taps.center = ratio * ((double)at + 0.5);
    taps.sharpness = 1.0 / reach;
    if (taps.center - reach + 0.5 > 0.0) taps.first = (int64_t)(taps.center - reach + 0.5);
    taps.end = (int64_t)(taps.center + reach + 0.5);
    if (taps.end > size) taps.end = size;
    for (int64_t i = taps.first; i < taps.end; i++) taps.total += mpt__tap(&taps, i);
    return taps;
}

#define MPT__RESIZE_COLUMNS 256 /* inputs of a row that are summed over rows at a time */

/* Adds `weight` times n elements of either kind. */
static void mpt__add_weighted(
    const mpt__picture *from, int64_t offset, int64_t n, int64_t step, float weight, float *sum) {
    for (int64_t i = 0; i < n && from->bytes; i++)
        sum[i] += weight * (float)from->bytes[offset + i * step];
    for (int64_t i = 0; i < n && !from->bytes; i++)
        sum[i] += weight * from->values[offset + i * step];
}

/* A row of `lanes` channels in turns, from channel `channel` on. */
static void mpt__resize_row(const mpt__picture *from, const mpt__taps *row,
    const mpt__taps *columns, int64_t channel, int64_t lanes, float *out, int64_t plane) {
    float sum[MPT__RESIZE_COLUMNS * MPT__MAX_CHANNELS];
    int64_t step = lanes > 1 ? 1 : from->column_step;
    for (int64_t l = 0; l < lanes; l++)
        for (int64_t x = 0; x < from->columns; x++) out[l * plane + x] = 0.0f;
    for (int64_t x0 = 0; x0 < from->width; x0 += MPT__RESIZE_COLUMNS) {
        int64_t left = from->width - x0;
        int64_t n = left < MPT__RESIZE_COLUMNS ? left : MPT__RESIZE_COLUMNS;
        for (int64_t i = 0; i < n * lanes; i++) sum[i] = 0.0f;
        for (int64_t y = row->first; y < row->end; y++)
            mpt__add_weighted(from,
                channel * from->channel_step + y * from->row_step + x0 * from->column_step,
                n * lanes, step, (float)(mpt__tap(row, y) / row->total), sum);
        for (int64_t x = 0; x < from->columns; x++) {
            const mpt__taps *taps = &columns[x];
            int64_t first = taps->first > x0 ? taps->first : x0;
            int64_t end = taps->end < x0 + n ? taps->end : x0 + n;
            if (taps->first >= x0 + n) break;
            for (int64_t i = first; i < end; i++) {
                float weight = (float)(mpt__tap(taps, i) / taps->total);
                for (int64_t l = 0; l < lanes; l++)
                    out[l * plane + x] += weight * sum[(i - x0) * lanes + l];
            }
        }
    }
}

/* ==== Pixels ==== */

/* Rows of the window as they are. */
static void mpt__copy_row(const mpt__picture *from, int64_t channel, int64_t y, float *out) {
    int64_t at = channel * from->channel_step + y * from->row_step, step = from->column_step;
    int64_t first = from->left < 0 ? -from->left : 0, end = from->width - from->left;
    if (end > from->columns) end = from->columns;
    if (y < 0 || y >= from->height || first > end) first = end = 0;
    for (int64_t x = 0; x < first; x++) out[x] = 0.0f;
    for (int64_t x = end; x < from->columns; x++) out[x] = 0.0f;
    for (int64_t x = first; x < end && from->bytes; x++)
        out[x] = (float)from->bytes[at + (from->left + x) * step] / 255.0f;
    for (int64_t x = first; x < end && !from->bytes; x++)
        out[x] = from->values[at + (from->left + x) * step];
}

static void mpt__finish_row(const mpt__picture *from, bool scale, float *row) {
    for (int64_t x = 0; x < from->columns && scale; x++) row[x] /= 255.0f;
    for (int64_t x = 0, y = from->columns - 1; x < y && from->mirrored; x++, y--) {
        float value = row[x];
        row[x] = row[y], row[y] = value;
    }
}

static bool mpt__picture_stretched(const mpt__picture *from) {
    return from->to_height != from->height || from->to_width != from->width;
}

/* Computes the window into out [C, rows, columns] and goes on from there; taps: per column. */
static void mpt__picture_make(mpt__picture *from, mpt__taps *taps, float *out) {
    bool stretched = mpt__picture_stretched(from);
    int64_t plane = from->rows * from->columns;
    int64_t lanes = stretched && from->channel_step == 1 ? from->channels : 1;
    for (int64_t x = 0; x < from->columns && stretched; x++)
        taps[x] = mpt__taps_of(from->left + x, from->width, from->to_width, from->antialias);
    for (int64_t c = 0; c < from->channels; c += lanes)
        for (int64_t y = 0; y < from->rows; y++) {
            float *row = out + c * plane + y * from->columns;
            if (stretched) {
                mpt__taps down =
                    mpt__taps_of(from->top + y, from->height, from->to_height, from->antialias);
                mpt__resize_row(from, &down, taps, c, lanes, row, plane);
            } else {
                mpt__copy_row(from, c, from->top + y, row);
            }
            for (int64_t l = 0; l < lanes; l++)
                mpt__finish_row(from, stretched && from->bytes, row + l * plane);
        }
    from->bytes = NULL, from->values = out;
    from->channel_step = plane, from->row_step = from->columns, from->column_step = 1;
    from->height = from->to_height = from->rows;
    from->width = from->to_width = from->columns;
    from->top = from->left = 0;
    from->mirrored = false;
}

static mpt__picture mpt__picture_of(const mpt__pipeline *plan, const uint8_t *bytes,
    const float *values, int64_t height, int64_t width) {
    mpt__picture picture;
    mpt__zero(picture);
    picture.bytes = bytes, picture.values = values;
    picture.channels = plan->channels;
    picture.height = picture.to_height = picture.rows = height;
    picture.width = picture.to_width = picture.columns = width;
    picture.channel_step = height * width, picture.row_step = width, picture.column_step = 1;
    return picture;
}

/* ==== Steps ==== */

/* What of the window is left, as it is seen. */
static void mpt__picture_crop(
    mpt__picture *picture, int64_t top, int64_t left, int64_t rows, int64_t columns) {
    picture->top += top;
    picture->left += picture->mirrored ? picture->columns - left - columns : left;
    picture->rows = rows, picture->columns = columns;
}

/* What is seen, if unstretched and whole, is what is stretched. */
static void mpt__picture_resize(
    mpt__picture *picture, int64_t height, int64_t width, bool antialias) {
    int64_t at = picture->top * picture->row_step + picture->left * picture->column_step;
    if (picture->bytes)
        picture->bytes += at;
    else
        picture->values += at;
    picture->height = picture->rows, picture->width = picture->columns;
    picture->top = picture->left = 0;
    picture->to_height = picture->rows = height;
    picture->to_width = picture->columns = width;
    picture->antialias = antialias;
}

static bool mpt__picture_resizable(const mpt__picture *picture) {
    return !mpt__picture_stretched(picture) && picture->top >= 0 && picture->left >= 0 &&
        picture->top + picture->rows <= picture->height &&
        picture->left + picture->columns <= picture->width;
}

/* What a crop has cut off is gone: a larger one after it sees zeros there. */
static bool mpt__picture_whole(const mpt__picture *picture) {
    return picture->top == 0 && picture->left == 0 && picture->rows == picture->to_height &&
        picture->columns == picture->to_width;
}

/* The words of one step of one sample. */
static void mpt__step_draw(uint64_t seed, int step, uint64_t first, double *out, int n) {
    mpt__rng_key key = {seed, MPT__TRANSFORM_STREAM, (uint64_t)step};
    uint32_t words[4];
    mpt__random_bits(key, first, (size_t)n, words);
    for (int i = 0; i < n; i++) out[i] = (double)words[i] * (1.0 / 4294967296.0);
}

#define MPT__PART_TRIES 10 /* of torchvision */

/* A random part [top, left, rows, columns] of height x width, by area and ratio; false if no try
   fits. `most`: it may have a whole side. */
static bool mpt__random_part(const mpt_transform *step, uint64_t seed, int number, int64_t height,
    int64_t width, bool most, int64_t part[4]) {
    double low = mpt__ln(step->ratio[0]), high = mpt__ln(step->ratio[1]);
    double u[4];
    for (uint64_t i = 0; i < MPT__PART_TRIES; i++) {
        mpt__step_draw(seed, number, 4 + 4 * i, u, 4);
        double area = (double)height * (double)width *
            (step->scale[0] + u[0] * (step->scale[1] - step->scale[0]));
        double ratio = mpt__exp(low + u[1] * (high - low));
        double columns = sqrt(area * ratio) + 0.5, rows = sqrt(area / ratio) + 0.5;
        if (!(rows < 1e9)) continue; /* columns fit: a ratio is at most 1e6 */
        part[2] = (int64_t)rows, part[3] = (int64_t)columns;
        if (part[2] < 1 || part[3] < 1 || part[2] > height - !most || part[3] > width - !most)
            continue;
        part[0] = (int64_t)(u[2] * (double)(height - part[2] + 1));
        part[1] = (int64_t)(u[3] * (double)(width - part[3] + 1));
        return true;
    }
    return false;
}

/* The middle of a picture with the nearest ratio allowed, torchvision's way out. */
static void mpt__middle_part(
    const mpt_transform *step, int64_t height, int64_t width, int64_t part[4]) {
    double ratio = (double)width / (double)height;
    part[2] = height, part[3] = width;
    if (ratio < step->ratio[0]) part[2] = (int64_t)((double)width / step->ratio[0] + 0.5);
    if (ratio > step->ratio[1]) part[3] = (int64_t)((double)height * step->ratio[1] + 0.5);
    if (part[2] < 1) part[2] = 1;
    if (part[3] < 1) part[3] = 1;
    part[0] = (height - part[2]) / 2, part[1] = (width - part[3]) / 2;
}

/* Half of a difference of sizes: to even as Python rounds, or the zeros put before. */
static int64_t mpt__half_of(int64_t difference) {
    if (difference < 0) return -(-difference / 2);
    return difference / 2 + (difference % 4 == 3);
}

/* A geometric step; false if the picture is too small for it. */
static bool mpt__step_move(
    const mpt_transform *step, uint64_t seed, int number, mpt__picture *picture) {
    int64_t rows = picture->rows, columns = picture->columns;
    int64_t height = rows, width = columns, part[4];
    double u[2];
    mpt__step_draw(seed, number, 0, u, 2);
    if (step->kind == MPT_RANDOM_FLIP) {
        if (u[0] < step->p) picture->mirrored = !picture->mirrored;
    } else if (step->kind == MPT_CENTER_CROP) {
        mpt__picture_crop(picture, mpt__half_of(rows - step->height),
            mpt__half_of(columns - step->width), step->height, step->width);
    } else if (step->kind == MPT_RANDOM_CROP) {
        int64_t down = rows + 2 * step->padding - step->height;
        int64_t right = columns + 2 * step->padding - step->width;
        if (down < 0 || right < 0) return false;
        mpt__picture_crop(picture, (int64_t)(u[0] * (double)(down + 1)) - step->padding,
            (int64_t)(u[1] * (double)(right + 1)) - step->padding, step->height, step->width);
    } else if (step->kind == MPT_RESIZED_CROP) {
        if (!mpt__random_part(step, seed, number, rows, columns, true, part))
            mpt__middle_part(step, rows, columns, part);
        mpt__picture_crop(picture, part[0], part[1], part[2], part[3]);
        mpt__picture_resize(picture, step->height, step->width, step->antialias);
    } else {
        if (step->width == 0)
            mpt__shorter_side(step->height, &height, &width);
        else
            height = step->height, width = step->width;
        if (height > MPT__MAX_SIDE || width > MPT__MAX_SIDE) return false;
        mpt__picture_resize(picture, height, width, step->antialias);
    }
    return true;
}

static void mpt__step_normalize(
    const mpt_transform *step, float *values, int64_t channels, int64_t plane) {
    for (int64_t c = 0; c < channels; c++, values += plane) {
        float mean = (float)step->mean[c], deviation = (float)step->deviation[c];
        for (int64_t i = 0; i < plane; i++) {
            float centered = values[i] - mean;
            values[i] = centered / deviation;
        }
    }
}

static void mpt__step_erase(const mpt_transform *step, uint64_t seed, int number,
    const mpt__picture *picture, float *values) {
    int64_t part[4];
    double u[1];
    mpt__step_draw(seed, number, 0, u, 1);
    if (!(u[0] < step->p) ||
        !mpt__random_part(step, seed, number, picture->rows, picture->columns, false, part))
        return;
    for (int64_t c = 0; c < picture->channels; c++)
        for (int64_t y = part[0]; y < part[0] + part[2]; y++)
            memset(values + (c * picture->rows + y) * picture->columns + part[1], 0,
                (size_t)part[3] * sizeof *values);
}

/* ==== Running ==== */

/* Bytes for mpt__pipeline_run: taps of a row, two pictures between steps. */
static size_t mpt__pipeline_bytes(const mpt__pipeline *plan) {
    return ((size_t)plan->columns * sizeof(mpt__taps) + 63) / 64 * 64 +
        2 * (((size_t)plan->most * sizeof(float) + 63) / 64 * 64);
}

/* All steps, into out [channels, height, width]; false with a sentence in `error`. */
static bool mpt__pipeline_run(const mpt__pipeline *plan, mpt__picture *picture, uint64_t seed,
    uint8_t *work, float *out, char *error) {
    size_t spare_bytes = ((size_t)plan->most * sizeof(float) + 63) / 64 * 64;
    mpt__taps *taps = (mpt__taps *)(void *)work;
    uint8_t *spare = work + ((size_t)plan->columns * sizeof(mpt__taps) + 63) / 64 * 64;
    float *values = NULL; /* the picture as it is now, if that is computed */
    int made = 0;
    if (plan->in_height > 0 &&
        (picture->rows != plan->in_height || picture->columns != plan->in_width)) {
        mpt__format_text(error, MPT__SAMPLE_ERROR,
            "%lld x %lld pixels, expected %lld x %lld as the first picture has; a "
            "resize or a crop makes them equal",
            picture->rows, picture->columns, plan->in_height, plan->in_width);
        return false;
    }
    for (int i = 0; i < plan->count; i++) {
        const mpt_transform *step = &plan->steps[i];
        bool resizes = step->kind == MPT_RESIZE || step->kind == MPT_RESIZED_CROP;
        bool as_it_is = !mpt__step_moves(step) ? values != NULL
            : step->kind == MPT_RANDOM_FLIP    ? true
            : resizes                          ? mpt__picture_resizable(picture)
                                               : mpt__picture_whole(picture);
        if (!as_it_is) {
            values =
                i > plan->last_move ? out : (float *)(void *)(spare + (size_t)made * spare_bytes);
            made = !made;
            mpt__picture_make(picture, taps, values);
        }
        if (mpt__step_moves(step)) {
            values = NULL;
            if (mpt__step_move(step, seed, i, picture)) continue;
            mpt__format_text(error, MPT__SAMPLE_ERROR,
                "step %d (%s, %lld x %lld) does not fit %lld x %lld pixels", i,
                mpt__step_names[step->kind], step->height, step->width, picture->rows,
                picture->columns);
            return false;
        }
        if (step->kind == MPT_NORMALIZE)
            mpt__step_normalize(step, values, picture->channels, picture->rows * picture->columns);
        if (step->kind == MPT_RANDOM_ERASING) mpt__step_erase(step, seed, i, picture, values);
        if (step->kind == MPT_APPLY &&
            !step->apply(step->user, values,
                MPT_SHAPE(picture->channels, picture->rows, picture->columns),
                mpt__hash_u64(seed, (uint64_t)i), error, MPT__SAMPLE_ERROR)) {
            error[MPT__SAMPLE_ERROR - 1] = 0;
            return false;
        }
    }
    if (values != out) mpt__picture_make(picture, taps, out);
    return true;
}

MPT__BEGIN_COLD
/* ==== Datasets with steps ==== */

static bool mpt__transformed_make(MPT__MAKE_TAKES) {
    const mpt__pipeline *plan = (const mpt__pipeline *)dataset->state;
    const mpt__dataset *source = dataset->source;
    uint8_t *scratch = work + mpt__pipeline_bytes(plan);
    /* Steps of one number in two datasets, one on the other, draw apart. */
    uint64_t below = source->make ? mpt__hash_u64(seed, MPT__TRANSFORM_STREAM) : seed;
    const void *raw = mpt__sample_read(
        source, at, below, source->inputs ? NULL : scratch, scratch, target, error);
    if (!raw) return false;
    if (source->dtype != MPT_U8 && (uintptr_t)raw % sizeof(float) != 0) {
        memcpy(scratch, raw, source->input_bytes); /* the user's memory may lie anywhere */
        raw = scratch;
    }
    mpt__picture picture =
        mpt__picture_of(plan, source->dtype == MPT_U8 ? (const uint8_t *)raw : NULL,
            source->dtype == MPT_U8 ? NULL : (const float *)raw, plan->in_height, plan->in_width);
    return mpt__pipeline_run(plan, &picture, seed, work, (float *)input, error);
}

/* A dataset like `config` whose samples `make` makes with its own `bytes` of state: plan, then
   zeros. NULL with an error recorded. */
static mpt__dataset *mpt__planned_new(mpt_context *ctx, const mpt_user_dataset_config *config,
    const mpt__pipeline *plan, mpt__make_fn make, size_t bytes) {
    mpt__dataset *dataset = mpt__dataset_new(ctx, config, false);
    if (!dataset) return NULL;
    dataset->make = make;
    dataset->state = mpt__dataset_room(ctx, dataset, 0, bytes);
    if (!dataset->state) {
        mpt__dataset_release(ctx, dataset);
        return NULL;
    }
    memcpy(dataset->owned[0], plan, sizeof *plan);
    return dataset;
}

static mpt__dataset *mpt__transformed_new(
    mpt_context *ctx, mpt__dataset *source, const mpt_transform *steps, int count) {
    const mpt_shape *shape = &source->shape;
    int64_t channels = shape->rank == 3 ? shape->dim[0] : 1;
    mpt_user_dataset_config samples;
    mpt__pipeline plan;
    if ((source->dtype != MPT_U8 && source->dtype != MPT_F32) || shape->rank < 2 ||
        shape->rank > 3 || channels > MPT__MAX_CHANNELS ||
        shape->dim[shape->rank - 2] > MPT__MAX_SIDE ||
        shape->dim[shape->rank - 1] > MPT__MAX_SIDE) {
        mpt__error(ctx, SHAPE,
            "pictures are u8 or f32, [C, H, W] with at most 4 channels or [H, W]; this "
            "dataset holds %D %S",
            source->dtype, shape);
        return NULL;
    }
    if (!mpt__pipeline_plan(ctx, steps, count, channels, shape->dim[shape->rank - 2],
            shape->dim[shape->rank - 1], &plan))
        return NULL;
    mpt__zero(samples);
    samples.count = source->count;
    samples.dtype = MPT_F32;
    samples.shape = MPT_SHAPE(channels, plan.height, plan.width);
    samples.target_dtype = source->target_dtype;
    samples.target_shape = source->target_shape;
    mpt__dataset *dataset =
        mpt__planned_new(ctx, &samples, &plan, mpt__transformed_make, sizeof plan);
    if (!dataset) return NULL;
    dataset->source = source;
    source->references++;
    dataset->classes = source->classes, dataset->class_count = source->class_count;
    dataset->work_bytes = mpt__pipeline_bytes(&plan) +
        (source->inputs ? mpt__scratch_target(source) : mpt__scratch_bytes(source));
    return dataset;
}

mpt_dataset mpt_transformed(mpt_dataset dataset, const mpt_transform *steps, int count) {
    MPT__PLAIN_FLOATS;
    mpt__dataset *source = mpt__dataset_enter(dataset, "mpt_transformed");
    if (!source) return mpt__dataset_handle(dataset.context, NULL);
    return mpt__dataset_publish(
        dataset.context, mpt__transformed_new(dataset.context, source, steps, count));
}
MPT__END_REGION

#endif
