/* api_hooks.c: functions at modules: what they see of a forward and of a backward pass and put in
   its place, in layers that are fused otherwise, in modules of the user's, in norms and attention;
   that a net is as it was once they are off; what they may not do, and that nothing breaks where
   they try. */
#include MPTRAIN_HEADER_FILE
#include "harness.h"
#include "training.h"

enum { MOST = 4096, ROWS = 5, WIDTH = 6 };

static mpt_context *make_context(arena *a) {
    mpt_config config = mpt_config_default();
    config.threads = 1;
    config.seed = 11;
    if (a) arena_use(a, &config);
    return mpt_create(&config);
}

static mpt_tensor some(mpt_context *c, mpt_shape shape) {
    static float values[MOST];
    int64_t numel = 1;
    for (int d = 0; d < shape.rank; d++) numel *= shape.dim[d];
    for (int64_t i = 0; i < numel && i < MOST; i++)
        values[i] = (float)((i * 37 + 11) % 101 - 50) / 40.0f;
    return mpt_keep(mpt_from(c, MPT_F32, shape, values));
}

static mpt_module small_net(mpt_context *c) {
    mpt_module parts[3];
    parts[0] = mpt_nn_linear(c, WIDTH, 8), parts[1] = mpt_nn_relu(c);
    parts[2] = mpt_nn_linear(c, 8, 4);
    return mpt_sequential_array(c, parts, 3);
}

static mpt_module part_of(mpt_module net, const char *path) {
    return *path ? mpt_child(net, path) : net;
}

static void same_bits(mpt_tensor got, mpt_tensor want) {
    static float a[MOST], b[MOST];
    const int64_t n = mpt_numel(want);
    CHECK(mpt_valid(got) && mpt_numel(got) == n && n > 0 && n <= MOST);
    CHECK_EQ_INT(mpt_read_f32(got, a, n), MPT_OK);
    CHECK_EQ_INT(mpt_read_f32(want, b, n), MPT_OK);
    CHECK_EQ_BITS(a, b, (size_t)n * sizeof *a);
}

/* ==== Hooks ==== */

typedef struct watcher {
    int calls, n_in, n_out, output;
    mpt_tensor in, seen; /* the last, kept */
    mpt_module self;
    double times;      /* unless 0, what is put in place of what was seen */
    mpt_status status; /* given back */
} watcher;

static mpt_status look(mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out,
                       int n_out) {
    watcher *w = (watcher *)user;
    w->calls++, w->n_in = n_in, w->n_out = n_out, w->self = self;
    w->in = in[0];
    w->seen = mpt_keep(out[n_out - 1]);
    if (w->times != 0) out[n_out - 1] = mpt_mul_scalar(out[n_out - 1], w->times);
    return w->status;
}

static mpt_status look_back(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    watcher *w = (watcher *)user;
    w->calls++, w->output = output, w->self = self;
    w->seen = mpt_keep(*gradient);
    if (w->times != 0) *gradient = mpt_mul_scalar(*gradient, w->times);
    return w->status;
}

static watcher watch(double times) {
    watcher w;
    memset(&w, 0, sizeof w);
    w.times = times;
    return w;
}

/* ==== What is seen and replaced ==== */

static mpt_tensor first_linear(mpt_module net, mpt_tensor x) {
    return mpt_linear(x, mpt_parameter(net, "0.weight"), mpt_parameter(net, "0.bias"),
                      MPT_ACTIVATION_NONE);
}

static mpt_tensor last_linear(mpt_module net, mpt_tensor x) {
    return mpt_linear(x, mpt_parameter(net, "2.weight"), mpt_parameter(net, "2.bias"),
                      MPT_ACTIVATION_NONE);
}

TEST(layers_that_are_fused_are_seen_alone) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_tensor before = mpt_forward(net, x), apart = first_linear(net, x);
    watcher linear = watch(0), relu = watch(0), root = watch(0);
    CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, "0"), look, &linear), MPT_OK);
    same_bits(mpt_forward(net, x), before);
    CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, "1"), look, &relu), MPT_OK);
    CHECK_EQ_INT(mpt_hook_forward(net, look, &root), MPT_OK);
    same_bits(mpt_forward(net, x), before);
    CHECK_EQ_INT(linear.calls, 2);
    CHECK_EQ_INT(relu.calls, 1);
    CHECK_EQ_INT(root.calls, 1);
    CHECK(linear.n_in == 1 && linear.n_out == 1 && root.n_in == 1 && root.n_out == 1);
    same_bits(linear.seen, apart);
    same_bits(relu.seen, mpt_relu(apart));
    same_bits(relu.in, apart); /* what passed through lives as other tensors do */
    same_bits(root.seen, before);
    CHECK_EQ_INT(linear.self.slot, mpt_child(net, "0").slot);
    CHECK_EQ_INT(root.self.slot, net.slot);
    CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, "0"), NULL, NULL),
                 MPT_OK); /* relu still has one */
    same_bits(mpt_forward(net, x), before);
    CHECK_EQ_INT(relu.calls, 2);
    same_bits(relu.seen, mpt_relu(apart));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(another_output_goes_on) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH)), weight = mpt_parameter(net, "0.weight");
    watcher linear = watch(-2), root = watch(3);
    mpt_hook_forward(mpt_child(net, "0"), look, &linear);
    mpt_hook_forward(net, look, &root);
    mpt_tensor got = mpt_forward(net, x);
    mpt_backward(mpt_sum(got, MPT_ALL_DIMS, false));
    mpt_tensor gradient = mpt_keep(mpt_grad(weight));
    mpt_clear_grad(weight);
    mpt_tensor middle = mpt_relu(mpt_mul_scalar(first_linear(net, x), -2));
    mpt_tensor want = mpt_mul_scalar(last_linear(net, middle), 3);
    same_bits(got, want);
    mpt_backward(mpt_sum(want, MPT_ALL_DIMS, false));
    same_bits(gradient, mpt_grad(weight));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* Tensors of the user's, of other shapes, and the input itself may come out. */
