/* api_floats.c: a program may round up, down or to zero, flush denormals, and have exceptions trap.
   Whatever computes has the bits of the usual mode all the same: data, initial values, ops and
   their slopes, schedules, optimizers, files, text; on one thread and on two. Functions of the
   user's run in the usual mode, and the program's own is back after the calls. */
#include MPTRAIN_HEADER_FILE
#include "floats.h"
#include "harness.h"
#include "training.h"
#include <math.h>

/* ==== What is compared ==== */

enum { PARTS = 4096 };
typedef struct trace {
    uint64_t hash[PARTS]; /* after each thing that was told */
    const char *what[PARTS];
    int count;
} trace;

static trace usual, other, *now; /* `now` is one of them */
static int odd_callbacks;        /* one of our functions found another mode */

static void tell(const char *what, const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(1099511628211);
    if (now->count == PARTS) abort();
    now->what[now->count] = what;
    now->hash[now->count++] = hash;
}

static void tell_number(const char *what, double value) { tell(what, &value, sizeof value); }
static void tell_hash(const char *what, uint64_t value) { tell(what, &value, sizeof value); }

static void tell_tensor(const char *what, mpt_tensor tensor) {
    static float values[1 << 16];
    const int64_t count = mpt_numel(tensor);
    if (count > 0 && count < 1 << 16 && mpt_read_f32(tensor, values, count) == MPT_OK)
        tell(what, values, (size_t)count * sizeof(float));
}

/* From any thread; none writes if all is well. */
static void look(void) {
    if (floats_get() != floats_modes[0].bits) odd_callbacks = 1;
}

/* ==== Data ==== */

/* Fields that lie between two floats, and products of digits and powers that round. */
static const char table[] = "size,price,kind,weight\n"
                            "0.1,12345678.9,red,3.3\n1e-3,2.7182818284590452,blue,0.7\n"
                            "123456789.123456789,-0.3,red,1e22\n7e-41,5.5e-5,green,9.1e-8\n"
                            "33.333333,1e-7,blue,0.1\n,2.2,green,4.7\n";

static bool make_sample(void *user, int64_t index, uint64_t seed, void *input, void *target,
                        char *error, size_t error_size) {
    float *to = (float *)input;
    const int64_t class_number = index % CLASSES;
    (void)user, (void)error, (void)error_size;
    look();
    for (int i = 0; i < FEATURES; i++)
        to[i] = (float)((double)((seed >> i & 255u) + (uint64_t)index) / 300.0);
    memcpy(target, &class_number, sizeof class_number);
    return true;
}

static bool collate(void *user, const mpt_collation *batch, char *error, size_t error_size) {
    float *x = (float *)batch->x;
    (void)user, (void)error, (void)error_size;
    look();
    for (int64_t i = 0; i < batch->size * FEATURES; i++) x[i] = x[i] * 0.7f + 0.1f;
    return true;
}

static void drain(mpt_loader loader, const char *what) {
    mpt_batch b;
    for (int i = 0; i < 6 && next_batch(loader, &b); i++)
        tell_tensor(what, b.x), tell_tensor(what, b.y);
    mpt_loader_destroy(loader);
}

static void tables(mpt_context *c) {
    mpt_table_config config = mpt_table_config_default();
    double mean, deviation, shares[2] = {0.5, 0.5}, weights[6] = {0.1, 0.2, 0.3, 0.7, 0.9, 1.1};
    mpt_dataset parts[2];
    config.missing = true;
    mpt_dataset data = mpt_csv_memory(c, table, sizeof table - 1, &config);
    mpt_random_split(data, shares, 2, 1, parts);
    mpt_table_fit(parts[0], true);
    mpt_loader_config loader = mpt_loader_config_default();
    loader.batch = 2, loader.weights = weights, loader.workers = 1;
    mpt_dataset_statistics(data, &mean, &deviation);
    tell_number("mean of a table", mean), tell_number("its deviation", deviation);
    drain(mpt_loader_create(c, data, &loader), "table");
}

static void pictures(mpt_context *c, int workers) {
    static unsigned char bytes[8 * 3 * 9 * 9];
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    int64_t labels[8] = {0, 1, 2, 3, 0, 1, 2, 3};
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37u >> 2);
    config.count = 8, config.dtype = MPT_U8, config.shape = MPT_SHAPE(3, 9, 9);
    config.inputs = bytes, config.targets = labels;
    mpt_transform steps[4] = {mpt_transform_default(MPT_RESIZED_CROP, 5, 5),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0),
                              mpt_transform_default(MPT_NORMALIZE, 0, 0),
                              mpt_transform_default(MPT_RANDOM_ERASING, 0, 0)};
    for (int i = 0; i < 3; i++) steps[2].mean[i] = 0.485, steps[2].deviation[i] = 0.229;
    mpt_dataset data = mpt_memory_dataset(c, &config);
    drain(make_loader_of(c, mpt_transformed(data, steps, 4), 4, workers, MPT_F32), "pictures");
    mpt_normalize(data, 0.1307, 0.3081);
    drain(make_loader_of(c, data, 4, workers, MPT_F16), "bytes as fp16");
}

