/* api_norm.c: norms and pooling: against PyTorch, forward and every gradient, in fp32, fp16 and
 * bf16; larger ones against sums in double; batch norm's running statistics. */
#include "golden.h"

#define MAX_INPUTS 6
enum { CHANNELS_LAST = 3 };

static mpt_context *context;

static mpt_tensor nothing(void) {
    mpt_tensor null;
    memset(&null, 0, sizeof null);
    return null;
}

/* ==== Goldens ==== */

static mpt_tensor call(const golden_case *c, const mpt_tensor *in, mpt_tensor *sum) {
    const double eps = c->n_reals > 0 ? c->reals[0] : 0;
    const int n = c->n_ints > 0 ? (int)c->ints[0] : 0;
    *sum = nothing();
#define OP(id, expression) \
    if (strcmp(c->op, #id) == 0) return expression
    OP(layer_norm, mpt_layer_norm(in[0], n, in[1], in[2], eps));
    OP(rms_norm, mpt_rms_norm(in[0], n, in[1], eps));
    OP(add_layer_norm, mpt_add_layer_norm(in[0], in[1], n, in[2], in[3], eps, sum));
    OP(add_rms_norm, mpt_add_rms_norm(in[0], in[1], n, in[2], eps, sum));
    OP(batch_norm, mpt_batch_norm(in[0], in[3], in[4], in[1], in[2], eps));
    OP(batch_norm_relu, mpt_batch_norm_relu(in[0], in[4], in[5], in[1], in[2], eps, in[3]));
    OP(group_norm, mpt_group_norm(in[0], n, in[1], in[2], eps));
    OP(adaptive_max_pool2d, mpt_adaptive_max_pool2d(in[0], c->ints[0], c->ints[1]));
    OP(adaptive_avg_pool2d, mpt_adaptive_avg_pool2d(in[0], c->ints[0], c->ints[1]));
    mpt_pool_config pool = mpt_pool_config_make(2, 0, 0);
    for (int d = 0; d < 2 && c->n_ints == 8; d++) {
        pool.window[d] = c->ints[d];
        pool.step[d] = c->ints[2 + d];
        pool.padding[d] = c->ints[4 + d];
    }
    pool.ceil_mode = c->n_ints == 8 && c->ints[6];
    pool.count_padding = c->n_ints == 8 && c->ints[7];
    OP(max_pool2d, mpt_max_pool2d(in[0], &pool));
    OP(avg_pool2d, mpt_avg_pool2d(in[0], &pool));
    OP(max_pool1d, mpt_max_pool1d(in[0], &pool));
    OP(avg_pool1d, mpt_avg_pool1d(in[0], &pool));
#undef OP
    TEST_FAIL_("%s: no such op here", c->label);
    return nothing();
}

/* The order that turns the layout of the base into the logical one. */
static int layout_order(int layout, int rank, mpt_shape *order) {
    *order = rank == 4 ? MPT_SHAPE(0, 1, 2, 3) : MPT_SHAPE(0, 1);
    if (layout == GOLDEN_TRANSPOSED) *order = MPT_SHAPE(1, 0);
    if (layout == CHANNELS_LAST) *order = MPT_SHAPE(0, 3, 1, 2);
    return layout == GOLDEN_TRANSPOSED || layout == CHANNELS_LAST;
}

/* A leaf, laid out as the case asks, and in `view` what the op gets. */
static mpt_tensor make_leaf(const golden_tensor *t, mpt_tensor *view) {
    mpt_tensor dense = mpt_from(context, t->dtype, t->shape, t->data), base = dense;
    mpt_shape order, back = MPT_SHAPE(0, 2, 3, 1);
    if (layout_order(t->layout, t->shape.rank, &order))
        base = mpt_clone(mpt_permute(dense, t->layout == CHANNELS_LAST ? back : order));
    else if (t->layout == GOLDEN_SLICED)
        base = mpt_stack(&dense, 1, 1);
    base = mpt_detach(mpt_contiguous(base));
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(base, true);
    *view = layout_order(t->layout, t->shape.rank, &order) ? mpt_permute(base, order) : base;
    if (t->layout == GOLDEN_SLICED) *view = mpt_reshape(base, t->shape);
    return base;
}

static void compare(const golden_case *c, const golden_tensor *want, mpt_tensor got) {
    float *values = (float *)calloc((size_t)want->count + 1, sizeof *values);
    if (mpt_failed(context) || mpt_read_f32(got, values, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s: %s", c->label, want->name, mpt_error(context));
    else
        golden_compare(c->label, want, 0, values, want->count);
    free(values);
}

static void run_case(const golden_case *c) {
    mpt_tensor leaf[MAX_INPUTS], view[MAX_INPUTS], sum, up[2];
    int n_up = 0;
    for (int i = 0; i < MAX_INPUTS; i++) view[i] = leaf[i] = nothing();
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role <= GOLDEN_LEAF) leaf[t->input] = make_leaf(t, &view[t->input]);
        if (t->role == GOLDEN_UPSTREAM) up[n_up++] = mpt_from(context, t->dtype, t->shape, t->data);
    }
    mpt_tensor out = call(c, view, &sum);
    const golden_tensor *want = golden_find(c, "out");
    CHECK_EQ_INT(mpt_get_dtype(out), want->dtype);
    compare(c, want, out);
    if (c->tensors[0].layout == CHANNELS_LAST) /* the output lies as the input does */
        CHECK(mpt_is_contiguous(mpt_permute(out, MPT_SHAPE(0, 2, 3, 1))));
    if (sum.slot) {
        compare(c, golden_find(c, "sum"), sum);
        mpt_backward_from(sum, up[1], true);
        for (int i = 0; i < c->n_tensors; i++) /* of that alone: as it came */
            if (c->tensors[i].role == GOLDEN_GRADIENT && c->tensors[i].input < 2)
                CHECK(mpt_allclose(mpt_grad(leaf[c->tensors[i].input]), up[1], 0, 0));
        for (int i = 0; i < MAX_INPUTS; i++)
            if (leaf[i].slot) mpt_clear_grad(leaf[i]);
        mpt_tensor both[2] = {out, sum}, flat[2];
        for (int i = 0; i < 2; i++) {
            flat[i] = mpt_mul(mpt_cast(both[i], MPT_F32), mpt_cast(up[i], MPT_F32));
            flat[i] = mpt_sum(flat[i], MPT_ALL_DIMS, false);
        }
        mpt_backward(mpt_add(flat[0], flat[1]));
    } else {
        mpt_backward_from(out, up[0], false);
    }
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        mpt_shape order;
        if (t->role != GOLDEN_GRADIENT) continue;
        mpt_tensor gradient = mpt_grad(leaf[t->input]);
        if (layout_order(t->layout, t->shape.rank, &order)) gradient = mpt_permute(gradient, order);
        compare(c, t, gradient);
    }
    if (mpt_failed(context))
        mpt_clear_error(context); /* ends the scope too */
    else
        mpt_scope_end(context);
}

TEST(goldens) {
    golden_file file;
    static golden_case c;
    mpt_config config = mpt_config_default();
    config.debug = true;
    int run = 0;
    REQUIRE(golden_open(&file, "norm.bin"));
    context = mpt_create(&config);
    REQUIRE(context != NULL);
    for (; golden_next(&file, &c); run++) run_case(&c);
    CHECK(run >= 120);
    golden_close(&file);
    mpt_destroy(context);
}

/* ==== Larger ones ==== */

static float *numbers(uint32_t stream, int64_t count) {
    float *x = (float *)malloc((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) x[i] = golden_uniform(stream, (uint32_t)i) * 2 + 0.25f;
    return x;
}

typedef struct norm_case {
    const char *op;
    mpt_shape shape;
    int count, last; /* of dimensions or groups; channels last */
} norm_case;

/* Element i of [N, C, S]: its statistic, and what its weight is. */
static void places(const norm_case *c, int64_t i, int64_t *statistic, int64_t *weight) {
    const mpt_shape *shape = &c->shape;
    int64_t inner = 1, columns = 1;
    for (int d = 0; d < shape->rank; d++) {
        if (d > 1) inner *= shape->dim[d];
        if (d >= shape->rank - c->count) columns *= shape->dim[d];
    }
    int64_t channel = i / inner % shape->dim[1], n = i / inner / shape->dim[1];
    *weight = channel;
    if (strcmp(c->op, "layer_norm") == 0) {
        *statistic = i / columns;
        *weight = i % columns;
    } else if (strcmp(c->op, "batch_norm") == 0) {
        *statistic = channel;
    } else {
        *statistic = n * c->count + channel / (shape->dim[1] / c->count);
    }
}

static mpt_tensor apply(const norm_case *c, mpt_tensor x, mpt_tensor w, mpt_tensor b) {
    if (strcmp(c->op, "layer_norm") == 0) return mpt_layer_norm(x, c->count, w, b, 1e-5);
    if (strcmp(c->op, "batch_norm") == 0)
        return mpt_batch_norm(x, nothing(), nothing(), w, b, 1e-5);
    return mpt_group_norm(x, c->count, w, b, 1e-5);
}

/* y, dx, dw and db of fp32 as the definition says, in double. */
static void expect(const norm_case *c, int64_t count, const float *x, const float *w,
                   const float *b, const float *dy, double *want[4]) {
    double *sum[5];
    for (int k = 0; k < 5; k++) sum[k] = (double *)calloc((size_t)count, sizeof(double));
    double *n = sum[0], *mean = sum[1], *square = sum[2], *shift = sum[3], *slope = sum[4];
    int64_t s, p;
    for (int64_t i = 0; i < count; i++) {
        places(c, i, &s, &p);
        n[s] += 1;
        mean[s] += (double)x[i];
    }
    for (int64_t i = 0; i < count; i++) {
        places(c, i, &s, &p);
        double d = (double)x[i] - mean[s] / n[s];
        square[s] += d * d;
    }
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < count; i++) {
            places(c, i, &s, &p);
            double rstd = 1 / sqrt(square[s] / n[s] + 1e-5);
            double normal = ((double)x[i] - mean[s] / n[s]) * rstd;
            double g = (double)dy[i] * (double)w[p];
            if (pass == 0) {
                shift[s] += g;
                slope[s] += g * normal;
                want[0][i] = normal * (double)w[p] + (double)b[p];
                want[2][p] += (double)dy[i] * normal;
                want[3][p] += (double)dy[i];
            } else {
                want[1][i] = (g - shift[s] / n[s] - normal * slope[s] / n[s]) * rstd;
            }
        }
    }
    for (int k = 0; k < 5; k++) free(sum[k]);
}

