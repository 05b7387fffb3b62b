/* api_transformer.c: rotary positions, gated units, norms of queries and keys: against PyTorch, and
   what they promise about bits. */
#include "golden.h"

#include "checks.h"

#define MAX_IN 8

static mpt_context *context;

static bool begin(int threads) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    config.seed = 11;
    config.debug = true;
    context = mpt_create(&config);
    if (!context) TEST_FAIL_("%s", mpt_error(NULL));
    return context != NULL;
}

/* ==== Goldens ==== */

static mpt_tensor call_op(const golden_case *c, const mpt_tensor *in) {
    if (strcmp(c->op, "glu") == 0) return mpt_glu(in[0], (int)c->ints[0], (mpt_gate)c->ints[1]);
    if (strcmp(c->op, "hash_grid") == 0) {
        const golden_tensor *x = golden_find(c, "in1");
        return mpt_hash_grid(mpt_from(context, x->dtype, x->shape, x->data), in[0], c->ints[0],
                             c->ints[1]);
    }
    if (strcmp(c->op, "windowed_attention") == 0) {
        mpt_attention_config config = mpt_attention_config_default();
        config.causal = true, config.window = c->ints[0], config.offset = c->ints[1];
        return mpt_scaled_dot_product_attention(in[0], in[1], in[2], &config);
    }
    mpt_rope_config rope = mpt_rope_config_default();
    rope.offset = c->ints[0], rope.interleaved = c->ints[1] != 0, rope.heads = (int)c->ints[2];
    rope.base = c->reals[0];
    return mpt_rope(in[0], &rope);
}

/* ints: heads, norms, 1 for halves and 2 for neighbours, offset. Leaves behind x are parameters. */
static mpt_tensor call_layer(const golden_case *c, mpt_tensor *in, int n) {
    mpt_multi_head_config config = mpt_multi_head_config_default();
    config.causal = true;
    config.qk_norm = c->ints[1] != 0;
    if (c->ints[2]) config.rope = mpt_rope_config_default();
    config.rope.interleaved = c->ints[2] == 2, config.rope.offset = c->ints[3];
    mpt_module layer =
        mpt_nn_multi_head_attention(context, c->tensors[0].shape.dim[2], (int)c->ints[0], &config);
    for (int i = 1; i < n; i++) {
        const golden_tensor *t = &c->tensors[i];
        in[i] = mpt_parameter(layer, t->name);
        CHECK_EQ_INT(mpt_write(in[i], t->data, (size_t)t->count * 4), MPT_OK);
    }
    CHECK_EQ_INT(mpt_parameter_count(layer), n - 1);
    return mpt_forward(layer, in[0]);
}

static void run_case(const golden_case *c) {
    mpt_tensor in[MAX_IN];
    int n = 0;
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors && c->tensors[i].role == GOLDEN_LEAF; i++, n++) {
        const golden_tensor *t = &c->tensors[i];
        in[i] = mpt_from(context, t->dtype, t->shape, t->data);
        mpt_requires_grad(in[i], true);
    }
    mpt_tensor out =
        strcmp(c->op, "multi_head_attention") == 0 ? call_layer(c, in, n) : call_op(c, in);
    const golden_tensor *want = golden_find(c, "out"), *up = golden_find(c, "upstream");
    CHECK_EQ_INT(mpt_get_dtype(out), want->dtype);
    golden_compare_tensor(context, c, want, out);
    mpt_backward_from(out, mpt_from(context, up->dtype, up->shape, up->data), false);
    golden_compare_gradients(context, c, in);
    check_ok(context);
    mpt_scope_end(context);
}

TEST(as_pytorch) {
    REQUIRE(begin(0));
    golden_run(context, "transformer.bin", run_case, 40);
    mpt_destroy(context);
}

/* ==== Rotary positions ==== */

static mpt_tensor noise(mpt_shape shape, uint32_t stream) {
    int64_t n = 1;
    for (int d = 0; d < shape.rank; d++) n *= shape.dim[d];
    float *values = (float *)malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = golden_uniform(stream, (uint32_t)i);
    mpt_tensor made = mpt_from(context, MPT_F32, shape, values);
    free(values);
    return made;
}

