/* misuse_nn.h: the cases of test_misuse.c for modules, user-defined ops, optimizers,
   schedules and scalers. */

/* The bad handles of an object argument; the statement uses h_. */
#define OBJECT(function, type, null_handle, stale_handle, statement) \
    do { \
        type h_ = null_handle; \
        CASE(function, BAD_HANDLE, "null handle", statement); \
        h_.context = f.context; \
        CASE(function, BAD_HANDLE, "is a null handle", statement); \
        h_ = stale_handle; \
        CASE(function, BAD_HANDLE, "was destroyed or never made", statement); \
    } while (0)
/* And one of another context, where the call has other handles. */
#define OBJECT_OR_FOREIGN(function, type, name, foreign, statement) \
    do { \
        OBJECT(function, type, f.no_##name, f.stale_##name, statement); \
        type h_; \
        FOREIGN(function, #statement, h_ = foreign; statement); \
    } while (0)
#define MODULE(function, statement) \
    OBJECT_OR_FOREIGN(function, mpt_module, module, f.foreign_module, statement)
#define OPTIMIZER(function, statement) \
    OBJECT_OR_FOREIGN(function, mpt_optimizer, optimizer, f.foreign_optimizer, statement)
#define SCALER(function, statement) \
    OBJECT_OR_FOREIGN(function, mpt_scaler, scaler, f.twin.scaler, statement)
#define DATASET(function, statement) \
    OBJECT(function, mpt_dataset, f.no_data, f.stale_data, statement)
#define LOADER(function, statement) \
    OBJECT(function, mpt_loader, f.no_loader, f.stale_loader, statement)

/* ==== Modules ==== */

#define LAYER(function, made) NOWHERE(function, (made).slot == 0)

#ifndef MPTRAIN_NO_FRUGAL
static mpt_status first_of(mpt_context *context, void *user, const mpt_tensor *in, int n_in,
                           mpt_tensor *out, int n_out) {
    (void)context, (void)n_in, (void)n_out;
    out[0] = mpt_add_scalar(in[0], 1.0);
    return user ? MPT_ERROR_NUMERIC : MPT_OK;
}
#endif

static mpt_status pass_on(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                          mpt_tensor *out, int n_out) {
    (void)self, (void)user;
    for (int i = 0; i < n_out && i < n_in; i++) out[i] = mpt_add_scalar(in[i], 1.0);
    return MPT_OK;
}

static mpt_status refuse(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)in, (void)n_in, (void)out, (void)n_out;
    return MPT_ERROR_NUMERIC;
}

static mpt_status set_nothing(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out, (void)out;
    mpt_neg(in[0]);
    return MPT_OK;
}

static mpt_status destroys_itself(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                  mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    out[0] = in[0];
    return mpt_module_destroy(self);
}

#ifndef MPTRAIN_NO_WATCH
static mpt_status hooked_back(mpt_module self, void *user, int output, mpt_tensor *gradient) {
    (void)self, (void)user, (void)output, (void)gradient;
    return MPT_OK;
}
#endif

static mpt_module_class class_of(mpt_status (*forward)(mpt_module, void *, const mpt_tensor *, int,
                                                       mpt_tensor *, int)) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "mine";
    cls.forward = forward;
    cls.n_inputs = cls.n_outputs = 1;
    return cls;
}

TEST(modules) {
    mpt_context *c = f.context;
    NOWHERE(mpt_nn_linear, mpt_nn_linear(NULL, 2, 3).slot == 0);
    CASE(mpt_nn_linear, ARGUMENT, "0 -> 3 features: expected 1 or more", mpt_nn_linear(c, 0, 3));
    CASE(mpt_nn_linear, ARGUMENT, "3 -> -3 features", mpt_nn_linear(c, 3, -3));
    CASE(mpt_nn_linear, SHAPE, "elements", mpt_nn_linear(c, INT64_MAX, INT64_MAX));
    NOWHERE(mpt_nn_linear_no_bias, mpt_nn_linear_no_bias(NULL, 2, 3).slot == 0);
    CASE(mpt_nn_linear_no_bias, ARGUMENT, "expected 1 or more", mpt_nn_linear_no_bias(c, -1, 3));
    LAYER(mpt_nn_relu, mpt_nn_relu(NULL));
    LAYER(mpt_nn_gelu, mpt_nn_gelu(NULL));
    LAYER(mpt_nn_tanh, mpt_nn_tanh(NULL));
    LAYER(mpt_nn_sigmoid, mpt_nn_sigmoid(NULL));
    LAYER(mpt_nn_flatten, mpt_nn_flatten(NULL));
    LAYER(mpt_nn_gelu_tanh, mpt_nn_gelu_tanh(NULL));
    LAYER(mpt_nn_silu, mpt_nn_silu(NULL));
    LAYER(mpt_nn_leaky_relu, mpt_nn_leaky_relu(NULL, 0.1));
    LAYER(mpt_nn_elu, mpt_nn_elu(NULL, 1));
    LAYER(mpt_nn_softplus, mpt_nn_softplus(NULL, 1, 20));
    LAYER(mpt_nn_hardtanh, mpt_nn_hardtanh(NULL, -1, 1));
    CASE(mpt_nn_softplus, ARGUMENT, "expected beta > 0", mpt_nn_softplus(c, -1, 20));
    CASE(mpt_nn_hardtanh, ARGUMENT, "min 1, max -1", mpt_nn_hardtanh(c, 1, -1));
    LAYER(mpt_nn_upsample, mpt_nn_upsample(NULL, MPT_SCALAR, 2, MPT_NEAREST, false));
    CASE(mpt_nn_upsample, ARGUMENT, "and a scale above 0",
         mpt_nn_upsample(c, MPT_SCALAR, -1, MPT_NEAREST, false));
    CASE(mpt_nn_upsample, ARGUMENT, "no corners to align",
         mpt_nn_upsample(c, MPT_SHAPE(2, 2), 0, MPT_NEAREST, true));
    LAYER(mpt_nn_dropout, mpt_nn_dropout(NULL, 0.5));
    LAYER(mpt_nn_softmax, mpt_nn_softmax(NULL, 1));
    LAYER(mpt_nn_log_softmax, mpt_nn_log_softmax(NULL, 1));
    CASE(mpt_nn_dropout, ARGUMENT, "p = 2 is not in [0, 1]", mpt_nn_dropout(c, 2));
    CASE(mpt_softmax, ARGUMENT, "dimension 7", mpt_forward(mpt_nn_softmax(c, 7), f.x));
    CASE(mpt_log_softmax, ARGUMENT, "dimension 7", mpt_forward(mpt_nn_log_softmax(c, 7), f.x));
    CASE(mpt_flatten, ARGUMENT, "dimension 1 is out of range for a tensor of rank 1",
         mpt_forward(mpt_nn_flatten(c), f.labels));
    LAYER(mpt_sequential, mpt_sequential(NULL, MPT_END));
    LAYER(mpt_nn_list, mpt_nn_list(NULL, MPT_END));
    LAYER(mpt_sequential_array, mpt_sequential_array(NULL, NULL, 0));
    LAYER(mpt_nn_list_array, mpt_nn_list_array(NULL, NULL, 0));
    CASE(mpt_sequential, BAD_HANDLE, "null handle", mpt_sequential(c, f.no_module, MPT_END));
    CASE(mpt_sequential, BAD_HANDLE, "was destroyed", mpt_sequential(c, f.stale_module, MPT_END));
    CASE(mpt_sequential, BAD_HANDLE, "another context",
         mpt_sequential(c, f.foreign_module, MPT_END));
    CASE(mpt_nn_list, BAD_HANDLE, "null handle", mpt_nn_list(c, f.no_module, MPT_END));
    CASE(mpt_nn_list, mpt_error_code(c), "no forward of its own",
         mpt_forward(mpt_nn_list(c, mpt_nn_relu(c), MPT_END), f.x);
         case_function = "mpt_forward");
    CASE(mpt_sequential_array, ARGUMENT, "an array of modules", mpt_sequential_array(c, NULL, 2));
    CASE(mpt_sequential_array, ARGUMENT, "its length", mpt_sequential_array(c, &f.net, -1));
    CASE(mpt_nn_list_array, ARGUMENT, "an array of modules", mpt_nn_list_array(c, NULL, 2));
    CASE(mpt_nn_list_array, BAD_HANDLE, "was destroyed", mpt_nn_list_array(c, &f.stale_module, 1));
    QUIET(mpt_init_make, mpt_init_make((mpt_init_kind)99, 0, 0).kind == (mpt_init_kind)99);
    mpt_init bad = mpt_init_make((mpt_init_kind)99, 0, 0);
    MODULE(mpt_set_init, mpt_set_init(h_, NULL, mpt_init_make(MPT_INIT_ONES, 0, 0)));
    CASE(mpt_set_init, ARGUMENT, "init kind 99 is none", mpt_set_init(f.net, NULL, bad));
    bad = mpt_init_make(MPT_INIT_CONSTANT, 1e308 * 10, 0);
    CASE(mpt_set_init, ARGUMENT, "must be finite", mpt_set_init(f.net, NULL, bad));
    bad = mpt_init_make(MPT_INIT_ONES, 0, 0);
    CASE(mpt_set_init, ARGUMENT, "has no parameter \"9.weight\"",
         mpt_set_init(f.net, "9.weight", bad));
    mpt_module_class cls = class_of(pass_on);
    NOWHERE(mpt_module_create, mpt_module_create(NULL, &cls, NULL).slot == 0);
    CASE(mpt_module_create, ARGUMENT, "a class with a name", mpt_module_create(c, NULL, NULL));
    cls.forward = NULL;
    CASE(mpt_module_create, ARGUMENT, "and a forward", mpt_module_create(c, &cls, NULL));
}

