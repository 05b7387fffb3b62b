/* ----
 * tools/machine.c: what this machine computes with, and how fast.
 * ---- */
#ifndef MPT__MACHINE_INCLUDED
#define MPT__MACHINE_INCLUDED

#include "text.c"

/* ==== The machine: measuring ==== */

enum { MPT__TOOLS_TRIALS = 15, MPT__TOOLS_PRECISIONS = 3 };

static const mpt_dtype mpt__tools_precisions[MPT__TOOLS_PRECISIONS] = {MPT_F32, MPT_F16, MPT_BF16};
static const char *const mpt__tools_precision_names[MPT__TOOLS_PRECISIONS] = {
    "fp32", "fp16", "bf16"};

/* What is measured: `run` does it once, with what else is here. */
typedef struct mpt__tools_probe {
    mpt_context *context;
    void (*run)(struct mpt__tools_probe *probe);
    mpt_tensor a, b;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_dtype precision;
} mpt__tools_probe;

/* The median time of one run, within so many seconds; 0 on error. */
static double mpt__tools_probe_time(mpt__tools_probe *probe, double seconds) {
    double times[MPT__TOOLS_TRIALS];
    int n = 0, runs = 1;
    const double start = mpt__tools_seconds(), end = start + seconds;
    probe->run(probe); /* the first one makes buffers and half copies */
    mpt_synchronize(probe->context);
    if (mpt__tools_seconds() > end)
        return mpt_failed(probe->context) ? 0 : mpt__tools_seconds() - start;
    while (n < MPT__TOOLS_TRIALS && (n < 3 || mpt__tools_seconds() < end) &&
        !mpt_failed(probe->context)) {
        const double begin = mpt__tools_seconds();
        for (int i = 0; i < runs; i++) probe->run(probe);
        mpt_synchronize(probe->context);
        const double time = mpt__tools_seconds() - begin;
        if (n == 0 && time < seconds / (int)MPT__TOOLS_TRIALS / 2 && runs < 1 << 20) {
            runs *= 2; /* shorter than the clock tells well */
            continue;
        }
        int at = n++;
        for (; at > 0 && times[at - 1] > time / runs; at--) times[at] = times[at - 1];
        times[at] = time / runs;
    }
    return mpt_failed(probe->context) ? 0 : times[n / 2];
}

static void mpt__tools_probe_product(mpt__tools_probe *probe) {
    mpt_scope_begin(probe->context);
    mpt_linear(probe->a, probe->b, mpt_null_tensor(), MPT_ACTIVATION_NONE);
    mpt_scope_end(probe->context);
}

static void mpt__tools_probe_copy(mpt__tools_probe *probe) { mpt_copy_(probe->a, probe->b); }

static void mpt__tools_probe_step(mpt__tools_probe *probe) {
    mpt_context *ctx = probe->context;
    mpt_step_begin(ctx);
    mpt_autocast_begin(ctx, probe->precision);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(probe->net, probe->a), probe->b, NULL);
    mpt_autocast_end(ctx);
    mpt_zero_grad(probe->optimizer);
    mpt_backward(mpt_scale_loss(probe->scaler, loss));
    mpt_scaler_step(probe->scaler, probe->optimizer);
    mpt_scaler_update(probe->scaler);
    mpt_step_end(ctx);
}

/* The time of a product x w^T, x [rows, in], w [out, in]; 0 on error. */
static double mpt__tools_product_time(
    mpt_context *ctx, int64_t rows, int64_t out, int64_t in, mpt_dtype dtype, double seconds) {
    mpt__tools_probe probe;
    memset(&probe, 0, sizeof probe);
    probe.context = ctx, probe.run = mpt__tools_probe_product;
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    probe.a = mpt_cast(mpt_randn(ctx, MPT_F32, MPT_SHAPE(rows, in)), dtype);
    probe.b = mpt_cast(mpt_randn(ctx, MPT_F32, MPT_SHAPE(out, in)), dtype);
    const double time = mpt__tools_probe_time(&probe, seconds);
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    return time;
}

