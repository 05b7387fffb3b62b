/* ----
 * tools/onnx.c: a net as an ONNX file: traced, written node by node, its weights behind them.
 * ---- */
#ifndef MPT__ONNX_INCLUDED
#define MPT__ONNX_INCLUDED

#include "onnx_layers.c"

enum {
    MPT__ONNX_IR_VERSION = 8, /* what belongs to the opset */
    MPT__ONNX_SMALL = 1024,   /* bytes of a tensor that stays in the model */
    MPT__ONNX_PAGE = 4096,    /* where tensors in a file beside begin, so that it can be mapped */
    MPT__ONNX_RAW_DATA = 9,   /* of a tensor .. */
    MPT__ONNX_EXTERNAL_DATA = 13,
    MPT__ONNX_DATA_LOCATION = 14,
    MPT__ONNX_MODEL_GRAPH = 7, /* of a model .. */
    MPT__ONNX_MODEL_OPSET = 8
};

mpt_onnx_config mpt_onnx_config_default(void) {
    mpt_onnx_config config;
    memset(&config, 0, sizeof config);
    config.batch = "batch";
    config.beside = (int64_t)1 << 30;
    return config;
}

/* ==== The net, seen twice ==== */

static bool mpt__onnx_refuse(mpt__onnx *o, mpt_status status, const char *why) {
    if (o->status != MPT_OK) return false;
    o->status = status;
    mpt__tools_note_add(&o->why, "%s", why);
    return false;
}

/* Whether the context is well, else what is wrong with it is what went wrong. */
static bool mpt__onnx_well(mpt__onnx *o) {
    if (!mpt_failed(o->context)) return true;
    return mpt__onnx_refuse(o, mpt_error_code(o->context), mpt_error(o->context));
}

/* All elements of a tensor; NULL on error. */
static unsigned char *mpt__onnx_read(mpt__onnx *o, mpt_tensor tensor, size_t *bytes) {
    *bytes = (size_t)mpt_numel(tensor) * mpt_dtype_size(mpt_get_dtype(tensor));
    if (!mpt__onnx_well(o)) return NULL;
    unsigned char *data = (unsigned char *)mpt__tools_allocate(*bytes);
    if (!data) mpt__onnx_out_of_memory(o);
    if (data && mpt_read(tensor, data, *bytes) == MPT_OK) return data;
    mpt__tools_release(data);
    mpt__onnx_well(o);
    return NULL;
}

/* Which dimension of an input is the batch's; -1: none. */
static int mpt__onnx_batch_dim(const mpt__onnx *o, int i) {
    const int dim = o->config->batch_dims ? o->config->batch_dims[i] : 0;
    return dim < mpt_get_shape(o->inputs[i]).rank ? dim : -1;
}

/* An input of twice as many samples: each block of them once more. */
static mpt_tensor mpt__onnx_doubled(mpt__onnx *o, mpt_tensor x, int dim) {
    mpt_shape shape = mpt_get_shape(x);
    const mpt_dtype dtype = mpt_get_dtype(x);
    mpt_tensor none = {o->context, 0, 0}, out = none;
    size_t bytes, blocks = 1;
    unsigned char *data = mpt__onnx_read(o, x, &bytes);
    unsigned char *twice = data ? (unsigned char *)mpt__tools_allocate(2 * bytes) : NULL;
    for (int i = 0; i < dim; i++) blocks *= (size_t)shape.dim[i];
    for (size_t i = 0; twice && i < blocks && bytes; i++) {
        const size_t size = bytes / blocks;
        for (size_t k = 0; k < 2; k++)
            memcpy(twice + (2 * i + k) * size, data + i * size, size);
    }
    shape.dim[dim] *= 2;
    if (twice) out = mpt_from(o->context, dtype, shape, twice);
    if (data && !twice) mpt__onnx_out_of_memory(o);
    mpt__tools_release(data);
    mpt__tools_release(twice);
    return mpt__onnx_well(o) ? out : none;
}

