/* bench_quality.c: what the options that save memory cost in quality. Three nets learn with each of
   them from the same five seeds, which draw the first weights and the order of the data, so that
   runs can be compared in pairs. A table in Markdown for each net: loss and accuracy on data that
   nobody learned from, and the difference from fp32 beside what seeds alone make of it.
       bench_quality PICTURES [TASK] [SEEDS]    all tasks, five seeds; `make bench-quality` calls it
   PICTURES is a folder with the files of CIFAR-10; mnist/ and tinyshakespeare/ are in the folder
   that the environment variable MPTRAIN_DATA names. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include MPTRAIN_HEADER_FILE

#include "../../examples/transformer.h"

enum { MOST_SEEDS = 5, CLASSES = 10, WINDOW = 64, HELD_STRIDE = 192 };

/* ==== Data ==== */

/* Two halves of what may be learned, for training and for tuning, and what is held out. */
typedef enum part { FIRST, SECOND, HELD, PARTS } part;

/* Pictures of a byte per value, or tokens. They are read once: contexts come and go. */
typedef struct samples {
    int64_t count, vocabulary;
    mpt_shape shape;
    uint8_t *pictures;
    int64_t *classes;
    int32_t *tokens;
    double mean, deviation;
} samples;

typedef struct task task;
typedef bool (*task_open)(
    mpt_context *context, const char *data, const char *pictures, samples *learned, samples *held);
struct task {
    const char *name, *what;
    task_open open;
    mpt_module (*make)(mpt_context *context, const samples *data);
    int64_t batch, draws; /* draws: windows that an epoch takes from a text */
    int epochs;
    double lr;
};

static bool read_pictures(mpt_context *context, mpt_dataset from, samples *to) {
    memset(to, 0, sizeof *to);
    to->count = mpt_dataset_size(from), to->shape = mpt_dataset_shape(from);
    if (mpt_failed(context)) return false;
    int64_t pixels = 1;
    for (int d = 0; d < to->shape.rank; d++) pixels *= to->shape.dim[d];
    float *values = (float *)malloc((size_t)pixels * sizeof *values);
    to->pictures = (uint8_t *)malloc((size_t)(to->count * pixels));
    to->classes = (int64_t *)malloc((size_t)to->count * sizeof *to->classes);
    bool good = values && to->pictures && to->classes;
    for (int64_t i = 0; good && i < to->count; i++) {
        good = mpt_sample(from, i, values, to->classes + i) == MPT_OK;
        uint8_t *bytes = to->pictures + i * pixels;
        for (int64_t k = 0; good && k < pixels; k++)
            bytes[k] = (uint8_t)(values[k] * 255.0f + 0.5f);
    }
    free(values);
    return good && mpt_dataset_statistics(from, &to->mean, &to->deviation) == MPT_OK;
}

static bool read_both(
    mpt_context *context, mpt_dataset train, mpt_dataset test, samples *learned, samples *held) {
    if (!read_pictures(context, train, learned) || !read_pictures(context, test, held))
        return false;
    held->mean = learned->mean, held->deviation = learned->deviation;
    return true;
}

static bool open_mnist(
    mpt_context *context, const char *data, const char *pictures, samples *learned, samples *held) {
    char path[1000];
    (void)pictures;
    snprintf(path, sizeof path, "%s/mnist", data);
    return read_both(context, mpt_mnist(context, path, MPT_TRAIN),
        mpt_mnist(context, path, MPT_TEST), learned, held);
}

static bool open_cifar(
    mpt_context *context, const char *data, const char *pictures, samples *learned, samples *held) {
    (void)data;
    return read_both(context, mpt_cifar10(context, pictures, MPT_TRAIN),
        mpt_cifar10(context, pictures, MPT_TEST), learned, held);
}

/* The last tenth is held out. */
static bool open_text(
    mpt_context *context, const char *data, const char *pictures, samples *learned, samples *held) {
    char path[1000], *text = NULL;
    (void)pictures;
    snprintf(path, sizeof path, "%s/tinyshakespeare/input.txt", data);
    mpt_tokenizer letters = mpt_char_tokenizer(context, path);
    memset(learned, 0, sizeof *learned), memset(held, 0, sizeof *held);
    FILE *file = fopen(path, "rb");
    if (!file) return false;
    fseek(file, 0, SEEK_END);
    const long bytes = ftell(file);
    rewind(file);
    if (bytes > 0) text = (char *)malloc((size_t)bytes);
    const bool whole = text && fread(text, 1, (size_t)bytes, file) == (size_t)bytes;
    fclose(file);
    if (whole) learned->tokens = (int32_t *)malloc((size_t)bytes * sizeof(int32_t));
    int64_t count = -1;
    if (learned->tokens) count = mpt_encode(letters, text, (size_t)bytes, learned->tokens, bytes);
    free(text);
    learned->vocabulary = held->vocabulary = mpt_vocabulary_size(letters);
    learned->count = count - count / 10, held->count = count / 10;
    held->tokens = learned->tokens ? learned->tokens + learned->count : NULL;
    return count > 0;
}

