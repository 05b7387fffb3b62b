/* test_tour_faults.c: a tour of the library in short stops, each with every allocation refused,
   every launch and copy failing and every call of the file callbacks failing in turn. A stop then
   ends in one error of that kind or with the numbers of an untroubled one; after mpt_clear_error
   the same stop works in the same context, and the end of the context gives all memory back. The
   log calls mpt_clear_error at once, which must not take the error from who still works with it. */
#define MPTRAIN_IMPLEMENTATION
#include MPTRAIN_HEADER_FILE
#include <math.h>
#include "harness.h"
#include "training.h"
#include "faulty_launch.h"

static uint64_t mix(uint64_t hash, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (hash ^ bits) * UINT64_C(1099511628211) + 1;
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    for (; text && *text; text++) hash = mix(hash, *text);
    return hash;
}

static uint64_t mix_values(uint64_t hash, mpt_tensor x) {
    float values[256];
    int64_t n = mpt_numel(x);
    memset(values, 0, sizeof values);
    mpt_read_f32(x, values, n < 256 ? n : 256);
    for (int64_t i = 0; i < n && i < 256; i++) hash = mix(hash, (double)values[i]);
    return hash;
}

/* The sum of squares of what a net makes of x, down its gradients. */
static uint64_t descend(mpt_module net, mpt_optimizer optimizer, mpt_tensor x) {
    mpt_step_begin(net.context);
    mpt_tensor y = mpt_forward(net, x);
    mpt_zero_grad(optimizer);
    mpt_backward(mpt_mean(mpt_mul(y, y), MPT_ALL_DIMS, false));
    mpt_clip_grad_norm(optimizer, 1.0);
    mpt_step(optimizer);
    mpt_step_end(net.context);
    return mpt_module_hash(net) ^ mpt_optimizer_hash(optimizer);
}

static uint64_t train_net(mpt_module net, mpt_tensor x) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.momentum = 0.9;
    mpt_optimizer optimizer = mpt_sgd(net, &config);
    uint64_t hash = 0;
    for (int i = 0; i < 2; i++) hash = descend(net, optimizer, x);
    mpt_optimizer_destroy(optimizer);
    mpt_module_destroy(net);
    return hash;
}

static mpt_tensor ramp(mpt_context *c, mpt_shape shape) {
    float values[1024];
    for (int i = 0; i < 1024; i++) values[i] = sample_value(i);
    return mpt_from(c, MPT_F32, shape, values);
}

/* ==== Stops ==== */

static disk files;

static uint64_t stop_tensors(mpt_context *c) {
    char text[512];
    int64_t counts[4] = {0, 0, 0, 0};
    static const float ones[24] = {1, 1, 1, 1, 1, 1, 1, 1};
    mpt_tensor x = ramp(c, MPT_SHAPE(4, 6)), turned = mpt_transpose(x, 0, 1);
    mpt_tensor half = mpt_cast(turned, MPT_F16), kept = mpt_keep(mpt_slice(turned, 0, 1, 5, 2));
    mpt_tensor count = mpt_arange(c, MPT_F32, 24), pair[2] = {x, x}, parts[3], order;
    uint64_t hash = mix_values(mix_values(1, half), kept);
    hash = mix(hash, mpt_item(mpt_mean(count, MPT_ALL_DIMS, false)));
    mpt_format(turned, NULL, text, sizeof text);
    hash = mix_text(hash, text);
    mpt_format(mpt_cast(count, MPT_I32), NULL, text, sizeof text);
    hash = mix_text(hash, text);
    hash = mix(hash, mpt_allclose(turned, turned, 0, 0) ? 1 : 0);
    mpt_tensor_stats stats = mpt_statistics(turned);
    mpt_histogram(turned, -1, 1, counts, 4);
    hash = mix(mix(mix(hash, stats.mean), stats.deviation), (double)counts[2]);
    hash = mix_values(hash, mpt_stack(pair, 2, 1));
    hash = mix(hash, mpt_split_tensor(x, 2, 0, parts, 3));
    hash = mix_values(hash, mpt_sort(turned, 0, true, &order));
    hash = mix_values(hash, mpt_repeat(mpt_roll(x, 2, 1), MPT_SHAPE(1, 2)));
    hash = mix_values(hash, mpt_rand(c, MPT_F16, MPT_SHAPE(5)));
    mpt_write(turned, ones, 96);
    mpt_write(kept, ones, 32);
    hash = mix_values(mix_values(hash, turned), kept);
    mpt_release(kept);
    return hash;
}