/* Finds the batch's size, the same in all inputs that have one. */
static bool mpt__onnx_find_batch(mpt__onnx *o) {
    for (int i = 0; i < o->n_inputs && o->config->batch && *o->config->batch; i++) {
        const int dim = mpt__onnx_batch_dim(o, i);
        const int64_t size = dim < 0 ? 0 : mpt_get_shape(o->inputs[i]).dim[dim];
        if (dim < 0) continue;
        if (size < 1 || (o->varies && size != o->batch[0]))
            return mpt__onnx_refuse(o, MPT_ERROR_ARGUMENT,
                "inputs have batches of different sizes, or of none; set batch_dims");
        o->batch[0] = size, o->batch[1] = 2 * size;
        o->varies = true;
    }
    return true;
}

static bool mpt__onnx_same_node(const mpt_node *a, const mpt_node *b) {
    bool same = a->kind == b->kind && strcmp(a->name, b->name) == 0 &&
        strcmp(a->module, b->module) == 0 && a->inputs == b->inputs && a->outputs == b->outputs &&
        a->rank == b->rank;
    for (int i = 0; same && i < a->inputs; i++)
        same = a->input[i].node == b->input[i].node && a->input[i].output == b->input[i].output;
    for (int i = 0; same && i < a->outputs; i++)
        same = a->dtype[i] == b->dtype[i] && a->shape[i].rank == b->shape[i].rank;
    return same;
}

/* Inputs with twice the batch of those given; NULL on error. */
static mpt_tensor *mpt__onnx_twice(mpt__onnx *o, const mpt_tensor *inputs) {
    mpt_tensor *twice = (mpt_tensor *)mpt__tools_allocate((size_t)o->n_inputs * sizeof *twice);
    for (int i = 0; twice && i < o->n_inputs; i++) {
        const int dim = mpt__onnx_batch_dim(o, i);
        twice[i] = dim < 0 ? inputs[i] : mpt__onnx_doubled(o, inputs[i], dim);
    }
    if (!twice) mpt__onnx_out_of_memory(o);
    return twice;
}

static void mpt__onnx_release(const mpt__onnx *o, mpt_tensor *twice) {
    for (int i = 0; twice && i < o->n_inputs; i++)
        if (mpt__onnx_batch_dim(o, i) >= 0 && twice[i].slot) mpt_release(twice[i]);
    mpt__tools_release(twice);
}

/* Traces the net, and once more with the batch twice as large. A batch of 1 is no example: sizes of
   1 are stretched, or left out. */
static bool mpt__onnx_trace(mpt__onnx *o, mpt_module net) {
    mpt_tensor *made[2] = {NULL, NULL};
    const mpt_tensor *inputs = o->inputs;
    if (!mpt__onnx_find_batch(o) || !mpt__onnx_well(o)) return false;
    if (o->varies && o->batch[0] == 1) {
        inputs = made[0] = mpt__onnx_twice(o, inputs);
        o->batch[0] = 2, o->batch[1] = 4;
    }
    if (o->status == MPT_OK) o->graph = mpt_trace(net, inputs, o->n_inputs);
    if (mpt__onnx_well(o) && o->status == MPT_OK && o->varies) {
        made[1] = mpt__onnx_twice(o, inputs);
        if (o->status == MPT_OK) o->twin = mpt_trace(net, made[1], o->n_inputs);
    }
    const bool fine = mpt__onnx_well(o) && o->status == MPT_OK;
    for (int i = 0; i < 2; i++) mpt__onnx_release(o, made[i]);
    if (!fine || !o->varies) return fine;
    const int count = mpt_graph_count(o->graph);
    bool same = mpt_graph_count(o->twin) == count;
    for (int i = 0; i < count && same; i++)
        same = mpt__onnx_same_node(mpt_graph_node(o->graph, i), mpt_graph_node(o->twin, i));
    return same ||
        mpt__onnx_refuse(o, MPT_ERROR_UNSUPPORTED,
            "the net does something else with a batch twice as large; name no batch");
}

/* ==== Nodes ==== */

