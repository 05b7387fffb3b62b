/* The embedded digits: the same bytes everywhere, every digit about as often, no two sets alike. */
#include "../examples/digits.h"
#include "harness.h"

TEST(same_bytes_everywhere) {
    uint8_t image[DIGITS_PIXELS], label;
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (int64_t i = 0; i < 2000; i++) {
        digits_render(DIGITS_TRAIN_SEED, i * 30, image, &label);
        for (int k = 0; k <= DIGITS_PIXELS; k++)
            hash = (hash ^ (k < DIGITS_PIXELS ? image[k] : label)) * 0x100000001B3u;
    }
    CHECK_EQ_INT(hash >> 32, 0xCE63D178);
    CHECK_EQ_INT(hash & 0xFFFFFFFFu, 0x92B48849);
}

TEST(order_does_not_matter) {
    uint8_t first[DIGITS_PIXELS], again[DIGITS_PIXELS], label, label_again;
    digits_render(DIGITS_TEST_SEED, 77, first, &label);
    digits_render(DIGITS_TRAIN_SEED, 77, again, &label_again);
    CHECK(memcmp(first, again, sizeof first) != 0);
    digits_render(DIGITS_TEST_SEED, 77, again, &label_again);
    CHECK_EQ_BITS(again, first, sizeof first);
    CHECK_EQ_INT(label_again, label);
}

TEST(every_digit_and_enough_ink) {
    int counts[10] = {0};
    for (int64_t i = 0; i < 5000; i++) {
        uint8_t image[DIGITS_PIXELS], label;
        int inked = 0;
        digits_render(DIGITS_TEST_SEED, i, image, &label);
        REQUIRE(label < 10);
        counts[label]++;
        for (int k = 0; k < DIGITS_PIXELS; k++) inked += image[k] > 127;
        CHECK(inked >= 15 && inked < DIGITS_PIXELS / 2);
    }
    for (int digit = 0; digit < 10; digit++) CHECK(counts[digit] > 400 && counts[digit] < 600);
}

TEST_TABLE = {T(same_bytes_everywhere), T(order_does_not_matter), T(every_digit_and_enough_ink)};
TEST_MAIN
