/* api_graph.c: what mpt_trace says of nets, and what the tools make of it. */
#include MPTRAIN_HEADER_FILE
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"

#include "harness.h"

#include <math.h>

static mpt_context *context;

static bool begin(void) { return (context = mpt_create(NULL)) != NULL; }
static void end(void) { mpt_destroy(context); }

#ifdef MPTRAIN_WATCH

static mpt_module mlp(void) {
    return mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 784, 128),
                          mpt_nn_relu(context), mpt_nn_linear(context, 128, 10),
                          mpt_nn_log_softmax(context, -1), MPT_END);
}

static mpt_graph trace_of(mpt_module net, mpt_shape shape) {
    mpt_tensor x = mpt_randn(context, MPT_F32, shape);
    mpt_graph graph = mpt_trace(net, &x, 1);
    mpt_release(x);
    return graph;
}

/* "linear(0,1,2) relu(3)": ops, and the nodes that they read. */
static const char *ops_of(mpt_graph graph) {
    static char text[2048];
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < mpt_graph_count(graph); i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        if (node->kind != MPT_NODE_OP && node->kind != MPT_NODE_USER_OP) continue;
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s@%s", n ? " " : "", node->name,
                              node->module);
        for (int k = 0; k < node->inputs; k++)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d", k ? "," : "(",
                                  node->input[k].node);
        n += (size_t)snprintf(text + n, sizeof text - n, ")");
    }
    return text;
}

TEST(an_mlp_is_its_ops_with_shapes_and_costs) {
    CHECK(begin());
    mpt_module net = mlp();
    mpt_graph graph = trace_of(net, MPT_SHAPE(32, 1, 28, 28));
    CHECK_EQ_STR(ops_of(graph), "reshape@0(0) linear@1(1,2,3) relu@2(4) linear@3(5,6,7) "
                                "log_softmax@4(8)");
    CHECK_EQ_INT(mpt_graph_count(graph), 11);
    const mpt_node *input = mpt_graph_node(graph, 0), *weight = mpt_graph_node(graph, 2);
    const mpt_node *linear = mpt_graph_node(graph, 4), *output = mpt_graph_node(graph, 10);
    REQUIRE(input && weight && linear && output);
    CHECK(input->kind == MPT_NODE_INPUT && output->kind == MPT_NODE_OUTPUT);
    CHECK(output->input[0].node == 9 && output->shape[0].dim[1] == 10);
    CHECK(weight->kind == MPT_NODE_PARAMETER && weight->trainable);
    CHECK_EQ_STR(weight->name, "1.weight");
    CHECK(weight->shape[0].rank == 2 && weight->shape[0].dim[1] == 784);
    CHECK_EQ_STR(linear->layer, "linear");
    CHECK(linear->shape[0].dim[0] == 32 && linear->shape[0].dim[1] == 128);
    CHECK(linear->flop >= 2.0 * 32 * 784 * 128 && linear->flop < 2.0 * 32 * 784 * 128 * 1.01);
    CHECK(linear->dtype[0] == MPT_F32 && linear->compute == MPT_F32);
    CHECK(!mpt_graph_node(graph, 11) && strstr(mpt_error(context), "the graph has 11"));
    mpt_clear_error(context);
    CHECK(mpt_graph_destroy(graph) == MPT_OK && mpt_graph_destroy(graph) == MPT_ERROR_HANDLE);
    mpt_clear_error(context);
    mpt_autocast_begin(context, MPT_BF16);
    graph = trace_of(net, MPT_SHAPE(32, 1, 28, 28));
    mpt_autocast_end(context);
    linear = mpt_graph_node(graph, 4);
    CHECK(linear && linear->compute == MPT_BF16 && linear->dtype[0] == MPT_BF16);
    end();
}

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_forward(mpt_child(self, "first"), in[0]);
    out[0] = mpt_relu(mpt_add(mpt_forward(mpt_child(self, "second"), x), in[0]));
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

