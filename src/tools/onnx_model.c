/* ----
 * tools/onnx_model.c: an ONNX model in the making: values, nodes, weights, sizes that go with the
 * batch. Field numbers are those of onnx.proto3.
 * ---- */
#ifndef MPT__ONNX_MODEL_INCLUDED
#define MPT__ONNX_MODEL_INCLUDED

#include "face/onnx.h"
#include "graph_event.c"

/* A value of the model. */
typedef struct {
    char *name;
    mpt_dtype dtype;
    int cast[MPT_DTYPE_COUNT]; /* 1 + the value that is this one in another dtype; 0: none is */
} mpt__onnx_value;

/* A tensor that the file holds: of the net, or made here. */
typedef struct {
    int value;
    mpt_shape shape;
    mpt_tensor tensor;
    unsigned char *data; /* NULL: that of the tensor */
    int64_t bytes, offset; /* offset: in the file beside; -1: in the model */
} mpt__onnx_weight;

typedef struct {
    mpt_context *context;
    const mpt_onnx_config *config;
    const mpt_tensor *inputs;
    int n_inputs;
    mpt_graph graph, twin; /* twin: of a batch twice as large, where sizes go with it */
    bool varies;
    int64_t batch[2]; /* sizes of both */
    int at;           /* the node under way, .. */
    const mpt_node *node, *other; /* .. and the same in the twin, or in the graph itself */
    int made;                     /* values that it has made */
    int *results;                 /* by node and output */
    mpt__onnx_value *values;
    mpt__onnx_weight *weights;
    int value_count, value_room, weight_count, weight_room;
    int batch_value;                    /* the batch's size as a value; -1: nobody has asked */
    mpt__tools_bytes nodes, attributes; /* attributes: of the node to come */
    mpt_status status;
    mpt__tools_note why;
} mpt__onnx;

/* ==== Failing ==== */

/* -1, as a value that there is none of. */
static int mpt__onnx_out_of_memory(mpt__onnx *o) {
    if (o->status == MPT_OK) {
        o->status = MPT_ERROR_MEMORY;
        mpt__tools_note_add(&o->why, "out of memory");
    }
    return -1;
}

/* Where the op under way is: "linear of module 0.1". */
static void mpt__onnx_note_place(mpt__onnx *o) {
    mpt__tools_note_add(&o->why, "%s of module \"%s\"", o->node->name, o->node->module);
}

/* The op under way cannot be written. */
static int mpt__onnx_fail(mpt__onnx *o, const char *reason) {
    if (o->status != MPT_OK) return -1;
    o->status = MPT_ERROR_UNSUPPORTED;
    mpt__onnx_note_place(o);
    mpt__tools_note_add(&o->why, ": %s", reason);
    return -1;
}

/* ==== Values ==== */

static int mpt__onnx_value_new(mpt__onnx *o, const char *name, mpt_dtype dtype) {
    if (o->value_count == o->value_room) {
        const int room = o->value_room ? 2 * o->value_room : 256;
        mpt__onnx_value *values =
            (mpt__onnx_value *)mpt__tools_allocate((size_t)room * sizeof *values);
        if (!values) return mpt__onnx_out_of_memory(o);
        if (o->value_count) memcpy(values, o->values, (size_t)o->value_count * sizeof *values);
        mpt__tools_release(o->values);
        o->values = values, o->value_room = room;
    }
    mpt__onnx_value *value = &o->values[o->value_count];
    const size_t length = strlen(name);
    value->name = (char *)mpt__tools_allocate(length + 1);
    if (!value->name) return mpt__onnx_out_of_memory(o);
    memcpy(value->name, name, length + 1);
    value->dtype = dtype;
    return o->value_count++;
}

/* A value that the op under way makes: "encoder.0/linear_7", then "encoder.0/linear_7.1" .. */
static int mpt__onnx_made(mpt__onnx *o, mpt_dtype dtype) {
    char name[1200];
    mpt__tools_note note = mpt__tools_note_begin(name, sizeof name);
    mpt__tools_note_add(
        &note, "%s/%s_%lld", o->node->module, o->node->name, (long long)o->at);
    if (o->made++ > 0) mpt__tools_note_add(&note, ".%lld", (long long)(o->made - 1));
    return mpt__onnx_value_new(o, name, dtype);
}

static const char *mpt__onnx_name(const mpt__onnx *o, int value) {
    return value < 0 ? "" : o->values[value].name;
}