static double mpt__tools_copy_time(mpt_context *ctx, int64_t count, double seconds) {
    mpt__tools_probe probe;
    memset(&probe, 0, sizeof probe);
    probe.context = ctx, probe.run = mpt__tools_probe_copy;
    mpt_scope_begin(ctx);
    mpt_inference_begin(ctx);
    probe.a = mpt_ones(ctx, MPT_F32, MPT_SHAPE(count));
    probe.b = mpt_ones(ctx, MPT_F32, MPT_SHAPE(count));
    const double time = mpt__tools_probe_time(&probe, seconds);
    mpt_inference_end(ctx);
    mpt_scope_end(ctx);
    return time;
}

/* Times of a step in every precision, each with a net of its own. */
static void mpt__tools_step_times(mpt_context *ctx, double *times, double seconds) {
    for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++) {
        mpt__tools_probe probe;
        mpt_scaler_config scaling = mpt_scaler_config_default();
        memset(&probe, 0, sizeof probe);
        probe.context = ctx, probe.run = mpt__tools_probe_step,
        probe.precision = mpt__tools_precisions[i];
        mpt_scope_begin(ctx);
        probe.a = mpt_randn(ctx, MPT_F32, MPT_SHAPE(256, 784));
        probe.b = mpt_zeros(ctx, MPT_I64, MPT_SHAPE(256));
        probe.net = mpt_sequential(ctx, mpt_nn_linear(ctx, 784, 1024), mpt_nn_relu(ctx),
            mpt_nn_linear(ctx, 1024, 1024), mpt_nn_relu(ctx), mpt_nn_linear(ctx, 1024, 10),
            MPT_END);
        probe.optimizer = mpt_adamw(probe.net, NULL);
        scaling.enabled = probe.precision == MPT_F16;
        probe.scaler = mpt_grad_scaler(ctx, &scaling);
        times[i] = mpt__tools_probe_time(&probe, seconds);
        mpt_scope_end(ctx);
        mpt_scaler_destroy(probe.scaler);
        mpt_optimizer_destroy(probe.optimizer);
        mpt_module_destroy(probe.net);
    }
}

mpt_machine mpt_machine_measure(mpt_context *ctx, double seconds) {
    mpt_machine machine;
    memset(&machine, 0, sizeof machine);
    if (mpt_failed(ctx)) return machine;
    const int64_t copied = 8 << 20; /* floats, of 4 bytes */
    const double share = (seconds > 0 ? seconds : 2) / 7;
    for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++) {
        int64_t side = 64;
        double time = 0;
        for (; side <= 4096 && time < 1e-3 && !mpt_failed(ctx); side *= 2) /* which one is enough */
            time = mpt__tools_product_time(
                ctx, side, side, side, mpt__tools_precisions[i], share / 10);
        side /= 2,
            time = mpt__tools_product_time(ctx, side, side, side, mpt__tools_precisions[i], share);
        machine.product[i] = time > 0 ? 2.0 * (double)(side * side * side) / time : 0;
    }
    const double time = mpt__tools_copy_time(ctx, copied, share);
    machine.copy = time > 0 ? 8.0 * (double)copied / time : 0;
    mpt__tools_step_times(ctx, machine.step, share);
    if (mpt_failed(ctx)) memset(&machine, 0, sizeof machine);
    return machine;
}

/* ==== The machine: words ==== */