static mpt_dataset samples(mpt_context *c) {
    mpt_user_dataset_config config;
    memset(&config, 0, sizeof config);
    config.count = SAMPLES, config.dtype = MPT_F32, config.shape = MPT_SHAPE(FEATURES);
    config.target_dtype = MPT_I64, config.target_shape = MPT_SCALAR, config.sample = make_sample;
    return mpt_user_dataset(c, &config);
}

/* ==== Ops ==== */

static mpt_tensor parameter(mpt_context *c, mpt_shape shape) {
    mpt_tensor p = mpt_randn(c, MPT_F32, shape);
    mpt_requires_grad(p, true);
    return p;
}

/* The op's result, and the slopes of its sum weighted by its own values. */
static void op(const char *what, mpt_tensor y, const mpt_tensor *in, int n_in) {
    tell_tensor(what, y);
    mpt_backward(mpt_sum(mpt_mul(y, mpt_detach(y)), MPT_ALL_DIMS, false));
    for (int i = 0; i < n_in; i++) {
        if (mpt_has_grad(in[i])) tell_tensor(what, mpt_grad(in[i])), mpt_clear_grad(in[i]);
    }
}
#define OP(expression) op(#expression, expression, in, 4)

static mpt_status halve(mpt_op_call *call, void *user) {
    (void)user;
    look();
    return mpt_op_set_output(call, 0, mpt_mul_scalar(mpt_op_input(call, 0), 1.0 / 3.0));
}

static void ops(mpt_context *c) {
    mpt_tensor nil;
    memset(&nil, 0, sizeof nil);
    mpt_step_begin(c);
    mpt_tensor x = parameter(c, MPT_SHAPE(3, 7)), w = parameter(c, MPT_SHAPE(7, 5));
    mpt_tensor image = parameter(c, MPT_SHAPE(2, 3, 7, 7)), k = parameter(c, MPT_SHAPE(4, 3, 3, 3));
    const mpt_tensor in[4] = {x, w, image, k};
    OP(mpt_matmul(x, w));
    OP(mpt_mean(x, 1, false));
    OP(mpt_var(x, 1, false, 1));
    OP(mpt_std(x, MPT_ALL_DIMS, false, 0.3));
    OP(mpt_softmax(x, 1));
    OP(mpt_logsumexp(x, 0, false));
    OP(mpt_exp(x));
    OP(mpt_gelu(x));
    OP(mpt_tanh(mpt_div(x, mpt_add_scalar(mpt_abs(x), 0.1))));
    OP(mpt_pow_scalar(mpt_abs(x), 0.3));
    OP(mpt_dropout(x, 0.3));
    OP(mpt_layer_norm(x, 1, nil, nil, 1e-5));
    OP(mpt_cross_entropy(x, mpt_softmax(mpt_detach(x), 1), NULL));
    OP(mpt_conv2d(image, k, nil, NULL));
    OP(mpt_avg_pool2d(image, NULL));
    OP(mpt_adaptive_avg_pool2d(image, 1, 1));
    OP(mpt_adaptive_avg_pool2d(image, 3, 2));
    OP(mpt_batch_norm(image, nil, nil, nil, nil, 1e-5));
    OP(mpt_interpolate(image, MPT_SCALAR, 1.7, MPT_BILINEAR, false));
    OP(mpt_interpolate(image, MPT_SHAPE(5, 11), 1, MPT_BILINEAR, true));
    OP(mpt_scaled_dot_product_attention(mpt_reshape(image, MPT_SHAPE(2, 3, 7, 7)), image, image,
                                        NULL));
    OP(mpt_cumsum(x, 1));
    OP(mpt_norm(x, 2, 1, false));
    OP(mpt_mse_loss(x, mpt_detach(mpt_mul_scalar(x, 0.9)), MPT_MEAN));
    mpt_op_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "halve", cls.forward = halve, cls.n_inputs = cls.n_outputs = 1;
    mpt_tensor y;
    mpt_op_apply(mpt_op_register(c, &cls, NULL), &x, 1, &y, 1);
    tell_tensor("an op of one's own", y);
    for (mpt_dtype d = MPT_F16; d <= MPT_F8E5M2; d = (mpt_dtype)(d + 1))
        tell_tensor("cast", mpt_cast(mpt_cast(mpt_mul_scalar(x, 1e-6), d), MPT_F32));
    tell_tensor("full", mpt_full(c, MPT_F32, MPT_SHAPE(3), 0.1));
    tell_tensor("large", mpt_cast(mpt_full(c, MPT_I64, MPT_SHAPE(1), 9007199254740993.0), MPT_F32));
    tell_number("item", mpt_item(mpt_mean(x, MPT_ALL_DIMS, false)));
    tell_number("close", mpt_allclose(x, mpt_mul_scalar(x, 1.00001), 1e-5, 0));
    mpt_step_end(c);
}