static uint64_t stop_in_place(mpt_context *c) {
    mpt_tensor x = ramp(c, MPT_SHAPE(4, 6));
    mpt_requires_grad(x, true);
    mpt_tensor y = mpt_mul_scalar(x, 2), rows = mpt_zeros(c, MPT_F32, MPT_SHAPE(2, 6));
    mpt_add_scalar_(mpt_mul_scalar_(y, 3), 1);
    mpt_add_(y, mpt_slice(x, 0, 3, 4, 1));
    mpt_relu_(y);
    mpt_copy_(mpt_slice(rows, 0, 1, 2, 1), mpt_cast(mpt_slice(mpt_detach(x), 0, 0, 1, 1), MPT_F16));
    mpt_add_(mpt_slice(rows, 0, 0, 1, 1), mpt_slice(mpt_detach(x), 0, 0, 1, 1));
    mpt_mul_(rows, rows);
    mpt_backward(mpt_sum(y, MPT_ALL_DIMS, false));
    uint64_t hash = mix_values(mix_values(mix_values(1, y), mpt_grad(x)), rows);
    mpt_fill_(mpt_detach(y), 4);
    return mix_values(hash, mpt_detach(y));
}

static uint64_t stop_layers(mpt_context *c) {
    mpt_module net = mpt_sequential(
        c, mpt_nn_linear(c, 6, 8), mpt_nn_gelu(c), mpt_nn_linear_no_bias(c, 8, 8), mpt_nn_tanh(c),
        mpt_nn_dropout(c, 0.5), mpt_nn_silu(c), mpt_nn_leaky_relu(c, 0.1), mpt_nn_elu(c, 1),
        mpt_nn_softplus(c, 1, 20), mpt_nn_hardtanh(c, -1, 1), mpt_nn_sigmoid(c),
        mpt_nn_softmax(c, -1), MPT_END);
    char text[2000];
    mpt_set_label(net, "layers");
    mpt_set_init(net, "0.weight", mpt_init_make(MPT_INIT_KAIMING_NORMAL, 1, 0));
    uint64_t hash = mpt_summary(net, text, sizeof text) + mpt_module_hash(net);
    hash = mix(mix_text(hash, text), (double)mpt_parameter_numel(net));
    mpt_histograms(net, false, text, sizeof text);
    return mix_text(hash, text) ^ train_net(net, ramp(c, MPT_SHAPE(4, 6)));
}

#ifndef MPTRAIN_NO_CONV
static uint64_t stop_images(mpt_context *c) {
    mpt_conv_config strided = mpt_conv_config_default();
    mpt_norm_config relu = mpt_norm_config_default();
    mpt_pool_config pool = mpt_pool_config_make(2, 2, 0);
    strided.padding[0] = strided.padding[1] = 1;
    relu.relu = true;
    mpt_module net = mpt_sequential(
        c, mpt_nn_conv2d(c, 2, 4, 3, 3, &strided), mpt_nn_batch_norm2d(c, 4, &relu),
        mpt_nn_max_pool2d(c, &pool), mpt_nn_group_norm(c, 2, 4, NULL),
        mpt_nn_conv_transpose2d(c, 4, 2, 2, 2, NULL), mpt_nn_avg_pool2d(c, &pool),
        mpt_nn_upsample(c, MPT_SHAPE(4, 4), 0, MPT_BILINEAR, false),
        mpt_nn_adaptive_avg_pool2d(c, 1, 2), mpt_nn_flatten(c), mpt_nn_batch_norm1d(c, 4, NULL),
        mpt_nn_layer_norm(c, MPT_SHAPE(4), NULL), mpt_nn_rms_norm(c, MPT_SHAPE(4), NULL), MPT_END);
    mpt_set_label(net, "images");
    mpt_tensor x = mpt_to_channels_last(ramp(c, MPT_SHAPE(4, 2, 6, 6)));
    uint64_t hash = mix_values(1, mpt_forward(net, x));
    mpt_eval(net);
    hash = mix_values(hash, mpt_forward(net, x));
    mpt_train(net);
    mpt_save(net, "images");
    mpt_load(net, "images", NULL, NULL);
    hash = mix_values(hash, mpt_buffer(net, "1.running_mean"));
    return hash ^ train_net(net, x);
}
#endif

