/* test_random.c: Philox against its published vectors, and the distributions. Pinned numbers hold
   on every platform: seeds keep their meaning. That chunks and SIMD change nothing is shown in
   test_launch.c. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include "harness.h"

static mpt__rng_key key_of(uint64_t seed, uint64_t stream, uint64_t call) {
    mpt__rng_key key;
    key.seed = seed;
    key.stream = stream;
    key.call = call;
    return key;
}

/* Counter, key and result as in the file of known answers that comes with Random123. */
TEST(philox_known_answers) {
    static const uint32_t counter[3][4] = {{0, 0, 0, 0},
                                           {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu},
                                           {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}};
    static const uint32_t key[3][2] = {
        {0, 0}, {0xffffffffu, 0xffffffffu}, {0xa4093822u, 0x299f31d0u}};
    static const uint32_t want[3][4] = {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
                                        {0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
                                        {0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}};
    for (int i = 0; i < 3; i++) {
        uint32_t got[4];
        mpt__philox_block(counter[i], key[i], got);
        CHECK_EQ_BITS(got, want[i], sizeof got);
    }
}

TEST(keys_map_to_counters_as_documented) {
    uint32_t direct[4], got[4];
    uint64_t sequence = mpt__hash_u64(7, 9);
    uint32_t counter[4] = {3, 0, (uint32_t)sequence, (uint32_t)(sequence >> 32)};
    uint32_t key[2] = {0x89abcdefu, 0x01234567u};
    mpt__philox_block(counter, key, direct);
    mpt__random_bits(key_of(UINT64_C(0x0123456789abcdef), 7, 9), 12, 4, got);
    CHECK_EQ_BITS(got, direct, sizeof got);
}

TEST(seed_stream_call_and_index_all_matter) {
    uint32_t base[4], other[4];
    mpt__random_bits(key_of(1, 2, 3), 0, 4, base);
    mpt__random_bits(key_of(UINT64_C(1) << 32 | 1, 2, 3), 0, 4, other);
    CHECK(memcmp(base, other, sizeof base) != 0);
    mpt__random_bits(key_of(1, 3, 2), 0, 4, other);
    CHECK(memcmp(base, other, sizeof base) != 0);
    mpt__random_bits(key_of(1, 2, 4), 0, 4, other);
    CHECK(memcmp(base, other, sizeof base) != 0);
    mpt__random_bits(key_of(1, 2, 3), UINT64_C(1) << 34, 4, other);
    CHECK(memcmp(base, other, sizeof base) != 0);
}

TEST(hashes) {
    static const char text[] = "0.weight and a little more";
    CHECK(mpt__hash_u64(1, 2) != mpt__hash_u64(2, 1));
    CHECK(mpt__hash_bytes(0, "", 0) != mpt__hash_bytes(1, "", 0));
    CHECK(mpt__hash_bytes(0, "a", 1) != mpt__hash_bytes(0, "a\0", 2));
    /* Each byte of each length matters. */
    for (size_t n = 1; n < sizeof text; n++) {
        uint64_t hash = mpt__hash_bytes(5, text, n);
        for (size_t i = 0; i < n; i++) {
            char changed[sizeof text];
            memcpy(changed, text, sizeof text);
            changed[i] = (char)(changed[i] ^ 1);
            CHECK(mpt__hash_bytes(5, changed, n) != hash);
        }
    }
    /* Flipping one input bit flips about half of the output. */
    int flips = 0;
    for (int bit = 0; bit < 64; bit++) {
        uint64_t differing = mpt__hash_u64(3, 4) ^ mpt__hash_u64(3, 4 ^ UINT64_C(1) << bit);
        for (; differing; differing &= differing - 1) flips++;
    }
    CHECK(flips > 64 * 28 && flips < 64 * 36);
    CHECK_EQ_INT(mpt__hash_bytes(0, text, 26), INT64_C(3744642785218495103));
    CHECK_EQ_INT(mpt__hash_u64(0, 0), INT64_C(5197578548964807871));
}

TEST(uniform_floats) {
    enum { COUNT = 100000 };
    static float values[COUNT], again[COUNT];
    double sum = 0, square = 0;
    uint64_t hash = 0;
    CHECK(mpt__uniform_from_bits(0) == 0.0f);
    CHECK(mpt__uniform_from_bits(0xffffffffu) == 1.0f - 1.0f / 16777216.0f);
    mpt__random_uniform(key_of(1, 1, 1), 5, COUNT, -2.1f, 3.0f, values);
    for (int i = 0; i < COUNT; i++) {
        CHECK(values[i] >= -2.1f && values[i] < 3.0f);
        sum += (double)values[i];
        square += (double)values[i] * (double)values[i];
        hash = mpt__hash_u64(hash, mpt__f32_bits(values[i]));
    }
    CHECK_EQ_INT(hash, INT64_C(5780111306902184225));
    CHECK_NEAR(sum / (double)COUNT, 0.45, 0.02);
    CHECK_NEAR(square / (double)COUNT, 0.2025 + 5.1 * 5.1 / 12, 0.03);
    mpt__random_uniform(key_of(1, 1, 1), 5, 77, -2.1f, 3.0f, again);
    mpt__random_uniform(key_of(1, 1, 1), 82, COUNT - 77, -2.1f, 3.0f, again + 77);
    CHECK_EQ_BITS(again, values, sizeof values);
    /* Between two neighbours only the lower is in [low, high). */
    mpt__random_uniform(key_of(2, 2, 2), 0, 100, 1.0f, mpt__f32_from_bits(0x3f800001u), values);
    for (int i = 0; i < 100; i++) CHECK(values[i] == 1.0f);
}

TEST(normal_floats) {
    enum { COUNT = 200000 };
    static float values[COUNT], again[COUNT];
    double moment[5] = {0, 0, 0, 0, 0}, pairs = 0;
    int beyond_two = 0, beyond_four = 0;
    uint64_t hash = 0;
    mpt__random_normal(key_of(1, 1, 1), 0, COUNT, 0.0f, 1.0f, values);
    for (int i = 0; i < COUNT; i++) {
        double x = (double)values[i], power = 1.0;
        for (int k = 0; k < 5; k++, power *= x) moment[k] += power;
        if (i % 2) pairs += x * (double)values[i - 1];
        beyond_two += x > 2.0 || x < -2.0;
        beyond_four += x > 4.0 || x < -4.0;
        hash = mpt__hash_u64(hash, mpt__f32_bits(values[i]));
    }
    CHECK_NEAR(moment[1] / (double)COUNT, 0.0, 0.008);
    CHECK_NEAR(moment[2] / (double)COUNT, 1.0, 0.012);
    CHECK_NEAR(moment[3] / (double)COUNT, 0.0, 0.03);
    CHECK_NEAR(moment[4] / (double)COUNT, 3.0, 0.12);
    CHECK_NEAR(pairs / (double)COUNT * 2, 0.0, 0.012);
    CHECK_NEAR(beyond_two / (double)COUNT, 0.0455, 0.002);
    CHECK(beyond_four >= 3 && beyond_four <= 30);
    CHECK_EQ_INT(hash, INT64_C(-8241289905684658145));
    /* Chunks of any size and place. */
    for (size_t at = 0, n = 0; at < COUNT; at += n, n = (n + 1) % 11) {
        size_t take = n < COUNT - at ? n : COUNT - at;
        mpt__random_normal(key_of(1, 1, 1), at, take, 0.0f, 1.0f, again + at);
    }
    CHECK_EQ_BITS(again, values, sizeof values);
    mpt__random_normal(key_of(1, 1, 1), 10, 3, 5.0f, 0.5f, again);
    for (int i = 0; i < 3; i++) CHECK_NEAR(again[i], 5.0 + 0.5 * (double)values[10 + i], 1e-6);
}

TEST(the_tails_of_the_normal) {
    double value[2];
    mpt__normal_pair(0, 0, value); /* the smallest uniform number gives the largest radius */
    CHECK_CLOSE(value[0], 6.660436, 1e-6, 0.0);
    CHECK(value[1] == 0.0);
    mpt__normal_pair(0xffffffffu, 0x40000000u, value);
    CHECK(value[0] == 0.0 && value[1] == 0.0);
    mpt__normal_pair(0, 0x40000000u, value); /* a quarter turn */
    CHECK_CLOSE(value[1], 6.660436, 1e-6, 0.0);
    mpt__normal_pair(0, 0xe0000000u, value); /* seven eighths */
    CHECK_CLOSE(value[0], 6.660436 * 0.70710678, 1e-6, 0.0);
    CHECK_CLOSE(value[1], -6.660436 * 0.70710678, 1e-6, 0.0);
}

TEST(integers_below_a_bound) {
    static const uint64_t bounds[] = {
        1, 2, 3, 10, UINT64_C(1) << 32, (UINT64_C(1) << 63) + 1, UINT64_MAX};
    uint64_t high, low;
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
        for (uint64_t i = 0; i < 2000; i++) {
            CHECK(mpt__random_below(key_of(9, 0, 0), i, bounds[b]) < bounds[b]);
        }
    }
    /* Chi-square over six faces; 20.5 is passed by chance once in a thousand. */
    long count[6] = {0, 0, 0, 0, 0, 0};
    double chi = 0;
    for (uint64_t i = 0; i < 60000; i++) count[mpt__random_below(key_of(3, 1, 4), i, 6)]++;
    for (int i = 0; i < 6; i++) {
        double off = (double)count[i] - 10000.0;
        chi += off * off / 10000.0;
    }
    CHECK(chi < 20.5);
    /* With a bound of 3 * 2^62, taking every try would give multiples of three half of the time. */
    long threes = 0;
    for (uint64_t i = 0; i < 30000; i++) {
        threes += mpt__random_below(key_of(8, 0, 0), i, UINT64_C(3) << 62) % 3 == 0;
    }
    CHECK_NEAR(threes, 10000, 450);
    low = mpt__multiply_u64(UINT64_MAX, UINT64_MAX, &high);
    CHECK(low == 1 && high == UINT64_MAX - 1);
    low = mpt__multiply_u64(UINT64_C(0x123456789abcdef0), UINT64_C(0xfedcba9876543210), &high);
    CHECK(low == UINT64_C(0x236d88fe5618cf00) && high == UINT64_C(0x121fa00ad77d7422));
}