static mpt_status put(mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out,
                      int n_out) {
    const mpt_tensor *given = (const mpt_tensor *)user;
    (void)self, (void)n_in, (void)n_out;
    out[0] = given ? *given : in[0];
    return MPT_OK;
}

TEST(any_tensor_may_be_put_in_place) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH)), other = some(c, MPT_SHAPE(2, 8));
    mpt_hook_forward(mpt_child(net, "0"), put, &other);
    for (int i = 0; i < 3; i++) same_bits(mpt_forward(net, x), last_linear(net, mpt_relu(other)));
    mpt_hook_forward(mpt_child(net, "0"), NULL, NULL);
    mpt_hook_forward(mpt_child(net, "1"), put, NULL);
    same_bits(mpt_forward(net, x), last_linear(net, first_linear(net, x)));
    CHECK(mpt_valid(other) && mpt_valid(x));
    mpt_tensor weight = mpt_parameter(net, "2.weight"); /* a leaf, behind a backward hook */
    watcher back = watch(0);
    mpt_hook_forward(net, put, &weight);
    mpt_hook_backward(net, look_back, &back);
    mpt_backward(mpt_sum(mpt_forward(net, x), MPT_ALL_DIMS, false));
    CHECK_EQ_INT(back.calls, 1);
    same_bits(mpt_grad(weight), mpt_ones(c, MPT_F32, MPT_SHAPE(4, 8)));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Other modules ==== */

static mpt_status sum_and_product(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                  mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in;
    out[0] = mpt_add(in[0], in[n_in - 1]);
    if (n_out > 1) out[1] = mpt_mul(in[0], in[n_in - 1]);
    return MPT_OK;
}

static mpt_module module_of(mpt_context *c,
                            mpt_status (*forward)(mpt_module, void *, const mpt_tensor *, int,
                                                  mpt_tensor *, int)) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "mine";
    cls.forward = forward;
    return mpt_module_create(c, &cls, NULL);
}

