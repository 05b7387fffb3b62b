/* 07_data.c - lesson 7: data: datasets, batches, worker threads.
 *
 * A dataset answers for one sample at a time, from memory, from files or from a function of yours.
 * A loader deals the samples into batches, in a new order each epoch, and can have threads that
 * make batches ahead while the net trains. The order depends on the seed alone, never on the
 * threads.
 * test arguments: */
#include "lesson.h"

enum { SAMPLES = 10, BATCH = 4 };

/* Sample i: a sine wave of i periods. Loader threads call this side by side. */
static bool wave(void *user, int64_t index, uint64_t seed, void *input, void *target, char *error,
                 size_t size) {
    const int64_t broken = *(const int64_t *)user;
    (void)seed;
    if (index == broken) {
        snprintf(error, size, "wave %lld is broken", (long long)index);
        return false;
    }
    for (int t = 0; t < 8; t++) ((float *)input)[t] = (float)sin(6.2831853 * (double)index * t / 8);
    *(int64_t *)target = index;
    return true;
}

/* The class numbers of two epochs, as the loader deals them. */
static void deal(mpt_context *ctx, mpt_dataset data, int workers, int64_t order[2 * SAMPLES]) {
    mpt_loader_config config = mpt_loader_config_default();
    mpt_batch b;
    int n = 0;
    config.batch = BATCH, config.shuffle = true, config.workers = workers, config.seed = 5;
    mpt_loader loader = mpt_loader_create(ctx, data, &config);
    for (int epoch = 0; epoch < 2; epoch++) {
        printf("%d workers, epoch %d:", workers, epoch);
        while (mpt_loader_next(loader, &b)) {
            mpt_read(b.y, order + n, (size_t)b.size * sizeof *order);
            for (int64_t i = 0; i < b.size; i++) printf("%3lld", (long long)order[n++]);
            printf(" |");
        }
        printf("\n");
    }
    mpt_loader_destroy(loader);
}

int main(void) {
    int64_t broken = -1, order[2][2 * SAMPLES] = {{0}};
    mpt_context *ctx = lesson_begin("07_data", "Lesson 7: data");
    if (!ctx) return EXIT_BAD_INPUT;

    mpt_user_dataset_config waves;
    memset(&waves, 0, sizeof waves);
    waves.count = SAMPLES, waves.dtype = MPT_F32, waves.shape = MPT_SHAPE(8);
    waves.target_dtype = MPT_I64, waves.target_shape = MPT_SCALAR;
    waves.sample = wave, waves.user = &broken;
    mpt_dataset data = mpt_user_dataset(ctx, &waves);

    heading("Batches of four; the last one is short; each epoch has another order");
    deal(ctx, data, 0, order[0]);

    heading("Two threads make the batches ahead: the same order, the same numbers");
    deal(ctx, data, 2, order[1]);

    heading("Parts for training and testing, without a sample in both");
    const double fractions[2] = {0.8, 0.2};
    mpt_dataset parts[2];
    mpt_random_split(data, fractions, 2, 1, parts);
    printf("%lld to train, %lld to test\n", (long long)mpt_dataset_size(parts[0]),
           (long long)mpt_dataset_size(parts[1]));

    heading("An error in a thread arrives with its batch and names the sample");
    mpt_loader_config config = mpt_loader_config_default();
    mpt_batch b;
    int batches = 0;
    config.batch = BATCH, config.workers = 2;
    broken = 6;
    mpt_loader loader = mpt_loader_create(ctx, data, &config);
    while (mpt_loader_next(loader, &b)) batches++;
    printf("after %d good batch: %s\n", batches, mpt_error(ctx));
    mpt_clear_error(ctx);
    return lesson_end(ctx, batches == 1 && memcmp(order[0], order[1], sizeof order[0]) == 0);
}