/* Two convolutions with norms, and what comes in added to what they give. */
static mpt_module residual_block(int64_t channels) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "block", cls.forward = block_forward, cls.n_inputs = cls.n_outputs = 1;
    mpt_conv_config conv = mpt_conv_config_default();
    conv.padding[0] = conv.padding[1] = 1, conv.bias = false;
    mpt_module block = mpt_module_create(context, &cls, NULL);
    mpt_add_child(block, "first",
                  mpt_sequential(context, mpt_nn_conv2d(context, channels, channels, 3, 3, &conv),
                                 mpt_nn_batch_norm2d(context, channels, NULL),
                                 mpt_nn_relu(context), MPT_END));
    mpt_add_child(block, "second",
                  mpt_sequential(context, mpt_nn_conv2d(context, channels, channels, 3, 3, &conv),
                                 mpt_nn_batch_norm2d(context, channels, NULL), MPT_END));
    return block;
}

TEST(a_residual_block_shows_what_it_skips) {
    static const char expected[] =
        "conv2d@first.0(0,1,-1) batch_norm@first.1(2,3,4,5,6,-1) relu@first.2(7) "
        "conv2d@second.0(8,9,-1) batch_norm@second.1(10,11,12,13,14) add@(15,0) relu@(16)";
    CHECK(begin());
    mpt_module net = residual_block(4);
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(2, 4, 8, 8));
    mpt_graph graph = mpt_trace(net, &x, 1);
    CHECK_EQ_STR(ops_of(graph), expected);
    const mpt_node *mean = mpt_graph_node(graph, 5);
    REQUIRE(mean != NULL);
    CHECK(mean->kind == MPT_NODE_BUFFER);
    CHECK_EQ_STR(mean->name, "first.1.running_mean");
    mpt_fuse(net, x, NULL, 0); /* now a norm goes in its convolution, which is to be seen still */
    CHECK_EQ_STR(ops_of(mpt_trace(net, &x, 1)), expected);
    CHECK_EQ_STR(mpt_error(context), "");
    end();
}

static mpt_status doubled(mpt_op_call *call, void *user) {
    (void)user;
    return mpt_op_set_output(call, 0, mpt_mul_scalar(mpt_op_input(call, 0), 2.0));
}
static mpt_status attention_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                    mpt_tensor *out, int n_out) {
    (void)n_in, (void)n_out;
    mpt_tensor x = mpt_detach(in[0]), twice;
    mpt_op_apply(*(mpt_op *)user, &x, 1, &twice, 1);
    mpt_tensor ones = mpt_ones(self.context, MPT_F32, MPT_SHAPE(1, 2, 4, 8));
    out[0] = mpt_scaled_dot_product_attention(in[0], twice, ones, NULL);
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

TEST(user_ops_constants_and_what_was_detached_are_nodes) {
    CHECK(begin());
    mpt_op_class op_class = {"doubled", MPT_AUTOCAST_INPUT, doubled, NULL, 1, 1};
    mpt_op op = mpt_op_register(context, &op_class, NULL);
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "attention", cls.forward = attention_forward, cls.n_inputs = cls.n_outputs = 1;
    mpt_graph graph = trace_of(mpt_module_create(context, &cls, &op), MPT_SHAPE(1, 2, 4, 8));
    CHECK_EQ_STR(mpt_error(context), "");
    CHECK_CONTAINS(ops_of(graph), "doubled@(0) scaled_dot_product_attention@(0,1,2");
    const mpt_node *constant = mpt_graph_node(graph, 2);
    CHECK(constant && constant->kind == MPT_NODE_CONSTANT && constant->shape[0].rank == 4);
    end();
}

TEST(nothing_of_a_training_changes) {
    CHECK(begin());
    mpt_module net =
        mpt_sequential(context, mpt_nn_linear(context, 8, 8), mpt_nn_batch_norm1d(context, 8, NULL),
                       mpt_nn_dropout(context, 0.5), mpt_nn_linear(context, 8, 4), MPT_END);
    mpt_optimizer optimizer = mpt_adamw(net, NULL);
    mpt_tensor x = mpt_randn(context, MPT_F32, MPT_SHAPE(4, 8));
    for (int i = 0; i < 2; i++) {
        mpt_step_begin(context);
        mpt_zero_grad(optimizer);
        mpt_backward(mpt_sum(mpt_sum(mpt_forward(net, x), -1, false), -1, false));
        mpt_step(optimizer);
        mpt_step_end(context);
    }
    const uint64_t before = mpt_state_hash(context);
    const size_t used = (size_t)mpt_memory(context).current[MPT_MEMORY_ACTIVATION];
    mpt_graph graph = mpt_trace(net, &x, 1);
    CHECK(mpt_graph_count(graph) > 8 && mpt_state_hash(context) == before);
    CHECK_EQ_INT((size_t)mpt_memory(context).current[MPT_MEMORY_ACTIVATION], used);
    CHECK(mpt_is_training(net));
    CHECK_EQ_STR(mpt_error(context), "");
    end();
}

/* ==== The tools on it ==== */

/* A file's text, to be freed; "" where there is none. */
static char *text_of(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)calloc(1, 1 << 21);
    *size = file && text ? fread(text, 1, (1 << 21) - 1, file) : 0;
    if (file) fclose(file);
    return text;
}