static mpt_dataset dataset_of(mpt_context *context, const task *t, const samples *s, part which) {
    const int64_t half = s->count / 2, first = which == SECOND ? half : 0;
    const int64_t count = which == HELD ? s->count : half;
    if (s->tokens) {
        mpt_window_config windows = mpt_window_config_default();
        windows.block = WINDOW, windows.vocabulary = s->vocabulary;
        windows.random = which != HELD;
        if (windows.random) windows.samples = t->draws;
        if (!windows.random) windows.stride = HELD_STRIDE;
        return mpt_token_memory(context, s->tokens + first, count, &windows);
    }
    mpt_memory_dataset_config pictures = mpt_memory_dataset_config_default();
    pictures.count = s->count, pictures.dtype = MPT_U8, pictures.shape = s->shape;
    pictures.inputs = s->pictures, pictures.targets = s->classes, pictures.copy = false;
    mpt_dataset all = mpt_memory_dataset(context, &pictures);
    mpt_normalize(all, s->mean, s->deviation);
    return mpt_subset(all, first, count);
}

/* The loss of who knows how often each class comes, and nothing else. */
static double loss_of_ignorance(const samples *learned, const samples *held) {
    enum { MOST = 256 };
    double seen[MOST], all = 0, loss = 0;
    for (int k = 0; k < MOST; k++) seen[k] = 0;
    for (int64_t i = 0; i < learned->count; i++, all++)
        seen[(learned->tokens ? learned->tokens[i] : learned->classes[i]) % MOST]++;
    for (int64_t i = 0; i < held->count; i++)
        loss -= log(seen[(held->tokens ? held->tokens[i] : held->classes[i]) % MOST] / all);
    return loss / (double)held->count;
}

/* ==== Nets ==== */

static mpt_module make_mlp(mpt_context *context, const samples *data) {
    (void)data;
    return mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 784, 128),
        mpt_nn_relu(context), mpt_nn_linear(context, 128, 64), mpt_nn_relu(context),
        mpt_nn_linear(context, 64, CLASSES), MPT_END);
}

static mpt_module make_cnn(mpt_context *context, const samples *data) {
    mpt_conv_config padded = mpt_conv_config_default();
    padded.padding[0] = padded.padding[1] = 1;
    (void)data;
    return mpt_sequential(context, mpt_nn_conv2d(context, 3, 16, 3, 3, &padded),
        mpt_nn_relu(context), mpt_nn_max_pool2d(context, NULL),
        mpt_nn_conv2d(context, 16, 32, 3, 3, &padded), mpt_nn_relu(context),
        mpt_nn_max_pool2d(context, NULL), mpt_nn_conv2d(context, 32, 32, 3, 3, &padded),
        mpt_nn_relu(context), mpt_nn_max_pool2d(context, NULL), mpt_nn_flatten(context),
        mpt_nn_linear(context, 32 * 4 * 4, 64), mpt_nn_relu(context),
        mpt_nn_linear(context, 64, CLASSES), MPT_END);
}

static mpt_status places_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor places = mpt_arange(self.context, MPT_I64, mpt_get_shape(in[0]).dim[1]);
    out[0] = mpt_add(run_child(self, "wte", in[0]), run_child(self, "wpe", places));
    return MPT_OK;
}

/* Two blocks of width 64. The output layer is one of its own, so that it can have adapters. */
static mpt_module make_text(mpt_context *context, const samples *data) {
    enum { WIDTH = 64, HEADS = 4, BLOCKS = 2 };
    static mpt_module_class places = {"places", places_forward, NULL, NULL, NULL, 1, 1};
    static transformer_kind kind = {"attn", true, true, false, 1e-5};
    mpt_module first = mpt_module_create(context, &places, NULL);
    mpt_add_child(first, "wte", mpt_nn_embedding(context, data->vocabulary, WIDTH, -1));
    mpt_add_child(first, "wpe", mpt_nn_embedding(context, WINDOW, WIDTH, -1));
    mpt_module net =
        mpt_sequential(context, first, transformer_blocks(context, BLOCKS, WIDTH, HEADS, &kind),
            layer_norm(context, WIDTH, kind.eps),
            mpt_nn_linear_no_bias(context, WIDTH, data->vocabulary), MPT_END);
    mpt_set_init(net, NULL, mpt_init_make(MPT_INIT_NORMAL, 0.0, 0.02)); /* as GPT-2 */
    return net;
}