/* ==== Optimizers, schedules ==== */

static mpt_optimizer optimizer_of(mpt_module net, int kind) {
    mpt_optimizer made[7];
    memset(made, 0, sizeof made);
    if (kind == 0) made[0] = mpt_sgd(net, NULL);
    if (kind == 1) made[1] = mpt_adam(net, NULL);
    if (kind == 2) made[2] = mpt_adamw(net, NULL);
    if (kind == 3) made[3] = mpt_rmsprop(net, NULL);
    if (kind == 4) made[4] = mpt_adagrad(net, NULL);
    if (kind == 5) made[5] = mpt_adadelta(net, NULL);
    if (kind == 6) made[6] = mpt_lion(net, NULL);
    return made[kind];
}

static mpt_rate rate_of(int kind) {
    static const int64_t at[2] = {2, 4};
    const mpt_rate rates[7] = {
        mpt_linear_lr(0.1, 1, 7),          mpt_exponential_lr(0.9),   mpt_step_lr(2, 0.3),
        mpt_multi_step_lr(at, 2, 0.7),     mpt_polynomial_lr(9, 0.9), mpt_cosine_lr(7, 1e-5),
        mpt_cosine_restarts_lr(3, 2, 1e-5)};
    return rates[kind];
}

static void optimizers(mpt_context *c, mpt_dtype precision) {
    training t;
    memset(&t, 0, sizeof t);
    t.context = c, t.precision = precision;
    t.loader = make_loader_of(c, samples(c), 8, 1, MPT_F32);
    t.scaler = mpt_grad_scaler(c, NULL);
    for (int kind = 0; kind < 7; kind++) {
        t.net = make_unnamed_net(c);
        t.optimizer = optimizer_of(t.net, kind);
        mpt_schedule_create(t.optimizer, rate_of(kind), MPT_PER_STEP);
        mpt_ema ema = mpt_ema_create(t.net, t.optimizer, NULL);
        for (int i = 0; i < 5; i++) {
            train_step(&t);
            mpt_ema_update(ema);
            tell_number("lr", mpt_get_lr(t.optimizer, 0));
        }
        tell_hash("training", training_hash(&t));
        tell_hash("averages", mpt_ema_hash(ema));
        tell_number("norm", mpt_item(mpt_grad_norm(t.optimizer, 2)));
    }
    mpt_schedule plateau =
        mpt_reduce_on_plateau(optimizer_of(t.net = make_unnamed_net(c), 0), NULL);
    for (int i = 0; i < 30; i++) mpt_schedule_metric(plateau, 0.1);
    tell_number("plateau", mpt_schedule_get_state(plateau).best);
    mpt_optimizer cycled = optimizer_of(make_unnamed_net(c), 1);
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    cycle.total = 7;
    mpt_schedule one = mpt_one_cycle(cycled, &cycle, MPT_PER_EPOCH);
    for (int i = 0; i < 7; i++) mpt_schedule_step(one), tell_number("cycle", mpt_get_lr(cycled, 0));
}

/* ==== Whole trainings, text ==== */

static bool progress(void *user, const mpt_progress *progress) {
    (void)user, (void)progress;
    look();
    return true;
}

static mpt_tensor loss_of(mpt_tensor output, mpt_tensor target, void *user) {
    (void)user;
    look();
    return mpt_nll_loss(output, target, NULL);
}

static mpt_tensor cube(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    (void)c, (void)user, (void)n_in;
    return mpt_mul(in[0], mpt_mul(in[0], in[0]));
}