TEST(module_trees) {
    mpt_context *c = f.context;
    mpt_module_class cls = class_of(pass_on), no = class_of(refuse),
                     gone = class_of(destroys_itself);
    mpt_module_class sets_nothing = class_of(set_nothing);
    mpt_module list = mpt_nn_list(c, mpt_nn_relu(c), MPT_END), shared = mpt_nn_linear(c, 8, 8);
    mpt_init ones = mpt_init_make(MPT_INIT_ONES, 0, 0);
    char path[8];
    MODULE(mpt_add_child, mpt_add_child(h_, "a", f.net));
    CASE(mpt_add_child, BAD_HANDLE, "null handle", mpt_add_child(list, "a", f.no_module));
    CASE(mpt_add_child, BAD_HANDLE, "another context", mpt_add_child(list, "a", f.foreign_module));
    CASE(mpt_add_child, ARGUMENT, "name of 1 to 199", mpt_add_child(list, "", shared));
    CASE(mpt_add_child, ARGUMENT, "name of 1 to 199", mpt_add_child(list, NULL, shared));
    CASE(mpt_add_child, ARGUMENT, "without a dot", mpt_add_child(list, "a.b", shared));
    CASE(mpt_add_child, ARGUMENT, "already has a child 0", mpt_add_child(list, "0", shared));
    CASE(mpt_add_child, ARGUMENT, "contains the module itself", mpt_add_child(list, "me", list));
    CASE(mpt_add_child, STATE, "takes no more children", mpt_add_child(f.t.net, "more", shared));
    CASE(mpt_add_child, STATE, "build the whole tree", mpt_add_child(list, "net", f.t.net));
    mpt_module left = mpt_nn_list(c, MPT_END), right = mpt_nn_list(c, MPT_END),
               both = mpt_nn_list(c, MPT_END);
    mpt_add_child(left, "both", both);
    mpt_add_child(right, "both", both);
    CASE(mpt_add_child, ARGUMENT, "contains the module itself", mpt_add_child(both, "up", left));
    CASE(mpt_add_child, ARGUMENT, "contains the module itself", mpt_add_child(both, "up", right));
    CASE(
        mpt_add_child, ARGUMENT, "nest deeper than",
        for (mpt_module deep = mpt_nn_relu(c); deep.slot;
             deep = mpt_sequential_array(c, &deep, 1)) {} case_function = "mpt_sequential");
    mpt_module one = mpt_sequential(c, shared, MPT_END), two = mpt_sequential(c, shared, MPT_END);
    QUIET(mpt_forward, mpt_forward(one, f.x).slot != 0);
    CASE(mpt_forward, STATE, "in use in another tree", mpt_forward(two, f.x));
    QUIET(mpt_module_destroy, mpt_module_destroy(one) == MPT_OK); /* what it shared stays */
    CASE(mpt_forward, STATE, "in use in another tree", mpt_forward(two, f.x));
    QUIET(mpt_module_destroy, mpt_module_destroy(two) == MPT_OK);
    MODULE(mpt_add_parameter, mpt_add_parameter(h_, "w", MPT_SHAPE(2), ones));
    CASE(mpt_add_parameter, SHAPE, "negative", mpt_add_parameter(list, "w", MPT_SHAPE(-2), ones));
    CASE(mpt_add_parameter, ARGUMENT, "without a dot",
         mpt_add_parameter(list, ".", MPT_SHAPE(2), ones));
    CASE(mpt_add_parameter, ARGUMENT, "init kind",
         mpt_add_parameter(list, "w", MPT_SHAPE(2), mpt_init_make((mpt_init_kind)-1, 0, 0)));
    CASE(mpt_add_parameter, ARGUMENT, "already has a parameter",
         mpt_add_parameter(list, "w", MPT_SHAPE(2), ones);
         mpt_add_parameter(list, "w", MPT_SHAPE(2), ones));
    CASE(mpt_add_parameter, STATE, "no more parameters",
         mpt_add_parameter(f.t.net, "w", MPT_SHAPE(2), ones));
    MODULE(mpt_parameter, CHECK(mpt_parameter(h_, "0.weight").slot == 0));
    CASE(mpt_parameter, ARGUMENT, "no parameter \"0.wait\"", mpt_parameter(f.net, "0.wait"));
    CASE(mpt_parameter, ARGUMENT, "no parameter", mpt_parameter(f.net, NULL));
    CASE(mpt_parameter, ARGUMENT, "no parameter", mpt_parameter(f.net, "...."));
    MODULE(mpt_child, CHECK(mpt_child(h_, "0").slot == 0));
    CASE(mpt_child, ARGUMENT, "no child \"7\"", mpt_child(f.net, "7"));
    CASE(mpt_child, ARGUMENT, "no child", mpt_child(f.net, NULL));
    MODULE(mpt_parameter_count, CHECK_EQ_INT(mpt_parameter_count(h_), -1));
    MODULE(mpt_parameter_numel, CHECK_EQ_INT(mpt_parameter_numel(h_), -1));
    MODULE(mpt_parameter_at, CHECK(mpt_parameter_at(h_, 0, NULL, 0).slot == 0));
    CASE(mpt_parameter_at, ARGUMENT, "parameter 4: the module has 4",
         mpt_parameter_at(f.net, 4, path, sizeof path));
    CASE(mpt_parameter_at, ARGUMENT, "parameter -1", mpt_parameter_at(f.net, -1, NULL, 10));
    MODULE(mpt_forward, CHECK(mpt_forward(h_, f.x).slot == 0));
    CASE(mpt_forward, BAD_HANDLE, "input", mpt_forward(f.net, f.stale));
    CASE(mpt_forward, BAD_HANDLE, "null handle", mpt_forward(f.net, f.nil));
    CASE(mpt_forward, BAD_HANDLE, "another context", mpt_forward(f.net, f.foreign));
    CASE(mpt_linear, SHAPE, "[3, 5]", mpt_forward(f.net, f.wide));
    mpt_tensor out[2], in[2];
    in[0] = in[1] = f.x;
    mpt_module mine = mpt_module_create(c, &cls, NULL), fails = mpt_module_create(c, &no, NULL);
    MODULE(mpt_forward_n, CHECK(mpt_forward_n(h_, in, 1, out, 1) != MPT_OK));
    CASE(mpt_forward_n, ARGUMENT, "at least one input", mpt_forward_n(mine, in, 0, out, 1));
    CASE(mpt_forward_n, ARGUMENT, "one output", mpt_forward_n(mine, in, 1, NULL, 1));
    CASE(mpt_forward_n, ARGUMENT, "one output", mpt_forward_n(mine, in, 1, out, -1));
    CASE(mpt_forward_n, ARGUMENT, "mine takes 1 inputs and 1 outputs, got 2 and 2",
         mpt_forward_n(mine, in, 2, out, 2));
    CASE(mpt_forward_n, ARGUMENT, "takes one input and one output",
         mpt_forward_n(f.net, in, 2, out, 2));
    CASE(mpt_forward_n, MPT_ERROR_NUMERIC, "forward of mine reported",
         mpt_forward_n(fails, in, 1, out, 1));
    mpt_module lazy = mpt_module_create(c, &sets_nothing, NULL);
    CASE(mpt_forward, STATE, "forward of mine did not set output 0", mpt_forward(lazy, f.x));
    MODULE(mpt_train, mpt_train(h_));
    MODULE(mpt_eval, mpt_eval(h_));
    MODULE(mpt_freeze, mpt_freeze(h_, true));
#ifdef MPTRAIN_NO_WATCH
    cover("mpt_hook_forward"), cover("mpt_hook_backward");
    cover("mpt_get_forward_hook"), cover("mpt_get_backward_hook");
    cover("mpt_module_count"), cover("mpt_module_at"), cover("mpt_module_kind");
#else
    MODULE(mpt_get_forward_hook, CHECK(!mpt_get_forward_hook(h_, NULL)));
    MODULE(mpt_get_backward_hook, CHECK(!mpt_get_backward_hook(h_, NULL)));
    MODULE(mpt_module_count, CHECK_EQ_INT(mpt_module_count(h_), -1));
    MODULE(mpt_module_at, CHECK(mpt_module_at(h_, 0, NULL, 0).slot == 0));
    MODULE(mpt_module_kind, CHECK_EQ_STR(mpt_module_kind(h_), ""));
    CASE(mpt_module_at, ARGUMENT, "module -1: the tree has", mpt_module_at(f.net, -1, NULL, 0));
    MODULE(mpt_hook_forward, mpt_hook_forward(h_, pass_on, NULL));
    MODULE(mpt_hook_forward, mpt_hook_forward(h_, NULL, NULL));
    MODULE(mpt_hook_backward, mpt_hook_backward(h_, hooked_back, NULL));
    CASE(mpt_hook_forward, ARGUMENT, "hook its children", mpt_hook_forward(list, pass_on, NULL));
    CASE(mpt_hook_backward, ARGUMENT, "hook its children",
         mpt_hook_backward(list, hooked_back, NULL));
    QUIET(mpt_hook_forward, mpt_hook_forward(list, NULL, NULL) == MPT_OK);
    QUIET(mpt_hook_backward, mpt_hook_backward(list, NULL, NULL) == MPT_OK);
#endif
    MODULE(mpt_is_training, CHECK(!mpt_is_training(h_)));
    MODULE(mpt_set_label, mpt_set_label(h_, "l"));
    CASE(mpt_set_label, ARGUMENT, "label is NULL", mpt_set_label(list, NULL));
    CASE(mpt_set_label, STATE, "before the tree is first used", mpt_set_label(f.t.net, "l"));
    CASE(mpt_set_label, STATE, "the root of a tree", mpt_set_label(mpt_child(list, "0"), "l"));
    MODULE(mpt_half, mpt_half(h_, MPT_F16));
    CASE(mpt_half, DTYPE, "expected MPT_F16", mpt_half(f.net, MPT_U8));
    CASE(mpt_half, STATE, "parameter 0.weight already belongs to an optimizer",
         mpt_half(f.t.net, MPT_F16));
    MODULE(mpt_fp8, mpt_fp8(h_, NULL));
    QUIET(mpt_fp8_config_default, mpt_fp8_config_default().history == 16);
#ifdef MPTRAIN_NO_FP8
    CASE(mpt_fp8, UNSUPPORTED, "built without fp8 (MPTRAIN_NO_FP8)", mpt_fp8(f.net, NULL));
    CASE(mpt_cast_fp8, UNSUPPORTED, "built without fp8 (MPTRAIN_NO_FP8)",
         mpt_cast_fp8(f.x, MPT_F8E4M3, true));
#else
    CASE(mpt_fp8, STATE, "the tree is in use", mpt_fp8(f.t.net, NULL));
    CASE(mpt_cast_fp8, DTYPE, "expected MPT_F8E4M3 or MPT_F8E5M2",
         mpt_cast_fp8(f.x, MPT_F32, true));
    CASE(mpt_cast_fp8, BAD_HANDLE, "null handle", mpt_cast_fp8(f.none, MPT_F8E4M3, true));
#endif
#ifdef MPTRAIN_NO_FRUGAL
    CASE(mpt_lora, MPT_ERROR_UNSUPPORTED, "built without adapters", mpt_lora(f.net, "*", 1, 1));
    CASE(mpt_lora_merge, MPT_ERROR_UNSUPPORTED, "built without adapters", mpt_lora_merge(f.net));
    CASE(mpt_lora_remove, MPT_ERROR_UNSUPPORTED, "built without adapters", mpt_lora_remove(f.net));
#else
    MODULE(mpt_lora, mpt_lora(h_, "*", 1, 1));
    MODULE(mpt_lora_merge, mpt_lora_merge(h_));
    MODULE(mpt_lora_remove, mpt_lora_remove(h_));
    CASE(mpt_lora, ARGUMENT, "a path with one '*' at most", mpt_lora(f.net, NULL, 1, 1));
    CASE(mpt_lora, ARGUMENT, "a path with one '*' at most", mpt_lora(f.net, "**", 1, 1));
    CASE(mpt_lora, ARGUMENT, "rank 0, alpha 1: expected 1 or more", mpt_lora(f.net, "*", 0, 1));
    CASE(mpt_lora, ARGUMENT, "alpha -1: expected", mpt_lora(f.net, "*", 1, -1));
    CASE(mpt_lora, ARGUMENT, "no linear or attention layer", mpt_lora(f.net, "nowhere.*", 1, 1));
    CASE(mpt_lora, STATE, "call mpt_lora before it is made", mpt_lora(f.t.net, "*", 1, 1));
    CASE(mpt_lora_merge, STATE, "has no adapters; mpt_lora makes", mpt_lora_merge(f.net));
    CASE(mpt_lora_remove, STATE, "has no adapters; mpt_lora makes", mpt_lora_remove(f.net));
#endif
    MODULE(mpt_set_dtype_policy, mpt_set_dtype_policy(h_, MPT_F32));
    CASE(mpt_set_dtype_policy, DTYPE, "expected MPT_F16", mpt_set_dtype_policy(f.net, MPT_F64));
#ifdef MPTRAIN_NO_FRUGAL
    cover("mpt_recompute_module"), cover("mpt_recompute_call"), cover("mpt_is_recomputing");
    cover("mpt_recompute_to_fit");
#else
    MODULE(mpt_recompute_module, mpt_recompute_module(h_, 1));
    CASE(mpt_recompute_module, ARGUMENT, "-1 parts of a sequential",
         mpt_recompute_module(f.net, -1));
    CASE(mpt_recompute_module, ARGUMENT, "2 parts of a relu: expected 0 or 1",
         mpt_recompute_module(mpt_nn_relu(c), 2));
    CASE(mpt_recompute_module, ARGUMENT, "a list has no forward", mpt_recompute_module(list, 1));
    MODULE(mpt_recompute_to_fit,
           CHECK_EQ_INT(mpt_recompute_to_fit(h_, "*", NULL, 1, NULL, 1), -1));
    CASE(mpt_recompute_to_fit, ARGUMENT, "expected a pattern with one '*' at most, a function",
         mpt_recompute_to_fit(f.net, "*", NULL, 1, NULL, 1));
    mpt_tensor many[9];
    for (int i = 0; i < 9; i++) many[i] = f.x;
    NOWHERE(mpt_recompute_call,
            mpt_recompute_call(NULL, first_of, NULL, &f.nil, 1, out, 1) != MPT_OK);
    CASE(mpt_recompute_call, ARGUMENT, "expected a function",
         mpt_recompute_call(c, NULL, NULL, in, 1, out, 1));
    CASE(mpt_recompute_call, ARGUMENT, "1 to 8 inputs",
         mpt_recompute_call(c, first_of, NULL, in, 0, out, 1));
    CASE(mpt_recompute_call, ARGUMENT, "and outputs",
         mpt_recompute_call(c, first_of, NULL, in, 1, NULL, 1));
    CASE(mpt_recompute_call, BAD_HANDLE, "another context",
         mpt_recompute_call(c, first_of, NULL, &f.foreign, 1, out, 1));
    CASE(mpt_recompute_call, ARGUMENT, "1 to 8 inputs and outputs",
         mpt_recompute_call(c, first_of, NULL, many, 9, out, 1));
    CASE(mpt_recompute_call, BAD_HANDLE, "output is a null handle",
         mpt_recompute_call(c, first_of, NULL, in, 1, out, 2));
    CASE(mpt_recompute_call, MPT_ERROR_NUMERIC, "the function reported",
         mpt_recompute_call(c, first_of, c, in, 1, out, 1));
    QUIET(mpt_is_recomputing, !mpt_is_recomputing(c) && !mpt_is_recomputing(NULL));
#endif
    MODULE(mpt_summary, CHECK_EQ_INT(mpt_summary(h_, NULL, 0), 0));
    QUIET(mpt_summary, mpt_summary(f.net, path, sizeof path) > 100 && strlen(path) == 7);
    MODULE(mpt_histograms, CHECK_EQ_INT(mpt_histograms(h_, false, NULL, 0), 0));
    QUIET(mpt_histograms, mpt_histograms(f.net, true, path, sizeof path) > 90 && strlen(path) == 7);
    MODULE(mpt_copy_module, mpt_copy_module(h_, f.net));
    CASE(mpt_copy_module, BAD_HANDLE, "the source is a null handle",
         mpt_copy_module(f.net, f.no_module));
    CASE(mpt_copy_module, BAD_HANDLE, "was destroyed", mpt_copy_module(f.net, f.stale_module));
    CASE(mpt_copy_module, SHAPE, "the source has 0 parameters",
         mpt_copy_module(f.net, mpt_nn_relu(c)));
    CASE(mpt_copy_module, SHAPE, "parameter 0.weight is [16, 8] here and [3, 5]",
         mpt_copy_module(
             f.net, mpt_sequential(c, mpt_nn_linear(c, 5, 3), mpt_nn_linear(c, 3, 3), MPT_END)));
#ifdef MPTRAIN_NO_WATCH
    cover("mpt_share_module");
#else
    MODULE(mpt_share_module, mpt_share_module(h_, mpt_nn_relu(c)));
    CASE(mpt_share_module, BAD_HANDLE, "the lender is a null handle",
         mpt_share_module(f.net, f.no_module));
    CASE(mpt_share_module, ARGUMENT, "both modules are of one context",
         mpt_share_module(f.net, mpt_nn_relu(c)));
#endif
    MODULE(mpt_module_destroy, mpt_module_destroy(h_));
    CASE(mpt_module_destroy, STATE, "destroy the root", mpt_module_destroy(mpt_child(f.net, "0")));
    CASE(mpt_module_destroy, STATE, "mpt_optimizer_destroy it first", mpt_module_destroy(f.t.net));
    CASE(mpt_module_destroy, STATE, "a forward is under way",
         mpt_forward(mpt_module_create(c, &gone, NULL), f.x));
    MODULE(mpt_module_hash, CHECK_EQ_INT(mpt_module_hash(h_), 0));
}