static const task tasks[] = {
    {"mnist", "MNIST, 784-128-64-10, half of the pictures", open_mnist, make_mlp, 64, 0, 5, 1e-3},
    {"cifar", "CIFAR-10, 5,000 pictures, three convolutions and two linear layers", open_cifar,
        make_cnn, 64, 0, 6, 2e-3},
    {"gpt", "tinyshakespeare, GPT of 2 layers, width 64, 64 letters, half of the text", open_text,
        make_text, 16, 16 * 900, 1, 3e-3},
};
enum { TASKS = sizeof tasks / sizeof *tasks };

/* ==== Options ==== */

enum {
    CHANCE = 1,    /* updates of bf16 weights are rounded by chance, without masters */
    INSIDE = 2,    /* updates inside backward */
    MICRO = 4,     /* a quarter of a batch goes through the net at a time */
    RECOMPUTE = 8, /* backward runs forward again */
    EIGHT = 16,    /* fp8 in linear layers */
    STATES = 32,   /* moments of 8 bits */
    TUNED = 64,    /* goes on from fp32's weights, with the other half of the data */
    FROZEN = 128,  /* and learns what adapters could, and biases, alone */
    ADAPTERS = 256, /* and learns LoRA's adapters alone */
    NARROW = 512   /* autocast to bf16 in which fp32 and bf16 meet in that */
};
typedef struct option {
    const char *name;
    mpt_dtype autocast, batch, weights;
    int how, reference; /* reference: the row that it is compared with */
    int rank;           /* of adapters */
} option;

enum { PLAIN = 0, TUNED_ROW = 12 };
static const option options[] = {
    {"fp32, AdamW", MPT_F32, MPT_F32, MPT_F32, 0, PLAIN, 0},
    {"autocast to bf16", MPT_BF16, MPT_BF16, MPT_F32, 0, PLAIN, 0},
    {"autocast to bf16, sums of shortcuts too", MPT_F32, MPT_BF16, MPT_F32, NARROW, PLAIN, 0},
    {"autocast to fp16, loss scaled", MPT_F16, MPT_F16, MPT_F32, 0, PLAIN, 0},
    {"moments of 8 bits", MPT_F32, MPT_F32, MPT_F32, STATES, PLAIN, 0},
    {"bf16 weights, fp32 masters", MPT_F32, MPT_BF16, MPT_BF16, 0, PLAIN, 0},
    {"bf16 weights, rounded by chance", MPT_F32, MPT_BF16, MPT_BF16, CHANCE, PLAIN, 0},
    {"updates inside backward", MPT_F32, MPT_F32, MPT_F32, INSIDE, PLAIN, 0},
    {"8 bits, by chance and inside, all three", MPT_F32, MPT_BF16, MPT_BF16,
        STATES | CHANCE | INSIDE, PLAIN, 0},
    {"micro-batches, four of a batch", MPT_F32, MPT_F32, MPT_F32, MICRO, PLAIN, 0},
    {"forward run again by backward", MPT_F32, MPT_F32, MPT_F32, RECOMPUTE, PLAIN, 0},
    {"fp8 in linear layers", MPT_F32, MPT_F32, MPT_F32, EIGHT, PLAIN, 0},
    {"tuned further in fp32", MPT_F32, MPT_F32, MPT_F32, TUNED, TUNED_ROW, 0},
    {"tuned in linear layers alone", MPT_F32, MPT_F32, MPT_F32, TUNED | FROZEN, TUNED_ROW, 0},
    {"tuned by LoRA, rank 8", MPT_F32, MPT_F32, MPT_F32, TUNED | ADAPTERS, TUNED_ROW, 8},
    {"tuned by LoRA, rank 64", MPT_F32, MPT_F32, MPT_F32, TUNED | ADAPTERS, TUNED_ROW, 64},
};
enum { OPTIONS = sizeof options / sizeof *options };

/* ==== Training ==== */

typedef struct outcome {
    double loss, accuracy, peak;
    int64_t steps;
} outcome;

static void end_with(const char *what, const char *why) {
    fprintf(stderr, "bench_quality: %s: %s\n", what, why);
    exit(1);
}

typedef struct train_notes {
    mpt_context *context;
    int64_t peak;
} train_notes;