/* Whether each tag that is opened is closed, in order, and no text has a sign that is not escaped;
   elements of HTML that are never closed may be there. */
static bool tags_match(const char *text) {
    char open[64][24];
    int depth = 0;
    while ((text = strchr(text, '<')) != NULL) {
        const char *end = strchr(text, '>');
        const char *again = strchr(text + 1, '<');
        if (!end || (again && again < end)) return false;
        size_t length = strcspn(text + 1, " >/\n");
        const char *name = text + 1;
        const bool closes = *name == '/';
        if (closes) length = strcspn(++name, ">");
        static const char *const single[] = {"!DOCTYPE", "meta", "link", "img"};
        bool alone = end[-1] == '/';
        for (int i = 0; i < 4; i++) alone |= strncmp(name, single[i], strlen(single[i])) == 0;
        if (length >= sizeof open[0] || (closes && depth == 0) || depth == 64) return false;
        if (closes && (strlen(open[depth - 1]) != length ||
                       strncmp(open[--depth], name, length) != 0))
            return false;
        if (!closes && !alone) {
            memcpy(open[depth], name, length);
            open[depth++][length] = '\0';
        }
        text = end + 1;
    }
    return depth == 0;
}

TEST(a_summary_has_shapes_and_totals) {
    char text[4096];
    CHECK(begin());
    mpt_module net = residual_block(4);
    mpt_requires_grad(mpt_parameter(net, "first.0.weight"), false);
    mpt_graph graph = trace_of(net, MPT_SHAPE(2, 4, 8, 8));
    const size_t length = mpt_graph_summary(graph, net, text, sizeof text);
    CHECK_EQ_INT(length, strlen(text));
    CHECK_CONTAINS(text, "\n  second (sequential)");
    CHECK_CONTAINS(text, "\n    0 (conv2d)                            [2, 4, 8, 8]");
    CHECK_CONTAINS(text, "parameters: 304, trainable 160, frozen 144; 1,216 bytes");
    for (size_t room = 0; room < length; room += 37) {
        char part[4096];
        memset(part, '#', sizeof part);
        CHECK_EQ_INT(mpt_graph_summary(graph, net, part, room), length);
        CHECK(part[room] == '#' && (room == 0 || strlen(part) == room - 1));
    }
    mpt_graph_destroy(graph);
    CHECK_EQ_INT(mpt_graph_summary(graph, net, text, sizeof text), 0);
    end();
}

/* Whether no two boxes of a picture lie on each other; how many there are. */
static int boxes_apart(const char *text, int *widest) {
    int x[256], y[256], n = 0;
    for (*widest = 0; (text = strstr(text, "</title><rect x=\"")) != NULL && n < 256; text++, n++) {
        x[n] = (int)strtol(text + 17, NULL, 10);
        y[n] = (int)strtol(strstr(text, "y=\"") + 3, NULL, 10);
        *widest = x[n] > *widest ? x[n] : *widest;
        for (int i = 0; i < n; i++)
            if (abs(x[i] - x[n]) < 220 && abs(y[i] - y[n]) < 50) return -1;
    }
    return n;
}

/* x + b(a(x)) of a branch that is run first: the longer way goes straight on all the same. */
static mpt_status branch_forward(
    mpt_module self, void *user, const mpt_tensor *in, int n_in, mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    const mpt_tensor aside = mpt_forward(mpt_child(self, "down"), in[0]);
    mpt_tensor x = mpt_relu(mpt_forward(mpt_child(self, "a"), in[0]));
    x = mpt_relu(mpt_forward(mpt_child(self, "b"), x));
    out[0] = mpt_add(x, aside);
    return MPT_OK;
}