static void near(const char *what, const norm_case *c, mpt_tensor got, const double *want,
                 int64_t count, double allowed) {
    float *values = (float *)malloc((size_t)count * sizeof *values);
    CHECK_EQ_INT(mpt_read_f32(got, values, count), MPT_OK);
    for (int64_t i = 0; i < count; i++) {
        double off = fabs((double)values[i] - want[i]);
        if (off <= allowed * (1 + fabs(want[i]))) continue;
        TEST_FAIL_("%s of %s: element %d is %g, expected %g", what, c->op, (int)i,
                   (double)values[i], want[i]);
        break;
    }
    free(values);
}

/* What is added to all x, and to the first of them as much again. */
static float beside = 0;

/* Hash of y, dx, dw and db, which must be the same for any number of threads. */
static uint64_t run_large(const norm_case *c, mpt_isa isa, int threads, mpt_dtype dtype) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    if (isa != MPT_ISA_AUTO) config.isa = isa, config.device = MPT_DEVICE_CPU;
    context = mpt_create(&config);
    mpt_shape order = MPT_SHAPE(0, 2, 3, 1), back = MPT_SHAPE(0, 3, 1, 2), params = c->shape;
    int64_t count = 1, weights = c->shape.dim[1];
    for (int d = 0; d < c->shape.rank; d++) count *= c->shape.dim[d];
    params.rank = 1;
    params.dim[0] = c->shape.dim[1];
    if (strcmp(c->op, "layer_norm") == 0) {
        params.rank = c->count;
        weights = 1;
        for (int d = 0; d < c->count; d++) {
            params.dim[d] = c->shape.dim[c->shape.rank - c->count + d];
            weights *= params.dim[d];
        }
    }
    float *values[4] = {numbers(1, count), numbers(2, weights), numbers(3, weights),
                        numbers(4, count)};
    for (int64_t i = 0; i < count; i++) values[0][i] += i == 0 ? 2 * beside : beside;
    mpt_tensor x = mpt_from(context, MPT_F32, c->shape, values[0]);
    mpt_tensor dy = mpt_cast(mpt_from(context, MPT_F32, c->shape, values[3]), dtype);
    if (c->last) x = mpt_permute(mpt_clone(mpt_permute(x, order)), back);
    if (c->last) dy = mpt_permute(mpt_clone(mpt_permute(dy, order)), back);
    x = mpt_cast(x, dtype);
    if (c->last) x = mpt_permute(mpt_clone(mpt_permute(x, order)), back);
    x = mpt_detach(x);
    mpt_tensor w = mpt_from(context, MPT_F32, params, values[1]);
    mpt_tensor b = mpt_from(context, MPT_F32, params, values[2]);
    mpt_tensor leaf[3] = {x, w, b}, out;
    for (int i = 0; i < 3; i++) mpt_requires_grad(leaf[i], true);
    out = apply(c, x, w, b);
    if (c->last) CHECK(mpt_is_contiguous(mpt_permute(out, order)));
    CHECK_EQ_INT(mpt_backward_from(out, dy, false), MPT_OK);
    uint64_t hash = 7;
    mpt_tensor results[4] = {out, mpt_grad(x), mpt_grad(w), mpt_grad(b)};
    if (dtype == MPT_F32) {
        double *want[4];
        for (int k = 0; k < 4; k++) want[k] = (double *)calloc((size_t)count, sizeof(double));
        expect(c, count, values[0], values[1], values[2], values[3], want);
        for (int k = 0; k < 4; k++) {
            static const char *const names[] = {"y", "dx", "dw", "db"};
            double size = (double)count / (double)weights;
            near(names[k], c, results[k], want[k], k < 2 ? count : weights,
                 (k < 2 ? 2e-5 : 2e-6 * sqrt(size) + 1e-5) * (1 + (double)beside / 10));
            free(want[k]);
        }
    }
    for (int k = 0; k < 4; k++) {
        int64_t n = k < 2 ? count : weights;
        float *got = (float *)malloc((size_t)n * sizeof *got);
        CHECK_EQ_INT(mpt_read_f32(results[k], got, n), MPT_OK);
        for (int64_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &got[i], sizeof bits);
            hash = (hash ^ bits) * UINT64_C(0x100000001b3);
        }
        free(got);
    }
    CHECK_EQ_STR(mpt_error(context), "");
    for (int k = 0; k < 4; k++) free(values[k]);
    mpt_destroy(context);
    return hash;
}