enum { ROWS = 40, WIDTH = 24, MOST = 3 * ROWS * WIDTH };

/* A later row of a longer text is what the offset makes of it; views are read where they lie. */
TEST(an_offset_is_the_place_in_a_text) {
    static float whole[MOST], part[MOST];
    REQUIRE(begin(2));
    mpt_tensor x = noise(MPT_SHAPE(3, ROWS, WIDTH), 1);
    mpt_rope_config rope = mpt_rope_config_default();
    for (int k = 0; k < 4; k++) {
        rope.interleaved = k & 1, rope.heads = k & 2 ? 3 : 0, rope.offset = 0;
        mpt_read_f32(mpt_slice(mpt_rope(x, &rope), 1, 13, ROWS, 1), whole, 3 * 27 * WIDTH);
        rope.offset = 13;
        mpt_read_f32(mpt_rope(mpt_slice(x, 1, 13, ROWS, 1), &rope), part, 3 * 27 * WIDTH);
        CHECK(memcmp(whole, part, sizeof(float) * 3 * 27 * WIDTH) == 0);
    }
    check_ok(context);
    mpt_destroy(context);
}

/* Turning keeps lengths and the product of a query and a key that are moved by as much. */
TEST(products_depend_on_the_distance) {
    static float near_by[25], moved[25];
    REQUIRE(begin(1));
    mpt_tensor q = noise(MPT_SHAPE(5, WIDTH), 1), k = noise(MPT_SHAPE(5, WIDTH), 2);
    mpt_rope_config rope = mpt_rope_config_default();
    for (int i = 0; i < 2; i++) {
        mpt_tensor a = mpt_rope(q, &rope), b = mpt_rope(k, &rope);
        mpt_read_f32(mpt_matmul(a, mpt_transpose(b, 0, 1)), i ? moved : near_by, 25);
        rope.offset = 100000;
    }
    for (int i = 0; i < 25; i++) CHECK_NEAR(near_by[i], moved[i], 1e-5);
    check_ok(context);
    mpt_destroy(context);
}

TEST(the_same_bits_for_any_number_of_threads) {
    static float first[MOST], again[MOST];
    for (int threads = 1; threads < 4; threads++) {
        float *to = threads == 1 ? first : again;
        REQUIRE(begin(threads));
        mpt_read_f32(mpt_rope(noise(MPT_SHAPE(3, ROWS, WIDTH), 4), NULL), to, MOST);
        CHECK(memcmp(first, to, sizeof first) == 0);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* Of views of places; y, and the table's gradient. */
TEST(grids_have_the_same_bits_for_any_number_of_threads) {
    enum { POINTS = 300, LEVELS = 5, ENTRIES = 50, ALL = LEVELS * ENTRIES * 2 };
    static float y[3][POINTS * LEVELS * 2], slope[3][ALL], row[3 * LEVELS * 2];
    mpt_hash_grid_config config = mpt_hash_grid_config_default();
    config.levels = LEVELS, config.entries = ENTRIES, config.coarsest = 2, config.finest = 40;
    for (int t = 0; t < 3; t++) {
        REQUIRE(begin(t + 1));
        mpt_module net = mpt_sequential(context, mpt_nn_hash_grid(context, &config), MPT_END);
        mpt_tensor x = noise(MPT_SHAPE(2, POINTS / 2, 4), 41);
        x = mpt_slice(x, 2, 0, 3, 1);
        mpt_tensor out = mpt_forward(net, x);
        mpt_read_f32(out, y[t], POINTS * LEVELS * 2);
        mpt_backward(mpt_sum(mpt_mul(out, noise(mpt_get_shape(out), 42)), MPT_ALL_DIMS, false));
        mpt_read_f32(mpt_grad(mpt_parameter(net, "0.table")), slope[t], ALL);
        CHECK(memcmp(y[0], y[t], sizeof y[0]) == 0);
        CHECK(memcmp(slope[0], slope[t], sizeof slope[0]) == 0);
        const float odd[9] = {(float)NAN, 0.5f, 0.5f, (float)INFINITY, -2, 7, 1, 0, 1};
        mpt_read_f32(mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 3), odd)), row,
                     3 * LEVELS * 2);
        for (int i = 0; i < 2 * LEVELS; i++) { /* what is outside is at the edge, NaN is NaN */
            CHECK(row[i] != row[i] && row[2 * LEVELS + i] == row[4 * LEVELS + i]);
            CHECK(row[2 * LEVELS + i] != 0);
        }
        check_ok(context);
        mpt_destroy(context);
    }
}

