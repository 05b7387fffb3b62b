/* api_onnx.c: nets as ONNX files, decoded by a reader of their own: nodes, names, shapes, numbers;
   what has no form; disks that are full. That onnxruntime computes what the library does is
   `make test-export`. */
#include MPTRAIN_HEADER_FILE

#include <stdlib.h>

/* The memory of the tools: none, once so many more blocks were given; -1: always there. */
static int blocks_left = -1;
static inline bool no_block(void) {
    if (blocks_left < 0) return false;
    return blocks_left == 0 || --blocks_left == 0;
}
static inline void *scarce_calloc(size_t n, size_t size) {
    return no_block() ? NULL : calloc(n, size);
}
static inline void *scarce_realloc(void *block, size_t size) {
    return no_block() ? NULL : realloc(block, size);
}
#define calloc scarce_calloc
#define realloc scarce_realloc
#define MPTRAIN_TOOLS_IMPLEMENTATION
#include "tools/mptrain_tools.h"
#undef calloc
#undef realloc

#include "files.h"
#include "harness.h"

#ifndef _WIN32
#include <signal.h>
#include <sys/resource.h>
#endif

static mpt_context *context;
static char why[512];

static bool begin(void) {
    why[0] = '\0';
    return (context = mpt_create(NULL)) != NULL;
}
static void end(void) { mpt_destroy(context); }

static mpt_module mlp(void) {
    return mpt_sequential(context, mpt_nn_flatten(context), mpt_nn_linear(context, 12, 8),
                          mpt_nn_relu(context), mpt_nn_linear(context, 8, 3),
                          mpt_nn_log_softmax(context, -1), MPT_END);
}

static mpt_status export_of(mpt_module net, mpt_shape shape, const char *path,
                            const mpt_onnx_config *config) {
    mpt_tensor x = mpt_randn(context, MPT_F32, shape);
    const mpt_status status = mpt_onnx_export(net, &x, 1, path, config, why, sizeof why);
    mpt_release(x);
    return status;
}

#ifdef MPTRAIN_WATCH

/* ==== A reader ==== */

enum { MODEL_BYTES = 1 << 20, NODES = 256, TENSORS = 96, NAMES = 16 };

typedef struct {
    const uint8_t *data;
    size_t size;
} span;

typedef struct {
    char type[40], name[160], input[NAMES][160], output[4][160];
    int inputs, outputs, attributes;
    span attribute[12];
} node_read;

typedef struct {
    char name[160], location[160];
    int64_t dim[8], type, offset, length;
    int rank;
    bool beside;
    span raw;
} tensor_read;

typedef struct {
    char name[160], shape[160]; /* "[batch,8]" */
    int64_t type;
} info_read;

typedef struct {
    uint8_t bytes[MODEL_BYTES];
    size_t size;
    int64_t ir, opset;
    node_read node[NODES];
    tensor_read tensor[TENSORS];
    info_read input[NAMES], output[NAMES], value[NODES];
    int nodes, tensors, inputs, outputs, values;
    bool broken;
} model_read;

static uint64_t varint(span *s, bool *broken) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (s->size == 0) break;
        const uint8_t byte = *s->data++;
        s->size--;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return value;
    }
    *broken = true;
    return 0;
}

/* The next field of a message: its number, and its bytes or its value; 0 at the end. */
static int field_of(span *s, span *bytes, uint64_t *value, bool *broken) {
    if (s->size == 0 || *broken) return 0;
    const uint64_t key = varint(s, broken);
    const int wire = (int)(key & 7);
    size_t size = 0;
    *value = 0;
    if (wire == 0) *value = varint(s, broken);
    if (wire == 2) size = (size_t)varint(s, broken);
    if (wire == 5) size = 4;
    if ((wire != 0 && wire != 2 && wire != 5) || size > s->size || key >> 3 == 0) *broken = true;
    if (*broken) return 0;
    bytes->data = s->data, bytes->size = size;
    s->data += size, s->size -= size;
    return (int)(key >> 3);
}

static void text_of(span s, char *text, size_t size) {
    const size_t n = s.size < size ? s.size : size - 1;
    memcpy(text, s.data, n);
    text[n] = '\0';
}

static void read_node(model_read *m, span s) {
    node_read *node = &m->node[m->nodes++];
    span bytes;
    uint64_t value;
    for (int field; (field = field_of(&s, &bytes, &value, &m->broken)) != 0;) {
        if (field == 1) text_of(bytes, node->input[node->inputs++], 160);
        if (field == 2) text_of(bytes, node->output[node->outputs++], 160);
        if (field == 3) text_of(bytes, node->name, sizeof node->name);
        if (field == 4) text_of(bytes, node->type, sizeof node->type);
        if (field == 5) node->attribute[node->attributes++] = bytes;
    }
}

