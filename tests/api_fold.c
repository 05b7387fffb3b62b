/* api_fold.c: convolutions fused with the batch norm behind them: the same numbers but for
 * roundings, over shapes that take every road of the kernels, in all precisions and layouts; fewer
 * launches, nothing allocated; what is not fused and why; training, changes of weights, forwards
 * that do otherwise than the one that was traced. ResNet-18 against PyTorch's evaluation. */
#include "../examples/resnet.h"
#include "models.h"

#include "checks.h"
#include "memory.h"

static mpt_context *context;

/* ==== Blocks: a convolution, its norm, what that does more ==== */

typedef struct shape_case {
    const char *label;
    int rank; /* of the image: 4, or 3; 5: 4 and transposed */
    int64_t n, in, out, size, kernel, stride, padding, groups;
    bool bias;
} shape_case;

/* Lines, packed products, pixels of 1 by 1, groups, depthwise, strides, lines of one dimension. */
static const shape_case shapes[] = {
    {"lines", 4, 2, 16, 16, 16, 3, 1, 1, 1, false},
    {"lines with a bias", 4, 2, 16, 32, 16, 3, 1, 1, 1, true},
    {"few pixels", 4, 3, 40, 70, 5, 3, 1, 1, 1, false},
    {"few pixels, deep", 4, 2, 160, 33, 4, 3, 1, 1, 1, true},
    {"stride", 4, 2, 3, 16, 21, 7, 2, 3, 1, false},
    {"shortcut", 4, 2, 16, 32, 14, 1, 2, 0, 1, false},
    {"pixels", 4, 2, 24, 18, 9, 1, 1, 0, 1, true},
    {"one pixel", 4, 1, 8, 5, 1, 1, 1, 0, 1, false},
    {"groups", 4, 2, 12, 18, 9, 3, 1, 1, 3, true},
    {"depthwise", 4, 2, 24, 24, 12, 3, 1, 1, 24, false},
    {"depthwise, stride", 4, 2, 19, 19, 12, 5, 2, 2, 19, true},
    {"one dimension", 3, 3, 10, 14, 33, 5, 1, 2, 1, false},
    {"transposed", 5, 2, 12, 10, 7, 3, 2, 1, 1, true},
    {"transposed, one stride", 5, 2, 12, 16, 12, 3, 1, 1, 1, false}};
enum { SHAPES = sizeof shapes / sizeof *shapes, MOST = 1 << 16 };

static float noise(uint32_t stream, int64_t i) { return golden_uniform(stream, (uint32_t)i); }

static mpt_tensor filled(mpt_shape shape, uint32_t stream, double center, double half) {
    int64_t numel = 1;
    for (int d = 0; d < shape.rank; d++) numel *= shape.dim[d];
    float *values = (float *)malloc((size_t)numel * sizeof *values);
    for (int64_t i = 0; values && i < numel; i++)
        values[i] = (float)(center + half * (double)noise(stream, i));
    mpt_tensor made = mpt_from(context, MPT_F32, shape, values);
    free(values);
    return made;
}

static void set(mpt_tensor to, uint32_t stream, double center, double half) {
    static float values[MOST];
    const int64_t numel = mpt_numel(to);
    CHECK(numel <= MOST);
    for (int64_t i = 0; i < numel && i < MOST; i++)
        values[i] = (float)(center + half * (double)noise(stream, i));
    CHECK_EQ_INT(mpt_write(to, values, (size_t)numel * sizeof *values), MPT_OK);
}

/* Statistics and parameters of a norm that are not those it begins with. */
static void set_norm(mpt_module net, const char *path, uint32_t stream) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", path);
    set(mpt_parameter(net, name), stream, 1, 0.4);
    snprintf(name, sizeof name, "%s.bias", path);
    set(mpt_parameter(net, name), stream + 1, 0, 0.5);
    snprintf(name, sizeof name, "%s.running_mean", path);
    set(mpt_buffer(net, name), stream + 2, 0.1, 0.5);
    snprintf(name, sizeof name, "%s.running_var", path);
    set(mpt_buffer(net, name), stream + 3, 1, 0.6);
}