#ifndef MPTRAIN_NO_ATTENTION
static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    mpt_tensor x = mpt_forward(mpt_child(self, "words"), in[0]), sum;
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor seen = mpt_forward(mpt_child(self, "attend"), x);
    mpt_tensor y = mpt_add_layer_norm(x, seen, 1, mpt_parameter(self, "gain"),
                                      mpt_parameter(self, "shift"), 1e-5, &sum);
    out[0] =
        mpt_linear_cross_entropy(mpt_add(y, sum), mpt_parameter(self, "words.weight"), in[0], NULL);
    return mpt_error_code(self.context);
}

static uint64_t stop_attention(mpt_context *c) {
    static const mpt_module_class block = {"block", block_forward, NULL, NULL, NULL, 1, 1};
    static const int64_t words[8] = {1, 2, 3, 4, 5, 4, 3, 2};
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    heads.causal = true, heads.dropout = 0.25;
    mpt_module net = mpt_module_create(c, &block, NULL);
    mpt_set_label(net, "block");
    mpt_add_child(net, "words", mpt_nn_embedding(c, 6, 8, 0));
    mpt_add_child(net, "attend", mpt_nn_multi_head_attention(c, 8, 2, &heads));
    mpt_add_parameter(net, "gain", MPT_SHAPE(8), mpt_init_make(MPT_INIT_CONSTANT, 1, 0));
    mpt_add_parameter(net, "shift", MPT_SHAPE(8), mpt_init_make(MPT_INIT_NORMAL, 0, 0.1));
    return train_net(net, mpt_from(c, MPT_I64, MPT_SHAPE(2, 4), words));
}
#endif

#ifndef MPTRAIN_NO_FP8
static uint64_t stop_fp8(mpt_context *c) {
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 16, 16), mpt_nn_relu(c),
                                    mpt_nn_linear(c, 16, 16), MPT_END);
    mpt_tensor x = ramp(c, MPT_SHAPE(4, 16));
    mpt_set_label(net, "fp8");
    mpt_fp8(net, NULL);
    uint64_t hash = mix_values(1, mpt_cast(mpt_cast_fp8(x, MPT_F8E4M3, true), MPT_F32));
    return hash ^ train_net(net, x);
}
#endif

static uint64_t stop_optimizers(mpt_context *c) {
    uint64_t hash = 1;
    mpt_adam_config amsgrad = mpt_adam_config_default();
    mpt_rmsprop_config centered = mpt_rmsprop_config_default();
    mpt_group_config slow = {1e-4, 0.1};
    amsgrad.amsgrad = true, centered.centered = true, centered.momentum = 0.5;
    for (int i = 0; i < 6; i++) {
        mpt_module net = make_net(c);
        if (i % 2) mpt_half(net, MPT_BF16);
        mpt_tensor x = mpt_cast(ramp(c, MPT_SHAPE(4, 8)), i % 2 ? MPT_BF16 : MPT_F32);
        mpt_optimizer o = i == 0   ? mpt_adam(net, &amsgrad)
                          : i == 1 ? mpt_rmsprop(net, &centered)
                          : i == 2 ? mpt_adagrad(net, NULL)
                          : i == 3 ? mpt_adadelta(net, NULL)
                          : i == 4 ? mpt_lion(net, NULL)
                                   : mpt_adamw(net, NULL);
        mpt_optimizer_add(o, net, "0.bias", &slow);
        mpt_warmup(o, 0.1, 3, 10, 0, i < 3 ? MPT_PER_STEP : MPT_PER_EPOCH);
        mpt_set_option(o, 0, "weight_decay", 0.01);
        mpt_set_lr(o, -1, 0.01);
        hash = hash * 31 + descend(net, o, x);
        hash = mix(hash, mpt_item(mpt_grad_norm(o, 1)));
        mpt_clip_grad_norm_p(o, 1, (double)INFINITY);
        mpt_clip_grad_value(o, 0.5);
        hash = hash * 31 + mpt_optimizer_hash(o);
        mpt_optimizer_destroy(o);
        mpt_module_destroy(net);
    }
    return hash;
}

