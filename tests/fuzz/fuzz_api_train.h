/* fuzz_api_train.h: the second half of fuzz_api.c: calls on modules, optimizers, scalers,
   schedules, data, recordings and ops of the user's. */

static mpt_status forward_calls(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out);
static void calls_within(void);

/* ==== Modules ==== */

static void call_layer(void) {
    static const mpt_module_class of_the_user = {"fuzzed", forward_calls, NULL, NULL, NULL, 1, 1};
    mpt_context *c = f.context;
    switch (pick(10)) {
    case 0: put_module(mpt_nn_linear(c, count(), count())); break;
    case 1: put_module(mpt_nn_linear_no_bias(c, 3, 1 + pick(5))); break;
    case 2: put_module(mpt_nn_relu(c)); break;
    case 3: put_module(mpt_nn_dropout(c, number())); break;
    case 4: put_module(mpt_nn_log_softmax(c, dim())); break;
    case 5: put_module(mpt_nn_flatten(c)); break;
    case 6: put_module(mpt_module_create(c, &of_the_user, NULL)); break;
    case 7: put_module(mpt_nn_embedding(c, count(), 1 + pick(4), count())); break;
    case 8: put_module(mpt_nn_multi_head_attention(c, count(), (int)pick(5), NULL)); break;
    default: put_module(mpt_nn_linear(c, 3, 3)); break;
    }
}

static void call_tree(void) {
    mpt_module children[3] = {module(), module(), module()};
    mpt_init init = mpt_init_make((mpt_init_kind)pick(11), number(), number());
    switch (pick(6)) {
    case 0: put_module(mpt_nn_list_array(f.context, children, (int)pick(4))); break;
    case 1: mpt_add_child(children[0], flip() ? "child" : "0", children[1]); break;
    case 2: mpt_add_parameter(children[0], "p", shape(), init); break;
    case 3: mpt_set_init(children[0], flip() ? "0.weight" : NULL, init); break;
    default: put_module(mpt_sequential_array(f.context, children, (int)pick(4))); break;
    }
}

static void call_module(void) {
    mpt_module m = module();
    switch (pick(16)) {
    case 0: put(mpt_parameter(m, flip() ? "weight" : "0.weight")); break;
    case 1: put_module(mpt_child(m, "0")); break;
    case 2: put(mpt_parameter_at(m, (int)pick(3), text, pick(20))); break;
    case 3: mpt_train(m); break;
    case 4: mpt_eval(m); break;
    case 5: mpt_set_label(m, flip() ? "a" : "b"); break;
    case 6: mpt_half(m, dtype()); break;
    case 7: mpt_set_dtype_policy(m, dtype()); break;
    case 8:
        PROMISE(mpt_summary(m, text, pick(sizeof text)) < 1000000);
        PROMISE(mpt_histograms(m, pick(2), text, pick(sizeof text)) < 1000000);
        break;
    case 9: mpt_copy_module(m, module()); break;
    case 10: mpt_module_destroy(m); break;
    case 11: mpt_module_hash(m); break;
    case 12: mpt_load_memory(m, source, pick(64), NULL, NULL); break;
    default: put(mpt_forward(m, tensor())); break;
    }
}

/* ==== Optimizers, scalers, schedules ==== */

/* An update that may make the wrong calls, too. */
static mpt_status update_calls(mpt_context *c, const mpt_user_update *p, void *user) {
    (void)user;
    calls_within();
    if (flip()) mpt_add_(p->value, mpt_mul_scalar(p->gradient, -p->lr));
    if (flip()) mpt_copy_(p->state[0], p->gradient);
    return pick(16) == 15 ? MPT_ERROR_STATE : mpt_error_code(c);
}

static mpt_optimizer make_user_optimizer(mpt_module m) {
    mpt_user_optimizer_config config = mpt_user_optimizer_config_default();
    config.update = update_calls;
    config.states = (int)pick(5), config.weight_decay = 0.01;
    return mpt_user_optimizer(m, &config);
}

static mpt_tensor closure_calls(mpt_context *c, void *user) {
    calls_within();
    mpt_tensor x = pick(8) ? mpt_ones(c, MPT_F32, MPT_SHAPE(4, 3)) : tensor();
    mpt_tensor loss = mpt_sum(mpt_forward(*(mpt_module *)user, x), MPT_ALL_DIMS, false);
    if (pick(8)) mpt_backward(loss);
    return loss;
}