static void read_entry(tensor_read *tensor, span s, bool *broken) {
    char key[32] = "", text[160] = "";
    span bytes;
    uint64_t value;
    for (int field; (field = field_of(&s, &bytes, &value, broken)) != 0;)
        text_of(bytes, field == 1 ? key : text, field == 1 ? sizeof key : sizeof text);
    if (strcmp(key, "location") == 0) snprintf(tensor->location, 160, "%s", text);
    if (strcmp(key, "offset") == 0) tensor->offset = strtoll(text, NULL, 10);
    if (strcmp(key, "length") == 0) tensor->length = strtoll(text, NULL, 10);
}

static void read_tensor(model_read *m, span s) {
    tensor_read *tensor = &m->tensor[m->tensors++];
    span bytes;
    uint64_t value;
    for (int field; (field = field_of(&s, &bytes, &value, &m->broken)) != 0;) {
        if (field == 1) tensor->dim[tensor->rank++] = (int64_t)value;
        if (field == 2) tensor->type = (int64_t)value;
        if (field == 8) text_of(bytes, tensor->name, sizeof tensor->name);
        if (field == 9) tensor->raw = bytes;
        if (field == 13) read_entry(tensor, bytes, &m->broken);
        if (field == 14) tensor->beside = value == 1;
    }
}

/* One dimension, as text. */
static void read_dim(info_read *info, span s, bool *broken) {
    span bytes;
    uint64_t value;
    char name[80] = "?";
    for (int field; (field = field_of(&s, &bytes, &value, broken)) != 0;) {
        if (field == 1) snprintf(name, sizeof name, "%lld", (long long)value);
        if (field == 2) text_of(bytes, name, sizeof name);
    }
    const size_t n = strlen(info->shape);
    snprintf(info->shape + n, sizeof info->shape - n, "%s%s", n > 1 ? "," : "", name);
}

static void read_type(info_read *info, span s, bool *broken) {
    span tensor = s, bytes, dim;
    uint64_t value;
    while (field_of(&s, &tensor, &value, broken)) { /* the type of a tensor */
        for (int field; (field = field_of(&tensor, &bytes, &value, broken)) != 0;) {
            if (field == 1) info->type = (int64_t)value;
            uint64_t none;
            while (field == 2 && field_of(&bytes, &dim, &none, broken)) read_dim(info, dim, broken);
        }
    }
}

static void read_info(info_read *info, span s, bool *broken) {
    span bytes;
    uint64_t value;
    strcpy(info->shape, "[");
    for (int field; (field = field_of(&s, &bytes, &value, broken)) != 0;) {
        if (field == 1) text_of(bytes, info->name, sizeof info->name);
        if (field == 2) read_type(info, bytes, broken);
    }
    strcat(info->shape, "]");
}

static void read_graph(model_read *m, span s) {
    span bytes;
    uint64_t value;
    for (int field; (field = field_of(&s, &bytes, &value, &m->broken)) != 0;) {
        if (m->nodes == NODES || m->tensors == TENSORS || m->values == NODES) m->broken = true;
        if (field == 1) read_node(m, bytes);
        if (field == 5) read_tensor(m, bytes);
        if (field == 11) read_info(&m->input[m->inputs++], bytes, &m->broken);
        if (field == 12) read_info(&m->output[m->outputs++], bytes, &m->broken);
        if (field == 13) read_info(&m->value[m->values++], bytes, &m->broken);
    }
}

/* A model; NULL where it is none. The same memory each time. */
static const model_read *read_model(const char *path) {
    static model_read model;
    span s, bytes;
    uint64_t value;
    memset(&model, 0, sizeof model);
    model.size = file_bytes(path, model.bytes, sizeof model.bytes);
    s.data = model.bytes, s.size = model.size;
    for (int field; (field = field_of(&s, &bytes, &value, &model.broken)) != 0;) {
        if (field == 1) model.ir = (int64_t)value;
        if (field == 7) read_graph(&model, bytes);
        span opset = bytes;
        while (field == 8 && field_of(&opset, &bytes, &value, &model.broken) != 0)
            model.opset = (int64_t)value;
    }
    return model.broken || model.size == 0 || model.nodes == 0 ? NULL : &model;
}

/* "Gemm Relu": the kinds of all nodes. */
static const char *kinds_of(const model_read *m) {
    static char text[4096];
    size_t n = 0;
    text[0] = '\0';
    for (int i = 0; i < m->nodes; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "", m->node[i].type);
    return text;
}

static const node_read *node_of(const model_read *m, const char *type) {
    for (int i = 0; i < m->nodes; i++)
        if (strcmp(m->node[i].type, type) == 0) return &m->node[i];
    return NULL;
}

static const tensor_read *tensor_of(const model_read *m, const char *name) {
    for (int i = 0; i < m->tensors; i++)
        if (strcmp(m->tensor[i].name, name) == 0) return &m->tensor[i];
    return NULL;
}