static mpt_dtype mpt__onnx_dtype(const mpt__onnx *o, int value) {
    return value < 0 ? MPT_F32 : o->values[value].dtype;
}

/* TensorProto.DataType; 0: none. */
static int mpt__onnx_type(mpt_dtype dtype) {
    static const unsigned char types[MPT_DTYPE_COUNT] = {0, 1, 10, 16, 17, 19, 11, 7, 6, 2, 9};
    return dtype > MPT_DTYPE_NONE && dtype < MPT_DTYPE_COUNT ? types[dtype] : 0;
}

static bool mpt__onnx_is_float(mpt_dtype dtype) {
    return dtype >= MPT_F32 && dtype <= MPT_F64;
}

/* ==== Nodes ==== */

enum {
    MPT__ONNX_NODE = 1, /* of a graph .. */
    MPT__ONNX_GRAPH_NAME = 2,
    MPT__ONNX_INITIALIZER = 5,
    MPT__ONNX_INPUT = 11,
    MPT__ONNX_OUTPUT = 12,
    MPT__ONNX_VALUE_INFO = 13,
    MPT__ONNX_NODE_INPUT = 1, /* of a node .. */
    MPT__ONNX_NODE_OUTPUT = 2,
    MPT__ONNX_NODE_NAME = 3,
    MPT__ONNX_NODE_TYPE = 4,
    MPT__ONNX_NODE_ATTRIBUTE = 5,
    MPT__ONNX_FLOAT = 1, /* AttributeProto.AttributeType */
    MPT__ONNX_INT = 2,
    MPT__ONNX_STRING = 3,
    MPT__ONNX_GRAPH = 5,
    MPT__ONNX_INTS = 7,
    MPT__ONNX_STRINGS = 8
};

static size_t mpt__onnx_attribute_begin(mpt__onnx *o, const char *key) {
    const size_t message = mpt__tools_message_begin(&o->attributes, MPT__ONNX_NODE_ATTRIBUTE);
    mpt__tools_put_text_field(&o->attributes, 1, key);
    return message;
}

static void mpt__onnx_attribute_end(mpt__onnx *o, size_t message, int type) {
    mpt__tools_put_int_field(&o->attributes, 20, type);
    mpt__tools_message_end(&o->attributes, message);
}

/* Attributes of the node to come. */
static void mpt__onnx_int(mpt__onnx *o, const char *key, int64_t value) {
    const size_t message = mpt__onnx_attribute_begin(o, key);
    mpt__tools_put_int_field(&o->attributes, 3, value);
    mpt__onnx_attribute_end(o, message, MPT__ONNX_INT);
}
static void mpt__onnx_ints(mpt__onnx *o, const char *key, const int64_t *values, int count) {
    const size_t message = mpt__onnx_attribute_begin(o, key);
    for (int i = 0; i < count; i++) mpt__tools_put_int_field(&o->attributes, 8, values[i]);
    mpt__onnx_attribute_end(o, message, MPT__ONNX_INTS);
}
static void mpt__onnx_float(mpt__onnx *o, const char *key, double value) {
    const size_t message = mpt__onnx_attribute_begin(o, key);
    const float narrow = (float)value;
    uint32_t bits;
    memcpy(&bits, &narrow, sizeof bits);
    mpt__tools_put_field(&o->attributes, 2, MPT__TOOLS_WIRE_32);
    mpt__tools_put_little(&o->attributes, bits, 4);
    mpt__onnx_attribute_end(o, message, MPT__ONNX_FLOAT);
}
static void mpt__onnx_text(mpt__onnx *o, const char *key, const char *text) {
    const size_t message = mpt__onnx_attribute_begin(o, key);
    mpt__tools_put_text_field(&o->attributes, 4, text);
    mpt__onnx_attribute_end(o, message, MPT__ONNX_STRING);
}
static void mpt__onnx_texts(mpt__onnx *o, const char *key, const char *text) {
    const size_t message = mpt__onnx_attribute_begin(o, key);
    mpt__tools_put_text_field(&o->attributes, 9, text);
    mpt__onnx_attribute_end(o, message, MPT__ONNX_STRINGS);
}