/* What was compiled in a way that is slow, or that changes what is promised. */
static void mpt__tools_note_build(mpt__tools_note *note) {
    (void)note;
#if defined(__GNUC__) && !defined(__OPTIMIZE__)
    mpt__tools_note_add(note, "build: not optimised, which is several times slower; add -O2\n");
#endif
#ifdef __FAST_MATH__
    mpt__tools_note_add(note,
        "build: -ffast-math gains nothing in mptrain.h, whose kernels keep their bits; "
        "what your own code does with NaN and infinity may break\n");
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    mpt__tools_note_add(note, "build: a sanitizer is on, which is several times slower\n");
#endif
#ifdef MPTRAIN_NO_SIMD
    mpt__tools_note_add(note, "build: MPTRAIN_NO_SIMD leaves the vector kernels out\n");
#endif
#ifdef MPTRAIN_NO_THREADS
    mpt__tools_note_add(note, "build: MPTRAIN_NO_THREADS leaves threads out\n");
#endif
}

/* The levels of the CPU that run here, by trying. */
static void mpt__tools_note_levels(mpt__tools_note *note) {
    mpt_config config = mpt_config_default();
    config.device = MPT_DEVICE_CPU, config.threads = 1, config.log.write = NULL;
    mpt__tools_note_add(note, "instruction sets that run here:");
    for (int isa = MPT_ISA_REF; isa < MPT_ISA_UNKNOWN; isa++) {
        config.isa = (mpt_isa)isa;
        mpt_context *ctx = mpt_create(&config);
        if (ctx) mpt__tools_note_add(note, " %s", mpt_isa_name((mpt_isa)isa));
        mpt_destroy(ctx);
    }
    mpt__tools_note_add(note, "\n");
}

/* The GPU in use, or why there is none. */
static void mpt__tools_note_gpus(mpt__tools_note *note, mpt_context *ctx) {
    const int count = mpt_device_count(MPT_DEVICE_CUDA);
    if (mpt_get_device(ctx) == MPT_DEVICE_CUDA) {
        const mpt_device_info info = mpt_get_device_info(ctx);
        mpt__tools_note_add(note,
            "GPU: %lld of %lld, compute capability %lld.%lld, %.1f GB, of which %.1f are free\n",
            (long long)info.index, (long long)count, (long long)info.major, (long long)info.minor,
            (double)info.memory / 1e9, (double)info.memory_free / 1e9);
    } else if (count > 0) {
        mpt__tools_note_add(
            note, "GPU: %lld are here, this context does not use them\n", (long long)count);
    } else {
        mpt_config config = mpt_config_default();
        config.device = MPT_DEVICE_CUDA, config.log.write = NULL;
        mpt_context *none = mpt_create(&config);
        const char *why = strstr(mpt_error(NULL), ": ");
        mpt__tools_note_add(note, "GPU: none%s\n", none || !why ? "" : why);
        mpt_destroy(none);
    }
    char line[160];
    if (mpt__tools_first_line("/proc/driver/nvidia/version", line, sizeof line))
        mpt__tools_note_add(note, "driver: %s\n", line);
}

static void mpt__tools_note_speeds(mpt__tools_note *note, const mpt_machine *m) {
    mpt__tools_note_add(note, "products:");
    for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++)
        mpt__tools_note_add(note, "%s %s %.1f GFLOP/s", i ? "," : "", mpt__tools_precision_names[i],
            m->product[i] / 1e9);
    mpt__tools_note_add(note, "\ncopies: %.1f GB/s\ntraining step:", m->copy / 1e9);
    for (int i = 0; i < MPT__TOOLS_PRECISIONS; i++)
        mpt__tools_note_add(
            note, "%s %s %.2f ms", i ? "," : "", mpt__tools_precision_names[i], 1e3 * m->step[i]);
    mpt__tools_note_add(note, "\n");
}