TEST(branches_do_not_push_a_picture_aside) {
    static mpt_module_class kind = {"branch", branch_forward, NULL, NULL, NULL, 1, 1};
    size_t size;
    int widest;
    CHECK(begin());
    mpt_module blocks[6];
    for (int i = 0; i < 6; i++) {
        blocks[i] = mpt_module_create(context, &kind, NULL);
        mpt_add_child(blocks[i], "down", mpt_nn_linear(context, 8, 8));
        mpt_add_child(blocks[i], "a", mpt_nn_linear(context, 8, 8));
        mpt_add_child(blocks[i], "b", mpt_nn_linear(context, 8, 8));
    }
    mpt_module net = mpt_sequential(context, blocks[0], blocks[1], blocks[2], blocks[3], blocks[4],
        blocks[5], MPT_END);
    mpt_graph graph = trace_of(net, MPT_SHAPE(2, 8));
    const char *path = test_tmp_path("branches.svg");
    CHECK_EQ_INT(mpt_graph_svg(graph, path), MPT_OK);
    char *text = text_of(path, &size);
    CHECK_EQ_INT(boxes_apart(text, &widest), 2 + 6 * 6);
    CHECK_EQ_INT(widest, 40 + 260); /* two columns, however many blocks */
    free(text);
    mpt_graph_destroy(graph);
    end();
}

TEST(pictures_are_well_formed_and_whole) {
    size_t size;
    CHECK(begin());
    mpt_graph graph = trace_of(residual_block(4), MPT_SHAPE(2, 4, 8, 8));
    const char *path = test_tmp_path("net.svg");
    CHECK_EQ_INT(mpt_graph_svg(graph, path), MPT_OK);
    char *text = text_of(path, &size);
    CHECK(tags_match(text) && strstr(text, "prefers-color-scheme:dark"));
    CHECK_CONTAINS(text, "batch_norm  second.1");
    CHECK_CONTAINS(text, "[2, 4, 8, 8] float32");
    CHECK_CONTAINS(text, "144 parameters");
    CHECK_CONTAINS(text, "class=\"mg-along\">[2, 4, 8, 8]"); /* what goes around */
    free(text);
    path = test_tmp_path("net.dot");
    CHECK_EQ_INT(mpt_graph_dot(graph, path), MPT_OK);
    text = text_of(path, &size);
    int braces = 0, edges = 0;
    for (const char *c = text; *c; c++) {
        braces += (*c == '{') - (*c == '}');
        edges += c[0] == '-' && c[1] == '>';
    }
    CHECK(braces == 0 && edges == 9);
    CHECK_CONTAINS(text, "label=\"second\"");
    free(text);
    CHECK_EQ_INT(mpt_graph_svg(graph, NULL), MPT_ERROR_ARGUMENT);
    CHECK_EQ_INT(mpt_graph_svg(graph, "there/is/no/such/folder.svg"), MPT_ERROR_IO);
    mpt_graph_destroy(graph);
    CHECK_EQ_INT(mpt_graph_dot(graph, path), MPT_ERROR_HANDLE);
    end();
}

/* Steps of a fit with values that are hard to draw. */
static void tell_report(mpt_report *report, int64_t steps) {
    mpt_progress p;
    memset(&p, 0, sizeof p);
    p.epoch = p.epochs = 1, p.batches = steps;
    for (p.step = 1; p.step <= steps; p.step++) {
        p.loss = 1e300 / (double)p.step;
        if (p.step == 3 || p.step == 5) p.loss = p.step == 3 ? (double)NAN : (double)INFINITY;
        p.lr = p.grad_norm = p.validation_loss = p.validation_accuracy = (double)NAN;
        p.scale = 1024, p.skipped_steps = p.step / 2, p.memory = INT64_MAX;
        mpt_report_fit(report, &p);
    }
}

