/* mptrain.h 0.1.0: neural network training in mixed precision, in one C header.
 *
 * Tensors, autograd, autocast to fp16 and bf16, loss scaling, layers, optimizers, data loading and
 * weights files, with nothing but libc and threads. C11 and C++17; the declarations also C++11.
 * Public domain or MIT-0, as you choose; see the end of the file.
 *
 * CONTENTS   (search for "MANUAL n" or for the banners "==== Name" of the API below)
 *     MANUAL 1   quick start
 *     MANUAL 2   building, options
 *     MANUAL 3   memory and lifetime
 *     MANUAL 4   errors
 *     MANUAL 5   threads and determinism
 *     MANUAL 6   precision: autocast, pure half
 *     MANUAL 7   loss scaling
 *     MANUAL 8   modules, ops and optimizers of your own
 *     MANUAL 9   data
 *     MANUAL 10  files
 *     MANUAL 11  finding out what happens
 *     MANUAL 12  GPUs and captured steps
 *     MANUAL 13  small machines; limits
 *     then the API: Basic types, Context, Errors, Memory, Lifetime, Tensors, Operations, Autograd,
 *     Autocast, Modules, Optimizers, Gradient scaler, Data, Files, Metrics, inspection, Captured
 *     steps, Fit, Convolution, Normalisation and pooling, Embedding and attention, Recurrent
 *     layers, Images of another size, Images, Text, Tables, Arrays: examples of each are in
 *     tests/api_shown.c; then, where MPTRAIN_IMPLEMENTATION is defined, the implementation;
 *     changelog and licence.

==== MANUAL 1: quick start =====================================================================

    #include <stdio.h>
    #define MPTRAIN_IMPLEMENTATION
    #include "mptrain.h"
    int main(void) {
        const float x[] = {0, 0, 0, 1, 1, 0, 1, 1}; // four samples of two inputs
        const int64_t y[] = {0, 1, 1, 0};           // and their classes: exclusive or
        mpt_config config = mpt_config_default();
        config.log.write = mpt_log_stderr; // warnings and errors
        mpt_context *ctx = mpt_create(&config);
        mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
        data.count = 4, data.shape = MPT_SHAPE(2), data.inputs = x, data.targets = y;
        mpt_module net = mpt_sequential(ctx, mpt_nn_linear(ctx, 2, 16), mpt_nn_tanh(ctx),
                             mpt_nn_linear(ctx, 16, 2), mpt_nn_log_softmax(ctx, -1), MPT_END);
        mpt_loader loader = mpt_loader_create(ctx, mpt_memory_dataset(ctx, &data), NULL);
        mpt_fit_config fit = mpt_fit_config_default();
        fit.epochs = 2000, fit.precision = MPT_F16; // autocast to fp16, and loss scaling
        printf("loss %.4f\n", mpt_fit(net, mpt_adamw(net, NULL), loader, &fit).train_loss);
        mpt_destroy(ctx); // frees everything
        return 0;
    }
    cc main.c -lm -lpthread

mpt_fit is the short road. The loop that it stands for, in full:

    mpt_scaler scaler = mpt_grad_scaler(ctx, NULL);
    mpt_batch b;
    while (mpt_loader_next(loader, &b)) {          // one epoch
        mpt_step_begin(ctx);                       // tensors made from here die at mpt_step_end
        mpt_autocast_begin(ctx, MPT_F16);
        mpt_tensor loss = mpt_nll_loss(mpt_forward(net, b.x), b.y, NULL);
        mpt_autocast_end(ctx);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_scale_loss(scaler, loss));
        mpt_unscale(scaler, optimizer);            // only needed to clip:
        mpt_clip_grad_norm(optimizer, 1.0);
        mpt_scaler_step(scaler, optimizer);        // skips the step if a gradient overflowed
        mpt_scaler_update(scaler);
        mpt_metric_push(ctx, "loss", loss);        // a running mean, without waiting
        mpt_step_end(ctx);
    }
    if (mpt_failed(ctx)) puts(mpt_error(ctx));     // one check is enough: errors stick

For bf16 or fp32 leave the scaler out, or make it with enabled = false, and call mpt_step instead.
Configs come from xxx_config_default(); NULL for a config means those defaults.

==== MANUAL 2: building, options ===============================================================

In exactly one C or C++ file of a program:

    #define MPTRAIN_IMPLEMENTATION
    #include "mptrain.h"

Everywhere else include it without the define. The order of includes does not matter. Link with
-lm -lpthread on POSIX systems, with nothing on Windows. No -march is needed: the CPU is asked at
run time. Compiler flags such as -Ofast do not change results.

Two files are compiled side by side in little more than half of the time. The linker names an option
that differs between them.

    #define MPTRAIN_IMPLEMENTATION        // in one file: all but the CPU kernels
    #define MPTRAIN_CPU_SEPARATE
    #include "mptrain.h"

    #define MPTRAIN_CPU_IMPLEMENTATION    // in another: those
    #include "mptrain.h"

    define where the implementation is compiled
    MPTRAIN_STATIC       all functions static; every file that wants it has its own copy. Define it
                         wherever mptrain.h is included in that file
    MPTRAIN_FILE         the name of the file in quotes, where it is no longer "mptrain.h": it
                         includes itself for each instruction set
    MPTRAIN_NO_THREADS   the calling thread does all work; loaders have no workers
    MPTRAIN_NO_STDIO     no file access of its own: weights go through callbacks in mpt_config.io,
                         datasets come from memory or from callbacks, tokenizers not at all
    MPTRAIN_NO_FILES     the same, and without mpt_save and mpt_load: weights come from memory
    MPTRAIN_NO_SIMD      portable kernels only
    MPTRAIN_NO_AMX       without the matrix products on AMX tiles
    MPTRAIN_NO_FP8       without the two 8-bit float dtypes
    MPTRAIN_NO_CONV      without convolutions, pooling, batch and group norm, images of another size
    MPTRAIN_NO_ATTENTION without attention, embedding, layer and RMS norm
    MPTRAIN_NO_RECURRENT without RNN, LSTM and GRU
    MPTRAIN_NO_FIT       without mpt_fit and mpt_evaluate; what is left out returns an error
    MPTRAIN_NO_FRUGAL    without what saves memory: dry runs, activation checkpointing,
                         updates inside backward, bits in the place of what relu gave, mpt_lora,
                         state_bits = 8
    MPTRAIN_NO_GRAPH     without captured steps
    MPTRAIN_NO_RESUME    without checkpoints of whole trainings and snapshots
    MPTRAIN_NO_TABLES    without tables (CSV)
    MPTRAIN_NO_TEXT      without tokenizers; tokens that are numbers already can still be read
    MPTRAIN_NO_WATCH     without statistics, histograms, anomaly mode,
                         mpt_determinism, mpt_confusion, mpt_multinomial, mpt_categorical,
                         mpt_error_if_nonfinite, mpt_user_optimizer, mpt_lbfgs, mpt_muon,
                         mpt_hook_forward, mpt_hook_backward, mpt_share_module, MPTRAIN_WATCH
    MPTRAIN_WATCH        with the profiler, flight logs, mpt_trace and mpt_gradcheck: they stand in
                         tools/mptrain_watch.h, which has to be found by the compiler
    MPTRAIN_COMPILE      with compiled steps: tools/mptrain_compile.h, likewise
    MPTRAIN_USE_MPI      with training by several processes: tools/mptrain_parallel.h, likewise
    MPTRAIN_STB_IMAGE    with mpt_image_folder, which calls stb_image.h: it has to be found by the
                         compiler, and implemented in your program (STB_IMAGE_IMPLEMENTATION)
    MPTRAIN_STB_IMAGE_IMPLEMENTATION   implemented here, too: best, as its memory is then zeroed and
                         its assertions do nothing. stb_image.h 2.30 is the one to take; behind
                         our checks of each file the fuzzer found nothing with 2.27 either

    environment
    MPTRAIN_ISA          ref, avx2, avx512, ... (the names of mpt_isa): the default of
                         mpt_config.isa
    MPTRAIN_DEBUG        any value: mpt_config.debug is true

No macro changes the layout of a public struct. mpt_version() is the version of the implementation,
MPTRAIN_VERSION that of the header.

==== MANUAL 3: memory and lifetime =============================================================

A context owns all it makes; mpt_destroy frees everything. Handles are small values: copy them
freely; using one whose object is gone is an error, not a crash.

    lives until                    what
    mpt_destroy, or its own
      xxx_destroy                  modules, parameters, optimizers, scalers, schedules, datasets,
                                   loaders, recordings
    mpt_step_end, mpt_scope_end    every tensor made inside the step or scope
    mpt_release                    any tensor, early; tensors made outside steps and scopes
    the next mpt_loader_next       the tensors of a batch
    mpt_zero_grad                  gradients of parameters (a step's end does not touch them)
    mpt_backward                   what forward saved, unless mpt_backward_from retains it

The log hears of a loop without steps, whose tensors become ever more. mpt_keep gives a handle that
outlives its step. mpt_wrap borrows memory, everything else copies.
A module's forward that is a scope, and ends with mpt_scope_return, leaves nothing but its outputs
and what backward needs. Of that mpt_recompute_begin spares results of norms and of activations
such as GELU: backward computes them again. mpt_recompute_module(net, parts) spares all but the
inputs of parts of the net, whose forwards backward runs again, to the same bits; mpt_plan tells
which number of parts is enough.
Memory returns to a pool; once its shapes have been seen a few times, a training step makes no call
to the allocator, unless memory is short. mpt_memory counts live bytes and peaks by kind (parameter,
master, form, gradient, moment, activation, data, batch, workspace, host), and mpt_plan tells them
before. mpt_config.memory_limit makes a limit an error like any other; mpt_clear_error and a smaller
batch go on from there. All memory comes from mpt_config.allocator, called only by the thread that
uses the context, but for what mpt_share_module lends.

==== MANUAL 4: errors ==========================================================================

The first error sticks in its context (that of a null handle, which has none, in the one that the
thread made last): mpt_error(ctx) says what was wrong, where (function, number
of the call, step), and which call would help. From then on every call does nothing and returns an
error or a null handle, so a loop needs one check. An error never changes weights: a step is applied
whole or not at all. Targets and indices out of range are found on the device and reported at the
next call that waits.

mpt_clear_error ends the error and goes back to the last completed optimizer step: tape, open step
and gradients are dropped, the random counters restored. Cleanup code may still end what it closed;
mpt_step_is_open tells. mpt_create returns NULL on failure and mpt_error(NULL) says why.
mpt_config.log hears errors and warnings: config.log.write = mpt_log_stderr shows them. The library
never exits, aborts, prints of its own accord, installs signal handlers, touches the locale or calls
qsort.

Overflow in fp16 is no error; see MANUAL 7. Not detected: handles that were never initialised, and
handles used after mpt_destroy of their context.

==== MANUAL 5: threads and determinism =========================================================

One thread uses a context at a time; several contexts may run side by side. A context used in a
child after fork is an error, each call of it; mpt_destroy leaves it alone there, and mpt_create
makes a new one. (With MPTRAIN_NO_THREADS the calls that begin something tell.) mpt_config.threads
counts the threads that compute, the caller included; mpt_loader_config.workers are threads of a
loader. Both can be made by your own callbacks (mpt_config.thread).

Results depend on mpt_config.seed and on the calls made, not on the number of threads or workers,
not on timing, not on compiler or flags. On x86-64 and AArch64 they do not depend on how your
program rounds, flushes denormals or traps either (fesetround, -ffast-math, feenableexcept): what
computes, your functions that it calls among it, has the usual mode, and yours is back when a call
returns. (MSVC: kernels alone.) Initial weights depend on (seed, number of the tree in its context
or its label, path such as "0.weight") and are the same everywhere; a creation that failed does not
count. With isa = MPT_ISA_PORTABLE (or MPTRAIN_ISA=portable) every platform, WebAssembly in a
browser among them, computes the same bits, those of MPT_ISA_REF and of MPTRAIN_NO_SIMD, and dense
nets lose little by it; convolutions are as slow as the reference. The other levels give the same
bits for any thread count and every run, but differ from one another in the last places.

Inference from several threads takes a context for each, with the same net in it, and one copy of
the weights: mpt_share_module(net of a thread, trained net), before the threads begin. Shared are
parameters and buffers, read only from then on; each context has half copies and activations of its
own.

Because C evaluates arguments in any order, nothing depends on the order in which the arguments of
mpt_sequential are made.

==== MANUAL 6: precision =======================================================================

Between mpt_autocast_begin(ctx, MPT_F16 or MPT_BF16) and mpt_autocast_end, each op runs in the
precision of one table, the same on every device (mpt_autocast_policy prints it):

    low          matmul, linear, convolutions, scaled_dot_product_attention, rnn, lstm, gru, and
                 the products, not the loss, of linear_cross_entropy
    fp32         exp, log, log1p, rsqrt, pow, softplus, softmax, log_softmax, sum, mean,
                 prod, norm, logsumexp, cumsum, all losses
    as input     everything else; inputs of different dtypes meet in fp32

Kernels compute and accumulate in fp32 whatever the storage is, and round once when they store
(attention in bf16 may round its weights, too: see mpt_scaled_dot_product_attention). A cast copy of
the weights is made once per optimizer step and shared by forward and backward; inputs of a matmul
are rounded on the way in, without a copy. Parameters, their gradients and the optimizer's state
stay fp32. Regions nest; MPT_F32 opens one without casting, in which different dtypes still meet.
mpt_set_dtype_policy(module, MPT_F32) keeps one module out. In a region of mpt_autocast_begin_narrow
different dtypes meet in its dtype. Run mpt_backward outside the region.

Where torch.autocast differs (its CPU and CUDA lists also differ from each other):

    op                             here           CUDA           CPU
    matmul, linear, convolutions,
      attention                    low            low            low
    layer_norm, group_norm         as input       fp32           as input
    exp, log, log1p, rsqrt, pow,
      softplus                     fp32           fp32           as input
    softmax, log_softmax, sum,
      prod, norm, logsumexp,
      cumsum                       fp32           fp32           as input
    mean                           fp32           as input       as input
    losses                         fp32           fp32           fp32
    cat of mixed inputs            fp32           fp32           fp32
    add, mul, relu, gelu, tanh,
      dropout, views               as input       as input       as input

Outside a region mixed float inputs are an error that names both sides; PyTorch promotes some.

Pure half: mpt_half(net, MPT_F16 or MPT_BF16) before the optimizer is made. Parameters, activations
and inputs (mpt_loader_config.dtype) are then 16 bits wide; the optimizer keeps fp32 masters, its
moments and all gradients of parameters are fp32. A weight that fp16 cannot hold is an error.

bf16 without masters: stochastic_rounding in the optimizer's config leaves the masters out, 4 bytes
per parameter. An update that is small beside the spacing of bf16, 2^-8 of the weight, is then not
lost but kept with the probability that it deserves, so that sums of many come out right. Which
elements are rounded up depends on the seed, the tree, the parameter's count of updates and the
element alone. It needs mpt_half(net, MPT_BF16); a skipped step changes and draws nothing.

fp8: mpt_fp8(net, NULL) before the first use makes the linear layers of net multiply fp8 numbers,
E4M3 forward, E5M2 for gradients, each with a scale of its own. What backward needs of activations
is then a byte per element. Scales are powers of two by delayed scaling: from the largest magnitudes
of the last 16 steps. Products are computed by widening, which is exact, on the CPU and on GPUs; so
fp8 saves memory, not time. What is finite saturates; infinities and NaN stay what they are (in
E4M3: NaN), so that a loss scaler sees them. Parameters stay fp32, or bf16 with mpt_half; autocast
says what the layers' results are. mpt_cast and mpt_cast_fp8 convert tensors.

Fast fp32: mpt_benchmark(ctx, false, true) lets products of fp32 lose bits: TF32 on GPUs, three
products of bf16 on AMX. It is off unless asked for.

What to take: bf16 where its 8 bits of precision do; fp16 with a scaler where they do not. Mixed
precision pays where activations and batches dominate. It adds 2 bytes per parameter for the cast
copy, so a small net at a small batch needs more memory than in fp32; `make mnist ARGS=--compare`
shows both cases.

==== MANUAL 7: loss scaling ====================================================================

fp16 has no number between 0 and 6.0e-8, and gradients are often smaller: they become 0 and the net
stops learning (examples/underflow.c shows it). The scaler multiplies the loss, and so every
gradient, by a power of two and divides again in fp32 before the update. If a gradient is not finite
the step is skipped and the scale halved; after growth_interval clean steps it doubles. So a first
few skipped steps, or one now and then, are normal.

As torch.amp.GradScaler, with these differences:
  - scale and flags stay on the device; nothing waits. mpt_scaler_statistics reads the numbers as
    they are, mpt_step_outcome waits for the last step's.
  - The scale stays within [min_scale 1, max_scale 2^24]; 0 lifts a bound.
  - After `patience` skips in a row the context fails with a diagnosis: loss or gradients, and the
    first op that made a value that is not finite.
  - Gradients are checked before and after the division.
  - mpt_scaler_skip leaves an optimizer out of an update; a step without gradients does nothing.
  - fixed = true keeps the scale; overflow still skips.
Gradients know whether they are scaled. mpt_step, clipping and norms on scaled ones are an error, so
is the step of a scaler on those of another loss or scaler, or on a sum of both kinds (a forgotten
mpt_zero_grad). Loss times a number of yours, a gradient that you give or change: your business.
Several losses: scale each. Several optimizers: mpt_scaler_step for each, one mpt_scaler_update.
Accumulation: backward several times, then step and update once. bf16 needs no scaler.

==== MANUAL 8: modules, ops and optimizers =====================================================

Modules form trees; names are paths of child names, as in PyTorch's state_dict ("0.weight"). A tree
is frozen when it is first used (forward, optimizer, save, value read): parameters then have their
memory and first values, and no child can be added. mpt_set_init before that is a recipe; after it
values are drawn at once. A module of your own is an mpt_module_class with a forward function;
mpt_add_child and mpt_add_parameter build it, mpt_parameter(self, "name") reads it in forward. A
module used twice is shared and counted once. mpt_train and mpt_eval switch dropout. For inference
mpt_fuse makes one launch of each convolution and the batch norm, relu and sum behind it.
mpt_hook_forward and mpt_hook_backward show what a module gives, and the gradient of that, to a
function of yours, which may put another tensor in its place. A net of places in space learns fine
detail by a mpt_nn_hash_grid before it.

An op of your own is an mpt_op_class: forward and backward as compositions of other ops, and its
autocast class. It runs on GPUs as they do. C code can read an input and make an output of it
(mpt_read_f32, mpt_from), which waits for the GPU; CUDA kernels of your own do not wait, see MANUAL
12. Gradients of gradients are not available.

Optimizers follow torch.optim's order of operations. mpt_optimizer_add makes parameter groups. A
parameter whose gradient is none is left alone by the step. Schedules per step are indexed by
applied steps, so skipped steps do not advance them; those per epoch by mpt_schedule_step. They are
made of curves: mpt_linear_lr(0.1, 1, 500), then mpt_cosine_lr(9500, 0), by mpt_sequential_lr.
mpt_ema_create keeps averages of the weights.

An optimizer of your own is a function that updates one parameter with ops, in place:

    static mpt_status lean(mpt_context *ctx, const mpt_user_update *p, void *user) {
        double momentum = *(const double *)user;
        mpt_mul_scalar_(p->state[0], momentum);
        mpt_add_(p->state[0], mpt_mul_scalar(mpt_sign(p->gradient), 1 - momentum));
        mpt_mul_scalar_(p->value, 1 - p->lr * p->weight_decay);
        mpt_add_(p->value, mpt_mul_scalar(p->state[0], -p->lr));
        return mpt_error_code(ctx);
    }
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    static double momentum = 0.9;
    config.update = lean, config.user = &momentum, config.lr = 3e-4;
    config.states = 1, config.state_names[0] = "momentum";
    mpt_optimizer optimizer = mpt_user_optimizer(net, &config);

It is an optimizer like all others: mpt_step, scalers, groups, schedules, clipping, fp32 masters of
half parameters and checkpoints work as they do. A step goes through copies, so that one that fails
changes nothing; it waits for the device, and cannot be captured.

Muon moves the matrices of hidden layers; what is no matrix, and what is named, AdamW moves:

    mpt_muon_config muon = mpt_muon_config_default();
    muon.adjust = MPT_MUON_MATCH_RMS_ADAMW; // then one rate is good for both
    muon.lr = muon.adamw.lr = 3e-4;
    muon.adamw_names = "head"; // the output layer
    mpt_optimizer optimizer = mpt_muon(net, &muon);

For small problems of one batch there is L-BFGS. It needs the loss again at several points, so it
gets a function that computes it and runs backward; gradients are cleared before:

    static mpt_tensor closure(mpt_context *ctx, void *user) {
        struct fit *f = (struct fit *)user;
        mpt_tensor loss = mpt_mse_loss(mpt_forward(f->net, f->x), f->y, MPT_MEAN);
        mpt_backward(loss);
        return loss;
    }
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    config.strong_wolfe = true;
    mpt_optimizer optimizer = mpt_lbfgs(net, &config);
    struct fit f = {net, x, y}; // your own
    for (int i = 0; i < 10; i++) printf("%g\n", mpt_lbfgs_step(optimizer, closure, &f));

==== MANUAL 9: data ============================================================================

A dataset is samples from memory, idx files (MNIST; plain or .gz) or a callback; mpt_normalize,
mpt_subset and mpt_random_split work on all of them. u8 samples stay u8 in memory and arrive as
value / 255, normalised, in the loader's dtype: fp32, fp16 or bf16. With workers, batches are made
ahead by threads; order and values depend on seed, epoch and index only. An error in a worker
arrives with its batch and names the sample.

Tables are CSV files. Columns of texts become one-hot inputs, the last column is the target: a class
if it holds texts. mpt_table_fit scales numbers and fills in those that are missing, by what the
training part alone shows:

    mpt_table_config config = mpt_table_config_default();
    config.missing = true, config.target = "median_house_value";
    mpt_dataset table = mpt_csv(ctx, "housing.csv", &config), parts[2];
    const double shares[2] = {0.8, 0.2};
    mpt_random_split(table, shares, 2, 1, parts);
    mpt_table_fit(parts[0], true);

mpt_npy and mpt_npz read what NumPy saved, mpt_raw_files numbers too many for memory, sample by
sample. With rank and world in its config a loader deals an epoch out to several processes; collate
mixes the samples of a batch.

Photos lie in folder/class/name.jpg (or .jpeg, .png, .bmp); MPTRAIN_STB_IMAGE has to be defined:

    mpt_transform steps[3] = {mpt_transform_default(MPT_RESIZED_CROP, 224, 224),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0),
                              mpt_transform_default(MPT_NORMALIZE, 0, 0)};
    steps[2].mean[0] = 0.485, steps[2].deviation[0] = 0.229; // and so on for green and blue
    mpt_image_config images = mpt_image_config_default();
    images.steps = steps, images.step_count = 3;
    mpt_dataset photos = mpt_image_folder(ctx, "data/photos", &images);

Workers decode and augment while the step runs, for a GPU into page-locked memory (ordinary memory
where no more can be locked), from which it fetches batches beside its launches. What is random
depends on the loader's seed, the epoch and the sample alone. mpt_loader_statistics and mpt_fit tell
how long a training waited. Workers take no memory from the context: stb_image takes its own from
libc. mpt_transformed does the same to CIFAR-10, MNIST and pictures in memory. What a file says of
itself is checked before the decoder relies on it. A torn or malformed file is an error that names
it, or with skip_bad is left out; a manifest of SHA-256 finds every change.
mpt_loader_seek goes on where mpt_loader_statistics said that a training was.

Text becomes tokens by its characters or by GPT-2's pairs, and windows of them with the same window
one token further as targets:

    mpt_tokenizer chars = mpt_char_tokenizer(ctx, "input.txt");
    mpt_window_config window = mpt_window_config_default();
    window.block = 256, window.random = true;
    mpt_dataset text = mpt_text_file(chars, "input.txt", &window); // x, y [256] of int64

A net that learned a text writes one, a token at a time. Its causal attention layers keep the keys
and values of the places behind them, so that a token costs as much as its own place, not as all of
them: with 512 places of examples/gpt.c a 30th:

    int64_t seen[512] = {0}, length = 1;               // what it goes on from
    mpt_inference_begin(ctx);
    mpt_cache_begin(net, 1, 512);                      // one text of up to 512 tokens
    for (; length < 512; length++) {
        mpt_scope_begin(ctx);
        int64_t past = mpt_cache_length(net), more = length - past;
        x = mpt_from(ctx, MPT_I64, MPT_SHAPE(1, more), seen + past);
        y = mpt_slice(mpt_forward(net, x), 1, more - 1, more, 1); // [1, 1, vocabulary]
        seen[length] = (int64_t)mpt_item(mpt_argmax(y, -1, false));
        mpt_scope_end(ctx);
    }
    mpt_cache_end(net);
    mpt_inference_end(ctx);

mpt_cache_rewind takes places back, to begin another text or to try another word.

==== MANUAL 10: files ==========================================================================

mpt_save writes safetensors, which Python's safetensors package reads; mpt_load checks all names,
shapes and sizes before it changes anything, converts dtypes, and with strict = false takes what
matches. Files appear whole or not at all: written beside their place, flushed, renamed. Paths are
UTF-8. Contents are never trusted: sizes are checked before memory is taken. mpt_load_memory reads
from memory; mpt_config.io replaces file access. Weights of others come by rules for their names:

    static const mpt_rename rules[] = {
        {"transformer.*", "*", false, 0, 0},                   // a prefix goes
        {"*.c_fc.weight", "*.mlp.0.weight", true, 0, 0},       // kept as [in, out]
        {"*.query.weight", "*.in_proj_weight", false, 0, 3}};  // the first of three parts
    static const char *const masks[] = {"*.attn.bias"};
    mpt_load_config config = mpt_load_config_default();
    config.renames = rules, config.rename_count = 3;
    config.ignore = masks, config.ignore_count = 1;
    mpt_load(net, "model.safetensors", &config, NULL);

A part of a net takes its weights from the file of the whole with config.prefix = "encoder".

A training goes on in another process where it was, to the bit. A folder is all that it takes, and
no list of what to keep: a checkpoint has all that the context holds, so nothing can be forgotten.
The program makes the same objects as the first time, opens the folder, and enters its loop:

    mpt_checkpoint_config every = mpt_checkpoint_config_default();
    every.every = 500;                                 // steps; the two newest files stay
    mpt_checkpoint_open(ctx, "run", &every);           // goes on from the newest, if there is one
    while (mpt_step_number(ctx) < 10000 && !mpt_stop_requested(ctx)) {
        if (!mpt_loader_next(loader, &b)) continue;    // the place in the epoch is in the file, too
        mpt_step_begin(ctx);
        mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, b.x), b.y, NULL);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        mpt_step_end(ctx);
        mpt_checkpoint_step(ctx);                      // writes run/step-000000000500.safetensors
    }
    mpt_checkpoint_close(ctx);                         // the last one

Kill it whenever you like and start it again: in the end the files are the same, byte for byte.
Where every.background is set a thread writes them, and the training waits for a copy in memory
alone (mpt_checkpoint_statistics says how long). A file that a disk has damaged is noticed, and the
one before it taken. For Ctrl-C let your handler call mpt_request_stop: the loop ends behind its
step.
mpt_fit does all of this with mpt_fit_config.checkpoints = "run"; mpt_checkpoint_save and
mpt_checkpoint_load are for files of your own naming.

The middle of an epoch is as good a place as any, and so is that of an accumulation of gradients.
mpt_snapshot and mpt_restore do the same in a block of memory, without names, for programs that go
back and try again. mpt_state_hash tells whether two trainings are equal, and
mpt_checkpoint_difference or mpt_snapshot_difference where they begin not to be.

==== MANUAL 11: finding out what happens =======================================================

mpt_print_launches shows every kernel with its operands. mpt_trace_nan finds the first op, module
and step whose output is not finite; the scaler switches it on by itself for the step after an
overflow. mpt_anomaly_mode runs a step whose loss or gradients are not finite once more in fp32, and
names the first op that overflowed in fp16 or bf16 but would not have there, or says that fp32 fails
as well. mpt_get_counters counts calls, kernels, casts and the work of each thread. mpt_record_begin
and mpt_replay execute a step again, on inputs made before the recording. mpt_summary, mpt_format,
mpt_module_hash and mpt_optimizer_hash help to compare. mpt_histograms is a table of all weights or
gradients, with what fp16 would lose of them; mpt_confusion counts which classes are taken for
which; mpt_gradcheck tests an op of yours; mpt_determinism says what could differ elsewhere.
mpt_flight_begin keeps a log of what every step was; where a run went otherwise than it should have,
by a bit that flipped in memory, say, mpt_flight_replay of that log, called before the same program
trains again from its last checkpoint, names the step and the op.
mpt_trace gives what a net computes as a graph of ops, with shapes, dtypes and FLOP. These two,
mpt_gradcheck and the profiler stand in tools/mptrain_watch.h: define MPTRAIN_WATCH where the
implementation is.
tools/mptrain_tools.h, one more header, leaves files about a training: for TensorBoard, as CSV and
as JSON lines; mpt_fit_config.progress is where it hears of each step, with loss, rate, scale, norm
of the gradients, speed and memory. MPT_ISA_NULL executes nothing and so measures what calls cost.

Where the time goes the profiler tells, by op, module and kernel, with FLOP and bytes as the field
counts them, casts, and waiting for data:

    mpt_profile_begin(ctx, NULL);
    mpt_fit(net, optimizer, loader, NULL);
    mpt_profile_end(ctx);
    char table[4096];
    mpt_profile_text(ctx, table, sizeof table); // mpt_profile_rows gives the numbers

With mpt_profile_config.spans it keeps what came when, too, and mpt_trace_write, of the tools, makes
a file of that for ui.perfetto.dev.

==== MANUAL 12: GPUs and captured steps ========================================================

Define MPTRAIN_CUDA where you define MPTRAIN_IMPLEMENTATION, compile mptrain_cuda.cu with nvcc, and
link both with -lcublasLt. The default device, MPT_DEVICE_AUTO, is then the GPU where there is one.
Launches are queued: nothing waits but mpt_item, mpt_read and mpt_synchronize, so errors that the
device finds (a bad target) and what a scaler has seen arrive at the next wait or some steps late.
Memory of yours cannot be borrowed there: mpt_from copies what mpt_wrap would borrow.

    // the loop's body, on batches x and y
    mpt_status step(mpt_context *ctx, void *user, mpt_tensor x, mpt_tensor y);
    mpt_captured captured = mpt_capture(ctx, step, &model);
    while (mpt_loader_next(loader, &b)) mpt_captured_step(captured, b.x, b.y);

does the loop above without the host: the launches of one step are recorded and repeated, on a GPU
as one CUDA graph. It leaves the same bits. A game that trains while it is played has a few
milliseconds of each frame for that. On a CPU a step stops when they are over and goes on in the
next frame, with the same bits again:

    while (running) {
        bool done = false;
        update_and_draw();
        mpt_step_slice(captured, x, y, 0.002, &done);       // 2 ms, or one launch longer
        if (done && mpt_loader_next(loader, &b)) x = b.x, y = b.y;   // read when a step begins
    }

An op of your own can launch kernels of your own: mpt_device_data is the place of a tensor on the
GPU, mpt_device_stream what the library's launches are queued on, so that nothing has to wait. In a
.cu file of yours, compiled by nvcc beside mptrain_cuda.cu, the square of relu in fp32:

    #include "mptrain.h"

    #include <cuda_runtime.h>

    __global__ static void square(const float *x, float *y, long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] > 0 ? x[i] * x[i] : 0;
    }

    __global__ static void square_back(const float *x, const float *dy, float *dx, long long n) {
        const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
    }

    static mpt_status forward(mpt_op_call *call, void *user) {
        mpt_tensor x = mpt_contiguous(mpt_op_input(call, 0));
        mpt_tensor y = mpt_zeros(x.context, MPT_F32, mpt_get_shape(x));
        const float *from = (const float *)mpt_device_data(x, false);
        float *to = (float *)mpt_device_data(y, true);
        cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
        const long long n = mpt_numel(x), blocks = (n + 255) / 256;
        if (!mpt_failed(x.context)) square<<<(unsigned)blocks, 256, 0, stream>>>(from, to, n);
        mpt_op_save(call, 0, x);
        return mpt_op_set_output(call, 0, y);
    }

    static mpt_status backward(mpt_op_call *call, void *user) {
        mpt_tensor x = mpt_op_saved(call, 0), dy = mpt_contiguous(mpt_op_output_grad(call, 0));
        mpt_tensor dx = mpt_zeros(x.context, MPT_F32, mpt_get_shape(x));
        const float *from = (const float *)mpt_device_data(x, false);
        const float *above = (const float *)mpt_device_data(dy, false);
        float *to = (float *)mpt_device_data(dx, true);
        cudaStream_t stream = (cudaStream_t)mpt_device_stream(x.context);
        const long long n = mpt_numel(x), blocks = (n + 255) / 256;
        if (!mpt_failed(x.context))
            square_back<<<(unsigned)blocks, 256, 0, stream>>>(from, above, to, n);
        return mpt_op_set_input_grad(call, 0, dx);
    }

    extern "C" mpt_op squared_relu(mpt_context *ctx) {
        const mpt_op_class cls = {"squared_relu", MPT_AUTOCAST_FP32, forward, backward, 1, 1};
        return mpt_op_register(ctx, &cls, NULL);
    }

On a context of the CPU the two give an error; where a program shall run there as well, forward asks
mpt_get_device and takes ops of the library. A captured step cannot repeat such a kernel.

==== MANUAL 13: small machines; limits =========================================================

Where there is no file system, no thread and no heap: define MPTRAIN_NO_STDIO, MPTRAIN_NO_THREADS
and MPTRAIN_NO_SIMD, give an allocator over a static array, and set threads = 1;
examples/embedded.c does. A 32-bit CPU with IEEE floats and 64-bit integers will do. Compile for
size (-Os), with -ffunction-sections and -Wl,--gc-sections if you can: what a program does not call
goes. Without convolutions and attention all of the library is less than 250 KB of ARM code; no
frame is larger than 8 KB. The first example of this manual with AdamW at batch 16 takes 2.8 MB.
mpt_load_memory takes weights from a C array: a safetensors file, as mpt_save writes it.

This version: x86-64 with AVX2, AVX-512, AVX512_BF16 or AMX, AArch64 with NEON or its
BFMMLA, portable C elsewhere, and CUDA kernels that no real GPU has run yet.
No gradients of gradients. fp64 is a dtype of
storage, fp8 that and what mpt_fp8 multiplies. Tensors have at most
8 dimensions.
On a build with clang for another CPU than x86, -ffast-math is refused by an #error.
*/