TEST(large) {
    const norm_case cases[] = {{"layer_norm", MPT_SHAPE(9, 1500), 1, 0},
                               {"layer_norm", MPT_SHAPE(600, 24), 1, 0},
                               {"layer_norm", MPT_SHAPE(40, 3, 8), 2, 0},
                               {"batch_norm", MPT_SHAPE(700, 20), 0, 0},
                               {"batch_norm", MPT_SHAPE(3, 5, 40, 30), 0, 0},
                               {"batch_norm", MPT_SHAPE(5, 40, 12, 14), 0, 1},
                               {"group_norm", MPT_SHAPE(2, 6, 30, 20), 3, 0},
                               {"group_norm", MPT_SHAPE(9, 32, 5, 5), 2, 1},
                               /* one channel; channels of no whole vectors, or of some and more;
                                  planes of less than a vector, of pieces; samples of no chunk */
                               {"batch_norm", MPT_SHAPE(261, 1, 7, 5), 0, 0},
                               {"batch_norm", MPT_SHAPE(300, 67, 3, 3), 0, 1},
                               {"batch_norm", MPT_SHAPE(7, 131, 9, 9), 0, 1},
                               {"batch_norm", MPT_SHAPE(5, 130, 2, 2), 0, 0},
                               {"batch_norm", MPT_SHAPE(300, 3, 7, 7), 0, 0},
                               {"batch_norm", MPT_SHAPE(3, 3, 70, 130), 0, 0},
                               {"group_norm", MPT_SHAPE(3, 6, 70, 80), 2, 0},
                               {"group_norm", MPT_SHAPE(9, 130, 3, 3), 1, 0},
                               {"group_norm", MPT_SHAPE(65, 8, 2, 2), 4, 0},
                               {"group_norm", MPT_SHAPE(5, 64, 14, 14), 32, 0}};
    const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int d = 0; d < 3; d++) {
            mpt_dtype dtype = dtypes[d];
            uint64_t one = run_large(&cases[i], MPT_ISA_REF, 1, dtype);
            CHECK(run_large(&cases[i], MPT_ISA_REF, 3, dtype) == one); /* threads */
            CHECK(run_large(&cases[i], MPT_ISA_AUTO, 2, dtype) == one ||
                  mpt_device_count(MPT_DEVICE_CUDA) > 0); /* vectors do the same */
        }
    }
}

/* Numbers that differ little beside what they are keep their variance, though one is far off. */
TEST(far_from_zero) {
    const norm_case cases[] = {{"layer_norm", MPT_SHAPE(9, 96), 1, 0},
                               {"layer_norm", MPT_SHAPE(9, 1500), 1, 0},
                               {"batch_norm", MPT_SHAPE(300, 20), 0, 0},
                               {"batch_norm", MPT_SHAPE(50, 5, 10, 10), 0, 0},
                               {"batch_norm", MPT_SHAPE(3, 5, 70, 60), 0, 0},
                               {"group_norm", MPT_SHAPE(9, 32, 15, 5), 8, 0},
                               {"group_norm", MPT_SHAPE(9, 32, 15, 5), 8, 1}};
    beside = 500;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK(run_large(&cases[i], MPT_ISA_AUTO, 2, MPT_F32) ==
                  run_large(&cases[i], MPT_ISA_REF, 1, MPT_F32) ||
              mpt_device_count(MPT_DEVICE_CUDA) > 0);
    beside = 0;
}

/* Rows longer than what is taken at a time: windows of 3, 2 apart, in means of all 3. */
TEST(long_rows) {
    enum { WIDTH = 2501, OUT = (WIDTH + 2 - 3) / 2 + 1 };
    mpt_pool_config pool = mpt_pool_config_make(1, 1, 0);
    pool.window[1] = 3, pool.step[1] = 2, pool.padding[1] = 1;
    float *x = numbers(5, WIDTH), *dy = numbers(6, OUT), got[WIDTH];
    for (int most = 0; most < 2; most++) {
        double y[OUT], dx[WIDTH] = {0};
        for (int i = 0; i < OUT; i++) {
            int best = -1;
            y[i] = 0;
            for (int k = 2 * i - 1; k < 2 * i + 2; k++) {
                if (k < 0 || k >= WIDTH) continue;
                y[i] += (double)x[k] / 3;
                if (best < 0 || x[k] > x[best]) best = k;
                if (!most) dx[k] += (double)dy[i] / 3;
            }
            if (most) y[i] = (double)x[best], dx[best] += (double)dy[i];
        }
        context = mpt_create(NULL);
        mpt_tensor in = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, 1, WIDTH), x);
        mpt_requires_grad(in, true);
        mpt_tensor out = most ? mpt_max_pool2d(in, &pool) : mpt_avg_pool2d(in, &pool);
        mpt_backward_from(out, mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, 1, OUT), dy), false);
        CHECK_EQ_INT(mpt_read_f32(out, got, OUT), MPT_OK);
        for (int i = 0; i < OUT; i++) CHECK_NEAR((double)got[i], y[i], 1e-6);
        CHECK_EQ_INT(mpt_read_f32(mpt_grad(in), got, WIDTH), MPT_OK);
        for (int i = 0; i < WIDTH; i++) CHECK_NEAR((double)got[i], dx[i], 1e-6);
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
    }
    free(x);
    free(dy);
}

/* Windows of two by two, one beside the other, of every width and number of channels, with ties,
   zeros of both signs, infinities and NaN: the vectors do what the reference does, gradients that
   are added to others too. results: y, and dx after one pass and after two. */