/* ==== Windows ==== */

/* One pass of attention over 150 places, by a window or by the mask that it is; y and gradients. */
static void windowed(mpt_dtype dtype, bool by_mask, double dropout, float *y) {
    enum { T = 150, D = 4 };
    static unsigned char seen[T * T];
    mpt_tensor x[3];
    mpt_attention_config config = mpt_attention_config_default();
    for (int i = 0; i < T * T; i++) seen[i] = i % T <= i / T && i % T > i / T - 30;
    for (int i = 0; i < 3; i++) {
        x[i] = mpt_cast(noise(MPT_SHAPE(1, 2, T, D), 20 + (uint32_t)i), dtype);
        x[i] = mpt_detach(x[i]);
        mpt_requires_grad(x[i], true);
    }
    config.causal = !by_mask, config.window = by_mask ? 0 : 30, config.dropout = dropout;
    if (by_mask) config.mask = mpt_from(context, MPT_BOOL, MPT_SHAPE(T, T), seen);
    mpt_step_begin(context); /* the first call of a step: both draw the same */
    mpt_tensor out = mpt_scaled_dot_product_attention(x[0], x[1], x[2], &config);
    mpt_read_f32(out, y, 2 * T * D);
    mpt_backward(mpt_sum(mpt_mul(out, out), MPT_ALL_DIMS, false));
    for (int i = 0; i < 3; i++) mpt_read_f32(mpt_grad(x[i]), y += 2 * T * D, 2 * T * D);
    mpt_step_end(context);
}

TEST(a_window_is_a_mask) {
    enum { ALL = 4 * 2 * 150 * 4 };
    static float by_window[ALL], by_mask[ALL], again[ALL];
    for (int k = 0; k < 4; k++) {
        const mpt_dtype dtype = k == 3 ? MPT_BF16 : k == 2 ? MPT_F16 : MPT_F32;
        for (int threads = 1; threads < 4; threads += 2) {
            REQUIRE(begin(threads));
            windowed(dtype, false, k == 1 ? 0.3 : 0.0, threads == 1 ? by_window : again);
            check_ok(context);
            mpt_destroy(context);
        }
        REQUIRE(begin(1));
        windowed(dtype, true, k == 1 ? 0.3 : 0.0, by_mask);
        CHECK(memcmp(by_window, again, sizeof again) == 0);
        for (int i = 0; i < ALL; i++)
            CHECK_NEAR(by_window[i], by_mask[i], dtype == MPT_F32 ? 1e-5 : 0.03);
        check_ok(context);
        mpt_destroy(context);
    }
}

/* What lies outside of a window has no part in anything, even if it is NaN, nor in gradients. */
TEST(a_window_hides_what_it_passed) {
    enum { T = 150, WINDOW = 30, BAD = 40, LAST = BAD + WINDOW - 1 };
    static float y[4 * T], row[4];
    REQUIRE(begin(2));
    mpt_tensor x[3];
    for (int i = 0; i < 4; i++) row[i] = (float)NAN;
    for (int i = 0; i < 3; i++) {
        x[i] = noise(MPT_SHAPE(T, 4), 7 + (uint32_t)i);
        if (i > 0)
            mpt_copy_(mpt_slice(x[i], 0, BAD, BAD + 1, 1),
                      mpt_from(context, MPT_F32, MPT_SHAPE(1, 4), row));
        mpt_requires_grad(x[i], true);
    }
    mpt_attention_config config = mpt_attention_config_default();
    config.causal = true, config.window = WINDOW;
    mpt_tensor out = mpt_scaled_dot_product_attention(x[0], x[1], x[2], &config);
    mpt_read_f32(out, y, 4 * T);
    for (int i = 0; i < T; i++) CHECK_EQ_INT(y[4 * i] != y[4 * i], i >= BAD && i <= LAST);
    mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
    for (int k = 0; k < 3; k++) { /* queries that see it, and the keys that one of those sees */
        mpt_read_f32(mpt_grad(x[k]), y, 4 * T);
        for (int i = 0; i < T; i++)
            CHECK_EQ_INT(y[4 * i] != y[4 * i], i <= LAST && i >= (k == 0 ? BAD : BAD - WINDOW + 1));
    }
    check_ok(context);
    mpt_destroy(context);
}