TEST(modules_of_the_users) {
    mpt_context *c = make_context(NULL);
    mpt_module mine = module_of(c, sum_and_product);
    watcher w = watch(10), back = watch(0);
    mpt_tensor in[2], out[2];
    in[0] = some(c, MPT_SHAPE(3, 4)), in[1] = mpt_keep(mpt_full(c, MPT_F32, MPT_SHAPE(3, 4), 3));
    mpt_requires_grad(in[0], true);
    mpt_hook_forward(mine, look, &w);
    mpt_hook_backward(mine, look_back, &back);
    CHECK_EQ_INT(mpt_forward_n(mine, in, 2, out, 2), MPT_OK);
    CHECK(w.calls == 1 && w.n_in == 2 && w.n_out == 2);
    same_bits(out[0], mpt_add(in[0], in[1]));
    same_bits(out[1], mpt_mul_scalar(mpt_mul(in[0], in[1]), 10));
    mpt_backward(mpt_sum(out[1], MPT_ALL_DIMS, false)); /* out[0] is not on the way */
    CHECK_EQ_INT(back.calls, 1);
    CHECK_EQ_INT(back.output, 1);
    same_bits(mpt_grad(in[0]), mpt_full(c, MPT_F32, MPT_SHAPE(3, 4), 30));
    mpt_module inner = module_of(c, sum_and_product);
    mpt_module net = mpt_sequential(c, inner, MPT_END);
    watcher in_it = watch(0);
    mpt_hook_forward(inner, look, &in_it);
    same_bits(mpt_forward(net, in[0]), mpt_add(in[0], in[0]));
    CHECK(in_it.calls == 1 && in_it.n_in == 1);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(layers_that_are_no_op) {
    mpt_context *c = make_context(NULL);
    mpt_module parts[3], alone[2];
    watcher w[3];
    mpt_tensor x = some(c, MPT_SHAPE(2, 3, 4));
    parts[0] = mpt_nn_flatten(c), parts[1] = mpt_nn_dropout(c, 0.5);
    parts[2] = mpt_sequential(c, mpt_nn_relu(c), MPT_END);
    for (int i = 0; i < 3; i++) {
        w[i] = watch(0);
        mpt_hook_forward(parts[i], look, &w[i]);
    }
    mpt_module net = mpt_sequential_array(c, parts, 3);
    mpt_tensor y = mpt_forward(net, x);
    for (int i = 0; i < 3; i++) CHECK_EQ_INT(w[i].calls, 1);
    same_bits(w[0].seen, mpt_flatten(x, 1, -1));
    same_bits(w[2].in, w[1].seen);
    same_bits(w[2].seen, y);
    CHECK(mpt_item(mpt_sum(mpt_abs(mpt_sub(w[1].seen, w[0].seen)), MPT_ALL_DIMS, false)) > 0.1);
    for (int i = 0; i < 2; i++) { /* the hook draws nothing: masks are those without it */
        mpt_context *d = make_context(NULL);
        mpt_tensor again = mpt_flatten(some(d, MPT_SHAPE(2, 3, 4)), 1, -1);
        watcher none = watch(0);
        alone[i] = mpt_nn_dropout(d, 0.5);
        if (i) mpt_hook_forward(alone[i], look, &none);
        const double sum = mpt_item(mpt_sum(mpt_forward(alone[i], again), MPT_ALL_DIMS, false));
        static double first;
        if (i == 0) first = sum;
        CHECK(i == 0 || (sum == first && none.calls == 1));
        mpt_destroy(d);
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(attention) {
    mpt_context *c = make_context(NULL);
    mpt_module layer = mpt_nn_multi_head_attention(c, 8, 2, NULL);
    mpt_module net = mpt_sequential(c, layer, mpt_nn_relu(c), MPT_END);
    mpt_tensor x = some(c, MPT_SHAPE(2, 3, 8)), in[3], out;
    mpt_tensor before = mpt_forward(layer, x), whole = mpt_forward(net, x);
    watcher w = watch(0), project = watch(0), back = watch(0);
    mpt_hook_forward(layer, look, &w);
    mpt_hook_backward(layer, look_back, &back);
    mpt_hook_forward(mpt_child(layer, "out_proj"), look, &project);
    mpt_tensor y = mpt_forward(net, x);
    same_bits(y, whole);
    same_bits(w.seen, before);
    same_bits(project.seen, before);
    mpt_backward(mpt_sum(mpt_mul_scalar(y, 3), MPT_ALL_DIMS, false));
    same_bits(
        back.seen,
        mpt_mul_scalar(mpt_cast(mpt_gt(before, mpt_zeros(c, MPT_F32, MPT_SCALAR)), MPT_F32), 3));
    in[0] = in[1] = in[2] = x;
    CHECK_EQ_INT(mpt_forward_n(layer, in, 3, &out, 1), MPT_OK);
    CHECK(w.calls == 2 && w.n_in == 3);
    same_bits(out, before);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Convolutions, norms, fused ==== */

static mpt_module image_net(mpt_context *c) {
    mpt_module parts[3];
    parts[0] = mpt_nn_conv2d(c, 3, 8, 3, 3, NULL), parts[1] = mpt_nn_batch_norm2d(c, 8, NULL);
    parts[2] = mpt_nn_relu(c);
    mpt_module net = mpt_sequential_array(c, parts, 3);
    mpt_forward(net, some(c, MPT_SHAPE(2, 3, 9, 9))); /* statistics that do something */
    mpt_eval(net);
    return net;
}

static mpt_tensor evaluated(mpt_module net, mpt_tensor x, int64_t *launches) {
    mpt_no_grad_begin(net.context);
    int64_t before = mpt_get_counters(net.context).launches;
    mpt_tensor y = mpt_forward(net, x);
    if (launches) *launches = mpt_get_counters(net.context).launches - before;
    mpt_no_grad_end(net.context);
    return y;
}

static double apart_by(mpt_tensor a, mpt_tensor b) {
    return mpt_item(mpt_max(
        mpt_abs(mpt_sub(mpt_reshape(a, MPT_SHAPE(-1)), mpt_reshape(b, MPT_SHAPE(-1)))), 0, false));
}

TEST(a_convolution_that_mpt_fuse_paired) {
    mpt_context *c = make_context(NULL);
    mpt_module net = image_net(c), conv = mpt_child(net, "0"), norm = mpt_child(net, "1");
    mpt_tensor x = some(c, MPT_SHAPE(2, 3, 9, 9));
    int64_t fused, plain, hooked, after;
    mpt_tensor alone = evaluated(conv, x, NULL), apart = evaluated(net, x, &plain);
    for (int first = 0; first < 2; first++) { /* the hook before mpt_fuse, and behind it */
        watcher w = watch(0);
        if (first) mpt_hook_forward(conv, look, &w);
        CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 1);
        if (!first) {
            evaluated(net, x, &fused);
            mpt_hook_forward(conv, look, &w);
        }
        w.calls = 0;
        mpt_tensor y = evaluated(net, x, &hooked);
        CHECK_EQ_INT(w.calls, 1);
        same_bits(w.seen, alone);
        same_bits(y, apart);
        CHECK(fused < plain && hooked >= plain);
        mpt_hook_forward(conv, NULL, NULL);
        CHECK(apart_by(evaluated(net, x, &after), apart) < 1e-5);
        CHECK_EQ_INT(after, fused);
        mpt_hook_forward(conv, look, &w);
        CHECK_EQ_INT(mpt_unfuse(net), MPT_OK);
        same_bits(evaluated(net, x, NULL), apart);
        CHECK_EQ_INT(w.calls, 2);
        mpt_hook_forward(conv, NULL, NULL);
        same_bits(evaluated(net, x, &after), apart);
        CHECK_EQ_INT(after, plain);
    }
    watcher on_norm = watch(0);
    mpt_fuse(net, x, NULL, 0);
    mpt_hook_forward(norm, look, &on_norm); /* what it got is there, its result before the relu */
    CHECK(apart_by(evaluated(net, x, NULL), apart) < 1e-5);
    CHECK_EQ_INT(on_norm.calls, 1);
    same_bits(on_norm.in, alone);
    CHECK(mpt_item(mpt_min(mpt_reshape(on_norm.seen, MPT_SHAPE(-1)), 0, false)) < 0);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* Handles that a hook puts by without mpt_keep, read at the end of the step. */
static mpt_status put_by(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    watcher *w = (watcher *)user;
    w->calls++, w->n_in = n_in, w->n_out = n_out, w->self = self;
    w->in = in[0], w->seen = out[0];
    return MPT_OK;
}

TEST(what_is_put_by_lives_as_long_as_the_step) {
    mpt_context *c = make_context(NULL);
    mpt_module net = image_net(c), conv = mpt_child(net, "0");
    mpt_tensor x = some(c, MPT_SHAPE(2, 3, 9, 9));
    mpt_tensor alone = evaluated(conv, x, NULL), apart = evaluated(net, x, NULL);
    watcher w = watch(0);
    for (int fused = 0; fused < 2; fused++) { /* a convolution whose work would wait for the norm */
        if (fused) CHECK_EQ_INT(mpt_fuse(net, x, NULL, 0), 1);
        mpt_hook_forward(conv, put_by, &w);
        mpt_step_begin(c);
        mpt_tensor y = evaluated(net, x, NULL);
        same_bits(w.in, x);
        same_bits(w.seen, alone);
        same_bits(y, apart);
        mpt_step_end(c);
        CHECK(!mpt_valid(w.seen) && w.calls == fused + 1);
        mpt_hook_forward(conv, NULL, NULL);
    }
    mpt_module layer = mpt_nn_multi_head_attention(c, 8, 2, NULL);
    mpt_module project = mpt_child(layer, "out_proj");
    mpt_tensor tokens = some(c, MPT_SHAPE(2, 3, 8)), in[3], out[1];
    in[0] = tokens, in[1] = in[2] = mpt_keep(mpt_mul_scalar(tokens, 2));
    for (int n_in = 1; n_in <= 3; n_in += 2) { /* the heads, which only the projection reads */
        mpt_hook_forward(project, put_by, &w);
        mpt_step_begin(c);
        CHECK_EQ_INT(mpt_forward_n(layer, in, n_in, out, 1), MPT_OK);
        same_bits(w.seen, out[0]);
        mpt_hook_forward(project, NULL, NULL);
        CHECK(mpt_valid(w.in));
        same_bits(mpt_forward(project, w.in), out[0]);
        mpt_step_end(c);
        CHECK(!mpt_valid(w.in));
    }
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Backward ==== */

static mpt_tensor loss_of(mpt_tensor y) { return mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false); }

/* Gradients at the places between layers, by a net that was split there. */
TEST(gradients_are_those_of_a_net_in_two) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH)), weight = mpt_parameter(net, "0.weight");
    watcher linear = watch(0), relu = watch(0), root = watch(0);
    mpt_backward(loss_of(mpt_forward(net, x)));
    mpt_tensor plain = mpt_clone(mpt_grad(weight));
    mpt_clear_grad(weight);
    mpt_hook_backward(mpt_child(net, "0"), look_back, &linear);
    mpt_hook_backward(mpt_child(net, "1"), look_back, &relu);
    mpt_hook_backward(net, look_back, &root);
    mpt_tensor loss = loss_of(mpt_forward(net, x));
    CHECK_EQ_INT(linear.calls + relu.calls + root.calls, 0);
    mpt_backward(loss);
    CHECK(linear.calls == 1 && relu.calls == 1 && root.calls == 1);
    same_bits(mpt_grad(weight), plain);
    CHECK(linear.self.slot == mpt_child(net, "0").slot && linear.output == 0);
    mpt_tensor seen[3], leaf[3];
    seen[0] = linear.seen, seen[1] = relu.seen, seen[2] = root.seen;
    mpt_no_grad_begin(c);
    leaf[0] = mpt_keep(first_linear(net, x));
    leaf[1] = mpt_keep(mpt_relu(leaf[0]));
    leaf[2] = mpt_keep(last_linear(net, leaf[1]));
    mpt_no_grad_end(c);
    for (int i = 0; i < 3; i++) {
        mpt_requires_grad(leaf[i], true);
        mpt_tensor y = i == 0 ? mpt_relu(leaf[0]) : leaf[1];
        mpt_backward(loss_of(i < 2 ? last_linear(net, y) : leaf[2]));
        same_bits(seen[i], mpt_grad(leaf[i]));
    }
    mpt_no_grad_begin(c);
    mpt_forward(net, x); /* nothing to hang on */
    mpt_no_grad_end(c);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(another_gradient_goes_on) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_tensor first = mpt_parameter(net, "0.weight"), last = mpt_parameter(net, "2.weight");
    mpt_backward(loss_of(mpt_forward(net, x)));
    mpt_tensor want = mpt_mul_scalar(mpt_grad(first), 4), same = mpt_clone(mpt_grad(last));
    mpt_clear_grad(first), mpt_clear_grad(last);
    watcher w = watch(4);
    mpt_hook_backward(mpt_child(net, "1"), look_back, &w);
    mpt_tensor loss = loss_of(mpt_forward(net, x));
    CHECK_EQ_INT(mpt_backward_from(loss, mpt_ones(c, MPT_F32, MPT_SCALAR), true), MPT_OK);
    same_bits(mpt_grad(first), want);
    same_bits(mpt_grad(last), same);
    mpt_clear_grad(first), mpt_clear_grad(last);
    mpt_hook_backward(mpt_child(net, "1"), NULL, NULL); /* of the forward that is done, too */
    CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
    CHECK_EQ_INT(w.calls, 1);
    same_bits(mpt_mul_scalar(mpt_grad(first), 4), want);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST(gradients_in_half_precision) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    watcher w = watch(2), out = watch(0);
    mpt_hook_backward(mpt_child(net, "0"), look_back, &w);
    mpt_hook_forward(mpt_child(net, "0"), look, &out);
    mpt_autocast_begin(c, MPT_BF16);
    mpt_tensor y = mpt_forward(net, x);
    mpt_autocast_end(c);
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
    CHECK_EQ_INT(mpt_get_dtype(out.seen), MPT_BF16);
    CHECK_EQ_INT(mpt_get_dtype(w.seen), MPT_BF16);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== Off again ==== */

static mpt_status a_step(mpt_module net, mpt_optimizer opt, mpt_tensor x) {
    mpt_step_begin(net.context);
    mpt_zero_grad(opt);
    mpt_backward(loss_of(mpt_forward(net, x)));
    mpt_step(opt);
    return mpt_step_end(net.context);
}

/* A net of fp8 layers, trained a little, with hooks that look or without; what it gives then. */
static mpt_tensor in_fp8(mpt_context *c, watcher *forward, watcher *back, bool before) {
    mpt_module net = small_net(c), first = mpt_child(net, "0");
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_sgd_config config = mpt_sgd_config_default();
    if (forward && before) {
        mpt_hook_forward(first, look, forward);
        mpt_hook_backward(first, look_back, back);
    }
    mpt_fp8(net, NULL);
    if (forward && !before) {
        mpt_hook_forward(first, look, forward);
        mpt_hook_backward(first, look_back, back);
    }
    config.lr = 0.05;
    mpt_optimizer opt = mpt_sgd(net, &config);
    for (int i = 0; i < 4; i++) CHECK_EQ_INT(a_step(net, opt, x), MPT_OK);
    mpt_hook_forward(first, NULL, NULL);
    mpt_hook_backward(first, NULL, NULL);
    return mpt_keep(mpt_forward(net, x));
}

TEST(layers_in_fp8) {
    static float want[ROWS * 4], got[ROWS * 4];
    for (int hooked = 0; hooked < 3; hooked++) {
        mpt_context *c = make_context(NULL);
        watcher forward = watch(0), back = watch(0);
        mpt_tensor y = in_fp8(c, hooked ? &forward : NULL, &back, hooked == 1);
        mpt_read_f32(y, hooked ? got : want, ROWS * 4);
        if (hooked) {
            CHECK(forward.calls == 4 && back.calls == 4);
            CHECK_EQ_INT(mpt_get_shape(forward.seen).dim[1], 8);
            CHECK_EQ_INT(mpt_get_shape(back.seen).dim[1], 8);
            CHECK_EQ_BITS(got, want, sizeof want);
        }
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

TEST(a_norm_that_adds) {
    mpt_context *c = make_context(NULL);
    mpt_module norm = mpt_nn_batch_norm2d(c, 3, NULL);
    mpt_tensor in[2], out;
    watcher w = watch(2);
    in[0] = some(c, MPT_SHAPE(2, 3, 4, 4)), in[1] = mpt_ones(c, MPT_F32, MPT_SHAPE(2, 3, 4, 4));
    mpt_eval(norm);
    mpt_forward_n(norm, in, 2, &out, 1);
    mpt_tensor want = mpt_mul_scalar(out, 2);
    mpt_hook_forward(norm, look, &w);
    CHECK_EQ_INT(mpt_forward_n(norm, in, 2, &out, 1), MPT_OK);
    CHECK(w.calls == 1 && w.n_in == 2);
    same_bits(out, want);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* A net whose hooks were taken off launches and computes as one that never had any. */
TEST(off_it_is_as_before) {
    uint64_t hash[2];
    int64_t launches[2], calls[2], peak[2];
    for (int hooked = 0; hooked < 2; hooked++) {
        arena a;
        mpt_context *c = make_context(&a);
        mpt_module net = small_net(c);
        const char *const paths[] = {"0", "1", "2", ""};
        watcher w = watch(0);
        mpt_sgd_config config = mpt_sgd_config_default();
        mpt_optimizer opt = mpt_sgd(net, &config);
        mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
        for (int i = 0; i < 4 && hooked; i++) {
            mpt_hook_forward(part_of(net, paths[i]), look, &w);
            mpt_hook_backward(part_of(net, paths[i]), look_back, &w);
        }
        for (int i = 0; i < 4; i++) a_step(net, opt, x);
        for (int i = 0; i < 4; i++) {
            mpt_hook_forward(part_of(net, paths[i]), NULL, NULL);
            mpt_hook_backward(part_of(net, paths[i]), NULL, NULL);
        }
        CHECK_EQ_INT(w.calls, hooked ? 32 : 0);
        a_step(net, opt, x); /* the first without hooks may want other memory */
        const mpt_counters before = mpt_get_counters(c);
        const int64_t allocations = a.calls;
        a_step(net, opt, x);
        launches[hooked] = mpt_get_counters(c).launches - before.launches;
        calls[hooked] = mpt_get_counters(c).op_records - before.op_records;
        peak[hooked] = a.calls - allocations;
        hash[hooked] = mpt_module_hash(net);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
        CHECK_EQ_INT(a.live, 0);
    }
    CHECK_EQ_INT(launches[0], launches[1]);
    CHECK_EQ_INT(calls[0], calls[1]);
    CHECK_EQ_INT(peak[0], peak[1]);
    CHECK(hash[0] == hash[1]);
}

static mpt_status only_look(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                            mpt_tensor *out, int n_out) {
    (void)self, (void)in, (void)n_in, (void)n_out;
    *(int64_t *)user += mpt_numel(out[0]);
    return MPT_OK;
}

static mpt_status only_scale(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)self, (void)output;
    *gradient = mpt_mul_scalar(*gradient, 0.5);
    ++*(int64_t *)user;
    return mpt_error_code(self.context);
}

TEST(hooked_steps_allocate_nothing) {
    arena a;
    mpt_context *c = make_context(&a);
    mpt_module net = small_net(c);
    mpt_sgd_config config = mpt_sgd_config_default();
    mpt_optimizer opt = mpt_sgd(net, &config);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    int64_t seen = 0, backs = 0;
    mpt_hook_forward(mpt_child(net, "0"), only_look, &seen);
    mpt_hook_backward(mpt_child(net, "0"), only_scale, &backs);
    for (int i = 0; i < 3; i++) a_step(net, opt, x);
    const int64_t before = a.calls;
    for (int i = 0; i < 5; i++) a_step(net, opt, x);
    CHECK_EQ_INT(a.calls, before);
    CHECK(seen == 8 * ROWS * 8 && backs == 8);
    a.fail_at = a.calls + 1, a.failures = 1; /* no memory for a hook: the module stays as it is */
    CHECK_EQ_INT(mpt_hook_forward(mpt_child(net, "2"), only_look, &seen), MPT_ERROR_MEMORY);
    mpt_clear_error(c);
    CHECK_EQ_INT(a_step(net, opt, x), MPT_OK);
    CHECK_EQ_INT(seen, 9 * ROWS * 8);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
    CHECK_EQ_INT(a.live, 0);
}

/* ==== Errors ==== */

TEST(an_error_of_a_hook_stops_the_step) {
    mpt_context *c = make_context(NULL);
    mpt_module inner = small_net(c), net = mpt_sequential(c, inner, MPT_END);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_sgd_config config = mpt_sgd_config_default();
    mpt_optimizer opt = mpt_sgd(net, &config);
    const uint64_t hash = mpt_module_hash(net);
    watcher w = watch(0);
    w.status = MPT_ERROR_NUMERIC;
    for (int i = 0; i < 4; i++) { /* a layer's and a container's, in forward and backward */
        mpt_module at = mpt_child(net, i % 2 ? "0" : "0.1");
        if (i < 2)
            mpt_hook_forward(at, look, &w);
        else
            mpt_hook_backward(at, look_back, &w);
        CHECK_EQ_INT(a_step(net, opt, x), MPT_ERROR_NUMERIC);
        CHECK_CONTAINS(mpt_error(c),
                       i % 2 ? "hook of sequential reported" : "hook of relu reported");
        CHECK_CONTAINS(mpt_error(c), i < 2 ? "forward hook" : "backward hook");
        CHECK_CONTAINS(mpt_error(c), i % 2 ? "module 0)" : "module 0.1)");
        mpt_clear_error(c);
        mpt_hook_forward(at, NULL, NULL);
        mpt_hook_backward(at, NULL, NULL);
    }
    CHECK(mpt_module_hash(net) == hash);
    CHECK_EQ_INT(a_step(net, opt, x), MPT_OK);
    CHECK_EQ_INT(w.calls, 4);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* What a hook tries with the net that runs it. */
typedef struct attempt {
    mpt_module net, other;
    mpt_optimizer opt;
    mpt_tensor x;
    int what, depth;
    mpt_status status;
} attempt;
enum {
    STEPS,
    DESTROYS,
    ENDS_THE_STEP,
    CLEARS,
    TAKES_OFF,
    RELEASES,
    RUNS_AGAIN,
    ENDS_SCOPES,
    BACKWARD,
    GIVES_NULL,
    GIVES_STALE,
    ATTEMPTS
};

static void try_it(attempt *t, mpt_module self, mpt_tensor x, mpt_tensor *out) {
    mpt_context *c = self.context;
    switch (t->what) {
    case STEPS:
        t->status = mpt_step(t->opt);
        break;
    case DESTROYS:
        t->status = mpt_module_destroy(t->other);
        break;
    case ENDS_THE_STEP:
        t->status = mpt_step_end(c);
        break;
    case CLEARS:
        mpt_add(*out, mpt_ones(c, MPT_F32, MPT_SHAPE(77)));
        mpt_clear_error(c);
        t->status = mpt_module_destroy(t->net);
        mpt_clear_error(c);
        break;
    case TAKES_OFF:
        t->status = mpt_hook_forward(self, NULL, NULL);
        mpt_hook_backward(self, NULL, NULL);
        mpt_hook_forward(t->net, NULL, NULL);
        break;
    case RELEASES:
        mpt_release(x);
        break;
    case RUNS_AGAIN:
        t->status = mpt_valid(mpt_forward(t->net, t->x)) ? MPT_OK : MPT_ERROR_STATE;
        break;
    case ENDS_SCOPES:
        for (int i = 0; i < 3; i++) mpt_scope_end(c);
        break;
    case BACKWARD:
        t->status = mpt_backward(mpt_sum(*out, MPT_ALL_DIMS, false));
        break;
    case GIVES_NULL:
        out->slot = 0;
        break;
    case GIVES_STALE:
        mpt_release(*out);
        break;
    default:
        break;
    }
}

static mpt_status attempts(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                           mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    try_it((attempt *)user, self, in[0], out);
    return MPT_OK;
}

static mpt_status attempts_back(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)output;
    try_it((attempt *)user, self, *gradient, gradient);
    return MPT_OK;
}

/* Whatever a hook does, the next step without it is a good one. `part`: of the net, hooked. */
static void attempt_all(const char *part, bool forward) {
    for (int what = 0; what < ATTEMPTS; what++) {
        mpt_context *c = make_context(NULL);
        attempt t;
        memset(&t, 0, sizeof t);
        t.net = small_net(c), t.other = small_net(c);
        t.x = some(c, MPT_SHAPE(ROWS, WIDTH));
        t.what = what;
        mpt_sgd_config config = mpt_sgd_config_default();
        t.opt = mpt_sgd(t.net, &config);
        mpt_module at = part_of(t.net, part);
        mpt_forward(t.other, t.x);
        if (forward)
            mpt_hook_forward(at, attempts, &t);
        else
            mpt_hook_backward(at, attempts_back, &t);
        mpt_status status = a_step(t.net, t.opt, t.x);
        if (what == DESTROYS) CHECK_EQ_INT(t.status, MPT_ERROR_STATE);
        if (what == DESTROYS) CHECK_CONTAINS(mpt_error(c), "destroy modules after it");
        if (what == TAKES_OFF) CHECK_EQ_INT(status, MPT_OK);
        if (what == RUNS_AGAIN && forward) CHECK_CONTAINS(mpt_error(c), "runs in itself");
        if (what == BACKWARD && !forward) CHECK_EQ_INT(t.status, MPT_ERROR_STATE);
        if (what == ENDS_THE_STEP) CHECK(status != MPT_OK);
        if (what == GIVES_NULL && forward) CHECK_EQ_INT(status, MPT_ERROR_HANDLE);
        if (what == GIVES_STALE) CHECK_EQ_INT(status, MPT_ERROR_HANDLE);
        mpt_clear_error(c);
        if (mpt_step_is_open(c)) mpt_step_end(c);
        mpt_hook_forward(at, NULL, NULL);
        mpt_hook_backward(at, NULL, NULL);
        CHECK_EQ_INT(a_step(t.net, t.opt, some(c, MPT_SHAPE(ROWS, WIDTH))), MPT_OK);
        CHECK_EQ_STR(mpt_error(c), "");
        mpt_destroy(c);
    }
}

TEST(nothing_breaks_in_a_hook) {
    attempt_all("0", true);
    attempt_all("1", true);
    attempt_all("", true);
    attempt_all("0", false);
    attempt_all("", false);
}

static mpt_status in_place(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)user, (void)output;
    mpt_mul_scalar_(*gradient, 2);
    return mpt_error_code(self.context);
}

static mpt_status other_shape(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)user, (void)output;
    *gradient = mpt_sum(*gradient, 0, false);
    return mpt_error_code(self.context);
}

TEST(gradients_are_not_changed_in_place) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_hook_backward(mpt_child(net, "1"), in_place, NULL);
    CHECK_EQ_INT(mpt_backward(loss_of(mpt_forward(net, x))), MPT_ERROR_STATE);
    CHECK_CONTAINS(mpt_error(c), "changed in place");
    CHECK_CONTAINS(mpt_error(c), "module 1)");
    mpt_clear_error(c);
    mpt_hook_backward(mpt_child(net, "1"), other_shape, NULL);
    CHECK_EQ_INT(mpt_backward(loss_of(mpt_forward(net, x))), MPT_ERROR_SHAPE);
    CHECK_CONTAINS(mpt_error(c), "expected [5, 8]");
    mpt_destroy(c);
}

/* A module that is gone is asked for nothing, nor is one that came in its place. */
TEST(backward_of_a_module_that_is_gone) {
    mpt_context *c = make_context(NULL);
    mpt_module net = small_net(c);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH));
    mpt_requires_grad(x, true);
    watcher w = watch(0), other = watch(0);
    mpt_hook_backward(net, look_back, &w);
    mpt_tensor loss = loss_of(mpt_forward(net, x));
    CHECK_EQ_INT(mpt_module_destroy(net), MPT_OK);
    for (int i = 0; i < 4; i++) mpt_hook_backward(mpt_nn_relu(c), look_back, &other);
    CHECK_EQ_INT(mpt_backward(loss), MPT_OK);
    CHECK(w.calls == 0 && other.calls == 0 && mpt_has_grad(x));
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