enum { WINDOW_MOST = 3 * 34 * 9 * 41 };
static int64_t pool_in_two(mpt_isa isa, mpt_shape shape, mpt_dtype dtype, int kind,
                           float *results) {
    static const float odd[8] = {-0.0f, 0.0f, 1.0f, 1.0f, -2.0f, 0.5f, -INFINITY, NAN};
    const bool most = kind & 1, last = kind & 2;
    mpt_config config = mpt_config_default();
    config.threads = isa == MPT_ISA_REF ? 1 : 2;
    if (isa != MPT_ISA_AUTO) config.isa = isa; /* else as the environment says */
    config.device = MPT_DEVICE_CPU;
    context = mpt_create(&config);
    mpt_shape order = MPT_SHAPE(0, 2, 3, 1), back = MPT_SHAPE(0, 3, 1, 2), out_shape = shape;
    out_shape.dim[2] /= 2, out_shape.dim[3] /= 2;
    const int64_t n = shape.dim[0] * shape.dim[1] * shape.dim[2] * shape.dim[3];
    const int64_t outs = shape.dim[0] * shape.dim[1] * out_shape.dim[2] * out_shape.dim[3];
    float *values = numbers(3, n), *slopes = numbers(4, n);
    for (int64_t i = 0; i < n; i++)
        if (slopes[i] > 0) values[i] = odd[i * 5 % 7 + (i % 31 == 0)];
    for (int64_t i = 0; i < n; i += 11) slopes[i] = -0.0f;
    mpt_tensor x = mpt_cast(mpt_from(context, MPT_F32, shape, values), dtype);
    mpt_tensor dy = mpt_cast(mpt_from(context, MPT_F32, out_shape, slopes), dtype);
    if (last) x = mpt_permute(mpt_clone(mpt_permute(x, order)), back);
    x = mpt_detach(x);
    mpt_requires_grad(x, true);
    for (int pass = 0; pass < 2; pass++) {
        mpt_tensor y = most ? mpt_max_pool2d(x, NULL) : mpt_avg_pool2d(x, NULL);
        CHECK_EQ_INT(mpt_backward_from(y, dy, false), MPT_OK);
        CHECK_EQ_INT(mpt_read_f32(mpt_cast(y, MPT_F32), results, outs), MPT_OK);
        CHECK_EQ_INT(mpt_read_f32(mpt_cast(mpt_grad(x), MPT_F32), results + outs + pass * n, n),
                     MPT_OK);
    }
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
    free(values), free(slopes);
    return outs + 2 * n;
}

TEST(windows_of_two_by_two) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    float *got = (float *)malloc(2 * 3 * WINDOW_MOST * sizeof *got), *want = got + 3 * WINDOW_MOST;
    for (int64_t size = 2; got && size <= 40; size++) {
        const mpt_shape shape =
            MPT_SHAPE(size % 3 + 1, (size * 7) % 33 + 1, 2 + size % 7, size + (size > 30));
        for (int k = 0; k < 12; k++) {
            const int64_t n = pool_in_two(MPT_ISA_REF, shape, dtypes[k / 4], k % 4, want);
            REQUIRE(pool_in_two(MPT_ISA_AUTO, shape, dtypes[k / 4], k % 4, got) == n);
            for (int64_t i = 0; i < n; i++) {
                if (memcmp(&got[i], &want[i], sizeof *got) == 0) continue;
                if (isnan(got[i]) && isnan(want[i])) continue;
                TEST_FAIL_("width %d, %s, kind %d: %g at %d, expected %g", (int)size,
                           mpt_dtype_name(dtypes[k / 4]), k % 4, (double)got[i], (int)i,
                           (double)want[i]);
                break;
            }
        }
    }
    free(got);
}

/* ==== Running statistics ==== */

static mpt_module make_net(mpt_context *in, double momentum) {
    mpt_norm_config config = mpt_norm_config_default();
    config.momentum = momentum;
    return mpt_sequential(in, mpt_nn_batch_norm1d(in, 2, &config), mpt_nn_linear(in, 2, 2),
                          MPT_END);
}

static void check_buffers(mpt_module net, const double want[4], double updates) {
    static const char *const names[] = {"0.running_mean", "0.running_var"};
    for (int k = 0; k < 2; k++) {
        float got[2];
        CHECK_EQ_INT(mpt_read_f32(mpt_buffer(net, names[k]), got, 2), MPT_OK);
        for (int i = 0; i < 2; i++) CHECK_NEAR((double)got[i], want[2 * k + i], 1e-5);
    }
    CHECK_NEAR(mpt_item(mpt_buffer(net, "0.num_batches_tracked")), updates, 0);
}

static const float batch[6] = {1, 10, 2, 20, 6, 60}; /* means 3 and 30, variances 7 and 700 */
static const float other[6] = {-1, 5, -1, 5, -1, 8}; /* means -1 and 6, variances 0 and 3 */
static const float broken[6] = {1, 2, INFINITY, 4, 5, 6};

static void step(mpt_module net, const float *values) {
    mpt_step_begin(context);
    mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), values));
    mpt_step_end(context);
}

TEST(running_statistics) {
    const double start[4] = {0, 0, 1, 1}, once[4] = {0.3, 3, 1.6, 70.9};
    const double twice[4] = {0.17, 3.3, 1.44, 64.11};
    context = mpt_create(NULL);
    mpt_module net = make_net(context, 0.1);
    check_buffers(net, start, 0);
    mpt_step_begin(context);
    mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), batch));
    check_buffers(net, start, 0); /* not before the end of the step */
    mpt_step_end(context);
    check_buffers(net, once, 1);
    step(net, broken);
    check_buffers(net, once, 1);
    CHECK_EQ_INT(mpt_refused_updates(net), 1);
    mpt_step_begin(context); /* a step that fails leaves no trace */
    mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), other));
    mpt_add(mpt_ones(context, MPT_F32, MPT_SHAPE(2)), mpt_ones(context, MPT_F32, MPT_SHAPE(3)));
    mpt_step_end(context);
    mpt_clear_error(context);
    check_buffers(net, once, 1);
    step(net, other);
    check_buffers(net, twice, 2);
    mpt_eval(net);
    step(net, batch);
    mpt_train(net);
    mpt_inference_begin(context);
    step(net, batch);
    mpt_inference_end(context);
    check_buffers(net, twice, 2);
    CHECK_EQ_INT(mpt_refused_updates(net), 1);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* Two batches in one step follow each other; without a step each counts at once; a negative
   momentum makes means of all. */
TEST(several_batches) {
    const double mean[4] = {1, 18, 3.5, 351.5};
    for (int in_step = 0; in_step < 2; in_step++) {
        context = mpt_create(NULL);
        mpt_module net = make_net(context, -1);
        if (in_step) mpt_step_begin(context);
        mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), batch));
        mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), other));
        if (in_step) mpt_step_end(context);
        check_buffers(net, mean, 2);
        mpt_destroy(context);
    }
}