TEST(a_report_is_bounded_and_draws_what_is_not_finite) {
    static const int64_t steps[] = {0, 1, 10, 300000};
    const char *path = test_tmp_path("report.html");
    CHECK(begin());
    mpt_report_config config = mpt_report_config_default();
    config.title = "a < b & \"c\"";
    config.seconds = 1e9;
    for (int i = 0; i < 4; i++) {
        size_t size;
        mpt_module net = mlp();
        mpt_graph graph = trace_of(net, MPT_SHAPE(2, 784));
        mpt_profile_config profile = mpt_profile_config_default();
        profile.spans = 64;
        CHECK_EQ_INT(mpt_profile_begin(context, &profile), MPT_OK);
        mpt_step_begin(context);
        mpt_neg(mpt_ones(context, MPT_F32, MPT_SHAPE(2, 1024, 1024)));
        mpt_step_end(context);
        CHECK_EQ_INT(mpt_profile_end(context), MPT_OK);
        const uint64_t before = mpt_state_hash(context);
        mpt_report *report = mpt_report_open(path, &config);
        REQUIRE(report != NULL);
        char *text = text_of(path, &size);
        CHECK(tags_match(text) && strstr(text, "http-equiv=\"refresh\""));
        free(text);
        tell_report(report, steps[i]);
        int64_t counts[4] = {5, 0, 1, 7};
        const char *const names[] = {"linear", "<relu>"};
        const double values[] = {0.25, (double)NAN};
        CHECK_EQ_INT(mpt_report_net(report, net, graph), MPT_OK);
        CHECK_EQ_INT(mpt_report_confusion(report, counts, 2), MPT_OK);
        CHECK_EQ_INT(mpt_report_confusion(report, counts, 1), MPT_ERROR_ARGUMENT);
        CHECK_EQ_INT(mpt_report_bars(report, "time", names, values, 2, "s"), MPT_OK);
        CHECK_EQ_INT(mpt_report_bars(report, "time", names, values, 2, "s"), MPT_OK);
        CHECK_EQ_INT(mpt_report_bars(report, NULL, names, values, 2, "s"), MPT_ERROR_ARGUMENT);
        CHECK_EQ_INT(mpt_report_profile(report, context), MPT_OK);
        CHECK_EQ_INT(mpt_report_close(report), MPT_OK);
        CHECK(mpt_state_hash(context) == before);
        text = text_of(path, &size);
        CHECK_CONTAINS(text, "Time of a step, by op");
        CHECK_CONTAINS(text, "neg forward");
        CHECK_CONTAINS(text, "title=\"1 taken for 0: 12.5 %\"");
        CHECK_CONTAINS(text, "Memory over a step"); /* of two tensors of 8 MiB, and few others */
        CHECK_CONTAINS(strstr(text, "id=\"step\""), ">us ");
        CHECK_CONTAINS(strstr(text, "id=\"step\""), "forward <b>1");
        CHECK(size > 10000 && size < 300000 && tags_match(text));
        CHECK(!strstr(text, "http-equiv") && strstr(text, "<b>ended</b>"));
        CHECK_CONTAINS(text, "a &lt; b &amp; &quot;c&quot;");
        CHECK_CONTAINS(text, "id=\"filters\"");
        CHECK((strstr(text, "id=\"loss\"") != NULL) == (steps[i] > 0));
        CHECK((strstr(text, "data-y=\"1e+300") != NULL) == (steps[i] == 1 || steps[i] == 10));
        CHECK(!strstr(text, "id=\"lr\"") && !strstr(text, "id=\"accuracy\""));
        CHECK((strstr(text, "\"kb\">not finite") != NULL) == (steps[i] > 1));
        CHECK(!strstr(text, "Mnan") && !strstr(text, "Lnan") && !strstr(text, " inf"));
        free(text);
    }
    CHECK(!mpt_report_open(NULL, NULL) && mpt_report_close(NULL) == MPT_OK);
    mpt_report *nowhere = mpt_report_open("there/is/no/such/folder.html", NULL);
    CHECK_EQ_INT(mpt_report_close(nowhere), MPT_ERROR_IO);
    CHECK(mpt_report_fit(NULL, NULL));
    CHECK_EQ_INT(mpt_report_bars(NULL, "t", NULL, NULL, 0, NULL), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_report_profile(NULL, NULL), MPT_ERROR_HANDLE);
    end();
}

static size_t graph_bytes;
static void hear_graph(void *user, const mpt_journal_entry *entry) {
    (void)user;
    if (entry->kind == MPT_JOURNAL_GRAPH && entry->graph) graph_bytes = entry->graph_bytes;
}