/* ==== What is recorded ==== */

typedef struct model {
    mpt_module net;
    mpt_optimizer opt;
} model;

static mpt_status captured(mpt_context *c, void *user, mpt_tensor x, mpt_tensor y) {
    const model *t = (const model *)user;
    (void)c, (void)y;
    return a_step(t->net, t->opt, x);
}

TEST(recordings_refuse_hooks) {
    mpt_context *c = make_context(NULL);
    model t;
    watcher w = watch(0);
    t.net = small_net(c);
    mpt_sgd_config config = mpt_sgd_config_default();
    t.opt = mpt_sgd(t.net, &config);
    mpt_tensor x = some(c, MPT_SHAPE(ROWS, WIDTH)), none;
    memset(&none, 0, sizeof none);
    for (int back = 0; back < 2; back++) {
        mpt_module at = mpt_child(t.net, "1");
        mpt_captured step = mpt_capture(c, captured, &t);
        for (int i = 0; i < 3; i++) CHECK_EQ_INT(mpt_captured_step(step, x, none), MPT_OK);
        w.calls = 0;
        if (back)
            mpt_hook_backward(at, look_back, &w);
        else
            mpt_hook_forward(at, look, &w);
        mpt_status status = MPT_OK; /* seen anew: by hand once, and then it is to be recorded */
        for (int i = 0; i < 2 && status == MPT_OK; i++) status = mpt_captured_step(step, x, none);
        CHECK_EQ_INT(status, MPT_ERROR_UNSUPPORTED);
        CHECK_EQ_INT(w.calls, 1);
        CHECK_CONTAINS(mpt_error(c), "has a hook, which runs on the host");
        CHECK_CONTAINS(mpt_error(c), "module 1)");
        mpt_clear_error(c);
        mpt_hook_forward(at, NULL, NULL);
        mpt_hook_backward(at, NULL, NULL);
        for (int i = 0; i < 4; i++) CHECK_EQ_INT(mpt_captured_step(step, x, none), MPT_OK);
    }
    mpt_hook_forward(t.net, look, &w);
    mpt_record_begin(c);
    CHECK_EQ_INT(mpt_forward(t.net, x).slot, 0);
    CHECK_EQ_INT(mpt_error_code(c), MPT_ERROR_UNSUPPORTED);
    mpt_clear_error(c);
    mpt_anomaly_mode(c, true); /* which records by itself */
    w.calls = 0;
    CHECK_EQ_INT(a_step(t.net, t.opt, x), MPT_OK);
    CHECK_EQ_INT(w.calls, 1);
    CHECK_EQ_STR(mpt_error(c), "");
    mpt_destroy(c);
}

TEST_TABLE = {T(layers_that_are_fused_are_seen_alone),
              T(another_output_goes_on),
              T(any_tensor_may_be_put_in_place),
              T(modules_of_the_users),
              T(layers_that_are_no_op),
              T(attention),
              T(a_convolution_that_mpt_fuse_paired),
              T(a_norm_that_adds),
              T(what_is_put_by_lives_as_long_as_the_step),
              T(layers_in_fp8),
              T(gradients_are_those_of_a_net_in_two),
              T(another_gradient_goes_on),
              T(gradients_in_half_precision),
              T(off_it_is_as_before),
              T(hooked_steps_allocate_nothing),
              T(an_error_of_a_hook_stops_the_step),
              T(nothing_breaks_in_a_hook),
              T(gradients_are_not_changed_in_place),
              T(backward_of_a_module_that_is_gone),
              T(recordings_refuse_hooks)};
TEST_MAIN