static void mpt__onnx_held(mpt__onnx *o, int value, mpt_tensor tensor) {
    const mpt_shape shape = mpt_get_shape(tensor);
    mpt__onnx_weight *weight = mpt__onnx_weight_new(o, value, &shape);
    if (weight) weight->tensor = tensor;
}

/* One of each that `data` of shape `a` has along the dimensions in which `b` has others; false if
   they are not all the same. */
static bool mpt__onnx_uniform(
    unsigned char *data, size_t element, const mpt_shape *a, const mpt_shape *b, mpt_shape *one) {
    const size_t count = (size_t)mpt__tools_shape_numel(a);
    size_t kept = 0;
    *one = *a;
    for (int d = 0; d < a->rank; d++)
        if (a->dim[d] != b->dim[d]) one->dim[d] = 1;
    for (size_t i = 0; i < count; i++) {
        size_t rest = i, from = 0, step = 1;
        for (int d = a->rank; d-- > 0;) {
            const size_t at = rest % (size_t)a->dim[d];
            rest /= (size_t)a->dim[d];
            if (a->dim[d] == b->dim[d]) from += at * step;
            step *= (size_t)a->dim[d];
        }
        if (memcmp(data + i * element, data + from * element, element) != 0) return false;
        if (from == i) memcpy(data + kept++ * element, data + i * element, element);
    }
    return true;
}

/* The bytes of each number in the order of little-endian machines. */
static void mpt__onnx_little(unsigned char *data, size_t bytes, size_t element) {
    const uint16_t one = 1;
    unsigned char first;
    memcpy(&first, &one, 1);
    for (size_t i = 0; !first && i + element <= bytes; i += element)
        for (size_t k = 0; k < element / 2; k++) {
            const unsigned char byte = data[i + k];
            data[i + k] = data[i + element - 1 - k], data[i + element - 1 - k] = byte;
        }
}

/* A tensor that no op made, as a mask of positions: the same in both, or all the same along what
   goes with the batch. */
static void mpt__onnx_given(mpt__onnx *o) {
    const mpt_node *node = o->node;
    const mpt_shape *shape = &node->shape[0], *other = &o->other->shape[0];
    const size_t element = mpt_dtype_size(node->dtype[0]);
    bool same = true, fine = false;
    size_t bytes, others = 0;
    for (int d = 0; d < shape->rank; d++) same = same && shape->dim[d] == other->dim[d];
    unsigned char *data = mpt__onnx_read(o, node->value, &bytes);
    unsigned char *twin = data && o->varies ? mpt__onnx_read(o, o->other->value, &others) : NULL;
    mpt_shape one = *shape;
    if (data && !o->varies) fine = true;
    if (data && twin && same) fine = memcmp(data, twin, bytes) == 0;
    if (data && twin && !same)
        fine = mpt__onnx_uniform(data, element, shape, other, &one) &&
            mpt__onnx_uniform(twin, element, other, shape, &one) &&
            memcmp(data, twin, (size_t)mpt__tools_shape_numel(&one) * element) == 0;
    mpt__tools_release(twin);
    if (fine) {
        mpt__tools_bytes little = {data, (size_t)mpt__tools_shape_numel(&one) * element, 0, false};
        mpt__onnx_little(data, little.size, element);
        int value = mpt__onnx_constant(o, node->dtype[0], &one, &little);
        if (!same) value = mpt__onnx_expanded(o, value);
        o->results[o->at * MPT_NODE_OUTPUTS] = value;
    } else if (data) {
        mpt__onnx_fail(o, "a tensor made in forward whose numbers go with the batch");
    }
    mpt__tools_release(data);
}