/* A value of a graph within the graph, of any shape. */
static void mpt__onnx_put_typed(const mpt__onnx *o, mpt__tools_bytes *to, int field, int value) {
    const size_t info = mpt__tools_message_begin(to, field);
    mpt__tools_put_text_field(to, 1, mpt__onnx_name(o, value));
    const size_t type = mpt__tools_message_begin(to, 2);
    const size_t tensor = mpt__tools_message_begin(to, 1);
    mpt__tools_put_int_field(to, 1, mpt__onnx_type(mpt__onnx_dtype(o, value)));
    mpt__tools_message_end(to, tensor);
    mpt__tools_message_end(to, type);
    mpt__tools_message_end(to, info);
}

/* A node with the attributes that were set. An input of -1 is left out; so is an output. */
static void mpt__onnx_put_many(
    mpt__onnx *o, const char *type, const int *in, int n_in, const int *out, int n_out) {
    mpt__tools_bytes *to = &o->nodes;
    while (n_in > 0 && in[n_in - 1] < 0) n_in--;
    const size_t message = mpt__tools_message_begin(to, MPT__ONNX_NODE);
    for (int i = 0; i < n_in; i++)
        mpt__tools_put_text_field(to, MPT__ONNX_NODE_INPUT, mpt__onnx_name(o, in[i]));
    for (int i = 0; i < n_out; i++)
        mpt__tools_put_text_field(to, MPT__ONNX_NODE_OUTPUT, mpt__onnx_name(o, out[i]));
    const char *name = "";
    for (int i = n_out; i-- > 0;)
        if (out[i] >= 0) name = mpt__onnx_name(o, out[i]);
    mpt__tools_put_text_field(to, MPT__ONNX_NODE_NAME, name);
    mpt__tools_put_text_field(to, MPT__ONNX_NODE_TYPE, type);
    if (o->attributes.size) mpt__tools_bytes_put(to, o->attributes.data, o->attributes.size);
    mpt__tools_message_end(to, message);
    if (to->failed || o->attributes.failed) mpt__onnx_out_of_memory(o);
    o->attributes.size = 0;
}

static int mpt__onnx_put(
    mpt__onnx *o, const char *type, const int *in, int n_in, mpt_dtype dtype) {
    const int out = mpt__onnx_made(o, dtype);
    mpt__onnx_put_many(o, type, in, n_in, &out, 1);
    return out;
}

/* Of one input and two, whose dtype, that of the first, the result has. */
static int mpt__onnx_one(mpt__onnx *o, const char *type, int a) {
    return mpt__onnx_put(o, type, &a, 1, mpt__onnx_dtype(o, a));
}
static int mpt__onnx_two(mpt__onnx *o, const char *type, int a, int b) {
    const int in[] = {a, b};
    return mpt__onnx_put(o, type, in, 2, mpt__onnx_dtype(o, a));
}

static int mpt__onnx_cast(mpt__onnx *o, int value, mpt_dtype dtype) {
    if (value < 0 || o->values[value].dtype == dtype) return value;
    if (o->values[value].cast[dtype]) return o->values[value].cast[dtype] - 1;
    if (!mpt__onnx_type(dtype)) return mpt__onnx_fail(o, "a dtype that ONNX does not have");
    mpt__onnx_int(o, "to", mpt__onnx_type(dtype));
    const int out = mpt__onnx_put(o, "Cast", &value, 1, dtype);
    if (out >= 0) o->values[value].cast[dtype] = out + 1;
    return out;
}

/* ==== The op under way ==== */

/* What it reads as input i; -1: nothing. */
static int mpt__onnx_in(mpt__onnx *o, int i) {
    if (i >= o->node->inputs) return -1;
    const mpt_edge edge = o->node->input[i];
    return edge.node < 0 ? -1 : o->results[edge.node * MPT_NODE_OUTPUTS + edge.output];
}
static int mpt__onnx_in_as(mpt__onnx *o, int i, mpt_dtype dtype) {
    return mpt__onnx_cast(o, mpt__onnx_in(o, i), dtype);
}
static int mpt__onnx_wide(mpt__onnx *o, int i) { return mpt__onnx_in_as(o, i, MPT_F32); }

/* The shape of input i in the graph, or, second, in the twin. */
static const mpt_shape *mpt__onnx_shape(const mpt__onnx *o, int i, int second) {
    const mpt_edge edge = o->node->input[i];
    return &mpt_graph_node(second && o->varies ? o->twin : o->graph, edge.node)
                ->shape[edge.output];
}
static int mpt__onnx_rank(const mpt__onnx *o, int i) { return mpt__onnx_shape(o, i, 0)->rank; }

