/* api_conv.c: convolutions against PyTorch (values, dtypes, gradients), against sums in double over
 * sizes that fill the blocks of every level, channels last from op to op, layers, and the same bits
 * for any number of threads. */
#include "golden.h"

#include "bits.h"

enum { CHANNELS_LAST = 3, STRIDE = 0, PADDING = 2, DILATION = 4, OUTPUT_PADDING = 6, GROUPS = 8 };

static mpt_context *context;

static mpt_tensor none(void) {
    mpt_tensor null;
    memset(&null, 0, sizeof null);
    return null;
}

/* ==== Goldens ==== */

static mpt_conv_config config_of(const int64_t *ints) {
    mpt_conv_config config = mpt_conv_config_default();
    for (int d = 0; d < 2; d++) {
        config.stride[d] = ints[STRIDE + d];
        config.padding[d] = ints[PADDING + d];
        config.dilation[d] = ints[DILATION + d];
        config.output_padding[d] = ints[OUTPUT_PADDING + d];
    }
    config.groups = ints[GROUPS];
    config.same = ints[GROUPS + 1] != 0;
    return config;
}

static mpt_tensor call(const char *op, const mpt_tensor in[3], const mpt_conv_config *config) {
    if (strcmp(op, "conv1d") == 0) return mpt_conv1d(in[0], in[1], in[2], config);
    if (strcmp(op, "conv2d") == 0) return mpt_conv2d(in[0], in[1], in[2], config);
    return mpt_conv_transpose2d(in[0], in[1], in[2], config);
}

/* The tensor in the case's layout, a leaf where that is one tensor, else a view of one. */
static mpt_tensor make_input(const golden_tensor *t, mpt_tensor *leaf) {
    mpt_tensor made = mpt_from(context, t->dtype, t->shape, t->data);
    int last = t->shape.rank - 1;
    if (t->layout == CHANNELS_LAST) made = mpt_to_channels_last(made);
    if (t->layout == GOLDEN_TRANSPOSED) made = mpt_contiguous(mpt_transpose(made, last, last - 1));
    if (t->layout == GOLDEN_SLICED) {
        mpt_tensor both[2];
        both[0] = made, both[1] = mpt_mul_scalar(made, NAN);
        made = mpt_stack(both, 2, last + 1);
    }
    *leaf = made;
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(made, true);
    if (t->layout == GOLDEN_TRANSPOSED) return mpt_transpose(made, last, last - 1);
    if (t->layout == GOLDEN_SLICED)
        return mpt_reshape(mpt_slice(made, last + 1, 0, 1, 1), t->shape);
    return made;
}

static void compare(const golden_case *c, const golden_tensor *want, mpt_tensor got) {
    float *values = (float *)calloc((size_t)want->count + 1, sizeof *values);
    if (mpt_read_f32(got, values, want->count) != MPT_OK)
        TEST_FAIL_("%s: %s: %s", c->label, want->name, mpt_error(context));
    else
        golden_compare(c->label, want, 0, values, want->count);
    free(values);
}

/* The gradient of a leaf as that of the input that is a view of it. */
static mpt_tensor gradient_of(const golden_tensor *t, mpt_tensor leaf) {
    int last = t->shape.rank - 1;
    mpt_tensor grad = mpt_grad(leaf);
    if (t->layout == GOLDEN_TRANSPOSED) return mpt_transpose(grad, last, last - 1);
    if (t->layout == GOLDEN_SLICED)
        return mpt_reshape(mpt_slice(grad, last + 1, 0, 1, 1), t->shape);
    if (t->layout == CHANNELS_LAST) CHECK(mpt_is_channels_last(grad));
    return grad;
}

static void run_case(const golden_case *c) {
    mpt_tensor in[3], leaf[3];
    mpt_conv_config config = config_of(c->ints);
    const golden_tensor *upstream = golden_find(c, "upstream");
    bool last = false;
    mpt_scope_begin(context);
    in[2] = none();
    for (int i = 0, n = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role > GOLDEN_LEAF) continue;
        in[n] = make_input(t, &leaf[n]);
        last = last || mpt_is_channels_last(in[n]);
        n++;
    }
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_begin(context, c->region);
    mpt_tensor out = call(c->op, in, &config);
    if (c->region != MPT_DTYPE_NONE) mpt_autocast_end(context);
    CHECK_EQ_INT(mpt_get_dtype(out), golden_find(c, "out")->dtype);
    CHECK_EQ_INT(mpt_is_channels_last(out), last);
    compare(c, golden_find(c, "out"), out);
    /* Twice: the second time gradients add up. */
    for (int pass = 0; pass < 2 && !mpt_failed(context); pass++) {
        mpt_tensor dy = mpt_from(context, upstream->dtype, upstream->shape, upstream->data);
        if (pass && upstream->shape.rank == 4) dy = mpt_to_channels_last(dy);
        mpt_backward_from(out, dy, pass == 0);
        for (int i = 0; i < c->n_tensors && !mpt_failed(context); i++) {
            const golden_tensor *t = &c->tensors[i];
            if (t->role != GOLDEN_GRADIENT) continue;
            mpt_tensor grad = gradient_of(t, leaf[t->input]);
            compare(c, t, pass ? mpt_mul_scalar(grad, 0.5) : grad);
        }
    }
    if (mpt_failed(context)) {
        TEST_FAIL_("%s: %s", c->label, mpt_error(context));
        mpt_clear_error(context);
    } else {
        mpt_scope_end(context);
    }
}

