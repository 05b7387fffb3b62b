/* ----
 * tools/graph_event.c: a traced net as TensorBoard reads it, a message of the type
 * tensorflow.GraphDef.
 * ---- */
#ifndef MPT__GRAPH_EVENT_INCLUDED
#define MPT__GRAPH_EVENT_INCLUDED

#include "graph.c"

enum {
    MPT__TOOLS_GRAPH_NODE = 1,
    MPT__TOOLS_NODE_NAME = 1,
    MPT__TOOLS_NODE_OP = 2,
    MPT__TOOLS_NODE_INPUT = 3,
    MPT__TOOLS_NODE_ATTRIBUTE = 5,
    MPT__TOOLS_ATTRIBUTE_LIST = 1,
    MPT__TOOLS_ATTRIBUTE_TYPE = 6,
    MPT__TOOLS_LIST_SHAPE = 7,
    MPT__TOOLS_SHAPE_DIM = 2
};

/* tensorflow.DataType of ours; 0: none. */
static int mpt__tools_tensorflow_type(mpt_dtype dtype) {
    static const struct {
        mpt_dtype dtype;
        int type;
    } types[] = {{MPT_F32, 1}, {MPT_F64, 2}, {MPT_I32, 3}, {MPT_U8, 4}, {MPT_I64, 9},
        {MPT_BF16, 14}, {MPT_F16, 19}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype) return types[i].type;
    return 0;
}

/* A name of its own for each node, in which modules are folders: "0/first/conv2d_7". What cannot
   stand in such a name becomes '_'. */
static void mpt__tools_node_title(mpt_graph graph, int index, int output, char *text, size_t size) {
    const mpt_node *node = mpt_graph_node(graph, index);
    mpt__tools_note note = mpt__tools_note_begin(text, size);
    const char *own = strrchr(node->name, '.');
    for (const char *c = node->module; *c; c++) mpt__tools_note_char(&note, *c == '.' ? '/' : *c);
    if (node->module[0]) mpt__tools_note_char(&note, '/');
    mpt__tools_note_add(&note, "%s_%lld", own ? own + 1 : node->name, (long long)index);
    for (char *c = text; *c; c++)
        if (!(*c >= 'a' && *c <= 'z') && !(*c >= 'A' && *c <= 'Z') && !(*c >= '0' && *c <= '9') &&
            *c != '/')
            *c = '_';
    if (output > 0) mpt__tools_note_add(&note, ":%lld", (long long)output);
}

/* An attribute's message begins: its key, then its value, which two calls of message_end close. */
static size_t mpt__tools_attribute_begin(mpt__tools_bytes *to, const char *key, size_t *value) {
    const size_t attribute = mpt__tools_message_begin(to, MPT__TOOLS_NODE_ATTRIBUTE);
    mpt__tools_put_text_field(to, 1, key);
    *value = mpt__tools_message_begin(to, 2);
    return attribute;
}

static void mpt__tools_put_node_shapes(mpt__tools_bytes *to, const mpt_node *node) {
    size_t value;
    const size_t attribute = mpt__tools_attribute_begin(to, "_output_shapes", &value);
    const size_t list = mpt__tools_message_begin(to, MPT__TOOLS_ATTRIBUTE_LIST);
    for (int i = 0; i < node->outputs; i++) {
        const size_t shape = mpt__tools_message_begin(to, MPT__TOOLS_LIST_SHAPE);
        for (int d = 0; d < node->shape[i].rank; d++) {
            const size_t dim = mpt__tools_message_begin(to, MPT__TOOLS_SHAPE_DIM);
            mpt__tools_put_int_field(to, 1, node->shape[i].dim[d]);
            mpt__tools_message_end(to, dim);
        }
        mpt__tools_message_end(to, shape);
    }
    mpt__tools_message_end(to, list);
    mpt__tools_message_end(to, value);
    mpt__tools_message_end(to, attribute);
}

static void mpt__tools_put_node(mpt__tools_bytes *to, mpt_graph graph, int index) {
    const mpt_node *node = mpt_graph_node(graph, index);
    const int type = node->outputs > 0 ? mpt__tools_tensorflow_type(node->dtype[0]) : 0;
    const char *const kinds[] = {"Placeholder", "Parameter", "Buffer", "Const", "", "", "Identity"};
    char name[1200];
    const size_t message = mpt__tools_message_begin(to, MPT__TOOLS_GRAPH_NODE);
    mpt__tools_node_title(graph, index, 0, name, sizeof name);
    mpt__tools_put_text_field(to, MPT__TOOLS_NODE_NAME, name);
    mpt__tools_put_text_field(
        to, MPT__TOOLS_NODE_OP, kinds[node->kind][0] ? kinds[node->kind] : node->name);
    for (int i = 0; i < node->inputs; i++) {
        if (node->input[i].node < 0) continue;
        mpt__tools_node_title(graph, node->input[i].node, node->input[i].output, name, sizeof name);
        mpt__tools_put_text_field(to, MPT__TOOLS_NODE_INPUT, name);
    }
    mpt__tools_put_node_shapes(to, node);
    if (type > 0) {
        size_t value;
        const size_t attribute = mpt__tools_attribute_begin(to, "T", &value);
        mpt__tools_put_int_field(to, MPT__TOOLS_ATTRIBUTE_TYPE, type);
        mpt__tools_message_end(to, value);
        mpt__tools_message_end(to, attribute);
    }
    mpt__tools_message_end(to, message);
}

mpt_status mpt_journal_graph(mpt_journal *journal, mpt_graph graph) {
    mpt_journal_entry entry;
    mpt_status status;
    if (!mpt__tools_journal_begin(journal, &entry, MPT_JOURNAL_GRAPH, "graph", 0, &status))
        return status;
    const int count = graph.context ? mpt_graph_count(graph) : -1;
    if (count < 0) return mpt__tools_journal_tensor_failed(journal, graph.context);
    mpt__tools_bytes bytes = {NULL, 0, 0, false};
    for (int i = 0; i < count; i++) mpt__tools_put_node(&bytes, graph, i);
    entry.graph = bytes.data, entry.graph_bytes = bytes.size;
    status = bytes.failed
        ? mpt__tools_journal_fail(journal, MPT_ERROR_MEMORY, "out of memory for the ", "graph")
        : mpt__tools_journal_enter(journal, &entry);
    mpt__tools_bytes_free(&bytes);
    return status;
}

#endif