static void mpt__onnx_op(mpt__onnx *o) {
    const mpt_node *node = o->node;
    const mpt__onnx_row *row =
        node->kind == MPT_NODE_OP ? mpt__onnx_row_of(node->name) : NULL;
    if (!row || !row->write) {
        mpt__onnx_fail(o, node->kind == MPT_NODE_USER_OP
                ? "an op of the program's own, of which ONNX knows nothing"
                : "ONNX has nothing for it");
        return;
    }
    const bool sizes = row->write == mpt__onnx_slice || row->write == mpt__onnx_reshaped ||
        row->write == mpt__onnx_expand;
    for (int i = 0; i < MPT_MAX_RANK && !sizes; i++)
        if (i != 1 && i != 3 && node->index[i] != o->other->index[i])
            mpt__onnx_fail(o, "a number that goes with the batch; name no batch");
    row->write(o, row->form);
}

/* Writes node o->at. *inputs, *outputs: those of the net so far. */
static void mpt__onnx_node(mpt__onnx *o, int *inputs, int *outputs) {
    const mpt_node *node = o->node;
    int *result = &o->results[o->at * MPT_NODE_OUTPUTS], value;
    const char *const *names;
    if (node->changed) {
        mpt__onnx_fail(o, "memory that is changed in place by way of another tensor; mpt_clone it");
        return;
    }
    switch (node->kind) {
    case MPT_NODE_INPUT:
        names = o->config->inputs;
        *result = mpt__onnx_value_new(o, names ? names[*inputs] : node->name, node->dtype[0]);
        ++*inputs;
        break;
    case MPT_NODE_PARAMETER:
    case MPT_NODE_BUFFER:
        *result = mpt__onnx_value_new(o, node->name, node->dtype[0]);
        mpt__onnx_held(o, *result, node->value);
        break;
    case MPT_NODE_CONSTANT: mpt__onnx_given(o); break;
    case MPT_NODE_OP:
    case MPT_NODE_USER_OP: mpt__onnx_op(o); break;
    case MPT_NODE_OUTPUT:
        names = o->config->outputs;
        value = mpt__onnx_in_as(o, 0, node->dtype[0]);
        *result = mpt__onnx_value_new(o, names ? names[*outputs] : node->name, node->dtype[0]);
        mpt__onnx_put_many(o, "Identity", &value, 1, result, 1);
        ++*outputs;
        break;
    }
}

/* Values of one name would be one. */
static bool mpt__onnx_check_names(mpt__onnx *o, int count) {
    for (int i = 0; i < count; i++) {
        const mpt_node *node = mpt_graph_node(o->graph, i);
        if (node->kind == MPT_NODE_OP || node->kind == MPT_NODE_USER_OP ||
            node->kind == MPT_NODE_CONSTANT)
            continue;
        const int own = o->results[i * MPT_NODE_OUTPUTS];
        for (int k = 0; k < o->value_count; k++) {
            if (k == own || strcmp(o->values[k].name, o->values[own].name) != 0) continue;
            mpt__tools_note_add(&o->why, "two values are called \"%s\"; ", o->values[own].name);
            return mpt__onnx_refuse(o, MPT_ERROR_ARGUMENT, "give inputs and outputs other names");
        }
    }
    return true;
}

static bool mpt__onnx_nodes(mpt__onnx *o) {
    const int count = mpt_graph_count(o->graph);
    int inputs = 0, outputs = 0;
    o->results = (int *)mpt__tools_allocate((size_t)count * MPT_NODE_OUTPUTS * sizeof *o->results);
    if (!o->results) return mpt__onnx_out_of_memory(o) >= 0;
    for (int i = 0; i < count * MPT_NODE_OUTPUTS; i++) o->results[i] = -1;
    for (int i = 0; i < count && o->status == MPT_OK; i++) {
        o->at = i, o->made = 0;
        o->node = mpt_graph_node(o->graph, i);
        o->other = o->varies ? mpt_graph_node(o->twin, i) : o->node;
        mpt__onnx_node(o, &inputs, &outputs);
    }
    return o->status == MPT_OK && mpt__onnx_check_names(o, count);
}

/* ==== Shapes of values ==== */