/* y of evaluation, with the statistics of 0 and 1 but for what a step made of them. */
TEST(evaluation) {
    context = mpt_create(NULL);
    mpt_norm_config config = mpt_norm_config_default();
    mpt_module net = mpt_nn_batch_norm1d(context, 2, NULL);
    float got[6];
    step(net, batch);
    mpt_eval(net);
    mpt_tensor y = mpt_forward(net, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), batch));
    CHECK_EQ_INT(mpt_read_f32(y, got, 6), MPT_OK);
    CHECK_NEAR((double)got[0], 0.7 / sqrt(1.6 + 1e-5), 1e-5);
    CHECK_NEAR((double)got[5], 57 / sqrt(70.9 + 1e-5), 1e-4);
    config.track = false; /* then it is the batch's */
    mpt_module untracked = mpt_nn_batch_norm1d(context, 2, &config);
    mpt_eval(untracked);
    y = mpt_forward(untracked, mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), batch));
    CHECK_EQ_INT(mpt_read_f32(y, got, 6), MPT_OK);
    CHECK_NEAR((double)got[0], -2 / sqrt(14.0 / 3 + 1e-5), 1e-5);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* Buffers are part of files, copies and hashes, and are listed. */
TEST(state) {
    const char *path = test_tmp_path("norm.safetensors");
    const double once[4] = {0.3, 3, 1.6, 70.9};
    char text[2048];
    context = mpt_create(NULL);
    mpt_module net = make_net(context, 0.1), read = make_net(context, 0.1);
    mpt_module copied = make_net(context, 0.1), plain = mpt_nn_linear(context, 2, 2);
    uint64_t before = mpt_module_hash(net);
    step(net, batch);
    CHECK(mpt_module_hash(net) != before);
    CHECK_EQ_INT(mpt_copy_module(copied, net), MPT_OK);
    check_buffers(copied, once, 1);
    CHECK(mpt_module_hash(copied) == mpt_module_hash(net));
    if (mpt_save(net, path) == MPT_OK) {
        int loaded = 0;
        CHECK_EQ_INT(mpt_load(read, path, NULL, &loaded), MPT_OK);
        CHECK_EQ_INT(loaded, 7);
        check_buffers(read, once, 1);
        CHECK(mpt_module_hash(read) == mpt_module_hash(net));
        remove(path);
    } else {
        CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_UNSUPPORTED); /* built without files */
        mpt_clear_error(context);
    }
    CHECK(mpt_summary(net, text, sizeof text) < sizeof text);
    CHECK_CONTAINS(text, "running_mean");
    CHECK_CONTAINS(text, "num_batches_tracked");
    CHECK_CONTAINS(text, "total: 10 parameters, 40 bytes; buffers: 24 bytes");
    CHECK_EQ_INT(mpt_parameter_count(net), 4);
    CHECK_EQ_INT(mpt_half(net, MPT_BF16), MPT_OK); /* statistics stay as they are */
    check_buffers(net, once, 1);
    CHECK_EQ_INT(mpt_get_dtype(mpt_buffer(net, "0.running_var")), MPT_F32);
    CHECK_EQ_INT(mpt_refused_updates(plain), 0);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* A captured step changes the statistics each time. */
static mpt_module captured_net;
static mpt_status captured_step(mpt_context *in, void *user, mpt_tensor x, mpt_tensor y) {
    (void)user, (void)y;
    mpt_step_begin(in);
    mpt_forward(captured_net, x);
    return mpt_step_end(in);
}

TEST(captured) {
    const double mean[4] = {3, 30, 7, 700};
    context = mpt_create(NULL);
    captured_net = make_net(context, -1);
    mpt_captured captured = mpt_capture(context, captured_step, NULL);
    mpt_tensor x = mpt_keep(mpt_from(context, MPT_F32, MPT_SHAPE(3, 2), batch));
    for (int i = 0; i < 5; i++) CHECK_EQ_INT(mpt_captured_step(captured, x, nothing()), MPT_OK);
    CHECK(mpt_captured_count(captured) > 0);
    check_buffers(captured_net, mean, 5);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
}

/* Halves and autocast: fp32 inside, the input's dtype out; a training step takes nothing from the
   allocator once it has run. */
TEST(training) {
    context = mpt_create(NULL);
    mpt_module net = mpt_sequential(
        context, mpt_nn_linear(context, 6, 8), mpt_nn_layer_norm(context, MPT_SHAPE(8), NULL),
        mpt_nn_relu(context), mpt_nn_linear(context, 8, 8), mpt_nn_batch_norm1d(context, 8, NULL),
        mpt_nn_rms_norm(context, MPT_SHAPE(8), NULL), mpt_nn_group_norm(context, 2, 8, NULL),
        MPT_END);
    mpt_optimizer optimizer = mpt_sgd(net, NULL);
    float *values = numbers(9, 96);
    double first = 0, last = 0;
    int64_t allocations = 0;
    for (int i = 0; i < 30; i++) {
        mpt_step_begin(context);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(16, 6), values);
        mpt_autocast_begin(context, MPT_BF16);
        mpt_tensor y = mpt_forward(net, x);
        CHECK_EQ_INT(mpt_get_dtype(y), MPT_BF16);
        mpt_tensor target = mpt_slice(mpt_cat(&x, 1, 1), 1, 0, 4, 1), part[2] = {target, target};
        mpt_tensor loss = mpt_mse_loss(y, mpt_cat(part, 2, 1), MPT_MEAN);
        mpt_autocast_end(context);
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        mpt_step(optimizer);
        last = mpt_item(loss);
        mpt_step_end(context);
        if (i == 0) first = last;
        if (i == 3) allocations = mpt_memory(context).allocations;
    }
    CHECK_EQ_INT(mpt_memory(context).allocations, allocations);
    CHECK(last < first);
    CHECK_EQ_STR(mpt_error(context), "");
    free(values);
    mpt_destroy(context);
}

/* ==== Behind a branch ==== */

/* The gradient of x by a norm of its rows, by what else takes x, or by both: they add up. */
static void branch_gradient(float *to, int64_t n, bool layer, bool norm, bool branch) {
    const int64_t count = 19 * n;
    float *values = numbers(21, count), *slopes = numbers(22, count);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(19, n), values), y, dy;
    dy = mpt_from(context, MPT_F32, MPT_SHAPE(19, n), slopes);
    mpt_requires_grad(x, true);
    y = layer ? mpt_layer_norm(x, 1, nothing(), nothing(), 1e-5)
              : mpt_rms_norm(x, 1, nothing(), 1e-5);
    y = norm && branch ? mpt_add(y, x) : norm ? y : mpt_add(x, x);
    CHECK_EQ_INT(mpt_backward_from(y, norm ? dy : mpt_mul_scalar(dy, 0.5), false), MPT_OK);
    CHECK_EQ_INT(mpt_read_f32(mpt_grad(x), to, count), MPT_OK);
    free(values);
    free(slopes);
}