/* What a block does after its norm; LATE: the second input comes from what runs after conv. */
enum { RELU = 1, RESIDUAL = 2, LATE = 4, RELU_APART = 8, LOOKS = 16, TWICE = 32, KEEPS = 64 };

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    const int how = *(const int *)user;
    mpt_module conv = mpt_child(self, "conv"), norm = mpt_child(self, "norm");
    mpt_tensor y[2], kept = y[0] = mpt_forward(conv, in[0]);
    (void)n_out;
    if (how & KEEPS) kept = mpt_keep(y[0]);
    y[1] = n_in > 1 ? in[1] : in[0];
    if (n_in < 2 && (how & RESIDUAL)) /* in the trace */
        y[1] = mpt_zeros(self.context, mpt_get_dtype(y[0]), mpt_get_shape(y[0]));
    if (how & LATE) y[1] = mpt_mul_scalar(y[1], 0.5);
    if (how & LOOKS) y[0] = mpt_add(y[0], mpt_mul_scalar(y[0], 0.25));
    mpt_forward_n(norm, y, how & RESIDUAL ? 2 : 1, out, 1);
    if (how & RELU_APART) out[0] = mpt_relu(out[0]);
    if (how & (TWICE | KEEPS)) out[0] = mpt_add(out[0], kept);
    return MPT_OK;
}

static mpt_module make_block(const shape_case *s, int *how) {
    static const mpt_module_class cls = {"block", block_forward, NULL, NULL, NULL, 0, 1};
    mpt_conv_config cc = mpt_conv_config_default();
    mpt_norm_config nc = mpt_norm_config_default();
    mpt_module self = mpt_module_create(context, &cls, how), conv;
    cc.stride[0] = cc.stride[1] = s->stride;
    cc.padding[0] = cc.padding[1] = s->padding;
    cc.groups = s->groups, cc.bias = s->bias;
    nc.relu = (*how & RELU) != 0;
    if (s->rank == 3) {
        cc.padding[0] = s->padding;
        conv = mpt_nn_conv1d(context, s->in, s->out, s->kernel, &cc);
    } else if (s->rank == 4) {
        conv = mpt_nn_conv2d(context, s->in, s->out, s->kernel, s->kernel, &cc);
    } else {
        conv = mpt_nn_conv_transpose2d(context, s->in, s->out, s->kernel, s->kernel, &cc);
    }
    mpt_add_child(self, "conv", conv);
    mpt_add_child(self, "norm",
                  s->rank == 3 ? mpt_nn_batch_norm1d(context, s->out, &nc)
                               : mpt_nn_batch_norm2d(context, s->out, &nc));
    set_norm(self, "norm", 100);
    mpt_eval(self);
    return self;
}

static mpt_tensor make_image(const shape_case *s, bool last) {
    mpt_tensor x = filled(s->rank == 3 ? MPT_SHAPE(s->n, s->in, s->size)
                                       : MPT_SHAPE(s->n, s->in, s->size, s->size),
                          7, 0, 1);
    return last && s->rank != 3 ? mpt_to_channels_last(x) : x;
}

/* Values of a forward in inference, of the second one. Returns its launches. */
static int64_t run(mpt_module net, const mpt_tensor *in, int n_in, mpt_dtype precision,
                   float *values, int64_t *count) {
    int64_t launches = 0;
    mpt_tensor out;
    mpt_scope_begin(context);
    mpt_inference_begin(context);
    mpt_autocast_begin(context, precision);
    for (int i = 0; i < 2; i++) {
        launches = mpt_get_counters(context).launches;
        mpt_forward_n(net, in, n_in, &out, 1);
        launches = mpt_get_counters(context).launches - launches;
    }
    mpt_autocast_end(context);
    *count = mpt_numel(out);
    CHECK(*count <= MOST);
    if (*count <= MOST) CHECK_EQ_INT(mpt_read_f32(out, values, *count), MPT_OK);
    mpt_inference_end(context);
    mpt_scope_end(context);
    check_ok(context);
    return launches;
}

