/* test_launch.c: what the waist promises around a kernel: the program's float state stays its own
   and changes no bits; the debug mode names operands that leave their storage; recorded ids and the
   pool of memory do not meet; random words do not depend on the level or on how they are cut. */
#define MPTRAIN_NO_SIMD /* nothing here needs the rest, which takes long to compile */
#define MPTRAIN_NO_CONV
#define MPTRAIN_NO_ATTENTION
#define MPTRAIN_IMPLEMENTATION
#include "mptrain.h"

#include "harness.h"

enum { COUNT = 64 };

static mpt_context *make_context(mpt_isa isa, bool debug) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.isa = isa;
    config.debug = debug;
    return mpt_create(&config);
}

/* Programs built with -ffast-math flush denormals; kernels do not. */
TEST(float_state_of_the_program) {
    static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AUTO};
    const uint32_t before = mpt__float_state();
    const uint32_t plain = mpt__float_state_flush(before, false);
    const uint32_t flushing = mpt__float_state_flush(before, true);
    if (plain == flushing) SKIP("a float state that can flush denormals");
    const uint32_t tiny = 1000, twice = 2000; /* the bits of denormals */
    float value, sums[COUNT];
    memcpy(&value, &tiny, sizeof value);
    for (int l = 0; l < 2; l++) {
        for (int on = 0; on < 2; on++) {
            mpt_context *c = make_context(levels[l], false);
            mpt_tensor x = mpt_full(c, MPT_F32, MPT_SHAPE(COUNT), 0);
            float values[COUNT];
            for (int i = 0; i < COUNT; i++) values[i] = value;
            mpt_write(x, values, sizeof values);
            mpt__set_float_state(on ? flushing : plain);
            mpt_tensor y = mpt_add(x, x);
            mpt_linear(mpt_reshape(x, MPT_SHAPE(8, 8)), mpt_reshape(x, MPT_SHAPE(8, 8)),
                       mpt__null(NULL), MPT_ACTIVATION_NONE); /* FMA kernels flush for themselves */
            const uint32_t after = mpt__float_state();
            mpt__set_float_state(before);
            CHECK_EQ_INT(after, on ? flushing : plain);
            CHECK_EQ_INT(mpt_read_f32(y, sums, COUNT), MPT_OK);
            for (int i = 0; i < COUNT; i++) CHECK_EQ_BITS(&sums[i], &twice, sizeof twice);
            mpt_destroy(c);
        }
    }
}

TEST(debug_checks_operands) {
    mpt_context *c = make_context(MPT_ISA_REF, true);
    mpt_shape shape = MPT_SHAPE(4, 4);
    mpt__tensor *x = mpt__tensor_new(c, MPT_F32, &shape, MPT_MEMORY_ACTIVATION);
    mpt__launch *launch = mpt__launch_begin(c, MPT__K_FILL);
    mpt__operand *operand = mpt__operand_of(launch, 0, x, MPT__WRITE);
    CHECK_EQ_INT(mpt__submit(c, launch), MPT_OK);
    operand->shape[0] = 5; /* the last element would be number 19 of 16 */
    CHECK_EQ_INT(mpt__submit(c, launch), MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(c), "operand 0 reaches element 19 of a storage of 64 bytes");
    mpt_clear_error(c);
    operand->shape[0] = 0;
    CHECK_EQ_INT(mpt__submit(c, launch), MPT_OK);
    mpt_destroy(c);
}

