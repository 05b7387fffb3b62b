/* ----
 * watch/check.c: what tensors hold, and what could differ from run to run.
 * ---- */
#ifndef MPT__WATCH_CHECK_INCLUDED
#define MPT__WATCH_CHECK_INCLUDED

#include "nn/query.c"

#ifdef MPTRAIN_NO_WATCH

MPT__BEGIN_ABSENT
mpt_status mpt_error_if_nonfinite(mpt_optimizer optimizer, bool on) {
    return on ? mpt__watch_missing(optimizer.context, "mpt_error_if_nonfinite") : MPT_OK;
}

mpt_tensor_stats mpt_statistics(mpt_tensor tensor) {
    mpt_tensor_stats stats;
    mpt__zero(stats);
    stats.min = stats.max = stats.mean = stats.deviation = MPT__NAN_F64;
    mpt__watch_missing(tensor.context, "mpt_statistics");
    return stats;
}

mpt_status mpt_histogram(mpt_tensor tensor, double low, double high, int64_t *counts, int bins) {
    return mpt__watch_missing(tensor.context, "mpt_histogram");
}

size_t mpt_histograms(mpt_module module, bool gradients, char *text, size_t size) {
    mpt__text_make(text, size);
    mpt__watch_missing(module.context, "mpt_histograms");
    return 0;
}

size_t mpt_determinism(mpt_context *ctx, char *text, size_t size) {
    mpt__text_make(text, size);
    mpt__watch_missing(ctx, "mpt_determinism");
    return 0;
}
MPT__END_ABSENT

#else

/* ==== Statistics ==== */

/* The elements as fp32 in host memory, to be given back with mpt__host_free; NULL on error. */
static float *mpt__host_values(mpt_context *ctx, const mpt__tensor *tensor, size_t *bytes) {
    int64_t numel = mpt__tensor_numel(tensor);
    float *values = (float *)mpt__host_array(ctx, numel + 1, sizeof *values);
    *bytes = (size_t)(numel + 1) * sizeof *values;
    if (values && mpt__read_as(ctx, tensor, MPT_F32, values) == MPT_OK) return values;
    mpt__host_free(ctx, values, *bytes);
    return NULL;
}

static void mpt__count_value(mpt_tensor_stats *stats, float value) {
    uint32_t magnitude = mpt__f32_bits(value) & 0x7fffffffu;
    if (magnitude >= 0x7f800000u) {
        stats->nans += magnitude > 0x7f800000u;
        stats->infinities += magnitude == 0x7f800000u;
        return;
    }
    stats->min = value < stats->min ? (double)value : stats->min;
    stats->max = value > stats->max ? (double)value : stats->max;
    stats->mean += (double)value;
    stats->zeros += magnitude == 0;
    int binade = (int)(magnitude >> 23) - 127 - MPT_BINADE_FIRST;
    binade = binade < 0 ? 0 : binade >= MPT_BINADES ? MPT_BINADES - 1 : binade;
    stats->binade[binade] += magnitude != 0;
}

/* Mean and deviation in two passes. */
static void mpt__count_values(mpt_tensor_stats *stats, const float *values, int64_t numel) {
    double squares = 0.0;
    stats->min = mpt__f64_from_bits(UINT64_C(0x7ff0000000000000)), stats->max = -stats->min;
    for (int64_t i = 0; i < numel; i++) mpt__count_value(stats, values[i]);
    stats->count = numel;
    double finite = (double)(numel - stats->nans - stats->infinities);
    stats->mean = finite > 0 ? stats->mean / finite : MPT__NAN_F64;
    for (int64_t i = 0; i < numel; i++) {
        double off = (double)values[i] - stats->mean;
        if (mpt__f32_is_finite(values[i])) squares += off * off;
    }
    stats->deviation = finite > 0 ? sqrt(squares / finite) : MPT__NAN_F64;
    if (finite == 0) stats->min = stats->max = MPT__NAN_F64;
}