/* The sizes of input i from dimension `from` on are written down as they are: they may not go with
   the batch. */
static void mpt__onnx_fixed(mpt__onnx *o, int i, int from) {
    if (i >= o->node->inputs || o->node->input[i].node < 0) return;
    const mpt_shape *shape = mpt__onnx_shape(o, i, 0), *other = mpt__onnx_shape(o, i, 1);
    for (int d = from < 0 ? 0 : from; d < shape->rank; d++)
        if (shape->dim[d] != other->dim[d])
            mpt__onnx_fail(o, "a size that goes with the batch where ONNX wants a number");
}

/* Output k of the op is this value, in the dtype that it has in the net. */
static void mpt__onnx_give(mpt__onnx *o, int k, int value) {
    if (k < o->node->outputs)
        o->results[o->at * MPT_NODE_OUTPUTS + k] = mpt__onnx_cast(o, value, o->node->dtype[k]);
}

/* The dtype in which elements are added and multiplied: fp16 where all is, else fp32. Runtimes have
   few kernels of bf16, and each is the same as one of fp32 whose result is rounded. */
static mpt_dtype mpt__onnx_real(const mpt__onnx *o) {
    return o->node->dtype[0] == MPT_F16 ? MPT_F16 : MPT_F32;
}

/* Input i as a factor of a product: rounded to what the op computes in. */
static int mpt__onnx_factor(mpt__onnx *o, int i, mpt_dtype real) {
    const mpt_dtype compute = o->node->compute;
    int value = mpt__onnx_in(o, i);
    if (compute == MPT_F8E4M3 || compute == MPT_F8E5M2)
        return mpt__onnx_fail(o, "products of fp8, whose scales the net keeps to itself");
    if (compute == MPT_F16 || compute == MPT_BF16) value = mpt__onnx_cast(o, value, compute);
    return mpt__onnx_cast(o, value, real);
}

static mpt_dtype mpt__onnx_product(const mpt__onnx *o) {
    return o->node->compute == MPT_F16 && o->node->dtype[0] == MPT_F16 ? MPT_F16 : MPT_F32;
}

/* ==== Tensors of the file ==== */

static mpt__onnx_weight *mpt__onnx_weight_new(mpt__onnx *o, int value, const mpt_shape *shape) {
    if (value < 0) return NULL;
    if (o->weight_count == o->weight_room) {
        const int room = o->weight_room ? 2 * o->weight_room : 128;
        mpt__onnx_weight *weights =
            (mpt__onnx_weight *)mpt__tools_allocate((size_t)room * sizeof *weights);
        if (!weights) {
            mpt__onnx_out_of_memory(o);
            return NULL;
        }
        if (o->weight_count) memcpy(weights, o->weights, (size_t)o->weight_count * sizeof *weights);
        mpt__tools_release(o->weights);
        o->weights = weights, o->weight_room = room;
    }
    mpt__onnx_weight *weight = &o->weights[o->weight_count++];
    weight->value = value;
    weight->shape = *shape;
    weight->offset = -1;
    weight->bytes = mpt__tools_shape_numel(shape) *
        (int64_t)mpt_dtype_size(o->values[value].dtype);
    return weight;
}

/* A constant made here, little-endian; the same one is there once. */
static int mpt__onnx_constant(
    mpt__onnx *o, mpt_dtype dtype, const mpt_shape *shape, const mpt__tools_bytes *data) {
    char name[40];
    int number = 0;
    if (data->failed) return mpt__onnx_out_of_memory(o);
    for (int i = 0; i < o->weight_count; i++) {
        const mpt__onnx_weight *w = &o->weights[i];
        if (!w->data) continue;
        number++;
        if (o->values[w->value].dtype == dtype && w->bytes == (int64_t)data->size &&
            w->shape.rank == shape->rank &&
            memcmp(w->shape.dim, shape->dim, (size_t)shape->rank * sizeof *shape->dim) == 0 &&
            memcmp(w->data, data->data, data->size) == 0)
            return w->value;
    }
    mpt__tools_note note = mpt__tools_note_begin(name, sizeof name);
    mpt__tools_note_add(&note, "constant/%lld", (long long)number);
    mpt__onnx_weight *weight =
        mpt__onnx_weight_new(o, mpt__onnx_value_new(o, name, dtype), shape);
    if (!weight) return -1;
    weight->data = (unsigned char *)mpt__tools_allocate(data->size);
    if (!weight->data) return mpt__onnx_out_of_memory(o);
    if (data->size) memcpy(weight->data, data->data, data->size);
    return weight->value;
}