/* What mpt_precision_auto says, and whether it is true here. */
static void mpt__tools_note_advice(mpt__tools_note *note, mpt_context *ctx, const mpt_machine *m) {
    const char *reason = "";
    const mpt_dtype advised = mpt_precision_auto(ctx, &reason);
    mpt__tools_note_add(note, "MPT_PRECISION_AUTO: %s (%s)\n", mpt_dtype_name(advised), reason);
    if (!m || !(m->step[0] > 0)) return;
    int best = 0;
    for (int i = 1; i < MPT__TOOLS_PRECISIONS; i++)
        if (m->step[i] < m->step[best]) best = i;
    if (best == 0 || m->step[0] / m->step[best] < 1.05)
        mpt__tools_note_add(note, "mixed precision: saves memory here, and no time\n");
    else
        mpt__tools_note_add(note,
            "mixed precision: %s makes a step of this size %.2f times as fast\n",
            mpt__tools_precision_names[best], m->step[0] / m->step[best]);
}

size_t mpt_machine_report(
    mpt_context *ctx, const mpt_machine *measured, char *text, size_t capacity) {
    mpt__tools_note note = mpt__tools_note_begin(text, capacity);
    if (mpt_failed(ctx)) return 0;
    const int version = mpt_version();
    mpt__tools_note_add(&note, "mptrain %lld.%lld.%lld on %s, level %s, threads: %lld\n",
        (long long)version / 1000000, (long long)version / 1000 % 1000, (long long)version % 1000,
        mpt_device_name(ctx), mpt_isa_name(mpt_get_isa(ctx)), (long long)mpt_get_threads(ctx));
    if (version != MPTRAIN_VERSION)
        mpt__tools_note_add(&note, "build: the declarations are those of another version, %lld\n",
            (long long)MPTRAIN_VERSION);
    mpt__tools_note_build(&note);
    mpt__tools_note_levels(&note);
    mpt__tools_note_gpus(&note, ctx);
    if (measured) mpt__tools_note_speeds(&note, measured);
    mpt__tools_note_advice(&note, ctx, measured);
    return note.length;
}

/* ==== The machine: shapes that miss the fast path ==== */

static int64_t mpt__tools_rounded_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The fastest padding of a product, if any is faster by more than measuring errs: its time over
   that of the product as it is, and its sizes. */
static double mpt__tools_best_padding(
    mpt_context *ctx, const int64_t size[3], mpt_dtype dtype, int64_t padded[3]) {
    static const int64_t units[3] = {8, 16, 64};
    const double share = 0.01,
                 plain = mpt__tools_product_time(ctx, size[0], size[1], size[2], dtype, share);
    double best = 1;
    for (int u = 0; u < 3; u++) {
        const int64_t out = mpt__tools_rounded_up(size[1], units[u]),
                      in = mpt__tools_rounded_up(size[2], units[u]);
        if (out == size[1] && in == size[2]) continue;
        const double time = mpt__tools_product_time(ctx, size[0], out, in, dtype, share);
        if (!(plain > 0) || !(time > 0) || time / plain >= best) continue;
        best = time / plain, padded[1] = out, padded[2] = in;
    }
    return best;
}

size_t mpt_machine_shapes(
    mpt_module module, int64_t rows, mpt_dtype dtype, char *text, size_t capacity) {
    enum { NAME = 256 };
    mpt_context *ctx = module.context;
    mpt__tools_note note = mpt__tools_note_begin(text, capacity);
    char name[NAME];
    for (int i = 0; i < mpt_parameter_count(module) && !mpt_failed(ctx); i++) {
        const mpt_shape shape = mpt_get_shape(mpt_parameter_at(module, i, name, NAME));
        const size_t length = strlen(name);
        if (shape.rank != 2 || length < 6 || strcmp(name + length - 6, "weight") != 0) continue;
        const int64_t size[3] = {rows, shape.dim[0], shape.dim[1]};
        int64_t padded[3];
        const double ratio = mpt__tools_best_padding(ctx, size, dtype, padded);
        if (ratio > 0.9) continue;
        mpt__tools_note_add(&note,
            "%s [%lld, %lld]: as [%lld, %lld] its product takes %.2f of the time\n", name,
            (long long)size[1], (long long)size[2], (long long)padded[1], (long long)padded[2],
            ratio);
    }
    return mpt_failed(ctx) ? 0 : note.length;
}

#endif