/* "axis=1", "pads=1,1,1,1", "mode=linear": an attribute; "" where there is none. */
static const char *attribute_of(const node_read *node, const char *name) {
    static char text[200];
    text[0] = '\0';
    for (int i = 0; node && i < node->attributes; i++) {
        span s = node->attribute[i], bytes;
        uint64_t value;
        bool broken = false;
        char key[80] = "", found[160] = "";
        size_t n = 0;
        for (int field; (field = field_of(&s, &bytes, &value, &broken)) != 0;) {
            uint32_t bits = 0;
            float number;
            if (field == 1) text_of(bytes, key, sizeof key);
            if (field == 2) {
                for (int k = 0; k < 4; k++) bits |= (uint32_t)bytes.data[k] << 8 * k;
                memcpy(&number, &bits, 4);
                snprintf(found, sizeof found, "%g", (double)number);
            }
            if (field == 3) snprintf(found, sizeof found, "%lld", (long long)(int64_t)value);
            if (field == 4 || field == 9) text_of(bytes, found, sizeof found);
            if (field == 8)
                n += (size_t)snprintf(found + n, sizeof found - n, "%s%lld", n ? "," : "",
                                      (long long)(int64_t)value);
        }
        if (strcmp(key, name) == 0) snprintf(text, sizeof text, "%s", found);
    }
    return text;
}

/* Every input of a node is the model's, a tensor, or made by a node before; every name is given
   once. */
static bool is_ordered(const model_read *m) {
    for (int i = 0; i < m->nodes; i++)
        for (int k = 0; k < m->node[i].inputs; k++) {
            const char *name = m->node[i].input[k];
            bool found = name[0] == '\0' || tensor_of(m, name);
            for (int n = 0; n < m->inputs; n++) found |= strcmp(m->input[n].name, name) == 0;
            for (int n = 0; n < i; n++)
                for (int o = 0; o < m->node[n].outputs; o++)
                    found |= strcmp(m->node[n].output[o], name) == 0;
            if (!found) return false;
        }
    for (int i = 0; i < m->nodes; i++)
        for (int n = 0; n < i; n++)
            if (strcmp(m->node[i].output[0], m->node[n].output[0]) == 0) return false;
    return true;
}

/* Whether a tensor of the file has the bits of one of the net. */
static bool has_bits(const tensor_read *read, mpt_tensor tensor, const uint8_t *data) {
    const size_t bytes = (size_t)mpt_numel(tensor) * mpt_dtype_size(mpt_get_dtype(tensor));
    const mpt_shape shape = mpt_get_shape(tensor);
    uint8_t *own = (uint8_t *)malloc(bytes);
    bool same = own && read && read->rank == shape.rank && mpt_read(tensor, own, bytes) == MPT_OK;
    for (int i = 0; same && i < shape.rank; i++) same = read->dim[i] == shape.dim[i];
    const uint16_t one = 1;
    uint8_t first;
    memcpy(&first, &one, 1);
    const size_t width = mpt_dtype_size(mpt_get_dtype(tensor));
    for (size_t i = 0; same && i < bytes; i++)
        same = own[i] == data[first ? i : i - i % width + width - 1 - i % width];
    free(own);
    return same;
}

/* ==== Nets ==== */

