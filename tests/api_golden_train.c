/* api_golden_train.c: training against PyTorch: optimizers over 50 steps, clipping, schedules, the
 * gradient scaler over 60 updates, and a classifier of MNIST's shape over 100 steps in fp32, fp16
 * and bf16. Weights, gradients and inputs come from golden_uniform on both sides. */
#include "golden.h"

/* As in tools/golden.py. */
enum { P_STREAM = 1000, G_STREAM = 2000, RATE_STREAM = 3000 };
enum { W_STREAM = 4000, PROTOTYPE_STREAM = 5000, SAMPLE_STREAM = 6000 };

/* ---- a net of four parameters whose gradients are given ---- */

#define PARAMETERS 4
#define ELEMENTS 58 /* of linear(7, 5) and linear(5, 3) */

static const char *const parameter_names[PARAMETERS] = {"0.weight", "0.bias", "1.weight", "1.bias"};
static const int parameter_counts[PARAMETERS] = {35, 5, 15, 3};

typedef struct given_net {
    mpt_context *context;
    mpt_module module;
    mpt_tensor parameters[PARAMETERS];
} given_net;

static void set_parameters(given_net *net) {
    float values[ELEMENTS];
    uint32_t index = 0;
    for (int k = 0; k < PARAMETERS; k++) {
        for (int i = 0; i < parameter_counts[k]; i++) values[i] = golden_uniform(P_STREAM, index++);
        mpt_write(net->parameters[k], values, (size_t)parameter_counts[k] * sizeof(float));
    }
}

static given_net make_net(void) {
    given_net net;
    net.context = mpt_create(NULL);
    mpt_module first = mpt_nn_linear(net.context, 7, 5), second = mpt_nn_linear(net.context, 5, 3);
    net.module = mpt_sequential(net.context, first, second, MPT_END);
    for (int k = 0; k < PARAMETERS; k++)
        net.parameters[k] = mpt_parameter(net.module, parameter_names[k]);
    set_parameters(&net);
    return net;
}

static void read_parameters(const given_net *net, float values[ELEMENTS]) {
    for (int k = 0, at = 0; k < PARAMETERS; at += parameter_counts[k++])
        mpt_read_f32(net->parameters[k], values + at, parameter_counts[k]);
}

static void given_gradients(int step, float size, float values[ELEMENTS]) {
    for (uint32_t i = 0; i < ELEMENTS; i++)
        values[i] = golden_uniform(G_STREAM + (uint32_t)step, i) * size;
}

/* sum p g: its gradient with respect to the parameters is `values`, to the bit. */
static mpt_tensor loss_of_gradients(const given_net *net, const float values[ELEMENTS], int count) {
    mpt_tensor loss;
    memset(&loss, 0, sizeof loss);
    for (int k = 0, at = 0; k < count; at += parameter_counts[k++]) {
        mpt_shape shape = mpt_get_shape(net->parameters[k]);
        mpt_tensor g = mpt_from(net->context, MPT_F32, shape, values + at);
        g = mpt_cast(g, mpt_get_dtype(net->parameters[k]));
        mpt_tensor part = mpt_sum(mpt_mul(net->parameters[k], g), MPT_ALL_DIMS, false);
        loss = k == 0 ? part : mpt_add(loss, part);
    }
    return loss;
}

static void check_no_error(mpt_context *context, const char *label) {
    if (mpt_failed(context)) {
        TEST_FAIL_("%s: %s", label, mpt_error(context));
        mpt_clear_error(context);
    }
}

/* ---- optimizers ---- */

enum { NESTEROV, GROUPS, MISSING, LENGTH, AMSGRAD, MAXIMIZE, CENTERED, HALF };
enum { LR, DECAY, MOMENTUM, DAMPENING, BETA1, BETA2, EPS, LR2, DECAY2 };
enum { ALPHA = DECAY2 + 1, RHO, LR_DECAY, INITIAL };

static const char *const optimizer_kinds[] = {"sgd",     "adam",     "adamw", "rmsprop",
                                              "adagrad", "adadelta", "lion"};

/* Sets what all configs have. */
#define COMMON(config) \
    config.lr = reals[LR]; \
    config.weight_decay = reals[DECAY]; \
    config.maximize = ints[MAXIMIZE] != 0

static mpt_optimizer make_adaptive(const char *kind, mpt_module module, const int64_t *ints,
                                   const double *reals) {
    mpt_rmsprop_config rmsprop = mpt_rmsprop_config_default();
    mpt_adagrad_config adagrad = mpt_adagrad_config_default();
    mpt_adadelta_config adadelta = mpt_adadelta_config_default();
    mpt_lion_config lion = mpt_lion_config_default();
    COMMON(rmsprop);
    COMMON(adagrad);
    COMMON(adadelta);
    COMMON(lion);
    rmsprop.alpha = reals[ALPHA];
    rmsprop.momentum = reals[MOMENTUM];
    rmsprop.centered = ints[CENTERED] != 0;
    rmsprop.eps = adagrad.eps = adadelta.eps = reals[EPS];
    adagrad.lr_decay = reals[LR_DECAY];
    adagrad.initial_accumulator = reals[INITIAL];
    adadelta.rho = reals[RHO];
    lion.beta1 = reals[BETA1], lion.beta2 = reals[BETA2];
    return strcmp(kind, "rmsprop") == 0    ? mpt_rmsprop(module, &rmsprop)
           : strcmp(kind, "adagrad") == 0  ? mpt_adagrad(module, &adagrad)
           : strcmp(kind, "adadelta") == 0 ? mpt_adadelta(module, &adadelta)
                                           : mpt_lion(module, &lion);
}