static mpt_status mpt__tensor_statistics(
    mpt_context *ctx, const mpt__tensor *tensor, mpt_tensor_stats *stats) {
    size_t bytes;
    float *values = mpt__host_values(ctx, tensor, &bytes);
    if (!values) return ctx->base.status;
    mpt__zero(*stats);
    mpt__count_values(stats, values, mpt__tensor_numel(tensor));
    mpt__host_free(ctx, values, bytes);
    return MPT_OK;
}

mpt_tensor_stats mpt_statistics(mpt_tensor tensor) {
    MPT__PLAIN_FLOATS;
    mpt_tensor_stats stats;
    mpt__zero(stats);
    stats.min = stats.max = stats.mean = stats.deviation = MPT__NAN_F64;
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_statistics", "tensor");
    if (found) mpt__tensor_statistics(tensor.context, found, &stats);
    return stats;
}

/* Where a bin begins, as numpy has it for fp32: its values decide, as a rounded quotient would put
   some of them beside their bin. */
static float mpt__bin_edge(double low, double high, int bin, int bins) {
    return (float)(low + bin * ((high - low) / bins));
}

mpt_status mpt_histogram(mpt_tensor tensor, double low, double high, int64_t *counts, int bins) {
    MPT__PLAIN_FLOATS;
    mpt_context *ctx = tensor.context;
    size_t bytes;
    const mpt__tensor *found = mpt__enter_at(tensor, "mpt_histogram", "tensor");
    if (!found) return mpt__status_of(ctx);
    if (!counts || bins < 1 || !(low < high) || !mpt__f64_is_finite(high - low))
        return mpt__error(ctx, ARGUMENT,
            "%d bins from %g to %g: expected an array of 1 or more, and finite low < high",
            counts ? bins : 0, low, high);
    float *values = mpt__host_values(ctx, found, &bytes);
    if (!values) return ctx->base.status;
    memset(counts, 0, (size_t)bins * sizeof *counts);
    for (int64_t i = 0; i < mpt__tensor_numel(found); i++) {
        const float value = values[i];
        if (!(value >= (float)low && value <= (float)high) || !mpt__f32_is_finite(value)) continue;
        int bin = (int)(((double)value - low) / (high - low) * bins);
        if (bin >= bins) bin = bins - 1;
        if (bin > 0 && value < mpt__bin_edge(low, high, bin, bins)) bin--;
        if (bin < bins - 1 && value >= mpt__bin_edge(low, high, bin + 1, bins)) bin++;
        counts[bin]++;
    }
    mpt__host_free(ctx, values, bytes);
    return MPT_OK;
}

/* ==== Statistics of a net as text ==== */

/* How many of the values fp16 would turn into 0 or infinity. */
static int64_t mpt__lost_in_fp16(const mpt_tensor_stats *stats) {
    int64_t lost = 0;
    for (int i = 0; i < MPT_BINADES; i++) {
        int power = i + MPT_BINADE_FIRST;
        if (power < -25 || power > 15) lost += stats->binade[i];
    }
    return lost;
}

/* Powers of two, four to a character, from thin to thick. */
static void mpt__draw_binades(mpt__text *out, const mpt_tensor_stats *stats) {
    static const char ink[] = " .:-=+*#%@";
    int64_t most = 1, sum[MPT_BINADES / 4];
    for (int i = 0; i < MPT_BINADES / 4; i++) {
        const int64_t *four = stats->binade + 4 * i;
        sum[i] = four[0] + four[1] + four[2] + four[3];
        most = sum[i] > most ? sum[i] : most;
    }
    for (int i = 0; i < MPT_BINADES / 4; i++)
        mpt__write_text(out, "%c", ink[sum[i] ? 1 + (int)(8 * sum[i] / most) : 0]);
}

/* Blanks up to a column of the line that began at `line`, and one blank at least. */
static void mpt__column(mpt__text *out, size_t line, int column) {
    int width = 11;
    mpt__write_text(out, " ");
    while (out->length - line < (size_t)(25 + width * column)) mpt__write_text(out, " ");
}