static void mpt__onnx_put_dim(
    const mpt__onnx *o, mpt__tools_bytes *to, int64_t number, int64_t other) {
    char text[160];
    int64_t times = 0, more = 0;
    const size_t dim = mpt__tools_message_begin(to, 1);
    if (number == other) {
        mpt__tools_put_int_field(to, 1, number);
    } else if (mpt__onnx_goes_with(o, number, other, &times, &more)) {
        mpt__tools_note note = mpt__tools_note_begin(text, sizeof text);
        if (times != 1) mpt__tools_note_add(&note, "%lld*", (long long)times);
        mpt__tools_note_add(&note, "%s", o->config->batch);
        if (more != 0) mpt__tools_note_add(&note, "+%lld", (long long)more);
        mpt__tools_put_text_field(to, 2, text);
    }
    mpt__tools_message_end(to, dim);
}

/* A ValueInfoProto: the value of output k of node i. */
static void mpt__onnx_put_info(
    const mpt__onnx *o, mpt__tools_bytes *to, int field, int i, int k) {
    const int value = o->results[i * MPT_NODE_OUTPUTS + k];
    const mpt_node *node = mpt_graph_node(o->graph, i);
    const mpt_node *other = o->varies ? mpt_graph_node(o->twin, i) : node;
    const size_t info = mpt__tools_message_begin(to, field);
    mpt__tools_put_text_field(to, 1, mpt__onnx_name(o, value));
    const size_t type = mpt__tools_message_begin(to, 2);
    const size_t tensor = mpt__tools_message_begin(to, 1);
    mpt__tools_put_int_field(to, 1, mpt__onnx_type(o->values[value].dtype));
    const size_t shape = mpt__tools_message_begin(to, 2);
    for (int d = 0; d < node->shape[k].rank; d++)
        mpt__onnx_put_dim(o, to, node->shape[k].dim[d], other->shape[k].dim[d]);
    mpt__tools_message_end(to, shape);
    mpt__tools_message_end(to, tensor);
    mpt__tools_message_end(to, type);
    mpt__tools_message_end(to, info);
}

/* What the model says of its inputs, its outputs and each value between, once. */
static void mpt__onnx_put_infos(mpt__onnx *o, mpt__tools_bytes *to) {
    static const struct {
        int field;
        mpt_node_kind kind;
    } parts[] = {{MPT__ONNX_INPUT, MPT_NODE_INPUT}, {MPT__ONNX_OUTPUT, MPT_NODE_OUTPUT},
        {MPT__ONNX_VALUE_INFO, MPT_NODE_OP}};
    const int count = mpt_graph_count(o->graph);
    bool *told = (bool *)mpt__tools_allocate((size_t)o->value_count * sizeof *told);
    if (!told) {
        mpt__onnx_out_of_memory(o);
        return;
    }
    for (int i = 0; i < o->weight_count; i++) told[o->weights[i].value] = true;
    for (int part = 0; part < 3; part++)
        for (int i = 0; i < count; i++)
            for (int k = 0; k < MPT_NODE_OUTPUTS; k++) {
                const int value = o->results[i * MPT_NODE_OUTPUTS + k];
                if (value < 0 || told[value] ||
                    mpt_graph_node(o->graph, i)->kind != parts[part].kind)
                    continue;
                told[value] = true;
                mpt__onnx_put_info(o, to, parts[part].field, i, k);
            }
    mpt__tools_release(told);
}

/* ==== Files ==== */

typedef struct {
    char *path, *beside; /* where it shall be, and where it is written */
    FILE *file;
} mpt__onnx_file;

static bool mpt__onnx_io_error(mpt__onnx *o, const char *path, const char *what) {
    const int error = errno ? errno : EIO;
    if (o->status != MPT_OK) return false;
    o->status = MPT_ERROR_IO;
    mpt__tools_note_add(&o->why, "%s cannot be %s: %s", path, what, strerror(error));
    return false;
}

static char *mpt__onnx_joined(mpt__onnx *o, const char *a, const char *b) {
    const size_t n = strlen(a), m = strlen(b) + 1;
    char *text = (char *)mpt__tools_allocate(n + m);
    if (!text) {
        mpt__onnx_out_of_memory(o);
        return NULL;
    }
    memcpy(text, a, n);
    memcpy(text + n, b, m);
    return text;
}

