/* api_tf32.c: products and convolutions with TF32 against PyTorch's fp32: the goldens of ops.bin
 * and conv.bin, values and gradients.
 *
 * TF32 keeps ten bits behind the first: an operand that is rounded is off by at most 2^-11 of
 * itself, one that is cut off by less than 2^-10, so that each product of two is off by less than
 * 2^-9 of its size. The errors may all have one sign, so the bound of an element is 2^-9 times the
 * sum of the sizes of its products (not the root of their number times one), which the CPU computes
 * from the sizes of the operands, and what the golden allows in fp32 beside it. */
#include "../golden.h"

enum { MOST = 1 << 13 };
static const double lost = 1.0 / 512;

static mpt_tensor call_convolution(const golden_case *c, const mpt_tensor in[3]) {
    const int64_t *v = c->ints;
    mpt_conv_config config = mpt_conv_config_default();
    for (int d = 0; d < 2; d++) {
        config.stride[d] = v[d], config.padding[d] = v[2 + d];
        config.dilation[d] = v[4 + d], config.output_padding[d] = v[6 + d];
    }
    config.groups = v[8];
    config.same = v[9] != 0;
    if (strcmp(c->op, "conv1d") == 0) return mpt_conv1d(in[0], in[1], in[2], &config);
    if (strcmp(c->op, "conv2d") == 0) return mpt_conv2d(in[0], in[1], in[2], &config);
    return mpt_conv_transpose2d(in[0], in[1], in[2], &config);
}

/* Sizes have no activation. */
static mpt_tensor call(const golden_case *c, mpt_tensor in[3], bool sizes) {
    static const mpt_activation activations[] = {MPT_ACTIVATION_NONE, MPT_ACTIVATION_RELU,
                                                 MPT_ACTIVATION_GELU, MPT_ACTIVATION_GELU_TANH,
                                                 MPT_ACTIVATION_TANH, MPT_ACTIVATION_SIGMOID};
    if (strcmp(c->op, "linear") == 0)
        return mpt_linear(in[0], in[1], in[2], activations[sizes ? 0 : c->ints[0]]);
    if (strcmp(c->op, "matmul") != 0) return call_convolution(c, in);
    if (c->n_ints) {
        mpt_shape shape = mpt_get_shape(in[0]);
        shape.dim[shape.rank - 1] = c->ints[0];
        in[0] = mpt_expand(in[0], shape);
    }
    return mpt_matmul(in[0], in[1]);
}

/* Of sizes: the values without their signs, and no bias. */
static mpt_tensor make_tensor(mpt_context *context, const golden_tensor *t, bool sizes) {
    static float values[MOST];
    for (int64_t i = 0; i < t->count; i++) {
        const float x = (float)golden_value(t, i);
        values[i] = sizes ? fabsf(x) : x;
    }
    mpt_tensor made = mpt_from(context, MPT_F32, t->shape, values);
    if (t->layout == 3) made = mpt_to_channels_last(made);
    if (t->role == GOLDEN_LEAF) mpt_requires_grad(made, true);
    return made;
}

/* The case's outputs and gradients, by the tensor's number in it. */
static void run(mpt_context *context, const golden_case *c, bool sizes,
                float out[GOLDEN_MAX_TENSORS][MOST]) {
    mpt_tensor in[3], leaf[3], upstream = {NULL, 0, 0};
    int n = 0;
    bool backward = false;
    memset(in, 0, sizeof in);
    mpt_scope_begin(context);
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        if (t->role == GOLDEN_UPSTREAM) {
            upstream = make_tensor(context, t, sizes);
            backward = true;
        }
        if (t->role > GOLDEN_LEAF || n == 3) continue;
        if (n < 2 || !sizes) in[n] = make_tensor(context, t, sizes);
        leaf[n] = in[n];
        n++;
    }
    mpt_tensor y = call(c, in, sizes);
    if (backward) mpt_backward_from(y, upstream, false);
    for (int i = 0; i < c->n_tensors; i++) {
        const golden_tensor *t = &c->tensors[i];
        memset(out[i], 0, sizeof out[i]);
        if (t->role == GOLDEN_OUTPUT) mpt_read_f32(y, out[i], t->count);
        if (t->role == GOLDEN_GRADIENT && (t->input < 2 || !sizes))
            mpt_read_f32(mpt_grad(leaf[t->input]), out[i], t->count);
    }
    if (mpt_failed(context)) {
        TEST_FAIL_("%s: %s", c->label, mpt_error(context));
        mpt_clear_error(context); /* ends the scope, too */
    } else {
        mpt_scope_end(context);
    }
}