TEST(goldens) {
    golden_file file;
    static golden_case c;
    int run = 0;
    REQUIRE(golden_open(&file, "conv.bin"));
    context = mpt_create(NULL);
    while (context && golden_next(&file, &c)) run_case(&c), run++;
    CHECK(run >= 70);
    golden_close(&file);
    mpt_destroy(context);
}

/* ==== Sums in double ==== */

typedef struct problem {
    int64_t n, in, out, h, w, kh, kw; /* channels, sizes */
    int64_t ints[10];
} problem;

/* Values of all three sides, [N, C, H, W], [O, C / groups, KH, KW], [N, O, OH, OW], and what each
   of them is by the two others. */
typedef struct sides {
    int64_t count[3];
    float *value[3];
    double *sum[3], *size[3]; /* of the terms' magnitudes */
} sides;

static void sums_in_double(const problem *p, int64_t oh, int64_t ow, const sides *s) {
    const int64_t *i = p->ints, ig = p->in / i[GROUPS], og = p->out / i[GROUPS];
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t o = 0; o < p->out; o++)
            for (int64_t y = 0; y < oh; y++)
                for (int64_t x = 0; x < ow; x++)
                    for (int64_t c = 0; c < ig; c++)
                        for (int64_t t = 0; t < p->kh * p->kw; t++) {
                            int64_t a = t / p->kw, b = t % p->kw;
                            int64_t line = y * i[STRIDE] - i[PADDING] + a * i[DILATION];
                            int64_t pixel =
                                x * i[STRIDE + 1] - i[PADDING + 1] + b * i[DILATION + 1];
                            if (line < 0 || line >= p->h || pixel < 0 || pixel >= p->w) continue;
                            int64_t at[3];
                            at[0] = ((n * p->in + o / og * ig + c) * p->h + line) * p->w + pixel;
                            at[1] = ((o * ig + c) * p->kh + a) * p->kw + b;
                            at[2] = ((n * p->out + o) * oh + y) * ow + x;
                            for (int k = 0; k < 3; k++) {
                                double term = (double)s->value[(k + 1) % 3][at[(k + 1) % 3]] *
                                              (double)s->value[(k + 2) % 3][at[(k + 2) % 3]];
                                s->sum[k][at[k]] += term;
                                s->size[k][at[k]] += fabs(term);
                            }
                        }
}

/* Results of a half dtype are off by its rounding too. */
static void compare_sums(const char *what, const sides *s, int k, mpt_tensor got) {
    const mpt_dtype dtype = mpt_get_dtype(got);
    const double rounding = dtype == MPT_BF16 ? 0.00390625 : dtype == MPT_F16 ? 0.00048828125 : 0;
    float *values = (float *)calloc((size_t)s->count[k] + 1, sizeof *values);
    int64_t wrong = 0, at = -1;
    if (mpt_read_f32(got, values, s->count[k]) != MPT_OK) TEST_FAIL_("%s", mpt_error(context));
    for (int64_t i = 0; i < s->count[k]; i++) {
        double off = fabs((double)values[i] - s->sum[k][i]);
        if (off <= 1e-6 * s->size[k][i] + 1e-7 + rounding * fabs(s->sum[k][i])) continue;
        if (wrong++ == 0) at = i;
    }
    if (wrong)
        TEST_FAIL_("%s: side %d: %ld of %ld differ; at %ld %.9g, expected %.9g", what, k,
                   (long)wrong, (long)s->count[k], (long)at, (double)values[at], s->sum[k][at]);
    free(values);
}

/* In half precision the values are such that it holds them exactly; x and y stay fp32 there and are
   rounded by the call, or (stored) are of that dtype. */
