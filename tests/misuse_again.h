/* misuse_again.h: the cases of test_misuse.c once more: with other modes of floats than the usual
   one, and in a child made by fork, where every call on the parent's contexts is an error whatever
   else is wrong with it. */

#define ALL_CASES \
    T(steps_and_scopes), T(making_tensors), T(reading_tensors), T(views), T(ops), \
    T(ops_in_place), T(attention), T(losses), T(losses_of_more), T(autograd), T(modules), \
    T(norms), T(recurrent_ops), T(recurrent_layers), T(pooling), T(module_trees), T(user_ops), \
    T(convolutions), T(optimizers), T(averages), T(scalers), T(datasets), T(tables), T(arrays), \
    T(pictures), T(texts), T(loaders), T(files), T(inspection), T(captured_steps), \
    T(own_optimizers), T(lbfgs_optimizers), T(muon_optimizers), T(fits), T(graphs)
static const test_entry all_cases[] = {ALL_CASES};

/* A program may round otherwise, flush denormals, have exceptions trap: no error is another, and
   the twin, which trains in the usual mode, has the same bits. */
TEST(in_other_modes_of_floats) {
    if (!floats_change()) SKIP("other modes of floats");
    for (int i = 1; i < FLOATS_MODES; i++) {
        const int before = test_failures;
        mpt_destroy(f.context);
        mpt_destroy(f.other);
        make_fixture(); /* cases count on what those before them have left */
        case_floats = floats_modes[i].bits;
        for (size_t k = 0; k < sizeof all_cases / sizeof *all_cases; k++) all_cases[k].run();
        if (test_failures > before) printf("\n  with floats %s", floats_modes[i].name);
    }
    case_floats = usual_floats;
}

/* Inside inference mode, a recording and a captured step. */
TEST(in_other_places) {
    capture_make();
    for (case_place = IN_INFERENCE; case_place < PLACES_HERE; case_place++) {
        const int before = test_failures;
        mpt_destroy(f.context);
        mpt_destroy(f.other);
        make_fixture();
        for (size_t k = 0; k < sizeof all_cases / sizeof *all_cases; k++) all_cases[k].run();
        if (test_failures > before) printf("\n  %s", place_names[case_place]);
    }
    case_place = BY_ITSELF;
}

#if defined(HAVE_FORK)

/* Functions that have no case with an error. */
static void refuse_the_rest(void) {
    mpt_context *c = f.context;
    char text[8];
#define REFUSED(function, ...) CASE(function, MPT_ERROR_THREAD, "fork", __VA_ARGS__)
    REFUSED(mpt_benchmark, mpt_benchmark(c, true, true));
    REFUSED(mpt_benchmark_text, mpt_benchmark_text(c, text, sizeof text));
    REFUSED(mpt_benchmark_read, mpt_benchmark_read(c, ""));
    REFUSED(mpt_synchronize, mpt_synchronize(c));
    REFUSED(mpt_memory_trim, mpt_memory_trim(c));
    REFUSED(mpt_release, mpt_release(f.x));
    REFUSED(mpt_no_grad_begin, mpt_no_grad_begin(c));
    REFUSED(mpt_inference_begin, mpt_inference_begin(c));
    REFUSED(mpt_recompute_begin, mpt_recompute_begin(c));
    REFUSED(mpt_nn_relu, mpt_nn_relu(c));
    REFUSED(mpt_nn_gelu, mpt_nn_gelu(c));
    REFUSED(mpt_nn_tanh, mpt_nn_tanh(c));
    REFUSED(mpt_nn_sigmoid, mpt_nn_sigmoid(c));
    REFUSED(mpt_nn_flatten, mpt_nn_flatten(c));
    REFUSED(mpt_nn_gelu_tanh, mpt_nn_gelu_tanh(c));
    REFUSED(mpt_nn_silu, mpt_nn_silu(c));
    REFUSED(mpt_nn_leaky_relu, mpt_nn_leaky_relu(c, 0.1));
    REFUSED(mpt_nn_elu, mpt_nn_elu(c, 1));
    REFUSED(mpt_nn_softmax, mpt_nn_softmax(c, 0));
    REFUSED(mpt_nn_log_softmax, mpt_nn_log_softmax(c, 0));
    REFUSED(mpt_nn_max_pool2d, mpt_nn_max_pool2d(c, NULL));
    REFUSED(mpt_nn_avg_pool2d, mpt_nn_avg_pool2d(c, NULL));
    REFUSED(mpt_nn_adaptive_avg_pool2d, mpt_nn_adaptive_avg_pool2d(c, 1, 1));
    REFUSED(mpt_metric_mean, mpt_metric_mean(c, "loss", false));
    REFUSED(mpt_print_launches, mpt_print_launches(c, NULL, NULL));
    REFUSED(mpt_trace_nan, mpt_trace_nan(c, true));
    REFUSED(mpt_profile_begin, mpt_profile_begin(c, NULL));
    REFUSED(mpt_profile_end, mpt_profile_end(c));
    REFUSED(mpt_profile_rows, mpt_profile_rows(c, MPT_PROFILE_OP, NULL, 0));
    REFUSED(mpt_get_profile_total, mpt_get_profile_total(c));
    REFUSED(mpt_profile_text, mpt_profile_text(c, text, sizeof text));
    REFUSED(mpt_profile_spans, mpt_profile_spans(c, NULL, NULL));
    REFUSED(mpt_anomaly_mode, mpt_anomaly_mode(c, true));
    REFUSED(mpt_flight_begin, mpt_flight_begin(c, "log", NULL));
    REFUSED(mpt_flight_replay, mpt_flight_replay(c, "log"));
    REFUSED(mpt_flight_end, mpt_flight_end(c, NULL));
    REFUSED(mpt_determinism, mpt_determinism(c, text, sizeof text));
#undef REFUSED
}