static float reference[MOST], plain[MOST], fused[MOST];

static double rms(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = (double)a[i] - (b ? (double)b[i] : 0);
        sum += off * off;
    }
    return sqrt(sum / (double)(n > 0 ? n : 1));
}

/* fp32: within the tolerance of one op. Half: one rounding off fp32 at most, and, as far as few
   numbers tell, no farther than the net as it is, which rounds more often. */
static void compare(const char *label, mpt_dtype precision, int64_t n) {
    const double size = rms(reference, NULL, n), off = rms(fused, plain, n) / size;
    const double theirs = rms(plain, reference, n) / size, ours = rms(fused, reference, n) / size;
    const double rounding = precision == MPT_F16 ? 0x1p-11 : 0x1p-8;
    const bool good = precision == MPT_F32
                          ? off <= 1.3e-6
                          : ours <= rounding && (n < 1000 || ours <= 1.1 * theirs);
    if (getenv("MPTRAIN_TEST_SHOW"))
        printf("\n  %s %s: %.3g off, from fp32 %.3g, before %.3g", label, mpt_dtype_name(precision),
               off, ours, theirs);
    if (!good || !(size > 0.01))
        TEST_FAIL_("%s in %s: %.3g off; from fp32 %.3g, unfused %.3g", label,
                   mpt_dtype_name(precision), off, ours, theirs);
}

static void run_shape(const shape_case *s, int how, bool last) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    char label[96], text[256];
    const bool dense = last && s->rank != 3;
    int64_t n = 0, launches[2];
    mpt_scope_begin(context);
    mpt_module net = make_block(s, &how);
    mpt_tensor in[2];
    in[0] = make_image(s, last);
    mpt_tensor shaped = mpt_forward(mpt_child(net, "conv"), in[0]);
    mpt_tensor residual = filled(mpt_get_shape(shaped), 9, 0, 1);
    if (last && s->rank != 3) residual = mpt_to_channels_last(residual);
    for (int i = 0; i < 3; i++) {
        in[1] = mpt_cast(residual, precisions[i]);
        snprintf(label, sizeof label, "%s%s%s%s", s->label, how & RELU ? " relu" : "",
                 how & RESIDUAL ? " residual" : "", last ? "" : " contiguous");
        launches[0] = run(net, in, 2, precisions[i], plain, &n);
        if (i == 0) memcpy(reference, plain, sizeof plain);
        CHECK_EQ_INT(mpt_fuse(net, in[0], text, sizeof text), 1);
        launches[1] = run(net, in, 2, precisions[i], fused, &n);
        compare(label, precisions[i], n);
        if (dense) CHECK_EQ_INT(launches[1], 1); /* what lies otherwise is copied around it */
        CHECK(launches[1] + (dense || !(how & RESIDUAL)) <= launches[0]);
        CHECK_EQ_INT(mpt_unfuse(net), MPT_OK);
        CHECK_EQ_INT(run(net, in, 2, precisions[i], fused, &n), launches[0]);
        CHECK(memcmp(fused, plain, (size_t)n * sizeof *plain) == 0);
    }
    mpt_module_destroy(net);
    mpt_scope_end(context);
}

TEST(blocks) {
    context = mpt_create(NULL);
    for (int i = 0; i < SHAPES; i++)
        for (int how = 0; how < 4; how++)
            for (int last = 0; last < 2; last++) run_shape(&shapes[i], how, last != 0);
    check_ok(context);
    mpt_destroy(context);
}

static mpt_tensor total(mpt_tensor x) { return mpt_sum(mpt_flatten(x, 0, -1), 0, false); }

/* ==== What is fused and what is not ==== */

static mpt_module conv_of(int64_t in, int64_t out, bool bias) {
    mpt_conv_config cc = mpt_conv_config_default();
    cc.padding[0] = cc.padding[1] = 1, cc.bias = bias;
    return mpt_nn_conv2d(context, in, out, 3, 3, &cc);
}