TEST(an_mlp_has_its_names_shapes_and_numbers) {
    CHECK(begin());
    mpt_module net = mlp();
    const char *path = test_tmp_path("mlp.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 3, 4), path, NULL), MPT_OK);
    CHECK_EQ_STR(why, "");
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(m->ir == 8 && m->opset == MPT_ONNX_OPSET && is_ordered(m));
    CHECK_EQ_STR(kinds_of(m), "Reshape Gemm Relu Gemm LogSoftmax Identity");
    CHECK_EQ_STR(m->node[1].name, "1/linear_4");
    CHECK_EQ_STR(m->node[1].input[1], "1.weight");
    CHECK_EQ_STR(attribute_of(&m->node[1], "transB"), "1");
    CHECK_EQ_STR(attribute_of(&m->node[4], "axis"), "1");
    REQUIRE(m->inputs == 1 && m->outputs == 1);
    CHECK_EQ_STR(m->input[0].name, "input");
    CHECK_EQ_STR(m->input[0].shape, "[batch,3,4]");
    CHECK_EQ_STR(m->output[0].name, "output");
    CHECK_EQ_STR(m->output[0].shape, "[batch,3]");
    CHECK(m->input[0].type == 1 && m->output[0].type == 1);
    CHECK_EQ_STR(m->value[1].name, "1/linear_4");
    CHECK_EQ_STR(m->value[1].shape, "[batch,8]");
    static const char *const names[] = {"1.weight", "1.bias", "3.weight", "3.bias"};
    for (int i = 0; i < 4; i++) {
        const tensor_read *t = tensor_of(m, names[i]);
        REQUIRE(t != NULL);
        CHECK(t->type == 1 && has_bits(t, mpt_parameter(net, names[i]), t->raw.data));
    }
    end();
}

TEST(a_convolutional_net_has_its_numbers_and_statistics) {
    CHECK(begin());
    mpt_conv_config conv = mpt_conv_config_default();
    mpt_pool_config pool = mpt_pool_config_make(2, 2, 0);
    conv.stride[0] = 2, conv.padding[0] = 1, conv.padding[1] = 2, conv.groups = 2;
    mpt_module net = mpt_sequential(
        context, mpt_nn_conv2d(context, 4, 6, 3, 5, &conv), mpt_nn_batch_norm2d(context, 6, NULL),
        mpt_nn_relu(context), mpt_nn_max_pool2d(context, &pool), mpt_nn_dropout(context, 0.5),
        mpt_nn_adaptive_avg_pool2d(context, 1, 1), mpt_nn_flatten(context),
        mpt_nn_linear(context, 6, 10), MPT_END);
    const char *path = test_tmp_path("cnn.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 4, 8, 8), path, NULL), MPT_OK);
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(is_ordered(m));
    CHECK_EQ_STR(kinds_of(m), "Conv BatchNormalization Relu MaxPool AveragePool Reshape Gemm "
                              "Identity");
    const node_read *node = node_of(m, "Conv");
    CHECK_EQ_STR(attribute_of(node, "pads"), "1,2,1,2");
    CHECK_EQ_STR(attribute_of(node, "strides"), "2,1");
    CHECK_EQ_STR(attribute_of(node, "kernel_shape"), "3,5");
    CHECK_EQ_STR(attribute_of(node, "group"), "2");
    node = node_of(m, "BatchNormalization");
    REQUIRE(node && node->inputs == 5);
    CHECK_EQ_STR(node->input[1], "1.weight");
    CHECK_EQ_STR(node->input[3], "1.running_mean");
    CHECK_EQ_STR(node->input[4], "1.running_var");
    const tensor_read *variance = tensor_of(m, "1.running_var");
    CHECK(variance && has_bits(variance, mpt_buffer(net, "1.running_var"), variance->raw.data));
    CHECK_EQ_STR(attribute_of(node_of(m, "MaxPool"), "kernel_shape"), "2,2");
    CHECK_EQ_STR(attribute_of(node_of(m, "AveragePool"), "kernel_shape"), "2,4");
    end();
}

static mpt_status block_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_forward(mpt_child(self, "norm"), in[0]);
    out[0] = mpt_add(in[0], mpt_forward(mpt_child(self, "attention"), x));
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

TEST(a_transformer_is_products_and_softmax) {
    static const char *const inputs[] = {"tokens"}, *const outputs[] = {"states"};
    CHECK(begin());
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "block", cls.forward = block_forward, cls.n_inputs = cls.n_outputs = 1;
    mpt_multi_head_config heads = mpt_multi_head_config_default();
    heads.causal = true;
    mpt_module net = mpt_module_create(context, &cls, NULL);
    mpt_add_child(net, "norm", mpt_nn_layer_norm(context, MPT_SHAPE(8), NULL));
    mpt_add_child(net, "attention", mpt_nn_multi_head_attention(context, 8, 2, &heads));
    mpt_onnx_config config = mpt_onnx_config_default();
    config.inputs = inputs, config.outputs = outputs, config.batch = "N";
    const char *path = test_tmp_path("block.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 5, 8), path, &config), MPT_OK);
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(is_ordered(m));
    CHECK_EQ_STR(m->input[0].name, "tokens");
    CHECK_EQ_STR(m->input[0].shape, "[N,5,8]");
    CHECK_EQ_STR(m->output[0].name, "states");
    CHECK_EQ_STR(m->output[0].shape, "[N,5,8]");
    const node_read *norm = node_of(m, "LayerNormalization"), *softmax = node_of(m, "Softmax");
    REQUIRE(norm && softmax);
    CHECK_EQ_STR(norm->input[1], "norm.weight");
    CHECK_EQ_STR(attribute_of(norm, "axis"), "-1");
    CHECK_EQ_STR(attribute_of(norm, "epsilon"), "1e-05");
    CHECK_EQ_STR(attribute_of(softmax, "axis"), "-1");
    CHECK_CONTAINS(softmax->name, "attention/scaled_dot_product_attention_");
    CHECK(tensor_of(m, "attention.in_proj_weight") && tensor_of(m, "attention.out_proj.bias"));
    const tensor_read *mask = NULL;
    for (int i = 0; i < m->tensors; i++)
        if (m->tensor[i].type == 9) mask = &m->tensor[i];
    REQUIRE(mask && mask->raw.size == 25);
    for (int i = 0; i < 25; i++) CHECK_EQ_INT(mask->raw.data[i], i % 5 <= i / 5);
    end();
}

TEST(recurrent_layers_are_nodes_of_their_kind) {
    static const int batch_dims[] = {1};
    CHECK(begin());
    mpt_recurrent_config rc = mpt_recurrent_config_default();
    rc.bidirectional = true;
    mpt_module net = mpt_nn_lstm(context, 3, 4, &rc);
    mpt_onnx_config config = mpt_onnx_config_default();
    config.batch_dims = batch_dims;
    const char *path = test_tmp_path("lstm.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(6, 2, 3), path, &config), MPT_OK);
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(is_ordered(m));
    CHECK_EQ_STR(m->input[0].shape, "[6,batch,3]");
    CHECK_EQ_STR(m->output[0].shape, "[6,batch,8]");
    int layers = 0;
    for (int i = 0; i < m->nodes; i++) {
        const node_read *node = &m->node[i];
        if (strcmp(node->type, "LSTM") != 0) continue;
        CHECK_EQ_STR(attribute_of(node, "hidden_size"), "4");
        CHECK_EQ_STR(attribute_of(node, "direction"), layers++ ? "reverse" : "forward");
        CHECK(node->inputs >= 4 && node->outputs == 3);
    }
    CHECK_EQ_INT(layers, 2);
    const tensor_read *weight = tensor_of(m, "weight_hh_l0_reverse");
    REQUIRE(weight != NULL);
    CHECK(has_bits(weight, mpt_parameter(net, "weight_hh_l0_reverse"), weight->raw.data));
    net = mpt_nn_gru(context, 3, 4, NULL);
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(6, 2, 3), path, &config), MPT_OK);
    m = read_model(path);
    REQUIRE(m != NULL);
    CHECK_EQ_STR(attribute_of(node_of(m, "GRU"), "linear_before_reset"), "1");
    rc.relu = true, rc.bidirectional = false;
    net = mpt_nn_rnn(context, 3, 4, &rc);
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(6, 2, 3), path, &config), MPT_OK);
    m = read_model(path);
    REQUIRE(m != NULL);
    CHECK_EQ_STR(attribute_of(node_of(m, "RNN"), "activations"), "Relu");
    end();
}