static uint64_t stop_schedules(mpt_context *c) {
    static const int64_t stones[2] = {2, 4};
    mpt_module net = make_net(c);
    mpt_optimizer o = mpt_sgd(net, NULL);
    mpt_rate rates[2] = {mpt_linear_lr(0.5, 1, 2), mpt_cosine_lr(6, 0)};
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    uint64_t hash = 1;
    cycle.total = 8, cycle.max_lr = 0.1, cycle.cycle_momentum = false;
    for (int i = 0; i < 5; i++) {
        mpt_schedule s =
            i == 0   ? mpt_sequential_lr(o, rates, 2, stones, MPT_PER_STEP)
            : i == 1 ? mpt_chained_lr(o, rates, 2, MPT_PER_EPOCH)
            : i == 2 ? mpt_one_cycle(o, &cycle, MPT_PER_STEP)
            : i == 3 ? mpt_reduce_on_plateau(o, NULL)
                     : mpt_schedule_create(o, mpt_multi_step_lr(stones, 2, 0.5), MPT_PER_EPOCH);
        for (int k = 0; k < 2; k++) {
            descend(net, o, ramp(c, MPT_SHAPE(4, 8)));
            if (i == 3)
                mpt_schedule_metric(s, 3 - k);
            else if (i % 3 == 1)
                mpt_schedule_step(s);
            hash = mix(hash, mpt_get_lr(o, 0));
        }
        mpt_schedule_state state = mpt_schedule_get_state(s);
        mpt_schedule_set_state(s, &state);
        hash = mix(hash, (double)state.time);
        mpt_schedule_destroy(s);
    }
    mpt_optimizer_destroy(o);
    mpt_module_destroy(net);
    return hash;
}

static void forget_training(training *t) {
    mpt_scaler_destroy(t->scaler);
    mpt_optimizer_destroy(t->optimizer);
    mpt_loader_destroy(t->loader);
    mpt_dataset_destroy(t->data);
    mpt_module_destroy(t->net);
}

static uint64_t stop_scaler(mpt_context *c) {
    training t;
    make_training(&t, c, MPT_F16, 0);
    mpt_metric_reset(c, "norm");
    mpt_ema ema = mpt_ema_create(t.net, t.optimizer, NULL);
    for (int i = 0; i < 4; i++) {
        if (i == 2) mpt_set_scale(t.scaler, 1 << 24); /* overflows: the step is skipped */
        train_step(&t);
        mpt_ema_update(ema);
        mpt_metric_push(c, "norm", mpt_grad_norm(t.optimizer, 2));
    }
    uint64_t hash = training_hash(&t) ^ mpt_ema_hash(ema);
    mpt_ema_apply(ema);
    hash ^= mpt_module_hash(t.net);
    mpt_ema_restore(ema);
    mpt_scaler_state state = mpt_scaler_get_state(t.scaler);
    mpt_scaler_set_state(t.scaler, &state);
    mpt_scaler_stats stats = mpt_scaler_statistics(t.scaler);
    hash = mix(mix(hash, stats.scale), (double)stats.skipped);
    mpt_ema_destroy(ema);
    forget_training(&t);
    return hash;
}

static uint64_t stop_capture(mpt_context *c) {
    training t;
    mpt_batch b;
    bool done = true;
    make_training(&t, c, MPT_BF16, 0);
    mpt_captured captured = mpt_capture(c, step_of, &t);
    for (int i = 0; i < 6; i++) {
        if (done && !next_batch(t.loader, &b)) break;
        if (i < 3)
            mpt_captured_step(captured, b.x, b.y);
        else
            mpt_step_slice(captured, b.x, b.y, 0, &done);
    }
    while (!done && mpt_step_slice(captured, b.x, b.y, 1, &done) == MPT_OK) {}
    mpt_record_begin(c);
    mpt_tensor y = mpt_keep(mpt_forward(t.net, b.x));
    mpt_recording recording = mpt_record_end(c);
    mpt_replay(recording);
    uint64_t hash = mix_values(training_hash(&t), y);
    hash = mix(hash, (double)mpt_recording_launches(recording));
    mpt_recording_destroy(recording);
    mpt_captured_destroy(captured);
    mpt_release(y);
    forget_training(&t);
    return hash;
}