TEST(added_to_the_gradient_that_is_there) {
    const int64_t lengths[] = {1, 16, 48, 64, 100, 768, 2048, 2560, 4160};
    for (int i = 0; i < 9 * 2; i++) {
        const int64_t n = lengths[i / 2], count = 19 * n;
        float *got[3];
        context = mpt_create(NULL);
        for (int k = 0; k < 3; k++) {
            got[k] = (float *)malloc((size_t)count * sizeof **got);
            branch_gradient(got[k], n, i % 2 == 0, k != 1, k != 0);
        }
        int64_t wrong = 0;
        for (int64_t j = 0; j < count; j++) wrong += got[2][j] != got[0][j] + got[1][j];
        CHECK_EQ_INT(wrong, 0);
        for (int k = 0; k < 3; k++) free(got[k]);
        CHECK_EQ_STR(mpt_error(context), "");
        mpt_destroy(context);
    }
}

/* ==== With a residual and relu ==== */

static char notices[512];
static void keep_log(void *user, mpt_log_level level, const char *message) {
    (void)user;
    if (level == MPT_LOG_INFO && strstr(message, "has a bias"))
        snprintf(notices + strlen(notices), sizeof notices - strlen(notices), "%s|", message);
}

static uint64_t hash_of(uint64_t hash, mpt_tensor x) {
    int64_t n = mpt_numel(x);
    float *got = (float *)malloc((size_t)n * sizeof *got);
    CHECK_EQ_INT(mpt_read_f32(x, got, n), MPT_OK);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &got[i], sizeof bits);
        if (got[i] != got[i]) bits = 0x7fc00000; /* any NaN is NaN */
        hash = (hash ^ bits) * UINT64_C(0x100000001b3);
    }
    free(got);
    return hash;
}

/* A picture in fp32 or half, its channels innermost or not: of numbers in [-1, 1] times scale, and
   `apart` away from 0. */
static mpt_tensor picture(const mpt_shape *shape, uint32_t stream, float scale, float apart,
                          mpt_dtype dtype, bool last) {
    int64_t count = shape->dim[0] * shape->dim[1] * shape->dim[2] * shape->dim[3];
    float *values = numbers(stream, count);
    for (int64_t i = 0; i < count; i++) {
        const float v = (values[i] - 0.25f) / 2;
        values[i] = scale * v + (v < 0 ? -apart : apart);
    }
    mpt_tensor x = mpt_cast(mpt_from(context, MPT_F32, *shape, values), dtype);
    free(values);
    x = mpt_detach(last ? mpt_to_channels_last(x) : x);
    mpt_requires_grad(x, true);
    return x;
}

/* Hash of y and all gradients: in one launch, or as norm, sum and relu. */
static uint64_t run_fused(const mpt_shape *shape, mpt_isa isa, int threads, mpt_dtype dtype,
                          bool last) {
    mpt_config config = mpt_config_default();
    mpt_norm_config norm = mpt_norm_config_default();
    config.threads = threads;
    if (isa != MPT_ISA_AUTO) config.isa = isa, config.device = MPT_DEVICE_CPU;
    context = mpt_create(&config);
    norm.relu = true;
    mpt_module fused = mpt_nn_batch_norm2d(context, shape->dim[1], &norm);
    mpt_module plain = mpt_nn_batch_norm2d(context, shape->dim[1], NULL);
    uint64_t hash = 1;
    mpt_tensor result[2][6], dy = mpt_detach(picture(shape, 13, 1, 0, dtype, last));
    for (int k = 0; k < 2; k++) {
        mpt_tensor x = picture(shape, 11, 1, 1, dtype, last), in[2], y;
        in[0] = x, in[1] = picture(shape, 12, 0.25f, 0, dtype, last);
        mpt_module net = k ? plain : fused;
        CHECK_EQ_INT(mpt_forward_n(net, in, k ? 1 : 2, &y, 1), MPT_OK);
        if (k) {
            y = mpt_add(y, in[1]);
            /* rounding does not change a sign, so that gradients are the same in halves too */
            CHECK(mpt_item(mpt_min(mpt_abs(y), MPT_ALL_DIMS, false)) > 1e-2);
            y = mpt_relu(y);
        }
        CHECK_EQ_INT(mpt_backward_from(y, dy, false), MPT_OK);
        result[k][0] = y, result[k][1] = mpt_grad(x), result[k][2] = mpt_grad(in[1]);
        result[k][3] = mpt_grad(mpt_parameter(net, "weight"));
        result[k][4] = mpt_grad(mpt_parameter(net, "bias"));
        result[k][5] = mpt_buffer(net, "running_var");
    }
    for (int i = 0; i < 6; i++) {
        /* y alone is rounded once more where norm and sum are apart */
        const double bound = i > 0 || dtype == MPT_F32 ? 1e-5 : dtype == MPT_F16 ? 2e-3 : 1.6e-2;
        hash = hash_of(hash, result[0][i]);
        CHECK(mpt_allclose(result[0][i], result[1][i], bound, bound));
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
    return hash;
}

TEST(fused) {
    const mpt_shape shapes[] = {MPT_SHAPE(5, 40, 12, 14), MPT_SHAPE(3, 5, 40, 33),
                                MPT_SHAPE(9, 17, 3, 3)};
    const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int i = 0; i < 18; i++) {
        const mpt_shape *shape = &shapes[i / 6];
        mpt_dtype dtype = dtypes[i / 2 % 3];
        uint64_t one = run_fused(shape, MPT_ISA_REF, 1, dtype, i & 1);
        CHECK(run_fused(shape, MPT_ISA_REF, 3, dtype, i & 1) == one);
        CHECK(run_fused(shape, MPT_ISA_AUTO, 2, dtype, i & 1) == one ||
              mpt_device_count(MPT_DEVICE_CUDA) > 0);
    }
}

/* Hash of what kind k of norm of rows makes of numbers, one row of them far from 0, and of the
   gradients. Without those of weights one row is NaN, and one has an infinity. */
