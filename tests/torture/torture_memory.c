/* torture_memory.c: the allocator refuses its call number N, for every N, once or from there on,
   under a training on idx files, a resume and a folder of pictures. Each refusal is an error of
   memory that says so, leaks nothing and leaves whole files; after mpt_clear_error the work is done
   again and ends with the bits of one that was never refused. Built with sanitizers. */
#include "torture.h"

#include MPTRAIN_HEADER_FILE

#ifdef MPTRAIN_STB_IMAGE
#include "../made_pictures.h"
#endif
#include "heap.h"

enum { IMAGES = 40, PIXELS = 64, CLASSES = 4, BATCH = 16, STEPS = 4, PICTURES = 6 };
enum { REFUSED, ERRORS, HELPED };

/* One thing that runs under refusals: what it makes, and the hash it ends with. */
typedef struct world {
    heap h;
    mpt_config config;
    mpt_context *context;
    mpt_module net;
    mpt_optimizer optimizer;
    mpt_scaler scaler;
    mpt_loader loader;
    mpt_dataset data;
    int errors;
    uint64_t hash;
} world;

static const char *weights, *checkpoint;

/* After a piece of work: true if it has to be done again. */
static bool again(world *w) {
    if (!mpt_failed(w->context)) return false;
    w->errors++;
    EXPECT_THAT(mpt_error_code(w->context) == MPT_ERROR_MEMORY, "%s", mpt_error(w->context));
    EXPECT_THAT(strstr(mpt_error(w->context), "out of memory") != NULL, "%s",
                mpt_error(w->context));
    mpt_clear_error(w->context);
    EXPECT_THAT(!mpt_failed(w->context), "not cleared");
    if (w->h.onwards) w->h.refuse_at = 0; /* there is memory again */
    if (w->errors < 20) return true;
    torture_failed(__LINE__, "it is refused again and again");
    return false;
}

static bool make_context(world *w) {
    for (int i = 0; i < 3; i++) {
        w->context = mpt_create(&w->config);
        if (w->context) return true;
        w->errors++;
        EXPECT_THAT(w->h.live == 0, "mpt_create leaves %lld bytes", (long long)w->h.live);
        EXPECT_THAT(strstr(mpt_error(NULL), "out of memory") != NULL, "%s", mpt_error(NULL));
        if (w->h.onwards) w->h.refuse_at = 0;
    }
    torture_failed(__LINE__, "no context");
    return false;
}

static void make_loader(world *w) {
    mpt_loader_config loading = mpt_loader_config_default();
    loading.batch = BATCH, loading.shuffle = true;
    do w->loader = mpt_loader_create(w->context, w->data, &loading);
    while (again(w));
}

/* What is left of a net that could not be made is destroyed: it would be counted in checkpoints. */
static void make_net(world *w) {
    enum { LAYERS = 6 };
    mpt_context *c = w->context;
    for (bool refused = true; refused;) {
        mpt_module layers[LAYERS] = {
            mpt_nn_flatten(c),      mpt_nn_linear(c, 784, 12),     mpt_nn_relu(c),
            mpt_nn_dropout(c, 0.1), mpt_nn_linear(c, 12, CLASSES), mpt_nn_log_softmax(c, -1)};
        w->net = mpt_sequential_array(c, layers, LAYERS);
        mpt_set_label(w->net, "net"); /* the same values, however often it was begun */
        refused = again(w);
        if (refused && w->net.slot) mpt_module_destroy(w->net);
        for (int i = 0; refused && !w->net.slot && i < LAYERS; i++)
            if (layers[i].slot) mpt_module_destroy(layers[i]);
        EXPECT_THAT(!mpt_failed(c), "%s", mpt_error(c));
    }
}

static void make_training(world *w) {
    mpt_context *c = w->context;
    do w->data = mpt_mnist(c, torture_folder, MPT_TRAIN);
    while (again(w));
    make_loader(w);
    make_net(w);
    do w->optimizer = mpt_adamw(w->net, NULL);
    while (again(w));
    do w->scaler = mpt_grad_scaler(c, NULL);
    while (again(w));
}