static void run_problem(const problem *p, bool last, mpt_dtype dtype, bool stored) {
    const int64_t *i = p->ints;
    mpt_conv_config config = config_of(i);
    int64_t oh = (p->h + 2 * i[PADDING] - i[DILATION] * (p->kh - 1) - 1) / i[STRIDE] + 1;
    int64_t ow =
        (p->w + 2 * i[PADDING + 1] - i[DILATION + 1] * (p->kw - 1) - 1) / i[STRIDE + 1] + 1;
    mpt_shape shape[3];
    mpt_tensor side[3];
    sides s;
    char what[160];
    shape[0] = MPT_SHAPE(p->n, p->in, p->h, p->w);
    shape[1] = MPT_SHAPE(p->out, p->in / i[GROUPS], p->kh, p->kw);
    shape[2] = MPT_SHAPE(p->n, p->out, oh, ow);
    snprintf(what, sizeof what, "%ldx%ldx%ldx%ld to %ld by %ldx%ld in %ld, stride %ld%s, %s%s",
             (long)p->n, (long)p->in, (long)p->h, (long)p->w, (long)p->out, (long)p->kh,
             (long)p->kw, (long)i[GROUPS], (long)i[STRIDE], last ? ", channels last" : "",
             mpt_dtype_name(dtype), stored ? " stored" : "");
    mpt_scope_begin(context);
    mpt_autocast_begin(context, dtype);
    for (int k = 0; k < 3; k++) {
        s.count[k] = shape[k].dim[0] * shape[k].dim[1] * shape[k].dim[2] * shape[k].dim[3];
        s.value[k] = (float *)calloc((size_t)s.count[k], sizeof(float));
        s.sum[k] = (double *)calloc((size_t)s.count[k], sizeof(double));
        s.size[k] = (double *)calloc((size_t)s.count[k], sizeof(double));
        for (int64_t e = 0; e < s.count[k]; e++)
            s.value[k][e] = dtype == MPT_F32
                                ? golden_uniform((uint32_t)(k + 7 * p->in), (uint32_t)e)
                                : (float)((e * 37 + k * 11) % 129 - 64) / 64;
        side[k] = mpt_from(context, MPT_F32, shape[k], s.value[k]);
        if (last) side[k] = mpt_to_channels_last(side[k]);
        if (k == 2 || (k == 0 && stored)) side[k] = mpt_cast(side[k], dtype);
        if (k < 2) mpt_requires_grad(side[k], true);
    }
    sums_in_double(p, oh, ow, &s);
    mpt_tensor y = mpt_conv2d(side[0], side[1], none(), &config);
    compare_sums(what, &s, 2, y);
    mpt_backward_from(y, side[2], false);
    compare_sums(what, &s, 0, mpt_grad(side[0]));
    compare_sums(what, &s, 1, mpt_grad(side[1]));
    /* The same three sums, each in the other's place. */
    for (int d = 0; d < 2; d++)
        config.output_padding[d] =
            d ? (p->w + 2 * i[PADDING + 1] - i[DILATION + 1] * (p->kw - 1) - 1) % i[STRIDE + 1]
              : (p->h + 2 * i[PADDING] - i[DILATION] * (p->kh - 1) - 1) % i[STRIDE];
    mpt_clear_grad(side[1]);
    side[2] = mpt_detach(side[2]);
    mpt_requires_grad(side[2], true);
    mpt_tensor x = mpt_conv_transpose2d(side[2], side[1], none(), &config);
    compare_sums(what, &s, 0, x);
    mpt_backward_from(x, mpt_cast(mpt_detach(side[0]), dtype), false);
    compare_sums(what, &s, 2, mpt_grad(side[2]));
    compare_sums(what, &s, 1, mpt_grad(side[1]));
    for (int k = 0; k < 3; k++) free(s.value[k]), free(s.sum[k]), free(s.size[k]);
    if (mpt_failed(context)) {
        TEST_FAIL_("%s: %s", what, mpt_error(context));
        mpt_clear_error(context);
    } else {
        mpt_autocast_end(context);
        mpt_scope_end(context);
    }
}