static mpt_optimizer make_optimizer(const char *kind, mpt_module module, const int64_t *ints,
                                    const double *reals) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam =
        strcmp(kind, "adam") == 0 ? mpt_adam_config_default() : mpt_adamw_config_default();
    if (strcmp(kind, "sgd") != 0 && strncmp(kind, "adam", 4) != 0)
        return make_adaptive(kind, module, ints, reals);
    COMMON(sgd);
    sgd.momentum = reals[MOMENTUM];
    sgd.dampening = reals[DAMPENING];
    sgd.nesterov = ints[NESTEROV] != 0;
    if (strcmp(kind, "sgd") == 0) return mpt_sgd(module, &sgd);
    COMMON(adam);
    adam.beta1 = reals[BETA1];
    adam.beta2 = reals[BETA2];
    adam.eps = reals[EPS];
    adam.amsgrad = ints[AMSGRAD] != 0;
    return strcmp(kind, "adam") == 0 ? mpt_adam(module, &adam) : mpt_adamw(module, &adam);
}

static void run_optimizer(const golden_case *c) {
    given_net net = make_net();
    const golden_tensor *want = golden_find(c, "parameters");
    const int steps = (int)c->ints[LENGTH];
    if (c->ints[HALF]) mpt_half(net.module, MPT_F16);
    mpt_optimizer optimizer = make_optimizer(c->op, net.module, c->ints, c->reals);
    float values[ELEMENTS];
    if (c->ints[GROUPS] == 2) {
        mpt_group_config second;
        second.lr = c->reals[LR2];
        second.weight_decay = c->reals[DECAY2];
        CHECK_EQ_INT(mpt_optimizer_add(optimizer, mpt_child(net.module, "1"), NULL, &second), 1);
    }
    for (int step = 1; step <= steps; step++) {
        int missing = c->ints[MISSING] && step % 3;
        mpt_step_begin(net.context);
        mpt_zero_grad(optimizer);
        given_gradients(step, 1, values);
        mpt_backward(loss_of_gradients(&net, values, PARAMETERS - missing));
        mpt_step(optimizer);
        mpt_step_end(net.context);
        if (step % (steps / 5) == 0) {
            read_parameters(&net, values);
            if (golden_compare(c->label, want, ELEMENTS * (step / (steps / 5) - 1), values,
                               ELEMENTS)) {
                printf(" after step %d", step);
                break;
            }
        }
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), steps);
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* Muon: products in fp32 and, as in PyTorch, in bf16; the biases are AdamW's. */
static void run_muon(const golden_case *c) {
    enum { M_NESTEROV, MATCH, BF16, M_MISSING, M_MAXIMIZE, M_HALF, NS_STEPS, M_STEPS };
    enum { M_LR, M_DECAY, M_MOMENTUM, M_LR2, M_DECAY2 };
    given_net net = make_net();
    const golden_tensor *want = golden_find(c, "parameters");
    const int steps = (int)c->ints[M_STEPS];
    mpt_muon_config config = mpt_muon_config_default();
    float values[ELEMENTS];
    config.lr = c->reals[M_LR], config.weight_decay = c->reals[M_DECAY];
    config.momentum = c->reals[M_MOMENTUM];
    config.nesterov = c->ints[M_NESTEROV] != 0, config.bf16 = c->ints[BF16] != 0;
    config.maximize = c->ints[M_MAXIMIZE] != 0;
    config.adjust = c->ints[MATCH] ? MPT_MUON_MATCH_RMS_ADAMW : MPT_MUON_ORIGINAL;
    config.ns_steps = (int)c->ints[NS_STEPS];
    config.adamw.lr = c->reals[M_LR2], config.adamw.weight_decay = c->reals[M_DECAY2];
    if (c->ints[M_HALF]) mpt_half(net.module, MPT_F16);
    mpt_optimizer optimizer = mpt_muon(net.module, &config);
    for (int step = 1; step <= steps; step++) {
        const int missing = c->ints[M_MISSING] && step % 3;
        mpt_step_begin(net.context);
        mpt_zero_grad(optimizer);
        given_gradients(step, 1, values);
        mpt_backward(loss_of_gradients(&net, values, PARAMETERS - missing));
        mpt_step(optimizer);
        mpt_step_end(net.context);
        if (step % (steps / 5)) continue;
        read_parameters(&net, values);
        const int64_t at = ELEMENTS * (step / (steps / 5) - 1);
        if (golden_compare(c->label, want, at, values, ELEMENTS)) break;
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), steps);
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* One parameter that starts at 1, against an fp64 trace. */
static void run_small(const golden_case *c) {
    const golden_tensor *gradients = golden_find(c, "gradients"),
                        *want = golden_find(c, "parameters");
    mpt_context *context = mpt_create(NULL);
    mpt_module module = mpt_nn_linear_no_bias(context, 1, 1);
    mpt_tensor p = mpt_parameter(module, "weight");
    float one = 1, got[8] = {0};
    mpt_write(p, &one, sizeof one);
    mpt_optimizer optimizer =
        make_optimizer(optimizer_kinds[c->ints[0]], module, c->ints + 1, c->reals);
    for (int64_t i = 0; i < gradients->count && i < 8; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_sum(mpt_mul_scalar(p, golden_value(gradients, i)), MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_step_end(context);
        mpt_read_f32(p, &got[i], 1);
    }
    golden_compare(c->label, want, 0, got, want->count);
    check_no_error(context, c->label);
    mpt_destroy(context);
}

/* ---- clipping ---- */

static void run_clip(const golden_case *c) {
    given_net net = make_net();
    mpt_sgd_config config = mpt_sgd_config_default();
    mpt_optimizer optimizer = mpt_sgd(net.module, &config);
    const golden_tensor *want = golden_find(c, "gradients");
    float values[ELEMENTS];
    mpt_step_begin(net.context);
    given_gradients(1, (float)c->reals[0], values);
    mpt_backward(loss_of_gradients(&net, values, PARAMETERS));
    if (strcmp(c->op, "clip_grad_norm") == 0) {
        const double p = c->reals[2];
        mpt_error_if_nonfinite(optimizer, false); /* as there */
        float norm[2] = {(float)mpt_item(mpt_grad_norm(optimizer, p)), 0};
        norm[1] = (float)mpt_item(p == 2 ? mpt_clip_grad_norm(optimizer, c->reals[1])
                                         : mpt_clip_grad_norm_p(optimizer, c->reals[1], p));
        CHECK_EQ_BITS(norm, norm + 1, sizeof *norm);
        golden_compare(c->label, golden_find(c, "norm"), 0, norm, 1);
    } else {
        CHECK_EQ_INT(mpt_clip_grad_value(optimizer, c->reals[1]), MPT_OK);
    }
    for (int k = 0, at = 0; k < PARAMETERS; at += parameter_counts[k++])
        mpt_read_f32(mpt_grad(net.parameters[k]), values + at, parameter_counts[k]);
    golden_compare(c->label, want, 0, values, ELEMENTS);
    mpt_step_end(net.context);
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* ---- averages ---- */

static void run_average(const golden_case *c) {
    given_net net = make_net();
    mpt_sgd_config config = mpt_sgd_config_default();
    config.lr = 0.05, config.momentum = 0.9;
    mpt_optimizer optimizer = mpt_sgd(net.module, &config);
    mpt_ema_config average = mpt_ema_config_default();
    average.decay = c->reals[0];
    average.warmup = c->ints[0] == 1, average.equal = c->ints[0] == 2;
    mpt_ema ema = mpt_ema_create(net.module, optimizer, &average);
    float values[ELEMENTS];
    for (int step = 1; step <= 40; step++) {
        mpt_step_begin(net.context);
        mpt_zero_grad(optimizer);
        given_gradients(step, 1, values);
        mpt_backward(loss_of_gradients(&net, values, PARAMETERS));
        mpt_step(optimizer);
        mpt_ema_update(ema);
        mpt_step_end(net.context);
        if (step % 8) continue;
        uint64_t before = mpt_module_hash(net.module);
        mpt_ema_apply(ema);
        read_parameters(&net, values);
        mpt_ema_restore(ema);
        CHECK(mpt_module_hash(net.module) == before);
        if (golden_compare(c->label, golden_find(c, "averages"), ELEMENTS * (step / 8 - 1), values,
                           ELEMENTS))
            break;
    }
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* ---- schedules ---- */

enum { KIND, T_MAX, WARMUP, STEPS };
enum { BASE, ETA_MIN, START };

static mpt_schedule make_schedule(const golden_case *c, mpt_optimizer optimizer,
                                  mpt_schedule_unit unit) {
    return c->ints[KIND] == 0
               ? mpt_cosine_annealing(optimizer, c->ints[T_MAX], c->reals[ETA_MIN], unit)
               : mpt_warmup(optimizer, c->reals[START], c->ints[WARMUP], c->ints[T_MAX],
                            c->reals[ETA_MIN], unit);
}

static void run_schedule_unit(const golden_case *c, mpt_schedule_unit unit) {
    const golden_tensor *want = golden_find(c, "parameters"), *lr = golden_find(c, "lr");
    mpt_context *context = mpt_create(NULL);
    mpt_module module = mpt_nn_linear_no_bias(context, 3, 1);
    mpt_tensor p = mpt_parameter(module, "weight");
    mpt_sgd_config config = mpt_sgd_config_default();
    float values[3] = {0};
    mpt_write(p, values, sizeof values);
    config.lr = c->reals[BASE];
    mpt_optimizer optimizer = mpt_sgd(module, &config);
    mpt_schedule schedule = make_schedule(c, optimizer, unit);
    for (int64_t step = 0; step < c->ints[STEPS]; step++) {
        int before = test_failures;
        CHECK_CLOSE(mpt_get_lr(optimizer, 0), golden_value(lr, step), lr->rtol, lr->atol);
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        for (uint32_t i = 0; i < 3; i++)
            values[i] = golden_uniform(RATE_STREAM + (uint32_t)step, i);
        mpt_tensor g = mpt_from(context, MPT_F32, MPT_SHAPE(1, 3), values);
        mpt_backward(mpt_sum(mpt_mul(p, g), MPT_ALL_DIMS, false));
        mpt_step(optimizer);
        mpt_step_end(context);
        if (unit == MPT_PER_EPOCH) mpt_schedule_step(schedule);
        mpt_read_f32(p, values, 3);
        golden_compare(c->label, want, 3 * step, values, 3);
        if (test_failures != before) {
            printf(" in step %d, unit %d", (int)step, (int)unit);
            break;
        }
    }
    check_no_error(context, c->label);
    mpt_destroy(context);
}

static void run_schedule(const golden_case *c) {
    run_schedule_unit(c, MPT_PER_STEP);
    run_schedule_unit(c, MPT_PER_EPOCH);
}

/* ---- curves, one cycle, plateaus: two groups over 200 steps ---- */

enum { SINGLE, SEQUENTIAL, CHAINED, ONE_CYCLE, PLATEAU };

static mpt_rate make_rate(const golden_case *c, int k) {
    const int64_t *n = c->ints + 3 + 3 * k;
    const double *a = c->reals + 2 * k;
    int64_t milestones[MPT_MAX_MILESTONES] = {0};
    const golden_tensor *list = golden_find(c, "milestones");
    for (int i = 0; i < list->count; i++) milestones[i] = (int64_t)golden_value(list, i);
    switch (n[-1]) {
    case 0:
        return mpt_constant_lr(a[0], n[0]);
    case 1:
        return mpt_linear_lr(a[0], a[1], n[0]);
    case 2:
        return mpt_exponential_lr(a[0]);
    case 3:
        return mpt_step_lr(n[0], a[0]);
    case 4:
        return mpt_multi_step_lr(milestones, (int)n[0], a[0]);
    case 5:
        return mpt_polynomial_lr(n[0], a[0]);
    case 6:
        return mpt_cosine_lr(n[0], a[0]);
    default:
        return mpt_cosine_restarts_lr(n[0], n[1], a[0]);
    }
}

static mpt_schedule make_curves(const golden_case *c, mpt_optimizer optimizer,
                                mpt_schedule_unit unit) {
    const golden_tensor *at = golden_find(c, "at");
    mpt_rate rates[MPT_MAX_RATES];
    int64_t milestones[MPT_MAX_RATES] = {0};
    int count = (int)c->ints[1];
    for (int k = 0; k < count; k++) rates[k] = make_rate(c, k);
    for (int k = 0; k < at->count; k++) milestones[k] = (int64_t)golden_value(at, k);
    if (c->ints[0] == SINGLE) return mpt_schedule_create(optimizer, rates[0], unit);
    if (c->ints[0] == CHAINED) return mpt_chained_lr(optimizer, rates, count, unit);
    return mpt_sequential_lr(optimizer, rates, count, milestones, unit);
}

static mpt_schedule make_cycle(const golden_case *c, mpt_optimizer optimizer,
                               mpt_schedule_unit unit) {
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    cycle.total = 201;
    cycle.linear = c->ints[2] != 0, cycle.three_phase = c->ints[3] != 0;
    cycle.cycle_momentum = c->ints[4] != 0;
    cycle.pct_start = c->reals[1];
    cycle.div_factor = c->reals[2], cycle.final_div_factor = c->reals[3];
    cycle.base_momentum = c->reals[4], cycle.max_momentum = c->reals[5];
    if (c->reals[6] == c->reals[7]) cycle.max_lr = c->reals[6];
    for (int k = 0; k < 2 && cycle.max_lr == 0; k++) mpt_set_lr(optimizer, k, c->reals[6 + k]);
    return mpt_one_cycle(optimizer, &cycle, unit);
}

static mpt_schedule make_plateau(const golden_case *c, mpt_optimizer optimizer) {
    mpt_plateau_config plateau = mpt_plateau_config_default();
    plateau.patience = c->ints[1], plateau.cooldown = c->ints[2];
    plateau.absolute = c->ints[3] != 0, plateau.maximize = c->ints[4] != 0;
    plateau.factor = c->reals[0], plateau.threshold = c->reals[1];
    plateau.min_lr = c->reals[2], plateau.eps = c->reals[3];
    return mpt_reduce_on_plateau(optimizer, &plateau);
}

static mpt_optimizer make_scheduled(const golden_case *c, mpt_module module) {
    bool cycle = c->ints[0] == ONE_CYCLE;
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_group_config second;
    sgd.momentum = cycle ? c->reals[0] : 0;
    adam.beta1 = cycle ? c->reals[0] : 0.9;
    sgd.lr = adam.lr = 0.05;
    mpt_optimizer optimizer = !cycle || c->ints[1] == 0 ? mpt_sgd(module, &sgd)
                              : c->ints[1] == 1         ? mpt_adam(module, &adam)
                                                        : mpt_adamw(module, &adam);
    second.lr = 0.02, second.weight_decay = 0;
    CHECK_EQ_INT(mpt_optimizer_add(optimizer, module, "bias", &second), 1);
    return optimizer;
}

static bool check_rates(const golden_case *c, mpt_optimizer optimizer, int step) {
    const golden_tensor *lr = golden_find(c, "lr");
    int before = test_failures;
    for (int k = 0; k < 2; k++)
        CHECK_CLOSE(mpt_get_lr(optimizer, k), golden_value(lr, 2 * step + k), lr->rtol, lr->atol);
    if (test_failures != before) printf(" in step %d of %s", step, c->label);
    return test_failures == before;
}

/* With resume, a new schedule takes over half way. */
static void run_rates_unit(const golden_case *c, mpt_schedule_unit unit, bool resume) {
    const golden_tensor *want = golden_find(c, "parameters"), *metric = NULL;
    if (c->ints[0] == PLATEAU) metric = golden_find(c, "metric");
    mpt_context *context = mpt_create(NULL);
    mpt_module module = mpt_nn_linear(context, 3, 1);
    mpt_tensor p = mpt_parameter(module, "weight"), q = mpt_parameter(module, "bias");
    float values[4] = {0};
    mpt_write(p, values, 3 * sizeof *values);
    mpt_write(q, values, sizeof *values);
    mpt_optimizer optimizer = make_scheduled(c, module);
    mpt_schedule schedule;
    for (int step = 0; step < 200; step++) {
        if (step == 0 || (resume && step == 97)) {
            mpt_schedule_state state;
            memset(&state, 0, sizeof state);
            if (step > 0) {
                state = mpt_schedule_get_state(schedule);
                CHECK_EQ_INT(state.time, step);
                mpt_schedule_destroy(schedule);
                for (int k = 0; k < 2 && c->ints[0] < ONE_CYCLE; k++)
                    mpt_set_lr(optimizer, k, k ? 0.02 : 0.05);
            }
            schedule = c->ints[0] == PLATEAU     ? make_plateau(c, optimizer)
                       : c->ints[0] == ONE_CYCLE ? make_cycle(c, optimizer, unit)
                                                 : make_curves(c, optimizer, unit);
            if (unit == MPT_PER_STEP) state.time = step;
            if (step > 0) CHECK_EQ_INT(mpt_schedule_set_state(schedule, &state), MPT_OK);
        }
        if (!check_rates(c, optimizer, step)) break;
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        for (uint32_t i = 0; i < 4; i++)
            values[i] = golden_uniform(RATE_STREAM + (uint32_t)step, i);
        mpt_tensor g = mpt_from(context, MPT_F32, MPT_SHAPE(1, 3), values);
        mpt_tensor loss = mpt_sum(mpt_mul(p, g), MPT_ALL_DIMS, false);
        mpt_backward(mpt_add(loss, mpt_mul_scalar(mpt_sum(q, 0, false), values[3])));
        mpt_step(optimizer);
        mpt_step_end(context);
        if (c->ints[0] == PLATEAU) {
            mpt_schedule_metric(schedule, golden_value(metric, step));
        } else if (unit == MPT_PER_EPOCH) {
            mpt_schedule_step(schedule);
        }
        mpt_read_f32(p, values, 3);
        mpt_read_f32(q, values + 3, 1);
        if (step % 20 == 19 && golden_compare(c->label, want, step / 20 * 4, values, 4)) {
            printf(" after step %d, unit %d", step + 1, (int)unit);
            break;
        }
    }
    check_no_error(context, c->label);
    mpt_destroy(context);
}

static void run_rates(const golden_case *c) {
    if (c->ints[0] != PLATEAU) run_rates_unit(c, MPT_PER_STEP, true);
#ifdef MPTRAIN_CUDA /* tables are what devices read; epochs are the host's, and simulators slow */
    if (c->ints[0] != PLATEAU) return;
#endif
    run_rates_unit(c, MPT_PER_EPOCH, c->ints[0] == PLATEAU);
}

/* ---- scaler: PyTorch's has neither floor nor ceiling, and never gives up ---- */

static mpt_scaler make_scaler(mpt_context *context, double init, double growth, double backoff,
                              int64_t interval) {
    mpt_scaler_config config = mpt_scaler_config_default();
    config.init_scale = init;
    config.growth_factor = growth;
    config.backoff_factor = backoff;
    config.growth_interval = interval;
    config.min_scale = 0;
    config.max_scale = 0;
    config.patience = 0;
    config.window = 0;
    return mpt_grad_scaler(context, &config);
}

/* kind 0: nothing, 1: an infinity, 2: a NaN at element 7 step, counted around. */
static void poison(float *values, int count, int kind, int step) {
    if (kind) values[step * 7 % count] = kind == 1 ? (float)INFINITY : (float)NAN;
}

static void check_scaler(const golden_case *c, mpt_scaler scaler, int64_t update) {
    mpt_scaler_state state = mpt_scaler_get_state(scaler);
    float scale = (float)state.scale, tracker = (float)state.growth_tracker;
    CHECK(state.scale == mpt_get_scale(scaler));
    golden_compare(c->label, golden_find(c, "scale"), update, &scale, 1);
    golden_compare(c->label, golden_find(c, "tracker"), update, &tracker, 1);
}

static void run_scaler(const golden_case *c) {
    const golden_tensor *kinds = golden_find(c, "kinds"), *skipped = golden_find(c, "skipped");
    given_net net = make_net();
    mpt_sgd_config config = mpt_sgd_config_default();
    int accumulate = (int)c->ints[1], unscale = (int)c->ints[2], skips = 0;
    float values[ELEMENTS];
    config.lr = c->reals[4];
    config.momentum = c->reals[5];
    mpt_optimizer optimizer = mpt_sgd(net.module, &config);
    mpt_scaler scaler = make_scaler(net.context, c->reals[0], c->reals[1], c->reals[2], c->ints[0]);
    for (int update = 0; update < kinds->count; update++) {
        int before = test_failures;
        mpt_zero_grad(optimizer);
        for (int part = 0; part < accumulate; part++) {
            mpt_step_begin(net.context);
            given_gradients(update * accumulate + part, (float)c->reals[3], values);
            if (part == update % accumulate)
                poison(values, ELEMENTS, (int)golden_value(kinds, update), update);
            mpt_backward(mpt_scale_loss(scaler, loss_of_gradients(&net, values, PARAMETERS)));
            if (part == accumulate - 1) {
                if (unscale) mpt_unscale(scaler, optimizer);
                if (unscale == 2) mpt_clip_grad_norm(optimizer, 1.0);
                mpt_scaler_step(scaler, optimizer);
                mpt_scaler_update(scaler);
            }
            mpt_step_end(net.context);
        }
        int skip = golden_value(skipped, update) != 0;
        skips += skip;
        CHECK_EQ_INT(mpt_step_outcome(scaler), skip ? MPT_OUTCOME_SKIPPED : MPT_OUTCOME_APPLIED);
        CHECK_EQ_INT(mpt_applied_steps(optimizer), update + 1 - skips);
        check_scaler(c, scaler, update);
        if (test_failures != before) {
            printf(" in update %d", update);
            break;
        }
    }
    read_parameters(&net, values);
    golden_compare(c->label, golden_find(c, "parameters"), 0, values, ELEMENTS);
    CHECK_EQ_INT(mpt_scaler_statistics(scaler).skipped, skips);
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* Two nets under two optimizers and one scaler: each skips on its own, one overflow backs off. */
static void run_two_optimizers(const golden_case *c) {
    const golden_tensor *kinds = golden_find(c, "kinds"), *skipped = golden_find(c, "skipped");
    given_net net;
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    int64_t applied[2] = {0, 0}, updates = kinds->count / 2;
    float values[ELEMENTS];
    net.context = mpt_create(NULL);
    net.module = mpt_nn_linear(net.context, 7, 5);
    mpt_module second = mpt_nn_linear(net.context, 5, 3);
    for (int k = 0; k < PARAMETERS; k++)
        net.parameters[k] = mpt_parameter(k < 2 ? net.module : second, k % 2 ? "bias" : "weight");
    set_parameters(&net);
    sgd.lr = c->reals[1];
    adamw.lr = c->reals[2];
    mpt_optimizer optimizers[2] = {mpt_sgd(net.module, &sgd), mpt_adamw(second, &adamw)};
    mpt_scaler scaler = make_scaler(net.context, c->reals[0], 2, 0.5, c->ints[0]);
    for (int64_t update = 0; update < updates; update++) {
        int before = test_failures;
        mpt_step_begin(net.context);
        given_gradients((int)update, 1, values);
        poison(values, 40, (int)golden_value(kinds, update), 0);
        poison(values + 40, 18, (int)golden_value(kinds, updates + update), 0);
        mpt_zero_grad(optimizers[0]);
        mpt_zero_grad(optimizers[1]);
        mpt_backward(mpt_scale_loss(scaler, loss_of_gradients(&net, values, PARAMETERS)));
        mpt_scaler_step(scaler, optimizers[0]);
        mpt_scaler_step(scaler, optimizers[1]);
        mpt_scaler_update(scaler);
        mpt_step_end(net.context);
        for (int k = 0; k < 2; k++) {
            applied[k] += golden_value(skipped, 2 * update + k) == 0;
            CHECK_EQ_INT(mpt_applied_steps(optimizers[k]), applied[k]);
        }
        check_scaler(c, scaler, update);
        if (test_failures != before) {
            printf(" in update %d", (int)update);
            break;
        }
    }
    read_parameters(&net, values);
    golden_compare(c->label, golden_find(c, "parameters"), 0, values, ELEMENTS);
    check_no_error(net.context, c->label);
    mpt_destroy(net.context);
}

/* ---- a classifier of MNIST's shape ---- */

#define LAYERS 3
#define PIXELS 784
#define HEAD 8 /* elements of each parameter that the goldens hold */
#define MAX_STEPS 200

static const int64_t widths[LAYERS + 1] = {PIXELS, 32, 16, 10};

typedef struct training {
    int steps;
    double loss[MAX_STEPS], norm[2 * LAYERS], head[2 * LAYERS * HEAD];
} training;

/* Half of the class's prototype plus half noise of the sample's own. The caller frees it. */
static float *make_samples(int count) {
    static float prototypes[10][PIXELS];
    float *x = (float *)malloc(sizeof(float) * (size_t)count * PIXELS);
    for (uint32_t kind = 0; kind < 10; kind++)
        for (uint32_t i = 0; i < PIXELS; i++)
            prototypes[kind][i] = golden_uniform(PROTOTYPE_STREAM + kind, i);
    for (int s = 0; s < count; s++)
        for (uint32_t i = 0; i < PIXELS; i++)
            x[s * PIXELS + (int)i] = 0.5f * prototypes[s % 10][i] +
                                     0.5f * golden_uniform(SAMPLE_STREAM + (uint32_t)s, i);
    return x;
}

static void set_classifier(mpt_module module, float *scratch) {
    static const char *const names[] = {"0.weight", "0.bias",   "2.weight",
                                        "2.bias",   "4.weight", "4.bias"};
    for (int k = 0; k < 2 * LAYERS; k++) {
        mpt_tensor p = mpt_parameter(module, names[k]);
        float bound = (float)(1.0 / sqrt((double)widths[k / 2]));
        int64_t count = mpt_numel(p);
        for (int64_t i = 0; i < count; i++)
            scratch[i] = golden_uniform(W_STREAM + (uint32_t)k, (uint32_t)i) * bound;
        mpt_write(p, scratch, (size_t)(count > 0 ? count : 0) * sizeof *scratch);
    }
}

static void note_parameters(mpt_module module, float *scratch, training *t) {
    char path[32];
    for (int k = 0; k < 2 * LAYERS; k++) {
        mpt_tensor p = mpt_parameter_at(module, k, path, sizeof path);
        int64_t count = mpt_numel(p);
        double sum = 0;
        mpt_read_f32(p, scratch, count);
        for (int64_t i = 0; i < count; i++) sum += (double)scratch[i] * scratch[i];
        t->norm[k] = sqrt(sum);
        for (int i = 0; i < HEAD; i++) t->head[k * HEAD + i] = scratch[i];
    }
}

static mpt_module make_classifier(mpt_context *context) {
    mpt_module a = mpt_nn_linear(context, widths[0], widths[1]),
               b = mpt_nn_linear(context, widths[1], widths[2]),
               c = mpt_nn_linear(context, widths[2], widths[3]);
    return mpt_sequential(context, a, mpt_nn_relu(context), b, mpt_nn_relu(context), c,
                          mpt_nn_log_softmax(context, -1), MPT_END);
}

static void train_classifier(const golden_case *c, const float *samples, mpt_dtype precision,
                             training *t) {
    static float scratch[PIXELS * 32]; /* the largest parameter */
    int batch = (int)c->ints[1], count = (int)c->ints[2];
    int64_t y[64];
    mpt_context *context = mpt_create(NULL);
    mpt_module module = make_classifier(context);
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adamw_config adamw = mpt_adamw_config_default();
    set_classifier(module, scratch);
    sgd.lr = c->reals[0];
    sgd.momentum = c->reals[1];
    adamw.lr = c->reals[2];
    adamw.weight_decay = c->reals[3];
    mpt_optimizer optimizer = c->ints[0] == 0 ? mpt_sgd(module, &sgd) : mpt_adamw(module, &adamw);
    mpt_scaler scaler = mpt_grad_scaler(context, NULL);
    t->steps = (int)c->ints[3];
    for (int step = 0; step < t->steps && step < MAX_STEPS; step++) {
        int first = step * batch % count;
        for (int s = 0; s < batch; s++) y[s] = (first + s) % 10;
        mpt_step_begin(context);
        mpt_tensor input =
            mpt_from(context, MPT_F32, MPT_SHAPE(batch, PIXELS), samples + (size_t)first * PIXELS);
        mpt_tensor target = mpt_from(context, MPT_I64, MPT_SHAPE(batch), y);
        if (precision != MPT_F32) mpt_autocast_begin(context, precision);
        mpt_tensor loss = mpt_nll_loss(mpt_forward(module, input), target, NULL);
        if (precision != MPT_F32) mpt_autocast_end(context);
        mpt_zero_grad(optimizer);
        if (precision == MPT_F16) {
            mpt_backward(mpt_scale_loss(scaler, loss));
            mpt_scaler_step(scaler, optimizer);
            mpt_scaler_update(scaler);
        } else {
            mpt_backward(loss);
            mpt_step(optimizer);
        }
        t->loss[step] = mpt_item(loss);
        mpt_step_end(context);
    }
    CHECK_EQ_INT(mpt_applied_steps(optimizer), t->steps);
    note_parameters(module, scratch, t);
    check_no_error(context, c->label);
    mpt_destroy(context);
}

/* Root of the mean square of value - reference; `value` NULL means the golden of that name. */
static double distance(const golden_case *c, const char *run, const char *what,
                       const double *value) {
    char name[64];
    const golden_tensor *reference, *golden = NULL;
    double sum = 0;
    snprintf(name, sizeof name, "f32 %s", what);
    reference = golden_find(c, name);
    if (!value) {
        snprintf(name, sizeof name, "%s %s", run, what);
        golden = golden_find(c, name);
    }
    for (int64_t i = 0; i < reference->count; i++) {
        double off = (value ? value[i] : golden_value(golden, i)) - golden_value(reference, i);
        sum += off * off;
    }
    return sqrt(sum / (double)(reference->count ? reference->count : 1));
}

/* At most `factor` times as far from PyTorch's fp32 as PyTorch's own run, or the farther of two. */
static void check_distance(const golden_case *c, const char *ours, const char *theirs,
                           const char *or_theirs, double factor, const training *t) {
    static const char *const what[] = {"loss", "norm", "head"};
    const double *values[3] = {t->loss, t->norm, t->head};
    for (int i = 0; i < 3; i++) {
        double got = distance(c, NULL, what[i], values[i]);
        double one = distance(c, theirs, what[i], NULL),
               two = distance(c, or_theirs, what[i], NULL);
        double allowed = factor * (one > two ? one : two);
        if (!(got <= allowed))
            TEST_FAIL_("%s: %s in %s is %.3g off PyTorch's fp32, allowed is %.3g", c->label,
                       what[i], ours, got, allowed);
    }
}

/* fp32: as close to PyTorch's fp32 as a few times its own distance from fp64, since another order
   of sums moves every step. Half: at most twice as far from fp32 as PyTorch's half, which was run
   under torch.autocast and under our policy: over 100 steps either happens to lie closer. */
static void run_classifier(const golden_case *c) {
    static training t;
    float *samples = make_samples((int)c->ints[2]);
    train_classifier(c, samples, MPT_F32, &t);
    check_distance(c, "fp32", "f64", "f64", 4, &t);
    train_classifier(c, samples, MPT_F16, &t);
    check_distance(c, "fp16", "f16 torch", "f16 policy", 2, &t);
    train_classifier(c, samples, MPT_BF16, &t);
    check_distance(c, "bf16", "bf16 torch", "bf16 policy", 2, &t);
    free(samples);
}

/* ---- the tests ---- */

/* Runs all cases whose op is one of up to three. */
static void run_cases(void (*run)(const golden_case *), const char *a, const char *b,
                      const char *c3, int at_least) {
    golden_file file;
    static golden_case c;
    int count = 0;
    REQUIRE(golden_open(&file, "train.bin"));
    while (golden_next(&file, &c)) {
        if (strcmp(c.op, a) != 0 && strcmp(c.op, b) != 0 && strcmp(c.op, c3) != 0) continue;
        run(&c);
        count++;
    }
    CHECK(count >= at_least);
    golden_close(&file);
}

static void run_hash(const golden_case *c) {
    float got[16];
    for (uint32_t i = 0; i < 16; i++) got[i] = golden_uniform(123, i);
    golden_compare(c->label, golden_find(c, "uniform"), 0, got, 16);
}

TEST(generator) { run_cases(run_hash, "hash", "", "", 1); }

TEST(optimizers) { run_cases(run_optimizer, "sgd", "adam", "adamw", 23); }

TEST(adaptive_optimizers) {
    run_cases(run_optimizer, "rmsprop", "adagrad", "adadelta", 16);
    run_cases(run_optimizer, "lion", "", "", 4);
}

#ifdef MPTRAIN_NO_WATCH
TEST(muon) { SKIP("mpt_muon: built with MPTRAIN_NO_WATCH"); }
#else
TEST(muon) { run_cases(run_muon, "muon", "", "", 7); }
#endif

TEST(fp64_traces) { run_cases(run_small, "small", "", "", 12); }

TEST(clipping) { run_cases(run_clip, "clip_grad_norm", "clip_grad_value", "", 20); }

TEST(averages) { run_cases(run_average, "average", "", "", 4); }

TEST(schedules) { run_cases(run_schedule, "schedule", "", "", 6); }

TEST(rates) { run_cases(run_rates, "rates", "", "", 21); }

TEST(scaler) { run_cases(run_scaler, "scaler", "", "", 11); }

TEST(scaler_with_two_optimizers) { run_cases(run_two_optimizers, "scaler_two", "", "", 1); }

TEST(classifier) { run_cases(run_classifier, "classifier", "", "", 2); }

TEST(mnist_reference) {
    static const char *const inputs[] = {"half", "none", "statistics"};
    for (int i = 0; i < 3; i++) {
        CHECK(golden_mnist_mean("adamw", inputs[i]) > 95);
        CHECK(golden_mnist_mean("sgd", inputs[i]) > 90);
    }
}

TEST_TABLE = {T(generator),
              T(optimizers),
              T(adaptive_optimizers),
              T(muon),
              T(fp64_traces),
              T(clipping),
              T(averages),
              T(schedules),
              T(rates),
              T(scaler),
              T(scaler_with_two_optimizers),
              T(classifier),
              T(mnist_reference)};
TEST_MAIN