/* The scores of a query by itself lie side by side: it gets what it gets among others. */
TEST(one_query_is_as_many) {
    enum { T = 150, D = 6, BAD = 9 };
    static float all[2 * T * D], one[2 * D], rows[D];
    for (int i = 0; i < D; i++) rows[i] = (float)NAN;
    for (int kind = 0; kind < 6; kind++) {
        const mpt_dtype dtype = kind == 5 ? MPT_BF16 : kind == 4 ? MPT_F16 : MPT_F32;
        REQUIRE(begin(1));
        mpt_tensor x[3], mask = mpt_gt(noise(MPT_SHAPE(T, T), 3), noise(MPT_SHAPE(T, T), 4));
        for (int i = 0; i < 3; i++)
            x[i] = mpt_cast(noise(MPT_SHAPE(1, 2, T, D), 20 + (uint32_t)i), dtype);
        mpt_attention_config config = mpt_attention_config_default();
        config.causal = kind != 1, config.window = kind == 0 ? 0 : kind == 1 ? 0 : 70;
        if (kind == 3)
            mpt_copy_(mpt_slice(x[1], 2, BAD, BAD + 1, 1),
                      mpt_expand(mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, 1, D), rows),
                                 MPT_SHAPE(1, 2, 1, D)));
        if (kind == 1) config.mask = mask;
        mpt_read_f32(mpt_scaled_dot_product_attention(x[0], x[1], x[2], &config), all, 2 * T * D);
        for (int64_t t = 0; t < T; t += 7) {
            config.offset = t;
            if (kind == 1) config.mask = mpt_slice(mask, 0, t, t + 1, 1);
            mpt_tensor q = mpt_slice(x[0], 2, t, t + 1, 1);
            mpt_read_f32(mpt_scaled_dot_product_attention(q, x[1], x[2], &config), one, 2 * D);
            for (int i = 0; i < 2 * D; i++) {
                const float want = all[(i / D * T + t) * D + i % D];
                CHECK_EQ_INT(one[i] != one[i], want != want);
                if (want == want) CHECK_NEAR(one[i], want, dtype == MPT_F32 ? 1e-6 : 0.02);
            }
        }
        check_ok(context);
        mpt_destroy(context);
    }
}

/* ==== Caches ==== */

enum { PLACES = 150, WIDE = 16, BATCH = 2, KEPT = BATCH * PLACES * WIDE };

static mpt_module two_layers(int kind) {
    mpt_multi_head_config config = mpt_multi_head_config_default();
    config.causal = true;
    config.qk_norm = kind & 1;
    if (kind & 2) config.rope = mpt_rope_config_default();
    config.window = kind & 1 ? 70 : 0;
    mpt_module first = mpt_nn_multi_head_attention(context, WIDE, 2, &config);
    return mpt_sequential(context, first, mpt_nn_gelu(context),
                          mpt_nn_multi_head_attention(context, WIDE, 4, &config), MPT_END);
}

/* Places `from` to `to` of x pass; what comes out goes to y [BATCH, PLACES, WIDE]. */
static void pass(mpt_module net, mpt_tensor x, int64_t from, int64_t to, float *y) {
    static float part[KEPT];
    mpt_scope_begin(context);
    mpt_read_f32(mpt_forward(net, mpt_slice(x, 1, from, to, 1)), part, BATCH * (to - from) * WIDE);
    mpt_scope_end(context);
    for (int64_t b = 0; b < BATCH; b++)
        memcpy(y + (b * PLACES + from) * WIDE, part + b * (to - from) * WIDE,
               (size_t)((to - from) * WIDE) * sizeof *y);
}