TEST(sums) {
    static const problem problems[] = {
        {2, 33, 40, 9, 10, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}},
        {1, 70, 18, 6, 7, 3, 3, {2, 2, 1, 1, 1, 1, 0, 0, 1, 0}}, /* more than one K block */
        {2, 3, 17, 15, 16, 5, 5, {2, 2, 2, 2, 1, 1, 0, 0, 1, 0}},
        {1, 65, 35, 8, 8, 1, 1, {1, 1, 0, 0, 1, 1, 0, 0, 1, 0}},
        {2, 20, 33, 9, 8, 1, 1, {2, 3, 0, 0, 1, 1, 0, 0, 1, 0}},
        {2, 24, 32, 7, 9, 3, 2, {1, 2, 1, 0, 2, 1, 0, 0, 4, 0}},
        {1, 300, 300, 5, 6, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 300, 0}}, /* depthwise */
        {2, 37, 37, 8, 9, 3, 3, {2, 2, 1, 1, 1, 1, 0, 0, 37, 0}},
        {1, 2, 3, 30, 90, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* more than one block of rows */
        {2, 16, 16, 20, 32, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}},
        {2, 5, 11, 19, 31, 3, 3, {1, 1, 4, 4, 1, 1, 0, 0, 1, 0}}, /* lines without a tap */
        {2, 6, 41, 21, 38, 5, 3, {2, 2, 3, 1, 2, 1, 0, 0, 1, 0}},
        {2, 12, 10, 11, 20, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* lines left over */
        {1, 3, 70, 12, 32, 7, 7, {2, 2, 3, 3, 1, 1, 0, 0, 1, 0}},
        {1, 130, 140, 9, 8, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* weights in few slices */
        {1, 300, 9, 3, 24, 1, 3, {1, 1, 0, 1, 1, 1, 0, 0, 1, 0}}, /* many channels to a line */
        {2, 16, 24, 16, 48, 1, 1, {2, 2, 0, 0, 1, 1, 0, 0, 1, 0}},
        {2, 7, 8, 5, 130, 2, 4, {3, 3, 2, 1, 1, 1, 0, 0, 1, 0}},
        {1, 35, 35, 12, 50, 7, 7, {1, 1, 3, 5, 1, 1, 0, 0, 35, 0}}, /* depthwise, many taps */
        {2, 20, 20, 14, 13, 3, 3, {2, 1, 2, 3, 2, 3, 0, 0, 20, 0}},
        {1, 24, 24, 3, 5, 2, 2, {1, 1, 3, 3, 1, 1, 0, 0, 24, 0}},
        {2, 19, 19, 9, 8, 1, 1, {2, 3, 0, 0, 1, 1, 0, 0, 19, 0}}, /* pixels without a tap */
        {2, 12, 24, 9, 10, 1, 1, {2, 3, 0, 0, 1, 1, 0, 0, 3, 0}},
        {3, 22, 70, 8, 8, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* dy in panels of pairs */
        {2, 24, 33, 5, 4, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* lines of 4 pixels */
        {33, 22, 37, 4, 5, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}}, /* small images, in two blocks */
        {7, 10, 35, 6, 6, 5, 5, {1, 1, 2, 2, 1, 1, 0, 0, 1, 0}},  /* more taps than go together */
        {9, 12, 20, 8, 7, 3, 2, {2, 3, 4, 1, 2, 1, 0, 0, 1, 0}},  /* pixels without a tap */
        {6, 9, 64, 2, 2, 3, 3, {1, 1, 1, 1, 1, 1, 0, 0, 1, 0}},   /* channels without a pair */
    };
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        for (int last = 0; last < 2; last++) {
            run_problem(&problems[i], last != 0, MPT_F32, false);
            run_problem(&problems[i], last != 0, MPT_BF16, last != 0);
            run_problem(&problems[i], last != 0, MPT_F16, last == 0);
        }
    mpt_destroy(context);
}

/* ==== Layouts ==== */

static mpt_tensor drawn(mpt_shape shape) { return mpt_randn(context, MPT_F32, shape); }

static int copies;
static void count_copies(void *user, const char *line) {
    (void)user;
    copies += strstr(line, "copy") != NULL;
}

/* Channels last goes in, through everything elementwise, and out, and so do gradients. */
TEST(channels_last) {
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    mpt_conv_config config = mpt_conv_config_default();
    config.same = true;
    mpt_tensor plain = drawn(MPT_SHAPE(2, 5, 6, 7)), x = mpt_to_channels_last(plain);
    mpt_tensor w = mpt_to_channels_last(drawn(MPT_SHAPE(5, 5, 3, 3))), b = drawn(MPT_SHAPE(5));
    CHECK(!mpt_is_channels_last(plain) && mpt_is_channels_last(x));
    CHECK_EQ_INT(mpt_to_channels_last(x).slot, x.slot);
    CHECK(!mpt_is_channels_last(mpt_contiguous(x)) && mpt_is_channels_last(mpt_clone(x)));
    CHECK(!mpt_is_channels_last(mpt_permute(x, MPT_SHAPE(0, 2, 3, 1))));
    CHECK(mpt_is_channels_last(mpt_permute(drawn(MPT_SHAPE(2, 6, 7, 5)), MPT_SHAPE(0, 3, 1, 2))));
    mpt_requires_grad(x, true);
    mpt_requires_grad(w, true);
    copies = 0;
    mpt_print_launches(context, count_copies, NULL);
    mpt_tensor y = mpt_conv2d(x, w, b, &config);
    mpt_tensor z = mpt_relu(mpt_add(mpt_mul(y, mpt_reshape(b, MPT_SHAPE(1, 5, 1, 1))), x));
    z = mpt_where(mpt_gt(z, y), mpt_cast(mpt_cast(z, MPT_BF16), MPT_F32), mpt_dropout(z, 0.5));
    CHECK(mpt_is_channels_last(y) && mpt_is_channels_last(z));
    mpt_backward(mpt_sum(mpt_conv2d(z, w, none(), &config), MPT_ALL_DIMS, false));
    CHECK(mpt_is_channels_last(mpt_grad(x)) && mpt_is_channels_last(mpt_grad(w)));
    mpt_print_launches(context, NULL, NULL);
    /* The two casts and their gradients, that of the sum, and one that two share. */
    CHECK_EQ_INT(copies, 6);
    copies = 0;
    mpt_print_launches(context, count_copies, NULL);
    mpt_conv2d(plain, w, b, &config);
    mpt_print_launches(context, NULL, NULL);
    CHECK_EQ_INT(copies, mpt_is_channels_last(plain) ? 0 : 1);
    /* What takes rows as they lie must not be misled by strides: values against contiguous ones. */
    mpt_tensor some[2];
    for (int k = 0; k < 2; k++) {
        mpt_tensor leaf = k ? mpt_to_channels_last(plain) : mpt_clone(plain);
        mpt_requires_grad(leaf, true);
        mpt_tensor soft = mpt_softmax(mpt_tanh(leaf), 1);
        mpt_tensor flat = mpt_mul(mpt_reshape(soft, MPT_SHAPE(2, -1)),
                                  mpt_reshape(mpt_sin(plain), MPT_SHAPE(2, -1)));
        mpt_backward(mpt_sum(mpt_mul(flat, flat), MPT_ALL_DIMS, false));
        some[k] = mpt_grad(leaf);
    }
    float a[420], c[420];
    CHECK(mpt_read_f32(some[0], a, 420) == MPT_OK && mpt_read_f32(some[1], c, 420) == MPT_OK);
    for (int i = 0; i < 420; i++) CHECK_NEAR(a[i], c[i], 1e-6);
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
}

/* ==== Layers ==== */

TEST(layers) {
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    mpt_conv_config config = mpt_conv_config_default(), bare = config;
    config.groups = 2;
    config.stride[0] = config.stride[1] = 2;
    bare.bias = false;
    mpt_module net =
        mpt_sequential(context, mpt_nn_conv2d(context, 4, 6, 3, 2, &config), mpt_nn_relu(context),
                       mpt_nn_conv_transpose2d(context, 6, 8, 3, 3, &config),
                       mpt_nn_conv2d(context, 8, 3, 1, 1, &bare), mpt_nn_flatten(context), MPT_END);
    mpt_tensor x = drawn(MPT_SHAPE(2, 4, 7, 7)), y = mpt_forward(net, x);
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias", "3.weight"};
    static const int64_t count[] = {6 * 2 * 3 * 2, 6, 6 * 4 * 3 * 3, 8, 3 * 8};
    static const int fan[] = {2 * 3 * 2, 2 * 3 * 2, 4 * 3 * 3, 4 * 3 * 3, 8};
    for (int i = 0; i < 5; i++) {
        float values[256], most = 0;
        REQUIRE(mpt_read_f32(mpt_parameter(net, names[i]), values, count[i]) == MPT_OK);
        for (int64_t k = 0; k < count[i]; k++)
            if (fabsf(values[k]) > most) most = fabsf(values[k]);
        CHECK(most <= 1 / sqrtf((float)fan[i]) && most > 0.5f / sqrtf((float)fan[i]));
    }
    CHECK(!mpt_valid(mpt_parameter(net, "3.bias")));
    mpt_clear_error(context);
    x = drawn(MPT_SHAPE(2, 4, 7, 7));
    y = mpt_forward(net, x);
    mpt_tensor z =
        mpt_conv2d(x, mpt_parameter(net, "0.weight"), mpt_parameter(net, "0.bias"), &config);
    z = mpt_conv_transpose2d(mpt_relu(z), mpt_parameter(net, "2.weight"),
                             mpt_parameter(net, "2.bias"), &config);
    z = mpt_conv2d(z, mpt_parameter(net, "3.weight"), none(), NULL);
    CHECK(mix_tensor(1, y) == mix_tensor(1, mpt_flatten(z, 1, -1)));
    mpt_module line = mpt_nn_conv1d(context, 3, 4, 3, NULL);
    mpt_shape shape = mpt_get_shape(mpt_forward(line, drawn(MPT_SHAPE(2, 3, 9))));
    CHECK(shape.rank == 3 && shape.dim[1] == 4 && shape.dim[2] == 7);
    x = drawn(MPT_SHAPE(2, 3, 9)), z = mpt_parameter(line, "weight");
    config = mpt_conv_config_default(); /* of one dimension the first of each pair is nothing */
    config.stride[0] = config.dilation[0] = 0;
    config.padding[0] = config.output_padding[0] = INT64_MIN;
    CHECK(mix_tensor(1, mpt_conv1d(x, z, none(), &config)) ==
          mix_tensor(1, mpt_conv1d(x, z, none(), NULL)));
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
}

static void count_launch(void *user, const char *line) {
    if (strstr(line, " relu ") || strstr(line, ".relu ")) ++*(int *)user;
}

/* Convolutions and the relus behind them, by the net or one by one; *relus: launches of their own
   in forward. The gradient of the last relu is a tensor that others hold, too. */
static uint64_t relu_bits(bool together, mpt_dtype dtype, bool last, int *relus) {
    context = mpt_create(NULL);
    if (!context) return 0;
    mpt_conv_config config = mpt_conv_config_default();
    config.stride[0] = config.stride[1] = 2;
    mpt_module net = mpt_sequential(context, mpt_nn_conv2d(context, 4, 6, 3, 3, NULL),
                                    mpt_nn_relu(context),
                                    mpt_nn_conv_transpose2d(context, 6, 8, 3, 3, &config),
                                    mpt_nn_relu(context), MPT_END);
    mpt_tensor x = drawn(MPT_SHAPE(2, 4, 9, 9));
    if (last) x = mpt_to_channels_last(x);
    mpt_requires_grad(x, true);
    *relus = 0;
    mpt_print_launches(context, count_launch, relus);
    mpt_autocast_begin(context, dtype);
    mpt_tensor y = together ? mpt_forward(net, x) : x;
    for (int i = 0; i < 4 && !together; i += 2)
        y = mpt_relu(mpt_forward(mpt_child(net, i ? "2" : "0"), y));
    mpt_autocast_end(context);
    mpt_print_launches(context, NULL, NULL);
    mpt_backward_from(y, y, false);
    uint64_t hash = mix_tensor(mix_tensor(1, y), mpt_grad(x));
    static const char *const names[] = {"0.weight", "0.bias", "2.weight", "2.bias"};
    for (int i = 0; i < 4; i++)
        hash = mix_tensor(hash, mpt_grad(mpt_parameter(net, names[i])));
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
    return hash;
}

TEST(a_relu_in_the_call_of_the_layer_before_it) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    for (int i = 0; i < 6; i++) {
        int relus[2];
        const mpt_dtype dtype = dtypes[i / 2];
        const uint64_t one = relu_bits(true, dtype, i % 2, &relus[0]);
        CHECK(one == relu_bits(false, dtype, i % 2, &relus[1]));
        CHECK_EQ_INT(relus[0], 0);
        CHECK_EQ_INT(relus[1], 2);
    }
}