TEST(a_journal_gets_the_graph) {
    CHECK(begin());
    mpt_graph graph = trace_of(mlp(), MPT_SHAPE(2, 784));
    mpt_journal_config config = mpt_journal_config_default();
    config.entry = hear_graph;
    mpt_journal *journal = mpt_journal_open(&config);
    graph_bytes = 0;
    CHECK_EQ_INT(mpt_journal_graph(journal, graph), MPT_OK);
    CHECK(graph_bytes > 500 && graph_bytes < 5000);
    mpt_graph_destroy(graph);
    CHECK_EQ_INT(mpt_journal_graph(journal, graph), MPT_ERROR_HANDLE);
    CHECK(mpt_journal_graph(NULL, graph) != MPT_OK);
    mpt_journal_close(journal);
    end();
}

static mpt_status view_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                               mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_add_(mpt_mul_scalar(in[0], 0.5), mpt_full(context, MPT_F32, MPT_SCALAR, 2));
    mpt_tensor part = mpt_slice(x, 1, 1, 4, 2);
    mpt_relu_(part);
    part = mpt_neg(part);
    out[0] = mpt_add(part, mpt_slice(x, 1, 0, 2, 1));
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

TEST(what_ops_were_told_and_what_changed_is_seen) {
    CHECK(begin());
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "views", cls.forward = view_forward, cls.n_inputs = cls.n_outputs = 1;
    mpt_graph graph = trace_of(mpt_module_create(context, &cls, NULL), MPT_SHAPE(2, 4));
    CHECK_EQ_STR(ops_of(graph),
                 "mul_scalar@(0) add@(1,2) slice@(3) relu@(4) neg@(5) slice@(3) add@(6,7)");
    for (int i = 0; i < mpt_graph_count(graph); i++) /* of x, a part of which was written since */
        CHECK(mpt_graph_node(graph, i)->changed == (i == 7));
    const mpt_node *slice = mpt_graph_node(graph, 4), *half = mpt_graph_node(graph, 1);
    const mpt_node *two = mpt_graph_node(graph, 2);
    REQUIRE(slice && half && two);
    CHECK(slice->index[0] == 1 && slice->index[1] == 1 && slice->index[3] == 2);
    CHECK(half->number[0] == 0.5);
    CHECK(two->kind == MPT_NODE_CONSTANT && mpt_item(two->value) == 2.0);
    const mpt_tensor value = two->value;
    mpt_graph_destroy(graph);
    CHECK(!mpt_valid(value));
    mpt_module lstm = mpt_nn_lstm(context, 3, 4, NULL);
    graph = trace_of(lstm, MPT_SHAPE(5, 2, 3));
    int after = 0, cells = 0;
    for (int i = 0; i < mpt_graph_count(graph); i++) {
        const mpt_node *node = mpt_graph_node(graph, i);
        if (node->kind != MPT_NODE_OP) continue;
        cells += strcmp(node->name, "lstm") == 0;
        after += strcmp(node->name, "tanh") == 0; /* which is in the cell */
    }
    CHECK(cells == 1 && after == 0);
    CHECK(mpt_graph_node(graph, 1)->value.slot ==
          mpt_parameter(lstm, mpt_graph_node(graph, 1)->name).slot);
    end();
}

TEST_TABLE = {T(an_mlp_is_its_ops_with_shapes_and_costs), T(a_residual_block_shows_what_it_skips),
              T(what_ops_were_told_and_what_changed_is_seen),
              T(user_ops_constants_and_what_was_detached_are_nodes),
              T(nothing_of_a_training_changes), T(a_summary_has_shapes_and_totals),
              T(branches_do_not_push_a_picture_aside), T(pictures_are_well_formed_and_whole),
              T(a_report_is_bounded_and_draws_what_is_not_finite), T(a_journal_gets_the_graph)};
#else
TEST(tracing_is_absent) {
    CHECK(begin());
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(1));
    CHECK(mpt_trace(mpt_nn_relu(context), &x, 1).slot == 0);
    CHECK_CONTAINS(mpt_error(context), "WATCH)");
    end();
}
TEST_TABLE = {T(tracing_is_absent)};
#endif
TEST_MAIN