/* Functions that are not refused: they make a plain value or a context of the child's own, tell of
   the error or what a fork leaves as it was, or are called within a callback. */
static bool is_exempt(const char *function) {
    static const char *const names[] = {"mpt_create",
                                        "mpt_destroy",
                                        "mpt_version",
                                        "mpt_get_isa",
                                        "mpt_isa_name",
                                        "mpt_get_threads",
                                        "mpt_get_device",
                                        "mpt_device_name",
                                        "mpt_get_device_info",
                                        "mpt_precision_auto",
                                        "mpt_device_count",
                                        "mpt_dtype_name",
                                        "mpt_dtype_size",
                                        "mpt_status_name",
                                        "mpt_log_stderr",
                                        "mpt_memory_kind_name",
                                        "mpt_request_stop",
                                        "mpt_stop_requested",
                                        "mpt_failed",
                                        "mpt_error",
                                        "mpt_error_code",
                                        "mpt_clear_error",
                                        "mpt_memory",
                                        "mpt_memory_reset_peak",
                                        "mpt_plan",
                                        "mpt_largest_batch",
                                        "mpt_step_is_open", "mpt_step_number",
                                        "mpt_is_recomputing",
                                        "mpt_valid",
                                        "mpt_autocast_policy",
                                        "mpt_get_counters",
                                        "mpt_anomaly",
                                        "mpt_anomaly_text",
                                        "mpt_nan_report",
                                        "mpt_op_input",
                                        "mpt_op_set_output",
                                        "mpt_op_save",
                                        "mpt_op_saved",
                                        "mpt_op_output_grad",
                                        "mpt_op_set_input_grad",
                                        "mpt_init_make",
                                        "mpt_class_scores",
                                        "mpt_pool_config_make",
                                        "mpt_transform_default",
                                        "mpt_constant_lr",
                                        "mpt_linear_lr",
                                        "mpt_step_lr",
                                        "mpt_exponential_lr",
                                        "mpt_multi_step_lr",
                                        "mpt_polynomial_lr",
                                        "mpt_cosine_lr",
                                        "mpt_cosine_restarts_lr"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], function) == 0) return true;
    const size_t length = strlen(function), ending = strlen("_config_default");
    return length > ending && strcmp(function + length - ending, "_config_default") == 0;
}

/* What tells of an error does so before any other call, and again once it was cleared. */
static void tell_of_it(void) {
    CHECK(mpt_failed(f.context));
    mpt_clear_error(f.context);
    CHECK_EQ_INT(mpt_error_code(f.context), MPT_ERROR_THREAD);
    mpt_clear_error(f.context);
    CHECK_CONTAINS(mpt_error(f.context), "made before fork; make a new one");
}

/* A new context is the child's own, and trains to the parent's bits. */
static void train_in_child(uint64_t want) {
    training t;
    mpt_config config = mpt_config_default();
    config.threads = 2;
    mpt_context *context = mpt_create(&config);
    make_training(&t, context, MPT_F16, 1);
    train_step(&t);
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK(training_hash(&t) == want);
    mpt_destroy(context);
}

static int child_main(uint64_t want) {
    alarm(120);
    tell_of_it();
    in_child = true;
    for (size_t i = 0; i < sizeof all_cases / sizeof *all_cases; i++) all_cases[i].run();
    refuse_the_rest();
    for (int i = 0; i < covered_count; i++) {
        if (covered_in_child[i] != is_exempt(covered[i])) continue;
        test_failures++;
        printf("\n  %s is%s refused in a child", covered[i], covered_in_child[i] ? "" : " not");
    }
    train_in_child(want);
    mpt_destroy(f.context);
    mpt_destroy(f.other);
    fflush(stdout);
    return test_failures < 100 ? test_failures : 100;
}

TEST(a_forked_child_is_refused_everything) {
    int status = 1;
    training t;
    mpt_context *context = mpt_create(NULL);
    make_training(&t, context, MPT_F16, 0);
    train_step(&t);
    const uint64_t want = training_hash(&t);
    mpt_destroy(context);
    for (int i = 0; i < 2; i++) { /* the second time amid a step */
        fflush(stdout);
        const pid_t child = fork();
        if (child == 0) _exit(child_main(want));
        REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status));
        CHECK_EQ_INT(WEXITSTATUS(status), 0);
        case_function = "the parent";
        if (i == 0) mpt_step_begin(f.context), mpt_step_begin(f.other);
    }
    mpt_step_end(f.context), mpt_step_end(f.other);
    case_train(__LINE__);
}
#else
TEST(a_forked_child_is_refused_everything) {
    (void)all_cases;
    SKIP("fork, threads");
}
#endif