/* ==== Layouts ==== */

/* Images of half dtypes keep their bits from layout to layout, and fp32 is rounded on the way as a
 * cast rounds: what multiplies by the identity shows it. */
TEST(layouts_of_halves) {
    static const int64_t sizes[][3] = {{3, 7, 9},   {15, 8, 8}, {16, 1, 8},   {17, 3, 7},
                                       {33, 5, 13}, {70, 2, 4}, {40, 17, 31}, {65, 1, 3}};
    static float want[2 * 40 * 17 * 31], got[2 * 40 * 17 * 31], one[70 * 70];
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        const int64_t *size = sizes[i / 2], c = size[0], count = 2 * c * size[1] * size[2];
        const mpt_dtype dtype = i % 2 ? MPT_BF16 : MPT_F16;
        for (int64_t j = 0; j < c * c; j++) one[j] = j % (c + 1) == 0;
        mpt_tensor x = drawn(MPT_SHAPE(2, c, size[1], size[2])), half = mpt_cast(x, dtype);
        mpt_tensor last = mpt_to_channels_last(half);
        mpt_autocast_begin(context, dtype);
        mpt_tensor y =
            mpt_conv2d(x, mpt_from(context, MPT_F32, MPT_SHAPE(c, c, 1, 1), one), none(), NULL);
        mpt_autocast_end(context);
        const mpt_tensor all[] = {last, y, mpt_contiguous(last),
                                  mpt_conv2d(last, mpt_cast(mpt_from(context, MPT_F32,
                                                                     MPT_SHAPE(c, c, 1, 1), one),
                                                            dtype),
                                             none(), NULL)};
        CHECK(mpt_read_f32(half, want, count) == MPT_OK);
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            memset(got, 0, sizeof got);
            CHECK(mpt_read_f32(all[k], got, count) == MPT_OK);
            CHECK(memcmp(got, want, (size_t)count * sizeof *got) == 0);
        }
    }
    mpt_destroy(context);
}