static bool mpt__onnx_file_begin(
    mpt__onnx *o, mpt__onnx_file *file, const char *path, const char *more) {
    file->path = mpt__onnx_joined(o, path, more);
    file->beside = file->path ? mpt__onnx_joined(o, file->path, ".new") : NULL;
    if (!file->beside) return false;
    errno = 0;
    file->file = mpt__tools_file_open(file->beside, "wb");
    return file->file || mpt__onnx_io_error(o, file->path, "opened");
}

static bool mpt__onnx_file_put(
    mpt__onnx *o, mpt__onnx_file *file, const void *data, size_t bytes) {
    errno = 0;
    return mpt__tools_file_put(file->file, data, bytes) ||
        mpt__onnx_io_error(o, file->path, "written");
}

static bool mpt__onnx_file_close(mpt__onnx *o, mpt__onnx_file *file) {
    errno = 0;
    const bool fine = mpt__tools_file_close(file->file);
    file->file = NULL;
    return fine || mpt__onnx_io_error(o, file->path, "written");
}

static bool mpt__onnx_file_move(mpt__onnx *o, mpt__onnx_file *file) {
    errno = 0;
    if (mpt__tools_file_move(file->beside, file->path) != 0)
        return mpt__onnx_io_error(o, file->path, "replaced");
    mpt__tools_release(file->beside);
    file->beside = NULL;
    return true;
}

/* What was not moved goes away. */
static void mpt__onnx_file_end(mpt__onnx_file *file, bool opened) {
    if (file->file) mpt__tools_file_close(file->file);
    if (file->beside && opened) mpt__tools_file_remove(file->beside);
    mpt__tools_release(file->path);
    mpt__tools_release(file->beside);
}

/* ==== Weights ==== */

/* Gives large tensors places in the file beside, if all of them are too much for the model. */
static bool mpt__onnx_place(mpt__onnx *o) {
    int64_t all = 0, at = 0;
    for (int i = 0; i < o->weight_count; i++) all += o->weights[i].bytes;
    if (all < o->config->beside) return false;
    for (int i = 0; i < o->weight_count; i++) {
        if (o->weights[i].bytes < MPT__ONNX_SMALL) continue;
        o->weights[i].offset = at;
        at += (o->weights[i].bytes + MPT__ONNX_PAGE - 1) / MPT__ONNX_PAGE * MPT__ONNX_PAGE;
    }
    return at > 0;
}

static void mpt__onnx_put_entry(mpt__tools_bytes *to, const char *key, const char *text) {
    const size_t entry = mpt__tools_message_begin(to, MPT__ONNX_EXTERNAL_DATA);
    mpt__tools_put_text_field(to, 1, key);
    mpt__tools_put_text_field(to, 2, text);
    mpt__tools_message_end(to, entry);
}

/* A TensorProto up to its data. `path`: of the file beside. */
static void mpt__onnx_put_head(
    const mpt__onnx *o, mpt__tools_bytes *to, const mpt__onnx_weight *weight, const char *path) {
    char number[32];
    for (int d = 0; d < weight->shape.rank; d++)
        mpt__tools_put_int_field(to, 1, weight->shape.dim[d]);
    mpt__tools_put_int_field(to, 2, mpt__onnx_type(o->values[weight->value].dtype));
    mpt__tools_put_text_field(to, 8, mpt__onnx_name(o, weight->value));
    if (weight->offset < 0) {
        mpt__tools_put_field(to, MPT__ONNX_RAW_DATA, MPT__TOOLS_WIRE_BYTES);
        mpt__tools_put_varint(to, (uint64_t)weight->bytes);
        return;
    }
    const char *name = path;
    for (const char *c = path; *c; c++)
        if (mpt__tools_is_separator(*c)) name = c + 1;
    mpt__onnx_put_entry(to, "location", name);
    for (int i = 0; i < 2; i++) {
        mpt__tools_note note = mpt__tools_note_begin(number, sizeof number);
        mpt__tools_note_add(&note, "%lld", (long long)(i ? weight->bytes : weight->offset));
        mpt__onnx_put_entry(to, i ? "length" : "offset", number);
    }
    mpt__tools_put_int_field(to, MPT__ONNX_DATA_LOCATION, 1);
}