/* ==== User-defined ops: misuse inside the callbacks ==== */

static int op_misuse;

static mpt_status op_forward(mpt_op_call *call, void *user) {
    (void)user;
    switch (op_misuse) {
    case 1:
        mpt_op_input(call, 1);
        break;
    case 2:
        mpt_op_input(call, -1);
        break;
    case 3:
        return mpt_op_set_output(call, 5, f.x);
    case 4:
        return mpt_op_set_output(call, 0, f.stale);
    case 5:
        return mpt_op_save(call, 8, f.x);
    case 6:
        return mpt_op_save(call, 0, f.none);
    case 7:
        mpt_op_saved(call, 9);
        break;
    case 8:
        mpt_op_output_grad(call, 1);
        break;
    case 9:
        return mpt_op_set_input_grad(call, 0, f.x);
    case 10:
        return MPT_OK; /* sets no output */
    case 11:
        return MPT_ERROR_NUMERIC;
    default:
        break;
    }
    return mpt_op_set_output(call, 0, mpt_add_scalar(mpt_op_input(call, 0), 1.0));
}

static mpt_status op_backward(mpt_op_call *call, void *user) {
    (void)user;
    switch (op_misuse) {
    case 12:
        return mpt_op_set_output(call, 0, f.x);
    case 13:
        return mpt_op_save(call, 0, f.x);
    case 14:
        return mpt_op_set_input_grad(call, 3, f.x);
    case 15:
        return mpt_op_set_input_grad(call, 0, f.wide);
    case 16:
        return mpt_op_set_input_grad(call, 0, f.none);
    default:
        return mpt_op_set_input_grad(call, 0, mpt_op_output_grad(call, 0));
    }
}