static uint64_t stop_weights(mpt_context *c) {
    int loaded = 0;
    mpt_load_config some = mpt_load_config_default();
    const mpt_rename rename = {"*", "*", false, 0, 0}, turn = {"0.weight", "weight", true, 0, 0};
    some.strict = false, some.renames = &rename, some.rename_count = 1;
    mpt_module net = make_net(c), copy = make_net(c);
    mpt_half(net, MPT_F16);
    mpt_half(copy, MPT_F16);
    mpt_save(net, "weights");
    mpt_set_init(copy, "0.weight", mpt_init_make(MPT_INIT_CONSTANT, 0, 0));
    mpt_load(copy, "weights", &some, &loaded);
    uint64_t hash = mix(mpt_module_hash(copy), loaded);
    disk_file *file = disk_find(&files, "weights", 0);
    if (file) mpt_load_memory(net, file->data, file->bytes, NULL, &loaded);
    mpt_module turned = mpt_nn_linear(c, 16, FEATURES);
    mpt_set_label(turned, "turned");
    some.renames = &turn;
    mpt_load(turned, "weights", &some, &loaded);
    hash ^= mpt_module_hash(turned);
    mpt_module_destroy(turned);
    mpt_copy_module(net, copy);
    hash = mix(hash, loaded) ^ mpt_module_hash(net);
    mpt_module_destroy(copy);
    mpt_module_destroy(net);
    return hash;
}

#ifndef MPTRAIN_NO_FIT
static uint64_t stop_fit(mpt_context *c) {
    training t;
    mpt_fit_config config = mpt_fit_config_default();
    make_training(&t, c, MPT_F16, 0);
    config.epochs = 2, config.precision = MPT_F16, config.checkpoint = "best";
    config.validation = make_loader_of(c, t.data, 16, 0, MPT_F32);
    config.clip_norm = 1;
    mpt_fit_result r = mpt_fit(t.net, t.optimizer, t.loader, &config);
    uint64_t hash = mix(mix(training_hash(&t), r.train_loss), r.validation_loss);
    mpt_loader_destroy(config.validation);
    forget_training(&t);
    return hash;
}
#endif

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
/* As make_training, of fewer pieces. */
static void make_small_training(training *t, mpt_context *c) {
    mpt_sgd_config config = mpt_sgd_config_default();
    config.momentum = 0.9;
    memset(t, 0, sizeof *t);
    t->context = c, t->precision = MPT_F16;
    t->data = make_data(c, SAMPLES);
    t->loader = make_loader_of(c, t->data, 8, 0, MPT_F32);
    t->net = mpt_sequential(c, mpt_nn_dropout(c, 0.25), mpt_nn_linear(c, FEATURES, CLASSES),
                            mpt_nn_log_softmax(c, -1), MPT_END);
    mpt_set_label(t->net, "net");
    t->optimizer = mpt_sgd(t->net, &config);
    t->scaler = mpt_grad_scaler(c, NULL);
}

static training unfinished; /* where a stop did not get to its end */
static mpt_ema unfinished_ema;

/* A whole training to a file, a block and a folder, and back: all of it, so nothing may be left of
   a stop that did not get to its end. */
static uint64_t stop_resume(mpt_context *c) {
    static uint8_t block[32 << 10];
    char text[200];
    training t;
    if (unfinished.context == c) mpt_ema_destroy(unfinished_ema), forget_training(&unfinished);
    mpt_clear_error(c); /* loaders go where an error is, too, so this one may be gone */
    for (int i = 0; i < 8; i++) files.files[i].exists = 0;
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    mpt__series_free(c); /* of a stop that did not get to its end */
    make_small_training(&t, c);
    mpt_ema ema = mpt_ema_create(t.net, t.optimizer, NULL);
    if (!mpt_failed(c)) unfinished = t, unfinished_ema = ema;
    mpt_metric_push(c, "norm", mpt_clip_grad_norm(t.optimizer, 1.0));
    mpt_checkpoint_save(c, "unused");
    train_step(&t);
    mpt_ema_update(ema);
    mpt_snapshot(c, block, sizeof block);
    mpt_checkpoint_save(c, "whole");
    uint64_t hash = mix(1, (double)mpt_snapshot_difference(c, block, sizeof block, text, 200));
    train_step(&t);
    hash = mix(hash, mpt_checkpoint_difference(c, "whole", text, sizeof text) > 0);
    hash = mix(hash, mpt_snapshot_difference(c, block, sizeof block, text, sizeof text) > 0);
    mpt_restore(c, block, sizeof block);
    hash ^= training_hash(&t), mpt_state_hash(c);
    mpt_checkpoint_load(c, "whole");
    config.every = 1, config.keep = 1;
    for (int i = 0; i < 2; i++) { /* goes on, and then in a thread of its own */
        config.background = i == 1;
        mpt_checkpoint_open(c, "folder", &config);
        train_step(&t);
        mpt_checkpoint_step(c);
        if (i == 0) mpt_checkpoint_best(c, 1);
        mpt_checkpoint_close(c);
    }
    hash = hash * 3 ^ training_hash(&t);
    mpt_ema_destroy(ema);
    forget_training(&t);
    if (!mpt_failed(c)) unfinished.context = NULL;
    return hash;
}
#endif