static mpt_module norm_of(int64_t channels, bool track) {
    mpt_norm_config nc = mpt_norm_config_default();
    nc.track = track;
    return mpt_nn_batch_norm2d(context, channels, &nc);
}

static mpt_tensor image(int64_t n, int64_t channels) {
    return mpt_to_channels_last(filled(MPT_SHAPE(n, channels, 8, 8), 5, 0, 1));
}

/* same: 1: to the bit as unfused; 0: not, but for roundings; -1: the one or the other. */
static void check_same(const char *line, mpt_module net, mpt_tensor x, int same) {
    int64_t n;
    run(net, &x, 1, MPT_F32, fused, &n);
    mpt_no_grad_begin(context);
    mpt_tensor out = mpt_forward(net, x);
    mpt_no_grad_end(context);
    CHECK_EQ_INT(mpt_read_f32(out, plain, n), MPT_OK);
    CHECK(memcmp(plain, fused, (size_t)n * sizeof *plain) == 0); /* without gradients: the same */
    out = mpt_forward(net, x);                                   /* with them: unfused */
    CHECK_EQ_INT(mpt_read_f32(out, plain, n), MPT_OK);
    const int equal = memcmp(plain, fused, (size_t)n * sizeof *plain) == 0;
    if (same >= 0 && equal != same) TEST_FAIL_("%s: %s", line, equal ? "unfused" : "not the same");
    if (!(rms(plain, fused, n) <= 1.3e-6 * rms(plain, NULL, n)))
        TEST_FAIL_("%s: %.3g off", line, rms(plain, fused, n) / rms(plain, NULL, n));
}

TEST(sequential) {
    context = mpt_create(NULL);
    char text[512];
    mpt_module net = mpt_sequential(context, conv_of(3, 8, true), norm_of(8, true),
                                    mpt_nn_relu(context), conv_of(8, 8, false), norm_of(8, true),
                                    conv_of(8, 8, false), mpt_nn_relu(context),
                                    conv_of(8, 8, false), norm_of(8, false), MPT_END);
    mpt_eval(net);
    CHECK_EQ_INT(mpt_fuse(net, image(2, 3), text, sizeof text), 2);
    CHECK_EQ_STR(text, "0 + 1 + relu\n3 + 4\n5: by itself, since no batch norm takes its result\n"
                       "7: by itself, since the batch norm after it keeps no running statistics\n");
    set_norm(net, "1", 40);
    check_same(text, net, image(2, 3), 0);
    CHECK_EQ_INT(mpt_fuse(mpt_child(net, "3"), image(2, 8), text, sizeof text), 0);
    CHECK_EQ_STR(text, "conv2d: by itself, since its result is the net's\n");
    check_ok(context);
    mpt_destroy(context);
}

static void expect(mpt_module net, int64_t channels, int64_t count, const char *line, int same) {
    char text[512];
    mpt_tensor x = image(2, channels);
    const uint64_t hash = mpt_module_hash(net);
    CHECK_EQ_INT(mpt_fuse(net, x, text, sizeof text), count);
    CHECK_EQ_STR(text, line);
    check_same(line, net, x, same);
    CHECK(mpt_module_hash(net) == hash);
    check_ok(context);
}