static void op_run(mpt_op op, int misuse) {
    mpt_tensor x = mpt_ones(f.context, MPT_F32, MPT_SHAPE(1)), out;
    mpt_requires_grad(x, true);
    op_misuse = misuse;
    if (mpt_op_apply(op, &x, 1, &out, 1) == MPT_OK) mpt_backward(out);
    op_misuse = 0;
}

TEST(user_ops) {
    mpt_context *c = f.context;
    mpt_op_class cls;
    mpt_tensor x = f.x, out;
    memset(&cls, 0, sizeof cls);
    cls.name = "plus", cls.forward = op_forward, cls.backward = op_backward;
    cls.n_inputs = cls.n_outputs = 1;
    NOWHERE(mpt_op_register, mpt_op_register(NULL, &cls, NULL).slot == 0);
    CASE(mpt_op_register, ARGUMENT, "a class with a name", mpt_op_register(c, NULL, NULL));
    mpt_op op = mpt_op_register(c, &cls, NULL);
    cls.n_inputs = 9;
    CASE(mpt_op_register, ARGUMENT, "1..8 inputs", mpt_op_register(c, &cls, NULL));
    cls.n_inputs = 1, cls.n_outputs = 0;
    CASE(mpt_op_register, ARGUMENT, "1..4 outputs", mpt_op_register(c, &cls, NULL));
    cls.n_outputs = 1, cls.forward = NULL;
    CASE(mpt_op_register, ARGUMENT, "a forward", mpt_op_register(c, &cls, NULL));
    cls.forward = op_forward, cls.backward = NULL;
    OBJECT(mpt_op_apply, mpt_op, f.no_op, f.stale_op, mpt_op_apply(h_, &x, 1, &out, 1));
    NOWHERE(mpt_device_stream, mpt_device_stream(NULL) == NULL);
    NOWHERE(mpt_device_data, mpt_device_data(f.nil, false) == NULL);
    if (mpt_get_device(c) == MPT_DEVICE_CUDA) {
        CASE(mpt_device_data, BAD_HANDLE, "tensor made in step", mpt_device_data(f.stale, true));
        CASE(mpt_device_data, STATE, "are not in order",
             mpt_device_data(mpt_transpose(f.x, 0, 1), false));
    } else {
        CASE(mpt_device_stream, MPT_ERROR_UNSUPPORTED, "", mpt_device_stream(c));
        CASE(mpt_device_data, MPT_ERROR_UNSUPPORTED, "", mpt_device_data(f.x, true));
    }
    CASE(mpt_op_apply, ARGUMENT, "takes 1 inputs and 1 outputs, got 2 and 1",
         mpt_op_apply(op, &x, 2, &out, 1));
    CASE(mpt_op_apply, ARGUMENT, "takes 1 inputs", mpt_op_apply(op, NULL, 1, &out, 1));
    CASE(mpt_op_apply, ARGUMENT, "takes 1 inputs", mpt_op_apply(op, &x, 1, NULL, 1));
    CASE(mpt_op_apply, BAD_HANDLE, "argument 1", mpt_op_apply(op, &f.stale, 1, &out, 1));
    CASE(mpt_op_apply, STATE, "did not set output 0", op_run(op, 10);
         case_function = "mpt_op_apply");
    CASE(mpt_op_apply, MPT_ERROR_NUMERIC, "op plus reported", op_run(op, 11));
    QUIET(mpt_op_apply, (op_run(op, 0), true));
    CASE(mpt_op_input, ARGUMENT, "op plus: index 1 is not in 0..0", op_run(op, 1));
    CASE(mpt_op_input, ARGUMENT, "index -1", op_run(op, 2));
    CASE(mpt_op_set_output, ARGUMENT, "index 5", op_run(op, 3));
    CASE(mpt_op_set_output, BAD_HANDLE, "value: tensor made in step", op_run(op, 4));
    CASE(mpt_op_save, ARGUMENT, "index 8 is not in 0..7", op_run(op, 5));
    CASE(mpt_op_save, BAD_HANDLE, "value is a null handle", op_run(op, 6));
    CASE(mpt_op_saved, ARGUMENT, "index 9", op_run(op, 7));
    CASE(mpt_op_output_grad, ARGUMENT, "index 1", op_run(op, 8));
    CASE(mpt_op_set_input_grad, STATE, "backward only", op_run(op, 9));
    CASE(mpt_op_set_output, STATE, "forward only", op_run(op, 12));
    CASE(mpt_op_save, STATE, "forward only", op_run(op, 13));
    CASE(mpt_op_set_input_grad, ARGUMENT, "index 3", op_run(op, 14));
    CASE(mpt_op_set_input_grad, SHAPE, "gave input 0 a gradient [3, 5], expected [1]",
         op_run(op, 15);
         case_function = "mpt_backward");
    CASE(mpt_op_set_input_grad, BAD_HANDLE, "gradient is a null handle", op_run(op, 16));
    QUIET(mpt_op_input, mpt_op_input(NULL, 0).slot == 0);
    QUIET(mpt_op_set_output, mpt_op_set_output(NULL, 0, x) != MPT_OK);
    QUIET(mpt_op_save, mpt_op_save(NULL, 0, x) != MPT_OK);
    QUIET(mpt_op_saved, mpt_op_saved(NULL, 0).slot == 0);
    QUIET(mpt_op_output_grad, mpt_op_output_grad(NULL, 0).slot == 0);
    QUIET(mpt_op_set_input_grad, mpt_op_set_input_grad(NULL, 0, x) != MPT_OK);
}