TEST(permutations) {
    enum { COUNT = 1000 };
    int64_t order[COUNT], orders[6] = {0, 0, 0, 0, 0, 0};
    unsigned char seen[COUNT];
    uint64_t hash = 0;
    memset(seen, 0, sizeof seen);
    mpt__random_permutation(key_of(1, 2, 3), COUNT, order);
    for (int i = 0; i < COUNT; i++) {
        REQUIRE(order[i] >= 0 && order[i] < COUNT);
        seen[order[i]]++;
        hash = mpt__hash_u64(hash, (uint64_t)order[i]);
    }
    for (int i = 0; i < COUNT; i++) CHECK_EQ_INT(seen[i], 1);
    CHECK_EQ_INT(hash, INT64_C(7278967160919090060));
    mpt__random_permutation(key_of(1, 2, 3), 0, order);
    mpt__random_permutation(key_of(1, 2, 3), 1, order);
    CHECK_EQ_INT(order[0], 0);
    /* All six orders of three, each 1000 of 6000 times; five deviations are 144. */
    for (uint64_t call = 0; call < 6000; call++) {
        mpt__random_permutation(key_of(7, 0, call), 3, order);
        orders[order[0] * 2 + (order[1] > order[2])]++;
    }
    for (int i = 0; i < 6; i++) CHECK_NEAR(orders[i], 1000, 144);
}