TEST(left_alone) {
    static const shape_case s = {"", 4, 2, 6, 6, 8, 3, 1, 1, 1, false};
    static int hows[] = {LOOKS, TWICE, KEEPS, RELU_APART};
    static const char *const lines[] = {
        "conv: by itself, since its result is used more than once\n",
        "conv: by itself, since its result is used more than once\n",
        "conv + norm\n",
        "conv + norm (the relu after it apart: see config.relu of the norm)\n"};
    context = mpt_create(NULL);
    CHECK_EQ_INT(mpt_fuse(conv_of(3, 3, false), image(1, 4), NULL, 0), -1);
    check_error(context, MPT_ERROR_SHAPE, "does not fit weight");
    /* mpt_keep shows in no record: the forward does. */
    for (int i = 0; i < 4; i++) expect(make_block(&s, &hows[i]), 6, i > 1, lines[i], i < 3);
    mpt_module shared = conv_of(4, 4, false), net;
    net = mpt_sequential(context, shared, norm_of(4, true), shared, norm_of(4, true), MPT_END);
    mpt_eval(net);
    expect(net, 4, 0, "0: by itself, since it is called more than once\n", 1);
    mpt_module norm = norm_of(4, true); /* a norm of two may be shared */
    net = mpt_sequential(context, conv_of(4, 4, false), norm, conv_of(4, 4, true), norm, MPT_END);
    mpt_eval(net);
    set_norm(net, "1", 3);
    expect(net, 4, 2, "0 + 1\n2 + 1\n", 0);
    net = mpt_sequential(context, conv_of(4, 4, false), norm_of(4, true), MPT_END);
    mpt_eval(net);
    float tiny[4] = {1, 1e-30f, 1, 1}, huge[4] = {1, 1e30f, 1, 1}, none[4] = {1, NAN, 1, 1};
    mpt_write(mpt_buffer(net, "1.running_var"), tiny, sizeof tiny);
    expect(net, 4, 1, "0 + 1\n", 0); /* eps is there */
    mpt_write(mpt_parameter(net, "1.weight"), huge, sizeof huge);
    expect(net, 4, 0,
           "0: by itself, since its weights times the norm's scale would be beyond fp16\n",
           true);
    mpt_write(mpt_parameter(net, "1.weight"), none, sizeof none);
    CHECK_EQ_INT(mpt_fuse(net, image(1, 4), NULL, 0), 0);
    mpt_norm_config nc = mpt_norm_config_default();
    nc.eps = 0;
    net = mpt_sequential(context, conv_of(4, 4, false), mpt_nn_batch_norm2d(context, 4, &nc),
                         MPT_END);
    mpt_eval(net);
    tiny[1] = 0; /* without eps: what comes out is the bias */
    mpt_write(mpt_buffer(net, "1.running_var"), tiny, sizeof tiny);
    expect(net, 4, 1, "0 + 1\n", -1);
    net = mpt_sequential(context, conv_of(4, 4, false), norm_of(4, true), MPT_END);
    mpt_eval(net); /* parameters that are frozen */
    for (int i = 0; i < mpt_parameter_count(net); i++)
        mpt_requires_grad(mpt_parameter_at(net, i, NULL, 0), false);
    CHECK_EQ_INT(mpt_fuse(net, image(1, 4), NULL, 0), 1);
    check_ok(context);
    CHECK(mpt_backward(total(mpt_forward(net, image(1, 4)))) != MPT_OK);
    check_error(context, MPT_ERROR_STATE, "gradient");
    mpt_destroy(context);
}

/* ==== Nets that change ==== */

static const shape_case plain_shape = {"", 4, 2, 6, 6, 8, 3, 1, 1, 1, true};

static int64_t launches_of(mpt_module net, const mpt_tensor *in, int n_in) {
    int64_t n;
    return run(net, in, n_in, MPT_F32, fused, &n);
}

/* What is made of the net of now, unfused and fused: no part of it may be of before. */
static void check_now(const char *line, mpt_module net, mpt_tensor x) {
    check_same(line, net, x, 0);
    CHECK_EQ_INT(launches_of(net, &x, 1), 1);
}