/* ==== Halves, files, sizes ==== */

TEST(halves_stay_halves) {
    CHECK(begin());
    mpt_module net = mlp();
    const char *path = test_tmp_path("half.onnx");
    mpt_autocast_begin(context, MPT_F16);
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 12), path, NULL), MPT_OK);
    mpt_autocast_end(context);
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK_EQ_STR(kinds_of(m), "Cast Cast Cast Gemm Relu Cast Cast Gemm Cast LogSoftmax Identity");
    CHECK_EQ_STR(attribute_of(&m->node[0], "to"), "10");
    CHECK(tensor_of(m, "1.weight") && tensor_of(m, "1.weight")->type == 1);
    CHECK(m->output[0].type == 1); /* softmax is fp32 in such a region */
    static const mpt_dtype halves[] = {MPT_F16, MPT_BF16};
    for (int i = 0; i < 2; i++) {
        net = mlp();
        mpt_half(net, halves[i]);
        mpt_tensor x = mpt_cast(mpt_randn(context, MPT_F32, MPT_SHAPE(2, 12)), halves[i]);
        CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, path, NULL, why, sizeof why), MPT_OK);
        m = read_model(path);
        REQUIRE(m != NULL);
        const tensor_read *weight = tensor_of(m, "1.weight");
        REQUIRE(weight != NULL);
        CHECK_EQ_INT(weight->type, i ? 16 : 10);
        CHECK(has_bits(weight, mpt_parameter(net, "1.weight"), weight->raw.data));
        CHECK_EQ_INT(m->input[0].type, i ? 16 : 10);
    }
    end();
}

TEST(large_weights_stand_beside) {
    static uint8_t data[1 << 18], again[1 << 18], model[1 << 16];
    CHECK(begin());
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 40, 30),
                                    mpt_nn_linear(context, 30, 20), MPT_END);
    mpt_onnx_config config = mpt_onnx_config_default();
    config.beside = 7000; /* 7,280 bytes are more */
    const char *path = test_tmp_path("large.onnx");
    char beside[300];
    snprintf(beside, sizeof beside, "%s.data", path);
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 40), path, &config), MPT_OK);
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    const size_t bytes = file_bytes(beside, data, sizeof data);
    static const char *const names[] = {"0.weight", "1.weight"};
    for (int i = 0; i < 2; i++) {
        const tensor_read *t = tensor_of(m, names[i]);
        REQUIRE(t && t->beside && t->raw.size == 0 && t->offset % 4096 == 0);
        REQUIRE((size_t)(t->offset + t->length) <= bytes);
        CHECK(has_bits(t, mpt_parameter(net, names[i]), data + t->offset));
        CHECK(!strchr(t->location, '/') && strstr(beside, t->location));
    }
    CHECK(!tensor_of(m, "0.bias")->beside);
    const size_t size = m->size;
    memcpy(model, m->bytes, size);
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 40), path, &config), MPT_OK);
    CHECK_EQ_INT(file_bytes(beside, again, sizeof again), bytes);
    CHECK_EQ_BITS(again, data, bytes);
    m = read_model(path);
    REQUIRE(m && m->size == size);
    CHECK_EQ_BITS(m->bytes, model, size);
    end();
    remove(beside);
}