/* ==== Optimizers and schedules ==== */

#define SETTING(function, type, field, value, text) \
    do { \
        type c_ = function##_config_default(); \
        c_.field = value; \
        CASE(function, ARGUMENT, text, CHECK(function(f.net, &c_).slot == 0)); \
    } while (0)

#define RATE(text, rate) \
    CASE(mpt_schedule_create, ARGUMENT, text, \
         CHECK(mpt_schedule_create(second, rate, MPT_PER_STEP).slot == 0))

#define PLATEAU_SETTING(field, value, text) \
    do { \
        mpt_plateau_config c_ = mpt_plateau_config_default(); \
        c_.field = value; \
        CASE(mpt_reduce_on_plateau, ARGUMENT, text, \
             CHECK(mpt_reduce_on_plateau(second, &c_).slot == 0)); \
    } while (0)

TEST(optimizers) {
    double infinite = 1e308 * 10;
    mpt_optimizer mine = f.t.optimizer;
    mpt_group_config g;
    g.lr = 0.1, g.weight_decay = 0;
    QUIET(mpt_sgd_config_default, mpt_sgd_config_default().lr == 1e-3);
    QUIET(mpt_adam_config_default, mpt_adam_config_default().lr == 1e-3);
    QUIET(mpt_adamw_config_default, mpt_adamw_config_default().lr == 1e-3);
    MODULE(mpt_sgd, CHECK(mpt_sgd(h_, NULL).slot == 0));
    MODULE(mpt_adam, CHECK(mpt_adam(h_, NULL).slot == 0));
    MODULE(mpt_adamw, CHECK(mpt_adamw(h_, NULL).slot == 0));
    CASE(mpt_sgd, STATE, "parameter 0.weight is in another optimizer", mpt_sgd(f.t.net, NULL));
    CASE(mpt_adam, STATE, "allow_shared", mpt_adam(f.t.net, NULL));
    CASE(mpt_adamw, STATE, "allow_shared", mpt_adamw(f.t.net, NULL));
    CASE(mpt_sgd, ARGUMENT, "no parameters", mpt_sgd(mpt_nn_relu(f.context), NULL));
    SETTING(mpt_sgd, mpt_sgd_config, lr, -1, "lr = -1");
    SETTING(mpt_sgd, mpt_sgd_config, lr, infinite, "finite");
    SETTING(mpt_sgd, mpt_sgd_config, momentum, -0.5, "momentum = -0.5");
    SETTING(mpt_sgd, mpt_sgd_config, momentum, 1e39, "momentum = 1e+39"); /* infinite in fp32 */
    SETTING(mpt_sgd, mpt_sgd_config, dampening, (double)NAN, "finite number >= -3.4e+38");
    SETTING(mpt_sgd, mpt_sgd_config, weight_decay, -1, "weight_decay = -1");
    SETTING(mpt_sgd, mpt_sgd_config, nesterov, true, "nesterov needs momentum > 0");
    SETTING(mpt_adam, mpt_adam_config, beta1, 1, "beta1 = 1 is not in [0, 1)");
    SETTING(mpt_adam, mpt_adam_config, beta2, -1, "beta2 = -1");
    SETTING(mpt_adam, mpt_adam_config, eps, -1, "eps = -1");
    SETTING(mpt_adamw, mpt_adamw_config, eps, (double)NAN, "eps");
    SETTING(mpt_adamw, mpt_adamw_config, weight_decay, infinite, "weight_decay");
    QUIET(mpt_rmsprop_config_default, mpt_rmsprop_config_default().alpha == 0.99);
    QUIET(mpt_adagrad_config_default, mpt_adagrad_config_default().eps == 1e-10);
    QUIET(mpt_adadelta_config_default, mpt_adadelta_config_default().rho == 0.9);
    QUIET(mpt_lion_config_default, mpt_lion_config_default().beta2 == 0.99);
    MODULE(mpt_rmsprop, CHECK(mpt_rmsprop(h_, NULL).slot == 0));
    MODULE(mpt_adagrad, CHECK(mpt_adagrad(h_, NULL).slot == 0));
    MODULE(mpt_adadelta, CHECK(mpt_adadelta(h_, NULL).slot == 0));
    MODULE(mpt_lion, CHECK(mpt_lion(h_, NULL).slot == 0));
    CASE(mpt_rmsprop, STATE, "allow_shared", mpt_rmsprop(f.t.net, NULL));
    CASE(mpt_adagrad, STATE, "allow_shared", mpt_adagrad(f.t.net, NULL));
    CASE(mpt_adadelta, STATE, "allow_shared", mpt_adadelta(f.t.net, NULL));
    CASE(mpt_lion, STATE, "allow_shared", mpt_lion(f.t.net, NULL));
    SETTING(mpt_rmsprop, mpt_rmsprop_config, alpha, 1, "alpha = 1 is not in [0, 1)");
    SETTING(mpt_rmsprop, mpt_rmsprop_config, momentum, -1, "momentum = -1");
    SETTING(mpt_adagrad, mpt_adagrad_config, lr_decay, -1, "lr_decay = -1");
    SETTING(mpt_adagrad, mpt_adagrad_config, initial_accumulator, -1, "initial_accumulator = -1");
    SETTING(mpt_adadelta, mpt_adadelta_config, rho, 1, "rho = 1 is not in [0, 1)");
    SETTING(mpt_adadelta, mpt_adadelta_config, eps, infinite, "eps");
    SETTING(mpt_lion, mpt_lion_config, beta2, 1, "beta2 = 1 is not in [0, 1)");
    OPTIMIZER(mpt_optimizer_add, CHECK_EQ_INT(mpt_optimizer_add(h_, f.net, NULL, NULL), -1));
    CASE(mpt_optimizer_add, BAD_HANDLE, "null handle",
         mpt_optimizer_add(mine, f.no_module, NULL, NULL));
    CASE(mpt_optimizer_add, BAD_HANDLE, "another context",
         mpt_optimizer_add(mine, f.foreign_module, NULL, NULL));
    CASE(mpt_optimizer_add, ARGUMENT, "no parameter \"x\"",
         mpt_optimizer_add(mine, f.net, "x", NULL));
    g.lr = -1;
    CASE(mpt_optimizer_add, ARGUMENT, "lr = -1", mpt_optimizer_add(mine, f.net, NULL, &g));
    OPTIMIZER(mpt_optimizer_groups, CHECK_EQ_INT(mpt_optimizer_groups(h_), -1));
    QUIET(mpt_optimizer_groups,
          mpt_optimizer_groups(mine) == 1); /* none of the failures left one */
    OPTIMIZER(mpt_set_lr, mpt_set_lr(h_, 0, 1));
    CASE(mpt_set_lr, ARGUMENT, "there is no group 3", mpt_set_lr(mine, 3, 1));
    CASE(mpt_set_lr, ARGUMENT, "there is no group -2", mpt_set_lr(mine, -2, 1));
    CASE(mpt_set_lr, ARGUMENT, "lr = -3", mpt_set_lr(mine, 0, -3));
    OPTIMIZER(mpt_get_lr, mpt_get_lr(h_, 0));
    CASE(mpt_get_lr, ARGUMENT, "there is no group 8", mpt_get_lr(mine, 8));
    OPTIMIZER(mpt_zero_grad, mpt_zero_grad(h_));
    OPTIMIZER(mpt_clip_grad_norm, CHECK(mpt_clip_grad_norm(h_, 1).slot == 0));
    CASE(mpt_clip_grad_norm, ARGUMENT, "max_norm = -1; expected 0 or more",
         mpt_clip_grad_norm(mine, -1));
    OPTIMIZER(mpt_clip_grad_norm_p, CHECK(mpt_clip_grad_norm_p(h_, 1, 1).slot == 0));
    CASE(mpt_clip_grad_norm_p, ARGUMENT, "max_norm = -1", mpt_clip_grad_norm_p(mine, -1, 1));
    CASE(mpt_clip_grad_norm_p, ARGUMENT, "p = 3; expected 1, 2", mpt_clip_grad_norm_p(mine, 1, 3));
    OPTIMIZER(mpt_error_if_nonfinite, mpt_error_if_nonfinite(h_, true));
    OPTIMIZER(mpt_update_in_backward, mpt_update_in_backward(h_, false));
    OPTIMIZER(mpt_grad_norm, CHECK(mpt_grad_norm(h_, 2).slot == 0));
    CASE(mpt_grad_norm, ARGUMENT, "p = 0; expected 1, 2 or infinity", mpt_grad_norm(mine, 0));
    OPTIMIZER(mpt_set_option, mpt_set_option(h_, 0, "eps", 1));
    CASE(mpt_set_option, ARGUMENT, "there is no group 7", mpt_set_option(mine, 7, "eps", 1));
    CASE(mpt_set_option, ARGUMENT, "no option \"alpha\"; there are beta1, beta2, eps, weight_decay",
         mpt_set_option(mine, 0, "alpha", 1));
    CASE(mpt_set_option, ARGUMENT, "no option \"NULL\"", mpt_set_option(mine, 0, NULL, 1));
    CASE(mpt_set_option, ARGUMENT, "beta1 = 1 is not in", mpt_set_option(mine, 0, "beta1", 1));
    OPTIMIZER(mpt_get_option, mpt_get_option(h_, 0, "eps"));
    CASE(mpt_get_option, ARGUMENT, "no option \"x\"", mpt_get_option(mine, 0, "x"));
    OPTIMIZER(mpt_clip_grad_value, mpt_clip_grad_value(h_, 1));
    CASE(mpt_clip_grad_value, ARGUMENT, "limit", mpt_clip_grad_value(mine, (double)NAN));
    OPTIMIZER(mpt_step, mpt_step(h_));
    OPTIMIZER(mpt_applied_steps, CHECK_EQ_INT(mpt_applied_steps(h_), -1));
    OPTIMIZER(mpt_optimizer_hash, CHECK_EQ_INT(mpt_optimizer_hash(h_), 0));
    OPTIMIZER(mpt_optimizer_destroy, mpt_optimizer_destroy(h_));
    OPTIMIZER(mpt_cosine_annealing, CHECK(mpt_cosine_annealing(h_, 5, 0, MPT_PER_STEP).slot == 0));
    CASE(mpt_cosine_annealing, ARGUMENT, "t_max = 0; expected 1",
         mpt_cosine_annealing(mine, 0, 0, MPT_PER_STEP));
    CASE(mpt_cosine_annealing, ARGUMENT, "eta_min",
         mpt_cosine_annealing(mine, 5, -1, MPT_PER_STEP));
    CASE(mpt_cosine_annealing, ARGUMENT, "unit 7",
         mpt_cosine_annealing(mine, 5, 0, (mpt_schedule_unit)7));
    OPTIMIZER(mpt_warmup, CHECK(mpt_warmup(h_, 0, 5, 10, 0, MPT_PER_STEP).slot == 0));
    CASE(mpt_warmup, ARGUMENT, "warmup = 0", mpt_warmup(mine, 0, 0, 10, 0, MPT_PER_STEP));
    CASE(mpt_warmup, ARGUMENT, "start = 2 is not in [0, 1]",
         mpt_warmup(mine, 2, 5, 10, 0, MPT_PER_STEP));
    CASE(mpt_warmup, ARGUMENT, "unit -1", mpt_warmup(mine, 0, 5, 10, 0, (mpt_schedule_unit)-1));
    mpt_optimizer second = mpt_sgd(f.net, NULL);
    mpt_schedule schedule = mpt_warmup(second, 0, 5, 10, 0, MPT_PER_EPOCH);
    CASE(mpt_warmup, STATE, "has a schedule already",
         mpt_warmup(second, 0, 5, 10, 0, MPT_PER_STEP));
    CASE(mpt_cosine_annealing, STATE, "has a schedule already",
         mpt_cosine_annealing(second, 5, 0, MPT_PER_STEP));
    mpt_rate steps = mpt_step_lr(5, 0.5), rates[2] = {mpt_cosine_lr(5, 0), mpt_exponential_lr(2)};
    int64_t at[MPT_MAX_MILESTONES + 1] = {0};
    mpt_schedule_state state = mpt_schedule_get_state(schedule);
    mpt_schedule_destroy(schedule);
    QUIET(mpt_constant_lr, mpt_constant_lr(1, 2).count[0] == 2);
    QUIET(mpt_linear_lr, mpt_linear_lr(0, 1, 2).count[0] == 2);
    QUIET(mpt_step_lr, steps.number[0] == 0.5);
    QUIET(mpt_exponential_lr, rates[1].number[0] == 2);
    QUIET(mpt_multi_step_lr, mpt_multi_step_lr(NULL, 3, 0.1).count[0] == 0);
    QUIET(mpt_polynomial_lr, mpt_polynomial_lr(2, 1).count[0] == 2);
    QUIET(mpt_cosine_lr, rates[0].count[0] == 5);
    QUIET(mpt_cosine_restarts_lr, mpt_cosine_restarts_lr(3, 2, 0).count[1] == 2);
    QUIET(mpt_one_cycle_config_default, mpt_one_cycle_config_default().div_factor == 25);
    QUIET(mpt_plateau_config_default, mpt_plateau_config_default().factor == 0.1);
    RATE("factor = 2 is not in [0, 1]", mpt_constant_lr(2, 2));
    RATE("total = 0", mpt_constant_lr(1, 0));
    RATE("end = -1 is not in [0, 1]", mpt_linear_lr(0, -1, 2));
    RATE("gamma = -1", mpt_exponential_lr(-1));
    RATE("size = 0", mpt_step_lr(0, 0.1));
    RATE("power", mpt_polynomial_lr(5, infinite));
    RATE("mult = 0", mpt_cosine_restarts_lr(3, 0, 0));
    RATE("count = 0", mpt_multi_step_lr(NULL, 3, 0.1));
    RATE("at most 16", mpt_multi_step_lr(at, 17, 0.1));
    RATE("milestone 0 is 0", mpt_multi_step_lr(at, 2, 0.1));
    steps.kind = 77;
    RATE("kind 77", steps);
    OPTIMIZER(mpt_schedule_create,
              CHECK(mpt_schedule_create(h_, rates[0], MPT_PER_STEP).slot == 0));
    CASE(mpt_schedule_create, ARGUMENT, "unit 9",
         mpt_schedule_create(second, rates[0], (mpt_schedule_unit)9));
    OPTIMIZER(mpt_sequential_lr,
              CHECK(mpt_sequential_lr(h_, rates, 1, NULL, MPT_PER_STEP).slot == 0));
    CASE(mpt_sequential_lr, ARGUMENT, "no milestones",
         mpt_sequential_lr(second, rates, 2, NULL, MPT_PER_STEP));
    CASE(mpt_sequential_lr, ARGUMENT, "milestone 0 is 0; expected 1",
         mpt_sequential_lr(second, rates, 2, at, MPT_PER_STEP));
    CASE(mpt_sequential_lr, ARGUMENT, "1 to 8 rates",
         mpt_sequential_lr(second, NULL, 2, at, MPT_PER_STEP));
    OPTIMIZER(mpt_chained_lr, CHECK(mpt_chained_lr(h_, rates, 2, MPT_PER_STEP).slot == 0));
    CASE(mpt_chained_lr, ARGUMENT, "got 9 rates", mpt_chained_lr(second, rates, 9, MPT_PER_STEP));
    rates[0].number[0] = 0.5;
    CASE(mpt_chained_lr, ARGUMENT, "eta_min = 0.5; a chained",
         mpt_chained_lr(second, rates, 2, MPT_PER_STEP));
    mpt_one_cycle_config cycle = mpt_one_cycle_config_default();
    OPTIMIZER(mpt_one_cycle, CHECK(mpt_one_cycle(h_, &cycle, MPT_PER_STEP).slot == 0));
    CASE(mpt_one_cycle, ARGUMENT, "total = 0", mpt_one_cycle(second, NULL, MPT_PER_STEP));
    cycle.total = 10;
    CASE(mpt_one_cycle, STATE, "no momentum", mpt_one_cycle(second, &cycle, MPT_PER_STEP));
    cycle.max_momentum = 1;
    CASE(mpt_one_cycle, ARGUMENT, "max_momentum = 1", mpt_one_cycle(mine, &cycle, MPT_PER_STEP));
    cycle.pct_start = 2;
    CASE(mpt_one_cycle, ARGUMENT, "pct_start = 2", mpt_one_cycle(mine, &cycle, MPT_PER_STEP));
    cycle.max_lr = -1;
    CASE(mpt_one_cycle, ARGUMENT, "max_lr = -1", mpt_one_cycle(mine, &cycle, MPT_PER_STEP));
    OPTIMIZER(mpt_reduce_on_plateau, CHECK(mpt_reduce_on_plateau(h_, NULL).slot == 0));
    PLATEAU_SETTING(factor, 1, "factor = 1 is not in [0, 1)");
    PLATEAU_SETTING(patience, -1, "patience = -1");
    PLATEAU_SETTING(threshold, -1, "threshold = -1");
    PLATEAU_SETTING(cooldown, -1, "cooldown = -1");
    PLATEAU_SETTING(min_lr, -1, "min_lr = -1");
    PLATEAU_SETTING(eps, infinite, "eps");
    schedule = mpt_reduce_on_plateau(second, NULL);
    CASE(mpt_schedule_step, STATE, "mpt_schedule_metric, which", mpt_schedule_step(schedule));
    CASE(mpt_reduce_on_plateau, STATE, "has a schedule already",
         mpt_reduce_on_plateau(second, NULL));
    mpt_schedule_destroy(schedule);
    schedule = mpt_warmup(second, 0, 5, 10, 0, MPT_PER_EPOCH);
    CASE(mpt_schedule_metric, STATE, "mpt_reduce_on_plateau", mpt_schedule_metric(schedule, 1));
    CASE(mpt_schedule_set_state, ARGUMENT, "no state", mpt_schedule_set_state(schedule, NULL));
    state.time = -1;
    CASE(mpt_schedule_set_state, ARGUMENT, "time = -1", mpt_schedule_set_state(schedule, &state));
    state.time = INT64_MAX; /* which the next step would overflow */
    CASE(mpt_schedule_set_state, ARGUMENT, "at most 2^53",
         mpt_schedule_set_state(schedule, &state));
    OBJECT(mpt_schedule_metric, mpt_schedule, f.no_schedule, f.stale_schedule,
           mpt_schedule_metric(h_, 1));
    OBJECT(mpt_schedule_get_state, mpt_schedule, f.no_schedule, f.stale_schedule,
           CHECK_EQ_INT(mpt_schedule_get_state(h_).time, 0));
    OBJECT(mpt_schedule_set_state, mpt_schedule, f.no_schedule, f.stale_schedule,
           mpt_schedule_set_state(h_, &state));
    mpt_optimizer_destroy(second);
    CASE(mpt_schedule_get_state, STATE, "was destroyed", mpt_schedule_get_state(schedule));
    CASE(mpt_schedule_set_state, STATE, "was destroyed", mpt_schedule_set_state(schedule, &state));
    CASE(mpt_schedule_metric, STATE, "was destroyed", mpt_schedule_metric(schedule, 1));
    OBJECT(mpt_schedule_step, mpt_schedule, f.no_schedule, f.stale_schedule, mpt_schedule_step(h_));
    OBJECT(mpt_schedule_destroy, mpt_schedule, f.no_schedule, f.stale_schedule,
           mpt_schedule_destroy(h_));
    CASE(mpt_schedule_step, STATE, "was destroyed", mpt_schedule_step(schedule));
    mpt_schedule_destroy(schedule);
}