TEST(changes) {
    int how = RELU;
    float values[6] = {2, 3, 4, 5, 6, 7};
    context = mpt_create(NULL);
    mpt_module net = make_block(&plain_shape, &how);
    mpt_tensor x = image(2, 6);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_optimizer optimizer = mpt_sgd(net, &sgd);
    CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 1);
    check_now("made", net, x);
    mpt_write(mpt_parameter(net, "norm.bias"), values, sizeof values);
    check_now("written", net, x);
    mpt_train(net);
    for (int i = 0; i < 2; i++) { /* as it would without mpt_fuse; the second one fused again */
        mpt_step_begin(context);
        mpt_tensor loss = total(mpt_forward(net, x));
        mpt_zero_grad(optimizer);
        mpt_backward(loss);
        CHECK(mpt_has_grad(mpt_parameter(net, "conv.weight")));
        mpt_step(optimizer);
        mpt_step_end(context);
    }
    CHECK_EQ_INT(launches_of(net, &x, 1), 1); /* inference mode */
    mpt_no_grad_begin(context);
    mpt_counters before = mpt_get_counters(context);
    mpt_forward(net, x); /* in training: of the batch */
    CHECK(mpt_get_counters(context).launches - before.launches > 1);
    mpt_no_grad_end(context);
    mpt_eval(net);
    check_now("trained", net, x);
    mpt_optimizer_destroy(optimizer);
    mpt_half(net, MPT_F16);
    mpt_inference_begin(context);
    mpt_forward(net, x); /* x is fp32 */
    mpt_inference_end(context);
    check_error(context, MPT_ERROR_DTYPE, "argument 2 (parameter conv.weight) is float16");
    mpt_tensor narrow = mpt_cast(x, MPT_F16);
    CHECK_EQ_INT(launches_of(net, &narrow, 1), 1);
    mpt_half(net, MPT_F32);
    check_now("there and back", net, x);
    mpt_unfuse(net);
    CHECK(launches_of(net, &x, 1) > 1);
    check_ok(context);
    mpt_destroy(context);
}

/* Half weights: no farther from the same net with its weights as fp32 than unfused. */
TEST(pure_half) {
    static const mpt_dtype dtypes[] = {MPT_F16, MPT_BF16};
    int how = RELU | RESIDUAL;
    context = mpt_create(NULL);
    for (int i = 0; i < 2; i++) {
        mpt_module net = make_block(&plain_shape, &how), wide = make_block(&plain_shape, &how);
        mpt_tensor in[2] = {image(8, 6), image(8, 6)};
        int64_t n;
        mpt_half(net, dtypes[i]);
        mpt_copy_module(wide, net);
        for (int k = 0; k < 2; k++) in[k] = mpt_cast(in[k], dtypes[i]);
        mpt_tensor floats[2] = {mpt_cast(in[0], MPT_F32), mpt_cast(in[1], MPT_F32)};
        run(wide, floats, 2, MPT_F32, reference, &n);
        run(net, in, 2, MPT_F32, plain, &n);
        CHECK_EQ_INT(mpt_fuse(net, in[0], NULL, 0), 1);
        CHECK_EQ_INT(run(net, in, 2, MPT_F32, fused, &n), 1);
        compare("pure half", dtypes[i], n);
    }
    mpt_destroy(context);
}

/* ==== Forwards that do otherwise ==== */

TEST(other_ways) {
    static const int ways[] = {LATE | RESIDUAL, LOOKS, KEEPS, KEEPS | RESIDUAL | RELU, TWICE};
    int how;
    int64_t n;
    context = mpt_create(NULL);
    for (int i = 0; i < 5; i++) {
        how = 0;
        mpt_module net = make_block(&plain_shape, &how);
        mpt_tensor in[2] = {image(2, 6), image(2, 6)};
        CHECK_EQ_INT(mpt_fuse(net, in[0], NULL, 0), 1);
        how = ways[i]; /* another one than was traced: unfused, or an error, but never wrong */
        mpt_unfuse(net);
        run(net, in, 2, MPT_F32, plain, &n);
        how = 0;
        CHECK_EQ_INT(mpt_fuse(net, in[0], NULL, 0), 1);
        how = ways[i];
        if (ways[i] & TWICE) {
            mpt_tensor out;
            mpt_inference_begin(context);
            CHECK(mpt_forward_n(net, in, 2, &out, 1) != MPT_OK);
            mpt_inference_end(context);
            check_error(context, MPT_ERROR_HANDLE, "mpt_keep makes a handle that stays");
            continue;
        }
        run(net, in, 2, MPT_F32, fused, &n);
        CHECK(memcmp(plain, fused, (size_t)n * sizeof *plain) == 0);
    }
    how = 0; /* outside of a net's forward a convolution does not wait */
    mpt_module net = make_block(&plain_shape, &how);
    mpt_tensor x = image(2, 6);
    CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 1);
    mpt_inference_begin(context);
    mpt_tensor y = mpt_forward(mpt_child(net, "conv"), x);
    mpt_tensor z = mpt_forward(mpt_child(net, "norm"), y);
    CHECK_EQ_INT(mpt_read_f32(y, plain, mpt_numel(y)), MPT_OK);
    CHECK_EQ_INT(mpt_read_f32(z, plain, mpt_numel(z)), MPT_OK);
    mpt_inference_end(context);
    check_ok(context);
    mpt_destroy(context);
}