static mpt_context *new_context(int seed) {
    mpt_config config = mpt_config_default();
    config.seed = (uint64_t)seed + 1, config.threads = 1;
    mpt_context *context = mpt_create(&config);
    if (!context) end_with("mpt_create", mpt_error(NULL));
    return context;
}

static mpt_tensor loss_of(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user;
    return mpt_cross_entropy(mpt_flatten(output, 0, -2), mpt_flatten(target, 0, -1), NULL);
}

/* All but linear layers and attention. */
static void freeze_others(mpt_module net) {
    static const char *const others[] = {"conv2d", "embedding", "layer_norm"};
    char path[256];
    for (int i = 0; i < mpt_module_count(net); i++) {
        mpt_module m = mpt_module_at(net, i, path, sizeof path);
        for (int k = 0; k < 3; k++)
            if (strcmp(mpt_module_kind(m), others[k]) == 0) mpt_freeze(m, true);
    }
}

static mpt_status narrow_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
    mpt_tensor *out, int n_out) {
    (void)user;
    mpt_autocast_begin_narrow(self.context, MPT_BF16);
    mpt_forward_n(mpt_child(self, "net"), in, n_in, out, n_out);
    return mpt_autocast_end(self.context);
}

/* The net in a region of its own. */
static mpt_module narrowed(mpt_module net) {
    static mpt_module_class cls = {"narrow", narrow_forward, NULL, NULL, NULL, 1, 1};
    mpt_module self = mpt_module_create(net.context, &cls, NULL);
    mpt_add_child(self, "net", net);
    return self;
}

static mpt_module new_net(mpt_context *context, const task *t, const samples *learned,
    const option *o, mpt_module start) {
    mpt_module net = t->make(context, learned);
    if (o->how & NARROW) net = narrowed(net);
    if (o->how & EIGHT) mpt_fp8(net, NULL);
    if (o->weights != MPT_F32) mpt_half(net, o->weights);
    if (o->how & RECOMPUTE) mpt_recompute_module(learned->tokens ? mpt_child(net, "1") : net, 2);
    if (o->how & TUNED) mpt_copy_module(net, start);
    if (o->how & FROZEN) freeze_others(net);
    if (o->how & ADAPTERS) mpt_lora(net, "*", o->rank, 2 * o->rank);
    return net;
}

static mpt_optimizer new_optimizer(mpt_module net, const task *t, const option *o) {
    mpt_adamw_config adamw = mpt_adamw_config_default();
    adamw.lr = o->how & ADAPTERS ? 3 * t->lr : t->lr; /* 3: the best, or nearly, of 0.1 to 10 */
    adamw.stochastic_rounding = (o->how & CHANCE) != 0;
    adamw.state_bits = o->how & STATES ? 8 : 32;
    mpt_optimizer optimizer = mpt_adamw(net, &adamw);
    if (o->how & INSIDE) mpt_update_in_backward(optimizer, true);
    return optimizer;
}

static mpt_loader new_loader(
    mpt_context *context, const task *t, const samples *s, const option *o, part which) {
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = t->batch;
    config.dtype = o->batch, config.shuffle = config.drop_last = which != HELD;
    return mpt_loader_create(context, dataset_of(context, t, s, which), &config);
}

/* The peak of training is that before the first validation, which is no part of it. */
static bool note_peak(void *user, const mpt_progress *progress) {
    train_notes *notes = (train_notes *)user;
    const mpt_memory_stats memory = mpt_memory(notes->context);
    if (progress->epoch == 1 && !progress->epoch_end)
        notes->peak = memory.total_peak - memory.current[MPT_MEMORY_DATA];
    return true;
}

/* One training and its score. The rate rises over a tenth of the steps and falls to nothing. */
static outcome train(mpt_context *context, const task *t, const samples *learned,
    const samples *held, const option *o, mpt_module *net) {
    *net = new_net(context, t, learned, o, *net);
    mpt_optimizer optimizer = new_optimizer(*net, t, o);
    mpt_loader loader = new_loader(context, t, learned, o, o->how & TUNED ? SECOND : FIRST);
    const int64_t steps = mpt_loader_batches(loader) * t->epochs;
    mpt_warmup(optimizer, 0.1, steps / 10, steps, 0, MPT_PER_STEP);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = t->epochs, fit.precision = o->autocast, fit.loss = loss_of;
    fit.validation = new_loader(context, t, held, o, HELD);
    train_notes notes = {context, 0};
    fit.progress = note_peak, fit.user = &notes;
    if (o->how & MICRO) fit.micro_batch = t->batch / 4;
    const mpt_fit_result result = mpt_fit(*net, optimizer, loader, &fit);
    if (result.status != MPT_OK) end_with(o->name, mpt_error(context));
    const outcome score = {result.validation_loss, 100 * result.validation_accuracy,
        (double)notes.peak / 1e6, result.steps};
    return score;
}