/* A kernel that no table has, as a launch of another version of the file might ask for. */
TEST(a_kernel_of_no_number) {
    mpt_context *c = make_context(MPT_ISA_REF, false);
    mpt_shape shape = MPT_SHAPE(4);
    mpt__tensor *x = mpt__tensor_new(c, MPT_F32, &shape, MPT_MEMORY_ACTIVATION);
    mpt__launch *launch = mpt__launch_begin(c, MPT__K_FILL);
    mpt__operand_of(launch, 0, x, MPT__WRITE);
    launch->kernel = (uint16_t)(MPT__KERNEL_COUNT + 3);
    CHECK_EQ_INT(c->backend.workspace(c->backend.self, launch), 0);
    const mpt__execution nothing = {NULL, NULL, NULL};
    CHECK_EQ_INT(c->backend.launch(c->backend.self, &nothing, launch), MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(c->backend.error, "the ref backend has no kernel number");
    /* Nothing to copy needs no place to copy it to. */
    CHECK_EQ_INT(c->backend.upload(c->backend.self, NULL, NULL, 0), MPT_OK);
    mpt_destroy(c);
}

/* Memory that was idle when a recording began serves it under ids that outlive it: replays write
   there, so nothing else may be given it. */
TEST(recordings_keep_their_memory) {
    mpt_context *c = make_context(MPT_ISA_REF, true);
    float values[COUNT], got[COUNT];
    mpt_tensor x = mpt_ones(c, MPT_F32, MPT_SHAPE(COUNT));
    mpt_release(mpt_mul_scalar(x, 2)); /* leaves idle memory */
    mpt_record_begin(c);
    mpt_tensor y = mpt_mul_scalar(x, 3), z = mpt_mul_scalar(y, 5);
    mpt_release(y);
    mpt_release(mpt_mul_scalar(z, 7));
    mpt_recording recording = mpt_record_end(c);
    CHECK_EQ_INT(mpt_recording_launches(recording), 3);
    mpt_tensor other[8];
    for (int i = 0; i < 8; i++) other[i] = mpt_full(c, MPT_F32, MPT_SHAPE(COUNT), 100 + i);
    for (int i = 0; i < COUNT; i++) values[i] = (float)i;
    mpt_write(x, values, sizeof values);
    int64_t allocations = 0;
    for (int replay = 0; replay < 3; replay++) {
        CHECK_EQ_INT(mpt_replay(recording), MPT_OK);
        int64_t now = mpt_memory(c).allocations;
        if (replay == 2) CHECK_EQ_INT(now, allocations);
        allocations = now;
    }
    mpt_read_f32(z, got, COUNT);
    for (int i = 0; i < COUNT; i++) CHECK_NEAR(got[i], 15.0 * i, 0);
    for (int i = 0; i < 8; i++) {
        mpt_read_f32(other[i], got, COUNT);
        CHECK_NEAR(got[COUNT - 1], 100 + i, 0);
    }
    CHECK_EQ_INT(mpt_recording_destroy(recording), MPT_OK);
    mpt_destroy(c);
}

enum { TOTAL = 700 };
static const mpt__rng_key words_key = {42, 1, 2};

static void check_words(const uint32_t *whole, uint64_t start) {
    uint32_t part[TOTAL + 1];
    for (size_t first = 0; first < 40; first++) {
        for (size_t n = 0; n <= TOTAL - first; n += n < 70 ? 1 : 123) {
            part[n] = 0x5a5a5a5au;
            mpt__random_bits(words_key, start + first, n, part);
            CHECK_EQ_BITS(part, whole + first, n * sizeof *part);
            CHECK_EQ_INT(part[n], 0x5a5a5a5au);
        }
    }
}

/* Which of ones dropout keeps tells on which side of the threshold their words are. */
static void check_dropout(const mpt__routines *routines, const uint32_t *whole, uint64_t start) {
    mpt__real x[TOTAL], part[TOTAL + 1];
    for (int i = 0; i < TOTAL; i++) x[i] = 1;
    for (int first = 0; first < 40; first += 4) {
        for (int n = 0; n <= TOTAL - first; n += n < 70 ? 1 : 123) {
            uint32_t threshold = whole[TOTAL - 1 - n];
            int wrong = 0;
            part[n] = -1;
            routines->dropout(part, x, n, words_key, start + (uint64_t)first, threshold, 2);
            for (int i = 0; i < n; i++) wrong += part[i] != (whole[first + i] >= threshold ? 2 : 0);
            CHECK_EQ_INT(wrong, 0);
            CHECK(part[n] == -1);
        }
    }
}

TEST(any_chunk_gives_the_same_words) {
    /* Across the places where the low counter word wraps, too. */
    static const uint64_t starts[] = {0, (UINT64_C(1) << 34) - 300, (UINT64_C(5) << 34) - 32 * 4};
    for (int s = 0; s < 3; s++) {
        uint32_t whole[TOTAL];
        mpt__random_bits(words_key, starts[s], TOTAL, whole);
        check_words(whole, starts[s]);
        for (int i = 0; i < MPT__CPU_LEVEL_COUNT; i++) {
            const mpt__cpu_level *level = &mpt__cpu_levels[i];
            if (!level->routines || !mpt__isa_supported(level->isa, mpt__cpu_features())) continue;
            check_dropout(level->routines, whole, starts[s]);
        }
    }
}

TEST_TABLE = {T(float_state_of_the_program), T(debug_checks_operands), T(a_kernel_of_no_number),
              T(recordings_keep_their_memory), T(any_chunk_gives_the_same_words)};
TEST_MAIN