/* The first `count` samples that weights draw in epoch 0 of a loader with seed 5. */
static void draw(const double *weights, int samples, int count, int64_t *drawn) {
    static const float nothing[3] = {0, 0, 0};
    static const int64_t numbers[3] = {0, 1, 2};
    mpt_memory_dataset_config data = mpt_memory_dataset_config_default();
    mpt_loader_config config = mpt_loader_config_default();
    mpt_config one = mpt_config_default();
    mpt_batch batch;
    one.threads = 1;
    mpt_context *context = mpt_create(&one);
    data.count = samples, data.inputs = nothing, data.targets = numbers;
    config.weights = weights, config.seed = 5, config.batch = config.samples = count;
    mpt_dataset dataset = mpt_memory_dataset(context, &data);
    CHECK(mpt_loader_next(mpt_loader_create(context, dataset, &config), &batch));
    mpt_read(batch.y, drawn, (size_t)count * sizeof *drawn);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* numpy.random.choice looks up cdf.searchsorted(draw, side="right"): a draw on an edge is the next
   sample's, and never one of weight 0. */
TEST(weighted_draws_at_edges) {
    enum { DRAWS = 20 };
    const uint64_t all = UINT64_C(1) << 53;
    int64_t drawn[DRAWS], below = 0;
    for (int i = 0; i < DRAWS; i++) {
        const uint64_t word = mpt__random_below(key_of(5, MPT__WEIGHT_STREAM, 0), (uint64_t)i, all);
        const double on[3] = {(double)word, 0, (double)(all - word)};
        const double over[3] = {(double)(word + 1), 0, (double)(all - word - 1)};
        draw(on, 3, DRAWS, drawn);
        CHECK_EQ_INT(drawn[i], 2);
        draw(over, 3, DRAWS, drawn);
        CHECK_EQ_INT(drawn[i], 0);
    }
    /* Multiples of the smallest number: the product with a draw is rounded to 0, 1 or 2 of them,
       the last of which is all of it. */
    const double least = mpt__f64_from_bits(1), small[3] = {least, least, 0};
    const uint32_t state = mpt__flush_denormals(false);
    draw(small, 3, DRAWS, drawn);
    mpt__restore_denormals(state);
    for (int i = 0; i < DRAWS; i++) {
        const uint64_t word = mpt__random_below(key_of(5, MPT__WEIGHT_STREAM, 0), (uint64_t)i, all);
        CHECK_EQ_INT(drawn[i], word > all / 4);
        below += word <= all / 4;
    }
    CHECK(below > 0 && below < DRAWS);
}

TEST_TABLE = {T(philox_known_answers),
              T(keys_map_to_counters_as_documented),
              T(seed_stream_call_and_index_all_matter),
              T(hashes),
              T(uniform_floats),
              T(normal_floats),
              T(the_tails_of_the_normal),
              T(integers_below_a_bound),
              T(permutations),
              T(weighted_draws_at_edges)};
TEST_MAIN