TEST(a_cache_gives_what_the_whole_text_gives) {
    static float whole[KEPT], by_parts[KEPT];
    for (int kind = 0; kind < 4; kind++) {
        REQUIRE(begin(2));
        mpt_module net = two_layers(kind);
        mpt_tensor x = noise(MPT_SHAPE(BATCH, PLACES, WIDE), 30);
        mpt_inference_begin(context);
        pass(net, x, 0, PLACES, whole);
        mpt_cache_begin(net, BATCH, PLACES);
        int64_t calls = 0;
        for (int again = 0; again < 2; again++) {
            pass(net, x, 0, 9, by_parts);
            pass(net, x, 9, 100, by_parts); /* more than one place behind others */
            for (int64_t t = 100; t < PLACES; t++) {
                if (!again && t == 102) calls = mpt_memory(context).allocations;
                CHECK_EQ_INT(mpt_cache_length(net), t);
                pass(net, x, t, t + 1, by_parts);
            }
            for (int i = 0; i < KEPT; i++) CHECK_NEAR(by_parts[i], whole[i], 2e-6);
            memset(by_parts, 0, sizeof by_parts);
            mpt_cache_rewind(net, 0);
        }
        CHECK_EQ_INT(mpt_memory(context).allocations, calls);
        mpt_cache_end(net);
        CHECK_EQ_INT(mpt_cache_length(net), 0);
        mpt_inference_end(context);
        check_ok(context);
        mpt_destroy(context);
    }
}

TEST(a_cache_has_an_end) {
    float y[KEPT];
    REQUIRE(begin(1));
    mpt_module net = two_layers(2);
    mpt_tensor x = noise(MPT_SHAPE(BATCH, PLACES, WIDE), 30);
    CHECK_EQ_INT(mpt_cache_begin(net, BATCH, 10), MPT_OK);
    mpt_forward(net, mpt_slice(x, 1, 0, 4, 1));
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(context), "mpt_inference_begin");
    mpt_clear_error(context);
    mpt_inference_begin(context);
    pass(net, x, 0, 8, y);
    mpt_forward(net, mpt_slice(x, 1, 8, 11, 1));
    CHECK_CONTAINS(mpt_error(context), "3 places more than the 8 that the cache has of 10");
    mpt_clear_error(context);
    mpt_inference_begin(context);
    CHECK_EQ_INT(mpt_cache_length(net), 8);
    pass(net, x, 8, 10, y);
    check_ok(context);
    mpt_forward(net, mpt_slice(x, 0, 0, 1, 1));
    CHECK_CONTAINS(mpt_error(context), "takes x [2, T, width] alone");
    mpt_clear_error(context);
    mpt_module_destroy(net); /* and with it the cache */
    check_ok(context);
    mpt_destroy(context);
}

TEST(gated_layer_is_the_function) {
    float y[12], want[12];
    REQUIRE(begin(1));
    for (int gate = MPT_GATE_SIGMOID; gate <= MPT_GATE_GELU; gate++) {
        mpt_tensor x = noise(MPT_SHAPE(3, 8), 5);
        mpt_module net = mpt_sequential(context, mpt_nn_glu(context, (mpt_gate)gate), MPT_END);
        mpt_read_f32(mpt_forward(net, x), y, 12);
        mpt_read_f32(mpt_glu(x, 1, (mpt_gate)gate), want, 12);
        CHECK(memcmp(y, want, sizeof y) == 0);
    }
    check_ok(context);
    mpt_destroy(context);
}

TEST_TABLE = {T(as_pytorch),
              T(an_offset_is_the_place_in_a_text),
              T(products_depend_on_the_distance),
              T(the_same_bits_for_any_number_of_threads),
              T(grids_have_the_same_bits_for_any_number_of_threads),
              T(a_window_is_a_mask),
              T(a_window_hides_what_it_passed),
              T(one_query_is_as_many),
              T(a_cache_gives_what_the_whole_text_gives),
              T(a_cache_has_an_end),
              T(gated_layer_is_the_function)};
TEST_MAIN