/* fp32 numbers. */
static int mpt__onnx_floats(mpt__onnx *o, const double *values, mpt_shape shape) {
    mpt__tools_bytes data = {NULL, 0, 0, false};
    const int64_t count = mpt__tools_shape_numel(&shape);
    for (int64_t i = 0; i < count; i++) {
        const float narrow = (float)values[i];
        uint32_t bits;
        memcpy(&bits, &narrow, sizeof bits);
        mpt__tools_put_little(&data, bits, 4);
    }
    const int out = mpt__onnx_constant(o, MPT_F32, &shape, &data);
    mpt__tools_bytes_free(&data);
    return out;
}
static int mpt__onnx_number(mpt__onnx *o, double value) {
    return mpt__onnx_floats(o, &value, MPT_SCALAR);
}

/* The same number over and over. */
static int mpt__onnx_filled(mpt__onnx *o, double value, const mpt_shape *shape) {
    const int64_t count = mpt__tools_shape_numel(shape);
    double *values = (double *)mpt__tools_allocate((size_t)count * sizeof *values);
    if (!values) return mpt__onnx_out_of_memory(o);
    for (int64_t i = 0; i < count; i++) values[i] = value;
    const int out = mpt__onnx_floats(o, values, *shape);
    mpt__tools_release(values);
    return out;
}

static int mpt__onnx_integers(mpt__onnx *o, const int64_t *values, mpt_shape shape) {
    mpt__tools_bytes data = {NULL, 0, 0, false};
    const int64_t count = mpt__tools_shape_numel(&shape);
    for (int64_t i = 0; i < count; i++) mpt__tools_put_little(&data, (uint64_t)values[i], 8);
    const int out = mpt__onnx_constant(o, MPT_I64, &shape, &data);
    mpt__tools_bytes_free(&data);
    return out;
}
static int mpt__onnx_list(mpt__onnx *o, const int64_t *values, int count) {
    return mpt__onnx_integers(o, values, MPT_SHAPE(count));
}
static int mpt__onnx_integer(mpt__onnx *o, int64_t value) {
    return mpt__onnx_integers(o, &value, MPT_SHAPE(1));
}

/* ==== Sizes ==== */

/* The batch's size, [1]. */
static int mpt__onnx_batch(mpt__onnx *o) {
    for (int i = 0; o->batch_value < 0 && i < o->n_inputs; i++) {
        const int dim = o->config->batch_dims ? o->config->batch_dims[i] : 0;
        const mpt_node *input = mpt_graph_node(o->graph, i);
        if (dim < 0 || dim >= input->shape[0].rank) continue;
        mpt__onnx_int(o, "start", dim);
        mpt__onnx_int(o, "end", dim + 1);
        o->batch_value =
            mpt__onnx_put(o, "Shape", &o->results[i * MPT_NODE_OUTPUTS], 1, MPT_I64);
    }
    return o->batch_value;
}

/* A number of the graph that is `other` in the twin as times * batch + more. */
static bool mpt__onnx_goes_with(
    const mpt__onnx *o, int64_t number, int64_t other, int64_t *times, int64_t *more) {
    const int64_t step = o->batch[1] - o->batch[0];
    if (step <= 0 || (other - number) % step != 0) return false;
    *times = (other - number) / step;
    *more = number - *times * o->batch[0];
    return *times > 0 && *more >= 0;
}

/* Such a number as a value, [1]. */
static int mpt__onnx_size(mpt__onnx *o, int64_t number, int64_t other) {
    int64_t times, more;
    if (number == other) return mpt__onnx_integer(o, number);
    if (!mpt__onnx_goes_with(o, number, other, &times, &more))
        return mpt__onnx_fail(o, "a size that does not go with the batch; name no batch");
    int value = mpt__onnx_batch(o);
    if (times != 1) value = mpt__onnx_two(o, "Mul", value, mpt__onnx_integer(o, times));
    return more == 0 ? value : mpt__onnx_two(o, "Add", value, mpt__onnx_integer(o, more));
}