/* ==== Bits ==== */

/* A convolution by groups and strides, a plain one, a depthwise one, one by strides, and one of
 * small images, forward and backward. */
static uint64_t bits(int threads, mpt_dtype dtype) {
    mpt_config config = mpt_config_default();
    config.threads = threads;
    context = mpt_create(&config);
    if (!context) return 0;
    uint64_t hash = 1;
    for (int k = 0; k < 5; k++) {
        mpt_conv_config conv = mpt_conv_config_default();
        const int64_t size = k == 4 ? 4 : 18;
        conv.groups = k == 0 ? 2 : k == 2 ? 24 : 1;
        conv.stride[0] = conv.stride[1] = k == 0 || k == 3 ? 2 : 1;
        conv.padding[0] = conv.padding[1] = 1;
        mpt_tensor x = drawn(MPT_SHAPE(k == 4 ? 70 : 2, 24, size, k == 3 ? 48 : size));
        mpt_tensor w = drawn(MPT_SHAPE(24, 24 / conv.groups, 3, 3)), b = drawn(MPT_SHAPE(24));
        if (k == 1) x = mpt_to_channels_last(x);
        mpt_requires_grad(x, true);
        mpt_requires_grad(w, true);
        mpt_requires_grad(b, true);
        mpt_autocast_begin(context, dtype);
        mpt_tensor y = mpt_conv2d(x, w, b, &conv);
        mpt_autocast_end(context);
        mpt_backward_from(y, y, false);
        hash = mix_tensor(mix_tensor(hash, y), mpt_grad(b));
        hash = mix_tensor(mix_tensor(hash, mpt_grad(x)), mpt_grad(w));
    }
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
    return hash;
}

TEST(threads) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int d = 0; d < 3; d++) {
        uint64_t one = bits(1, dtypes[d]);
        for (int threads = 2; threads < 8; threads++) CHECK(bits(threads, dtypes[d]) == one);
    }
}

/* Few channels that lie one behind the other have kernels of their own; those of channels last are
   products: both are the same sums. Sizes fill strips, leave them, and take bands of lines. */
static const int64_t few[][10] = {
    /* images, channels, of y, lines, pixels, kernel, padding, groups */
    {5, 1, 6, 28, 28, 5, 5, 2, 2, 1},     {9, 6, 16, 14, 14, 5, 5, 0, 0, 1},
    {2, 5, 7, 9, 11, 3, 2, 1, 1, 1},      {3, 8, 8, 10, 10, 3, 3, 1, 1, 8},
    {1, 32, 32, 40, 50, 3, 3, 1, 1, 1},   {17, 3, 2, 6, 5, 1, 1, 0, 0, 1},
    {2, 3, 4, 3, 130, 1, 7, 0, 3, 1},     {40, 2, 3, 4, 3, 3, 3, 2, 2, 1},
    {2, 9, 32, 33, 16, 4, 9, 3, 1, 1},    {1, 2, 2, 200, 300, 3, 3, 1, 1, 1}};
enum { FEW = sizeof few / sizeof *few, FEW_MOST = 2 * 200 * 300 };