/* ==== Memory, threads, captured steps ==== */

static mpt_module small_resnet(int64_t width) {
    mpt_module net = resnet18(context, 3, 10, width, false);
    mpt_eval(net);
    return net;
}

TEST(memory) {
    counted count;
    mpt_config config = mpt_config_default();
    count_memory(&config, &count);
    context = mpt_create(&config);
    mpt_module net = small_resnet(4);
    mpt_tensor x = image(3, 3);
    int64_t calls = 0, n, launches = run(net, &x, 1, MPT_BF16, plain, &n);
    CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 20);
    for (int i = 0; i < 4; i++) {
        calls = count.calls;
        CHECK(run(net, &x, 1, MPT_BF16, fused, &n) <= launches - 20);
    }
    CHECK_EQ_INT(count.calls, calls);
    mpt_module_destroy(net);
    mpt_destroy(context);
    CHECK_EQ_INT(count.live, 0);
}

static mpt_status infer(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const mpt_module *net = (const mpt_module *)user;
    mpt_step_begin(c);
    mpt_no_grad_begin(c);
    mpt_metric_push(c, "sum", total(mpt_forward(*net, x)));
    mpt_no_grad_end(c);
    (void)y;
    return mpt_step_end(c);
}

/* A captured inference uses what the weights are when it runs. */
TEST(captured) {
    context = mpt_create(NULL);
    mpt_module net = small_resnet(4);
    mpt_tensor x = image(3, 3), none_;
    memset(&none_, 0, sizeof none_);
    CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 20);
    mpt_captured step = mpt_capture(context, infer, &net);
    double sums[3];
    for (int i = 0; i < 6; i++) {
        if (i == 4) set_norm(net, "bn1", 60);
        mpt_metric_reset(context, "sum");
        mpt_captured_step(step, x, none_);
        sums[i / 2] = mpt_metric_mean(context, "sum", true);
    }
    mpt_inference_begin(context);
    const double now = mpt_item(total(mpt_forward(net, x)));
    mpt_inference_end(context);
    CHECK(sums[0] == sums[1] && sums[1] != sums[2] && sums[2] == now);
    CHECK(mpt_captured_count(step) > 0);
    check_ok(context);
    mpt_destroy(context);
}

TEST(threads) {
    static const mpt_dtype precisions[] = {MPT_F32, MPT_F16, MPT_BF16};
    for (int k = 0; k < 3; k++) {
        for (int threads = 1; threads <= 3; threads++) {
            mpt_config config = mpt_config_default();
            config.threads = threads;
            context = mpt_create(&config);
            mpt_module net = small_resnet(8);
            mpt_tensor x = image(5, 3);
            int64_t n;
            CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 20);
            run(net, &x, 1, precisions[k], threads == 1 ? plain : fused, &n);
            if (threads > 1) CHECK(memcmp(plain, fused, (size_t)n * sizeof *plain) == 0);
            mpt_destroy(context);
        }
    }
}

/* ==== ResNet-18 against PyTorch ==== */

static const golden_tensor *logits_of(const golden_case *c, const char *precision,
                                      const char *how) {
    char name[32];
    snprintf(name, sizeof name, "%s%s logits", precision, how);
    return golden_find(c, name);
}

