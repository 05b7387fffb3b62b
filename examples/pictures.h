/* pictures.h - the pictures that resnet.c and vit.c learn: CIFAR-10, or the drawn digits. */
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