/* ==== Tables ==== */

typedef struct spread {
    double mean, deviation;
} spread;

static spread spread_of(const double *values, int n) {
    spread s = {0, 0};
    for (int i = 0; i < n; i++) s.mean += values[i] / n;
    for (int i = 0; i < n; i++) s.deviation += (values[i] - s.mean) * (values[i] - s.mean);
    s.deviation = n > 1 ? sqrt(s.deviation / (n - 1)) : 0;
    return s;
}

static void print_row(const option *o, outcome (*all)[MOST_SEEDS], int seeds) {
    const outcome *own = all[o - options], *reference = all[o->reference];
    double loss[MOST_SEEDS], accuracy[MOST_SEEDS], base[MOST_SEEDS], difference[MOST_SEEDS];
    for (int s = 0; s < seeds; s++) {
        loss[s] = own[s].loss, accuracy[s] = own[s].accuracy, base[s] = reference[s].loss;
        difference[s] = loss[s] - base[s];
    }
    const spread l = spread_of(loss, seeds), a = spread_of(accuracy, seeds);
    const spread d = spread_of(difference, seeds);
    const double bound = 2 * spread_of(base, seeds).deviation;
    printf("| %s | %.4f (%.4f) | %.2f (%.2f) | %.2f |", o->name, l.mean, l.deviation, a.mean,
        a.deviation, own[0].peak);
    if (own == reference)
        printf(" | | |\n");
    else
        printf(" %+.4f (%.4f) | %.4f | %s |\n", d.mean, d.deviation, bound,
            fabs(d.mean) <= bound ? "within" : "**beyond**");
}

static void print_table(const task *t, outcome (*all)[MOST_SEEDS], int seeds, double ignorance) {
    printf("\n## %s\n\n", t->what);
    printf("%lld steps with batches of %lld. Who knows how often each class comes, and nothing "
           "else, has a\nloss of %.4f.\n\n",
        (long long)all[PLAIN][0].steps, (long long)t->batch, ignorance);
    printf("| option | loss | accuracy, %% | peak, MB | difference | bound | verdict |\n"
           "|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < OPTIONS; i++) print_row(&options[i], all, seeds);
    fflush(stdout);
}

static void run(const task *t, const char *data, const char *pictures, int seeds) {
    static outcome all[OPTIONS][MOST_SEEDS];
    samples learned, held;
    mpt_context *context = new_context(0);
    if (!t->open(context, data, pictures, &learned, &held))
        end_with(t->name, mpt_failed(context) ? mpt_error(context) : "no data, or no memory");
    mpt_destroy(context);
    for (int s = 0; s < seeds; s++) {
        mpt_context *kept = new_context(s);
        mpt_module start = {0}, net;
        all[PLAIN][s] = train(kept, t, &learned, &held, &options[PLAIN], &start);
        for (int i = 1; i < OPTIONS; i++) {
            context = new_context(s);
            net = start;
            all[i][s] = train(context, t, &learned, &held, &options[i], &net);
            mpt_destroy(context);
        }
        mpt_destroy(kept);
        fprintf(stderr, "bench_quality: %s, seed %d of %d\n", t->name, s + 1, seeds);
    }
    print_table(t, all, seeds, loss_of_ignorance(&learned, &held));
    if (!learned.tokens) free(held.classes), free(held.pictures);
    free(learned.tokens), free(learned.classes), free(learned.pictures);
}

int main(int argc, char **argv) {
    const char *data = getenv("MPTRAIN_DATA");
    if (!data || argc < 2) {
        printf("bench_quality: it needs MPTRAIN_DATA, a folder with mnist/ and tinyshakespeare/, "
               "and as its first argument one with the files of CIFAR-10: see make "
               "bench-quality\n");
        return 0;
    }
    const int asked = argc > 3 ? atoi(argv[3]) : MOST_SEEDS;
    const int seeds = asked < 1 || asked > MOST_SEEDS ? MOST_SEEDS : asked;
    mpt_context *context = new_context(0);
    printf("Kernels: %s, 1 thread; seeds: %d.\n", mpt_isa_name(mpt_get_isa(context)), seeds);
    mpt_destroy(context);
    for (int i = 0; i < TASKS; i++)
        if (argc < 3 || strcmp(argv[2], "all") == 0 || strcmp(argv[2], tasks[i].name) == 0)
            run(&tasks[i], data, argv[1], seeds);
    return 0;
}