static uint64_t run_rows(int64_t rows, int64_t n, int k, mpt_isa isa, int threads,
                         mpt_dtype dtype) {
    enum { LAYER, RMS, ADD_LAYER, ADD_RMS, FROZEN };
    mpt_config config = mpt_config_default();
    config.threads = threads;
    if (isa != MPT_ISA_AUTO) config.isa = isa, config.device = MPT_DEVICE_CPU;
    context = mpt_create(&config);
    mpt_tensor in[5], y, sum = nothing(); /* x, weight, bias, what is added, dy */
    for (int i = 0; i < 5; i++) {
        const bool whole = i % 3 == 0 || i == 4;
        float *values = numbers((uint32_t)(20 + i), rows * n);
        for (int64_t j = 0; j < n && i == 0; j++) {
            values[2 * n + j] += 1000;
            if (k == FROZEN) values[5 * n + j] = NAN;
        }
        if (i == 0 && k == FROZEN) values[7 * n + 3] = INFINITY;
        in[i] = mpt_from(context, MPT_F32, whole ? MPT_SHAPE(rows, n) : MPT_SHAPE(n), values);
        if (whole) in[i] = mpt_detach(mpt_cast(in[i], dtype));
        if (i != 4 && (i == 0 || k != FROZEN)) mpt_requires_grad(in[i], true);
        free(values);
    }
    if (k == LAYER || k == FROZEN) y = mpt_layer_norm(in[0], 1, in[1], in[2], 1e-5);
    if (k == RMS) y = mpt_rms_norm(in[0], 1, in[1], 1e-5);
    if (k == ADD_LAYER) y = mpt_add_layer_norm(in[0], in[3], 1, in[1], in[2], 1e-5, &sum);
    if (k == ADD_RMS) y = mpt_add_rms_norm(in[0], in[3], 1, in[1], 1e-5, &sum);
    CHECK_EQ_INT(mpt_backward_from(y, in[4], false), MPT_OK);
    static const int gradients[] = {3, 2, 4, 3, 1};
    uint64_t hash = hash_of(7, y);
    int count = 0;
    for (int i = 0; i < 4; i++) {
        if (!mpt_has_grad(in[i])) continue;
        hash = hash_of(hash, mpt_grad(in[i]));
        count++;
    }
    CHECK_EQ_INT(count, gradients[k]);
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
    return hash;
}

/* Rows of whole vectors take a way of their own, which keeps short ones as floats. */
TEST(rows) {
    const int64_t lengths[] = {32, 96, 1024, 1056, 4096};
    const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int i = 0; i < 75; i++) {
        const int64_t n = lengths[i % 5], rows = n > 2000 ? 19 : 53;
        const int kind = i / 5 % 5;
        mpt_dtype dtype = dtypes[i / 25];
        uint64_t one = run_rows(rows, n, kind, MPT_ISA_REF, 1, dtype);
        CHECK(run_rows(rows, n, kind, MPT_ISA_AUTO, 1, dtype) == one ||
              mpt_device_count(MPT_DEVICE_CUDA) > 0);
        CHECK(run_rows(rows, n, kind, MPT_ISA_AUTO, 3, dtype) == one ||
              mpt_device_count(MPT_DEVICE_CUDA) > 0);
    }
}

/* A NaN of all bits, which rounding would carry over into a zero, stays one in halves. */
TEST(nan_of_all_bits) {
    enum { ROWS = 9, N = 96 };
    const uint32_t bits = 0x7fffffff;
    float *values = numbers(41, ROWS * N), *weights = numbers(42, N);
    memcpy(&weights[37], &bits, sizeof bits);
    for (int i = 0; i < 4; i++) {
        context = mpt_create(NULL);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, N), values);
        mpt_tensor w = mpt_from(context, MPT_F32, MPT_SHAPE(N), weights);
        x = mpt_cast(x, i % 2 ? MPT_BF16 : MPT_F16);
        x = i < 2 ? mpt_layer_norm(x, 1, w, nothing(), 1e-5) : mpt_rms_norm(x, 1, w, 1e-5);
        float *got = (float *)malloc(ROWS * N * sizeof *got);
        CHECK_EQ_INT(mpt_read_f32(x, got, ROWS * N), MPT_OK);
        for (int k = 0; k < ROWS * N; k++) CHECK((got[k] != got[k]) == (k % N == 37));
        free(got);
        mpt_destroy(context);
    }
    free(values), free(weights);
}

/* Rows of a tensor larger than caches, which is written past them, are as those of a small one. */
TEST(beyond_caches) {
    enum { ROWS = 8195, N = 1024, SOME = 5 };
    context = mpt_create(NULL);
    float *values = numbers(31, ROWS * N);
    const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    mpt_tensor y = nothing();
    const int64_t at[] = {0, 4000, ROWS - SOME};
    for (int i = 0; i < 9; i++) {
        mpt_scope_begin(context);
        mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(ROWS, N), values);
        x = mpt_detach(mpt_cast(x, dtypes[i / 3]));
        mpt_tensor part = mpt_detach(mpt_clone(mpt_slice(x, 0, at[i % 3], at[i % 3] + SOME, 1)));
        mpt_tensor out[2], in[2] = {x, part};
        for (int k = 0; k < 2; k++) {
            mpt_requires_grad(in[k], true);
            out[k] = mpt_layer_norm(in[k], 1, nothing(), nothing(), 1e-5);
            CHECK_EQ_INT(mpt_backward_from(out[k], in[k], false), MPT_OK);
        }
        y = mpt_slice(out[0], 0, at[i % 3], at[i % 3] + SOME, 1);
        CHECK(hash_of(1, y) == hash_of(1, out[1]));
        y = mpt_slice(mpt_grad(x), 0, at[i % 3], at[i % 3] + SOME, 1);
        CHECK(hash_of(1, y) == hash_of(1, mpt_grad(part)));
        mpt_scope_end(context);
    }
    for (int d = 0; d < 6; d++) { /* groups: asked for ahead, written past caches, others */
        const mpt_dtype dtype = dtypes[d % 3];
        const mpt_shape shape = d < 3 ? MPT_SHAPE(100, 64, 14, 14) : MPT_SHAPE(4034, 8, 20, 13);
        mpt_scope_begin(context);
        mpt_tensor x = mpt_from(context, MPT_F32, shape, values);
        mpt_tensor in[2], out[2];
        for (int k = 0; k < 2; k++) {
            in[k] = mpt_cast(k ? mpt_slice(x, 0, 50, 50 + SOME, 1) : x, dtype);
            in[k] = mpt_detach(mpt_clone(in[k]));
            mpt_requires_grad(in[k], true);
            out[k] = mpt_group_norm(in[k], d < 3 ? 32 : 4, nothing(), nothing(), 1e-5);
            y = mpt_cast(mpt_exp(mpt_cast(in[k], MPT_F32)), dtype);
            CHECK_EQ_INT(mpt_backward_from(out[k], mpt_detach(y), false), MPT_OK);
        }
        y = mpt_slice(out[0], 0, 50, 50 + SOME, 1);
        CHECK(hash_of(1, y) == hash_of(1, out[1]));
        y = mpt_slice(mpt_grad(in[0]), 0, 50, 50 + SOME, 1);
        CHECK(hash_of(1, y) == hash_of(1, mpt_grad(in[1])));
        mpt_scope_end(context);
    }
    for (int last = 0; last < 2; last++) { /* and samples, with their gradients */
        mpt_shape shape = last ? MPT_SHAPE(ROWS, 64, 4, 4) : MPT_SHAPE(ROWS, 8, 32, 4);
        mpt_tensor numbers_of[2], out[2];
        for (int i = 0; i < 2; i++) {
            numbers_of[i] = mpt_from(context, MPT_F32, MPT_SHAPE(shape.dim[1]), values + 99 * i);
            numbers_of[i] = mpt_mul(numbers_of[i], numbers_of[i]);
        }
        for (int i = 0; i < 2; i++) {
            mpt_shape some = shape;
            if (i) some.dim[0] = SOME;
            mpt_tensor in = mpt_from(context, MPT_F32, some, values + i * at[1] * N);
            if (last) in = mpt_detach(mpt_to_channels_last(in));
            mpt_requires_grad(in, true);
            y = mpt_batch_norm(in, numbers_of[0], numbers_of[1], nothing(), nothing(), 1e-5);
            CHECK_EQ_INT(mpt_backward_from(y, in, false), MPT_OK);
            out[0] = y, out[1] = mpt_grad(in);
            static uint64_t hash[2];
            for (int k = 0; k < 2; k++) {
                uint64_t got =
                    hash_of(1, i ? out[k] : mpt_slice(out[k], 0, at[1], at[1] + SOME, 1));
                CHECK(i == 0 || got == hash[k]);
                hash[k] = got;
            }
        }
    }
    CHECK_EQ_STR(mpt_error(context), "");
    mpt_destroy(context);
    free(values);
}