static void train(world *w, int steps) {
    mpt_context *c = w->context;
    for (int i = 0; i < steps; i++) {
        mpt_batch batch;
        do
            if (!mpt_loader_next(w->loader, &batch) && !mpt_failed(c))
                mpt_loader_next(w->loader, &batch);
        while (again(w));
        do {
            mpt_step_begin(c);
            mpt_autocast_begin(c, MPT_F16);
            mpt_tensor loss = mpt_nll_loss(mpt_forward(w->net, batch.x), batch.y, NULL);
            mpt_autocast_end(c);
            mpt_zero_grad(w->optimizer);
            mpt_backward(mpt_scale_loss(w->scaler, loss));
            mpt_scaler_step(w->scaler, w->optimizer);
            mpt_scaler_update(w->scaler);
            mpt_step_end(c);
        } while (again(w));
    }
}

/* A refused save leaves what was there, and nothing beside it. */
static void save_whole(world *w, const char *path, bool whole) {
    static uint8_t before[1 << 20], after[1 << 20];
    do {
        const size_t n = read_whole(path, before, sizeof before);
        if (whole)
            mpt_checkpoint_save(w->context, path);
        else
            mpt_save(w->net, path);
        if (mpt_failed(w->context))
            EXPECT_THAT(read_whole(path, after, sizeof after) == n && !memcmp(before, after, n),
                        "a refused save has changed the file");
        EXPECT_THAT(files_named(".mptrain-") == 0, "a refused save leaves a file");
    } while (again(w));
}

/* Without gradients, which mpt_clear_error drops. */
static void hash_state(world *w) {
    mpt_zero_grad(w->optimizer);
    do w->hash = mpt_state_hash(w->context);
    while (again(w));
}

static void train_on_idx(world *w) {
    if (!make_context(w)) return;
    make_training(w);
    train(w, STEPS);
    save_whole(w, weights, false);
    hash_state(w);
}

/* Memory is refused from the save on: what comes before is the other case's. */
static void resume(world *w) {
    const heap armed = w->h;
    w->h.refuse_at = 0;
    if (!make_context(w)) return;
    make_training(w);
    train(w, 2);
    w->h.calls = 0, w->h.refuse_at = armed.refuse_at;
    save_whole(w, checkpoint, true);
    mpt_destroy(w->context);
    EXPECT_THAT(w->h.live == 0, "%lld bytes are left", (long long)w->h.live);
    if (!make_context(w)) return;
    make_training(w);
    do mpt_checkpoint_load(w->context, checkpoint);
    while (again(w));
    train(w, STEPS - 2);
    hash_state(w);
}

#ifdef MPTRAIN_STB_IMAGE
static void read_pictures(world *w) {
    const mpt_transform step = mpt_transform_default(MPT_RESIZE, 4, 4);
    mpt_image_config images = mpt_image_config_default();
    float pixels[3 * 4 * 4];
    int64_t target = 0;
    images.steps = &step, images.step_count = 1;
    if (!make_context(w)) return;
    do w->data = mpt_image_folder(w->context, in_folder("pictures"), &images);
    while (again(w));
    for (int i = 0; i < PICTURES; i++) {
        do mpt_sample(w->data, i, pixels, &target);
        while (again(w));
        for (int k = 0; k < 3 * 4 * 4; k++)
            w->hash = mixed(w->hash ^ (uint64_t)(pixels[k] * 4096.0f)) + (uint64_t)target;
    }
    make_loader(w);
    mpt_batch batch;
    do mpt_loader_next(w->loader, &batch);
    while (again(w));
    w->hash ^= (uint64_t)batch.size << 32;
}
#endif

static const struct {
    const char *name;
    void (*run)(world *w);
} works[] = {
    {"training", train_on_idx},
    {"resume", resume},
#ifdef MPTRAIN_STB_IMAGE
    {"pictures", read_pictures},
#endif
};
enum { WORKS = sizeof works / sizeof *works };

static void run_work(world *w, int work, int64_t refuse_at, bool onwards) {
    memset(w, 0, sizeof *w);
    w->config = heap_config(&w->h);
    w->h.refuse_at = refuse_at, w->h.onwards = onwards;
    unlink(weights), unlink(checkpoint);
    works[work].run(w);
    mpt_destroy(w->context);
    EXPECT_THAT(w->h.live == 0, "%s: %lld bytes are left", works[work].name, (long long)w->h.live);
}

static int the_work;
static int64_t stride;

