/* tables_cifar.c - an image folder as CIFAR-10's binary files, which the examples read.
 *
 *     tables_cifar FOLDER OUT     FOLDER/train and FOLDER/test with a folder for each class
 *
 * Pictures are 32 x 32. Writes OUT/data_batch_1.bin to _5.bin and OUT/test_batch.bin. Samples of
 * the ten classes take turns, so that any first part of them is balanced. */
#define MPTRAIN_STB_IMAGE
#define MPTRAIN_STB_IMAGE_IMPLEMENTATION
#define MPTRAIN_STATIC
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 32, PIXELS = 3 * SIDE * SIDE, CLASSES = 10, FILES = 5 };

static int fail(const char *what, const char *why) {
    fprintf(stderr, "tables_cifar: %s: %s\n", what, why);
    return 2;
}

/* The numbers of the samples, the classes in turn; NULL if there is no memory or they are not as
   many of each. */
static int64_t *take_turns(mpt_dataset images, int64_t count) {
    int64_t *order = (int64_t *)calloc((size_t)count, sizeof *order), seen[CLASSES] = {0}, target;
    for (int64_t i = 0; order && i < count; i++) {
        if (mpt_sample(images, i, NULL, &target) != MPT_OK || target >= CLASSES ||
            seen[target] >= count / CLASSES) {
            free(order);
            return NULL;
        }
        order[seen[target]++ * CLASSES + target] = i;
    }
    return order;
}

static bool write_file(mpt_dataset images, const int64_t *order, int64_t count, const char *path) {
    static float pixels[PIXELS];
    uint8_t record[1 + PIXELS];
    int64_t target = 0;
    FILE *file = fopen(path, "wb");
    bool good = file != NULL;
    for (int64_t i = 0; good && i < count; i++) {
        good = mpt_sample(images, order[i], pixels, &target) == MPT_OK;
        record[0] = (uint8_t)target;
        for (int at = 0; at < PIXELS; at++) record[1 + at] = (uint8_t)(pixels[at] * 255 + 0.5f);
        good = good && fwrite(record, 1, sizeof record, file) == sizeof record;
    }
    if (file && fclose(file) != 0) good = false;
    return good;
}

static int convert(mpt_context *ctx, const char *from, const char *to, bool train) {
    char path[1000];
    int64_t shape = 0;
    snprintf(path, sizeof path, "%s/%s", from, train ? "train" : "test");
    mpt_dataset images = mpt_image_folder(ctx, path, NULL);
    const int64_t count = mpt_dataset_size(images), part = train ? count / FILES : count;
    mpt_loader first = mpt_loader_create(ctx, images, NULL);
    mpt_batch b;
    if (mpt_loader_next(first, &b)) shape = mpt_numel(b.x) / b.size;
    int64_t *order = mpt_failed(ctx) ? NULL : take_turns(images, count);
    if (mpt_failed(ctx)) return fail(path, mpt_error(ctx));
    if (!order || shape != PIXELS || count % (CLASSES * FILES))
        return fail(path,
                    "expected ten folders of as many pictures each, 32 x 32, a multiple of 5");
    for (int i = 0; i < (train ? FILES : 1); i++) {
        snprintf(path, sizeof path, train ? "%s/data_batch_%d.bin" : "%s/test_batch.bin", to,
                 i + 1);
        if (!write_file(images, order + i * part, part, path))
            return fail(path, mpt_failed(ctx) ? mpt_error(ctx) : "cannot be written");
    }
    free(order);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 3) return fail("usage", "tables_cifar FOLDER OUT");
    mpt_context *ctx = mpt_create(NULL);
    if (!ctx) return fail("mpt_create", mpt_error(NULL));
    int status = convert(ctx, argv[1], argv[2], true);
    if (status == 0) status = convert(ctx, argv[1], argv[2], false);
    mpt_destroy(ctx);
    return status;
}