/* The numbers of a weight. */
static bool mpt__onnx_put_data(mpt__onnx *o, mpt__onnx_file *file, const mpt__onnx_weight *weight) {
    size_t bytes = (size_t)weight->bytes;
    if (weight->data) return mpt__onnx_file_put(o, file, weight->data, bytes);
    unsigned char *data = mpt__onnx_read(o, weight->tensor, &bytes);
    if (!data) return false;
    mpt__onnx_little(data, bytes, mpt_dtype_size(o->values[weight->value].dtype));
    const bool fine = mpt__onnx_file_put(o, file, data, bytes);
    mpt__tools_release(data);
    return fine;
}

/* The file of large tensors. */
static bool mpt__onnx_put_beside(mpt__onnx *o, mpt__onnx_file *file) {
    static const unsigned char zeros[MPT__ONNX_PAGE] = {0};
    int64_t at = 0;
    for (int i = 0; i < o->weight_count; i++) {
        const mpt__onnx_weight *weight = &o->weights[i];
        if (weight->offset < 0) continue;
        if (!mpt__onnx_file_put(o, file, zeros, (size_t)(weight->offset - at)) ||
            !mpt__onnx_put_data(o, file, weight))
            return false;
        at = weight->offset + weight->bytes;
    }
    return true;
}

/* ==== The model ==== */

/* A field whose value of so many bytes follows elsewhere. */
static void mpt__onnx_put_length(mpt__tools_bytes *to, int field, uint64_t bytes) {
    mpt__tools_put_field(to, field, MPT__TOOLS_WIRE_BYTES);
    mpt__tools_put_varint(to, bytes);
}

/* Weights, each read when its turn comes; or, of no file, the bytes that they take. */
static bool mpt__onnx_put_weights(
    mpt__onnx *o, mpt__onnx_file *file, const char *beside, uint64_t *bytes) {
    mpt__tools_bytes head = {NULL, 0, 0, false}, tag = {NULL, 0, 0, false};
    bool fine = true;
    for (int i = 0; i < o->weight_count && fine; i++) {
        const mpt__onnx_weight *weight = &o->weights[i];
        const uint64_t own = weight->offset < 0 ? (uint64_t)weight->bytes : 0;
        head.size = tag.size = 0;
        mpt__onnx_put_head(o, &head, weight, beside);
        mpt__onnx_put_length(&tag, MPT__ONNX_INITIALIZER, head.size + own);
        fine = !head.failed && !tag.failed;
        if (!fine) mpt__onnx_out_of_memory(o);
        *bytes += tag.size + head.size + own;
        if (file && fine)
            fine = mpt__onnx_file_put(o, file, tag.data, tag.size) &&
                mpt__onnx_file_put(o, file, head.data, head.size) &&
                (weight->offset >= 0 || mpt__onnx_put_data(o, file, weight));
    }
    mpt__tools_bytes_free(&head);
    mpt__tools_bytes_free(&tag);
    return fine;
}