/* ==== Averages ==== */

#define AVERAGE(function, ...) OBJECT(function, mpt_ema, f.no_ema, f.stale_ema, __VA_ARGS__)

TEST(averages) {
    mpt_optimizer optimizer = mpt_sgd(f.net, NULL);
    mpt_ema_config config = mpt_ema_config_default();
    QUIET(mpt_ema_config_default, config.decay == 0.999);
    MODULE(mpt_ema_create, CHECK(mpt_ema_create(h_, optimizer, NULL).slot == 0));
    CASE(mpt_ema_create, BAD_HANDLE, "another context",
         mpt_ema_create(f.net, f.foreign_optimizer, NULL));
    CASE(mpt_ema_create, ARGUMENT, "no parameters to average",
         mpt_ema_create(mpt_nn_relu(f.context), optimizer, NULL));
    config.decay = 1;
    CASE(mpt_ema_create, ARGUMENT, "decay = 1 is not in [0, 1)",
         CHECK(mpt_ema_create(f.net, optimizer, &config).slot == 0));
    AVERAGE(mpt_ema_update, mpt_ema_update(h_));
    AVERAGE(mpt_ema_apply, mpt_ema_apply(h_));
    AVERAGE(mpt_ema_restore, mpt_ema_restore(h_));
    AVERAGE(mpt_ema_hash, CHECK_EQ_INT(mpt_ema_hash(h_), 0));
    AVERAGE(mpt_ema_destroy, mpt_ema_destroy(h_));
    mpt_ema ema = mpt_ema_create(f.net, optimizer, NULL);
    CASE(mpt_ema_restore, STATE, "mpt_ema_apply was not called", mpt_ema_restore(ema));
    mpt_ema_apply(ema);
    CASE(mpt_ema_apply, STATE, "call mpt_ema_restore first", mpt_ema_apply(ema));
    CASE(mpt_ema_update, STATE, "call mpt_ema_restore first", mpt_ema_update(ema));
    CASE(mpt_ema_destroy, STATE, "call mpt_ema_restore first", mpt_ema_destroy(ema));
    mpt_ema_restore(ema);
    mpt_optimizer_destroy(optimizer);
    CASE(mpt_ema_update, BAD_HANDLE, "the optimizer was destroyed", mpt_ema_update(ema));
    mpt_ema_destroy(ema);
}

