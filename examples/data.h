/* data.h - the digits that the examples learn: MNIST where it is at hand, else drawn ones.
 *
 * Looked for in this order: the folder that the user names, data/mnist, the digits of digits.h.
 * Inputs are normalised as in PyTorch's MNIST example; weights are used with the same numbers. */
#ifndef DATA_H
#define DATA_H

#include <stdio.h>
#include <stdlib.h>

#include "digits.h"
#include "mptrain.h"

#define DATA_MEAN 0.1307 /* of the MNIST training set, and of the drawn digits within 0.04 */
#define DATA_DEVIATION 0.3081

typedef struct data_sets {
    mpt_dataset train, test;
    char name[300]; /* what they are, for people */
} data_sets;

static inline bool data_is_there(const char *folder) {
    static const char *const endings[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/train-images-idx3-ubyte%s", folder, endings[i]);
        FILE *file = fopen(path, "rb");
        if (file) fclose(file);
        if (file) return true;
    }
    return false;
}

/* The drawn digits of a set as a dataset that owns its memory. */
static inline mpt_dataset data_drawn(mpt_context *ctx, uint64_t seed, int64_t count) {
    uint8_t *images = (uint8_t *)malloc((size_t)count * DIGITS_PIXELS);
    int64_t *labels = (int64_t *)malloc((size_t)count * sizeof *labels);
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    for (int64_t i = 0; images && labels && i < count; i++) {
        uint8_t label;
        digits_render(seed, i, images + i * DIGITS_PIXELS, &label);
        labels[i] = label;
    }
    config.count = count;
    config.dtype = MPT_U8;
    config.shape = MPT_SHAPE(1, DIGITS_SIZE, DIGITS_SIZE);
    config.inputs = images;
    config.targets = labels;
    mpt_dataset dataset = mpt_memory_dataset(ctx, &config);
    free(images);
    free(labels);
    return dataset;
}

/* Opens the training and the test digits; what goes wrong is in mpt_error(ctx). */
static inline data_sets data_open(mpt_context *ctx, const char *folder) {
    data_sets sets;
    if (!folder && data_is_there("data/mnist")) folder = "data/mnist";
    if (folder) {
        snprintf(sets.name, sizeof sets.name, "MNIST from %s", folder);
        sets.train = mpt_mnist(ctx, folder, MPT_TRAIN);
        sets.test = mpt_mnist(ctx, folder, MPT_TEST);
    } else {
        snprintf(sets.name, sizeof sets.name, "embedded digits (drawn by the program, not MNIST)");
        sets.train = data_drawn(ctx, DIGITS_TRAIN_SEED, DIGITS_TRAIN_COUNT);
        sets.test = data_drawn(ctx, DIGITS_TEST_SEED, DIGITS_TEST_COUNT);
    }
    mpt_normalize(sets.train, DATA_MEAN, DATA_DEVIATION);
    mpt_normalize(sets.test, DATA_MEAN, DATA_DEVIATION);
    return sets;
}

#endif