/* The batch in the middle of a shape, and in numbers that a program computes of it. */
static mpt_status sizes_forward(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    const int64_t n = mpt_get_shape(in[0]).dim[0];
    mpt_tensor zeros = mpt_zeros(self.context, MPT_F32, MPT_SHAPE(n, 1));
    mpt_tensor parts[2] = {mpt_add(in[0], zeros),
                           mpt_full(self.context, MPT_F32, MPT_SHAPE(1, 6), 0.5)};
    out[0] = mpt_reshape(mpt_cat(parts, 2, 0), MPT_SHAPE(2, n + 1, 3));
    return mpt_failed(self.context) ? MPT_ERROR_STATE : MPT_OK;
}

static mpt_module module_of(mpt_status (*forward)(mpt_module, void *, const mpt_tensor *, int,
                                                  mpt_tensor *, int)) {
    mpt_module_class cls;
    memset(&cls, 0, sizeof cls);
    cls.name = "own", cls.forward = forward, cls.n_inputs = cls.n_outputs = 1;
    return mpt_sequential(context, mpt_module_create(context, &cls, NULL), MPT_END);
}

TEST(sizes_go_with_the_batch_or_stay) {
    CHECK(begin());
    mpt_module net = module_of(sizes_forward);
    const char *path = test_tmp_path("sizes.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(3, 6), path, NULL), MPT_OK);
    CHECK_EQ_STR(why, "");
    const model_read *m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(is_ordered(m) && node_of(m, "Shape") && node_of(m, "Expand"));
    CHECK_EQ_STR(m->output[0].shape, "[2,batch+1,3]");
    mpt_onnx_config config = mpt_onnx_config_default();
    config.batch = NULL;
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(3, 6), path, &config), MPT_OK);
    m = read_model(path);
    REQUIRE(m != NULL);
    CHECK(!node_of(m, "Shape") && !node_of(m, "Expand"));
    CHECK_EQ_STR(m->output[0].shape, "[2,4,3]");
    config = mpt_onnx_config_default(); /* of one sample the same is seen */
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(1, 6), path, &config), MPT_OK);
    m = read_model(path);
    REQUIRE(m != NULL);
    CHECK_EQ_STR(m->output[0].shape, "[2,batch+1,3]");
    config.batch = NULL;
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(3, 6), path, &config), MPT_OK);
    m = read_model(path);
    REQUIRE(m != NULL);
    CHECK_EQ_STR(m->input[0].shape, "[3,6]");
    CHECK_EQ_STR(m->output[0].shape, "[2,4,3]");
    end();
}

/* ==== What cannot be written ==== */

static mpt_status own_op_forward(mpt_op_call *call, void *user) {
    (void)user;
    return mpt_op_set_output(call, 0, mpt_mul_scalar(mpt_op_input(call, 0), 2.0));
}
static mpt_op own_op;
static mpt_status with_own_op(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                              mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in;
    return mpt_op_apply(own_op, in, 1, out, n_out);
}
/* Written by way of a view: what x is then no node tells. */
static mpt_status behind_a_view(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                                mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    mpt_tensor x = mpt_clone(in[0]);
    mpt_relu_(mpt_slice(x, 1, 0, 1, 1));
    out[0] = mpt_neg(x);
    return MPT_OK;
}
static mpt_status filled(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    mpt_tensor made = mpt_zeros(self.context, MPT_F32, MPT_SHAPE(2));
    out[0] = mpt_add(in[0], made);
    mpt_fill_(made, 1.0);
    return MPT_OK;
}
static mpt_status counted(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                          mpt_tensor *out, int n_out) {
    (void)user, (void)n_in, (void)n_out;
    float numbers[64];
    const int64_t n = mpt_get_shape(in[0]).dim[0];
    for (int64_t i = 0; i < 64; i++) numbers[i] = (float)i;
    out[0] = mpt_add(in[0], mpt_from(self.context, MPT_F32, MPT_SHAPE(n, 1), numbers));
    return MPT_OK;
}
static mpt_status branching(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                            mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_get_shape(in[0]).dim[0] > 4 ? mpt_relu(in[0]) : mpt_neg(in[0]);
    return MPT_OK;
}
/* Rows of positions that are samples. */
static mpt_status turned(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                         mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_rope(in[0], NULL);
    return MPT_OK;
}
static mpt_status failing(mpt_module self, void *user, const mpt_tensor *in, int n_in,
                          mpt_tensor *out, int n_out) {
    (void)self, (void)user, (void)n_in, (void)n_out;
    out[0] = mpt_matmul(in[0], in[0]);
    return MPT_OK;
}