/* A shape as a value. */
static int mpt__onnx_dims(mpt__onnx *o, const mpt_shape *shape, const mpt_shape *other) {
    int parts[MPT_MAX_RANK], changed = 0;
    for (int i = 0; i < shape->rank; i++) changed += shape->dim[i] != other->dim[i];
    if (changed == 0) return mpt__onnx_list(o, shape->dim, shape->rank);
    for (int i = 0; i < shape->rank; i++)
        parts[i] = mpt__onnx_size(o, shape->dim[i], other->dim[i]);
    if (shape->rank == 1) return parts[0];
    mpt__onnx_int(o, "axis", 0);
    return mpt__onnx_put(o, "Concat", parts, shape->rank, MPT_I64);
}

/* A value in another shape. The one size that goes with the batch is left to the runtime. */
static int mpt__onnx_reshape(
    mpt__onnx *o, int value, const mpt_shape *shape, const mpt_shape *other) {
    mpt_shape open = *shape;
    int changed = 0, zeros = 0;
    for (int i = 0; i < shape->rank; i++) {
        if (shape->dim[i] != other->dim[i]) open.dim[i] = -1, changed++;
        zeros += shape->dim[i] == 0;
    }
    const int dims = changed == 1 && zeros == 0 ? mpt__onnx_list(o, open.dim, open.rank)
                                                : mpt__onnx_dims(o, shape, other);
    if (zeros) mpt__onnx_int(o, "allowzero", 1);
    return mpt__onnx_two(o, "Reshape", value, dims);
}

/* In sizes that the runtime fills in: 0 that of the value, -1 what is left. */
static int mpt__onnx_as(mpt__onnx *o, int value, mpt_shape shape) {
    return mpt__onnx_two(o, "Reshape", value, mpt__onnx_list(o, shape.dim, shape.rank));
}

/* In the shape of the op's output. */
static int mpt__onnx_shaped(mpt__onnx *o, int value) {
    return mpt__onnx_reshape(o, value, &o->node->shape[0], &o->other->shape[0]);
}

/* Stretched to that. Runtimes stretch no bf16. */
static int mpt__onnx_expanded(mpt__onnx *o, int value) {
    const int dims = mpt__onnx_dims(o, &o->node->shape[0], &o->other->shape[0]);
    if (mpt__onnx_dtype(o, value) == MPT_BF16) value = mpt__onnx_cast(o, value, MPT_F32);
    return mpt__onnx_cast(o, mpt__onnx_two(o, "Expand", value, dims), o->node->dtype[0]);
}

/* Dimension i of the result is dimension order[i] of the value. */
static int mpt__onnx_transpose(mpt__onnx *o, int value, mpt_shape order) {
    mpt__onnx_ints(o, "perm", order.dim, order.rank);
    return mpt__onnx_one(o, "Transpose", value);
}

/* Elements [start, stop) of a dimension. */
static int mpt__onnx_part(mpt__onnx *o, int value, int64_t dim, int64_t start, int64_t stop) {
    const int in[] = {value, mpt__onnx_integer(o, start), mpt__onnx_integer(o, stop),
        mpt__onnx_integer(o, dim)};
    return mpt__onnx_put(o, "Slice", in, 4, mpt__onnx_dtype(o, value));
}

static int mpt__onnx_concat(mpt__onnx *o, const int *parts, int count, int64_t dim) {
    if (count == 1) return parts[0];
    mpt__onnx_int(o, "axis", dim);
    return mpt__onnx_put(o, "Concat", parts, count, mpt__onnx_dtype(o, parts[0]));
}

/* A reduction over some dimensions. */
static int mpt__onnx_reduce(
    mpt__onnx *o, const char *type, int value, const int64_t *dims, int count, bool keep) {
    const int in[] = {value, mpt__onnx_list(o, dims, count)};
    mpt__onnx_int(o, "keepdims", keep);
    return mpt__onnx_put(o, type, in, 2, mpt__onnx_dtype(o, value));
}

/* value function number. */
static int mpt__onnx_with(mpt__onnx *o, const char *type, int value, double number) {
    return mpt__onnx_two(o, type, value,
        mpt__onnx_cast(o, mpt__onnx_number(o, number), mpt__onnx_dtype(o, value)));
}

static int mpt__onnx_where(mpt__onnx *o, int condition, int a, int b) {
    const int in[] = {condition, a, b};
    return mpt__onnx_put(o, "Where", in, 3, mpt__onnx_dtype(o, a));
}

/* A comparison. */
static int mpt__onnx_compare(mpt__onnx *o, const char *type, int a, int b) {
    const int in[] = {a, b};
    return mpt__onnx_put(o, type, in, 2, MPT_BOOL);
}

#endif