static bool mpt__onnx_put_model(mpt__onnx *o, mpt__onnx_file *file, const char *beside) {
    char version[32];
    mpt__tools_bytes head = {NULL, 0, 0, false}, infos = {NULL, 0, 0, false};
    uint64_t weights = 0;
    mpt__tools_note note = mpt__tools_note_begin(version, sizeof version);
    mpt__tools_note_add(&note, "%lld.%lld.%lld", (long long)MPTRAIN_VERSION_MAJOR,
        (long long)MPTRAIN_VERSION_MINOR, (long long)MPTRAIN_VERSION_PATCH);
    mpt__tools_put_text_field(&o->nodes, MPT__ONNX_GRAPH_NAME, "net");
    mpt__onnx_put_infos(o, &infos);
    bool fine = mpt__onnx_put_weights(o, NULL, beside, &weights);
    mpt__tools_put_int_field(&head, 1, MPT__ONNX_IR_VERSION);
    mpt__tools_put_text_field(&head, 2, "mptrain");
    mpt__tools_put_text_field(&head, 3, version);
    const size_t opset = mpt__tools_message_begin(&head, MPT__ONNX_MODEL_OPSET);
    mpt__tools_put_int_field(&head, 2, MPT_ONNX_OPSET);
    mpt__tools_message_end(&head, opset);
    mpt__onnx_put_length(&head, MPT__ONNX_MODEL_GRAPH, o->nodes.size + weights + infos.size);
    if (head.failed || infos.failed || o->nodes.failed) mpt__onnx_out_of_memory(o);
    fine = fine && o->status == MPT_OK && mpt__onnx_file_put(o, file, head.data, head.size) &&
        mpt__onnx_file_put(o, file, o->nodes.data, o->nodes.size) &&
        mpt__onnx_put_weights(o, file, beside, &weights) &&
        mpt__onnx_file_put(o, file, infos.data, infos.size);
    mpt__tools_bytes_free(&head);
    mpt__tools_bytes_free(&infos);
    return fine;
}

/* Both files are whole before either takes its place. */
static void mpt__onnx_write(mpt__onnx *o, const char *path) {
    mpt__onnx_file model = {NULL, NULL, NULL}, beside = {NULL, NULL, NULL};
    const bool two = mpt__onnx_place(o);
    bool opened = mpt__onnx_file_begin(o, &model, path, ""), opened_two = false, fine = opened;
    if (fine && two) fine = opened_two = mpt__onnx_file_begin(o, &beside, path, ".data");
    if (fine && two)
        fine = mpt__onnx_put_beside(o, &beside) && mpt__onnx_file_close(o, &beside);
    fine = fine && mpt__onnx_put_model(o, &model, two ? beside.path : "") &&
        mpt__onnx_file_close(o, &model);
    if (fine && two) fine = mpt__onnx_file_move(o, &beside);
    if (fine) mpt__onnx_file_move(o, &model);
    mpt__onnx_file_end(&model, opened);
    mpt__onnx_file_end(&beside, opened_two);
}

static void mpt__onnx_free(mpt__onnx *o) {
    if (o->graph.slot) mpt_graph_destroy(o->graph);
    if (o->twin.slot) mpt_graph_destroy(o->twin);
    for (int i = 0; i < o->value_count; i++) mpt__tools_release(o->values[i].name);
    for (int i = 0; i < o->weight_count; i++) mpt__tools_release(o->weights[i].data);
    mpt__tools_release(o->values);
    mpt__tools_release(o->weights);
    mpt__tools_release(o->results);
    mpt__tools_bytes_free(&o->nodes);
    mpt__tools_bytes_free(&o->attributes);
}

mpt_status mpt_onnx_export(mpt_module net, const mpt_tensor *inputs, int n_inputs,
    const char *path, const mpt_onnx_config *config, char *why, size_t capacity) {
    const mpt_onnx_config defaults = mpt_onnx_config_default();
    mpt__onnx o;
    memset(&o, 0, sizeof o);
    o.context = net.context;
    o.config = config ? config : &defaults;
    o.inputs = inputs, o.n_inputs = n_inputs;
    o.batch_value = -1;
    o.why = mpt__tools_note_begin(why, capacity);
    if (!path || !*path || !inputs || n_inputs < 1) {
        mpt__onnx_refuse(&o, MPT_ERROR_ARGUMENT, "expected a path and an array of inputs");
    } else if (!net.context) {
        mpt__onnx_refuse(&o, MPT_ERROR_HANDLE, "the net is a null handle");
    } else if (mpt__onnx_well(&o)) {
        if (mpt__onnx_trace(&o, net) && mpt__onnx_nodes(&o)) mpt__onnx_write(&o, path);
        mpt__onnx_well(&o);
    }
    mpt__onnx_free(&o);
    return o.status;
}

#endif