static mpt_tensor square_sum(mpt_context *c, void *user, const mpt_tensor *in, int n_in) {
    (void)c, (void)user, (void)n_in;
    return mpt_sum(mpt_mul(in[0], in[0]), MPT_ALL_DIMS, false);
}

static void hear(void *user, const char *line) { (void)user, (void)line; }

static uint64_t stop_inspection(mpt_context *c) {
    mpt_tensor x = ramp(c, MPT_SHAPE(3, 4));
    mpt_gradcheck(c, square_sum, NULL, &x, 1, NULL);
    mpt_module net = mpt_sequential(c, mpt_nn_linear(c, 4, 4), mpt_nn_relu(c), MPT_END);
    mpt_set_label(net, "inspected");
    mpt_optimizer o = mpt_sgd(net, NULL);
    mpt_print_launches(c, hear, NULL);
    mpt_trace_nan(c, true);
    mpt_anomaly_mode(c, true);
    mpt_step_begin(c);
    mpt_tensor y = mpt_log(mpt_mul_scalar(mpt_forward(net, x), -1)); /* not a number */
    mpt_backward(mpt_mean(y, MPT_ALL_DIMS, false));
    mpt_step_end(c);
    uint64_t hash = mpt_module_hash(net); /* what the diagnosis finds may lack what failed */
    mpt_anomaly_mode(c, false);
    mpt_trace_nan(c, false);
    mpt_print_launches(c, NULL, NULL);
    mpt_optimizer_destroy(o);
    mpt_module_destroy(net);
    return hash;
}

/* ==== Data ==== */

static uint64_t mix_dataset(uint64_t hash, mpt_dataset data) {
    mpt_context *c = data.context;
    double mean = 0, deviation = 0;
    mpt_dataset parts[2];
    const double halves[2] = {0.5, 0.5};
    mpt_dataset_statistics(data, &mean, &deviation);
    mpt_random_split(data, halves, 2, 1, parts);
    mpt_loader loader = make_loader_of(c, parts[1], 2, 0, MPT_F16);
    mpt_batch b;
    while (mpt_loader_next(loader, &b)) hash = mix_values(hash, b.x);
    mpt_loader_destroy(loader);
    for (int i = 0; i < 2; i++) mpt_dataset_destroy(parts[i]);
    mpt_dataset_destroy(data);
    return mix(mix(hash, mean), deviation);
}

#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
static void put_file(const char *path, const void *data, size_t bytes) {
    int kept[DISK_CALLBACKS];
    memcpy(kept, files.fail_at, sizeof kept);
    memset(files.fail_at, 0, sizeof kept);
    disk_file *file = (disk_file *)disk_open(&files, path, 'w');
    disk_write(&files, file, data, bytes);
    disk_close(&files, file);
    memcpy(files.fail_at, kept, sizeof kept);
}

static uint64_t stop_tables(mpt_context *c) {
    static const char csv[] = "a,b,c\n1,red,0\n2,blue,1\n3,red,0\n4,green,1\n";
    static const char npy[] = "\x93NUMPY\x01\x00\x3e\x00{'descr': '<f4', 'fortran_order': False, "
                              "'shape': (4, 2), }  \n";
    char array[74 + 32];
    float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    mpt_raw_config raw = mpt_raw_config_default();
    mpt_dataset table = mpt_csv_memory(c, csv, sizeof csv - 1, NULL);
    mpt_table_fit(table, true);
    mpt_table_config later = mpt_table_config_default();
    mpt_table_save(table, "learned");
    uint64_t hash = mix_text(1, mpt_category_name(table, 1, 1));
    hash = mix_dataset(hash, table);
    put_file("table", csv, sizeof csv - 1);
    hash = mix_dataset(hash, mpt_csv(c, "table", NULL));
    later.like = mpt_table_load(c, "learned"), later.target = "";
    hash = mix_dataset(hash, mpt_csv_memory(c, "b,a\nblue,7\nred,1\n", 17, &later));
    memcpy(array, npy, 72);
    memcpy(array + 72, values, 32);
    put_file("array", array, 72 + 32);
    hash = mix_dataset(hash, mpt_npy(c, "array", NULL));
    hash = mix_values(hash, mpt_numpy_tensor(c, "array", NULL));
    put_file("raw", values, sizeof values);
    raw.inputs = "raw", raw.shape = MPT_SHAPE(2);
    return mix_dataset(hash, mpt_raw_files(c, &raw));
}