static mpt_optimizer make_lbfgs(mpt_module m) {
    mpt_lbfgs_config config = mpt_lbfgs_config_default();
    config.history_size = (int)pick(4), config.max_iter = 1 + (int)pick(3);
    return mpt_lbfgs(m, &config);
}

static mpt_optimizer make_optimizer(void) {
    mpt_sgd_config sgd = mpt_sgd_config_default();
    mpt_adam_config adam = mpt_adam_config_default();
    mpt_module m = module();
    unsigned b = next_byte(&f.in);
    sgd.allow_shared = adam.allow_shared = (b & 4) != 0;
    if (b & 8) sgd.momentum = number(), sgd.nesterov = flip(), adam.beta2 = number();
    if (b & 16) sgd.lr = adam.lr = number(), sgd.weight_decay = adam.weight_decay = number();
    if (b >= 224) return make_lbfgs(m);
    if (b >= 192) return make_user_optimizer(m);
    if ((b & 3) == 0) return mpt_sgd(m, b & 32 ? NULL : &sgd);
    return (b & 3) == 1 ? mpt_adam(m, &adam) : mpt_adamw(m, &adam);
}

static void call_optimizer(void) {
    mpt_optimizer o = optimizer();
    mpt_module m = module();
    mpt_group_config group = {number(), 0.01};
    switch (pick(14)) {
    case 0: case 1: f.optimizers[pick(OBJECTS)] = make_optimizer(); break;
    case 2: mpt_optimizer_add(o, module(), flip() ? "weight" : NULL, &group); break;
    case 3: mpt_set_lr(o, (int)pick(4) - 1, group.lr); break;
    case 4: mpt_get_lr(o, (int)pick(4)); break;
    case 5: mpt_zero_grad(o); break;
    case 6: put(mpt_clip_grad_norm(o, group.lr)); break;
    case 7: mpt_clip_grad_value(o, group.lr); break;
    case 8: mpt_applied_steps(o); break;
    case 9: mpt_optimizer_hash(o); break;
    case 10: if (flip()) mpt_optimizer_destroy(o); break;
    case 11:
        if (f.depth >= MAX_DEPTH) break;
        if (flip()) o = f.optimizers[pick(OBJECTS)] = make_lbfgs(m);
        f.depth++;
        mpt_lbfgs_step(o, closure_calls, &m);
        f.depth--;
        break;
    default: mpt_step(o); break;
    }
}

static void call_scaler(void) {
    mpt_scaler s = scaler();
    mpt_scaler_config config = mpt_scaler_config_default();
    mpt_scaler_state state;
    switch (pick(14)) {
    case 0:
        if (flip()) config.init_scale = number(), config.growth_interval = count();
        if (flip()) config.enabled = flip(), config.fixed = flip(), config.patience = count();
        f.scalers[pick(OBJECTS)] = mpt_grad_scaler(f.context, flip() ? &config : NULL);
        break;
    case 1: case 2: put(mpt_scale_loss(s, tensor())); break;
    case 3: case 4: mpt_unscale(s, optimizer()); break;
    case 5: case 6: mpt_scaler_step(s, optimizer()); break;
    case 7: mpt_scaler_skip(s, optimizer()); break;
    case 8: case 9: mpt_scaler_update(s); break;
    case 10: mpt_set_scale(s, number()); break;
    case 11:
        state = mpt_scaler_get_state(s);
        if (flip()) state.growth_tracker = count();
        mpt_scaler_set_state(s, &state);
        break;
    case 12: mpt_scaler_statistics(s), mpt_step_outcome(s), mpt_get_scale(s); break;
    default: if (flip()) mpt_scaler_destroy(s); break;
    }
}

static void call_schedule(void) {
    mpt_schedule *s = &f.schedules[pick(OBJECTS)];
    mpt_schedule_unit unit = (mpt_schedule_unit)pick(3);
    switch (pick(4)) {
    case 0: *s = mpt_cosine_annealing(optimizer(), count(), number(), unit); break;
    case 1: *s = mpt_warmup(optimizer(), number(), count(), count(), number(), unit); break;
    case 2: mpt_schedule_step(*s); break;
    default: if (flip()) mpt_schedule_destroy(*s); break;
    }
}

