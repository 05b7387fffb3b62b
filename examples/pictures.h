/* pictures.h - what resnet.c and vit.c learn: CIFAR-10, photos, or the drawn digits. */
#ifndef PICTURES_H
#define PICTURES_H

#include "data.h"

/* Training pictures move by up to two pixels; those with colours may also be mirrored. `folder` has
 * data_batch_1.bin ..; NULL: the digits. Pictures are resized to size x size; 0: as they are. */
static inline void pictures_open(mpt_context *ctx, const char *folder, int64_t subset, int64_t size,
                                 data_sets *sets) {
    const bool colours = folder != NULL;
    const int64_t own = colours ? 32 : DIGITS_SIZE, side = size ? size : own;
    const double mean[3] = {0.4914, 0.4822, 0.4465}, deviation[3] = {0.247, 0.2435, 0.2616};
    mpt_transform steps[4];
    int count = 0, all;
    if (side != own) steps[count++] = mpt_transform_default(MPT_RESIZE, side, side);
    steps[count] = mpt_transform_default(MPT_NORMALIZE, 0, 0);
    for (int c = 0; c < 3; c++) {
        steps[count].mean[c] = colours ? mean[c] : DATA_MEAN;
        steps[count].deviation[c] = colours ? deviation[c] : DATA_DEVIATION;
    }
    all = ++count; /* steps for tests, too */
    steps[count] = mpt_transform_default(MPT_RANDOM_CROP, side, side);
    steps[count++].padding = 2 * side / own;
    if (colours) steps[count++] = mpt_transform_default(MPT_RANDOM_FLIP, 0, 0);
    if (colours) {
        snprintf(sets->name, sizeof sets->name, "CIFAR-10 from %.200s", folder);
        sets->train = mpt_cifar10(ctx, folder, MPT_TRAIN);
        sets->test = mpt_cifar10(ctx, folder, MPT_TEST);
    } else {
        snprintf(sets->name, sizeof sets->name, "embedded digits (drawn by the program)");
        sets->train = data_drawn(ctx, DIGITS_TRAIN_SEED, subset);
        sets->test = data_drawn(ctx, DIGITS_TEST_SEED, subset / 4 + 1);
    }
    if (colours && mpt_dataset_size(sets->train) > subset)
        sets->train = mpt_subset(sets->train, 0, subset);
    sets->train = mpt_transformed(sets->train, steps, count);
    sets->test = mpt_transformed(sets->test, steps, all);
}

/* Photos folder/train/CLASS/name.jpg and folder/val/.., of size x size: for training a part of one
 * from any place, mirrored or not, for tests its middle. Means and deviations are ImageNet's.
 * Returns how many classes there are. Needs a build with stb_image (MPTRAIN_STB_IMAGE). */
static inline int64_t pictures_photos(mpt_context *ctx, const char *folder, int64_t size,
                                      data_sets *sets) {
    const double mean[3] = {0.485, 0.456, 0.406}, deviation[3] = {0.229, 0.224, 0.225};
    char path[600];
    int64_t classes = 0;
    mpt_image_config config = mpt_image_config_default();
    mpt_transform last = mpt_transform_default(MPT_NORMALIZE, 0, 0);
    for (int c = 0; c < 3; c++) last.mean[c] = mean[c], last.deviation[c] = deviation[c];
    const mpt_transform train[3] = {mpt_transform_default(MPT_RESIZED_CROP, size, size),
                                    mpt_transform_default(MPT_RANDOM_FLIP, 0, 0), last};
    const mpt_transform test[3] = {mpt_transform_default(MPT_RESIZE, size * 8 / 7, 0),
                                   mpt_transform_default(MPT_CENTER_CROP, size, size), last};
    config.step_count = 3;
    config.steps = train;
    snprintf(path, sizeof path, "%.500s/train", folder);
    sets->train = mpt_image_folder(ctx, path, &config);
    config.steps = test;
    snprintf(path, sizeof path, "%.500s/val", folder);
    sets->test = mpt_image_folder(ctx, path, &config);
    while (mpt_class_name(sets->train, classes)) classes++;
    snprintf(sets->name, sizeof sets->name, "%lld photos of %lld classes from %.200s",
             (long long)mpt_dataset_size(sets->train), (long long)classes, folder);
    return classes;
}

/* Weights to start from: those of the last layer stay out, since its classes may be others. */
static inline mpt_status pictures_load(mpt_module net, const char *path, const char *head,
                                       int *loaded) {
    const char *const ignored[] = {head};
    mpt_load_config config = mpt_load_config_default();
    config.ignore = ignored, config.ignore_count = 1;
    config.strict = false;
    return mpt_load(net, path, &config, loaded);
}

#endif