static uint64_t stop_text(mpt_context *c) {
    static const char words[] = "{\"a\": 0, \"b\": 1, \"ab\": 2, \"aab\": 3}",
                      merges[] = "a b\na ab\n";
    static const char text[] = "aababbaabababaab";
    mpt_window_config window = mpt_window_config_default();
    int32_t tokens[32];
    char back[32];
    window.block = 3;
    put_file("words", words, sizeof words - 1);
    put_file("merges", merges, sizeof merges - 1);
    put_file("text", text, sizeof text - 1);
    mpt_tokenizer bpe = mpt_bpe_tokenizer(c, "words", "merges");
    mpt_tokenizer chars = mpt_char_tokenizer(c, "text");
    int64_t n = mpt_encode(bpe, text, sizeof text - 1, tokens, 32);
    uint64_t hash = mix(1, (double)n);
    memset(back, 0, sizeof back);
    mpt_decode(bpe, tokens, n > 0 ? n : 0, back, 31);
    hash = mix_dataset(mix_text(hash, back), mpt_text_file(chars, "text", &window));
    hash = mix_dataset(hash, mpt_token_file(c, "text", 1, &window));
    mpt_tokenizer_destroy(bpe);
    mpt_tokenizer_destroy(chars);
    return hash;
}
#endif

#ifndef MPTRAIN_NO_FILES
static uint64_t stop_pictures(mpt_context *c) {
    mpt_memory_dataset_config m = mpt_memory_dataset_config_default();
    uint8_t bytes[4 * 108];
    mpt_transform steps[3] = {mpt_transform_default(MPT_RESIZED_CROP, 5, 5),
                              mpt_transform_default(MPT_RANDOM_FLIP, 0, 0),
                              mpt_transform_default(MPT_RANDOM_ERASING, 0, 0)};
    for (int i = 0; i < 4 * 108; i++) bytes[i] = (uint8_t)(i * 7);
    m.count = 4, m.dtype = MPT_U8, m.shape = MPT_SHAPE(3, 6, 6), m.inputs = bytes;
    mpt_dataset plain = mpt_memory_dataset(c, &m);
    uint64_t hash = mix_dataset(1, mpt_transformed(plain, steps, 3));
    mpt_dataset_destroy(plain);
    return hash;
}
#endif

typedef struct stop {
    const char *name;
    uint64_t (*run)(mpt_context *c);
} stop;

static const stop stops[] = {
    {"tensors", stop_tensors},
    {"in place", stop_in_place},
    {"layers", stop_layers},
#ifndef MPTRAIN_NO_CONV
    {"images", stop_images},
#endif
#ifndef MPTRAIN_NO_ATTENTION
    {"attention", stop_attention},
#endif
#ifndef MPTRAIN_NO_FP8
    {"fp8", stop_fp8},
#endif
    {"optimizers", stop_optimizers},
    {"schedules", stop_schedules},
    {"scaler", stop_scaler},
    {"capture", stop_capture},
    {"weights", stop_weights},
#ifndef MPTRAIN_NO_FIT
    {"fit", stop_fit},
#endif
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
    {"resume", stop_resume},
#endif
    {"inspection", stop_inspection},
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO)
    {"tables", stop_tables},
    {"text", stop_text},
#endif
#ifndef MPTRAIN_NO_FILES
    {"pictures", stop_pictures},
#endif
};

/* ==== The tour ==== */

enum { FAULT_MEMORY, FAULT_LAUNCH, FAULT_COPY, FAULT_DISK, FAULTS = FAULT_DISK + DISK_CALLBACKS };

static mpt_context *toured;
static arena memory;

/* A log that wants to mend things while their caller has not returned. */
static void meddle(void *user, mpt_log_level level, const char *message) {
    (void)user, (void)message;
    if (toured && level == MPT_LOG_ERROR) mpt_clear_error(toured);
    if (toured) mpt_memory_trim(toured);
}