/* What a training loop does, on whatever the pool has; bytes leave parts of it out. */
static void call_train(void) {
    mpt_context *c = f.context;
    unsigned b = next_byte(&f.in);
    mpt_module net = module();
    mpt_optimizer *o = &f.optimizers[pick(OBJECTS)];
    mpt_scaler s = scaler();
    if (b & 1) {
        net = mpt_sequential(c, mpt_nn_linear(c, 3, 5), mpt_nn_dropout(c, 0.25),
                             mpt_nn_linear(c, 5, 5), MPT_END);
        put_module(net);
        if (b & 2) mpt_half(net, b & 4 ? MPT_F16 : MPT_BF16);
        *o = b & 128 ? make_user_optimizer(net) : mpt_adamw(net, NULL);
        s = f.scalers[pick(OBJECTS)] = mpt_grad_scaler(c, NULL);
    }
    mpt_tensor x = b & 8 ? tensor() : mpt_from(c, MPT_F32, MPT_SHAPE(4, 3), "0123456789abcdef"
                                               "0123456789abcdef0123456789abcdef");
    mpt_tensor y = b & 8 ? tensor() : mpt_from(c, MPT_I64, MPT_SHAPE(4), source + pick(3));
    mpt_step_begin(c);
    if (!(b & 2)) mpt_autocast_begin(c, b & 4 ? MPT_F16 : MPT_BF16);
    mpt_tensor loss = mpt_cross_entropy(mpt_forward(net, x), y, NULL);
    if (!(b & 2)) mpt_autocast_end(c);
    mpt_zero_grad(*o);
    mpt_backward(b & 16 ? mpt_scale_loss(s, loss) : loss);
    if (b & 16) mpt_unscale(s, *o);
    mpt_clip_grad_norm(*o, 1.0);
    if (b & 16) mpt_scaler_step(s, *o);
    else mpt_step(*o);
    if (b & 32) put(loss), mpt_metric_push(c, "loss", loss);
    if (b & 16) mpt_scaler_update(s);
    if (!(b & 64)) mpt_step_end(c);
}

/* ==== Whole trainings ==== */

/* A block may be of another moment, and have a byte changed. */
static void call_whole(void) {
    static uint8_t block[1 << 16];
    mpt_context *c = f.context;
    const int64_t n = mpt_snapshot_bytes(c);
    const size_t room = sizeof block;
    switch (pick(6)) {
    case 0: case 1:
        if (n > (int64_t)room) break;
        if (mpt_snapshot(c, block, room) == MPT_OK) f.block = (size_t)n;
        break;
    case 2: case 3: mpt_restore(c, block, f.block - (next_byte(&f.in) == 255)); break;
    case 4: block[(pick(256) << 8 | pick(256)) % room] ^= (uint8_t)next_byte(&f.in); break;
    default:
        mpt_snapshot_difference(c, block, f.block, text, pick(sizeof text));
        mpt_state_hash(c);
        break;
    }
}

static void call_folder(void) {
    mpt_context *c = f.context;
    mpt_checkpoint_config config = mpt_checkpoint_config_default();
    switch (pick(11)) {
    case 0:
        config.every = count(), config.keep = (int)count();
        config.resume = flip(), config.background = flip();
        mpt_checkpoint_open(c, flip() ? "r" : "r/", &config);
        break;
    case 1: case 2: mpt_checkpoint_step(c); break;
    case 3: mpt_checkpoint_best(c, number()); break;
    case 4: mpt_checkpoint_close(c); break;
    case 5: mpt_checkpoint_save(c, "r/step-7.safetensors"); break;
    case 6: mpt_checkpoint_load(c, "r/step-7.safetensors"); break;
    case 7: mpt_checkpoint_statistics(c), mpt_request_stop(c, flip()); break;
    case 8: case 9: run_thread(); break;
    default: mpt_checkpoint_difference(c, "r/step-7.safetensors", text, pick(sizeof text)); break;
    }
}

/* ==== Data ==== */

static void make_dataset(mpt_dataset *d) {
    mpt_memory_dataset_config config = mpt_memory_dataset_config_default();
    config.count = 1 + pick(9);
    config.dtype = dtype();
    config.shape = small_shape();
    config.inputs = config.targets = source;
    config.copy = flip();
    int64_t numel = config.count;
    for (int i = 0; i < config.shape.rank && i < MPT_MAX_RANK; i++)
        if (config.shape.dim[i] > 0) numel *= config.shape.dim[i];
    if (numel <= ELEMENTS) *d = mpt_memory_dataset(f.context, &config);
}

static void make_batch_loader(mpt_loader *l, mpt_dataset d) {
    mpt_loader_config config = mpt_loader_config_default();
    config.batch = count();
    config.shuffle = flip(), config.drop_last = flip();
    config.dtype = dtype();
    *l = mpt_loader_create(f.context, d, &config);
}