/* As tests/api_models.c: fp32: four times as far from PyTorch's fp32 as that is from fp64, or its
   tolerance for one op; half: at most twice as far from fp32 as PyTorch's half. */
static void compare_logits(const golden_case *c, const char *precision, const float *values,
                           int64_t n) {
    static double got[MOST];
    const golden_tensor *f32 = logits_of(c, "f32", "");
    double size = 0, allowed = 0;
    for (int64_t i = 0; i < f32->count; i++) {
        got[i] = (double)values[i * n / f32->count];
        size += pow(golden_value(f32, i), 2);
    }
    size = sqrt(size / (double)f32->count);
    if (strcmp(precision, "f32") == 0) {
        allowed = 4 * distance(NULL, logits_of(c, "f64", ""), f32, NULL);
        if (allowed < 1.3e-6 * size) allowed = 1.3e-6 * size;
    } else {
        for (int k = 0; k < 2; k++) {
            const golden_tensor *theirs = logits_of(c, precision, k ? " policy" : " torch");
            const double off = 2 * distance(NULL, theirs, f32, NULL);
            if (off > allowed) allowed = off;
        }
    }
    const double off = distance(got, NULL, f32, NULL);
    if (getenv("MPTRAIN_TEST_SHOW"))
        printf("\n  %s: %.3g off PyTorch's fp32, allowed %.3g", precision, off / size,
               allowed / size);
    if (!(off <= allowed))
        TEST_FAIL_("%s: %.3g off PyTorch's fp32, allowed is %.3g", precision, off / size,
                   allowed / size);
}

TEST(resnet) {
    static const struct {
        const char *name;
        mpt_dtype dtype;
    } precisions[] = {{"f32", MPT_F32}, {"f16", MPT_F16}, {"bf16", MPT_BF16}};
    golden_file file;
    static golden_case c;
    char text[2048], path[512];
    const char *folder = getenv("MPTRAIN_GOLDEN");
    int loaded = 0;
    int64_t n, launches;
    REQUIRE(golden_open(&file, "fold.bin"));
    REQUIRE(golden_next(&file, &c));
    context = mpt_create(NULL);
    mpt_module net = resnet18(context, 3, c.ints[2], c.ints[0], true);
    snprintf(path, sizeof path, "%s", test_path_(folder && *folder ? folder : "tests/golden", "",
                                                 "models_resnet18.safetensors"));
    mpt_load(net, path, NULL, &loaded);
    if (strstr(mpt_error(context), "built without")) {
        mpt_destroy(context);
        golden_close(&file);
        SKIP("files");
    }
    mpt_eval(net);
    mpt_tensor x = random_pictures(context, stream_of("fold/x"), c.ints[3], c.ints[1]);
    for (int i = 0; i < 3; i++) {
        mpt_unfuse(net);
        launches = run(net, &x, 1, precisions[i].dtype, plain, &n);
        compare_logits(&c, precisions[i].name, plain, n);
        CHECK_EQ_INT(mpt_fuse(net, x, text, sizeof text), 20);
        /* 20 norms, and the copies of the weights of the 17 kernels larger than a pixel */
        CHECK_EQ_INT(run(net, &x, 1, precisions[i].dtype, fused, &n), launches - 20 - 17);
        compare_logits(&c, precisions[i].name, fused, n);
    }
    CHECK_CONTAINS(text, "layer4.0.conv2 + layer4.0.bn2 + residual + relu\n");
    CHECK_CONTAINS(text, "layer4.0.downsample.0 + layer4.0.downsample.1\n");
    CHECK(!strstr(text, "by itself"));
    check_ok(context);
    mpt_destroy(context);
    golden_close(&file);
}

TEST_TABLE = {T(blocks), T(sequential), T(left_alone), T(changes), T(pure_half), T(other_ways),
              T(memory), T(captured),   T(threads),    T(resnet)};
TEST_MAIN