/* Each refusal in turn, once for even n, from there on for odd ones. */
static void one_refusal(long n) {
    world w;
    const int64_t at = 1 + n / 2 * stride;
    const long before = counts->failures;
    run_work(&w, the_work, at, n % 2 == 1);
    EXPECT_THAT(w.h.refused > 0, "%s: call %lld was not reached", works[the_work].name,
                (long long)at);
    EXPECT_THAT(w.hash == counts->hashes[the_work], "%s: other bits", works[the_work].name);
    counts->figures[REFUSED] += w.h.refused > 0;
    counts->figures[ERRORS] += w.errors > 0;
    counts->figures[HELPED] += w.h.refused > 0 && w.errors == 0;
    if (counts->failures > before)
        printf("%s, with call %lld refused%s\n", works[the_work].name, (long long)at,
               n % 2 ? " and all behind it" : "");
}

/* How many calls of the allocator there are to refuse. */
static void count_calls(long work) {
    world w;
    run_work(&w, (int)work, 0, false);
    counts->hashes[work] = w.hash;
    counts->place = (int)w.h.calls;
    EXPECT_THAT(w.errors == 0 && w.hash != 0, "%s does not work at all", works[work].name);
}

static void put_number(uint8_t *bytes, uint32_t n) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(n >> 8 * (3 - i));
}

#ifdef MPTRAIN_STB_IMAGE
/* Two pictures of each of three formats, in two classes. */
static void make_pictures(void) {
    static const char *const endings[3] = {"bmp", "png", "jpg"};
    uint8_t rows[6 * 16];
    mkdir(in_folder("pictures"), 0755);
    for (int i = 0; i < PICTURES; i++) {
        static made m;
        char name[64];
        snprintf(name, sizeof name, "pictures/%c", 'a' + i % 2);
        mkdir(in_folder(name), 0755);
        snprintf(name, sizeof name, "pictures/%c/%d.%s", 'a' + i % 2, i, endings[i / 2]);
        memset(&m, 0, sizeof m);
        for (int k = 0; k < (int)sizeof rows; k++) rows[k] = k % 16 ? (uint8_t)(k * i) : 0;
        if (i < 2) {
            made_bmp(&m, 40, 24, 5 + i, 6, 0, 40 + 90 * i);
        } else if (i < 4) {
            made_png_begin(&m, 5, 6, 8, 2, 0);
            made_png_end(&m, rows, sizeof rows);
        } else if (i == 4) {
            made_baseline(&m, 24, 3, 0x22, true, 0, "", 0);
        } else {
            made_progressive(&m, 24, 3, "", 0);
        }
        write_whole(in_folder(name), m.bytes, m.n);
    }
}
#endif

static void make_files(void) {
    static uint8_t images[16 + IMAGES * 784] = {0, 0, 8, 3}, labels[8 + IMAGES] = {0, 0, 8, 1};
    put_number(images + 4, IMAGES), put_number(images + 8, 28), put_number(images + 12, 28);
    put_number(labels + 4, IMAGES);
    for (int i = 0; i < IMAGES * 784; i++) images[16 + i] = (uint8_t)mixed((uint64_t)i);
    for (int i = 0; i < IMAGES; i++) labels[8 + i] = (uint8_t)(i % CLASSES);
    write_whole(in_folder("train-images-idx3-ubyte"), images, sizeof images);
    write_whole(in_folder("train-labels-idx1-ubyte"), labels, sizeof labels);
#ifdef MPTRAIN_STB_IMAGE
    make_pictures();
#endif
}

int main(int argc, char **argv) {
    char paths[2][700];
    long cases = 0;
    torture_arguments(argc, argv, 1000000);
    torture_begin();
    folder_begin("memory");
    snprintf(paths[0], sizeof paths[0], "%s", in_folder("weights"));
    snprintf(paths[1], sizeof paths[1], "%s", in_folder("checkpoint"));
    weights = paths[0], checkpoint = paths[1];
    make_files();
    for (the_work = 0; the_work < WORKS; the_work++) {
        counts->place = 0;
        const int status = torture_child(count_calls, the_work, 120);
        counts->crashes += status != 0;
        if (counts->failures + counts->crashes > 0) break;
        stride = 1 + 2 * (int64_t)counts->place / options.cases;
        const long n = 2 * (long)((counts->place + stride - 1) / stride);
        printf("%s: %d calls, %ld refusals\n", works[the_work].name, counts->place, n);
        torture_cases(n, 100, one_refusal);
        cases += n;
    }
#ifndef MPTRAIN_STB_IMAGE
    printf("skipped: pictures, which need stb_image.h\n");
#endif
    folder_end();
    return torture_end("memory", cases,
                       "%ld refusals, %ld of them errors, %ld helped by idle memory",
                       counts->figures[REFUSED], counts->figures[ERRORS], counts->figures[HELPED]);
}