static void tour_begin(void) {
    mpt_config config = mpt_config_default();
    config.log.write = meddle, toured = NULL;
    config.isa = MPT_ISA_REF, config.threads = 1, config.device = MPT_DEVICE_CPU;
    arena_use(&memory, &config);
    disk_use(&files, &config);
    toured = mpt_create(&config);
    toured->pool_reach = -1; /* idle memory never serves: each storage asks the allocator */
    break_launches(toured);
    launches = bad_launch = copies = bad_copy = 0;
}

static void tour_end(void) {
#if !defined(MPTRAIN_NO_FILES) && !defined(MPTRAIN_NO_STDIO) && !defined(MPTRAIN_NO_RESUME)
    unfinished.context = NULL;
#endif
    mpt_destroy(toured);
    CHECK_EQ_INT(memory.live, 0);
    CHECK_EQ_INT(memory.torn, 0);
    CHECK_EQ_INT(files.open_now, 0);
    disk_free(&files);
}

/* Calls so far of what is to fail; the next but `n` - 1 is to fail (0: none). */
static int64_t fault(int kind, int64_t n) {
    int64_t calls = kind == FAULT_MEMORY   ? memory.calls
                    : kind == FAULT_LAUNCH ? launches
                    : kind == FAULT_COPY   ? copies
                                           : files.calls[kind - FAULT_DISK];
    if (kind == FAULT_MEMORY)
        memory.fail_at = n ? calls + n : 0, memory.failures = 2;
    else if (kind == FAULT_LAUNCH)
        bad_launch = n ? calls + n : 0;
    else if (kind == FAULT_COPY)
        bad_copy = n ? calls + n : 0;
    else
        files.fail_at[kind - FAULT_DISK] = n ? (int)(calls + n) : 0;
    return calls;
}

/* Whether the stop gets as far as the fault. */
static bool troubled(const stop *s, int kind, int64_t n, uint64_t clean, int *borne) {
    static const mpt_status codes[] = {MPT_ERROR_MEMORY, MPT_ERROR_DEVICE, MPT_ERROR_DEVICE,
                                       MPT_ERROR_IO};
    tour_begin();
    int64_t before = fault(kind, n);
    uint64_t hash = s->run(toured);
    bool reached = fault(kind, 0) - before >= n;
    if (reached && mpt_failed(toured)) {
        CHECK_EQ_INT(mpt_error_code(toured), codes[kind < FAULT_DISK ? kind : FAULT_DISK]);
        if (test_failures) printf("\n  %s", mpt_error(toured));
        mpt_clear_error(toured);
        bool anew = mpt_step_number(toured) == 0; /* else dropout goes on from there */
        hash = s->run(toured);
        if (!anew) hash = clean;
        if (mpt_failed(toured)) TEST_FAIL_("%s", mpt_error(toured));
    } else if (reached) {
        ++*borne;
    }
    CHECK(hash == clean);
    tour_end();
    return reached;
}

static void tour(int first, int last) {
    int count = 0, borne = 0;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        tour_begin();
        uint64_t clean = stops[i].run(toured);
        if (mpt_failed(toured)) TEST_FAIL_("%s: %s", stops[i].name, mpt_error(toured));
        tour_end();
        if (test_failures) continue;
        for (int kind = first; kind <= last && test_failures == 0; kind++) {
            int64_t n = 1;
            while (test_failures == 0 && troubled(&stops[i], kind, n, clean, &borne)) n++;
            count += (int)n - 1;
            if (test_failures)
                printf("\n  stop \"%s\", fault %d, call %lld", stops[i].name, kind, (long long)n);
        }
    }
    printf(" %d faults, %d borne", count, borne);
}

TEST(every_allocation_is_refused) { tour(FAULT_MEMORY, FAULT_MEMORY); }
TEST(every_launch_fails) { tour(FAULT_LAUNCH, FAULT_LAUNCH); }
TEST(every_copy_fails) { tour(FAULT_COPY, FAULT_COPY); }
TEST(every_file_callback_fails) { tour(FAULT_DISK, FAULTS - 1); }

TEST_TABLE = {T(every_allocation_is_refused), T(every_launch_fails), T(every_copy_fails),
              T(every_file_callback_fails)};
TEST_MAIN
