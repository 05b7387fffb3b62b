/* test_op_faults.c: every row of the op table, forward and backward, with each allocation refused
   and each launch failing in turn, on the cases of test_gradcheck.c in fp64, fp32 and, under
   autocast, fp16. Each time there is one error of the right kind, nothing leaks, and after
   mpt_clear_error result and gradients have the bits of a run that never failed. */
#define MPTRAIN_IMPLEMENTATION
#define MPT__REAL double
#include "mptrain.h"

#include "harness.h"
#include "training.h"
#undef TEST_TABLE
#undef TEST_MAIN
#define TEST_TABLE static const test_entry gradcheck_table[]
#define TEST_MAIN

/* The cases look at shapes of what failed, too. */
static mpt_shape shape_of(mpt_tensor tensor) {
    mpt_shape shape = mpt_get_shape(tensor);
    return shape.rank < 0 ? MPT_SHAPE(1, 1, 1, 1) : shape;
}
#define mpt_get_shape shape_of
#include "test_gradcheck.c"
#include "faulty_launch.h"

static arena memory;

static bool begin_faulty(void) {
    if (!begin()) return false;
    mpt_destroy(context);
    mpt_config config = mpt_config_default();
    config.isa = MPT_ISA_REF;
    config.threads = 1;
    arena_use(&memory, &config);
    context = mpt_create(&config);
    if (!context) return false;
    scaler = mpt_grad_scaler(context, NULL);
    mpt_op_class square = {"square", MPT_AUTOCAST_INPUT, square_forward, square_backward, 1, 1};
    square_op = mpt_op_register(context, &square, NULL);
    context->pool_reach = -1; /* idle memory never serves: each storage asks the allocator */
    break_launches(context);
    return true;
}

/* ==== One case ==== */

typedef struct trial {
    const op_case *row;
    int variant;
    bool transposed;
    mpt_dtype dtype, region; /* of the leaves; MPT_F32: no autocast */
    mpt_tensor upstream;     /* none before the first run */
} trial;

static uint64_t hash_tensor(uint64_t hash, mpt_tensor tensor) {
    static double buffer[4096];
    int64_t n = mpt_numel(tensor);
    size_t bytes = (size_t)(n > 0 ? n : 0) * mpt_dtype_size(mpt_get_dtype(tensor));
    if (bytes == 0 || bytes > sizeof buffer || mpt_read(tensor, buffer, bytes) != MPT_OK)
        return hash;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((unsigned char *)buffer)[i]) * UINT64_C(1099511628211);
    return hash;
}

/* Forward and backward in a step of its own; a hash of the result and the gradients. */
static uint64_t run_trial(trial *t) {
    uint64_t hash = 1;
    mpt_scope_begin(context);
    if (t->region != MPT_F32) mpt_autocast_begin(context, t->region);
    mpt_tensor out = evaluate(t->row, t->variant, t->transposed);
    if (t->region != MPT_F32) mpt_autocast_end(context);
    if (t->upstream.slot == 0 && !mpt_failed(context)) {
        mpt_tensor ones = mpt_ones(context, mpt_get_dtype(out), mpt_get_shape(out));
        t->upstream = mpt_keep(ones);
    }
    mpt_backward_from(out, t->upstream, false);
    if (!mpt_failed(context)) hash = hash_tensor(hash, out);
    for (int i = 0; i < t->row->n_in && !mpt_failed(context); i++) {
        if (mpt_has_grad(leaf[i])) hash = hash_tensor(hash, mpt_grad(leaf[i]));
        mpt_clear_grad(leaf[i]);
    }
    mpt_scope_end(context);
    return hash;
}

/* The run with allocation or launch number `n` failing: whether it got that far. */
static bool fails_at(trial *t, bool allocation, int64_t n) {
    mpt_memory_trim(context);
    int64_t live = mpt_memory(context).total_current, refused = memory.refused;
    if (allocation)
        memory.fail_at = memory.calls + n, memory.failures = 2;
    else
        bad_launch = launches + n;
    int64_t launched = launches;
    run_trial(t);
    bool reached = allocation ? memory.refused > refused : launches - launched >= n;
    memory.fail_at = 0, bad_launch = 0;
    if (!reached) return false;
    CHECK_EQ_INT(mpt_error_code(context), allocation ? MPT_ERROR_MEMORY : MPT_ERROR_DEVICE);
    CHECK_CONTAINS(mpt_error(context), allocation ? "out of memory" : "the device broke");
    mpt_clear_error(context);
    CHECK_EQ_INT(mpt_memory(context).total_current, live);
    return true;
}

static int trials, faults;

static void check_trial(trial *t) {
    static const int n_runs = 2;
    for (int i = 0; i < t->row->n_in; i++) {
        mpt_shape shape = t->row->shape[t->variant][i];
        for (int64_t e = 0; e < numel_of(&shape); e++)
            values[i][e] = uniform(t->row->low, t->row->high);
        mpt_tensor wide =
            mpt_from(context, MPT_F64, t->transposed ? reversed(shape) : shape, values[i]);
        leaf[i] = t->dtype == MPT_F64 ? wide : mpt_cast(wide, t->dtype);
        mpt_requires_grad(leaf[i], true);
        if (t->dtype != MPT_F64) mpt_release(wide);
    }
    t->upstream = none();
    run_trial(t);
    if (mpt_failed(context)) { /* a case that mixes fp64 into it */
        CHECK(t->dtype != MPT_F64);
        mpt_clear_error(context);
    } else {
        uint64_t clean = run_trial(t);
        trials++;
        for (int kind = 0; kind < n_runs && test_failures == 0; kind++) {
            int64_t n = 1;
            while (n < 500 && test_failures == 0 && fails_at(t, kind == 0, n)) n++;
            faults += (int)n - 1;
            CHECK(n < 500);
            CHECK(run_trial(t) == clean);
            if (test_failures)
                printf("\n  %s variant %d%s in %s, %s %lld: %s", t->row->op, t->variant,
                       t->transposed ? " transposed" : "", mpt_dtype_name(t->dtype),
                       kind == 0 ? "allocation" : "launch", (long long)n, mpt_error(context));
        }
        mpt_clear_error(context);
    }
    for (int i = 0; i < t->row->n_in; i++) mpt_release(leaf[i]);
    mpt_release(t->upstream);
}

static void every_op_fails(mpt_dtype dtype, mpt_dtype region) {
    (void)gradcheck_table;
    REQUIRE(begin_faulty());
    trials = faults = 0;
    for (int c = 0; c < case_count; c++) {
        for (int v = 0; v < 2 * VARIANTS && test_failures == 0; v++) {
            trial t;
            t.row = &cases[c], t.variant = v / 2, t.transposed = v & 1;
            t.dtype = dtype, t.region = region;
            check_trial(&t);
        }
    }
    printf(" %d cases, %d faults", trials, faults);
    mpt_destroy(context);
    CHECK_EQ_INT(memory.live, 0);
    CHECK_EQ_INT(memory.torn, 0);
}

TEST(every_op_fails_fp64) { every_op_fails(MPT_F64, MPT_F32); }
TEST(every_op_fails_fp32) { every_op_fails(MPT_F32, MPT_F32); }
TEST(every_op_fails_fp16) { every_op_fails(MPT_F16, MPT_F16); }

static const test_entry test_table[] = {T(every_op_fails_fp64), T(every_op_fails_fp32),
                                        T(every_op_fails_fp16)};
int main(int argc, char **argv) { return test_run(test_table, 3, argc, argv); }