/* The columns after the name. */
static void mpt__histogram_line(mpt__text *out, size_t line, const mpt_tensor_stats *s) {
    double percent = s->count ? 100.0 / (double)s->count : 0.0;
    const double numbers[] = {s->min, s->max, s->mean, s->deviation, percent * (double)s->zeros,
        percent * (double)mpt__lost_in_fp16(s)};
    for (int i = 0; i < 6; i++) {
        mpt__column(out, line, i);
        mpt__write_text(out, "%.3g", numbers[i]);
    }
    mpt__column(out, line, 6);
    mpt__write_text(out, "|");
    mpt__draw_binades(out, s);
    mpt__write_text(out, "|");
    if (s->nans || s->infinities)
        mpt__write_text(out, " %lld NaN, %lld infinite", s->nans, s->infinities);
}

size_t mpt_histograms(mpt_module module, bool gradients, char *text, size_t size) {
    MPT__PLAIN_FLOATS;
    static const char *const titles[] = {
        "min", "max", "mean", "deviation", "% zero", "% lost", "2^-40 .. 2^23"};
    mpt_context *ctx = module.context;
    mpt__text out = mpt__text_make(text, size);
    mpt__module *found = mpt__module_frozen(module, "mpt_histograms");
    if (!found) return 0;
    mpt__write_text(&out, "%s", gradients ? "gradient of" : "parameter");
    for (int i = 0; i < 7; i++) {
        mpt__column(&out, 0, i);
        mpt__write_text(&out, "%s", titles[i]);
    }
    const mpt__parameter *parameter;
    mpt__walk walk;
    mpt__walk_begin(&walk, ctx, found);
    while ((parameter = mpt__walk_values(&walk)) != NULL) {
        mpt_tensor_stats stats;
        const mpt__tensor *tensor = parameter->tensor;
        bool none = gradients && !mpt__leaf_has_grad(ctx, tensor);
        mpt__write_text(&out, "\n");
        size_t line = out.length;
        mpt__write_text(
            &out, "%s%s", mpt__relative_path(ctx, found, parameter->path), none ? " none" : "");
        if (none) continue;
        if (gradients) tensor = mpt__live(ctx, mpt_grad(mpt__handle(ctx, parameter->tensor)));
        if (!tensor || mpt__tensor_statistics(ctx, tensor, &stats) != MPT_OK) return 0;
        mpt__histogram_line(&out, line, &stats);
    }
    mpt__write_text(&out, "\n");
    return out.length;
}

/* ==== What could differ ==== */

size_t mpt_determinism(mpt_context *ctx, char *text, size_t size) {
    mpt__text out = mpt__text_make(text, size);
    if (!mpt__enter(ctx, "mpt_determinism")) return 0;
    mpt__write_text(&out,
        "seed %llu; every op gives the same bits in every run, with any number of "
        "threads and workers\n",
        (unsigned long long)ctx->config.seed);
#if defined(MPTRAIN_CUDA) || !defined(MPTRAIN_NO_SIMD) /* portable kernels give one result */
    if (!ctx->backend.synchronous)
        mpt__write_text(&out, "on %s: sums in other trees than the CPU's\n", ctx->backend.name);
    else if (mpt_get_isa(ctx) != MPT_ISA_REF && mpt_get_isa(ctx) != MPT_ISA_PORTABLE)
        mpt__write_text(&out,
            "%s kernels: other levels differ in the last places (MPT_ISA_PORTABLE "
            "gives one result everywhere)\n",
            ctx->backend.name);
    if (ctx->timed_products)
        mpt__write_text(&out, "matmul, linear: mpt_benchmark chose by timing; keep the choices "
                              "with mpt_benchmark_text\n");
    if (ctx->tf32)
        mpt__write_text(&out, "matmul, linear: fp32 is rounded to TF32, or to parts of bf16\n");
#endif
    return out.length;
}

#endif /* MPTRAIN_NO_WATCH */

#endif