/* Behind an activation, none of which is steeper than 1.13. Its gradients depend on where its input
   lies, so they are not compared. */
static void compare(const golden_case *c, const golden_tensor *want, const float *got,
                    const float *size, double *worst) {
    const bool activated = strcmp(c->op, "linear") == 0 && c->ints[0] > 1;
    const double share = want->role == GOLDEN_GRADIENT && want->input == 2 ? 0 : lost;
    if (strcmp(c->op, "linear") == 0 && c->ints[0] > 0 && want->role == GOLDEN_GRADIENT) return;
    for (int64_t i = 0; i < want->count; i++) {
        const double w = golden_value(want, i), off = fabs((double)got[i] - w);
        const double allowed = share * (double)size[i] * (activated ? 1.13 : 1);
        if (!(off <= want->atol + want->rtol * fabs(w) + allowed)) {
            TEST_FAIL_("%s: %s: element %d is %.9g, expected %.9g, of sizes %.3g", c->label,
                       want->name, (int)i, (double)got[i], w, (double)size[i]);
            return;
        }
        if (!activated && share > 0 && size[i] > 0 && off > *worst * (double)size[i])
            *worst = off / (double)size[i];
    }
}

static bool fits(const golden_case *c) {
    static const char *const ops[] = {"matmul", "linear", "conv1d", "conv2d", "conv_transpose2d"};
    bool known = false;
    for (int i = 0; i < 5; i++) known = known || strcmp(c->op, ops[i]) == 0;
    for (int i = 0; i < c->n_tensors && known; i++)
        known = c->tensors[i].dtype == MPT_F32 && c->tensors[i].count <= MOST;
    return known && c->region == MPT_DTYPE_NONE;
}

/* The number of cases. */
static int run_file(mpt_context *device, mpt_context *cpu, const char *name, double *worst) {
    static float got[GOLDEN_MAX_TENSORS][MOST], size[GOLDEN_MAX_TENSORS][MOST];
    static golden_case c;
    golden_file file;
    int cases = 0;
    if (!golden_open(&file, name)) return 0;
    while (golden_next(&file, &c)) {
        if (!fits(&c)) continue;
        run(device, &c, false, got);
        run(cpu, &c, true, size);
        for (int i = 0; i < c.n_tensors; i++)
            if (c.tensors[i].role >= GOLDEN_OUTPUT)
                compare(&c, &c.tensors[i], got[i], size[i], worst);
        cases++;
    }
    golden_now = NULL; /* what was met in fp32, the tests of fp32 count */
    golden_close(&file);
    return cases;
}

TEST(goldens) {
    static const char *const files[] = {"ops.bin", "conv.bin"};
    static const int at_least[] = {45, 30};
    mpt_config config = mpt_config_default();
    double worst[2] = {0, 0};
    config.device = MPT_DEVICE_CPU;
    if (mpt_device_count(MPT_DEVICE_CUDA) < 1) SKIP("a GPU");
    mpt_context *device = mpt_create(NULL), *cpu = mpt_create(&config);
    REQUIRE(device && cpu && mpt_get_device(device) == MPT_DEVICE_CUDA);
    CHECK_EQ_INT(mpt_benchmark(device, false, true), MPT_OK);
    for (int i = 0; i < 2; i++) {
        const int cases = run_file(device, cpu, files[i], &worst[i]);
        printf("\n  %s: %d cases, off by %.1e of the sum of sizes at most", files[i], cases,
               worst[i]);
        CHECK(cases >= at_least[i]);
    }
    /* By more than roundings of fp32 can explain: it was TF32. */
    CHECK(worst[0] > 1e-5 || mpt_get_device_info(device).major < 8);
    mpt_destroy(device);
    mpt_destroy(cpu);
}

TEST_TABLE = {T(goldens)};
TEST_MAIN