static void fits(mpt_context *c, mpt_dtype precision) {
    static char text[20000];
    mpt_module net = make_unnamed_net(c);
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = 8, config.workers = 2, config.collate = collate;
    mpt_loader loader = mpt_loader_create(c, samples(c), &config);
    mpt_fit_config fit = mpt_fit_config_default();
    fit.epochs = 2, fit.precision = precision, fit.validation = loader;
    fit.progress = progress, fit.loss = loss_of;
    mpt_fit_result result = mpt_fit(net, mpt_adamw(net, NULL), loader, &fit);
    tell_number("loss", result.train_loss), tell_number("validation", result.validation_loss);
    tell_hash("fit", mpt_module_hash(net));
    mpt_save(net, test_tmp_path("net"));
    mpt_module copy = make_unnamed_net(c);
    mpt_half(copy, MPT_BF16);
    mpt_load(copy, test_tmp_path("net"), NULL, NULL);
    tell_hash("loaded as bf16", mpt_module_hash(copy));
    for (int kind = MPT_INIT_UNIFORM; kind <= MPT_INIT_KAIMING_NORMAL; kind++) {
        mpt_set_init(net, NULL, mpt_init_make((mpt_init_kind)kind, 0.1, 0.7));
        tell_hash("init", mpt_module_hash(net));
    }
    mpt_tensor w = mpt_parameter(net, "0.weight");
    tell("histograms", text, mpt_histograms(net, false, text, sizeof text));
    tell("text", text, mpt_format(w, NULL, text, sizeof text));
    tell_number("deviation", mpt_statistics(w).deviation);
    int64_t counts[7];
    mpt_histogram(w, -0.3, 0.3, counts, 7);
    tell("histogram", counts, sizeof counts);
    mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(5));
    tell_hash("gradcheck", (uint64_t)mpt_gradcheck(c, cube, NULL, &x, 1, NULL));
    mpt_metric_push(c, "m", mpt_mean(x, 0, false)), mpt_metric_push(c, "m", mpt_sum(x, 0, false));
    mpt_metric_push(c, "m", mpt_max(x, 0, false));
    tell_number("metric", mpt_metric_mean(c, "m", true));
}

static void fold(mpt_context *c) {
    mpt_conv_config plain = mpt_conv_config_default();
    plain.bias = false;
    mpt_module net = mpt_sequential(c, mpt_nn_conv2d(c, 3, 4, 3, 3, &plain),
                                    mpt_nn_batch_norm2d(c, 4, NULL), mpt_nn_relu(c), MPT_END);
    mpt_step_begin(c);
    mpt_tensor x = mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3, 6, 6));
    tell_tensor("batch norm", mpt_forward(net, x));
    mpt_step_end(c);
    mpt_step_begin(c);
    x = mpt_randn(c, MPT_F32, MPT_SHAPE(2, 3, 6, 6));
    mpt_eval(net);
    tell_number("fused", (double)mpt_fuse(net, x, NULL, 0));
    mpt_inference_begin(c);
    tell_tensor("fused", mpt_forward(net, x));
    mpt_inference_end(c);
    tell_tensor("comparison", mpt_cast(mpt_lt_scalar(x, 0.1), MPT_F32));
    tell_tensor("hardtanh", mpt_hardtanh(x, -0.1, 0.3));
    mpt_step_end(c);
}

/* All of it in a mode, which has to be there at the end. */
static void run(trace *to, uint32_t mode, mpt_isa isa, int threads) {
    static const mpt_dtype precisions[3] = {MPT_F32, MPT_F16, MPT_BF16};
    mpt_config config = mpt_config_default();
    const uint32_t before = floats_get();
    static char failed[300];
    config.isa = isa, config.threads = threads;
    now = to;
    now->count = 0;
    floats_set(mode);
    mpt_context *c = mpt_create(&config);
    tables(c);
    pictures(c, 0);
    pictures(c, 1);
    ops(c);
    fold(c);
    for (int p = 0; p < 3; p++) optimizers(c, precisions[p]), fits(c, precisions[p]);
    const bool well = !mpt_failed(c);
    if (!well) snprintf(failed, sizeof failed, "%s", mpt_error(c));
    mpt_destroy(c);
    const uint32_t after = floats_get();
    floats_set(before);
    CHECK_EQ_INT(after, mode);
    CHECK_EQ_STR(well ? "" : failed, "");
}

TEST(every_mode_has_the_bits_of_the_usual_one) {
    static const mpt_isa levels[] = {MPT_ISA_REF, MPT_ISA_AUTO};
    if (!floats_change()) SKIP("other modes of floats");
    for (int l = 0; l < 2; l++) {
        run(&usual, floats_modes[0].bits, levels[l], 1);
        CHECK(usual.count > 300);
        for (int m = 0; m < FLOATS_MODES; m++) {
            run(&other, floats_modes[m].bits, levels[l], 1 + m % 2);
            CHECK_EQ_INT(other.count, usual.count);
            int at = 0;
            while (at < usual.count && usual.hash[at] == other.hash[at]) at++;
            if (at < usual.count)
                TEST_FAIL_("floats %s, level %d: other bits in part %d: %s", floats_modes[m].name,
                           l, at, usual.what[at]);
        }
    }
    CHECK_EQ_INT(odd_callbacks, 0);
}

TEST_TABLE = {T(every_mode_has_the_bits_of_the_usual_one)};
TEST_MAIN