/* y and the gradients of x, weights and biases, in a row; returns how many. */
static int64_t few_values(const int64_t *s, mpt_dtype dtype, bool last, float *to) {
    mpt_conv_config config = mpt_conv_config_default();
    config.padding[0] = s[7], config.padding[1] = s[8];
    config.groups = s[9];
    mpt_tensor in[3], got[4];
    context = mpt_create(NULL);
    if (!context) return -1;
    in[0] = drawn(MPT_SHAPE(s[0], s[1], s[3], s[4]));
    in[1] = drawn(MPT_SHAPE(s[2], s[1] / s[9], s[5], s[6]));
    in[2] = drawn(MPT_SHAPE(s[2]));
    for (int i = 0; i < 3; i++) {
        in[i] = mpt_cast(in[i], dtype);
        if (last && i < 2) in[i] = mpt_to_channels_last(in[i]);
        in[i] = mpt_detach(in[i]);
        mpt_requires_grad(in[i], true);
    }
    got[0] = mpt_conv2d(in[0], in[1], in[2], &config);
    mpt_tensor dy = mpt_cast(drawn(mpt_get_shape(got[0])), dtype);
    for (int k = 0; k < 2; k++) mpt_backward_from(got[0], dy, k == 0); /* and again, added */
    int64_t n = 0;
    for (int i = 0; i < 4; i++) {
        if (i > 0) got[i] = mpt_grad(in[i - 1]);
        if (mpt_read_f32(got[i], to + n, mpt_numel(got[i])) != MPT_OK) return -1;
        n += mpt_numel(got[i]);
    }
    mpt_destroy(context);
    return n;
}

TEST(few_channels) {
    static const mpt_dtype dtypes[] = {MPT_F32, MPT_BF16, MPT_F16};
    static float one[3 * FEW_MOST], other[3 * FEW_MOST];
    for (int i = 0; i < 3 * FEW; i++) {
        const mpt_dtype dtype = dtypes[i % 3];
        const double e = dtype == MPT_F32 ? 3e-4 : dtype == MPT_F16 ? 4e-3 : 3e-2;
        const int64_t n = few_values(few[i / 3], dtype, false, one);
        REQUIRE(n > 0 && few_values(few[i / 3], dtype, true, other) == n);
        double worst = 0;
        for (int64_t k = 0; k < n; k++) {
            const double apart = fabs((double)one[k] - other[k]) / (1 + fabs((double)other[k]));
            if (!(apart <= worst)) worst = apart;
        }
        if (!(worst <= e))
            TEST_FAIL_("shape %d, %s: %g apart", i / 3, mpt_dtype_name(dtype), worst);
    }
}

/* An infinity reaches what its pixel meets, not the image beside it. */
TEST(infinity_of_few_channels) {
    mpt_conv_config config = mpt_conv_config_default();
    config.same = true;
    float x[2 * 2 * 8 * 8], y[2 * 3 * 8 * 8], dw[3 * 2 * 3 * 3];
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    for (int i = 0; i < 256; i++) x[i] = i % 8 == 0 && i >= 128 ? INFINITY : 1.0f;
    mpt_tensor w = mpt_full(context, MPT_F32, MPT_SHAPE(3, 2, 3, 3), 0.5);
    mpt_requires_grad(w, true);
    mpt_tensor out =
        mpt_conv2d(mpt_from(context, MPT_F32, MPT_SHAPE(2, 2, 8, 8), x), w, none(), &config);
    mpt_backward(mpt_sum(out, MPT_ALL_DIMS, false));
    REQUIRE(mpt_read_f32(out, y, 384) == MPT_OK && mpt_read_f32(mpt_grad(w), dw, 54) == MPT_OK);
    for (int i = 0; i < 384; i++) CHECK((y[i] < INFINITY) == (i % 8 > 1 || i < 192));
    for (int i = 0; i < 54; i++) CHECK((fabsf(dw[i]) < INFINITY) == (i % 3 == 2));
    for (int i = 2; i < 54; i += 3) CHECK(dw[i] > 0);
    mpt_destroy(context);
}

/* Where a size is kept by an even kernel, one zero more stands at the end of a line: not the first
   pixel of the image beside it. */
TEST(even_kernels_of_few_channels) {
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    for (int64_t k = 2; k <= 6; k += 2) {
        mpt_tensor y[2], dx[2], dw[2];
        mpt_tensor x = drawn(MPT_SHAPE(3, 4, 8, 9)), w = drawn(MPT_SHAPE(6, 4, 3, k));
        mpt_tensor dy = drawn(MPT_SHAPE(3, 6, 8, 9));
        for (int padded = 0; padded < 2; padded++) {
            mpt_conv_config config = mpt_conv_config_default();
            mpt_tensor own = mpt_clone(x), weight = mpt_clone(w), in = own;
            mpt_requires_grad(own, true);
            mpt_requires_grad(weight, true);
            config.same = !padded;
            if (padded) in = mpt_pad(own, MPT_SHAPE((k - 1) / 2, k / 2, 1, 1), 0.0);
            y[padded] = mpt_conv2d(in, weight, none(), &config);
            mpt_backward_from(y[padded], dy, false);
            dx[padded] = mpt_grad(own), dw[padded] = mpt_grad(weight);
        }
        CHECK(mpt_allclose(y[0], y[1], 1e-4, 1e-4) && mpt_allclose(dx[0], dx[1], 1e-4, 1e-4));
        CHECK(mpt_allclose(dw[0], dw[1], 1e-4, 1e-3));
    }
    CHECK(!mpt_failed(context));
    mpt_destroy(context);
}

/* Infinity in fp16 is no number that AMX multiplies in two parts, and a pair of bf16 has another
   one's zero beside it; it must not spread. */