TEST(what_has_no_form_is_named_and_writes_nothing) {
    static const struct {
        mpt_status (*forward)(mpt_module, void *, const mpt_tensor *, int, mpt_tensor *, int);
        const char *what;
    } cases[] = {{with_own_op, "double of module \"0\": an op of the program's own"},
                 {behind_a_view, "neg of module \"0\": memory that is changed in place"},
                 {filled, "memory that is changed in place"},
                 {counted, "constant of module \"\": a tensor made in forward whose numbers go"},
                 {branching, "the net does something else with a batch twice as large"},
                 {turned, "rope of module \"0\": a size that goes with the batch where"}};
    CHECK(begin());
    mpt_op_class op;
    memset(&op, 0, sizeof op);
    op.name = "double", op.forward = own_op_forward, op.n_inputs = op.n_outputs = 1;
    own_op = mpt_op_register(context, &op, NULL);
    const char *path = test_tmp_path("none.onnx");
    char beside[300];
    snprintf(beside, sizeof beside, "%s.new", path);
    uint8_t byte[8] = "before";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file_make(path, byte, 6);
        CHECK_EQ_INT(export_of(module_of(cases[i].forward), MPT_SHAPE(3, 2), path, NULL),
                     MPT_ERROR_UNSUPPORTED);
        CHECK_CONTAINS(why, cases[i].what);
        CHECK(!mpt_failed(context));
        uint8_t after[8];
        CHECK(file_bytes(path, after, sizeof after) == 6 && memcmp(after, byte, 6) == 0);
        CHECK_EQ_INT(file_bytes(beside, after, sizeof after), 0);
    }
    CHECK_EQ_INT(export_of(module_of(failing), MPT_SHAPE(3, 2), path, NULL), MPT_ERROR_SHAPE);
    CHECK_EQ_STR(why, mpt_error(context));
    CHECK_EQ_INT(export_of(mlp(), MPT_SHAPE(2, 12), path, NULL), MPT_ERROR_SHAPE);
    end();
}

TEST(mistakes_are_named) {
    static const char *const twice[] = {"1.weight"};
    CHECK(begin());
    mpt_module net = mlp(), none;
    memset(&none, 0, sizeof none);
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(2, 12));
    const char *path = test_tmp_path("mistakes.onnx");
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, NULL, NULL, why, sizeof why), MPT_ERROR_ARGUMENT);
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, "", NULL, NULL, 0), MPT_ERROR_ARGUMENT);
    CHECK_EQ_INT(mpt_onnx_export(net, NULL, 1, path, NULL, NULL, 0), MPT_ERROR_ARGUMENT);
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 0, path, NULL, why, sizeof why), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(why, "a path and an array of inputs");
    CHECK_EQ_INT(mpt_onnx_export(none, &x, 1, path, NULL, NULL, 0), MPT_ERROR_HANDLE);
    mpt_onnx_config config = mpt_onnx_config_default();
    config.inputs = twice;
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 12), path, &config), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(why, "two values are called \"1.weight\"");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(0, 12), path, NULL), MPT_ERROR_ARGUMENT);
    CHECK_CONTAINS(why, "set batch_dims");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 12), "there/is/no/such/net.onnx", NULL),
                 MPT_ERROR_IO);
    CHECK_CONTAINS(why, "there/is/no/such/net.onnx cannot be opened: ");
    CHECK(!mpt_failed(context));
    char few[6];
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, "", NULL, few, sizeof few), MPT_ERROR_ARGUMENT);
    CHECK_EQ_STR(few, "expec");
    mpt_release(x);
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, path, NULL, why, sizeof why), MPT_ERROR_HANDLE);
    CHECK_EQ_INT(mpt_onnx_export(net, &x, 1, path, NULL, why, sizeof why), MPT_ERROR_HANDLE);
    end();
}

/* The op table as mptrain.h tells it is the one of the exporter. */
TEST(all_ops_are_known) {
    static char policy[16384];
    static const char missing[] = " scale_loss user ";
    int known = 0;
    mpt_autocast_policy(policy, sizeof policy);
    for (char *line = strtok(policy, "\n"); line; line = strtok(NULL, "\n")) {
        char *colon = strchr(line, ':'), word[80];
        if (!colon) continue;
        *colon = '\0';
        snprintf(word, sizeof word, " %s ", line);
        if (!mpt_onnx_form(line) == !strstr(missing, word)) printf("\n  %s", line);
        CHECK(!mpt_onnx_form(line) == !!strstr(missing, word));
        known += mpt_onnx_form(line) != NULL;
    }
    CHECK(known > 90);
    CHECK_EQ_STR(mpt_onnx_form("linear"), "Gemm");
    CHECK_EQ_STR(mpt_onnx_form("gelu"), "composed");
    CHECK(!mpt_onnx_form("no such op") && !mpt_onnx_form(NULL));
}