static void count_unary(void *user, const char *line) {
    *(int *)user += strstr(line, "unary") != 0;
}

/* Launches of elementwise kernels, such as relu alone would be. */
static int count_relus(mpt_context *in, mpt_module net, mpt_tensor x) {
    int count = 0;
    mpt_print_launches(in, count_unary, &count);
    mpt_step_begin(in);
    mpt_forward(net, x);
    mpt_step_end(in);
    mpt_print_launches(in, NULL, NULL);
    return count;
}

/* A relu behind a batch norm in a list is its own; NaN passes; a bias before it is named once. */
TEST(lists_and_notices) {
    mpt_config config = mpt_config_default();
    config.log.write = keep_log;
    context = mpt_create(&config);
    mpt_conv_config plain = mpt_conv_config_default();
    plain.bias = false;
    notices[0] = 0;
    mpt_module net = mpt_sequential(
        context, mpt_nn_conv2d(context, 2, 4, 3, 3, &plain), mpt_nn_batch_norm2d(context, 4, NULL),
        mpt_nn_relu(context), mpt_nn_conv2d(context, 4, 4, 3, 3, NULL),
        mpt_nn_batch_norm2d(context, 4, NULL), mpt_nn_relu(context), MPT_END);
    for (int i = 0; i < 3; i++) {
        mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(3, 2, 6, 6));
        if (i == 0) CHECK_EQ_INT(count_relus(context, net, x), 0);
        mpt_step_begin(context);
        mpt_tensor y = mpt_forward(net, x);
        CHECK(mpt_item(mpt_min(y, MPT_ALL_DIMS, false)) == 0);
        CHECK(mpt_item(mpt_max(y, MPT_ALL_DIMS, false)) > 0);
        mpt_step_end(context);
    }
    CHECK_EQ_STR(notices,
                 "convolution \"3\" has a bias, which batch norm \"4\" takes away again: make "
                 "it without one (config.bias = false)|");
    float values[4] = {NAN, 1, 2, -3}, got[4];
    const float zero[2] = {0, 0}, one[2] = {1, 1};
    mpt_tensor mean = mpt_from(context, MPT_F32, MPT_SHAPE(2), zero);
    mpt_tensor variance = mpt_from(context, MPT_F32, MPT_SHAPE(2), one);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(2, 2), values);
    mpt_tensor y = mpt_batch_norm_relu(x, mean, variance, nothing(), nothing(), 0, nothing());
    CHECK_EQ_INT(mpt_read_f32(y, got, 4), MPT_OK);
    CHECK(got[0] != got[0] && got[1] == 1 && got[2] == 2 && got[3] == 0);
    mpt_destroy(context);
}

/* A layer of RMS norm has no bias, whatever the call that had its record before left there. */
TEST(rms_norm_after_a_layer_with_a_bias) {
    enum { N = 3, D = 32 };
    static float got[2][N * D];
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, D, D),
                                    mpt_nn_rms_norm(context, MPT_SHAPE(D), NULL), MPT_END);
    mpt_norm_config config = mpt_norm_config_default();
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(N, D));
    for (int k = 0; k < 4; k++) {
        const bool inference = k % 2;
        if (inference) mpt_inference_begin(context);
        mpt_tensor y = mpt_forward(net, x);
        mpt_tensor h = mpt_linear(x, mpt_parameter(net, "0.weight"), mpt_parameter(net, "0.bias"),
                                  MPT_ACTIVATION_NONE);
        mpt_tensor want = mpt_rms_norm(h, 1, mpt_parameter(net, "1.weight"), config.eps);
        if (inference) mpt_inference_end(context);
        CHECK_EQ_INT(mpt_read_f32(y, got[0], N * D), MPT_OK);
        CHECK_EQ_INT(mpt_read_f32(want, got[1], N * D), MPT_OK);
        CHECK(memcmp(got[0], got[1], sizeof got[0]) == 0);
        if (!inference) CHECK_EQ_INT(mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false)), MPT_OK);
    }
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
}

/* With ceil_mode a window may be larger than all of its input, which PyTorch allows, as long as it
   ends no more than a step beyond. */
TEST(windows_larger_than_the_input) {
    static const float values[] = {2, 4};
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    mpt_tensor x = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, 2), values);
    mpt_pool_config pool = mpt_pool_config_make(4, 3, 0);
    pool.ceil_mode = true;
    for (int k = 0; k < 2; k++) {
        pool.count_padding = k; /* what lies beyond is no padding */
        mpt_tensor mean = mpt_avg_pool1d(x, &pool), most = mpt_max_pool1d(x, &pool);
        CHECK_EQ_INT(mpt_numel(mean), 1);
        CHECK(mpt_item(mean) == 3.0 && mpt_item(most) == 4.0);
    }
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    pool.step[0] = 2; /* 2 beyond */
    CHECK(mpt_get_shape(mpt_avg_pool1d(x, &pool)).rank == -1);
    CHECK_EQ_INT(mpt_error_code(context), MPT_ERROR_SHAPE);
    mpt_destroy(context);
}

TEST_TABLE = {
    T(goldens), T(large), T(far_from_zero), T(long_rows), T(running_statistics), T(several_batches),
    T(evaluation), T(state), T(captured), T(training), T(fused), T(lists_and_notices), T(rows),
    T(nan_of_all_bits), T(beyond_caches), T(added_to_the_gradient_that_is_there),
    T(rms_norm_after_a_layer_with_a_bias), T(windows_larger_than_the_input),
    T(windows_of_two_by_two)};
TEST_MAIN