static void infinite_column(mpt_dtype dtype) {
    mpt_conv_config config = mpt_conv_config_default();
    config.same = true;
    mpt_tensor index = mpt_from(context, MPT_I64, MPT_SHAPE(1, 1, 1, 1), &(int64_t){0});
    mpt_tensor x = drawn(MPT_SHAPE(1, 64, 12, 12));
    mpt_tensor most = mpt_from(context, MPT_F32, MPT_SHAPE(1, 1, 1, 1), &(float){INFINITY});
    x = mpt_scatter_add(x, 3, mpt_expand(index, MPT_SHAPE(1, 64, 12, 1)),
                        mpt_expand(most, MPT_SHAPE(1, 64, 12, 1)));
    x = mpt_cast(x, dtype);
    mpt_tensor w = mpt_cast(drawn(MPT_SHAPE(64, 64, 3, 3)), dtype);
    mpt_requires_grad(x, true);
    mpt_requires_grad(w, true);
    mpt_tensor y = mpt_conv2d(x, w, none(), &config);
    mpt_backward_from(y, mpt_cast(drawn(MPT_SHAPE(1, 64, 12, 12)), dtype), true);
    mpt_backward_from(y, mpt_cast(drawn(MPT_SHAPE(1, 64, 12, 12)), dtype), false);
    static float values[64 * 64 * 9];
    REQUIRE(mpt_read_f32(y, values, 64 * 144) == MPT_OK);
    for (int i = 0; i < 64 * 144; i++) CHECK((fabsf(values[i]) < INFINITY) == (i % 12 > 1));
    REQUIRE(mpt_read_f32(mpt_grad(x), values, 64 * 144) == MPT_OK);
    for (int i = 0; i < 64 * 144; i++) CHECK(fabsf(values[i]) < INFINITY);
    REQUIRE(mpt_read_f32(mpt_grad(w), values, 64 * 64 * 9) == MPT_OK);
    for (int i = 0; i < 64 * 64 * 9; i++) CHECK((fabsf(values[i]) < INFINITY) == (i % 3 == 2));
}

TEST(infinity) {
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    infinite_column(MPT_F16);
    infinite_column(MPT_BF16);
    mpt_destroy(context);
}

/* Images that begin in the middle of what would be a pair of bf16. */
TEST(odd_offsets) {
    enum { PIXELS = 2 * 9 * 33, CHANNELS = 16, OUT = 2 * 5 * 17 * 24 };
    static float got[2][OUT];
    mpt_conv_config config = mpt_conv_config_default();
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    config.stride[0] = config.stride[1] = 2;
    mpt_tensor flat = mpt_cast(drawn(MPT_SHAPE(PIXELS * CHANNELS + 1)), MPT_BF16);
    mpt_tensor w = mpt_cast(drawn(MPT_SHAPE(24, CHANNELS, 1, 1)), MPT_BF16);
    mpt_tensor x = mpt_slice(flat, 0, 1, PIXELS * CHANNELS + 1, 1);
    x = mpt_permute(mpt_reshape(x, MPT_SHAPE(2, 9, 33, CHANNELS)), MPT_SHAPE(0, 3, 1, 2));
    for (int k = 0; k < 2; k++) {
        mpt_tensor y = mpt_conv2d(k ? mpt_clone(x) : x, w, none(), &config);
        CHECK(mpt_read_f32(y, got[k], OUT) == MPT_OK);
    }
    for (int i = 0; i < OUT; i++) CHECK(got[0][i] == got[1][i]);
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
}

/* A bias that is a view, with a step or of one number, is what its copy is. */
TEST(strided_bias) {
    static float got[2][2 * 24 * 8 * 8];
    mpt_conv_config config = mpt_conv_config_default();
    context = mpt_create(NULL);
    REQUIRE(context != NULL);
    config.groups = 2;
    mpt_tensor x = drawn(MPT_SHAPE(2, 4, 6, 6)), one = drawn(MPT_SHAPE(1));
    mpt_tensor w[2], biases[2];
    w[0] = drawn(MPT_SHAPE(24, 2, 3, 3)), w[1] = drawn(MPT_SHAPE(4, 12, 3, 3));
    biases[0] = mpt_slice(drawn(MPT_SHAPE(72)), 0, 1, 72, 3);
    biases[1] = mpt_expand(one, MPT_SHAPE(24));
    for (int i = 0; i < 4 && !mpt_failed(context); i++) {
        int64_t count = 0;
        for (int k = 0; k < 2; k++) {
            mpt_tensor bias = k ? mpt_clone(biases[i / 2]) : biases[i / 2];
            mpt_tensor y = i % 2 ? mpt_conv_transpose2d(x, w[1], bias, &config)
                                 : mpt_conv2d(x, w[0], bias, &config);
            count = mpt_numel(y);
            CHECK(mpt_read_f32(y, got[k], count) == MPT_OK);
        }
        CHECK(memcmp(got[0], got[1], (size_t)count * sizeof got[0][0]) == 0);
    }
    if (mpt_failed(context)) TEST_FAIL_("%s", mpt_error(context));
    mpt_destroy(context);
}

TEST_TABLE = {T(goldens), T(sums), T(channels_last), T(layers), T(threads), T(infinity),
              T(odd_offsets), T(strided_bias), T(a_relu_in_the_call_of_the_layer_before_it),
              T(layouts_of_halves), T(few_channels),
              T(infinity_of_few_channels), T(even_kernels_of_few_channels)};
TEST_MAIN