/* ==== Scalers ==== */

#define SCALER_SETTING(field, value, text) \
    do { \
        mpt_scaler_config c_ = mpt_scaler_config_default(); \
        c_.field = value; \
        CASE(mpt_grad_scaler, ARGUMENT, text, CHECK(mpt_grad_scaler(f.context, &c_).slot == 0)); \
    } while (0)

TEST(scalers) {
    mpt_scaler s = f.t.scaler, fresh = mpt_grad_scaler(f.context, NULL);
    mpt_optimizer mine = f.t.optimizer;
    mpt_scaler_state state = mpt_scaler_get_state(s);
    QUIET(mpt_scaler_config_default, mpt_scaler_config_default().init_scale == 65536);
    NOWHERE(mpt_grad_scaler, mpt_grad_scaler(NULL, NULL).slot == 0);
    SCALER_SETTING(init_scale, 0, "init_scale = 0");
    SCALER_SETTING(init_scale, 1e300, "fp32's range");
    SCALER_SETTING(growth_factor, 1, "growth_factor = 1; expected more than 1");
    SCALER_SETTING(backoff_factor, 1, "backoff_factor = 1 is not in (0, 1)");
    SCALER_SETTING(growth_interval, 0, "growth_interval = 0");
    SCALER_SETTING(min_scale, -1, "min_scale = -1");
    SCALER_SETTING(max_scale, 0.5, "is below min_scale");
    SCALER_SETTING(patience, -1, "patience = -1");
    SCALER_SETTING(window, -1, "window = -1");
    SCALER(mpt_scale_loss, CHECK(mpt_scale_loss(h_, f.scalar).slot == 0));
    CASE(mpt_scale_loss, BAD_HANDLE, "loss is a null handle", mpt_scale_loss(s, f.none));
    CASE(mpt_scale_loss, BAD_HANDLE, "another context", mpt_scale_loss(s, f.foreign));
    SCALER(mpt_unscale, mpt_unscale(h_, mine));
    CASE(mpt_unscale, BAD_HANDLE, "another context", mpt_unscale(s, f.foreign_optimizer));
    CASE(mpt_unscale, BAD_HANDLE, "was destroyed", mpt_unscale(s, f.stale_optimizer));
    CASE(mpt_unscale, STATE, "no loss was scaled yet", mpt_unscale(fresh, mine));
    CASE(mpt_unscale, STATE, "not scaled", mpt_unscale(s, mine)); /* what a step has left */
    CASE(mpt_unscale, STATE, "called", mpt_zero_grad(mine);
         mpt_unscale(s, mine); mpt_unscale(s, mine));
    CASE(mpt_unscale, STATE, "mpt_scaler_skip", mpt_scaler_skip(s, mine); mpt_unscale(s, mine));
    SCALER(mpt_scaler_step, mpt_scaler_step(h_, mine));
    CASE(mpt_scaler_step, BAD_HANDLE, "null handle", mpt_scaler_step(s, f.no_optimizer));
    CASE(mpt_scaler_step, STATE, "no loss was scaled yet", mpt_scaler_step(fresh, mine));
    CASE(mpt_scaler_step, STATE, "mpt_scaler_skip left", mpt_scaler_skip(s, mine);
         mpt_scaler_step(s, mine));
    SCALER(mpt_scaler_skip, mpt_scaler_skip(h_, mine));
    CASE(mpt_scaler_skip, BAD_HANDLE, "null handle", mpt_scaler_skip(s, f.no_optimizer));
    SCALER(mpt_scaler_update, mpt_scaler_update(h_));
    CASE(mpt_scaler_update, STATE, "no loss was scaled yet", mpt_scaler_update(fresh));
    SCALER(mpt_step_outcome, CHECK_EQ_INT(mpt_step_outcome(h_), MPT_OUTCOME_NONE));
    SCALER(mpt_get_scale, mpt_get_scale(h_));
    SCALER(mpt_set_scale, mpt_set_scale(h_, 2));
    CASE(mpt_set_scale, ARGUMENT, "scale = 0", mpt_set_scale(s, 0));
    CASE(mpt_set_scale, ARGUMENT, "scale = -2", mpt_set_scale(s, -2));
    SCALER(mpt_scaler_statistics, CHECK_EQ_INT(mpt_scaler_statistics(h_).steps, 0));
    SCALER(mpt_scaler_get_config, mpt_scaler_get_config(h_));
    SCALER(mpt_scaler_get_state, CHECK(mpt_scaler_get_state(h_).scale == 0));
    SCALER(mpt_scaler_set_state, mpt_scaler_set_state(h_, &state));
    CASE(mpt_scaler_set_state, ARGUMENT, "state is NULL", mpt_scaler_set_state(s, NULL));
    state.backoff_factor = 2;
    CASE(mpt_scaler_set_state, ARGUMENT, "backoff_factor = 2", mpt_scaler_set_state(s, &state));
    state = mpt_scaler_get_state(s), state.growth_tracker = -1;
    CASE(mpt_scaler_set_state, ARGUMENT, "growth_tracker = -1", mpt_scaler_set_state(s, &state));
    SCALER(mpt_scaler_destroy, mpt_scaler_destroy(h_));
}