#ifdef _WIN32
TEST(full_disks_leave_what_was_there) { SKIP("a limit for the size of files"); }
#else
static bool limit_files(rlim_t bytes) {
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    limit.rlim_cur = bytes ? bytes : limit.rlim_max;
    return setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

TEST(full_disks_leave_what_was_there) {
    static uint8_t whole[1 << 16], after[1 << 16];
    char beside[300];
    CHECK(begin());
    mpt_module net = mpt_sequential(context, mpt_nn_linear(context, 60, 60), MPT_END);
    const char *path = test_tmp_path("full.onnx");
    CHECK_EQ_INT(export_of(net, MPT_SHAPE(2, 60), path, NULL), MPT_OK);
    const size_t size = file_bytes(path, whole, sizeof whole);
    CHECK(size > 14400);
    snprintf(beside, sizeof beside, "%s.data", path);
    remove(beside);
    mpt_onnx_config config = mpt_onnx_config_default();
    for (int round = 0; round < 2; round++) {
        config.beside = round ? 1 : (int64_t)1 << 30;
        if (!limit_files(5000)) SKIP("a limit for the size of files");
        const mpt_status status = export_of(net, MPT_SHAPE(2, 60), path, &config);
        limit_files(0);
        CHECK_EQ_INT(status, MPT_ERROR_IO);
        CHECK_CONTAINS(why, round ? "full.onnx.data cannot be written: "
                                  : "full.onnx cannot be written: ");
        CHECK_EQ_INT(file_bytes(path, after, sizeof after), size);
        CHECK_EQ_BITS(after, whole, size);
        for (int k = 0; k < 3; k++) {
            static const char *const ends[] = {".new", ".data", ".data.new"};
            snprintf(beside, sizeof beside, "%s%s", path, ends[k]);
            CHECK_EQ_INT(file_bytes(beside, after, sizeof after), 0);
        }
        why[0] = '\0';
    }
    end();
}
#endif

TEST(without_memory_nothing_is_written) {
    static uint8_t after[1 << 12];
    CHECK(begin());
    mpt_recurrent_config rc = mpt_recurrent_config_default();
    rc.projection = 2;
    mpt_module net = mpt_nn_lstm(context, 3, 4, &rc);
    const char *path = test_tmp_path("memory.onnx");
    mpt_tensor x = mpt_zeros(context, MPT_F32, MPT_SHAPE(2, 3, 3));
    for (int named = 0; named < 2; named++) {
        static const int dims[] = {1};
        mpt_onnx_config config = mpt_onnx_config_default();
        mpt_status status = MPT_ERROR_MEMORY;
        config.batch_dims = dims;
        if (!named) config.batch = NULL;
        remove(path);
        int blocks = 0;
        for (; status == MPT_ERROR_MEMORY && blocks < 10000; blocks++) {
            CHECK_EQ_INT(file_bytes(path, after, sizeof after), 0);
            blocks_left = blocks + 1;
            status = mpt_onnx_export(net, &x, 1, path, &config, why, sizeof why);
            blocks_left = -1;
            if (status == MPT_ERROR_MEMORY) CHECK_EQ_STR(why, "out of memory");
        }
        CHECK(status == MPT_OK && blocks > 50);
        CHECK(!mpt_failed(context) && read_model(path));
    }
    end();
}

TEST_TABLE = {T(an_mlp_has_its_names_shapes_and_numbers),
              T(a_convolutional_net_has_its_numbers_and_statistics),
              T(a_transformer_is_products_and_softmax), T(recurrent_layers_are_nodes_of_their_kind),
              T(halves_stay_halves), T(large_weights_stand_beside),
              T(sizes_go_with_the_batch_or_stay), T(what_has_no_form_is_named_and_writes_nothing),
              T(mistakes_are_named), T(all_ops_are_known), T(full_disks_leave_what_was_there),
              T(without_memory_nothing_is_written)};
#else
TEST(exporting_is_absent) {
    CHECK(begin());
    CHECK_EQ_INT(export_of(mlp(), MPT_SHAPE(2, 12), test_tmp_path("none.onnx"), NULL),
                 MPT_ERROR_UNSUPPORTED);
    CHECK_CONTAINS(why, "WATCH)");
    end();
}
TEST_TABLE = {T(exporting_is_absent)};
#endif
TEST_MAIN