static void call_data(void) {
    mpt_dataset *d = &f.datasets[pick(OBJECTS)], parts[3];
    mpt_loader *l = &f.loaders[pick(OBJECTS)];
    const double thirds[3] = {0.25, 0.25, 0.5};
    mpt_batch batch;
    switch (pick(12)) {
    case 0: make_dataset(d); break;
    case 1: make_batch_loader(l, *d); break;
    case 2: mpt_normalize(*d, number(), number()); break;
    case 3: *d = mpt_subset(*d, count(), count()); break;
    case 4: if (mpt_random_split(*d, thirds, 3, 7, parts) == MPT_OK) *d = parts[pick(3)]; break;
    case 5: mpt_dataset_statistics(*d, NULL, NULL); break;
    case 6: mpt_dataset_destroy(*d); break;
    case 7: mpt_loader_reset(*l); break;
    case 8: mpt_loader_statistics(*l), mpt_loader_batches(*l); break;
    case 9: mpt_loader_destroy(*l); break;
    default: if (mpt_loader_next(*l, &batch)) put(batch.x), put(batch.y); break;
    }
}

/* ==== Inspection ==== */

static void hear_line(void *user, const char *line) {
    (void)user;
    PROMISE(strlen(line) < 100000);
}

static void call_inspect(void) {
    mpt_context *c = f.context;
    mpt_recording *r = &f.recordings[pick(OBJECTS)];
    switch (pick(10)) {
    case 0: case 1: mpt_record_begin(c); break;
    case 2: *r = mpt_record_end(c); break;
    case 3: case 4: mpt_replay(*r); break;
    case 5: mpt_recording_launches(*r); break;
    case 6: mpt_recording_destroy(*r); break;
    case 7: mpt_print_launches(c, flip() ? hear_line : NULL, NULL); break;
    case 8: PROMISE(strlen(mpt_nan_report(c)) < 100000); break;
    default: mpt_metric_mean(c, "loss", flip()), mpt_metric_reset(c, "loss"); break;
    }
}

/* ==== Callbacks, which make calls of their own, the wrong ones too ==== */

static void calls_within(void) {
    static void (*const within[])(void) = {call_unary,    call_binary, call_view,   call_make,
                                           call_backward, call_reduce, call_region, call_lifetime,
                                           call_train,    call_module};
    unsigned n = pick(3);
    if (f.depth >= MAX_DEPTH) return;
    f.depth++;
    while (n-- > 0) within[pick(sizeof within / sizeof *within)]();
    f.depth--;
}

static mpt_status forward_calls(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)self, (void)user;
    PROMISE(n_in == 1 && n_out == 1);
    calls_within();
    out[0] = flip() ? mpt_mul(in[0], in[0]) : tensor();
    return pick(16) == 15 ? MPT_ERROR_STATE : MPT_OK;
}

static mpt_status op_forward(mpt_op_call *call, void *user) {
    mpt_op_call *outer = f.call;
    (void)user;
    f.call = call;
    mpt_tensor x = mpt_op_input(call, 0);
    calls_within();
    mpt_op_save(call, (int)pick(9), flip() ? x : tensor());
    mpt_op_set_output(call, 0, flip() ? mpt_mul(x, x) : tensor());
    f.call = outer;
    return MPT_OK;
}

static mpt_status op_backward(mpt_op_call *call, void *user) {
    mpt_op_call *outer = f.call;
    (void)user;
    f.call = call;
    mpt_tensor saved = mpt_op_saved(call, (int)pick(9)), g = mpt_op_output_grad(call, 0);
    calls_within();
    mpt_op_set_input_grad(call, 0, flip() ? mpt_mul(saved, g) : tensor());
    f.call = outer;
    return MPT_OK;
}

static void call_user_op(void) {
    mpt_op_class cls = {"fuzzed", MPT_AUTOCAST_INPUT, op_forward, op_backward, 1, 1};
    mpt_op *op = &f.ops[pick(OBJECTS)];
    mpt_tensor x = tensor(), y;
    if (op->slot == 0) {
        cls.autocast = (mpt_autocast_class)pick(3);
        *op = mpt_op_register(f.context, &cls, NULL);
    }
    if (f.depth >= MAX_DEPTH) return;
    f.depth++;
    if (mpt_op_apply(*op, &x, 1, &y, 1) == MPT_OK) put(y);
    f.depth--;
}
